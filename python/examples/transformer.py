#!/usr/bin/env python3
# transformer.py - a small transformer in four residual streams: trained, quantized, evaluated
#
# SPDX-License-Identifier: BSD-2-Clause
#
#	python3 transformer.py [--steps N] [--text FILE] [preset...]
#
# Trains a transformer of characters on a text, Python's own manual unless --text names another,
# once for each preset of hyper-connections and once with plain residuals, from the same start.
# Then its matrices become 8-bit integers, and lattice codes of 4.25 and 3.25 bits after a rotation,
# and it is evaluated in each form on text that it has not seen. Bits a character, fewer are better,
# as printed in 76 s of CPU time with PyTorch 2.11 on AVX-512:
#
#	preset           f32  8 bits  4.26 bits  3.26 bits
#	none           2.188   2.187      2.196      2.232
#	triton         2.139   2.140      2.149      2.168
#	deepseek_v4    2.194   2.194      2.206      2.223
import argparse
import math
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import hurwitz as hz
import hurwitz.torch as hzt

DIM, HEADS, LAYERS, STREAMS, CONTEXT, BATCH = 64, 4, 2, 4, 32, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
                   for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))


class Transformer(nn.Module):
    """preset None has plain residuals; otherwise each branch is in a HyperConnection."""

    def __init__(self, symbols, preset):
        super().__init__()
        self.embedding = nn.Embedding(symbols, DIM)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, DIM))
        self.branches = nn.ModuleList(kind() for _ in range(LAYERS) for kind in (Attention, Mlp))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, symbols)
        self.connections = None
        if preset:
            self.connections = nn.ModuleList(
                hzt.HyperConnection(DIM, STREAMS, layer_idx=i, preset=preset,
                                    coefficients="per_token")
                for i in range(len(self.branches)))

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position[:tokens.shape[1]]
        if self.connections is None:
            for branch in self.branches:
                x = x + branch(x)
        else:
            streams = hzt.mhc_expand(x, STREAMS)
            for connection, branch in zip(self.connections, self.branches):
                u, add_residual = connection(streams)
                streams = add_residual(branch(u))
            x = streams.mean(-2)
        return self.head(self.norm(x))


class Int8(nn.Module):
    """A linear layer of 8-bit integers, with a scale for each output; x is quantized by rows."""

    def __init__(self, linear):
        super().__init__()
        w = linear.weight.detach()
        scale, _ = hz.choose_qparams(w, (len(w), 1), flags=hz.QPARAMS_SYMMETRIC)
        self.packed = hz.qgemm_pack(hz.quantize(w, "s8", scales=scale).t())
        self.scale, self.bias = scale.flatten(), linear.bias.detach()

    def forward(self, x):
        return hz.qlinear(x, None, packed=self.packed, b_scales=self.scale, bias=self.bias,
                          x_dtype="s8", flags=hz.QLINEAR_SYMMETRIC)


class Coded(nn.Module):
    """A linear layer of lattice codes; rows are rotated before, and so is x."""

    def __init__(self, linear, lattice):
        super().__init__()
        w = hz.hadamard(linear.weight.detach())
        codes, t, _, scale = lattice.encode(w, row_scale=True)
        self.vlut = hz.Vlut(lattice)
        self.coded, self.bias = self.vlut.pack(hz.Coded(codes, t, scale, k=w.shape[1])), linear.bias

    def forward(self, x):
        return self.vlut.gemm(self.coded, hz.hadamard(x)) + self.bias


def converted(model, symbols, preset, kind):
    """A copy of a model with other linear layers in its branches."""
    other = Transformer(symbols, preset)
    other.load_state_dict(model.state_dict())
    for branch in other.branches:
        for name, child in list(branch.named_children()):
            if isinstance(child, nn.Linear):
                setattr(branch, name, kind(child))
    return other


def batch(text, generator):
    at = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=generator)
    rows = text[at + torch.arange(CONTEXT + 1)]
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, tokens, targets):
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def train(model, text, steps):
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    for _ in range(steps):
        loss = loss_of(model, *batch(text, generator))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def evaluate(model, text):
    """Bits a character."""
    rows = text[:(len(text) - 1) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    targets = text[1:rows.numel() + 1].view(-1, CONTEXT)
    total = sum(float(loss_of(model, rows[i:i + 64], targets[i:i + 64])) * len(rows[i:i + 64])
                for i in range(0, len(rows), 64))
    return total / len(rows) / math.log(2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--text")
    parser.add_argument("presets", nargs="*", default=["none", "triton", "deepseek_v4"])
    options = parser.parse_args()
    torch.set_num_threads(1)            # the matrices are too small for more
    if options.text:
        with open(options.text, encoding="utf-8") as file:
            text = file.read()
    else:
        from pydoc_data import topics
        text = "".join(topics.topics[key] for key in sorted(topics.topics))
    symbols, codes = np.unique(np.frombuffer(text.encode("latin-1", "replace"), np.uint8),
                               return_inverse=True)
    codes = torch.from_numpy(codes.astype(np.int64))
    seen, unseen = codes[:-8001], codes[-8001:]
    lattices = [hz.Lattice(preset=preset) for preset in ("e8_4_25", "e8_3_25")]
    forms = [("f32", None), ("8 bits", Int8)] + [
        (f"{lattice.info.bits:.2f} bits", lambda linear, lattice=lattice: Coded(linear, lattice))
        for lattice in lattices]
    print(f"{len(seen)} characters of {len(symbols)} kinds, {options.steps} steps")
    print(f"{'preset':14}{'training':>10}" + "".join(f"{name:>12}" for name, _ in forms))
    for preset in options.presets:
        torch.manual_seed(0)
        preset = None if preset == "none" else preset
        model = Transformer(len(symbols), preset)
        start = time.perf_counter()
        train(model, seen, options.steps)
        seconds = time.perf_counter() - start
        results = [evaluate(model if kind is None else
                            converted(model, len(symbols), preset, kind), unseen)
                   for _, kind in forms]
        print(f"{preset or 'none':14}{seconds:8.1f} s" + "".join(f"{b:12.3f}" for b in results),
              flush=True)


if __name__ == "__main__":
    main()
