# objects.py - what outlives a call: quantizers, tables, coded and packed matrices, layers
# SPDX-License-Identifier: BSD-2-Clause
"""Quantizers, tables, coded and packed matrices, layers, and calls on numbers alone."""
from __future__ import annotations

import ctypes
import math
import os
from typing import Any

import numpy as np

from . import _arrays, ops
from ._api import CONSTANTS, STRUCTS, hz_lattice_opts, hz_mhc_block, hz_mhc_layer
from ._core import (SIZE, Array, Context, Error, InvalidError, NotCopied, Output, Packed, Views,
                    aligned, build, check, context, described, enum_value, lib)
from ._rules import is_cn

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
        raise ValueError(f"no rows for {n} streams with {options}: there are 1 to 8, with residual "
                         "lite 1 to 4")
    return rows


# ---- Packed matrices -----------------------------------------------------------------------------

def _packed(ctx, name, views, operands, before=(), after=()):
    """Calls hz_<name>_pack() of operands by name; options stand before data or after packed."""
    addresses = [views.put(a, False, word)[0] for word, a in operands.items()]
    ctx = ctx or context(views.device)
    size = ctypes.c_size_t()
    with ctx.lock:
        ctx.call(name + "_pack_bytes", *addresses, *before, *after, ctypes.byref(size))
        packed = Packed(views.first, size.value, views.device)
        ctx.launch(getattr(lib, f"hz_{name}_pack"), (
            ctx.open_handle(), *addresses, *before, packed.address, size.value,
            ctypes.byref(packed.struct), *after), views.first, (name, views.like))
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

class _Handle(NotCopied):
    """An object of the library with close(), and a context manager."""

    handle = None                       # Owned; None: closed

    def close(self):
        """Frees it, when calls of other threads with it have ended."""
        self.handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def opened(self):
        """What is open, which stays so while it is referred to."""
        handle = self.handle
        if handle is None:
            raise ValueError(f"the {type(self).__name__} is closed")
        return handle

    def pointer(self, views):
        """The address for a call with views."""
        handle = self.opened()
        views.kept.append(handle)
        return handle.address


def _lattice_opts(options, views):
    """hz_lattice_opts of keywords. Its arrays must have as many numbers as the library reads, which
    sees addresses alone; a bank and a basis say how many banks and dimensions there are."""
    count = {key: np.size(value) for key, value in options.items()
             if value is not None and STRUCTS["hz_lattice_opts"][1].get(key, "")[0] in
             ("const double *", "const int64_t *")}
    found = {"banks": count.get("bank"), "dim": count and math.isqrt(count.get("basis", 0)) or None}
    target = build("hz_lattice_opts", {**found, **options}, views)
    d = target.dim or _DIMENSIONS.get(target.kind) or (
        4 if target.preset == CONSTANTS["LATTICE_PRESET_D4_4_50"] else 8)
    for key, size in count.items():
        wanted = {"bank": target.banks, "dither": d, "offset": d}.get(key, d * d)
        if size != wanted:
            raise ValueError(f"{key} has {size} numbers, not {wanted}")
    return target


_DIMENSIONS = {CONSTANTS["LATTICE_Z"]: 1, CONSTANTS["LATTICE_A2"]: 2, CONSTANTS["LATTICE_D"]: 4}


class LatticeInfo:
    """hz_lattice_info: its numbers, and matrices as NumPy arrays."""

    def __init__(self, handle):
        cls, fields, _ = STRUCTS["hz_lattice_info"]
        info = cls()
        check(lib.hz_lattice_get_info(handle.address, ctypes.byref(info)))
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

    Keywords are the fields of hz_lattice_opts; banks and dim may be left out where a bank and a
    basis are given. info has what hz_lattice_get_info() says.
    """

    def __init__(self, *, ctx: Context | None = None, **options: Any):
        views = Views()
        self._open(ctx or context(), _lattice_opts(options, views))

    def _open(self, ctx, options):
        self.handle = ctx.open_object("lattice_open", "hz_lattice_close", ctypes.byref(options))
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
        return ops.lattice_repack(
            self, codes, to, enum_value("hz_lattice_pack", from_pack, "from_pack"),
            enum_value("hz_lattice_pack", to_pack, "to_pack"))


def lattice_design(rate: float, sigma: float = 1.0, x: Array | None = None, *,
                   ctx: Context | None = None, **want: Any) -> tuple[Lattice, dict]:
    """The quantizer for data and a rate, opened, and the report: hz_lattice_design().

    Keywords are the fields of want; none: one of the presets.
    """
    views, bank = Views(), (ctypes.c_double * 16)()
    found, report = hz_lattice_opts(), STRUCTS["hz_lattice_report"][0]()
    target = _lattice_opts(want, views)
    is_bank = target.policy == CONSTANTS["LATTICE_BANK"]
    ctx = ctx or context()
    ctx.call("lattice_design", ctypes.byref(target), rate, sigma,
             None if x is None else views.put(x, False, "x")[0], ctypes.byref(found),
             bank if is_bank else None, ctypes.byref(report))
    lattice = Lattice.__new__(Lattice)
    lattice._open(ctx, found)
    return lattice, {key: getattr(report, key) for key in STRUCTS["hz_lattice_report"][1]}


class Coded:
    """A coded matrix, hz_coded: codes and t, or packed by Vlut.pack()."""

    def __init__(self, codes: Array | None = None, t: Array | None = None,
                 row_scale: Array | None = None, packed: Packed | None = None,
                 rows: int | None = None, k: int = 0, use_levels: int = 0,
                 bias: Array | None = None, activation: int | str = 0,
                 hadamard: dict | None = None):
        self.codes, self.t, self.row_scale, self.packed = codes, t, row_scale, packed
        self.k, self.use_levels = k, use_levels
        self.bias, self.activation, self.hadamard = bias, activation, hadamard
        if packed is None and not _arrays.is_array(codes):
            raise TypeError(f"codes is {described(codes)}, not an array, and packed is not given")
        self.rows = rows if rows is not None else (packed or codes).shape[0]

    def pointer(self, views):
        options = {"codes": self.codes, "t": self.t, "row_scale": self.row_scale,
                   "packed": self.packed, "k": self.k, "use_levels": self.use_levels,
                   "rows": self.rows if self.packed else 0, "bias": self.bias,
                   "activation": self.activation, "hadamard": self.hadamard}
        return views.keep(build("hz_coded", options, views))


class Vlut(_Handle):
    """What products with codes need: Vlut(w, x=None, route="table"). hz_vlut_open().

    w is the Lattice of the matrix, x that of coded vectors. It belongs to the context: for a GPU
    give ctx=hz.context("cuda"). Threads may share it; their calls take turns.
    """

    def __init__(self, w: Lattice, x: Lattice | None = None, *, ctx: Context | None = None,
                 **options: Any):
        self.context = ctx or context()
        views = Views()
        for word, lattice in {"w": w, **({"x": x} if x is not None else {})}.items():
            if not isinstance(lattice, Lattice):
                raise TypeError(f"{word} is {described(lattice)}, not a Lattice")
        self.lattices = w.opened(), x.opened() if x else None       # which live as long
        self.handle = self.context.open_object(
            "vlut_open", "hz_vlut_close", w.pointer(views), x.pointer(views) if x else None,
            _filled("hz_vlut_opts", options, views))

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
        vlut = self.pointer(views)
        with self.context.lock:
            self.context.call("vlut_pack_bytes", vlut, coded, ctypes.byref(size))
            packed = Packed(w.codes, size.value, self.context.device)
            self.context.launch(lib.hz_vlut_pack, (
                self.context.open_handle(), vlut, coded, packed.address, size.value,
                ctypes.byref(packed.struct)), w.codes, ("vlut_pack", views.like))
        return Coded(row_scale=w.row_scale, packed=packed, rows=w.rows, k=w.k,
                     use_levels=w.use_levels, bias=w.bias, activation=w.activation,
                     hadamard=w.hadamard)

    def empty(self, rows: int, k: int, like: Array | None = None) -> Packed:
        """A packed matrix for append(), of codes 0; on a GPU its memory is made as that of like."""
        views, size = Views(), ctypes.c_size_t()
        coded = views.keep(build("hz_coded", {"rows": rows, "k": k}, views))
        vlut = self.pointer(views)
        with self.context.lock:
            self.context.call("vlut_pack_bytes", vlut, coded, ctypes.byref(size))
            packed = Packed(like, size.value, self.context.device)
            self.context.stream(like)
            self.context.call("vlut_pack", vlut, coded, packed.address, size.value,
                              ctypes.byref(packed.struct))
        return packed

    def append(self, packed: Packed, x: Array, row: int, **options: Any):
        """Encodes rows of x into rows of empty() or pack(): hz_vlut_append().

        Options are those of hz_lattice_code_opts: hadamard=, and row_scale=, an array to fill.
        """
        views = Views()
        vlut = self.pointer(views)
        opts = ctypes.byref(build("hz_lattice_code_opts", options, views)) if options else None
        view = views.put(x, False, "x")[0]
        arguments = "vlut_append", vlut, view, row, packed.pointer(views), opts
        with self.context.lock:
            self.context.stream(x)
            if self.context.device != CONSTANTS["CPU"]:
                with self.context.record() as recording:
                    self.context.call(*arguments)
                self.context.reserve(recording.bytes)
            self.context.call(*arguments)


# ---- Linear layers -------------------------------------------------------------------------------

def _mapped(path):
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise InvalidError(f"{path}: the file is empty")
        return np.memmap(file, np.uint8, "r")


def _write(path, data):
    """Writes a file of that name as a whole: beside it first, then renamed."""
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):       # a device, a pipe, a directory
        _fill(path, os.open(path, os.O_WRONLY), data)
        return
    tail = f".{os.urandom(6).hex()}.tmp"
    beside = path + (tail if isinstance(path, str) else tail.encode())
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from None
    try:
        if os.path.exists(path):
            os.chmod(beside, os.stat(path).st_mode & 0o777)
        _fill(path, file, data)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def _fill(path, number, data):
    try:
        with open(number, "wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest):]
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from None


def _unpickled(cls, data, device):
    return cls.load(data, ctx=context(device))


class Linear(_Handle):
    """A linear layer with quantized weights: Linear(w, format="e8_4_50", flags=hz.LINEAR_ROTATE).

    format is one of s8_row (8 bits; the default), e8_4_50, e8_4_50_fast, d4_4_50, e8_4_25,
    e8_4_25_best, e8_3_25, e8_3_25_fast, e8_2_25 (lattice codes of so many bits a weight), s8_g128,
    s4_g128, u4_g128, s4_g32, mxfp4, nvfp4 (groups of a row with a scale each), or a name that
    info["format_name"] has, "e8-4.5". Further keywords are fields of hz_linear_open_opts: flags,
    seed (of the rotation), moments (f32 [in]: means of x_k^2 of
    calibration data, or [in, in]: those of x_j x_k).

    w is [out, in]; out and in_ are its sizes. A layer belongs to the context: for a GPU give
    ctx=hz.context("cuda"). Threads may share it: their calls take turns; layers of different
    contexts compute at the same time. copy and pickle make another layer, by save() and load().
    """

    like: Any = None

    def __init__(self, w: Array, *, ctx: Context | None = None, **options: Any):
        views = Views()
        address, found = views.put(w, False, "w")
        self.like = _arrays.empty((0,), CONSTANTS["F32"], w)    # whose library dequantize() has
        self._open(ctx or context(found[2]), "linear_open", address,
                   ctypes.byref(build("hz_linear_open_opts", options, views)))

    def _open(self, ctx, call, *arguments):
        self.context, self.handle = ctx, ctx.open_object(call, "hz_linear_close", *arguments)
        info = self.info
        self.out, self.in_ = info["out"], info["in"]

    @classmethod
    def load(cls, source: Any, *, ctx: Context | None = None) -> Linear:
        """A layer of what save() wrote: a file's name, or bytes, or an array of them.

        A file is mapped. A layer on the CPU reads a map, and bytes and arrays at an address that is
        a multiple of 64, in place: they must not change while the layer is open. Others are copied.
        """
        layer = cls.__new__(cls)
        path = None
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
        try:
            data = _mapped(path) if path is not None else np.frombuffer(source, np.uint8)
        except TypeError:
            raise TypeError(f"source is a {type(source).__name__}, not the name of a file, bytes "
                            "or a contiguous array of them") from None
        if data.ctypes.data % 64:
            data = aligned(len(data), data)
        layer.data = data               # which lives as long
        try:
            layer._open(ctx or context(), "linear_load", data.ctypes.data, len(data))
        except Error as error:
            if path is not None:
                raise type(error)(f"{path}: {error}") from None
            raise
        return layer

    def save(self, path: Any = None) -> np.ndarray:
        """The layer as bytes, which are also written to a file if there is a path.

        A file of that name is replaced when all is written; layers that were loaded from it keep
        the old one.
        """
        size, layer = ctypes.c_size_t(), self.opened()
        self.context.call("linear_save_bytes", layer.address, ctypes.byref(size))
        data = aligned(size.value)
        self.context.call("linear_save", layer.address, data.ctypes.data, len(data))
        if path is not None:
            _write(os.fspath(path), data)
        return data

    def __reduce_ex__(self, protocol):
        return _unpickled, (type(self), self.save().tobytes(), self.context.device)

    def __copy__(self):
        return self.load(self.save(), ctx=self.context)

    def __deepcopy__(self, memo):
        return self.__copy__()

    @property
    def info(self) -> dict:
        """hz_linear_get_info() as a dictionary."""
        cls, fields, _ = STRUCTS["hz_linear_info"]
        info, layer = cls(), self.opened()
        check(lib.hz_linear_get_info(layer.address, ctypes.byref(info)))
        values = {key: getattr(info, key) for key in fields}
        return {key: value.decode() if isinstance(value, bytes) else value
                for key, value in values.items()}

    def forward(self, x: Array, bias: Array | None = None, y: Output = True,
                **options: Any) -> Any:
        """linear_forward(): activation(x W^T + bias); layer(x, bias) is the same.

        Options: activation="none", "relu", "tanh", "sigmoid", "gelu", "silu" or "gelu_tanh";
        flags=hz.LINEAR_GATED for activation(first half) * (second half) of the outputs, and
        hz.LINEAR_WEIGHT_ONLY for groups that multiply x as it is. y is of x's dtype, or as it is
        given: layer(x, y="bf16").
        """
        return ops.linear_forward(self, x, bias, y, ctx=self.context, **options)

    __call__ = forward

    def bwd(self, dy: Array, dx: Output = True) -> Any:
        """linear_bwd(): the gradient of x."""
        return ops.linear_bwd(self, dy, dx, ctx=self.context)

    def pointer(self, views):
        if views.first is None:
            views.first = self.like
        return super().pointer(views)

    def dequantize(self, w: Output = True) -> Any:
        """linear_dequantize(): the weights. If w is not given, they are of the library of the
        weights that the layer was made of, or NumPy's if it was loaded."""
        return ops.linear_dequantize(self, w, ctx=self.context)


# ---- Hyper-connections ---------------------------------------------------------------------------

class MhcLayer(NotCopied):
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
        views.kept += self.arrays, self.memory
        return views.keep(self.struct)

    def begin(self, x: Array, u: Output = True) -> Any:
        """mhc_layer_begin(): the branch input."""
        if u is True and is_cn(self.struct.opts):       # the rule of the call sees no options
            u = tuple(x.shape[:-1])
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
    with ctx.lock:
        ctx.launch(lib.hz_mhc_recompute, (ctx.open_handle(), address, len(blocks), array), x,
                   ("mhc_recompute", views.like))
    return blocks
