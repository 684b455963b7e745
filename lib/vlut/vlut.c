/*
 * vlut.c - products with lattice codes: table objects, argument checks, calls through the table
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/vlut/vlut.h"

static const int x_types[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_S8, 0};
static const int y_types[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_S32, 0};
static const int t_types[] = {HZ_U8, 0};
static const int float_types[] = {HZ_F32, HZ_F16, HZ_BF16, 0};
static const int scale_types[] = {HZ_F32, 0};

static const char open_name[] = "vlut_open", pack_name[] = "vlut_pack",
		  append_name[] = "vlut_append", gemv_name[] = "vlut_gemv",
		  gemm_name[] = "vlut_gemm", gemm2_name[] = "vlut_gemm2";

/* ---- Tables ---------------------------------------------------------------------------------- */

static int check_opts(struct hz_context *ctx, const hz_vlut_opts *o, bool two_sided)
{
	static const struct hzi_flag flags[] = {HZI_FLAG(HZ_VLUT_COMPENSATED), {0, NULL}};
	static const int one[] = {0, HZ_F32, HZ_F16, HZ_BF16, HZ_U8, HZ_U16},
			 two[] = {0, HZ_S8, HZ_S16};
	const int *allowed = two_sided ? two : one;
	const int count = two_sided ? 3 : 6;
	bool known = false;

	if (o->route < HZ_VLUT_AUTO || o->route > HZ_VLUT_DECODE)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->route is %d, must be 0 to %d", open_name,
				o->route, HZ_VLUT_DECODE);
	for (int i = 0; i < count; i++)
		known |= o->table_dtype == allowed[i];
	if (!known)
		return hzi_fail(ctx, HZ_EDTYPE, "%s: opts->table_dtype is %s, must be %s",
				open_name, hz_dtype_name(o->table_dtype),
				two_sided ? "0, s8 or s16" : "0, f32, f16, bf16, u8 or u16");
	if (o->sum != 0 && o->sum != HZ_F32 && o->sum != HZ_S32)
		return hzi_fail(ctx, HZ_EDTYPE, "%s: opts->sum is %s, must be 0, f32 or s32",
				open_name, hz_dtype_name(o->sum));
	if (o->x_format != 0 && o->x_format != HZ_S8)
		return hzi_fail(ctx, HZ_EDTYPE, "%s: opts->x_format is %s, must be 0 or s8",
				open_name, hz_dtype_name(o->x_format));
	if (o->x_format && two_sided)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->x_format is for dense x, must be 0 with a lattice of x",
				open_name);
	if (o->reserved0 != 0)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->reserved0 is %d, must be 0", open_name,
				o->reserved0);
	HZ_CHECK(hzi_check_flags(ctx, open_name, "opts->flags", o->flags, HZ_VLUT_COMPENSATED,
				 flags));
	if ((o->flags & HZ_VLUT_COMPENSATED) &&
	    (o->route == HZ_VLUT_DECODE || o->sum == HZ_S32 || o->table_dtype == HZ_U8 ||
	     o->table_dtype == HZ_U16))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: HZ_VLUT_COMPENSATED is for tables of floats and sums in f32",
				open_name);
	return hzi_check_reserved(ctx, open_name, o->reserved, 4);
}

/* For a number of values that need not be a multiple of d */
static int64_t blocks_of(int64_t k, int d)
{
	return k / d + (k % d > 0);
}

static size_t align64(int64_t bytes)
{
	return ((size_t)bytes + 63) / 64 * 64;
}

/* Whether products of points are integer products of their embedded coordinates */
static bool integral(const struct hzi_lattice_rule *w, const struct hzi_lattice_rule *x)
{
	return !(w->flags & HZI_LATTICE_MAPPED) && !(x->flags & HZI_LATTICE_MAPPED) &&
	       (w->kind == HZ_LATTICE_A2) == (x->kind == HZ_LATTICE_A2);
}

static int32_t dot(int embed, const int32_t *a, const int32_t *b)
{
	int32_t s = 0;

	for (int i = 0; i < embed; i++)
		s += a[i] * b[i];
	return s;
}

/* Fills the two-sided table on the host. */
static void fill_table(const hz_lattice *w, const hz_lattice *x, int dtype, void *table)
{
	const int64_t rows = (int64_t)w->rule.level_size, cols = (int64_t)x->rule.level_size;
	const int embed = w->rule.embed;

	for (int64_t i = 0; i < rows; i++) {
		for (int64_t j = 0; j < cols; j++) {
			const int32_t s =
				dot(embed, w->leaders + i * embed, x->leaders + j * embed);

			if (dtype == HZ_S8)
				((int8_t *)table)[i * cols + j] = (int8_t)s;
			else
				((int16_t *)table)[i * cols + j] = (int16_t)s;
		}
	}
}

/*
 * The narrowest dtype that holds every entry; 0 if there is no table, or no dtype holds its entries
 */
static int table_dtype(const hz_lattice *w, const hz_lattice *x)
{
	const struct hzi_lattice_rule *wr = &w->rule, *xr = &x->rule;
	int32_t least = 0, most = 0;

	if (!integral(wr, xr) || !w->leaders || !x->leaders ||
	    (int64_t)(wr->level_size * xr->level_size) > HZI_VLUT_TABLE)
		return 0;
	for (uint64_t i = 0; i < wr->level_size; i++) {
		for (uint64_t j = 0; j < xr->level_size; j++) {
			const int32_t s = dot(wr->embed, w->leaders + i * (uint64_t)wr->embed,
					      x->leaders + j * (uint64_t)xr->embed);

			least = s < least ? s : least;
			most = s > most ? s : most;
		}
	}
	return least >= -128 && most <= 127 ? HZ_S8 : least >= -32768 && most <= 32767 ? HZ_S16 : 0;
}

/*
 * Table for E8 with q = 4 on a GPU: doubled coordinates of leaders are odd if bit 14 of the code is
 * 1, else even, and less that bit in -8 .. 6. Half of that plus 4 has three bits; the eight
 * coordinates are stored as 16 bits and 8 bits in two arrays: coordinates 0 2 6 1 3 7, every third
 * of them without its upper bit; then 4 5 and those two bits.
 */
static void fill_e8(const int32_t *c, uint16_t *low, uint8_t *high)
{
	for (int i = 0; i < 65536; i++, c += 8) {
		uint32_t u[8];

		for (int e = 0; e < 8; e++)
			u[e] = (uint32_t)((c[e] - (i >> 14 & 1)) / 2 + 4);
		low[i] = (uint16_t)(u[0] | u[2] << 3 | (u[6] & 3) << 6 | u[1] << 8 | u[3] << 11 |
				    (u[7] & 3) << 14);
		high[i] = (uint8_t)(u[4] | u[5] << 3 | u[6] >> 2 << 6 | u[7] >> 2 << 7);
	}
}

static void fill_leaders(const hz_lattice *l, uint8_t *to)
{
	const int d = l->rule.d;
	const int32_t *c = l->leaders;

	for (uint64_t i = 0; i < l->rule.level_size; i++, to += 4, c += d) {
		for (int e = 0; e < d; e++)
			to[e % 4] |= (uint8_t)((c[e] + l->leader_max) << e / 4 * 4);
	}
}

/* On a GPU: the leaders that its kernels look up */
static int make_leaders(struct hz_context *ctx, const hz_lattice *l, void **words)
{
	const struct hzi_lattice_rule *r = &l->rule;
	const bool e8 = r->kind == HZI_LATTICE_E8 && r->q == 4;
	const size_t bytes = e8 ? (size_t)3 << 16 : 4 * (size_t)r->level_size;
	void *host;
	int status;

	if (!l->leaders || (!e8 && (r->embed != r->d || (r->d != 4 && r->d != 8) ||
				    r->level_size <= 256 || r->level_size > HZI_VLUT_WORDS)))
		return HZ_OK;
	HZ_CHECK(hz_alloc(ctx, &host, bytes, HZ_CPU));
	memset(host, 0, bytes);
	if (e8)
		fill_e8(l->leaders, host, (uint8_t *)host + 2 * 65536);
	else
		fill_leaders(l, host);
	status = hz_alloc(ctx, words, bytes, ctx->device);
	if (status == HZ_OK)
		status = ctx->gpu->copy(ctx, *words, ctx->device, host, HZ_CPU, bytes);
	if (status == HZ_OK)
		status = hz_sync(ctx);
	hz_free(ctx, host, HZ_CPU);
	return status;
}

/*
 * For 16-bit codes on the CPU: leaders times q^m, of at most 8 bytes each. *words stays NULL if
 * there is no table of leaders, if they are larger, or if they fit registers.
 */
static int make_words(struct hz_context *ctx, const hz_lattice *l, void **words)
{
	const struct hzi_lattice_rule *r = &l->rule;
	uint32_t weight = 1;
	uint8_t *to;

	if (ctx->device != HZ_CPU)
		return make_leaders(ctx, l, words);
	if (!l->leaders || r->level_size <= 256 || r->embed > 8)
		return HZ_OK;
	HZ_CHECK(hz_alloc(ctx, words, (size_t)(8 * r->level_size) * (size_t)r->levels, HZ_CPU));
	to = *words;
	for (int m = 0; m < r->levels; m++, weight *= (uint32_t)r->q) {
		const int32_t *c = l->leaders;

		for (uint64_t i = 0; i < r->level_size; i++, to += 8, c += r->embed) {
			for (int e = 0; e < 8; e++)
				to[e] = e < r->embed ? (uint8_t)(weight * (uint32_t)c[e]) : 0;
		}
	}
	return HZ_OK;
}

/*
 * D4 with q = 4 and two levels, multiplied by dense numbers on the CPU, unless tables are
 * requested: the bit-fields of leaders, see cpu/vlut/kern.h. Without T w is packed as these.
 */
static bool make_bitfield(hz_vlut *v)
{
	const struct hzi_lattice_rule *r = &v->w->rule;
	const bool d4 = v->ctx->device == HZ_CPU && !v->x && r->kind == HZI_LATTICE_D &&
			r->d == 4 && r->q == 4 && r->levels == 2 && v->w->leaders &&
			!v->table_dtype && v->route != HZ_VLUT_TABLE;

	v->bitfield = d4 && !hzi_lattice_has_t(v->w);
	for (int i = 0; d4 && i < 256; i++) {
		const int32_t *c = v->w->leaders + 4 * i;
		int at = 0, turned = 0;

		for (int e = 0; e < 4; e++) {
			at |= (c[e] & (e < 3 ? 3 : 2)) << 2 * e;
			turned ^= (c[e] >> 2 ^ c[e] >> 1) & 1;
		}
		v->bitfield_code_table[at | turned << 6] = (uint8_t)i;
	}
	return d4;
}

/*
 * Labels of E8, or D4 as in make_bitfield() with T for two blocks, whose scales are beta times
 * integers of 8 bits, multiplied by dense numbers on the CPU. Coordinates of D4 plus 20 are not
 * negative; those of two blocks add up to at most 80 without o and 128 with it, as those of E8 do.
 */
static void make_label(hz_vlut *v, bool d4)
{
	const struct hzi_lattice_rule *r = &v->w->rule;
	struct hzi_vlut_label_layout l = {
		.bits = d4 ? 4 : r->log2q, .unit = v->w->beta,
		.t_bits = r->scales <= (r->shaping == HZI_SHAPING_D8STAR ? 8 : 4) ? 2 : 4,
	};
	int64_t far = 0;

	d4 = d4 && r->policy == HZI_LATTICE_BANK && r->group == 2 &&
	     !(r->flags & (HZI_LATTICE_MAPPED | HZI_LATTICE_DITHERED));
	if (v->ctx->device != HZ_CPU || v->x || (!r->shaping && !d4) || r->scales > 16)
		return;
	for (int i = 0; i < 8; i++) {
		const int64_t o = r->offset[i % r->d];

		far += o < 0 ? -o : o;
		if (far > 48)
			return;
		l.bias[i] = (int8_t)(d4 ? 20 + o : (r->shaping == HZI_SHAPING_E8 ? 2 : 1) * r->q);
	}
	for (int t = 0; t < 16; t++) {
		const float s = r->scale[t < r->scales ? t : r->scales - 1];
		const double n = rint(s / l.unit);

		if (!(n >= 1 && n <= 255) || (float)(n * l.unit) != s)
			return;
		l.scale[t] = (uint8_t)n;
	}
	/* Paired, bit 3 of an index is bit 2 of T of D8STAR. */
	if (r->shaping == HZI_SHAPING_D8STAR && l.t_bits == 2)
		memcpy(l.scale + 8, l.scale + 4, 4);
	l.paired = l.bits == 4 && r->shaping != HZI_SHAPING_E8;
	v->label = l;
}

/* The table, on the context's device */
static int make_table(struct hz_context *ctx, hz_vlut *v)
{
	const size_t bytes = v->w->rule.level_size * v->x->rule.level_size *
			     hz_dtype_size(v->table_dtype);
	void *host;
	int status;

	HZ_CHECK(hz_alloc(ctx, &v->table, bytes, ctx->device));
	if (ctx->device == HZ_CPU) {
		fill_table(v->w, v->x, v->table_dtype, v->table);
		return HZ_OK;
	}
	HZ_CHECK(hz_alloc(ctx, &host, bytes, HZ_CPU));
	fill_table(v->w, v->x, v->table_dtype, host);
	status = ctx->gpu->copy(ctx, v->table, ctx->device, host, HZ_CPU, bytes);
	if (status == HZ_OK)
		status = hz_sync(ctx);
	hz_free(ctx, host, HZ_CPU);
	return status;
}

static int make_two_sided(struct hz_context *ctx, hz_vlut *v, const hz_vlut_opts *o)
{
	int holds;

	v->unit = v->w->rule.kind == HZ_LATTICE_A2 ? 2 :
		  (v->w->rule.kind == HZ_LATTICE_E8 ? 2 : 1) *
		  (v->x->rule.kind == HZ_LATTICE_E8 ? 2 : 1);
	if (v->route != HZ_VLUT_TABLE && !o->table_dtype)
		return HZ_OK;
	holds = table_dtype(v->w, v->x);
	if (!holds)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"%s: there is no table of products of these lattices: it needs "
				"named ones without transforms, and at most 2^26 entries of 16 "
				"bits",
				open_name);
	if (o->table_dtype == HZ_S8 && holds == HZ_S16)
		return hzi_fail(ctx, HZ_EDTYPE,
				"%s: opts->table_dtype is s8, must be s16 to hold all products",
				open_name);
	v->table_dtype = o->table_dtype ? o->table_dtype : holds;
	return v->route == HZ_VLUT_TABLE ? make_table(ctx, v) : HZ_OK;
}

static int64_t bits_of(float f)
{
	int32_t bits;

	memcpy(&bits, &f, 4);
	return bits;
}

/* What hz_packed says of packed codes: the lattice and how they are laid out, in one number */
static uint32_t layout_of(const hz_lattice *l, int special)
{
	const struct hzi_lattice_rule *r = &l->rule;
	const int64_t number[] = {
		HZI_OP_vlut_pack, r->kind, r->d, r->q, r->levels, r->policy, r->scales, r->group,
		r->flags & (HZI_LATTICE_MAPPED | HZI_LATTICE_DITHERED), r->shaping, special,
	};
	uint32_t h = hzi_hash(HZI_HASH, number, (int)(sizeof(number) / sizeof(*number)));

	for (int i = 0; i < HZI_LATTICE_DIMS; i++)
		h = hzi_hash(h, (int64_t[]){r->offset[i], bits_of(r->dither[i])}, 2);
	for (int i = 0; i < r->scales; i++)
		h = hzi_hash(h, &(int64_t){bits_of(r->scale[i])}, 1);
	for (int i = 0; r->flags & HZI_LATTICE_MAPPED && i < r->d * r->d; i++)
		h = hzi_hash(h, &(int64_t){bits_of(l->matrices.from[i])}, 1);
	return h;
}

int hz_vlut_open(hz_context *ctx, hz_vlut **vlut, const hz_lattice *w, const hz_lattice *x,
		 const hz_vlut_opts *opts)
{
	static const hz_vlut_opts defaults;
	const hz_vlut_opts *o = opts ? opts : &defaults;
	hz_vlut *v;
	int status = HZ_OK;

	if (vlut)
		*vlut = NULL;
	HZI_ENTER(ctx, open_name);
	if (!vlut || !w)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is NULL", open_name, vlut ? "w" : "vlut");
	HZ_CHECK(check_opts(ctx, o, x != NULL));
	if (x && x->rule.d != w->rule.d)
		return hzi_fail(ctx, HZ_EINVAL, "%s: x has blocks of %d, must have %d, as w",
				open_name, x->rule.d, w->rule.d);
	if (!x && (o->table_dtype == HZ_U8 || o->table_dtype == HZ_U16) &&
	    (!w->leaders || w->rule.level_size > 256))
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: tables of %s need q^d <= 256", open_name,
				hz_dtype_name(o->table_dtype));
	if (!x &&
	    (o->route == HZ_VLUT_TABLE || o->table_dtype || (o->flags & HZ_VLUT_COMPENSATED)) &&
	    !w->leaders)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"%s: a table needs q^d <= %d, must be route HZ_VLUT_DECODE",
				open_name, HZI_LATTICE_LEADERS);
	v = hzi_malloc(ctx, sizeof(*v), 64);
	if (!v)
		return hzi_fail(ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", open_name,
				sizeof(*v));
	*v = (hz_vlut){.ctx = ctx, .w = w, .x = x, .route = o->route, .table_dtype = o->table_dtype,
		       .sum = o->sum, .compensated = (o->flags & HZ_VLUT_COMPENSATED) != 0,
		       .unit = 1};
	if (v->compensated)
		v->route = HZ_VLUT_TABLE;
	if (x)
		status = make_two_sided(ctx, v, o);
	make_label(v, make_bitfield(v));
	v->x_by_32 = o->x_format != 0;
	v->layout[0] = layout_of(w, v->label.paired ? 2 : v->bitfield || v->label.bits);
	v->layout[1] = x ? layout_of(x, 0) : 0;
	if (status == HZ_OK)
		status = make_words(ctx, w, &v->words[0]);
	if (status == HZ_OK && x && x != w)
		status = make_words(ctx, x, &v->words[1]);
	if (status != HZ_OK) {
		hz_vlut_close(v);
		return status;
	}
	*vlut = v;
	return HZ_OK;
}

void hzi_vlut_use_planes(hz_vlut *v)
{
	if (v->label.paired)
		v->layout[0] = layout_of(v->w, 1);
	v->label.paired = false;
}

void hz_vlut_close(hz_vlut *v)
{
	if (!v)
		return;
	if (v->table)
		hz_free(v->ctx, v->table, v->ctx->device);
	for (int i = 0; i < 2; i++) {
		if (v->words[i])
			hz_free(v->ctx, v->words[i], v->ctx->device);
	}
	hzi_mfree(v->ctx, v, sizeof(*v));
}

/* ---- Coded matrices -------------------------------------------------------------------------- */

static int check_vlut(struct hz_context *ctx, const char *op, const hz_vlut *v, bool two_sided)
{
	HZI_ENTER(ctx, op);
	if (!v)
		return hzi_fail(ctx, HZ_EINVAL, "%s: vlut is NULL", op);
	if (v->ctx->device != ctx->device)
		return hzi_fail(ctx, HZ_EDEVICE, "%s: vlut is on another device than the context",
				op);
	if (two_sided != (v->x != NULL))
		return hzi_fail(ctx, HZ_EINVAL, "%s: vlut was opened %s a lattice of x: %s", op,
				two_sided ? "without" : "with",
				two_sided ? "open one with it, or call hz_vlut_gemm()" :
					    "open one without it, or call hz_vlut_gemm2()");
	return HZ_OK;
}

/* Checks the shape of a view; what: what each size is */
static int check_shape(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
		       int ndim, const int64_t *wanted, const char *const *what)
{
	if (t->ndim != ndim)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d", op, name, t->ndim,
				ndim);
	for (int i = 0; i < ndim; i++) {
		if (t->shape[i] != wanted[i])
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s.shape[%d] is %lld, must be %lld, %s", op, name, i,
					(long long)t->shape[i], (long long)wanted[i], what[i]);
	}
	return HZ_OK;
}

static int check_layout(struct hz_context *ctx, const char *op, const char *packed,
			const char *name, const hz_packed *p, uint32_t layout)
{
	HZ_CHECK(hzi_check_packed(ctx, op, packed, "hz_vlut_pack", 2, p));
	return p->layout == layout ? HZ_OK :
	       hzi_fail(ctx, HZ_EINVAL,
			"%s: %s is of another lattice or layout, must be packed by hz_vlut_pack() "
			"for the %s of this vlut", op, packed, name);
}

/* Checks c->packed against the lattice, and c->rows and k against it. */
static int check_packed(struct hz_context *ctx, const char *op, const char *name,
			const hz_coded *c, uint32_t layout)
{
	const hz_packed *p = c->packed;
	char packed[24] = "w->packed";

	packed[0] = name[0];
	HZ_CHECK(check_layout(ctx, op, packed, name, p, layout));
	if (c->rows < 0 || c->rows > p->shape[0])
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s->rows is %lld, must be 0 to %lld, the rows "
				"packed", op, name, (long long)c->rows, (long long)p->shape[0]);
	if (c->k != 0 && c->k != p->shape[1])
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s->k is %lld, must be 0 or %lld, as packed",
				op, name, (long long)c->k, (long long)p->shape[1]);
	if (c->t || c->codes.data)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: %s->packed is given, and %s too: must be one of them", op,
				name, c->t ? "t" : "codes");
	return HZ_OK;
}

/* Checks the codes and T of a matrix that is not packed. */
static int check_coded_views(struct hz_context *ctx, const char *op, const char *name,
			     const hz_lattice *l, const hz_coded *c)
{
	const char *const what[] = {"the rows of codes", l->group ? "the groups of a row of codes" :
						    "the blocks of a row of codes"};
	char codes[24] = "w->codes", t[24] = "w->t";
	hz_lattice_info info;

	codes[0] = t[0] = name[0];
	hz_lattice_get_info(l, &info);
	if (!info.level_dtype)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"%s: a level has %d digits of %d, more than 32 bits: products do "
				"not take that",
				op, info.dim, info.q);
	if (c->codes.dtype != info.level_dtype &&
	    (c->codes.dtype == HZ_U64 || c->codes.dtype == HZ_U32))
		return hzi_fail(ctx, HZ_EDTYPE,
				"%s: %s.dtype is %s, must be %s, the levels: hz_lattice_repack() "
				"makes them of FULL64 and LIMBS codes", op, codes,
				hz_dtype_name(c->codes.dtype), hz_dtype_name(info.level_dtype));
	HZ_CHECK(hzi_check(ctx, op, codes, &c->codes, (int[]){info.level_dtype, 0}, false));
	if (c->codes.ndim != 3)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be 3", op, codes,
				c->codes.ndim);
	if (c->codes.shape[2] != info.levels &&
	    !(c->use_levels && c->codes.shape[2] == c->use_levels))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[2] is %lld, must be %d, the levels",
				op, codes, (long long)c->codes.shape[2], info.levels);
	if (c->rows != 0 && c->rows != c->codes.shape[0])
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: %s->rows is %lld, must be 0 or %lld, as codes have", op, name,
				(long long)c->rows, (long long)c->codes.shape[0]);
	if (!hzi_lattice_has_t(l)) {
		if (c->t)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: %s is given, must be NULL: the policy has one scale",
					op, t);
		return HZ_OK;
	}
	HZ_CHECK(hzi_check(ctx, op, t, c->t, t_types, false));
	return check_shape(ctx, op, t, c->t, 2, (int64_t[]){c->codes.shape[0],
			   blocks_of(c->codes.shape[1], l->rule.group)}, what);
}

/* Fills *out from a matrix. Its rows have c->k values, or all of all blocks. */
static int coded_args(struct hz_context *ctx, const char *op, const hz_vlut *v, bool is_x,
		      const hz_coded *c, struct hzi_coded *out)
{
	const char *const name = is_x ? "x" : "w";
	const hz_lattice *l = is_x ? v->x : v->w;
	const int d = l->rule.d, levels = l->rule.levels;
	hz_lattice_info info;
	hz_tensor codes, t;

	if (!c)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is NULL", op, name);
	HZ_CHECK(hzi_check_reserved(ctx, op, c->reserved, 2));
	if (c->use_levels < 0 || c->use_levels > levels)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s->use_levels is %d, must be 0 to %d", op,
				name, c->use_levels, levels);
	memset(out, 0, sizeof(*out));
	out->first = c->use_levels ? levels - c->use_levels : 0;
	hz_lattice_get_info(l, &info);
	out->code_dtype = info.level_dtype;
	hzi_lattice_sub(l, out->first, out->sub);
	if (c->packed) {
		HZ_CHECK(check_packed(ctx, op, name, c, v->layout[is_x]));
		out->capacity = c->packed->shape[0];
		out->rows = c->rows ? c->rows : out->capacity;
		out->k = c->packed->shape[1];
		out->blocks = blocks_of(out->k, d);
		out->packed = hzi_packed_data(ctx, c->packed);
	} else {
		HZ_CHECK(check_coded_views(ctx, op, name, l, c));
		codes = hzi_canonical_strides(&c->codes);
		out->codes = hzi_data(ctx, &codes);
		out->rows = out->capacity = codes.shape[0];
		out->blocks = codes.shape[1];
		if (!hzi_mul(out->blocks, d, &out->k))
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s is too large: the length of its "
					"rows overflows", op, name);
		out->k = c->k ? c->k : out->k;
		out->row = codes.stride[0];
		out->block = codes.stride[1];
		out->level = codes.stride[2];
		if (codes.shape[2] == levels)
			out->codes = (const char *)out->codes +
				     out->first * out->level * (int64_t)hz_dtype_size(codes.dtype);
		if (c->t) {
			t = hzi_canonical_strides(c->t);
			out->t = hzi_data(ctx, &t);
			out->t_row = t.stride[0];
			out->t_step = t.stride[1];
		}
		if (out->k < 0 || blocks_of(out->k, d) != out->blocks)
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: %s has %lld blocks, must have %lld for %lld values of "
					"a row",
					op, name, (long long)out->blocks,
					(long long)(out->k < 0 ? 0 : blocks_of(out->k, d)),
					(long long)out->k);
	}
	if (c->row_scale) {
		char scale[24] = "w->row_scale";

		scale[0] = name[0];
		HZ_CHECK(hzi_check(ctx, op, scale, c->row_scale, scale_types, false));
		HZ_CHECK(check_shape(ctx, op, scale, c->row_scale, 1, &out->rows,
				     &(const char *){"the rows of the matrix"}));
		out->row_scale = hzi_data(ctx, c->row_scale);
		out->row_scale_step = hzi_canonical_strides(c->row_scale).stride[0];
	}
	return HZ_OK;
}

/* y must not overlap operands, which are read while it is written. */
static int check_coded_apart(struct hz_context *ctx, const char *op, const char *name,
			     const hz_coded *c, const hz_tensor *y)
{
	const hz_tensor packed = c->packed ? hz_tensor_1d(c->packed->data, HZ_U8, ctx->device,
							  (int64_t)c->packed->bytes) : c->codes;

	HZ_CHECK(hzi_check_apart(ctx, op, name, &packed, "y", y));
	if (c->t)
		HZ_CHECK(hzi_check_apart(ctx, op, name, c->t, "y", y));
	if (c->row_scale)
		HZ_CHECK(hzi_check_apart(ctx, op, name, c->row_scale, "y", y));
	return HZ_OK;
}

/* ---- Packing --------------------------------------------------------------------------------- */

/* Rows to append to: no codes, but rows and k */
static bool has_no_codes(const hz_coded *w)
{
	return !w->codes.ndim && !w->codes.data && !w->t && (w->rows || w->k);
}

static int empty_args(struct hz_context *ctx, const hz_vlut *v, const hz_coded *w,
		      struct hzi_coded *out)
{
	hz_lattice_info info;
	int64_t count;

	HZ_CHECK(hzi_check_reserved(ctx, pack_name, w->reserved, 2));
	hz_lattice_get_info(v->w, &info);
	if (!info.level_dtype)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: a level has %d digits of %d, more than 32 "
				"bits: products do not take that", pack_name, info.dim, info.q);
	/* Codes, T and padding are at most 4 bytes a level and value. */
	if (w->rows < 0 || w->k < 0 || !hzi_mul(w->rows + 64, w->k + 1024, &count) ||
	    !hzi_mul(count, 8 * (int64_t)info.levels, &count))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: w->rows is %lld and w->k %lld, must not be "
				"negative, and take less than 2^63 bytes", pack_name,
				(long long)w->rows, (long long)w->k);
	*out = (struct hzi_coded){
		.code_dtype = info.level_dtype, .rows = w->rows, .capacity = w->rows, .k = w->k,
		.blocks = blocks_of(w->k, v->w->rule.d),
	};
	return HZ_OK;
}

static int pack_args(struct hz_context *ctx, const hz_vlut *v, const hz_coded *w,
		     struct hzi_vlut_pack_args *a)
{
	HZI_ENTER(ctx, pack_name);
	if (!v)
		return hzi_fail(ctx, HZ_EINVAL, "%s: vlut is NULL", pack_name);
	HZ_CHECK(check_vlut(ctx, pack_name, v, v->x != NULL));
	if (w && w->packed)
		return hzi_fail(ctx, HZ_EINVAL, "%s: w->packed is given, must be codes", pack_name);
	a->vlut = v;
	a->packed = NULL;
	if (w && has_no_codes(w))
		return empty_args(ctx, v, w, &a->w);
	return coded_args(ctx, pack_name, v, false, w, &a->w);
}

int hz_vlut_pack_bytes(hz_context *ctx, const hz_vlut *v, const hz_coded *w, size_t *bytes)
{
	struct hzi_vlut_pack_args a;

	HZ_CHECK(pack_args(ctx, v, w, &a));
	if (!bytes)
		return hzi_fail(ctx, HZ_EINVAL, "%s_bytes: bytes is NULL", pack_name);
	*bytes = a.w.rows && a.w.blocks ? HZI_WORKSPACE(ctx, vlut, vlut_pack, &a) : 0;
	return HZ_OK;
}

int hz_vlut_pack(hz_context *ctx, const hz_vlut *v, const hz_coded *w, void *data, size_t bytes,
		 hz_packed *packed)
{
	struct hzi_vlut_pack_args a;
	hz_tensor blob;
	size_t need = 0;

	HZ_CHECK(pack_args(ctx, v, w, &a));
	if (!packed)
		return hzi_fail(ctx, HZ_EINVAL, "%s: packed is NULL, must be a struct to fill",
				pack_name);
	if (a.w.rows && a.w.blocks)
		need = HZI_WORKSPACE(ctx, vlut, vlut_pack, &a);
	if (bytes < need)
		return hzi_fail(ctx, HZ_EINVAL, "%s: bytes is %zu, must be at least %zu",
				pack_name, bytes, need);
	HZ_CHECK(hzi_check_packed_data(ctx, pack_name, "data", data, need));
	blob = hz_tensor_1d(data, HZ_U8, ctx->device, (int64_t)need);
	if (!has_no_codes(w))
		HZ_CHECK(hzi_check_apart(ctx, pack_name, "w->codes", &w->codes, "data", &blob));
	if (w->t)
		HZ_CHECK(hzi_check_apart(ctx, pack_name, "w->t", w->t, "data", &blob));
	a.packed = data;
	if (need)
		HZ_CHECK(HZI_CALL(ctx, vlut, vlut_pack, &a));
	*packed = (hz_packed){
		.data = data, .bytes = need, .device = ctx->device,
		.dtype = (int16_t)a.w.code_dtype, .ndim = 2, .shape = {a.w.rows, a.w.k},
		.layout = v->layout[0],
	};
	packed->check = hzi_packed_check(ctx, packed);
	return HZ_OK;
}

/* ---- Appending ------------------------------------------------------------------------------- */

struct append {
	const hz_vlut *v;
	const hz_tensor *x;
	const hz_lattice_code_opts *o;
	struct hzi_vlut_append_args *a;
	size_t codes_bytes;		/* of the scratch, with rows of lead; T follows */
};

/* Checks row, x against packed, and those of opts that matter here. */
static int check_append(struct hz_context *ctx, const hz_vlut *v, const hz_tensor *x, int64_t row,
			const hz_packed *packed, const hz_lattice_code_opts *o)
{
	hz_tensor blob;

	HZ_CHECK(check_vlut(ctx, append_name, v, v && v->x != NULL));
	if (!packed)
		return hzi_fail(ctx, HZ_EINVAL, "%s: packed is NULL", append_name);
	HZ_CHECK(check_layout(ctx, append_name, "packed", "w", packed, v->layout[0]));
	HZ_CHECK(hzi_check(ctx, append_name, "x", x, float_types, false));
	if (x->ndim != 2)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x.ndim is %d, must be 2: [rows, k]", append_name,
				x->ndim);
	if (x->shape[1] != packed->shape[1])
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x.shape[1] is %lld, must be %lld, the values of "
				"a row of packed", append_name, (long long)x->shape[1],
				(long long)packed->shape[1]);
	if (row < 0 || row > packed->shape[0] || x->shape[0] > packed->shape[0] - row)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: row is %lld, must be 0 to %lld: x has %lld "
				"rows, packed %lld", append_name, (long long)row,
				(long long)(packed->shape[0] - x->shape[0]),
				(long long)x->shape[0], (long long)packed->shape[0]);
	if (o && (o->pack || o->use_levels || o->to))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is %d, must be 0", append_name,
				o->pack ? "pack" : o->use_levels ? "use_levels" : "to",
				o->pack ? o->pack : o->use_levels ? o->use_levels : o->to);
	blob = hz_tensor_1d(packed->data, HZ_U8, ctx->device, (int64_t)packed->bytes);
	HZ_CHECK(hzi_check_apart(ctx, append_name, "x", x, "packed", &blob));
	if (!o)
		return HZ_OK;
	if (o->row_scale && o->row_scale->data && blob.data &&
	    hz_tensor_overlap(o->row_scale, &blob))
		return hzi_fail(ctx, HZ_EALIAS, "%s: opts->row_scale overlaps packed, must be "
				"apart from it", append_name);
	for (int i = 0; i < 2 && o->hadamard; i++) {
		const hz_tensor *const f = i ? o->hadamard->post : o->hadamard->pre;

		if (f && f->data && blob.data && hz_tensor_overlap(f, &blob))
			return hzi_fail(ctx, HZ_EALIAS, "%s: opts->hadamard->%s overlaps packed, "
					"must be apart from it", append_name, i ? "post" : "pre");
	}
	return HZ_OK;
}

/* scratch: codes behind HZI_VLUT_LEAD rows, then T likewise */
static int append_parts(struct hz_context *ctx, const void *parts, char *scratch)
{
	const struct append *const p = parts;
	struct hzi_vlut_append_args *const a = p->a;
	const struct hzi_coded *const w = &a->w;
	const bool has_t = hzi_lattice_has_t(p->v->w);
	const int64_t lead = HZI_VLUT_LEAD * w->row * (int64_t)hz_dtype_size(w->code_dtype);
	char *const codes_at = scratch ? scratch + lead : NULL;
	char *const t_at = scratch ? scratch + p->codes_bytes + HZI_VLUT_LEAD * w->t_row : NULL;
	hz_tensor codes = hz_tensor_3d(codes_at, w->code_dtype, ctx->device, w->rows, w->blocks,
				       w->block);
	hz_tensor t = hz_tensor_2d(t_at, HZ_U8, ctx->device, w->rows, w->t_row);
	char why[HZI_ERRMSG_BYTES];
	int status;

	status = hz_lattice_encode(ctx, p->v->w, p->x, &codes, has_t ? &t : NULL, NULL, p->o);
	if (status != HZ_OK) {
		snprintf(why, sizeof(why), "%s", hz_errmsg(ctx));
		return hzi_fail(ctx, status, "%s: %s", append_name, why);
	}
	a->w.codes = codes_at;
	a->w.t = has_t ? (const uint8_t *)t_at : NULL;
	return HZI_RUN(ctx, append_name, vlut, vlut_append, a);
}

int hz_vlut_append(hz_context *ctx, const hz_vlut *v, const hz_tensor *x, int64_t row,
		   hz_packed *packed, const hz_lattice_code_opts *opts)
{
	struct hzi_vlut_append_args a;
	struct append p = {v, x, opts, &a, 0};
	hz_lattice_info info;
	int64_t codes, t;

	HZI_ENTER(ctx, append_name);
	HZ_CHECK(check_append(ctx, v, x, row, packed, opts));
	hz_lattice_get_info(v->w, &info);
	a = (struct hzi_vlut_append_args){
		.vlut = v, .packed = hzi_packed_data(ctx, packed), .row = row,
		.w = {.code_dtype = info.level_dtype, .rows = x->shape[0], .k = x->shape[1],
		      .blocks = blocks_of(x->shape[1], info.dim), .block = info.levels, .level = 1,
		      .capacity = packed->shape[0], .t_step = 1},
	};
	a.w.row = a.w.blocks * info.levels;
	a.w.t_row = hzi_lattice_has_t(v->w) ? blocks_of(a.w.blocks, v->w->rule.group) : 0;
	if (!hzi_mul(a.w.rows + HZI_VLUT_LEAD, a.w.row * 4, &codes) ||
	    !hzi_mul(a.w.rows + HZI_VLUT_LEAD, a.w.t_row, &t) || codes > PTRDIFF_MAX / 4 ||
	    t > PTRDIFF_MAX / 4)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x is too large: its size overflows",
				append_name);
	if (!a.w.rows || !a.w.blocks)
		return HZ_OK;
	codes = codes / 4 * (int64_t)hz_dtype_size(info.level_dtype);
	p.codes_bytes = align64(codes);
	return hzi_parts(ctx, append_name, p.codes_bytes + align64(t),
			 append_parts, &p);
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Dimensions of x and y before the batch that strides do not let be part of it: calls repeat. */
struct outer {
	int ndim;
	int64_t count, shape[HZ_MAXDIM], x_stride[HZ_MAXDIM], y_stride[HZ_MAXDIM];
};

static const char *x_layout(const char *op)
{
	return op == gemv_name ? "[k]" : "[.., batch, k]";
}

/* What an activation of hz_linear_opts may be, too */
int hzi_vlut_check_activation(struct hz_context *ctx, const char *op, const char *name, int32_t a)
{
	if (a < 0 || a > HZ_ACT_GELU_TANH || a == HZ_ACT_LEAKY || a == HZ_ACT_MODRELU ||
	    a == HZ_ACT_NORMCLIP)
		return hzi_fail(ctx, HZ_EINVAL, "%s: %s is %d, must be 0, 1, 3 to 6 or 9 "
				"(HZ_ACT_NONE, _RELU, _TANH, _SIGMOID, _GELU, _SILU, _GELU_TANH)",
				op, name, a);
	return HZ_OK;
}

static int check_bias(struct hz_context *ctx, const char *op, const hz_coded *w,
		      const hz_tensor *y, int64_t rows)
{
	HZ_CHECK(hzi_check(ctx, op, "w->bias", w->bias, scale_types, false));
	HZ_CHECK(check_shape(ctx, op, "w->bias", w->bias, 1, &rows,
			     &(const char *){"the rows of the matrix"}));
	if (!hz_tensor_contiguous(w->bias))
		return hzi_fail(ctx, HZ_ESTRIDE, "%s: w->bias must be contiguous", op);
	return hzi_check_apart(ctx, op, "w->bias", w->bias, "y", y);
}

/* The transform of x; its factors are checked by hz_hadamard(). */
static int check_hadamard(struct hz_context *ctx, const char *op, const hz_hadamard_opts *h,
			  const hz_tensor *x, const hz_tensor *y)
{
	HZ_CHECK(hzi_check(ctx, op, "x", x, float_types, false));
	if (hzi_axis(h->axis, x->ndim) != x->ndim - 1)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: w->hadamard->axis is HZ_AXIS(%d), must be "
				"HZ_AXIS(-1) or 0, the last dimension", op, hzi_axis_said(h->axis));
	for (int i = 0; i < 2; i++) {
		const hz_tensor *const factors = i ? h->post : h->pre;

		if (factors && factors->data && y->data && hz_tensor_overlap(factors, y))
			return hzi_fail(ctx, HZ_EALIAS, "%s: y overlaps w->hadamard->%s, must be "
					"apart from it", op, i ? "post" : "pre");
	}
	return HZ_OK;
}

static int check_fused(struct hz_context *ctx, const char *op, const hz_coded *w,
		       const hz_tensor *x, const hz_tensor *y, int64_t rows)
{
	HZ_CHECK(hzi_vlut_check_activation(ctx, op, "w->activation", w->activation));
	if (y->dtype == HZ_S32 && (w->bias || w->activation || w->hadamard))
		return hzi_fail(ctx, HZ_EDTYPE, "%s: y.dtype is s32, must be of floats with w->%s",
				op, w->bias ? "bias" : w->activation ? "activation" : "hadamard");
	if (w->bias)
		HZ_CHECK(check_bias(ctx, op, w, y, rows));
	return w->hadamard ? check_hadamard(ctx, op, w->hadamard, x, y) : HZ_OK;
}

/*
 * Checks the length of x's rows against the rows of w: those of w->k or packed codes, or any
 * that the blocks of w can hold, which then sets a->w.k.
 */
static int check_x(struct hz_context *ctx, const char *op, const hz_lattice *l, const hz_coded *w,
		   const hz_tensor *x, struct hzi_vlut_gemm_args *a)
{
	const int last = x->ndim - 1;
	const int64_t k = x->shape[last];

	if ((w->k || w->packed) && k != a->w.k)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: x.shape[%d] is %lld, must be %lld, the values of a row of w: "
				"x is %s", op, last, (long long)k, (long long)a->w.k, x_layout(op));
	if (blocks_of(k, l->rule.d) != a->w.blocks)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: x.shape[%d] is %lld, must be %lld to %lld, what the %lld "
				"blocks of w hold: x is %s", op, last, (long long)k,
				(long long)(a->w.blocks ? (a->w.blocks - 1) * l->rule.d + 1 : 0),
				(long long)(a->w.blocks * l->rule.d), (long long)a->w.blocks,
				x_layout(op));
	a->w.k = k;
	return HZ_OK;
}

static int check_y(struct hz_context *ctx, const char *op, const hz_tensor *x, const hz_tensor *y,
		   int64_t rows)
{
	const char *layout = op == gemv_name ? "[rows]" : "[.., batch, rows]";
	const int last = y->ndim - 1;

	if (y->ndim != x->ndim)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: y.ndim is %d, must be %d, as x: y is %s", op,
				y->ndim, x->ndim, layout);
	for (int i = 0; i < last; i++) {
		if (y->shape[i] != x->shape[i])
			return hzi_fail(ctx, HZ_ESHAPE,
					"%s: y.shape[%d] is %lld, must be %lld, as x: y is %s", op,
					i, (long long)y->shape[i], (long long)x->shape[i], layout);
	}
	if (y->shape[last] != rows)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: y.shape[%d] is %lld, must be %lld, the rows of w: y is %s", op,
				last, (long long)y->shape[last], (long long)rows, layout);
	return HZ_OK;
}

/* Merges all dimensions but the last, where strides of both allow it: the last of them is batch. */
static void set_batch(const hz_tensor *x, const hz_tensor *y, struct hzi_vlut_gemm_args *a,
		      struct outer *o)
{
	int n = 0;

	for (int i = 0; i < x->ndim - 1; i++) {
		bool joins = n > 0;

		if (x->shape[i] == 1)
			continue;
		joins = joins && hzi_continues(o->x_stride[n - 1], x->stride[i], x->shape[i]) &&
			hzi_continues(o->y_stride[n - 1], y->stride[i], x->shape[i]);
		if (joins)
			n--;
		o->shape[n] = x->shape[i] * (joins ? o->shape[n] : 1);
		o->x_stride[n] = x->stride[i];
		o->y_stride[n++] = y->stride[i];
	}
	a->batch = n ? o->shape[n - 1] : 1;
	a->x_b = n ? o->x_stride[n - 1] : 0;
	a->y_b = n ? o->y_stride[n - 1] : 0;
	o->ndim = n ? n - 1 : 0;
	o->count = 1;
	for (int i = 0; i < o->ndim; i++)
		o->count *= o->shape[i];
}

/*
 * Scratch is a few bytes for each number of either side, and work a few operations for each
 * product: both must fit 63 bits.
 */
static int check_products(struct hz_context *ctx, const char *op, const struct hzi_coded *w, int d,
			  int64_t vectors)
{
	int64_t row, side, all;

	if (hzi_mul(w->blocks, d, &row) && row < INT64_MAX / 2 && w->rows < INT64_MAX / 2 &&
	    vectors < INT64_MAX / 2 && hzi_mul(w->rows + 64, row + 1024, &side) &&
	    hzi_mul(side, vectors + 64, &all) && all <= INT64_MAX >> 2)
		return HZ_OK;
	return hzi_fail(ctx, HZ_ESHAPE, "%s: x is too large: the number of products overflows", op);
}

static int gemm_args(struct hz_context *ctx, const char *op, const hz_vlut *v, const hz_coded *w,
		     const hz_tensor *x, const hz_tensor *y, struct hzi_vlut_gemm_args *a,
		     struct outer *o)
{
	hz_tensor xt, yt;

	HZ_CHECK(check_vlut(ctx, op, v, false));
	HZ_CHECK(hzi_check(ctx, op, "x", x, x_types, false));
	HZ_CHECK(hzi_check(ctx, op, "y", y, y_types, true));
	if (x->ndim < 1 || (op == gemv_name && x->ndim != 1))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x.ndim is %d, must be %s: x is %s", op,
				x->ndim, op == gemv_name ? "1" : "1 or more", x_layout(op));
	memset(a, 0, sizeof(*a));
	HZ_CHECK(coded_args(ctx, op, v, false, w, &a->w));
	HZ_CHECK(check_x(ctx, op, v->w, w, x, a));
	HZ_CHECK(check_y(ctx, op, x, y, a->w.rows));
	if (y->dtype == HZ_S32 &&
	    (x->dtype != HZ_S8 || !integral(&v->w->rule, &v->w->rule) ||
	     v->w->rule.kind == HZ_LATTICE_A2))
		return hzi_fail(ctx, HZ_EDTYPE,
				"%s: y.dtype is s32, which takes x of s8, and Z, D or E8 without a "
				"transform",
				op);
	HZ_CHECK(check_fused(ctx, op, w, x, y, a->w.rows));
	HZ_CHECK(check_coded_apart(ctx, op, "w", w, y));
	HZ_CHECK(hzi_check_apart(ctx, op, "x", x, "y", y));
	xt = hzi_canonical_strides(x);
	yt = hzi_canonical_strides(y);
	set_batch(&xt, &yt, a, o);
	HZ_CHECK(check_products(ctx, op, &a->w, v->w->rule.d, a->batch));
	a->vlut = v;
	a->x = hzi_data(ctx, x);
	a->y = hzi_data(ctx, y);
	a->bias = w->bias ? hzi_data(ctx, w->bias) : NULL;
	a->activation = w->activation;
	a->x_dtype = x->dtype;
	a->y_dtype = y->dtype;
	a->x_k = xt.stride[xt.ndim - 1];
	a->y_i = yt.stride[yt.ndim - 1];
	return HZ_OK;
}

/* The i-th of the products that a call repeats */
static struct hzi_vlut_gemm_args item(const struct hzi_vlut_gemm_args *all, const struct outer *o,
				      int64_t i)
{
	struct hzi_vlut_gemm_args a = *all;
	int64_t x = 0, y = 0;

	for (int d = o->ndim - 1; d >= 0; d--) {
		x += i % o->shape[d] * o->x_stride[d];
		y += i % o->shape[d] * o->y_stride[d];
		i /= o->shape[d];
	}
	a.x = (const char *)a.x + x * (int64_t)hz_dtype_size(a.x_dtype);
	a.y = (char *)a.y + y * (int64_t)hz_dtype_size(a.y_dtype);
	return a;
}

/* A call whose arguments are checked, without a transform of x */
static int products(struct hz_context *ctx, const char *op, const struct hzi_vlut_gemm_args *a,
		    const struct outer *o)
{
	struct hzi_vlut_gemm_args one;
	size_t bytes = 0;

	if (o->count == 1) {
		one = item(a, o, 0);
		return HZI_RUN(ctx, op, vlut, vlut_gemm, &one);
	}
	/* Those of different alignment may take different code paths. */
	for (int64_t i = 0; i < o->count; i++) {
		size_t need;

		one = item(a, o, i);
		need = HZI_WORKSPACE(ctx, vlut, vlut_gemm, &one);
		bytes = need > bytes ? need : bytes;
	}
	HZ_CHECK(hzi_workspace(ctx, op, bytes));
	for (int64_t i = 0; i < o->count && !ctx->recording; i++) {
		one = item(a, o, i);
		HZ_CHECK(HZI_CALL(ctx, vlut, vlut_gemm, &one));
	}
	return HZ_OK;
}

struct transformed {
	const char *op;
	const hz_vlut *v;
	const hz_coded *w;
	const hz_tensor *x;
	hz_tensor *y;
};

/* scratch: x as transformed, contiguous f32 */
static int multiply_transformed(struct hz_context *ctx, const void *parts, char *scratch)
{
	const struct transformed *const t = parts;
	hz_tensor x = hz_tensor_nd(scratch, HZ_F32, ctx->device, t->x->ndim, t->x->shape);
	struct hzi_vlut_gemm_args a;
	hz_coded w = *t->w;
	struct outer o;

	HZ_CHECK(hz_hadamard(ctx, t->x, &x, w.hadamard));
	w.hadamard = NULL;
	HZ_CHECK(gemm_args(ctx, t->op, t->v, &w, &x, t->y, &a, &o));
	return products(ctx, t->op, &a, &o);
}

static int gemm(struct hz_context *ctx, const char *op, const hz_vlut *v, const hz_coded *w,
		const hz_tensor *x, hz_tensor *y)
{
	const struct transformed t = {op, v, w, x, y};
	struct hzi_vlut_gemm_args a;
	struct outer o;
	int64_t bytes;

	HZ_CHECK(gemm_args(ctx, op, v, w, x, y, &a, &o));
	if (a.w.rows == 0 || a.batch == 0 || o.count == 0)
		return HZ_OK;
	if (!w->hadamard || a.w.k == 0)
		return products(ctx, op, &a, &o);
	if (!hzi_mul(hz_tensor_count(x), 4, &bytes) || bytes > PTRDIFF_MAX - 64)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x is too large: its size overflows", op);
	return hzi_parts(ctx, op, align64(bytes), multiply_transformed, &t);
}

int hz_vlut_gemv(hz_context *ctx, const hz_vlut *vlut, const hz_coded *w, const hz_tensor *x,
		 hz_tensor *y)
{
	return gemm(ctx, gemv_name, vlut, w, x, y);
}

int hz_vlut_gemm(hz_context *ctx, const hz_vlut *vlut, const hz_coded *w, const hz_tensor *x,
		 hz_tensor *y)
{
	return gemm(ctx, gemm_name, vlut, w, x, y);
}

static int gemm2_args(struct hz_context *ctx, const hz_vlut *v, const hz_coded *w,
		      const hz_coded *x, const hz_tensor *y, struct hzi_vlut_gemm2_args *a)
{
	hz_tensor yt;
	int d;

	HZ_CHECK(check_vlut(ctx, gemm2_name, v, true));
	d = v->w->rule.d;
	memset(a, 0, sizeof(*a));
	HZ_CHECK(coded_args(ctx, gemm2_name, v, false, w, &a->w));
	HZ_CHECK(coded_args(ctx, gemm2_name, v, true, x, &a->x));
	for (int i = 0; i < 2; i++) {
		const hz_coded *const c = i ? x : w;

		if (c->bias || c->activation || c->hadamard)
			return hzi_fail(ctx, HZ_EINVAL, "%s: %s->%s is given, must be 0: "
					"hz_vlut_gemm() takes it", gemm2_name, i ? "x" : "w",
					c->bias ? "bias" : c->activation ? "activation" :
					"hadamard");
	}
	/* One that does not say k has as many values as the other, if its blocks hold them. */
	if (!w->k && !w->packed && blocks_of(a->x.k, d) == a->w.blocks)
		a->w.k = a->x.k;
	if (!x->k && !x->packed && blocks_of(a->w.k, d) == a->x.blocks)
		a->x.k = a->w.k;
	if (a->x.k != a->w.k)
		return hzi_fail(ctx, HZ_ESHAPE,
				"%s: x has rows of %lld values, must be %lld, as w: both are "
				"[rows, blocks, levels]", gemm2_name, (long long)a->x.k,
				(long long)a->w.k);
	HZ_CHECK(hzi_check(ctx, gemm2_name, "y", y, y_types, true));
	HZ_CHECK(check_shape(ctx, gemm2_name, "y", y, 2, (int64_t[]){a->x.rows, a->w.rows},
			     (const char *[]){"the rows of x", "the rows of w"}));
	if (y->dtype == HZ_S32 && !integral(&v->w->rule, &v->x->rule))
		return hzi_fail(ctx, HZ_EDTYPE,
				"%s: y.dtype is s32, but points of these lattices have no integer "
				"products",
				gemm2_name);
	HZ_CHECK(check_coded_apart(ctx, gemm2_name, "w", w, y));
	HZ_CHECK(check_coded_apart(ctx, gemm2_name, "x", x, y));
	HZ_CHECK(check_products(ctx, gemm2_name, &a->w, d, a->x.rows));
	yt = hzi_canonical_strides(y);
	a->vlut = v;
	a->y = hzi_data(ctx, y);
	a->y_dtype = y->dtype;
	a->y_i = yt.stride[1];
	a->y_j = yt.stride[0];
	return HZ_OK;
}

int hz_vlut_gemm2(hz_context *ctx, const hz_vlut *vlut, const hz_coded *w, const hz_coded *x,
		  hz_tensor *y)
{
	struct hzi_vlut_gemm2_args a;

	HZ_CHECK(gemm2_args(ctx, vlut, w, x, y, &a));
	if (a.w.rows == 0 || a.x.rows == 0)
		return HZ_OK;
	return HZI_RUN(ctx, gemm2_name, vlut, vlut_gemm2, &a);
}
