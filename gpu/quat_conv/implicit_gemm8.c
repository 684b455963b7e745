/*
 * implicit_gemm8.c - launchers of quaternion convolutions as implicit GEMMs by wgmma, 8 real
 *                    products for each product of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/quat_conv/launch.h"
#include "gpu/quat_layer/launch.h"
#include "gpu/quat_conv/im2col.h"

HZI_LINK_IMAGES(quat_conv);

#define ROWS_MAX ((int64_t)1 << 30)	/* rows of all slabs */
#define IN_UNIT 8			/* channels: each tap of weights is 16-byte aligned */
/* Patches win if less than 1 / USE_LEAST of the products is of data; the rest is of padding. */
#define USE_LEAST 16
/* One tap: least number of input and of output channels at which quat_gemm wins */
#define POINTS_LEAST 128
/*
 * Cost model, real operations per SM and cycle (32 for a quaternion product): split precision;
 * 16 bits
 */
#define SPLIT_OPERATIONS 1071
#define OPERATIONS 3252
/* Fixed cost of a call, us; the number of taps that a smaller group counts as */
#define CALL_US 8
#define GROUP_TAPS 8

/*
 * A call: the kernel's parameters but for pointers, and the weights as eight f16 planes, the left
 * factors of the eight real products
 */
struct plan {
	struct hzi_quat_conv8 p;
	struct hzi_quat_planar weights;
	int rows, cols;			/* the dimensions that are rows and columns */
	int64_t taps;
	int64_t most_inputs;		/* that shared memory holds of a tap group */
	size_t padded_bytes;		/* copy of the weights with padded channels; 0: none */
	struct hzi_quat_conv_copy copy;
	size_t copy_bytes;		/* copy of x with taps as channels; 0: none */
};

/* The taps of a group: all taps of a phase, one row of them, or a single one */
enum span { ALL, ONE_ROW, ONE_TAP };

/*
 * Adds the group of the taps from (t[0], t[1], t[2]) on, within the span, that read the same phase
 * of x. false: its inputs exceed shared memory, or there are too many taps or groups.
 */
static bool add_group(struct plan *plan, const struct hzi_quat_patch_step *x, const int64_t *t,
		      enum span span)
{
	const int r = plan->rows, c = plan->cols;
	struct hzi_quat_conv8 *p = &plan->p;
	const int last = p->groups ? p->groups - 1 : 0;
	const int first = p->groups ? p->group[last].tap + p->group[last].taps : 0;
	int64_t low[2] = {INT32_MAX, INT32_MAX}, high[2] = {INT32_MIN, INT32_MIN}, inputs, pitch;
	int64_t phase[2], position[HZI_CONV_TAPS_MAX][2];
	struct hzi_quat_conv8_group g = {.tap = (int16_t)first};

	if (p->groups == HZI_CONV8_TAP_GROUPS)
		return false;
	hzi_quat_conv_phase_of(x, r, t[r], &phase[0]);
	hzi_quat_conv_phase_of(x, c, t[c], &phase[1]);
	for (int64_t i = t[r]; i < x->taps[r] && (i == t[r] || span == ALL); i++) {
		for (int64_t j = t[c]; j < x->taps[c] && (j == t[c] || span != ONE_TAP); j++) {
			int64_t tap[3], tap_phase[2], at[2];

			at[0] = hzi_quat_conv_phase_of(x, r, i, &tap_phase[0]);
			at[1] = hzi_quat_conv_phase_of(x, c, j, &tap_phase[1]);
			if (tap_phase[0] != phase[0] || tap_phase[1] != phase[1])
				continue;
			if (first + g.taps == HZI_CONV_TAPS_MAX)
				return false;
			for (int d = 0; d < 2; d++) {
				position[g.taps][d] = at[d];
				low[d] = at[d] < low[d] ? at[d] : low[d];
				high[d] = at[d] > high[d] ? at[d] : high[d];
			}
			tap[0] = t[0];
			tap[r] = i;
			tap[c] = j;
			p->at[first + g.taps++].number =
				(int16_t)((tap[0] * x->taps[1] + tap[1]) * x->taps[2] + tap[2]);
		}
	}
	pitch = p->flat ? 1 : 8 + high[1] - low[1];
	inputs = (p->flat ? HZI_CONV8_TILE_N : HZI_CONV8_TILE_ROWS) + high[0] - low[0];
	if (inputs > plan->most_inputs || pitch > plan->most_inputs ||
	    inputs * pitch > plan->most_inputs)
		return false;
	for (int i = 0; i < g.taps; i++)
		p->at[first + i].input = (int16_t)((position[i][0] - low[0]) * pitch +
						   position[i][1] - low[1]);
	g.slab = (int16_t)(x->each[0] * t[0] + x->base[0]);
	g.row_phase = (int16_t)phase[0];
	g.col_phase = (int16_t)phase[1];
	g.row = (int32_t)low[0];
	g.col = (int32_t)low[1];
	g.pitch = (int32_t)pitch;
	g.inputs = (int32_t)(inputs * pitch);
	p->group[p->groups++] = g;
	return true;
}

/* Puts all taps into groups, into as few as shared memory allows. */
static bool group_taps(struct plan *plan, const struct hzi_quat_patch_step *x)
{
	const int r = plan->rows, c = plan->cols;
	int64_t t[3], period[2], phase[2];

	/* Each phase has a tap among the first period[0] x period[1]. */
	period[0] = min_of(x->step[r], x->taps[r]);
	period[1] = min_of(x->step[c], x->taps[c]);
	for (t[0] = 0; t[0] < x->taps[0]; t[0]++) {
		for (int64_t i = 0; i < period[0] * period[1]; i++) {
			bool again = false;

			t[r] = i / period[1];
			t[c] = i % period[1];
			/* Skip a phase that an earlier tap reads. */
			hzi_quat_conv_phase_of(x, r, t[r], &phase[0]);
			hzi_quat_conv_phase_of(x, c, t[c], &phase[1]);
			for (int64_t j = 0, other; j < t[r] && !again; j++) {
				hzi_quat_conv_phase_of(x, r, j, &other);
				again = other == phase[0];
			}
			for (int64_t j = 0, other; j < t[c] && !again; j++) {
				hzi_quat_conv_phase_of(x, c, j, &other);
				again = other == phase[1];
			}
			if (again || add_group(plan, x, t, ALL))
				continue;
			for (int64_t u = t[r]; u < x->taps[r]; u++) {
				int64_t at[3] = {t[0], t[1], t[2]}, other;

				at[r] = u;
				hzi_quat_conv_phase_of(x, r, u, &other);
				if (other != phase[0] || add_group(plan, x, at, ONE_ROW))
					continue;
				for (int64_t v = t[c]; v < x->taps[c]; v++) {
					at[c] = v;
					hzi_quat_conv_phase_of(x, c, v, &other);
					if (other == phase[1] && !add_group(plan, x, at, ONE_TAP))
						return false;
				}
			}
		}
	}
	return true;
}

/*
 * NULL, or why a call is not supported. wins: a call for which another route is expected to be
 * faster is not supported either.
 */
static const char *make_plan(const struct hz_context *ctx, const struct hzi_quat_conv_step *a,
			     bool wins, struct plan *plan)
{
	const struct hzi_quat_gemm_args *g = &a->g;
	const struct hzi_quat_patch_step *x = &a->x;
	struct hzi_quat_conv8 *p = &plan->p;
	int64_t rows, slabs, per, along, use, all, in;
	int split;

	plan->p = (struct hzi_quat_conv8){.tap_step = 0};
	plan->rows = 1;
	plan->cols = 2;
	plan->padded_bytes = 0;
	if (x->groups > 1)
		return "several groups at once";
	if (!hzi_quat_uses_planar_f16(ctx, g->dtype, g->precision, &split))
		return "f32 multiply-adds are asked for";
	if (g->method != HZ_QUAT_FAST)
		return "the method is not HZ_QUAT_FAST";
	if (g->k == 0 || g->k > INT16_MAX || g->m > ROWS_MAX / 512 || !hzi_quat_conv_sizes_fit(x))
		return "no channels, or sizes are too large";
	/* The kernel loads few or an odd number of 16-bit channels singly: patches are faster. */
	if (wins && !split && x->channels % IN_UNIT &&
	    (x->channels < IN_UNIT || x->channels % 2))
		return "few channels, or an odd number";
	plan->taps = x->taps[0] * x->taps[1] * x->taps[2];
	in = round_up(x->channels, IN_UNIT);
	if (wins && plan->taps == 1 && g->m >= POINTS_LEAST && x->channels >= POINTS_LEAST)
		return "one tap and many channels";
	if (plan->taps * in > INT16_MAX)
		return "taps times channels exceed 16 bits";
	p->tap_step = (int32_t)in;
	plan->most_inputs = split ? HZI_CONV8_SPLIT_INPUTS : HZI_CONV8_INPUTS;
	/* The channels of a copy of x may be padded; those of the weights are not. */
	if (plan->taps > 1 && plan->taps * in != g->k)
		plan->padded_bytes = (size_t)(g->m * plan->taps * in * 4) *
				     hz_dtype_size(g->dtype);
	for (int d = 0; d < 3; d++) {
		p->size[d] = (int32_t)x->size[d];
		p->count[d] = (int32_t)x->count[d];
	}
	if (x->count[1] == 1 && x->taps[1] == 1) {
		plan->rows = 2;
		plan->cols = 1;
	}
	p->flat = x->count[plan->cols] == 1 && x->taps[plan->cols] == 1;
	rows = hzi_quat_conv_padded_pitch(x, plan->rows);
	if (!hzi_mul(a->images, x->count[0], &slabs) || slabs > ROWS_MAX / rows)
		return "more rows than 2^30";
	p->virtual_rows = (int32_t)rows;
	p->all_rows = (int32_t)(slabs * rows);
	p->strips = (int32_t)(p->flat ? 1 : ceil_div(x->count[plan->cols], 8));
	per = p->flat ? HZI_CONV8_TILE_N : HZI_CONV8_TILE_ROWS;
	along = ceil_div(p->all_rows, per);
	p->x.channels = (int32_t)x->channels;
	all = ceil_div(g->m, HZI_CONV8_TILE_M) * HZI_CONV8_TILE_M * p->strips * along;
	use = g->m * (p->all_rows / rows * x->count[1] * x->count[2]);
	if (along > ROWS_MAX / p->strips || all > INT64_MAX / 4096 / p->x.channels)
		return "sizes are too large";
	if (wins && (all * HZI_CONV8_TILE_N / use >= USE_LEAST ||
		     round_up(x->channels, split ? HZI_CONV8_SPLIT_TILE_K : HZI_CONV8_TILE_K) >=
			     USE_LEAST * x->channels))
		return "most of the products are of padding";
	if (!group_taps(plan, x))
		return "taps are too many, or too far apart";
	p->pairs = (int32_t)ceil_div(p->strips * along, 2);
	p->tiles = (int32_t)(p->pairs * ceil_div(g->m, HZI_CONV8_TILE_M));
	p->images = (int32_t)a->images;
	plan->weights = hzi_quat_planar_of(g->m, plan->padded_bytes ? plan->taps * in : g->k, 8,
					   split);
	return NULL;
}

/*
 * make_plan() for a copy of x with taps as channels where that is faster: *on_copy is the call, and
 * the caller sets on_copy->x.x.data.
 */
static const char *plan_with_copy(const struct hz_context *ctx, const struct hzi_quat_conv_step *a,
				  bool wins, struct hzi_quat_conv_step *on_copy, struct plan *plan)
{
	const double operations = 32 * (double)a->g.n *
				  (double)(round_up(a->g.m, HZI_CONV8_TILE_M));
	struct hzi_quat_conv_copy_costs costs;
	const char *why;
	int split;

	if (!hzi_quat_uses_planar_f16(ctx, a->g.dtype, a->g.precision, &split))
		return "f32 multiply-adds are asked for";
	costs = (struct hzi_quat_conv_copy_costs){
		.tap = hzi_quat_conv_sm_us(ctx, operations, split ? SPLIT_OPERATIONS : OPERATIONS),
		.unit = split ? HZI_CONV8_SPLIT_TILE_K : HZI_CONV8_TILE_K,
	};
	*on_copy = *a;
	plan->copy_bytes = hzi_quat_conv_copy_plan(ctx, &a->x, a->images, &costs, &plan->copy,
						   &on_copy->x);
	do {
		why = make_plan(ctx, on_copy, wins, plan);
	} while (why && hzi_quat_conv_copy_drop(&a->x, &on_copy->x, &plan->copy_bytes));
	return why;
}

/* The offset in the workspace of the copy of x */
static size_t copy_offset(const struct plan *plan)
{
	return hzi_quat_planar_bytes(&plan->weights) + padded((int64_t)plan->padded_bytes);
}

static size_t plan_bytes(const struct plan *plan)
{
	return copy_offset(plan) + plan->copy_bytes;
}

/* Phase i of the output pixels, of parts[d] along dimension d; false: it has no pixels. */
static bool dilation_phase(const struct hzi_quat_conv_step *a, const int64_t *parts, int64_t i,
			   struct hzi_quat_conv_step *own)
{
	*own = *a;
	own->g.n = a->images;
	for (int d = 2; d >= 0; i /= parts[d--]) {
		const int64_t part = parts[d], r = i % part, n = a->x.count[d];
		const int64_t size = (int64_t)hz_dtype_size(a->g.c_dtype);
		const int64_t count = n > r ? ceil_div(n - r, part) : 0;

		own->x.count[d] = count;
		own->g.n *= count;
		if (part == 1)
			continue;
		own->x.step[d] = part;
		own->x.base[d] += r;
		if (a->y.data)
			own->y.data = (char *)own->y.data + r * a->y.stride[1 + d] * size;
		own->y.stride[1 + d] *= part;
		if (a->pre.data)
			own->pre.data = (char *)own->pre.data + r * a->pre.stride[1 + d] * size;
		own->pre.stride[1 + d] *= part;
	}
	return own->g.n > 0;
}

/*
 * A dilated convolution is `each` convolutions without dilation, one for each phase of the output
 * pixels. It is split into parts[d] of these along dimension d where its taps do not fit into one
 * group. NULL, and the largest workspace in *bytes; or why the call is not supported.
 */
static const char *split_dilation(const struct hz_context *ctx, const struct hzi_quat_conv_step *a,
				  bool wins, int64_t *parts, size_t *bytes)
{
	struct hzi_quat_conv_step own, on_copy;
	struct plan plan;
	const char *const why = plan_with_copy(ctx, a, wins, &on_copy, &plan);
	int64_t all = 1;

	for (int d = 0; d < 3; d++) {
		const int64_t each = a->x.each[d] < 0 ? -a->x.each[d] : a->x.each[d];

		parts[d] = a->x.step[d] == 1 && a->x.taps[d] > 1 && d > 0 ? each : 1;
		all *= parts[d];
	}
	*bytes = why ? 0 : plan_bytes(&plan);
	if (all > 1 && (why || !(plan.copy_bytes || plan.p.groups == a->x.taps[0]))) {
		size_t most = 0;
		int64_t i;

		for (i = 0; i < all && dilation_phase(a, parts, i, &own); i++) {
			if (plan_with_copy(ctx, &own, wins, &on_copy, &plan) || plan.copy_bytes)
				break;
			most = plan_bytes(&plan) > most ? plan_bytes(&plan) : most;
		}
		if (i == all) {
			*bytes = most;
			return NULL;
		}
	}
	parts[0] = parts[1] = parts[2] = 1;
	return why;
}

/* A plan that is expected to be the fastest route if there is one, else any plan */
static const char *choose(const struct hz_context *ctx, const struct hzi_quat_conv_step *a,
			  bool *wins, int64_t *parts, size_t *bytes)
{
	*wins = true;
	if (!split_dilation(ctx, a, true, parts, bytes))
		return NULL;
	*wins = false;
	return split_dilation(ctx, a, false, parts, bytes);
}

const char *hzi_cuda_quat_conv_implicit_gemm8_unsupported(const struct hz_context *ctx,
							  const void *args)
{
	int64_t parts[3];
	size_t bytes;
	bool wins;

	return choose(ctx, args, &wins, parts, &bytes);
}

bool hzi_cuda_quat_conv_implicit_gemm8_wins(const struct hz_context *ctx,
					    const struct hzi_quat_conv_step *a)
{
	int64_t parts[3];
	size_t bytes;

	return !split_dilation(ctx, a, true, parts, &bytes);
}

double hzi_cuda_quat_conv_implicit_gemm8_us(const struct hz_context *ctx,
					    const struct hzi_quat_conv_step *a)
{
	const struct hzi_quat_patch_step *x = &a->x;
	const int64_t taps = x->taps[0] * x->taps[1] * x->taps[2];
	int64_t as_taps = 0;
	double operations;
	struct plan plan;

	if (!make_plan(ctx, a, true, &plan)) {
		for (int i = 0; i < plan.p.groups; i++)
			as_taps += max_of(plan.p.group[i].taps, GROUP_TAPS);
	}
	operations = 32 * (double)a->g.n * (double)round_up(a->g.m, HZI_CONV8_TILE_M) *
		     (double)(max_of(max_of(as_taps, taps), GROUP_TAPS) *
			      round_up(x->channels, HZI_CONV8_TILE_K));
	return CALL_US + hzi_quat_conv_sm_us(ctx, operations, OPERATIONS);
}

size_t hzi_cuda_quat_conv_implicit_gemm8_workspace(const struct hz_context *ctx, const void *args)
{
	int64_t parts[3];
	size_t bytes;
	bool wins;

	choose(ctx, args, &wins, parts, &bytes);
	return bytes;
}

/* Copies w with the channels of each tap padded: TMA tiles begin at a multiple of 16 bytes. */
static int pad_weights(struct hz_context *ctx, const char *op, const struct plan *plan,
		       int64_t channels, struct hzi_quat_matrix *w, void *padded_w)
{
	const int64_t m = plan->weights.lines, in = plan->p.tap_step;
	struct hzi_quat_map_step copy = {
		.kind = HZI_QUAT_MAP_COPY, .total = m * plan->taps * channels, .ndim = 3,
		.shape = {m, plan->taps, channels},
		.a = {.data = w->data, .stride = {w->row, channels * w->col, w->col},
		      .dtype = w->dtype, .whole = w->whole},
		.out = {.data = padded_w, .stride = {plan->taps * in * 4, in * 4, 4},
			.comp = {0, 1, 2, 3}, .dtype = w->dtype, .whole = 1},
	};

	memcpy(copy.a.comp, w->comp, sizeof(w->comp));
	memcpy(w->comp, copy.out.comp, sizeof(w->comp));
	w->data = padded_w;
	w->row = copy.out.stride[0];
	w->col = 4;
	w->whole = 1;
	HZ_CHECK(hzi_cuda_fill(ctx, padded_w, 0, plan->padded_bytes));
	return hzi_cuda_quat_steps.map(ctx, op, &copy);
}

/* Strides in the order image, slab, row, column */
static void set_strides(int64_t *to, const int64_t *from, const struct plan *plan)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[1 + plan->rows];
	to[3] = from[1 + plan->cols];
}

static int epilogue_of(int dtype, const struct hzi_quat_out *o)
{
	if (o->pre.data || o->activation > HZ_ACT_LEAKY || !o->c.whole || o->c.dtype != dtype)
		return HZI_CONV_EPILOGUE_FULL;
	return o->bias || o->activation != HZ_ACT_NONE ? HZI_CONV_EPILOGUE_BIAS_ACT
						       : HZI_CONV_EPILOGUE_NONE;
}

static void swap_dims(int32_t *v, const struct plan *plan)
{
	const int32_t rows = v[plan->rows], cols = v[plan->cols];

	v[1] = rows;
	v[2] = cols;
}

/* again: the packed weights are in the workspace already. */
static int convolve(struct hz_context *ctx, const struct hzi_quat_conv_step *given, bool wins,
		    bool again)
{
	const char *const op = given->op;
	struct hzi_launch launch = {.block = {HZI_CONV8_THREADS},
				    .shared_bytes = HZI_CONV8_SHARED_BYTES,
				    .cluster = HZI_CONV8_CLUSTER, .early = true, .aligned = true};
	struct hzi_quat_conv_step on_copy;
	const struct hzi_quat_conv_step *const a = &on_copy;
	const struct hzi_quat_gemm_args g = given->g;
	struct hzi_quat_matrix w;
	struct plan plan;
	struct hzi_quat_conv8 *p = &plan.p;
	struct hzi_quat_planar *planes = &plan.weights;
	int clusters, kernel = HZI_KERNEL_quat_conv_implicit_gemm8_strided;
	bool vectorized;

	plan_with_copy(ctx, given, wins, &on_copy, &plan);
	if (plan.copy_bytes) {
		on_copy.x.x.data = (char *)ctx->workspace + copy_offset(&plan);
		HZ_CHECK(hzi_quat_conv_copy_run(ctx, op, &plan.copy, on_copy.x.x.data));
	}
	hzi_quat_planar_set(planes, ctx->workspace);
	w = hzi_quat_matrix_of(&g.a, g.dtype, g.conj_a, NULL, 0);
	if (plan.padded_bytes && !again)
		HZ_CHECK(pad_weights(ctx, op, &plan, g.k / plan.taps, &w,
				     (char *)ctx->workspace + hzi_quat_planar_bytes(planes)));
	if (!again)
		HZ_CHECK(hzi_quat_planar_pack(ctx, op, planes, &w, true, NULL));
	HZ_CHECK(hzi_quat_planar_map(ctx, op, &p->weights, planes,
				     2 * (planes->split ? HZI_CONV8_SPLIT_TILE_K :
					  HZI_CONV8_TILE_K), HZI_CONV8_TILE_M));
	p->weight_scales = planes->scales;
	p->plane_lines = (int32_t)planes->all_lines;

	p->out = hzi_quat_conv_out_of(a);
	p->flip = g.conj_c ? 0 : 0x80000000;
	p->out.c.conj = 0;
	vectorized = hzi_quat_conv_array_of(&p->x, &a->x.x, a->x.channels, g.conj_b);
	if (planes->split) {
		kernel = vectorized && g.dtype == HZ_F32 ?
				 HZI_KERNEL_quat_conv_implicit_gemm8_f32x3 + epilogue_of(g.dtype,
										     &p->out) :
				 HZI_KERNEL_quat_conv_implicit_gemm8_strided_f32x3;
		launch.block[0] = HZI_CONV8_SPLIT_THREADS;
		launch.shared_bytes = HZI_CONV8_SPLIT_SHARED_BYTES;
	} else if (vectorized && g.dtype != HZ_F32) {
		kernel = (g.dtype == HZ_F16 ? HZI_KERNEL_quat_conv_implicit_gemm8_f16 :
			  HZI_KERNEL_quat_conv_implicit_gemm8_bf16) +
			 epilogue_of(g.dtype, &p->out);
	}
	set_strides(p->x.stride, a->x.x.stride, &plan);
	set_strides(p->c_stride, a->y.stride, &plan);
	set_strides(p->pre_stride, a->pre.stride, &plan);

	p->slab_step = (int32_t)a->x.step[0];
	p->row_step = (int32_t)a->x.step[plan.rows];
	p->col_step = (int32_t)a->x.step[plan.cols];
	swap_dims(p->size, &plan);
	swap_dims(p->count, &plan);
	HZ_CHECK(hzi_cuda_clusters(ctx, op, kernel, &launch, &clusters));
	launch.grid[0] = (unsigned)(HZI_CONV8_CLUSTER * min_of(clusters, p->tiles));
	return hzi_cuda_launch(ctx, op, kernel, &launch, p, sizeof(*p));
}

int hzi_cuda_quat_conv_implicit_gemm8(struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_conv_step *a = args;
	struct hzi_quat_conv_step own;
	int64_t parts[3];
	size_t bytes;
	bool wins;

	choose(ctx, a, &wins, parts, &bytes);
	for (int64_t i = 0; i < parts[0] * parts[1] * parts[2]; i++) {
		dilation_phase(a, parts, i, &own);
		HZ_CHECK(convolve(ctx, &own, wins, i > 0));
	}
	return HZ_OK;
}
