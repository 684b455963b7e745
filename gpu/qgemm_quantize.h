/*
 * qgemm_quantize.h - parameters of the kernels of quantization
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_QGEMM_QUANTIZE_H
#define HZI_GPU_QGEMM_QUANTIZE_H

#include <stdint.h>

#include "hurwitz.h"

#ifdef __cplusplus
#define HZI_QUANTIZE_ASSERT static_assert
#else
#define HZI_QUANTIZE_ASSERT _Static_assert
#endif

#define HZI_FLAT_THREADS 256
/* Pieces of 16 bytes of floats that a thread has under way; of 16-bit floats twice as many. */
#define HZI_FLAT_PIECES(dtype) ((dtype) == HZ_F32 ? 4 : 8)
#define HZI_BACK_PIECES 2	/* the same on the way back to floats */
#define HZI_RANGE_PIECES 8
#define HZI_ROWS_THREADS 256

/* x / divisor of x < 2^31 is (mulhi(x, magic) + x) >> shift. */
struct hzi_quotient {
	uint32_t divisor, magic, shift;
};

#ifndef __cplusplus
static inline struct hzi_quotient hzi_make_quotient(int64_t divisor)
{
	const uint32_t shift =
		divisor > 1 ? 64 - (uint32_t)__builtin_clzll((uint64_t)divisor - 1) : 0;

	return (struct hzi_quotient){
		.divisor = (uint32_t)divisor,
		.magic = (uint32_t)((((1ull << shift) - (uint64_t)divisor) << 32) /
					    (uint64_t)divisor +
				    1),
		.shift = shift,
	};
}
#endif

/*
 * Back to back: pieces of 16 bytes of floats, then the elements that are left. Piece i is of row i
 * / row.divisor, and of the row's pieces each group.divisor are a group; its scale has number row *
 * row_step + group. row.divisor 0: one for all.
 */
struct hzi_quantize_flat {
	const void *x;			/* floats; dequantizing, codes */
	void *y;
	const float *scales;
	const uint8_t *zeros;		/* NULL: zero, or 0 with scales */
	int64_t pieces;
	int64_t row_step;
	int64_t elements;
	struct hzi_quotient row, group;
	int32_t is_signed;		/* codes are s8 */
	float scale;
	int32_t zero, pad_;
};

/* Anything, as struct hzi_qmap. */
struct hzi_quantize_any {
	const void *x;
	void *y;
	const float *scales;
	const uint8_t *zeros;
	int64_t total;			/* elements */
	int64_t n, group, x_step, y_step;
	int32_t ndim, dtype;		/* of the floats */
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM], y_stride[HZ_MAXDIM], p_stride[HZ_MAXDIM];
	int32_t is_signed;
	float scale;
	int32_t zero, pad_;
};

/*
 * Ranges: range[2 p] becomes the bits of max(0, -x) and range[2 p + 1] those of max(0, x) over
 * the elements of parameter p. Flat: segments of pieces each, of which a warp or block does share;
 * segment s is of parameter s / row_segments * row_step + s % row_segments.
 */
struct hzi_range_flat {
	const void *x;
	uint32_t *range;
	int64_t segments, pieces, share, shares;	/* shares of a segment */
	int64_t row_segments, row_step;
	int32_t wide, pad_;		/* blocks, not warps */
};

struct hzi_range_params {
	const uint32_t *range;
	float *scale;
	void *zero;
	int64_t count;
	int32_t q_dtype, symmetric;
};

/* Rows of k floats to codes, each with the parameters of its range, or with scale and zero. */
struct hzi_quantize_rows {
	const void *x;
	uint8_t *y;
	float *scales;			/* of rows; NULL: fixed */
	uint8_t *zeros;
	int64_t rows, k, y_row;		/* y_row: bytes, a multiple of 16, beyond k cleared */
	int64_t x_k;
	int32_t ndim, q_dtype;
	int64_t shape[HZ_MAXDIM], x_stride[HZ_MAXDIM];	/* of the batch and m */
	int32_t symmetric;
	float scale;
	int32_t zero, pad_;
};

HZI_QUANTIZE_ASSERT(sizeof(struct hzi_quantize_flat) == 96, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_quantize_any) == 288, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_range_flat) == 72, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_range_params) == 40, "the same layout for C and CUDA");
HZI_QUANTIZE_ASSERT(sizeof(struct hzi_quantize_rows) == 184, "the same layout for C and CUDA");

enum hzi_qgemm_quantize_kernel {
#define HZ_KERNEL(name) HZI_KERNEL_##name,
#include "qgemm_quantize.kernels.def"
#undef HZ_KERNEL
	HZI_QUANTIZE_KERNELS
};

#endif
