/*
 * quat_gemm.h - arguments of the implementations of quaternion matrix products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_GEMM_H
#define HZI_QUAT_GEMM_H

#include <math.h>

#include "lib/core/internal.h"

/*
 * The slope of an activation: 0 where the activation has none, since nothing would read it. 0, what
 * a zeroed struct has, would make everything 0 by NORMCLIP.
 */
static inline int hzi_quat_check_slope(struct hz_context *ctx, const char *op, int activation,
				       double slope)
{
	const bool clips = activation == HZ_ACT_NORMCLIP;

	if (slope != 0 && !clips && activation != HZ_ACT_LEAKY && activation != HZ_ACT_MODRELU)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->slope is %g, must be 0 unless "
				"opts->activation is HZ_ACT_LEAKY, HZ_ACT_MODRELU or "
				"HZ_ACT_NORMCLIP", op, slope);
	if (!isfinite((float)slope) || (clips && !((float)slope > 0)))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->slope is %g, must be %s", op, slope,
				clips ? "positive and finite for HZ_ACT_NORMCLIP" : "finite");
	return HZ_OK;
}

/*
 * hz_packed.layout of a quaternion matrix: bit 8 is set, bit 9 for the GPU format. Bits 0 and 1
 * hold enum hz_quat_method, DIRECT or FAST; bits 4 to 6 enum hz_precision as given by the caller.
 */
#define HZI_QUAT_LAYOUT 0x100
#define HZI_QUAT_LAYOUT_CUDA 0x200

static inline int32_t hzi_quat_layout(bool cuda, int method, int precision)
{
	return HZI_QUAT_LAYOUT | (cuda ? HZI_QUAT_LAYOUT_CUDA : 0) | method | precision << 4;
}

static inline int hzi_quat_layout_method(int32_t layout)
{
	return layout & 3;
}

static inline int hzi_quat_layout_precision(int32_t layout)
{
	return layout >> 4 & 7;
}

/*
 * The CPU format: panels of 64 rows, cut into blocks of 128 columns. A block is planar: four
 * component planes w, x, y, z of [columns][64] elements in the dtype of the matrix; rows beyond the
 * last are 0. Both methods read it, and so do products with the transpose.
 */
#define HZI_QUAT_PANEL 64
#define HZI_QUAT_K_BLOCK 128

/*
 * Bytes of one packed m x k matrix, a multiple of 64; 0 on overflow. All ISA levels share one
 * format. The GPU format has 8 bytes more per row, for scales.
 */
static inline int64_t hzi_quat_pack_bytes(int32_t layout, int dtype, int64_t m, int64_t k)
{
	const bool cuda = layout & HZI_QUAT_LAYOUT_CUDA;
	const int64_t planes = cuda && hzi_quat_layout_method(layout) == HZ_QUAT_FAST ? 8 : 4;
	const int64_t size = dtype == HZ_F64 ? 8 : cuda || dtype == HZ_F32 ? 4 : 2;
	const int64_t unit = cuda ? 128 : HZI_QUAT_PANEL, k_unit = cuda ? unit : 1;
	int64_t elements, bytes;

	if (m > INT64_MAX / 2 || k > INT64_MAX / 2 ||
	    !hzi_mul((m + unit - 1) / unit * unit, (k + k_unit - 1) / k_unit * k_unit, &elements) ||
	    !hzi_mul(elements, planes * size, &bytes) ||
	    __builtin_add_overflow(bytes, cuda ? (m + unit - 1) / unit * unit * 8 : 0, &bytes))
		return 0;
	return bytes;
}

/*
 * A view of a quaternion matrix: component c (0 w, 1 x, 2 y, 3 z) of element (i, j) is at data + i
 * * row + j * col + comp[c], in elements. Transposition and the order of components are expressed
 * by these strides.
 */
struct hzi_quat_view {
	void *data;
	int64_t row, col;
	int64_t comp[4];
};

/*
 * For each item of the batch (at most 3 dimensions; ndim 0: one item), i < m and j < n:
 *
 *   t = sum_{l < k} ca(a[i, l]) cb(b[l, j]);  t = cc(t)	(ca, cb, cc: conjugate or not)
 *   t = alpha t + beta c[i, j] + bias[i or j];  pre[i, j] = t;  c[i, j] = act(t)
 *
 * Arithmetic is f32, or f64 for f64. c is read only if beta is not 0. A reversed order of factors
 * is expressed by the conjugations: b a = conj(conj(a) conj(b)). m and n are not 0; k may be.
 * method is HZ_QUAT_DIRECT or HZ_QUAT_FAST; precision is the caller's, AUTO included.
 */
struct hzi_quat_gemm_args {
	int64_t m, n, k;
	struct hzi_quat_view a, b, c;
	int32_t dtype, c_dtype;		/* types of a and b, of c and pre */
	int32_t conj_a, conj_b, conj_c;
	int32_t method, precision, activation;
	double alpha[4], beta, slope;
	int32_t alpha_real;		/* alpha[1 .. 3] are 0 */

	/* Packed A instead of a; conj_a applies to it. packed_t: it holds the k x m transpose. */
	const void *packed;
	int32_t layout, packed_t;
	int64_t packed_stride[HZ_MAXDIM];	/* of the batch, in packed matrices */

	const void *bias;		/* NULL: none */
	int32_t bias_dtype;
	int64_t bias_row, bias_col;	/* one of them is 0 */
	int64_t bias_comp[4];

	struct hzi_quat_view pre;	/* data NULL: none */

	int32_t ndim;
	int64_t shape[HZ_MAXDIM], a_stride[HZ_MAXDIM], b_stride[HZ_MAXDIM], c_stride[HZ_MAXDIM],
		pre_stride[HZ_MAXDIM];
};

/*
 * Packs item i of a batch of m x k matrices, in index order, at data + i * hzi_quat_pack_bytes().
 */
struct hzi_quat_gemm_pack_args {
	struct hzi_quat_view a;
	void *data;
	int32_t dtype, layout;		/* layout: hzi_quat_layout() */
	int32_t method, precision;
	int64_t m, k;
	int32_t ndim;
	int64_t shape[HZ_MAXDIM], a_stride[HZ_MAXDIM];
};

#endif
