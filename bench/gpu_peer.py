#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0
"""PyTorch's fused AdamW, cat, split, casts, sums, rows, boxes, cross-entropy and group norm beside dpar's
kernels, on one GPU.

    gpu_peer.py CSV MIB      CSV: what `gpu_kernels MIB csv` printed on this device just before

Arrays of MIB MiB of random numbers, as bench/gpu_kernels.cu has them: medians by events, several
sets in turn. Ratio: PyTorch's time over dpar's, of as many bytes (of several operations one after the
other, where it has one call for them); above 1 dpar is the faster one. Exit 77: no torch, or none that
sees a device.
"""
import csv
import math
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
    """ours: the names of dpar's operations that do the same, "a + b"."""
    try:
        us = timed(once)
    except (RuntimeError, AttributeError) as e:
        print(f"{name:40s} {str(e).splitlines()[0][:80]}")
        return
    parts = ours.split(" + ")
    if any(part not in OURS for part in parts):
        print(f"{name:40s} {us:10.1f} us   dpar: not in the table")
        return
    mine = sum(OURS[part][1] for part in parts)
    print(f"{name:40s} {us:10.1f} us   dpar, {ours}: {mine:10.1f} us   ratio {us / mine:5.2f}", flush=True)


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

    del half, parts, pieces, whole
    boxes(a, out)
    del a, out
    torch.cuda.empty_cache()
    adamw("torch AdamW, fused, all bf16", "adamw all bf16, 14 bytes", torch.bfloat16, n)
    adamw("the same, not stochastic", "adamw all bf16, 14 bytes, in f32", torch.bfloat16, n)
    for each in (sums, rows, cross_entropy, group_norm):
        torch.cuda.empty_cache()
        try:
            each(n)
        except RuntimeError as e:
            print(f"{each.__name__}: {str(e).splitlines()[0][:100]}")


def boxes(a, out):
    """All of a cube but its first four columns."""
    side = 8
    while (side + 8) ** 3 * 8 <= BYTES:
        side += 8
    wide = [torch.rand((side, side, side), device="cuda", dtype=torch.float64) for _ in range(SETS)]
    cubes = [[x[: side**3].view(side, side, side)[:, :, 4:] for x in y] for y in (a, out)]
    row("torch f64 to f32, a box", "move of a box, f64 to f32", lambda k: cubes[1][k].copy_(wide[k][:, :, 4:]))
    row("torch add_, a box", "move of a box with sum, f32", lambda k: cubes[1][k].add_(cubes[0][k]))


def sums(n):
    for dtype, name, count in ((torch.bfloat16, "bf16", 2 * n), (torch.float32, "f32", n)):
        x = [y.view(8, -1) for y in numbers(dtype, count)]
        out = torch.empty(count // 8, device="cuda", dtype=dtype)
        row(f"torch sum of 8, {name}", f"reduce 8 parts, {name}", lambda k, x=x, out=out: torch.sum(x[k], 0, out=out))
    row("torch vector_norm, f32", "squares, f32", lambda k: torch.linalg.vector_norm(x[k]))


def rows(n):
    width = 4096
    count = BYTES // 2 // width // 2
    order = torch.arange(count, device="cuda") * 7919 % count
    x = [y.view(-1, width) for y in numbers(torch.bfloat16, count * width)]
    out = torch.empty_like(x[0])
    row("torch index_select, rows of 8 KB", "gather of rows of 8 KB", lambda k: torch.index_select(x[k], 0, order, out=out))
    del x, out
    count = n // 1024 // 2
    x = [y.view(-1, 1024) for y in numbers(torch.float32, count * 1024)]
    to = [y.view(-1, 1024) for y in numbers(torch.float32, count * 1024)]
    token = (torch.exp(torch.rand(count, device="cuda", dtype=torch.float64) * math.log(count + 1.0)) - 1).long()
    order = torch.arange(count, device="cuda") * 7919 % count
    row("torch index_add_, rows of 4 KB", "scatter of rows of 4 KB", lambda k: to[k].index_add_(0, order, x[k]))
    token = token.clamp(max=count - 1)
    row("torch index_add_, Zipf", "scatter of rows of 4 KB, Zipf", lambda k: to[k].index_add_(0, token, x[k]))


def cross_entropy(n):
    vocabulary = 50304
    tokens = n // vocabulary
    target = torch.arange(tokens, device="cuda") * 7919 % vocabulary
    logits = [x.view(tokens, vocabulary) for x in numbers(torch.float32, tokens * vocabulary)]
    loss = torch.nn.functional.cross_entropy
    with torch.no_grad():
        row("torch cross_entropy", "cross_entropy, part, in f32", lambda k: loss(logits[k], target))
    for x in logits:
        x.requires_grad_()
    row("torch cross_entropy and its gradient", "cross_entropy, part, in f32 + cross_entropy, gradient, in f32",
        lambda k: torch.autograd.grad(loss(logits[k], target), logits[k]))


def group_norm(n):
    channels, groups = 64, 32
    points = n // channels
    x = [y.view(1, channels, points) for y in numbers(torch.float32, n)]
    dy = [y.view(1, channels, points) for y in numbers(torch.float32, n)]
    w, b = torch.rand(channels, device="cuda"), torch.rand(channels, device="cuda")
    made = [torch.native_group_norm(y, w, b, 1, channels, points, groups, 1e-5) for y in x]
    row("torch group_norm", "moments of 32 groups + norm of 32 groups, apply",
        lambda k: torch.native_group_norm(x[k], w, b, 1, channels, points, groups, 1e-5))
    back = torch.ops.aten.native_group_norm_backward
    row("torch group_norm, backward", "norm of 32 groups, sums + norm of 32 groups, gradient",
        lambda k: back(dy[k], x[k], made[k][1], made[k][2], w, 1, channels, points, groups, [True, True, True]))


main()
