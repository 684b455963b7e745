# quat_layer.py - layers of quaternions
# SPDX-License-Identifier: BSD-2-Clause
"""Linear layers, convolutions, batch normalization, pooling, dropout, initial values."""
import itertools

import numpy as np

from .common import Floats, half_ulp, rounded, uniform53, unit
from .quat import (Order, activation, bwd_of, conj, draw_activation, draw_products, matmul, norm,
                   rotate, roundoff, spread, square)

# ---- Linear layers -------------------------------------------------------------------------------


def linear(x, w, b=None, right=False):
    """y_n = b_n + the sum over m of w_nm x_m, or of x_m w_nm."""
    rows = x.reshape(int(np.prod(x.shape[:-2])), *x.shape[-2:])
    y = matmul(w, np.swapaxes(rows, 0, 1), right)
    y = np.swapaxes(y, 0, 1).reshape(*x.shape[:-2], w.shape[0], 4)
    return y if b is None else y + b


def turning(x, w, s=None, right=False):
    """The same with s w x w* / |w|^2, rotations of the vector parts; w = 0 contributes 0."""
    n = square(w)
    unit_w = w / np.sqrt(np.where(n == 0, 1, n))
    terms = rotate(unit_w, x[..., None, :, :], inverse=right)
    return np.sum(terms if s is None else s[..., None] * terms, -2)


class Layer:
    """Common to linear layers and convolutions: dtypes, keys, biases, activations."""

    def __init__(self, case):
        self.case = case
        self.dtype, self.order = case.dtype(), Order(case)
        self.keys, self.u, self.loose = draw_products(case, self.dtype)
        if self.loose < 2.0**-9 and self.dtype in ("f16", "bf16"):
            self.loose = 2.0**-9        # layers use the fast method by default
        self.right = case.chance(0.3)
        if self.right or case.chance(0.2):
            self.keys["side"] = "right" if self.right else "left"
        self.name, self.slope, more = draw_activation(case)
        self.keys.update(more, **self.order.keys)
        self.inputs = {}

    def bias(self, channels, whole=False):
        """b, with x's dtype or f32; whole: k + 1/4, which keeps sums of integers away from 0."""
        if not whole and self.case.chance():
            return np.zeros((channels, 4))
        kind = self.dtype if self.dtype == "f64" else self.case.pick(self.dtype, "f32")
        b = self.case.floats((channels, 4), kind, integers=4 if whole else 0)
        if whole:
            b = Floats(b.values + 0.25, kind)
        self.inputs["b"] = b
        return self.order.wxyz(b.values)

    def act(self, z):
        return activation(self.name, self.slope)(z)

    def compare(self, primitive, z, terms, sizes):
        """Runs the forward call. sizes: sum |w| |x| per result; terms: how many there are."""
        case = self.case
        pre = case.chance(0.3)
        got = case.run(primitive, self.keys, self.inputs, ["y", "pre"] if pre else ["y"])
        bound = ((4 * terms + 32) * self.u + self.loose) * sizes + roundoff(norm(z), self.dtype)
        if pre:
            case.near("pre", got["pre"], self.dtype, self.order.file(z), bound)
        y = np.real(self.act(z))
        case.near("y", got["y"], self.dtype, self.order.file(y),
                  bound * spread(self.name, self.slope, z) + roundoff(norm(y), self.dtype)
                  + half_ulp(y, "f64" if self.dtype == "f64" else "f32") * 8)


def run_linear(case):
    layer = Layer(case)
    n, m = case.size(20), case.size(20)
    if case.chance(0.2):
        n, m = case.pick(32, 64, 70), case.pick(32, 64, 100)
    x = case.floats((*case.shape(case.pick(0, 1, 1, 2), 9), m, 4), layer.dtype)
    if case.chance(0.1):
        x = case.floats((case.pick(32, 64, 130), m, 4), layer.dtype)
    if case.large():
        n, m = case.pick(64, 128, 130), case.pick(64, 128)
        x = case.floats((case.pick(1, 64, 130), m, 4), layer.dtype)
    w = case.floats((n, m, 4), layer.dtype, scale=0.5)
    layer.inputs.update(x=x, w=w)
    p, r = layer.order.wxyz(x.values), layer.order.wxyz(w.values)
    if case.chance(0.25):
        layer.keys["rotation"] = 1
        s = None
        if case.chance():
            layer.inputs["scale"] = case.floats((n, m), layer.dtype)
            s = layer.inputs["scale"].values
        z = turning(p, r, s, layer.right)
        sizes = np.sum(np.abs(1 if s is None else s[..., None]) * norm(p)[..., None, :, :], -2)
        sizes = np.broadcast_to(sizes, (*p.shape[:-2], n, 1)) * 4
    else:
        z = linear(p, r, None, layer.right)
        sizes = np.sum(norm(r) * norm(p)[..., None, :, :], -2)
    layer.compare("quat_linear", z + layer.bias(n), m, sizes)


def layer_bwd(case, layer, primitive, function, shapes, y_shape, channels):
    """The gradients of a layer whose pre-activation is function(x, w, s)."""
    given = layer.name != "none" and case.chance()
    whole = 2 if layer.name != "none" and not given else 0
    operands = {k: case.floats(s, layer.dtype, integers=whole) for k, s in shapes.items()}
    layer.inputs.update(operands)
    if "scale" in operands:
        layer.keys["rotation"] = 1
    bias = layer.bias(channels, whole=bool(whole))
    values = {k: v.values for k, v in operands.items()}
    wxyz = layer.order.wxyz
    dy = layer.inputs["dy"] = case.floats(y_shape, layer.dtype)
    dz = wxyz(dy.values)
    if given:
        # z is given rounded to its dtype
        z = case.floats(y_shape, layer.dtype)
        layer.inputs["pre"] = z
        z = wxyz(z.values)
    elif layer.name != "none":
        z = function(wxyz(values["x"]), wxyz(values["w"]), values.get("scale")) + bias
    if layer.name != "none":
        # dz: gradient of the activation, by a complex step along each component
        total = np.zeros_like(dz)
        for c in range(4):
            step = np.zeros(4, dtype=complex)
            step[c] = 1e-30j
            total[..., c] = np.sum(dz * np.imag(layer.act(z + step)), -1) / 1e-30
        dz = rounded(total, layer.dtype)
        if layer.name in ("modrelu", "normclip") and np.any(
                np.abs(norm(z) - abs(layer.slope)) < 1e-3):
            return
    if "b" in layer.inputs:
        operands["b"] = layer.inputs["b"]

    def loss(**new):
        x = {**values, **new}
        y = function(wxyz(x["x"]), wxyz(x["w"]), x.get("scale"))
        if "b" in new:
            y = y + wxyz(new["b"])
        return np.sum(dz * y)

    if "b" in operands:
        if layer.name == "none" or given:
            layer.inputs.pop("b")
        wide = case.pick(layer.dtype, layer.dtype if layer.dtype == "f64" else "f32")
        operands["b"] = Floats(operands["b"].values, wide)
    wide = {"f64": 2.0**-53, "f32": 2.0**-24}.get(layer.dtype, 2.0**-24)
    terms = 256 + 64 * max(sum(v.raw.size for v in operands.values()) ** 0.5, 16)
    loose = max(layer.loose * 16, 4 * unit(layer.dtype) if layer.name != "none" else 0)
    bwd_of(case, primitive, loss, operands, layer.inputs, layer.keys, layer.dtype,
           terms + loose / wide, accumulate=False)


def run_linear_bwd(case):
    layer = Layer(case)
    n, m = case.size(12), case.size(12)
    if case.chance(0.15):
        n, m = 33, 40
    batch = case.shape(case.pick(0, 1, 1, 2), 7)
    shapes = {"x": (*batch, m, 4), "w": (n, m, 4)}
    function = linear
    if case.chance(0.25):
        shapes["scale"] = (n, m)

    def sums(x, w, s=None):
        if s is not None:
            return turning(x, w, s, layer.right)
        return function(x, w, None, layer.right)

    layer_bwd(case, layer, "quat_linear_bwd", sums, shapes, (*batch, n, 4), n)


# ---- Convolutions --------------------------------------------------------------------------------

class Window:
    """Taps in one, two or three spatial dimensions: stride, zero padding, dilation."""

    def __init__(self, case, dims, least=1):
        self.taps = [case.pick(1, 2, 3, 3) for _ in range(dims)]
        self.stride = [case.pick(1, 1, 2, 3) for _ in range(dims)]
        self.dilation = [case.pick(1, 1, 2) for _ in range(dims)]
        self.pad = [int(case.rng.integers(0, t + 1)) for t in self.taps]
        # large enough for at least one output
        self.size = [max(d * (t - 1) + 1 - 2 * p, least) + int(case.rng.integers(0, 6))
                     for t, d, p in zip(self.taps, self.dilation, self.pad)]

    def outputs(self):
        return [(n + 2 * p - d * (t - 1) - 1) // s + 1 for n, p, d, t, s in
                zip(self.size, self.pad, self.dilation, self.taps, self.stride)]

    def keys(self, case, names=("stride", "pad", "dilation")):
        keys = {}
        for name in names:
            each = getattr(self, name)
            if all(v == (0 if name == "pad" else 1) for v in each) and case.chance():
                continue
            keys[name] = each[0] if len(set(each)) == 1 and case.chance() else \
                ",".join(map(str, each))
        return keys

    def visits(self):
        """(tap, slice of outputs, slice of inputs) for all taps that reach inputs."""
        for tap in itertools.product(*map(range, self.taps)):
            outs, ins = [], []
            for t, n, p, d, s, m in zip(tap, self.size, self.pad, self.dilation, self.stride,
                                        self.outputs()):
                hit = [o for o in range(m) if 0 <= o * s + t * d - p < n]
                if not hit:
                    break
                outs.append(slice(hit[0], hit[-1] + 1))
                at = hit[0] * s + t * d - p
                ins.append(slice(at, at + (len(hit) - 1) * s + 1, s))
            else:
                yield tap, tuple(outs), tuple(ins)


def convolution(window, groups, x, w, right=False, transposed=False, conjugate=True):
    """y[p, o] = sum over t, i of w[o, t, i] x[p stride + t dilation - pad, i], or its adjoint,
    which adds to each input, with the conjugate weight, the outputs that used it."""
    into, out = w.shape[-2], w.shape[0] // groups
    sizes, channels = (window.size, into * groups) if transposed else \
        (window.outputs(), w.shape[0])
    y = np.zeros((x.shape[0], *sizes, channels, 4), dtype=np.result_type(x, w))
    for tap, outs, ins in window.visits():
        for g in range(groups):
            part, wide = slice(g * out, (g + 1) * out), slice(g * into, (g + 1) * into)
            v = w[(part, *tap)]
            if transposed:
                v = np.swapaxes(conj(v) if conjugate else v, 0, 1)
                y[(slice(None), *ins, wide)] += linear(x[(slice(None), *outs, part)], v, None,
                                                       right)
            else:
                y[(slice(None), *outs, part)] += linear(x[(slice(None), *ins, wide)], v, None,
                                                        right)
    return y


def draw_convolution(case, dims, small=False):
    """A layer, its window, its pre-activation function, shapes of x, w and y, channels of y."""
    layer = Layer(case)
    window = Window(case, dims)
    groups = case.pick(1, 1, 1, 2, 3)
    into, out = groups * case.pick(1, 2, 3, 5), groups * case.pick(1, 2, 3, 4)
    if case.chance(0.15) and not small:
        into, out = groups * case.pick(8, 16, 32), groups * case.pick(8, 16, 33)
    if case.large():
        groups, into, out = 1, case.pick(32, 64), case.pick(32, 64)
    elif groups > 1 and case.chance(0.3):
        into, out = groups * 4, groups * 4
    transposed = case.chance(0.3)
    conjugate = not transposed or case.chance(0.6)
    n = case.pick(1, 1, 2, 3)
    layer.keys.update(window.keys(case))
    if groups > 1 or case.chance(0.1):
        layer.keys["groups"] = groups
    x, y = (n, *window.size, into, 4), (n, *window.outputs(), out, 4)
    if transposed:
        layer.keys["transposed"] = 1
        if not conjugate:
            layer.keys["conj"] = 0
        more = [z - ((m - 1) * s - 2 * p + d * (t - 1) + 1) for z, m, s, p, d, t in
                zip(window.size, window.outputs(), window.stride, window.pad, window.dilation,
                    window.taps)]
        if any(more):
            layer.keys["output_pad"] = ",".join(map(str, more))
        x, y = y, x
    shapes = {"x": x, "w": (out, *window.taps, into // groups, 4)}

    def sums(x, w, _=None, right=layer.right):
        return convolution(window, groups, x, w, right, transposed, conjugate)

    return layer, sums, shapes, y, y[-2]


def run_conv(dims):
    def run(case):
        layer, sums, shapes, _, channels = draw_convolution(case, dims)
        x, w = (case.floats(shapes[k], layer.dtype) for k in "xw")
        layer.inputs.update(x=x, w=w)
        p, r = layer.order.wxyz(x.values), layer.order.wxyz(w.values)
        # sizes: the same with |x| and |w| as real quaternions
        real = np.array([1.0, 0, 0, 0])
        sizes = sums(norm(p) * real, norm(r) * real)[..., :1]
        terms = max(w.shape[-2] * int(np.prod(w.shape[1:-2])), 1)
        # components have errors of at least 2^-26 of the largest in half, 2^-37 in split precision
        largest = np.max(np.abs(p), initial=0) * np.max(np.abs(r), initial=0)
        sizes = sizes + largest * terms * 2.0**-8
        layer.compare("quat_conv%dd" % dims, sums(p, r) + layer.bias(channels), terms, sizes)

    return run


def run_conv_bwd(dims):
    def run(case):
        layer, sums, shapes, y, channels = draw_convolution(case, dims, small=True)
        layer_bwd(case, layer, "quat_conv%dd_bwd" % dims, sums, shapes, y, channels)

    return run


# ---- Batch normalization -------------------------------------------------------------------------

ROWS, COLUMNS = np.triu_indices(4)


def symmetric(upper):
    """Symmetric [C, 4, 4] from the upper triangle by rows, [C, 10]."""
    m = np.zeros((*upper.shape[:-1], 4, 4), dtype=upper.dtype)
    m[..., ROWS, COLUMNS] = upper
    m[..., COLUMNS, ROWS] = upper
    return m


def cholesky(v):
    """L with L L^T = V, also for complex numbers near real ones."""
    low = np.zeros_like(v)
    for j in range(4):
        for i in range(j, 4):
            rest = v[..., i, j] - np.sum(low[..., i, :j] * low[..., j, :j], -1)
            low[..., i, j] = np.sqrt(rest) if i == j else rest / low[..., j, j]
    return low


def batchnorm(x, gamma, beta, eps, whiten, running=None):
    """y, mean and variance; x is [N, C, 4]."""
    mean = np.mean(x, 0) if running is None else running[0]
    centred = x - mean
    if whiten:
        var = np.mean(centred[..., :, None] * centred[..., None, :], 0)[..., ROWS, COLUMNS] \
            if running is None else running[1]
        root = np.linalg.inv(cholesky(symmetric(var) + eps * np.eye(4)))
        z = np.einsum("cij,ncj->nci", root, centred)
        y = np.einsum("cij,ncj->nci", symmetric(gamma), z)
    else:
        var = np.mean(np.sum(centred * centred, -1), 0) if running is None else running[1]
        y = gamma[:, None] * centred / np.sqrt(var + eps)[:, None]
    return y + beta, mean, var


def draw_batchnorm(case):
    dtype, order = case.dtype(), Order(case)
    whiten, held = case.chance(0.4), "f64" if dtype == "f64" else "f32"
    shape = (*case.shape(case.pick(1, 2, 3), 6, zero=False), case.size(9, zero=False), 4)
    if whiten:
        shape = (case.pick(5, 9, 40), *shape)
    x = case.floats(shape, dtype, scale=case.pick(1, 3))
    x = Floats(x.values + case.rng.standard_normal(4), dtype)
    c = shape[-2]
    keys = {**order.keys, **({"whiten": 1} if whiten else {})}
    eps = 1e-5
    if case.chance(0.4):
        eps = keys["eps"] = 0.125
    inputs = {"x": x}
    if case.chance(0.7):
        g = case.rng.standard_normal((c, 10) if whiten else c)
        inputs["gamma"] = Floats(g, held)
    gamma = inputs["gamma"].values if "gamma" in inputs else \
        np.tile(np.eye(4)[ROWS, COLUMNS], (c, 1)) if whiten else np.ones(c)
    if case.chance(0.7):
        inputs["beta"] = case.floats((c, 4), held)
    beta = order.wxyz(inputs["beta"].values) if "beta" in inputs else np.zeros((c, 4))
    return dtype, held, order, whiten, x, c, keys, eps, inputs, gamma, beta


def draw_running(case, c, held, whiten):
    mean = case.floats((c, 4), held)
    if whiten:
        a = case.rng.standard_normal((c, 4, 4))
        var = (a @ np.swapaxes(a, 1, 2) + np.eye(4))[..., ROWS, COLUMNS]
    else:
        var = case.rng.random(c) + 0.5
    return mean, Floats(var, held)


def run_batchnorm(case):
    dtype, held, order, whiten, x, c, keys, eps, inputs, gamma, beta = draw_batchnorm(case)
    p = order.wxyz(x.values).reshape(-1, c, 4)
    running = None
    if case.chance(0.5):
        inputs["running_mean"], inputs["running_var"] = draw_running(case, c, held, whiten)
        running = order.wxyz(inputs["running_mean"].values), inputs["running_var"].values
    static = running is not None and case.chance()
    outputs = ["y"]
    momentum = 0.1
    if static:
        keys["eval"] = 1
    elif running is not None:
        outputs += ["new_mean", "new_var"]
        if case.chance():
            momentum = keys["momentum"] = case.pick(0.25, 0)
    got = case.run("quat_batchnorm", keys, inputs, outputs)
    y, mean, var = batchnorm(p, gamma, beta, eps, whiten, running if static else None)
    u = unit(held)
    spreads = symmetric(var) + eps * np.eye(4) if whiten else None
    condition = np.linalg.cond(spreads)[:, None] if whiten else 1.0
    gain = np.linalg.norm(symmetric(gamma), axis=(1, 2))[:, None] if whiten else \
        np.abs(gamma)[:, None]
    deviation = np.sqrt(np.trace(spreads, axis1=1, axis2=2) if whiten else var + eps)
    far = norm(p) / deviation[:, None] + 8
    bound = 64 * u * condition * gain * far * 8 + 8 * u * (norm(y) + np.abs(beta))
    case.near("y", got["y"], dtype, order.file(y).reshape(x.shape), bound.reshape(x.shape))
    if len(outputs) > 1:
        for name, value, now, kind in (("new_mean", mean, running[0], 1), ("new_var", var,
                                                                            running[1], 2)):
            want = (1 - momentum) * now + momentum * value
            want = order.file(want) if kind == 1 else want
            size = np.max(np.abs(p)) ** kind + np.max(np.abs(now))
            case.near(name, got[name], held, want, 32 * u * size)


def run_batchnorm_bwd(case):
    dtype, held, order, whiten, x, c, keys, eps, inputs, gamma, beta = draw_batchnorm(case)
    running = None
    if case.chance(0.3):
        inputs["running_mean"], inputs["running_var"] = draw_running(case, c, held, whiten)
        running = order.wxyz(inputs["running_mean"].values), inputs["running_var"].values
        keys["eval"] = 1
    saved = case.run("quat_batchnorm", keys, inputs, ["y", "saved"])["saved"]
    dy = case.floats(x.shape, dtype)
    upstream = order.wxyz(dy.values).reshape(-1, c, 4)
    operands = {"x": x}
    if "gamma" in inputs:
        operands["gamma"] = inputs["gamma"]
    operands["beta"] = inputs.get("beta", Floats(np.zeros((c, 4)), held))

    def loss(**new):
        p = order.wxyz(new.get("x", x.values)).reshape(-1, c, 4)
        shift = order.wxyz(new["beta"]) if "beta" in new else beta
        return np.sum(upstream * batchnorm(p, new.get("gamma", gamma), shift, eps, whiten,
                                           running)[0])

    given = {k: v for k, v in inputs.items() if k in ("x", "gamma")}
    wanted = [k for k in operands if case.chance(0.8)] or ["x"]
    got = case.run("quat_batchnorm_bwd", keys, {**given, "dy": dy, "saved": saved},
                   ["d" + k for k in wanted])
    loose = 2.0 ** (9 if not whiten else 13) * (1 + x.raw.size / 1000)
    # for a single sample all terms of dx cancel
    floor = 0.0
    if not whiten:
        var = batchnorm(order.wxyz(x.values).reshape(-1, c, 4), gamma, beta, eps, whiten,
                        running)[2]
        floor = 8 * unit(held) * float(np.max(np.abs(gamma)) * np.max(norm(upstream)) /
                                       np.sqrt(np.min(var) + eps))
    for k in wanted:
        case.gradients("d" + k, got["d" + k], operands[k].dtype, lambda v, k=k: loss(**{k: v}),
                       operands[k].values, loose * unit(held), floor=floor if k == "x" else 0.0)


# ---- Pooling, dropout, initial values ------------------------------------------------------------

def draw_pool(case):
    dims = case.pick(1, 2, 2, 3)
    dtype, order = case.dtype(), Order(case)
    window = Window(case, dims, least=2)
    window.dilation = [1] * dims
    window.pad = [int(case.rng.integers(0, t // 2 + 1)) for t in window.taps]
    window.size = [max(n, t) for n, t in zip(window.size, window.taps)]
    keys = {**order.keys, "window": ",".join(map(str, window.taps))}
    if case.chance():
        window.stride = list(window.taps)
    else:
        keys["stride"] = ",".join(map(str, window.stride))
    keys.update(window.keys(case, ("pad",)))
    shape = (case.pick(1, 2), *window.size, case.size(6, zero=False), 4)
    return dtype, order, window, keys, shape


def windows_of(window):
    """For each output, in index order: the spatial indices of its window's inputs."""
    for o in itertools.product(*map(range, window.outputs())):
        ranges = [range(max(0, i * s - p), min(n, i * s - p + t)) for i, s, p, t, n in
                  zip(o, window.stride, window.pad, window.taps, window.size)]
        yield o, list(itertools.product(*ranges))


def run_pool(case):
    dtype, order, window, keys, shape = draw_pool(case)
    x = case.floats(shape, dtype, integers=case.pick(0, 0, 2))
    average = case.chance(0.4)
    if average or case.chance():
        keys["kind"] = "average" if average else "max"
    index = not average and case.chance(0.6)
    got = case.run("quat_pool", keys, {"x": x}, ["y", "index"] if index else ["y"])
    want = np.empty((shape[0], *window.outputs(), *shape[-2:]))
    taken = np.empty(want.shape[:-1], dtype=np.int64)
    for o, inside in windows_of(window):
        v = np.stack([x.values[(slice(None), *i)] for i in inside])
        at = (slice(None), *o)
        if average:
            want[at] = v.mean(0)
        else:
            best = np.argmax(np.sum(v * v, -1), 0)
            flat = np.array([np.ravel_multi_index(i, window.size) for i in inside])
            taken[at] = flat[best]
            want[at] = np.take_along_axis(v, best[None, ..., None], 0)[0]
    if average:
        case.near("y", got["y"], dtype, want, roundoff(np.max(np.abs(x.values)) *
                                                       np.ones(want.shape), dtype) * 2)
    else:
        case.same("y", got["y"], dtype, want)
    if index:
        case.exact("index", got["index"], taken)


def run_pool_bwd(case):
    dtype, order, window, keys, shape = draw_pool(case)
    y_shape = (shape[0], *window.outputs(), *shape[-2:])
    dy = case.floats(y_shape, dtype)
    want = np.zeros(shape)
    sizes = np.zeros(shape)
    inputs = {"dy": dy}
    average = case.chance(0.4)
    if average or case.chance():
        keys["kind"] = "average" if average else "max"
    index = np.zeros(y_shape[:-1], dtype=np.int32)
    for o, inside in windows_of(window):
        at = (slice(None), *o)
        if average:
            for i in inside:
                want[(slice(None), *i)] += dy.values[at] / len(inside)
                sizes[(slice(None), *i)] += np.abs(dy.values[at])
            continue
        choice = case.rng.integers(0, len(inside), index[at].shape)
        flat = np.array([np.ravel_multi_index(i, window.size) for i in inside])
        index[at] = flat[choice]
        for k, i in enumerate(inside):
            want[(slice(None), *i)] += np.where((choice == k)[..., None], dy.values[at], 0)
            sizes[(slice(None), *i)] += np.abs(dy.values[at])
    if not average:
        inputs["index"] = index
    keys["size"] = ",".join(map(str, window.size))
    got = case.run("quat_pool_bwd", keys, inputs, ["dx"])["dx"]
    case.near("dx", got, dtype, want, roundoff(sizes, dtype))


def run_dropout(case):
    dtype = case.dtype()
    x = case.floats((*case.shape(case.pick(0, 1, 2, 3), 9), 4), dtype)
    keys, p, seed, offset = {}, 0.5, 0, 0
    if case.chance(0.7):
        p = keys["p"] = case.pick(0.0, 0.25, 0.75, 1.0, 0.1)
    if case.chance(0.7):
        seed = keys["seed"] = int(case.rng.integers(0, 2**63))
    if case.chance(0.5):
        offset = keys["offset"] = int(case.rng.integers(0, 2**32))
    got = case.run("quat_dropout", keys, {"x": x}, ["y"])["y"]
    rows = x.values.reshape(-1, 4)
    keep = np.array([uniform53(seed, offset + i) >= p for i in range(len(rows))], dtype=bool)
    want = np.where(keep[:, None], rows / (1 - p if p < 1 else 1), 0).reshape(x.shape)
    case.near("y", got, dtype, want, roundoff(want, dtype) / 4)


def run_init(case):
    dtype, order = case.dtype(), Order(case)
    shape = case.shape(case.pick(1, 2, 3), 9)
    keys = {"shape": ",".join(map(str, shape)), **order.keys}
    kind, scale, seed, offset = "polar", 1.0, 0, 0
    if case.chance(0.7):
        kind = keys["distribution"] = case.pick("polar", "unitary", "normal")
    if case.chance(0.5):
        scale = keys["scale"] = 0.3
    if case.chance(0.7):
        seed = keys["seed"] = int(case.rng.integers(0, 2**63))
    if case.chance(0.5):
        offset = keys["offset"] = int(case.rng.integers(0, 2**32))
    if dtype != "f32" or case.chance():
        keys["out"] = dtype
    got = case.run("quat_init", keys, {}, ["y"])["y"]
    n = int(np.prod(shape))
    u = np.array([[uniform53(seed, 8 * (offset + i) + k) for k in range(5)] for i in range(n)])
    u = u.reshape(n, 5).T
    if kind == "polar":
        size = np.sqrt(-2 * np.log((1 - u[0]) * (1 - u[1])))
        a, b, c = 2 * np.pi * u[2], 2 * np.pi * u[4], 2 * u[3] - 1
        r = np.sqrt(1 - c * c)
        q = size * np.stack([np.cos(a), np.sin(a) * r * np.cos(b), np.sin(a) * r * np.sin(b),
                             np.sin(a) * c])
    elif kind == "unitary":
        s, t, a, b = np.sqrt(1 - u[0]), np.sqrt(u[0]), 2 * np.pi * u[1], 2 * np.pi * u[2]
        q = np.stack([s * np.cos(a), s * np.sin(a), t * np.cos(b), t * np.sin(b)])
    else:
        s, t = np.sqrt(-2 * np.log(1 - u[0])), np.sqrt(-2 * np.log(1 - u[2]))
        a, b = 2 * np.pi * u[1], 2 * np.pi * u[3]
        q = np.stack([s * np.cos(a), s * np.sin(a), t * np.cos(b), t * np.sin(b)])
    want = order.file(scale * q.T.reshape(*shape, 4))
    case.near("y", got, dtype, want, 2.0**-48)


# ---- Recurrent layers ----------------------------------------------------------------------------

GATES = {"rnn": 1, "lstm": 4, "ligru": 2}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Recurrent:
    """A layer and its operands, with the components of files in one order."""

    def __init__(self, case):
        self.case, self.order = case, Order(case)
        self.dtype = case.pick("f32", "f32", "f16", "bf16")
        self.keys, self.u, self.loose = draw_products(case, self.dtype)
        self.keys.update(self.order.keys)
        self.cell = self.keys["cell"] = case.pick(*GATES)
        self.components = case.chance()
        if self.components or case.chance():
            self.keys["gates"] = "components" if self.components else "neurons"
        self.act = "relu" if self.cell == "ligru" else "tanh"
        if self.cell != "lstm" and case.chance():
            self.act = self.keys["activation"] = case.pick("relu", "leaky", "tanh")
        self.slope = 0.0
        if self.act == "leaky":
            self.slope = self.keys["slope"] = case.pick(0.01, 0.5)
        self.h = h = case.pick(1, 2, 3, 5, 16, 33)
        self.steps, self.batch = case.size(9, zero=False), case.size(5, zero=False)
        self.directions = case.pick(1, 2)
        if case.large():
            self.h = h = case.pick(64, 128)
        gates, lead = GATES[self.cell] * h, (self.directions, self.batch)
        self.inputs = {
            "z": case.floats((self.steps, self.batch, self.directions, gates, 4), self.dtype),
            "u": case.floats((self.directions, gates, h, 4), self.dtype, scale=0.4 / np.sqrt(h)),
        }
        for name in ("h0", "c0") if self.cell == "lstm" else ("h0",):
            if case.chance():
                self.inputs[name] = case.floats((*lead, h, 4), self.dtype, scale=0.5)
        self.lengths = np.full(self.batch, self.steps)
        if case.chance():
            given = case.rng.integers(-1, self.steps + 2, self.batch).astype(np.int32)
            self.inputs["lengths"], self.lengths = given, np.clip(given, 0, self.steps)

    def gate(self, a, k):
        """Gate k of all gates [.., K H, 4]."""
        if not self.components:
            return a[..., k * self.h:(k + 1) * self.h, :]
        flat = np.concatenate([a[..., c] for c in range(4)], -1)
        return np.stack([flat[..., (4 * k + c) * self.h:][..., :self.h] for c in range(4)], -1)

    def activate(self, v):
        if self.act == "tanh":
            return np.tanh(v)
        return np.where(np.real(v) > 0, v, self.slope * v)

    def forward(self, values, rounds):
        """y, hn and cn in files' order, of operands in that order; rounds: h to the dtype of z."""
        of = {k: self.order.wxyz(v) for k, v in values.items()}
        z, u = of["z"], of["u"]
        kind = complex if any(np.iscomplexobj(v) for v in values.values()) else float
        y = np.zeros((*z.shape[:3], self.h, 4), dtype=kind)
        shape = (self.directions, self.batch, self.h, 4)
        state = {k: np.zeros(shape, dtype=kind) + of.get(k + "0", 0) for k in "hc"}
        for d, b in np.ndindex(shape[:2]):
            h, c = state["h"][d, b], state["c"][d, b]
            steps = range(self.lengths[b])
            for t in reversed(steps) if d else steps:
                before = rounded(h, self.dtype) if rounds else h
                a = z[t, b, d] + matmul(u[d], before[:, None], False)[:, 0]
                if self.cell == "rnn":
                    h = self.activate(a)
                elif self.cell == "lstm":
                    i, f, o, g = (self.gate(a, k) for k in range(4))
                    c = sigmoid(i) * np.tanh(g) + sigmoid(f) * c
                    h = sigmoid(o) * np.tanh(c)
                else:
                    r = sigmoid(self.gate(a, 1))
                    h = r * h + (1 - r) * self.activate(self.gate(a, 0))
                if self.cell == "rnn":
                    h = self.gate(h, 0)
                y[t, b, d] = h
            state["h"][d, b], state["c"][d, b] = h, c
        return [self.order.file(v) for v in (y, state["h"], state["c"])]

    def outputs(self):
        return ["y", "hn", "cn"] if self.cell == "lstm" else ["y", "hn"]

    def values(self):
        return {k: v.values for k, v in self.inputs.items() if k != "lengths"}


def run_recurrent(case):
    layer = Recurrent(case)
    want = layer.forward(layer.values(), True)
    got = case.run("quat_recurrent", layer.keys, layer.inputs, layer.outputs())
    size = max(1.0, *(np.abs(w).max(initial=0) for w in want))
    bound = size * layer.steps * (8 * ((4 * layer.h + 32) * layer.u + layer.loose) +
                                  (4 * unit(layer.dtype) if layer.dtype != "f32" else 2.0**-20))
    for name, w in zip(layer.outputs(), want):
        case.near(name, got[name], layer.dtype, w, bound)
    for b, n in enumerate(layer.lengths):
        case.exact("y behind the last step", got["y"][n:, b].astype(float),
                   np.zeros(got["y"][n:, b].shape))


def run_recurrent_bwd(case):
    layer = Recurrent(case)
    saved = case.run("quat_recurrent", layer.keys, layer.inputs, ["y", "saved"])["saved"]
    values = layer.values()
    shape = (layer.steps, layer.batch, layer.directions, layer.h, 4)
    given = {"dy": case.floats(shape, layer.dtype)}
    for name in ("dhn", "dcn") if layer.cell == "lstm" else ("dhn",):
        if case.chance():
            given[name] = case.floats((*shape[2:0:-1], *shape[3:]), layer.dtype)
    inputs = {k: v for k, v in layer.inputs.items() if k != "z"}
    wanted = ["d" + k for k in values]
    got = case.run("quat_recurrent_bwd", layer.keys, {**inputs, **given, "saved": saved}, wanted)

    def loss_of(name):
        def loss(x):
            y = layer.forward({**values, name: x}, False)
            return sum(np.sum(given[d].values * v) for d, v in zip(("dy", "dhn", "dcn"), y)
                       if d in given)
        return loss

    relative = layer.steps * (16 * ((4 * layer.h + 32) * layer.u + layer.loose) + 2.0**-18)
    if layer.dtype != "f32":
        relative += layer.steps * 32 * unit(layer.dtype)
        if layer.act != "tanh":
            return      # kinks
    for name in values:
        case.gradients("d" + name, got["d" + name], layer.dtype, loss_of(name), values[name],
                       relative, most=8)


CASES = {
    "quat_linear": (run_linear, 48),
    "quat_linear_bwd": (run_linear_bwd, 32),
    "quat_conv1d": (run_conv(1), 32),
    "quat_conv1d_bwd": (run_conv_bwd(1), 24),
    "quat_conv2d": (run_conv(2), 40),
    "quat_conv2d_bwd": (run_conv_bwd(2), 24),
    "quat_conv3d": (run_conv(3), 20),
    "quat_conv3d_bwd": (run_conv_bwd(3), 12),
    "quat_recurrent": (run_recurrent, 40),
    "quat_recurrent_bwd": (run_recurrent_bwd, 24),
    "quat_batchnorm": (run_batchnorm, 24),
    "quat_batchnorm_bwd": (run_batchnorm_bwd, 24),
    "quat_pool": (run_pool, 24),
    "quat_pool_bwd": (run_pool_bwd, 20),
    "quat_dropout": (run_dropout, 16),
    "quat_init": (run_init, 16),
}
