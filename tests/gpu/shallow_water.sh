#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compares the planet on devices with the host's program: cases 2 and 5, and checkpoints that one writes and the
# other reads. shallow_water.sh HOST DEVICE 'RANKS...' [ROWS [DAYS [close]]]
# Results must be equal byte for byte, which needs compilers that do not fuse products and sums. With close they
# must agree within 1e-9 m and 1e-10 m/s after a day (fused on the host the differences are 3e-11 and 2e-12 on up to
# 192 rows, docs/records/gpu.md).
host=$1 device=$2 list=$3 rows=${4:-13} days=${5:-0.1} how=${6:-same}
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
half=$(awk "BEGIN { print $days / 2 }")
bad=0 runs=0
must() { # command...
    runs=$((runs + 1))
    timeout 100 "$@" > "$work/out" 2>&1 || { echo "exit $?: $*"; tail -n 5 "$work/out"; exit 1; }
    grep '^day' "$work/out" > "$work/said"
}
numbers() { od -An -v -t f8 -w8 -j 64 "$1"; }
same() { # checkpoint, case, words
    if [ "$how" = same ]; then
        cmp "$1" "$work/whole$2" || { echo "differs: $3"; bad=1; }
        return
    fi
    numbers "$1" > "$work/a"
    numbers "$work/whole$2" | paste "$work/a" - | awk -v cells=$((2 * rows * rows)) '
        { d = $1 - $2; d = d < 0 ? -d : d; if (!(d <= most[NR > cells])) most[NR > cells] = d }
        END { printf "%g m, %g m/s off\n", most[0], most[1]
              exit !(NR == 3 * cells + 2 * sqrt(cells / 2) && most[0] <= 1e-9 && most[1] <= 1e-10) }' > "$work/off" ||
        { echo "differs: $3"; bad=1; }
    echo "$3: $(cat "$work/off")"
}
options() { # of case
    echo "--case $1 --rows $rows $([ "$1" = 5 ] || echo --alpha 60)"
}

for case in 2 5; do
    must "$host" $(options $case) --days "$half" --save "$work/half$case"
    must "$host" $(options $case) --days "$days" --save "$work/whole$case" --frames "$work/whole$case"
    cp "$work/said" "$work/said$case"
done
cmp -s "$work/half2" "$work/whole2" && { echo 'nothing moves'; bad=1; }
case=2
for ranks in $list; do
    case=$((7 - case)) grid=
    [ "$ranks" != 3 ] || grid='--grid 1x3'
    [ "$ranks" != 4 ] || grid='--grid 2x2'
    must "$device" $(options $case) --ranks "$ranks" $grid --days "$days" --save "$work/many" --frames "$work/many"
    same "$work/many" $case "case $case, ranks $ranks"
    [ "$how" = close ] || cmp "$work/said" "$work/said$case" || bad=1
    frame=$(cd "$work" && ls whole${case}*.ppm | tail -n 1)
    [ "$how" = close ] || cmp "$work/$frame" "$work/many${frame#whole?}" || bad=1
done
# A checkpoint goes from the host to the device and back.
must "$device" --resume "$work/half5" --ranks "$ranks" --days "$days" --save "$work/many"
same "$work/many" 5 'restart from the host'
must "$device" $(options 2) --ranks "$ranks" --days "$half" --save "$work/part"
must "$host" --resume "$work/part" --ranks 3 --days "$days" --save "$work/many"
same "$work/many" 2 'restart from the device'
[ $bad = 0 ] && echo "$runs runs on $rows rows"
exit $bad
