#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Runs each fuzz target: fixed pseudo-random mutations under the sanitizers; with clang, also libFuzzer,
# starting from the inputs in tests/fuzz/corpus, for some seconds (FUZZ_SECONDS sets how many). A push takes a
# part of the targets; judges, which compiles nearly all headers, runs only nightly. FUZZ_KEEP=1 merges new
# inputs into tests/fuzz/corpus.
. tests/compile/common.sh
fuzz() {
    name=$(basename "$1" .c)
    [ "$name" != judges ] || [ "${DPAR_PARTS_OF:-1}" -eq 1 ] || return 0
    case " $(echo $searched) " in *" $1 "*) ;; *) case $name in halo | shapes | inits) return 0 ;; esac ;; esac
    try $CC -g1 -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -DDPAR_FUZZ_MAIN \
        -D_GNU_SOURCE $reached -I"$DPAR_DIR" -Itests/lib "$1" -o "$work/$name" -lm
    case $name in halo | inits | judges) runs=20000 ;; *) runs=200000 ;; esac
    try "$work/$name" "${FUZZ_RUNS:-$runs}"
    case " $(echo $searched) " in *" $1 "*) ;; *) return 0 ;; esac
    if have clang && clang -g1 -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        -D_GNU_SOURCE $reached -I"$DPAR_DIR" -Itests/lib "$1" -o "$work/lib_$name" -lm 2> /dev/null; then
        mkdir -p "$work/corpus_$name"
        kept=tests/fuzz/corpus/$name
        [ -d "$kept" ] || kept=
        case $name in layout | redistribute) seconds=20 ;; *) seconds=10 ;; esac
        try "$work/lib_$name" -max_total_time="${FUZZ_SECONDS:-$seconds}" -verbosity=0 -print_final_stats=0 \
            "$work/corpus_$name" $kept
        [ -z "$FUZZ_KEEP" ] || keep
    else
        echo 'libFuzzer: not found, skipped'
    fi
}
# Keeps the 40 largest inputs that reach something new, of at most 400 bytes.
keep() {
    mkdir -p "$work/merged_$name" "tests/fuzz/corpus/$name"
    try "$work/lib_$name" -merge=1 -max_len=400 -verbosity=0 "$work/merged_$name" "$work/corpus_$name" $kept 2> /dev/null
    rm -f "tests/fuzz/corpus/$name"/*
    for each in $(ls -S "$work/merged_$name" | head -n 40); do
        cp "$work/merged_$name/$each" "tests/fuzz/corpus/$name/$(echo "$each" | cut -c 1-12)"
    done
}
targets=$(echo ${FUZZ_TARGETS:-tests/fuzz/*.c})
searched=$(some_of $targets)
# of those that are neither searched nor named, a push mutates every other one, in turns
mutated=$([ "${DPAR_PARTS_OF:-1}" -eq 1 ] || [ -n "${FUZZ_TARGETS:-}" ] && echo $targets || DPAR_PARTS_OF=2 some_of $targets)
in_pairs fuzz $(printf '%s\n' $searched $mutated | sort -u)
