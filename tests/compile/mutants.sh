#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Do the tests notice a mutant? Of src/index every 120th is asked for, nightly (MUTANTS_EVERY=1) all: one that
# survives and is not explained in tests/mutants.txt fails. Of src/cost and src/comm (mutants.sh cost) nightly
# 150 of thousands, each day others: what survives is listed, and it fails only where fewer than half die.
[ -z "$DPAR_DIR" ] || [ "$DPAR_DIR" = "$PWD" ] || { echo 'only for src/'; exit 77; }
case ${1:-index} in
index) sh tests/mutate.sh "${MUTANTS_EVERY:-120}" ;;
*) sh tests/mutate_some.sh "$1" "${MUTANTS_COUNT:-150}" "${MUTANTS_SEED:-$(($(date +%s) / 86400))}" ;;
esac
