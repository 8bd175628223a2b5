#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests docs/playground/index.html in a headless Chromium: 50 settings show the library's results
# (tests/playground), everything can be done by keyboard, everything has a name, nothing is cut off on a phone,
# a search does not block the page. One push in four runs it: .ci/run installs the browser for those. The first
# picture within 500 ms and pauses of at most 300 ms are required only if DPAR_PARTS_OF is 1, as at night.
. tests/compile/common.sh
[ $((${DPAR_PART:-0} % ${DPAR_PARTS_OF:-1})) -eq 0 ] || { echo 'the page is looked at in another part'; exit 77; }
need python3
for chromium in ${CHROMIUM:-chromium chromium-browser google-chrome}; do
    ! have "$chromium" || break
done
need "$chromium"
usual_library "$work/dpar.a" -O2
try $CC -O2 -Wall -Wextra -I"$DPAR_DIR" tests/playground/oracle.c "$work/dpar.a" -o "$work/oracle" -lm
timeout 120 python3 tests/playground/look.py "$chromium" "$work/oracle"
