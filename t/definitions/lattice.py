# lattice.py - the hierarchical nested lattice quantizer
# SPDX-License-Identifier: BSD-2-Clause
"""A point is p = sum_m q^m c(b_m), where c(b) = G b - q Q(G b / q) is the coset leader of the
digits b. Points are integers here: coordinates; for E8 doubled, for A2 three that sum to 0."""
import numpy as np

from . import hadamard
from .common import Floats, f32

LIMB = 2**32


class Lattice:
    """Z^d, A2, D_d or E8: its basis as integers, and its nearest points."""

    def __init__(self, kind, d):
        self.kind, self.d = kind, d
        if kind == "A2":
            g = np.array([[1, 1], [0, -1], [-1, 0]])
        elif kind == "E8":
            g = 2 * (np.diag([2] + [1] * 7) - np.diag([1] * 7, 1))
            g[:, 7] = 1
        elif kind == "D":
            g = np.diag([-1] * d) + np.diag([1] * (d - 1), 1)
            g[1, 0] = -1
        else:
            g = np.eye(d, dtype=int)
        self.basis = g.astype(np.int64)
        self.inverse = np.linalg.pinv(self.basis)
        self.scale = 2.0 if kind == "E8" else 1.0

    def coordinates(self, p):
        """Real coordinates of points."""
        if self.kind == "A2":
            z = np.stack([-p[..., 2], -p[..., 1]], -1)
            return np.stack([z[..., 0] + z[..., 1] / 2, z[..., 1] * np.sqrt(0.75)], -1)
        return p / self.scale

    def digits(self, p, q):
        """(G^-1 p) mod q."""
        return np.rint(p @ self.inverse.T).astype(np.int64) % q

    def nearest(self, y):
        """Q(y) of real coordinates, halves to even, and its margin over the runner-up."""
        if self.kind == "A2":
            third = y[..., 1] / np.sqrt(3)
            t = np.stack([y[..., 0] + third, -2 * third, third - y[..., 0]], -1)
            f = np.rint(t)
            return self.sum_zero(f, t - f), self.doubt(t)
        if self.kind == "E8":
            a, b = self.even(y, np.rint(y)), self.even(y - 0.5, np.rint(y - 0.5)) + 0.5
            cost_a, cost_b = np.sum((y - a) ** 2, -1), np.sum((y - b) ** 2, -1)
            # on a coarse grid costs are exact in f32, so ties stay ties
            grid = np.all(y * 64 == np.rint(y * 64), -1) & (cost_a == cost_b)
            margin = np.where(grid, np.inf, np.abs(cost_a - cost_b))
            return self.nearer(a, b, cost_a, cost_b), margin
        f = np.rint(y)
        if self.kind == "D":
            f = self.even(y, f)
        return f.astype(np.int64), np.full(y.shape[:-1], np.inf)

    def doubt(self, t):
        """The distance of t of A2 from the boundary where another point is nearest."""
        f = np.rint(t)
        r = t - f
        half = np.min(0.5 - np.abs(r), -1)
        s = np.sum(f, -1)
        ordered = np.sort(r, -1)
        gap = np.where(s > 0, ordered[..., 1] - ordered[..., 0], ordered[..., 2] - ordered[..., 1])
        return np.minimum(half, np.where(s != 0, gap, np.inf)) / (1 + np.max(np.abs(t), -1) / 4)

    def divided(self, p, q):
        """Q(p / q) in integers, halves up, so that Q(y + p) = Q(y) + p."""
        if self.kind == "E8":
            f = (p + q) // (2 * q)
            a = self.even(p, f, 2 * q)
            g = (p - q + q) // (2 * q)
            b = self.even(p - q, g, 2 * q)
            return self.nearer(a.astype(float), b + 0.5, np.sum((p - 2 * q * a) ** 2, -1),
                               np.sum((p - q - 2 * q * b) ** 2, -1))
        f = (2 * p + q) // (2 * q)
        if self.kind == "A2":
            return self.sum_zero(f, p - q * f)
        return self.even(p, f, q) if self.kind == "D" else f

    @staticmethod
    def even(y, f, q=1):
        """f; where its sum is odd, the first of the largest errors is rounded the other way."""
        r = y - q * f
        k = np.argmax(np.abs(r), -1)[..., None]
        odd = np.sum(f, -1, keepdims=True).astype(np.int64) % 2 == 1
        step = np.where(np.take_along_axis(r, k, -1) >= 0, 1, -1) * odd
        g = f.copy()
        np.put_along_axis(g, k, np.take_along_axis(f, k, -1) + step.astype(f.dtype), -1)
        return g

    @staticmethod
    def sum_zero(f, r):
        """f; where its sum is not 0, the first element that moved most rounds the other way."""
        s = np.sum(f, -1, keepdims=True)
        g = f.copy()
        for sign, k in ((1, np.argmin(r, -1)), (-1, np.argmax(r, -1))):
            k = k[..., None]
            move = np.where(s * sign > 0, -sign, 0).astype(f.dtype)
            np.put_along_axis(g, k, np.take_along_axis(g, k, -1) + move, -1)
        return g.astype(np.int64)

    @staticmethod
    def nearer(a, b, cost_a, cost_b):
        """The nearer of two points, doubled; of equals that with the smaller first coordinate."""
        first = (cost_a < cost_b) | ((cost_a == cost_b) & (a[..., 0] < b[..., 0]))
        point = np.where(first[..., None], 2 * a, 2 * b)
        return np.rint(point).astype(np.int64)

    def leaders(self, b, q):
        """c(b)."""
        p = b @ self.basis.T
        return p - q * self.divided(p, q)


class Code:
    """A lattice with q, M and an offset o: converts points to digits and back."""

    def __init__(self, lattice, q, levels, offset=None):
        self.lattice, self.q, self.levels = lattice, q, levels
        self.offset = np.zeros(len(lattice.basis), dtype=np.int64) if offset is None else offset

    def encode(self, g):
        """Digits [..., M, d] of points g, which include the offset, and whether they fit."""
        digits = []
        for _ in range(self.levels):
            b = self.lattice.digits(g, self.q)
            digits.append(b)
            g = (g - self.lattice.leaders(b, self.q)) // self.q
        return np.stack(digits, -2), ~np.any(g, -1)

    def decode(self, digits, coarsest=0):
        """Points of digits of all levels, or of the coarsest ones."""
        first = self.levels - coarsest if coarsest else 0
        return sum(self.q**m * self.lattice.leaders(digits[..., m, :], self.q)
                   for m in range(first, self.levels))

    def mean_leader(self):
        """The mean of all q^d leaders."""
        d, q = self.lattice.d, self.q
        if self.lattice.kind == "Z":
            return np.full(d, np.mean(Lattice("Z", 1).leaders(np.arange(q)[:, None], q)))
        every = np.stack(np.unravel_index(np.arange(q**d), (q,) * d), -1)
        return self.lattice.leaders(every, q).mean(0)

    def center(self):
        """The point nearest to the code's mean."""
        mean = self.mean_leader() * (self.q**self.levels - 1) / (self.q - 1)
        return self.lattice.nearest(self.lattice.coordinates(mean)[None])[0][0]

    # -- Packing

    @property
    def level_dtype(self):
        most = self.q**self.lattice.d
        return np.uint8 if most <= 256 else np.uint16 if most <= 65536 else np.uint32

    def packings(self):
        """The packings that this code supports."""
        d, q, m = self.lattice.d, self.q, self.levels
        return [p for p, fits in (("level", q**d <= 2**32), ("full64", q**(d * m) <= 2**64),
                                  ("limbs", True)) if fits]

    @property
    def per_limb(self):
        k = 1
        while self.q ** (k + 1) <= LIMB:
            k += 1
        return k

    def pack(self, digits, how):
        d, q = self.lattice.d, self.q
        if how == "limbs":
            flat = digits.reshape(*digits.shape[:-2], d * self.levels)
            limbs = -(-flat.shape[-1] // self.per_limb)
            flat = np.concatenate([flat, np.zeros((*flat.shape[:-1], limbs * self.per_limb -
                                                   flat.shape[-1]), dtype=np.int64)], -1)
            parts = flat.reshape(*flat.shape[:-1], limbs, self.per_limb).astype(np.uint64)
            powers = np.array([q**j for j in range(self.per_limb)], dtype=np.uint64)
            return np.sum(parts * powers, -1).astype(np.uint32)
        powers = np.array([q**j for j in range(d)], dtype=np.uint64)
        level = np.sum(digits.astype(np.uint64) * powers, -1, dtype=np.uint64)
        if how == "level":
            return level.astype(self.level_dtype)
        powers = np.array([q ** (d * m) for m in range(self.levels)], dtype=np.uint64)
        return np.sum(level * powers, -1, dtype=np.uint64)


# ---- Drawing -------------------------------------------------------------------------------------

def draw_code(case, full=False):
    """A random code, its keys, and z; full: only codes with all leaders in a table."""
    kind = case.pick("Z", "Z", "A2", "D", "D", "D", "E8", "E8")
    d = {"A2": 2, "E8": 8}.get(kind) or (case.pick(4, 4, 2, 3, 5, 8) if kind == "D" else
                                         case.pick(1, 2, 3, 8))
    name = kind if kind in ("A2", "E8") else "%s%d" % (kind, d) if d > 1 else "Z"
    keys = {"lattice": name}
    if kind in ("Z", "D") and d > 1 and case.chance(0.3):
        keys = {"lattice": kind + "n", "dim": d}
    q = case.pick(2, 3, 4, 4, 5, 8, 14, 16)
    while (full or kind == "E8") and q**d > 65536:
        q = case.pick(2, 3, 4)
    levels = case.pick(1, 2, 2, 3, 4)
    while q**levels > 2**16:
        levels -= 1
    keys["q"] = q
    keys["levels"] = levels
    lattice = Lattice(kind, d)
    code = Code(lattice, q, levels)
    how = case.pick("none", "none", "center", "list")
    if how == "center" and (kind == "Z" or q**d <= 65536):
        keys["offset"], code.offset = "center", code.center()
    elif how == "list":
        z = case.rng.integers(-1, 2, d)
        if code.encode((lattice.basis @ z)[None])[1][0]:
            keys["offset"] = ",".join(map(str, z))
            code.offset = lattice.basis @ z
    return code, keys


class Scales:
    """beta, alpha and the policy: the scales of blocks."""

    def __init__(self, case, code, policies=("none", "t", "clip", "bank", "group")):
        self.policy = case.pick(*policies)
        self.beta = case.pick(1.0, 1.0, 0.37, 0.5)
        self.keys = {"beta": self.beta}
        self.group, self.first_fit, self.factors = 0, False, None
        alpha = 1 / 8 if self.policy == "group" else 1 / 3
        if self.policy in ("t", "group") and case.chance(0.3):
            alpha = self.keys["alpha"] = case.pick(0.25, 0.5, 1.0)
        if self.policy != "none" or case.chance(0.3):
            self.keys["policy"] = self.policy
        factors = [1.0]
        if self.policy == "t":
            factors = [2.0 ** (alpha * t) for t in range(32)]
        elif self.policy == "group":
            factors = [2.0 ** (alpha * t) for t in range(64)]
            d = code.lattice.d
            self.group = d * int(case.rng.integers(-(-8 // d), 32 // d + 1))
            self.keys["group"] = self.group
        elif self.policy == "bank":
            factors = case.pick([1.0, 1.5, 2.25, 4.0], [2.0, 1.0], [0.7, 1.1, 3.0])
            self.keys["bank"] = ",".join(map(repr, factors))
        if self.policy in ("bank", "group") and case.chance(0.3):
            self.keys["first_fit"], self.first_fit = 1, True
        self.scales = f32(self.beta * np.array(factors))

    @property
    def has_t(self):
        return self.policy in ("t", "bank", "group")

    def shape(self, blocks, d):
        """The shape of T."""
        return -(-blocks * d // self.group) if self.group else blocks

    def of_blocks(self, t, blocks, d):
        """The scale of each block; T beyond the last scale means the last."""
        if t is None:
            return self.scales[0]
        s = self.scales[np.minimum(t, len(self.scales) - 1)]
        return np.repeat(s, self.group // d, -1)[..., :blocks] if self.group else s


# ---- Encoding ------------------------------------------------------------------------------------

class Choice:
    """The encoding of blocks [rows, blocks, d] of x, and where rounding makes it ambiguous."""

    def __init__(self, code, scales, x, dither):
        self.code, self.scales, self.dither = code, scales, dither
        bad = ~np.isfinite(x)
        self.special = bad.any(-1)
        self.nan = np.isnan(x).any(-1)
        largest = float(np.finfo(np.float32).max)
        self.x = np.where(np.isnan(x), 0, np.clip(x, -largest, largest))
        shape = x.shape[:-1]
        self.digits = np.zeros((*shape, code.levels, code.lattice.d), dtype=np.int64)
        self.t = np.zeros(shape, dtype=np.int64)
        self.unsure = np.zeros(shape, dtype=bool)
        self.overload = 0

    def at(self, s, factor=1.0):
        """For all blocks at a scale: digits, whether they fit, the error, and ambiguity."""
        v = f32(self.x * f32(1 / s))
        y = f32(f32(v * factor) + self.dither)
        inside = np.clip(y, -(2.0**20), 2.0**20)
        g, margin = self.code.lattice.nearest(inside)
        digits, fits = self.code.encode(g + self.code.offset)
        fits &= np.all(np.abs(y) < 2.0**20, -1)
        error = np.sum((y - self.code.lattice.coordinates(g)) ** 2, -1) * s * s
        return digits, fits, error, margin < 2.0**-16

    def clip(self, s, open_, count):
        """Shrinks each block that does not fit by the first 2^(-j/16) that does."""
        j = 0
        while open_.any():
            digits, fits, _, unsure = self.at(s, f32(2.0 ** (-j / 16)))
            now = open_ & fits
            self.digits[now] = digits[now]
            self.unsure |= open_ & unsure
            if j and count:
                self.overload += int(np.sum(now))
            open_ = open_ & ~fits
            j += 1
            if j > 4000:
                self.unsure |= open_    # x / s exceeds f32
                break

    def nans(self):
        """A block with a NaN is encoded as o, with T = 0."""
        o, _ = self.code.encode(np.broadcast_to(self.code.offset, (1, len(self.code.offset))))
        self.digits[self.nan] = o[0]
        self.t[self.nan] = 0
        self.unsure &= ~self.nan

    def blocks(self):
        """Policies none, clip, t and bank."""
        policy, s = self.scales.policy, self.scales.scales
        every = ~self.nan
        if policy == "none":
            self.digits, fits, _, self.unsure = self.at(s[0])
            self.overload = int(np.sum(every & ~fits))
        elif policy == "clip":
            self.clip(s[0], every, True)
        else:
            best = np.full(every.shape, np.inf)
            second = np.full(every.shape, np.inf)
            for i, scale in enumerate(s):
                digits, fits, error, unsure = self.at(scale)
                if policy == "t" or self.scales.first_fit:
                    error = np.full(error.shape, float(i))
                    self.unsure |= unsure & np.isinf(best)
                else:
                    self.unsure |= unsure
                error = np.where(fits & every, error, np.inf)
                take = error < best
                second = np.where(take, best, np.minimum(second, error))
                best = np.where(take, error, best)
                self.t[take], self.digits[take] = i, digits[take]
            if policy == "bank" and not self.scales.first_fit:
                # where sums are exact, the first of equal scales is taken
                exact = self.scales.beta in (1.0, 0.5) and \
                    np.all(self.x * 64 == np.rint(self.x * 64), -1)
                self.unsure |= (second - best < 2.0**-16 * best) & np.isfinite(second) & \
                    ~(exact & (second == best))
            left = every & np.isinf(best)
            largest = int(np.argmax(s))
            self.t[left] = largest
            self.overload = int(np.sum(left))
            self.clip(s[largest], left, False)
        self.nans()

    def groups(self):
        """Policy group: one T for consecutive blocks."""
        per = self.scales.group // self.code.lattice.d
        s = self.scales.scales
        rows, blocks = self.nan.shape
        count = -(-blocks // per)
        part = np.arange(blocks) // per
        tried = [self.at(scale) for scale in s]
        chosen = np.zeros((rows, count), dtype=np.int64)
        for r in range(rows):
            for g in range(count):
                use = (part == g) & ~self.nan[r]
                if not use.any():
                    continue
                fit = [i for i in range(len(s)) if tried[i][1][r][use].all()]
                if not fit:
                    chosen[r, g] = len(s) - 1
                    self.unsure[r, part == g] = True
                    self.overload = -1
                    continue
                among = [i for i in fit if i <= fit[0] + (0 if self.scales.first_fit else 2)]
                errors = [tried[i][2][r][use].sum() for i in among]
                i = among[int(np.argmin(errors))]
                close = sum(e < min(errors) * (1 + 2.0**-14) for e in errors) > 1
                doubt = any(tried[k][3][r][use].any() for k in range(min(fit[0] + 3, len(s))))
                chosen[r, g] = i
                self.digits[r, part == g] = tried[i][0][r, part == g]
                self.unsure[r, part == g] |= doubt or close
        self.t = chosen
        o, _ = self.code.encode(np.broadcast_to(self.code.offset, (1, len(self.code.offset))))
        self.digits[self.nan] = o[0]


def draw_values(case, code, scales, shape):
    """x: normal numbers, numbers on a grid with ties, or with NaN and Inf."""
    spread = scales.beta * code.q**code.levels / 4
    x = case.rng.standard_normal(shape) * spread * case.pick(0.3, 0.7, 1.5)
    if case.chance(0.3):
        x = np.rint(x / scales.beta * 4) / 4 * scales.beta
    elif case.chance(0.3):
        x = np.rint(x / scales.beta * 2) / 2 * scales.beta
    if x.size and case.chance(0.15):
        x.reshape(-1)[case.rng.integers(x.size, size=3)] = [np.nan, np.inf, -np.inf]
    return x


def cut(x, d):
    """Rows as blocks, the last one padded with 0."""
    blocks = -(-x.shape[-1] // d)
    wide = np.zeros((*x.shape[:-1], blocks * d))
    wide[..., :x.shape[-1]] = x
    return wide.reshape(*x.shape[:-1], blocks, d)


def draw_dither(case, code, keys):
    if "offset" in keys or not case.chance(0.2):
        return np.zeros(code.lattice.d)
    z = case.rng.integers(-3, 4, code.lattice.d) / 16.0
    keys["dither"] = ",".join(repr(float(v)) for v in z)
    return z


def run_encode(case):
    code, keys = draw_code(case)
    policies = ["none", "none", "t", "t", "clip", "bank", "group"]
    if "offset" in keys and not code.encode(code.offset[None])[1][0]:
        policies = ["none"]
    scales = Scales(case, code, policies)
    dither = draw_dither(case, code, keys)
    keys.update(scales.keys)
    d = code.lattice.d
    n = case.pick(case.size(40, zero=False), d * case.size(9, zero=False), 3 * d)
    shape = (*case.shape(case.pick(0, 1, 1, 2), 9), n)
    if case.chance(0.15):
        shape = (300, n)
    x = Floats(draw_values(case, code, scales, shape), case.pick("f32", "f16", "bf16"))
    how = case.pick(*code.packings())
    if how != "level" or case.chance(0.3):
        keys["pack"] = how
    outputs = ["codes"] + (["t"] if scales.has_t else []) + \
        (["overload"] if case.chance(0.6) else [])
    got = case.run("lattice_encode", keys, {"x": x}, outputs)
    blocks = cut(x.values, d)
    rows = int(np.prod(shape[:-1]))
    choice = Choice(code, scales, blocks.reshape(rows, blocks.shape[-2], d), dither)
    if scales.policy == "group":
        choice.groups()
    else:
        choice.blocks()
    sure = ~choice.unsure
    want = code.pack(choice.digits, how)
    want = want.reshape(*shape[:-1], *want.shape[1:])
    wide = sure.reshape(blocks.shape[:-1])
    if got["codes"].dtype != want.dtype:
        case.fail("codes are %s, not %s" % (got["codes"].dtype, want.dtype))
    case.exact("codes", got["codes"], want,
               wide if how == "full64" else np.broadcast_to(wide[..., None], want.shape))
    if scales.has_t:
        per = scales.group // d if scales.group else 1
        ends = np.arange(0, sure.shape[1], per)
        known = np.logical_and.reduceat(sure, ends, 1)
        t_shape = (*shape[:-1], scales.shape(blocks.shape[-2], d))
        case.exact("t", got["t"], choice.t.reshape(t_shape), known.reshape(t_shape))
    if "overload" in outputs and sure.all() and choice.overload >= 0:
        case.exact("overload", got["overload"],
                   np.array([choice.overload, int(np.sum(choice.special))]))


# ---- Decoding ------------------------------------------------------------------------------------

def draw_digits(case, code, shape):
    return case.rng.integers(0, code.q, (*shape, code.levels, code.lattice.d))


def values_of(code, digits, scale, dither=0.0, coarsest=0):
    """(p - o - z) s, plus the mean of the levels left out."""
    p = code.decode(digits, coarsest).astype(float)
    if coarsest and coarsest < code.levels:
        left = code.levels - coarsest
        p = p + code.mean_leader() * (code.q**left - 1) / (code.q - 1)
    y = code.lattice.coordinates(p - code.offset) - dither
    return y * np.asarray(scale)[..., None]


def run_decode(case):
    code, keys = draw_code(case)
    scales = Scales(case, code)
    dither = draw_dither(case, code, keys)
    if "offset" in keys and not code.encode(code.offset[None])[1][0]:
        scales = Scales(case, code, ["none"])
    keys.update(scales.keys)
    d = code.lattice.d
    blocks = case.size(9, zero=False)
    shape = case.shape(case.pick(0, 1, 1, 2), 9)
    digits = draw_digits(case, code, (*shape, blocks))
    how = case.pick(*code.packings())
    if how != "level" or case.chance(0.3):
        keys["pack"] = how
    codes = code.pack(digits, how)
    coarsest = 0
    if code.levels > 1 and case.chance(0.3) and (code.q**d <= 65536 or code.lattice.kind == "Z"):
        coarsest = keys["use_levels"] = int(case.rng.integers(1, code.levels))
        if how == "level" and case.chance():
            codes = codes[..., code.levels - coarsest:]
    to = case.pick("values", "values", "points", "digits")
    if to != "values" or case.chance(0.3):
        keys["to"] = to
    inputs, t = {"codes": codes}, None
    if scales.has_t and (to == "values" or case.chance()):
        t = case.rng.integers(0, len(scales.scales), (*shape, scales.shape(blocks, d)))
        inputs["t"] = t.astype(np.uint8)
    if to == "digits":
        got = case.run("lattice_decode", keys, inputs, ["y"])["y"]
        case.exact("y", got, digits[..., code.levels - coarsest if coarsest else 0:, :])
        return
    if to == "points":
        got = case.run("lattice_decode", keys, inputs, ["y"])["y"]
        case.exact("y", got, code.decode(digits, coarsest))
        return
    out = case.pick(None, "f32", "f16", "bf16")
    keys["out"] = out
    n = blocks * d
    if d > 1 and case.chance(0.4):
        n = keys["n"] = (blocks - 1) * d + int(case.rng.integers(1, d + 1))
    got = case.run("lattice_decode", keys, inputs, ["y"])["y"]
    scale = scales.of_blocks(t, blocks, d)
    want = values_of(code, digits, scale, dither, coarsest).reshape(*shape, blocks * d)[..., :n]
    size = np.abs(want) + np.repeat(np.broadcast_to(scale, (*shape, blocks)), d, -1)[..., :n] * \
        code.q**code.levels
    exact = code.lattice.kind != "A2" and not coarsest
    case.near("y", got, out or "f32", want,
              2.0**-23 * np.abs(want) if exact else 2.0**-22 * size)


def run_repack(case):
    code, keys = draw_code(case)
    shape = (*case.shape(case.pick(0, 1, 1, 2), 9), case.size(9))
    digits = draw_digits(case, code, shape)
    names = code.packings()
    source, target = case.pick(*names), case.pick(*names)
    keys["beta"] = 0.5  # which codes do not depend on
    keys.update({"from_pack": source} if source != "level" or case.chance() else {},
                **({"to_pack": target} if target != "level" or case.chance() else {}))
    got = case.run("lattice_repack", keys, {"from": code.pack(digits, source)}, ["to"])["to"]
    case.exact("to", got, code.pack(digits, target))


# ---- Round trips, with a transform or a custom basis ---------------------------------------------

def run_round_trip(case):
    """Encodes and decodes rows with a transform, or with the caller's basis."""
    if case.chance(0.5):
        code, keys = draw_code(case)
        keys.pop("offset", None)
        t = hadamard.draw(case, rows=False, most=64)
        t.keys["rotate"] = 1
        x = case.floats((case.size(5, zero=False), t.n), "f32")
        keys.update(t.keys, policy="clip", beta=0.25)
        codes = case.run("lattice_encode", keys, {"x": x, **t.inputs}, ["codes"])["codes"]
        keys["n"] = t.n
        got = case.run("lattice_decode", keys, {"codes": codes, **t.inputs}, ["y"])["y"]
        # the same codes, without the inverse transform
        plain = {k: v for k, v in keys.items() if k not in t.keys}
        y = case.run("lattice_decode", plain, {"codes": codes}, ["y"])["y"].astype(np.float64)
        want, bound = t.both(y, back=True)
        case.near("y", got, "f32", want, bound)
        return
    d = case.pick(2, 3, 4)
    basis = np.eye(d) + case.rng.integers(-2, 3, (d, d)) / 4.0 + case.rng.random((d, d)) / 8
    if abs(np.linalg.det(basis)) < 0.3:
        basis = np.eye(d) + np.triu(np.ones((d, d)), 1) / 4
    sphere = case.chance()
    keys = {"lattice": "basis", "q": case.pick(5, 8), "levels": 2, "beta": 1,
            "sphere": int(sphere)}
    x = case.floats((20, 3 * d), "f32")
    inputs = {"basis": basis.astype(case.pick(np.float32, np.float64))}
    exact = inputs["basis"].astype(np.float64)
    made = case.run("lattice_encode", {**keys, "policy": "none"}, {"x": x, **inputs},
                    ["codes", "overload"])
    y = case.run("lattice_decode", keys, {"codes": made["codes"], **inputs}, ["y"])["y"]
    y = y.astype(np.float64)
    z = cut(y, d) @ np.linalg.inv(exact).T
    case.report("lattice point", ~(np.abs(z - np.rint(z)) < 1e-4), z, np.rint(z), None)
    if int(made["overload"][0]):
        return
    # Babai's nearest plane is within half the diagonal of the reduced basis' box, which for LLL is
    # at most 2^((d-1)/4) times as long, and so on; the search finds the nearest point
    error = np.sqrt(np.sum((cut(x.values, d) - cut(y, d)) ** 2, -1))
    span = np.stack(np.meshgrid(*[np.arange(-2, 3)] * d, indexing="ij"), -1).reshape(-1, d)
    near = np.rint(cut(x.values, d) @ np.linalg.inv(exact).T)
    every = (near[..., None, :] + span) @ exact.T
    least = np.sqrt(np.min(np.sum((cut(x.values, d)[..., None, :] - every) ** 2, -1), -1))
    most = least + 1e-4 if sphere else 2.0 ** (d / 2) * least + np.linalg.norm(exact)
    case.report("distance", ~(error <= most), error, least, np.broadcast_to(most, error.shape))


def either(first, second, share):
    return lambda case: (second if case.chance(share) else first)(case)


CASES = {
    "lattice_encode": (either(run_encode, run_round_trip, 0.15), 96),
    "lattice_decode": (run_decode, 64),
    "lattice_repack": (run_repack, 24),
}
