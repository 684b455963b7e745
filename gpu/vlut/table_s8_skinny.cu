/*
 * table_s8_skinny.cu - skinny GEMM of lattice codes, on s8 tensor cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Points are small integers. The leaders of a block's codes come from tables in shared memory, with
 * one copy per bank, and their sum over the levels is a register of the A operand as it is. x
 * becomes integers of 22 bits and sign, as three 8-bit digits that are columns of the B operand. x
 * is scaled by a power of two so that the largest |x| of a split of k uses all bits: accumulators
 * are exact, and the error of an element is below 2^-22 of the largest. Each warp streams the codes
 * of its own chunks of k. Accumulators of warps, then of splits, are added in a fixed order.
 *
 * With scales of groups, an mma step covers one group of 32; its accumulators, exact in f32, are
 * scaled and added at once.
 */
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/vlut/table_s8.cuh"
#include "gpu/vlut/table_s8_skinny.h"

#define THREADS HZI_VLUT_S8_THREADS
#define WARPS (THREADS / 32)
#define ROWS HZI_VLUT_S8_ROWS
#define AHEAD 2			/* chunks in flight per warp */
#define DIGITS 3			/* 8-bit digits of x */
#define X_BITS 22
#define SIGNS 0x80808080

/* Transposes words among four lanes: word i of lane j becomes word j of lane i. */
HZ_DEVICE void transpose(uint32_t (&w)[4], int lane)
{
#pragma unroll
	for (int step = 1; step < 4; step *= 2) {
		const bool upper = lane & step;
		const uint32_t a = __shfl_xor_sync(~0u, upper ? w[0] : w[step], step);
		const uint32_t b = __shfl_xor_sync(~0u, upper ? w[3 - step] : w[3], step);

		if (upper) {
			w[0] = a;
			w[3 - step] = b;
		} else {
			w[step] = a;
			w[3] = b;
		}
	}
}

/* 2^i as a product of two numbers, i in -252 .. 254 */
struct power_of_2 {
	float a, b;

	__device__ __forceinline__ explicit power_of_2(int i)
	{
		const int half = i / 2;

		a = __int_as_float(half + 127 << 23);
		b = __int_as_float(i - half + 127 << 23);
	}
	__device__ __forceinline__ float times(float f) const
	{
		return f * a * b;
	}
};

/*
 * NT: column tiles of 8. NT = 1: column 4 b + d is digit d of vector b, for up to 2 vectors; or
 * columns are vectors of s8. NT = 3: tile d is digit d of up to 8 vectors. SCALED: groups have
 * scales. E8Q4: E8 with q = 4 and two levels, whose leaders are 24 bits each in shared memory; M is
 * then the bytes of a block.
 */
template <int WORDS, int M, int NT, bool SCALED, bool E8Q4 = false>
struct table_s8_skinny_block {
	using P = decode_points<WORDS, M>;
	static constexpr int V = P::VALUES, CHUNK = 4 * V, STEPS = V / 8, TILES = ROWS / 16;

	const hzi_vlut_table_s8_skinny &p;
	const int tid, lane, warp, g, t;
	int begin, count;		/* chunks of this split */
	int tiles;			/* of this block */
	int columns;			/* of a tile of 8, in shared memory; the rest are copies */
	uint32_t last_t;
	bool digits;			/* x is not s8 */
	/* [pair of steps][column tile][column][4] of 16 bytes */
	uint8_t *x;
	float *scales, *partials;
	uint32_t *absmax;			/* [column] */

	__device__ __forceinline__ explicit table_s8_skinny_block(
		const hzi_vlut_table_s8_skinny &p_)
		: p(p_), tid(threadIdx.x), lane(tid % 32), warp(tid / 32), g(lane / 4), t(lane % 4)
	{
	}

	/* First of the 8 values that step s of a chunk takes from a quarter of the chunk */
	__device__ __forceinline__ int value_of(int s, int quarter) const
	{
		return SCALED ? 32 * s + 8 * quarter : V * quarter + 8 * s;
	}

	/* Loads 8 values of a step: unit 8 pair + 2 quarter + half of a chunk. */
	__device__ __forceinline__ void load_unit(float (&f)[8], int b, int unit) const
	{
		const int c = begin + unit / (CHUNK / 8), at = unit % (CHUNK / 8);
		const int k = c * CHUNK + value_of(at / 8 * 2 + at % 2, at % 8 / 2);
		const uint16_t *x16 = (const uint16_t *)p.x + b * p.x_b + k;

		if (p.x_dtype == HZ_F16 && p.x_k == 1 && k + 8 <= p.k && (uintptr_t)x16 % 16 == 0) {
			const uint4 v = *(const uint4 *)x16;
			const uint32_t w[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
			for (int i = 0; i < 4; i++) {
				f[2 * i] = f16_low(w[i]);
				f[2 * i + 1] = f16_high(w[i]);
			}
		} else {
			load_strided<8, 0>(f, p.x_dtype, p.x, b * p.x_b + k * p.x_k, p.x_k,
					   p.k - k);
		}
	}

	/* Slot of the 8 bytes of a column */
	__device__ __forceinline__ uint2 *x_slot(int unit, int column) const
	{
		const int tile = NT == 1 ? 0 : column / 8, n = NT == 1 ? column : column % 8;

		return (uint2 *)x + ((unit / 8 * NT + tile) * columns + n) * 8 + unit % 8;
	}

	/* Byte d of four numbers, as one word */
	__device__ __forceinline__ static uint32_t gather(const uint32_t (&v)[4], int d)
	{
		return __byte_perm(__byte_perm(v[0], v[1], d | (d + 4) << 4),
				   __byte_perm(v[2], v[3], d | (d + 4) << 4), 0x5410);
	}

	__device__ __forceinline__ void store_unit(const float (&f)[8], int b, int unit) const
	{
		const power_of_2 up(shift(b));
		uint32_t v[2][4];

#pragma unroll
		for (int i = 0; i < 8; i++)
			/* Adding 128 to each digit makes digits the bytes. */
			v[i / 4][i % 4] = (uint32_t)__float2int_rn(digits ? up.times(f[i]) : f[i]) +
					  0x808080;
		if (!digits) {
			*x_slot(unit, b) =
				make_uint2(gather(v[0], 0) ^ SIGNS, gather(v[1], 0) ^ SIGNS);
			return;
		}
#pragma unroll
		for (int d = 0; d < DIGITS; d++)
			*x_slot(unit, NT == 1 ? 4 * b + d : 8 * d + b) =
				make_uint2(gather(v[0], d) ^ SIGNS, gather(v[1], d) ^ SIGNS);
	}

	/*
	 * 2^shift scales the largest |x| of a vector to 2^21 .. 2^22; 0 if it is 0 or not finite.
	 */
	__device__ __forceinline__ int shift(int b) const
	{
		const int exponent = (int)(absmax[b] >> 23);

		return exponent == 255 || absmax[b] == 0 ? 0 : X_BITS - 1 + 127 - exponent;
	}

	__device__ __forceinline__ void prepare_x(void)
	{
		const int units = count * (CHUNK / 8), padded = (units + 31) / 32 * 32;
		const int total = padded * p.batch;
		float f[8];

		if (digits) {
			for (int i = tid; i < total; i += THREADS) {
				const int b = i / padded, unit = i % padded;
				uint32_t u = 0;

				if (unit < units) {
					load_unit(f, b, unit);
#pragma unroll
					for (int j = 0; j < 8; j++)
						u = max(u, __float_as_uint(f[j]) & 0x7fffffff);
				}
				u = __reduce_max_sync(~0u, u);
				if (lane == 0)
					atomicMax(&absmax[b], u);
			}
			__syncthreads();
		}
		for (int i = tid; i < total; i += THREADS) {
			const int b = i / padded, unit = i % padded;

			if (unit >= units)
				continue;
			if (!digits || total > THREADS)
				load_unit(f, b, unit);
			store_unit(f, b, unit);
		}
	}

	__device__ __forceinline__ void fill_tables(void)
	{
		if constexpr (!E8Q4)
			fill_leaders<WORDS, THREADS>(p.leaders, p.first);
		else
			for (int i = tid; i < HZI_VLUT_S8_E8Q4_BYTES / 16; i += THREADS)
				((uint4 *)leader_memory())[i] = __ldg((const uint4 *)p.e8q4 + i);
		if (SCALED) {
			for (int i = tid; i < p.scales * 8; i += THREADS) {
				const float s = p.scale_of[i / 8];

				((float4 *)scales)[i] = make_float4(s, s, s, s);
			}
		}
		if (tid < HZI_VLUT_S8_COLUMNS)
			absmax[tid] = 0;
	}

	/* Loads T of a row's groups in a chunk, one byte per step. */
	__device__ __forceinline__ uint32_t load_t(const uint8_t *row, int c) const
	{
		switch (p.group_log2) {
		case 5:
			return *(const uint32_t *)(row + 4 * c);
		case 6:
			return __byte_perm(*(const uint16_t *)(row + 2 * c), 0, 0x1100);
		default:
			return row[c] * 0x01010101u;
		}
	}

	__device__ __forceinline__ void run(void)
	{
		uint4 ring[AHEAD][2 * TILES];
		uint32_t ring_t[AHEAD][2 * TILES];
		int32_t acc[TILES][NT][4];
		float facc[TILES][4];
		const int32_t magic[4] = {0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000};
		const int part = blockIdx.x % p.split, share = blockIdx.x / p.split,
			  shares = gridDim.x / p.split, all = (p.rows + ROWS - 1) / ROWS;
		const uint32_t lane_slot = leader_slot<WORDS>(lane);

		last_t = (uint32_t)p.scales - 1;
		digits = p.x_dtype != HZ_S8;
		begin = (int)((int64_t)p.chunks * part / p.split);
		count = (int)((int64_t)p.chunks * (part + 1) / p.split) - begin;
		tiles = (all - share + shares - 1) / shares;
		columns = NT == 1 && p.batch == 1 ? 4 : 8;
		scales = (float *)(leader_memory() +
				   (E8Q4 ? HZI_VLUT_S8_E8Q4_BYTES : HZI_VLUT_S8_TABLE_BYTES));
		absmax = (uint32_t *)(scales + (SCALED ? HZI_VLUT_S8_SCALES_BYTES / 4 : 0));
		x = (uint8_t *)(absmax + 16);
		partials = (float *)(x + (int64_t)((p.chunks + p.split - 1) / p.split) *
						 (CHUNK / 16) * 16 * columns * NT);

		/* Chunks of all tiles in order: this warp has every 16th. */
		int lc = warp, lt = 0, cc = warp, ct = 0;
		auto load = [&](int d) {
			if (lt < tiles) {
				const int r0 = (share + lt * shares) * ROWS + g;
				const int64_t at = (int64_t)(begin + lc) * HZI_VLUT_S8_CHUNK_BYTES +
						   t * 16;

#pragma unroll
				for (int r = 0; r < 2 * TILES; r++) {
					const int64_t row = min(r0 + 8 * r, p.rows - 1);

					ring[d][r] = at < p.row_bytes ?
						     load_codes(p.codes + row * p.row + at) :
						     make_uint4(0, 0, 0, 0);
					if (SCALED)
						ring_t[d][r] = load_t(p.t + row * p.t_row,
								      begin + lc);
				}
			}
			for (lc += WARPS; lc >= count; lc -= count)
				lt++;
		};
		for (; lc >= count; lc -= count)
			lt++;
		for (int d = 0, c = lc, tile = lt; d < AHEAD && tile < tiles; d++) {
			const int r0 = (share + tile * shares) * ROWS + g;
			const int64_t at = (int64_t)(begin + c) * HZI_VLUT_S8_CHUNK_BYTES + t * 16;

#pragma unroll
			for (int r = 0; r < 2 * TILES; r++)
				if (at < p.row_bytes)
					prefetch_l2(p.codes + min(r0 + 8 * r, p.rows - 1) * p.row +
						    at);
			for (c += WARPS; c >= count; c -= count)
				tile++;
		}
		fill_tables();
		__syncthreads();
		pdl_wait();
		pdl_launch_dependents();
#pragma unroll
		for (int d = 0; d < AHEAD; d++)
			load(d);
		prepare_x();
		__syncthreads();

		auto clear = [&]() {
#pragma unroll
			for (int m = 0; m < TILES; m++)
#pragma unroll
				for (int i = 0; i < 4; i++) {
#pragma unroll
					for (int n = 0; n < NT; n++)
						acc[m][n][i] = 0;
					facc[m][i] = 0;
				}
		};
		/*
		 * Writes a warp's sums of a tile, [warp][row][vector], in units of the integers of
		 * x.
		 */
		auto flush = [&](int slot) {
			float *dst = partials + (int64_t)(slot * WARPS + warp) * ROWS * p.batch;

#pragma unroll
			for (int m = 0; m < TILES; m++) {
#pragma unroll
				for (int h = 0; h < 2; h++) {
					const int r = m * 16 + h * 8 + g;
					float v[2];

#pragma unroll
					for (int e = 0; e < 2; e++) {
						const int i = 2 * h + e;

						if (SCALED) {
							v[e] = facc[m][i];
						} else if (NT == 1 || !digits) {
							v[e] = (float)acc[m][0][i];
						} else {
							v[e] = (float)acc[m][0][i] + 256.0f *
							       (float)acc[m][NT / 2][i] +
							       65536.0f * (float)acc[m][NT - 1][i];
						}
					}
					if (NT == 1 && digits) {
						/*
						 * lane t even has digits 0 and 1 of a vector, lane
						 * t + 1 digit 2
						 */
						const float low = v[0] + 256.0f * v[1];
						const float high = __shfl_down_sync(~0u, v[0], 1);

						if (t % 2 == 0 && t / 2 < p.batch)
							dst[r * p.batch + t / 2] = low +
										   65536.0f * high;
					} else if (NT == 1) {
						/* x of s8: the bits of the integers */
#pragma unroll
						for (int e = 0; e < 2; e++)
							if (2 * t + e < p.batch)
								dst[r * p.batch + 2 * t + e] =
									SCALED ? v[e] :
									__int_as_float(
										acc[m][0][2 * h +
											  e]);
					} else {
#pragma unroll
						for (int e = 0; e < 2; e++)
							if (2 * t + e < p.batch)
								dst[r * p.batch + 2 * t + e] = v[e];
					}
				}
			}
			clear();
		};
		const uint4 *xl = (const uint4 *)x + (g & (columns - 1)) * 4 + t;

		clear();
		for (int first = 0; first < tiles; first += p.pass_tiles) {
			const int end = min(first + p.pass_tiles, tiles);

			for (; cc >= count && ct < end; cc -= count) {
				flush(ct - first);
				ct++;
			}
			while (ct < end) {
#pragma unroll
				for (int d = 0; d < AHEAD; d++) {
					uint32_t w[2 * TILES][4], wt[2 * TILES];

					if (ct >= end)
						break;
#pragma unroll
					for (int r = 0; r < 2 * TILES; r++) {
						w[r][0] = ring[d][r].x;
						w[r][1] = ring[d][r].y;
						w[r][2] = ring[d][r].z;
						w[r][3] = ring[d][r].w;
						wt[r] = ring_t[d][r];
						if (SCALED)
							transpose(w[r], lane);
					}
					load(d);
					step(acc, facc, w, wt, xl + (int64_t)cc * (STEPS / 2) * NT *
					     columns * 4, lane_slot, magic);
					for (cc += WARPS; cc >= count && ct < end; cc -= count) {
						flush(ct - first);
						ct++;
					}
				}
			}
			finish(first, end, share, shares, part);
		}
	}

	/*
	 * Adds sums r of a group, as bits of floats around 1.5 2^23, times the scales of T of rows
	 * g and g + 8.
	 */
	__device__ __forceinline__ void add_scaled(float (&dst)[4], const int32_t (&r)[NT][4],
						   uint32_t t0, uint32_t t1)
	{
		const float f[2] = {scales[min(t0 & 0xff, last_t) * 32 + lane],
				    scales[min(t1 & 0xff, last_t) * 32 + lane]};

#pragma unroll
		for (int i = 0; i < 4; i++) {
			float v = __int_as_float(r[0][i]) - 12582912.0f;

			if (NT == 3)
				v = fmaf(fmaf(__int_as_float(r[NT - 1][i]) - 12582912.0f, 256.0f,
					      __int_as_float(r[NT / 2][i]) - 12582912.0f), 256.0f,
					      v);
			dst[i] = fmaf(f[i / 2], v, dst[i]);
		}
	}

	/* Eight values plus 128, of two codes */
	__device__ __forceinline__ void e8q4_point(uint32_t (&v)[2], uint32_t codes) const
	{
		e8q4_points(v, codes, p.q);
		v[0] += p.first[0];
		v[1] += p.first[1];
	}

	__device__ __forceinline__ void step(int32_t (&acc)[TILES][NT][4], float (&facc)[TILES][4],
					     const uint32_t (&w)[2 * TILES][4],
					     const uint32_t (&wt)[2 * TILES], const uint4 *xl,
					     uint32_t lane_slot, const int32_t (&magic)[4])
	{
#pragma unroll
		for (int j = 0; j < STEPS / 2; j++) {
			uint4 b[NT];

#pragma unroll
			for (int n = 0; n < NT; n++)
				b[n] = xl[(j * NT + n) * columns * 4];
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const int s = 2 * j + h;

#pragma unroll
				for (int m = 0; m < TILES; m++) {
					uint32_t low[2], high[2];

					if constexpr (E8Q4) {
						e8q4_point(low, w[2 * m][s]);
						e8q4_point(high, w[2 * m + 1][s]);
					} else {
						P::get(low, w[2 * m], s, lane_slot, p.q);
						P::get(high, w[2 * m + 1], s, lane_slot, p.q);
					}

					const uint32_t a[4] = {low[0] ^ SIGNS, high[0] ^ SIGNS,
							       low[1] ^ SIGNS, high[1] ^ SIGNS};

					int32_t r[NT][4];

#pragma unroll
					for (int n = 0; n < NT; n++) {
						const uint32_t b0 = h ? b[n].z : b[n].x,
							       b1 = h ? b[n].w : b[n].y;

						if constexpr (SCALED)
							for (int e = 0; e < 4; e++)
								r[n][e] = magic[e];
						mma_m16n8k32<true, true>(SCALED ? r[n] : acc[m][n],
									 a, b0, b1);
					}
					if constexpr (SCALED)
						add_scaled(facc[m], r, wt[2 * m] >> 8 * s,
							   wt[2 * m + 1] >> 8 * s);
				}
			}
		}
	}

	/* Adds sums of warps, then of splits, and stores y. */
	__device__ __forceinline__ void finish(int first, int end, int share, int shares, int part)
	{
		const int width = ROWS * p.batch, n = (end - first) * width;
		const bool is_integer = !digits && !SCALED;

		__syncthreads();
		/* The total replaces the sum of the first warp. */
		for (int i = tid; i < n; i += THREADS) {
			float *at = partials + (int64_t)(i / width * WARPS) * width + i % width;
			const int b = i % p.batch;

			if (is_integer) {
				int32_t s = 0;

				for (int w = 0; w < WARPS; w++)
					s += __float_as_int(at[w * width]);
				*at = __int_as_float(s);
			} else {
				float s = 0;

				for (int w = 0; w < WARPS; w++)
					s += at[w * width];
				if (digits)
					s = absmax[b] >= 0x7f800000 ? __uint_as_float(0x7fffffff) :
					    power_of_2(-shift(b)).times(s);
				*at = s;
			}
		}
		if (p.split > 1)
			cluster_publish(warp);
		else
			__syncthreads();
		for (int i = tid + part * THREADS; i < n; i += THREADS * p.split) {
			const float *at =
				partials + (int64_t)(i / width * WARPS) * width + i % width;
			const int64_t row = (int64_t)(share + (first + i / width) * shares) * ROWS +
					    i % width / p.batch;
			const int b = i % p.batch;
			float s = 0;
			int32_t integer = 0;

			if (row >= p.rows)
				continue;
			if (p.split == 1) {
				s = *at;
				integer = __float_as_int(s);
			} else {
				for (int z = 0; z < p.split; z++) {
					const float f = cluster_load(cluster_map(shared_address(at),
										 z));

					s += f;
					integer += __float_as_int(f);
				}
			}
			if (p.y_dtype == HZ_S32) {
				((int32_t *)p.y)[row * p.y_i + b * p.y_b] = integer;
				continue;
			}
			store_scaled(p, row, b, is_integer ? (float)integer : s);
		}
		__syncwarp();
		if (p.split > 1) {
			cluster_arrive_relaxed();
			cluster_wait();
		} else {
			__syncthreads();
		}
	}
};

constexpr bool is_e8q4_kernel(bool, bool e8q4 = false)
{
	return e8q4;
}

/* With few columns two blocks fit an SM, the second one of the PDL successor. */
#define KERNEL(name, words, levels, tiles, ...) \
	extern "C" __global__ void __launch_bounds__( \
		THREADS, tiles == 1 && !is_e8q4_kernel(__VA_ARGS__) ? 2 : 1) \
	name(const __grid_constant__ hzi_vlut_table_s8_skinny p) \
	{ \
		table_s8_skinny_block<words, levels, tiles, __VA_ARGS__>(p).run(); \
	}
#define KERNELS(d, words, levels) \
	KERNEL(vlut_table_s8_skinny_##d##_l##levels, words, levels, 1, false) \
	KERNEL(vlut_table_s8_skinny_##d##_l##levels##_8, words, levels, 3, false)

KERNELS(d4, 1, 1)
KERNELS(d4, 1, 2)
KERNELS(d4, 1, 4)
KERNELS(d8, 2, 1)
KERNELS(d8, 2, 2)
KERNELS(d8, 2, 4)
KERNEL(vlut_table_s8_skinny_e8q4, 2, 4, 1, false, true)
KERNEL(vlut_table_s8_skinny_e8q4_scaled, 2, 4, 1, true, true)
KERNEL(vlut_table_s8_skinny_d4_l2_scaled, 1, 2, 1, true)
KERNEL(vlut_table_s8_skinny_d4_l2_scaled_8, 1, 2, 3, true)
KERNEL(vlut_table_s8_skinny_d8_l4_scaled, 2, 4, 1, true)
KERNEL(vlut_table_s8_skinny_d8_l4_scaled_8, 2, 4, 3, true)
