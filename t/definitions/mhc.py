# mhc.py - manifold-constrained hyper-connections
# SPDX-License-Identifier: BSD-2-Clause
"""u = sum_i p_i X[i], X'[i] = sum_j A_ij X[j] + q_i F(u), and how p, q and A are computed. Streams
are [T, n, C] here, coefficients [S, ...], where S divides T. Gradients are those of these functions
by complex steps."""
import itertools

import numpy as np

from .common import Floats, rounded, unit, values

# ---- Sinkhorn and Knopp --------------------------------------------------------------------------

PRESETS = {
    "deepseek_v4": dict(map="softmax", order="rows", eps=1e-6, old_new=1, p_eps=1e-6, rms_eps=1e-6,
                        norm_eps=1e-6),
    "paper": dict(map="exp", order="cols"),
    "triton": dict(map="abs", order="rows", eps=1e-6, p_eps=1e-6, rms_eps=1e-6, normalize=1),
    "triton_static": dict(map="abs", order="rows", eps=1e-8, p_eps=1e-6, rms_eps=1e-6, normalize=1,
                          q_scale=1.0),
    "hc": dict(map="exp", order="cols", residual="tanh", rms_eps=1e-6),
    "lite": dict(map="exp", order="cols", residual="lite", rms_eps=1e-6),
    "deepseek_v41": dict(map="softmax", order="rows", eps=1e-6, old_new=1, p_eps=1e-6,
                         rms_eps=1e-20, norm_eps=1e-6),
    "glm5_next": dict(map="softmax", order="rows", eps=1e-6, old_new=1, p_eps=1e-6, rms_eps=1e-5,
                      norm_eps=1e-5),
    "xing4": dict(order="rows", eps=1e-6, rms_eps=1e-6, z_min=-30.0, z_max=30.0),
    "hy_v4": dict(residual="identity", p_eps=1e-6, q_eps=1e-6, rms_eps=1e-5, norm_eps=1e-5),
    "megatron": dict(order="rows", eps=1e-6, eps_rule="floor", rms_eps=1e-6, rms_eps_rule="root"),
    "tilekernels": dict(map="softmax", order="rows", eps=1e-6, old_new=1, p_eps=1e-6, rms_eps=1e-6,
                        norm_eps=1e-6, iterations=10, q_scale=1.0),
    "liger": dict(map="softmax", order="rows", eps=1e-6, rms_eps=1e-6, norm_eps=1e-6),
}
MEAN_HEADS = "glm5_next", "xing4", "megatron"


class Conventions:
    """The conventions that a call's keys select."""

    def __init__(self, preset="deepseek_v4"):
        self.residual, self.map, self.order = "sinkhorn", "exp", "cols"
        self.eps = self.p_eps = self.rms_eps = self.norm_eps = 0.0
        self.iterations, self.q_scale, self.old_new, self.normalize = 20, 2.0, 0, 0
        self.q_eps, self.z_min, self.z_max = 0.0, -np.inf, np.inf
        self.eps_rule, self.rms, self.rms_eps_rule = "add", "all", "inside"
        self.__dict__.update(PRESETS[preset])


def draw_conventions(case, presets=tuple(PRESETS), sinkhorn_only=False):
    keys = {}
    preset = case.pick(None, *presets)
    c = Conventions(preset or "deepseek_v4")
    if preset:
        keys["preset"] = preset
    if case.chance(0.4):
        c.map = keys["map"] = case.pick("exp", "softmax", "abs")
    if case.chance(0.3):
        c.order = keys["order"] = case.pick("rows", "cols")
    if case.chance(0.4):
        c.iterations = keys["iterations"] = case.pick(1, 2, 3, 7, 40)
    if case.chance(0.3):
        c.eps = keys["eps"] = case.pick(1e-6, 1e-3, 0.0)
    if case.chance(0.2):
        c.eps_rule = keys["eps_rule"] = case.pick("add", "floor")
    if case.chance(0.15):
        c.z_min = keys["z_min"] = case.pick(-0.75, -2.0)
    if case.chance(0.15):
        c.z_max = keys["z_max"] = case.pick(0.75, 2.0)
    if sinkhorn_only:
        return c, keys
    for name, choices in (("residual", ("sinkhorn", "lite", "identity", "tanh")),
                          ("p_eps", (1e-6, 0.125)), ("q_eps", (1e-6, 0.25)),
                          ("rms", ("all", "none")), ("rms_eps_rule", ("inside", "root")),
                          ("q_scale", (1.0, 0.5, 0.0)), ("old_new", (0, 1)),
                          ("rms_eps", (1e-5, 0.25)), ("norm_eps", (1e-5, 0.25)),
                          ("normalize", (0, 1))):
        if case.chance(0.15):
            keys[name] = case.pick(*choices)
            setattr(c, name, keys[name])
    return c, keys


def sinkhorn(m, c):
    """Divides columns and rows by their sums alternately; row sums are over the last axis."""
    first = -2 if c.order == "cols" else -1
    other = -3 - first
    m = np.where(np.real(m) < c.z_min, c.z_min, np.where(np.real(m) > c.z_max, c.z_max, m))
    largest = np.take_along_axis(m, np.argmax(np.real(m), first, keepdims=True), first)
    if c.map == "abs":
        y = np.where(np.real(m) < 0, -m, m) + c.eps
    else:
        y = np.exp(m - largest)
    steps = [first, other] * c.iterations
    if c.map == "softmax":
        y = y / np.sum(y, first, keepdims=True) + c.eps
        steps = steps[1:]
    for axis in steps:
        sums = np.sum(y, axis, keepdims=True)
        if c.eps_rule == "floor":
            y = y / np.where(np.real(sums) < c.eps, c.eps, sums)
        else:
            y = y / (sums + c.eps)
    return y


def draw_matrices(case):
    n = case.pick(1, 2, 3, 4, 4, 4, 5, 6, 7, 8)
    shape = (*case.shape(case.pick(0, 1, 1, 2), 9), n, n)
    if case.chance(0.1):
        shape = (300, n, n)
    return Floats(case.rng.standard_normal(shape) * case.pick(0.1, 1, 3), "f32")


def run_sinkhorn(case):
    m = draw_matrices(case)
    c, keys = draw_conventions(case, [p for p in PRESETS if p != "lite"], sinkhorn_only=True)
    p = case.run("mhc_sinkhorn", keys, {"m": m}, ["p"])["p"]
    want = sinkhorn(m.values, c)
    case.near("p", p, "f32", want, 1e-5 * np.abs(want))


def run_sinkhorn_bwd(case):
    m = draw_matrices(case)
    c, keys = draw_conventions(case, [p for p in PRESETS if p != "lite"], sinkhorn_only=True)
    dp = case.floats(m.shape, "f32")
    got = case.run("mhc_sinkhorn_bwd", keys, {"m": m, "dp": dp}, ["dm"])["dm"]
    steep = 1.0 if c.map != "abs" else 1 / max(np.min(np.abs(m.values), initial=1), 1e-6)
    case.gradients("dm", got, "f32", lambda x: np.sum(dp.values * sinkhorn(x, c)), m.values, 3e-4,
                   floor=2.0**-18 * max(steep, 1.0))


# ---- Streams -------------------------------------------------------------------------------------

def of_tokens(c, tokens):
    """Coefficients per token: those of token t are at t / (T / S)."""
    return np.repeat(c, tokens // len(c), 0) if len(c) else c


def mix_u(p, x):
    return np.sum(of_tokens(p, len(x))[..., None] * x, 1)


def mix_r(a, x):
    return np.einsum("tij,tjc->tic", of_tokens(a, len(x)), x)


def add(r, q, f):
    return r + of_tokens(q, len(r))[..., None] * f[:, None, :]


def post(x, f, q, a=None, branch_bias=None):
    return add(x if a is None else mix_r(a, x), q, f if branch_bias is None else f + branch_bias)


class Streams:
    """Shapes of streams and of groups of tokens that share coefficients, and operands of both."""

    def __init__(self, case, shared=True, most=40, least=1):
        self.case = case
        self.dtype = case.pick("f32", "f16", "bf16")
        self.n = case.pick(1, 2, 3, 4, 4, 4, 4, 5, 8)
        self.c = case.size(most, zero=False)
        if case.chance(0.25):
            self.c = case.pick(64, 128, 256)
        self.batch = case.shape(case.pick(0, 1, 1, 2), 7, zero=False)
        if case.chance(0.15):
            self.batch = (case.pick(64, 113, 200),)
            self.n, self.c = case.pick(4, 4, 3), case.pick(8, 16, 33)
        if case.large():
            self.batch, self.n, self.c = (case.pick(16, 130, 256),), 4, case.pick(64, 128, 256)
        self.tokens = int(np.prod(self.batch))
        self.sets = self.batch
        if shared and case.chance(0.3):
            # sets have the first dimensions of tokens, one dimension, or none
            self.sets = case.pick((1,), (), self.batch[:1], self.batch[:1])
        self.s = int(np.prod(self.sets))

    def streams(self, x=None):
        shape = (*self.batch, self.n, self.c)
        return self.case.floats(shape, self.dtype) if x is None else Floats(x, self.dtype)

    def branch(self):
        return self.case.floats((*self.batch, self.c), self.dtype)

    def coefficients(self, kind):
        tail = (self.n, self.n) if kind == "a" else (self.n,)
        return self.case.floats((*self.sets, *tail), "f32")

    def flat(self, name, v):
        """An operand's values with the dimensions of tokens, or of sets, merged."""
        if name in ("x", "r", "dr", "y", "dy"):
            return v.reshape(self.tokens, self.n, self.c)
        if name in ("f", "u", "du", "h"):
            return v.reshape(self.tokens, self.c)
        if name in ("a", "da"):
            return v.reshape(self.s, self.n, self.n)
        if name in ("p", "q", "dp", "dq"):
            return v.reshape(self.s, self.n)
        return v

    def sized(self, *terms):
        """An error bound of f32 sums, given the sums of magnitudes."""
        return 32 * 2.0**-24 * sum(np.abs(t) for t in terms)


def gradients_of(case, primitive, streams, function, operands, more, wanted, keys=None, loose=0,
                 accumulate=(), floor=0.0):
    """Compares gradients of a loss, a function of flat operands, with complex steps."""
    keys, holding = dict(keys or {}), {}
    wanted = [k for k in wanted if case.chance(0.8)] or list(wanted)[:1]
    if accumulate and case.chance(0.3):
        keys["accumulate"] = 1
        for k in wanted:
            if k in accumulate and case.chance(0.7):
                holding["d" + k] = case.floats(operands[k].shape, operands[k].dtype)
    inputs = {**operands, **more}
    got = case.run(primitive, keys, inputs, ["d" + k for k in wanted], holding)
    flat = {k: streams.flat(k, v.values) for k, v in operands.items() if v is not None}
    for k in wanted:
        out = "d" + k

        def loss(v, k=k):
            return function({**flat, k: streams.flat(k, v)})

        relative = loose + 2.0**-18 * (1 + (streams.tokens * streams.c) ** 0.5 / 16)
        case.gradients(out, got[out], operands[k].dtype, loss, operands[k].values, relative,
                       holding.get(out), most=24, floor=floor)


def run_mix(case):
    s = Streams(case)
    x, p, a = s.streams(), s.coefficients("p"), s.coefficients("a")
    outputs = case.pick(["u", "r"], ["u"], ["r"])
    inputs = {"x": x, "p": p if "u" in outputs else None, "a": a if "r" in outputs else None}
    got = case.run("mhc_mix", {}, inputs, outputs)
    v = s.flat("x", x.values)
    w, m = s.flat("p", p.values), s.flat("a", a.values)
    if "u" in outputs:
        case.near("u", got["u"], s.dtype, mix_u(w, v).reshape(*s.batch, s.c),
                  s.sized(mix_u(np.abs(w), np.abs(v))).reshape(*s.batch, s.c))
    if "r" in outputs:
        case.near("r", got["r"], s.dtype, mix_r(m, v).reshape(x.shape),
                  s.sized(mix_r(np.abs(m), np.abs(v))).reshape(x.shape))


def run_mix_bwd(case):
    s = Streams(case)
    operands = {"x": s.streams(), "p": s.coefficients("p"), "a": s.coefficients("a")}
    du, dr = s.branch(), s.streams()

    def loss(o):
        return np.sum(s.flat("du", du.values) * mix_u(o["p"], o["x"])) + \
            np.sum(s.flat("dr", dr.values) * mix_r(o["a"], o["x"]))

    gradients_of(case, "mhc_mix_bwd", s, loss, operands, {"du": du, "dr": dr}, "xpa")


def run_add(case):
    s = Streams(case)
    r, f, q = s.streams(), s.branch(), s.coefficients("q")
    got = case.run("mhc_add", {}, {"r": r, "f": f, "q": q}, ["y"])["y"]
    v, w, g = s.flat("r", r.values), s.flat("f", f.values), s.flat("q", q.values)
    case.near("y", got, s.dtype, add(v, g, w).reshape(r.shape),
              s.sized(add(np.abs(v), np.abs(g), np.abs(w))).reshape(r.shape))


def run_add_bwd(case):
    s = Streams(case)
    operands = {"r": s.streams(), "f": s.branch(), "q": s.coefficients("q")}
    dy = s.streams()

    def loss(o):
        return np.sum(s.flat("dy", dy.values) * add(o["r"], o["q"], o["f"]))

    # the gradients do not take r
    wanted = [k for k in "rfq" if case.chance(0.8)] or ["f"]
    got = case.run("mhc_add_bwd", {}, {"dy": dy, "f": operands["f"], "q": operands["q"]},
                   ["d" + k for k in wanted])
    values = {k: s.flat(k, v.values) for k, v in operands.items()}
    for k in wanted:
        case.gradients("d" + k, got["d" + k], operands[k].dtype,
                       lambda v, k=k: loss({**values, k: s.flat(k, v)}), operands[k].values,
                       2.0**-18 * (1 + (s.tokens * s.c) ** 0.5 / 16), most=24)


def run_post(case):
    s = Streams(case)
    inputs = {"x": s.streams(), "f": s.branch(), "q": s.coefficients("q")}
    if case.chance(0.7):
        inputs["a"] = s.coefficients("a")
    if case.chance(0.4):
        inputs["branch_bias"] = case.floats((s.c,), "f32")
    got = case.run("mhc_post", {}, inputs, ["y"])["y"]
    v = {k: s.flat(k, o.values) for k, o in inputs.items()}
    case.near("y", got, s.dtype, post(**v).reshape(got.shape),
              s.sized(post(**{k: np.abs(o) for k, o in v.items()})).reshape(got.shape))


def run_post_bwd(case):
    s = Streams(case)
    operands = {"x": s.streams(), "f": s.branch(), "q": s.coefficients("q"),
                "a": s.coefficients("a")}
    if case.chance(0.5):
        operands["branch_bias"] = case.floats((s.c,), "f32")
    dy = s.streams()

    def loss(o):
        return np.sum(s.flat("dy", dy.values) * post(**o))

    gradients_of(case, "mhc_post_bwd", s, loss, operands, {"dy": dy}, list(operands))


def run_expand(case):
    s = Streams(case)
    e = s.branch()
    keys = {} if s.n == 4 and case.chance() else {"n": s.n}
    got = case.run("mhc_expand", keys, {"e": e}, ["x"])["x"]
    case.same("x", got, s.dtype, np.repeat(e.values[..., None, :], s.n, -2))


def run_expand_bwd(case):
    s = Streams(case)
    dx = s.streams()
    got = case.run("mhc_expand_bwd", {}, {"dx": dx}, ["de"])["de"]
    case.near("de", got, s.dtype, dx.values.sum(-2), s.sized(np.abs(dx.values).sum(-2)))


# ---- Coefficients --------------------------------------------------------------------------------

def sigma(z):
    return 1 / (1 + np.exp(-z))


def projected(x, phi, gain, c):
    """y_k = sum_j phi_kj g_j x_j / sqrt(mean of x_j^2 + eps) for x [S, n C]."""
    mean, sums = np.mean(x * x, -1, keepdims=True), (x * gain) @ phi.T
    if c.rms == "none":
        return sums
    if c.rms_eps_rule == "root":
        return sums / (np.sqrt(mean) + c.rms_eps)
    return sums / np.sqrt(mean + c.rms_eps)


def residual_of(z, n, c):
    """a[S, new, old] from the z after those of p and q, which are [old, new] if old_new=1."""
    if c.residual == "identity":
        return np.broadcast_to(np.eye(n), (len(z), n, n))
    if c.residual == "lite":
        e = np.exp(z - np.max(np.real(z), -1, keepdims=True))
        e = e / np.sum(e, -1, keepdims=True)
        matrices = np.array([np.eye(n)[list(p)] for p in itertools.permutations(range(n))])
        a = np.einsum("sk,kij->sij", e, matrices)
    else:
        m = z.reshape(len(z), n, n)
        a = m if c.residual == "tanh" else sinkhorn(m, c)
    return np.swapaxes(a, 1, 2) if c.old_new else a


def rows_of(n, c):
    return 2 * n + {"identity": 0, "lite": int(np.prod(range(1, n + 1)))}.get(c.residual, n * n)


def coefficients(y, alpha, bias, n, c, head=False):
    """p, q and a of y [S, m]."""
    groups = np.zeros(y.shape[1], dtype=int)
    groups[n:2 * n], groups[2 * n:] = 1, 2
    if head:
        groups[:] = 0
    if c.residual == "tanh":
        z = alpha[groups] * np.tanh(y) + bias
        p, q = z[:, :n], z[:, n:2 * n]
    else:
        z = alpha[groups] * y + bias
        p, q = sigma(z[:, :n]), c.q_scale * sigma(z[:, n:2 * n]) + c.q_eps
        p = p / (np.sum(p, 1, keepdims=True) + c.p_eps) if c.normalize else p + c.p_eps
    return p, q, None if head else residual_of(z[:, 2 * n:], n, c)


class Weights:
    """phi, alpha, bias and so on of a call, and the function that uses them."""

    def __init__(self, case, s, c, head=False, static=False):
        self.s, self.c, self.head = s, c, head
        n, width = s.n, s.n * s.c
        m = n if head else rows_of(n, c)
        self.m = m
        self.given = {"bias": case.floats((m,), "f32", scale=case.pick(1, 2))}
        if not static:
            self.given["phi"] = case.floats((m, width), "f32", scale=2 / width**0.5)
            self.given["alpha"] = Floats(case.rng.random(1 if head else 3) + 0.2, "f32")
            if case.chance(0.3):
                self.given["gain"] = case.floats((width,), "f32")
        if case.chance(0.3):
            self.given["norm"] = case.floats((s.c,), "f32")

    def sums(self, o, sets, of=lambda v: v):
        """y [sets, m]; with of=np.abs the sum of its terms' magnitudes."""
        means = o["x"].reshape(sets, self.s.tokens // sets, self.s.n * self.s.c).mean(1)
        return projected(of(means), of(o["phi"]), of(o.get("gain", 1.0)), self.c)

    def coefficients(self, o, y):
        """p, q, a of y."""
        return coefficients(y, o.get("alpha", np.ones(3)), o["bias"], self.s.n, self.c, self.head)

    def call(self, o, sets=None, with_u=True):
        """u, p, q, a from a dict of flat operands."""
        x = o.get("x")
        sets = self.s.s if sets is None else sets
        y = self.sums(o, sets) if "phi" in o else np.zeros((sets, self.m))
        p, q, a = self.coefficients(o, y)
        if not with_u:
            return None, p, q, a
        u = mix_u(p, x)
        if "norm" in o:
            u = o["norm"] * u / np.sqrt(np.mean(u * u, -1, keepdims=True) + self.c.norm_eps)
        return u, p, q, a

    def slack(self, o):
        """How p, q, a change with y by 2^-15 of its terms: much if map=abs has a y near 0."""
        if "phi" not in o:
            return 0, 0, 0
        y, size = self.sums(o, self.s.s), self.sums(o, self.s.s, np.abs)
        want = self.coefficients(o, y)
        total = [0 if v is None else np.zeros(v.shape) for v in want]
        for k in range(self.m):
            error = np.zeros(y.shape)
            error[:, k] = 2.0**-15 * size[:, k]
            two = zip(self.coefficients(o, y - error), self.coefficients(o, y + error))
            for t, v, (below, above) in zip(total, want, two):
                if v is not None:
                    t += np.maximum(np.abs(below - v), np.abs(above - v))
        return total


def draw_layer(case, head=False, static=True, shared=True):
    """Random streams, conventions, weights and keys of a call; n <= 4 for lite."""
    s = Streams(case, shared=False)
    c, keys = draw_conventions(case)
    if case.chance(0.6):
        c, keys = Conventions("deepseek_v4"), {}
    if head and c.residual == "tanh":
        c, keys = Conventions("deepseek_v4"), {}
    if c.residual == "lite" and s.n > 4:
        s.n = 4
    if head and keys.get("preset") in MEAN_HEADS:
        keys["head"] = "weights"
    # the first of two token dimensions counts sequences
    if shared and len(s.batch) == 2 and case.chance(0.4):
        keys["coefficients"] = "per_sequence"
        s.sets, s.s = s.batch[:1], s.batch[0]
    w = Weights(case, s, c, head, static and case.chance(0.15))
    return s, c, keys, w


def loose_of(c, s):
    """The relative error of coefficients if they do not amplify that of y; see slack()."""
    return 2.0**-12 if s.dtype != "f32" else 2.0**-13


def size_of_u(o, p, c):
    """The magnitude that errors of p are relative to in u; norm amplifies where terms cancel."""
    size = mix_u(np.abs(p) + 0.05, np.abs(o["x"]))
    if "norm" in o:
        root = np.sqrt(np.mean(mix_u(p, o["x"]) ** 2, -1, keepdims=True) + c.norm_eps)
        size = np.abs(o["norm"]) * (size + np.max(size, -1, keepdims=True)) / root
    return size


def compare_coefficients(case, s, got, want, slack, names=("p", "q", "a"), loose=2.0**-12):
    for name, value, more in zip(names, want, slack):
        if name in got:
            size = np.maximum(np.abs(value), 0.05)
            # sets may have any shape with that many elements
            v = got[name]
            if v.size != value.size:
                case.fail("%s has %d elements, not %d" % (name, v.size, value.size))
            case.near(name, v.reshape(value.shape), "f32", value, loose * 4 * size + more)


def run_pre_like(primitive):
    def run(case):
        s, c, keys, w = draw_layer(case)
        x = s.streams()
        inputs = {"x": x, **w.given}
        if primitive == "mhc_weights":
            inputs.pop("norm", None)
            if "phi" not in inputs:
                inputs.pop("x")
                keys.pop("coefficients", None)
                s.sets, s.s = (1,), 1
        if "phi" not in inputs and "coefficients" not in keys and case.chance():
            keys["coefficients"] = "static"
        outputs = [k for k in "pqa" if case.chance(0.8)]
        if primitive == "mhc_pre":
            outputs.append("u")
        outputs = outputs or ["q"]
        if case.chance(0.2) and "phi" in inputs:
            outputs.append("saved")
        got = case.run(primitive, keys, inputs, outputs)
        o = {k: s.flat(k, v.values) for k, v in inputs.items()}
        if "phi" not in inputs:
            # static coefficients: one set, or equal ones per token
            u, p, q, a = w.call(o, 1, with_u=primitive == "mhc_pre")
            k = max((got[n].size // v.size for n, v in (("p", p), ("q", q), ("a", a))
                     if n in got), default=1)
            p, q, a = (np.repeat(v, k, 0) for v in (p, q, a))
        else:
            u, p, q, a = w.call(o, with_u=primitive == "mhc_pre")
        compare_coefficients(case, s, got, (p, q, a), w.slack(o), loose=loose_of(c, s))
        if "saved" in got:
            means = o["x"].reshape(s.s, s.tokens // s.s, s.n * s.c).mean(1)
            scaled = means * o.get("gain", 1.0)
            want = np.concatenate([scaled @ o["phi"].T, np.mean(means**2, -1, keepdims=True)], 1)
            size = np.concatenate([np.abs(scaled) @ np.abs(o["phi"]).T, want[:, -1:]], 1)
            case.near("saved", got["saved"].reshape(want.shape), "f32", want, 2.0**-15 * size)
        if "u" in got:
            shape = (*s.batch, s.c)
            size = size_of_u(o, p, c)
            case.near("u", got["u"], s.dtype, u.reshape(shape),
                      8 * loose_of(c, s) * size.reshape(shape))

    return run


def run_pre_bwd_like(primitive):
    def run(case):
        s, c, keys, w = draw_layer(case, static=False)
        s_of_sets = s.s
        x = s.streams()
        operands = {"x": x, **w.given}
        upstream = {}
        if primitive == "mhc_weights_bwd":
            operands.pop("norm", None)
        else:
            upstream["u"] = s.branch()
            if case.chance(0.3):
                upstream["y"] = s.streams()
        for k in "pqa":
            if case.chance(0.6) and not (k == "a" and c.residual == "identity"):
                upstream[k] = s.coefficients(k)
        if not upstream:
            upstream["q"] = s.coefficients("q")
        if "u" not in upstream:
            operands.pop("norm", None)
        more = {"d" + k: v for k, v in upstream.items()}

        def loss(o):
            u, p, q, a = w.call(o, s_of_sets)
            total = 0
            for k, v in (("u", u), ("p", p), ("q", q), ("a", a)):
                if k in upstream:
                    total = total + np.sum(s.flat(k, upstream[k].values) * v)
            if "y" in upstream:
                total = total + np.sum(s.flat("y", upstream["y"].values) * mix_r(a, o["x"]))
            return total

        saved = case.chance(0.4)
        if saved:
            more["saved"] = case.run(primitive[:-4], keys, {k: v for k, v in operands.items()},
                                     ["saved", "u" if primitive == "mhc_pre_bwd" else "q"])["saved"]
        gradients_of(case, primitive, s, loss, operands, more, list(operands), keys, 2.0**-10,
                     ("x", "phi", "alpha", "bias", "gain", "norm"), 2.0**-18)

    return run


def run_head(case):
    s, c, keys, w = draw_layer(case, head=True, static=False)
    x = s.streams()
    inputs = {"x": x, **w.given}
    got = case.run("mhc_head", keys, inputs, ["h", "p"] if case.chance() else ["h"])
    o = {k: s.flat(k, v.values) for k, v in inputs.items()}
    u, p, _, _ = w.call(o)
    compare_coefficients(case, s, got, (p,), w.slack(o), ("p",), loose_of(c, s))
    shape = (*s.batch, s.c)
    size = size_of_u(o, p, c)
    case.near("h", got["h"], s.dtype, u.reshape(shape), 8 * loose_of(c, s) * size.reshape(shape))


def run_head_bwd(case):
    s, c, keys, w = draw_layer(case, head=True, static=False)
    operands = {"x": s.streams(), **w.given}
    dh = s.branch()
    dp = s.coefficients("p") if case.chance() or s.s != s.tokens else None
    more = {"dh": dh, "dp": dp}

    def loss(o):
        u, p, _, _ = w.call(o)
        total = np.sum(s.flat("h", dh.values) * u)
        return total if dp is None else total + np.sum(s.flat("p", dp.values) * p)

    gradients_of(case, "mhc_head_bwd", s, loss, operands, more, list(operands), keys, 2.0**-10,
                 ("x", "phi", "alpha", "bias", "gain", "norm"), 2.0**-18)


def run_post_pre(case):
    s, c, keys, w = draw_layer(case, static=False, shared=False)
    inputs = {"x": s.streams(), "f": s.branch(), "q": s.coefficients("q")}
    if case.chance(0.7):
        inputs["a"] = s.coefficients("a")
    if case.chance(0.4):
        inputs["branch_bias"] = case.floats((s.c,), "f32")
    v = {k: s.flat(k, o.values) for k, o in inputs.items()}
    y = post(**v)
    outputs = ["y", "u"] + [k + "_next" for k in "pqa" if case.chance(0.7)]
    got = case.run("mhc_post_pre", keys, {**inputs, **w.given}, outputs)
    case.near("y", got["y"], s.dtype, y.reshape(got["y"].shape),
              s.sized(post(**{k: np.abs(o) for k, o in v.items()})).reshape(got["y"].shape))
    # from here on with y rounded to its dtype
    o = {k: g.values for k, g in w.given.items()}
    o["x"] = s.flat("y", values(got["y"], s.dtype))
    u, p, q, a = w.call(o)
    compare_coefficients(case, s, got, (p, q, a), w.slack(o), ("p_next", "q_next", "a_next"),
                         loose_of(c, s))
    size = size_of_u(o, p, c)
    case.near("u", got["u"], s.dtype, u.reshape(*s.batch, s.c),
              (8 * loose_of(c, s) + 4 * unit(s.dtype)) * size.reshape(*s.batch, s.c))


def run_post_pre_bwd(case):
    """Gradients of y, through mhc_pre(), and of the operands that y was computed from."""
    s, c, keys, w = draw_layer(case, static=False, shared=False)
    y = s.streams()
    operands = dict(w.given)
    f, q = s.branch(), s.coefficients("q")
    branch_bias = case.floats((s.c,), "f32") if case.chance() else None
    du = s.branch()
    upstream = {k: s.coefficients(k) for k in "pqa"
                if case.chance(0.5) and not (k == "a" and c.residual == "identity")}
    dy_next = s.streams() if case.chance(0.4) else None
    at_y = s.flat("y", y.values)
    shift = branch_bias.values if branch_bias else 0.0

    def loss_of_y(v, o):
        u, p, q_next, a = w.call({**o, "x": v})
        total = np.sum(s.flat("u", du.values) * u)
        for k, v_k in (("p", p), ("q", q_next), ("a", a)):
            if k in upstream:
                total = total + np.sum(s.flat(k, upstream[k].values) * v_k)
        if dy_next is not None:
            total = total + np.sum(s.flat("y", dy_next.values) * mix_r(a, v))
        return total

    more = {"y": y, "du": du, "dy_next": dy_next, "f": f, "q": q, "branch_bias": branch_bias,
            **{"d%s_next" % k: v for k, v in upstream.items()}}
    outputs = ["dy"] + [k for k in ("df", "dq") if case.chance(0.8)]
    if branch_bias and case.chance(0.8):
        outputs.append("dbranch_bias")
    weights = [k for k in operands if case.chance(0.7)]
    holding = {}
    if case.chance(0.3):
        # df and dq use dy including its old values; they are not accumulated
        keys["accumulate"] = 1
        like = {"dy": y, "dbranch_bias": branch_bias, **{"d" + k: operands[k] for k in weights}}
        holding = {k: case.floats(v.shape, v.dtype) for k, v in like.items()
                   if k in outputs + ["d" + w for w in weights] and case.chance(0.7)}
    got = case.run("mhc_post_pre_bwd", keys, {**operands, **more},
                   outputs + ["d" + k for k in weights], holding)
    o = {k: v.values for k, v in operands.items()}
    loose = 2.0**-10 + 2.0**-18 * (1 + (s.tokens * s.c) ** 0.5 / 16)
    case.gradients("dy", got["dy"], s.dtype, lambda v: loss_of_y(s.flat("y", v), o), y.values,
                   loose, holding.get("dy"), most=24, floor=2.0**-18)
    # df, dq and dbranch_bias use dy, exact or rounded
    d = s.flat("dy", values(got["dy"], s.dtype))
    g, v = s.flat("q", q.values)[..., None], s.flat("f", f.values)[:, None, :] + shift
    rough = 2 * unit(s.dtype) + 2.0**-17
    for name, kind, terms, axis in (("df", s.dtype, d * g, 1), ("dq", "f32", d * v, 2),
                                    ("dbranch_bias", "f32", d * g, (0, 1))):
        if name in got:
            before = holding[name].values if name in holding else 0.0
            case.near(name, got[name], kind, np.sum(terms, axis).reshape(got[name].shape) + before,
                      rough * np.sum(np.abs(terms), axis).reshape(got[name].shape) + 2.0**-18)
    for k in weights:
        case.gradients("d" + k, got["d" + k], "f32",
                       lambda v, k=k: loss_of_y(at_y, {**o, k: v}), operands[k].values, loose,
                       holding.get("d" + k), most=24, floor=2.0**-18)


# ---- Chains, diagnostics, initial weights --------------------------------------------------------

def run_recompute(case):
    s = Streams(case)
    layers = case.pick(1, 2, 3, 5)

    def each(draw):
        parts = [draw() for _ in range(layers)]
        return Floats(np.stack([p.values for p in parts]), parts[0].dtype)

    x = s.streams()
    inputs = {"x": x, "p": each(lambda: s.coefficients("p")),
              "q": each(lambda: s.coefficients("q")), "f": each(s.branch)}
    if case.chance(0.7):
        inputs["a"] = each(lambda: s.coefficients("a"))
        inputs["a"] = Floats(inputs["a"].values / s.n, "f32")
    if case.chance(0.4):
        inputs["branch_bias"] = case.floats((layers, s.c), "f32")
    got = case.run("mhc_recompute", {}, inputs, case.pick(["u", "y"], ["u"], ["y"]))
    streams, size = s.flat("x", x.values), 1.0
    us, ys, u_bounds, y_bounds = [], [], [], []
    carried = np.zeros_like(streams)
    for i in range(layers):
        o = {k: s.flat(k, v.values[i]) for k, v in inputs.items() if k != "x"}
        p = o.pop("p")
        us.append(mix_u(p, streams))
        u_bounds.append(mix_u(np.abs(p), carried) + s.sized(mix_u(np.abs(p), np.abs(streams))))
        y = post(streams, **o)
        size = {k: np.abs(v) for k, v in o.items()}
        grown = carried if "a" not in o else mix_r(size["a"], carried)
        y_bounds.append(grown + s.sized(post(np.abs(streams), **size)))
        ys.append(y)
        streams = rounded(y, s.dtype)
        carried = y_bounds[-1] + 2 * unit(s.dtype) * np.abs(y)
    if "u" in got:
        case.near("u", got["u"], s.dtype, np.reshape(us, got["u"].shape),
                  np.reshape(u_bounds, got["u"].shape))
    if "y" in got:
        case.near("y", got["y"], s.dtype, np.reshape(ys, got["y"].shape),
                  np.reshape(y_bounds, got["y"].shape))


def run_diagnose(case):
    n = case.pick(1, 2, 3, 4, 4, 5, 8)
    shape = case.pick((), (case.size(9, zero=False),),
                      (case.pick(1, 2, 5), case.size(9, zero=False)))
    a = case.floats((*shape, n, n), "f32", scale=0.5)
    got = case.run("mhc_diagnose", {}, {"a": a}, ["out"])["out"]
    m = a.values.reshape(*((1, 1, 1, 1)[:4 - a.values.ndim]), *a.shape)
    product = m[0]
    for layer in m[1:]:
        product = layer @ product
    want = np.stack([np.abs(m.sum(3) - 1).max((0, 2)), np.abs(m.sum(2) - 1).max((0, 2)),
                     np.abs(product).sum(2).max(1), np.abs(product).sum(1).max(1)], 1)
    case.near("out", got.reshape(want.shape), "f32", want, 2.0**-18 * (1 + want))


def run_init(case):
    kind = case.pick("identity", "paper", "triton", "hc", "lite")
    preset = {"hc": "hc", "lite": "lite", "triton": "triton"}.get(kind, "paper")
    n, channels, layer = case.pick(2, 3, 4), case.pick(16, 33, 64), case.pick(0, 1, 6)
    head = kind in ("identity", "paper") and case.chance(0.2)
    keys = {"kind": kind, "preset": preset, "n": n, "channels": channels, "layer": layer,
            "seed": int(case.rng.integers(0, 2**31))}
    if head:
        keys["head"] = 1
    c = Conventions(preset)
    m = n if head else rows_of(n, c)
    got = case.run("mhc_init", keys, {}, ["phi", "alpha", "bias"])
    phi, alpha, bias = (got[k].astype(np.float64) for k in ("phi", "alpha", "bias"))
    case.alike("phi", phi, np.empty((m, n * channels)))
    case.alike("alpha", alpha, np.empty(1 if head else 3))
    case.alike("bias", bias, np.empty(m))
    case.near("alpha", got["alpha"], "f32", np.full(alpha.shape, 0.1 if kind == "triton" else 0.01))
    deviation = {"identity": (n * channels) ** -0.5, "paper": 0.02}.get(kind, 0.0)
    if deviation:
        z = phi / deviation
        if abs(z.mean()) > 6 / z.size**0.5 or abs(z.std() - 1) > 6 / z.size**0.5:
            case.fail("phi has mean %g and deviation %g of %g" % (z.mean(), z.std(), deviation))
        case.comparisons += 2
    else:
        case.exact("phi", phi, np.zeros(phi.shape))
    if head:
        return
    one_hot = np.eye(n)[layer % n]
    if kind == "paper":
        case.exact("bias", bias, np.zeros(m))
    elif kind in ("triton", "hc"):
        case.exact("bias", bias, np.concatenate([one_hot, np.ones(n), np.eye(n).reshape(-1)]))
    elif kind == "lite":
        spot = 2 * one_hot - 1
        rest = np.full(m - 2 * n, -8.0)
        rest[0] = 0
        case.exact("bias", bias, np.concatenate([spot, spot, rest]))
    else:
        p, q, a = coefficients(np.zeros((1, m)), np.ones(3), bias, n, c)
        near = np.full((n, n), 0.1 / (n - 1)) + (0.9 - 0.1 / (n - 1)) * np.eye(n)
        case.near("p", p.astype(np.float32), "f32", np.full((1, n), 1 / n), 1e-5)
        case.near("q", q.astype(np.float32), "f32", np.ones((1, n)), 1e-5)
        case.near("a", a.astype(np.float32), "f32", near[None], 1e-5)


# ---- Gates for each element ----------------------------------------------------------------------

class Gated:
    """Operands of mhc_gated_pre, in the order of files, and its results."""

    def __init__(self, case):
        self.case = case
        self.dtype = case.pick("f32", "f16", "bf16")
        tokens, r = case.size(9, zero=False), case.size(20, zero=False)
        n = int(case.rng.integers(1, 9))
        width = case.pick(case.size(70, zero=False), 64, 128)
        if case.large():
            tokens, width, r = case.pick(1, 130), 256, case.pick(16, 64)
        self.n, self.width, self.cn = n, width, case.chance(0.3)
        self.keys, c = {"streams": "cn"} if self.cn else {}, Conventions()
        for name, value in ("rms_eps", 0.1), ("q_scale", 0.5), ("q_eps", 0.01):
            if case.chance(0.3):
                self.keys[name] = value
                setattr(c, name, self.keys[name])
        if case.chance(0.3):
            c.rms_eps_rule = self.keys["rms_eps_rule"] = case.pick("inside", "root", "floor")
        self.c, size = c, 1 / np.sqrt(n * width)
        kind = case.pick(self.dtype, "f32")
        self.inputs = {
            "x": case.floats((tokens, width, n) if self.cn else (tokens, n, width), self.dtype),
            "w_down": case.floats((r, n * width), kind, scale=2 * n * size),
            "w_up": case.floats((n * width, r), kind, scale=2 / np.sqrt(r)),
        }
        if case.chance(0.7):
            self.inputs["w_q"] = case.floats((n, n * width), kind, scale=2 * n * size)
        if case.chance(0.5):
            gain = 1 + 0.3 * case.rng.standard_normal(n * width)
            self.inputs["gain"] = Floats(gain, "f32")

    def streams(self, v):
        """The last dimension, n C numbers in the order of files, as [n, C]."""
        if self.cn:
            return np.swapaxes(v.reshape(*v.shape[:-1], self.width, self.n), -1, -2)
        return v.reshape(*v.shape[:-1], self.n, self.width)

    def __call__(self, x, w_down, w_up, w_q=None, gain=None):
        """u and q, and the same with the magnitudes of the terms of gates and of q."""
        c, n = self.c, self.n
        x = np.swapaxes(x, -1, -2) if self.cn else x
        mean = np.mean(x * x, -1, keepdims=True)
        root = np.sqrt(mean + c.rms_eps) if c.rms_eps_rule == "inside" else \
            np.sqrt(mean) + c.rms_eps if c.rms_eps_rule == "root" else \
            np.where(np.sqrt(np.real(mean)) < c.rms_eps, c.rms_eps, np.sqrt(mean))
        hat = x / root * (1 if gain is None else self.streams(gain))
        flat = hat.reshape(len(x), -1)
        down, up = self.streams(w_down).reshape(len(w_down), -1), self.streams(w_up.T)
        z = np.matmul(flat, down.T) / n
        h = z * sigma(z)
        gates = sigma(np.einsum("tr,rnc->tnc", h, up))
        u = np.mean(gates * hat, 1)
        around = np.matmul(np.abs(flat), np.abs(down).T) / n
        terms = np.einsum("tr,rnc->tnc", np.abs(h) + 1.2 * around, np.abs(up))
        sizes = [np.mean((0.25 * terms + 1) * np.abs(hat), 1)]
        if w_q is None:
            return [u], sizes
        q = self.streams(w_q).reshape(n, -1)
        sizes.append(c.q_scale * np.matmul(np.abs(flat), np.abs(q).T) / n / 4 + 1)
        return [u, c.q_scale * sigma(np.matmul(flat, q.T) / n) + c.q_eps], sizes

    def values(self):
        return {k: v.values for k, v in self.inputs.items()}


def run_gated_pre(case):
    call = Gated(case)
    outputs = ["u", "q"] if "w_q" in call.inputs else ["u"]
    got = case.run("mhc_gated_pre", call.keys, call.inputs, outputs)
    for name, want, size in zip(outputs, *call(**call.values())):
        case.near(name, got[name], "f32" if name == "q" else call.dtype, want, 2.0**-14 * size)


def run_gated_pre_bwd(case):
    call = Gated(case)
    tokens, more = len(call.inputs["x"].raw), {}
    if "w_q" not in call.inputs or case.chance(0.8):
        more["du"] = case.floats((tokens, call.width), call.dtype)
    if "w_q" in call.inputs and ("du" not in more or case.chance(0.8)):
        more["dq"] = case.floats((tokens, call.n), "f32")
    wanted = ["d" + k for k in call.inputs if case.chance(0.8) and
              (k != "w_q" or "dq" in more) and (k not in ("w_down", "w_up") or "du" in more)]
    if not wanted:
        wanted = ["dx"]
    got = case.run("mhc_gated_pre_bwd", call.keys, {**call.inputs, **more}, wanted)
    for name in wanted:
        def loss(v, name=name):
            results, _ = call(**{**call.values(), name[1:]: v})
            return sum(np.sum(more[d].values * y) for d, y in zip(("du", "dq"), results)
                       if d in more)

        case.gradients(name, got[name], call.dtype if name == "dx" else "f32", loss,
                       call.inputs[name[1:]].values, 2.0**-11, most=12)


CASES = {
    "mhc_sinkhorn": (run_sinkhorn, 32),
    "mhc_sinkhorn_bwd": (run_sinkhorn_bwd, 32),
    "mhc_mix": (run_mix, 24),
    "mhc_mix_bwd": (run_mix_bwd, 24),
    "mhc_add": (run_add, 16),
    "mhc_add_bwd": (run_add_bwd, 16),
    "mhc_post": (run_post, 24),
    "mhc_post_bwd": (run_post_bwd, 24),
    "mhc_weights": (run_pre_like("mhc_weights"), 40),
    "mhc_weights_bwd": (run_pre_bwd_like("mhc_weights_bwd"), 32),
    "mhc_pre": (run_pre_like("mhc_pre"), 40),
    "mhc_pre_bwd": (run_pre_bwd_like("mhc_pre_bwd"), 40),
    "mhc_post_pre": (run_post_pre, 32),
    "mhc_post_pre_bwd": (run_post_pre_bwd, 24),
    "mhc_gated_pre": (run_gated_pre, 32),
    "mhc_gated_pre_bwd": (run_gated_pre_bwd, 24),
    "mhc_expand": (run_expand, 12),
    "mhc_expand_bwd": (run_expand_bwd, 12),
    "mhc_head": (run_head, 24),
    "mhc_head_bwd": (run_head_bwd, 24),
    "mhc_recompute": (run_recompute, 20),
    "mhc_diagnose": (run_diagnose, 16),
    "mhc_init": (run_init, 20),
}
