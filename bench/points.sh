#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compares dpar's exchanges by index lists with MPI written by hand, as HPCG does it, and with PETSc's SF, in one run
# for each MPI library. Prints the us of each way, the fastest of the samples, and in parentheses the time over that by
# hand: less than 1 is faster. It runs on 2 ranks and on 4, and also measures how long a plan for a million ids per rank
# takes. The limits on 2 ranks are 1.05 by messages of MPI, 0.9 through the node's memory, and 1 s for a plan.
#
#     bench/points.sh [n=16,32,64]         sizes of the cube of each rank
#     TWO_NODES="command that takes RANKS_A_NODE LIBRARY PROGRAM" bench/points.sh        on two nodes as well
#
# Libraries that are not installed are named and left out.
#
# In the environment:
#   SAMPLES   default 60
#   OPENMPI_CC, OPENMPI_RUN, MPICH_CC, MPICH_RUN   default mpicc.openmpi, mpiexec.openmpi, ...
set -u
cd "$(dirname "$0")/.." || exit 1
case ${1:-n=16} in
-h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "bench/${0##*/}"; exit 0 ;;
n=[0-9]*) ;;
*) echo "points: the argument is '$1'; it has to be n=LIST, such as n=16,32,64 (--help)" >&2; exit 2 ;;
esac
: "${SAMPLES:=60}" "${OPENMPI_CC:=mpicc.openmpi}" "${MPICH_CC:=mpicc.mpich}" "${OPENMPI_RUN:=mpiexec.openmpi}"
: "${MPICH_RUN:=mpiexec.mpich}" "${TWO_NODES:=}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p build
flags='-O2 -Wno-stringop-overflow -Wno-stringop-overread -I. -Ibench -DDPAR_IMPLEMENTATION'

table() {
    awk -F, -v label="$1" '
        $2 == "plan" { printf "%s%s: %d ids a rank planned (%s) in %.4f s", "\n", label, $3, $4, $5; next }
        $4 == "hand" { hand = $5; printf "\n%s, %s, %d^3 a rank: by hand %.3f us", label, $2, $3, $5 }
        $4 != "hand" { printf "; %s %.3f (%.2f)", $4, $5, $5 / hand }
        $6 != 1 { wrong = 1; printf " WRONG VALUES" }
        END { print ""; exit wrong || NR == 0 }'
}

bad=0 cores=$(getconf _NPROCESSORS_ONLN)
run() { # library, its name, the launcher, its options if ranks share cores (no if they must not), further arguments
    library=$1 name=$2 start=$3 crowded=$4
    shift 4
    for ranks in 2 4; do
        [ $ranks -le "$cores" ] || [ "$crowded" != no ] || { echo "points: $name: 4 ranks on $cores cores are left out, because its ranks do not yield"; continue; }
        more=
        [ $ranks -le "$cores" ] || more=$crowded
        $start $more -n $ranks build/points_$library $library samples="$SAMPLES" seconds=0.003 "$@" |
            table "$name" || bad=1
    done
    for each in ${TWO_NODES:+1 2}; do
        [ $((2 * each)) -le "$cores" ] || [ "$crowded" != no ] || continue
        $TWO_NODES $each $library "$PWD/build/points_$library" $library samples="$SAMPLES" seconds=0.003 "$@" |
            table "$name, two nodes" || bad=1
    done
}

if command -v "$OPENMPI_CC" > /dev/null; then
    petsc= libs=
    if pkg-config --exists PETSc 2> /dev/null; then
        petsc="-DPOINTS_PETSC $(pkg-config --cflags PETSc)" libs=$(pkg-config --libs PETSc)
    else
        echo 'points: PETSc: not found, so it is left out'
    fi
    "$OPENMPI_CC" $flags $petsc bench/points.c $libs -o build/points_openmpi -lm || exit 1
    run openmpi 'Open MPI' "$OPENMPI_RUN --mca btl self,vader --bind-to none" \
        '--oversubscribe --mca mpi_yield_when_idle 1' "$@"
else
    echo "points: $OPENMPI_CC: not found, so Open MPI is left out"
fi
if command -v "$MPICH_CC" > /dev/null; then
    "$MPICH_CC" $flags bench/points.c -o build/points_mpich -lm || exit 1
    run mpich MPICH "$MPICH_RUN" no "$@"
else
    echo "points: $MPICH_CC: not found, so MPICH is left out"
fi
exit $bad
