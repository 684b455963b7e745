/*
 * group.cu - linear layers with group-wise quantized weights: packing, rows of x, products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Products are those of mma.sync with 16 columns of W as rows of the first operand and 8 rows of x
 * as columns of the second. In both, lane l has 8 successive values, 8 (l % 4) .., of a step of 32
 * of k. Both permute k alike, so operands come from memory as they are stored.
 */
#include "gpu/device/dtype.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/qgemm/group.h"
#include "lib/qgemm/qgemm.h"

/* ---- Packing --------------------------------------------------------------------------------- */

/* Each thread writes a word of codes, then a scale and a zero point. */
extern "C" __global__ __launch_bounds__(HZI_GROUP_THREADS) void
qgemm_group_pack(const __grid_constant__ hzi_group_pack p)
{
	const int64_t first = (int64_t)blockIdx.x * HZI_GROUP_THREADS + threadIdx.x;
	const int64_t stride = (int64_t)gridDim.x * HZI_GROUP_THREADS;
	const int words = hzi_group_is_4_bit(p.l.kind) ? 4 : 8;
	const int64_t scales = p.l.panels * p.l.groups * HZI_GROUP_COLUMNS;

	for (int64_t i = first; i < p.l.scale_at / 4; i += stride) {
		const int64_t row = i / HZI_GROUP_COLUMNS, step = row / words;

		((uint32_t *)p.data)[i] =
			hzi_group_word(&p.w, &p.l, step % p.l.steps,
				       step / p.l.steps * HZI_GROUP_COLUMNS + i % HZI_GROUP_COLUMNS,
				       (int)(row % words));
	}
	for (int64_t i = first; i < scales; i += stride) {
		const int64_t row = i / HZI_GROUP_COLUMNS, group = row % p.l.groups;
		const int64_t j = row / p.l.groups * HZI_GROUP_COLUMNS + i % HZI_GROUP_COLUMNS;
		const bool inside = group < p.w.groups && j < p.l.n;

		((float *)(p.data + p.l.scale_at))[i] =
			inside ? hzi_group_packed_scale(&p.w, group, j) : 0;
		if (p.l.zero_at)
			((int32_t *)(p.data + p.l.zero_at))[i] =
				inside ? hzi_group_packed_zero(&p.w, p.l.zero, group, j) : 0;
	}
}

/* ---- Rows of x ------------------------------------------------------------------------------- */

HZ_DEVICE int64_t offset_of(const hzi_group_gemm &p, const int64_t *stride, int64_t row)
{
	int64_t offset = 0;

	for (int d = p.ndim - 1; d >= 0; d--) {
		offset += row % p.shape[d] * stride[d];
		row /= p.shape[d];
	}
	return offset;
}

HZ_DEVICE float load_value(const void *x, int dtype, int64_t i)
{
	if (dtype == HZ_F32)
		return ((const float *)x)[i];
	if (dtype == HZ_F16)
		return f16_low(((const uint16_t *)x)[i]);
	return bf16_low(((const uint16_t *)x)[i]);
}

/* The magnitude as bits, whose order is that of the magnitudes; 0 of NaN */
HZ_DEVICE uint32_t magnitude(float v)
{
	return v == v ? __float_as_uint(v) & 0x7fffffff : 0;
}

/* The upper 16 bits of v, which are a bf16 of smaller or equal magnitude, or NaN; v the rest */
HZ_DEVICE uint16_t take_term(float &v)
{
	const uint32_t bits = __float_as_uint(v) & 0xffff0000;

	if (v != v || (bits & 0x7f800000) == 0x7f800000) {
		const bool nan = v != v;

		v = 0;
		return nan ? 0x7fff : (uint16_t)(bits >> 16);
	}
	v = __fsub_rn(v, __uint_as_float(bits));
	return (uint16_t)(bits >> 16);
}

HZ_DEVICE void copy_row(const hzi_group_gemm &p, int64_t row, int64_t x)
{
	const int64_t k = p.l.steps * HZI_GROUP_STEP;

	for (int64_t l = threadIdx.x; l < k; l += HZI_GROUP_THREADS) {
		const int64_t from = x + l * p.x_k;

		if (p.terms > 1) {
			float v = l < p.l.k ? ((const float *)p.x)[from] : 0;

			for (int i = 0; i < p.terms; i++)
				((uint16_t *)(p.copy + i * p.plane))[row * k + l] = take_term(v);
		} else {
			((uint16_t *)p.copy)[row * k + l] =
				l < p.l.k ? ((const uint16_t *)p.x)[from] : 0;
		}
	}
}

/* Codes of a row, with scales and sums of units; a warp has 128 of k at a time. */
HZ_DEVICE void code_row(const hzi_group_gemm &p, int64_t row, int64_t x)
{
	__shared__ uint32_t most;
	const int64_t k = p.l.steps * HZI_GROUP_STEP;
	const int lane = threadIdx.x % 32;
	const int32_t times = p.l.zero_at ? 1 : p.l.zero;
	const bool floats = p.x_dtype != HZ_S8;
	float scale = 1;
	int32_t zero;

	if (floats && !p.by_32) {
		uint32_t m = 0;

		if (threadIdx.x == 0)
			most = 0;
		__syncthreads();
		for (int64_t l = threadIdx.x; l < p.l.k; l += HZI_GROUP_THREADS)
			m = max(m, magnitude(load_value(p.x, p.x_dtype, x + l * p.x_k)));
		atomicMax(&most, m);
		__syncthreads();
		hzi_quant_params(0, __uint_as_float(most), HZ_S8, HZ_QPARAMS_SYMMETRIC, &scale,
				 &zero);
		__syncthreads();
	}
	for (int64_t begin = threadIdx.x / 32 * HZI_GROUP_UNIT; begin < k;
	     begin += HZI_GROUP_WARPS * HZI_GROUP_UNIT) {
		int32_t sum = 0;

		for (int64_t first = begin; first < k && first < begin + HZI_GROUP_UNIT;
		     first += HZI_GROUP_STEP) {
			const int64_t l = first + lane, end = first + HZI_GROUP_STEP;
			int32_t code = 0;

			if (floats) {
				const float v = l < p.l.k ? load_value(p.x, p.x_dtype,
								       x + l * p.x_k) : 0;

				if (p.by_32)
					hzi_quant_params(0, __uint_as_float(__reduce_max_sync(
							 ~0u, magnitude(v))), HZ_S8,
							 HZ_QPARAMS_SYMMETRIC, &scale, &zero);
				code = hzi_encode_integer(hzi_divide_f32(v, scale), -128, 127, -1);
			} else if (l < p.l.k) {
				code = ((const int8_t *)p.x)[x + l * p.x_k];
			}
			p.copy[row * k + l] = (uint8_t)code;
			if (lane == 0 && (p.by_32 || first == 0)) {
				const int64_t at = row * p.x_scales + first / HZI_GROUP_STEP;

				p.x_scale[at] = floats ? scale : p.x_given ? p.x_given[at] : 1;
			}
			if (p.unit == 16) {
				for (int i = 8; i; i /= 2)
					code += __shfl_xor_sync(~0u, code, i);
				if (lane % 16 == 0)
					p.x_sum[row * p.units + l / 16] = code * times;
				continue;
			}
			sum += __reduce_add_sync(~0u, code);
			if (lane == 0 && (end % p.unit == 0 || end == k))
				p.x_sum[row * p.units + first / p.unit] = sum * times;
			if (end % p.unit == 0)
				sum = 0;
		}
	}
}

extern "C" __global__ __launch_bounds__(HZI_GROUP_THREADS) void
qgemm_group_rows(const __grid_constant__ hzi_group_gemm p)
{
	for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
		const int64_t x = offset_of(p, p.x_stride, row);

		if (p.integer)
			code_row(p, row, x);
		else
			copy_row(p, row, x);
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

template <int KIND>
constexpr bool is_4_bit = KIND == HZI_GROUP_U4 || KIND == HZI_GROUP_E2M1;

/* Codes u of columns g and g + 8 of a panel: u[0] and u[1] for four of k, u[2] and u[3] the next */
template <int KIND>
HZ_DEVICE void load_codes(uint32_t *u, const uint8_t *step, int g, int q)
{
	if constexpr (is_4_bit<KIND>) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t v = *(const uint32_t *)(step + 64 * q + 4 * g + 32 * i);

			u[i] = v & 0x0f0f0f0f;
			u[2 + i] = v >> 4 & 0x0f0f0f0f;
		}
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++)
			u[i] = *(const uint32_t *)(step + 64 * (2 * q + i / 2) + 4 * g + 32 * (i % 2));
	}
	if constexpr (KIND == HZI_GROUP_E2M1) {
		/* 2 w + 12 of each byte: a magnitude from a table of 8, whose sign bit is 8 */
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint32_t m = u[i] & 0x07070707, t = m | m >> 4;
			const uint32_t a = __byte_perm(0x03020100, 0x0c080604,
						       __byte_perm(t, 0, 0x4420));
			const uint32_t minus = (u[i] >> 3 & 0x01010101) * 255;

			u[i] = 0x0c0c0c0c + (a & ~minus) - (a & minus);
		}
	}
}

/* Two pairs of 16-bit floats u - zero, or of E4M3, from four codes */
template <int DTYPE, int KIND>
HZ_DEVICE void to_pairs(uint32_t u, float zero, uint32_t &low, uint32_t &high)
{
	float v[4];

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint32_t byte = u >> 8 * i & 255;

		v[i] = KIND == HZI_GROUP_E4M3 ? hzi_decode_float(byte, HZ_E4M3)
					      : __uint_as_float(0x4b000000 | byte) - (0x1p23f + zero);
	}
	low = DTYPE == HZ_F16 ? to_f16x2(v[0], v[1]) : to_bf16x2(v[0], v[1]);
	high = DTYPE == HZ_F16 ? to_f16x2(v[2], v[3]) : to_bf16x2(v[2], v[3]);
}

/*
 * sum[t][i] += chunk number `chunk` of a panel by rows first + 8 t .. of x: i is of column g + i / 2
 * * 8 and row 2 q + i % 2. DTYPE: HZ_S8, HZ_F16 or HZ_BF16.
 */
template <int DTYPE, int KIND, int TILES>
HZ_DEVICE void add_chunk(const hzi_group_gemm &p, int64_t panel, int64_t first, int64_t chunk,
			 float (*sum)[4])
{
	constexpr bool integer = DTYPE == HZ_S8;
	constexpr int step_bytes = is_4_bit<KIND> ? 256 : 512;
	const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
	const int64_t k = p.l.steps * HZI_GROUP_STEP;
	const uint8_t *codes = p.packed + panel * p.l.panel_bytes;
	const bool halves = p.unit == 16;
	const int64_t last = min((chunk + 1) * HZI_GROUP_CHUNK, halves ? p.l.k : k);

#pragma unroll 1
	for (int64_t l = chunk * HZI_GROUP_CHUNK; l < last; l += p.unit) {
		const int64_t at = (panel * p.l.groups + l / p.l.group) * HZI_GROUP_COLUMNS;
		const int64_t end = min(l + p.unit, last);
		/* With units of 16, lanes with the other half of a step contribute 0. */
		const bool out = halves && q / 2 != l / 16 % 2;
		const float *scale = (const float *)(p.packed + p.l.scale_at) + at;
		const int32_t *zeros = (const int32_t *)(p.packed + p.l.zero_at) + at;
		int32_t zero[2] = {p.l.zero, p.l.zero}, acc[TILES][4] = {};
		float facc[TILES][4] = {};

		if (p.l.zero_at) {
			zero[0] = zeros[g];
			zero[1] = zeros[g + 8];
		}
#pragma unroll 2
		for (int64_t s = l / HZI_GROUP_STEP; s * HZI_GROUP_STEP < end; s++) {
			uint32_t u[4], w[8];

			load_codes<KIND>(u, codes + s * step_bytes, g, q);
			if constexpr (!integer) {
				/* Of each product: columns g and g + 8, then the next two of k */
#pragma unroll
				for (int i = 0; i < 2; i++) {
					const float z = (float)zero[i];

					to_pairs<DTYPE, KIND>(u[i], z, w[i], w[2 + i]);
					to_pairs<DTYPE, KIND>(u[2 + i], z, w[4 + i], w[6 + i]);
				}
			}
#pragma unroll
			for (int t = 0; t < TILES; t++) {
				const int64_t row = first + 8 * t + g;
				const int64_t x = row * k + s * HZI_GROUP_STEP + 8 * q;
				const bool inside = row < p.rows && !out;

				if constexpr (integer) {
					uint2 v = {0, 0};

					if (inside)
						v = *(const uint2 *)(p.copy + x);
					mma_m16n8k32<false, true>(acc[t], u, v.x, v.y);
				} else {
					for (int i = 0; i < p.terms; i++) {
						uint4 v = {0, 0, 0, 0};

						if (inside)
							v = *(const uint4 *)(p.copy +
									     i * p.plane + 2 * x);
						mma_m16n8k16<DTYPE>(facc[t], w, v.x, v.y);
						mma_m16n8k16<DTYPE>(facc[t], w + 4, v.z, v.w);
					}
				}
			}
		}
#pragma unroll
		for (int t = 0; t < TILES; t++) {
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const int64_t row = min(first + 8 * t + 2 * q + i % 2, p.rows - 1);
				float by = scale[g + i / 2 * 8], v = facc[t][i];

				if constexpr (integer) {
					const int32_t of_x = p.x_sum[row * p.units + l / p.unit];

					v = __int2float_rn(acc[t][i] -
							   (p.l.zero_at ? of_x * zero[i / 2] : of_x));
					by = __fmul_rn(p.x_scale[row * p.x_scales +
								 (p.by_32 ? l / HZI_GROUP_STEP : 0)],
						       by);
				}
				if (KIND == HZI_GROUP_E2M1)
					v *= 0.5f;
				sum[t][i] = __fadd_rn(sum[t][i], __fmul_rn(v, by));
			}
		}
	}
}

HZ_DEVICE void put(const hzi_group_gemm &p, int64_t row, int64_t j, float v)
{
	int64_t to;

	if (row >= p.rows || j >= p.l.n)
		return;
	to = offset_of(p, p.y_stride, row) + j * p.y_n;
	if (p.bias)
		v = __fadd_rn(v, p.bias[j]);
	v = v < p.low ? p.low : v > p.high ? p.high : v;
	if (p.y_dtype == HZ_F32)
		((float *)p.y)[to] = v;
	else
		((uint16_t *)p.y)[to] =
			(uint16_t)(p.y_dtype == HZ_F16 ? to_f16x2(v, 0) : to_bf16x2(v, 0));
}

/* 8 rows of x by a panel: the warps have different chunks of k, whose sums are added in order. */
template <int DTYPE, int KIND>
HZ_DEVICE void skinny(const hzi_group_gemm &p)
{
	__shared__ float part[HZI_GROUP_WARPS][128];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int64_t chunks = (p.l.k + HZI_GROUP_CHUNK - 1) / HZI_GROUP_CHUNK, panel = blockIdx.x;

	for (int64_t first = (int64_t)blockIdx.y * HZI_GROUP_SKINNY_ROWS; first < p.rows;
	     first += (int64_t)gridDim.y * HZI_GROUP_SKINNY_ROWS) {
		float y = 0;

		for (int64_t chunk = 0; chunk < chunks; chunk += HZI_GROUP_WARPS) {
			float sum[1][4] = {};

			if (chunk + warp < chunks)
				add_chunk<DTYPE, KIND, 1>(p, panel, first, chunk + warp, sum);
#pragma unroll
			for (int i = 0; i < 4; i++)
				part[warp][32 * i + lane] = sum[0][i];
			__syncthreads();
			for (int w = 0; threadIdx.x < 128 && w < HZI_GROUP_WARPS && chunk + w < chunks;
			     w++)
				y = __fadd_rn(y, part[w][threadIdx.x]);
			__syncthreads();
		}
		/* The warp is now the number of the accumulator. */
		if (threadIdx.x < 128)
			put(p, first + 2 * (lane % 4) + warp % 2,
			    panel * HZI_GROUP_COLUMNS + lane / 4 + warp / 2 * 8, y);
	}
}

/* 64 rows of x by a panel for each warp */
template <int DTYPE, int KIND>
HZ_DEVICE void tiled(const hzi_group_gemm &p)
{
	constexpr int tiles = HZI_GROUP_TILED_ROWS / 8;
	const int64_t panel = (int64_t)blockIdx.x * HZI_GROUP_WARPS + threadIdx.x / 32;
	const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;

	if (panel >= p.l.panels)
		return;
	for (int64_t first = (int64_t)blockIdx.y * HZI_GROUP_TILED_ROWS; first < p.rows;
	     first += (int64_t)gridDim.y * HZI_GROUP_TILED_ROWS) {
		float y[tiles][4] = {};

		for (int64_t chunk = 0; chunk * HZI_GROUP_CHUNK < p.l.k; chunk++) {
			float sum[tiles][4] = {};

			add_chunk<DTYPE, KIND, tiles>(p, panel, first, chunk, sum);
#pragma unroll
			for (int i = 0; i < 4 * tiles; i++)
				y[i / 4][i % 4] = __fadd_rn(y[i / 4][i % 4], sum[i / 4][i % 4]);
		}
#pragma unroll
		for (int i = 0; i < 4 * tiles; i++)
			put(p, first + i / 4 * 8 + 2 * q + i % 2,
			    panel * HZI_GROUP_COLUMNS + g + i % 4 / 2 * 8, y[i / 4][i % 4]);
	}
}

#define GROUP_KERNEL(name, function, dtype) \
	extern "C" __global__ __launch_bounds__(HZI_GROUP_THREADS) void \
	name(const __grid_constant__ hzi_group_gemm p) \
	{ \
		if (p.l.kind == HZI_GROUP_U4) \
			function<dtype, HZI_GROUP_U4>(p); \
		else if (p.l.kind == HZI_GROUP_E2M1) \
			function<dtype, HZI_GROUP_E2M1>(p); \
		else if (p.l.kind == HZI_GROUP_U8) \
			function<dtype, HZI_GROUP_U8>(p); \
		else if constexpr (dtype != HZ_S8) \
			function<dtype, HZI_GROUP_E4M3>(p); \
	}

GROUP_KERNEL(qgemm_group_skinny_s8, skinny, HZ_S8)
GROUP_KERNEL(qgemm_group_skinny_f16, skinny, HZ_F16)
GROUP_KERNEL(qgemm_group_skinny_bf16, skinny, HZ_BF16)
GROUP_KERNEL(qgemm_group_tiled_s8, tiled, HZ_S8)
GROUP_KERNEL(qgemm_group_tiled_f16, tiled, HZ_F16)
GROUP_KERNEL(qgemm_group_tiled_bf16, tiled, HZ_BF16)
