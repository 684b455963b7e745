# torch_cuda.py - on a GPU: streams, graphs, memory, threads, arrays of other libraries
# SPDX-License-Identifier: BSD-2-Clause
import gc
import os
import threading
import unittest

import numpy as np
import torch

import hurwitz as hz
import hurwitz.torch as hzt

try:
    import cupy
except ImportError:
    cupy = None

SEED = int(os.environ.get("HZ_TEST_SEED", int.from_bytes(os.urandom(4), "little")))


class Interface:
    """What has __cuda_array_interface__ alone, or __dlpack__ alone."""

    def __init__(self, tensor, dlpack=False):
        self.tensor = tensor
        if dlpack:
            self.__class__ = Capsule
        else:
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__


class Capsule(Interface):
    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)


class Layer(torch.nn.Module):
    """Hyper-connections around a quaternion layer."""

    def __init__(self, dim, **options):
        super().__init__()
        self.hc = hzt.HyperConnection(dim, **options)
        self.linear = hzt.QuaternionLinear(dim // 4, dim // 4, activation="relu")

    def forward(self, H):
        u, add_residual = self.hc(H)
        return add_residual(self.linear(u.unflatten(-1, (-1, 4))).flatten(-2))


@unittest.skipUnless(os.environ.get("HZ_TEST_DEVICE") == "cuda", "HZ_TEST_DEVICE is not cuda")
class Cuda(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(SEED)
        self.device = torch.device("cuda", 0)

    def normal(self, *shape, dtype=torch.float32):
        return torch.randn(*shape, device=self.device, dtype=dtype)

    def layer(self, dim=64, **options):
        layer = Layer(dim, **options).to(self.device)
        with torch.no_grad():
            for p in layer.parameters():
                p.add_(0.1 * torch.randn_like(p))
        return layer

    @staticmethod
    def step(layer, H, dy):
        y = layer(H)
        return [y.detach(), *torch.autograd.grad(y, [H, *layer.parameters()], dy)]

    def same(self, found, expected):
        for a, b in zip(found, expected, strict=True):
            self.assertTrue(torch.equal(a, b), f"seed {SEED}")

    def test_streams(self):
        # Kernels of a stream that is busy read operands late, and other streams use their workspace
        layer = self.layer(256, preset="deepseek_v4")
        sets = [(self.normal(4, 300, 4, 256).requires_grad_(), self.normal(4, 300, 4, 256))
                for _ in range(4)]
        expected = [self.step(layer, *one) for one in sets]
        streams = [torch.cuda.Stream() for _ in sets]
        torch.cuda.synchronize()
        for _ in range(5):
            found = []
            for stream, one in zip(streams, sets):
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(200000)
                    found.append(self.step(layer, *one))
            torch.cuda.synchronize()
            for a, b in zip(found, expected):
                self.same(a, b)

    def test_graphs(self):
        layer = self.layer(preset="deepseek_v4")
        H, dy = self.normal(2, 40, 4, 64).requires_grad_(), self.normal(2, 40, 4, 64)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step(layer, H, dy)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = self.step(layer, H, dy)
        for tokens in (40, 40, 4000):   # larger calls between replays need more workspace
            with torch.no_grad():
                H.copy_(self.normal(*H.shape))
                dy.copy_(self.normal(*dy.shape))
            graph.replay()
            kept = [t.clone() for t in found]
            self.step(layer, self.normal(2, tokens, 4, 64).requires_grad_(),
                      self.normal(2, tokens, 4, 64))
            graph.replay()
            self.same(found, kept)
            self.same(self.step(layer, H, dy), kept)

    def test_compile(self):
        layer = self.layer(preset="deepseek_v4")
        for options in ({}, {"mode": "reduce-overhead"}):
            compiled = torch.compile(layer, fullgraph=True, **options)
            for _ in range(3):
                H, dy = self.normal(2, 40, 4, 64).requires_grad_(), self.normal(2, 40, 4, 64)
                for a, b in zip(self.step(compiled, H, dy), self.step(layer, H, dy)):
                    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)

    def test_memory(self):
        layer = self.layer()
        quantized = hzt.QuantizedLinear(64, 64, format="e8_4_50", rotate=True).to(self.device)
        H, dy = self.normal(2, 40, 4, 64).requires_grad_(), self.normal(2, 40, 4, 64)
        x = self.normal(6, 4)

        def work(count):
            for _ in range(count):
                self.step(layer, H, dy)
                quantized(H)
                hz.quat_conj(Interface(x), x)
                try:
                    hz.quat_mul(x, x[..., :-1])
                except ValueError:
                    pass

        work(50)
        torch.cuda.synchronize()
        gc.collect()
        before = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
        work(1000)
        torch.cuda.synchronize()
        gc.collect()
        self.assertEqual(torch.cuda.memory_allocated(), before[0])
        self.assertGreaterEqual(torch.cuda.mem_get_info()[0], before[1])

    def test_threads(self):
        layer = self.layer(preset="deepseek_v4")
        H, dy = self.normal(2, 40, 4, 64).requires_grad_(), self.normal(2, 40, 4, 64)
        expected, wrong = self.step(layer, H, dy), []
        torch.cuda.synchronize()

        def work(i):
            try:
                stream = torch.cuda.Stream() if i % 2 else torch.cuda.current_stream()
                with torch.cuda.stream(stream):
                    for _ in range(5):
                        found = self.step(layer, H, dy)
                        stream.synchronize()
                        self.same(found, expected)
            except BaseException as error:
                wrong.append(repr(error))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_in_place(self):
        layer = self.layer()
        H = self.normal(2, 5, 4, 64)
        y = layer(H)
        H.add_(1)
        self.assertRaisesRegex(RuntimeError, "inplace", y.sum().backward)
        x = self.normal(64, 4)
        expected = hz.quat_mul(x, x)
        hz.quat_mul(x, x, x)
        self.same([x], [expected])

    def test_other_arrays(self):
        x = self.normal(6, 5, 4)
        expected = hz.quat_conj(x)
        for view in (x, x[::2], x.transpose(0, 1), x[:, 1:3], x[:1].expand(6, 5, 4)):
            for dlpack in (False, True):
                y = torch.empty(view.shape, device=self.device)
                hz.quat_conj(Interface(view, dlpack), Interface(y, dlpack))
                self.same([y], [hz.quat_conj(view)])
        self.assertRaisesRegex(ValueError, "have to be given", hz.quat_conj, Interface(x))
        self.assertRaisesRegex(ValueError, "b is on the CPU", hz.quat_mul, x, x.cpu())
        with self.assertRaises(ValueError):
            hz.quat_conj(x, np.empty((6, 5, 4), "f4"))
        self.assertEqual(hz.context("cuda").info["gpu_name"], torch.cuda.get_device_name())
        try:
            import jax
        except ImportError:
            return
        jax.devices()                   # whose start may leave another GPU current
        torch.cuda.set_device(self.device)
        y = torch.empty_like(x)
        hz.quat_conj(jax.dlpack.from_dlpack(x), y)
        self.same([y], [expected])

    @unittest.skipUnless(cupy, "no CuPy here")
    def test_cupy(self):
        x = cupy.random.default_rng(SEED).standard_normal((300, 4, 256), dtype="f4")
        phi = cupy.random.default_rng(1).standard_normal((24, 1024), dtype="f4")
        alpha, bias = cupy.ones(3, "f4"), cupy.zeros(24, "f4")
        for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
            cupy.cuda.runtime.deviceSynchronize()
            with stream:
                twice = 2 * x
                p, q, a, u = hz.mhc_pre(twice, phi, alpha, bias)
                grads = hz.mhc_pre_bwd(twice, phi, alpha, bias, du=u)
                y = hz.hadamard(u[:, ::-1], "f16")
            stream.synchronize()
            self.assertIsInstance(u, cupy.ndarray)
            t = [torch.as_tensor(v, device=self.device) for v in (twice, phi, alpha, bias)]
            expected = hz.mhc_pre(*t)
            self.same([torch.as_tensor(v, device=self.device) for v in (p, q, a, u)], expected)
            other = hz.mhc_pre_bwd(*t, du=expected[3])
            self.same([torch.as_tensor(v, device=self.device) for v in grads], other)
            self.same([torch.as_tensor(y, device=self.device)],
                      [hz.hadamard(expected[3].flip(-1), "f16")])
        q = hz.quantize(x, "s4x2", scale=0.1)
        self.assertIsInstance(q.array, cupy.ndarray)

    def test_against_the_cpu(self):
        # Modules whose layers are objects of the library, and objects themselves
        linear = torch.nn.Linear(256, 96)
        x = torch.randn(3, 7, 256)
        for name in ("s8_row", "s4_g128", "e8_4_50"):
            layer = hzt.QuantizedLinear.from_linear(linear, format=name, rotate=True, seed=5)
            here, dy = x.clone().requires_grad_(), torch.randn(3, 7, 96)
            y = layer(here)
            y.backward(dy)
            bias = layer.bias.grad.clone()
            layer.zero_grad()
            layer.to(self.device)
            there = x.to(self.device).requires_grad_()
            found = layer(there)
            found.backward(dy.to(self.device))
            for a, b in ((found, y), (there.grad, here.grad), (layer.bias.grad, bias)):
                torch.testing.assert_close(a.cpu(), b, atol=3e-2, rtol=1e-2)
            direct = hz.Linear(linear.weight.detach().to(self.device), format=name)
            w = direct.dequantize()
            self.assertEqual((w.device.type, w.shape), ("cuda", (96, 256)))
            torch.testing.assert_close(direct(there.detach()), there.detach() @ w.T, atol=3e-2,
                                       rtol=1e-2)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork()")
    def test_fork(self):
        layer = self.layer()
        layer(self.normal(2, 5, 4, 64))
        x = torch.ones(16, 64)
        expected = hz.hadamard(x)
        child = os.fork()
        if child == 0:
            try:
                fine = torch.equal(hz.hadamard(x), expected)
                try:
                    hz.Context("cuda")
                    fine = False        # a child of a process with a GPU has none
                except hz.Error:
                    pass
            finally:
                os._exit(0 if fine else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        layer(self.normal(2, 5, 4, 64))


if __name__ == "__main__":
    unittest.main()
