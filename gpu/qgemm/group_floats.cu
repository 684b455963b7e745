/*
 * group_floats.cu - many rows of bf16 by 4-bit weights in groups of 128, by wgmma; sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * D = W^T x^T. A block is persistent and computes tiles of 128 columns of W by 256 rows of x; the
 * two blocks of a cluster have the same rows, which TMA multicasts to both. A warpgroup has 64
 * columns, four panels, and takes them from registers.
 *
 * Clusters compute whole tiles in turn. Of the tiles that are left for fewer than all clusters each
 * may be split along k: `parts` clusters store their sums, which group_floats_sum adds in order.
 */
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"
#include "gpu/qgemm/group_results.cuh"

#define ROWS HZI_GROUP_FLOATS_ROWS
#define PANELS HZI_GROUP_FLOATS_PANELS
#define STAGES HZI_GROUP_FLOATS_STAGES
#define STAGE HZI_GROUP_FLOATS_STAGE
#define HALF 128			/* rows of x that are stored at a time */

#if HAVE_WGMMA

template <bool ZEROS>
struct group_floats_block {
	static constexpr int X = ROWS * 128;		/* of a stage, 64 of k */
	static constexpr int PIECE = HZI_GROUP_PIECE_BYTES(HZI_GROUP_U4) / 2;
	static constexpr int SCALES = X + PANELS * PIECE, ZEROS_AT = SCALES + PANELS * 64;
	static constexpr int STEPS = HZI_GROUP_UNIT / 16;

	const hzi_group_floats &p;
	const hzi_group_gemm &l;
	const int lane, warp, rank, cluster, clusters;
	const uint32_t memory, full, empty;

	__device__ __forceinline__ explicit group_floats_block(const hzi_group_floats &p_)
		: p(p_), l(p_.g), lane(threadIdx.x % 32),
		  warp(__shfl_sync(~0u, threadIdx.x / 32, 0)), rank((int)cluster_rank()),
		  cluster(blockIdx.x / 2), clusters(gridDim.x / 2),
		  memory(shared_address(shared_start())), full(memory + STAGES * STAGE),
		  empty(full + 8 * STAGES)
	{
	}

	__device__ __forceinline__ void run(void) const
	{
		if (threadIdx.x == 0) {
			for (int i = 0; i < STAGES; i++) {
				mbarrier_init(full + 8 * i, 1);
				mbarrier_init(empty + 8 * i, 2 * PANELS);
			}
			mbarrier_init_fence();
		}
		pdl_launch_dependents();
		__syncthreads();
		cluster_arrive();
		cluster_wait();
		if (warp >= PANELS) {
			setmaxnreg_dec<24>();
			if (lane == 0 && warp < PANELS + 2)
				produce(warp - PANELS);
			__syncwarp();
		} else {
			setmaxnreg_inc<240>();
			consume();
		}
		cluster_end();
	}

private:
	/* A tile, or groups `begin` to `end` of one */
	struct work {
		int tile, begin, end, part;	/* part: -1 for a whole tile */
	};

	/* Number i of this cluster's work; returns whether there is any. */
	__device__ __forceinline__ bool work_of(int i, work &w) const
	{
		const int t = cluster + i * clusters, rest = t - p.whole;

		if (rest < 0) {
			w = {t, 0, l.pieces, -1};
			return true;
		}
		w.tile = p.whole + rest / p.parts;
		w.part = rest % p.parts;
		w.begin = l.pieces * w.part / p.parts;
		w.end = l.pieces * (w.part + 1) / p.parts;
		return w.tile < p.tiles;
	}

	/* ---- Copies -------------------------------------------------------------------------- */

	/* One lane of each of two warps copies the same half of every group. */
	__device__ __forceinline__ void produce(int half) const
	{
		const int bytes = X + PANELS * (PIECE + 64 + (ZEROS ? 32 : 0));
		const int step = l.group_shift > 7 ? 0 : 1;	/* groups of a piece */
		ring_position<STAGES> at;
		work w;

		if (half)
			at.next();
		for (int n = 0; work_of(n, w); n++) {
			const int row = w.tile % p.tiles_m * ROWS + rank * (ROWS / 2);
			const int panel = (w.tile / p.tiles_m * 2 + rank) * PANELS;

#pragma unroll 1
			for (int i = w.begin; i < w.end; i++) {
				const uint32_t stage = memory + at.at * STAGE;
				const uint32_t bar = full + 8 * at.at;

				mbarrier_wait(empty + 8 * at.at, at.parity ^ 1);
				mbarrier_expect_tx(bar, bytes);
				tma_load_3d(stage + X, p.w, 0, i * (2 * PIECE / 128) +
					    half * (PIECE / 128), panel, bar);
				tma_load_2d(stage + SCALES, p.scales, i * step * 64, panel, bar);
				if (ZEROS)
					tma_load_2d(stage + ZEROS_AT, p.zeros, i * step * 32, panel,
						    bar);
				/* x may be written by the kernel before, W is not. */
				pdl_wait();
				tma_load_2d_multicast(3, stage + rank * (X / 2), p.x,
						      i * 256 + half * 128, row, bar);
				at.next();
				at.next();
			}
		}
	}

	/* `offset` from the beginning of a TMA tile with rows of that many bytes, swizzled */
	__device__ __forceinline__ static int swizzled(int row_bytes, int offset)
	{
		return offset ^ (offset >> 3 & row_bytes - 16);
	}

	/* ---- Products ------------------------------------------------------------------------ */

	/*
	 * Of a group, columns g and g + 8: the A operand, the unit of sums, and the unit before it
	 * divided by this one
	 */
	struct weights {
		uint32_t a[STEPS][4];
		float unit[2], ratio[2];
	};

	struct sums {
		float y[ROWS / 2];
		ring_position<STAGES> at;
	};

	__device__ __forceinline__ void consume(void) const
	{
		const group_results<HALF> results(l, p.y_vectorized);
		weights w;
		sums s;
		work now, then;
		bool more = work_of(0, now);

		if (!more)
			return;
		pdl_wait();
		decode(w, s, true);
		if (warp >= 4)
			turn_ends();
		for (int n = 1; more; n++, now = then) {
			float2 unit;

			more = work_of(n, then);
#pragma unroll 1
			for (int i = now.begin; i < now.end; i++) {
				const bool last = i + 1 == now.end;

				unit = {w.unit[0], w.unit[1]};
				multiply(s, w, i == now.begin);
				if (more || !last)
					decode(w, s, last);
				if (last)
					break;
#pragma unroll
				for (int j = 0; j < ROWS / 2; j++)
					s.y[j] *= w.ratio[j / 2 % 2];
			}
#pragma unroll
			for (int i = 0; i < ROWS / 2; i++)
				s.y[i] *= i / 2 % 2 ? unit.y : unit.x;
			finish(s, now, results);
		}
		if (warp < 4)
			turn_begins();
	}

	/* Warpgroups issue wgmma in turns, so that one multiplies while the other decodes. */
	__device__ __forceinline__ void turn_begins(void) const
	{
		bar_sync(3 + warp / 4, 256);
	}

	__device__ __forceinline__ void turn_ends(void) const
	{
		bar_arrive(4 - warp / 4, 256);
	}

	__device__ __forceinline__ void finish(sums &s, const work &now,
					       const group_results<HALF> &results) const
	{
		if (now.part >= 0) {
			put_part(s.y, now);
			return;
		}
#pragma unroll
		for (int first = 0; first < ROWS; first += HALF) {
			float y[HALF / 2];

#pragma unroll
			for (int i = 0; i < HALF / 2; i++)
				y[i] = s.y[first / 2 + i];
			results.put(y, shared_start() + STAGES * STAGE + 1024 +
				    warp / 4 * HZI_GROUP_RESULTS_BYTES(HALF),
				    now.tile % p.tiles_m * ROWS + first,
				    ((now.tile / p.tiles_m * 2 + rank) * PANELS + warp / 4 * 4) *
					    HZI_GROUP_COLUMNS);
		}
	}

	/* Multiplies by w, of the first group of a tile or not. */
	__device__ __forceinline__ void multiply(sums &s, const weights &w, bool first) const
	{
		const int slot[2] = {s.at.at, (s.at.at + 1) % STAGES};

		turn_begins();
		wgmma_fence();
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const uint64_t b = wgmma_desc_k(memory + slot[h] * STAGE);

#pragma unroll
			for (int i = 0; i < STEPS / 2; i++)
				wgmma_rs_add<HZ_BF16>(s.y, w.a[h * STEPS / 2 + i], b + i * 2,
						      h + i > 0 || !first);
			wgmma_commit();
		}
		turn_ends();
		wgmma_wait<1>();
		release(slot[0]);
		wgmma_wait<0>();
		wgmma_keep(s.y);
		release(slot[1]);
		__syncwarp();
		s.at.next();
		s.at.next();
	}

	__device__ __forceinline__ void release(int slot) const
	{
		if (lane < 2)
			mbarrier_arrive_cluster(cluster_map(empty + 8 * slot, lane));
	}

	/*
	 * The scale of a column is unit 2^e, unit 1 to 2 but for scales from 2^111 on and below
	 * 2^-126. The A operand has the factor 2^e, exactly, so that one accumulator has the sums
	 * of all groups: at the beginning of each group it is multiplied by the ratio of units.
	 * Where a scale is 0, Inf or NaN, the A operand has it, and the unit stays.
	 */
	__device__ __forceinline__ static uint32_t unit_of(weights &w, float scale, int h,
							   bool begins)
	{
		const int field = __float_as_uint(scale) >> 23 & 255, e = min(max(field, 1), 237);
		const float before = begins ? 1 : w.unit[h];

		w.unit[h] = field == 255 || scale == 0 ? before :
							 scale * __int_as_float((254 - e) << 23);
		w.ratio[h] = __fdividef(before, w.unit[h]);
		return scale == 0 ? 0 : field == 255 ? 0x3f803f80 : e * 0x00800080;
	}

	/* The next group, which begins a tile or not */
	__device__ __forceinline__ void decode(weights &to, const sums &s, bool begins) const
	{
		const uint32_t stage = memory + s.at.at * STAGE;
		const int g = lane / 4, at = swizzled(128, warp * PIECE + lane * 16);
		auto second = s.at;
		uint32_t codes[8], zeros = 0;
		float scale[2];

		second.next();
		mbarrier_wait(full + 8 * s.at.at, s.at.parity);
		mbarrier_wait(full + 8 * second.at, second.parity);
		asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
			     : "=f"(scale[0]), "=f"(scale[1])
			     : "r"(stage + SCALES + swizzled(64, warp * 64 + g * 8)) : "memory");
		shared_load(codes, stage + X + at);
		shared_load(codes + 4, memory + second.at * STAGE + X + at);
		if (ZEROS)
			asm volatile("ld.shared.u32 %0, [%1];" : "=r"(zeros)
				     : "r"(stage + ZEROS_AT + swizzled(32, warp * 32 + g * 4))
				     : "memory");
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const uint32_t factor = unit_of(to, scale[h], h, begins);
			const uint32_t less =
				mul_bf16x2(to_pair(ZEROS ? -128 : -128 - l.l.zero), factor);
			const uint32_t zero = mul_bf16x2(to_pair(-group_zero(zeros, h)), factor);

#pragma unroll
			for (int i = 0; i < 4 * STEPS / 2; i++) {
				/* Of 8 codes, numbers 0, 4, 2, 6 and the next ones; 2^7 + u */
				const uint32_t w = codes[i / 4 * 2 + h] >>
						   (i % 2 * 8 + i / 2 % 2 * 4);
				const uint32_t v = fma_bf16x2(
					group_field<0x000f000f, 0x43004300>(w), factor, less);

				to.a[i / 2][i % 2 * 2 + h] =
					ZEROS ? group_add<HZ_BF16>(v, zero) : v;
			}
		}
		if (__all_sync(~0u, isfinite(scale[0]) && isfinite(scale[1])))
			return;
#pragma unroll
		for (int i = 0; i < 4 * STEPS; i++)
			to.a[i / 4][i % 4] = mul_bf16x2(to.a[i / 4][i % 4],
							isfinite(scale[i % 2]) ? 0x3f803f80 :
							to_bf16x2(scale[i % 2], scale[i % 2]));
	}

	/* An integer, twice */
	__device__ __forceinline__ static uint32_t to_pair(int v)
	{
		return to_bf16x2((float)v, (float)v);
	}

	/* Sums in the order of registers, for group_floats_sum */
	__device__ __forceinline__ void put_part(const float (&sum)[ROWS / 2], const work &w) const
	{
		float4 *const to = (float4 *)p.parts_at +
			((((int64_t)(w.tile - p.whole) * 2 + rank) * 2 + warp / 4) * p.parts +
			 w.part) * (ROWS / 8 * 128) + threadIdx.x % 128;

#pragma unroll
		for (int i = 0; i < ROWS / 8; i++)
			to[i * 128] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2],
						  sum[4 * i + 3]);
	}
};

#endif

#define KERNEL(name, ...) \
	extern "C" __global__ void __launch_bounds__(HZI_GROUP_FLOATS_THREADS, 1) \
	name(const __grid_constant__ hzi_group_floats p) \
	HZ_HOPPER_BODY((group_floats_block<__VA_ARGS__>(p).run()))

KERNEL(qgemm_group_floats_s4, false)
KERNEL(qgemm_group_floats_u4, true)

/*
 * Adds the parts of split tiles. Grid: 64 columns of a tile, four of them for each cluster's; rows
 * of x
 */
extern "C" __global__ void __launch_bounds__(128)
qgemm_group_floats_sum(const __grid_constant__ hzi_group_floats p)
{
#if HAVE_WGMMA
	constexpr int count = HZI_GROUP_FLOATS_SUM_ROWS, vectors = count / 8;
	__shared__ __align__(128) uint8_t memory[HZI_GROUP_RESULTS_BYTES(count)];
	const int tile = p.whole + blockIdx.x / 4, first = blockIdx.y * vectors;
	const float4 *const from = (const float4 *)p.parts_at +
		(int64_t)blockIdx.x * p.parts * (ROWS / 8 * 128) + first * 128 + threadIdx.x;
	float4 v[HZI_GROUP_FLOATS_PARTS][vectors];
	float sum[count / 2] = {};

	pdl_launch_dependents();
	pdl_wait();
	/* These loads are in flight together; without branches, part 0 instead of none. */
#pragma unroll
	for (int part = 0; part < HZI_GROUP_FLOATS_PARTS; part++) {
		const int at = part < p.parts ? part * (ROWS / 8 * 128) : 0;

#pragma unroll
		for (int i = 0; i < vectors; i++)
			asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
				     : "=f"(v[part][i].x), "=f"(v[part][i].y),
				       "=f"(v[part][i].z), "=f"(v[part][i].w)
				     : "l"(from + at + i * 128) : "memory");
	}
#pragma unroll
	for (int part = 0; part < HZI_GROUP_FLOATS_PARTS; part++) {
#pragma unroll
		for (int i = 0; i < vectors && part < p.parts; i++) {
			sum[4 * i] += v[part][i].x;
			sum[4 * i + 1] += v[part][i].y;
			sum[4 * i + 2] += v[part][i].z;
			sum[4 * i + 3] += v[part][i].w;
		}
	}
	group_results<count>(p.g, p.y_vectorized)
		.put(sum, memory, tile % p.tiles_m * ROWS + first * 8,
		     (int64_t)(tile / p.tiles_m * 4 + blockIdx.x % 4) * (4 * HZI_GROUP_COLUMNS));
#endif
}
