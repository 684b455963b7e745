# _arrays.py - views of arrays of any library, and new arrays
# SPDX-License-Identifier: BSD-2-Clause
"""Memory of arrays: (pointer, dtype, device, shape, strides in elements, read-only, owner)."""
from __future__ import annotations

import ctypes
import sys
from functools import partial

import numpy as np

from ._api import CONSTANTS, ENUMS

DTYPES = ENUMS["hz_dtype"]
NAMES = {value: name for name, value in DTYPES.items()}
CPU, CUDA, MAXDIM = CONSTANTS["CPU"], CONSTANTS["CUDA"], CONSTANTS["MAXDIM"]

# NumPy's dtypes both ways; ml_dtypes has more of them.
FROM_NUMPY = {np.dtype(name): DTYPES[key] for name, key in (
    ("f4", "f32"), ("f2", "f16"), ("f8", "f64"), ("i1", "s8"), ("u1", "u8"), ("i2", "s16"),
    ("u2", "u16"), ("i4", "s32"), ("u4", "u32"), ("i8", "s64"), ("u8", "u64"))}
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None
else:
    FROM_NUMPY.update({np.dtype(getattr(ml_dtypes, name)): DTYPES[key] for name, key in (
        ("bfloat16", "bf16"), ("float8_e4m3fn", "e4m3"), ("float8_e5m2", "e5m2"),
        ("float8_e8m0fnu", "e8m0")) if hasattr(ml_dtypes, name)})
TO_NUMPY = {value: dtype for dtype, value in FROM_NUMPY.items()}
# What elements without a dtype of NumPy's are stored as
STORAGE = {value: np.dtype("u2" if name == "bf16" else "u1")
           for name, value in DTYPES.items() if value not in TO_NUMPY}
SIZES = {value: dtype.itemsize for value, dtype in (TO_NUMPY | STORAGE).items()}

# DLDataType of each dtype: code, bits, lanes
DLPACK = {(2, 32, 1): "f32", (2, 16, 1): "f16", (4, 16, 1): "bf16", (2, 64, 1): "f64",
          (0, 8, 1): "s8", (1, 8, 1): "u8", (0, 16, 1): "s16", (1, 16, 1): "u16",
          (0, 32, 1): "s32", (1, 32, 1): "u32", (0, 64, 1): "s64", (1, 64, 1): "u64",
          (0, 4, 2): "s4x2", (10, 8, 1): "e4m3", (12, 8, 1): "e5m2", (14, 8, 1): "e8m0",
          (17, 4, 2): "e2m1x2", (1, 4, 2): "u4x2", (0, 2, 4): "s2x4", (1, 2, 4): "u2x4"}
DLPACK = {key: DTYPES[name] for key, name in DLPACK.items()}


class View:
    """An array with a dtype that its library does not have: packed 4-bit integers, for example.

    array holds the elements, as bytes (bf16: as u16); dtype is the name: "s4x2", "e2m1x2". Its last
    dimension counts bytes. unpack() gives one number for each.
    """

    __slots__ = ("array", "dtype")

    def __init__(self, array, dtype):
        self.array = array
        self.dtype = NAMES[dtype_number(dtype)]

    shape = property(lambda self: tuple(self.array.shape))

    def __repr__(self):
        return f"View({self.array!r}, {self.dtype!r})"

    def unpack(self):
        """A NumPy array of the numbers, in f32, or s8 and u8 for packed integers."""
        data = np.ascontiguousarray(self.array)
        if self.dtype == "bf16":
            return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        data = data.view(np.uint8)
        if not self.dtype.endswith(("x2", "x4")):
            return self._floats(data)
        count = int(self.dtype[-1])
        bits = 8 // count
        codes = data[..., None] >> (bits * np.arange(count, dtype=np.uint8)) & ((1 << bits) - 1)
        codes = codes.reshape(*data.shape[:-1], -1)
        if self.dtype == "e2m1x2":
            table = np.float32([0, .5, 1, 1.5, 2, 3, 4, 6])
            return np.concatenate([table, -table])[codes]
        if self.dtype.startswith("s"):
            return (codes << (8 - bits)).view(np.int8) >> (8 - bits)
        return codes

    def _floats(self, data):
        codes = data.astype(np.int32)
        if self.dtype == "e8m0":
            return np.where(codes == 255, np.nan, np.ldexp(1.0, codes - 127)).astype(np.float32)
        bits = 3 if self.dtype == "e4m3" else 2
        bias = 7 if bits == 3 else 15
        exponent, fraction = codes >> bits & (1 << (7 - bits)) - 1, codes & (1 << bits) - 1
        value = np.where(exponent, np.ldexp(fraction + (1 << bits), exponent - bias - bits),
                         np.ldexp(fraction * 1.0, 1 - bias - bits))
        if bits == 3:
            value = np.where(codes & 127 == 127, np.nan, value)
        else:
            value = np.where(exponent == 31, np.where(fraction, np.nan, np.inf), value)
        return np.where(codes & 128, -value, value).astype(np.float32)


def view(array, dtype):
    """array's memory with another dtype of the same size: hz.view(bytes, "s4x2")."""
    return View(array, dtype)


def dtype_number(dtype):
    """enum hz_dtype of a name, a number, or a dtype of NumPy's or PyTorch's."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    if isinstance(dtype, int) and not isinstance(dtype, bool) and dtype in NAMES:
        return dtype
    number = _torch().get(dtype) if type(dtype).__module__ == "torch" else None
    if number is None:
        try:
            number = FROM_NUMPY.get(np.dtype(dtype))
        except TypeError:
            pass
    if number is None:
        raise TypeError(f"{dtype!r} is no dtype of hurwitz (valid: {', '.join(DTYPES)})")
    return number


_torch_dtypes = {}


def _torch():
    if not _torch_dtypes:
        torch = sys.modules["torch"]
        names = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64",
                 "s8": "int8", "u8": "uint8", "s16": "int16", "u16": "uint16", "s32": "int32",
                 "u32": "uint32", "s64": "int64", "u64": "uint64", "e4m3": "float8_e4m3fn",
                 "e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu", "e2m1x2": "float4_e2m1fn_x2"}
        _torch_dtypes.update((getattr(torch, name), DTYPES[key]) for key, name in names.items()
                             if hasattr(torch, name))
    return _torch_dtypes


_from_numbers = {}


def to_torch(dtype):
    """PyTorch's dtype of a number, and whether it is only that of the storage."""
    found = _from_numbers.get(dtype)
    if found is None:
        found = next(((key, False) for key, value in _torch().items() if value == dtype), None)
        found = found or (getattr(sys.modules["torch"], STORAGE[dtype].name), True)
        _from_numbers[dtype] = found
    return found


def contiguous(shape):
    if len(shape) < 2:
        return (1,) * len(shape)
    strides, step = [], 1
    for n in shape[::-1]:
        strides.append(step)
        step *= n
    return tuple(strides[::-1])


def _instead(dtype):
    """What to do with an array of a dtype of NumPy's that the library has not."""
    if dtype == bool:
        return ': a.view("u1") has the same bytes'
    if dtype.name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn"):
        return (': ml_dtypes stores each in a byte of its own; pack them and say hz.view(bytes, '
                '"s4x2"), "u4x2", "s2x4", "u2x4" or "e2m1x2"')
    return ""


def from_numpy(a):
    dtype = FROM_NUMPY.get(a.dtype)
    if dtype is None:
        raise TypeError(f"an array has dtype {a.dtype}, which hurwitz has not{_instead(a.dtype)}")
    interface = a.__array_interface__
    data, read_only = interface["data"]
    shape, strides = interface["shape"], interface["strides"]
    if strides is None:
        strides = contiguous(shape)
    else:
        size = SIZES[dtype]
        if any(step % size for step in strides):
            raise ValueError(f"strides {strides} are not multiples of the element, {size} bytes")
        strides = tuple([step // size for step in strides])
    return data, dtype, CPU, shape, strides, read_only, a


def from_torch(t):
    torch = sys.modules["torch"]
    if t.requires_grad and torch.is_grad_enabled():
        raise TypeError("a tensor requires a gradient: detach() it, or call hurwitz.torch, "
                        "which has no second derivatives")
    if t.layout is not torch.strided or t.is_conj() or t.is_neg():
        raise TypeError("a tensor is sparse, or a lazy conjugate or negative")
    dtype = (_torch_dtypes or _torch()).get(t.dtype)
    if dtype is None:
        raise TypeError(f"a tensor has dtype {t.dtype}, which hurwitz has not")
    if t.is_cpu:
        device = CPU
    elif t.is_cuda:
        device = CUDA + t.get_device()
    else:
        raise ValueError(f"a tensor is on {t.device}: hurwitz has cpu and cuda")
    return t.data_ptr(), dtype, device, t.shape, t.stride(), False, t


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _DLVersioned(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


_capsule = ctypes.pythonapi.PyCapsule_GetPointer
_capsule.restype, _capsule.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def from_dlpack(a):
    """The capsule is the owner: it is not consumed, so that it frees its tensor itself."""
    kind, _ = a.__dlpack_device__()
    stream = {} if kind in (1, 3) else {"stream": 1}
    try:
        capsule = a.__dlpack__(max_version=(1, 1), **stream)
    except TypeError:
        capsule = a.__dlpack__(**stream)
    if '"dltensor_versioned"' in repr(capsule):
        whole = _DLVersioned.from_address(_capsule(capsule, b"dltensor_versioned"))
        tensor, read_only = whole.tensor, bool(whole.flags & 1)
    else:
        tensor = _DLTensor.from_address(_capsule(capsule, b"dltensor"))
        read_only = type(a).__module__.startswith("jax")
    dtype = DLPACK.get((tensor.code, tensor.bits, tensor.lanes))
    if dtype is None:
        raise TypeError("an array has a DLPack dtype (code, bits, lanes) = "
                        f"({tensor.code}, {tensor.bits}, {tensor.lanes}), which hurwitz has not")
    if tensor.device_type in (1, 3):
        device = CPU
    elif tensor.device_type in (2, 13):
        device = CUDA + tensor.device_id
    else:
        raise ValueError(f"an array is on DLPack device {tensor.device_type}: "
                         "hurwitz has the CPU and CUDA")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = ([tensor.strides[i] for i in range(tensor.ndim)] if tensor.strides
               else contiguous(shape))
    data = (tensor.data or 0) + tensor.byte_offset
    return data, dtype, device, shape, strides, read_only, capsule


def from_cuda(a):
    interface = a.__cuda_array_interface__
    dtype = FROM_NUMPY.get(np.dtype(interface["typestr"])) or FROM_NUMPY.get(
        getattr(a, "dtype", None))      # of ml_dtypes
    if dtype is None:
        raise TypeError(f"an array has type {interface['typestr']}, which hurwitz has not")
    data, read_only = interface["data"]
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    if strides is None:
        strides = contiguous(shape)
    else:
        strides = [step // SIZES[dtype] for step in strides]
    device = getattr(getattr(a, "device", None), "id", 0)
    return data, dtype, CUDA + device, shape, strides, read_only, a


def from_view(v):
    data, dtype, *rest = memory(v.array)
    number = DTYPES[v.dtype]
    if SIZES[dtype] != SIZES[number]:
        raise TypeError(f"elements of a View as {v.dtype} have {SIZES[dtype]} bytes, "
                        f"not {SIZES[number]}")
    return data, number, *rest


def memory(a):
    """Where an array is, and what is there."""
    convert = _converters.get(type(a))
    if convert is None:
        convert = _converter(a)
        _converters[type(a)] = convert
    return convert(a)


_converters = {np.ndarray: from_numpy, View: from_view}


def is_array(a):
    """Whether memory() would take it."""
    return type(a) in _converters or not isinstance(a, type) and (
        isinstance(a, np.ndarray) or hasattr(a, "__dlpack__")
        or hasattr(a, "__cuda_array_interface__"))


def _converter(a):
    if isinstance(a, np.ma.MaskedArray):
        raise TypeError("a masked array: hurwitz does not heed masks")
    if isinstance(a, np.ndarray):
        return from_numpy
    if "torch" in sys.modules and isinstance(a, sys.modules["torch"].Tensor):
        return from_torch
    if _is_cupy(a):
        return from_cuda                # its __dlpack__ makes another stream wait
    if hasattr(a, "__dlpack__"):
        return from_dlpack
    if hasattr(a, "__cuda_array_interface__"):
        return from_cuda
    raise TypeError(f"{type(a).__name__} is no array: hurwitz takes NumPy's and those with "
                    "__dlpack__ or __cuda_array_interface__")


def _is_cupy(a):
    return type(a).__module__.partition(".")[0] == "cupy"


def with_type(kind):
    """The function that is memory() for a type of NumPy's or PyTorch's arrays; None for others."""
    convert = _converters.get(kind)
    return convert if convert is from_numpy or convert is from_torch else None


def maker(shape, dtype, like, zeros=False):
    """A function that makes new arrays of like's library on its device; NumPy's where that has none
    to write to. It does not keep like."""
    if isinstance(like, View):
        like = like.array
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        kind, stored = to_torch(dtype)
        make = partial(torch.zeros if zeros else torch.empty, shape, dtype=kind, device=like.device)
    else:
        stored = dtype not in TO_NUMPY
        library = np
        if _is_cupy(like):
            library = sys.modules["cupy"]
        elif hasattr(like, "__cuda_array_interface__") or (
                hasattr(like, "__dlpack_device__") and like.__dlpack_device__()[0] not in (1, 3)):
            raise ValueError(f"outputs for a {type(like).__name__} on a GPU have to be given")
        make = partial(library.zeros if zeros else library.empty, shape,
                       STORAGE[dtype] if stored else TO_NUMPY[dtype])
        if library is not np:
            make = partial(_on, like.device, make)
    return partial(_as_view, make, dtype) if stored else make


def _on(device, make):
    with device:
        return make()


def _as_view(make, dtype):
    return View(make(), dtype)


def empty(shape, dtype, like):
    """A new array as maker() makes it."""
    return maker(shape, dtype, like)()


def address_of(array):
    """A function for the addresses of arrays like this one."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch.Tensor.data_ptr
    return _first_of_memory


def _first_of_memory(array):
    return memory(array)[0]


def workspace(size, like):
    """Bytes by the allocator of like's library, in the order of its stream; None: it has none."""
    if isinstance(like, View):
        like = like.array
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        return torch.empty(size, dtype=torch.uint8, device=like.device)
    if _is_cupy(like):
        with like.device:
            return sys.modules["cupy"].empty(size, "u1")
    return None


def stream_of(a):
    """The CUDA stream that a's library puts work on now."""
    if isinstance(a, View):
        a = a.array
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(a, torch.Tensor):
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)      # as Triton, it is faster
        return raw(a.get_device()) if raw else torch.cuda.current_stream(a.device).cuda_stream
    if _is_cupy(a):
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    # 1 is the legacy default stream, 0 here; 2, the thread's, is a handle in the driver, too
    stream = (getattr(a, "__cuda_array_interface__", None) or {}).get("stream") or 0
    return 0 if stream == 1 else stream
