/*
 * e8_bitplane.cu - packed E8 codes: packing, decoding, GEMV of one or two columns on 1-bit tensor
 * cores
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * mma.m16n8k256 of single bits counts where bits of A and B are both 1. A are the bit-planes b, l,
 * v and s of leaders, 32 to a word; the columns of B are the bits of x as an integer. There are no
 * tables, and the logic of e8_bitplane.cuh uses all bits of its words.
 *
 * A unit is 16 rows by 1024 values of one level. The upper level has 4 times the weight, so its
 * columns of B start two columns lower. s is inverted, which makes the sums those of the point plus
 * 40. With one vector the bits of each plane are counted separately. With two vectors registers do
 * not suffice for that: columns for l start one column lower than those for b, columns for v two,
 * those for s three. x is an integer of 21 bits, or 19, sign included, so that 4 x or 32 x has at
 * most 24 bits.
 */
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/reduce.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/vlut/table_s8.cuh"
#include "gpu/vlut/e8_bitplane.cuh"

#define THREADS HZI_VLUT_E8_THREADS
#define WARPS (THREADS / 32)
#define ROWS HZI_VLUT_E8_ROWS
#define UNIT HZI_VLUT_E8_UNIT
#define UNIT_BYTES HZI_VLUT_E8_UNIT_BYTES
#define STAGES HZI_VLUT_E8_STAGES
#define NT (HZI_VLUT_E8_X_BITS / 8)

/* ---- Packing --------------------------------------------------------------------------------- */

/* One thread packs the 16 words of a row of a lane. */
extern "C" __global__ void __launch_bounds__(HZI_VLUT_THREADS)
vlut_e8_bitplane_pack(const __grid_constant__ hzi_vlut_bit_pack p)
{
	const uint16_t *const codes = (const uint16_t *)p.codes;
	const int64_t total = p.tiles * p.chunks * 128;

	for (int64_t i = (int64_t)blockIdx.x * HZI_VLUT_THREADS + threadIdx.x; i < total;
	     i += (int64_t)gridDim.x * HZI_VLUT_THREADS) {
		const int lane = (int)(i % 32), r = (int)(i / 32 % 2);
		const int level = (int)(i / 64 % 2), m = level - p.first;
		const int64_t unit = i / 128 % p.chunks, tile = i / 128 / p.chunks;
		const int64_t row = tile * ROWS + 8 * r + lane / 4;
		uint32_t *dst = (uint32_t *)p.packed + i / 64 * (UNIT_BYTES / 4);
		uint32_t w[16] = {};

		for (int n = 0; n < 32; n++) {
			const int64_t block = unit * 128 + n * 4 + lane % 4;
			uint32_t code, h = 0, odd = 0;

			if (m < 0 || row >= p.rows || block >= p.blocks)
				continue;
			code = codes[row * p.row + block * p.block + m * p.level];
#pragma unroll
			for (int e = 0; e < 8; e++) {
				/*
				 * b + 2 (z_e - z_(e+1)), with 2 z_0 as the first: twice a point of
				 * the coset
				 */
				const int z = code >> 2 * e & 3, next = code >> (2 * e + 2) & 3;
				const int c = (int)(code >> 14) +
					      (e == 7 ? 0 :
					       2 * (e == 0 ? 2 * z - next : e == 6 ? z : z - next));

				if (e < 7)
					w[E8_L + e] |= (uint32_t)(c >> 1 & 1) << n;
				h |= (uint32_t)(c >> 2 & 1) << e;
				odd ^= (uint32_t)((c >> 3) + (c >> 2)) & 1;
			}
			if (h >> 7) {
				odd ^= __popc(h) & 1;
				h ^= 0xff;
			}
			w[E8_B] |= (code >> 14 & 1) << n;
			w[E8_ODD] |= odd << n;
#pragma unroll
			for (int e = 0; e < 7; e++)
				w[E8_H + e] |= (h >> e & 1) << n;
		}
#pragma unroll
		for (int e = 0; e < 16; e += 4)
			*(uint4 *)(dst + e8_word(lane, r, e)) =
				make_uint4(w[e], w[e + 1], w[e + 2], w[e + 3]);
	}
}

/* ---- Points ---------------------------------------------------------------------------------- */

/* Exchanges S-bit fields: afterwards a has the even fields of both, b the odd ones. */
template <int S>
HZ_DEVICE void swap_bits(uint32_t &a, uint32_t &b)
{
	constexpr uint32_t mask = S == 1 ? 0x55555555 : 0x33333333;
	const uint32_t t = a;

	a = select_bits(mask, t, b << S);
	b = select_bits(mask, t >> S, b);
}

/* Stores eight coordinates of a point, bytes of `points` that are 40 too large, as s8 minus o. */
HZ_DEVICE void store_points(const hzi_vlut_e8_points &p, int8_t *dst,
			    const uint32_t (&points)[8][4], int i, int byte)
{
	uint32_t v[2];

#pragma unroll
	for (int e = 0; e < 8; e += 4) {
		const uint32_t pick = byte | (4 + byte) << 4;
		uint32_t less = 0;

#pragma unroll
		for (int c = 0; c < 4; c++)
			less |= (uint32_t)(40 + p.offset[e + c] & 0xff) << 8 * c;
		v[e / 4] = __vsub4(
			__byte_perm(__byte_perm(points[e][i], points[e + 1][i], pick),
				    __byte_perm(points[e + 2][i], points[e + 3][i], pick), 0x5410),
			less);
	}
	*(uint2 *)dst = make_uint2(v[0], v[1]);
}

/* The same as f16 values */
HZ_DEVICE void store_points(const hzi_vlut_e8_points &p, uint16_t *dst,
			    const uint32_t (&points)[8][4], int i, int byte)
{
	uint32_t v[4];
	float f[8];

#pragma unroll
	for (int e = 0; e < 8; e++) {
		/* The byte as a float plus 2^23 */
		const uint32_t u = __byte_perm(points[e][i], 0x4b000000, 0x7440 + byte);
		const float less = (float)(8388608 + 40 + p.offset[e]);

		f[e] = fmaf(__uint_as_float(u) - less, p.factor, -p.sub[e]);
	}
#pragma unroll
	for (int e = 0; e < 4; e++)
		v[e] = to_f16x2(f[2 * e], f[2 * e + 1]);
	*(uint4 *)dst = make_uint4(v[0], v[1], v[2], v[3]);
}

/*
 * Coordinates plus 8 of 32 leaders: nibble k of n[e][i] is coordinate e of leader 4 k + i; 8 if
 * !in.
 */
HZ_DEVICE void load_nibbles(uint32_t (&n)[8][4], const uint32_t *src, int lane, int r, bool in)
{
	uint32_t w[16], l[8], v[8], s[8];

#pragma unroll
	for (int e = 0; e < 16; e += 4) {
		const uint4 u = *(const uint4 *)(src + e8_word(lane, r, e));

		w[e] = u.x;
		w[e + 1] = u.y;
		w[e + 2] = u.z;
		w[e + 3] = u.w;
	}
	e8_leaders(w, l, v, s);
#pragma unroll
	for (int e = 0; e < 8; e++) {
		n[e][0] = in ? w[E8_B] : 0;
		n[e][1] = in ? l[e] : 0;
		n[e][2] = in ? v[e] : 0;
		n[e][3] = in ? ~s[e] : ~0u;
		swap_bits<1>(n[e][0], n[e][1]);
		swap_bits<1>(n[e][2], n[e][3]);
		swap_bits<2>(n[e][0], n[e][2]);
		swap_bits<2>(n[e][1], n[e][3]);
	}
}

/* One thread decodes the words of a row of a lane: 32 blocks of type T. */
template <class T>
HZ_DEVICE void decode_rows(const hzi_vlut_e8_points &p)
{
	const int64_t total = p.tiles * p.units * 64;

	for (int64_t at = (int64_t)blockIdx.x * HZI_VLUT_THREADS + threadIdx.x; at < total;
	     at += (int64_t)gridDim.x * HZI_VLUT_THREADS) {
		const int lane = (int)(at % 32), r = (int)(at / 32 % 2);
		const int64_t unit = at / 64 % p.units, tile = at / 64 / p.units;
		const int64_t row = tile * ROWS + 8 * r + lane / 4;
		const uint32_t *src = (const uint32_t *)p.packed +
				      (tile * p.units + unit) * (UNIT_BYTES / 2);
		uint32_t n[2][8][4];

		if (row >= p.rows)
			continue;
#pragma unroll
		for (int m = 0; m < 2; m++)
			load_nibbles(n[m], src + m * (UNIT_BYTES / 4), lane, r, m >= p.first);
#pragma unroll
		for (int half = 0; half < 2; half++) {
			/* Bytes: block i + 4 half, and 8, 16 and 24 further */
			uint32_t points[8][4];

#pragma unroll
			for (int e = 0; e < 8; e++)
#pragma unroll
				for (int i = 0; i < 4; i++)
					points[e][i] = (n[0][e][i] >> 4 * half & 0x0f0f0f0f) +
						       (n[1][e][i] >> 4 * half & 0x0f0f0f0f) * 4;
#pragma unroll
			for (int i = 0; i < 4; i++)
#pragma unroll
				for (int byte = 0; byte < 4; byte++) {
					const int64_t block = unit * 128 + lane % 4 +
							      4 * (i + half * 4 + byte * 8);
					T *dst = (T *)p.dst + row * p.pitch + block * 8;

					if (block < p.blocks)
						store_points(p, dst, points, i, byte);
				}
		}
	}
}

#define DECODE(name, type) \
	HZ_KERNEL(name, hzi_vlut_e8_points, (HZI_VLUT_THREADS), decode_rows<type>(p))
DECODE(vlut_e8_bitplane_values_f16, uint16_t)
DECODE(vlut_e8_bitplane_points_s8, int8_t)

/* ---- Products -------------------------------------------------------------------------------- */

/*
 * Transposes 8 x 8 bits, rows being the bytes of low, then high: bit r of byte q becomes bit q of
 * byte r.
 */
HZ_DEVICE void transpose_bits(uint32_t &low, uint32_t &high)
{
	uint32_t t;

	t = (low ^ low >> 7) & 0x00aa00aa;
	low ^= t ^ t << 7;
	t = (high ^ high >> 7) & 0x00aa00aa;
	high ^= t ^ t << 7;
	t = (low ^ low >> 14) & 0x0000cccc;
	low ^= t ^ t << 14;
	t = (high ^ high >> 14) & 0x0000cccc;
	high ^= t ^ t << 14;
	t = low;
	low = select_bits(0x0f0f0f0f, t, high << 4);
	high = select_bits(0x0f0f0f0f, t >> 4, high);
}

/* V: columns of x */
template <int V>
struct e8_bitplane_block {
	static constexpr int TILES = V * NT;	/* column tiles of 8 */
	static constexpr int KINDS = V == 1 ? 4 : 1;	/* kinds of bit-planes counted apart */
	static constexpr int X_BITS = V == 1 ? 20 : 18;	/* of |x| */
	static constexpr int X_BYTES = V * HZI_VLUT_E8_X_BYTES;
	static constexpr int COLUMNS = HZI_VLUT_E8_X_BITS + HZI_VLUT_E8_ZERO_BITS;

	const hzi_vlut_e8_bitplane &p;
	const int tid, lane, warp, g, t;
	int tile0, tiles;		/* of this block */
	int32_t *offset;		/* [vector][low 16 bits, high bits] of x times o + 40 */
	uint32_t *absmax;			/* [vector] the largest |x| as float bits */
	uint8_t *stages;		/* [warp][stage][unit] codes */
	/*
	 * [unit][vector][half of the coordinates][column][t]: word i is coordinate i of that half
	 */
	uint8_t *x;
	int32_t *partials;			/* [tile][row][column tile] */

	__device__ __forceinline__ explicit e8_bitplane_block(const hzi_vlut_e8_bitplane &p_)
		: p(p_), tid(threadIdx.x), lane(tid % 32), warp(tid / 32), g(lane / 4),
		  t(lane % 4)
	{
		extern __shared__ __align__(16) uint8_t memory[];
		const int share = blockIdx.x;

		tile0 = share * p.tiles_each + min(share, p.tiles_more);
		tiles = p.tiles_each + (share < p.tiles_more);
		offset = (int32_t *)memory;
		absmax = (uint32_t *)(offset + 4);
		stages = memory + 32;
		x = memory + HZI_VLUT_E8_FIXED_BYTES;
		partials = (int32_t *)(x + p.units * X_BYTES);
	}

	/* 2^shift scales the largest |x| to half of 2^X_BITS or more; x of s8 is not scaled. */
	__device__ __forceinline__ int shift(int b) const
	{
		const int exponent = (int)(absmax[b] >> 23);

		return p.x_dtype == HZ_S8 ? 0 : X_BITS - 1 + 127 - max(exponent, 1);
	}

	/* 2^n as a product of two numbers */
	__device__ __forceinline__ static float2 powers(int n)
	{
		return make_float2(__int_as_float((n >> 1) + 127 << 23),
				   __int_as_float(n - (n >> 1) + 127 << 23));
	}

	/* ---- x: an item is coordinate lane % 8 of half a unit's blocks of t = lane / 8 ---- */

	struct item {
		float f[16];
	};

	__device__ __forceinline__ void load_item(item &x, int at) const
	{
		const int per = p.units * 64, b = V == 1 ? 0 : at / per, i = at - b * per;
		const int k = i / 32 * (UNIT / 2) + i % 32;

		load_strided<1, 32>(x.f, p.x_dtype, p.x, b * p.x_b + k * p.x_k, p.x_k,
				    b < V ? p.k - k : 0);
	}

	/* Stores the bits of an item in their columns; returns the sum of its integers. */
	__device__ __forceinline__ int store_item(const item &src, int at, float2 unit) const
	{
		const int per = p.units * 64, b = V == 1 ? 0 : at / per, i = at - b * per;
		uint8_t *dst = x + (i / 64 * V + b) * HZI_VLUT_E8_X_BYTES +
			       i % 8 / 4 * (COLUMNS * 64) + i % 32 / 8 * 16 + i % 4 * 4 +
			       i / 32 % 2 * 2;
		uint32_t v[16];
		int sum = 0;

#pragma unroll
		for (int j = 0; j < 16; j++) {
			/* Adding 1.5 2^23 leaves the integer in the low bits of the float. */
			const int n = __float_as_int(fmaf(src.f[j] * unit.x, unit.y,
							  12582912.0f)) - 0x4b400000;

			v[j] = (uint32_t)min(n, (1 << X_BITS) - 1);
			sum += (int)v[j];
		}
#pragma unroll
		for (int c = 0; c < HZI_VLUT_E8_ZERO_BITS; c++)
			*(uint16_t *)(dst + c * 64) = 0;
		dst += HZI_VLUT_E8_ZERO_BITS * 64;
#pragma unroll
		for (int byte = 0; byte < 3; byte++) {
			const uint32_t pick = byte | (4 + byte) << 4;
			uint32_t r[4];

#pragma unroll
			for (int j = 0; j < 4; j++)
				r[j] = __byte_perm(__byte_perm(v[4 * j], v[4 * j + 1], pick),
						   __byte_perm(v[4 * j + 2], v[4 * j + 3], pick),
						   0x5410);
			transpose_bits(r[0], r[1]);
			transpose_bits(r[2], r[3]);
			/* Bits 2 n and 2 n + 1 of all 16 values */
#pragma unroll
			for (int n = 0; n < 4; n++) {
				const uint32_t pair = __byte_perm(r[n / 2], r[2 + n / 2],
								  n % 2 ? 0x7362 : 0x5140);

				*(uint16_t *)(dst + (byte * 8 + 2 * n) * 64) = (uint16_t)pair;
				*(uint16_t *)(dst + (byte * 8 + 2 * n + 1) * 64) =
					(uint16_t)(pair >> 16);
			}
		}
		return sum;
	}

	__device__ __forceinline__ void add_offset(int b, int sum) const
	{
		const int low = __reduce_add_sync(~0u, sum & 0xffff);
		const int high = __reduce_add_sync(~0u, sum >> 16);

		if (lane == 0) {
			atomicAdd(offset + 2 * b, low);
			atomicAdd(offset + 2 * b + 1, high);
		}
	}

	__device__ __forceinline__ void add_absmax(const item &x, int at) const
	{
		const int b = V == 1 ? 0 : at / (p.units * 64);
		uint32_t u = 0;

#pragma unroll
		for (int j = 0; j < 16; j++)
			u = max(u, __float_as_uint(x.f[j]) & 0x7fffffff);
		u = __reduce_max_sync(~0u, u);
		if (lane == 0)
			atomicMax(&absmax[b], u);
	}

	static constexpr int EACH = 2;		/* items per thread at a time */

	/*
	 * mine: items loaded before the loads of codes are issued, which saturate memory bandwidth.
	 * All items of a warp belong to one unit and vector.
	 */
	__device__ __forceinline__ void prepare_x(item (&mine)[EACH]) const
	{
		const int items = V * p.units * 64;

#pragma unroll 1
		for (int first = 0; first < items; first += EACH * THREADS) {
#pragma unroll
			for (int e = 0; e < EACH; e++) {
				const int at = first + e * THREADS + tid;

				if (first > 0 && at < items)
					load_item(mine[e], at);
				if (at < items)
					add_absmax(mine[e], at);
			}
		}
		__syncthreads();
#pragma unroll 1
		for (int first = 0; first < items; first += EACH * THREADS) {
#pragma unroll
			for (int e = 0; e < EACH; e++) {
				const int at = first + e * THREADS + tid;
				const int b = V == 1 ? 0 : at / (p.units * 64);
				int sum;

				if (at >= items)
					break;
				if (items > EACH * THREADS)
					load_item(mine[e], at);
				sum = store_item(mine[e], at, powers(shift(b)));
				add_offset(b, sum * p.offset[lane % 8]);
			}
		}
		__syncthreads();
	}

	/* ---- Codes: cp.async of units ---- */

	__device__ __forceinline__ void load_unit(const uint8_t *src, uint32_t dst, bool in) const
	{
		if (in) {
#pragma unroll
			for (int c = 0; c < UNIT_BYTES / 512; c++)
				cp_async(dst + c * 512, src + c * 512);
		}
		cp_async_commit();
	}

	/* Loads column tile c for all coordinates. */
	__device__ __forceinline__ static void load_columns(uint32_t (&x)[8], uint32_t columns,
							    int c)
	{
#pragma unroll
		for (int i = 0; i < 8; i += 4) {
			uint32_t u[4];

			shared_load(u, columns + c / NT * HZI_VLUT_E8_X_BYTES +
				    i / 4 * (COLUMNS * 64) + c % NT * 512);
#pragma unroll
			for (int e = 0; e < 4; e++)
				x[i + e] = u[e];
		}
	}

	__device__ __forceinline__ static void count(int32_t (&n)[4], const uint32_t (&w)[2][8],
						     const uint32_t (&x)[8])
	{
#pragma unroll
		for (int i = 0; i < 8; i += 2)
			mma_m16n8k256_and(n, w[0][i], w[1][i], w[0][i + 1], w[1][i + 1], x[i],
					  x[i + 1]);
	}

	/* Counts bits of one plane in the columns for its weight. */
	__device__ __forceinline__ static void count(int32_t (&n)[TILES][4],
						     const uint32_t (&w)[2][8], uint32_t columns)
	{
#pragma unroll
		for (int c = 0; c < TILES; c++) {
			uint32_t x[8];

			load_columns(x, columns, c);
			count(n[c], w, x);
		}
	}

	__device__ __forceinline__ void step(int32_t (&n)[KINDS][TILES][4], uint32_t at,
					     uint32_t columns, const uint8_t *next, bool in) const
	{
		uint32_t b[2][8], l[2][8], v[2][8], s[2][8];

#pragma unroll
		for (int r = 0; r < 2; r++) {
			uint32_t w[16];

#pragma unroll
			for (int e = 0; e < 4; e++) {
				uint32_t u[4];

				shared_load(u, at + (4 * r + e) * 512);
#pragma unroll
				for (int i = 0; i < 4; i++)
					w[4 * e + i] = u[i];
			}
			e8_leaders(w, l[r], v[r], s[r]);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				b[r][i] = w[E8_B];
				s[r][i] = ~s[r][i];
			}
		}
		load_unit(next, at, in);
		if constexpr (KINDS == 1) {
			count(n[0], b, columns + 3 * 64);
			count(n[0], l, columns + 2 * 64);
			count(n[0], v, columns + 64);
			count(n[0], s, columns);
		} else {
#pragma unroll
			for (int c = 0; c < TILES; c++) {
				uint32_t x[8];

				load_columns(x, columns + 3 * 64, c);
				count(n[0][c], b, x);
				count(n[1][c], l, x);
				count(n[2][c], v, x);
				count(n[3][c], s, x);
			}
		}
	}

	/*
	 * Adds a warp's accumulators of a tile to shared memory, combining the columns of 8 bits of
	 * x. These are integers, so the order does not matter. The highest bit of x is its sign.
	 */
	__device__ __forceinline__ void flush(int32_t (&n)[KINDS][TILES][4], int tile) const
	{
#pragma unroll
		for (int r = 0; r < 2; r++) {
			int32_t *dst = partials + (tile * ROWS + 8 * r + g) * TILES;

#pragma unroll
			for (int i = 0; i < TILES; i++) {
				const int last = i % NT == NT - 1 && t == 3 ? -2 : 2;
				int32_t sum = 0;

#pragma unroll
				for (int k = 0; k < KINDS; k++) {
					int32_t *const c = &n[k][i][2 * r];

					sum += c[0] + last * c[1] << k;
					c[0] = c[1] = 0;
				}
				sum <<= 2 * t;
				sum = quad_sum(sum);
				if (t == i % 4)
					atomicAdd(dst + i, sum);
			}
		}
	}

	__device__ __forceinline__ void finish(void) const
	{
		__syncthreads();
		for (int i = tid; i < tiles * ROWS * V; i += THREADS) {
			const int b = i % V;
			const int64_t row = (int64_t)tile0 * ROWS + i / V;
			const int32_t *const v = partials + i * NT;
			const long long sum = v[2] * 65536ll + v[1] * 256ll + v[0] -
					      offset[2 * b + 1] * 65536ll - offset[2 * b];
			const float2 unit = powers(-shift(b));

			if (row >= p.rows)
				continue;
			if (p.y_dtype == HZ_S32)
				((int32_t *)p.y)[row * p.y_i + b * p.y_b] = (int32_t)sum;
			else
				store_scaled(p, row, b, absmax[b] >= 0x7f800000 ?
							__int_as_float(0x7fffffff) :
							(float)sum * unit.x * unit.y);
		}
	}

	/* Each warp has consecutive units, so that few warps have sums of the same tile. */
	__device__ __forceinline__ void run(void)
	{
		const int units = 2 * p.units, count = tiles * units;
		const int begin = count * warp / WARPS, end = count * (warp + 1) / WARPS;
		const uint32_t ring = shared_address(stages) + warp * STAGES * UNIT_BYTES +
				      lane * 16;
		const uint32_t columns = shared_address(x) + lane * 16;
		const uint8_t *next = p.packed + ((int64_t)tile0 * units + begin) * UNIT_BYTES +
				      lane * 16;
		const int items = V * p.units * 64;
		int tile = begin / units, unit = begin % units;
		uint32_t at = ring;
		item mine[EACH];
		int32_t n[KINDS][TILES][4] = {};

		for (int i = tid; i < tiles * ROWS * TILES; i += THREADS)
			partials[i] = 0;
		if (tid < 8)
			offset[tid] = 0;
		__syncthreads();
		pdl_wait();
		pdl_launch_dependents();
#pragma unroll
		for (int e = 0; e < EACH; e++)
			if (e * THREADS + tid < items)
				load_item(mine[e], e * THREADS + tid);
#pragma unroll
		for (int i = 0; i < STAGES; i++, next += UNIT_BYTES)
			load_unit(next, ring + i * UNIT_BYTES, begin + i < end);
		prepare_x(mine);
#pragma unroll 1
		for (int i = begin; i < end; i++, next += UNIT_BYTES) {
			/* No barrier: each lane reads what it copied itself. */
			cp_async_wait<STAGES - 1>();
			step(n, at, columns + unit / 2 * X_BYTES + (unit % 2 ? 0 : 2 * 64), next,
			     i + STAGES < end);
			at = at == ring + (STAGES - 1) * UNIT_BYTES ? ring : at + UNIT_BYTES;
			if (++unit == units || i + 1 == end) {
				flush(n, tile++);
				unit = 0;
			}
		}
		cp_async_wait<0>();
		finish();
	}
};

#define KERNEL(vectors) \
	extern "C" __global__ void __launch_bounds__(THREADS, 1) \
	vlut_e8_bitplane_##vectors(const __grid_constant__ hzi_vlut_e8_bitplane p) \
	{ \
		e8_bitplane_block<vectors>(p).run(); \
	}

KERNEL(1)
KERNEL(2)
