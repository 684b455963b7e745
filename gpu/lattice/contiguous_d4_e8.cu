/*
 * contiguous_d4_e8.cu - D4 and E8 with q = 2 and 4, blocks back to back
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/device/dtype.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/lattice/points_s8.cuh"
#include "gpu/lattice/contiguous_d4_e8.h"

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
	/* Apart, so that the choice is made once */
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

/* A block of a warp's list: which, and the t or j to try next */
struct waiting {
	uint32_t block, step;
};

#define LIST 64		/* at most 31 left and 32 new */
#define LAST 0xffffu	/* a step: for encode_odd() */

/* Any block by the rules as they stand: Inf, NaN, or beyond what bytes hold. Returns what to add to
 * the overload counts, the second one in the upper half. */
template <int D, int BYTES>
static __device__ __noinline__ uint32_t encode_odd(const hzi_lattice_fast *p, uint32_t block)
{
	const hzi_lattice_rule *r = &p->rule;
	char *codes = (char *)p->codes + (int64_t)block * p->code_block * BYTES;
	float x[D], v[D];
	int32_t g[HZI_LATTICE_DIMS];
	uint32_t counts;
	int met, t = 0;

	load_block<D>(p->dtype, p->x, block, x);
	met = hzi_lattice_map(r, nullptr, x, v);
	counts = met ? 1 << 16 : 0;
	if (met & HZI_LATTICE_IS_NAN) {
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

/* The codes of a block as one number; of those of 16 bits only the lower half counts. */
template <int M, int BYTES>
HZ_DEVICE void store_number(const hzi_lattice_fast &p, uint32_t block, const uint32_t *codes)
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
HZ_DEVICE void store_codes(const hzi_lattice_fast &p, uint32_t block, const uint32_t *codes)
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
 * A block that may lie outside of what can fit at t = step, or have no size at all: the first t
 * from step on that may fit it, or LAST.
 */
template <int D>
static __device__ __noinline__ uint32_t far_off(const hzi_lattice_fast *p, uint32_t block,
						uint32_t step)
{
	const hzi_lattice_rule *r = &p->rule;
	float v[D], size = 0;

	load_block<D>(p->dtype, p->x, block, v);
	for (int i = 0; i < D; i++)
		size = max_nan(size, fabsf(v[i]));
	if (r->policy != HZI_LATTICE_T)
		return __fmul_rn(size, r->inverse[0]) <= r->reach ? step : LAST;
	if (!(__fmul_rn(size, r->inverse[0]) < 1e30f))
		return LAST;
	while (step < (uint32_t)r->scales && __fmul_rn(size, r->inverse[step]) > r->reach)
		step++;
	return step < (uint32_t)r->scales ? step : LAST;
}

/*
 * A warp takes 32 blocks at a time. Those that do not fit are put on a list, and tried again, 32
 * together, with the next scale: so the warp is full whatever share of blocks that is. PLAIN: f16,
 * no dither, and the codes of a block are one number.
 */
template <class POINT, int M, int POLICY, bool PLAIN>
HZ_DEVICE void encode(const hzi_lattice_fast &p, const typename POINT::tables &tables,
		      waiting *list)
{
	constexpr int D = POINT::dim, Q = POINT::q, BYTES = D == 8 && Q == 4 ? 2 : 1;
	constexpr bool retries = POLICY != HZI_LATTICE_WRAP;
	const hzi_lattice_rule &r = p.rule;
	const uint32_t lane = threadIdx.x & 31, warps = gridDim.x * (blockDim.x >> 5);
	const float reach = __fmul_rn(r.reach, r.reach) * 0.999f;
	uint32_t next = (blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5)) * 32;
	uint32_t count = 0, wrong = 0, nans = 0;

	while (next < p.blocks || (retries && count)) {
		uint32_t block = next + lane, step = 0;
		bool mine = block < p.blocks, again = false;

		if (!retries || (next < p.blocks && count < 32)) {
			next += warps * 32;
		} else {
			const uint32_t taken = min(count, 32u);

			again = true;
			count -= taken;
			mine = lane < taken;
			block = list[count + lane].block;
			step = mine ? list[count + lane].step : 0;
			__syncwarp();
		}
		const float inverse = r.inverse[POLICY == HZI_LATTICE_T ? step : 0];
		float v[D], size = 0;
		uint32_t w[POINT::words], codes[M], bias = POINT::bias, start = step;
		bool rest = false;

		block = mine ? block : 0;
		load_block<D>(PLAIN ? HZ_F16 : p.dtype, p.x, block, v);
#pragma unroll
		for (int i = 0; i < D; i++) {
			/* + 0, so that none is -0 */
			v[i] = __fmaf_rn(v[i], inverse, 0.0f);
			size = __fmaf_rn(v[i], v[i], size);
		}
		/* No scale did, if all were tried. */
		if (POLICY == HZI_LATTICE_T ? step >= (uint32_t)r.scales :
		    POLICY == HZI_LATTICE_CLIP && step >= HZI_LATTICE_SHRINKS)
			start = LAST;
		else if (!(size < reach))
			start = far_off<D>(&p, block, step);
		if (POLICY == HZI_LATTICE_CLIP && again) {
			const float factor = hzi_lattice_factor(&r, (int)step);

#pragma unroll
			for (int i = 0; i < D; i++)
				v[i] = __fmul_rn(v[i], factor);
		}
		if (!PLAIN && r.flags & HZI_LATTICE_DITHERED) {
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
			/* What is left behind the last level only matters to whether it is 0. */
			if (retries || m < M - 1 || p.overload) {
				POINT::subtract(w, codes[m], tables);
				rest = POINT::left(w, bias);
				POINT::divide(w);
			}
		}

		const bool fits = start == step && (!retries || !rest);

		if (retries) {
			const bool later = mine && start != LAST && !fits;
			const uint32_t all = __ballot_sync(~0u, later);

			if (later) {
				waiting *to = list + count + __popc(all & ((1u << lane) - 1));

				to->block = block;
				to->step = start == step ? step + 1 : start;
			}
			count += __popc(all);
			__syncwarp();
		}
		if (mine && fits) {
			wrong += POLICY == HZI_LATTICE_CLIP ? step > 0 : rest;
			if (POLICY == HZI_LATTICE_T)
				p.t[block] = (uint8_t)step;
			if constexpr (PLAIN)
				store_number<M, BYTES>(p, block, codes);
			else
				store_codes<M, BYTES>(p, block, codes);
		}
		if (mine && start == LAST) {
			const uint32_t counts = encode_odd<D, BYTES>(&p, block);

			wrong += counts & 0xffff;
			nans += counts >> 16;
		}
	}
	if (p.overload) {
		wrong = __reduce_add_sync(~0u, wrong);
		nans = __reduce_add_sync(~0u, nans);
		if (lane == 0 && wrong)
			atomicAdd((unsigned long long *)p.overload, wrong);
		if (lane == 0 && nans)
			atomicAdd((unsigned long long *)p.overload + 1, nans);
	}
}

template <class POINT, int M, bool PLAIN>
HZ_DEVICE void encode_policy(const hzi_lattice_fast &p, const typename POINT::tables &tables,
			     waiting *list)
{
	if (p.rule.policy == HZI_LATTICE_WRAP)
		encode<POINT, M, HZI_LATTICE_WRAP, PLAIN>(p, tables, list);
	else if (p.rule.policy == HZI_LATTICE_T)
		encode<POINT, M, HZI_LATTICE_T, PLAIN>(p, tables, list);
	else
		encode<POINT, M, HZI_LATTICE_CLIP, PLAIN>(p, tables, list);
}

template <class POINT, int THREADS>
HZ_DEVICE void encode_levels(const hzi_lattice_fast &p)
{
	__shared__ waiting list[THREADS / 32][LIST];
	__shared__ __align__(16) typename POINT::tables tables;
	waiting *const mine = list[threadIdx.x >> 5];

	fill_tables(tables);
	__syncthreads();
	pdl_wait();
	pdl_launch_dependents();
	if (POINT::q == 4 && p.plain)
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

/* blocks: on a multiprocessor, see gpu/lattice/lattice.c */
#define ENCODE(name, point, threads, blocks)                                                    \
	extern "C" __global__ void __launch_bounds__(threads, blocks)                           \
		lattice_encode_##name(const __grid_constant__ hzi_lattice_fast p)               \
	{                                                                                       \
		encode_levels<point, threads>(p);                                               \
	}

ENCODE(d4q4, d4_point<4>, 256, 4)
ENCODE(d4q2, d4_point<2>, 256, 4)
ENCODE(e8q4, e8_point<4>, 768, 1)
ENCODE(e8q2, e8_point<2>, 256, 3)

/* What encoding adds to. A kernel may start while the one ahead ends, which a fill cannot. */
extern "C" __global__ void __launch_bounds__(32)
lattice_clear(const __grid_constant__ hzi_lattice_clear p)
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

/* Leaders by tables in shared memory: of dimension 4 four bytes, of 8 nibbles */
struct table_leaders {
	uint32_t table[256];

	__device__ __forceinline__ void fill(const hzi_lattice_values &p)
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

	__device__ __forceinline__ void fill(const hzi_lattice_values &)
	{
		fill_tables(tables);
	}

	/* The index twice, in the lower half and in the upper */
	__device__ __forceinline__ uint32_t operator()(uint32_t index) const
	{
		return e8_lookup<false>(tables, index);
	}
};

/* The numbers 32768 + byte of a word */
HZ_DEVICE float byte_number(uint32_t word, int i)
{
	return __uint_as_float(__byte_perm(word, 0x47000000, 0x7604 | i << 4));
}

/*
 * 8 values: a block of 8, or two of 4. Units from count on are not stored. Of f32 by a whole warp,
 * of which each lane has the unit behind that of the lane before: a pair of lanes stores one unit
 * and then the other, so that sectors of 32 bytes are written at once.
 */
template <int DTYPE>
HZ_DEVICE void store_values(void *y, uint32_t unit, uint32_t count, const float *v)
{
	if constexpr (DTYPE == HZ_F32) {
		const bool odd = threadIdx.x & 1;
		const uint32_t even = unit - odd;
		float4 *const to = (float4 *)y + 2 * (int64_t)even + odd;
		float other[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			other[i] = __shfl_xor_sync(~0u, odd ? v[i] : v[4 + i], 1);
		if (even < count)
			to[0] = odd ? make_float4(other[0], other[1], other[2], other[3]) :
				      make_float4(v[0], v[1], v[2], v[3]);
		if (even + 1 < count)
			to[2] = odd ? make_float4(v[4], v[5], v[6], v[7]) :
				      make_float4(other[0], other[1], other[2], other[3]);
	} else if (unit < count) {
		((uint4 *)y)[unit] =
			make_uint4(pack<DTYPE>(v[0], v[1]), pack<DTYPE>(v[2], v[3]),
				   pack<DTYPE>(v[4], v[5]), pack<DTYPE>(v[6], v[7]));
	}
}

/* The same 8 as points */
template <int D>
HZ_DEVICE void store_bytes(const hzi_lattice_values &p, uint32_t unit, uint32_t count,
			   const uint32_t *w)
{
	const uint32_t a = __vsub4(w[0], p.minus[0]), b = __vsub4(w[1], p.minus[D == 8]);

	if (unit < count)
		((uint2 *)p.y)[unit] = D == 4 ? make_uint2(a, b) :
			make_uint2(permute(a, b, 0x5140), permute(a, b, 0x7362));
}

/* What a thread's unit is ahead of the first of those that are stored together */
template <int DTYPE>
HZ_DEVICE uint32_t lane_of_store()
{
	return DTYPE == HZ_F32 ? threadIdx.x % 32 : 0;
}

/* The codes of B blocks, level m of block b in code[m * B + b] */
template <int B, int M, typename CODE>
HZ_DEVICE void load_codes(const hzi_lattice_values &p, uint32_t unit, uint32_t *code)
{
	constexpr int bytes = sizeof(CODE);
	const CODE *const from = (const CODE *)p.codes;

	if constexpr (B * M * bytes == 2 || B * M * bytes == 4 || B * M * bytes == 8) {
		if (p.code_block == M && (M == 1 || p.code_level == 1)) {
			uint64_t all;

			if constexpr (B * M * bytes == 8)
				all = ((const unsigned long long *)from)[unit];
			else if constexpr (B * M * bytes == 4)
				all = ((const uint32_t *)from)[unit];
			else
				all = ((const uint16_t *)from)[unit];
#pragma unroll
			for (int i = 0; i < B * M; i++)
				code[i % M * B + i / M] =
					(uint32_t)(all >> (8 * bytes * i)) & ((1u << 8 * bytes) - 1);
			return;
		}
	}
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int b = 0; b < B; b++)
			code[m * B + b] = from[(int64_t)(unit * B + b) * p.code_block +
					       m * p.code_level];
}

HZ_DEVICE uint32_t scale_of(const hzi_lattice_values &p, uint32_t block)
{
	return min(p.t[block >> p.group_shift], HZI_LATTICE_SCALES - 1);
}

/* The coordinates of 8 values, as bytes */
template <class LEADERS, int D, int M>
HZ_DEVICE void decode_bytes(const hzi_lattice_values &p, const LEADERS &leaders,
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

/* ... and these as numbers; scales are of blocks. SUB: p.sub is not 0. */
template <int D, bool SUB>
HZ_DEVICE void scale_bytes(const hzi_lattice_values &p, const uint32_t *w, const float *s, float *v)
{
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const int k = D == 4 ? i & 3 : i;
		const float n = D == 4 ? byte_number(w[i / 4], k) : byte_number(w[i & 1], i / 2);
		const float exact = __fmaf_rn(n, p.unit, -p.base[k]);

		v[i] = __fmul_rn(SUB ? __fsub_rn(exact, p.sub[k]) : exact, s[i / D]);
	}
}

/* T of the blocks of a unit, as read: of two blocks of 4 a pair of bytes, or one for both */
template <int B>
HZ_DEVICE uint32_t load_steps(const hzi_lattice_values &p, uint32_t unit)
{
	if (B == 2 && p.group_shift == 0)
		return ((const uint16_t *)p.t)[unit];
	return p.t[unit * B >> p.group_shift] * 0x101;
}

/*
 * Codes back to back: EACH units of a thread, whose codes, and T if STEPS, are read, and left as
 * they are, while the units before are decoded. Taken apart at once they would be waited for.
 */
template <int DTYPE, class LEADERS, int D, int M, typename CODE, int EACH, bool SUB, bool STEPS>
HZ_DEVICE void decode_flat(const hzi_lattice_values &p, const LEADERS &leaders, const float *scale)
{
	constexpr int B = 8 / D, BITS = 8 * sizeof(CODE);
	const uint32_t units = p.blocks / B, step = gridDim.x * blockDim.x;
	const uint32_t *const from = (const uint32_t *)p.codes;
	const uint32_t lane = lane_of_store<DTYPE>();
	const float first = scale[0];
	uint32_t next[EACH], next_t[EACH], u = blockIdx.x * blockDim.x + threadIdx.x;

	if (u - lane >= units)
		return;
#pragma unroll
	for (int i = 0; i < EACH; i++) {
		next[i] = from[min(u + i * step, units - 1)];
		if (STEPS)
			next_t[i] = load_steps<B>(p, min(u + i * step, units - 1));
	}
	for (; u - lane < units; u += EACH * step) {
		uint32_t raw[EACH], t[EACH];

#pragma unroll
		for (int i = 0; i < EACH; i++) {
			const uint32_t at = min(u + (EACH + i) * step, units - 1);

			raw[i] = next[i];
			next[i] = from[at];
			if (STEPS) {
				t[i] = next_t[i];
				next_t[i] = load_steps<B>(p, at);
			}
		}
#pragma unroll
		for (int i = 0; i < EACH; i++) {
			float s[2] = {first, first};
			uint32_t code[B * M], w[2];
			float v[8];

			if (u - lane + i * step >= units)
				break;
			if (STEPS) {
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

template <int DTYPE, class LEADERS, int D, int M, typename CODE, int EACH>
HZ_DEVICE void decode(const hzi_lattice_values &p, const LEADERS &leaders, const float *scale)
{
	constexpr int B = 8 / D;
	const uint32_t units = (p.blocks + B - 1) / B, step = gridDim.x * blockDim.x;
	const uint32_t lane = lane_of_store<DTYPE>();
	uint32_t u = blockIdx.x * blockDim.x + threadIdx.x;

	if constexpr (B * M * sizeof(CODE) == 4) {
		const bool steps = p.t && DTYPE != HZ_S8;

		if (p.code_block == M && p.code_level == 1 && (!steps || (uintptr_t)p.t % 2 == 0)) {
			bool sub = false;

#pragma unroll
			for (int i = 0; i < D; i++)
				sub |= p.sub[i] != 0;
			if (sub && steps)
				decode_flat<DTYPE, LEADERS, D, M, CODE, EACH, true, true>(
					p, leaders, scale);
			else if (sub)
				decode_flat<DTYPE, LEADERS, D, M, CODE, EACH, true, false>(
					p, leaders, scale);
			else if (steps)
				decode_flat<DTYPE, LEADERS, D, M, CODE, EACH, false, true>(
					p, leaders, scale);
			else
				decode_flat<DTYPE, LEADERS, D, M, CODE, EACH, false, false>(
					p, leaders, scale);
			/* A last block alone */
			u += p.blocks / B;
		}
	}
	for (; u - lane < units; u += step) {
		/* Lanes behind the last unit decode it too. */
		const uint32_t at = min(u, units - 1);
		const bool half = B == 2 && (at + 1) * B > p.blocks;
		uint32_t code[B * M], w[2];
		float v[8], s[B];

		if (half) {
#pragma unroll
			for (int m = 0; m < M; m++) {
				code[m * B] = ((const CODE *)p.codes)[(int64_t)at * B * p.code_block +
								      m * p.code_level];
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
			s[b] = scale[p.t && !(half && b) ? scale_of(p, at * B + b) : 0];
		decode_bytes<LEADERS, D, M>(p, leaders, code, w);
		if constexpr (DTYPE == HZ_S8) {
			if (half && u == at)
				((uint32_t *)p.y)[2 * u] = __vsub4(w[0], p.minus[0]);
			store_bytes<D>(p, u, p.blocks / B, w);
			continue;
		}
		scale_bytes<D, true>(p, w, s, v);
		if (half && u == at) {
#pragma unroll
			for (int i = 0; i < D; i++)
				store_any(DTYPE, p.y, (int64_t)u * 8 + i, v[i]);
		}
		store_values<DTYPE>(p.y, u, p.blocks / B, v);
	}
}

template <int DTYPE, class LEADERS, int D, typename CODE, int MOST, int EACH>
HZ_DEVICE void decode_levels(const hzi_lattice_values &p)
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
		decode<DTYPE, LEADERS, D, 1, CODE, EACH>(p, leaders, scale);
	else if (p.levels == 2)
		decode<DTYPE, LEADERS, D, 2, CODE, EACH>(p, leaders, scale);
	else if constexpr (MOST > 2) {
		if (p.levels == 3)
			decode<DTYPE, LEADERS, D, 3, CODE, EACH>(p, leaders, scale);
		else
			decode<DTYPE, LEADERS, D, 4, CODE, EACH>(p, leaders, scale);
	}
}

/* As many blocks on a multiprocessor as gpu/lattice/lattice.c starts */
#define DECODE_ONE(name, threads, blocks, dtype, ...)                                            \
	extern "C" __global__ void __launch_bounds__(threads, HZ_BLOCKS(threads, blocks))       \
		lattice_decode_##name(const __grid_constant__ hzi_lattice_values p)             \
	{                                                                                       \
		decode_levels<dtype, __VA_ARGS__>(p);                                           \
	}

#define DECODE(name, dtype, threads, blocks)                                                    \
	DECODE_ONE(d4_##name, 256, 8, dtype, table_leaders, 4, uint8_t, 4, 1)                   \
	DECODE_ONE(d8_##name, 256, 8, dtype, table_leaders, 8, uint8_t, 4, 1)                   \
	DECODE_ONE(e8q4_##name, threads, blocks, dtype, e8_leaders, 8, uint16_t, 2, 1)

DECODE(f32, HZ_F32, 512, 3)
DECODE(f16, HZ_F16, 1024, 2)
DECODE(bf16, HZ_BF16, 1024, 2)
DECODE(s8, HZ_S8, 1024, 2)
