/*
 * quantize.cu - kernels of quantization, dequantization and choose_qparams
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The contiguous kernels move 16-byte vectors of floats and their codes. At DRAM bandwidth an f16
 * element and its code have a budget of 23 instructions; these kernels take 12. Loads with
 * evict-first priority (__ldcs()) would cost 3 to 9 %.
 */
#include "gpu/device/pdl.cuh"
#include "gpu/quantize/minmax.cuh"
#include "gpu/quantize/strided.cuh"
#include "lib/qgemm/qgemm.h"

/* ---- Quantization ---------------------------------------------------------------------------- */

template <int DTYPE>
HZ_DEVICE void quantize_contiguous(const hzi_quantize_contiguous &p)
{
	constexpr int vectors = HZI_QUANTIZE_VECTORS(DTYPE);
	const int64_t begin = (int64_t)blockIdx.x * (HZI_QUANT_THREADS * p.each);
	const int64_t end = min(p.vectors, begin + HZI_QUANT_THREADS * p.each);
	const int64_t first = begin + threadIdx.x;
	const int32_t zero = p.zeros ? read_zero(p.zeros, 0, p.is_signed) : p.zero;
	const divisor all = make_divisor(p.scales ? p.scales[0] : p.scale, zero, p.is_signed);
	uint4 v[vectors];

#pragma unroll
	for (int j = 0; j < vectors; j++) {
		const int64_t i = first + j * HZI_QUANT_THREADS;

		if (i < end)
			v[j] = ((const uint4 *)p.x)[i];
	}
#pragma unroll
	for (int j = 0; j < vectors; j++) {
		const int64_t i = first + j * HZI_QUANT_THREADS;

		if (i >= end)
			break;
		if (p.row.divisor == 0) {
			store_code_vector<DTYPE>(p.y, i, v[j], all);
		} else {
			const int64_t n = qparam_of(p, i);

			store_code_vector<DTYPE>(
				p.y, i, v[j],
				make_divisor(p.scales[n],
					     p.zeros ? read_zero(p.zeros, n, p.is_signed) : 0,
					     p.is_signed));
		}
	}
	/* Elements after the last whole vector; then there is one parameter for all. */
	const int64_t remainder = p.vectors * vec16<DTYPE>::count + threadIdx.x;

	if (blockIdx.x == 0 && remainder < p.elements)
		((uint8_t *)p.y)[remainder] = (uint8_t)encode(all, load_any(DTYPE, p.x, remainder));
}

/* ---- Dequantization -------------------------------------------------------------------------- */

template <int DTYPE>
HZ_DEVICE void decode_vector(void *y, int64_t i, const uint32_t (&codes)[2], float scale,
			     float base)
{
	uint32_t w[4];
	float f[8];

#pragma unroll
	for (int j = 0; j < vec16<DTYPE>::count; j++)
		f[j] = decode(__byte_perm(codes[j / 4], 0, 0x4440 + j % 4), scale, base);
#pragma unroll
	for (int j = 0; j < 4; j++)
		w[j] = DTYPE == HZ_F32 ? __float_as_uint(f[j])
		       : DTYPE == HZ_F16 ? to_f16x2(f[2 * j], f[2 * j + 1])
					 : to_bf16x2(f[2 * j], f[2 * j + 1]);
	__stcs((uint4 *)y + i, make_uint4(w[0], w[1], w[2], w[3]));
}

template <int DTYPE>
HZ_DEVICE void dequantize_contiguous(const hzi_quantize_contiguous &p)
{
	/* The vectors of a warp are contiguous. */
	const int64_t first =
		((int64_t)blockIdx.x * (HZI_QUANT_THREADS / 32) + threadIdx.x / 32) *
			(32 * HZI_DEQUANTIZE_VECTORS) +
		threadIdx.x % 32;
	const uint32_t flip = p.is_signed ? 0x80808080 : 0;
	const float offset = 8388608.0f + (p.is_signed ? 128 : 0);
	const int32_t zero = p.zeros ? read_zero(p.zeros, 0, p.is_signed) : p.zero;
	const float scale = p.scales ? p.scales[0] : p.scale;
	uint32_t v[HZI_DEQUANTIZE_VECTORS][2];

#pragma unroll
	for (int j = 0; j < HZI_DEQUANTIZE_VECTORS; j++) {
		const int64_t i = first + j * 32;

		if (i >= p.vectors)
			break;
		if (DTYPE == HZ_F32) {
			v[j][0] = ((const uint32_t *)p.x)[i] ^ flip;
		} else {
			const uint2 w = ((const uint2 *)p.x)[i];

			v[j][0] = w.x ^ flip;
			v[j][1] = w.y ^ flip;
		}
	}
#pragma unroll
	for (int j = 0; j < HZI_DEQUANTIZE_VECTORS; j++) {
		const int64_t i = first + j * 32;

		if (i >= p.vectors)
			break;
		if (p.row.divisor == 0) {
			decode_vector<DTYPE>(p.y, i, v[j], scale, offset + zero);
		} else {
			const int64_t n = qparam_of(p, i);

			decode_vector<DTYPE>(
				p.y, i, v[j], p.scales[n],
				offset + (p.zeros ? read_zero(p.zeros, n, p.is_signed) : 0));
		}
	}

	const int64_t remainder = p.vectors * vec16<DTYPE>::count + threadIdx.x;

	if (blockIdx.x == 0 && remainder < p.elements)
		store_any(
			DTYPE, p.y, remainder,
			decode(((const uint8_t *)p.x)[remainder] ^ (flip & 0xff), scale,
			       offset + zero));
}

/* ---- Parameters of ranges -------------------------------------------------------------------- */

extern "C" __global__ __launch_bounds__(HZI_QUANT_THREADS) void
quantize_minmax_qparams(const __grid_constant__ hzi_minmax_qparams p)
{
	const int64_t i = (int64_t)blockIdx.x * HZI_QUANT_THREADS + threadIdx.x;
	int32_t zero;

	if (i >= p.count)
		return;
	hzi_quant_params(-__uint_as_float(p.range[2 * i]), __uint_as_float(p.range[2 * i + 1]),
			 p.q_dtype, (uint32_t)p.flags, &p.scale[i], &zero);
	((uint8_t *)p.zero)[i] = (uint8_t)zero;
}

/* ---- Conversion between 16-bit floats and f32 ------------------------------------------------ */

template <int DTYPE>
HZ_DEVICE void widen(const hzi_quantize_convert &p)
{
	const int64_t i = (int64_t)blockIdx.x * HZI_QUANT_THREADS + threadIdx.x;
	float f[8];

	if (i >= p.vectors)
		return;
	unpack<DTYPE>(f, ((const uint4 *)p.x)[i]);
	((float4 *)p.y)[2 * i] = make_float4(f[0], f[1], f[2], f[3]);
	((float4 *)p.y)[2 * i + 1] = make_float4(f[4], f[5], f[6], f[7]);
}

template <int DTYPE>
HZ_DEVICE void narrow(const hzi_quantize_convert &p)
{
	const int64_t i = (int64_t)blockIdx.x * HZI_QUANT_THREADS + threadIdx.x;
	uint32_t w[4];

	if (i >= p.vectors)
		return;
#pragma unroll
	for (int j = 0; j < 2; j++) {
		const float4 f = ((const float4 *)p.x)[2 * i + j];

		w[2 * j] = DTYPE == HZ_F16 ? to_f16x2(f.x, f.y) : to_bf16x2(f.x, f.y);
		w[2 * j + 1] = DTYPE == HZ_F16 ? to_f16x2(f.z, f.w) : to_bf16x2(f.z, f.w);
	}
	((uint4 *)p.y)[i] = make_uint4(w[0], w[1], w[2], w[3]);
}

/* ---- Rows for qlinear ------------------------------------------------------------------------ */

/* The range of 16-byte vectors; of 16-bit floats two at a time */
template <int DTYPE>
struct vector_range {
	uint32_t least, most;

	__device__ __forceinline__ void add(uint32_t pair)
	{
		if (DTYPE == HZ_F16) {
			asm("min.f16x2 %0, %0, %1;" : "+r"(least) : "r"(pair));
			asm("max.f16x2 %0, %0, %1;" : "+r"(most) : "r"(pair));
		} else {
			asm("min.bf16x2 %0, %0, %1;" : "+r"(least) : "r"(pair));
			asm("max.bf16x2 %0, %0, %1;" : "+r"(most) : "r"(pair));
		}
	}

	__device__ __forceinline__ void add(const uint4 &v)
	{
		add(v.x);
		add(v.y);
		add(v.z);
		add(v.w);
	}

	__device__ __forceinline__ void add_to(range &r) const
	{
		range_add(r, DTYPE == HZ_F16 ? f16_low(least) : bf16_low(least));
		range_add(r, DTYPE == HZ_F16 ? f16_high(least) : bf16_high(least));
		range_add(r, DTYPE == HZ_F16 ? f16_low(most) : bf16_low(most));
		range_add(r, DTYPE == HZ_F16 ? f16_high(most) : bf16_high(most));
	}
};

template <>
struct vector_range<HZ_F32> {
	range all;

	__device__ __forceinline__ void add(const uint4 &v)
	{
		range_add_vector<HZ_F32>(all, v);
	}

	__device__ __forceinline__ void add_to(range &r) const
	{
		r = range_join(r, all);
	}
};

/* The scale and zero point of the range of a row, computed by one of its warps for all of them */
HZ_DEVICE void row_params(const hzi_quantize_rows &p, int64_t row, const range &r, float &scale,
			  int32_t &zero)
{
	constexpr int warps = HZI_QUANT_ROWS_THREADS / 32;
	__shared__ range part[warps];
	__shared__ float shared_scale;
	__shared__ int32_t shared_zero;
	const int warp = threadIdx.x / 32;
	/* Floats >= 0 compare like their bits. */
	range all = {__int_as_float(__reduce_max_sync(~0u, __float_as_int(r.below))),
		     __int_as_float(__reduce_max_sync(~0u, __float_as_int(r.above)))};

	if (!p.warp_per_row) {
		part[warp] = all;
		__syncthreads();
	}
	if (p.warp_per_row || warp == 0) {
#pragma unroll
		for (int i = 1; !p.warp_per_row && i < warps; i++)
			all = range_join(all, part[i]);
		hzi_quant_params(-all.below, all.above, p.q_dtype,
				 p.symmetric & HZ_QPARAMS_SYMMETRIC, &scale, &zero);
		if (threadIdx.x % 32 == 0) {
			p.scales[row] = scale;
			p.zeros[row] = (uint8_t)zero;
		}
	}
	if (!p.warp_per_row) {
		if (threadIdx.x == 0) {
			shared_scale = scale;
			shared_zero = zero;
		}
		__syncthreads();
		scale = shared_scale;
		zero = shared_zero;
	}
}

/* Stores the sum over the threads of a row. */
HZ_DEVICE void store_row_sum(const hzi_quantize_rows &p, int64_t row, int32_t sum)
{
	constexpr int warps = HZI_QUANT_ROWS_THREADS / 32;
	__shared__ int32_t part[warps];

	sum = __reduce_add_sync(~0u, sum);
	if (!p.warp_per_row) {
		part[threadIdx.x / 32] = sum;
		__syncthreads();
#pragma unroll
		for (int i = 1; i < warps; i++)
			sum += part[i];
	}
	if (threadIdx.x == 0 || (p.warp_per_row && threadIdx.x % 32 == 0))
		p.sums[row] = sum;
}

/*
 * A block or a warp quantizes one row, chunk by chunk: it finds the range, then stores the codes.
 * The first chunk, 4096 values of a block's row, stays in registers; the others are read twice.
 */
template <int DTYPE>
HZ_DEVICE void quantize_rows(const hzi_quantize_rows &p)
{
	constexpr int count = vec16<DTYPE>::count, held = 32 / count;
	const int threads = p.warp_per_row ? 32 : HZI_QUANT_ROWS_THREADS;
	const int thread = threadIdx.x % threads;
	const int64_t row = p.warp_per_row ? (int64_t)blockIdx.x * (HZI_QUANT_ROWS_THREADS / 32) +
					       threadIdx.x / 32
				     : blockIdx.x;
	int64_t at = 0, remainder = row;
	float scale = p.scale;
	int32_t zero = p.zero;
	uint4 v[held];

	for (int d = p.ndim - 1; d > 0; d--) {
		at += remainder % p.shape[d] * p.x_stride[d];
		remainder /= p.shape[d];
	}
	at += remainder * p.x_stride[0];
	pdl_launch_dependents();
	pdl_wait();
	if (row >= p.rows)
		return;

	const char *x = (const char *)p.x + at * (DTYPE == HZ_F32 ? 4 : 2);
	const int k = (int)p.k, chunk = held * threads;	/* k is at most 2^23 */
	const int vectors = p.x_k == 1 && (uintptr_t)x % 16 == 0 ? k / count : 0;
	const int last = max(0, (vectors - 1) & -chunk);
	uint8_t *y = p.y + row * p.y_row;
	auto load = [&](int from) {
#pragma unroll
		for (int j = 0; j < held; j++) {
			if (from + thread + j * threads < vectors)
				v[j] = ((const uint4 *)x)[from + thread + j * threads];
		}
	};

	if (p.scales) {
		vector_range<DTYPE> some = {};
		range r = {0, 0};

#pragma unroll 1
		for (int from = last; from >= 0; from -= chunk) {
			load(from);
#pragma unroll
			for (int j = 0; j < held; j++) {
				if (from + thread + j * threads < vectors)
					some.add(v[j]);
			}
		}
		some.add_to(r);
		for (int i = vectors * count + thread; i < k; i += threads)
			range_add(r, load_any(DTYPE, x, i * p.x_k));
		row_params(p, row, r, scale, zero);
	} else {
		load(0);
	}

	const divisor d = make_divisor(scale, zero, p.q_dtype == HZ_S8);
	const uint32_t flip = p.q_dtype == HZ_S8 ? 0 : 0x80808080;
	int32_t sum = 0;	/* of codes - 128 if they are u8 */

#pragma unroll 1
	for (int from = 0; from <= last; from += chunk) {
		if (from > 0)
			load(from);
		/* Not unrolled: warps wait for code that they run once. */
#pragma unroll 1
		for (int i = from + thread; i < min(vectors, from + chunk); i += threads) {
			const uint2 codes = encode_vector<DTYPE>(v[0], d);

			sum = __dp4a((int)(codes.x ^ flip), 0x01010101, sum);
			if (DTYPE != HZ_F32)
				sum = __dp4a((int)(codes.y ^ flip), 0x01010101, sum);
			/* The product reads them next: not with evict-first priority */
			if (DTYPE == HZ_F32)
				((uint32_t *)y)[i] = codes.x;
			else
				((uint2 *)y)[i] = codes;
#pragma unroll
			for (int j = 1; j < held; j++)
				v[j - 1] = v[j];
		}
	}
	for (int i = vectors * count + thread; i < p.y_row; i += threads) {
		y[i] = i < k ? (uint8_t)encode(d, load_any(DTYPE, x, i * p.x_k)) : 0;
		if (i < k)
			sum += (int8_t)(y[i] ^ flip);
	}
	if (p.sums)
		store_row_sum(p, row, sum + (flip && thread == 0 ? 128 * k : 0));
}

#define KERNEL(name, dtype, DTYPE, function, struct_name, ...) \
	HZ_KERNEL(name##_##dtype, struct_name, (__VA_ARGS__), function<DTYPE>(p))
#define KERNELS(name, function, struct_name, ...) \
	KERNEL(name, f32, HZ_F32, function, struct_name, __VA_ARGS__) \
	KERNEL(name, f16, HZ_F16, function, struct_name, __VA_ARGS__) \
	KERNEL(name, bf16, HZ_BF16, function, struct_name, __VA_ARGS__)
KERNELS(quantize_contiguous, quantize_contiguous, hzi_quantize_contiguous, HZI_QUANT_THREADS)
KERNELS(dequantize_contiguous, dequantize_contiguous, hzi_quantize_contiguous, HZI_QUANT_THREADS)
KERNELS(quantize_strided, quantize_strided, hzi_quantize_strided, HZI_QUANT_THREADS)
KERNELS(dequantize_strided, dequantize_strided, hzi_quantize_strided, HZI_QUANT_THREADS)
KERNELS(quantize_minmax_contiguous, minmax_contiguous, hzi_minmax_contiguous,
	HZI_QUANT_THREADS)
KERNELS(quantize_minmax_rows, minmax_rows, hzi_minmax_strided, HZI_QUANT_THREADS)
KERNELS(quantize_minmax_columns, minmax_columns, hzi_minmax_strided, HZI_QUANT_THREADS)
KERNELS(quantize_minmax_cluster, minmax_cluster, hzi_minmax_strided,
	2 * HZI_MINMAX_CLUSTER_THREADS, 1)
KERNELS(quantize_minmax_groups, minmax_groups, hzi_minmax_groups, HZI_QUANT_THREADS)
KERNELS(quantize_rows, quantize_rows, hzi_quantize_rows, HZI_QUANT_ROWS_THREADS, 7)

#define CONVERT(dtype, DTYPE) \
	KERNEL(quantize_widen, dtype, DTYPE, widen, hzi_quantize_convert, HZI_QUANT_THREADS) \
	KERNEL(quantize_narrow, dtype, DTYPE, narrow, hzi_quantize_convert, HZI_QUANT_THREADS)
CONVERT(f16, HZ_F16)
CONVERT(bf16, HZ_BF16)
