#!/bin/sh
# safetensors_fp4_shape.sh - an FP4 tensor has twice the columns in a safetensors file as in PyTorch
# SPDX-License-Identifier: BSD-2-Clause
#
# PyTorch's float4_e2m1fn_x2 holds two numbers of four bits in an element, and a tensor of [2, 3] is six
# bytes. Most people expect the shape [2, 3] in the header of the file that safetensors.torch writes, as
# for all other dtypes.
#
# What happens: the header says dtype F4 and shape [2, 6], the numbers, not the bytes; load_file() gives
# [2, 3] again. Codes that were packed into uint8, as most quantizers do, have [2, 3] in the header. The
# module safetensors.numpy lists F4 and its shape but cannot read the tensor: numpy has no such dtype.
#
# Why it matters: a reader that takes its layout from the header meets the same six bytes as [2, 6] and
# as [2, 3], depending on the dtype, and the scales of groups of 16 or 32 fit only one of them.
#
# Seen with safetensors 0.8.0, torch 2.11.0 and NumPy 2.3.5 (PyPI), 2026-11-29, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet safetensors==0.8.0 torch==2.11.0 numpy==2.3.5
cat >shape.py <<'END'
import json

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

bytes_ = torch.arange(6, dtype=torch.uint8).view(2, 3)
for dtype in torch.uint8, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2:
    save_file({'w': bytes_.view(dtype)}, 'file.safetensors')
    with open('file.safetensors', 'rb') as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), 'little')))['w']
    print(dtype, 'in the file', header['dtype'], header['shape'], header['data_offsets'],
          'loaded', list(load_file('file.safetensors')['w'].shape))
with safe_open('file.safetensors', 'np') as file:
    print('numpy:', file.get_slice('w').get_dtype(), file.get_slice('w').get_shape(), end=' ')
    try:
        print(file.get_tensor('w'))
    except AttributeError as error:
        print(error)
END
venv/bin/python shape.py >output 2>/dev/null
cat output
cat >expected <<'END'
torch.uint8 in the file U8 [2, 3] [0, 6] loaded [2, 3]
torch.float8_e8m0fnu in the file F8_E8M0 [2, 3] [0, 6] loaded [2, 3]
torch.float4_e2m1fn_x2 in the file F4 [2, 6] [0, 6] loaded [2, 3]
numpy: F4 [2, 6] module 'numpy' has no attribute 'float4_e2m1fn_x2'
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
