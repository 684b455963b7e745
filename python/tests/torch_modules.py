# torch_modules.py - the modules of hurwitz.torch
# SPDX-License-Identifier: BSD-2-Clause
import os
import unittest
import unittest.mock

import torch

import hurwitz as hz
import hurwitz.torch as hzt

try:
    from speechbrain.nnet import quaternion_networks
except ImportError:
    quaternion_networks = None

if os.environ.get("HZ_TEST_DEVICE", "cpu") != "cpu":
    torch.set_default_device(os.environ["HZ_TEST_DEVICE"])
F64 = torch.float64


def triton(hc, H, branch):
    """The streams after a layer as mHC-triton computes them, in the dtype of H."""
    bias, n = hc.bias.to(H.dtype), hc.num_streams
    z = bias
    if hc.dynamic:
        x = H.mean(1).flatten(-2)
        y = x @ hc.phi.to(H.dtype).T / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        z = y * hc.alpha.to(H.dtype).repeat_interleave(torch.tensor([n, n, n * n])) + bias
    p, q, a = torch.sigmoid(z[..., :n]), torch.sigmoid(z[..., n:2 * n]), z[..., 2 * n:].abs()
    eps, q = (1e-6, 2 * q) if hc.dynamic else (1e-8, q)
    p, a = p / (p.sum(-1, keepdim=True) + 1e-6), a.unflatten(-1, (n, n)) + eps
    for _ in range(20):
        a = a / (a.sum(-1, keepdim=True) + eps)
        a = a / (a.sum(-2, keepdim=True) + eps)
    p, q, a = (t if hc.dynamic else t.expand(len(H), *t.shape) for t in (p, q, a))
    f = branch(torch.einsum("bi,btic->btc", p, H))
    return torch.einsum("bij,btjc->btic", a, H) + torch.einsum("bi,btc->btic", q, f)


class HyperConnections(unittest.TestCase):
    def test_signature_and_returns(self):
        hc = hzt.HyperConnection(dim=32, num_streams=4, layer_idx=1, dynamic=True,
                                 sinkhorn_iters=20, init_scale=0.1, use_fused_weights=True)
        streams = torch.randn(2, 5, 4, 32)
        u, add_residual = hc(streams)
        # At first stream layer_idx counts most
        self.assertTrue(torch.all(hc.coefficients(streams)[0].argmax(-1) == 1))
        self.assertEqual(add_residual(u).shape, streams.shape)
        self.assertEqual(set(hc.state_dict()), {"phi", "alpha", "bias"})
        torch.testing.assert_close(hc.alpha.detach(), torch.full((3,), 0.1))

    def test_presets(self):
        streams = torch.randn(2, 5, 4, 32, requires_grad=True)
        for preset in hz._core.ENUMS["hz_mhc_presets"]:
            with self.subTest(preset=preset):
                if preset == "triton_static":
                    hc = hzt.HyperConnection(32, dynamic=False)
                else:
                    hc = hzt.HyperConnection(32, preset=preset, norm=True)
                u, add_residual = hc(streams.transpose(-1, -2) if hc.swap else streams)
                out = add_residual(torch.tanh(u))
                out.square().sum().backward()
                for name, p in hc.named_parameters():
                    self.assertTrue(torch.isfinite(p.grad).all(), name)
        self.assertRaises(ValueError, hzt.HyperConnection, 32, preset="none")

    def test_reference(self):
        for dynamic in (True, False):
            hc = hzt.HyperConnection(6, layer_idx=1, dynamic=dynamic)
            with torch.no_grad():
                for p in hc.parameters():
                    p.add_(0.3 * torch.randn_like(p))
            for uses in (1, 2):         # of add_residual()
                def whole(layer, H, uses=uses):
                    u, add_residual = layer(H)
                    return sum(add_residual(torch.tanh(k * u)) for k in range(1, uses + 1))

                H = torch.randn(3, 5, 4, 6)
                mine, other = H.clone().requires_grad_(), H.to(F64).requires_grad_()
                y = whole(hc, mine)
                expected = sum(triton(hc, other, lambda u, k=k: torch.tanh(k * u))
                               for k in range(1, uses + 1))
                torch.testing.assert_close(y.to(F64), expected, atol=1e-4, rtol=1e-4)
                dy = torch.randn_like(y)
                names = ["H", *dict(hc.named_parameters())]
                found = torch.autograd.grad(y, [mine, *hc.parameters()], dy)
                expected = torch.autograd.grad(expected, [other, *hc.parameters()], dy.to(F64))
                for name, a, b in zip(names, found, expected):
                    torch.testing.assert_close(a.to(F64), b.to(F64), atol=1e-4, rtol=1e-4, msg=name)
            # u alone has a gradient, too; and add_residual() of what does not come from u
            u, _ = hc(mine)
            grad, = torch.autograd.grad(u.sum(), [mine])
            _, add_residual = hc(H)
            f = torch.randn(3, 5, 6, requires_grad=True)
            self.assertEqual(torch.autograd.grad(add_residual(f).sum(), [f])[0].shape, f.shape)
            with torch.no_grad():
                torch.testing.assert_close(whole(hc, mine), y)
            hc.requires_grad_(False)            # frozen, around a branch that is trained
            _, add_residual = hc(H)
            out = add_residual(f)
            grad, = torch.autograd.grad(out, [f], torch.ones_like(out))
            q = hc.coefficients(H)[1].expand(3, 4)
            torch.testing.assert_close(grad, q.sum(-1)[:, None, None].expand_as(f))

    def test_dispatcher(self):
        """The module's own functions and the operators have the same bits, also of any strides."""
        operators = (torch.ops.hurwitz.mhc_layer_begin.default,
                     torch.ops.hurwitz.mhc_layer_end.default)
        hc = hzt.HyperConnection(32, preset="deepseek_v4")

        def results(H):
            H = H.detach().requires_grad_()
            u, add_residual = hc(H)
            y = add_residual(u * u + u)
            return y, *torch.autograd.grad(y, [H, *hc.parameters()], torch.ones_like(y))

        for H in (torch.randn(3, 4, 32), torch.randn(3, 32, 4).mT,
                  torch.randn(1, 1, 32).expand(3, 4, 32)):
            self.assertNotEqual(hzt._layer(H), operators)
            found = results(H)
            with unittest.mock.patch.object(hzt, "_layer", lambda x: operators):
                for a, b in zip(found, results(H)):
                    torch.testing.assert_close(a, b, rtol=0, atol=0)

    def test_state_of_triton(self):
        hc = hzt.HyperConnection(6, layer_idx=3)
        with torch.no_grad():
            for p in hc.parameters():
                p.normal_()
        other = hzt.HyperConnection(6)
        pre, post, res = hc.bias.detach().split([4, 4, 16])
        state = {"H_pre_base": pre, "H_post_base": post, "H_res_base": res.view(4, 4),
                 "phi": hc.phi.detach().T, "alpha_pre": hc.alpha[:1], "alpha_post": hc.alpha[1:2],
                 "alpha_res": hc.alpha[2:]}
        torch.nn.ModuleList([other]).load_state_dict({"0." + key: t for key, t in state.items()})
        H = torch.randn(2, 3, 4, 6)
        for a, b in zip(other.coefficients(H), hc.coefficients(H)):
            torch.testing.assert_close(a, b, rtol=0, atol=0)

    def test_half(self):
        for dtype in (torch.float16, torch.bfloat16):
            hc = hzt.HyperConnection(32, norm=True).to(dtype)
            H = torch.randn(2, 3, 4, 32, dtype=dtype, requires_grad=True)
            u, add_residual = hc(H)
            y = add_residual(u)
            y.sum().backward()
            self.assertEqual({t.dtype for t in (u, y, H.grad, *[p.grad for p in hc.parameters()])},
                             {dtype})
            self.assertEqual(hzt.sinkhorn_knopp(torch.randn(2, 4, 4, dtype=dtype)).dtype, dtype)

    def test_parts_make_the_whole(self):
        hc = hzt.HyperConnection(8)
        with torch.no_grad():
            hc.phi.normal_()
        streams, f = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 8)
        u, add_residual = hc(streams)
        x = streams.mean(1).flatten(-2)
        for phi in (hc.phi, hc.phi.t()):
            p, q, a = hzt.fused_dynamic_weights(x, phi, hc.bias, *hc.alpha, 20)
            branch, residual = hzt.fused_stream_mix(streams, p, a)
            torch.testing.assert_close(branch, u)
            torch.testing.assert_close(hzt.fused_add_residual(residual, f, q), add_residual(f))
        self.assertRaisesRegex(ValueError, r"phi.shape is \[24, 31\]", hzt.fused_dynamic_weights,
                               x, hc.phi[:, 1:], hc.bias, *hc.alpha)
        doubly = hzt.sinkhorn_knopp(torch.randn(3, 4, 4), 20, 1e-8)
        torch.testing.assert_close(doubly.sum(-1), torch.ones(3, 4), atol=1e-3, rtol=0)

    def test_state(self):
        for make in (lambda: hzt.HyperConnection(8), lambda: hzt.QuaternionLinear(3, 5),
                     lambda: hzt.QuaternionConv2d(3, 5, 3), lambda: hzt.QuaternionBatchNorm(3),
                     lambda: hzt.QuaternionLSTM(3, 5, 2), lambda: hzt.QuaternionLiGRU(3, 5)):
            one, other = make(), make()
            other.load_state_dict(one.state_dict())
            for a, b in zip(one.state_dict().values(), other.state_dict().values()):
                self.assertTrue(torch.equal(a, b))
            self.assertTrue(repr(one))


class Quantized(unittest.TestCase):
    def test_linear(self):
        linear, x = torch.nn.Linear(64, 24), torch.randn(2, 5, 64, requires_grad=True)
        for name, limit in (("s8_row", 0.02), ("e8_4_50", 0.08)):
            layer = hzt.QuantizedLinear.from_linear(linear, format=name, rotate=True, seed=3)
            y, expected = layer(x), linear(x)
            self.assertLess(float((y - expected).detach().norm() / expected.detach().norm()), limit)
            dy = torch.randn_like(y)
            (grad,) = torch.autograd.grad(expected, x, dy)
            y.backward(dy)
            self.assertLess(float((x.grad - grad).norm() / grad.norm()), limit)
            torch.testing.assert_close(layer.bias.grad, dy.sum((0, 1)))
            x.grad = None
            torch.library.opcheck(torch.ops.hurwitz.quantized_linear.default,
                                  (layer.data, x, layer.bias, 24))
            other = hzt.QuantizedLinear(64, 24, format=name)
            other(x)
            other.load_state_dict(layer.state_dict())
            torch.testing.assert_close(other(x), y)
            compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
            torch.testing.assert_close(compiled(x), y)
            torch.testing.assert_close(other.half()(x.half()), y.half(), atol=5e-3, rtol=5e-3)

    def test_layers_go(self):
        x = torch.randn(3, 64)
        for _ in range(50):
            layer = hzt.QuantizedLinear(64, 64)
            layer(x)
        self.assertLess(len(hzt._layers.found), 50)


class Quaternions(unittest.TestCase):
    def test_layouts(self):
        linear = hzt.QuaternionLinear(3, 5)
        blocks = hzt.QuaternionLinear(3, 5, layout="blocks")
        blocks.load_state_dict(linear.state_dict())
        x = torch.randn(2, 7, 3, 4)
        flat = x.transpose(-1, -2).flatten(-2)
        expected = linear(x).transpose(-1, -2).flatten(-2)
        torch.testing.assert_close(blocks(flat), expected)
        self.assertTrue(blocks(flat).is_contiguous())
        for dims, cls in enumerate((hzt.QuaternionConv1d, hzt.QuaternionConv2d,
                                    hzt.QuaternionConv3d), 1):
            conv = cls(3, 5, 2, padding=1)
            first = cls(3, 5, 2, padding=1, layout="channels_first")
            first.load_state_dict(conv.state_dict())
            x = torch.randn(2, *[4] * dims, 3, 4)
            image = x.movedim(-1, 1).movedim(-1, 2).flatten(1, 2)
            expected = conv(x).movedim(-1, 1).movedim(-1, 2).flatten(1, 2)
            torch.testing.assert_close(first(image), expected)
        x = torch.randn(2, 5, 4, 3, 4)
        for mode in ("circular", "replicate"):
            conv = hzt.QuaternionConv2d(3, 2, 3, padding=(3, 1), padding_mode=mode)
            padded = torch.nn.functional.pad(x.permute(0, 3, 4, 1, 2).flatten(1, 2),
                                             (1, 1, 3, 3), mode).unflatten(1, (3, 4))
            expected = hzt.quat_conv(padded.permute(0, 3, 4, 1, 2), conv.weight, conv.bias)
            torch.testing.assert_close(conv(x), expected)
        self.assertRaisesRegex(ValueError, "padding is 6", hzt.QuaternionConv1d(
            3, 2, 3, padding=6, padding_mode="circular"), x[0])
        self.assertRaisesRegex(ValueError, "padding_mode is 'mirror'", hzt.QuaternionConv1d,
                               3, 2, 3, padding_mode="mirror")
        for wrong in ("same", (1, 2), 1.5):
            self.assertRaisesRegex((ValueError, TypeError), "padding is|not iterable",
                                   hzt.QuaternionConv1d, 3, 2, 3, padding=wrong)
        norm = hzt.QuaternionBatchNorm(3, layout="blocks")
        self.assertEqual(norm(flat).shape, flat.shape)
        norm.eval()
        self.assertEqual(norm(flat).shape, flat.shape)
        self.assertEqual(int(norm.num_batches_tracked), 1)

    def test_half(self):
        """Modules in 16 bits have the results of f32, rounded; statistics stay f32."""
        x = torch.randn(40, 3, 4)
        for dtype, limit in ((torch.float16, 5e-3), (torch.bfloat16, 5e-2)):
            for layer, data in ((hzt.QuaternionBatchNorm(3), x), (hzt.QuaternionLinear(3, 5), x),
                                (hzt.QuaternionLiGRU(3, 2), x.unflatten(0, (5, 8)))):
                found = layer(data)
                half = layer.to(dtype)(data.to(dtype))
                for y, expected in zip(half if isinstance(half, tuple) else (half,),
                                       found if isinstance(found, tuple) else (found,)):
                    self.assertEqual(y.dtype, dtype)
                    torch.testing.assert_close(y.float(), expected, atol=limit, rtol=limit)
            norm = hzt.QuaternionBatchNorm(3).to(dtype)
            norm(x.to(dtype)).float().square().sum().backward()
            self.assertEqual((norm.running_var.dtype, norm.weight.grad.dtype), (torch.float32,) * 2)
            self.assertEqual(norm.double().weight.dtype, torch.float64)

    def test_recurrent(self):
        x, lengths = torch.randn(5, 3, 2, 4), torch.tensor([5, 2, 0])
        for cls in (hzt.QuaternionRNN, hzt.QuaternionLSTM, hzt.QuaternionLiGRU):
            layer = cls(2, 3, num_layers=2, bidirectional=True)
            y, state = layer(x, lengths=lengths)
            h = state[0] if isinstance(state, tuple) else state
            self.assertEqual((y.shape, h.shape), ((5, 3, 6, 4), (4, 3, 3, 4)))
            self.assertEqual(int(y[2:, 1].count_nonzero()), 0)
            torch.testing.assert_close(layer.eval()(x, lengths=lengths.int())[0],
                                       layer(x, lengths=[5, 2, 0])[0])
            layer.train()
            torch.testing.assert_close(h[2, :2], torch.stack([y[4, 0, :3], y[1, 1, :3]]))
            torch.testing.assert_close(h[3], y[0, :, 3:])
            (y.square().sum() + h.sum()).backward()
            for name, p in layer.named_parameters():
                self.assertTrue(torch.isfinite(p.grad).all(), name)
            layer.eval()
            # All at once, or in two parts with the state between them
            one = cls(2, 3, batch_first=True).eval()
            flat = x.transpose(0, 1)
            y, state = one(flat)
            first, between = one(flat[:, :2])
            second, state2 = one(flat[:, 2:], between)
            torch.testing.assert_close(torch.cat([first, second], 1), y)
            for a, b in zip(state, state2):
                torch.testing.assert_close(a, b)
            with torch.no_grad():
                torch.testing.assert_close(one(flat)[0], y)
            blocks = cls(2, 3, batch_first=True, layout="blocks").eval()
            blocks.load_state_dict(one.state_dict())
            found, _ = blocks(flat.transpose(-1, -2).flatten(-2))
            torch.testing.assert_close(found, y.transpose(-1, -2).flatten(-2))

    def test_training(self):
        torch.manual_seed(1)
        model = torch.nn.Sequential(hzt.QuaternionLinear(2, 8, activation="relu"),
                                    hzt.QuaternionBatchNorm(8), hzt.QuaternionLinear(8, 1))
        q = torch.nn.functional.normalize(torch.randn(256, 2, 4), dim=-1)
        target = hzt.quat_mul(q[:, :1], q[:, 1:])
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        losses = []
        for _ in range(100):
            loss = (model(q) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        self.assertLess(losses[-1], 0.5 * losses[0])

    def test_whitened(self):
        x = torch.randn(512, 3, 4) * torch.tensor([1., 2, 3, 4])
        y = hzt.QuaternionBatchNorm(3, whiten=True, affine=False)(x)
        for c in range(3):
            torch.testing.assert_close(y[:, c].T @ y[:, c] / 512, torch.eye(4), atol=1e-2, rtol=0)


@unittest.skipUnless(quaternion_networks, "no speechbrain here")
class Speechbrain(unittest.TestCase):
    def same(self, layer, x, tolerance=1e-5):
        with torch.no_grad():
            for p in layer.parameters():
                if p.requires_grad and p.dim() == 1:
                    p.normal_()
            module = hzt.from_speechbrain(layer)
            torch.testing.assert_close(module(x), layer(x), atol=tolerance, rtol=tolerance)

    def test_linear(self):
        from speechbrain.nnet.quaternion_networks.q_linear import QLinear
        x = torch.randn(2, 5, 12)
        for options in ({}, {"bias": False}, {"spinor": True},
                        {"spinor": True, "vector_scale": True},
                        {"autograd": False}, {"autograd": False, "spinor": True}):
            self.same(QLinear(6, x.shape, **options), x)

    def test_convolutions(self):
        from speechbrain.nnet.quaternion_networks.q_CNN import QConv1d, QConv2d
        x = torch.randn(2, 9, 12)
        for options in ({}, {"padding": "causal", "dilation": 2}, {"padding": "valid", "stride": 2},
                        {"spinor": True}, {"spinor": True, "vector_scale": True},
                        {"padding_mode": "constant"}, {"padding_mode": "circular"},
                        {"padding_mode": "replicate", "dilation": 3}, {"stride": 3, "dilation": 2}):
            self.same(QConv1d(6, 3, x.shape, **options), x)
        image = torch.randn(2, 10, 11, 12)
        for options in ({}, {"swap": True}, {"dilation": (2, 1), "padding": "valid"},
                        {"dilation": (1, 2)}, {"stride": (2, 1)}, {"stride": (1, 2)},
                        {"padding_mode": "circular"}, {"stride": 2, "padding_mode": "constant"}):
            self.same(QConv2d(6, (3, 5), image.shape, **options), image)
        self.assertRaises(ValueError, hzt.from_speechbrain,
                          QConv2d(6, 3, image.shape, skip_transpose=True))
        self.assertRaises(ValueError, hzt.from_speechbrain, QConv1d(6, 3, (2, 9, 24), groups=2))

    def test_recurrent(self):
        from speechbrain.nnet.quaternion_networks.q_RNN import QLiGRU, QLSTM, QRNN
        x = torch.randn(3, 7, 12)
        for cls, options in ((QRNN, {}), (QRNN, {"nonlinearity": "relu"}), (QLSTM, {}),
                             (QLiGRU, {}), (QLiGRU, {"nonlinearity": "tanh"})):
            for more in ({}, {"bidirectional": True, "num_layers": 2}):
                layer = cls(5, x.shape, **options, **more)
                with torch.no_grad():
                    for p in layer.parameters():
                        p.add_(0.1 * torch.randn_like(p))
                module = hzt.from_speechbrain(layer)
                for _ in range(2):                      # in training, then by running values
                    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
                    y, expected = module(a)[0], layer(b)[0]
                    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)
                    dy = torch.randn_like(y)
                    y.backward(dy), expected.backward(dy)
                    torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-4)
                    module.eval(), layer.eval()
                    for name, buffer in layer.named_buffers():
                        if "running" in name:       # they keep the graph of the batch
                            buffer.detach_()
        self.assertRaises(ValueError, hzt.from_speechbrain, QLSTM(5, x.shape, dropout=0.1))

    def test_batchnorm(self):
        from speechbrain.nnet.quaternion_networks.q_normalization import QBatchNorm
        for shape, options in (((6, 12), {}), ((6, 12), {"momentum": None}), ((6, 5, 12), {}),
                               ((6, 5, 12), {"track_running_stats": False}), ((6, 3, 2, 12), {})):
            layer = QBatchNorm(input_size=12, **options)
            module = hzt.from_speechbrain(layer)        # before the first batch
            for _ in range(3):
                x = torch.randn(shape)
                torch.testing.assert_close(module(x), layer(x), atol=1e-4, rtol=1e-4)
            if layer.track_running_stats:
                layer.eval(), module.eval()
                torch.testing.assert_close(module(x), layer(x), atol=1e-4, rtol=1e-4)
                self.same(layer, x, 1e-4)


if __name__ == "__main__":
    unittest.main()
