#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compares the communicator of dpar_mpi_make with the MPI that it uses, in turns in one run: builds bench/mpi_coll.c
# with Open MPI and MPICH, or with the one that is installed, and prints dpar's time over MPI's for each operation and
# size, the median of the rounds. Less than 1 means that dpar is faster. It does so twice: by default, where ranks of a
# node use its memory, and with messages of MPI only (DPAR_MPI_FLAT=1).
#
#   sh bench/over_mpi.sh [ROUNDS [RANKS]]                     default 5 rounds, 2 ranks
#
# In the environment:
#   OPENMPI_RUN, MPICH_RUN   what starts the ranks, with their number: for another launcher or several nodes
#   WAYS                     0 for the default way, 1 for messages only (default "0 1")
#   OPS                      some of (default all): barrier,broadcast,all_reduce,all_gather,reduce_scatter,all_to_all,
#                            all_to_all_v,p2p
cd "$(dirname "$0")/.." || exit 1
case ${1:-5} in
-h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "bench/${0##*/}"; exit 0 ;;
*[!0-9]* | 0) echo "over_mpi: ROUNDS is '$1'; it has to be a whole number above 0 (--help)" >&2; exit 2 ;;
esac
case ${2:-2} in
*[!0-9]* | 0 | 1) echo "over_mpi: RANKS is '$2'; it has to be a whole number above 1 (--help)" >&2; exit 2 ;;
esac
rounds=${1:-5} ranks=${2:-2}
: "${OPENMPI_RUN:=mpirun.openmpi --mca btl self,vader --bind-to core -np $ranks}" "${MPICH_RUN:=mpirun.mpich -np $ranks}"
: "${OPS:=barrier,broadcast,all_reduce,all_gather,reduce_scatter,all_to_all,all_to_all_v,p2p}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p build

# Rows of mpi_coll: engine,ranks,op,bytes,dirty,round,samples,min,median,...
ratios() {
    awk -F, -v title="$1" '
    $1 == "mpi" { mpi[$3 "," $4 "," $6] = $9 }
    $1 == "dpar" && mpi[$3 "," $4 "," $6] > 0 {
        key = $3 "," $4
        if (!(key in n)) { keys[++k] = key }
        ratio[key, ++n[key]] = $9 / mpi[$3 "," $4 "," $6]
    }
    function median(key, i, j, t) {
        for (i = 2; i <= n[key]; i++) {
            t = ratio[key, i]
            for (j = i - 1; j > 0 && ratio[key, j] > t; j--) { ratio[key, j + 1] = ratio[key, j] }
            ratio[key, j + 1] = t
        }
        return ratio[key, int((n[key] + 1) / 2)]
    }
    END {
        print "\n" title
        for (i = 1; i <= k; i++) {
            split(keys[i], f, ",")
            if (f[1] != op) { printf "%s%-15s", op == "" ? "" : "\n", f[1] }
            op = f[1]
            size = f[2] + 0
            size = size >= 1048576 ? size / 1048576 "M" : size >= 1024 ? size / 1024 "K" : size
            printf("  %s: %.2f", size, median(keys[i]))
        }
        print ""
    }' build/over_mpi.csv
}

: "${WAYS:=0 1}"
for mpi in openmpi mpich; do
    command -v mpicc.$mpi > /dev/null 2>&1 || { echo "over_mpi: mpicc.$mpi: not found, so $mpi is left out"; continue; }
    mpicc.$mpi -O2 -I. -Ibench -Wno-stringop-overflow -Wno-stringop-overread -DOVER_MPI -DDPAR_IMPLEMENTATION \
        -DENGINE_H='"comm_engine.h"' bench/mpi_coll.c -o "build/over_$mpi" -lm || exit 1
    case $mpi in openmpi) run=$OPENMPI_RUN ;; *) run=$MPICH_RUN ;; esac
    for flat in $WAYS; do
        DPAR_MPI_FLAT=$flat timeout 900 $run "build/over_$mpi" rounds="$rounds" ops="$OPS" engines=mpi,dpar \
            seconds=0.01 max=16777216 > build/over_mpi.csv 2> build/over_mpi.err ||
            { tail -n 5 build/over_mpi.err; exit 1; }
        ratios "$mpi, $ranks ranks, $([ $flat = 0 ] && echo 'by default' || echo 'messages alone'): dpar / MPI"
    done
done
