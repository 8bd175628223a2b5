#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Every unit test under the address and undefined-behaviour sanitizers. (Ranks: faults.sh.)
. tests/compile/common.sh
root=$PWD
printf 'int main(void) { return 0; }\n' > "$work/probe.c"
$CC -fsanitize=address,undefined "$work/probe.c" -o "$work/probe" 2> /dev/null ||
    { echo 'the sanitizers: not found'; exit 77; }
unit() {
    name=$(basename "$1" .c)
    try $CC -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -DDPAR_STATIC -DDPAR_IMPLEMENTATION \
        $(wings "$name") -I"$DPAR_DIR" -I"$root" -Itests "$1" -o "$work/test_$name" -lm
    try "$work/test_$name"
}
in_pairs unit tests/unit/*.c
try $CC -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -DDPAR_STATIC -DDPAR_IMPLEMENTATION \
    -I"$DPAR_DIR" examples/plan.c -o "$work/plan"
try "$work/plan" llama-3-8b --cluster 2x8:h100-80 --explain --svg "$work/a.svg" --csv "$work/a.csv"
try "$work/plan" deepseek-v3 --cluster 32x8:h100-80 --json
try "$work/plan" grid:1440x720x100,fields=5 --cluster derecho --gpus 64 --quiet
