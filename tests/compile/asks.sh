#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Gives ordinary queries to the commands, built with the undefined-behaviour sanitizer: every model with
# machines in turn, schedules, grids. Each must exit with 0 or 1, or with 2 and one message on stderr; the
# sanitizer ends the program at the first misaligned access, overflow or bad shift. The queries are the same on
# every run. A push runs one in four of 1,200 (DPAR_PART), which takes two cores a minute; nightly runs 2,000
# (DPAR_ASKS). ASKS_SANITIZE=address,undefined finds reads behind an array as well; ASKS_SAY=FILE lists the
# queries and the results.
. tests/compile/common.sh
asks=${DPAR_ASKS:-$([ "${DPAR_PARTS_OF:-1}" -eq 1 ] && echo 2000 || echo 1200)}
sanitize=${ASKS_SANITIZE:-undefined,alignment}
printf 'int main(void) { return 0; }\n' > "$work/probe.c"
$CC -fsanitize="$sanitize" "$work/probe.c" -o "$work/probe" 2> /dev/null || { echo 'the sanitizers: not found'; exit 77; }
flags="-g1 -O1 -fsanitize=$sanitize -fno-sanitize-recover=all"
headers='dpar_cost dpar_schedule dpar_proof dpar_blocks dpar_comm dpar' # what these three commands include
library "$work/dpar.a" $CC $flags
build() { try $CC $flags -I"$DPAR_DIR" "commands/$1.c" "$work/dpar.a" -o "$work/$1" -lm; }
in_pairs build plan pipeline decompose
# doctor examines the machine and does not depend on the query: runs once, if nothing is left out
[ "${DPAR_PARTS_OF:-1}" -ne 1 ] || try $CC $flags $reached -I"$DPAR_DIR" commands/doctor.c -o "$work/doctor" -lm
# a finding is a signal, because the commands have an exit code 1 of their own
export UBSAN_OPTIONS=abort_on_error=1 ASAN_OPTIONS=abort_on_error=1 NO_COLOR=1

"$work/plan" --list > "$work/list"
"$work/pipeline" --list > "$work/schedules"
# Prints one query per line. A small linear congruence chooses, in whole numbers that every awk has.
awk -v asks="$asks" -v schedules="$work/schedules" '
function any(most) { seed = (seed * 16807) % 2147483647; return seed % most }
function one(words,    part, n) { n = split(words, part, " "); return part[1 + any(n)] }
function plan(k,    q) {
    q = "plan " model[k % models] " --cluster " machine[int(k / models + k) % machines]
    if (any(4)) { q = q " --gpus " one("1 2 4 8 16 24 32 48 64 96 128 256 512") }
    if (any(3) == 0) { q = q " --precision " precision[any(precisions)] }
    if (any(4) == 0) { q = q " --batch " one("1 8 32 64 96 128 512 1024") }
    if (any(8) == 0) { q = q " --stack " one("megatron core torch compiled core@2024 torchtitan nemo") }
    if (any(8) == 0) { q = q " --attention " one("unfused flash1 flash") }
    if (any(8) == 0) { q = q " --seq " one("512 2048 4096 16384") }
    k = any(10)
    if (k == 0) { return q " --recommend" }
    if (k == 1) { return q " --min-gpus" }
    if (k == 2) { return q " --explain --memory" }
    if (k == 3) { return q " --json" }
    if (k == 4) { return q " --fix " one("pp=2 pp=3 pp=4 pp=5 pp=8 tp=2 tp=4,pp=2 zero=3 cp=2 ep=2 recompute=full schedule=zb-h1,pp=4 schedule=zbv schedule=v-min schedule=dualpipe vp=2,pp=3") }
    if (k == 5) { return q " --evaluate " one("tp=1,pp=3,mbs=1,m=7 tp=2,pp=2,mbs=1,m=5 pp=5,mbs=2,m=11 tp=4,sp=1,mbs=1,m=4 zero=2,mbs=1,m=1") }
    if (k == 6) { return q " --top 20 --svg /dev/null --csv /dev/null" }
    return q
}
function pipeline(    q, p, m) {
    p = 1 + any(9); m = 1 + any(24)
    if (any(8) == 0) { return "pipeline --compare --stages " p " --micro " m " " one("--latency=0.2 --memory=4.5 --virtual=3") }
    q = "pipeline --schedule " schedule[any(count)] " --stages " p " --micro " m
    if (any(3) == 0) { q = q " --virtual " 1 + any(4) }
    if (any(3) == 0) { q = q " --latency " one("0.2 1 3.5") }
    if (any(4) == 0) { q = q " --fwd 2 --bwd-input 3 --bwd-weight 1.5" }
    if (any(5) == 0) { q = q " --bytes 1000 --bandwidth 7 --links " one("own pair rank") " --send " one("buffered async blocking") }
    if (any(6) == 0) { q = q " --transport " one("blocking rank dir pair edge eager") }
    return q " " one("--format=ascii --format=csv --format=svg --format=trace --format=json --lowered --shards")
}
function decompose(    q, dims) {
    q = "decompose " 1 + any(300)
    for (dims = any(4); dims > 0; dims--) { q = q "x" 1 + any(300) }
    q = q " " (any(2) ? 1 + any(20) "x" 1 + any(16) : machine[any(machines)]) " --halo " any(4)
    if (any(3) == 0) { q = q " --periodic 0" }
    if (any(3) == 0) { q = q " --box" }
    return q " " one("--bytes=1 --bytes=8 --bytes=40")
}
/^[a-zA-Z]*:/ { part = $1 }
/^  / && part == "models:" { model[models++] = $1 }
/^  / && part == "machines:" { machine[machines++] = $1 }
part == "precisions:" { for (i = 2; i <= NF; i++) { precision[precisions++] = $i } }
END {
    while ((getline name < schedules) > 0) { schedule[count++] = name }
    seed = 20240607
    for (k = 0; k < asks; k++) {
        kind = k % 10
        print kind == 3 || kind == 6 ? pipeline() : kind == 9 ? decompose() : plan(k)
    }
}' "$work/list" | awk -v of="${DPAR_PARTS_OF:-1}" -v part="${DPAR_PART:-0}" 'NR % of == part % of' > "$work/asks"
[ ! -x "$work/doctor" ] || echo doctor >> "$work/asks"

# every second query from the one with the given number
ask() {
    awk -v half="$1" 'NR % 2 == half' "$work/asks" | while read -r command words; do
        # shellcheck disable=SC2086
        timeout 300 "$work/$command" $words > "$work/out_$1" 2> "$work/err_$1" < /dev/null
        code=$?
        echo "$code" >> "$work/codes_$1"
        [ -z "$ASKS_SAY" ] || echo "$code $command $words: $(head -n 1 "$work/err_$1")" >> "$ASKS_SAY"
        case $code in
        0 | 1) ;;
        2) [ "$(wc -l < "$work/err_$1")" -eq 1 ] && [ ! -s "$work/out_$1" ] ;;
        *) false ;;
        esac || { echo "exit code $code: $command $words"; head -n 12 "$work/err_$1"; exit 1; }
    done
}
in_pairs ask 0 1
sort "$work"/codes_? | uniq -c | awk '{ print $1 " answers with exit code " $2; if ($2 == 0) { fine = $1 }; all += $1 }
    END { exit !(all > 0 && 2 * fine >= all) }' # most are answered, or these are no ordinary questions
