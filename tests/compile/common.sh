# SPDX-License-Identifier: MIT-0
# Sourced by the gates. DPAR_DIR is where dpar.h lies: the proofs point it at broken copies.
: "${CC:=cc}" "${DPAR_DIR:=$PWD}"
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
strict='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wundef -Werror'
strict_c="$strict -Wvla -Wdouble-promotion -Wstrict-prototypes"
# The run wing includes system headers, whose names a unit test may use for its own: only those that
# test it get it.
wings() { case $1 in base | doctor | fsdp | kernel | launch | mem | random | strided | train) ;; *) echo -DDPAR_NO_RUN ;; esac; }
have() { command -v "$1" > /dev/null 2>&1; }
need() { have "$1" || { echo "$1: not found"; exit 77; }; }
try() { "$@" || { echo "failed: $*"; exit 1; }; }
# Runs `function item` for each item, two at a time (give the longest first); begins no other after one
# that fails, and ends with what it says. k is the item's number.
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
