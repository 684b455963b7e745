/*
 * minmax.cuh - ranges of floats, and the quantization parameters computed from them
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUANTIZE_MINMAX_CUH
#define HZI_GPU_QUANTIZE_MINMAX_CUH

#include "gpu/device/cluster.cuh"
#include "gpu/quantize/strided.cuh"
#include "lib/qgemm/qgemm.h"

/* ---- Ranges ---------------------------------------------------------------------------------- */

/* The range over a block of 256 threads, in all of them */
HZ_DEVICE range range_join_block(range r)
{
	__shared__ range part[8];

	r = range_join_warp(r);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = r;
	__syncthreads();
	return range_join_warp(part[threadIdx.x % 8]);
}

/*
 * Floats >= 0 compare like their bits. Reading first saves most atomics, as few ranges still grow.
 */
HZ_DEVICE void range_store_max(uint32_t *ranges, int64_t p, const range &r)
{
	const uint32_t bits[2] = {__float_as_uint(r.below), __float_as_uint(r.above)};

#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (bits[i] > ((volatile uint32_t *)ranges)[2 * p + i])
			atomicMax(&ranges[2 * p + i], bits[i]);
	}
}

template <int DTYPE>
HZ_DEVICE void range_add_vector(range &r, const uint4 &v)
{
	float f[8];

	unpack<DTYPE>(f, v);
#pragma unroll
	for (int e = 0; e < vec16<DTYPE>::count; e++)
		range_add(r, f[e]);
}

/* One parameter: each block reduces a share of the vectors. */
template <int DTYPE>
HZ_DEVICE void minmax_contiguous(const hzi_minmax_contiguous &p)
{
	const int64_t begin = blockIdx.x * p.share, end = min(p.vectors, begin + p.share);
	const uint4 *x = (const uint4 *)p.x;
	range r = {0, 0};

	for (int64_t i = begin + threadIdx.x; i < end;
	     i += HZI_QUANT_THREADS * HZI_MINMAX_VECTORS) {
		uint4 v[HZI_MINMAX_VECTORS];

#pragma unroll
		for (int j = 0; j < HZI_MINMAX_VECTORS; j++)
			v[j] = i + j * HZI_QUANT_THREADS < end
				       ? __ldcs(x + i + j * HZI_QUANT_THREADS)
				       : make_uint4(0, 0, 0, 0);
#pragma unroll
		for (int j = 0; j < HZI_MINMAX_VECTORS; j++)
			range_add_vector<DTYPE>(r, v[j]);
	}
	r = range_join_block(r);
	if (threadIdx.x == 0)
		range_store_max(p.range, 0, r);
}

/* Not inlined, like find_row(): several callers, and divisions */
static __device__ __noinline__ void store_qparams(const hzi_minmax_strided &p, int64_t n, range r)
{
	int32_t zero;

	hzi_quant_params(-r.below, r.above, p.q_dtype, p.flags, &p.scale[n], &zero);
	((uint8_t *)p.zero)[n] = (uint8_t)zero;
}

/* Offsets of the first element and of the parameter of a row, and the length of the row */
struct row_index {
	int64_t x, p;
	int count;
};

static __device__ __noinline__ row_index find_row(const hzi_minmax_strided &a, uint32_t n)
{
	row_index at = {0, 0, a.size_i};

#pragma unroll 1
	for (int d = a.ndim - 1; d >= 0; d--) {
		const uint32_t up = fastdiv(n, a.shape[d]);
		const int64_t index = n - up * a.shape[d].divisor;

		/* The last dimension counts the parts of a split row. */
		if (d == a.ndim - 1 && index == a.shape[d].divisor - 1)
			at.count = a.last_i;
		at.x += index * a.x_stride[d];
		at.p += index * a.p_stride[d];
		n = up;
	}
	return at;
}

/* Loads element or vector i of a row of `count`, which begins at offset x. */
template <int DTYPE, int V>
struct row_values {
	uint4 v;

	__device__ __forceinline__ void load(const hzi_minmax_strided &p, int64_t x, int i,
					     int count)
	{
		v = i < count ? ((const uint4 *)p.x)[x / V + i] : make_uint4(0, 0, 0, 0);
	}
	__device__ __forceinline__ void add_to(range &r) const
	{
		range_add_vector<DTYPE>(r, v);
	}
};

template <int DTYPE>
struct row_values<DTYPE, 1> {
	raw_float<DTYPE> v;

	__device__ __forceinline__ void load(const hzi_minmax_strided &p, int64_t x, int i,
					     int count)
	{
		v.bits = 0;
		if (i < count)
			v = ((const raw_float<DTYPE> *)p.x)[x + i * p.x_i];
	}
	__device__ __forceinline__ void add_to(range &r) const
	{
		range_add(r, v.value());
	}
};

/* The range over `lanes` aligned lanes, a power of two, in all of them; mask has their bits. */
HZ_DEVICE range range_join_lanes(range r, int lanes, uint32_t mask)
{
#pragma unroll
	for (int d = 16; d; d /= 2) {
		if (d < lanes)
			r = range_join_xor(r, d, mask);
	}
	return r;
}

/*
 * Rows with one parameter each, 2^log_i lanes per row. The lanes stride over the rows and keep a
 * range in registers until the parameter changes.
 */
template <int DTYPE, int V>
HZ_DEVICE void minmax_long_rows(const hzi_minmax_strided &p)
{
	const int lanes = 1 << p.log_i, lane = threadIdx.x & (lanes - 1);
	const uint32_t mask = ~0u >> (32 - lanes) << (threadIdx.x & 31 & -lanes);
	const uint32_t workers = gridDim.x * HZI_QUANT_THREADS >> p.log_i;
	int64_t last = -1;
	range r = {0, 0};

	auto flush = [&](int64_t next) {
		r = range_join_lanes(r, lanes, mask);
		if (lane == 0 && last >= 0 && p.scale)
			store_qparams(p, last, r);
		else if (lane == 0 && last >= 0)
			range_store_max(p.range, last, r);
		last = next;
		r = {0, 0};
	};

	for (int64_t row = (blockIdx.x * HZI_QUANT_THREADS + threadIdx.x) >> p.log_i; row < p.tiles;
	     row += workers) {
		const row_index at = find_row(p, (uint32_t)row);
		row_values<DTYPE, V> v[HZI_MINMAX_VECTORS];

		if (at.p != last)
			flush(at.p);
#pragma unroll 1
		for (int i = lane; i < at.count / V; i += lanes * HZI_MINMAX_VECTORS) {
#pragma unroll
			for (int s = 0; s < HZI_MINMAX_VECTORS; s++)
				v[s].load(p, at.x, i + s * lanes, at.count / V);
#pragma unroll
			for (int s = 0; s < HZI_MINMAX_VECTORS; s++)
				v[s].add_to(r);
		}
	}
	flush(-1);
}

/* r[s] = join of r[s] and r[s + W] for each s that is a multiple of 2 W */
template <int W>
HZ_DEVICE void range_join_pairs(range (&r)[HZI_MINMAX_VECTORS])
{
#pragma unroll
	for (int s = 0; s < HZI_MINMAX_VECTORS; s += 2 * W)
		r[s] = range_join(r[s], r[s + W]);
}

/*
 * Reduce-scatter of 8 ranges over `lanes` >= 8 lanes: at each step a lane keeps half of its ranges
 * and sends the others. Lane n returns range n % 8.
 */
HZ_DEVICE range range_reduce_scatter(range (&r)[HZI_MINMAX_VECTORS], int lanes, uint32_t mask)
{
	static_assert(HZI_MINMAX_VECTORS == 8, "three steps");
	auto step = [&](auto count) {
		constexpr int half = decltype(count)::value, lane = HZI_MINMAX_VECTORS / 2 / half;
		const bool high = threadIdx.x & lane;

#pragma unroll
		for (int j = 0; j < half; j++) {
			const range low = r[2 * j], up = r[2 * j + 1];
			const float below = high ? low.below : up.below;
			const float above = high ? low.above : up.above;

			r[j] = range_join({high ? up.below : low.below,
					   high ? up.above : low.above},
					  {__shfl_xor_sync(mask, below, lane),
					   __shfl_xor_sync(mask, above, lane)});
		}
	};

	step(std_int<4>());
	step(std_int<2>());
	step(std_int<1>());
#pragma unroll
	for (int d = 16; d >= HZI_MINMAX_VECTORS; d /= 2) {
		if (d < lanes)
			r[0] = range_join_xor(r[0], d, mask);
	}
	return r[0];
}

/*
 * Rows for which a lane has at most HZI_MINMAX_VECTORS loads: a group of lanes reduces several rows
 * at once, 2^log_loads loads each, so that their parameters are computed in parallel. The ranges
 * stay in registers because every index is a compile-time constant.
 */
template <int DTYPE, int V>
HZ_DEVICE void minmax_short_rows(const hzi_minmax_strided &p)
{
	const int lanes = 1 << p.log_i, lane = threadIdx.x & (lanes - 1), loads = 1 << p.log_loads;
	const int rows = HZI_MINMAX_VECTORS >> p.log_loads;
	const uint32_t mask = ~0u >> (32 - lanes) << (threadIdx.x & 31 & -lanes);
	const uint32_t workers = gridDim.x * HZI_QUANT_THREADS >> p.log_i;

	for (int64_t row = (blockIdx.x * HZI_QUANT_THREADS + threadIdx.x) >> p.log_i; row < p.tiles;
	     row += (int64_t)workers * rows) {
		row_values<DTYPE, V> v[HZI_MINMAX_VECTORS];
		range r[HZI_MINMAX_VECTORS];
		row_index at = {};

		auto finish = [&](int n, const range &mine) {
			const int64_t of = row + (int64_t)n * workers;

			if (of >= p.tiles)
				return;
			at = find_row(p, (uint32_t)of);
			if (p.scale)
				store_qparams(p, at.p, mine);
			else
				range_store_max(p.range, at.p, mine);
		};

#pragma unroll
		for (int s = 0; s < HZI_MINMAX_VECTORS; s++) {
			const int64_t n = row + (int64_t)(s >> p.log_loads) * workers;

			if ((s & (loads - 1)) == 0 && n < p.tiles)
				at = find_row(p, (uint32_t)n);
			v[s].load(p, at.x, lane + (s & (loads - 1)) * lanes,
				  n < p.tiles ? at.count / V : 0);
		}
#pragma unroll
		for (int s = 0; s < HZI_MINMAX_VECTORS; s++) {
			r[s] = {0, 0};
			v[s].add_to(r[s]);
		}
		if (loads == 1 && lanes >= HZI_MINMAX_VECTORS) {
			const range mine = range_reduce_scatter(r, lanes, mask);

			if (lane < HZI_MINMAX_VECTORS)
				finish(lane, mine);
			continue;
		}
		if (loads > 1)
			range_join_pairs<1>(r);
		if (loads > 2)
			range_join_pairs<2>(r);
		if (loads > 4)
			range_join_pairs<4>(r);
#pragma unroll
		for (int d = 16; d; d /= 2) {
			if (d >= lanes)
				continue;
#pragma unroll
			for (int s = 0; s < HZI_MINMAX_VECTORS; s++)
				r[s] = range_join_xor(r[s], d, mask);
		}
		/* Lane n stores rows n, n + lanes, ... */
		for (int n = lane; n < rows; n += lanes) {
			uint32_t below = 0, above = 0;

			/* A dynamic index would place r in local memory. */
#pragma unroll
			for (int s = 0; s < HZI_MINMAX_VECTORS; s++) {
				const uint32_t chosen = s == n << p.log_loads ? ~0u : 0;

				below |= __float_as_uint(r[s].below) & chosen;
				above |= __float_as_uint(r[s].above) & chosen;
			}
			finish(n, {__uint_as_float(below), __uint_as_float(above)});
		}
	}
}

/*
 * One parameter for each element along i: a block reduces 2^log_i elements or vectors along i over
 * a share of the rows.
 */
template <int DTYPE, int V>
HZ_DEVICE void minmax_column_share(const hzi_minmax_strided &p)
{
	__shared__ range part[HZI_QUANT_THREADS][V + 1];
	const int across = 1 << p.log_i, down = HZI_QUANT_THREADS >> p.log_i;
	const int tx = threadIdx.x & (across - 1), ty = threadIdx.x >> p.log_i;
	const uint32_t tile = fastdiv(blockIdx.x, p.tiles_i);
	const int i0 = (int)(blockIdx.x - tile * p.tiles_i.divisor) * across * V;
	const uint32_t outer = fastdiv(tile, p.shares);
	const int share = (int)(tile - outer * p.shares.divisor);
	const int begin = share * p.share, end = min(p.size_j, begin + p.share);
	const row_index at = find_row(p, outer);
	range r[V] = {};

	for (int j = begin + ty; j < end; j += down * HZI_MINMAX_VECTORS) {
		row_values<DTYPE, V> v[HZI_MINMAX_VECTORS];

#pragma unroll
		for (int s = 0; s < HZI_MINMAX_VECTORS; s++) {
			const int row = j + s * down;

			v[s].load(p, at.x + row * p.x_j, i0 / V + tx,
				  row < end ? p.size_i / V : 0);
		}
#pragma unroll
		for (int s = 0; s < HZI_MINMAX_VECTORS; s++) {
			if constexpr (V == 1) {
				v[s].add_to(r[0]);
			} else {
				float f[8];

				unpack<DTYPE>(f, v[s].v);
#pragma unroll
				for (int e = 0; e < V; e++)
					range_add(r[e], f[e]);
			}
		}
	}
#pragma unroll
	for (int e = 0; e < V; e++)
		part[threadIdx.x][e] = r[e];
	__syncthreads();
	for (int n = threadIdx.x; n < across * V && i0 + n < p.size_i; n += HZI_QUANT_THREADS) {
		range all = part[n / V][n % V];

		for (int s = 1; s < down; s++)
			all = range_join(all, part[(s << p.log_i) + n / V][n % V]);
		range_store_max(p.range, at.p + (i0 + n) * p.p_i, all);
	}
}

/* ---- Columns, reduced by a cluster ----------------------------------------------------------- */

/* Minimum and maximum, including 0, of V adjacent columns over the rows of a lane */
template <int DTYPE, int V>
struct column_minmax {
	/* Vectors of 16-bit floats stay packed in pairs; others are f32. */
	static constexpr int words = V == 1 ? 1 : 4;
	static constexpr bool packed = V == 8;
	uint32_t low[words], high[words];

	__device__ __forceinline__ static uint32_t least(uint32_t a, uint32_t b)
	{
		if (packed)
			return min_x2<DTYPE>(a, b);
		return __float_as_uint(fminf(__uint_as_float(a), __uint_as_float(b)));
	}
	__device__ __forceinline__ static uint32_t most(uint32_t a, uint32_t b)
	{
		if (packed)
			return max_x2<DTYPE>(a, b);
		return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
	}
	__device__ __forceinline__ void add(const row_values<DTYPE, V> &x)
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
		const int i = packed ? e / 2 : e;
		uint32_t l = low[i], h = high[i];

		if (packed && DTYPE == HZ_F16) {
			l = __float_as_uint(e % 2 ? f16_high(l) : f16_low(l));
			h = __float_as_uint(e % 2 ? f16_high(h) : f16_low(h));
		} else if (packed) {
			l = __float_as_uint(e % 2 ? bf16_high(l) : bf16_low(l));
			h = __float_as_uint(e % 2 ? bf16_high(h) : bf16_low(h));
		}
		return make_uint2(l & 0x7fffffff, h & 0x7fffffff);
	}
};

/*
 * Atomic maximum on a word in the shared memory of block `rank`; address is that of the same word
 * in this block.
 */
HZ_DEVICE void cluster_max(uint32_t address, uint32_t rank, uint32_t value)
{
	HZ_ASM_SM90("red.relaxed.cluster.shared::cluster.max.u32 [%0], %1;"
		    :: "r"(cluster_map(address, rank)), "r"(value) : "memory");
}

/*
 * Cluster variant of minmax_column_share(): each block reduces a share of the rows; blocks exchange
 * minima and maxima through distributed shared memory, and each computes the parameters of its
 * share of the columns.
 */
template <int DTYPE, int V>
HZ_DEVICE void minmax_cluster_columns(const hzi_minmax_strided &p)
{
	using value = decltype(row_values<DTYPE, V>::v);
	__shared__ uint32_t own[32 * V][2], part[32 * V][2];
	const int across = 1 << p.log_i, down = (int)blockDim.x >> p.log_i, columns = across * V;
	const int tx = threadIdx.x & (across - 1), ty = threadIdx.x >> p.log_i;
	const uint32_t tile = fastdiv(blockIdx.x, p.shares);
	const int blocks = (int)p.shares.divisor, rank = (int)(blockIdx.x - tile * blocks);
	const uint32_t outer = fastdiv(tile, p.tiles_i);
	const int i0 = (int)(tile - outer * p.tiles_i.divisor) * columns;
	const row_index at = find_row(p, outer);
	const int64_t i = i0 / V + tx;
	const int begin = rank * p.share;
	const int end = i < p.size_i / V ? min(p.size_j, begin + p.share) : 0;
	const value *x = (const value *)p.x + at.x / V + i * (V > 1 ? 1 : p.x_i);
	const int64_t step = p.x_j / V;
	column_minmax<DTYPE, V> r = {};

	for (int n = threadIdx.x; n < 64 * V; n += (int)blockDim.x)
		own[n / 2][n % 2] = part[n / 2][n % 2] = 0;
	__syncthreads();
	cluster_arrive();
	for (int j = begin + ty; j < end; j += down * HZI_MINMAX_VECTORS) {
		row_values<DTYPE, V> v[HZI_MINMAX_VECTORS];

		/* Clamps to the last row: a branch would separate the loads. */
#pragma unroll
		for (int s = 0; s < HZI_MINMAX_VECTORS; s++)
			v[s].v = x[min(j + s * down, end - 1) * step];
#pragma unroll
		for (int s = 0; s < HZI_MINMAX_VECTORS; s++)
			r.add(v[s]);
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
			store_qparams(p, at.p + (i0 + n) * p.p_i,
				      {__uint_as_float(own[n][0]), __uint_as_float(own[n][1])});
	}
}

/* ---- Contiguous groups ----------------------------------------------------------------------- */

/* A range in registers. 16-bit floats: -x in the lower half of a word, x in the upper half */
template <int DTYPE>
struct packed_range {
	uint32_t both;

	__device__ __forceinline__ void merge(const packed_range &other)
	{
		both = max_x2<DTYPE>(both, other.both);
	}
	__device__ __forceinline__ packed_range shuffle_xor(int other) const
	{
		return {__shfl_xor_sync(~0u, both, other)};
	}
	__device__ __forceinline__ static packed_range of(uint32_t below, uint32_t above, int half)
	{
		return {__byte_perm(below, above, half ? 0x7632 : 0x5410)};
	}
	__device__ __forceinline__ static packed_range of_vector(const uint4 &v)
	{
		const uint32_t flip = 0x80008000;
		const auto most = max_x2<DTYPE>;
		const uint32_t above = most(most(v.x, v.y), most(v.z, v.w));
		const uint32_t below = most(most(v.x ^ flip, v.y ^ flip),
					    most(v.z ^ flip, v.w ^ flip));

		return {most(most(of(below, above, 0).both, of(below, above, 1).both), 0)};
	}
	__device__ __forceinline__ range value() const
	{
		return DTYPE == HZ_F16 ? range{f16_low(both), f16_high(both)}
				       : range{bf16_low(both), bf16_high(both)};
	}
};

template <>
struct packed_range<HZ_F32> {
	range both;

	__device__ __forceinline__ void merge(const packed_range &other)
	{
		both = range_join(both, other.both);
	}
	__device__ __forceinline__ packed_range shuffle_xor(int other) const
	{
		return {{__shfl_xor_sync(~0u, both.below, other),
			 __shfl_xor_sync(~0u, both.above, other)}};
	}
	__device__ __forceinline__ static packed_range of_vector(const uint4 &v)
	{
		packed_range r = {{0, 0}};

		range_add_vector<HZ_F32>(r.both, v);
		return r;
	}
	__device__ __forceinline__ range value() const
	{
		return both;
	}
};

/*
 * Reduce-scatter of COUNT ranges over LANES lanes: a lane keeps the range whose index has the low
 * bits of the lane; see range_reduce_scatter().
 */
template <int COUNT, int LANES, int BIT, typename R>
HZ_DEVICE void packed_reduce_scatter(R *r)
{
	if constexpr (COUNT > 1 && BIT < LANES) {
		const bool high = threadIdx.x & BIT;

#pragma unroll
		for (int j = 0; j < COUNT / 2; j++) {
			const R own = high ? r[2 * j + 1] : r[2 * j];

			const R given = high ? r[2 * j] : r[2 * j + 1];

			r[j] = own;
			r[j].merge(given.shuffle_xor(BIT));
		}
		packed_reduce_scatter<COUNT / 2, LANES, 2 * BIT>(r);
	} else {
#pragma unroll
		for (int d = BIT; d < LANES; d *= 2) {
#pragma unroll
			for (int j = 0; j < COUNT; j++)
				r[j].merge(r[j].shuffle_xor(d));
		}
	}
}

/*
 * Reduces groups of 2^LOG vectors, and stores their parameters; a warp has 32 HZI_MINMAX_VECTORS
 * vectors.
 */
template <int DTYPE, int LOG>
HZ_DEVICE void store_group_qparams(const hzi_minmax_groups &p, const uint4 *v, int64_t first)
{
	constexpr int LOADS = LOG > 5 ? 1 << (LOG - 5) : 1, COUNT = HZI_MINMAX_VECTORS / LOADS;
	constexpr int LANES = LOG < 5 ? 1 << LOG : 32, EACH = COUNT < LANES ? COUNT : LANES;
	const int lane = threadIdx.x % 32;
	packed_range<DTYPE> r[COUNT];

#pragma unroll
	for (int s = 0; s < HZI_MINMAX_VECTORS; s++) {
		const packed_range<DTYPE> one = packed_range<DTYPE>::of_vector(v[s]);

		if (s % LOADS)
			r[s / LOADS].merge(one);
		else
			r[s / LOADS] = one;
	}
	packed_reduce_scatter<COUNT, LANES, 1>(r);
	if (lane & (LANES - 1) & ~(EACH - 1))
		return;
#pragma unroll
	for (int j = 0; j < COUNT / EACH; j++) {
		const int64_t vector = first + (int64_t)(j * EACH + lane % EACH) * (32 * LOADS) +
				      (lane & ~(LANES - 1));
		const range mine = r[j].value();
		int32_t zero;

		if (vector >= p.vectors)
			continue;
		hzi_quant_params(-mine.below, mine.above, p.q_dtype, p.flags,
				 &p.scale[vector >> LOG], &zero);
		((uint8_t *)p.zero)[vector >> LOG] = (uint8_t)zero;
	}
}

template <int DTYPE>
HZ_DEVICE void minmax_groups(const hzi_minmax_groups &p)
{
	const int64_t first = ((int64_t)blockIdx.x * (HZI_QUANT_THREADS / 32) + threadIdx.x / 32) *
			      (32 * HZI_MINMAX_VECTORS);
	const int64_t at = first + threadIdx.x % 32;
	uint4 v[HZI_MINMAX_VECTORS];

#pragma unroll
	for (int s = 0; s < HZI_MINMAX_VECTORS; s++)
		v[s] = at + 32 * s < p.vectors ? ((const uint4 *)p.x)[at + 32 * s]
					      : make_uint4(0, 0, 0, 0);
	switch (p.log_group) {
	case 2: return store_group_qparams<DTYPE, 2>(p, v, first);
	case 3: return store_group_qparams<DTYPE, 3>(p, v, first);
	case 4: return store_group_qparams<DTYPE, 4>(p, v, first);
	case 5: return store_group_qparams<DTYPE, 5>(p, v, first);
	case 6: return store_group_qparams<DTYPE, 6>(p, v, first);
	case 7: return store_group_qparams<DTYPE, 7>(p, v, first);
	case 8: return store_group_qparams<DTYPE, 8>(p, v, first);
	}
}

template <int DTYPE>
HZ_DEVICE void minmax_rows(const hzi_minmax_strided &p)
{
	constexpr int V = vec16<DTYPE>::count;

	if (p.log_loads >= 0)
		p.vectors ? minmax_short_rows<DTYPE, V>(p) : minmax_short_rows<DTYPE, 1>(p);
	else
		p.vectors ? minmax_long_rows<DTYPE, V>(p) : minmax_long_rows<DTYPE, 1>(p);
}

template <int DTYPE>
HZ_DEVICE void minmax_columns(const hzi_minmax_strided &p)
{
	constexpr int V = vec16<DTYPE>::count;

	p.vectors ? minmax_column_share<DTYPE, V>(p) : minmax_column_share<DTYPE, 1>(p);
}

template <int DTYPE>
HZ_DEVICE void minmax_cluster(const hzi_minmax_strided &p)
{
	constexpr int V = vec16<DTYPE>::count;

	p.vectors ? minmax_cluster_columns<DTYPE, V>(p) : minmax_cluster_columns<DTYPE, 1>(p);
}

#endif
