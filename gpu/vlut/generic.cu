/*
 * generic.cu - products with lattice codes: any lattice, by decoding and by tables; packing
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * vlut_generic decodes a tile of the coded matrix into shared memory by hzi_lattice_value() and
 * multiplies in f32, with k in ascending order: the bits of a result do not depend on the shape.
 * The kernels with tables follow the definition: lane l of a warp adds the entries of blocks l, l +
 * 32, ... in order.
 */
/* For functions with several callers: the code of a kernel would be twice as long. */
#define NOINLINE static __device__ __noinline__

#include "gpu/device/reduce.cuh"
#include "gpu/vlut/vlut.h"
#include "gpu/vlut/d4_bitfield.cuh"
#include "gpu/vlut/e8_bitplane.cuh"
#include "gpu/vlut/label.cuh"

#define TILE HZI_VLUT_TILE
#define STEP HZI_VLUT_STEP
#define THREADS HZI_VLUT_THREADS
#define DIMS HZI_LATTICE_DIMS

/* ---- Coded matrices -------------------------------------------------------------------------- */

HZ_DEVICE label_code coded_label(const hzi_vlut_coded &c, int64_t row, int64_t block)
{
	return label_at(c.codes, HZI_VLUT_LABEL_T_BITS(c.rule.shaping, c.rule.scales),
			c.rule.shaping, c.bits, row, block);
}

/* coded_index() of codes that are packed by bits */
NOINLINE uint32_t packed_index(const hzi_vlut_coded &c, int64_t row, int64_t block, int m)
{
	int32_t leader[8], b[8];

	if (c.rule.shaping)
		return coded_label(c, row, block).code;
	if (c.rule.d == 4)
		d4_leader(c.codes, c.bits, row, block, m, leader);
	else
		e8_leader(c.codes, c.bits, row, block, m, leader);
	hzi_lattice_digits(&c.rule, leader, b);
	return hzi_lattice_index(&c.rule, b);
}

HZ_DEVICE uint32_t coded_index(const hzi_vlut_coded &c, int64_t row, int64_t block, int m)
{
	if (c.bits)
		return packed_index(c, row, block, m);

	const int64_t at = row * c.row + block * c.block + (m - c.first) * c.level;

	return c.code_bytes == 1 ? ((const uint8_t *)c.codes)[at] :
	       c.code_bytes == 2 ? ((const uint16_t *)c.codes)[at] :
		       ((const uint32_t *)c.codes)[at];
}

HZ_DEVICE int coded_t(const hzi_vlut_coded &c, int64_t row, int64_t block)
{
	if (c.bits && c.rule.shaping)
		return min(coded_label(c, row, block).t, c.rule.scales - 1);
	return c.t ? min((int)c.t[row * c.t_row + block / c.rule.group * c.t_step],
			 c.rule.scales - 1) : 0;
}

HZ_DEVICE float coded_row_scale(const hzi_vlut_coded &c, int64_t row)
{
	return c.row_scale ? c.row_scale[row * c.row_scale_step] : 1.0f;
}

HZ_DEVICE void coded_point(const hzi_vlut_coded &c, const hzi_lattice_matrices *m, int64_t row,
			   int64_t block, int32_t *p)
{
	if (c.bits && c.rule.shaping) {
		hzi_label_point(c.rule.shaping, c.rule.log2q, coded_index(c, row, block, 0), p);
		return;
	}
	if (c.bits) {
		uint16_t codes[2];

		for (int level = c.first; level < 2; level++)
			codes[level - c.first] = (uint16_t)coded_index(c, row, block, level);
		hzi_lattice_read(&c.rule, m, hzi_lattice_code_at(codes, 1, 2, HZI_LATTICE_LEVEL),
				 c.first, p);
		return;
	}

	const int64_t at = row * c.row + block * c.block;

	hzi_lattice_read(&c.rule, m,
			 hzi_lattice_code_at((char *)c.codes + at * c.code_bytes, c.level,
					     c.code_bytes, HZI_LATTICE_LEVEL),
			 c.first, p);
}

/* ---- Any lattice ----------------------------------------------------------------------------- */

/* Elements of a tile: values, or the integers p - o. */
NOINLINE void block_values(const hzi_vlut_coded &c, const hzi_lattice_matrices *m, int64_t row,
			    int64_t block, float *out)
{
	int32_t p[DIMS];

	coded_point(c, m, row, block, p);
	hzi_lattice_value(&c.rule, m, p, c.sub, coded_t(c, row, block), out);
}

NOINLINE void block_values(const hzi_vlut_coded &c, const hzi_lattice_matrices *m, int64_t row,
			    int64_t block, int32_t *out)
{
	coded_point(c, m, row, block, out);
#pragma unroll 1
	for (int i = 0; i < c.rule.embed; i++)
		out[i] -= c.rule.offset[i];
}

/* Columns of a tile per lattice block: d for values, embed for integers */
template <class S>
HZ_DEVICE int block_width(const hzi_vlut_coded &c)
{
	return sizeof(S) == sizeof(int32_t) && S(0.5f) == S(0) ? c.rule.embed : c.rule.d;
}

/*
 * Decodes `blocks` lattice blocks, from block `first` on, of the rows of a tile; elements from k on
 * are 0.
 */
template <class S>
HZ_DEVICE void decode_tile(S (*dst)[TILE + 1], const hzi_vlut_coded &c,
			   const hzi_lattice_matrices *m, int64_t row0, int64_t first, int blocks,
			   int64_t k)
{
	const int d = block_width<S>(c);

	for (int i = threadIdx.x; i < TILE * blocks; i += THREADS) {
		const int64_t row = row0 + i % TILE, block = first + i / TILE;
		const bool in = row < c.rows && block < c.blocks;
		S v[DIMS];

		if (in)
			block_values(c, m, row, block, v);
#pragma unroll 1
		for (int j = 0; j < d; j++)
			dst[i / TILE * d + j][i % TILE] =
				in && (d != c.rule.d || block * d + j < k) ? v[j] : S(0);
	}
}

template <class S>
HZ_DEVICE S load_dense(const hzi_vlut_dense &d, int64_t k, int64_t column)
{
	const int64_t at = k * d.x_k + column * d.x_b;

	return d.x_dtype == HZ_S8 ? S(((const int8_t *)d.x)[at])
				  : S(load_float(d.x_dtype, d.x, at));
}

HZ_DEVICE void store_sum(const hzi_vlut_dense &d, int64_t row, int64_t column, float s, float scale)
{
	store_any(d.y_dtype, d.y, row * d.y_i + column * d.y_b, s * scale);
}

HZ_DEVICE void store_sum(const hzi_vlut_dense &d, int64_t row, int64_t column, int32_t s, float)
{
	((int32_t *)d.y)[row * d.y_i + column * d.y_b] = s;
}

/* x: the other coded matrix; NULL: x is dense */
template <class S>
HZ_DEVICE void generic(const hzi_vlut_coded &w, const hzi_lattice_matrices *wm,
		       const hzi_vlut_coded *x, const hzi_lattice_matrices *xm,
		       const hzi_vlut_dense &dense)
{
	__shared__ S a[STEP][TILE + 1], b[STEP][TILE + 1];
	const int d = block_width<S>(w), blocks = STEP / d, width = blocks * d;
	const int64_t row0 = (int64_t)blockIdx.x * TILE, column0 = (int64_t)blockIdx.y * TILE;
	const int r = threadIdx.x / 16, c = threadIdx.x % 16;
	S sum[4][4] = {};

	for (int64_t first = 0; first < w.blocks; first += blocks) {
		decode_tile(a, w, wm, row0, first, blocks, dense.k);
		if (x) {
			const int dx = block_width<S>(*x);

			/*
			 * Blocks of x and of w differ in length: also decodes blocks that overlap
			 * the step partly.
			 */
			for (int i = threadIdx.x; i < TILE * width; i += THREADS)
				b[i / TILE][i % TILE] = 0;
			__syncthreads();
			for (int64_t k = first * d / dx;
			     k * dx < first * d + width && k < x->blocks; k++) {
				for (int i = threadIdx.x; i < TILE; i += THREADS) {
					S v[DIMS];

					if (column0 + i >= x->rows)
						continue;
					block_values(*x, xm, column0 + i, k, v);
#pragma unroll 1
					for (int j = 0; j < dx; j++) {
						const int64_t at = k * dx + j - first * d;

						if (at >= 0 && at < width &&
						    (dx != x->rule.d || k * dx + j < dense.k))
							b[at][i] = v[j];
					}
				}
			}
		} else {
			for (int i = threadIdx.x; i < TILE * width; i += THREADS) {
				const int64_t k = first * d + i / TILE, column = column0 + i % TILE;

				b[i / TILE][i % TILE] = k < dense.k && column < dense.columns ?
					load_dense<S>(dense, k, column) : S(0);
			}
		}
		__syncthreads();
		for (int k = 0; k < width; k++)
#pragma unroll
			for (int i = 0; i < 4; i++)
#pragma unroll
				for (int j = 0; j < 4; j++)
					sum[i][j] += a[k][r + 16 * i] * b[k][c + 16 * j];
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const int64_t row = row0 + r + 16 * i, column = column0 + c + 16 * j;

			if (row < w.rows && column < dense.columns)
				store_sum(dense, row, column, sum[i][j],
					  coded_row_scale(w, row) *
						  (x ? coded_row_scale(*x, column) : 1.0f));
		}
}

#define KERNEL(name, params) \
	extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ params p)

/* The other side of a product is coded if it has rows, else dense. */
HZ_DEVICE const hzi_vlut_coded *other_side(const hzi_vlut_generic2 &p)
{
	return p.x.rows > 0 ? &p.x : nullptr;
}

KERNEL(vlut_generic_f32, hzi_vlut_generic2)
{
	generic<float>(p.w, nullptr, other_side(p), nullptr, p.d);
}

KERNEL(vlut_generic_s32, hzi_vlut_generic2)
{
	generic<int32_t>(p.w, nullptr, other_side(p), nullptr, p.d);
}

KERNEL(vlut_generic_mapped_f32, hzi_vlut_generic2_mapped)
{
	generic<float>(p.generic.w, &p.w, other_side(p.generic), &p.x, p.generic.d);
}

/* ---- One-sided tables ------------------------------------------------------------------------ */

/* A leader's value without o, sub and scale; bias: the value of point 0 with o and sub instead */
HZ_DEVICE void leader_value(const hzi_vlut_coded &c, const hzi_lattice_matrices *m, int64_t index,
			    bool bias, float *v)
{
	hzi_lattice_rule rule = c.rule;
	int32_t b[DIMS], p[DIMS];
	float sub[DIMS];

	rule.scale[0] = 1;
	hzi_lattice_unindex(&rule, (uint32_t)index, b);
	if (!bias)
		hzi_lattice_leader(&rule, m, b, p);
	for (int i = 0; i < DIMS; i++) {
		sub[i] = bias ? c.sub[i] : 0;
		if (bias)
			p[i] = 0;
		else
			rule.offset[i] = 0;
	}
	hzi_lattice_value(&rule, m, p, sub, 0, v);
}

HZ_DEVICE void leader_value(const hzi_vlut_coded &c, const hzi_lattice_matrices *m, int64_t index,
			    bool bias, int32_t *v)
{
	int32_t b[DIMS];

	hzi_lattice_unindex(&c.rule, (uint32_t)index, b);
	if (!bias)
		hzi_lattice_leader(&c.rule, m, b, v);
	else
		for (int i = 0; i < c.rule.embed; i++)
			v[i] = -c.rule.offset[i];
}

template <class S>
HZ_DEVICE S block_dot(const hzi_vlut_table &p, const S *v, int64_t block, int64_t column)
{
	const int d = p.generic.w.rule.d;
	S sum = 0;

	for (int j = 0; j < d && block * d + j < p.generic.d.k; j++)
		sum += v[j] * load_dense<S>(p.generic.d, block * d + j, column);
	return sum;
}

/* One thread block per lattice block and column */
template <class S>
HZ_DEVICE void make_table(const hzi_vlut_table &p, const hzi_lattice_matrices *m)
{
	__shared__ float low[THREADS], high[THREADS];
	const int64_t slot = blockIdx.y * p.count + blockIdx.x, block = p.begin + blockIdx.x;
	const float steps = p.table_dtype == HZ_U8 ? 255.0f : 65535.0f;
	float lowest = 0, highest = 0, factor = 1;
	bool coded = false;
	S v[DIMS];

	if (threadIdx.x == 0) {
		leader_value(p.generic.w, m, 0, true, v);
		((S *)p.bias)[slot] = block_dot(p, v, block, blockIdx.y);
	}
	if constexpr (sizeof(S) == 4 && S(0.5f) != S(0))
		coded = p.table_dtype == HZ_U8 || p.table_dtype == HZ_U16;
	if (coded) {
		lowest = __uint_as_float(0x7f800000);
		highest = -lowest;
		for (int64_t i = threadIdx.x; i < p.entries; i += THREADS) {
			float s;

			leader_value(p.generic.w, m, i, false, v);
			s = (float)block_dot(p, v, block, blockIdx.y);
			lowest = fminf(lowest, s);
			highest = fmaxf(highest, s);
		}
		low[threadIdx.x] = lowest;
		high[threadIdx.x] = highest;
		__syncthreads();
		for (int i = 0; i < THREADS; i++) {
			lowest = fminf(lowest, low[i]);
			highest = fmaxf(highest, high[i]);
		}
		factor = (highest - lowest) / steps;
		if (threadIdx.x == 0) {
			p.factor[2 * slot] = factor;
			p.factor[2 * slot + 1] = lowest;
		}
	}
	for (int64_t i = threadIdx.x; i < p.entries; i += THREADS) {
		const int64_t at = slot * p.entries + i;
		S s;

		leader_value(p.generic.w, m, i, false, v);
		s = block_dot(p, v, block, blockIdx.y);
		if (coded) {
			const float code = factor > 0 ?
					   fminf(rintf(((float)s - lowest) / factor), steps) : 0;

			if (p.table_dtype == HZ_U8)
				((uint8_t *)p.table)[at] = (uint8_t)code;
			else
				((uint16_t *)p.table)[at] = (uint16_t)code;
		} else if (p.table_dtype == HZ_F16 || p.table_dtype == HZ_BF16) {
			store_any(p.table_dtype, p.table, at, (float)s);
		} else {
			((S *)p.table)[at] = s;
		}
	}
}

HZ_DEVICE float table_entry(const hzi_vlut_table &p, int64_t slot, uint32_t index, float)
{
	const int64_t at = slot * p.entries + index;

	if (p.table_dtype == HZ_U8)
		return ((const uint8_t *)p.table)[at] * p.factor[2 * slot] + p.factor[2 * slot + 1];
	if (p.table_dtype == HZ_U16)
		return ((const uint16_t *)p.table)[at] * p.factor[2 * slot] +
		       p.factor[2 * slot + 1];
	return load_float(p.table_dtype, p.table, at);
}

HZ_DEVICE int32_t table_entry(const hzi_vlut_table &p, int64_t slot, uint32_t index, int32_t)
{
	return ((const int32_t *)p.table)[slot * p.entries + index];
}

/* q^m; if that overflows it is not used */
HZ_DEVICE int32_t level_weight(const hzi_lattice_rule &r, int m)
{
	uint32_t w = 1;

	while (m-- > 0)
		w *= (uint32_t)r.q;
	return (int32_t)w;
}

/* s += v with Neumaier's compensation */
HZ_DEVICE void add_compensated(float &s, float &compensation, float v)
{
	const float sum = __fadd_rn(s, v);

	compensation += fabsf(s) >= fabsf(v) ? __fadd_rn(__fadd_rn(s, -sum), v) :
			__fadd_rn(__fadd_rn(v, -sum), s);
	s = sum;
}

/* One warp per row, its lanes stride over blocks; grid: rows, columns */
template <class S>
HZ_DEVICE void lookup(const hzi_vlut_table &p)
{
	const hzi_vlut_coded &w = p.generic.w;
	const int lane = threadIdx.x % 32;
	const int64_t row = (int64_t)blockIdx.x * HZI_VLUT_WARPS + threadIdx.x / 32;
	const int64_t column = blockIdx.y, at = column * w.rows + row;
	S sum = 0;
	float compensation = 0;

	if (row >= w.rows)
		return;
	for (int64_t i = lane; i < p.count; i += 32) {
		const int64_t slot = column * p.count + i, block = p.begin + i;
		int32_t weight = level_weight(w.rule, w.first);
		S s = ((const S *)p.bias)[slot];

		for (int m = w.first; m < w.rule.levels; m++) {
			const uint32_t index = coded_index(w, row, block, m) % (uint32_t)p.entries;

			s += (S)weight * table_entry(p, slot, index, S(0));
			weight = (int32_t)((uint32_t)weight * (uint32_t)w.rule.q);
		}
		if constexpr (S(0.5f) != S(0)) {
			s *= w.rule.scale[coded_t(w, row, block)];
			if (p.compensated) {
				add_compensated(sum, compensation, s);
				continue;
			}
		}
		sum += s;
	}
	if (S(0.5f) != S(0) && p.compensated) {
		float total = p.begin > 0 ? p.sums[at] : 0,
		      total_compensation = p.begin > 0 ? p.compensation[at] : 0;

		for (int i = 0; i < 32; i++) {
			add_compensated(total, total_compensation, __shfl_sync(~0u, (float)sum, i));
			total_compensation += __shfl_sync(~0u, compensation, i);
		}
		sum = (S)total;
		compensation = total_compensation;
	} else {
		sum = warp_sum(sum);
		if (p.begin > 0)
			sum += ((const S *)p.sums)[at];
	}
	if (lane != 0)
		return;
	if (p.last) {
		store_sum(p.generic.d, row, column, sum + (S)compensation, coded_row_scale(w, row));
		return;
	}
	((S *)p.sums)[at] = sum;
	if (p.compensated)
		p.compensation[at] = compensation;
}

KERNEL(vlut_table_build_f32, hzi_vlut_table)
{
	make_table<float>(p, nullptr);
}

KERNEL(vlut_table_build_s32, hzi_vlut_table)
{
	make_table<int32_t>(p, nullptr);
}

KERNEL(vlut_table_build_mapped_f32, hzi_vlut_table_mapped)
{
	make_table<float>(p.table, &p.w);
}

KERNEL(vlut_table_lookup_f32, hzi_vlut_table)
{
	lookup<float>(p);
}

KERNEL(vlut_table_lookup_s32, hzi_vlut_table)
{
	lookup<int32_t>(p);
}

/* ---- Two-sided tables ------------------------------------------------------------------------ */

NOINLINE void make_dots(const hzi_vlut_coded &c, const hzi_vlut_coded &other, int64_t index,
			 int64_t *dot_offset, float *dot_sub)
{
	int32_t p[DIMS];
	int64_t integer = 0;
	float v[DIMS], sum = 0;

	leader_value(c, nullptr, index, false, p);
	leader_value(c, nullptr, index, false, v);
	for (int i = 0; i < c.rule.embed; i++)
		integer += (int64_t)p[i] * other.rule.offset[i];
	for (int i = 0; i < c.rule.d; i++)
		sum += v[i] * other.sub[i];
	dot_offset[index] = integer;
	dot_sub[index] = sum;
}

/* One thread per leader of both sides */
KERNEL(vlut_table2_dots, hzi_vlut_table2)
{
	const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

	if (i < p.w_entries)
		make_dots(p.generic.w, p.generic.x, i, p.w_dot_offset, p.w_dot_sub);
	else if (i < p.w_entries + p.x_entries)
		make_dots(p.generic.x, p.generic.w, i - p.w_entries, p.x_dot_offset, p.x_dot_sub);
}

/* Terms of one side only: <p, o'> and <p, sub'>, with o' and sub' of the other side */
NOINLINE void side_terms(const hzi_vlut_coded &c, int64_t row, int64_t block, int64_t entries,
			  const int64_t *dot_offset, const float *dot_sub, int64_t &integer,
			  float &real)
{
	int32_t weight = level_weight(c.rule, c.first);

	integer = 0;
	real = 0;
	for (int m = c.first; m < c.rule.levels; m++) {
		const uint32_t index = coded_index(c, row, block, m) % (uint32_t)entries;

		integer += weight * dot_offset[index];
		real += (float)weight * dot_sub[index];
		weight = (int32_t)((uint32_t)weight * (uint32_t)c.rule.q);
	}
}

/* <-o, sub'> */
NOINLINE float side_constant(const hzi_vlut_coded &c, const hzi_vlut_coded &other)
{
	const int32_t none[DIMS] = {};
	const float zero[DIMS] = {};
	hzi_lattice_rule rule = c.rule;
	float origin[DIMS], sum = 0;

	rule.scale[0] = 1;
	hzi_lattice_value(&rule, nullptr, none, zero, 0, origin);
	for (int i = 0; i < c.rule.d; i++)
		sum += origin[i] * other.sub[i];
	return sum;
}

/* One warp per row of w, its lanes stride over blocks; grid: rows of w, rows of x */
template <class S>
HZ_DEVICE void lookup2(const hzi_vlut_table2 &p)
{
	const hzi_vlut_coded &w = p.generic.w, &x = p.generic.x;
	const int lane = threadIdx.x % 32;
	const int64_t row = (int64_t)blockIdx.x * HZI_VLUT_WARPS + threadIdx.x / 32;
	const int64_t column = p.first + blockIdx.y;
	int64_t constant = 0;
	float subs = 0;
	S sum = 0;

	if (row >= w.rows)
		return;
	for (int i = 0; i < w.rule.embed; i++)
		constant += (int64_t)w.rule.offset[i] * x.rule.offset[i];
	for (int i = 0; i < w.rule.d; i++)
		subs += w.sub[i] * x.sub[i];
	subs -= side_constant(w, x) + side_constant(x, w);
	for (int64_t k = lane; k < w.blocks; k += 32) {
		int32_t ww = level_weight(w.rule, w.first);
		int64_t n = constant, w_dot_offset, x_dot_offset;
		float w_dot_sub, x_dot_sub;

		for (int m = w.first; m < w.rule.levels; m++) {
			const uint32_t i = coded_index(w, row, k, m) % (uint32_t)p.w_entries;
			int32_t xw = level_weight(x.rule, x.first);

			for (int l = x.first; l < x.rule.levels; l++) {
				const uint32_t j = coded_index(x, column, k, l) %
						   (uint32_t)p.x_entries;
				const int64_t at = i * p.x_entries + j;

				n += (int64_t)ww * xw * (p.table_dtype == HZ_S8 ?
							 ((const int8_t *)p.table)[at] :
							 ((const int16_t *)p.table)[at]);
				xw = (int32_t)((uint32_t)xw * (uint32_t)x.rule.q);
			}
			ww = (int32_t)((uint32_t)ww * (uint32_t)w.rule.q);
		}
		side_terms(w, row, k, p.w_entries, p.w_dot_offset, p.w_dot_sub, w_dot_offset,
			   w_dot_sub);
		side_terms(x, column, k, p.x_entries, p.x_dot_offset, p.x_dot_sub, x_dot_offset,
			   x_dot_sub);
		n -= w_dot_offset + x_dot_offset;
		if constexpr (S(0.5f) == S(0))
			sum += (S)n;
		else
			sum += ((float)n * p.unit - w_dot_sub - x_dot_sub + subs) *
			       (w.rule.scale[coded_t(w, row, k)] *
				x.rule.scale[coded_t(x, column, k)]);
	}
	sum = warp_sum(sum);
	if (lane == 0)
		store_sum(p.generic.d, row, column, sum,
			  coded_row_scale(w, row) * coded_row_scale(x, column));
}

KERNEL(vlut_table2_lookup_f32, hzi_vlut_table2)
{
	lookup2<float>(p);
}

KERNEL(vlut_table2_lookup_s32, hzi_vlut_table2)
{
	lookup2<int32_t>(p);
}

/* ---- Conversion of s32 accumulators ---------------------------------------------------------- */

/* A tile goes through shared memory, so that y is stored along its contiguous dimension. */
KERNEL(vlut_epilogue_s32, hzi_vlut_epilogue)
{
	constexpr int SIDE = HZI_VLUT_EPILOGUE_TILE;
	__shared__ int32_t sums[SIDE][SIDE + 1];
	const int lane = threadIdx.x % SIDE, warp = threadIdx.x / SIDE;
	const int64_t j0 = (int64_t)blockIdx.x * SIDE;

	for (int64_t i0 = (int64_t)blockIdx.y * SIDE; i0 < p.rows;
	     i0 += (int64_t)gridDim.y * SIDE) {
#pragma unroll
		for (int k = 0; k < SIDE * SIDE / THREADS; k++) {
			const int e = k * (THREADS / SIDE) + warp;

			if (i0 + e < p.rows && j0 + lane < p.columns)
				sums[e][lane] = p.sums[(i0 + e) * p.sums_i + j0 + lane];
		}
		__syncthreads();
#pragma unroll
		for (int k = 0; k < SIDE * SIDE / THREADS; k++) {
			const int e = k * (THREADS / SIDE) + warp;
			const int row = p.columns_fastest ? e : lane;
			const int column = p.columns_fastest ? lane : e;
			const int64_t i = i0 + row, j = j0 + column;
			double f = p.factor;
			float v;

			if (i >= p.rows || j >= p.columns)
				continue;
			if (p.column_scale)
				f = __dmul_rn(f, p.column_scale[j * p.column_scale_step]);
			/* Adding 0.0 makes -0 a 0, as on the CPU. */
			v = __double2float_rn(__fma_rn(sums[row][column], f, 0.0));
			if (p.row_scale)
				v = __fmul_rn(v, p.row_scale[i * p.row_scale_step]);
			store_any(p.y_dtype, p.y, i * p.y_i + j * p.y_j, v);
		}
		__syncthreads();
	}
}

/* ---- Packing --------------------------------------------------------------------------------- */

/* Copies codes to contiguous rows; levels below `first` and padding are 0. */
KERNEL(vlut_pack, hzi_vlut_pack)
{
	const int64_t width = p.row_bytes / p.code_bytes, total = p.rows * width;

	for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < total;
	     i += (int64_t)gridDim.x * THREADS) {
		const int64_t row = i / width, e = i % width, block = e / p.levels;
		const int m = (int)(e % p.levels) - p.first;
		const int64_t at = row * p.row + block * p.block + m * p.level;
		const bool in = block < p.blocks && m >= 0;

		if (p.code_bytes == 1)
			p.packed[i] = in ? ((const uint8_t *)p.codes)[at] : 0;
		else if (p.code_bytes == 2)
			((uint16_t *)p.packed)[i] = in ? ((const uint16_t *)p.codes)[at] : 0;
		else
			((uint32_t *)p.packed)[i] = in ? ((const uint32_t *)p.codes)[at] : 0;
	}
	if (!p.t)
		return;
	for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < p.rows * p.t_bytes;
	     i += (int64_t)gridDim.x * THREADS) {
		const int64_t row = i / p.t_bytes, g = i % p.t_bytes;

		p.packed_t[i] = g < p.groups ? p.t[row * p.t_row + g * p.t_step] : 0;
	}
}
