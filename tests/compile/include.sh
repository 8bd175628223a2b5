#!/bin/sh
# SPDX-License-Identifier: MIT-0
# The ways a header meets a program: twice, in two units, static in two units, two vendored copies
# in one program, after hostile macros, with wings left out, and in strict C before and after the
# system's headers. DPAR_PARTS: some of them only.
. tests/compile/common.sh
cd "$work" || exit 1
# With static functions -O1 compiles only those that are called, in a tenth of the time.
lone='-O1 -DDPAR_STATIC -DDPAR_IMPLEMENTATION'
: "${DPAR_PARTS:=twice units static vendored hostile features strict}"
printf '#include "dpar.h"\nint other(void) { return (int)dpar_features(); }\n' > other.c
printf '#include "dpar.h"\nint other(void);\nint main(void) { return other() != (int)dpar_features(); }\n' > one.c

twice() {
    printf '#include "dpar.h"\n#include "dpar.h"\nint main(void) { return dpar_status_text(0) == NULL; }\n' > twice.c
    try $CC -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" twice.c -o twice && try ./twice
}

units() {
    try $CC -I"$DPAR_DIR" -c other.c -o other.o
    try $CC -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" one.c other.o -o two_units && try ./two_units
}

static() {
    try $CC $lone -Wall -Wextra -Werror -I"$DPAR_DIR" -c other.c -o static.o
    try $CC $lone -Wall -Wextra -Werror -I"$DPAR_DIR" one.c static.o -o static_units
    try ./static_units
}

vendored() {
    mkdir vendor_a vendor_b
    cp "$DPAR_DIR/dpar.h" vendor_a/ && cp "$DPAR_DIR/dpar.h" vendor_b/
    for v in a b; do
        printf '#define DPAR_STATIC\n#define DPAR_IMPLEMENTATION\n#include "dpar.h"\nint lib_%s(void) { return (int)dpar_features(); }\n' $v > lib_$v.c
        try $CC -O1 -Ivendor_$v -c lib_$v.c -o lib_$v.o
    done
    printf 'int lib_a(void);\nint lib_b(void);\nint main(void) { return lib_a() != lib_b(); }\n' > both.c
    try $CC both.c lib_a.o lib_b.o -o both && try ./both
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
#include "dpar.h"
int main(void) { return 0; }
H
    try $CC -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -fsyntax-only hostile.c
    if have c++; then
        try c++ -x c++ -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -fsyntax-only hostile.c
    else
        echo 'c++: not found, hostile macros in C++ skipped'
    fi
}

features() {
    # The features say which wings are there: 1 cost, 2 show, 4 run.
    printf '#include "dpar.h"\nint main(void) { return dpar_features() != WINGS; }\n' > wings.c
    for wings in 7: 6:-DDPAR_NO_COST 5:-DDPAR_NO_SHOW 3:-DDPAR_NO_RUN '1:-DDPAR_NO_SHOW -DDPAR_NO_RUN' \
        '4:-DDPAR_NO_COST -DDPAR_NO_SHOW' '0:-DDPAR_NO_COST -DDPAR_NO_SHOW -DDPAR_NO_RUN'; do
        try $CC -DWINGS=${wings%%:*} ${wings#*:} -Wall -Wextra -Werror $lone \
            -I"$DPAR_DIR" wings.c -o wings
        try ./wings
    done
}

strict() {
    # Strict C hides POSIX. With this header first all is well; after a system header the
    # implementation must say what to do, in that sentence first of all, unless the system hides
    # nothing; and what it says must help.
    printf '#include "dpar.h"\n#include <stdio.h>\nint main(void) { return puts("") < 0; }\n' > first.c
    printf '#include <stdio.h>\n#include "dpar.h"\nint main(void) { return puts("") < 0; }\n' > later.c
    strict_unit="-std=c99 -Wall -Wextra -Wpedantic -Werror $lone -I$DPAR_DIR"
    try $CC $strict_unit first.c -o first
    if ! $CC $strict_unit later.c -o later 2> said; then
        grep -m 1 error said | grep -q 'include dpar.h before system headers, or compile with -D_GNU_SOURCE' ||
            { cat said; echo 'after a system header in strict C: not the sentence'; exit 1; }
    fi
    try $CC $strict_unit -D_GNU_SOURCE later.c -o later
    try $CC $strict_unit -DDPAR_NO_RUN later.c -o later
    try $CC -std=c99 -I"$DPAR_DIR" later.c -o later
}
for part in $DPAR_PARTS; do
    $part
done
