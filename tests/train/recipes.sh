#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests docs/guide/recipes.md and tensor.md: each program prints the text below it on any number of ranks. PowerSGD
# without compression (RANK 16) is gradient descent: after 60 steps of rate 0.1 the error is 0.9^60 = 0.0018. The
# layer of tensor.md is also computed with other numbers of heads.
. tests/compile/common.sh
library=build/libdpar.a
[ -e $library ] || { library=$work/dpar.a; library "$library" $CC -O1; }
for page in recipes tensor; do
    awk -v out="$work/$page" '/^```c$/ { k++; on = 1; to = out k ".c"; next }
        /^```text$/ { on = 1; to = out k ".text"; next }
        /^```/ { on = 0; next }
        on { print > to }' docs/guide/$page.md
done
built() { try $CC -std=c99 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -I. "$@" $library -o "$work/program" -lm; }
n=0
for block in "$work"/*.c; do
    text=${block%.c}.text
    built "$block"
    sed -i 1d "$text"
    for ranks in 1 2 3 4 6; do
        try "$work/program" --ranks $ranks > "$work/printed"
        diff "$work/printed" "$text" || { echo "$(basename "$block") on $ranks ranks"; exit 1; }
        n=$((n + 1))
    done
done
for heads in 'HEADS = 3, GROUPS = 3, HEAD = 1' 'HEADS = 5, GROUPS = 1, HEAD = 2' 'HEADS = 6, GROUPS = 2, HEAD = 1'; do
    sed "s/HEADS = 4, GROUPS = 2, HEAD = 2/$heads/" "$work/tensor1.c" > "$work/other.c"
    ! cmp -s "$work/tensor1.c" "$work/other.c" || { echo 'tensor.md has other numbers of heads'; exit 1; }
    built "$work/other.c"
    for ranks in 2 3 5; do
        try "$work/program" --ranks $ranks > "$work/printed"
        [ "$(grep -c 'differ by less' "$work/printed")" -eq 2 ] && awk 'NR == 1 { exit $2 != $6 "," }' "$work/printed" ||
            { echo "$heads on $ranks ranks"; cat "$work/printed"; exit 1; }
        n=$((n + 1))
    done
done
built -DRANK=16 "$work/recipes4.c"
try "$work/program" --ranks 3 > "$work/printed"
grep -q 'largest error 0.0018$' "$work/printed" || { cat "$work/printed"; exit 1; }
[ $n -eq 39 ] || { echo "$n runs, expected 39"; exit 1; }
echo "$((n + 1)) runs, 0 failed"
