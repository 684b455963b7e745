# quat.py - elementwise quaternion operations, and products of quaternion matrices
# SPDX-License-Identifier: BSD-2-Clause
"""q = w + xi + yj + zk in the last dimension. Gradients are taken from the formulas by complex
steps; the formulas therefore use sums of squares instead of absolute values."""
import math

import numpy as np

from .common import Floats, half_ulp, rounded, unit

# ---- Algebra, components in the order w, x, y, z -------------------------------------------------


def mul(a, b):
    """Hamilton's product."""
    aw, ax, ay, az = np.moveaxis(a, -1, 0)
    bw, bx, by, bz = np.moveaxis(b, -1, 0)
    return np.stack([aw * bw - ax * bx - ay * by - az * bz,
                     aw * bx + ax * bw + ay * bz - az * by,
                     aw * by - ax * bz + ay * bw + az * bx,
                     aw * bz + ax * by - ay * bx + az * bw], -1)


def conj(a):
    return a * np.array([1.0, -1.0, -1.0, -1.0])


def square(a):
    """|a|^2, [..., 1]."""
    return np.sum(a * a, -1, keepdims=True)


def norm(a):
    return np.sqrt(square(a))


def rotate(q, v, normalize=False, inverse=False):
    """q v conj(q) for quaternions v without a real part."""
    v = v * np.array([0.0, 1.0, 1.0, 1.0])
    y = mul(mul(conj(q), v), q) if inverse else mul(mul(q, v), conj(q))
    return y / square(q) if normalize else y


# ---- Order of components -------------------------------------------------------------------------

class Order:
    """order=wxyz or xyzw: the order of components in files."""

    def __init__(self, case):
        self.xyzw = case.chance(0.3)
        self.keys = {"order": "xyzw"} if self.xyzw else \
            {"order": "wxyz"} if case.chance(0.2) else {}

    def wxyz(self, x):
        """Converts from the order of files; [..., 3] has no real part."""
        if x.shape[-1] == 3:
            return np.concatenate([np.zeros_like(x[..., :1]), x], -1)
        return np.roll(x, 1, -1) if self.xyzw else x

    def file(self, x, dims=4):
        if dims == 3:
            return x[..., 1:]
        return np.roll(x, -1, -1) if self.xyzw else x


def draw_pair(case, tail=()):
    """Two shapes that broadcast to each other."""
    shape = case.shape(case.pick(0, 1, 1, 2, 3), 9)
    a, b = list(shape), list(shape)
    for s in (a, b):
        for i in range(len(s)):
            if case.chance(0.15):
                s[i] = 1
        del s[:case.pick(0, 0, 0, int(case.rng.integers(len(s) + 1)))]
    if case.chance(0.1):
        a, b = [int(case.rng.integers(1000, 3000))], case.pick([1], [])
    return (*a, *tail, 4), (*b, *tail, 4)


def broadcast_shape(shape, *operands):
    """The shape that operands broadcast to."""
    return np.broadcast_shapes(shape, *operands)


def roundoff(x, dtype):
    """The error of a few f32 (f64) operations on numbers of this magnitude."""
    return 16 * unit("f64" if dtype == "f64" else "f32") * np.abs(x)


def held_before(case, shape, dtype, scale=1.0):
    """Keys, the old file, and the values that accumulate=1 adds to; 0 without a file."""
    if not case.chance(0.3):
        return {}, None, 0.0
    if case.chance(0.3):
        return {"accumulate": 1}, None, 0.0
    y = case.floats(shape, dtype, scale=scale)
    return {"accumulate": 1}, y, y.values


# ---- Elementwise operations ----------------------------------------------------------------------

def product_of(case):
    """The function for random conj_a, conj_b and reversed, and the keys."""
    keys = {k: 1 for k in ("conj_a", "conj_b", "reversed") if case.chance(0.3)}

    def product(a, b):
        a, b = (conj(a) if "conj_a" in keys else a), (conj(b) if "conj_b" in keys else b)
        return mul(b, a) if "reversed" in keys else mul(a, b)

    return product, keys


def run_mul(case):
    dtype, order = case.dtype(), Order(case)
    a, b = (case.floats(s, dtype) for s in draw_pair(case))
    product, keys = product_of(case)
    want = order.file(product(order.wxyz(a.values), order.wxyz(b.values)))
    more, y, before = held_before(case, want.shape, dtype)
    got = case.run("quat_mul", {**keys, **more, **order.keys}, {"a": a, "b": b}, ["y"],
                   {"y": y} if y else None)["y"]
    case.near("y", got, dtype, want + before,
              roundoff(norm(a.values) * norm(b.values) + np.abs(before), dtype))


def bwd_of(case, primitive, loss, operands, inputs, keys, dtype, size, accumulate=True):
    """Gradients of a loss for a random choice of operands, some of them accumulated."""
    wanted = [k for k in operands if case.chance(0.8)] or list(operands)[:1]
    holding, accumulate = {}, accumulate and case.chance(0.3)
    if accumulate:
        keys = {**keys, "accumulate": 1}
        holding = {"d" + k: case.floats(operands[k].shape, operands[k].dtype) for k in wanted
                   if case.chance(0.7)}
    files = ["d" + k + (":f32" if operands[k].dtype == "f32" != dtype else "") for k in wanted]
    got = case.run(primitive, keys, inputs, files, holding)
    for k in wanted:
        case.gradients("d" + k, got["d" + k], operands[k].dtype,
                       lambda v, k=k: loss(**{k: v}), operands[k].values,
                       size * unit("f64" if dtype == "f64" else "f32"), holding.get("d" + k))


def run_mul_bwd(case):
    dtype, order = case.dtype(), Order(case)
    a, b = (case.floats(s, dtype) for s in draw_pair(case))
    product, keys = product_of(case)
    dy = case.floats(broadcast_shape(a.shape, b.shape), dtype)

    def loss(**new):
        x = {"a": a.values, "b": b.values, **new}
        return np.sum(order.wxyz(dy.values) * product(order.wxyz(x["a"]), order.wxyz(x["b"])))

    bwd_of(case, "quat_mul_bwd", loss, {"a": a, "b": b}, {"a": a, "b": b, "dy": dy},
           {**keys, **order.keys}, dtype, 64 + dy.raw.size)


def run_dot(case):
    dtype, order = case.dtype(), Order(case)
    length = case.pick(case.size(40), case.size(40), 1500)
    a, b = (case.floats(s, dtype) for s in draw_pair(case, (length,)))
    keys = {k: 1 for k in ("conj_a", "conj_b", "reversed", "real") if case.chance(0.3)}
    p, q = order.wxyz(a.values), order.wxyz(b.values)
    p, q = p if "conj_a" in keys else conj(p), conj(q) if "conj_b" in keys else q
    want = np.sum(mul(q, p) if "reversed" in keys else mul(p, q), -2)
    bound = np.sum(norm(a.values) * norm(b.values), -2)
    want = want[..., :1] if "real" in keys else order.file(want)
    more, y, before = held_before(case, want.shape, dtype)
    got = case.run("quat_dot", {**keys, **more, **order.keys}, {"a": a, "b": b}, ["y"],
                   {"y": y} if y else None)["y"]
    case.near("y", got, dtype, want + before,
              roundoff(bound * (1 + length / 16) + np.abs(before), dtype))


def run_axpy(case):
    dtype, order = case.dtype(), Order(case)
    x = case.floats((*case.shape(case.pick(0, 1, 2, 3), 9), 4), dtype)
    alpha = rounded(case.rng.standard_normal(4), "f64" if dtype == "f64" else "f32")
    real = case.chance(0.3)
    if real:
        alpha[1:] = 0
    keys = {"alpha": repr(float(alpha[0])) if real else ",".join(repr(float(v)) for v in alpha)}
    if real and case.chance(0.3):
        keys, alpha = {}, np.array([1.0, 0, 0, 0])
    if case.chance(0.3):
        keys["reversed"] = 1
    p = order.wxyz(x.values)
    y = case.floats(x.shape, dtype) if case.chance(0.8) else None
    before = y.values if y else np.zeros(x.shape)
    want = order.file(mul(p, alpha) if "reversed" in keys else mul(alpha, p)) + before
    got = case.run("quat_axpy", {**keys, **order.keys}, {"x": x}, ["y"],
                   {"y": y} if y else None)["y"]
    case.near("y", got, dtype, want,
              roundoff(norm(p) * np.sqrt(np.sum(alpha**2)) + np.abs(before), dtype))


def draw_one(case):
    """Random quaternions, some of them 0, very large or very small."""
    dtype, order = case.dtype(), Order(case)
    shape = (*case.shape(case.pick(0, 1, 1, 2, 3), 12), 4)
    if case.chance(0.1):
        shape = (int(case.rng.integers(1000, 3000)), 4)
    q = case.rng.standard_normal(shape)
    far = {"f64": 500, "f32": 60, "bf16": 60, "f16": 4}[dtype]
    q *= np.exp2(np.where(case.rng.random(shape[:-1]) < 0.1,
                          case.rng.integers(-far, far + 1, shape[:-1]), 0))[..., None]
    return dtype, order, Floats(q, dtype)


def run_conj(case):
    dtype, order, x = draw_one(case)
    got = case.run("quat_conj", order.keys, {"x": x}, ["y"])["y"]
    case.same("y", got, dtype, order.file(conj(order.wxyz(x.values))))


def run_norm(case):
    dtype, order, x = draw_one(case)
    keys = {"squared": 1} if case.chance(0.3) else {}
    got = case.run("quat_norm", {**keys, **order.keys}, {"x": x}, ["n"])["n"]
    largest = np.max(np.abs(x.values), -1, initial=0)
    e = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))))
    n = norm(x.values / e[..., None])[..., 0] * e
    want = n * n if keys else n
    with_tiny = np.where(want < 2.0**-120, 2.0**-149, 0) if dtype != "f64" else 0
    case.near("n", got, dtype, want, roundoff(want, dtype) + with_tiny)


def run_normalize(case):
    dtype, order, x = draw_one(case)
    if x.raw.size and case.chance(0.5):
        v = x.values.copy()
        v.reshape(-1, 4)[0] = 0
        x = Floats(v, dtype)
    keys, eps = {}, 0.0
    if case.chance(0.4):
        eps = float(np.float32(case.pick(1e-6, 0.5, 2.0)))
        keys["eps"] = repr(eps)
    got = case.run("quat_normalize", {**keys, **order.keys}, {"x": x}, ["y"])["y"]
    n = np.maximum(norm(x.values), eps)
    want = np.where(n > 0, x.values / np.where(n > 0, n, 1), 0)
    case.near("y", got, dtype, want, roundoff(np.maximum(norm(want), 1e-30), dtype))


def run_inverse(case):
    dtype, order, x = draw_one(case)
    got = case.run("quat_inverse", order.keys, {"x": x}, ["y"])["y"]
    n = norm(x.values)
    want = order.file(conj(order.wxyz(x.values))) / n / n
    case.near("y", got, dtype, want, roundoff(1 / n, dtype) + np.zeros_like(want))


def unary_bwd(primitive, function, keys_of=lambda case: {}):
    """The gradient of a function of one quaternion, which must not be near 0."""

    def run(case):
        dtype, order = case.dtype(), Order(case)
        x = case.floats((*case.shape(case.pick(0, 1, 2), 9), 4), dtype)
        x = Floats(x.values + np.sign(x.values + 0.01) * 0.25, dtype)
        keys = keys_of(case)
        y = function(order.wxyz(x.values), keys)
        scalar = y.shape[-1] == 1
        dy = case.floats(x.shape[:-1] if scalar else x.shape, dtype)
        upstream = dy.values[..., None] if scalar else order.wxyz(dy.values)
        name = "dn" if scalar else "dy"

        def loss(x):
            return np.sum(upstream * function(order.wxyz(x), keys))

        bwd_of(case, primitive, loss, {"x": x}, {name: dy, "x": x}, {**keys, **order.keys}, dtype,
               256)

    return run


def normalized(x, keys):
    eps = float(keys.get("eps", 0))
    n = norm(x)
    return x / np.where(n.real < eps, eps, n)


run_norm_bwd = unary_bwd("quat_norm_bwd", lambda x, keys: square(x) if keys else norm(x),
                         lambda case: {"squared": 1} if case.chance(0.4) else {})
run_normalize_bwd = unary_bwd("quat_normalize_bwd", normalized,
                              lambda case: {"eps": "1.75"} if case.chance(0.4) else {})
run_inverse_bwd = unary_bwd("quat_inverse_bwd", lambda x, keys: conj(x) / square(x))


def draw_rotation(case):
    dtype, order = case.dtype(), Order(case)
    q_shape, v_shape = draw_pair(case)
    dims = case.pick(3, 4)
    q, v = case.floats(q_shape, dtype), case.floats((*v_shape[:-1], dims), dtype)
    keys = {k: 1 for k in ("normalize", "inverse") if case.chance(0.4)}
    return dtype, order, q, v, dims, keys


def run_rotate(case):
    dtype, order, q, v, dims, keys = draw_rotation(case)
    got = case.run("quat_rotate", {**keys, **order.keys}, {"q": q, "v": v}, ["y"])["y"]
    p, u = order.wxyz(q.values), order.wxyz(v.values)
    want = rotate(p, u, **{k: True for k in keys})
    length = norm(u * np.array([0, 1, 1, 1])) * (1 if "normalize" in keys else square(p))
    case.near("y", got, dtype, order.file(want, dims), roundoff(length, dtype))


def run_rotate_bwd(case):
    dtype, order, q, v, dims, keys = draw_rotation(case)
    q = Floats(q.values + np.sign(q.values + 0.01) * 0.25, dtype)
    shape = broadcast_shape(q.shape[:-1], v.shape[:-1])
    dy = case.floats((*shape, dims), dtype)

    def loss(**new):
        x = {"q": q.values, "v": v.values, **new}
        y = rotate(order.wxyz(x["q"]), order.wxyz(x["v"]), **{k: True for k in keys})
        return np.sum(order.wxyz(dy.values) * y * np.array([0, 1, 1, 1]))

    bwd_of(case, "quat_rotate_bwd", loss, {"q": q, "v": v}, {"q": q, "v": v, "dy": dy},
           {**keys, **order.keys}, dtype, 256 + dy.raw.size)


# ---- Conversions ---------------------------------------------------------------------------------

def matrix_of(q):
    """The images of the unit vectors are its columns."""
    columns = [rotate(q, np.eye(4)[1 + j], normalize=True)[..., 1:] for j in range(3)]
    return np.stack(columns, -1)


def polar(angle, v):
    """cos(angle) + sin(angle) v / |v|."""
    length = np.sqrt(np.sum(v * v, -1, keepdims=True))
    return np.concatenate([np.cos(angle), np.sin(angle) * v / length], -1)


def angle_of(w, v):
    """The angle of w and v, times the direction of v."""
    length = np.sqrt(np.sum(v * v, -1, keepdims=True))
    return np.arctan2(length, w) * v / length


def log_of(x):
    return np.concatenate([np.log(norm(x)), angle_of(x[..., :1], x[..., 1:])], -1)


def exp_of(x):
    v = x[..., 1:]
    return np.exp(x[..., :1]) * polar(np.sqrt(np.sum(v * v, -1, keepdims=True)), v)


def draw_quaternions(case):
    """Random quaternions that are not near 0, and their order."""
    dtype, order = case.dtype(), Order(case)
    q = case.floats((*case.shape(case.pick(0, 1, 2, 3), 9), 4), dtype)
    return dtype, order, Floats(q.values + np.sign(q.values + 0.01) * 0.25, dtype)


def run_to_matrix(case):
    dtype, order, q = draw_quaternions(case)
    got = case.run("quat_to_matrix", order.keys, {"q": q}, ["m"])["m"]
    want = matrix_of(order.wxyz(q.values))
    case.near("m", got, dtype, want, roundoff(np.ones_like(want), dtype))


def run_to_matrix_bwd(case):
    dtype, order, q = draw_quaternions(case)
    dm = case.floats((*q.shape[:-1], 3, 3), dtype)

    def loss(q):
        return np.sum(dm.values * matrix_of(order.wxyz(q)))

    bwd_of(case, "quat_to_matrix_bwd", loss, {"q": q}, {"q": q, "dm": dm}, order.keys, dtype, 256)


def run_from_matrix(case):
    """Twice the matrix of a quaternion, with its sign by the largest component."""
    dtype, order, q = draw_quaternions(case)
    q = order.wxyz(q.values)
    m = Floats(2 * matrix_of(q), dtype)
    got = case.run("quat_from_matrix", order.keys, {"m": m}, ["q"])["q"]
    q = q / norm(q)
    largest = np.take_along_axis(q, np.argmax(np.abs(q), -1)[..., None], -1)
    second = np.sort(np.abs(q), -1)[..., 2:3]
    sure = np.abs(largest) > second + 0.03      # m is rounded
    bound = np.where(sure, 4 * unit(dtype), 4.0) * np.ones_like(q)
    case.near("q", got, dtype, order.file(q * np.sign(largest)), bound)


def run_axis_angle(case):
    dtype, order, q = draw_quaternions(case)
    got = case.run("quat_to_axis_angle", order.keys, {"q": q}, ["r"])["r"]
    q = order.wxyz(q.values)
    q = q * np.where(q[..., :1] < 0, -1, 1)
    want = 2 * angle_of(q[..., :1], q[..., 1:])
    case.near("r", got, dtype, want, roundoff(np.ones_like(want) * 4, dtype))


def run_from_axis_angle(case):
    dtype, order, q = draw_quaternions(case)
    r = Floats(q.values[..., 1:], dtype)
    got = case.run("quat_from_axis_angle", order.keys, {"r": r}, ["q"])["q"]
    half = np.sqrt(np.sum(r.values * r.values, -1, keepdims=True)) / 2
    want = polar(half, r.values)
    case.near("q", got, dtype, order.file(want), roundoff(1 + half + 0 * want, dtype))


def function(name, of):
    def run(case):
        dtype, order, x = draw_quaternions(case)
        got = case.run(name, order.keys, {"x": x}, ["y"])["y"]
        want = of(order.wxyz(x.values))
        size = (1 + norm(want)) * (1 + norm(x.values))
        case.near("y", got, dtype, order.file(want), roundoff(size + 0 * want, dtype))

    return run


def run_slerp(case):
    dtype, order, a = draw_quaternions(case)
    b = case.floats(a.shape, dtype)
    b = Floats(b.values + np.sign(b.values + 0.01) * 0.25, dtype)
    t = case.floats(a.shape[:-1], dtype)
    got = case.run("quat_slerp", order.keys, {"a": a, "b": b, "t": t}, ["y"])["y"]
    p, q = (order.wxyz(x.values) / norm(x.values) for x in (a, b))
    q = q * np.where(np.sum(p * q, -1, keepdims=True) < 0, -1, 1)
    angle = 2 * np.arctan2(norm(p - q), norm(p + q))
    t = t.values[..., None]
    want = (np.sin((1 - t) * angle) * p + np.sin(t * angle) * q) / np.sin(angle)
    case.near("y", got, dtype, order.file(want), roundoff(1 + np.abs(t) + 0 * want, dtype))


# ---- Activations ---------------------------------------------------------------------------------

def erf(z):
    real = np.vectorize(math.erf, otypes=[float])(np.real(z))
    return real + 1j * np.imag(z) * 2 / math.sqrt(math.pi) * np.exp(-np.real(z) ** 2)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def activation(name, slope):
    """The activation as a function of quaternions; those up to silu act on each component."""
    def modrelu(q):
        n = norm(q)
        zero = np.real(n) == 0
        n = np.where(zero, 1, n)
        return np.where(zero | (np.real(n) + slope <= 0), 0, (n + slope) * q / n)

    def normclip(q):
        n = norm(q)
        return np.where(np.real(n) > slope, q * slope / np.where(n == 0, 1, n), q)

    return {
        "none": lambda z: z,
        "relu": lambda z: np.where(np.real(z) > 0, z, 0),
        "leaky": lambda z: np.where(np.real(z) < 0, slope * z, z),
        "tanh": np.tanh,
        "sigmoid": sigmoid,
        "gelu": lambda z: z * (1 + erf(z / math.sqrt(2))) / 2,
        "silu": lambda z: z * sigmoid(z),
        "modrelu": modrelu,
        "normclip": normclip,
    }[name]


def draw_activation(case):
    """A random activation: name, slope and keys."""
    name = case.pick("none", "none", "relu", "leaky", "tanh", "sigmoid", "gelu", "silu", "modrelu",
                     "normclip")
    slope = {"leaky": 0.125, "modrelu": case.pick(-1.3125, 0.3125), "normclip": 1.3125}.get(name, 0)
    keys = {} if name == "none" and case.chance() else {"activation": name}
    if slope:
        keys["slope"] = slope
    return name, slope, keys


def spread(name, slope, z):
    """The factor by which an activation may enlarge an error at z."""
    if name == "modrelu":
        return 1.2 + 2 * abs(slope) / np.maximum(norm(z), 1e-3)
    return 1.2 if name == "none" else 2.0


# ---- Products of matrices ------------------------------------------------------------------------

def draw_products(case, dtype):
    """method=, precision=, and their error relative to sum |a| |b|, apart from k."""
    keys = {}
    method = case.pick(None, None, "auto", "direct", "fast")
    precision = case.pick(None, None, "auto", "f32", "split", "tf32", "half")
    if method:
        keys["method"] = method
    if precision:
        keys["precision"] = precision
    if dtype == "f64":
        return keys, 2.0**-53, 0.0
    half = dtype in ("f16", "bf16")
    loose = precision in ("tf32", "half") if not half else method != "direct" and \
        precision not in ("f32", "split")
    return keys, 2.0**-22, 2.0**-8 if loose else 2.0**-18 if precision != "f32" else 0.0


def matmul(a, b, reversed_=False):
    """Sum over l of a[i, l] b[l, j], or of b[l, j] a[i, l]."""
    a, b = a[..., :, :, None, :], b[..., None, :, :, :]
    return np.sum(mul(b, a) if reversed_ else mul(a, b), -3)


def op(name, x):
    """op n, t, c or h of a quaternion matrix."""
    if name in "th":
        x = np.swapaxes(x, -2, -3)
    return conj(x) if name in "ch" else x


def run_gemm(case):
    dtype, order = case.dtype(), Order(case)
    m, n = case.size(20), case.size(20)
    k = case.pick(case.size(20), case.size(33), 64)
    if case.chance(0.15):
        m, n, k = case.pick(64, 70, 128), case.pick(1, 8, 33, 64), case.pick(32, 64)
    if case.large():
        m, n, k = case.pick(64, 128, 200), case.pick(1, 8, 64, 128), case.pick(64, 128)
    batch = case.shape(case.pick(0, 0, 0, 1, 2), 3)
    batch_a, batch_b = (case.pick(batch, batch, (), tuple(1 if case.chance(0.3) else d
                                                            for d in batch)) for _ in "ab")
    if broadcast_shape(batch_a, batch_b) != batch:
        batch_a = batch
    ops = case.pick(*"nntch"), case.pick(*"nntch")
    a = case.floats((*batch_a, *((k, m) if ops[0] in "th" else (m, k)), 4), dtype)
    b = case.floats((*batch_b, *((n, k) if ops[1] in "th" else (k, n)), 4), dtype)
    keys, u, loose = draw_products(case, dtype)
    keys.update({"op_a": ops[0]} if ops[0] != "n" or case.chance() else {},
                **({"op_b": ops[1]} if ops[1] != "n" or case.chance() else {}))
    turned = case.chance(0.3)
    if turned:
        keys["reversed"] = 1
    if case.chance(0.3):
        keys["pack"] = 1
    out = dtype
    if dtype in ("f16", "bf16") and case.chance(0.3):
        out = keys["out"] = "f32"
    left, right = op(ops[0], order.wxyz(a.values)), op(ops[1], order.wxyz(b.values))
    z = matmul(left, right, turned)
    s = np.sum(norm(left)[..., :, :, None, :] * norm(right)[..., None, :, :, :], -3)
    bound = ((4 * k + 32) * u + loose) * s
    if case.chance(0.3):
        alpha = np.array([1.5, 0, 0, 0]) if case.chance() else np.array([0.5, -1, 0.25, 2])
        keys["alpha"] = "1.5" if alpha[0] == 1.5 else "0.5,-1,0.25,2"
        z, bound = mul(alpha, z), bound * np.sqrt(np.sum(alpha**2)) * 2
    z = np.broadcast_to(z, (*batch, m, n, 4))
    inputs, holding = {"a": a, "b": b}, {}
    if case.chance(0.3):
        beta = case.pick(1.0, -0.5)
        holding["c"] = c = case.floats(z.shape, out)
        keys["beta"] = beta
        z = z + beta * order.wxyz(c.values)
    if case.chance(0.3):
        of = case.pick("rows", "columns")
        if of != "rows" or case.chance():
            keys["bias_of"] = of
        bias = inputs["bias"] = case.floats(((m if of == "rows" else n), 4), case.pick(out, "f32")
                                            if dtype != "f64" else "f64")
        beside = order.wxyz(bias.values)
        z = z + (beside[:, None, :] if of == "rows" else beside[None, :, :])
    name, slope, more = draw_activation(case)
    keys.update(more)
    pre = case.chance(0.3)
    got = case.run("quat_gemm", {**keys, **order.keys}, inputs, ["c", "pre"] if pre else ["c"],
                   holding)
    bound = bound + roundoff(np.abs(z) + norm(z), dtype)
    if pre:
        case.near("pre", got["pre"], out, order.file(z), bound)
    y = np.real(activation(name, slope)(z))
    case.near("c", got["c"], out, order.file(y),
              bound * spread(name, slope, z) + roundoff(y, dtype) + half_ulp(y, "f32") * 4)


CASES = {
    "quat_mul": (run_mul, 32),
    "quat_mul_bwd": (run_mul_bwd, 24),
    "quat_dot": (run_dot, 24),
    "quat_axpy": (run_axpy, 20),
    "quat_conj": (run_conj, 12),
    "quat_norm": (run_norm, 16),
    "quat_norm_bwd": (run_norm_bwd, 16),
    "quat_normalize": (run_normalize, 16),
    "quat_normalize_bwd": (run_normalize_bwd, 16),
    "quat_inverse": (run_inverse, 16),
    "quat_inverse_bwd": (run_inverse_bwd, 16),
    "quat_rotate": (run_rotate, 24),
    "quat_rotate_bwd": (run_rotate_bwd, 20),
    "quat_to_matrix": (run_to_matrix, 12),
    "quat_to_matrix_bwd": (run_to_matrix_bwd, 12),
    "quat_from_matrix": (run_from_matrix, 12),
    "quat_to_axis_angle": (run_axis_angle, 12),
    "quat_from_axis_angle": (run_from_axis_angle, 12),
    "quat_exp": (function("quat_exp", exp_of), 12),
    "quat_log": (function("quat_log", log_of), 12),
    "quat_slerp": (run_slerp, 12),
    "quat_gemm": (run_gemm, 64),
}
