/*
 * rows.c - launches of rows of any dtypes: of 2^k elements, and with a base matrix
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/hadamard/segments.h"

#define SM_CLUSTERS 90		/* the first compute capability with clusters */

/*
 * The kernels for rows up to 2^10, then of 2^11 to 2^16: threads of a block, log2 of the elements
 * of a tile, blocks of a cluster
 */
struct rows_kernel {
	int kernel, quantize, threads, tile_log2, cluster;
};

#define ROWS_LOG2_MIN 10
#define ROWS_LOG2_MAX 16

static const struct rows_kernel rows_kernels[] = {
	{HZI_KERNEL_hadamard_rows_10, HZI_KERNEL_hadamard_rows_quantize_10, 128, 11, 1},
	{HZI_KERNEL_hadamard_rows_11, HZI_KERNEL_hadamard_rows_quantize_11, 128, 11, 1},
	{HZI_KERNEL_hadamard_rows_12, HZI_KERNEL_hadamard_rows_quantize_12, 64, 12, 1},
	{HZI_KERNEL_hadamard_rows_13, HZI_KERNEL_hadamard_rows_quantize_13, 128, 13, 1},
	{HZI_KERNEL_hadamard_rows_14, HZI_KERNEL_hadamard_rows_quantize_14, 256, 14, 1},
	{HZI_KERNEL_hadamard_rows_15, HZI_KERNEL_hadamard_rows_quantize_15, 512, 15, 1},
	{HZI_KERNEL_hadamard_rows_16_c4, HZI_KERNEL_hadamard_rows_quantize_16_c4, 256, 16, 4},
};

#define EXCHANGE_BYTES 272	/* of shared memory for each thread's 64 values */

/*
 * NULL if the kernels support the groups of a segment's vectors, else the reason. Sets group_log2
 * if a row is one group.
 */
static const char *bad_groups(const struct hzi_hadamard_call *c, const struct hzi_segment *seg,
			      struct hzi_hadamard_rows *p)
{
	/*
	 * Quantization needs whole groups in a vector; dequantization reads one scale per 32
	 * elements.
	 */
	const int64_t unit = c->quantize ? c->group : 32;

	if (c->quantize && p->job.group_log2 == HZI_GROUP_IS_ROW) {
		p->job.group_log2 = seg->k;
		return c->group == seg->length ? NULL : "a row of one scale has several transforms";
	}
	if (c->quantize && p->contiguous)
		return NULL;
	if (seg->length < 64)
		return "transforms are shorter than 64 elements";
	return p->job.group_log2 != HZI_GROUP_IS_ROW &&
			       (seg->length < c->group || seg->offset % unit ||
				p->dim[0].row_offset % unit || p->dim[1].row_offset % unit)
		       ? "groups straddle transforms" : NULL;
}

const char *hzi_hadamard_prepare_rows(const struct hzi_hadamard_call *c,
				      const struct hzi_segment *seg, struct hzi_hadamard_launch *l)
{
	const int k_min = hzi_bits_of(c->job.x_dtype) == 4 || c->quantize ? 5 : 4;
	const struct hzi_hadamard_args *t = c->t;
	struct hzi_hadamard_rows *const p = &l->p.rows;
	const struct rows_kernel *r;
	const int64_t n = seg->length;
	struct hzi_hadamard_dims dims;
	const char *why;
	int64_t tiles;

	if (seg->m > 1)
		return "the order has a base matrix";
	if (seg->k > ROWS_LOG2_MAX || seg->k < k_min)
		return "rows are shorter than 2^4 elements (codes: 2^5) or longer than 2^16";
	if (n > 1 && (c->job.x_step != 1 || c->job.y_step != 1))
		return "elements of a row are not contiguous";
	if (t->pre.kind && seg->k < 6)
		return "rows with a factor before are shorter than 2^6 elements";
	dims = hzi_hadamard_make_dims(c, seg);
	*p = (struct hzi_hadamard_rows){.job = hzi_hadamard_make_job(c, seg, &dims)};
	if (!hzi_hadamard_set_dims(&dims, n, p))
		return "rows have more than two dimensions, or are 2^31 or more";
	if (!hzi_hadamard_aligned(p->job.x, seg->offset, p->job.x_dtype,
				  (int64_t[]){p->dim[0].x, p->dim[1].x}, 2, 16) ||
	    !hzi_hadamard_aligned(p->job.y, seg->offset, p->job.y_dtype,
				  (int64_t[]){p->dim[0].y, p->dim[1].y}, 2, c->quantize ? 4 : 16))
		return "rows are not 16-byte aligned";
	if (!hzi_hadamard_whole_bytes(&t->pre, seg->offset, p->dim[0].pre, p->dim[1].pre) ||
	    !hzi_hadamard_whole_bytes(&t->post, seg->offset, p->dim[0].post, p->dim[1].post))
		return "packed signs of a row do not begin at a byte";
	/* Codes of several short rows are stored as one contiguous tile. */
	if (c->quantize && seg->k <= 10 &&
	    (p->dim[1].y != n || (!p->one_dim && p->dim[0].y != n * p->dim[1].size)))
		return "codes of short rows are not contiguous";
	why = c->scale_stride ? bad_groups(c, seg, p) : NULL;
	if (why)
		return why;
	p->piece_log2 = hzi_log2(128 / hzi_bits_of(p->job.x_dtype));
	r = &rows_kernels[seg->k < ROWS_LOG2_MIN ? 0 : seg->k - ROWS_LOG2_MIN];
	if (r->threads * EXCHANGE_BYTES > c->device->shared_block_bytes)
		return "rows exceed the shared memory of a block";
	if (r->cluster > 1 && c->device->sm < SM_CLUSTERS)
		return "rows of 2^16 need clusters: compute capability 9.0";
	p->job.x = hzi_at_element(p->job.x, seg->offset, p->job.x_dtype);
	p->job.y = hzi_at_element(p->job.y, seg->offset, p->job.y_dtype);
	tiles = ceil_div(p->job.vectors, (int64_t)1 << (r->tile_log2 - seg->k));
	l->kernel = c->quantize ? r->quantize : r->kernel;
	l->bytes = sizeof(*p);
	l->launch = (struct hzi_launch){
		.grid = {(unsigned)(min_of(ceil_div(tiles, r->tile_log2 == 11 ? 4 : 1),
					   HZI_GRID_MAX / 8) * r->cluster)},
		.block = {(unsigned)r->threads},
		.shared_bytes = (unsigned)(r->threads * EXCHANGE_BYTES),
		.cluster = (unsigned)r->cluster, .early = true};
	return NULL;
}

/* ---- Rows of m 2^k --------------------------------------------------------------------------- */

#define BASE_ORDER_MAX 64
#define BASE_LOG2_MIN 6
#define BASE_LOG2_MAX 11
#define BASE_THREADS_MAX 512
#define SPLIT_THREADS_MAX 1024

/* The base matrix or its transpose, as two words of sign bits a row */
static void set_base(const struct hzi_segment *seg, bool transpose, uint32_t *bits)
{
	const struct hzi_base *const base = seg->base;

	for (int i = 0; i < seg->m; i++) {
		for (int j = 0; j < seg->m; j++) {
			const int row = transpose ? j : i, column = transpose ? i : j;
			const uint32_t word = base->bits[row * base->words + column / 32];

			bits[2 * i + j / 32] |= (word >> column % 32 & 1) << j % 32;
		}
	}
}

/* Signs of four rows of the base matrix or its transpose: struct hzi_hadamard_base_split */
static void set_signs(const struct hzi_base *base, bool transpose, int words, uint32_t *signs)
{
	const int m = base->m;

	memset(signs, 0, (size_t)(m / 4 * words) * sizeof(*signs));
	for (int j = 0; transpose && j < m; j++) {
		const uint32_t *const row = base->bits + j * base->words;

		for (int q = 0; q < m / 4; q++)
			signs[q * words + j / 8] |= (row[q / 8] >> q % 8 * 4 & 15) << j % 8 * 4;
	}
	for (int i = 0; !transpose && i < m; i++) {
		const uint32_t *const row = base->bits + i * base->words;

		for (int w = 0; w < words; w++) {
			uint32_t bits = row[w / 4] >> w % 4 * 8 & 0xff;

			/* Bit b to bit 4 b */
			bits = (bits | bits << 12) & 0x000f000f;
			bits = (bits | bits << 6) & 0x03030303;
			bits = (bits | bits << 3) & 0x11111111;
			signs[i / 4 * words + w] |= bits << i % 4;
		}
	}
}

/* Several blocks for each vector, as many as the GPU runs at a time */
static const char *prepare_base_split(const struct hzi_hadamard_call *c,
				      const struct hzi_segment *seg, struct hzi_hadamard_launch *l)
{
	const struct hzi_hadamard_base_rows base = l->p.base;
	struct hzi_hadamard_base_split *const p = &l->p.split.a;
	const int64_t n = seg->length, quads = seg->m / 4, vectors = base.job.vectors;
	const int64_t padding = n / 8 >> (seg->k < 5 ? seg->k - 3 : 2);
	int64_t parts, tasks, bytes;

	if (seg->k < 3)
		return "rows are shorter than m 2^3";
	/* All of a vector is read before a result is stored, but by each block for itself. */
	parts = c->job.x == c->job.y ? 1 :
		max_of(1, min_of(quads, c->device->sms / max_of(vectors, 1)));
	p->job = base.job;
	p->dim[0] = base.dim[0];
	p->dim[1] = base.dim[1];
	p->quads = (int32_t)ceil_div(quads, parts);
	p->words = (seg->m + 7) / 8;
	bytes = 16 * p->quads * seg->m + 4 * (n + 4 * padding);
	if (bytes > c->device->shared_block_bytes)
		return "rows exceed the shared memory of a block";
	set_signs(seg->base, c->t->transpose, p->words, p->signs);
	tasks = max_of(n / 8, p->quads << (seg->k - 1));
	l->kernel = seg->m > HZI_BASE_SPLIT_ORDER ? HZI_KERNEL_hadamard_base_split_big :
						    HZI_KERNEL_hadamard_base_split;
	l->bytes = seg->m > HZI_BASE_SPLIT_ORDER ? sizeof(l->p.split) : sizeof(*p);
	l->launch = (struct hzi_launch){
		.grid = {(unsigned)min_of(vectors, HZI_GRID_MAX),
			 (unsigned)ceil_div(quads, p->quads)},
		.block = {(unsigned)min_of(ceil_div(tasks, 32) * 32, SPLIT_THREADS_MAX)},
		.shared_bytes = (unsigned)bytes, .early = true};
	return NULL;
}

/* One block for each vector, where prepare() has set the job and the dimensions */
static const char *prepare_base_block(const struct hzi_hadamard_call *c,
				      const struct hzi_segment *seg, struct hzi_hadamard_launch *l)
{
	struct hzi_hadamard_base_rows *const p = &l->p.base;
	const int64_t n = seg->length, chunks = n / 64;
	int64_t bytes, threads;

	if (seg->m > BASE_ORDER_MAX)
		return "the order of the base matrix is above 64";
	if (seg->k < BASE_LOG2_MIN || seg->k > BASE_LOG2_MAX || n % (seg->k > 10 ? 2048 : 1024))
		return "rows are not m 2^k with k = 6 to 11, a multiple of 1024 or 2048";
	/* 68 words for 64 elements; then stride % 32 = 8 */
	p->stride = (int32_t)(68 << seg->k) / 64;
	p->stride += (40 - p->stride % 32) % 32;
	bytes = (int64_t)seg->m * p->stride * 4 +
		(p->job.y_dtype == HZ_F32 ? seg->m * BASE_ORDER_MAX * 4 : (int64_t)sizeof(p->bits));
	if (bytes > c->device->shared_block_bytes)
		return "rows exceed the shared memory of a block";
	set_base(seg, c->t->transpose, p->bits);
	/* Whole warps with equal numbers of chunks */
	threads = ceil_div(ceil_div(chunks, ceil_div(chunks, BASE_THREADS_MAX)), 32) * 32;
	l->kernel = HZI_KERNEL_hadamard_base_rows;
	l->bytes = sizeof(*p);
	l->launch = (struct hzi_launch){
		.grid = {(unsigned)min_of(p->job.vectors, HZI_GRID_MAX)},
		.block = {(unsigned)threads},
		.shared_bytes = (unsigned)bytes};
	return NULL;
}

const char *hzi_hadamard_prepare_base_rows(const struct hzi_hadamard_call *c,
					   const struct hzi_segment *seg,
					   struct hzi_hadamard_launch *l)
{
	const struct hzi_hadamard_args *t = c->t;
	struct hzi_hadamard_base_rows *const p = &l->p.base;
	struct hzi_hadamard_dims dims;

	if (seg->m == 1)
		return "the order has no base matrix";
	if (c->scale_stride)
		return "one side is codes";
	if (t->x_step != 1 || t->y_step != 1)
		return "elements of a row are not contiguous";
	dims = hzi_hadamard_make_dims(c, seg);
	if (dims.n > 2)
		return "rows have more than two dimensions";
	*p = (struct hzi_hadamard_base_rows){.job = hzi_hadamard_make_job(c, seg, &dims)};
	p->dim[1] = dims.n ? dims.d[dims.n - 1] : (struct hzi_hadamard_dim){.size = 1};
	if (dims.n == 2)
		p->dim[0] = dims.d[0];
	if (!hzi_hadamard_aligned(p->job.x, seg->offset, p->job.x_dtype,
				  (int64_t[]){p->dim[0].x, p->dim[1].x}, 2, 16) ||
	    !hzi_hadamard_aligned(p->job.y, seg->offset, p->job.y_dtype,
				  (int64_t[]){p->dim[0].y, p->dim[1].y}, 2, 16))
		return "rows are not 16-byte aligned";
	if (!hzi_hadamard_whole_bytes(&t->pre, seg->offset, p->dim[0].pre, p->dim[1].pre) ||
	    !hzi_hadamard_whole_bytes(&t->post, seg->offset, p->dim[0].post, p->dim[1].post))
		return "packed signs of a row do not begin at a byte";
	p->job.x = hzi_at_element(p->job.x, seg->offset, p->job.x_dtype);
	p->job.y = hzi_at_element(p->job.y, seg->offset, p->job.y_dtype);
	return 2 * p->job.vectors > c->device->sms && !prepare_base_block(c, seg, l) ? NULL :
	       prepare_base_split(c, seg, l);
}
