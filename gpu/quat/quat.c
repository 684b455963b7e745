/*
 * quat.c - launchers of elementwise quaternion operations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "gpu/quat/convert.h"
#include "gpu/quat/launch.h"
#include "gpu/quat/planar.h"

HZI_LINK_IMAGES(quat);

_Static_assert((int)HZI_MAP_CONJ == (int)HZI_QUAT_CONJ && (int)HZI_MAP_NORM == (int)HZI_QUAT_NORM &&
	       (int)HZI_MAP_NORM2 == (int)HZI_QUAT_NORM2 &&
	       (int)HZI_MAP_NORMALIZE == (int)HZI_QUAT_NORMALIZE &&
	       (int)HZI_MAP_INVERSE == (int)HZI_QUAT_INVERSE, "the same kinds for C and CUDA");
_Static_assert(HZI_QUAT_DIMS == HZ_MAXDIM, "a job has room for all dimensions");

#define BLOCKS_MAX INT32_MAX		/* of a grid along x */
#define FUSED_LEAST 32768		/* quaternions from which fused_sum is faster */
#define ROW_LEAST 512			/* elements of a row from which it has blocks of its own */
#define LANES_LOG2 5			/* most results of a block: a cache line and more */

/* ---- Operands -------------------------------------------------------------------------------- */

/* What an operand holds: quaternions, vectors of three, or real numbers */
enum kind { WHOLE, VECTOR3, NUMBER };

/* Fills *o, which is zeroed. */
static void set_operand(struct hzi_quat_operand *o, const struct hzi_quat_at *at, enum kind kind,
			int dtype, int ndim)
{
	bool wxyz = true, xyzw = true;
	int64_t steps = 0;

	o->data = at->data;
	for (int d = 0; d < ndim; d++) {
		o->stride[d] = at->stride[d];
		steps |= at->stride[d];
	}
	o->width = kind == WHOLE ? 4 : kind == VECTOR3 ? 3 : 1;
	for (int c = 0; c < 4; c++) {
		o->comp[c] = at->comp[c];
		wxyz &= at->comp[c] == c;
		xyzw &= at->comp[c] == (c + 3) % 4;
	}
	o->whole = HZI_QUAT_SEPARATE;
	if (kind == WHOLE && steps % 4 == 0 &&
	    (uintptr_t)at->data % (dtype == HZ_F32 ? 16 : 8) == 0)
		o->whole = wxyz ? HZI_QUAT_WXYZ : xyzw ? HZI_QUAT_XYZW : HZI_QUAT_SEPARATE;
}

/* The kind of a vector operand: WHOLE if its real part is adjacent */
static enum kind vector_kind(const struct hzi_quat_at *at)
{
	return (at->comp[0] == 0 && at->comp[1] == 1 && at->comp[3] == 3) ||
	       (at->comp[0] == 3 && at->comp[1] == 0 && at->comp[3] == 2) ? WHOLE : VECTOR3;
}

static void begin_job(struct hzi_quat_job *p, const struct hzi_quat_dims *dims, int dtype)
{
	memset(p, 0, sizeof(*p));
	p->ndim = dims->ndim;
	p->kept = dims->kept;
	p->dtype = dtype;
	p->count = 1;
	for (int d = 0; d < dims->ndim; d++) {
		p->shape[d] = dims->shape[d];
		p->count *= dims->shape[d];
	}
}

static void put(struct hzi_quat_job *p, int i, const struct hzi_quat_at *at, enum kind kind)
{
	set_operand(&p->at[i], at, kind, p->dtype, p->ndim);
}

/* Whether p and all strides but the last are multiples of align bytes */
static bool is_aligned(const struct hzi_quat_operand *o, int ndim, const char *p, int64_t size,
		       int64_t align)
{
	for (int d = 0; d < ndim - 1; d++) {
		if (o->stride[d] * size % align)
			return false;
	}
	return (uintptr_t)p % (uintptr_t)align == 0;
}

/* ---- Code paths of elementwise operations ---------------------------------------------------- */

/* A call: parameters and kernels */
struct call {
	struct hzi_quat_job p;
	const char *op;
	int kernel;		/* strided; kernel + 1, 2, 3: contiguous f32, f16, bf16 */
	int planar;		/* planar f32; planar + 1, 2: f16, bf16 */
	int pieces;		/* 16-byte pieces of an operand per lane of a planar kernel */
};

static int64_t last_size(const struct hzi_quat_job *p)
{
	return p->ndim ? p->shape[p->ndim - 1] : 1;
}

/*
 * Whether an operand is contiguous in the last dimension, or a single quaternion there; sets
 * o->dense.
 */
static bool is_contiguous(const struct hzi_quat_job *p, struct hzi_quat_operand *o)
{
	const int64_t step = p->ndim ? o->stride[p->ndim - 1] : 0;
	const int64_t size = p->dtype == HZ_F32 ? 4 : 2;
	const int first = o->width == 3;

	for (int c = first; o->width != 4 && c < first + o->width; c++) {
		if (o->comp[c] != c - first)
			return false;
	}
	if (o->width == 4 && !o->whole)
		return false;
	o->dense = step == o->width;
	if (o->dense)
		return is_aligned(o, p->ndim, o->data, size, o->width == 1 ? 4 : 16);
	return step == 0 && o->width == 4;
}

/* plan_* fill what the kernels of a path read, or return why they do not support the call. */
static const char *plan_contiguous(struct hzi_quat_job *p)
{
	const int64_t rows = p->ndim == 2 ? p->shape[0] : 1;
	const int64_t row_blocks =
		ceil_div(last_size(p), HZI_QUAT_BLOCK * (p->dtype == HZ_F32 ? 1 : 2));
	bool wxyz = false;

	if (p->ndim > 2)
		return "more than two dimensions";
	if (row_blocks > BLOCKS_MAX / rows)
		return "more than 2^31 - 1 blocks";
	p->row_blocks = (int32_t)row_blocks;
	for (int i = 0; i < HZI_QUAT_OPERANDS; i++) {
		const struct hzi_quat_operand *o = &p->at[i];

		if (!o->data)
			continue;
		if (!is_contiguous(p, &p->at[i]))
			return "an operand is not contiguous and aligned to 16 bytes";
		wxyz |= o->whole == HZI_QUAT_WXYZ;
		p->xyzw |= o->whole == HZI_QUAT_XYZW;
	}
	return wxyz && p->xyzw ? "operands differ in the order of components" : NULL;
}

/* The layout of an operand in the last dimension; p->ndim > 0. */
static int16_t layout_of(const struct hzi_quat_job *p, const struct hzi_quat_operand *o)
{
	const int64_t size = p->dtype == HZ_F32 ? 4 : 2, step = o->stride[p->ndim - 1];

	if (o->whole && step == 4 && is_aligned(o, p->ndim, o->data, size, 16))
		return o->whole == HZI_QUAT_XYZW ? HZI_QUAT_INTERLEAVED_XYZW : HZI_QUAT_INTERLEAVED;
	for (int c = o->width == 3; c < (o->width == 1 ? 1 : 4); c++) {
		if (step != 1 ||
		    !is_aligned(o, p->ndim, (char *)o->data + o->comp[c] * size, size, 16))
			return HZI_QUAT_STRIDED;
	}
	return HZI_QUAT_PLANAR;
}

/* Elements of the last dimension in the tile of a warp */
static int64_t tile_of(int dtype, int pieces)
{
	return 32 * pieces * (dtype == HZ_F32 ? 1 : 2);
}

static const char *plan_planar(struct hzi_quat_job *p, int pieces)
{
	const int64_t n = last_size(p);
	bool pays = false;

	if (p->ndim == 0 || n > INT32_MAX)
		return "the last dimension is one element or more than 2^31 - 1";
	for (int i = 0; i < HZI_QUAT_OPERANDS; i++) {
		struct hzi_quat_operand *o = &p->at[i];

		if (!o->data)
			continue;
		o->dense = layout_of(p, o);
		pays |= o->dense == HZI_QUAT_PLANAR || o->dense == HZI_QUAT_INTERLEAVED_XYZW;
	}
	if (!pays)
		return "no operand is planar or of x, y, z, w";
	p->groups = (int32_t)ceil_div(n, tile_of(p->dtype, pieces));
	p->count = p->count / n * p->groups;
	return NULL;
}

/* Strided kernels read 16 bytes of a component at a time if an operand is planar. */
static void plan_strided(struct hzi_quat_job *p)
{
	const int64_t n = last_size(p), each = p->dtype == HZ_F32 ? 4 : 8;
	bool planar = false;

	for (int i = 0; i < HZI_QUAT_OPERANDS && p->ndim; i++) {
		struct hzi_quat_operand *o = &p->at[i];

		if (o->data)
			o->dense = layout_of(p, o);
		planar |= o->dense == HZI_QUAT_PLANAR;
	}
	if (!planar || n < each || n > INT32_MAX)
		return;
	p->groups = (int32_t)ceil_div(n, each);
	p->count = p->count / n * p->groups;
}

static int launch(struct hz_context *ctx, const struct call *c, int kernel, int64_t blocks)
{
	const struct hzi_launch l = {
		.grid = {(unsigned)min_of(blocks, BLOCKS_MAX)}, .block = {HZI_QUAT_THREADS},
	};

	return hzi_cuda_launch(ctx, c->op, kernel, &l, &c->p, sizeof(c->p));
}

/* Kernels of f32, f16 and bf16 follow each other. */
static int by_dtype(int kernel, int dtype)
{
	return kernel + (dtype == HZ_F32 ? 0 : dtype == HZ_F16 ? 1 : 2);
}

static int run_contiguous(struct hz_context *ctx, struct call *c)
{
	plan_contiguous(&c->p);
	return launch(ctx, c, by_dtype(c->kernel + 1, c->p.dtype),
		      c->p.row_blocks * (c->p.ndim == 2 ? c->p.shape[0] : 1));
}

static int run_planar(struct hz_context *ctx, struct call *c)
{
	plan_planar(&c->p, c->pieces);
	return launch(ctx, c, by_dtype(c->planar, c->p.dtype),
		      ceil_div(c->p.count, HZI_QUAT_THREADS / 32));
}

static int run_strided(struct hz_context *ctx, struct call *c)
{
	plan_strided(&c->p);
	return launch(ctx, c, c->kernel, ceil_div(c->p.count, HZI_QUAT_THREADS));
}

bool hzi_cuda_quat_has_short_rows(const struct hzi_quat_dims *dims)
{
	return dims->ndim == 2 && dims->shape[1] < ROW_LEAST;
}

bool hzi_cuda_quat_has_small_tiles(const struct hzi_quat_dims *dims, int dtype, int pieces)
{
	return dims->shape[dims->ndim - 1] < tile_of(dtype, pieces) / 2;
}

static struct hzi_quat_job *begin_call(struct call *c, const char *op, int kernel,
				       const struct hzi_quat_dims *dims, int dtype)
{
	c->op = op;
	c->kernel = kernel;
	begin_job(&c->p, dims, dtype);
	return &c->p;
}

/* Define functions of launch.h for an operation; name##_call() fills *c from its arguments. */
#define UNSUPPORTED(name, path, plan) \
	const char *hzi_cuda_##name##_##path##_unsupported(const struct hz_context *ctx, \
							   const void *args) \
	{ \
		struct call c; \
		(void)ctx; \
		name##_call(args, &c); \
		return plan; \
	}
#define RUN(name, path) \
	int hzi_cuda_##name##_##path(struct hz_context *ctx, const void *args) \
	{ \
		struct call c; \
		name##_call(args, &c); \
		return run_##path(ctx, &c); \
	}
#define CONTIGUOUS_AND_STRIDED(name) \
	UNSUPPORTED(name, contiguous, plan_contiguous(&c.p)) \
	RUN(name, contiguous) \
	RUN(name, strided)
#define PLANAR(name) \
	UNSUPPORTED(name, planar, plan_planar(&c.p, c.pieces)) \
	RUN(name, planar)

/* ---- Elementwise operations ------------------------------------------------------------------ */

static void quat_mul_call(const struct hzi_quat_mul_args *a, struct call *c)
{
	struct hzi_quat_job *const p =
		begin_call(c, "quat_mul", HZI_KERNEL_quat_mul_strided, &a->dims, a->dtype);

	c->planar = HZI_KERNEL_quat_mul_planar_f32;
	c->pieces = HZI_QUAT_TILE_MUL;
	put(p, 0, &a->a, WHOLE);
	put(p, 1, &a->b, WHOLE);
	put(p, 2, &a->y, WHOLE);
	p->conj_a = a->conj_a;
	p->conj_b = a->conj_b;
	p->accumulate = a->accumulate;
}

CONTIGUOUS_AND_STRIDED(quat_mul)
PLANAR(quat_mul)

/* Both gradients of a product */
static void both_gradients(const struct hzi_quat_mul_bwd_args *a, struct hzi_quat_job *p)
{
	put(p, 0, &a->dy, WHOLE);
	put(p, 1, &a->a, WHOLE);
	put(p, 2, &a->b, WHOLE);
	put(p, 3, &a->da, WHOLE);
	put(p, 4, &a->db, WHOLE);
	p->conj_a = a->conj_a;
	p->conj_b = a->conj_b;
}

/* The only gradient, as a product: da = ca(dy conj(cb(b))) or db = cb(conj(ca(a)) dy) */
static void one_gradient(const struct hzi_quat_mul_bwd_args *a, struct hzi_quat_job *p)
{
	const bool left = a->da.data != NULL, conj = left ? a->conj_a : a->conj_b;
	const bool dy_first = left != conj;

	/* conj(a b) = conj(b) conj(a) */
	put(p, dy_first ? 0 : 1, &a->dy, WHOLE);
	put(p, dy_first ? 1 : 0, left ? &a->b : &a->a, WHOLE);
	put(p, 2, left ? &a->da : &a->db, WHOLE);
	p->conj_a = dy_first ? conj : (left ? a->conj_b : a->conj_a) == conj;
	p->conj_b = dy_first ? (left ? a->conj_b : a->conj_a) == conj : conj;
}

/* Without the gradient that is a sum */
static void quat_mul_bwd_call(const struct hzi_quat_mul_bwd_args *a, struct call *c)
{
	const bool both = a->da.data && a->db.data;
	struct hzi_quat_job *const p =
		begin_call(c, "quat_mul_bwd",
			   both ? HZI_KERNEL_quat_mul_bwd_strided : HZI_KERNEL_quat_mul_strided,
			   &a->dims, a->dtype);

	c->planar = both ? HZI_KERNEL_quat_mul_bwd_planar_f32 : HZI_KERNEL_quat_mul_planar_f32;
	c->pieces = both ? HZI_QUAT_TILE_MUL_BWD : HZI_QUAT_TILE_MUL;
	p->accumulate = a->accumulate;
	if (both)
		both_gradients(a, p);
	else
		one_gradient(a, p);
}

CONTIGUOUS_AND_STRIDED(quat_mul_bwd)
PLANAR(quat_mul_bwd)

static void quat_axpy_call(const struct hzi_quat_axpy_args *a, struct call *c)
{
	struct hzi_quat_job *const p =
		begin_call(c, "quat_axpy", HZI_KERNEL_quat_axpy_strided, &a->dims, a->dtype);

	put(p, 0, &a->x, WHOLE);
	put(p, 1, &a->y, WHOLE);
	for (int i = 0; i < 4; i++)
		p->alpha[i] = (float)a->alpha[i];
	p->conj_a = a->reversed;
}

CONTIGUOUS_AND_STRIDED(quat_axpy)

static bool is_norm(int kind)
{
	return kind == HZI_QUAT_NORM || kind == HZI_QUAT_NORM2;
}

static void quat_map_call(const struct hzi_quat_map_args *a, struct call *c)
{
	const bool norm = is_norm(a->kind);
	struct hzi_quat_job *const p =
		begin_call(c, norm ? "quat_norm" : "quat_map",
			   norm ? HZI_KERNEL_quat_norm_strided : HZI_KERNEL_quat_map_strided,
			   &a->dims, a->dtype);

	put(p, 0, &a->x, WHOLE);
	put(p, 1, &a->y, norm ? NUMBER : WHOLE);
	p->kind = a->kind;
	p->eps = (float)a->eps;
}

CONTIGUOUS_AND_STRIDED(quat_map)

static void quat_map_bwd_call(const struct hzi_quat_map_bwd_args *a, struct call *c)
{
	const bool norm = is_norm(a->kind);
	struct hzi_quat_job *const p =
		begin_call(c, norm ? "quat_norm_bwd" : "quat_map_bwd",
			   norm ? HZI_KERNEL_quat_norm_bwd_strided
				: HZI_KERNEL_quat_map_bwd_strided,
			   &a->dims, a->dtype);

	put(p, 0, &a->dy, norm ? NUMBER : WHOLE);
	put(p, 1, &a->x, WHOLE);
	put(p, 2, &a->dx, WHOLE);
	p->kind = a->kind;
	p->eps = (float)a->eps;
	p->accumulate = a->accumulate;
}

CONTIGUOUS_AND_STRIDED(quat_map_bwd)

static void quat_rotate_call(const struct hzi_quat_rotate_args *a, struct call *c)
{
	struct hzi_quat_job *const p =
		begin_call(c, "quat_rotate", HZI_KERNEL_quat_rotate_strided, &a->dims, a->dtype);

	put(p, 0, &a->q, WHOLE);
	put(p, 1, &a->v, vector_kind(&a->v));
	put(p, 2, &a->y, a->real ? WHOLE : VECTOR3);
	p->inverse = a->inverse;
	p->normalize = a->normalize;
	p->real = a->real;
}

CONTIGUOUS_AND_STRIDED(quat_rotate)

static void set_rotation(const struct hzi_quat_rotate_bwd_args *a, struct hzi_quat_job *p)
{
	p->inverse = a->inverse;
	p->normalize = a->normalize;
	p->accumulate = a->accumulate;
	p->real = a->real;
}

/* Without the gradient that is a sum */
static void quat_rotate_bwd_call(const struct hzi_quat_rotate_bwd_args *a, struct call *c)
{
	struct hzi_quat_job *const p =
		begin_call(c, "quat_rotate_bwd", HZI_KERNEL_quat_rotate_bwd_strided, &a->dims,
			   a->dtype);

	put(p, 0, &a->dy, vector_kind(&a->dy));
	put(p, 1, &a->q, WHOLE);
	put(p, 2, &a->v, vector_kind(&a->v));
	put(p, 3, &a->dq, WHOLE);
	put(p, 4, &a->dv, a->real ? WHOLE : VECTOR3);
	set_rotation(a, p);
}

CONTIGUOUS_AND_STRIDED(quat_rotate_bwd)

/* ---- Sums ------------------------------------------------------------------------------------ */

/*
 * Fills the members of p of a sum over dimensions kept .. ndim - 1 of `inputs` operands. A block
 * has several neighbouring results if their inputs are closer than the next terms. All of it
 * depends on shapes and strides alone, and so does the order of summation.
 */
static void plan_sum(struct hzi_quat_job *p, int inputs)
{
	uint64_t across = 0, along = 0;

	p->count = p->terms = 1;
	for (int d = 0; d < p->ndim; d++)
		*(d < p->kept ? &p->count : &p->terms) *= p->shape[d];
	for (int i = 0; i < inputs; i++) {
		if (p->kept > 0)
			across += hzi_quat_step(p->at[i].stride[p->kept - 1]);
		if (p->kept < p->ndim)
			along += hzi_quat_step(p->at[i].stride[p->ndim - 1]);
	}
	while (p->lanes_log2 < LANES_LOG2 && p->count > (int64_t)1 << p->lanes_log2 &&
	       (across < along || p->terms < HZI_QUAT_THREADS >> p->lanes_log2))
		p->lanes_log2++;
	p->chunk = (int64_t)HZI_QUAT_TERMS * (HZI_QUAT_THREADS >> p->lanes_log2);
}

static int64_t chunks_of(const struct hzi_quat_job *p)
{
	return p->terms > p->chunk ? ceil_div(p->terms, p->chunk) : 1;
}

static size_t sum_bytes(const struct hzi_quat_job *p)
{
	const int64_t chunks = chunks_of(p);

	return chunks > 1 ? 16 * (size_t)(chunks * p->count) : 0;
}

/* kind of the output, for quat_sum_finish: 0 quaternion, 1 vector, 2 real number */
static int launch_sum(struct hz_context *ctx, const char *op, int kernel, int threads,
		      struct hzi_quat_job *p, int inputs, int kind)
{
	const int64_t groups = ceil_div(p->count, (int64_t)1 << p->lanes_log2);
	const int64_t chunks = chunks_of(p);
	struct hzi_launch l = {.block = {(unsigned)threads}};

	if (groups > BLOCKS_MAX / chunks)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"%s: %lld sums of %lld terms are too many for a GPU", op,
				(long long)p->count, (long long)p->terms);
	if (chunks > 1)
		p->partial = ctx->workspace;
	l.grid[0] = (unsigned)(groups * chunks);
	HZ_CHECK(hzi_cuda_launch(ctx, op, kernel, &l, p, sizeof(*p)));
	if (chunks == 1)
		return HZ_OK;
	p->at[0] = p->at[inputs];
	p->kind = kind;
	p->terms = chunks;
	l.grid[0] = (unsigned)groups;
	l.block[0] = HZI_QUAT_THREADS;
	return hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_sum_finish, &l, p, sizeof(*p));
}

static void dot_job(const struct hzi_quat_dot_args *a, struct hzi_quat_job *p)
{
	begin_job(p, &a->dims, a->dtype);
	put(p, 0, &a->a, WHOLE);
	put(p, 1, &a->b, WHOLE);
	put(p, 2, &a->y, a->real ? NUMBER : WHOLE);
	p->conj_a = a->conj_a;
	p->conj_b = a->conj_b;
	p->conj_y = a->conj_y;
	p->accumulate = a->accumulate;
	p->real = a->real;
	plan_sum(p, 2);
}

size_t hzi_cuda_quat_dot_sum_bytes(const struct hzi_quat_dot_args *a)
{
	struct hzi_quat_job p;

	dot_job(a, &p);
	return sum_bytes(&p);
}

static int run_dot(struct hz_context *ctx, const struct hzi_quat_dot_args *a, int kernel,
		   int threads)
{
	struct hzi_quat_job p;

	dot_job(a, &p);
	p.xyzw = p.at[0].whole == HZI_QUAT_XYZW;
	return launch_sum(ctx, "quat_dot", kernel, threads, &p, 2, a->real ? 2 : 0);
}

static const char *dot_contiguous_unsupported(const struct hzi_quat_job *p)
{
	if (!p->at[0].whole || p->at[0].whole != p->at[1].whole)
		return "components of a and b are not contiguous in the same order";
	return p->ndim - p->kept == 1 ? NULL : "terms have more or fewer dimensions than one";
}

const char *hzi_cuda_quat_dot_contiguous_16bit_unsupported(const struct hz_context *ctx,
							    const void *args)
{
	struct hzi_quat_job p;
	const char *why;

	(void)ctx;
	dot_job(args, &p);
	why = dot_contiguous_unsupported(&p);
	if (why)
		return why;
	if (p.dtype == HZ_F32)
		return "operands are f32";
	if (p.lanes_log2)
		return "a block has several results";
	for (int i = 0; i < 2; i++) {
		const struct hzi_quat_operand *o = &p.at[i];

		if (o->stride[p.ndim - 1] != 4 || !is_aligned(o, p.ndim, o->data, 2, 16))
			return "terms are not contiguous and aligned to 16 bytes";
	}
	return NULL;
}

int hzi_cuda_quat_dot_contiguous_16bit(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_dot_args *a = args;

	return run_dot(ctx, a, by_dtype(HZI_KERNEL_quat_dot_pairs_f16 - 1, a->dtype),
		       HZI_QUAT_THREADS / 2);
}

const char *hzi_cuda_quat_dot_contiguous_unsupported(const struct hz_context *ctx, const void *args)
{
	struct hzi_quat_job p;

	(void)ctx;
	dot_job(args, &p);
	return dot_contiguous_unsupported(&p);
}

int hzi_cuda_quat_dot_contiguous(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_dot_args *a = args;

	return run_dot(ctx, a, by_dtype(HZI_KERNEL_quat_dot_contiguous_f32, a->dtype),
		       HZI_QUAT_THREADS);
}

int hzi_cuda_quat_dot_strided(struct hz_context *ctx, const void *args)
{
	return run_dot(ctx, args, HZI_KERNEL_quat_dot_strided, HZI_QUAT_THREADS);
}

/* The sum of the gradient of one operand */
static void rotate_sum_job(const struct hzi_quat_rotate_bwd_args *a, struct hzi_quat_job *p)
{
	struct call c;

	quat_rotate_bwd_call(a, &c);
	assert(!a->dq.data || !a->dv.data);
	*p = c.p;
	p->kind = a->dv.data != NULL;
	p->at[3] = p->at[3 + p->kind];
	plan_sum(p, 3);
}

size_t hzi_cuda_quat_rotate_sum_bytes(const struct hzi_quat_rotate_bwd_args *a)
{
	struct hzi_quat_job p;

	rotate_sum_job(a, &p);
	return sum_bytes(&p);
}

int hzi_cuda_quat_rotate_sum(struct hz_context *ctx, const struct hzi_quat_rotate_bwd_args *a)
{
	struct hzi_quat_job p;

	rotate_sum_job(a, &p);
	return launch_sum(ctx, "quat_rotate_bwd", HZI_KERNEL_quat_rotate_sum, HZI_QUAT_THREADS, &p,
			  3, p.kind);
}

/* ---- An elementwise gradient and one that is a sum, in one pass ------------------------------ */

static int64_t fused_blocks(int64_t count, int dtype)
{
	return ceil_div(count, HZI_QUAT_SUM_BLOCK * (dtype == HZ_F32 ? 1 : 2));
}

bool hzi_cuda_quat_is_short_sum(const struct hzi_quat_dims *dims)
{
	return dims->shape[0] < FUSED_LEAST;
}

/*
 * p: dy, the operand with many quaternions, the one that is broadcast, the gradient of the many.
 * sum: dimensions of the other gradient.
 */
static const char *plan_fused(struct hzi_quat_job *p, const struct hzi_quat_dims *sum)
{
	const char *why;

	if (p->ndim != 1 || sum->ndim != 1 || sum->kept != 0)
		return "more or fewer dimensions than one";
	why = plan_contiguous(p);
	if (why)
		return why;
	return p->at[0].dense && p->at[1].dense && p->at[3].dense
		       ? NULL : "an operand but the one of the sum is one quaternion";
}

/* kernel: of f32; y: the sum */
static int run_fused(struct hz_context *ctx, const char *op, int kernel, struct hzi_quat_job *p,
		     const struct hzi_quat_at *y)
{
	const int64_t blocks = fused_blocks(p->shape[0], p->dtype);
	struct hzi_launch l = {.grid = {(unsigned)blocks}, .block = {HZI_QUAT_THREADS}};

	p->partial = ctx->workspace;
	HZ_CHECK(hzi_cuda_launch(ctx, op, by_dtype(kernel, p->dtype), &l, p, sizeof(*p)));
	p->at[0] = (struct hzi_quat_operand){0};
	set_operand(&p->at[0], y, WHOLE, p->dtype, 0);
	p->terms = blocks;
	p->count = 1;
	p->kept = 0;
	l.grid[0] = 1;
	return hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_sum_finish, &l, p, sizeof(*p));
}

/* Defines the functions of launch.h; out: the member of the arguments' sum that is its output */
#define FUSED_SUM(name, kernel_f32, out) \
	const char *hzi_cuda_##name##_fused_sum_unsupported(const struct hz_context *ctx, \
							     const void *args) \
	{ \
		struct hzi_quat_job p; \
		(void)ctx; \
		return name##_fused_job(args, &p); \
	} \
	size_t hzi_cuda_##name##_fused_sum_workspace(const struct hz_context *ctx, \
						      const void *args) \
	{ \
		const struct hzi_##name##_args *const a = args; \
		(void)ctx; \
		return 16 * (size_t)fused_blocks(a->dims.shape[0], a->dtype); \
	} \
	int hzi_cuda_##name##_fused_sum(struct hz_context *ctx, const void *args) \
	{ \
		const struct hzi_##name##_args *const a = args; \
		struct hzi_quat_job p; \
		name##_fused_job(a, &p); \
		return run_fused(ctx, #name, HZI_KERNEL_##kernel_f32, &p, &a->sum->out); \
	}

/*
 * X: the operand with many quaternions, K: the broadcast one. If K is the right factor, dX = cx(dy
 * conj(ck(K))) and dK = ck(sum of conj(cx(X)) dy). If it is the left one, the conjugates of both
 * follow from conj(dy). Returns why one kernel cannot do both.
 */
static const char *quat_mul_bwd_fused_job(const struct hzi_quat_mul_bwd_args *a,
					  struct hzi_quat_job *p)
{
	const bool right = a->da.data != NULL;

	if (!a->sum)
		return "no gradient is a sum";
	begin_job(p, &a->dims, a->dtype);
	put(p, 0, &a->dy, WHOLE);
	put(p, 1, right ? &a->a : &a->b, WHOLE);
	put(p, 2, right ? &a->b : &a->a, WHOLE);
	put(p, 3, right ? &a->da : &a->db, WHOLE);
	p->accumulate = a->accumulate;
	p->conj_a = !right;
	p->conj_b = right ? a->conj_a : !a->conj_b;
	p->conj_y = right ? a->conj_b : !a->conj_a;
	return plan_fused(p, &a->sum->dims);
}

FUSED_SUM(quat_mul_bwd, quat_mul_fused_sum_f32, y)

/* The gradient of q is the sum. */
static const char *quat_rotate_bwd_fused_job(const struct hzi_quat_rotate_bwd_args *a,
					     struct hzi_quat_job *p)
{
	if (!a->sum || !a->sum->dq.data)
		return "the gradient of q is not a sum besides another gradient";
	begin_job(p, &a->dims, a->dtype);
	put(p, 0, &a->dy, vector_kind(&a->dy));
	put(p, 1, &a->v, vector_kind(&a->v));
	put(p, 2, &a->q, WHOLE);
	put(p, 3, &a->dv, a->real ? WHOLE : VECTOR3);
	set_rotation(a, p);
	return plan_fused(p, &a->sum->dims);
}

FUSED_SUM(quat_rotate_bwd, quat_rotate_fused_sum_f32, dq)

/* ---- Conversions ----------------------------------------------------------------------------- */

_Static_assert(HZI_KERNEL_quat_from_matrix_bwd - HZI_KERNEL_quat_to_matrix ==
	       HZI_QUAT_CONVERTS - 1, "kernels are in the order of kinds");

/* Whether operand i is vectors or matrices without gaps between them, in any order inside */
static bool is_staged(const struct hzi_quat_convert_args *a, int i)
{
	const int parts = a->parts[i];

	for (int c = 0; c < parts; c++) {
		if (a->comp[i][c] < 0 || a->comp[i][c] >= parts)
			return false;
	}
	return parts % 3 == 0 && (a->dims.ndim == 0 || (a->dims.ndim == 1 &&
							a->at[i].stride[0] == parts));
}

int hzi_cuda_quat_convert(struct hz_context *ctx, const struct hzi_quat_convert_args *a)
{
	static const char *const names[HZI_QUAT_CONVERTS] = {
		"quat_to_matrix", "quat_from_matrix", "quat_to_axis_angle", "quat_from_axis_angle",
		"quat_exp", "quat_log", "quat_slerp", "quat_to_matrix_bwd", "quat_from_matrix_bwd",
	};
	struct hzi_quat_convert_job p = {
		.ndim = a->dims.ndim, .dtype = a->dtype, .accumulate = a->accumulate,
		.keep = a->keep, .count = 1,
	};
	struct hzi_launch l = {.block = {HZI_QUAT_THREADS}};

	memcpy(p.comp, a->comp, sizeof(p.comp));
	memcpy(p.parts, a->parts, sizeof(p.parts));
	for (int d = 0; d < p.ndim; d++) {
		p.shape[d] = a->dims.shape[d];
		p.count *= p.shape[d];
	}
	for (int i = 0; i <= a->inputs; i++) {
		set_operand(&p.at[i], &a->at[i], a->parts[i] == 4 ? WHOLE : NUMBER, p.dtype,
			    p.ndim);
		p.staged[i] = is_staged(a, i);
	}
	l.grid[0] = (unsigned)min_of(ceil_div(p.count, HZI_QUAT_THREADS), BLOCKS_MAX);
	return hzi_cuda_launch(ctx, names[a->kind], HZI_KERNEL_quat_to_matrix + a->kind, &l, &p,
			       sizeof(p));
}

size_t hzi_cuda_quat_convert_workspace(const struct hz_context *ctx,
				       const struct hzi_quat_convert_args *a)
{
	(void)ctx, (void)a;
	return 0;
}
