#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Runs the long tests in tests/*/ranks: 1000 rounds of faults, a third as many of faults in halo exchanges and
# of shrinks; ranks as threads under the thread sanitizer; processes and threads under the address and
# undefined-behaviour sanitizers.
. tests/compile/common.sh
[ -r /proc/self/stat ] || { echo '/proc: not found'; exit 77; }
flags='-g1 -O1 -D_GNU_SOURCE'
programs='collectives messages several teams errors mismatch exchange exchange_faults halo_exchange halo_oracle halo_more halo_cgrid points points_part points_lists points_move neighbours particles particles_errors pencil blocks exact_ranks spatial ddp fsdp tensor sequence ulysses window_attention expert pipeline'
rounds=${FAULT_ROUNDS:-1000}
printf 'int main(void) { return 0; }\n' > "$work/probe.c"

# Prints the arguments with which a program runs for some seconds: as processes and as threads.
words() {
    case $1:$2 in
    halo_exchange:thread) echo '2 5 7 threads' ;;
    halo_exchange:processes) echo '3 5 2' ;;
    halo_exchange:threads) echo '3 2 5 threads' ;;
    halo_oracle:thread) echo 'threads 2' ;;
    halo_oracle:processes) echo '1-3' ;;
    halo_oracle:threads) echo 'threads 2' ;;
    halo_more:thread) echo threads ;;
    halo_more:*) echo "$2" ;;
    halo_cgrid:thread | spatial:thread | exchange_faults:thread) echo 'threads 2' ;;
    tensor:thread | teams:thread) echo 'threads 2' ;;
    tensor:*) echo "$2 2" ;;
    ddp:thread | fsdp:thread | sequence:thread | ulysses:thread | window_attention:thread | expert:thread | pipeline:thread) echo 'threads 3' ;;
    sequence:* | ulysses:* | window_attention:* | expert:* | pipeline:*) echo "$2 3" ;;
    ddp:* | fsdp:*) echo "$2 2" ;;
    exchange:* | blocks:* | exchange_faults:* | halo_cgrid:* | points:* | points_part:* | points_lists:* | points_move:* | neighbours:* | particles:* | particles_errors:* | pencil:* | exact_ranks:* | spatial:* | teams:*) echo "$2 2" ;;
    *:thread) echo 'threads 2-3' ;;
    *:processes) echo 'processes 1-4' ;;
    *:threads) echo 'threads 1-3' ;;
    esac
}
build() {
    tool=${1%%:*} name=${1#*:}
    source=$(echo tests/*/ranks/$name.c)
    try $CC $flags "-fsanitize=$tool" -fno-sanitize-recover=all -I"$DPAR_DIR" -Itests/lib $source \
        $(code_of "$source" "$work/dpar.${tool%%,*}.a") -o "$work/$name.${tool%%,*}" -lm
}
sanitized() {
    tool=${1%%:*} name=${1#*:} program=$work/$name.${tool%%,*}
    if [ "$tool" = thread ]; then
        # the ranks share one mapping of memory, so reports about it are real
        TSAN_OPTIONS=halt_on_error=1 try timeout 600 "$program" $(words "$name" thread)
    else
        try timeout 600 "$program" $(words "$name" processes)
        try timeout 600 "$program" $(words "$name" threads)
    fi
}
tools=
for tool in thread address,undefined; do
    if $CC -fsanitize=$tool "$work/probe.c" -o "$work/probe" 2> /dev/null && "$work/probe"; then
        tools="$tools $tool"
    else
        echo "the $tool sanitizer: not found, skipped"
    fi
done
all=
for name in $programs; do
    for tool in $tools; do
        all="$all $tool:$name"
    done
done
# A push takes one in eight. With both kinds of sanitizers these may be programs of only one of them.
whole=$([ "${DPAR_PARTS_OF:-1}" -gt 1 ] || echo whole)
all=$([ -n "$whole" ] && echo $all || DPAR_PARTS_OF=8 DPAR_PART=$((${DPAR_PART:-0} % 4 + 4 * ${DPAR_MPI:-0})) some_of $all)
for tool in $tools; do
    case " $(echo $all)" in *" $tool:"*) ;; *) continue ;; esac
    library "$work/dpar.${tool%%,*}.a" $CC $flags "-fsanitize=$tool" -fno-sanitize-recover=all
done
try $CC $flags $reached -I"$DPAR_DIR" -Itests/lib tests/comm/ranks/faults.c -o "$work/faults" -lm
[ -z "$all" ] || in_pairs build $all
try $CC $flags $reached -I"$DPAR_DIR" -Itests/lib tests/comm/ranks/shrink.c -o "$work/shrink" -lm
try timeout 600 "$work/shrink" $((rounds / 3)) "${FAULT_SEED:-1}"
try timeout 1200 "$work/faults" "$rounds" "${FAULT_SEED:-1}"
try timeout 600 "$work/faults" $((rounds / 3)) "${FAULT_SEED:-1}" 0 halo
for each in $all; do
    sanitized "$each"
done
