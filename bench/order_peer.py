#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0
"""order_peer - PyTorch's own schedules beside ours: are the lowered lists the same, and how long
does each take to make them?

    pip install torch
    cc -O2 -DDPAR_IMPLEMENTATION -I. bench/order_speed.c -o build/order_speed
    python3 bench/order_peer.py
    python3 bench/order_peer.py tests/data/pipeline/*_m*.csv      (makes pt_lowered.tsv)

Needs torch >= 2.6 (torch/distributed/pipelining/schedules.py). Two things are put in order before
lists are compared: of RESHARDs in a row PyTorch's order is that of a Python set, ours ascends; and
WAIT_REDUCE_GRAD, which newer ones (2.15) write behind REDUCE_GRAD, is left out: our pass adds none.
"""
import itertools
import os
import re
import subprocess
import sys
import time

import torch
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

TOOL = os.environ.get("DPAR_ORDER_SPEED", "build/order_speed")
SHARDS, REDUCE, MESSAGES, IDLE = 1, 2, 4, 8


class Stage:
    """What the schedules' constructors ask of a stage."""

    submod = None
    is_first = is_last = has_backward = False

    def __init__(self, index, p, stages):
        self.stage_index, self.num_stages = index, stages
        self.group_size, self.group_rank = p, 0


def compute_lists(name, p, v, m):
    """The compute-only lists of all ranks, and which rank each stage is on."""
    cls = schedules.get_schedule_class(name)
    style = "v" if name in ("ZBVZeroBubble", "DualPipeV") else "loop"
    cls._prepare_schedule_with_comms = lambda self, *a, **k: None  # only the generator
    made = cls([Stage(k * p, p, p * v) for k in range(v)], m)
    return made.pipeline_order, generate_stage_to_rank_mapping(p, p * v, style)


def lowered(lists, rank_of, m, passes, max_active=3):
    lists = {r: list(actions) for r, actions in lists.items()}
    for r in lists:
        if passes & SHARDS:
            lists[r] = schedules._add_unshard_reshard(lists[r], max_active)
        if passes & REDUCE:
            lists[r] = [a for a in schedules._add_reduce_grad(lists[r], m)
                        if "WAIT_REDUCE_GRAD" not in str(a)]
        if not passes & (SHARDS | REDUCE | IDLE):
            lists[r] = [a for a in lists[r] if a is not None]
    if passes & MESSAGES:
        lists = schedules._add_send_recv(lists, lambda s: rank_of[s], len(rank_of))
    return lists


def text(lists):
    return "".join(
        ",".join("" if a is None else str(a) for a in lists[r]) + "\r\n" for r in sorted(lists)
    )


def ours(compute_only, passes):
    run = subprocess.run([TOOL, str(passes)], input=compute_only.encode(), capture_output=True)
    if run.returncode:
        sys.exit(run.stderr.decode())
    return run.stdout.decode(), float(run.stderr)


def reshards_ordered(csv):
    rows = []
    for row in csv.split("\r\n"):
        cells = []
        for reshard, run in itertools.groupby(row.split(","), lambda c: c.endswith("RESHARD")):
            run = list(run)
            cells += sorted(run, key=lambda c: int(re.match(r"\d*", c)[0])) if reshard else run
        rows.append(",".join(cells))
    return rows


CASES = (
    [("GPipe", p, 1, m) for p in (2, 4) for m in (1, 5, 8)]
    + [("Interleaved1F1B", p, v, m) for p, v, m in ((2, 1, 4), (2, 2, 2), (4, 2, 8), (4, 2, 10),
        (4, 3, 12), (8, 2, 32), (5, 4, 10), (4, 2, 3), (16, 4, 16), (4, 6, 4))]
    + [("LoopedBFS", p, v, m) for p, v, m in ((2, 2, 1), (4, 2, 4), (4, 3, 5), (8, 2, 8))]
    + [("InterleavedZeroBubble", p, v, m) for p, v, m in ((2, 2, 4), (4, 2, 8), (4, 3, 12),
        (8, 2, 16), (4, 1, 8))]
    + [("ZBVZeroBubble", p, 2, m) for p, m in ((2, 1), (2, 3), (4, 3), (4, 8), (5, 20), (8, 16))]
    + [("DualPipeV", p, 2, m) for p, m in ((2, 4), (4, 8), (4, 10), (5, 20), (8, 16))]
)


def compare():
    same = 0
    for name, p, v, m in CASES:
        if name == "GPipe":
            stage = Stage(0, p, p)
            order = schedules.ScheduleGPipe.__new__(schedules.ScheduleGPipe)
            order.pp_group_size, order._num_stages, order._n_microbatches = p, p, m
            lists = {r: [a for a in actions if "REDUCE" not in str(a)]
                     for r, actions in order._get_pipeline_order().items()}
            rank_of = {r: r for r in range(p)}
        else:
            lists, rank_of = compute_lists(name, p, v, m)
        for passes in (MESSAGES, IDLE, SHARDS, REDUCE, SHARDS | REDUCE | MESSAGES):
            plain = text(lists)
            theirs = text(lowered(lists, rank_of, m, passes | (passes == IDLE) * MESSAGES))
            mine, _ = ours(plain, passes)
            if reshards_ordered(theirs) != reshards_ordered(mine):
                sys.exit(f"{name} p={p} v={v} m={m}, passes {passes}: not the same")
            same += 1
    print(f"torch {torch.__version__}: {same} lowered lists of {len(CASES)} schedules, all equal")


def timing():
    print("interleaved 1F1B        PyTorch: generate, lower (s), us an action    ours (s)    ratio")
    for p, v, m in ((8, 2, 32), (8, 2, 128), (8, 2, 512), (16, 4, 256), (64, 8, 128), (64, 8, 1024)):
        since = time.perf_counter()
        lists, rank_of = compute_lists("Interleaved1F1B", p, v, m)
        made = time.perf_counter() - since
        since = time.perf_counter()
        full = lowered(lists, rank_of, m, MESSAGES)
        lower = time.perf_counter() - since
        csv, mine = ours(text(lists), MESSAGES)
        same = "" if text(full) == csv else "  NOT THE SAME"
        print(f"p={p:3d} v={v} m={m:4d} {made:20.3f} {lower:10.3f} "
              f"{lower * 1e6 / sum(map(len, full.values())):14.2f} {mine:11.5f} "
              f"{lower / mine:8.0f}{same}")


def read(path):
    """A compute-only file's lists, its stages' ranks and micro-batches; None for any other file."""
    rows = [line.split(",") for line in open(path).read().splitlines() if line[:1] != "#"]
    lists = {r: [schedules._Action.from_str(c) for c in row] for r, row in enumerate(rows)}
    every = [(r, a) for r in lists for whole in lists[r] if whole
             for a in whole.sub_actions or (whole,)]
    rank_of = {a.stage_index: r for r, a in every}
    compute = all(a.is_compute_op for _, a in every)
    return (lists, rank_of, 1 + max(a.microbatch_index for _, a in every)) if compute else None


def fnv(csv):
    h = 0xCBF29CE484222325
    for c in csv.replace("\r\n", "\n").encode():
        h = (h ^ c) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def table(paths):
    print(f"# PyTorch {torch.__version__}, torch/distributed/pipelining/schedules.py: its passes on "
          "the lists beside this file\n# (bench/order_peer.py; RESHARDs in a row ascend). passes: 1 "
          "_add_unshard_reshard, 2 _add_reduce_grad,\n# 4 _add_send_recv, 8 with idle cells' turns; "
          "0 _merge_bw. Cells, and FNV-1a 64 of the text with LF.\n"
          "# file\tpasses\tmax_active\tcells\tfnv")
    for path in paths:
        if not read(path):
            continue
        for passes, active in ((0, 3), (4, 3), (12, 3), (3, 2), (7, 1), (7, 2), (7, 3)):
            lists, rank_of, m = read(path)
            if passes:
                lists = lowered(lists, rank_of, m, passes, active)
            else:
                lists = {r: schedules._merge_bw(lists[r]) for r in lists}
            csv = "\r\n".join(reshards_ordered(text(lists)))
            cells = sum(map(len, lists.values()))
            name = os.path.basename(path)[:-4]
            print(f"{name}\t{passes}\t{active}\t{cells}\t{fnv(csv):016x}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        table(sys.argv[1:])
    else:
        compare()
        timing()
