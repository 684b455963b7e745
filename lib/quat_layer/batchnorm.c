/*
 * batchnorm.c - batch normalization, pooling, dropout and initial values of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "lib/quat_layer/plan.h"

#define LISTED(list) ((int)(sizeof(list) / sizeof(*(list))))

/* ---- Batch normalization --------------------------------------------------------------------- */

struct call {
	const char *op;
	const hz_tensor *x, *gamma, *beta, *y, *dx, *dgamma, *dbeta;	/* y is dy if backward */
	const hz_quat_batchnorm_opts *o;
	bool backward;
};

/* Checks a parameter: contiguous, [C] or [C, columns]. */
static int check_parameter(struct hz_context *ctx, const struct call *q, const char *name,
			   const hz_tensor *t, int dtype, int64_t channels, int columns,
			   bool output, void **data)
{
	if (!t)
		return HZ_OK;
	HZ_CHECK(hzi_check(ctx, q->op, name, t, (const int[]){dtype, 0}, output));
	if (t->ndim != (columns ? 2 : 1))
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d", q->op, name,
				t->ndim, columns ? 2 : 1);
	HZ_CHECK(hzi_quat_check_size(ctx, q->op, name, 0, t->shape[0], channels,
				     ", the channels of x"));
	if (columns)
		HZ_CHECK(hzi_quat_check_size(ctx, q->op, name, 1, t->shape[1], columns, ""));
	if (!hz_tensor_contiguous(t))
		return hzi_fail(ctx, HZ_ESTRIDE, "%s: %s must be contiguous", q->op, name);
	*data = hzi_data(ctx, t);
	return HZ_OK;
}

/* Checks an array of statistics: as a parameter, or with HZ_QUAT_PER_STEP [steps..., C]. */
static int check_statistic(struct hz_context *ctx, const struct call *q, const char *name,
			   const hz_tensor *t, int dtype, int columns, bool output, void **data)
{
	const int channels = q->x->ndim - 2, ndim = channels + (columns > 0);

	if (!(q->o->flags & HZ_QUAT_PER_STEP))
		return check_parameter(ctx, q, name, t, dtype, q->x->shape[channels], columns,
				       output, data);
	if (!t)
		return HZ_OK;
	HZ_CHECK(hzi_check(ctx, q->op, name, t, (const int[]){dtype, 0}, output));
	if (t->ndim != ndim)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d for "
				"HZ_QUAT_PER_STEP", q->op, name, t->ndim, ndim);
	for (int d = 0; d < channels; d++)
		HZ_CHECK(hzi_quat_check_size(ctx, q->op, name, d, t->shape[d], q->x->shape[1 + d],
					     ", as x"));
	if (columns)
		HZ_CHECK(hzi_quat_check_size(ctx, q->op, name, channels, t->shape[channels],
					     columns, ""));
	if (!hz_tensor_contiguous(t))
		return hzi_fail(ctx, HZ_ESTRIDE, "%s: %s must be contiguous", q->op, name);
	*data = hzi_data(ctx, t);
	return HZ_OK;
}

/* *to = a number of the options, or its default if its bit is clear */
static int check_number(struct hz_context *ctx, const struct call *q, const char *name,
			double value, const struct hzi_flag *bit, double absent, double *to)
{
	const bool given = q->o->given & bit->bit;

	if (!given && value != 0)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->%s is %g, but opts->given lacks %s: set it, or %s to 0",
				q->op, name, value, bit->name, name);
	*to = given ? value : absent;
	return HZ_OK;
}

static int check_numbers(struct hz_context *ctx, const struct call *q, double *eps,
			 double *momentum)
{
	static const struct hzi_flag bits[] = {
		HZI_FLAG(HZ_QUAT_BATCHNORM_GIVEN_EPS), HZI_FLAG(HZ_QUAT_BATCHNORM_GIVEN_MOMENTUM),
		{0, NULL},
	};
	const hz_quat_batchnorm_opts *o = q->o;

	HZ_CHECK(hzi_check_flags(ctx, q->op, "opts->given", o->given, bits[0].bit | bits[1].bit,
				 bits));
	HZ_CHECK(check_number(ctx, q, "eps", o->eps, &bits[0], 1e-5, eps));
	HZ_CHECK(check_number(ctx, q, "momentum", o->momentum, &bits[1], 0.1, momentum));
	if (!(*eps >= 0) || !isfinite(*eps))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->eps is %g, must be finite and not "
				"negative", q->op, o->eps);
	if (!(*momentum >= 0 && *momentum <= 1))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->momentum is %g, must be 0 to 1", q->op,
				o->momentum);
	return HZ_OK;
}

static int check_steps(struct hz_context *ctx, const struct call *q)
{
	const hz_tensor *x = q->x;

	if (x->ndim < 3)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x.ndim is %d, must be 3 or more for "
				"HZ_QUAT_PER_STEP: [batch, steps..., C, 4]", q->op, x->ndim);
	for (int d = 1; d < x->ndim - 2; d++) {
		if (x->shape[d] == 0)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: x.shape[%d] is 0, must be at least 1 "
					"for HZ_QUAT_PER_STEP", q->op, d);
	}
	return HZ_OK;
}

static int batchnorm_args(struct hz_context *ctx, const struct call *q,
			  struct hzi_quat_batchnorm_args *a)
{
	const hz_quat_batchnorm_opts *o = q->o;
	const char *y_name = q->backward ? "dy" : "y";
	const bool eval = o->flags & HZ_QUAT_EVAL;
	const int matrix = o->flags & HZ_QUAT_WHITEN ? 10 : 0;
	const bool learns = !q->backward && !eval;
	struct hzi_quat_finish_step *f = &a->f;
	const struct hzi_quat_layer_view list[] = {
		{"x", q->x, false}, {"gamma", q->gamma, false}, {"beta", q->beta, false},
		{y_name, q->y, !q->backward}, {"running_mean", o->running_mean, learns},
		{"running_var", o->running_var, learns}, {"saved", o->saved, !q->backward},
		{"dx", q->dx, true}, {"dgamma", q->dgamma, true}, {"dbeta", q->dbeta, true},
	};
	void *gamma = NULL, *beta = NULL;
	int64_t channels;
	int dtype;

	memset(a, 0, sizeof(*a));
	HZ_CHECK(hzi_quat_check_flags(ctx, q->op, "opts->flags", o->flags, HZ_QUAT_XYZW |
				      HZ_QUAT_ACCUMULATE | HZ_QUAT_WHITEN | HZ_QUAT_EVAL |
				      HZ_QUAT_PER_STEP));
	if (o->flags & HZ_QUAT_ACCUMULATE && !q->backward)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: HZ_QUAT_ACCUMULATE is for the backward call", q->op);
	HZ_CHECK(hzi_check_reserved(ctx, q->op, o->reserved, 4));
	HZ_CHECK(check_numbers(ctx, q, &f->eps, &f->momentum));
	HZ_CHECK(hzi_quat_check(ctx, q->op, "x", q->x, 0, 2, HZ_MAXDIM, false, o->flags, &a->x));
	HZ_CHECK(hzi_quat_check(ctx, q->op, y_name, q->y, q->x->dtype, 2, HZ_MAXDIM, !q->backward,
				o->flags, &a->y));
	HZ_CHECK(hzi_check_same_shape(ctx, q->op, "x", q->x, y_name, q->y));
	if (q->dx) {
		HZ_CHECK(hzi_quat_check(ctx, q->op, "dx", q->dx, q->x->dtype, 2, HZ_MAXDIM, true,
					o->flags, &a->dx));
		HZ_CHECK(hzi_check_same_shape(ctx, q->op, "x", q->x, "dx", q->dx));
	}
	channels = q->x->shape[q->x->ndim - 2];
	dtype = q->x->dtype == HZ_F64 ? HZ_F64 : HZ_F32;
	f->dtype = dtype;
	f->channels = channels;
	f->whiten = matrix != 0;
	f->eval = eval;
	f->accumulate = (o->flags & HZ_QUAT_ACCUMULATE) != 0;
	for (int c = 0; c < 4; c++)
		f->order[c] = o->flags & HZ_QUAT_XYZW ? (c + 3) % 4 : c;
	HZ_CHECK(check_parameter(ctx, q, "gamma", q->gamma, dtype, channels, matrix, false,
				 &gamma));
	HZ_CHECK(check_parameter(ctx, q, "beta", q->beta, dtype, channels, 4, false, &beta));
	HZ_CHECK(check_statistic(ctx, q, "running_mean", o->running_mean, dtype, 4, learns,
				 &f->running_mean));
	HZ_CHECK(check_statistic(ctx, q, "running_var", o->running_var, dtype, matrix, learns,
				 &f->running_var));
	HZ_CHECK(check_statistic(ctx, q, "saved", o->saved, dtype, 14, !q->backward,
				 &f->saved));
	HZ_CHECK(check_parameter(ctx, q, "dgamma", q->dgamma, dtype, channels, matrix, true,
				 &f->dgamma));
	HZ_CHECK(check_parameter(ctx, q, "dbeta", q->dbeta, dtype, channels, 4, true, &f->dbeta));
	f->gamma = gamma;
	f->beta = beta;
	if (eval && !q->backward && (!o->running_mean || !o->running_var))
		return hzi_fail(ctx, HZ_EINVAL, "%s: HZ_QUAT_EVAL needs opts->running_mean and "
				"running_var", q->op);
	if (q->backward && !o->saved)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: opts->saved is NULL, must be what the forward call saved",
				q->op);
	if (o->flags & HZ_QUAT_PER_STEP) {
		HZ_CHECK(check_steps(ctx, q));
		a->steps = 1;
		for (int d = 1; d < a->x.ndim - 1; d++)
			a->steps *= a->x.shape[d];
		f->channels *= a->steps;
	}
	f->rows = 1;
	for (int d = 0; d < (a->steps ? 1 : a->x.ndim - 1); d++)
		f->rows *= a->x.shape[d];
	if (learns && f->rows == 0 && channels > 0)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x has no quaternions to take a mean of",
				q->op);
	return hzi_quat_check_apart(ctx, q->op, list, LISTED(list), q->backward ? "dy" : "x",
				    q->backward ? "dx" : "y");
}

/* Takes bytes of the workspace. */
static void *take(char *base, size_t *used, int64_t bytes)
{
	void *p = base + *used;

	*used += ((size_t)bytes + 63) & ~(size_t)63;
	return p;
}

/* ---- Statistics per step --------------------------------------------------------------------- */

/* t as [batch, steps * channels]; false if strides do not allow that */
static bool flatten(const struct hzi_quat_tensor *t, struct hzi_quat_tensor *flat)
{
	struct hzi_quat_array rest = {.data = NULL};
	struct hzi_quat_merged j;

	memcpy(rest.stride, t->a.stride + 1, (HZI_QUAT_LAYER_DIMS - 1) * sizeof(*rest.stride));
	j = hzi_quat_merge(t->ndim - 1, t->shape + 1, &rest, NULL, NULL);
	*flat = *t;
	flat->ndim = 2;
	flat->shape[1] = hzi_quat_count(t->ndim - 1, t->shape + 1);
	flat->a.stride[1] = j.stride[0][0];
	return j.n == 1;
}

static int copy(struct hz_context *ctx, const struct hzi_quat_steps *steps, const char *op,
		const struct hzi_quat_array *from, const struct hzi_quat_tensor *to)
{
	const struct hzi_quat_map_step m = hzi_quat_map_args(HZI_QUAT_MAP_COPY, to, from, NULL,
							     NULL, false);

	return m.total ? steps->map(ctx, op, &m) : HZ_OK;
}

/* rows of n numbers; the four components are the same number. step: of rows, 0 for one of all */
static struct hzi_quat_tensor numbers(const void *data, int dtype, int64_t rows, int64_t n,
				      int64_t step)
{
	return (struct hzi_quat_tensor){
		.a = {.data = (void *)(uintptr_t)data, .dtype = dtype, .stride = {step, 1}},
		.shape = {rows, n}, .ndim = 2,
	};
}

/* A parameter repeated for each step */
static int repeat(struct hz_context *ctx, const struct hzi_quat_steps *steps, const char *op,
		  const struct hzi_quat_batchnorm_args *a, int64_t n, const void *from, void *to)
{
	const struct hzi_quat_tensor one = numbers(from, a->f.dtype, a->steps, n, 0);
	const struct hzi_quat_tensor all = numbers(to, a->f.dtype, a->steps, n, n);

	return from ? copy(ctx, steps, op, &one.a, &all) : HZ_OK;
}

/* to = the sum over steps of from, or += */
static int sum_steps(struct hz_context *ctx, const struct hzi_quat_steps *steps, const char *op,
		     const struct hzi_quat_batchnorm_args *a, int64_t n, void *from, double *part,
		     void *to)
{
	const struct hzi_quat_tensor all = numbers(from, a->f.dtype, a->steps, n, n);
	struct hzi_quat_sum_step s = {.kind = HZI_QUAT_SUM_PLAIN, .part = part};
	struct hzi_quat_finish_step f = {
		.kind = HZI_QUAT_FINISH_BIAS, .out = {.data = to, .dtype = a->f.dtype,
						      .stride = {1}},
		.part = part, .accumulate = a->f.accumulate, .rows = a->steps, .channels = n,
	};

	if (!to)
		return HZ_OK;
	hzi_quat_sum_shape(&s, &all, NULL);
	f.chunks = s.chunks;
	HZ_CHECK(steps->sum(ctx, op, &s));
	return steps->finish(ctx, op, &f);
}

/* What a call with statistics per step has in the workspace: parameters of all steps, and x, y (dy)
 * and dx if they have to be copied */
struct per_step {
	struct hzi_quat_tensor copy[3];
	void *gamma, *beta, *dgamma, *dbeta;
	double *part;			/* of sums over steps */
};

/* Takes the workspace, and sets t[] and parameters of *f to what is there. */
static void per_step_begin(const struct hzi_quat_batchnorm_args *a, char *base, size_t *used,
			   struct hzi_quat_tensor *t, struct hzi_quat_finish_step *f,
			   struct per_step *p)
{
	const int64_t channels = f->channels, each = f->whiten ? 10 : 1;

	for (int i = 0; i < 3; i++) {
		const struct hzi_quat_tensor own = t[i];
		void *data;

		p->copy[i].a.data = NULL;
		if (!own.a.data || flatten(&own, &t[i]))
			continue;
		data = take(base, used, f->rows * channels * 4 *
			    (int64_t)hz_dtype_size(own.a.dtype));
		t[i] = hzi_quat_contiguous(data, own.a.dtype, 2, t[i].shape);
		p->copy[i] = hzi_quat_contiguous(data, own.a.dtype, own.ndim, own.shape);
	}
	p->gamma = take(base, used, channels * each * 8);
	p->beta = take(base, used, channels * 4 * 8);
	p->dgamma = take(base, used, channels * each * 8);
	p->dbeta = take(base, used, channels * 4 * 8);
	p->part = take(base, used, HZI_QUAT_SUM_CHUNKS * channels / a->steps * 10 * 4 * 8);
	f->gamma = f->gamma ? p->gamma : NULL;
	f->beta = f->beta ? p->beta : NULL;
	f->dgamma = f->dgamma ? p->dgamma : NULL;
	f->dbeta = f->dbeta ? p->dbeta : NULL;
	f->accumulate = 0;
}

/* ---- The plan -------------------------------------------------------------------------------- */

int hzi_quat_batchnorm_do(struct hz_context *ctx, const struct hzi_quat_steps *steps,
			  const struct hzi_quat_batchnorm_args *a, bool backward, size_t *bytes)
{
	const char *op = backward ? "quat_batchnorm_bwd" : "quat_batchnorm";
	const int64_t channels = a->f.channels, own = a->steps ? channels / a->steps : channels;
	const int64_t each = a->f.whiten ? 10 : 1;
	char *base = bytes ? (char *)(uintptr_t)4096 : ctx->workspace;
	struct hzi_quat_finish_step f = a->f;
	struct hzi_quat_sum_step s = {.mean_dtype = f.dtype, .mean_step = 14};
	struct hzi_quat_tensor t[3] = {a->x, a->y, a->dx};
	struct per_step p = {.gamma = NULL};
	struct hzi_quat_map_step m;
	size_t used = 0;

	if (a->steps)
		per_step_begin(a, base, &used, t, &f, &p);
	hzi_quat_sum_shape(&s, &t[0], backward ? &t[1] : NULL);
	f.coef = take(base, &used, channels * (int64_t)sizeof(struct hzi_quat_affine_bwd));
	s.part = take(base, &used, s.chunks * channels * 20 * 8);
	if (!f.saved)
		f.saved = take(base, &used, channels * 14 * 8);
	if (bytes) {
		*bytes = used;
		return HZ_OK;
	}
	if (p.copy[0].a.data)
		HZ_CHECK(copy(ctx, steps, op, &a->x.a, &p.copy[0]));
	if (p.copy[1].a.data && backward)
		HZ_CHECK(copy(ctx, steps, op, &a->y.a, &p.copy[1]));
	if (a->steps) {
		HZ_CHECK(repeat(ctx, steps, op, a, own * each, a->f.gamma, p.gamma));
		HZ_CHECK(repeat(ctx, steps, op, a, own * 4, a->f.beta, p.beta));
	}
	s.mean = f.saved;
	f.chunks = f.eval && !backward ? 0 : s.chunks;
	f.part = s.part;
	if (backward) {
		s.kind = HZI_QUAT_SUM_CROSS;
		f.kind = HZI_QUAT_FINISH_NORM_BWD;
		if (s.chunks > 0)
			HZ_CHECK(steps->sum(ctx, op, &s));
		if (!a->dx.a.data)
			f.coef = NULL;
		HZ_CHECK(steps->finish(ctx, op, &f));
		if (a->steps) {
			HZ_CHECK(sum_steps(ctx, steps, op, a, own * each, p.dgamma, p.part,
					   a->f.dgamma));
			HZ_CHECK(sum_steps(ctx, steps, op, a, own * 4, p.dbeta, p.part,
					   a->f.dbeta));
		}
		if (!a->dx.a.data || a->f.rows == 0)
			return HZ_OK;
		m = hzi_quat_map_args(HZI_QUAT_MAP_AFFINE_BWD, &t[2], &t[0].a, &t[1].a, NULL,
				      true);
		m.coef = f.coef;
		HZ_CHECK(steps->map(ctx, op, &m));
		return p.copy[2].a.data ? copy(ctx, steps, op, &p.copy[2].a, &a->dx) : HZ_OK;
	}
	/* With a momentum of 1 running values are not read: 0 times NaN is NaN. */
	if (!f.eval && f.momentum == 1) {
		const size_t numbers_bytes = (size_t)channels * hz_dtype_size(f.dtype);

		if (f.running_mean)
			HZ_CHECK(steps->zero(ctx, op, f.running_mean, 4 * numbers_bytes));
		if (f.running_var)
			HZ_CHECK(steps->zero(ctx, op, f.running_var,
					     (size_t)each * numbers_bytes));
	}
	f.kind = HZI_QUAT_FINISH_NORM;
	if (!f.eval && steps->moments) {
		s.kind = HZI_QUAT_SUM_MOMENTS;
		HZ_CHECK(steps->sum(ctx, op, &s));
		f.kind = HZI_QUAT_FINISH_MOMENTS;
	} else if (!f.eval) {
		s.kind = HZI_QUAT_SUM_PLAIN;
		HZ_CHECK(steps->sum(ctx, op, &s));
		f.kind = HZI_QUAT_FINISH_MEAN;
		HZ_CHECK(steps->finish(ctx, op, &f));
		s.kind = HZI_QUAT_SUM_SQUARES;
		HZ_CHECK(steps->sum(ctx, op, &s));
		f.kind = HZI_QUAT_FINISH_NORM;
	}
	HZ_CHECK(steps->finish(ctx, op, &f));
	if (a->f.rows == 0)
		return HZ_OK;
	m = hzi_quat_map_args(HZI_QUAT_MAP_AFFINE, &t[1], &t[0].a, NULL, NULL, true);
	m.coef = f.coef;
	HZ_CHECK(steps->map(ctx, op, &m));
	return p.copy[1].a.data ? copy(ctx, steps, op, &p.copy[1].a, &a->y) : HZ_OK;
}

static const hz_quat_batchnorm_opts batchnorm_defaults;

static int batchnorm(struct hz_context *ctx, struct call *q)
{
	struct hzi_quat_batchnorm_bwd_args a;

	if (!q->o)
		q->o = &batchnorm_defaults;
	HZI_ENTER(ctx, q->op);
	HZ_CHECK(batchnorm_args(ctx, q, &a.f));
	if (a.f.f.channels == 0)
		return HZ_OK;
	return q->backward ? HZI_RUN(ctx, q->op, quat_layer, quat_batchnorm_bwd, &a) :
			     HZI_RUN(ctx, q->op, quat_layer, quat_batchnorm, &a.f);
}

int hz_quat_batchnorm(hz_context *ctx, const hz_tensor *x, const hz_tensor *gamma,
		      const hz_tensor *beta, hz_tensor *y, const hz_quat_batchnorm_opts *opts)
{
	struct call q = {.op = "quat_batchnorm", .x = x, .gamma = gamma, .beta = beta, .y = y,
			 .o = opts};

	return batchnorm(ctx, &q);
}

int hz_quat_batchnorm_bwd(hz_context *ctx, const hz_tensor *x, const hz_tensor *gamma,
			  const hz_tensor *dy, hz_tensor *dx, hz_tensor *dgamma,
			  hz_tensor *dbeta, const hz_quat_batchnorm_opts *opts)
{
	struct call q = {.op = "quat_batchnorm_bwd", .x = x, .gamma = gamma, .y = dy, .dx = dx,
			 .dgamma = dgamma, .dbeta = dbeta, .o = opts, .backward = true};

	return batchnorm(ctx, &q);
}

/* ---- Pooling --------------------------------------------------------------------------------- */

static const int s32_type[] = {HZ_S32, 0};

/* Strides and sizes of three dimensions; missing ones are prepended with size 1. */
static void widen(int n, const int64_t *shape, const int64_t *stride, int64_t *size, int64_t *to)
{
	to[0] = stride[0];
	for (int d = 0; d < 3; d++) {
		const int own = d - (3 - n);

		size[d] = own < 0 ? 1 : shape[1 + own];
		to[1 + d] = own < 0 ? 0 : stride[1 + own];
	}
	to[4] = stride[1 + n];
}

static int pool_args(struct hz_context *ctx, const char *op, const hz_tensor *x, const char *x_name,
		     const hz_tensor *y, const char *y_name, const hz_tensor *index, bool backward,
		     const hz_quat_pool_opts *o, struct hzi_quat_pool_step *a)
{
	const struct hzi_quat_layer_view list[] = {
		{x_name, x, backward}, {y_name, y, !backward}, {"index", index, !backward},
	};
	struct hzi_quat_tensor tx, ty;
	int64_t size[3];
	int n;

	memset(a, 0, sizeof(*a));
	HZI_ENTER(ctx, op);
	if (!o)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts is NULL, must have a window", op);
	HZ_CHECK(hzi_quat_check_range(ctx, op, "kind", o->kind, 0, HZ_POOL_AVERAGE));
	HZ_CHECK(hzi_quat_check_flags(ctx, op, "opts->flags", o->flags,
				      HZ_QUAT_XYZW | HZ_QUAT_ACCUMULATE));
	HZ_CHECK(hzi_check_reserved(ctx, op, o->reserved, 4));
	if (o->flags & HZ_QUAT_ACCUMULATE && !backward)
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: HZ_QUAT_ACCUMULATE is for the backward call", op);
	HZ_CHECK(hzi_quat_check(ctx, op, x_name, x, 0, 4, HZ_MAXDIM, backward, o->flags, &tx));
	HZ_CHECK(hzi_quat_check(ctx, op, y_name, y, x->dtype, x->ndim, x->ndim, !backward, o->flags,
				&ty));
	n = x->ndim - 3;
	HZ_CHECK(hzi_quat_check_size(ctx, op, y_name, 0, y->shape[0], x->shape[0], ", as x"));
	HZ_CHECK(hzi_quat_check_size(ctx, op, y_name, n + 1, y->shape[n + 1], x->shape[n + 1],
				     ", as x"));
	HZ_CHECK(hzi_quat_check_spatial(ctx, op, "window", o->window, n, 1, 0, a->window));
	HZ_CHECK(hzi_quat_check_spatial(ctx, op, "stride", o->stride, n, 0, 0, a->step));
	HZ_CHECK(hzi_quat_check_spatial(ctx, op, "pad", o->pad, n, 0, 0, a->pad));
	for (int d = 0; d < 3; d++) {
		const int own = d - (3 - n);
		int64_t left;

		a->step[d] = a->step[d] ? a->step[d] : a->window[d];
		if (a->pad[d] > a->window[d] / 2)
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->pad[%d] is %lld, must be 0 to "
					"%lld, half the window", op, own, (long long)a->pad[d],
					(long long)a->window[d] / 2);
		if (own < 0)
			continue;
		/* Four times the shape is known not to overflow. */
		left = x->shape[1 + own] + 2 * a->pad[d] - a->window[d];
		HZ_CHECK(hzi_quat_check_size(ctx, op, y_name, 1 + own, y->shape[1 + own],
					     left < 0 || x->shape[1 + own] == 0 ? 0 :
						     left / a->step[d] + 1,
					     ", what the windows make of x"));
	}
	a->max = o->kind == HZ_POOL_MAX;
	a->accumulate = (o->flags & HZ_QUAT_ACCUMULATE) != 0;
	a->images = x->shape[0];
	a->channels = x->shape[n + 1];
	a->x = tx.a;
	a->y = ty.a;
	widen(n, x->shape, tx.a.stride, a->size, a->x.stride);
	widen(n, y->shape, ty.a.stride, a->count, a->y.stride);
	if (!index) {
		if (backward && a->max)
			return hzi_fail(ctx, HZ_EINVAL,
					"%s: index is NULL, must be what hz_quat_pool() filled",
					op);
		return hzi_quat_check_apart(ctx, op, list, LISTED(list), NULL, NULL);
	}
	if (!a->max)
		return hzi_fail(ctx, HZ_EINVAL, "%s: index needs HZ_POOL_MAX", op);
	HZ_CHECK(hzi_check(ctx, op, "index", index, s32_type, !backward));
	if (index->ndim != y->ndim - 1)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: index.ndim is %d, must be %d", op, index->ndim,
				y->ndim - 1);
	for (int d = 0; d < index->ndim; d++)
		HZ_CHECK(hzi_quat_check_size(ctx, op, "index", d, index->shape[d], y->shape[d],
					     ", as y"));
	a->index = hzi_data(ctx, index);
	widen(n, index->shape, index->stride, size, a->index_stride);
	if (a->images > 0 && a->channels > 0 &&
	    (double)a->size[0] * (double)a->size[1] * (double)a->size[2] > 0x7fffffff)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s has more places than an s32 index counts",
				op, x_name);
	return hzi_quat_check_apart(ctx, op, list, LISTED(list), NULL, NULL);
}

int hz_quat_pool(hz_context *ctx, const hz_tensor *x, hz_tensor *y, hz_tensor *index,
		 const hz_quat_pool_opts *opts)
{
	struct hzi_quat_pool_args a;

	HZ_CHECK(pool_args(ctx, "quat_pool", x, "x", y, "y", index, false, opts, &a.p));
	if (hz_tensor_count(y) == 0)
		return HZ_OK;
	return HZI_CALL(ctx, quat_layer, quat_pool, &a);
}

int hz_quat_pool_bwd(hz_context *ctx, const hz_tensor *index, const hz_tensor *dy,
		     hz_tensor *dx, const hz_quat_pool_opts *opts)
{
	struct hzi_quat_pool_bwd_args a;

	HZ_CHECK(pool_args(ctx, "quat_pool_bwd", dx, "dx", dy, "dy", index, true, opts, &a.p));
	if (hz_tensor_count(dx) == 0)
		return HZ_OK;
	return HZI_CALL(ctx, quat_layer, quat_pool_bwd, &a);
}

/* ---- Dropout, initial values ----------------------------------------------------------------- */

int hz_quat_dropout(hz_context *ctx, const hz_tensor *x, hz_tensor *y, double p,
		    uint64_t seed, uint64_t offset)
{
	static const char op[] = "quat_dropout";
	struct hzi_quat_dropout_args a;
	struct hzi_quat_tensor from, to;

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_quat_check(ctx, op, "x", x, 0, 1, HZ_MAXDIM, false, 0, &from));
	HZ_CHECK(hzi_quat_check(ctx, op, "y", y, x->dtype, 1, HZ_MAXDIM, true, 0, &to));
	HZ_CHECK(hzi_check_same_shape(ctx, op, "x", x, "y", y));
	HZ_CHECK(hzi_check_apart_or_same(ctx, op, "x", x, "y", y));
	if (!(p >= 0 && p <= 1))
		return hzi_fail(ctx, HZ_EINVAL, "%s: p is %g, must be 0 to 1", op, p);
	if (hz_tensor_count(x) == 0)
		return HZ_OK;
	a.m = hzi_quat_map_args(HZI_QUAT_MAP_DROPOUT, &to, &from.a, NULL, NULL, false);
	a.m.drop = p;
	a.m.scale = p < 1 ? 1 / (1 - p) : 0;
	a.m.seed = seed;
	a.m.offset = offset;
	return HZI_CALL(ctx, quat_layer, quat_dropout, &a);
}

int hz_quat_init(hz_context *ctx, hz_tensor *y, int distribution, double scale,
		 uint64_t seed, uint64_t offset, uint32_t flags)
{
	static const char op[] = "quat_init";
	struct hzi_quat_init_args a;
	struct hzi_quat_tensor to;

	HZI_ENTER(ctx, op);
	HZ_CHECK(hzi_quat_check(ctx, op, "y", y, 0, 1, HZ_MAXDIM, true, flags, &to));
	if (distribution < HZ_QUAT_POLAR || distribution > HZ_QUAT_NORMAL)
		return hzi_fail(ctx, HZ_EINVAL, "%s: distribution is %d, must be 0 to %d", op,
				distribution, HZ_QUAT_NORMAL);
	if (!(scale > 0) || !isfinite(scale))
		return hzi_fail(ctx, HZ_EINVAL, "%s: scale is %g, must be positive and finite", op,
				scale);
	HZ_CHECK(hzi_quat_check_flags(ctx, op, "flags", flags, HZ_QUAT_XYZW));
	if (hz_tensor_count(y) == 0)
		return HZ_OK;
	a.m = hzi_quat_map_args(HZI_QUAT_MAP_INIT, &to, NULL, NULL, NULL, false);
	a.m.init = distribution;
	a.m.scale = scale;
	a.m.seed = seed;
	a.m.offset = offset;
	return HZI_CALL(ctx, quat_layer, quat_init, &a);
}

double hz_quat_init_scale(int64_t fan_in, int64_t fan_out)
{
	HZI_FP_NEAREST(fp);

	if (fan_in < 1 || fan_out < 0)
		return 0;
	return 1 / sqrt(2 * ((double)fan_in + (double)fan_out));
}
