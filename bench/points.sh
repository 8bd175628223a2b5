#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Exchanges by index lists beside MPI written by hand (HPCG's way) and PETSc's SF, in one run a library: times in us,
# the fastest of SAMPLES (60), and ratios to the hand's. On 2 ranks, then on 4; then planning a million ids a rank.
#     bench/points.sh [n=16,32,64]
#     TWO_NODES="command that takes RANKS_A_NODE LIBRARY PROGRAM" bench/points.sh        and on two nodes
# Missing libraries are named and left out. Marks, of 2 ranks: over MPI 1.05, in a node 0.9; planning 1 s.
set -u
cd "$(dirname "$0")/.." || exit 1
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
run() { # library, its name, how to start, and ranks that share cores (no: not at all), words of the user
    library=$1 name=$2 start=$3 crowded=$4
    shift 4
    for ranks in 2 4; do
        [ $ranks -le "$cores" ] || [ "$crowded" != no ] || { echo "$name: 4 ranks on $cores cores, skipped"; continue; }
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
        echo 'PETSc: not found, skipped'
    fi
    "$OPENMPI_CC" $flags $petsc bench/points.c $libs -o build/points_openmpi -lm || exit 1
    run openmpi 'Open MPI' "$OPENMPI_RUN --mca btl self,vader --bind-to none" \
        '--oversubscribe --mca mpi_yield_when_idle 1' "$@"
else
    echo "$OPENMPI_CC: not found, skipped"
fi
if command -v "$MPICH_CC" > /dev/null; then
    "$MPICH_CC" $flags bench/points.c -o build/points_mpich -lm || exit 1
    run mpich MPICH "$MPICH_RUN" no "$@"
else
    echo "$MPICH_CC: not found, skipped"
fi
exit $bad
