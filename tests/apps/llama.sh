#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests apps/llama.c: the tokens of random models are those of the reference (llama_plain.c, f64 and without a
# cache) on 1 to 5 ranks, also if heads, groups, units or tokens do not divide by the ranks; each --check agrees;
# text of a tokenizer; refusal of bad files and options. Where an MPI compiler is installed, also over MPI.
: "${CC:=cc}" "${CFLAGS:=-O2}"
[ -e build/libdpar.a ] || make -s build/libdpar.a || exit 1
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for kind in openmpi mpich; do
    ! command -v mpicc.$kind > /dev/null || mpicc.$kind $CFLAGS -DUSE_MPI -DDPAR_MPI_IMPLEMENTATION -I. apps/llama.c \
        build/libdpar.a -o "$work/$kind" -lm || exit 1
done
$CC $CFLAGS -Wall -Wextra -Werror -I. apps/llama.c build/libdpar.a -o "$work/llama" -lm || exit 1
$CC $CFLAGS -Wall -Wextra -Werror tests/apps/llama_plain.c -o "$work/plain" -lm || exit 1
bad=0
complain() { echo "$*"; head -n 8 "$work/out" "$work/err"; bad=1; }

# same COMMAND...: checks that a run prints the tokens in $work/tokens, and that --check finds no difference
same() {
    timeout 100 "$@" --check > "$work/out" 2> "$work/err" || { complain "failed: $*"; return; }
    sed -n 3p "$work/out" | cmp -s - "$work/tokens" || complain "other tokens than the reference: $*"
    grep -q "^$(wc -w < "$work/tokens") of .* equal" "$work/out" || complain "nothing compared: $*"
}
while read -r model; do
    file=$work/model.bin
    "$work/llama" $model --write "$file" > "$work/out" 2> "$work/err" || complain "not written: $model"
    "$work/plain" "$file" > "$work/tokens" || { echo "no reference: $model"; exit 1; }
    [ "$(tr ' ' '\n' < "$work/tokens" | sort -u | wc -l)" -gt 2 ] || complain "always the same tokens: $model"
    for n in 1 2 3 4 5; do
        same "$work/llama" --ranks $n "$file"
    done
    same "$work/llama" --ranks 2 $model
done << 'M'
--width 48 --hidden 128 --layers 2 --heads 4 --vocab 256 --length 24
--width 48 --hidden 101 --layers 3 --heads 6 --vocab 301 --length 24 --seed 2
--width 40 --hidden 67 --layers 2 --heads 4 --groups 1 --vocab 129 --length 24 --seed 6
--width 20 --hidden 3 --layers 2 --heads 2 --vocab 5 --length 24 --seed 5
--width 48 --hidden 100 --layers 2 --heads 6 --groups 2 --vocab 301 --length 24 --untied --seed 3
M
for kind in openmpi mpich; do
    command -v mpicc.$kind > /dev/null || continue
    more=
    [ $kind = mpich ] || more='--oversubscribe --mca mpi_yield_when_idle 1'
    for n in 1 2 3; do
        same mpiexec.$kind $more -np $n "$work/$kind" "$file"
    done
    echo "over $kind: 1 to 3 ranks"
done

# a prompt is followed as if the model had written it; fewer steps give the first tokens
"$work/llama" --ranks 3 "$file" --steps 9 > "$work/out" 2> "$work/err" || complain 'fewer steps'
[ "$(sed -n 3p "$work/out")" = "$(cut -d ' ' -f 1-10 "$work/tokens")" ] || complain 'other first tokens'
prompt=$(cut -d ' ' -f 1-5 "$work/tokens" | tr ' ' ,)
same "$work/llama" --ranks 2 "$file" --prompt "$prompt"
"$work/llama" --ranks 2 "$file" --prompt 1,7,300,0 --check > "$work/out" 2> "$work/err" || complain 'a prompt'
sed -n 3p "$work/out" | grep -q '^1 7 300 0 ' || complain 'another prompt'

# a tokenizer of five words, the last of which is a byte: 33 is an exclamation mark
small='--width 20 --hidden 3 --layers 2 --heads 2 --vocab 5 --length 24 --seed 5'
printf '\6\0\0\0''\0\0\0\0\1\0\0\0u''\0\0\0\0\3\0\0\0<s>''\0\0\0\0\2\0\0\0 a''\0\0\0\0\2\0\0\0bc''\0\0\0\0\6\0\0\0<0x21>' \
    > "$work/five.bin"
"$work/llama" $small --prompt 1,2,3,4,2,0 --tokenizer "$work/five.bin" --steps 6 > "$work/out" 2> "$work/err" ||
    complain 'a tokenizer'
sed -n 3p "$work/out" | grep -q '^abc! au' || complain 'other text'

# refused CODE WORDS OPTIONS...: checks the exit code, and that stderr has one line with WORDS
refused() {
    code=$1 words=$2
    shift 2
    for n in 1 3; do
        "$work/llama" --ranks $n "$@" > "$work/out" 2> "$work/err"
        got=$?
        { [ $got -eq "$code" ] && grep -q -e "$words" "$work/err" && [ "$(wc -l < "$work/err")" -eq 1 ]; } ||
            complain "exit $got, expected $code and '$words': --ranks $n $*"
    done
}
# changed OFFSET BYTES: copies the file with other bytes at an offset (as printf writes them)
changed() {
    { head -c "$1" "$file"; printf "$2"; tail -c +$(($1 + 5)) "$file"; } > "$work/changed"
}
bytes=$(wc -c < "$file")
head -c 20 "$file" > "$work/header"
head -c $((bytes - 4)) "$file" > "$work/cut"
{ cat "$file"; printf xxxx; } > "$work/more"
refused 2 'has 20 bytes, but a header has 28' "$work/header"
: > "$work/empty"
refused 2 'has 0 bytes' "$work/empty"
refused 2 "has $((bytes - 4)) bytes, but its header describes $bytes" "$work/cut"
refused 2 "has $((bytes + 4)) bytes, but its header describes $bytes" "$work/more"
changed 0 '24ka'
refused 2 'in version [0-9]* of the format' "$work/changed"
changed 0 '\377\377\377\377'
refused 2 'width is -1, but must be 1 to' "$work/changed"
changed 8 '\0\0\0\0'
refused 2 'layers is 0, but must be 1 to 1000' "$work/changed"
changed 12 '\5\0\0\0'
refused 2 'heads 5' "$work/changed"
changed 16 '\0\0\0\200'
refused 2 'groups is -2147483648' "$work/changed"
changed 20 '\0\0\0\200'
refused 2 'vocab is -2147483648' "$work/changed"
changed 24 '\377\377\377\177'
refused 2 'length is 2147483647' "$work/changed"
refused 2 "cannot be read: '$work/none'" "$work/none"
refused 2 'cannot be read' "$work"
refused 2 'width is' README.md
refused 2 'groups must divide heads' --groups 4
refused 2 'must be an even number' --width 30 --heads 10
refused 2 'a file is named' "$file" --vocab 9
refused 2 'a file is named' "$file" --write "$work/again"
refused 2 'cannot be written' $small --write "$work/none/here"
refused 2 'more than the length' $small --steps 25
refused 2 "needs numbers of 0 to 4 .*, not '5'" $small --prompt 1,5
refused 2 "not ',2'" $small --prompt ,2
refused 2 'more tokens than' $small --prompt 1,2,3 --steps 2
refused 2 'no tokenizer' $small --tokenizer README.md
refused 2 'too many arguments' "$file" "$file"
refused 2 'unknown option' --color red
changed 32 '\0\0\300\177'
refused 2 'logits are not finite' "$work/changed" --prompt 0
[ "$("$work/llama" --ranks 3 --help | grep -c -e --tokenizer)" -ge 2 ] || { echo 'no help'; bad=1; }
if [ -c /dev/full ]; then
    "$work/llama" $small > /dev/full 2> "$work/err" && complain 'a full disk is no error'
fi
exit $bad
