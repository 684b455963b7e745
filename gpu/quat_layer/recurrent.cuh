/*
 * recurrent.cuh - one number of a step of a recurrent layer, for kernels with and without a product
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_LAYER_RECURRENT_CUH
#define HZI_GPU_QUAT_LAYER_RECURRENT_CUH

#include "gpu/quat_layer/quat_layer.cuh"
#include "lib/quat_layer/cell_math.h"

/* One number of a state: number e of a sequence and direction */
struct number {
	int64_t e, row, item, direction, time, size;
	bool active;

	/* Number i of all sequences and directions */
	__device__ __forceinline__ number(const hzi_quat_cell_step &p, int64_t i)
	{
		int64_t of_row, of_batch;
		const int64_t r = divide(i, 4 * p.hidden, &of_row);
		const int64_t d = divide(r, p.batch, &of_batch);

		set(p, d, of_batch, of_row);
	}

	__device__ __forceinline__ number(const hzi_quat_cell_step &p, int64_t direction_,
					  int64_t item_, int64_t e_)
	{
		set(p, direction_, item_, e_);
	}

	__device__ __forceinline__ void set(const hzi_quat_cell_step &p, int64_t direction_,
					    int64_t item_, int64_t e_)
	{
		e = e_;
		item = item_;
		direction = direction_;
		size = 4 * p.hidden;
		row = direction * p.batch + item;
		time = hzi_quat_cell_time(&p, direction);
		active = time < hzi_quat_cell_length(&p, item);
	}

	__device__ __forceinline__ int64_t at(const hzi_quat_cell_step &p, const hzi_quat_array &x,
					      int gates, int k) const
	{
		return hzi_quat_cell_row(&x, time, item, direction) +
		       hzi_quat_cell_at(&p, &x, x.stride[3], gates, k * size + e);
	}

	__device__ __forceinline__ int64_t operand_at(const hzi_quat_cell_step &p, int gates,
						      int k) const
	{
		const hzi_quat_array &x = p.operand;

		return direction * x.stride[0] + item * x.stride[1] +
		       hzi_quat_cell_at(&p, &x, x.stride[2], gates, k * size + e);
	}
};

HZ_DEVICE void set_number(const hzi_quat_array &x, int64_t at, float v)
{
	hzi_quat_set_component(x.dtype, x.data, at, v);
}

/* One number of a step, given the sums U h of its gates */
template <int CELL>
HZ_DEVICE void forward_one(const hzi_quat_cell_step &p, const number &n, const float *pre)
{
	constexpr int GATES = HZI_QUAT_CELL_GATES(CELL), SAVED = HZI_QUAT_CELL_SAVED(CELL);
	constexpr int CANDIDATE = CELL == HZ_QUAT_CELL_LSTM ? 3 : 0;
	float *const saved = hzi_quat_cell_saved(&p, n.time, n.item, n.direction);
	const int64_t i = n.row * n.size + n.e;
	float gate[GATES + 1] = {}, h = p.h[i];

	/* The buffer of the next product may be another one: it gets all states. */
	if (!n.active) {
		set_number(p.operand, n.operand_at(p, 1, 0), h);
		h = 0;
	} else {
#pragma unroll
		for (int k = 0; k < GATES; k++) {
			const float z = hzi_quat_component(p.z.dtype, p.z.data,
							   n.at(p, p.z, GATES, k));

			gate[k] = hzi_quat_activation(k == CANDIDATE ? p.activation :
						      HZ_ACT_SIGMOID, p.slope, z + pre[k]);
		}
		if (CELL == HZ_QUAT_CELL_LSTM) {
			gate[GATES] = gate[0] * gate[GATES - 1] + gate[1] * p.c[i];
			p.c[i] = gate[GATES];
			h = gate[GATES - 2] * tanhf(gate[GATES]);
		} else if (CELL == HZ_QUAT_CELL_LIGRU) {
			h = gate[GATES - 1] * h + (1 - gate[GATES - 1]) * gate[0];
			gate[GATES] = h;
		} else {
			h = gate[0];
		}
		p.h[i] = h;
		set_number(p.operand, n.operand_at(p, 1, 0), h);
	}
	set_number(p.y, n.at(p, p.y, 1, 0), h);
#pragma unroll
	for (int k = 0; k < SAVED; k++)
		if (saved)
			saved[k * n.size + n.e] = gate[k];
}

#endif
