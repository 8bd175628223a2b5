#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Ranks that really run: every collective, messages, several at once, wrong arguments, quarrels,
# moves, launching, counts past 2^31 and a short round of faults; as processes and, smaller, as
# threads. Where an MPI compiler is there tests/compile/mpi.sh runs the same programs over it.
. tests/compile/common.sh
flags='-DDPAR_NO_COST -DDPAR_NO_SHOW -DDPAR_STATIC -DDPAR_IMPLEMENTATION'
case $(uname -s) in
Linux | Darwin | *BSD) ;;
*) echo 'ranks need POSIX: not found'; exit 77 ;;
esac
build() {
    try $CC -O2 $flags -I"$DPAR_DIR" -Itests "tests/ranks/$1.c" -o "$work/$1" -lm
}
quickly() {
    name=${1%%:*} words=$(echo "${1#*:}" | tr ':' ' ')
    echo "== $name $words"
    try timeout 300 "$work/$name" $words
}
in_pairs build collectives messages several errors mismatch p2p move large spatial halo_exchange halo_oracle
for each in collectives:processes messages:processes several:processes errors:processes \
    mismatch:processes collectives:threads:1-3 messages:threads:1-4 several:threads:2-3 \
    errors:threads:1-4 mismatch:threads:2-4 halo_oracle:processes halo_oracle:threads:1-3; do
    quickly "$each"
done
for name in p2p move spatial halo_exchange; do
    echo "== $name"
    try timeout 300 "$work/$name"
done
echo '== large'
timeout 300 "$work/large"
case $? in 0 | 77) ;; *) exit 1 ;; esac
if [ -r /proc/self/stat ]; then
    echo '== launch'
    try env CFLAGS='-O1 -DDPAR_STATIC -DDPAR_NO_SHOW' sh tests/ranks/launch.sh
    echo '== halo_exchange faults'
    try timeout 100 "$work/halo_exchange" faults
    try timeout 100 "$work/halo_exchange" 4 30 5 threads
    build faults
    try timeout 300 "$work/faults" "${FAULT_ROUNDS:-60}" 1
fi
