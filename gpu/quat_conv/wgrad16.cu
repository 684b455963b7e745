/*
 * wgrad16.cu - gradients of weights of quaternion convolutions of 16 bits, on Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * All products of a component of small and one of big are made, of which four make a component of
 * the result, at the end: gpu/quat_conv/gemm16.cuh. A block has a tile of rows and columns, of a piece
 * of the pixels: two warpgroups multiply, by 64 rows and up to 256 columns each, and a thread
 * copies. Two blocks of a cluster, of different rows, load one half of the columns each for both.
 * What pieces add up to is put together by quat_conv_few_sum, always in the same order.
 */
#include "gpu/quat_conv/wgrad16.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

#if HAVE_WGMMA

template <bool WIDE>
struct memory {
	union {
		uint8_t of[shape<WIDE>::stages][shape<WIDE>::rows + shape<WIDE>::columns]
			  [UNIT_BYTES];
		float sums[2][64][SUM_ROW];
	};
	uint64_t full[shape<WIDE>::stages], empty[shape<WIDE>::stages], done;
	place columns[COLUMNS_MOST];
};

static_assert(sizeof(memory<true>) + 1024 <= HZI_QX_BYTES &&
	      sizeof(memory<false>) + 1024 <= HZI_QX_BYTES, "what the launcher asks for");

/* ---- Copies ---------------------------------------------------------------------------------- */

template <bool WIDE>
HZ_DEVICE void load(const hzi_quat_direct_weights &p, memory<WIDE> &s, const work &w, int rank)
{
	constexpr int ROWS = shape<WIDE>::rows;
	ring_position<shape<WIDE>::stages> ring;

	for (int i = w.begin; i < w.end; i++) {
		const uint32_t full = shared_address(&s.full[ring.at]);
		int at[4];

		place_of_box(p.b, i, at);
		mbarrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
		mbarrier_expect_tx(full, (ROWS + w.units) * UNIT_BYTES);
#pragma unroll
		for (int r = 0; r < ROWS; r++)
			tma_load_5d(shared_address(s.of[ring.at][r]), p.small,
				    2 * (w.set * p.row_step + w.row + r * HZI_QD_UNIT), at, full);
#pragma unroll
		for (int d = 0; d < 4; d++)
			at[d] *= p.b.step[d];
		for (int j = 0; j < w.units; j++) {
			const place &c = s.columns[j];
			const int from[4] = {at[0] + c.at[2], at[1] + c.at[1], at[2] + c.at[0],
					     at[3]};
			const uint32_t to = shared_address(s.of[ring.at][ROWS + j]);

			if (p.cluster == 1)
				tma_load_5d(to, p.big, 2 * c.column, from, full);
			else if (j % 2 == rank)
				tma_load_5d_multicast(3, to, p.big, 2 * c.column, from, full);
		}
		ring.next();
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

/* A warpgroup, of so many units of columns from one of the tile on */
template <int DTYPE, bool WIDE, int UNITS>
HZ_DEVICE void products(const hzi_quat_direct_weights &p, memory<WIDE> &s, const work &w, int group,
			int first)
{
	constexpr int ROWS = shape<WIDE>::rows;
	const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
	float acc[32 * UNITS];
	ring_position<shape<WIDE>::stages> ring;
	int last = 0;

#pragma unroll
	for (int i = 0; i < 32 * UNITS; i++)
		acc[i] = 0;
	for (int i = w.begin; i < w.end; i++) {
		const uint64_t a = wgmma_desc_mn(shared_address(s.of[ring.at][WIDE ? 0 : group]),
						 UNIT_BYTES);
		const uint64_t b = wgmma_desc_mn(shared_address(s.of[ring.at][ROWS + first]),
						 UNIT_BYTES);

		mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
		wgmma_keep(acc);
		wgmma_fence();
#pragma unroll
		for (int c = 0; c < HZI_QD_PIXELS / 16; c++)
			wgmma<true, true, DTYPE>(acc, a + c * 128, b + c * 128, 1);
		wgmma_commit();
		wgmma_keep(acc);
		/* Those of the step ahead are done. */
		wgmma_wait<1>();
		wgmma_keep(acc);
		if (i > w.begin && lane < p.cluster)
			mbarrier_arrive_cluster(cluster_map(shared_address(&s.empty[last]), lane));
		last = ring.at;
		ring.next();
	}
	wgmma_wait<0>();
	wgmma_keep(acc);
	both_meet(s.done);
#pragma unroll
	for (int j = 0; j < 8 * UNITS; j++) {
		const int row = thread / 32 * 16 + lane / 4, column = 8 * j + 2 * (lane % 4);

		*(float2 *)&s.sums[group][row][column] = make_float2(acc[4 * j], acc[4 * j + 1]);
		*(float2 *)&s.sums[group][row + 8][column] =
			make_float2(acc[4 * j + 2], acc[4 * j + 3]);
	}
	group_meets(group);

	store_results<WIDE, UNITS>(p, w, &s.columns[first], s.sums[group], group);
}

/* A warpgroup that has no columns: only that memory becomes free */
template <bool WIDE>
HZ_DEVICE void idle(const hzi_quat_direct_weights &p, memory<WIDE> &s, const work &w)
{
	ring_position<shape<WIDE>::stages> ring;

	for (int i = w.begin; i < w.end; i++) {
		mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
		if (threadIdx.x % 32 < p.cluster)
			mbarrier_arrive_cluster(cluster_map(shared_address(&s.empty[ring.at]),
							    threadIdx.x % 32));
		ring.next();
	}
	both_meet(s.done);
}

template <int DTYPE, bool WIDE>
HZ_DEVICE void kernel(const hzi_quat_direct_weights &p)
{
	memory<WIDE> &s = *(memory<WIDE> *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const work w(p, shape<WIDE>::rows);
	const uint32_t rank = cluster_rank();

	if (threadIdx.x == 0) {
		ring_init(p, s.full, s.empty, s.done);
		mbarrier_init_fence();
	}
	find_columns(p, w, s.columns);
	blocks_begin(p);
	if (group < 2) {
		const int half = (w.units + 1) / 2;
		const int units = !WIDE ? w.units : group ? w.units - half : half;
		const int first = WIDE && group ? half : 0;

		switch (units) {
		case 0:
			idle<WIDE>(p, s, w);
			break;
		case 1:
			products<DTYPE, WIDE, 1>(p, s, w, group, first);
			break;
		case 2:
			products<DTYPE, WIDE, 2>(p, s, w, group, first);
			break;
		case 3:
			products<DTYPE, WIDE, 3>(p, s, w, group, first);
			break;
		case 4:
			products<DTYPE, WIDE, 4>(p, s, w, group, first);
			break;
		}
	} else if (threadIdx.x % 32 == 0) {
		load<WIDE>(p, s, w, rank);
	}
	if (p.cluster > 1)
		cluster_end();
}

#endif

#define WEIGHTS(name, dtype, wide) \
	extern "C" __global__ __launch_bounds__(HZI_QX_THREADS, 1) void \
	name(const __grid_constant__ hzi_quat_direct_weights p) \
	HZ_HOPPER_BODY((kernel<dtype, wide>(p)))
WEIGHTS(quat_direct_weights_f16, HZ_F16, false)
WEIGHTS(quat_direct_weights_bf16, HZ_BF16, false)
WEIGHTS(quat_direct_weights_wide_f16, HZ_F16, true)
WEIGHTS(quat_direct_weights_wide_bf16, HZ_BF16, true)

