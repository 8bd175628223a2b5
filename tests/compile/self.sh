#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Proves that each gate fails when what it guards is broken.
. tests/compile/common.sh
broken=$work/broken
mkdir "$broken"
cp dpar_mpi.h "$broken/"

# For what takes an optimiser and any code will do: the header with base, index and order alone. There the
# gate's words must be those of the fault.
slim() {
    words=$1 leave='#define DPAR_NO_RUN\n#define DPAR_NO_COST\n#define DPAR_NO_SHOW\n'
    shift
    "$@"
    grep -q -e "$words" -e 'not found$' "$work/log" || { cat "$work/log"; echo "$1: fails, but without '$words'"; exit 1; }
    leave=
}
leave=

# gate, what is broken, code put into the implementation; DPAR_PARTS: those parts of the gate alone
expect() {
    awk -v code="$3" -v leave="$leave" 'NR == 1 { printf "%s", leave } { print } /^#define DPAR_IMPLEMENTATION_DONE/ { print code }' dpar.h > "$broken/dpar.h"
    if DPAR_DIR=$broken FUZZ_RUNS=1 FUZZ_SECONDS=1 sh "tests/compile/$1.sh" > "$work/log" 2>&1; then
        echo "$1 does not notice: $2"; exit 1
    fi
    if [ "$(tail -n 1 "$work/log" | grep -c 'not found')" -eq 1 ]; then
        echo "$1: $(tail -n 1 "$work/log"), not proved"; return
    fi
    echo "$1 notices: $2"
}

parts() {
    export DPAR_PARTS="$1"
    shift
    "$@"
    unset DPAR_PARTS
}

parts hostile expect include 'a hostile macro' 'static DPARI_UNUSED int dpari_broken(int near) { return near; }'
parts static expect include 'an unused static function' 'static int dpari_broken(void) { return 1; }'
parts c slim 'conversion' expect warnings 'a conversion' 'static DPARI_UNUSED int dpari_broken(double x) { int y = x; return y; }'
parts cxx expect warnings 'C that is no C++' 'static DPARI_UNUSED int *dpari_broken(void *p) { int *q = p; return q; }'
parts c slim 'frame size' expect warnings 'a frame too large' 'int dpar_broken(int n); int dpar_broken(int n) { volatile char a[20000]; a[n] = 1; return a[0]; }'
expect freestanding 'a library header' '#include <stdio.h>'
expect freestanding 'a 16-bit int' 'static DPARI_UNUSED long dpari_broken[sizeof(int) == 2 ? -1 : 1];'
expect stack 'a deep call path' 'void dpar_broken(char *p); void dpar_broken(char *p) { volatile char a[1400]; a[0] = *p; *p = a[0]; }'
expect stack 'recursion' 'int dpar_broken(int n); int dpar_broken(int n) { return n > 1 ? n + dpar_broken(n - 1) * dpar_broken(n / 3) : 1; }'
expect symbols 'another name' 'int other_name(void); int other_name(void) { return 1; }'
expect symbols 'data' 'static int dpari_broken = 7; int dpar_broken(void); int dpar_broken(void) { return dpari_broken++; }'
expect symbols 'a table of pointers' 'const char *dpar_broken(int i); const char *dpar_broken(int i) { static const char *const t[] = {"a", "b"}; return t[i]; }'
expect symbols 'a library function' 'int puts(const char *); int dpar_broken(void); int dpar_broken(void) { return puts("x"); }'
expect symbols 'a function of the run wing outside it' 'int getpid(void); int dpar_broken(void); int dpar_broken(void) { return getpid(); }'

# the same, for what must be broken in place: gate, what, sed command
expect_edit() {
    sed "$3" dpar.h > "$broken/edited"
    { printf '%b' "$leave"; cat "$broken/edited"; } > "$broken/dpar.h"
    cmp -s dpar.h "$broken/edited" && { echo "$1: the edit for '$2' no longer matches"; exit 1; }
    if DPAR_DIR=$broken DPAR_UNITS=tests/unit/base.c FUZZ_TARGETS=tests/fuzz/json.c FUZZ_RUNS=20000 FUZZ_SECONDS=5 sh "tests/compile/$1.sh" > "$work/log" 2>&1; then
        echo "$1 does not notice: $2"; exit 1
    fi
    echo "$1 notices: $2"
}
parts twice expect_edit include 'a second inclusion' 's/^#ifndef DPAR_H$/#if 1/'
parts twice expect_edit include 'a second implementation' 's/ && !defined(DPAR_IMPLEMENTATION_DONE)$//'
parts static slim 'multiple definition\|duplicate symbol' expect_edit include 'static functions that are not' 's/^#if defined(DPAR_STATIC)$/#if 0/'
parts features expect_edit include 'a feature that is not told' 's/^    bits |= DPAR_FEATURE_RUN;$//'
printf '#include <stdio.h>\n#if defined(__GLIBC__)\n#error here strict C hides POSIX\n#endif\n' | $CC -E -x c - > /dev/null 2>&1 ||
    parts strict expect_edit include 'no sentence where POSIX is hidden' 's/^#error include dpar.h before system headers.*/;/'
expect_edit freestanding 'the run wing without a C library' 's/defined(__STDC_HOSTED__) \&\& __STDC_HOSTED__ \&\&/1 \&\&/'
expect_edit symbols 'a name listed for nothing' 's/posix_fallocate(/dpari_fallocate(/; s/^#define DPAR_IMPLEMENTATION_DONE$/&\nstatic DPARI_UNUSED int dpari_fallocate(int fd, long at, long n) { return fd + (at > n); }/'
if printf 'int main(void) { return 0; }\n' | $CC -fsanitize=address,undefined -x c - -o "$work/probe" 2> /dev/null; then
    expect_edit sanitize 'an overflow' 's/int32_t bits = 0;/volatile int32_t bits = 2147483647; bits = bits + 1; bits = 0;/'
    expect_edit fuzz 'a read past the end' 's/while (j->at < j->bytes \&\&$/while (/; s/while (j->at < j->bytes \&\& (j->text/while ((j->text/'
else
    echo 'the sanitizers: not found, not proved'
fi

if have mpicc || have mpicc.openmpi || have mpicc.mpich; then
    cp dpar.h "$broken/dpar.h"
    awk '{ print } /^#define DPAR_MPI_IMPLEMENTATION_DONE/ { mine = 1 }
        mine && /^#include <string.h>/ { print "static DPARI_UNUSED int dpari_broken(double x) { int y = x; return y; }"; mine = 0 }' \
        dpar_mpi.h > "$broken/dpar_mpi.h"
    cmp -s dpar_mpi.h "$broken/dpar_mpi.h" && { echo 'warnings: the edit of dpar_mpi.h no longer matches'; exit 1; }
    DPAR_PARTS=mpi DPAR_DIR=$broken sh tests/compile/warnings.sh > "$work/log" 2>&1 && { echo 'warnings does not notice a conversion in dpar_mpi.h'; exit 1; }
    grep -q 'dpar_mpi.h.*conversion' "$work/log" || { cat "$work/log"; echo 'warnings fails, but for another reason than dpar_mpi.h'; exit 1; }
    echo 'warnings notices: a conversion in dpar_mpi.h'
    cp dpar_mpi.h "$broken/"
else
    echo 'mpicc: not found, dpar_mpi.h not proved'
fi

printf '```c\n#include "dpar.h"\nint main(void) { return dpar_no_such_function(); }\n```\n' > "$work/bad.md"
DPAR_README=$work/bad.md sh tests/compile/readme.sh > "$work/log" 2>&1 && { echo 'readme does not notice a block that does not compile'; exit 1; }
echo 'readme notices: a block that does not compile'

if have cmake || have pkg-config; then
    mkdir "$work/tree"
    cp -r Makefile CMakeLists.txt LICENSE README.md tools tests src bindings dpar*.h "$work/tree"
    echo '#error broken' >> "$work/tree/dpar.h"
    (cd "$work/tree" && touch dpar.h bindings/fortran/dpar.f90 && sh tests/compile/packages.sh) > "$work/log" 2>&1 && { echo 'packages does not notice a broken header'; exit 1; }
    grep -q '#error broken' "$work/log" || { cat "$work/log"; echo 'packages fails, but for another reason than a broken header'; exit 1; }
    echo 'packages notices: a broken header'
    cp dpar.h "$work/tree" && sed -i.before '/^\tcp dpar.h/s/ dpar_mpi.h//' "$work/tree/Makefile"
    (cd "$work/tree" && touch dpar.h bindings/fortran/dpar.f90 && sh tests/compile/packages.sh) > "$work/log" 2>&1 && { echo 'packages does not notice a header left out'; exit 1; }
    grep -q 'dpar_mpi.h' "$work/log" || { cat "$work/log"; echo 'packages fails, but for another reason than a header left out'; exit 1; }
    echo 'packages notices: a header left out'
fi

# the header's own comparison
cp dpar.h "$broken/dpar.h" && echo '/* edited */' >> "$broken/dpar.h"
tools/amalgamate > "$work/fresh.h"
cmp -s "$work/fresh.h" "$broken/dpar.h" && { echo 'the comparison does not notice an edit'; exit 1; }

# lint, on a copy of src/
lint_expect() {
    rm -rf "$work/src" && cp -r src "$work/src"
    printf '%b' "$2" >> "$work/src/base/text.c"
    if DPAR_SRC=$work/src sh tools/lint > "$work/log" 2>&1; then
        echo "lint does not notice: $1"; exit 1
    fi
    echo "lint notices: $1"
}
lint_expect 'a wide line' "/* $(printf '%0110d' 0) */\n"
lint_expect 'a tab' '\t/* tab */\n'
lint_expect 'malloc' 'static void *dpari_x(void) { return malloc(3); }\n'
lint_expect 'a long function' "static void dpari_long(void)\n{\n$(awk 'BEGIN { for (i = 0; i < 70; i++) printf "    ;\\n" }')}\n"
rm -rf "$work/src" && cp -r src "$work/src"
printf "\n\nDPAR_API int dpar_unheard_of(void);\n" >> "$work/src/base/text.h"
DPAR_SRC=$work/src sh tools/lint > "$work/log" 2>&1 && { echo "lint does not notice an undocumented, untested function"; exit 1; }
echo "lint notices: an undocumented, untested function"
