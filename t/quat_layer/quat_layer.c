/*
 * quat_layer.c - quaternion linear layers against definitions; of all layers: bits and errors
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "t/quat_layer/quat_layer.h"

static void linear_ref(struct model *m)
{
	int64_t i, n, k;
	int c;

	for (i = 0; i < m->batch; i++) {
		for (n = 0; n < m->n; n++) {
			double *y = m->y + 4 * (i * m->n + n), z[4] = { 0 };

			for (k = 0; k < m->m; k++) {
				const double *x = m->x + 4 * (i * m->m + k);
				const double *w = m->w + 4 * (n * m->m + k);

				if (m->rotate) {
					add_rotated(z, m->s ? m->s[n * m->m + k] : 1, w, x,
						    m->w_eps, m->eps_norm, m->right);
				} else if (m->right) {
					mul(z, x, w);
				} else {
					mul(z, w, x);
				}
			}
			for (c = 0; c < 4; c++)
				y[c] = z[c] + (m->b ? m->b[4 * n + c] : 0);
			if (m->pre)
				memcpy(m->pre + 4 * (i * m->n + n), y, 4 * sizeof(*y));
			activate(m->act, m->slope, y);
		}
	}
}

static int linear_case(struct dev *dev, int dtype, int ndim, const int64_t *lead, int64_t n,
		       int64_t m, hz_quat_linear_opts o, int with_bias, int with_pre, int packed)
{
	int64_t xs[5], ys[5], batch = 1, ws[2] = { n, m };
	int xyzw = (o.flags & HZ_QUAT_XYZW) != 0, good = 1, d;
	int rotate = (o.flags & HZ_QUAT_ROTATION) != 0, with_s = rotate && rnd_below(&rnd, 2);
	int sum = rnd_below(&rnd, 2) ? HZ_QUAT_ACCUMULATE : 0;
	int b_type = dtype == HZ_F64 || rnd_below(&rnd, 2) ? dtype : HZ_F32;
	struct tensor x, w, b = {0}, s = {0}, y, dy, dx, dw, db = {0}, ds = {0}, pre = {0};
	struct model ref = { .forward = linear_ref, .n = n, .m = m, .act = o.activation,
			     .slope = o.slope, .right = o.side, .rotate = rotate };
	const double epses[] = { 0, 1e-4, 0.3 };
	const double bound = tolerance(dtype);	/* relative to the magnitudes of the terms */
	double *old_w, *old_b = NULL, *old_s = NULL;
	hz_quat_linear_opts back;
	hz_packed blob;
	struct area blob_area = { 0 };
	size_t bytes = 0;

	for (d = 0; d < ndim; d++) {
		xs[d] = ys[d] = lead[d];
		batch *= lead[d];
	}
	xs[ndim] = m;
	ys[ndim] = n;
	x = quats(dev, dtype, ndim + 1, xs, layout(), xyzw, 1);
	w = quats(dev, dtype, 2, ws, layout(), xyzw, 0.5);
	y = quats(dev, dtype, ndim + 1, ys, output_layout(), xyzw, 0);
	dy = quats(dev, dtype, ndim + 1, ys, layout(), xyzw, 1);
	dx = quats(dev, dtype, ndim + 1, xs, output_layout(), xyzw, 0);
	dw = quats(dev, dtype, 2, ws, output_layout(), xyzw, 1);
	if (with_bias) {
		b = quats(dev, b_type, 1, &n, layout(), xyzw, 1);
		db = quats(dev, b_type, 1, &n, output_layout(), xyzw, 1);
	}
	if (with_s) {
		s = make(dev, dtype, 2, ws, AOS, 0, 0, 1);
		ds = make(dev, dtype, 2, ws, AOS, 0, 0, 1);
		o.scale = &s.view;
	}
	if (rotate) {
		ref.w_eps = o.eps = epses[rnd_below(&rnd, 3)];
		ref.eps_norm = o.eps_rule = (int)rnd_below(&rnd, 2);
	}
	if (with_pre) {
		pre = quats(dev, dtype, ndim + 1, ys, output_layout(), xyzw, 0);
		o.pre = &pre.view;
	}
	ref.batch = batch;
	bind_model(&ref, &x, &w, &b, &y);
	ref.s = s.v;
	ref.pre = calloc((size_t)y.n + 1, sizeof(double));
	if (packed) {
		hz_quat_gemm_opts g = { .method = o.method, .precision = o.precision,
					.flags = o.flags & HZ_QUAT_XYZW };

		good = status_ok(dev, hz_quat_gemm_pack_bytes(dev->ctx, &w.view, &g, &bytes));
		blob_area = area_new(dev, bytes + 64, 0);
		good = good && status_ok(dev, hz_quat_gemm_pack(dev->ctx, &w.view,
				(void *)(((uintptr_t)blob_area.data + 63) & ~(uintptr_t)63), bytes,
				&blob, &g));
		o.packed = &blob;
	}
	good = good &&
	       RUN(linear, &x.view, packed ? NULL : &w.view, with_bias ? &b.view : NULL, &y.view,
		   &o);
	ref.forward(&ref);
	good = good && near(&y, ref.y, "y");
	if (with_pre) {
		good = good && near(&pre, ref.pre, "pre");
		upload(&pre, ref.pre);
	}
	back = o;
	back.flags |= (uint32_t)sum;
	back.dscale = with_s ? &ds.view : NULL;
	if (!sum) {
		area_fill(&dw.area);
		memset(dw.image, GUARD_BYTE, dw.area.total);
		if (with_bias) {
			area_fill(&db.area);
			memset(db.image, GUARD_BYTE, db.area.total);
		}
	}
	old_w = copy_of(dw.v, dw.n);
	if (with_bias)
		old_b = copy_of(db.v, db.n);
	if (with_s)
		old_s = copy_of(ds.v, ds.n);
	good = good && RUN(linear_bwd, &x.view, packed ? NULL : &w.view, with_bias ? &b.view : NULL,
			   &dy.view, &dx.view, &dw.view, with_bias ? &db.view : NULL, &back);
	if (at_kink(&ref, dtype))
		goto out;
	good = good && is_gradient(&ref, &dy, &x, NULL, bound, &dx, "dx") &&
	       is_gradient(&ref, &dy, &w, sum ? old_w : NULL, bound, &dw, "dw");
	if (with_bias)
		good = good && is_gradient(&ref, &dy, &b, sum ? old_b : NULL, bound, &db, "db");
	if (with_s)
		good = good && is_gradient(&ref, &dy, &s, sum ? old_s : NULL,
					   tolerance(ds.view.dtype), &ds, "dscale");
out:
	if (!good)
		diag("%s: %s, %d leading dimensions, batch %lld, n %lld, m %lld, side %d, "
		     "method %d, activation %d, flags %#x, bias %d, pre %d, packed %d",
		     dev->name, hz_dtype_name(dtype), ndim, (long long)batch, (long long)n,
		     (long long)m, o.side, o.method, o.activation, o.flags, with_bias, with_pre,
		     packed);
	drop(&x), drop(&w), drop(&b), drop(&s), drop(&y), drop(&dy), drop(&dx), drop(&dw);
	drop(&db), drop(&ds), drop(&pre);
	if (packed)
		area_free(&blob_area);
	free(ref.y), free(ref.pre), free(old_w), free(old_b), free(old_s);
	return good;
}

static void test_linear(struct dev *dev)
{
	static const int64_t sizes[] = { 1, 2, 3, 4, 5, 7, 8, 9 };
	int64_t lead[4], n, m;
	int t, i, d, good, cases = dev == devs && !tap_quick() ? 16 : 5;

	for (t = 0; t < types_of(dev); t++) {
		good = 1;
		for (i = 0; i < cases; i++) {
			hz_quat_linear_opts o = {
				.side = (int)rnd_below(&rnd, 2), .method = (int)rnd_below(&rnd, 3),
				.activation = rnd_below(&rnd, 2) ? (int)rnd_below(&rnd, 9) : 0,
				.flags = rnd_below(&rnd, 2) ? HZ_QUAT_XYZW : 0,
			};
			int ndim = (int)rnd_below(&rnd, 5), packed = i % 5 == 4;

			o.slope = ref_slope(o.activation, 0.5);
			for (d = 0; d < ndim; d++)
				lead[d] = 1 + rnd_below(&rnd, 3);
			if (ndim == 1)
				lead[0] = sizes[rnd_below(&rnd, 8)];
			n = sizes[rnd_below(&rnd, 8)];
			m = sizes[rnd_below(&rnd, 8)];
			if (i % 4 == 3) {
				o.flags |= HZ_QUAT_ROTATION;
				packed = 0;
			}
			good &= linear_case(dev, types[t], ndim, lead, n, m, o,
					    (int)rnd_below(&rnd, 2),
					    o.activation && rnd_below(&rnd, 2), packed);
		}
		ok(good, "%s: linear layers, %s", dev->name, hz_dtype_name(types[t]));
	}
	good = 1;
	for (i = 0; i < 8; i++) {
		hz_quat_linear_opts o = { .flags = i & 4 ? HZ_QUAT_ROTATION : 0 };

		lead[0] = i & 1 ? 0 : 3;
		good &= linear_case(dev, HZ_F32, 1, lead, i & 2 ? 0 : 3, i % 3 ? 2 : 0, o, 1, 0, 0);
	}
	ok(good, "%s: linear layers without rows, columns or terms", dev->name);
}

/* Sums over a batch that is long enough to be split. 20000 products accumulated in order in f32
 * have an error of about 2^-24 sqrt(20000) / 2 = 4e-6 of the sum of magnitudes. */
static void test_long(struct dev *dev)
{
	double bound = 4 * tolerance(HZ_F32);
	int64_t xs[] = { 5003, 2 }, ys[] = { 5003, 3 }, ws[] = { 3, 2 }, is[] = { 1, 5003, 2 };
	int64_t os[] = { 1, 5001, 3 }, ks[] = { 3, 3, 2 }, b, n, k, t;
	struct tensor x = quats(dev, HZ_F32, 2, xs, AOS, 0, 1), image, kernel, out, dk;
	struct tensor w = quats(dev, HZ_F32, 2, ws, AOS, 0, 1);
	struct tensor dy = quats(dev, HZ_F32, 2, ys, AOS, 0, 1);
	struct tensor dw = quats(dev, HZ_F32, 2, ws, PLANAR, 0, 0);
	double *want = calloc((size_t)dw.n, sizeof(*want)), xc[4];
	int good;

	for (b = 0; b < xs[0]; b++) {
		for (n = 0; n < 3; n++) {
			for (k = 0; k < 2; k++) {
				conj_of(xc, x.v + 4 * (b * 2 + k));
				mul(want + 4 * (n * 2 + k), dy.v + 4 * (b * 3 + n), xc);
			}
		}
	}
	good = RUN(linear_bwd, &x.view, &w.view, NULL, &dy.view, NULL, &dw.view, NULL, NULL) &&
	       near_within(bound, &dw, want, "dw");
	ok(good, "%s: the gradient of a linear layer over a long batch", dev->name);
	free(want);
	drop(&x), drop(&w), drop(&dy), drop(&dw);

	image = quats(dev, HZ_F32, 3, is, AOS, 0, 1);
	kernel = quats(dev, HZ_F32, 3, ks, AOS, 0, 1);
	out = quats(dev, HZ_F32, 3, os, AOS, 0, 1);
	dk = quats(dev, HZ_F32, 3, ks, AOS, 0, 0);
	want = calloc((size_t)dk.n, sizeof(*want));
	for (b = 0; b < os[1]; b++) {
		for (n = 0; n < 3; n++) {
			for (t = 0; t < 3; t++) {
				for (k = 0; k < 2; k++) {
					conj_of(xc, image.v + 4 * ((b + t) * 2 + k));
					mul(want + 4 * ((n * 3 + t) * 2 + k),
					    out.v + 4 * (b * 3 + n), xc);
				}
			}
		}
	}
	good = RUN(conv_bwd, &image.view, &kernel.view, NULL, &out.view, NULL, &dk.view, NULL,
		   NULL) &&
	       near_within(bound, &dk, want, "dw");
	ok(good, "%s: the gradient of a convolution over many pixels", dev->name);
	free(want);
	drop(&image), drop(&kernel), drop(&out), drop(&dk);
}

/* ---- PyTorch's quaternion libraries ---------------------------------------------------------- */

/* Orkis and speechbrain: x [batch, 4 in] with blocks r i j k, weights r i j k [in, out]. The real
 * matrix [4 in, 4 out] has the columns r: r -i -j -k, i: i r -k j, j: j k r -i, k: k -j i r. */
static const int cat_part[4][4] = { { 0, 1, 2, 3 }, { 1, 0, 3, 2 }, { 2, 3, 0, 1 },
				    { 3, 2, 1, 0 } };
static const int cat_sign[4][4] = { { 1, -1, -1, -1 }, { 1, 1, -1, 1 }, { 1, 1, 1, -1 },
				    { 1, -1, 1, 1 } };

static void test_cat(struct dev *dev)
{
	enum { BATCH = 5, IN = 6, OUT = 3, TAPS = 3, SIDE = 7, GONE = SIDE - TAPS + 1 };
	int64_t xs[] = { BATCH, 4 * IN }, ws[] = { 4, IN, OUT }, ys[] = { BATCH, 4 * OUT };
	struct tensor x = make(dev, HZ_F32, 2, xs, AOS, 0, 0, 1);
	struct tensor w = make(dev, HZ_F32, 3, ws, AOS, 0, 0, 1);
	struct tensor y = make(dev, HZ_F32, 2, ys, AOS, 0, 0, 0);
	hz_tensor qx = { x.view.data, HZ_F32, 3, dev->device, { BATCH, IN, 4 }, { 4 * IN, 1, IN } };
	hz_tensor qw = {w.view.data, HZ_F32, 3, dev->device, {OUT, IN, 4}, {1, OUT, IN * OUT}};
	hz_tensor qy = { y.view.data, HZ_F32, 3, dev->device, { BATCH, OUT, 4 },
			 { 4 * OUT, 1, OUT } };
	double *want = calloc(BATCH * 4 * OUT, sizeof(*want)), *conv;
	int64_t b, o, i, p, q, u, v;
	int good, good_conv;

	for (b = 0; b < BATCH; b++) {
		for (p = 0; p < 4; p++) {
			for (o = 0; o < OUT; o++) {
				for (q = 0; q < 4; q++) {
					for (i = 0; i < IN; i++)
						want[b * 4 * OUT + p * OUT + o] +=
							x.v[b * 4 * IN + q * IN + i] *
							cat_sign[p][q] *
							w.v[(cat_part[p][q] * IN + i) * OUT + o];
				}
			}
		}
	}
	good = RUN(linear, &qx, &qw, NULL, &qy, NULL) &&
	       near(&y, want, "linear");
	ok(good, "%s: the linear layer of Orkis and speechbrain, in place", dev->name);
	drop(&x), drop(&w), drop(&y);
	free(want);

	/* conv2d: x [n, 4 in, h, w], four contiguous weights [out, in, kh, kw] */
	{
		int64_t cx[] = { 2, 4 * IN, SIDE, SIDE }, cw[] = { 4, OUT, IN, TAPS, TAPS };
		int64_t cy[] = { 2, 4 * OUT, GONE, GONE };
		hz_tensor vx = { .dtype = HZ_F32, .ndim = 5, .device = dev->device,
				 .shape = { 2, SIDE, SIDE, IN, 4 },
				 .stride = { 4 * IN * SIDE * SIDE, SIDE, 1, SIDE * SIDE,
					     IN * SIDE * SIDE } };
		hz_tensor vw = { .dtype = HZ_F32, .ndim = 5, .device = dev->device,
				 .shape = { OUT, TAPS, TAPS, IN, 4 },
				 .stride = { IN * TAPS * TAPS, TAPS, 1, TAPS * TAPS,
					     OUT * IN * TAPS * TAPS } };
		hz_tensor vy = { .dtype = HZ_F32, .ndim = 5, .device = dev->device,
				 .shape = { 2, GONE, GONE, OUT, 4 },
				 .stride = { 4 * OUT * GONE * GONE, GONE, 1, GONE * GONE,
					     OUT * GONE * GONE } };

		x = make(dev, HZ_F32, 4, cx, AOS, 0, 0, 1);
		w = make(dev, HZ_F32, 5, cw, AOS, 0, 0, 1);
		y = make(dev, HZ_F32, 4, cy, AOS, 0, 0, 0);
		vx.data = x.view.data;
		vw.data = w.view.data;
		vy.data = y.view.data;
		conv = calloc((size_t)y.n, sizeof(*conv));
		for (int64_t at = 0; at < y.n; at++) {
			int64_t column = at % GONE, row = at / GONE % GONE;
			int64_t channel = at / GONE / GONE % (4 * OUT);

			b = at / GONE / GONE / (4 * OUT);
			p = channel / OUT;
			o = channel % OUT;
			for (q = 0; q < 4; q++) {
				for (i = 0; i < IN; i++) {
					for (u = 0; u < TAPS; u++) {
						for (v = 0; v < TAPS; v++)
							conv[at] += cat_sign[p][q] *
								    w.v[(((cat_part[p][q] * OUT +
									   o) * IN +
									  i) * TAPS +
									 u) * TAPS +
									v] *
								    x.v[((b * 4 * IN + q * IN + i) *
										 SIDE +
									 row + u) *
										SIDE +
									column + v];
					}
				}
			}
		}
		good_conv = RUN(conv, &vx, &vw, NULL, &vy, NULL) &&
			    near(&y, conv, "conv");
		ok(good_conv, "%s: the 2-d convolution of Orkis and speechbrain, in place",
		   dev->name);
		drop(&x), drop(&w), drop(&y);
		free(conv);
	}
}

/* Strides, windows and dilation far larger than the arrays */
static void test_huge_strides(struct dev *dev)
{
	const int64_t xs[] = { 2, 1, 2, 1, 3 }, ws[] = { 5, 1, 1, 1, 3 };
	const int64_t ys[] = { 2, 1, 1, 1, 5 }, ps[] = { 2, 1, 1, 1, 3 };
	const hz_quat_conv_opts o = { .stride = { INT32_MAX, INT32_MAX, INT32_MAX },
				      .dilation = { INT32_MAX, INT32_MAX, INT32_MAX } };
	const hz_quat_pool_opts p = { .kind = HZ_POOL_AVERAGE,
				      .window = { INT32_MAX, INT32_MAX, INT32_MAX },
				      .pad = { INT32_MAX / 2, INT32_MAX / 2, INT32_MAX / 2 } };
	struct tensor x = quats(dev, HZ_F32, 5, xs, AOS, 0, 1);
	struct tensor w = quats(dev, HZ_F32, 5, ws, AOS, 0, 1);
	struct tensor y = quats(dev, HZ_F32, 5, ys, AOS, 0, 1);
	struct tensor dx = quats(dev, HZ_F32, 5, xs, AOS, 0, 0);
	struct tensor pooled = quats(dev, HZ_F32, 5, ps, AOS, 0, 0);
	double *want = calloc(48, sizeof(double)), *mean = calloc(24, sizeof(double));

	/* Only the first pixel of each image is read: dx is w^H dy there. */
	for (int image = 0; image < 2; image++) {
		for (int i = 0; i < 3; i++) {
			for (int out = 0; out < 5; out++) {
				double q[4];

				conj_of(q, w.v + 4 * (3 * out + i));
				mul(want + 4 * (6 * image + i), q, y.v + 4 * (5 * image + out));
			}
			for (int c = 0; c < 4; c++)
				mean[4 * (3 * image + i) + c] =
					(x.v[4 * (6 * image + i) + c] +
					 x.v[4 * (6 * image + 3 + i) + c]) / 2;
		}
	}
	ok(RUN(conv_bwd, &x.view, &w.view, NULL, &y.view, &dx.view, NULL, NULL, &o) &&
		   near(&dx, want, "dx"),
	   "%s: strides far larger than x", dev->name);
	ok(status_ok(dev, hz_quat_pool(dev->ctx, &x.view, &pooled.view, NULL, &p)) &&
	   near(&pooled, mean, "mean"), "%s: windows far larger than x", dev->name);
	drop(&x), drop(&w), drop(&y), drop(&dx), drop(&pooled);
	free(want);
	free(mean);
}

/* ---- Bits ------------------------------------------------------------------------------------ */

/* Results of calls that are large enough for several threads */
static double *large_results(struct dev *dev, int64_t *count)
{
	int64_t xs[] = { 6, 40, 41, 12 }, ws[] = { 16, 3, 3, 12 }, ys[] = { 6, 40, 41, 16 }, c = 16;
	int64_t channels = 16, ps[] = { 16, 14 };
	uint64_t keep = rnd;
	struct tensor t[8];
	hz_quat_conv_opts o = { .pad = { 1, 1 }, .activation = HZ_ACT_TANH };
	hz_quat_batchnorm_opts n = { .flags = HZ_QUAT_WHITEN };
	double *all;
	int i, good;

	rnd = 4711;
	t[0] = quats(dev, HZ_F32, 4, xs, AOS, 0, 1);
	t[1] = quats(dev, HZ_F32, 4, ws, AOS, 0, 0.1);
	t[2] = quats(dev, HZ_F32, 1, &c, AOS, 0, 1);
	t[3] = quats(dev, HZ_F32, 4, ys, AOS, 0, 0);
	t[4] = quats(dev, HZ_F32, 4, xs, AOS, 0, 0);
	t[5] = quats(dev, HZ_F32, 4, ws, AOS, 0, 0);
	t[6] = quats(dev, HZ_F32, 1, &channels, AOS, 0, 0);
	t[7] = make(dev, HZ_F32, 2, ps, AOS, 0, 0, 0);
	rnd = keep;
	n.saved = &t[7].view;
	good = RUN(conv, &t[0].view, &t[1].view, &t[2].view, &t[3].view, &o) &&
	       RUN(batchnorm, &t[3].view, NULL, NULL, &t[3].view, &n) &&
	       RUN(conv_bwd, &t[0].view, &t[1].view, &t[2].view, &t[3].view, &t[4].view, &t[5].view,
		   &t[6].view, &o);
	if (!good)
		bail("the calls failed");
	*count = 0;
	for (i = 3; i < 8; i++)
		*count += t[i].n;
	all = malloc((size_t)*count * sizeof(*all));
	*count = 0;
	for (i = 0; i < 8; i++) {
		if (i >= 3) {
			fetch(&t[i]);
			memcpy(all + *count, t[i].v, (size_t)t[i].n * sizeof(*all));
			*count += t[i].n;
		}
		drop(&t[i]);
	}
	return all;
}

static void test_bits(void)
{
	double *first = NULL, *again;
	int64_t n, k;
	int i, same;

	for (i = 0; i < ndevs; i++) {
		hz_info info, before;

		hz_device_info(devs[i].ctx, &info);
		if (i > 0)
			hz_device_info(devs[i - 1].ctx, &before);
		if (i > 0 && info.isa != before.isa) {
			free(first);
			first = NULL;
		}
		if (!first) {
			first = large_results(&devs[i], &n);
			if (devs[i].device == HZ_CPU)
				continue;
		}
		again = large_results(&devs[i], &k);
		same = memcmp(first, again, (size_t)n * sizeof(*first)) == 0;
		ok(same && k == n, "%s: the same bits as before", devs[i].name);
		free(again);
	}
	free(first);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static void refuses(struct dev *dev, int status, int want, const char *message)
{
	is_int(status, want, "%s", message);
	has_str(hz_errmsg(dev->ctx), message, "its message");
}

static void test_errors(struct dev *dev)
{
	static float memory[4096];
	hz_context *c = dev->ctx;
	hz_tensor x = hz_tensor_3d(memory, HZ_F32, HZ_CPU, 2, 3, 4);
	hz_tensor w = hz_tensor_3d(memory + 100, HZ_F32, HZ_CPU, 5, 3, 4);
	hz_tensor b = hz_tensor_2d(memory + 200, HZ_F32, HZ_CPU, 5, 4);
	hz_tensor y = hz_tensor_3d(memory + 300, HZ_F32, HZ_CPU, 2, 5, 4), t = y;
	hz_tensor s = hz_tensor_2d(memory + 400, HZ_F32, HZ_CPU, 5, 3);
	hz_tensor g = hz_tensor_1d(memory + 500, HZ_F32, HZ_CPU, 3);
	int64_t is[] = { 1, 6, 6, 2, 4 }, ks[] = { 4, 3, 3, 2, 4 }, os[] = { 1, 4, 4, 4, 4 };
	hz_tensor image = hz_tensor_nd(memory + 600, HZ_F32, HZ_CPU, 5, is);
	hz_tensor kernel = hz_tensor_nd(memory + 1000, HZ_F32, HZ_CPU, 5, ks);
	hz_tensor out = hz_tensor_nd(memory + 2000, HZ_F32, HZ_CPU, 5, os), bad, places;
	hz_quat_linear_opts o = { 0 };
	hz_quat_conv_opts v = { 0 };
	hz_quat_batchnorm_opts n = { 0 };
	hz_quat_pool_opts p = { .window = { 2, 2 } };
	hz_packed packed = { 0 };
	size_t bytes = 0;
	void *blob;

	if (dev->device != HZ_CPU)
		return;
	refuses(dev, hz_quat_linear(c, NULL, &w, &b, &y, NULL), HZ_EINVAL,
		"quat_linear: x is NULL, must be a view");
	refuses(dev, hz_quat_linear(c, &x, NULL, &b, &y, NULL), HZ_EINVAL,
		"quat_linear: w is NULL, must be a view");
	t.shape[1] = 4;
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &t, NULL), HZ_ESHAPE,
		"quat_linear: y.shape[1] is 4, must be 5, as w");
	t = y;
	t.shape[2] = 3;
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &t, NULL), HZ_ESHAPE,
		"quat_linear: y.shape[2] is 3, must be 4");
	t = y;
	t.dtype = HZ_F16;
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &t, NULL), HZ_EDTYPE,
		"quat_linear: y.dtype is f16, must be f32");
	t = b;
	t.dtype = HZ_F64;
	refuses(dev, hz_quat_linear(c, &x, &w, &t, &y, NULL), HZ_EDTYPE,
		"quat_linear: b.dtype is f64, must be f32");
	t = y;
	t.data = memory + 2;
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &t, NULL), HZ_EALIAS,
		"quat_linear: y overlaps x, must be apart from it");
	o.side = 2;
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->side is 2, must be 0 to 1");
	o = (hz_quat_linear_opts){ .activation = 9 };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->activation is 9, must be 0 to 8");
	o = (hz_quat_linear_opts){ .activation = HZ_ACT_NORMCLIP };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->slope is 0, must be positive and finite for HZ_ACT_NORMCLIP");
	o = (hz_quat_linear_opts){ .slope = 0.5 };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->slope is 0.5, must be 0 unless opts->activation is "
		"HZ_ACT_LEAKY, HZ_ACT_MODRELU or HZ_ACT_NORMCLIP");
	o = (hz_quat_linear_opts){ .flags = HZ_QUAT_ACCUMULATE };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: HZ_QUAT_ACCUMULATE is for the backward call");
	o = (hz_quat_linear_opts){ .flags = 1u << 30 };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->flags has unknown bits 0x40000000 (valid: HZ_QUAT_XYZW, "
		"HZ_QUAT_ACCUMULATE, HZ_QUAT_ROTATION)");
	o = (hz_quat_linear_opts){ .scale = &s };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->scale needs HZ_QUAT_ROTATION");
	o = (hz_quat_linear_opts){ .flags = HZ_QUAT_ROTATION, .dscale = &s };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->dscale is for the backward call");
	o = (hz_quat_linear_opts){ .flags = HZ_QUAT_ROTATION, .packed = &packed };
	refuses(dev, hz_quat_linear(c, &x, NULL, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->packed does not go with HZ_QUAT_ROTATION");
	o = (hz_quat_linear_opts){ .packed = &packed };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL,
		"quat_linear: w and opts->packed are both given, must be one of them");
	refuses(dev, hz_quat_linear(c, &x, NULL, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->packed is not as hz_quat_gemm_pack() filled it");
	hz_quat_gemm_pack_bytes(c, &w, NULL, &bytes);
	blob = aligned_alloc(64, (bytes + 63) / 64 * 64);
	is_int(hz_quat_gemm_pack(c, &w, blob, bytes, &packed, NULL), HZ_OK, "weights are packed");
	t = x;
	t.dtype = HZ_F64;
	refuses(dev, hz_quat_linear(c, &t, NULL, NULL, &t, &o), HZ_EDTYPE,
		"quat_linear: opts->packed->dtype is f32, must be f64, as x");
	o.method = HZ_QUAT_FAST;
	refuses(dev, hz_quat_linear(c, &x, NULL, &b, &y, &o), HZ_EINVAL,
		"quat_linear: opts->method and precision must be those of opts->packed");
	free(blob);
	o = (hz_quat_linear_opts){ .reserved = { 0, 1 } };
	refuses(dev, hz_quat_linear(c, &x, &w, &b, &y, &o), HZ_EINVAL, "opts->reserved[1] is 1");
	refuses(dev, hz_quat_linear_bwd(c, NULL, &w, NULL, &y, NULL, &w, NULL, NULL), HZ_EINVAL,
		"quat_linear_bwd: x is NULL");
	refuses(dev, hz_quat_linear_bwd(c, &x, &w, NULL, &y, &x, NULL, NULL, NULL), HZ_EALIAS,
		"quat_linear_bwd: dx overlaps x");

	os[2] = 5;
	bad = hz_tensor_nd(memory + 2000, HZ_F32, HZ_CPU, 5, os);
	refuses(dev, hz_quat_conv(c, &image, &kernel, NULL, &bad, NULL), HZ_ESHAPE,
		"quat_conv: y.shape[2] is 5, must be 4, what the convolution makes of x.shape[2] = "
		"6");
	v.groups = 3;
	refuses(dev, hz_quat_conv(c, &image, &kernel, NULL, &out, &v), HZ_ESHAPE,
		"quat_conv: w.shape[0] is 4, must be a multiple of opts->groups");
	v.groups = 2;
	refuses(dev, hz_quat_conv(c, &image, &kernel, NULL, &out, &v), HZ_ESHAPE,
		"quat_conv: x.shape[3] is 2, must be 4, w's last channels times groups");
	v = (hz_quat_conv_opts){ .stride = { 1, -1 } };
	refuses(dev, hz_quat_conv(c, &image, &kernel, NULL, &out, &v), HZ_EINVAL,
		"quat_conv: opts->stride[1] is -1, must be 1 to");
	v = (hz_quat_conv_opts){ .pad = { 0, 0, 1 } };
	refuses(dev, hz_quat_conv(c, &image, &kernel, NULL, &out, &v), HZ_EINVAL,
		"quat_conv: opts->pad[2] is 1, must be 0: x has 2 spatial dimensions");
	v = (hz_quat_conv_opts){ .flags = HZ_QUAT_NOCONJ };
	refuses(dev, hz_quat_conv(c, &image, &kernel, NULL, &out, &v), HZ_EINVAL,
		"quat_conv: HZ_QUAT_NOCONJ needs HZ_QUAT_TRANSPOSED");
	refuses(dev, hz_quat_conv(c, &x, &kernel, NULL, &out, NULL), HZ_ESHAPE,
		"quat_conv: x.ndim is 3, must be 4 to 6");

	/* Sizes that only empty or broadcast views can have */
	t = hz_tensor_3d(memory, HZ_F32, HZ_CPU, 0, (int64_t)1 << 60, 4);
	refuses(dev, hz_quat_batchnorm(c, &t, NULL, NULL, &t, NULL), HZ_ESHAPE,
		"quat_batchnorm: x is too large: its size overflows");
	t = hz_tensor_3d(memory, HZ_F32, HZ_CPU, (int64_t)1 << 60, 0, 4);
	refuses(dev, hz_quat_linear(c, &t, &w, NULL, &y, NULL), HZ_ESHAPE,
		"quat_linear: x is too large: its size overflows");
	t = x;
	t.shape[0] = (int64_t)1 << 50;
	t.stride[0] = 0;
	refuses(dev, hz_quat_linear(c, &t, &w, NULL, &y, NULL), HZ_ESHAPE,
		"quat_linear: x is too large: its size overflows");

	t = x;
	t.data = memory + 3000;
	refuses(dev, hz_quat_batchnorm(c, &x, &b, NULL, &t, NULL), HZ_ESHAPE,
		"quat_batchnorm: gamma.ndim is 2, must be 1");
	n.flags = HZ_QUAT_EVAL;
	refuses(dev, hz_quat_batchnorm(c, &x, &g, NULL, &t, &n), HZ_EINVAL,
		"quat_batchnorm: HZ_QUAT_EVAL needs opts->running_mean and running_var");
	n = (hz_quat_batchnorm_opts){ .eps = -1, .given = HZ_QUAT_BATCHNORM_GIVEN_EPS };
	refuses(dev, hz_quat_batchnorm(c, &x, &g, NULL, &t, &n), HZ_EINVAL,
		"quat_batchnorm: opts->eps is -1, must be finite and not negative");
	n.given = HZ_QUAT_BATCHNORM_GIVEN_MOMENTUM;
	refuses(dev, hz_quat_batchnorm(c, &x, &g, NULL, &t, &n), HZ_EINVAL,
		"quat_batchnorm: opts->eps is -1, but opts->given lacks "
		"HZ_QUAT_BATCHNORM_GIVEN_EPS: set it, or eps to 0");
	n = (hz_quat_batchnorm_opts){ .momentum = 0.5, .given = HZ_QUAT_BATCHNORM_GIVEN_EPS };
	refuses(dev, hz_quat_batchnorm(c, &x, &g, NULL, &t, &n), HZ_EINVAL,
		"quat_batchnorm: opts->momentum is 0.5, but opts->given lacks "
		"HZ_QUAT_BATCHNORM_GIVEN_MOMENTUM: set it, or momentum to 0");
	n = (hz_quat_batchnorm_opts){ .momentum = 2, .given = HZ_QUAT_BATCHNORM_GIVEN_MOMENTUM };
	refuses(dev, hz_quat_batchnorm(c, &x, &g, NULL, &t, &n), HZ_EINVAL,
		"quat_batchnorm: opts->momentum is 2, must be 0 to 1");
	n = (hz_quat_batchnorm_opts){ .given = 4 };
	refuses(dev, hz_quat_batchnorm(c, &x, &g, NULL, &t, &n), HZ_EINVAL,
		"quat_batchnorm: opts->given has unknown bits 0x4 (valid: "
		"HZ_QUAT_BATCHNORM_GIVEN_EPS, HZ_QUAT_BATCHNORM_GIVEN_MOMENTUM)");
	n = (hz_quat_batchnorm_opts){ .flags = HZ_QUAT_ACCUMULATE };
	refuses(dev, hz_quat_batchnorm(c, &x, &g, NULL, &t, &n), HZ_EINVAL,
		"quat_batchnorm: HZ_QUAT_ACCUMULATE is for the backward call");
	refuses(dev, hz_quat_batchnorm_bwd(c, &x, &g, &t, NULL, NULL, NULL, NULL), HZ_EINVAL,
		"quat_batchnorm_bwd: opts->saved is NULL");
	refuses(dev, hz_quat_pool(c, &image, &out, NULL, NULL), HZ_EINVAL,
		"quat_pool: opts is NULL, must have a window");
	refuses(dev, hz_quat_pool(c, &image, &out, NULL, &p), HZ_ESHAPE,
		"quat_pool: y.shape[3] is 4, must be 2, as x");
	p.pad[0] = 2;
	os[2] = 3;
	os[1] = 4;
	os[3] = 2;
	bad = hz_tensor_nd(memory + 2000, HZ_F32, HZ_CPU, 5, os);
	refuses(dev, hz_quat_pool(c, &image, &bad, NULL, &p), HZ_EINVAL,
		"quat_pool: opts->pad[0] is 2, must be 0 to 1, half the window");
	p = (hz_quat_pool_opts){ .window = { 2, 2, 2 } };
	refuses(dev, hz_quat_pool(c, &image, &bad, NULL, &p), HZ_EINVAL,
		"quat_pool: opts->window[2] is 2, must be 0: x has 2 spatial dimensions");
	p = (hz_quat_pool_opts){ .stride = { 1, 1 } };
	refuses(dev, hz_quat_pool(c, &image, &bad, NULL, &p), HZ_EINVAL,
		"quat_pool: opts->window[0] is 0, must be 1 to 2147483647");
	p = (hz_quat_pool_opts){ .window = { 2, 2 }, .stride = { 1, -1 } };
	refuses(dev, hz_quat_pool(c, &image, &bad, NULL, &p), HZ_EINVAL,
		"quat_pool: opts->stride[1] is -1, must be 0 to 2147483647");
	p = (hz_quat_pool_opts){ .window = { 2, 2 }, .flags = HZ_QUAT_ACCUMULATE };
	refuses(dev, hz_quat_pool(c, &image, &bad, NULL, &p), HZ_EINVAL,
		"quat_pool: HZ_QUAT_ACCUMULATE is for the backward call");
	os[1] = os[2] = 3;
	bad = hz_tensor_nd(memory + 2000, HZ_F32, HZ_CPU, 5, os);
	places = hz_tensor_nd(memory + 3000, HZ_S32, HZ_CPU, 4, os);
	p = (hz_quat_pool_opts){ .window = { 2, 2 }, .kind = HZ_POOL_AVERAGE };
	refuses(dev, hz_quat_pool(c, &image, &bad, &places, &p), HZ_EINVAL,
		"quat_pool: index needs HZ_POOL_MAX");
	p.kind = HZ_POOL_MAX;
	refuses(dev, hz_quat_pool_bwd(c, NULL, &bad, &image, &p), HZ_EINVAL,
		"quat_pool_bwd: index is NULL, must be what hz_quat_pool() filled");
	places.ndim = 3;
	refuses(dev, hz_quat_pool(c, &image, &bad, &places, &p), HZ_ESHAPE,
		"quat_pool: index.ndim is 3, must be 4");
	/* One quaternion viewed as 2^32 */
	os[1] = os[2] = os[3] = 1;
	bad = hz_tensor_nd(memory + 2000, HZ_F32, HZ_CPU, 5, os);
	places = hz_tensor_nd(memory + 3000, HZ_S32, HZ_CPU, 4, os);
	image.shape[1] = image.shape[2] = 65536;
	image.shape[3] = 1;
	image.stride[1] = image.stride[2] = 0;
	p.window[0] = p.window[1] = 65536;
	refuses(dev, hz_quat_pool(c, &image, &bad, &places, &p), HZ_ESHAPE,
		"quat_pool: x has more places than an s32 index counts");
	t = x;
	t.data = memory + 3000;
	refuses(dev, hz_quat_dropout(c, &x, &t, 1.5, 0, 0), HZ_EINVAL,
		"quat_dropout: p is 1.5, must be 0 to 1");
	refuses(dev, hz_quat_init(c, &x, 3, 1, 0, 0, 0), HZ_EINVAL,
		"quat_init: distribution is 3, must be 0 to 2");
	refuses(dev, hz_quat_init(c, &x, 0, 0, 0, 0, 0), HZ_EINVAL,
		"quat_init: scale is 0, must be positive and finite");
	refuses(dev, hz_quat_init(c, &x, 0, 1, 0, 0, HZ_QUAT_EVAL), HZ_EINVAL,
		"quat_init: flags has unknown bits");
	is_int(hz_quat_linear(c, &x, &w, &b, &y, NULL), HZ_OK, "the valid call, after all of these");
}

int main(void)
{
	int i;

	rnd = tap_seed();
	dev_open_all();
	for (i = 0; i < ndevs; i++) {
		test_linear(&devs[i]);
		test_long(&devs[i]);
		test_cat(&devs[i]);
		test_huge_strides(&devs[i]);
	}
	test_bits();
	test_errors(&devs[0]);
	dev_close_all();
	return done_testing();
}
