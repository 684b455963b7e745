/*
 * bench.c - hurwitz bench of quaternions: elementwise operations and matrix products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Ceilings of elementwise operations: on a CPU y = a + 3 b with the same number of bytes, on a GPU
 * a copy. Products count 32 m n k operations, as the direct method makes. Their ceiling on a CPU is
 * as many multiply-adds alone, which the fast method may exceed, or for few columns a read of A. A
 * is packed on a CPU.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/bench_grid.h"
#include "cpu/peak/kern.h"
#include "lib/core/internal.h"

enum kind { MUL, PLANAR, GAPS, CONJ, NORMALIZE, ROTATE, DOT, GEMM };

enum {
	QUICK = 1,
	CPU = 2,
	GPU = 4,
	BOTH = CPU | GPU,
};

static const struct row {
	enum kind kind;
	int flags, dtype;
	int64_t m, n, k;		/* elementwise: quaternions; 0: as many as fit */
	int method, precision;
} rows[] = {
	{MUL, CPU | QUICK, HZ_F32, 512, 0, 0, 0, 0},		/* 24 KB */
	{MUL, CPU, HZ_F32, 8192, 0, 0, 0, 0},			/* 384 KB */
	{MUL, CPU, HZ_F32, 65536, 0, 0, 0, 0},
	{MUL, BOTH, HZ_F32, 262144, 0, 0, 0, 0},		/* 12 MB */
	{MUL, GPU, HZ_F32, 1048576, 0, 0, 0, 0},
	{MUL, GPU, HZ_F32, 8388608, 0, 0, 0, 0},
	{MUL, BOTH | QUICK, HZ_F32, 0, 0, 0, 0, 0},
	{MUL, BOTH, HZ_BF16, 0, 0, 0, 0, 0},
	{MUL, GPU, HZ_BF16, 262144, 0, 0, 0, 0},
	{MUL, GPU, HZ_BF16, 1048576, 0, 0, 0, 0},
	{MUL, GPU, HZ_BF16, 8388608, 0, 0, 0, 0},
	{MUL, BOTH, HZ_F16, 0, 0, 0, 0, 0},
	{MUL, CPU, HZ_BF16, 8192, 0, 0, 0, 0},
	{MUL, CPU, HZ_F16, 8192, 0, 0, 0, 0},
	{MUL, CPU, HZ_F64, 4096, 0, 0, 0, 0},
	{MUL, CPU, HZ_F64, 0, 0, 0, 0, 0},
	{GAPS, CPU, HZ_F32, 4096, 0, 0, 0, 0},
	{GAPS, CPU, HZ_BF16, 4096, 0, 0, 0, 0},
	{PLANAR, CPU, HZ_F32, 512, 0, 0, 0, 0},
	{PLANAR, BOTH, HZ_F32, 0, 0, 0, 0, 0},
	{PLANAR, GPU, HZ_BF16, 0, 0, 0, 0, 0},
	{CONJ, BOTH | QUICK, HZ_F32, 0, 0, 0, 0, 0},
	{NORMALIZE, CPU, HZ_F32, 512, 0, 0, 0, 0},
	{NORMALIZE, BOTH, HZ_F32, 0, 0, 0, 0, 0},
	{NORMALIZE, GPU, HZ_BF16, 0, 0, 0, 0, 0},
	{ROTATE, BOTH | QUICK, HZ_F32, 0, 0, 0, 0, 0},
	{ROTATE, GPU, HZ_BF16, 0, 0, 0, 0, 0},
	{DOT, BOTH | QUICK, HZ_F32, 0, 0, 0, 0, 0},
	{DOT, GPU, HZ_BF16, 0, 0, 0, 0, 0},
	{GEMM, BOTH | QUICK, HZ_F32, 1024, 512, 1024, HZ_QUAT_FAST, 0},
	{GEMM, CPU, HZ_F32, 1024, 512, 1024, HZ_QUAT_DIRECT, 0},
	{GEMM, CPU, HZ_F32, 2048, 512, 2048, HZ_QUAT_FAST, 0},
	{GEMM, CPU, HZ_F32, 1024, 64, 1024, HZ_QUAT_FAST, 0},
	{GEMM, CPU, HZ_BF16, 1024, 512, 1024, HZ_QUAT_DIRECT, 0},
	{GEMM, CPU, HZ_BF16, 1024, 512, 1024, HZ_QUAT_FAST, 0},
	{GEMM, BOTH | QUICK, HZ_F32, 4096, 1, 4096, HZ_QUAT_DIRECT, 0},
	{GEMM, BOTH, HZ_F32, 4096, 8, 4096, HZ_QUAT_DIRECT, 0},
	{GEMM, GPU, HZ_BF16, 4096, 1, 4096, HZ_QUAT_DIRECT, 0},
	{GEMM, GPU, HZ_BF16, 4096, 8, 4096, HZ_QUAT_DIRECT, 0},
	{GEMM, CPU, HZ_BF16, 4096, 1, 4096, HZ_QUAT_DIRECT, 0},
	{GEMM, CPU, HZ_F32, 4096, 4, 4096, HZ_QUAT_DIRECT, 0},
	{GEMM, CPU, HZ_F64, 512, 512, 512, HZ_QUAT_FAST, 0},
	{GEMM, CPU, HZ_F32, 64, 64, 64, HZ_QUAT_FAST, 0},	/* small, as in image processing */
	{GEMM, CPU, HZ_F32, 128, 128, 128, HZ_QUAT_FAST, 0},
	{GEMM, CPU, HZ_F32, 256, 256, 256, HZ_QUAT_FAST, 0},
	{GEMM, CPU, HZ_F32, 512, 512, 512, HZ_QUAT_FAST, 0},
	{GEMM, CPU, HZ_F32, 64, 64, 64, HZ_QUAT_DIRECT, 0},
	{GEMM, CPU, HZ_F32, 128, 128, 128, HZ_QUAT_DIRECT, 0},
	{GEMM, CPU, HZ_F32, 256, 256, 256, HZ_QUAT_DIRECT, 0},
	{GEMM, CPU, HZ_F32, 512, 512, 512, HZ_QUAT_DIRECT, 0},
	{GEMM, GPU, HZ_F32, 1024, 1024, 1024, HZ_QUAT_FAST, HZ_PRECISION_F32},
	{GEMM, GPU, HZ_F32, 1024, 1024, 1024, HZ_QUAT_FAST, HZ_PRECISION_SPLIT},
	{GEMM, GPU | QUICK, HZ_BF16, 1024, 1024, 1024, HZ_QUAT_FAST, 0},
	{GEMM, GPU | QUICK, HZ_F32, 4096, 8192, 4096, HZ_QUAT_FAST, HZ_PRECISION_F32},
	{GEMM, GPU, HZ_F32, 4096, 8192, 4096, HZ_QUAT_DIRECT, HZ_PRECISION_F32},
	{GEMM, GPU, HZ_F32, 4096, 8192, 4096, HZ_QUAT_FAST, HZ_PRECISION_SPLIT},
	{GEMM, GPU, HZ_F32, 4096, 8192, 4096, HZ_QUAT_FAST, HZ_PRECISION_TF32},
	{GEMM, GPU | QUICK, HZ_BF16, 4096, 8192, 4096, HZ_QUAT_FAST, 0},
	{GEMM, GPU, HZ_BF16, 4096, 8192, 4096, HZ_QUAT_DIRECT, 0},
	{GEMM, GPU, HZ_F16, 4096, 8192, 4096, HZ_QUAT_FAST, 0},
};

#define ROWS (sizeof(rows) / sizeof(*rows))

static const char *const op_names[] = {
	[MUL] = "quat_mul", [PLANAR] = "quat_mul", [GAPS] = "quat_mul", [CONJ] = "quat_map",
	[NORMALIZE] = "quat_map",
	[ROTATE] = "quat_rotate", [DOT] = "quat_dot", [GEMM] = "quat_gemm",
};

struct quat_case {
	struct bench_case c;
	const struct row *row;
	hz_tensor a, b, y;
	hz_quat_gemm_opts opts;
	hz_packed packed;
	void *blob;
};

static int call_elements(struct bench *b, struct bench_case *c)
{
	struct quat_case *q = (struct quat_case *)c;

	switch (q->row->kind) {
	case CONJ:
		return hz_quat_conj(b->ctx, &q->a, &q->y, 0);
	case NORMALIZE:
		return hz_quat_normalize(b->ctx, &q->a, &q->y, 0, 0);
	case ROTATE:
		return hz_quat_rotate(b->ctx, &q->a, &q->b, &q->y, 0);
	case DOT:
		return hz_quat_dot(b->ctx, &q->a, &q->b, &q->y, 0);
	default:
		return hz_quat_mul(b->ctx, &q->a, &q->b, &q->y, 0);
	}
}

static int call_gemm(struct bench *b, struct bench_case *c)
{
	struct quat_case *q = (struct quat_case *)c;

	return hz_quat_gemm(b->ctx, q->opts.packed ? NULL : &q->a, &q->b, &q->y, &q->opts);
}

/* ---- Ceilings on the CPU --------------------------------------------------------------------- */

struct triad {
	const struct bench *b;
	const struct hzi_peak_kern *kern;
	bool stream;
};

static int triad_share(const void *arg, int64_t begin, int64_t end)
{
	const struct triad *const t = arg;

	t->kern->triad((float *)t->b->x + begin, (float *)t->b->from + begin,
		       (float *)t->b->y + begin, end - begin, t->stream);
	return HZ_OK;
}

/* y = a + 3 b with as many bytes moved; each thread has whole vectors. */
static int call_triad(struct bench *b, struct bench_case *c)
{
	const struct triad t = {b, hzi_peak_kern + b->ctx->level,
				c->moved_bytes > 0.75 * (double)hzi_cache_share(b->ctx)};

	return bench_parallel(b, (int64_t)(c->moved_bytes / 12), 64, triad_share, &t);
}

/* Reads the packed matrix once. */
static int call_read(struct bench *b, struct bench_case *c)
{
	const struct quat_case *q = (struct quat_case *)c;

	return bench_read(b, q->packed.data, (int64_t)q->packed.bytes / 4);
}

/* ---- On a GPU -------------------------------------------------------------------------------- */

void bench_quat_products_of(struct bench *b, struct bench_case *c, int dtype, int precision,
			    int method)
{
	const double macs = c->operations / 2 * (method == HZ_QUAT_FAST ? 0.5 : 1);
	const bool split = dtype == HZ_F32 && (precision == HZ_PRECISION_AUTO ||
					       precision == HZ_PRECISION_SPLIT);

	bench_products_of(b, c, precision == HZ_PRECISION_F32 ? HZ_F32 : HZ_F16,
			  split ? 3 * macs : macs);
}

/* ---- Cases ----------------------------------------------------------------------------------- */

static hz_tensor quats(void *data, int dtype, int device, int64_t n, bool planes)
{
	hz_tensor t = hz_tensor_2d(data, dtype, device, n, 4);

	if (planes) {
		t.stride[0] = 1;
		t.stride[1] = n;
	}
	return t;
}

static int make_elements(struct bench *b, struct quat_case *q)
{
	static const char *const what[] = {
		[MUL] = "", [PLANAR] = "planes ", [GAPS] = "gaps ", [CONJ] = "conj ",
		[NORMALIZE] = "normalize ",
		[ROTATE] = "", [DOT] = "",
	};
	const struct row *r = q->row;
	const int device = hz_device(b->ctx);
	const double size = (double)hz_dtype_size(r->dtype);
	/* as many bytes for each dtype, and for the triad on a CPU */
	const int64_t n = r->m ? r->m : b->elements / (int64_t)hz_dtype_size(r->dtype);
	const bool planes = r->kind == PLANAR, two = r->kind == CONJ || r->kind == NORMALIZE;
	int status;

	q->a = quats(b->x, r->dtype, device, n, planes);
	q->b = quats(b->from, r->dtype, device, n, planes);
	q->y = quats(b->y, r->dtype, device, n, planes);
	q->c.moved_bytes = (two ? 8 : 12) * size * (double)n;
	if (r->kind == GAPS)		/* as many bytes as the quaternions have */
		q->a.stride[0] = q->b.stride[0] = q->y.stride[0] = 8;
	if (r->kind == ROTATE) {
		q->b.shape[1] = q->y.shape[1] = 3;
		q->b.stride[0] = q->y.stride[0] = 3;
		q->c.moved_bytes = 10 * size * (double)n;
	}
	if (r->kind == DOT) {
		q->y = hz_tensor_1d(b->y, r->dtype, device, 4);
		q->c.moved_bytes = 8 * size * (double)n;
	}
	q->c.operations = 28 * (double)n;
	q->c.call = call_elements;
	q->c.large = r->m == 0;
	snprintf(q->c.name, sizeof(q->c.name), "%sn=%lld", what[r->kind], (long long)n);
	snprintf(q->c.dtype, sizeof(q->c.dtype), "%s", hz_dtype_name(r->dtype));
	bench_copy_of(b, &q->c);
	q->c.ceiling = b->gpu ? bench_copy : call_triad;
	q->c.against = b->gpu ? "device copy" : "y = a + 3 b";
	status = bench_fill(b, r->dtype, 4 * n, hz_tensor_1d(b->x, r->dtype, device, 4 * n));
	if (!status)
		status = bench_fill(b, r->dtype, 4 * n,
				    hz_tensor_1d(b->from, r->dtype, device, 4 * n));
	return status ? status : WITH_WORKSPACE(b->ctx, call_elements(b, &q->c));
}

static int make_gemm(struct bench *b, struct quat_case *q)
{
	static const char *const method[] = {"", "direct", "fast"};
	static const char *const precision[] = {"", " f32", " split", " tf32", " half"};
	const struct row *r = q->row;
	const int device = hz_device(b->ctx);
	const bool as_is = b->gpu && r->n <= 8;
	hz_tensor a = hz_tensor_3d(NULL, r->dtype, device, r->m, r->k, 4);
	size_t bytes = (size_t)(4 * r->m * r->k) * hz_dtype_size(r->dtype);
	int status = hz_alloc(b->ctx, &a.data, bytes, device);

	q->b = hz_tensor_3d(b->x, r->dtype, device, r->k, r->n, 4);
	q->y = hz_tensor_3d(b->y, r->dtype, device, r->m, r->n, 4);
	q->opts = (hz_quat_gemm_opts){.method = r->method, .precision = r->precision};
	q->c.operations = 32.0 * (double)r->m * (double)r->n * (double)r->k;
	q->c.moved_bytes = (double)bytes + (double)hz_tensor_bytes(&q->b) +
			   (double)hz_tensor_bytes(&q->y);
	q->c.call = call_gemm;
	q->c.large = q->c.operations > 1e10;
	if (r->m == r->n && r->n == r->k)
		snprintf(q->c.name, sizeof(q->c.name), "n=%lld %s%s", (long long)r->n,
			 method[r->method], precision[r->precision]);
	else
		snprintf(q->c.name, sizeof(q->c.name), "%lldx%lldx%lld %s%s", (long long)r->m,
			 (long long)r->n, (long long)r->k, method[r->method],
			 precision[r->precision]);
	snprintf(q->c.dtype, sizeof(q->c.dtype), "%s", hz_dtype_name(r->dtype));
	if (!status)
		status = bench_fill(b, r->dtype, 4 * r->m * r->k, a);
	if (!status)
		status = bench_fill(b, r->dtype, 4 * r->k * r->n, q->b);
	q->a = a;
	if (as_is) {
		q->blob = a.data;
	} else {
		if (!status)
			status = hz_quat_gemm_pack_bytes(b->ctx, &a, &q->opts, &bytes);
		if (!status)
			status = hz_alloc(b->ctx, &q->blob, bytes, device);
		if (!status)
			status = hz_quat_gemm_pack(b->ctx, &a, q->blob, bytes, &q->packed,
						   &q->opts);
		if (!status)
			status = hz_sync(b->ctx);
		if (a.data)
			hz_free(b->ctx, a.data, device);
		q->opts.packed = &q->packed;
	}
	if (!status)
		status = WITH_WORKSPACE(b->ctx, call_gemm(b, &q->c));
	if (b->gpu) {
		bench_quat_products_of(b, &q->c, r->dtype, r->precision, r->method);
	} else if (r->n <= 8) {
		q->c.ceiling = call_read;
		q->c.against = "a read of A in eight streams";
	} else {
		q->c.ceiling = bench_peak;
		q->c.against = "bare multiply-adds";
	}
	return status;
}

static int run_case(struct bench *b, const struct row *r)
{
	struct quat_case q = {.row = r, .c.op = op_names[r->kind]};
	int status;

	progress("bench: %s", q.c.op);
	status = r->kind == GEMM ? make_gemm(b, &q) : make_elements(b, &q);
	status = bench_made(b, &q.c, status);
	if (q.blob)
		hz_free(b->ctx, q.blob, hz_device(b->ctx));
	return status;
}

/* Whether B and C fit into the arrays that all cases share, which are smaller on a small GPU */
static bool fits(const struct bench *b, const struct row *r)
{
	const int64_t wider = r->k > r->m ? r->k : r->m;

	return r->kind != GEMM || wider * r->n * 4 * (int64_t)hz_dtype_size(r->dtype) <=
					  b->elements * (int64_t)sizeof(float);
}

int bench_quat(struct bench *b, void (*head)(struct bench *b))
{
	int status = 0;

	for (size_t i = 0; i < ROWS && !status; i++) {
		const struct row *r = &rows[i];

		if (!(r->flags & (b->gpu ? GPU : CPU)) || !fits(b, r) ||
		    !bench_wanted(b->set, op_names[r->kind]) ||
		    (b->set->quick && !(r->flags & QUICK)))
			continue;
		head(b);
		status = run_case(b, r);
	}
	return status;
}

/* ---- The grid -------------------------------------------------------------------------------- */

/* A width counts real numbers: W is width / 4 quaternions square. */
int grid_make_quats(struct bench *b, struct grid_case *g)
{
	const int64_t n = g->width / 4, taps = g->op->kind;
	hz_tensor w = taps ? hz_tensor_nd(b->y, g->dtype, hz_device(b->ctx), 5,
					  (int64_t[]){n, taps, taps, n, 4}) :
			     hz_tensor_3d(b->y, g->dtype, hz_device(b->ctx), n, n, 4);
	/* What a layer takes where its weights are not packed */
	const bool layer = strcmp(g->op->op, "quat_linear") == 0;
	const hz_quat_gemm_opts opts = {.method = layer ? HZ_QUAT_FAST : HZ_QUAT_AUTO};
	size_t bytes = 0;
	int status = g->op->packs ? hz_quat_gemm_pack_bytes(b->ctx, &w, &opts, &bytes) : HZ_OK;

	if (!status)
		status = grid_weights(b, g, (size_t)hz_tensor_bytes(&w), bytes);
	w.data = g->source;
	if (!status)
		status = bench_fill(b, g->dtype, hz_tensor_count(&w), w);
	if (!status && g->packed)
		status = hz_quat_gemm_pack(b->ctx, &w, g->weights, bytes, &g->pack, &opts);
	g->w = w;
	g->quat_gemm.packed = g->quat_linear.packed = g->packed ? &g->pack : NULL;
	return status;
}

int grid_view_quats(struct bench *b, struct grid_case *g)
{
	hz_tensor *const both[] = {&g->x, &g->y};

	(void)b;
	for (int i = 0; i < 2; i++) {
		both[i]->ndim = 3;
		both[i]->shape[1] = g->width / 4;
		both[i]->shape[2] = 4;
		both[i]->stride[1] = 4;
		both[i]->stride[2] = 1;
	}
	return HZ_OK;
}

/* Rows of x and y are columns of the product. */
static int grid_view(struct bench *b, struct grid_case *g)
{
	hz_tensor *const both[] = {&g->x, &g->y};

	grid_view_quats(b, g);
	for (int i = 0; i < 2; i++) {
		both[i]->shape[0] = g->width / 4;
		both[i]->shape[1] = g->batch;
		both[i]->stride[1] = both[i]->stride[0];
		both[i]->stride[0] = 4;
	}
	return HZ_OK;
}

static int grid_call(struct bench *b, struct bench_case *c)
{
	struct grid_case *g = (struct grid_case *)c;

	g->w.data = g->pack.data = grid_turn(g);
	return hz_quat_gemm(b->ctx, g->packed ? NULL : &g->w, &g->x, &g->y, &g->quat_gemm);
}

const struct grid_op grid_quat_gemm[] = {
	{"quat_gemm", "", 0, {HZ_F32, HZ_F16, HZ_BF16}, .packs = true, .weights = 0.25, .macs = 0.5,
	 .macs_f32 = 1.5, .make = grid_make_quats, .view = grid_view, .call = grid_call},
	{0},
};
