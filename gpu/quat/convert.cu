/*
 * convert.cu - conversions of quaternions: matrices, axis-angle, exp, log, slerp
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A thread has one element of a block of HZI_QUAT_THREADS, in f32. Whole quaternions are one load
 * or store; staged vectors and matrices, of 3 or 9 numbers, pass through shared memory, whose banks
 * such odd distances do not share.
 */
#include "gpu/quat/convert.h"
#include "gpu/quat/strided.cuh"

#define INPUTS_OF(kind) \
	((kind) == HZI_QUAT_SLERP ? 3 : \
	 (kind) == HZI_QUAT_TO_MATRIX_BWD || (kind) == HZI_QUAT_FROM_MATRIX_BWD ? 2 : 1)

/* Element `at` of operand i, `own` of its block, which begins with element begin and has n */
HZ_DEVICE void convert_load(const hzi_quat_convert_job &p, int i, int64_t at, int64_t begin, int n,
			    float *tile, float *v)
{
	const hzi_quat_operand &o = p.at[i];
	const int parts = p.parts[i], own = threadIdx.x;

	if (p.staged[i]) {
#pragma unroll 1
		for (int e = own; e < n * parts; e += HZI_QUAT_THREADS)
			tile[e] = load_float(p.dtype, o.data, begin * parts + e);
		__syncthreads();
	}
	if (own < n && parts == 4) {
		const quat q = operand_load(o, QUATERNION, p.dtype, at);

		v[0] = q.w, v[1] = q.x, v[2] = q.y, v[3] = q.z;
	} else if (own < n) {
#pragma unroll
		for (int c = 0; c < HZI_QUAT_CONVERT_PARTS; c++)
			if (c < parts)
				v[c] = p.staged[i] ? tile[own * parts + (int)p.comp[i][c]] :
						     load_float(p.dtype, o.data, at + p.comp[i][c]);
	}
	if (p.staged[i])
		__syncthreads();
}

HZ_DEVICE void convert_store(const hzi_quat_convert_job &p, int i, int64_t at, int64_t begin,
			     int n, float *tile, const float *v)
{
	const hzi_quat_operand &o = p.at[i];
	const int parts = p.parts[i], own = threadIdx.x;

	if (own < n && parts == 4) {
		quat q = {v[0], v[1], v[2], v[3]};

		if (p.accumulate)
			q = quat_add(q, operand_load(o, QUATERNION, p.dtype, at));
		operand_store(o, QUATERNION, p.dtype, 0, at, q);
	} else if (own < n) {
#pragma unroll
		for (int c = 0; c < HZI_QUAT_CONVERT_PARTS; c++) {
			const int64_t to = at + p.comp[i][c];

			if (c >= parts)
				continue;
			if (p.staged[i])
				tile[own * parts + (int)p.comp[i][c]] = v[c];
			else
				store_any(p.dtype, o.data, to,
					  v[c] + (p.accumulate ? load_float(p.dtype, o.data, to) :
								 0));
		}
	}
	if (!p.staged[i])
		return;
	__syncthreads();
#pragma unroll 1
	for (int e = own; e < n * parts; e += HZI_QUAT_THREADS) {
		const int64_t to = begin * parts + e;

		store_any(p.dtype, o.data, to,
			  tile[e] + (p.accumulate ? load_float(p.dtype, o.data, to) : 0));
	}
	__syncthreads();
}

template <int KIND>
HZ_DEVICE void run_convert(const hzi_quat_convert_job &p)
{
	constexpr int IN = INPUTS_OF(KIND);
	__shared__ float tile[HZI_QUAT_THREADS * HZI_QUAT_CONVERT_PARTS];
	const int64_t all = (int64_t)gridDim.x * HZI_QUAT_THREADS;

	for (int64_t begin = (int64_t)blockIdx.x * HZI_QUAT_THREADS; begin < p.count;
	     begin += all) {
		const int64_t left = p.count - begin;
		const int n = left < HZI_QUAT_THREADS ? (int)left : HZI_QUAT_THREADS;
		float in[HZI_QUAT_CONVERT_INPUTS][HZI_QUAT_CONVERT_PARTS], out[9];
		int64_t at[IN + 1] = {}, i = begin + threadIdx.x;

#pragma unroll 1
		for (int d = p.ndim - 1; d >= 0; d--) {
			const int64_t next = i / p.shape[d];

#pragma unroll
			for (int k = 0; k <= IN; k++)
				at[k] += (i - next * p.shape[d]) * p.at[k].stride[d];
			i = next;
		}
#pragma unroll
		for (int k = 0; k < IN; k++)
			convert_load(p, k, at[k], begin, n, tile, in[k]);
		if ((int)threadIdx.x < n)
			hzi_quat_convert_one(KIND, p.keep,
					     (const float (*)[HZI_QUAT_CONVERT_PARTS])in, out);
		convert_store(p, IN, at[IN], begin, n, tile, out);
	}
}

#define KERNEL(name, kind) \
	HZ_KERNEL(name, hzi_quat_convert_job, (HZI_QUAT_THREADS), run_convert<kind>(p))

KERNEL(quat_to_matrix, HZI_QUAT_TO_MATRIX)
KERNEL(quat_from_matrix, HZI_QUAT_FROM_MATRIX)
KERNEL(quat_to_axis_angle, HZI_QUAT_TO_AXIS_ANGLE)
KERNEL(quat_from_axis_angle, HZI_QUAT_FROM_AXIS_ANGLE)
KERNEL(quat_exp, HZI_QUAT_EXP)
KERNEL(quat_log, HZI_QUAT_LOG)
KERNEL(quat_slerp, HZI_QUAT_SLERP)
KERNEL(quat_to_matrix_bwd, HZI_QUAT_TO_MATRIX_BWD)
KERNEL(quat_from_matrix_bwd, HZI_QUAT_FROM_MATRIX_BWD)
