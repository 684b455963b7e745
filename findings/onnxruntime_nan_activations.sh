#!/bin/sh
# onnxruntime_nan_activations.sh - a NaN among activations leaves no NaN in onnxruntime's int8 products
# SPDX-License-Identifier: BSD-2-Clause
#
# Two operators of onnxruntime quantize activations to 8 bits before they multiply: MatMulNBits with
# accuracy_level 4 (int8), an option of models, and DynamicQuantizeLinear in front of
# MatMulInteger. Most people expect that a NaN among the activations makes the outputs that depend on it
# NaN, as in float, so that a broken layer is seen.
#
# What happens: all outputs are ordinary numbers. With accuracy_level 4 the NaN counts as 0, and at place
# 16 of its block it makes the search for the largest magnitude forget place 0, so that a 2 there becomes
# 0, too; levels 0 and 1 give NaN. DynamicQuantizeLinear leaves the NaN out of minimum and maximum and
# gives it the code 0, the lower end of the range. ONNX's reference gives the scale NaN.
#
# Why it matters: a model that is checked for NaN in float passes that check in int8 with wrong numbers,
# and looks merely less accurate. Check activations for NaN before the product, or compare with
# accuracy_level 0.
#
# Seen with onnxruntime 1.32.0, onnx 1.23.1 and NumPy 2.3.5 (PyPI), 2026-11-30, x86_64 Linux, on a
# processor with AVX-512 VNNI.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet onnxruntime==1.32.0 onnx==1.23.1 numpy==2.3.5
cat >nan.py <<'END'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

info = helper.make_tensor_value_info


def model(node, inputs, outputs, constants=()):
    graph = helper.make_graph([node], 'graph', inputs, outputs, constants)
    opsets = [helper.make_opsetid('', 21), helper.make_opsetid('com.microsoft', 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(model, **inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=['CPUExecutionProvider'])
    return session.run(None, inputs)


K, N = 64, 4                                    # blocks of 32
codes = np.full((N, 2, 16), 0x99, np.uint8)     # all weights are 9 - 8 = 1
for level, place in (0, 5), (1, 5), (4, 5), (4, 16):
    x = np.zeros((1, K), np.float32)
    x[0, 0] = 2
    x[0, place] = np.nan
    node = helper.make_node('MatMulNBits', ['x', 'codes', 'scales'], ['y'], domain='com.microsoft',
                            K=K, N=N, bits=4, block_size=32, accuracy_level=level)
    y, = run(model(node, [info('x', TensorProto.FLOAT, x.shape)], [info('y', TensorProto.FLOAT, None)],
                   [helper.make_tensor('codes', TensorProto.UINT8, codes.shape, codes.tobytes(), raw=True),
                    helper.make_tensor('scales', TensorProto.FLOAT, [N * 2], [1.0] * (N * 2))]), x=x)
    print(f'MatMulNBits, accuracy_level {level}: 2 at place 0 + NaN at {place} is', *np.round(y[0], 2))
x = np.array([-1, 2, np.nan, 0], np.float32)
dynamic = model(helper.make_node('DynamicQuantizeLinear', ['x'], ['y', 'scale', 'point']),
                [info('x', TensorProto.FLOAT, x.shape)],
                [info('y', TensorProto.UINT8, x.shape), info('scale', TensorProto.FLOAT, []),
                 info('point', TensorProto.UINT8, [])])
for name, (y, scale, point) in (('onnxruntime', run(dynamic, x=x)),
                                ('reference', ReferenceEvaluator(dynamic).run(None, {'x': x}))):
    decoded = (y.astype(np.float32) - point) * scale
    print(f'DynamicQuantizeLinear, {name}:', *x, 'decode to', *np.round(decoded, 2))
END
venv/bin/python -W ignore nan.py >output 2>/dev/null
cat output
cat >expected <<'END'
MatMulNBits, accuracy_level 0: 2 at place 0 + NaN at 5 is nan nan nan nan
MatMulNBits, accuracy_level 1: 2 at place 0 + NaN at 5 is nan nan nan nan
MatMulNBits, accuracy_level 4: 2 at place 0 + NaN at 5 is 2.0 2.0 2.0 2.0
MatMulNBits, accuracy_level 4: 2 at place 0 + NaN at 16 is 0.0 0.0 0.0 0.0
DynamicQuantizeLinear, onnxruntime: -1.0 2.0 nan 0.0 decode to -1.0 2.0 -1.0 0.0
DynamicQuantizeLinear, reference: -1.0 2.0 nan 0.0 decode to nan nan nan nan
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
