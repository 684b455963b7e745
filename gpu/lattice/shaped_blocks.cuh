/*
 * shaped_blocks.cuh - values, codes and scales of the kernels that encode to codes with a shaping
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_LATTICE_SHAPED_BLOCKS_CUH
#define HZI_GPU_LATTICE_SHAPED_BLOCKS_CUH

#include "gpu/lattice/generic.cuh"
#include "gpu/lattice/shaped_points.cuh"

#define THREADS HZI_LATTICE_THREADS
#define PAIRS (HZ_LATTICE_MAXBANKS / 2)

/* ---- Scales ---------------------------------------------------------------------------------- */

/*
 * The scales s; of pairs of them, in f16: the largest by these, and their squares by its square;
 * index: the pair in both halves, with the bits of Inf where there is no scale
 */
struct scale_table {
	struct {
		uint32_t ratio, square, index, unused;
	} pair[PAIRS];
	float scale[HZ_LATTICE_MAXBANKS], inverse[HZ_LATTICE_MAXBANKS];
	float most;	/* the largest sum of y^2 at the largest scale that bounds are for */
	bool usable;
	bool vectors;	/* the values of each block are 16 or 32 aligned bytes; */
	bool contiguous;	/* so are blocks, codes of whole elements, and scales */
};

/* Whether the values of each block are 16 or 32 aligned bytes */
HZ_DEVICE bool has_vectors(const hzi_lattice_generic &p)
{
	const int bytes = p.v_dtype == HZ_F32 ? 4 : 2;
	bool good = p.v_step == 1 && p.n % 8 == 0 && (uintptr_t)p.v % 16 == 0;

	for (int d = 0; d < p.ndim; d++)
		good = good && p.v_stride[d] * bytes % 16 == 0;
	return good;
}

/* Bounds need scales whose squares f32 holds, and ratios that f16 does. */
HZ_DEVICE void make_table(const hzi_lattice_generic &p, scale_table &table)
{
	const hzi_lattice_rule &r = p.rule;
	const int k = threadIdx.x;

	if (k < HZ_LATTICE_MAXBANKS) {
		const float s = k < r.scales ? r.scale[k] : 1;
		const float ratio = s / r.scale[r.largest];

		table.scale[k] = s;
		table.inverse[k] = k < r.scales ? r.inverse[k] : 1;
		((uint16_t *)&table.pair[k / 2].ratio)[k % 2] = (uint16_t)both(1 / ratio);
		((uint16_t *)&table.pair[k / 2].square)[k % 2] =
			(uint16_t)(k < r.scales ? both(0.979f * ratio * ratio) : 0x7fff);
		((uint16_t *)&table.pair[k / 2].index)[k % 2] =
			(uint16_t)(k / 2 | (k < r.scales ? 0 : 0x7c00));
	}
	if (k == 0) {
		bool usable = r.scale[r.largest] < 1e15f;

		for (int i = 0; i < r.scales; i++)
			usable = usable && r.scale[i] > 1e-15f &&
				 r.scale[r.largest] < 1000 * r.scale[i];
		table.usable = usable;
		table.vectors = has_vectors(p);
		table.contiguous = table.vectors && p.ndim == 0 && p.codes.block == 1 &&
				   p.t_step == 1 && p.codes.pack == HZI_LATTICE_LEVEL;
		table.most = FLT_MAX;
		for (int i = 0; i < r.scales; i++) {
			const float ratio = r.scale[i] / r.scale[r.largest];

			table.most = fminf(table.most, 57600.0f * ratio * ratio);
		}
	}
}

/* The sum of y^2 at the scale 1 / inverse */
HZ_DEVICE float norm_of(const float (&v)[8], float inverse)
{
	float sum = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		sum = fmaf(v[i], v[i], sum);
	return sum * inverse * inverse;
}

/* ---- Values ---------------------------------------------------------------------------------- */

static __device__ __noinline__ row_offsets find_any_row(const hzi_lattice_generic &p, int64_t unit)
{
	return find_row(p, unit);
}

/* find_row(), mostly with 32-bit divisions */
HZ_DEVICE row_offsets find_block(const hzi_lattice_generic &p, int64_t unit)
{
	row_offsets at = {0, 0, 0, 0, unit};

	if (p.units > UINT32_MAX)
		return find_any_row(p, unit);
	if (p.ndim > 0) {
		uint32_t row = (uint32_t)unit / (uint32_t)p.row_units;

		at.unit = (uint32_t)unit - row * (uint32_t)p.row_units;
#pragma unroll 1
		for (int d = p.ndim - 1; d >= 0; d--) {
			const uint32_t next = row / (uint32_t)p.shape[d];
			const uint32_t i = row - next * (uint32_t)p.shape[d];

			row = next;
			at.v += i * p.v_stride[d];
			at.codes += i * p.codes.stride[d];
			at.t += i * p.t_stride[d];
		}
	}
	return at;
}

/* Loads values, and the largest |v_i|; returns flags as hzi_lattice_map(). */
HZ_DEVICE int load_values(const hzi_lattice_generic &p, bool vectors, const row_offsets &at,
			  float (&v)[8], float &most)
{
	int kind = 0;

	most = 0;

	if (!vectors) {
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const int64_t n = at.unit * 8 + i, from = at.v + n * p.v_step;

			v[i] = n >= p.n ? 0 : p.v_dtype == HZ_F32 ? ((const float *)p.v)[from] :
			       p.v_dtype == HZ_F16 ? f16_low(((const uint16_t *)p.v)[from]) :
						     bf16_low(((const uint16_t *)p.v)[from]);
		}
	} else if (p.v_dtype == HZ_F32) {
		const float4 *src = (const float4 *)((const float *)p.v + at.v + at.unit * 8);
		const float4 a = src[0], b = src[1];

		v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
		v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
	} else {
		const uint4 a = *(const uint4 *)((const uint16_t *)p.v + at.v + at.unit * 8);
		const uint32_t x[4] = {a.x, a.y, a.z, a.w};

#pragma unroll
		for (int i = 0; i < 4; i++) {
			v[2 * i] = p.v_dtype == HZ_F16 ? f16_low(x[i]) : bf16_low(x[i]);
			v[2 * i + 1] = p.v_dtype == HZ_F16 ? f16_low(x[i] >> 16) : bf16_high(x[i]);
		}
	}
#pragma unroll
	for (int i = 0; i < 8; i++)
		most = max_nan(most, fabsf(v[i]));
	if (most <= FLT_MAX)
		return 0;
#pragma unroll
	for (int i = 0; i < 8; i++) {
		kind |= fabsf(v[i]) > FLT_MAX ? HZI_LATTICE_IS_INF : 0;
		kind |= v[i] != v[i] ? HZI_LATTICE_IS_NAN : 0;
		v[i] = hzi_lclamp(v[i], FLT_MAX);
	}
	return kind;
}

/* ---- Codes ----------------------------------------------------------------------------------- */

/* Eight numbers by value, for functions that are not inlined */
struct eight {
	float v[8];
};

HZ_DEVICE eight copy_of(const float (&v)[8])
{
	eight c;

#pragma unroll
	for (int i = 0; i < 8; i++)
		c.v[i] = v[i];
	return c;
}

/* hzi_shaped_fits() */
static __device__ __noinline__ bool fits_somewhere(const hzi_lattice_rule &r, eight v)
{
#pragma unroll 1
	for (int t = r.scales - 1; t >= 0; t--) {
		float y[8], p[8];

#pragma unroll
		for (int i = 0; i < 8; i++)
			y[i] = hzi_lclamp(hzi_lmul(v.v[i], r.inverse[t]), HZI_LATTICE_RANGE);
		nearest<HZI_SHAPING_E8>((float)r.q, y, p);
		/* The range is far outside of all codes. */
		if (r.shaping == HZI_SHAPING_CUBE ? inside<HZI_SHAPING_CUBE>(r, (float)r.q, p) :
						    inside<HZI_SHAPING_D8STAR>(r, (float)r.q, p))
			return true;
	}
	return false;
}

struct chosen {
	uint32_t label;
	int t, clipped;
};

/* hzi_shaped_choose(), for blocks that bounds are not made for */
template <int SHAPING>
static __device__ __noinline__ chosen choose_alone(const hzi_lattice_rule &r, eight v)
{
	__builtin_assume(r.shaping == SHAPING);

	int32_t g[8] = {0, 0, 0, 0, 0, 0, 0, 0};
	chosen c = {0, 0, 0};

	c.clipped = hzi_shaped_choose(&r, v.v, &c.t, g);
	c.label = hzi_label_of(SHAPING, r.log2q, g);
	return c;
}

static __device__ __noinline__ void store_digits(const hzi_lattice_generic &p, int64_t element,
						 uint32_t label)
{
	hzi_lattice_code code = code_at(p.codes, element, 0);
	int32_t digits[HZI_LATTICE_DIMS];

	hzi_lattice_unindex(&p.rule, label, digits);
	hzi_lattice_put(&code, &p.rule, digits);
	hzi_lattice_flush(&code);
}

/*
 * The largest |y_i| at which the nearest point is surely in the cube: below q / 2 - 1 rounding leads
 * to q / 2 - 1 at most, and a correction does if it is from below.
 */
HZ_DEVICE float safe_size(const hzi_lattice_rule &r)
{
	return 0.5f * (float)r.q - 1.001f;
}

/* Whether surely the point of E8 nearest to v is in the code at the largest scale */
template <int SHAPING>
HZ_DEVICE bool fits_largest(const hzi_lattice_rule &r, const float (&v)[8], float size)
{
	const float inverse = r.inverse[r.largest];
	float sum = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		sum += fabsf(v[i]);
	/* The sum of |p_i - h| / 2 is less than that of |y_i| + sqrt(8) + 4. */
	return size * inverse <= safe_size(r) &&
	       (SHAPING == HZI_SHAPING_CUBE || sum * inverse < 2 * (float)r.q - 6.84f);
}

/* Stores the code of a block and its scale. */
HZ_DEVICE void store_label(const hzi_lattice_generic &p, const row_offsets &at, uint32_t label,
			   int t)
{
	const int64_t element = at.codes + at.unit * p.codes.block;

	if (p.codes.pack != HZI_LATTICE_LEVEL)
		store_digits(p, element, label);
	else if (p.codes.bytes == 4)
		((uint32_t *)p.codes.codes)[element] = label;
	else
		((uint16_t *)p.codes.codes)[element] = (uint16_t)label;
	p.t[at.t + at.unit * p.t_step] = (uint8_t)t;
}

#endif
