/*
 * pack.c - launchers of packing: B, or rows of A that kernels cannot read in place
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/qgemm/launch.h"

#define ITEMS_FEW 4		/* the most items whose column sums are cleared one by one */

struct hzi_qgemm_items hzi_qgemm_items_of(int ndim, const int64_t *shape, const int64_t *stride,
					  bool all)
{
	struct hzi_qgemm_items t = {.count = 1};

	for (int d = 0; d < ndim; d++) {
		if (!all && !stride[d])
			continue;
		t.shape[t.ndim] = shape[d];
		t.stride[t.ndim++] = stride[d];
		t.count *= shape[d];
	}
	return t;
}

/*
 * Each block packs 64 rows of an item over a share of k; there are enough blocks for all SMs. If
 * several blocks add to one column sum, the sums are cleared first.
 */
int hzi_qgemm_launch_pack(struct hz_context *ctx, const char *op, struct hzi_qgemm_pack_rows p,
			  const struct hzi_qgemm_items *items, int64_t rows)
{
	const int64_t columns = rows / HZI_QGEMM_N_GROUP;
	const int64_t want = 8 * (int64_t)hzi_cuda_device(ctx)->sms;
	struct hzi_launch launch = {.block = {256}};

	launch.grid[0] = (unsigned)columns;
	if (!p.sums || items->count <= ITEMS_FEW)
		launch.grid[1] = (unsigned)min_of(min_of(ceil_div(want, columns * items->count),
							 p.blocks), 65535);
	p.ndim = items->ndim;
	memcpy(p.shape, items->shape, sizeof(p.shape));
	memcpy(p.x_stride, items->stride, sizeof(p.x_stride));
	for (int64_t i = 0; i < items->count && launch.grid[1] > 1 && p.sums; i++)
		HZ_CHECK(hzi_cuda_fill(ctx, (char *)p.sums + i * p.y_item, 0,
				       4 * (size_t)p.width));
	for (; p.first < items->count; p.first += HZI_QGEMM_ITEMS_MAX) {
		launch.grid[2] = (unsigned)min_of(items->count - p.first, HZI_QGEMM_ITEMS_MAX);
		HZ_CHECK(hzi_cuda_launch(ctx, op, HZI_KERNEL_qgemm_pack_rows, &launch, &p,
					 sizeof(p)));
	}
	return HZ_OK;
}

static int pack(struct hz_context *ctx, const char *op, const void *b, int dtype, int64_t k,
		int64_t n, int64_t b_k, int64_t b_n, const struct hzi_qgemm_items *items,
		void *data)
{
	const int64_t codes = hzi_qgemm_packed_codes(HZI_QGEMM_LAYOUT_CUDA, k, n);
	const int64_t width = hzi_qgemm_packed_width(HZI_QGEMM_LAYOUT_CUDA, n);
	const struct hzi_qgemm_pack_rows p = {
		.x = b, .y = data, .sums = (int32_t *)(void *)((char *)data + codes),
		.x_row = b_n, .x_k = b_k, .rows = n, .k = k, .width = width,
		.blocks = (int32_t)ceil_div(k, HZI_QGEMM_K_BLOCK),
		.flip = dtype == HZ_S8 ? 0x80 : 0,
		.y_item = hzi_qgemm_packed_bytes(HZI_QGEMM_LAYOUT_CUDA, k, n),
	};

	if (k == 0)
		return hzi_cuda_fill(ctx, data, 0, (size_t)(p.y_item * items->count));
	return hzi_qgemm_launch_pack(ctx, op, p, items, width);
}

int hzi_qgemm_pack_b(struct hz_context *ctx, const char *op, const struct hzi_qgemm_args *t,
		     const void *b, const struct hzi_qgemm_items *items, void *data)
{
	return pack(ctx, op, b, t->b_dtype, t->k, t->n, t->b_k, t->b_n, items, data);
}

HZI_NO_WORKSPACE(cuda, qgemm_pack)

int hzi_cuda_qgemm_pack(struct hz_context *ctx, const struct hzi_qgemm_pack_args *a)
{
	const struct hzi_qgemm_items items =
		hzi_qgemm_items_of(a->ndim, a->shape, a->b_stride, true);

	return pack(ctx, "qgemm_pack", a->b, a->b_dtype, a->k, a->n, a->b_k, a->b_n, &items,
		    a->data);
}
