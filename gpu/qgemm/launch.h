/*
 * launch.h - routes of quantized matrix multiplication on a GPU, and what their launchers share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QGEMM_LAUNCH_H
#define HZI_GPU_QGEMM_LAUNCH_H

#include "gpu/qgemm/qgemm.h"
#include "gpu/runtime/cuda.h"
#include "lib/qgemm/qgemm.h"

HZI_LINK_IMAGES(qgemm);

#define HZI_QGEMM_ROWS_MAX ((int64_t)65535 * 64)	/* rows per launch: blocks of 64 */
#define HZI_QGEMM_ITEMS_MAX 65535		/* items per launch: blocks along z */
#define HZI_QGEMM_SHARED_ALIGN 1024	/* bytes, alignment of shared memory */

/* Arguments of the routes of qgemm */
struct hzi_qgemm_call {
	struct hzi_qgemm_args t;	/* items that are rows of one matrix are merged */
	void *workspace;
};

/* Routes; see struct hzi_route. */
const char *hzi_cuda_qgemm_batch_unsupported(const struct hz_context *ctx, const void *args);
bool hzi_cuda_qgemm_batch_wins(const struct hz_context *ctx, const struct hzi_qgemm_call *c);
size_t hzi_cuda_qgemm_batch_workspace(const struct hz_context *ctx, const void *args);
int hzi_cuda_qgemm_batch(struct hz_context *ctx, const void *args);
const char *hzi_cuda_qgemm_skinny_splitk_unsupported(const struct hz_context *ctx,
						     const void *args);
bool hzi_cuda_qgemm_skinny_splitk_wins(const struct hz_context *ctx,
				       const struct hzi_qgemm_call *c);
int hzi_cuda_qgemm_skinny_splitk(struct hz_context *ctx, const void *args);
const char *hzi_cuda_qgemm_wgmma_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cuda_qgemm_wgmma(struct hz_context *ctx, const void *args);
int hzi_cuda_qgemm_mma_sync(struct hz_context *ctx, const void *args);

/* Expected H200 cycles of the wgmma kernel with the best tile */
int64_t hzi_qgemm_wgmma_cycles(const struct hz_context *ctx, const struct hzi_qgemm_args *t);

/* ---- Items of a batch, packing --------------------------------------------------------------- */

/* The dimensions of a batch: all of them, or those along which an operand changes */
struct hzi_qgemm_items {
	int32_t ndim;
	int64_t count, shape[HZ_MAXDIM], stride[HZ_MAXDIM];
};

struct hzi_qgemm_items hzi_qgemm_items_of(int ndim, const int64_t *shape, const int64_t *stride,
					  bool all);

/*
 * Launches packing of B, whose columns are the packed rows, or alignment of rows of A: `rows` rows
 * of each item.
 */
int hzi_qgemm_launch_pack(struct hz_context *ctx, const char *op, struct hzi_qgemm_pack_rows p,
			  const struct hzi_qgemm_items *items, int64_t rows);

/* Packs B of t; the packed matrices are contiguous in the order of the items. */
int hzi_qgemm_pack_b(struct hz_context *ctx, const char *op, const struct hzi_qgemm_args *t,
		     const void *b, const struct hzi_qgemm_items *items, void *data);

/* ---- Matrices -------------------------------------------------------------------------------- */

/*
 * Launches the product of one matrix A with aligned rows and packed B. early: see struct
 * hzi_launch.
 */
typedef int hzi_qgemm_launch(struct hz_context *ctx, const struct hzi_qgemm_args *t,
			     const uint8_t *b, const struct hzi_qgemm_out *out, bool early);

/* Packs B and aligns A where needed, and launches each matrix of a batch. */
int hzi_qgemm_for_each(struct hz_context *ctx, const struct hzi_qgemm_call *c,
		       hzi_qgemm_launch *launch);

/* The workspace of hzi_qgemm_for_each() */
size_t hzi_cuda_qgemm_for_each_workspace(const struct hz_context *ctx, const void *args);

/*
 * The workspace for packed B and aligned A; batched: of all items. *a_offset: the offset of A in it
 */
size_t hzi_qgemm_workspace(const struct hzi_qgemm_args *t, bool batched, size_t *a_offset);

/* Whether kernels can read A in place, for every item of the batch */
bool hzi_qgemm_all_aligned(const struct hzi_qgemm_args *t);

/* Parameters of a launch that copies rows of A to y with aligned rows */
struct hzi_qgemm_pack_rows hzi_qgemm_align(const struct hzi_qgemm_args *t, void *y);

/* The epilogue parameters */
struct hzi_qgemm_out hzi_qgemm_make_out(const struct hzi_qgemm_args *t, const uint8_t *b);

/*
 * The 32-bit epilogue that t allows, ignoring the strides of C and zero points per row; 0 if none
 */
int hzi_qgemm_epilogue_kind(const struct hzi_qgemm_args *t);

static inline int64_t hzi_qgemm_blocks(const struct hzi_qgemm_args *t)
{
	return ceil_div(t->k, HZI_QGEMM_K_BLOCK);
}

static inline int32_t hzi_qgemm_width(const struct hzi_qgemm_args *t)
{
	return (int32_t)hzi_qgemm_packed_width(HZI_QGEMM_LAYOUT_CUDA, t->n);
}

static inline size_t hzi_qgemm_padded(size_t bytes)
{
	return (bytes + 255) & ~(size_t)255;
}

/* ---- qlinear --------------------------------------------------------------------------------- */

/* Arguments of the routes of qlinear */
struct hzi_qlinear_call {
	const struct hzi_qlinear_args *a;
	struct hzi_qgemm_args t;	/* a->g with merged rows */
};

const char *hzi_cuda_qlinear_gemv_unsupported(const struct hz_context *ctx, const void *args);
bool hzi_cuda_qlinear_gemv_wins(const struct hz_context *ctx, const struct hzi_qlinear_call *c);
int hzi_cuda_qlinear_gemv(struct hz_context *ctx, const void *args);

/* Quantizes rows of x into the workspace; g, from hzi_qlinear_product(), then multiplies them. */
int hzi_qlinear_quantize(struct hz_context *ctx, const struct hzi_qlinear_args *a,
			 const struct hzi_qgemm_args *g, char *workspace);

/* The arguments of that product. *qgemm_offset: where its own workspace begins */
struct hzi_qgemm_args hzi_qlinear_product(const struct hzi_qlinear_args *a, char *workspace,
					  size_t *qgemm_offset);

/* ---- qlinear_group --------------------------------------------------------------------------- */

const char *hzi_cuda_qlinear_group_one_row_unsupported(const struct hz_context *ctx,
						      const void *args);
int hzi_cuda_qlinear_group_one_row(struct hz_context *ctx, const void *args);
const char *hzi_cuda_qlinear_group_gemv_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cuda_qlinear_group_gemv(struct hz_context *ctx, const void *args);
bool hzi_cuda_qlinear_group_skinny_wins(const struct hz_context *ctx,
					const struct hzi_qlinear_group_args *a);
const char *hzi_cuda_qlinear_group_skinny_unsupported(const struct hz_context *ctx,
						      const void *args);
size_t hzi_cuda_qlinear_group_skinny_workspace(const struct hz_context *ctx, const void *args);
int hzi_cuda_qlinear_group_skinny(struct hz_context *ctx, const void *args);
const char *hzi_cuda_qlinear_group_wgmma_unsupported(const struct hz_context *ctx,
						     const void *args);
size_t hzi_cuda_qlinear_group_wgmma_workspace(const struct hz_context *ctx, const void *args);
int hzi_cuda_qlinear_group_wgmma(struct hz_context *ctx, const void *args);
const char *hzi_cuda_qlinear_group_codes_unsupported(const struct hz_context *ctx,
						     const void *args);
size_t hzi_cuda_qlinear_group_codes_workspace(const struct hz_context *ctx, const void *args);
int hzi_cuda_qlinear_group_codes(struct hz_context *ctx, const void *args);
bool hzi_cuda_qlinear_group_floats_wins(const struct hz_context *ctx,
					const struct hzi_qlinear_group_args *a);
const char *hzi_cuda_qlinear_group_floats_unsupported(const struct hz_context *ctx,
						       const void *args);
size_t hzi_cuda_qlinear_group_floats_workspace(const struct hz_context *ctx, const void *args);
int hzi_cuda_qlinear_group_floats(struct hz_context *ctx, const void *args);
size_t hzi_cuda_qlinear_group_tiled_workspace(const struct hz_context *ctx, const void *args);
int hzi_cuda_qlinear_group_tiled(struct hz_context *ctx, const void *args);

#endif
