#!/bin/sh
# usearch_i8_lengths.sh - usearch drops the lengths of vectors that it keeps in int8, also for distances
# SPDX-License-Identifier: BSD-2-Clause
#
# An index of usearch keeps vectors as float32, float16, bfloat16 or int8 (dtype="i8"), and compares them
# by cosines, inner products or squared distances. Most people expect a smaller dtype to round: distances
# from int8 are less exact, and a vector is the nearest to itself.
#
# What happens: float vectors are divided by their lengths and multiplied by 127 before they are rounded
# to int8, whatever the metric. So v, 10 v and v / 10 are one vector, with a squared distance of 0
# between them, in front of a vector that is near in truth; distances and inner products are those of
# unit vectors times 127 squared, and get() gives such codes. Only cosines do not depend on lengths.
#
# Why it matters: with metric="l2sq" or "ip" and data that are not normalized, int8 does not lose
# accuracy, it answers another question. Recall on normalized test data does not show it. Normalize
# first, or use bf16; or give the index int8 codes of your own, which are kept as they are.
#
# Seen with usearch 2.26.6 and NumPy 2.3.5 (PyPI), 2026-11-30, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet usearch==2.26.6 numpy==2.3.5
cat >lengths.py <<'END'
import numpy as np
from usearch.index import Index

v = np.array([1, 2, 3, 4], np.float32)
vectors = np.stack([v, 10 * v, v / 10, [2, 2, 3, 4]]).astype(np.float32)
for metric in 'l2sq', 'ip', 'cos':
    for dtype in 'f32', 'bf16', 'i8':
        index = Index(ndim=4, metric=metric, dtype=dtype)
        index.add(np.arange(4), vectors)
        found = index.search(v, 4)
        distance = dict(zip(found.keys.tolist(), found.distances.tolist()))
        print(f'{metric} {dtype}: from v to 10 v {round(distance[1])}, v / 10 {round(distance[2])},',
              f'another {distance[3]:.2f}; 10 v is kept as', *(round(float(n)) for n in index.get(1)))
index = Index(ndim=4, metric='l2sq', dtype='i8')
index.add(np.arange(2), np.array([[1, 2, 3, 4], [10, 20, 30, 40]], np.int8))
print('int8 codes are kept as', *index.get(0), 'and', *index.get(1))
END
venv/bin/python -W ignore lengths.py >output 2>/dev/null
cat output
cat >expected <<'END'
l2sq f32: from v to 10 v 2430, v / 10 24, another 1.00; 10 v is kept as 10 20 30 40
l2sq bf16: from v to 10 v 2430, v / 10 24, another 1.00; 10 v is kept as 10 20 30 40
l2sq i8: from v to 10 v 0, v / 10 0, another 470.00; 10 v is kept as 23 46 69 92
ip f32: from v to 10 v -299, v / 10 -2, another -30.00; 10 v is kept as 10 20 30 40
ip bf16: from v to 10 v -299, v / 10 -2, another -30.00; 10 v is kept as 10 20 30 40
ip i8: from v to 10 v -15869, v / 10 -15869, another -15685.00; 10 v is kept as 23 46 69 92
cos f32: from v to 10 v 0, v / 10 0, another 0.01; 10 v is kept as 10 20 30 40
cos bf16: from v to 10 v 0, v / 10 0, another 0.01; 10 v is kept as 10 20 30 40
cos i8: from v to 10 v 0, v / 10 0, another 0.01; 10 v is kept as 23 46 69 92
int8 codes are kept as 1 2 3 4 and 10 20 30 40
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
