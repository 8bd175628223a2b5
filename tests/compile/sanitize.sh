#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Every unit test under the address and undefined-behaviour sanitizers. (Ranks: faults.sh.) They share
# one object of the implementation, but for those that look at its insides. DPAR_UNITS: some of them.
# -g1: the reports have their lines.
. tests/compile/common.sh
root=$PWD
printf 'int main(void) { return 0; }\n' > "$work/probe.c"
$CC -fsanitize=address,undefined "$work/probe.c" -o "$work/probe" 2> /dev/null ||
    { echo 'the sanitizers: not found'; exit 77; }
flags='-g1 -O1 -fsanitize=address,undefined -fno-sanitize-recover=all'
printf '#include "dpar.h"\n' > "$work/engine.c"
unit() {
    name=$(basename "$1" .c)
    case $1 in
    engine) try $CC $flags -DDPAR_NO_RUN -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -c "$work/engine.c" -o "$work/engine.o"
        return ;;
    esac
    if alone "$1"; then
        try $CC $flags -DDPAR_STATIC -DDPAR_IMPLEMENTATION $(wings "$name") -I"$DPAR_DIR" -I"$root" -Itests "$1" \
            -o "$work/test_$name" -lm
    else
        try $CC $flags -DDPAR_NO_RUN -I"$DPAR_DIR" -I"$root" -Itests "$1" "$work/engine.o" -o "$work/test_$name" -lm
    fi
    try "$work/test_$name"
}
# Those that look at its insides or need the run wing.
alone() { grep -q 'dpari_' "$1" || [ -z "$(wings "$(basename "$1" .c)")" ]; }
separate= sharing=
for test in ${DPAR_UNITS:-tests/unit/*.c}; do
    if alone "$test"; then
        separate="$separate $test"
    else
        sharing="$sharing $test"
    fi
done
in_pairs unit engine
in_pairs unit $separate $sharing
try $CC $flags -DDPAR_NO_RUN -I"$DPAR_DIR" examples/plan.c "$work/engine.o" -o "$work/plan"
try "$work/plan" llama-3-8b --cluster 2x8:h100-80 --explain --svg "$work/a.svg" --csv "$work/a.csv"
try "$work/plan" deepseek-v3 --cluster 32x8:h100-80 --json
try "$work/plan" grid:1440x720x100,fields=5 --cluster derecho --gpus 64 --quiet
