/*
 * common.c - queries on a coded matrix: row layout, points as s8, scales as f16
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "gpu/vlut/launch.h"

#define SCALES_RATIO 4096.0f	/* largest to smallest scale, at most: f16 products stay accurate */

/*
 * SMs come in groups (GPCs) of 16 or 18, and one GPC may have fewer: an H200, with 132 SMs, cannot
 * run 32 clusters of four.
 */
int64_t hzi_cuda_vlut_clusters(const struct hzi_cuda_device *g, int size)
{
	const int64_t n = size == 1 ? g->sms : size == 2 ? g->sms / 2 :
			  (g->sms - 12) / 16 * (16 / size);

	return max_of(n, 1);
}

/* ---- Rows of codes --------------------------------------------------------------------------- */

int64_t hzi_cuda_vlut_row_bytes(const hz_lattice *l, const struct hzi_coded *w)
{
	return (w->packed ? w->row : w->blocks * (l->rule.levels - w->first)) *
	       (int64_t)hz_dtype_size(w->code_dtype);
}

const char *hzi_cuda_vlut_rows_unsupported(const hz_lattice *l, const struct hzi_coded *w)
{
	const int64_t levels = l->rule.levels - w->first, bytes = hzi_cuda_vlut_row_bytes(l, w);

	if (hzi_cuda_vlut_is_bit_packed(l, w))
		return "the codes are packed as bits";
	if (l->rule.shaping)
		return "the codes are labels";
	for (int i = 0; i < l->rule.d; i++) {
		if (w->sub[i] != 0)
			return "the values are not points times scales";
	}
	/* Kernels scale all levels by one factor; o would have to be excluded from it. */
	for (int i = 0; i < l->rule.embed && w->first > 0; i++) {
		if (l->rule.offset[i] != 0)
			return "coarser levels of a lattice with an offset";
	}
	if (w->level != 1 || w->block != levels)
		return "the codes of a row are not contiguous";
	if (w->row * (int64_t)hz_dtype_size(w->code_dtype) % 16 || (uintptr_t)w->codes % 16 ||
	    bytes % 16 || bytes <= 0)
		return "the rows of codes are not 16-byte aligned";
	return bytes < INT32_MAX && w->rows < INT32_MAX - 256 && w->k < INT32_MAX - 256 ? NULL :
	       "the sizes do not fit 32 bits";
}

struct hzi_vlut_bit_pack hzi_cuda_vlut_bit_pack(const struct hzi_vlut_pack_args *a, int64_t tiles,
						int64_t chunks)
{
	return (struct hzi_vlut_bit_pack){
		.codes = a->w.codes, .packed = a->packed, .rows = a->w.rows, .blocks = a->w.blocks,
		.row = a->w.row, .block = a->w.block, .level = a->w.level, .tiles = tiles,
		.chunks = chunks, .first = a->w.first,
	};
}

bool hzi_cuda_vlut_x_vectorized(const struct hzi_vlut_gemm_args *a)
{
	return a->x_k == 1 && a->w.k % 8 == 0 && (uintptr_t)a->x % 16 == 0 &&
	       (a->batch == 1 || a->x_b * (int64_t)hz_dtype_size(a->x_dtype) % 16 == 0);
}

/* ---- Points as s8 ---------------------------------------------------------------------------- */

const char *hzi_cuda_vlut_s8_unsupported(const hz_lattice *l, int levels, struct hzi_vlut_s8 *b)
{
	const struct hzi_lattice_rule *r = &l->rule;
	int low = l->leader_low, high = l->leader_high;
	int64_t above = 0, weight = 1;

	*b = (struct hzi_vlut_s8){.words = r->d / 4};
	b->e8q4 = r->kind == HZI_LATTICE_E8 && r->q == 4;
	b->many_codes = r->level_size > 256 && !b->e8q4;
	if ((r->d != 4 && r->d != 8) || r->embed != r->d || (r->flags & HZI_LATTICE_MAPPED))
		return "the lattice is not a named one of dimension 4 or 8";
	if (!l->leaders || (b->many_codes && r->level_size > HZI_VLUT_WORDS))
		return "the lattice has too many codes a level for a table";
	if (b->e8q4 || b->many_codes) {
		low = -l->leader_max;
		high = l->leader_max;
	}
	/* A leader of eight coordinates is one word of 4 bits each. */
	if (b->many_codes && r->d == 8 && high - low > 15)
		return "the leaders do not fit 4 bits";
	for (int m = 1; m < levels; m++) {
		weight *= r->q;
		above += weight;
		if (above > 255)
			return "the points do not fit s8";
	}
	for (int j = 0; j < r->d; j++) {
		/*
		 * First level: its leader plus the constant that turns the sum of bytes into p - o
		 * + 128
		 */
		const int64_t first = 128 - r->offset[j] + low * above;

		if (first + low < 0 || first + high + (high - low) * above > 255)
			return "the points do not fit s8";
		b->first[j / 4] |= (uint32_t)((first + low) & 0xff) << 8 * (j % 4);
	}
	return NULL;
}

void hzi_cuda_vlut_s8_leaders(const hz_lattice *l, const struct hzi_vlut_s8 *b, uint32_t *leaders)
{
	const struct hzi_lattice_rule *r = &l->rule;

	for (int i = 0; i < 256 && !b->e8q4 && !b->many_codes; i++) {
		const int32_t *c = l->leaders + i % (int)r->level_size * r->d;

		for (int j = 0; j < r->d; j++)
			leaders[i * b->words + j / 4] |= (uint32_t)(c[j] - l->leader_low)
							 << 8 * (j % 4);
	}
}

/* ---- Scales as f16 --------------------------------------------------------------------------- */

uint32_t hzi_cuda_vlut_f16(float f)
{
	const uint32_t sign = f < 0 ? 0x8000 : 0;
	int e;
	const float m = frexpf(fabsf(f), &e);	/* 0.5 to 1 */

	return f == 0 ? 0 : sign | ((uint32_t)((e + 14) << 10) + (uint32_t)lrintf((m - 0.5f) *
										  2048.0f));
}

#define NO_SHIFT 99

/* log2 of the values that share T, in units of 32 values */
static int shift_of(const hz_lattice *l, const struct hzi_coded *w)
{
	const int values = l->rule.group * l->rule.d;

	for (int shift = -3; shift <= 2 && w->t_step == 1; shift++) {
		if (values == 1 << (shift + 5))
			return shift;
	}
	return NO_SHIFT;
}

const char *hzi_cuda_vlut_scales_unsupported(const hz_lattice *l, const struct hzi_coded *w,
					     struct hzi_vlut_scales *s)
{
	float least = l->rule.scale[0], most = least;
	int exponent;

	*s = (struct hzi_vlut_scales){.factor = l->rule.kind == HZ_LATTICE_E8 ? 0.5f : 1.0f};
	for (int i = 0; i < w->first; i++)
		s->factor *= (float)l->rule.q;
	if (!hzi_lattice_has_t(l)) {
		s->factor *= least;
		return NULL;
	}
	for (int i = 1; i < l->rule.scales; i++) {
		least = l->rule.scale[i] < least ? l->rule.scale[i] : least;
		most = l->rule.scale[i] > most ? l->rule.scale[i] : most;
	}
	s->shift = shift_of(l, w);
	if (s->shift == NO_SHIFT)
		return "T is not contiguous or not of groups of 4 to 128 values";
	if (!(most / least <= SCALES_RATIO))
		return "the scales are too far apart for f16";
	/* Normalizes the largest scale to 0.5 .. 1, so that no product overflows f16. */
	frexpf(most, &exponent);
	for (int i = 0; i < l->rule.scales; i++)
		s->of[i] = hzi_cuda_vlut_f16(ldexpf(l->rule.scale[i], -exponent)) * 0x10001u;
	s->factor = ldexpf(s->factor, exponent);
	return NULL;
}
