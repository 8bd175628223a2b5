#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests the U-Net: tiles against one rank (outputs and gradients of a step), the same losses on any tiles and
# with data parallelism, the loss of a short training, memory against the planner, and messages about bad input.
# With the argument "long" runs a step of the whole globe, 1440 x 720, against one rank.
: "${CC:=cc}" "${CFLAGS:=-O2}"
[ -e build/libdpar.a ] || make -s build/libdpar.a || exit 1
library=build/libdpar.a
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
$CC $CFLAGS -I. apps/unet.c $library -lm -o "$work/unet" || exit 1
bad=0
run() { timeout 300 "$work/unet" "$@" > "$work/out" 2> "$work/err"; }
must() { # options...
    run "$@" || { echo "exit $?: $*"; head -n 9 "$work/out" "$work/err"; exit 1; }
}
losses() { awk '$1 == "step" { print $2, substr($4, 1, 7) }' "$work/out"; } # to 5 decimals

if [ "${1:-}" = long ]; then
    must --size 1440x720 --ranks 2 --steps 1 --check
    grep '^against one rank' "$work/out" || { echo 'nothing was compared'; bad=1; }
    awk '/^activations/ { own = $5; planned = $10 }
        END { exit !(own > 0.14 && own < 0.15 && own > 0.999 * planned && own < 1.001 * planned) }' \
        "$work/out" || { echo 'memory:'; cat "$work/out"; bad=1; }
    exit $bad
fi

# odd extents at each level and three samples; exits with 1 if --check finds a difference
must --size 42x22 --ranks 1 --dp 1 --steps 4
losses > "$work/one"
[ "$(wc -l < "$work/one")" -eq 4 ] || { echo 'steps are missing'; bad=1; }
for tiles in 1x2 2x1 1x3 2x2 4x1 1x4 3x2 2x4 5x1; do
    must --size 42x22 --tiles $tiles --steps 4 --check
    losses | cmp -s - "$work/one" || { echo "losses of tiles $tiles:"; cat "$work/out"; bad=1; }
done
for spread in '1x1 --dp 3' '2x1 --dp 2' '1x2 --dp 3'; do
    must --size 40x18 --levels 4 --tiles $spread --steps 2 --check
done
must --size 8x8 --levels 5 --tiles 1x1 --steps 1 --check
must --size 40x24 --levels 5 --tiles 2x1 --steps 1 --check
# 6 rows at the top are 1 at the bottom, for 4 ranks: some have no points there
must --size 48x8 --levels 4 --tiles 4x1 --steps 1 --check

# own points equal the planner's to the byte because extents are even; with halos there are more
must --size 96x48 --ranks 2 --steps 60
awk '/^loss/ { first = $2; last = $4 } /^activations/ { own = $5; planned = $10 }
    /halos and padding/ { more = $1 } /^halos sent/ { halo = $(NF - 1) } /^rank 0/ { rate = $7 }
    END { exit !(first > 0.5 && last < 0.3 && own > 0 && own > 0.997 * planned &&
        own < 1.003 * planned && more > 0 && more < 0.2 * own && halo > 1 && rate > 0) }' \
    "$work/out" || { echo 'training, memory, halos or speed:'; cat "$work/out"; bad=1; }

refused() { # sentence, options...
    sentence=$1
    shift
    run "$@"
    [ $? -eq 2 ] && grep -q "$sentence" "$work/err" ||
        { echo "not refused with '$sentence': $*"; cat "$work/err"; bad=1; }
}
refused 'not 3 ranks' --ranks 3 --tiles 2x2
refused 'as 2x2, not' --tiles 2
refused '8 to 8192' --size 1440
refused 'even number' --channels 3
refused '2 to 5' --levels 9
refused 'unknown option' --color red
refused 'a value must follow' --steps
refused "twice: '--steps'" --steps 1 --check --steps 2
refused 'begin with --' 4
must --help
"$work/unet" --size 8x8 --levels 2 --ranks 1 --steps 1 > /dev/full 2> "$work/err"
[ $? -ne 0 ] && grep -q 'not be written' "$work/err" || { echo 'lost results, exit 0'; bad=1; }
exit $bad
