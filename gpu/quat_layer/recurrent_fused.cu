/*
 * recurrent_fused.cu - a step of a recurrent layer of 16 bits in one kernel: product and cell
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block multiplies 32 rows of U, which are all gates of 32 / K neurons, by the states of up to 32
 * sequences (gpu/quat_gemm/gemv_mma.cuh), and applies the cell to the sums. blockIdx.z is the
 * direction. States are read from one buffer and written to another, since other blocks still read.
 */
#include "gpu/device/pdl.cuh"
#include "gpu/quat_gemm/gemv_mma.cuh"
#include "gpu/quat_layer/recurrent.cuh"
#include "gpu/quat_layer/recurrent.h"

#define ROWS HZI_GEMV_MMA_ROWS

/* sums[column][4 row + component]: row i0 + gate * neurons + j is of neuron i0 / K + j. */
template <int CELL, int COLUMNS, int WIDTH>
HZ_DEVICE void cells(const hzi_quat_cell_step &p, const float (&sums)[COLUMNS][WIDTH], int i0,
		     int j0)
{
	constexpr int GATES = HZI_QUAT_CELL_GATES(CELL), NEURONS = ROWS / GATES;

	for (int x = threadIdx.x; x < COLUMNS * NEURONS * 4; x += blockDim.x) {
		const int column = x / (NEURONS * 4), rest = x % (NEURONS * 4);
		const int c = p.planar ? rest / NEURONS : rest % 4;
		const int j = p.planar ? rest % NEURONS : rest / 4;
		const int64_t neuron = i0 / GATES + j;
		float pre[GATES];

		if (j0 + column >= p.batch)
			break;
#pragma unroll
		for (int k = 0; k < GATES; k++) {
			/* Number (4 k + c) hidden + neuron of all w, all x, all y, all z */
			const int part = 4 * k + c;
			const int row = (p.planar ? part % GATES : k) * NEURONS + j;

			pre[k] = sums[column][4 * row + (p.planar ? part / GATES : c)];
		}
		forward_one<CELL>(p, number(p, blockIdx.z, j0 + column,
					    p.planar ? c * p.hidden + neuron : 4 * neuron + c),
				  pre);
	}
}

template <int DTYPE, int GROUPS>
HZ_DEVICE void fused(const hzi_quat_fused_step &p)
{
	constexpr int COLUMNS = 8 * GROUPS;
	__shared__ float sums[COLUMNS][4 * ROWS + 4];
	const int slices = (p.product.out.n + COLUMNS - 1) / COLUMNS;
	const int i0 = blockIdx.x / slices * ROWS, j0 = blockIdx.x % slices * COLUMNS;
	gemv_mma<DTYPE, GROUPS> product(p.product);

	pdl_launch_dependents();
	pdl_wait();
	product.run([&](int i, int j, quat q) {
		*(float4 *)&sums[j - j0][4 * (i - i0)] = make_float4(q.w, q.x, q.y, q.z);
	});
	__syncthreads();
	if (p.cell.cell == HZ_QUAT_CELL_LSTM)
		cells<HZ_QUAT_CELL_LSTM>(p.cell, sums, i0, j0);
	else if (p.cell.cell == HZ_QUAT_CELL_LIGRU)
		cells<HZ_QUAT_CELL_LIGRU>(p.cell, sums, i0, j0);
	else
		cells<HZ_QUAT_CELL_RNN>(p.cell, sums, i0, j0);
}

#define FUSED(name, threads, ...) \
	extern "C" __global__ void __launch_bounds__(threads) \
	quat_layer_recurrent_##name(const __grid_constant__ hzi_quat_fused_step p) \
	{ \
		fused<__VA_ARGS__>(p); \
	}

FUSED(8_f16, HZI_GEMV_MMA_THREADS, HZ_F16, 1)
FUSED(8_bf16, HZI_GEMV_MMA_THREADS, HZ_BF16, 1)
FUSED(16_f16, HZI_GEMV_WIDE_THREADS, HZ_F16, 2)
FUSED(16_bf16, HZI_GEMV_WIDE_THREADS, HZ_BF16, 2)
FUSED(32_f16, HZI_GEMV_WIDE_THREADS, HZ_F16, 4)
FUSED(32_bf16, HZI_GEMV_WIDE_THREADS, HZ_BF16, 4)
