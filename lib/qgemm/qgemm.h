/*
 * qgemm.h - arguments of the implementations of quantized products and quantization
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QGEMM_H
#define HZI_QGEMM_H

#include <math.h>

#include "lib/hadamard/hadamard.h"
#include "lib/core/internal.h"
#include "lib/qgemm/group.h"
#include "lib/qgemm/requant.h"
#include "lib/quantize/format.h"

/* The smallest and the largest value of u8, s8 or s32 */
static inline int32_t hzi_quant_min(int dtype)
{
	return dtype == HZ_U8 ? 0 : dtype == HZ_S8 ? -128 : INT32_MIN;
}

static inline int32_t hzi_quant_max(int dtype)
{
	return dtype == HZ_U8 ? 255 : dtype == HZ_S8 ? 127 : INT32_MAX;
}

/* Checks an option: a scale (0 stands for 1), and a zero point for codes of dtype. */
int hzi_check_scale(struct hz_context *ctx, const char *op, const char *name, double value,
		     float *scale);
int hzi_check_zero(struct hz_context *ctx, const char *op, const char *name, int32_t zero,
		    int dtype);

/* ---- Packed B -------------------------------------------------------------------------------- */

/*
 * Layouts of a packed k x n matrix: codes, 0 where padded, then the s32 sums of the columns, one
 * for each padded column. Matrices of a batch follow each other.
 *
 * CPU: [n / 32][k / 64][2][16][16][4], k and n padded to 64 and 32. Element (i, j) is byte i % 4 of
 * column j % 16 of row i / 4 % 16 of half j / 16 % 2. Each [2][16][16][4] is a pair of AMX tiles,
 * and its rows are operands of 4-byte dot products. Every ISA level reads this layout. CUDA:
 * transposed, k and n padded to 128 and 256, in the order that gpu/qgemm/qgemm.h defines.
 */
enum hzi_qgemm_layout {
	HZI_QGEMM_LAYOUT_CPU = 1,
	HZI_QGEMM_LAYOUT_CUDA = 2
};

#define HZI_QGEMM_K_MAX ((int64_t)1 << 23)	/* column sums, at most 255 k, fit s32 */

static inline int64_t hzi_round_up(int64_t n, int64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* Bytes of the codes of a packed matrix; its padded width; its bytes including the column sums */
static inline int64_t hzi_qgemm_packed_codes(int layout, int64_t k, int64_t n)
{
	return layout == HZI_QGEMM_LAYOUT_CPU ? hzi_round_up(k, 64) * hzi_round_up(n, 32)
					 : hzi_round_up(k, 128) * hzi_round_up(n, 256);
}

static inline int64_t hzi_qgemm_packed_width(int layout, int64_t n)
{
	return hzi_round_up(n, layout == HZI_QGEMM_LAYOUT_CPU ? 32 : 256);
}

static inline int64_t hzi_qgemm_packed_bytes(int layout, int64_t k, int64_t n)
{
	return hzi_qgemm_packed_codes(layout, k, n) + 4 * hzi_qgemm_packed_width(layout, n);
}

/*
 * Packs the matrices of a batch, item i at data + i * hzi_qgemm_packed_bytes(). No size but k is 0.
 */
struct hzi_qgemm_pack_args {
	const void *b;
	void *data;
	int32_t b_dtype, layout;
	int64_t k, n, b_k, b_n;		/* strides */
	int32_t ndim;
	int64_t shape[HZ_MAXDIM], b_stride[HZ_MAXDIM];
};

/* ---- Multiplication -------------------------------------------------------------------------- */

/*
 * For each item of the batch (ndim 0: one item; at most 4 dimensions, in the caller's order), each
 * row i < m and each column j < n:
 *
 *   acc = clamp_s32(sum_l (a[i, l] - az) (b[l, j] - bz) + bias[j])		(exact inside)
 *   az = a_zeros ? a_zeros[row] : a_zero, bz = b_zeros ? b_zeros[j] : b_zero
 *   row = row_step * (i + the sum of index * row_stride), row_step 0 or 1
 *
 * C of u8, s8, s32: y = hzi_requant(requant, acc, u, shift), c = clamp(c_zero + y, min, max) in 64
 * bits, with
 * (u, shift) = multipliers ? (multipliers[j], shifts[j])
 * 	      : b_scales ? hzi_multiplier_f32(hzi_sigma(a_scale, b_scales[j * b_scale_step],
 * 							c_scale), c is s32, requant is EXACT)
 * 	      : mult
 * or, for FLOAT and LITERT_REF, the words of hzi_requant_words(). A pair of multipliers[] and
 * shifts[] counts as (0, 1) unless u > 0 and 1 <= shift <= 62. identity: u / 2^shift is 1 and c_zero
 * is 0. C of f32, f16, bf16: t = (float)acc; t *= b_scales ? b_scales[j * b_scale_step] : b_scale; t
 * *= a_scales ? a_scales[row] : a_scale; t += bias[j] if bias is f32 (it is not in acc then); t <
 * fmin ? fmin : t > fmax ? fmax : t; one rounding to C. Each step rounds to f32.
 *
 * sum64: accumulators need 64 bits, because k Ra Rb exceeds 2^31 - 1, R being the largest |code -
 * zero point| that the zero points allow. Sums of products of codes without zero points fit s32 up
 * to k = HZI_QGEMM_K_CHUNK. With a bias an accumulator may exceed s32 even if sum64 is 0.
 *
 * B is b with strides, or packed in that layout, with strides b_stride[] that count matrices. Other
 * strides count elements; those of a and b may be 0 or negative.
 */
#define HZI_QGEMM_K_CHUNK 32768	/* <= (2^31 - 1) / 255^2 = 33025 */

struct hzi_qgemm_args {
	const void *a, *b, *packed;	/* b or packed */
	void *c;
	int32_t a_dtype, b_dtype, c_dtype, layout;
	int64_t m, n, k;
	int64_t a_m, a_k, b_k, b_n, c_m, c_n;
	int32_t ndim;
	int64_t shape[HZ_MAXDIM];
	int64_t a_stride[HZ_MAXDIM], b_stride[HZ_MAXDIM], c_stride[HZ_MAXDIM];
	int64_t row_stride[HZ_MAXDIM];
	int64_t rows;			/* of the whole batch */

	const void *a_zeros, *b_zeros;	/* zero points, of the types of A and B */
	const int32_t *a_sums;		/* on a GPU, sums of the rows of A; NULL: not known */
	int64_t zero_step, scale_step;	/* the row_step of a_zeros, of a_scales */
	int32_t a_zero, b_zero, c_zero;
	int32_t sum64;			/* reach > 2^31 - 1 */
	int64_t reach;			/* k Ra Rb: |acc| without bias does not exceed it */

	const void *bias;
	int32_t bias_dtype;		/* 0, HZ_S32 or HZ_F32 */

	int32_t requant, identity;
	struct hzi_multiplier mult;
	const int32_t *multipliers, *shifts;
	const float *a_scales, *b_scales;
	int64_t b_scale_step;		/* 0 or 1 */
	float a_scale, b_scale, c_scale;

	int32_t min, max;
	float fmin, fmax;
};

/*
 * The same with dynamic activation quantization: rows of floats x become codes of g.a_dtype. g.a is
 * NULL; g.a_m, g.a_k and g.a_stride are strides of x. fixed: all rows have g.a_scale and g.a_zero;
 * otherwise each row has the parameters that hzi_quant_params() computes from its range.
 */
struct hzi_qlinear_args {
	struct hzi_qgemm_args g;
	const void *x;
	int32_t x_dtype, fixed;
	int32_t symmetric;		/* 0, or HZ_QPARAMS_SYMMETRIC, which is 1 */
};

/* ---- Quantization ---------------------------------------------------------------------------- */

/*
 * Element (outer indices, i) of x is at the sum of index * x_stride plus i * x_step; q likewise.
 * Its scale and zero point have number (the sum of index * p_stride) + i / group. group divides n:
 * with n a row has one parameter, with 1 each element has its own. No size is 0. Outer dimensions
 * are merged.
 */
struct hzi_quantize_map {
	int64_t n, group;
	int64_t x_step, q_step;
	int32_t ndim;
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM], q_stride[HZ_MAXDIM], p_stride[HZ_MAXDIM];
	int64_t params;			/* number of scales; 0: there is no array of them */
};

/*
 * Quantizes floats x to codes q; back: dequantizes codes to floats. Without an array of scales all
 * elements have `scale` and `zero`; zeros NULL: with scales, all zero points are 0. rotated: there
 * is a transform, which describes the operands, and map is empty. format: it describes the
 * operands, and map is empty; with a transform its dimensions are those of rotated.
 */
struct hzi_codes_args {
	struct hzi_quantize_map map;
	const struct hzi_rotated *rotated;
	const struct hzi_format_args *format;	/* other formats than u8 and s8 by given scales */
	bool dequantize;		/* codes to floats */
	void *x, *q;
	int32_t x_dtype, q_dtype;
	const float *scales;
	const void *zeros;
	float scale;
	int32_t zero;
};

struct hzi_quantize_args {
	struct hzi_codes_args codes;
};

struct hzi_dequantize_args {
	struct hzi_codes_args codes;
};

/*
 * Computes parameter p from the range of all elements that map assigns to p. q_step and q_stride
 * are 0. x may be empty (map.n is 0); then only map.params counts.
 */
struct hzi_choose_qparams_args {
	struct hzi_quantize_map map;
	const void *x;
	float *scale;
	void *zero;
	int32_t x_dtype, q_dtype, flags;
};

/*
 * a / b, rounded once; on a GPU in a quarter of the time of a division. r is within one ulp of 1 /
 * b and q within one of a / b. Quotients of 53-bit or 24-bit a by 24-bit b are never so close to
 * the middle between two doubles that the corrected q could round to the other side.
 */
HZI_BOTH double hzi_divide(double a, double b)
{
#ifdef __CUDA_ARCH__
	double r, q;

	asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(b));
	r = fma(fma(-b, r, 1.0), r, r);
	r = fma(fma(-b, r, 1.0), r, r);
	q = a * r;
	return fma(fma(-b, q, a), r, q);
#else
	return a / b;
#endif
}

/* fl(a / b) in f32 */
HZI_BOTH float hzi_divide_f32(float a, float b)
{
#ifdef __CUDA_ARCH__
	return __fdiv_rn(a, b);
#else
	return a / b;
#endif
}

/*
 * Scale and zero point for codes of q_dtype and a range lo <= 0 <= hi, with HZ_QPARAMS_ flags: see
 * hz_choose_qparams().
 */
HZI_BOTH void hzi_quant_params(float lo, float hi, int32_t q_dtype, uint32_t flags, float *scale,
			       int32_t *zero)
{
	const float least = 1.17549435e-38f, most = 3.40282347e+38f;	/* FLT_MIN, FLT_MAX */
	const int32_t codes = flags & HZ_QPARAMS_REDUCE_RANGE ? 127 : 255;	/* but one */
	const int32_t qmin = q_dtype == HZ_U8 ? 0 : -(codes + 1) / 2;
	const int32_t middle = qmin + (codes + 1) / 2;
	const int symmetric = flags & (HZ_QPARAMS_SYMMETRIC | HZ_QPARAMS_SYMMETRIC_127_5);
	const int inf = hi - hi != 0 || lo - lo != 0;
	const double range = symmetric ? (double)(-lo > hi ? -lo : hi) : (double)hi - lo;
	const double steps_of_range = flags & HZ_QPARAMS_SYMMETRIC_127_5 ? codes * 0.5 :
				      symmetric ? codes / 2 : codes;
	double z;
	int32_t steps;

	if (inf)
		*scale = (float)range;
	else if (flags & HZ_QPARAMS_F32)
		*scale = hzi_divide_f32(range > (double)most ? most : (float)range,
					(float)steps_of_range);
	else
		*scale = (float)hzi_divide(range, steps_of_range);
	*zero = middle;
	if (*scale < least)
		*scale = hi == lo ? 1 : least;
	if (inf)
		return;
	if (!symmetric) {
		if (flags & HZ_QPARAMS_F32)
			z = (float)qmin - hzi_divide_f32(lo, *scale);
		else
			z = qmin - hzi_divide(lo, *scale);
		/* Clamping before rounding gives the same code as after it. */
		z = z < qmin ? qmin : z > qmin + codes ? qmin + codes : rint(z);
		*zero = (int32_t)z;
	}
	/* The code that is farthest from the zero point dequantizes to a finite number. */
	steps = *zero - qmin > codes / 2 ? *zero - qmin : qmin + codes - *zero;
	if (*scale > 0x1p119f && (double)*scale * steps > most)	/* steps < 2^8 */
		*scale = (float)hzi_divide(0x1.fffffcp127, steps);	/* FLT_MAX - 2^104 */
}

#endif
