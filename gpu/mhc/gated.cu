/*
 * gated.cu - streams over their roots, and gated branch inputs
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/mhc/gated_tile.cuh"
#include "gpu/mhc/gated.h"

#define THREADS HZI_MHC_GATED_THREADS

/* ---- Streams over their roots ---------------------------------------------------------------- */

/* A block has a stream of a token. `to` may be x, of f32 and the same strides. */
extern "C" __global__ void __launch_bounds__(THREADS)
	mhc_divide(const __grid_constant__ hzi_mhc_divide_args p)
{
	__shared__ float memory[32];
	const int64_t t = blockIdx.x / p.s.n, at = blockIdx.x % p.s.n * p.order.stream;
	const int i = (int)(blockIdx.x % p.s.n);
	const float channels = (float)p.s.channels;
	float *const to = p.to + t * p.s.n * p.s.channels + at, squares = 0, rho, slope;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t c = threadIdx.x; c < p.s.channels; c += THREADS) {
		const float v = load_value(p.s.dtype, p.x.data, offset(p.x, t, i, c));

		squares = fmaf(v, v, squares);
	}
	squares = sum_block(squares, memory) / channels;
	if (hzi_mhc_leaves_f32(squares, hzi_mhc_least_square(&p.rule))) {
		const float scale = square_scale(squares);

		squares = 0;
		for (int64_t c = threadIdx.x; c < p.s.channels; c += THREADS) {
			const float v = load_value(p.s.dtype, p.x.data, offset(p.x, t, i, c)) *
					scale;

			squares = fmaf(v, v, squares);
		}
		squares = -sqrtf(sum_block(squares, memory) / channels) / scale;
	}
	rho = roots_of(p.rule, squares, slope);
	for (int64_t c = threadIdx.x; c < p.s.channels; c += THREADS) {
		const float v = load_value(p.s.dtype, p.x.data, offset(p.x, t, i, c)) * rho;

		to[c * p.order.channel] = p.gain ? v * p.gain[at + c * p.order.channel] : v;
	}
	if (p.roots && threadIdx.x == 0) {
		p.roots[blockIdx.x * 2] = rho;
		p.roots[blockIdx.x * 2 + 1] = slope;
	}
}

/* A block has 32 columns, 8 tokens at a time. */
extern "C" __global__ void __launch_bounds__(256)
	mhc_dgain(const __grid_constant__ hzi_mhc_divide_bwd_args p)
{
	__shared__ float sums[8][HZI_MHC_GATED_COLUMNS];
	const int column = threadIdx.x % HZI_MHC_GATED_COLUMNS;
	const int part = threadIdx.x / HZI_MHC_GATED_COLUMNS;
	const int64_t columns = p.s.n * p.s.channels;
	const int64_t j = (int64_t)blockIdx.x * HZI_MHC_GATED_COLUMNS + column;
	float sum = 0;

	pdl_launch_dependents();
	pdl_wait();
	if (j < columns) {
#pragma unroll 4
		for (int64_t t = part; t < p.s.tokens; t += 8)
			sum = fmaf(p.d[t * columns + j], p.x[t * columns + j], sum);
	}
	sums[part][column] = sum;
	__syncthreads();
	if (part != 0 || j >= columns)
		return;
	for (int r = 1; r < 8; r++)
		sum += sums[r][column];
	p.dgain[j] = p.accumulate ? p.dgain[j] + sum : sum;
}

/* A block has a stream of a token. dx may be d, of f32 and the same strides, if gain is NULL. */
extern "C" __global__ void __launch_bounds__(THREADS)
	mhc_divide_bwd(const __grid_constant__ hzi_mhc_divide_bwd_args p)
{
	__shared__ float memory[32];
	const int64_t t = blockIdx.x / p.s.n, at = blockIdx.x % p.s.n * p.order.stream;
	const int64_t token = t * p.s.n * p.s.channels;
	const int i = (int)(blockIdx.x % p.s.n);
	const float *const x = p.x + token + at, *const d = p.d + token + at;
	const float *const gain = p.gain ? p.gain + at : NULL;
	float dot = 0, rho;

	pdl_launch_dependents();
	pdl_wait();
	rho = p.roots[blockIdx.x * 2];
	for (int64_t c = threadIdx.x; c < p.s.channels; c += THREADS) {
		const int64_t k = c * p.order.channel;

		dot = fmaf(gain ? d[k] * gain[k] : d[k], x[k], dot);
	}
	dot = sum_block(dot, memory) / (float)p.s.channels * p.roots[blockIdx.x * 2 + 1];
	for (int64_t c = threadIdx.x; c < p.s.channels; c += THREADS) {
		const int64_t k = c * p.order.channel, dst = offset(p.dx, t, i, c);
		float sum = rho * (gain ? d[k] * gain[k] : d[k]) - dot * x[k];

		if (p.dy.data)
			sum += load_value(p.s.dtype, p.dy.data, offset(p.dy, t, i, c));
		if (p.accumulate)
			sum += load_value(p.s.dtype, p.dx.data, dst);
		store_any(p.s.dtype, p.dx.data, dst, sum);
	}
}

/* ---- Products -------------------------------------------------------------------------------- */

/*
 * A block of 8 warps makes 128 x 128 elements of c, each warp 32 x 64, from 32 steps of k at a time
 * in shared memory: as two terms of bf16 each, of which the product of both second terms is left
 * out. An operand keeps the order it has in memory: [rows][steps], or transposed [steps][rows].
 */
#define STEPS 32
#define PITCH 20			/* words of a row of STEPS values, without bank conflicts */
#define PITCH_T (HZI_MHC_PRODUCT_TILE / 2 + 4)	/* of a step of HZI_MHC_PRODUCT_TILE rows */
#define PLANE (HZI_MHC_PRODUCT_TILE * PITCH)	/* of one term */
#define CHUNKS (HZI_MHC_PRODUCT_TILE * STEPS / 8 / HZI_MHC_PRODUCT_THREADS)

struct operand {
	const void *data;
	int64_t rows, steps, row, step;	/* row, step: distances of elements, one of them 1 */
	int dtype;
	bool aligned;			/* what is contiguous begins at addresses of 16 bytes */
};

/* Chunk j of a thread: where it is in shared memory, at (line, column) of the tile */
template <bool T>
HZ_DEVICE void place_of(int j, int &line, int &column)
{
	constexpr int VECTORS = (T ? HZI_MHC_PRODUCT_TILE : STEPS) / 8;
	const int e = threadIdx.x + j * HZI_MHC_PRODUCT_THREADS;

	line = e / VECTORS;
	column = e % VECTORS * 8;
}

/* Loads a thread's part of a tile; 0 beyond the matrix. */
template <bool T, bool WIDE>
HZ_DEVICE void load_part(raw8 *r, const operand &o, int64_t first, int64_t k, int64_t end)
{
	const int64_t line0 = T ? k : first, column0 = T ? first : k;
	const int64_t lines = T ? end : o.rows, columns = T ? o.rows : end;

#pragma unroll
	for (int j = 0; j < CHUNKS; j++) {
		int l, c;

		place_of<T>(j, l, c);
		const int64_t line = line0 + l, column = column0 + c, left = columns - column;
		const char *const src = (const char *)o.data +
					(line * (T ? o.step : o.row) + column) * (WIDE ? 4 : 2);

		if (line >= lines || left <= 0)
			clear_raw(r[j]);
		else if (o.aligned && left >= 8)
			load_raw<WIDE>(r[j], src);
		else
			load_raw_part<WIDE>(r[j], src, left);
	}
}

template <bool T, int DT>
HZ_DEVICE void store_part(uint32_t *to, const raw8 *r)
{
#pragma unroll
	for (int j = 0; j < CHUNKS; j++) {
		float v[8];
		int l, c;

		place_of<T>(j, l, c);
		widen_raw<DT>(v, r[j]);
		store_terms(to + l * (T ? PITCH_T : PITCH) + c / 2, PLANE, v);
	}
}

/* Fragments of 16 rows and steps of a, or of two tiles of 8 rows of b */
template <bool T>
HZ_DEVICE void load_a(uint32_t *r, const uint32_t *tile, int row, int k)
{
	const int lane = threadIdx.x % 32;

	if constexpr (T)
		ldmatrix_x4_trans(r, shared_address(tile + (k + lane % 8 + lane / 16 * 8) * PITCH_T +
						    (row + lane / 8 % 2 * 8) / 2));
	else
		ldmatrix_x4(r, shared_address(tile + (row + lane % 16) * PITCH + k / 2 +
					      lane / 16 * 4));
}

template <bool T>
HZ_DEVICE void load_b(uint32_t *r, const uint32_t *tile, int row, int k)
{
	const int lane = threadIdx.x % 32;

	if constexpr (T)
		ldmatrix_x4_trans(r, shared_address(tile + (k + lane % 16) * PITCH_T +
						    (row + lane / 16 * 8) / 2));
	else
		ldmatrix_x4(r, shared_address(tile + (row + lane % 8 + lane / 16 * 8) * PITCH +
					      k / 2 + lane / 8 % 2 * 4));
}

template <bool AT, bool BT>
HZ_DEVICE void product(const operand &a, const operand &b, int64_t i0, int64_t j0, int64_t begin,
		       int64_t end, float (*sum)[8][4])
{
	extern __shared__ __align__(16) uint32_t memory[];
	const int warp = threadIdx.x / 32, row = warp / 2 * 32, column = warp % 2 * 64;
	/* Pairs of tiles of this warp that have columns of c */
	const int64_t left = (b.rows - j0 - column + 15) / 16;
	raw8 ra[CHUNKS], rb[CHUNKS];

	const auto load = [&](int64_t k) {
		load_part<AT, true>(ra, a, i0, k, end);
		if (b.dtype == HZ_F32)
			load_part<BT, true>(rb, b, j0, k, end);
		else
			load_part<BT, false>(rb, b, j0, k, end);
	};

	load(begin);
	for (int64_t k = begin, at = 0; k < end; k += STEPS, at ^= 1) {
		uint32_t *const as = memory + at * 4 * PLANE, *const bs = as + 2 * PLANE;

		store_part<AT, HZ_F32>(as, ra);
		with_dtype(b.dtype, [&](auto dtype) { store_part<BT, dtype.value>(bs, rb); });
		__syncthreads();
		if (k + STEPS < end)
			load(k + STEPS);
#pragma unroll
		for (int step = 0; step < STEPS; step += 16) {
			uint32_t high[2][4], low[2][4];

#pragma unroll
			for (int h = 0; h < 2; h++) {
				load_a<AT>(high[h], as, row + h * 16, step);
				load_a<AT>(low[h], as + PLANE, row + h * 16, step);
			}
#pragma unroll
			for (int pair = 0; pair < 4; pair++) {
				uint32_t b1[4], b2[4];

				if (pair >= left)
					break;
				load_b<BT>(b1, bs, column + pair * 16, step);
				load_b<BT>(b2, bs + PLANE, column + pair * 16, step);
				/* Four independent sums, then the next term of the same */
#pragma unroll
				for (int e = 0; e < 12; e++) {
					const int h = e % 2, two = e / 2 % 2, term = e / 4;
					const uint32_t *const b = term == 1 ? b2 : b1;

					mma_m16n8k16<HZ_BF16>(sum[h][pair * 2 + two],
							      term == 2 ? low[h] : high[h],
							      b[two * 2], b[two * 2 + 1]);
				}
			}
		}
	}
}

/* A block has a tile of c and a split of k, whose sums go to partial [splits][m][n] or to c. */
extern "C" __global__ void __launch_bounds__(HZI_MHC_PRODUCT_THREADS)
	mhc_product(const __grid_constant__ hzi_mhc_product_job p)
{
	const hzi_mhc_product_args &g = p.g;
	const int64_t wide = (g.n + HZI_MHC_PRODUCT_TILE - 1) / HZI_MHC_PRODUCT_TILE;
	const int64_t tile = blockIdx.x / p.splits, split = blockIdx.x % p.splits;
	const int64_t i0 = tile / wide * HZI_MHC_PRODUCT_TILE, j0 = tile % wide * HZI_MHC_PRODUCT_TILE;
	const int64_t begin = split * p.steps, end = begin + p.steps < g.k ? begin + p.steps : g.k;
	const operand a = {g.a, g.m, g.k, g.a_row, g.a_step, HZ_F32, p.a_aligned != 0};
	const operand b = {g.b, g.n, g.k, g.b_row, g.b_step, g.b_dtype, p.b_aligned != 0};
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float *const to = p.partial ? p.partial + split * g.m * g.n : g.c;
	float sum[2][8][4] = {};

	pdl_launch_dependents();
	pdl_wait();
	if (g.a_step == 1 && g.b_step == 1)
		product<false, false>(a, b, i0, j0, begin, end, sum);
	else if (g.a_step == 1)
		product<false, true>(a, b, i0, j0, begin, end, sum);
	else if (g.b_step == 1)
		product<true, false>(a, b, i0, j0, begin, end, sum);
	else
		product<true, true>(a, b, i0, j0, begin, end, sum);
#pragma unroll
	for (int e = 0; e < 32; e++) {
		const int h = e / 16, t = e / 2 % 8, half = e % 2;
		const int64_t i = i0 + warp / 2 * 32 + h * 16 + lane / 4 + half * 8;
		const int64_t j = j0 + warp % 2 * 64 + t * 8 + lane % 4 * 2;
		float *const at = to + i * g.n + j;
		const bool adds = g.accumulate && !p.partial;

		if (i >= g.m || j >= g.n)
			continue;
		at[0] = (adds ? at[0] : 0) + sum[h][t][half * 2];
		if (j + 1 < g.n)
			at[1] = (adds ? at[1] : 0) + sum[h][t][half * 2 + 1];
	}
}

/* A thread has an element of c. */
extern "C" __global__ void __launch_bounds__(THREADS)
	mhc_product_sum(const __grid_constant__ hzi_mhc_product_job p)
{
	const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, count = p.g.m * p.g.n;
	float sum = 0;

	pdl_launch_dependents();
	pdl_wait();
	if (e >= count)
		return;
#pragma unroll 8
	for (int s = 0; s < p.splits; s++)
		sum += p.partial[s * count + e];
	p.g.c[e] = (p.g.accumulate ? p.g.c[e] : 0) + sum;
}

/* ---- Between and after the products ---------------------------------------------------------- */

/* A block has a token. */
extern "C" __global__ void __launch_bounds__(THREADS)
	mhc_hidden(const __grid_constant__ hzi_mhc_hidden_args p)
{
	const int64_t t = blockIdx.x;
	const int n = p.rule.n, i = threadIdx.x;
	const float scale = 1.0f / (float)n;
	float slope;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t e = t * p.rank + threadIdx.x; e < (t + 1) * p.rank; e += THREADS) {
		const float z = p.down[e] * scale, s = hzi_mhc_sigma(z, &slope);

		if (p.backward)
			p.down[e] = p.hidden[e] * fmaf(z, slope, s) * scale;
		else
			p.hidden[e] = z * s;
	}
	if (!p.inject || i >= n)
		return;

	float *const z = p.inject + t * n + i;
	const float s = hzi_mhc_sigma(*z * scale, &slope);

	if (p.backward)
		*z = p.dq.data ? *coef_at(p.dq, t, i, 0) * p.rule.q_scale * slope * scale : 0;
	else
		*coef_at(p.q, t, i, 0) = fmaf(p.rule.q_scale, s, p.rule.q_eps);
}

/* A thread has a channel of a token. */
extern "C" __global__ void __launch_bounds__(THREADS)
	mhc_gate(const __grid_constant__ hzi_mhc_gate_args p)
{
	const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	const int64_t t = e / p.s.channels, c = e % p.s.channels;
	const float share = 1.0f / (float)p.s.n;
	float u = 0;

	pdl_launch_dependents();
	pdl_wait();
	if (t >= p.s.tokens)
		return;
	if (p.backward && p.u.data)
		u = load_value(p.s.dtype, p.u.data, offset(p.u, t, 0, c)) * share;
	for (int i = 0; i < p.s.n; i++) {
		const int64_t at = t * p.s.n * p.s.channels + i * p.order.stream +
				   c * p.order.channel;
		float slope;
		const float s = hzi_mhc_sigma(p.up[at], &slope);

		if (p.backward) {
			p.dx[at] = u * s;
			p.up[at] = u * p.x[at] * slope;
		} else {
			u = fmaf(s, p.x[at], u);
		}
	}
	if (!p.backward)
		store_any(p.s.dtype, p.u.data, offset(p.u, t, 0, c), u * share);
}
