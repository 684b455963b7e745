# test_arrays.py - arrays, errors, threads, memory
# SPDX-License-Identifier: BSD-2-Clause
import ctypes
import gc
import os
import subprocess
import sys
import threading
import unittest
import unittest.mock
import weakref

import numpy as np

import hurwitz as hz

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

SEED = int(os.environ.get("HZ_TEST_SEED", int.from_bytes(os.urandom(4), "little")))


class Capsule:
    """What other libraries hand over: __dlpack__ alone, of the old kind or the new."""

    def __init__(self, array, versioned):
        self.array, self.versioned = array, versioned

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        if not self.versioned and options:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**options)


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Arrays(unittest.TestCase):
    def setUp(self):
        self.x = np.arange(24, dtype="f4").reshape(2, 3, 4)

    def test_dlpack(self):
        for versioned in (False, True):
            x = Capsule(self.x[:, ::2], versioned)
            out = np.zeros((2, 2, 4), "f4")
            hz.quat_conj(x, Capsule(out, versioned))
            np.testing.assert_array_equal(out, self.x[:, ::2] * [1, -1, -1, -1])
            self.assertIsInstance(hz.quat_conj(x), np.ndarray)
        self.x.flags.writeable = False
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
            self.assertRaisesRegex(ValueError, "read-only", hz.quat_conj, out,
                                   Capsule(self.x[:, :2], True))

    def test_strides(self):
        x = self.x
        for view in (x[::-1], x.transpose(1, 0, 2), x[:, ::2, ::-1],
                     np.broadcast_to(x[:1], (5, 3, 4)), np.asfortranarray(x)):
            np.testing.assert_array_equal(hz.quat_conj(view), view * [1, -1, -1, -1])
        out = np.zeros((3, 2, 8), "f4")
        hz.quat_conj(x, out.transpose(1, 0, 2)[..., ::2])
        np.testing.assert_array_equal(out.transpose(1, 0, 2)[..., ::2], x * [1, -1, -1, -1])
        self.assertFalse(out[..., 1::2].any())
        record = np.zeros(3, [("a", "u1"), ("q", "f4", 4)])
        self.assertRaisesRegex(ValueError, "multiples", hz.quat_conj, record["q"])

    def test_read_only(self):
        x = self.x.copy()
        x.flags.writeable = False
        hz.quat_conj(x)
        self.assertRaisesRegex(ValueError, "y is read-only", hz.quat_conj, self.x, x)
        self.assertRaisesRegex(ValueError, "saved is read-only", hz.quat_batchnorm, self.x,
                               saved=np.broadcast_to(np.float32(0), (3, 14)))

    def test_empty(self):
        self.assertEqual(hz.quat_conj(self.x[:0]).shape, (0, 3, 4))
        self.assertEqual(hz.quantize(np.float32(3)[...], scale=1.0).shape, ())

    def test_dtypes(self):
        x = np.linspace(-3, 3, 32, dtype="f4")
        y = hz.hadamard(x, "bf16")
        if ml_dtypes:
            self.assertEqual(y.dtype, ml_dtypes.bfloat16)
            y, bits = y.astype("f4"), y.view("u2")
            self.assertEqual(hz.quantize(x, "e4m3", scale=1.0).dtype, ml_dtypes.float8_e4m3fn)
        else:
            y, bits = y.unpack(), y.array
        np.testing.assert_allclose(y, hz.hadamard(x), rtol=1e-2, atol=1e-2)
        np.testing.assert_array_equal(hz.view(bits, "bf16").unpack(), y)
        for name in ("e4m3", "e5m2", "e2m1x2", "s4x2", "u4x2", "s2x4", "u2x4"):
            q = hz.quantize(x, name, scale=1.0)
            q = q if isinstance(q, hz.View) else hz.view(q.view("u1"), name)
            np.testing.assert_array_equal(q.unpack(), hz.dequantize(q, scale=1.0), name)
        self.assertRaises(TypeError, hz.view, x, "f3")
        self.assertRaisesRegex(TypeError, "bytes", hz.quat_conj, hz.view(x, "f16"))

    def test_refused(self):
        refused = [
            (TypeError, lambda: hz.quat_conj([1, 2, 3, 4])),
            (TypeError, lambda: hz.quat_conj(self.x.astype(">f4"))),
            (TypeError, lambda: hz.quat_conj(self.x.astype("c8"))),
            (TypeError, lambda: hz.quat_conj(np.ma.array(self.x))),
            (ValueError, lambda: hz.quat_conj(self.x.reshape(1, 1, 1, 1, 2, 3, 4))),
            (ValueError, lambda: hz.quat_conj(self.x, flags=1 << 32)),
            (ValueError, lambda: hz.quat_conj(self.x, flags=-1)),
            (ValueError, lambda: hz.hadamard(self.x, plan="best")),
            (ValueError, lambda: hz.hadamard(self.x, plan=1 << 40)),
            (TypeError, lambda: hz.hadamard(self.x, plans=1)),
            (TypeError, lambda: hz.hadamard(self.x, factor="2")),
            (ValueError, lambda: hz.quat_conv(self.x[None], self.x[:, None], stride=[1] * 4)),
            (ValueError, lambda: hz.quat_mul(self.x, None)),
            (ValueError, lambda: hz.quat_pool_bwd(None, self.x[None], window=2)),
        ]
        for error, call in refused:
            self.assertRaises(error, call)

    def test_sentences(self):
        with self.assertRaisesRegex(hz.ShapeError, "y.shape") as caught:
            hz.quat_conj(self.x, np.empty((2, 3, 3), "f4"))
        self.assertIsInstance(caught.exception, hz.Error)
        self.assertEqual(caught.exception.status, hz.ESHAPE)
        self.assertRaises(hz.DtypeError, hz.quat_conj, self.x.astype("i4"))
        self.assertRaises(hz.AliasError, hz.quat_conj, self.x[:1],
                          self.x.reshape(-1)[4:16].reshape(1, 3, 4))
        self.assertRaises(hz.NoDeviceError, hz.Context, "cuda:1000")

    def test_nothing_is_written(self):
        guard = np.full((2, 3, 4), 7, "f4")
        calls = [lambda: hz.quat_mul(self.x, self.x[:, :2], guard),
                 lambda: hz.quat_mul(self.x, self.x, guard, 1 << 20),
                 lambda: hz.quat_conj(self.x.astype("f8"), guard),
                 lambda: hz.hadamard(self.x, guard, plan=77),
                 lambda: hz.hadamard(self.x, guard, block=3, max_block=-1)]
        for call in calls:
            self.assertRaises(hz.Error, call)
        np.testing.assert_array_equal(guard, 7)

    def test_one_array_twice(self):
        x = self.x.copy()
        hz.quat_mul(x, x, x)
        np.testing.assert_array_equal(x, hz.quat_mul(self.x, self.x))


class Contexts(unittest.TestCase):
    def test_context(self):
        x = np.ones((8, 64), "f4")
        with hz.Context("cpu", threads=1, isa="c") as ctx:
            self.assertEqual(ctx.info["isa_name"], "c")
            np.testing.assert_array_equal(hz.hadamard(x, ctx=ctx), hz.hadamard(x))
            ctx.set_threads(2)
            self.assertRaises(hz.InvalidError, ctx.set_threads, -1)
            with ctx.record() as recording:
                hz.mhc_mix_bwd(np.ones((64, 4, 64), "f4"), np.ones((64, 4), "f4"), None,
                               np.ones((64, 64), "f4"), ctx=ctx)
            self.assertGreaterEqual(recording.bytes, 0)
            ctx.reserve(recording.bytes)
            ctx.sync()
            ctx.prepare()
        self.assertRaisesRegex(ValueError, "closed", hz.hadamard, x, ctx=ctx)
        self.assertIs(hz.context(), hz.context("cpu"))

    def test_threads(self):
        x = np.random.default_rng(1).standard_normal((16, 256)).astype("f4")
        expected = hz.hadamard(x)
        wrong = []

        def work():
            for _ in range(20):
                if not np.array_equal(hz.hadamard(x), expected):
                    wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    @unittest.skipUnless(hasattr(os, "fork"), "no fork()")
    def test_fork(self):
        x = np.ones((64, 64), "f4")
        expected = hz.hadamard(x)
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(hz.hadamard(x), expected) else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    @unittest.skipUnless(os.path.exists("/proc/self/statm"), "no /proc")
    def test_memory(self):
        x = np.ones((2, 3, 8, 4), "f4")
        w = np.ones((5, 8, 4), "f4")
        bank = np.linspace(1, 2, 4)

        def work(count):
            for _ in range(count):
                y, pre = hz.quat_linear(x, w, activation="relu", pre=True)
                hz.quat_linear_bwd(x, w, None, y, activation="relu", pre=pre)
                hz.quat_conj(Capsule(x, True))
                try:
                    hz.quat_mul(x, w)
                except ValueError:
                    pass
                with hz.Lattice(kind="z", q=4, levels=2, beta=.5, policy="bank", banks=4,
                                bank=bank) as lattice:
                    lattice.encode(x[0, 0])

        work(200)
        gc.collect()
        before = resident()
        work(1000)
        gc.collect()
        self.assertLess(resident() - before, 1 << 20)

    def test_command(self):
        found = subprocess.run([sys.executable, "-m", "hurwitz", "info"], capture_output=True,
                               text=True, check=True)
        self.assertIn(hz.__version__, found.stdout)
        found = subprocess.run([sys.executable, "-c", "import hurwitz"], capture_output=True,
                               text=True, env={**os.environ, "HURWITZ_LIBRARY": "/nowhere.so"},
                               check=False)
        self.assertIn("set HURWITZ_LIBRARY", found.stderr)
        self.assertRaises(ValueError, hz.Context, "gpu")

    def test_struct_sizes_fit_the_views(self):
        self.assertEqual(ctypes.sizeof(hz._core.hz_tensor), 112)


class Prepared(unittest.TestCase):
    """From the third call of a signature on addresses alone are set: nothing else of earlier ones
    holds."""

    CONJ = np.float32([1, -1, -1, -1])

    def setUp(self):
        hz._core._thread.prepared.clear()
        self.random = np.random.default_rng(SEED)

    def array(self, *shape, dtype="f4"):
        return self.random.standard_normal(shape).astype(dtype)

    def count(self):
        return len(hz._core._thread.prepared)

    def test_addresses(self):
        def product(a, b):
            (p, *u), (q, *v) = a.T, b.T
            u, v = np.stack(u, -1), np.stack(v, -1)
            return np.concatenate([(p * q - (u * v).sum(-1))[:, None],
                                   p[:, None] * v + q[:, None] * u + np.cross(u, v)], -1)

        for _ in range(4):
            a, b, y = self.array(5, 4), self.array(5, 4), np.zeros((5, 4), "f4")
            for one, other in ((a, b), (a, a), (b, a), (b, b)):
                expected = product(one, other)
                np.testing.assert_allclose(hz.quat_mul(one, other), expected, atol=1e-5)
                self.assertIs(hz.quat_mul(one, other, y), y)
                np.testing.assert_allclose(y, expected, atol=1e-5)
            expected = product(a, b)
            hz.quat_mul(a, b, a)
            np.testing.assert_allclose(a, expected, atol=1e-5)
        self.assertEqual(self.count(), 2)       # y is allocated, or given

    def test_freed_memory(self):
        """Arrays of other shapes, strides and dtypes at addresses that were others'."""
        memory = np.zeros(4096, "u1")
        addresses = set()
        for _ in range(200):
            dtype = self.random.choice(["f4", "f2", "f8"])
            rows, step = int(self.random.integers(1, 5)), int(self.random.integers(1, 4))
            start = 8 * int(self.random.integers(0, 3))
            x = memory[start:start + rows * 4 * step * np.dtype(dtype).itemsize].view(dtype)
            x[...] = self.random.standard_normal(x.size)
            x = x.reshape(rows, step, 4)[:, ::-1] if step == 2 else x.reshape(rows, 4, step)[..., 0]
            addresses.add(x.__array_interface__["data"][0])
            y = hz.quat_conj(x)
            self.assertEqual((y.shape, y.dtype), (x.shape, x.dtype))
            np.testing.assert_array_equal(y, x * self.CONJ.astype(dtype))
        self.assertLess(len(addresses), 20)

    def test_values_are_of_the_signature(self):
        x = self.array(3, 64)
        for factor in (2, 2.5, 2.0, 0.5, np.float32(0.25), np.array(4.0), np.array(8.0), True):
            for _ in range(4):
                np.testing.assert_allclose(hz.hadamard(x, factor=factor),
                                           hz.hadamard(x) * np.float32(factor), atol=1e-5)
        q = self.array(3, 4)
        for _ in range(4):
            np.testing.assert_array_equal(hz.quat_mul(q, q, flags=1), hz.quat_mul(q, q, flags=True))
            self.assertRaises(TypeError, hz.quat_mul, q, q, flags=1.0)
        signs = np.ones(64, "f4")
        for sign in (1, -1):                    # contents of an operand of the options
            signs[:] = sign
            np.testing.assert_array_equal(hz.hadamard(x, pre=signs), sign * hz.hadamard(x))

    def test_other_libraries(self):
        x = self.array(3, 4)
        read_only = x.view()
        read_only.flags.writeable = False
        view = hz.view(x, "f32")
        for _ in range(4):
            for one in (x, read_only, view, Capsule(x, True)):
                y = hz.quat_conj(one)
                self.assertIs(type(y), np.ndarray)
                np.testing.assert_array_equal(y, x * self.CONJ)
            y = np.zeros_like(x)
            hz.quat_conj(x, y)
            y.flags.writeable = False
            self.assertRaisesRegex(ValueError, "y is read-only", hz.quat_conj, x, y)

    def test_errors_do_not_stay(self):
        x, other = self.array(3, 4), self.array(5, 4)
        for _ in range(4):
            self.assertRaises(hz.ShapeError, hz.quat_mul, x, other)
            np.testing.assert_array_equal(hz.quat_conj(x), x * self.CONJ)
            self.assertRaises(hz.AliasError, hz.quat_dot, x[None], x[None], x[:1])
        with hz.Context("cpu") as ctx:
            hz.quat_conj(x, ctx=ctx)
            hz.quat_conj(x, ctx=ctx)
        for _ in range(4):
            self.assertRaisesRegex(ValueError, "closed", hz.quat_conj, x, ctx=ctx)
            self.assertRaises(TypeError, hz.quat_conj, x, ctx="cpu")
        np.testing.assert_array_equal(hz.quat_conj(x), x * self.CONJ)

    def test_accumulated(self):
        a, b, dy = self.array(3, 4), self.array(3, 4), self.array(3, 4)
        da, db = hz.quat_mul_bwd(a, b, dy)
        for _ in range(4):                      # new outputs begin with zeros
            found = hz.quat_mul_bwd(a, b, dy, flags=hz.QUAT_ACCUMULATE)
            np.testing.assert_array_equal(found[0], da)
            np.testing.assert_array_equal(found[1], db)
            self.assertIsNone(hz.quat_mul_bwd(a, b, dy, db=None)[1])

    def test_calls_within_calls(self):
        """As a finalizer or a signal handler makes them, between a call's Python statements."""
        x, inner, empty = self.array(3, 4), [], np.empty

        def make(*arguments, **options):        # while the output is allocated
            if not inner:
                inner.append(None)
                inner.append(hz.quat_conj(x + 1))
            return empty(*arguments, **options)

        for _ in range(4):
            inner.clear()
            with unittest.mock.patch.object(hz._arrays.np, "empty", make):
                y = hz.quat_conj(x)
            np.testing.assert_array_equal(y, x * self.CONJ)
            np.testing.assert_array_equal(inner[1], (x + 1) * self.CONJ)

    def test_nothing_is_kept(self):
        x = self.array(3, 4)
        gone = [weakref.ref(x)] + [weakref.ref(hz.quat_conj(x)) for _ in range(4)]
        self.assertEqual(self.count(), 1)
        del x
        gc.collect()
        self.assertEqual([one() for one in gone], [None] * 5)
        for n in range(1, 1200):
            hz.quat_conj(np.zeros((n, 4), "f4"))
        self.assertLessEqual(self.count(), hz._core.PREPARED)


if __name__ == "__main__":
    unittest.main()
