/*
 * table_s8_skinny.c - launchers of products of lattice codes and few vectors on matrix units
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "gpu/runtime/cuda.h"
#include "gpu/vlut/launch.h"
#include "gpu/vlut/table_s8_skinny.h"

#define SCALES_RATIO 4096.0f	/* of the largest and the smallest that f16 takes well */
#define MOST_K (INT32_MAX / (128 * 128))	/* so that sums of points times s8 fit 32 bits */

/* ---- Points as bytes ------------------------------------------------------------------------- */

bool hzi_cuda_vlut_bytes(const hz_lattice *l, int levels, struct hzi_vlut_bytes *b)
{
	const struct hzi_lattice_rule *r = &l->rule;
	int64_t above = 0, weight = 1;
	int low = 0, high = 0;

	b->wide = r->kind == HZI_LATTICE_E8 && r->q == 4;
	b->large = r->level_size > 256 && !b->wide;
	if (!l->leaders || (r->d != 4 && r->d != 8) || r->embed != r->d ||
	    (b->large && r->level_size > HZI_VLUT_WORDS) || (r->flags & HZI_LATTICE_MAPPED))
		return false;
	for (int64_t i = 0; i < (int64_t)r->level_size * r->d && !b->wide && !b->large; i++) {
		low = l->leaders[i] < low ? l->leaders[i] : low;
		high = l->leaders[i] > high ? l->leaders[i] : high;
	}
	if (b->wide || b->large) {
		low = -l->leader_max;
		high = l->leader_max;
	}
	/* Words of eight have 4 bits for each. */
	if (b->large && r->d == 8 && high - low > 15)
		return false;
	for (int m = 1; m < levels; m++) {
		weight *= r->q;
		above += weight;
		if (above > 255)
			return false;
	}
	for (int j = 0; j < r->d; j++) {
		/* Of the first level: its leaders and all that makes p - o + 128 of the sum */
		const int64_t first = 128 - r->offset[j] + low * above;

		if (first + low < 0 || first + high + (high - low) * above > 255)
			return false;
		b->first[j / 4] |= (uint32_t)((first + low) & 0xff) << 8 * (j % 4);
	}
	for (int i = 0; i < 256 && !b->wide && !b->large; i++) {
		const int32_t *c = l->leaders + i % (int)r->level_size * r->d;

		for (int j = 0; j < r->d; j++)
			b->leaders[i * (r->d / 4) + j / 4] |= (uint32_t)(c[j] - low) << 8 * (j % 4);
	}
	b->words = r->d / 4;
	return true;
}

/* ---- Scales as f16 --------------------------------------------------------------------------- */

uint32_t hzi_cuda_vlut_f16(float f)
{
	const uint32_t sign = f < 0 ? 0x8000 : 0;
	int e;
	const float m = frexpf(fabsf(f), &e);	/* 0.5 .. 1 */

	return f == 0 ? 0 : sign | ((uint32_t)((e + 14) << 10) + (uint32_t)lrintf((m - 0.5f) *
										  2048.0f));
}

#define NO_SHIFT 99

/* log2 of how many 32 values share T */
static int shift_of(const hz_lattice *l, const struct hzi_coded *w)
{
	const int values = l->rule.group * l->rule.d;

	for (int shift = -3; shift <= 2 && w->t_step == 1; shift++) {
		if (values == 1 << (shift + 5))
			return shift;
	}
	return NO_SHIFT;
}

bool hzi_cuda_vlut_scales(const hz_lattice *l, const struct hzi_coded *w, struct hzi_vlut_scales *s)
{
	float least = l->rule.scale[0], most = least;
	int exponent;

	*s = (struct hzi_vlut_scales){.factor = l->rule.kind == HZ_LATTICE_E8 ? 0.5f : 1.0f};
	for (int i = 0; i < w->first; i++)
		s->factor *= (float)l->rule.q;
	if (!hzi_lattice_has_t(l)) {
		s->factor *= least;
		return true;
	}
	for (int i = 1; i < l->rule.scales; i++) {
		least = l->rule.scale[i] < least ? l->rule.scale[i] : least;
		most = l->rule.scale[i] > most ? l->rule.scale[i] : most;
	}
	s->shift = shift_of(l, w);
	if (s->shift == NO_SHIFT || !(most / least <= SCALES_RATIO))
		return false;
	/* The largest becomes 0.5 to 1, so that no product leaves f16. */
	frexpf(most, &exponent);
	for (int i = 0; i < l->rule.scales; i++)
		s->of[i] = hzi_cuda_vlut_f16(ldexpf(l->rule.scale[i], -exponent)) * 0x10001u;
	s->factor = ldexpf(s->factor, exponent);
	return true;
}

/* ---- Which calls ----------------------------------------------------------------------------- */

/*
 * Kernels of one lattice dimension and number of levels, codes of one or two bytes: for few
 * vectors, for 8; with scales or -1
 */
struct kernels {
	int d, levels, bytes, plain, scaled;
};

static const struct kernels kernels[] = {
	{4, 1, 1, HZI_KERNEL_vlut_mma_d4_1, -1},
	{4, 2, 1, HZI_KERNEL_vlut_mma_d4_2, HZI_KERNEL_vlut_mma_d4_2_scaled},
	{4, 4, 1, HZI_KERNEL_vlut_mma_d4_4, -1},
	{8, 1, 1, HZI_KERNEL_vlut_mma_d8_1, -1},
	{8, 2, 1, HZI_KERNEL_vlut_mma_d8_2, -1},
	{8, 2, 2, HZI_KERNEL_vlut_mma_wide_2, HZI_KERNEL_vlut_mma_wide_2_scaled},
	{8, 4, 1, HZI_KERNEL_vlut_mma_d8_4, HZI_KERNEL_vlut_mma_d8_4_scaled},
};

/* log2 of the values that share T, of groups that the kernels know; else -1 */
static int group_of(const hz_lattice *l, const struct hzi_coded *w)
{
	const int values = l->rule.group * l->rule.d;
	const int aligned = values == 32 ? 4 : values == 64 ? 2 : 1;

	if ((values != 32 && values != 64 && values != 128) || w->k % 128 || w->t_step != 1 ||
	    (uintptr_t)w->t % (unsigned)aligned || w->t_row % aligned)
		return -1;
	return values == 32 ? 5 : values == 64 ? 6 : 7;
}

static int64_t code_bytes(const struct hzi_coded *w)
{
	return (int64_t)hz_dtype_size(w->code_dtype);
}

int64_t hzi_cuda_vlut_row_bytes(const hz_lattice *l, const struct hzi_coded *w)
{
	return (w->packed ? w->row : w->blocks * (l->rule.levels - w->first)) * code_bytes(w);
}

bool hzi_cuda_vlut_rows(const hz_lattice *l, const struct hzi_coded *w)
{
	const int64_t levels = l->rule.levels - w->first, bytes = hzi_cuda_vlut_row_bytes(l, w);

	if (hzi_cuda_vlut_bits(l, w))
		return false;
	for (int i = 0; i < l->rule.d; i++) {
		if (w->sub[i] != 0)
			return false;
	}
	/* o is not of the coarser levels, whose factor kernels apply to all. */
	for (int i = 0; i < l->rule.embed && w->first > 0; i++) {
		if (l->rule.offset[i] != 0)
			return false;
	}
	return w->level == 1 && w->block == levels && w->row * code_bytes(w) % 16 == 0 &&
	       (uintptr_t)w->codes % 16 == 0 && bytes % 16 == 0 && bytes > 0 &&
	       bytes < INT32_MAX && w->rows < INT32_MAX - 256 && w->k < INT32_MAX - 256;
}

/* How a call is done */
struct plan {
	int kernel;			/* -1: it is not taken */
	int step;			/* vectors at a time */
	int split, shares, round, chunk;
	int64_t chunks, shared;
	bool scaled, wide;
};

static struct plan plan_of(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a,
			   const struct hzi_coded *w)
{
	const struct hzi_cuda_device *g = hzi_cuda_device(ctx);
	const hz_lattice *l = a->vlut->w;
	const int levels = l->rule.levels - w->first;
	const int64_t tiles = ceil_div(w->rows, HZI_VMMA_ROWS);
	struct hzi_vlut_bytes bytes = {0};
	struct plan p = {.kernel = -1, .split = 1};
	int64_t room, columns, x_bytes, tile_bytes;
	int most, table;

	p.scaled = hzi_lattice_has_t(l) && a->y_dtype != HZ_S32;
	if (!hzi_cuda_vlut_rows(l, w) || !hzi_cuda_vlut_bytes(l, levels, &bytes) || bytes.large ||
	    (p.scaled && group_of(l, w) < 0) ||
	    (a->x_dtype == HZ_S8 && a->y_dtype != HZ_S32 && !p.scaled && w->k > MOST_K))
		return p;
	p.wide = bytes.wide;
	if (p.wide && !a->vlut->words[0])
		return p;
	table = p.wide ? HZI_VMMA_WIDE_BYTES : HZI_VMMA_TABLE_BYTES;
	p.step = a->batch < HZI_VMMA_BATCH ? (int)a->batch : HZI_VMMA_BATCH;
	most = a->x_dtype == HZ_S8 ? HZI_VMMA_BATCH : 2;
	if (p.wide && p.step > most)
		p.step = most;		/* there is no room for more */
	columns = p.step > most ? 24 : p.step == 1 ? 4 : 8;
	p.chunk = HZI_VMMA_CHUNK_BYTES * l->rule.d / levels / (int)code_bytes(w);
	p.chunks = ceil_div(w->k, p.chunk);
	tile_bytes = (int64_t)HZI_VMMA_THREADS * p.step * 4;
	room = g->shared_block_bytes - 1024 - table - 64 -
	       (p.scaled ? HZI_VMMA_SCALES_BYTES : 0) - tile_bytes;
	/* Splits of k so that x fits, and so that there is work for all */
	for (;; p.split *= 2) {
		x_bytes = ceil_div(p.chunks, p.split) * p.chunk * columns;
		if (x_bytes <= room && (tiles * p.split * 2 > g->multiprocessors ||
					p.chunks < 32 * p.split))
			break;
		if (g->sm < 90 || p.split == 8 || p.chunks < 2 * p.split) {
			if (x_bytes > room)
				return p;
			break;
		}
	}
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
		if (kernels[i].d == l->rule.d && kernels[i].levels == levels &&
		    kernels[i].bytes == code_bytes(w))
			p.kernel = p.scaled ? kernels[i].scaled : kernels[i].plain;
	}
	if (p.kernel >= 0 && p.step > most)
		p.kernel++;
	p.shares = g->multiprocessors / p.split;
	p.shares = p.shares < 1 ? 1 : p.shares < tiles ? p.shares : (int)tiles;
	p.round = (int)ceil_div(tiles, p.shares);
	if (p.round > 1 + (room - x_bytes) / tile_bytes)
		p.round = (int)(1 + (room - x_bytes) / tile_bytes);
	p.shared = 1024 + table + 64 + (p.scaled ? HZI_VMMA_SCALES_BYTES : 0) +
		   x_bytes + p.round * tile_bytes;
	return p;
}

int hzi_cuda_vlut_mma_step(const struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const struct hzi_coded w = hzi_cuda_vlut_unpacked(a->vlut->w, &a->w);
	const struct plan p = plan_of(ctx, a, &w);

	return a->vlut->route != HZ_VLUT_TABLE && p.kernel >= 0 ? p.step : 0;
}

int hzi_cuda_vlut_mma(struct hz_context *ctx, const struct hzi_vlut_gemm_args *a)
{
	const hz_lattice *l = a->vlut->w;
	const struct hzi_coded w = hzi_cuda_vlut_unpacked(l, &a->w);
	const struct plan plan = plan_of(ctx, a, &w);
	const int levels = l->rule.levels - w.first;
	struct hzi_vlut_bytes bytes = {0};
	struct hzi_vlut_mma p = {
		.codes = w.codes, .t = w.t, .row_scale = w.row_scale, .x = a->x, .y = a->y,
		.row = w.row * code_bytes(&w), .wide = a->vlut->words[0], .t_row = w.t_row,
		.row_scale_step = w.row_scale_step, .x_k = a->x_k, .x_b = a->x_b, .y_i = a->y_i,
		.y_b = a->y_b, .rows = (int32_t)w.rows,
		.k = (int32_t)w.k, .chunks = (int32_t)plan.chunks, .x_dtype = a->x_dtype,
		.y_dtype = a->y_dtype, .q = l->rule.q,
		.group_log2 = plan.scaled ? group_of(l, &w) : -1,
		.split = plan.split, .round = plan.round, .scales = l->rule.scales,
		.row_bytes = (int32_t)hzi_cuda_vlut_row_bytes(l, &w),
		.scale = (l->rule.kind == HZ_LATTICE_E8 ? 0.5f : 1.0f) *
			 (plan.scaled ? 1.0f : l->rule.scale[0]),
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)(plan.shares * plan.split)}, .block = {HZI_VMMA_THREADS},
		.shared_bytes = (unsigned)plan.shared, .cluster = (unsigned)plan.split,
		.early = true,
	};

	hzi_cuda_vlut_bytes(l, levels, &bytes);
	for (int i = 0; i < 2; i++)
		p.first[i] = bytes.first[i];
	for (int i = 0; i < HZI_VMMA_ENTRIES * bytes.words; i++)
		p.leaders[i] = bytes.leaders[i];
	for (int i = 0; i < HZI_LATTICE_SCALES; i++)
		p.scale_of[i] = l->rule.scale[i];
	for (int i = 0; i < w.first; i++)
		p.scale *= (float)l->rule.q;
	for (int64_t b = 0; b < a->batch; b += plan.step) {
		p.batch = (int32_t)(a->batch - b < plan.step ? a->batch - b : plan.step);
		p.x = (const char *)a->x + b * a->x_b * (int64_t)hz_dtype_size(a->x_dtype);
		p.y = (char *)a->y + b * a->y_b * (int64_t)hz_dtype_size(a->y_dtype);
		HZ_CHECK(hzi_cuda_launch(ctx, "vlut_gemm", plan.kernel, &launch, &p, sizeof(p)));
	}
	return HZ_OK;
}
