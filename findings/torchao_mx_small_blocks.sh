#!/bin/sh
# torchao_mx_small_blocks.sh - torchao's MX formats halve blocks whose largest number is below 2^-118
# SPDX-License-Identifier: BSD-2-Clause
#
# A block of an MX format is 32 codes and a scale of 8 bits, 2^-127 to 2^127. Most people expect that a
# power of two survives a quantization to MXFP8 with its value, down to the smallest scale, or is
# rounded to zero.
#
# What happens: MXTensor.to_mx() divides a block by no less than 2^-126, the smallest normal number of
# f32, but writes 0 as its scale, which stands for 2^-127 by the specification and in
# MXTensor.dequantize(). So every block whose largest magnitude is below 2^-118 (e4m3: 2^-126 times
# 2^8) comes back at half its size, in f32 and in bf16. From 2^-118 on all is right.
#
# Why it matters: gradients and second moments of optimizers live at such sizes, and a factor of two is
# not rounding. Two implementations that both follow the specification differ from torchao in exactly
# these blocks. Scale small tensors before the conversion.
#
# Seen with torchao 0.18.0 and torch 2.15.0 (PyPI), 2026-11-29, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.15.0 torchao==0.18.0 numpy==2.3.5
cat >blocks.py <<'END'
import torch
from torchao.prototype.mx_formats.mx_tensor import MXTensor

for dtype in torch.float32, torch.bfloat16:
    for exponent in -100, -117, -118, -119, -126, -130:
        x = torch.full((1, 32), 2.0**exponent, dtype=dtype)
        mx = MXTensor.to_mx(x, torch.float8_e4m3fn, 32)
        factor = mx.dequantize(torch.float32)[0, 0].item() / 2.0**exponent
        print(dtype, f'2^{exponent}: scale', mx.scale.view(torch.uint8).item(), 'comes back times', factor)
END
venv/bin/python -W ignore blocks.py >output 2>/dev/null
cat output
cat >expected <<'END'
torch.float32 2^-100: scale 19 comes back times 1.0
torch.float32 2^-117: scale 2 comes back times 1.0
torch.float32 2^-118: scale 1 comes back times 1.0
torch.float32 2^-119: scale 0 comes back times 0.5
torch.float32 2^-126: scale 0 comes back times 0.5
torch.float32 2^-130: scale 0 comes back times 0.5
torch.bfloat16 2^-100: scale 19 comes back times 1.0
torch.bfloat16 2^-117: scale 2 comes back times 1.0
torch.bfloat16 2^-118: scale 1 comes back times 1.0
torch.bfloat16 2^-119: scale 0 comes back times 0.5
torch.bfloat16 2^-126: scale 0 comes back times 0.5
torch.bfloat16 2^-130: scale 0 comes back times 0.5
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
