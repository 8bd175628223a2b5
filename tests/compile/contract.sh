#!/bin/sh
# SPDX-License-Identifier: MIT-0
# The contract: cc -DDPAR_IMPLEMENTATION -I. FILE.c -o FILE needs no other flag. Each numbered example is at most
# 60 lines, its first lines say the command and what it prints, and it does print that (ranks in any order). The
# same command for a program that includes one header, for each, and for the program in its first comment; those of
# dpar_mpi.h, dpar_nccl.h and dpar_cuda.h are compiled, the second over the stand-ins for CUDA and NCCL.
. tests/compile/common.sh
example() {
    name=$(basename "$1" .c)
    [ "$(wc -l < "$1")" -le 60 ] || { echo "$1: more than 60 lines"; exit 1; }
    number=${name%%_*}
    command="cc -DDPAR_IMPLEMENTATION -I. $1 -o $number && ./$number"
    grep -qxF " *   $command" "$1" || { echo "$1: its first lines do not say: $command"; exit 1; }
    awk -v command=" *   $command" 'NR == 1 { next } $0 == command { on = 1; next } /\*\// { exit } on && / \*   / { print substr($0, 6) }' "$1" |
        sort > "$work/$name.expected"
    [ -s "$work/$name.expected" ] || { echo "$1: its first lines do not say what it prints"; exit 1; }
    try $CC -DDPAR_IMPLEMENTATION "-I$DPAR_DIR" "$1" -o "$work/$name"
    timeout 60 "$work/$name" > "$work/$name.said" || { cat "$work/$name.said"; echo "$1: exit $?"; exit 1; }
    sort "$work/$name.said" | diff - "$work/$name.expected" || { echo "$1: prints something else than it says"; exit 1; }
}
# The program in a header's first comment; behind the code of a line may stand a word in place of a comment.
program_of() {
    awk 'NR == 1 { next } /\*\//{ last = 1 } / \*     (cc|mpicc|nvcc) / { exit } / \*     #include "/ { on = 1 }
        on && / \*     / { sub(/ \*     /, ""); sub(/ *\*\/$/, ""); if (match($0, /[;{]   +[^ ]/)) $0 = substr($0, 1, RSTART); print }
        last { exit }' "$1"
}
first_screen() {
    program_of "$DPAR_DIR/$1.h" > "$work/first_$1.c"
    grep -q 'int main' "$work/first_$1.c" ||
        printf '#include "%s.h"\nint main(void) { return dpar_status_text(0) == 0; }\n' "$1" > "$work/first_$1.c"
    try $CC -DDPAR_IMPLEMENTATION "-I$DPAR_DIR" "$work/first_$1.c" -o "$work/first_$1"
    try timeout 60 "$work/first_$1" > "$work/first_$1.said"
}
in_pairs first_screen $headers
engine() { # header, compiler and its flags
    header=$1
    shift
    program_of "$header.h" > "$work/engine_$header.c"
    grep -q 'int main' "$work/engine_$header.c" || { echo "$header.h: no program in its first comment"; exit 1; }
    try "$@" -Wall -Wextra -Werror -Wno-unused-function -I. "-I$DPAR_DIR" -c "$work/engine_$header.c" -o "$work/engine.o"
}
if have mpicc; then engine dpar_mpi mpicc -std=c99; else echo 'mpicc: not found, skipped'; fi
engine dpar_nccl $CC -std=c99 -Itests/gpu/fake
engine dpar_cuda $CC -std=c99
[ "$(grep -l '^#include <stdio' "$work"/first_*.c | wc -l)" -ge 7 ] || { echo 'first comments without programs'; exit 1; }
in_pairs example examples/[0-9]*.c
