#!/bin/sh
# hqq_small_groups.sh - HQQ is no more exact in 8 bits than in 4 for weights below 1e-4
# SPDX-License-Identifier: BSD-2-Clause
#
# HQQ quantizes a group of weights, here 64, to codes from its least to its greatest: a step is the range
# divided by 15 in 4 bits and by 255 in 8. Most people expect the relative error to be the same for
# weights of any size, and 8 bits to be 17 times as exact as 4.
#
# What happens: a step is never below 1 / 20000, "to avoid half-precision problems", and all numbers may
# be float32. In 8 bits that is so for ranges below 0.0128: normal weights of size 0.001 have an error of
# 1.4 % instead of 0.5, those of 0.0001 14 %, as in 4 bits. Where the range is at most 0.0001 the step is
# 1, and all weights of the group become one number: that of the least weight without the optimizer of
# zero points, an error of 259 %, and about 0 with it, the default. Nothing is said.
#
# Why it matters: layers with a small initialization, adapters that begin at 0, and matrices whose factor
# was moved into a norm have such weights; a measurement with weights of size 1 does not show it.
# Multiply the matrix by a power of two, and its outputs by the inverse.
#
# Seen with hqq 0.2.8.post1 and torch 2.15.0 (PyPI), 2026-11-30, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet hqq==0.2.8.post1 torch==2.15.0
cat >small.py <<'END'
import torch
from hqq.core.quantize import Quantizer

weights = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
for size in 1, 1e-2, 1e-3, 1e-4, 1e-5:
    errors = []
    for optimize in False, True:
        for bits in 8, 4:
            w = weights * size
            codes, meta = Quantizer.quantize(w, nbits=bits, group_size=64, axis=1, optimize=optimize,
                                             device='cpu', compute_dtype=torch.float32)
            y = Quantizer.dequantize(codes, meta).float()
            errors.append(f'{float((y - w).norm() / w.norm()):5.1%}')
    print(f'weights of size {size:g}: error in 8 bits {errors[0]}, 4 bits {errors[1]};',
          f'with the optimizer {errors[2]}, {errors[3]}')
END
venv/bin/python -W ignore small.py >output 2>/dev/null
cat output
cat >expected <<'END'
weights of size 1: error in 8 bits  0.5%, 4 bits  8.9%; with the optimizer  0.5%,  8.6%
weights of size 0.01: error in 8 bits  0.5%, 4 bits  8.9%; with the optimizer  0.5%,  8.6%
weights of size 0.001: error in 8 bits  1.4%, 4 bits  8.9%; with the optimizer  1.4%,  8.6%
weights of size 0.0001: error in 8 bits 14.3%, 4 bits 14.3%; with the optimizer 13.7%, 13.7%
weights of size 1e-05: error in 8 bits 259.3%, 4 bits 259.3%; with the optimizer 99.1%, 99.1%
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
