#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Measures ranks that share their cores: runs bench/contended.c with Open MPI and MPICH, by dpar and by MPI alone in
# turns, on a quiet machine, beside busy processes, and with 2 and 4 ranks on a core. Prints a line for each operation:
# the us by dpar and by MPI and dpar's time over MPI's, where less than 1 means that dpar is faster; first of the
# rounds' medians, then of their means. MPI libraries that are not installed are named and left out.
#
#   sh bench/contended.sh [ROUNDS]        default 3, about 4 minutes
#
# In the environment:
#   BEFORE    a folder with older headers of dpar, which are measured in the same turns as "before"
#   SETTINGS  some of: quiet nice19 nice0 quota two four (default all)
#               nice19, nice0   as many ranks as cores and one busy process of that niceness
#               quota           as many ranks as cores in a control group that may use the time of one core; only root
#                               can make it
#               two, four       so many ranks on a core (Open MPI with mpi_yield_when_idle)
#   OPENMPI_CC, OPENMPI_RUN, MPICH_CC, MPICH_RUN           default mpicc.openmpi, mpirun.openmpi, ...
cd "$(dirname "$0")/.." || exit 1
case ${1:-3} in
-h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "bench/${0##*/}"; exit 0 ;;
*[!0-9]* | 0) echo "contended: ROUNDS is '$1'; it has to be a whole number above 0 (--help)" >&2; exit 2 ;;
esac
rounds=${1:-3}
: "${SETTINGS:=quiet nice19 nice0 quota two four}" "${BEFORE:=}"
: "${OPENMPI_CC:=mpicc.openmpi}" "${OPENMPI_RUN:=mpirun.openmpi}"
: "${MPICH_CC:=mpicc.mpich}" "${MPICH_RUN:=mpirun.mpich}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for setting in $SETTINGS; do
    case $setting in
    quiet | nice19 | nice0 | quota | two | four) ;;
    *) echo "contended: SETTINGS has '$setting'; allowed are quiet, nice19, nice0, quota, two and four" >&2; exit 2 ;;
    esac
done
mkdir -p build
rows=build/contended.rows
: > "$rows"
busy=
trap '[ -z "$busy" ] || kill "$busy" 2> /dev/null' EXIT
trap 'exit 1' INT TERM

cores=$(getconf _NPROCESSORS_ONLN)
library() { # library compiler: builds its programs; returns 1 if there is no such compiler
    command -v "$2" > /dev/null || { echo "contended: $2: not found, so $1 is left out" >&2; return 1; }
    "$2" -O2 -DDPAR_IMPLEMENTATION -I. bench/contended.c -o "build/contended_$1" -lm || exit 1
    [ -z "$BEFORE" ] || "$2" -O2 -DDPAR_IMPLEMENTATION -I"$BEFORE" bench/contended.c -o "build/contended_before_$1" -lm || exit 1
}
# Makes a control group with the time of one core. $quota is its file of tasks, or empty if that is not allowed.
quota=
make_group() {
    if mkdir -p /sys/fs/cgroup/cpu/dpar_bench 2> /dev/null && [ -e /sys/fs/cgroup/cpu/dpar_bench/cpu.cfs_quota_us ]; then
        echo 100000 > /sys/fs/cgroup/cpu/dpar_bench/cpu.cfs_period_us
        echo 100000 > /sys/fs/cgroup/cpu/dpar_bench/cpu.cfs_quota_us && quota=/sys/fs/cgroup/cpu/dpar_bench/tasks
    elif mkdir -p /sys/fs/cgroup/dpar_bench 2> /dev/null && [ -e /sys/fs/cgroup/dpar_bench/cpu.max ]; then
        echo '100000 100000' > /sys/fs/cgroup/dpar_bench/cpu.max && quota=/sys/fs/cgroup/dpar_bench/cgroup.procs
    fi
    [ -n "$quota" ] || echo 'contended: a control group cannot be made, so the setting quota is left out' >&2
}
start() { # library ranks command...
    which=$1 ranks=$2
    shift 2
    if [ "$setting" = quota ]; then # the program and all that it starts
        set -- sh -c 'echo 0 > "$0"; exec "$@"' "$quota" "$@"
    fi
    if [ "$which" = mpich ]; then
        timeout 120 $MPICH_RUN -np "$ranks" "$@"
    elif [ "$ranks" -gt "$cores" ]; then
        timeout 120 $OPENMPI_RUN --mca btl self,vader --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np "$ranks" "$@"
    else
        timeout 120 $OPENMPI_RUN --mca btl self,vader --bind-to none -np "$ranks" "$@"
    fi
}
keep() { sed "s/^/$1 $2 $3 /" >> "$rows"; } # setting library who
one() { # setting library
    ranks=$cores
    case $1 in two) ranks=$((2 * cores)) ;; four) ranks=$((4 * cores)) ;; esac
    start "$2" "$ranks" "build/contended_$2" dpar 2> /dev/null | keep "$1" "$2" dpar
    [ -z "$BEFORE" ] || start "$2" "$ranks" "build/contended_before_$2" dpar 2> /dev/null | keep "$1" "$2" before
    # MPICH spins without yielding, so that with more ranks than cores an operation takes time slices of the system
    [ "$2" = mpich ] && [ "$ranks" -gt "$cores" ] || start "$2" "$ranks" "build/contended_$2" mpi 2> /dev/null | keep "$1" "$2" mpi
}

libraries=
library openmpi "$OPENMPI_CC" && libraries=openmpi
library mpich "$MPICH_CC" && libraries="$libraries mpich"
[ -n "$libraries" ] || { echo 'contended: neither Open MPI nor MPICH was found'; exit 77; }
round=0
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    for setting in $SETTINGS; do
        case $setting in
        quota)
            [ -n "$quota" ] || make_group
            [ -n "$quota" ] || continue
            ;;
        nice*)
            nice -n "${setting#nice}" sh -c 'while :; do :; done' &
            busy=$!
            ;;
        esac
        for each in $libraries; do one "$setting" "$each"; done
        if [ -n "$busy" ]; then
            kill "$busy"
            wait "$busy" 2> /dev/null
            busy=
        fi
    done
done
awk '
function middle(list, n, value, i, k, t) {
    n = split(list, value, " ")
    for (i = 2; i <= n; i++) { for (k = i; k > 1 && value[k] + 0 < value[k - 1] + 0; k--) { t = value[k]; value[k] = value[k - 1]; value[k - 1] = t } }
    return n == 0 ? 0 : value[int((n + 1) / 2)]
}
function ratio(x, y) { return y > 0 ? sprintf("%.2f", x / y) : "-" }
function cell(x) { return x > 0 ? sprintf("%10.2f", x) : "         -" }
{
    key = $1 " " $2 " " $4
    if (!(key in seen)) { seen[key] = 1; order[++rows] = key }
    median[key, $3] = median[key, $3] " " $5
    mean[key, $3] = mean[key, $3] " " $6
}
END {
    printf "%-8s %-8s %-17s %10s %10s %10s %7s   %10s %10s %10s %7s\n", "setting", "with", "row", "median us", "before", "MPI", "ratio", "mean us", "before", "MPI", "ratio"
    for (i = 1; i <= rows; i++) {
        split(order[i], part, " ")
        d = middle(median[order[i], "dpar"]); b = middle(median[order[i], "before"]); m = middle(median[order[i], "mpi"])
        e = middle(mean[order[i], "dpar"]); f = middle(mean[order[i], "before"]); g = middle(mean[order[i], "mpi"])
        printf "%-8s %-8s %-17s %s %s %s %7s   %s %s %s %7s\n", part[1], part[2], part[3], cell(d), cell(b), cell(m), ratio(d, m), cell(e), cell(f), cell(g), ratio(e, g)
    }
}' "$rows"
