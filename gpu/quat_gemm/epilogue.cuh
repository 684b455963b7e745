/*
 * epilogue.cuh - loads and stores of quaternions of any layout; the epilogue of products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_GEMM_EPILOGUE_CUH
#define HZI_GPU_QUAT_GEMM_EPILOGUE_CUH

#include "gpu/device/dtype.cuh"
#include "gpu/quat_gemm/quat_gemm.h"

struct quat {
	float w, x, y, z;
};

HZ_DEVICE quat quat_conj(quat a)
{
	return {a.w, -a.x, -a.y, -a.z};
}

HZ_DEVICE quat quat_scale(float f, quat a)
{
	return {f * a.w, f * a.x, f * a.y, f * a.z};
}

/* c + a b */
HZ_DEVICE quat quat_fma(quat a, quat b, quat c)
{
	c.w = fmaf(-a.z, b.z, fmaf(-a.y, b.y, fmaf(-a.x, b.x, fmaf(a.w, b.w, c.w))));
	c.x = fmaf(-a.z, b.y, fmaf(a.y, b.z, fmaf(a.x, b.w, fmaf(a.w, b.x, c.x))));
	c.y = fmaf(a.z, b.x, fmaf(a.y, b.w, fmaf(-a.x, b.z, fmaf(a.w, b.y, c.y))));
	c.z = fmaf(a.z, b.w, fmaf(-a.y, b.x, fmaf(a.x, b.y, fmaf(a.w, b.z, c.z))));
	return c;
}

HZ_DEVICE quat quat_mul(quat a, quat b)
{
	return quat_fma(a, b, {0, 0, 0, 0});
}

/* Row r of the 4 x 4 matrix of w: component r of w x */
HZ_DEVICE float4 quat_row(quat w, int r)
{
	return r == 0 ? make_float4(w.w, -w.x, -w.y, -w.z) :
	       r == 1 ? make_float4(w.x, w.w, -w.z, w.y) :
	       r == 2 ? make_float4(w.y, w.z, w.w, -w.x) :
			make_float4(w.z, -w.y, w.x, w.w);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* 16 bits: f16 or bf16 by dtype */
HZ_DEVICE quat quat_unpack(int dtype, uint2 u)
{
	if (dtype == HZ_F16)
		return {f16_low(u.x), f16_high(u.x), f16_low(u.y), f16_high(u.y)};
	return {bf16_low(u.x), bf16_high(u.x), bf16_low(u.y), bf16_high(u.y)};
}

HZ_DEVICE uint2 quat_pack(int dtype, quat q)
{
	if (dtype == HZ_F16)
		return {to_f16x2(q.w, q.x), to_f16x2(q.y, q.z)};
	return {to_bf16x2(q.w, q.x), to_bf16x2(q.y, q.z)};
}

/* The components at offsets `at` + comp: one test of the dtype, so that all loads are in flight */
HZ_DEVICE quat quat_load_parts(int dtype, const void *data, const int64_t (&comp)[4], int64_t at)
{
	const float *const f = (const float *)data + at;
	const uint16_t *const h = (const uint16_t *)data + at;

	if (dtype == HZ_F32)
		return {f[comp[0]], f[comp[1]], f[comp[2]], f[comp[3]]};
	return quat_unpack(dtype, {h[comp[0]] | (uint32_t)h[comp[1]] << 16,
				   h[comp[2]] | (uint32_t)h[comp[3]] << 16});
}

HZ_DEVICE void quat_store_parts(int dtype, void *data, const int64_t (&comp)[4], int64_t at, quat q)
{
	float *const f = (float *)data + at;
	uint16_t *const h = (uint16_t *)data + at;
	const uint2 u = quat_pack(dtype, q);

	if (dtype == HZ_F32) {
		f[comp[0]] = q.w, f[comp[1]] = q.x, f[comp[2]] = q.y, f[comp[3]] = q.z;
	} else {
		h[comp[0]] = (uint16_t)u.x, h[comp[1]] = (uint16_t)(u.x >> 16);
		h[comp[2]] = (uint16_t)u.y, h[comp[3]] = (uint16_t)(u.y >> 16);
	}
}

/* The quaternion at offset `at`, not conjugated. COMPACT: less code for other layouts */
template <bool COMPACT = false>
HZ_DEVICE quat quat_load(const hzi_quat_matrix &m, int64_t at)
{
	if (m.whole && m.dtype == HZ_F32) {
		const float4 f = *(const float4 *)((const float *)m.data + at);

		return {f.x, f.y, f.z, f.w};
	}
	if (m.whole)
		return quat_unpack(m.dtype, *(const uint2 *)((const uint16_t *)m.data + at));
	if (COMPACT)
		return quat_load_parts(m.dtype, m.data, m.comp, at);
	return {load_any(m.dtype, m.data, at + m.comp[0]),
		load_any(m.dtype, m.data, at + m.comp[1]),
		load_any(m.dtype, m.data, at + m.comp[2]),
		load_any(m.dtype, m.data, at + m.comp[3])};
}

template <bool COMPACT = false>
HZ_DEVICE void quat_store(const hzi_quat_matrix &m, int64_t at, quat q)
{
	if (m.whole && m.dtype == HZ_F32) {
		*(float4 *)((float *)m.data + at) = make_float4(q.w, q.x, q.y, q.z);
	} else if (m.whole) {
		*(uint2 *)((uint16_t *)m.data + at) = quat_pack(m.dtype, q);
	} else if (COMPACT) {
		quat_store_parts(m.dtype, m.data, m.comp, at, q);
	} else {
		store_any(m.dtype, m.data, at + m.comp[0], q.w);
		store_any(m.dtype, m.data, at + m.comp[1], q.x);
		store_any(m.dtype, m.data, at + m.comp[2], q.y);
		store_any(m.dtype, m.data, at + m.comp[3], q.z);
	}
}

/* The conjugate if mask is 0x80000000, a if it is 0; no branch, at which loads would wait */
HZ_DEVICE quat quat_flip_signs(quat a, uint32_t mask)
{
	return {a.w, __uint_as_float(__float_as_uint(a.x) ^ mask),
		__uint_as_float(__float_as_uint(a.y) ^ mask),
		__uint_as_float(__float_as_uint(a.z) ^ mask)};
}

/*
 * A contiguous quaternion as loaded, so that several loads are in flight; mask: see
 * quat_flip_signs()
 */
template <int DTYPE>
struct quat_raw {
	uint2 bits;

	__device__ __forceinline__ void load(const void *data, int64_t at)
	{
		bits = *(const uint2 *)((const uint16_t *)data + at);
	}

	/* A streaming load, for data that is read once */
	__device__ __forceinline__ void stream(const void *data, int64_t at)
	{
		bits = __ldcs((const uint2 *)((const uint16_t *)data + at));
	}

	__device__ __forceinline__ quat get(uint32_t mask) const
	{
		return quat_flip_signs(quat_unpack(DTYPE, bits), mask);
	}
};

template <>
struct quat_raw<HZ_F32> {
	float4 f;

	__device__ __forceinline__ void load(const void *data, int64_t at)
	{
		f = *(const float4 *)((const float *)data + at);
	}

	__device__ __forceinline__ void stream(const void *data, int64_t at)
	{
		f = __ldcs((const float4 *)((const float *)data + at));
	}

	__device__ __forceinline__ quat get(uint32_t mask) const
	{
		return quat_flip_signs({f.x, f.y, f.z, f.w}, mask);
	}
};

/* Offset of item i of a batch; item 0 needs no divisions, which take 1 us. */
HZ_DEVICE int64_t quat_item(const int64_t *shape, const int64_t *stride, int64_t i)
{
	if (i == 0)
		return 0;

	const int64_t last = i % shape[2];

	i /= shape[2];
	return last * stride[2] + i % shape[1] * stride[1] + i / shape[1] * stride[0];
}

/* ---- Epilogue -------------------------------------------------------------------------------- */

HZ_DEVICE float quat_norm(quat q)
{
	const float big = fmaxf(fmaxf(fabsf(q.w), fabsf(q.x)), fmaxf(fabsf(q.y), fabsf(q.z)));
	float s = 1, r = 1;

	/* Scales by powers of two, which are exact, so that squares neither overflow nor vanish. */
	if (big > 1e15f)
		s = 0x1p-70f, r = 0x1p70f;
	else if (big < 1e-15f)
		s = 0x1p80f, r = 0x1p-80f;
	q = quat_scale(s, q);
	return r * sqrtf(fmaf(q.w, q.w, fmaf(q.x, q.x, fmaf(q.y, q.y, q.z * q.z))));
}

HZ_DEVICE float quat_activate(int activation, float slope, float x)
{
	switch (activation) {
	case HZ_ACT_RELU:
		return x < 0 ? 0 : x;
	case HZ_ACT_LEAKY:
		return x < 0 ? slope * x : x;
	case HZ_ACT_TANH:
		return tanhf(x);
	case HZ_ACT_SIGMOID:
		return 1 / (1 + expf(-x));
	case HZ_ACT_GELU:
		return x * normcdff(x);
	default:
		return x / (1 + expf(-x));
	}
}

[[maybe_unused]] static __device__ __noinline__ float
quat_activate_call(int activation, float slope, float x)
{
	return quat_activate(activation, slope, x);
}

/* COMPACT: by calls, since the code of four components is most of a small kernel */
template <bool COMPACT = false>
HZ_DEVICE quat quat_act(int activation, float slope, quat q)
{
	const auto act = COMPACT ? quat_activate_call : quat_activate;

	if (activation == HZ_ACT_NONE)
		return q;
	if (activation == HZ_ACT_MODRELU || activation == HZ_ACT_NORMCLIP) {
		const float norm = quat_norm(q);
		float f;

		if (activation == HZ_ACT_NORMCLIP)
			f = norm > slope ? slope / norm : 1;
		else
			f = norm == 0 || norm + slope <= 0 ? 0 : (norm + slope) / norm;
		return quat_scale(f, q);
	}
	return {act(activation, slope, q.w), act(activation, slope, q.x),
		act(activation, slope, q.y), act(activation, slope, q.z)};
}

/*
 * Stores C[i, j] of the sum t; c and pre: offsets of the item, by quat_item(). For i < m and j < n
 * alone.
 */
template <bool COMPACT = false>
HZ_DEVICE void quat_finish(const hzi_quat_out &o, int64_t c, int64_t pre, int64_t i, int64_t j,
			   quat t)
{
	const int64_t at = c + i * o.c.row + j * o.c.col;

	if (o.c.conj)
		t = quat_conj(t);
	if (o.alpha_real)
		t = quat_scale(o.alpha[0], t);
	else
		t = quat_mul({o.alpha[0], o.alpha[1], o.alpha[2], o.alpha[3]}, t);
	if (o.beta != 0) {
		const quat old = quat_load<COMPACT>(o.c, at);

		t = {fmaf(o.beta, old.w, t.w), fmaf(o.beta, old.x, t.x), fmaf(o.beta, old.y, t.y),
		     fmaf(o.beta, old.z, t.z)};
	}
	if (o.bias) {
		const int64_t b = i * o.bias_row + j * o.bias_col;

		if (COMPACT) {
			const quat bias = quat_load_parts(o.bias_dtype, o.bias, o.bias_comp, b);

			t = {t.w + bias.w, t.x + bias.x, t.y + bias.y, t.z + bias.z};
		} else {
			t.w += load_any(o.bias_dtype, o.bias, b + o.bias_comp[0]);
			t.x += load_any(o.bias_dtype, o.bias, b + o.bias_comp[1]);
			t.y += load_any(o.bias_dtype, o.bias, b + o.bias_comp[2]);
			t.z += load_any(o.bias_dtype, o.bias, b + o.bias_comp[3]);
		}
	}
	if (o.pre.data)
		quat_store<COMPACT>(o.pre, pre + i * o.pre.row + j * o.pre.col, t);
	quat_store<COMPACT>(o.c, at, quat_act<COMPACT>(o.activation, o.slope, t));
}

/* The same for column 0. Not inlined: many copies would take time to fetch. */
[[maybe_unused]] static __device__ __noinline__ void
quat_finish_row(const hzi_quat_out &o, int64_t c, int64_t pre, int row, quat t)
{
	quat_finish(o, c, pre, row, 0, t);
}

/* The same by little code, for kernels that are much shorter than their epilogue */
[[maybe_unused]] static __device__ __noinline__ void
quat_finish_compact(const hzi_quat_out &o, int64_t c, int64_t pre, int i, int j, quat t)
{
	quat_finish<true>(o, c, pre, i, j, t);
}

#endif
