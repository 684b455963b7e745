# __init__.py - the package
# SPDX-License-Identifier: BSD-2-Clause
"""hurwitz: neural-network primitives for CPU and CUDA, on NumPy arrays and others.

    >>> import numpy as np, hurwitz as hz
    >>> hz.hadamard(np.eye(4, dtype=np.float32)[0])
    array([0.5, 0.5, 0.5, 0.5], dtype=float32)

A function for each call of hurwitz.h, without hz_: same operands in the same order, options as
keywords with the names of their fields, and the header's text as the docstring.

- Operands are NumPy arrays, or have __dlpack__ or __cuda_array_interface__ (PyTorch, CuPy, JAX).
  Nothing is copied: any strides, and read-only inputs, are fine.
- Outputs that are left out are allocated, in the library of the first operand. An output may also
  be an array to write to; None, not wanted; a dtype (q="s4x2"), a shape, or both ((2, 3), "bf16").
  Outputs of structs (saved, pre, new_scales) are made by True and returned behind the others.
- Enumerators are numbers (hz.PLAN_TRUE) or short names (plan="true"); flags are numbers. A number
  of which a member `given` says that it holds is set by giving it; axis counts as NumPy's do.
  One number for stride, pad, dilation or window is that of every spatial dimension.
- Dtypes that NumPy lacks are View objects, without ml_dtypes bf16 and 8-bit floats too.
- What the library refuses raises hz.Error, which is also a ValueError, a TypeError and so on, with
  its sentence; outputs are as they were.
"""
from . import _core, constants
from ._arrays import View, view
from ._core import (AliasError, Context, CudaError, DeviceError, DtypeError, Error, ForkError,
                    InvalidError, NoDeviceError, NoMemoryError, NotSupportedError, Packed,
                    ShapeError, StrideError, WorkspaceError, context, supports)
from .constants import *
from .objects import *
from .objects import __all__ as _objects
from .ops import *
from .ops import __all__ as _ops

__version__ = _core.lib.hz_version().decode()
library_path = _core.library_path
__all__ = ["AliasError", "Context", "CudaError", "DeviceError", "DtypeError", "Error", "ForkError",
           "InvalidError", "NoDeviceError", "NoMemoryError", "NotSupportedError", "Packed",
           "ShapeError", "StrideError", "View", "WorkspaceError", "constants", "context",
           "library_path", "supports", "view", *_objects, *_ops,
           *(name for name in vars(constants) if name.isupper())]
