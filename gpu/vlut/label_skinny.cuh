/*
 * label_skinny.cuh - skinny GEMM of labelled E8 codes and a few columns of x
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block has an SM. Its two groups of WARPS warps multiply tiles of 16 rows in turns by all of x.
 * The warps of a group split k. Each warp keeps the next AHEAD chunks of codes in registers, of
 * which it loads the first ones before the previous kernel has ended. With EARLY it then also
 * decodes these and loads those that follow. Warp i of both groups, a pair, has the same part of k
 * and converts half of its x each to f16 in shared memory, in the order in which lanes use it as
 * the B operand of mma.m16n8k16. A warp then decodes chunk by chunk to A operands. Accumulators of
 * the warps are added in order.
 *
 * x of bf16 and f32 is multiplied by a power of two, which is 1 unless a pair's part of a column
 * has numbers too large for f16, or none above 2^-10. f32 is two columns, f16(x) and what that
 * leaves.
 */
#ifndef HZI_GPU_VLUT_LABEL_SKINNY_CUH
#define HZI_GPU_VLUT_LABEL_SKINNY_CUH

#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/vlut/label.cuh"
#include "gpu/vlut/table_s8.cuh"

/*
 * Shared memory of a block: partial sums of two tiles of each group, the largest |x| of each lane,
 * then x: for each chunk, halves 0 to 3 (blocks p and p + 2, p = 0 or 1, coordinates 0 to 3 or 4 to
 * 7) of [column][t] of 16 bytes. Of 8 columns column c is at c ^ p, so that lanes that store both
 * have no bank conflicts.
 */
template <int SHAPING, int T_BITS, bool BITS_16, int COLUMNS, int WARPS, int AHEAD>
struct label_skinny_block {
	static constexpr int BYTES = HZI_VLUT_LABEL_BYTES(T_BITS), ROWS = HZI_VLUT_LABEL_ROWS,
			     CHUNK = HZI_VLUT_LABEL_CHUNK;
	static constexpr int SUMS = ROWS * COLUMNS;	/* of a warp and tile */
	static constexpr int APART = 2;			/* accumulators that do not wait */
	/* Worth it where decoding takes long: 4096 x 4096 of CUBE takes 4.8 us so, not 4.6. */
	static constexpr bool EARLY = SHAPING == HZI_SHAPING_D8STAR && BITS_16 && COLUMNS == 1;
	static constexpr int GROUPS = HZI_VLUT_LABEL_GROUPS, GROUP_THREADS = 32 * WARPS;
	static constexpr int GROUP_SUMS = 2 * WARPS * SUMS;	/* of two tiles */

	/* Codes of a lane: rows g and g + 8 */
	struct codes {
		uint32_t low[4], high[4], t;
	};

	/* A operands of a chunk: blocks 0 and 2 of a lane, then 1 and 3 */
	struct values {
		uint32_t low[2][8], high[2][8];
	};

	const hzi_vlut_label_skinny &p;
	const int lane, warp, group, g, t;
	const int begin, n;		/* chunks of this warp */
	const int staged, n_staged;	/* those of them whose x it stages */
	float *const partials;
	uint4 *const x_memory;		/* of this warp */

	__device__ __forceinline__ explicit label_skinny_block(const hzi_vlut_label_skinny &p_)
		: p(p_), lane(threadIdx.x % 32), warp(threadIdx.x / 32 % WARPS),
		  group(threadIdx.x / GROUP_THREADS), g(lane / 4), t(lane % 4),
		  begin(p.chunks * warp / WARPS), n(p.chunks * (warp + 1) / WARPS - begin),
		  staged(group * ((n + 1) / 2)), n_staged((n + 1 - group) / 2),
		  partials(shared_floats() + group * GROUP_SUMS),
		  x_memory((uint4 *)(largest() + GROUPS * GROUP_THREADS) + begin * (16 * COLUMNS))
	{
	}

	__device__ __forceinline__ void run(void) const
	{
		const int64_t tile_bytes = (int64_t)p.chunks * BYTES;
		const int first = blockIdx.x + group * gridDim.x, step = GROUPS * gridDim.x;
		const uint8_t *chunk = p.packed + first * tile_bytes + begin * BYTES;
		/* The column and row whose sum this thread stores: SUMS <= threads of a group */
		const int thread = threadIdx.x % GROUP_THREADS, column = thread % COLUMNS;
		const int64_t rows_apart = (int64_t)step * ROWS;
		int64_t row = (int64_t)first * ROWS + thread / COLUMNS;
		int64_t y = row * p.y_i + column / p.parts * p.y_b;
		const float *row_scale = p.row_scale + row * p.row_scale_step;
		const bool stores = thread < SUMS && column < p.batch * p.parts &&
				    !(p.parts == 2 && column % 2);
		/* x of 16 bits that this lane stages first */
		int k = (begin + staged) * CHUNK +
			(COLUMNS == 8 ? lane / 2 % 4 * 32 + lane % 2 * 8 :
					set() / 2 * CHUNK + t * 32 + set() % 2 * 8);
		const uint16_t *x = (const uint16_t *)p.x +
				    (COLUMNS == 8 ? lane / 8 : vector()) * p.x_b + k;
		codes ring[AHEAD] = {};
		values early[AHEAD];
		const bool is_early = EARLY && n >= AHEAD && first < p.tiles;
		int shift, slot = 0;

		pdl_launch_dependents();
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			load(ring[i], chunk + i * BYTES, i < n && first < p.tiles);
		if constexpr (EARLY) {
			const uint8_t *const next =
				first + step < p.tiles ? chunk + step * tile_bytes : NULL;

#pragma unroll
			for (int i = 0; i < AHEAD && is_early; i++) {
				decode(early[i], ring[i]);
				refill(ring[i], i, n, chunk + AHEAD * BYTES, next);
			}
		}
		/* Computed here, not when the previous kernel has ended */
		asm volatile("" : "+l"(y), "+l"(row_scale), "+l"(x), "+r"(k));
		pdl_wait();
		shift = stage_x(x, k);
		pair_sync();
		float acc[APART][4] = {};
		int done = is_early ? AHEAD : 0;	/* chunks of the tile */

		if constexpr (EARLY) {
#pragma unroll
			for (int i = 0; i < AHEAD && is_early; i++)
				multiply_values(acc, early[i], x_of_lane() + i * 16 * COLUMNS);
		}
#pragma unroll 1
		for (int tile = first; tile < p.tiles; tile += step) {
			const uint8_t *const next =
				tile + step < p.tiles ? chunk + step * tile_bytes : NULL;
			const bool stored = stores && row < p.rows;
			/* Loaded long before it is needed */
			const float scale = stored && p.row_scale ? *row_scale : 1;

			multiply(acc, ring, chunk, next, done);
			store_partials(acc, shift, slot);
			done = 0;
#pragma unroll
			for (int i = 0; i < 4 * APART; i++)
				acc[i / 4][i % 4] = 0;
			bar_sync(1 + WARPS + group, GROUP_THREADS);
			if (stored)
				store_any(p.y_dtype, p.y, y,
					  add_partials(slot) * p.scale * scale);
			slot ^= WARPS * SUMS;
			chunk = next;
			row += rows_apart;
			row_scale += rows_apart * p.row_scale_step;
			y += rows_apart * p.y_i;
		}
	}

private:
	__device__ __forceinline__ static float *shared_floats(void)
	{
		extern __shared__ __align__(16) float label_shared[];

		return label_shared;
	}

	__device__ __forceinline__ static float *largest(void)
	{
		return shared_floats() + GROUPS * GROUP_SUMS;
	}

	__device__ __forceinline__ void pair_sync(void) const
	{
		bar_sync(1 + warp, 32 * GROUPS);
	}

	/* The larger one of what this lane and that of the other warp of the pair have */
	__device__ __forceinline__ float of_pair(float most) const
	{
		float *const at = largest() + lane + 32 * warp;

		at[group * GROUP_THREADS] = most;
		pair_sync();
		return fmaxf(most, at[(1 - group) * GROUP_THREADS]);
	}

	/* Loads a chunk if `some`, without a branch, which would keep chunks from overlapping. */
	__device__ __forceinline__ void load(codes &c, const uint8_t *chunk, bool some) const
	{
		asm volatile("{.reg .pred p; setp.ne.s32 p, %9, 0;"
			     "@p ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%8];"
			     "@p ld.global.cs.v4.u32 {%4, %5, %6, %7}, [%8 + 512];}"
			     : "+r"(c.low[0]), "+r"(c.low[1]), "+r"(c.low[2]), "+r"(c.low[3]),
			       "+r"(c.high[0]), "+r"(c.high[1]), "+r"(c.high[2]), "+r"(c.high[3])
			     : "l"(chunk + lane * 16), "r"((int)some));
		if constexpr (T_BITS == 4)
			asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; "
				     "@p ld.global.cs.u32 %0, [%1];}"
				     : "+r"(c.t) : "l"(chunk + 1024 + lane * 4), "r"((int)some));
		else
			asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; "
				     "@p ld.global.cs.u16 %0, [%1];}"
				     : "+r"(c.t) : "l"(chunk + 1024 + lane * 2), "r"((int)some));
	}

	/* Leaves the first chunks of the next tile in the ring, if there is one. */
	__device__ __forceinline__ void multiply(float (&acc)[APART][4], codes (&ring)[AHEAD],
						 const uint8_t *chunk, const uint8_t *next,
						 int done) const
	{
		const uint4 *x = x_of_lane() + done * 16 * COLUMNS;
		int left = n - done;

		chunk += done * BYTES;
		/* As long as all chunks that are loaded are of this tile: without selections */
#pragma unroll 1
		for (; left >= 2 * AHEAD; left -= AHEAD) {
			chunk += AHEAD * BYTES;
#pragma unroll
			for (int i = 0; i < AHEAD; i++) {
				multiply_chunk(acc, ring[i], x + i * 16 * COLUMNS);
				load(ring[i], chunk + i * BYTES, true);
			}
			x += AHEAD * 16 * COLUMNS;
		}
#pragma unroll 1
		for (; left > 0; left -= AHEAD) {
			chunk += AHEAD * BYTES;
#pragma unroll
			for (int i = 0; i < AHEAD; i++) {
				if (i == 0 || i < left) {
					multiply_chunk(acc, ring[i], x + i * 16 * COLUMNS);
					refill(ring[i], i, left, chunk, next);
				}
			}
			x += AHEAD * 16 * COLUMNS;
		}
	}

	__device__ __forceinline__ void refill(codes &c, int i, int left, const uint8_t *chunk,
					       const uint8_t *next) const
	{
		const bool inside = i + AHEAD < left;

		load(c, (inside ? chunk : next) + i * BYTES, inside || next);
	}

	__device__ __forceinline__ const uint4 *x_of_lane(void) const
	{
		return x_memory + (COLUMNS == 8 ? lane : g % COLUMNS * 4 + t);
	}

	__device__ __forceinline__ void decode(values &v, const codes &c) const
	{
		const label_row<SHAPING> low(c.low, label_t<T_BITS>(c.t, 0), p.scales),
			high(c.high, label_t<T_BITS>(c.t, 1), p.scales);

#pragma unroll
		for (int i = 0; i < 2; i++) {
			low.points(i, v.low[i]);
			high.points(i, v.high[i]);
		}
	}

	__device__ __forceinline__ void multiply_chunk(float (&acc)[APART][4], const codes &c,
						       const uint4 *x) const
	{
		const label_row<SHAPING> low(c.low, label_t<T_BITS>(c.t, 0), p.scales),
			high(c.high, label_t<T_BITS>(c.t, 1), p.scales);

#pragma unroll
		for (int i = 0; i < 2; i++) {
			uint32_t a[8], b[8];

			low.points(i, a);
			high.points(i, b);
			multiply_half(acc, a, b, x, i);
		}
	}

	__device__ __forceinline__ void multiply_values(float (&acc)[APART][4], const values &v,
							const uint4 *x) const
	{
#pragma unroll
		for (int i = 0; i < 2; i++)
			multiply_half(acc, v.low[i], v.high[i], x, i);
	}

	__device__ __forceinline__ void multiply_half(float (&acc)[APART][4],
						      const uint32_t (&a)[8],
						      const uint32_t (&b)[8], const uint4 *x,
						      int i) const
	{
		const int exchange = COLUMNS == 8 ? 4 - 2 * (lane & 4) : 0;

#pragma unroll
		for (int j = 0; j < 2; j++) {
			const uint4 v = x[(2 * i + j) * (4 * COLUMNS) + i * exchange];

			mma_m16n8k16<HZ_F16>(acc[0], a[4 * j], b[4 * j], a[4 * j + 1],
					     b[4 * j + 1], v.x, v.y);
			mma_m16n8k16<HZ_F16>(acc[1], a[4 * j + 2], b[4 * j + 2], a[4 * j + 3],
					     b[4 * j + 3], v.z, v.w);
		}
	}

	/* ---- x ------------------------------------------------------------------------------- */

	/*
	 * Eight values of a vector of x from k on, 0 beyond the last; f32 in pieces of 16 bytes, or
	 * any value by value
	 */
	template <bool F32_PIECES>
	__device__ __forceinline__ void load_x(float (&v)[8], int vector, int k) const
	{
		const int64_t at = k * p.x_k + vector * p.x_b;
		const bool in = vector < p.batch && k < p.k;

		if constexpr (F32_PIECES) {
			const float4 *const src = (const float4 *)((const float *)p.x + at);

#pragma unroll
			for (int i = 0; i < 2; i++) {
				const float4 f = in ? __ldg(src + i) : float4();

				v[4 * i] = f.x;
				v[4 * i + 1] = f.y;
				v[4 * i + 2] = f.z;
				v[4 * i + 3] = f.w;
			}
		} else {
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[i] = in && k + i < p.k ?
				       load_any(p.x_dtype, p.x, at + i * p.x_k) : 0;
		}
	}

	/* log2 of the columns of a vector, and of the vectors of the kernel */
	__device__ __forceinline__ int parts_log2(void) const
	{
		return BITS_16 || COLUMNS == 1 ? 0 : p.parts - 1;
	}

	__device__ __forceinline__ int vectors_log2(void) const
	{
		return (COLUMNS == 8 ? 3 : COLUMNS - 1) - parts_log2();
	}

	/* Of the four lanes that have the vector of a column, the first */
	__device__ __forceinline__ int lane_of(int column) const
	{
		return (column >> parts_log2() & ((1 << vectors_log2()) - 1)) * 4;
	}

	/* The vector that this lane stages, and which of its parts: set(), set() + SETS, ... */
	static constexpr int SETS = 8 / COLUMNS;

	__device__ __forceinline__ int vector(void) const
	{
		return lane / 4 % COLUMNS;
	}

	__device__ __forceinline__ int set(void) const
	{
		return lane / 4 / COLUMNS;
	}

	/*
	 * Stores this warp's part of x. If x is of 16 bits, this lane's first values are at x, and
	 * at k. Returns the power of two by which the vector of this lane, that of lanes
	 * lane_of() + 0 to 3, has been multiplied.
	 */
	__device__ __forceinline__ int stage_x(const uint16_t *x, int k) const
	{
		const int c = lane / 4 & ((1 << vectors_log2()) - 1);
		const int first = lane / 4 >> vectors_log2(), sets = 8 >> vectors_log2();
		int shift = 0;

		if constexpr (BITS_16 && COLUMNS == 8)
			return stage_8_columns(x, k);
		if (BITS_16 && p.x_dtype == HZ_F16) {
			stage_16bit<false>(x, k, 1);
			return 0;
		}
		for (int pass = 0; pass < 2; pass++) {
			const float factor = power_of_2(shift);
			float most;

			if constexpr (BITS_16)
				most = stage_16bit<true>(x, k, factor);
			else if (p.x_vectorized && p.x_dtype == HZ_F32)
				most = stage_all<true>(c, first, sets, factor);
			else
				most = stage_all<false>(c, first, sets, factor);
			if (pass)
				break;
			if (COLUMNS == 1) {
				/* Bits of positive numbers have their order. */
				most = __uint_as_float(
					__reduce_max_sync(~0u, __float_as_uint(most)));
			} else {
				most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
				most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
				for (int l = 4 << vectors_log2(); l < 32; l *= 2)
					most = fmaxf(most, __shfl_xor_sync(~0u, most, l));
			}
			shift = shift_of(of_pair(most));
			if (!__any_sync(~0u, shift != 0))
				break;
		}
		return shift;
	}

	/* log2 of what brings a pair's part of a vector, whose largest |x| is `most`, to f16 */
	__device__ __forceinline__ static int shift_of(float most)
	{
		const bool fits = most >= 0x1p-10f && most < 0x1p15f;

		return most < INFINITY && most > 0 && !fits ?
		       max(-126, min(126, 127 - (int)(__float_as_uint(most) >> 23))) : 0;
	}

	__device__ __forceinline__ uint4 *x_slot(int c, int chunk, int pair) const
	{
		return x_memory + (staged + chunk) * (16 * COLUMNS) + pair * (8 * COLUMNS) +
		       (COLUMNS == 8 ? c ^ pair : c) * 4 + t;
	}

	/*
	 * Blocks `pair` and pair + 2 of the lane's four: coordinate i of both is word i. Of aligned
	 * vectors of f16 or bf16, which are converted; loads of several parts are in flight
	 * together. Returns the largest |x| of bf16, NaN left out.
	 */
	template <bool BF16>
	__device__ __forceinline__ float stage_16bit(const uint16_t *x, int k, float factor) const
	{
		constexpr int PARTS = 2;	/* in flight */
		constexpr int CHUNKS = PARTS * SETS / 2;
		const bool in = vector() < p.batch;
		uint4 *dst = x_slot(vector(), set() / 2, set() % 2);
		uint32_t most = 0;

#pragma unroll 1
		for (int left = 2 * n_staged - set(); left > 0; left -= PARTS * SETS) {
			uint4 a[PARTS], b[PARTS];

#pragma unroll
			for (int j = 0; j < PARTS; j++) {
				const int at = j * SETS / 2 * CHUNK;
				const bool some = in && j * SETS < left;
				const uint4 *const src = (const uint4 *)(x + at);

				a[j] = some && k + at < p.k ? __ldg(src) : make_uint4(0, 0, 0, 0);
				b[j] = some && k + at + 16 < p.k ? __ldg(src + 2) :
								   make_uint4(0, 0, 0, 0);
			}
			x += CHUNKS * CHUNK;
			k += CHUNKS * CHUNK;
#pragma unroll
			for (int j = 0; j < PARTS; j++) {
				uint4 *const to = dst + j * SETS / 2 * 16 * COLUMNS;
				uint32_t w[8];

				pair_up<BF16>(w, a[j], b[j], factor, most);
				if (j * SETS < left) {
					to[0] = make_uint4(w[0], w[1], w[2], w[3]);
					to[4 * COLUMNS] = make_uint4(w[4], w[5], w[6], w[7]);
				}
			}
			dst += CHUNKS * 16 * COLUMNS;
		}
		return fmaxf(bf16_low(most), bf16_high(most));
	}

	/* w[i] = coordinate i of a and b as f16, times factor. most: largest |x| of bf16 so far */
	template <bool BF16>
	__device__ __forceinline__ static void pair_up(uint32_t (&w)[8], const uint4 &a,
						       const uint4 &b, float factor, uint32_t &most)
	{
		const uint32_t v[2][4] = {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};

#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (BF16) {
				w[2 * i] = to_f16x2(bf16_low(v[0][i]) * factor,
						    bf16_low(v[1][i]) * factor);
				w[2 * i + 1] = to_f16x2(bf16_high(v[0][i]) * factor,
							bf16_high(v[1][i]) * factor);
				most = max_x2<HZ_BF16>(most,
						       max_x2<HZ_BF16>(v[0][i] & 0x7fff7fff,
								       v[1][i] & 0x7fff7fff));
			} else {
				w[2 * i] = __byte_perm(v[0][i], v[1][i], 0x5410);
				w[2 * i + 1] = __byte_perm(v[0][i], v[1][i], 0x7632);
			}
		}
	}

	/*
	 * stage_16bit() for 8 columns: lanes 8 v to 8 v + 7 have both pairs and all t of vectors v
	 * and v + 4, so that each load reads whole sectors of few lines.
	 */
	template <bool BF16>
	__device__ __forceinline__ void stage_columns(const uint16_t *x, int k,
						      const float (&factor)[2],
						      uint32_t (&most)[2]) const
	{
		constexpr int CHUNKS = 2;	/* in flight */
		uint4 *dst = x_memory + staged * (16 * COLUMNS) + lane % 2 * (8 * COLUMNS) +
			     (lane / 8 ^ lane % 2) * 4 + lane / 2 % 4;

#pragma unroll 1
		for (int left = n_staged; left > 0; left -= CHUNKS) {
			uint4 a[CHUNKS][2], b[CHUNKS][2];

#pragma unroll
			for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
				for (int i = 0; i < 2; i++) {
					const bool some = j < left && lane / 8 + 4 * i < p.batch;
					const uint4 *const src = (const uint4 *)
						(x + j * CHUNK + 4 * i * p.x_b);
					const int at = k + j * CHUNK;

					a[j][i] = some && at < p.k ? __ldg(src) :
								     make_uint4(0, 0, 0, 0);
					b[j][i] = some && at + 16 < p.k ? __ldg(src + 2) :
									  make_uint4(0, 0, 0, 0);
				}
			}
			x += CHUNKS * CHUNK;
			k += CHUNKS * CHUNK;
#pragma unroll
			for (int j = 0; j < CHUNKS; j++) {
#pragma unroll
				for (int i = 0; i < 2; i++) {
					uint4 *const to = dst + j * 16 * COLUMNS + 16 * i;
					uint32_t w[8];

					pair_up<BF16>(w, a[j][i], b[j][i], factor[i], most[i]);
					if (j < left) {
						to[0] = make_uint4(w[0], w[1], w[2], w[3]);
						to[4 * COLUMNS] =
							make_uint4(w[4], w[5], w[6], w[7]);
					}
				}
			}
			dst += CHUNKS * 16 * COLUMNS;
		}
	}

	/* stage_x() for 8 columns of 16 bits */
	__device__ __forceinline__ int stage_8_columns(const uint16_t *x, int k) const
	{
		float factor[2] = {1, 1};
		uint32_t most[2] = {};

		if (p.x_dtype == HZ_F16) {
			stage_columns<false>(x, k, factor, most);
			return 0;
		}
		stage_columns<true>(x, k, factor, most);
#pragma unroll
		for (int l = 1; l < 8; l *= 2) {
			most[0] = max_x2<HZ_BF16>(most[0], __shfl_xor_sync(~0u, most[0], l));
			most[1] = max_x2<HZ_BF16>(most[1], __shfl_xor_sync(~0u, most[1], l));
		}
		/* Of vector lane / 4 */
		const uint32_t low = __shfl_sync(~0u, most[0], lane % 16 / 4 * 8),
			       high = __shfl_sync(~0u, most[1], lane % 16 / 4 * 8),
			       mine = lane < 16 ? low : high;
		const int shift = shift_of(of_pair(fmaxf(bf16_low(mine), bf16_high(mine))));

		if (__any_sync(~0u, shift)) {
			factor[0] = power_of_2(__shfl_sync(~0u, shift, lane / 8 * 4));
			factor[1] = power_of_2(__shfl_sync(~0u, shift, lane / 8 * 4 + 16));
			stage_columns<true>(x, k, factor, most);
		}
		return shift;
	}

	/* The same for any x, times factor. Returns the largest |x|, NaN left out. */
	template <bool F32_PIECES>
	__device__ __forceinline__ float stage(int c, int chunk, int pair, float factor) const
	{
		const int k = (begin + staged + chunk) * CHUNK + t * 32 + pair * 8;
		uint4 *const dst = x_slot(c << parts_log2(), chunk, pair);
		float a[8], b[8], most = 0;
		uint32_t w[8];

		load_x<F32_PIECES>(a, c, k);
		load_x<F32_PIECES>(b, c, k + 16);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			most = fmaxf(most, fmaxf(fabsf(a[i]), fabsf(b[i])));
			a[i] = a[i] * factor;
			b[i] = b[i] * factor;
			w[i] = to_f16x2(a[i], b[i]);
		}
		dst[0] = make_uint4(w[0], w[1], w[2], w[3]);
		dst[4 * COLUMNS] = make_uint4(w[4], w[5], w[6], w[7]);
		if (!parts_log2())
			return most;
#pragma unroll
		for (int i = 0; i < 8; i++) {
			/* Inf has no remainder. */
			const float low = fabsf(a[i]) < INFINITY ? a[i] - f16_low(w[i]) : 0;
			const float high = fabsf(b[i]) < INFINITY ? b[i] - f16_high(w[i]) : 0;

			w[i] = to_f16x2(low, high);
		}
		uint4 *const second = x_slot((c << parts_log2()) + 1, chunk, pair);

		second[0] = make_uint4(w[0], w[1], w[2], w[3]);
		second[4 * COLUMNS] = make_uint4(w[4], w[5], w[6], w[7]);
		return most;
	}

	/* stage() of all parts of a lane */
	template <bool F32_PIECES>
	__device__ __forceinline__ float stage_all(int c, int set, int sets, float factor) const
	{
		float most = 0;

#pragma unroll (F32_PIECES ? 2 : 1)
		for (int i = set; i < 2 * n_staged; i += sets)
			most = fmaxf(most, stage<F32_PIECES>(c, i / 2, i % 2, factor));
		return most;
	}

	/* ---- Sums ---------------------------------------------------------------------------- */

	/* |i| <= 126 */
	__device__ __forceinline__ static float power_of_2(int i)
	{
		return __int_as_float((127 + i) << 23);
	}

	/* slot: of two tiles in turns */
	__device__ __forceinline__ void store_partials(const float (&acc)[APART][4], int shift,
						       int slot) const
	{
		const bool shifted = !BITS_16 || p.x_dtype != HZ_F16;
		float *const sums = partials + slot + warp * SUMS;

#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int column = 2 * t + i % 2;
			float sum = acc[0][i] + acc[1][i];

			if (shifted)
				sum *= power_of_2(-__shfl_sync(~0u, shift, lane_of(column)));
			if (column < COLUMNS)
				sums[(g + i / 2 * 8) * COLUMNS + column] = sum;
		}
	}

	__device__ __forceinline__ float add_partials(int slot) const
	{
		const float *const sums = partials + slot + threadIdx.x % GROUP_THREADS;
		float s = 0;

#pragma unroll
		for (int w = 0; w < WARPS; w++) {
			s += sums[w * SUMS];
			if (COLUMNS > 1 && p.parts == 2)
				s += sums[w * SUMS + 1];
		}
		return s;
	}
};

#endif
