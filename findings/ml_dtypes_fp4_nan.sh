#!/bin/sh
# ml_dtypes_fp4_nan.sh - ml_dtypes casts NaN to zero in float4_e2m1fn, with the sign turned
# SPDX-License-Identifier: BSD-2-Clause
#
# float4_e2m1fn has no NaN, so a cast has to choose. Most people expect what PTX defines for the
# hardware's conversion (cvt.rn.satfinite.e2m1x2.f32): NaN becomes the largest number, +6, so that it
# stays visible; or an error.
#
# What happens: ml_dtypes gives zeros, and their sign is not that of the NaN: NaN becomes -0 (code 8),
# NaN with the sign bit +0 (code 0). +-Inf saturate to +-6, as the hardware's do. float8_e8m0fnu, the
# scales of the same blocks, keeps NaN (code 255). float6_e2m3fn and float6_e3m2fn do as
# float4_e2m1fn.
#
# Why it matters: a quantizer or a test that takes ml_dtypes as the reference for FP4 turns a NaN of a
# broken layer into a zero without a word, and its codes differ from those of a GPU in exactly these
# elements. Look for NaN before the cast.
#
# Seen with ml_dtypes 0.6.0 and NumPy 2.3.5 (PyPI), 2026-11-29, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet ml_dtypes==0.6.0 numpy==2.3.5
cat >cast.py <<'END'
import ml_dtypes
import numpy as np

bits = np.array([0x7fc00000, 0xffc00000, 0x7f800000, 0xff800000, 0x40e00000], np.uint32)
x = bits.view(np.float32)
for name in 'float4_e2m1fn', 'float6_e2m3fn', 'float6_e3m2fn':
    codes = x.astype(getattr(ml_dtypes, name)).view(np.uint8)
    print(name, 'of NaN, -NaN, Inf, -Inf, 7:', *codes)
print('float8_e8m0fnu of NaN:', *x[:1].astype(ml_dtypes.float8_e8m0fnu).view(np.uint8))
END
venv/bin/python cast.py >output 2>/dev/null
cat output
cat >expected <<'END'
float4_e2m1fn of NaN, -NaN, Inf, -Inf, 7: 8 0 7 15 7
float6_e2m3fn of NaN, -NaN, Inf, -Inf, 7: 32 0 31 63 30
float6_e3m2fn of NaN, -NaN, Inf, -Inf, 7: 32 0 31 63 23
float8_e8m0fnu of NaN: 255
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
