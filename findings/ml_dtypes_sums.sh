#!/bin/sh
# ml_dtypes_sums.sh - NumPy's sum and mean of ml_dtypes arrays keep their totals in the format itself
# SPDX-License-Identifier: BSD-2-Clause
#
# ml_dtypes adds bfloat16, FP8, FP4 and 4-bit integers to NumPy. Most people expect of them what NumPy
# does with its own small types: the sum of float16 is added in pairs, its mean is taken in float32, and
# sums of int8 are int64. So 1000 ones have the sum 1000 and the mean 1.
#
# What happens: each addition is rounded to the format. Sums stop where 1 is less than half a step: at
# 256 in bfloat16, 16 in float8_e4m3fn, 8 in float8_e5m2, 4 in float4_e2m1fn; the mean of 1000 ones in
# bfloat16 is 0.256. float8_e8m0fnu begins with 0, which it cannot express, so every sum is NaN. int4
# wraps: the sum is -8 and the mean 0. Matrix products of the same ones, by @, are float32 for floats and
# give 1000; int4's is int8 and wraps, as that of int8 does.
#
# Why it matters: statistics of weights or of quantization errors, and checksums, are wrong without a
# warning from some hundred elements on, and loss curves look too good. Convert to float32 or int32 before
# any sum, mean, var or cumsum.
#
# Seen with ml_dtypes 0.6.0 and NumPy 2.3.5 (PyPI), 2026-11-30, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet ml_dtypes==0.6.0 numpy==2.3.5
cat >sums.py <<'END'
import ml_dtypes
import numpy as np

for name in ('float16', 'int8', 'bfloat16', 'float8_e4m3fn', 'float8_e5m2', 'float8_e8m0fnu',
             'float4_e2m1fn', 'int4'):
    ones = np.ones(1000, getattr(np, name, None) or getattr(ml_dtypes, name))
    print(f'{name}: sum {float(ones.sum()):g} mean {float(ones.mean()):.3g}',
          f'product {float((ones[None] @ ones[:, None])[0, 0]):g}')
END
venv/bin/python -W ignore sums.py >output
cat output
cat >expected <<'END'
float16: sum 1000 mean 1 product 1000
int8: sum 1000 mean 1 product -24
bfloat16: sum 256 mean 0.256 product 1000
float8_e4m3fn: sum 16 mean 0.0156 product 1000
float8_e5m2: sum 8 mean 0.00781 product 1000
float8_e8m0fnu: sum nan mean nan product 1000
float4_e2m1fn: sum 4 mean 0 product 1000
int4: sum -8 mean 0 product -24
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
