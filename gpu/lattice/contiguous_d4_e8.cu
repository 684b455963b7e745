/*
 * contiguous_d4_e8.cu - contiguous blocks of D4 and E8: encoding with q = 2 and 4, decoding by
 * tables
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/device/dtype.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/lattice/contiguous_d4_e8.h"
#include "gpu/lattice/overload.cuh"
#include "gpu/lattice/points_s8.cuh"

/* ---- Memory ------------------------------------------------------------------------------- */

HZ_DEVICE void unpack(int dtype, uint32_t pair, float *f)
{
	f[0] = dtype == HZ_F16 ? f16_low(pair) : bf16_low(pair);
	f[1] = dtype == HZ_F16 ? f16_high(pair) : bf16_high(pair);
}

template <int D>
HZ_DEVICE void load_block(int dtype, const void *x, uint32_t block, float *f)
{
	if (dtype == HZ_F32) {
#pragma unroll
		for (int i = 0; i < D / 4; i++) {
			const float4 v = ((const float4 *)x)[(int64_t)block * (D / 4) + i];

			f[4 * i] = v.x;
			f[4 * i + 1] = v.y;
			f[4 * i + 2] = v.z;
			f[4 * i + 3] = v.w;
		}
		return;
	}
	uint32_t pair[D / 2];

	if constexpr (D == 4) {
		const uint2 v = ((const uint2 *)x)[block];

		pair[0] = v.x;
		pair[1] = v.y;
	} else {
		const uint4 v = ((const uint4 *)x)[block];

		pair[0] = v.x;
		pair[1] = v.y;
		pair[2] = v.z;
		pair[3] = v.w;
	}
	/* Separate loops, so that there is one branch */
	if (dtype == HZ_F16) {
#pragma unroll
		for (int i = 0; i < D / 2; i++)
			unpack(HZ_F16, pair[i], f + 2 * i);
	} else {
#pragma unroll
		for (int i = 0; i < D / 2; i++)
			unpack(HZ_BF16, pair[i], f + 2 * i);
	}
}

/* ---- Encoding ------------------------------------------------------------------------------ */

/* A block that a warp must retry, and the t or j to try next */
struct retry {
	uint32_t block, step;
};

#define RETRIES 64	/* at most 31 left and 32 new */
#define FALLBACK 0xffffu	/* a step: use encode_fallback() */

/*
 * Encodes any block by the scalar rules: blocks with Inf or NaN, or beyond the range of bytes.
 * Returns what to add to the overload counts, the second one in the upper half.
 */
template <int D, int BYTES>
static __device__ __noinline__ uint32_t encode_fallback(const hzi_lattice_encode_d4_e8 *p,
							uint32_t block)
{
	const hzi_lattice_rule *r = &p->rule;
	char *codes = (char *)p->codes + (int64_t)block * p->code_block * BYTES;
	float x[D], v[D];
	int32_t g[HZI_LATTICE_DIMS];
	uint32_t counts;
	int nonfinite, t = 0;

	load_block<D>(p->dtype, p->x, block, x);
	nonfinite = hzi_lattice_map(r, nullptr, x, v);
	counts = nonfinite ? 1 << 16 : 0;
	if (nonfinite & HZI_LATTICE_IS_NAN) {
		for (int i = 0; i < r->embed; i++)
			g[i] = r->offset[i];
	} else {
		counts += (uint32_t)hzi_lattice_choose(r, nullptr, v, &t, g);
	}
	if (p->t)
		p->t[block] = (uint8_t)t;
	hzi_lattice_write(r, nullptr, g,
			  hzi_lattice_code_at(codes, p->code_level, BYTES, HZI_LATTICE_LEVEL));
	return counts;
}

/* Stores the codes of a block as one number; only the lower half of 16-bit codes counts. */
template <int M, int BYTES>
HZ_DEVICE void store_number(const hzi_lattice_encode_d4_e8 &p, uint32_t block,
			    const uint32_t *codes)
{
	uint32_t all = codes[0];

	if constexpr (BYTES == 2) {
		all = permute(codes[0], codes[M - 1], 0x5410);
	} else {
#pragma unroll
		for (int m = 1; m < M; m++)
			all |= codes[m] << 8 * m;
	}
	if (M * BYTES == 4)
		((uint32_t *)p.codes)[block] = all;
	else
		((uint16_t *)p.codes)[block] = (uint16_t)all;
}

template <int M, int BYTES>
HZ_DEVICE void store_codes(const hzi_lattice_encode_d4_e8 &p, uint32_t block, const uint32_t *codes)
{
	if constexpr (M * BYTES == 4 || M * BYTES == 2) {
		if (p.code_block == M && (M == 1 || p.code_level == 1)) {
			store_number<M, BYTES>(p, block, codes);
			return;
		}
	}
#pragma unroll
	for (int m = 0; m < M; m++) {
		const int64_t at = (int64_t)block * p.code_block + m * p.code_level;

		if (BYTES == 2)
			((uint16_t *)p.codes)[at] = (uint16_t)codes[m];
		else
			((uint8_t *)p.codes)[at] = (uint8_t)codes[m];
	}
}

/*
 * For a block that may not fit at t = step, or is not finite: the first t from step on that may
 * fit, or FALLBACK.
 */
template <int D>
static __device__ __noinline__ uint32_t first_fitting_scale(const hzi_lattice_encode_d4_e8 *p,
							    uint32_t block, uint32_t step)
{
	const hzi_lattice_rule *r = &p->rule;
	float v[D], size = 0;

	load_block<D>(p->dtype, p->x, block, v);
	for (int i = 0; i < D; i++)
		size = max_nan(size, fabsf(v[i]));
	if (r->policy != HZI_LATTICE_T)
		return __fmul_rn(size, r->inverse[0]) <= r->reach ? step : FALLBACK;
	if (!(__fmul_rn(size, r->inverse[0]) < 1e30f))
		return FALLBACK;
	while (step < (uint32_t)r->scales && __fmul_rn(size, r->inverse[step]) > r->reach)
		step++;
	return step < (uint32_t)r->scales ? step : FALLBACK;
}

/*
 * A warp encodes 32 blocks at a time. Blocks that do not fit go to a list and are retried, 32
 * together, with the next scale, so that the warp is full whatever share of blocks fits.
 * F16_TWO_LEVELS: f16 input, no dither, the codes of a block are one number.
 */
template <class POINT, int M, int POLICY, bool F16_TWO_LEVELS>
HZ_DEVICE void encode(const hzi_lattice_encode_d4_e8 &p, const typename POINT::tables &tables,
		      retry *list)
{
	constexpr int D = POINT::dim, Q = POINT::q, BYTES = D == 8 && Q == 4 ? 2 : 1;
	constexpr bool retries = POLICY != HZI_LATTICE_NONE;
	const hzi_lattice_rule &r = p.rule;
	const uint32_t lane = threadIdx.x & 31, warps = gridDim.x * (blockDim.x >> 5);
	const float reach = __fmul_rn(r.reach, r.reach) * 0.999f;
	uint32_t next = (blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5)) * 32;
	uint32_t count = 0, overloaded = 0, nonfinite = 0;

	while (next < p.blocks || (retries && count)) {
		uint32_t block = next + lane, step = 0;
		bool mine = block < p.blocks, retried = false;

		if (!retries || (next < p.blocks && count < 32)) {
			next += warps * 32;
		} else {
			const uint32_t taken = min(count, 32u);

			retried = true;
			count -= taken;
			mine = lane < taken;
			block = list[count + lane].block;
			step = mine ? list[count + lane].step : 0;
			__syncwarp();
		}
		const float inverse = r.inverse[POLICY == HZI_LATTICE_T ? step : 0];
		float v[D], size = 0;
		uint32_t w[POINT::words], codes[M], bias = POINT::bias, start = step;
		bool left_over = false;

		block = mine ? block : 0;
		load_block<D>(F16_TWO_LEVELS ? HZ_F16 : p.dtype, p.x, block, v);
#pragma unroll
		for (int i = 0; i < D; i++) {
			/* + 0, so that none is -0 */
			v[i] = __fmaf_rn(v[i], inverse, 0.0f);
			size = __fmaf_rn(v[i], v[i], size);
		}
		/* All scales were tried and none fits. */
		if (POLICY == HZI_LATTICE_T ? step >= (uint32_t)r.scales :
		    POLICY == HZI_LATTICE_CLIP && step >= HZI_LATTICE_SHRINKS)
			start = FALLBACK;
		else if (!(size < reach))
			start = first_fitting_scale<D>(&p, block, step);
		if (POLICY == HZI_LATTICE_CLIP && retried) {
			const float factor = hzi_lattice_factor(&r, (int)step);

#pragma unroll
			for (int i = 0; i < D; i++)
				v[i] = __fmul_rn(v[i], factor);
		}
		if (!F16_TWO_LEVELS && r.flags & HZI_LATTICE_DITHERED) {
#pragma unroll
			for (int i = 0; i < D; i++)
				v[i] = __fadd_rn(v[i], r.dither[i]);
		}
		POINT::nearest(v, w);
#pragma unroll
		for (int i = 0; i < POINT::words; i++)
			w[i] += p.offset[i];
#pragma unroll
		for (int m = 0; m < M; m++) {
			codes[m] = POINT::index(w);
			bias = POINT::next_bias(bias);
			/* After the last level only the overload count needs the remainder. */
			if (retries || m < M - 1 || p.overload) {
				POINT::subtract(w, codes[m], tables);
				left_over = POINT::left(w, bias);
				POINT::divide(w);
			}
		}

		const bool fits = start == step && (!retries || !left_over);

		if (retries) {
			const bool later = mine && start != FALLBACK && !fits;
			const uint32_t all = __ballot_sync(~0u, later);

			if (later) {
				retry *dst = list + count + __popc(all & ((1u << lane) - 1));

				dst->block = block;
				dst->step = start == step ? step + 1 : start;
			}
			count += __popc(all);
			__syncwarp();
		}
		if (mine && fits) {
			overloaded += POLICY == HZI_LATTICE_CLIP ? step > 0 : left_over;
			if (POLICY == HZI_LATTICE_T)
				p.t[block] = (uint8_t)step;
			if constexpr (F16_TWO_LEVELS)
				store_number<M, BYTES>(p, block, codes);
			else
				store_codes<M, BYTES>(p, block, codes);
		}
		if (mine && start == FALLBACK) {
			const uint32_t counts = encode_fallback<D, BYTES>(&p, block);

			overloaded += counts & 0xffff;
			nonfinite += counts >> 16;
		}
	}
	if (p.overload)
		count_overload(p.overload, overloaded, nonfinite);
}

template <class POINT, int M, bool F16_TWO_LEVELS>
HZ_DEVICE void encode_policy(const hzi_lattice_encode_d4_e8 &p,
			     const typename POINT::tables &tables, retry *list)
{
	if (p.rule.policy == HZI_LATTICE_NONE)
		encode<POINT, M, HZI_LATTICE_NONE, F16_TWO_LEVELS>(p, tables, list);
	else if (p.rule.policy == HZI_LATTICE_T)
		encode<POINT, M, HZI_LATTICE_T, F16_TWO_LEVELS>(p, tables, list);
	else
		encode<POINT, M, HZI_LATTICE_CLIP, F16_TWO_LEVELS>(p, tables, list);
}

template <class POINT, int THREADS>
HZ_DEVICE void encode_levels(const hzi_lattice_encode_d4_e8 &p)
{
	__shared__ retry list[THREADS / 32][RETRIES];
	__shared__ __align__(16) typename POINT::tables tables;
	retry *const mine = list[threadIdx.x >> 5];

	fill_tables(tables);
	__syncthreads();
	pdl_wait();
	pdl_launch_dependents();
	if (POINT::q == 4 && p.f16_two_levels)
		encode_policy<POINT, 2, true>(p, tables, mine);
	else if (p.rule.levels == 1)
		encode_policy<POINT, 1, false>(p, tables, mine);
	else if (p.rule.levels == 2)
		encode_policy<POINT, 2, false>(p, tables, mine);
	else if constexpr (POINT::most_levels >= 3) {
		if (p.rule.levels == 3)
			encode_policy<POINT, 3, false>(p, tables, mine);
		else if constexpr (POINT::most_levels >= 4)
			encode_policy<POINT, 4, false>(p, tables, mine);
	}
}

/* blocks: per SM, see gpu/lattice/contiguous_d4_e8.c */
#define ENCODE(name, point, threads, blocks) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
		lattice_encode_##name(const __grid_constant__ hzi_lattice_encode_d4_e8 p) \
	{ \
		encode_levels<point, threads>(p); \
	}

ENCODE(d4q4, d4_point<4>, 256, 4)
ENCODE(d4q2, d4_point<2>, 256, 4)
ENCODE(e8q4, e8_point<4>, 768, 1)
ENCODE(e8q2, e8_point<2>, 256, 3)

/* Clears the counts that encoding adds to. Unlike a memset, a kernel can use PDL. */
extern "C" __global__ void __launch_bounds__(32)
lattice_clear_counts(const __grid_constant__ hzi_lattice_clear_counts p)
{
	pdl_wait();
	pdl_launch_dependents();
	if (threadIdx.x < 2)
		p.overload[threadIdx.x] = 0;
}

/* ---- Decoding ------------------------------------------------------------------------------ */

template <int DTYPE>
HZ_DEVICE uint32_t pack(float low, float high)
{
	return DTYPE == HZ_F16 ? to_f16x2(low, high) : to_bf16x2(low, high);
}

/* Coset leaders from tables in shared memory: four bytes for dimension 4, nibbles for 8 */
struct table_leaders {
	uint32_t table[256];

	__device__ __forceinline__ void fill(const hzi_lattice_decode_d4_e8 &p)
	{
		table[threadIdx.x] = p.table[threadIdx.x];
	}

	__device__ __forceinline__ uint32_t operator()(uint32_t index) const
	{
		return table[index];
	}
};

struct e8_leaders {
	e8_tables tables;

	__device__ __forceinline__ void fill(const hzi_lattice_decode_d4_e8 &)
	{
		fill_tables(tables);
	}

	/* index has the code in both halves */
	__device__ __forceinline__ uint32_t operator()(uint32_t index) const
	{
		return e8_lookup<false>(tables, index);
	}
};

/* 32768 + byte i of a word, as a float */
HZ_DEVICE float byte_number(uint32_t word, int i)
{
	return __uint_as_float(__byte_perm(word, 0x47000000, 0x7604 | i << 4));
}

/*
 * Stores 8 values: a block of 8, or two of 4. Units from count on are not stored. For f32 a whole
 * warp must call this with consecutive units: each pair of lanes stores one unit and then the
 * other, so that 32-byte sectors are written at once.
 */
template <int DTYPE>
HZ_DEVICE void store_values(void *y, uint32_t unit, uint32_t count, const float *v)
{
	if constexpr (DTYPE == HZ_F32) {
		const bool odd = threadIdx.x & 1;
		const uint32_t even = unit - odd;
		float4 *const dst = (float4 *)y + 2 * (int64_t)even + odd;
		float other[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			other[i] = __shfl_xor_sync(~0u, odd ? v[i] : v[4 + i], 1);
		if (even < count)
			dst[0] = odd ? make_float4(other[0], other[1], other[2], other[3]) :
				      make_float4(v[0], v[1], v[2], v[3]);
		if (even + 1 < count)
			dst[2] = odd ? make_float4(v[4], v[5], v[6], v[7]) :
				      make_float4(other[0], other[1], other[2], other[3]);
	} else if (unit < count) {
		((uint4 *)y)[unit] =
			make_uint4(pack<DTYPE>(v[0], v[1]), pack<DTYPE>(v[2], v[3]),
				   pack<DTYPE>(v[4], v[5]), pack<DTYPE>(v[6], v[7]));
	}
}

/* Stores 8 values as points in s8. */
template <int D>
HZ_DEVICE void store_bytes(const hzi_lattice_decode_d4_e8 &p, uint32_t unit, uint32_t count,
			   const uint32_t *w)
{
	const uint32_t a = __vsub4(w[0], p.minus[0]), b = __vsub4(w[1], p.minus[D == 8]);

	if (unit < count)
		((uint2 *)p.y)[unit] = D == 4 ? make_uint2(a, b) :
			make_uint2(permute(a, b, 0x5140), permute(a, b, 0x7362));
}

/* The offset of the unit of a thread from the first of those that are stored together */
template <int DTYPE>
HZ_DEVICE uint32_t store_lane()
{
	return DTYPE == HZ_F32 ? threadIdx.x % 32 : 0;
}

/* Loads the codes of B blocks; level m of block b becomes code[m * B + b]. */
template <int B, int M, typename CODE>
HZ_DEVICE void load_codes(const hzi_lattice_decode_d4_e8 &p, uint32_t unit, uint32_t *code)
{
	constexpr int bytes = sizeof(CODE);
	const CODE *const src = (const CODE *)p.codes;

	if constexpr (B * M * bytes == 2 || B * M * bytes == 4 || B * M * bytes == 8) {
		if (p.code_block == M && (M == 1 || p.code_level == 1)) {
			uint64_t all;

			if constexpr (B * M * bytes == 8)
				all = ((const unsigned long long *)src)[unit];
			else if constexpr (B * M * bytes == 4)
				all = ((const uint32_t *)src)[unit];
			else
				all = ((const uint16_t *)src)[unit];
#pragma unroll
			for (int i = 0; i < B * M; i++)
				code[i % M * B + i / M] =
					(uint32_t)(all >> (8 * bytes * i)) &
					((1u << 8 * bytes) - 1);
			return;
		}
	}
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int b = 0; b < B; b++)
			code[m * B + b] = src[(int64_t)(unit * B + b) * p.code_block +
					      m * p.code_level];
}

HZ_DEVICE uint32_t scale_of(const hzi_lattice_decode_d4_e8 &p, uint32_t block)
{
	return min(p.t[block >> p.group_shift], HZI_LATTICE_SCALES - 1);
}

/* The coordinates of 8 values as bytes */
template <class LEADERS, int D, int M>
HZ_DEVICE void decode_bytes(const hzi_lattice_decode_d4_e8 &p, const LEADERS &leaders,
			    const uint32_t *code, uint32_t *w)
{
	constexpr int B = 8 / D;
	uint32_t weight = 1;

	w[0] = w[1] = 0;
#pragma unroll
	for (int m = 0; m < M; m++) {
		if constexpr (D == 4) {
			w[0] += leaders(code[m * B]) * weight;
			w[1] += leaders(code[m * B + B - 1]) * weight;
		} else {
			const uint32_t c = leaders(code[m]);

			w[0] += (c & 0x0f0f0f0f) * weight;
			w[1] += (c >> 4 & 0x0f0f0f0f) * weight;
		}
		weight *= (uint32_t)p.q;
	}
}

/* Converts them to values; s: scales of the blocks. SUB: p.sub is not 0. */
template <int D, bool SUB>
HZ_DEVICE void scale_bytes(const hzi_lattice_decode_d4_e8 &p, const uint32_t *w, const float *s,
			   float *v)
{
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const int k = D == 4 ? i & 3 : i;
		const float n = D == 4 ? byte_number(w[i / 4], k) : byte_number(w[i & 1], i / 2);
		const float exact = __fmaf_rn(n, p.unit, -p.base[k]);

		v[i] = __fmul_rn(SUB ? __fsub_rn(exact, p.sub[k]) : exact, s[i / D]);
	}
}

/* T of the blocks of a unit: of two blocks of 4 a pair of bytes, or one byte for both */
template <int B>
HZ_DEVICE uint32_t load_t(const hzi_lattice_decode_d4_e8 &p, uint32_t unit)
{
	if (B == 2 && p.group_shift == 0)
		return ((const uint16_t *)p.t)[unit];
	return p.t[unit * B >> p.group_shift] * 0x101;
}

/*
 * Contiguous codes. A thread loads the codes, and T if HAS_T, of its next UNITS units while it
 * decodes the current ones. It does not unpack them earlier, since that would wait for the loads.
 */
template <int DTYPE, class LEADERS, int D, int M, typename CODE, int UNITS, bool SUB, bool HAS_T>
HZ_DEVICE void decode_contiguous(const hzi_lattice_decode_d4_e8 &p, const LEADERS &leaders,
				 const float *scale)
{
	constexpr int B = 8 / D, BITS = 8 * sizeof(CODE);
	const uint32_t units = p.blocks / B, step = gridDim.x * blockDim.x;
	const uint32_t *const src = (const uint32_t *)p.codes;
	const uint32_t lane = store_lane<DTYPE>();
	const float first = scale[0];
	uint32_t next[UNITS], next_t[UNITS], u = blockIdx.x * blockDim.x + threadIdx.x;

	if (u - lane >= units)
		return;
#pragma unroll
	for (int i = 0; i < UNITS; i++) {
		next[i] = src[min(u + i * step, units - 1)];
		if (HAS_T)
			next_t[i] = load_t<B>(p, min(u + i * step, units - 1));
	}
	for (; u - lane < units; u += UNITS * step) {
		uint32_t raw[UNITS], t[UNITS];

#pragma unroll
		for (int i = 0; i < UNITS; i++) {
			const uint32_t at = min(u + (UNITS + i) * step, units - 1);

			raw[i] = next[i];
			next[i] = src[at];
			if (HAS_T) {
				t[i] = next_t[i];
				next_t[i] = load_t<B>(p, at);
			}
		}
#pragma unroll
		for (int i = 0; i < UNITS; i++) {
			float s[2] = {first, first};
			uint32_t code[B * M], w[2];
			float v[8];

			if (u - lane + i * step >= units)
				break;
			if (HAS_T) {
				s[0] = scale[min(t[i] & 255, HZI_LATTICE_SCALES - 1)];
				s[1] = scale[min(t[i] >> 8, HZI_LATTICE_SCALES - 1)];
			}
#pragma unroll
			for (int j = 0; j < B * M; j++)
				code[j % M * B + j / M] = BITS == 16 ?
					permute(raw[i], 0, j ? 0x3232 : 0x1010) :
					raw[i] >> BITS * j & (1u << BITS) - 1;
			decode_bytes<LEADERS, D, M>(p, leaders, code, w);
			if constexpr (DTYPE == HZ_S8) {
				store_bytes<D>(p, u + i * step, units, w);
			} else {
				scale_bytes<D, SUB>(p, w, s, v);
				store_values<DTYPE>(p.y, u + i * step, units, v);
			}
		}
	}
}

template <int DTYPE, class LEADERS, int D, int M, typename CODE, int UNITS>
HZ_DEVICE void decode(const hzi_lattice_decode_d4_e8 &p, const LEADERS &leaders, const float *scale)
{
	constexpr int B = 8 / D;
	const uint32_t units = (p.blocks + B - 1) / B, step = gridDim.x * blockDim.x;
	const uint32_t lane = store_lane<DTYPE>();
	uint32_t u = blockIdx.x * blockDim.x + threadIdx.x;

	if constexpr (B * M * sizeof(CODE) == 4) {
		const bool has_t = p.t && DTYPE != HZ_S8;

		if (p.code_block == M && p.code_level == 1 && (!has_t || (uintptr_t)p.t % 2 == 0)) {
			bool sub = false;

#pragma unroll
			for (int i = 0; i < D; i++)
				sub |= p.sub[i] != 0;
			if (sub && has_t)
				decode_contiguous<DTYPE, LEADERS, D, M, CODE, UNITS, true, true>(
					p, leaders, scale);
			else if (sub)
				decode_contiguous<DTYPE, LEADERS, D, M, CODE, UNITS, true, false>(
					p, leaders, scale);
			else if (has_t)
				decode_contiguous<DTYPE, LEADERS, D, M, CODE, UNITS, false, true>(
					p, leaders, scale);
			else
				decode_contiguous<DTYPE, LEADERS, D, M, CODE, UNITS, false, false>(
					p, leaders, scale);
			/* A single last block remains. */
			u += p.blocks / B;
		}
	}
	for (; u - lane < units; u += step) {
		/* Lanes past the last unit decode that one too. */
		const uint32_t at = min(u, units - 1);
		const bool single = B == 2 && (at + 1) * B > p.blocks;
		uint32_t code[B * M], w[2];
		float v[8], s[B];

		if (single) {
#pragma unroll
			for (int m = 0; m < M; m++) {
				code[m * B] = ((const CODE *)p.codes)
					[(int64_t)at * B * p.code_block + m * p.code_level];
				code[m * B + B - 1] = 0;
			}
		} else {
			load_codes<B, M, CODE>(p, at, code);
		}
#pragma unroll
		for (int i = 0; i < B * M && sizeof(CODE) == 2; i++)
			code[i] *= 0x10001;
#pragma unroll
		for (int b = 0; b < B; b++)
			s[b] = scale[p.t && !(single && b) ? scale_of(p, at * B + b) : 0];
		decode_bytes<LEADERS, D, M>(p, leaders, code, w);
		if constexpr (DTYPE == HZ_S8) {
			if (single && u == at)
				((uint32_t *)p.y)[2 * u] = __vsub4(w[0], p.minus[0]);
			store_bytes<D>(p, u, p.blocks / B, w);
			continue;
		}
		scale_bytes<D, true>(p, w, s, v);
		if (single && u == at) {
#pragma unroll
			for (int i = 0; i < D; i++)
				store_any(DTYPE, p.y, (int64_t)u * 8 + i, v[i]);
		}
		store_values<DTYPE>(p.y, u, p.blocks / B, v);
	}
}

template <int DTYPE, class LEADERS, int D, typename CODE, int MAX_LEVELS, int UNITS>
HZ_DEVICE void decode_levels(const hzi_lattice_decode_d4_e8 &p)
{
	__shared__ __align__(16) LEADERS leaders;
	__shared__ float scale[HZI_LATTICE_SCALES];

	leaders.fill(p);
	if (threadIdx.x < HZI_LATTICE_SCALES)
		scale[threadIdx.x] = p.scale[threadIdx.x];
	__syncthreads();
	pdl_wait();
	pdl_launch_dependents();
	if (p.levels == 1)
		decode<DTYPE, LEADERS, D, 1, CODE, UNITS>(p, leaders, scale);
	else if (p.levels == 2)
		decode<DTYPE, LEADERS, D, 2, CODE, UNITS>(p, leaders, scale);
	else if constexpr (MAX_LEVELS > 2) {
		if (p.levels == 3)
			decode<DTYPE, LEADERS, D, 3, CODE, UNITS>(p, leaders, scale);
		else
			decode<DTYPE, LEADERS, D, 4, CODE, UNITS>(p, leaders, scale);
	}
}

/* Blocks per SM as in gpu/lattice/contiguous_d4_e8.c */
#define DECODE_ONE(name, threads, blocks, dtype, ...) \
	extern "C" __global__ void __launch_bounds__(threads, HZ_BLOCKS(threads, blocks)) \
		lattice_decode_##name(const __grid_constant__ hzi_lattice_decode_d4_e8 p) \
	{ \
		decode_levels<dtype, __VA_ARGS__>(p); \
	}

#define DECODE(name, dtype, threads, blocks) \
	DECODE_ONE(d4_##name, 256, 8, dtype, table_leaders, 4, uint8_t, 4, 1) \
	DECODE_ONE(d8_##name, 256, 8, dtype, table_leaders, 8, uint8_t, 4, 1) \
	DECODE_ONE(e8q4_##name, threads, blocks, dtype, e8_leaders, 8, uint16_t, 2, 1)

DECODE(f32, HZ_F32, 512, 3)
DECODE(f16, HZ_F16, 1024, 2)
DECODE(bf16, HZ_BF16, 1024, 2)
DECODE(s8, HZ_S8, 1024, 2)
