#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compares dpar's halo exchanges with Open MPI, MPICH and PETSc: builds bench/mpi_halo.c with whichever is installed,
# runs them in turns, and prints a section of docs/records/performance.md to stdout. A ratio there is dpar's time over
# that of the fastest way of MPI, so that less than 1 means that dpar is faster.
#
#   sh bench/halo.sh [ROUNDS [SAMPLES]]       default 3 rounds of about two minutes, 21 samples for each row
#
# With 0 rounds it prints the tables of the rows that an earlier run has left in the file ROWS.
#
# In the environment:
#   PARTS   some of: z x one eight crowd (default all): cut along planes, cut along the contiguous dim, one rank,
#           small blocks of eight fields, 8 ranks
#   SIZES   edges of the blocks (default 32,64,128)
#   SECONDS_A_SAMPLE                          default 0.004; with 8 ranks five times that
#   BEFORE  a command that is put before the program if each rank has a core, such as: chrt -r 1
#   ROWS    the file of the rows (default build/halo.csv)
#   OPENMPI_CC, OPENMPI_RUN, MPICH_CC, MPICH_RUN  default mpicc.openmpi, mpirun.openmpi, ...
cd "$(dirname "$0")/.." || exit 1
case ${1:-} in
-h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "bench/${0##*/}"; exit 0 ;;
esac
rounds=${1:-3} samples=${2:-21}
case $rounds/$samples in
*[!0-9/]* | /* | */) echo "halo: ROUNDS is '$rounds' and SAMPLES is '$samples'; both have to be whole numbers (--help)" >&2; exit 2 ;;
esac
: "${CC:=cc}" "${PARTS:=z x one eight crowd}" "${SIZES:=32,64,128}" "${SECONDS_A_SAMPLE:=0.004}" "${BEFORE:=}"
: "${OPENMPI_CC:=mpicc.openmpi}" "${OPENMPI_RUN:=mpirun.openmpi}"
: "${MPICH_CC:=mpicc.mpich}" "${MPICH_RUN:=mpiexec.mpich}" "${ROWS:=build/halo.csv}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p build

say() { echo "halo: $*" >&2; }

# part, command...: runs it and adds its rows, marked with the part, to $ROWS
add() {
    part=$1
    shift
    if ! timeout -k 5 600 "$@" > build/halo.out 2> build/halo.err; then
        say "the command failed or took longer than 600 s: $*"
        tail -n 5 build/halo.err >&2
        broken=1
    fi
    sed -n "s/^\(openmpi\|mpich\),/$part,&/p" build/halo.out >> "$ROWS"
}

# Builds the program for one MPI library. PETSc is built for one of them, the one that its flags find.
build() {
    peer=$1 cc=$2 petsc=
    command -v "$cc" > /dev/null || { say "$cc: not found, so $peer is left out"; return; }
    # gcc warns because it takes constants of MPI for arrays
    flags='-O2 -Wno-stringop-overflow -Wno-stringop-overread -I. -Ibench -DDPAR_IMPLEMENTATION'
    if [ "$peer" = openmpi ] && pkg-config --exists PETSc 2> /dev/null; then
        petsc="-DHALO_PETSC $(pkg-config --cflags PETSc)"
        "$cc" $flags $petsc -DENGINE_H='"halo_engine.h"' bench/mpi_halo.c $(pkg-config --libs PETSc) \
            -o "build/halo_$peer" 2> build/halo.err && peers="$peers $peer" && return
        say 'bench/mpi_halo.c cannot be built with PETSc, which is left out'
    elif [ "$peer" = openmpi ]; then
        say 'PETSc: not found, so it is left out'
    fi
    "$cc" $flags -DENGINE_H='"halo_engine.h"' bench/mpi_halo.c -o "build/halo_$peer" || exit 1
    peers="$peers $peer"
}

# peer: sets $run and $program, for ranks with a core each
choose() {
    peer=$1 program="$BEFORE build/halo_$1"
    case $peer in
    openmpi) run="$OPENMPI_RUN --mca btl self,vader --bind-to core" ;;
    mpich) run="$MPICH_RUN -bind-to core" ;;
    esac
}

# part, peer: runs a part with one MPI library
one() {
    part=$1
    choose "$2"
    options="label=$peer samples=$samples seconds=$SECONDS_A_SAMPLE"
    program="$program $options usual=$usual lost=0.03"
    case $part-$peer in
    z-*) add z $run -np 2 $program n="$SIZES" grid=2x1x1 engines="$two" ;;
    x-*) add x $run -np 2 $program n="$SIZES" grid=1x1x2 engines="$two" ;;
    one-*) add one $run -np 1 $program n="$SIZES" engines=neighbour,pack,registered,private,floor ;;
    eight-*) add eight $run -np 2 $program n=1,2,16,32,64 w=1 grid=2x1x1 shapes=faces \
        engines=registered,in_turn,eight,windows,pack ;;
    crowd-openmpi) # MPICH spins without yielding and would take milliseconds. Samples are long, with many time
        # slices of the system, because an engine begins in what the one before has left of its slice
        crowd=$(awk "BEGIN { print 5 * $SECONDS_A_SAMPLE }")
        add crowd $OPENMPI_RUN --mca btl self,vader --oversubscribe --mca mpi_yield_when_idle 1 \
            -np 8 build/halo_$peer $options seconds="$crowd" n="${SIZES%,128}" w=1 \
            engines=types,neighbour,pack,ordered,registered,private,messages ;;
    esac
}
two=types,neighbour,pack,ordered,registered,private,messages,adjoint,petsc,floor

machine() {
    echo "machine,$(awk -F ': ' '/^model name/ { print $2; exit }' /proc/cpuinfo), $(nproc) cores"
    echo "machine,Linux $(uname -r | sed 's/[^0-9.].*//'), $($CC --version | sed -n 1p), -O2"
    for peer in $peers; do
        case $peer in
        openmpi) echo "machine,Open MPI $("$OPENMPI_RUN" --version | sed -n '1s/.* //p')"
            [ -z "$petsc" ] || echo "machine,PETSc $(pkg-config --modversion PETSc)" ;;
        mpich) echo "machine,MPICH $("$MPICH_RUN" --version | awk '$1 == "Version:" { print $2; exit }')" ;;
        esac
    done
    echo "machine,a cache line takes ${usual%,*} ns between the cores"
    [ -z "$BEFORE" ] || echo "machine,ranks with a core each under $BEFORE"
    echo "machine,$(date -u +%Y-%m-%d)"
}

broken=0
if [ "$rounds" -gt 0 ]; then
    peers=
    build mpich "$MPICH_CC"
    build openmpi "$OPENMPI_CC"
    [ -n "$peers" ] || { say 'neither Open MPI nor MPICH was found'; exit 77; }
    say 'measuring the distance and the speed of the cores for 20 seconds'
    choose "${peers##* }"
    usual=$($run -np 2 $program measure=20) || exit 1
    machine > "$ROWS"
    round=0
    while [ "$round" -lt "$rounds" ]; do
        for part in $PARTS; do
            for peer in $peers; do one "$part" "$peer"; done
        done
        round=$((round + 1))
        say "round $round of $rounds"
    done
fi
[ -r "$ROWS" ] || { say "ROWS is '$ROWS', which cannot be read; run a round first"; exit 2; }
cat <<'END'
## Halo exchanges on one node

Blocks of n^3 doubles a rank with halos of width w, periodic in all dims, x contiguous; two ranks, one
a core, cut along planes (z) or along the contiguous dim (x), so that two of three dims are the rank's
own. *faces*: 6 neighbours; *full*: 26. dpar runs in the same processes as the MPI library, in turns
with it (`bench/mpi_halo.c`, `bench/halo_engine.h`); every engine first fills NaN halos, and every cell
is compared. A sample is the slowest rank's time of about 4 ms of exchanges back to back (20 ms where
eight ranks share two cores: many time slices), after an eighth as many that do not count: the caches
hold what another engine left there. Cells are medians in us, the median over rounds. The four ways of
MPI are messages of subarray types, a neighbourhood all-to-all of them, packing by hand, and packing dim
by dim (full alone); *best* is the fastest of them with either library. *Registered* fields come from
`dpar_comm_alloc`, *private* ones are the program's own. The floor copies the same boxes inside each
rank: one read and one write for each byte of halo, without waiting, box by box; dpar walks two sides at
once and may be below it.

END
awk -F , -f bench/halo.awk "$ROWS" && [ "$broken" -eq 0 ]
