#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Takes away, one by one, each event record, each wait of a stream for an event and each wait for a
# stream in dpar_nccl.h and dpar_cuda.h: a test over the stand-ins must fail each time.
# tests/gpu/mutate_events.sh [number]: only that one, and what its tests say.
. tests/compile/common.sh
: "${CXX:=g++}"
need "$CXX"
export CXX FAKE_NCCL_DIR="$work" FAKE_NCCL_DEADLINE=5
try sh tests/gpu/fake/build.sh "$work"
slim='-DDPAR_NO_COST -DDPAR_NO_SHOW -DDPAR_STATIC -DDPAR_IMPLEMENTATION'

# Every place: header line, and the call whose result becomes cudaSuccess. Not those whose line says
# why nothing would be seen: they only end the program's use of a stream, or take the time.
grep -n -E 'cuda(EventRecord|StreamWaitEvent|StreamSynchronize|EventSynchronize)\([^()]*\)' dpar_nccl.h dpar_cuda.h 2> /dev/null |
    grep -v 'orders nothing' > "$work/places"

# header: builds its test with the copy in $work/m
build() {
    case $1 in
    dpar_nccl.h) $CC -std=c99 -D_GNU_SOURCE -O0 -w $slim -I"$work/m" -I. -Itests/gpu/fake -Itests tests/gpu/nccl.c \
        -o "$work/test" -L"$work" -lnccl -lcudart -ldl -lm -pthread -Wl,-rpath,"$work" ;;
    *) $CXX -std=c++17 -O0 -w -I"$work/m" -I. -Itests/gpu/fake -Itests tests/gpu/kernels.cc \
        -o "$work/test" -L"$work" -lcudart -ldl -pthread -Wl,-rpath,"$work" ;;
    esac
}

survives() { # do the tests pass with all seeds?
    for seed in 2 3 0 1 7 8; do
        FAKE_CUDA_SEED=$seed timeout 60 "$work/test" > "$work/said" 2>&1 || return 1
    done
}

for header in $(cut -d: -f1 "$work/places" | uniq); do # untouched they pass
    mkdir -p "$work/m"
    try build "$header"
    survives || { echo "$header as it is fails with seed $seed"; tail -n 20 "$work/said"; exit 1; }
done
number=0 found=0 survived=0
while IFS=: read -r header line text; do
    number=$((number + 1))
    [ -z "${1:-}" ] || [ "$1" = "$number" ] || continue
    mkdir -p "$work/m"
    rm -f "$work/m"/*
    sed -E "${line}s/cuda(EventRecord|StreamWaitEvent|StreamSynchronize|EventSynchronize)\([^()]*\)/cudaSuccess/" "$header" > "$work/m/$header"
    try build "$header"
    if survives; then
        survived=$((survived + 1))
        echo "survives: $number: $header:$line:$text"
    else
        found=$((found + 1))
        echo "seed $seed tells: $number: $header:$line:$text"
        [ -z "${1:-}" ] || tail -n 20 "$work/said"
    fi
done < "$work/places"
[ "$((found + survived))" -gt 0 ] || { echo 'no dpar_nccl.h and no dpar_cuda.h here'; exit 77; }
echo "$found of $((found + survived)) missing events and waits make a test fail"
[ "$survived" -eq 0 ]
