# device.py - hurwitz on tensors of the device HZ_TEST_DEVICE, for tests that are written with NumPy
# SPDX-License-Identifier: BSD-2-Clause
"""hz is the package, or, with HZ_TEST_DEVICE=cuda, the package behind a wall that moves arrays, or
with HZ_TEST_DEVICE=torch the same with tensors of the CPU.

Operands go to PyTorch tensors of the same strides on that device, what a call has written comes
back into the arrays that were given, and results are NumPy arrays, or Views of them.
"""
import os

import numpy as np

import hurwitz
from hurwitz import _arrays

DEVICE = os.environ.get("HZ_TEST_DEVICE") or None
DEVICE = {"cpu": None, "torch": "cpu"}.get(DEVICE, DEVICE)


def tensor(torch, array):
    """An array's elements on the device; strides are kept where PyTorch has such. The library has
    f64 on the CPU alone: it is f32 elsewhere."""
    if array.dtype == np.float64 and DEVICE != "cpu":
        array = (array.astype(np.float32) if array.flags.contiguous else
                 np.repeat(array.astype(np.float32), 2, -1)[..., ::2])
    flat = _arrays.FROM_NUMPY.get(array.dtype)
    if flat is None:
        return array                    # the package says what is wrong
    kind, stored = _arrays.to_torch(flat)
    if stored:
        return array
    size = array.dtype.itemsize
    bits = torch.from_numpy(np.array(array).reshape(array.shape).view(f"u{size}").view(f"i{size}"))
    steps = [step // size for step in array.strides]
    if min(array.shape + (1,)) > 0 and min(steps + [1]) > 0:
        moved = torch.empty_strided(array.shape, steps, dtype=bits.dtype, device=DEVICE)
        bits = moved.copy_(bits)
    return bits.to(DEVICE).view(kind)


def array(torch, found):
    """A NumPy array of a tensor's elements."""
    number = _arrays.dtype_number(found.dtype)
    size = found.element_size()
    bits = found.detach().contiguous().view(getattr(torch, f"int{8 * size}")).cpu().numpy()
    if number in _arrays.TO_NUMPY:
        return bits.view(_arrays.TO_NUMPY[number])
    return hurwitz.View(bits.view(_arrays.STORAGE[number]), number)


class Wall:
    """The package, one of its classes or an object, whose calls get tensors."""

    def __init__(self, inside, moved=()):
        self._inside, self._moved = inside, list(moved)

    def __getattr__(self, name):
        found = getattr(self._inside, name)
        stays = isinstance(found, type) and issubclass(found, Exception)
        return found if stays or not callable(found) or name == "view" else Wall(found, self._moved)

    def __enter__(self):
        self._inside.__enter__()
        return self

    def __exit__(self, *error):
        return self._inside.__exit__(*error)

    def __call__(self, *values, **options):
        import torch
        moved = list(self._moved)

        def move(value):
            if isinstance(value, Wall):
                return value._inside
            if isinstance(value, dict):
                return {key: move(one) for key, one in value.items()}
            if isinstance(value, list):
                return list(map(move, value))
            if type(value) is hurwitz.View:
                return hurwitz.View(move(value.array), value.dtype)
            if type(value) is not np.ndarray:
                return value
            there = tensor(torch, value)
            if there is not value:
                moved.append((value, there))
            return there

        def back(value):
            for mine, there in moved:
                if value is there:
                    return mine
            if isinstance(value, torch.Tensor):
                return array(torch, value)
            if type(value) is hurwitz.View:
                return hurwitz.View(array(torch, value.array), value.dtype)
            if isinstance(value, tuple):
                return tuple(map(back, value))
            if isinstance(value, (hurwitz.Lattice, hurwitz.Vlut, hurwitz.Linear)):
                return Wall(value)
            return Wall(value, moved) if isinstance(value, hurwitz.MhcLayer) else value

        if self._inside not in HOST:
            values, options = map(move, values), move(options)
        if self._inside is hurwitz.Vlut or self._inside == hurwitz.Linear.load:
            options["ctx"] = hurwitz.context(DEVICE)
        result = back(self._inside(*values, **options))
        for mine, there in moved:
            if mine.flags.writeable:
                mine[...] = array(torch, there)
        return result


HOST = hurwitz.lattice_design, hurwitz.hadamard_plan, hurwitz.hadamard_base, hurwitz.Lattice
hz = hurwitz if DEVICE is None else Wall(hurwitz)
