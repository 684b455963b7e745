/*
 * bench.c - hurwitz bench of the lattice quantizer: encoding and decoding
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * An operation is a block. The ceiling is a copy that moves as many bytes as the call. Values are
 * Gaussian, with the scales that fit them best.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/bench.h"

enum kind { ENCODE, DECODE, POINTS, DIGITS };

enum {
	QUICK = 1,
	CPU = 2,
	GPU = 4,
	BOTH = CPU | GPU,
	FULL64 = 8,		/* codes; else LEVEL */
	LIMBS = 16
};

/* A basis of E8 in columns, passed as a custom basis */
static const double some_basis[8 * 8] = {
	2, -1, 0, 0, 0, 0, 0, .5,
	0, 1, -1, 0, 0, 0, 0, .5,
	0, 0, 1, -1, 0, 0, 0, .5,
	0, 0, 0, 1, -1, 0, 0, .5,
	0, 0, 0, 0, 1, -1, 0, .5,
	0, 0, 0, 0, 0, 1, -1, .5,
	0, 0, 0, 0, 0, 0, 1, .5,
	0, 0, 0, 0, 0, 0, 0, .5,
};

static const struct quantizer {
	const char *name;
	hz_lattice_opts opts;
} quantizers[] = {
	{"D4 q=4 M=2", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.38,
			.flags = HZ_LATTICE_CENTER, .policy = HZ_LATTICE_CLIP}},
	{"D4 q=4 M=2 T", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.181,
			  .flags = HZ_LATTICE_CENTER, .policy = HZ_LATTICE_T}},
	{"E8 q=4 M=2", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .beta = 0.38,
			.flags = HZ_LATTICE_CENTER, .policy = HZ_LATTICE_CLIP}},
	{"E8 q=4 M=2 T", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .beta = 0.216,
			  .flags = HZ_LATTICE_CENTER, .policy = HZ_LATTICE_T}},
	{"E8 q=4 M=2 group 32", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .beta = 0.15,
				 .flags = HZ_LATTICE_CENTER, .policy = HZ_LATTICE_GROUP,
				 .group = 32}},
	{"E8 q=3 M=2", {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2, .beta = 0.7,
			.flags = HZ_LATTICE_CENTER, .policy = HZ_LATTICE_CLIP}},
	{"E8 q=16 M=1 T", {.kind = HZ_LATTICE_E8, .q = 16, .levels = 1, .beta = 0.2156,
			   .policy = HZ_LATTICE_T}},
	{"E8 q=14 M=1 group 16", {.kind = HZ_LATTICE_E8, .q = 14, .levels = 1, .beta = 0.15,
				  .policy = HZ_LATTICE_GROUP, .group = 16}},
	{"D4 q=8 M=2 T", {.kind = HZ_LATTICE_D, .q = 8, .levels = 2, .beta = 0.0465,
			  .policy = HZ_LATTICE_T}},
	{"A2 q=4 M=2 T", {.kind = HZ_LATTICE_A2, .q = 4, .levels = 2, .beta = 0.25,
			  .flags = HZ_LATTICE_CENTER, .policy = HZ_LATTICE_T}},
	{"Z q=16 M=1 T", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 1, .beta = 0.2473,
			  .policy = HZ_LATTICE_T}},
	{"D4 q=4 M=2 none", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.38,
			     .flags = HZ_LATTICE_CENTER}},
	{"E8 q=4 M=2 none", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .beta = 0.38,
			     .flags = HZ_LATTICE_CENTER}},
	{"a basis of 8 T", {.kind = HZ_LATTICE_BASIS, .dim = 8, .basis = some_basis, .q = 4,
			    .levels = 2, .beta = 0.25, .policy = HZ_LATTICE_T}},
	{"e8-4.5-fast", {.preset = HZ_LATTICE_PRESET_E8_4_50_FAST}},
	{"e8-4.5", {.preset = HZ_LATTICE_PRESET_E8_4_50}},
	{"e8-4.25", {.preset = HZ_LATTICE_PRESET_E8_4_25}},
	{"e8-4.25-best", {.preset = HZ_LATTICE_PRESET_E8_4_25_BEST}},
	{"e8-2.25", {.preset = HZ_LATTICE_PRESET_E8_2_25}},
	{"d4-4.5", {.preset = HZ_LATTICE_PRESET_D4_4_50}},
};

enum {
	D4, D4_T, E8, E8_T, E8_GROUP, E8_Q3, E8_Q16, E8_Q14, D4_Q8, A2, Z, D4_WRAP, E8_WRAP, BASIS,
	E8_FAST, E8_450, E8_425, E8_BEST, E8_225, D4_450
};

static const struct row {
	enum kind kind;
	int flags, quantizer, dtype;
	int64_t n;			/* 0: as many as fit */
} rows[] = {
	{ENCODE, CPU, D4, HZ_F32, 4096},
	{ENCODE, CPU, E8, HZ_F32, 4096},
	{ENCODE, BOTH | QUICK, D4, HZ_F16, 0},
	{ENCODE, BOTH, D4, HZ_F32, 0},
	{ENCODE, BOTH, D4_T, HZ_F16, 0},
	{ENCODE, BOTH | QUICK, E8, HZ_F16, 0},
	{ENCODE, BOTH, E8, HZ_F32, 0},
	{ENCODE, BOTH, E8_T, HZ_F16, 0},
	{ENCODE, BOTH, E8_GROUP, HZ_F16, 0},
	{ENCODE, BOTH, E8_Q3, HZ_F16, 0},
	{ENCODE, BOTH, E8_Q16, HZ_F16, 0},
	{ENCODE, BOTH, E8_Q14, HZ_F16, 0},
	{ENCODE, BOTH, D4_Q8, HZ_F16, 0},
	{ENCODE, BOTH, A2, HZ_F16, 0},
	{ENCODE, BOTH, Z, HZ_F16, 0},
	{ENCODE, BOTH, D4_WRAP, HZ_F16, 0},
	{ENCODE, BOTH, E8_WRAP, HZ_F16, 0},
	{ENCODE, BOTH | QUICK, E8_FAST, HZ_F16, 0},
	{ENCODE, BOTH, E8_450, HZ_F16, 0},
	{ENCODE, BOTH, E8_425, HZ_F16, 0},
	{ENCODE, BOTH, E8_BEST, HZ_F16, 0},
	{ENCODE, BOTH, E8_225, HZ_F16, 0},
	{ENCODE, BOTH, D4_450, HZ_F16, 0},
	{DECODE, CPU, D4, HZ_F32, 4096},
	{DECODE, CPU, E8, HZ_F32, 4096},
	{DECODE, BOTH | QUICK, D4, HZ_F16, 0},
	{DECODE, BOTH, D4, HZ_F32, 0},
	{DECODE, BOTH, D4_T, HZ_F16, 0},
	{DECODE, BOTH | QUICK, E8, HZ_F16, 0},
	{DECODE, BOTH, E8, HZ_BF16, 0},
	{DECODE, BOTH, E8, HZ_F32, 0},
	{DECODE, BOTH, E8_T, HZ_F16, 0},
	{DECODE, BOTH, E8_GROUP, HZ_F16, 0},
	{DECODE, BOTH, E8_Q3, HZ_F16, 0},
	{DECODE, BOTH, E8_Q16, HZ_F16, 0},
	{DECODE, BOTH, E8_Q14, HZ_F16, 0},
	{DECODE, BOTH, D4_Q8, HZ_F16, 0},
	{DECODE, BOTH, A2, HZ_F16, 0},
	{DECODE, BOTH, Z, HZ_F16, 0},
	{DECODE, BOTH | QUICK, E8_FAST, HZ_F16, 0},
	{DECODE, BOTH, E8_450, HZ_F16, 0},
	{DECODE, BOTH, E8_425, HZ_F16, 0},
	{DECODE, BOTH, E8_225, HZ_F16, 0},
	{DECODE, BOTH, D4_450, HZ_F16, 0},
	{ENCODE, CPU, BASIS, HZ_F32, 65536},
	{DECODE, CPU, BASIS, HZ_F16, 0},
	{DECODE, CPU, D4_T, HZ_BF16, 0},
	{DECODE, CPU, D4_T, HZ_F32, 0},
	{ENCODE, CPU | FULL64, D4, HZ_F16, 0},
	{ENCODE, CPU | LIMBS, D4, HZ_F16, 0},
	{DECODE, CPU | FULL64, D4, HZ_F16, 0},
	{DECODE, CPU | LIMBS, D4, HZ_F16, 0},
	{POINTS, CPU, D4, HZ_S8, 0},
	{POINTS, CPU, D4, HZ_S16, 0},
	{POINTS, CPU, E8, HZ_S8, 0},
	{POINTS, CPU, E8_Q16, HZ_S16, 0},
	{DIGITS, CPU, D4, HZ_U8, 0},
	{DIGITS, CPU, E8, HZ_U8, 0},
};

#define ROWS (sizeof(rows) / sizeof(*rows))

static const char *op_name(const struct row *r)
{
	return r->kind == ENCODE ? "lattice_encode" : "lattice_decode";
}

struct lattice_case {
	struct bench_case c;
	hz_lattice *lattice;
	hz_lattice_code_opts opts;
	hz_tensor x, y, codes, t;
	bool has_t;
};

static int call_encode(struct bench *b, struct bench_case *c)
{
	struct lattice_case *l = (struct lattice_case *)c;
	const hz_lattice_code_opts opts = {.pack = l->opts.pack};

	return hz_lattice_encode(b->ctx, l->lattice, &l->x, &l->codes, l->has_t ? &l->t : NULL,
				 NULL, &opts);
}

static int call_decode(struct bench *b, struct bench_case *c)
{
	struct lattice_case *l = (struct lattice_case *)c;

	return hz_lattice_decode(b->ctx, l->lattice, &l->codes, l->has_t ? &l->t : NULL, &l->y,
				 &l->opts);
}

static hz_tensor codes_of(const struct row *r, const hz_lattice_info *info, int64_t blocks,
			  int device)
{
	if (r->flags & FULL64)
		return hz_tensor_1d(NULL, HZ_U64, device, blocks);
	if (r->flags & LIMBS)
		return hz_tensor_2d(NULL, HZ_U32, device, blocks, info->limbs);
	return hz_tensor_2d(NULL, info->level_dtype, device, blocks, info->levels);
}

/* The destination of decoding, in the layout of the encoded values */
static hz_tensor decoded(struct bench *b, const struct row *r, const hz_lattice_info *info,
			 int64_t blocks)
{
	const int device = hz_device(b->ctx);

	if (r->kind == POINTS)
		return hz_tensor_2d(b->y, r->dtype, device, blocks, info->embed);
	if (r->kind == DIGITS)
		return hz_tensor_3d(b->y, r->dtype, device, blocks, info->levels, info->dim);
	return hz_tensor_1d(b->x, r->dtype, device, blocks * info->dim);
}

static int make_case(struct bench *b, const struct row *r, struct lattice_case *l)
{
	const struct quantizer *q = &quantizers[r->quantizer];
	const bool integers = r->kind == POINTS || r->kind == DIGITS;
	const int device = hz_device(b->ctx), dtype = integers ? HZ_F32 : r->dtype;
	const int64_t n = r->n ? r->n : b->elements / (int64_t)hz_dtype_size(dtype);
	const char *name = r->kind == POINTS  ? " to points" :
			   r->kind == DIGITS  ? " to digits" :
			   r->flags & FULL64 ? " FULL64" :
			   r->flags & LIMBS  ? " LIMBS" : "";
	hz_lattice_info info;
	int64_t blocks;
	int status = hz_lattice_open(b->ctx, &l->lattice, &q->opts);

	if (status)
		return status;
	hz_lattice_get_info(l->lattice, &info);
	blocks = n / info.dim;
	l->has_t = info.scales > 0;
	l->opts.pack = r->flags & FULL64 ? HZ_LATTICE_FULL64 :
		       r->flags & LIMBS  ? HZ_LATTICE_LIMBS : HZ_LATTICE_LEVEL;
	l->opts.to = r->kind == POINTS ? HZ_LATTICE_POINTS :
		     r->kind == DIGITS ? HZ_LATTICE_DIGITS : HZ_LATTICE_VALUES;
	l->x = hz_tensor_1d(b->x, dtype, device, n);
	l->y = decoded(b, r, &info, blocks);
	l->codes = codes_of(r, &info, blocks, device);
	l->t = hz_tensor_1d(NULL, HZ_U8, device, info.group ? n / info.group : blocks);
	status = hz_alloc(b->ctx, &l->codes.data, hz_tensor_bytes(&l->codes), device);
	if (!status)
		status = hz_alloc(b->ctx, &l->t.data, hz_tensor_bytes(&l->t), device);
	if (!status)
		status = bench_fill(b, dtype, n, l->x);
	if (!status)
		status = call_encode(b, &l->c);
	l->c.call = r->kind == ENCODE ? call_encode : call_decode;
	l->c.moved_bytes = (double)(hz_tensor_bytes(r->kind == ENCODE ? &l->x : &l->y) +
				    hz_tensor_bytes(&l->codes) +
				    (l->has_t ? hz_tensor_bytes(&l->t) : 0));
	l->c.operations = (double)blocks;
	l->c.large = r->n == 0;
	snprintf(l->c.name, sizeof(l->c.name), "%s%s n=%lld", q->name, name, (long long)n);
	snprintf(l->c.dtype, sizeof(l->c.dtype), "%s", hz_dtype_name(r->dtype));
	bench_copy_of(b, &l->c);
	l->c.ceiling = bench_copy;
	l->c.against = b->gpu ? "device copy" : "copy";
	return status;
}

static int run_case(struct bench *b, const struct row *r)
{
	struct lattice_case l = {.c.op = op_name(r)};
	const int device = hz_device(b->ctx);
	int status;

	progress("bench: %s %s", l.c.op, quantizers[r->quantizer].name);
	status = make_case(b, r, &l);
	status = bench_made(b, &l.c, status);
	if (l.t.data)
		hz_free(b->ctx, l.t.data, device);
	if (l.codes.data)
		hz_free(b->ctx, l.codes.data, device);
	hz_lattice_close(l.lattice);
	return status;
}

int bench_lattice(struct bench *b, void (*head)(struct bench *b))
{
	int status = 0;

	for (size_t i = 0; i < ROWS && !status; i++) {
		const struct row *r = &rows[i];

		if (!(r->flags & (b->gpu ? GPU : CPU)) ||
		    !bench_wanted(b->set, op_name(r)) ||
		    (b->set->quick && !(r->flags & QUICK)))
			continue;
		head(b);
		status = run_case(b, r);
	}
	return status;
}
