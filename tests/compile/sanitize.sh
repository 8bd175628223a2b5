#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Runs every unit test under the address and undefined-behaviour sanitizers (faults.sh does that for ranks).
# They share one object of the implementation, except those that call private functions. DPAR_UNITS: only these.
# -g1: the reports have their lines.
. tests/compile/common.sh
root=$PWD
printf 'int main(void) { return 0; }\n' > "$work/probe.c"
$CC -fsanitize=address,undefined "$work/probe.c" -o "$work/probe" 2> /dev/null ||
    { echo 'the sanitizers: not found'; exit 77; }
flags='-g1 -O1 -fsanitize=address,undefined -fno-sanitize-recover=all'
library "$work/dpar.a" $CC $flags
unit() {
    name=$(echo "$1" | tr '/.' '__')
    try $CC $flags -I"$DPAR_DIR" -I"$root" -Itests/lib "$1" $(code_of "$1" "$work/dpar.a") -o "$work/test_$name" -lm
    try "$work/test_$name"
}
tests=
for test in ${DPAR_UNITS:-$(some_of tests/base/*.c tests/index/*.c tests/schedule/*.c tests/cost/*.c tests/host/*.c tests/comm/*.c tests/train/*.c tests/debug/*.c)}; do
    # the longest first
    if looks_inside "$test"; then tests="$test $tests"; else tests="$tests $test"; fi
done
in_pairs unit $tests
try $CC $flags -I"$DPAR_DIR" commands/plan.c "$work/dpar.a" -o "$work/plan"
try "$work/plan" llama-3-8b --cluster 2x8:h100-80 --explain --svg "$work/a.svg" --csv "$work/a.csv"
try "$work/plan" deepseek-v3 --cluster 32x8:h100-80 --json
try "$work/plan" grid:1440x720x100,fields=5 --cluster derecho --gpus 64 --quiet
