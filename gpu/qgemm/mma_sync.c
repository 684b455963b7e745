/*
 * mma_sync.c - launchers of the mma.sync kernels, for any GPU; a batch in one launch
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>

#include "gpu/qgemm/launch.h"

static struct hzi_qgemm_mma_sync make_params(const struct hzi_qgemm_args *t, const uint8_t *b,
				     const struct hzi_qgemm_out *out)
{
	return (struct hzi_qgemm_mma_sync){
		.a = t->a, .b = b, .out = *out, .a_m = t->a_m,
		.width = hzi_qgemm_width(t), .blocks = (int32_t)hzi_qgemm_blocks(t),
	};
}

static int launch_items(struct hz_context *ctx, const struct hzi_qgemm_args *t,
			struct hzi_qgemm_mma_sync *p, int64_t items)
{
	const int rows = t->sum64 ? HZI_MMA_SYNC_ROWS / 2 : HZI_MMA_SYNC_ROWS;
	const bool is_signed = t->a_dtype == HZ_S8;
	struct hzi_launch launch = {
		.grid = {(unsigned)ceil_div(t->n, HZI_MMA_SYNC_COLUMNS),
			 (unsigned)ceil_div(t->m, rows)},
		.block = {256},
		.shared_bytes = (unsigned)(HZI_MMA_SYNC_STAGES * HZI_QGEMM_K_BLOCK *
					   (rows + HZI_MMA_SYNC_COLUMNS)),
	};
	const int first = p->ndim ? HZI_KERNEL_qgemm_mma_sync_batch_u8
				  : HZI_KERNEL_qgemm_mma_sync_u8;
	const int kernel = first + (t->sum64 ? 2 : 0) + is_signed;

	for (; p->first < items; p->first += HZI_QGEMM_ITEMS_MAX) {
		launch.grid[2] = (unsigned)min_of(items - p->first, HZI_QGEMM_ITEMS_MAX);
		HZ_CHECK(hzi_cuda_launch(ctx, "qgemm", kernel, &launch, p, sizeof(*p)));
	}
	return HZ_OK;
}

static int launch_matrix(struct hz_context *ctx, const struct hzi_qgemm_args *t, const uint8_t *b,
			 const struct hzi_qgemm_out *out, bool early)
{
	struct hzi_qgemm_mma_sync p = make_params(t, b, out);

	(void)early;
	return launch_items(ctx, t, &p, 1);
}

int hzi_cuda_qgemm_mma_sync(struct hz_context *ctx, const void *args)
{
	return hzi_qgemm_for_each(ctx, args, launch_matrix);
}

/* ---- A batch in one launch ------------------------------------------------------------------- */

#define BATCH_BYTES ((int64_t)256 << 20)	/* largest size of all packed matrices */

const char *hzi_cuda_qgemm_batch_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_qgemm_args *t = &((const struct hzi_qgemm_call *)args)->t;
	int64_t packs;

	(void)ctx;
	if (hzi_qgemm_items_of(t->ndim, t->shape, t->b_stride, true).count < 2)
		return "there is one matrix";
	if (t->m > HZI_QGEMM_ROWS_MAX)
		return "m exceeds the rows of a launch";
	if (t->ndim > HZI_QGEMM_BATCH_DIMS)
		return "the batch has more than 4 dimensions";
	packs = hzi_qgemm_items_of(t->ndim, t->shape, t->b_stride, false).count;
	return !t->packed && packs * hzi_qgemm_packed_bytes(HZI_QGEMM_LAYOUT_CUDA, t->k, t->n) >
				     BATCH_BYTES
		       ? "packed matrices exceed 256 MiB" : NULL;
}

#define BATCH_RATE 450000	/* operations per ns of the batch kernel on an H200 */
#define SINGLE_RATE 1300000	/* of the wgmma kernels */
#define BYTES_RATE 3000		/* bytes of B per ns */
#define LAUNCH_NS 2000		/* per launch, also of packing or alignment */

/* One launch is faster for many small matrices, the wgmma kernels for a few large ones. */
bool hzi_cuda_qgemm_batch_wins(const struct hz_context *ctx, const struct hzi_qgemm_call *c)
{
	const struct hzi_qgemm_args *t = &c->t;
	const int64_t n = hzi_round_up(t->n, HZI_MMA_SYNC_COLUMNS);
	const int64_t k = hzi_round_up(t->k, HZI_QGEMM_K_BLOCK);
	const double count =
		(double)hzi_qgemm_items_of(t->ndim, t->shape, t->b_stride, true).count;
	const double bytes = (double)n * (double)k / BYTES_RATE;
	const double batched = 2.0 * (double)hzi_round_up(t->m, HZI_MMA_SYNC_ROWS) * (double)n *
			     (double)k / BATCH_RATE;
	const double one_by_one = 2.0 * (double)t->m * (double)n * (double)k / SINGLE_RATE;
	const int64_t launches = 1 + (t->packed ? 0 : 2);

	if (!ctx->sm_90a || t->sum64 || t->k == 0)
		return true;
	return count * fmax(batched, bytes) + 2 * LAUNCH_NS <
	       count * fmax(fmax(one_by_one, bytes), (double)(launches * LAUNCH_NS));
}

size_t hzi_cuda_qgemm_batch_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_qgemm_call *c = args;
	size_t a_offset;

	(void)ctx;
	return hzi_qgemm_workspace(&c->t, true, &a_offset);
}

/* Sets the strides of contiguous items; with `shared`, stride 0 stays 0. */
static void set_contiguous(const struct hzi_qgemm_args *t, int64_t *stride, int64_t step,
			   bool shared)
{
	for (int d = t->ndim - 1; d >= 0; d--) {
		if (shared && !stride[d])
			continue;
		stride[d] = step;
		step *= t->shape[d];
	}
}

int hzi_cuda_qgemm_batch(struct hz_context *ctx, const void *args)
{
	const struct hzi_qgemm_call *c = args;
	struct hzi_qgemm_args t = c->t;
	const struct hzi_qgemm_items items =
		hzi_qgemm_items_of(t.ndim, t.shape, t.a_stride, true);
	const struct hzi_qgemm_items packs =
		hzi_qgemm_items_of(t.ndim, t.shape, t.b_stride, false);
	const int64_t c_size = (int64_t)hz_dtype_size(t.c_dtype);
	const int64_t pack_bytes = hzi_qgemm_packed_bytes(HZI_QGEMM_LAYOUT_CUDA, t.k, t.n);
	const uint8_t *b = t.packed ? t.packed : c->workspace;
	struct hzi_qgemm_out out;
	struct hzi_qgemm_mma_sync p;
	size_t a_offset;

	hzi_qgemm_workspace(&t, true, &a_offset);
	if (!t.packed) {
		HZ_CHECK(hzi_qgemm_pack_b(ctx, "qgemm", &t, t.b, &packs, c->workspace));
		set_contiguous(&t, t.b_stride, 1, true);
	}
	if (!hzi_qgemm_all_aligned(&t)) {
		const struct hzi_qgemm_pack_rows q =
			hzi_qgemm_align(&t, (uint8_t *)c->workspace + a_offset);

		HZ_CHECK(hzi_qgemm_launch_pack(ctx, "qgemm", q, &items,
					       hzi_round_up(t.m, HZI_QGEMM_N_GROUP)));
		t.a = q.y;
		t.a_m = q.y_row;
		t.a_k = 1;
		set_contiguous(&t, t.a_stride, q.y_item, false);
	}
	out = hzi_qgemm_make_out(&t, b);
	p = make_params(&t, b, &out);
	p.ndim = t.ndim;
	for (int d = 0; d < t.ndim; d++) {
		p.shape[d] = t.shape[d];
		p.a_stride[d] = t.a_stride[d];
		p.b_stride[d] = t.b_stride[d] * pack_bytes;
		p.c_stride[d] = t.c_stride[d] * c_size;
		p.row_stride[d] = t.row_stride[d];
		if (p.c_stride[d] % 16)
			p.out.fast_path = 0;
	}
	return launch_items(ctx, &t, &p, items.count);
}
