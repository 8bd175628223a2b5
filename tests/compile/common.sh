# SPDX-License-Identifier: MIT-0
# Sourced by the gates. DPAR_DIR is where dpar.h lies: the proofs point it at broken copies.
: "${CC:=cc}" "${DPAR_DIR:=$PWD}"
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
strict='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Wundef -Werror'
strict_c="$strict -Wvla -Wdouble-promotion -Wstrict-prototypes"
have() { command -v "$1" > /dev/null 2>&1; }
need() { have "$1" || { echo "$1: not found"; exit 77; }; }
try() { "$@" || { echo "failed: $*"; exit 1; }; }
