/*
 * group_one_row.cuh - one row of 16-bit floats by s4 weights, mma.sync of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block multiplies panels of 16 columns of W by x. Its warps split k. Each warp keeps the next
 * AHEAD pieces of W in registers, of whatever panel, and loads the first ones before the previous
 * kernel has ended. It copies its part of x to shared memory, in the order in which lanes use it as
 * the B operand of mma.m16n8k16. bf16 becomes f16 times a power of two, since decoding to f16 takes
 * fewer instructions; a warp whose part of x that does not hold exactly, or has Inf or NaN, decodes
 * to bf16. At the end the sums of the warps are added in order.
 */
#ifndef HZI_GPU_QGEMM_GROUP_ONE_ROW_CUH
#define HZI_GPU_QGEMM_GROUP_ONE_ROW_CUH

#include "gpu/device/shared.cuh"
#include "gpu/qgemm/group.cuh"

/*
 * Shared memory of a block: partial sums [panel][warp][column], then x: for each step [q] of 16
 * bytes, k 2 q, 2 q + 8, 2 q + 16 and 2 q + 24 of the step and the next one of each. GROUP: of bf16
 * scales; 0: f32 scales of 128.
 */
template <int DTYPE, int GROUP, int WARPS, int AHEAD>
struct group_one_row_block {
	static constexpr int PIECE = HZI_GROUP_PIECE_BYTES(HZI_GROUP_U4), UNIT = HZI_GROUP_UNIT;
	static constexpr int STEP = HZI_GROUP_STEP, COLUMNS = HZI_GROUP_COLUMNS;
	static constexpr int STEPS = UNIT / STEP;
	static constexpr int STEPS_OF_SCALE = GROUP ? GROUP / STEP : STEPS;
	static constexpr int SCALE_BYTES = GROUP ? HZI_GROUP_SHORT_BYTES(GROUP) : COLUMNS * 4;
	static constexpr int SCALE_WORDS = SCALE_BYTES / 32;

	/* Of a lane: words of columns g and g + 8 of each step, and their scales */
	struct codes {
		uint32_t w[8], scale[SCALE_WORDS];
	};

	/* Where the next piece is that this lane loads; `left`: pieces of its panel, `all` of all */
	struct place {
		const uint8_t *codes, *scales;
		int left, all;
	};

	const hzi_group_gemm &p;
	const int lane, warp, g, q;
	const int begin, n;		/* pieces of this warp */
	const int panels;		/* of this block */
	float *const partials;
	uint4 *const x_memory;		/* of this warp */

	__device__ __forceinline__ explicit group_one_row_block(const hzi_group_gemm &p_)
		: p(p_), lane(threadIdx.x % 32), warp(threadIdx.x / 32), g(lane / 4), q(lane % 4),
		  begin(p.pieces * warp / WARPS), n(p.pieces * (warp + 1) / WARPS - begin),
		  panels(((int)p.l.panels - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x),
		  partials(shared_floats()),
		  x_memory((uint4 *)(partials + panels * WARPS * COLUMNS) + begin * (STEPS * 4))
	{
	}

	__device__ __forceinline__ void run(void) const
	{
		const int64_t first = (int64_t)blockIdx.x * p.pieces + begin;
		place at = {p.packed + first * PIECE + lane * 16,
			    p.packed + (GROUP ? p.l.short_at : p.l.scale_at) +
				    first * SCALE_BYTES + g * (SCALE_BYTES / 8),
			    n, n * panels};
		const place from = at;
		codes ring[AHEAD] = {};
		int k = begin * UNIT + lane / 4 * STEP + q * 8, shift = 0;
		const uint16_t *x = (const uint16_t *)p.x + k;
		/* The column whose sum this thread adds */
		const int column = threadIdx.x % COLUMNS;
		int64_t j = ((int64_t)blockIdx.x + threadIdx.x / COLUMNS * gridDim.x) * COLUMNS + column;

		pdl_launch_dependents();
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			load(ring[i], at);
		/* Computed here, not when the previous kernel has ended */
		asm volatile("" : "+l"(x), "+r"(k), "+l"(j));
		pdl_wait();
		if (n == 0)
			clear();
		else if (stage_x(x, k, shift))
			multiply(ring, at, shift);
		else if (DTYPE == HZ_BF16)
			multiply_bf16(from);
		__syncthreads();
		for (int i = threadIdx.x; i < panels * COLUMNS; i += 32 * WARPS) {
			const float *const of = partials + i / COLUMNS * (WARPS * COLUMNS) + column;
			float sum = 0;

#pragma unroll
			for (int w = 0; w < WARPS; w++)
				sum += of[w * COLUMNS];
			group_put(p, 0, j, sum);
			j += (int64_t)(2 * WARPS) * gridDim.x * COLUMNS;
		}
	}

private:
	__device__ __forceinline__ static float *shared_floats(void)
	{
		extern __shared__ __align__(16) float group_one_row_shared[];

		return group_one_row_shared;
	}

	/* ---- W ------------------------------------------------------------------------------- */

	/* Loads a piece if there is one, without a branch, which would keep pieces from overlapping. */
	__device__ __forceinline__ void load(codes &c, place &at) const
	{
		const int some = at.all > 0;

		asm volatile("{.reg .pred p; setp.ne.s32 p, %9, 0;"
			     "@p ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%8];"
			     "@p ld.global.cs.v4.u32 {%4, %5, %6, %7}, [%8 + 512];}"
			     : "+r"(c.w[0]), "+r"(c.w[1]), "+r"(c.w[2]), "+r"(c.w[3]),
			       "+r"(c.w[4]), "+r"(c.w[5]), "+r"(c.w[6]), "+r"(c.w[7])
			     : "l"(at.codes), "r"(some));
		if constexpr (SCALE_WORDS == 4)
			asm volatile("{.reg .pred p; setp.ne.s32 p, %5, 0;"
				     "@p ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];}"
				     : "+r"(c.scale[0]), "+r"(c.scale[1]), "+r"(c.scale[2]),
				       "+r"(c.scale[3]) : "l"(at.scales), "r"(some));
		else if constexpr (SCALE_WORDS == 2)
			asm volatile("{.reg .pred p; setp.ne.s32 p, %3, 0;"
				     "@p ld.global.cs.v2.u32 {%0, %1}, [%2];}"
				     : "+r"(c.scale[0]), "+r"(c.scale[1])
				     : "l"(at.scales), "r"(some));
		else
			asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0;"
				     "@p ld.global.cs.u32 %0, [%1];}"
				     : "+r"(c.scale[0]) : "l"(at.scales), "r"(some));
		next_piece(at);
	}

	__device__ __forceinline__ void next_piece(place &at) const
	{
		const int64_t jump = (int64_t)gridDim.x * p.pieces - (n - 1);

		at.all--;
		at.left--;
		at.codes += at.left ? PIECE : jump * PIECE;
		at.scales += at.left ? SCALE_BYTES : jump * SCALE_BYTES;
		if (!at.left)
			at.left = n;
	}

	/* Scales of columns g and g + 8 for the group that a step ends */
	__device__ __forceinline__ static void scales_of(float (&scale)[2], const codes &c, int step)
	{
		if constexpr (GROUP == 0) {
			scale[0] = __uint_as_float(c.scale[0]);
			scale[1] = __uint_as_float(c.scale[SCALE_WORDS - 1]);
		} else {
			const uint32_t pair = c.scale[step / STEPS_OF_SCALE];

			scale[0] = bf16_low(pair);
			scale[1] = bf16_high(pair);
		}
	}

	/* ---- Products ------------------------------------------------------------------------ */

	/* x has been multiplied by 2^shift. */
	__device__ __forceinline__ void multiply(codes (&ring)[AHEAD], place at, int shift) const
	{
		const float back = __int_as_float((127 - shift) << 23);
		const uint4 *x = x_memory + q;
		float *to = partials + warp * COLUMNS + g, sum[2] = {};
		int left = n;

#pragma unroll 1
		for (int all = at.all + AHEAD; all > 0; all -= AHEAD) {
#pragma unroll
			for (int i = 0; i < AHEAD; i++) {
				if (i && i >= all)
					break;
				multiply_piece(sum, ring[i], x);
				load(ring[i], at);
				x += STEPS * 4;
				if (--left)
					continue;
				store(to, sum, back);
				x = x_memory + q;
				left = n;
			}
		}
	}

	/* Stores the sums of columns g and g + 8 of a panel, and leaves 0. */
	__device__ __forceinline__ void store(float *&to, float (&sum)[2], float by) const
	{
		if (q == 0) {
			to[0] = sum[0] * by;
			to[8] = sum[1] * by;
		}
		to += WARPS * COLUMNS;
		sum[0] = sum[1] = 0;
	}

	/* For a warp without pieces */
	__device__ __forceinline__ void clear(void) const
	{
		float *to = partials + warp * COLUMNS + g, sum[2] = {};

		for (int i = 0; i < panels; i++)
			store(to, sum, 1);
	}

	__device__ __forceinline__ void multiply_piece(float (&sum)[2], const codes &c,
						       const uint4 *x) const
	{
		const group_floats<HZ_F16, HZI_GROUP_U4> floats(8);
		/* One where a group is a step: a chain of two beside those of other groups */
		constexpr int CHAINS = STEPS_OF_SCALE > 1 ? 2 : 1;
		float acc[CHAINS][4];

#pragma unroll
		for (int s = 0; s < STEPS; s++) {
			const uint4 b = x[s * 4];
			uint32_t v[2][4];
			float scale[2];

#pragma unroll
			for (int i = 0; i < 4 * CHAINS && s % STEPS_OF_SCALE == 0; i++)
				acc[i / 4][i % 4] = 0;
			floats.decode(v[0], c.w + 2 * s, 0);
			floats.decode(v[1], c.w + 2 * s, 1);
			mma_m16n8k16<HZ_F16>(acc[0], v[0][0], v[1][0], v[0][1], v[1][1], b.x, b.y);
			mma_m16n8k16<HZ_F16>(acc[CHAINS - 1], v[0][2], v[1][2], v[0][3], v[1][3],
					     b.z, b.w);
			if ((s + 1) % STEPS_OF_SCALE)
				continue;
			scales_of(scale, c, s);
#pragma unroll
			for (int h = 0; h < 2; h++)
				sum[h] += (CHAINS > 1 ? acc[0][2 * h] + acc[CHAINS - 1][2 * h] :
							acc[0][2 * h]) * scale[h];
		}
	}

	/* From the first piece on. Column 0 of the products counts; all have the same x. */
	__device__ __forceinline__ void multiply_bf16(place at) const
	{
		const group_floats<HZ_BF16, HZI_GROUP_U4> floats(8);
		float *to = partials + warp * COLUMNS + g, sum[2] = {};

#pragma unroll 1
		while (at.all > 0) {
#pragma unroll 1
			for (int i = 0; i < n; i++) {
				float acc[4] = {};
				codes c = {};

				load(c, at);
#pragma unroll
				for (int s = 0; s < STEPS; s++) {
					const int k = (begin + i) * UNIT + s * STEP + 2 * q;
					const uint16_t *const src = (const uint16_t *)p.x + k;
					uint32_t x[4], v[2][4];
					float scale[2];

#pragma unroll
					for (int j = 0; j < 4; j++)
						x[j] = k + 8 * j < p.l.k ?
						       __ldg((const uint32_t *)(src + 8 * j)) : 0;
					floats.decode(v[0], c.w + 2 * s, 0);
					floats.decode(v[1], c.w + 2 * s, 1);
					mma_m16n8k16<HZ_BF16>(acc, v[0][0], v[1][0], v[0][1],
							      v[1][1], x[0], x[1]);
					mma_m16n8k16<HZ_BF16>(acc, v[0][2], v[1][2], v[0][3],
							      v[1][3], x[2], x[3]);
					if ((s + 1) % STEPS_OF_SCALE)
						continue;
					scales_of(scale, c, s);
					sum[0] += acc[0] * scale[0];
					sum[1] += acc[2] * scale[1];
#pragma unroll
					for (int j = 0; j < 4; j++)
						acc[j] = 0;
				}
			}
			store(to, sum, 1);
		}
	}

	/* ---- x ------------------------------------------------------------------------------- */

	static constexpr int FLIGHT = 4, LANE_STEPS = 8 * FLIGHT;	/* steps of a warp at a time */

	/* Whether the warp has steps first + 8 i and later ones, i < FLIGHT */
	__device__ __forceinline__ bool has(int first, int i) const
	{
		return first + 8 * i < n * STEPS;
	}

	/*
	 * Loads of this lane: eight values of steps first + lane / 4 + 8 i; 0 beyond k. x: of step
	 * lane / 4, from k on
	 */
	__device__ __forceinline__ void load_x(uint4 (&v)[FLIGHT], const uint16_t *x, int k,
					       int first) const
	{
#pragma unroll
		for (int i = 0; i < FLIGHT && has(first, i); i++) {
			const int at = (first + 8 * i) * STEP;
			const int some = first + 8 * i + lane / 4 < n * STEPS && k + at < (int)p.l.k;

			v[i] = make_uint4(0, 0, 0, 0);
			asm volatile("{.reg .pred p; setp.ne.s32 p, %5, 0;"
				     "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];}"
				     : "+r"(v[i].x), "+r"(v[i].y), "+r"(v[i].z), "+r"(v[i].w)
				     : "l"(x + at), "r"(some));
		}
	}

	/* Magnitudes: the largest, and the least one but 0 less 1, of both halves */
	__device__ __forceinline__ void range_of(const uint4 (&v)[FLIGHT], int first, uint32_t &most,
						 uint32_t &least) const
	{
#pragma unroll
		for (int i = 0; i < FLIGHT && has(first, i); i++) {
			const uint32_t words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};

#pragma unroll
			for (int j = 0; j < 4; j++) {
				const uint32_t a = words[j] | 0x80008000;

				most = __vmaxu2(most, a);
				least = __vminu2(least, (a - 0x00010001) ^ 0x80008000);
			}
		}
	}

	__device__ __forceinline__ void store_x(const uint4 (&v)[FLIGHT], int first,
						float factor) const
	{
		uint32_t to = shared_address(x_memory + (first + lane / 4) * 4) + q * 4;

#pragma unroll
		for (int i = 0; i < FLIGHT && has(first, i); i++) {
			const uint32_t words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
			const int some = first + 8 * i + lane / 4 < n * STEPS;

#pragma unroll
			for (int j = 0; j < 4; j++)
				asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0;"
					     "@p st.shared.u32 [%0], %1;}"
					     :: "r"(to + i * (8 * 64) + j * 16),
						"r"(DTYPE == HZ_F16 ? words[j] :
						    to_f16x2(bf16_low(words[j]) * factor,
							     bf16_high(words[j]) * factor)),
						"r"(some) : "memory");
		}
	}

	/*
	 * Copies this warp's part of x times 2^shift, which is 0 if x is f16. Returns whether these
	 * are exact.
	 */
	__device__ __forceinline__ bool stage_x(const uint16_t *x, int k, int &shift) const
	{
		float factor = 1;
		uint4 v[FLIGHT];

		load_x(v, x, k, 0);
		if constexpr (DTYPE == HZ_BF16) {
			uint32_t most = 0, least = ~0u;
			uint4 t[FLIGHT];

			range_of(v, 0, most, least);
#pragma unroll 1
			for (int s = LANE_STEPS; s < n * STEPS; s += LANE_STEPS) {
				load_x(t, x, k, s);
				range_of(t, s, most, least);
			}
			most = __reduce_max_sync(~0u, max(most & 0x7fff, most >> 16 & 0x7fff));
			least = __reduce_min_sync(~0u, min(least & 0xffff, least >> 16)) + 1;
			/* 2^15 is the largest power of two of f16, 2^-24 the smallest. */
			const int e_most = max((int)most >> 7, 1), e_least = max((int)least >> 7, 1);

			shift = min(127 + 15 - e_most, 126);
			if (e_most == 255 || e_least - 127 - 7 + shift < -24)
				return false;
			factor = __int_as_float((127 + shift) << 23);
		}
		store_x(v, 0, factor);
#pragma unroll 1
		for (int s = LANE_STEPS; s < n * STEPS; s += LANE_STEPS) {
			load_x(v, x, k, s);
			store_x(v, s, factor);
		}
		__syncwarp();
		return true;
	}
};

#endif
