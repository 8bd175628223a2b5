#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests docs/guide/recipes.md: each of its programs prints the text below it on any number of ranks. PowerSGD
# without compression (RANK 16) is gradient descent: after 60 steps of rate 0.1 the error is 0.9^60 = 0.0018.
. tests/compile/common.sh
library=build/libdpar.a
[ -e $library ] || { library=$work/dpar.a; library "$library" $CC -O1; }
awk -v out="$work/block" '/^```c$/ { k++; on = 1; to = out k ".c"; next }
    /^```text$/ { on = 1; to = out k ".text"; next }
    /^```/ { on = 0; next }
    on { print > to }' docs/guide/recipes.md
n=0
for block in "$work"/block*.c; do
    text=${block%.c}.text
    try $CC -std=c99 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -I. "$block" $library -o "$work/program" -lm
    sed -i 1d "$text"
    for ranks in 1 2 3 4 6; do
        try "$work/program" --ranks $ranks > "$work/printed"
        diff "$work/printed" "$text" || { echo "$(basename "$block") on $ranks ranks"; exit 1; }
        n=$((n + 1))
    done
done
try $CC -std=c99 -D_GNU_SOURCE -O1 -DRANK=16 -I. "$work/block4.c" $library -o "$work/program" -lm
try "$work/program" --ranks 3 > "$work/printed"
grep -q 'largest error 0.0018$' "$work/printed" || { cat "$work/printed"; exit 1; }
[ $n -eq 25 ] || { echo "$n runs, expected 25"; exit 1; }
echo "$((n + 1)) runs, 0 failed"
