#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Runs the soak, tests/soak.c: random operations of all kinds, whose results are all compared, with random
# faults between them.
#     sh tests/soak.sh SECONDS [SEED [WORDS...]]    four ranks of this machine: a line each minute, then a table
#     START='mpirun ... -np 4' MPICC=mpicc.openmpi sh tests/soak.sh SECONDS [SEED]    over an MPI that continues
#         if a rank dies: Open MPI 4 with --mca orte_enable_recovery 1 --mca mpi_preconnect_mpi 1
#     sh tests/soak.sh check                        checks that each counter notices what it counts
# Ends with 0 if hangs, leaks and wrong results are all 0. Needs Linux; see docs/reliability.md.
set -u
cd "$(dirname "$0")/.." || exit 1
: "${CC:=cc}" "${CFLAGS:=-O2}"
[ -r /proc/self/statm ] || { echo '/proc: not found'; exit 77; }
seconds=${1:-20} seed=${2:-1}
shift $(($# < 2 ? $# : 2))
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
# compiles it as a user's program in one file: the compiler sees all of dpar, and gives a user the same warnings
one_file='-D_GNU_SOURCE -DDPAR_STATIC -DDPAR_IMPLEMENTATION -I. -Itests/lib'
$CC $CFLAGS -Wall -Wextra -Werror -Wno-unused-function $one_file tests/soak.c -o "$work/soak" -lm || exit 1

# notices FAULT ROW WORDS: makes a deliberate fault, which that row of the table must report
notices() {
    SOAK_SPOIL=$1 "$work/soak" 4 "$seed" --ops 30 $3 > "$work/said" 2>&1 &&
        { echo "not noticed: $1"; cat "$work/said"; exit 1; }
    grep -q "$2" "$work/said" || { echo "$1 is not counted as '$2'"; cat "$work/said"; exit 1; }
    echo "$1 spoiled: $(grep -m 1 "$2" "$work/said")"
}
if [ "$seconds" = check ]; then
    notices value '^| wrong results | [1-9]' ''
    notices fd 'open files [1-9]' ''
    notices map 'mappings [1-9][0-9]*, memory' ''
    notices memory ', memory [1-9]' ''
    notices file 'names in /dev/shm [1-9]' ''
    notices process ', processes [1-9]' ''
    notices crash 'crashes [1-9]' ''
    notices sentence '(status or sentence [1-9]' ''
    notices hang '^| hangs | [1-9]' '--limit 6'
    "$work/soak" 4 "$seed" --ops 30 || exit 1
    exit
fi
if [ -z "${START:-}" ]; then
    "$work/soak" "$seconds" "$seed" "$@"
    exit
fi
${MPICC:-mpicc} $CFLAGS -DUSE_MPI $one_file tests/soak.c -o "$work/soak_mpi" -lm || exit 1
"$work/soak" "$seconds" "$seed" --start "$START $work/soak_mpi" "$@"
