#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Every 240th mutant, from another first one at each push: fewer than four in five noticed fails. Nightly
# (MUTANTS_EVERY=1): all, and one that survives and is not explained in tests/mutants.txt fails.
[ -z "$DPAR_DIR" ] || [ "$DPAR_DIR" = "$PWD" ] || { echo 'only for src/'; exit 77; }
[ "${MUTANTS_EVERY:-240}" -eq 1 ] || export MUTANTS_LEAST="${MUTANTS_LEAST:-80}"
sh tests/mutate.sh "${MUTANTS_EVERY:-240}"
