#!/bin/sh
# quantize_nan_codes.sh - NaN quantizes to 127 in PyTorch and to -128 in ONNX Runtime
# SPDX-License-Identifier: BSD-2-Clause
#
# Quantization to int8 is round(x / scale) + zero_point, clamped to [-128, 127]. Neither ONNX's
# QuantizeLinear nor torch.quantize_per_tensor says what becomes of NaN. Most people expect 0, the zero
# point, or at least the same code from both, as the rest of the operation is bit-equal.
#
# What happens: ONNX Runtime gives the smallest code, -128, and 0 for uint8; PyTorch gives the largest,
# 127 and 255. The sign of the NaN and the zero point do not count. +Inf is the largest code and -Inf the
# smallest in both.
#
# Why it matters: a NaN of a broken layer comes out as an ordinary extreme number, of opposite signs in
# the two engines, and nothing later shows that it was one. Comparisons between engines differ there.
#
# Seen with torch 2.11.0, onnxruntime 1.32.0 and onnx 1.23.1 (PyPI), 2026-11-29, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.11.0 onnxruntime==1.32.0 onnx==1.23.1 numpy==2.3.5
cat >nan.py <<'END'
import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper

x = np.tile(np.array([np.nan, -np.nan, np.inf, -np.inf], np.float32), 9)
for name, kind, torch_kind, point in (('int8', TensorProto.INT8, torch.qint8, 0),
                                      ('int8', TensorProto.INT8, torch.qint8, 100),
                                      ('uint8', TensorProto.UINT8, torch.quint8, 0)):
    graph = helper.make_graph(
        [helper.make_node('QuantizeLinear', ['x', 's', 'z'], ['y'])], 'quantize',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info('y', kind, x.shape)],
        [helper.make_tensor('s', TensorProto.FLOAT, [], [1.0]), helper.make_tensor('z', kind, [], [point])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=['CPUExecutionProvider'])
    ort = session.run(None, {'x': x})[0].reshape(9, 4)
    own = torch.quantize_per_tensor(torch.from_numpy(x), 1.0, point, torch_kind).int_repr().reshape(9, 4)
    for engine, codes in (('onnxruntime', ort), ('torch', own.numpy())):
        assert (codes == codes[0]).all()
        print(f'{name}, zero point {point}, {engine}: NaN, -NaN, Inf, -Inf:', *codes[0])
END
venv/bin/python -W ignore nan.py >output 2>/dev/null
cat output
cat >expected <<'END'
int8, zero point 0, onnxruntime: NaN, -NaN, Inf, -Inf: -128 -128 127 -128
int8, zero point 0, torch: NaN, -NaN, Inf, -Inf: 127 127 127 -128
int8, zero point 100, onnxruntime: NaN, -NaN, Inf, -Inf: -128 -128 127 -128
int8, zero point 100, torch: NaN, -NaN, Inf, -Inf: 127 127 127 -128
uint8, zero point 0, onnxruntime: NaN, -NaN, Inf, -Inf: 0 0 255 0
uint8, zero point 0, torch: NaN, -NaN, Inf, -Inf: 255 255 255 0
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
