#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compiles for machines without a C library: only <limits.h>, <stddef.h>, <stdint.h>; the run wing
# leaves itself out there.
# LLVM 14's AVR back end dies on some 64-bit arithmetic (asm printer, "Not supported instr"): there clang's
# front end checks the header, and avr-gcc makes the object file.
. tests/compile/common.sh
need clang
cd "$work" || exit 1
printf '#include "dpar.h"\n#if DPARI_RUN\n#error the run wing is there\n#endif\n' > unit.c
on_target() { # which wing is off, target
    target=${1#* } off=${1%% *} emit="-c -o unit_$k.o"
    case $target in
    avr-gcc)
        try avr-gcc -mmcu=atmega2560 -std=c99 -ffreestanding -nostdlib -Wall -Wextra -Werror -D$off \
            -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -Os $emit unit.c
        avr-size "unit_$k.o" | awk 'NR == 2 && $2 + $3 > 0 { print "data or bss on AVR"; exit 1 }' || exit 1
        return ;;
    esac
    [ $target != avr ] || emit='-fsyntax-only'
    try clang --target=$target -std=c99 -ffreestanding -nostdlibinc -Wall -Wextra -Werror \
        -Wno-frame-larger-than -D$off -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -Wno-unknown-warning-option -Wno-avr-rtlib-linking-quirks -Os unit.c $emit
}
set -- # avr first: it takes no time and has an int of 16 bits, as msp430
for target in avr msp430 armv6m-none-eabi wasm32 s390x-linux-gnu riscv64 mips x86_64-pc-windows-msvc i386; do
    set -- "$@" "DPAR_ALL $target"
done
for target in avr armv6m-none-eabi i386; do
    set -- "$@" "DPAR_NO_COST $target"
done
set -- "$@" 'DPAR_NO_SHOW msp430'
if have avr-gcc; then
    for off in DPAR_ALL DPAR_NO_COST; do
        set -- "$@" "$off avr-gcc"
    done
    echo 'avr-gcc, to object code'
else
    echo 'avr-gcc: not found, skipped'
fi
in_pairs on_target "$@"
