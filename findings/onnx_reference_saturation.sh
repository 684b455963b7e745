#!/bin/sh
# onnx_reference_saturation.sh - ONNX's reference gives the least code to the largest numbers
# SPDX-License-Identifier: BSD-2-Clause
#
# QuantizeLinear is saturate(round(x / scale) + zero_point), by the standard. onnx has a reference
# evaluator, which says what an operator means where a runtime and another disagree. Most people expect of
# it that +Inf and all that is too large get the largest code, as -Inf gets the least.
#
# What happens: round(x / scale) is cast to int32 before it is clipped. On x86-64 NumPy's cast makes
# -2^31 of Inf and of all from 2^31 on, so that they get the least code: 0 of uint8, -128 of int8, and
# likewise in 16, 4 and 2 bits. One step below, all is well. onnxruntime saturates, and so does the
# evaluator to FP8 and FP4, which it does not cast to integers.
#
# Why it matters: with a scale of 1e-5, of weights in 16 bits, 3e4 is enough, and the largest number of a
# tensor becomes the most negative one. Tests that take expected outputs from the evaluator teach a
# correct implementation that wrong code, for example where padding or a mask is Inf.
#
# Seen with onnx 1.23.2, onnxruntime 1.32.0 and NumPy 2.3.5 (PyPI), 2026-12-01, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.3.5
cat >saturate.py <<'END'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

x = np.array([-np.inf, -3e9, 100, 2147483520, 2147483648, 3e9, np.inf], np.float32)
print('x', *x)
for name, dtype in ('UINT8', np.uint8), ('INT8', np.int8), ('UINT16', np.uint16), ('INT16', np.int16):
    graph = helper.make_graph(
        [helper.make_node('QuantizeLinear', ['x', 'scale', 'zero'], ['y'])], 'g',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info('y', getattr(TensorProto, name), x.shape)],
        [helper.make_tensor('scale', TensorProto.FLOAT, [], [1]),
         helper.make_tensor('zero', getattr(TensorProto, name), [], [0])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)])
    model.ir_version = 10
    runtime = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=['CPUExecutionProvider'])
    print(name, 'reference  ', *ReferenceEvaluator(model).run(None, {'x': x})[0])
    print(name, 'onnxruntime', *runtime.run(None, {'x': x})[0])
END
venv/bin/python -W ignore saturate.py >output 2>/dev/null
cat output
cat >expected <<'END'
x -inf -3e+09 100.0 2.1474835e+09 2.1474836e+09 3e+09 inf
UINT8 reference   0 0 100 255 0 0 0
UINT8 onnxruntime 0 0 100 255 255 255 255
INT8 reference   -128 -128 100 127 -128 -128 -128
INT8 onnxruntime -128 -128 100 127 127 127 127
UINT16 reference   0 0 100 65535 0 0 0
UINT16 onnxruntime 0 0 100 65535 65535 65535 65535
INT16 reference   -32768 -32768 100 32767 -32768 -32768 -32768
INT16 onnxruntime -32768 -32768 100 32767 32767 32767 32767
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
