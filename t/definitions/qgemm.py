# qgemm.py - quantization, and products of codes
# SPDX-License-Identifier: BSD-2-Clause
"""A code q has the value scale (q - zero). Products of codes are integers; every bit is defined."""
import math

import numpy as np

from . import hadamard
from .common import Floats, f32, half_ulp, rounded

LIMITS = {"u8": (0, 255), "s8": (-128, 127), "s32": (-2**31, 2**31 - 1)}
CODES = {"u8": np.uint8, "s8": np.int8, "s32": np.int32}
FLT_MIN, FLT_MAX = 2.0**-126, 2.0**128 - 2.0**104

# ---- Quantization --------------------------------------------------------------------------------


def quantize(x, scale, zero, kind):
    """clamp(zero + rne(x / scale)), the quotient in f32; NaN gives zero."""
    low, high = LIMITS[kind]
    t = np.rint(f32(np.asarray(x) / scale))
    q = np.clip(np.where(np.isnan(t), 0, t) + zero, low, high)
    return q.astype(np.int64)


def choose_qparams(low, high, kind, symmetric=0, dtype=np.float64, codes=255):
    """The scale and zero point of a range extended to contain 0; symmetric: 0, 127 or 127.5."""
    qmin = 0 if kind == "u8" else -(codes + 1) // 2
    low, high = dtype(min(float(low), 0.0)), dtype(max(float(high), 0.0))
    if symmetric:
        scale = max(-low, high) / dtype(codes / 2 if symmetric == 127.5 else codes // 2)
    else:
        scale = (high - low) / dtype(codes)
    scale = float(np.float32(scale))
    if scale < FLT_MIN:
        scale = 1.0 if low == high else FLT_MIN
    zero = qmin + (codes + 1) // 2
    if not symmetric:
        zero = int(np.clip(np.rint(dtype(qmin) - low / dtype(scale)), qmin, qmin + codes))
    steps = max(zero - qmin, qmin + codes - zero)
    if scale * steps > FLT_MAX:
        scale = float(np.float32((FLT_MAX - 2.0**104) / steps))
    return scale, zero


def draw_parameters(case, shape, kind):
    """Keys, operands, and the scale and zero point of each element of an array."""
    low, high = LIMITS[kind]
    if case.chance(0.4) or not shape or not all(shape):
        scale, zero = float(np.float32(case.rng.random() + 0.01)), int(case.rng.integers(low, high))
        keys = {"scale": repr(scale), "zero": zero}
        return keys, {}, np.broadcast_to(scale, shape), np.broadcast_to(zero, shape)
    sizes = []
    for i, n in enumerate(shape):
        divisors = [g for g in range(1, n + 1) if n % g == 0] if i == len(shape) - 1 else [1, n]
        sizes.append(case.pick(*divisors))
    drop = 0
    while drop < len(sizes) - 1 and sizes[drop] == 1 and case.chance():
        drop += 1
    if len(sizes) - drop == 1 and len(sizes) > 1 and sizes[-1] not in (1, shape[-1]):
        drop -= 1       # one dimension is never groups
    scale = (case.rng.random(sizes[drop:]) + 0.01).astype(np.float32)
    zero = case.rng.integers(low, high + 1, sizes[drop:]).astype(CODES[kind])
    given = {"scales": scale} if case.chance(0.2) else {"scales": scale, "zeros": zero}
    wide = []
    for p in (scale, zero if "zeros" in given else np.zeros_like(zero)):
        p = p.reshape([1] * drop + list(p.shape)).astype(np.float64)
        p = np.repeat(p, shape[-1] // p.shape[-1], -1)
        wide.append(np.broadcast_to(p, shape))
    return {}, given, wide[0], wide[1]


def run_quantize(case):
    kind = case.pick("u8", "s8")
    t = hadamard.draw(case, rows=False) if case.chance(0.35) else None
    shape = case.shape(case.pick(0, 1, 2, 2, 3), 30)
    if t:
        shape = (*shape[:2], t.n)
    x = case.floats(shape, case.pick("f32", "f16", "bf16"), scale=case.pick(1, 30),
                    integers=case.pick(0, 0, 20))
    if x.raw.size and not t and case.chance(0.3):
        raw = x.values.copy()
        raw.reshape(-1)[case.rng.integers(raw.size, size=3)] = [np.nan, np.inf, -np.inf]
        x = Floats(raw, x.dtype)
    keys, given, scale, zero = draw_parameters(case, shape, kind)
    if kind != "u8" or case.chance():
        keys["format"] = kind
    rotation = {"rotate": 1, **t.keys} if t else {}
    got = case.run("quantize", {**keys, **rotation}, {"x": x, **given, **(t.inputs if t else {})},
                   ["q"])["q"]
    if got.dtype != CODES[kind]:
        case.fail("q is %s, not %s" % (got.dtype, kind))
    if not t:
        case.exact("q", got, quantize(x.values, scale, zero, kind))
        return
    want, bound = t.both(x.values)
    low, high = LIMITS[kind]
    exact = np.clip(want / scale + zero, low, high)
    most = 0.5 + bound / scale + 2.0**-22 * np.abs(want / scale)
    case.alike("q", got, exact)
    case.report("q", ~(np.abs(got - exact) <= most), got, exact, most)


def run_dequantize(case):
    kind = case.pick("u8", "s8")
    t = hadamard.draw(case, rows=False) if case.chance(0.35) else None
    shape = case.shape(case.pick(0, 1, 2, 2, 3), 30)
    if t:
        shape = (*shape[:2], t.n)
    q = case.codes(shape, CODES[kind])
    keys, given, scale, zero = draw_parameters(case, shape, kind)
    out = case.pick(None, "f32", "f16", "bf16")
    rotation = {"rotate": 1, **t.keys} if t else {}
    got = case.run("dequantize", {**keys, **rotation, "out": out},
                   {"q": q, **given, **(t.inputs if t else {})}, ["y"])["y"]
    x = f32(scale * (q - zero))
    if not t:
        case.same("y", got, out or "f32", rounded(x, out or "f32"))
        return
    want, bound = t.both(x, back=True)
    case.near("y", got, out or "f32", want, bound)


def run_choose_qparams(case):
    kind, symmetric = case.pick("u8", "s8"), case.pick(0, 0, 127, 127.5)
    per = case.pick("tensor", "row", "column", "group")
    shape = case.shape(2 if per != "tensor" else case.pick(0, 1, 2, 3), 40, zero=per == "tensor")
    group = 0
    if per == "group":
        group = case.pick(1, 2, 4, 8)
        shape = (shape[0], group * case.size(5, zero=False))
    x = case.floats(shape, case.pick("f32", "f16", "bf16"), scale=case.pick(1, 1e-3, 100))
    shift = case.pick(0, 0, 3, -3)
    x = Floats(x.values + shift * np.std(x.values) if x.raw.size else x.values, x.dtype)
    keys = {"format": kind, "symmetric": symmetric}
    dtype, codes = np.float64, 255
    if case.chance(0.3):
        keys["arith"], dtype = "f32", np.float32
    if case.chance(0.3):
        keys["reduce_range"], codes = 1, 127
    if per == "group":
        keys["group"] = group
        parts = x.values.reshape(shape[0], -1, group)
    elif per == "row":
        parts = x.values[:, None, :]
    elif per == "column":
        parts = x.values.T[None, :, :]
    else:
        parts = x.values.reshape(1, 1, -1)
    if per in ("row", "column") or (per == "tensor" and case.chance()):
        keys["per"] = per
    want = [[choose_qparams(p.min(initial=0), p.max(initial=0), kind, symmetric, dtype, codes)
             for p in row] for row in parts]
    scale, zero = (np.array([[w[i] for w in row] for row in want]) for i in (0, 1))
    if per == "tensor" and case.chance():
        out = case.run("choose_qparams", keys, {"x": x}, [])[""]
        got = dict(w.split("=") for w in out.split())
        case.exact("scale", np.float32(got["scale"]).reshape(1, 1), scale)
        case.exact("zero", np.array([[int(got["zero"])]]), zero)
        return
    got = case.run("choose_qparams", keys, {"x": x}, ["scale", "zero"])
    if got["zero"].dtype != CODES[kind]:
        case.fail("zero is %s, not %s" % (got["zero"].dtype, kind))
    if per == "tensor":
        scale, zero = (np.reshape(p, [1] * len(shape)) for p in (scale, zero))
    case.exact("scale", got["scale"], scale)
    case.exact("zero", got["zero"], zero)


# ---- Products ------------------------------------------------------------------------------------

def multiplier_of(sigma):
    """sigma = u / 2^s with 2^30 <= u < 2^31, to nearest even; u = 0 below 2^-32."""
    if sigma < 2.0**-32:
        return 0, 1
    m, e = math.frexp(sigma)
    u = int(np.rint(m * 2.0**31))
    if u == 2**31:
        u, e = 2**30, e + 1
    return u, 31 - e


def clamp(x, low, high):
    return max(low, min(high, x))


def rescale_exact(acc, u, s):
    """floor((acc u + 2^(s-1)) / 2^s): ties go up."""
    if s < 1:
        return acc * u << -s
    return (acc * u + (1 << (s - 1))) >> s


def rescale_ruy(acc, u, s):
    """Rounded twice, ties up."""
    high = (clamp(acc << max(31 - s, 0), *LIMITS["s32"]) * u + 2**30) >> 31
    e = max(s - 31, 0)
    return (high + (1 << e >> 1)) >> e


def rescale_float(acc, sigma):
    """rne(fl(fl(acc) sigma)) in f32."""
    return int(np.rint(np.float32(acc) * np.float32(sigma)))


def rescale_litert_ref(acc, sigma):
    """acc sigma in f64, ties away from zero."""
    t = float(acc) * float(sigma)
    return int(np.copysign(np.floor(abs(t) + 0.5), t)) if abs(t) < 2**40 else int(t)


def rescale_gemmlowp(acc, u, s):
    """gemmlowp: RoundingDivideByPOT(SaturatingRoundingDoublingHighMul(x, u), e)."""
    x = clamp(acc << max(31 - s, 0), *LIMITS["s32"])
    product = x * u
    nudged = product + (2**30 if product >= 0 else 1 - 2**30)
    high = abs(nudged) >> 31
    high = clamp(high if nudged >= 0 else -high, *LIMITS["s32"])
    e = max(s - 31, 0)
    mask = (1 << e) - 1
    remainder, threshold = high & mask, (mask >> 1) + (high < 0)
    return (high >> e) + (remainder > threshold)


def sums_of(a, b, a_zero, b_zero, bias):
    """The exact accumulators, clamped to s32; a_zero per row, b_zero per column."""
    a = a.astype(np.int64) - a_zero
    b = b.astype(np.int64) - b_zero
    acc = np.matmul(a, b)
    if bias is not None:
        acc = acc + bias.astype(np.int64)
    return np.clip(acc, *LIMITS["s32"])


def float_of(acc, a_scale, b_scale, bias, low, high, out):
    """acc b_scale a_scale + bias, each rounded to f32; then clamped, then rounded."""
    y = f32(f32(f32(acc) * b_scale) * a_scale)
    if bias is not None:
        y = f32(y + bias)
    if low is not None:
        y = np.where(y < low, low, y)
    if high is not None:
        y = np.where(y > high, high, y)
    return rounded(y, out)


def draw_bounds(case, keys, low, high, scale):
    """min= and max=, as numbers or None."""
    bounds = [None, None]
    for i, name in enumerate(("min", "max")):
        if case.chance(0.2):
            middle = 0.0 if low is None else (low + high) / 2
            value = middle + (i - 0.5) * scale * float(case.rng.integers(1, 16)) / 8
            bounds[i] = value if low is None else float(np.rint(value))
            keys[name] = repr(float(bounds[i]))
    return bounds


def draw_matrices(case, batched=True):
    """Shapes [..., m, k] and [..., k, n] whose batch dimensions broadcast."""
    m, n = case.size(33), case.size(40)
    k = case.pick(case.size(70), case.size(70), 128, 256, 300)
    if case.large():
        m, n, k = case.pick(1, 2, 16, 128, 200), case.pick(64, 128, 200), case.pick(256, 512, 4096)
    batch = case.shape(case.pick(0, 0, 0, 1, 2), 3) if batched else ()
    batch_b = case.pick((), batch, tuple(1 if case.chance(0.3) else d for d in batch))
    return m, k, n, batch, batch_b


def run_qgemm(case):
    m, k, n, batch, batch_b = draw_matrices(case)
    kinds = case.pick("u8", "s8"), case.pick("u8", "s8")
    a, b = case.codes((*batch, m, k), CODES[kinds[0]]), case.codes((*batch_b, k, n),
                                                                    CODES[kinds[1]])
    if case.chance(0.1):
        a[...], b[...] = LIMITS[kinds[0]][1], LIMITS[kinds[1]][case.pick(0, 1)]
    out = case.pick(None, "u8", "s8", "s32", "f32", "f16", "bf16")
    floating = out in ("f32", "f16", "bf16")
    keys, inputs = {"out": out}, {}
    # zero points
    a_zero, b_zero = 0, 0
    how = case.pick("none", "number", "rows")
    if how == "number":
        a_zero = keys["a_zero"] = int(case.rng.integers(*LIMITS[kinds[0]]))
    elif how == "rows":
        inputs["a_zeros"] = case.codes((*batch, m), a.dtype)
        a_zero = inputs["a_zeros"].astype(np.int64)[..., None]
    how = case.pick("none", "number", "columns")
    if how == "number":
        b_zero = keys["b_zero"] = int(case.rng.integers(*LIMITS[kinds[1]]))
    elif how == "columns":
        inputs["b_zeros"] = case.codes((n,), b.dtype)
        b_zero = inputs["b_zeros"].astype(np.int64)
    # bias
    bias = float_bias = None
    if floating and case.chance(0.3):
        float_bias = (case.rng.standard_normal(n) * 10).astype(np.float32)
        inputs["bias"], float_bias = float_bias, float_bias.astype(np.float64)
    elif case.chance(0.4):
        most = case.pick(1000, 10**6, 2**31 - 1)
        inputs["bias"] = bias = case.rng.integers(-most, most + 1, n).astype(np.int32)
    acc = sums_of(a, b, a_zero, b_zero, bias)
    if case.chance(0.3):
        keys["pack"] = 1
    files = {"a": a, "b": b}
    if case.chance(0.3):
        files["a"], keys["trans_a"] = np.swapaxes(a, -1, -2), 1
    if case.chance(0.3):
        files["b"], keys["trans_b"] = np.swapaxes(b, -1, -2), 1

    typical = float(np.sqrt(k + 1) * 5000)
    if floating:
        scale = {"a_scale": 1.0, "b_scale": 1.0}
        for name, shape in (("a_scale", (*batch, m)), ("b_scale", (n,))):
            how = case.pick("none", "number", "file")
            if how == "number":
                scale[name] = float(np.float32(case.rng.random() * 0.1 + 1e-3))
                keys[name] = repr(scale[name])
            elif how == "file":
                values = (case.rng.random(shape) * 0.1 + 1e-3).astype(np.float32)
                scale[name] = values.astype(np.float64)
                inputs[name + "s"] = case.pick(values, values[..., None] if name == "a_scale" else
                                               values[None, :])
                if name == "a_scale":
                    scale[name] = scale[name][..., None]
        low, high = draw_bounds(case, keys, None, None, typical * 1e-3)
        low, high = (None if v is None else float(np.float32(v)) for v in (low, high))
        if low is not None and high is not None and low > high:
            del keys["min"]
            low = None
        if case.chance(0.2):
            keys["relu"], low = 1, max(low or 0.0, 0.0)
            if high is not None and high < 0:
                del keys["max"]
                high = None
        got = case.run("qgemm", keys, {**files, **inputs}, ["c"])["c"]
        case.same("c", got, out, float_of(acc, scale["a_scale"], scale["b_scale"], float_bias, low,
                                          high, out))
        return

    kind = out or "u8"
    low, high = LIMITS[kind]
    # sigma
    us, sigmas = [(2**30, 30)] * n, {"float": np.ones(n), "litert_ref": np.ones(n)}
    how = case.pick("none", "scales", "column", "sigma", "multiplier", "multipliers")
    size = 100 / typical if kind != "s32" else case.pick(1e-3, 3.0)
    size *= float(np.exp2(case.rng.integers(-2, 3)))
    if how == "scales" or how == "column":
        a_scale, c_scale = (np.float32(s) for s in case.rng.random(2) + 0.1)
        b_scale = (size * (case.rng.random(n if how == "column" else 1) + 0.5)).astype(np.float32)
        keys.update(a_scale=repr(float(a_scale)), c_scale=repr(float(c_scale)))
        if how == "column":
            inputs["b_scales"] = b_scale
        else:
            keys["b_scale"] = repr(float(b_scale[0]))
        sigma = (a_scale * b_scale).astype(np.float32) / c_scale
        us = [multiplier_of(float(s)) for s in np.broadcast_to(sigma, n)]
        exact = np.float64(a_scale) * b_scale.astype(np.float64) / np.float64(c_scale)
        sigmas = {"float": np.broadcast_to(sigma, n), "litert_ref": np.broadcast_to(exact, n)}
    elif how == "sigma":
        sigma = case.pick(size * (case.rng.random() + 0.5), 2.0 ** int(case.rng.integers(-40, 8)))
        keys["sigma"] = repr(float(sigma))
        us = [multiplier_of(float(sigma))] * n
        sigmas = {word: np.full(n, float(sigma)) for word in sigmas}
    elif how == "multiplier":
        u, s = int(case.rng.integers(1, 2**31)), int(case.rng.integers(1, 63))
        keys.update(multiplier=u, shift=s)
        us = [(u, s)] * n
    elif how == "multipliers":
        u = case.rng.integers(2**30, 2**31, n).astype(np.int32)
        s = case.rng.integers(31, 50, n).astype(np.int32)
        inputs.update(multipliers=u, shifts=s)
        us = [(int(v), int(w)) for v, w in zip(u, s)]
    rescale = rescale_exact
    if case.chance(0.5):
        words = {"ruy": rescale_ruy, "gemmlowp": rescale_gemmlowp}
        if not how.startswith("multiplier"):
            words.update({"float": rescale_float, "litert_ref": rescale_litert_ref})
        keys["requant"] = case.pick(*words)
        rescale = words[keys["requant"]]
        if keys["requant"] in sigmas:
            us = [(s,) for s in sigmas[keys["requant"]]]
    c_zero = 0
    if case.chance():
        c_zero = keys["c_zero"] = int(case.rng.integers(max(low, -1000), min(high, 1000)))
    least, most = draw_bounds(case, keys, max(low, -1000), min(high, 1000), 100)
    least = low if least is None else max(low, int(least))
    most = high if most is None else min(high, int(most))
    if case.chance(0.2):
        keys["relu"], least = 1, max(least, c_zero)
    if least > most:
        case.refused("qgemm", keys, {**files, **inputs}, ["c"])
        return
    raw = how == "none" and kind == "s32" and "requant" not in keys
    want = np.empty(acc.shape, dtype=np.int64)
    columns = [] if raw else us
    for j, words in enumerate(columns):
        for i in np.ndindex(acc.shape[:-1]):
            y = rescale(int(acc[(*i, j)]), *words)
            want[(*i, j)] = clamp(c_zero + y, least, most)
    if raw:
        want = np.clip(acc + c_zero, least, most)
    got = case.run("qgemm", keys, {**files, **inputs}, ["c"])["c"]
    if got.dtype != CODES[kind]:
        case.fail("c is %s, not %s" % (got.dtype, kind))
    case.exact("c", got, want)


def draw_limits(case, keys):
    """Of results of a layer: the least and the largest, or None"""
    low = high = None
    if case.chance(0.2):
        keys["relu"], low = 1, 0.0
    elif case.chance(0.2):
        low, keys["min"] = -0.5, "-0.5"
    if case.chance(0.2):
        high, keys["max"] = 1.5, "1.5"
    return low, high


def run_qlinear(case):
    m, k, n, batch, batch_b = draw_matrices(case)
    dtype = case.pick("f32", "f16", "bf16")
    x = case.floats((*batch, m, k), dtype, scale=case.pick(1, 5))
    weights = case.pick("u8", "s8")
    b = case.codes((*batch_b, k, n), CODES[weights])
    kind = case.pick("u8", "u8", "s8")
    keys, inputs, b_zero, b_scale = {}, {}, 0, 1.0
    if kind != "u8" or case.chance():
        keys["x_dtype"] = kind
    if case.chance(0.4):
        b_zero = keys["b_zero"] = int(case.rng.integers(*LIMITS[weights]))
    elif case.chance(0.4):
        inputs["b_zeros"] = case.codes((n,), b.dtype)
        b_zero = inputs["b_zeros"].astype(np.int64)
    if case.chance(0.4):
        b_scale = float(np.float32(case.rng.random() * 0.1))
        keys["b_scale"] = repr(b_scale)
    elif case.chance(0.5):
        inputs["b_scales"] = (case.rng.random(n) * 0.1).astype(np.float32)
        b_scale = inputs["b_scales"].astype(np.float64)
    q = np.empty(x.shape, dtype=np.int64)
    if case.chance(0.3):
        a_scale = float(np.float32(case.rng.random() * 0.1 + 1e-3))
        a_zero = int(case.rng.integers(*LIMITS[kind]))
        keys.update(a_scale=repr(a_scale), a_zero=a_zero)
        q = quantize(x.values, a_scale, a_zero, kind)
    else:
        symmetric = case.pick(0, 0, 127)
        if symmetric:
            keys["symmetric"] = 1
        a_scale, a_zero = np.empty((*batch, m, 1)), np.empty((*batch, m, 1), dtype=np.int64)
        for i in np.ndindex(*batch, m):
            row = x.values[i]
            a_scale[i], a_zero[i] = choose_qparams(row.min(initial=0), row.max(initial=0), kind,
                                                   symmetric)
            q[i] = quantize(row, a_scale[i], a_zero[i], kind)
    bias = float_bias = None
    if case.chance(0.3):
        inputs["bias"] = (case.rng.standard_normal(n) * 10).astype(np.float32)
        float_bias = inputs["bias"].astype(np.float64)
    elif case.chance(0.3):
        inputs["bias"] = bias = case.rng.integers(-10**6, 10**6, n).astype(np.int32)
    low, high = draw_limits(case, keys)
    if case.chance(0.3):
        keys["pack"] = 1
    file = b
    if case.chance(0.3):
        file, keys["trans_b"] = np.swapaxes(b, -1, -2), 1
    out = case.pick(None, "f32", "f16", "bf16")
    keys["out"] = out
    got = case.run("qlinear", keys, {"x": x, "b": file, **inputs}, ["y"])["y"]
    acc = sums_of(q, b, a_zero, b_zero, bias)
    case.same("y", got, out or dtype,
              float_of(acc, a_scale, b_scale, float_bias, low, high, out or dtype))


# ---- Weights in groups ---------------------------------------------------------------------------

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
PACKED = {"u4": np.arange(16.0), "s4": np.r_[0.0:8, -8.0:0], "e2m1": E2M1}


def draw_weights(case, form, k, n):
    """The file of w [k, n], or of [k / 2, n] bytes of two codes, and its values."""
    if form in ("u8", "s8"):
        raw = case.codes((k, n), CODES[form])
        return raw, raw.astype(np.float64)
    if form == "e4m3":
        raw = case.codes((k, n), np.uint8)
        raw[raw % 128 == 127] = 0       # without NaN
        return raw, hadamard.E4M3[raw]
    nibbles = case.rng.integers(0, 16, (k, n)).astype(np.uint8)
    return nibbles[::2] | nibbles[1::2] << 4, PACKED[form][nibbles]


def draw_scales(case, kind, shape):
    """Keys, the file of scales and their values, some of which are special."""
    special = case.chance(0.3)
    if kind in ("e8m0", "e4m3"):
        raw = case.rng.integers(*((100, 140) if kind == "e8m0" else (8, 100)), shape)
        if special:
            raw = np.where(case.rng.random(shape) < 0.1, case.rng.integers(0, 256, shape), raw)
        raw = raw.astype(np.uint8)
        if kind == "e4m3":
            return {"scale_type": kind}, raw, hadamard.E4M3[raw]
        return {"scale_type": kind}, raw, np.where(raw == 255, np.nan, np.exp2(raw - 127.0))
    x = (case.rng.random(shape) + 0.1) * 0.1
    if special:
        odd = case.rng.choice([0.0, -1.0, 1e-44, 1e-30, 3e38, np.inf, -np.inf, np.nan], shape)
        x = np.where(case.rng.random(shape) < 0.1, odd, x)
    scale = Floats(x, kind)
    return {}, scale, scale.values


def run_qlinear_group(case):
    form = case.pick("u4", "s4", "e2m1", "u8", "s8", "e4m3")
    m, n = case.size(20, zero=False), case.size(40, zero=False)
    group = case.pick(16, 32, 64, 128)
    k = case.pick(group * int(case.rng.integers(1, 5)), case.size(300, zero=False), 1100)
    if case.large():
        m, n, k = case.pick(1, 3, 16, 130), case.pick(64, 128, 200), case.pick(512, 1024, 4096)
    if form in PACKED:
        k += k % 2
    how = "float" if form == "e4m3" else case.pick("float", "row", "32", "codes")
    if how == "codes" and case.chance() and k % 32 == 0:
        how = "codes32"
    keys, inputs = {"format": form, "group": group}, {}
    if k % group == 0 and case.chance():
        del keys["group"]
        if case.chance(0.2):
            group = k
    raw, w = draw_weights(case, form, k, n)
    groups = -(-k // group)
    # One group: the shape [1, n] says a column, as does no group=.
    if groups == 1 and "group" not in keys:
        group = k
    kind = case.pick("f32", "f16", "bf16", "e8m0", "e4m3")
    more, scales, s = draw_scales(case, kind, (groups, n))
    keys.update(more)
    if form in ("u4", "s4", "u8", "s8") and case.chance():
        inputs["zeros"] = case.codes((groups, n), CODES["u8" if form[0] == "u" else "s8"])
        w = w - np.repeat(inputs["zeros"].astype(np.float64), group, 0)[:k]
    if case.chance(0.3):
        inputs["tensor_scale"] = np.float32(case.rng.random(1) + 0.5)
        s = s * inputs["tensor_scale"].astype(np.float64)
    batch = case.shape(case.pick(0, 0, 1, 2), 3, zero=False)
    bias = None
    if case.chance(0.3):
        inputs["bias"] = (case.rng.standard_normal(n) * 10).astype(np.float32)
        bias = inputs["bias"].astype(np.float64)
    low, high = draw_limits(case, keys)
    if case.chance(0.4):
        keys["pack"] = 1
    if case.chance(0.4):
        keys["trans_w"], raw = 1, raw.T
        inputs = {a: b.T if a == "zeros" else b for a, b in inputs.items()}
        if isinstance(scales, Floats):
            scales.raw = scales.raw.T
        else:
            scales = scales.T
    if how[:5] == "codes":
        dtype, x = "f32", case.codes((*batch, m, k), np.int8)
        q, x_scale = x.astype(np.float64), np.ones((*batch, m, 1))
        if how == "codes32" or case.chance(0.7):
            inputs["x_scales"] = case.rng.random(
                (*batch, m, k // 32 if how == "codes32" else 1)).astype(np.float32)
            x_scale = inputs["x_scales"].astype(np.float64)
    else:
        dtype = case.pick("f32", "f16", "bf16")
        x = case.floats((*batch, m, k), dtype, scale=case.pick(1, 5))
        if how != "float":
            keys["x_dtype"] = "s8"
            if case.chance(0.2):
                x = Floats(np.where(case.rng.random(x.shape) < 0.01, case.pick(np.nan, np.inf),
                                    x.values), dtype)
            if how == "32" or case.chance():
                keys["x_group"] = how
            step = 32 if how == "32" else k
            parts = -(-k // step)
            q, x_scale = np.empty(x.shape), np.empty((*batch, m, parts))
            for i in np.ndindex(*batch, m, parts):
                at = (*i[:-1], slice(i[-1] * step, (i[-1] + 1) * step))
                v = x.values[at]
                x_scale[i] = np.inf if np.isinf(v).any() else choose_qparams(
                    np.nanmin(v, initial=0), np.nanmax(v, initial=0), "s8", 127)[0]
                q[at] = 0 if np.isinf(v).any() else quantize(v, x_scale[i], 0, "s8")
    out = keys["out"] = case.pick(None, "f32", "f16", "bf16")
    inputs.update(x=x, w=raw, scales=scales)
    got = case.run("qlinear_group", keys, inputs, ["y"])["y"]
    if how == "float":
        terms = np.repeat(s, group, 0)[:k] * w
        y = np.matmul(x.values, terms)
        bound = (k + 8) * 2.0**-22 * np.matmul(np.abs(x.values), np.abs(terms))
        sums = np.matmul(np.abs(x.values), np.abs(w)).max(initial=0)
        where = np.isfinite(bound) & (bound * 2.0**22 < 1e38) & (sums < 1e38)
        if bias is not None:
            y = y + bias
            bound = bound + half_ulp(y, "f32")
        for limit, choose in ((low, np.fmax), (high, np.fmin)):
            y = y if limit is None else np.where(np.isnan(y), y, choose(y, limit))
        case.near("y", got, out or dtype, y, bound, where)
        return
    s = f32(s)
    unit = min(group, 128) if x_scale.shape[-1] == 1 else min(group, 32)
    step = k if x_scale.shape[-1] == 1 else 32
    y = 0
    for chunk in range(0, k, 512):
        c = 0
        for l in range(chunk, min(chunk + 512, k)):
            begin = l // group * group
            if (l - begin) % unit and l % 512:
                continue
            end = min(l + unit, begin + group, chunk + 512, k)
            exact = np.matmul(q[..., l:end], w[l:end])
            c = f32(c + f32(exact * f32(x_scale[..., l // step, None] * s[l // group])))
        y = f32(y + c)
    if bias is not None:
        y = f32(y + bias)
    for limit, choose in ((low, np.fmax), (high, np.fmin)):
        y = y if limit is None else np.where(np.isnan(y), y, choose(y, limit))
    case.same("y", got, out or dtype, rounded(y, out or dtype))


CASES = {
    "choose_qparams": (run_choose_qparams, 32),
    "quantize": (run_quantize, 40),
    "dequantize": (run_dequantize, 32),
    "qgemm": (run_qgemm, 64),
    "qlinear": (run_qlinear, 40),
    "qlinear_group": (run_qlinear_group, 64),
}
