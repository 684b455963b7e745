# torch_ops.py - the operators of hurwitz.torch: gradients, compilation, autocast, processes
# SPDX-License-Identifier: BSD-2-Clause
import os
import threading
import unittest

import numpy as np
import torch

import hurwitz as hz
import hurwitz.torch as hzt

SEED = int(os.environ.get("HZ_TEST_SEED", int.from_bytes(os.urandom(4), "little")))
F64 = torch.float64
DEVICE = os.environ.get("HZ_TEST_DEVICE", "cpu")
if DEVICE != "cpu":
    torch.set_default_device(DEVICE)


def sinkhorn(z, iterations=20, eps=1e-6):
    p = torch.softmax(z, -1) + eps
    p = p / (p.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        p = p / (p.sum(-1, keepdim=True) + eps)
        p = p / (p.sum(-2, keepdim=True) + eps)
    return p


def mix(x, p, a):
    return torch.einsum("...i,...ic->...c", p, x), torch.einsum("...ij,...jc->...ic", a, x)


def post(x, f, q, a):
    return torch.einsum("...ij,...jc->...ic", a, x) + q[..., None] * f[..., None, :]


def add(r, f, q):
    return r + q[..., None] * f[..., None, :]


def pre(x, phi, alpha, bias):
    """The preset deepseek_v4."""
    n = x.shape[-2]
    flat = x.flatten(-2)
    y = flat @ phi.T / (flat.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    z = y * alpha.repeat_interleave(torch.tensor([n, n, n * n])) + bias
    p, q = torch.sigmoid(z[..., :n]) + 1e-6, 2 * torch.sigmoid(z[..., n:2 * n])
    a = sinkhorn(z[..., 2 * n:].unflatten(-1, (n, n))).transpose(-1, -2)
    return p, q, a, mix(x, p, a)[0]


def head(x, phi, alpha, bias):
    flat = x.flatten(-2)
    y = flat @ phi.T / (flat.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    p = torch.sigmoid(alpha * y + bias) + 1e-6
    return p, torch.einsum("...i,...ic->...c", p, x)


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(SEED)

    def against(self, function, reference, *shapes, tolerance=1e-4, views=True):
        """Results and gradients in f32 against autograd's of a reference in f64."""
        leaves = [torch.randn(shape) for shape in shapes]
        for strided in (False, True) if views else (False,):
            mine = [t.clone().requires_grad_() for t in leaves]
            other = [t.to(F64).requires_grad_() for t in leaves]
            inputs = [t.flip(0).flip(0) if not strided else
                      torch.stack([t, t], -1)[..., 0] for t in mine]
            found, expected = function(*inputs), reference(*other)
            found = found if isinstance(found, tuple) else (found,)
            expected = expected if isinstance(expected, tuple) else (expected,)
            grads = [torch.randn(t.shape) for t in found]
            torch.autograd.backward(found, grads)
            torch.autograd.backward(expected, [g.to(F64) for g in grads])
            for a, b in [*zip(found, expected), *zip([t.grad for t in mine],
                                                     [t.grad for t in other])]:
                self.assertEqual(a.shape, b.shape)
                error = (a.to(F64) - b).abs().max() / (1 + b.abs().max())
                self.assertLess(float(error.detach()), tolerance, f"seed {SEED}")


def gradcheck(function, leaves, **options):
    """PyTorch's gradcheck() in f64 on the CPU; elsewhere f32 against that."""
    if DEVICE == "cpu":
        torch.autograd.gradcheck(function, leaves, **options)
        return
    there = [t.detach().to(DEVICE, torch.float32).requires_grad_() for t in leaves]
    y, expected = function(*there), function(*leaves)
    dy = torch.randn_like(expected)
    found = torch.autograd.grad(y, there, dy.to(DEVICE, torch.float32))
    for a, b in zip((y, *found), (expected, *torch.autograd.grad(expected, leaves, dy))):
        torch.testing.assert_close(a.cpu().to(F64), b, atol=1e-4, rtol=1e-3)


class Gradients(Case):
    def quaternions(self, *shape):
        return torch.randn(*shape, 4, dtype=F64, device="cpu", requires_grad=True)

    def test_quaternions(self):
        a, b = self.quaternions(2, 3), self.quaternions(3)
        v = torch.randn(2, 3, 3, dtype=F64, device="cpu", requires_grad=True)
        gradcheck(hzt.quat_mul, (a, b))
        gradcheck(lambda a, b: hzt.quat_mul(a, b, flags=hz.QUAT_CONJ_A), (a, b))
        gradcheck(lambda a: hzt.quat_mul(a, a), (a,))
        for function in (hzt.quat_conj, hzt.quat_norm, hzt.quat_normalize, hzt.quat_inverse,
                         hzt.quat_to_matrix, lambda q: hzt.quat_dropout(q, p=0.4, seed=5),
                         lambda q: hzt.quat_from_matrix(hzt.quat_to_matrix(q))):
            gradcheck(function, (a,))
        gradcheck(hzt.quat_rotate, (b, v))
        gradcheck(lambda a, b: hzt.quat_mul(a.transpose(0, 1), b[:, None].expand(3, 2, 4)), (a, b))

    def test_layers(self):
        x, w, b = self.quaternions(2, 3, 5), self.quaternions(6, 5), self.quaternions(6)
        gradcheck(hzt.quat_linear, (x, w, b))
        gradcheck(lambda x, w: hzt.quat_linear(x, w, activation="tanh", side="right"), (x, w))
        gradcheck(lambda w: hzt.quat_linear(x.detach().to(w), w), (w,))
        s = torch.rand(6, 5, dtype=F64, device="cpu", requires_grad=True)
        gradcheck(lambda x, w, s: hzt.quat_linear(x, w, None, s, flags=hz.QUAT_ROTATION, eps=1e-2),
                  (x, w, s))
        w = self.quaternions(4, 3, 5)
        gradcheck(lambda x, w: hzt.quat_conv(x, w, stride=[2], pad=1, activation="silu"),
                  (self.quaternions(2, 6, 5), w))
        gamma = torch.rand(5, dtype=F64, device="cpu", requires_grad=True)
        gradcheck(lambda *t: hzt.quat_batchnorm(*t)[0], (x, gamma, self.quaternions(5)),
                  atol=1e-4)
        gradcheck(lambda x: hzt.quat_pool(x, window=2)[0], (self.quaternions(1, 4, 3),))
        gradcheck(lambda x: hzt.quat_pool(x, window=2, kind="average")[0],
                  (self.quaternions(1, 4, 3),))

    def test_hadamard(self):
        h = hz.hadamard(torch.eye(64)).to(F64)
        self.against(hzt.hadamard, lambda x: x @ h, (3, 5, 64))
        self.against(lambda x: hzt.hadamard_transform(x, 0.5), lambda x: 4 * x @ h, (3, 64))
        self.against(lambda x: hzt.hadamard_transform(x[:, :50]), lambda x: 8 * (
            x[:, :50] @ h[:50])[:, :50], (3, 64))
        self.assertEqual(hzt.hadamard_transform_metal(torch.randn(2, 192), 96).shape, (2, 192))
        self.assertEqual(hzt.hadamard(torch.ones(2, 64), y="bf16").dtype, torch.bfloat16)

    def test_hyper_connections(self):
        t, n, c = (2, 3), 4, 6
        m = 2 * n + n * n
        self.against(hzt.mhc_sinkhorn, sinkhorn, (3, n, n))
        self.against(hzt.mhc_mix, mix, (*t, n, c), (*t, n), (*t, n, n))
        self.against(hzt.mhc_add, add, (*t, n, c), (*t, c), (*t, n))
        self.against(hzt.mhc_post, post, (*t, n, c), (*t, c), (*t, n), (*t, n, n))
        self.against(hzt.mhc_pre, pre, (*t, n, c), (m, n * c), (3,), (m,), tolerance=1e-3)
        self.against(hzt.mhc_weights, lambda *v: pre(*v)[:3], (*t, n, c), (m, n * c), (3,), (m,),
                     tolerance=1e-3)
        self.against(hzt.mhc_head, head, (*t, n, c), (n, n * c), (1,), (n,), tolerance=1e-3)
        self.against(lambda e: hzt.mhc_expand(e, n),
                     lambda e: torch.stack([e] * n, -2), (*t, c))

    def test_gain_norm_and_earlier_weights(self):
        t, n, c = (2, 3), 4, 6

        def mine(x, phi, gain, norm, p_in):
            return hzt.mhc_pre(x, phi, torch.ones(3), torch.zeros(24), gain=gain, norm=norm,
                               p_in=p_in)

        def reference(x, phi, gain, norm, p_in):
            p, q, a, _ = pre(x, phi * gain, torch.ones(3, dtype=F64), torch.zeros(24, dtype=F64))
            u = torch.einsum("...i,...ic->...c", p_in, x)
            return p, q, a, u / u.square().mean(-1, keepdim=True).sqrt() * norm

        self.against(mine, reference, (*t, n, c), (24, n * c), (n * c,), (c,), (*t, n),
                     tolerance=1e-3)

    def test_streams_in_other_orders(self):
        # The dimensions of tokens do not step as one: [sequence, batch] of [batch, sequence]
        x, q = torch.randn(3, 2, 4, 6), torch.randn(2, 3, 4)
        f, a = torch.randn(2, 3, 6), torch.randn(2, 3, 4, 4)
        y = hzt.mhc_post(x.transpose(0, 1), f, q, a)
        torch.testing.assert_close(y, post(x.transpose(0, 1), f, q, a))
        dy = torch.randn(()).expand(2, 3, 4, 6)
        x.requires_grad_()
        hzt.mhc_post(x, f.transpose(0, 1), q.transpose(0, 1), a.transpose(0, 1)).backward(
            dy.transpose(0, 1))
        self.assertEqual(x.grad.shape, x.shape)

    def test_not_wanted(self):
        x, w, b = (torch.randn(s, requires_grad=g) for s, g in (
            ((2, 5, 4), False), ((6, 5, 4), True), ((6, 4), False)))
        hzt.quat_linear(x, w, b).sum().backward()
        self.assertIsNone(x.grad)
        self.assertIsNone(b.grad)
        self.assertIsNotNone(w.grad)
        with torch.no_grad():
            self.assertFalse(hzt.quat_linear(x, w, b).requires_grad)

    def test_in_place_is_noticed(self):
        x, w = torch.randn(2, 5, 4), torch.randn(6, 5, 4, requires_grad=True)
        y = hzt.quat_linear(x, w)
        x.add_(1)
        self.assertRaisesRegex(RuntimeError, "inplace", y.sum().backward)

    def test_addresses_used_again(self):
        """What a call prepared for later ones does not hold for other tensors at its addresses."""
        sign = torch.tensor([1., -1, -1, -1])
        memory = torch.zeros(2048)
        for k in range(240):
            rows, columns = 1 + k % 3, 1 + k // 3 % 2
            flat = memory[4 * (k % 2):][:rows * columns * 8].normal_()
            x = (flat.view(rows, columns, 8)[..., ::2], flat.view(columns, rows, 2, 4)[:, :, 1],
                 flat.view(2, columns, rows, 4)[1].transpose(0, 1))[k % 3]
            x = x.to(F64) if k % 5 == 4 and DEVICE == "cpu" else x
            x = torch.nn.Parameter(x) if k % 7 == 6 else x
            with torch.inference_mode(k % 4 == 3):
                y = hzt.quat_conj(x)
            self.assertEqual((y.shape, y.dtype, y.stride(-1)), (x.shape, x.dtype, 1))
            torch.testing.assert_close(y, x * sign.to(x.dtype))
            blocks = hzt.quat_linear(x, x, activation="relu", blocks=1).detach()
            expected = hzt.quat_linear(x, x, activation="relu").detach()
            torch.testing.assert_close(blocks, expected)
            self.assertTrue(blocks.transpose(-1, -2).is_contiguous())
        wants = torch.randn(2, 4)
        for wanted in (False, False, False, True, True, False):
            wants.requires_grad_(wanted)
            self.assertEqual(hzt.quat_conj(wants).requires_grad, wanted)
            if wanted:
                self.assertRaisesRegex(TypeError, "x: a tensor requires a gradient", hz.quat_conj,
                                       wants)
            else:
                self.assertIs(type(hz.quat_conj(wants.cpu().numpy())), np.ndarray)
                self.assertIsInstance(hz.quat_conj(wants), torch.Tensor)

    def test_refused(self):
        self.assertRaisesRegex(ValueError, "must be", hzt.quat_conj, torch.randn(2, 3))
        self.assertRaises(TypeError, hzt.hadamard, torch.randn(2, 4), best=1)
        self.assertRaises(ValueError, hzt.hadamard, torch.randn(2, 4), plan="best")
        self.assertRaises(TypeError, hz.quat_conj, torch.randn(2, 4, requires_grad=True))


class Operators(Case):
    def test_opcheck(self):
        def leaf(*shape, dtype=torch.float32):
            return torch.randn(*shape, dtype=dtype, requires_grad=True)

        h = torch.ops.hurwitz
        none = None
        samples = [
            (h.hadamard, (leaf(3, 64), none, none, "plan=sylvester")),
            (h.hadamard_quantize, (torch.randn(3, 64), none, none, "q=s4x2")),
            (h.quantize, (torch.randn(3, 64), none, none, none, "scale=0.1,q=u8")),
            (h.qlinear, (torch.randn(3, 64), torch.ones(64, 8, dtype=torch.int8), none, none, none,
                         "b_scale=0.1")),
            (h.quat_mul, (leaf(2, 3, 4), leaf(3, 4), "")),
            (h.quat_norm, (leaf(2, 3, 4), "")),
            (h.quat_linear, (leaf(2, 5, 4), leaf(6, 5, 4), leaf(6, 4), none,
                             "activation=relu,blocks=1")),
            (h.quat_conv, (leaf(2, 7, 5, 4), leaf(6, 3, 5, 4), none, none, "stride=2,pad=1")),
            (h.quat_batchnorm, (leaf(2, 5, 3, 4), leaf(3), leaf(3, 4), torch.zeros(3, 4),
                                torch.ones(3), "")),
            (h.quat_pool, (leaf(2, 6, 3, 4), "window=2")),
            (h.quat_recurrent, (leaf(3, 2, 1, 8, 4), leaf(1, 8, 2, 4), leaf(1, 2, 2, 4),
                                leaf(1, 2, 2, 4), none, "cell=lstm,gates=components")),
            (h.mhc_sinkhorn, (leaf(3, 4, 4), "preset=paper,iterations=5")),
            (h.mhc_mix, (leaf(2, 3, 4, 6), leaf(2, 3, 4), leaf(2, 3, 4, 4), "")),
            (h.mhc_add, (leaf(2, 3, 4, 6), leaf(2, 3, 6), leaf(2, 3, 4), "")),
            (h.mhc_post, (leaf(2, 3, 4, 6), leaf(2, 3, 6), leaf(2, 3, 4), leaf(2, 3, 4, 4), none,
                          "")),
            (h.mhc_pre, (leaf(2, 3, 4, 6), leaf(24, 24), leaf(3), leaf(24), none, leaf(6), none,
                         "")),
            (h.mhc_layer_begin, (leaf(2, 3, 4, 6), leaf(24, 24), leaf(3), leaf(24), leaf(6), none,
                                 "preset=triton,coefficients=per_sequence")),
            (h.mhc_layer_end, (torch.randn(2, 3, 4, 6), leaf(2, 3, 6), leaf(2, 3, 4),
                               leaf(2, 3, 4, 4).detach(), leaf(2, 3, 4, 6), False)),
            (h.mhc_head, (leaf(2, 3, 4, 6), leaf(4, 24), leaf(1), leaf(4), "")),
        ]
        for operator, arguments in samples:
            with self.subTest(operator=str(operator)):
                torch.library.opcheck(operator.default, arguments, atol=1e-4, rtol=1e-4)
        x, phi, w = torch.randn(2, 3, 4, 6), torch.randn(24, 24), torch.randn(6, 5, 4)
        for operator, arguments in ((h.mhc_pre, (x, phi, torch.ones(3), torch.ones(24), none, none,
                                                 none, "")),
                                    (h.quat_linear, (torch.randn(2, 5, 4), w, none, none,
                                                     "activation=relu,blocks=1"))):
            torch.library.opcheck(operator.no_grad, arguments)
            shown = operator.no_grad(*arguments)
            shown = shown if isinstance(shown, tuple) else (shown,)
            for found, expected in zip(shown, operator.default(*arguments)):
                torch.testing.assert_close(found, expected)

    def test_compile(self):
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.hc = hzt.HyperConnection(16, preset="deepseek_v4")
                self.linear = hzt.QuaternionLinear(4, 4, activation="relu")
                self.norm = hzt.QuaternionBatchNorm(4)

            def forward(self, x):
                u, add_residual = self.hc(x)
                f = self.norm(self.linear(hzt.hadamard(u).unflatten(-1, (4, 4))))
                return add_residual(f.flatten(-2))

        block = Block()
        # Dynamo does not trace unflatten() under a default device
        torch.set_default_device(None)
        self.addCleanup(torch.set_default_device, None if DEVICE == "cpu" else DEVICE)
        x = torch.randn(2, 3, 4, 16, device=DEVICE)
        y = block(x)
        y.square().sum().backward()
        expected = [p.grad.clone() for p in block.parameters()]
        block.zero_grad()
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        found = compiled(x)
        torch.testing.assert_close(found, y)
        found.square().sum().backward()
        for p, grad in zip(block.parameters(), expected):
            torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-4)
        compiled(torch.randn(5, 3, 4, 16, device=DEVICE))
        compiled(torch.randn(7, 3, 4, 16, device=DEVICE))

    def test_autocast(self):
        linear, hc = hzt.QuaternionLinear(8, 8), hzt.HyperConnection(32)
        x = torch.randn(2, 3, 4, 32)
        with torch.autocast(DEVICE, torch.bfloat16):
            y = linear(x.unflatten(-1, (8, 4)))
            u, add_residual = hc(x)
            out = add_residual(linear(u.unflatten(-1, (8, 4))).flatten(-2))
        self.assertEqual((y.dtype, u.dtype, out.dtype),
                         (torch.bfloat16, torch.float32, torch.float32))
        out.sum().backward()
        self.assertEqual(linear.weight.grad.dtype, torch.float32)
        half = hc(x.to(torch.bfloat16))
        self.assertEqual(half[0].dtype, torch.bfloat16)

    def test_threads_and_processes(self):
        x = torch.randn(64, 256)
        expected, wrong = hzt.hadamard(x), []

        def work():
            leaf = x.clone().requires_grad_()
            for _ in range(5):
                y = hzt.hadamard(leaf)
                y.sum().backward()
                if not torch.equal(y, expected):
                    wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        loader = torch.utils.data.DataLoader(Rotated(), batch_size=4, num_workers=2)
        rows = torch.cat(list(loader))
        torch.testing.assert_close(rows, hzt.hadamard(torch.eye(16, device="cpu")))


class Rotated(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return hzt.hadamard(torch.eye(16, device="cpu")[i])


if __name__ == "__main__":
    unittest.main()
