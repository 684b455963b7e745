#!/bin/sh
# ml_dtypes_double_rounding.sh - ml_dtypes rounds double and int64 to float first, then to the format
# SPDX-License-Identifier: BSD-2-Clause
#
# Tests compute a result in double and cast it to bfloat16 or FP8 to get the value nearest to the exact
# one. Most people expect one rounding, to nearest and ties to even, as NumPy's own cast from float64 to
# float16 does.
#
# What happens: the cast rounds to float32 and then to the format. A number a little above the middle of
# two neighbours becomes the middle by the first rounding and goes to the even one by the second: 1 +
# 2^-8 + 2^-40 becomes 1 in bfloat16, though 1.0078125 is nearer. So do FP8 and FP4, and int64: 2^24 +
# 2^16 + 1 becomes 2^24. float64 to float16 is right.
#
# Why it matters: a library that rounds once differs from such a reference in the last bit, rarely
# enough (once in 2^17 for bfloat16 of even spread) that tests of random numbers pass for months, and the
# library gets the blame. Compare with the two neighbours, or allow half a unit and 2^-24.
#
# Seen with ml_dtypes 0.6.0 and NumPy 2.3.5 (PyPI), 2026-11-30, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet ml_dtypes==0.6.0 numpy==2.3.5
cat >rounding.py <<'END'
import ml_dtypes
import numpy as np

above = 2.0**-40
for name, middle, low, high in (('float16', 1 + 2.0**-11, 1, 1 + 2.0**-10),
                                ('bfloat16', 1 + 2.0**-8, 1, 1 + 2.0**-7),
                                ('float8_e4m3fn', 1 + 2.0**-4, 1, 1.125),
                                ('float8_e5m2', 1.125, 1, 1.25),
                                ('float4_e2m1fn', 0.25, 0, 0.5)):
    dtype = getattr(np, name, None) or getattr(ml_dtypes, name)
    x = np.float64(middle + above)
    assert high - x < x - low
    print(f'{name}: {middle:g} + 2^-40 becomes {float(x.astype(dtype)):g}, the nearest is {high:g}')
x = np.int64(2**24 + 2**16 + 1)
print(f'bfloat16: the integer {x} becomes {float(x.astype(ml_dtypes.bfloat16)):.0f},',
      'the nearest is', 2**24 + 2**17)
END
venv/bin/python rounding.py >output
cat output
cat >expected <<'END'
float16: 1.00049 + 2^-40 becomes 1.00098, the nearest is 1.00098
bfloat16: 1.00391 + 2^-40 becomes 1, the nearest is 1.00781
float8_e4m3fn: 1.0625 + 2^-40 becomes 1, the nearest is 1.125
float8_e5m2: 1.125 + 2^-40 becomes 1, the nearest is 1.25
float4_e2m1fn: 0.25 + 2^-40 becomes 0, the nearest is 0.5
bfloat16: the integer 16842753 becomes 16777216, the nearest is 16908288
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
