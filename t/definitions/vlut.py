# vlut.py - products with lattice codes
# SPDX-License-Identifier: BSD-2-Clause
"""y = x W^T, where W has the decoded values."""
import numpy as np

from .lattice import Scales, draw_code, draw_digits, draw_dither, values_of

# Errors relative to the norms of the terms: f32, fixed-point tables and f16 products; bf16; u8
LOOSE = {None: 2.0**-9, "f32": 2.0**-9, "u16": 2.0**-9, "f16": 2.0**-8, "bf16": 2.0**-6,
         "u8": 2.0**-4}


class Coded:
    """A coded matrix with its keys, operands and values [rows, k]."""

    def __init__(self, case, code, keys, rows, blocks, dither, names=("w", "t", "row_scale"),
                 partly=False):
        self.code, d = code, code.lattice.d
        policies = ["none", "none", "t", "bank", "group"]
        if "offset" in keys and not code.encode(code.offset[None])[1][0]:
            policies = ["none"]
        self.scales = Scales(case, code, policies)
        self.keys = {**keys, **self.scales.keys}
        self.digits = draw_digits(case, code, (rows, blocks))
        codes, t = code.pack(self.digits, "level"), None
        coarsest = 0
        if partly and code.levels > 1 and case.chance(0.25):
            coarsest = self.keys["use_levels"] = int(case.rng.integers(1, code.levels))
            if case.chance():
                codes = codes[..., code.levels - coarsest:]
        self.inputs = {names[0]: codes}
        if self.scales.has_t:
            few = min(len(self.scales.scales), 6)
            t = case.rng.integers(0, few, (rows, self.scales.shape(blocks, d)))
            self.inputs[names[1]] = t.astype(np.uint8)
        factors = np.ones(rows)
        if case.chance(0.3):
            self.inputs[names[2]] = (case.rng.random(rows) + 0.5).astype(np.float32)
            factors = self.inputs[names[2]].astype(np.float64)
        scale = np.broadcast_to(self.scales.of_blocks(t, blocks, d), (rows, blocks))
        self.values = values_of(code, self.digits, scale, dither, coarsest)
        self.values = self.values.reshape(rows, blocks * d)
        self.values *= factors[:, None]
        self.points = code.decode(self.digits, coarsest) - code.offset
        self.points = self.points.reshape(rows, blocks * len(code.offset))


def draw(case):
    code, keys = draw_code(case, full=True)
    while code.q**code.levels > 256:
        code, keys = draw_code(case, full=True)
    rows, blocks = case.size(30), case.size(20, zero=False)
    if case.chance(0.2):
        rows, blocks = case.pick(64, 100, 128), case.pick(16, 32, 64)
    if case.large():
        rows, blocks = case.pick(256, 512), case.pick(64, 256)
    dither = draw_dither(case, code, keys)
    return code, keys, rows, blocks, dither


def run_dense(primitive):
    def run(case):
        code, keys, rows, blocks, dither = draw(case)
        w = Coded(case, code, keys, rows, blocks, dither, partly=True)
        d, keys = code.lattice.d, w.keys
        k = blocks * d
        if d > 1 and case.chance(0.2):
            k = (blocks - 1) * d + int(case.rng.integers(1, d + 1))
        columns = 1 if primitive == "vlut_gemv" else case.pick(1, 2, 3, 4, 8, 9, 17, 33)
        whole = case.chance(0.2) and code.lattice.kind != "A2"
        leading = (columns,)
        if primitive == "vlut_gemv":
            leading = ()
        elif case.chance(0.3):
            leading = (columns // 3, 3) if columns % 3 == 0 else (columns, 1)
        if whole:
            x = case.codes((*leading, k), np.int8)
            values, keys["out"] = x.astype(np.int64), "s32"
        else:
            x = case.floats((*leading, k), case.pick("f32", "f16", "bf16"))
            values = x.values
        values = values.reshape(columns, k).T
        route, table, sums = case.pick(None, None, "table", "decode"), None, None
        if case.chance(0.3):
            keys["pack_w"] = 1
        if not whole:
            if route:
                keys["route"] = route
            if route == "table" and case.chance(0.5):
                small = ("u16", "u8") if code.q**d <= 256 else ()
                table = keys["table_dtype"] = case.pick("f32", "f16", "bf16", *small)
            if case.chance(0.2) and table not in ("u16", "u8"):
                sums = keys["sum"] = "f32"
        if k != blocks * d or case.chance(0.2):
            keys["k"] = k
        out = "s32" if whole else case.pick(None, None, "f32", "f16", "bf16")
        keys["out"] = out
        inputs, bias = {**w.inputs, "x": x}, np.zeros(rows, np.float32)
        if not whole and case.chance(0.3):
            inputs["bias"] = bias = case.rng.standard_normal(rows).astype(np.float32)
        if not whole and case.chance(0.3):
            keys["activation"] = case.pick("none", "relu")
        got = case.run(primitive, keys, inputs, ["y"])["y"]
        shape = (*leading, rows)
        if whole:
            want = w.points[:, :k] @ values
            case.exact("y", got, want.T.reshape(shape))
            return
        want = w.values[:, :k] @ values + bias[:, None].astype(np.float64)
        if keys.get("activation") == "relu":
            want = np.maximum(want, 0)
        size = np.sqrt(np.sum(w.values[:, :k] ** 2, 1))[:, None] * \
            np.sqrt(np.sum(values**2, 0))[None, :]
        offset = np.abs(code.offset).max(initial=0) + code.q**code.levels
        # terms: p, o and z are summed separately
        size = size + 2.0**-3 * offset * np.max(w.scales.scales[:6]) * \
            np.sum(np.abs(values), 0)[None, :] * 2.0**-3
        size = size + np.abs(bias)[:, None]
        loose = LOOSE[table] if sums is None else max(LOOSE[table], 2.0**-9)
        case.near("y", got, out or "f32", want.T.reshape(shape), loose * size.T.reshape(shape))

    return run


def run_gemm2(case):
    code, keys, rows, blocks, dither = draw(case)
    w = Coded(case, code, keys, rows, blocks, dither)
    other, more = code, {}
    count = case.pick(1, 2, 7, 20)
    x = Coded(case, other, {}, count, blocks, dither, ("x", "x_t", "x_row_scale"))
    # the policy of x has keys of its own
    for key in ("beta", "alpha", "policy", "group", "bank"):
        if key in x.scales.keys or key in w.scales.keys:
            default = {"policy": "none"}.get(key)
            value = x.scales.keys.get(key, default)
            if value is not None:
                more["x_" + key] = value
    if "x_policy" not in more:
        more["x_policy"] = x.scales.policy
    if x.scales.policy in ("t", "group") and "alpha" not in x.scales.keys:
        more["x_alpha"] = repr(1 / 8 if x.scales.policy == "group" else 1 / 3)
    keys = {**w.keys, **more}
    keys.pop("first_fit", None)
    whole = case.chance(0.3)
    out = "s32" if whole else case.pick(None, "f32", "f16", "bf16")
    keys["out"] = out
    route = case.pick(None, None, "table", "decode")
    if route == "table" and code.q ** (2 * code.lattice.d) > 2**16:
        route = None
    if route:
        keys["route"] = route
    got = case.run("vlut_gemm2", keys, {**w.inputs, **x.inputs}, ["y"])["y"]
    if whole:
        case.exact("y", got, x.points @ w.points.T)
        return
    want = x.values @ w.values.T
    size = np.sqrt(np.sum(x.values**2, 1))[:, None] * np.sqrt(np.sum(w.values**2, 1))[None, :]
    case.near("y", got, out or "f32", want, 2.0**-9 * size)


PRESETS = ("e8-4.5-fast", "e8-4.5", "e8-4.25", "e8-4.25-best", "e8-3.25-fast", "e8-3.25", "e8-2.25",
           "d4-4.5")


def run_append(case):
    """Rows appended to a packed matrix, any number at a time, are those packed of their codes."""
    keys = {"preset": case.pick(*PRESETS)}
    rows = case.size(70, zero=False)
    k = case.pick(8 * case.size(40, zero=False), case.size(300, zero=False))
    if case.chance(0.3):
        keys["wide"] = 1
    dtype = case.pick("f32", "f16", "bf16")
    x = case.floats((rows, k), dtype, scale=case.pick(1, 1, 0.01, 30))
    x.raw[case.rng.random(rows) < 0.05] = 0
    encoded = case.run("lattice_encode", keys, {"x": x}, ["codes", "t", "row_scale"])
    outputs = ["y", "row_scale"]
    v = case.floats(case.pick((k,), (case.size(9, zero=False), k)), case.pick("f32", "f16", "bf16"))
    keys["out"] = case.pick(None, "f32", "f16", "bf16")
    for name, choices in (("x_format", (None, "s8")), ("activation", (None, None, "relu", "gelu"))):
        if (choice := case.pick(*choices)) is not None:
            keys[name] = choice
    step = case.pick(None, int(case.rng.integers(1, rows + 1)), rows)
    got = case.run("vlut_append", {**keys, "step": step}, {"x": x, "v": v}, outputs)
    want = case.run("vlut_gemm", {**keys, "pack_w": 1, "k": k}, {
        "w": encoded["codes"], "t": encoded["t"], "row_scale": encoded["row_scale"], "x": v}, ["y"])
    case.exact("row_scale", got["row_scale"], encoded["row_scale"])
    case.exact("y", got["y"], want["y"])
    mean = np.sqrt(np.mean(x.values**2, 1)) * x.raw.any(1)
    mean = np.where(mean == 0, encoded["row_scale"], mean)
    case.near("row_scale", got["row_scale"], "f32", mean, 2.0**-21 * mean)


CASES = {
    "vlut_gemv": (run_dense("vlut_gemv"), 48),
    "vlut_gemm": (run_dense("vlut_gemm"), 48),
    "vlut_gemm2": (run_gemm2, 40),
    "vlut_append": (run_append, 40),
}
