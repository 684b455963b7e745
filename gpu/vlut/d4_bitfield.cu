/*
 * d4_bitfield.cu - packed codes of D4 as fields of bits, and their products with few vectors
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Codes are decoded by logic alone (d4_bitfield.cuh), eight lattice blocks of two levels at a time:
 * nothing is looked up. A word of one coordinate is a register of the left operand of the matrix
 * units for u8 as it stands, its nibbles of 16 rows in two eights: with both nibbles for rows g,
 * with the upper one alone for rows g + 8, which is subtracted from the sums in the end. The signs
 * are a second operand. So a chunk of 16 rows by 64 values takes a warp about 40 instructions, in
 * which the matrix units have their part, too.
 *
 * x becomes integers, as digits of 8 bits in columns of the right operand: three digits, of 22 bits
 * and sign, for up to two vectors, two for more. The largest of a split of k becomes 2^21 to 2^22,
 * or almost 2^14 to 2^15. Sums are exact; those of warps and then of splits are added in their
 * order.
 */
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/device/shared.cuh"
#include "gpu/vlut/table_s8.cuh"
#include "gpu/vlut/d4_bitfield.cuh"
#include "gpu/vlut/d4_bitfield.h"

#define THREADS HZI_FIELDS_THREADS
#define WARPS (THREADS / 32)
#define ROWS HZI_FIELDS_ROWS
#define CHUNK HZI_FIELDS_CHUNK
#define BYTES HZI_FIELDS_BYTES
#define BATCH HZI_FIELDS_BATCH
#define AHEAD HZI_FIELDS_STAGES
#define SIGNS 0x80808080

/* ---- Packing --------------------------------------------------------------------------------- */

/* A thread for the 16 bytes of a lane */
extern "C" __global__ void __launch_bounds__(HZI_VLUT_THREADS)
vlut_fields_pack(const __grid_constant__ hzi_fields_pack p)
{
	const int64_t total = p.tiles * p.chunks * 32;

	for (int64_t i = (int64_t)blockIdx.x * HZI_VLUT_THREADS + threadIdx.x; i < total;
	     i += (int64_t)gridDim.x * HZI_VLUT_THREADS) {
		const int lane = (int)(i % 32);
		const int64_t chunk = i / 32 % p.chunks, tile = i / 32 / p.chunks;
		uint32_t w[4] = {};

		for (int n = 0; n < 16; n++) {
			const int nibble = n / 2, m = n % 2 - p.first;
			const int64_t row = tile * ROWS + nibble % 2 * 8 + lane / 4;
			const int64_t block = chunk * (CHUNK / 4) + lane % 4 * 4 + nibble / 2;
			uint32_t leader, turned = 0;

			if (m < 0 || row >= p.rows || block >= p.blocks)
				continue;
			leader = p.leaders[p.codes[row * p.row + block * p.block + m * p.level]];
			for (int e = 0; e < 4; e++) {
				const uint32_t c = leader >> 8 * e;

				w[e] |= (e < 3 ? c & 3 : c & 2) << 2 * n;
				turned |= (c >> 2 ^ c >> 1) & 1;
			}
			w[3] |= turned << 2 * n;
		}
		((uint4 *)p.packed)[i] = make_uint4(w[0], w[1], w[2], w[3]);
	}
}

/* A thread for the 16 bytes of a lane: four blocks of two rows */
extern "C" __global__ void __launch_bounds__(HZI_VLUT_THREADS)
vlut_fields_bytes(const __grid_constant__ hzi_fields_bytes p)
{
	const int64_t total = p.tiles * p.chunks * 32;

	for (int64_t i = (int64_t)blockIdx.x * HZI_VLUT_THREADS + threadIdx.x; i < total;
	     i += (int64_t)gridDim.x * HZI_VLUT_THREADS) {
		const int lane = (int)(i % 32);
		const int64_t chunk = i / 32 % p.chunks, tile = i / 32 / p.chunks;
		const int64_t block = chunk * (CHUNK / 4) + lane % 4 * 4;
		const uint4 v = ((const uint4 *)p.packed)[i];
		uint32_t w[4] = {v.x, v.y, v.z, v.w}, s[4];

		fields_signs(w, s);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int64_t row = tile * ROWS + 8 * h + lane / 4;
			uint32_t to[4];

#pragma unroll
			for (int j = 0; j < 4; j++) {
				const int at = 8 * j + 4 * h;
				uint32_t point = 0, less = p.minus;

#pragma unroll
				for (int e = 0; e < 4; e++) {
					point |= (w[e] >> at & 15) << 8 * e;
					less = __vadd4(less, (s[e] >> at & 10) << (8 * e + 1));
				}
				to[j] = __vsub4(point, less);
			}
			if (row < p.rows && block < p.blocks)
				*(uint4 *)(p.to + row * p.line + 4 * block) =
					make_uint4(to[0], to[1], to[2], to[3]);
		}
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

/*
 * NT: tiles of 8 columns: 1: columns are three digits of up to 2 vectors (4 b + digit), or vectors
 * of s8; 2: tile i is digit i of up to 8 vectors.
 */
template <int NT>
struct vlut_fields_block {
	static constexpr int PARTS = NT == 1 ? 3 : 2;
	/* so that the digits of the largest, x 2^shift times this, do not leave s8 */
	static constexpr float LIMIT = NT == 1 ? 1 : 32639.0f / 32768.0f;
	static constexpr int X_BITS = NT == 1 ? 22 : 15;

	const hzi_vlut_fields &p;
	const int tid, lane, warp, g, t;
	int begin, count;		/* chunks of this split */
	int tile0, tiles;		/* of this block */
	/* Of x, of a vector: see value_of(); filled up to whole warps */
	int items, padded;
	int columns;			/* in shared memory, of a tile of 8: the rest are copies */
	bool digits;			/* x is not s8 */
	uint32_t *most;			/* [vector] the largest |x|, as bits */
	/* [vector][digit] sums of x times o; before, units of plain rows */
	int32_t *offsets;
	/* [chunk][tile of columns][column][t]: word i is coordinate i */
	uint4 *x;
	uint4 *stages;			/* [warp][stage][lane] of codes */
	int2 *spans;			/* [warp] the first tile and the last */
	float *sums, *totals;		/* [warp][slot][row][vector]; [tile][row][vector] */

	__device__ __forceinline__ explicit vlut_fields_block(const hzi_vlut_fields &p_)
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
		most = (uint32_t *)memory;
		offsets = (int32_t *)(most + BATCH);
		spans = (int2 *)(offsets + 3 * BATCH);
		stages = (uint4 *)(spans + WARPS);
		x = stages + WARPS * AHEAD * 32;
		sums = (float *)(x + (p.chunks + split - 1 >> p.split_log2) * NT * columns * 4);
		totals = sums + (WARPS * p.slots * ROWS << p.batch_log2);
	}

	/* The first chunk of a warp, of all of this block's tiles */
	__device__ __forceinline__ int first_of(int w) const
	{
		return tiles * count * w / WARPS;
	}

	/*
	 * 2^shift: the largest |x| of a vector becomes 2^(X_BITS - 1) and more; 0 if it is not
	 * finite.
	 */
	__device__ __forceinline__ int shift(int b) const
	{
		const int exponent = (int)(most[b] >> 23);

		return exponent == 255 || most[b] == 0 ? 0 : X_BITS - 1 + 127 - exponent;
	}

	/* f 2^i, i in -252 .. 254 */
	__device__ __forceinline__ static float times_power(float f, int i)
	{
		const int half = i / 2;

		return f * __int_as_float(half + 127 << 23) * __int_as_float(i - half + 127 << 23);
	}

	/*
	 * Items of x: those of 16 values, unit 4 chunk + t of a split, that are coordinate i,
	 * values i, 4 + i, 8 + i and 12 + i, which make a word. This is the one of the first
	 * column.
	 */
	__device__ __forceinline__ uint32_t *place(int item) const
	{
		return (uint32_t *)(x + item / 16 * NT * columns * 4 + item / 4 % 4) + item % 4;
	}

	__device__ __forceinline__ int value_of(int item) const
	{
		return begin * CHUNK + item / 4 * 16 + item % 4;
	}

	/* x times this is an integer: 2^shift as a product of two numbers, and LIMIT */
	__device__ __forceinline__ float2 units_of(int b) const
	{
		const int up = shift(b), half = up / 2;

		return digits ? make_float2(__int_as_float(half + 127 << 23),
					    __int_as_float(up - half + 127 << 23) * LIMIT) :
					    make_float2(1, 1);
	}

	/* Rounded, as bytes of digits: 1.5 2^23 makes the integer the lower bits. */
	__device__ __forceinline__ static uint32_t digits_of(float f, float2 units)
	{
		return __float_as_uint(fmaf(f * units.x, units.y, 12582912.0f)) + 0x808080 -
		       0x400000 ^ 0x808080;
	}

	/* Digit d of four */
	__device__ __forceinline__ static uint32_t word_of(uint32_t a, uint32_t b, uint32_t c,
							   uint32_t e, int d)
	{
		const uint32_t pick = d | (d + 4) << 4;

		return __byte_perm(__byte_perm(a, b, pick), __byte_perm(c, e, pick), 0x5410);
	}

	/* Column of a digit of a vector, as words from the first one's on */
	__device__ __forceinline__ int column_of(int b, int d) const
	{
		return (NT == 2 ? d * 8 + b : digits ? 4 * b + d : b) * 16;
	}

	__device__ __forceinline__ void store_item(const float (&f)[4], int b, uint32_t *to,
						   float2 units) const
	{
		uint32_t v[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = digits_of(f[i], units);
#pragma unroll
		for (int d = 0; d < PARTS; d++)
			if (d == 0 || digits)
				to[column_of(b, d)] = word_of(v[0], v[1], v[2], v[3], d);
	}

	/* Sums of digits times o, for what is subtracted in the end: a warp for each of them */
	__device__ __forceinline__ void add_offsets(void) const
	{
		const int parts = digits ? PARTS : 1;

		for (int i = warp; i < p.batch * parts; i += WARPS) {
			const int b = i / parts, d = i % parts;
			int sum = 0;

			for (int unit = lane; unit < count * 4; unit += 32) {
				const uint32_t *at = place(unit * 4) + column_of(b, d);

#pragma unroll
				for (int e = 0; e < 4; e++)
					sum += p.offset[e] * __dp4a((int)at[e], 0x01010101, 0);
			}
			sum = __reduce_add_sync(~0u, sum);
			if (lane == 0)
				offsets[3 * b + d] = sum;
		}
	}

	/* Loads what comes from memory before codes are on their way, which take all there is. */
	struct x_items {
		static constexpr int EACH = 4;		/* of a thread, at a time */
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
			const int k = value_of(item);

			load_run<1, 4>(x.f[r], p.x_dtype, p.x, b * p.x_b + k * p.x_k, p.x_k,
				       b < p.batch && item < items ? p.k - k : 0);
		}
	}

	/* Twice over x: for the largest, then to digits. A warp has items of one vector. */
	__device__ __forceinline__ void prepare_x(x_items &x) const
	{
		constexpr int AT_ONCE = x_items::EACH * THREADS;
		const int total = padded * p.batch;

#pragma unroll 1
		for (int turn = digits ? 0 : 1; turn < 2; turn++) {
#pragma unroll 1
			for (int first = 0; first < total; first += AT_ONCE) {
				if (total > AT_ONCE && (turn > 0 || first > 0))
					load_items(x, first);
#pragma unroll
				for (int r = 0; r < x_items::EACH; r++) {
					const int i = first + r * THREADS + tid, b = vector_of(i),
						  item = i - b * padded;

					if (i - lane >= total)
						break;
					if (turn == 0) {
						uint32_t u = 0;

#pragma unroll
						for (int j = 0; j < 4; j++)
							u = max(u, __float_as_uint(x.f[r][j]) &
								0x7fffffff);
						u = __reduce_max_sync(~0u, u);
						if (lane == 0)
							atomicMax(&most[b], u);
					} else {
						if (item < items)
							store_item(x.f[r], b, place(item),
								   units_of(b));
					}
				}
			}
			__syncthreads();
		}
	}

	/* The same of rows of 8 vectors in f16, 16 aligned bytes each: an item of all of them */
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
				const int k = value_of(item) + 4 * j;
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
				atomicMax(&most[c], __float_as_uint(f16_low(u)));
		}
		__syncthreads();
		if (tid < 8) {
			const float2 units = units_of(tid);

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

				uint32_t *to = place(item);

				if (item >= items)
					break;
#pragma unroll
				for (int c = 0; c < 8; c++) {
					float f[4];

#pragma unroll
					for (int j = 0; j < 4; j++)
						f[j] = c % 2 ? f16_high(x.row[r][j][c / 2]) :
						       f16_low(x.row[r][j][c / 2]);
					store_item(f, c, to, make_float2(scale[c], 1));
				}
			}
		}
		__syncthreads();
	}

	/*
	 * The same of one vector of f16 back to back, of whole units, 16 values and as many bytes
	 * aligned
	 */
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
			atomicMax(&most[0], __float_as_uint(f16_low(u)));
		__syncthreads();
		scale = units_of(0);
#pragma unroll 1
		for (int unit = tid; unit - lane < units; unit += THREADS) {
			uint32_t v[16];

			if (units > THREADS)
				load_unit(x, unit);
#pragma unroll
			for (int i = 0; i < 8; i++) {
				v[2 * i] = digits_of(f16_low(x.v[i]), scale);
				v[2 * i + 1] = digits_of(f16_high(x.v[i]), scale);
			}
#pragma unroll
			for (int d = 0; d < PARTS; d++) {
				uint32_t w[4];

#pragma unroll
				for (int i = 0; i < 4; i++)
					w[i] = word_of(v[i], v[4 + i], v[8 + i], v[12 + i], d);
				if (unit < units)
					*(uint4 *)(place(unit * 4) + d * 16) =
						make_uint4(w[0], w[1], w[2], w[3]);
			}
		}
		__syncthreads();
	}

	/* ---- Codes: pairs of chunks on their way to shared memory, 16 bytes a lane ---- */

	struct codes {
		const uint8_t *from;	/* this lane's of the next chunk */
		int left, chunks;	/* before the next tile; in all */
		uint32_t ring, at;	/* in shared memory: the first stage; the next to load */
	};

	__device__ __forceinline__ void load_pair(codes &q) const
	{
		if (q.chunks >= 2 && q.left > 2) {
			cp_async(q.at, q.from);
			cp_async(q.at + BYTES, q.from + BYTES);
			q.from += 2 * BYTES;
			q.left -= 2;
		} else {
#pragma unroll
			for (int i = 0; i < 2; i++) {
				if (q.chunks > i)
					cp_async(q.at + i * BYTES, q.from);
				q.from += BYTES;
				if (--q.left == 0) {
					q.left = count;
					q.from += (int64_t)(p.chunks - count) * BYTES;
				}
			}
		}
		q.chunks -= 2;
		cp_async_commit();
		q.at = next_stage(q.ring, q.at);
	}

	__device__ __forceinline__ static uint32_t next_stage(uint32_t ring, uint32_t at)
	{
		return at == ring + (AHEAD - 2) * BYTES ? ring : at + 2 * BYTES;
	}

	template <class Fetch, class Prepare>
	__device__ __forceinline__ void run(Fetch fetch, Prepare prepare)
	{
		const int lo = first_of(warp), hi = first_of(warp + 1);
		int32_t acc[NT][4] = {}, signs[NT][4] = {};
		int c = lo % count, slot = 0;
		codes q;

		q.from = p.packed + lane * 16 +
			 ((int64_t)(tile0 + lo / count) * p.chunks + begin + c) * BYTES;
		q.left = count - c;
		q.chunks = hi - lo;
		q.ring = q.at = shared_address(stages) + (warp * AHEAD * 32 + lane) * 16;
		if (tid < BATCH)
			most[tid] = 0;
		if (lane == 0)
			spans[warp] = make_int2(lo < hi ? lo / count : 1,
						lo < hi ? (hi - 1) / count : 0);
		__syncthreads();
		pdl_wait();
		pdl_launch_dependents();
		fetch();
#pragma unroll
		for (int d = 0; d < AHEAD / 2 - 1; d++)
			load_pair(q);
		prepare();
		if (p.centred)
			add_offsets();

		const uint32_t x0 = shared_address(x + (g & (columns - 1)) * 4 + t),
			       step_x = NT * columns * 64;
		uint32_t xl = x0 + c * step_x, at = q.ring;

#pragma unroll 1
		for (int s = lo; s < hi; s += 2) {
			load_pair(q);
			/* and no barrier: each lane reads what it has copied itself */
			cp_async_wait<AHEAD / 2 - 1>();
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
		if (!p.plain) {
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

		fields_signs(w, s);
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
	 * A warp's sums of a tile, in units of x as integers; of s8, whole numbers: the bits
	 * themselves
	 */
	__device__ __forceinline__ void flush(int32_t (&acc)[NT][4], int32_t (&signs)[NT][4],
					      int slot) const
	{
		float *to = sums + ((warp * p.slots + slot) * ROWS << p.batch_log2);
		int32_t whole[NT][4];

#pragma unroll
		for (int n = 0; n < NT; n++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				/* rows g: less rows g + 8, which are 16 times */
				whole[n][e] = acc[n][e] - acc[n][2 + e] - 2 * signs[n][e];
				whole[n][2 + e] = (acc[n][2 + e] - 2 * signs[n][2 + e]) >> 4;
				acc[n][e] = acc[n][2 + e] = signs[n][e] = signs[n][2 + e] = 0;
			}
#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int r = h * 8 + g;
			float v[2];

#pragma unroll
			for (int e = 0; e < 2; e++) {
				v[e] = (float)whole[0][2 * h + e];
				if (NT == 2)
					v[e] += 256.0f * (float)whole[NT - 1][2 * h + e];
			}
			if (NT == 1 && digits) {
				/* digits 0 1 and 2 lie in neighbours */
				const float low = v[0] + 256.0f * v[1];
				const float high = __shfl_down_sync(~0u, v[0], 1);

				if (t % 2 == 0 && t / 2 < p.batch)
					to[(r << p.batch_log2) + t / 2] = low + 65536.0f * high;
				continue;
			}
#pragma unroll
			for (int e = 0; e < 2; e++)
				if (2 * t + e < p.batch)
					to[(r << p.batch_log2) + 2 * t + e] = digits ? v[e] :
						__int_as_float(whole[0][2 * h + e]);
		}
	}

	/* Sums of the warps, and what they are of x: of s8 whole numbers, as bits */
	__device__ __forceinline__ float add_warps(int i) const
	{
		const int width_log2 = 4 + p.batch_log2, tile = i >> width_log2,
			  b = i & (1 << p.batch_log2) - 1;
		int32_t whole = 0;
		float s = 0;

#pragma unroll
		for (int w = 0; w < WARPS; w++) {
			const int2 span = spans[w];
			const bool in = span.x <= tile && tile <= span.y;
			const float f = in ? sums[(w * p.slots - span.x << width_log2) + i] : 0;

			s += f;
			whole += __float_as_int(f);
		}
		if (!digits)
			return __int_as_float(whole - (p.centred ? offsets[3 * b] : 0));
		for (int d = 0; d < PARTS && p.centred; d++)
			s -= (float)offsets[3 * b + d] * (float)(1 << 8 * d);
		return most[b] >= 0x7f800000 ? __uint_as_float(0x7fffffff) :
		       times_power(s * (1 / LIMIT), -shift(b));
	}

	/* Of number i of the tiles' sums the row and the vector; false: it is no result. */
	__device__ __forceinline__ bool place_of(int i, int64_t &row, int &b) const
	{
		row = (int64_t)tile0 * ROWS + (i >> p.batch_log2);
		b = i & (1 << p.batch_log2) - 1;
		return row < p.rows && b < p.batch;
	}

	__device__ __forceinline__ void store(int64_t row, int b, float s, int32_t whole) const
	{
		if (p.y_dtype == HZ_S32) {
			((int32_t *)p.y)[row * p.y_i + b * p.y_b] = whole;
			return;
		}
		store_sum(p, row, b, digits ? s : (float)whole);
	}

	/* Sums of warps, then of splits, to y. */
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
			else if (place_of(i, row, b))
				store(row, b, s, __float_as_int(s));
		}
		if (split == 1)
			return;
		cluster_publish(warp);
		for (int i = tid + (blockIdx.x & split - 1) * THREADS; i < n;
		     i += THREADS * split) {
			int32_t whole = 0;
			float s = 0;

			if (!place_of(i, row, b))
				continue;
			for (int z = 0; z < split; z++) {
				const float f = cluster_load(cluster_map(shared_address(totals + i),
									 z));

				s += f;
				whole += __float_as_int(f);
			}
			store(row, b, s, whole);
		}
		__syncwarp();
		cluster_arrive_relaxed();
		cluster_wait();
	}
};

/* Two blocks fit an SM, the second of the kernel behind. */
#define KERNEL(name, tiles) \
	extern "C" __global__ void __launch_bounds__(THREADS, 2) \
	name(const __grid_constant__ hzi_vlut_fields p) \
	{ \
		vlut_fields_block<tiles>(p).run(); \
	}

KERNEL(vlut_fields_2, 1)
KERNEL(vlut_fields_8, 2)
