#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compares a stencil code that exchanges its halos by hand with the same code that uses dpar (docs/vendoring/
# heat_before.c and heat_after.c), in turns with default options. Prints the microseconds of a step, medians of the
# rounds, and dpar's over those by hand: less than 1 means that dpar is faster.
#
#   sh bench/vendored.sh [ROUNDS [RANKS]]                     default 5 rounds, 2 ranks
#
# In the environment:
#   OPENMPI_RUN, MPICH_RUN   what starts the ranks, with their number: for another launcher or several nodes
#   SIZES                    cells of a side (default '64 256 1024')
cd "$(dirname "$0")/.." || exit 1
case ${1:-5} in
-h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "bench/${0##*/}"; exit 0 ;;
*[!0-9]* | 0) echo "vendored: ROUNDS is '$1'; it has to be a whole number above 0 (--help)" >&2; exit 2 ;;
esac
case ${2:-2} in
*[!0-9]* | 0) echo "vendored: RANKS is '$2'; it has to be a whole number above 0 (--help)" >&2; exit 2 ;;
esac
rounds=${1:-5} ranks=${2:-2}
: "${OPENMPI_RUN:=mpirun.openmpi --mca btl self,vader --bind-to core -np $ranks}" "${MPICH_RUN:=mpirun.mpich -np $ranks}"
: "${SIZES:=64 256 1024}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p build

# Builds both codes with other constants, and with a clock that prints the time of a step at the end.
build() {
    for code in before after; do
        sed -e "s/NX = 97, NY = 61, STEPS = 60/NX = $side, NY = $side, STEPS = $steps/" \
            -e 's/^int main/static double began;\nint main/' \
            -e 's/^    for (t = 0;/    MPI_Barrier(MPI_COMM_WORLD);\n    began = MPI_Wtime();\n&/' \
            -e 's/^    fingerprint(&p);/    fprintf(stderr, "time %.3f\\n", 1e6 * (MPI_Wtime() - began) \/ STEPS);\n&/' \
            docs/vendoring/heat_$code.c > build/heat_$code.c
        mpicc.$mpi -O3 -I. -Wno-stringop-overflow -Wno-stringop-overread -DDPAR_IMPLEMENTATION build/heat_$code.c -o build/heat_$code -lm || exit 1
    done
}
median() {
    sort -n | awk '{ t[NR] = $1 } END { print t[int((NR + 1) / 2)] }'
}
for mpi in openmpi mpich; do
    command -v mpicc.$mpi > /dev/null 2>&1 || { echo "vendored: mpicc.$mpi: not found, so $mpi is left out"; continue; }
    case $mpi in openmpi) run=$OPENMPI_RUN ;; *) run=$MPICH_RUN ;; esac
    for side in $SIZES; do
        steps=$((20000000 / side / side + 500))
        [ $steps -lt 3000 ] || steps=3000
        build
        : > build/heat_before.us
        : > build/heat_after.us
        for round in $(seq "$rounds"); do
            for code in before after; do
                timeout 300 $run build/heat_$code 2>&1 > build/heat_$code.txt | sed -n 's/^time //p' | head -n 1 >> build/heat_$code.us
            done
        done
        cmp build/heat_before.txt build/heat_after.txt || {
            echo "vendored: $mpi, $side x $side: the results of both codes differ" >&2
            exit 1
        }
        before=$(median < build/heat_before.us) after=$(median < build/heat_after.us)
        echo "$mpi, $ranks ranks, $side x $side: by hand $before us a step, dpar $after us, $(awk "BEGIN { printf \"%.2f\", $after / $before }")"
    done
done
