# _core.py - contexts, errors and the call of an operation
# SPDX-License-Identifier: BSD-2-Clause
"""Contexts, errors, and how a Python call becomes one of the library's."""
from __future__ import annotations

import ctypes
import os
import re
import struct
import threading
import weakref
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


_EWORKSPACE = CONSTANTS["EWORKSPACE"]
ERRORS = {cls.status: cls for cls in Error.__subclasses__()}


def check(status, context=None):
    """Raises the error of a status that is negative."""
    if status < 0:
        text = lib.hz_errmsg(context) if context else lib.hz_open_errmsg()
        text = text.decode() or lib.hz_strerror(status).decode()
        raise ERRORS.get(status, Error)(text)
    return status


# ---- Structs -------------------------------------------------------------------------------------

def described(value):
    """A value as error messages say it: arrays by their type."""
    plain = isinstance(value, (str, int, float, type(None)))
    return repr(value) if plain else f"a {type(value).__name__}"


def number(value, name):
    """A float of any number, and of nothing else."""
    if not isinstance(value, str):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    raise TypeError(f"{name} is {described(value)}, not a number")


def integer(value, name):
    """An int of any integer, and of nothing else."""
    try:
        return _integer(value)
    except TypeError:
        raise TypeError(f"{name} is {described(value)}, not an integer") from None


def _spelled(name):
    """A name as other spellings of it have it, too: "e8_4_50", "e8-4.5", "e8-4.50"."""
    return re.sub(r"(?<=_\d)0(?=_|$)", "", re.sub(r"[-.]", "_", name))


_spellings = {enum: {_spelled(name): value for name, value in names.items()}
              for enum, names in ENUMS.items()}


def enum_value(enum, value, name="value"):
    """The number of an enumerator's short name ("softmax"), or of a dtype's; numbers stay.

    Names may be spelled as the library prints them: "e8-4.5" is "e8_4_50".
    """
    if not isinstance(value, str):
        return integer(value, name)
    found = ENUMS[enum].get(value)
    if found is None:
        found = _spellings[enum].get(_spelled(value))
    if found is None:
        raise ValueError(f"{name} is {value!r}, which is none of {', '.join(ENUMS[enum])}")
    return found


def device_number(device):
    """The number of a device: "cpu", "cuda", "cuda:1", "auto", or a number."""
    if not isinstance(device, str):
        return integer(device, "device")
    kind, _, index = device.partition(":")
    if index and not index.isdecimal():
        raise ValueError(f"device is {device!r}: what follows the colon is not a number")
    return enum_value("hz_device", kind, "device") + int(index or 0)


_INTEGERS = ("int32_t", "uint32_t", "int64_t", "uint64_t", "size_t", "int")
# Ends of the names of fields that hold a dtype
_DTYPES = ("dtype", "x_format", "round_to", "sum")


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
        if kind == "const hz_packed *" and not isinstance(value, Packed):
            raise TypeError(f"{key} is {described(value)}, not a Packed")
        if kind.endswith("_opts *") and not isinstance(value, (dict, ctypes.Structure)):
            raise TypeError(f"{key} is {described(value)}, not a dictionary of options")
        if type(value) is int or length or kind not in _INTEGERS:
            return value
        if isinstance(value, str) and (enum or key.endswith(_DTYPES)):
            return enum_value(enum or "hz_dtype", value, key)
        return self.scalar(integer, key, value)

    def scalar(self, convert, key, value):
        """A number of a value; the error says which option takes arrays, if one does."""
        try:
            return convert(value, key)
        except TypeError as error:
            if key + "s" in self.fields and _arrays.is_array(value):
                raise TypeError(f"{error} (an array of them is {key}s=)") from None
            raise

    def set(self, target, key, value, views):
        """Sets one field. views packs arrays and keeps what pointers point to alive."""
        if key in self.flags:
            target.given |= self.given[key]
            if value:
                target.flags |= self.flags[key]
            return
        kind, length, enum = self.fields[key]
        value = self.normal(key, value)
        if kind in ("const hz_tensor *", "hz_tensor *"):
            setattr(target, key, views.address(value, key))
        elif kind == "hz_tensor":
            views.copy(value, key, getattr(target, key))
        elif kind == "const hz_packed *":
            setattr(target, key, views.keep(value.struct))
        elif kind.endswith("_opts *"):
            struct_name = kind.removeprefix("const ").removesuffix(" *")
            setattr(target, key, views.keep(build(struct_name, value, views)))
        elif kind in ("const double *", "const int64_t *"):
            setattr(target, key, views.numbers(value, "f8" if "double" in kind else "i8", key))
        elif length:
            array = getattr(target, key)
            convert = number if kind == "double" else integer
            value = [value] if isinstance(value, (int, float)) else list(value)
            if len(value) > len(array):
                raise ValueError(f"{key} has {len(value)} numbers, not at most {len(array)}")
            for i, one in enumerate(value):
                array[i] = convert(one, key)
        elif kind == "double":
            setattr(target, key, self.scalar(number, key, value))
        else:
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
    """The hz_tensor of a call, and what else its arguments point to."""

    def __init__(self, slots=SLOTS):
        self.buffer = ctypes.create_string_buffer(SIZE * slots)
        self.base = ctypes.addressof(self.buffer)
        self.kept = []
        self.names = []         # of the operands, one a slot
        self.made = {}          # how outputs were allocated, by name
        self.device = 0
        self.first = self.like = None

    def put(self, a, writes, name):
        """The address of a new hz_tensor of array a, and what memory() says."""
        try:
            found = memory(a)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{name}: {error}") from error
        data, dtype, device, shape, strides, read_only, owner = found
        n = len(shape)
        if n > MAXDIM:
            raise ValueError(f"{name} has {n} dimensions, more than {MAXDIM}")
        if writes and read_only:
            raise ValueError(f"{name} is read-only, and the call writes to it")
        if not self.device:
            self.device, self.first, self.like = device, a, (dtype, shape)
        if owner is not a:
            self.kept.append(owner)
        offset = len(self.names) * SIZE
        self.names.append(name)
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

    def numbers(self, value, dtype, word, count=None):
        """The address of an array of numbers, of which there must be count; None: any."""
        array = np.ascontiguousarray(value, dtype)
        if count is not None and array.size != count:
            raise ValueError(f"{word} has {array.size} numbers, not {count}")
        self.kept.append(array)
        return array.ctypes.data


# ---- Contexts ------------------------------------------------------------------------------------

class _Thread(threading.local):
    """What each thread has of its own: a context for each device, and prepared calls."""

    def __init__(self):
        self.contexts = {}
        self.prepared = {}


_thread = _Thread()


class NotCopied:
    """What holds addresses of the library's memory: a copy would free them twice."""

    def __reduce_ex__(self, protocol):
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: it holds memory of "
                        "the library; open another one")


class Owned:
    """An object of the library, closed when the last reference to it is gone.

    Closing one uses its context, which may be in use by another thread then, and finalizers must
    not wait for locks: what is to be closed waits in the context's list until the lock is free. A
    context is closed behind all objects that were opened on it, in whatever order finalizers run:
    more has an entry for each of them.
    """

    __slots__ = ("address", "dead", "free", "lock", "more", "parent")

    def __init__(self, free, address, parent=None):
        self.free, self.address, self.parent = free, address, parent
        if parent is None:
            self.lock, self.more, self.dead = threading.RLock(), [], []
        else:
            parent.more.append(None)

    def __del__(self):
        parent = self.parent
        if parent is None:
            self.release()
        else:
            parent.dead.append((self.free, self.address))
            parent.sweep()
            parent.release()

    def sweep(self):
        """Closes objects whose last reference is gone, unless another thread uses the context."""
        if self.lock.acquire(blocking=False):
            try:
                while self.dead:
                    free, address = self.dead.pop()
                    free(address)
            finally:
                self.lock.release()

    def release(self):
        try:
            self.more.pop()
        except IndexError:          # the last one
            self.sweep()
            if self.address:
                self.free(self.address)


_contexts = weakref.WeakSet()


def _after_fork():
    # A context with a GPU is of no use in a child; one without works on, unless another thread,
    # which the child has not, was in a call with it.
    for context in list(_contexts):
        if not context.lock.acquire(blocking=False):
            context.lock = threading.RLock()
            context.forget()
        else:
            context.lock.release()
    for device, context in list(_thread.contexts.items()):
        if device != CPU:
            context.forget()
        if not context.handle:
            del _thread.contexts[device]


os.register_at_fork(after_in_child=_after_fork)


class Context(NotCopied):
    """A context of one device: Context(device="cuda:0", threads=4, isa="avx2").

    Calls have one of their own for each thread and device; ctx= gives them another. Several threads
    may share one, or an object that was opened on it: their calls take turns. It is a context
    manager that closes it; objects opened on it are of no use then, but may be closed later.
    """

    handle = owned = None

    def __init__(self, device="auto", **options):
        handle = ctypes.c_void_p()
        target = build("hz_options", dict(options, device=device_number(device)), Views())
        check(lib.hz_open(ctypes.byref(handle), ctypes.byref(target)))
        self.owned = Owned(lib.hz_close, handle.value)
        self.lock = self.owned.lock     # around each call that uses the context
        self.handle = handle.value
        self.device = lib.hz_device(self.handle)
        self._stream = None
        self._sizes = {}
        _contexts.add(self)

    def close(self):
        """Closes the context; later calls on it raise ValueError."""
        if self.handle:
            with self.lock:
                self.handle = self.owned = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def forget(self):
        self.handle = None
        if self.owned:
            self.owned.address = None

    def open_handle(self):
        """The address for a call; the lock is held."""
        if not self.handle:
            raise ValueError("the context is closed")
        if self.owned.dead:
            self.owned.sweep()
        return self.handle

    def open_object(self, name, free, *arguments):
        """What hz_<name>(context, &object, ...) opens, Owned."""
        handle = ctypes.c_void_p()
        with self.lock:
            self.call(name, ctypes.byref(handle), *arguments)
            return Owned(getattr(lib, free), handle.value, self.owned)

    def call(self, name, *arguments):
        """Calls hz_<name>(context, ...) and raises what it reports."""
        with self.lock:
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
        workspace that they need. Calls of other threads with this context wait."""
        return Recording(self)

    def stream(self, first):
        """Puts the next call on the stream of an array's library, or what set_stream() said."""
        if self.device >= CUDA:
            check(lib.hz_set_stream(self.open_handle(), _arrays.stream_of(first)
                                    if self._stream is None else self._stream), self.handle)

    def launch(self, function, arguments, first, key):
        """function(*arguments), an operation, on the stream of the array first; the lock is held.

        key is common to calls that are likely to need as much workspace.
        """
        if self.device < CUDA:
            return check(function(*arguments), self.handle)
        self.stream(first)
        status = self._with_workspace(self._sizes.get(key, 0), function, arguments, first)
        if status == _EWORKSPACE:
            with self.record() as recording:
                check(function(*arguments), self.handle)
            if len(self._sizes) >= 4096:
                self._sizes.clear()
            self._sizes[key] = recording.bytes
            status = self._with_workspace(recording.bytes, function, arguments, first)
        return check(status, self.handle)

    def _with_workspace(self, size, function, arguments, first):
        """A call with that much workspace, by the allocator of first's library if that is known.

        That frees it in the order of the stream, and a graph that is captured keeps it. The
        context's own workspace would be shared by streams, and replaced while a graph has it.
        """
        memory_ = None
        if size and self._stream is None:
            memory_ = _arrays.workspace(size, first)
        if memory_ is None:
            if size:
                self.reserve(size)
            return function(*arguments)
        check(lib.hz_set_workspace(self.handle, memory(memory_)[0], size), self.handle)
        try:
            return function(*arguments)
        finally:
            lib.hz_set_workspace(self.handle, None, 0)


class Recording:
    """hz_record_begin() and hz_record_end()."""

    def __init__(self, context):
        self.context = context
        self.bytes = 0

    def __enter__(self):
        self.lock = self.context.lock
        self.lock.acquire()
        try:
            self.context.call("record_begin")
        except BaseException:
            self.lock.release()
            raise
        return self

    def __exit__(self, *_):
        size = ctypes.c_size_t()
        try:
            self.context.call("record_end", ctypes.byref(size))
        finally:
            self.lock.release()
        self.bytes = size.value


def context(device="cpu"):
    """The context of this thread for a device, which calls without ctx= have."""
    device = device_number(device)
    found = _thread.contexts.get(device)
    if found is None:
        found = Context(device)
        _thread.contexts[device] = _thread.contexts[found.device] = found
    return found


def chosen(ctx, device):
    """The context of a call: what its caller said, or that of this thread."""
    if ctx is None:
        return _thread.contexts.get(device) or context(device or CPU)
    if not isinstance(ctx, Context):
        raise TypeError(f"ctx is {described(ctx)}, not a Context")
    return ctx


# ---- Operations ----------------------------------------------------------------------------------

class Operands:
    """What a rule sees: operands as Meta, numbers and options; None for what is not given."""

    def __init__(self, values):
        self.values = values

    def __getattr__(self, name):
        value = self.values.get(name)
        if type(value) is tuple and len(value) == 7:        # what memory() said
            value = Meta(tuple(value[3]), value[1])
        setattr(self, name, value)
        return value


# Tensors of options that are declared as outputs, and are inputs of these
_READ = {"lattice_decode": ("row_scale",)}
for _name in ("quat_linear_bwd", "quat_conv_bwd", "quat_batchnorm_bwd", "quat_recurrent_bwd",
              "mhc_pre_bwd", "mhc_head_bwd", "mhc_post_pre_bwd"):
    _READ[_name] = ("pre", "saved", "running_mean", "running_var")


_SPATIAL = frozenset(("stride", "pad", "dilation", "window"))


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
                          if struct_name in ("hz_mhc_grads", "hz_mhc_gated_grads")
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
        signature, found = self._signature(values, options)
        if signature is None:
            return self._call(values, options, ctx, Views())[0]
        calls = _thread.prepared
        prepared = calls.get(signature)
        # A call within a call, by a signal handler or a finalizer, has arguments of its own
        if prepared is not None and not prepared.busy:
            return prepared.call(found, ctx)
        views = Views(len(values) + len(options or ()))
        results, arguments = self._call(values, options, ctx, views)
        if signature in calls:
            prepared = Prepared(self, views, arguments, results)
            if prepared.complete(self, values, options):
                calls[signature] = prepared
        else:                           # most shapes and seeds that come once do not come again
            if len(calls) >= PREPARED:
                calls.clear()
            calls[signature] = None
        return results

    def _signature(self, values, options):
        """All that a call depends on but for the addresses of its arrays, and memory() of these.
        None where operands are others than arrays of NumPy's or PyTorch's and plain values."""
        signature, found = [self], []
        if options:
            signature += options
            values = (*values, *options.values())
        for value in values:
            kind = type(value)
            signature.append(kind)
            convert = _arrays.with_type(kind)
            if convert is not None:
                try:
                    memory_ = convert(value)
                except (TypeError, ValueError):
                    return None, None           # put() says of which operand
                signature.append(memory_[1:6])
                found.append(memory_)
            elif kind is float or kind is tuple or kind is list:
                if kind is not float and not all(type(one) in _PLAIN for one in value):
                    return None, None
                signature.append(repr(value))   # -0.0 == 0.0, and (1,) == (1.0,)
            elif kind in _PLAIN:
                signature.append(value)
            else:
                return None, None
        return tuple(signature), found

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
                    value = number(value, word)
                else:
                    value = integer(value, word)
                    low, high = self.ranges[word]
                    if not low <= value < high:
                        raise ValueError(f"{word} is {value}, out of the range of {detail}")
                arguments.append(value)
                seen[word] = value
            elif kind == "enum":
                seen[word] = enum_value(detail, value, word)
                arguments.append(seen[word])
            elif kind == "object":
                ctx = self._owner(word, detail, value, ctx)
                arguments.append(value.pointer(views))
                seen[word] = value
            else:
                arguments.append(views.numbers(value, "f8", word, int(detail)))
        results = {}
        if given:
            given = self._options(given, seen, views)
        if wanted:
            for at, word, value in wanted:
                address, results[word] = self._output(word, value, seen, given, views)
                arguments[at] = address
        if given:
            self._fill(given, arguments, seen, views, results)
        context_ = chosen(ctx, views.device)
        with context_.lock:
            arguments[0] = context_.open_handle()
            context_.launch(self.call, arguments, views.first, (self.name, views.like))
        return results, arguments

    def _owner(self, word, detail, value, ctx):
        """The context of a call with an object: the one that it was opened on, if it has one."""
        if not hasattr(value, "pointer"):
            raise TypeError(f"{word} is {described(value)}, not what a {detail} is in this package")
        own = getattr(value, "context", None)
        if own is None or own is ctx:
            return ctx
        if ctx is not None:
            raise ValueError(f"ctx is not the context that {word} was opened on")
        return own

    def _options(self, options, seen, views):
        """Options with enumerators as numbers; inputs of them are packed and seen by rules."""
        result = {}
        for key, value in options.items():
            struct_name, field = self.fields[key]
            fields = _fields[struct_name]
            value = fields.normal(field, value)
            if field in _SPATIAL and isinstance(value, (int, np.integer)):
                # One number is that of each spatial dimension of [n, spatial..., channels, 4]
                given = Operands(seen)
                dimensions = len((given.x or given.dy).shape) - 3 if given.x or given.dy else 1
                value = (value,) * min(max(dimensions, 1), 3)
            elif field in _SPATIAL and _arrays.is_array(value):
                value = tuple(value)
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
        make = views.made[word] = _arrays.maker(tuple(shape), dtype, views.first, zeros)
        array = make()
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


# Types of operands that a signature has as they are
_PLAIN = frozenset((type(None), bool, int, float, str))
PREPARED = 512          # for each thread; each has some kilobytes


class Prepared:
    """The arguments of a call, for later calls of the same signature, which only set addresses.

    It has the views and the structs that a call made, the second one, and none of its arrays.
    """

    __slots__ = ("addresses", "arguments", "busy", "device", "first", "function", "key", "outputs",
                 "views")

    def __init__(self, operation, views, arguments, results):
        self.busy = False
        self.function, self.views, self.arguments = operation.call, views, arguments
        self.device, self.key = views.device, (operation.name, views.like)
        views.first = None
        self.outputs = [(word, None, None if array is None else _arrays.address_of(array),
                         views.made.get(word)) for word, array in results.items()]

    def complete(self, operation, values, options):
        """Finds where arrays are in a signature; false if one of them was read for its elements."""
        given = dict(zip((word for kind, word, _ in operation.plan if kind != "options"), values))
        given.update(options or {})
        arrays = [word for word, value in given.items() if _arrays.with_type(type(value))]
        slots = {word: ctypes.c_uint64.from_buffer(self.views.buffer, i * SIZE)
                 for i, word in enumerate(self.views.names)}
        if not arrays or len(slots) != len(self.views.names) or not slots.keys() >= set(arrays):
            return False
        self.addresses = [slots[word] for word in arrays]
        self.first = arrays.index(self.views.names[0])
        self.outputs = [(word, slots.get(word), address, make) if make else
                        (word, arrays.index(word) if word in arrays else None, None, None)
                        for word, _, address, make in self.outputs]
        return True

    def call(self, found, ctx):
        """Makes the call with arrays at other addresses; its outputs by name."""
        context_ = chosen(ctx, self.device)
        arguments, results = self.arguments, {}
        self.busy = True
        try:
            for slot, memory_ in zip(self.addresses, found):
                slot.value = memory_[0]
            for word, slot, address, make in self.outputs:
                if make is not None:
                    results[word] = array = make()
                    slot.value = address(array)
                else:
                    results[word] = None if slot is None else found[slot][6]
            with context_.lock:
                arguments[0] = context_.open_handle()
                context_.launch(self.function, arguments, found[self.first][6], self.key)
        finally:
            self.busy = False
        return results


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


class Packed(NotCopied):
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
    numbers = [_arrays.dtype_number(dtype) if dtype else 0 for dtype in dtypes]
    return bool(lib.hz_supports(op.encode(), (ctypes.c_int * len(numbers))(*numbers), len(numbers),
                                device_number(device)))
