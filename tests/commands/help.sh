#!/bin/sh
# SPDX-License-Identifier: MIT-0
# What every command and application says by --help: what it is in a line, its exit codes, three examples; and the man
# page that is made of a command's, which says the same words and no others (groff, where it is).
: "${CC:=cc}" "${CFLAGS:=-O1}"
[ -e build/libdpar.a ] || make -s build/libdpar.a || exit 1
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
bad=0
for source in commands/*.c apps/*.c; do
    name=$(basename $source .c)
    $CC $CFLAGS -D_GNU_SOURCE -I. $source build/libdpar.a -o "$work/$name" -lm || exit 1
    "$work/$name" --help > "$work/help" || bad=1
    wrong() { echo "$name --help: $1"; bad=1; }
    head -n 1 "$work/help" | grep -q "^$name: [^ ].*[^.]\$" || wrong 'its first line is no "name: what it does"'
    grep -q '^Exit code: 0 ' "$work/help" || wrong 'no exit codes'
    sed '1,/^examples$/d' "$work/help" > "$work/examples"
    [ "$(wc -l < "$work/examples")" -ge 3 ] || wrong 'fewer than three examples'
    awk -v name="$name" '!match($0, "(^  |/| )" name "(_mpi)?( |$)") { exit 1 }' "$work/examples" || wrong 'an example of something else'
    awk 'length > 100 { exit 1 }' "$work/help" || wrong 'a line of more than 100 characters'
    case $source in apps/*) continue ;; esac
    tools/man "$work/$name" > "$work/$name.1" || bad=1
    for section in NAME SYNOPSIS DESCRIPTION EXAMPLES; do
        [ "$(grep -c "^\.SH $section\$" "$work/$name.1")" -eq 1 ] || wrong "its man page has no $section"
    done
    command -v groff > /dev/null || { echo 'groff: not found, the pages were not set'; continue; }
    # word for word: all but the headings and the line at the top and the bottom
    groff -man -Tascii -P-c -P-b -P-o -P-u -rLL=120n -ww "$work/$name.1" > "$work/set" 2> "$work/said" || bad=1
    [ ! -s "$work/said" ] || { head -n 3 "$work/said"; wrong 'groff complains'; }
    sed '1d;$d' "$work/set" | grep -v -e '^[A-Z][A-Z]*$' | tr -s ' \n' '\n\n' | grep . > "$work/words"
    grep -v '^examples$' "$work/help" | sed "1s/^$name: /$name - /" | tr -s ' \n' '\n\n' | grep . > "$work/expected"
    cmp "$work/words" "$work/expected" || wrong 'its man page says other words'
done
exit $bad
