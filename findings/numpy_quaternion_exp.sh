#!/bin/sh
# numpy_quaternion_exp.sh - numpy-quaternion's exp() of a vector shorter than 1e-14 is 1
# SPDX-License-Identifier: BSD-2-Clause
#
# exp(v) of a small pure quaternion is 1 + v. Most people expect what np.exp() does for complex numbers:
# each component right to its last digits, however small, so that log(exp(v)) is v again.
#
# What happens: below a length of 1e-14 the vector is taken to be zero: exp(9e-15 i) is 1, and its
# logarithm 0; of 1.1e-14 i all is as expected. 1e-14 is 45 times the distance of the numbers beside 1 in
# f64, so the lost part is not below the precision of the result. The logarithm has no such limit when
# the number is short as a whole: log((1 + i) 1e-15) has its angle, but the angle of 1 + 9e-15 i is 0.
#
# Why it matters: small steps of an integration of rotations, each multiplied by exp(v), stand still
# below this length. A test of exp and log against another library by relative error fails there.
#
# Seen with numpy-quaternion 2024.0.13 and NumPy 2.3.5 (PyPI), 2026-11-29, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet numpy-quaternion==2024.0.13 numpy==2.3.5
cat >exp.py <<'END'
import numpy as np
import quaternion

for length in 1.1e-14, 9e-15:
    v = np.quaternion(0, length, 0, 0)
    print(f'{length}: exp {np.exp(v).x:.3g}, log of exp {np.log(np.exp(v)).x:.3g},',
          f'log of 1 + v {np.log(1 + v).x:.3g}, complex {np.log(np.exp(1j * length)).imag:.3g}')
step, turned = np.exp(np.quaternion(0, 9e-15, 0, 0)), np.quaternion(1, 0, 0, 0)
for _ in range(1000):
    turned = turned * step
print(f'1000 steps of 9e-15: {turned.x:.3g}')
print(f'log of (1 + i) 1e-15: {np.log(np.quaternion(1e-15, 1e-15, 0, 0)).x:.6f}')
END
venv/bin/python exp.py >output 2>/dev/null
cat output
cat >expected <<'END'
1.1e-14: exp 1.1e-14, log of exp 1.1e-14, log of 1 + v 1.1e-14, complex 1.1e-14
9e-15: exp 0, log of exp 0, log of 1 + v 0, complex 9e-15
1000 steps of 9e-15: 0
log of (1 + i) 1e-15: 0.785398
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
