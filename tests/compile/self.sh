#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Proves that each gate fails when what it guards is broken.
. tests/compile/common.sh
export DPAR_PARTS_OF=1 # a fault may be in any part
broken=$work/broken
mkdir "$broken"
fresh() { for each in $headers dpar_mpi dpar_nccl dpar_cuda; do cp "$each.h" "$broken/"; done; }
fresh

# gate, what is broken, code put into the implementation of a header (dpar.h); DPAR_PARTS: those parts of
# the gate alone. words: what the gate must say
expect() {
    header=${4:-dpar}
    awk -v code="$3" '{ print } /^#define DPAR_[A-Z]*_IMPLEMENTATION_DONE/ { print code }' "$header.h" > "$broken/$header.h"
    if DPAR_DIR=$broken FUZZ_RUNS=1 FUZZ_SECONDS=1 sh "tests/compile/$1.sh" > "$work/log" 2>&1; then
        echo "$1 does not notice: $2"; exit 1
    fi
    cp "$header.h" "$broken/$header.h"
    if [ "$(tail -n 1 "$work/log" | grep -c 'not found')" -eq 1 ]; then
        echo "$1: $(tail -n 1 "$work/log"), not proved"; return
    fi
    grep -q -e "${words:-}" "$work/log" || { cat "$work/log"; echo "$1: fails, but without '$words'"; exit 1; }
    echo "$1 notices: $2"
}

parts() {
    export DPAR_PARTS="$1"
    shift
    "$@"
    unset DPAR_PARTS
}

# Of these gates the header alone that is broken.
one() { DPAR_ONLY=${4:-dpar} && export DPAR_ONLY && expect "$@" && unset DPAR_ONLY; }

parts hostile expect include 'a hostile macro' 'static DPARI_UNUSED int dpari_broken(int near) { return near; }'
parts static expect include 'an unused static function' 'static int dpari_broken(void) { return 1; }'
parts units expect include 'a name that is in two objects' 'int dpar_broken(void); int dpar_broken(void) { return 1; }
#undef DPAR_INDEX_IMPLEMENTATION_DONE'
words=conversion parts c one warnings 'a conversion' 'static DPARI_UNUSED int dpari_broken(double x) { int y = x; return y; }'
parts cxx one warnings 'C that is no C++' 'static DPARI_UNUSED int *dpari_broken(void *p) { int *q = p; return q; }'
words='frame size' parts c one warnings 'a frame too large' 'int dpar_broken(int n); int dpar_broken(int n) { volatile char a[20000]; a[n] = 1; return a[0]; }'
expect freestanding 'a library header' '#include <stdio.h>'
expect freestanding 'a 16-bit int' 'static DPARI_UNUSED long dpari_broken[sizeof(int) == 2 ? -1 : 1];'
expect stack 'a deep call path' 'void dpar_broken(char *p); void dpar_broken(char *p) { volatile char a[1400]; a[0] = *p; *p = a[0]; }'
expect stack 'recursion' 'int dpar_broken(int n); int dpar_broken(int n) { return n > 1 ? n + dpar_broken(n - 1) * dpar_broken(n / 3) : 1; }'
one symbols 'another name' 'int other_name(void); int other_name(void) { return 1; }'
one symbols 'a private name that is no door' 'int dpari_broken(void); int dpari_broken(void) { return 1; }'
one symbols 'data' 'static int dpari_broken = 7; int dpar_broken(void); int dpar_broken(void) { return dpari_broken++; }'
one symbols 'a table of pointers' 'const char *dpar_broken(int i); const char *dpar_broken(int i) { static const char *const t[] = {"a", "b"}; return t[i]; }'
one symbols 'a library function' 'int puts(const char *); int dpar_broken(void); int dpar_broken(void) { return puts("x"); }'
one symbols 'a system call where there is no system' 'int getpid(void); int dpar_broken(void); int dpar_broken(void) { return getpid(); }'

# the same, for what must be broken in place: gate, what, sed command, header
expect_edit() {
    header=${4:-dpar}
    sed "$3" "$header.h" > "$broken/$header.h"
    cmp -s "$header.h" "$broken/$header.h" && { echo "$1: the edit for '$2' no longer matches"; exit 1; }
    if DPAR_DIR=$broken DPAR_UNITS=tests/index/base.c FUZZ_TARGETS=tests/fuzz/json.c FUZZ_RUNS=20000 FUZZ_SECONDS=5 sh "tests/compile/$1.sh" > "$work/log" 2>&1; then
        echo "$1 does not notice: $2"; exit 1
    fi
    cp "$header.h" "$broken/$header.h"
    echo "$1 notices: $2"
}
parts twice expect_edit include 'a second inclusion' 's/^#ifndef DPAR_H$/#if 1/'
parts twice expect_edit include 'a second implementation' 's/^    !defined(DPAR_INDEX_IMPLEMENTATION_DONE)$/    1/'
parts static expect_edit include 'static functions that are not' 's/^#if defined(DPAR_STATIC)$/#if 0/'
parts neighbours expect_edit include 'no sentence where a neighbour is missing' '/^#error dpar_halo.h needs/d' dpar_halo
expect_edit freestanding 'no sentence where there is no POSIX' '/^#error dpar_comm.h needs POSIX/d' dpar_comm
expect_edit symbols 'a name listed for nothing' 's/posix_fallocate(/dpari_fallocate(/; s/^#define DPAR_COMM_IMPLEMENTATION_DONE$/&\nstatic DPARI_UNUSED int dpari_fallocate(int fd, long at, long n) { return fd + (at > n); }/' dpar_comm
if printf 'int main(void) { return 0; }\n' | $CC -fsanitize=address,undefined -x c - -o "$work/probe" 2> /dev/null; then
    expect_edit sanitize 'an overflow' 's/^DPAR_API.* \*dpar_status_text(dpar_status status)$/&\n{ volatile int32_t most = 2147483647; most = most + 1; return dpari_text_of(status); }\nstatic const char *dpari_text_of(dpar_status status)/; s/^#define DPAR_INDEX_IMPLEMENTATION_DONE$/&\nstatic const char *dpari_text_of(dpar_status status);/'
    expect_edit fuzz 'a read past the end' 's/while (j->at < j->bytes \&\&$/while (/; s/while (j->at < j->bytes \&\& (j->text/while ((j->text/' dpar_cost
else
    echo 'the sanitizers: not found, not proved'
fi

if have mpicc || have mpicc.openmpi || have mpicc.mpich; then
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
printf '```c\nextern int puts(const char *);\nint main(void) { puts("one"); return 0; }\n```\n\n```text\ntwo\n```\n' > "$work/bad.md"
DPAR_README=$work/bad.md sh tests/compile/readme.sh > "$work/log" 2>&1 && { echo 'readme does not notice a block that prints something else'; exit 1; }
grep -q 'prints something else' "$work/log" || { cat "$work/log"; echo 'readme fails, but for another reason than what is printed'; exit 1; }
echo 'readme notices: a block that prints something else'

if have cmake || have pkg-config; then
    mkdir "$work/tree"
    cp -r Makefile CMakeLists.txt LICENSE README.md tools tests src bindings dpar*.h "$work/tree"
    echo '#error broken' >> "$work/tree/dpar.h"
    (cd "$work/tree" && touch dpar*.h && touch bindings/fortran/dpar.f90 && sh tests/compile/packages.sh) > "$work/log" 2>&1 && { echo 'packages does not notice a broken header'; exit 1; }
    grep -q '#error broken' "$work/log" || { cat "$work/log"; echo 'packages fails, but for another reason than a broken header'; exit 1; }
    echo 'packages notices: a broken header'
    cp dpar.h "$work/tree" && sed -i.before '/^\tcp $(HEADERS)/s/ dpar_mpi.h//' "$work/tree/Makefile"
    (cd "$work/tree" && touch dpar*.h && touch bindings/fortran/dpar.f90 && sh tests/compile/packages.sh) > "$work/log" 2>&1 && { echo 'packages does not notice a header left out'; exit 1; }
    grep -q 'dpar_mpi.h' "$work/log" || { cat "$work/log"; echo 'packages fails, but for another reason than a header left out'; exit 1; }
    echo 'packages notices: a header left out'
fi

# the header's own comparison
cp dpar.h "$broken/dpar.h" && echo '/* edited */' >> "$broken/dpar.h"
tools/amalgamate dpar.h > "$work/fresh.h"
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
rm -rf "$work/src" && cp -r src "$work/src"
printf "\n\nDPAR_API int dpar_unheard_of(void);\n" >> "$work/src/base/text.h"
DPAR_SRC=$work/src sh tools/lint > "$work/log" 2>&1 && { echo "lint does not notice an undocumented, untested function"; exit 1; }
echo "lint notices: an undocumented, untested function"
