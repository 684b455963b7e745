#!/bin/sh
# openvino_convert_pair.sh - OpenVINO's Convert to u4 or f16 and back leaves numbers that they do not have
# SPDX-License-Identifier: BSD-2-Clause
#
# A model quantizes by a Convert to 4 bits or float16 and decodes by a Convert back to float32. Most people
# expect the numbers in between to have that format, whatever is fused, and the same numbers whether the
# input is constant or not.
#
# What happens on a CPU, in precision f32: a pair of Converts to f16 and back changes nothing when it is run
# and rounds when it is folded. With u4 and i4 the numbers between are 8-bit ones when run: 17 stays 17, 8
# in i4 stays 8, -1 in u4 becomes 255; folded, they are 1, -8 and 15. With u8 and i8 both agree.
#
# Why it matters: an experiment with 4-bit activations or a float16 cache in such a graph measures 8 bits or
# float32, and looks better than the format can be. Clamp to the range before the Convert to 4 bits, and
# round with FakeQuantize or FakeConvert.
#
# Seen with openvino 2026.4.1 and NumPy 2.3.5 (PyPI) on a CPU, 2026-11-30, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet openvino==2026.4.1 numpy==2.3.5
cat >pair.py <<'END'
import numpy as np
import openvino as ov
import openvino.opset13 as op

core = ov.Core()


def run(node, parameter, x):
    model = ov.Model([node], [parameter])
    return core.compile_model(model, 'CPU', {'INFERENCE_PRECISION_HINT': 'f32'})([x])[0]


def pair(node, kind):
    return op.convert(op.convert(node, kind), 'f32')


x = np.array([1 / 3, 300.7, 7, 8, 15, 17, -1], np.float32)
x8 = np.array([7, 8, 15, 17, -1], np.float32)
for kind, values in ('f16', x), ('u4', x8), ('i4', x8), ('u8', x8), ('i8', x8):
    parameter = op.parameter([values.size], ov.Type.f32)
    zero = op.parameter([1], ov.Type.f32)
    for name, y in (('run', run(pair(parameter, kind), parameter, values)),
                    ('folded', run(op.add(pair(op.constant(values), kind), zero), zero,
                                   np.zeros(1, np.float32)))):
        print(f'{kind}, {name}:', *(f'{a:.6g} -> {b:.6g}' for a, b in zip(values, y)), sep='  ')
END
venv/bin/python pair.py >output 2>errors || { cat errors >&2; exit 1; }
cat output
cat >expected <<'END'
f16, run:  0.333333 -> 0.333333  300.7 -> 300.7  7 -> 7  8 -> 8  15 -> 15  17 -> 17  -1 -> -1
f16, folded:  0.333333 -> 0.333252  300.7 -> 300.75  7 -> 7  8 -> 8  15 -> 15  17 -> 17  -1 -> -1
u4, run:  7 -> 7  8 -> 8  15 -> 15  17 -> 17  -1 -> 255
u4, folded:  7 -> 7  8 -> 8  15 -> 15  17 -> 1  -1 -> 15
i4, run:  7 -> 7  8 -> 8  15 -> 15  17 -> 17  -1 -> -1
i4, folded:  7 -> 7  8 -> -8  15 -> -1  17 -> 1  -1 -> -1
u8, run:  7 -> 7  8 -> 8  15 -> 15  17 -> 17  -1 -> 255
u8, folded:  7 -> 7  8 -> 8  15 -> 15  17 -> 17  -1 -> 255
i8, run:  7 -> 7  8 -> 8  15 -> 15  17 -> 17  -1 -> -1
i8, folded:  7 -> 7  8 -> 8  15 -> 15  17 -> 17  -1 -> -1
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
