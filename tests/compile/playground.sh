#!/bin/sh
# SPDX-License-Identifier: MIT-0
# docs/playground/index.html in a headless Chromium: 50 settings show what the library says (tests/playground), all can
# be done by keyboard, everything has a name, nothing is cut on a phone, a search does not stop the page. Each push of
# four looks: .ci/run installs the browser for those. The first picture within 500 ms and pauses of 300 are asked for
# where DPAR_PARTS_OF is 1, as at night.
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
