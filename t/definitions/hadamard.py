# hadamard.py - Walsh-Hadamard transforms, also with quantization and dequantization
# SPDX-License-Identifier: BSD-2-Clause
"""y = scale D_post H D_s x; H is block diagonal, with blocks B_m (x) S_2^k / sqrt(m 2^k)."""
import numpy as np

from .common import Floats, half_ulp, rounded, splitmix64

# ---- Matrices ------------------------------------------------------------------------------------


def sylvester(n):
    """S_ij = (-1)^popcount(i & j)."""
    s = np.ones((1, 1))
    while len(s) < n:
        s = np.block([[s, s], [s, -s]])
    return s


def legendre(q):
    """The matrix of chi(i - j) for a prime q: 1 where that is a square, -1 where not, 0 for 0."""
    squares = {i * i % q for i in range(1, q)}
    chi = [0] + [1 if i in squares else -1 for i in range(1, q)]
    return np.array([[chi[(i - j) % q] for j in range(q)] for i in range(q)], dtype=float)


def paley1(q):
    """For q = 3 mod 4: 1 + S with S = -S^T."""
    s = np.zeros((q + 1, q + 1))
    s[0, 1:], s[1:, 0], s[1:, 1:] = -1, 1, legendre(q)
    return np.eye(q + 1) + s


def paley2(q):
    """For q = 1 mod 4: from C = C^T."""
    c, one = np.zeros((q + 1, q + 1)), np.eye(q + 1)
    c[0, 1:], c[1:, 0], c[1:, 1:] = 1, 1, legendre(q)
    return np.block([[c + one, c - one], [c - one, -c - one]])


def is_prime(q):
    return q > 1 and all(q % i for i in range(2, int(q**0.5) + 1))


def base_by_formula(kind, m):
    """The base matrix of order m, if there is a formula for it."""
    if kind in ("auto", "paley2") and m % 2 == 0 and is_prime(m // 2 - 1) and m // 2 % 4 == 2:
        return paley2(m // 2 - 1)
    if kind == "paley1" and is_prime(m - 1) and m % 4 == 0:
        return paley1(m - 1)
    return None


# Orders of the named tables, and whether they are symmetric (s), skew (k: H + H^T = 2) or
# neither (n).
BASES = [("paley1", 12, "k"), ("paley1", 20, "k"), ("paley1", 28, "k"), ("paley1", 44, "k"),
         ("paley2", 12, "s"), ("paley2", 20, "s"), ("paley2", 28, "s"), ("paley2", 36, "s"),
         ("paley2", 52, "s"), ("auto", 12, "s"), ("auto", 20, "s"), ("auto", 44, "k"),
         ("auto", 92, "n"), ("williamson", 20, "n"), ("williamson", 28, "n"),
         ("williamson", 172, "n"), ("dao", 12, "s"), ("dao", 20, "n"), ("dao", 28, "n"),
         ("dao", 40, "n"), ("quip", 12, "k"), ("quip", 20, "k"), ("quip", 28, "s"),
         ("quip", 36, "s"), ("quip", 40, "n"), ("quip", 44, "k"), ("quip", 52, "n"),
         ("quip", 60, "k"), ("quip", 108, "k"), ("quip", 156, "n")]


def base_of(case, kind, m, like):
    """The base matrix: from its formula, otherwise the command's transform of the identity."""
    known = base_by_formula(kind, m)
    if known is not None:
        return known
    got = case.run("hadamard", {"plan": "true", "base": kind, "order": m, "raw": 1,
                                "axis": 0}, {"x": Floats(np.eye(m), "f32")}, ["y"])
    h = got["y"].astype(np.float64)
    case.exact("|base|", np.abs(h), np.ones((m, m)))
    case.exact("base base^T", h @ h.T, m * np.eye(m))
    if like == "s":
        case.exact("base", h, h.T)
    if like == "k":
        case.exact("base + base^T", h + h.T, 2 * np.eye(m))
    return h


def power_of_two(n):
    """The largest power of two that divides n."""
    return n & -n


def plan_of(n, plan, max_block=0, min_block=1):
    """The block lengths of a plan for n, or None if it does not support n."""
    if plan == "auto":
        plan = "sylvester" if power_of_two(n) == n else "greedy"
    if plan == "sylvester":
        return [n] if power_of_two(n) == n else None
    if plan == "uniform":
        b = power_of_two(n)
        while max_block and b > max_block:
            b //= 2
        return [b] * (n // b)
    lengths, rest = [], n
    while rest:
        b = 1 << (rest.bit_length() - 1)
        while max_block and b > max_block:
            b //= 2
        if b < min_block:
            return None
        lengths.append(b)
        rest -= b
    return lengths


class Transform:
    """A transform of some length with its keys and operands; draw() makes random ones."""

    def __init__(self):
        self.n = self.block = 0
        self.keys, self.inputs = {}, {}
        self.matrix = self.before = self.after = None
        self.raw, self.transposed, self.scale = False, False, 1.0
        self.rounds = []

    def apply(self, x, back=False):
        """The transform of x along the last axis, and the error bound of f32 arithmetic."""
        d, e = (self.after, self.before) if back else (self.before, self.after)
        h = self.matrix.T if back else self.matrix
        scaled = x * d
        y, bound = np.empty_like(scaled), np.empty_like(scaled)
        at = 0
        for length, base in self.rounds:
            part = slice(at, at + length)
            y[..., part] = scaled[..., part] @ h[part, part].T
            norm = np.sqrt(np.sum(scaled[..., part] ** 2, -1, keepdims=True))
            root = np.sqrt(length) if self.raw else 1.0
            stages = np.log2(length // base) + base + 4
            bound[..., part] = stages * 2.0**-24 * norm * root
            at += length
        return self.scale * y * e, np.abs(self.scale) * bound * np.abs(e)

    def both(self, x, back=False):
        return self.apply(x, back != self.transposed)


def signs_of_seed(n, seed):
    """Word w is the first output of splitmix64 with seed + w; a set bit means -1."""
    words = [splitmix64((seed + w) & (2**64 - 1), 0) for w in range((n + 63) // 64)]
    return np.array([-1.0 if words[i // 64] >> i % 64 & 1 else 1.0 for i in range(n)])


def draw_factors(case, name, transform):
    """pre or post: factors, or signs as int8 or as bits, for the whole axis or a block."""
    n = transform.n
    length = case.pick(n, transform.block)
    kind = case.pick("f32", "f16", "bf16", "int8", "uint8")
    signs = case.pick(-1.0, 1.0) * np.where(case.rng.random(length) < 0.5, -1.0, 1.0)
    if kind == "uint8" and length != n and (length + 7) // 8 == (n + 7) // 8:
        length, signs = n, np.where(case.rng.random(n) < 0.5, -1.0, 1.0)
    if kind == "int8":
        transform.inputs[name] = signs.astype(np.int8)
    elif kind == "uint8":
        transform.inputs[name] = np.packbits(signs < 0, bitorder="little")
    else:
        factors = Floats(signs * np.exp2(case.rng.integers(-2, 3, length)), kind)
        transform.inputs[name], signs = factors, factors.values
    return np.tile(signs, n // length)


def draw(case, multiple=1, most=384, rows=True):
    """A random transform whose length is a multiple of `multiple`."""
    t = Transform()
    if most == 384 and case.large():
        most = case.pick(1024, 2048)
    length, lengths, bases = 0, None, None
    while not lengths:
        plan = case.pick("auto", "auto", "sylvester", "greedy", "uniform", "true")
        if plan == "true":
            kind, m, like = case.pick(*BASES)
            length = m * case.pick(1, 1, 2, 4, 8, 32)
            if length % multiple or length > most:
                continue
            t.keys.update(plan="true", base=kind, order=m)
            base = base_of(case, kind, m, like)
            lengths, bases = [length], [np.kron(base, sylvester(length // m))]
            break
        length = case.pick(1, 2, 4, 8, 16, 32, 64, 128, 256, int(case.rng.integers(1, most)))
        if most > 1000:
            length = case.pick(512, 1024, most, int(case.rng.integers(1, most)))
        length += -length % multiple
        limits = {}
        if plan in ("greedy", "uniform") and case.chance():
            limits["max_block"] = case.pick(4, 16, 32, 64)
        if plan == "greedy" or (plan == "auto" and power_of_two(length) != length):
            limits["min_block"] = case.pick(1, 2, 4, 16)
        lengths = plan_of(length, plan, **limits)
        if lengths:
            t.keys.update(limits)
    if plan != "auto" or case.chance(0.3):
        t.keys["plan"] = plan
    bases = bases or [sylvester(b) for b in lengths]
    repeats = case.pick(1, 1, 2, 3)
    t.block, t.n = length, length * repeats
    if repeats > 1 or case.chance(0.2):
        t.keys["block"] = length
    t.raw, t.transposed = case.chance(0.2), case.chance(0.3)
    t.keys.update({"raw": 1} if t.raw else {}, **({"transpose": 1} if t.transposed else {}))
    t.matrix = np.zeros((t.n, t.n))
    at = 0
    for b in bases * repeats:
        part = slice(at, at + len(b))
        t.matrix[part, part] = b if t.raw else b / np.sqrt(len(b))
        order = t.keys["order"] if plan == "true" else 0
        t.rounds.append((len(b), order or 1))
        at += len(b)
    t.before = t.after = np.ones(t.n)
    if case.chance(0.25):
        seed = int(case.rng.integers(0, 2**31))
        t.keys["seed"] = seed
        t.before = np.tile(signs_of_seed(t.n, seed), 1)
    elif case.chance(0.35):
        t.before = draw_factors(case, "pre", t)
    if case.chance(0.25):
        t.after = draw_factors(case, "post", t)
    if rows and case.chance(0.3):
        t.scale = case.pick(2.0, 0.5, -1.0, 0.3)
        t.keys["factor"] = t.scale
    return t


# ---- hadamard ------------------------------------------------------------------------------------

def hadamard(case):
    t = draw(case)
    ndim = case.pick(1, 1, 2, 2, 3, 4)
    axis = int(case.rng.integers(ndim))
    shape = list(case.shape(ndim, 5))
    shape[axis] = t.n
    if ndim == 2 and case.large():
        shape[1 - axis] = case.pick(64, 200)
    keys = dict(t.keys)
    if axis != ndim - 1 or case.chance():
        keys["axis"] = case.pick(axis, axis - ndim)
    dtype = case.pick("f32", "f16", "bf16")
    x = case.floats(shape, dtype, integers=case.pick(0, 0, 3))
    out = case.pick(None, None, "f32", "f16", "bf16")
    keys["out"] = out
    outputs = ["y:bf16"] if out is None and dtype == "bf16" and case.chance() else ["y"]
    got = case.run("hadamard", keys, {"x": x, **t.inputs}, outputs)
    want, bound = t.both(np.moveaxis(x.values, axis, -1))
    want, bound = np.moveaxis(want, -1, axis), np.moveaxis(bound, -1, axis)
    case.near("y", got["y"], out or dtype, want, bound)


# ---- Quantization in the same pass ---------------------------------------------------------------

def small_floats(mantissa, bias, special):
    """The numbers of an 8-bit format by code; NaN for codes that are not finite."""
    table = np.full(256, np.nan)
    for code in range(256):
        e, m = (code & 127) >> mantissa, code & (1 << mantissa) - 1
        if special(e, m):
            continue
        x = m * 2.0 ** (1 - bias - mantissa) if e == 0 else \
            (1 + m / 2.0**mantissa) * 2.0 ** (e - bias)
        table[code] = -x if code & 128 else x
    return table


E4M3 = small_floats(3, 7, lambda e, m: e == 15 and m == 7)
E5M2 = small_floats(2, 15, lambda e, m: e == 31)
QMAX = {"s8": 127.0, "s4": 7.0, "e4m3": 448.0, "e5m2": 57344.0}


def decoded(q, form):
    """The values of codes before scaling."""
    if form == "s8":
        return q.astype(np.float64)
    if form == "s4":
        low, high = (q & 15).astype(int), (q >> 4).astype(int)
        both = np.stack([low, high], -1).reshape(q.shape[:-1] + (2 * q.shape[-1],))
        return np.where(both > 7, both - 16, both).astype(np.float64)
    return (E4M3 if form == "e4m3" else E5M2)[q]


def widest(t, form):
    """Half the distance between the codes around t: the largest rounding error."""
    if form in ("s8", "s4"):
        return np.full(t.shape, 0.5)
    mantissa, least = (3, -6) if form == "e4m3" else (2, -14)
    _, e = np.frexp(t)
    return np.ldexp(0.5, np.maximum(e - 1, least) - mantissa)


def quantized(case, t, x, q, scale, form, kind, bound, round_to):
    """Checks codes and scales of t, given that the library's t is within bound."""
    qmax = QMAX[form]
    if round_to:
        bound = bound + 2 * half_ulp(t, round_to)
        t = rounded(t, round_to)
    groups = scale.shape[-1]
    t = t.reshape(t.shape[:-1] + (groups, -1))
    bound = bound.reshape(t.shape)
    amax = np.max(np.abs(t), -1)
    slack = np.max(bound, -1) / qmax + 2.0**-22 * amax / qmax
    if kind == "e8m0":
        s = np.exp2(scale.astype(np.float64) - 127)
        low, high = [np.exp2(np.ceil(np.log2(np.maximum(v, 1e-300))))
                     for v in (amax / qmax - slack, amax / qmax + slack)]
        wrong = ~((s >= low) & (s <= high)) & (amax > 0)
        case.report("scale", wrong, s, high, None)
    else:
        s = scale.astype(np.float64)
        case.near("scale", scale, "f32", np.where(amax == 0, 1.0, amax / qmax), slack)
    case.report("scale", (amax == 0) & (s != 1), s, np.ones_like(s), None)
    meant = decoded(q, form).reshape(t.shape)
    exact = t / s[..., None]
    exact = np.clip(exact, -qmax, qmax)
    most = widest(np.maximum(np.abs(exact), np.abs(meant)), form) * (1 + 2.0**-20)
    most = most + bound / s[..., None] + 2.0**-22 * np.abs(exact)
    case.report("q", ~(np.abs(meant - exact) <= most), meant, exact, most)


def draw_format(case):
    form = case.pick("s8", "s8", "s4", "e4m3", "e5m2")
    kind = case.pick("f32", "f32", "e8m0")
    group = case.pick("row", "row", 32, 64, 128)
    keys = {"group": group if group != "row" or case.chance() else None}
    if form != "s8" or case.chance():
        keys["format"] = form
    if kind != "f32" or case.chance():
        keys["scale_type"] = kind
    return form, kind, group, keys


def hadamard_quantize(case):
    form, kind, group, keys = draw_format(case)
    t = draw(case, multiple=2 if group == "row" else group)
    dtype = case.pick("f32", "f16", "bf16")
    x = case.floats((*case.shape(case.pick(0, 1, 1, 2), 5), t.n), dtype,
                    integers=case.pick(0, 0, 3))
    word = case.pick(None, None, None, "f16", "bf16", "none")
    round_to = {"f16": "f16", "bf16": "bf16"}.get(word)
    keys["round_to"] = word
    got = case.run("hadamard_quantize", {**t.keys, **keys}, {"x": x, **t.inputs},
                   ["q", "scale"])
    groups = 1 if group == "row" else t.n // group
    shape = x.shape[:-1]
    columns = t.n // 2 if form == "s4" else t.n
    case.alike("q", got["q"], np.empty(shape + (columns,)))
    case.alike("scale", got["scale"], np.empty(shape + (groups,)))
    want, bound = t.both(x.values)
    if want.size:
        quantized(case, want, x, got["q"], got["scale"], form, kind, bound, round_to)


def dequantize_hadamard(case):
    form, kind, group, keys = draw_format(case)
    t = draw(case, multiple=2 if group == "row" else group)
    groups = 1 if group == "row" else t.n // group
    shape = case.shape(case.pick(0, 1, 1, 2), 5)
    q = case.codes(shape + (t.n // 2 if form == "s4" else t.n,),
                   np.int8 if form == "s8" else np.uint8)
    if form in ("e4m3", "e5m2"):
        q = np.where(np.isnan(decoded(q, form)), 0, q).astype(np.uint8)
    if kind == "e8m0":
        scale = case.rng.integers(115, 130, shape + (groups,)).astype(np.uint8)
        s = np.exp2(scale.astype(np.float64) - 127)
    else:
        scale = case.rng.random(shape + (groups,)).astype(np.float32)
        s = scale.astype(np.float64)
    out = case.pick(None, "f32", "f16", "bf16")
    if form == "e5m2" and out == "f16":
        out = None
    got = case.run("dequantize_hadamard", {**t.keys, **keys, "out": out},
                   {"q": q, "scale": scale, **t.inputs}, ["y"])
    x = decoded(q, form).reshape(shape + (groups, -1)) * s[..., None] if q.size else \
        np.empty(shape + (t.n,))
    want, bound = t.both(x.reshape(shape + (t.n,)), back=True)
    case.near("y", got["y"], out or "f32", want, bound + 2.0**-24 * np.abs(want))


CASES = {
    "hadamard": (hadamard, 48),
    "hadamard_quantize": (hadamard_quantize, 40),
    "dequantize_hadamard": (dequantize_hadamard, 24),
}
