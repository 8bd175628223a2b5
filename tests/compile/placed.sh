#!/bin/sh
# SPDX-License-Identifier: MIT-0
# The implementation compiles wherever a program puts it: in every dialect that does not hide POSIX
# (GNU C, C++) after any header of the system; in strict C after one it says what to do, first of
# all. PLACED=all: each header in each dialect (some minutes), else each in the compiler's own
# dialect, and all of them together in the others.
. tests/compile/common.sh
: "${PLACED:=some}"
export DPAR_DIR # for the shells of in_pairs
headers='stdio.h stdlib.h string.h unistd.h sys/types.h sys/socket.h sys/mman.h math.h time.h pthread.h
         signal.h errno.h'
implementation() {
    printf '#define DPAR_IMPLEMENTATION\n#include "dpar.h"\n'
}
unit() { # name, headers
    name=$1
    shift
    for h in "$@"; do printf '#include <%s>\n' "$h"; done > "$work/$name"
    implementation >> "$work/$name"
}
number=0
for h in $headers; do
    number=$((number + 1))
    unit "after_$number.c" "$h"
    unit "after_$number.cc" "$h"
done
count=$number
unit after_all.c $headers
unit after_all.cc $headers iostream
unit after_0.cc iostream

# One compiler, dialect (- for its own) and unit, joined by commas.
place() {
    with=${1%%,*} rest=${1#*,}
    dialect=${rest%%,*} name=${rest#*,}
    [ "$dialect" = - ] && dialect= || dialect=-std=$dialect
    try "$with" $dialect -fsyntax-only -Wall -Wextra -Werror -I"$DPAR_DIR" "$work/$name"
}
matrix() { # compiler, ending, dialects
    with=$1 ending=$2
    shift 2
    have "$with" || { echo "$with: not found" >&2; return 0; }
    for dialect in "$@"; do
        echo "$with,$dialect,after_all.$ending"
        if [ "$PLACED" = all ] || { [ "$dialect" = - ] && case $with in clang*) false ;; *) true ;; esac; }; then
            for k in $(seq 1 "$count"); do echo "$with,$dialect,after_$k.$ending"; done
            [ "$ending" = c ] || echo "$with,$dialect,after_0.$ending"
        fi
    done
}
for with in gcc clang musl-gcc; do matrix $with c - gnu99 gnu11 gnu17; done > "$work/list"
for with in g++ clang++; do matrix $with cc - c++11 c++17 c++20; done >> "$work/list"
in_pairs place $(cat "$work/list")
echo "placed: $(wc -l < "$work/list" | tr -d ' ') units compile"

# Strict C after a header that hid POSIX.
for with in gcc clang; do
    have $with || continue
    if ! $with -std=c99 -pedantic -fsyntax-only -I"$DPAR_DIR" "$work/after_1.c" 2> "$work/said"; then
        grep -m 1 error "$work/said" |
            grep -q 'include dpar.h before system headers, or compile with -D_GNU_SOURCE' ||
            { cat "$work/said"; echo "$with -std=c99 after stdio.h: not the sentence"; exit 1; }
    fi
    try $with -std=c99 -pedantic -D_GNU_SOURCE -fsyntax-only -I"$DPAR_DIR" "$work/after_1.c"
    implementation > "$work/first.c"
    printf '#include <stdio.h>\n' >> "$work/first.c"
    try $with -std=c99 -pedantic -fsyntax-only -I"$DPAR_DIR" "$work/first.c"
done
