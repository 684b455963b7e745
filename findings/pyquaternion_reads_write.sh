#!/bin/sh
# pyquaternion_reads_write.sh - reading the angle of a pyquaternion normalizes the object
# SPDX-License-Identifier: BSD-2-Clause
#
# A quaternion that is not a unit has a norm and a rotation. Most people expect that reading one
# property leaves the object as it is, and that a function of two quaternions leaves both as they are.
#
# What happens: axis, angle, degrees, rotation_matrix, transformation_matrix, yaw_pitch_roll and
# rotate() replace the object's components by those of the unit quaternion, and Quaternion.slerp() does
# so with both arguments. The documentation says so; the names do not. The norm is gone for all later
# reads, also through other names of the object. inverse, norm, log and products do not change it.
#
# Why it matters: a printed angle, or a debugger that shows properties, changes the results that follow.
# A quaternion of a network, which is a weight and not a rotation, loses its gain.
#
# Seen with pyquaternion 0.9.9 and NumPy 2.3.5 (PyPI), 2026-11-30, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet pyquaternion==0.9.9 numpy==2.3.5
cat >read.py <<'END'
from pyquaternion import Quaternion

for name in "norm", "inverse", "axis", "angle", "degrees", "rotation_matrix", "yaw_pitch_roll":
    q = Quaternion(2, 0, 0, 0)
    q *= Quaternion(0.6, 0.8, 0, 0)
    getattr(q, name)
    print(f"{name:15} {q.norm:.1f}")
p, q = Quaternion(2, 0, 0, 0), Quaternion(0, 3, 0, 0)
Quaternion.slerp(p, q, 0.5)
print(f"{'slerp':15} {p.norm:.1f} {q.norm:.1f}")
END
venv/bin/python read.py >output
cat output
cat >expected <<'END'
norm            2.0
inverse         2.0
axis            1.0
angle           1.0
degrees         1.0
rotation_matrix 1.0
yaw_pitch_roll  1.0
slerp           1.0 1.0
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
