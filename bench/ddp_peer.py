#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0
"""PyTorch's DistributedDataParallel over gloo, two processes on this machine, beside dpar's ddp.

    ddp_peer.py TENSORS NUMEL BUCKET_MIB DPAR_US [...]

For each four numbers: f32 gradients of TENSORS tensors of NUMEL elements, buckets of BUCKET_MIB
(gradients are views into them, as dpar's are). What PyTorch's reduction costs is backward with it
less backward without (no_sync), medians of alternating steps of the slower process; the second
column is gloo's all_reduce of one tensor of all gradients, which DDP cannot beat by much. DPAR_US is
what dpar's took (bench/strategies.c). Ratio: dpar over PyTorch. Exit 77: no torch here.
"""
import os
import statistics
import sys
import time

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError as e:
    print(f"PyTorch is not installed here ({e}): no comparison with its DDP over gloo.")
    sys.exit(77)

SECONDS = 2.0


class Gradients(torch.nn.Module):
    """Tensors whose gradients cost as little as can be: that of sum(p) is all ones."""

    def __init__(self, tensors, numel):
        super().__init__()
        self.p = torch.nn.ParameterList(torch.zeros(numel) for _ in range(tensors))

    def forward(self, scale):
        return torch.stack([p.sum() for p in self.p]).sum() * scale


def slower(seconds):
    t = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.item()


def backward(model, scale, sync):
    """Seconds of one backward; its forward is not counted."""
    if sync:
        loss = model(scale)
    else:
        with model.no_sync():
            loss = model(scale)
    dist.barrier()
    began = time.perf_counter()
    loss.backward()
    took = time.perf_counter() - began
    return slower(took)


def each(rank, jobs, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for tensors, numel, bucket, dpar in jobs:
        module = Gradients(tensors, numel)
        model = torch.nn.parallel.DistributedDataParallel(
            module, bucket_cap_mb=bucket, gradient_as_bucket_view=True)
        whole = torch.ones(tensors * numel)
        with_it, without, bare = [], [], []
        began, go = time.perf_counter(), True
        while go:
            for p in module.p:
                if p.grad is not None:
                    p.grad.zero_()
            with_it.append(backward(model, float(rank + 1), True))
            assert all(p.grad[0].item() == 1.5 and p.grad[-1].item() == 1.5 for p in module.p)
            without.append(backward(model, float(rank + 1), False))
            dist.barrier()
            t = time.perf_counter()
            dist.all_reduce(whole)
            bare.append(slower(time.perf_counter() - t))
            whole.fill_(1.0)
            more = torch.tensor([int(time.perf_counter() - began < SECONDS or len(bare) < 8)])
            dist.broadcast(more, 0)
            go = bool(more.item())
        cost = statistics.median(with_it[2:]) - statistics.median(without[2:])
        if rank == 0:
            print(f"| {tensors} x {numel * 4 / 1024:.0f} KiB, buckets of {bucket:g} MiB "
                  f"| {1e6 * cost:.0f} | {1e6 * statistics.median(bare[2:]):.0f} | {dpar:.0f} "
                  f"| {dpar / (1e6 * cost):.2f} | {tensors * numel * 4 / dpar / 1e3:.1f} |",
                  flush=True)
    dist.destroy_process_group()


def main():
    a = sys.argv[1:]
    if not a or len(a) % 4:
        sys.exit(__doc__)
    jobs = [(int(a[i]), int(a[i + 1]), float(a[i + 2]), float(a[i + 3]))
            for i in range(0, len(a), 4)]
    print(f"PyTorch {torch.__version__}, gloo.\n")
    print("| gradients | PyTorch's DDP us | gloo us | dpar us | ratio | dpar GB/s |\n"
          "|---|---|---|---|---|---|", flush=True)
    mp.spawn(each, args=(jobs, 20000 + os.getpid() % 20000), nprocs=2)


if __name__ == "__main__":
    main()
