# SPDX-License-Identifier: MIT-0
"""Bytes that PyTorch keeps from forward to backward, by operator: tests/data/cost/saved_bytes.csv.

    python bench/saved_bytes.py > tests/data/cost/saved_bytes.csv        (CPU, a few seconds)

A small transformer block runs on the CPU in bf16. saved_tensors_hooks show every tensor that autograd
keeps; each storage counts once, where it was first kept, and weights do not count. Attention is a
Function that keeps what the fused kernels keep: q, k, v, the output, one fp32 number a head. Losses are
judged by the peak of what is alive, in bytes a logit. Bytes are a token's, by the widths below.
"""
import contextlib
import gc
import weakref

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

TOKENS, HIDDEN, HEADS, KV, FFN, VOCAB = 64, 256, 8, 2, 1024, 4096
WIDTH = HIDDEN // HEADS
place = "other"


@contextlib.contextmanager
def at(name):
    global place
    before, place = place, name
    yield
    place = before


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scores = (q.float() @ k.float().transpose(-1, -2)) / WIDTH**0.5
        out = (scores.softmax(-1) @ v.float()).to(q.dtype)
        out = out.transpose(1, 2).contiguous().transpose(1, 2)  # as the kernels lay it out
        ctx.save_for_backward(q, k, v, out, scores.logsumexp(-1))
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v, out, lse = ctx.saved_tensors
        return g.clone(), g.clone(), g.clone()


class Norm(torch.nn.Module):
    """RMSNorm as model codes write it: fp32 inside."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return y.type_as(x) * self.weight


def linear(n, k, bias):
    return torch.nn.Linear(k, n, bias=bias)


def rotate(x, turn):
    y = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(y * turn).flatten(-2).type_as(x)


class Block(torch.nn.Module):
    def __init__(self, llama, sdpa):
        super().__init__()
        self.llama, self.sdpa = llama, sdpa
        self.n1, self.n2 = (Norm(), Norm()) if llama else (torch.nn.LayerNorm(HIDDEN), torch.nn.LayerNorm(HIDDEN))
        kv = KV if llama else HEADS
        self.q, self.k, self.v = (linear(n * WIDTH, HIDDEN, not llama) for n in (HEADS, kv, kv))
        self.qkv = linear(3 * HIDDEN, HIDDEN, True)
        self.o = linear(HIDDEN, HIDDEN, not llama)
        self.up, self.gate, self.down = linear(FFN, HIDDEN, not llama), linear(FFN, HIDDEN, False), linear(HIDDEN, FFN, not llama)
        self.turn = torch.polar(torch.ones(TOKENS, 1, WIDTH // 2), torch.rand(TOKENS, 1, WIDTH // 2))

    def attend(self, x):
        b, t, _ = x.shape
        if self.llama:
            with at("qkv"):
                q, k, v = self.q(x), self.k(x), self.v(x)
            with at("rotary"):
                q, k = rotate(q.view(b, t, HEADS, WIDTH), self.turn), rotate(k.view(b, t, KV, WIDTH), self.turn)
            v = v.view(b, t, KV, WIDTH)
            with at("attention"):
                k, v = (y[:, :, :, None].expand(b, t, KV, HEADS // KV, WIDTH).reshape(b, t, HEADS, WIDTH) for y in (k, v))
        else:
            with at("qkv"):
                q, k, v = (y.view(b, t, HEADS, WIDTH) for y in self.qkv(x).chunk(3, -1))
        with at("attention"):
            q, k, v = (y.transpose(1, 2) for y in (q, k, v))
            if self.sdpa:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                y = Attention.apply(q, k, v)
        with at("projection"):
            return self.o(y.transpose(1, 2).reshape(b, t, HIDDEN))

    def forward(self, x):
        with at("norm 1"):
            y = self.n1(x)
        x = x + self.attend(y)
        with at("norm 2"):
            y = self.n2(x)
        with at("up"):
            y, g = self.up(y), self.gate(y) if self.llama else None
        with at("activation"):
            y = F.silu(g) * y if self.llama else F.gelu(y, approximate="tanh")
        with at("down"):
            return x + self.down(y)


def places(module):
    return {t.untyped_storage().data_ptr() for t in [*module.parameters(), module.turn]}


def kept(call, x, module):
    """Bytes a token by place."""
    weights = places(module)
    shapes = {p.shape for p in module.parameters() if p.dim() == 2}
    shapes |= {p.t().shape for p in module.parameters() if p.dim() == 2}
    seen, by = set(), {}
    hold = []

    def pack(t):
        at_byte = t.untyped_storage().data_ptr()
        cast = t.shape in shapes and x.dtype == torch.float32  # autocast's copies of weights
        if at_byte not in weights and at_byte not in seen and not cast:
            seen.add(at_byte)
            by[place] = by.get(place, 0) + t.untyped_storage().nbytes() / TOKENS
        hold.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = call(x)
    out.sum().backward()
    return by


class Alive(TorchDispatchMode):
    """The most bytes of storages alive at once."""

    def __init__(self, known=()):
        super().__init__()
        self.now = self.most = 0
        self.seen = set(known)

    def drop(self, key, n):
        self.now -= n
        self.seen.discard(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, torch.Tensor):
                s = t.untyped_storage()
                key = s.data_ptr()
                if key not in self.seen:
                    self.seen.add(key)
                    self.now += s.nbytes()
                    self.most = max(self.most, self.now)
                    weakref.finalize(s, self.drop, key, s.nbytes())
        return out


def alive(call, head):
    """The most bytes that are alive at once inside a call."""
    with Alive({head.untyped_storage().data_ptr()}) as a:
        call()
    return a.most


def every_second_product():
    count = {"n": 0}
    keep = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default}

    def policy(ctx, op, *args, **kwargs):
        if op == torch.ops.aten.mm.default:
            if not ctx.is_recompute:
                count["n"] += 1
                return CheckpointPolicy.MUST_SAVE if count["n"] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
            count["r"] = count.get("r", 0) + 1
            return CheckpointPolicy.MUST_SAVE if count["r"] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if op in keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def say(case, what, b):
    print(f"{case},{what},{b:.0f},{b / HIDDEN:.3f}")


def main():
    torch.manual_seed(0)
    print(f"# torch {torch.__version__.split('+')[0]}, CPU, bf16; hidden {HIDDEN} heads {HEADS} ffn {FFN} vocab {VOCAB}; llama: kv_heads {KV}, gated")
    print("case,what,bytes_a_token,bytes_a_token_and_channel")
    for llama in (0, 1):
        name = "llama" if llama else "gpt"
        for sdpa in (0, 1):
            block = Block(llama, sdpa).bfloat16()
            block.turn = torch.polar(torch.ones(TOKENS, 1, WIDTH // 2), torch.rand(TOKENS, 1, WIDTH // 2))
            x = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
            if not sdpa:
                by = kept(block, x, block)
                for k, v in by.items():
                    say(f"{name} eager", k, v)
                say(f"{name} eager", "block", sum(by.values()))
                by = kept(lambda y: checkpoint(block, y, use_reentrant=False), x, block)
                say(f"{name} eager checkpointed", "block", sum(by.values()))
                with torch.autocast("cpu", torch.bfloat16):
                    wide = Block(llama, 0)
                    by = kept(wide, x.detach().float().requires_grad_(), wide)
                for k, v in by.items():
                    say(f"{name} autocast", k, v)
                say(f"{name} autocast", "block", sum(by.values()))
            else:
                by = kept(torch.compile(block, backend="aot_eager_decomp_partition"), x, block)
                say(f"{name} compiled", "block", sum(by.values()))
                held = []
                with Alive(places(block)) as a:
                    y = checkpoint(block, x, use_reentrant=False, context_fn=every_second_product)
                    gc.collect()
                    held = a.now - y.untyped_storage().nbytes() + x.untyped_storage().nbytes()
                say(f"{name} eager; every second product", "block", held / TOKENS)
    h = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    head = torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16)
    target = torch.randint(0, VOCAB, (TOKENS,))

    def loss(forget, cast):
        logits = h @ head.t()
        value = F.cross_entropy(logits.float() if cast else logits, target)
        if forget:
            del logits
        value.backward()

    for name, forget, cast in (("fp32 copy", 0, 1), ("fp32 copy; logits freed before backward", 1, 1), ("bf16 all through", 0, 0)):
        print(f"loss eager,{name},{alive(lambda: loss(forget, cast), head) / TOKENS:.0f},{alive(lambda: loss(forget, cast), head) / TOKENS / VOCAB:.3f} a logit")


main()
