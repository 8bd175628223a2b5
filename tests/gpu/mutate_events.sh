#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Leaves out, one at a time, each event record, each wait of a stream or of the host for an event, each wait for
# a stream and each query of an event in dpar_nccl.h and dpar_cuda.h, and the waits and writes that streams do
# through the driver (ops: exchanges between devices). A test over the stand-ins must fail each time. With `waits`
# it leaves out what these calls do for each wait in a strategy (for a message, a collective or the device's work).
# This needs no compiler: the stand-in leaves out the call of one line (FAKE_CUDA_DROP). The programs are those of
# tests/gpu/run.sh, which builds them here unless build/gpu has those of the current sources (run.sh keep).
# A push tests some of the places.
#     tests/gpu/mutate_events.sh turn            the first and then the second; a push: one of them
#     tests/gpu/mutate_events.sh          all places of both headers; each ends with the first test that fails
#     tests/gpu/mutate_events.sh waits           the waits of strategies
#     tests/gpu/mutate_events.sh table           each place with each test: which ones fail (minutes)
#     tests/gpu/mutate_events.sh FILE:LINE       only that place, with the output of the tests
if [ "${1:-}" = turn ]; then
    case ${DPAR_PARTS_OF:-1}:${DPAR_MPI:-0} in
    1:*) sh "$0" && exec sh "$0" waits ;;
    *:0) exec sh "$0" ;;
    *) exec sh "$0" waits ;;
    esac
    exit 1
fi
. tests/compile/common.sh
bin=$PWD/build/gpu
mine=$(sh tests/gpu/run.sh sources)
[ "$(cat "$bin/sources" 2> /dev/null)" = "$mine" ] || { bin=$work/programs && try sh tests/gpu/run.sh build "$bin"; }
mkdir -p "$bin/meet"
export FAKE_NCCL_DEADLINE=8 DPAR_NCCL_LIBRARY="$bin/libnccl.so.2"

rank_tests=$(sed -n "s/^rank_tests='\(.*\)'/\1/p" tests/gpu/run.sh)
# Leaves out lines with a comment that the call orders nothing.
calls='cuda(EventRecord|EventQuery|EventSynchronize|StreamWaitEvent|StreamSynchronize)\('
places="ops:wait ops:write $(grep -n -E "$calls" dpar_nccl.h dpar_cuda.h | grep -v 'orders nothing' | cut -d: -f1,2)"
# The waits of strategies, and what is left out of each: the wait of the compute stream for the operation, or that
# of the host for the compute stream. Lines with (void) are error paths.
waits=$(grep -n -E '(dpar_wait\((&[^()]*|work)\)|dpari_do_wait\([a-z>-]+\)|m(em)?->wait\(m(em)?->ctx\))' dpar_comm.h dpar_halo.h dpar_train.h \
    dpar_spatial.h | grep -v -E ':[0-9]+: \* |DPARI?_(API|INTERNAL)|\(void\)dpar_wait|dpari_do_ended|orders nothing' | cut -d: -f1,2)
line_of() { awk -v begins="$2" -v holds="$3" 'index($0, begins) == 1 && /\)$/ { f = 1 } f && index($0, holds) { print FILENAME ":" NR; exit }' "$1"; }
stream_waits=$(line_of dpar_nccl.h 'DPARI_INTERNAL dpar_status dpari_nccl_wait(' cudaStreamWaitEvent)
host_waits=$(line_of dpar_cuda.h 'static dpar_status dpari_cuda_wait(' cudaStreamSynchronize)
[ -n "$stream_waits" ] && [ -n "$host_waits" ] || { echo 'dpari_nccl_wait or dpari_cuda_wait: not found'; exit 1; }

# Prints the file of src that a line of a header comes from, without folder and .c: header, line
file_of() { awk -v line="$2" '/^\/\* ==== / { name = $3 } NR == line { gsub(/.*\/|\.c/, "", name); print name; exit }' "$1"; }
# seed and command, those that find most first
tests_of() {
    case $1 in dpar_comm.h* | dpar_halo.h* | dpar_train.h* | dpar_spatial.h*)
        name=$(file_of "${1%:*}" "${1#*:}")
        [ ! -x "$bin/$name" ] || echo "0 $name processes 2"
        ;;
    esac
    [ "${1%:*}" = ops ] && echo '2 nccl lends' && echo '0 strategies near' && return
    echo '0 strategies'
    case $1 in
    dpar_nccl.h*)
        echo '0 nccl busy'
        echo '2 nccl lends'
        echo '0 nccl lent'
        for seed in 2 3 8; do
            for part in messages groups host ops stream; do echo "$seed nccl $part"; done
        done
        for part in late differ; do echo "0 nccl $part"; done
        ;;
    dpar_cuda.h*) for seed in 0 1; do echo "$seed kernels"; done ;;
    esac
    for seed in 2 3 7; do echo "$seed strategies"; done
    for name in $rank_tests; do
        [ ! -x "$bin/$name" ] || for seed in 0 2; do echo "$seed $name processes 2"; done
    done
}
passes() { # number, seed, command
    own=$work/meet_$1
    shift
    mkdir -p "$own"
    seed=$1 program=$2
    shift 2
    case " $rank_tests " in *" $program "*) guard=0 ;; *) guard=1 ;; esac
    FAKE_NCCL_DIR=$own FAKE_CUDA_GUARD=$guard FAKE_CUDA_SEED=$seed timeout 60 "$bin/$program" "$@" > "$own.said" 2>&1 < /dev/null
    code=$?
    rm -rf "$own"
    return $code
}
one() {
    place=$1
    file=${place%:*} line=${place#*:}
    case $file in
    ops) text='flags of devices that meet' ;;
    *) text=$(sed -n "${line}s/^ *//p" "$file") ;;
    esac
    tag=$(echo "$place" | tr ':.' '__')
    export FAKE_CUDA_DROP="$place" FAKE_CUDA_DROPPED="$work/dropped_$tag"
    case $file in dpar_comm.h | dpar_halo.h | dpar_train.h | dpar_spatial.h) export FAKE_CUDA_WITHIN="$place" FAKE_CUDA_DROP="$stream_waits,$host_waits" ;; esac
    tests_of "$place" > "$work/tests_$tag"
    told=
    while read -r seed command; do
        # shellcheck disable=SC2086
        passes "$tag" "$seed" $command && continue
        [ "$way" != one ] || tail -n 20 "$work/meet_$tag.said"
        # a test that fails without the mutant proves nothing
        fine="$work/fine $seed $command"
        [ -e "$fine" ] || (unset FAKE_CUDA_DROP && passes "$tag" "$seed" $command && : > "$fine") ||
            { echo "fails as it is: seed $seed, $command"; cat "$work/meet_$tag.said"; return 1; }
        told="${told:+$told, }$command (seed $seed)"
        [ "$way" = table ] || break
    done < "$work/tests_$tag"
    echo "$place: $text"
    if [ -n "$told" ]; then
        echo "    told by $told"
    else
        echo "    survives$([ -e "$FAKE_CUDA_DROPPED" ] || echo ': never reached')"
        echo "$place" >> "$work/survived"
    fi
}
each() { one "$1" > "$work/told_$1" && cat "$work/told_$1" >&3 || { cat "$work/told_$1"; exit 1; }; }

way=all
case ${1:-} in
table) way=table ;;
waits) places=$waits ;;
*:*) way=one places=$1 ;;
esac
[ "$way" != all ] || places=$(some_of $places)
exec 3>&1
# shellcheck disable=SC2086
in_pairs each $places
count=$(echo "$places" | wc -w)
survived=$(cat "$work/survived" 2> /dev/null | wc -l)
echo "$((count - survived)) of $count missing events and waits make a test fail"
[ "$survived" -eq 0 ]
