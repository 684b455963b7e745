# _core.py - contexts, errors and the call of an operation
# SPDX-License-Identifier: BSD-2-Clause
"""Contexts, errors, and how a Python call becomes one of the library's."""
from __future__ import annotations

import ctypes
import os
import struct
import threading
from operator import index as _integer
from typing import Any

import numpy as np

from . import _arrays
from ._api import CONSTANTS, ENUMS, FUNCTIONS, STRUCTS, hz_packed, hz_tensor
from ._arrays import CPU, CUDA, MAXDIM, memory
from ._library import load
from ._rules import RULES

Array = Any     # NumPy's, a View, or one with __dlpack__ or __cuda_array_interface__
Output = Any    # the same, True, None, a dtype, a shape, or (shape, dtype)

lib, library_path = load(CONSTANTS["VERSION"])
for _name, (_result, _parameters) in FUNCTIONS.items():
    _function = getattr(lib, _name, None)
    if _function is not None and not any(kind == "hz_tensor" for _, kind, _ in _parameters):
        _function.restype = _result
        _function.argtypes = [
            ctypes.c_void_p if "*" in kind or length else getattr(ctypes, {
                "int": "c_int", "double": "c_double", "size_t": "c_size_t"}.get(
                    kind, "c_" + kind.removesuffix("_t")))
            for _, kind, length in _parameters]


# ---- Errors --------------------------------------------------------------------------------------

class Error(Exception):
    """A call was refused or failed: the library's sentence, and status, an enum hz_status."""

    status: int = 0


class InvalidError(Error, ValueError):
    """A missing operand, an option or a value out of its range."""

    status = CONSTANTS["EINVAL"]


class DtypeError(Error, TypeError):
    """An operand has a dtype that the call does not take."""

    status = CONSTANTS["EDTYPE"]


class ShapeError(Error, ValueError):
    """An operand has the wrong shape."""

    status = CONSTANTS["ESHAPE"]


class StrideError(Error, ValueError):
    """An operand has strides that the call does not take."""

    status = CONSTANTS["ESTRIDE"]


class AliasError(Error, ValueError):
    """Operands overlap where they must not."""

    status = CONSTANTS["EALIAS"]


class DeviceError(Error, ValueError):
    """An operand is on another device than the context's."""

    status = CONSTANTS["EDEVICE"]


class NoDeviceError(Error, RuntimeError):
    """The device is not there, or cannot be used."""

    status = CONSTANTS["ENODEV"]


class NoMemoryError(Error, MemoryError):
    """There is not enough memory."""

    status = CONSTANTS["ENOMEM"]


class WorkspaceError(Error, RuntimeError):
    """The workspace is too small."""

    status = CONSTANTS["EWORKSPACE"]


class NotSupportedError(Error, NotImplementedError):
    """A valid request that this build or device cannot do."""

    status = CONSTANTS["ENOTSUP"]


class CudaError(Error, RuntimeError):
    """The CUDA driver reported an error."""

    status = CONSTANTS["ECUDA"]


class ForkError(Error, RuntimeError):
    """A context with a GPU was used in a child of fork()."""

    status = CONSTANTS["EFORK"]


ERRORS = {cls.status: cls for cls in Error.__subclasses__()}


def check(status, context=None):
    """Raises the error of a status that is negative."""
    if status < 0:
        text = lib.hz_errmsg(context) if context else lib.hz_open_errmsg()
        text = text.decode() or lib.hz_strerror(status).decode()
        raise ERRORS.get(status, Error)(text)
    return status


# ---- Structs -------------------------------------------------------------------------------------

def number(value):
    """A float of any number, and of nothing else."""
    if isinstance(value, str):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def enum_value(enum, value):
    """The number of an enumerator's short name ("softmax"), or of a dtype's; numbers stay."""
    if not isinstance(value, str):
        return _integer(value)
    names = ENUMS[enum or "hz_dtype"]
    try:
        return names[value]
    except KeyError:
        raise ValueError(f"{value!r} is none of {', '.join(names)}") from None


class Fields:
    """Fills a struct from keywords."""

    def __init__(self, name):
        self.cls, self.fields, self.given = STRUCTS[name]
        self.name = name
        prefix = name.upper().removeprefix("HZ_").removesuffix("_OPTS") + "_"
        self.flags = {key: CONSTANTS[prefix + key.upper()] for key in self.given
                      if key not in self.fields}

    def normal(self, key, value):
        """An option as rules see it: enumerators as numbers."""
        kind, length, enum = self.fields.get(key, ("bool", "", None))
        return enum_value(enum, value) if kind == "int32_t" and not length and \
            isinstance(value, str) else value

    def set(self, target, key, value, views):
        """Sets one field. views packs arrays and keeps what pointers point to alive."""
        if key in self.flags:
            target.given |= self.given[key]
            if value:
                target.flags |= self.flags[key]
            return
        kind, length, enum = self.fields[key]
        if kind in ("const hz_tensor *", "hz_tensor *"):
            setattr(target, key, views.address(value, key))
        elif kind == "hz_tensor":
            views.copy(value, key, getattr(target, key))
        elif kind == "const hz_packed *":
            setattr(target, key, views.keep(value.struct))
        elif kind == "const hz_hadamard_opts *":
            setattr(target, key, views.keep(build("hz_hadamard_opts", value, views)))
        elif kind in ("const double *", "const int64_t *"):
            setattr(target, key, views.numbers(value, "f8" if "double" in kind else "i8"))
        elif length:
            array = getattr(target, key)
            convert = number if kind == "double" else _integer
            value = [value] if isinstance(value, (int, float)) else list(value)
            if len(value) > len(array):
                raise ValueError(f"{key} has {len(value)} numbers, not at most {len(array)}")
            for i, one in enumerate(value):
                array[i] = convert(one)
        elif kind == "double":
            setattr(target, key, number(value))
        else:
            value = enum_value(enum, value)
            if key == "axis" and self.name == "hz_hadamard_opts":
                value += value >= 0
            setattr(target, key, value)
            if getattr(target, key) != value:
                raise ValueError(f"{key} is {value}, out of the range of {kind}")
        if key in self.given:
            target.given |= self.given[key]


_fields = {name: Fields(name) for name in STRUCTS}


def build(name, options, views):
    """A struct of keywords; a struct of the right class stays as it is."""
    if isinstance(options, ctypes.Structure):
        return options
    fields = _fields[name]
    target = fields.cls()
    for key, value in options.items():
        if key not in fields.fields and key not in fields.flags:
            raise TypeError(f"{name} has no field {key} (valid: {', '.join(fields.fields)})")
        if value is not None:
            fields.set(target, key, value, views)
    return target


# ---- Views ---------------------------------------------------------------------------------------

SIZE = ctypes.sizeof(hz_tensor)
SLOTS = 48
_layouts = [struct.Struct(f"=Qhhi{n}q{8 * (MAXDIM - n)}x{n}q{8 * (MAXDIM - n)}x")
            for n in range(MAXDIM + 1)]


class Meta:
    """Shape and dtype of an operand, for rules."""

    __slots__ = ("shape", "dtype")

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype


class Views:
    """The hz_tensor of one call at a time, in memory that is made once for each thread."""

    def __init__(self):
        self.buffer = ctypes.create_string_buffer(SIZE * SLOTS)
        self.base = ctypes.addressof(self.buffer)
        self.kept = []
        self.clear()

    def clear(self):
        self.count = 0
        self.kept.clear()
        self.device = 0
        self.first = None

    def put(self, a, writes, name):
        """The address of a new hz_tensor of array a, and what memory() says."""
        found = memory(a)
        data, dtype, device, shape, strides, read_only, owner = found
        n = len(shape)
        if n > MAXDIM:
            raise ValueError(f"{name} has {n} dimensions, more than {MAXDIM}")
        if writes and read_only:
            raise ValueError(f"{name} is read-only, and the call writes to it")
        if not self.device:
            self.device, self.first = device, a
        if owner is not a:
            self.kept.append(owner)
        offset = self.count * SIZE
        self.count += 1
        _layouts[n].pack_into(self.buffer, offset, data, dtype, n, device, *shape, *strides)
        return self.base + offset, found

    # What Fields.set() asks for
    def address(self, value, name):
        return self.put(value, False, name)[0]

    def copy(self, value, name, target):
        ctypes.memmove(ctypes.addressof(target), self.put(value, False, name)[0], SIZE)

    def keep(self, value):
        self.kept.append(value)
        return ctypes.addressof(value)

    def numbers(self, value, dtype):
        array = np.ascontiguousarray(value, dtype)
        self.kept.append(array)
        return array.ctypes.data


# ---- Contexts ------------------------------------------------------------------------------------

class _Thread(threading.local):
    """What each thread has of its own: a context for each device, and views."""

    def __init__(self):
        self.contexts = {}
        self.views = Views()


_thread = _Thread()


def _after_fork():
    # A context with a GPU is of no use in a child; one without works on.
    for device, context in list(_thread.contexts.items()):
        if device != CPU:
            del _thread.contexts[device]
            context.forget()


os.register_at_fork(after_in_child=_after_fork)


class Context:
    """A context of one device: Context(device="cuda:0", threads=4, isa="avx2").

    Calls have one of their own for each thread and device; ctx= gives them another. It is used by
    one thread at a time, and is a context manager that closes it.
    """

    handle = None

    def __init__(self, device="auto", **options):
        if isinstance(device, str):
            kind, _, number = device.partition(":")
            device = enum_value("hz_device", kind) + int(number or 0)
        handle = ctypes.c_void_p()
        target = build("hz_options", dict(options, device=device), Views())
        check(lib.hz_open(ctypes.byref(handle), ctypes.byref(target)))
        self.handle = handle.value
        self.device = lib.hz_device(self.handle)
        self._stream = None

    def close(self):
        """Closes the context; later calls on it raise ValueError."""
        handle, self.handle = self.handle, None
        if handle:
            lib.hz_close(handle)

    __del__ = close

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def forget(self):
        self.handle = None

    def open_handle(self):
        if not self.handle:
            raise ValueError("the context is closed")
        return self.handle

    def call(self, name, *arguments):
        """Calls hz_<name>(context, ...) and raises what it reports."""
        return check(getattr(lib, "hz_" + name)(self.open_handle(), *arguments), self.handle)

    @property
    def info(self):
        """hz_device_info() as a dictionary."""
        cls, fields, _ = STRUCTS["hz_info"]
        info = cls()
        self.call("device_info", ctypes.byref(info))
        values = {key: getattr(info, key) for key in fields}
        return {key: value.decode() if isinstance(value, bytes) else value
                for key, value in values.items()}

    def set_threads(self, threads):
        """hz_set_threads()."""
        self.call("set_threads", threads)

    def set_stream(self, stream):
        """Puts later calls on this CUDA stream, a number; None: on that of their arrays."""
        self._stream = stream

    def sync(self):
        """hz_sync()."""
        self.call("sync")

    def prepare(self):
        """hz_prepare()."""
        self.call("prepare")

    def reserve(self, size):
        """hz_reserve()."""
        self.call("reserve", size)

    def record(self):
        """with ctx.record() as recording: calls inside are only checked; recording.bytes is the
        workspace that they need."""
        return Recording(self)

    def stream(self, first):
        """Puts the next call on the stream of an array's library, or what set_stream() said."""
        if self.device >= CUDA:
            self.call("set_stream",
                      _arrays.stream_of(first) if self._stream is None else self._stream)


class Recording:
    """hz_record_begin() and hz_record_end()."""

    def __init__(self, context):
        self.context = context
        self.bytes = 0

    def __enter__(self):
        self.context.call("record_begin")
        return self

    def __exit__(self, *_):
        size = ctypes.c_size_t()
        self.context.call("record_end", ctypes.byref(size))
        self.bytes = size.value


def context(device="cpu"):
    """The context of this thread for a device, which calls without ctx= have."""
    if isinstance(device, str):
        kind, _, number = device.partition(":")
        device = enum_value("hz_device", kind) + int(number or 0)
    found = _thread.contexts.get(device)
    if found is None:
        found = Context(device)
        _thread.contexts[device] = _thread.contexts[found.device] = found
    return found


# ---- Operations ----------------------------------------------------------------------------------

class Operands:
    """What a rule sees: operands as Meta, numbers and options; None for what is not given."""

    def __init__(self, values):
        self.values = values

    def __getattr__(self, name):
        value = self.values.get(name)
        if type(value) is tuple and len(value) == 7:        # what memory() said
            return Meta(tuple(value[3]), value[1])
        return value


# Tensors of options that are declared as outputs, and are inputs of these
_READ = {"lattice_decode": ("row_scale",)}
for _name in ("quat_linear_bwd", "quat_conv_bwd", "quat_batchnorm_bwd", "mhc_pre_bwd",
              "mhc_head_bwd", "mhc_post_pre_bwd"):
    _READ[_name] = ("pre", "saved", "running_mean", "running_var")


class Operation:
    """A call: plan says what its parameters are, fields which keywords its structs have."""

    def __init__(self, name, plan, fields):
        self.name = name
        self.call = getattr(lib, "hz_" + name)
        self.plan = plan
        self.fields = {key: (struct_name, field) for struct_name, field, key in fields}
        self.rules = RULES.get(name, {})
        self.reads = _READ.get(name, ())
        self.accumulate = CONSTANTS["MHC_ACCUMULATE" if name.startswith("mhc")
                                    else "QUAT_ACCUMULATE"]
        # Outputs in structs that are parameters elsewhere
        self.gradients = [key for struct_name, field, key in fields
                          if struct_name == "hz_mhc_grads"
                          and STRUCTS[struct_name][1][field][0] == "hz_tensor *"]
        self.ranges = {word: (0 if kind.startswith("u") or kind == "size_t" else
                              -(1 << (31 if "64" not in kind else 63)),
                              1 << (32 if kind == "uint32_t" else 31 if "64" not in kind and
                                    kind != "size_t" else 64 if kind[0] in "us" else 63))
                       for step, word, kind in plan if step == "number" and kind != "double"}

    def __call__(self, values, options=None, ctx=None):
        results = self.results(values, options, ctx)
        return tuple(results.values()) if len(results) != 1 else next(iter(results.values()))

    def results(self, values, options=None, ctx=None):
        """Makes the call; its outputs by name."""
        thread = _thread
        views = thread.views
        if views is None:       # a call within a call, by a signal or a finalizer
            views = Views()
        thread.views = None
        try:
            return self._call(values, options, ctx, views)
        finally:
            views.clear()
            thread.views = views

    def _call(self, values, options, ctx, views):
        arguments, seen, wanted, given = [0], {}, [], options or {}
        position = 0
        for kind, word, detail in self.plan:
            if kind == "options":
                arguments.append(0)
                continue
            value = values[position]
            position += 1
            if kind == "in":
                if value is None:
                    arguments.append(0)
                else:
                    address, found = views.put(value, False, word)
                    arguments.append(address)
                    seen[word] = found
            elif kind == "out":
                wanted.append((len(arguments), word, value))
                arguments.append(0)
            elif kind == "number":
                if detail == "double":
                    value = number(value)
                else:
                    value = _integer(value)
                    low, high = self.ranges[word]
                    if not low <= value < high:
                        raise ValueError(f"{word} is {value}, out of the range of {detail}")
                arguments.append(value)
                seen[word] = value
            elif kind == "object":
                arguments.append(value.pointer(views))
                seen[word] = value
            else:
                arguments.append(views.numbers(value, "f8"))
        results = {}
        if given:
            given = self._options(given, seen, views)
        if wanted:
            for at, word, value in wanted:
                address, results[word] = self._output(word, value, seen, given, views)
                arguments[at] = address
        if given:
            self._fill(given, arguments, seen, views, results)
        context_ = ctx if ctx is not None else _thread.contexts.get(views.device) or context(
            views.device or CPU)
        arguments[0] = context_.open_handle()
        if context_.device >= CUDA:
            context_.stream(views.first)
        status = self.call(*arguments)
        if status < 0:
            if status != CONSTANTS["EWORKSPACE"]:
                check(status, context_.handle)
            with context_.record() as recording:
                check(self.call(*arguments), context_.handle)
            context_.reserve(recording.bytes)
            check(self.call(*arguments), context_.handle)
        return results

    def _options(self, options, seen, views):
        """Options with enumerators as numbers; inputs of them are packed and seen by rules."""
        result = {}
        for key, value in options.items():
            struct_name, field = self.fields[key]
            fields = _fields[struct_name]
            value = fields.normal(field, value)
            kind = fields.fields.get(field, ("bool",))[0]
            if kind == "const hz_tensor *" or (kind == "hz_tensor *" and key in self.reads):
                address, seen[key] = views.put(value, False, key)
                value = _Address(address)
            elif kind == "hz_tensor *":
                value = _Wanted(value)
            else:
                seen[key] = value
            result[key] = value
        return result

    def _fill(self, options, arguments, seen, views, results):
        """Makes the structs of options; outputs that were allocated are added to results."""
        targets = {}
        for key, value in options.items():
            struct_name, field = self.fields[key]
            if type(value) is _Wanted:
                address, found = self._output(key, value.value, seen, options, views)
                if found is not value.value or key in self.gradients:
                    results[key] = found
                if not address:
                    continue
                value = _Address(address)
            target = targets.get(struct_name)
            if target is None:
                target = targets[struct_name] = _fields[struct_name].cls()
            if type(value) is _Address:
                setattr(target, field, value.address)
            else:
                _fields[struct_name].set(target, field, value, views)
        at = 1
        for kind, _, struct_name in self.plan:
            if kind == "options" and struct_name in targets:
                arguments[at] = views.keep(targets[struct_name])
            at += 1

    def _output(self, word, value, seen, options, views):
        """The address of an output, and the array: the caller's, or a new one."""
        if value is None or value is False:
            return 0, None
        dtype = shape = None
        if value is not True:
            if _arrays.is_array(value):
                address, found = views.put(value, True, word)
                seen[word] = found
                return address, value
            dtype, shape = specification(value)
        if shape is None or dtype is None:
            found = self.infer(word, seen, dtype)
            if found is None:
                if value is True:
                    return 0, None
                raise ValueError(f"{self.name}: {word} needs a shape and a dtype")
            shape = found[0] if shape is None else shape
            dtype = found[1] if dtype is None else dtype
        if shape is None:
            raise ValueError(f"{self.name}: {word} has to be given, as an array or a shape")
        if shape and min(shape) < 0:
            raise ValueError(f"{self.name}: operands leave {word} the shape {tuple(shape)}")
        zeros = seen.get("flags", 0) & self.accumulate or seen.get("beta")
        array = _arrays.empty(tuple(shape), dtype, views.first, zeros)
        address, seen[word] = views.put(array, True, word)
        return address, array

    def infer(self, word, seen, dtype=None):
        """(shape, dtype) of an output by its rule; None: not wanted."""
        rule = self.rules.get(word)
        if rule is None:
            raise ValueError(f"{self.name}: {word} has to be given, as an array or (shape, dtype)")
        try:
            found = rule(Operands(seen))
        except (AttributeError, IndexError) as error:
            raise ValueError(f"{self.name}: the operands do not say the shape of {word}; "
                             "an operand is missing or has too few dimensions") from error
        if callable(found):
            found = found(dtype or CONSTANTS["S8"])
        return found


class _Address:
    __slots__ = ("address",)

    def __init__(self, address):
        self.address = address


class _Wanted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def specification(value):
    """(dtype, shape) of what says how an output is to be allocated; None for what it leaves out."""
    if isinstance(value, (tuple, list)):
        if len(value) == 2 and isinstance(value[0], (tuple, list)):
            return _arrays.dtype_number(value[1]), tuple(value[0])
        return None, tuple(map(_integer, value))
    return _arrays.dtype_number(value), None


def aligned(size, source=None):
    """Bytes at a multiple of 64, filled with source."""
    whole = np.empty(size + 64, np.uint8)
    start = -whole.ctypes.data % 64
    data = whole[start:start + size]
    if source is not None:
        data[:] = source
    return data


class Packed:
    """A packed matrix: hz_packed and its data."""

    def __init__(self, like, size, device):
        if device == CPU:
            self.data = aligned(size)
            self.address = self.data.ctypes.data
        else:
            self.data = _arrays.empty((size,), CONSTANTS["U8"], like)
            self.address = memory(self.data)[0]
        self.struct = hz_packed()

    shape = property(lambda self: tuple(self.struct.shape[:self.struct.ndim]))
    dtype = property(lambda self: self.struct.dtype)

    def pointer(self, views):
        return ctypes.addressof(self.struct)


def supports(op, dtypes=(), device="cpu"):
    """hz_supports(): whether a device has an operation with these dtypes, names or numbers."""
    kind, _, number = device.partition(":")
    numbers = [_arrays.dtype_number(dtype) if dtype else 0 for dtype in dtypes]
    return bool(lib.hz_supports(op.encode(), (ctypes.c_int * len(numbers))(*numbers), len(numbers),
                                enum_value("hz_device", kind) + int(number or 0)))
