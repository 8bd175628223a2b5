#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests apps/fem.c: the error falls with the square of the cells' width, the table is the same on every number
# of ranks (the error to 1e-6 of itself, iterations to 2; with --exact every digit), parts are balanced, bad input is refused. If an MPI
# compiler is installed, runs the same over MPI. With the argument "long" runs five meshes up to 64^3 cells
# instead.
: "${CC:=cc}" "${CFLAGS:=-O2}"
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
slim='-DDPAR_STATIC -DDPAR_IMPLEMENTATION -I.'
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for kind in openmpi mpich; do
    ! command -v mpicc.$kind > /dev/null || mpicc.$kind $CFLAGS $slim -DUSE_MPI apps/fem.c -o "$work/$kind" &
done
$CC $CFLAGS $slim apps/fem.c -o "$work/fem" || exit 1
wait
bad=0
complain() { echo "$*"; head -n 12 "$work/out" "$work/err"; bad=1; }

# table: prints cells, nodes, elements, iterations and error of each mesh
table() { awk '$1 + 0 > 0 && NF >= 9 { print $1, $2, $3, $7, $8 }' "$work/out"; }
# same NAME COMMAND...: runs the command and checks that its table equals that of the first run with this name
same() {
    name=$1
    shift
    timeout 300 "$@" > "$work/out" 2> "$work/err" || { complain "failed: $*"; return; }
    table > "$work/table"
    [ -s "$work/table" ] || complain "no table: $*"
    [ -f "$work/$name" ] || cp "$work/table" "$work/$name"
    paste -d ' ' "$work/$name" "$work/table" | awk '
        function apart(a, b) { return a > b ? a - b : b - a }
        NF != 10 || $1 != $6 || $2 != $7 || $3 != $8 || apart($4, $9) > 2 || apart($5, $10) > 1e-6 * $5 { bad = 1 }
        END { exit bad }' || complain "another table than on one rank: $*"
}
# refused WORDS OPTIONS...: checks that fem exits with 2 and prints one line with WORDS on stderr
refused() {
    words=$1
    shift
    "$work/fem" "$@" > "$work/out" 2> "$work/err"
    got=$?
    { [ $got -eq 2 ] && grep -q -e "$words" "$work/err" && [ "$(wc -l < "$work/err")" -eq 1 ]; } ||
        complain "exit $got, expected 2 and '$words': $*"
}

if [ "${1:-}" = long ]; then
    for n in 1 2 4 8; do
        same long "$work/fem" --cells 64 --meshes 5 --ranks $n
    done
    cat "$work/out"
    exit $bad
fi

for n in 1 2 3 4 5 6 8; do
    same three "$work/fem" --cells 16 --meshes 2 --ranks $n
    grep -q '^second order: yes' "$work/out" || complain "not of second order: $n ranks"
    # the last mesh: the rank with the most elements has at most 1 % more than the mean
    table | awk 'END { exit NR != 2 }' || complain "not two meshes: $n ranks"
    awk '$1 == 16 && $6 > 1.01 { bad = 1 } END { exit bad }' "$work/out" || complain "out of balance: $n ranks"
done
# with --exact all digits of all meshes are the same
for n in 1 2 3 4 8; do
    "$work/fem" --cells 16 --meshes 3 --exact --ranks $n > "$work/out" 2> "$work/err" || complain "failed: --exact, $n ranks"
    { table; grep '^error ' "$work/out"; } > "$work/exact_$n"
    grep -q '^error 0.00405' "$work/exact_$n" || complain "no error: --exact, $n ranks"
    cmp -s "$work/exact_1" "$work/exact_$n" || complain "other digits than on one rank: --exact, $n ranks"
done
# more ranks than the coarse mesh has cells, nodes or elements to share
for n in 1 13 24; do
    same small "$work/fem" --cells 4 --meshes 1 --ranks $n
done
same traffic "$work/fem" --cells 8 --meshes 1 --ranks 3 --traffic
[ "$(grep -c '^ *[012]  ' "$work/out")" -eq 3 ] || complain 'no matrix of three ranks'
grep -q '^an exchange of one vector: .* us, priced .* us' "$work/out" || complain 'no price of an exchange'
"$work/fem" --cells 4 --meshes 2 > "$work/out" 2> "$work/err"
{ [ $? -eq 1 ] && grep -q '^second order: NO' "$work/out"; } || complain 'two cells are enough for second order'
"$work/fem" --help > "$work/out" 2> "$work/err" && grep -q -e '--cells' "$work/out" || complain 'no help'
refused "not '3'" --cells 3
refused "not '8x'" --cells 8x
refused 'cells 12 cannot be halved 3 times' --cells 12
refused "not '0'" --ranks 0
refused "not '1'" --tolerance 1
refused "a value must follow '--ranks'" --ranks
refused "unknown option; .* '--cell'" --cell 4
refused "twice: '--ranks'" --ranks 2 --ranks 4
if [ -c /dev/full ]; then
    "$work/fem" --cells 4 --meshes 1 > /dev/full 2> "$work/err" && complain 'a full disk is no error'
    grep -q 'cannot be written' "$work/err" || complain 'no sentence of a full disk'
fi

for kind in openmpi mpich; do
    command -v mpicc.$kind > /dev/null || continue
    [ -x "$work/$kind" ] || { echo "mpicc.$kind: apps/fem.c does not compile"; exit 1; }
    more=
    [ $kind = mpich ] || more='--oversubscribe --mca mpi_yield_when_idle 1'
    same three mpiexec.$kind $more -np 1 "$work/$kind" --cells 16 --meshes 2
    same three mpiexec.$kind $more -np 2 "$work/$kind" --cells 16 --meshes 2
    same traffic mpiexec.$kind $more -np 4 "$work/$kind" --cells 8 --meshes 1
    mpiexec.$kind $more -np 3 "$work/$kind" --cells 16 --meshes 3 --exact > "$work/out" 2> "$work/err"
    { table; grep '^error ' "$work/out"; } | cmp -s - "$work/exact_1" || complain "other digits over $kind: --exact"
    # simulates two nodes
    DPAR_MPI_NODE=1 same three mpiexec.$kind $more -np 2 "$work/$kind" --cells 16 --meshes 2
    DPAR_MPI_NODE=2 same traffic mpiexec.$kind $more -np 4 "$work/$kind" --cells 8 --meshes 1 --traffic
    echo "over $kind: 1, 2 and 4 ranks, two nodes of 1 and 2"
done
exit $bad
