/*
 * generic.cuh - the lattice quantizer by the scalar rules of lattice_math.h, one thread per block
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_LATTICE_GENERIC_CUH
#define HZI_GPU_LATTICE_GENERIC_CUH

/* Not inlined: that halves compile time, and these kernels are bound by local memory. */
#define HZI_LATTICE_OFTEN static __host__ __device__ __noinline__

#include "gpu/device/dtype.cuh"
#include "gpu/lattice/lattice.h"
#include "gpu/lattice/overload.cuh"

/* Offsets of the row of a unit in values, codes, the other codes and t; the unit in its row */
struct row_offsets {
	int64_t v, codes, to, t, unit;
};

HZ_DEVICE row_offsets find_row(const hzi_lattice_generic &p, int64_t unit)
{
	row_offsets at = {0, 0, 0, 0, unit % p.row_units};
	int64_t row = unit / p.row_units;

	for (int d = p.ndim - 1; d >= 0; d--) {
		const int64_t i = row % p.shape[d];

		row /= p.shape[d];
		at.v += i * p.v_stride[d];
		at.codes += i * p.codes.stride[d];
		at.to += i * p.to.stride[d];
		at.t += i * p.t_stride[d];
	}
	return at;
}

HZ_DEVICE hzi_lattice_code code_at(const hzi_lattice_codes &c, int64_t row, int64_t block)
{
	return hzi_lattice_code_at((char *)c.codes + (row + block * c.block) * c.bytes, c.level,
				   c.bytes, c.pack);
}

/* ---- Encoding ------------------------------------------------------------------------------ */

HZ_DEVICE int load_block(const hzi_lattice_generic &p, const hzi_lattice_matrices *m, int64_t row,
			 int64_t block, float *v)
{
	const int d = p.rule.d;
	float x[HZI_LATTICE_DIMS];

	for (int i = 0; i < d; i++) {
		const int64_t at = block * d + i;

		x[i] = at < p.n ? load_any(p.v_dtype, p.v, row + at * p.v_step) : 0;
	}
	return hzi_lattice_map(&p.rule, m, x, v);
}

#define GROUP 128	/* largest number of values that share a scale */

HZ_DEVICE int group_scale(const hzi_lattice_generic &p, const hzi_lattice_matrices *m, int64_t row,
			  int64_t begin, int64_t end)
{
	float v[GROUP];
	uint8_t skip[GROUP];

	for (int64_t b = begin; b < end; b++)
		skip[b - begin] = load_block(p, m, row, b, v + (b - begin) * p.rule.d) &
				  HZI_LATTICE_IS_NAN;
	return hzi_lattice_group(&p.rule, m, (int)(end - begin), v, skip);
}

HZ_DEVICE void encode_unit(const hzi_lattice_generic &p, const hzi_lattice_matrices *m,
			   int64_t unit, uint32_t *overloaded, uint32_t *nonfinite)
{
	const hzi_lattice_rule *r = &p.rule;
	const row_offsets at = find_row(p, unit);
	const int64_t begin = at.unit * r->group;
	const int64_t end = begin + r->group < p.blocks ? begin + r->group : p.blocks;
	const bool grouped = hzi_lattice_grouped(r);
	int t = grouped ? group_scale(p, m, at.v, begin, end) : 0;

	for (int64_t block = begin; block < end; block++) {
		float v[HZI_LATTICE_DIMS];
		int32_t g[HZI_LATTICE_DIMS];
		const int kind = load_block(p, m, at.v, block, v);

		*nonfinite += kind != 0;
		if (kind & HZI_LATTICE_IS_NAN) {
			for (int i = 0; i < r->embed; i++)
				g[i] = r->offset[i];
		} else if (grouped) {
			*overloaded += (uint32_t)hzi_lattice_at(r, m, v, t, g);
		} else {
			*overloaded += (uint32_t)hzi_lattice_choose(r, m, v, &t, g);
		}
		hzi_lattice_write(r, m, g, code_at(p.codes, at.codes, block));
	}
	if (p.t)
		p.t[at.t + at.unit * p.t_step] = (uint8_t)t;
}

HZ_DEVICE void encode(const hzi_lattice_generic &p, const hzi_lattice_matrices *m)
{
	const int64_t step = (int64_t)gridDim.x * blockDim.x;
	uint32_t overloaded = 0, nonfinite = 0;

	for (int64_t u = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; u < p.units; u += step)
		encode_unit(p, m, u, &overloaded, &nonfinite);
	if (p.overload)
		count_overload(p.overload, overloaded, nonfinite);
}

/* ---- Decoding ------------------------------------------------------------------------------ */

HZ_DEVICE void store_integer(int dtype, void *y, int64_t i, int32_t v)
{
	switch (dtype) {
	case HZ_U8:
	case HZ_S8:
		((uint8_t *)y)[i] = (uint8_t)v;
		break;
	case HZ_U16:
	case HZ_S16:
		((uint16_t *)y)[i] = (uint16_t)v;
		break;
	default:
		((uint32_t *)y)[i] = (uint32_t)v;
	}
}

HZ_DEVICE void decode_digits(const hzi_lattice_generic &p, hzi_lattice_code c, int64_t at)
{
	int32_t b[HZI_LATTICE_DIMS];

	for (int level = 0; level < p.rule.levels; level++) {
		if (level >= p.first || c.pack != HZI_LATTICE_LEVEL)
			hzi_lattice_get(&c, &p.rule, b);
		if (level < p.first)
			continue;
		for (int i = 0; i < p.rule.d; i++)
			store_integer(p.v_dtype, p.v,
				      at + (level - p.first) * p.v_level + i * p.v_step, b[i]);
	}
}

HZ_DEVICE void decode_unit(const hzi_lattice_generic &p, const hzi_lattice_matrices *m,
			   int64_t unit)
{
	const hzi_lattice_rule *r = &p.rule;
	const row_offsets at = find_row(p, unit);
	const int64_t block = at.unit;
	int32_t point[HZI_LATTICE_DIMS];
	float x[HZI_LATTICE_DIMS];
	int t = 0;

	if (p.what == HZ_LATTICE_DIGITS) {
		decode_digits(p, code_at(p.codes, at.codes, block), at.v + block * p.v_block);
		return;
	}
	hzi_lattice_read(r, m, code_at(p.codes, at.codes, block), p.first, point);
	if (p.what == HZ_LATTICE_POINTS) {
		for (int i = 0; i < r->embed; i++)
			store_integer(p.v_dtype, p.v, at.v + block * p.v_block + i * p.v_step,
				      point[i]);
		return;
	}
	if (p.t)
		t = p.t[at.t + block / r->group * p.t_step];
	hzi_lattice_value(r, m, point, p.sub, t < r->scales ? t : r->scales - 1, x);
	for (int i = 0; i < r->d && block * r->d + i < p.n; i++)
		store_any(p.v_dtype, p.v, at.v + (block * r->d + i) * p.v_step, x[i]);
}

HZ_DEVICE void decode(const hzi_lattice_generic &p, const hzi_lattice_matrices *m)
{
	const int64_t step = (int64_t)gridDim.x * blockDim.x;

	for (int64_t u = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; u < p.units; u += step)
		decode_unit(p, m, u);
}

#endif
