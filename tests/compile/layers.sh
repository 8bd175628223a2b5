#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Layers on 2 to 4 ranks: of all the sweeps of tests/ranks/spatial.c, 141058 layers, each
# LAYERS_EVERY-th, forward and backward against the textbook's; LAYERS_EVERY=1: all, in many minutes;
# LAYERS_FROM: which one is the first. (LAYERS_EVERY should have no factor 2, 3 or 5: the variants of
# a geometry have those periods.)
. tests/compile/common.sh
try $CC -O2 -D_GNU_SOURCE -DDPAR_NO_COST -DDPAR_NO_SHOW -DDPAR_STATIC -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -Itests \
    tests/ranks/spatial.c -o "$work/spatial" -lm
try timeout 1200 "$work/spatial" long 0 "${LAYERS_EVERY:-7}" "${LAYERS_FROM:-0}"
