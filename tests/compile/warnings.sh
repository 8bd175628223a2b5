#!/bin/sh
# SPDX-License-Identifier: MIT-0
# No warning from any compiler found, as any dialect from C99 to C17 and C++11 to C++20, with the
# implementation, and with each wing left out; no frame above 12 KB.
. tests/compile/common.sh
cd "$work" || exit 1
printf '#include "dpar.h"\nint main(void) { return 0; }\n' > unit.c
cp unit.c unit.cc
ran=0
for cc in gcc clang; do
    have $cc || { echo "$cc: not found, skipped"; continue; }
    for std in c99 c11 c17; do
        try $cc -std=$std $strict_c -O1 -Wframe-larger-than=12288 -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -c unit.c -o unit.o
    done
    for off in DPAR_NO_COST DPAR_NO_SHOW DPAR_STATIC; do
        try $cc -std=c99 $strict_c -D$off -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -c unit.c -o unit.o
    done
    ran=$((ran + 1))
done
for cxx in g++ clang++; do
    have $cxx || { echo "$cxx: not found, skipped"; continue; }
    for std in c++11 c++14 c++17 c++20; do
        try $cxx -std=$std $strict -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -c unit.cc -o unit.o
    done
done
[ $ran -gt 0 ] || { echo 'gcc and clang: not found'; exit 77; }
