# _rules.py - shapes and dtypes of outputs that the caller leaves to the package
# SPDX-License-Identifier: BSD-2-Clause
"""What each call's outputs are like, by the contracts in hurwitz.h.

A rule gets the operands: r.x has shape and dtype, numbers and options are themselves, what is not
given is None; outputs before this one are there, too. It returns (shape, dtype), or None where the
output is not wanted, or a function of the dtype where the shape depends on that, s8 if the caller
names none. A shape of None has to be given. Shapes may hold symbolic sizes. Outputs without a rule
have to be given.
"""
from __future__ import annotations

from ._api import CONSTANTS as C

PER_BYTE = {C["S4X2"]: 2, C["U4X2"]: 2, C["E2M1X2"]: 2, C["S2X4"]: 4, C["U2X4"]: 4}
F32, S8, U8, S32 = C["F32"], C["S8"], C["U8"], C["S32"]
RULES = {}


def broadcast(*shapes):
    """The shape that shapes are broadcast to."""
    result = []
    for i in range(1, max(map(len, shapes)) + 1):
        sizes = [shape[-i] for shape in shapes if len(shape) >= i]
        result.append(next((n for n in sizes if not (isinstance(n, int) and n == 1)), 1))
    return tuple(result[::-1])


def like(name, dtype=None):
    """As operand name; not wanted where that is not given."""
    def rule(r):
        operand = getattr(r, name)
        return operand and (operand.shape, dtype or operand.dtype)
    return rule


def stored(r, dtype):
    """The shape of x in elements of dtype, several of which may be one byte."""
    n = PER_BYTE.get(dtype, 1)
    return r.x.shape[:-1] + (r.x.shape[-1] // n,) if n > 1 else r.x.shape


def values(r):
    """The shape of what q holds."""
    n = PER_BYTE.get(r.q.dtype, 1)
    return r.q.shape[:-1] + (r.q.shape[-1] * n,) if n > 1 else r.q.shape


def ceil(a, b):
    return -(-a // b)


RULES["copy"] = {"dst": like("src")}
RULES["hadamard"] = {"y": like("x")}
RULES["hadamard_quantize"] = {
    "q": lambda r: (lambda dtype: (stored(r, dtype), dtype)),
    "scale": lambda r: (r.x.shape[:-1] + (1,), F32),
}
RULES["dequantize_hadamard"] = {"y": lambda r: (values(r), F32)}
RULES["quantize"] = {
    "q": lambda r: (lambda dtype: (stored(r, dtype), dtype)),
    "new_scales": lambda r: (r.x.shape[:-1] + (ceil(r.x.shape[-1], r.group) if r.group else 1,),
                             F32),
    "new_tensor_scale": lambda r: ((1,), F32),
}
RULES["dequantize"] = {"y": lambda r: (values(r), F32)}
RULES["choose_qparams"] = {
    "scale": lambda r: ((1,) * len(r.x.shape), F32),
    "zero": lambda r: None if r.flags & (C["QPARAMS_SYMMETRIC"] | C["QPARAMS_SYMMETRIC_127_5"])
    else (r.scale.shape, U8),
}


def matrix(r, a, rows=-2, columns=-1):
    b = r.b or r.packed
    return broadcast(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1])


RULES["qgemm"] = {"c": lambda r: (matrix(r, r.a), F32)}
RULES["qlinear_group"] = {
    "y": lambda r: (r.x.shape[:-1] + (r.w or r.packed).shape[-1:],
                    F32 if r.x.dtype == S8 else r.x.dtype)}
RULES["qlinear"] = {"y": lambda r: (matrix(r, r.x), r.x.dtype)}

for name in ("conj", "normalize", "inverse", "exp", "log"):
    RULES["quat_" + name] = {"y": like("x")}
for name in ("norm", "normalize", "inverse"):
    RULES[f"quat_{name}_bwd"] = {"dx": like("x")}
RULES["quat_mul"] = {"y": lambda r: (broadcast(r.a.shape, r.b.shape), r.a.dtype)}
RULES["quat_mul_bwd"] = {"da": like("a"), "db": like("b")}
RULES["quat_dot"] = {
    "y": lambda r: (broadcast(r.a.shape[:-2], r.b.shape[:-2]) + (4,), r.a.dtype)}
RULES["quat_norm"] = {"n": lambda r: (r.x.shape[:-1], r.x.dtype)}
RULES["quat_rotate"] = {
    "y": lambda r: (broadcast(r.q.shape[:-1], r.v.shape[:-1]) + r.v.shape[-1:], r.v.dtype)}
RULES["quat_rotate_bwd"] = {"dq": like("q"), "dv": like("v")}
RULES["quat_to_matrix"] = {"m": lambda r: (r.q.shape[:-1] + (3, 3), r.q.dtype)}
RULES["quat_to_matrix_bwd"] = {"dq": like("q")}
RULES["quat_from_matrix"] = {"q": lambda r: (r.m.shape[:-2] + (4,), r.m.dtype)}
RULES["quat_from_matrix_bwd"] = {"dm": like("m")}
RULES["quat_to_axis_angle"] = {"r": lambda r: (r.q.shape[:-1] + (3,), r.q.dtype)}
RULES["quat_from_axis_angle"] = {"q": lambda r: (r.r.shape[:-1] + (4,), r.r.dtype)}
RULES["quat_slerp"] = {
    "y": lambda r: (broadcast(r.a.shape, r.b.shape, r.t.shape + (4,)), r.a.dtype)}


def quat_product(r):
    a, b = r.a or r.packed, r.b
    rows = a.shape[-2 if (r.op_a or 0) & 1 else -3]
    columns = b.shape[-3 if (r.op_b or 0) & 1 else -2]
    return broadcast(a.shape[:-3], b.shape[:-3]) + (rows, columns, 4), b.dtype


RULES["quat_gemm"] = {"c": quat_product, "pre": quat_product}


def quat_linear(r):
    return r.x.shape[:-2] + ((r.w or r.packed).shape[0], 4), r.x.dtype


RULES["quat_linear"] = {"y": quat_linear, "pre": quat_linear}
LINEAR_BWD = {"dx": like("x"), "dw": lambda r: r.x and like("w")(r), "db": like("b"),
              "dscale": like("scale")}
RULES["quat_linear_bwd"] = LINEAR_BWD
RULES["quat_conv_bwd"] = LINEAR_BWD


def triple(value, default):
    """The three numbers of a field, of which 0 stands for default."""
    value = value or ()
    value = (value,) if isinstance(value, int) else tuple(value)
    return [n or default for n in value + (0,) * (3 - len(value))]


def quat_conv(r):
    stride, pad = triple(r.stride, 1), triple(r.pad, 0)
    dilation, flags = triple(r.dilation, 1), r.flags or 0
    taps, sizes = r.w.shape[1:-2], r.x.shape[1:-2]
    both = 1 if r.pad_mode == C["PAD_CAUSAL"] else 2
    spans = [dilation[i] * (taps[i] - 1) + 1 - both * pad[i] for i in range(len(sizes))]
    if flags & C["QUAT_TRANSPOSED"]:
        return (r.x.shape[:1] + tuple((n - 1) * stride[i] + spans[i] for i, n in enumerate(sizes))
                + (r.w.shape[-2] * (r.groups or 1), 4), r.x.dtype)
    return (r.x.shape[:1] + tuple((n - spans[i]) // stride[i] + 1 for i, n in enumerate(sizes))
            + (r.w.shape[0], 4), r.x.dtype)


RULES["quat_conv"] = {"y": quat_conv, "pre": quat_conv}


def statistics(r):
    return C["F64"] if r.x.dtype == C["F64"] else F32


RULES["quat_batchnorm"] = {
    "y": like("x"),
    "saved": lambda r: ((r.x.shape[1:-1] if (r.flags or 0) & C["QUAT_PER_STEP"]
                         else r.x.shape[-2:-1]) + (14,), statistics(r)),
}
RULES["quat_batchnorm_bwd"] = {
    "dx": like("x"), "dgamma": like("gamma"),
    "dbeta": lambda r: (r.x.shape[-2:], statistics(r)),
}


def quat_state(r, wanted=True):
    return ((r.u.shape[0], r.z.shape[1]) + r.u.shape[2:], r.z.dtype) if wanted else None


RULES["quat_recurrent"] = {
    "y": lambda r: (r.z.shape[:3] + r.u.shape[2:], r.z.dtype),
    "hn": quat_state,
    "cn": lambda r: quat_state(r, r.cell == C["QUAT_CELL_LSTM"]),
    "saved": lambda r: (r.z.shape[:3] + ((1, 5, 3)[r.cell or 0],) + r.u.shape[2:], F32),
}
RULES["quat_recurrent_bwd"] = {
    "dz": lambda r: (r.dy.shape[:3] + r.u.shape[1:2] + r.u.shape[3:], r.dy.dtype),
    "du": like("u"), "dh0": like("h0"), "dc0": like("c0"),
}


def quat_pool(r):
    window, pad = triple(r.window, 1), triple(r.pad, 0)
    stride = [n or window[i] for i, n in enumerate(triple(r.stride, 0))]
    return r.x.shape[:1] + tuple((n + 2 * pad[i] - window[i]) // stride[i] + 1
                                 for i, n in enumerate(r.x.shape[1:-2])) + r.x.shape[-2:]


RULES["quat_pool"] = {
    "y": lambda r: (quat_pool(r), r.x.dtype),
    "index": lambda r: None if r.kind else (quat_pool(r)[:-1], S32),
}
RULES["quat_pool_bwd"] = {"dx": lambda r: (r.x and r.x.shape, r.dy.dtype)}
RULES["quat_dropout"] = {"y": like("x")}


def label(info, pack, lead, blocks):
    if pack == C["LATTICE_FULL64"]:
        return lead + (blocks,), C["U64"]
    if pack == C["LATTICE_LIMBS"]:
        return lead + (blocks, info.limbs), C["U32"]
    return lead + (blocks, info.levels), info.level_dtype


def scale_index(r):
    info = r.lattice.info
    if info.policy in (C["LATTICE_NONE"], C["LATTICE_CLIP"]):
        return None
    return r.x.shape[:-1] + (ceil(r.x.shape[-1], max(info.group, info.dim)),), U8


def smallest(limit, dtypes):
    return next(dtype for bits, dtype in zip((8, 16, 32), dtypes) if limit < 1 << bits)


def decoded(r):
    info = r.lattice.info
    whole = r.codes.shape if r.pack == C["LATTICE_FULL64"] else r.codes.shape[:-1]
    if r.to == C["LATTICE_POINTS"]:
        return whole + (info.embed,), smallest(2 * info.point_max, (S8, C["S16"], S32))
    if r.to == C["LATTICE_DIGITS"]:
        return whole + (info.levels, info.dim), smallest(info.q - 1, (U8, C["U16"], C["U32"]))
    return whole[:-1] + (whole[-1] * info.dim,), F32


def repacked(r):
    whole = r.from_.shape if r.from_pack == C["LATTICE_FULL64"] else r.from_.shape[:-1]
    return label(r.lattice.info, r.to_pack, whole[:-1], whole[-1])


RULES["lattice_encode"] = {
    "codes": lambda r: label(r.lattice.info, r.pack, r.x.shape[:-1],
                             ceil(r.x.shape[-1], r.lattice.info.dim)),
    "t": scale_index,
    "overload": lambda r: None,
    "row_scale": lambda r: (r.x.shape[:-1], F32),
}
RULES["lattice_decode"] = {"y": decoded}
RULES["lattice_repack"] = {"to": repacked}


def product_dtype(r):
    return S32 if r.x.dtype == S8 else r.x.dtype


RULES["vlut_gemv"] = {"y": lambda r: ((r.w.rows,), product_dtype(r))}
RULES["vlut_gemm"] = {"y": lambda r: (r.x.shape[:-1] + (r.w.rows,), product_dtype(r))}
RULES["vlut_gemm2"] = {"y": lambda r: ((r.x.rows, r.w.rows), F32)}


RULES["linear_forward"] = {"y": lambda r: (
    r.x.shape[:-1] + (r.layer.out // (2 if (r.flags or 0) & C["LINEAR_GATED"] else 1),),
    r.x.dtype)}
RULES["linear_bwd"] = {"dx": lambda r: (r.dy.shape[:-1] + (r.layer.in_,), r.dy.dtype)}
RULES["linear_dequantize"] = {"w": lambda r: ((r.layer.out, r.layer.in_), F32)}


def is_cn(r):
    """Whether streams are [..., C, n], not [..., n, C]."""
    if r.streams:
        return r.streams == C["MHC_STREAMS_CN"]
    return r.preset == C["MHC_PRESET_TRANSFORMER_ENGINE"]


def branch(name, needs=None):
    """Branch values [..., C] of streams."""
    def rule(r):
        x = getattr(r, name)
        if x is None or (needs and getattr(r, needs) is None):
            return None
        return x.shape[:-2] + (x.shape[-2 if is_cn(r) else -1],), x.dtype
    return rule


def sets(r):
    """The dimensions before those of one set of coefficients."""
    if r.coefficients == C["MHC_STATIC"] or r.x is None:
        return ()
    return r.x.shape[:1] if r.coefficients == C["MHC_PER_SEQUENCE"] else r.x.shape[:-2]


def streams(r):
    if r.x is not None:
        return r.x.shape[-1 if is_cn(r) else -2]
    rows = r.bias.shape[0]
    return next(n for n in range(1, 9) if rows in (2 * n + n * n, 2 * n, n) or
                (n <= 4 and rows == 2 * n + (1, 1, 2, 6, 24)[n]))


def residual(r):
    """Whether there is a matrix of the streams."""
    n = streams(r)
    return r.bias is not None and r.bias.shape[0] not in (n, 2 * n)


def coefficient(name):
    def rule(r):
        n = streams(r)
        if name == "a" and not residual(r):
            return None
        if name == "q" and r.bias is not None and r.bias.shape[0] == n:
            return None
        return sets(r) + ((n, n) if name == "a" else (n,)), F32
    return rule


RULES["mhc_sinkhorn"] = {"p": like("m")}
RULES["mhc_sinkhorn_bwd"] = {"dm": like("m")}
RULES["mhc_mix"] = {"u": branch("x", "p"), "r": lambda r: r.a and like("x")(r)}
RULES["mhc_mix_bwd"] = {"dx": like("x"), "dp": lambda r: r.du and like("p")(r),
                        "da": lambda r: r.dr and like("a")(r)}
RULES["mhc_add"] = {"y": like("r")}
RULES["mhc_add_bwd"] = {"dr": lambda r: None, "df": branch("dy"), "dq": like("q")}
RULES["mhc_post"] = {"y": like("x")}
RULES["mhc_post_bwd"] = {
    "dx": like("dy"), "df": lambda r: r.q and branch("dy")(r), "dq": lambda r: r.f and like("q")(r),
    "da": lambda r: r.x and like("a")(r), "dbranch_bias": like("branch_bias"),
}
RULES["mhc_expand"] = {"x": lambda r: (None, r.e.dtype)}
RULES["mhc_expand_bwd"] = {"de": branch("dx")}
PRE = {"p": coefficient("p"), "q": coefficient("q"), "a": coefficient("a"), "u": branch("x"),
       "saved": lambda r: (sets(r) + (r.bias.shape[0] + 1,), F32)}
RULES["mhc_pre"] = PRE
RULES["mhc_weights"] = PRE
PRE_BWD = {"dx": like("x"), "dphi": like("phi", F32), "dalpha": like("alpha"),
           "dbias": like("bias"), "dgain": like("gain"), "dnorm": like("norm"),
           "dalpha_q": like("alpha_q"), "dalpha_a": like("alpha_a"), "dp_in": like("p_in")}
RULES["mhc_pre_bwd"] = PRE_BWD
RULES["mhc_head"] = {"p": coefficient("p"), "h": branch("x")}
RULES["mhc_head_bwd"] = PRE_BWD
RULES["mhc_post_pre"] = {
    "y": like("x"), "p_next": coefficient("p"), "q_next": coefficient("q"),
    "a_next": coefficient("a"), "u": branch("x"), "saved": PRE["saved"],
}
RULES["mhc_post_pre_bwd"] = dict(
    PRE_BWD, dx=like("y"), df=branch("y"), dq=like("q"), dbranch_bias=like("branch_bias"))
RULES["mhc_gated_pre"] = {"q": lambda r: r.w_q and (r.x.shape[:-2] + r.w_q.shape[:1], F32),
                          "u": branch("x")}
RULES["mhc_gated_pre_bwd"] = {"dx": like("x"), "dw_down": like("w_down", F32),
                              "dw_up": like("w_up", F32), "dw_q": like("w_q", F32),
                              "dgain": like("gain")}
RULES["mhc_diagnose"] = {
    "out": lambda r: ((r.a.shape[-3] if len(r.a.shape) > 2 else 1, 4), F32)}
RULES["mhc_layer_begin"] = {"u": branch("x")}
RULES["mhc_layer_end"] = {"y": like("x")}
RULES["mhc_layer_end_bwd"] = {"df": like("f")}
RULES["mhc_layer_begin_bwd"] = {"dx": like("x")}
