/*
 * quat.c - launchers of the elementwise operations of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "gpu/runtime/cuda.h"
#include "gpu/quat/planar.h"
#include "lib/quat/quat.h"

HZI_LINK_IMAGES(quat);

_Static_assert((int)HZI_MAP_CONJ == (int)HZI_QUAT_CONJ && (int)HZI_MAP_NORM == (int)HZI_QUAT_NORM &&
	       (int)HZI_MAP_NORM2 == (int)HZI_QUAT_NORM2 &&
	       (int)HZI_MAP_NORMALIZE == (int)HZI_QUAT_NORMALIZE &&
	       (int)HZI_MAP_INVERSE == (int)HZI_QUAT_INVERSE, "the same kinds for C and CUDA");
_Static_assert(HZI_QUAT_DIMS == HZ_MAXDIM, "a job has room for all dimensions");

#define BLOCKS_MAX INT32_MAX		/* of a grid along x */
#define JOINT_LEAST 32768		/* quaternions that are summed while others are written */
#define ROW_LEAST 512			/* elements, for which a row has blocks of its own */
#define LANES_LOG2 5			/* results side by side: a line of memory and more */

/* ---- Operands -------------------------------------------------------------------------------- */

/* What an operand is: its whole quaternions, vectors of three, or real numbers. */
enum kind { WHOLE, VECTOR3, NUMBER };

static struct hzi_quat_operand operand(const struct hzi_quat_at *at, enum kind kind, int dtype,
				       const struct hzi_quat_dims *dims)
{
	struct hzi_quat_operand o = {.data = at->data};
	bool wxyz = true, xyzw = true;
	int64_t steps = 0;

	for (int d = 0; d < dims->ndim; d++) {
		o.stride[d] = at->stride[d];
		steps |= at->stride[d];
	}
	o.width = kind == WHOLE ? 4 : kind == VECTOR3 ? 3 : 1;
	for (int c = 0; c < 4; c++) {
		o.comp[c] = at->comp[c];
		wxyz &= at->comp[c] == c;
		xyzw &= at->comp[c] == (c + 3) % 4;
	}
	if (kind == WHOLE && steps % 4 == 0 &&
	    (uintptr_t)at->data % (dtype == HZ_F32 ? 16 : 8) == 0)
		o.whole = wxyz ? HZI_QUAT_WXYZ : xyzw ? HZI_QUAT_XYZW : HZI_QUAT_APART;
	return o;
}

/* The kind of an operand of vectors: with a real part at comp[0] beside them, or not. */
static enum kind vector_kind(const struct hzi_quat_at *at)
{
	return (at->comp[0] == 0 && at->comp[1] == 1 && at->comp[3] == 3) ||
	       (at->comp[0] == 3 && at->comp[1] == 0 && at->comp[3] == 2) ? WHOLE : VECTOR3;
}

static struct hzi_quat_job job(const struct hzi_quat_dims *dims, int dtype)
{
	struct hzi_quat_job p = {
		.ndim = dims->ndim, .kept = dims->kept, .dtype = dtype, .count = 1,
	};

	for (int d = 0; d < dims->ndim; d++) {
		p.shape[d] = dims->shape[d];
		p.count *= dims->shape[d];
	}
	return p;
}

/* Whether the bytes from p on, and what other dimensions step to, lie at multiples of align. */
static bool is_aligned(const struct hzi_quat_operand *o, int ndim, const char *p, int64_t size,
		       int64_t align)
{
	for (int d = 0; d < ndim - 1; d++) {
		if (o->stride[d] * size % align)
			return false;
	}
	return (uintptr_t)p % (uintptr_t)align == 0;
}

/* Whether an operand lies without gaps in the last dimension, or is one quaternion there. */
static bool lies_flat(const struct hzi_quat_job *p, struct hzi_quat_operand *o)
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

/* Whether the kernels for operands that lie one after the other do it, all in one order. */
static bool is_flat(struct hzi_quat_job *p)
{
	bool wxyz = false;

	p->turned = false;
	if (p->ndim > 2 || (p->ndim == 2 && p->shape[1] < ROW_LEAST))
		return false;
	for (int i = 0; i < HZI_QUAT_OPERANDS; i++) {
		const struct hzi_quat_operand *o = &p->at[i];

		if (!o->data)
			continue;
		if (!lies_flat(p, &p->at[i]))
			return false;
		wxyz |= o->whole == HZI_QUAT_WXYZ;
		p->turned |= o->whole == HZI_QUAT_XYZW;
	}
	return !(wxyz && p->turned);
}

/* How whole quaternions lie that are back to back in the last dimension, in pieces of 16 bytes. */
static int16_t dense_whole(const struct hzi_quat_job *p, const struct hzi_quat_operand *o)
{
	if (!o->whole || o->stride[p->ndim - 1] != 4 ||
	    !is_aligned(o, p->ndim, o->data, p->dtype == HZ_F32 ? 4 : 2, 16))
		return HZI_QUAT_GAPS;
	return o->whole == HZI_QUAT_XYZW ? HZI_QUAT_TURNED : HZI_QUAT_WHOLE;
}

/* Has kernels for any operands take 16 bytes of components at a time where some lie in planes. */
static void plan_groups(struct hzi_quat_job *p)
{
	const int64_t n = p->ndim ? p->shape[p->ndim - 1] : 1, size = p->dtype == HZ_F32 ? 4 : 2;
	bool planes = false;

	for (int i = 0; i < HZI_QUAT_OPERANDS; i++) {
		struct hzi_quat_operand *o = &p->at[i];

		bool dense = o->data && p->ndim && o->stride[p->ndim - 1] == 1;

		for (int c = o->width == 3; c < (o->width == 1 ? 1 : 4); c++)
			dense &= is_aligned(o, p->ndim, (char *)o->data + o->comp[c] * size,
					    size, 16);
		planes |= dense;
		o->dense = dense ? HZI_QUAT_PLANES : HZI_QUAT_GAPS;
		if (o->data && p->ndim && dense_whole(p, o))
			o->dense = dense_whole(p, o);
	}
	if (!planes || n < 16 / size || n > INT32_MAX)
		return;
	p->groups = (int32_t)ceil_div(n, 16 / size);
	p->count = p->count / n * p->groups;
}

/* How an operand of tiles lies in the last dimension, which steps by step. */
static int16_t dense_of(const struct hzi_quat_job *p, const struct hzi_quat_operand *o)
{
	const int64_t size = p->dtype == HZ_F32 ? 4 : 2;
	bool planes = o->stride[p->ndim - 1] == 1;

	if (dense_whole(p, o))
		return dense_whole(p, o);
	for (int c = o->width == 3; c < (o->width == 1 ? 1 : 4); c++)
		planes &= is_aligned(o, p->ndim, (char *)o->data + o->comp[c] * size, size, 16);
	return planes ? HZI_QUAT_PLANES : HZI_QUAT_GAPS;
}

/*
 * Whether kernels of tiles are to do it, of so many pieces a lane: which pays where something lies
 * in planes.
 */
static bool plan_tiles(struct hzi_quat_job *p, int pieces)
{
	const int64_t n = p->ndim ? p->shape[p->ndim - 1] : 1, size = p->dtype == HZ_F32 ? 4 : 2;
	const int64_t tile = 32 * pieces * (4 / size);
	bool pays = false;

	/* A warp has a tile of one row. */
	if (n < tile / 2 || n > INT32_MAX)
		return false;
	for (int i = 0; i < HZI_QUAT_OPERANDS; i++) {
		struct hzi_quat_operand *o = &p->at[i];

		if (!o->data)
			continue;
		o->dense = dense_of(p, o);
		pays |= o->dense == HZI_QUAT_PLANES || o->dense == HZI_QUAT_TURNED;
	}
	if (!pays)
		return false;
	p->groups = (int32_t)ceil_div(n, tile);
	p->count = p->count / n * p->groups;
	return true;
}

/* Of kernels that begin with one for any operands, that for whole ones of a dtype. */
static int whole_kernel(int any, int dtype)
{
	return any + (dtype == HZ_F32 ? 1 : dtype == HZ_F16 ? 2 : 3);
}

/* kernel: the one for any operands. */
static int launch(struct hz_context *ctx, const char *op, int kernel, struct hzi_quat_job *p)
{
	struct hzi_launch l = {.block = {HZI_QUAT_THREADS}};
	int64_t blocks = 0;

	if (is_flat(p)) {
		const int64_t n = p->ndim ? p->shape[p->ndim - 1] : 1;
		const int64_t row_blocks =
			ceil_div(n, HZI_QUAT_BLOCK * (p->dtype == HZ_F32 ? 1 : 2));
		const int64_t rows = p->ndim == 2 ? p->shape[0] : 1;

		if (row_blocks <= BLOCKS_MAX / rows) {
			p->row_blocks = (int32_t)row_blocks;
			blocks = row_blocks * rows;
			kernel = whole_kernel(kernel, p->dtype);
		}
	}
	if (!blocks) {
		plan_groups(p);
		blocks = ceil_div(p->count, HZI_QUAT_THREADS);
	}
	l.grid[0] = (unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX);
	return hzi_cuda_launch(ctx, op, kernel, &l, p, sizeof(*p));
}

/* Products and their gradients; kernel: the one of tiles of f32, any: the one for any operands. */
static int launch_mul(struct hz_context *ctx, const char *op, int kernel, int pieces, int any,
		      struct hzi_quat_job *p)
{
	struct hzi_launch l = {.block = {HZI_QUAT_THREADS}};
	int64_t blocks;

	if (is_flat(p) || !plan_tiles(p, pieces))
		return launch(ctx, op, any, p);
	blocks = ceil_div(p->count, HZI_QUAT_THREADS / 32);
	kernel += p->dtype == HZ_F32 ? 0 : p->dtype == HZ_F16 ? 1 : 2;
	l.grid[0] = (unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX);
	return hzi_cuda_launch(ctx, op, kernel, &l, p, sizeof(*p));
}

/* ---- Operations ------------------------------------------------------------------------------ */

#define NO_WORKSPACE(name) \
	size_t hzi_cuda_##name##_workspace(const struct hz_context *ctx, \
					   const struct hzi_##name##_args *a) \
	{ \
		(void)ctx, (void)a; \
		return 0; \
	}

NO_WORKSPACE(quat_mul)
NO_WORKSPACE(quat_axpy)
NO_WORKSPACE(quat_map)
NO_WORKSPACE(quat_map_bwd)
NO_WORKSPACE(quat_rotate)

int hzi_cuda_quat_mul(struct hz_context *ctx, const struct hzi_quat_mul_args *a)
{
	struct hzi_quat_job p = job(&a->dims, a->dtype);

	p.at[0] = operand(&a->a, WHOLE, a->dtype, &a->dims);
	p.at[1] = operand(&a->b, WHOLE, a->dtype, &a->dims);
	p.at[2] = operand(&a->y, WHOLE, a->dtype, &a->dims);
	p.conj_a = a->conj_a;
	p.conj_b = a->conj_b;
	p.accumulate = a->accumulate;
	return launch_mul(ctx, "quat_mul", HZI_KERNEL_quat_mul_tiles_f32, HZI_QUAT_TILE_MUL,
			  HZI_KERNEL_quat_mul_any, &p);
}

static struct hzi_quat_job mul_bwd_job(const struct hzi_quat_mul_bwd_args *a)
{
	struct hzi_quat_job p = job(&a->dims, a->dtype);

	p.at[0] = operand(&a->dy, WHOLE, a->dtype, &a->dims);
	p.at[1] = operand(&a->a, WHOLE, a->dtype, &a->dims);
	p.at[2] = operand(&a->b, WHOLE, a->dtype, &a->dims);
	p.at[3] = operand(&a->da, WHOLE, a->dtype, &a->dims);
	p.at[4] = operand(&a->db, WHOLE, a->dtype, &a->dims);
	p.conj_a = a->conj_a;
	p.conj_b = a->conj_b;
	p.accumulate = a->accumulate;
	return p;
}

/* The one that is wanted as a product: da = ca(dy conj(cb(b))) or db = cb(conj(ca(a)) dy) */
static struct hzi_quat_job one_gradient_job(const struct hzi_quat_mul_bwd_args *a)
{
	const struct hzi_quat_job all = mul_bwd_job(a);
	const bool left = a->da.data != NULL, turned = left ? a->conj_a : a->conj_b;
	const bool dy_first = left != turned;
	struct hzi_quat_job p = all;

	/* The conjugate of a product is that of the conjugates, in the other order */
	p.at[dy_first ? 0 : 1] = all.at[0];
	p.at[dy_first ? 1 : 0] = all.at[left ? 2 : 1];
	p.at[2] = all.at[left ? 3 : 4];
	p.at[3].data = p.at[4].data = NULL;
	p.conj_a = dy_first ? turned : (left ? a->conj_b : a->conj_a) == turned;
	p.conj_b = dy_first ? (left ? a->conj_b : a->conj_a) == turned : turned;
	return p;
}

/* Without the one that is a sum */
static int mul_bwd(struct hz_context *ctx, const struct hzi_quat_mul_bwd_args *a)
{
	static const char op[] = "quat_mul_bwd";
	struct hzi_quat_job p;

	if (!a->da.data || !a->db.data) {
		p = one_gradient_job(a);
		return launch_mul(ctx, op, HZI_KERNEL_quat_mul_tiles_f32, HZI_QUAT_TILE_MUL,
				  HZI_KERNEL_quat_mul_any, &p);
	}
	p = mul_bwd_job(a);
	return launch_mul(ctx, op, HZI_KERNEL_quat_mul_bwd_tiles_f32, HZI_QUAT_TILE_MUL_BWD,
			  HZI_KERNEL_quat_mul_bwd_any, &p);
}

int hzi_cuda_quat_axpy(struct hz_context *ctx, const struct hzi_quat_axpy_args *a)
{
	struct hzi_quat_job p = job(&a->dims, a->dtype);

	p.at[0] = operand(&a->x, WHOLE, a->dtype, &a->dims);
	p.at[1] = operand(&a->y, WHOLE, a->dtype, &a->dims);
	for (int c = 0; c < 4; c++)
		p.alpha[c] = (float)a->alpha[c];
	p.conj_a = a->reversed;
	return launch(ctx, "quat_axpy", HZI_KERNEL_quat_axpy_any, &p);
}

static bool is_norm(int kind)
{
	return kind == HZI_QUAT_NORM || kind == HZI_QUAT_NORM2;
}

int hzi_cuda_quat_map(struct hz_context *ctx, const struct hzi_quat_map_args *a)
{
	const bool norm = is_norm(a->kind);
	struct hzi_quat_job p = job(&a->dims, a->dtype);

	p.at[0] = operand(&a->x, WHOLE, a->dtype, &a->dims);
	p.at[1] = operand(&a->y, norm ? NUMBER : WHOLE, a->dtype, &a->dims);
	p.kind = a->kind;
	p.eps = (float)a->eps;
	return launch(ctx, norm ? "quat_norm" : "quat_map",
		      norm ? HZI_KERNEL_quat_norm_any : HZI_KERNEL_quat_map_any, &p);
}

int hzi_cuda_quat_map_bwd(struct hz_context *ctx, const struct hzi_quat_map_bwd_args *a)
{
	const bool norm = is_norm(a->kind);
	struct hzi_quat_job p = job(&a->dims, a->dtype);

	p.at[0] = operand(&a->dy, norm ? NUMBER : WHOLE, a->dtype, &a->dims);
	p.at[1] = operand(&a->x, WHOLE, a->dtype, &a->dims);
	p.at[2] = operand(&a->dx, WHOLE, a->dtype, &a->dims);
	p.kind = a->kind;
	p.eps = (float)a->eps;
	p.accumulate = a->accumulate;
	return launch(ctx, norm ? "quat_norm_bwd" : "quat_map_bwd",
		      norm ? HZI_KERNEL_quat_norm_bwd_any : HZI_KERNEL_quat_map_bwd_any, &p);
}

int hzi_cuda_quat_rotate(struct hz_context *ctx, const struct hzi_quat_rotate_args *a)
{
	struct hzi_quat_job p = job(&a->dims, a->dtype);

	p.at[0] = operand(&a->q, WHOLE, a->dtype, &a->dims);
	p.at[1] = operand(&a->v, vector_kind(&a->v), a->dtype, &a->dims);
	p.at[2] = operand(&a->y, a->real ? WHOLE : VECTOR3, a->dtype, &a->dims);
	p.inverse = a->inverse;
	p.normalize = a->normalize;
	p.real = a->real;
	return launch(ctx, "quat_rotate", HZI_KERNEL_quat_rotate_any, &p);
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/*
 * Fills what p has of a sum over dimensions kept .. ndim - 1, of inputs operands. Results lie side
 * by side in a block if that makes neighbouring threads read what is nearer than the next term. All
 * of it follows from shapes and strides, and so does the order of the sum.
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

/* kind: of the output, for quat_sum_finish(): 0 quaternion, 1 vector, 2 real number. */
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

static struct hzi_quat_job dot_job(const struct hzi_quat_dot_args *a)
{
	struct hzi_quat_job p = job(&a->dims, a->dtype);

	p.at[0] = operand(&a->a, WHOLE, a->dtype, &a->dims);
	p.at[1] = operand(&a->b, WHOLE, a->dtype, &a->dims);
	p.at[2] = operand(&a->y, a->real ? NUMBER : WHOLE, a->dtype, &a->dims);
	p.conj_a = a->conj_a;
	p.conj_b = a->conj_b;
	p.conj_y = a->conj_y;
	p.accumulate = a->accumulate;
	p.real = a->real;
	plan_sum(&p, 2);
	return p;
}

size_t hzi_cuda_quat_dot_workspace(const struct hz_context *ctx, const struct hzi_quat_dot_args *a)
{
	const struct hzi_quat_job p = dot_job(a);

	(void)ctx;
	return sum_bytes(&p);
}

/* Terms without gaps, of which two are 16 bytes, and a result for each block */
static bool has_pairs(const struct hzi_quat_job *p)
{
	if (p->dtype == HZ_F32 || p->lanes_log2)
		return false;
	for (int i = 0; i < 2; i++) {
		const struct hzi_quat_operand *o = &p->at[i];

		if (o->stride[p->ndim - 1] != 4 || !is_aligned(o, p->ndim, o->data, 2, 16))
			return false;
	}
	return true;
}

int hzi_cuda_quat_dot(struct hz_context *ctx, const struct hzi_quat_dot_args *a)
{
	struct hzi_quat_job p = dot_job(a);
	int kernel = HZI_KERNEL_quat_dot_any, threads = HZI_QUAT_THREADS;

	p.turned = p.at[0].whole == HZI_QUAT_XYZW;
	if (p.at[0].whole && p.at[0].whole == p.at[1].whole && p.ndim - p.kept == 1) {
		if (has_pairs(&p)) {
			kernel = a->dtype == HZ_F16 ? HZI_KERNEL_quat_dot_pairs_f16
						    : HZI_KERNEL_quat_dot_pairs_bf16;
			threads = HZI_QUAT_THREADS / 2;
		} else {
			kernel = whole_kernel(kernel, a->dtype);
		}
	}
	return launch_sum(ctx, "quat_dot", kernel, threads, &p, 2, a->real ? 2 : 0);
}

static struct hzi_quat_job rotate_bwd_job(const struct hzi_quat_rotate_bwd_args *a)
{
	struct hzi_quat_job p = job(&a->dims, a->dtype);

	p.at[0] = operand(&a->dy, vector_kind(&a->dy), a->dtype, &a->dims);
	p.at[1] = operand(&a->q, WHOLE, a->dtype, &a->dims);
	p.at[2] = operand(&a->v, vector_kind(&a->v), a->dtype, &a->dims);
	p.at[3] = operand(&a->dq, WHOLE, a->dtype, &a->dims);
	p.at[4] = operand(&a->dv, a->real ? WHOLE : VECTOR3, a->dtype, &a->dims);
	p.inverse = a->inverse;
	p.normalize = a->normalize;
	p.accumulate = a->accumulate;
	p.real = a->real;
	if (a->dims.kept < a->dims.ndim) {
		assert(!a->dq.data || !a->dv.data);
		p.kind = a->dv.data != NULL;
		p.at[3] = p.at[3 + p.kind];
		plan_sum(&p, 3);
	}
	return p;
}

/* ---- An elementwise gradient and one that is a sum, in one pass ------------------------------ */

static int64_t joint_blocks(const struct hzi_quat_job *p)
{
	return ceil_div(p->shape[0], HZI_QUAT_SUM_BLOCK * (p->dtype == HZ_F32 ? 1 : 2));
}

/*
 * Operands: dy, what is many, what all of these share, the output of the many. Whether that is of
 * one row that is long enough; sum: the dimensions of the other output.
 */
static bool is_joint(struct hzi_quat_job *p, const struct hzi_quat_dims *sum)
{
	return p->ndim == 1 && sum->ndim == 1 && sum->kept == 0 && p->shape[0] >= JOINT_LEAST &&
	       joint_blocks(p) <= BLOCKS_MAX && is_flat(p) && p->at[0].dense && p->at[1].dense &&
	       p->at[3].dense;
}

/* kernel: that of f32; y: the sum */
static int launch_joint(struct hz_context *ctx, const char *op, int kernel, struct hzi_quat_job *p,
			const struct hzi_quat_at *y)
{
	static const struct hzi_quat_dims no_dims;
	const int64_t blocks = joint_blocks(p);
	struct hzi_launch l = {.grid = {(unsigned)blocks}, .block = {HZI_QUAT_THREADS}};

	p->partial = ctx->workspace;
	kernel += p->dtype == HZ_F32 ? 0 : p->dtype == HZ_F16 ? 1 : 2;
	HZ_CHECK(hzi_cuda_launch(ctx, op, kernel, &l, p, sizeof(*p)));
	p->at[0] = operand(y, WHOLE, p->dtype, &no_dims);
	p->terms = blocks;
	p->count = 1;
	p->kept = 0;
	l.grid[0] = 1;
	return hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_sum_finish, &l, p, sizeof(*p));
}

static size_t joint_bytes(const struct hzi_quat_job *p)
{
	return 16 * (size_t)joint_blocks(p);
}

/*
 * With X the many, K the one and their conjugations: dX = cx(dy conj(ck(K))) and dK = ck(the sum of
 * conj(cx(X)) dy) where K is the right factor; where it is the left one, the same of conj(dy), with
 * all of it conjugated. True if one kernel does both.
 */
static bool joint_mul_bwd_job(const struct hzi_quat_mul_bwd_args *a, struct hzi_quat_job *p)
{
	const bool right = a->da.data != NULL;
	const struct hzi_quat_job all = mul_bwd_job(a);

	if (!a->sum)
		return false;
	*p = all;
	p->at[1] = all.at[right ? 1 : 2];
	p->at[2] = all.at[right ? 2 : 1];
	p->at[3] = all.at[right ? 3 : 4];
	p->at[4].data = NULL;
	p->conj_a = !right;
	p->conj_b = right ? a->conj_a : !a->conj_b;
	p->conj_y = right ? a->conj_b : !a->conj_a;
	return is_joint(p, &a->sum->dims);
}

size_t hzi_cuda_quat_mul_bwd_workspace(const struct hz_context *ctx,
				       const struct hzi_quat_mul_bwd_args *a)
{
	struct hzi_quat_job p;

	if (joint_mul_bwd_job(a, &p))
		return joint_bytes(&p);
	return a->sum ? hzi_cuda_quat_dot_workspace(ctx, a->sum) : 0;
}

int hzi_cuda_quat_mul_bwd(struct hz_context *ctx, const struct hzi_quat_mul_bwd_args *a)
{
	struct hzi_quat_job p;

	if (joint_mul_bwd_job(a, &p))
		return launch_joint(ctx, "quat_mul_bwd", HZI_KERNEL_quat_mul_joint_f32, &p,
				    &a->sum->y);
	HZ_CHECK(mul_bwd(ctx, a));
	return a->sum ? hzi_cuda_quat_dot(ctx, a->sum) : HZ_OK;
}

/* Both, that of q being a sum: true if one kernel does them. */
static bool joint_rotate_bwd_job(const struct hzi_quat_rotate_bwd_args *a, struct hzi_quat_job *p)
{
	const struct hzi_quat_job all = rotate_bwd_job(a);

	*p = all;
	if (!a->sum || !a->sum->dq.data)
		return false;
	p->at[1] = all.at[2];
	p->at[2] = all.at[1];
	p->at[3] = all.at[4];
	p->at[4].data = NULL;
	return is_joint(p, &a->sum->dims);
}

size_t hzi_cuda_quat_rotate_bwd_workspace(const struct hz_context *ctx,
					  const struct hzi_quat_rotate_bwd_args *a)
{
	struct hzi_quat_job p;

	if (joint_rotate_bwd_job(a, &p))
		return joint_bytes(&p);
	if (a->sum)
		return hzi_cuda_quat_rotate_bwd_workspace(ctx, a->sum);
	return a->dims.kept < a->dims.ndim ? sum_bytes(&p) : 0;
}

int hzi_cuda_quat_rotate_bwd(struct hz_context *ctx, const struct hzi_quat_rotate_bwd_args *a)
{
	static const char op[] = "quat_rotate_bwd";
	struct hzi_quat_job p;

	if (joint_rotate_bwd_job(a, &p))
		return launch_joint(ctx, op, HZI_KERNEL_quat_rotate_joint_f32, &p, &a->sum->dq);
	p = rotate_bwd_job(a);
	if (a->dims.kept < a->dims.ndim)
		return launch_sum(ctx, op, HZI_KERNEL_quat_rotate_sum, HZI_QUAT_THREADS, &p, 3,
				  p.kind);
	HZ_CHECK(launch(ctx, op, HZI_KERNEL_quat_rotate_bwd_any, &p));
	return a->sum ? hzi_cuda_quat_rotate_bwd(ctx, a->sum) : HZ_OK;
}
