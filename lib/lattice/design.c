/*
 * design.c - chooses a lattice quantizer for sample data and a bit budget
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Candidates are quantizers that hz_lattice_open() made. Each encodes a sample, and their errors
 * and rates are compared. The sample, and so the result, is the same on every machine.
 */
#include <config.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/lattice/lattice.h"
#include "lib/lattice/shaped.h"

static const char op[] = "lattice_design";

#define SAMPLE 49152		/* values: a multiple of 1 2 3 4 8 16 24 and 128 */
#define BETAS 40		/* steps of 5 % from the smallest sensible beta on */
#define GRID 32			/* scales that a bank is chosen from, 2^(1/8) apart */

struct search {
	struct hz_context *ctx;
	const hz_lattice_opts *want;
	double rate;
	float *x;			/* the sample */
	int64_t count;			/* number of values */
	double variance;
	float *error;			/* error of each block at each scale of a grid */
	hz_lattice_opts best;
	double bank[HZ_LATTICE_MAXBANKS];
	hz_lattice_report report;
	bool found, any;		/* any: some candidate is a valid quantizer */
	int refused;			/* why others failed: the last status, or HZ_OK */
};

/* ---- The sample ------------------------------------------------------------------------------ */

static double uniform(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return ((double)(*state >> 11) + 0.5) * 0x1p-53;
}

/* Box-Muller */
static void gaussian(float *x, int64_t count, double sigma)
{
	uint64_t state = 1;

	for (int64_t i = 0; i < count; i += 2) {
		const double r = sigma * sqrt(-2 * log(uniform(&state)));
		const double angle = 6.28318530717958647693 * uniform(&state);

		x[i] = (float)(r * cos(angle));
		x[i + 1] = (float)(r * sin(angle));
	}
}

/* Copies runs of 1536 values, spread over the rows of x. */
static int64_t take(const hz_tensor *t, float *x)
{
	const int64_t total = hz_tensor_count(t), run = 1536, n = t->shape[t->ndim - 1];
	const int64_t runs = SAMPLE / run;
	int64_t count = 0;

	for (int64_t r = 0; r < runs; r++) {
		const int64_t begin = total <= SAMPLE ? r * run : (total - run) / (runs - 1) * r;

		for (int64_t i = begin; i < begin + run && i < total; i++) {
			int64_t at = i / n, e = i % n * t->stride[t->ndim - 1];

			for (int d = t->ndim - 2; d >= 0; d--) {
				e += at % t->shape[d] * t->stride[d];
				at /= t->shape[d];
			}
			x[count++] = ((const float *)t->data)[e];
		}
	}
	return count;
}

/* ---- The error of a quantizer ---------------------------------------------------------------- */

/* v of a block of the sample; NaN and Inf count as 0. */
static void block_at(const struct search *s, const hz_lattice *l, int64_t block, float *x, float *v)
{
	const int d = l->rule.d;

	for (int i = 0; i < d; i++)
		x[i] = isfinite(s->x[block * d + i]) ? s->x[block * d + i] : 0;
	hzi_lattice_map(&l->rule, &l->matrices, x, v);
}

static double error_of(const hz_lattice *l, const float *x, const int32_t *g, int t)
{
	float sub[HZI_LATTICE_DIMS], y[HZI_LATTICE_DIMS];
	double sum = 0;

	hzi_lattice_sub(l, 0, sub);
	hzi_lattice_value(&l->rule, &l->matrices, g, sub, t, y);
	for (int i = 0; i < l->rule.d; i++)
		sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
	return sum;
}

/* Wraps a point that does not fit to the one that its digits encode. */
static void wrap(const hz_lattice *l, int32_t *g)
{
	const struct hzi_lattice_rule *r = &l->rule;
	int32_t b[HZI_LATTICE_DIMS], c[HZI_LATTICE_DIMS], p[HZI_LATTICE_DIMS] = {0}, weight = 1;

	for (int m = 0; m < r->levels; m++, weight *= r->q) {
		hzi_lattice_digits(r, g, b);
		hzi_lattice_leader(r, &l->matrices, b, c);
		for (int i = 0; i < r->embed; i++)
			p[i] += weight * c[i];
		hzi_lattice_parent(r, &l->matrices, g);
	}
	memcpy(g, p, sizeof(p));
}

static double entropy(const int64_t *histogram, int count, int64_t total)
{
	double h = 0;

	for (int t = 0; t < count; t++) {
		const double p = (double)histogram[t] / (double)total;

		if (histogram[t])
			h -= p * log2(p);
	}
	return h;
}

/* Chooses the scale of a group of blocks. */
static int group_t(const struct search *s, const hz_lattice *l, int64_t begin, int64_t count)
{
	static const uint8_t none[128];
	float x[HZI_LATTICE_DIMS], v[128];

	for (int64_t b = 0; b < count; b++)
		block_at(s, l, begin + b, x, v + b * l->rule.d);
	return hzi_lattice_group(&l->rule, &l->matrices, (int)count, v, none);
}

static void measure(const struct search *s, const hz_lattice *l, hz_lattice_report *out)
{
	const struct hzi_lattice_rule *r = &l->rule;
	const int64_t blocks = s->count / r->d;
	float x[HZI_LATTICE_DIMS], v[HZI_LATTICE_DIMS];
	int64_t histogram[HZI_LATTICE_SCALES] = {0}, over = 0, side = 0;
	int32_t g[HZI_LATTICE_DIMS];
	double sum = 0;
	int t = 0;

	for (int64_t b = 0; b < blocks; b++) {
		int missed;

		if (hzi_lattice_grouped(r)) {
			const int64_t left = blocks - b;

			if (b % r->group == 0) {
				t = group_t(s, l, b, left < r->group ? left : r->group);
				histogram[t]++;
				side++;
			}
			block_at(s, l, b, x, v);
			missed = hzi_lattice_at(r, &l->matrices, v, t, g);
		} else {
			block_at(s, l, b, x, v);
			missed = hzi_lattice_choose_any(r, &l->matrices, v, &t, g);
			histogram[t]++;
			side++;
		}
		if (missed && r->policy == HZ_LATTICE_NONE)
			wrap(l, g);
		over += missed;
		sum += error_of(l, x, g, t);
	}
	memset(out, 0, sizeof(*out));
	out->mse = sum / (double)(blocks * r->d);
	out->entropy_t = entropy(histogram, r->scales, side);
	out->rate = r->levels * log2(r->q) + out->entropy_t / (r->d * (double)r->group);
	out->overload = (double)over / (double)blocks;
	out->gap_db = -INFINITY;
	if (out->mse > 0)
		out->gap_db = 10 * log10(out->mse * exp2(2 * out->rate) / s->variance);
}

/* Whether a is the better of two: with a given rate the smaller error, otherwise the smaller gap */
static bool better(const struct search *s, const hz_lattice_report *a)
{
	if (s->rate > 0 && a->rate > s->rate)
		return false;
	if (!s->found)
		return true;
	return s->rate > 0 ? a->mse < s->report.mse : a->gap_db < s->report.gap_db;
}

/*
 * Opens a candidate. *l is NULL if it is invalid because its points are too large or z leaves no
 * block that fits.
 */
static int open_candidate(struct search *s, const hz_lattice_opts *o, hz_lattice **l)
{
	const int status = hz_lattice_open(s->ctx, l, o);

	s->any |= status == HZ_OK;
	if (status != HZ_EINVAL && status != HZ_ENOTSUP)
		return status;
	s->refused = status;
	return HZ_OK;
}

/*
 * Tries one quantizer; *cost, if not NULL, is what to minimize, and huge if the rate is out of
 * range.
 */
static int try(struct search *s, const hz_lattice_opts *o, double *cost)
{
	hz_lattice_report report;
	hz_lattice *l;

	if (cost)
		*cost = INFINITY;
	HZ_CHECK(open_candidate(s, o, &l));
	if (!l)
		return HZ_OK;
	measure(s, l, &report);
	hz_lattice_close(l);
	if (cost)
		*cost = s->rate == 0 ? report.gap_db : report.mse + (report.rate > s->rate ?
								     1e6 * s->variance : 0);
	if (!better(s, &report))
		return HZ_OK;
	s->best = *o;
	if (o->policy == HZ_LATTICE_BANK)
		memcpy(s->bank, o->bank, (size_t)o->banks * sizeof(*s->bank));
	s->report = report;
	s->found = true;
	return HZ_OK;
}

/* ---- Banks ----------------------------------------------------------------------------------- */

/*
 * Errors of the groups of blocks that share a scale, at each scale of a grid, relative to the
 * variance: the error where all blocks of a group fit, otherwise minus the error of CLIP, which
 * counts only for the largest scale of a bank. *there is false if there is no such quantizer.
 */
static int grid_errors(struct search *s, const hz_lattice_opts *o, int64_t per, const double *grid,
		       bool *there)
{
	*there = true;
	for (int k = 0; k < GRID; k++) {
		hz_lattice_opts one = *o;
		float x[HZI_LATTICE_DIMS], v[HZI_LATTICE_DIMS];
		int32_t g[HZI_LATTICE_DIMS] = {0};
		double error = 0;
		bool clipped = false;
		hz_lattice *l;

		one.policy = HZ_LATTICE_CLIP;
		one.group = one.banks = 0;
		one.bank = NULL;
		one.beta = grid[k];
		HZ_CHECK(open_candidate(s, &one, &l));
		if (!l) {
			*there = false;
			return HZ_OK;
		}
		for (int64_t b = 0; b < s->count / l->rule.d; b++) {
			if (b % per == 0) {
				error = 0;
				clipped = false;
			}
			block_at(s, l, b, x, v);
			clipped |= hzi_lattice_at(&l->rule, &l->matrices, v, 0, g);
			error += error_of(l, x, g, 0) / s->variance;
			s->error[b / per * GRID + k] = (float)(clipped ? -error - 1e-30 : error);
		}
		hz_lattice_close(l);
	}
	return HZ_OK;
}

/* The error of all groups of blocks with a set of scales */
static double set_error(const struct search *s, int64_t groups, const int *set, int count)
{
	int largest = set[0];
	double sum = 0;

	for (int i = 1; i < count; i++)
		largest = set[i] > largest ? set[i] : largest;
	for (int64_t b = 0; b < groups; b++) {
		float least = -1;

		for (int i = 0; i < count; i++) {
			const float e = s->error[b * GRID + set[i]];

			if (e >= 0 && (least < 0 || e < least))
				least = e;
		}
		sum += (double)(least >= 0 ? least : -s->error[b * GRID + largest]);
	}
	return sum;
}

/*
 * Adds scales one by one, each the best beside the previous ones, then exchanges scales while that
 * helps.
 */
static int try_bank(struct search *s, hz_lattice_opts *o, double least)
{
	const int d = o->kind == HZ_LATTICE_A2 ? 2 : o->kind == HZ_LATTICE_E8 ? 8 : o->dim;
	const int64_t blocks = s->count / d, per = o->group ? o->group / d : 1;
	const int64_t groups = (blocks + per - 1) / per;
	double grid[GRID], bank[HZ_LATTICE_MAXBANKS], best = 0;
	int set[HZ_LATTICE_MAXBANKS];
	bool again = true, there;

	for (int k = 0; k < GRID; k++)
		grid[k] = least * exp2(k / 8.0);
	HZ_CHECK(grid_errors(s, o, per, grid, &there));
	if (!there)
		return HZ_OK;
	for (int i = 0; i < o->banks; i++) {
		int choice = 0;

		for (int k = 0; k < GRID; k++) {
			double e;

			set[i] = k;
			e = set_error(s, groups, set, i + 1);
			if (k == 0 || e < best) {
				best = e;
				choice = k;
			}
		}
		set[i] = choice;
	}
	while (again) {
		again = false;
		for (int i = 0; i < o->banks; i++) {
			for (int k = 0; k < GRID; k++) {
				const int was = set[i];
				double e;

				set[i] = k;
				e = set_error(s, groups, set, o->banks);
				if (e < best) {
					best = e;
					again = true;
				} else {
					set[i] = was;
				}
			}
		}
	}
	for (int i = 0; i < o->banks; i++)
		bank[i] = grid[set[i]];
	o->bank = bank;
	o->beta = 1;
	return try(s, o, NULL);
}

/* ---- The search ------------------------------------------------------------------------------ */

/* Second moments per dimension of the Voronoi cell of a lattice: the initial guess for beta */
static double second_moment(int kind, int d)
{
	switch (kind) {
	case HZ_LATTICE_A2:
		return 0.069444;
	case HZ_LATTICE_D:
		return 0.0766032 * exp2(2.0 / d);
	case HZ_LATTICE_E8:
		return 929.0 / 12960;
	default:
		return 1.0 / 12;
	}
}

/* beta = least (1 + k / 20): every fifth k, then those around the best of these */
static int search_beta(struct search *s, hz_lattice_opts *o, double least, int count)
{
	double cost, lowest = 0;
	int best = 0;

	for (int k = 0; k < count; k += 5) {
		o->beta = least * (1 + 0.05 * k);
		HZ_CHECK(try(s, o, &cost));
		if (k == 0 || cost < lowest) {
			lowest = cost;
			best = k;
		}
	}
	for (int k = best > 4 ? best - 4 : 0; k <= best + 4; k++) {
		o->beta = least * (1 + 0.05 * k);
		if (k != best)
			HZ_CHECK(try(s, o, NULL));
	}
	return HZ_OK;
}

/* Offsets and scales for one lattice, q and M */
static int search_scales(struct search *s, hz_lattice_opts *o)
{
	const int d = o->dim;
	const double sigma = sqrt(s->variance);
	const double least = sigma * pow(o->q, -o->levels) / sqrt(second_moment(o->kind, d)) *
			     sqrt(d / (d + 2.0));
	const uint32_t flags = o->flags;

	for (int center = 0; center < (o->offset ? 1 : 2); center++) {
		o->flags = flags | (center ? HZ_LATTICE_CENTER : 0);
		if (o->policy == HZ_LATTICE_BANK) {
			HZ_CHECK(try_bank(s, o, 0.6 * least));
			continue;
		}
		if (o->policy == HZ_LATTICE_GROUP) {
			/* T finds the scale: beta sets its step and its first value. */
			for (int k = 0; k < 16; k++) {
				o->beta = 0.3 * least * exp2(k * 9 / 64.0);
				HZ_CHECK(try(s, o, NULL));
			}
			continue;
		}
		HZ_CHECK(
			search_beta(s, o, least, o->policy == HZ_LATTICE_CLIP ? 2 * BETAS : BETAS));
	}
	return HZ_OK;
}

/* Where q or levels are 0: all that fit the rate with less than a bit to spare */
static int search_sizes(struct search *s, hz_lattice_opts *o)
{
	static const int radix[] = {2, 3, 4, 5, 6, 8, 10, 12, 14, 16};
	const hz_lattice_opts *w = s->want;

	for (size_t i = 0; i < sizeof(radix) / sizeof(*radix); i++) {
		o->q = w->q ? w->q : radix[i];
		for (int m = 1; m <= 8; m++) {
			const double bits = m * log2(o->q);

			o->levels = w->levels ? w->levels : m;
			if ((o->levels == m) && bits <= s->rate && bits > s->rate - 1)
				HZ_CHECK(search_scales(s, o));
		}
		if (w->q)
			break;
	}
	return HZ_OK;
}

static int search_lattice(struct search *s, int kind, int dim)
{
	hz_lattice_opts o = *s->want;

	o.kind = kind;
	o.dim = dim;
	if (o.group % dim)
		return HZ_OK;
	return o.q && o.levels ? search_scales(s, &o) : search_sizes(s, &o);
}

static int search(struct search *s)
{
	const hz_lattice_opts *w = s->want;

	switch (w->kind) {
	case 0:
		HZ_CHECK(search_lattice(s, HZ_LATTICE_Z, 1));
		HZ_CHECK(search_lattice(s, HZ_LATTICE_A2, 2));
		HZ_CHECK(search_lattice(s, HZ_LATTICE_D, 4));
		return search_lattice(s, HZ_LATTICE_E8, 8);
	case HZ_LATTICE_A2:
		return search_lattice(s, w->kind, 2);
	case HZ_LATTICE_E8:
		return search_lattice(s, w->kind, 8);
	default:
		return search_lattice(s, w->kind,
				      w->dim		      ? w->dim :
				      w->kind == HZ_LATTICE_D ? 4 :
								1);
	}
}

/* ---- Presets --------------------------------------------------------------------------------- */

#define ROW_VALUES 32768		/* of a row, at most */
#define PRESET_VALUES 98304		/* of all rows of the sample */

/*
 * Rows of the sample, as they are and after the Hadamard transform, divided by their root mean
 * square: spread over x, the first that of the most power. square: mean squares
 */
struct rows {
	float *x[2];
	double *square;
	int64_t rows, n, count;		/* of x: rows, values of one; rows of the sample */
	int64_t top;
	double power;			/* the mean square of x */
};

/* Element 0 of a row */
static const float *row_of(const hz_tensor *t, int64_t row)
{
	const float *x = t->data;

	for (int d = t->ndim - 2; d >= 0; d--) {
		x += row % t->shape[d] * t->stride[d];
		row /= t->shape[d];
	}
	return x;
}

static double finite_of(float x)
{
	return isfinite(x) ? (double)x : 0;
}

/* hz_hadamard() by default: the lengths are the binary digits of n, the largest first */
static void rotate(float *x, int64_t n)
{
	for (int64_t size = (int64_t)1 << 40; size > 0; size /= 2) {
		const float scale = (float)(1 / sqrt((double)size));

		if (!(n & size))
			continue;
		for (int64_t half = 1; half < size; half *= 2) {
			for (int64_t i = 0; i < size; i++) {
				const float a = x[i], b = x[i | half];

				if (i & half)
					continue;
				x[i] = a + b;
				x[i | half] = a - b;
			}
		}
		for (int64_t i = 0; i < size; i++)
			x[i] *= scale;
		x += size;
	}
}

/* Row `row` of x, or Gaussian values, as row `at` of the sample */
static void take_row(struct rows *r, const hz_tensor *x, int64_t row, int64_t at)
{
	const int64_t n = r->n < ROW_VALUES ? r->n : ROW_VALUES;
	float *const to = r->x[0] + at * n, *const rotated = r->x[1] + at * n;
	double sum = 0;

	if (x) {
		const float *const from = row_of(x, row);
		const int64_t step = x->stride[x->ndim - 1];

		for (int64_t i = 0; i < n; i++)
			to[i] = (float)finite_of(from[i * step]);
	} else {
		gaussian(to, n, 1);
	}
	for (int64_t i = 0; i < n; i++)
		sum += (double)to[i] * (double)to[i];
	r->square[at] = sum / (double)n;
	for (int64_t i = 0; i < n; i++) {
		to[i] = sum > 0 ? (float)((double)to[i] / sqrt(r->square[at])) : 0;
		rotated[i] = to[i];
	}
	rotate(rotated, n);
}

static void take_rows(struct rows *r, const hz_tensor *x, double sigma)
{
	double most = -1, sum = 0;

	for (int64_t row = 0; row < r->rows && x; row++) {
		const float *const from = row_of(x, row);
		const int64_t step = x->stride[x->ndim - 1];
		double square = 0;

		for (int64_t i = 0; i < r->n; i++)
			square += finite_of(from[i * step]) * finite_of(from[i * step]);
		if (square > most) {
			most = square;
			r->top = row;
		}
		sum += square;
	}
	r->power = x ? sum / ((double)r->rows * (double)r->n) : sigma * sigma;
	take_row(r, x, r->top, 0);
	for (int64_t i = 1; i < r->count; i++) {
		const int64_t row = (i - 1) * (r->rows - 1) / (r->count - 1);

		take_row(r, x, row + (row >= r->top), i);
	}
}

/*
 * The error of x by that of the sample: rows other than the one of the most power count for all of
 * them.
 */
static void measure_rows(struct search *s, const struct rows *r, const hz_lattice *l, int rotated,
			 hz_lattice_report *out)
{
	const int64_t n = r->n < ROW_VALUES ? r->n : ROW_VALUES;
	double sums[2] = {0}, squares[2] = {0};
	hz_lattice_info info;
	hz_lattice_report row, mean = {.rotate = rotated};

	hz_lattice_get_info(l, &info);
	for (int64_t i = 0; i < r->count; i++) {
		s->x = r->x[rotated] + i * n;
		s->count = n;
		measure(s, l, &row);
		sums[i > 0] += row.mse * r->square[i];
		squares[i > 0] += r->square[i];
		mean.overload += row.overload / (double)r->count;
		mean.entropy_t += row.entropy_t / (double)r->count;
	}
	mean.mse = sums[0] / (double)r->rows;
	if (squares[1] > 0)
		mean.mse += sums[1] / squares[1] * fmax(r->power - squares[0] / (double)r->rows, 0);
	mean.rate = info.bits;
	mean.gap_db = mean.mse > 0 ? 10 * log10(mean.mse * exp2(2 * mean.rate) / r->power) :
				     -INFINITY;
	*out = mean;
}

/* Bits a value without the scale of a row, which its length says */
static double bits_of(const hz_lattice *l)
{
	hz_lattice_info info;

	hz_lattice_get_info(l, &info);
	return info.bits - 32.0 / 4096;
}

/* The most bits that a preset has within the rate; 0: none */
static int most_bits(struct search *s, double *most)
{
	*most = 0;
	for (int p = 1; p <= HZ_LATTICE_PRESET_D4_4_50; p++) {
		const hz_lattice_opts o = {.preset = p};
		hz_lattice *l;

		HZ_CHECK(hz_lattice_open(s->ctx, &l, &o));
		if (bits_of(l) <= s->rate)
			*most = fmax(*most, bits_of(l));
		hz_lattice_close(l);
	}
	return HZ_OK;
}

static int try_presets(struct search *s, const struct rows *r, bool given)
{
	double most = 0;

	if (!s->want->preset)
		HZ_CHECK(most_bits(s, &most));
	s->variance = 1;
	for (int k = 0; k < 2 * HZ_LATTICE_PRESET_D4_4_50; k++) {
		const hz_lattice_opts o = {.preset = 1 + k / 2,
					   .flags = k % 2 ? HZ_LATTICE_WIDE : 0};
		hz_lattice_report report;
		hz_lattice *l;

		if (s->want->preset && s->want->preset != o.preset)
			continue;
		HZ_CHECK(hz_lattice_open(s->ctx, &l, &o));
		for (int rotated = 0; rotated < (given ? 2 : 1) &&
		     (s->want->preset || bits_of(l) == most); rotated++) {
			measure_rows(s, r, l, rotated, &report);
			/* A rotation takes time: it is for more than 0.1 dB. */
			if (s->found && !(report.mse * (rotated ? 1.023 : 1) < s->report.mse))
				continue;
			s->found = true;
			s->best = o;
			s->report = report;
		}
		hz_lattice_close(l);
	}
	return HZ_OK;
}

static int search_presets(struct search *s, const hz_tensor *x, double sigma)
{
	struct rows r = {.rows = 1, .n = ROW_VALUES};
	int64_t n;
	size_t bytes;
	int status;

	if (x) {
		r.n = x->shape[x->ndim - 1];
		r.rows = hz_tensor_count(x) / r.n;
	}
	n = r.n < ROW_VALUES ? r.n : ROW_VALUES;
	r.count = PRESET_VALUES / n < r.rows ? PRESET_VALUES / n : r.rows;
	bytes = (size_t)r.count * sizeof(double) + 2 * (size_t)(r.count * n) * sizeof(float);
	r.square = hzi_malloc(s->ctx, bytes, 64);
	if (!r.square)
		return hzi_fail(s->ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", op, bytes);
	r.x[0] = (float *)(r.square + r.count);
	r.x[1] = r.x[0] + r.count * n;
	take_rows(&r, x, sigma);
	status = r.power > 0 ? try_presets(s, &r, x != NULL) :
		 hzi_fail(s->ctx, HZ_EINVAL, "%s: x is 0, NaN or Inf everywhere", op);
	if (status == HZ_OK && !s->found)
		status = hzi_fail(s->ctx, HZ_ENOTSUP, "%s: rate is %g bits a value, which no preset "
				  "reaches: give want->policy or want->kind for a search", op,
				  s->rate);
	hzi_mfree(s->ctx, r.square, bytes);
	return status;
}

/* ---- The call -------------------------------------------------------------------------------- */

/* Whether presets are wanted, not a search */
static bool wants_preset(const hz_lattice_opts *w)
{
	return w->preset || (!w->kind && !w->q && !w->levels && !w->policy && !w->shaping &&
			     !w->dither && !w->offset);
}

/* Data is on the host, whatever device the context has. */
static int check_data(struct hz_context *ctx, const hz_tensor *x)
{
	hz_tensor here = *x;

	if (x->device == HZ_CPU)
		here.device = ctx->device;
	else if (x->device == ctx->device)
		return hzi_fail(ctx, HZ_EDEVICE, "%s: x is on the GPU, must be on the host", op);
	HZ_CHECK(hzi_check(ctx, op, "x", &here, (int[]){HZ_F32, 0}, false));
	if (x->ndim < 1 || hz_tensor_count(x) < HZ_LATTICE_MAXDIM * 16)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: x has %lld values, must have %d at least",
				op, (long long)hz_tensor_count(x), HZ_LATTICE_MAXDIM * 16);
	return HZ_OK;
}

/* Options beside want->preset, or without a policy or a lattice, would not count. */
static int check_preset(struct hz_context *ctx, const hz_lattice_opts *w)
{
	const char *const extra = w->kind || w->q || w->levels ? "kind, q or levels" :
				  w->policy ? "policy" : w->group || w->banks ? "group or banks" :
				  w->alpha != 0 || w->beta != 0 || w->bank ? "alpha, beta or bank" :
				  w->dither || w->offset ? "dither or offset" :
				  w->flags & ~HZ_LATTICE_WIDE ? "flags" : NULL;

	if (!extra)
		return HZ_OK;
	if (w->preset)
		return hzi_fail(ctx, HZ_EINVAL, "%s: want->preset is %d, beside which %s must not be "
				"set", op, w->preset, extra);
	return hzi_fail(ctx, HZ_EINVAL, "%s: want has %s, but neither a policy nor kind, q or levels: "
			"set want->policy or want->kind for a search, or nothing for a preset", op,
			extra);
}

static int check_group(struct hz_context *ctx, const hz_lattice_opts *w)
{
	const int d = w->kind == HZ_LATTICE_E8 ? 8 : w->kind == HZ_LATTICE_A2 ? 2 :
		      w->dim > 0 ? w->dim : w->kind == HZ_LATTICE_D ? 4 : 1;

	if (w->policy != HZ_LATTICE_GROUP && w->policy != HZ_LATTICE_BANK)
		return w->group ? hzi_fail(ctx, HZ_EINVAL,
					   "%s: want->group is %d, must be 0 unless want->policy is "
					   "HZ_LATTICE_GROUP or HZ_LATTICE_BANK", op, w->group) :
				  HZ_OK;
	if ((w->group || w->policy == HZ_LATTICE_GROUP) && (w->group < 8 || w->group > 128))
		return hzi_fail(ctx, HZ_EINVAL, "%s: want->group is %d, must be 8 to 128", op,
				w->group);
	return w->group % d ? hzi_fail(ctx, HZ_EINVAL,
				       "%s: want->group is %d, must be a multiple of %d", op,
				       w->group, d) :
			      HZ_OK;
}

/* What hz_lattice_open() said of every candidate, in terms of want */
static int refuse_want(struct hz_context *ctx, int status)
{
	static const char from[] = "opts->", to[] = "want->";
	char why[HZI_ERRMSG_BYTES];
	const char *sentence = strstr(ctx->errmsg, ": ");

	snprintf(why, sizeof(why), "%s", sentence ? sentence + 2 : ctx->errmsg);
	for (char *p = why; (p = strstr(p, from)) != NULL;)
		memcpy(p, to, strlen(to));
	return hzi_fail(ctx, status, "%s: %s", op, why);
}

static int check_want(struct hz_context *ctx, const hz_lattice_opts *w, double rate, double sigma,
		      const hz_tensor *x)
{
	HZ_CHECK(hzi_check_reserved(ctx, op, w->reserved, 4));
	if (w->kind == HZ_LATTICE_BASIS || w->transform)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: want->%s: the search is over named lattices",
				op, w->transform ? "transform" : "kind");
	if (!(rate >= 0) || !isfinite(rate))
		return hzi_fail(ctx, HZ_EINVAL, "%s: rate is %g, must be 0 or positive", op, rate);
	if (w->preset < 0 || w->preset > HZ_LATTICE_PRESET_D4_4_50)
		return hzi_fail(ctx, HZ_EINVAL, "%s: want->preset is %d, must be 0 to %d", op,
				w->preset, HZ_LATTICE_PRESET_D4_4_50);
	if (w->shaping)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"%s: want->shaping is %d: such codes are not searched, give "
				"want->preset or none of kind, q, levels and policy", op,
				w->shaping);
	if (w->policy < HZ_LATTICE_NONE || w->policy > HZ_LATTICE_GROUP)
		return hzi_fail(ctx, HZ_EINVAL, "%s: want->policy is %d, must be %d to %d", op,
				w->policy, HZ_LATTICE_NONE, HZ_LATTICE_GROUP);
	if (w->kind < 0 || w->kind > HZ_LATTICE_BASIS)
		return hzi_fail(ctx, HZ_EINVAL, "%s: want->kind is %d, must be 0 to %d", op, w->kind,
				HZ_LATTICE_E8);
	if (w->dim && !w->kind)
		return hzi_fail(ctx, HZ_EINVAL, "%s: want->dim is %d, but want->kind is 0: set it, or "
				"dim to 0", op, w->dim);
	if (wants_preset(w))
		HZ_CHECK(check_preset(ctx, w));
	else
		HZ_CHECK(check_group(ctx, w));
	HZ_CHECK(hzi_lattice_check_policy(ctx, op, "want", w));
	if (rate == 0 && !w->preset && (!w->kind || !w->q || !w->levels))
		return hzi_fail(ctx, HZ_EINVAL,
				"%s: rate is 0, which needs want->preset, or want->kind, q and "
				"levels", op);
	if (!x && !(sigma >= (double)FLT_MIN && sigma <= (double)FLT_MAX))
		return hzi_fail(ctx, HZ_EINVAL, "%s: sigma is %g, must be positive and a normal "
				"number of f32", op, sigma);
	if (x)
		HZ_CHECK(check_data(ctx, x));
	if (w->policy == HZ_LATTICE_BANK && (w->banks < 1 || w->banks > HZ_LATTICE_MAXBANKS))
		return hzi_fail(ctx, HZ_EINVAL, "%s: want->banks is %d, must be 1 to %d", op,
				w->banks, HZ_LATTICE_MAXBANKS);
	return HZ_OK;
}

int hz_lattice_design(hz_context *ctx, const hz_lattice_opts *want, double rate, double sigma,
		      const hz_tensor *x, hz_lattice_opts *found, double bank[16],
		      hz_lattice_report *report)
{
	static const hz_lattice_opts zeroed;
	const size_t x_bytes = SAMPLE * sizeof(float), error_bytes = x_bytes * GRID;
	struct search s = {.ctx = ctx, .want = want ? want : &zeroed, .rate = rate};
	char before[HZI_ERRMSG_BYTES];
	int status;

	HZI_ENTER(ctx, op);
	want = s.want;
	memcpy(before, ctx->errmsg, sizeof(before));
	if (!found)
		return hzi_fail(ctx, HZ_EINVAL, "%s: found is NULL", op);
	HZ_CHECK(check_want(ctx, want, rate, sigma, x));
	if (want->policy == HZ_LATTICE_BANK && bank == NULL)
		return hzi_fail(ctx, HZ_EINVAL, "%s: bank is NULL, must have room for %d numbers",
				op, HZ_LATTICE_MAXBANKS);
	if (ctx->recording)
		return HZ_OK;
	if (wants_preset(want)) {
		HZ_CHECK(search_presets(&s, x, sigma));
		memcpy(ctx->errmsg, before, sizeof(before));
		*found = s.best;
		if (report)
			*report = s.report;
		return HZ_OK;
	}
	s.x = hzi_malloc(ctx, x_bytes, 64);
	if (want->policy == HZ_LATTICE_BANK)
		s.error = hzi_malloc(ctx, error_bytes, 64);
	if (!s.x || (want->policy == HZ_LATTICE_BANK && !s.error)) {
		status = hzi_fail(ctx, HZ_ENOMEM, "%s: no memory for %zu bytes", op,
				  s.x ? error_bytes : x_bytes);
		goto out;
	}
	s.count = SAMPLE;
	if (x)
		s.count = take(x, s.x);
	else
		gaussian(s.x, SAMPLE, sigma);
	for (int64_t i = 0; i < s.count; i++)
		s.variance += isfinite(s.x[i]) ? (double)s.x[i] * (double)s.x[i] : 0;
	s.variance /= (double)s.count;
	if (!(s.variance > 0)) {
		status = hzi_fail(ctx, HZ_EINVAL, "%s: x is 0, NaN or Inf everywhere", op);
		goto out;
	}
	status = search(&s);
	if (status == HZ_OK && !s.found)
		status = s.refused && !s.any ? refuse_want(ctx, s.refused) :
			 hzi_fail(ctx, HZ_ENOTSUP, "%s: rate is %g bits a value, which no "
				  "quantizer of this kind, q and levels reaches", op, rate);
	if (status != HZ_OK)
		goto out;
	/* Candidates that failed leave no message. */
	memcpy(ctx->errmsg, before, sizeof(before));
	*found = s.best;
	if (s.best.policy == HZ_LATTICE_BANK) {
		memcpy(bank, s.bank, (size_t)s.best.banks * sizeof(*bank));
		found->bank = bank;
	}
	if (report)
		*report = s.report;
out:
	if (s.x)
		hzi_mfree(ctx, s.x, x_bytes);
	if (s.error)
		hzi_mfree(ctx, s.error, error_bytes);
	return status;
}
