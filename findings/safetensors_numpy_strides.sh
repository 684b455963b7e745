#!/bin/sh
# safetensors_numpy_strides.sh - safetensors.numpy saves a transposed array with its elements mixed up
# SPDX-License-Identifier: BSD-2-Clause
#
# safetensors.numpy.save_file() takes NumPy arrays. Most people expect what numpy.save() does: an array
# with strides, such as a transposed weight matrix or every second column, is written in the order of its
# elements; or an error, which safetensors.torch raises for such tensors ("non contiguous").
#
# What happens: the shape in the file is that of the array, but the bytes are those of its memory in
# their order, as many as the array has elements. x.T of [2, 3] comes back as the elements of x in the
# shape [3, 2]; of x[:, ::2] come the first elements of x, also those between. Nothing is said.
#
# Why it matters: linear layers keep [out, in] in one framework and [in, out] in another, so weights are
# transposed just before they are saved. The file is valid, each tensor has the right shape and the right
# range of numbers, and the model computes nonsense. numpy.ascontiguousarray() before saving cures it.
#
# Seen with safetensors 0.8.0 and NumPy 2.3.5 (PyPI), 2026-11-29, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet safetensors==0.8.0 numpy==2.3.5
cat >strides.py <<'END'
import numpy as np
from safetensors.numpy import load_file, save_file

x = np.arange(8, dtype=np.float32).reshape(2, 4)
for name, array in (('x', x), ('x.T', x.T), ('x[:, ::2]', x[:, ::2]), ('contiguous x.T', np.ascontiguousarray(x.T))):
    save_file({'array': array}, 'file.safetensors')
    loaded = load_file('file.safetensors')['array']
    print(name, list(array.shape), 'comes back', 'equal' if np.array_equal(array, loaded) else 'changed:', end=' ')
    print(*loaded.ravel().astype(int), 'instead of' if not np.array_equal(array, loaded) else 'as', end=' ')
    print(*array.ravel().astype(int))
END
venv/bin/python strides.py >output 2>/dev/null
cat output
cat >expected <<'END'
x [2, 4] comes back equal 0 1 2 3 4 5 6 7 as 0 1 2 3 4 5 6 7
x.T [4, 2] comes back changed: 0 1 2 3 4 5 6 7 instead of 0 4 1 5 2 6 3 7
x[:, ::2] [2, 2] comes back changed: 0 1 2 3 instead of 0 2 4 6
contiguous x.T [4, 2] comes back equal 0 4 1 5 2 6 3 7 as 0 4 1 5 2 6 3 7
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
