#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests ranks that are started by hand, as torchrun does, and by mpirun and mpiexec if installed: ranks that do
# not join, that end, that belong to another job, and a file or process that occupies the name of the socket.
: "${CC:=cc}" "${CFLAGS:=-O1}"
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
started=
trap 'for p in $started; do kill -9 "$p" 2> /dev/null; done; rm -rf "$work"' EXIT
$CC $CFLAGS -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/comm/ranks/launch.c -o "$work/launch" -lm &
compiles=$!
$CC $CFLAGS -DDPARI_MEET_NAMED -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/comm/ranks/launch.c \
    -o "$work/named" -lm || exit 1
wait $compiles || exit 1
$CC $CFLAGS -DDPAR_IMPLEMENTATION -I. commands/doctor.c -o "$work/doctor" || exit 1
launch=$work/launch
bad=0 job=$$
unset DPAR_RANK DPAR_SIZE DPAR_LOCAL_RANK DPAR_LOCAL_SIZE DPAR_JOB DPAR_TIMEOUT RANK WORLD_SIZE
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

# Starts ranks of a job by hand: size, timeout, arguments, ranks
by_hand() {
    size=$1 limit=$2 what=$3
    shift 3
    for r in "$@"; do
        DPAR_RANK=$r DPAR_SIZE=$size DPAR_JOB=$job DPAR_TIMEOUT=$limit $launch $what >> "$work/out" 2>&1 &
        started="$started $!"
    done
}
# Checks how many lines of the output match: name, number of lines, pattern
said() {
    n=$(grep -c -e "$3" "$work/out")
    if [ "$n" -ne "$2" ]; then
        echo "$1: $n lines with '$3', expected $2:"; sed 's/^/    /' "$work/out"; bad=1
    else
        echo "$1: fine"
    fi
    : > "$work/out"
}
: > "$work/out"

$launch 24 || bad=1

by_hand 4 20 join 0 1 2 3; wait
said 'four by hand' 4 'rank [0-3] of 4: adds up (dpar)'
by_hand 4 20 shrink 0 1 2 3; wait
said 'rank 1 dies' 3 'rank [023] of 4: adds up without 1'
by_hand 8 20 join 7 6 5 4 3 2 1; sleep 0.3; by_hand 8 20 join 0; wait
said 'rank 0 comes last' 8 'rank [0-7] of 8: adds up'
by_hand 3 20 'join 2' 0 1 2; wait
said 'through named memory' 3 'rank [0-2] of 3: adds up'
job=a; by_hand 2 20 join 0; job=b; by_hand 2 20 join 1 0; job=a; by_hand 2 20 join 1; job=$$; wait
said 'two jobs at once' 4 'rank [01] of 2: adds up'

for r in 0 1 2; do
    RANK=$r WORLD_SIZE=3 LOCAL_RANK=$r LOCAL_WORLD_SIZE=3 MASTER_ADDR=h MASTER_PORT=29500 \
        TORCHELASTIC_RUN_ID=$$ DPAR_TIMEOUT=20 $launch join >> "$work/out" &
done
wait
said 'as torchrun' 3 'rank [0-2] of 3: adds up (torchrun)'
$launch join > "$work/out"
said 'alone' 1 'rank 0 of 1: adds up (none)'
SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=4 $launch join > "$work/out"
said 'salloc without srun' 1 'rank 0 of 1: adds up (none)'

by_hand 4 2 join 0 1; wait
said 'two do not come' 2 'status -11: ranks 2, 3 of 4 did not arrive within [2-9].[0-9] s; ranks must share a user, and a network namespace or /tmp; if some are on other nodes, use dpar_mpi.h or dpar_nccl.h$'
by_hand 4 2 join 1 2; wait
said 'rank 0 does not come' 2 'status -11: rank 0 of 4 did not arrive within [2-9].[0-9] s (job .*); ranks must share a user, and a network namespace or /tmp; if some are on other nodes, use dpar_mpi.h or dpar_nccl.h$'
by_hand 3 20 join 0 1 1; wait
said 'a rank twice' 3 'status -12: two processes say that they are rank 1 of 3'
by_hand 2 3 join 0 0; sleep 0.2; by_hand 2 20 join 1; wait
said 'rank 0 twice' 2 'adds up'
by_hand 3 20 join 0; by_hand 4 20 join 2; sleep 0.1; by_hand 3 20 join 1; wait
said 'another size' 3 'status -12: a process says that it is rank 2 of 4, but rank 0 says that there are 3 ranks'
by_hand 3 20 join 0; sleep 0.2; by_hand 3 20 join 1; sleep 0.3; kill -9 "${started##* }"; wait
said 'a rank ends meanwhile' 1 'status -10: rank 1 ended while 3 ranks were starting'
by_hand 3 20 join 0; first=${started##* }; by_hand 3 20 join 1 2 2> /dev/null; wait
said 'nothing is left of it' 3 'adds up'
by_hand 3 5 join 0; first=${started##* }; sleep 0.2; by_hand 3 5 join 1; sleep 0.2; kill -9 "$first"; wait
said 'rank 0 ends meanwhile' 1 'status -10: rank 0 ended while 3 ranks were starting'

# A killed rank 0 leaves no socket in /tmp, with and without memory that has no name.
socket() { DPAR_RANK=0 DPAR_SIZE=2 DPAR_JOB=$job $launch where; }
for plain in 0 2; do
    by_hand 3 20 "join $plain" 0; sleep 0.3; kill -9 "${started##* }"; wait
    [ ! -e "$(socket)" ] || { echo "plain $plain: a socket is left in /tmp"; bad=1; }
done
# Where names are files (not Linux), the same job takes the name over. Another job removes it once it is a minute
# old, but not a younger one, one that is answered, or one that is not a socket.
launch=$work/named
stale=$(socket)
by_hand 3 20 join 0; sleep 0.3; kill -9 "${started##* }"; wait
[ -S "$stale" ] || { echo 'no stale socket to test with'; bad=1; }
by_hand 3 20 join 0 1 2; wait
said 'a stale socket of this job' 3 'adds up'
[ ! -e "$stale" ] || { echo 'a socket is left in /tmp'; bad=1; }
by_hand 3 20 join 0; sleep 0.3; kill -9 "${started##* }"; wait
job=c$$; by_hand 2 20 join 0 1; wait
[ -S "$stale" ] || { echo 'a young socket was taken away'; bad=1; }
touch -d '2 minutes ago' "$stale"
file=/tmp/dpar.$(id -u).$$ && : > "$file" && touch -d '2 minutes ago' "$file"
job=d$$; slow=$(socket); by_hand 2 20 join 0; until [ -S "$slow" ]; do sleep 0.05; done
[ ! -e "$stale" ] || { echo 'an old socket stays'; bad=1; }
sleep 0.1; touch -d '2 minutes ago' "$slow"
job=e$$; by_hand 2 20 join 0 1; sleep 0.5
[ -S "$slow" ] || { echo 'the socket of a job that starts was taken away'; bad=1; }
[ -f "$file" ] || { echo 'a file that is no socket was taken away'; bad=1; }
rm -f "$file"
job=d$$; by_hand 2 20 join 1; wait
said 'other jobs beside a stale socket' 6 'adds up'
[ ! -e "$slow" ] || { echo 'a socket is left in /tmp'; bad=1; }
job=$$
launch=$work/launch

DPAR_RANK=0 DPAR_SIZE=2 DPAR_JOB=$$ $launch squat 1 > "$work/squat" & started="$started $!"
until grep -qs sits "$work/squat"; do sleep 0.05; done
by_hand 2 20 join 0 1; wait
said 'somebody listens in its place for a second' 2 'adds up'
if [ "$(id -u)" -eq 0 ]; then
    DPAR_RANK=0 DPAR_SIZE=2 DPAR_JOB=$$ $launch squat 20 64123 > "$work/squat" & squat=$!
    started="$started $squat"
    until grep -qs sits "$work/squat"; do sleep 0.05; done
    by_hand 2 10 join 0 1
    wait $(echo "$started" | tr ' ' '\n' | tail -n 2)
    said 'another user sits on the name' 2 'adds up'
    kill -9 "$squat"; wait "$squat" 2> /dev/null
fi

DPAR_RANK=0 DPAR_SIZE=4 DPAR_LOCAL_RANK=0 DPAR_LOCAL_SIZE=2 $launch join > "$work/out"
add='across nodes add dpar_mpi.h and compile with mpicc, or dpar_nccl.h for GPUs$'
said 'several nodes' 1 "status -1: dpar reports 4 ranks, 2 of them on this node: dpar_comm.h joins .* one node; $add"
FLUX_TASK_RANK=0 FLUX_JOB_SIZE=5 FLUX_JOB_NNODES=2 $launch join > "$work/out"
said 'several nodes, uneven' 1 "status -1: Flux reports 5 ranks on 2 nodes: .*; $add"
DPAR_RANK=0 DPAR_SIZE=5000 $launch join > "$work/out"
said 'too many' 1 "status -1: dpar reports 5000 ranks: .*; $add"
DPAR_RANK=0 $launch join > "$work/out"
said 'half a row' 1 'status -1: dpar: DPAR_RANK is set but DPAR_SIZE is not'
DPAR_TIMEOUT=soon $launch join > "$work/out"
said 'a deadline that is none' 1 'status -1: DPAR_TIMEOUT is "soon"'

$launch print > "$work/out"
[ "$(tr '\n' ' ' < "$work/out" | sed 's/in [0-2]/in/g')" = 'before in in in after ' ] ||
    { echo 'printf before a launch:'; cat "$work/out"; bad=1; }

# Output with stdin, stdout and stderr closed is lost, and not written into the ranks' memory.
timeout 20 "$launch" talk 0<&- >&- 2>&- || { echo 'launched without stdout'; bad=1; }
timeout 20 "$launch" talk > /dev/null 2>&- || { echo 'launched without stderr'; bad=1; }
for r in 0 1 2; do
    (DPAR_RANK=$r DPAR_SIZE=3 DPAR_JOB=$job DPAR_TIMEOUT=10 timeout 20 "$launch" talk 0<&- >&- 2>&-
    echo "exit $?" >> "$work/out") &
done
wait
said 'three by hand without stdout' 3 'exit 0'

if [ -c /dev/full ]; then
    "$work/doctor" > /dev/full 2> "$work/out"; [ $? -eq 2 ] || { echo 'doctor: a full disk goes unseen'; bad=1; }
    said 'doctor, a full disk' 1 'stdout cannot be written'
fi

mpi() { # command, the launcher's name in dpar
    command -v "${1%% *}" > /dev/null 2>&1 || { echo "${1%% *}: not there"; return; }
    timeout 30 $1 $launch join > "$work/out" 2>&1
    said "$1" 3 "rank [0-2] of 3: adds up ($2"
    timeout 30 $1 sh -c "$launch join; true" > "$work/out" 2>&1
    said "$1 sh" 3 "rank [0-2] of 3: adds up ($2"
    timeout 30 $1 $launch join > "$work/out" 2>&1 & one=$!
    timeout 30 $1 $launch join > "$work/two" 2>&1
    wait $one
    cat "$work/two" >> "$work/out"
    said "$1, two at once" 6 "rank [0-2] of 3: adds up ($2"
    timeout 30 $1 "$work/doctor" --join > "$work/out" 2>&1
    said "$1 doctor" 1 "^launcher   $2"
}
mpi 'mpirun.openmpi --oversubscribe -n 3' 'Open MPI'
mpi 'mpiexec.mpich -n 3' 'Hydra'

"$work/doctor" > "$work/out"; code=$?
grep -q 'launcher   none: rank 0 of 1' "$work/out" && [ $code -eq "$(grep -q '^WRONG' "$work/out"; echo $((1 - $?)))" ] ||
    { echo "doctor: exit code $code"; cat "$work/out"; bad=1; }
PMIX_RANK=1 "$work/doctor" > "$work/out"; code=$?
[ $code -eq 1 ] || { echo "doctor: exit code $code for half a launcher"; bad=1; }
said 'doctor, half a launcher' 1 '^WRONG: PMIX_RANK is set but no variable has the number of ranks'
for word in --help -h; do
    "$work/doctor" $word > "$work/out" || bad=1
    said "doctor $word" 1 '^Exit code'
done
DPAR_RANK=1 DPAR_SIZE=2 DPAR_JOB=$$ DPAR_TIMEOUT=0.3 "$work/doctor" --join > "$work/out"
[ $? -eq 1 ] || { echo 'doctor --join, rank 0 does not come: exit code'; bad=1; }
tail -n 1 "$work/out" | grep -q 'wrong$' && ! grep -q 'nothing is wrong' "$work/out" ||
    { echo 'doctor --join: last line'; cat "$work/out"; bad=1; }
said 'doctor --join, rank 0 does not come' 1 '^WRONG: the ranks could not connect: rank 0 of 2 did not arrive .* -> '
(ulimit -f 100000; "$work/doctor") > "$work/out"
said 'doctor, ulimit -f' 1 '^WRONG: ulimit -f is [0-9]* KiB'
"$work/doctor" --no > "$work/out" 2>&1; [ $? -eq 2 ] || { echo 'doctor --no'; bad=1; }

for p in $started; do
    kill -0 "$p" 2> /dev/null && { echo "process $p is left"; bad=1; }
done
exit $bad
