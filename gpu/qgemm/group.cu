/*
 * group.cu - linear layers with group-wise quantized weights: packing, rows of x, tiled products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/qgemm/group.cuh"
#include "lib/qgemm/qgemm.h"

/* ---- Packing --------------------------------------------------------------------------------- */

/* Four codes of 16 successive k from l on: of a lane with q, in the order of group.cuh */
HZ_DEVICE uint32_t four_codes(const hzi_group_pack &p, int64_t l, int q, int64_t j)
{
	return __byte_perm(hzi_group_four(&p.w, &p.l, l + q / 2 * 4, j),
			   hzi_group_four(&p.w, &p.l, l + q / 2 * 4 + 8, j),
			   q % 2 ? 0x7362 : 0x5140);
}

/* A scale as bf16, by its number among those from short_at on */
HZ_DEVICE uint16_t short_scale(const hzi_group_pack &p, int64_t i)
{
	const int groups = HZI_GROUP_UNIT / (int)p.l.group;	/* of a piece */
	const int64_t pieces = p.l.panel_bytes / HZI_GROUP_PIECE_BYTES(HZI_GROUP_U4);
	const int64_t piece = i / (2 * groups * 8), group = piece % pieces * groups + i / 2 % groups;
	const int64_t j = piece / pieces * HZI_GROUP_COLUMNS + i / (2 * groups) % 8 + i % 2 * 8;

	return group < p.w.groups && j < p.l.n ?
	       (uint16_t)(__float_as_uint(hzi_group_packed_scale(&p.w, group, j)) >> 16) : 0;
}

/* Each thread writes a word of codes, then a scale and a zero point. */
extern "C" __global__ __launch_bounds__(HZI_GROUP_THREADS) void
qgemm_group_pack(const __grid_constant__ hzi_group_pack p)
{
	const int64_t first = (int64_t)blockIdx.x * HZI_GROUP_THREADS + threadIdx.x;
	const int64_t stride = (int64_t)gridDim.x * HZI_GROUP_THREADS;
	const bool four_bit = hzi_group_is_4_bit(p.l.kind);
	const int64_t words = p.l.panel_bytes / 4;
	const int64_t scales = p.l.panels * p.l.groups * HZI_GROUP_COLUMNS;

	for (int64_t i = first; i < p.l.scale_at / 4; i += stride) {
		const int lane = (int)(i % words / 4 % 32), word = (int)(i % 4);
		const int64_t j = i / words * HZI_GROUP_COLUMNS + lane / 4 + word % 2 * 8;
		int64_t l = i % words / 128 * HZI_GROUP_STEP;

		if (four_bit) {
			l = 2 * l + word / 2 * HZI_GROUP_STEP;
			((uint32_t *)p.data)[i] = four_codes(p, l, lane % 4, j) |
						  four_codes(p, l + 16, lane % 4, j) << 4;
		} else {
			((uint32_t *)p.data)[i] = four_codes(p, l + word / 2 * 16, lane % 4, j);
		}
	}
	for (int64_t i = first; i < scales; i += stride) {
		const int64_t row = i / HZI_GROUP_COLUMNS, group = row % p.l.groups;
		const int64_t j = row / p.l.groups * HZI_GROUP_COLUMNS + i % 2 * 8 +
				  i % HZI_GROUP_COLUMNS / 2;
		const bool inside = group < p.w.groups && j < p.l.n;

		((float *)(p.data + p.l.scale_at))[i] =
			inside ? hzi_group_packed_scale(&p.w, group, j) : 0;
		if (p.l.zero_at)
			((int16_t *)(p.data + p.l.zero_at))[i] = (int16_t)(
				inside ? hzi_group_packed_zero(&p.w, p.l.zero, group, j) : 0);
	}
	for (int64_t i = first; p.l.short_at && i < (p.l.bytes - p.l.short_at) / 2; i += stride)
		((uint16_t *)(p.data + p.l.short_at))[i] = short_scale(p, i);
}

/* ---- Rows of x ------------------------------------------------------------------------------- */

/* The magnitude as bits, whose order is that of the magnitudes; 0 of NaN */
HZ_DEVICE uint32_t magnitude(float v)
{
	return v == v ? __float_as_uint(v) & 0x7fffffff : 0;
}

HZ_DEVICE void copy_row(const hzi_group_gemm &p, int64_t row, int64_t x)
{
	for (int64_t l = threadIdx.x; l < p.k_padded; l += HZI_GROUP_THREADS) {
		const int64_t from = x + l * p.x_k, to = row * p.k_padded + l;

		if (p.terms > 1) {
			float v = l < p.l.k ? ((const float *)p.x)[from] : 0;

			for (int i = 0; i < p.terms; i++)
				((uint16_t *)(p.copy + i * p.plane))[to] = group_take_term(v);
		} else {
			((uint16_t *)p.copy)[to] =
				l < p.l.k ? ((const uint16_t *)p.x)[from] : 0;
		}
	}
}

/* Codes and records of a row: a thread has four successive k at a time, gridDim.y blocks a row. */
HZ_DEVICE void code_row(const hzi_group_gemm &p, int64_t row, int64_t x)
{
	__shared__ uint32_t most;
	const int lane = threadIdx.x % 32, j = lane % 4;
	const bool floats = p.x_dtype != HZ_S8, inside = row < p.rows;
	const int64_t k = inside ? p.l.k : 0, units = p.k_padded >> p.unit_shift;
	hzi_group_record *const records =
		p.records + row / HZI_GROUP_X_ROWS * units * 4 + row % HZI_GROUP_X_ROWS / 2;
	float scale = 1;
	int32_t zero;

	if (floats && !p.by_32) {
		uint32_t m = 0;

		if (threadIdx.x == 0)
			most = 0;
		__syncthreads();
		for (int64_t l = threadIdx.x; l < k; l += HZI_GROUP_THREADS)
			m = max(m, magnitude(load_any(p.x_dtype, p.x, x + l * p.x_k)));
		atomicMax(&most, __reduce_max_sync(~0u, m));
		__syncthreads();
		hzi_quant_params(0, __uint_as_float(most), HZ_S8, HZ_QPARAMS_SYMMETRIC, &scale,
				 &zero);
		__syncthreads();
	} else if (!floats && !p.by_32 && p.x_given && inside) {
		scale = p.x_given[row];
	}
	for (int64_t l = 4 * (blockIdx.y * HZI_GROUP_THREADS + threadIdx.x); l < p.k_padded;
	     l += 4 * HZI_GROUP_THREADS * (int64_t)gridDim.y) {
		uint32_t codes = 0, low, high;
		int32_t sum;

		if (floats) {
			float v[4];
			uint32_t m = 0;

#pragma unroll
			for (int i = 0; i < 4; i++) {
				v[i] = l + i < k ? load_any(p.x_dtype, p.x, x + (l + i) * p.x_k)
						 : 0;
				m = max(m, magnitude(v[i]));
			}
			if (p.by_32) {
#pragma unroll
				for (int i = 1; i < 8; i *= 2)
					m = max(m, __shfl_xor_sync(~0u, m, i));
				hzi_quant_params(0, __uint_as_float(m), HZ_S8, HZ_QPARAMS_SYMMETRIC,
						 &scale, &zero);
			}
#pragma unroll
			for (int i = 0; i < 4; i++)
				codes |= (hzi_encode_integer(hzi_divide_f32(v[i], scale), -128, 127,
							     -1) & 255) << 8 * i;
		} else {
#pragma unroll
			for (int i = 0; i < 4; i++) {
				if (l + i < k)
					codes |= (uint32_t)((const uint8_t *)
							    p.x)[x + (l + i) * p.x_k] << 8 * i;
			}
			if (p.by_32 && l < k)
				scale = p.x_given[row * p.l.steps + l / HZI_GROUP_STEP];
		}
		sum = __dp4a((int)codes, 0x01010101, 0);
		for (int i = 1; i < p.unit / 4; i *= 2)
			sum += __shfl_xor_sync(~0u, sum, i);
		if ((l & (p.unit - 1)) == 0) {
			records[(l >> p.unit_shift) * 4].scale[row % 2] = scale;
			records[(l >> p.unit_shift) * 4].sum[row % 2] = sum;
		}
		low = __shfl_sync(~0u, codes, (lane & ~3) + j / 2);
		high = __shfl_sync(~0u, codes, (lane & ~3) + 2 + j / 2);
		if (inside)
			*(uint32_t *)(p.copy + row * p.k_padded + l) =
				__byte_perm(low, high, j % 2 ? 0x7362 : 0x5140);
	}
}

extern "C" __global__ __launch_bounds__(HZI_GROUP_THREADS) void
qgemm_group_rows(const __grid_constant__ hzi_group_gemm p)
{
	const int64_t rows = p.integer ? (p.rows + HZI_GROUP_X_ROWS - 1) / HZI_GROUP_X_ROWS *
					 HZI_GROUP_X_ROWS : p.rows;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		const int64_t x = group_offset(p, p.x_stride, min(row, p.rows - 1));

		if (p.integer)
			code_row(p, row, x);
		else
			copy_row(p, row, x);
	}
}

/* ---- Products of 64 rows of x by a panel for each warp --------------------------------------- */

/*
 * sum[t][i] += unit `unit` of k of a panel by rows first + 8 t .. of x: i is of column g + i / 2 *
 * 8 and row 2 q + i % 2. DTYPE: HZ_S8, HZ_F16 or HZ_BF16. Rows that x does not have are the last
 * one.
 */
template <int DTYPE, int KIND, int TILES>
HZ_DEVICE void add_unit(const hzi_group_gemm &p, int64_t panel, int64_t first, int64_t unit,
			float (*sum)[4])
{
	constexpr bool integer = DTYPE == HZ_S8;
	constexpr int words = group_step_words<KIND>, size = integer ? 1 : 2;
	const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
	const int64_t l = unit * p.unit, end = min(l + p.unit, p.l.steps * HZI_GROUP_STEP);
	const int64_t at = (panel * p.l.groups + (l >> p.group_shift)) * 8 + g;
	const float2 scales = ((const float2 *)(p.packed + p.l.scale_at))[at];
	const float scale[2] = {scales.x, scales.y};
	const uint32_t zeros = p.l.zero_at ? ((const uint32_t *)(p.packed + p.l.zero_at))[at]
					   : (uint32_t)p.l.zero * 0x10001;
	const group_floats<DTYPE, KIND> floats(p.l.zero);
	const uint8_t *const codes = p.packed + panel * p.l.panel_bytes;
	const int64_t record_step = (p.k_padded >> p.unit_shift) * 4;
	const hzi_group_record *const records =
		p.records + first / HZI_GROUP_X_ROWS * record_step + unit * 4 + q;
	const int64_t row_blocks = (p.rows - first + 7) / 8;
	float facc[TILES][4] = {};
	int32_t acc[TILES][4];

#pragma unroll
	for (int t = 0; t < TILES && integer; t++) {
		const int32_t *const s = records[min((int64_t)t, row_blocks - 1) * record_step].sum;

#pragma unroll
		for (int i = 0; i < 4; i++)
			acc[t][i] = group_first_sum<KIND>() - s[i % 2] * group_zero(zeros, i / 2);
	}
#pragma unroll 1
	for (int64_t s = l / HZI_GROUP_STEP; s * HZI_GROUP_STEP < end; s++) {
		const int64_t x = s * HZI_GROUP_STEP;
		uint32_t w[words], u[4], v[2][4];

		if constexpr (words == 2) {
			const uint2 two = ((const uint2 *)codes)[(s / 2 * 32 + lane) * 2 + s % 2];

			w[0] = two.x;
			w[1] = two.y;
		} else {
			const uint4 four = ((const uint4 *)codes)[s * 32 + lane];

			w[0] = four.x;
			w[1] = four.y;
			w[2] = four.z;
			w[3] = four.w;
		}
		if constexpr (integer) {
			group_bytes<KIND>(u, w);
		} else {
#pragma unroll
			for (int i = 0; i < 2; i++) {
				floats.decode(v[i], w, i);
				for (int j = 0; j < 4 && p.l.zero_at; j++)
					v[i][j] = group_add<DTYPE>(v[i][j], group_pair<DTYPE>(
						(float)(p.l.zero - group_zero(zeros, i))));
			}
		}
#pragma unroll
		for (int h = 0; h < 2; h++) {
			/* A unit of 16 is half a step. */
			if (p.unit == 16 && h != unit % 2)
				continue;
			for (int i = 0; i < p.terms; i++) {
				const uint8_t *const from =
					p.copy + i * p.plane + size * (x + 16 * h) + 4 * q;

#pragma unroll
				for (int t = 0; t < TILES; t++) {
					const int64_t row = min(first + 8 * t + g, p.rows - 1);
					const uint8_t *const b = from + row * p.k_padded * size;

					if constexpr (integer)
						mma_m16n8k16<false, true>(
							acc[t], u[2 * h], u[2 * h + 1],
							*(const uint32_t *)b);
					else
						mma_m16n8k16<DTYPE>(
							facc[t], v[0][2 * h], v[1][2 * h],
							v[0][2 * h + 1], v[1][2 * h + 1],
							*(const uint32_t *)b,
							*(const uint32_t *)(b + 16));
				}
			}
		}
	}
#pragma unroll
	for (int t = 0; t < TILES; t++) {
		hzi_group_record r = {};

		if (integer)
			r = records[min((int64_t)t, row_blocks - 1) * record_step];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float v = facc[t][i], by = scale[i / 2];

			if constexpr (integer) {
				v = group_sum<KIND>(acc[t][i]);
				by = __fmul_rn(r.scale[i % 2], by);
			}
			sum[t][i] = __fadd_rn(sum[t][i], __fmul_rn(v, by));
		}
	}
}

/* Sums of a warp; rows begin in different banks. */
typedef float tile_sums[HZI_GROUP_TILED_ROWS][HZI_GROUP_COLUMNS + 1];

template <int DTYPE, int KIND>
HZ_DEVICE void tiled(const hzi_group_gemm &p, tile_sums *sums)
{
	constexpr int tiles = HZI_GROUP_TILED_ROWS / 8;
	const int64_t panel = (int64_t)blockIdx.x * HZI_GROUP_WARPS + threadIdx.x / 32;
	const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
	const int64_t k = p.unit == 16 ? p.l.k : p.l.steps * HZI_GROUP_STEP;

	tile_sums &mine = sums[threadIdx.x / 32];

	if (panel >= p.l.panels)
		return;
	for (int64_t first = (int64_t)blockIdx.y * HZI_GROUP_TILED_ROWS; first < p.rows;
	     first += (int64_t)gridDim.y * HZI_GROUP_TILED_ROWS) {
		float y[tiles][4] = {};

		for (int64_t chunk = 0; chunk < k; chunk += HZI_GROUP_CHUNK) {
			float sum[tiles][4] = {};

#pragma unroll 1
			for (int64_t l = chunk; l < min(chunk + HZI_GROUP_CHUNK, k); l += p.unit)
				add_unit<DTYPE, KIND, tiles>(p, panel, first, l >> p.unit_shift,
							     sum);
#pragma unroll
			for (int i = 0; i < 4 * tiles; i++)
				y[i / 4][i % 4] = __fadd_rn(y[i / 4][i % 4], sum[i / 4][i % 4]);
		}
#pragma unroll
		for (int i = 0; i < 4 * tiles; i++)
			mine[i / 4 * 8 + 2 * q + i % 2][g + i % 4 / 2 * 8] = y[i / 4][i % 4];
		__syncwarp();
#pragma unroll 1
		for (int i = threadIdx.x % 32; i < HZI_GROUP_TILED_ROWS * HZI_GROUP_COLUMNS;
		     i += 32)
			group_put(p, first + i / HZI_GROUP_COLUMNS,
				  panel * HZI_GROUP_COLUMNS + i % HZI_GROUP_COLUMNS,
				  mine[i / HZI_GROUP_COLUMNS][i % HZI_GROUP_COLUMNS]);
		__syncwarp();
	}
}

#define TILED_KERNEL(name, dtype) \
	extern "C" __global__ __launch_bounds__(HZI_GROUP_THREADS) void \
	name(const __grid_constant__ hzi_group_gemm p) \
	{ \
		__shared__ tile_sums sums[HZI_GROUP_WARPS]; \
\
		if (p.l.kind == HZI_GROUP_U4) \
			tiled<dtype, HZI_GROUP_U4>(p, sums); \
		else if (p.l.kind == HZI_GROUP_E2M1) \
			tiled<dtype, HZI_GROUP_E2M1>(p, sums); \
		else if (p.l.kind == HZI_GROUP_U8) \
			tiled<dtype, HZI_GROUP_U8>(p, sums); \
		else if constexpr (dtype != HZ_S8) \
			tiled<dtype, HZI_GROUP_E4M3>(p, sums); \
	}

TILED_KERNEL(qgemm_group_tiled_s8, HZ_S8)
TILED_KERNEL(qgemm_group_tiled_f16, HZ_F16)
TILED_KERNEL(qgemm_group_tiled_bf16, HZ_BF16)
