/*
 * table_wgmma.cu - products of lattice codes and many vectors: for Hopper
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Codes become f16 in registers, which are the left operand of the matrix units: points are exact,
 * scales of groups round them once. A warp reads its 16 rows 64 bytes at a time, lane t of four 32
 * values, and step s takes values 4 s to 4 s + 3 of each; so x is put into tiles of that order
 * first, by vlut_x_tiles, core matrix by core matrix. Splits of k are blocks of a cluster, whose
 * sums are added in their order.
 *
 * Packed fields (d4_bitfield.h) are decoded by logic; of such a chunk of 128 lane t has 16 values
 * of either half, and step 4 half + i takes coordinate i of four lattice blocks. Points are in
 * units of 2^-24, of rows g + 8 in units of 2^-20.
 *
 * f32 becomes two f16, of which the second is times 2^11, in neighbouring columns; f32 and bf16 are
 * scaled by a power of two that makes the largest 2^14 to 2^15.
 */
#include "gpu/device/mbarrier.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/reduce.cuh"
#include "gpu/device/wgmma_f16.cuh"
#include "gpu/vlut/table_s8.cuh"
#include "gpu/vlut/d4_bitfield.cuh"
#include "gpu/vlut/table_wgmma.h"

#define CHUNK HZI_VWG_CHUNK
#define X_THREADS HZI_VLUT_THREADS

/* ---- x --------------------------------------------------------------------------------------- */

/* The largest finite |x| of a share */
extern "C" __global__ void __launch_bounds__(X_THREADS)
vlut_x_most(const __grid_constant__ hzi_vlut_x p)
{
	__shared__ float most[X_THREADS / 32];
	const int64_t n = (int64_t)p.k * p.batch;
	const bool across = p.x_b == 1;
	float m = 0;

	pdl_wait();
	pdl_launch_dependents();
	for (int64_t i = blockIdx.x * X_THREADS + threadIdx.x; i < n;
	     i += HZI_VWG_MOST * X_THREADS) {
		const int64_t k = across ? i / p.batch : i % p.k,
			      b = across ? i % p.batch : i / p.k;
		const float f = fabsf(load_any(p.x_dtype, p.x, k * p.x_k + b * p.x_b));

		if (f < __uint_as_float(0x7f800000))
			m = fmaxf(m, f);
	}
	m = warp_max(m);
	if (threadIdx.x % 32 == 0)
		most[threadIdx.x / 32] = m;
	__syncthreads();
	if (threadIdx.x == 0) {
		for (int i = 1; i < X_THREADS / 32; i++)
			m = fmaxf(m, most[i]);
		p.most[blockIdx.x] = m;
	}
}

/* Of a column and a step the pairs of all four lanes, which lie together in a tile */
extern "C" __global__ void __launch_bounds__(X_THREADS)
vlut_x_tiles(const __grid_constant__ hzi_vlut_x p)
{
	const int vectors = p.columns / p.parts;	/* of a tile */
	const int padded = (p.batch + vectors - 1) / vectors * vectors, places = p.chunks * 16;
	const int64_t total = (int64_t)places * padded;
	const bool across = p.x_b == 1;
	float up[2] = {1, 1};

	pdl_wait();
	pdl_launch_dependents();
	if (p.most) {
		float m = 0;
		int shift;

		for (int i = 0; i < HZI_VWG_MOST; i++)
			m = fmaxf(m, p.most[i]);
		shift = m > 0 ? 14 + 127 - (int)(__float_as_uint(m) >> 23) : 0;
		up[0] = __int_as_float(shift / 2 + 127 << 23);
		up[1] = __int_as_float(shift - shift / 2 + 127 << 23);
		if (blockIdx.x == 0 && threadIdx.x < 2)
			p.most[HZI_VWG_MOST + threadIdx.x] = 1 / up[threadIdx.x];
	}
	for (int64_t i = blockIdx.x * (int64_t)X_THREADS + threadIdx.x; i < total;
	     i += (int64_t)gridDim.x * X_THREADS) {
		const int b = (int)(across ? i % padded : i / places);
		const int at = (int)(across ? i / padded : i % places);
		/* the first or the second half of the 4 values that a step takes from a lane */
		const int chunk = at / 16, half = at % 16;
		const int k = chunk * CHUNK + (p.fields ? half / 8 * 64 + half % 2 * 4 +
					       half / 2 % 4 : 2 * half);
		const int64_t from = k * p.x_k + b * p.x_b;
		const int there = b < p.batch ? p.k - k : 0;
		uint8_t *tile = p.tiles + ((int64_t)(b / vectors) * p.chunks + chunk) * p.columns *
				CHUNK * 2;
		float f[8];

		if (p.fields)
			load_run<1, 8>(f, p.x_dtype, p.x, from, p.x_k, there);
		else
			load_run<2, 32>(f, p.x_dtype, p.x, from, p.x_k, there);
#pragma unroll
		for (int e = 0; e < 8; e++)
			f[e] = f[e] * up[0] * up[1];
		for (int part = 0; part < p.parts; part++) {
			const int column = b % vectors * p.parts + part;
			uint32_t h[4];

#pragma unroll
			for (int e = 0; e < 4; e++) {
				h[e] = to_f16x2(f[2 * e], f[2 * e + 1]);
				f[2 * e] = (f[2 * e] - f16_low(h[e])) * 2048.0f;
				f[2 * e + 1] = (f[2 * e + 1] - f16_high(h[e])) * 2048.0f;
			}
			*(uint4 *)(tile + (half * (p.columns / 8) + column / 8) * 128 +
				   column % 8 * 16) =
				make_uint4(h[0], h[1], h[2], h[3]);
		}
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

#if HAVE_WGMMA

#define THREADS HZI_VWG_THREADS
#define ROWS HZI_VWG_ROWS

/* WORDS of a leader; 0: fields; VALUES: f16, not codes */
#define VALUES 4

template <int WORDS, int COLUMNS, bool SCALED>
struct vlut_wgmma_block {
	static constexpr bool FIELDS = WORDS == 0, HALF = WORDS == VALUES,
			      TABLES = !FIELDS && !HALF;
	static constexpr int STAGES = HZI_VWG_STAGES(COLUMNS), TILE = COLUMNS * CHUNK * 2;
	static constexpr int AHEAD = HALF ? 1 : COLUMNS <= 32 ? 4 : COLUMNS == 64 ? 3 : 1,
			     LINE = HZI_VWG_LINE(COLUMNS);
	static constexpr int BEFORE = (TABLES ? HZI_VMMA_TABLE_BYTES : 0) +
				      (SCALED ? HZI_VMMA_SCALES_BYTES : 0);
	/* Of 16 bytes in a row of a chunk, a lane's, and bytes of the chunk in a row */
	static constexpr int PIECES = HALF ? 4 : 1, CHUNK_BYTES = PIECES * HZI_VMMA_CHUNK_BYTES;
	/* Eights of k that are decoded before the matrix units take them: nothing may be made
	 * while these run, or the compiler has them wait for each other. */
	static constexpr int AT_ONCE = COLUMNS <= 64 ? 4 : 2;

	const hzi_vlut_wgmma &p;
	const int tid, lane, warp, g, t;
	uint8_t *memory;
	uint32_t tiles, full, empty;

	__device__ __forceinline__ explicit vlut_wgmma_block(const hzi_vlut_wgmma &p_)
		: p(p_), tid(threadIdx.x), lane(tid % 32), warp(tid / 32), g(lane / 4), t(lane % 4),
		  memory(leader_memory()) {}

	__device__ __forceinline__ uint32_t *scales(void) const
	{
		return (uint32_t *)(memory + HZI_VMMA_TABLE_BYTES);
	}

	__device__ __forceinline__ void run(void)
	{
		const int part = blockIdx.x % p.split, row0 = (int)(blockIdx.x / p.split) * ROWS;
		const int begin = (int)((int64_t)p.chunks * part / p.split);
		const int n = (int)((int64_t)p.chunks * (part + 1) / p.split) - begin;
		const uint8_t *x = p.tiles + ((int64_t)blockIdx.y * p.chunks + begin) * TILE;
		const uint32_t place = TABLES ? leader_place<WORDS>(lane) : 0;
		const uint8_t *codes[2], *ts[2];
		uint4 ring[AHEAD][2 * PIECES];
		uint32_t ring_t[AHEAD][2];
		float acc[COLUMNS / 2];

		tiles = shared_address(memory) + BEFORE;
		full = shared_address(memory) + HZI_VWG_BARRIERS(BEFORE, COLUMNS);
		empty = full + 8 * STAGES;
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int64_t row = min(row0 + warp * 16 + g + 8 * r, p.rows - 1);

			if (FIELDS) {
				const int64_t tile = min(row0 / 16 + warp, (p.rows - 1) / 16);

				codes[r] = p.codes + (tile * p.fields + 2 * begin + r) * 512 +
					   lane * 16;
				continue;
			}
			codes[r] = p.codes + row * p.row;
			ts[r] = p.t + row * p.t_row;
		}
		auto load = [&](int d, int c) {
			const int at = (begin + c) * CHUNK_BYTES + t * 16 * PIECES;

#pragma unroll
			for (int r = 0; r < 2; r++) {
				const bool in = c < n && (FIELDS ? 2 * (begin + c) + r < p.fields :
							  at < p.row_bytes);

#pragma unroll
				for (int i = 0; i < PIECES; i++)
					ring[d][r * PIECES + i] =
						in ? load_codes(codes[r] + (FIELDS ? c * 1024 :
									    at + i * 16)) :
						     make_uint4(0, 0, 0, 0);
				if (SCALED)
					ring_t[d][r] = in ? ts[r][4 * (begin + c) + t >>
								  p.group_shift] : 0;
			}
		};
		if (tid == 0) {
			for (int s = 0; s < STAGES; s++) {
				mbarrier_init(full + 8 * s, 1);
				mbarrier_init(empty + 8 * s, THREADS / 32);
			}
			mbarrier_init_fence();
		}
		if constexpr (TABLES)
			fill_leaders<WORDS, THREADS>(p.leaders, p.first);
		if (SCALED) {
			for (int i = tid; i < p.scales * 32; i += THREADS)
				scales()[i] = p.scale_of[i / 32];
		}
		__syncthreads();
		/*
		 * Codes were there before x was put in order, and so before this kernel; values
		 * were not.
		 */
		if (!HALF) {
#pragma unroll
			for (int d = 0; d < AHEAD; d++)
				load(d, d);
		}
		pdl_wait();
		pdl_launch_dependents();
		if (HALF) {
#pragma unroll
			for (int d = 0; d < AHEAD; d++)
				load(d, d);
		}
		if (tid == 0) {
			for (int s = 0; s < STAGES && s < n; s++)
				fetch(x, s, s);
		}
		__syncwarp();
#pragma unroll
		for (int i = 0; i < COLUMNS / 2; i++)
			acc[i] = 0;
		multiply(acc, ring, ring_t, load, x, n, place);
		finish(acc, part, row0);
	}

	__device__ __forceinline__ void fetch(const uint8_t *x, int chunk, int stage) const
	{
		mbarrier_expect_tx(full + 8 * stage, TILE);
		bulk_copy(tiles + stage * TILE, x + (int64_t)chunk * TILE, TILE, full + 8 * stage);
	}

	template <class Load>
	__device__ __forceinline__ void multiply(float (&acc)[COLUMNS / 2],
						 uint4 (&ring)[AHEAD][2 * PIECES],
						 uint32_t (&ring_t)[AHEAD][2], Load load,
						 const uint8_t *x, int n, uint32_t place)
	{
		/* Core matrices of 8 columns by 8 of k: the next of k, the next of columns */
		const uint64_t shape = (uint64_t)COLUMNS << 16 | 8ull << 32;
		const uint32_t last_t = (uint32_t)p.scales - 1;
		int stage = 0, phase = 0;

		for (int c0 = 0; c0 < n; c0 += AHEAD) {
#pragma unroll
			for (int d = 0; d < AHEAD; d++) {
				const int c = c0 + d;
				uint32_t w[2 * PIECES][4], s[2] = {};

				if (c >= n)
					break;
#pragma unroll
				for (int i = 0; i < 2 * PIECES; i++) {
					w[i][0] = ring[d][i].x;
					w[i][1] = ring[d][i].y;
					w[i][2] = ring[d][i].z;
					w[i][3] = ring[d][i].w;
				}
				if (SCALED) {
#pragma unroll
					for (int r = 0; r < 2; r++)
						s[r] = scales()[min(ring_t[d][r], last_t) * 32 +
								lane];
				}
				load(d, c + AHEAD);
#pragma unroll
				for (int first = 0; first < 4; first += AT_ONCE) {
					uint32_t a[AT_ONCE][8];

					if constexpr (FIELDS)
						decode_fields(a, w, first);
					else if constexpr (HALF)
						take(a, w, first);
					else
						decode(a, w, first, place, s);
					if (first == 0)
						mbarrier_wait(full + 8 * stage, phase);
					wgmma_fence();
#pragma unroll
					for (int j = 0; j < AT_ONCE; j++) {
						const uint64_t b =
							shape | ((tiles + stage * TILE +
								  4 * (first + j) * COLUMNS * 16) &
								  0x3ffff) >> 4;

						wgmma_rs<false>(acc, a[j], b);
						wgmma_rs<false>(acc, a[j] + 4, b + 2 * COLUMNS);
					}
					wgmma_commit();
					wgmma_wait<0>();
					if (first == 0 && c > 0)
						refill(x, c - 1, n, stage, phase);
				}
				if (++stage == STAGES) {
					stage = 0;
					phase ^= 1;
				}
			}
		}
	}

	/* Eights of k, first and on, of two rows: of values that are there */
	__device__ __forceinline__ void take(uint32_t (&a)[AT_ONCE][8],
					     const uint32_t (&w)[2 * PIECES][4], int first) const
	{
#pragma unroll
		for (int j = 0; j < AT_ONCE; j++)
#pragma unroll
			for (int i = 0; i < 8; i++)
				a[j][i] = w[i % 2 * PIECES + first + j][i / 2];
	}

	/* The same of codes */
	__device__ __forceinline__ void decode(uint32_t (&a)[AT_ONCE][8], const uint32_t (&w)[2][4],
					       int first, uint32_t place,
					       const uint32_t (&s)[2]) const
	{
#pragma unroll
		for (int j = 0; j < AT_ONCE; j++) {
			uint32_t low[4], high[4];

			points_f16<WORDS, SCALED>(low, w[0], first + j, place, p.q, s[0]);
			points_f16<WORDS, SCALED>(high, w[1], first + j, place, p.q, s[1]);
#pragma unroll
			for (int i = 0; i < 4; i++) {
				a[j][2 * i] = low[i];
				a[j][2 * i + 1] = high[i];
			}
		}
	}

	/* The same of fields, of which 64 values of both rows are two eights */
	__device__ __forceinline__ void decode_fields(uint32_t (&a)[AT_ONCE][8],
						      const uint32_t (&w)[2][4], int first) const
	{
#pragma unroll
		for (int f = 0; f < AT_ONCE / 2; f++) {
			const int half = first / 2 + f;
			uint32_t word[4] = {w[half][0], w[half][1], w[half][2], w[half][3]},
				 signs[4];

			fields_signs(word, signs);
#pragma unroll
			for (int i = 0; i < 4; i++) {
				uint32_t *to = a[2 * f + i / 2] + i % 2 * 4;

				fields_f16(to, word[i], signs[i]);
				if (p.centred) {
#pragma unroll
					for (int e = 0; e < 4; e++)
						to[e] = add_f16x2(to[e], p.minus[2 * i + e % 2]);
				}
			}
		}
	}

	/* The chunk before is done: its stage takes another. */
	__device__ __forceinline__ void refill(const uint8_t *x, int done, int n, int stage,
					       int phase) const
	{
		const int last = stage == 0 ? STAGES - 1 : stage - 1;

		if (lane == 0)
			mbarrier_arrive(empty + 8 * last);
		if (tid == 0 && done + STAGES < n) {
			mbarrier_wait(empty + 8 * last, stage == 0 ? phase ^ 1 : phase);
			fetch(x, done + STAGES, last);
		}
		__syncwarp();
	}

	/* Four sums of a row: vectors b and on, or with two parts b and b + 1 */
	__device__ __forceinline__ void store_row(int64_t row, int b, const float (&s)[4],
						  const float (&down)[2]) const
	{
		float scale = p.scale;

		if (p.row_scale)
			scale *= p.row_scale[row * p.row_scale_step];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float v = p.parts == 1 ? s[i] : i < 2 ? s[2 * i] + s[2 * i + 1] * 0x1p-11f :
				  0;

			if (i >= 4 / p.parts || b + i >= p.batch)
				continue;
			v = v * down[0] * down[1] * scale;
			if (p.column_scale)
				v *= p.column_scale[(b + i) * p.column_scale_step];
			store_any(p.y_dtype, p.y, row * p.y_i + (b + i) * p.y_b, v);
		}
	}

	__device__ __forceinline__ void finish(float (&acc)[COLUMNS / 2], int part, int row0) const
	{
		float *sums = (float *)memory;
		const int share = ROWS / p.split, vectors = COLUMNS / p.parts;
		const int rows = part == p.split - 1 ? ROWS - part * share : share;
		const float down[2] = {p.power ? p.power[0] : 1, p.power ? p.power[1] : 1};

		__syncthreads();
#pragma unroll
		for (int i = 0; i < COLUMNS / 2; i += 2) {
			const int r = warp * 16 + g + i % 4 * 4, column = i / 4 * 8 + 2 * t;

			const float unit = FIELDS && i % 4 ? 0x1p-4f : 1.0f;

			*(float2 *)(sums + r * LINE + column) =
				make_float2(acc[i] * unit, acc[i + 1] * unit);
		}
		if (p.split > 1)
			cluster_publish(warp);
		else
			__syncthreads();
		for (int i = tid; i < rows * (COLUMNS / 4); i += THREADS) {
			/* Four columns of a row, from all splits: under way together */
			const int r = part * share + (p.y_b == 1 ? i / (COLUMNS / 4) : i % rows);
			const int j = 4 * (p.y_b == 1 ? i % (COLUMNS / 4) : i / rows);
			const int b = (int)blockIdx.y * vectors + j / p.parts;
			const float *at = sums + r * LINE + j;
			float4 from[8] = {};
			float s[4] = {};

			if (row0 + r >= p.rows || b >= p.batch)
				continue;
#pragma unroll
			for (int z = 0; z < 8; z++) {
				if (p.split == 1 && z == 0)
					from[z] = *(const float4 *)at;
				else if (p.split > 1 && z < p.split)
					from[z] = cluster_load4(cluster_map(shared_address(at), z));
			}
#pragma unroll
			for (int z = 0; z < 8; z++) {
				s[0] += from[z].x;
				s[1] += from[z].y;
				s[2] += from[z].z;
				s[3] += from[z].w;
			}
			store_row(row0 + r, b, s, down);
		}
		__syncwarp();
		if (p.split > 1) {
			cluster_arrive_relaxed();
			cluster_wait();
		}
	}
};

#define BODY(...) { vlut_wgmma_block<__VA_ARGS__>(p).run(); }
#else
#define BODY(...) { }
#endif

#define KERNEL(name, words, columns, scaled) \
	extern "C" __global__ void __launch_bounds__(HZI_VWG_THREADS, 1) \
	name(const __grid_constant__ hzi_vlut_wgmma p) \
	BODY(words, columns, scaled)
#define KERNELS(name, words, scaled) \
	KERNEL(name##_16, words, 16, scaled) \
	KERNEL(name##_32, words, 32, scaled) \
	KERNEL(name##_64, words, 64, scaled) \
	KERNEL(name##_128, words, 128, scaled)

KERNELS(vlut_wgmma_fields, 0, false)
KERNELS(vlut_wgmma_d4, 1, false)
KERNELS(vlut_wgmma_d4_scaled, 1, true)
KERNELS(vlut_wgmma_d8, 2, false)
KERNELS(vlut_wgmma_d8_scaled, 2, true)
KERNEL(vlut_wgmma_values_16, VALUES, 16, false)
KERNEL(vlut_wgmma_values_32, VALUES, 32, false)
KERNEL(vlut_wgmma_values_64, VALUES, 64, false)
