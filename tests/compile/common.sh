# SPDX-License-Identifier: MIT-0
# Sourced by the gates. DPAR_DIR is the folder of the headers; the proofs set it to broken copies.
: "${CC:=cc}" "${DPAR_DIR:=$PWD}"
. tools/headers
. tests/build.sh
headers=${DPAR_ONLY:-$headers} # the proofs look at one
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
strict='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wundef -Werror'
strict_c="$strict -Wvla -Wdouble-promotion -Wstrict-prototypes"
have() { command -v "$1" > /dev/null 2>&1; }
need() { have "$1" || { echo "$1: not found"; exit 77; }; }
try() { "$@" || { echo "failed: $*"; exit 1; }; }

# another_version MINOR FOLDER: changes the headers in FOLDER to those of another release.
another_version() {
    another=$(awk -v minor="$1" '/^#define DPAR_VERSION_MAJOR/ { print $3 * 10000 + minor * 100 }' "$2/dpar.h")
    for each in "$2"/dpar*.h; do
        sed "s/^#define DPAR_VERSION_MINOR .*/#define DPAR_VERSION_MINOR $1/; s/^#define DPAR_VERSION_PATCH .*/#define DPAR_VERSION_PATCH 0/
            s/DPAR_VERSION != [0-9]*/DPAR_VERSION != $another/" "$each" > "$each.new" && mv "$each.new" "$each"
    done
}

# some_of ITEM...: prints the items of this run. Of many similar ones each push takes one part and nightly takes
# all: DPAR_PARTS_OF=4 DPAR_PART=1 prints every fourth item from the second on.
some_of() {
    at=0
    for each in "$@"; do
        [ $((at % ${DPAR_PARTS_OF:-1})) -ne $((${DPAR_PART:-0} % ${DPAR_PARTS_OF:-1})) ] || printf '%s\n' "$each"
        at=$((at + 1))
    done
}

# half_of ITEM...: prints every other item, alternately (DPAR_HALF, 0 or 1), and all items nightly.
half_of() {
    if [ "${DPAR_PARTS_OF:-1}" -eq 1 ]; then
        printf '%s\n' "$@"
    else
        DPAR_PARTS_OF=2 DPAR_PART=${DPAR_HALF:-0} some_of "$@"
    fi
}

# one_mpi MPI...: prints the MPIs of this run. A push takes one of the installed ones where both would give the
# same result, chosen by DPAR_MPI (0 or 1).
one_mpi() {
    [ "${DPAR_PARTS_OF:-1}" -eq 1 ] || [ $# -lt 2 ] || { [ "${DPAR_MPI:-0}" -eq 0 ] || shift; set -- "$1"; }
    echo "$*"
}

# in_pairs FUNCTION ITEM...: runs `FUNCTION item` for each item, two at a time (pass the longest first). Starts
# no other after a failure, and then ends with its output. k is the number of the item.
in_pairs() {
    each=$1
    shift
    rm -rf "$work"/said_* "$work"/taken_*
    in_turn "$@" &
    in_turn "$@"
    wait
    for failed in "$work"/said_*.failed; do
        [ ! -e "$failed" ] || { cat "${failed%.failed}"; exit 1; }
    done
}
in_turn() {
    k=0
    for item in "$@"; do
        k=$((k + 1))
        mkdir "$work/taken_$k" 2> /dev/null || continue
        for failed in "$work"/said_*.failed; do
            [ ! -e "$failed" ] || return 0
        done
        ( "$each" "$item" ) > "$work/said_$k" 2>&1 || touch "$work/said_$k.failed"
    done
}

# library FILE COMPILER AND FLAGS...: compiles the implementation of each header into an object, and all into
# one archive.
library() {
    archive=$1
    shift
    library_compile="$*"
    mkdir -p "$archive.parts"
    in_pairs library_part $headers
    rm -f "$archive"
    try ar rc "$archive" "$archive.parts"/*.o
}
# usual_library: for tests where the optimiser does not matter. Takes the library that tests/run has built from
# these headers, otherwise compiles it with these flags.
usual_library() { # FILE flags...
    if [ "$DPAR_DIR" = "$PWD" ] && make -q build/libdpar.a 2> /dev/null; then
        cp build/libdpar.a "$1"
    else
        file=$1
        shift
        library "$file" $CC "$@"
    fi
}
library_part() {
    try $library_compile "-D$(implements "$1")" -I"$DPAR_DIR" -x c -c "$DPAR_DIR/$1.h" -o "$archive.parts/$1.o"
}
