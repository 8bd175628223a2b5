#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Ranks that share their cores: bench/contended.c with Open MPI and MPICH, dpar and MPI alone in turns, quiet, beside
# busy processes, and with 2 and 4 ranks a core. Prints a line a row: us by dpar, by MPI, and the ratio; medians of
# the rounds' medians, then of their means.
#
#   sh bench/contended.sh [rounds]        3 rounds, about 4 minutes
#
# In the environment:
#   BEFORE    a folder with older headers: measured in the same turns as "before"
#   SETTINGS  which of: quiet nice19 nice0 quota two four  all. nice19, nice0: 2 ranks beside one busy process of
#             that niceness; quota: 2 ranks in a control group that may use the time of one core (root alone can make
#             it); two, four: so many ranks a core (Open MPI with mpi_yield_when_idle)
#   OPENMPI_CC, OPENMPI_RUN, MPICH_CC, MPICH_RUN           mpicc.openmpi, mpirun.openmpi, ...
cd "$(dirname "$0")/.." || exit 1
rounds=${1:-3}
: "${SETTINGS:=quiet nice19 nice0 quota two four}" "${BEFORE:=}"
: "${OPENMPI_CC:=mpicc.openmpi}" "${OPENMPI_RUN:=mpirun.openmpi}"
: "${MPICH_CC:=mpicc.mpich}" "${MPICH_RUN:=mpirun.mpich}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p build
rows=build/contended.rows
: > "$rows"
busy=
trap '[ -z "$busy" ] || kill "$busy" 2> /dev/null' EXIT
trap 'exit 1' INT TERM

cores=$(getconf _NPROCESSORS_ONLN)
library() { # library compiler: builds its programs; 1 when it is not here
    command -v "$2" > /dev/null || { echo "$2: not found, skipped" >&2; return 1; }
    "$2" -O2 -DDPAR_IMPLEMENTATION -I. bench/contended.c -o "build/contended_$1" -lm || exit 1
    [ -z "$BEFORE" ] || "$2" -O2 -DDPAR_IMPLEMENTATION -I"$BEFORE" bench/contended.c -o "build/contended_before_$1" -lm || exit 1
}
# A group with the time of one core: its file of tasks in $quota; empty where it cannot be made.
quota=
make_group() {
    if mkdir -p /sys/fs/cgroup/cpu/dpar_bench 2> /dev/null && [ -e /sys/fs/cgroup/cpu/dpar_bench/cpu.cfs_quota_us ]; then
        echo 100000 > /sys/fs/cgroup/cpu/dpar_bench/cpu.cfs_period_us
        echo 100000 > /sys/fs/cgroup/cpu/dpar_bench/cpu.cfs_quota_us && quota=/sys/fs/cgroup/cpu/dpar_bench/tasks
    elif mkdir -p /sys/fs/cgroup/dpar_bench 2> /dev/null && [ -e /sys/fs/cgroup/dpar_bench/cpu.max ]; then
        echo '100000 100000' > /sys/fs/cgroup/dpar_bench/cpu.max && quota=/sys/fs/cgroup/dpar_bench/cgroup.procs
    fi
    [ -n "$quota" ] || echo 'a control group with a quota: not permitted, skipped' >&2
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
    # MPICH spins without yielding: with more ranks than cores one operation takes time slices of the system
    [ "$2" = mpich ] && [ "$ranks" -gt "$cores" ] || start "$2" "$ranks" "build/contended_$2" mpi 2> /dev/null | keep "$1" "$2" mpi
}

libraries=
library openmpi "$OPENMPI_CC" && libraries=openmpi
library mpich "$MPICH_CC" && libraries="$libraries mpich"
[ -n "$libraries" ] || { echo 'no MPI: skipped'; exit 77; }
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
