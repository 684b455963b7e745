#!/bin/sh
# bfloat16_gpu_nan.sh - faiss and numkong round the NaN that an NVIDIA GPU makes to the bfloat16 -0
# SPDX-License-Identifier: BSD-2-Clause
#
# An index of faiss may keep vectors as bfloat16 (QT_bf16), and numkong has a scalar type bfloat16. Most
# people expect that a NaN stays NaN: then its distances are NaN, the vector is never among the nearest,
# and the broken one is seen; so it is with float32 and float16.
#
# What happens: float32 is rounded by adding 0x8000 to its bits and taking the upper half, with no test
# for NaN. A NaN whose payload is large carries over into the sign: 0x7fffffff becomes -0 and 0xffffffff
# becomes +0. The NaN of x86-64, 0x7fc00000, stays NaN. 0x7fffffff is the one that NVIDIA GPUs make of
# 0/0, of Inf - Inf and of every operation on a NaN (PTX ISA, "floating-point instructions"). A NaN with
# a small payload, 0x7f800001, becomes Inf in faiss. ml_dtypes, PyTorch, onnxruntime and gguf test for
# NaN. faiss also rounds the middle of two numbers up and not to even: 1 + 2^-8 becomes 1.0078125.
#
# Why it matters: embeddings that a GPU computed with an overflow are all NaN. In such an index they are
# vectors of zeros: they are found, with ordinary distances, in front of others that are good. A test
# whose NaNs NumPy made does not show it. Look for NaN in float32, before vectors are added.
#
# Seen with faiss-cpu 1.15.1, numkong 7.8.6, ml_dtypes 0.6.0 and NumPy 2.3.5 (PyPI), 2026-12-01, x86_64
# Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet faiss-cpu==1.15.1 numkong==7.8.6 ml_dtypes==0.6.0 numpy==2.3.5
cat >nan.py <<'END'
import faiss
import ml_dtypes
import numkong
import numpy as np

for bits in 0x7fc00000, 0x7fffffff, 0xffffffff, 0x7f800001, 0x3f808000:
    x = np.array([[bits]], np.uint32).view(np.float32)
    found = []
    for name in 'QT_bf16', 'QT_fp16':
        quantizer = faiss.ScalarQuantizer(1, getattr(faiss.ScalarQuantizer, name))
        found.append(f'faiss {name} {quantizer.decode(quantizer.compute_codes(x))[0, 0]},')
    print(hex(bits), *found, f'numkong {float(numkong.bfloat16(float(x[0, 0])))},',
          f'ml_dtypes {x.astype(ml_dtypes.bfloat16)[0, 0]}')

vectors = np.array([[1, 1], [9, 9], [0, 0]], np.float32)
vectors[2] = np.array([0x7fffffff], np.uint32).view(np.float32)      # from a GPU
for name in 'QT_bf16', 'QT_fp16':
    index = faiss.IndexScalarQuantizer(2, getattr(faiss.ScalarQuantizer, name), faiss.METRIC_L2)
    index.train(vectors)
    index.add(vectors)
    distance, label = index.search(np.array([[1, 2]], np.float32), 3)
    print(name, 'nearest first:', *(f'{n} at {d:g}' for n, d in zip(label[0], distance[0]) if n >= 0))
END
venv/bin/python -W ignore nan.py >output 2>/dev/null
cat output
cat >expected <<'END'
0x7fc00000 faiss QT_bf16 nan, faiss QT_fp16 nan, numkong nan, ml_dtypes nan
0x7fffffff faiss QT_bf16 -0.0, faiss QT_fp16 nan, numkong -0.0, ml_dtypes nan
0xffffffff faiss QT_bf16 0.0, faiss QT_fp16 nan, numkong 0.0, ml_dtypes nan
0x7f800001 faiss QT_bf16 inf, faiss QT_fp16 nan, numkong nan, ml_dtypes nan
0x3f808000 faiss QT_bf16 1.0078125, faiss QT_fp16 1.00390625, numkong 1.0, ml_dtypes 1.0
QT_bf16 nearest first: 0 at 1 2 at 5 1 at 113
QT_fp16 nearest first: 0 at 1 1 at 113
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
