#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks that every C block in README.md and docs/ and every example compiles without a warning with the
# commands that the pages give for quick builds, optimised: the compiler sees all of dpar then, and gives a user
# the same warnings.
. tests/compile/common.sh
: "${DPAR_README:=README.md docs/*.md docs/guide/*.md}"
for page in $DPAR_README; do
    awk -v out="$work/$(echo "$page" | tr '/' '_')" '/^```c$/ { k++; on = 1; to = out "_" k ".c"; next }
        /^```/ { on = 0 }
        on { print > to }' "$page"
done
one() {
    compiler=$CC
    if grep -q '^#include "dpar_mpi.h"\|^#include <mpi.h>' "$1"; then
        have mpicc || { echo "mpicc: not found, $1 skipped"; return 0; }
        compiler=mpicc
    fi
    if grep -q '^#include <fftw3.h>' "$1" && ! echo '#include <fftw3.h>' | $CC -E - > /dev/null 2>&1; then
        echo "fftw3.h: not found, $1 skipped"
        return 0
    fi
    own=$reached
    ! grep -q 'define DPAR_.*IMPLEMENTATION' "$1" || own=-DDPAR_STATIC
    try $compiler -std=c99 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror $own -I"$DPAR_DIR" -c "$1" -o "$work/$(basename "$1").o"
}
in_pairs one $(some_of "$work"/*.c examples/*.c)
