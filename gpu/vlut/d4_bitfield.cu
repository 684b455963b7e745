/*
 * d4_bitfield.cu - packed D4 codes: packing, decoding to s8, skinny GEMM on u8 tensor cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Bitwise logic decodes eight lattice blocks of two levels at a time (d4_bitfield.cuh), without
 * tables. A word of one coordinate is an A operand of mma.m16n8k32 for u8 as it is: its bytes hold
 * nibbles of rows g and g + 8. The register of rows g has both nibbles, that of rows g + 8 the
 * upper one alone, and the accumulator of rows g + 8 is subtracted from that of rows g in the end.
 * The signs are a second A operand. A warp spends about 40 instructions on a chunk of 16 rows by 64
 * values, mma included.
 *
 * x becomes integers, split into signed 8-bit digits that are columns of the B operand: three
 * digits (22 bits and sign) for up to two vectors, two for more. Each split of k scales its largest
 * |x| to 2^21 .. 2^22, or to nearly 2^14 .. 2^15 with two digits. Accumulators are exact. Those of
 * warps, then of splits, are added in a fixed order.
 */
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/vlut/table_s8.cuh"
#include "gpu/vlut/d4_bitfield.cuh"
#include "gpu/vlut/d4_bitfield.h"

#define THREADS HZI_VLUT_D4_THREADS
#define WARPS (THREADS / 32)
#define ROWS HZI_VLUT_D4_ROWS
#define CHUNK HZI_VLUT_D4_CHUNK
#define BYTES HZI_VLUT_D4_BYTES
#define BATCH HZI_VLUT_D4_COLUMNS
#define STAGES HZI_VLUT_D4_STAGES
#define SIGNS 0x80808080

/* ---- Packing --------------------------------------------------------------------------------- */

/* Calls f(i, lane, chunk, tile) for all 16-byte pieces i of packed codes. */
template <class F>
HZ_DEVICE void for_each_piece(int64_t tiles, int64_t chunks, F f)
{
	const int64_t total = tiles * chunks * 32;

	for (int64_t i = (int64_t)blockIdx.x * HZI_VLUT_THREADS + threadIdx.x; i < total;
	     i += (int64_t)gridDim.x * HZI_VLUT_THREADS)
		f(i, (int)(i % 32), i / 32 % chunks, i / 32 / chunks);
}

extern "C" __global__ void __launch_bounds__(HZI_VLUT_THREADS)
vlut_d4_bitfield_pack(const __grid_constant__ hzi_vlut_d4_pack params)
{
	const hzi_vlut_bit_pack &p = params.of;
	const uint8_t *const codes = (const uint8_t *)p.codes;

	for_each_piece(p.tiles, p.chunks, [&](int64_t i, int lane, int64_t chunk, int64_t tile) {
		uint32_t w[4] = {};

		for (int n = 0; n < 16; n++) {
			const int nibble = n / 2, m = n % 2 - p.first;
			const int64_t row = tile * ROWS + nibble % 2 * 8 + lane / 4;
			const int64_t block = chunk * (CHUNK / 4) + lane % 4 * 4 + nibble / 2;
			uint32_t leader, flip = 0;

			if (m < 0 || row >= p.rows || block >= p.blocks)
				continue;
			leader = params.leaders[codes[row * p.row + block * p.block + m * p.level]];
			for (int e = 0; e < 4; e++) {
				const uint32_t c = leader >> 8 * e;

				w[e] |= (e < 3 ? c & 3 : c & 2) << 2 * n;
				flip |= (c >> 2 ^ c >> 1) & 1;
			}
			w[3] |= flip << 2 * n;
		}
		((uint4 *)p.packed)[i] = make_uint4(w[0], w[1], w[2], w[3]);
	});
}

/* A piece is four blocks of two rows. */
extern "C" __global__ void __launch_bounds__(HZI_VLUT_THREADS)
vlut_d4_bitfield_points_s8(const __grid_constant__ hzi_vlut_d4_points p)
{
	for_each_piece(p.tiles, p.chunks, [&](int64_t i, int lane, int64_t chunk, int64_t tile) {
		const int64_t block = chunk * (CHUNK / 4) + lane % 4 * 4;
		const uint4 v = ((const uint4 *)p.packed)[i];
		uint32_t w[4] = {v.x, v.y, v.z, v.w}, s[4];

		d4_signs(w, s);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int64_t row = tile * ROWS + 8 * h + lane / 4;
			uint32_t dst[4];

#pragma unroll
			for (int j = 0; j < 4; j++) {
				const int at = 8 * j + 4 * h;
				uint32_t point = 0, less = p.minus;

#pragma unroll
				for (int e = 0; e < 4; e++) {
					point |= (w[e] >> at & 15) << 8 * e;
					less = __vadd4(less, (s[e] >> at & 10) << (8 * e + 1));
				}
				dst[j] = __vsub4(point, less);
			}
			if (row < p.rows && block < p.blocks)
				*(uint4 *)(p.dst + row * p.pitch + 4 * block) =
					make_uint4(dst[0], dst[1], dst[2], dst[3]);
		}
	});
}

/* ---- Products -------------------------------------------------------------------------------- */

/*
 * NT: column tiles of 8. NT = 1: column 4 b + d is digit d of vector b, for up to 2 vectors; or
 * columns are vectors of s8. NT = 2: tile d is digit d of up to 8 vectors.
 */
template <int NT>
struct d4_bitfield_block {
	static constexpr int DIGITS = NT == 1 ? 3 : 2;
	/* x 2^shift is multiplied by this, so that the digits of the largest x fit s8 */
	static constexpr float LIMIT = NT == 1 ? 1 : 32639.0f / 32768.0f;
	static constexpr int X_BITS = NT == 1 ? 22 : 15;

	const hzi_vlut_d4_bitfield &p;
	const int tid, lane, warp, g, t;
	int begin, count;		/* chunks of this split */
	int tile0, tiles;		/* of this block */
	/* Items of x per vector (see first_value()); padded to whole warps */
	int items, padded;
	int columns;			/* of a tile of 8, in shared memory; the rest are copies */
	bool digits;			/* x is not s8 */
	uint32_t *absmax;			/* [vector] the largest |x| as float bits */
	/* [vector][digit] sums of x times o; prepare_rows() first keeps factors here */
	int32_t *offsets;
	/* [chunk][column tile][column][t]: word i is coordinate i */
	uint4 *x;
	uint4 *stages;			/* [warp][stage][lane] codes */
	int2 *spans;			/* [warp] first and last tile */
	float *partials, *totals;		/* [warp][slot][row][vector]; [tile][row][vector] */

	__device__ __forceinline__ explicit d4_bitfield_block(const hzi_vlut_d4_bitfield &p_)
		: p(p_), tid(threadIdx.x), lane(tid % 32), warp(tid / 32), g(lane / 4), t(lane % 4)
	{
		extern __shared__ __align__(16) uint8_t memory[];
		const int split = 1 << p.split_log2, part = blockIdx.x & split - 1;
		const int share = blockIdx.x >> p.split_log2;

		digits = p.x_dtype != HZ_S8;
		begin = p.chunks * part >> p.split_log2;
		count = (p.chunks * (part + 1) >> p.split_log2) - begin;
		tile0 = share * p.tiles_each + min(share, p.tiles_more);
		tiles = p.tiles_each + (share < p.tiles_more);
		columns = NT == 1 && p.batch == 1 ? 4 : 8;
		items = count * 16;
		padded = (items + 31) / 32 * 32;
		absmax = (uint32_t *)memory;
		offsets = (int32_t *)(absmax + BATCH);
		spans = (int2 *)(offsets + 3 * BATCH);
		stages = (uint4 *)(spans + WARPS);
		x = stages + WARPS * STAGES * 32;
		partials = (float *)(x + (p.chunks + split - 1 >> p.split_log2) * NT * columns * 4);
		totals = partials + (WARPS * p.slots * ROWS << p.batch_log2);
	}

	/* The first chunk of warp w, counted over the chunks of all tiles of this block */
	__device__ __forceinline__ int first_of(int w) const
	{
		return tiles * count * w / WARPS;
	}

	/*
	 * 2^shift scales the largest |x| of a vector to 2^(X_BITS - 1) or more; 0 if it is 0 or not
	 * finite.
	 */
	__device__ __forceinline__ int shift(int b) const
	{
		const int exponent = (int)(absmax[b] >> 23);

		return exponent == 255 || absmax[b] == 0 ? 0 : X_BITS - 1 + 127 - exponent;
	}

	/* f 2^i for i in -252 .. 254 */
	__device__ __forceinline__ static float times_power(float f, int i)
	{
		const int half = i / 2;

		return f * __int_as_float(half + 127 << 23) * __int_as_float(i - half + 127 << 23);
	}

	/*
	 * An item is coordinate i of the 16 values of unit 4 chunk + t: values i, 4 + i, 8 + i and
	 * 12 + i, which make one word per digit. Returns the word of column 0.
	 */
	__device__ __forceinline__ uint32_t *x_slot(int item) const
	{
		return (uint32_t *)(x + item / 16 * NT * columns * 4 + item / 4 % 4) + item % 4;
	}

	__device__ __forceinline__ int first_value(int item) const
	{
		return begin * CHUNK + item / 4 * 16 + item % 4;
	}

	/* The factor that makes x an integer, 2^shift LIMIT, as a product of two numbers */
	__device__ __forceinline__ float2 factors_of(int b) const
	{
		const int up = shift(b), half = up / 2;

		return digits ? make_float2(__int_as_float(half + 127 << 23),
					    __int_as_float(up - half + 127 << 23) * LIMIT) :
					    make_float2(1, 1);
	}

	/*
	 * Rounds f factor to an integer and returns its signed digits as bytes: adding 1.5 2^23
	 * leaves the integer in the low bits of the float.
	 */
	__device__ __forceinline__ static uint32_t to_digits(float f, float2 units)
	{
		return __float_as_uint(fmaf(f * units.x, units.y, 12582912.0f)) + 0x808080 -
		       0x400000 ^ 0x808080;
	}

	/* Digit d of four numbers, as one word */
	__device__ __forceinline__ static uint32_t pack_digit(uint32_t a, uint32_t b, uint32_t c,
							      uint32_t e, int d)
	{
		const uint32_t pick = d | (d + 4) << 4;

		return __byte_perm(__byte_perm(a, b, pick), __byte_perm(c, e, pick), 0x5410);
	}

	/* Offset in words from column 0 to the column of digit d of vector b */
	__device__ __forceinline__ int digit_offset(int b, int d) const
	{
		return (NT == 2 ? d * 8 + b : digits ? 4 * b + d : b) * 16;
	}

	__device__ __forceinline__ void store_item(const float (&f)[4], int b, uint32_t *dst,
						   float2 units) const
	{
		uint32_t v[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = to_digits(f[i], units);
#pragma unroll
		for (int d = 0; d < DIGITS; d++)
			if (d == 0 || digits)
				dst[digit_offset(b, d)] = pack_digit(v[0], v[1], v[2], v[3], d);
	}

	/* Sums of x times o, to be subtracted in the end: one warp per vector and digit */
	__device__ __forceinline__ void dot_offsets(void) const
	{
		const int digit_count = digits ? DIGITS : 1;

		for (int i = warp; i < p.batch * digit_count; i += WARPS) {
			const int b = i / digit_count, d = i % digit_count;
			int sum = 0;

			for (int unit = lane; unit < count * 4; unit += 32) {
				const uint32_t *at = x_slot(unit * 4) + digit_offset(b, d);

#pragma unroll
				for (int e = 0; e < 4; e++)
					sum += p.offset[e] * __dp4a((int)at[e], 0x01010101, 0);
			}
			sum = __reduce_add_sync(~0u, sum);
			if (lane == 0)
				offsets[3 * b + d] = sum;
		}
	}

	/* Loads x before the loads of codes are issued, which saturate memory bandwidth. */
	struct x_items {
		static constexpr int EACH = 4;		/* per thread at a time */
		float f[EACH][4];
	};

	__device__ __forceinline__ int vector_of(int i) const
	{
		return p.batch == 1 ? 0 : i / padded;
	}

	__device__ __forceinline__ void load_items(x_items &x, int first) const
	{
#pragma unroll
		for (int r = 0; r < x_items::EACH; r++) {
			const int i = first + r * THREADS + tid, b = vector_of(i),
				  item = i - b * padded;
			const int k = first_value(item);

			load_strided<1, 4>(x.f[r], p.x_dtype, p.x, b * p.x_b + k * p.x_k, p.x_k,
					   b < p.batch && item < items ? p.k - k : 0);
		}
	}

	/*
	 * Two passes over x: the largest |x|, then digits. All items of a warp belong to one
	 * vector.
	 */
	__device__ __forceinline__ void prepare_x(x_items &x) const
	{
		constexpr int AT_ONCE = x_items::EACH * THREADS;
		const int total = padded * p.batch;

#pragma unroll 1
		for (int pass = digits ? 0 : 1; pass < 2; pass++) {
#pragma unroll 1
			for (int first = 0; first < total; first += AT_ONCE) {
				if (total > AT_ONCE && (pass > 0 || first > 0))
					load_items(x, first);
#pragma unroll
				for (int r = 0; r < x_items::EACH; r++) {
					const int i = first + r * THREADS + tid, b = vector_of(i),
						  item = i - b * padded;

					if (i - lane >= total)
						break;
					if (pass == 0) {
						uint32_t u = 0;

#pragma unroll
						for (int j = 0; j < 4; j++)
							u = max(u, __float_as_uint(x.f[r][j]) &
								0x7fffffff);
						u = __reduce_max_sync(~0u, u);
						if (lane == 0)
							atomicMax(&absmax[b], u);
					} else {
						if (item < items)
							store_item(x.f[r], b, x_slot(item),
								   factors_of(b));
					}
				}
			}
			__syncthreads();
		}
	}

	/*
	 * x_vectorized with 8 vectors: an item is 16 aligned bytes of f16 of all vectors, for each
	 * of its 4 rows.
	 */
	struct x_rows {
		static constexpr int EACH = 2;
		uint32_t row[EACH][4][4];
	};

	__device__ __forceinline__ void load_rows(x_rows &x, int first) const
	{
#pragma unroll
		for (int r = 0; r < x_rows::EACH; r++) {
			const int item = first + r * THREADS + tid;

#pragma unroll
			for (int j = 0; j < 4; j++) {
				const int k = first_value(item) + 4 * j;
				uint4 v = make_uint4(0, 0, 0, 0);

				if (item < items && k < p.k)
					v = *(const uint4 *)((const uint16_t *)p.x + k * p.x_k);
				x.row[r][j][0] = v.x;
				x.row[r][j][1] = v.y;
				x.row[r][j][2] = v.z;
				x.row[r][j][3] = v.w;
			}
		}
	}

	__device__ __forceinline__ void prepare_rows(x_rows &x) const
	{
		constexpr int AT_ONCE = x_rows::EACH * THREADS;
		uint32_t largest[4] = {};
		float scale[8];

#pragma unroll 1
		for (int first = 0; first < items; first += AT_ONCE) {
			if (first > 0)
				load_rows(x, first);
#pragma unroll
			for (int j = 0; j < 16 * x_rows::EACH; j++)
				largest[j % 4] = __vmaxu2(largest[j % 4],
							  x.row[j / 16][j / 4 % 4][j % 4] &
							  0x7fff7fff);
		}
#pragma unroll
		for (int c = 0; c < 8; c++) {
			const uint32_t u = __reduce_max_sync(~0u, largest[c / 2] >> 16 * (c % 2) &
							     0xffff);

			if (lane == c)
				atomicMax(&absmax[c], __float_as_uint(f16_low(u)));
		}
		__syncthreads();
		if (tid < 8) {
			const float2 units = factors_of(tid);

			((float *)offsets)[tid] = units.x * units.y;
		}
		__syncthreads();
#pragma unroll
		for (int c = 0; c < 8; c++)
			scale[c] = ((float *)offsets)[c];
#pragma unroll 1
		for (int first = 0; first < items; first += AT_ONCE) {
			if (items > AT_ONCE)
				load_rows(x, first);
#pragma unroll
			for (int r = 0; r < x_rows::EACH; r++) {
				const int item = first + r * THREADS + tid;

				uint32_t *dst = x_slot(item);

				if (item >= items)
					break;
#pragma unroll
				for (int c = 0; c < 8; c++) {
					float f[4];

#pragma unroll
					for (int j = 0; j < 4; j++)
						f[j] = c % 2 ? f16_high(x.row[r][j][c / 2]) :
						       f16_low(x.row[r][j][c / 2]);
					store_item(f, c, dst, make_float2(scale[c], 1));
				}
			}
		}
		__syncthreads();
	}

	/* x_vectorized with one contiguous vector of f16: a thread has a unit of 16 values. */
	struct x_units {
		uint32_t v[8];
	};

	__device__ __forceinline__ void load_unit(x_units &x, int unit) const
	{
		const int k = begin * CHUNK + unit * 16;
		uint4 v[2] = {};

		if (unit < count * 4 && k < p.k) {
			v[0] = ((const uint4 *)((const uint16_t *)p.x + k))[0];
			v[1] = ((const uint4 *)((const uint16_t *)p.x + k))[1];
		}
#pragma unroll
		for (int i = 0; i < 2; i++) {
			x.v[4 * i] = v[i].x;
			x.v[4 * i + 1] = v[i].y;
			x.v[4 * i + 2] = v[i].z;
			x.v[4 * i + 3] = v[i].w;
		}
	}

	__device__ __forceinline__ void prepare_units(x_units &x) const
	{
		const int units = count * 4;
		uint32_t u = 0;
		float2 scale;

#pragma unroll 1
		for (int unit = tid; unit - lane < units; unit += THREADS) {
			if (unit >= THREADS)
				load_unit(x, unit);
#pragma unroll
			for (int i = 0; i < 8; i++)
				u = __vmaxu2(u, x.v[i] & 0x7fff7fff);
		}
		u = __reduce_max_sync(~0u, max(u >> 16, u & 0xffff));
		if (lane == 0)
			atomicMax(&absmax[0], __float_as_uint(f16_low(u)));
		__syncthreads();
		scale = factors_of(0);
#pragma unroll 1
		for (int unit = tid; unit - lane < units; unit += THREADS) {
			uint32_t v[16];

			if (units > THREADS)
				load_unit(x, unit);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				v[2 * i] = to_digits(f16_low(x.v[i]), scale);
				v[2 * i + 1] = to_digits(f16_high(x.v[i]), scale);
			}
#pragma unroll
			for (int d = 0; d < DIGITS; d++) {
				uint32_t w[4];

#pragma unroll
				for (int i = 0; i < 4; i++)
					w[i] = pack_digit(v[i], v[4 + i], v[8 + i], v[12 + i], d);
				if (unit < units)
					*(uint4 *)(x_slot(unit * 4) + d * 16) =
						make_uint4(w[0], w[1], w[2], w[3]);
			}
		}
		__syncthreads();
	}

	/* ---- Codes: cp.async of pairs of chunks, 16 bytes per lane ---- */

	struct codes {
		const uint8_t *src;	/* this lane's part of the next chunk */
		int left, chunks;	/* chunks left in the tile; in all */
		uint32_t ring, at;	/* shared addresses: first stage; next one to load */
	};

	__device__ __forceinline__ void load_pair(codes &q) const
	{
		if (q.chunks >= 2 && q.left > 2) {
			cp_async(q.at, q.src);
			cp_async(q.at + BYTES, q.src + BYTES);
			q.src += 2 * BYTES;
			q.left -= 2;
		} else {
#pragma unroll
			for (int i = 0; i < 2; i++) {
				if (q.chunks > i)
					cp_async(q.at + i * BYTES, q.src);
				q.src += BYTES;
				if (--q.left == 0) {
					q.left = count;
					q.src += (int64_t)(p.chunks - count) * BYTES;
				}
			}
		}
		q.chunks -= 2;
		cp_async_commit();
		q.at = next_stage(q.ring, q.at);
	}

	__device__ __forceinline__ static uint32_t next_stage(uint32_t ring, uint32_t at)
	{
		return at == ring + (STAGES - 2) * BYTES ? ring : at + 2 * BYTES;
	}

	template <class Fetch, class Prepare>
	__device__ __forceinline__ void run(Fetch fetch, Prepare prepare)
	{
		const int lo = first_of(warp), hi = first_of(warp + 1);
		int32_t acc[NT][4] = {}, signs[NT][4] = {};
		int c = lo % count, slot = 0;
		codes q;

		q.src = p.packed + lane * 16 +
			((int64_t)(tile0 + lo / count) * p.chunks + begin + c) * BYTES;
		q.left = count - c;
		q.chunks = hi - lo;
		q.ring = q.at = shared_address(stages) + (warp * STAGES * 32 + lane) * 16;
		if (tid < BATCH)
			absmax[tid] = 0;
		if (lane == 0)
			spans[warp] = make_int2(lo < hi ? lo / count : 1,
						lo < hi ? (hi - 1) / count : 0);
		__syncthreads();
		pdl_wait();
		pdl_launch_dependents();
		fetch();
#pragma unroll
		for (int d = 0; d < STAGES / 2 - 1; d++)
			load_pair(q);
		prepare();
		if (p.has_offset)
			dot_offsets();

		const uint32_t x0 = shared_address(x + (g & (columns - 1)) * 4 + t),
			       step_x = NT * columns * 64;
		uint32_t xl = x0 + c * step_x, at = q.ring;

#pragma unroll 1
		for (int s = lo; s < hi; s += 2) {
			load_pair(q);
			/* No barrier: each lane reads what it copied itself. */
			cp_async_wait<STAGES / 2 - 1>();
#pragma unroll
			for (int i = 0; i < 2; i++) {
				uint32_t w[4];

				shared_load(w, at + i * BYTES);
				step(acc, signs, w, xl);
				xl += step_x;
				if (++c == count || s + i + 1 == hi) {
					flush(acc, signs, slot++);
					c = 0;
					xl = x0;
				}
				if (s + i + 1 == hi)
					break;
			}
			at = next_stage(q.ring, at);
		}
		finish();
	}

	__device__ __forceinline__ void run(void)
	{
		if (!p.x_vectorized) {
			x_items x;

			run([&]() { load_items(x, 0); }, [&]() { prepare_x(x); });
		} else if constexpr (NT == 1) {
			x_units x;

			run([&]() { load_unit(x, tid); }, [&]() { prepare_units(x); });
		} else {
			x_rows x;

			run([&]() { load_rows(x, 0); }, [&]() { prepare_rows(x); });
		}
	}

	__device__ __forceinline__ void step(int32_t (&acc)[NT][4], int32_t (&signs)[NT][4],
					     uint32_t (&w)[4], uint32_t xl) const
	{
		uint32_t s[4];

		d4_signs(w, s);
#pragma unroll
		for (int n = 0; n < NT; n++) {
			uint32_t b[4];

			shared_load(b, xl + n * columns * 64);
			mma_m16n8k32<false, true>(acc[n], w[0], w[0] & 0xf0f0f0f0, w[1],
						  w[1] & 0xf0f0f0f0, b[0], b[1]);
			mma_m16n8k32<false, true>(signs[n], s[0] & 0x0a0a0a0a, s[0] & 0xa0a0a0a0,
						  s[1] & 0x0a0a0a0a, s[1] & 0xa0a0a0a0, b[0], b[1]);
			mma_m16n8k32<false, true>(acc[n], w[2], w[2] & 0xf0f0f0f0, w[3],
						  w[3] & 0xf0f0f0f0, b[2], b[3]);
			mma_m16n8k32<false, true>(signs[n], s[2] & 0x0a0a0a0a, s[2] & 0xa0a0a0a0,
						  s[3] & 0x0a0a0a0a, s[3] & 0xa0a0a0a0, b[2], b[3]);
		}
	}

	/*
	 * Writes a warp's sums of a tile as floats, in units of the integers of x; for x of s8, as
	 * the bits of the integers.
	 */
	__device__ __forceinline__ void flush(int32_t (&acc)[NT][4], int32_t (&signs)[NT][4],
					      int slot) const
	{
		float *dst = partials + ((warp * p.slots + slot) * ROWS << p.batch_log2);
		int32_t integer[NT][4];

#pragma unroll
		for (int n = 0; n < NT; n++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				/* rows g minus rows g + 8, which are 16 times too large */
				integer[n][e] = acc[n][e] - acc[n][2 + e] - 2 * signs[n][e];
				integer[n][2 + e] = (acc[n][2 + e] - 2 * signs[n][2 + e]) >> 4;
				acc[n][e] = acc[n][2 + e] = signs[n][e] = signs[n][2 + e] = 0;
			}
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int r = h * 8 + g;
			float v[2];

#pragma unroll
			for (int e = 0; e < 2; e++) {
				v[e] = (float)integer[0][2 * h + e];
				if (NT == 2)
					v[e] += 256.0f * (float)integer[NT - 1][2 * h + e];
			}
			if (NT == 1 && digits) {
				/* lane t even has digits 0 and 1 of a vector, lane t + 1 digit 2 */
				const float low = v[0] + 256.0f * v[1];
				const float high = __shfl_down_sync(~0u, v[0], 1);

				if (t % 2 == 0 && t / 2 < p.batch)
					dst[(r << p.batch_log2) + t / 2] = low + 65536.0f * high;
				continue;
			}
#pragma unroll
			for (int e = 0; e < 2; e++)
				if (2 * t + e < p.batch)
					dst[(r << p.batch_log2) + 2 * t + e] = digits ? v[e] :
						__int_as_float(integer[0][2 * h + e]);
		}
	}

	/* Adds up the warps' sums, scaled to x; for x of s8, returns the bits of the integer. */
	__device__ __forceinline__ float add_warps(int i) const
	{
		const int width_log2 = 4 + p.batch_log2, tile = i >> width_log2,
			  b = i & (1 << p.batch_log2) - 1;
		int32_t integer = 0;
		float s = 0;

#pragma unroll
		for (int w = 0; w < WARPS; w++) {
			const int2 span = spans[w];
			const bool in = span.x <= tile && tile <= span.y;
			const float f = in ? partials[(w * p.slots - span.x << width_log2) + i] : 0;

			s += f;
			integer += __float_as_int(f);
		}
		if (!digits)
			return __int_as_float(integer - (p.has_offset ? offsets[3 * b] : 0));
		for (int d = 0; d < DIGITS && p.has_offset; d++)
			s -= (float)offsets[3 * b + d] * (float)(1 << 8 * d);
		return absmax[b] >= 0x7f800000 ? __uint_as_float(0x7fffffff) :
		       times_power(s * (1 / LIMIT), -shift(b));
	}

	/* Row and vector of element i of the tiles' sums; false if that is padding. */
	__device__ __forceinline__ bool result_index(int i, int64_t &row, int &b) const
	{
		row = (int64_t)tile0 * ROWS + (i >> p.batch_log2);
		b = i & (1 << p.batch_log2) - 1;
		return row < p.rows && b < p.batch;
	}

	__device__ __forceinline__ void store(int64_t row, int b, float s, int32_t integer) const
	{
		if (p.y_dtype == HZ_S32) {
			((int32_t *)p.y)[row * p.y_i + b * p.y_b] = integer;
			return;
		}
		store_scaled(p, row, b, digits ? s : (float)integer);
	}

	/* Adds sums of warps, then of splits, and stores y. */
	__device__ __forceinline__ void finish(void) const
	{
		const int n = tiles * ROWS << p.batch_log2, split = 1 << p.split_log2;
		int64_t row;
		int b;

		__syncthreads();
		for (int i = tid; i < n; i += THREADS) {
			const float s = add_warps(i);

			if (split > 1)
				totals[i] = s;
			else if (result_index(i, row, b))
				store(row, b, s, __float_as_int(s));
		}
		if (split == 1)
			return;
		cluster_publish(warp);
		for (int i = tid + (blockIdx.x & split - 1) * THREADS; i < n;
		     i += THREADS * split) {
			int32_t integer = 0;
			float s = 0;

			if (!result_index(i, row, b))
				continue;
			for (int z = 0; z < split; z++) {
				const float f = cluster_load(cluster_map(shared_address(totals + i),
									 z));

				s += f;
				integer += __float_as_int(f);
			}
			store(row, b, s, integer);
		}
		__syncwarp();
		cluster_arrive_relaxed();
		cluster_wait();
	}
};

/* Two blocks fit an SM: one of this kernel and one of its PDL successor. */
#define KERNEL(name, tiles) \
	extern "C" __global__ void __launch_bounds__(THREADS, 2) \
	name(const __grid_constant__ hzi_vlut_d4_bitfield p) \
	{ \
		d4_bitfield_block<tiles>(p).run(); \
	}

KERNEL(vlut_d4_bitfield_2, 1)
KERNEL(vlut_d4_bitfield_8, 2)
