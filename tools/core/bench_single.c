/*
 * bench_single.c - hurwitz bench of primitives with a single case each
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Packing, gradients of elementwise calls, random numbers, and calls that only rearrange or inspect
 * numbers. The ceiling is a copy that moves as many bytes as the call must. An operation is an
 * element of the output.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/bench.h"

struct single_case {
	struct bench_case c;
	const struct row *row;
	hz_tensor t[5];			/* in the order of the call's parameters */
	hz_lattice *lattice;
	hz_vlut *vlut;
	hz_coded coded;
	hz_quat_pool_opts pool;
	hz_packed packed;
	void *blob;			/* packed data */
	size_t bytes;
	int64_t n; /* quaternions or blocks, if the name does not contain it */
};

/* Both functions return a library status. */
struct row {
	const char *op, *name, *dtype;
	int (*make)(struct bench *b, struct single_case *r);
	int (*call)(hz_context *ctx, struct single_case *r);
};

/* Makes tensor i of a case, and counts its bytes. */
static void operand(struct bench *b, struct single_case *r, int i, void *data, int dtype, int ndim,
		    const int64_t *shape)
{
	r->t[i] = hz_tensor_nd(data, dtype, hz_device(b->ctx), ndim, shape);
	r->c.moved_bytes += (double)hz_tensor_bytes(&r->t[i]);
}

static int blob(struct bench *b, struct single_case *r)
{
	r->c.moved_bytes += (double)r->bytes;
	return hz_alloc(b->ctx, &r->blob, r->bytes, hz_device(b->ctx));
}

/* ---- Packing --------------------------------------------------------------------------------- */

static int make_qgemm_pack(struct bench *b, struct single_case *r)
{
	int status;

	operand(b, r, 0, b->x, HZ_U8, 2, (int64_t[]){2048, 4096});
	status = bench_fill(b, HZ_U8, 2048 * 4096, r->t[0]);
	if (!status)
		status = hz_qgemm_pack_bytes(b->ctx, &r->t[0], &r->bytes);
	return status ? status : blob(b, r);
}

static int call_qgemm_pack(hz_context *ctx, struct single_case *r)
{
	return hz_qgemm_pack(ctx, &r->t[0], r->blob, r->bytes, &r->packed);
}

/* W [n, k / 2] of nibbles with scales [n, k / 32], as checkpoints have it */
static int make_group_pack(struct bench *b, struct single_case *r)
{
	int status;

	operand(b, r, 0, b->x, HZ_S4X2, 2, (int64_t[]){4096, 2048});
	operand(b, r, 1, b->y, HZ_F16, 2, (int64_t[]){4096, 128});
	status = bench_fill(b, HZ_U8, 4096 * 2048, r->t[0]);
	if (!status)
		status = bench_fill(b, HZ_F16, 4096 * 128, r->t[1]);
	for (int i = 0; i < 2; i++)
		r->t[i] = hz_view_transpose(&r->t[i], 0, 1);
	if (!status)
		status = hz_qlinear_group_pack_bytes(b->ctx, &r->t[0], &r->t[1], NULL, &r->bytes);
	return status ? status : blob(b, r);
}

static int call_group_pack(hz_context *ctx, struct single_case *r)
{
	return hz_qlinear_group_pack(ctx, &r->t[0], &r->t[1], NULL, r->blob, r->bytes, &r->packed);
}

static int make_quat_gemm_pack(struct bench *b, struct single_case *r)
{
	int status;

	operand(b, r, 0, b->x, HZ_F32, 3, (int64_t[]){1024, 1024, 4});
	status = hz_quat_gemm_pack_bytes(b->ctx, &r->t[0], NULL, &r->bytes);
	return status ? status : blob(b, r);
}

static int call_quat_gemm_pack(hz_context *ctx, struct single_case *r)
{
	return hz_quat_gemm_pack(ctx, &r->t[0], r->blob, r->bytes, &r->packed, NULL);
}

static int open_lattice(struct bench *b, struct single_case *r)
{
	const hz_lattice_opts opts = {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 1};

	return hz_lattice_open(b->ctx, &r->lattice, &opts);
}

static int make_vlut_pack(struct bench *b, struct single_case *r)
{
	int status = open_lattice(b, r);

	operand(b, r, 0, b->x, HZ_U8, 3, (int64_t[]){2048, 1024, 2});
	r->coded = (hz_coded){.codes = r->t[0], .rows = 2048, .k = 4096};
	if (!status)
		status = bench_fill(b, HZ_U8, 2048 * 1024 * 2, r->t[0]);
	if (!status)
		status = hz_vlut_open(b->ctx, &r->vlut, r->lattice, NULL, NULL);
	if (!status)
		status = hz_vlut_pack_bytes(b->ctx, r->vlut, &r->coded, &r->bytes);
	return status ? status : blob(b, r);
}

static int call_vlut_pack(hz_context *ctx, struct single_case *r)
{
	return hz_vlut_pack(ctx, r->vlut, &r->coded, r->blob, r->bytes, &r->packed);
}

static int call_vlut_append(hz_context *ctx, struct single_case *r)
{
	return hz_vlut_append(ctx, r->vlut, &r->t[0], 7, &r->packed, NULL);
}

/* A row into an empty matrix: the bytes moved are those of x and of the row */
static int make_vlut_append(struct bench *b, struct single_case *r)
{
	const hz_lattice_opts opts = {.preset = HZ_LATTICE_PRESET_E8_4_50_FAST};
	int status = hz_lattice_open(b->ctx, &r->lattice, &opts);

	operand(b, r, 0, b->x, HZ_F32, 2, (int64_t[]){1, 4096});
	r->coded = (hz_coded){.rows = 64, .k = 4096};
	if (!status)
		status = hz_vlut_open(b->ctx, &r->vlut, r->lattice, NULL, NULL);
	if (!status)
		status = hz_vlut_pack_bytes(b->ctx, r->vlut, &r->coded, &r->bytes);
	if (!status)
		status = hz_alloc(b->ctx, &r->blob, r->bytes, hz_device(b->ctx));
	r->c.moved_bytes += (double)r->bytes / 64;
	if (!status)
		status = hz_vlut_pack(b->ctx, r->vlut, &r->coded, r->blob, r->bytes, &r->packed);
	return status ? status : WITH_WORKSPACE(b->ctx, call_vlut_append(b->ctx, r));
}

static int make_repack(struct bench *b, struct single_case *r)
{
	const int64_t blocks = b->elements / 4;

	r->n = blocks;
	operand(b, r, 0, b->x, HZ_U8, 2, (int64_t[]){blocks, 2});
	operand(b, r, 1, b->y, HZ_U32, 2, (int64_t[]){blocks, 1});
	return open_lattice(b, r);
}

static int call_repack(hz_context *ctx, struct single_case *r)
{
	return hz_lattice_repack(ctx, r->lattice, &r->t[0], &r->t[1], HZ_LATTICE_LEVEL,
				 HZ_LATTICE_LIMBS);
}

/* ---- Quaternions ----------------------------------------------------------------------------- */

/* Few enough quaternions that five arrays of them have the bytes of one array of the bench */
#define QUATS(b) ((b)->elements / 16)

static int call_mul_bwd(hz_context *ctx, struct single_case *r)
{
	return hz_quat_mul_bwd(ctx, &r->t[0], &r->t[1], &r->t[2], &r->t[3], &r->t[4], 0);
}

static int make_mul_bwd(struct bench *b, struct single_case *r)
{
	const int64_t shape[] = {QUATS(b), 4};

	r->n = shape[0];
	operand(b, r, 0, b->from, HZ_F32, 2, shape);
	operand(b, r, 1, (float *)b->x + 4 * shape[0], HZ_F32, 2, shape);
	operand(b, r, 2, b->x, HZ_F32, 2, shape);
	operand(b, r, 3, b->y, HZ_F32, 2, shape);
	operand(b, r, 4, (float *)b->y + 4 * shape[0], HZ_F32, 2, shape);
	return WITH_WORKSPACE(b->ctx, call_mul_bwd(b->ctx, r));
}

static int call_to_matrix(hz_context *ctx, struct single_case *r)
{
	return hz_quat_to_matrix(ctx, &r->t[0], &r->t[1], 0);
}

static int call_from_matrix(hz_context *ctx, struct single_case *r)
{
	return hz_quat_from_matrix(ctx, &r->t[1], &r->t[0], 0);
}

static int call_from_matrix_bwd(hz_context *ctx, struct single_case *r)
{
	return hz_quat_from_matrix_bwd(ctx, &r->t[1], &r->t[0], &r->t[2], 0);
}

/* Matrices of random numbers: the time is that of any others. */
static int make_matrices(struct bench *b, struct single_case *r)
{
	const int64_t n = QUATS(b), quats[] = {n, 4}, matrices[] = {n, 3, 3};

	r->n = n;
	operand(b, r, 0, b->from, HZ_F32, 2, quats);
	operand(b, r, 1, b->x, HZ_F32, 3, matrices);
	if (r->row->call == call_from_matrix_bwd)
		operand(b, r, 2, b->y, HZ_F32, 3, matrices);
	return HZ_OK;
}

static int call_slerp(hz_context *ctx, struct single_case *r)
{
	return hz_quat_slerp(ctx, &r->t[0], &r->t[1], &r->t[2], &r->t[3], 0);
}

static int make_slerp(struct bench *b, struct single_case *r)
{
	const int64_t n = QUATS(b), quats[] = {n, 4};

	r->n = n;
	operand(b, r, 0, b->from, HZ_F32, 2, quats);
	operand(b, r, 1, b->x, HZ_F32, 2, quats);
	operand(b, r, 2, (float *)b->x + 4 * n, HZ_F32, 1, quats);
	operand(b, r, 3, b->y, HZ_F32, 2, quats);
	return HZ_OK;
}

static int call_rotate_bwd(hz_context *ctx, struct single_case *r)
{
	return hz_quat_rotate_bwd(ctx, &r->t[0], &r->t[1], &r->t[2], &r->t[3], &r->t[4], 0);
}

static int make_rotate_bwd(struct bench *b, struct single_case *r)
{
	const int64_t n = QUATS(b), quats[] = {n, 4}, vectors[] = {n, 3};

	r->n = n;
	operand(b, r, 0, b->from, HZ_F32, 2, quats);
	operand(b, r, 1, (float *)b->x + 4 * n, HZ_F32, 2, vectors);
	operand(b, r, 2, b->x, HZ_F32, 2, vectors);
	operand(b, r, 3, b->y, HZ_F32, 2, quats);
	operand(b, r, 4, (float *)b->y + 4 * n, HZ_F32, 2, vectors);
	return WITH_WORKSPACE(b->ctx, call_rotate_bwd(b->ctx, r));
}

static int make_three(struct bench *b, struct single_case *r)
{
	const int64_t shape[] = {QUATS(b), 4};

	r->n = shape[0];
	operand(b, r, 0, b->x, HZ_F32, 2, shape);
	operand(b, r, 1, b->from, HZ_F32, 2, shape);
	operand(b, r, 2, b->y, HZ_F32, 2, shape);
	return HZ_OK;
}

static int call_normalize_bwd(hz_context *ctx, struct single_case *r)
{
	return hz_quat_normalize_bwd(ctx, &r->t[0], &r->t[1], &r->t[2], 0, 0);
}

static int make_two(struct bench *b, struct single_case *r)
{
	const int64_t shape[] = {4 * QUATS(b), 4};

	r->n = shape[0];
	operand(b, r, 0, b->x, HZ_F32, 2, shape);
	operand(b, r, 1, b->y, HZ_F32, 2, shape);
	return HZ_OK;
}

static int call_dropout(hz_context *ctx, struct single_case *r)
{
	return hz_quat_dropout(ctx, &r->t[0], &r->t[1], 0.1, 1, 0);
}

static int make_axpy(struct bench *b, struct single_case *r)
{
	const int64_t shape[] = {2 * QUATS(b), 4};

	r->n = shape[0];
	operand(b, r, 0, b->x, HZ_F32, 2, shape);
	operand(b, r, 1, b->y, HZ_F32, 2, shape);
	r->c.moved_bytes *= 1.5;	/* y is read and written */
	return HZ_OK;
}

/* |alpha| is so small that y stays finite however often this is repeated. */
static int call_axpy(hz_context *ctx, struct single_case *r)
{
	static const double alpha[4] = {1e-6, -1e-6, 1e-6, 1e-6};

	return hz_quat_axpy(ctx, alpha, &r->t[0], &r->t[1], 0);
}

static int make_pool_bwd(struct bench *b, struct single_case *r)
{
	const int64_t images = b->gpu ? 32 : 8, side = b->gpu ? 56 : 28,
		      channels = b->gpu ? 64 : 32;

	r->pool = (hz_quat_pool_opts){.kind = HZ_POOL_AVERAGE, .window = {2, 2}};
	r->n = images * side * side * channels;
	operand(b, r, 0, b->x, HZ_F32, 5, (int64_t[]){images, side / 2, side / 2, channels, 4});
	operand(b, r, 1, b->y, HZ_F32, 5, (int64_t[]){images, side, side, channels, 4});
	return HZ_OK;
}

static int call_pool_bwd(hz_context *ctx, struct single_case *r)
{
	return hz_quat_pool_bwd(ctx, NULL, &r->t[0], &r->t[1], &r->pool);
}

static int make_init(struct bench *b, struct single_case *r)
{
	r->n = b->gpu ? QUATS(b) : 65536;
	operand(b, r, 0, b->y, HZ_F32, 2, (int64_t[]){r->n, 4});
	return HZ_OK;
}

static int call_init(hz_context *ctx, struct single_case *r)
{
	return hz_quat_init(ctx, &r->t[0], HZ_QUAT_POLAR, 0.1, 1, 0, 0);
}

/* ---- Hyper-connections ----------------------------------------------------------------------- */

static int make_diagnose(struct bench *b, struct single_case *r)
{
	operand(b, r, 0, b->x, HZ_F32, 4, (int64_t[]){24, 1024, 4, 4});
	operand(b, r, 1, b->y, HZ_F32, 2, (int64_t[]){1024, 4});
	return HZ_OK;
}

static int call_diagnose(hz_context *ctx, struct single_case *r)
{
	return hz_mhc_diagnose(ctx, &r->t[0], &r->t[1]);
}

static int make_mhc_init(struct bench *b, struct single_case *r)
{
	operand(b, r, 0, b->y, HZ_F32, 2, (int64_t[]){24, 4 * 4096});
	operand(b, r, 1, b->x, HZ_F32, 1, (int64_t[]){3});
	operand(b, r, 2, (float *)b->x + 16, HZ_F32, 1, (int64_t[]){24});
	return HZ_OK;
}

static int call_mhc_init(hz_context *ctx, struct single_case *r)
{
	return hz_mhc_init(ctx, HZ_MHC_INIT_PAPER, 0, 1, &r->t[0], &r->t[1], &r->t[2], NULL);
}

static const struct row rows[] = {
	{"qgemm_pack", "2048x4096", "u8", make_qgemm_pack, call_qgemm_pack},
	{"qlinear_group_pack", "4096x4096", "s4x2", make_group_pack, call_group_pack},
	{"quat_gemm_pack", "1024x1024", "f32", make_quat_gemm_pack, call_quat_gemm_pack},
	{"quat_mul_bwd", "", "f32", make_mul_bwd, call_mul_bwd},
	{"quat_axpy", "", "f32", make_axpy, call_axpy},
	{"quat_map_bwd", "normalize", "f32", make_three, call_normalize_bwd},
	{"quat_rotate_bwd", "", "f32", make_rotate_bwd, call_rotate_bwd},
	{"quat_convert", "to_matrix", "f32", make_matrices, call_to_matrix},
	{"quat_convert", "from_matrix", "f32", make_matrices, call_from_matrix},
	{"quat_convert", "from_matrix_bwd", "f32", make_matrices, call_from_matrix_bwd},
	{"quat_convert", "slerp", "f32", make_slerp, call_slerp},
	{"quat_pool_bwd", "average", "f32", make_pool_bwd, call_pool_bwd},
	{"quat_dropout", "p=0.1", "f32", make_two, call_dropout},
	{"quat_init", "polar", "f32", make_init, call_init},
	{"lattice_repack", "D4 q=4 M=2", "u8", make_repack, call_repack},
	{"vlut_pack", "2048x4096 D4 q=4 M=2", "u8", make_vlut_pack, call_vlut_pack},
	{"vlut_append", "1x4096 e8-4.5-fast", "f32", make_vlut_append, call_vlut_append},
	{"mhc_diagnose", "24x1024 4x4", "f32", make_diagnose, call_diagnose},
	{"mhc_init", "phi of 24x4x4096", "f32", make_mhc_init, call_mhc_init},
};

#define ROWS (sizeof(rows) / sizeof(*rows))

static int call(struct bench *b, struct bench_case *c)
{
	struct single_case *r = (struct single_case *)c;

	return r->row->call(b->ctx, r);
}

static int run_case(struct bench *b, const struct row *row)
{
	struct single_case r = {.row = row, .c.op = row->op};
	int status, last = 0;

	progress("bench: %s", row->op);
	/* An earlier case may have left anything in the arrays. */
	status = bench_fill(b, HZ_F32, b->elements, hz_tensor_1d(b->x, HZ_F32, hz_device(b->ctx),
								 b->elements));
	if (!status)
		status = bench_fill(b, HZ_F32, b->elements,
				    hz_tensor_1d(b->from, HZ_F32, hz_device(b->ctx), b->elements));
	if (!status)
		status = row->make(b, &r);
	while (last < 4 && r.t[last + 1].data)
		last++;
	r.c.call = call;
	r.c.ceiling = bench_copy;
	r.c.against = b->gpu ? "device copy" : "memcpy";
	r.c.large = r.c.moved_bytes > 64e6;
	r.c.operations = (double)hz_tensor_count(&r.t[last]);
	if (r.n)
		snprintf(r.c.name, sizeof(r.c.name), "%s%sn=%lld", row->name, *row->name ? " " : "",
			 (long long)r.n);
	else
		snprintf(r.c.name, sizeof(r.c.name), "%s", row->name);
	snprintf(r.c.dtype, sizeof(r.c.dtype), "%s", row->dtype);
	bench_copy_of(b, &r.c);
	status = bench_made(b, &r.c, status);
	if (r.blob)
		hz_free(b->ctx, r.blob, hz_device(b->ctx));
	hz_vlut_close(r.vlut);
	hz_lattice_close(r.lattice);
	return status;
}

int bench_single(struct bench *b, void (*head)(struct bench *b))
{
	int status = 0;

	for (size_t i = 0; i < ROWS && !status; i++) {
		if (!bench_wanted(b->set, rows[i].op))
			continue;
		head(b);
		status = run_case(b, &rows[i]);
	}
	return status;
}
