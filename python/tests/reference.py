# reference.py - definitions in float64 that the tests compare with
# SPDX-License-Identifier: BSD-2-Clause
"""Quaternions are w, x, y, z; options have the names of the library's."""
import numpy as np


def gradient(function, arguments, dy, step=1e-5):
    """Central differences of <dy, function(*arguments)>, an array for each argument."""
    result = []
    arguments = [np.array(a, np.float64) for a in arguments]
    for a in arguments:
        grad = np.zeros(a.shape)
        for at in np.ndindex(a.shape):
            kept = a[at]
            a[at] = kept + step
            high = np.sum(dy * function(*arguments))
            a[at] = kept - step
            grad[at] = (high - np.sum(dy * function(*arguments))) / (2 * step)
            a[at] = kept
        result.append(grad)
    return result


# ---- Transforms and quantization -----------------------------------------------------------------

def sylvester(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(n)


def blocks(*lengths):
    n, at = sum(lengths), 0
    h = np.zeros((n, n))
    for length in lengths:
        h[at:at + length, at:at + length] = sylvester(length)
        at += length
    return h


# ---- Quaternions ---------------------------------------------------------------------------------

def mul(a, b):
    aw, ax, ay, az = np.moveaxis(a, -1, 0)
    bw, bx, by, bz = np.moveaxis(b, -1, 0)
    return np.stack([aw * bw - ax * bx - ay * by - az * bz, aw * bx + ax * bw + ay * bz - az * by,
                     aw * by - ax * bz + ay * bw + az * bx, aw * bz + ax * by - ay * bx + az * bw],
                    -1)


def conj(a):
    return a * np.array([1, -1, -1, -1])


def norm(a):
    return np.sqrt(np.sum(np.square(a), -1))


def normalize(a, eps=0):
    return a / np.maximum(norm(a), eps)[..., None]


def inverse(a):
    return conj(a) / np.sum(np.square(a), -1)[..., None]


def rotate(q, v):
    v = np.concatenate([np.zeros(v.shape[:-1] + (1,)), v], -1)
    return mul(mul(q, v), conj(q))[..., 1:]


def to_matrix(q):
    q = normalize(q)
    return np.stack([rotate(q, np.eye(3)[i] + np.zeros(q.shape[:-1] + (3,))) for i in range(3)], -1)


def exp(x):
    v = np.sqrt(np.sum(x[..., 1:] ** 2, -1, keepdims=True))
    return np.exp(x[..., :1]) * np.concatenate([np.cos(v), np.sin(v) / v * x[..., 1:]], -1)


def log(x):
    v = np.sqrt(np.sum(x[..., 1:] ** 2, -1, keepdims=True))
    return np.concatenate([np.log(norm(x))[..., None],
                           np.arctan2(v, x[..., :1]) / v * x[..., 1:]], -1)


def linear(x, w, b=None):
    y = mul(w, x[..., None, :, :]).sum(-2)
    return y if b is None else y + b


def gemm(a, b):
    return mul(a[..., :, :, None, :], b[..., None, :, :, :]).sum(-3)


def conv1d(x, w, b, stride=1, pad=0, dilation=1):
    x = np.pad(x, [(0, 0), (pad, pad), (0, 0), (0, 0)])
    taps = w.shape[1]
    n = (x.shape[1] - dilation * (taps - 1) - 1) // stride + 1
    y = sum(linear(x[:, t * dilation:t * dilation + (n - 1) * stride + 1:stride], w[:, t])
            for t in range(taps))
    return y + b


def batchnorm(x, gamma, beta, eps=1e-5):
    axes = tuple(range(x.ndim - 2))
    centred = x - x.mean(axes)
    var = np.square(centred).sum(-1).mean(axes)
    return gamma[:, None] * centred / np.sqrt(var + eps)[:, None] + beta


# ---- Hyper-connections: the preset deepseek_v4 ---------------------------------------------------

def sinkhorn(z, iterations=20, eps=1e-6):
    p = np.exp(z - z.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True) + eps
    p = p / (p.sum(-2, keepdims=True) + eps)
    for _ in range(iterations - 1):
        p = p / (p.sum(-1, keepdims=True) + eps)
        p = p / (p.sum(-2, keepdims=True) + eps)
    return p


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def mix(x, p):
    return np.einsum("...i,...ic->...c", p, x)


def post(x, f, q, a, bias=0):
    return np.einsum("...ij,...jc->...ic", a, x) + q[..., None] * (f + bias)[..., None, :]


def gated(x, down, up, w_q, gain, eps=1e-6):
    n = x.shape[-2]
    hat = (x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)).reshape(*x.shape[:-2], -1) * gain
    z = hat @ down.T / n
    gate = sigmoid(z * sigmoid(z) @ up.T) * hat
    return 2 * sigmoid(hat @ w_q.T / n), gate.reshape(x.shape).mean(-2)


def pre(x, phi, alpha, bias, eps=1e-6):
    n = x.shape[-2]
    flat = x.reshape(*x.shape[:-2], -1)
    y = flat @ phi.T / np.sqrt(np.square(flat).mean(-1, keepdims=True) + eps)
    z = y * np.repeat(alpha, [n, n, n * n]) + bias
    p = sigmoid(z[..., :n]) + 1e-6
    q = 2 * sigmoid(z[..., n:2 * n])
    # z is [old, new]
    a = np.swapaxes(sinkhorn(z[..., 2 * n:].reshape(*z.shape[:-1], n, n)), -1, -2)
    return p, q, a, mix(x, p)
