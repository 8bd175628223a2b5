#!/bin/sh
# SPDX-License-Identifier: MIT-0
# The programs over dpar.h: what they say, exit codes, one sentence for bad input.
: "${CC:=cc}" "${CFLAGS:=-O1}"
[ -e build/libdpar.a ] || make -s build/libdpar.a || exit 1
library=build/libdpar.a
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
version=$(awk '/^#define DPAR_VERSION_(MAJOR|MINOR|PATCH) / { v = v dot $3; dot = "." } END { print v }' dpar.h)
for name in apps/reshard commands/decompose; do
    $CC $CFLAGS -I. "$name.c" $library -o "$work/${name##*/}" || exit 1
done
bad=0
expect() { # exit code, words of the output, command...
    want=$1 words=$2
    shift 2
    (cd "$work" && "./$@") > "$work/out" 2> "$work/err"
    got=$?
    if [ $got -ne "$want" ] || ! grep -q -e "$words" "$work/out" "$work/err"; then
        echo "exit $got, expected $want and '$words': $*"; head -n 5 "$work/out" "$work/err"; bad=1
    elif [ "$want" -eq 2 ] && [ "$(wc -l < "$work/err")" -ne 1 ]; then
        echo "not one sentence on stderr: $*"; bad=1
    fi
}

expect 0 'every element is where it belongs' reshard --svg owners.svg
grep -q '</svg>' "$work/owners.svg" || { echo 'no picture'; bad=1; }
expect 0 '2328 boxes' reshard
ls "$work"/*.bin > /dev/null 2>&1 && { echo 'reshard leaves files'; bad=1; }
expect 0 'svg FILE' reshard --help
expect 2 'takes 1, 2, 4, 8 or 16' reshard --shrink 3
expect 2 'cannot be opened' reshard --dir /nonexistent
expect 2 'unknown option' reshard --bogus
# MPI_Dims_create's grid as MPICH 4.0.2 answers for 1024 in 3 dims
expect 0 'MPI_Dims_create   16 x 8 x 8 .* 151 MB' decompose 1440x720x100 64x16
expect 0 'best of all       32 x 16 x 2 .* 86.9 MB' decompose 1440x720x100 64x16
expect 0 'GRID' decompose --help
expect 0 'Exit code' decompose -h
expect 0 "^decompose, dpar $version\$" decompose --version
expect 2 '^usage: decompose GRID ' decompose
[ ! -s "$work/out" ] || { echo 'decompose: its usage is on stdout'; bad=1; }
expect 2 'at least 1' decompose 0x3 4x4
expect 2 'has at most 10 x 10 parts' decompose 10x10 100x100
expect 2 'unknown machine' decompose 10x10 nosuch
expect 2 'decompose:' decompose 10x10
expect 2 'decompose:' decompose 10x10 4x4 --halo -1
expect 2 'decompose:' decompose 10x10 4x4 --bytes 99999999999999999999
expect 2 "axis that the grid of 2 axes lacks, not '2'\$" decompose 10x10 4x4 --periodic 2
expect 2 "axis that the grid of 1 axis lacks, not '0,1'\$" decompose 10 4x4 --periodic 0,1
expect 2 'a whole number of 0 to 1000000000000000, not .-1' decompose 10x10 4x4 --halo -1
expect 2 'a whole number of 1 to 1000000000000000, not .0' decompose 10x10 4x4 --bytes 0
expect 2 'given twice' decompose 10x10 4x4 --halo 1 --halo 2
expect 2 'a halo of 11 is wider than the grid, 10 cells' decompose 10x10 4x4 --halo 11
expect 2 'unknown option' decompose 10x10 4x4 --foo
expect 0 '^PROVED for 1024 ranks: 16640 transfers of 11376000 points' decompose 1440x720x100 64x16 --box --periodic 0 --prove
expect 0 '^PROVED for 6 ranks: ' decompose 12x12 3x2 --prove --parts 3x2 --box --periodic 1 --fold 0,1 --poles 0,1 --halo 2
expect 2 'the product of --parts must be the ranks of the machine' decompose 10x10 2x2 --prove --parts 3x2
expect 2 "a number of parts for each axis, such as 8x4, not '4'" decompose 10x10 2x2 --prove --parts 4
expect 2 'parts, --fold and --poles need --prove' decompose 10x10 2x2 --parts 2x2
expect 2 "below 2 and with a comma between, not '0,2'" decompose 10x10 2x2 --prove --fold 0,2
expect 2 'mirror=0 must be a later, periodic dim' decompose 10x10 2x2 --prove --poles 1,0
# a name is the nearest only if it is near
expect 2 "unknown option; --help lists all: '--foo'\$" decompose 10x10 4x4 --foo
expect 2 "unknown option; the nearest is --halo, --help lists all: '--hallo'\$" decompose 10x10 4x4 --hallo 2
expect 2 "a grid is 1 to 6 numbers of at least 1, .*, not '-5x100'\$" decompose -5x100 4x4
expect 2 "unknown machine 'README.md'; plan --list shows all, or write" decompose 64x64 README.md
expect 2 "unknown machine 'deracho'; the nearest is 'derecho', or write" decompose 64x64 deracho
expect 2 "'nvlnk'; the nearest is 'nvlink'.*; plan --list shows all\$" decompose 64x64 4x4:a100-80,nvlnk=3
# too large: at once. Large: progress after 2 s
expect 2 '2147483647 ranks with 4 neighbours each take too long; at most 50000000 ranks' decompose 2147483647x3 1x2147483647
expect 2 '1000000 ranks with 728 neighbours each take too long' decompose 64x64x64x64x64x64 100000x10 --box
began=$(date +%s)
expect 0 '^MPI_Dims_create   2000 x 1250 ' decompose 1000000x1000000 625000x4
# A machine that needs less than 2 s shows no progress.
[ $(($(date +%s) - began)) -lt 4 ] || grep -q '^decompose: [0-9]* % of the placements compared, 2 s$' "$work/err" || { echo 'decompose: no progress after 2 s'; bad=1; }
expect 0 '^grid 64 x 64, 1 rank on 1 node of 1, ' decompose 64x64 1x1
# steps between exchanges: 2 messages of 2 us and 65536 / 8 cells of 1 ns; 1 rank has nothing to save
expect 0 '^       3        3        9.851  fastest$' decompose 256x256 4x2 --step-time 1
expect 0 '^       1        1        0.000  fastest$' decompose 64x64 1x1 --step-time 0
expect 2 'a number of 0 to 1000000000, not .-1' decompose 64x64 1x1 --step-time -1
# six axes: each column ends where its heading does
expect 0 '^best of all       1 x 1 x 2 x 2 x 2 x 2 in order  ' decompose 4x4x4x4x4x4 4x4
awk 'NR == 3 { head = length($0) } NR > 3 && length($0) != head { exit 1 }' "$work/out" ||
    { echo 'decompose: its columns are not aligned:'; cat "$work/out"; bad=1; }
expect 2 "nodes x ranks on each, both at least 1, such as 16x4, not '0x4'" decompose 10x10 0x4
expect 2 "such as 16x4, not '4'" decompose 10x10 4
expect 2 "names an axis twice: '0,0'" decompose 10x10 4x4 --periodic 0,0
# many blocks per rank. The mask: 4 rows of 6 cells, of which the left third is land
printf '001111\n001111\n001111\n001111\n' > "$work/ocean.txt"
printf 'P2\n# rows\n6 4 9\n0 0 9 9 9 1 0 0 9 9 9 1 0 0 9 9 9 1 0 0 9 9 9 1\n' > "$work/ocean.pgm"
printf 'P5 6 4 255\n\0\0\1\1\1\1\0\0\1\1\1\1\0\0\1\1\1\1\0\0\1\1\1\1' > "$work/binary.pgm"
printf 'P5 6 4 256\n\0\0\0\0\0\1\0\1\1\0\0\1\0\0\0\0\0\1\0\1\1\0\0\1\0\0\0\0\0\1\0\1\1\0\0\1\0\0\0\0\0\1\0\1\1\0\0\1' > "$work/wide.pgm"
for mask in ocean.txt ocean.pgm binary.pgm wide.pgm; do
    expect 0 '^4 of 6 blocks have an owner; they hold 66.7 % of the cells$' decompose 4x6 1x4 --blocks 2x2 --mask $mask --draw --svg blocks.svg
    expect 0 '^hilbert        1.000            1 to 1            2.0 (2)    128 B      32 B' decompose 4x6 1x4 --blocks 2x2 --mask $mask
    expect 0 '^\.DC$' decompose 4x6 1x4 --blocks 2x2 --mask $mask --draw
    expect 0 '^\.CD$' decompose 4x6 1x4 --blocks 2x2 --mask $mask --draw --order rows
done
grep -q '<title>rank 3</title></rect>' "$work/blocks.svg" && grep -q '</svg>' "$work/blocks.svg" || { echo 'decompose: no picture of owners'; bad=1; }
expect 0 '^4 of 6 blocks have an owner; they hold 66.7 % of the cells$' decompose 5x4x6 1x4 --blocks 5x2x2 --mask ocean.txt
expect 0 '^4 of 6 blocks have an owner; they hold 66.7 % of the cells$' decompose 4x6x5 1x4 --blocks 2x2x9 --mask ocean.txt
printf '000000\n000000\n000000\n000000\n' > "$work/land.txt"
expect 2 "no block exists" decompose 4x6 1x4 --blocks 2x2 --mask land.txt
expect 0 '^rows  ' decompose 100 1x4 --blocks 7
expect 0 '^2 ranks have no block$' decompose 4 1x4 --blocks 2
expect 2 "such as 36x36 for a grid of 2 axes, not '2'" decompose 4x6 1x4 --blocks 2
expect 2 "such as 36x36 for a grid of 2 axes, not '2x0'" decompose 4x6 1x4 --blocks 2x0
expect 2 '2^31 - 1 blocks' decompose 100000x100000 1x4 --blocks 1x1
expect 2 "order is hilbert, morton, rows, snake or bisection, not 'peano'" decompose 4x6 1x4 --blocks 2x2 --order peano
expect 2 'need --blocks' decompose 4x6 1x4 --order rows
expect 2 'box does not go with --blocks' decompose 4x6 1x4 --blocks 2x2 --box
expect 2 'do not go with --blocks' decompose 4x6 1x4 --blocks 2x2 --prove
expect 2 "mask 'none.txt': No such file" decompose 4x6 1x4 --blocks 2x2 --mask none.txt
expect 2 'it has 4 x 6 cells, which are neither the last nor the first two axes' decompose 4x7 1x4 --blocks 2x2 --mask ocean.txt
expect 2 'neither the last nor the first two axes' decompose 24 1x4 --blocks 2 --mask ocean.txt
printf '0011\n01 01\n\n000\n' > "$work/bad.txt"
expect 2 "mask 'bad.txt': line 4 has 3 cells, but lines above have 4" decompose 4x6 1x4 --blocks 2x2 --mask bad.txt
printf '0011\n0121\n' > "$work/bad.txt"
expect 2 'line 2 has more than 0 and 1, and the file is no PGM' decompose 4x6 1x4 --blocks 2x2 --mask bad.txt
for text in 'P5 1 1 9' 'P2 6 4 9\n0 0 9' 'P5 6 4 9\n000' 'P5 6 4 9' 'P5 2147483647 2147483647 9\n000'; do
    printf "$text" > "$work/bad.pgm"
    expect 2 'has fewer cells than width x height' decompose 4x6 1x4 --blocks 2x2 --mask bad.pgm
done
printf 'P2 6 4' > "$work/bad.pgm"
expect 2 'a PGM begins with P2 or P5, its width' decompose 4x6 1x4 --blocks 2x2 --mask bad.pgm
: > "$work/bad.txt"
expect 2 'it is empty' decompose 4x6 1x4 --blocks 2x2 --mask bad.txt
expect 2 'picture cannot be written to' decompose 4x6 1x4 --blocks 2x2 --svg none/x.svg
expect 2 'given twice' reshard --shrink 8 --shrink 16
expect 2 'a value must follow' reshard --svg --keep
[ ! -e "$work/--keep" ] || { echo 'a file --keep'; bad=1; }
if [ -c /dev/full ]; then
    for line in 'decompose 10x10 4x4' 'decompose --help' 'decompose --version' 'reshard' 'reshard --help'; do
        (cd "$work" && ./$line) > /dev/full 2> "$work/err"
        [ $? -eq 2 ] && grep -q 'cannot be written' "$work/err" || { echo "a full disk goes unseen: $line"; bad=1; }
    done
fi
exit $bad
