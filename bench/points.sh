#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Exchanges by index lists on 2 ranks beside MPI written by hand (HPCG's way) and PETSc's SF, in one run a library:
# times in us, the fastest of SAMPLES (60), and ratios to the hand's. Then planning a million ids a rank.
#     bench/points.sh [n=16,32,64]
# Missing libraries are named and left out. Marks: over MPI 1.05, in a node 0.9, planning 1 s.
set -u
cd "$(dirname "$0")/.." || exit 1
: "${SAMPLES:=60}" "${OPENMPI_CC:=mpicc.openmpi}" "${MPICH_CC:=mpicc.mpich}" "${OPENMPI_RUN:=mpiexec.openmpi}"
: "${MPICH_RUN:=mpiexec.mpich}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p build
flags='-O2 -Wno-stringop-overflow -Wno-stringop-overread -I. -Ibench -DDPAR_IMPLEMENTATION'

table() {
    awk -F, -v label="$1" '
        $2 == "plan" { printf "%s%s: %d ids a rank planned (%s) in %.4f s", "\n", label, $3, $4, $5; next }
        $4 == "hand" { hand = $5; printf "\n%s, cut in %s, %d^3 a rank: by hand %.3f us", label, $2, $3, $5 }
        $4 != "hand" { printf "; %s %.3f (%.2f)", $4, $5, $5 / hand }
        $6 != 1 { wrong = 1; printf " WRONG VALUES" }
        END { print ""; exit wrong }'
}

bad=0
if command -v "$OPENMPI_CC" > /dev/null; then
    petsc= libs=
    if pkg-config --exists PETSc 2> /dev/null; then
        petsc="-DPOINTS_PETSC $(pkg-config --cflags PETSc)" libs=$(pkg-config --libs PETSc)
    else
        echo 'PETSc: not found, skipped'
    fi
    "$OPENMPI_CC" $flags $petsc bench/points.c $libs -o build/points_openmpi -lm || exit 1
    "$OPENMPI_RUN" --mca btl self,vader --bind-to none -n 2 build/points_openmpi openmpi samples="$SAMPLES" seconds=0.003 "$@" |
        table 'Open MPI' || bad=1
else
    echo "$OPENMPI_CC: not found, skipped"
fi
if command -v "$MPICH_CC" > /dev/null; then
    "$MPICH_CC" $flags bench/points.c -o build/points_mpich -lm || exit 1
    "$MPICH_RUN" -n 2 build/points_mpich mpich samples="$SAMPLES" seconds=0.003 "$@" | table MPICH || bad=1
else
    echo "$MPICH_CC: not found, skipped"
fi
exit $bad
