#!/bin/sh
# speechbrain_qconv2d_options.sh - speechbrain's quaternion layers do not heed some of their options
# SPDX-License-Identifier: BSD-2-Clause
#
# QConv2d takes stride and dilation as pairs, as torch.nn.Conv2d does. QLinear takes spinor=True, which
# makes a rotation of the product, and autograd=False, which is said to save memory. Most people expect
# that both numbers of a pair count, and that an option which does not work raises an error.
#
# What happens: QConv2d passes stride[0] and dilation[0] to both axes, so that the second numbers have
# no effect, but pads each axis by its own dilation: padding="same" and dilation=(1, 3) make the output
# larger than the input. With spinor=True it calls conv1d() on 4-dimensional input, which fails, and
# with skip_transpose=True it returns None. QLinear with autograd=False and spinor=True does not rotate;
# it is a plain product of quaternions, without a warning.
#
# Why it matters: nothing raises but for spinor, and shapes are plausible. Who ports such a network, or
# its weights, gets other numbers than its configuration says.
#
# Seen with speechbrain 1.1.2, torch 2.11.0 and torchaudio 2.11.0 (PyPI), 2026-11-29, x86_64 Linux.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet speechbrain==1.1.2 torch==2.11.0 torchaudio==2.11.0
cat >options.py <<'END'
import torch
from speechbrain.nnet.quaternion_networks.q_CNN import QConv2d
from speechbrain.nnet.quaternion_networks.q_linear import QLinear

torch.manual_seed(0)
image = torch.randn(2, 20, 30, 8)
for options in ({'stride': (2, 1)}, {'stride': (1, 2)}, {'dilation': (1, 3)},
                {'stride': (2, 1), 'padding': 'valid'}, {'skip_transpose': True}):
    layer = QConv2d(4, 3, image.shape, **options)
    y = layer(image.permute(0, 3, 1, 2) if 'skip_transpose' in options else image)
    print('QConv2d', options, 'of', *image.shape[1:3], 'is',
          *([None] if y is None else y.shape[1:3]))
try:
    QConv2d(4, 3, image.shape, spinor=True)(image)
except RuntimeError as error:
    print('QConv2d with spinor:', str(error).split(',')[0])

x = torch.randn(5, 8)
x[:, :2] = 0                    # no real parts
rotation = QLinear(3, x.shape, spinor=True, autograd=True)
other = QLinear(3, x.shape, spinor=True, autograd=False)
plain = QLinear(3, x.shape)
for layer in (other, plain):
    for name in 'rijk':
        getattr(layer, name + '_weight').data.copy_(getattr(rotation, name + '_weight'))
print('QLinear with spinor, autograd=False: is that of autograd=True',
      torch.allclose(other(x), rotation(x), atol=1e-3), 'is the plain product',
      torch.allclose(other(x), plain(x), atol=1e-6))
END
venv/bin/python -W ignore options.py >output 2>errors || { cat errors >&2; exit 1; }
cat output
cat >expected <<'END'
QConv2d {'stride': (2, 1)} of 20 30 is 10 15
QConv2d {'stride': (1, 2)} of 20 30 is 20 30
QConv2d {'dilation': (1, 3)} of 20 30 is 24 30
QConv2d {'stride': (2, 1), 'padding': 'valid'} of 20 30 is 9 14
QConv2d {'skip_transpose': True} of 20 30 is None
QConv2d with spinor: Expected 2D (unbatched) or 3D (batched) input to conv1d
QLinear with spinor, autograd=False: is that of autograd=True False is the plain product True
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
