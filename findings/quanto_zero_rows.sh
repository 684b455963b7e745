#!/bin/sh
# quanto_zero_rows.sh - a row of zeros becomes NaN in optimum-quanto's FP8 weights, and stays 0 in int8
# SPDX-License-Identifier: BSD-2-Clause
#
# quantize() and freeze() of optimum-quanto replace the weights of a layer by codes with a scale for each
# row. Rows of zeros are ordinary: pruned channels, layers that begin at 0. Most people expect zeros to
# decode to zero in each format.
#
# What happens: the scale of such a row is 0, and the codes are 0 / 0. Cast to int8 that NaN happens to
# be some code, and times 0 it is 0; so are int4 and int2, in groups. FP8 has NaN: with qfloat8_e4m3fn
# and qfloat8_e5m2 that output of the layer is NaN for every input, and the next layer makes all outputs
# NaN. Nothing is said by quantize() or freeze().
#
# Why it matters: a model that is right in int8 and in float is NaN as a whole in FP8 because of one row
# that does nothing. Look for rows of zeros before, or for NaN in the dequantized weights after.
#
# Seen with optimum-quanto 0.2.7 and torch 2.15.0 (PyPI), 2026-11-30, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet optimum-quanto==0.2.7 torch==2.15.0 numpy==2.4.6
cat >zero.py <<'END'
import torch
from optimum import quanto

for name in 'qint8', 'qint4', 'qint2', 'qfloat8_e4m3fn', 'qfloat8_e5m2':
    first, second = torch.nn.Linear(128, 8), torch.nn.Linear(8, 2)
    with torch.no_grad():
        first.weight.fill_(1)
        first.weight[3] = 0             # one channel of eight was pruned
        first.bias.zero_()
    model = torch.nn.Sequential(first, second)
    quanto.quantize(model, weights=getattr(quanto, name))
    quanto.freeze(model)
    with torch.no_grad():
        y, z = model[0](torch.ones(1, 128)), model(torch.ones(1, 128))
    print(f'{name}: outputs {y[0, 2]:g} and, of the row of zeros, {y[0, 3]:g}; NaN in the next layer:',
          *(int(n) for n in z[0].isnan()))
END
venv/bin/python -W ignore zero.py >output 2>/dev/null
cat output
cat >expected <<'END'
qint8: outputs 128 and, of the row of zeros, 0; NaN in the next layer: 0 0
qint4: outputs 128 and, of the row of zeros, 0; NaN in the next layer: 0 0
qint2: outputs 128 and, of the row of zeros, 0; NaN in the next layer: 0 0
qfloat8_e4m3fn: outputs 128 and, of the row of zeros, nan; NaN in the next layer: 1 1
qfloat8_e5m2: outputs 128 and, of the row of zeros, nan; NaN in the next layer: 1 1
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
