#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks that dpar.h, dpar_schedule.h, dpar_cost.h and dpar_proof.h compile for machines without a C library, with only
# <limits.h>, <stdarg.h>, <stddef.h> and <stdint.h>. The headers above them report there, in one message, that
# they need POSIX; dpar_all.h leaves them out. LLVM 14's AVR back end crashes on some 64-bit arithmetic (asm
# printer, "Not supported instr"), so there clang's front end checks the headers, and avr-gcc makes the object
# file.
. tests/compile/common.sh
need clang
top=$PWD
cd "$work" || exit 1
printf '#include "dpar_schedule.h"\n' > integers.c
printf '#include "dpar_cost.h"\n' > cost.c
printf '#include "dpar_proof.h"\n' > proof.c
printf '#include "dpar_comm.h"\n' > comm.c
! clang --target=armv6m-none-eabi -std=c99 -ffreestanding -nostdlibinc -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -fsyntax-only comm.c 2> said &&
    grep -m 1 error: said | grep -q 'dpar_comm.h needs POSIX' || { cat said; echo 'dpar_comm.h without POSIX: not the sentence'; exit 1; }
on_target() { # unit, target
    unit=${1%% *} target=${1#* } emit="-c -o unit_$k.o"
    case $target in
    avr-gcc)
        try avr-gcc -mmcu=atmega2560 -std=c99 -ffreestanding -nostdlib -Wall -Wextra -Werror \
            -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -Os $emit $unit.c
        avr-size "unit_$k.o" | awk 'NR == 2 && $2 + $3 > 0 { print "data or bss on AVR"; exit 1 }' || exit 1
        return ;;
    esac
    [ $target != avr ] || emit='-fsyntax-only'
    try clang --target=$target -std=c99 -ffreestanding -nostdlibinc -Wall -Wextra -Werror \
        -Wno-frame-larger-than -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -Wno-unknown-warning-option -Wno-avr-rtlib-linking-quirks -Os $unit.c $emit
}
set -- # avr first: it takes no time and has an int of 16 bits, as msp430
for target in avr $(some_of msp430 armv6m-none-eabi wasm32 s390x-linux-gnu riscv64 mips x86_64-pc-windows-msvc i386); do
    set -- "$@" "cost $target"
done
set -- "$@" 'integers avr' 'integers armv6m-none-eabi' 'proof avr' 'proof armv6m-none-eabi'
if have avr-gcc; then
    set -- "$@" 'integers avr-gcc'
    [ "${DPAR_PARTS_OF:-1}" -gt 1 ] || set -- "$@" 'cost avr-gcc'
    echo 'avr-gcc, to object code'
else
    echo 'avr-gcc: not found, skipped'
fi
in_pairs on_target "$@"
(cd "$top" && tools/amalgamate dpar_all.h) > dpar_all.h || exit 1
printf '#include "dpar_all.h"\n#ifdef DPAR_COMM_H\n#error what needs POSIX is there\n#endif\n' > all.c
try clang --target=armv6m-none-eabi -std=c99 -ffreestanding -nostdlibinc -Wall -Wextra -Werror -DDPAR_IMPLEMENTATION -I. -fsyntax-only all.c
