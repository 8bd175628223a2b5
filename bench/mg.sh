#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compares apps/mg.c with the reference code of the NAS benchmark MG, with 1 and 2 ranks, in turns. Prints the medians
# of both in Mop/s, by the same count of operations, as a section of docs/records/performance.md. The ratio is dpar's
# Mop/s over the reference's, so that more than 1 means that dpar is faster.
#
#   NPB=.../NPB3.4-MPI/bin sh bench/mg.sh [CLASS [ROUNDS]]       default class A, 5 rounds
#
# In the environment:
#   NPB     the folder of mg.A.x, built with Open MPI
#   FLAGS   the flags with which you have built it, for the text
#   CC, CFLAGS, MPIRUN   default cc, -O2, mpirun
cd "$(dirname "$0")/.." || exit 1
case ${1:-A} in
-h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "bench/${0##*/}"; exit 0 ;;
esac
case ${2:-5} in
*[!0-9]* | 0) echo "mg: ROUNDS is '$2'; it has to be a whole number above 0 (--help)" >&2; exit 2 ;;
esac
class=${1:-A} rounds=${2:-5}
: "${CC:=cc}" "${CFLAGS:=-O2}" "${MPIRUN:=mpirun}" "${FLAGS:=flags unknown}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
peer=${NPB:-.}/mg.$class.x
[ -x "$peer" ] || { echo "mg: $peer: not found; NPB has to be the folder of the reference programs"; exit 77; }
mkdir -p build
$CC $CFLAGS -DDPAR_STATIC -DDPAR_IMPLEMENTATION -I. apps/mg.c -o build/mg_bench || exit 1
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { printf "%.0f", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
echo "## NAS MG class $class"
echo
echo "Beside the reference code (NPB 3.4-MPI, $FLAGS, Open MPI, ranks bound to cores), in turns; dpar with"
echo "\`$CFLAGS\`. Medians of $rounds runs, Mop/s of the benchmark's own count; both verify the norm."
echo
echo '| ranks | NPB 3.4-MPI | apps/mg.c | ratio (1) |'
echo '|---|---|---|---|'
for ranks in 1 2; do
    rm -f build/mg_dpar build/mg_npb
    for round in $(seq "$rounds"); do
        build/mg_bench --class "$class" --ranks $ranks > build/mg_out || { cat build/mg_out; exit 1; }
        awk '/^Mop\/s/ { print $2 }' build/mg_out >> build/mg_dpar
        "$MPIRUN" --bind-to core -np $ranks "$peer" > build/mg_out 2>&1
        grep -q 'VERIFICATION SUCCESSFUL' build/mg_out || { cat build/mg_out; exit 1; }
        awk '/Mop\/s total/ { print $4 }' build/mg_out >> build/mg_npb
    done
    theirs=$(median build/mg_npb) ours=$(median build/mg_dpar)
    awk -v r=$ranks -v t="$theirs" -v o="$ours" 'BEGIN {
        printf "| %d | %d | %d | %.2f, %s |\n", r, t, o, o / t, (o >= t ? "met" : "**missed**") }'
done
