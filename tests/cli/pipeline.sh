#!/bin/sh
# SPDX-License-Identifier: MIT-0
# The command line of schedules: figures of tests/data/pipeline/metrics.tsv, exit codes, one sentence
# for bad input, JSON and XML that parse.
: "${CC:=cc}" "${CFLAGS:=-O1}"
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
$CC $CFLAGS -DDPAR_IMPLEMENTATION -I. examples/pipeline.c -o "$work/pipeline" || exit 1
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
    expect 0 "^ok .*makespan $makespan, span $span, .* at most $peak activations" --check $data/$file $more
    expect 0 "^ok .*makespan $late," --check $data/$file $more --latency 0.25
done < "$work/metrics"
[ "$(wc -l < "$work/metrics")" -ge 20 ] || { echo 'metrics.tsv: too few lines'; bad=1; }

# the list that hangs over one channel a pair, with the two stuck actions (PyTorch issue #172668)
stuck=$data/pt_interleaved_p2_v2_m4_recv_late_DEADLOCK.csv
expect 1 'pair: rank 0 at 0SEND_F1 .* rank 1 at 1SEND_F0' --check $stuck --transport pair
expect 0 'no deadlock over edge' --check $stuck --transport edge
expect 0 'no deadlock over eager' --check $stuck --transport eager --room 2
printf '0F0,0B0x\n' > "$work/bad.csv"
expect 1 'line 1, column 8' --check "$work/bad.csv"
printf '0B0,0F0\n' > "$work/bad.csv"
expect 1 'pipeline:' --check "$work/bad.csv"
printf '' > "$work/empty.csv"
expect 1 'no schedule' --check "$work/empty.csv"
expect 2 'cannot be read' --check "$work/missing.csv"

# the head of the example says what it prints
sed -n '/^ \*   zb-h1$/,/^ \*$/s/^ \*   //p' examples/pipeline.c > "$work/head"
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
for line in 'zbv  *106.1 ' 'interleaved-zb v=2  *106.7 ' 'zb-h1  *108.6 ' 'v-half  *114.1 ' \
    'dualpipev  *118.9 ' '1f1b  *130.6 ' 'v-min  *147.1 ' 'gpipe  *does not fit: rank 0 holds 32 '; do
    grep -q " $line" "$work/out" || { echo "--compare lacks '$line'"; bad=1; }
done
parses --compare --stages 3 --micro 7 --format json
expect 0 'dualpipe .*none: ' --compare --stages 3 --micro 7
expect 1 'does not fit' --compare --stages 4 --micro 8 --memory 0.1

expect 0 '"simulated": 33, "applies": true, "value": 33' --schedule 1f1b --stages 4 --micro 8 --format json
expect 0 '"applies": false, "why"' --schedule interleaved --stages 4 --micro 3 --format json
expect 0 '"makespan": 8.25' --schedule 1f1b --stages 4 --micro 8 --fwd 0.25 --bwd 0.5 --format json
expect 0 'makespan 27.000008,' --schedule zb-h1 --stages 4 --micro 8 --fwd 1,1,1,1.000001
expect 1 'rank 0 holds 8 activations, the cap is 7.5' --schedule gpipe --stages 4 --micro 8 --memory 7.5
expect 0 'at most 2 2 2 2' --schedule auto --stages 4 --micro 8 --memory 2
expect 1 'not one activation' --schedule auto --stages 4 --micro 8 --memory 0.5
printf '# F I W\n1 1 1\n2 1.5 1\n' > "$work/times"
expect 0 'makespan' --schedule zb-h1 --stages 2 --micro 4 --stage-times "$work/times"
expect 2 'three numbers' --schedule zb-h1 --stages 2 --micro 4 --stage-times $stuck
expect 0 'blocking' --help
expect 0 'F0F1' --schedule 1f1b --stages 2 --micro 4 --svg "$work/x.svg"
grep -q '</svg>' "$work/x.svg" || { echo 'no picture'; bad=1; }
expect 0 '>11.5 % idle<' --schedule zbv --stages 4 --micro 8 --latency 0.25 --format svg # 1 - 48 / 54.25
expect 2 'cannot be written' --schedule 1f1b --stages 2 --micro 4 -o /nonexistent/x
for value in nan -1 0.1234567 1e3 '' 1,2 1, 1000001 99999999999999999999; do
    expect 2 'pipeline:' --schedule 1f1b --stages 4 --micro 8 --fwd "$value"
done
printf '1 2 3 1 2 3\n1 2 3\n' > "$work/times"
expect 2 'three numbers and no more' --schedule gpipe --stages 2 --micro 2 --stage-times "$work/times"
: > "$work/times"
expect 2 'no stage' --schedule gpipe --stages 2 --micro 2 --stage-times "$work/times"
expect 2 'up to 65536' --compare --stages 2 --micro 1 --virtual 64 --slices 65535
expect 1 'no schedule is legal and fits' --compare --stages 3 --micro 7 --memory 0
expect 2 'no such option' --schedule 1f1b --stages 4 --micro 8 --bogus 1
expect 2 'its value is missing' --schedule 1f1b --stages 4 --micro
expect 2 'whole number of 1 to 65535' --schedule 1f1b --stages 0 --micro 8
expect 2 'are needed' --schedule 1f1b
expect 2 'is needed' --stages 4 --micro 8
expect 2 'is odd' --schedule dualpipe --stages 4 --micro 7
expect 2 "no schedule 'foo'" --schedule foo --stages 4 --micro 7
expect 2 'takes blocking' --check $stuck --transport tcp
expect 2 'prints ascii or json' --compare --stages 4 --micro 8 --format svg
exit $bad
