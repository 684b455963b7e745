/*
 * simt_f32.c - launchers of quaternion matrix products by f32 multiply-adds
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Supports any operands: they are packed as f32 planes in the workspace first, unless A is packed
 * that way already. Packed A has planes for op N; planes for other ops are made from them. Items of
 * a batch share launches as far as a workspace of WORKSPACE_BYTES goes.
 */
#include <config.h>

#include "gpu/quat_gemm/launch.h"
#include "gpu/quat_gemm/simt_f32.h"

HZI_LINK_IMAGES(quat_gemm);

#define WORKSPACE_BYTES ((int64_t)256 << 20)	/* planes of a batch, unless one item has more */
#define ITEMS_MAX 65535			/* of a grid, along y */
#define BAND_ROWS 512 /* rows of tiles that are traversed column by column, for L2 */

/* A call: floats of the planes of an item */
struct plan {
	int halves;
	bool own_a;			/* planes of A are made here; otherwise packed A is read */
	bool one_a, one_b;		/* broadcast over the batch */
	int64_t items, group;		/* of the batch; of a launch */
	int64_t a_floats, b_floats;
	int64_t shape[HZI_QUAT_BATCH];
};

static bool all_zero(const int64_t *stride, int ndim)
{
	for (int d = 0; d < ndim; d++)
		if (stride[d])
			return false;
	return true;
}

static struct plan plan_of(const struct hzi_quat_gemm_args *a)
{
	struct plan p = {.halves = a->method == HZ_QUAT_FAST ? 2 : 1};
	int64_t item;

	p.own_a = !a->packed || a->packed_t || a->conj_a;
	p.one_a = all_zero(a->packed ? a->packed_stride : a->a_stride, a->ndim);
	p.one_b = all_zero(a->b_stride, a->ndim);
	p.items = hzi_quat_batch_of(p.shape, a->shape, a->ndim);
	p.a_floats = HZI_SIMT_FLOATS(a->m, a->k, p.halves);
	p.b_floats = HZI_SIMT_FLOATS(a->n, a->k, p.halves);
	item = 4 * ((p.own_a && !p.one_a ? p.a_floats : 0) + (p.one_b ? 0 : p.b_floats));
	p.group = item ? WORKSPACE_BYTES / item : ITEMS_MAX;
	if (p.group > ITEMS_MAX)
		p.group = ITEMS_MAX;
	if (p.group > p.items)
		p.group = p.items;
	if (p.group < 1)
		p.group = 1;
	return p;
}

const char *hzi_cuda_quat_gemm_simt_f32_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;

	return a->packed && a->k && hzi_cuda_quat_gemm_packs_f16(ctx, a->dtype, a->precision, a->m,
								 a->k)
		       ? "a is packed as planes of f16" : NULL;
}

size_t hzi_cuda_quat_gemm_simt_f32_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;
	const struct plan p = plan_of(a);
	const int64_t a_count = p.own_a ? p.one_a ? 1 : p.group : 0;
	const int64_t b_count = p.one_b ? 1 : p.group;

	(void)ctx;
	return 4 * (size_t)(a_count * p.a_floats + b_count * p.b_floats);
}

/* Sets the blocks and items of a matrix in a launch. */
static int set_grid(struct hz_context *ctx, const char *op, struct hzi_quat_planar_f32 *p,
		    int64_t items)
{
	const int64_t strips = ceil_div(p->rows, HZI_SIMT_STRIP);

	if (p->chunks && strips > INT32_MAX / 2 / p->chunks)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: a matrix of %d x %d is too large for a GPU",
				op, p->rows, p->k);
	p->blocks = (int32_t)(strips * p->chunks);
	p->items = (int32_t)items;
	return HZ_OK;
}

static int launch_planes(struct hz_context *ctx, const char *op,
			 const struct hzi_quat_planar_f32_pair *both)
{
	const struct hzi_quat_planar_f32 *a = &both->x[0], *b = &both->x[1];
	const struct hzi_launch launch = {
		.grid = {(unsigned)(a->blocks + b->blocks),
			 (unsigned)(a->items > b->items ? a->items : b->items)},
		.block = {256},
	};

	if (a->blocks + b->blocks == 0)
		return HZ_OK;
	return hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_planar_f32, &launch, both, sizeof(*both));
}

int hzi_cuda_quat_gemm_simt_f32_pack(struct hz_context *ctx,
				     const struct hzi_quat_gemm_pack_args *a)
{
	const int64_t item = hzi_quat_pack_bytes(a->layout, a->dtype, a->m, a->k) / 4;
	struct hzi_quat_planar_f32_pair both = {0};
	struct hzi_quat_planar_f32 p = {
		.x = hzi_quat_matrix_of(&a->a, a->dtype, 0, a->a_stride, a->ndim),
		.planes = a->data, .item = item,
		.rows = (int32_t)a->m, .k = (int32_t)a->k,
		.chunks = (int32_t)ceil_div(a->k, HZI_SIMT_CHUNK),
		.halves = a->method == HZ_QUAT_FAST ? 2 : 1, .left = 1,
	};
	const int64_t items = hzi_quat_batch_of(p.shape, a->shape, a->ndim);

	while (p.first < items) {
		const int64_t rest = items - p.first, n = rest < ITEMS_MAX ? rest : ITEMS_MAX;

		HZ_CHECK(set_grid(ctx, "quat_gemm_pack", &p, n));
		both.x[0] = p;
		HZ_CHECK(launch_planes(ctx, "quat_gemm_pack", &both));
		p.first += n;
		p.planes += n * item;
	}
	return HZ_OK;
}

/* Strides of packed matrices, in floats */
static void packed_strides(const struct hzi_quat_gemm_args *a, int64_t *batch)
{
	const int64_t m = a->packed_t ? a->k : a->m, k = a->packed_t ? a->m : a->k;
	const int64_t item = hzi_quat_pack_bytes(a->layout, a->dtype, m, k) / 4;

	for (int d = 0; d < a->ndim; d++)
		batch[HZI_QUAT_BATCH - a->ndim + d] = a->packed_stride[d] * item;
}

/* Describes the planes of `items` items of A, or of B, and the blocks that make them. */
static int planes_of(struct hz_context *ctx, const struct hzi_quat_gemm_args *a, bool left,
		     const struct plan *plan, int64_t first, int64_t items, float *planes,
		     struct hzi_quat_planar_f32 *to)
{
	const struct hzi_quat_matrix x =
		left ? hzi_quat_matrix_of(&a->a, a->dtype, a->conj_a, a->a_stride, a->ndim) :
		       hzi_quat_matrix_of(&a->b, a->dtype, a->conj_b, a->b_stride, a->ndim);

	*to = (struct hzi_quat_planar_f32){
		.x = x, .planes = planes, .item = left ? plan->a_floats : plan->b_floats,
		.first = first, .rows = (int32_t)(left ? a->m : a->n), .k = (int32_t)a->k,
		.chunks = (int32_t)ceil_div(a->k, HZI_SIMT_CHUNK), .halves = plan->halves,
		.left = left,
	};
	for (int d = 0; d < HZI_QUAT_BATCH; d++)
		to->shape[d] = plan->shape[d];
	if (!left) {
		/* Columns of B are rows of its planes. */
		to->x.row = x.col;
		to->x.col = x.row;
	} else if (a->packed) {
		to->transposed = a->packed_t;
		to->from = a->packed;
		packed_strides(a, to->x.batch);
		to->x.row = a->packed_t ? 4 : 1;
		to->x.col = a->packed_t ? 1 : 4;
		to->from_chunks = (int32_t)ceil_div(a->packed_t ? a->m : a->k, HZI_SIMT_CHUNK);
	}
	return set_grid(ctx, "quat_gemm", to, items);
}

static int multiply(struct hz_context *ctx, const struct hzi_quat_gemm_args *a,
		    const struct plan *plan, struct hzi_quat_simt *p, int64_t items)
{
	const int64_t tiles_m = ceil_div(a->m, HZI_SIMT_STRIP);
	const int64_t tiles_n = ceil_div(a->n, HZI_SIMT_STRIP);
	const struct hzi_launch launch = {
		.grid = {(unsigned)(tiles_m * tiles_n), (unsigned)items},
		.block = {HZI_SIMT_THREADS},
		.shared_bytes = (unsigned)HZI_SIMT_BYTES(plan->halves),
	};
	const int kernel =
		plan->halves == 2 ? HZI_KERNEL_quat_gemm_simt_f32_fast_64x64
				  : HZI_KERNEL_quat_gemm_simt_f32_direct_64x64;

	if (tiles_m > INT32_MAX / tiles_n)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"quat_gemm: c of %lld x %lld is too large for a GPU",
				(long long)a->m, (long long)a->n);
	p->tiles_m = (int32_t)tiles_m;
	p->tiles_n = (int32_t)tiles_n;
	p->band = BAND_ROWS / HZI_SIMT_STRIP;
	return hzi_cuda_launch(ctx, "quat_gemm", kernel, &launch, p, sizeof(*p));
}

int hzi_cuda_quat_gemm_simt_f32(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_gemm_args *a = args;
	const struct plan plan = plan_of(a);
	float *workspace_a = ctx->workspace;
	float *workspace_b = workspace_a +
		(plan.own_a ? (plan.one_a ? 1 : plan.group) * plan.a_floats : 0);
	struct hzi_quat_simt p = {
		.out = hzi_quat_out_of(a),
		.b = workspace_b, .b_item = plan.one_b ? 0 : plan.b_floats,
		.chunks = (int32_t)ceil_div(a->k, HZI_SIMT_CHUNK),
	};

	if (plan.own_a) {
		p.a = workspace_a;
		p.a_item = plan.one_a ? 0 : plan.a_floats;
	} else {
		p.a = a->packed;
		packed_strides(a, p.a_batch);
	}
	for (int64_t first = 0; first < plan.items; first += plan.group) {
		const int64_t rest = plan.items - first, n = rest < plan.group ? rest : plan.group;
		struct hzi_quat_planar_f32_pair both = {0};

		if (plan.own_a && (!plan.one_a || first == 0))
			HZ_CHECK(planes_of(ctx, a, true, &plan, first, plan.one_a ? 1 : n,
					   workspace_a, &both.x[0]));
		if (!plan.one_b || first == 0)
			HZ_CHECK(planes_of(ctx, a, false, &plan, first, plan.one_b ? 1 : n,
					   workspace_b, &both.x[1]));
		HZ_CHECK(launch_planes(ctx, "quat_gemm", &both));
		p.first = first;
		HZ_CHECK(multiply(ctx, a, &plan, &p, n));
	}
	return HZ_OK;
}
