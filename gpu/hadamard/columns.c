/*
 * columns.c - launches of columns: vectors of 2^k elements that are adjacent in memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/hadamard/segments.h"

#define COLUMNS_LOG2_MIN 5
#define COLUMNS_LOG2_MAX 10
#define SLICE 8			/* columns */
#define SLICES_LOG2_MIN 4
#define SLICES_LOG2_MAX 9

/* Whether operands can be accessed in pieces of `piece` columns from a segment's offset on */
static bool aligned_columns(const struct hzi_hadamard_call *c, const struct hzi_segment *seg,
			    const struct hzi_hadamard_rows *p, int64_t piece)
{
	const struct hzi_hadamard_args *t = c->t;

	return p->columns % piece == 0 &&
	       hzi_hadamard_aligned(p->job.x, seg->offset * t->x_step, p->job.x_dtype,
				    (int64_t[]){p->dim[0].x, p->dim[1].x, t->x_step}, 3,
				    piece * hzi_bits_of(p->job.x_dtype) / 8) &&
	       hzi_hadamard_aligned(p->job.y, seg->offset * t->y_step, p->job.y_dtype,
				    (int64_t[]){p->dim[0].y, p->dim[1].y, t->y_step}, 3,
				    piece * hzi_bits_of(p->job.y_dtype) / 8);
}

/*
 * Fills p for columns in pieces of `piece` columns: takes the dimension of columns out of the
 * others and merges these again. Returns NULL, or why there are no columns.
 */
static const char *make_columns(const struct hzi_hadamard_call *c, const struct hzi_segment *seg,
				int64_t piece, struct hzi_hadamard_rows *p)
{
	struct hzi_hadamard_dims dims;
	int side = -1;

	if (c->scale_stride)
		return "one side is codes";
	if (seg->m > 1)
		return "the order has a base matrix";
	dims = hzi_hadamard_make_dims(c, seg);
	for (int i = 0; i < dims.n; i++) {
		if (dims.d[i].x == 1 && dims.d[i].y == 1 && !dims.d[i].pre && !dims.d[i].post)
			side = i;
	}
	if (side < 0)
		return "no dimension of vectors is contiguous in x and y";
	*p = (struct hzi_hadamard_rows){.job = hzi_hadamard_make_job(c, seg, &dims)};
	p->columns = dims.d[side].size;
	dims.n--;
	memmove(&dims.d[side], &dims.d[side + 1], (size_t)(dims.n - side) * sizeof(*dims.d));
	for (int i = dims.n - 2; i >= 0; i--) {
		if (!hzi_hadamard_dim_continues(&dims.d[i], &dims.d[i + 1]))
			continue;
		dims.d[i + 1].size *= dims.d[i].size;
		dims.n--;
		memmove(&dims.d[i], &dims.d[i + 1], (size_t)(dims.n - i) * sizeof(*dims.d));
	}
	p->job.vectors = hzi_hadamard_vectors(&dims);
	if (!hzi_hadamard_set_dims(&dims, 0, p))
		return "vectors have more than two dimensions besides, or are 2^31 or more";
	return aligned_columns(c, seg, p, piece) ? NULL : "columns are not aligned";
}

static void move_to_segment(const struct hzi_hadamard_call *c, const struct hzi_segment *seg,
			    struct hzi_hadamard_rows *p)
{
	p->job.x = hzi_at_element(p->job.x, seg->offset * c->t->x_step, p->job.x_dtype);
	p->job.y = hzi_at_element(p->job.y, seg->offset * c->t->y_step, p->job.y_dtype);
}

const char *hzi_hadamard_prepare_columns_16bit(const struct hzi_hadamard_call *c,
					       const struct hzi_segment *seg,
					       struct hzi_hadamard_launch *l)
{
	const int bytes = HZI_COLUMNS_SLICES(seg->k) * HZI_COLUMNS_SLICE_BYTES(seg->k);
	const struct hzi_hadamard_args *t = c->t;
	struct hzi_hadamard_rows *const p = &l->p.rows;
	const char *why;
	int64_t slices;

	if (t->x_dtype != t->y_dtype || t->x_dtype == HZ_F32)
		return "x and y are not of one 16-bit dtype";
	if (t->pre.kind || t->post.kind)
		return "there are factors";
	if (seg->k < SLICES_LOG2_MIN || seg->k > SLICES_LOG2_MAX)
		return "columns are not of 2^4 to 2^9 elements";
	if (bytes > c->device->shared_block_bytes)
		return "columns exceed the shared memory of a block";
	why = make_columns(c, seg, SLICE, p);
	if (why)
		return why;
	slices = p->job.vectors * (p->columns / SLICE);
	if (slices > HZI_GRID_MAX)
		return "there are too many columns";
	move_to_segment(c, seg, p);
	l->kernel = (p->job.x_dtype == HZ_F16 ? HZI_KERNEL_hadamard_columns_f16_4
					      : HZI_KERNEL_hadamard_columns_bf16_4) +
		    seg->k - SLICES_LOG2_MIN;
	l->bytes = sizeof(*p);
	l->launch = (struct hzi_launch){
		.grid = {(unsigned)ceil_div(slices, HZI_COLUMNS_SLICES(seg->k))},
		.block = {HZI_COLUMNS_THREADS(seg->k)}, .shared_bytes = (unsigned)bytes};
	return NULL;
}

/* A thread has 16 rows of two columns, or 32 rows if vectors have 2^9 or 2^10 elements. */
const char *hzi_hadamard_prepare_columns(const struct hzi_hadamard_call *c,
					 const struct hzi_segment *seg,
					 struct hzi_hadamard_launch *l)
{
	const int width = seg->k == COLUMNS_LOG2_MAX ? 32 : 64;
	struct hzi_hadamard_rows *const p = &l->p.rows;
	const char *why;

	if (seg->k < COLUMNS_LOG2_MIN || seg->k > COLUMNS_LOG2_MAX)
		return "columns are not of 2^5 to 2^10 elements";
	if ((width * 4) << seg->k > c->device->shared_block_bytes)
		return "columns exceed the shared memory of a block";
	why = make_columns(c, seg, 2, p);
	if (why)
		return why;
	if (p->columns > INT32_MAX)
		return "there are too many columns";
	p->column_tiles = (int32_t)ceil_div(p->columns, width);
	if (p->job.vectors > HZI_GRID_MAX / p->column_tiles)
		return "there are too many columns";
	move_to_segment(c, seg, p);
	l->kernel = seg->k < 9 ? HZI_KERNEL_hadamard_columns : HZI_KERNEL_hadamard_columns_10;
	l->bytes = sizeof(*p);
	l->launch = (struct hzi_launch){
		.grid = {(unsigned)(p->job.vectors * p->column_tiles)},
		.block = {(unsigned)(width / 2) << (seg->k - (seg->k < 9 ? 4 : 5))},
		.shared_bytes = (unsigned)(width * 4) << seg->k};
	return NULL;
}
