/*
 * minmax.cuh - the ranges of floats, and the parameters that follow
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUANTIZE_MINMAX_CUH
#define HZI_GPU_QUANTIZE_MINMAX_CUH

#include "gpu/quantize/strided.cuh"
#include "gpu/device/cluster.cuh"
#include "lib/qgemm/qgemm.h"

/* ---- Ranges ---------------------------------------------------------------------------------- */

/* That of a block of 256 threads, in all of them. */
HZ_DEVICE range join_block(range r)
{
	__shared__ range part[8];

	r = join_warp(r);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = r;
	__syncthreads();
	return join_warp(part[threadIdx.x % 8]);
}

/* Numbers from 0 up are in the order of their bits. Most ranges change nothing any more. */
HZ_DEVICE void put_range(uint32_t *ranges, int64_t p, const range &r)
{
	const uint32_t bits[2] = {__float_as_uint(r.below), __float_as_uint(r.above)};

#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (bits[i] > ((volatile uint32_t *)ranges)[2 * p + i])
			atomicMax(&ranges[2 * p + i], bits[i]);
	}
}

template <int DTYPE>
HZ_DEVICE void widen_piece(range &r, const uint4 &v)
{
	float f[8];

	unpack<DTYPE>(f, v);
#pragma unroll
	for (int e = 0; e < piece<DTYPE>::count; e++)
		widen(r, f[e]);
}

/* Of all pieces there are; a block does a share. */
template <int DTYPE>
HZ_DEVICE void range_contiguous(const hzi_range_contiguous &p)
{
	const int64_t begin = blockIdx.x * p.share, end = min(p.pieces, begin + p.share);
	const uint4 *x = (const uint4 *)p.x;
	range r = {0, 0};

	for (int64_t i = begin + threadIdx.x; i < end; i += HZI_BLOCK_THREADS * HZI_RANGE_PIECES) {
		uint4 v[HZI_RANGE_PIECES];

#pragma unroll
		for (int j = 0; j < HZI_RANGE_PIECES; j++)
			v[j] = i + j * HZI_BLOCK_THREADS < end
				       ? __ldcs(x + i + j * HZI_BLOCK_THREADS)
				       : make_uint4(0, 0, 0, 0);
#pragma unroll
		for (int j = 0; j < HZI_RANGE_PIECES; j++)
			widen_piece<DTYPE>(r, v[j]);
	}
	r = join_block(r);
	if (threadIdx.x == 0)
		put_range(p.range, 0, r);
}

HZ_DEVICE void put_parameters(const hzi_range_strided &p, int64_t n, const range &r)
{
	int32_t zero;

	hzi_qparams(-r.below, r.above, p.q_dtype, p.symmetric, &p.scale[n], &zero);
	((uint8_t *)p.zero)[n] = (uint8_t)zero;
}

HZ_DEVICE range join(const range &a, const range &b)
{
	return {fmaxf(a.below, b.below), fmaxf(a.above, b.above)};
}

/* Where a row of a range begins, its parameter and its elements. */
struct range_place {
	int64_t x, p;
	int count;
};

HZ_DEVICE range_place place_range(const hzi_range_strided &a, uint32_t n)
{
	range_place at = {0, 0, a.size_i};

	for (int d = a.ndim - 1; d >= 0; d--) {
		const uint32_t up = quotient(n, a.shape[d]);
		const int64_t index = n - up * a.shape[d].divisor;

		/* The last dimension is what a long row was cut into. */
		if (d == a.ndim - 1 && index == a.shape[d].divisor - 1)
			at.count = a.last_i;
		at.x += index * a.x_stride[d];
		at.p += index * a.p_stride[d];
		n = up;
	}
	return at;
}

/* Element or piece number i of a row from x on, of count. */
template <int DTYPE, int V>
struct range_values {
	uint4 v;

	__device__ __forceinline__ void load(const hzi_range_strided &p, int64_t x, int i,
					     int count)
	{
		v = i < count ? ((const uint4 *)p.x)[x / V + i] : make_uint4(0, 0, 0, 0);
	}
	__device__ __forceinline__ void put(range &r) const
	{
		widen_piece<DTYPE>(r, v);
	}
};

template <int DTYPE>
struct range_values<DTYPE, 1> {
	raw_float<DTYPE> v;

	__device__ __forceinline__ void load(const hzi_range_strided &p, int64_t x, int i,
					     int count)
	{
		v.bits = 0;
		if (i < count)
			v = ((const raw_float<DTYPE> *)p.x)[x + i * p.x_i];
	}
	__device__ __forceinline__ void put(range &r) const
	{
		widen(r, v.value());
	}
};

/* Joins the ranges of so many lanes next to each other, a power of two; mask has these lanes. */
HZ_DEVICE range join_row(range r, int lanes, uint32_t mask)
{
#pragma unroll
	for (int d = 16; d; d /= 2) {
		if (d < lanes)
			r = join(r, {__shfl_xor_sync(mask, r.below, d),
				     __shfl_xor_sync(mask, r.above, d)});
	}
	return r;
}

/*
 * Rows of one parameter each, 2^log_i lanes for a row. Each goes on by the grid, and has a range
 * until the parameter is another.
 */
template <int DTYPE, int V>
HZ_DEVICE void range_long(const hzi_range_strided &p)
{
	const int lanes = 1 << p.log_i, lane = threadIdx.x & (lanes - 1);
	const uint32_t mask = ~0u >> (32 - lanes) << (threadIdx.x & 31 & -lanes);
	const uint32_t workers = gridDim.x * HZI_BLOCK_THREADS >> p.log_i;
	int64_t last = -1;
	range r = {0, 0};

	auto flush = [&](int64_t next) {
		r = join_row(r, lanes, mask);
		if (lane == 0 && last >= 0 && p.scale)
			put_parameters(p, last, r);
		else if (lane == 0 && last >= 0)
			put_range(p.range, last, r);
		last = next;
		r = {0, 0};
	};

	for (int64_t row = (blockIdx.x * HZI_BLOCK_THREADS + threadIdx.x) >> p.log_i; row < p.tiles;
	     row += workers) {
		const range_place at = place_range(p, (uint32_t)row);
		range_values<DTYPE, V> v[HZI_RANGE_PIECES];

		if (at.p != last)
			flush(at.p);
#pragma unroll 1
		for (int i = lane; i < at.count / V; i += lanes * HZI_RANGE_PIECES) {
#pragma unroll
			for (int s = 0; s < HZI_RANGE_PIECES; s++)
				v[s].load(p, at.x, i + s * lanes, at.count / V);
#pragma unroll
			for (int s = 0; s < HZI_RANGE_PIECES; s++)
				v[s].put(r);
		}
	}
	flush(-1);
}

/* Ranges that are 2 W apart take in those W further on. */
template <int W>
HZ_DEVICE void join_turns(range (&r)[HZI_RANGE_PIECES])
{
#pragma unroll
	for (int s = 0; s < HZI_RANGE_PIECES; s += 2 * W)
		r[s] = join(r[s], r[s + W]);
}

/*
 * Joins each of the ranges over so many lanes, HZI_RANGE_PIECES of them or more: with every step a
 * lane gives away half and takes over the other half. Lane n gets number n % HZI_RANGE_PIECES.
 */
HZ_DEVICE range share_rows(range (&r)[HZI_RANGE_PIECES], int lanes, uint32_t mask)
{
	static_assert(HZI_RANGE_PIECES == 8, "three steps");
	auto step = [&](auto count) {
		constexpr int half = decltype(count)::value, lane = HZI_RANGE_PIECES / 2 / half;
		const bool high = threadIdx.x & lane;

#pragma unroll
		for (int j = 0; j < half; j++) {
			const range low = r[2 * j], up = r[2 * j + 1];
			const float below = high ? low.below : up.below;
			const float above = high ? low.above : up.above;

			r[j] = join({high ? up.below : low.below, high ? up.above : low.above},
				    {__shfl_xor_sync(mask, below, lane),
				     __shfl_xor_sync(mask, above, lane)});
		}
	};

	step(std_int<4>());
	step(std_int<2>());
	step(std_int<1>());
#pragma unroll
	for (int d = 16; d >= HZI_RANGE_PIECES; d /= 2) {
		if (d < lanes)
			r[0] = join(r[0], {__shfl_xor_sync(mask, r[0].below, d),
					   __shfl_xor_sync(mask, r[0].above, d)});
	}
	return r[0];
}

/*
 * The same where a lane has no more than HZI_RANGE_PIECES values or pieces of a row: several rows
 * at once, 2^log_turns pieces of each, so that their parameters are made side by side. The ranges
 * are to stay in registers: every index of them is known when this is compiled.
 */
template <int DTYPE, int V>
HZ_DEVICE void range_short(const hzi_range_strided &p)
{
	const int lanes = 1 << p.log_i, lane = threadIdx.x & (lanes - 1), turns = 1 << p.log_turns;
	const int rows = HZI_RANGE_PIECES >> p.log_turns;
	const uint32_t mask = ~0u >> (32 - lanes) << (threadIdx.x & 31 & -lanes);
	const uint32_t workers = gridDim.x * HZI_BLOCK_THREADS >> p.log_i;

	for (int64_t row = (blockIdx.x * HZI_BLOCK_THREADS + threadIdx.x) >> p.log_i; row < p.tiles;
	     row += (int64_t)workers * rows) {
		range_values<DTYPE, V> v[HZI_RANGE_PIECES];
		range r[HZI_RANGE_PIECES];
		range_place at = {};

		auto finish = [&](int n, const range &mine) {
			const int64_t of = row + (int64_t)n * workers;

			if (of >= p.tiles)
				return;
			at = place_range(p, (uint32_t)of);
			if (p.scale)
				put_parameters(p, at.p, mine);
			else
				put_range(p.range, at.p, mine);
		};

#pragma unroll
		for (int s = 0; s < HZI_RANGE_PIECES; s++) {
			const int64_t n = row + (int64_t)(s >> p.log_turns) * workers;

			if ((s & (turns - 1)) == 0 && n < p.tiles)
				at = place_range(p, (uint32_t)n);
			v[s].load(p, at.x, lane + (s & (turns - 1)) * lanes,
				  n < p.tiles ? at.count / V : 0);
		}
#pragma unroll
		for (int s = 0; s < HZI_RANGE_PIECES; s++) {
			r[s] = {0, 0};
			v[s].put(r[s]);
		}
		if (turns == 1 && lanes >= HZI_RANGE_PIECES) {
			const range mine = share_rows(r, lanes, mask);

			if (lane < HZI_RANGE_PIECES)
				finish(lane, mine);
			continue;
		}
		if (turns > 1)
			join_turns<1>(r);
		if (turns > 2)
			join_turns<2>(r);
		if (turns > 4)
			join_turns<4>(r);
#pragma unroll
		for (int d = 16; d; d /= 2) {
			if (d >= lanes)
				continue;
#pragma unroll
			for (int s = 0; s < HZI_RANGE_PIECES; s++)
				r[s] = join(r[s], {__shfl_xor_sync(mask, r[s].below, d),
						   __shfl_xor_sync(mask, r[s].above, d)});
		}
		/* Lane n finishes rows n, n + lanes and so on. */
		for (int n = lane; n < rows; n += lanes) {
			uint32_t below = 0, above = 0;

			/* An index that is not known would be one of local memory. */
#pragma unroll
			for (int s = 0; s < HZI_RANGE_PIECES; s++) {
				const uint32_t chosen = s == n << p.log_turns ? ~0u : 0;

				below |= __float_as_uint(r[s].below) & chosen;
				above |= __float_as_uint(r[s].above) & chosen;
			}
			finish(n, {__uint_as_float(below), __uint_as_float(above)});
		}
	}
}

/*
 * Elements along i with parameters of their own: a block has some, in 2^log_i elements or pieces,
 * and a share of the rows.
 */
template <int DTYPE, int V>
HZ_DEVICE void range_each(const hzi_range_strided &p)
{
	__shared__ range part[HZI_BLOCK_THREADS][V + 1];
	const int across = 1 << p.log_i, down = HZI_BLOCK_THREADS >> p.log_i;
	const int tx = threadIdx.x & (across - 1), ty = threadIdx.x >> p.log_i;
	const uint32_t tile = quotient(blockIdx.x, p.tiles_i);
	const int i0 = (int)(blockIdx.x - tile * p.tiles_i.divisor) * across * V;
	const uint32_t outer = quotient(tile, p.shares);
	const int share = (int)(tile - outer * p.shares.divisor);
	const int begin = share * p.share, end = min(p.size_j, begin + p.share);
	const range_place at = place_range(p, outer);
	range r[V] = {};

	for (int j = begin + ty; j < end; j += down * HZI_RANGE_PIECES) {
		range_values<DTYPE, V> v[HZI_RANGE_PIECES];

#pragma unroll
		for (int s = 0; s < HZI_RANGE_PIECES; s++) {
			const int row = j + s * down;

			v[s].load(p, at.x + row * p.x_j, i0 / V + tx,
				  row < end ? p.size_i / V : 0);
		}
#pragma unroll
		for (int s = 0; s < HZI_RANGE_PIECES; s++) {
			if constexpr (V == 1) {
				v[s].put(r[0]);
			} else {
				float f[8];

				unpack<DTYPE>(f, v[s].v);
#pragma unroll
				for (int e = 0; e < V; e++)
					widen(r[e], f[e]);
			}
		}
	}
#pragma unroll
	for (int e = 0; e < V; e++)
		part[threadIdx.x][e] = r[e];
	__syncthreads();
	for (int n = threadIdx.x; n < across * V && i0 + n < p.size_i; n += HZI_BLOCK_THREADS) {
		range all = part[n / V][n % V];

		for (int s = 1; s < down; s++)
			all = join(all, part[(s << p.log_i) + n / V][n % V]);
		put_range(p.range, at.p + (i0 + n) * p.p_i, all);
	}
}

/* ---- Columns, by the blocks of a cluster ----------------------------------------------------- */

/* Least and largest of what a lane has of so many columns next to each other, and 0 */
template <int DTYPE, int V>
struct column_extent {
	/* Of pieces of 16 bits two numbers in a word, else numbers as f32 */
	static constexpr int words = V == 1 ? 1 : 4;
	static constexpr bool pairs = V == 8;
	uint32_t low[words], high[words];

	__device__ __forceinline__ static uint32_t least(uint32_t a, uint32_t b)
	{
		uint32_t m;

		if (!pairs)
			return __float_as_uint(fminf(__uint_as_float(a), __uint_as_float(b)));
		if (DTYPE == HZ_F16)
			asm("min.f16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
		else
			asm("min.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
		return m;
	}
	__device__ __forceinline__ static uint32_t most(uint32_t a, uint32_t b)
	{
		uint32_t m;

		if (!pairs)
			return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
		if (DTYPE == HZ_F16)
			asm("max.f16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
		else
			asm("max.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
		return m;
	}
	__device__ __forceinline__ void widen(const range_values<DTYPE, V> &x)
	{
		uint32_t w[4];

		if constexpr (V == 1) {
			w[0] = __float_as_uint(x.v.value());
		} else {
			w[0] = x.v.x;
			w[1] = x.v.y;
			w[2] = x.v.z;
			w[3] = x.v.w;
		}
#pragma unroll
		for (int i = 0; i < words; i++) {
			low[i] = least(low[i], w[i]);
			high[i] = most(high[i], w[i]);
		}
	}
	__device__ __forceinline__ void join_lane(int other)
	{
#pragma unroll
		for (int i = 0; i < words; i++) {
			low[i] = least(low[i], __shfl_xor_sync(~0u, low[i], other));
			high[i] = most(high[i], __shfl_xor_sync(~0u, high[i], other));
		}
	}
	/* The bits of max(0, -x) and max(0, x) of column e */
	__device__ __forceinline__ uint2 bits(int e) const
	{
		const int i = pairs ? e / 2 : e;
		uint32_t l = low[i], h = high[i];

		if (pairs && DTYPE == HZ_F16) {
			l = __float_as_uint(e % 2 ? f16_high(l) : f16_low(l));
			h = __float_as_uint(e % 2 ? f16_high(h) : f16_low(h));
		} else if (pairs) {
			l = __float_as_uint(e % 2 ? bf16_high(l) : bf16_low(l));
			h = __float_as_uint(e % 2 ? bf16_high(h) : bf16_low(h));
		}
		return make_uint2(l & 0x7fffffff, h & 0x7fffffff);
	}
};

/* The larger of a word in block rank's shared memory, which lies at address in this one's */
HZ_DEVICE void cluster_max(uint32_t address, uint32_t rank, uint32_t value)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("red.relaxed.cluster.shared::cluster.max.u32 [%0], %1;"
		     :: "r"(cluster_map(address, rank)), "r"(value) : "memory");
#endif
}

/*
 * As range_each(), but the shares of a column's rows are those of the blocks of one cluster: each
 * of these has a part of the columns, hears of the others' extents and makes their parameters.
 */
template <int DTYPE, int V>
HZ_DEVICE void range_cluster(const hzi_range_strided &p)
{
	using value = decltype(range_values<DTYPE, V>::v);
	__shared__ uint32_t own[32 * V][2], part[32 * V][2];
	const int across = 1 << p.log_i, down = (int)blockDim.x >> p.log_i, columns = across * V;
	const int tx = threadIdx.x & (across - 1), ty = threadIdx.x >> p.log_i;
	const uint32_t tile = quotient(blockIdx.x, p.shares);
	const int blocks = (int)p.shares.divisor, rank = (int)(blockIdx.x - tile * blocks);
	const uint32_t outer = quotient(tile, p.tiles_i);
	const int i0 = (int)(tile - outer * p.tiles_i.divisor) * columns;
	const range_place at = place_range(p, outer);
	const int64_t i = i0 / V + tx;
	const int begin = rank * p.share;
	const int end = i < p.size_i / V ? min(p.size_j, begin + p.share) : 0;
	const value *x = (const value *)p.x + at.x / V + i * (V > 1 ? 1 : p.x_i);
	const int64_t step = p.x_j / V;
	column_extent<DTYPE, V> r = {};

	for (int n = threadIdx.x; n < 64 * V; n += (int)blockDim.x)
		own[n / 2][n % 2] = part[n / 2][n % 2] = 0;
	__syncthreads();
	cluster_arrive();
	for (int j = begin + ty; j < end; j += down * HZI_RANGE_PIECES) {
		range_values<DTYPE, V> v[HZI_RANGE_PIECES];

		/* Behind the last row it is that once more: a question would keep loads apart. */
#pragma unroll
		for (int s = 0; s < HZI_RANGE_PIECES; s++)
			v[s].v = x[min(j + s * down, end - 1) * step];
#pragma unroll
		for (int s = 0; s < HZI_RANGE_PIECES; s++)
			r.widen(v[s]);
	}
	for (int other = across; other < 32; other *= 2)
		r.join_lane(other);
	if (threadIdx.x % 32 < across) {
#pragma unroll
		for (int e = 0; e < V; e++) {
			const uint2 bits = r.bits(e);

			atomicMax(&part[tx * V + e][0], bits.x);
			atomicMax(&part[tx * V + e][1], bits.y);
		}
	}
	__syncthreads();
	cluster_wait();

	const int each = (columns + blocks - 1) / blocks;

	for (int n = threadIdx.x; n < 2 * columns; n += (int)blockDim.x)
		cluster_max(shared_address(&own[n / 2][n % 2]), n / 2 / each, part[n / 2][n % 2]);
	cluster_arrive();
	cluster_wait();
	for (int n = rank * each + threadIdx.x; n < min(columns, rank * each + each);
	     n += (int)blockDim.x) {
		if (i0 + n < p.size_i)
			put_parameters(p, at.p + (i0 + n) * p.p_i,
				       {__uint_as_float(own[n][0]), __uint_as_float(own[n][1])});
	}
}

/* ---- Ranges of what lies back to back -------------------------------------------------------- */

/* A range under way: of 16 bits two numbers in one word, -x below above x */
template <int DTYPE>
struct near_range {
	uint32_t both;

	__device__ __forceinline__ static uint32_t most(uint32_t a, uint32_t b)
	{
		uint32_t m;

		if (DTYPE == HZ_F16)
			asm("max.f16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
		else
			asm("max.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
		return m;
	}
	__device__ __forceinline__ void join(const near_range &other)
	{
		both = most(both, other.both);
	}
	__device__ __forceinline__ near_range of_lane(int other) const
	{
		return {__shfl_xor_sync(~0u, both, other)};
	}
	__device__ __forceinline__ static near_range of(uint32_t below, uint32_t above, int half)
	{
		return {__byte_perm(below, above, half ? 0x7632 : 0x5410)};
	}
	__device__ __forceinline__ static near_range of_piece(const uint4 &v)
	{
		const uint32_t flip = 0x80008000;
		const uint32_t above = most(most(v.x, v.y), most(v.z, v.w));
		const uint32_t below = most(most(v.x ^ flip, v.y ^ flip),
					    most(v.z ^ flip, v.w ^ flip));
		near_range r = {most(of(below, above, 0).both, of(below, above, 1).both)};

		r.both = most(r.both, 0);
		return r;
	}
	__device__ __forceinline__ range value() const
	{
		return DTYPE == HZ_F16 ? range{f16_low(both), f16_high(both)}
				       : range{bf16_low(both), bf16_high(both)};
	}
};

template <>
struct near_range<HZ_F32> {
	range both;

	__device__ __forceinline__ void join(const near_range &other)
	{
		both = ::join(both, other.both);
	}
	__device__ __forceinline__ near_range of_lane(int other) const
	{
		return {{__shfl_xor_sync(~0u, both.below, other),
			 __shfl_xor_sync(~0u, both.above, other)}};
	}
	__device__ __forceinline__ static near_range of_piece(const uint4 &v)
	{
		near_range r = {{0, 0}};

		widen_piece<HZ_F32>(r.both, v);
		return r;
	}
	__device__ __forceinline__ range value() const
	{
		return both;
	}
};

/* Of COUNT ranges the one whose number's low bits are the lane's, over LANES; see share_rows(). */
template <int COUNT, int LANES, int BIT, typename R>
HZ_DEVICE void share_near(R *r)
{
	if constexpr (COUNT > 1 && BIT < LANES) {
		const bool high = threadIdx.x & BIT;

#pragma unroll
		for (int j = 0; j < COUNT / 2; j++) {
			const R own = high ? r[2 * j + 1] : r[2 * j];

			const R given = high ? r[2 * j] : r[2 * j + 1];

			r[j] = own;
			r[j].join(given.of_lane(BIT));
		}
		share_near<COUNT / 2, LANES, 2 * BIT>(r);
	} else {
#pragma unroll
		for (int d = BIT; d < LANES; d *= 2) {
#pragma unroll
			for (int j = 0; j < COUNT; j++)
				r[j].join(r[j].of_lane(d));
		}
	}
}

/* Groups of 2^LOG pieces; a warp has HZI_RANGE_PIECES times 32 of these. */
template <int DTYPE, int LOG>
HZ_DEVICE void finish_groups(const hzi_range_groups &p, const uint4 *v, int64_t first)
{
	constexpr int TURNS = LOG > 5 ? 1 << (LOG - 5) : 1, COUNT = HZI_RANGE_PIECES / TURNS;
	constexpr int LANES = LOG < 5 ? 1 << LOG : 32, EACH = COUNT < LANES ? COUNT : LANES;
	const int lane = threadIdx.x % 32;
	near_range<DTYPE> r[COUNT];

#pragma unroll
	for (int s = 0; s < HZI_RANGE_PIECES; s++) {
		const near_range<DTYPE> one = near_range<DTYPE>::of_piece(v[s]);

		if (s % TURNS)
			r[s / TURNS].join(one);
		else
			r[s / TURNS] = one;
	}
	share_near<COUNT, LANES, 1>(r);
	if (lane & (LANES - 1) & ~(EACH - 1))
		return;
#pragma unroll
	for (int j = 0; j < COUNT / EACH; j++) {
		const int64_t piece = first + (int64_t)(j * EACH + lane % EACH) * (32 * TURNS) +
				      (lane & ~(LANES - 1));
		const range mine = r[j].value();
		int32_t zero;

		if (piece >= p.pieces)
			continue;
		hzi_qparams(-mine.below, mine.above, p.q_dtype, p.symmetric,
			    &p.scale[piece >> LOG], &zero);
		((uint8_t *)p.zero)[piece >> LOG] = (uint8_t)zero;
	}
}

template <int DTYPE>
HZ_DEVICE void range_groups(const hzi_range_groups &p)
{
	const int64_t first = ((int64_t)blockIdx.x * (HZI_BLOCK_THREADS / 32) + threadIdx.x / 32) *
			      (32 * HZI_RANGE_PIECES);
	const int64_t at = first + threadIdx.x % 32;
	uint4 v[HZI_RANGE_PIECES];

#pragma unroll
	for (int s = 0; s < HZI_RANGE_PIECES; s++)
		v[s] = at + 32 * s < p.pieces ? ((const uint4 *)p.x)[at + 32 * s]
					      : make_uint4(0, 0, 0, 0);
	switch (p.log_group) {
	case 2: return finish_groups<DTYPE, 2>(p, v, first);
	case 3: return finish_groups<DTYPE, 3>(p, v, first);
	case 4: return finish_groups<DTYPE, 4>(p, v, first);
	case 5: return finish_groups<DTYPE, 5>(p, v, first);
	case 6: return finish_groups<DTYPE, 6>(p, v, first);
	case 7: return finish_groups<DTYPE, 7>(p, v, first);
	case 8: return finish_groups<DTYPE, 8>(p, v, first);
	}
}

template <int DTYPE>
HZ_DEVICE void range_rows(const hzi_range_strided &p)
{
	constexpr int V = piece<DTYPE>::count;

	if (p.log_turns >= 0)
		p.pieces ? range_short<DTYPE, V>(p) : range_short<DTYPE, 1>(p);
	else
		p.pieces ? range_long<DTYPE, V>(p) : range_long<DTYPE, 1>(p);
}

template <int DTYPE>
HZ_DEVICE void range_columns(const hzi_range_strided &p)
{
	constexpr int V = piece<DTYPE>::count;

	p.pieces ? range_each<DTYPE, V>(p) : range_each<DTYPE, 1>(p);
}

template <int DTYPE>
HZ_DEVICE void range_clusters(const hzi_range_strided &p)
{
	constexpr int V = piece<DTYPE>::count;

	p.pieces ? range_cluster<DTYPE, V>(p) : range_cluster<DTYPE, 1>(p);
}

#endif
