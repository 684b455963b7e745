/*
 * recurrent_cells.cuh - the cells of a block in kernels that make all steps of a recurrent layer
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Block x has the HZI_QUAT_CELL_ROWS rows of U that are all gates of its neurons, y is a slice of
 * COLUMNS sequences, z a direction. The first HZI_QUAT_PERSISTENT_THREADS threads have a quaternion
 * of the state of each COLUMNS_STEP-th sequence.
 */
#ifndef HZI_GPU_QUAT_LAYER_RECURRENT_CELLS_CUH
#define HZI_GPU_QUAT_LAYER_RECURRENT_CELLS_CUH

#include "gpu/device/cp_async.cuh"
#include "gpu/device/dtype.cuh"
#include "gpu/quat_gemm/epilogue.cuh"
#include "gpu/quat_layer/quat_layer.cuh"
#include "gpu/quat_layer/recurrent.h"
#include "lib/quat_layer/cell_math.h"

#define ROWS HZI_QUAT_CELL_ROWS

HZ_DEVICE uint32_t load_acquire(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

HZ_DEVICE void store_release(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}

template <int DTYPE, int CELL, int COLUMNS>
struct block_cells {
	static constexpr int GATES = HZI_QUAT_CELL_GATES(CELL), NEURONS = ROWS / GATES;
	static constexpr int CANDIDATE = CELL == HZ_QUAT_CELL_LSTM ? 3 : 0;
	static constexpr int COLUMNS_STEP = HZI_QUAT_PERSISTENT_THREADS / NEURONS;
	static constexpr int QUATS = COLUMNS > COLUMNS_STEP ? COLUMNS / COLUMNS_STEP : 1;

	/* What a step of the cell reads: z of 16 bits, c or h */
	struct inputs {
		uint2 z[QUATS][GATES];
		float state[QUATS][4];
		int length[QUATS];
	};

	const hzi_quat_persistent &p;
	const int slice, direction;
	const int column;	/* of this thread's first quaternion */
	int neuron;
	int64_t item;		/* its sequence */

	__device__ __forceinline__ explicit block_cells(const hzi_quat_persistent &p_)
		: p(p_), slice(p.slice + blockIdx.y), direction(p.direction + blockIdx.z),
		  column(threadIdx.x / NEURONS),
		  neuron(blockIdx.x * NEURONS + threadIdx.x % NEURONS),
		  item(slice * COLUMNS + column)
	{
	}

	/* The flags of the blocks of this slice: how many states they have stored */
	__device__ __forceinline__ uint32_t *flags(void) const
	{
		return p.done + ((int64_t)direction * p.slices + slice) * gridDim.x;
	}

	/* Where number c of gate k of this thread's neuron is in the sums: 4 row + component */
	__device__ __forceinline__ int sum_at(int k, int c) const
	{
		/* Number (4 k + c) hidden + neuron of all w, x, y, z */
		const int part = 4 * k + c, j = threadIdx.x % NEURONS;

		return p.cell.planar ? 4 * (part % GATES * NEURONS + j) + part / GATES :
				       4 * (k * NEURONS + j) + c;
	}

	/* Whether the four numbers of gate k, and of y, are a contiguous quaternion */
	__device__ __forceinline__ bool contiguous(const hzi_quat_array &x) const
	{
		return !p.cell.planar && x.whole;
	}

	/* Offset of number c of gate k of this thread's neuron; planar: part 4 k + c, in K rows */
	__device__ __forceinline__ int64_t gate_at(int k, int c) const
	{
		const hzi_quat_array &z = p.cell.z;
		const int part = 4 * k + c;

		return p.cell.planar ? (part % GATES * p.cell.hidden + neuron) * z.stride[3] +
				       z.comp[part / GATES] :
				       (k * p.cell.hidden + neuron) * z.stride[3] + z.comp[c];
	}

	__device__ __forceinline__ int64_t row(const hzi_quat_array &x, int64_t time, int i) const
	{
		return time * x.stride[0] + (item + i * COLUMNS_STEP) * x.stride[1] +
		       direction * x.stride[2];
	}

	/* The index of number c of quaternion i in states of f32 */
	__device__ __forceinline__ int64_t state_at(int i, int c) const
	{
		const int64_t at = (direction * p.cell.batch + item + i * COLUMNS_STEP) * 4 *
				   p.cell.hidden;

		return at + (p.cell.planar ? c * p.cell.hidden + neuron : 4 * neuron + c);
	}

	__device__ __forceinline__ bool has(int i) const
	{
		return column + i * COLUMNS_STEP < COLUMNS &&
		       item + i * COLUMNS_STEP < p.cell.batch;
	}

	__device__ __forceinline__ void load_state(float (&v)[4], const float *state, int i) const
	{
		if (!p.cell.planar) {
			const float4 f = *(const float4 *)(state + state_at(i, 0));

			v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
			return;
		}
#pragma unroll
		for (int c = 0; c < 4; c++)
			v[c] = state[state_at(i, c)];
	}

	__device__ __forceinline__ void store_state(float *state, int i, const float (&v)[4]) const
	{
		if (!p.cell.planar) {
			*(float4 *)(state + state_at(i, 0)) = make_float4(v[0], v[1], v[2], v[3]);
			return;
		}
#pragma unroll
		for (int c = 0; c < 4; c++)
			state[state_at(i, c)] = v[c];
	}

	/* Loads what the cell needs besides the sums. */
	__device__ __forceinline__ void load_inputs(inputs &in, int64_t time) const
	{
		const uint16_t *const z = (const uint16_t *)p.cell.z.data;

#pragma unroll
		for (int i = 0; i < QUATS; i++) {
			if (!has(i))
				break;
#pragma unroll
			for (int k = 0; k < GATES; k++) {
				const uint16_t *const from = z + row(p.cell.z, time, i);

				if (contiguous(p.cell.z))
					in.z[i][k] = *(const uint2 *)(from + gate_at(k, 0));
				else
					in.z[i][k] = make_uint2(
						from[gate_at(k, 0)] | from[gate_at(k, 1)] << 16,
						from[gate_at(k, 2)] | from[gate_at(k, 3)] << 16);
			}
			if (CELL == HZ_QUAT_CELL_LSTM)
				load_state(in.state[i], p.cell.c, i);
			if (CELL == HZ_QUAT_CELL_LIGRU)
				load_state(in.state[i], p.cell.h, i);
			in.length[i] = (int)hzi_quat_cell_length(&p.cell,
								 item + i * COLUMNS_STEP);
		}
	}

	__device__ __forceinline__ void prefetch_inputs(int64_t time) const
	{
		const uint16_t *const z = (const uint16_t *)p.cell.z.data;

#pragma unroll
		for (int i = 0; i < QUATS; i++)
#pragma unroll
			for (int k = 0; k < GATES; k++)
				if (has(i))
					prefetch_l2(z + row(p.cell.z, time, i) + gate_at(k, 0));
	}

	__device__ __forceinline__ float candidate(float x) const
	{
		if (CELL == HZ_QUAT_CELL_LSTM || p.cell.activation == HZ_ACT_TANH)
			return tanhf(x);
		return x < 0 ? p.cell.activation == HZ_ACT_LEAKY ? p.cell.slope * x : 0 : x;
	}

	static __device__ __forceinline__ float sigmoid(float x)
	{
		return 1 / (1 + expf(-x));
	}

	static __device__ __forceinline__ float from_16(uint2 v, int c)
	{
		const uint32_t pair = c / 2 ? v.y : v.x;

		if (DTYPE == HZ_BF16)
			return c % 2 ? bf16_high(pair) : bf16_low(pair);
		return c % 2 ? f16_high(pair) : f16_low(pair);
	}

	static __device__ __forceinline__ uint2 to_16(const float (&v)[4])
	{
		return quat_pack(DTYPE, {v[0], v[1], v[2], v[3]});
	}

	/* The cell of quaternion i: gates, the last of which is c, and h; sum(k, c) is of U h. */
	template <typename F>
	__device__ __forceinline__ void step_cell(float (&gate)[GATES + 1][4], float (&h)[4],
						  const inputs &in, int i, F sum) const
	{
#pragma unroll
		for (int k = 0; k < GATES; k++)
#pragma unroll
			for (int c = 0; c < 4; c++) {
				const float x = sum(k, c) + from_16(in.z[i][k], c);

				gate[k][c] = k == CANDIDATE ? candidate(x) : sigmoid(x);
			}
#pragma unroll
		for (int c = 0; c < 4; c++) {
			if (CELL == HZ_QUAT_CELL_LSTM) {
				gate[GATES][c] = gate[0][c] * gate[GATES - 1][c] +
						 gate[1 % GATES][c] * in.state[i][c];
				h[c] = gate[2 % GATES][c] * tanhf(gate[GATES][c]);
			} else if (CELL == HZ_QUAT_CELL_LIGRU) {
				h[c] = gate[GATES - 1][c] * in.state[i][c] +
				       (1 - gate[GATES - 1][c]) * gate[0][c];
				gate[GATES][c] = h[c];
			} else {
				h[c] = gate[0][c];
			}
		}
	}

	/* Stores what other blocks do not wait for. */
	__device__ __forceinline__ void store(const float (&gate)[GATES + 1][4],
					      const float (&h)[4], bool active, int i,
					      int64_t time) const
	{
		const hzi_quat_array &y = p.cell.y;
		uint16_t *const to = (uint16_t *)y.data + row(y, time, i) + neuron * y.stride[3];
		const uint2 v = active ? to_16(h) : make_uint2(0, 0);
		float *const saved = hzi_quat_cell_saved(&p.cell, time, item + i * COLUMNS_STEP,
							 direction);

		if (contiguous(y)) {
			*(uint2 *)to = v;
		} else {
			to[y.comp[0]] = (uint16_t)v.x;
			to[y.comp[1]] = (uint16_t)(v.x >> 16);
			to[y.comp[2]] = (uint16_t)v.y;
			to[y.comp[3]] = (uint16_t)(v.y >> 16);
		}
		if (active) {
			store_state(p.cell.h, i, h);
			if (CELL == HZ_QUAT_CELL_LSTM)
				store_state(p.cell.c, i, gate[GATES]);
		}
		if (!saved)
			return;
#pragma unroll
		for (int k = 0; k < HZI_QUAT_CELL_SAVED(CELL); k++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				saved[4 * k * p.cell.hidden +
				      (p.cell.planar ? c * p.cell.hidden + neuron :
						       4 * neuron + c)] = active ? gate[k][c] : 0;
	}
};

/* A kernel of all steps, by the cell of the call */
#define PERSISTENT_KERNEL(name, threads, layer, ...) \
	extern "C" __global__ void __launch_bounds__(threads, 1) \
	quat_layer_persistent_##name(const __grid_constant__ hzi_quat_persistent p) \
	{ \
		if (p.cell.cell == HZ_QUAT_CELL_LSTM) \
			layer<HZ_QUAT_CELL_LSTM, __VA_ARGS__>(p).run(); \
		else if (p.cell.cell == HZ_QUAT_CELL_LIGRU) \
			layer<HZ_QUAT_CELL_LIGRU, __VA_ARGS__>(p).run(); \
		else \
			layer<HZ_QUAT_CELL_RNN, __VA_ARGS__>(p).run(); \
	}

#endif
