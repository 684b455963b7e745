/*
 * group_codes.cu - many rows of codes x by group-wise quantized weights, by wgmma; sm_90a
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * D = W^T x^T. A block is persistent and computes tiles of 128 columns of W by 112 rows of x; the
 * two blocks of a cluster have the same rows, which TMA multicasts to both. A warpgroup has 64
 * columns, four panels, and takes them from registers, as s8 codes of w - zero, so that a unit of k
 * needs no sums of x. Its sums of integers begin at 0 in each unit and become floats as the
 * contract says, by four instructions for each result and unit: 224 of a warp beside products that
 * take its tensor core 256 cycles.
 *
 * Codes of s4 are multiplied as 16 (w - zero), which decodes fastest, if s / 16 and products with
 * it are normal numbers: both scalings are exact then.
 */
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_s8.cuh"
#include "gpu/qgemm/group_results.cuh"

#if HAVE_WGMMA

#define ROWS HZI_GROUP_CODES_ROWS
#define PANELS HZI_GROUP_CODES_PANELS

/* Bounds of scales whose sixteenth and products are exact: 2^-100 */
#define NORMAL 0x1p-100f

/* KIND: HZI_GROUP_U4 or HZI_GROUP_U8; S4: u4 with the zero point 8 everywhere */
template <int KIND, bool S4, int UNIT>
struct group_codes_block {
	static constexpr int STAGES = HZI_GROUP_CODES_STAGES(KIND, UNIT);
	static constexpr int STAGE = HZI_GROUP_CODES_STAGE(KIND, UNIT);
	static constexpr int UNITS = HZI_GROUP_UNIT / UNIT;
	static constexpr int CHUNK_STAGES = HZI_GROUP_CHUNK / HZI_GROUP_UNIT;
	static constexpr int X = ROWS * HZI_GROUP_UNIT, W = HZI_GROUP_PIECE_BYTES(KIND);
	/* Scales and zero points of a panel and unit are 64 and 32 bytes. */
	static constexpr int SCALES = X + PANELS * W, ZEROS = SCALES + PANELS * UNITS * 64;
	static constexpr int SCALES_ROW = UNITS == 1 ? 64 : 128, ZEROS_ROW = UNITS * 32;
	static constexpr int STEPS = UNIT / 32, WORDS = group_step_words<KIND>;
	static constexpr int CHUNK = HZI_GROUP_CHUNK / UNIT;

	const hzi_group_codes &p;
	const hzi_group_gemm &l;
	const int lane, warp, g, q, rank;
	const uint32_t memory, full, empty;

	__device__ __forceinline__ explicit group_codes_block(const hzi_group_codes &p_)
		: p(p_), l(p_.g), lane(threadIdx.x % 32),
		  warp(__shfl_sync(~0u, threadIdx.x / 32, 0)), g(lane / 4), q(lane % 4),
		  rank((int)cluster_rank()), memory(shared_address(shared_start())),
		  full(memory + STAGES * STAGE), empty(full + 8 * STAGES)
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
		cluster_begin();
		if (warp >= PANELS) {
			setmaxnreg_dec<24>();
			if (lane == 0)
				produce(warp - PANELS);
			__syncwarp();
		} else {
			setmaxnreg_inc<240>();
			consume();
		}
		cluster_end();
	}

private:
	/* ---- Copies -------------------------------------------------------------------------- */

	/* One lane of each of four warps copies the same piece of every chunk. */
	__device__ __forceinline__ void produce(int piece) const
	{
		constexpr int half = ROWS / 2;
		const int bytes = X + PANELS * (W + UNITS * 64 + (l.l.zero_at ? UNITS * 32 : 0));
		const int step = l.group_shift > 7 ? 0 : UNITS;	/* groups of a piece */
		uint32_t parities = 3;
		int second = 0;			/* a chunk begins in stage 4, not 0 */

		for (int t = blockIdx.x / 2; t < p.tiles; t += gridDim.x / 2) {
			const int row = t % p.tiles_m * ROWS + rank * half;
			const int panel = (t / p.tiles_m * 2 + rank) * PANELS;

#pragma unroll 1
			for (int chunk = 0; chunk < l.pieces; chunk += CHUNK_STAGES) {
				const int i = chunk + piece;
				const int slot = piece + second * CHUNK_STAGES;
				const uint32_t stage = memory + slot * STAGE, bar = full + 8 * slot;

				if (i < l.pieces) {
					mbarrier_wait(empty + 8 * slot, parities >> second & 1);
					mbarrier_expect_tx(bar, bytes);
					tma_load_2d_multicast(3, stage + rank * (X / 2), p.x,
							      i * HZI_GROUP_UNIT, row, bar);
					tma_load_3d(stage + X, p.w, 0, i * (W / 128), panel, bar);
					tma_load_2d(stage + SCALES, p.scales, i * step * 64, panel,
						    bar);
					if (UNITS == 4)
						tma_load_2d(stage + SCALES + 1024, p.scales,
							    i * step * 64 + 128, panel, bar);
					if (l.l.zero_at)
						tma_load_2d(stage + ZEROS, p.zeros, i * step * 32,
							    panel, bar);
					parities ^= 1 << second;
				}
				second ^= STAGES / CHUNK_STAGES - 1;
			}
		}
	}

	/* `offset` from the beginning of a TMA tile with rows of that many bytes, swizzled */
	__device__ __forceinline__ static int swizzled(int row_bytes, int offset)
	{
		return offset ^ (offset >> 3 & row_bytes - 16);
	}

	/* ---- Products ------------------------------------------------------------------------ */

	/* What a thread has of a tile: y and the sum of 512 of k, of columns g and g + 8 */
	struct sums {
		float y[ROWS / 2], chunk[ROWS / 2];
		float x_scale[ROWS / 4], least;	/* of rows 8 i + 2 q + e; their least magnitude */
	};

	__device__ __forceinline__ void load_scales(sums &s, int row0) const
	{
		const int last = (int)l.rows - 1;

		s.least = INFINITY;
#pragma unroll
		for (int i = 0; i < ROWS / 8; i++) {
			const int row = row0 + 8 * i + 2 * q;
			float2 r = {1, 1};

			if (l.x_given)
				r = {l.x_given[min(row, last)], l.x_given[min(row + 1, last)]};
			s.x_scale[2 * i] = r.x;
			s.x_scale[2 * i + 1] = r.y;
			s.least = fminf(s.least, fminf(fabsf(r.x), fabsf(r.y)));
		}
	}

	/* What a lane reads of a unit: words of codes of two lanes, scales and zero points */
	struct stored {
		uint32_t low[WORDS * STEPS], high[WORDS * STEPS], zeros;
		float scale[2];
	};

	/* The A operand of a unit, and the scales of columns g and g + 8 */
	struct weights {
		uint32_t a[STEPS][4];
		float scale[2];
	};

	__device__ __forceinline__ void consume(void) const
	{
		const group_results<ROWS> results(l, p.y_vectorized);
		uint32_t parities = 0;		/* of the phase of each stage that comes next */
		int begin = 0;			/* the stage in which a chunk begins */
		stored ahead;
		weights w;
		sums s;

		load_scales(s, blockIdx.x / 2 % p.tiles_m * ROWS);
		mbarrier_wait(full, 0);
		for (int t = blockIdx.x / 2; t < p.tiles; t += gridDim.x / 2) {
			const int row0 = t % p.tiles_m * ROWS;
			const bool more = t + gridDim.x / 2 < p.tiles;

			load(ahead, memory + begin * STAGE, 0);
			decode(w, ahead, normal(ahead, s.least));
#pragma unroll
			for (int i = 0; i < ROWS / 2; i++)
				s.y[i] = 0;
#pragma unroll 1
			for (int u = 0; u < p.units; u += CHUNK) {
				const int count = min(CHUNK, p.units - u);
				const bool follows = more || u + CHUNK < p.units;

				unit<true>(s, w, parities, begin, 0, count, follows);
#pragma unroll 1
				for (int v = 1; v < count; v++)
					unit<false>(s, w, parities, begin, v, count, follows);
				begin ^= STAGES - CHUNK_STAGES;
#pragma unroll
				for (int i = 0; i < ROWS / 2; i++)
					s.y[i] = __fadd_rn(s.y[i], s.chunk[i]);
			}
			if (more)
				load_scales(s, (t + gridDim.x / 2) % p.tiles_m * ROWS);
			results.put(s.y, shared_start() + STAGES * STAGE + 1024 +
					 warp / 4 * HZI_GROUP_RESULTS_BYTES(ROWS), row0,
				    ((t / p.tiles_m * 2 + rank) * PANELS + warp / 4 * 4) *
					    HZI_GROUP_COLUMNS);
		}
	}

	/*
	 * Unit v of `count` of a chunk, whose first piece is in stage `begin`; then w is that of
	 * the next one, which `follows` the chunk or not. FIRST: v is 0
	 */
	template <bool FIRST>
	__device__ __forceinline__ void unit(sums &s, weights &w, uint32_t &parities, int begin,
					     int v, int count, bool follows) const
	{
		const int slot = begin + v / UNITS, part = v % UNITS;
		const bool inside = v < CHUNK - 1 && v + 1 < count;
		const int next = inside ? begin + (v + 1) / UNITS : begin ^ (STAGES - CHUNK_STAGES);
		const uint32_t stage = memory + slot * STAGE;
		const uint64_t b = wgmma_desc_k(stage) + part * (STEPS * 2);
		const bool last = part == UNITS - 1 || !inside;
		const float scale[2] = {w.scale[0], w.scale[1]};
		int32_t acc[ROWS / 2];
		stored ahead;
		int begun = 0;

		if constexpr (!S4 && KIND == HZI_GROUP_U4)
			begun = subtract_far(acc, b, stage + ZEROS, part);
		wgmma_fence();
#pragma unroll
		for (int i = 0; i < STEPS; i++)
			wgmma_rs_s8(acc, w.a[i], b + 2 * i, begun | i);
		wgmma_commit();
		if (last)
			parities ^= 1 << slot;
		if (inside || follows)
			mbarrier_wait(full + 8 * next, parities >> next & 1);
		wgmma_wait<0>();
		wgmma_keep(acc);
		if (last) {
			if (lane < 2)
				mbarrier_arrive_cluster(cluster_map(empty + 8 * slot, lane));
			__syncwarp();
		}
		/* Behind the last unit of a tile these are not used. */
		load(ahead, memory + next * STAGE, inside ? (v + 1) % UNITS : 0);
		add<FIRST>(s, acc, scale);
		decode(w, ahead, normal(ahead, s.least));
	}

	__device__ __forceinline__ static int zeros_at(int panel, int part, int pair)
	{
		return swizzled(ZEROS_ROW, panel * ZEROS_ROW + part * 32 + pair * 4);
	}

	/*
	 * w - zero does not fit 8 bits for all codes if a zero point is below -112 or above 128:
	 * decode() then subtracts the nearest of these. If the warpgroup has such a zero point, this
	 * multiplies x by the rest of all of them, so that acc holds these sums, and returns 1.
	 */
	__device__ __forceinline__ int subtract_far(int32_t (&acc)[ROWS / 2], uint64_t b,
						    uint32_t zeros, int part) const
	{
		uint32_t pair, a[4];

		if (!l.l.zero_at)
			return 0;
		pair = load_zeros(zeros + zeros_at((warp & ~3) + lane / 8, part, lane % 8));
		if (!__any_sync(~0u, group_zero(pair, 0) != near(group_zero(pair, 0)) ||
				     group_zero(pair, 1) != near(group_zero(pair, 1))))
			return 0;
		pair = load_zeros(zeros + zeros_at(warp, part, g));
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int z = group_zero(pair, i % 2);

			a[i] = (near(z) - z & 255) * 0x01010101;
		}
		wgmma_fence();
#pragma unroll
		for (int i = 0; i < STEPS; i++)
			wgmma_rs_s8(acc, a, b + 2 * i, i);
		wgmma_commit();
		wgmma_wait<0>();
		wgmma_keep(acc);
		return 1;
	}

	/* The zero point that is subtracted from u, 0 to 15, in 8 bits */
	__device__ __forceinline__ static int near(int zero)
	{
		return max(min(zero, 128), -112);
	}

	__device__ __forceinline__ static void load_two(uint32_t *v, uint32_t at)
	{
		asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(at)
			     : "memory");
	}

	__device__ __forceinline__ static uint32_t load_zeros(uint32_t at)
	{
		uint32_t pair;

		asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(at) : "memory");
		return pair;
	}

	template <bool FIRST>
	__device__ __forceinline__ static void add(sums &s, const int32_t (&acc)[ROWS / 2],
						   const float (&w_scale)[2])
	{
#pragma unroll
		for (int i = 0; i < ROWS / 2; i++) {
			const float by = __fmul_rn(s.x_scale[i / 4 * 2 + i % 2],
						   w_scale[i / 2 % 2]);
			const float t = __fmul_rn((float)acc[i], by);

			s.chunk[i] = FIRST ? t : __fadd_rn(s.chunk[i], t);
		}
	}

	__device__ __forceinline__ void load(stored &to, uint32_t stage, int part) const
	{
		const int row = UNITS == 1 ? warp : part / 2 * PANELS + warp;
		const int scales = swizzled(SCALES_ROW, row * SCALES_ROW + part % 2 * 64 + g * 8);

		asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
			     : "=f"(to.scale[0]), "=f"(to.scale[1])
			     : "r"(stage + SCALES + scales) : "memory");
#pragma unroll
		for (int i = 0; i < WORDS * STEPS; i += 4) {
			/* 512 bytes are a step, or two of 4 bits, which take turns in 16 bytes. */
			const int block = (part * STEPS * WORDS + i) / 4;
			const int at = swizzled(128, block * 512 + (g * 4 + q % 2 * 2) * 16);
			const uint32_t from = stage + X + warp * W + at;

			if constexpr (WORDS * STEPS >= 4) {
				shared_load(to.low + i, from);
				shared_load(to.high + i, from ^ 16);
			} else {
				load_two(to.low, from + part % 2 * 8);
				load_two(to.high, (from ^ 16) + part % 2 * 8);
			}
		}
		if (!S4 && KIND == HZI_GROUP_U4)
			to.zeros = l.l.zero_at ?
					   load_zeros(stage + ZEROS + zeros_at(warp, part, g)) :
					   (uint32_t)l.l.zero * 0x10001;
	}

	/* Whether dividing scales by 16 is exact, and so are their products with those of x */
	__device__ __forceinline__ static bool normal(const stored &c, float least)
	{
		const float size = fminf(fabsf(c.scale[0]), fabsf(c.scale[1]));

		return S4 && __all_sync(~0u, size >= NORMAL && size * least >= NORMAL);
	}

	/* is_normal: codes w - zero of columns g and g + 8 become 16 times as large. */
	__device__ __forceinline__ void decode(weights &to, const stored &from,
					       bool is_normal) const
	{
		auto &a = to.a;
		uint32_t words[WORDS * STEPS], less[2];

		/*
		 * Bytes that mma.sync with a permuted x takes are those of k 2 q, 2 q + 8, 2 q + 1
		 * and 2 q + 9; here a lane takes k 4 q to 4 q + 3.
		 */
#pragma unroll
		for (int i = 0; i < WORDS * STEPS; i++)
			words[i] = __byte_perm(from.low[i], from.high[i], q < 2 ? 0x6420 : 0x7531);
		to.scale[0] = from.scale[0];
		to.scale[1] = from.scale[1];
		if constexpr (KIND == HZI_GROUP_U8) {
#pragma unroll
			for (int i = 0; i < 4 * STEPS; i++)
				a[i / 4][i % 4] = words[i] ^ 0x80808080;
			return;
		}
		if (is_normal) {
#pragma unroll
			for (int i = 0; i < 4 * STEPS; i++) {
				const uint32_t w = words[i / 4 * 2 + i % 2];

				a[i / 4][i % 4] = high_codes(i % 4 < 2 ? w << 4 : w);
			}
			to.scale[0] *= 0.0625f;
			to.scale[1] *= 0.0625f;
			return;
		}
		/* u + 128 - zero is 0 to 255. */
#pragma unroll
		for (int h = 0; h < 2; h++)
			less[h] = (128 - near(S4 ? 8 : group_zero(from.zeros, h))) * 0x01010101;
#pragma unroll
		for (int i = 0; i < 4 * STEPS; i++) {
			const uint32_t w = words[i / 4 * 2 + i % 2];

			a[i / 4][i % 4] = ((i % 4 < 2 ? w : w >> 4) & 0x0f0f0f0f) + less[i % 2] ^
					  0x80808080;
		}
	}

	/* The high halves of bytes, with a flipped sign: (w & 0xf0f0f0f0) ^ 0x80808080 */
	__device__ __forceinline__ static uint32_t high_codes(uint32_t w)
	{
		uint32_t r;

		asm("lop3.b32 %0, %1, 0xf0f0f0f0, 0x80808080, 0x6a;" : "=r"(r) : "r"(w));
		return r;
	}
};

#endif

#define KERNEL(name, ...) \
	extern "C" __global__ void __launch_bounds__(HZI_GROUP_CODES_THREADS, 1) \
	name(const __grid_constant__ hzi_group_codes p) \
	HZ_HOPPER_BODY((group_codes_block<__VA_ARGS__>(p).run()))

KERNEL(qgemm_group_codes_s4_128, HZI_GROUP_U4, true, 128)
KERNEL(qgemm_group_codes_s4_64, HZI_GROUP_U4, true, 64)
KERNEL(qgemm_group_codes_s4_32, HZI_GROUP_U4, true, 32)
KERNEL(qgemm_group_codes_u4_128, HZI_GROUP_U4, false, 128)
KERNEL(qgemm_group_codes_u4_64, HZI_GROUP_U4, false, 64)
KERNEL(qgemm_group_codes_u4_32, HZI_GROUP_U4, false, 32)
KERNEL(qgemm_group_codes_s8_128, HZI_GROUP_U8, false, 128)
KERNEL(qgemm_group_codes_s8_64, HZI_GROUP_U8, false, 64)
KERNEL(qgemm_group_codes_s8_32, HZI_GROUP_U8, false, 32)
