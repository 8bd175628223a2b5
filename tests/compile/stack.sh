#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks that dpar.h and dpar_schedule.h use less than 1 KiB of stack on any call path (less than 2 KiB in
# searches for schedules, schedule/optimize and schedule/partition, in drawing one and in printing reals; less than 4
# KiB in dpar_selftest), and never recurse: walks gcc's call graph
# (-fcallgraph-info=su) from every function. With an ARM compiler, prints the code's size too.
. tests/compile/common.sh
cd "$work" || exit 1
printf '#include "dpar_schedule.h"\n' > unit.c
flags='-std=c99 -ffreestanding -DDPAR_IMPLEMENTATION'
gcc $flags -fcallgraph-info=su -fsyntax-only unit.c 2> /dev/null -I"$DPAR_DIR" || { echo 'gcc with call graphs: not found'; exit 77; }
for level in -O2 -Os; do
    try gcc $flags $level -fcallgraph-info=su -I"$DPAR_DIR" -c unit.c -o unit.o
    try awk -v level="$level" -v most=1024 '
        function deepest(f, i, n, best, d, to) {
            if (f in depth) return depth[f]
            if (f in walking) { print "recursion through " f; failed = 1; return 0 }
            walking[f] = 1
            best = 0; via[f] = ""
            n = split(calls[f], to, "\n")
            for (i = 1; i <= n; i++) if (to[i] != "") {
                d = deepest(to[i])
                if (d > best) { best = d; via[f] = to[i] }
            }
            delete walking[f]
            return depth[f] = best + frame[f]
        }
        /^node:/ { split($0, q, "\""); n = split(q[4], l, "\\\\n"); split(l[3], b, " "); frame[q[2]] = b[1] + 8 }
        /^edge:/ { split($0, q, "\""); calls[q[2]] = calls[q[2]] "\n" q[4] }
        END {
            for (f in frame) if (f !~ /text_|json_/ && deepest(f) > depth[worst]) worst = f
            for (g = worst; g != ""; g = via[g]) path = path " " g " (" frame[g] ")"
            print level ": deepest path " depth[worst] " bytes:" path
            for (f in frame) functions++
            if (functions < 50) { print "only " functions " functions in the call graph"; failed = 1 }
            for (f in depth) if (depth[f] >= (f ~ /prove|dpar_selftest/ ? 4 : f ~ /auto|placing|optimize|schedule_(place|partition|draw|sketch|selftest)|text_(fixed|print)/ ? 2 : 1) * most) {
                path = ""; failed = 1
                for (g = f; g != ""; g = via[g]) path = path " " g " (" frame[g] ")"
                print f " needs " depth[f] " bytes of stack:" path
            }
            exit failed
        }' unit.ci
    tail -n 30 "$work/log" 2> /dev/null
done
if have clang && have llvm-size; then
    try clang --target=armv6m-none-eabi -mthumb -std=c99 -ffreestanding -nostdlibinc -Os -Wno-frame-larger-than \
        -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -c unit.c -o unit.o
    echo "thumb, -Os: $(llvm-size unit.o | awk 'NR == 2 { print $1 }') bytes of code for dpar.h and dpar_schedule.h"
fi
