#!/bin/sh
# openvino_bfloat16.sh - OpenVINO makes bfloat16 constants too small, and hands bfloat16 out as float16
# SPDX-License-Identifier: BSD-2-Clause
#
# OpenVINO converts between float32 and bfloat16 while it folds constants, in constants that are made from
# arrays, and in Convert operations as the model runs. Most people expect the same rounding of all three,
# to nearest, and results with a dtype that has the numbers, or an error as NumPy has no bfloat16.
#
# What happens: Convert rounds to nearest when the CPU runs it. In constants and folded Converts only
# numbers whose bit 16 is 1 are rounded to nearest; the others lose their low 16 bits. 1/3 becomes 0.334
# when run and 0.332 when folded, and weights from 1 to 2 shrink by 0.0019, a quarter of a step, on average.
# And the array of a bfloat16 result or constant says float16, though its bits are bfloat16's: -0.1 is
# printed as -1.45.
#
# Why it matters: the same weights give other results as an input than as a constant, too small on
# average, which sums over a layer do not even out. And arithmetic on such a result is nonsense without
# an error: view it as uint16, then as ml_dtypes.bfloat16. Round weights before OpenVINO gets them.
#
# Seen with openvino 2026.4.1, ml_dtypes 0.6.0 and NumPy 2.3.5 (PyPI) on a CPU, 2026-11-30, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet openvino==2026.4.1 ml_dtypes==0.6.0 numpy==2.3.5
cat >bfloat16.py <<'END'
import ml_dtypes
import numpy as np
import openvino as ov
import openvino.opset13 as op

core = ov.Core()


def run(node, parameter, x):
    model = ov.Model([node], [parameter])
    return core.compile_model(model, 'CPU', {'INFERENCE_PRECISION_HINT': 'f32'})([x])[0]


def convert(node):
    return op.convert(op.convert(node, 'bf16'), 'f32')


def show(name, x):
    print(f'{name}:', *(f'{value:.6g}' for value in x), x.dtype)


x = np.array([-0.1, 1 / 3, 1 + 2.0**-8 + 2.0**-10, 7.9], np.float32)
show('x', x)
show('ml_dtypes', x.astype(ml_dtypes.bfloat16).astype(np.float32))
parameter = op.parameter([x.size], ov.Type.f32)
show('run', run(convert(parameter), parameter, x))
zero = op.parameter([1], ov.Type.f32)
show('folded', run(op.add(convert(op.constant(x)), zero), zero, np.zeros(1, np.float32)))
result = run(op.convert(parameter, 'bf16'), parameter, x)
show('result', result)
show('result, as bfloat16', result.view(ml_dtypes.bfloat16).astype(np.float32))
constant = op.constant(x, ov.Type.bf16).data
show('constant', constant)
show('constant, as bfloat16', constant.view(ml_dtypes.bfloat16).astype(np.float32))
w = np.random.default_rng(0).uniform(1, 2, 100000).astype(np.float32)
change = op.constant(w, ov.Type.bf16).data.view(ml_dtypes.bfloat16).astype(np.float64) - w
print(f'weights from 1 to 2 change by {change.min():.4f} to {change.max():.4f}, on average',
      f'{change.mean():.4f}')
END
venv/bin/python bfloat16.py >output 2>errors || { cat errors >&2; exit 1; }
cat output
cat >expected <<'END'
x: -0.1 0.333333 1.00488 7.9 float32
ml_dtypes: -0.100098 0.333984 1.00781 7.90625 float32
run: -0.100098 0.333984 1.00781 7.90625 float32
folded: -0.0996094 0.332031 1 7.875 float32
result: -1.4502 1.66699 1.87598 2.49414 float16
result, as bfloat16: -0.100098 0.333984 1.00781 7.90625 float32
constant: -1.44922 1.66602 1.875 2.49219 float16
constant, as bfloat16: -0.0996094 0.332031 1 7.875 float32
weights from 1 to 2 change by -0.0078 to 0.0039, on average -0.0019
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
