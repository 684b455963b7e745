#!/bin/sh
# gguf_mxfp4_special.sh - gguf writes a block with NaN or Inf as 32 zeros in MXFP4, and reads scale 255
# as a number
# SPDX-License-Identifier: BSD-2-Clause
#
# A block of MXFP4 is 32 codes of four bits and a scale, a power of two in the format E8M0. In that
# format of the Open Compute Project (OCP Microscaling 1.0) the scale 255 is NaN, and a block with it is
# NaN. Most people expect that a NaN or an Inf among 32 weights makes the block NaN, as gguf's own
# Q8_0 does, or is an error; and that a file with scale 255 is read as NaN.
#
# What happens: gguf.quants.quantize() to MXFP4 gives 32 codes 0 with scale 0, so all numbers beside
# the NaN or the Inf become zero, too. gguf.quants.dequantize() takes scale 255 for 2^128: code 1, a
# half, is 2^127, and code 0 is 0.
#
# Why it matters: a broken weight vanishes with its neighbours and the file looks sound; blocks that
# another program marked as NaN are read as numbers. Look for NaN and Inf before the conversion, and
# compare readers on scale 255 before a file is exchanged.
#
# Seen with gguf 0.19.0 and NumPy 2.3.5 (PyPI), 2026-11-29, x86_64 Linux.
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

for kind in Type.Q8_0, Type.MXFP4:
    for special in np.nan, np.inf:
        x = np.ones((1, 32), np.float32)
        x[0, 3] = special
        y = quants.dequantize(quants.quantize(x, kind), kind)
        print(f'{kind.name}: 31 ones and {special} come back as', *np.unique(y))
block = np.zeros((1, 17), np.uint8)
block[0, 0] = 255
block[0, 1:] = 0x10  # codes 0 in the low half of each byte, 1 in the high half
print('MXFP4: scale 255, codes 0 and 1:', *np.unique(quants.dequantize(block, Type.MXFP4)))
END
venv/bin/python -W ignore blocks.py >output
cat output
cat >expected <<'END'
Q8_0: 31 ones and nan come back as nan
Q8_0: 31 ones and inf come back as nan
MXFP4: 31 ones and nan come back as 0.0
MXFP4: 31 ones and inf come back as 0.0
MXFP4: scale 255, codes 0 and 1: 0.0 1.7014118e+38
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
