#!/bin/sh
# SPDX-License-Identifier: MIT-0
# The doctor's command line: what it says, exit codes, one sentence for bad input. What it finds: tests/debug/checkup.c.
: "${CC:=cc}" "${CFLAGS:=-O1}"
[ -e build/libdpar.a ] || make -s build/libdpar.a || exit 1
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
$CC $CFLAGS -I. commands/doctor.c build/libdpar.a -o "$work/doctor" -lm || exit 1
version=$(awk '/^#define DPAR_VERSION_(MAJOR|MINOR|PATCH) / { v = v dot $3; dot = "." } END { print v }' dpar.h)
bad=0
expect() { # exit code, words of the output, options...
    want=$1 words=$2
    shift 2
    timeout 60 "$work/doctor" "$@" > "$work/out" 2> "$work/err"
    got=$?
    if [ $got -ne "$want" ] || ! grep -q -e "$words" "$work/out" "$work/err"; then
        echo "exit $got, expected $want and '$words': doctor $*"; head -n 5 "$work/out" "$work/err"; bad=1
    elif [ "$want" -eq 2 ] && { [ -s "$work/out" ] || [ "$(wc -l < "$work/err")" -ne 1 ]; }; then
        echo "not one sentence on stderr: doctor $*"; bad=1
    fi
}

expect 0 'mpirun -n 4 doctor --join' --help
expect 0 'Exit code' -h
expect 0 "^doctor, dpar $version\$" --version
expect 2 "^doctor: unknown option; .*: '--bogus'" --bogus
expect 2 "^doctor: given twice: '--join'" --join --join
expect 2 "^doctor: options begin with --, but this does not: 'join'" join
# a machine measured: the file says what it is of, a second measurement keeps what was better
expect 0 '2 ranks on 1 node' --cluster "$work/two" --ranks 2 --seconds 0.2
grep -q '^machine  *= 1x2:core$' "$work/two" && [ "$(grep -c '^link_reduce' "$work/two")" -eq 14 ] ||
    { echo 'a cluster file of two ranks says:'; cat "$work/two"; bad=1; }
cp "$work/two" "$work/first"
expect 0 '2 ranks on 1 node' --cluster "$work/two" --ranks 2 --seconds 0.2 --again
awk -F '[=#x ]*' '/^link_|^#.*us:/ { n++; k = $1 == "" ? $2 $5 $9 : $1 $3; t = $1 == "" ? $11 + 0 : $4 + 0 }
    FILENAME != last { last = FILENAME; n = 1; files++ }
    /^link_|^#.*us:/ { if (files == 1) was[n] = t; else { if (t > was[n]) { print "worse: " $0; bad = 1 } seen++ } }
    END { exit bad || seen < 30 }' "$work/first" "$work/two" || { echo 'a second measurement is worse'; bad=1; }
head -n 20 "$work/first" > "$work/cut"
expect 2 ": line 20: the file ends too early: [0-9]* settings are missing\$" --cluster "$work/cut" --ranks 2 --seconds 0.01 --again
expect 2 ": --again: '$work/first' was measured with another number of nodes or ranks\$" --cluster "$work/first" --ranks 1 --seconds 0.01 --again
# before it measures: 40 s would be too long for the limit of `expect`
expect 2 ": cannot write '/none/x'\$" --cluster /none/x --ranks 1 --seconds 80000
[ -d /proc/self ] && expect 2 ": cannot write '/proc/x'\$" --cluster /proc/x --ranks 1 --seconds 80000
expect 2 ": cannot write '$work'\$" --cluster "$work" --ranks 1 --seconds 80000
[ -d "$work" ] || { echo 'doctor removed a folder'; exit 1; }
expect 2 "^doctor: --cluster needs the name of a file, not '-'\$" --cluster -
expect 2 '^doctor: --seconds needs --cluster: ' --seconds 10
expect 2 '^doctor: --again needs --cluster: ' --again --join
expect 2 "^doctor: unknown option; --help lists all: '--foo'\$" --foo
expect 2 "^doctor: unknown option; the nearest is --cluster, --help lists all: '--clutser'\$" --clutser x
expect 2 "^doctor: options begin with --, but this does not: '-5'" -5
expect 2 "^doctor: --ranks needs --cluster and cannot be used with --join" --ranks 2
# this machine may have faults, which are said: 0 or 1, and the last line counts them
timeout 60 "$work/doctor" > "$work/out" 2> "$work/err"
got=$?
case $got in
0) last='^nothing is wrong$' ;;
1) last='wrong$' ;;
*) last='no such exit code' ;;
esac
tail -n 1 "$work/out" | grep -q "$last" && [ ! -s "$work/err" ] ||
    { echo "exit $got of doctor, and it says:"; cat "$work/out" "$work/err"; bad=1; }
# two ranks of a job by hand, of which the second may see another /dev/shm: what rank 0 says is in out
two() { # how the second is started...
    DPAR_RANK=0 DPAR_SIZE=2 DPAR_JOB=$$ DPAR_TIMEOUT=20 timeout 60 "$work/doctor" --join > "$work/out" 2> "$work/err" &
    DPAR_RANK=1 DPAR_SIZE=2 DPAR_JOB=$$ DPAR_TIMEOUT=20 timeout 60 "$@" > "$work/other" 2>&1
    other=$?
    wait $!
    got=$?
    [ $got -eq $other ] && [ ! -s "$work/other" ] && [ ! -s "$work/err" ] ||
        { echo "exit $got and $other of two ranks, of which the second says:"; cat "$work/other" "$work/err"; bad=1; }
}
says() { grep -q -e "$1" "$work/out" || { echo "two ranks: no '$1' in:"; cat "$work/out"; bad=1; }; }
two "$work/doctor" --join
says '^joined     shm: 2 ranks of one node'
says '^within     a node, by memory: 8 B in [0-9.]* [um]s, 1 MiB at [0-9.]* GB/s (ranks 0 and 1 on '
if [ "$(df -k /dev/shm 2> /dev/null | awk 'NR == 2 { print ($2 > 700000) }')" = 1 ] &&
    unshare -m mount -t tmpfs -o size=64m none /dev/shm 2> /dev/null; then
    two unshare -m sh -c "mount -t tmpfs -o size=64m none /dev/shm && exec '$work/doctor' --join"
    says "^WRONG: rank 1 on $(hostname): /dev/shm holds 64.0 MiB, that of rank 0 on $(hostname) .* -> make it"
    [ $got -eq 1 ] || { echo "exit $got of a small /dev/shm"; bad=1; }
else
    echo 'skipped: a rank with a small /dev/shm (needs unshare -m, and a large one)'
fi
if [ -c /dev/full ]; then
    for line in --help --version ''; do
        timeout 60 "$work/doctor" $line > /dev/full 2> "$work/err"
        [ $? -eq 2 ] && grep -q 'cannot be written' "$work/err" || { echo "a full disk goes unseen: doctor $line"; bad=1; }
    done
fi
exit $bad
