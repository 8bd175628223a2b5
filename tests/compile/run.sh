#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Runs real ranks: every collective, messages, several at once, wrong arguments, mismatched calls, moves,
# launching, counts above 2^31, short rounds of faults and of shrinks; as processes and, smaller, as threads. If
# an MPI compiler is installed tests/compile/mpi.sh runs the same programs over it.
. tests/compile/common.sh
case $(uname -s) in
Linux | Darwin | *BSD) ;;
*) echo 'ranks need POSIX: not found'; exit 77 ;;
esac
build() {
    [ ! -e "$work/$1" ] || return 0
    case $1 in
    example) try $CC -std=c99 $strict_c -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" "$work/example.c" -o "$work/example" ;;
    *)
        source=$(echo tests/*/ranks/$1.c)
        try $CC -O2 -D_GNU_SOURCE -I"$DPAR_DIR" -Itests/lib "$source" $(code_of "$source" "$work/dpar.a") -o "$work/$1" -lm
        ;;
    esac
}
# Runs the same tests in memory that the CPU cannot reach.
build_device() {
    try $CC -O2 -D_GNU_SOURCE -DDEVICE_MEMORY -I"$DPAR_DIR" -Itests/lib tests/*/ranks/$1.c "$work/dpar.a" \
        -o "$work/$1_device" -lm
}
quickly() {
    name=${1%%:*} words=$(echo "${1#*:}" | tr ':' ' ')
    echo "== $name $words"
    try timeout 300 "$work/$name" $words
}
# Compiles the function in the first screen of halo_exchange.h unchanged; each rank computes all its points.
example() {
    cat << 'EOF'
#include "dpar_halo.h"
static int64_t points;
static void compute(const dpar_halo_field *f, const dpar_box *box, const dpar_box *todo)
{
    points += f->data != NULL && todo->lo[0] > box->lo[0] ? dpar_box_volume(todo) : 0;
}
EOF
    sed -n '/^ \*     static int heat(dpar_comm \*c,/,/^ \*     }$/s/^ \*     //p' "$DPAR_DIR/dpar_halo.h"
    cat << 'EOF'
static int each(dpar_comm *c, void *arg)
{
    points = 0;
    return heat(c, arg) != 0 || points != 10 * (120 / c->size) * 100;
}
int main(void)
{
    if (dpar_launch(1, each, NULL, NULL, NULL) != DPAR_OK) {
        return 1;
    }
    return dpar_launch(4, each, NULL, NULL, NULL) != DPAR_OK;
}
EOF
}
example > "$work/example.c"
usual_library "$work/dpar.a" -O2
some=$(half_of $(some_of collectives:processes collectives:processes:19-20 messages:processes several:processes errors:processes \
    mismatch:processes collectives:threads:1-3 messages:threads:1-4 several:threads:2-3 \
    errors:threads:1-4 mismatch:threads:2-4 halo_oracle:processes halo_oracle:threads:1-3 \
    halo_cgrid:processes:1-6 halo_cgrid:threads:2))
whole=$(half_of $(some_of p2p teams types move spatial halo_exchange grid halo_more points points_part points_lists points_move neighbours particles particles_errors pencil blocks exact_ranks halo_check doctor_ranks ddp fsdp tensor sequence ulysses window_attention \
    expert pipeline gpt wire))
# only what this part runs; the last two are used below in every part
in_pairs build $(printf '%s\n' $some $whole example large halo_exchange | sed 's/:.*//' | sort -u)
try timeout 60 "$work/example"
for each in $some; do
    quickly "$each"
done
for name in $whole; do
    echo "== $name"
    try timeout 300 "$work/$name"
done
if [ "$(uname -s)" = Linux ]; then
    on_device=$(half_of $(some_of tensor sequence ulysses window_attention ddp ddp_codes ddp_arrays zero1 fsdp pipeline spatial expert move))
    in_pairs build_device $on_device
    for name in $on_device; do
        echo "== $name, a device's memory"
        try timeout 300 "$work/${name}_device"
    done
fi
echo '== large'
timeout 300 "$work/large"
case $? in 0 | 77) ;; *) exit 1 ;; esac
if [ -r /proc/self/stat ]; then
    echo '== launch'
    try env CFLAGS='-O1 -DDPAR_STATIC' sh tests/comm/ranks/launch.sh
    echo '== halo_exchange, threads'
    try timeout 100 "$work/halo_exchange" 4 30 5 threads
    build shrink
    try timeout 300 "$work/shrink" "${FAULT_ROUNDS:-20}" 1
    build faults
    try timeout 300 "$work/faults" "${FAULT_ROUNDS:-60}" 1
fi
