/*
 * launches.c - lattice quantizers, encoding and decoding for the launch trace
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/launches.h"
#include "t/core/record.h"
#include "t/lattice/open.h"

static const double basis[] = {1.0, 0.4, 0.1, 1.2};
static const int64_t far[] = {1500, -700, 1100, 300, 0, 0, 0, 0};
static const int64_t far_z[] = {70000};

const struct quantizer quantizers[] = {
	{"Z q=16 M=1", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 1}},
	{"Z q=16 M=2", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 2}},
	{"Z q=16 M=1 /32", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 1, .policy = HZ_LATTICE_GROUP,
			    .group = 32}},
	{"Z q=16 M=2 /32", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 2, .policy = HZ_LATTICE_GROUP,
			    .group = 32}},
	{"Z far", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 1, .offset = far_z}},
	{"Z2 q=4 M=2", {.kind = HZ_LATTICE_Z, .dim = 2, .q = 4, .levels = 2}},
	{"Z4 q=4 M=2", {.kind = HZ_LATTICE_Z, .dim = 4, .q = 4, .levels = 2}},
	{"Z8 q=4 M=1", {.kind = HZ_LATTICE_Z, .dim = 8, .q = 4, .levels = 1}},
	{"Z20 q=4 M=1", {.kind = HZ_LATTICE_Z, .dim = 20, .q = 4, .levels = 1}},
	{"Z5 q=4 M=2", {.kind = HZ_LATTICE_Z, .dim = 5, .q = 4, .levels = 2}},
	{"A2 q=4 M=2", {.kind = HZ_LATTICE_A2, .q = 4, .levels = 2}},
	{"A2 q=16 M=1", {.kind = HZ_LATTICE_A2, .q = 16, .levels = 1}},
	{"A2 q=4 M=2 /64", {.kind = HZ_LATTICE_A2, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
			    .group = 64}},
	{"A2 q=16 M=1 /64", {.kind = HZ_LATTICE_A2, .q = 16, .levels = 1,
			     .policy = HZ_LATTICE_GROUP, .group = 64}},
	{"D3 q=4 M=2", {.kind = HZ_LATTICE_D, .dim = 3, .q = 4, .levels = 2}},
	{"D4 q=4 M=1", {.kind = HZ_LATTICE_D, .q = 4, .levels = 1}},
	{"D4 q=4 M=2", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}},
	{"D4 q=4 M=2 T", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_T}},
	{"D4 q=4 M=2 T 0.5", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_T,
			      .alpha = 0.5}},
	{"D4 q=4 M=2 /32", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
			    .group = 32}},
	{"D4 q=4 M=2 /16", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
			    .group = 16}},
	{"D4 q=4 M=2 /24", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
			    .group = 24}},
	{"D4 q=4 M=4", {.kind = HZ_LATTICE_D, .q = 4, .levels = 4}},
	{"D4 q=2 M=4", {.kind = HZ_LATTICE_D, .q = 2, .levels = 4}},
	{"D4 q=3 M=3", {.kind = HZ_LATTICE_D, .q = 3, .levels = 3}},
	{"D4 q=6 M=2 /128", {.kind = HZ_LATTICE_D, .q = 6, .levels = 2, .policy = HZ_LATTICE_GROUP,
			     .group = 128}},
	{"D4 q=8 M=2", {.kind = HZ_LATTICE_D, .q = 8, .levels = 2}},
	{"D4 q=12 M=1", {.kind = HZ_LATTICE_D, .q = 12, .levels = 1}},
	{"D4 q=12 M=1 T", {.kind = HZ_LATTICE_D, .q = 12, .levels = 1, .policy = HZ_LATTICE_T}},
	{"D4 far", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .offset = far}},
	{"D8 q=5 M=1", {.kind = HZ_LATTICE_D, .dim = 8, .q = 5, .levels = 1}},
	{"D8 q=4 M=2 clip", {.kind = HZ_LATTICE_D, .dim = 8, .q = 4, .levels = 2,
			     .policy = HZ_LATTICE_CLIP}},
	{"D16 q=4 M=1 T", {.kind = HZ_LATTICE_D, .dim = 16, .q = 4, .levels = 1,
			   .policy = HZ_LATTICE_T}},
	{"E8 q=2 M=1", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 1}},
	{"E8 q=2 M=2", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 2}},
	{"E8 q=2 M=4", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 4}},
	{"E8 q=2 M=4 T", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 4, .policy = HZ_LATTICE_T}},
	{"E8 q=2 M=4 /64", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 4,
			    .policy = HZ_LATTICE_GROUP, .group = 64}},
	{"E8 q=3 M=2", {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2}},
	{"E8 q=3 M=2 T", {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2, .policy = HZ_LATTICE_T}},
	{"E8 q=4 M=1", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 1}},
	{"E8 q=4 M=2", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2}},
	{"E8 q=4 M=2 T", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .policy = HZ_LATTICE_T}},
	{"E8 q=4 M=2 /32", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
			    .group = 32}},
	{"E8 q=4 M=3", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 3}},
	{"E8 q=16 M=1", {.kind = HZ_LATTICE_E8, .q = 16, .levels = 1}},
	{"E8 q=16 M=1 T", {.kind = HZ_LATTICE_E8, .q = 16, .levels = 1, .policy = HZ_LATTICE_T}},
	{"E8 q=14 M=1 /32", {.kind = HZ_LATTICE_E8, .q = 14, .levels = 1,
			     .policy = HZ_LATTICE_GROUP, .group = 32}},
	{"basis q=4 M=2", {.kind = HZ_LATTICE_BASIS, .dim = 2, .q = 4, .levels = 2,
			   .basis = basis}},
};

const size_t quantizers_count = COUNT(quantizers);

static struct opened_quantizer opened[GPUS][COUNT(quantizers)];

const struct opened_quantizer *opened_quantizer(const struct quantizer *q, int on_gpu)
{
	return &opened[on_gpu][q - quantizers];
}

void quantizers_open(void)
{
	for (int g = 0; g < GPUS; g++) {
		hz_context *const c = scenes[g].ctx;

		EACH(i, quantizers) {
			struct opened_quantizer *const o = &opened[g][i];

			if (open_lattice(c, &o->lattice, &quantizers[i].opts) != HZ_OK)
				bail("%s: %s", quantizers[i].name, hz_errmsg(c));
			hz_lattice_get_info(o->lattice, &o->info);
		}
	}
}

void quantizers_close(void)
{
	for (int g = 0; g < GPUS; g++) {
		EACH(i, quantizers)
			hz_lattice_close(opened[g][i].lattice);
	}
}

struct lattice_row {
	const struct quantizer *quantizer;
	int dtype, skew, to, pack;
	int64_t rows, blocks, gap;
	bool decode, count;
};

static int run_lattice(const void *row)
{
	const struct lattice_row *const r = row;
	const hz_lattice *const l = opened_quantizer(r->quantizer, gpu)->lattice;
	const hz_lattice_info *const info = &opened_quantizer(r->quantizer, gpu)->info;
	const hz_lattice_code_opts o = {.to = r->to, .pack = r->pack};
	const int64_t n = r->blocks * info->dim;
	hz_tensor x, c, t, counts, *scales = NULL;

	note(" %s", r->quantizer->name);
	x = r->to == HZ_LATTICE_POINTS ? V(HZ_S8, r->rows, r->blocks, info->embed) :
					 view_at(r->dtype, SHAPE(r->rows, n), r->skew);
	if (r->gap) {
		x.stride[0] += r->gap;
		note(" gap %" PRId64, r->gap);
	}
	c = r->pack == HZ_LATTICE_LIMBS ? V(HZ_U32, r->rows, r->blocks, info->limbs) :
	    r->pack == HZ_LATTICE_FULL64 ? V(HZ_U64, r->rows, r->blocks) :
	    V(info->level_dtype ? info->level_dtype : HZ_U32, r->rows, r->blocks,
	      r->quantizer->opts.levels);
	if (info->scales) {
		t = V(HZ_U8, r->rows, info->group ? (n + info->group - 1) / info->group :
						    r->blocks);
		scales = &t;
	}
	if (r->count)
		counts = V(HZ_S64, 2);
	if (r->decode) {
		RECORD(ctx, hz_lattice_decode(ctx, l, &c, scales, &x, &o), &workspace);
		return hz_lattice_decode(ctx, l, &c, scales, &x, &o);
	}
	RECORD(ctx, hz_lattice_encode(ctx, l, &x, &c, scales, r->count ? &counts : NULL, &o),
	       &workspace);
	return hz_lattice_encode(ctx, l, &x, &c, scales, r->count ? &counts : NULL, &o);
}

static int run_repack(const void *row)
{
	const struct lattice_row *const r = row;
	const hz_lattice *const l = opened_quantizer(r->quantizer, gpu)->lattice;
	const hz_lattice_info *const info = &opened_quantizer(r->quantizer, gpu)->info;
	hz_tensor full = V(HZ_U64, r->rows, r->blocks);
	const hz_tensor limbs = V(HZ_U32, r->rows, r->blocks, info->limbs);

	note(" %s", r->quantizer->name);
	return hz_lattice_repack(ctx, l, &limbs, &full, HZ_LATTICE_LIMBS, HZ_LATTICE_FULL64);
}

void trace_lattice(void)
{
	static const char *const names[] = {"lattice_encode", "lattice_decode"};

	EACH(i, quantizers) {
		const struct quantizer *const q = &quantizers[i];
		const bool full64 = opened[0][i].info.full64;

		EACH(d, floats) {
			for (int decode = 0; decode < 2; decode++) {
				const char *const name = names[decode];
				struct lattice_row r = {.quantizer = q, .dtype = floats[d],
							.rows = 4, .blocks = 120, .decode = decode};

				trace(name, run_lattice, &r);
				r.skew = (int)hz_dtype_size(floats[d]);
				if (d != 1)
					trace(name, run_lattice, &r);
				r.skew = 0;
				r.gap = 8;
				if (d == 1)
					trace(name, run_lattice, &r);
				r.gap = 0;
				r.rows = 4096;
				r.count = true;
				if (d == 2)
					trace(name, run_lattice, &r);
				r.pack = HZ_LATTICE_LIMBS;
				if (d == 0)
					trace(name, run_lattice, &r);
				r.pack = HZ_LATTICE_FULL64;
				if (d == 0 && full64)
					trace(name, run_lattice, &r);
			}
		}
		const struct lattice_row points = {.quantizer = q, .rows = 4, .blocks = 120,
						   .decode = true, .to = HZ_LATTICE_POINTS};

		trace("lattice_decode", run_lattice, &points);
		if (full64)
			trace("lattice_repack", run_repack, &points);
	}
}
