# test_ops.py - every operation against its definition in float64
# SPDX-License-Identifier: BSD-2-Clause
import os
import tempfile
import unittest

import numpy as np
import reference as ref

import hurwitz
from device import DEVICE, hz

SEED = int(os.environ.get("HZ_TEST_SEED", int.from_bytes(os.urandom(4), "little")))


class Case(unittest.TestCase):
    def setUp(self):
        self.random = np.random.default_rng([SEED, sum(self.id().encode())])

    def normal(self, *shape, dtype="f4"):
        return self.random.standard_normal(shape).astype(dtype)

    def near(self, found, expected, tolerance=2e-5):
        expected = np.asarray(expected)
        if DEVICE not in (None, "cpu"):     # f64 is f32 there, and norms of such gradients are
            tolerance = max(tolerance, 1e-4)
        self.assertEqual(found.shape, expected.shape, f"seed {SEED}")
        error = np.max(np.abs(np.asarray(found, np.float64) - expected), initial=0)
        scale = 1 + np.max(np.abs(expected), initial=0)
        self.assertLess(error, tolerance * scale, f"seed {SEED}")


class Transforms(Case):
    def test_hadamard(self):
        x = self.normal(3, 5, 96)
        h = ref.blocks(64, 32)
        self.near(hz.hadamard(x), x @ h.T)
        self.near(hz.hadamard(x[:, ::2], factor=0.5), 0.5 * x[:, ::2] @ h.T)
        self.near(hz.hadamard(x, block=32), (x.reshape(3, 5, 3, 32) @ ref.sylvester(32)).reshape(
            x.shape))
        y = self.normal(8, 7)
        self.near(hz.hadamard(y, axis=0), ref.sylvester(8) @ y)
        self.near(hz.hadamard(y.T, axis=-1), (ref.sylvester(8) @ y).T)
        self.assertEqual(hz.hadamard(x, np.float16).dtype, np.float16)
        signs = hz.hadamard_signs(96, 7)
        flips = 1 - 2.0 * np.unpackbits(signs, bitorder="little")
        self.near(hz.hadamard(x, pre=signs), (x * flips) @ h.T)
        self.near(hz.hadamard(x, flags=hz.HADAMARD_TRANSPOSE, pre=signs), (x @ h) * flips)

    def test_plans_and_bases(self):
        self.assertEqual(hz.hadamard_plan(96), [64, 32])
        self.assertEqual(hz.hadamard_plan(96, plan="true"), [96])
        self.assertRaises(ValueError, hz.hadamard_plan, 96, plan="sylvester")
        base = hz.hadamard_base("paley1", 12).astype(int)
        np.testing.assert_array_equal(base @ base.T, 12 * np.eye(12))
        self.assertRaises(NotImplementedError, hz.hadamard_base, "dao", 17)
        x = self.normal(2, 12)
        self.near(hz.hadamard(x, plan="true", base="paley1", order=12), x @ base.T / 12 ** .5)

    def test_quantized(self):
        x = self.normal(4, 64)
        t = x @ ref.sylvester(64)
        q, scale = hz.hadamard_quantize(x)
        self.near(scale, np.abs(t).max(-1, keepdims=True) / 127)
        self.near(hz.dequantize_hadamard(q, scale), x, 2e-2)
        q, scale = hz.hadamard_quantize(x, "s4x2", (4, 2))
        self.assertEqual((q.shape, scale.shape), ((4, 32), (4, 2)))
        self.near(q.unpack() * np.repeat(scale, 32, -1), t, 0.1)
        self.near(hz.dequantize_hadamard(q, scale, "f16"), x, 0.2)

    def test_quantize(self):
        x = self.normal(5, 48)
        scale, zero = hz.choose_qparams(x, (5, 1))
        q = hz.quantize(x, "u8", scales=scale, zeros=zero)
        expected = np.clip(zero + np.rint(x / scale), 0, 255)
        np.testing.assert_array_equal(q, expected)
        self.near(hz.dequantize(q, scales=scale, zeros=zero), (expected - zero) * scale)
        scale, zero = hz.choose_qparams(x, flags=hz.QPARAMS_SYMMETRIC)
        self.assertIsNone(zero)
        self.near(scale, np.full((1, 1), np.abs(x).max() / 127))
        # min is 0 by presence alone
        q = hz.quantize(x, "s8", scale=0.05, min=0, max=9)
        np.testing.assert_array_equal(q, np.clip(np.rint(x / np.float32(0.05)), 0, 9))
        q, scales = hz.quantize(x, "e2m1x2", new_scales="e8m0", group=16)
        back = hz.dequantize(q, scales=scales, group=16)
        self.assertEqual(back.shape, x.shape)
        values = q.unpack() * np.repeat(np.ldexp(1.0, scales_of(scales) - 127), 16, -1)
        np.testing.assert_array_equal(back, values)
        self.near(back, x, 0.3)
        q = hz.quantize(x, scale=0.1, hadamard={"block": 16})
        rotated = (x.reshape(5, 3, 16) @ ref.sylvester(16)).reshape(x.shape)
        self.assertLessEqual(np.max(np.abs(q - np.clip(np.rint(rotated / .1), -127, 127))), 1)

    def test_qgemm(self):
        a = self.random.integers(0, 256, (3, 7, 33), np.uint8)
        b = self.random.integers(-128, 128, (33, 9), np.int8)
        exact = (a.astype(int) - 3) @ b.astype(int)
        c = hz.qgemm(a, b, "s32", a_zero=3)
        np.testing.assert_array_equal(c, exact)
        packed = hz.qgemm_pack(b)
        self.assertEqual(packed.shape, (33, 9))
        c = hz.qgemm(a, None, "s32", a_zero=3, packed=packed, min=-100)
        np.testing.assert_array_equal(c, np.maximum(exact, -100))
        c = hz.qgemm(a, b, a_scale=0.5, b_scales=np.full(9, 0.25, "f4"), a_zero=3)
        self.near(c, exact / 8)
        multiplier, shift = hz.qgemm_multiplier(0.01)
        self.near(np.array(multiplier * 0.5 ** shift), 0.01)
        c = hz.qgemm(a, b, "s8", multiplier=multiplier, shift=shift, requant="ruy")
        self.near(c, np.clip(a.astype(int) @ b.astype(int) * 0.01, -128, 127), 1e-2)
        x = self.normal(5, 33)
        self.near(hz.qlinear(x, b, b_scale=0.1), x @ (b * 0.1), 2e-2)
        self.near(hz.qlinear(x, None, b_scale=0.1, packed=packed), x @ (b * 0.1), 2e-2)

    def test_qlinear_group(self):
        n, k, group = 9, 64, 32
        x = self.normal(2, 5, k)
        codes = self.random.integers(0, 16, (n, k), np.uint8)
        stored = hz.view((codes[:, ::2] | codes[:, 1::2] << 4).T, "u4x2")
        scales = self.random.uniform(0.5, 1, (k // group, n)).astype("f4")
        zeros = self.random.integers(0, 16, (k // group, n), np.uint8)
        w = np.repeat(scales, group, 0) * (codes.T - np.repeat(zeros, group, 0).astype("f8"))
        self.near(hz.qlinear_group(x, stored, scales, zeros=zeros), x @ w)
        packed = hz.qlinear_group_pack(stored, scales, zeros=zeros)
        bias = self.normal(n)
        self.near(hz.qlinear_group(x, packed=packed, bias=bias, min=0),
                  np.maximum(x @ w + bias, 0))
        self.near(hz.qlinear_group(x, packed=packed, x_dtype="s8", x_group=32), x @ w, 2e-2)


def scales_of(array):
    return np.asarray(array.array if isinstance(array, hz.View) else array.view("u1"), int)


class Quaternions(Case):
    def both(self, name, function, shapes, backward=(), **options):
        """Forward in f32 and f64, gradients in f64, where there are any."""
        forward = getattr(hz, "quat_" + name)
        arguments = [self.normal(*shape, dtype="f8") for shape in shapes]
        expected = function(*arguments)
        self.near(forward(*arguments, **options), expected, 1e-12)
        single = [a.astype("f4") for a in arguments]
        self.near(forward(*single, **options), expected)
        wide = [np.repeat(a, 2, -2)[..., ::2, :] if a.ndim > 1 else a for a in arguments]
        self.near(forward(*wide, **options), expected, 1e-12)
        if backward:
            dy = self.normal(*expected.shape, dtype="f8")
            found = getattr(hz, f"quat_{name}_bwd")(*arguments, dy, **options)
            found = found if isinstance(found, tuple) else (found,)
            for grad, numeric in zip(found, ref.gradient(function, arguments, dy)):
                self.near(grad, numeric, 1e-7)

    def test_mul(self):
        self.both("mul", ref.mul, [(3, 5, 4), (5, 4)], True)
        self.both("mul", lambda a, b: ref.mul(ref.conj(b), a), [(3, 4), (3, 4)], True,
                  flags=hz.QUAT_CONJ_B | hz.QUAT_REVERSED)

    def test_elementwise(self):
        self.both("conj", ref.conj, [(3, 5, 4)])
        self.both("norm", ref.norm, [(3, 5, 4)], True)
        self.both("normalize", ref.normalize, [(3, 5, 4)], True)
        self.both("inverse", ref.inverse, [(3, 5, 4)], True)
        self.both("rotate", ref.rotate, [(5, 4), (3, 5, 3)], True)
        self.both("to_matrix", ref.to_matrix, [(3, 4)], True)
        self.both("exp", ref.exp, [(3, 5, 4)])
        self.both("log", ref.log, [(3, 5, 4)])

    def test_conversions(self):
        q = ref.normalize(self.normal(3, 4, dtype="f8"))
        m = hz.quat_to_matrix(q)
        self.near(hz.quat_to_matrix(hz.quat_from_matrix(m)), m, 1e-12)
        dq = self.normal(3, 4, dtype="f8")
        numeric = ref.gradient(lambda m: hurwitz.quat_from_matrix(m), [m], dq)[0]
        self.near(hz.quat_from_matrix_bwd(m, dq), numeric, 1e-6)
        r = hz.quat_to_axis_angle(q)
        back = hz.quat_from_axis_angle(r)
        self.near(np.abs(np.sum(back * q, -1)), np.ones(3), 1e-12)
        other = ref.normalize(self.normal(3, 4, dtype="f8"))
        t = np.array([0, 0.5, 1])
        y = hz.quat_slerp(q, other, t, flags=hz.QUAT_KEEP_SIGN)
        self.near(y[0], q[0], 1e-12)
        self.near(y[1], ref.normalize(q[1] + other[1]), 1e-12)
        self.near(y[2], other[2], 1e-12)

    def test_sums(self):
        a, b = self.normal(3, 6, 4), self.normal(6, 4)
        self.near(hz.quat_dot(a, b), ref.mul(ref.conj(a), b).sum(-2))
        self.near(hz.quat_dot(a, b, (3, 1)), (a * b).sum((-2, -1))[:, None])
        y, alpha = self.normal(6, 4), [1, 2, 3, 4]
        expected = y + ref.mul(np.array(alpha), b)
        self.near(hz.quat_axpy(alpha, b, y), expected)
        self.near(y, expected)
        for wrong in ([1, 2], [1, 2, 3, 4, 5], 2.0):
            self.assertRaisesRegex(ValueError, "alpha has . numbers, not 4", hz.quat_axpy, wrong, b,
                                   y)

    def test_gemm(self):
        a, b = self.normal(2, 3, 5, 4, dtype="f8"), self.normal(5, 7, 4, dtype="f8")
        self.near(hz.quat_gemm(a, b), ref.gemm(a, b), 1e-12)
        at = np.ascontiguousarray(ref.conj(np.swapaxes(a, 1, 2)))
        self.near(hz.quat_gemm(at, b, op_a="h", alpha=[0, 1, 0, 0], method="fast"),
                  ref.mul(np.array([0, 1, 0, 0]), ref.gemm(a, b)), 1e-12)
        self.assertFalse(hz.quat_gemm(a, b, alpha=[0, 0, 0, 0]).any())
        a = a[0].astype("f4")
        packed = hz.quat_gemm_pack(a)
        self.near(hz.quat_gemm(None, b.astype("f4"), packed=packed), ref.gemm(a, b))
        c, pre = hz.quat_gemm(a, b.astype("f4"), activation="relu", pre=True)
        self.near(c, np.maximum(pre, 0))

    def test_linear(self):
        x, w, b = (self.normal(*s, dtype="f8") for s in ((2, 3, 5, 4), (6, 5, 4), (6, 4)))
        self.near(hz.quat_linear(x, w, b), ref.linear(x, w, b), 1e-12)
        dy = self.normal(2, 3, 6, 4, dtype="f8")
        expected = ref.gradient(lambda x, w, b: np.tanh(ref.linear(x, w, b)), [x, w, b], dy)
        y, pre = hz.quat_linear(x, w, b, activation="tanh", pre=True)
        self.near(y, np.tanh(ref.linear(x, w, b)), 1e-12)
        for pre in (pre, None):
            found = hz.quat_linear_bwd(x, w, b, dy, activation="tanh", pre=pre)
            for grad, numeric in zip(found, expected):
                self.near(grad, numeric, 1e-7)
        dx, dw, db = hz.quat_linear_bwd(x, w, None, dy, True, None)
        self.assertIsNone(dw)
        self.assertIsNone(db)
        dw = np.ones_like(w)
        again = hz.quat_linear_bwd(x, w, None, dy, None, dw, flags=hz.QUAT_ACCUMULATE)[1]
        self.assertIs(again, dw)

    def test_conv(self):
        x, w, b = (self.normal(*s, dtype="f8") for s in ((2, 9, 3, 4), (5, 3, 3, 4), (5, 4)))
        options = {"stride": 2, "pad": [1], "dilation": (2,)}
        expected = ref.conv1d(x, w, b, 2, 1, 2)
        self.near(hz.quat_conv(x, w, b, **options), expected, 1e-12)
        dy = self.normal(*expected.shape, dtype="f8")
        numeric = ref.gradient(lambda *a: ref.conv1d(*a, 2, 1, 2), [x, w, b], dy)
        for found, grad in zip(hz.quat_conv_bwd(x, w, b, dy, **options), numeric):
            self.near(found, grad, 1e-7)
        back = hz.quat_conv(dy, w, None, flags=hz.QUAT_TRANSPOSED, **options)
        self.near(back, numeric[0][:, :back.shape[1]], 1e-7)
        image = self.normal(1, 4, 5, 2, 4)
        self.assertEqual(hz.quat_conv(image, self.normal(3, 2, 2, 2, 4)).shape, (1, 3, 4, 3, 4))

    def test_recurrent(self):
        z, u, h0 = self.normal(3, 2, 1, 4, 4), self.normal(1, 4, 4, 4), self.normal(1, 2, 4, 4)
        y, hn, cn = hz.quat_recurrent(z, u, h0)
        h = h0[0]
        for t in range(3):
            h = np.tanh(z[t, :, 0] + ref.linear(h, u[0]))
            self.near(y[t, :, 0], h)
        self.near(hn[0], h)
        self.assertIsNone(cn)
        z, u = self.normal(2, 3, 2, 8, 4), self.normal(2, 8, 2, 4)
        lengths = np.array([2, 0, 1], np.int32)
        y, hn, cn, saved = hz.quat_recurrent(z, u, cell="lstm", saved=True, lengths=lengths)
        self.assertEqual((y.shape, cn.shape, saved.shape),
                         ((2, 3, 2, 2, 4), (2, 3, 2, 4), (2, 3, 2, 5, 2, 4)))
        dz, du, dh0, dc0 = hz.quat_recurrent_bwd(u, None, None, np.ones_like(y), None, None,
                                                 cell="lstm", saved=saved, lengths=lengths)
        self.assertEqual((dz.shape, du.shape), (z.shape, u.shape))
        self.assertFalse(dz[:, 1].any())

    def test_batchnorm(self):
        x, gamma, beta = (self.normal(*s, dtype="f8") for s in ((2, 7, 3, 4), (3,), (3, 4)))
        mean, var = np.zeros((3, 4)), np.ones(3)
        y, saved = hz.quat_batchnorm(x, gamma, beta, saved=True, running_mean=mean,
                                     running_var=var, momentum=1)
        self.near(y, ref.batchnorm(x, gamma, beta), 1e-10)
        self.near(mean, x.mean((0, 1)), 1e-12)
        dy = self.normal(*x.shape, dtype="f8")
        found = hz.quat_batchnorm_bwd(x, gamma, dy, saved=saved)
        for grad, numeric in zip(found, ref.gradient(ref.batchnorm, [x, gamma, beta], dy)):
            self.near(grad, numeric, 1e-6)
        self.near(hz.quat_batchnorm(x, eps=0), ref.batchnorm(x, np.ones(3), np.zeros((3, 4)), 0),
                  1e-10)
        self.assertEqual(hz.quat_batchnorm(x, None, None, flags=hz.QUAT_WHITEN).shape, x.shape)

    def test_pool_dropout_init(self):
        x = self.normal(2, 6, 3, 4)
        y, index = hz.quat_pool(x, window=2)
        pairs = x.reshape(2, 3, 2, 3, 4)
        larger = ref.norm(pairs[:, :, 1]) > ref.norm(pairs[:, :, 0])
        self.near(y, np.where(larger[..., None], pairs[:, :, 1], pairs[:, :, 0]))
        dx = hz.quat_pool_bwd(index, y, x.shape, window=2)
        self.near(dx.sum(), y.sum(), 1e-4)
        # One number is that of every spatial dimension
        image, taps = self.normal(2, 5, 6, 3, 4), self.normal(4, 2, 3, 3, 4)
        near = hz.quat_conv(image, taps, stride=2, pad=np.int64(1), dilation=np.array([1, 1]))
        np.testing.assert_array_equal(near, hz.quat_conv(image, taps, stride=(2, 2), pad=(1, 1)))
        np.testing.assert_array_equal(
            hz.quat_conv_bwd(image, taps, None, near, stride=2, pad=1)[0],
            hz.quat_conv_bwd(image, taps, None, near, stride=(2, 2), pad=(1, 1))[0])
        np.testing.assert_array_equal(hz.quat_pool(image, window=2)[0],
                                      hz.quat_pool(image, window=(2, 2))[0])
        y, none = hz.quat_pool(x, window=2, kind="average")
        self.assertIsNone(none)
        self.near(y, pairs.mean(2))
        y = hz.quat_dropout(x, p=0.5, seed=3)
        kept = np.any(y != 0, -1)
        self.near(y, np.where(kept[..., None], 2 * x, 0))
        self.assertTrue(0 < kept.sum() < kept.size)
        w = hz.quat_init(((50, 4), "f4"), hz.QUAT_UNITARY, 2.0, 1)
        self.near(ref.norm(w), np.full(50, 2.0))
        np.testing.assert_array_equal(hz.quat_init(((50, 4), "f4"), "unitary", 2.0, 1), w)
        self.assertRaisesRegex(ValueError, "none of polar, unitary, normal", hz.quat_init,
                               ((50, 4), "f4"), "uniform", 2.0)
        self.near(np.array(hz.quat_init_scale(8)), 0.25)


class Lattices(Case):
    def test_arrays_of_options(self):
        """The library reads arrays of options by their addresses, as many numbers as it needs."""
        code = {"q": 4, "levels": 1, "beta": 1}
        for key, size, wanted, options in (
                ("basis", 4, 9, {"kind": "basis", "dim": 3}), ("dither", 2, 8, {"kind": "e8"}),
                ("dither", 8, 4, {"kind": "d"}), ("transform", 9, 64, {"kind": "e8"}),
                ("offset", 3, 2, {"kind": "a2"}), ("dither", 2, 1, {"kind": "z"}),
                ("bank", 2, 3, {"kind": "z", "policy": "bank", "banks": 3})):
            self.assertRaisesRegex(ValueError, f"{key} has {size} numbers, not {wanted}",
                                   hz.Lattice, **code, **options, **{key: np.ones(size)})
        with hz.Lattice(kind="basis", basis=np.eye(3), **code) as lattice:
            self.assertEqual(lattice.info.dim, 3)
        with hz.Lattice(kind="e8", policy="bank", bank=[1, 2], **code) as lattice:
            self.assertEqual(lattice.info.scales, 2)
        for message, call, options in (
                ("hadamard is 3, not a dictionary", hz.quantize, {"hadamard": 3, "scale": 1}),
                ("packed is 'x', not a Packed", hz.qlinear, {"packed": "x"}),
                ("codes is None, not an array", hz.Coded, None),
                ("w is None, not a Lattice", hz.Vlut, None)):
            self.assertRaisesRegex(TypeError, message, call, *(
                [None] if options is None else [np.ones((2, 4), "f4")]), **(options or {}))
        self.assertRaisesRegex(hz.Error, "opts->banks is 2, must be 0 unless opts->policy",
                               hz.Lattice, kind="e8", bank=[1, 2], **code)

    def test_codes(self):
        x = self.normal(6, 50)
        with hz.Lattice(kind="d", dim=4, q=4, levels=2, beta=0.5, policy="t") as lattice:
            codes, t, none = lattice.encode(x)
            self.assertEqual((codes.shape, t.shape, none), ((6, 13, 2), (6, 13), None))
            y = lattice.decode(codes, t)
            self.assertLess(np.max(np.abs(y[:, :50] - x)), 1.5)
            points = lattice.decode(codes, to="points")
            scales = lattice.info.scale_table[t][..., None]
            self.near(y, ((points - lattice.info.offset) * scales).reshape(6, -1))
            self.assertEqual(lattice.decode(codes, to="digits").shape, (6, 13, 2, 4))
            packed = lattice.repack(codes, "level", "full64")
            self.assertEqual(packed.shape, (6, 13))
            np.testing.assert_array_equal(lattice.repack(packed, "full64", "level"), codes)
            overload = lattice.encode(x, overload=((2,), "s64"))[2]
            np.testing.assert_array_equal(overload, [0, 0])
        self.assertRaises(ValueError, lattice.encode, x)

    def test_presets(self):
        x = self.normal(8, 256)
        lattice, report = hz.lattice_design(4.25, x=x)
        self.assertLessEqual(lattice.info.bits, 4.3)
        self.assertLess(report["mse"], 0.02)
        codes, t, _, scale = lattice.encode(x, row_scale=True)
        self.near(scale, np.sqrt(np.square(x, dtype="f8").mean(-1)))
        y = lattice.decode(codes, t, row_scale=scale)
        self.assertLess(np.mean((x - y) ** 2), 0.01)

    def test_products(self):
        w, limit = self.normal(12, 64), 1e-4 if DEVICE in (None, "cpu") else 1e-3
        lattice = hz.Lattice(preset="e8_4_25")
        codes, t, _, scale = lattice.encode(w, row_scale=True)
        decoded = lattice.decode(codes, t, row_scale=scale).astype("f8")
        x = self.normal(5, 64)
        with hz.Vlut(lattice) as vlut:
            coded = hz.Coded(codes, t, scale)
            for matrix in (coded, vlut.pack(coded)):
                self.near(vlut.gemv(matrix, x[0]), decoded @ x[0], limit)
                self.near(vlut.gemm(matrix, x), x @ decoded.T, limit)
        with hz.Vlut(lattice) as vlut:
            cache, scales = vlut.empty(*w.shape), np.zeros(len(w), "f4")
            for i in range(len(w)):
                vlut.append(cache, w[i:i + 1], i, row_scale=scales[i:i + 1])
            n, bias = len(w) - 1, self.normal(len(w) - 1)
            first = hz.Coded(packed=cache, row_scale=scales[:n], rows=n, bias=bias,
                             activation="relu")
            self.near(vlut.gemm(first, x), np.maximum(x @ decoded[:n].T + bias, 0), limit)
        with hz.Vlut(lattice, lattice) as vlut:
            other = lattice.encode(x, row_scale=True)
            y = lattice.decode(other[0], other[1], row_scale=other[3])
            self.near(vlut.gemm2(coded, hz.Coded(other[0], other[1], other[3])), y @ decoded.T,
                      limit)


class LinearLayers(Case):
    def test_formats(self):
        w, bias, x = self.normal(24, 64), self.normal(24), self.normal(2, 5, 64)
        for name, limit in (("s8_row", 0.02), ("e8_4_50", 0.08), ("e8_2_25", 0.4)):
            for flags in (0, hz.LINEAR_ROTATE):
                with hz.Linear(w, format=name, flags=flags, seed=3 * flags) as layer:
                    self.assertEqual((layer.out, layer.in_), w.shape)
                    stored = layer.dequantize().astype("f8")
                    self.assertLess(np.linalg.norm(stored - w), limit * np.linalg.norm(w))
                    self.near(layer(x, bias, activation="relu"),
                              np.maximum(x @ stored.T + bias, 0), 2e-2)
                    gate, up = np.split(x @ stored.T, 2, -1)
                    self.near(layer(x, flags=hz.LINEAR_GATED, activation="relu"),
                              np.maximum(gate, 0) * up, 3e-2)
                    dy = self.normal(2, 5, 24)
                    self.near(layer.bwd(dy), dy @ stored, 1e-4)

    def test_file(self):
        layer, x = hz.Linear(self.normal(16, 32), format="e8_4_25"), self.normal(3, 32)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "layer")
            data = layer.save(path)
            np.testing.assert_array_equal(hz.Linear.load(path)(x), layer(x))
        np.testing.assert_array_equal(hz.Linear.load(data.tobytes()[:])(x), layer(x))
        self.assertRaises(hz.InvalidError, hz.Linear.load, bytes(1000))
        layer.close()
        self.assertRaisesRegex(ValueError, "closed", layer, x)


class HyperConnections(Case):
    n, c, tokens = 4, 6, (2, 3)

    def weights(self):
        m = hz.mhc_rows(self.n)
        return self.normal(m, self.n * self.c), np.array([.5, .7, .9], "f4"), self.normal(m)

    def test_sinkhorn(self):
        m, dp = self.normal(3, 4, 4), self.normal(3, 4, 4)
        self.near(hz.mhc_sinkhorn(m), ref.sinkhorn(m.astype("f8")))
        self.near(hz.mhc_sinkhorn_bwd(m, dp), ref.gradient(ref.sinkhorn, [m], dp)[0], 1e-4)
        p = hz.mhc_sinkhorn(m, preset="paper", eps=0, iterations=100)
        self.near(p.sum(-1), np.ones((3, 4)), 1e-4)

    def test_parts(self):
        n, c = self.n, self.c
        x, r, f = self.normal(*self.tokens, n, c), self.normal(*self.tokens, n, c), self.normal(
            *self.tokens, c)
        p, q, a = self.normal(n), self.normal(*self.tokens, n), self.normal(2, 1, n, n)
        a = np.ascontiguousarray(np.broadcast_to(a, (*self.tokens, n, n)))
        p = np.ascontiguousarray(np.broadcast_to(p, (*self.tokens, n)))
        u, mixed = hz.mhc_mix(x, p, a)
        self.near(u, ref.mix(x, p))
        self.near(mixed, np.einsum("...ij,...jc->...ic", a, x))
        u, mixed = hz.mhc_mix(x, p)
        self.assertIsNone(mixed)
        du, dr = self.normal(*f.shape), self.normal(*x.shape)
        both = lambda x, p, a: np.concatenate(      # noqa: E731
            [ref.mix(x, p)[..., None, :], np.einsum("...ij,...jc->...ic", a, x)], -2)
        dy = np.concatenate([du[..., None, :], dr], -2)
        for found, grad in zip(hz.mhc_mix_bwd(x, p, a, du, dr), ref.gradient(both, [x, p, a], dy)):
            self.near(found, grad, 1e-4)
        self.near(hz.mhc_add(r, f, q), r + q[..., None] * f[..., None, :])
        dr, df, dq = hz.mhc_add_bwd(f, q, r)
        self.assertIsNone(dr)
        self.near(df, ref.mix(r, q))
        self.near(dq, np.einsum("...ic,...c->...i", r, f))
        bias = self.normal(c)
        self.near(hz.mhc_post(x, f, q, a, bias), ref.post(x, f, q, a, bias))
        numeric = ref.gradient(ref.post, [x, f, q, a, bias], r)
        for found, grad in zip(hz.mhc_post_bwd(x, f, q, a, bias, r), numeric):
            self.near(found, grad, 1e-4)
        streams = hz.mhc_expand(f, (*self.tokens, n, c))
        self.near(hz.mhc_expand_bwd(streams), n * f)
        out = hz.mhc_diagnose(np.eye(n, dtype="f4")[None])
        self.near(out, [[0, 0, 1, 1]])

    def test_pre(self):
        x = self.normal(*self.tokens, self.n, self.c)
        phi, alpha, bias = self.weights()
        p, q, a, u, saved = hz.mhc_pre(x, phi, alpha, bias, saved=True)
        for found, expected in zip((p, q, a, u), ref.pre(x, phi, alpha, bias)):
            self.near(found, expected, 1e-4)
        self.near(hz.mhc_weights(x, phi, alpha, bias)[1], q)
        du, dq, da = self.normal(*u.shape), self.normal(*q.shape), self.normal(*a.shape)
        dy = np.concatenate([g.reshape(-1) for g in (dq, da, du)])
        flat = lambda *v: np.concatenate([g.reshape(-1) for g in ref.pre(*v)[1:]])  # noqa: E731
        numeric = ref.gradient(flat, [x, phi, alpha, bias], dy)
        for given in (saved, None):
            found = hz.mhc_pre_bwd(x, phi, alpha, bias, du=du, dq=dq, da=da, saved=given)
            for grad, expected in zip(found, numeric):
                self.near(grad, expected, 1e-3)
        static = hz.mhc_pre(x, None, None, bias, coefficients="static")
        self.assertEqual([v.shape for v in static[:3]], [(4,), (4,), (4, 4)])
        p, q, a, u = hz.mhc_pre(x, phi[:8], alpha[:2], bias[:8], preset="hy_v4")
        self.assertIsNone(a)

    def test_gated(self):
        x, k = self.normal(*self.tokens, self.n, self.c), self.n * self.c
        args = [x, self.normal(3, k), self.normal(k, 3), self.normal(self.n, k), 1 + self.normal(k)]
        weights, gain = args[1:4], args[4]
        q, u = hz.mhc_gated_pre(x, *weights, gain=gain)
        for found, expected in zip((q, u), ref.gated(*args)):
            self.near(found, expected, 1e-4)
        self.near(hz.mhc_gated_pre(x, *weights[:2], None, gain=gain)[1], u)
        dq, du = self.normal(*q.shape), self.normal(*u.shape)
        flat = lambda *v: np.concatenate([g.reshape(-1) for g in ref.gated(*v)])  # noqa: E731
        numeric = ref.gradient(flat, args, np.concatenate([dq.reshape(-1), du.reshape(-1)]))
        found = hz.mhc_gated_pre_bwd(x, *weights, du=du, dq=dq, gain=gain, dgain=True)
        for grad, expected in zip(found, numeric):
            self.near(grad, expected, 1e-3)

    def test_orders_and_codes(self):
        x = self.normal(*self.tokens, self.n, self.c)
        phi, alpha, bias = self.weights()
        plain = hz.mhc_pre(x, phi, alpha, bias, rms="stream")
        order = phi.reshape(-1, self.n, self.c).swapaxes(1, 2).reshape(phi.shape)
        for found, expected in zip(hz.mhc_pre(x.swapaxes(-1, -2).copy(), order.copy(), alpha, bias,
                                              rms="stream", streams="cn"), plain):
            self.near(found, expected, 1e-5)
        u = plain[3]
        codes, scales = np.zeros(u.shape, "i1"), np.zeros((*u.shape[:-1], 1), "f4")
        hz.mhc_pre(x, phi, alpha, bias, rms="stream", u_codes=codes,
                   u_quantize={"new_scales": scales})
        self.near(codes * scales, u, 1e-2)

    def test_boundary_and_head(self):
        x, f = self.normal(*self.tokens, self.n, self.c), self.normal(*self.tokens, self.c)
        phi, alpha, bias = self.weights()
        p, q, a, u = hz.mhc_pre(x, phi, alpha, bias)
        y, p2, q2, a2, u2 = hz.mhc_post_pre(x, f, q, a, None, phi, alpha, bias)
        self.near(y, ref.post(x, f, q, a), 1e-4)
        self.near(u2, ref.pre(y, phi, alpha, bias)[3], 1e-4)
        du = self.normal(*u2.shape)
        df, dq, none, dx, dphi, dalpha, dbias = hz.mhc_post_pre_bwd(
            y, phi, alpha, bias, f, q, None, du=du)
        other = hz.mhc_pre_bwd(y, phi, alpha, bias, du=du)
        for found, expected in zip((dx, dphi, dalpha, dbias), other):
            self.near(found, expected, 1e-4)
        self.near(df, ref.mix(dx, q), 1e-4)
        self.assertIsNone(none)
        n, one = self.n, np.array([.5], "f4")
        p, h = hz.mhc_head(x, phi[:n], one, bias[:n])
        self.near(h, ref.mix(x, p), 1e-4)
        grads = hz.mhc_head_bwd(x, phi[:n], one, bias[:n], du=f)
        self.assertEqual([g.shape for g in grads], [x.shape, (n, n * self.c), (1,), (n,)])
        p, h = hz.mhc_head(x, head="mean")
        self.near(h, x.mean(-2))
        blocks = [{"p": p, "q": q, "a": a, "f": f, "u": np.empty_like(f), "y": np.empty_like(x)}]
        hz.mhc_recompute(x, blocks)
        np.testing.assert_array_equal(blocks[0]["y"], hz.mhc_post(x, f, q, a))

    def test_init_and_layer(self):
        n, c = self.n, self.c
        m = hz.mhc_rows(n)
        phi, alpha, bias = hz.mhc_init("identity", 0, 1, ((m, n * c), "f4"),
                                       ((3,), "f4"), ((m,), "f4"))
        x, f, dy = self.normal(7, n, c), self.normal(7, c), self.normal(7, n, c)
        grads = {"dphi": np.zeros_like(phi), "dalpha": np.zeros_like(alpha),
                 "dbias": np.zeros_like(bias)}
        with hz.MhcLayer(n, 7, phi=phi, alpha=alpha, bias=bias, **grads) as layer:
            u = layer.begin(x)
            y = layer.end(x, f)
            p, q, a, expected = hz.mhc_pre(x, phi, alpha, bias)
            self.near(u, expected)
            self.near(y, ref.post(x, f, q, a))
            df = layer.end_bwd(f, dy)
            self.near(df, ref.mix(dy, q))
            dx = layer.begin_bwd(x, dy, df)
            dq = np.einsum("tic,tc->ti", dy, f).astype("f4")
            found = hz.mhc_pre_bwd(x, phi, alpha, bias, du=df, dq=dq, dy=dy)
            for grad, other in zip((dx, *grads.values()), found):
                self.near(grad, other, 1e-4)
        opts = {"preset": "transformer_engine"}         # streams are [..., C, n]
        with hz.MhcLayer(n, 7, opts=opts, phi=phi, alpha=alpha, bias=bias) as layer:
            x = self.normal(7, c, n)
            self.near(layer.begin(x), hz.mhc_pre(x, phi, alpha, bias, **opts)[3])


class Names(Case):
    def test_every_operation_is_tested(self):
        with open(__file__, encoding="utf-8") as file:
            text = file.read()
        tested = {"lattice_encode": ".encode", "lattice_decode": ".decode", "copy": "hz.copy",
                  "lattice_repack": ".repack", "linear_forward": "layer("}
        for name in hz._core.RULES:
            short = name.removeprefix("vlut_").removeprefix("mhc_layer_").removeprefix("linear_")
            spellings = [tested.get(name, f"hz.{name}("), f".{short}(",
                         f'"{name.removeprefix("quat_").removesuffix("_bwd")}"']
            self.assertTrue(any(s in text for s in spellings), name)

    def test_copy(self):
        x = self.normal(3, 4)
        x = x.T if DEVICE in (None, "cpu") else x.T.copy()      # a GPU copies what is contiguous
        np.testing.assert_array_equal(hz.copy(x), x)
        self.assertTrue(hz.supports("hadamard", ["f32", "f32"]))
        self.assertFalse(hz.supports("hadamard", ["f64", "f64"]))


if __name__ == "__main__":
    unittest.main()
