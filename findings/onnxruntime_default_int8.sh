#!/bin/sh
# onnxruntime_default_int8.sh - onnxruntime rounds float activations to int8 in front of 4-bit weights
# SPDX-License-Identifier: BSD-2-Clause
#
# A model with 4-bit weights in standard ONNX has DequantizeLinear, in blocks, and a MatMul in float32:
# weights are rounded and activations are not. Most people expect what ONNX says, also of a session with
# its defaults: products in float32, and with weights that 4 bits have, the result of the float model.
#
# What happens: from the level ORT_ENABLE_EXTENDED on, so by default, the two nodes become one
# MatMulNBits with accuracy_level 4, which on a CPU that has code for it rounds activations to 8 bits in
# blocks as long as those of the weights. Beside a number of 100 a step is 100 / 127, and 31 numbers of
# 0.25 count as 0: the sum 107.75 is 100. With ORT_ENABLE_BASIC, or if the session option
# session.qdq_matmulnbits_accuracy_level is "0", it is 107.75.
#
# Why it matters: the error of 4-bit weights is measured with that of 8-bit activations in it, and
# activations with outliers, for which one keeps them in float, are those that suffer. A comparison with
# a library that multiplies in float compares two things. Set the option to "0", or say that both differ.
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
cat >int8.py <<'END'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

K, N, BLOCK = 64, 32, 32
info = helper.make_tensor_value_info
nodes = [helper.make_node('DequantizeLinear', ['codes', 'scales'], ['w'], axis=0, block_size=BLOCK),
         helper.make_node('MatMul', ['x', 'w'], ['y'])]
graph = helper.make_graph(
    nodes, 'graph', [info('x', TensorProto.FLOAT, [1, K])], [info('y', TensorProto.FLOAT, [1, N])],
    [helper.make_tensor('codes', TensorProto.INT4, [K, N], [1] * (K * N)),
     helper.make_tensor('scales', TensorProto.FLOAT, [K // BLOCK, N], [1.0] * (K // BLOCK * N))])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)

x = np.zeros((1, K), np.float32)
x[0, :BLOCK] = 0.25                     # the weights are all 1: y is the sum of x
x[0, 0] = 100
print('in float64:', x.sum(dtype=np.float64))
for level in 'ORT_ENABLE_BASIC', 'ORT_ENABLE_EXTENDED', 'ORT_ENABLE_ALL':
    for accuracy in None, '0':
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = 'optimized.onnx'
        options.log_severity_level = 3
        if accuracy:
            options.add_session_config_entry('session.qdq_matmulnbits_accuracy_level', accuracy)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                               providers=['CPUExecutionProvider'])
        y, = session.run(None, {'x': x})
        made = onnx.load('optimized.onnx').graph.node
        print(f'{level}, accuracy level {accuracy}: {y[0, 0]:.2f} by', *(n.op_type for n in made))
END
venv/bin/python -W ignore int8.py >output 2>/dev/null
cat output
cat >expected <<'END'
in float64: 107.75
ORT_ENABLE_BASIC, accuracy level None: 107.75 by DequantizeLinear MatMul
ORT_ENABLE_BASIC, accuracy level 0: 107.75 by DequantizeLinear MatMul
ORT_ENABLE_EXTENDED, accuracy level None: 100.00 by MatMulNBits
ORT_ENABLE_EXTENDED, accuracy level 0: 107.75 by MatMulNBits
ORT_ENABLE_ALL, accuracy level None: 100.00 by MatMulNBits
ORT_ENABLE_ALL, accuracy level 0: 107.75 by MatMulNBits
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
