/*
 * rows.h - rows of values divided by, or multiplied with, a scale, shared by C and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_LATTICE_ROWS_H
#define HZI_LATTICE_ROWS_H

#include "hurwitz.h"
#include "lib/lattice/lattice_math.h"

/*
 * Rows v of any strides and dtype and f, contiguous f32, which may be the same: encoding sets the
 * scales and f = v / scale, decoding sets v = f scale. Strides count elements.
 */
struct hzi_lattice_rows {
	float *scale;			/* NULL: rows have none */
	void *v;
	float *f;
	int64_t rows, n, v_step;
	int64_t shape[HZ_MAXDIM], v_stride[HZ_MAXDIM], scale_stride[HZ_MAXDIM];
	int32_t ndim, v_dtype;
};

/*
 * The sum of squares of a row, in double, is one of this many sums, sum j of the values j, j + 256,
 * .. in this order; then the upper half of the sums is added to the lower, again and again.
 */
#define HZI_LATTICE_ROW_SUMS 256

/* The root of the mean square, of which NaN and Inf are no part; 1 if that is 0 */
HZI_LATTICE_FN float hzi_lattice_row_scale(double sum, int64_t n)
{
#ifdef __CUDA_ARCH__
	const float rms = __double2float_rn(__dsqrt_rn(__ddiv_rn(sum, (double)n)));
#else
	const float rms = (float)sqrt(sum / (double)n);
#endif

	return rms > 0 ? rms : 1;
}

#endif
