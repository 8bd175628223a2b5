#!/bin/sh
# SPDX-License-Identifier: MIT-0
# The long runs of tests/ranks: 1000 rounds of faults; ranks as threads under the thread sanitizer;
# processes and threads under the address and undefined-behaviour sanitizers.
. tests/compile/common.sh
[ -r /proc/self/stat ] || { echo '/proc: not found'; exit 77; }
flags='-g -O1 -DDPAR_NO_COST -DDPAR_NO_SHOW -DDPAR_STATIC -DDPAR_IMPLEMENTATION'
programs='collectives messages several errors mismatch'
try $CC -O2 $flags -I"$DPAR_DIR" -Itests tests/ranks/faults.c -o "$work/faults"
try timeout 1200 "$work/faults" "${FAULT_ROUNDS:-1000}" "${FAULT_SEED:-1}"

printf 'int main(void) { return 0; }\n' > "$work/probe.c"
sanitized() {
    tool=${1%%:*} name=${1#*:}
    try $CC $flags "-fsanitize=$tool" -fno-sanitize-recover=all -I"$DPAR_DIR" -Itests \
        "tests/ranks/$name.c" -o "$work/$name.${tool%%,*}"
    if [ "$tool" = thread ]; then
        # the ranks' memory is one mapping: reports of it are real
        TSAN_OPTIONS=halt_on_error=1 try timeout 600 "$work/$name.thread" threads 2-3
    else
        try timeout 600 "$work/$name.address" processes 1-4
        try timeout 600 "$work/$name.address" threads 1-3
    fi
}
for tool in thread address,undefined; do
    if $CC -fsanitize=$tool "$work/probe.c" -o "$work/probe" 2> /dev/null && "$work/probe"; then
        for name in $programs; do
            sanitized "$tool:$name"
        done
    else
        echo "the $tool sanitizer: not found, skipped"
    fi
done
