/*
 * append.c - rows of codes into a packed matrix on a GPU: vlut_append
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Rows of codes are packed in place. Bits are packed in tiles of 16 rows: whole tiles in place,
 * rows of a part of one in the workspace, from where vlut_append_merge copies them.
 */
#include <config.h>

#include "gpu/vlut/append.h"
#include "gpu/vlut/label.h"
#include "gpu/vlut/launch.h"

#define ROWS 16			/* of a tile of each layout of bits */

/* Bytes of a tile, a multiple of 4; 0: w is packed as rows of codes */
static int64_t tile_bytes(const struct hzi_vlut_append_args *a)
{
	struct hzi_coded tile = a->w;

	tile.rows = ROWS;
	return (int64_t)hzi_cuda_vlut_bit_packed_bytes(a->vlut->w, &tile);
}

static int merge(struct hz_context *ctx, const struct hzi_vlut_append_args *a, void *tile,
		 int64_t bytes, int64_t first, int64_t end)
{
	const hz_lattice *l = a->vlut->w;
	const bool label = hzi_cuda_vlut_packs_as_label(l);
	const struct hzi_vlut_append_merge p = {
		.src = ctx->workspace, .dst = tile, .words = bytes / 4, .first = (int32_t)first,
		.end = (int32_t)end,
		.layout = label ? HZI_VLUT_TILE_LABEL :
			  hzi_cuda_vlut_packs_as_d4_bitfield(l) ? HZI_VLUT_TILE_D4 :
								  HZI_VLUT_TILE_E8,
		.t_bits = label ? HZI_VLUT_LABEL_T_BITS(l->rule.shaping, l->rule.scales) : 0,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)min_of(ceil_div(p.words, HZI_VLUT_THREADS), 1024)},
		.block = {HZI_VLUT_THREADS},
	};

	return hzi_cuda_launch(ctx, "vlut_append", HZI_KERNEL_vlut_append_merge, &launch, &p,
			       sizeof(p));
}

/* Rows from number `row` of w on, with `lead` rows of any codes before them */
static struct hzi_vlut_pack_args rows_of(const struct hzi_vlut_append_args *a, int64_t row,
					 int64_t lead, int64_t rows, void *packed)
{
	struct hzi_vlut_pack_args p = {.vlut = a->vlut, .w = a->w, .packed = packed};

	p.w.codes = (const char *)a->w.codes +
		    (row - lead) * a->w.row * (int64_t)hz_dtype_size(a->w.code_dtype);
	p.w.t = a->w.t ? a->w.t + (row - lead) * a->w.t_row : NULL;
	p.w.rows = lead + rows;
	return p;
}

/* Rows of codes before those of w: what they are does not matter, but that they are set. */
static int clear_lead(struct hz_context *ctx, const struct hzi_vlut_append_args *a, int64_t lead)
{
	const struct hzi_vlut_pack_args p = rows_of(a, 0, lead, 0, NULL);
	const size_t bytes = (size_t)(lead * a->w.row) * hz_dtype_size(a->w.code_dtype);

	if (lead)
		HZ_CHECK(hzi_cuda_fill(ctx, (void *)(uintptr_t)p.w.codes, 0, bytes));
	if (lead && p.w.t)
		HZ_CHECK(hzi_cuda_fill(ctx, (void *)(uintptr_t)p.w.t, 0,
				       (size_t)(lead * a->w.t_row)));
	return HZ_OK;
}

int hzi_cuda_vlut_append(struct hz_context *ctx, const struct hzi_vlut_append_args *a)
{
	const int64_t bytes = tile_bytes(a);

	if (!bytes) {
		const struct hzi_vlut_pack_args p = rows_of(a, 0, 0, a->w.rows, a->packed);

		return hzi_cuda_vlut_pack_rows(ctx, &p, a->row);
	}
	HZ_CHECK(clear_lead(ctx, a, a->row % ROWS));
	for (int64_t i = 0, rows; i < a->w.rows; i += rows) {
		const int64_t at = (a->row + i) % ROWS, left = a->w.rows - i;
		const bool whole = at == 0 && left >= ROWS;
		char *const tile = (char *)a->packed + (a->row + i) / ROWS * bytes;
		struct hzi_vlut_pack_args p;

		rows = whole ? left / ROWS * ROWS : min_of(ROWS - at, left);
		p = rows_of(a, i, at, rows, whole ? tile : ctx->workspace);
		HZ_CHECK(hzi_cuda_vlut_pack(ctx, &p));
		if (!whole)
			HZ_CHECK(merge(ctx, a, tile, bytes, at, at + rows));
	}
	return HZ_OK;
}

size_t hzi_cuda_vlut_append_workspace(const struct hz_context *ctx,
				      const struct hzi_vlut_append_args *a)
{
	(void)ctx;
	return (size_t)tile_bytes(a);
}
