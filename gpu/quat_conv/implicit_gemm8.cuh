/*
 * implicit_gemm8.cuh - input pixels and their f16 planes, for the kernels by 8 real products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Planes in shared memory: [plane][8 channels][pixel], 16 bytes each, so that a wgmma may begin at
 * any pixel and go on from row to row.
 */
#ifndef HZI_GPU_QUAT_CONV_IMPLICIT_GEMM8_CUH
#define HZI_GPU_QUAT_CONV_IMPLICIT_GEMM8_CUH

#include "gpu/quat_conv/quat_conv.h"
#include "gpu/quat_gemm/pack_planar.cuh"
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mbarrier.cuh"
#include "gpu/device/shared.cuh"

/* The offset where there is no pixel. Others may be negative, since strides may be. */
#define HZI_CONV_OUTSIDE INT64_MIN

HZ_DEVICE bool is_inside(int64_t at)
{
	return (int32_t)(at >> 32) != (int32_t)(HZI_CONV_OUTSIDE >> 32);
}

struct tile {
	int channel, row, col;		/* the first of its outputs */
};

/* The image, slab and row in the slab of a row of all slabs; false: there is no such row. */
HZ_DEVICE bool locate_row(const hzi_quat_conv8 &p, int row, int &image, int &slab, int &inside)
{
	const uint32_t of_all = (uint32_t)row / (uint32_t)p.virtual_rows;

	if (row < 0 || row >= p.all_rows)
		return false;
	inside = row - (int)of_all * p.virtual_rows;
	image = (int)(of_all / (uint32_t)p.count[0]);
	slab = (int)of_all - image * p.count[0];
	return true;
}

/* Two channels of a pixel as loaded: contiguous 16-bit quaternions */
template <int DTYPE>
struct channel_pair {
	uint4 bits;

	/* volatile: in the order of the calls, or ptxas keeps few loads in flight. */
	__device__ __forceinline__ void load(const hzi_quat_conv_array &p, int64_t at, int channel)
	{
		const bool inside = is_inside(at) && channel < p.channels;

		asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; "
			     "mov.b32 %2, 0; mov.b32 %3, 0; "
			     "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];}"
			     : "=&r"(bits.x), "=&r"(bits.y), "=&r"(bits.z), "=&r"(bits.w)
			     : "l"((const uint16_t *)p.q.data + at + 4 * channel),
			     "r"((int)inside));
	}

	__device__ __forceinline__ quat get(int i) const
	{
		return i ? quat_unpack(DTYPE, {bits.z, bits.w}) :
		       quat_unpack(DTYPE, {bits.x, bits.y});
	}
};

#define HZI_CONV_ANY_DTYPE (-1)	/* as a template's DTYPE: any dtype and strides */

/* Not inlined: there would be many copies. */
static __device__ __noinline__ quat load_strided(const hzi_quat_conv_array &p, int64_t at)
{
	return quat_load(p.q, at);
}

template <int DTYPE>
struct loaded_pair {
	quat q[2];

	__device__ __forceinline__ void load(const hzi_quat_conv_array &p, int64_t at, int channel)
	{
#pragma unroll
		for (int i = 0; i < 2; i++) {
			q[i] = {};
			if (!is_inside(at) || channel + i >= p.channels)
				continue;
			if (DTYPE == HZ_F32) {
				const float4 f = __ldg((const float4 *)((const float *)p.q.data +
									at + 4 * (channel + i)));

				q[i] = {f.x, f.y, f.z, f.w};
			} else {
				q[i] = load_strided(p, at + (channel + i) * p.q.col);
			}
		}
	}

	__device__ __forceinline__ quat get(int i) const
	{
		return q[i];
	}
};

template <>
struct channel_pair<HZ_F32> : loaded_pair<HZ_F32> {};
template <>
struct channel_pair<HZI_CONV_ANY_DTYPE> : loaded_pair<HZI_CONV_ANY_DTYPE> {};

HZ_DEVICE float finite_magnitude(quat q)
{
	const float m[4] = {fabsf(q.w), fabsf(q.x), fabsf(q.y), fabsf(q.z)};
	float most = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		most = m[i] < INFINITY ? fmaxf(most, m[i]) : most;
	return most;
}

/*
 * The largest finite magnitude so far. 16-bit magnitudes are ordered as their bits; `shift` makes
 * those of Inf and NaN, and these alone, negative as s16.
 */
template <int DTYPE>
struct absmax {
	static constexpr uint32_t shift = DTYPE == HZ_F16 ? 0x04000400 : 0x00800080;
	uint32_t bits = shift;

	__device__ __forceinline__ void add(const channel_pair<DTYPE> &t)
	{
		const uint32_t v[4] = {t.bits.x, t.bits.y, t.bits.z, t.bits.w};

#pragma unroll
		for (int i = 0; i < 4; i++)
			asm("max.s16x2 %0, %0, %1;" : "+r"(bits) :
			    "r"((v[i] & 0x7fff7fff) + shift));
	}

	__device__ __forceinline__ float get(void) const
	{
		const uint32_t m = bits - shift;

		return fmaxf(load_any(DTYPE, &m, 0), load_any(DTYPE, &m, 1));
	}
};

struct absmax_f32 {
	float most = 0;

	template <typename PAIR>
	__device__ __forceinline__ void add(const PAIR &t)
	{
		most = fmaxf(most, fmaxf(finite_magnitude(t.get(0)), finite_magnitude(t.get(1))));
	}

	__device__ __forceinline__ float get(void) const
	{
		return most;
	}
};

template <>
struct absmax<HZI_CONV_ANY_DTYPE> : absmax_f32 {};

template <>
struct absmax<HZ_F32> : absmax_f32 {};

/* Barrier of the converting warps, 0 to WARPS - 1 */
template <int WARPS = HZI_CONV8_CONVERTERS>
HZ_DEVICE void converters_sync(void)
{
	bar_sync(1, 32 * WARPS);
}

/* Offset of input l of those that the taps of a group read; or OUTSIDE */
HZ_DEVICE int64_t input_offset(const hzi_quat_conv8 &p, const hzi_quat_conv8_group &g,
			       int first_row, int first_col, int l)
{
	const int a = l / g.pitch, col = p.col_step * (first_col + g.col + l - a * g.pitch) +
					 g.col_phase;
	int image, slab, row;

	if (!locate_row(p, first_row + g.row + a, image, slab, row))
		return HZI_CONV_OUTSIDE;
	slab = p.slab_step * slab + g.slab;
	row = p.row_step * row + g.row_phase;
	if (slab < 0 || slab >= p.size[0] || row >= p.size[1] || col < 0 || col >= p.size[2])
		return HZI_CONV_OUTSIDE;
	return image * p.x.stride[0] + slab * p.x.stride[1] + row * p.x.stride[2] +
	       col * p.x.stride[3];
}

template <int WARPS = HZI_CONV8_CONVERTERS>
HZ_DEVICE void find_inputs(const hzi_quat_conv8 &p, int64_t *src, int first_row, int first_col,
			   int group)
{
	const hzi_quat_conv8_group &g = p.group[group];

	converters_sync<WARPS>();
	for (int l = threadIdx.x; l < g.inputs; l += 32 * WARPS)
		src[l] = input_offset(p, g, first_row, first_col, l);
	converters_sync<WARPS>();
}

/* Prefetches what the taps of a tile read to L2. */
template <int DTYPE, int WARPS = HZI_CONV8_CONVERTERS>
HZ_DEVICE void prefetch_inputs(const hzi_quat_conv8 &p, const tile &o)
{
	const int size = DTYPE == HZ_F32 ? 4 : 2;

	for (int i = 0; DTYPE != HZI_CONV_ANY_DTYPE && i < p.groups; i++) {
		const hzi_quat_conv8_group &g = p.group[i];

		for (int l = threadIdx.x; l < g.inputs; l += 32 * WARPS) {
			const int64_t at = input_offset(p, g, o.row, o.col, l);

			if (is_inside(at))
				bulk_prefetch_l2((const char *)p.x.q.data + size * at,
						 4 * size * p.x.channels);
		}
	}
}

/*
 * Inputs at offsets src[] to planes, and their largest finite magnitude. A warp has 32 inputs and
 * HZI_CONV8_TILE_K channels at a time; eight threads read 128 bytes of an input, with loads of
 * several inputs in flight.
 */
#define HZI_CONV8_K_CHUNKS (HZI_CONV8_TILE_K / 8)
#define HZI_CONV8_PLANE_BYTES (HZI_CONV8_K_CHUNKS * HZI_CONV8_INPUTS * 16)	/* bytes */
#define HZI_CONV8_IN_FLIGHT 8

/* Address of 8 channels of an input in the first plane */
HZ_DEVICE uint32_t plane_address(uint32_t planes, int chunk, int input)
{
	return planes + (chunk * HZI_CONV8_INPUTS + input) * 16;
}

/* The four values of a pixel, scaled: raw: q (phase 0), else -H q (phase 1) */
HZ_DEVICE quat plane_values(quat q, bool raw, float by, float by_xyz)
{
	by = raw ? by : -by;
	by_xyz = raw ? by_xyz : -by_xyz;
	q = {by * q.w, by_xyz * q.x, by_xyz * q.y, by_xyz * q.z};
	return raw ? q : quat{hadamard_of(q, 0), hadamard_of(q, 1), hadamard_of(q, 2),
			      hadamard_of(q, 3)};
}

/* Largest magnitude of a warp's 32 inputs from `first` on, channels from k on */
template <int DTYPE>
HZ_DEVICE void absmax_inputs(absmax<DTYPE> &most, const hzi_quat_conv_array &p, const int64_t *src,
			     int inputs, int first, int k)
{
	constexpr int n = DTYPE == HZI_CONV_ANY_DTYPE ? 1 : HZI_CONV8_IN_FLIGHT;
	const int lane = threadIdx.x % 32;

#pragma unroll 1
	for (int i = 0; i < 16; i += n) {
		channel_pair<DTYPE> t[n];
		int64_t at[n];

#pragma unroll
		for (int j = 0; j < n; j++) {
			const int l = first + (i + j) / 2 * 4 + lane / 8;

			at[j] = l < inputs ? src[l] : HZI_CONV_OUTSIDE;
		}
#pragma unroll
		for (int j = 0; j < n; j++)
			t[j].load(p, at[j], k + (i + j) % 2 * 16 + lane % 8 * 2);
#pragma unroll
		for (int j = 0; j < n; j++)
			most.add(t[j]);
	}
}

/*
 * Starts copies of 32 inputs, unconverted, to the place of their planes: channel pair j of 8
 * channels, 16 bytes, to that of plane j. Zeros outside x.
 */
HZ_DEVICE void copy_inputs(const hzi_quat_conv_array &p, const int64_t *src, int inputs, int first,
			   int k, uint32_t planes)
{
	const int lane = threadIdx.x % 32, channel = k + lane % 8 * 2;
	const uint16_t *const data = (const uint16_t *)p.q.data + 4 * channel;
	const uint32_t dst = plane_address(planes, lane % 8 / 4, first + lane / 8) +
			     lane % 4 * HZI_CONV8_PLANE_BYTES;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		const int l = first + 4 * i + lane / 8;
		const int64_t at = l < inputs ? src[l] : HZI_CONV_OUTSIDE;

#pragma unroll
		for (int h = 0; h < HZI_CONV8_TILE_K / 16 && l < inputs; h++) {
			const bool inside = is_inside(at) && channel + 16 * h < p.channels;

			cp_async_zfill(dst + (2 * h * HZI_CONV8_INPUTS + 4 * i) * 16,
				       inside ? data + at + 64 * h : data, inside ? 16 : 0);
		}
	}
}

/* Two quaternions as word j of planes w, x, y, z */
HZ_DEVICE void put_pair(uint32_t (&planes)[4][4], int j, quat a, quat b)
{
	planes[0][j] = to_f16x2(a.w, b.w);
	planes[1][j] = to_f16x2(a.x, b.x);
	planes[2][j] = to_f16x2(a.y, b.y);
	planes[3][j] = to_f16x2(a.z, b.z);
}

/* Converts eight channels of an input, as copy_inputs() left them, to planes in place. */
template <int DTYPE>
HZ_DEVICE void convert_input(uint32_t at, bool raw, float by, float by_xyz)
{
	channel_pair<DTYPE> src[4];
	uint32_t dst[4][4];

#pragma unroll
	for (int j = 0; j < 4; j++)
		src[j].bits = shared_load(at + j * HZI_CONV8_PLANE_BYTES);
#pragma unroll
	for (int j = 0; j < 4; j++) {
		const quat a = plane_values(src[j].get(0), raw, by, by_xyz);
		const quat b = plane_values(src[j].get(1), raw, by, by_xyz);

		put_pair(dst, j, a, b);
	}
#pragma unroll
	for (int j = 0; j < 4; j++)
		shared_store(at + j * HZI_CONV8_PLANE_BYTES, dst[j]);
}

/*
 * Loads all inputs of a step, by the converting warps. Returns, if wanted, the largest finite
 * magnitude of this thread's share.
 */
template <int DTYPE>
HZ_DEVICE float load_inputs(const hzi_quat_conv_array &p, const int64_t *src, int inputs, int warp,
			    int k, uint32_t planes, bool wanted)
{
	const int lane = threadIdx.x % 32;
	absmax<DTYPE> most;

	if constexpr (DTYPE == HZI_CONV_ANY_DTYPE) {
		for (int l = 32 * warp; l < inputs && wanted; l += 32 * HZI_CONV8_CONVERTERS)
			absmax_inputs<DTYPE>(most, p, src, inputs, l, k);
		return most.get();
	} else {
		for (int l = 32 * warp; l < inputs; l += 32 * HZI_CONV8_CONVERTERS)
			copy_inputs(p, src, inputs, l, k, planes);
		cp_async_wait_all();
		__syncwarp();
		for (int l = 32 * warp + lane; l < inputs && wanted; l += 32 *
		     HZI_CONV8_CONVERTERS) {
#pragma unroll 1
			for (int e = 0; e < HZI_CONV8_K_CHUNKS; e++) {
				channel_pair<DTYPE> t[4];

#pragma unroll
				for (int j = 0; j < 4; j++)
					t[j].bits = shared_load(plane_address(planes, e, l) +
								j * HZI_CONV8_PLANE_BYTES);
#pragma unroll
				for (int j = 0; j < 4; j++)
					most.add(t[j]);
			}
		}
		return most.get();
	}
}

/* Converts the inputs of load_inputs() to planes. */
template <int DTYPE>
HZ_DEVICE void convert_inputs(const hzi_quat_conv_array &p, const int64_t *src, int inputs,
			      int warp, int k, uint32_t planes, bool raw, float by, float by_xyz)
{
	const int lane = threadIdx.x % 32;

	if constexpr (DTYPE == HZI_CONV_ANY_DTYPE) {
#pragma unroll 1
		for (int u = warp; u < (inputs + 31) / 32 * 16; u += HZI_CONV8_CONVERTERS) {
			const int l = u / 2 * 4 + lane / 8, c = u % 2 * 16 + lane % 8 * 2;
			channel_pair<DTYPE> q;

			if (l >= inputs)
				continue;
			q.load(p, src[l], k + c);

			const quat a = plane_values(q.get(0), raw, by, by_xyz);
			const quat b = plane_values(q.get(1), raw, by, by_xyz);
			const uint32_t v[4] = {to_f16x2(a.w, b.w), to_f16x2(a.x, b.x),
					       to_f16x2(a.y, b.y), to_f16x2(a.z, b.z)};

#pragma unroll
			for (int j = 0; j < 4; j++)
				asm volatile("st.shared.b32 [%0], %1;"
					     :: "r"(plane_address(planes, c / 8, l) + c % 8 * 2 +
						    j * HZI_CONV8_PLANE_BYTES), "r"(v[j]) :
					     "memory");
		}
	} else {
		for (int l = 32 * warp + lane; l < inputs; l += 32 * HZI_CONV8_CONVERTERS) {
#pragma unroll 1
			for (int e = 0; e < HZI_CONV8_K_CHUNKS; e++) {
				const uint32_t at = plane_address(planes, e, l);

				if (raw)
					convert_input<DTYPE>(at, true, by, by_xyz);
				else
					convert_input<DTYPE>(at, false, by, by_xyz);
			}
		}
	}
}

/* Planes w, x, y, z (phase 0) to those of phase 1, by the threads that made them */
HZ_DEVICE void transform_planes(uint32_t src, uint32_t dst, int inputs, int warp, float by)
{
	const int lane = threadIdx.x % 32;

	for (int l = 32 * warp + lane; l < inputs; l += 32 * HZI_CONV8_CONVERTERS) {
#pragma unroll 1
		for (int e = 0; e < HZI_CONV8_K_CHUNKS; e++) {
			uint32_t v[4][4], h[4][4];

#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint4 u = shared_load(plane_address(src, e, l) +
							    i * HZI_CONV8_PLANE_BYTES);

				v[i][0] = u.x, v[i][1] = u.y, v[i][2] = u.z, v[i][3] = u.w;
			}
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const quat a = plane_values({f16_low(v[0][j]), f16_low(v[1][j]),
							     f16_low(v[2][j]), f16_low(v[3][j])},
							    false, by, by);
				const quat b = plane_values({f16_high(v[0][j]), f16_high(v[1][j]),
							     f16_high(v[2][j]), f16_high(v[3][j])},
							    false, by, by);

				put_pair(h, j, a, b);
			}
#pragma unroll
			for (int i = 0; i < 4; i++)
				shared_store(plane_address(dst, e, l) + i * HZI_CONV8_PLANE_BYTES,
					     h[i]);
		}
	}
}

#endif
