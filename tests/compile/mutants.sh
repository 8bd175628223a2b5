#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Every 120th mutant (nightly: MUTANTS_EVERY=1, all); those that survive are explained in tests/mutants.txt (all of them: sh
# tests/mutate.sh). A survivor that is not explained fails.
[ -z "$DPAR_DIR" ] || [ "$DPAR_DIR" = "$PWD" ] || { echo 'only for src/'; exit 77; }
sh tests/mutate.sh "${MUTANTS_EVERY:-120}"
