#!/bin/sh
# torch_e8m0_sign.sh - PyTorch's cast to float8_e8m0fnu drops the sign; ml_dtypes' makes zero NaN
# SPDX-License-Identifier: BSD-2-Clause
#
# float8_e8m0fnu is the scale of a block in MX formats: a power of two from 2^-127 to 2^127 (codes 0 to
# 254) or NaN (255). It has no sign and no zero. Most people expect that two libraries agree about what
# it cannot express: a negative number is an error or NaN, and zero is the smallest scale.
#
# What happens: for PyTorch -1 becomes 1 (code 127), as if it were positive, and 0 becomes 2^-127 (code
# 0). For ml_dtypes -1 is NaN and so is 0, also -0. Both round to the nearest power of two, halves up
# (1.5 is 2, 0.75 is 1), and both make NaN of numbers that round to 2^128 and of Inf.
#
# Why it matters: a block of zeros has scale 0 before the cast. With ml_dtypes its scale is NaN, so the
# whole block decodes to NaN; with PyTorch it is a block of zeros. A negative scale, which is a mistake,
# is seen with one and not with the other. Take scales from the exponent, not by a cast, and check signs.
#
# Seen with torch 2.11.0, ml_dtypes 0.6.0 and NumPy 2.3.5 (PyPI), 2026-11-29, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.11.0 ml_dtypes==0.6.0 numpy==2.3.5
cat >cast.py <<'END'
import ml_dtypes
import numpy as np
import torch

x = np.array([0, -0.0, -1, 1, 1.5, 0.75, 2.0**-130, 3e38, np.inf, np.nan], np.float32)
print('of       ', *x)
print('torch    ', *torch.from_numpy(x).to(torch.float8_e8m0fnu).view(torch.uint8).tolist())
print('ml_dtypes', *x.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8))
END
venv/bin/python cast.py >output 2>/dev/null
cat output
cat >expected <<'END'
of        0.0 -0.0 -1.0 1.0 1.5 0.75 7.34684e-40 3e+38 inf nan
torch     0 0 127 127 128 127 0 255 255 255
ml_dtypes 255 255 255 127 128 127 0 255 255 255
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
