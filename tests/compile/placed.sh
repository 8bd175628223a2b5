#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks that the implementation compiles at any place in a program: all headers of dpar in every dialect that
# does not hide POSIX (GNU C, C++) after any system header, and each of them separately after one; in strict C
# after one the first error tells what to do, in dpar_nccl.h too. PLACED=all: each system header in each dialect
# (some minutes), otherwise each in the compiler's own dialect, and all together in the others. DPAR_PARTS: only
# matrix or hidden.
. tests/compile/common.sh
: "${PLACED:=some}" "${DPAR_PARTS:=matrix hidden}"
part() { case " $DPAR_PARTS " in *" $1 "*) ;; *) return 1 ;; esac; }
export DPAR_DIR
systems='stdio.h stdlib.h string.h unistd.h sys/types.h sys/socket.h sys/mman.h math.h time.h pthread.h
         signal.h errno.h'
implementation() {
    echo '#define DPAR_IMPLEMENTATION'
    for ours in $headers; do printf '#include "%s.h"\n' "$ours"; done
}
unit() { # name, headers of the system
    name=$1
    shift
    printf '#include <%s>\n' "$@" > "$work/$name"
    implementation >> "$work/$name"
}
count=0
for h in $systems; do
    count=$((count + 1))
    unit "after_$count.c" "$h"
    unit "after_$count.cc" "$h"
done
unit after_all.c $systems
unit after_all.cc $systems iostream
unit after_0.cc iostream
for h in $headers; do
    printf '#include <stdio.h>\n#define %s\n#include "%s.h"\n' "$(implements "$h")" "$h" > "$work/alone_$h.c"
    cp "$work/alone_$h.c" "$work/alone_$h.cc"
done

# Compiles one compiler, dialect (- for its own) and unit, joined by commas.
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
        case $PLACED,$dialect,$with in
        all,* | some,-,g*)
            for k in $(seq 1 "$count"); do echo "$with,$dialect,after_$k.$ending"; done
            [ "$ending" = c ] || echo "$with,$dialect,after_0.$ending"
            for h in $headers; do echo "$with,$dialect,alone_$h.$ending"; done ;;
        esac
    done
}
for with in gcc clang musl-gcc; do matrix $with c - gnu99 gnu11 gnu17; done > "$work/list"
for with in g++ clang++; do matrix $with cc - c++11 c++17 c++20; done >> "$work/list"
if part matrix; then
    in_pairs place $(cat "$work/list")
    echo "placed: $(wc -l < "$work/list" | tr -d ' ') units compile"
fi

# Strict C after a header that hid POSIX: the lowest of the headers that need POSIX reports it.
implementation > "$work/first.c"
printf '#include <stdio.h>\n' >> "$work/first.c"
printf '#include <stdio.h>\n#define DPAR_NCCL_IMPLEMENTATION\n#include "dpar_nccl.h"\n' > "$work/alone_dpar_nccl.c"
for with in gcc clang; do
    part hidden && have $with || continue
    strict_unit="$with -std=c99 -pedantic -fsyntax-only -I$DPAR_DIR -Itests/gpu/fake"
    for name in after_1 $(cd "$work" && ls alone_dpar_comm.c alone_dpar_debug.c alone_dpar_nccl.c 2> /dev/null | sed 's/\.c$//'); do
        if ! $strict_unit "$work/$name.c" 2> "$work/said"; then
            grep -m 1 error "$work/said" |
                grep -q 'define DPAR_IMPLEMENTATION and include dpar before any other header, *or compile with -D_GNU_SOURCE' ||
                { cat "$work/said"; echo "$with -std=c99 after stdio.h: not the sentence"; exit 1; }
        fi
        try $strict_unit -D_GNU_SOURCE "$work/$name.c"
    done
    try $strict_unit "$work/first.c"
done
