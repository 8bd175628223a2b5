#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Runs random faults over MPI: starts tests/mpi/faults.c again after a rank has died, until all rounds are done.
#     RUN='mpirun --mca orte_enable_recovery 1 -np 4' sh tests/mpi/faults.sh PROGRAM ROUNDS [SEED [FIRST]]
# RUN starts the ranks, with an MPI that continues without a dead rank: Open MPI as above, MPICH with
# -disable-auto-cleanup. Prints at the end how many ranks got which error. Fails if a line is wrong, a rank has
# printed nothing for 90 s, or a process or a file of dpar in /dev/shm is left.
set -u
program=$1 rounds=$2 seed=${3:-1} first=${4:-0}
work=$(mktemp -d "${TMPDIR:-/tmp}/faults.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
: > "$work/all"
files() { ls /dev/shm 2> /dev/null | grep -c '^dpar'; }
files=$(files)
fail() {
    grep -v -e UCX -e '^$' "$work/said"
    echo "faults.sh: $* (the launcher ended with $rc); again: $program ${next:-$first} 1 $seed"
    exit 1
}
fatal='| \(killed\|ends\|stopped, killed\) |'

# After the death of a rank Open MPI's launcher may wait for ever on several nodes, so it is ended here.
until_all_have_said() {
    while kill -0 "$1" 2> /dev/null; do
        ranks=$(sed -n "s/^ranks //p" "$work/said" | head -n 1)
        if [ "$(grep -c "$fatal" "$work/said")" -ge $((${ranks:-100} - 1)) ]; then
            sleep 0.5
            kill "$1" 2> /dev/null
            break
        fi
        sleep 0.1
    done
    wait "$1" 2> /dev/null
    rc=$?
}

end=$((first + rounds)) fallen=0
next=$first
while [ "$next" -lt "$end" ]; do
    some=$((end - next < 20 ? end - next : 20))
    timeout -k 3 120 ${RUN:?} "$program" "$next" "$some" "$seed" > "$work/said" 2>&1 &
    until_all_have_said $!
    grep '^round ' "$work/said" > "$work/lines"
    ranks=$(sed -n "s/^ranks //p" "$work/said" | head -n 1)
    [ -n "$ranks" ] || fail "it did not start"
    last=$(sed 's/^round \([0-9]*\) .*/\1/' "$work/lines" | sort -n | tail -n 1)
    # Hydra dies of SIGPIPE (141) if a rank dies while Hydra sends to it. Open MPI ends a rank that cannot connect
    # to it, which the others then report.
    if [ "$rc" -eq 141 ] || grep -q -e '^\[mpiexec@.*error' -e 'failed to TCP connect' "$work/said"; then
        fallen=$((fallen + 1)) next=$((${last:-$next} + 1))
        [ "$fallen" -le $((1 + rounds / 10)) ] || fail "the launcher fell $fallen times"
        grep -v WRONG "$work/lines" >> "$work/all"
        continue
    fi
    ! grep -q 'WRONG' "$work/lines" || fail "$(grep -c WRONG "$work/lines") lines are wrong"
    [ -n "$last" ] || fail "nobody said anything"
    while [ "$next" -le "$last" ]; do
        got=$(grep "^round $next " "$work/lines" | grep -vc '(victim)')
        [ "$got" -eq $((ranks - 1)) ] || fail "$got lines of $((ranks - 1)) of round $next"
        next=$((next + 1))
    done
    cat "$work/lines" >> "$work/all"
    tries=0
    while pgrep -f "$program [0-9]+ [0-9]+ $seed" > "$work/left"; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || fail "processes are left: $(ps -o pid=,stat=,args= -p "$(paste -sd, "$work/left")" | cut -c1-120)"
        sleep 0.1
    done
    [ "$(files)" -eq "$files" ] || fail "files are left in /dev/shm: $(ls /dev/shm)"
done
echo "$rounds rounds from $first, seed $seed$([ "$fallen" -eq 0 ] || echo " (in $fallen the launcher fell)"): ranks that ended so"
grep -v '(victim)' "$work/all" | sed 's/^round [0-9]* rank [0-9]* | \([^|]*\) | \([^|]*\) | [^|]* | \([^,|]*\)[^|]* | \(-*[0-9]*\) | .*/\3: \1: \4/' | sort | uniq -c | awk '{
        n = $1; $1 = ""; sub(/^ /, ""); status = $0; sub(/.*: /, "", status); sub(/: [-0-9]*$/, "")
        all[$0] = all[$0] sprintf("  %d x %s", n, status)
    }
    END { for (k in all) print "  " k ":" all[k] }' | sort
echo "operations: $(sed 's/^round \([0-9]*\) rank [^|]*| [^|]* | \([^|]*\) | .*/\1 \2/' "$work/all" | sort -u |
    awk '{ n[$2]++ } END { for (k in n) printf "%s %d, ", k, n[k] }')"
