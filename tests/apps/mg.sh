#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests apps/mg.c: the official norms, the same bits on every number of ranks, refusal of bad input. If an MPI
# compiler is installed, runs class S over MPI too. With the argument "long" runs class W on more ranks and
# class A (0.5 GB) instead, both also over MPI.
: "${CC:=cc}" "${CFLAGS:=-O2}"
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
slim='-DDPAR_STATIC -DDPAR_IMPLEMENTATION -I.'
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for kind in openmpi mpich; do
    ! command -v mpicc.$kind > /dev/null || mpicc.$kind $CFLAGS $slim -DUSE_MPI apps/mg.c -o "$work/$kind" &
done
$CC $CFLAGS $slim apps/mg.c -o "$work/mg" || exit 1
wait
bad=0
complain() { echo "$*"; head -n 8 "$work/out" "$work/err"; bad=1; }

# same CLASS COMMAND...: checks that the run is verified, and that all digits of the norm equal the first run's
same() {
    class=$1
    shift
    timeout 300 "$@" --class "$class" > "$work/out" 2> "$work/err" || { complain "failed: $*"; return; }
    grep -q '^verified  yes' "$work/out" || complain "not verified: $*"
    grep '^norm ' "$work/out" > "$work/norm"
    [ -f "$work/norm_$class" ] || cp "$work/norm" "$work/norm_$class"
    cmp -s "$work/norm" "$work/norm_$class" || complain "another norm than on one rank: $*"
}
# refused WORDS OPTIONS...: checks that mg exits with 2 and prints one line with WORDS on stderr
refused() {
    words=$1
    shift
    "$work/mg" "$@" > "$work/out" 2> "$work/err"
    got=$?
    { [ $got -eq 2 ] && grep -q -e "$words" "$work/err" && [ "$(wc -l < "$work/err")" -eq 1 ]; } ||
        complain "exit $got, expected 2 and '$words': $*"
}

same W "$work/mg" --ranks 1
if [ "${1:-}" = long ]; then
    for n in 3 4 6 8; do
        same W "$work/mg" --ranks $n
    done
    for n in 1 2 3 4 6 8; do
        same A "$work/mg" --ranks $n
    done
else
    same W "$work/mg" --ranks 2
    # with 31 ranks some have no part of the second grid
    for n in 1 2 3 4 6 8 13 31 64; do
        same S "$work/mg" --ranks $n
    done
    "$work/mg" --help > "$work/out" 2> "$work/err" && grep -q -e '--class' "$work/out" || complain 'no help'
    refused "not 'X'" --class X
    refused "not 'SS'" --class SS
    refused "a value must follow '--class'" --class
    refused "not '0'" --ranks 0
    refused "not '65'" --ranks 65
    refused "not '2x'" --ranks 2x
    refused "a value must follow '--ranks'" --ranks
    refused '32 x 32 parts' --ranks 37
    refused "unknown option; .* '--size'" --size 4
    refused "twice: '--ranks'" --ranks 2 --ranks 4
    if [ -c /dev/full ]; then
        "$work/mg" > /dev/full 2> "$work/err" && complain 'a full disk is no error'
        grep -q 'could not be written' "$work/err" || complain 'no sentence of a full disk'
    fi
fi

# The engines add in other orders, but the norm does not depend on that.
for kind in openmpi mpich; do
    command -v mpicc.$kind > /dev/null || continue
    [ -x "$work/$kind" ] || { echo "mpicc.$kind: apps/mg.c does not compile"; exit 1; }
    more=
    [ $kind = mpich ] || more='--oversubscribe --mca mpi_yield_when_idle 1'
    if [ "${1:-}" = long ]; then
        same W mpiexec.$kind $more -np 2 "$work/$kind"
        same W mpiexec.$kind $more -np 4 "$work/$kind"
        same A mpiexec.$kind $more -np 2 "$work/$kind"
    else
        for n in 1 2 3 4 6 8; do
            same S mpiexec.$kind $more -np "$n" "$work/$kind"
        done
        echo "over $kind: 1 to 8 ranks"
    fi
done
exit $bad
