#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests a small GPT: every strategy, separately and combined, against one rank (losses of 20 steps and all
# parameters to 1e-5); steps that are skipped; a rank that dies, restarts on other meshes with the same losses,
# damaged checkpoints, planned memory, the trace, messages about bad input. Arguments: "quick": few strategies;
# "some": few strategies, with $program started by $launch (MPI); "all": all strategies that $most ranks (4) can
# run, by hand, which takes minutes.
: "${CC:=cc}" "${CFLAGS:=-O2}"
[ -e build/libdpar.a ] || make -s build/libdpar.a || exit 1
library=build/libdpar.a
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
bad=0
small='--blocks 4 --width 32 --length 16 --batch 8 --micro 1 --steps 20'
how_many=${1:-}
[ "$how_many" != quick ] || shift
if [ $# -eq 0 ]; then
    most=8
    $CC $CFLAGS -I. apps/train_gpt.c $library -o "$work/train_gpt" -lm || exit 1
    program="timeout 100 $work/train_gpt"
    run() { $program "$@" > "$work/out" 2> "$work/err"; }
else
    run() { # --ranks N must come first
        shift
        n=$1
        shift
        $launch -np "$n" "$program" "$@" > "$work/out" 2> "$work/err" < /dev/null
    }
fi
must() { # options...
    run "$@" || { echo "exit $?: $*"; head -n 9 "$work/out" "$work/err"; exit 1; }
}

# the matrix of strategies: ranks, then the strategy
matrix() {
    while read -r ranks how; do
        [ "$ranks" -le "${most:-4}" ] || continue
        must --ranks "$ranks" $small --quiet --check $how
        grep -q '^against one rank, 20 steps' "$work/out" || { echo "nothing compared: $how"; exit 1; }
    done
}
few='2 --zero 3
2 --tp 2 --sp
4 --tp 2 --cp 2 --ulysses
2 --pp 2 --schedule zbv
4 --pp 2 --dp 2 --zero 3 --schedule dualpipe
4 --experts 4 --dp 2 --cp 2 --ep 4'
all=$few'
2 --zero 1
4 --dp 4 --zero 2 --replicas 2
2 --cp 2
1 --schedule gpipe
1 --zero 3
2 --zero 2
3 --zero 3 --batch 9 --micro 3
4 --dp 4 --zero 3 --replicas 2 --prefetch 2
4 --dp 4 --zero 0
2 --zero 3 --prefetch 0 --untied
2 --tp 2
4 --tp 4 --groups 2 --sp
3 --tp 3 --heads 6 --width 36
2 --tp 2 --sp --gelu --layer-norm --untied
2 --cp 2 --ulysses
4 --cp 4 --length 17
4 --cp 2 --dp 2 --zero 3
2 --pp 2 --schedule 1f1b
2 --pp 2 --schedule interleaved
2 --pp 2 --schedule breadth-first --chunks 2
2 --pp 2 --schedule zb-h1
2 --pp 2 --schedule v-half
2 --pp 2 --schedule dualpipev
2 --pp 2 --schedule chimera
2 --pp 2 --schedule interleaved-zb --untied
2 --pp 2 --schedule moe-overlap
4 --pp 4 --schedule 1f1b
4 --pp 4 --schedule v-min --blocks 8
3 --pp 3 --schedule eager-1f1b
4 --pp 2 --dp 2 --zero 0
4 --pp 2 --dp 2 --zero 2 --schedule zb-h1
4 --pp 2 --dp 2 --zero 3 --untied --schedule interleaved
4 --pp 2 --tp 2 --sp --schedule zbv
4 --pp 2 --cp 2 --schedule 1f1b-v
2 --experts 4
2 --experts 4 --dp 2 --ep 2 --zero 3
2 --experts 3 --tp 2 --sp
4 --experts 4 --pp 2 --dp 2 --ep 2 --zero 1 --schedule zbv
4 --experts 4 --pp 2 --dp 2 --ep 2 --zero 0 --schedule dualpipe
4 --experts 4 --dp 4 --ep 2 --zero 2 --replicas 2
2 --experts 4 --shared-experts 24 --dp 2 --zero 3
4 --experts 4 --shared-experts 16 --pp 2 --dp 2 --ep 2 --zero 1 --schedule zbv
4 --experts 4 --shared-experts 16 --capacity 0.8 --tp 2 --sp --dp 2 --ep 2 --zero 2
8 --pp 2 --dp 2 --tp 2 --sp --zero 3 --schedule zbv
8 --pp 2 --dp 2 --cp 2 --zero 2 --schedule zb-h1
8 --dp 2 --cp 2 --tp 2 --sp --experts 4 --ep 2 --zero 3
8 --pp 2 --dp 4 --replicas 2 --experts 4 --ep 2 --zero 3 --schedule dualpipev --batch 16'
case ${1:-} in
some) echo "$few" | matrix; exit $? ;;
all) echo "$all" | matrix; exit $? ;;
*) if [ "$how_many" = quick ]; then echo "$few" | matrix; else echo "$all" | matrix; fi || exit 1 ;;
esac
must --ranks 2 $small --quiet --check --zero 1 --bf16
must --ranks 4 --pp 2 $small --quiet --check --zero 3 --bf16
# rounding depends on an element's number: the result equals that of one rank; where matrices are cut into other
# numbers, copies are equal
must --ranks 4 --dp 4 --replicas 2 $small --quiet --check --zero 2 --pure-bf16
must --ranks 3 --tp 3 --heads 6 $small --width 36 --quiet --check --zero 1 --pure-bf16

# a step with infinite gradients is skipped as a whole on all ranks: the result equals that of one rank, which skips it,
# too; and with the same step as the last one, the checkpoint has the numbers of the step before
for how in '--ranks 2 --dp 2' '--ranks 2 --zero 1 --bf16' '--ranks 4 --pp 2 --dp 2 --zero 3 --schedule dualpipe' \
    '--ranks 4 --tp 2 --cp 2 --sp --experts 4 --ep 2 --zero 2'; do
    must $how $small --quiet --check --overflow 5
    must $how $small --save "$work/before" --every 5 --steps 5
    must $how $small --resume "$work/before" --overflow 5 --steps 6 --save "$work/skipped"
    grep -q '^step *6 .* skipped, because a gradient is not finite' "$work/out" ||
        { echo "no step was skipped: $how"; cat "$work/out"; bad=1; }
    tail -c +257 "$work/before" > "$work/numbers"
    tail -c +257 "$work/skipped" | cmp - "$work/numbers" || { echo "a skipped step changed numbers: $how"; bad=1; }
done
losses() { awk '$1 == "step" { print $2, $4 }' "$work/out"; }

# a capacity has an effect: with half of an even share the losses differ
must --ranks 1 $small --experts 4
losses > "$work/all"
must --ranks 1 $small --experts 4 --capacity 0.5
losses | cmp -s - "$work/all" && { echo 'no token was dropped'; bad=1; }

# a rank dies after the checkpoint of step 10: all end with the reason; the remaining steps run on other meshes
must --ranks 2 $small --pp 2 --experts 2
losses > "$work/straight"
[ "$(wc -l < "$work/straight")" -eq 12 ] || { echo 'steps are missing'; bad=1; }
run --ranks 4 $small --experts 2 --pp 2 --dp 2 --zero 2 --save "$work/ten" --every 5 --kill 12:3
[ $? -eq 1 ] && grep -q 'rank 3 was killed\|(3 in the world) was killed' "$work/err" ||
    { echo 'a rank that dies:'; cat "$work/err"; bad=1; }
for mesh in '--ranks 1' '--tp 2 --sp' '--dp 4 --zero 3 --replicas 2 --ep 2' '--cp 2 --zero 0' \
    '--pp 2 --dp 2 --zero 1 --schedule zbv' '--pp 2 --schedule dualpipe --zero 3'; do
    must $small --experts 2 $mesh --resume "$work/ten" --save "$work/end"
    losses > "$work/again"
    awk 'NR == FNR { loss[$1] = $2; next }
        { n++; d = $2 / loss[$1] - 1; if (d > 1e-5 || d < -1e-5 || $1 < 11) { exit 1 } }
        END { if (n != 5) { exit 1 } }' "$work/straight" "$work/again" ||
        { echo "other losses after a restart on $mesh"; cat "$work/straight" "$work/again"; bad=1; }
done

# with everything in bf16 it continues as if it had not stopped
must --ranks 2 $small --zero 1 --pure-bf16
losses > "$work/straight"
run --ranks 2 $small --zero 1 --pure-bf16 --save "$work/pure" --every 10 --kill 12:1
must --ranks 2 $small --zero 1 --pure-bf16 --resume "$work/pure"
losses > "$work/again"
[ "$(wc -l < "$work/again")" -eq 5 ] && tail -n 5 "$work/straight" | cmp -s - "$work/again" ||
    { echo 'other losses after a restart in bf16'; cat "$work/straight" "$work/again"; bad=1; }

refused() { # exit code, sentence, options...
    code=$1 sentence=$2
    shift 2
    run "$@"
    [ $? -eq "$code" ] && grep -q -e "$sentence" "$work/err" ||
        { echo "not refused with '$sentence': $*"; cat "$work/err"; bad=1; }
    # the line that ranks share cores (apps/start.h) is about the machine, not about the input
    [ "$(grep -vc ': they take turns' "$work/err")" -eq 1 ] || { echo "more than one sentence: $*"; cat "$work/err"; bad=1; }
}
head -c 5000 "$work/ten" > "$work/cut"
{ head -c 3000 "$work/ten"; printf x; tail -c +3002 "$work/ten"; } > "$work/hurt"
refused 2 'truncated: ' $small --experts 2 --dp 2 --resume "$work/cut"
refused 2 'damaged' $small --experts 2 --dp 2 --resume "$work/hurt"
refused 2 'no checkpoint' $small --resume README.md
refused 2 'No such file' $small --resume "$work/none"
refused 2 'differs in experts: 2 there, 0 here' $small --dp 2 --resume "$work/ten"
refused 1 'could not be written' $small --steps 1 --save "$work/none/here"
refused 2 'is 8 ranks, not 6' --ranks 6 --pp 2 --dp 2 --tp 2
refused 2 'does not divide --dp' --dp 4 --replicas 3
refused 2 'no multiple of dp' --dp 3
refused 2 'does not divide dp' --dp 2 --ep 4 --experts 4
refused 2 'ep needs --experts' --dp 2 --ep 2
refused 2 'need --experts' --shared-experts 16
refused 2 'need --experts' --capacity 1.5
refused 2 'other tokens are dropped' --check --experts 4 --capacity 1 --dp 2
refused 2 'needs a number of 0.01' --experts 4 --capacity 0
refused 2 'need --zero 1, 2 or 3' --bf16
refused 2 'need --zero 1, 2 or 3' --pure-bf16
refused 2 'cuts something unevenly' --zero 1 --pure-bf16 --tp 2 --hidden 51 --steps 1 --quiet
refused 2 'No such file' --text "$work/none"
refused 2 'shorter than' --text /dev/null
refused 2 'needs a whole number' --tp two
refused 2 'unknown option' --color red
refused 2 'a value must follow' --save
refused 2 'does not train' --schedule forward-only
refused 2 'no schedule' --schedule pipedream
refused 2 'each needs one' --pp 4 --blocks 3
refused 2 'heads' --tp 2 --heads 3 --width 48 --groups 2
# joined, as by torchrun and srun: the launcher sets what --ranks would
for rank in 0 1; do
    DPAR_RANK=$rank DPAR_SIZE=2 DPAR_JOB=$$ $program $small --tp 2 --steps 2 > "$work/joined$rank" 2>&1 &
done
wait
grep -q '^step *2 ' "$work/joined0" && [ ! -s "$work/joined1" ] || { echo 'no joined ranks'; cat "$work"/joined?; bad=1; }
( export DPAR_RANK=0 DPAR_SIZE=2 DPAR_JOB=$$; refused 2 'leave --ranks out' --ranks 3; exit $bad ) || bad=1
must --help
must --ranks 2 $small --pp 2 --schedule zbv --trace "$work/trace" --batch 4
grep -q '"traceEvents"' "$work/trace" && grep -q F0 "$work/trace" || { echo 'no trace'; bad=1; }
grep -q '^memory of the rank' "$work/out" && grep -q '^planned step' "$work/out" ||
    { echo 'no plan:'; cat "$work/out"; bad=1; }
# planned memory: what the program allocates is 0.9 to 1.1 times as much
planned() { # options...
    must "$@"
    sed -n 's/^memory of the rank.* planned [0-9.]* (measured . planned \([0-9.]*\))$/\1/p' "$work/out" |
        awk '{ n++; if ($1 < 0.9 || $1 > 1.1) { exit } } END { exit !(n == 1 && $1 >= 0.9 && $1 <= 1.1) }' ||
        { echo "another memory than planned: $*"; grep memory "$work/out"; bad=1; }
}
while read -r how; do
    planned $how --blocks 4 --batch 8 --micro 1 --length 32 --width 64 --steps 2
done << 'END'
--ranks 1
--ranks 1 --zero 3
--ranks 2 --zero 1
--ranks 2 --zero 3
--ranks 4 --zero 2 --replicas 2
--ranks 2 --zero 3 --bf16
--ranks 2 --zero 1 --pure-bf16
--ranks 2 --tp 2 --sp --gelu --layer-norm --untied
--ranks 2 --cp 2
--ranks 2 --pp 2
--ranks 2 --pp 2 --schedule zbv
--ranks 2 --pp 2 --schedule interleaved
--ranks 4 --pp 2 --dp 2 --zero 2 --schedule zbv
--ranks 4 --pp 4 --schedule zb-h1
--ranks 2 --experts 4
END
if [ "$how_many" != quick ]; then
    $CC $CFLAGS -DGPT_DOUBLE -I. apps/train_gpt.c $library -o "$work/in_f64" -lm || exit 1
    in_f32=$program program="timeout 100 $work/in_f64"
    for how in '--ranks 2' '--ranks 2 --zero 3' '--ranks 2 --pp 2 --schedule zbv'; do
        planned $how --blocks 4 --batch 8 --micro 1 --length 32 --width 64 --steps 2
    done
    program=$in_f32
fi
"$work/train_gpt" $small --steps 1 > /dev/full 2> "$work/err"
[ $? -ne 0 ] && grep -q 'not be written' "$work/err" || { echo 'lost results, exit 0'; bad=1; }

# it learns: from 5.5 nats per byte to about the entropy of the byte frequencies (3.53 nats, counted in the
# pages)
for how in '' '--zero 1 --pure-bf16'; do
    must --ranks 2 --steps 50 --width 32 --length 32 --batch 8 --rate 0.01 $how
    awk '$1 == "step" && $2 > 30 { sum += $4; n++ } END { exit !(n > 2 && sum / n > 1 && sum / n < 3.8) }' \
        "$work/out" || { echo "it learns too little: $how"; cat "$work/out"; bad=1; }
done
exit $bad
