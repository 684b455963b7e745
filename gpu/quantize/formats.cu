/*
 * formats.cu - kernels of quantization to any format, by given scales or by those of groups
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Lanes of a warp share an item, a group where scales are chosen: each loads 8 successive elements,
 * shuffles find the largest magnitude, every lane computes the scale, and stores its 8 codes. Items
 * that are longer than the lanes hold are read twice. Arithmetic is that of lib/quantize/format.h.
 */
#include "gpu/device/dtype.cuh"
#include "gpu/quantize/formats.h"
#include "lib/quantize/format.h"

#define EACH HZI_FORMATS_EACH

/* The first elements of an item, its size, and the lane that works on it */
struct item {
	int64_t begin, end, x, q, p, r;
	int lane, lanes;
	uint32_t mask;			/* the lanes of the item */
	bool valid;
};

HZ_DEVICE item make_item(const hzi_quantize_formats &p)
{
	const int64_t number = (int64_t)blockIdx.x * (HZI_FORMATS_THREADS >> p.log_lanes) +
			       (threadIdx.x >> p.log_lanes);
	item m;

	m.lanes = 1 << p.log_lanes;
	m.lane = threadIdx.x & (m.lanes - 1);
	m.mask = m.lanes == 32 ? ~0u
			       : ((1u << m.lanes) - 1) << (threadIdx.x & 31 & ~(m.lanes - 1));
	m.valid = number < p.items;

	int64_t row = p.ndim ? number / p.row_items : 0;

	m.begin = (number - row * p.row_items) * p.work;
	m.end = m.begin + p.work < p.n ? m.begin + p.work : p.n;
	m.x = m.q = m.p = m.r = 0;
#pragma unroll 1
	for (int d = p.ndim - 1; d >= 0; d--) {
		const int64_t at = row % p.shape[d];

		row /= p.shape[d];
		m.x += at * p.x_stride[d];
		m.q += at * p.q_stride[d];
		m.p += at * p.p_stride[d];
		m.r += at * p.r_stride[d];
	}
	if (!m.valid)
		m.end = m.begin;
	return m;
}

/* Elements i .. i + count - 1 of a row; 0 behind them */
template <int DTYPE>
HZ_DEVICE void load_each(float (&v)[EACH], const hzi_quantize_formats &p, const item &m, int64_t i,
			 int count)
{
	if (p.x_vectors && count == EACH) {
		const char *at = (const char *)p.x + (m.x + i) * (DTYPE == HZ_F32 ? 4 : 2);

		if constexpr (DTYPE == HZ_F32) {
			const float4 a = ((const float4 *)at)[0], b = ((const float4 *)at)[1];

			v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
			v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
		} else {
			const uint4 a = *(const uint4 *)at;
			const uint32_t w[4] = {a.x, a.y, a.z, a.w};

#pragma unroll
			for (int e = 0; e < EACH; e++)
				if (DTYPE == HZ_F16)
					v[e] = e % 2 ? f16_high(w[e / 2]) : f16_low(w[e / 2]);
				else
					v[e] = e % 2 ? bf16_high(w[e / 2]) : bf16_low(w[e / 2]);
		}
	} else {
#pragma unroll
		for (int e = 0; e < EACH; e++)
			v[e] = e < count ? load_any(DTYPE, p.x, m.x + (i + e) * p.x_step) : 0.0f;
	}
	if (p.round_to) {
#pragma unroll
		for (int e = 0; e < EACH; e++)
			v[e] = round_to(p.round_to, v[e]);
	}
}

HZ_DEVICE int count_of(const item &m, int64_t i)
{
	return m.end - i < EACH ? (int)(m.end - i) : EACH;
}

HZ_DEVICE uint32_t largest(const float (&v)[EACH], uint32_t amax)
{
#pragma unroll
	for (int e = 0; e < EACH; e++)
		amax = max(amax, __float_as_uint(v[e]) & 0x7fffffff);
	return amax;
}

HZ_DEVICE uint32_t largest_of_lanes(uint32_t amax, const item &m)
{
	for (int d = m.lanes / 2; d; d /= 2)
		amax = max(amax, __shfl_xor_sync(m.mask, amax, d));
	return amax;
}

/* ---- One code -------------------------------------------------------------------------------- */

HZ_DEVICE uint32_t encode_e2m1(float t)
{
	const uint32_t bits = __float_as_uint(t);
	const float a = fminf(fabsf(t), 6.0f);
	const uint32_t u = __float_as_uint(a);
	const uint32_t small = __float_as_uint(__fadd_rn(a, 0x1p22f)) - (149u << 23);
	const uint32_t normal = (u - (126u << 23) + 0x1fffff + (u >> 22 & 1)) >> 22;
	const uint32_t code = (u < 127u << 23 ? small : normal) | (bits >> 28 & 8);

	return (bits & 0x7fffffff) > 0x7f800000 ? 0 : code;
}

/* A code by stochastic rounding of element i. Not inlined: there would be a copy per element. */
static __device__ __noinline__ uint32_t encode_stochastic(const hzi_quantize_formats &p, int format,
							  float t, int32_t zero, int64_t i)
{
	const float u = hzi_uniform(p.seed, (uint64_t)i);

	if (format == HZ_S8)
		return (uint32_t)(hzi_encode_integer(t, (float)(p.low - zero),
						     (float)(p.high - zero), u) + zero);
	return hzi_encode_float(t, format, u);
}

/* The code nearest to t. FORMAT: a float format, or HZ_S8 for all integers */
template <int FORMAT>
HZ_DEVICE uint32_t encode_one(const hzi_quantize_formats &p, float t, int32_t zero)
{
	if (FORMAT == HZ_S8)
		return (uint32_t)(hzi_encode_integer(t, (float)(p.low - zero),
						     (float)(p.high - zero), -1) + zero);
	return FORMAT == HZ_E2M1X2 ? encode_e2m1(t)
	       : FORMAT == HZ_E4M3 ? to_e4m3x2(t, 0) & 0xff
				   : to_e5m2x2(t, 0) & 0xff;
}

/* The number of the scale of element i of a row */
HZ_DEVICE int64_t scale_of(const hzi_quantize_formats &p, const item &m, int64_t i)
{
	if (p.group >= p.n)
		return m.p;
	return m.p + (p.n <= INT32_MAX ? (int64_t)((uint32_t)i / (uint32_t)p.group) : i / p.group);
}

/* A given scale, and its zero point; not inlined: as encode_stochastic() */
static __device__ __noinline__ float scale_at(const hzi_quantize_formats &p, int64_t i)
{
	if (!p.scales)
		return p.scale;
	if (p.scale_dtype == HZ_F32)
		return ((const float *)p.scales)[i];
	return p.scale_dtype == HZ_E8M0 ? hzi_decode_e8m0(((const uint8_t *)p.scales)[i])
					: hzi_decode_float(((const uint8_t *)p.scales)[i], HZ_E4M3);
}

static __device__ __noinline__ int32_t zero_at(const hzi_quantize_formats &p, int64_t i)
{
	if (!p.scales)
		return p.zero;
	if (!p.zeros)
		return 0;
	if (hzi_format_bits(p.q_dtype) == 16)
		return hzi_decode_integer(((const uint16_t *)p.zeros)[i], p.q_dtype);
	return hzi_format_is_signed(p.q_dtype) ? ((const int8_t *)p.zeros)[i]
					       : ((const uint8_t *)p.zeros)[i];
}

/* ---- Codes of a lane ------------------------------------------------------------------------- */

HZ_DEVICE void store_codes(const hzi_quantize_formats &p, const item &m, int64_t i, int count,
			   const uint32_t (&code)[EACH])
{
	const int bits = hzi_format_bits(p.q_dtype);
	uint32_t w[4] = {};

	if (p.q_step != 1) {
#pragma unroll
		for (int e = 0; e < EACH; e++) {
			const int64_t at = m.q + (i + e) * p.q_step;

			if (e < count && bits == 16)
				((uint16_t *)p.q)[at] = (uint16_t)code[e];
			else if (e < count)
				((uint8_t *)p.q)[at] = (uint8_t)code[e];
		}
		return;
	}
#pragma unroll
	for (int e = 0; e < EACH; e++) {
		if (bits == 2)
			w[0] |= (code[e] & 3) << 2 * e;
		else if (bits == 4)
			w[0] |= (code[e] & 15) << 4 * e;
		else if (bits == 8)
			w[e / 4] |= (code[e] & 0xff) << 8 * (e % 4);
		else
			w[e / 2] |= (code[e] & 0xffff) << 16 * (e % 2);
	}

	uint8_t *q = (uint8_t *)p.q + m.q * (bits == 16 ? 2 : 1) + i * bits / 8;

	if (p.q_vectors && count == EACH) {
		if (bits == 2)
			*(uint16_t *)q = (uint16_t)w[0];
		else if (bits == 4)
			*(uint32_t *)q = w[0];
		else if (bits == 8)
			*(uint2 *)q = make_uint2(w[0], w[1]);
		else
			*(uint4 *)q = make_uint4(w[0], w[1], w[2], w[3]);
		return;
	}
#pragma unroll
	for (int b = 0; b < 16; b++) {
		if (8 * b < count * bits)
			q[b] = (uint8_t)(w[b / 4] >> 8 * (b % 4));
	}
}

HZ_DEVICE void load_codes(const hzi_quantize_formats &p, const item &m, int64_t i, int count,
			  uint32_t (&code)[EACH])
{
	const int bits = hzi_format_bits(p.q_dtype);
	const uint8_t *q = (const uint8_t *)p.q + m.q * (bits == 16 ? 2 : 1) + i * bits / 8;
	uint32_t w[4] = {};

	if (p.q_step != 1) {
#pragma unroll
		for (int e = 0; e < EACH; e++) {
			const int64_t at = m.q + (i + e) * p.q_step;

			code[e] = e >= count   ? 0
				  : bits == 16 ? ((const uint16_t *)p.q)[at]
					       : ((const uint8_t *)p.q)[at];
		}
		return;
	}
	if (p.q_vectors && count == EACH) {
		if (bits == 2) {
			w[0] = *(const uint16_t *)q;
		} else if (bits == 4) {
			w[0] = *(const uint32_t *)q;
		} else if (bits == 8) {
			const uint2 a = *(const uint2 *)q;

			w[0] = a.x, w[1] = a.y;
		} else {
			const uint4 a = *(const uint4 *)q;

			w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
		}
	} else {
#pragma unroll
		for (int b = 0; b < 16; b++) {
			if (8 * b < count * bits)
				w[b / 4] |= (uint32_t)q[b] << 8 * (b % 4);
		}
	}
#pragma unroll
	for (int e = 0; e < EACH; e++)
		code[e] = bits == 2   ? w[0] >> 2 * e
			  : bits == 4 ? w[0] >> 4 * e
			  : bits == 8 ? w[e / 4] >> 8 * (e % 4)
				      : w[e / 2] >> 16 * (e % 2);
}

/* ---- Quantization ---------------------------------------------------------------------------- */

/* The squared error of the item's values, added in order from lane to lane */
HZ_DEVICE float nv46_error(const float (&v)[EACH], int count, uint32_t bits, float factor,
			   float most, const item &m)
{
	const float d = hzi_decode_float(bits, HZ_E4M3);
	float error = 0;

	for (int lane = 0; lane < m.lanes; lane++) {
		float sum = error;

#pragma unroll
		for (int e = 0; e < EACH; e++) {
			if (e < count)
				sum = __fadd_rn(
					sum, hzi_nv46_error(v[e],
							    encode_e2m1(__fmul_rn(v[e], factor)), d,
							    most));
		}
		error = __shfl_sync(m.mask, sum, lane, m.lanes);
	}
	return error;
}

HZ_DEVICE hzi_scale choose_scale(const hzi_quantize_formats &p, const float (&v)[EACH], int count,
				 uint32_t amax, const hzi_tensor_factor &t, const item &m)
{
	hzi_scale s = hzi_scale_of(amax, p.q_dtype, p.rule, t);

	if (p.rule == HZ_SCALE_NV46) {
		const float base = __fmul_rn(__fmul_rn(__uint_as_float(amax) / 6.0f, t.s), 1.5f);
		hzi_scale four = s;

		four.bits = hzi_scale_nv(base, t.p, &four.factor);
		if (nv46_error(v, count, four.bits, four.factor, t.most, m) <
		    nv46_error(v, count, s.bits, s.factor, t.most, m))
			s = four;
	}
	if (m.valid && m.lane == 0) {
		const int64_t at = scale_of(p, m, m.begin);

		if (p.scale_dtype == HZ_F32)
			((uint32_t *)p.scales)[at] = s.bits;
		else
			((uint8_t *)p.scales)[at] = (uint8_t)s.bits;
	}
	return s;
}

static __device__ __noinline__ float divide(float a, float b)
{
	return __fdiv_rn(a, b);
}

template <int DTYPE, int FORMAT>
HZ_DEVICE void quantize_items(const hzi_quantize_formats &p)
{
	const item m = make_item(p);
	const int64_t first = m.begin + m.lane * EACH;
	const bool once = m.end - m.begin <= m.lanes * EACH;
	float v[EACH] = {};
	hzi_scale s = {0, 0, true};

	if (p.chosen) {
		const hzi_tensor_factor t =
			hzi_format_tensor(p.tensor_scale, p.new_tensor_scale != NULL, p.rule,
					  p.new_tensor_scale ? *p.most : 0);
		uint32_t amax = 0;

		for (int64_t i = first; i < m.end; i += m.lanes * EACH) {
			load_each<DTYPE>(v, p, m, i, count_of(m, i));
			amax = largest(v, amax);
		}
		amax = largest_of_lanes(amax, m);
		s = choose_scale(p, v, first < m.end ? count_of(m, first) : 0, amax, t, m);
		if (p.new_tensor_scale && blockIdx.x == 0 && threadIdx.x == 0)
			*p.new_tensor_scale = t.p;
	}
	for (int64_t i = first; i < m.end; i += m.lanes * EACH) {
		const int count = count_of(m, i);
		uint32_t code[EACH];
		int32_t zero = 0;

		if (!(p.chosen && once))
			load_each<DTYPE>(v, p, m, i, count);
#pragma unroll
		for (int e = 0; e < EACH; e++) {
			if (!p.chosen && (e == 0 || p.group % EACH) && e < count) {
				const int64_t at = scale_of(p, m, i + e);

				s.factor = scale_at(p, at);
				if (p.tensor_scale)
					s.factor = __fmul_rn(s.factor, *p.tensor_scale);
				zero = zero_at(p, at);
			}

			const float t = s.divide ? divide(v[e], s.factor)
						 : __fmul_rn(v[e], s.factor);

			code[e] = p.stochastic
					  ? encode_stochastic(p, FORMAT, t, zero, m.r + i + e)
					  : encode_one<FORMAT>(p, t, zero);
		}
		store_codes(p, m, i, count, code);
	}
}

template <int DTYPE>
HZ_DEVICE void quantize(const hzi_quantize_formats &p)
{
	if (p.q_dtype == HZ_E2M1X2)
		quantize_items<DTYPE, HZ_E2M1X2>(p);
	else if (p.q_dtype == HZ_E4M3)
		quantize_items<DTYPE, HZ_E4M3>(p);
	else if (p.q_dtype == HZ_E5M2)
		quantize_items<DTYPE, HZ_E5M2>(p);
	else
		quantize_items<DTYPE, HZ_S8>(p);
}

/* ---- Dequantization -------------------------------------------------------------------------- */

template <int DTYPE>
HZ_DEVICE void dequantize(const hzi_quantize_formats &p)
{
	const item m = make_item(p);
	const float tensor = p.tensor_scale ? *p.tensor_scale : 1;
	const bool is_float = hzi_format_is_float(p.q_dtype);
	float s = 0;
	int32_t zero = 0;

	for (int64_t i = m.begin + m.lane * EACH; i < m.end; i += m.lanes * EACH) {
		const int count = count_of(m, i);
		uint32_t code[EACH];

		load_codes(p, m, i, count, code);
#pragma unroll
		for (int e = 0; e < EACH; e++) {
			if ((e == 0 || p.group % EACH) && e < count) {
				const int64_t at = scale_of(p, m, i + e);

				s = scale_at(p, at);
				zero = zero_at(p, at);
			}

			const float v = is_float
						? hzi_decode_float(code[e], p.q_dtype)
						: (float)(hzi_decode_integer(code[e], p.q_dtype) -
							  zero);

			if (e < count)
				store_any(DTYPE, p.x, m.x + (i + e) * p.x_step,
					  __fmul_rn(__fmul_rn(v, s), tensor));
		}
	}
}

/* ---- The largest magnitude of all ------------------------------------------------------------ */

template <int DTYPE>
HZ_DEVICE void most(const hzi_quantize_formats &p)
{
	const item m = make_item(p);
	uint32_t amax = 0;
	float v[EACH];

	for (int64_t i = m.begin + m.lane * EACH; i < m.end; i += m.lanes * EACH) {
		load_each<DTYPE>(v, p, m, i, count_of(m, i));
		amax = largest(v, amax);
	}
	amax = __reduce_max_sync(~0u, amax);
	if (threadIdx.x % 32 == 0 && amax > *(volatile uint32_t *)p.most)
		atomicMax(p.most, amax);
}

#define KERNEL(name, function, dtype, DTYPE) \
	HZ_KERNEL(name##_##dtype, hzi_quantize_formats, (HZI_FORMATS_THREADS), function<DTYPE>(p))
HZ_FLOAT_DTYPES(KERNEL, quantize_formats, quantize)
HZ_FLOAT_DTYPES(KERNEL, dequantize_formats, dequantize)
HZ_FLOAT_DTYPES(KERNEL, quantize_most, most)
