#!/bin/sh
# SPDX-License-Identifier: MIT-0
# The doctor's command line: what it says, exit codes, one sentence for bad input. What it finds: tests/debug/doctor.c.
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
expect 2 "^doctor: options begin with --, this does not: 'join'" join
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
