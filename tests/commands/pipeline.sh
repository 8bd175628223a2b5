#!/bin/sh
# SPDX-License-Identifier: MIT-0
# The command line of schedules: figures of tests/data/pipeline/metrics.tsv, exit codes, one sentence
# for bad input, JSON and XML that parse.
: "${CC:=cc}" "${CFLAGS:=-O1}"
[ -e build/libdpar.a ] || make -s build/libdpar.a || exit 1
library=build/libdpar.a
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
$CC $CFLAGS -I. commands/pipeline.c $library -o "$work/pipeline" || exit 1
version=$(awk '/^#define DPAR_VERSION_(MAJOR|MINOR|PATCH) / { v = v dot $3; dot = "." } END { print v }' dpar.h)
data=tests/data/pipeline
bad=0
expect() { # exit code, words of the output, options...
    want=$1 words=$2
    shift 2
    "$work/pipeline" "$@" > "$work/out" 2> "$work/err"
    got=$?
    if [ $got -ne "$want" ] || ! grep -q -e "$words" "$work/out" "$work/err"; then
        echo "exit $got, expected $want and '$words': $*"; head -n 5 "$work/out" "$work/err"; bad=1
    elif [ "$want" -eq 2 ] && [ "$(wc -l < "$work/err")" -ne 1 ]; then
        echo "not one sentence on stderr: $*"; bad=1
    fi
}
parses() { # JSON on stdout, where there is somebody to read it
    expect 0 '"' "$@"
    command -v python3 > /dev/null || return
    python3 -m json.tool < "$work/out" > /dev/null || { echo "no JSON: $*"; bad=1; }
}

# every reference list: makespan, span, and with a latency of 1/4, as in metrics.tsv
awk -F '\t' 'NR > 1 { n = split($7, a, "/"); peak = 0
    for (i = 1; i <= n; i++) if (a[i] + 0 > peak) peak = a[i] + 0
    print $1, $5, $8, $9, peak }' $data/metrics.tsv > "$work/metrics"
while read -r file makespan span late peak; do
    case $file in
    chimera*|dualpipe*) more='--chain 4' ;;
    seq1f1b*) more='--slices 2' ;;
    *) more= ;;
    esac
    expect 0 "^ok .*makespan $makespan, span $span, .* at most $peak activations*" --check $data/$file $more
    expect 0 "^ok .*makespan $late," --check $data/$file $more --latency 0.25
done < "$work/metrics"
[ "$(wc -l < "$work/metrics")" -ge 20 ] || { echo 'metrics.tsv: too few lines'; bad=1; }

# the list that hangs over one channel a pair, with the two stuck actions (PyTorch issue #172668)
stuck=$data/pt_interleaved_p2_v2_m4_recv_late_DEADLOCK.csv
expect 1 'pair: rank 0 at 0SEND_F1 .* rank 1 at 1SEND_F0' --check $stuck --transport pair
# the time is that of the transport: one queue a rank, messages in PyTorch's order and in that of the data
# (figures of pytorch issues 188833 and 172668, and of tests/schedule/queues.c)
while read -r ranks chunks micros turns data; do
    expect 0 "^makespan $turns," --schedule interleaved --stages "$ranks" --virtual "$chunks" --micro "$micros" \
        --transport rank --order turns
    expect 0 "^makespan $data," --schedule interleaved --stages "$ranks" --virtual "$chunks" --micro "$micros" \
        --transport rank
    "$work/pipeline" --schedule interleaved --stages "$ranks" --virtual "$chunks" --micro "$micros" --order turns \
        --format csv --lowered -o "$work/turns.csv"
    expect 0 "^ok .*makespan $turns,.*no deadlock over rank" --check "$work/turns.csv" --transport rank
    expect 0 "^ok .*makespan $data,.*no deadlock over edge" --check "$work/turns.csv" --transport edge
done << 'E'
8 2 16 168 117
8 4 16 360 213
16 2 32 467 237
E
expect 2 'already has messages' --check "$work/turns.csv" --order data
expect 2 'takes data or turns' --schedule 1f1b --stages 4 --micro 8 --order random
expect 0 'no deadlock over edge' --check $stuck --transport edge
expect 0 'no deadlock over eager' --check $stuck --transport eager --room 2
printf '0F0,0B0x\n' > "$work/bad.csv"
expect 1 'line 1, column 8' --check "$work/bad.csv"
printf '0B0,0F0\n' > "$work/bad.csv"
expect 1 'pipeline:' --check "$work/bad.csv"
printf '' > "$work/empty.csv"
expect 1 'a schedule has 1 or more of each' --check "$work/empty.csv"
expect 2 'cannot be read' --check "$work/missing.csv"

# the head of the example says what it prints
sed -n '/^ \*   zb-h1$/,/^ \*$/s/^ \*   //p' commands/pipeline.c > "$work/head"
"$work/pipeline" --schedule zb-h1 --stages 4 --micro 8 | cmp - "$work/head" || bad=1

# what is written reads back as the same schedule
for name in $("$work/pipeline" --list); do
    more='' chain=''
    case $name in
    interleaved*|breadth-first) more='--virtual 2' ;;
    dualpipe|chimera) chain='--chain 4' ;;
    seq1f1b) chain='--slices 2' ;;
    esac
    for form in '' --lowered; do
        "$work/pipeline" --schedule $name --stages 4 --micro 8 $more --format csv $form > "$work/list.csv"
        "$work/pipeline" --schedule $name --stages 4 --micro 8 $more | sed -n 's/^makespan \([0-9.]*\),.*/\1/p' > "$work/is"
        expect 0 "makespan $(cat "$work/is")," --check "$work/list.csv" $chain
    done
    parses --schedule $name --stages 4 --micro 8 $more --format json
    parses --schedule $name --stages 4 --micro 8 $more --format trace --latency 0.5
    expect 0 '</svg>' --schedule $name --stages 4 --micro 8 $more --format svg --latency 0.5
    if command -v python3 > /dev/null; then
        python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$work/out" || bad=1
    fi
done

# the seed table: GPipe, F = 1, B = 2: 3 (m + p - 1)
for p in 2 4 8; do
    for m in 4 8 16 32 64; do
        expect 0 "makespan $((3 * (m + p - 1)))," --schedule gpipe --stages $p --micro $m --bwd 2
    done
done

# the README's and the facts' figures for 8 ranks, 32 micro-batches, a latency of 0.2
expect 0 '1 auto on a V  *106.1 ' --compare --stages 8 --micro 32 --latency 0.2 --memory 9 --virtual 4
head -n 2 "$work/out" > "$work/first"
grep -q '^best: auto on a V: makespan 106.1, 9.5 % idle, 8 activations per rank$' "$work/first" &&
    grep -q '^why:  zbv takes as long; ' "$work/first" || { echo 'it does not open with the winner'; cat "$work/first"; bad=1; }
for line in 'zbv  *106.1 ' 'interleaved-zb v=2  *106.7 ' 'zb-h1  *108.6 ' 'v-half  *114.1 ' \
    'dualpipev  *118.9 ' '1f1b  *130.6 ' 'v-min  *147.1 ' 'gpipe  *does not fit: rank 0 holds 32 '; do
    grep -q " $line" "$work/out" || { echo "--compare lacks '$line'"; bad=1; }
done
parses --compare --stages 3 --micro 7 --format json
expect 0 'dualpipe .*not legal: ' --compare --stages 3 --micro 7
expect 1 'does not fit' --compare --stages 4 --micro 8 --memory 0.1

expect 0 '"simulated": 33, "applies": true, "value": 33' --schedule 1f1b --stages 4 --micro 8 --format json
expect 0 '"applies": false, "why"' --schedule interleaved --stages 4 --micro 3 --format json
expect 0 '"makespan": 8.25' --schedule 1f1b --stages 4 --micro 8 --fwd 0.25 --bwd 0.5 --format json
expect 0 'makespan 27.000008,' --schedule zb-h1 --stages 4 --micro 8 --fwd 1,1,1,1.000001
expect 1 'rank 0 holds 8 activations, the cap is 7.5' --schedule gpipe --stages 4 --micro 8 --memory 7.5
expect 0 'at most 2 2 2 2' --schedule auto --stages 4 --micro 8 --memory 2
expect 1 'not even one activation' --schedule auto --stages 4 --micro 8 --memory 0.5
printf '# F I W\n1 1 1\n2 1.5 1\n' > "$work/times"
expect 0 'makespan' --schedule zb-h1 --stages 2 --micro 4 --stage-times "$work/times"
expect 2 'three numbers' --schedule zb-h1 --stages 2 --micro 4 --stage-times $stuck
expect 0 'blocking' --help
expect 0 'Exit code' -h
expect 0 "^pipeline, dpar $version\$" --version
expect 2 '^usage: pipeline --schedule '
[ ! -s "$work/out" ] || { echo 'pipeline: its usage is on stdout'; bad=1; }
expect 0 'F0F1' --schedule 1f1b --stages 2 --micro 4 --svg "$work/x.svg"
grep -q '</svg>' "$work/x.svg" || { echo 'no picture'; bad=1; }
head -n 1 "$work/out" | grep -qF "picture: $work/x.svg" || { echo 'it does not open with the picture'; bad=1; }
expect 0 '>11.5 % idle<' --schedule zbv --stages 4 --micro 8 --latency 0.25 --format svg # 1 - 48 / 54.25
expect 2 'cannot be written' --schedule 1f1b --stages 2 --micro 4 -o /nonexistent/x
for value in nan -1 0.1234567 1e3 '' 1,2 1, 1000001 99999999999999999999; do
    expect 2 'pipeline:' --schedule 1f1b --stages 4 --micro 8 --fwd "$value"
done
printf '1 2 3 1 2 3\n1 2 3\n' > "$work/times"
expect 2 'three numbers and no more' --schedule gpipe --stages 2 --micro 2 --stage-times "$work/times"
: > "$work/times"
expect 2 'has no times' --schedule gpipe --stages 2 --micro 2 --stage-times "$work/times"
expect 2 'at most 65536' --compare --stages 2 --micro 1 --virtual 64 --slices 65535
expect 1 'no schedule is legal and fits' --compare --stages 3 --micro 7 --memory 0
expect 2 'unknown option' --schedule 1f1b --stages 4 --micro 8 --bogus 1
expect 2 'a value must follow' --schedule 1f1b --stages 4 --micro
expect 2 'whole number of 1 to 65535' --schedule 1f1b --stages 0 --micro 8
expect 2 'are needed' --schedule 1f1b
expect 2 'is needed' --stages 4 --micro 8
expect 2 'an even number of micro-batches' --schedule dualpipe --stages 4 --micro 7
only='^pipeline: only one of --schedule, --compare and --check may be given: you gave'
expect 2 "$only --schedule and --compare\$" --schedule 1f1b --compare --stages 4 --micro 8
expect 2 "$only --compare and --check\$" --compare --check $stuck
expect 2 "$only all three\$" --compare --check $stuck --schedule 1f1b
# how much memory is missing, where a limit can be set (not with an address sanitizer)
if (ulimit -v 4000000 && "$work/pipeline" --version) > "$work/out" 2>&1; then
    (ulimit -v 4000000; "$work/pipeline" --schedule 1f1b --stages 65535 --micro 65535) > "$work/out" 2> "$work/err"
    [ $? -eq 2 ] && grep -q '^pipeline: not enough memory: 68.7 GB are needed at once$' "$work/err" ||
        { echo 'it does not say how much memory is missing:'; cat "$work/err"; bad=1; }
fi
expect 2 "no schedule 'foo'" --schedule foo --stages 4 --micro 7
# what it knows, in the order of --list, whatever else is missing
expect 2 "^pipeline: --schedule: no schedule 'foo'; there are $("$work/pipeline" --list | paste -sd , | sed 's/,/, /g')\$" --schedule foo
printf '0F0,0B0\n' > "$work/one.csv"
expect 0 '^ok 1 rank, 1 stage, 1 micro-batch, .* at most 1 activation;' --check "$work/one.csv"
expect 2 'takes blocking' --check $stuck --transport tcp
expect 2 'prints ascii or json' --compare --stages 4 --micro 8 --format svg

# maps: 1f1b backwards through the ranks, V's by rank, gpipe and forward-only anyhow
expect 0 'at most 1 2 3 4; no closed form: .*own map' --schedule 1f1b --stages 4 --micro 8 --map 3,2,1,0
grep -q 'makespan 33,' "$work/out" || { echo 'another makespan with --map'; bad=1; } # (m + p - 1) 3
# all on one rank: 2 stages x 2 micro-batches x (F + B), with nobody to send to
expect 0 'makespan 12,' --schedule gpipe --stages 2 --micro 2 --map 0,0 --send async
expect 0 'makespan 25, span 24' --schedule zbv --stages 2 --micro 4 --map 1,0,0,1 # 6 m F + (p - 1) F
expect 0 'makespan 25, span 24' --schedule auto --stages 2 --micro 4 --map 0,1,1,0 # so
expect 0 '2 ranks, 6 stages' --schedule forward-only --stages 2 --micro 4 --map 0,1,1,0,0,1
# one micro-batch of all its layers: two activations on the rank that has two stages
expect 0 'at most 2 1' --schedule auto --stages 2 --micro 4 --map 0,0,1 --memory 1
expect 2 '^pipeline: 1f1b: --map gives rank 0 the stages of two ranks' --schedule 1f1b --stages 4 --micro 8 --map 0,0,1,1
expect 2 'the rule needs it with stage 0' --schedule interleaved --stages 2 --micro 4 --map 0,1,1,0
expect 2 'has 3 stages, but the schedule has 4' --schedule 1f1b --stages 4 --micro 8 --map 0,1,2
expect 2 '^pipeline: auto: --map has 3 stages for 4 ranks: each rank' --schedule auto --stages 4 --micro 8 --map 0,1,2
expect 2 '^pipeline: auto: --map puts no stage on rank 1: each rank' --schedule auto --stages 4 --micro 8 --map 0,0,2,3
for name in auto gpipe; do
    expect 2 '4, but there are only 4 ranks' --schedule $name --stages 4 --micro 8 --map 0,1,2,4
done
for value in x -1 0, 0,,1 0,99999 V ''; do
    expect 2 '--map' --schedule auto --stages 2 --micro 2 --map "$value"
done

# latency of an edge: 4 (F + B) + 2 (1 + 2 + 3), with or without a number behind the last stage
for late in 1,2,3 1,2,3,9; do
    expect 0 'makespan 24,' --schedule gpipe --stages 4 --micro 1 --bwd 2 --latency $late
done
expect 2 'latency has 2 numbers, but the schedule has 4 stages' --schedule gpipe --stages 4 --micro 1 --latency 1,2

# 2 (F + B) + 2 N / B, where 1 / 3 is rounded up; edges of 3 and 1 bytes: 3 (F + B) + 2 (3 + 1) / 4;
# the most of all: 6 + 2 x 2^40 / 10^6
expect 0 'makespan 7.5,' --schedule gpipe --stages 2 --micro 1 --bytes 3 --bandwidth 4
expect 0 'makespan 30,' --schedule gpipe --stages 2 --micro 1 --bytes 3 --bandwidth 0.25
expect 0 'makespan 6.666668,' --schedule gpipe --stages 2 --micro 1 --bytes 1 --bandwidth 3
expect 0 'makespan 11,' --schedule gpipe --stages 3 --micro 1 --bytes 3,1 --bandwidth 4
expect 0 'makespan 2199029.255552,' --schedule gpipe --stages 2 --micro 1 --bytes 1099511627776 --bandwidth 1000000
# three messages of 4 over ranks 0 1 0 2, F = 1. Own wires: at rank 2 from 11 + 4, 12 + 4, 13 + 4 on.
# Of pairs: rank 0's to 1 are there at 5, 9, 13, back at 10, 14, 18, on rank 2 at 15, 19, 23. Of
# ranks: 0's to 2 wait until those to 1 are over, at 13: 17, 21, 25. Then one F
for want in 'own 18' 'pair 24' 'rank 26'; do
    expect 0 "makespan ${want#* }," --schedule forward-only --stages 3 --micro 3 --map 0,1,0,2 --bytes 4 --bandwidth 1 --links ${want% *}
done
# slices of 1/2 have messages of 1/2: (m s + p - 1) (F + B) / 2 = 4.5, and 2 x 1/2 for the way
expect 0 'seq1f1b  *5.5 ' --compare --stages 2 --micro 1 --bytes 1 --bandwidth 1
expect 2 'must be given together' --schedule gpipe --stages 2 --micro 1 --bytes 3
expect 2 'must be given together' --schedule gpipe --stages 2 --micro 1 --bandwidth 3
expect 2 'more than 0' --schedule gpipe --stages 2 --micro 1 --bytes 3 --bandwidth 0
expect 2 'needs --bytes' --schedule gpipe --stages 2 --micro 1 --links pair
expect 2 'send buffered' --schedule gpipe --stages 2 --micro 1 --bytes 3 --bandwidth 4 --links pair --send async
# '=' before a value is as good as a blank
expect 0 'gpipe' --schedule=gpipe --stages=2 --micro=1 --bytes=2 --bandwidth=1
expect 2 "takes own, pair or rank, not 'bus'" --schedule gpipe --stages 2 --micro 1 --links bus
expect 2 'bytes has 3 numbers' --schedule gpipe --stages 2 --micro 1 --bytes 3,1,1 --bandwidth 4
expect 2 'must follow' --schedule gpipe --stages 2 --micro 1 --bytes '' --bandwidth 4
for value in -1 1.5 1099511627777 1, x; do
    expect 2 'whole numbers of 0 to 2^40' --schedule gpipe --stages 2 --micro 1 --bytes "$value" --bandwidth 4
done

# bytes. 1f1b: p - r activations of 10. zb-h1: rank r holds p - r of 10 and r of 6, whose W is yet to
# come (see its chart at the head of the example)
expect 0 'bytes at most 40 30 20 10' --schedule 1f1b --stages 4 --micro 8 --hold 10,-4,-6
expect 0 'bytes at most 40 36 32 28' --schedule zb-h1 --stages 4 --micro 8 --hold 10,-4,-6
expect 1 'rank 0 holds 40 bytes, the cap is 39' --schedule zb-h1 --stages 4 --micro 8 --hold 10,-4,-6 --memory 39
expect 0 'bytes at most 20 ' --schedule auto --stages 4 --micro 8 --hold 10,-4,-6 --memory 20
printf '0F0,0F1,0B0,0B1\n' > "$work/two.csv"
expect 0 'at most 2 activations, 20 bytes;' --check "$work/two.csv" --hold 10,-4,-6
# --compare: of V chunks each holds a V-th; interleaved v = 2: (v - 1) p + 2 (p - 1) + 1 = 11 of 5
expect 0 'interleaved v=2 .* 55$' --compare --stages 4 --micro 8 --hold 10,-4,-6
parses --compare --stages 4 --micro 8 --hold 10,-4,-6 --format json
parses --schedule 1f1b --stages 4 --micro 8 --hold 10,-4,-6 --format json
for line in '^  "peak_activations": 4, "peak_full_stage": 4, "peak_bytes": 40,$' \
    '^     "peak_activations": 1, "peak_full_stage": 1, "peak_bytes": 10,$' \
    '^  "slots": {"receive": [0-9]*, "send": [0-9]*, "activation": 4, "weight": 0},$'; do
    grep -q "$line" "$work/out" || { echo "json lacks '$line'"; bad=1; }
done
expect 0 '"peak_bytes": null' --schedule 1f1b --stages 4 --micro 8 --format json
for value in 10 10,-4 10,-4,-6,0; do
    expect 2 'three numbers' --schedule 1f1b --stages 4 --micro 8 --hold "$value"
done
expect 2 'whole numbers of -2^40' --schedule 1f1b --stages 4 --micro 8 --hold 10,-4,0.5
expect 2 'whole numbers of 0' --schedule 1f1b --stages 4 --micro 8 --hold 10,-4,-6 --memory 4.5

# what does not apply is refused
for more in '--stages 4' '--micro 8' '--virtual 2' '--group 4' '--lifo' '--map v' '--whole' '--nodes 1' \
    '--objective span'; do
    expect 2 'does not apply to --check' --check $stuck $more
done
for more in '--chain 2' '--whole' '--nodes 1' '--objective span'; do
    expect 2 'does not apply to --schedule 1f1b' --schedule 1f1b --stages 4 --micro 8 $more
done
for more in '--chain 2' '--group 4' '--slices 2' '--lifo'; do
    expect 2 'does not apply to --schedule auto' --schedule auto --stages 4 --micro 8 $more
done
for more in '--chain 2' '--map v' '--lowered' '--shards' "--svg $work/x.svg" '--width 90'; do
    expect 2 'does not apply to --compare' --compare --stages 4 --micro 8 $more
done
expect 2 'are for auto' --schedule 1f1b --stages 4 --micro 8 --map v
expect 2 'has no groups' --schedule gpipe --stages 4 --micro 8 --group 4
expect 2 '^pipeline: 1f1b: --slices 2; seq1f1b allows 1 or more' --schedule 1f1b --stages 4 --micro 8 --slices 2
expect 2 '^pipeline: 1f1b: --lifo: gpipe allows it, the other rules do not$' --schedule 1f1b --stages 4 --micro 8 --lifo
expect 2 '^pipeline: gpipe: --virtual 2; gpipe allows 1 per rank' --schedule gpipe --stages 4 --micro 8 --virtual 2
expect 2 'already given by --map' --schedule auto --stages 2 --micro 8 --virtual 2 --map 0,1,1,0
expect 2 'needs --transport eager' --schedule 1f1b --stages 4 --micro 8 --room 2 --transport pair
expect 2 '^pipeline: --overlap: does not apply to 1f1b: ' --schedule 1f1b --stages 4 --micro 8 --overlap 5
expect 2 '^pipeline: --overlap: does not apply to .*: ' --check "$work/two.csv" --overlap 5
expect 0 'makespan 74,' --schedule dualpipev --stages 4 --micro 8 --overlap 5
expect 0 'makespan 33,' --schedule 1f1b --stages 4 --micro 8 -o -
[ ! -e ./- ] || { echo 'a file -'; rm ./-; bad=1; }
expect 2 "^pipeline: --svg: needs the name of a file, not '-'; --format svg" --schedule 1f1b --stages 4 --micro 8 --svg -
expect 2 'needs --format csv' --schedule 1f1b --stages 4 --micro 8 --lowered
expect 2 'needs --format ascii' --schedule 1f1b --stages 4 --micro 8 --width 90 --format svg
expect 2 'replaces --fwd' --schedule gpipe --stages 2 --micro 2 --stage-times "$work/times" --fwd 1
expect 2 'already has messages' --check $stuck --transport edge --shards
expect 0 'seq1f1b  *[0-9]' --compare --stages 2 --micro 4 --slices 4 --lifo --group 4
grep -q ' gpipe  *[0-9]' "$work/out" || { echo '--slices is for seq1f1b alone'; bad=1; }
"$work/pipeline" --check "$work/two.csv" -o "$work/said" --svg "$work/two.svg" > "$work/out" || bad=1
if [ -s "$work/out" ] || ! grep -q '^ok' "$work/said" || ! grep -q '</svg>' "$work/two.svg"; then
    echo '--check without -o or --svg'; bad=1
fi
# 1f1b, 2 ranks, F = 1, B = 2: rank 0 waits from 2 to 4 with 2 activations: when 2 are all that it may
# hold, for want of memory, since F2 could run; when it may hold 4, for B0 alone
expect 0 '"dependency": 1, "communication": 0, "memory": 2,' --schedule 1f1b --stages 2 --micro 4 --memory 2 --format json
expect 0 '"dependency": 3, "communication": 0, "memory": 0,' --schedule 1f1b --stages 2 --micro 4 --memory 4 --format json
expect 2 "^pipeline: given twice: '--micro'" --schedule 1f1b --stages 4 --micro 8 --micro 9
expect 2 'a value must follow' --schedule 1f1b --stages 4 --micro 8 --format csv --svg --lowered
[ ! -e ./--lowered ] || { echo 'a file --lowered'; rm ./--lowered; bad=1; }
if [ -c /dev/full ]; then
    for line in --help --version --list '--compare --stages 2 --micro 4'; do
        "$work/pipeline" $line > /dev/full 2> "$work/err"
        [ $? -eq 2 ] && grep -q 'cannot be written' "$work/err" || { echo "a full disk goes unseen: $line"; bad=1; }
    done
fi
exit $bad
