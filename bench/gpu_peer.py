#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0
"""PyTorch's fused AdamW, cat, split and casts beside dpar's kernels, on one GPU.

    gpu_peer.py CSV MIB      CSV: what `gpu_kernels MIB csv` printed on this device just before

Arrays of MIB MiB of random numbers, as bench/gpu_kernels.cu has them: medians by events, several
sets in turn. Ratio: PyTorch's time over dpar's, of as many bytes; above 1 dpar is the faster one.
Exit 77: no torch, or none that sees a device.
"""
import csv
import statistics
import sys

try:
    import torch
except ImportError as e:
    print(f"no PyTorch here ({e})")
    sys.exit(77)
if not torch.cuda.is_available():
    print("PyTorch sees no device")
    sys.exit(77)

TIMES, SETS = 15, 3
with open(sys.argv[1], encoding="ascii") as f:
    OURS = {row[0]: (float(row[1]), float(row[2])) for row in csv.reader(f) if len(row) == 3}
BYTES = int(sys.argv[2]) << 20


def timed(once):
    """Median us of once(set)."""
    us = []
    for i in range(-2, TIMES):
        before = torch.cuda.Event(enable_timing=True)
        behind = torch.cuda.Event(enable_timing=True)
        before.record()
        once((i + 2) % SETS)
        behind.record()
        behind.synchronize()
        if i >= 0:
            us.append(1000.0 * before.elapsed_time(behind))
    return statistics.median(us)


def row(name, ours, once):
    us = timed(once)
    if ours not in OURS:
        print(f"{name:40s} {us:10.1f} us   dpar: not in the table")
        return
    mine = OURS[ours][1]
    print(f"{name:40s} {us:10.1f} us   dpar, {ours}: {mine:10.1f} us   ratio {us / mine:5.2f}")


def numbers(dtype, count):
    return [(torch.rand(count, device="cuda") * 2 - 1).to(dtype) for _ in range(SETS)]


def adamw(name, ours, dtype, count):
    """One tensor, as ours has one piece; torch keeps moments in the type of the weights."""
    steps = []
    for w in numbers(dtype, count):
        p = torch.nn.Parameter(w)
        p.grad = (torch.rand(count, device="cuda") * 2 - 1).to(dtype)
        steps.append(torch.optim.AdamW([p], lr=1e-5, fused=True))
    for s in steps:
        s.step()
    row(name, ours, lambda k: steps[k].step())


def main():
    n = BYTES // 4
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}")
    adamw("torch AdamW, fused, f32 (28 B each)", "adamw f32", torch.float32, n)
    adamw("the same", "adamw f32, in f32", torch.float32, n)
    torch.cuda.empty_cache()
    a, out = numbers(torch.float32, n), numbers(torch.float32, n)
    each = n // 200
    parts = [[x[i * each : (i + 1) * each].clone() for i in range(200)] for x in a]
    whole = [x[: 200 * each] for x in out]
    row("torch cat of 200", "flatten of 200 arrays, f32", lambda k: torch.cat(parts[k], out=whole[k]))
    pieces = [list(torch.split(x, each)) for x in whole]
    row("torch split + _foreach_copy_ of 200", "flatten of 200 arrays, f32",
        lambda k: torch._foreach_copy_(parts[k], pieces[k]))
    half = numbers(torch.bfloat16, n)
    row("torch f32 to bf16", "span f32 to bf16", lambda k: half[k].copy_(a[k]))
    row("torch bf16 to f32", "span bf16 to f32", lambda k: out[k].copy_(half[k]))
    row("torch copy f32", "span f32", lambda k: out[k].copy_(a[k]))


main()
