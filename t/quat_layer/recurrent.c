/*
 * recurrent.c - recurrent layers of quaternions against their definition and its differences
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/quat_layer/quat_layer.h"

enum { Z, U, H0, C0, DY, DHN, DCN, INPUTS, Y = INPUTS, HN, CN, DZ, DU, DH0, DC0, OPERANDS };

struct sizes {
	int64_t steps, batch, directions, hidden, gates;
};

/* A case: its operands, those that are absent without values, and the definition's results */
struct layer {
	struct sizes s;
	hz_quat_recurrent_opts o;
	int32_t *lengths;		/* NULL: none */
	struct tensor t[OPERANDS], saved, lengths_view;
	double *y, *hn, *cn;
};

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static double act(const hz_quat_recurrent_opts *o, double x)
{
	const int kind = o->activation ? o->activation :
			 o->cell == HZ_QUAT_CELL_LIGRU ? HZ_ACT_RELU : HZ_ACT_TANH;

	return kind == HZ_ACT_TANH ? tanh(x) : x > 0 ? x : kind == HZ_ACT_LEAKY ? o->slope * x : 0;
}

/* The index of component c of neuron h of gate k among gates * hidden quaternions */
static int64_t gate_at(const struct layer *l, int64_t k, int64_t h, int64_t c)
{
	const int64_t n = l->s.gates * l->s.hidden, i = (4 * k + c) * l->s.hidden + h;

	if (l->o.gates == HZ_QUAT_GATES_NEURONS)
		return 4 * (k * l->s.hidden + h) + c;
	return 4 * (i % n) + i / n;
}

/* All steps of sequence b in direction d: y, hn and cn of the values of the operands */
static void define_one(struct layer *l, int64_t b, int64_t d)
{
	const struct sizes *s = &l->s;
	const int64_t size = 4 * s->hidden, state = (d * s->batch + b) * size;
	const int64_t n = s->gates * size;
	int64_t steps = l->lengths ? l->lengths[b] : s->steps;
	double *h = calloc((size_t)size + 1, sizeof(*h)), *c = calloc((size_t)size + 1, sizeof(*c));
	double *a = calloc((size_t)n + 1, sizeof(*a));

	steps = steps < 0 ? 0 : steps > s->steps ? s->steps : steps;
	for (int64_t e = 0; e < size; e++) {
		h[e] = l->t[H0].v ? l->t[H0].v[state + e] : 0;
		c[e] = l->t[C0].v ? l->t[C0].v[state + e] : 0;
	}
	for (int64_t i = 0; i < steps; i++) {
		const int64_t row = ((d ? steps - 1 - i : i) * s->batch + b) * s->directions + d;

		memcpy(a, l->t[Z].v + row * n, (size_t)n * sizeof(*a));
		for (int64_t r = 0; r < s->gates * s->hidden; r++) {
			const int64_t u = (d * s->gates * s->hidden + r) * s->hidden;

			for (int64_t k = 0; k < s->hidden; k++)
				mul(a + 4 * r, l->t[U].v + 4 * (u + k), h + 4 * k);
		}
		for (int64_t e = 0; e < size; e++) {
			double g[4];

			for (int64_t k = 0; k < s->gates; k++)
				g[k] = a[gate_at(l, k, e / 4, e % 4)];
			if (l->o.cell == HZ_QUAT_CELL_RNN) {
				h[e] = act(&l->o, g[0]);
			} else if (l->o.cell == HZ_QUAT_CELL_LIGRU) {
				h[e] = sigmoid(g[1]) * h[e] + (1 - sigmoid(g[1])) * act(&l->o, g[0]);
			} else {
				c[e] = sigmoid(g[0]) * tanh(g[3]) + sigmoid(g[1]) * c[e];
				h[e] = sigmoid(g[2]) * tanh(c[e]);
			}
			l->y[row * size + e] = h[e];
		}
	}
	memcpy(l->hn + state, h, (size_t)size * sizeof(*h));
	memcpy(l->cn + state, c, (size_t)size * sizeof(*c));
	free(h), free(c), free(a);
}

static double define(struct layer *l)
{
	double *const found[] = {l->y, l->hn, l->cn}, sum = 0;

	memset(l->y, 0, (size_t)l->t[Y].n * sizeof(*l->y));
	for (int64_t b = 0; b < l->s.batch; b++) {
		for (int64_t d = 0; d < l->s.directions; d++)
			define_one(l, b, d);
	}
	for (int k = 0; k < 3; k++) {
		const struct tensor *g = &l->t[DY + k];

		for (int64_t i = 0; g->v && i < g->n; i++)
			sum += g->v[i] * found[k][i];
	}
	return sum;
}

static hz_tensor *view(struct layer *l, int i)
{
	return l->t[i].v ? &l->t[i].view : NULL;
}

static void make_operands(struct dev *dev, struct layer *l, int dtype, int optional)
{
	const struct sizes *s = &l->s;
	const int64_t z[4] = {s->steps, s->batch, s->directions, s->gates * s->hidden};
	const int64_t y[4] = {s->steps, s->batch, s->directions, s->hidden};
	const int64_t u[3] = {s->directions, s->gates * s->hidden, s->hidden};
	const int64_t h[3] = {s->directions, s->batch, s->hidden};
	const int values = l->o.cell == HZ_QUAT_CELL_RNN ? 1 : (int)s->gates + 1;
	const int64_t saved[6] = {s->steps, s->batch, s->directions, values, s->hidden, 4};
	const int64_t *const shapes[OPERANDS] = {z, u, h, h, y, h, h, y, h, h, z, u, h, h};
	const double scale = s->hidden ? 0.5 / sqrt((double)s->hidden) : 1;

	for (int i = 0; i < OPERANDS; i++) {
		const bool lstm_only = i == C0 || i == DCN || i == CN || i == DC0;
		const bool must = i == Z || i == U || i == DY || i == Y || i == DZ;
		const bool out = i >= INPUTS;
		const int ndim = shapes[i] == z || shapes[i] == y ? 4 : 3;

		if ((lstm_only && s->gates != 4) || (!must && !(optional & 1 << i)))
			continue;
		l->t[i] = quats(dev, dtype, ndim, shapes[i], out ? output_layout() : layout(),
				(l->o.flags & HZ_QUAT_XYZW) != 0, out && i != DU ? 0 :
				i == U ? scale : 1);
	}
	if (rnd_below(&rnd, 2)) {	/* batch first */
		const int64_t swapped[4] = {s->batch, s->steps, s->directions, z[3]};
		hz_tensor *dz = &l->t[DZ].view;

		drop(&l->t[DZ]);
		l->t[DZ] = quats(dev, dtype, 4, swapped, output_layout(),
				 (l->o.flags & HZ_QUAT_XYZW) != 0, 0);
		*dz = hz_view_transpose(dz, 0, 1);
	}
	l->saved = make(dev, HZ_F32, 6, saved, AOS, 0, 0, 0);
	l->o.saved = &l->saved.view;
	l->y = calloc((size_t)l->t[Y].n + 1, sizeof(double));
	l->hn = calloc((size_t)(4 * s->directions * s->batch * s->hidden) + 1, sizeof(double));
	l->cn = calloc((size_t)(4 * s->directions * s->batch * s->hidden) + 1, sizeof(double));
	if (l->lengths) {
		double *v = calloc((size_t)s->batch + 1, sizeof(*v));

		l->lengths_view = make(dev, HZ_S32, 1, &s->batch, PADDED, 0, 0, 1);
		for (int64_t b = 0; b < s->batch; b++)
			v[b] = l->lengths[b];
		upload(&l->lengths_view, v);
		l->o.lengths = &l->lengths_view.view;
		free(v);
	}
}

static void drop_layer(struct layer *l)
{
	for (int i = 0; i < OPERANDS; i++)
		drop(&l->t[i]);
	drop(&l->saved);
	drop(&l->lengths_view);
	free(l->y), free(l->hn), free(l->cn);
}

static int run_forward(struct dev *dev, struct layer *l)
{
	return RUN(recurrent, view(l, Z), view(l, U), view(l, H0), view(l, C0), view(l, Y),
		   view(l, HN), view(l, CN), &l->o);
}

static int run_backward(struct dev *dev, struct layer *l, uint32_t flags)
{
	hz_quat_recurrent_opts o = l->o;

	o.flags |= flags;
	return RUN(recurrent_bwd, view(l, U), view(l, H0), view(l, C0), view(l, DY), view(l, DHN),
		   view(l, DCN), view(l, DZ), view(l, DU), view(l, DH0), view(l, DC0), &o);
}

/* The gradient for the values of an operand: of each, or for large ones by one direction only */
static int is_derivative(struct layer *l, int of, int at, const double *old, double bound)
{
	struct tensor *x = &l->t[of], *g = &l->t[at];
	const double h = 1e-5;
	double *want = calloc((size_t)x->n + 1, sizeof(*want));
	int good = 1;

	for (int64_t i = 0; i < x->n; i++) {
		const double keep = x->v[i];
		double up;

		x->v[i] = keep + h;
		up = define(l);
		x->v[i] = keep - h;
		want[i] = (up - define(l)) / (2 * h) + (old ? old[i] : 0);
		x->v[i] = keep;
	}
	good = near_within(bound, g, want, at == DZ ? "dz" : at == DU ? "du" : at == DH0 ? "dh0" :
			   "dc0");
	free(want);
	return good;
}

/* <gradient, direction> for a random direction of all inputs at once */
static int is_directional(struct layer *l, double bound)
{
	const double h = 1e-5;
	double *way[4] = {NULL}, up, down, found = 0, sizes = 0;

	for (int k = 0; k < 4; k++) {
		struct tensor *x = &l->t[k], *g = &l->t[DZ + k];

		if (!x->v || !g->v)
			continue;
		if (!fetch(g))
			return 0;
		way[k] = calloc((size_t)x->n + 1, sizeof(double));
		for (int64_t i = 0; i < x->n; i++) {
			way[k][i] = rnd_normal(&rnd);
			found += way[k][i] * g->v[i];
			sizes += g->v[i] * g->v[i];
			x->v[i] += h * way[k][i];
		}
	}
	up = define(l);
	for (int k = 0; k < 4; k++) {
		for (int64_t i = 0; way[k] && i < l->t[k].n; i++)
			l->t[k].v[i] -= 2 * h * way[k][i];
	}
	down = define(l);
	for (int k = 0; k < 4; k++)
		free(way[k]);
	if (fabs(found - (up - down) / (2 * h)) <= bound * (sqrt(sizes) + 1e-30))
		return 1;
	diag("derivative %g, want %g", found, (up - down) / (2 * h));
	return 0;
}

static int layer_case(struct dev *dev, int dtype, struct layer *l, int optional, int exact)
{
	const double bound = (dtype == HZ_F32 ? 2 : 4) * tolerance(dtype);
	const int sum = (int)rnd_below(&rnd, 2);
	double *old = NULL;
	int good;

	make_operands(dev, l, dtype, optional);
	good = run_forward(dev, l);
	define(l);
	good = good && near_within(bound, &l->t[Y], l->y, "y") &&
	       (!l->t[HN].v || near_within(bound, &l->t[HN], l->hn, "hn")) &&
	       (!l->t[CN].v || near_within(bound, &l->t[CN], l->cn, "cn"));
	if (l->t[DU].v) {
		old = copy_of(l->t[DU].v, l->t[DU].n);
		if (!sum) {
			area_fill(&l->t[DU].area);
			memset(l->t[DU].image, GUARD_BYTE, l->t[DU].area.total);
			memset(old, 0, (size_t)l->t[DU].n * sizeof(*old));
		}
	}
	good = good && run_backward(dev, l, sum && old ? HZ_QUAT_ACCUMULATE : 0);
	for (int k = 0; k < 4 && exact; k++) {
		if (l->t[DZ + k].v && l->t[k].v)
			good = good && is_derivative(l, k, DZ + k, k == 1 ? old : NULL, bound);
	}
	if (!exact) {
		for (int64_t i = 0; old && i < l->t[DU].n; i++)
			old[i] = 0;
		good = good && run_backward(dev, l, 0) && is_directional(l, 20 * bound);
	}
	if (!good)
		diag("%s: %s, cell %d, gates %d, activation %d, T %lld, B %lld, D %lld, H %lld, "
		     "lengths %d, optional %#x", dev->name, hz_dtype_name(dtype), l->o.cell,
		     l->o.gates, l->o.activation, (long long)l->s.steps, (long long)l->s.batch,
		     (long long)l->s.directions, (long long)l->s.hidden, l->lengths != NULL,
		     (unsigned)optional);
	free(old);
	drop_layer(l);
	return good;
}

static struct layer new_layer(int cell, int64_t steps, int64_t batch, int64_t hidden)
{
	return (struct layer){
		.s = {steps, batch, 1 + rnd_below(&rnd, 2), hidden,
		      cell == HZ_QUAT_CELL_LSTM ? 4 : cell == HZ_QUAT_CELL_LIGRU ? 2 : 1},
		.o = {.cell = cell, .gates = (int)rnd_below(&rnd, 2),
		      .method = (int)rnd_below(&rnd, 3),
		      .flags = rnd_below(&rnd, 2) ? HZ_QUAT_XYZW : 0},
	};
}

static void test_definition(struct dev *dev)
{
	static const char *const names[] = {"rnn", "lstm", "ligru"};
	const int cases = dev != devs && dev->device == HZ_CPU ? 2 : tap_quick() ? 4 : 12;

	for (int cell = 0; cell < 3; cell++) {
		for (int t = 0; t < 3; t++) {
			int good = 1;

			for (int i = 0; i < cases; i++) {
				struct layer l = new_layer(cell, rnd_below(&rnd, 4), 1 +
							   rnd_below(&rnd, 3), 1 +
							   rnd_below(&rnd, 3));
				int32_t lengths[4];

				/* A difference across the kink of relu says nothing. */
				l.o.activation = cell == HZ_QUAT_CELL_LIGRU || rnd_below(&rnd, 2) ?
						 HZ_ACT_TANH : 0;
				if (i == 0)
					l.s.steps = 1;
				for (int b = 0; b < 4; b++)
					lengths[b] = (int32_t)rnd_below(&rnd, 6) - 1;
				if (i % 2)
					l.lengths = lengths;
				good &= layer_case(dev, types[t], &l, i ? (int)rnd_u64(&rnd) : -1,
						   1);
			}
			ok(good, "%s: %s and its gradients, %s", dev->name, names[cell],
			   hz_dtype_name(types[t]));
		}
	}
}

/* Sizes beyond pieces of the CPU, products by packed weights, several blocks of a GPU */
static void test_sizes(struct dev *dev)
{
	static const int64_t sizes[][3] = {{3, 2, 70}, {2, 9, 33}, {2, 70, 34}, {5, 3, 32},
					   {4, 11, 32}, {4, 19, 64}, {2, 3, 0}, {2, 0, 3},
					   {5, 17, 288}, {4, 33, 288}, {4, 1, 1064},
					   {4, 18, 864}};

	for (int i = 0; i < 12; i++) {
		/*
		 * On a GPU 16 bits have a kernel for all steps of these sizes, 17 sequences or more
		 * by wgmma unless blocks of 288 neurons are odd: 33 sequences in several launches,
		 * 864 neurons with weights also in registers. 1064 have a kernel for one step.
		 */
		const bool fused = (i >= 3 && i <= 5) || i >= 8;
		int good = 1;

		if (fused && dev->device == HZ_CPU && (dev != devs || i >= 8))
			continue;
		for (int cell = i >= 10; cell < (i >= 10 ? 2 : 3); cell++) {
			struct layer l = new_layer(cell, sizes[i][0], sizes[i][1], sizes[i][2]);
			int32_t lengths[80];

			for (int b = 0; b < 80; b++)
				lengths[b] = (int32_t)rnd_below(&rnd, 6);
			l.lengths = cell ? lengths : NULL;
			l.o.activation = HZ_ACT_TANH;
			if (i >= 8)
				l.s.directions = i == 9 ? 2 : 1;
			good &= layer_case(dev, fused ? types[1 + (i + cell) % 2] :
					   types[(i + cell) % 3], &l, -1, 0);
		}
		ok(good, "%s: batch %lld, hidden %lld", dev->name, (long long)sizes[i][1],
		   (long long)sizes[i][2]);
	}
}

/* relu and leaky: where no input is near the kink, results and gradients are linear. */
static void test_kinks(struct dev *dev)
{
	int good = 1;

	for (int i = 0; i < 4; i++) {
		struct layer l = new_layer(i % 2 * HZ_QUAT_CELL_LIGRU, 2, 2, 2);

		l.o.activation = i < 2 ? HZ_ACT_RELU : HZ_ACT_LEAKY;
		l.o.slope = ref_slope(l.o.activation, 0.25);
		good &= layer_case(dev, HZ_F32, &l, -1, 1);
	}
	ok(good, "%s: relu and leaky", dev->name);
}

/* Both directions with the same z and u: strides of 0 */
static void test_shared(struct dev *dev)
{
	struct layer l = new_layer(HZ_QUAT_CELL_LSTM, 3, 2, 2), m;
	double *two;
	int good;

	l.s.directions = 2;
	make_operands(dev, &l, HZ_F32, 1 << HN);
	m = l;
	m.t[Z].view.stride[2] = m.t[U].view.stride[0] = 0;
	good = run_forward(dev, &m);
	for (int i = Z; i <= U; i++) {
		const int64_t part = i == U ? l.t[U].n / 2 : l.t[Z].n / (3 * 2 * 2);
		const int64_t parts = l.t[i].n / part;

		two = l.t[i].v;
		for (int64_t k = 1; k < parts; k += 2)
			memcpy(two + k * part, two + (k - 1) * part, (size_t)part * sizeof(*two));
	}
	define(&l);
	ok(good && near(&l.t[Y], l.y, "y") && near(&l.t[HN], l.hn, "hn"),
	   "%s: directions with the same weights", dev->name);
	drop_layer(&l);
}

/* NaN stays in its sequence, and what is beyond a sequence's end is not looked at. */
static void test_nan(struct dev *dev)
{
	struct layer l = new_layer(HZ_QUAT_CELL_LIGRU, 3, 2, 3);
	int32_t lengths[2] = {3, 1};
	int64_t nans[2] = {0, 0}, row;
	int good;

	l.lengths = lengths;
	make_operands(dev, &l, HZ_F32, 0);
	row = l.t[Z].n / 6;
	l.t[Z].v[0] = NAN;
	for (int64_t i = 3 * row; i < 6 * row; i++)
		l.t[Z].v[i] = i / row % 2 ? NAN : l.t[Z].v[i];
	upload(&l.t[Z], l.t[Z].v);
	good = run_forward(dev, &l) && fetch(&l.t[Y]);
	row = l.t[Y].n / 6;
	for (int64_t i = 0; i < l.t[Y].n; i++)
		nans[i / row % 2] += isnan(l.t[Y].v[i]);
	ok(good && nans[0] > 4 * 3 && nans[1] == 0, "%s: NaN stays in its sequence", dev->name);
	drop_layer(&l);
}

/* The same bits on devices of one ISA level, with any number of threads */
static void test_bits(void)
{
	const uint64_t seed = rnd;
	unsigned char *first = NULL;

	for (int i = 0; i < ndevs; i++) {
		hz_info info, before;
		struct layer l;
		size_t bytes;
		int good;

		rnd = seed;
		l = new_layer(HZ_QUAT_CELL_LSTM, 2, 5, 67);
		make_operands(&devs[i], &l, HZ_F32, -1);
		good = run_forward(&devs[i], &l) && run_backward(&devs[i], &l, 0);
		for (int k = Y; k < OPERANDS; k++)
			good = good && fetch(&l.t[k]);
		bytes = (size_t)l.t[DU].n * sizeof(double);
		hz_device_info(devs[i].ctx, &info);
		if (i > 0)
			hz_device_info(devs[i - 1].ctx, &before);
		if (i == 0 || info.isa != before.isa || devs[i].device != HZ_CPU) {
			free(first);
			first = (unsigned char *)copy_of(l.t[DU].v, l.t[DU].n);
		}
		ok(good && memcmp(first, l.t[DU].v, bytes) == 0, "%s: the same bits",
		   devs[i].name);
		drop_layer(&l);
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
	hz_tensor z = hz_tensor_nd(memory, HZ_F32, HZ_CPU, 5, (int64_t[]){3, 2, 1, 8, 4});
	hz_tensor u = hz_tensor_4d(memory + 500, HZ_F32, HZ_CPU, 1, 8, 2, 4);
	hz_tensor h = hz_tensor_4d(memory + 700, HZ_F32, HZ_CPU, 1, 2, 2, 4);
	hz_tensor y = hz_tensor_nd(memory + 800, HZ_F32, HZ_CPU, 5, (int64_t[]){3, 2, 1, 2, 4});
	hz_tensor saved = hz_tensor_nd(memory + 1000, HZ_F32, HZ_CPU, 6,
				       (int64_t[]){3, 2, 1, 5, 2, 4});
	hz_tensor lengths = hz_tensor_1d(memory + 2000, HZ_S32, HZ_CPU, 3), t;
	hz_quat_recurrent_opts o = {.cell = HZ_QUAT_CELL_LSTM}, p;

	if (dev->device != HZ_CPU)
		return;
	refuses(dev, hz_quat_recurrent(c, NULL, &u, NULL, NULL, &y, NULL, NULL, &o), HZ_EINVAL,
		"quat_recurrent: z is NULL, must be a view");
	refuses(dev, hz_quat_recurrent(c, &z, NULL, NULL, NULL, &y, NULL, NULL, &o), HZ_EINVAL,
		"quat_recurrent: u is NULL, must be a view");
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, NULL, NULL, NULL, &o), HZ_EINVAL,
		"quat_recurrent: y is NULL, must be a view");
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &y, NULL, NULL, NULL), HZ_ESHAPE,
		"quat_recurrent: u.shape[1] is 8, must be 2, u.shape[2] times the gates");
	p = o;
	p.cell = 3;
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &y, NULL, NULL, &p), HZ_EINVAL,
		"quat_recurrent: opts->cell is 3, must be 0 to 2");
	p = o;
	p.gates = -1;
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &y, NULL, NULL, &p), HZ_EINVAL,
		"quat_recurrent: opts->gates is -1, must be 0 to 1");
	p = o;
	p.activation = HZ_ACT_RELU;
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &y, NULL, NULL, &p), HZ_EINVAL,
		"quat_recurrent: opts->activation is 1, must be HZ_ACT_TANH or 0 for "
		"HZ_QUAT_CELL_LSTM");
	p = (hz_quat_recurrent_opts){.cell = HZ_QUAT_CELL_RNN, .activation = HZ_ACT_LEAKY};
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &y, NULL, NULL, &p), HZ_EINVAL,
		"quat_recurrent: opts->slope is 0, must be positive and finite for HZ_ACT_LEAKY");
	p = (hz_quat_recurrent_opts){.cell = HZ_QUAT_CELL_LIGRU, .slope = 0.01};
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &y, NULL, NULL, &p), HZ_EINVAL,
		"quat_recurrent: opts->slope is 0.01, must be 0 unless opts->activation is "
		"HZ_ACT_LEAKY");
	p = (hz_quat_recurrent_opts){.cell = HZ_QUAT_CELL_LIGRU};
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, &h, &y, NULL, NULL, &p), HZ_EINVAL,
		"quat_recurrent: c0 is for HZ_QUAT_CELL_LSTM, must be NULL");
	p = o;
	p.flags = HZ_QUAT_ACCUMULATE;
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &y, NULL, NULL, &p), HZ_EINVAL,
		"quat_recurrent: HZ_QUAT_ACCUMULATE is for the backward call");
	p.flags = HZ_QUAT_REVERSED;
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &y, NULL, NULL, &p), HZ_EINVAL,
		"quat_recurrent: opts->flags has unknown bits");
	p = o;
	p.reserved[1] = 1;
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &y, NULL, NULL, &p), HZ_EINVAL,
		"reserved");
	p = o;
	p.lengths = &lengths;
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &y, NULL, NULL, &p), HZ_ESHAPE,
		"quat_recurrent: opts->lengths.shape[0] is 3, must be 2, the batch of z");
	t = u;
	t.shape[0] = 3;
	t.stride[0] = 0;
	refuses(dev, hz_quat_recurrent(c, &z, &t, NULL, NULL, &y, NULL, NULL, &o), HZ_ESHAPE,
		"quat_recurrent: u.shape[0] is 3, must be 1 or 2 directions");
	t = hz_tensor_nd(memory + 800, HZ_F32, HZ_CPU, 5, (int64_t[]){3, 2, 1, 3, 4});
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &t, NULL, NULL, &o), HZ_ESHAPE,
		"quat_recurrent: y.shape[3] is 3, must be 2, the neurons of u");
	t = h;
	t.shape[1] = 1;
	refuses(dev, hz_quat_recurrent(c, &z, &u, &t, NULL, &y, NULL, NULL, &o), HZ_ESHAPE,
		"quat_recurrent: h0.shape[1] is 1, must be 2, the batch of z");
	t = u;
	t.dtype = HZ_F64;
	refuses(dev, hz_quat_recurrent(c, &z, &t, NULL, NULL, &y, NULL, NULL, &o), HZ_EDTYPE,
		"quat_recurrent: u.dtype is f64, must be f32");
	t = z;
	t.dtype = HZ_BF16;
	refuses(dev, hz_quat_recurrent(c, &t, &u, NULL, NULL, &y, NULL, NULL, &o), HZ_EDTYPE,
		"quat_recurrent: z.dtype is bf16, must be f32");
	refuses(dev, hz_quat_recurrent_bwd(c, &u, NULL, NULL, &y, NULL, NULL, &z, NULL, NULL, NULL,
					   &o), HZ_EINVAL,
		"quat_recurrent_bwd: opts->saved is NULL, must be what hz_quat_recurrent() wrote");
	p = o;
	p.saved = &saved;
	saved.shape[3] = 4;
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &y, NULL, NULL, &p), HZ_ESHAPE,
		"quat_recurrent: opts->saved.shape[3] is 4, must be 5");
	saved.shape[3] = 5;
	saved.stride[0]++;
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &y, NULL, NULL, &p), HZ_ESTRIDE,
		"quat_recurrent: opts->saved must be contiguous");
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &z, NULL, NULL, &o), HZ_ESHAPE,
		"quat_recurrent: y.shape[3] is 8, must be 2");
	t = y;
	t.data = memory;
	refuses(dev, hz_quat_recurrent(c, &z, &u, NULL, NULL, &t, NULL, NULL, &o), HZ_EALIAS,
		"quat_recurrent: y overlaps z, must be apart from it");
	is_int(hz_quat_recurrent(c, &z, &u, &h, NULL, &y, NULL, NULL, &o), HZ_OK,
	       "the valid call, after all of these");
}

int main(void)
{
	rnd = tap_seed();
	dev_open_all();
	for (int i = 0; i < ndevs; i++) {
		test_definition(&devs[i]);
		test_sizes(&devs[i]);
		test_kinks(&devs[i]);
		test_shared(&devs[i]);
		test_nan(&devs[i]);
	}
	test_bits();
	test_errors(&devs[0]);
	dev_close_all();
	return done_testing();
}
