#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks that every C block in README.md and docs/ is a program that compiles without warnings and runs; those
# over MPI are only compiled, if mpicc is installed. A text block directly behind one is its output; its first
# line may be the command, "$ ./yours --ranks 4". The pictures are what their program draws.
. tests/compile/common.sh
: "${DPAR_README:=README.md docs/*.md docs/guide/*.md}"
lone=-O1
library=build/libdpar.a # make test has built it
if [ "$DPAR_DIR" != "$PWD" ] || [ ! -e "$library" ]; then
    library=$work/dpar.a
    library "$library" $CC -O1
fi
n=0
for page in $DPAR_README; do
    awk -v out="$work/block" '/^```c$/ { k++; on = 1; to = out k ".c"; next }
        /^```text$/ && behind { on = 1; to = out k ".text"; next }
        /^```/ { behind = on && to ~ /c$/; on = 0; next }
        /[^ ]/ && !on { behind = 0 }
        on { print > to }' "$page"
    for block in "$work"/block*.c; do
        [ -f "$block" ] || continue
        if grep -q '^#include "dpar_mpi.h"' "$block"; then
            have mpicc || { echo "mpicc: not found, a block of $page skipped"; rm "$block"; continue; }
            try mpicc -std=c99 -Wall -Wextra $lone $reached -I"$DPAR_DIR" "$block" -o "$work/program"
            rm "$block"
            n=$((n + 1))
            continue
        fi
        code=$library
        ! grep -q 'define DPAR_.*IMPLEMENTATION' "$block" || code=$reached
        try $CC -std=c99 -D_GNU_SOURCE -Wall -Wextra -Werror $lone -I"$DPAR_DIR" "$block" $code -o "$work/program" -lm
        said=${block%.c}.text words=
        if [ -e "$said" ]; then
            words=$(sed -n '1s/^\$ [^ ]*//p' "$said")
            sed -i '1{/^\$ /d}' "$said"
        fi
        try "$work/program" $words > "$work/printed"
        if [ -e "$said" ]; then
            sed 's/ *$//' "$work/printed" | diff - "$said" || { echo "$page: a block prints something else than it says"; exit 1; }
            rm "$said"
        fi
        rm "$block"
        n=$((n + 1))
    done
done
try $CC -std=c99 -Wall -Wextra -Werror $lone -I"$DPAR_DIR" docs/guide/pictures/*.c $library -o "$work/program" -lm
for each in docs/guide/*.svg; do
    "$work/program" "$(basename "$each" .svg)" | cmp - "$each" || { echo "$each is not what its program draws: run make docs"; exit 1; }
done
[ $n -gt 0 ] || { echo 'no block of C found'; exit 1; }
