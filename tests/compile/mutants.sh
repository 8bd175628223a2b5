#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Every 120th mutant; nightly (MUTANTS_EVERY=1) all. One that survives and is not explained in
# tests/mutants.txt fails.
[ -z "$DPAR_DIR" ] || [ "$DPAR_DIR" = "$PWD" ] || { echo 'only for src/'; exit 77; }
sh tests/mutate.sh "${MUTANTS_EVERY:-120}"
