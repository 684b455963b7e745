/*
 * closest_point.cu - Z^d, A2, D_d and E8 with any q, groups, banks, packings and strides
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A lane has one block; the lanes of a group of blocks that share a scale work together. Each group
 * advances to its next scale, and to its next blocks, independently of the others, so that a warp
 * is full whatever share of blocks fits at the first scale.
 */
#include "gpu/device/dtype.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/lattice/closest_point.cuh"
#include "gpu/lattice/closest_point.h"
#include "gpu/lattice/overload.cuh"
#include "gpu/lattice/points_s8.cuh"

#define THREADS 256
#define REFILL 8	/* idle lanes before new blocks are loaded */

/* ---- Memory -------------------------------------------------------------------------------- */

/* Offsets of the row of a unit in values, codes and t; the unit in its row */
struct row_offsets {
	int64_t v, codes, t;
	uint32_t unit;
};

HZ_DEVICE row_offsets find_row(const hzi_lattice_closest &p, uint32_t unit)
{
	row_offsets at = {0, 0, 0, unit};

	if (p.ndim > 0) {
		uint32_t row = unit / p.row_units;

		at.unit = unit - row * p.row_units;
#pragma unroll 1
		for (int d = p.ndim - 1; d >= 0; d--) {
			const uint32_t next = row / p.shape[d], i = row - next * p.shape[d];

			row = next;
			at.v += i * p.v_stride[d];
			at.codes += i * p.codes.stride[d];
			at.t += i * p.t_stride[d];
		}
	}
	return at;
}

/* A type of BYTES bytes; N values of 16, and of 32, bits as one or more of these */
template <int BYTES>
struct word_of {
	using type = uint4;
};
template <>
struct word_of<2> {
	using type = uint16_t;
};
template <>
struct word_of<4> {
	using type = uint32_t;
};
template <>
struct word_of<8> {
	using type = uint2;
};

template <int N>
union half_vector {
	using word = typename word_of<2 * N>::type;
	word v;
	uint16_t h[N];
};

template <int N>
union float_vector {
	using word = typename word_of<(4 * N > 16 ? 16 : 4 * N)>::type;
	word v[N > 4 ? N / 4 : 1];
	float f[N];
};

template <int D>
HZ_DEVICE void load_values(const hzi_lattice_closest &p, int64_t row, uint32_t block, float *f)
{
	const int64_t at = (int64_t)block * D;

	if constexpr (D != 3) {
		if (p.vectors && p.v_dtype == HZ_F32) {
			using word = typename float_vector<D>::word;
			float_vector<D> u;

#pragma unroll
			for (int i = 0; i < (D > 4 ? D / 4 : 1); i++)
				u.v[i] = ((const word *)((const float *)p.v + row + at))[i];
#pragma unroll
			for (int i = 0; i < D; i++)
				f[i] = u.f[i];
			return;
		}
		if (p.vectors) {
			half_vector<D> u;

			u.v = *(const typename half_vector<D>::word *)((const uint16_t *)p.v + row +
								       at);
#pragma unroll
			for (int i = 0; i < D; i++)
				f[i] = p.v_dtype == HZ_F16 ? f16_low(u.h[i]) : bf16_low(u.h[i]);
			return;
		}
	}
#pragma unroll
	for (int i = 0; i < D; i++)
		f[i] = at + i < p.n ? load_float(p.v_dtype, p.v, row + (at + i) * p.v_step) : 0;
}

template <int D>
HZ_DEVICE void store_values(const hzi_lattice_closest &p, int64_t row, uint32_t block,
			    const float *f)
{
	const int64_t at = (int64_t)block * D;

	if constexpr (D != 3) {
		if (p.vectors && p.v_dtype == HZ_F32) {
			float_vector<D> u;

#pragma unroll
			for (int i = 0; i < D; i++)
				u.f[i] = f[i];
#pragma unroll
			for (int i = 0; i < (D > 4 ? D / 4 : 1); i++)
				((typename float_vector<D>::word *)((float *)p.v + row + at))[i] =
					u.v[i];
			return;
		}
		if (p.vectors) {
			half_vector<D> u;

#pragma unroll
			for (int i = 0; i < D; i++)
				u.h[i] = (uint16_t)(p.v_dtype == HZ_F16 ? to_f16x2(f[i], 0) :
								to_bf16x2(f[i], 0));
			*(typename half_vector<D>::word *)((uint16_t *)p.v + row + at) = u.v;
			return;
		}
	}
#pragma unroll
	for (int i = 0; i < D; i++)
		if (at + i < p.n)
			store_any(p.v_dtype, p.v, row + (at + i) * p.v_step, f[i]);
}

HZ_DEVICE void store_number(void *p, int bytes, uint64_t v)
{
	if (bytes == 1)
		*(uint8_t *)p = (uint8_t)v;
	else if (bytes == 2)
		*(uint16_t *)p = (uint16_t)v;
	else if (bytes == 4)
		*(uint32_t *)p = (uint32_t)v;
	else
		*(uint64_t *)p = v;
}

HZ_DEVICE uint64_t load_number(const void *p, int bytes)
{
	return bytes == 1 ? *(const uint8_t *)p : bytes == 2 ? *(const uint16_t *)p :
	       bytes == 4 ? *(const uint32_t *)p : *(const uint64_t *)p;
}

/* x / q and x % q, for any x */
HZ_DEVICE uint32_t divide(uint32_t x, uint32_t q, int log2q, uint32_t magic, uint32_t &remainder)
{
	uint32_t by;

	if (log2q >= 0) {
		remainder = x & (q - 1);
		return x >> log2q;
	}
	by = __umulhi(x, magic);
	remainder = x - by * q;
	if (remainder >= q) {
		remainder -= q;
		by++;
	}
	return by;
}

/*
 * Stores the codes of all levels. For LIMBS, the index of each level is in its own bits of `codes`,
 * and is split into digits.
 */
HZ_DEVICE void store_levels(const hzi_lattice_closest &p, char *dst, uint64_t codes)
{
	const hzi_lattice_rule &r = p.rule;
	const int64_t step = p.codes.level * p.codes.bytes;

	if (p.codes.pack == HZI_LATTICE_LEVEL) {
		for (int m = 0; m < r.levels; m++, dst += step, codes >>= 8 * p.codes.bytes)
			store_number(dst, p.codes.bytes, codes);
		return;
	}
	uint32_t word = 0, weight = 1;
	int filled = 0;

	for (int m = 0; m < r.levels; m++) {
		uint32_t index = (uint32_t)(codes & ((uint64_t)1 << p.level_bits) - 1);

		codes >>= p.level_bits;
		for (int j = 0; j < r.d; j++) {
			uint32_t digit;

			index = divide(index, (uint32_t)r.q, r.log2q, p.magic, digit);
			word += digit * weight;
			weight *= (uint32_t)r.q;
			if (++filled == r.limb_digits) {
				*(uint32_t *)dst = word;
				dst += step;
				word = 0;
				weight = 1;
				filled = 0;
			}
		}
	}
	if (filled)
		*(uint32_t *)dst = word;
}

HZ_DEVICE void store_codes(const hzi_lattice_closest &p, char *dst, uint64_t codes)
{
	if (p.block_bytes)
		store_number(dst, p.block_bytes, codes);
	else
		store_levels(p, dst, codes);
}

/* ---- Points, for encode() -------------------------------------------------------------------- */

/* Coordinates as floats, for any q */
template <class L>
struct float_point {
	using lattice = L;
	static constexpr int dim = L::dim;
	struct tables {};
	radix_constants n;
	uint32_t q;
	float g[L::embed];
	bool large;

	__device__ __forceinline__ explicit float_point(const hzi_lattice_closest &p)
		: n{p.q, p.inverse, p.unit, p.unit_inverse}, q((uint32_t)p.rule.q) {}

	/* Sets the point nearest to y, plus o; or o itself if `none`. */
	__device__ __forceinline__ void set(const hzi_lattice_closest &p, const float *y, bool none)
	{
		nearest_point<L>(y, g);
#pragma unroll
		for (int i = 0; i < L::embed; i++)
			g[i] = none ? p.offset[i] : __fadd_rn(g[i], p.offset[i]);
		large = max_abs<L::embed>(g) > LARGE_COORDINATE;
	}

	__device__ __forceinline__ float error(const hzi_lattice_closest &p, const float *y) const
	{
		return squared_error<L>(y, g, p.offset);
	}

	/* Returns the index of the current level and advances to the next. */
	__device__ __forceinline__ uint32_t level(const tables &)
	{
		const uint32_t index = code_index<L>(g, n, q, large);

		parent_point<L>(g, n);
		return index;
	}

	__device__ __forceinline__ bool left() const
	{
		return max_abs<L::embed>(g) != 0;
	}
};

/*
 * Coordinates as bytes, for D4 and E8 with q = 4; see gpu/lattice/points_s8.cuh. Points beyond its
 * reach never fit.
 */
template <class P, class L>
struct byte_point {
	using lattice = L;
	static constexpr int dim = P::dim;
	using tables = typename P::tables;
	uint32_t w[P::words], bias;
	bool remainder;

	__device__ __forceinline__ explicit byte_point(const hzi_lattice_closest &) {}

	__device__ __forceinline__ void set(const hzi_lattice_closest &p, const float *y, bool none)
	{
		P::nearest(y, w);
#pragma unroll
		for (int i = 0; i < P::words; i++)
			w[i] = (none ? P::bias * ones : w[i]) + p.offset_bytes[i];
		bias = P::bias;
	}

	__device__ __forceinline__ float error(const hzi_lattice_closest &p, const float *y) const
	{
		float sum = 0;

#pragma unroll
		for (int i = 0; i < dim; i++) {
			const int j = dim == 8 ? i & 1 : 0, byte = dim == 8 ? 3 - i / 2 : i;
			const uint32_t word = w[j] - p.offset_bytes[j];
			const float g = __uint_as_float(permute(word, 0x4b000000, 0x7650 | byte)) -
					(8388608.0f + P::bias);
			const float e = dim == 8 ? __fmaf_rn(-0.5f, g, y[i]) : __fsub_rn(y[i], g);

			sum = __fadd_rn(sum, __fmul_rn(e, e));
		}
		return sum;
	}

	__device__ __forceinline__ uint32_t level(const tables &tables)
	{
		const uint32_t code = P::index(w);

		bias = P::next_bias(bias);
		P::subtract(w, code, tables);
		remainder = P::left(w, bias);
		P::divide(w);
		return dim == 8 ? code & 0xffff : code;
	}

	__device__ __forceinline__ bool left() const
	{
		return remainder;
	}
};

/* ---- Encoding ------------------------------------------------------------------------------ */

/* In shared memory, because constant memory is slow if lanes differ in the index */
struct scale_table {
	float scale[HZI_LATTICE_SCALES], inverse[HZI_LATTICE_SCALES];
};

/* The state of the block of a lane */
template <int D>
struct block_state {
	float v[D], size;		/* the values, and the largest gauge of the group */
	uint64_t best_codes;		/* codes at scale `best` */
	float least;			/* the error at that scale */
	uint32_t unit;
	int t, j;			/* the scale, and the power of 2^(-1/16), to try next */
	int best, end;			/* r.scales: none yet; one past the last t to try */
	bool busy, mine, nan, clips;	/* mine: the block exists */
};

/* See gauge() of the lattices; a smaller value is also correct but slower. */
template <class L>
HZ_DEVICE float gauge_of(const float *v)
{
	return fminf(L::gauge(v), FLT_MAX);
}

/* Replaces Inf and NaN as hzi_lattice_map() does. */
template <int D>
HZ_DEVICE bool clean_values(float *v)
{
	bool nan = false;

#pragma unroll
	for (int i = 0; i < D; i++) {
		nan |= v[i] != v[i];
		v[i] = hzi_lclamp(v[i], FLT_MAX);
	}
#pragma unroll
	for (int i = 0; i < D; i++)
		v[i] = nan ? 0 : v[i];
	return nan;
}

/* The next index after j that may fit, see hzi_lattice_clip() */
static __device__ __noinline__ int next_shrink(const hzi_lattice_rule &r, float gauge, float size,
					       float inverse, int j)
{
	const float scaled = fminf(__fmul_rn(size, inverse), FLT_MAX);
	int high, low;

	frexpf(scaled, &high);
	frexpf(gauge, &low);
	j = max(j + 1, 16 * (high - 1 - low));
	while (j < HZI_LATTICE_SHRINKS && __fmul_rn(scaled, hzi_lattice_factor(&r, j)) > gauge)
		j++;
	return j;
}

template <class P>
HZ_DEVICE void encode(const hzi_lattice_closest &p, const scale_table &scales,
		      const typename P::tables &tables)
{
	constexpr int D = P::dim;
	const hzi_lattice_rule &r = p.rule;
	const bool grouped = hzi_lattice_grouped(&r);
	const uint32_t lane = threadIdx.x & 31, warps = gridDim.x * (blockDim.x >> 5);
	const uint32_t warp = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
	const uint32_t group = (uint32_t)r.group, slot = lane / group, base = slot * group;
	const bool active = base + group <= 32;
	const uint32_t members = (group == 32 ? ~0u : (1u << group) - 1) << (active ? base : 0);
	const bool best = (r.policy == HZI_LATTICE_BANK || grouped) &&
			  !(r.flags & HZI_LATTICE_FIRST_FIT);
	const int tries = !best ? 1 : r.policy == HZI_LATTICE_GROUP ? HZI_LATTICE_TRIES :
			  HZI_LATTICE_SCALES;
	uint32_t claimed = 0, overloaded = 0, nonfinite = 0;
	block_state<D> b = {};

	for (;;) {
		const uint32_t busy = __ballot_sync(~0u, b.busy);
		const bool wants = active && !(busy & members);
		const uint32_t heads = __ballot_sync(~0u, wants && lane == base);

		const bool refill = !busy || __popc(heads) * group >= REFILL;

		if (wants && refill) {
			const uint32_t s = claimed + __popc(heads & ((1u << base) - 1));

			b.unit = (s / 32 * warps + warp) * 32 + s % 32;
			if (b.unit < p.units) {
				const row_offsets at = find_row(p, b.unit);
				const uint32_t block = at.unit * group + lane - base;

				b.mine = block < p.blocks;
				b.nan = false;
#pragma unroll
				for (int i = 0; i < D; i++)
					b.v[i] = 0;
				if (b.mine)
					load_values<D>(p, at.v, block, b.v);
				if (!(max_abs<D, true>(b.v) <= FLT_MAX)) {
					nonfinite++;
					b.nan = clean_values<D>(b.v);
				}
				b.size = gauge_of<typename P::lattice>(b.v);
				if (grouped) {
					const float own = b.size;

					for (uint32_t i = 0; i < group; i++)
						b.size = fmaxf(b.size,
							       __shfl_sync(members, own, base + i));
				}
				b.busy = b.mine;
				b.clips = false;
				b.t = b.j = 0;
				b.best = b.end = r.scales;
				/* Blocks that try all scales stay in step. */
				if (r.policy != HZI_LATTICE_NONE && tries < HZI_LATTICE_SCALES)
					while (b.t < r.scales &&
					       __fmul_rn(b.size, scales.inverse[b.t]) > p.gauge)
						b.t++;
				if (b.t == r.scales) {
					b.clips = true;
					b.t = r.largest;
				}
			}
		}
		claimed += refill ? __popc(heads) : 0;

		const uint32_t now = __ballot_sync(~0u, b.busy);

		if (!now)
			break;

		/* One try */
		const float inverse = scales.inverse[b.t];
		const float f = b.j == 0 ? 1.0f : b.j < HZI_LATTICE_SHRINKS ?
				hzi_lattice_factor(&r, b.j) : 0.0f;
		bool inside = true;
		uint64_t codes = 0, weight = 1;
		float y[D], error = 0;
		P point(p);

#pragma unroll
		for (int i = 0; i < D; i++)
			y[i] = b.j == 0 ? __fmaf_rn(b.v[i], inverse, 0.0f) :
			       __fmaf_rn(hzi_lclamp(__fmul_rn(b.v[i], inverse), FLT_MAX), f, 0.0f);
		if (r.flags & HZI_LATTICE_DITHERED) {
#pragma unroll
			for (int i = 0; i < D; i++)
				y[i] = __fadd_rn(y[i], r.dither[i]);
		}
		if (r.policy != HZI_LATTICE_NONE) {
			const float own = grouped && b.clips ?
						  gauge_of<typename P::lattice>(b.v) : b.size;

			inside = __fmul_rn(fminf(__fmul_rn(own, inverse), FLT_MAX), f) <= p.gauge;
		} else if (!(max_abs<D, true>(y) <= HZI_LATTICE_RANGE)) {
			inside = false;
#pragma unroll
			for (int i = 0; i < D; i++)
				y[i] = hzi_lclamp(y[i], HZI_LATTICE_RANGE);
		}
		point.set(p, y, b.nan);
		if (best)
			error = b.nan || !b.mine ? 0 : point.error(p, y);
		for (int m = 0; m < r.levels; m++) {
			codes += point.level(tables) * weight;
			weight *= p.weight;
		}

		/* Evaluates the try */
		const bool fits = b.nan || !b.mine || (inside && !point.left());
		const uint32_t fitting = __ballot_sync(~0u, fits);
		bool done = false;

		if (!active || !(now & members))
			continue;
		if (r.policy == HZI_LATTICE_NONE) {
			done = true;
			overloaded += !fits;
		} else if (b.clips) {
			done = fits || b.j >= HZI_LATTICE_SHRINKS;
			if (!done)
				b.j = next_shrink(r, p.gauge, gauge_of<typename P::lattice>(b.v),
						  inverse, b.j);
			else if (b.busy)
				overloaded += b.j > 0;
		} else {
			const bool all = grouped ? (fitting & members) == members : fits;

			if (all) {
				const float s = scales.scale[b.t];
				float sum = error;

				if (grouped && best) {
					sum = 0;
					for (uint32_t i = 0; i < group; i++)
						sum = __fadd_rn(sum, __shfl_sync(members, error,
										 base + i));
				}
				sum = __fmul_rn(sum, __fmul_rn(s, s));
				if (b.best == r.scales)
					b.end = min(b.t + tries, b.end);
				if (b.best == r.scales || sum < b.least) {
					b.least = sum;
					b.best = b.t;
					b.best_codes = codes;
				}
			}
			b.t++;
			if (b.nan && !grouped)
				b.end = b.t;
			if (b.t >= b.end) {
				done = b.best < r.scales;
				b.clips = !done;
				b.t = done ? b.best : r.largest;
				codes = b.best_codes;
			}
		}
		if (!done)
			continue;

		const row_offsets at = find_row(p, b.unit);
		const uint32_t block = at.unit * group + lane - base;

		if (b.busy)
			store_codes(p, (char *)p.codes.codes +
				    (at.codes + block * p.codes.block) * p.codes.bytes, codes);
		if (p.t && b.busy && lane == base)
			p.t[at.t + at.unit * p.t_step] = (uint8_t)b.t;
		b.busy = false;
	}
	if (p.overload)
		count_overload(p.overload, overloaded, nonfinite);
}

HZ_DEVICE void fill_scales(const hzi_lattice_closest &p, scale_table &scales)
{
	if (threadIdx.x < HZI_LATTICE_SCALES) {
		scales.scale[threadIdx.x] = p.rule.scale[threadIdx.x];
		scales.inverse[threadIdx.x] = p.rule.inverse[threadIdx.x];
	}
}

/* blocks: per SM, see gpu/lattice/closest_point.c */
#define ENCODE(name, threads, blocks, ...) \
	extern "C" __global__ void __launch_bounds__(threads, HZ_BLOCKS(threads, blocks)) \
		name(const __grid_constant__ hzi_lattice_closest p) \
	{ \
		__shared__ scale_table scales; \
		using point = __VA_ARGS__; \
		__shared__ __align__(16) point::tables tables; \
 \
		fill_tables(tables); \
		fill_scales(p, scales); \
		__syncthreads(); \
		pdl_wait(); \
		pdl_launch_dependents(); \
		encode<point>(p, scales, tables); \
	}

ENCODE(lattice_encode_z1, THREADS, 5, float_point<z_lattice<1>>)
ENCODE(lattice_encode_z2, THREADS, 5, float_point<z_lattice<2>>)
ENCODE(lattice_encode_z4, THREADS, 4, float_point<z_lattice<4>>)
ENCODE(lattice_encode_z8, THREADS, 3, float_point<z_lattice<8>>)
ENCODE(lattice_encode_a2, THREADS, 5, float_point<a2_lattice>)
ENCODE(lattice_encode_d3, THREADS, 4, float_point<d_lattice<3>>)
ENCODE(lattice_encode_d4, THREADS, 4, float_point<d_lattice<4>>)
ENCODE(lattice_encode_d8, THREADS, 3, float_point<d_lattice<8>>)
ENCODE(lattice_encode_e8, THREADS, 3, float_point<e8_lattice>)
ENCODE(lattice_encode_groups_d4q4, THREADS, 4, byte_point<d4_point<4>, d_lattice<4>>)
ENCODE(lattice_encode_groups_e8q4, 768, 1, byte_point<e8_point<4>, e8_lattice>)

/* ---- Decoding ------------------------------------------------------------------------------ */

/* Reads the digits of the codes of a block, level by level */
struct code_reader {
	const char *at;
	int64_t step;			/* in bytes */
	uint64_t all;
	uint32_t word;
	int filled;

	__device__ __forceinline__ code_reader(const hzi_lattice_closest &p, const char *src)
		: at(src), step(p.codes.level * p.codes.bytes), word(0), filled(0)
	{
		all = p.block_bytes ? load_number(src, p.block_bytes) : 0;
	}

	template <int D>
	__device__ __forceinline__ void next(const hzi_lattice_closest &p, float *z)
	{
		const hzi_lattice_rule &r = p.rule;
		uint32_t index, digit;

		if (p.codes.pack == HZI_LATTICE_LIMBS) {
#pragma unroll
			for (int i = 0; i < D; i++) {
				if (filled == 0) {
					word = *(const uint32_t *)at;
					at += step;
					filled = r.limb_digits;
				}
				word = divide(word, (uint32_t)r.q, r.log2q, p.magic, digit);
				z[i] = float_of(digit);
				filled--;
			}
			return;
		}
		if (p.codes.pack == HZI_LATTICE_FULL64) {
			if (r.log2q >= 0) {
				index = (uint32_t)all;
				all = D * r.log2q < 64 ? all >> D * r.log2q : 0;
			} else {
				const uint64_t by = all / p.weight;

				index = (uint32_t)(all - by * p.weight);
				all = by;
			}
		} else if (p.block_bytes) {
			index = (uint32_t)(all & ((uint64_t)1 << p.level_bits) - 1);
			all >>= p.level_bits;
		} else {
			index = (uint32_t)load_number(at, p.codes.bytes);
			at += step;
		}
#pragma unroll
		for (int i = 0; i < D; i++) {
			index = divide(index, (uint32_t)r.q, r.log2q, p.magic, digit);
			z[i] = float_of(digit);
		}
	}
};

/* Stores the coordinates of points as bytes, in whole blocks. */
template <int E>
HZ_DEVICE void store_points(const hzi_lattice_closest &p, int64_t row, uint32_t block,
			    const float *f)
{
	uint8_t *const dst = (uint8_t *)p.v + row + (int64_t)block * E;
	float t[E];

#pragma unroll
	for (int i = 0; i < E; i++)
		t[i] = __fadd_rn(f[i], ROUND_BIAS);
	if constexpr (E % 4 == 0) {
#pragma unroll
		for (int i = 0; i < E; i += 4)
			*(uint32_t *)(dst + i) = low_bytes(t[i], t[i + 1], t[i + 2], t[i + 3]);
	} else {
#pragma unroll
		for (int i = 0; i < E; i++)
			dst[i] = (uint8_t)__float_as_uint(t[i]);
	}
}

template <class L>
HZ_DEVICE void decode(const hzi_lattice_closest &p, const scale_table &scales)
{
	constexpr int D = L::dim, E = L::embed;
	const hzi_lattice_rule &r = p.rule;
	const radix_constants n{p.q, p.inverse, p.unit, p.unit_inverse};
	const uint32_t step = gridDim.x * blockDim.x;

	for (uint32_t u = blockIdx.x * blockDim.x + threadIdx.x; u < p.units; u += step) {
		const row_offsets at = find_row(p, u);
		code_reader codes(p, (const char *)p.codes.codes +
				  (at.codes + at.unit * p.codes.block) * p.codes.bytes);
		/* A division takes as long as a level. */
		const uint32_t group = r.group == 1 ? at.unit : at.unit / (uint32_t)r.group;
		const int t = p.t ? p.t[at.t + group * p.t_step] : 0;
		float sum[E], x[E], weight = 1;

#pragma unroll
		for (int i = 0; i < E; i++)
			sum[i] = __fsub_rn(0.0f, p.offset[i]);	/* not -0 */
		for (int m = 0; m < r.levels; m++, weight *= p.q) {
			float z[D], c[E];

			if (m >= p.first || p.codes.pack != HZI_LATTICE_LEVEL)
				codes.next<D>(p, z);
			if (m < p.first)
				continue;
			coset_leader<L>(z, n, c);
#pragma unroll
			for (int i = 0; i < E; i++)
				sum[i] = __fmaf_rn(weight, c[i], sum[i]);
		}
		if (p.v_dtype == HZ_S8) {
			store_points<E>(p, at.v, at.unit, sum);
			continue;
		}
		if constexpr (L::kind == HZI_LATTICE_A2) {
			x[0] = __fmul_rn(0.5f, __fsub_rn(sum[0], sum[2]));
			x[1] = __fmul_rn(-0.86602540378443864676f, sum[1]);
		} else {
#pragma unroll
			for (int i = 0; i < D; i++)
				x[i] = L::kind == HZI_LATTICE_E8 ? __fmul_rn(0.5f, sum[i]) : sum[i];
		}
		const float s = scales.scale[min(t, r.scales - 1)];

#pragma unroll
		for (int i = 0; i < D; i++)
			x[i] = __fmul_rn(__fsub_rn(x[i], p.sub[i]), s);
		store_values<D>(p, at.v, at.unit, x);
	}
}

#define DECODE(name, lattice, blocks) \
	extern "C" __global__ void __launch_bounds__(THREADS, HZ_BLOCKS(THREADS, blocks)) \
		lattice_decode_##name(const __grid_constant__ hzi_lattice_closest p) \
	{ \
		__shared__ scale_table scales; \
 \
		fill_scales(p, scales); \
		__syncthreads(); \
		pdl_wait(); \
		pdl_launch_dependents(); \
		decode<lattice>(p, scales); \
	}

DECODE(z1, z_lattice<1>, 8)
DECODE(z2, z_lattice<2>, 8)
DECODE(z4, z_lattice<4>, 8)
DECODE(z8, z_lattice<8>, 5)
DECODE(a2, a2_lattice, 8)
DECODE(d3, d_lattice<3>, 6)
DECODE(d4, d_lattice<4>, 6)
DECODE(d8, d_lattice<8>, 4)
DECODE(e8, e8_lattice, 3)

/* ---- Repacking ----------------------------------------------------------------------------- */

/* The codes of one block in one packing, read or written level by level as indices */
struct code_cursor {
	char *at;
	int64_t step;			/* in bytes */
	uint64_t all, weight;		/* FULL64 */
	uint32_t word, limb_weight;
	int filled;

	__device__ __forceinline__ code_cursor(const hzi_lattice_codes &c, int64_t offset)
		: at((char *)c.codes + offset * c.bytes), step(c.level * c.bytes), all(0),
		weight(1),
		  word(0), limb_weight(1), filled(0) {}

	__device__ __forceinline__ uint32_t get(const hzi_lattice_repack &p)
	{
		uint32_t index = 0, weight_of = 1, digit;

		if (p.src.pack == HZI_LATTICE_LEVEL) {
			index = (uint32_t)load_number(at, p.src.bytes);
			at += step;
			return index < p.level_size ? index : index % (uint32_t)p.level_size;
		}
		if (p.src.pack == HZI_LATTICE_FULL64) {
			if (weight == 1)
				all = *(const uint64_t *)at;
			weight = 0;
			if (p.log2q >= 0) {
				const int bits = p.log2q * p.d;

				index = (uint32_t)(all & (p.level_size - 1));
				all >>= bits;
			} else {
				const uint64_t by = all / p.level_size;

				index = (uint32_t)(all - by * p.level_size);
				all = by;
			}
			return index;
		}
		for (int i = 0; i < p.d; i++) {
			if (filled == 0) {
				word = *(const uint32_t *)at;
				at += step;
				filled = p.limb_digits;
			}
			word = divide(word, (uint32_t)p.q, p.log2q, p.magic, digit);
			index += digit * weight_of;
			weight_of *= (uint32_t)p.q;
			filled--;
		}
		return index;
	}

	__device__ __forceinline__ void put(const hzi_lattice_repack &p, uint32_t index)
	{
		uint32_t digit;

		if (p.dst.pack == HZI_LATTICE_LEVEL) {
			store_number(at, p.dst.bytes, index);
			at += step;
			return;
		}
		if (p.dst.pack == HZI_LATTICE_FULL64) {
			all += index * weight;
			weight *= p.level_size;
			return;
		}
		for (int i = 0; i < p.d; i++) {
			index = divide(index, (uint32_t)p.q, p.log2q, p.magic, digit);
			word += digit * limb_weight;
			limb_weight *= (uint32_t)p.q;
			if (++filled == p.limb_digits)
				flush_limb();
		}
	}

	__device__ __forceinline__ void flush_limb()
	{
		*(uint32_t *)at = word;
		at += step;
		word = 0;
		limb_weight = 1;
		filled = 0;
	}

	__device__ __forceinline__ void flush(const hzi_lattice_repack &p)
	{
		if (p.dst.pack == HZI_LATTICE_FULL64)
			*(uint64_t *)at = all;
		else if (filled)
			flush_limb();
	}
};

extern "C" __global__ void __launch_bounds__(THREADS)
lattice_repack_u32_levels(const __grid_constant__ hzi_lattice_repack p)
{
	pdl_wait();
	pdl_launch_dependents();
	const uint32_t step = gridDim.x * THREADS;

	for (uint32_t u = blockIdx.x * THREADS + threadIdx.x; u < p.units; u += step) {
		int64_t from_row = 0, to_row = 0;
		uint32_t unit = u;

		if (p.ndim > 0) {
			uint32_t row = u / p.row_units;

			unit = u - row * p.row_units;
			for (int d = p.ndim - 1; d >= 0; d--) {
				const uint32_t next = row / p.shape[d], i = row - next * p.shape[d];

				row = next;
				from_row += i * p.src.stride[d];
				to_row += i * p.dst.stride[d];
			}
		}
		code_cursor src(p.src, from_row + unit * p.src.block);
		code_cursor dst(p.dst, to_row + unit * p.dst.block);

		for (int m = 0; m < p.levels; m++)
			dst.put(p, src.get(p));
		dst.flush(p);
	}
}
