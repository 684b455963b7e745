# linear.py - linear layers with quantized weights
# SPDX-License-Identifier: BSD-2-Clause
"""y = activation(x W'^T + bias). W' is w within the error of its format; x is rounded to 8 bits."""
import math

import numpy as np

from .common import Floats, f32, half_ulp, rounded

GROUPS = {"s8-g128": (128, 127), "s4-g32": (32, 7), "s4-g128": (128, 7), "u4-g128": (128, 7.5),
          "mxfp4": (32, 6), "nvfp4": (16, 6)}
# Rows of lattices and s8-row: the largest error of Gaussian weights, relative to their energy
ROWS = {"s8-row": 2e-4, "e8-4.5-fast": 0.008, "e8-4.5": 0.008, "e8-4.25": 0.01,
        "e8-4.25-best": 0.01, "e8-3.25-fast": 0.04, "e8-3.25": 0.04, "e8-2.25": 0.15,
        "d4-4.5": 0.008}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest_e2m1(t):
    """t rounded to e2m1, ties to even codes, saturating."""
    t = np.asarray(t)
    a = np.minimum(np.abs(t), 6.0)
    middle = (E2M1[1:] + E2M1[:-1]) / 2
    code = np.searchsorted(middle, a, side="left")
    tie = (code < 7) & (a == middle[np.minimum(code, 6)]) & (code % 2 == 1)
    return np.copysign(E2M1[code + tie], t)


def microscaled(w, form):
    """What hz_quantize() and hz_dequantize() make of rows w in mxfp4 or nvfp4."""
    group, _ = GROUPS[form]
    y = np.empty(w.shape)
    p = max(f32(np.abs(w).max() / 2688), 2.0**-126) if w.any() else 1.0
    s = f32(1 / p)
    for begin in range(0, w.shape[1], group):
        t = w[:, begin:begin + group]
        amax = np.abs(t).max(1, keepdims=True)
        if form == "mxfp4":
            mantissa, exponent = np.frexp(f32(amax / 6))
            exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
            scale = np.exp2(np.clip(np.where(amax == 0, -127, exponent), -127, 127))
            y[:, begin:begin + group] = nearest_e2m1(t / scale) * scale
        else:
            scale = nearest_e4m3(f32(amax * f32(s * f32(1 / 6))))
            r = f32(1 / np.where(scale == 0, 1, f32(scale * p)))
            r = np.where(scale == 0, 2.0**128 - 2.0**104, np.minimum(r, 2.0**128 - 2.0**104))
            y[:, begin:begin + group] = f32(f32(nearest_e2m1(f32(t * r)) * scale) * p)
    return y


def nearest_e4m3(x):
    """x >= 0 rounded to e4m3, ties to even, saturating."""
    _, exponent = np.frexp(x)
    step = np.ldexp(1.0, np.maximum(exponent, -5) - 4)
    return np.minimum(np.rint(x / step) * step, 448.0)


ACTIVATIONS = {
    None: lambda v: v,
    "relu": lambda v: np.maximum(v, 0),
    "tanh": np.tanh,
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "gelu": lambda v: v / 2 * (1 + np.vectorize(math.erf, otypes=[float])(v / math.sqrt(2))),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "gelu_tanh": lambda v: v / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
}


def draw_layer(case):
    """Keys, inputs, the weights and the layer's decoded ones."""
    form = case.pick(*GROUPS, *ROWS)
    out, inner = case.size(70, zero=False), case.pick(case.size(300, zero=False), 64, 128, 256)
    if form in GROUPS and form != "s8-g128":
        inner += inner % 2
    dtype = case.pick("f32", "f16", "bf16")
    extreme = case.pick(1e-30, 1e-20, 1e25) if dtype == "f32" else 1
    w = case.floats((out, inner), dtype, scale=case.pick(1, 1, 0.02, 30, extreme))
    if case.chance(0.2):
        w = Floats(np.where(case.rng.random((out, 1)) < 0.3, 0, w.values), dtype)
    keys, inputs = {"format": form}, {"w": w}
    if case.chance(0.4):
        keys["rotate"] = 1
        if case.chance():
            keys["seed"] = int(case.rng.integers(1, 2**62))
    if case.chance(0.4):
        x = case.rng.standard_normal((2 * inner, inner)) * np.exp(case.rng.standard_normal(inner))
        moments = np.matmul(x.T, x) / (2 * inner)
        inputs["moments"] = case.pick(moments, np.diag(moments)).astype(np.float32)
    return form, keys, inputs, w.values


def run_linear_dequantize(case):
    form, keys, inputs, w = draw_layer(case)
    out = case.pick("f32", "f16", "bf16")
    keys["out"] = out
    got = case.run("linear_dequantize", keys, inputs, ["y"])["y"]
    if form in ("mxfp4", "nvfp4") and "rotate" not in keys:
        case.same("y", got, out, rounded(microscaled(w, form), out))
        return
    got = Floats(got if out != "bf16" else values_of(got), "f64").values
    error = got - w
    zero = ~w.any(1)
    case.report("a row of zeros", got.any(1) & zero, np.abs(got).max(1), np.zeros(len(w)), None)
    if form in GROUPS and "rotate" not in keys and inputs.get("moments", w[0]).ndim == 1:
        # No worse than codes of the largest magnitude of each group, by the measure it minimises
        group, most = GROUPS[form]
        weight = inputs.get("moments", np.ones(w.shape[1])).astype(np.float64)
        for begin in range(0, w.shape[1], group):
            at = slice(begin, begin + group)
            low = np.minimum(w[:, at].min(1), 0) if form == "u4-g128" else 0
            high = np.maximum(w[:, at].max(1), 0) if form == "u4-g128" else np.abs(w[:, at]).max(1)
            step = (high - low) / (2 * most if form == "u4-g128" else most)
            bound = (weight[at] * (step[:, None] * 0.51 * (1 + 2.0**-7))**2).sum(1)
            bound += (weight[at] * (w[:, at] * 2.0**-7)**2).sum(1)
            sums = (weight[at] * error[:, at]**2).sum(1)
            case.near("error", sums.astype(np.float32), "f32", np.zeros(len(sums)), bound)
        return
    if w.shape[1] < 64 or "moments" in inputs or not w.any():
        return
    if out == "f16" and not 0.01 < np.abs(w).max() < 1e3:
        return
    most = ROWS.get(form) or {127: 2e-4, 7: 0.03, 7.5: 0.03, 6: 0.03}[GROUPS[form][1]]
    part = np.array([(error**2).sum() / (w**2).sum()], np.float32)
    case.near("error", part, "f32", np.zeros(1), most * 1.5 + (1e-4 if out == "bf16" else 0))


def values_of(raw):
    return (raw.astype(np.uint32) << 16).view(np.float32)


def run_linear_forward(case):
    form, keys, inputs, w = draw_layer(case)
    gated = case.chance(0.3)
    if gated and len(w) % 2:
        gated = False
    layer = {k: keys[k] for k in keys}
    decoded = case.run("linear_dequantize", layer, inputs, ["y"])["y"].astype(np.float64)
    dtype = case.pick("f32", "f16", "bf16")
    lead = case.shape(case.pick(0, 1, 1, 1, 2), 12, zero=False)
    x = case.floats((*lead, w.shape[1]), dtype, scale=case.pick(1, 5))
    if case.chance(0.2):
        x = Floats(np.where(case.rng.random(x.shape) < 0.02, 40.0, 1.0) * x.values, dtype)
    bias = np.zeros(len(w))
    if case.chance():
        inputs["bias"] = case.rng.standard_normal(len(w)).astype(np.float32)
        bias = inputs["bias"].astype(np.float64)
    keys["activation"] = activation = case.pick(*ACTIVATIONS)
    keys["out"] = out = case.pick("f32", "f16", "bf16")
    if gated:
        keys["gated"] = 1
    inner = w.shape[1]
    given = x
    special = not gated and activation in (None, "relu") and "rotate" not in keys
    special = special and case.chance(0.4)
    if special:
        # NaN counts as 0 and a row with Inf is NaN; lattices multiply such x in f32
        odd = case.rng.random(x.shape) < 0.02
        given = Floats(np.where(odd, case.pick(np.nan, np.inf, -np.inf), x.values), dtype)
        if form not in ROWS or form == "s8-row":
            x = Floats(np.where(np.isnan(given.values), 0, given.values), dtype)
    # The error of x: half a step for each value; after a rotation their norm is what is known
    if "rotate" in keys:
        norm = np.sqrt((x.values**2).sum(-1, keepdims=True))
        e = np.broadcast_to(norm / 127 * np.sqrt(min(inner, 32) / inner if form != "s8-row" else 1),
                            x.shape)
        bound = (np.sqrt((e**2).sum(-1, keepdims=True)) *
                 np.sqrt((decoded**2).sum(-1)) * min(1.0, 8 / math.sqrt(min(inner, 32))))
    else:
        step = 32 if form != "s8-row" else inner
        e = np.empty(x.shape)
        for begin in range(0, inner, step):
            v = x.values[..., begin:begin + step]
            if form == "s8-row":
                size = (np.maximum(v.max(-1), 0) - np.minimum(v.min(-1), 0)) / 255
            else:
                size = np.abs(v).max(-1) / 127
            e[..., begin:begin + step] = size[..., None] * 0.501
        bound = np.matmul(e, np.abs(decoded).T)
    v = np.matmul(x.values, decoded.T) + bias
    if special and form in ROWS and form != "s8-row":
        v = np.matmul(given.values, decoded.T) + bias
    elif special:
        v = np.where(np.isinf(given.values).any(-1, keepdims=True), np.nan, v)
    bound = bound + (inner + 8) * 2.0**-22 * (np.matmul(np.abs(x.values), np.abs(decoded).T) +
                                             np.abs(bias))
    act = ACTIVATIONS[activation]
    if gated:
        half = len(w) // 2
        g, u = v[..., :half], v[..., half:]
        y = act(g) * u
        slack = 1.2 * bound[..., :half] * (np.abs(u) + bound[..., half:])
        slack = slack + np.abs(act(g)) * bound[..., half:]
    else:
        y, slack = act(v), 1.2 * bound
    slack = slack + 4 * half_ulp(y, "f32") + 2.0**-20 * np.abs(v[..., :y.shape[-1]])
    got = case.run("linear_forward", keys, {**inputs, "x": given}, ["y"])["y"]
    case.near("y", got, out, y, np.where(np.isfinite(y), slack, 0))


def run_linear_bwd(case):
    _, keys, inputs, w = draw_layer(case)
    decoded = case.run("linear_dequantize", keys, inputs, ["y"])["y"].astype(np.float64)
    dtype = case.pick("f32", "f16", "bf16")
    lead = case.shape(case.pick(0, 1, 2), 12, zero=False)
    dy = case.floats((*lead, len(w)), dtype)
    keys["out"] = out = case.pick("f32", "f16", "bf16")
    got = case.run("linear_bwd", keys, {**inputs, "dy": dy}, ["dx"])["dx"]
    size = np.matmul(np.abs(dy.values), np.abs(decoded))
    if "rotate" in keys:
        size = np.broadcast_to(np.sqrt((size**2).sum(-1, keepdims=True)), size.shape)
    case.near("dx", got, out, np.matmul(dy.values, decoded), (len(w) + 32) * 2.0**-22 * size)


CASES = {
    "linear_dequantize": (run_linear_dequantize, 48),
    "linear_forward": (run_linear_forward, 64),
    "linear_bwd": (run_linear_bwd, 24),
}
