#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Every 120th mutant; nightly (MUTANTS_EVERY=1) all. One that survives and is not explained in
# tests/mutants.txt fails. Of another folder, tests/compile/mutants.sh cost: a sample, each day another.
[ -z "$DPAR_DIR" ] || [ "$DPAR_DIR" = "$PWD" ] || { echo 'only for src/'; exit 77; }
case ${1:-index} in
index) sh tests/mutate.sh "${MUTANTS_EVERY:-120}" ;;
*) sh tests/mutate_some.sh "$1" "${MUTANTS_COUNT:-150}" "${MUTANTS_SEED:-$(($(date +%s) / 86400))}" ;;
esac
