#!/bin/sh
# hyper_connections_sinkhorn_nan.sh - hyper-connections' Sinkhorn has NaN gradients for finite logits
# SPDX-License-Identifier: BSD-2-Clause
#
# mHCv2.sinkhorn_knopps() makes a doubly stochastic matrix of logits: it subtracts the largest logit of
# each column, takes exp(), and divides columns and rows by their sums, F.normalize(p=1), whose floor of
# 1e-12 keeps 0 / 0 out. Most people expect finite results and gradients of finite logits, and rows and
# columns that sum to 1.
#
# What happens: where all of a row lies far below the other rows, about 104 in f32, its exp() are 0, its
# sum stays 0, and the floor leaves a row of zeros: that residual stream is lost. Backward, each of 20
# iterations multiplies the gradient of that row by 1e12; it overflows, and Inf times 0 makes the
# gradients NaN. log_domain_sinkhorn_knopps() of the same module has neither: there a constant that is
# added to a row cancels, as it does in exact arithmetic.
#
# Why it matters: alpha and bias are trained without bounds, and one token with such logits ends a run.
# Use log_domain_sinkhorn=True.
#
# Seen with hyper-connections 0.4.11, torch 2.11.0 and NumPy 2.4.6 (PyPI), 2026-11-30, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet hyper-connections==0.4.11 torch==2.11.0 numpy==2.4.6
cat >sinkhorn.py <<'END'
import torch
from hyper_connections.mHCv2 import log_domain_sinkhorn_knopps, sinkhorn_knopps

for function in (sinkhorn_knopps, log_domain_sinkhorn_knopps):
    for low in (-80., -120.):
        z = torch.tensor([[0., 0.], [low, low]], requires_grad=True)
        p = function(z)
        (p * torch.tensor([[1., 2.], [3., 5.]])).sum().backward()
        print(function.__name__, f'second row {low:.0f}:', *p.flatten().tolist(), 'gradient',
              'NaN' if z.grad.isnan().any() else 'finite')
END
venv/bin/python -W ignore sinkhorn.py >output 2>errors || { cat errors >&2; exit 1; }
cat output
cat >expected <<'END'
sinkhorn_knopps second row -80: 0.5 0.5 0.5 0.5 gradient finite
sinkhorn_knopps second row -120: 0.5 0.5 0.0 0.0 gradient NaN
log_domain_sinkhorn_knopps second row -80: 0.5 0.5 0.5 0.5 gradient finite
log_domain_sinkhorn_knopps second row -120: 0.5 0.5 0.5 0.5 gradient finite
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
