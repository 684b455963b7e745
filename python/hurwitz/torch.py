# torch.py - operations and modules for PyTorch
# SPDX-License-Identifier: BSD-2-Clause
"""hurwitz.torch: operations with gradients, and modules, for PyTorch.

    >>> import hurwitz.torch as hzt
    >>> y = hzt.hadamard(x)                                 # has a gradient
    >>> layer = hzt.QuaternionLinear(64, 32)                # x [..., 64, 4]
    >>> hc = hzt.HyperConnection(512, preset="deepseek_v4")
    >>> u, add_residual = hc(streams)                       # streams [..., 4, 512]
    >>> streams = add_residual(branch(u))

Each operation is a custom operator of torch.library, hurwitz::<name>, with a fake implementation,
so that torch.compile traces through it, and with the library's own backward call. Options are
keywords as in hurwitz; an operator has them as one string. There is no second derivative.
Under autocast products of quaternions take their operands in autocast's dtype; hyper-connections
keep their coefficients in float32, whatever the dtype of the streams is.
"""
from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from . import _arrays, ops
from ._api import CONSTANTS
from ._core import ERRORS, Meta, Operation, _fields, context, enum_value
from .objects import Linear, mhc_rows, quat_init_scale

__all__ = [
    "HyperConnection", "QuaternionBatchNorm", "QuaternionConv1d", "QuaternionConv2d",
    "QuaternionConv3d", "QuaternionLSTM", "QuaternionLiGRU", "QuaternionLinear", "QuaternionRNN",
    "QuantizedLinear", "dequantize", "dequantize_hadamard",
    "from_speechbrain", "fused_add_residual", "fused_dynamic_weights", "fused_stream_mix",
    "hadamard", "hadamard_quantize", "hadamard_transform", "hadamard_transform_metal", "mhc_add",
    "mhc_expand", "mhc_head", "mhc_mix", "mhc_post", "mhc_pre", "mhc_sinkhorn", "mhc_weights",
    "qgemm", "qlinear", "quantize", "quat_batchnorm", "quat_conj", "quat_conv", "quat_dropout",
    "quat_from_matrix", "quat_inverse", "quat_linear", "quat_mul", "quat_norm", "quat_normalize",
    "quat_pool", "quat_recurrent", "quat_rotate", "quat_to_matrix", "sinkhorn_knopp",
]

_library = torch.library.Library("hurwitz", "DEF")
_operators: dict[str, _Operator] = {}
_STRIDE = ERRORS[CONSTANTS["ESTRIDE"]]


# ---- Operators -----------------------------------------------------------------------------------

def _text(options):
    """Options as the string that operators take: "plan=true,pad=1;2"."""
    words = []
    for key, value in options.items():
        if value is not None:
            if isinstance(value, (tuple, list)):
                value = ";".join([str(number) for number in value])
            elif isinstance(value, bool):
                value = int(value)
            words.append(f"{key}={value}")
    return ",".join(words)


def _value(text):
    if ";" in text:
        return [_value(word) for word in text.split(";")]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _custom(schema, run, fake, setup=None, back=None):
    """Defines an operator that is not one call of the library."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"hurwitz::{name}", fake, lib=_library)
    if back:
        torch.library.register_autograd(f"hurwitz::{name}", back, setup_context=setup,
                                        lib=_library)


class _Operator:
    """An operator of one of the library's calls.

    tensors are its operands, those of options behind those of the call; outputs likewise. An output
    that is not wanted is an empty tensor. wanted is whether there is a choice: option want=dx;dw
    names those to compute. A word that is both is an operand that the call changes: the operator
    changes a copy. like are tensors that say shapes of outputs alone.
    """

    def __init__(self, name, options=(), outputs=(), wanted=False, like=()):
        self.name = name
        self.call: Operation = getattr(ops, "_" + name)
        self.places = [(kind, word) for kind, word, _ in self.call.plan if kind != "options"]
        self.tensors = [word for kind, word in self.places if kind == "in"] + [*options, *like]
        self.outputs = [word for kind, word in self.places if kind == "out"] + list(outputs)
        # Without what only the backward call needs
        self.shown = [word for word in self.outputs if word not in ("pre", "saved")]
        self.updated = [word for word in self.outputs if word in self.tensors]
        positional = {word for _, word in self.places}
        self.fields = [word for word in dict.fromkeys([*self.tensors, *self.outputs])
                       if word not in positional and word not in like]
        self.wanted = wanted
        self.like = like
        self.parse = lru_cache(4096)(self._parse)
        self.layouts: dict[tuple, dict] = {}
        self._define(name, self.outputs)
        self.operator = getattr(torch.ops.hurwitz, name).default
        self.without = None
        _operators[name] = self

    def _define(self, name, outputs):
        arguments = ", ".join(f"Tensor? {word}" for word in self.tensors)
        results = ", ".join(["Tensor"] * len(outputs))
        results = f"({results})" if len(outputs) > 1 else results
        _custom(f"{name}({arguments}, str options) -> {results}",
                lambda *arguments: self.run(*arguments, outputs=outputs),
                lambda *arguments: self.fake(*arguments, outputs=outputs))

    def differentiable(self, setup, back):
        """Registers the gradient, and a second operator, <name>.no_grad, without it and without the
        outputs for it, which has no detour through Python's part of autograd."""
        torch.library.register_autograd(f"hurwitz::{self.name}", back, setup_context=setup,
                                        lib=_library)
        self._define(self.name + ".no_grad", self.shown)
        self.without = getattr(torch.ops.hurwitz, self.name).no_grad

    def __call__(self, *arguments):
        """The outputs that callers see, by the operator with a gradient if operands want one."""
        wants = self.without is None
        if not wants and torch.is_grad_enabled():
            wants = any(t is not None and t.requires_grad for t in arguments[:-1])
        if not wants:
            return self.without(*arguments)
        found = self.operator(*arguments)
        if len(self.shown) == len(self.outputs):
            return found
        found = [t for word, t in zip(self.outputs, found) if word in self.shown]
        return tuple(found) if len(found) > 1 else found[0]

    def _parse(self, text, count):
        """Positional values, options and what is to become of outputs, of which count are seen."""
        options = dict(word.split("=", 1) for word in text.split(",") if word)
        wanted = options.pop("want", None)
        wanted = None if wanted is None else wanted.split(";")
        outputs = {}
        for word in self.outputs:
            outputs[word] = options.pop(word, True)
            if word not in self.shown and count < len(self.outputs):
                outputs[word] = None
            elif wanted is not None and word not in wanted and (
                    self.wanted or word not in self.shown):
                outputs[word] = None
        zero = {word: 0 for kind, word in self.places if kind == "number"}
        numbers = {word: _value(options.pop(word)) if word in options else 0 for word in zero}
        blocks = options.pop("blocks", None)
        options = {key: _value(value) for key, value in options.items()}
        for key, value in options.items():
            if key not in self.call.fields:
                raise TypeError(f"{self.name} has no option {key}")
            struct, field = self.call.fields[key]
            if isinstance(value, str):
                options[key] = _fields[struct].normal(field, value)
        return numbers, options, outputs, blocks is not None

    def run(self, *arguments, outputs=None):
        """Makes the call; outputs are the words of those to return, all unless given."""
        words = outputs or self.outputs
        try:
            return self._run(arguments[:-1], arguments[-1], words)
        except _STRIDE:
            # Leading dimensions that do not step as one
            return self._run([t if t is None else t.contiguous() for t in arguments[:-1]],
                             arguments[-1], words)

    def _run(self, tensors, text, words):
        numbers, options, outputs, blocks = self.parse(text, len(words))
        given = dict(zip(self.tensors, tensors))
        made = {}
        if self.updated:
            made = {word: t if (t := given[word]) is None else t.clone() for word in self.updated}
            outputs = outputs | made
        if blocks or self.like:
            signature = text, len(words), *[t if t is None else (t.shape, t.dtype) for t in tensors]
            layouts = self.layouts.get(signature)
            if layouts is None:
                if len(self.layouts) >= 4096:
                    self.layouts.clear()
                layouts = self.layouts[signature] = {
                    word: self._layout(word, given, numbers, options, outputs[word], blocks)
                    for word in self.outputs if word not in made}
            first = next(t for t in tensors if t is not None)
            for word, layout in layouts.items():
                made[word] = layout and self._empty(first, *layout)
            outputs = made
        values = [given[word] if kind == "in" else outputs[word] if kind == "out"
                  else numbers[word] for kind, word in self.places]
        for word in self.fields:
            value = outputs[word] if word in outputs else given[word]
            if value is not None:
                options = {**options, word: value}
        results = self.call.results(values, options)
        found = []
        for word in words:
            result = made.get(word)
            if result is None:
                result = results.get(word)
            if result is None:
                result = self._nothing(given)
            found.append(result.array if type(result) is _arrays.View else result)
        return tuple(found) if len(found) > 1 else found[0]

    @staticmethod
    def _nothing(given):
        first = next(t for t in given.values() if t is not None)
        return torch.empty(0, device=first.device)

    def _layout(self, word, given, numbers, options, wanted, blocks):
        """(shape, strides, dtype) of a new tensor for an output, or None: not wanted; with blocks,
        quaternions are in r|i|j|k blocks."""
        if wanted is None:
            return None
        seen = {key: Meta(tuple(t.shape), _arrays.dtype_number(t.dtype))
                for key, t in given.items() if t is not None}
        if word in self.updated:
            found = seen.get(word) and (seen[word].shape, seen[word].dtype)
        else:
            seen.update(numbers)
            seen.update(options)
            found = self.call.infer(word, seen,
                                    None if wanted is True else _arrays.dtype_number(wanted))
        if found is None:
            return None
        shape, dtype = found
        if wanted is not True:
            dtype = _arrays.dtype_number(wanted)
        if blocks and word in ("y", "pre", "dx", "dz"):
            *lead, channels, four = shape
            *strides, step, one = _arrays.contiguous((*lead, four, channels))
            strides = *strides, one, step
        else:
            strides = _arrays.contiguous(shape)
        return shape, strides, _arrays.to_torch(dtype)[0]

    @staticmethod
    def _empty(first, shape, strides, dtype):
        return first.new_empty_strided(shape, strides, dtype=dtype)

    def fake(self, *arguments, outputs=None):
        words = outputs or self.outputs
        numbers, options, outputs, blocks = self.parse(arguments[-1], len(words))
        given = dict(zip(self.tensors, arguments))
        layouts = [self._layout(word, given, numbers, options, outputs[word], blocks)
                   for word in words]
        first = next(t for t in arguments[:-1] if t is not None)
        results = [self._nothing(given) if layout is None else self._empty(first, *layout)
                   for layout in layouts]
        return tuple(results) if len(results) > 1 else results[0]


def _given(t):
    """A tensor that an operator returned, or None for one that was not wanted."""
    return None if t is None or (t.dim() == 1 and t.shape[0] == 0) else t


def _dense(grad):
    """A gradient of its own memory: that of a sum is one number, expanded."""
    return grad.contiguous() if grad is not None and 0 in grad.stride() else grad


def _differentiable(name, save, keep, backward, options=(), outputs=()):
    """An operator with a gradient: backward(saved, grads, wanted, options) returns them by name.

    save are operands and keep outputs that it needs; wanted are the operands that want a gradient.
    """
    operator = _Operator(name, options, outputs)

    def setup(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        given = dict(zip(operator.tensors, inputs))
        output = output if isinstance(output, tuple) else (output,)
        results = dict(zip(operator.outputs, output))
        ctx.save_for_backward(*[given[word] for word in save], *[results[word] for word in keep])
        ctx.options = inputs[-1]

    def back(ctx, *grads):
        saved = dict(zip(save + keep, ctx.saved_tensors))
        grads = dict(zip(operator.outputs, map(_dense, grads)))
        wanted = [word for word, needs in zip(operator.tensors, ctx.needs_input_grad) if needs]
        found = {}
        if any(grad is not None for grad in grads.values()):
            found = backward(saved, grads, wanted, ctx.options)
        return *[found.get(word) if word in wanted else None for word in operator.tensors], None

    operator.differentiable(setup, back)
    return operator


def _with(options, flags=0, want=None, drop=()):
    """An option string with flags toggled, gradients named, and words left out."""
    words = dict(word.split("=", 1) for word in options.split(",") if word)
    for word in drop:
        words.pop(word, None)
    if flags:
        words["flags"] = str(int(words.get("flags", 0)) ^ flags)
    if want is not None:
        words["want"] = ";".join(want)
    return ",".join(f"{key}={value}" for key, value in words.items())


# ---- The operators -------------------------------------------------------------------------------

for _name, _options in (("hadamard_quantize", ("pre", "post")),
                        ("dequantize_hadamard", ("pre", "post")),
                        ("quantize", ("scales", "zeros", "tensor_scale")),
                        ("dequantize", ("scales", "zeros", "tensor_scale")),
                        ("qgemm", ("a_zeros", "b_zeros", "a_scales", "b_scales", "bias")),
                        ("qlinear", ("b_zeros", "b_scales", "bias"))):
    _Operator(_name, _options)


def _hadamard_back(saved, grads, wanted, options):
    flags = CONSTANTS["HADAMARD_TRANSPOSE"]
    dy = grads["y"]
    return {"x": torch.ops.hurwitz.hadamard(dy, saved["pre"], saved["post"],
                                            _with(options, flags, drop=("y",)))}


_differentiable("hadamard", ["pre", "post"], [], _hadamard_back, ("pre", "post"))


def _paired(name, taken, options=(), results=(), keep=(), fields=(), made=(), back=None):
    """An operation with a backward call: taken are that call's gradients of outputs, fields and
    made the operands and outputs of its structs. back is one that another operation has, too."""
    back = back or name + "_bwd"
    backward = _operators.get(back) or _Operator(back, [*fields, *options, *keep], made, True)
    save = [word for word in backward.tensors if word not in fields and word not in keep
            and word not in taken]

    def run(saved, grads, wanted, options_):
        given = {word: _given(saved[word]) if word in keep else saved.get(word)
                 for word in backward.tensors}
        given.update({word: grads[output] for word, output in taken.items()})
        found = backward.operator(*[given[word] for word in backward.tensors],
                                  _with(options_, want=["d" + word for word in wanted]))
        found = found if isinstance(found, tuple) else (found,)
        return {word[1:]: _given(grad) for word, grad in zip(backward.outputs, found)}

    _differentiable(name, save, list(keep), run, options, results)


for _name, _taken in (("mul", {"dy": "y"}), ("norm", {"dn": "n"}), ("normalize", {"dy": "y"}),
                      ("inverse", {"dy": "y"}), ("rotate", {"dy": "y"}), ("to_matrix", {"dm": "m"}),
                      ("from_matrix", {"dq": "q"})):
    _paired("quat_" + _name, _taken)
for _name in ("quat_linear", "quat_conv"):
    _paired(_name, {"dy": "y"}, ["scale"], ["pre"], ["pre"], made=["dscale"])
_differentiable("quat_conj", [], [], lambda saved, grads, wanted, options: {
    "x": torch.ops.hurwitz.quat_conj(grads["y"], options)})
_differentiable("quat_dropout", [], [], lambda saved, grads, wanted, options: {
    "x": torch.ops.hurwitz.quat_dropout(grads["y"], options)})


_Operator("quat_batchnorm_bwd", ("saved",), wanted=True)


def _batchnorm_back(saved, grads, wanted, options):
    found = torch.ops.hurwitz.quat_batchnorm_bwd(
        saved["x"], saved["gamma"], grads["y"], saved["saved"],
        _with(options, want=["d" + word for word in wanted], drop=("momentum",)))
    return dict(zip(("x", "gamma", "beta"), map(_given, found)))


_differentiable("quat_batchnorm", ["x", "gamma"], ["saved"], _batchnorm_back,
                ("running_mean", "running_var"), ("saved", "running_mean", "running_var"))

_Operator("quat_recurrent_bwd", ("lengths", "saved"), wanted=True)


def _recurrent_back(saved, grads, wanted, options):
    u, kept, dy = saved["u"], saved["saved"], grads["y"]
    if dy is None:
        dy = u.new_zeros(kept.shape[:3] + kept.shape[4:])
    found = torch.ops.hurwitz.quat_recurrent_bwd(
        u, saved["h0"], saved["c0"], dy, grads["hn"], grads["cn"], saved["lengths"], kept,
        _with(options, want=["dz", *["d" + word for word in wanted]]))
    return dict(zip(("z", "u", "h0", "c0"), map(_given, found)))


_differentiable("quat_recurrent", ["u", "h0", "c0", "lengths"], ["saved"], _recurrent_back,
                ("lengths",), ("saved",))

_Operator("quat_pool_bwd", like=("x",))
_differentiable("quat_pool", ["x"], ["index"], lambda saved, grads, wanted, options: {
    "x": torch.ops.hurwitz.quat_pool_bwd(
        _given(saved["index"]), grads["y"], saved["x"], options)})

_paired("mhc_sinkhorn", {"dp": "p"})
_paired("mhc_mix", {"du": "u", "dr": "r"})
_paired("mhc_post", {"dy": "y"})
_Operator("mhc_add_bwd", wanted=True)
_differentiable("mhc_add", ["f", "q"], [], lambda saved, grads, wanted, options: {
    "r": grads["y"], **dict(zip(("", "f", "q"), map(_given, torch.ops.hurwitz.mhc_add_bwd(
        saved["f"], saved["q"], grads["y"],
        _with(options, want=["d" + word for word in wanted if word != "r"])))))})
_extra = ["gain", "norm", "p_in"]
_made = ["dx", "dphi", "dalpha", "dbias", "dgain", "dnorm", "dp_in"]
_paired("mhc_pre", {"du": "u", "dp": "p", "dq": "q", "da": "a"}, _extra, ["saved"], ["saved"],
        ["du", "dp", "dq", "da", "dy"], _made)
_paired("mhc_weights", {"dp": "p", "dq": "q", "da": "a"}, _extra, ["saved"], ["saved"],
        ["du", "dy"], back="mhc_pre_bwd")
_paired("mhc_head", {"du": "h", "dp": "p"}, fields=["du", "dp"],
        made=["dx", "dphi", "dalpha", "dbias"])


# A layer of hyper-connections: mhc_pre() and mhc_post() whose gradients of the streams are one
# call. link stands for the streams in mhc_layer_end(). It takes no memory; its gradient is dy, of
# which hz_mhc_pre_bwd() makes that of the streams and of a.

def _link(x):
    return x.new_zeros(1).expand(x.shape)


def _layer_begin(x, phi, alpha, bias, norm, p_in, options):
    return *_operators["mhc_pre"].run(x, phi, alpha, bias, None, norm, p_in, options), _link(x)


def _layer_begin_fake(x, phi, alpha, bias, norm, p_in, options):
    return *_operators["mhc_pre"].fake(x, phi, alpha, bias, None, norm, p_in, options), _link(x)


def _layer_begin_setup(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    *tensors, ctx.options = inputs
    ctx.save_for_backward(*tensors, output[4])


def _layer_begin_back(ctx, dp, dq, da, du, _, dy):
    words = ["x", "phi", "alpha", "bias", "norm", "p_in"]
    given = dict(zip([*words, "saved"], ctx.saved_tensors))
    given.update(dp=_dense(dp), dq=_dense(dq), da=_dense(da), du=_dense(du), dy=_dense(dy),
                 saved=_given(given["saved"]))
    want = ["d" + word for word, needs in zip(words, ctx.needs_input_grad) if needs]
    if all(grad is None for grad in (dp, dq, da, du, dy)):
        return (None,) * 7
    backward = _operators["mhc_pre_bwd"]
    found = dict(zip(backward.outputs, backward.operator(
        *[given.get(word) for word in backward.tensors], _with(ctx.options, want=want))))
    return *[_given(found["d" + word]) for word in words], None


def _swapped(t, swap):
    return t.transpose(-1, -2) if swap else t


def _layer_end(x, f, q, a, link, swap):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    try:
        ops.mhc_post(_swapped(x, swap), f, q, a, None, _swapped(y, swap))
    except _STRIDE:
        ops.mhc_post(_swapped(x.contiguous(), swap), f.contiguous(), q, a, None, _swapped(y, swap))
    return y


def _layer_end_setup(ctx, inputs, output):
    _, f, q, _, _, ctx.swap = inputs
    ctx.save_for_backward(f, q)


def _layer_end_back(ctx, dy):
    f, q = ctx.saved_tensors
    dy = _dense(dy)
    want = [word for word, needs in zip(("df", "dq"), ctx.needs_input_grad[1:3]) if needs]
    found = [None] * 3
    if want:
        found = _operators["mhc_post_bwd"].operator(
            None, f, q, None, None, _swapped(dy, ctx.swap), _with("", want=want))
    return None, _given(found[1]), _given(found[2]), None, dy, None


_custom("mhc_layer_begin(Tensor x, Tensor? phi, Tensor? alpha, Tensor bias, Tensor? norm, "
        "Tensor? p_in, str options) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        _layer_begin, _layer_begin_fake, _layer_begin_setup, _layer_begin_back)
for _name, _backward in (("mhc_layer_end", (_layer_end_setup, _layer_end_back)),
                         ("mhc_layer_end.no_grad", ())):
    _custom(_name + "(Tensor x, Tensor f, Tensor q, Tensor? a, Tensor link, bool swap) -> Tensor",
            _layer_end, lambda x, f, q, a, link, swap: torch.empty_like(
                x, memory_format=torch.contiguous_format), *_backward)


def _eager(name, run, setup, back):
    """An operator as a function of autograd's alone. Its setup_context() would take longer."""
    def forward(ctx, *inputs):
        output = run(*inputs)
        setup(ctx, inputs, output)
        return output

    return type(name, (torch.autograd.Function,), {
        "forward": staticmethod(forward), "backward": staticmethod(back)}).apply


_begin = _eager("mhc_layer_begin", _layer_begin, _layer_begin_setup, _layer_begin_back)
_end = _eager("mhc_layer_end", _layer_end, _layer_end_setup, _layer_end_back)


def _layer(x):
    """Both operators of a layer, without the dispatcher where nothing traces or transforms calls:
    that is a third of the host's time."""
    if (type(x) in (Tensor, nn.Parameter) and not torch.compiler.is_compiling()
            and not torch._C._len_torch_dispatch_stack()
            and torch._C._functorch.peek_interpreter_stack() is None):
        return _begin, _end
    return torch.ops.hurwitz.mhc_layer_begin.default, torch.ops.hurwitz.mhc_layer_end.default


# ---- Functions -----------------------------------------------------------------------------------

def _function(name):
    """A function of an operator; an output that may be missing is None, what only the backward
    call needs is left out."""
    operator = _operators[name]

    def call(*tensors: Tensor | None, **options: Any):
        words = list(tensors) + [None] * (len(operator.tensors) - len(tensors))
        if options:
            for at, word in enumerate(operator.tensors):
                if word in options:
                    words[at] = options.pop(word)
        found = operator(*words, _text(options))
        return tuple(map(_given, found)) if isinstance(found, (tuple, list)) else found

    call.__name__ = call.__qualname__ = name
    call.__doc__ = getattr(ops, name).__doc__
    return call


hadamard = _function("hadamard")
hadamard_quantize = _function("hadamard_quantize")
dequantize_hadamard = _function("dequantize_hadamard")
quantize = _function("quantize")
dequantize = _function("dequantize")
qgemm = _function("qgemm")
qlinear = _function("qlinear")
quat_mul = _function("quat_mul")
quat_conj = _function("quat_conj")
quat_norm = _function("quat_norm")
quat_normalize = _function("quat_normalize")
quat_inverse = _function("quat_inverse")
quat_rotate = _function("quat_rotate")
quat_to_matrix = _function("quat_to_matrix")
quat_from_matrix = _function("quat_from_matrix")
quat_pool = _function("quat_pool")
quat_dropout = _function("quat_dropout")
quat_batchnorm = _function("quat_batchnorm")
mhc_sinkhorn = _function("mhc_sinkhorn")
mhc_mix = _function("mhc_mix")
mhc_add = _function("mhc_add")
mhc_post = _function("mhc_post")
mhc_pre = _function("mhc_pre")
mhc_weights = _function("mhc_weights")
mhc_head = _function("mhc_head")


def _cast(x, *tensors):
    """Operands of a product of quaternions in the dtype of autocast, if that is on."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return x, *tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(t if t is None else t.to(dtype) for t in (x, *tensors))


def _kept(options):
    """Options as a string; a backward call needs pre of an activation alone."""
    if options.get("activation") in (None, "none", 0):
        options = {**options, "want": ""}
    return _text(options)


def _product(name, x, w, b, scale, text):
    return _operators[name](*_cast(x, w, b, scale), text)


def quat_linear(x: Tensor, w: Tensor, b: Tensor | None = None, scale: Tensor | None = None,
                **options: Any) -> Tensor:
    """hz_quat_linear(): x [..., M, 4], w [N, M, 4], b [N, 4], y [..., N, 4]."""
    return _product("quat_linear", x, w, b, scale, _kept(options))


def quat_conv(x: Tensor, w: Tensor, b: Tensor | None = None, scale: Tensor | None = None,
              **options: Any) -> Tensor:
    """hz_quat_conv(): x [n, spatial..., Ci, 4], w [Co, taps..., Ci / groups, 4], b [Co, 4]."""
    return _product("quat_conv", x, w, b, scale, _kept(options))


def quat_recurrent(z: Tensor, u: Tensor, h0: Tensor | None = None, c0: Tensor | None = None,
                   lengths: Tensor | None = None,
                   **options: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """hz_quat_recurrent(): y, hn and, of an LSTM, cn; z [T, B, D, K H, 4], u [D, K H, H, 4]."""
    z, u, h0, c0 = _cast(z, u, h0, c0)
    y, hn, cn = _operators["quat_recurrent"](z, u, h0, c0, lengths, _text(options))
    return y, hn, _given(cn)


def mhc_expand(e: Tensor, n: int) -> Tensor:
    """n streams [..., n, C] that are all e [..., C]."""
    return e.unsqueeze(-2).expand(*e.shape[:-1], n, e.shape[-1]).contiguous()


def hadamard_transform(x: Tensor, scale: float = 1.0) -> Tensor:
    """x H^T times scale, H of entries +-1, as fast_hadamard_transform has it: a last dimension that
    is no power of two is continued by zeros, and the result cut off."""
    n = x.shape[-1]
    length = 1 << max(n - 1, 0).bit_length()
    padded = torch.nn.functional.pad(x, (0, length - n)) if length != n else x
    if not scale:
        return x * 0
    return hadamard(padded, flags=CONSTANTS["HADAMARD_RAW"], factor=scale)[..., :n]


def hadamard_transform_metal(x: Tensor, block_size: int = 64) -> Tensor:
    """The orthonormal transform of each block_size elements: 96 = 64 + 32, 160 = 128 + 32."""
    return hadamard(x, block=block_size, plan="greedy")


def sinkhorn_knopp(M: Tensor, num_iters: int = 20, eps: float = 1e-8, **options: Any) -> Tensor:
    """A nearly doubly stochastic matrix of M [..., n, n], as mHC-triton makes it."""
    options = {"preset": "triton", "iterations": num_iters, "eps": eps, **options}
    return mhc_sinkhorn(M.float(), **options).to(M.dtype)


def fused_stream_mix(H: Tensor, H_pre: Tensor, H_res: Tensor) -> tuple[Tensor, Tensor]:
    """Branch input and residual streams of H [..., n, C]; coefficients [..., n], [..., n, n]."""
    return mhc_mix(H, H_pre.float(), H_res.float())


def fused_add_residual(H_residual: Tensor, branch_output: Tensor, H_post: Tensor) -> Tensor:
    """H_residual + H_post branch_output."""
    return mhc_add(H_residual, branch_output.to(H_residual.dtype), H_post.float())


def fused_dynamic_weights(x: Tensor, phi: Tensor, bias: Tensor, alpha_pre: Tensor,
                          alpha_post: Tensor, alpha_res: Tensor, sinkhorn_iters: int = 20,
                          eps: float = 1e-6, *, num_streams: int = 4,
                          **options: Any) -> tuple[Tensor, ...]:
    """H_pre, H_post and H_res of x [..., n C], as mHC-triton makes them.

    phi is [n C, m], as there, or [m, n C], as in HyperConnection; m is the size of bias.
    """
    m, size = bias.shape[0], x.shape[-1]
    if tuple(phi.shape) not in ((m, size), (size, m)):
        raise ValueError(f"phi.shape is {list(phi.shape)}, must be [{size}, {m}] or [{m}, {size}]: "
                         "the last dimension of x and the size of bias")
    if m == size:
        raise ValueError(f"phi.shape is [{m}, {m}], which does not tell rows from columns: "
                         "call mhc_weights()")
    if size % num_streams:
        raise ValueError(f"x.shape[-1] is {size}, must be a multiple of num_streams, {num_streams}")
    phi = phi if phi.shape[0] == m else phi.t().contiguous()
    alpha = torch.stack([torch.as_tensor(a, dtype=torch.float32, device=x.device).reshape(())
                         for a in (alpha_pre, alpha_post, alpha_res)])
    options = {"preset": "triton", "iterations": sinkhorn_iters, "eps": eps, "p_eps": eps,
               "rms_eps": eps, **options}
    return mhc_weights(x.unflatten(-1, (num_streams, -1)), phi, alpha, bias.float(), **options)


# ---- Modules -------------------------------------------------------------------------------------

_INIT = {"triton": "triton", "triton_static": "triton", "hc": "hc", "lite": "lite",
         "paper": "paper"}


class HyperConnection(nn.Module):
    """Manifold-constrained hyper-connections around a branch of the caller's own.

        branch_input, add_residual = hc(H)              # H [..., num_streams, dim]
        H = add_residual(branch(branch_input))

    preset names the conventions, those of mHC-triton by default: "deepseek_v4", "paper", "hc",
    "lite", "megatron", ... The coefficients of mHC-triton are those of the mean over the second
    dimension of H, the tokens of a sequence, which a causal model must not see:
    coefficients="per_token" gives each token its own, as other presets do. Further keywords are
    fields of hz_mhc_opts: residual="identity". norm is
    whether the branch input is normalized and multiplied by a weight. H is read again by
    add_residual(), until when it must not change. With preset="transformer_engine" H is [..., dim,
    num_streams]. use_fused_weights is there for code written for mHC-triton and changes nothing:
    coefficients are always fused. load_state_dict() takes mHC-triton's state of such layers, too.
    """

    def __init__(self, dim: int, num_streams: int = 4, layer_idx: int = 0, dynamic: bool = True,
                 sinkhorn_iters: int | None = None, init_scale: float | None = None,
                 use_fused_weights: bool = True, preset: str | None = None, norm: bool = False,
                 **options: Any):
        super().__init__()
        preset = preset or ("triton" if dynamic else "triton_static")
        enum_value("hz_mhc_presets", preset, "preset")
        if dim < 1:
            raise ValueError(f"dim is {dim}, must be at least 1")
        self.dim, self.num_streams, self.dynamic, self.preset = dim, num_streams, dynamic, preset
        self.options = {"preset": preset, **options}
        if sinkhorn_iters is not None:
            self.options["iterations"] = sinkhorn_iters
        if not dynamic:
            self.options["coefficients"] = "static"
        elif preset == "triton":
            self.options.setdefault("coefficients", "per_sequence")
        # Whether H is [..., dim, num_streams]
        streams = self.options.get("streams") or (
            "cn" if preset == "transformer_engine" else "nc")
        self.swap = enum_value("hz_mhc_streams", streams) == CONSTANTS["MHC_STREAMS_CN"]
        rows = mhc_rows(num_streams, **self.options)
        identity = rows == 2 * num_streams
        single = {"dtype": torch.float32}
        self.bias = nn.Parameter(torch.zeros(rows, **single))
        if dynamic:
            self.phi = nn.Parameter(torch.zeros(rows, num_streams * dim, **single))
            self.alpha = nn.Parameter(torch.zeros(2 if identity else 3, **single))
        else:
            self.register_parameter("phi", None)
            self.register_parameter("alpha", None)
        self.norm = nn.Parameter(torch.ones(dim, **single)) if norm else None
        self.reset_parameters(layer_idx, init_scale)

    @torch.no_grad()
    def reset_parameters(self, layer_idx: int = 0, init_scale: float | None = None):
        """Initial weights of the preset: hz_mhc_init()."""
        if self.bias.is_meta:
            return
        kind = enum_value("hz_mhc_init_kind", _INIT.get(self.preset, "identity"))
        seed = int(torch.randint(1 << 62, (), device="cpu"))
        alpha = self.alpha if self.dynamic else self.bias.new_zeros(
            2 if len(self.bias) == 2 * self.num_streams else 3)
        views = [None if t is None else t.detach() for t in (self.phi, alpha, self.bias)]
        ops.mhc_init(kind, layer_idx, seed, *views, **self.options)
        if self.dynamic and init_scale is not None:
            self.alpha.fill_(init_scale)

    def _check(self, H):
        """H is [..., num_streams, dim], and a batch of sequences where they have coefficients."""
        sizes = (self.dim, self.num_streams) if self.swap else (self.num_streams, self.dim)
        sequences = self.options.get("coefficients") == "per_sequence"
        if H.shape[-2:] != sizes or H.dim() < 3 + sequences:
            raise ValueError(f"H.shape is {list(H.shape)}, must be "
                             f"[{'batch, tokens' if sequences else '...'}, {sizes[0]}, {sizes[1]}]")

    def _weights(self):
        """phi, alpha, bias and norm; but for phi the library has them in float32 alone."""
        return self.phi, *[t if t is None or t.dtype == torch.float32 else t.float()
                           for t in (self.alpha, self.bias, self.norm)]

    def coefficients(self, H: Tensor, p_in: Tensor | None = None) -> tuple[Tensor, ...]:
        """p, q, a (None for the identity) and the branch input, by p_in if it is given."""
        self._check(H)
        phi, alpha, bias, norm = self._weights()
        return mhc_pre(H, phi, alpha, bias, norm=norm, p_in=p_in, **self.options)

    def forward(self, H: Tensor, p_in: Tensor | None = None):
        self._check(H)
        tensors = H, *self._weights(), p_in
        text = _text(self.options)
        begin, end = _layer(H)
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            _, q, a, u, _, link = begin(*tensors, text)
        else:
            *four, norm, p_in = tensors
            _, q, a, u = _operators["mhc_pre"].without(*four, None, norm, p_in, text)
            link = _link(H)

        def add_residual(branch_output: Tensor) -> Tensor:
            f = branch_output.to(H.dtype)
            wanted = torch.is_grad_enabled() and (f.requires_grad or q.requires_grad)
            return (end if wanted else torch.ops.hurwitz.mhc_layer_end.no_grad)(
                H.detach(), f, q, _given(a), link, self.swap)

        return u, add_residual

    def _load_from_state_dict(self, state_dict, prefix, *arguments):
        """A state of mHC-triton's HyperConnection, too, whose names and phi^T it replaces."""
        names = [prefix + name for name in ("H_pre_base", "H_post_base", "H_res_base")]
        if all(name in state_dict for name in names):
            state_dict[prefix + "bias"] = torch.cat([state_dict.pop(name).flatten()
                                                     for name in names])
        names = [prefix + name for name in ("alpha_pre", "alpha_post", "alpha_res")]
        if all(name in state_dict for name in names):
            state_dict[prefix + "alpha"] = torch.cat([state_dict.pop(name).flatten()
                                                      for name in names])
            state_dict[prefix + "phi"] = state_dict[prefix + "phi"].t()
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self):
        return f"{self.dim}, num_streams={self.num_streams}, preset={self.preset!r}"


def _random(*shape, fan_in, fan_out):
    w = torch.empty(*shape, 4)
    if not w.is_meta:
        ops.quat_init(w, CONSTANTS["QUAT_POLAR"], quat_init_scale(fan_in, fan_out),
                      int(torch.randint(1 << 62, (), device="cpu")))
    return nn.Parameter(w)


def _split(x, layout):
    """[..., C, 4] of a tensor in a layout, without a copy."""
    if layout == "last":
        return x
    if layout == "channels_first":
        return x.unflatten(1, (4, -1)).movedim(1, -1).movedim(1, -2)
    return x.unflatten(-1, (4, -1)).transpose(-1, -2)


def _join(y, layout):
    if layout == "last":
        return y
    if layout == "channels_first":
        return y.movedim(-2, 1).movedim(-1, 1).flatten(1, 2)
    return y.transpose(-1, -2).flatten(-2)


class _Layer(nn.Module):
    """layout is where the components of x and y are: "last" [..., C, 4]; "blocks" [..., 4 C], all
    r, then all i, j, k, as in speechbrain; "channels_first" [n, 4 C, spatial...] likewise."""

    call = "quat_linear"                # whose options the layer takes

    def __init__(self, layout, options=()):
        super().__init__()
        for key in options:
            if key not in _operators[self.call].call.fields:
                raise TypeError(f"{type(self).__name__} has no option {key!r}; it is made with "
                                "PyTorch's default dtype and device")
        if layout not in ("last", "blocks", "channels_first"):
            raise ValueError(f"layout is {layout!r} (valid: last, blocks, channels_first)")
        self.layout = layout

    def _finish(self, options):
        """The options of the layer, which do not change."""
        self.options = options
        self._text = _kept({**options, "blocks": 1} if self.layout == "blocks" else options)

    def forward(self, x: Tensor) -> Tensor:
        x = self._padded(_split(x, self.layout))
        return _join(_product(self.call, x, self.weight, self.bias, self.scale, self._text),
                     self.layout)

    def _padded(self, x):
        return x

    def _scale(self, scale, weight):
        return nn.Parameter(torch.ones(weight.shape[:-1])) if scale else None


class QuaternionLinear(_Layer):
    """y = act(w x + b): x [..., in_features, 4], w [out_features, in_features, 4].

    Features are quaternions. Further keywords are fields of hz_quat_linear_opts: side="right",
    activation="relu", flags=hz.QUAT_ROTATION, eps=1e-4; scale is whether rotations have factors.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *,
                 scale: bool = False, layout: str = "last", **options: Any):
        super().__init__(layout, options)
        self.in_features, self.out_features = in_features, out_features
        self.weight = _random(out_features, in_features, fan_in=in_features, fan_out=out_features)
        self.bias = nn.Parameter(torch.zeros(out_features, 4)) if bias else None
        self.scale = self._scale(scale, self.weight)
        self._finish(options)

    def extra_repr(self):
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class _Conv(_Layer):
    call, dimensions = "quat_conv", 1

    def __init__(self, in_channels: int, out_channels: int, kernel_size, stride=1, padding=0,
                 dilation=1, groups: int = 1, bias: bool = True, padding_mode: str = "zero", *,
                 scale: bool = False, layout: str = "last", **options: Any):
        super().__init__(layout, options)
        d = self.dimensions
        sizes = {"stride": stride, "padding": padding, "dilation": dilation,
                 "kernel_size": kernel_size}
        for word, n in sizes.items():
            sizes[word] = [n] * d if isinstance(n, int) else list(n)
            if len(sizes[word]) != d or not all(isinstance(one, int) for one in sizes[word]):
                raise ValueError(f"{word} is {n!r}, not a number or {d} of them")
        stride, padding, dilation, taps = sizes.values()
        padding_mode = {"zeros": "zero"}.get(padding_mode, padding_mode)
        self.copied = None              # padding_mode and padding, where x is padded by a copy
        if padding_mode in ("circular", "replicate"):
            self.copied = padding_mode, padding
            padding_mode, padding = "zero", [0] * d
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, taps
        self._finish({"stride": stride, "pad": padding, "dilation": dilation, "groups": groups,
                      "pad_mode": enum_value("hz_pad", padding_mode, "padding_mode"), **options})
        size = 1
        for n in taps:
            size *= n
        self.weight = _random(out_channels, *taps, in_channels // groups,
                              fan_in=size * in_channels, fan_out=size * out_channels)
        self.bias = nn.Parameter(torch.zeros(out_channels, 4)) if bias else None
        self.scale = self._scale(scale, self.weight)

    def _padded(self, x):
        if self.copied:
            mode, padding = self.copied
            for axis, count in enumerate(padding, 1):
                n = x.shape[axis]
                if count > n and mode == "circular":
                    raise ValueError(f"padding is {count}, more than x.shape[{axis}], {n}, "
                                     "which circular padding repeats")
                at = torch.arange(-count, n + count, device=x.device)
                at = at % n if mode == "circular" else at.clamp(0, n - 1)
                x = x.index_select(axis, at)
        return x

    def extra_repr(self):
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"


class QuaternionConv1d(_Conv):
    """Convolution of quaternions, x [n, length, in_channels, 4]: hz_quat_conv().

    Further keywords are fields of hz_quat_conv_opts: activation="relu", flags=hz.QUAT_TRANSPOSED.
    padding_mode is "zero", "causal" or "reflect", or "circular" or "replicate", which copy x; scale
    is whether rotations have factors.
    """


class QuaternionConv2d(_Conv):
    __doc__ = QuaternionConv1d.__doc__.replace("length", "height, width")
    dimensions = 2


class QuaternionConv3d(_Conv):
    __doc__ = QuaternionConv1d.__doc__.replace("length", "depth, height, width")
    dimensions = 3


def _in_f32(fn):
    """fn of Module._apply() for what is f32 beside 16-bit x: half() and bfloat16() leave it f32."""
    def kept(t):
        found = fn(t)
        is_half = found.dtype in (torch.float16, torch.bfloat16)
        return t.to(found.device, torch.float32) if is_half else found
    return kept


class QuaternionBatchNorm(_Layer):
    """Batch normalization of quaternions, x [..., num_features, 4]: hz_quat_batchnorm().

    momentum is that of running values; None: they are the means of all batches. whiten is by the
    4 x 4 covariance. steps, if given, is the number of steps of x [batch, steps, num_features, 4],
    each of which has statistics of its own. With first_batch the first batch sets the running
    values, as in speechbrain.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
                 affine: bool = True, track_running_stats: bool = True, *, whiten: bool = False,
                 steps: int | None = None, first_batch: bool = False, layout: str = "last"):
        super().__init__(layout)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.first_batch = first_batch
        # Whether the first batch says if there are steps: x is [batch, steps, num_features, 4] then
        self.steps_of_batch = False
        self.flags = (CONSTANTS["QUAT_WHITEN"] if whiten else 0) | (
            CONSTANTS["QUAT_PER_STEP"] if steps else 0)
        unit = torch.tensor([1., 0, 0, 0, 1, 0, 0, 1, 0, 1]) if whiten else torch.tensor(1.)
        ones = unit.expand(num_features, *unit.shape).clone()
        self.weight = nn.Parameter(ones.clone() * (0.5 if whiten else 1)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features, 4)) if affine else None
        lead = (steps,) if steps else ()
        if track_running_stats:
            self.register_buffer("running_mean", torch.zeros(*lead, num_features, 4))
            self.register_buffer("running_var", ones.expand(*lead, *ones.shape).clone() * (
                0.25 if whiten else 1))
            self.register_buffer("num_batches_tracked", torch.tensor(0))
        else:
            self.running_mean = self.running_var = self.num_batches_tracked = None

    def forward(self, x: Tensor) -> Tensor:
        tracked = self.running_mean is not None
        evaluate = tracked and not self.training
        momentum = self.momentum
        x = _split(x, self.layout)
        if self.steps_of_batch and not evaluate:
            self._take_steps(x.shape[1:-2])
        dimensions = x.shape[1:-2]
        if len(dimensions) > 1 and self.flags & CONSTANTS["QUAT_PER_STEP"]:
            x = x.flatten(1, -3)
        if self.training and tracked and (self.first_batch or momentum is None):
            batches = int(self.num_batches_tracked)
            if momentum is None or not batches:
                momentum = 1 / (batches + 1)
        y, mean, var = quat_batchnorm(
            x, self.weight, self.bias, running_mean=self.running_mean,
            running_var=self.running_var, eps=self.eps, momentum=momentum,
            flags=self.flags | (CONSTANTS["QUAT_EVAL"] if evaluate else 0),
            blocks=1 if self.layout == "blocks" else None)
        if tracked and self.training:
            with torch.no_grad():
                self.running_mean.copy_(mean)
                self.running_var.copy_(var)
                self.num_batches_tracked += 1
        if y.dim() != len(dimensions) + 3:
            y = y.unflatten(1, dimensions)
        return _join(y, self.layout)

    def _apply(self, fn, recurse=True):
        return super()._apply(_in_f32(fn), recurse)

    def _take_steps(self, dimensions):
        """Statistics of each step, if there are some; running values are theirs from now on."""
        per_step = CONSTANTS["QUAT_PER_STEP"]
        self.flags = self.flags | per_step if dimensions else self.flags & ~per_step
        if self.running_mean is not None:
            steps = [dimensions.numel()] if dimensions else []
            self.running_mean = self.running_mean.expand(*steps, -1, -1).clone()
            self.running_var = self.running_var.expand(*steps, -1).clone()
            self.steps_of_batch = False

    def extra_repr(self):
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class _Recurrent(_Layer):
    call, cell, gates = "quat_recurrent", "rnn", 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, bidirectional: bool = False, *,
                 speechbrain: bool = False, layout: str = "last", **options: Any):
        super().__init__(layout, options)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.speechbrain = batch_first, speechbrain
        self.directions = 2 if bidirectional else 1
        gates = "components" if speechbrain else "neurons"
        self.options = {"cell": enum_value("hz_quat_cell", self.cell),
                        "gates": enum_value("hz_quat_gates", gates), **options}
        own, n = 1 if speechbrain else self.directions, self.gates * hidden_size
        for k in range(num_layers):
            size = self.directions * hidden_size if k else input_size
            for name, count in (("ih", size), ("hh", hidden_size)):
                setattr(self, f"weight_{name}_l{k}",
                        _random(own, n, count, fan_in=count, fan_out=n))
            setattr(self, f"bias_l{k}", nn.Parameter(torch.zeros(own, n, 4)) if bias else None)

    def _normalized(self, z, k):
        return z

    def forward(self, x: Tensor, state: Any = None, lengths: Any = None):
        h, c = state if isinstance(state, tuple) else (state, None)
        lstm, d = self.cell == "lstm", self.directions
        blocks = 1 if self.speechbrain else None        # where gates are contiguous
        finals: list[list[Tensor]] = [[], []]
        if lengths is not None:
            lengths = torch.as_tensor(lengths, dtype=torch.int32, device=x.device)
        for k in range(self.num_layers):
            w, u, b = (getattr(self, f"{name}_l{k}") for name in ("weight_ih", "weight_hh", "bias"))
            x = _split(x, self.layout)
            x = x.transpose(0, 1) if self.batch_first else x
            z = quat_linear(x, w.flatten(0, 1), None if b is None else b.flatten(0, 1),
                            blocks=blocks)
            z = self._normalized(z, k).unflatten(2, (-1, u.shape[1]))
            z, u = z.expand(-1, -1, d, -1, -1), u.expand(d, -1, -1, -1)
            at = slice(k * d, (k + 1) * d)
            y, *states = quat_recurrent(z, u, None if h is None else h[at],
                                        None if c is None else c[at], lengths, blocks=blocks,
                                        **self.options)
            y = y.transpose(0, 1) if self.batch_first else y
            for kept, final in zip(finals, states):
                kept.append(final)
            # speechbrain's r|i|j|k blocks are those of each direction
            x = (y.transpose(-1, -2).flatten(2) if self.speechbrain and self.layout == "blocks"
                 else _join(y.flatten(2, 3), self.layout))
        found = [torch.cat(kept) for kept in finals[:1 + lstm]]
        return x, tuple(found) if lstm else found[0]

    def extra_repr(self):
        return (f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, "
                f"bidirectional={self.directions == 2}")


_RECURRENT = """{} of quaternions, hz_quat_recurrent(): y, {} = layer(x, state, lengths).

    x is [steps, batch, input_size, 4], y [steps, batch, directions hidden_size, 4], states are
    [num_layers directions, batch, hidden_size, 4], and lengths, integers, the steps of each
    sequence. With speechbrain gates are components, and both directions have the same weights.{}
    Further keywords are fields of hz_quat_recurrent_opts.
    """


class QuaternionRNN(_Recurrent):
    __doc__ = _RECURRENT.format("RNN", "hn", " activation is tanh\n    or relu.")


class QuaternionLSTM(_Recurrent):
    __doc__ = _RECURRENT.format("LSTM", "(hn, cn)", "")
    cell, gates = "lstm", 4


class QuaternionLiGRU(_Recurrent):
    __doc__ = _RECURRENT.format("Light GRU", "hn", " activation is relu,\n    leaky or tanh, and "
                                "norm whether gates of x are normalized over the batch.")
    cell, gates = "ligru", 2

    def __init__(self, *sizes: Any, norm: bool = True, **options: Any):
        super().__init__(*sizes, **options)
        self.norm = nn.ModuleList([
            QuaternionBatchNorm(getattr(self, f"weight_ih_l{k}").shape[:2].numel(),
                                first_batch=self.speechbrain,
                                eps=1e-4 if self.speechbrain else 1e-5)
            for k in range(self.num_layers)]) if norm else None

    def _normalized(self, z, k):
        return self.norm[k](z) if self.norm is not None else z


# ---- Linear layers with quantized weights --------------------------------------------------------

class _Layers(threading.local):
    """The layer that a thread has made of a tensor of bytes, while that is there and unchanged."""

    def __init__(self):
        self.found = {}

    def of(self, data):
        key = data.data_ptr(), data.numel()
        changes = 0 if data.is_inference() else data._version
        storage, version, layer = self.found.get(key, (None, None, None))
        if storage is None or storage.expired() or version != changes:
            for old in [old for old, entry in self.found.items() if entry[0].expired()]:
                del self.found[old]
            layer = Linear.__new__(Linear)
            host = data if data.is_cpu and not data.data_ptr() % 64 else _aligned(data)
            if host is not data:
                layer.data = host
            device = f"cuda:{data.get_device()}" if data.is_cuda else "cpu"
            layer._open(context(device), "linear_load", host.data_ptr(), host.numel())
            self.found[key] = StorageWeakRef(data.untyped_storage()), changes, layer
        return layer


def _aligned(data):
    """A copy on the host: PyTorch allocates at multiples of 64."""
    return torch.empty(data.shape, dtype=data.dtype, device="cpu").copy_(data)


_layers = _Layers()

def _quantized_setup(ctx, inputs, output):
    data, x, bias, _ = inputs
    ctx.save_for_backward(data)
    ctx.size = x.shape[-1]


def _quantized_back(ctx, dy):
    data, = ctx.saved_tensors
    _, x, bias, _ = ctx.needs_input_grad
    return (None, torch.ops.hurwitz.quantized_linear_bwd(data, _dense(dy), ctx.size) if x else None,
            dy.flatten(0, -2).sum(0, dtype=torch.float32) if bias else None, None)


_custom("quantized_linear(Tensor data, Tensor x, Tensor? bias, int out) -> Tensor",
        lambda data, x, bias, out: _layers.of(data).forward(
            x, None if bias is None else bias.detach()),
        lambda data, x, bias, out: x.new_empty((*x.shape[:-1], out)),
        _quantized_setup, _quantized_back)
_custom("quantized_linear_bwd(Tensor data, Tensor dy, int size) -> Tensor",
        lambda data, dy, size: _layers.of(data).bwd(dy),
        lambda data, dy, size: dy.new_empty((*dy.shape[:-1], size)))


class QuantizedLinear(nn.Module):
    """A linear layer with weights of 8 to 2.25 bits, which are not trained: hz_linear.

    QuantizedLinear.from_linear(linear, format="e8_4_50", rotate=True) quantizes one of PyTorch's.
    The state has the bytes of hz_linear_save(), and the bias, which is trained. Gradients pass
    through to x.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *,
                 format: str = "s8_row", rotate: bool = False, seed: int = 0,
                 moments: Tensor | None = None, weight: Tensor | None = None):
        super().__init__()
        self.in_features, self.out_features, self.format = in_features, out_features, format
        if weight is None:
            weight = torch.randn(out_features, in_features) / in_features ** 0.5
        flags = CONSTANTS["LINEAR_ROTATE"] if rotate else 0
        with Linear(weight.detach().cpu(), format=format, flags=flags,
                    seed=seed if rotate else 0, moments=moments) as layer:
            self.register_buffer("data", _aligned(torch.from_numpy(layer.save())).to(weight.device))
            self.info = layer.info
        self.bias = nn.Parameter(weight.new_zeros(out_features, dtype=torch.float32)
                                 ) if bias else None

    @classmethod
    def from_linear(cls, linear: nn.Linear, **options: Any) -> QuantizedLinear:
        """The quantized form of a layer; options are the keywords of the class."""
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None,
                    weight=linear.weight, **options)
        if linear.bias is not None:
            with torch.no_grad():
                layer.bias.copy_(linear.bias)
        return layer.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.hurwitz.quantized_linear(self.data, x, self.bias, self.out_features)

    def _apply(self, fn, recurse=True):
        return super()._apply(_in_f32(fn), recurse)

    def extra_repr(self):
        return f"{self.in_features}, {self.out_features}, format={self.format!r}"


# ---- Layers of speechbrain -----------------------------------------------------------------------

def _components(layer):
    return torch.stack([getattr(layer, name + "_weight").detach() for name in "rijk"], -1)


def _copy(module, weight, bias, scale=None):
    with torch.no_grad():
        module.weight.copy_(weight)
        if module.bias is not None:
            module.bias.copy_(bias.detach().unflatten(0, (4, -1)).t())
        if module.scale is not None:
            module.scale.copy_(scale)
    return module


def _recurrent(layer, kind):
    """QRNN, QLSTM or QLiGRU, whose w and u both have a bias"""
    if layer.dropout:
        raise ValueError(f"{kind}: dropout of recurrences is not supported")
    first = layer.rnn[0]
    options = {}
    if kind == "QLiGRU":
        kind_of = {"Tanh": "tanh", "LeakyReLU": "leaky", "ReLU": "relu"}[type(first.act).__name__]
        options = {"activation": kind_of, "norm": first.normalize,
                   "slope": 0.01 if kind_of == "leaky" else 0}
    elif kind == "QRNN":
        options = {"activation": type(first.act).__name__.lower()}
    module = {"QRNN": QuaternionRNN, "QLSTM": QuaternionLSTM, "QLiGRU": QuaternionLiGRU}[kind](
        int(layer.fea_dim) // 4, layer.hidden_size // 4, layer.num_layers, kind != "QLiGRU", True,
        layer.bidirectional, speechbrain=True, layout="blocks", **options)
    with torch.no_grad():
        for k, one in enumerate(layer.rnn):
            for name, part in (("ih", one.w), ("hh", one.u)):
                getattr(module, f"weight_{name}_l{k}").copy_(_components(part).transpose(0, 1))
            if kind != "QLiGRU":
                bias = one.w.bias + one.u.bias
                getattr(module, f"bias_l{k}").copy_(bias.unflatten(0, (4, -1)).t())
            elif module.norm is not None:
                module.norm[k].load_state_dict(from_speechbrain(one.norm).state_dict())
                module.norm[k].eps, module.norm[k].momentum = one.norm.eps, one.norm.momentum
    return module.train(layer.training)


def from_speechbrain(layer: nn.Module) -> nn.Module:
    """A module with the weights of speechbrain's QLinear, QConv1d, QConv2d, QBatchNorm, QRNN, QLSTM
    or QLiGRU, which takes the same tensors: [batch, time, 4 channels], r|i|j|k."""
    kind = type(layer).__name__
    if kind in ("QRNN", "QLSTM", "QLiGRU"):
        return _recurrent(layer, kind)
    if kind == "QBatchNorm":
        mean = layer.running_mean
        if layer.dim != -1:
            raise ValueError(f"QBatchNorm: dim is {layer.dim}, must be -1")
        steps = None
        if mean is not None and mean.dim() > 1:
            steps = mean.shape[:-1].numel()
            mean = mean.flatten(0, -2)
        fresh = steps is None and (mean is None or not int(layer.num_batches_tracked))
        module = QuaternionBatchNorm(
            layer.num_features, layer.eps, layer.momentum, layout="blocks", first_batch=True,
            steps=steps, track_running_stats=layer.track_running_stats)
        with torch.no_grad():
            module.weight.copy_(layer.gamma)
            module.bias.copy_(layer.beta.unflatten(0, (4, -1)).t())
            if mean is not None:
                module.running_mean.copy_(mean.unflatten(-1, (4, -1)).transpose(-1, -2))
                module.running_var.copy_(layer.running_var.flatten(0, -2) if steps else
                                         layer.running_var)
                module.num_batches_tracked.fill_(int(layer.num_batches_tracked))
        module.steps_of_batch = fresh
        return module.train(layer.training)
    if kind not in ("QLinear", "QConv1d", "QConv2d"):
        raise TypeError(f"{kind} is no layer that can be converted "
                        "(valid: QLinear, QConv1d, QConv2d, QBatchNorm, QRNN, QLSTM, QLiGRU)")
    if layer.max_norm is not None:
        raise ValueError(f"{kind}: max_norm is not supported")
    bias = layer.bias is not None and layer.bias.requires_grad
    # With autograd=False QLinear does not heed spinor
    spinor = layer.spinor and getattr(layer, "autograd", True)
    scaled = bool(spinor and layer.vector_scale)
    options = {"layout": "blocks", "scale": scaled}
    if spinor:
        options |= {"flags": CONSTANTS["QUAT_ROTATION"], "eps": 1e-4}
    if kind == "QLinear":
        if spinor:
            options |= {"side": "right", "eps_rule": "norm"}
        module = QuaternionLinear(layer.in_features, layer.out_features, bias, **options)
        return _copy(module, _components(layer).transpose(0, 1), layer.bias,
                     layer.scale_param.detach().t() if scaled else None).train(layer.training)
    if layer.groups != 1:
        raise ValueError(f"{kind}: groups cut r|i|j|k blocks there, and channels here")
    if kind == "QConv1d":
        taps, stride, dilation = [layer.kernel_size], [layer.stride], [layer.dilation]
        spread = dilation
    else:
        if layer.skip_transpose:
            raise ValueError("QConv2d: with skip_transpose it returns None")
        # There are two, and the product of both axes has the first one
        taps, spread = list(layer.kernel_size), list(layer.dilation)
        stride, dilation = [layer.stride[0]] * 2, [layer.dilation[0]] * 2
    d = len(taps)
    pad, mode = [0] * d, "zero"
    if layer.padding == "same":
        steps = [layer.stride] if d == 1 else layer.stride
        pad = [n // 2 if step > 1 else m * (n - 1) // 2 for step, m, n in zip(steps, spread, taps)]
        mode = layer.padding_mode
    elif layer.padding == "causal":
        pad, mode = [m * (n - 1) for m, n in zip(dilation, taps)], "causal"
    mode = {"constant": "zero", "zeros": "zero"}.get(mode, mode)
    weight = _components(layer).movedim(1, -2)
    scale = layer.scale_param.detach().movedim(1, -1) if scaled else None
    if d == 2 and not layer.swap:
        # kernel_size[0] there is for the last spatial dimension
        taps, pad = taps[::-1], pad[::-1]
        weight = weight.transpose(1, 2)
        scale = scale.transpose(1, 2) if scaled else None
    module = (QuaternionConv1d, QuaternionConv2d)[d - 1](
        layer.in_channels, layer.out_channels, taps, stride, pad, dilation, 1, bias, mode,
        **options)
    return _copy(module, weight, layer.bias, scale).train(layer.training)
