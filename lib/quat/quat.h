/*
 * quat.h - arguments of the implementations of elementwise quaternion operations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_H
#define HZI_QUAT_H

#include "lib/core/internal.h"
#include "lib/quat/convert_math.h"

/*
 * The iteration space of a call. Every size is at least 2. Adjacent dimensions that are contiguous
 * with each other in every operand are merged; dimensions with larger strides come first.
 * Dimensions kept .. ndim - 1 are summed over, and the output's strides are 0 there; an empty sum
 * has one dimension of size 0.
 */
struct hzi_quat_dims {
	int32_t ndim, kept;
	int64_t shape[HZ_MAXDIM];
};

/*
 * An operand. Component c (0 w, 1 x, 2 y, 3 z) of a quaternion is at data + sum(index * stride) +
 * comp[c], in elements, so comp holds the order of components. Real numbers are at comp[0], vectors
 * of three components at comp[1 .. 3]. Strides of inputs may be 0 (broadcast) or negative.
 */
struct hzi_quat_at {
	void *data;
	int64_t stride[HZ_MAXDIM], comp[4];
};

/* stride|, correct for INT64_MIN, which a dimension of one element may have */
static inline uint64_t hzi_quat_step(int64_t stride)
{
	return stride < 0 ? -(uint64_t)stride : (uint64_t)stride;
}

/* All operands of a call have one dtype: f32, f16 or bf16, with f32 arithmetic, or f64 on a CPU. */

/* y = ca(a) cb(b), + y if accumulate. y may be a or b exactly. */
struct hzi_quat_mul_args {
	struct hzi_quat_dims dims;
	struct hzi_quat_at a, b, y;
	int32_t dtype, conj_a, conj_b, accumulate;
};

struct hzi_quat_dot_args;

/*
 * The gradients of z = ca(a) cb(b): da = ca(dz conj(cb(b))) and db = cb(conj(ca(a)) dz), added to
 * da and db if accumulate. NULL in da.data or db.data: that gradient is not wanted here. sum: the
 * other gradient, if it is a sum over a broadcast operand and wanted too; or NULL.
 */
struct hzi_quat_mul_bwd_args {
	struct hzi_quat_dims dims;
	struct hzi_quat_at dy, a, b, da, db;
	int32_t dtype, conj_a, conj_b, accumulate;
	const struct hzi_quat_dot_args *sum;
};

/*
 * y = cy(sum of ca(a) cb(b) over dimensions kept .. ndim - 1), + y if accumulate; real: only the
 * real part, at comp[0]. kept < ndim unless each sum has one term.
 */
struct hzi_quat_dot_args {
	struct hzi_quat_dims dims;
	struct hzi_quat_at a, b, y;
	int32_t dtype, conj_a, conj_b, conj_y, accumulate, real;
};

/* y += alpha x, or x alpha if reversed */
struct hzi_quat_axpy_args {
	struct hzi_quat_dims dims;
	struct hzi_quat_at x, y;
	int32_t dtype, reversed;
	double alpha[4];
};

enum hzi_quat_map {
	HZI_QUAT_CONJ,		/* y = conj(x) */
	HZI_QUAT_NORM,		/* y = |x|, a real number */
	HZI_QUAT_NORM2,		/* y = |x|^2, likewise */
	HZI_QUAT_NORMALIZE,	/* y = x / max(|x|, eps), 0 where that is 0 */
	HZI_QUAT_INVERSE	/* y = conj(x) / |x|^2 */
};

struct hzi_quat_map_args {
	struct hzi_quat_dims dims;
	struct hzi_quat_at x, y;
	int32_t dtype, kind;
	double eps;
};

/* dx = the gradient, + dx if accumulate; kind is never CONJ. */
struct hzi_quat_map_bwd_args {
	struct hzi_quat_dims dims;
	struct hzi_quat_at dy, x, dx;
	int32_t dtype, kind, accumulate;
	double eps;
};

/*
 * y = q v conj(q), or conj(q) v q if inverse, divided by |q|^2 if normalize. The real part of v, if
 * it has one, is not read. real: y has a real part at comp[0], which is set to 0.
 */
struct hzi_quat_rotate_args {
	struct hzi_quat_dims dims;
	struct hzi_quat_at q, v, y;
	int32_t dtype, inverse, normalize, real;
};

/*
 * Its gradients, with p = inverse ? conj(q) : q and n = normalize ? |q|^2 : 1:
 *
 *   dv = conj(p) dy p / n
 *   dp = (dy p conj(v) + conj(dy) p v) / n, - 2 p <dy, p v conj(p)> / n^2 if normalize
 *   dq = inverse ? conj(dp) : dp
 *
 * added to dv and dq if accumulate. dy and v have no real part. real: dv has one, which is set to
 * 0, or kept if accumulate. NULL in dq.data or dv.data: that gradient is not wanted. A call that
 * sums computes one of them. sum: the other gradient, if it is a sum and wanted too; or NULL.
 */
struct hzi_quat_rotate_bwd_args {
	struct hzi_quat_dims dims;
	struct hzi_quat_at dy, q, v, dq, dv;
	int32_t dtype, inverse, normalize, accumulate, real;
	const struct hzi_quat_rotate_bwd_args *sum;
};

/*
 * A conversion of lib/quat/convert_math.h. at: the inputs of the kind, then the output, whose
 * comp[] is not used: number c of parts[i] is at comp[i][c], a quaternion as w, x, y, z, a matrix
 * by rows. The output is added to if accumulate. keep: of HZI_QUAT_SLERP.
 */
struct hzi_quat_convert_args {
	struct hzi_quat_dims dims;
	struct hzi_quat_at at[HZI_QUAT_CONVERT_INPUTS + 1];
	int64_t comp[HZI_QUAT_CONVERT_INPUTS + 1][HZI_QUAT_CONVERT_PARTS];
	int32_t parts[HZI_QUAT_CONVERT_INPUTS + 1];
	int32_t kind, dtype, inputs, accumulate, keep;
};

#endif
