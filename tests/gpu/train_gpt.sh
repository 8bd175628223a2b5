#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compares train_gpt on devices with the host's program in f64 after four steps: losses, weights and both moments of
# AdamW. train_gpt.sh HOST DEVICE GPT_APART options of the mesh; GPT_MODEL: more options of the model.
#     train_gpt.sh model          prints the model
# On the stand-ins losses differ by 1e-6, moments by 1.4e-6, weights by 7e-8 (docs/records/gpu.md).
model='--blocks 2 --width 16 --heads 4 --groups 2 --hidden 24 --length 17 --batch 4 --micro 1 --steps 4 --text LICENSE'
[ "$1" != model ] || { echo "$model"; exit; }
host=$1 device=$2 apart=$3
shift 3
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
model="$model ${GPT_MODEL:-}"
# shellcheck disable=SC2086
"$host" $model --save "$work/host" > "$work/losses" 2>&1 || { tail -n 20 "$work/losses"; exit 1; }
# shellcheck disable=SC2086
"$device" $model "$@" --save "$work/device" > "$work/said" 2>&1 || { tail -n 20 "$work/said"; exit 1; }
awk '$1 == "step" && $3 == "loss" { if (NR == FNR) { loss[$2] = $4; next }
        n++; d = $4 / loss[$2] - 1; if (d > 1e-6 || d < -1e-6) exit 1 }
    END { exit n < 1 }' "$work/losses" "$work/said" ||
    { echo 'other losses'; grep '^step' "$work/losses" "$work/said"; exit 1; }
"$apart" "$work/device" "$work/host" 5e-6
