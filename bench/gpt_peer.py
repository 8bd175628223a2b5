#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0
"""The GPT of apps/train_gpt.c in PyTorch, beside train_gpt, each in one thread on one core.

    gpt_peer.py TRAIN_GPT [ROUNDS]

4 blocks, width 256, 8 heads, SwiGLU, RMS norm, tied table; 8 samples of 128 tokens a step in
micro-batches of 2, whose gradients are added up and clipped; AdamW, for which PyTorch's fused
kernel is the fastest that it has. Six steps of each in turns, ROUNDS times (default 3). Prints a
table of the shortest and the median step. Ratio: dpar over PyTorch. Exit 77: no torch here.
"""
import os
import re
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError as e:
    print(f"PyTorch is not installed here ({e}): no comparison with its GPT.")
    sys.exit(77)

BLOCKS, WIDTH, HEADS, LENGTH, BATCH, MICRO, VOCAB, STEPS = 4, 256, 8, 128, 8, 2, 256, 6
HIDDEN = 4 * WIDTH


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def heads(x):
    return x.view(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.RMSNorm(WIDTH, eps=1e-5)
        self.norm2 = torch.nn.RMSNorm(WIDTH, eps=1e-5)
        for name, inputs, outputs in (("query", WIDTH, WIDTH), ("key", WIDTH, WIDTH),
                                      ("value", WIDTH, WIDTH), ("out", WIDTH, WIDTH),
                                      ("gate", WIDTH, HIDDEN), ("up", WIDTH, HIDDEN),
                                      ("down", HIDDEN, WIDTH)):
            setattr(self, name, torch.nn.Linear(inputs, outputs, bias=False))

    def forward(self, x):
        h = self.norm(x)
        mixed = attention(heads(self.query(h)), heads(self.key(h)), heads(self.value(h)))
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(VOCAB, WIDTH)
        self.position = torch.nn.Embedding(LENGTH, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = torch.nn.RMSNorm(WIDTH, eps=1e-5)
        torch.nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, ids):
        x = self.table(ids) + self.position.weight
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.table.weight)


def step(model, optimizer, ids):
    optimizer.zero_grad()
    for first in range(0, BATCH, MICRO):
        part = ids[first:first + MICRO]
        logits = model(part[:, :-1]).reshape(-1, VOCAB)
        loss = F.cross_entropy(logits, part[:, 1:].reshape(-1)) * (MICRO / BATCH)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def torch_steps(model, optimizer):
    """ms of each step but the first."""
    took = []
    for _ in range(STEPS):
        ids = torch.randint(0, VOCAB, (BATCH, LENGTH + 1))
        began = time.perf_counter()
        step(model, optimizer, ids)
        took.append(1e3 * (time.perf_counter() - began))
    return took[1:]


def dpar_steps(program):
    """Average and shortest ms of steps of train_gpt."""
    command = [program, "--ranks", 1, "--blocks", BLOCKS, "--width", WIDTH, "--heads", HEADS,
               "--length", LENGTH, "--batch", BATCH, "--micro", MICRO, "--steps", STEPS]
    out = subprocess.run([str(word) for word in command], check=True, capture_output=True,
                         text=True).stdout
    found = re.search(r"step: ([0-9.]+) ms on average, ([0-9.]+) at best", out)
    return float(found.group(1)), float(found.group(2))


def show(name, peer, dpar):
    print(f"| {name} | {peer:.0f} | {dpar:.0f} | {dpar / peer:.2f} |", flush=True)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    program = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    peer, average, best = [], [], []
    for _ in range(rounds):
        peer += torch_steps(model, optimizer)
        middle, shortest = dpar_steps(program)
        average.append(middle)
        best.append(shortest)
    print(f"PyTorch {torch.__version__}.\n")
    print("| a step | PyTorch ms | dpar ms | ratio |\n|---|---|---|---|")
    show("shortest", min(peer), min(best))
    show("median (dpar: of the averages of rounds)", statistics.median(peer),
         statistics.median(average))


if __name__ == "__main__":
    main()
