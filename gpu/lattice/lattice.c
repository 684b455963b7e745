/*
 * lattice.c - launchers of the lattice quantizer
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/runtime/cuda.h"
#include "gpu/lattice/lattice.h"
#include "gpu/lattice/contiguous_d4_e8.h"
#include "gpu/lattice/launch.h"
#include "lib/lattice/lattice.h"

#define FAST_THREADS 256

unsigned hzi_cuda_lattice_grid(const struct hz_context *ctx, int64_t threads, int per_block,
			       int blocks_per_sm)
{
	const int64_t blocks = ceil_div(threads, per_block);
	const int64_t most = (int64_t)hzi_cuda_device(ctx)->multiprocessors * blocks_per_sm;

	return (unsigned)(blocks < most ? blocks : most);
}

/* ---- Blocks back to back -------------------------------------------------------------------- */

int64_t hzi_cuda_lattice_rows(const struct hzi_lattice_map *map)
{
	int64_t rows = 1;

	for (int i = 0; i < map->ndim; i++)
		rows *= map->shape[i];
	return rows;
}

/* Whether rows follow one another, row elements apart */
static bool is_packed(const struct hzi_lattice_map *map, const int64_t *stride, int64_t row)
{
	for (int i = map->ndim - 1; i >= 0; i--) {
		if (stride[i] != row)
			return false;
		row *= map->shape[i];
	}
	return true;
}

static bool is_aligned(const void *p, size_t bytes)
{
	return (uintptr_t)p % bytes == 0;
}

/*
 * Whether all rows are one of whole blocks of d, values of `size` bytes: vectors of them are
 * aligned, and so are the codes of a block if they are one number.
 */
static bool is_flat(const struct hzi_lattice_map *map, const struct hzi_lattice_rule *r,
		    const void *v, size_t size, const void *codes, size_t code_bytes, int levels,
		    bool has_t)
{
	const size_t vector = size * (size_t)r->d < 16 ? size * (size_t)r->d : 16;
	const int64_t row_t = map->blocks / r->group;

	return map->n == map->blocks * r->d && map->v_step == 1 &&
	       is_packed(map, map->v_stride, map->n) && is_aligned(v, vector) &&
	       map->code_block >= 0 && map->code_block <= UINT32_MAX &&
	       is_packed(map, map->code_stride, map->blocks * map->code_block) &&
	       (map->code_block != levels || is_aligned(codes, code_bytes * (size_t)levels)) &&
	       (!has_t || (map->t_step == 1 && map->blocks % r->group == 0 &&
			   is_packed(map, map->t_stride, row_t))) &&
	       map->blocks * hzi_cuda_lattice_rows(map) <= INT32_MAX;
}

/* ---- Encoding ------------------------------------------------------------------------------ */

/* What the kernels of gpu/lattice/contiguous_d4_e8.cu hold in bytes */
static const struct byte_lattice {
	int kind, d, q, most_levels, kernel, threads, sm_blocks;
	int most;		/* of |integer| of a point */
} byte_lattices[] = {
	{HZ_LATTICE_D, 4, 4, 3, HZI_KERNEL_lattice_encode_d4q4, FAST_THREADS, 4, 127},
	{HZ_LATTICE_D, 4, 2, 4, HZI_KERNEL_lattice_encode_d4q2, FAST_THREADS, 4, 62},
	{HZ_LATTICE_E8, 8, 4, 2, HZI_KERNEL_lattice_encode_e8q4, 768, 1, 118},
	{HZ_LATTICE_E8, 8, 2, 4, HZI_KERNEL_lattice_encode_e8q2, FAST_THREADS, 3, 123},
};

/* Which of these holds the points of a lattice, or NULL */
static const struct byte_lattice *find_bytes(const struct hzi_lattice_rule *r)
{
	const int unit = r->kind == HZ_LATTICE_E8 ? 2 : 1;
	double most = (ceil((double)r->reach) + 1) * unit;

	for (int i = 0; i < r->d; i++)
		most = fmax(most, (ceil((double)r->reach) + 1) * unit + abs(r->offset[i]));
	for (size_t i = 0; i < sizeof(byte_lattices) / sizeof(byte_lattices[0]); i++) {
		const struct byte_lattice *b = &byte_lattices[i];

		if (r->kind == b->kind && r->d == b->d && r->q == b->q &&
		    r->levels <= b->most_levels && most <= b->most)
			return b;
	}
	return NULL;
}

bool hzi_cuda_lattice_bytes(const struct hzi_lattice_rule *r)
{
	return r->q == 4 && !(r->flags & HZI_LATTICE_MAPPED) && find_bytes(r);
}

static const struct byte_lattice *find_byte_lattice(const struct hzi_lattice_encode_args *a)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;

	if (a->matrices || a->pack != HZ_LATTICE_LEVEL || r->policy == HZ_LATTICE_BANK ||
	    r->policy == HZ_LATTICE_GROUP ||
	    !is_flat(&a->map, r, a->x, hz_dtype_size(a->x_dtype), a->codes,
		     hz_dtype_size(a->code_dtype), r->levels, a->t != NULL))
		return NULL;
	return find_bytes(r);
}

int hzi_cuda_lattice_clear(struct hz_context *ctx, int64_t *overload)
{
	const struct hzi_lattice_clear clear = {.overload = (uint64_t *)overload};
	const struct hzi_launch one = {.block = {32}, .early = true};

	return hzi_cuda_launch(ctx, "lattice_encode", HZI_KERNEL_lattice_clear, &one, &clear,
			       sizeof(clear));
}

static int encode_fast(struct hz_context *ctx, const struct hzi_lattice_encode_args *a,
		       const struct byte_lattice *b)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	struct hzi_lattice_fast p = {
		.rule = *r, .x = a->x, .codes = a->codes, .t = a->t,
		.overload = (uint64_t *)a->overload, .code_level = a->map.code_level,
		.blocks = (uint32_t)(a->map.blocks * hzi_cuda_lattice_rows(&a->map)),
		.code_block = (uint32_t)a->map.code_block, .dtype = a->x_dtype,
		.plain = a->x_dtype == HZ_F16 && r->levels == 2 && a->map.code_block == 2 &&
			 a->map.code_level == 1 && !(r->flags & HZI_LATTICE_DITHERED),
	};
	const struct hzi_launch launch = {
		.grid = {hzi_cuda_lattice_grid(ctx, p.blocks, b->threads, b->sm_blocks)},
		.block = {(unsigned)b->threads}, .early = true,
	};

	for (int i = 0; i < r->d; i++)
		p.offset[r->d == 8 ? i & 1 : 0] += (uint32_t)r->offset[i]
						   << (r->d == 8 ? 3 - i / 2 : i) * 8;
	if (a->overload)
		HZ_CHECK(hzi_cuda_lattice_clear(ctx, a->overload));
	return hzi_cuda_launch(ctx, "lattice_encode", b->kernel, &launch, &p, sizeof(p));
}

/* ---- Anything ------------------------------------------------------------------------------ */

struct hzi_lattice_codes hzi_cuda_lattice_codes(const struct hzi_lattice_map *map,
						const void *codes, int dtype, int pack)
{
	struct hzi_lattice_codes c = {
		.codes = (void *)(uintptr_t)codes, .block = map->code_block,
		.level = map->code_level, .bytes = (int32_t)hz_dtype_size(dtype), .pack = pack,
	};

	memcpy(c.stride, map->code_stride, sizeof(c.stride));
	return c;
}

/* Units are so many blocks of a row. */
static struct hzi_lattice_any make_any(const struct hz_lattice *l,
				       const struct hzi_lattice_map *map, int64_t unit)
{
	struct hzi_lattice_any p = {
		.rule = l->rule, .row_units = ceil_div(map->blocks, unit), .n = map->n,
		.blocks = map->blocks, .v_step = map->v_step, .v_block = map->v_block,
		.v_level = map->v_level, .t_step = map->t_step, .ndim = map->ndim,
	};

	p.units = p.row_units * hzi_cuda_lattice_rows(map);
	memcpy(p.shape, map->shape, sizeof(p.shape));
	memcpy(p.v_stride, map->v_stride, sizeof(p.v_stride));
	memcpy(p.t_stride, map->t_stride, sizeof(p.t_stride));
	return p;
}

static int launch_any(struct hz_context *ctx, const char *op, int kernel, int mapped_kernel,
		      const struct hzi_lattice_any *p, const struct hzi_lattice_matrices *m)
{
	const struct hzi_launch launch = {
		.grid = {hzi_cuda_lattice_grid(ctx, p->units, HZI_LATTICE_THREADS, 16)},
		.block = {HZI_LATTICE_THREADS},
	};

	if (m) {
		const struct hzi_lattice_mapped mapped = {.any = *p, .matrices = *m};

		return hzi_cuda_launch(ctx, op, mapped_kernel, &launch, &mapped, sizeof(mapped));
	}
	return hzi_cuda_launch(ctx, op, kernel, &launch, p, sizeof(*p));
}

int hzi_cuda_lattice_encode(struct hz_context *ctx, const struct hzi_lattice_encode_args *a)
{
	const struct byte_lattice *b = find_byte_lattice(a);
	struct hzi_lattice_any p;
	int status;

	if (b)
		return encode_fast(ctx, a, b);
	status = hzi_cuda_lattice_near_encode(ctx, a);
	if (status <= 0)
		return status;
	if (a->overload)
		HZ_CHECK(hzi_cuda_fill(ctx, a->overload, 0, 2 * sizeof(int64_t)));
	p = make_any(a->lattice, &a->map, a->lattice->rule.group);
	p.codes = hzi_cuda_lattice_codes(&a->map, a->codes, a->code_dtype, a->pack);
	p.v = (void *)(uintptr_t)a->x;
	p.v_dtype = a->x_dtype;
	p.t = a->t;
	p.overload = (uint64_t *)a->overload;
	return launch_any(ctx, "lattice_encode", HZI_KERNEL_lattice_encode_any,
			  HZI_KERNEL_lattice_encode_mapped, &p, a->matrices);
}

size_t hzi_cuda_lattice_encode_workspace(const struct hz_context *ctx,
					 const struct hzi_lattice_encode_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

/* ---- Decoding ------------------------------------------------------------------------------ */

/*
 * Fills p->table with leaders less the least of all coordinates, which must leave 8 bits to the sum
 * of the levels with their weights. Returns what was added, or -1.
 */
static int make_table(const struct hz_lattice *l, double weights, struct hzi_lattice_values *p)
{
	const struct hzi_lattice_rule *r = &l->rule;
	const int bits = r->d == 4 ? 8 : 4;
	int low = 0, high = 0;

	if (r->level_size == 0 || r->level_size > 256 || !l->leaders)
		return -1;
	for (int i = 0; i < (int)r->level_size * r->d; i++) {
		low = l->leaders[i] < low ? l->leaders[i] : low;
		high = l->leaders[i] > high ? l->leaders[i] : high;
	}
	if (high - low >= 1 << bits || (high - low) * weights > 255)
		return -1;
	/* Codes from q^d on count modulo it. */
	for (int i = 0; i < 256; i++) {
		const int32_t *leader = l->leaders + i % (int)r->level_size * r->d;

		for (int j = 0; j < r->d; j++)
			p->table[i] |= (uint32_t)(leader[j] - low) << bits * j;
	}
	return -low;
}

static int dtype_index(int dtype)
{
	return dtype == HZ_F32 ? 0 : dtype == HZ_F16 ? 1 : dtype == HZ_BF16 ? 2 : 3;
}

/* Fills *p and returns the first of its four kernels in gpu/lattice/contiguous_d4_e8.cu, or -1. */
static int make_values(const struct hzi_lattice_decode_args *a, struct hzi_lattice_values *p)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const float unit = r->kind == HZ_LATTICE_E8 ? 0.5f : 1.0f;
	const int levels = r->levels - a->first;
	const bool e8q4 = r->kind == HZ_LATTICE_E8 && r->q == 4;
	double weights = 0, weight = 1, lowest = 1;
	int added = 8;

	if (a->to != HZ_LATTICE_VALUES || a->pack != HZ_LATTICE_LEVEL || a->matrices ||
	    (r->d != 4 && r->d != 8) || levels > (e8q4 ? 2 : 4) || (r->group & (r->group - 1)) ||
	    !is_aligned(a->y, 16) ||
	    !is_flat(&a->map, r, a->y, hz_dtype_size(a->y_dtype), a->codes,
		     hz_dtype_size(a->code_dtype), levels, a->t != NULL))
		return -1;
	/* Two blocks of 4 are read as one number. */
	if (r->d == 4 && a->map.code_block == levels && !is_aligned(a->codes, 2 * (size_t)levels))
		return -1;
	for (int m = 0; m < levels; m++) {
		weights += weight;
		weight *= r->q;
	}
	for (int m = 0; m < a->first; m++)
		lowest *= r->q;
	*p = (struct hzi_lattice_values){
		.codes = a->codes, .t = a->t, .y = a->y, .code_level = a->map.code_level,
		.blocks = (uint32_t)(a->map.blocks * hzi_cuda_lattice_rows(&a->map)),
		.code_block = (uint32_t)a->map.code_block, .levels = levels, .q = r->q,
		.unit = (float)(unit * lowest),
	};
	while (1 << p->group_shift < r->group)
		p->group_shift++;
	if (!e8q4 && (added = make_table(a->lattice, weights, p)) < 0)
		return -1;
	for (int i = 0; i < r->d; i++) {
		const double base = unit * ((32768 + added * weights) * lowest + r->offset[i]);

		const uint32_t minus = (uint32_t)(added * (int)weights + r->offset[i]) & 0xff;

		p->minus[r->d == 8 ? i & 1 : 0] |= minus << (r->d == 8 ? i / 2 : i) * 8;
		p->base[i] = (float)base;
		p->sub[i] = a->sub[i];
		/* n unit - base is then exact, as the coordinates are. */
		if (p->base[i] != base)
			return -1;
	}
	for (int t = 0; t < HZI_LATTICE_SCALES; t++)
		p->scale[t] = r->scale[t < r->scales ? t : r->scales - 1];
	return e8q4 ? HZI_KERNEL_lattice_decode_e8q4_f32 :
	       r->d == 4 ? HZI_KERNEL_lattice_decode_d4_f32 : HZI_KERNEL_lattice_decode_d8_f32;
}

/* By tables of leaders; 1: they do not take the call. */
static int decode_table(struct hz_context *ctx, const struct hzi_lattice_decode_args *a)
{
	struct hzi_lattice_values values;
	const int kernel = make_values(a, &values);
	/* Larger blocks share larger tables. */
	const bool e8q4 = kernel == HZI_KERNEL_lattice_decode_e8q4_f32;
	const int dtype = dtype_index(a->y_dtype);
	const int threads = !e8q4 ? FAST_THREADS : dtype ? 1024 : 512;
	const int sm_blocks = !e8q4 ? 8 : dtype ? 2 : 3;
	struct hzi_launch launch = {.block = {(unsigned)threads}, .early = true};

	if (kernel < 0)
		return 1;
	launch.grid[0] = hzi_cuda_lattice_grid(ctx, values.blocks, threads, sm_blocks);
	return hzi_cuda_launch(ctx, "lattice_decode", kernel + dtype, &launch, &values,
			       sizeof(values));
}

int hzi_cuda_lattice_bytes_of(struct hz_context *ctx, const struct hzi_lattice_decode_args *a)
{
	const int status = a->first == 0 ? decode_table(ctx, a) : 1;

	return status <= 0 ? status : hzi_cuda_lattice_near_bytes(ctx, a);
}

/*
 * Where all digits of a level are 8, 16 or 32 bits, other packings hold levels as LEVEL does, but
 * for gaps: says so, and where the first one is.
 */
static bool see_levels(struct hzi_lattice_decode_args *a)
{
	const struct hzi_lattice_rule *r = &a->lattice->rule;
	const int bits = r->log2q * r->d, bytes = bits / 8;
	const int element = a->pack == HZ_LATTICE_FULL64 ? 8 : 4;

	if (a->pack == HZ_LATTICE_LEVEL || (bits != 8 && bits != 16 && bits != 32) ||
	    (a->pack == HZ_LATTICE_LIMBS && (32 % r->log2q || a->map.code_level != 1)))
		return false;
	a->codes = (const char *)a->codes + a->first * bytes;
	a->map.code_block *= element / bytes;
	a->map.code_level = 1;
	for (int i = 0; i < a->map.ndim; i++)
		a->map.code_stride[i] *= element / bytes;
	a->pack = HZ_LATTICE_LEVEL;
	a->code_dtype = bytes == 1 ? HZ_U8 : bytes == 2 ? HZ_U16 : HZ_U32;
	return true;
}

int hzi_cuda_lattice_decode(struct hz_context *ctx, const struct hzi_lattice_decode_args *call)
{
	struct hzi_lattice_decode_args levels = *call;
	const struct hzi_lattice_decode_args *a = see_levels(&levels) ? &levels : call;
	struct hzi_lattice_any p;
	int status = decode_table(ctx, a);

	if (status <= 0)
		return status;
	status = hzi_cuda_lattice_near_decode(ctx, a);
	if (status <= 0)
		return status;
	p = make_any(a->lattice, &a->map, 1);
	p.codes = hzi_cuda_lattice_codes(&a->map, a->codes, a->code_dtype, a->pack);
	p.v = a->y;
	p.v_dtype = a->y_dtype;
	p.t = (uint8_t *)(uintptr_t)a->t;
	p.what = a->to;
	p.first = a->first;
	memcpy(p.sub, a->sub, sizeof(p.sub));
	return launch_any(ctx, "lattice_decode", HZI_KERNEL_lattice_decode_any,
			  HZI_KERNEL_lattice_decode_mapped, &p, a->matrices);
}

size_t hzi_cuda_lattice_decode_workspace(const struct hz_context *ctx,
					 const struct hzi_lattice_decode_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

/* ---- Repacking ----------------------------------------------------------------------------- */

int hzi_cuda_lattice_repack(struct hz_context *ctx, const struct hzi_lattice_repack_args *a)
{
	struct hzi_lattice_any p;
	const int status = hzi_cuda_lattice_near_repack(ctx, a);

	if (status <= 0)
		return status;
	p = make_any(a->lattice, &a->from, 1);
	p.codes = hzi_cuda_lattice_codes(&a->from, a->from_codes, a->from_dtype, a->from_pack);
	p.to = hzi_cuda_lattice_codes(&a->to, a->to_codes, a->to_dtype, a->to_pack);
	return launch_any(ctx, "lattice_repack", HZI_KERNEL_lattice_repack_any, 0, &p, NULL);
}

size_t hzi_cuda_lattice_repack_workspace(const struct hz_context *ctx,
					 const struct hzi_lattice_repack_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}
