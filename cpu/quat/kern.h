/*
 * kern.h - micro-kernels of elementwise quaternion operations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_KERN_H
#define HZI_QUAT_KERN_H

#include "cpu/core/kern.h"
#include "lib/quat/convert_math.h"

/*
 * A row of quaternions, vectors of three components, or real numbers: component c of element i at p
 * + i * step + comp[c]. Real numbers are at comp[0], vectors at comp[1 .. 3]. p NULL: not wanted.
 */
struct hzi_quat_list {
	void *p;
	int64_t step, comp[4];
};

enum hzi_quat_work {		/* inputs: outputs */
	HZI_QUAT_WORK_MUL,		/* a, b: ca(a) cb(b) */
	HZI_QUAT_WORK_MUL_BWD,		/* dy, a, b: da, db */
	HZI_QUAT_WORK_AXPY,		/* x: alpha x, or x alpha if reversed */
	HZI_QUAT_WORK_CONJ,		/* x: the kinds of enum hzi_quat_map, in their order */
	HZI_QUAT_WORK_NORM,
	HZI_QUAT_WORK_NORM2,
	HZI_QUAT_WORK_NORMALIZE,
	HZI_QUAT_WORK_INVERSE,
	HZI_QUAT_WORK_NORM_BWD,		/* dy, x: their gradients, in the same order */
	HZI_QUAT_WORK_NORM2_BWD,
	HZI_QUAT_WORK_NORMALIZE_BWD,
	HZI_QUAT_WORK_INVERSE_BWD,
	HZI_QUAT_WORK_ROTATE,		/* v, q: y */
	HZI_QUAT_WORK_ROTATE_BWD	/* dy, q, v: dq, dv */
};

/*
 * One operation of lib/quat/quat.h on a row of count elements. accumulate: adds to out. real: an
 * output that is a vector has a real part, which is set to 0, or kept if accumulate. stream: use
 * non-temporal stores, since results exceed the caches.
 */
struct hzi_quat_row {
	struct hzi_quat_list in[3], out[2];
	int64_t count;
	int32_t work, dtype;
	bool conj_a, conj_b, reversed, inverse, normalize, accumulate, real, stream;
	double alpha[4], eps;
};

/*
 * The sum of the first output of row->work, MUL or ROTATE_BWD (the output that is wanted). Without
 * columns, over the row: sum[0 .. 3] += the components. With columns, over `terms` rows, in[i].p
 * advancing by term_step[i]: sum[4 j + c] += component c of element j. At most 1024 terms for each
 * sum.
 */
struct hzi_quat_total {
	struct hzi_quat_row row;
	int64_t terms, term_step[3];
	bool columns;
	double *sum;
};

/*
 * Stores components first .. last of element i = sum[4 i + c], conjugated if conj; adds if
 * accumulate.
 */
struct hzi_quat_put {
	struct hzi_quat_list out;
	const double *sum;
	int64_t count;
	int32_t dtype, first, last;
	bool conj, accumulate;
};

/*
 * A conversion of lib/quat/convert_math.h, of count elements: number c of element i of an operand,
 * the inputs and then the output, at p + i * step + comp[c].
 */
struct hzi_quat_convert_list {
	void *p;
	int64_t step;
	const int64_t *comp;
	int parts;
};

struct hzi_quat_convert {
	struct hzi_quat_convert_list at[HZI_QUAT_CONVERT_INPUTS + 1];
	int64_t count;
	int32_t kind, dtype, inputs;
	bool accumulate, keep;
};

struct hzi_quat_kern {
	void (*row)(const struct hzi_quat_row *a);
	void (*total)(const struct hzi_quat_total *a);
	void (*put)(const struct hzi_quat_put *a);
	void (*convert)(const struct hzi_quat_convert *a);
};

HZI_KERN(quat)

#endif
