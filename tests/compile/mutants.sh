#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks that the tests notice mutants. Of src/index takes every 120th, nightly (MUTANTS_EVERY=1) all: one that
# survives and is not explained in tests/mutants.txt is a failure. Of src/cost, src/host and src/comm (mutants.sh
# cost) takes nightly 150 of thousands, each day others: survivors are listed, and it fails only if fewer than half
# are killed.
[ -z "$DPAR_DIR" ] || [ "$DPAR_DIR" = "$PWD" ] || { echo 'only for src/'; exit 77; }
case ${1:-index} in
index) sh tests/mutate.sh "${MUTANTS_EVERY:-120}" ;;
*) sh tests/mutate_some.sh "$1" "${MUTANTS_COUNT:-150}" "${MUTANTS_SEED:-$(($(date +%s) / 86400))}" ;;
esac
