/*
 * batchnorm.c - normalization, pooling, dropout and initialization of quaternions against
 * definitions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "t/quat_layer/quat_layer.h"

#define INIT_SUM -2266522686175271010	/* of test_init(), on every device */

/* ---- Definitions ----------------------------------------------------------------------------- */

static int upper(int r, int c)
{
	return r > c ? upper(c, r) : 4 * r - r * (r - 1) / 2 + c - r;
}

static void norm_ref(struct model *m)
{
	int64_t c, i, k;
	int r, s;

	for (c = 0; c < m->n; c++) {
		const int64_t own = m->ci ? c % m->ci : c;
		double mean[4] = { 0 }, v[16] = { 0 }, l[16] = { 0 }, var = 0;

		for (i = 0; i < m->batch; i++) {
			for (r = 0; r < 4; r++)
				mean[r] += m->x[4 * (i * m->n + c) + r] / (double)m->batch;
		}
		for (i = 0; i < m->batch; i++) {
			const double *x = m->x + 4 * (i * m->n + c);

			for (k = 0; k < 16; k++)
				v[k] += (x[k / 4] - mean[k / 4]) * (x[k % 4] - mean[k % 4]) /
					(double)m->batch;
		}
		var = v[0] + v[5] + v[10] + v[15];
		if (m->eval) {
			memcpy(mean, m->mean + 4 * c, sizeof(mean));
			for (k = 0; k < 16; k++)
				v[k] = m->whiten ? m->var[10 * c + upper((int)k / 4, (int)k % 4)]
						 : 0;
			var = m->whiten ? 0 : m->var[c];
		}
		for (r = 0; r < 4; r++) {
			for (s = 0; s <= r; s++) {
				double t = v[4 * r + s] + (r == s ? m->eps : 0);

				for (k = 0; k < s; k++)
					t -= l[4 * r + k] * l[4 * s + k];
				l[4 * r + s] = r == s ? sqrt(t) : t / l[5 * s];
			}
		}
		for (i = 0; i < m->batch; i++) {
			const double *x = m->x + 4 * (i * m->n + c);
			double *y = m->y + 4 * (i * m->n + c), z[4];

			for (r = 0; r < 4; r++) {
				z[r] = x[r] - mean[r];
				if (!m->whiten) {
					z[r] /= sqrt(var + m->eps);
					continue;
				}
				for (k = 0; k < r; k++)
					z[r] -= l[4 * r + k] * z[k];
				z[r] /= l[5 * r];
			}
			for (r = 0; r < 4; r++) {
				y[r] = m->beta ? m->beta[4 * own + r] : 0;
				if (!m->gamma || !m->whiten)
					y[r] += (m->gamma ? m->gamma[own] : 1) * z[r];
				for (s = 0; s < 4 && m->gamma && m->whiten; s++)
					y[r] += m->gamma[10 * own + upper(r, s)] * z[s];
			}
		}
	}
}

static void pool_ref(struct model *m)
{
	int64_t smalls = m->small[0] * m->small[1] * m->small[2], i, s, t, c, k;
	int64_t taps = m->taps[0] * m->taps[1] * m->taps[2];
	int64_t bigs = m->big[0] * m->big[1] * m->big[2];
	int e;

	for (i = 0; i < m->batch; i++) {
		for (s = 0; s < smalls; s++) {
			for (c = 0; c < m->ci; c++) {
				double *y = m->y + 4 * ((i * smalls + s) * m->ci + c), sum[4] = {0};
				double best = -1;
				int64_t count = 0;

				for (t = 0; t < taps; t++) {
					int64_t at[3], rs = s, rt = t;
					int d, inside = 1;

					for (d = 2; d >= 0; d--) {
						at[d] = rs % m->small[d] * m->step[d] +
							rt % m->taps[d] - m->pad[d];
						rs /= m->small[d];
						rt /= m->taps[d];
						inside &= at[d] >= 0 && at[d] < m->big[d];
					}
					if (!inside)
						continue;
					k = (at[0] * m->big[1] + at[1]) * m->big[2] + at[2];
					const double *x = m->x + 4 * ((i * bigs + k) * m->ci + c);
					count++;
					for (e = 0; e < 4; e++)
						sum[e] += x[e];
					if (norm_of(x) > best) {
						best = norm_of(x);
						if (!m->average)
							memcpy(y, x, 4 * sizeof(*y));
						m->index[(i * smalls + s) * m->ci + c] = (double)k;
					}
				}
				for (e = 0; e < 4 && m->average; e++)
					y[e] = sum[e] / (double)count;
			}
		}
	}
}

/* ---- Normalization --------------------------------------------------------------------------- */

static int norm_case(struct dev *dev, int dtype, int whiten, int eval, int params)
{
	int64_t shape[5], ps[2], all[6], channels, batch = 1, own;
	int ndim = 1 + (int)rnd_below(&rnd, 4), xyzw = (int)rnd_below(&rnd, 2), good = 1, d;
	int p_type = dtype == HZ_F64 ? HZ_F64 : HZ_F32, columns = whiten ? 10 : 1;
	int sum = rnd_below(&rnd, 2) ? HZ_QUAT_ACCUMULATE : 0;
	struct tensor x, y, dy, dx, gamma = { 0 }, beta, dgamma, dbeta, rm, rv, saved;
	struct model ref = { .forward = norm_ref, .whiten = whiten, .eval = eval, .eps = 1e-3 };
	/* Of 0 the running values keep all their bits; 0.1 is the default. */
	const double momenta[] = { 0.25, 0, 0.1, 1 }, momentum = momenta[rnd_below(&rnd, 4)];
	const int per_step = ndim > 1 && rnd_below(&rnd, 3) == 0, first = per_step ? 1 : ndim;
	hz_quat_batchnorm_opts o = { .eps = 1e-3, .momentum = momentum == 0.1 ? 0 : momentum,
				     .given = HZ_QUAT_BATCHNORM_GIVEN_EPS |
					      (momentum == 0.1 ? 0 :
					       HZ_QUAT_BATCHNORM_GIVEN_MOMENTUM),
				     .flags = (xyzw ? HZ_QUAT_XYZW : 0) |
					      (whiten ? HZ_QUAT_WHITEN : 0) |
					      (eval ? HZ_QUAT_EVAL : 0) |
					      (per_step ? HZ_QUAT_PER_STEP : 0) };
	double *old_g, *old_b, *old_m, *old_v;
	int64_t i, c;

	for (d = 0; d < ndim; d++) {
		shape[d] = 2 + rnd_below(&rnd, ndim > 2 ? 3 : 9);
		batch *= d < first ? shape[d] : 1;
	}
	if (whiten && batch < 12) {
		batch = batch / shape[0] * 12;
		shape[0] = 12;
	}
	own = channels = shape[ndim] = 1 + rnd_below(&rnd, 5);
	for (d = first; d < ndim; d++)
		channels *= shape[d];
	memcpy(all, shape + first, (size_t)(ndim + 1 - first) * sizeof(*all));
	ps[0] = own;
	ps[1] = columns;
	x = quats(dev, dtype, ndim + 1, shape, layout(), xyzw, 2);
	y = quats(dev, dtype, ndim + 1, shape, output_layout(), xyzw, 0);
	dy = quats(dev, dtype, ndim + 1, shape, layout(), xyzw, 1);
	dx = quats(dev, dtype, ndim + 1, shape, output_layout(), xyzw, 0);
	gamma = make(dev, p_type, whiten ? 2 : 1, ps, AOS, 0, 0, 1);
	dgamma = make(dev, p_type, whiten ? 2 : 1, ps, AOS, 0, 0, 1);
	all[ndim + 1 - first] = columns;
	rv = make(dev, p_type, ndim + 1 - first + (whiten ? 1 : 0), all, AOS, 0, 0, 1);
	for (i = 0; i < rv.n; i++) {
		int place_of = (int)(i % 10), diagonal = place_of == 0 || place_of == 4 ||
							  place_of == 7 || place_of == 9;

		rv.v[i] = !whiten || diagonal ? 2 + fabs(rv.v[i]) : rv.v[i] / 8;
	}
	upload(&rv, rv.v);
	beta = quats(dev, p_type, 1, &own, AOS, xyzw, 1);
	dbeta = quats(dev, p_type, 1, &own, AOS, xyzw, 1);
	rm = quats(dev, p_type, ndim + 1 - first, shape + first, AOS, xyzw, 1);
	all[ndim + 1 - first] = 14;
	saved = make(dev, p_type, ndim + 2 - first, all, AOS, 0, 0, 0);
	o.running_mean = &rm.view;
	o.running_var = &rv.view;
	o.saved = &saved.view;
	ref.n = channels;
	ref.ci = own;
	ref.batch = batch;
	ref.x = x.v;
	ref.gamma = params ? gamma.v : NULL;
	ref.beta = params ? beta.v : NULL;
	old_m = copy_of(rm.v, rm.n);
	old_v = copy_of(rv.v, rv.n);
	if (momentum == 1 && !eval) {	/* running values are not read */
		for (i = 0; i < rm.n; i++)
			old_m[i] = NAN;
		for (i = 0; i < rv.n; i++)
			old_v[i] = NAN;
		upload(&rm, old_m);
		upload(&rv, old_v);
		memset(old_m, 0, (size_t)rm.n * sizeof(*old_m));
		memset(old_v, 0, (size_t)rv.n * sizeof(*old_v));
	}
	ref.mean = old_m;
	ref.var = old_v;
	ref.ny = y.n;
	ref.y = calloc((size_t)y.n, sizeof(double));
	ref.forward(&ref);
	good = RUN(batchnorm, &x.view, params ? &gamma.view : NULL, params ? &beta.view : NULL,
		   &y.view, &o);
	good = good && near(&y, ref.y, "y");
	/* running mean and variance */
	{
		double *mean = copy_of(old_m, rm.n), *var = copy_of(old_v, rv.n);

		for (c = 0; c < channels && !eval; c++) {
			double mu[4] = { 0 }, v[16] = { 0 };
			int k;

			for (i = 0; i < batch; i++) {
				for (k = 0; k < 4; k++)
					mu[k] += x.v[4 * (i * channels + c) + k] / (double)batch;
			}
			for (i = 0; i < batch; i++) {
				const double *q = x.v + 4 * (i * channels + c);

				for (k = 0; k < 16; k++)
					v[k] += (q[k / 4] - mu[k / 4]) * (q[k % 4] - mu[k % 4]) /
						(double)batch;
			}
			for (k = 0; k < 4; k++)
				mean[4 * c + k] += momentum * (mu[k] - old_m[4 * c + k]);
			for (k = 0; k < 10 && whiten; k++)
				var[10 * c + k] *= 1 - momentum;
			for (k = 0; k < 16 && whiten; k++) {
				if (k / 4 <= k % 4)
					var[10 * c + upper(k / 4, k % 4)] += momentum * v[k];
			}
			if (!whiten)
				var[c] += momentum * (v[0] + v[5] + v[10] + v[15] - old_v[c]);
		}
		good = good && near(&rm, mean, "running_mean") && near(&rv, var, "running_var");
		good = good && (momentum != 0 ||
				(memcmp(rm.v, old_m, (size_t)rm.n * sizeof(*old_m)) == 0 &&
				 memcmp(rv.v, old_v, (size_t)rv.n * sizeof(*old_v)) == 0));
		free(mean), free(var);
	}
	old_g = copy_of(dgamma.v, dgamma.n);
	old_b = copy_of(dbeta.v, dbeta.n);
	o.flags |= (uint32_t)sum;
	good = good && RUN(batchnorm_bwd, &x.view, params ? &gamma.view : NULL, &dy.view, &dx.view,
			   params ? &dgamma.view : NULL, params ? &dbeta.view : NULL, &o);
	good = good && is_gradient(&ref, &dy, &x, NULL, tolerance(dtype), &dx, "dx");
	/* A gradient of gamma may be a small difference of large sums. */
	if (params)
		good = good && is_gradient(&ref, &dy, &gamma, sum ? old_g : NULL,
					   (dgamma.n < 8 ? 50 : 1) * tolerance(p_type), &dgamma,
					   "dgamma") &&
		       is_gradient(&ref, &dy, &beta, sum ? old_b : NULL, tolerance(p_type), &dbeta,
				   "dbeta");
	if (!good)
		diag("%s: %s, whiten %d, eval %d, parameters %d, batch %lld, channels %lld, "
		     "xyzw %d, per step %d",
		     dev->name, hz_dtype_name(dtype), whiten, eval, params, (long long)batch,
		     (long long)channels, xyzw, per_step);
	drop(&x), drop(&y), drop(&dy), drop(&dx), drop(&gamma), drop(&beta), drop(&dgamma);
	drop(&dbeta), drop(&rm), drop(&rv), drop(&saved);
	free(ref.y), free(old_g), free(old_b), free(old_m), free(old_v);
	return good;
}

/* The mean of |y|^2, which is var / (var + eps), of small x */
static int power_of(struct dev *dev, struct tensor *x, const hz_quat_batchnorm_opts *o,
		    struct tensor *y, double *power)
{
	const int good = RUN(batchnorm, &x->view, NULL, NULL, &y->view, o) && fetch(y);

	*power = 0;
	for (int64_t i = 0; i < y->n; i++)
		*power += y->v[i] * y->v[i] / (double)(y->n / 4);
	return good;
}

/* NULL, no options and the defaults as numbers are the same; 0 is a number, too. */
static void test_given(struct dev *dev)
{
	const int64_t shape[] = { 64, 1 };
	const hz_quat_batchnorm_opts zero = { .flags = 0 };
	hz_quat_batchnorm_opts given = { .eps = 1e-5, .momentum = 0.1,
					 .given = HZ_QUAT_BATCHNORM_GIVEN_EPS |
						  HZ_QUAT_BATCHNORM_GIVEN_MOMENTUM };
	const hz_quat_batchnorm_opts *const same[] = { NULL, &zero, &given };
	struct tensor x = quats(dev, HZ_F32, 2, shape, AOS, 0, 1e-3);
	struct tensor y = quats(dev, HZ_F32, 2, shape, AOS, 0, 0);
	double power = 0, *first = NULL;
	int good;

	for (int i = 0; i < 3; i++) {
		good = power_of(dev, &x, same[i], &y, &power);
		ok(good && power < 0.5, "%s: mean |y|^2 is %g", dev->name, power);
		if (first)
			ok(memcmp(first, y.v, (size_t)y.n * sizeof(*first)) == 0, "the same bits");
		else
			first = copy_of(y.v, y.n);
	}
	given.eps = 0;
	good = power_of(dev, &x, &given, &y, &power);
	ok(good && fabs(power - 1) < 1e-5, "of eps = 0: %g", power);
	given.flags = HZ_QUAT_WHITEN;
	good = power_of(dev, &x, &given, &y, &power);
	ok(good && fabs(power - 4) < 1e-3, "of V: %g", power);
	free(first);
	drop(&x), drop(&y);
}

/* Means far from 0, a first row far from them, and more rows than a thread has in flight */
static int offset_case(struct dev *dev, int whiten)
{
	const int64_t channels = 40, batch = 5000, shape[] = { batch, channels };
	struct tensor x = quats(dev, HZ_F32, 2, shape, AOS, 0, 1);
	struct tensor y = quats(dev, HZ_F32, 2, shape, AOS, 0, 0);
	struct model ref = { .forward = norm_ref, .whiten = whiten, .eps = 1e-3, .n = channels,
			     .batch = batch, .x = x.v, .ny = y.n };
	hz_quat_batchnorm_opts o = { .eps = 1e-3, .given = HZ_QUAT_BATCHNORM_GIVEN_EPS,
				     .flags = whiten ? HZ_QUAT_WHITEN : 0 };
	int good;

	for (int64_t i = 0; i < x.n; i++)
		x.v[i] = i < 4 * channels ? 0 : (float)(50 + x.v[i]);
	upload(&x, x.v);
	ref.y = calloc((size_t)y.n, sizeof(double));
	ref.forward(&ref);
	good = RUN(batchnorm, &x.view, NULL, NULL, &y.view, &o) &&
	       near(&y, ref.y, "y");
	drop(&x), drop(&y);
	free(ref.y);
	return good;
}

/* Linearly dependent components, as of a grey image in RGB: the covariance has eigenvalues of 0,
 * smaller than its rounding error. Results must be finite and normalized as requested. */
static int dependent_case(struct dev *dev, int64_t batch)
{
	static const double of[] = { 0, 0.299, 0.587, 0.114 };
	const int64_t channels = 40, shape[] = { batch, channels };
	const int64_t saved_shape[] = { channels, 14 };
	struct tensor x = quats(dev, HZ_F32, 2, shape, AOS, 0, 0.5);
	struct tensor y = quats(dev, HZ_F32, 2, shape, AOS, 0, 0);
	struct tensor dx = quats(dev, HZ_F32, 2, shape, AOS, 0, 0);
	struct tensor saved = make(dev, HZ_F32, 2, saved_shape, AOS, 0, 0, 0);
	const hz_quat_batchnorm_opts o = { .flags = HZ_QUAT_WHITEN, .saved = &saved.view };
	int good;

	/* The real part is set last: the others are computed from it. */
	for (int64_t i = x.n - 1; i >= 0; i--)
		x.v[i] = of[i % 4] * 255 * (0.5 + x.v[i / 4 * 4]);
	upload(&x, x.v);
	good = RUN(batchnorm, &x.view, NULL, NULL, &y.view, &o) &&
	       RUN(batchnorm_bwd, &x.view, NULL, &x.view, &dx.view, NULL, NULL, &o) &&
	       fetch(&y) && fetch(&dx);
	for (int64_t i = 0; i < y.n; i++)
		good = good && fabs(y.v[i]) < 10 && isfinite(dx.v[i]);
	drop(&x), drop(&y), drop(&dx), drop(&saved);
	return good;
}

static void test_norm(struct dev *dev)
{
	int t, i, good, cases = dev == devs && !tap_quick() ? 8 : 4;

	ok(offset_case(dev, 0) && offset_case(dev, 1), "%s: means far from 0", dev->name);
	ok(dependent_case(dev, 64) && dependent_case(dev, 2),
	   "%s: components that depend on each other", dev->name);

	for (t = 0; t < types_of(dev); t++) {
		good = 1;
		for (i = 0; i < cases; i++)
			good &= norm_case(dev, types[t], i & 1, (i & 2) != 0, i % 5 != 0);
		ok(good, "%s: batch normalization, %s", dev->name, hz_dtype_name(types[t]));
	}
}

/* ---- Pooling --------------------------------------------------------------------------------- */

/* Gradient of max pooling: dy goes to the element that was selected. Finite differences might
 * select another one where two norms are nearly equal, as is common in 16 bits. */
static double *max_pool_gradient(const struct model *m, const double *dy, int64_t n)
{
	double *g = calloc((size_t)n + 1, sizeof(*g));
	int64_t smalls = m->small[0] * m->small[1] * m->small[2], i, c;
	int64_t bigs = m->big[0] * m->big[1] * m->big[2];
	int e;

	for (i = 0; i < m->batch * smalls; i++) {
		for (c = 0; c < m->ci; c++) {
			int64_t k = i / smalls * bigs + (int64_t)m->index[i * m->ci + c];

			for (e = 0; e < 4; e++)
				g[4 * (k * m->ci + c) + e] += dy[4 * (i * m->ci + c) + e];
		}
	}
	return g;
}

/* square: two dimensions, square windows, contiguous quaternions */
static int pool_case(struct dev *dev, int dtype, int nd, int average, int square)
{
	struct model ref = { .forward = pool_ref, .average = average,
			     .batch = 1 + rnd_below(&rnd, 2), .ci = 1 + rnd_below(&rnd, 4),
			     .taps = { 1, 1, 1 }, .step = { 1, 1, 1 }, .big = { 1, 1, 1 },
			     .small = { 1, 1, 1 } };
	/* tiles: windows that do not overlap and cover x */
	int xyzw = square ? 0 : (int)rnd_below(&rnd, 2);
	int tiles = !square && !rnd_below(&rnd, 3), good = 1, d, sum;
	hz_quat_pool_opts o = { .kind = average ? HZ_POOL_AVERAGE : HZ_POOL_MAX,
				.flags = xyzw ? HZ_QUAT_XYZW : 0 };
	int64_t xs[5], ys[5];
	struct tensor x, y, dy, dx, index;
	double *want, *old;

	xs[0] = ys[0] = ref.batch;
	for (d = 0; d < nd; d++) {
		int in = 3 - nd + d;

		ref.big[in] = 2 + rnd_below(&rnd, square ? 10 : 6);
		o.window[d] = ref.taps[in] = 1 + rnd_below(&rnd, 3);
		o.stride[d] = rnd_below(&rnd, 3);
		if (square) {
			o.window[d] = ref.taps[in] = d ? o.window[0] : 2 + rnd_below(&rnd, 2);
			o.stride[d] = d ? o.stride[0] : 1 + rnd_below(&rnd, 2);
		}
		ref.step[in] = o.stride[d] ? o.stride[d] : o.window[d];
		o.pad[d] = ref.pad[in] = rnd_below(&rnd, o.window[d] / 2 + 1);
		if (tiles) {
			o.stride[d] = o.pad[d] = ref.pad[in] = 0;
			ref.step[in] = ref.taps[in];
			ref.big[in] = ref.taps[in] * (1 + rnd_below(&rnd, 3));
		}
		if (ref.big[in] < ref.taps[in])
			ref.big[in] = ref.taps[in];
		ref.small[in] = (ref.big[in] + 2 * ref.pad[in] - ref.taps[in]) / ref.step[in] + 1;
		xs[1 + d] = ref.big[in];
		ys[1 + d] = ref.small[in];
	}
	xs[1 + nd] = ys[1 + nd] = ref.ci;
	x = quats(dev, dtype, nd + 2, xs, square ? AOS : layout(), xyzw, 1);
	y = quats(dev, dtype, nd + 2, ys, square ? AOS : output_layout(), xyzw, 0);
	dy = quats(dev, dtype, nd + 2, ys, square ? AOS : layout(), xyzw, 1);
	dx = quats(dev, dtype, nd + 2, xs, square ? AOS : output_layout(), xyzw, 1);
	index = make(dev, HZ_S32, nd + 2, ys, output_layout(), 0, 0, 0);
	ref.x = x.v;
	ref.ny = y.n;
	ref.y = calloc((size_t)y.n, sizeof(double));
	ref.index = calloc((size_t)index.n, sizeof(double));
	ref.forward(&ref);
	good = status_ok(dev, hz_quat_pool(dev->ctx, &x.view, &y.view, average ? NULL : &index.view,
					   &o));
	good = good && near(&y, ref.y, "y");
	if (!average) {
		good = good && fetch(&index) &&
		       memcmp(index.v, ref.index, (size_t)index.n * sizeof(double)) == 0;
		upload(&index, ref.index);
	}
	sum = rnd_below(&rnd, 2) ? HZ_QUAT_ACCUMULATE : 0;
	o.flags |= (uint32_t)sum;
	old = copy_of(dx.v, dx.n);
	good = good && status_ok(dev, hz_quat_pool_bwd(dev->ctx, average ? NULL : &index.view,
						       &dy.view, &dx.view, &o));
	want = average ? gradient(&ref, dy.v, x.v, x.n) : max_pool_gradient(&ref, dy.v, x.n);
	if (sum)
		add(want, old, dx.n);
	good = good && near(&dx, want, "dx");
	if (!good)
		diag("%s: %s, %d dimensions, average %d", dev->name, hz_dtype_name(dtype), nd,
		     average);
	drop(&x), drop(&y), drop(&dy), drop(&dx), drop(&index);
	free(ref.y), free(ref.index), free(want), free(old);
	return good;
}

static void test_pool(struct dev *dev)
{
	int t, i, good, cases = dev == devs && !tap_quick() ? 12 : 6;

	for (t = 0; t < types_of(dev); t++) {
		good = 1;
		for (i = 0; i < cases; i++)
			good &= pool_case(dev, types[t], 1 + i % 3, i / 3 % 2, 0);
		ok(good, "%s: pooling, %s", dev->name, hz_dtype_name(types[t]));
		for (i = 0, good = 1; i < 2 * cases; i++)
			good &= pool_case(dev, types[t], 2, i % 2, 1);
		ok(good, "%s: pooling over squares, %s", dev->name, hz_dtype_name(types[t]));
	}
}

/* ---- Dropout, initial values ----------------------------------------------------------------- */

static double uniform(uint64_t seed, uint64_t j)
{
	uint64_t state = seed + j * 0x9e3779b97f4a7c15u;

	return (double)(rnd_u64(&state) >> 11) * 0x1p-53;
}

static void test_dropout(struct dev *dev)
{
	static const double probabilities[] = { 0, 0.3, 1 };
	int64_t shape[2] = { 37, 11 }, i;
	int t, k, good = 1;

	for (t = 0; t < types_of(dev); t++) {
		for (k = 0; k < 3; k++) {
			struct tensor x = quats(dev, types[t], 2, shape, layout(), 0, 1);
			struct tensor y = quats(dev, types[t], 2, shape, output_layout(), 0, 0);
			double p = probabilities[k], *want = copy_of(x.v, x.n);

			for (i = 0; i < x.n; i++)
				want[i] = uniform(99, 5 + (uint64_t)(i / 4)) < p ?
					  0 : p < 1 ? want[i] / (1 - p) : 0;
			good &= status_ok(dev,
					  hz_quat_dropout(dev->ctx, &x.view, &y.view, p, 99, 5));
			good &= near(&y, want, "dropout");
			free(want);
			drop(&x), drop(&y);
		}
	}
	ok(good, "%s: dropout", dev->name);
}

static void init_ref(int distribution, double scale, uint64_t i, double *q)
{
	double u[5], pi2 = 2 * acos(-1), s, t, c;
	int k;

	for (k = 0; k < 5; k++)
		u[k] = uniform(7, 8 * i + (uint64_t)k);
	if (distribution == HZ_QUAT_POLAR) {
		s = scale * sqrt(-2 * log((1 - u[0]) * (1 - u[1])));
		c = 2 * u[3] - 1;
		t = s * sin(pi2 * u[2]);
		q[0] = s * cos(pi2 * u[2]);
		q[1] = t * sqrt(1 - c * c) * cos(pi2 * u[4]);
		q[2] = t * sqrt(1 - c * c) * sin(pi2 * u[4]);
		q[3] = t * c;
		return;
	}
	s = distribution == HZ_QUAT_UNITARY ? sqrt(1 - u[0]) : sqrt(-2 * log(1 - u[0]));
	t = distribution == HZ_QUAT_UNITARY ? sqrt(u[0]) : sqrt(-2 * log(1 - u[2]));
	c = distribution == HZ_QUAT_UNITARY ? u[2] : u[3];
	q[0] = scale * s * cos(pi2 * u[1]);
	q[1] = scale * s * sin(pi2 * u[1]);
	q[2] = scale * t * cos(pi2 * c);
	q[3] = scale * t * sin(pi2 * c);
}

/* A checksum of the bits of f32 values, the same on every device */
static uint64_t checksum(const struct tensor *t)
{
	uint64_t sum = 0;
	int64_t i;

	for (i = 0; i < t->n; i++) {
		float f = (float)t->v[i];
		uint32_t bits;

		memcpy(&bits, &f, 4);
		sum = sum * 0x100000001b3u + bits;
	}
	return sum;
}

static void test_init(struct dev *dev)
{
	int64_t shape[2] = { 51, 40 }, i;
	int t, d, good = 1, c;
	uint64_t sum = 0;

	for (t = 0; t < types_of(dev); t++) {
		for (d = HZ_QUAT_POLAR; d <= HZ_QUAT_NORMAL; d++) {
			int xyzw = d & 1;
			struct tensor y = quats(dev, types[t], 2, shape, output_layout(), xyzw, 0);
			double *want = calloc((size_t)y.n, sizeof(double)), second = 0;

			for (i = 0; i < y.n / 4; i++)
				init_ref(d, 0.25, 3 + (uint64_t)i, want + 4 * i);
			good &= status_ok(dev, hz_quat_init(dev->ctx, &y.view, d, 0.25, 7, 3,
							    xyzw ? HZ_QUAT_XYZW : 0));
			good &= near(&y, want, "init");
			if (types[t] == HZ_F64)
				good &= within_norm(y.v, want, (size_t)y.n, 1e-15);
			for (i = 0; i < y.n / 4; i++) {
				for (c = 0; c < 4; c++)
					second += y.v[4 * i + c] * y.v[4 * i + c] * 4 / (double)y.n;
			}
			/* E |q|^2 is 4 scale^2 over 2040 quaternions, and 1 on the unit sphere. */
			if (fabs(second / (d == HZ_QUAT_UNITARY ? 0.0625 : 0.25) - 1) > 0.08) {
				diag("distribution %d: mean of |q|^2 is %g", d, second);
				good = 0;
			}
			if (types[t] == HZ_F32)
				sum = sum * 31 + checksum(&y);
			free(want);
			drop(&y);
		}
	}
	ok(good, "%s: initial values", dev->name);
	is_int((long long)sum, (long long)INIT_SUM, "%s: initial values, bit for bit", dev->name);
	ok(hz_quat_init_scale(8, 0) == 0.25 && fabs(hz_quat_init_scale(3, 5) - 0.25) < 1e-15 &&
	   hz_quat_init_scale(0, 1) == 0, "scales of Glorot and He");
}

/* ---- Layouts --------------------------------------------------------------------------------- */

/* x, y, index, dy, dx of a layer; outputs are compared as doubles */
struct run {
	struct tensor t[5];
	hz_quat_pool_opts pool;
	int norm, good;
};

static void run_layer(struct dev *dev, struct run *r)
{
	hz_tensor *x = &r->t[0].view, *y = &r->t[1].view, *dy = &r->t[3].view;
	hz_tensor *dx = &r->t[4].view;
	hz_tensor *index = r->pool.kind == HZ_POOL_AVERAGE ? NULL : &r->t[2].view;
	int64_t shape[2] = { x->shape[3], 14 };
	struct tensor saved = make(dev, HZ_F32, 2, shape, AOS, 0, 0, 0);
	hz_quat_batchnorm_opts o = { .flags = r->pool.flags | HZ_QUAT_WHITEN,
				     .saved = &saved.view };

	if (r->norm) {
		r->good = RUN(batchnorm, x, NULL, NULL, y, &o) &&
			  RUN(batchnorm_bwd, x, NULL, dy, dx, NULL, NULL, &o);
	} else {
		r->good = status_ok(dev, hz_quat_pool(dev->ctx, x, y, index, &r->pool)) &&
			  status_ok(dev, hz_quat_pool_bwd(dev->ctx, index, dy, dx, &r->pool));
	}
	r->good = r->good && fetch(&r->t[1]) && fetch(&r->t[4]) && (!index || r->norm ||
								      fetch(&r->t[2]));
	drop(&saved);
}

/* Arrays larger than one pass processes: pooling gives the same numbers in any layout as with
 * contiguous channels, batch normalization about the same. what: maximum, average, normalization */
static int layout_case(struct dev *dev, int dtype, int what)
{
	int64_t xs[4] = { 2, 4 + rnd_below(&rnd, 5), 17 + rnd_below(&rnd, 40),
			  15 + rnd_below(&rnd, 70) };
	struct run a = { .norm = what == 2 }, b;
	int xyzw = (int)rnd_below(&rnd, 2), out = output_layout(), i, d, good;
	int64_t ys[4];

	memcpy(ys, xs, sizeof(ys));
	a.pool.kind = what == 1 ? HZ_POOL_AVERAGE : HZ_POOL_MAX;
	for (d = 0; d < 2 && !a.norm; d++) {
		a.pool.window[d] = 1 + rnd_below(&rnd, 4);
		a.pool.stride[d] = 1 + rnd_below(&rnd, 3);
		a.pool.pad[d] = rnd_below(&rnd, a.pool.window[d] / 2 + 1);
		ys[1 + d] = (xs[1 + d] + 2 * a.pool.pad[d] - a.pool.window[d]) /
			    a.pool.stride[d] + 1;
	}
	b = a;
	b.pool.flags = xyzw ? HZ_QUAT_XYZW : 0;
	for (i = 0; i < 5; i++) {
		int64_t *shape = i == 0 || i == 4 ? xs : ys;
		int in = i == 0 || i == 3;

		a.t[i] = i == 2 ? make(dev, HZ_S32, 4, ys, AOS, 0, 0, 0) :
				  quats(dev, dtype, 4, shape, AOS, 0, in);
		b.t[i] = i == 2 ? make(dev, HZ_S32, 4, ys, output_layout(), 0, 0, 0) :
				  quats(dev, dtype, 4, shape, in ? layout() : out, xyzw, in);
		if (in)
			upload(&b.t[i], a.t[i].v);
	}
	run_layer(dev, &a);
	run_layer(dev, &b);
	good = a.good && b.good;
	for (i = 1; i < 5 && good; i++) {
		if (i == 3 || (i == 2 && what > 0))
			continue;
		good = a.norm ? near(&b.t[i], a.t[i].v, "a layout") :
				memcmp(b.t[i].v, a.t[i].v, (size_t)a.t[i].n * sizeof(double)) == 0;
	}
	if (!good)
		diag("%s: %s, %d, [%lld %lld %lld], output %d, xyzw %d", dev->name,
		     hz_dtype_name(dtype), what, (long long)xs[1], (long long)xs[2],
		     (long long)xs[3], out, xyzw);
	for (i = 0; i < 5; i++)
		drop(&a.t[i]), drop(&b.t[i]);
	return good;
}

static void test_layouts(struct dev *dev)
{
	int t, i, good, cases = tap_quick() ? 3 : 9;

	for (t = 0; t < types_of(dev); t++) {
		if (types[t] == HZ_F64)
			continue;
		for (i = 0, good = 1; i < cases; i++)
			good &= layout_case(dev, types[t], i % 3);
		ok(good, "%s: layouts, %s", dev->name, hz_dtype_name(types[t]));
	}
}

int main(void)
{
	int i;

	rnd = tap_seed();
	dev_open_all();
	dev_open_routes(HZI_OP_quat_pool);
	dev_open_routes(HZI_OP_quat_pool_bwd);
	for (i = 0; i < ndevs; i++) {
		test_pool(&devs[i]);
		if (devs[i].ctx->any_forced)	/* a route of the pooling */
			continue;
		test_norm(&devs[i]);
		test_given(&devs[i]);
		test_dropout(&devs[i]);
		test_init(&devs[i]);
		test_layouts(&devs[i]);
	}
	dev_close_all();
	return done_testing();
}
