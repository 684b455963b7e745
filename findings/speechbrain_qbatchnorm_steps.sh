#!/bin/sh
# speechbrain_qbatchnorm_steps.sh - speechbrain's QBatchNorm keeps statistics of each time step, with
# their graph
# SPDX-License-Identifier: BSD-2-Clause
#
# QBatchNorm normalizes quaternions. Most people expect of its running mean what torch.nn.BatchNorm1d
# has: one number for each feature, over the batch and time, a buffer without a gradient.
#
# What happens with x [batch, time, features], the layout of speechbrain's networks: the mean is taken
# over the batch alone, so that running_mean has the shape [time, features]. A layer trained on 5 steps
# refuses 7 in evaluation, or applies the statistics of 5 steps to one; its state_dict does not load
# into a new layer. And the running mean is not detached: it holds the graph of every batch so far, so
# that memory grows, and a second backward pass in evaluation fails.
#
# Why it matters: sequences have different lengths, so that such a layer only works by padding to one
# length, and checkpoints need its buffers replaced before they load. Who ports the layer has to know
# which statistics the weights were trained with.
#
# Seen with speechbrain 1.1.2, torch 2.15.0 and torchaudio 2.11.1 (PyPI), 2026-11-29, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet speechbrain==1.1.2 torch==2.15.0 torchaudio==2.11.1
cat >norm.py <<'END'
import torch
from speechbrain.nnet.quaternion_networks.q_normalization import QBatchNorm

torch.manual_seed(0)
layer = QBatchNorm(input_size=12)
print('new: running_mean', *layer.running_mean.shape)
for _ in range(2):
    # as behind another layer, which trains, too
    layer(torch.randn(6, 5, 12, requires_grad=True)).sum().backward()
mean = layer.running_mean
print('trained on 5 steps: running_mean', *mean.shape, 'requires_grad', mean.requires_grad)
layer.eval()
for steps in 5, 1, 7:
    try:
        layer(torch.randn(6, steps, 12))
        print('evaluated on', steps, 'steps')
    except RuntimeError as error:
        print('evaluated on', steps, 'steps:', str(error).split(' at ')[0])
try:
    QBatchNorm(input_size=12).load_state_dict(layer.state_dict())
except RuntimeError:
    print('the state_dict does not load into a new layer')
try:
    layer(torch.randn(6, 5, 12, requires_grad=True)).sum().backward()
except RuntimeError as error:
    print('backward in evaluation:', str(error).split(' (')[0])
END
venv/bin/python -W ignore norm.py >output 2>/dev/null
cat output
cat >expected <<'END'
new: running_mean 12
trained on 5 steps: running_mean 5 12 requires_grad True
evaluated on 5 steps
evaluated on 1 steps
evaluated on 7 steps: The size of tensor a (7) must match the size of tensor b (5)
the state_dict does not load into a new layer
backward in evaluation: Trying to backward through the graph a second time
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
