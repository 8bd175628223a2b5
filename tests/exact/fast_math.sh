#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Runs tests/exact/exact.c compiled with -Ofast, which allows compilers to simplify (x + M) - M and flushes
# subnormal numbers to zero, for this CPU too, and without vectors.
. tests/compile/common.sh
for flags in -Ofast '-Ofast -march=native' '-O1 -DDPARI_NO_VECTOR'; do
    try $CC $flags -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -Itests/lib tests/exact/exact.c -o "$work/exact" -lm
    try "$work/exact" 150 > "$work/said" || { cat "$work/said"; echo "failed: $flags"; exit 1; }
done
