/*
 * wgmma_in_place.cu - products of 16-bit quaternion matrices by wgmma, with A as it is stored
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Rows of A are real rows of 4 k numbers. Component o of C = A B is the real product of A and a
 * matrix with the components of B in another order and with other signs: with (a, b, c, d) of A and
 * (e, f, g, h) of B
 *
 *   w = a e - b f - c g - d h     x = a f + b e + c h - d g
 *   y = a g - b h + c e + d f     z = a h + b g - c f + d e
 *
 * A block multiplies ROWS rows of A by COLUMNS columns of B: ROWS are the columns of wgmma, from
 * shared memory as TMA loads them; the rows of wgmma are columns of B, in registers. A warpgroup
 * multiplies 32 columns: two warps compute components w and x of C, two y and z, of 16 columns
 * each. A warp loads words of B in the order of w or y, swaps their halves for x or z and flips
 * signs.
 * With 32 columns per block two warpgroups take turns at pairs of steps of k, else each has columns
 * of its own. The blocks of a cluster share k; each adds up a share of the sums in distributed
 * shared memory.
 */
#include "gpu/device/shared.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"
#include "gpu/quat_gemm/epilogue.cuh"
#include "gpu/quat_gemm/wgmma_in_place.h"

#if HAVE_WGMMA

/* Not inlined: many copies would take time to fetch. */
[[maybe_unused]] static __device__ __noinline__ void
finish_one(const hzi_quat_out &o, int i, int j, quat q)
{
	quat_finish(o, 0, 0, i, j, q);
}

template <int DTYPE, int ROWS, int COLUMNS>
struct in_place {
	static constexpr int GROUPS = HZI_IN_PLACE_GROUPS(COLUMNS);
	static constexpr int THREADS = 128 * GROUPS;	/* that multiply */
	static constexpr int TURNS = 32 * GROUPS / COLUMNS;
	/* Steps between waits; three warpgroups have registers for the words of one. */
	static constexpr int STEPS = GROUPS == 3 ? 1 : 2;
	static constexpr int STAGES = HZI_IN_PLACE_STAGES;
	static constexpr int STAGE = HZI_IN_PLACE_STAGE_BYTES(ROWS, COLUMNS);
	static constexpr int PITCH = ROWS + 8;	/* of sums: [component][column][row] */
	static constexpr int PLANE = COLUMNS * PITCH * 4;
	/* C in 16 bits is behind the sums that one warpgroup passes to the other one. */
	static constexpr int HALVES = TURNS == 1 ? 0 : 4 * PLANE;
	static constexpr int UNIT_PITCH = ROWS / 2 + 1;
	static_assert(4 * PLANE <= STAGES * STAGE &&
		      HALVES + COLUMNS * UNIT_PITCH * 16 <= STAGES * STAGE,
		      "they take the place of stages");
	static_assert(STAGES % (STEPS * TURNS) == 0, "the stages of a turn are successive");

	const hzi_quat_in_place &p;
	const uint32_t memory, full, empty;
	const int blocks, rank, i0, j0, begin, count;

	__device__ __forceinline__ explicit in_place(const hzi_quat_in_place &p_)
		: p(p_), memory(shared_address(shared_start())), full(memory + STAGES * STAGE),
		  empty(full + 8 * STAGES), blocks(cluster_size()), rank(cluster_rank()),
		  i0(blockIdx.x / blocks * ROWS), j0(blockIdx.y * COLUMNS),
		  begin(min(rank * p.share, p.steps)), count(min(p.share, p.steps - begin)) {}

	__device__ __forceinline__ void load(void) const
	{
		ring_position<STAGES> at;

		tma_prefetch_map(p.rows);
		tma_prefetch_map(p.columns);
		pdl_wait();
		for (int s = 0; s < count; s++, at.next()) {
			const uint32_t dst = memory + at.at * STAGE, barrier = full + 8 * at.at;

			mbarrier_wait(empty + 8 * at.at, at.parity ^ 1);
			mbarrier_expect_tx(barrier, STAGE);
			tma_load_2d(dst, p.rows, 128 * (begin + s), i0, barrier);
			tma_load_2d(dst + ROWS * 128, p.columns, 128 * (begin + s), j0, barrier);
		}
	}

	/* Words of a stage: lane 4 g + t has columns g, g + 8 of its warp, words t, t + 4. */
	__device__ __forceinline__ void fragments(uint32_t (&a)[2][4][4], uint32_t src,
						  const uint32_t (&sign)[2]) const
	{
#pragma unroll
		for (int s = 0; s < 4; s++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				/* Rows are 128 bytes, with the swizzle: 8 units of 16. */
				const uint32_t at = src + i % 2 * (8 * 128);
				uint32_t v;

				asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v)
					     : "r"(at ^ ((2 * s + i / 2) * 16)) : "memory");
				a[0][s][i] = v ^ sign[0];
				a[1][s][i] = __byte_perm(v, 0, 0x1032) ^ sign[1];
			}
	}

	/* N successive steps. src: the thread's first word of stage 0 */
	template <int N>
	__device__ __forceinline__ void multiply_steps(float (&acc)[2][ROWS / 2], int stage,
						       uint32_t parity, uint32_t src,
						       const uint32_t (&sign)[2]) const
	{
		uint32_t a[N][2][4][4];	/* [step][component][multiplication] */

#pragma unroll
		for (int i = 0; i < N; i++) {
			mbarrier_wait(full + 8 * (stage + i), parity);
			fragments(a[i], src + (stage + i) * STAGE, sign);
		}
		wgmma_fence();
#pragma unroll
		for (int i = 0; i < N; i++) {
			const uint64_t b = wgmma_desc_k(memory + (stage + i) * STAGE);

#pragma unroll
			for (int k = 0; k < 4; k++)
#pragma unroll
				for (int e = 0; e < 2; e++)
					wgmma_rs_add<DTYPE>(acc[e], a[i][e][k], b + 2 * k, 1);
		}
		wgmma_commit();
		wgmma_wait<0>();
#pragma unroll
		for (int e = 0; e < 2; e++)
			wgmma_keep(acc[e]);
		if (threadIdx.x % 32 < N)
			mbarrier_arrive(empty + 8 * (stage + threadIdx.x % 32));
	}

	__device__ __forceinline__ void multiply(float (&acc)[2][ROWS / 2]) const
	{
		const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
		const int group = threadIdx.x / 128, o = threadIdx.x / 64 % 2 * 2;
		const uint32_t sign[2] = {p.sign[o][t % 2], p.sign[o + 1][t % 2]};
		const int column = (TURNS == 1 ? 32 * group : 0) + threadIdx.x / 32 % 2 * 16 + g;
		const uint32_t src = memory + (ROWS + column) * 128 + g * 16 + (t ^ o / 2) * 4;
		int stage = TURNS == 1 ? 0 : STEPS * group;
		uint32_t parity = 0;

#pragma unroll
		for (int e = 0; e < 2; e++)
#pragma unroll
			for (int i = 0; i < ROWS / 2; i++)
				acc[e][i] = 0;
		/* One warpgroup loads fragments while another one multiplies. */
		for (int s = stage; s < count; s += STEPS * TURNS) {
			if (s + STEPS <= count)
				multiply_steps<STEPS>(acc, stage, parity, src, sign);
			else
				multiply_steps<1>(acc, stage, parity, src, sign);
			stage += STEPS * TURNS;
			if (stage >= STAGES) {
				stage -= STAGES;
				parity ^= 1;
			}
		}
	}

	/* Where a thread has its first sum */
	__device__ __forceinline__ float *sums(void) const
	{
		const int lane = threadIdx.x % 32, o = threadIdx.x / 64 % 2 * 2;
		const int column = (TURNS == 1 ? threadIdx.x / 128 * 32 : 0) +
				   threadIdx.x / 32 % 2 * 16 + lane / 4;

		return (float *)shared_start() + o * (PLANE / 4) + column * PITCH + lane % 4 * 2;
	}

	__device__ __forceinline__ static int sum_at(int e, int i)
	{
		return e * (PLANE / 4) + i / 2 % 2 * 8 * PITCH + i / 4 * 8;
	}

	__device__ __forceinline__ void store(const float (&acc)[2][ROWS / 2]) const
	{
		float *const to = sums();

#pragma unroll
		for (int e = 0; e < 2; e++)
#pragma unroll
			for (int i = 0; i < ROWS / 2; i += 2)
				*(float2 *)(to + sum_at(e, i)) =
					make_float2(acc[e][i], acc[e][i + 1]);
	}

	/* Adds the sums that the other warpgroup stored. */
	__device__ __forceinline__ void add_turn(float (&acc)[2][ROWS / 2]) const
	{
		const float *const from = sums();

#pragma unroll
		for (int e = 0; e < 2; e++)
#pragma unroll
			for (int i = 0; i < ROWS / 2; i += 2) {
				const float2 f = *(const float2 *)(from + sum_at(e, i));

				acc[e][i] += f.x;
				acc[e][i + 1] += f.y;
			}
	}

	/* Adds a block's sums of four rows of a column: [component][row] */
	__device__ __forceinline__ void add(float (&sum)[4][4], uint32_t from, int block) const
	{
		const uint32_t at = cluster_map(from, block);

#pragma unroll
		for (int o = 0; o < 4; o++) {
			float4 f;

			if (block == rank)
				shared_load(&f.x, from + o * PLANE);
			else
				f = cluster_load4(at + o * PLANE);
			sum[o][0] += f.x;
			sum[o][1] += f.y;
			sum[o][2] += f.z;
			sum[o][3] += f.w;
		}
	}

	/* C of this block's share of the tile: four rows of a column at a time */
	__device__ __forceinline__ void finish(void) const
	{
		constexpr int UNITS = COLUMNS * ROWS / 4;
		const int share = UNITS / blocks;

#pragma unroll 2
		for (int u = rank * share + threadIdx.x; u < (rank + 1) * share; u += THREADS) {
			const int column = u / (ROWS / 4), row = u % (ROWS / 4) * 4;
			const uint32_t from = memory + (column * PITCH + row) * 4;
			float sum[4][4] = {};

			if (j0 + column >= p.out.n || i0 + row >= p.out.m)
				continue;
			/* Begins with its own, so that blocks do not all read the same one. */
#pragma unroll 2
			for (int b = 0; b < blocks; b++)
				add(sum, from, (rank + b) & (blocks - 1));
			if (p.no_epilogue) {
				uint2 *const to = (uint2 *)p.out.c.data +
						  ((i0 + row) * p.out.c.row +
						   (j0 + column) * p.out.c.col) / 4;
				uint2 q[4];

#pragma unroll
				for (int i = 0; i < 4; i++)
					q[i] = quat_pack(DTYPE, {sum[0][i], sum[1][i], sum[2][i],
								 sum[3][i]});
				if (p.quads && i0 + row + 4 <= p.out.m) {
					((uint4 *)to)[0] = make_uint4(q[0].x, q[0].y, q[1].x,
								      q[1].y);
					((uint4 *)to)[1] = make_uint4(q[2].x, q[2].y, q[3].x,
								      q[3].y);
					continue;
				}
#pragma unroll
				for (int i = 0; i < 4; i++)
					if (i0 + row + i < p.out.m)
						to[i * p.out.c.row / 4] = q[i];
				continue;
			}
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (i0 + row + i < p.out.m)
					finish_one(p.out, i0 + row + i, j0 + column,
						   {sum[0][i], sum[1][i], sum[2][i], sum[3][i]});
		}
	}

	/*
	 * C in 16 bits, to shared memory: [column][unit of two rows], the four words of a unit
	 * permuted by the number of its column. A thread has halves of quaternions.
	 */
	__device__ __forceinline__ void put_halves(const float (&acc)[2][ROWS / 2]) const
	{
		const int lane = threadIdx.x % 32, half = threadIdx.x / 64 % 2;
		const int column = (TURNS == 1 ? threadIdx.x / 128 * 32 : 0) +
				   threadIdx.x / 32 % 2 * 16 + lane / 4;
		uint32_t *const to = (uint32_t *)(shared_start() + HALVES) +
				     (column * UNIT_PITCH + lane % 4) * 4;

#pragma unroll
		for (int i = 0; i < ROWS / 2; i++)
			to[(i / 2 % 2 * 8 * UNIT_PITCH + i / 4 * 4) * 4 +
			   ((i % 2 * 2 + half) ^ column % 4)] =
				DTYPE == HZ_F16 ? to_f16x2(acc[0][i], acc[1][i]) :
						  to_bf16x2(acc[0][i], acc[1][i]);
	}

	/* From there to C, a unit at a time */
	__device__ __forceinline__ void copy_halves(void) const
	{
		constexpr int UNITS = ROWS / 2;

#pragma unroll 4
		for (int u = threadIdx.x; u < COLUMNS * UNITS; u += THREADS) {
			const int column = u / UNITS, row = u % UNITS * 2;
			const int unit = column * UNIT_PITCH + u % UNITS;
			uint4 v = shared_load(memory + HALVES + unit * 16);

			if (column & 1)
				v = make_uint4(v.y, v.x, v.w, v.z);
			if (column & 2)
				v = make_uint4(v.z, v.w, v.x, v.y);
			if (j0 + column < p.out.n && i0 + row < p.out.m)
				*(uint4 *)((uint16_t *)p.out.c.data + (i0 + row) * 4 +
					   (j0 + column) * p.out.c.col) = v;
		}
	}

	__device__ __forceinline__ void multiplier(void) const
	{
		float acc[2][ROWS / 2];

		if (ROWS > 64)
			setmaxnreg_inc<GROUPS == 3 ? 160 : 232>();
		multiply(acc);
		/* All warpgroups have read all stages when sums take their place. */
		bar_sync(1, THREADS);
		if (TURNS == 2) {
			if (threadIdx.x >= 128)
				store(acc);
			bar_sync(1, THREADS);
			if (threadIdx.x < 128)
				add_turn(acc);
		}
		pdl_wait();
		if (p.halves) {
			if (TURNS == 1 || threadIdx.x < 128)
				put_halves(acc);
			bar_sync(1, THREADS);
			copy_halves();
			return;
		}
		if (TURNS == 1 || threadIdx.x < 128)
			store(acc);
		if (blocks == 1) {
			bar_sync(1, THREADS);
		} else {
			cluster_arrive();
			cluster_wait();
		}
		finish();
		if (blocks > 1) {
			cluster_arrive_relaxed();
			cluster_wait();
		}
	}

	__device__ __forceinline__ void loader(void) const
	{
		if (ROWS > 64)
			setmaxnreg_dec<GROUPS == 3 ? 24 : 40>();
		if (threadIdx.x == THREADS)
			load();
		__syncwarp();
		if (blocks > 1) {
			cluster_arrive_relaxed();
			cluster_wait();
			cluster_arrive_relaxed();
			cluster_wait();
		}
	}

	__device__ __forceinline__ void run(void) const
	{
		if (threadIdx.x == 0) {
			for (int i = 0; i < STAGES; i++) {
				mbarrier_init(full + 8 * i, 1);
				mbarrier_init(empty + 8 * i, 4 * GROUPS / TURNS);
			}
			mbarrier_init_fence();
		}
		__syncthreads();
		pdl_launch_dependents();
		if (threadIdx.x < THREADS)
			multiplier();
		else
			loader();
	}
};

#endif

#define IN_PLACE(dtype, DTYPE, rows, columns) \
	extern "C" __global__ void __launch_bounds__(HZI_IN_PLACE_THREADS(rows, columns), 1) \
	quat_gemm_in_place_##rows##x##columns##_##dtype( \
		const __grid_constant__ hzi_quat_in_place p) \
	HZ_HOPPER_BODY((in_place<DTYPE, rows, columns>(p).run()))

#define IN_PLACES(rows, columns) \
	IN_PLACE(f16, HZ_F16, rows, columns) \
	IN_PLACE(bf16, HZ_BF16, rows, columns)

IN_PLACES(64, 32)
IN_PLACES(96, 32)
IN_PLACES(128, 32)
IN_PLACES(96, 64)
IN_PLACES(128, 64)
IN_PLACES(96, 96)
