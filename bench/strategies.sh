#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compares training strategies with bare collectives, sending while backward computes with doing both in turn, kernels
# of the host with plain loops, gradients with PyTorch's DDP over gloo, and apps/train_gpt.c with the same GPT in
# PyTorch. It runs build/strategies, build/overlap, build/host_kernels and build/train_gpt, which make builds,
# bench/ddp_peer.py and bench/gpt_peer.py, and prints a section of docs/records/performance.md.
#
#   sh bench/strategies.sh [SECONDS [STEPS]]      of each row (default 2), of overlap (default 40)
#
# In the environment: PYTHON, a Python that has torch (default python3); CC, the compiler that the page names.
cd "$(dirname "$0")/.." || exit 1
case ${1:-2} in
-h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "bench/${0##*/}"; exit 0 ;;
*[!0-9.]* | . | *.*.*) echo "strategies: SECONDS is '$1'; it has to be a number above 0 (--help)" >&2; exit 2 ;;
esac
case ${2:-40} in
*[!0-9]* | 0) echo "strategies: STEPS is '$2'; it has to be a whole number above 0 (--help)" >&2; exit 2 ;;
esac
for program in strategies overlap host_kernels train_gpt; do
    [ -x build/$program ] || { echo "strategies: build/$program: not found; make build/$program builds it" >&2; exit 1; }
done
seconds=${1:-2} steps=${2:-40}
: "${PYTHON:=python3}" "${CC:=cc}"
mkdir -p build

cat << END
## Training strategies on one node

Two ranks, one a core (\`bench/strategies.c\`): a step of each strategy, with models that compute
nothing, beside the **bare** collectives or messages of the same bytes, in turns in one run; medians
in us, the slower rank counts, results are checked. **And its memory**: with a memcpy of as many
bytes as the strategy's own definition reads and writes beside what travels: rounding to bf16 and
back, the look for NaN, gradients zeroed (ZeRO with a backward that adds to them, as it may without
\`assigned\`) or added to those of earlier micro-batches. The limit is 1.10 of that, which for all others
is the bare ones. Those of ZeRO-2 and 3 reduce from a pool of one unit into shards that stay, those of
ZeRO-3 gather from such shards into a pool of two: what training needs without dpar, too. Gradients of
24 MiB as bf16 on the wire are rounded while they are added, where they lie in f32: on one node that
takes longer than f32 ones do. It is for networks. Rows with "over" work in one array of the caller's:
they stand beside one all-reduce of all of it, and beside a reduce-scatter, the optimizer on the share and
an all-gather.

Measured: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2> /dev/null | head -n 1), $(getconf _NPROCESSORS_ONLN) cores; $(uname -s) $(uname -r | sed "s|-.*||"), $("$CC" --version | head -n 1), -O2; $(date +%Y-%m-%d).

END
build/strategies "$seconds" > build/strategies.out || { cat build/strategies.out >&2; exit 1; }
cat build/strategies.out
cat << 'END'

### Gradients that travel while backward computes

24 layers of 0.8 ms with 4 MiB of gradients each, buckets of 8 MiB (`bench/overlap.c`): backward
alone, the buckets alone, their sum, and the step of both together. The engine's copies take time of
a core. Where backward runs on a **device** and the host sleeps until a layer is done, they go on in
that time, all but the last bucket's: in the calls of `dpar_ddp_ready` alone, or in the thread of
`dpar_comm_progress`. Where layers are computed by the **host**, on as many cores as ranks, there is
nothing but waiting for the other rank that could be hidden. `--trace FILE` writes what ran as a
Chrome trace.

END
build/overlap --steps "$steps" || exit 1
cat << 'END'

### Kernels on the host

What the host computes for training and in reductions, of 932,608 elements, each beside a plain loop
of the same work in the same precision that gcc vectorises for this CPU (`bench/host_kernels.c`: -O3
-march=native, sums reordered; dpar at -O2): the median of rounds in turns. dpar asks the CPU for
AVX2 from some thousands of elements on, in casts and spans from 131,072. Optimizers, norms,
cross-entropy, squares and dot products are computed in f64 from f32, as their headers say, and so
are their loops.

END
build/host_kernels || exit 1
cat << 'END'

### Beside PyTorch's DDP

The same gradients through PyTorch's DistributedDataParallel over gloo, two processes, each of one
thread (`bench/ddp_peer.py`): backward with it less backward without; dpar's are those above. All
gradients are there at once; GB/s: bytes of gradients over dpar's time.

END
# name: prints the us of dpar's step in that row
us() { awk -F '|' -v name=" $1 " '$2 == name { gsub(/ /, "", $5); print $5 }' build/strategies.out; }
"$PYTHON" bench/ddp_peer.py \
    24 262144 25 "$(us 'ddp, 24 x 1 MiB, buckets of 25 MiB')" \
    24 262144 4 "$(us 'ddp, 24 x 1 MiB, buckets of 4 MiB')" \
    600 4096 1 "$(us 'ddp, 600 x 16 KiB, buckets of 1 MiB')"
status=$?
[ "$status" -eq 0 ] || [ "$status" -eq 77 ] || exit 1
cat << 'END'

### A GPT beside PyTorch's

`apps/train_gpt.c`, compiled with -O2, and the same GPT in PyTorch, each in one thread on one core,
in turns (`bench/gpt_peer.py`): 4 blocks of width 256 with 8 heads, 8 samples of 128 tokens a step
in micro-batches of 2, clipping, AdamW. ms of a step; below 1 dpar is faster.

END
"$PYTHON" bench/gpt_peer.py build/train_gpt
status=$?
[ "$status" -eq 0 ] || [ "$status" -eq 77 ]
