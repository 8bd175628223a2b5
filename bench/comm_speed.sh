#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compares dpar's communicators with Open MPI and MPICH: builds bench/mpi_coll.c with both, or with the one that is
# installed, runs them in turns, and prints docs/records/performance.md to stdout. A ratio there is dpar's time over
# that of the fastest MPI, so that less than 1 means that dpar is faster.
#
#   sh bench/comm_speed.sh [ROUNDS [SECONDS]]     default 5 rounds of about 75 s, 0.02 s for each row
#
# With 0 rounds it prints the tables of the rows that an earlier run has left in the file ROWS.
#
# In the environment:
#   PARTS   some of: sampled back settings four busy (default all)
#   OPS     operations that are sampled (default all)
#   BEFORE  a command that is put before the program if each rank has a core, such as: chrt -r 1
#   QUIET   seconds for which it waits, at most, until nothing else runs on the machine (default 60)
#   ROWS    the file of the rows (default build/comm_speed.csv)
#   OPENMPI_CC, OPENMPI_RUN, MPICH_CC, MPICH_RUN  default mpicc.openmpi, mpirun.openmpi, ...
cd "$(dirname "$0")/.." || exit 1
case ${1:-5} in
-h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "bench/${0##*/}"; exit 0 ;;
*[!0-9]*) echo "comm_speed: ROUNDS is '$1'; it has to be a whole number, 0 or more (--help)" >&2; exit 2 ;;
esac
case ${2:-0.02} in
*[!0-9.]* | . | *.*.*) echo "comm_speed: SECONDS is '$2'; it has to be a number above 0 (--help)" >&2; exit 2 ;;
esac
rounds=${1:-5} seconds=${2:-0.02}
: "${CC:=cc}" "${PARTS:=sampled back settings four busy}" "${OPS:=}" "${BEFORE:=}" "${QUIET:=60}"
: "${OPENMPI_CC:=mpicc.openmpi}" "${OPENMPI_RUN:=mpirun.openmpi}"
: "${MPICH_CC:=mpicc.mpich}" "${MPICH_RUN:=mpirun.mpich}" "${ROWS:=build/comm_speed.csv}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p build
loops=

stop_loops() {
    for pid in $loops; do
        kill "$pid" 2>/dev/null
    done
    loops=
}
trap stop_loops EXIT
trap 'exit 1' INT TERM

say() { echo "comm_speed: $*" >&2; }

# Ranks that an earlier run left behind would spoil every number.
no_ranks_left() {
    left=$(ps -e -o comm= | grep -c '^comm_speed_')
    [ "$left" -eq 0 ] || { say "$left processes named comm_speed_* are running $1; stop them first"; exit 1; }
}

# Waits until nothing but this shell runs, twice in a row, or QUIET seconds have passed. A busy machine shows in the
# rows.
wait_until_quiet() {
    calm=0 waited=0
    while [ "$calm" -lt 2 ] && [ "$waited" -lt $((QUIET * 5)) ]; do
        running=$(awk '{ split($4, n, "/"); print n[1] }' /proc/loadavg)
        if [ "$running" -le 1 ]; then calm=$((calm + 1)); else calm=0; fi
        waited=$((waited + 1))
        sleep 0.2
    done
}

# part, round, command...: runs it and adds its rows, marked with part and round, to $ROWS ($peer is the MPI library)
add() {
    part=$1 round=$2
    shift 2
    [ "$part" = busy ] || wait_until_quiet
    if ! timeout -k 5 300 "$@" > build/comm_speed.out 2> build/comm_speed.err; then
        say "the command failed or took longer than 300 s: $*"
        tail -n 5 build/comm_speed.err >&2
        broken=1
    fi
    # Hydra makes each rank a session, which a scheduler may treat as a group, so these rows get another name
    awk -v part="$part" -v round="$round" -v peer="$peer" '
        /^dpar,/ && peer == "mpich" && part ~ /four|busy/ { sub(/dpar/, "dpar-hydra") }
        /^[a-z][a-z-]*,[0-9]/ { print part "," round "," $0 }' build/comm_speed.out >> "$ROWS"
    no_ranks_left "after: $*"
}

build() {
    command -v "$2" > /dev/null || { say "$2: not found, so $1 is left out"; return; }
    "$2" -O2 -I. -Ibench -DDPAR_IMPLEMENTATION -DENGINE_H='"comm_engine.h"' ${FLOORS_ONLY:+-DFLOORS_ONLY} \
        bench/mpi_coll.c -o "build/comm_speed_$1" || exit 1
    peers="$peers $1"
}


# part, peer, round: runs a part with one MPI library
one() {
    part=$1 peer=$2 round=$3
    program=build/comm_speed_$peer
    case $part in sampled | back | settings) program="$BEFORE $program" ;; esac
    case $peer in
    openmpi) two="$OPENMPI_RUN --mca btl self,vader --bind-to core -np 2"
        four="$OPENMPI_RUN --mca btl self,vader --oversubscribe --mca mpi_yield_when_idle 1 -np 4" ;;
    mpich) two="$MPICH_RUN -np 2" four="$MPICH_RUN -np 4" ;;
    esac
    case $part-$peer in
    sampled-*) add sampled "$round" $two $program label="$peer" seconds="$seconds" ops="$OPS" ;;
    back-*) add back "$round" $two $program label="$peer" seconds="$seconds" dirty=0 max=4 \
        ops=barrier,all_reduce engines=mpi,dpar,dpar-heap ;;
    settings-openmpi)
        two="$OPENMPI_RUN --mca btl self,vader --bind-to core -np 2"
        add sampled "$round" $two --mca btl_vader_single_copy_mechanism none $program \
            label=openmpi-nocma seconds="$seconds" ops="$OPS" engines=mpi
        add settings "$round" $two --mca coll_sm_priority 100 $program label=openmpi-sm \
            seconds="$seconds" ops=all_reduce,reduce_scatter engines=mpi ;;
    four-* | busy-*) add "$part" "$round" $four $program label="$peer" seconds=0.1 dirty=0 \
        ops=barrier engines=mpi,dpar ;;
    esac
}

# Runs "$@" while two busy loops use the first core
beside_loops() {
    core=$(awk '/^Cpus_allowed_list/ { split($2, c, /[-,]/); print c[1] }' /proc/self/status)
    for k in 1 2; do
        timeout 300 taskset -c "$core" sh -c 'while :; do :; done' &
        loops="$loops $!"
    done
    "$@"
    stop_loops
    wait
}

one_round() {
    for part in $PARTS; do
        for peer in $1; do
            if [ "$part" = busy ]; then
                beside_loops one busy "$peer" "$2"
            else
                one "$part" "$peer" "$2"
            fi
        done
    done
}

machine() {
    echo "machine,$(awk -F ': ' '/^model name/ { print $2; exit }' /proc/cpuinfo), $(nproc) cores"
    echo "machine,Linux $(uname -r | sed 's/[^0-9.].*//'), $($CC --version | sed -n 1p), -O2"
    for peer in $peers; do
        case $peer in
        openmpi) echo "machine,Open MPI $("$OPENMPI_RUN" --version | sed -n '1s/.* //p')" ;;
        mpich) echo "machine,MPICH $("$MPICH_RUN" --version | awk '$1 == "Version:" { print $2; exit }')" ;;
        esac
    done
    [ -z "$BEFORE" ] || echo "machine,ranks with a core each under $BEFORE"
    echo "machine,$(date -u +%Y-%m-%d)"
}

broken=0
[ "$rounds" -gt 0 ] || [ -r "$ROWS" ] || { say "ROWS is '$ROWS', which cannot be read; run a round first"; exit 2; }
if [ "$rounds" -gt 0 ]; then
    peers=
    no_ranks_left 'already'
    build openmpi "$OPENMPI_CC"
    build mpich "$MPICH_CC"
    [ -n "$peers" ] || { say 'neither Open MPI nor MPICH was found'; exit 77; }
    machine > "$ROWS"
    backwards=$(for peer in $peers; do echo "$peer"; done | sort)
    round=0
    while [ "$round" -lt "$rounds" ]; do
        if [ $((round % 2)) -eq 0 ]; then order=$peers; else order=$backwards; fi
        one_round "$order" "$round"
        round=$((round + 1))
        say "round $round of $rounds"
    done
fi
cat <<'END'
# Performance

Generated by `make performance` (`bench/comm_speed.sh`), which keeps the two sections that are written by hand: "Over
MPI" and "Beyond these machines".

## Communicators on one node

Two ranks, one a core, beside Open MPI and MPICH in the same processes and the same run
(`bench/mpi_coll.c`, where dpar is an extra engine). f32, sums. Every input is rewritten before
every timed operation; ranks start together by a barrier that belongs to no contestant; the time of
the slowest rank counts; contestants alternate; results are checked. Cells are **smallest / median
us**, the median over rounds of the medians of a round. Ratio: dpar's median over that of the best
peer (Open MPI with and without single copy, MPICH). *Private* memory is the program's own,
*registered* comes from `dpar_comm_alloc`. dpar is compiled with `-O2` and no other flag. The floor
is a copy of as many bytes as the operation must read and write, by both ranks at once, each in its
own memory (memcpy or streaming stores, whichever is faster).

Compare no figure with one of another day or machine: run it there.

END
awk -F , -f bench/comm_speed.awk "$ROWS" && [ "$broken" -eq 0 ]
