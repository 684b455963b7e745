#!/bin/sh
# bitsandbytes_zeros.sh - zeros in a block of tiny numbers decode to the block's largest magnitude
# SPDX-License-Identifier: BSD-2-Clause
#
# bitsandbytes keeps 8-bit and NF4 codes with the largest magnitude of each block. Most people expect a
# zero to decode to zero whatever else is in its block, and the element of largest magnitude to decode to
# itself, because it is what the block is divided by.
#
# What happens on a CPU: if the largest magnitude is below 2^-128 (2.9e-39), zeros decode to -0.993 times
# it in 8 bits, as if 0 times an infinite reciprocal, NaN, had got code 0. In NF4 zeros stay zeros, but
# below about 1e-38 the largest element shrinks, to 0.25 of itself at 2.9e-39, as if the divisor had a
# least value. The 8-bit code has 1 but not -1, so that the largest element decodes to itself if it is
# positive and to 0.993 of itself if it is negative, in blocks of every size.
#
# Why it matters: states of optimizers that have faded, or weights of a pruned layer, get values where
# there were none, and negative extremes shrink at each step that codes them again. Treat blocks of
# subnormal numbers as zero before coding.
#
# Seen with bitsandbytes 0.50.2, torch 2.11.0 and NumPy 2.3.5 (PyPI) on a CPU, 2026-11-30, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet bitsandbytes==0.50.2 torch==2.11.0 numpy==2.3.5
cat >zeros.py <<'END'
import torch
import bitsandbytes.functional as bnb

def decoded(largest, code):
    x = torch.zeros(64)
    x[0] = largest
    if code == "8 bits":
        y = bnb.dequantize_blockwise(*bnb.quantize_blockwise(x, blocksize=64))
    else:
        y = bnb.dequantize_4bit(*bnb.quantize_4bit(x, blocksize=64, quant_type="nf4"))
    y = y.flatten() / abs(largest)
    return f"{y[0].item():6.3f} {y[1].item():6.3f}"

print("largest, a zero beside it: decoded, in units of the largest magnitude")
for largest in 1.0, -1.0, 3e-39, 2.9e-39, -2.9e-39:
    print(f"{largest:8.1e}", *(f"{code}: {decoded(largest, code)}" for code in ("8 bits", "NF4")))
END
venv/bin/python zeros.py >output 2>/dev/null
cat output
cat >expected <<'END'
largest, a zero beside it: decoded, in units of the largest magnitude
 1.0e+00 8 bits:  1.000  0.000 NF4:  1.000  0.000
-1.0e+00 8 bits: -0.993  0.000 NF4: -1.000  0.000
 3.0e-39 8 bits:  1.000  0.000 NF4:  0.338  0.000
 2.9e-39 8 bits:  1.000 -0.993 NF4:  0.246  0.000
-2.9e-39 8 bits: -0.993 -0.993 NF4: -0.284  0.000
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
