#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests how headers are combined in a program: each separately, twice, in any order, each implemented in a unit
# of its own or all in one, static in two units, two vendored copies in one program, after hostile macros, with
# another header missing or of another version; all pasted into one. DPAR_PARTS: runs only these parts.
. tests/compile/common.sh
: "${DPAR_PARTS:=alone nothing twice units static vendored hostile neighbours all}"
root=$PWD
cd "$work" || exit 1
reverse=
for each in $headers; do reverse="$each $reverse"; done
include() { for each in "$@"; do printf '#include "%s.h"\n' "$each"; done; }
# Makes a function that names every public function of some headers, so that it links only if all of them are
# there.
every() { # its name, headers
    name=$1
    shift
    include "$@"
    printf 'typedef void (*any)(void);\nextern const any %s[];\nconst any %s[] = {\n' "$name" "$name"
    for each in "$@"; do
        sed -n 's/^DPAR_API.*[ *]\(dpar_[a-z0-9_]*\)(.*/    (any)\1,/p' "$DPAR_DIR/$each.h"
    done
    printf '    0};\n'
}

# A unit that only includes the headers contains none of their functions, also without the optimiser.
nothing() {
    { include $headers; printf 'int main(void) { return 0; }\n'; } > nothing.c
    for how in "$CC" "$CC -x c++"; do
        try $how -O0 -I"$DPAR_DIR" -c nothing.c -o nothing.o
        [ "$(nm nothing.o | grep -c .)" -eq 1 ] || { nm nothing.o; echo "$how: a unit that implements nothing is not empty"; exit 1; }
    done
}

# Compiles a program that includes one header, with the documented command; the headers below it are included
# too.
alone() {
    in_pairs one $reverse
}
one() {
    { include "$1"; printf 'int main(void) { return dpar_status_text(0) == NULL; }\n'; } > "alone_$1.c"
    try $CC -O1 -DDPAR_IMPLEMENTATION -DDPAR_STATIC -Wall -Wextra -Werror -I"$DPAR_DIR" "alone_$1.c" -o "alone_$1" && try "./alone_$1"
}

twice() {
    { include $headers $reverse $headers; printf 'int main(void) { return dpar_status_text(0) == NULL; }\n'; } > twice.c
    { include $reverse; cat twice.c; } > ecwit.c
    for unit in twice ecwit; do
        try $CC -O1 $reached -Wall -Wextra -Werror -I"$DPAR_DIR" $unit.c -o $unit && try ./$unit
        # declarations first, the implementation later in the same unit
        { include $headers; printf '#define DPAR_IMPLEMENTATION\n'; cat $unit.c; } > later.c
        try $CC -O1 -DDPAR_STATIC -D_GNU_SOURCE -Wall -Wextra -Werror -I"$DPAR_DIR" later.c -o later && try ./later
        ! have c++ || try c++ -x c++ -std=c++11 $reached -Wall -Wextra -Werror -I"$DPAR_DIR" -fsyntax-only $unit.c
    done
}

# Each header in an object of its own, all in one, and half and half.
units() {
    every all_of_it $headers > every.c
    printf 'typedef void (*any)(void);\nextern const any all_of_it[];\nint main(void)\n{\n    int n = 0;\n    while (all_of_it[n]) { n++; }\n    return n < 200;\n}\n' > main.c
    library "$work/dpar.a" $CC -O0 -Wall -Wextra -Werror
    try $CC -I"$DPAR_DIR" -Wno-cast-function-type -c every.c -o every.o
    try $CC main.c every.o dpar.a -o separate && try ./separate
    include $headers > whole.c
    try $CC -O0 -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" main.c every.o -x c whole.c -o whole && try ./whole
    include dpar_train dpar_debug > lower.c
    printf '#define DPAR_INDEX_IMPLEMENTATION\n#define DPAR_COMM_IMPLEMENTATION\n#define DPAR_HALO_IMPLEMENTATION\n' | cat - lower.c > some.c
    printf '#define DPAR_SCHEDULE_IMPLEMENTATION\n#define DPAR_COST_IMPLEMENTATION\n#define DPAR_TRAIN_IMPLEMENTATION\n#define DPAR_SPATIAL_IMPLEMENTATION\n#define DPAR_DEBUG_IMPLEMENTATION\n#define DPAR_POINTS_IMPLEMENTATION\n#define DPAR_PARTICLES_IMPLEMENTATION\n#define DPAR_PENCIL_IMPLEMENTATION\n#define DPAR_BLOCKS_IMPLEMENTATION\n#define DPAR_EXACT_IMPLEMENTATION\n' > rest.c
    include $headers >> rest.c
    try $CC -O0 -I"$DPAR_DIR" main.c every.o some.c rest.c -o halves && try ./halves
}

static() {
    for n in 1 2; do
        { include $headers; printf 'int of_%s(void);\nint of_%s(void) { return (int)dpar_type_bytes(DPAR_F64); }\n' $n $n; } > static_$n.c
        try $CC -O1 $reached -Wall -Wextra -Werror -I"$DPAR_DIR" -c static_$n.c -o static_$n.o
    done
    printf 'int of_1(void);\nint of_2(void);\nint main(void) { return of_1() != 8 || of_2() != 8; }\n' > both_static.c
    try $CC both_static.c static_1.o static_2.o -o both_static && try ./both_static
}

# Two releases with different structs: each unit has its own ones, also if both are C++.
vendored() {
    for v in a b; do
        mkdir vendor_$v
        for each in $headers; do cp "$DPAR_DIR/$each.h" vendor_$v/; done
    done
    another_version 97 vendor_b
    sed 's/^    char text\[240\];/    char text[300];/' vendor_b/dpar.h > dpar.new && mv dpar.new vendor_b/dpar.h
    cat > lib.c << 'C'
#define DPAR_STATIC
#define DPAR_IMPLEMENTATION
#include "dpar_halo.h"
static int rank(dpar_comm *world, void *unused)
{
    int32_t mine = world->rank, sum = -1;
    (void)unused;
    return dpar_all_reduce(world, &mine, &sum, 1, DPAR_I32, DPAR_SUM, NULL) != DPAR_OK || sum != 1;
}
int LIB(int what);
int LIB(int what)
{
    if (what == 0) {
        return DPAR_VERSION_MINOR;
    }
    if (what == 1) {
        return (int)sizeof ((dpar_why *)0)->text;
    }
    return (int)dpar_launch(2, rank, NULL, NULL, NULL);
}
C
    cat > both.c << 'C'
int lib_a(int), lib_b(int);
int main(void) { return lib_a(0) == lib_b(0) || lib_b(0) != 97 || lib_a(1) != 240 || lib_b(1) != 300 || lib_a(2) || lib_b(2); }
C
    for how in c c++; do
        for v in a b; do
            try $CC -O1 -x $how -DLIB=lib_$v -Ivendor_$v -c lib.c -o lib_$v.o
        done
        try $CC -x $how both.c -x none lib_a.o lib_b.o -o both && try ./both
    done
}

hostile() {
    cat > hostile.c <<'H'
#define min(a, b) %
#define max(a, b) %
#define near
#define far
#define I %
#define small char
#define linux 1
#define unix 1
#define interface struct
#define pascal %
#define huge hostile
#define complex %
H
    { include $headers; printf 'int main(void) { return 0; }\n'; } >> hostile.c
    try $CC -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -fsyntax-only hostile.c
    if have c++; then
        try c++ -x c++ -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -fsyntax-only hostile.c
    else
        echo 'c++: not found, hostile macros in C++ skipped'
    fi
    # a flag of old codes; compiled to an object, because gcc warns of always_inline only then
    { include $headers dpar_nccl dpar_cuda; printf 'int main(void) { return 0; }\n'; } > inline.c
    for compiler in gcc clang; do
        ! have $compiler || for language in c c++; do
            for implemented in -DDPAR_NOTHING -DDPAR_IMPLEMENTATION; do
                try $compiler -x $language -O0 -Dinline= $implemented -Wall -Wextra -Werror -I"$DPAR_DIR" -c inline.c -o inline.o
            done
        done
    done
}

# refused WORDS FOLDER FILE: checks that FILE does not compile with the headers in FOLDER, and that the first
# error has WORDS
refused() {
    ! $CC "-I$2" -fsyntax-only "$3" 2> said && grep -m 1 error said | grep -q "$1" || { cat said; echo "not refused with: $1"; exit 1; }
}
neighbours() {
    printf '#ifdef __has_include\nint has;\n#else\n#error no\n#endif\n' > has.c
    include dpar_halo > halo.c
    mkdir lonely old
    cp "$DPAR_DIR/dpar_halo.h" lonely/
    if $CC -fsyntax-only has.c 2> /dev/null; then
        refused 'dpar_halo.h needs dpar_comm.h beside it' lonely halo.c
    fi
    for each in $engines; do # the engines say it too
        mkdir "lonely_$each" "old_$each"
        cp "$DPAR_DIR/$each.h" "lonely_$each/" && include "$each" > "$each.c"
        refused "$each.h needs dpar_[a-z]*.h beside it" "lonely_$each" "$each.c"
        for other in $headers; do cp "$DPAR_DIR/$other.h" "old_$each/"; done
        sed 's/DPAR_VERSION != 200/DPAR_VERSION != 209/' "$DPAR_DIR/$each.h" > "old_$each/$each.h"
        refused 'different versions' "old_$each" "$each.c"
        # after a header of this version, which its guard stands for (needs no MPI or NCCL header)
        { printf '#define %s_H\n' "$(echo "$each" | tr 'a-z' 'A-Z')"; include "$each"; } > "second_$each.c"
        refused "$each.h and dpar.h are of different versions" "old_$each" "second_$each.c"
    done
    for each in dpar dpar_comm dpar_halo; do
        for other in dpar dpar_comm dpar_halo; do cp "$DPAR_DIR/$other.h" old/; done
        sed 's/^#define DPAR_VERSION_PATCH 0$/#define DPAR_VERSION_PATCH 9/; s/\(DPAR_VERSION != [0-9]*\)0$/\19/' "$DPAR_DIR/$each.h" > "old/$each.h"
        ! cmp -s "$DPAR_DIR/$each.h" "old/$each.h" || { echo "the edit of $each.h no longer matches"; exit 1; }
        refused 'different versions' old halo.c
    done
    mkdir newer && sed 's/^#define DPAR_VERSION_PATCH 0$/#define DPAR_VERSION_PATCH 9/; s/\(DPAR_VERSION != [0-9]*\)0$/\19/' "$DPAR_DIR/dpar.h" > newer/dpar.h
    printf '#include "dpar.h"\n#include "newer/dpar.h"\n' > two.c
    refused 'two dpar.h of different versions' "$DPAR_DIR" two.c
}

# What a release contains in addition to the eight headers.
all() {
    (cd "$root" && tools/amalgamate dpar_all.h) > dpar_all.h || exit 1
    every all_of_it $headers | sed '/^#include/d' > body.c
    { printf '#include "dpar_all.h"\n#include "dpar_all.h"\n'; cat body.c; } > all.c
    try $CC -O0 -DDPAR_IMPLEMENTATION -Wall -Wextra -Wno-cast-function-type -Werror -I. all.c -c -o all.o
    printf 'typedef void (*any)(void);\nextern const any all_of_it[];\nint main(void) { return !all_of_it[0]; }\n' > main_all.c
    try $CC main_all.c all.o -o all_of && try ./all_of
    # in a folder with only one of the eight and an engine
    mkdir with_all && cp dpar_all.h "$DPAR_DIR/dpar_halo.h" "$DPAR_DIR/dpar_cuda.h" with_all/
    printf '#include "dpar_all.h"\n#include "dpar_cuda.h"\n#include "dpar_halo.h"\nint main(void) { return 0; }\n' > with_all.c
    try $CC -O1 $reached -Iwith_all with_all.c -o with_all_of
}
for part in $DPAR_PARTS; do
    $part
done
