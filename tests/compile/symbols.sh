#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Exports dpar_ names alone; holds no data, no bss; needs nothing but what compilers call anyway.
. tests/compile/common.sh
need nm
cd "$work" || exit 1
printf '#include "dpar.h"\n' > unit.c
for flags in '-O0' '-O2' '-O2 -fPIC' '-Os'; do
    try $CC $flags -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -c unit.c -o unit.o
    nm unit.o > names
    if grep -E ' [TDBCRVW] ' names | grep -v ' T dpar_'; then
        echo "exports other names ($flags)"; exit 1
    fi
    if grep -E ' [dDbBC] ' names; then
        echo "holds data or bss ($flags)"; exit 1
    fi
    if grep ' U ' names | grep -vE ' U (memcpy|memset|memmove|memcmp|_GLOBAL_OFFSET_TABLE_|__stack_chk_fail)$'; then
        echo "needs other functions ($flags)"; exit 1
    fi
done
