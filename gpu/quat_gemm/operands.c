/*
 * operands.c - operands and results of quaternion matrix products, in the form of kernels
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_gemm/launch.h"

struct hzi_quat_matrix hzi_quat_matrix_of(const struct hzi_quat_view *v, int dtype, int conj,
					  const int64_t *stride, int ndim)
{
	struct hzi_quat_matrix m = {
		.data = v->data, .row = v->row, .col = v->col, .dtype = dtype, .conj = conj,
	};
	int64_t steps = v->row | v->col;

	for (int d = 0; d < ndim; d++) {
		m.batch[HZI_QUAT_BATCH - ndim + d] = stride[d];
		steps |= stride[d];
	}
	m.whole = steps % 4 == 0 && (uintptr_t)v->data % (dtype == HZ_F32 ? 16 : 8) == 0;
	for (int c = 0; c < 4; c++) {
		m.comp[c] = v->comp[c];
		m.whole &= v->comp[c] == c;
	}
	return m;
}

int64_t hzi_quat_batch_of(int64_t *shape3, const int64_t *shape, int ndim)
{
	int64_t items = 1;

	for (int d = 0; d < HZI_QUAT_BATCH; d++) {
		const int own = d - (HZI_QUAT_BATCH - ndim);

		shape3[d] = own < 0 ? 1 : shape[own];
		items *= shape3[d];
	}
	return items;
}

struct hzi_quat_out hzi_quat_out_of(const struct hzi_quat_gemm_args *a)
{
	struct hzi_quat_out o = {
		.c = hzi_quat_matrix_of(&a->c, a->c_dtype, a->conj_c, a->c_stride, a->ndim),
		.pre = hzi_quat_matrix_of(&a->pre, a->c_dtype, 0, a->pre_stride, a->ndim),
		.bias = a->bias, .bias_row = a->bias_row, .bias_col = a->bias_col,
		.m = (int32_t)a->m, .n = (int32_t)a->n,
		.beta = (float)a->beta, .slope = (float)a->slope,
		.alpha_real = a->alpha_real,
		.bias_dtype = a->bias_dtype, .activation = a->activation,
	};

	for (int c = 0; c < 4; c++) {
		o.alpha[c] = (float)a->alpha[c];
		o.bias_comp[c] = a->bias_comp[c];
	}
	hzi_quat_batch_of(o.shape, a->shape, a->ndim);
	return o;
}
