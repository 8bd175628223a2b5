#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests threads before and in ranks: with GNU's and LLVM's OpenMP if a compiler here has it, and the program's own
# threads. Sums are 0 + 1 + ... + 999 = 499500 per rank, times three.
: "${CC:=cc}" "${CFLAGS:=-O1}"
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
unset DPAR_RANKS DPAR_RANK DPAR_SIZE DPAR_JOB DPAR_TIMEOUT
export OMP_NUM_THREADS=2
bad=0 done=0
source=tests/comm/ranks/openmp.c
library=build/libdpar.a
[ -e $library ] || library=-DDPAR_IMPLEMENTATION

# Runs a program: program, exit code, number of lines, pattern that each line matches, arguments
look() {
    program=$1 code=$2 lines=$3 pattern=$4
    shift 4
    done=$((done + 1))
    timeout 20 "$program" "$@" > "$work/out" 2>&1
    got=$?
    [ $got -eq "$code" ] || { echo "$program $*: exit code $got, expected $code"; bad=1; }
    right=$(grep -c -e "^$pattern\$" "$work/out")
    if [ "$right" -ne "$lines" ] || [ "$(wc -l < "$work/out")" -ne "$lines" ]; then
        echo "$program $*: expected $lines lines '$pattern', got:"
        cat "$work/out"
        bad=1
    fi
    # LLVM's OpenMP keeps a file for each process that uses it until the process ends normally.
    for pid in $(sed -n 's/.* PID \([0-9]*\): .*/\1/p' "$work/out"); do
        for file in /dev/shm/__KMP_REGISTERED_LIB_"$pid"_*; do
            [ ! -e "$file" ] || { echo "$program $*: left $file"; bad=1; }
        done
    done
}

$CC $CFLAGS -I. $source $library -o "$work/own" -lpthread -lm || exit 1
printf 'int main(void) {\nint n = 0;\n#pragma omp parallel\nn = 1;\nreturn n != 1; }\n' > "$work/has.c"
sum='rank [0-2] PID [0-9]*: 1.4985e+06'
for compiler in gcc clang; do
    $compiler -fopenmp "$work/has.c" -o "$work/has" > /dev/null 2>&1 && "$work/has" ||
        { echo "$compiler -fopenmp: not found, skipped"; continue; }
    program=$work/with_$compiler
    $compiler -O1 -fopenmp -I. $source $library -o "$program" -lpthread -lm || exit 1
    look "$program" 0 6 "$sum" inside
    look "$program" 0 6 "$sum" before
    look "$program" 0 6 "$sum" threads
    look "$program" 0 3 "$sum" --ranks 3 begin
done

program=$work/own
look "$program" 0 1 '0 ' helper
look "$program" 0 1 '0 ' late
look "$program" 0 1 '0 ' sleep
forked='This process had 2 threads when it forked its ranks, and some libraries do not work after that: .*dpar_init_or_launch'
[ "$(uname)" = Linux ] || { echo 'Linux: not found, skipped'; exit $bad; }
look "$program" 1 1 "-11 no rank made a call or used its processor for 1.0 s. $forked" pool
look "$program" 1 1 '-10 .*; this process had 2 threads when it forked its ranks' one
look "$program" 1 1 '-10 rank 1 was killed by signal 9 (SIGKILL); this process had 2 threads when it forked its ranks' die
echo "$done runs, $bad failed"
exit $bad
