/*
 * decoded_wgmma.h - parameters of GEMM with packed labels of E8, or packed D4, by wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_VLUT_DECODED_WGMMA_H
#define HZI_GPU_VLUT_DECODED_WGMMA_H

#include "gpu/device/decoded_gemm.h"
#include "gpu/vlut/label.h"

struct hzi_vlut_decoded_wgmma {
	struct hzi_decoded_gemm gemm;
	const float *row_scale;
	const float *unscale;		/* of each vector, or NULL */
	const float *column_scale;	/* or NULL */
	void *y;
	int64_t row_scale_step, column_scale_step, y_i, y_b;
	int32_t rows, batch;
	int32_t y_dtype, y_vectorized;	/* y_vectorized: four rows are 8 aligned bytes */
	float scale;
	/*
	 * Labels: as struct hzi_vlut_label_skinny has it. D4, coordinate i with offset o, for x of
	 * f16: -o in units of 2^-24, and -16 o in the upper half; for x of bf16: 128 - o, twice
	 */
	uint32_t r[4];
	int32_t pad_[7];
};

/*
 * vlut_label_x: rows of x as [vector][term][pitch] of 16-bit floats, of which a block writes a
 * vector. f32 becomes two f16 terms, times a power of two for each vector.
 */
#define HZI_VLUT_LABEL_X_THREADS 256
struct hzi_vlut_label_x {
	const void *x;
	uint16_t *rows;
	float *unscale;			/* f32: of each vector, undoes the power of two */
	int64_t x_k, x_b;
	int32_t k, pitch, x_dtype, pad_;
};

static_assert(sizeof(struct hzi_vlut_decoded_wgmma) == 320, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_vlut_label_x) == 56, "the same layout for C and CUDA");

/* Shapes of kernels, see decoded_gemm.h */
#define HZI_VLUT_DECODED_64X16 16, 1, 4, 16, 2
#define HZI_VLUT_DECODED_64X32 32, 1, 3, 12, 3
#define HZI_VLUT_DECODED_64X64 64, 1, 2, 8, 4
#define HZI_VLUT_DECODED_64X128 128, 1, 2, 8, 3
#define HZI_VLUT_DECODED_128X32 32, 2, 2, 8, 3
#define HZI_VLUT_DECODED_128X64 64, 2, 1, 6, 4
#define HZI_VLUT_DECODED_128X128 128, 2, 1, 6, 4
#define HZI_VLUT_DECODED_128X256 256, 2, 1, 4, 3

#endif
