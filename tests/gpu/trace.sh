#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compares the trace of device times that train_gpt writes with that of the host's program: the same actions on the
# same ranks. On each rank computations follow each other, a receive ends before the action that needs it begins,
# and a send begins after the action that made its data has ended. (For the stand-ins, where a stage takes longer
# than a microsecond.)
#     trace.sh HOST DEVICE options of the model and the mesh
host=$1 device=$2
shift 2
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
for program in "$host" "$device"; do
    "$program" "$@" --quiet --trace "$work/trace" > "$work/said" 2>&1 || { tail -n 20 "$work/said"; exit 1; }
    # Prints rank, line, name, begin and end of each action; names have no blanks.
    sed -n 's/.*"ph":"X","pid":\([0-9]*\),"tid":\([0-9]*\),"ts":\([0-9.e+-]*\),"dur":\([0-9.e+-]*\),"name":"\([^"]*\)".*/\1 \2 \5 \3 \4/p' \
        "$work/trace" > "$work/rows"
    [ "$program" != "$host" ] || cut -d ' ' -f 1,3 "$work/rows" | sort > "$work/host"
done
cut -d ' ' -f 1,3 "$work/rows" | sort | diff - "$work/host" > "$work/apart" || { echo 'other actions than on the host:'; cat "$work/apart"; exit 1; }
sort -k 1,1n -k 4,4n "$work/rows" | awk '
    function off(what) { print what ": rank " $1 " " $3 " " $4 " " $5; bad = 1 }
    $2 == 0 && $3 !~ /^\(/ { # name: stage, kind, micro-batch; both actions of a joined pair have the times of the pair
        if ($1 in end && $4 < end[$1] - 0.002 && $4 != begin[$1]) off("computes while it computes")
        begin[$1] = $4; end[$1] = $4 + $5
        match($3, /[A-Z]+/)
        stage = substr($3, 1, RSTART - 1); kind = substr($3, RSTART, RLENGTH); micro = substr($3, RSTART + RLENGTH)
        if (kind == "I") kind = "B"
        if (kind == "F" && $5 < 1) off("takes no time")
        began[$1, stage, kind, micro] = $4; ended[$1, stage, kind, micro] = $4 + $5
        n++
    }
    $2 > 0 { line[++rows] = $0 }
    END {
        for (i = 1; i <= rows; i++) {
            $0 = line[i]
            if (!match($3, /(SEND|RECV)_[FB]/)) continue
            key = $1 SUBSEP substr($3, 1, RSTART - 1) SUBSEP substr($3, RSTART + 5, 1) SUBSEP substr($3, RSTART + 6)
            if (!(key in began)) { off("a message of no action"); continue }
            if (substr($3, RSTART, 1) == "R" && $4 + $5 > began[key] + 0.002) off("comes too late")
            if (substr($3, RSTART, 1) == "S" && $4 < ended[key] - 0.002) off("goes too early")
            messages++
        }
        if (!bad) print n " actions, " messages " messages"
        exit bad || n < 8 || messages < 4
    }'
