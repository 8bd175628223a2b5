#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks models of the flag protocols of the shared-memory engine, between nodes and between devices, whose
# every interleaving spin tries: each must hold, and each broken variant must be found. order.c does the same
# for weakly ordered memory. A push takes a part of them. `model.sh long` checks longer sequences too (about 2
# GB of memory).
. tests/compile/common.sh
need spin
need "$CC"
models=$PWD/tests/model
cd "$work" || exit 1

# Makes and runs the checker of a model with these flags; writes its output into `said`.
check() {
    model=$1 level=$2
    shift 2
    spin -P"$CC -E -x c" -a "$@" "$models/$model.pml" > made 2>&1 && ! grep -qi error made ||
        { cat made; echo "$model $*: not a model"; exit 1; }
    try "$CC" -w "$level" -DSAFETY -DMEMLIM=3000 -o pan pan.c
    ./pan -m100000 > said 2>&1
    states=$(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' said)
    depth=$(sed -n 's/.*depth reached \([0-9]*\),.*/\1/p' said)
    rm -f ./*.trail
}
holds() {
    check "$1" -O1 $2
    ! grep -q -e 'not completed' -e 'max search depth too small' said && grep -q 'errors: 0' said ||
        { cat said; echo "$*: does not hold"; exit 1; }
    echo "$*: holds, $states states, depth $depth"
}
breaks() {
    check "$1" -O0 $2
    grep -q -e 'assertion violated' -e 'invalid end state (' said && ! grep -q 'errors: 0' said ||
        { cat said; echo "$*: the fault is not found"; exit 1; }
    echo "$*: breaks after $states states"
}

entry_() {
    holds entry
    holds entry -DMISMATCH
    holds entry '-DREUSE -DOPS=3'
    for fault in -DPARITIES=1 -DRUN_AHEAD -DEARLY_WORD -DEARLY_READ -DLATE_READ \
        '-DMISMATCH -DNO_COMPARE' '-DREUSE -DOPS=3 -DEQUAL'; do
        breaks entry "$fault"
    done
}
gate_() {
    holds gate
    for fault in -DUPS=1 -DTRUST -DEARLY_DOWN -DEARLY_WORD -DNO_ALL; do
        breaks gate "$fault"
    done
}
chunked_() {
    holds chunked
    holds chunked '-DALL_GIVE -DNO_FREE'
    for fault in -DNO_LAST -DNO_FREE -DFREE=4 '-DBUFFERS=2 -DNO_FREE' -DBUFFERS=2 -DFREE=1 \
        -DLAX_A -DLAX_B -DBARE_WORDS; do
        breaks chunked "$fault"
    done
}
direct_() {
    holds direct
    for fault in -DNO_LAST -DROOT_LEAVES -DNO_ENTRIES -DOWN_CHOICE -DRETURN_NEXT; do
        breaks direct "$fault"
    done
}
channel_() {
    holds channel
    holds channel -DWRITTEN
    holds channel -DBLOCKING
    holds channel '-DBLOCKING -DFINE'
    for fault in '-DFINE -DNO_ROOM' '-DFINE -DEARLY_WORD' '-DFINE -DEARLY_CONSUMED' -DTELL=3 \
        '-DBLOCKING -DIN_RING' '-DBLOCKING -DDEAF' -DANY_ORDER -DLAST_FIRST -DEND_LATER \
        '-DWRITTEN -DEND_LATER'; do
        breaks channel "$fault"
    done
}
share_() {
    holds share
    for fault in -DNO_FIN -DEARLY_FIN -DNO_PUT; do
        breaks share "$fault"
    done
}
sleep_() {
    holds sleep
    holds sleep -DSPARE=1
    for fault in -DPLAIN_WORD -DPLAIN_ASLEEP -DNO_LOOK -DLATE_BELL -DNO_RING -DFLAG_FIRST -DNO_AGAIN \
        -DFOR_LATE -DOTHER_PEER; do
        breaks sleep "$fault"
    done
}
abort_() {
    holds abort
    for fault in -DHANG -DHALF -DEARLY -DNO_CLAIM; do
        breaks abort "$fault"
    done
}
levels_() {
    holds levels
    holds levels -DLEAD
    holds levels -DOTHER
    for fault in -DNO_LETTERS -DDEAF -DNO_PEER -DEARLY_LAST '-DMESSAGES -DNO_LOOK' '-DOTHER -DNO_TAG' \
        '-DOTHER -DDEAF'; do
        breaks levels "$fault"
    done
}
near_() {
    holds near
    holds near -DCHAIN
    for fault in -DONE_PART -DNO_BEFORE -DSAME_PART -DONE_SET -DNO_WAIT -DEARLY -DNO_CLEAR '-DCHAIN -DNO_BEFORE'; do
        breaks near "$fault"
    done
}
# Weak memory: checks all of it, which takes a moment.
try $CC -std=c99 -O2 -Wall -Wextra -Werror -o order "$models/order.c"
try ./order
for model in $(some_of entry gate chunked direct channel share sleep abort levels near); do
    ${model}_
done
if [ "${1:-}" = long ]; then
    holds levels -DMESSAGES
    holds levels -DNO_ABORT
    holds entry -DOPS=5
    holds chunked '-DOPS=4 -DCHUNKS=5'
    holds near -DOPS=5
    holds direct -DOPS=3
    holds direct '-DOPS=3 -DROOT_WAITS'
    holds channel -DTELL=2
    holds sleep -DWORDS=2
fi
