#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compiles for machines without a C library: only <limits.h>, <stddef.h>, <stdint.h>.
# LLVM 14's AVR back end dies on the cost wing's floating point (asm printer, "Not supported instr"):
# there the whole header is checked by the front end, the integer wings down to the object file.
. tests/compile/common.sh
need clang
cd "$work" || exit 1
printf '#include "dpar.h"\n' > unit.c
for target in wasm32 armv6m-none-eabi avr msp430 s390x-linux-gnu riscv64 mips x86_64-pc-windows-msvc i386; do
    for off in DPAR_ALL DPAR_NO_SHOW DPAR_NO_COST; do
        emit='-c -o unit.o'
        [ $target$off = avrDPAR_NO_COST ] || [ $target != avr ] || emit='-fsyntax-only'
        try clang --target=$target -std=c99 -ffreestanding -nostdlibinc -Wall -Wextra -Werror \
            -Wno-frame-larger-than -D$off -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -Wno-unknown-warning-option -Wno-avr-rtlib-linking-quirks -Os unit.c $emit
    done
    echo "$target"
done
