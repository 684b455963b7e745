/*
 * mhc.h - cases of hyper-connections: operands in any layout, run on every context and compared
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A case is a set of named operands on the host and the expected outputs. run_case() makes the call
 * on every context, in guarded memory. It compares outputs with the expected ones, and their bits
 * with those of the context before, if that has the same ISA level and no forced route.
 */
#ifndef MHC_H
#define MHC_H

#include <config.h>

#include "t/core/dev.h"
#include "t/core/record.h"
#include "t/mhc/ref.h"

static uint64_t rnd;
static int quick;
static long cases;

enum slot {
	X, P, Q, A, U, Y, F, BIAS_F, PHI, ALPHA, BIAS, GAIN, NORM, SAVED, P2, Q2, A2,
	DU, DY, DX, DF, DP, DQ, DA, DBIAS_F, DPHI, DALPHA, DBIAS, DGAIN, DNORM, DP_OUT, DQ_OUT,
	DA_OUT, P_IN, DP_IN, ALPHA_Q, ALPHA_A, DALPHA_Q, DALPHA_A, W_DOWN, W_UP, W_Q, DW_DOWN,
	DW_UP, DW_Q, SLOTS
};

static const char *const slot_names[SLOTS] = {
	"x", "p", "q", "a", "u", "y", "f", "branch_bias", "phi", "alpha", "bias", "gain", "norm",
	"saved", "p_next", "q_next", "a_next", "du", "dy", "dx", "df", "dp", "dq", "da",
	"dbranch_bias", "dphi", "dalpha", "dbias", "dgain", "dnorm", "dp out", "dq out", "da out",
	"p_in", "dp_in", "alpha_q", "alpha_a", "dalpha_q", "dalpha_a", "w_down", "w_up", "w_q",
	"dw_down", "dw_up", "dw_q",
};

/* Layouts that differ from a contiguous array; bits */
enum { SWAPPED = 1, GAPS = 2, BACKWARDS = 4, SKEWED = 8 };

struct operand {
	hz_tensor t;		/* data points to the device of the call */
	hz_tensor cn;		/* the same as calls take it with HZ_MHC_STREAMS_CN */
	int64_t count, lowest, bytes;
	size_t skew;
	unsigned char *image;	/* before the call, guards included */
	double *v;		/* elements in row-major order */
	double *want, *bound;	/* of outputs; with an infinite bound any value passes */
	double norm;		/* allowed normalised error; 0: not checked */
	unsigned char *got;	/* image of the context before, and whether it passed */
	int right;
	struct area area;
};

struct tcase;
typedef int (*tcall)(hz_context *ctx, struct tcase *c);	/* returns the library's status */

struct tcase {
	char name[160];
	struct operand *o[SLOTS];
	int64_t split;		/* T tokens are [split][T / split] if split divides T */
	hz_mhc_opts opts;
	int default_opts;	/* opts is NULL in the call */
	int cn;			/* HZ_MHC_STREAMS_CN: the number of streams; else 0 */
	int head;
	double alphas[3];	/* of p, q, a */
	hz_mhc_grads g;		/* filled when a call is made */
	tcall call;
	int any_bits;		/* bits of contexts are not compared */
};

static inline int is_streams(int slot)
{
	return slot == X || slot == Y || slot == DX || slot == DY;
}

/* Weights with a column for each number of a token: [rows][n][C] in a case with cn */
static inline int has_columns(int slot)
{
	return slot == PHI || slot == DPHI || slot == GAIN || slot == DGAIN;
}

/* The view of an operand; NULL if the case has none */
static inline hz_tensor *view(const struct tcase *c, int slot)
{
	struct operand *const o = c->o[slot];

	if (!o || !c->cn || (!is_streams(slot) && !has_columns(slot)))
		return o ? &o->t : NULL;
	o->cn = is_streams(slot) ? hz_view_transpose(&o->t, o->t.ndim - 2, o->t.ndim - 1) :
		slot == PHI || slot == DPHI ?
		hz_tensor_2d(o->t.data, o->t.dtype, o->t.device, o->t.shape[0],
			     o->t.shape[1] * o->t.shape[2]) :
		hz_tensor_1d(o->t.data, o->t.dtype, o->t.device, o->t.shape[1] * o->t.shape[2]);
	return &o->cn;
}

static inline const double *values(const struct tcase *c, int slot)
{
	return c->o[slot] ? c->o[slot]->v : NULL;
}

static inline double *wanted(const struct tcase *c, int slot)
{
	return c->o[slot] ? c->o[slot]->want : NULL;
}

/* Offset of element i in row-major order, in elements */
static inline int64_t element_at(const hz_tensor *t, int64_t i)
{
	int64_t at = 0;
	int d;

	for (d = t->ndim - 1; d >= 0; d--) {
		at += i % t->shape[d] * t->stride[d];
		i /= t->shape[d];
	}
	return at;
}

/*
 * An array of shape size[rank]. SPLIT: the first dimension becomes two if c->split divides it;
 * LEFT_OUT: it is 1 and left out.
 */
enum { LEFT_OUT, WHOLE, SPLIT };

static inline struct operand *make(struct tcase *c, int slot, int dtype, int lead, int rank,
				   const int64_t *size, int layout)
{
	struct operand *o = calloc(1, sizeof(*o));
	const int64_t element = (int64_t)hz_dtype_size(dtype);
	int64_t stride[3] = {0}, step = 1, high = 0, low = 0;
	int order[3] = {0, 1, 2}, d, at = 0;
	void *data;

	if (!o)
		bail("no memory for an operand");
	o->count = 1;
	o->t.dtype = (int16_t)dtype;
	if (layout & SWAPPED && rank > 1) {
		order[rank - 1] = rank - 2;
		order[rank - 2] = rank - 1;
	}
	for (d = rank - 1; d >= 0; d--) {
		const int k = order[d];

		stride[k] = step;
		step *= size[k] ? size[k] : 1;
		if (layout & GAPS && rnd_below(&rnd, 2))
			step += 1 + rnd_below(&rnd, 9);
		if (layout & BACKWARDS && rnd_below(&rnd, 2))
			stride[k] = -stride[k];
	}
	for (d = 0; d < rank; d++) {
		o->count *= size[d];
		*(stride[d] < 0 ? &low : &high) += stride[d] * (size[d] ? size[d] - 1 : 0);
		if (d == 0 && lead == LEFT_OUT)
			continue;
		if (d == 0 && lead == SPLIT && c->split > 1 && size[0] % c->split == 0 && size[0]) {
			o->t.shape[at] = c->split;
			o->t.stride[at++] = stride[0] * (size[0] / c->split);
			o->t.shape[at] = size[0] / c->split;
		} else {
			o->t.shape[at] = size[d];
		}
		o->t.stride[at++] = stride[d];
	}
	o->t.ndim = (int16_t)at;
	o->lowest = low;
	o->bytes = o->count ? (high - low + 1) * element : 0;
	o->skew = layout & SKEWED ? (size_t)(element * (1 + rnd_below(&rnd, 7))) : 0;
	o->image = image_new((size_t)o->bytes, o->skew, &data);
	o->v = calloc((size_t)o->count + 1, sizeof(*o->v));
	c->o[slot] = o;
	return o;
}

static inline void *element_of(const struct operand *o, unsigned char *image, int64_t i)
{
	return image + GUARD + o->skew +
	       (element_at(&o->t, i) - o->lowest) * (int64_t)hz_dtype_size(o->t.dtype);
}

/* Sets element i to v, rounded to the dtype. */
static inline void set(struct operand *o, int64_t i, double v)
{
	void *p = element_of(o, o->image, i);

	ref_put(o->t.dtype, p, 0, v);
	o->v[i] = ref_get(o->t.dtype, p, 0);
}

static inline void fill(struct operand *o, double mean, double sd)
{
	int64_t i;

	for (i = 0; i < o->count; i++)
		set(o, i, mean + sd * rnd_normal(&rnd));
}

/* |values|, or NULL */
static inline double *sizes_of(const struct operand *o)
{
	double *v = o ? calloc((size_t)o->count + 1, sizeof(*v)) : NULL;
	int64_t i;

	for (i = 0; o && i < o->count; i++)
		v[i] = fabs(o->v[i]);
	return v;
}

/* Makes an operand an output; accumulate: expected values begin with what is there. */
static inline struct operand *expect(struct operand *o, int accumulate)
{
	o->want = calloc((size_t)o->count + 1, sizeof(*o->want));
	o->bound = calloc((size_t)o->count + 1, sizeof(*o->bound));
	if (accumulate)
		memcpy(o->want, o->v, (size_t)o->count * sizeof(*o->want));
	return o;
}

/* Streams (n = 0: branch values), coefficients, weights; sd = 0: an output */
static inline struct operand *streams(struct tcase *c, int slot, int dtype, int64_t T, int n,
				      int64_t C, int layout, double sd)
{
	const int64_t size[] = {T, n, C}, flat[] = {T, C};
	struct operand *o = n ? make(c, slot, dtype, SPLIT, 3, size, layout)
			      : make(c, slot, dtype, SPLIT, 2, flat, layout & ~SWAPPED);

	if (sd > 0)
		fill(o, 0, sd);
	return sd > 0 ? o : expect(o, 0);
}

static inline struct operand *coefs(struct tcase *c, int slot, int64_t S, int n, int matrix,
				    int layout, double sd)
{
	const int64_t size[] = {S, n, n};
	const int lead = S != 1 || rnd_below(&rnd, 2) ? SPLIT : LEFT_OUT;
	struct operand *o = make(c, slot, HZ_F32, lead, matrix ? 3 : 2, size, layout);

	if (sd > 0)
		fill(o, 0, sd);
	return sd > 0 ? o : expect(o, 0);
}

static inline struct operand *weights(struct tcase *c, int slot, int64_t rows, int64_t columns,
				      double sd, int layout)
{
	const int64_t size[] = {rows, columns}, split[] = {rows, c->cn, columns / (c->cn + !c->cn)};
	struct operand *o = c->cn && has_columns(slot) ?
		make(c, slot, HZ_F32, WHOLE, 3, split, (layout & SKEWED) | SWAPPED) :
		make(c, slot, HZ_F32, WHOLE, 2, size, layout & SKEWED);

	if (sd > 0)
		fill(o, 0, sd);
	return sd > 0 ? o : expect(o, 0);
}

/* A vector of weights */
static inline struct operand *vector(struct tcase *c, int slot, int64_t count, double mean,
				     double sd, int layout)
{
	const int64_t split[] = {1, c->cn, count / (c->cn + !c->cn)};
	struct operand *o = c->cn && has_columns(slot) ?
		make(c, slot, HZ_F32, WHOLE, 3, split, (layout & SKEWED) | SWAPPED) :
		make(c, slot, HZ_F32, WHOLE, 1, &count, layout & SKEWED);

	if (sd > 0)
		fill(o, mean, sd);
	return sd > 0 ? o : expect(o, 0);
}

static inline void case_free(struct tcase *c)
{
	int i;

	for (i = 0; i < SLOTS; i++) {
		struct operand *o = c->o[i];

		if (!o)
			continue;
		free(o->image);
		free(o->v);
		free(o->want);
		free(o->bound);
		free(o->got);
		free(o);
	}
	memset(c, 0, sizeof(*c));
}

/* ---- Bounds ---------------------------------------------------------------------------------- */

/*
 * Bounds each element by `part` of the sum of magnitudes of its terms, which `bound` holds on
 * entry, plus the rounding to its dtype.
 */
static inline void bound_parts(struct operand *o, double part)
{
	int64_t i;

	for (i = 0; o && i < o->count; i++)
		o->bound[i] = part * o->bound[i] +
			      1.01 * ref_half_ulp(o->t.dtype,
						  fabs(o->want[i]) + part * o->bound[i]);
}

/* Bounds each element by `part` of the largest one, plus rounding and 1e-30. */
static inline void bound_flat(struct operand *o, double part)
{
	double most = 0;
	int64_t i;

	for (i = 0; o && i < o->count; i++)
		most = isfinite(o->want[i]) ? fmax(most, fabs(o->want[i])) : most;
	for (i = 0; o && i < o->count; i++)
		o->bound[i] = part * most + 1e-30 +
			      1.01 * ref_half_ulp(o->t.dtype, fabs(o->want[i]) + part * most);
}

/* ---- Running --------------------------------------------------------------------------------- */

static inline int compare(const struct dev *dev, const struct tcase *c, int slot,
			  unsigned char *got)
{
	const struct operand *o = c->o[slot];
	const size_t total = GUARD + o->skew + (size_t)o->bytes + GUARD;
	const size_t size = hz_dtype_size(o->t.dtype);
	unsigned char *expected = malloc(total);
	double error = 0, square = 0;
	int good = 1;
	int64_t i;

	if (!expected)
		bail("no memory for %zu bytes", total);
	memcpy(expected, o->image, total);
	for (i = 0; i < o->count && o->want; i++) {
		const double g = ref_get(o->t.dtype, element_of(o, got, i), 0), w = o->want[i];

		memcpy(element_of(o, expected, i), element_of(o, got, i), size);
		if (isfinite(w)) {
			error += (g - w) * (g - w);
			square += w * w;
		}
		if (isfinite(w) ? fabs(g - w) <= o->bound[i] : !isfinite(g))
			continue;
		if (good && tap_describe())
			diag("%s, %s: %s[%lld] of %lld is %.9g, must be %.9g within %.3g",
			     dev->name, c->name, slot_names[slot], (long long)i,
			     (long long)o->count, g, w, o->bound[i]);
		good = 0;
	}
	if (good && o->norm > 0 && !(error <= o->norm * o->norm * square)) {
		good = 0;
		if (tap_describe())
			diag("%s, %s: %s has a normalised error of %.3g, allowed %.3g", dev->name,
			     c->name, slot_names[slot], sqrt(error / square), o->norm);
	}
	if (memcmp(expected, got, total) != 0) {
		good = 0;
		for (i = 0; expected[i] == got[i]; i++)
			;
		if (tap_describe())
			diag("%s, %s: byte %lld of %s was written", dev->name, c->name,
			     (long long)i - GUARD, slot_names[slot]);
	}
	free(expected);
	return good;
}

/* Same ISA level, which names begin with; routes may differ in bits. */
static inline int same_level(const struct dev *a, const struct dev *b)
{
	const size_t length = strcspn(a->name, ",");

	return !a->ctx->any_forced && !b->ctx->any_forced &&
	       strncmp(a->name, b->name, length + 1) == 0;
}

static inline int upload(struct dev *dev, struct tcase *c)
{
	int i;

	for (i = 0; i < SLOTS; i++) {
		struct operand *o = c->o[i];

		if (!o)
			continue;
		o->area = area_new(dev, (size_t)o->bytes, o->skew);
		area_write(&o->area, o->image);
		o->t.device = dev->device;
		o->t.data = (char *)o->area.data - o->lowest * (int64_t)hz_dtype_size(o->t.dtype);
	}
	c->opts.gain = view(c, GAIN);
	c->opts.dgain = view(c, DGAIN);
	c->opts.norm = view(c, NORM);
	c->opts.dnorm = view(c, DNORM);
	c->opts.saved = view(c, SAVED);
	c->opts.p_in = view(c, P_IN);
	c->opts.dp_in = view(c, DP_IN);
	c->opts.alpha_q = view(c, ALPHA_Q);
	c->opts.alpha_a = view(c, ALPHA_A);
	c->opts.dalpha_q = view(c, DALPHA_Q);
	c->opts.dalpha_a = view(c, DALPHA_A);
	c->g = (hz_mhc_grads){
		.du = view(c, DU), .dp = view(c, DP), .dq = view(c, DQ), .da = view(c, DA),
		.dy = view(c, DY), .dx = view(c, DX), .dphi = view(c, DPHI),
		.dalpha = view(c, DALPHA), .dbias = view(c, DBIAS),
	};
	return 1;
}

static inline void unload(struct tcase *c)
{
	int i;

	for (i = 0; i < SLOTS; i++) {
		if (c->o[i])
			area_free(&c->o[i]->area);
	}
}

/* The call, with the workspace that it needs */
static inline int make_call(struct dev *dev, struct tcase *c)
{
	size_t bytes = 0;
	int status = RECORD(dev->ctx, c->call(dev->ctx, c), &bytes);

	if (status == HZ_OK)
		status = hz_reserve(dev->ctx, bytes);
	if (status == HZ_OK)
		status = c->call(dev->ctx, c);
	if (status == HZ_OK)
		status = hz_sync(dev->ctx);
	return status;
}

static inline int run_on(struct dev *dev, struct tcase *c, const struct dev *before)
{
	int status, good, i;

	upload(dev, c);
	status = make_call(dev, c);
	good = status == HZ_OK;
	if (!good && tap_describe())
		diag("%s, %s: %s: %s", dev->name, c->name, hz_strerror(status),
		     hz_errmsg(dev->ctx));
	for (i = 0; i < SLOTS && status == HZ_OK; i++) {
		struct operand *o = c->o[i];
		const size_t total = o ? GUARD + o->skew + (size_t)o->bytes + GUARD : 0;
		unsigned char *got;

		if (!o)
			continue;
		got = malloc(total);
		if (!got)
			bail("no memory for %zu bytes", total);
		area_read(&o->area, got);
		/* The same bits as before need no second comparison. */
		if (!o->got || memcmp(o->got, got, total) != 0)
			o->right = compare(dev, c, i, got);
		good &= o->right;
		if (o->got && before && same_level(before, dev) && !c->any_bits &&
		    memcmp(o->got, got, total) != 0) {
			good = 0;
			if (tap_describe())
				diag("%s, %s: the bits of %s are not those of %s", dev->name,
				     c->name, slot_names[i], before->name);
		}
		free(o->got);
		o->got = got;
	}
	unload(c);
	return good;
}

/* Runs a case on every context, twice on the first, and frees it. */
static inline int run_case(struct tcase *c)
{
	int good = run_on(&devs[0], c, NULL), i;

	for (i = 0; i < ndevs; i++)
		good &= run_on(&devs[i], c, &devs[i ? i - 1 : 0]);
	cases++;
	case_free(c);
	return good;
}

#endif
