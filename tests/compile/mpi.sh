#!/bin/sh
# SPDX-License-Identifier: MIT-0
# dpar_mpi.h with each MPI that is here: no warnings as C and C++, then tests/mpi at 1 to 8 ranks.
# MPICH's own waits never yield: there with few ranks, or where dpar's loops do the waiting.
. tests/compile/common.sh
root=$PWD
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpis=
for kind in openmpi mpich; do
    ! have mpicc.$kind || mpis="$mpis .$kind"
done
if [ -z "$mpis" ]; then
    have mpicc || { echo 'mpicc: not found'; exit 77; }
    mpis=plain
fi

run() { # ranks, program, words
    n=$1
    shift
    $launch -np "$n" "$@" > "$work/said" 2>&1 ||
        { echo "failed: $launch -np $n $*"; grep -v UCX "$work/said"; exit 1; }
}

judge() { # flags
    try mpicc$suffix -std=c99 -D_GNU_SOURCE -O1 $includes $strict_c -DDPAR_NO_COST -DDPAR_IMPLEMENTATION \
        -I"$DPAR_DIR" -I"$root" -fsyntax-only "$@"
}

for suffix in $mpis; do
    [ "$suffix" != plain ] || suffix=
    # the headers of MPI as system headers: their warnings are theirs
    includes=$(mpicc$suffix -show | tr ' ' '\n' | sed -n 's/^-I/-isystem /p' | tr '\n' ' ')
    launch="timeout 300 mpiexec$suffix"
    most=3
    if mpiexec$suffix --version 2>&1 | grep -qi 'open.*mpi\|OpenRTE'; then
        launch="$launch --oversubscribe --mca mpi_yield_when_idle 1"
        most=8
    fi
    printf '#include "dpar_mpi.h"\nint main(void) { return 0; }\n' > "$work/unit.c"
    judge "$work/unit.c"
    strict_tests='-Wall -Wextra -Werror'
    for name in every order late three; do
        try mpicc$suffix -O1 $strict_tests -DDPAR_NO_COST -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" \
            -I"$root" "tests/mpi/$name.c" -o "$work/$name" -lm
    done
    try mpicc$suffix -O1 -DDPAR_MPI_LIMIT=7 -DDPAR_NO_COST -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" \
        -I"$root" tests/mpi/every.c -o "$work/every_7" -lm
    try mpicxx$suffix -x c++ -std=c++11 -O1 -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $strict_tests \
        -DDPAR_NO_COST -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -I"$root" tests/mpi/three.c -o "$work/three_cxx"
    for n in 1 2 3 $most; do
        run "$n" "$work/three"
        run "$n" "$work/every"
    done
    run 4 "$work/three_cxx"
    run 2 "$work/every_7"
    run 3 "$work/every_7"
    run 3 "$work/every_7" order check
    run 2 "$work/every" order
    run 3 "$work/every" check
    run 2 "$work/every" block
    run 2 "$work/every" block forever order
    run 2 "$work/order"
    run 3 "$work/order"
    for part in 0 1 2 3 4 5; do
        run 3 "$work/late" $part
    done
    echo "mpicc$suffix"
done
