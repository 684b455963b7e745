/*
 * implicit_gemm8.cuh - what kernels of quaternion convolutions share: pixels, and their planes of f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Planes lie in shared memory as 16 bytes of a pixel's channels, those of the next pixel behind
 * them, so that a product may begin at any pixel and go on from row to row.
 */
#ifndef HZI_QUAT_CONV_CUH
#define HZI_QUAT_CONV_CUH

#include "gpu/quat_conv/quat_conv.h"
#include "gpu/quat_gemm/pack_planar.cuh"
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mbarrier.cuh"
#include "gpu/device/shared.cuh"

/* Where there is no pixel: strides may be negative, and so may places. */
#define HZI_QC_NOWHERE INT64_MIN

HZ_DEVICE bool is_somewhere(int64_t at)
{
	return (int32_t)(at >> 32) != (int32_t)(HZI_QC_NOWHERE >> 32);
}

struct tile {
	int channel, row, col;		/* the first; of outputs */
};

/* The slab of a row of all, and the row in it; false: there is none. */
HZ_DEVICE bool slab_of(const hzi_quat_conv &p, int row, int &image, int &slab, int &inside)
{
	const uint32_t of_all = (uint32_t)row / (uint32_t)p.virtual_rows;

	if (row < 0 || row >= p.all_rows)
		return false;
	inside = row - (int)of_all * p.virtual_rows;
	image = (int)(of_all / (uint32_t)p.count[0]);
	slab = (int)of_all - image * p.count[0];
	return true;
}

/* Two channels of a pixel, as they lie in memory: whole quaternions of 16 bits in pairs. */
template <int DTYPE>
struct two {
	uint4 bits;

	/* In the order of the calls: else ptxas has but few under way. */
	__device__ __forceinline__ void load(const hzi_quat_conv_side &p, int64_t at, int channel)
	{
		const bool there = is_somewhere(at) && channel < p.channels;

		asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; "
			     "mov.b32 %2, 0; mov.b32 %3, 0; "
			     "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];}"
			     : "=&r"(bits.x), "=&r"(bits.y), "=&r"(bits.z), "=&r"(bits.w)
			     : "l"((const uint16_t *)p.q.data + at + 4 * channel), "r"((int)there));
	}

	__device__ __forceinline__ quat get(int i) const
	{
		return i ? quat_unpack(DTYPE, {bits.z, bits.w}) :
		       quat_unpack(DTYPE, {bits.x, bits.y});
	}

};

/* Of f32 they are twice as much. */
template <>
struct two<HZ_F32> {
	float4 q[2];

	__device__ __forceinline__ void load(const hzi_quat_conv_side &p, int64_t at, int channel)
	{
#pragma unroll
		for (int i = 0; i < 2; i++) {
			q[i] = {};
			if (is_somewhere(at) && channel + i < p.channels)
				q[i] = __ldg((const float4 *)((const float *)p.q.data + at +
							      4 * (channel + i)));
		}
	}

	__device__ __forceinline__ quat get(int i) const
	{
		return {q[i].x, q[i].y, q[i].z, q[i].w};
	}
};

#define HZI_QC_OTHERS (-1)	/* as a dtype: of any, which quaternions in any memory have */

/* Apart, and a call each: else there would be many copies of it. */
static __device__ __noinline__ quat load_other(const hzi_quat_conv_side &p, int64_t at)
{
	return quat_load(p.q, at);
}

template <>
struct two<HZI_QC_OTHERS> {
	quat q[2];

	__device__ __forceinline__ void load(const hzi_quat_conv_side &p, int64_t at, int channel)
	{
#pragma unroll
		for (int i = 0; i < 2; i++) {
			q[i] = {};
			if (is_somewhere(at) && channel + i < p.channels)
				q[i] = load_other(p, at + (channel + i) * p.q.col);
		}
	}

	__device__ __forceinline__ quat get(int i) const
	{
		return q[i];
	}

};

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
 * The largest finite magnitude so far. Magnitudes of 16 bits are ordered as their bits are; they
 * are moved so that Inf and NaN, and these alone, are negative.
 */
template <int DTYPE>
struct largest {
	static constexpr uint32_t shift = DTYPE == HZ_F16 ? 0x04000400 : 0x00800080;
	uint32_t bits = shift;

	__device__ __forceinline__ void add(const two<DTYPE> &t)
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

struct largest_float {
	float most = 0;

	template <typename TWO>
	__device__ __forceinline__ void add(const TWO &t)
	{
		most = fmaxf(most, fmaxf(finite_magnitude(t.get(0)), finite_magnitude(t.get(1))));
	}

	__device__ __forceinline__ float get(void) const
	{
		return most;
	}
};

template <>
struct largest<HZI_QC_OTHERS> : largest_float {};

template <>
struct largest<HZ_F32> : largest_float {};

/* WARPS: 0 and so many after it convert. */
template <int WARPS = HZI_QC_CONVERTERS>
HZ_DEVICE void converters_meet(void)
{
	bar_sync(1, 32 * WARPS);
}

/* Where line l of the pixels is that the taps of a group see. */
HZ_DEVICE int64_t place_of(const hzi_quat_conv &p, const hzi_quat_conv_group &g, int first_row,
			   int first_col, int l)
{
	const int a = l / g.pitch, col = p.col_step * (first_col + g.col + l - a * g.pitch) +
					 g.col_rest;
	int image, slab, row;

	if (!slab_of(p, first_row + g.row + a, image, slab, row))
		return HZI_QC_NOWHERE;
	slab = p.slab_step * slab + g.slab;
	row = p.row_step * row + g.row_rest;
	if (slab < 0 || slab >= p.size[0] || row >= p.size[1] || col < 0 || col >= p.size[2])
		return HZI_QC_NOWHERE;
	return image * p.x.stride[0] + slab * p.x.stride[1] + row * p.x.stride[2] +
	       col * p.x.stride[3];
}

template <int WARPS = HZI_QC_CONVERTERS>
HZ_DEVICE void find_lines(const hzi_quat_conv &p, int64_t *from, int first_row, int first_col,
			  int group)
{
	const hzi_quat_conv_group &g = p.group[group];

	converters_meet<WARPS>();
	for (int l = threadIdx.x; l < g.lines; l += 32 * WARPS)
		from[l] = place_of(p, g, first_row, first_col, l);
	converters_meet<WARPS>();
}

/* All that a tile's taps see is on its way to L2. */
template <int DTYPE, int WARPS = HZI_QC_CONVERTERS>
HZ_DEVICE void prefetch_lines(const hzi_quat_conv &p, const tile &o)
{
	const int size = DTYPE == HZ_F32 ? 4 : 2;

	for (int i = 0; DTYPE != HZI_QC_OTHERS && i < p.groups; i++) {
		const hzi_quat_conv_group &g = p.group[i];

		for (int l = threadIdx.x; l < g.lines; l += 32 * WARPS) {
			const int64_t at = place_of(p, g, o.row, o.col, l);

			if (is_somewhere(at))
				bulk_prefetch_l2((const char *)p.x.q.data + size * at,
						 4 * size * p.x.channels);
		}
	}
}

/*
 * What is done to the pixels at places from[] of memory: their planes, and the largest magnitude
 * that is finite. A warp takes 32 lines and HZI_QC_IN channels at a time; of these eight threads
 * read 128 bytes of a line, for which loads of several lines are under way.
 */
#define HZI_QC_EIGHTS (HZI_QC_IN / 8)
#define HZI_QC_PLANE (HZI_QC_EIGHTS * HZI_QC_LINES * 16)	/* bytes */
#define HZI_QC_UNDER_WAY 8

/* Of an eighth of channels of a line, in the first plane */
HZ_DEVICE uint32_t plane_place(uint32_t planes, int eighth, int line)
{
	return planes + (eighth * HZI_QC_LINES + line) * 16;
}

/* w, x, y, z if raw, else the sums of hadamard_of(), negative: of these are sums of P to be */
HZ_DEVICE quat for_planes(quat q, bool raw, float by, float by_xyz)
{
	by = raw ? by : -by;
	by_xyz = raw ? by_xyz : -by_xyz;
	q = {by * q.w, by_xyz * q.x, by_xyz * q.y, by_xyz * q.z};
	return raw ? q : quat{hadamard_of(q, 0), hadamard_of(q, 1), hadamard_of(q, 2),
			      hadamard_of(q, 3)};
}

/* Adds a warp's lines from first on and channels from k on. */
template <int DTYPE>
HZ_DEVICE void add_lines(largest<DTYPE> &most, const hzi_quat_conv_side &p, const int64_t *from,
			 int lines, int first, int k)
{
	constexpr int n = DTYPE == HZI_QC_OTHERS ? 1 : HZI_QC_UNDER_WAY;
	const int lane = threadIdx.x % 32;

#pragma unroll 1
	for (int i = 0; i < 16; i += n) {
		two<DTYPE> t[n];
		int64_t at[n];

#pragma unroll
		for (int j = 0; j < n; j++) {
			const int l = first + (i + j) / 2 * 4 + lane / 8;

			at[j] = l < lines ? from[l] : HZI_QC_NOWHERE;
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
 * Lines as they are in memory, of which two channels are 16 bytes, to the places of what they
 * become, pair j of an eighth to that of plane j. Zeros where there are none.
 */
HZ_DEVICE void copy_lines(const hzi_quat_conv_side &p, const int64_t *from, int lines, int first,
			  int k, uint32_t planes)
{
	const int lane = threadIdx.x % 32, channel = k + lane % 8 * 2;
	const uint16_t *const data = (const uint16_t *)p.q.data + 4 * channel;
	const uint32_t to = plane_place(planes, lane % 8 / 4, first + lane / 8) +
			    lane % 4 * HZI_QC_PLANE;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		const int l = first + 4 * i + lane / 8;
		const int64_t at = l < lines ? from[l] : HZI_QC_NOWHERE;

#pragma unroll
		for (int h = 0; h < HZI_QC_IN / 16 && l < lines; h++) {
			const bool there = is_somewhere(at) && channel + 16 * h < p.channels;

			cp_async_zfill(to + (2 * h * HZI_QC_LINES + 4 * i) * 16,
				       there ? data + at + 64 * h : data, there ? 16 : 0);
		}
	}
}

/* A line's eight channels of copy_lines() to their planes, in place */
template <int DTYPE>
HZ_DEVICE void convert_line(uint32_t at, bool raw, float by, float by_xyz)
{
	two<DTYPE> from[4];
	uint32_t to[4][4];

#pragma unroll
	for (int j = 0; j < 4; j++)
		from[j].bits = shared_load(at + j * HZI_QC_PLANE);
#pragma unroll
	for (int j = 0; j < 4; j++) {
		const quat a = for_planes(from[j].get(0), raw, by, by_xyz);
		const quat b = for_planes(from[j].get(1), raw, by, by_xyz);

		to[0][j] = to_f16x2(a.w, b.w);
		to[1][j] = to_f16x2(a.x, b.x);
		to[2][j] = to_f16x2(a.y, b.y);
		to[3][j] = to_f16x2(a.z, b.z);
	}
#pragma unroll
	for (int j = 0; j < 4; j++)
		shared_store(at + j * HZI_QC_PLANE, to[j]);
}

/*
 * What is to be planes, by warp 0 to HZI_QC_CONVERTERS - 1: on its way and here, and if wanted the
 * largest magnitude of what this thread sees of it.
 */
template <int DTYPE>
HZ_DEVICE float load_lines(const hzi_quat_conv_side &p, const int64_t *from, int lines, int warp,
			   int k, uint32_t planes, bool wanted)
{
	const int lane = threadIdx.x % 32;
	largest<DTYPE> most;

	if constexpr (DTYPE == HZI_QC_OTHERS) {
		for (int l = 32 * warp; l < lines && wanted; l += 32 * HZI_QC_CONVERTERS)
			add_lines<DTYPE>(most, p, from, lines, l, k);
		return most.get();
	} else {
		for (int l = 32 * warp; l < lines; l += 32 * HZI_QC_CONVERTERS)
			copy_lines(p, from, lines, l, k, planes);
		cp_async_wait_all();
		__syncwarp();
		for (int l = 32 * warp + lane; l < lines && wanted; l += 32 * HZI_QC_CONVERTERS) {
#pragma unroll 1
			for (int e = 0; e < HZI_QC_EIGHTS; e++) {
				two<DTYPE> t[4];

#pragma unroll
				for (int j = 0; j < 4; j++)
					t[j].bits = shared_load(plane_place(planes, e, l) +
								j * HZI_QC_PLANE);
#pragma unroll
				for (int j = 0; j < 4; j++)
					most.add(t[j]);
			}
		}
		return most.get();
	}
}

/* Planes of lines that load_lines() loaded */
template <int DTYPE>
HZ_DEVICE void make_planes(const hzi_quat_conv_side &p, const int64_t *from, int lines, int warp,
			   int k, uint32_t planes, bool raw, float by, float by_xyz)
{
	const int lane = threadIdx.x % 32;

	if constexpr (DTYPE == HZI_QC_OTHERS) {
#pragma unroll 1
		for (int u = warp; u < (lines + 31) / 32 * 16; u += HZI_QC_CONVERTERS) {
			const int l = u / 2 * 4 + lane / 8, c = u % 2 * 16 + lane % 8 * 2;
			two<DTYPE> q;

			if (l >= lines)
				continue;
			q.load(p, from[l], k + c);

			const quat a = for_planes(q.get(0), raw, by, by_xyz);
			const quat b = for_planes(q.get(1), raw, by, by_xyz);
			const uint32_t v[4] = {to_f16x2(a.w, b.w), to_f16x2(a.x, b.x),
					       to_f16x2(a.y, b.y), to_f16x2(a.z, b.z)};

#pragma unroll
			for (int j = 0; j < 4; j++)
				asm volatile("st.shared.b32 [%0], %1;"
					     :: "r"(plane_place(planes, c / 8, l) + c % 8 * 2 +
						    j * HZI_QC_PLANE), "r"(v[j]) : "memory");
		}
	} else {
		for (int l = 32 * warp + lane; l < lines; l += 32 * HZI_QC_CONVERTERS) {
#pragma unroll 1
			for (int e = 0; e < HZI_QC_EIGHTS; e++) {
				const uint32_t at = plane_place(planes, e, l);

				if (raw)
					convert_line<DTYPE>(at, true, by, by_xyz);
				else
					convert_line<DTYPE>(at, false, by, by_xyz);
			}
		}
	}
}

/* Planes w, x, y, z to what for_planes() makes of them, by the same threads */
HZ_DEVICE void turn_planes(uint32_t from, uint32_t to, int lines, int warp, float by)
{
	const int lane = threadIdx.x % 32;

	for (int l = 32 * warp + lane; l < lines; l += 32 * HZI_QC_CONVERTERS) {
#pragma unroll 1
		for (int e = 0; e < HZI_QC_EIGHTS; e++) {
			uint32_t v[4][4], h[4][4];

#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint4 u = shared_load(plane_place(from, e, l) +
							    i * HZI_QC_PLANE);

				v[i][0] = u.x, v[i][1] = u.y, v[i][2] = u.z, v[i][3] = u.w;
			}
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const quat a = for_planes({f16_low(v[0][j]), f16_low(v[1][j]),
							   f16_low(v[2][j]), f16_low(v[3][j])},
							  false, by, by);
				const quat b = for_planes({f16_high(v[0][j]), f16_high(v[1][j]),
							   f16_high(v[2][j]), f16_high(v[3][j])},
							  false, by, by);

				h[0][j] = to_f16x2(a.w, b.w);
				h[1][j] = to_f16x2(a.x, b.x);
				h[2][j] = to_f16x2(a.y, b.y);
				h[3][j] = to_f16x2(a.z, b.z);
			}
#pragma unroll
			for (int i = 0; i < 4; i++)
				shared_store(plane_place(to, e, l) + i * HZI_QC_PLANE, h[i]);
		}
	}
}

#endif
