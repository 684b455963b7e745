# objects.py - what outlives a call: quantizers, tables, coded and packed matrices, layers
# SPDX-License-Identifier: BSD-2-Clause
"""Quantizers, tables, coded and packed matrices, layers, and calls on numbers alone."""
from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

from . import _arrays, ops
from ._api import CONSTANTS, STRUCTS, hz_lattice_opts, hz_mhc_block, hz_mhc_layer
from ._core import (SIZE, Array, Context, Output, Packed, Views, aligned, build, check, context,
                    enum_value, lib)

__all__ = ["Coded", "Lattice", "Linear", "MhcLayer", "Vlut", "hadamard_base", "hadamard_plan",
           "hadamard_signs", "lattice_design", "mhc_recompute", "mhc_rows", "qgemm_multiplier",
           "qgemm_pack", "qlinear_group_pack", "quat_gemm_pack", "quat_init_scale"]


def _filled(name, options, views):
    return ctypes.byref(build(name, options, views)) if options else None


# ---- Numbers -------------------------------------------------------------------------------------

def hadamard_plan(n: int, **options: Any) -> list[int]:
    """The lengths of the blocks that hz_hadamard() makes of a length n, in order."""
    views = Views()
    opts = _filled("hz_hadamard_opts", options, views)
    count = lib.hz_hadamard_plan(n, opts, None, 0)
    if count < 0:
        raise ValueError(f"no plan with {options} makes {n}: "
                         f"{lib.hz_strerror(count).decode()}")
    blocks = (ctypes.c_int64 * count)()
    lib.hz_hadamard_plan(n, opts, blocks, count)
    return list(blocks)


def hadamard_base(base: int | str, order: int) -> np.ndarray:
    """A base matrix of plan="true": entries +1 and -1, s8 [order, order]."""
    entries = np.empty((order, order), np.int8) if 0 < order <= 256 else None
    status = lib.hz_hadamard_base(enum_value("hz_base", base), order,
                                  None if entries is None else entries.ctypes.data)
    if status < 0:
        raise NotImplementedError(f"there is no base matrix {base} of order {order}")
    return entries


def hadamard_signs(n: int, seed: int) -> np.ndarray:
    """n random signs as packed bits, for pre= and post=: hz_hadamard_signs()."""
    bits = np.zeros((max(n, 0) + 7) // 8, np.uint8)
    if lib.hz_hadamard_signs(bits.ctypes.data, n, seed) < 0:
        raise ValueError(f"n is {n}, not at least 0")
    return bits


def qgemm_multiplier(sigma: float) -> tuple[int, int]:
    """multiplier and shift of a scale: hz_qgemm_multiplier()."""
    multiplier, shift = ctypes.c_int32(), ctypes.c_int32()
    if lib.hz_qgemm_multiplier(sigma, ctypes.byref(multiplier), ctypes.byref(shift)) < 0:
        raise ValueError(f"sigma is {sigma}, not positive and finite")
    return multiplier.value, shift.value


def quat_init_scale(fan_in: int, fan_out: int = 0) -> float:
    """The scale of Glorot, or without fan_out of He: hz_quat_init_scale()."""
    return lib.hz_quat_init_scale(fan_in, fan_out)


def mhc_rows(n: int, **options: Any) -> int:
    """The rows of phi for n streams: hz_mhc_rows()."""
    rows = lib.hz_mhc_rows(n, _filled("hz_mhc_opts", options, Views()))
    if rows < 0:
        raise ValueError(f"no rows for {n} streams with {options}")
    return rows


# ---- Packed matrices -----------------------------------------------------------------------------

def _packed(ctx, name, views, operands, before=(), after=()):
    """Calls hz_<name>_pack() of operands by name; options stand before data or after packed."""
    addresses = [views.put(a, False, word)[0] for word, a in operands.items()]
    ctx = ctx or context(views.device)
    size = ctypes.c_size_t()
    ctx.call(name + "_pack_bytes", *addresses, *before, *after, ctypes.byref(size))
    packed = Packed(views.first, size.value, views.device)
    ctx.stream(views.first)
    ctx.call(name + "_pack", *addresses, *before, packed.address, size.value,
             ctypes.byref(packed.struct), *after)
    return packed


def qgemm_pack(b: Array, *, ctx: Context | None = None) -> Packed:
    """Packs B for packed= of qgemm() and qlinear(): hz_qgemm_pack()."""
    return _packed(ctx, "qgemm", Views(), {"b": b})


def qlinear_group_pack(w: Array, scales: Array, *, ctx: Context | None = None,
                       **options: Any) -> Packed:
    """Packs W and its scales for packed= of qlinear_group(): hz_qlinear_group_pack()."""
    views = Views()
    opts = ctypes.byref(build("hz_qlinear_group_opts", options, views))
    return _packed(ctx, "qlinear_group", views, {"w": w, "scales": scales}, before=(opts,))


def quat_gemm_pack(a: Array, *, ctx: Context | None = None, **options: Any) -> Packed:
    """Packs A for packed= of quat_gemm() and quat_linear(): hz_quat_gemm_pack()."""
    views = Views()
    opts = ctypes.byref(build("hz_quat_gemm_opts", options, views))
    return _packed(ctx, "quat_gemm", views, {"a": a}, after=(opts,))


# ---- Lattice codes -------------------------------------------------------------------------------

class _Handle:
    """An object of the library with close(), and a context manager."""

    _close = ""
    handle = None

    def close(self):
        """Frees it; it must not be in use."""
        handle, self.handle = self.handle, None
        if handle:
            getattr(lib, self._close)(handle)

    __del__ = close

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def pointer(self, views):
        if not self.handle:
            raise ValueError(f"the {type(self).__name__} is closed")
        return self.handle


class LatticeInfo:
    """hz_lattice_info: its numbers, and matrices as NumPy arrays."""

    def __init__(self, handle):
        cls, fields, _ = STRUCTS["hz_lattice_info"]
        info = cls()
        check(lib.hz_lattice_get_info(handle, ctypes.byref(info)))
        for key, (kind, _, _) in fields.items():
            if not kind.endswith("*"):
                setattr(self, key, getattr(info, key))
        d, points = info.dim, info.q ** info.dim
        for key, kind, shape in (
                ("to_lattice", ctypes.c_double, (d, d)), ("from_lattice", ctypes.c_double, (d, d)),
                ("reduced", ctypes.c_double, (d, d)), ("basis", ctypes.c_double, (d, d)),
                ("scale_table", ctypes.c_float, (max(info.scales, 1),)),
                ("offset", ctypes.c_int32, (info.embed,)),
                ("leaders", ctypes.c_int32, (points, info.embed))):
            address = getattr(info, key)
            setattr(self, key, address and np.ctypeslib.as_array(
                ctypes.cast(address, ctypes.POINTER(kind)), shape).copy())


class Lattice(_Handle):
    """A quantizer: Lattice(preset="e8_4_50"), Lattice(kind="d", q=4, levels=2, beta=0.5).

    Keywords are the fields of hz_lattice_opts. info has what hz_lattice_get_info() says.
    """

    _close = "hz_lattice_close"

    def __init__(self, *, ctx: Context | None = None, **options: Any):
        views = Views()
        handle = ctypes.c_void_p()
        (ctx or context()).call("lattice_open", ctypes.byref(handle),
                                ctypes.byref(build("hz_lattice_opts", options, views)))
        self.handle = handle.value
        self.info = LatticeInfo(self.handle)

    def encode(self, x: Array, codes: Output = True, t: Output = True, overload: Output = True,
               **options: Any) -> Any:
        """lattice_encode(): codes, t and overload (None unless asked for), and row_scale."""
        return ops.lattice_encode(self, x, codes, t, overload, **options)

    def decode(self, codes: Array, t: Array | None = None, y: Output = True,
               **options: Any) -> Any:
        """lattice_decode()."""
        return ops.lattice_decode(self, codes, t, y, **options)

    def repack(self, codes: Array, from_pack: int | str, to_pack: int | str,
               to: Output = True) -> Any:
        """lattice_repack()."""
        return ops.lattice_repack(self, codes, to, enum_value("hz_lattice_pack", from_pack),
                                  enum_value("hz_lattice_pack", to_pack))


def lattice_design(rate: float, sigma: float = 1.0, x: Array | None = None, *,
                   ctx: Context | None = None, **want: Any) -> tuple[Lattice, dict]:
    """The quantizer for data and a rate, opened, and the report: hz_lattice_design().

    Keywords are the fields of want; none: one of the presets.
    """
    views, bank = Views(), (ctypes.c_double * 16)()
    found, report = hz_lattice_opts(), STRUCTS["hz_lattice_report"][0]()
    target = build("hz_lattice_opts", want, views)
    is_bank = target.policy == CONSTANTS["LATTICE_BANK"]
    ctx = ctx or context()
    ctx.call("lattice_design", ctypes.byref(target), rate, sigma,
             None if x is None else views.put(x, False, "x")[0], ctypes.byref(found),
             bank if is_bank else None, ctypes.byref(report))
    lattice = Lattice.__new__(Lattice)
    handle = ctypes.c_void_p()
    ctx.call("lattice_open", ctypes.byref(handle), ctypes.byref(found))
    lattice.handle = handle.value
    lattice.info = LatticeInfo(lattice.handle)
    return lattice, {key: getattr(report, key) for key in STRUCTS["hz_lattice_report"][1]}


class Coded:
    """A coded matrix, hz_coded: codes and t, or packed by Vlut.pack()."""

    def __init__(self, codes: Array | None = None, t: Array | None = None,
                 row_scale: Array | None = None, packed: Packed | None = None,
                 rows: int | None = None, k: int = 0, use_levels: int = 0):
        self.codes, self.t, self.row_scale, self.packed = codes, t, row_scale, packed
        self.k, self.use_levels = k, use_levels
        self.rows = rows if rows is not None else (packed or codes).shape[0]

    def pointer(self, views):
        options = {"codes": self.codes, "t": self.t, "row_scale": self.row_scale,
                   "packed": self.packed, "k": self.k, "use_levels": self.use_levels}
        return views.keep(build("hz_coded", options, views))


class Vlut(_Handle):
    """What products with codes need: Vlut(w, x=None, route="table"). hz_vlut_open().

    w is the Lattice of the matrix, x that of coded vectors. It belongs to the context: for a GPU
    give ctx=hz.context("cuda").
    """

    _close = "hz_vlut_close"

    def __init__(self, w: Lattice, x: Lattice | None = None, *, ctx: Context | None = None,
                 **options: Any):
        self.context = ctx or context()
        self.lattices = w, x            # which live as long
        handle = ctypes.c_void_p()
        self.context.call("vlut_open", ctypes.byref(handle), w.pointer(None),
                          x.pointer(None) if x else None,
                          _filled("hz_vlut_opts", options, Views()))
        self.handle = handle.value

    def gemv(self, w: Coded, x: Array, y: Output = True) -> Any:
        """vlut_gemv()."""
        return ops.vlut_gemv(self, w, x, y, ctx=self.context)

    def gemm(self, w: Coded, x: Array, y: Output = True) -> Any:
        """vlut_gemm()."""
        return ops.vlut_gemm(self, w, x, y, ctx=self.context)

    def gemm2(self, w: Coded, x: Coded, y: Output = True) -> Any:
        """vlut_gemm2(): y is NumPy's unless it is given."""
        return ops.vlut_gemm2(self, w, x, y, ctx=self.context)

    def pack(self, w: Coded) -> Coded:
        """The matrix in the order that kernels read: hz_vlut_pack()."""
        views, size = Views(), ctypes.c_size_t()
        coded = w.pointer(views)
        self.context.call("vlut_pack_bytes", self.pointer(None), coded, ctypes.byref(size))
        packed = Packed(w.codes, size.value, self.context.device)
        self.context.stream(w.codes)
        self.context.call("vlut_pack", self.pointer(None), coded, packed.address, size.value,
                          ctypes.byref(packed.struct))
        return Coded(row_scale=w.row_scale, packed=packed, rows=w.rows, k=w.k,
                     use_levels=w.use_levels)


# ---- Linear layers -------------------------------------------------------------------------------

class Linear(_Handle):
    """A linear layer with quantized weights: Linear(w, format="e8_4_50", flags=hz.LINEAR_ROTATE).

    Keywords are the fields of hz_linear_open_opts. out and in_ are its sizes. It belongs to the
    context: for a GPU give ctx=hz.context("cuda").
    """

    _close = "hz_linear_close"

    def __init__(self, w: Array, *, ctx: Context | None = None, **options: Any):
        views = Views()
        address, found = views.put(w, False, "w")
        self._open(ctx or context(found[2]), "linear_open", address,
                   ctypes.byref(build("hz_linear_open_opts", options, views)))

    def _open(self, ctx, call, *arguments):
        handle = ctypes.c_void_p()
        ctx.call(call, ctypes.byref(handle), *arguments)
        self.context, self.handle = ctx, handle.value
        info = self.info
        self.out, self.in_ = info["out"], info["in"]

    @classmethod
    def load(cls, source: Any, *, ctx: Context | None = None) -> Linear:
        """A layer of what save() wrote: a file's name, which is mapped, or bytes."""
        layer = cls.__new__(cls)
        data = np.memmap(source, np.uint8, "r") if isinstance(source, (str, os.PathLike)) else \
            np.frombuffer(source, np.uint8)
        if data.ctypes.data % 64:
            data = aligned(len(data), data)
        layer.data = data               # which lives as long
        layer._open(ctx or context(), "linear_load", data.ctypes.data, len(data))
        return layer

    def save(self, path: Any = None) -> np.ndarray:
        """The layer as bytes, which are also written to a file if there is a path."""
        size = ctypes.c_size_t()
        self.context.call("linear_save_bytes", self.pointer(None), ctypes.byref(size))
        data = aligned(size.value)
        self.context.call("linear_save", self.pointer(None), data.ctypes.data, len(data))
        if path is not None:
            data.tofile(path)
        return data

    @property
    def info(self) -> dict:
        """hz_linear_get_info() as a dictionary."""
        cls, fields, _ = STRUCTS["hz_linear_info"]
        info = cls()
        check(lib.hz_linear_get_info(self.pointer(None), ctypes.byref(info)))
        values = {key: getattr(info, key) for key in fields}
        return {key: value.decode() if isinstance(value, bytes) else value
                for key, value in values.items()}

    def forward(self, x: Array, bias: Array | None = None, y: Output = True,
                **options: Any) -> Any:
        """linear_forward(): activation(x W^T + bias)."""
        return ops.linear_forward(self, x, bias, y, ctx=self.context, **options)

    __call__ = forward

    def bwd(self, dy: Array, dx: Output = True) -> Any:
        """linear_bwd(): the gradient of x."""
        return ops.linear_bwd(self, dy, dx, ctx=self.context)

    def dequantize(self, w: Output = True) -> Any:
        """linear_dequantize(): the weights, NumPy's unless w is given."""
        return ops.linear_dequantize(self, w, ctx=self.context)


# ---- Hyper-connections ---------------------------------------------------------------------------

class MhcLayer:
    """A layer of hyper-connections around a branch of the caller's own: hz_mhc_layer.

        layer = hz.MhcLayer(n, sets, phi=phi, alpha=alpha, bias=bias, opts=dict(preset="paper"))
        u = layer.begin(x)
        y = layer.end(x, branch(u))
        df = layer.end_bwd(f, dy)
        dx = layer.begin_bwd(x, dy, du)

    Keywords are the views of hz_mhc_layer, gradients too; opts has the conventions.
    """

    def __init__(self, n: int, sets: int, *, ctx: Context | None = None, opts: dict | None = None,
                 **operands: Array):
        self.arrays = dict(operands)                    # which live as long
        views, self.struct = Views(), hz_mhc_layer()
        for key, value in operands.items():
            if key not in STRUCTS["hz_mhc_layer"][1] or key in ("p", "q", "a", "saved", "dq"):
                raise TypeError(f"a layer has no operand {key}")
            if value is not None:
                views.copy(value, key, getattr(self.struct, key))
        self.struct.opts = build("hz_mhc_opts", opts or {}, views)
        self.context = ctx or context(views.device or CONSTANTS["CPU"])
        size = ctypes.c_size_t()
        self._bind(n, sets, None, size)
        self.memory = Packed(views.first, size.value, self.context.device)
        self._bind(n, sets, self.memory.address, size)

    def _bind(self, n, sets, data, size):
        self.context.call("mhc_layer_bind", ctypes.byref(self.struct), n, sets, data,
                          ctypes.byref(size))

    def pointer(self, views):
        return ctypes.addressof(self.struct)

    def begin(self, x: Array, u: Output = True) -> Any:
        """mhc_layer_begin(): the branch input."""
        return ops.mhc_layer_begin(self, x, u, ctx=self.context)

    def end(self, x: Array, f: Array, y: Output = True) -> Any:
        """mhc_layer_end(): the streams after the branch gave f."""
        return ops.mhc_layer_end(self, x, f, y, ctx=self.context)

    def end_bwd(self, f: Array, dy: Array, df: Output = True) -> Any:
        """mhc_layer_end_bwd(): the gradient of f."""
        return ops.mhc_layer_end_bwd(self, f, dy, df, ctx=self.context)

    def begin_bwd(self, x: Array, dy: Array, du: Array, dx: Output = True) -> Any:
        """mhc_layer_begin_bwd(): the gradient of x; those of weights go to the layer's arrays."""
        return ops.mhc_layer_begin_bwd(self, x, dy, du, dx, ctx=self.context)

    def close(self):
        """Forgets the operands and frees the layer's memory."""
        self.arrays, self.memory, self.struct = {}, None, hz_mhc_layer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def mhc_recompute(x: Array, blocks: list[dict], *, ctx: Context | None = None) -> list[dict]:
    """Branch inputs and streams of consecutive layers: hz_mhc_recompute().

    blocks are dictionaries of the views of hz_mhc_block; u and y are outputs.
    """
    views = Views()
    views.buffer = ctypes.create_string_buffer(SIZE * (1 + 7 * len(blocks)))
    views.base = ctypes.addressof(views.buffer)
    address, found = views.put(x, False, "x")
    array = (hz_mhc_block * len(blocks))()
    for block, target in zip(blocks, array):
        for key, value in block.items():
            if value is not None:
                if key in ("u", "y") and _arrays.memory(value)[5]:
                    raise ValueError(f"{key} is read-only, and the call writes to it")
                views.copy(value, key, getattr(target, key))
    ctx = ctx or context(found[2])
    ctx.stream(x)
    ctx.call("mhc_recompute", address, len(blocks), array)
    return blocks
