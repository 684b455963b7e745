/*
 * quat_conv.c - quaternion convolutions against definitions in double
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "t/quat_layer/quat_layer.h"

/* The definition: for each pixel of the smaller image and each tap, the pixel of the larger one.
 * With dw it computes the gradient of w from x and the gradient y. */
static void conv_ref(struct model *m)
{
	int64_t cig = m->ci / m->groups, cog = m->co / m->groups;
	int64_t bigs = m->big[0] * m->big[1] * m->big[2];
	int64_t smalls = m->small[0] * m->small[1] * m->small[2];
	int64_t taps = m->taps[0] * m->taps[1] * m->taps[2], i, s, t, o, c, k;
	int64_t channels = m->transposed ? m->ci : m->co;

	if (m->dw)
		memset(m->dw, 0, (size_t)(4 * m->co * taps * cig) * sizeof(double));
	else
		memset(m->y, 0, (size_t)m->ny * sizeof(double));
	for (i = 0; i < m->batch; i++) {
		for (s = 0; s < smalls; s++) {
			for (t = 0; t < taps; t++) {
				int64_t at[3], rs = s, rt = t;
				int d, inside = 1;

				for (d = 2; d >= 0; d--) {
					at[d] = rs % m->small[d] * m->step[d] +
						rt % m->taps[d] * m->dil[d] - m->pad[d];
					rs /= m->small[d];
					rt /= m->taps[d];
					if (m->reflect && at[d] < 0)
						at[d] = -at[d];
					if (m->reflect && at[d] >= m->big[d])
						at[d] = 2 * (m->big[d] - 1) - at[d];
					inside &= at[d] >= 0 && at[d] < m->big[d];
				}
				if (!inside)
					continue;
				k = (at[0] * m->big[1] + at[1]) * m->big[2] + at[2];
				for (o = 0; o < m->co; o++) {
					for (c = 0; c < cig; c++) {
						const double *w =
							m->w + 4 * ((o * taps + t) * cig + c);
						int64_t b = (i * bigs + k) * m->ci +
							    o / cog * cig + c;
						int64_t u = (i * smalls + s) * m->co + o;
						double wc[4], one[4];
						double *y = m->y + 4 * (m->transposed ? b : u);
						double *x = m->x + 4 * (m->transposed ? u : b);
						int conj = m->transposed && !m->noconj;

						/* y = conj(w) x: dw = x conj(dy); y = w x: dw = dy
						 * conj(x) */
						if (m->dw) {
							double *p = conj ? x : y;

							conj_of(one, conj ? y : x);
							mul(m->dw + (w - m->w), m->right ? one : p,
							    m->right ? p : one);
							continue;
						}
						if (m->rotate) {
							add_rotated(y, m->s ? m->s[(w - m->w) / 4]
									    : 1, w, x, m->w_eps,
								    m->eps_norm, conj != m->right);
							continue;
						}
						conj_of(wc, w);
						if (conj)
							w = wc;
						mul(y, m->right ? x : w, m->right ? w : x);
					}
				}
			}
		}
	}
	for (i = 0; i < m->ny / 4 && !m->dw; i++) {
		for (c = 0; c < 4 && m->b; c++)
			m->y[4 * i + c] += m->b[4 * (i % channels) + c];
		if (m->pre)
			memcpy(m->pre + 4 * i, m->y + 4 * i, 4 * sizeof(double));
		activate(m->act, m->slope, m->y + 4 * i);
	}
}

static int conv_case(struct dev *dev, int dtype, int nd, struct model *g, hz_quat_conv_opts o,
		     int with_bias, int with_pre)
{
	int64_t xs[5], ys[5], ws[5];
	int first = 3 - nd, xyzw = (o.flags & HZ_QUAT_XYZW) != 0, good = 1, d;
	int sum = rnd_below(&rnd, 2) ? HZ_QUAT_ACCUMULATE : 0;
	struct tensor x, w, b = { 0 }, y, dy, dx, dw, db = { 0 }, pre = { 0 }, s = { 0 },
		      ds = { 0 };
	struct model ref = *g;
	int64_t channels = g->transposed ? g->ci : g->co;
	const double bound = tolerance(dtype);	/* relative to the magnitudes of the terms */
	double *old_w, *old_b = NULL, *old_s = NULL;
	hz_quat_conv_opts back;

	xs[0] = ys[0] = g->batch;
	ws[0] = g->co;
	for (d = 0; d < nd; d++) {
		xs[1 + d] = g->transposed ? g->small[first + d] : g->big[first + d];
		ys[1 + d] = g->transposed ? g->big[first + d] : g->small[first + d];
		ws[1 + d] = g->taps[first + d];
		o.stride[d] = g->step[first + d];
		o.dilation[d] = g->dil[first + d];
		o.pad[d] = g->pad[first + d];
	}
	xs[1 + nd] = g->transposed ? g->co : g->ci;
	ys[1 + nd] = channels;
	ws[1 + nd] = g->ci / g->groups;
	o.groups = (int32_t)g->groups;
	x = quats(dev, dtype, nd + 2, xs, layout(), xyzw, 1);
	w = quats(dev, dtype, nd + 2, ws, layout(), xyzw, 0.5);
	y = quats(dev, dtype, nd + 2, ys, output_layout(), xyzw, 0);
	dy = quats(dev, dtype, nd + 2, ys, layout(), xyzw, 1);
	dx = quats(dev, dtype, nd + 2, xs, output_layout(), xyzw, 0);
	dw = quats(dev, dtype, nd + 2, ws, output_layout(), xyzw, 1);
	if (with_bias) {
		b = quats(dev, dtype, 1, &channels, layout(), xyzw, 1);
		db = quats(dev, dtype, 1, &channels, output_layout(), xyzw, 1);
	}
	if (with_pre) {
		pre = quats(dev, dtype, nd + 2, ys, output_layout(), xyzw, 0);
		o.pre = &pre.view;
	}
	if (g->rotate && rnd_below(&rnd, 2)) {
		s = make(dev, dtype, nd + 2, ws, AOS, 0, 0, 1);
		ds = make(dev, dtype, nd + 2, ws, AOS, 0, 0, 1);
		o.scale = &s.view;
	}
	ref.s = s.v;
	ref.forward = conv_ref;
	ref.act = o.activation;
	ref.slope = o.slope;
	ref.right = o.side;
	bind_model(&ref, &x, &w, &b, &y);
	ref.pre = calloc((size_t)y.n + 1, sizeof(double));
	good = RUN(conv, &x.view, &w.view, with_bias ? &b.view : NULL, &y.view, &o);
	ref.forward(&ref);
	good = good && near(&y, ref.y, "y");
	if (with_pre) {
		good = good && near(&pre, ref.pre, "pre");
		upload(&pre, ref.pre);
	}
	back = o;
	back.flags |= (uint32_t)sum;
	if (s.v) {
		back.dscale = &ds.view;
		old_s = copy_of(ds.v, ds.n);
	}
	old_w = copy_of(dw.v, dw.n);
	if (with_bias)
		old_b = copy_of(db.v, db.n);
	good = good && RUN(conv_bwd, &x.view, &w.view, with_bias ? &b.view : NULL, &dy.view,
			   &dx.view, &dw.view, with_bias ? &db.view : NULL, &back);
	if (at_kink(&ref, dtype))
		goto out;
	good = good && is_gradient(&ref, &dy, &x, NULL, bound, &dx, "dx") &&
	       is_gradient(&ref, &dy, &w, sum ? old_w : NULL, bound, &dw, "dw");
	if (with_bias)
		good = good && is_gradient(&ref, &dy, &b, sum ? old_b : NULL, bound, &db, "db");
	/* A gradient of a scale is a sum of products of dy and x, with terms of both signs. */
	if (s.v) {
		const double usual = norm(dy.v, dy.n) * norm(x.v, x.n) *
				     sqrt((double)s.n / (double)(x.n + 1));

		good = good && is_gradient_of_sums(&ref, &dy, &s, sum ? old_s : NULL, bound,
						   usual, &ds, "dscale");
	}
out:
	if (!good)
		diag("%s: %s, %d dimensions, images %lld, big %lld %lld %lld, taps %lld %lld %lld, "
		     "stride %lld %lld %lld, pad %lld %lld %lld, dilation %lld %lld %lld, "
		     "channels %lld to %lld, groups %lld, side %d, activation %d, flags %#x, "
		     "bias %d, pre %d, pad mode %d, eps %g rule %d", dev->name,
		     hz_dtype_name(dtype), nd, (long long)g->batch,
		     (long long)g->big[0], (long long)g->big[1], (long long)g->big[2],
		     (long long)g->taps[0], (long long)g->taps[1], (long long)g->taps[2],
		     (long long)g->step[0], (long long)g->step[1], (long long)g->step[2],
		     (long long)g->pad[0], (long long)g->pad[1], (long long)g->pad[2],
		     (long long)g->dil[0], (long long)g->dil[1], (long long)g->dil[2],
		     (long long)g->ci, (long long)g->co, (long long)g->groups, o.side,
		     o.activation, o.flags, with_bias, with_pre, o.pad_mode, o.eps, o.eps_rule);
	drop(&x), drop(&w), drop(&b), drop(&y), drop(&dy), drop(&dx), drop(&dw), drop(&db);
	drop(&pre), drop(&s), drop(&ds);
	free(ref.y), free(ref.pre), free(old_w), free(old_b), free(old_s);
	return good;
}

static int random_conv(struct dev *dev, int dtype, int nd)
{
	hz_quat_conv_opts o = { .side = (int)rnd_below(&rnd, 2), .method = (int)rnd_below(&rnd, 3),
				.activation = rnd_below(&rnd, 3) ? 0 : (int)rnd_below(&rnd, 9),
				.flags = rnd_below(&rnd, 2) ? HZ_QUAT_XYZW : 0 };
	struct model g = { .batch = 1 + rnd_below(&rnd, 3), .groups = 1 + rnd_below(&rnd, 3),
			   .taps = { 1, 1, 1 }, .step = { 1, 1, 1 }, .dil = { 1, 1, 1 },
			   .big = { 1, 1, 1 }, .small = { 1, 1, 1 } };
	const double epses[] = { 0, 1e-4, 0.3 };
	int plain = rnd_below(&rnd, 5) == 0, many = 0, d;

	o.slope = ref_slope(o.activation, 0.5);
	g.ci = g.groups * (1 + rnd_below(&rnd, 3));
	g.co = g.groups * (1 + rnd_below(&rnd, 3));
	if (rnd_below(&rnd, 4) == 0) {	/* depthwise */
		many = nd == 1 && rnd_below(&rnd, 3) == 0;
		g.ci = g.co = g.groups = (many ? 60 : 2) + rnd_below(&rnd, 9);
		g.batch = many ? 1 : g.batch;
	}
	if (rnd_below(&rnd, 2)) {
		g.transposed = 1;
		g.noconj = (int)rnd_below(&rnd, 2);
		o.flags |= HZ_QUAT_TRANSPOSED | (g.noconj ? HZ_QUAT_NOCONJ : 0);
	}
	if (rnd_below(&rnd, 3) == 0) {
		o.flags |= HZ_QUAT_ROTATION;
		g.rotate = 1;
		g.w_eps = o.eps = epses[rnd_below(&rnd, 3)];
		g.eps_norm = o.eps_rule = (int)rnd_below(&rnd, 2);
	}
	o.pad_mode = (int)rnd_below(&rnd, g.transposed ? 2 : 3);
	g.reflect = o.pad_mode == HZ_PAD_REFLECT;
	for (d = 3 - nd; d < 3; d++) {
		int64_t most = nd == 3 || many ? 4 : nd == 2 ? 6 : 12, span, ends;

		g.big[d] = 1 + rnd_below(&rnd, most);
		if (!plain) {
			g.taps[d] = 1 + rnd_below(&rnd, 3);
			g.step[d] = 1 + rnd_below(&rnd, 3);
			g.dil[d] = 1 + rnd_below(&rnd, 3);
			g.pad[d] = rnd_below(&rnd, 4);
		}
		span = (g.taps[d] - 1) * g.dil[d] + 1;
		ends = o.pad_mode == HZ_PAD_CAUSAL ? 1 : 2;
		while (g.big[d] + ends * g.pad[d] < span || (g.reflect && g.big[d] <= g.pad[d]))
			g.big[d]++;
		g.small[d] = (g.big[d] + ends * g.pad[d] - span) / g.step[d] + 1;
	}
	return conv_case(dev, dtype, nd, &g, o, (int)rnd_below(&rnd, 2),
			 o.activation && rnd_below(&rnd, 2));
}

static void test_conv(struct dev *dev)
{
	int t, nd, i, cases = tap_quick() ? 1 : dev == devs ? 5 : 2, good;

	for (nd = 1; nd <= 3; nd++) {
		for (t = 0; t < types_of(dev); t++) {
			good = 1;
			for (i = 0; i < cases; i++)
				good &= random_conv(dev, types[t], nd);
			ok(good, "%s: convolutions in %d dimensions, %s", dev->name, nd,
			   hz_dtype_name(types[t]));
		}
	}
}

/* y, dx (a convolution of dy) and dw, with channels that fill tensor-core tiles. in: layout of x
 * and dy. With so many terms per sum, errors are compared in norm. */
static int large_case(struct dev *dev, int dtype, int nd, struct model *g, hz_quat_conv_opts o,
		     int in, int with_bias, int with_pre)
{
	const int64_t channels = g->transposed ? g->ci : g->co;
	int xyzw = (o.flags & HZ_QUAT_XYZW) != 0, good, d;
	struct tensor x, w, b = { 0 }, y, pre = { 0 }, dy, dx, dw;
	int64_t xs[5], ys[5], ws[5];
	struct model ref;

	o.flags |= g->transposed ? HZ_QUAT_TRANSPOSED : 0;
	o.groups = (int32_t)g->groups;
	xs[0] = ys[0] = g->batch;
	ws[0] = g->co;
	for (d = 3 - nd; d < 3; d++) {
		const int64_t span = (g->taps[d] - 1) * g->dil[d] + 1;

		while (g->big[d] + 2 * g->pad[d] < span)
			g->big[d]++;
		g->small[d] = (g->big[d] + 2 * g->pad[d] - span) / g->step[d] + 1;
		xs[d + nd - 2] = g->transposed ? g->small[d] : g->big[d];
		ys[d + nd - 2] = g->transposed ? g->big[d] : g->small[d];
		ws[d + nd - 2] = g->taps[d];
		o.stride[d + nd - 3] = g->step[d];
		o.dilation[d + nd - 3] = g->dil[d];
		o.pad[d + nd - 3] = g->pad[d];
	}
	xs[1 + nd] = g->transposed ? g->co : g->ci;
	ys[1 + nd] = channels;
	ws[1 + nd] = g->ci / g->groups;
	x = quats(dev, dtype, nd + 2, xs, in, xyzw, 1);
	w = quats(dev, dtype, nd + 2, ws, layout(), xyzw, 0.05);
	y = quats(dev, dtype, nd + 2, ys, output_layout(), xyzw, 0);
	dy = quats(dev, dtype, nd + 2, ys, in, xyzw, 1);
	dx = quats(dev, dtype, nd + 2, xs, output_layout(), xyzw, 0);
	dw = quats(dev, dtype, nd + 2, ws, output_layout(), xyzw, 0);
	if (with_bias)
		b = quats(dev, dtype, 1, &channels, layout(), xyzw, 1);
	if (with_pre) {
		pre = quats(dev, dtype, nd + 2, ys, output_layout(), xyzw, 0);
		o.pre = &pre.view;
	}
	ref = *g;
	ref.act = o.activation;
	ref.slope = o.slope;
	ref.right = o.side;
	bind_model(&ref, &x, &w, &b, &y);
	ref.pre = with_pre ? calloc((size_t)y.n + 1, sizeof(double)) : NULL;
	good = RUN(conv, &x.view, &w.view, with_bias ? &b.view : NULL, &y.view, &o);
	conv_ref(&ref);
	good = good && near(&y, ref.y, "y") && (!with_pre || near(&pre, ref.pre, "pre"));
	o.activation = HZ_ACT_NONE;
	o.slope = 0;
	o.pre = NULL;
	good = good && RUN(conv_bwd, &x.view, &w.view, NULL, &dy.view, &dx.view, &dw.view, NULL,
			   &o);
	free(ref.y), free(ref.pre);
	ref.y = dy.v;
	ref.dw = calloc((size_t)w.n + 1, sizeof(double));
	conv_ref(&ref);
	good = good && near(&dw, ref.dw, "dw");
	free(ref.dw);
	ref.dw = NULL;
	ref.transposed = !g->transposed;
	ref.act = HZ_ACT_NONE;
	ref.ny = dx.n;
	ref.x = dy.v;
	ref.b = ref.pre = NULL;
	ref.y = calloc((size_t)dx.n + 1, sizeof(double));
	conv_ref(&ref);
	good = good && near(&dx, ref.y, "dx");
	if (!good)
		diag("%s: %s, %d dimensions, images %lld, big %lld %lld %lld, taps %lld %lld %lld, "
		     "stride %lld %lld %lld, pad %lld %lld %lld, dilation %lld %lld %lld, "
		     "channels %lld to %lld, groups %lld, side %d, flags %#x, bias %d, pre %d",
		     dev->name, hz_dtype_name(dtype), nd, (long long)g->batch,
		     (long long)g->big[0], (long long)g->big[1], (long long)g->big[2],
		     (long long)g->taps[0], (long long)g->taps[1], (long long)g->taps[2],
		     (long long)g->step[0], (long long)g->step[1], (long long)g->step[2],
		     (long long)g->pad[0], (long long)g->pad[1], (long long)g->pad[2],
		     (long long)g->dil[0], (long long)g->dil[1], (long long)g->dil[2],
		     (long long)g->ci, (long long)g->co, (long long)g->groups, o.side, o.flags,
		     with_bias, with_pre);
	drop(&x), drop(&w), drop(&b), drop(&y), drop(&pre), drop(&dy), drop(&dx), drop(&dw);
	free(ref.y);
	return good;
}

/* Sizes around tile edges; channels are a multiple of unit. */
static int random_many(struct dev *dev, int dtype, int nd, int in, int unit)
{
	hz_quat_conv_opts o = { .side = (int)rnd_below(&rnd, 2), .method = HZ_QUAT_FAST,
				.activation = rnd_below(&rnd, 2) ? 0 : (int)rnd_below(&rnd, 9),
				.flags = rnd_below(&rnd, 4) ? 0 : HZ_QUAT_XYZW };
	struct model g = { .batch = 1 + (in == BACKWARDS) + rnd_below(&rnd, 3),
			   .groups = 1 + rnd_below(&rnd, 2), .taps = { 1, 1, 1 },
			   .step = { 1, 1, 1 }, .dil = { 1, 1, 1 }, .big = { 1, 1, 1 },
			   .small = { 1, 1, 1 } };
	const int with_bias = (int)rnd_below(&rnd, 2), with_pre = (int)rnd_below(&rnd, 2);
	const int points = rnd_below(&rnd, 4) == 0;
	int d;

	o.slope = ref_slope(o.activation, 0.5);
	g.ci = g.groups * ((30 + rnd_below(&rnd, 40)) / unit * unit);
	g.co = g.groups * ((32 + rnd_below(&rnd, 40)) / unit * unit);
	if (rnd_below(&rnd, 4) == 0) {	/* few channels, as in a first layer */
		g.groups = 1;
		g.ci = 1 + rnd_below(&rnd, 5);
	} else if (rnd_below(&rnd, 3) == 0) {	/* several groups per tile */
		if (rnd_below(&rnd, 2))
			unit = 8;
		g.groups = 2 + rnd_below(&rnd, 8);
		g.ci = g.groups * ((8 + rnd_below(&rnd, 16)) / unit * unit);
		g.co = g.groups * ((8 + rnd_below(&rnd, 16)) / unit * unit);
	}
	g.transposed = (int)rnd_below(&rnd, 2);
	for (d = 3 - nd; d < 3; d++) {
		g.big[d] = nd == 1 ? 20 + rnd_below(&rnd, 160) : nd == 2 ? 8 + rnd_below(&rnd, 10) :
			   3 + rnd_below(&rnd, 3);
		g.taps[d] = points ? 1 : 1 + rnd_below(&rnd, nd == 3 ? 3 : 5);
		g.step[d] = rnd_below(&rnd, 2) ? 1 : 1 + rnd_below(&rnd, 3);
		g.dil[d] = rnd_below(&rnd, 2) ? 1 : 1 + rnd_below(&rnd, 3);
		g.pad[d] = rnd_below(&rnd, 4);
	}
	/* Split-precision kernels for contiguous pixels support only f32 data. */
	if (dtype != HZ_F32 && with_bias)
		o.precision = HZ_PRECISION_SPLIT;
	return large_case(dev, dtype, nd, &g, o, in, with_bias, with_pre);
}

/* Groups with few channels, and many input with few output channels, which have kernels of their
 * own on a GPU; also gradients */
static void test_few_channels(struct dev *dev)
{
	/* input channels, output channels, groups; taps of depthwise cases */
	static const int64_t channels[][4] = { { 6, 6, 6, 3 }, { 4, 8, 2 }, { 18, 3, 1 },
					       { 2, 17, 1 }, { 32, 2, 2 }, { 3, 3, 3, 5 },
					       { 2, 2, 2, 7 } };
	int t, i;

	for (t = 0; t < types_of(dev); t++) {
		int good = 1;

		for (i = 0; i < (int)(sizeof(channels) / sizeof(*channels)); i++) {
			hz_quat_conv_opts o = { .side = i % 2 };
			const int64_t taps = channels[i][3];
			struct model g = { .batch = taps > 3 ? 1 : 1 + i % 2,
					   .groups = channels[i][2], .big = { 1, 3, 5 },
					   .taps = { 1, 2, 3 },
					   .step = { 1, 1 + i % 2, 1 }, .dil = { 1, 1, 1 + i / 3 },
					   .pad = { 0, 1, 1 }, .small = { 1, 1, 1 },
					   .ci = channels[i][0], .co = channels[i][1] };

			/* strips of rows */
			for (int d = 1; taps && d < 3; d++) {
				g.big[d] = d == 2 ? 5 : (taps > 3 ? 9 : 17) + rnd_below(&rnd, 3);
				g.taps[d] = taps;
				g.step[d] = g.dil[d] = 1;
				g.pad[d] = taps / 2 + rnd_below(&rnd, 2);
			}
			for (int d = 1; d < 3; d++)
				g.small[d] = (g.big[d] + 2 * g.pad[d] - (g.taps[d] - 1) * g.dil[d] -
					      1) / g.step[d] + 1;
			if (!tap_quick() || dev->device >= HZ_CUDA || (i + t) % 2)
				good &= conv_case(dev, types[t], 2, &g, o, i % 2, 0);
		}
		ok(good, "%s: few channels, %s", dev->name, hz_dtype_name(types[t]));
	}
}

static void test_many_channels(struct dev *dev)
{
	const int gpu = dev->device >= HZ_CUDA;
	int t, nd, i, cases = gpu && !tap_quick() ? 6 : 1;

	/* ISA levels share this code. */
	if (!gpu && dev != devs)
		return;
	for (nd = 1; nd <= 3; nd++) {
		if (!gpu && tap_quick() && nd != 2)
			continue;
		for (t = 0; t < types_of(dev); t++) {
			int good = 1;

			/* multiples of 8, any, multiples of 2: alignments of weights and pixels */
			for (i = 0; i < cases; i++)
				good &= random_many(dev, types[t], nd, i ? layout() : BACKWARDS,
						  i % 3 ? i % 3 : 8);
			ok(good, "%s: convolutions of many channels in %d dimensions, %s",
			   dev->name, nd, hz_dtype_name(types[t]));
		}
	}
}

/*
 * Shapes for which random ones are too small: enough pixels for kernels that need many; an odd
 * number of channels per group, so that groups of 16-bit data are not all 16-byte aligned; more
 * taps than the planar gradient supports; in f32 more tiles of pixels per block than pipeline
 * stages.
 */
static void test_large_conv(struct dev *dev)
{
	static const struct {
		int64_t batch, big[2], taps[2], step[2], ci, co, groups;
	} shapes[] = {
		{8, {56, 56}, {1, 1}, {1, 1}, 34, 34, 2},
		{8, {56, 112}, {1, 1}, {1, 2}, 36, 68, 4},
		{8, {56, 112}, {1, 2}, {1, 2}, 34, 36, 2},
		{2, {16, 15}, {12, 12}, {1, 1}, 64, 64, 2},
		{1, {14, 13}, {12, 12}, {1, 1}, 128, 128, 1},
		{2, {16, 15}, {12, 12}, {1, 1}, 66, 64, 2},
		/* f32 */
		{7, {56, 57}, {1, 1}, {1, 1}, 16, 15, 1},
		{4, {52, 53}, {1, 1}, {1, 1}, 17, 33, 1},
		{4, {41, 43}, {3, 3}, {1, 1}, 17, 12, 1},
		{3, {63, 57}, {3, 2}, {2, 2}, 33, 33, 1},
	};
	const int count = sizeof(shapes) / sizeof(*shapes), first_f32 = 6;
	int dtype, i;

	if (dev->device < HZ_CUDA || tap_quick())
		return;
	for (dtype = HZ_F32; dtype <= HZ_BF16; dtype++) {
		int good = 1;

		for (i = 0; i < count; i++) {
			hz_quat_conv_opts o = { .side = i % 2, .method = HZ_QUAT_FAST };
			struct model g = { .batch = shapes[i].batch, .ci = shapes[i].ci,
					   .co = shapes[i].co, .groups = shapes[i].groups,
					   .big = { 1, shapes[i].big[0], shapes[i].big[1] },
					   .taps = { 1, shapes[i].taps[0], shapes[i].taps[1] },
					   .step = { 1, shapes[i].step[0], shapes[i].step[1] },
					   .small = { 1, 1, 1 }, .dil = { 1, 1, 1 } };

			if ((dtype == HZ_F32) == (i >= first_f32))
				good &= large_case(dev, dtype, 2, &g, o, AOS, i % 2, 0);
		}
		ok(good, "%s: large convolutions, %s", dev->name, hz_dtype_name(dtype));
	}
}

/* Two images of very different magnitudes: the smaller one keeps its relative accuracy. */
static void test_conv_of_scales(struct dev *dev)
{
	const int64_t xs[] = { 2, 8, 8, 32 }, ws[] = { 32, 3, 3, 32 };
	const hz_quat_conv_opts o = { .pad = { 1, 1 }, .method = HZ_QUAT_FAST };
	int t;

	for (t = 0; t < types_of(dev); t++) {
		const int dtype = types[t];
		/* split precision resolves f32 down to 2^-37 of the largest number */
		const double small = dtype == HZ_F16 ? 0x1p-8 : dtype == HZ_F32 ? 0x1p-16 :
									     0x1p-20;
		struct model ref = { .batch = 2, .big = { 1, 8, 8 }, .small = { 1, 8, 8 },
				     .taps = { 1, 3, 3 }, .step = { 1, 1, 1 }, .dil = { 1, 1, 1 },
				     .pad = { 0, 1, 1 }, .ci = 32, .co = 32, .groups = 1 };
		struct tensor x = quats(dev, dtype, 4, xs, AOS, 0, 1);
		struct tensor w = quats(dev, dtype, 4, ws, AOS, 0, 0.05);
		struct tensor y = quats(dev, dtype, 4, xs, AOS, 0, 0);
		size_t half = (size_t)x.n / 2, i;
		int good;

		for (i = half; i < 2 * half; i++)
			x.v[i] *= small;
		upload(&x, x.v);
		bind_model(&ref, &x, &w, NULL, &y);
		conv_ref(&ref);
		good = RUN(conv, &x.view, &w.view, NULL, &y.view, &o) && fetch(&y);
		ok(good && within_norm(y.v, ref.y, half, tolerance(dtype)) &&
		   within_norm(y.v + half, ref.y + half, half, tolerance(dtype)),
		   "%s: images of different scales, %s", dev->name, hz_dtype_name(dtype));
		free(ref.y);
		drop(&x), drop(&w), drop(&y);
	}
}

/* Each 32 channels have a scale of their own, which the weights compensate for: accumulation over
 * all channels rescales to the largest magnitude so far. */
static int conv_of_channel_scales(struct dev *dev, int dtype, int64_t channels, const int *x_log2,
				  const int *w_log2)
{
	const int64_t xs[] = { 1, 9, 9, channels }, ys[] = { 1, 9, 9, 16 };
	const int64_t ws[] = { 16, 3, 3, channels };
	const hz_quat_conv_opts o = { .pad = { 1, 1 }, .method = HZ_QUAT_FAST };
	struct model ref = { .batch = 1, .big = { 1, 9, 9 }, .small = { 1, 9, 9 },
			     .taps = { 1, 3, 3 }, .step = { 1, 1, 1 }, .dil = { 1, 1, 1 },
			     .pad = { 0, 1, 1 }, .ci = channels, .co = 16, .groups = 1 };
	struct tensor x = quats(dev, dtype, 4, xs, AOS, 0, 1);
	struct tensor w = quats(dev, dtype, 4, ws, AOS, 0, 0.05);
	struct tensor y = quats(dev, dtype, 4, ys, AOS, 0, 0);
	int64_t i;
	int good;

	for (i = 0; i < x.n; i++)
		x.v[i] = ldexp(x.v[i], x_log2[i / 4 % channels / 32]);
	for (i = 0; i < w.n; i++)
		w.v[i] = ldexp(w.v[i], w_log2[i / 4 % channels / 32]);
	upload(&x, x.v);
	upload(&w, w.v);
	bind_model(&ref, &x, &w, NULL, &y);
	conv_ref(&ref);
	good = RUN(conv, &x.view, &w.view, NULL, &y.view, &o) &&
	       fetch(&y) && within_norm(y.v, ref.y, (size_t)y.n, tolerance(dtype));
	free(ref.y);
	drop(&x), drop(&w), drop(&y);
	return good;
}

static void test_conv_of_channel_scales(struct dev *dev)
{
	static const int up[] = { -10, 0, -5 }, down[] = { 0, -10, -4 }, none[] = { 0, 0, 0 };
	static const int w_up[] = { 10, 0, 5 }, w_down[] = { 0, 10, 4 }, far[] = { -70, 70, 0 };
	int t;

	for (t = 0; t < types_of(dev); t++) {
		int good = 1;

		for (int64_t channels = 64; channels <= 96; channels += 32) {
			good &= conv_of_channel_scales(dev, types[t], channels, up, w_up);
			good &= conv_of_channel_scales(dev, types[t], channels, down, w_down);
			if (types[t] != HZ_F16)
				good &= conv_of_channel_scales(dev, types[t], channels, far, none);
		}
		ok(good, "%s: channels of different scales, %s", dev->name,
		   hz_dtype_name(types[t]));
	}
}

/*
 * The result of an activation is rounded once, also where pixels have no common stride: it equals
 * the result with a common stride, except for values near a rounding boundary of the 16-bit dtype.
 */
static int activation_rounding(struct dev *dev, int dtype)
{
	const int64_t xs[] = { 1, 5, 5, 3 }, ws[] = { 2, 1, 1, 3 }, ys[] = { 1, 5, 5, 2 };
	const int64_t wide[] = { 1, 5, 6, 2 };
	struct tensor x = quats(dev, dtype, 4, xs, AOS, 0, 1);
	struct tensor w = quats(dev, dtype, 4, ws, AOS, 0, 1);
	struct tensor y = quats(dev, dtype, 4, ys, AOS, 0, 0);
	struct tensor z = quats(dev, dtype, 4, wide, AOS, 0, 0);
	const hz_quat_conv_opts o = { .activation = HZ_ACT_LEAKY, .slope = 0.7 };
	hz_tensor part = z.view;
	const int64_t n = y.n;
	int good, others = 0;

	part.shape[2] = 5;
	good = RUN(conv, &x.view, &w.view, NULL, &part, &o) &&
	       RUN(conv, &x.view, &w.view, NULL, &y.view, &o) &&
	       fetch(&y) && fetch(&z);
	for (int64_t i = 0; good && i < n; i++)
		others += y.v[i] != z.v[i / 40 * 48 + i % 40];
	if (others > n / 50)
		diag("%d of %lld are others", others, (long long)n);
	drop(&x), drop(&w), drop(&y), drop(&z);
	return good && others <= n / 50;
}

static void test_rounding(struct dev *dev)
{
	ok(activation_rounding(dev, HZ_F16) && activation_rounding(dev, HZ_BF16),
	   "%s: activations are rounded once", dev->name);
}

/*
 * The vector 1, 2, 3 rotated by w = 0.05 (1, 1, 1, 1), with the values of speechbrain 1.1.2: QConv1d
 * (spinor), which are those of Orkis' layers, and QLinear, whose weights are conjugated
 */
static void test_rotation_values(struct dev *dev)
{
	static const double want[3][4] = { { 0, 3, 1, 2 }, { 0, 2.9801980, 1.0099010, 2.0099010 },
					   { 0, 1.9980030, 2.9980030, 1.0039940 } };
	const double vector[] = { 0, 1, 2, 3 }, quarter[] = { 0.05, 0.05, 0.05, 0.05 };
	const int64_t shape[] = { 1, 1, 1 };

	for (int i = 0; i < 3; i++) {
		struct tensor x = quats(dev, HZ_F32, 3, shape, AOS, 0, 1);
		struct tensor w = quats(dev, HZ_F32, 3, shape, AOS, 0, 1);
		struct tensor y = quats(dev, HZ_F32, 3, shape, AOS, 0, 0);
		const hz_quat_conv_opts o = { .flags = HZ_QUAT_ROTATION, .eps = i ? 1e-4 : 0,
					      .side = i == 2, .eps_rule = i == 2 };
		const hz_quat_linear_opts l = { .flags = HZ_QUAT_ROTATION, .eps = o.eps,
						.side = o.side, .eps_rule = o.eps_rule };
		hz_tensor x2, w2, y2;

		upload(&x, vector);
		upload(&w, quarter);
		x2 = hz_tensor_2d(x.view.data, HZ_F32, dev->device, 1, 4);
		w2 = hz_tensor_3d(w.view.data, HZ_F32, dev->device, 1, 1, 4);
		y2 = hz_tensor_2d(y.view.data, HZ_F32, dev->device, 1, 4);
		ok(RUN(conv, &x.view, &w.view, NULL, &y.view, &o) && near(&y, want[i], "y"),
		   "%s: a convolution that rotates, eps %g, rule %d", dev->name, o.eps, o.eps_rule);
		ok(RUN(linear, &x2, &w2, NULL, &y2, &l) && near(&y, want[i], "y"),
		   "a linear layer");
		drop(&x), drop(&w), drop(&y);
	}
}

/* Messages of what is refused */
static void test_refused(struct dev *dev)
{
	const int64_t shape[] = { 1, 3, 1 };
	struct tensor x = quats(dev, HZ_F32, 3, shape, AOS, 0, 1);
	struct tensor w = quats(dev, HZ_F32, 3, shape, AOS, 0, 1);
	struct tensor y = quats(dev, HZ_F32, 3, shape, AOS, 0, 0);
	static const struct {
		hz_quat_conv_opts o;
		const char *message;
	} list[] = {
		{ { .pad_mode = 3 }, "quat_conv: opts->pad_mode is 3, must be 0 to 2" },
		{ { .pad_mode = HZ_PAD_REFLECT, .pad = { 3 } },
		  "quat_conv: opts->pad[0] is 3, must be below x.shape[1] = 3 for HZ_PAD_REFLECT" },
		{ { .pad_mode = HZ_PAD_REFLECT, .flags = HZ_QUAT_TRANSPOSED },
		  "quat_conv: opts->pad_mode HZ_PAD_REFLECT does not go with HZ_QUAT_TRANSPOSED" },
		{ { .eps = 1 }, "quat_conv: opts->eps needs HZ_QUAT_ROTATION" },
		{ { .eps = -1, .flags = HZ_QUAT_ROTATION },
		  "quat_conv: opts->eps is -1, must be finite and not negative" },
		{ { .eps_rule = 2, .flags = HZ_QUAT_ROTATION },
		  "quat_conv: opts->eps_rule is 2, must be 0 to 1" },
	};

	for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++) {
		is_int(hz_quat_conv(dev->ctx, &x.view, &w.view, NULL, &y.view, &list[i].o),
		       HZ_EINVAL, "refused");
		is_str(hz_errmsg(dev->ctx), list[i].message, "its message");
	}
	drop(&x), drop(&w), drop(&y);
}

int main(void)
{
	int i;

	rnd = tap_seed();
	dev_open_all();
	dev_open_routes(HZI_OP_quat_conv);
	dev_open_routes(HZI_OP_quat_conv_bwd);
	test_refused(&devs[0]);
	for (i = 0; i < ndevs; i++) {
		test_rotation_values(&devs[i]);
		test_conv(&devs[i]);
		test_many_channels(&devs[i]);
		test_large_conv(&devs[i]);
		if (i == 0 || devs[i].ctx->any_forced || devs[i].device >= HZ_CUDA)
			test_few_channels(&devs[i]);
		test_conv_of_scales(&devs[i]);
		test_conv_of_channel_scales(&devs[i]);
		test_rounding(&devs[i]);
	}
	dev_close_all();
	return done_testing();
}
