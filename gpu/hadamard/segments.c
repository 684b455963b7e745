/*
 * segments.c - routes that launch a plan segment by segment; dimensions of a segment's vectors
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "gpu/hadamard/segments.h"

/* ---- Dimensions of vectors ------------------------------------------------------------------- */

#define DIM_FIELDS (sizeof(struct hzi_hadamard_dim) / sizeof(int64_t))

bool hzi_hadamard_dim_continues(const struct hzi_hadamard_dim *outer,
				const struct hzi_hadamard_dim *inner)
{
	int64_t o[DIM_FIELDS], i[DIM_FIELDS], product;

	memcpy(o, outer, sizeof(o));
	memcpy(i, inner, sizeof(i));
	for (size_t f = 1; f < DIM_FIELDS; f++) {
		if (__builtin_mul_overflow(i[0], i[f], &product) || product != o[f])
			return false;
	}
	return true;
}

/* Appends an inner dimension, merged with the last one if possible. */
static void add_dim(struct hzi_hadamard_dims *dims, struct hzi_hadamard_dim d)
{
	struct hzi_hadamard_dim *last = dims->n ? &dims->d[dims->n - 1] : NULL;

	if (d.size == 1)
		return;
	if (last && hzi_hadamard_dim_continues(last, &d)) {
		d.size *= last->size;
		*last = d;
		return;
	}
	assert(dims->n < HZI_STRIDED_DIMS);
	dims->d[dims->n++] = d;
}

struct hzi_hadamard_dims hzi_hadamard_make_dims(const struct hzi_hadamard_call *c,
						const struct hzi_segment *seg)
{
	const struct hzi_hadamard_args *t = c->t;
	const int64_t row = t->blocks * t->plan.n;
	/*
	 * A group's scale is found from row_offset, which counts on over an outer dimension's
	 * scales.
	 */
	const bool row_is_group = c->scale_stride && c->group == row;
	const bool grouped = c->scale_stride && !row_is_group;
	struct hzi_hadamard_dims dims = {0};

	for (int i = 0; i < t->ndim; i++) {
		const int64_t step = c->scale_stride ? c->scale_stride[i] : 0;

		add_dim(&dims, (struct hzi_hadamard_dim){
			.size = t->shape[i], .x = c->x_stride[i], .y = c->y_stride[i],
			.scale = row_is_group ? step : 0,
			.row_offset = row_is_group ? 0 : step * c->group});
	}
	if (!seg)
		return dims;
	add_dim(&dims, (struct hzi_hadamard_dim){
		.size = t->blocks, .x = c->x_block, .y = c->y_block, .pre = t->pre.block_step,
		.post = t->post.block_step, .row_offset = grouped ? t->plan.n : 0});
	add_dim(&dims, (struct hzi_hadamard_dim){
		.size = seg->count, .x = seg->length * c->job.x_step,
		.y = seg->length * c->job.y_step, .pre = t->pre.kind ? seg->length : 0,
		.post = t->post.kind ? seg->length : 0, .row_offset = grouped ? seg->length : 0});
	return dims;
}

int64_t hzi_hadamard_vectors(const struct hzi_hadamard_dims *dims)
{
	int64_t n = 1;

	for (int i = 0; i < dims->n; i++)
		n *= dims->d[i].size;
	return n;
}

struct hzi_hadamard_job hzi_hadamard_make_job(const struct hzi_hadamard_call *c,
					      const struct hzi_segment *seg,
					      const struct hzi_hadamard_dims *dims)
{
	struct hzi_hadamard_job job = c->job;

	job.vectors = hzi_hadamard_vectors(dims);
	job.offset = seg->offset;
	job.m = seg->m;
	job.k = seg->k;
	job.factor = seg->scale;
	if (c->scale_stride)
		job.group_log2 = c->group == c->t->blocks * c->t->plan.n ? HZI_GROUP_IS_ROW
									 : hzi_log2(c->group);
	return job;
}

bool hzi_hadamard_set_dims(const struct hzi_hadamard_dims *dims, int64_t n,
			   struct hzi_hadamard_rows *p)
{
	if (dims->n > 2)
		return false;
	p->one_dim = dims->n < 2;
	p->dim[1] = dims->n ? dims->d[dims->n - 1]
			    : (struct hzi_hadamard_dim){.size = 1, .x = n, .y = n};
	if (!p->one_dim) {
		const uint64_t size = (uint64_t)p->dim[1].size;

		if (p->job.vectors >> 31)
			return false;
		p->dim[0] = dims->d[0];
		p->shift = size == 1 ? 0 : hzi_log2((int64_t)size - 1) + 1;
		p->magic = (uint32_t)((((1ull << p->shift) - size) << 32) / size + 1);
	}
	p->contiguous = p->one_dim && p->dim[1].x == n && p->dim[1].y == n;
	return true;
}

bool hzi_hadamard_aligned(const void *p, int64_t offset, int dtype, const int64_t *steps, int n,
			  int64_t bytes)
{
	const int64_t bits = hzi_bits_of(dtype);

	for (int i = 0; i < n; i++) {
		if (steps[i] % (8 * bytes / bits))
			return false;
	}
	return offset % (8 * bytes / bits) == 0 && (uintptr_t)p % (uintptr_t)bytes == 0;
}

/* ---- Rows of several segments in one launch -------------------------------------------------- */

#define SM_CLUSTERS 90		/* the first compute capability with clusters */
#define ROW_SEGMENTS_BLOCKS 4	/* per SM, to codes: with more a launch for each length is faster */
#define ROW_SEGMENTS_CLUSTER 8	/* most blocks of a row to codes */
#define ROW_SEGMENTS_LOG2_MIN 3
#define SCRATCH_FLOATS 32		/* of a reduction over warps */
#define GRID_Y_MAX 65535

/* Floats of shared memory, with the padding of shared_rows.cuh */
static int64_t padded_floats(const struct hzi_segment *seg)
{
	const int64_t n = seg->count * seg->length;

	return n + 4 * (n >> (seg->k < 5 ? seg->k : 5));
}

/* NULL if groups are whole rows, or of 32 to 256 elements within segments; else the reason */
static const char *bad_row_groups(const struct hzi_hadamard_call *c)
{
	if (c->t->blocks > 1)
		return "a row has several blocks";
	if (c->group == c->t->plan.n)
		return NULL;
	if (c->group < 32 || c->group > 256)
		return "groups are not of 32 to 256 elements";
	for (int s = 0; s < c->t->plan.nseg; s++) {
		if (c->t->plan.seg[s].length % c->group)
			return "groups straddle transforms";
	}
	return NULL;
}

/* Most threads of a block: fewer where others wait for an SM, of which a block of 1024 is alone */
static int64_t row_segments_threads(int64_t blocks, int sms, bool quantize)
{
	return blocks <= (quantize ? 1 : 2) * sms ? 1024 : blocks <= 4 * sms ? 512 : 256;
}

static const char *prepare_row_segments(const struct hzi_hadamard_call *c,
					struct hzi_hadamard_launch *l)
{
	const struct hzi_hadamard_args *t = c->t;
	const struct hzi_plan *plan = &t->plan;
	const struct hzi_segment whole = {.count = 1, .length = plan->n, .m = 1};
	struct hzi_hadamard_row_segments *const p = &l->p.segments;
	int64_t floats[ROW_SEGMENTS_CLUSTER] = {0}, most = 0, threads = 32, threads_most;
	int cluster = 1;
	struct hzi_hadamard_dims dims;
	const char *why;

	if (plan->nseg == 1)
		return "the plan has segments of one length";
	if (c->scale_stride && !c->quantize)
		return "x is codes";
	if (c->job.x_step != 1 || c->job.y_step != 1)
		return "elements of a row are not contiguous";
	why = c->quantize ? bad_row_groups(c) : NULL;
	if (why)
		return why;
	dims = hzi_hadamard_make_dims(c, c->quantize ? NULL : &whole);
	if (dims.n > 2)
		return "rows have more than two dimensions";
	*p = (struct hzi_hadamard_row_segments){
		.job = hzi_hadamard_make_job(c, &whole, &dims), .nseg = plan->nseg};
	p->dim[1] = dims.n ? dims.d[dims.n - 1] : (struct hzi_hadamard_dim){.size = 1};
	if (dims.n == 2)
		p->dim[0] = dims.d[0];
	if (!hzi_hadamard_aligned(p->job.x, 0, p->job.x_dtype,
				  (int64_t[]){p->dim[0].x, p->dim[1].x}, 2, 16) ||
	    !hzi_hadamard_aligned(p->job.y, 0, p->job.y_dtype,
				  (int64_t[]){p->dim[0].y, p->dim[1].y}, 2, c->quantize ? 4 : 16))
		return "rows are not 16-byte aligned";
	if (!hzi_hadamard_whole_bytes(&t->pre, 0, p->dim[0].pre, p->dim[1].pre) ||
	    !hzi_hadamard_whole_bytes(&t->post, 0, p->dim[0].post, p->dim[1].post))
		return "packed signs of a row do not begin at a byte";
	while (c->quantize && c->device->sm >= SM_CLUSTERS && cluster < ROW_SEGMENTS_CLUSTER &&
	       cluster < plan->nseg)
		cluster *= 2;
	threads_most = row_segments_threads(p->job.vectors * (c->quantize ? cluster : plan->nseg),
					    c->device->sms, c->quantize);
	for (int s = 0; s < plan->nseg; s++) {
		const struct hzi_segment *seg = &plan->seg[s];
		const int64_t n = seg->count * seg->length;
		int64_t *const own = &floats[c->quantize ? s % cluster : 0];

		if (seg->m > 1 || seg->k < ROW_SEGMENTS_LOG2_MIN)
			return "segments are not of 2^3 elements or more, without a base matrix";
		p->seg[s] = (struct hzi_hadamard_segment){
			.offset = seg->offset, .count = seg->count, .m = 1, .k = seg->k,
			.factor = seg->scale};
		*own = (c->quantize ? *own : 0) + padded_floats(seg);
		most = max_of(most, *own);
		threads = max_of(threads, min_of(round_up(n / 8, 32), threads_most));
	}
	most = 4 * (most + (c->quantize ? SCRATCH_FLOATS : 0));
	if (most > c->device->shared_block_bytes)
		return "rows exceed the shared memory of a block";
	l->kernel = c->quantize ? HZI_KERNEL_hadamard_row_segments_quantize
				: HZI_KERNEL_hadamard_row_segments;
	l->bytes = sizeof(*p);
	l->launch = (struct hzi_launch){
		.grid = {(unsigned)(c->quantize ? cluster : p->job.vectors),
			 (unsigned)(c->quantize ? min_of(p->job.vectors, GRID_Y_MAX) :
						  plan->nseg)},
		.block = {(unsigned)threads}, .shared_bytes = (unsigned)most,
		.cluster = (unsigned)cluster, .early = true};
	return NULL;
}

/* ---- Routes ---------------------------------------------------------------------------------- */

/* NULL if the kernels of prepare() support every segment, else the reason */
static const char *segments_unsupported(const struct hzi_hadamard_call *c,
					hzi_hadamard_prepare prepare)
{
	const char *why = NULL;

	for (int s = 0; s < c->t->plan.nseg && !why; s++)
		why = prepare(c, &c->t->plan.seg[s], c->prepared);
	return why;
}

static int launch(struct hz_context *ctx, const struct hzi_hadamard_call *c)
{
	const struct hzi_hadamard_launch *const l = c->prepared;

	return hzi_cuda_launch(ctx, c->op, l->kernel, &l->launch, &l->p, l->bytes);
}

static int launch_all(struct hz_context *ctx, const struct hzi_hadamard_call *c,
		      hzi_hadamard_prepare prepare)
{
	if (c->t->plan.nseg == 1)
		return launch(ctx, c);
	for (int s = 0; s < c->t->plan.nseg; s++) {
		prepare(c, &c->t->plan.seg[s], c->prepared);
		HZ_CHECK(launch(ctx, c));
	}
	return HZ_OK;
}

#define SEGMENT_ROUTE(name) \
	const char *hzi_cuda_hadamard_##name##_unsupported(const struct hz_context *ctx, \
							   const void *args) \
	{ \
		(void)ctx; \
		return segments_unsupported(args, hzi_hadamard_prepare_##name); \
	} \
	int hzi_cuda_hadamard_##name(struct hz_context *ctx, const void *args) \
	{ \
		return launch_all(ctx, args, hzi_hadamard_prepare_##name); \
	}

SEGMENT_ROUTE(rows)
SEGMENT_ROUTE(base_rows)
SEGMENT_ROUTE(columns_16bit)
SEGMENT_ROUTE(columns)

const char *hzi_cuda_hadamard_row_segments_unsupported(const struct hz_context *ctx,
						       const void *args)
{
	const struct hzi_hadamard_call *c = args;

	(void)ctx;
	return prepare_row_segments(c, c->prepared);
}

/*
 * Blocks an SM up to which one launch is the faster one, 0 if never. A block takes long for more
 * than 4096 elements; two launches are fast where both segments are long, and each further one
 * adds about 6 us.
 */
static int64_t row_segments_per_sm(const struct hzi_plan *plan)
{
	int64_t longest = 0, shortest = INT64_MAX;
	bool halves;

	for (int s = 0; s < plan->nseg; s++) {
		longest = max_of(longest, plan->seg[s].count * plan->seg[s].length);
		shortest = min_of(shortest, plan->seg[s].length);
	}
	halves = plan->nseg == 2 && 2 * shortest >= longest;
	if (longest > 8192 || (halves && longest > 2048))
		return 0;
	if (longest > 4096)
		return min_of(2 * (plan->nseg - 2), 4);
	return halves && longest > 1024 ? 1 : longest > 512 ? 4 : 8;
}

int64_t hzi_cuda_hadamard_row_segments_cost(const struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_call *c = args;
	const struct hzi_plan *plan = &c->t->plan;
	const int64_t blocks = c->prepared->p.segments.job.vectors * plan->nseg;
	const int64_t per_sm = c->quantize ? ROW_SEGMENTS_BLOCKS : row_segments_per_sm(plan);

	(void)ctx;
	/* There is no launch for each length with one scale for a row. */
	return c->group == plan->n || blocks <= per_sm * c->device->sms ? 0 : HZI_HADAMARD_LAST;
}

int hzi_cuda_hadamard_row_segments(struct hz_context *ctx, const void *args)
{
	return launch(ctx, args);
}

/* Unsupported for quantization: groups may extend over several segments. */
const char *hzi_cuda_hadamard_by_segment_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_hadamard_call *c = args;

	(void)ctx;
	return c->quantize ? "segments share groups"
	       : c->t->plan.nseg == 1 ? "the plan has segments of one length" : NULL;
}

int hzi_cuda_hadamard_by_segment(struct hz_context *ctx, const void *args)
{
	static hzi_hadamard_prepare *const prepare[] = {
		hzi_hadamard_prepare_rows, hzi_hadamard_prepare_base_rows,
		hzi_hadamard_prepare_columns_16bit, hzi_hadamard_prepare_columns,
	};
	const int count = sizeof(prepare) / sizeof(*prepare);
	const struct hzi_hadamard_call *c = args;

	HZ_CHECK(hzi_hadamard_check_lengths(ctx, c));
	for (int s = 0; s < c->t->plan.nseg; s++) {
		const struct hzi_segment *seg = &c->t->plan.seg[s];
		int i = 0;

		while (i < count && prepare[i](c, seg, c->prepared))
			i++;
		HZ_CHECK(i < count ? launch(ctx, c) : hzi_hadamard_launch_strided(ctx, c, seg));
	}
	return HZ_OK;
}
