#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests start.c: the number of ranks, the message when they fail (printed once), and the exit code; with ranks
# that are forked, that join as if a launcher started them, and by mpiexec if installed.
: "${CC:=cc}" "${CFLAGS:=-O1}"
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
library=build/libdpar.a
[ -e $library ] || library=-DDPAR_IMPLEMENTATION
$CC $CFLAGS -I. tests/comm/ranks/start.c $library -o "$work/start" -lm || exit 1
$CC $CFLAGS -DBEGIN -I. tests/comm/ranks/start.c $library -o "$work/begin" -lm || exit 1
start=$work/start
bad=0 done=0 job=$$
unset DPAR_RANKS DPAR_RANK DPAR_SIZE DPAR_LOCAL_RANK DPAR_LOCAL_SIZE DPAR_JOB DPAR_TIMEOUT RANK WORLD_SIZE
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

# Checks a run: name, exit code, expected code and number of lines, patterns in the output
look() {
    what=$1 got=$2 code=$3 lines=$4
    shift 4
    done=$((done + 1))
    [ "$got" = "$code" ] || { echo "$what: exit code $got, expected $code"; bad=1; }
    [ "$(wc -l < "$work/out")" -eq "$lines" ] || { echo "$what: expected $lines lines, got:"; cat "$work/out"; bad=1; }
    n=0
    for pattern; do
        n=$((n + 1))
        sed -n "${n}p" "$work/out" | grep -q -e "^$pattern\$" || { echo "$what: line $n is no '$pattern':"; cat "$work/out"; bad=1; }
    done
}
# Forks ranks: exit code, number of lines, arguments as one word, patterns
here() {
    code=$1 lines=$2 words=$3
    shift 3
    timeout 60 "$start" $words > "$work/out" 2>&1
    look "start $words" $? "$code" "$lines" "$@"
}
# Joins ranks: size, the ranks' exit codes, number of lines, arguments, patterns
joined() {
    size=$1 codes=$2 lines=$3 words=$4
    shift 4
    : > "$work/out" > "$work/codes"
    job=$((job + 1))
    r=0
    while [ $r -lt "$size" ]; do
        (DPAR_RANK=$r DPAR_SIZE=$size DPAR_JOB=$job "$start" $words >> "$work/out" 2>&1
        echo "$r:$?" >> "$work/codes") &
        r=$((r + 1))
    done
    wait
    grep -v '^Killed' "$work/out" > "$work/lines" # printed by the shell
    mv "$work/lines" "$work/out"
    look "joined: $words" "$(sort -n "$work/codes" | sed 's/.*://' | tr '\n' ' ')" "$codes" "$lines" "$@"
}
refused='tp=12 does not divide 32 attention heads'

here 0 1 '' 'sum [0-9]* of [1-4]'
here 0 1 '--ranks 1' 'sum 1 of 1'
here 0 1 '--ranks 5' 'sum 15 of 5'
here 0 1 '--ranks=2' 'sum 3 of 2'
here 0 1 '--ranks 4 --ranks=3' 'sum 6 of 3'
here 0 1 '--ranks 2 -- --ranks 3' 'sum 3 of 2'
export DPAR_RANKS=3
here 0 1 '' 'sum 6 of 3'
here 0 1 '--ranks 2' 'sum 3 of 2'
here 0 1 '--rank 8' 'sum 6 of 3' # the program sets the number
joined 2 '0 0 ' 1 '' 'sum 3 of 2'
export DPAR_RANKS=0
here 2 1 '' 'start: DPAR_RANKS takes a number from 1 to 1024, not "0"'
unset DPAR_RANKS
here 2 1 '--ranks four' 'start: --ranks takes a number from 1 to 1024, not "four"'
here 2 1 '--ranks' 'start: --ranks takes a number from 1 to 1024, not ""'
here 2 1 '--ranks 0' 'start: --ranks takes .*, not "0"'
here 2 1 '--ranks=-1' 'start: --ranks takes .*, not "-1"'
here 2 1 '--ranks 1025' 'start: --ranks takes .*, not "1025"'
here 2 1 '--ranks=4x' 'start: --ranks takes .*, not "4x"'
# A misspelt --ranks must not silently select the number of cores. With --ranks or after -- such words belong to
# the program.
for word in --rank -ranks -rank --Ranks --RANKS --rnaks --rakns --ransk --rankss --raanks --renks --nranks --ranks4 ---ranks; do
    here 2 1 "$word 3" "start: \"$word\" is unknown: --ranks N sets the number of ranks"
done
here 2 1 '--rank=3' 'start: "--rank=3" is unknown: --ranks N sets the number of ranks'
here 2 1 '-ranks=3' 'start: "-ranks=3" is unknown: --ranks N sets the number of ranks'
here 0 1 '--rank 8 --ranks 2' 'sum 3 of 2'
here 0 1 '--ranks 2 --rank=8' 'sum 3 of 2'
for word in --range --tanks --runs --ra --r -r --rows --rank-of --ranking -- ranks rank; do
    here 0 1 "$word 3" 'sum [0-9]* of [1-4]'
done
here 0 1 '-- --rank 3' 'sum [0-9]* of [1-4]'
joined 2 '0 0 ' 1 '--rank 3' 'sum 3 of 2'
DPAR_TIMEOUT=abc "$start" --ranks 2 > "$work/out" 2>&1
look 'a deadline that is none' $? 2 1 'start: DPAR_TIMEOUT is "abc", which is not a number of seconds'
here 1 2 '--ranks 4 all' 'sum 10 of 4' "rank [0-3] of 4: $refused"
# dpar_quiet: what each rank prints before it appears, afterwards only what rank 0 prints, and errors of all ranks
here 1 6 '--ranks 3 quiet' '.*' '.*' '.*' '.*' '.*' '.*'
[ "$(grep -c '^rank [0-2] is here$' "$work/out") $(grep -c ' prints$' "$work/out")" = '3 1' ] &&
    grep -q '^rank 0 prints$' "$work/out" && grep -q '^sum 6 of 3$' "$work/out" &&
    grep -q "^rank 1 of 3: $refused\$" "$work/out" || { cat "$work/out"; bad=1; }
here 1 2 '--ranks 1 all' 'sum 1 of 1' "rank 0 of 1: $refused"
here 1 2 '--ranks 4 one' 'sum 10 of 4' "rank 1 of 4: $refused"
here 1 2 '--ranks 4 die' '.*' '.*'
grep -q '^rank [023] of 4: all-reduce #3 (1 f64, max) of 4 ranks: rank 1 was killed by signal 9' "$work/out" || { cat "$work/out"; bad=1; }
here 1 2 '--ranks 2 leave' '.*' 'rank 0 of 2: .* rank 1 has ended with status 7.*'
here 5 2 '--ranks 3 five' '.*' '.*'
grep -q '^rank [02] of 3: rank 1 returned 5$' "$work/out" || { cat "$work/out"; bad=1; }
here 1 2 '--ranks 2 post' 'sum 3 of 2' 'start: rank 1 returned 0 without waiting for all operations that it had posted'
here 1 4 '--ranks 2 no' 'sum 3 of 2' "$refused" "$refused" 'start: rank [01] returned 1'
without='sizes do not divide; pass a dpar_why to the call to learn more'
here 1 2 '--ranks 1 require_text' 'sum 1 of 1' "$without"
here 1 3 '--ranks 3 shrink' '.*' '.*' '.*'
grep -q "^rank [01] of 2: $refused\$" "$work/out" || { cat "$work/out"; bad=1; }
here 1 2 '--ranks 2 silent' 'sum 3 of 2' 'rank [01] of 2: it failed without a message'

joined 3 '0 0 0 ' 1 '' 'sum 6 of 3'
joined 3 '0 0 0 ' 1 '--ranks 3' 'sum 6 of 3'
joined 3 '2 2 2 ' 1 '--ranks 2' 'start: --ranks 2, but dpar has started 3 ranks'
joined 1 '0 ' 1 '--ranks 4' 'sum 10 of 4'
joined 1 '0 ' 1 '' 'sum 1 of 1'
joined 3 '1 1 1 ' 2 all '.*' '.*'
grep -q "^rank [0-2] of 3: $refused\$" "$work/out" || { cat "$work/out"; bad=1; }
joined 3 '1 1 1 ' 2 one '.*' '.*'
grep -q "^rank 1 of 3: $refused\$" "$work/out" || { cat "$work/out"; bad=1; }
joined 3 '1 1 1 ' 6 quiet '.*' '.*' '.*' '.*' '.*' '.*'
[ "$(grep ' prints$' "$work/out")" = 'rank 0 prints' ] || { cat "$work/out"; bad=1; }
joined 3 '1 1 1 ' 2 require '.*' '.*'
grep -q "^rank 1 of 3: $refused\$" "$work/out" || { cat "$work/out"; bad=1; }
joined 3 '1 1 1 ' 5 require_all '.*' '.*' '.*' '.*' '.*'
[ "$(grep -c '^rank [0-2] is here$' "$work/out")" = 3 ] || { cat "$work/out"; bad=1; }
joined 3 '1 5 1 ' 2 five '.*' '.*'
joined 2 '0 1 ' 2 post 'sum 3 of 2' 'start: a rank returned 0 without waiting for all operations that it had posted'
joined 3 '1 137 1 ' 2 die '.*' '.*'
grep -q '^rank [02] of 3: .* rank 1 has ended' "$work/out" || { cat "$work/out"; bad=1; }

DPAR_RANK=3 DPAR_SIZE=2 "$start" > "$work/out" 2>&1
look 'a rank outside' $? 2 1 'start: .*'
RANK=0 WORLD_SIZE=1 MASTER_ADDR=h MASTER_PORT=29500 "$start" > "$work/out" 2>&1
look 'torchrun of one' $? 0 1 'sum 1 of 1'
DPAR_RANK=0 DPAR_SIZE=2 DPAR_TIMEOUT=0.5 "$start" > "$work/out" 2>&1
look 'nobody comes' $? 1 1 'start: rank 1 of 2 did not arrive .*'
# Stops rank 0 while ranks start: the others wait until their timeout.
export DPAR_JOB=stopped-$$ DPAR_SIZE=3
DPAR_RANK=0 "$start" > /dev/null 2>&1 &
stopped=$!
sleep 0.5
kill -STOP $stopped
DPAR_RANK=1 DPAR_TIMEOUT=3 timeout 60 "$start" > "$work/out" 2>&1
look 'rank 0 is stopped' $? 1 1 'start: rank 0 of 3 did not arrive within [3-6]\.[0-9] s .*'
kill -KILL $stopped
wait $stopped 2> /dev/null
unset DPAR_JOB DPAR_SIZE
for mpiexec in mpiexec.openmpi mpiexec.mpich; do
    command -v $mpiexec > /dev/null 2>&1 || continue
    timeout 60 $mpiexec -n 3 "$start" > "$work/out" 2>&1
    look "$mpiexec" $? 0 1 'sum 6 of 3'
done

# With dpar_init_or_launch ranks are new processes; a single one if no number is given.
start=$work/begin
here 0 1 '' 'sum 1 of 1'
here 0 1 '--ranks 1' 'sum 1 of 1'
here 0 1 '--ranks 5' 'sum 15 of 5'
here 0 1 '--ranks 4 --ranks=3' 'sum 6 of 3'
here 0 1 desc 'sum 3 of 2'
here 0 1 '--ranks 3 desc' 'sum 6 of 3'
here 0 2 '-a --ranks 2 b --ranks=2 -- --ranks args' '-a b -- --ranks args none' 'sum 3 of 2'
here 0 2 '--ranks 1 args' 'args none' 'sum 1 of 1'
here 1 1 '--ranks four' '--ranks takes a number from 1 to 1024, not "four"'
here 1 1 '--rank 3' '"--rank" is unknown: --ranks N sets the number of ranks'
export DPAR_RANKS=3
here 0 1 '' 'sum 6 of 3'
here 0 1 '--ranks 2' 'sum 3 of 2'
here 0 1 desc 'sum 6 of 3'
unset DPAR_RANKS
here 0 2 '--ranks 2 child' 'sum 1 of 1' 'sum 3 of 2' # a program that a rank starts is not a rank
here 1 2 '--ranks 4 all' 'sum 10 of 4' "rank [0-3] of 4: $refused"
here 1 2 '--ranks 4 one' 'sum 10 of 4' "rank 1 of 4: $refused"
here 1 2 '--ranks 4 die' '.*' '.*'
grep -q '^rank [023] of 4: all-reduce #3 (1 f64, max) of 4 ranks: rank 1 was killed by signal 9' "$work/out" || { cat "$work/out"; bad=1; }
here 7 2 '--ranks 2 leave' '.*' '.*'
grep -q '^rank 0 of 2: .* rank 1 has ended with status 7' "$work/out" || { cat "$work/out"; bad=1; }
here 5 2 '--ranks 3 five' '.*' '.*'
here 6 3 '--ranks 3 before' '.*rank 1 has ended.*' '.*rank 1 has ended.*' 'begin: rank 1 ended with exit status 6 before dpar_finalize'
here 1 2 '--ranks 2 hang' 'sum 3 of 2' '.*'
joined 3 '0 0 0 ' 1 '' 'sum 6 of 3'
said='--ranks 2, but dpar has started 3 ranks'
joined 3 '1 1 1 ' 3 '--ranks 2' "$said" "$said" "$said"
joined 1 '0 ' 1 '--ranks 4' 'sum 10 of 4'
for mpiexec in mpiexec.openmpi mpiexec.mpich; do
    command -v $mpiexec > /dev/null 2>&1 || continue
    timeout 60 $mpiexec -n 3 "$start" > "$work/out" 2>&1
    look "$mpiexec" $? 0 1 'sum 6 of 3'
done
cp "$start" "$work/gone" # its file may be removed while it runs
(cd "$work" && timeout 60 ./gone --ranks 2) > "$work/out" 2>&1
look 'by a relative path' $? 0 1 'sum 3 of 2'
echo "$done runs, $bad failed"
exit $bad
