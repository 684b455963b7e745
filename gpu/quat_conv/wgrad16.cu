/*
 * wgrad16.cu - gradients of weights of 16-bit quaternion convolutions by 16 real products, wgmma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block computes the products of all pairs of components of a tile of small (rows) and of big
 * (columns), 128 x 256 or 64 x 512 components, over a split of the pixels; 4 x 4 of these are
 * combined to a quaternion at the end. Two warpgroups multiply, 64 rows by up to 256 columns each;
 * one thread loads units by TMA. The two blocks of a cluster have different rows and the same
 * columns; each loads half of the columns and multicasts them. quat_conv_wgrad_reduce adds up the
 * splits in their order.
 */
#include "gpu/quat_conv/wgrad16.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

#if HAVE_WGMMA

template <bool N512>
struct memory : stage_memory<N512> {
	uint64_t full[shape<N512>::stages], empty[shape<N512>::stages], done;
	tap_columns columns[COLUMNS_MAX];
};

static_assert(sizeof(memory<true>) + 1024 <= HZI_WGRAD16_SHARED_BYTES &&
	      sizeof(memory<false>) + 1024 <= HZI_WGRAD16_SHARED_BYTES,
	      "what the launcher asks for");

/* ---- Copies ---------------------------------------------------------------------------------- */

template <bool N512>
HZ_DEVICE void load(const hzi_quat_wgrad16 &p, memory<N512> &s, const work &w, int rank)
{
	constexpr int ROWS = shape<N512>::rows;
	ring_position<shape<N512>::stages> ring;

	for (int i = w.begin; i < w.end; i++) {
		const uint32_t full = shared_address(&s.full[ring.at]);
		int at[4];

		tma_tile_origin(p.b, i, at);
		mbarrier_wait(shared_address(&s.empty[ring.at]), ring.parity ^ 1);
		mbarrier_expect_tx(full, (ROWS + w.units) * UNIT_BYTES);
#pragma unroll
		for (int r = 0; r < ROWS; r++)
			tma_load_5d(shared_address(s.of[ring.at][r]), p.small,
				    2 * (w.set * p.row_step + w.row + r * HZI_GEMM16_UNIT), at,
				    full);
#pragma unroll
		for (int d = 0; d < 4; d++)
			at[d] *= p.b.step[d];
		for (int j = 0; j < w.units; j++) {
			const tap_columns &c = s.columns[j];
			const int src[4] = {at[0] + c.at[2], at[1] + c.at[1], at[2] + c.at[0],
					    at[3]};
			const uint32_t dst = shared_address(s.of[ring.at][ROWS + j]);

			if (p.cluster == 1)
				tma_load_5d(dst, p.big, 2 * c.column, src, full);
			else if (j % 2 == rank)
				tma_load_5d_multicast(3, dst, p.big, 2 * c.column, src, full);
		}
		ring.next();
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

/* A multiplying warpgroup: UNITS units of columns, from unit `first` of the tile on */
template <int DTYPE, bool N512, int UNITS>
HZ_DEVICE void products(const hzi_quat_wgrad16 &p, memory<N512> &s, const work &w, int group,
			int first)
{
	constexpr int ROWS = shape<N512>::rows;
	const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
	float acc[32 * UNITS];
	ring_position<shape<N512>::stages> ring;
	int last = 0;

#pragma unroll
	for (int i = 0; i < 32 * UNITS; i++)
		acc[i] = 0;
	for (int i = w.begin; i < w.end; i++) {
		const uint64_t a = wgmma_desc_mn(shared_address(s.of[ring.at][N512 ? 0 : group]),
						 UNIT_BYTES);
		const uint64_t b = wgmma_desc_mn(shared_address(s.of[ring.at][ROWS + first]),
						 UNIT_BYTES);

		mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
		wgmma_keep(acc);
		wgmma_fence();
#pragma unroll
		for (int c = 0; c < HZI_GEMM16_PIXELS / 16; c++)
			wgmma<true, true, DTYPE>(acc, a + c * 128, b + c * 128, 1);
		wgmma_commit();
		wgmma_keep(acc);
		/* The products of the previous step are done: its stage is free. */
		wgmma_wait<1>();
		wgmma_keep(acc);
		if (i > w.begin && lane < p.cluster)
			mbarrier_arrive_cluster(cluster_map(shared_address(&s.empty[last]), lane));
		last = ring.at;
		ring.next();
	}
	wgmma_wait<0>();
	wgmma_keep(acc);
	multipliers_sync(s.done);
#pragma unroll
	for (int j = 0; j < 8 * UNITS; j++) {
		const int row = thread / 32 * 16 + lane / 4, column = 8 * j + 2 * (lane % 4);

		*(float2 *)&s.sums[group][row][column] = make_float2(acc[4 * j], acc[4 * j + 1]);
		*(float2 *)&s.sums[group][row + 8][column] =
			make_float2(acc[4 * j + 2], acc[4 * j + 3]);
	}
	warpgroup_sync(group);

	store_results<N512, UNITS>(p, w, &s.columns[first], s.sums[group], group);
}

/* A multiplying warpgroup without columns: only frees the stages */
template <bool N512>
HZ_DEVICE void idle(const hzi_quat_wgrad16 &p, memory<N512> &s, const work &w)
{
	ring_position<shape<N512>::stages> ring;

	for (int i = w.begin; i < w.end; i++) {
		mbarrier_wait(shared_address(&s.full[ring.at]), ring.parity);
		if (threadIdx.x % 32 < p.cluster)
			mbarrier_arrive_cluster(cluster_map(shared_address(&s.empty[ring.at]),
							    threadIdx.x % 32));
		ring.next();
	}
	multipliers_sync(s.done);
}

#define CASE(units) \
	case units: \
		products<DTYPE, N512, units>(p, s, w, group, first); \
		break;

template <int DTYPE, bool N512>
HZ_DEVICE void kernel(const hzi_quat_wgrad16 &p)
{
	memory<N512> &s = *(memory<N512> *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const work w(p, shape<N512>::rows);
	const uint32_t rank = cluster_rank();

	if (threadIdx.x == 0) {
		ring_init(p, s.full, s.empty, s.done);
		mbarrier_init_fence();
	}
	find_columns(p, w, s.columns);
	begin_blocks(p);
	if (group < 2) {
		/* With N512 each warpgroup has half of the columns. */
		const int half = (w.units + 1) / 2;
		const int units = !N512 ? w.units : group ? w.units - half : half;
		const int first = N512 && group ? half : 0;

		switch (units) {
		case 0:
			idle<N512>(p, s, w);
			break;
		CASE(1) CASE(2) CASE(3) CASE(4)
		}
	} else if (threadIdx.x % 32 == 0) {
		load<N512>(p, s, w, rank);
	}
	if (p.cluster > 1)
		cluster_end();
}

#endif

#define WEIGHTS(name, dtype, n512) \
	extern "C" __global__ __launch_bounds__(HZI_WGRAD16_THREADS, 1) void \
	name(const __grid_constant__ hzi_quat_wgrad16 p) \
	HZ_HOPPER_BODY((kernel<dtype, n512>(p)))
WEIGHTS(quat_conv_wgrad16_128x256_f16, HZ_F16, false)
WEIGHTS(quat_conv_wgrad16_128x256_bf16, HZ_BF16, false)
WEIGHTS(quat_conv_wgrad16_64x512_f16, HZ_F16, true)
WEIGHTS(quat_conv_wgrad16_64x512_bf16, HZ_BF16, true)

