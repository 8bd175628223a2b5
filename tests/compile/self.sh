#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks that each gate fails if what it guards is broken, with as few headers and parts of the gate as show it.
# Each push takes a part of these proofs, nightly all.
. tests/compile/common.sh
of=${DPAR_PARTS_OF:-1} part=${DPAR_PART:-0} proofs=0
mine() { proofs=$((proofs + 1)) && [ $((proofs % of)) -eq $((part % of)) ]; }
export DPAR_PARTS_OF=1 # a fault may be in any part of a gate
broken=$work/broken
mkdir "$broken"
fresh() { for each in $headers $engines; do cp "$each.h" "$broken/"; done; }
fresh

# Arguments: gate, what is broken, code put into the implementation of a header (dpar.h). DPAR_PARTS: runs only
# these parts of the gate. words: what the gate must print
expect() {
    mine || return 0
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

# Runs these gates with only some headers, or with only the broken one.
only() {
    export DPAR_ONLY="$1"
    shift
    "$@"
    unset DPAR_ONLY
}
one() { only "${4:-dpar}" expect "$@"; }

parts hostile only dpar expect include 'a hostile macro' 'static DPARI_UNUSED int dpari_broken(int near) { return near; }'
parts static only dpar expect include 'an unused static function' 'static int dpari_broken(void) { return 1; }'
words=conversion parts c one warnings 'a conversion' 'static DPARI_UNUSED int dpari_broken(double x) { int y = x; return y; }'
parts cxx one warnings 'C that is no C++' 'static DPARI_UNUSED int *dpari_broken(void *p) { int *q = p; return q; }'
words='frame size' parts c one warnings 'a frame too large' 'int dpar_broken(int n); int dpar_broken(int n) { volatile char a[20000]; a[n] = 1; return a[0]; }'
expect freestanding 'a library header' '#include <stdio.h>'
expect freestanding 'a 16-bit int' 'static DPARI_UNUSED long dpari_broken[sizeof(int) == 2 ? -1 : 1];'
expect stack 'a deep call path' 'void dpar_broken(char *p); void dpar_broken(char *p) { volatile char a[1400]; a[0] = *p; *p = a[0]; }'
expect stack 'recursion' 'int dpar_broken(int n); int dpar_broken(int n) { return n > 1 ? n + dpar_broken(n - 1) * dpar_broken(n / 3) : 1; }'
one symbols 'another name' 'int other_name(void); int other_name(void) { return 1; }'
one symbols 'a private name that no header shares' 'int dpari_broken(void); int dpari_broken(void) { return 1; }'
one symbols 'data' 'static int dpari_broken = 7; int dpar_broken(void); int dpar_broken(void) { return dpari_broken++; }'
one symbols 'a table of pointers' 'const char *dpar_broken(int i); const char *dpar_broken(int i) { static const char *const t[] = {"a", "b"}; return t[i]; }'
one symbols 'a library function' 'int puts(const char *); int dpar_broken(void); int dpar_broken(void) { return puts("x"); }'
one symbols 'a system call where there is no system' 'int getpid(void); int dpar_broken(void); int dpar_broken(void) { return getpid(); }'
words='what comes after' parts matrix one placed 'what only compiles before a header of the system' '#if defined(EOF) || defined(_STDIO_H)
#error what comes after
#endif'
words='undefined reference' only dpar expect contract 'a program that needs -lm' 'double dpar_broken(double x); double pow(double, double); double dpar_broken(double x) { return pow(x, 0.3); }'

# the same for what must be broken in place: gate, what, sed command, header
expect_edit() {
    mine || return 0
    header=${4:-dpar}
    sed "$3" "$header.h" > "$broken/$header.h"
    cmp -s "$header.h" "$broken/$header.h" && { echo "$1: the edit for '$2' no longer matches"; exit 1; }
    if DPAR_DIR=$broken DPAR_UNITS=tests/base/base.c FUZZ_TARGETS=tests/fuzz/json.c FUZZ_RUNS=20000 FUZZ_SECONDS=5 sh "tests/compile/$1.sh" > "$work/log" 2>&1; then
        echo "$1 does not notice: $2"; exit 1
    fi
    cp "$header.h" "$broken/$header.h"
    if [ "$(tail -n 1 "$work/log" | grep -c 'not found')" -eq 1 ]; then
        echo "$1: $(tail -n 1 "$work/log"), not proved"; return
    fi
    grep -q -e "${words:-}" "$work/log" || { cat "$work/log"; echo "$1: fails, but without '$words'"; exit 1; }
    echo "$1 notices: $2"
}
words='multiple definition\|duplicate' parts units only 'dpar dpar_schedule' expect_edit include 'a name that is in two objects' 's/^#define DPAR_H$/&\nint dpar_broken(int n); int dpar_broken(int n) { return n; }/'
parts twice only dpar expect_edit include 'a second inclusion' 's/^#ifndef DPAR_H$/#if 1/'
parts twice only dpar expect_edit include 'a second implementation' 's/^    !defined(DPAR_INDEX_IMPLEMENTATION_DONE)$/    1/'
parts static only dpar expect_edit include 'static functions that are not' 's/^#if defined(DPAR_STATIC)$/#if 0/'
parts neighbours expect_edit include 'no sentence where a neighbour is missing' '/^#error dpar_halo.h needs/d' dpar_halo
words='not the sentence' expect_edit freestanding 'no sentence where there is no POSIX' '/^#error dpar_comm.h needs POSIX/d' dpar_comm
words='not the sentence' parts hidden only dpar_comm expect_edit placed 'no sentence where POSIX is hidden' '/^#error strict C hides POSIX/,/or compile with/d' dpar_comm
parts -O0+-fPIC expect_edit symbols 'a name listed for nothing' 's/posix_fallocate(/dpari_fallocate(/; s/^#define DPAR_COMM_IMPLEMENTATION_DONE$/&\nstatic DPARI_UNUSED int dpari_fallocate(int fd, long at, long n) { return fd + (at > n); }/' dpar_comm
if printf 'int main(void) { return 0; }\n' | $CC -fsanitize=address,undefined -x c - -o "$work/probe" 2> /dev/null; then
    only dpar expect_edit sanitize 'an overflow' 's/^DPAR_API.* \*dpar_status_text(dpar_status status)$/&\n{ volatile int32_t most = 2147483647; most = most + 1; return dpari_text_of(status); }\nstatic const char *dpari_text_of(dpar_status status)/; s/^#define DPAR_INDEX_IMPLEMENTATION_DONE$/&\nstatic const char *dpari_text_of(dpar_status status);/'
    expect_edit fuzz 'a read past the end' 's/while (json->at < json->bytes \&\&$/while (/; s/while (json->at < json->bytes \&\& (json->text/while ((json->text/' dpar_cost
else
    echo 'the sanitizers: not found, not proved'
fi

if ! mine; then
    :
elif have mpicc || have mpicc.openmpi || have mpicc.mpich; then
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

mine && {
printf '```c\n#include "dpar.h"\nint main(void) { return dpar_no_such_function(); }\n```\n' > "$work/bad.md"
DPAR_README=$work/bad.md sh tests/compile/readme.sh > "$work/log" 2>&1 && { echo 'readme does not notice a block that does not compile'; exit 1; }
echo 'readme notices: a block that does not compile'
printf '```c\nextern int puts(const char *);\nint main(void) { puts("one"); return 0; }\n```\n\n```text\ntwo\n```\n' > "$work/bad.md"
DPAR_README=$work/bad.md sh tests/compile/readme.sh > "$work/log" 2>&1 && { echo 'readme does not notice a block that prints something else'; exit 1; }
grep -q 'prints something else' "$work/log" || { cat "$work/log"; echo 'readme fails, but for another reason than what is printed'; exit 1; }
echo 'readme notices: a block that prints something else'
printf 'a name: dpar_mesh_inti\na field: dpar_call.knid\n' > "$work/bad.md"
DPAR_PAGES="docs/conventions.md $work/bad.md" sh tests/compile/names.sh > "$work/log" 2>&1 && { echo 'names does not notice a name that is none'; exit 1; }
for words in dpar_mesh_inti knid; do
    grep -q "$words" "$work/log" || { cat "$work/log"; echo "names does not notice: $words"; exit 1; }
done
echo 'names notices: a name and a field that no header has'
awk 'BEGIN { for (i = 0; i < 36; i++) printf "w%d%s", i, i % 9 == 8 ? "\n" : " "; printf "is. A line of "; for (i = 0; i < 101; i++) printf "x"; print "." }' > "$work/bad.md"
DPAR_PAGES=$work/bad.md sh tests/compile/words.sh > "$work/log" 2>&1 && { echo 'words does not notice anything'; exit 1; }
for words in 'a sentence of 37 words' ' wide'; do
    grep -q "$words" "$work/log" || { cat "$work/log"; echo "words does not notice: $words"; exit 1; }
done
echo 'words notices: a long sentence, a wide line'
awk 'BEGIN { printf "/* short.\n *\n"; for (k = 0; k < 9; k++) print " *     f(a, b, c, d, e);     calls f"
    for (i = 0; i < 36; i++) printf "%sw%d", i % 9 ? " " : "\n * ", i; print " is. */\nint f;\n/* Stop here if you only want the API" }' > "$work/bad.h"
echo 'Short.' > "$work/bad.md"
DPAR_PAGES=$work/bad.md DPAR_COMMENTS=$work/bad.h sh tests/compile/words.sh > "$work/log" 2>&1 && { echo 'words does not notice a comment'; exit 1; }
[ "$(grep -c 'a sentence of' "$work/log")" = 1 ] && grep -q 'a sentence of 37 words' "$work/log" || { cat "$work/log"; echo 'words: not the one long sentence of a comment'; exit 1; }
echo 'words notices: a long sentence of a comment, not its code'
mkdir -p "$work/maps/src" "$work/maps/tests"
sed '/^\* `mesh`/d' src/README.md > "$work/maps/src/README.md"
sed 's/^\* `mesh.c`/* `mash.c`/' tests/README.md > "$work/maps/tests/README.md"
DPAR_MAPS=$work/maps sh tests/compile/words.sh > "$work/log" 2>&1 && { echo 'words does not notice a map that is wrong'; exit 1; }
for words in '^> index/mesh.h$' '^< index/mash.c$' '^> index/mesh.c$'; do
    grep -q "$words" "$work/log" || { cat "$work/log"; echo "words does not notice in a map: $words"; exit 1; }
done
echo 'words notices: a file that a map lacks, or that is not there'
}

if mine && { have cmake || have pkg-config; }; then
    mkdir "$work/tree"
    cp -r Makefile CMakeLists.txt LICENSE README.md docs tools tests src bindings commands helpers packages dpar*.h "$work/tree"
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

# lint, on a copy of src/ that has every fault, must report each
if mine; then
    rm -rf "$work/src" && cp -r src "$work/src"
    printf '/* %0110d */\n' 0 >> "$work/src/base/text.c"
    printf '\t/* tab */\nstatic void *dpari_x(void) { return malloc(3); }\n' >> "$work/src/base/box.c"
    unheard=dpar_un unheard=${unheard}heard_of # in two pieces: no test names it, this one neither
    printf '\n\nDPAR_API int %s(void);\n' $unheard >> "$work/src/base/text.h"
    DPAR_SRC=$work/src sh tools/lint > "$work/log" 2>&1 && { echo 'lint does not notice anything'; exit 1; }
    for words in 'text\.c:[0-9]*: 116 wide' 'box\.c:[0-9]*: tab' 'box\.c:.*malloc' "no comment above .*$unheard" \
        "$unheard is named in no test" "$unheard is used by nothing"; do
        grep -q "$words" "$work/log" || { cat "$work/log"; echo "lint does not notice: $words"; exit 1; }
        echo "lint notices: $words"
    done
fi

# levels, on some folders of src/ with every forbidden dependency, must report each
if mine; then
    mkdir -p "$work/some" && cp -r src/base src/index "$work/some"
    (cd "$work/some" && {
        echo 'int dpar_high(void); int dpar_high(void) { return 1; }' >> index/mesh.c
        echo 'int dpar_high(void); int dpar_low(void); int dpar_low(void) { return dpar_high(); }' >> base/text.c
        echo '#include "../index/mesh.h"' >> base/box.c
        echo 'int dpar_left(void); int dpar_right(void); int dpar_right(void) { return dpar_left(); }' >> index/window.c
        echo 'int dpar_left(void); int dpar_right(void); int dpar_left(void) { return dpar_right(); }' >> index/sampler.c
        echo '#include "layout.h"' >> index/mesh.h
        echo 'struct dpar_layout;' >> base/base.c
        echo 'struct dpar_mesh;' >> base/type.h
    })
    mkdir -p "$work/programs/apps" "$work/programs/commands"
    echo '#include "commands/options.h"' > "$work/programs/apps/one.c"
    echo '#include "../apps/one.c"' > "$work/programs/commands/two.c"
    echo '#include "one.c"' > "$work/programs/commands/three.c"
    SRC=$work/some PROGRAMS=$work/programs sh tests/compile/levels.sh > "$work/log" 2>&1 && { echo 'levels does not notice anything'; exit 1; }
    for words in 'base/text calls up: dpar_high of index/mesh' 'base/box.c includes up: ../index/mesh.h' \
        'circle of calls: .*index/window' 'circle of includes: .*index/mesh.h' 'base/base.c names up: dpar_layout of index' \
        'base/type.h names up: dpar_mesh of index' "apps/one.c:1 includes another folder's file" \
        "two.c:1 includes another folder's file" "three.c:1 includes another folder's file"; do
        grep -q "$words" "$work/log" || { cat "$work/log"; echo "levels does not notice: $words"; exit 1; }
        echo "levels notices: $words"
    done
fi

# sizes: objects of some bytes pass, objects of 150 KB each do not
if mine; then
    for bytes in 10 150000; do
        printf 'extern const char dpar_fat[%d]; const char dpar_fat[%d] = {1};\n' $bytes $bytes > "$work/fat.c"
        mkdir -p "$work/fat" && try $CC -c "$work/fat.c" -o "$work/fat/dpar.o"
        for each in $headers; do [ "$each" = dpar ] || cp "$work/fat/dpar.o" "$work/fat/$each.o"; done
        CFLAGS=-O2 sh tools/sizes check "$work/fat" > "$work/log_$bytes" 2>&1
        code=$?
        case $bytes:$code in
        10:0 | *:77) ;;
        10:*) cat "$work/log_$bytes"; echo 'sizes complains of 10 bytes'; exit 1 ;;
        *:0) echo 'sizes does not notice: a budget that is passed'; exit 1 ;;
        *)
            [ "$(grep -c '^too large: dpar' "$work/log_$bytes")" -eq "$(grep -cE "^(budgets=')?dpar[a-z_+]*:[0-9]+" tools/sizes)" ] ||
                { cat "$work/log_$bytes"; echo 'sizes: not each budget'; exit 1; }
            echo 'sizes notices: each budget that is passed' ;;
        esac
        [ "$code" -ne 77 ] || { echo "sizes: $(tail -n 1 "$work/log_$bytes"), not proved"; break; }
    done
fi

# embedded: a table of 9000 bytes, an array of 2000 and a product of doubles in a function that all of its
# programs except one call
if mine; then
    awk '{ print } /^DPAR_API.*dpar_mesh_init\(/ { mine = 1 } /;$/ { mine = 0 }
        mine && /^{$/ { print "    static const volatile unsigned char dpari_fat[9000] = {1};\n    volatile unsigned char deep[2000];\n    volatile double x = 0;\n    deep[dpari_fat[0]] = 0;\n    x = x * 3;\n    if (dpari_fat[*sizes & 8191] + deep[dpari_fat[1]] == 9) {\n        return DPAR_E_ARG;\n    }"; mine = 0 }' \
        dpar.h > "$broken/dpar.h"
    cmp -s dpar.h "$broken/dpar.h" && { echo 'embedded: the edit of dpar.h no longer matches'; exit 1; }
    DPAR_DIR=$broken DPAR_PARTS_OF=4 sh tools/embedded check > "$work/log" 2>&1
    code=$?
    cp dpar.h "$broken/dpar.h"
    case $code in
    0) echo 'embedded does not notice: a budget that is passed'; exit 1 ;;
    77) echo "embedded: $(tail -n 1 "$work/log"), not proved" ;;
    *)
        for each in '[0-9]* of 6656 bytes (' '[0-9]* of 1792 bytes of stack' 'needs what it did not: __aeabi_dmul'; do
            grep -q "^owner:* $each" "$work/log" || { cat "$work/log"; echo "embedded does not say of owner: $each"; exit 1; }
        done
        echo 'embedded notices: budgets of bytes and of stack that are passed, a function that was not needed' ;;
    esac
fi

# playground: the page itself, edited by sed; only a part of its tests
page() { # part, what is broken, the edit
    mine || return 0
    sed "$3" docs/playground/index.html > "$work/page.html"
    cmp -s docs/playground/index.html "$work/page.html" && { echo "playground: the edit of the page no longer matches: $2"; exit 1; }
    PAGE=$work/page.html DPAR_PARTS=$1 sh tests/compile/playground.sh > "$work/log" 2>&1
    case $? in
    0) echo "playground does not notice: $2"; exit 1 ;;
    77) echo "playground: $(tail -n 1 "$work/log"), not proved" ;;
    *)
        grep -q '^WRONG' "$work/log" || { cat "$work/log"; echo 'playground fails, but for another reason'; exit 1; }
        echo "playground notices: $2" ;;
    esac
}
page same 'terms in another order' 's/p.memory = a.take(13);/p.memory = a.take(13).reverse();/'
page names 'a slider without a name' "s/, 'aria-label': s.label}/}/"
page narrow 'a page that is too wide for a phone' 's/max-width: 860px/max-width: 86px/'
page refuses 'a view that shows nothing' "s/announce(say);/fill('say-halo', '');/"
