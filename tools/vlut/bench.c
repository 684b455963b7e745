/*
 * bench.c - hurwitz bench of products with lattice codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Operations are 2 rows k batch, as in a dense product. W is packed. On the CPU few columns are
 * measured against a read of W in f32, which no dense product can beat, more columns against
 * multiply-adds of f32 alone; on a GPU against a copy of the codes' bytes. A large matrix is
 * replaced by several copies, used in turn, so that none is in a cache when its turn comes.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/bench_grid.h"
#include "lib/core/internal.h"

enum {
	D4, D4_GROUP, D4_T, E8, E8_GROUP, E8_T, E8_BITS, E8_Q3, E8_Q16, D4_Q8, D4_Q16, A2, A2_Q16,
	Z_Q16, E8_450_FAST, E8_450, E8_425, E8_425_BEST, E8_325_FAST, E8_325, E8_225,
};

static const struct {
	const char *name;
	hz_lattice_opts o;
} lattices[] = {
	[D4] = {"D4 q=4 M=2", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}},
	[D4_GROUP] = {"D4 q=4 M=2 /32", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2,
		      .policy = HZ_LATTICE_GROUP, .group = 32}},
	[D4_T] = {"D4 q=4 M=2 T", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2,
		  .policy = HZ_LATTICE_T}},
	[E8] = {"E8 q=4 M=2", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2}},
	[E8_GROUP] = {"E8 q=4 M=2 /32", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2,
		      .policy = HZ_LATTICE_GROUP, .group = 32}},
	[E8_T] = {"E8 q=4 M=2 T", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2,
		  .policy = HZ_LATTICE_T}},
	[E8_BITS] = {"E8 q=2 M=4", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 4}},
	[E8_Q3] = {"E8 q=3 M=2", {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2}},
	[E8_Q16] = {"E8 q=16 M=1", {.kind = HZ_LATTICE_E8, .q = 16, .levels = 1}},
	[D4_Q8] = {"D4 q=8 M=2", {.kind = HZ_LATTICE_D, .q = 8, .levels = 2}},
	[D4_Q16] = {"D4 q=16 M=1", {.kind = HZ_LATTICE_D, .q = 16, .levels = 1}},
	[A2] = {"A2 q=4 M=2", {.kind = HZ_LATTICE_A2, .q = 4, .levels = 2}},
	[A2_Q16] = {"A2 q=16 M=1", {.kind = HZ_LATTICE_A2, .q = 16, .levels = 1}},
	[Z_Q16] = {"Z q=16 M=1", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 1}},
	[E8_450_FAST] = {"e8-4.5-fast", {.preset = HZ_LATTICE_PRESET_E8_4_50_FAST}},
	[E8_450] = {"e8-4.5", {.preset = HZ_LATTICE_PRESET_E8_4_50}},
	[E8_425] = {"e8-4.25", {.preset = HZ_LATTICE_PRESET_E8_4_25}},
	[E8_425_BEST] = {"e8-4.25-best", {.preset = HZ_LATTICE_PRESET_E8_4_25_BEST}},
	[E8_325_FAST] = {"e8-3.25-fast", {.preset = HZ_LATTICE_PRESET_E8_3_25_FAST}},
	[E8_325] = {"e8-3.25", {.preset = HZ_LATTICE_PRESET_E8_3_25}},
	[E8_225] = {"e8-2.25", {.preset = HZ_LATTICE_PRESET_E8_2_25}},
};

enum {
	QUICK = 1,
	CPU = 2,
	GPU = 4,
	BOTH = CPU | GPU,
	COLD = 8,
	CODED = 16,		/* x is coded too: vlut_gemm2 */
	X_S8 = 32		/* x_format HZ_S8 */
};

static const struct row {
	int flags, lattice, table, dtype;	/* dtype: of x and y; with x of s8 y is s32 */
	int64_t rows, k, batch;
} rows[] = {
	{CPU | QUICK, D4, 0, HZ_F32, 2048, 4096, 1},		/* 4 MB of codes */
	{CPU | QUICK, D4, 0, HZ_F32, 512, 4096, 1},
	{CPU, D4, 0, HZ_F16, 2048, 4096, 1},
	{CPU | QUICK, D4, HZ_U8, HZ_F32, 2048, 4096, 1},
	{CPU, D4_GROUP, 0, HZ_F32, 2048, 4096, 1},
	{CPU, D4_GROUP, HZ_U8, HZ_F32, 2048, 4096, 1},
	{CPU, E8_BITS, 0, HZ_F32, 2048, 4096, 1},
	{CPU, E8, 0, HZ_F32, 2048, 4096, 1},
	{CPU, E8_GROUP, 0, HZ_F32, 2048, 4096, 1},
	{CPU, E8_Q16, 0, HZ_F32, 2048, 4096, 1},
	{CPU, D4_Q8, 0, HZ_F32, 2048, 4096, 1},
	{CPU, D4, HZ_F32, HZ_F32, 512, 1024, 1},
	{CPU | COLD | X_S8 | QUICK, E8_450_FAST, 0, HZ_F32, 4096, 4096, 1},
	{CPU | COLD | X_S8, E8_450_FAST, 0, HZ_F32, 4096, 14336, 1},
	{CPU | X_S8, E8_450_FAST, 0, HZ_F32, 256, 4096, 1},	/* in L2 */
	{CPU | COLD, E8_450_FAST, 0, HZ_F32, 4096, 4096, 1},
	{CPU | COLD | X_S8, E8_425, 0, HZ_F32, 4096, 14336, 1},
	{CPU | COLD | X_S8, E8_450, 0, HZ_F32, 4096, 14336, 1},
	{CPU | COLD | X_S8, E8_425_BEST, 0, HZ_F32, 4096, 14336, 1},
	{CPU | COLD | X_S8, E8_325_FAST, 0, HZ_F32, 4096, 14336, 1},
	{CPU | COLD | X_S8, E8_325, 0, HZ_F32, 4096, 14336, 1},
	{CPU | COLD | X_S8, E8_225, 0, HZ_F32, 4096, 14336, 1},
	{CPU | COLD | X_S8, E8_450_FAST, 0, HZ_F32, 4096, 4096, 8},
	{CPU | COLD | X_S8, E8_450_FAST, 0, HZ_F32, 4096, 14336, 8},
	{CPU | COLD | X_S8, E8_450_FAST, 0, HZ_F32, 4096, 4096, 32},
	{CPU | COLD | X_S8, E8_450_FAST, 0, HZ_F32, 4096, 4096, 512},
	{CPU, D4, 0, HZ_F32, 2048, 4096, 4},
	{CPU, D4, 0, HZ_F32, 2048, 4096, 32},
	{CPU, D4, 0, HZ_F32, 2048, 4096, 256},
	{BOTH | COLD, D4, 0, HZ_F32, 8192, 8192, 1},
	{CPU | COLD, D4, HZ_U8, HZ_F32, 8192, 8192, 1},
	{GPU | COLD | QUICK, E8_450_FAST, 0, HZ_F16, 4096, 4096, 1},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 11008, 4096, 1},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, E8_450_FAST, 0, HZ_BF16, 4096, 4096, 1},
	{GPU | COLD, E8_450_FAST, 0, HZ_BF16, 11008, 4096, 1},
	{GPU | COLD, E8_450_FAST, 0, HZ_BF16, 8192, 8192, 1},
	{GPU | COLD, E8_450_FAST, 0, HZ_F32, 4096, 4096, 1},
	{GPU | COLD, E8_425, 0, HZ_F16, 4096, 4096, 1},
	{GPU | COLD, E8_425, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, E8_450, 0, HZ_F16, 4096, 4096, 1},
	{GPU | COLD, E8_450, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 4096, 4096, 2},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 11008, 4096, 2},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 8192, 8192, 2},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 4096, 4096, 8},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 11008, 4096, 8},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 8192, 8192, 8},
	{GPU | COLD, E8_450_FAST, 0, HZ_BF16, 4096, 4096, 8},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 4096, 4096, 16},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 4096, 4096, 32},
	{GPU | COLD, E8_450_FAST, 0, HZ_BF16, 4096, 4096, 32},
	{GPU | COLD, E8_450_FAST, 0, HZ_F32, 4096, 4096, 8},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 4096, 4096, 64},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 4096, 4096, 256},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 4096, 4096, 512},
	{GPU | COLD, E8_450_FAST, 0, HZ_F32, 4096, 4096, 512},
	{GPU | COLD, E8_450_FAST, 0, HZ_F16, 4096, 4096, 1024},
	{GPU | COLD, E8_450_FAST, 0, HZ_BF16, 4096, 4096, 256},
	{GPU | COLD, E8_450, 0, HZ_F16, 4096, 4096, 32},
	{GPU | COLD | QUICK, D4, 0, HZ_F16, 4096, 4096, 1},
	{GPU | COLD, D4, 0, HZ_F16, 11008, 4096, 1},
	{GPU | COLD | QUICK, D4, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, D4_GROUP, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, E8, 0, HZ_F16, 4096, 4096, 1},
	{GPU | COLD, E8, 0, HZ_F16, 11008, 4096, 1},
	{GPU | COLD, E8, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, E8, 0, HZ_F16, 4096, 4096, 2},
	{GPU | COLD, E8, 0, HZ_F16, 11008, 4096, 2},
	{GPU | COLD, E8, 0, HZ_F16, 8192, 8192, 2},
	{GPU | COLD, E8, 0, HZ_F16, 8192, 8192, 8},
	{GPU | COLD, E8_GROUP, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, E8_BITS, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, E8_Q16, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, D4_Q8, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, D4_Q16, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, A2_Q16, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, Z_Q16, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, E8_Q3, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, E8_T, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, D4_T, 0, HZ_F16, 8192, 8192, 1},
	{GPU | COLD, D4_T, 0, HZ_F16, 8192, 8192, 8},
	{GPU | COLD, D4, 0, HZ_F16, 4096, 4096, 8},
	{GPU | COLD, D4, 0, HZ_F16, 11008, 4096, 8},
	{GPU | COLD, D4, 0, HZ_F16, 8192, 8192, 8},
	{GPU | COLD, D4, 0, HZ_F16, 4096, 4096, 16},
	{GPU | COLD, D4, 0, HZ_F16, 11008, 4096, 16},
	{GPU | COLD, D4, 0, HZ_F16, 8192, 8192, 16},
	{GPU | COLD, D4, 0, HZ_F16, 4096, 4096, 32},
	{GPU | COLD, D4, 0, HZ_F16, 11008, 4096, 32},
	{GPU | COLD, D4, 0, HZ_F16, 8192, 8192, 32},
	{GPU | COLD, D4, 0, HZ_F16, 4096, 4096, 64},
	{GPU | COLD, D4, 0, HZ_F16, 11008, 4096, 64},
	{GPU | COLD, D4, 0, HZ_F16, 8192, 8192, 64},
	{GPU | COLD, D4, 0, HZ_F16, 4096, 4096, 128},
	{GPU | COLD, D4, 0, HZ_F16, 11008, 4096, 128},
	{GPU | COLD, D4, 0, HZ_F16, 8192, 8192, 128},
	{GPU | COLD, D4, 0, HZ_F16, 4096, 4096, 256},
	{GPU | COLD, D4, 0, HZ_F16, 11008, 4096, 256},
	{GPU | COLD, D4, 0, HZ_F16, 8192, 8192, 256},
	{GPU | COLD, D4, 0, HZ_S8, 8192, 8192, 32},
	{BOTH | CODED | QUICK, D4, 0, HZ_F32, 2048, 4096, 512},
	{BOTH | CODED, E8, 0, HZ_F32, 2048, 4096, 512},
	{BOTH | CODED, A2, 0, HZ_F32, 2048, 4096, 512},
	{GPU | CODED, D4, 0, HZ_F32, 4096, 4096, 4096},
};

#define ROWS (sizeof(rows) / sizeof(*rows))
#define COLD_BYTES ((int64_t)320 << 20)

struct vlut_case {
	struct bench_case c;
	const struct row *row;
	hz_lattice *lattice;
	hz_vlut *vlut;
	hz_coded w, x_coded;
	hz_tensor x, y, t, x_codes;
	hz_packed packed;
	char *memory;			/* of copies of a packed matrix */
	float *dense;
	int64_t copies, next;
	size_t each;			/* bytes of a packed matrix */
};

static int product(struct bench *b, struct vlut_case *q)
{
	if (q->row->flags & CODED)
		return hz_vlut_gemm2(b->ctx, q->vlut, &q->w, &q->x_coded, &q->y);
	return hz_vlut_gemm(b->ctx, q->vlut, &q->w, &q->x, &q->y);
}

static int call_gemm(struct bench *b, struct bench_case *c)
{
	struct vlut_case *q = (struct vlut_case *)c;

	q->packed.data = q->memory + q->next++ % q->copies * (int64_t)q->each;
	return product(b, q);
}

static int call_read(struct bench *b, struct bench_case *c)
{
	const struct vlut_case *q = (struct vlut_case *)c;

	return bench_read(b, q->dense, q->row->rows * q->row->k);
}

/* Random codes of n rows, and T in 0 .. 3; the caller frees *codes and *t. */
static int make_coded(struct bench *b, struct vlut_case *q, int64_t n, hz_coded *coded,
		      void **codes, void **t)
{
	const int device = hz_device(b->ctx);
	hz_lattice_info info;
	int64_t blocks, bytes, groups;
	int status;

	hz_lattice_get_info(q->lattice, &info);
	blocks = q->row->k / info.dim;
	groups = q->row->k / (info.group ? info.group : info.dim);
	bytes = n * blocks * info.levels * (int64_t)hz_dtype_size(info.level_dtype);
	status = hz_alloc(b->ctx, codes, (size_t)bytes, device);
	if (!status)
		status = bench_fill(b, HZ_U8, bytes, hz_tensor_1d(*codes, HZ_U8, device, bytes));
	coded->codes = hz_tensor_3d(*codes, info.level_dtype, device, n, blocks, info.levels);
	if (status || !info.scales)
		return status;
	status = hz_alloc(b->ctx, t, (size_t)(n * groups), device);
	if (!status)
		status = bench_fill(b, HZ_U8, n * groups,
				    hz_tensor_1d(*t, HZ_U8, device, n * groups));
	q->t = hz_tensor_2d(*t, HZ_U8, device, n, groups);
	coded->t = &q->t;
	return status;
}

static int make_matrix(struct bench *b, struct vlut_case *q)
{
	hz_coded w = {.rows = q->row->rows, .k = q->row->k};
	void *codes = NULL, *t = NULL;
	int status = make_coded(b, q, q->row->rows, &w, &codes, &t);

	if (!status)
		status = hz_vlut_pack_bytes(b->ctx, q->vlut, &w, &q->each);
	q->each = (q->each + 255) & ~(size_t)255;
	q->copies = q->row->flags & COLD ? 1 + COLD_BYTES / (int64_t)q->each : 1;
	if (!status)
		status = hz_alloc(b->ctx, (void **)&q->memory, (size_t)q->copies * q->each,
				  hz_device(b->ctx));
	for (int64_t i = 0; i < q->copies && !status; i++)
		status = hz_vlut_pack(b->ctx, q->vlut, &w, q->memory + i * (int64_t)q->each,
				      q->each, &q->packed);
	if (!status)
		status = hz_sync(b->ctx);
	q->w = (hz_coded){.packed = &q->packed};
	if (codes)
		hz_free(b->ctx, codes, hz_device(b->ctx));
	if (t)
		hz_free(b->ctx, t, hz_device(b->ctx));
	return status;
}

static int make_x(struct bench *b, struct vlut_case *q)
{
	const struct row *r = q->row;
	const int device = hz_device(b->ctx);
	void *t = NULL, *codes = NULL;
	int status;

	q->x = hz_tensor_2d(b->x, r->dtype, device, r->batch, r->k);
	q->y = hz_tensor_2d(b->y, r->dtype == HZ_S8 ? HZ_S32 : r->dtype, device, r->batch,
			    r->rows);
	if (r->flags & CODED) {
		status = make_coded(b, q, r->batch, &q->x_coded, &codes, &t);
		q->x_codes = q->x_coded.codes;
	} else {
		status = bench_fill(b, r->dtype, r->k * r->batch, q->x);
	}
	return status ? status : WITH_WORKSPACE(b->ctx, product(b, q));
}

static int make_case(struct bench *b, struct vlut_case *q)
{
	const struct row *r = q->row;
	const hz_vlut_opts opts = {.table_dtype = r->table,
				   .x_format = r->flags & X_S8 ? HZ_S8 : 0};
	const double count = (double)r->rows * (double)r->k;
	hz_lattice_opts lattice = lattices[r->lattice].o;
	int status;

	lattice.beta = 1;		/* codes are random, not those of data */
	status = hz_lattice_open(b->ctx, &q->lattice, &lattice);
	if (!status)
		status = hz_vlut_open(b->ctx, &q->vlut, q->lattice,
				      r->flags & CODED ? q->lattice : NULL, &opts);
	if (!status)
		status = make_matrix(b, q);
	if (!status)
		status = make_x(b, q);
	q->c.call = call_gemm;
	q->c.operations = 2 * count * (double)r->batch;
	q->c.moved_bytes = (double)(q->each + hz_tensor_bytes(&q->x) + hz_tensor_bytes(&q->y));
	q->c.large = q->c.operations > 1e10;
	snprintf(q->c.name, sizeof(q->c.name), "%lldx%lldx%lld %s%s%s%s", (long long)r->rows,
		 (long long)r->batch, (long long)r->k, lattices[r->lattice].name,
		 r->table ? " tables of " : "", r->table ? hz_dtype_name(r->table) : "",
		 r->flags & X_S8 ? " x s8" : "");
	snprintf(q->c.dtype, sizeof(q->c.dtype), "%s", hz_dtype_name(r->dtype));
	if (b->gpu) {
		bench_products_of(b, &q->c,
				  r->flags & CODED || r->dtype == HZ_S8 ? HZ_S8 : r->dtype,
				  q->c.operations / 2);
	} else if (r->batch <= 4) {
		if (!status)
			status = hz_alloc(b->ctx, (void **)&q->dense, (size_t)count * 4, HZ_CPU);
		if (!status)
			status = bench_fill(b, HZ_F32, (int64_t)count,
					    hz_tensor_1d(q->dense, HZ_F32, HZ_CPU, (int64_t)count));
		q->c.ceiling = call_read;
		q->c.against = "a read of W in f32";
	} else {
		q->c.ceiling = bench_peak;
		q->c.against = "bare multiply-adds";
	}
	return status;
}

static int run_case(struct bench *b, const struct row *r)
{
	const int device = hz_device(b->ctx);
	struct vlut_case q = {.row = r, .c.op = r->flags & CODED ? "vlut_gemm2" : "vlut_gemm"};
	int status;

	progress("bench: %s", q.c.op);
	status = make_case(b, &q);
	status = bench_made(b, &q.c, status);
	if (q.dense)
		hz_free(b->ctx, q.dense, HZ_CPU);
	if (q.memory)
		hz_free(b->ctx, q.memory, device);
	if (q.x_codes.data)
		hz_free(b->ctx, q.x_codes.data, device);
	hz_vlut_close(q.vlut);
	hz_lattice_close(q.lattice);
	return status;
}

int bench_vlut(struct bench *b, void (*head)(struct bench *b))
{
	int status = 0;

	for (size_t i = 0; i < ROWS && !status; i++) {
		const struct row *r = &rows[i];
		const int64_t most = (r->k > r->rows ? r->k : r->rows) * r->batch;

		if (!(r->flags & (b->gpu ? GPU : CPU)) || most > b->elements ||
		    !bench_wanted(b->set, r->flags & CODED ? "vlut_gemm2" : "vlut_gemm") ||
		    (b->set->quick && !(r->flags & QUICK)))
			continue;
		head(b);
		status = run_case(b, r);
	}
	return status;
}

/* ---- The grid -------------------------------------------------------------------------------- */

/* Random codes of a matrix, one level after the other in a byte */
static int grid_make(struct bench *b, struct grid_case *g)
{
	const int device = hz_device(b->ctx);
	hz_lattice_opts lattice = lattices[g->op->kind].o;
	hz_coded w = {.rows = g->width, .k = g->width};
	hz_lattice_info info;
	size_t bytes;
	int status;

	lattice.beta = 1;
	status = hz_lattice_open(b->ctx, &g->lattice, &lattice);
	if (!status)
		status = hz_vlut_open(b->ctx, &g->vlut, g->lattice,
				      g->dtype == HZ_U8 ? g->lattice : NULL, NULL);
	if (status)
		return status;
	hz_lattice_get_info(g->lattice, &info);
	w.codes = hz_tensor_3d(b->y, info.level_dtype, device, g->width, g->width / info.dim,
			       info.levels);
	status = hz_vlut_pack_bytes(b->ctx, g->vlut, &w, &bytes);
	if (!status)
		status = grid_weights(b, g, (size_t)hz_tensor_bytes(&w.codes), bytes);
	w.codes.data = g->source;
	if (!status)
		status = bench_fill(b, HZ_U8, hz_tensor_bytes(&w.codes), w.codes);
	if (!status && g->packed)
		status = hz_vlut_pack(b->ctx, g->vlut, &w, g->weights, bytes, &g->pack);
	g->coded = w;
	if (g->packed)
		g->coded = (hz_coded){.packed = &g->pack};
	return status;
}

static int grid_call(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;

	if (g->packed)
		g->pack.data = grid_turn(g);
	else
		g->coded.codes.data = grid_turn(g);
	return hz_vlut_gemm(b->ctx, g->vlut, &g->coded, &g->x, &g->y);
}

/* x are codes, too: [batch, width / dim, levels] */
static int grid_call_coded(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;
	hz_lattice_info info;
	hz_coded x = {.rows = g->batch, .k = g->width};

	hz_lattice_get_info(g->lattice, &info);
	x.codes = hz_tensor_3d(g->x.data, info.level_dtype, hz_device(b->ctx), g->batch,
			       g->width / info.dim, info.levels);
	if (g->packed)
		g->pack.data = grid_turn(g);
	else
		g->coded.codes.data = grid_turn(g);
	return hz_vlut_gemm2(b->ctx, g->vlut, &g->coded, &x, &g->y);
}

const struct grid_op grid_vlut[] = {
	{"vlut_gemm", "D4 q=4 M=2", D4, {HZ_F32, HZ_F16, HZ_BF16}, .packs = true, .weights = 1,
	 .weight_bits = 4, .macs = 1, .macs_f32 = 1, .make = grid_make, .call = grid_call},
	{"vlut_gemm", "E8 q=4 M=2", E8, {HZ_F32, HZ_F16, HZ_BF16}, .packs = true, .weights = 1,
	 .weight_bits = 4, .macs = 1, .macs_f32 = 1, .make = grid_make, .call = grid_call},
	{"vlut_gemm2", "D4 q=4 M=2", D4, {HZ_U8}, .y_dtype = HZ_F32, .packs = true,
	 .contiguous = true, .x_width = 0.5, .weights = 1, .weight_bits = 4, .macs = 1,
	 .mac_dtype = HZ_S8, .make = grid_make, .call = grid_call_coded},
	{0},
};
