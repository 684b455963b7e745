#!/usr/bin/env python3
# dlpack.py - the library from Python, on arrays of NumPy and PyTorch where they lie
# SPDX-License-Identifier: BSD-2-Clause
"""Calls of the shared library by ctypes, on memory that DLPack describes: nothing is copied.

    HURWITZ_LIBRARY=/usr/local/lib/libhurwitz.so python3 dlpack.py

It needs a build with --enable-shared, and NumPy or PyTorch; with PyTorch and a GPU, calls go on
PyTorch's current stream. hadamard(x) is differentiable there: the backward pass is the transpose.
Prints a line for each device, or "skipped: ..." and exit status 77 if something is missing.
"""
import ctypes
import ctypes.util
import os
import sys

HZ_CPU, HZ_CUDA = 1, 2
HZ_HADAMARD_TRANSPOSE = 1
HZ_ENODEV = -7
# DLPack's type code, bits, lanes
DTYPES = {(2, 32, 1): 1, (2, 16, 1): 2, (4, 16, 1): 3, (2, 64, 1): 4, (0, 8, 1): 5, (1, 8, 1): 6}


class Tensor(ctypes.Structure):
    """hz_tensor"""
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int16), ("ndim", ctypes.c_int16),
                ("device", ctypes.c_int32), ("shape", ctypes.c_int64 * 6),
                ("stride", ctypes.c_int64 * 6)]


class Options(ctypes.Structure):
    """hz_options"""
    _fields_ = [("device", ctypes.c_int32), ("threads", ctypes.c_int32), ("isa", ctypes.c_int32),
                ("flags", ctypes.c_uint32), ("threading", ctypes.c_int32),
                ("topology", ctypes.c_void_p), ("allocator", ctypes.c_void_p),
                ("log", ctypes.c_void_p), ("log_user", ctypes.c_void_p),
                ("parallel_for", ctypes.c_void_p), ("parallel_user", ctypes.c_void_p),
                ("reserved", ctypes.c_int64 * 4)]


class HadamardOpts(ctypes.Structure):
    """hz_hadamard_opts"""
    _fields_ = [("plan", ctypes.c_int32), ("axis", ctypes.c_int32), ("block", ctypes.c_int64),
                ("max_block", ctypes.c_int64), ("min_block", ctypes.c_int64),
                ("base", ctypes.c_int32), ("order", ctypes.c_int32), ("flags", ctypes.c_uint32),
                ("round_to", ctypes.c_int32), ("factor", ctypes.c_double),
                ("pre", ctypes.c_void_p), ("post", ctypes.c_void_p),
                ("reserved", ctypes.c_int64 * 4)]


class DLTensor(ctypes.Structure):
    """DLPack's own, as in dlpack.h"""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


def view(array):
    """The hz_tensor of an array's memory, which the array must outlive."""
    capsule = array.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # The capsule was not consumed, so it frees what it made for us when it goes.
    d = DLTensor.from_address(get(capsule, b"dltensor"))
    t = Tensor(data=d.data + d.byte_offset, dtype=DTYPES[d.code, d.bits, d.lanes], ndim=d.ndim,
               device=HZ_CPU if d.device_type == 1 else HZ_CUDA + d.device_id)
    step = 1
    for i in reversed(range(d.ndim)):
        t.shape[i] = d.shape[i]
        t.stride[i] = d.strides[i] if d.strides else step
        step *= d.shape[i]
    return t


class NoDevice(RuntimeError):
    """The library was built without CUDA, or cannot use this GPU."""


class Hurwitz:
    """A context on a device, HZ_CPU or HZ_CUDA + i"""

    def __init__(self, library, device):
        self.c = library
        self.c.hz_errmsg.restype = self.c.hz_open_errmsg.restype = ctypes.c_char_p
        self.ctx = ctypes.c_void_p()
        status = self.c.hz_open(ctypes.byref(self.ctx), ctypes.byref(Options(device=device)))
        if status:
            error = NoDevice if status == HZ_ENODEV else RuntimeError
            raise error(self.c.hz_open_errmsg().decode())

    def close(self):
        """Ends it."""
        self.c.hz_close(self.ctx)

    def set_stream(self, stream):
        """Later calls go on this cudaStream_t."""
        self.check(self.c.hz_set_stream(self.ctx, ctypes.c_void_p(stream)))

    def check(self, status):
        """Raises the library's sentence if a call failed."""
        if status:
            raise RuntimeError(self.c.hz_errmsg(self.ctx).decode())

    def hadamard(self, x, y, transpose=False):
        """y = the orthonormal transform of the rows of x, in place if y is x"""
        opts = HadamardOpts(flags=HZ_HADAMARD_TRANSPOSE if transpose else 0)
        self.check(self.c.hz_hadamard(self.ctx, ctypes.byref(view(x)), ctypes.byref(view(y)),
                                      ctypes.byref(opts)))


def matrix(n):
    """Sylvester's matrix of order n, in lists"""
    return [[(-1) ** bin(i & j).count("1") / n ** 0.5 for j in range(n)] for i in range(n)]


def with_numpy(library, np):
    """Rows of a strided view, in place"""
    h = Hurwitz(library, HZ_CPU)
    whole = np.random.default_rng(1).standard_normal((40, 128)).astype(np.float32)
    x = whole[::2, :64]
    want = x.astype(np.float64) @ np.array(matrix(64)).T
    others = whole[1::2].copy(), whole[:, 64:].copy()
    h.hadamard(x, x)
    h.close()
    error = np.linalg.norm(x - want) / np.linalg.norm(want)
    print(f"numpy on the CPU: error {error:.0e}")
    untouched = (whole[1::2] == others[0]).all() and (whole[:, 64:] == others[1]).all()
    return error < 1e-6 and untouched


def with_torch(library, torch, device):
    """A transform with its gradient, on the device's current stream"""
    gpu = device == "cuda"
    h = Hurwitz(library, HZ_CUDA + torch.cuda.current_device() if gpu else HZ_CPU)

    class Hadamard(torch.autograd.Function):
        """y = x H^T; dx = dy H"""

        @staticmethod
        def run(x, transpose):
            """The call, on PyTorch's stream: no synchronisation is needed."""
            y = torch.empty_like(x)
            if gpu:
                h.set_stream(torch.cuda.current_stream().cuda_stream)
            h.hadamard(x.detach(), y, transpose)
            return y

        @staticmethod
        def forward(_, x):
            return Hadamard.run(x, False)

        @staticmethod
        def backward(_, dy):
            return Hadamard.run(dy.contiguous(), True)

    torch.manual_seed(1)
    x = torch.randn(256, 96, device=device)[:, :64].requires_grad_()
    weight = torch.randn(256, 64, device=device)
    m = torch.tensor(matrix(64), dtype=torch.float64, device=device)
    # On a stream of the caller's own, with PyTorch's kernels before and after
    stream = torch.cuda.Stream() if gpu else None
    if gpu:
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream) if gpu else torch.enable_grad():
        y = Hadamard.apply(x * 2)
        (y * weight).sum().backward()
    if gpu:
        torch.cuda.synchronize()
    want = 2 * x.detach().double() @ m.T
    want_dx = 2 * weight.double() @ m
    error = float((y.detach() - want).norm() / want.norm())
    error_dx = float((x.grad - want_dx).norm() / want_dx.norm())
    h.close()
    print(f"torch on {'the GPU' if gpu else 'the CPU'}: error {error:.0e}, "
          f"of the gradient {error_dx:.0e}")
    return error < 1e-6 and error_dx < 1e-6


def main():
    """Everything that is there"""
    name = os.environ.get("HURWITZ_LIBRARY") or ctypes.util.find_library("hurwitz")
    if not name:
        print("skipped: no shared library; HURWITZ_LIBRARY may name one")
        return 77
    library = ctypes.CDLL(name)
    good, tried = True, False
    try:
        import numpy as np
        good, tried = with_numpy(library, np), True
    except ImportError:
        print("skipped: no NumPy")
    try:
        import torch
        good, tried = with_torch(library, torch, "cpu") and good, True
        if torch.cuda.is_available():
            good = with_torch(library, torch, "cuda") and good
    except ImportError:
        print("skipped: no PyTorch")
    except NoDevice as error:
        print("skipped:", error)
    if not tried:
        return 77
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
