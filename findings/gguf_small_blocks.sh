#!/bin/sh
# gguf_small_blocks.sh - gguf's Q8_0 is less exact than its Q4_0 for weights below about 1e-4
# SPDX-License-Identifier: BSD-2-Clause
#
# Q8_0 has 8 bits for a weight and Q4_0 4 bits, each with one float16 scale for 32 weights. Most people
# expect Q8_0 to be the more exact one for any weights, and the largest weight of a block to come back to
# within half a step, 0.4 %.
#
# What happens: the scale is the largest magnitude by 127 in Q8_0 and by 8 in Q4_0, so Q8_0's is 16 times
# smaller and is a subnormal float16 below 0.0078. Codes are made with the exact scale, and decoded with
# the rounded one. At 1e-4 a block of Q8_0 is 1.6 % too small, of Q4_0 0.1 % too large; at 1e-5 Q8_0 is 24 %
# too small, and below 3.7e-6 it is 0, without a warning. At the other end the scale of Q4_0 is Inf above
# 5.3e5 and that of Q8_0 above 8.4e6, so that zeros decode to NaN.
#
# Why it matters: the error has one sign for a whole block, which averages do not cure, and it is in the
# format that is taken for lossless. Layers with small weights, such as a LoRA's or those next to a large
# norm weight, are better kept in BF16.
#
# Seen with gguf 0.19.0 and NumPy 2.3.5 (PyPI), 2026-11-30, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet gguf==0.19.0 numpy==2.3.5
cat >blocks.py <<'END'
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

print('a block of 31 equal weights and a 0: the weight, the 0 come back as, in units of the weight')
for weight in 1, 1e-2, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3.7e-6, 6e5, 1e7:
    x = np.full((1, 32), weight, np.float32)
    x[0, 31] = 0
    print(f'{weight:7.1e}', end='')
    for kind in Type.Q8_0, Type.Q5_0, Type.Q4_0:
        y = quants.dequantize(quants.quantize(x, kind), kind)[0] / np.float32(weight)
        print(f'  {kind.name} {y[0]:.3f} {abs(y[31]):.0f}', end='')
    print()
END
venv/bin/python -W ignore blocks.py >output
cat output
cat >expected <<'END'
a block of 31 equal weights and a 0: the weight, the 0 come back as, in units of the weight
1.0e+00  Q8_0 1.000 0  Q5_0 1.000 0  Q4_0 1.000 0
1.0e-02  Q8_0 1.000 0  Q5_0 1.000 0  Q4_0 1.000 0
1.0e-03  Q8_0 0.999 0  Q5_0 1.000 0  Q4_0 1.000 0
3.0e-04  Q8_0 1.009 0  Q5_0 1.001 0  Q4_0 1.000 0
1.0e-04  Q8_0 0.984 0  Q5_0 1.001 0  Q4_0 1.001 0
3.0e-05  Q8_0 1.009 0  Q5_0 0.985 0  Q4_0 1.001 0
1.0e-05  Q8_0 0.757 0  Q5_0 0.954 0  Q4_0 1.001 0
3.7e-06  Q8_0 0.000 0  Q5_0 1.031 0  Q4_0 1.031 0
6.0e+05  Q8_0 1.000 0  Q5_0 1.000 0  Q4_0 inf nan
1.0e+07  Q8_0 inf nan  Q5_0 inf nan  Q4_0 inf nan
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
