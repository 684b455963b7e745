#!/bin/sh
# torch_e4m3_overflow.sh - a float above 464 cast to float8_e4m3fn is NaN in PyTorch 2.11 and 448 in 2.15
# SPDX-License-Identifier: BSD-2-Clause
#
# float8_e4m3fn has numbers to 448 and NaN, and no infinity. Most people expect one answer of one library
# for what is too large, and know NaN as PyTorch's: code that quantizes clamps first, or looks for NaN
# afterwards.
#
# What happens: on a CPU 2.11.0 casts all that rounds beyond 448 to NaN, as ml_dtypes does, and 2.15.0 to
# +-448, also +-Inf; NaN stays NaN. The other three FP8 formats are as before: float8_e5m2 overflows to
# Inf, float8_e4m3fnuz and float8_e5m2fnuz to NaN. There is no argument to choose.
#
# Why it matters: after an update a scale that is too small, or a layer that diverges to Inf, is no
# longer seen as NaN in e4m3 but gives numbers that look right; and codes differ between machines with
# different versions, and from JAX and NumPy. Clamp before the cast, and look for Inf before it.
#
# Seen with torch 2.11.0 and 2.15.0, ml_dtypes 0.6.0 and NumPy 2.3.5 (PyPI), 2026-11-30, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
cat >cast.py <<'END'
import sys

import numpy as np

x = np.array([464, 465, 1e9, -1e9, np.inf, -np.inf, np.nan], np.float32)
if sys.argv[1] == 'ml_dtypes':
    import ml_dtypes
    print('float32:', *x)
    print('ml_dtypes, float8_e4m3fn:', *x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32))
else:
    import torch
    for name in 'float8_e4m3fn', 'float8_e5m2', 'float8_e4m3fnuz', 'float8_e5m2fnuz':
        y = torch.from_numpy(x).to(getattr(torch, name))
        print(f'torch {sys.argv[1]}, {name}:', *y.float().tolist())
END
for version in 2.11.0 2.15.0; do
	rm -rf venv
	python3 -m venv venv
	venv/bin/pip install --quiet torch==$version ml_dtypes==0.6.0 numpy==2.3.5
	if [ $version = 2.11.0 ]; then
		venv/bin/python -W ignore cast.py ml_dtypes
	fi
	venv/bin/python -W ignore cast.py $version
done >output 2>/dev/null
cat output
cat >expected <<'END'
float32: 464.0 465.0 1e+09 -1e+09 inf -inf nan
ml_dtypes, float8_e4m3fn: 448.0 nan nan nan nan nan nan
torch 2.11.0, float8_e4m3fn: 448.0 nan nan nan nan nan nan
torch 2.11.0, float8_e5m2: 448.0 448.0 inf -inf inf -inf nan
torch 2.11.0, float8_e4m3fnuz: nan nan nan nan nan nan nan
torch 2.11.0, float8_e5m2fnuz: 448.0 448.0 nan nan nan nan nan
torch 2.15.0, float8_e4m3fn: 448.0 448.0 448.0 -448.0 448.0 -448.0 nan
torch 2.15.0, float8_e5m2: 448.0 448.0 inf -inf inf -inf nan
torch 2.15.0, float8_e4m3fnuz: nan nan nan nan nan nan nan
torch 2.15.0, float8_e5m2fnuz: 448.0 448.0 nan nan nan nan nan
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
