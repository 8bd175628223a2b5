#!/bin/sh
# SPDX-License-Identifier: MIT-0
# The command: exit codes, one message for each bad input, JSON that parses, files that are written.
: "${CC:=cc}" "${CFLAGS:=-O1}"
[ -e build/libdpar.a ] || make -s build/libdpar.a || exit 1
library=build/libdpar.a
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
$CC $CFLAGS -I. commands/plan.c $library -o "$work/plan" || exit 1
plan=$work/plan
version=$(awk '/^#define DPAR_VERSION_(MAJOR|MINOR|PATCH) / { v = v dot $3; dot = "." } END { print v }' dpar.h)
bad=0
expect() { # exit code, a word of the output, command...
    want=$1 word=$2
    shift 2
    "$plan" "$@" > "$work/out" 2> "$work/err"
    got=$?
    if [ $got -ne "$want" ]; then
        echo "exit $got, expected $want: plan $*"; head -n 3 "$work/err"; bad=1
    elif ! grep -q -e "$word" "$work/out" "$work/err"; then
        echo "no '$word' in: plan $*"; head -n 3 "$work/out" "$work/err"; bad=1
    elif [ "$want" -eq 2 ] && { [ -s "$work/out" ] || [ "$(wc -l < "$work/err")" -ne 1 ]; }; then
        echo "not one message on stderr: plan $*"; bad=1
    fi
}

expect 0 'examples' --help
expect 0 'examples' -h
expect 0 "^plan, dpar $version\$" --version
expect 2 '^usage: plan MODEL '
expect 0 'derecho' --list
expect 0 'llama-3-70b' llama-3-70b --cluster 8x8:a100-80 --top 3
expect 0 'optimizer' llama-3-8b --cluster dgx-h100 --explain
expect 0 'why:' llama-7b --cluster derecho,nodes=4 --precision zero --recommend
expect 0 'step: .* tokens/s a GPU' llama-7b --cluster derecho,nodes=4 --precision zero --recommend
expect 0 '^TP=8 + DP(ZeRO-1)=2' llama-3-8b --cluster 2x8:a100-80 --recommend --fix tp=8
expect 0 'with nothing fixed DP(ZeRO-2)=16: 1[0-9] % faster' llama-3-8b --cluster 2x8:a100-80 --recommend --fix tp=8
expect 0 ',vp=2' llama-3-8b --cluster 2x8:a100-80 --recommend --fix vp=2
expect 1 'DDP replicates the state' llama-3-8b --cluster 2x8:a100-80 --recommend --fix zero=0,tp=1,pp=1
expect 2 'nearest legal configuration' llama-3-8b --cluster 2x8:a100-80 --recommend --fix pp=99
expect 0 'fastest: .* % faster' llama-3-70b --cluster 4x8:h100-80 --recommend
expect 0 'simpler: .* % slower, .*without' llama-3-70b --cluster 4x8:h100-80 --recommend
expect 0 'assumed: precision megatron (fp8: [0-9]* % faster), core software of today (2025 on) (torch: .* slower), its age (core@2024: 1[0-9] % slower)' llama-3-70b --cluster 4x8:h100-80
expect 0 '^note: core@2022: no published run of that year is known here; priced as nemo@2024 of 2024' llama-3-8b --cluster dgx-h100 --stack core@2022
expect 0 "nine tenths of the experts' messages hidden, no measurement (none: [0-9]* % slower)" deepseek-v3 --cluster 32x8:h100-80 --stack nemo
expect 0 'over PCIe' llama-3-8b --cluster 1x4:l40s --recommend
expect 0 'its schedule, simulated: .* s, +' llama-3-70b --cluster 8x8:h100-80 --fix schedule=v-min --top 8
expect 0 'configurations more cannot be among these' deepseek-v3 --cluster 256x8:h100-80 --whole --top 1
expect 0 'smallest number of GPUs' llama-3-70b --cluster 8x8:h100-80 --min-gpus
expect 0 'tiles' grid:1440x720x100,fields=5 --cluster derecho --gpus 64
expect 0 'tp=8' gpt3-175b --cluster selene --gpus 1024 --batch 1536 --evaluate tp=8,sp=1,pp=16,mbs=1,recompute=selective
expect 0 'tp=2' llama-3-8b --cluster 1x8:h100-80 --fix tp=2 --top 2
expect 0 'llama' tests/data/configs/llama-3-8b.json --cluster 1x8:h100-80 --seq 4096
expect 0 'note: a tower of 27 layers' tests/data/cost/configs/qwen3-vl-8b-instruct.json --cluster 1x8:h100-80
expect 0 '8.42G parameters' tests/data/cost/configs/qwen3-8b.json,mtp=1 --cluster 1x8:h100-80
deep=$work/$(printf '%0250d/%0250d/%0250d/%0250d/%0250d' 1 2 3 4 5) # a path has no limit of ours
mkdir -p "$deep" && cp tests/data/cost/configs/qwen3-8b.json "$deep/config.json"
expect 0 '8.19G parameters' "$deep" --cluster 1x8:h100-80
expect 0 '8.42G parameters' "$deep/config.json,mtp=1" --cluster 1x8:h100-80
expect 2 "1 to 999 characters must follow, not 1000: '--fix'" llama-3-8b --cluster 1x8:h100-80 --fix "$(printf '%01000d' 1)"
mkdir "$work/model" && cp tests/data/cost/configs/qwen3-8b.json "$work/model/config.json"
expect 0 '8.19G parameters' "$work/model" --cluster 1x8:h100-80
expect 0 'images a sample' resnet-50 --cluster 1x8:h100-80
expect 2 "'a100-40' or 'a100-80'" llama-3-8b --cluster 8x8:a100
expect 1 'fits' llama-3.1-405b --cluster 1x8:a100-80
expect 1 'GB per GPU, but the GPU has 86.0 GB' llama-3.1-405b --cluster 1x8:a100-80 --evaluate tp=8
expect 1 '"message": "nothing fits' llama-3.1-405b --cluster 1x8:a100-80 --json
expect 1 'it fits on [0-9]* such GPUs (nodes of 8)' llama-3.1-405b --cluster 1x8:a100-80
expect 1 'it fits on [0-9]* such GPUs (nodes of 7)' llama-2-70b --cluster 1x8:a100-40 --gpus 7 --batch 64 --recommend
# the largest that allocators make of it, and what is expected
expect 1 'does not fit: up to 2022 GB a GPU' llama-3.1-405b --cluster 1x4:a100-40 --recommend
expect 1 '1930.1 GB a GPU' llama-3.1-405b --cluster 1x4:a100-40 --recommend
expect 1 'on 4 GPUs: up to 2022 GB a GPU' llama-3.1-405b --cluster 1x4:a100-40 --recommend
expect 2 'cannot write' llama-3-8b --cluster 1x8:h100-80 --svg "$work/no/x.svg"
expect 0 'hold it: 18' llama-3-8b --cluster summit --min-gpus
expect 0 '16 GPUs of the kind of dgx-h100, which has 8' llama-3-8b --cluster dgx-h100 --gpus 16
expect 0 '"recommendation"' llama-3-8b --cluster dgx-h100 --json --recommend
expect 0 'one standard deviation of products 10 %, of links 10 %, of the network 20 %' llama-3-8b --cluster dgx-h100 --json
expect 0 'of products not known: as given, of links none: measured, of the network 20 %' llama-3-8b --cluster dgx-h100,gemm=0.7,link_reduce=8x1048576x40 --json
expect 0 'activations of 4 bytes' llama-3-8b --cluster dgx-h100 --precision fp32 --json
expect 0 'nothing is both faster and smaller' llama-3-8b --cluster dgx-h100 --explain
expect 0 'Exit code' --help

expect 2 'needed' llama-3-8b
expect 2 'unknown option' llama-3-8b --cluster dgx-h100 --colour red
expect 2 'whole number' llama-3-8b --cluster dgx-h100 --gpus 0
expect 2 'whole number' llama-3-8b --cluster dgx-h100 --gpus x
expect 2 'nearest' lama-3-8b --cluster dgx-h100
expect 2 'heads' gpt:layers=2,hidden=64,heads=0,vocab=100,seq=16 --cluster dgx-h100
expect 2 'does not divide' llama-3-8b --cluster 1x6:h100-80 --evaluate tp=6
expect 2 '1 to 10000000 nodes' llama-3-8b --cluster 0x8:h100-80
expect 2 'number' llama-3-8b --cluster 8x8:h100-80,nvlink=nan
expect 2 'unknown precision' llama-3-8b --cluster dgx-h100 --precision half
expect 2 'strategy' llama-3-8b --cluster dgx-h100 --evaluate tpx=3
expect 2 '^plan: --gpus 12 is not a multiple of 8 GPUs per node' llama-3-8b --cluster selene --gpus 12
printf '{"hidden_size": 4096, "num_hidden' > "$work/cut.json"
expect 2 'line 1' "$work/cut.json" --cluster dgx-h100
awk 'BEGIN { for (i = 0; i < 100000; i++) printf "[" }' > "$work/deep.json"
expect 2 'deep' "$work/deep.json" --cluster dgx-h100
printf '{"hidden_size": 1000000000000000000, "num_hidden_layers": 1}' > "$work/huge.json"
expect 2 'hidden_size' "$work/huge.json" --cluster dgx-h100
expect 2 'layers=2000000000, decoder_layers=0, mtp=0, tower_layers=0: each at most 1000000' gpt:layers=2000000000,hidden=262144,heads=1,vocab=100,seq=16 --cluster dgx-h100
expect 2 'parameters' gpt:layers=1000000,hidden=262144000,heads=1,vocab=100,seq=16 --cluster dgx-h100
expect 2 'cannot read' "$work/missing.json" --cluster dgx-h100
expect 2 'do not divide the cluster' llama-3-8b --cluster 8x8:h100-80 --fix tp=3
expect 2 'does not divide 32 attention heads' llama-3-8b --cluster 8x8:h100-80 --fix tp=64
expect 2 'exclude each other' llama-3-8b --cluster dgx-h100 --evaluate tp=8 --fix tp=4
expect 2 'exclude each other' llama-3-8b --cluster dgx-h100 --min-gpus --recommend
expect 2 'sp=1: tp=8 x cp=1 does not divide 8191 tokens' llama-3-8b,seq=8191 --cluster 8xdgx-h100 --evaluate dp=8,tp=8,sp=1,mbs=1
expect 2 'needs recompute=full' llama-3-8b --cluster dgx-h100 --evaluate dp=8,recompute_layers=9
expect 2 'does not fit: it needs' llama-3.1-405b --cluster 1x8:a100-80 --evaluate tp=3
expect 2 "'offload=': none, or some of optimizer" llama-3-8b --cluster dgx-h100 --fix offload=
expect 2 'wider than the grid' grid:64x64,halo=5000 --cluster dgx-h100
expect 2 '1 to' grid:64x64,fields=0 --cluster dgx-h100
expect 2 'given twice' gpt:layers=3,layers=4,hidden=64,heads=2,vocab=100,seq=16 --cluster dgx-h100
expect 2 'tokens of a language model' resnet-50 --cluster dgx-h100 --seq 5
expect 2 'leave 0' unet-0.25deg --cluster dgx-h100 --evaluate tiles=65536x65536x65536
expect 2 'must follow' llama-3-8b --cluster dgx-h100 --fix ''
expect 2 'recompute=2 must be 0 (none)' grid:64x64 --cluster dgx-h100 --evaluate tiles=4x2,recompute=full
expect 1 'does not fit' gpt-174.6b --cluster tpu-v5e --gpus 64 --recommend --json
expect 2 'tp=0 must be at least 1' llama-3-8b --cluster 8x8:h100-80 --fix tp=0
expect 2 'given twice' llama-3-8b --cluster 8x8:h100-80 --fix tp=8,tp=4
expect 2 'stack must be megatron' llama-3-8b --cluster dgx-h100 --stack nope
expect 2 'attention must be unfused' llama-3-8b --cluster dgx-h100 --attention nope
expect 2 'of 1 to 64' llama-3-8b --cluster 8x8:h100-80 --top 65
# one option twice, or with another option for its value: not the last, not a file "--json"
expect 2 "given twice: '--cluster'" llama-3-8b --cluster dgx-h100 --cluster dgx-a100
expect 2 "given twice: '--fix'" llama-3-8b --cluster dgx-h100 --fix tp=8 --fix pp=1
expect 2 "given twice: '--batch'" llama-3-8b --cluster dgx-h100 --batch 8 --batch 8
expect 2 "a value must follow '--svg'" llama-3-8b --cluster dgx-h100 --svg --json
expect 2 "a value must follow '--cluster'" llama-3-8b --cluster --json
[ ! -e ./--json ] || { echo 'a file --json'; rm ./--json; bad=1; }
expect 2 'a whole number of 0 to 2147483647' llama-3-8b --cluster dgx-h100 --evaluate tp=nan
expect 2 'gpipe, 1f1b, interleaved' llama-3-8b --cluster dgx-h100 --evaluate schedule=foo
expect 2 'none, selective, full' llama-3-8b --cluster dgx-h100 --evaluate recompute=some
expect 2 'at most 1e9 GB/s' llama-3-8b --cluster 8x8:h100-80,nvlink=1e12
# every option: zero, negative, huge, no number, empty, misspelled
expect 2 "'2x8' lacks the GPU: '2x8:a100-80' was expected; known: v100-32" llama-3-8b --cluster 2x8
expect 2 "'2x8' lacks the GPU" llama-3-8b --cluster 2x8:
expect 2 "'16' lacks the GPU" llama-3-8b --cluster 16
expect 2 '1 to 10000000 nodes of 1 to 65536 GPUs' llama-3-8b --cluster 99999999999x8:a100-80
expect 2 "taper=7.000 must be a share above 0" llama-3-8b --cluster 2x8:a100-80,taper=7
expect 2 '^plan: --batch 99999999999 needs a whole number of 0 to 2147483647' llama-3-8b --cluster 2x8:a100-80 --batch 99999999999
expect 2 'zero=7 must be 0 to 3; the nearest' llama-3-8b --cluster 2x8:a100-80 --fix zero=7
expect 2 'sp=2 must be 0 to 1; the nearest' llama-3-8b --cluster 2x8:a100-80 --evaluate sp=2
expect 2 'vp=0 must be at least 1' llama-3-8b --cluster 2x8:a100-80 --fix vp=0
expect 2 'micro_batch=0 must be at least 1' llama-3-8b --cluster 2x8:a100-80 --fix mbs=0
expect 2 'is missing next to a comma' llama-3-8b --cluster 2x8:a100-80 --fix tp=8,,pp=2
expect 2 "'overlap=dp+': default, none" llama-3-8b --cluster 2x8:a100-80 --fix overlap=dp+
expect 2 "^plan: --fix: this setting lacks a value, write name=value, such as tp=8: 'tp'\$" llama-3-8b --cluster 2x8:a100-80 --fix tp
expect 2 "^plan: --evaluate: this setting lacks a value, .*: 'pp'\$" llama-3-8b --cluster 2x8:a100-80 --evaluate tp=8,pp
expect 2 '^plan: --gpus 0 needs a whole number' llama-3-8b --cluster 2x8:a100-80 --gpus 0
expect 2 '^plan: --stack must be' llama-3-8b --cluster 2x8:a100-80 --stack foo
# a name is the nearest only if it is near; what a user of the command can run
expect 2 "unknown machine 'none.txt', and no such file; plan --list shows all, or write" llama-3-8b --cluster none.txt
expect 2 "unknown machine 'foo'; plan --list shows all, or write" llama-3-8b --cluster foo
expect 2 "unknown machine 'Frontir'; the nearest is 'frontier', or write" llama-3-8b --cluster Frontir
expect 2 "unknown GPU 'xyzzy'; plan --list shows all\$" llama-3-8b --cluster 1x8:xyzzy
expect 2 "unknown GPU '4090'; the nearest is 'rtx-4090'\$" llama-3-8b --cluster 1x8:4090
expect 2 "unknown model 'gtp2'; the nearest is 'gpt2'" gtp2 --cluster 1x8:a100-80
expect 2 "'nvlnk'; the nearest is 'nvlink'.*; plan --list shows all\$" llama-3-8b --cluster 1x8:a100-80,nvlnk=3
expect 2 "unknown option; the nearest is --top, --help lists all: '--tpo'" llama-3-8b --cluster 2x8:a100-80 --tpo 3
expect 2 "unknown option; --help lists all: '--colour'" llama-3-8b --cluster 2x8:a100-80 --colour 3
for name in --svg --csv; do
    expect 2 "^plan: $name needs the name of a file, as stdout gets the report, not '-'" llama-3-8b --cluster 2x8:a100-80 $name -
done
# each setting that --list shows is one
for name in $("$plan" --list | sed -n '/^settings:/,$p' | sed 's/.*: //'); do
    expect 2 . llama-3-8b --cluster "1x8:a100-80,$name=?"
    ! grep -q 'no setting of a machine' "$work/err" || { echo "plan --list: $name is no setting"; bad=1; }
done
expect 2 "nearest is --gpus, --help lists all: '--gpu'" llama-3-8b --cluster 2x8:a100-80 --gpu 3
expect 2 "takes no value: '--json=1'" llama-3-8b --cluster 2x8:a100-80 --json=1
expect 2 "takes a value without blanks, not 'tp= 8'" llama-3-8b --cluster 2x8:a100-80 --fix 'tp= 8'
expect 2 "rule 'batch'" grid:10 --cluster 2x8:a100-80
expect 0 'llama-3-8b' llama-3-8b --cluster=2x8:a100-80 --top=1
# Llama-3.1-405B's 126 layers do not divide: what --evaluate prices --fix searches too
expect 0 'vp=4,schedule=interleaved' llama-3.1-405b --cluster 1024x8:h100-80 --batch 2048 --fix vp=4 --top 1
expect 0 'pp=16,vp=7,schedule=interleaved' llama-3.1-405b --cluster 1024x8:h100-80 --batch 2048 --fix pp=16,vp=7 --top 1
expect 1 'it would fit:' llama-3-70b --cluster 1x8:a100-80 --evaluate zero=3,mbs=1,recompute=full
expect 1 'recompute=full' llama-3-70b --cluster 8x8:h100-80 --evaluate tp=8,pp=4,vp=2,mbs=1
expect 1 'it would fit:' llama-3-70b --cluster 1x8:h200 --recommend
expect 1 'it would fit:' llama-3-70b --cluster 1x8:a100-80
if grep -E '(:|^) +(8[6-9]|9[0-9]|[1-9][0-9]+[0-9])\.[0-9] GB with' "$work/err"; then
    echo "more than a GPU's 86 GB 'would fit'"; bad=1
fi
expect 1 '; it fits if activations' llama-3-8b --cluster 1x8:h100-80 --precision fp8-grad32 --evaluate cp=2,zero=1,mbs=1
expect 0 'at the loss: ' llama-3-8b,stack=torch --cluster 8x8:h100-80 --evaluate zero=3,mbs=1 --memory
expect 0 'stage 3: ' llama-3-8b --cluster 1x8:h100-80 --evaluate zero=1,pp=4,mbs=1 --memory
expect 0 'recompute=norm+experts' mixtral-8x7b --cluster 8x8:h100-80 --evaluate zero=1,ep=8,pp=4,mbs=1,recompute=norm+experts
expect 2 'norm, activation and experts' llama-3-8b --cluster 1x8:h100-80 --evaluate recompute=full+norm
expect 0 'pp=32,vp=3' llama-3-8b,layers=94,seq=2048 --cluster 32x8:h100-80 --evaluate zero=1,pp=32,vp=3,mbs=1
expect 2 'pp=2 x vp=65 needs at least as many layers, the model has 126' llama-3.1-405b --cluster 128x8:h100-80 --fix vp=65
expect 1 'fits on' llama-3-8b --cluster 1x1:l40s,memory=24,hbm=1008,tflops=165,nvlink=25
mkdir "$work/folder.json"
expect 2 'folder' "$work/folder.json" --cluster dgx-h100

"$plan" deepseek-v3 --cluster 32x8:h100-80 --json --explain > "$work/plan.json" || bad=1
if command -v python3 > /dev/null; then
    python3 - "$work/plan.json" <<'P' || bad=1
import json, sys
d = json.load(open(sys.argv[1]))
p = d["plans"][0]
for k in "dp shard zero tp sp cp pp vp ep micro_batch micro_batches recompute schedule".split():
    assert k in p["strategy"], k
for k in "tokens_per_s_per_gpu tflops_per_gpu mfu fits reasons".split():
    assert k in p, k
m, t = dict(p["memory_gb"]), dict(p["time_s"])
total = t.pop("total")
assert abs(sum(t.values()) - total) < 1e-6 * total
total = m.pop("total")
assert abs(sum(m.values()) - total) < 1e-6 * total
for k in "rejected evaluated seconds assumptions pareto".split():
    assert k in d, k
peak, stages = p["memory_peak"], p["memory_stages_gb"]
assert len(stages) == p["strategy"]["pp"] and peak["moment"] in ("loss", "layer")
assert abs(max(stages) - total) < 1e-6 * total and stages[peak["stage"]] == max(stages)
first, last = p["memory_first_stage_gb"], p["memory_last_stage_gb"]
assert set(first) == set(last) == set(p["memory_gb"])
assert max(first["total"], last["total"]) <= total * 1.000001
front = d["pareto"]
assert all(a["time_s"] <= b["time_s"] and a["memory_gb"] >= b["memory_gb"] for a, b in zip(front, front[1:]))
assert min(t.values()) >= 0 and all(0 < q["mfu"] <= 1 for q in d["plans"])
P
else
    echo 'python3: not found, the JSON was not read by another reader'
fi
"$plan" llama-3-8b --cluster 2x8:h100-80 --svg "$work/a.svg" --csv "$work/a.csv" > /dev/null || bad=1
grep -q '</svg>' "$work/a.svg" && grep -q '^1,' "$work/a.csv" || { echo 'no picture or table'; bad=1; }
"$plan" llama-3-8b --cluster dgx-h100 --recommend --svg "$work/b.svg" > /dev/null || bad=1
grep -q '</svg>' "$work/b.svg" || { echo 'no picture of the recommendation'; bad=1; }
if [ -c /dev/full ]; then
    "$plan" --help > /dev/full 2> "$work/err"
    [ $? -eq 2 ] && grep -q 'cannot be written' "$work/err" || { echo 'a full disk goes unseen'; bad=1; }
fi
exit $bad
