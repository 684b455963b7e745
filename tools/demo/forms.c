/*
 * forms.c - the network of hurwitz demo with a few bits per weight
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * An N x M matrix of quaternions is stored as N rows of its 4M components; a real matrix with the
 * same effect would have four times as many. With e_d = 1, i, j, k, linearity in the components
 * gives
 *
 *     (w x)_c = sum over d of w_d (e_d x)_c,
 *
 * so hz_quat_mul() computes from each token four rows, c = 0 .. 3, of 4M numbers (e_d x_m)_c, and
 * the layer is one real product of these with the rows of weights. Both may be rotated before.
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/demo/story.h"

#define GROUP 32	/* weights per scale of the lattice */
#define K_MAX (4 * (HIDDEN > POINTS ? HIDDEN : POINTS))
#define ROWS_MAX HIDDEN
#define SEED 5		/* of the rotations' signs */

struct coded_matrix {
	void *memory;			/* of packed codes, of either kind */
	hz_packed packed;
	void *scales;
	hz_lattice *lattice;
	hz_vlut *vlut;
	hz_coded coded;
	hz_tensor t;
	void *codes;			/* codes of the lattice: t is behind them */
};

struct coding {
	const struct form *form;
	struct coded_matrix matrix[MATRICES];
	/* on the device */
	float *expanded;		/* [4 tokens][K_MAX] */
	float *units;			/* [4][4]: e_0 .. e_3 */
	uint8_t *signs;
	float *rotated, *decoded;		/* [ROWS_MAX][K_MAX] */
	double signal, noise, bits, bytes;	/* sums over all matrices */
};

static hz_tensor on(struct net *n, void *p, int dtype, int64_t rows, int64_t columns)
{
	return hz_tensor_2d(p, dtype, hz_device(n->ctx), rows, columns);
}

static hz_tensor transposed(const hz_tensor *t)
{
	hz_tensor r = *t;

	r.shape[0] = t->shape[1];
	r.shape[1] = t->shape[0];
	r.stride[0] = t->stride[1];
	r.stride[1] = t->stride[0];
	return r;
}

/* Multiplies rows by random signs and a Hadamard matrix, in place or not. */
static int rotate(struct net *n, const hz_tensor *from, hz_tensor *to)
{
	struct coding *c = n->form;
	const hz_tensor signs =
		hz_tensor_1d(c->signs, HZ_U8, hz_device(n->ctx), from->shape[1] / 8);
	const hz_hadamard_opts o = {.pre = &signs};

	return hz_hadamard(n->ctx, from, to, &o);
}

/* ---- A product ------------------------------------------------------------------------------- */

/* The four rows per token: [tokens][d][m][c]; rows have index c, columns d and m. */
static int expand(struct net *n, const hz_tensor *x, const hz_tensor *rows)
{
	struct coding *c = n->form;
	const int64_t m = x->shape[1];
	const hz_tensor units = hz_tensor_3d(c->units, HZ_F32, hz_device(n->ctx), 4, 1, 4);
	hz_tensor from = *x, to = *rows;

	from.ndim = to.ndim = 4;
	from.shape[1] = 1;
	from.shape[2] = m;
	from.shape[3] = 4;
	from.stride[2] = x->stride[1];
	from.stride[3] = x->stride[2];
	to.shape[0] = n->tokens;
	to.shape[1] = to.shape[3] = 4;
	to.shape[2] = m;
	to.stride[0] = 16 * m;
	to.stride[1] = m;
	to.stride[2] = 1;
	to.stride[3] = 4 * m;
	return hz_quat_mul(n->ctx, &units, &from, &to, 0);
}

/* silu of each number, by a linear layer that multiplies each four of them by 1 */
static int activate(struct net *n, const hz_tensor *x, const hz_tensor *y)
{
	struct coding *c = n->form;
	const int64_t fours = x->shape[0] * x->shape[1] / 4;
	const hz_tensor one = hz_tensor_3d(c->units, HZ_F32, hz_device(n->ctx), 1, 1, 4);
	const hz_tensor from = hz_tensor_3d(x->data, HZ_F32, x->device, fours, 1, 4);
	const hz_quat_linear_opts o = {.activation = HZ_ACT_SILU};
	hz_tensor to = hz_tensor_3d(y->data, HZ_F32, y->device, fours, 1, 4);

	return hz_quat_linear(n->ctx, &from, &one, NULL, &to, &o);
}

static hz_qgemm_opts integers(struct coded_matrix *w, const hz_tensor *scales)
{
	return (hz_qgemm_opts){.packed = &w->packed, .b_scales = scales};
}

static int product_coded(struct net *n, int which, const hz_tensor *x, hz_tensor *y,
			 hz_tensor *pre)
{
	struct coding *c = n->form;
	struct coded_matrix *w = &c->matrix[which];
	const struct shape s = shape_of(which);
	hz_tensor rows = on(n, c->expanded, HZ_F32, 4 * n->tokens, 4 * s.columns);
	hz_tensor result = on(n, y->data, HZ_F32, 4 * n->tokens, s.rows);
	hz_tensor sum = on(n, s.active ? pre->data : y->data, HZ_F32, 4 * n->tokens, s.rows);
	int status = expand(n, x, &rows);

	if (!status && c->form->rotate)
		status = rotate(n, &rows, &rows);
	if (!status && w->vlut) {
		status = hz_vlut_gemm(n->ctx, w->vlut, &w->coded, &rows, &sum);
	} else if (!status) {
		const hz_tensor scales = hz_tensor_1d(w->scales, HZ_F32, hz_device(n->ctx), s.rows);
		const hz_qgemm_opts o = integers(w, &scales);

		status = hz_qlinear(n->ctx, &rows, NULL, &sum, &o);
	}
	return status || !s.active ? status : activate(n, &sum, &result);
}

/* ---- Encoding a matrix ----------------------------------------------------------------------- */

/* Adds the signal at rotated, and the noise between it and decoded. */
static int compare(struct net *n, int64_t rows, int64_t k)
{
	static float a[ROWS_MAX * K_MAX], b[ROWS_MAX * K_MAX];
	struct coding *c = n->form;
	const hz_tensor rotated = on(n, c->rotated, HZ_F32, rows, k);
	const hz_tensor decoded = on(n, c->decoded, HZ_F32, rows, k);
	hz_tensor to_a = hz_tensor_2d(a, HZ_F32, HZ_CPU, rows, k);
	hz_tensor to_b = hz_tensor_2d(b, HZ_F32, HZ_CPU, rows, k);
	int status = hz_copy(n->ctx, &rotated, &to_a);

	if (!status)
		status = hz_copy(n->ctx, &decoded, &to_b);
	if (!status)
		status = hz_sync(n->ctx);
	for (int64_t i = 0; i < rows * k && !status; i++) {
		c->signal += (double)a[i] * (double)a[i];
		c->noise += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
	}
	return status;
}

/* 8-bit integers, one scale per row of weights */
static int code_integers(struct net *n, struct coded_matrix *w, int64_t rows, int64_t k)
{
	struct coding *c = n->form;
	hz_tensor rotated = on(n, c->rotated, HZ_F32, rows, k);
	hz_tensor decoded = on(n, c->decoded, HZ_F32, rows, k);
	/* B of a product is [k, n]. */
	const hz_tensor b = transposed(&rotated);
	hz_tensor b_back = transposed(&decoded);
	hz_tensor scales = hz_tensor_1d(w->scales, HZ_F32, hz_device(n->ctx), rows);
	hz_tensor codes = on(n, w->codes, HZ_S8, k, rows);
	const hz_quantize_opts o = {.scales = &scales};
	const hz_tensor x = on(n, c->expanded, HZ_F32, 4 * n->tokens, k);
	hz_tensor y = on(n, n->at[0].pre, HZ_F32, 4 * n->tokens, rows);
	hz_qgemm_opts layer;
	size_t bytes;
	int status = WITH_WORKSPACE(n->ctx, hz_choose_qparams(n->ctx, &b, &scales, NULL,
							      HZ_QPARAMS_SYMMETRIC));

	if (!status)
		status = hz_quantize(n->ctx, &b, &codes, &o);
	if (!status)
		status = hz_dequantize(n->ctx, &codes, &b_back, &o);
	if (!status)
		status = hz_qgemm_pack_bytes(n->ctx, &codes, &bytes);
	if (!status)
		status = hz_alloc(n->ctx, &w->memory, bytes, hz_device(n->ctx));
	if (!status)
		status = hz_qgemm_pack(n->ctx, &codes, w->memory, bytes, &w->packed);
	layer = integers(w, &scales);
	if (!status)
		status = RESERVE_FOR(n->ctx, hz_qlinear(n->ctx, &x, NULL, &y, &layer));
	c->bytes += (double)(rows * k + 4 * rows);
	c->bits += 8 * (double)(rows * k + 4 * rows);
	return status;
}

/* Reserves the workspace for products with the packed matrix */
static int reserve_product(struct net *n, struct coded_matrix *w)
{
	struct coding *c = n->form;
	const hz_tensor rows = on(n, c->expanded, HZ_F32, 4 * n->tokens, w->coded.k);
	hz_tensor sums = on(n, n->at[0].pre, HZ_F32, 4 * n->tokens, w->coded.rows);

	return WITH_WORKSPACE(n->ctx, hz_vlut_gemm(n->ctx, w->vlut, &w->coded, &rows, &sums));
}

/* Points of E8 for blocks of eight weights, a scale per GROUP */
static int code_lattice(struct net *n, struct coded_matrix *w, int64_t rows, int64_t k,
			double power)
{
	struct coding *c = n->form;
	const hz_tensor x = on(n, c->rotated, HZ_F32, rows, k);
	hz_tensor decoded = on(n, c->decoded, HZ_F32, rows, k);
	/* 64 scales in steps of 2^(1/8), the smallest for an eighth of the mean deviation */
	const hz_lattice_opts opts = {
		.kind = HZ_LATTICE_E8,
		.q = c->form->q,
		.levels = c->form->levels,
		.beta = sqrt(power) / pow(c->form->q, c->form->levels) / 8,
		.policy = HZ_LATTICE_GROUP,
		.group = GROUP,
		.flags = HZ_LATTICE_CENTER,
	};
	const int64_t groups = (k + GROUP - 1) / GROUP;
	hz_lattice_info info;
	size_t bytes;
	int status = hz_lattice_open(n->ctx, &w->lattice, &opts);

	if (status)
		return status;
	hz_lattice_get_info(w->lattice, &info);
	w->coded = (hz_coded){.rows = rows, .k = k};
	w->coded.codes = hz_tensor_3d(w->codes, info.level_dtype, hz_device(n->ctx), rows, k / 8,
				      info.levels);
	bytes = (size_t)hz_tensor_bytes(&w->coded.codes);
	w->t = on(n, (char *)w->codes + bytes, HZ_U8, rows, groups);
	w->coded.t = &w->t;
	c->bytes += (double)bytes + (double)(rows * groups);
	c->bits += (double)(rows * k) * info.bits;
	status = hz_vlut_open(n->ctx, &w->vlut, w->lattice, NULL, NULL);
	if (!status)
		status = WITH_WORKSPACE(n->ctx, hz_lattice_encode(n->ctx, w->lattice, &x,
								  &w->coded.codes, &w->t, NULL,
								  NULL));
	if (!status)
		status = WITH_WORKSPACE(n->ctx, hz_lattice_decode(n->ctx, w->lattice,
								  &w->coded.codes, &w->t, &decoded,
								  NULL));
	if (!status)
		status = hz_vlut_pack_bytes(n->ctx, w->vlut, &w->coded, &bytes);
	if (!status)
		status = hz_alloc(n->ctx, &w->memory, bytes, hz_device(n->ctx));
	if (!status)
		status = hz_vlut_pack(n->ctx, w->vlut, &w->coded, w->memory, bytes, &w->packed);
	w->coded = (hz_coded){.packed = &w->packed, .rows = rows, .k = k};
	return status ? status : reserve_product(n, w);
}

static int code_matrix(struct net *n, struct weights *trained, int which)
{
	struct coding *c = n->form;
	struct coded_matrix *w = &c->matrix[which];
	const struct shape s = shape_of(which);
	const int64_t rows = s.rows, k = 4 * s.columns;
	const hz_tensor from = on(n, matrix_of(n->value, which), HZ_F32, rows, k);
	hz_tensor rotated = on(n, c->rotated, HZ_F32, rows, k);
	const float *host = matrix_of(trained, which);
	double power = 0;
	int status = c->form->rotate ? rotate(n, &from, &rotated) :
				       hz_copy(n->ctx, &from, &rotated);

	for (int64_t i = 0; i < rows * k; i++)
		power += (double)host[i] * (double)host[i] / (double)(rows * k);
	/* One byte per weight is enough for both kinds of codes, and for the scales. */
	if (!status)
		status = hz_alloc(n->ctx, &w->codes, (size_t)(2 * rows * k), hz_device(n->ctx));
	if (!status)
		status = hz_alloc(n->ctx, &w->scales, (size_t)(4 * rows), hz_device(n->ctx));
	if (!status)
		status = c->form->q ? code_lattice(n, w, rows, k, power) :
				      code_integers(n, w, rows, k);
	return status ? status : compare(n, rows, k);
}

static void free_coding(struct net *n, struct coding *c)
{
	void *const shared[] = {c->expanded, c->units, c->signs, c->rotated, c->decoded};

	for (int k = 0; k < MATRICES; k++) {
		struct coded_matrix *w = &c->matrix[k];
		void *const own[] = {w->memory, w->scales, w->codes};

		hz_vlut_close(w->vlut);
		hz_lattice_close(w->lattice);
		for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++) {
			if (own[i])
				hz_free(n->ctx, own[i], hz_device(n->ctx));
		}
	}
	for (size_t i = 0; i < sizeof(shared) / sizeof(*shared); i++) {
		if (shared[i])
			hz_free(n->ctx, shared[i], hz_device(n->ctx));
	}
}

static int make_coding(struct net *n, struct coding *c, struct weights *trained)
{
	static float units[16] = {[0] = 1, [5] = 1, [10] = 1, [15] = 1};
	static uint8_t bits[K_MAX / 8];
	const int device = hz_device(n->ctx);
	const hz_tensor host_units = hz_tensor_2d(units, HZ_F32, HZ_CPU, 4, 4);
	const hz_tensor host_signs = hz_tensor_1d(bits, HZ_U8, HZ_CPU, K_MAX / 8);
	hz_tensor to, pre, hidden;
	int status = hz_alloc(n->ctx, (void **)&c->expanded,
			      (size_t)(4 * n->tokens * K_MAX) * sizeof(float), device);

	if (!status)
		status = hz_alloc(n->ctx, (void **)&c->units, sizeof(units), device);
	if (!status)
		status = hz_alloc(n->ctx, (void **)&c->signs, sizeof(bits), device);
	if (!status)
		status = hz_alloc(n->ctx, (void **)&c->rotated, ROWS_MAX * K_MAX * sizeof(float),
				  device);
	if (!status)
		status = hz_alloc(n->ctx, (void **)&c->decoded, ROWS_MAX * K_MAX * sizeof(float),
				  device);
	hz_hadamard_signs(bits, K_MAX, SEED);
	to = on(n, c->units, HZ_F32, 4, 4);
	if (!status)
		status = hz_copy(n->ctx, &host_units, &to);
	to = hz_tensor_1d(c->signs, HZ_U8, device, K_MAX / 8);
	if (!status)
		status = hz_copy(n->ctx, &host_signs, &to);
	n->form = c;
	n->product = product_coded;
	pre = on(n, n->at[0].pre, HZ_F32, 4 * n->tokens, HIDDEN);
	hidden = on(n, n->at[0].hidden, HZ_F32, 4 * n->tokens, HIDDEN);
	if (!status)
		status = WITH_WORKSPACE(n->ctx, activate(n, &pre, &hidden));
	for (int k = 0; k < MATRICES && !status; k++)
		status = code_matrix(n, trained, k);
	return status;
}

/* ---- The whole network in one form ----------------------------------------------------------- */

static int forward(void *net)
{
	return net_forward(net);
}

/* Counts answers that are right, and answers equal to those of f32, the first form. */
static int judge(struct net *n, const struct places *test, float *f32, bool first,
		 struct outcome *o)
{
	const hz_tensor from = on(n, n->answer, HZ_F32, n->tokens, CLASSES);
	float *y = allocate((size_t)(n->tokens * CLASSES) * sizeof(float));
	hz_tensor to = hz_tensor_2d(y, HZ_F32, HZ_CPU, n->tokens, CLASSES);
	int status = y ? hz_copy(n->ctx, &from, &to) : HZ_ENOMEM;
	int64_t right = 0, same = 0;

	if (!status)
		status = hz_sync(n->ctx);
	if (!status && first)
		memcpy(f32, y, (size_t)(n->tokens * CLASSES) * sizeof(float));
	for (int64_t i = 0; i < n->tokens && !status; i++) {
		const int best = largest_of(y + i * CLASSES, CLASSES);

		right += best == largest_of(test->t + i * CLASSES, CLASSES);
		same += best == largest_of(f32 + i * CLASSES, CLASSES);
	}
	o->right = (double)right / (double)n->tokens;
	o->same = (double)same / (double)n->tokens;
	free(y);
	return status;
}

int measure_form(struct form *f, hz_context *ctx, struct weights *trained,
		 const struct places *test, float *f32, bool first, struct outcome *o)
{
	struct coding c = {.form = f};
	const hz_tensor host = hz_tensor_1d(trained, HZ_F32, HZ_CPU, WEIGHTS);
	const hz_tensor x = hz_tensor_2d(test->x, HZ_F32, HZ_CPU, test->count, INPUTS);
	struct net n = {.ctx = ctx};
	hz_tensor to = host;
	void *value = NULL;
	int status = hz_alloc(ctx, &value, sizeof(*trained), hz_device(ctx));

	to.data = value;
	to.device = hz_device(ctx);
	if (!status)
		status = hz_copy(ctx, &host, &to);
	if (!status)
		status = make_net(&n, ctx, test->count, value, NULL);
	to = on(&n, n.input, HZ_F32, test->count, INPUTS);
	if (!status)
		status = hz_copy(ctx, &x, &to);
	if (!status && f->levels)
		status = make_coding(&n, &c, trained);
	if (!status)
		status = time_calls(ctx, forward, &n, 0.05, &o->seconds);
	if (!status)
		status = judge(&n, test, f32, first, o);
	f->kilobytes = (f->levels ? c.bytes : matrix_bytes()) / 1000;
	f->bits = 32 * (f->levels ? c.bits / 8 : matrix_bytes()) / matrix_bytes();
	f->noise = c.noise > 0 ? 10 * log10(c.signal / c.noise) : 0;
	free_coding(&n, &c);
	free_net(&n);
	if (value)
		hz_free(ctx, value, hz_device(ctx));
	return status;
}
