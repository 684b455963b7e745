# common.py - shared by all families: dtypes, files, the command, cases
# SPDX-License-Identifier: BSD-2-Clause
"""A case draws operands, calls the command once or several times, and compares what it wrote."""
import os
import shlex
import subprocess
import warnings

import numpy as np

# Overflow to infinity and dropping imaginary parts are intended.
warnings.simplefilter("ignore")

# ---- Element types -------------------------------------------------------------------------------

# Bits of the significand, smallest exponent (numbers are in [1/2, 1) 2^e), largest number
FLOATS = {
    "f64": (53, -1021, np.finfo(np.float64).max),
    "f32": (24, -125, float(np.finfo(np.float32).max)),
    "f16": (11, -13, 65504.0),
    "bf16": (8, -125, float.fromhex("0x1.fep127")),
}
NUMPY = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16}


def rounded(x, dtype):
    """x rounded to a dtype, ties to even, in float64."""
    x = np.asarray(x, dtype=np.float64)
    if dtype == "f64":
        return x
    bits, least, largest = FLOATS[dtype]
    _, exponent = np.frexp(x)
    step = np.ldexp(1.0, np.maximum(exponent, least) - bits)
    y = np.where(np.isfinite(x), np.rint(x / step) * step, x)
    return np.where(np.abs(y) > largest, np.copysign(np.inf, x), y)


def f32(x):
    """x rounded to f32, in float64; products and sums of such numbers need another f32()."""
    return np.asarray(np.asarray(x, dtype=np.float64).astype(np.float32), dtype=np.float64)


def half_ulp(x, dtype):
    """Half the distance between adjacent numbers of a dtype near x: the error of one rounding."""
    bits, least, _ = FLOATS[dtype]
    _, exponent = np.frexp(np.asarray(x, dtype=np.float64))
    return np.ldexp(0.5, np.maximum(exponent, least) - bits)


def unit(dtype):
    """The relative error of one rounding."""
    return 2.0 ** -FLOATS[dtype][0]


def stored(x, dtype):
    """x as an array for a file; bf16 is stored as uint16."""
    if dtype == "bf16":
        bits = rounded(x, dtype).astype(np.float32).reshape(-1).view(np.uint32)
        return (bits >> 16).astype(np.uint16).reshape(np.shape(x))
    return np.asarray(x).astype(NUMPY[dtype])


def values(raw, dtype):
    """The inverse of stored(), in float64."""
    if dtype == "bf16":
        bits = raw.reshape(-1).astype(np.uint32) << 16
        return bits.view(np.float32).astype(np.float64).reshape(raw.shape)
    return raw.astype(np.float64)


class Floats:
    """Floats in a file: the stored array, its dtype, and the values in float64."""

    def __init__(self, x, dtype):
        self.dtype = dtype
        self.raw = np.array(stored(x, dtype), order="C")
        self.values = values(self.raw, dtype)
        self.shape = self.raw.shape


# ---- The random numbers of the library -----------------------------------------------------------

def splitmix64(seed, index):
    """Output `index`, counted from 0, of splitmix64 with that seed."""
    mask = (1 << 64) - 1
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def uniform53(seed, index):
    """The same as a number in [0, 1), from its upper 53 bits."""
    return (splitmix64(seed, index) >> 11) * 2.0**-53


# ---- Gradients -----------------------------------------------------------------------------------

def gradient(loss, x, some):
    """d loss / dx at the flat indices `some`, by complex steps, exact up to rounding.

    loss takes an array of complex numbers and must be written in analytic functions: squares, not
    squared moduli; where() by real parts.
    """
    step = 1e-30
    got = np.empty(len(some))
    at = np.array(x, dtype=np.complex128)
    flat = at.reshape(-1)
    for k, i in enumerate(some):
        flat[i] += 1j * step
        got[k] = np.imag(loss(at)) / step
        flat[i] = flat[i].real
    return got


# ---- The command ---------------------------------------------------------------------------------

class Failure(Exception):
    """A failed comparison, with the command line."""


class Tool:
    """The command on one device at one ISA level."""

    def __init__(self, path, device, level):
        self.path, self.device, self.level = path, device, level
        self.environ = dict(os.environ, HWLOC_HIDE_ERRORS="2")
        for name in ("HURWITZ_DEVICE", "HURWITZ_QUAT", "HURWITZ_THREADS", "HURWITZ_ISA"):
            self.environ.pop(name, None)
        if device == "cpu":
            self.environ["HURWITZ_ISA"] = level

    @property
    def cuda(self):
        return self.device != "cpu"

    def call(self, arguments, directory):
        """Returns the exit status, standard output and standard error of a call."""
        done = subprocess.run([self.path, *arguments], cwd=directory, env=self.environ, timeout=600,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", check=False)
        return done.returncode, done.stdout, done.stderr

    def line(self, arguments, directory):
        """The same call as a shell command line."""
        level = "" if self.cuda else "HURWITZ_ISA=%s " % self.level
        words = " ".join(shlex.quote(a) for a in [self.path, *arguments])
        return "cd %s && %s%s" % (shlex.quote(directory), level, words)


class Case:
    """One case: random numbers, a directory, and comparisons."""

    def __init__(self, tool, directory, rng, quick):
        self.tool, self.directory, self.rng, self.quick = tool, directory, rng, quick
        self.comparisons = 0
        self.command = ""

    # -- Operands

    def pick(self, *choices):
        """A random one of the choices."""
        return choices[self.rng.integers(len(choices))]

    def large(self):
        """Whether to take sizes large enough for special kernels: more often on a GPU."""
        return self.chance(0.35 if self.tool.cuda else 0.04)

    def chance(self, p=0.5):
        return bool(self.rng.random() < p)

    def size(self, most=20, zero=True):
        """A size: mostly small and odd, sometimes 1 or 0."""
        if zero and self.chance(0.03):
            return 0
        return self.pick(1, 2, 3, 4, 5, int(self.rng.integers(1, most + 1)),
                         int(self.rng.integers(1, most + 1)), most)

    def shape(self, ndim, most=7, zero=True):
        return tuple(self.size(most, zero) for _ in range(ndim))

    def dtype(self, *choices):
        """A float dtype; GPUs do not support f64."""
        word = self.pick(*(choices or ("f32", "f32", "f16", "bf16", "f64")))
        return "f32" if word == "f64" and self.tool.cuda else word

    def floats(self, shape, dtype, scale=1.0, integers=0):
        """Normal random numbers, or integers up to a bound."""
        if integers:
            return Floats(self.rng.integers(-integers, integers + 1, shape).astype(float), dtype)
        return Floats(self.rng.standard_normal(shape) * scale, dtype)

    def codes(self, shape, dtype):
        info = np.iinfo(dtype)
        return self.rng.integers(info.min, int(info.max) + 1, shape).astype(dtype)

    # -- The call

    def write(self, path, raw):
        """Writes an .npy file in a random element order and byte order."""
        raw = np.asarray(raw)
        if self.chance(0.2) and raw.ndim > 1:
            raw = np.asfortranarray(raw)
        if self.chance(0.2) and raw.dtype.itemsize > 1:
            raw = raw.astype(raw.dtype.newbyteorder(">"))
        with open(path, "wb") as f:
            np.lib.format.write_array(f, raw, version=self.pick((1, 0), (1, 0), (2, 0), (3, 0)))

    def arguments(self, primitive, keys, inputs, outputs, holding=None):
        """Writes operands to files; returns the arguments of a call, in random order."""
        words = ["%s=%s" % (k, v) for k, v in keys.items() if v is not None]
        for name, value in inputs.items():
            if value is None:
                continue
            if isinstance(value, Floats):
                word = ":bf16" if value.dtype == "bf16" else ""
                raw = value.raw
            else:
                word, raw = "", value
            self.write(os.path.join(self.directory, name + ".npy"), raw)
            words.append("%s%s=%s.npy" % (name, word, name))
        for name in outputs:
            plain, _, word = name.partition(":")
            path = os.path.join(self.directory, plain + ".out.npy")
            if os.path.exists(path):
                os.remove(path)
            if holding and plain in holding:
                value = holding[plain]
                self.write(path, value.raw if isinstance(value, Floats) else value)
                if isinstance(value, Floats) and value.dtype == "bf16":
                    word = "bf16"
            words.append("%s%s=%s.out.npy" % (plain, ":" + word if word else "", plain))
        self.rng.shuffle(words)
        if self.tool.cuda:
            device = [self.pick("-d", "--device"), "cuda"]
        else:
            device = ["-d", "cpu", "-t", str(self.pick(1, 1, 2, 3))]
        return ["run", *device, primitive, *words]

    def run(self, primitive, keys, inputs, outputs, holding=None):
        """Calls the command; returns the arrays of its outputs by name.

        `outputs` are names, with ":type" if the command is to be told; `holding` has what the
        files of some of them hold before.
        """
        arguments = self.arguments(primitive, keys, inputs, outputs, holding)
        self.command = self.tool.line(arguments, self.directory)
        status, out, err = self.tool.call(arguments, self.directory)
        if status != 0:
            raise Failure("exit status %d: %s\n%s" % (status, err.strip(), self.command))
        got = {"": out}
        for name in outputs:
            plain = name.partition(":")[0]
            got[plain] = np.load(os.path.join(self.directory, plain + ".out.npy"))
        return got

    def refused(self, primitive, keys, inputs, outputs, status=(2,)):
        """Calls the command, which must fail with a message and leave no output."""
        arguments = self.arguments(primitive, keys, inputs, outputs)
        self.refused_line(arguments, status, outputs)

    def refused_line(self, arguments, status=(2,), outputs=()):
        self.command = self.tool.line(arguments, self.directory)
        got, out, err = self.tool.call(arguments, self.directory)
        self.comparisons += 1
        if got not in status:
            self.fail("exit status %d, not %s: %s" % (got, "/".join(map(str, status)), err.strip()))
        if not err.startswith("hurwitz: ") or err.count("\n") != 1:
            self.fail("standard error is not one line, \"hurwitz: ...\": %r" % err)
        if out:
            self.fail("standard output has something: %r" % out[:80])
        for name in outputs:
            if os.path.exists(os.path.join(self.directory, name.partition(":")[0] + ".out.npy")):
                self.fail("%s was written" % name)

    # -- Comparisons

    def fail(self, sentence):
        raise Failure("%s\n%s" % (sentence, self.command))

    def alike(self, name, got, want):
        """Compares shapes, before anything else."""
        if got.shape != want.shape:
            self.fail("%s has the shape %s, not %s" % (name, got.shape, want.shape))

    def exact(self, name, got, want, where=None):
        """Compares numbers: equal, or both NaN."""
        want = np.asarray(want)
        self.alike(name, got, want)
        wrong = got != want
        if got.dtype.kind == "f":
            wrong &= ~(np.isnan(got) & np.isnan(want.astype(np.float64)))
        if where is not None:
            wrong &= where
        self.report(name, wrong, got, want, None)

    def same(self, name, raw, dtype, want):
        """Compares floats of a dtype: equal."""
        if raw.dtype != NUMPY[dtype]:
            self.fail("%s is %s, not %s" % (name, raw.dtype, dtype))
        self.exact(name, values(raw, dtype), want)

    def near(self, name, raw, dtype, want, bound=0.0, where=None):
        """Compares floats of a dtype: within `bound` plus one rounding."""
        if raw.dtype != NUMPY[dtype]:
            self.fail("%s is %s, not %s" % (name, raw.dtype, dtype))
        want = np.real(np.asarray(want)).astype(np.float64)
        self.alike(name, raw, want)
        got = values(raw, dtype)
        most = np.asarray(bound) + half_ulp(want, dtype) * (1 + 2.0**-10)
        wrong = ~(np.abs(got - want) <= most)
        wrong &= ~(np.isnan(got) & np.isnan(want))
        wrong &= ~(got == want)
        wrong &= ~(np.isinf(got) & (np.abs(want) + most >= FLOATS[dtype][2]))
        if where is not None:
            wrong &= where
        self.report(name, wrong, got, want, np.broadcast_to(most, want.shape))

    def report(self, name, wrong, got, want, most):
        self.comparisons += wrong.size
        if not wrong.any():
            return
        i = tuple(int(k) for k in np.argwhere(wrong)[0])
        index = "[%s]" % ", ".join(map(str, i))
        within = "" if most is None else " (within %.3g)" % most[i]
        self.fail("%s%s is %.17g, not %.17g%s; %d of %d differ" % (
            name, index, got[i], want[i], within, np.count_nonzero(wrong), wrong.size))

    def gradients(self, name, raw, dtype, loss, x, relative, held=None, most=40, floor=0.0):
        """Compares some elements of a gradient with complex steps: within `relative` of the largest
        of them, plus `floor` for terms that nearly cancel."""
        x = np.asarray(x)
        if raw.dtype != NUMPY[dtype]:
            self.fail("%s is %s, not %s" % (name, raw.dtype, dtype))
        if raw.shape != x.shape:
            self.fail("%s has the shape %s, not %s" % (name, raw.shape, x.shape))
        if not x.size:
            return
        some = np.sort(self.rng.permutation(x.size)[:most if x.size < 20000 else 8])
        want = gradient(loss, x, some)
        got = values(raw, dtype).reshape(-1)[some]
        before = 0.0 if held is None else held.values.reshape(-1)[some]
        largest = max(np.abs(want).max(), float(np.sqrt(np.mean(values(raw, dtype)**2))))
        bound = relative * largest + floor + 1e-30 + half_ulp(want + before, dtype) * 1.001
        wrong = ~(np.abs(got - (want + before)) <= bound)
        self.comparisons += some.size
        if wrong.any():
            k = int(np.argmax(wrong))
            i = np.unravel_index(int(some[k]), x.shape)
            self.fail("%s[%s] is %.17g, not %.17g (within %.3g); %d of %d differ" % (
                name, ", ".join(str(int(j)) for j in i), got[k], (want + before)[k], bound[k],
                np.count_nonzero(wrong), some.size))
