#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Each fuzz target: fixed pseudo-random mutations under the sanitizers; with clang, libFuzzer too, for
# some seconds (FUZZ_SECONDS: as long as you like), on a push a part of the targets.
. tests/compile/common.sh
fuzz() {
    name=$(basename "$1" .c)
    try $CC -g1 -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -DDPAR_FUZZ_MAIN \
        $reached -I"$DPAR_DIR" -Itests "$1" -o "$work/$name"
    try "$work/$name" "${FUZZ_RUNS:-200000}"
    case " $(echo $searched) " in *" $1 "*) ;; *) return 0 ;; esac
    if have clang && clang -g1 -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        $reached -I"$DPAR_DIR" -Itests "$1" -o "$work/lib_$name" 2> /dev/null; then
        mkdir -p "$work/corpus_$name"
        case $name in layout | redistribute) seconds=20 ;; *) seconds=10 ;; esac
        try "$work/lib_$name" -max_total_time="${FUZZ_SECONDS:-$seconds}" -verbosity=0 -print_final_stats=0 "$work/corpus_$name"
    else
        echo 'libFuzzer: not found, skipped'
    fi
}
targets=$(echo ${FUZZ_TARGETS:-tests/fuzz/*.c})
searched=$(some_of $targets)
in_pairs fuzz $targets
