#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests layers on 2 to 4 ranks: half of all sweeps of tests/spatial/ranks/spatial.c, 141058 layers, forward and
# backward against the textbook's. LAYERS_EVERY=1: all; 3: a third; LAYERS_FROM=1: another part.
. tests/compile/common.sh
try $CC -O2 -D_GNU_SOURCE $reached -I"$DPAR_DIR" -Itests/lib \
    tests/spatial/ranks/spatial.c -o "$work/spatial" -lm
try timeout 1200 "$work/spatial" long 0 "${LAYERS_EVERY:-2}" "${LAYERS_FROM:-0}"
