/*
 * common.c - geometry and operands that launchers of quaternion convolutions share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "gpu/quat_conv/depthwise.h"
#include "gpu/quat_conv/launch.h"

HZI_LINK_IMAGES(quat_conv);

#define COUNT_MAX ((int64_t)1 << 30)

static int64_t floor_div(int64_t a, int64_t b)
{
	return a / b - (a % b < 0);
}

int64_t hzi_quat_conv_phase_of(const struct hzi_quat_patch_step *x, int d, int64_t t,
			       int64_t *phase)
{
	const int64_t at = x->each[d] * t + x->base[d], first = floor_div(at, x->step[d]);

	*phase = at - first * x->step[d];
	return first;
}

int64_t hzi_quat_conv_padded_pitch(const struct hzi_quat_patch_step *x, int d)
{
	int64_t low = 0, high = 0, here, above;

	for (int64_t t = 0; t < x->taps[d]; t++) {
		int64_t phase;
		const int64_t at = hzi_quat_conv_phase_of(x, d, t, &phase);

		low = at < low ? at : low;
		high = at > high ? at : high;
	}
	here = x->count[d] + high;
	above = ceil_div(x->size[d], x->step[d]) - low;
	return here > above ? here : above;
}

bool hzi_quat_conv_sizes_fit(const struct hzi_quat_patch_step *x)
{
	const int64_t most = INT16_MAX;

	for (int d = 0; d < 3; d++) {
		if (x->size[d] > COUNT_MAX || x->count[d] > COUNT_MAX ||
		    x->taps[d] > HZI_CONV_TAPS_MAX || x->step[d] > most || x->each[d] > most ||
		    x->each[d] < -most || x->base[d] > most || x->base[d] < -most ||
		    x->each[d] * x->taps[d] > most || x->each[d] * x->taps[d] < -most)
			return false;
	}
	return true;
}

/* A matrix: rows are images, columns are channels. The strides of pixels are handled apart. */
static struct hzi_quat_view view_of(const struct hzi_quat_array *a)
{
	struct hzi_quat_view v = {.data = a->data, .row = a->stride[0], .col = a->stride[4]};

	memcpy(v.comp, a->comp, sizeof(v.comp));
	return v;
}

bool hzi_quat_conv_array_of(struct hzi_quat_conv_array *s, const struct hzi_quat_array *a,
			    int64_t channels, int conj)
{
	const struct hzi_quat_view v = view_of(a);
	int64_t steps = 0;

	s->q = hzi_quat_matrix_of(&v, a->dtype, conj, a->stride + 1, 3);
	s->channels = (int32_t)channels;
	for (int d = 0; d < 4; d++)
		steps |= s->stride[d] = a->stride[d];
	if (a->dtype == HZ_F32)
		return s->q.whole && s->q.col == 4 && steps % 4 == 0;
	return s->q.whole && s->q.col == 4 && steps % 8 == 0 && (uintptr_t)v.data % 16 == 0 &&
	       channels % 2 == 0;
}

struct hzi_quat_out hzi_quat_conv_out_of(const struct hzi_quat_conv_step *a)
{
	struct hzi_quat_gemm_args g = a->g;
	struct hzi_quat_out o;

	g.m *= a->x.groups;
	/* Pixels as a batch, so that every stride of C counts for its alignment */
	g.ndim = 3;
	g.c = view_of(&a->y);
	memcpy(g.c_stride, a->y.stride + 1, 3 * sizeof(*g.c_stride));
	if (a->pre.data) {
		g.pre = view_of(&a->pre);
		memcpy(g.pre_stride, a->pre.stride + 1, 3 * sizeof(*g.pre_stride));
	}
	o = hzi_quat_out_of(&g);
	o.c.row = a->y.stride[4];
	o.pre.row = a->pre.stride[4];
	return o;
}

bool hzi_quat_conv_direct_fits(const struct hzi_quat_patch_step *x, int64_t images, int64_t outs)
{
	for (int d = 0; d < 3; d++) {
		if (x->size[d] > COUNT_MAX || x->count[d] > COUNT_MAX || x->taps[d] > COUNT_MAX)
			return false;
	}
	return hzi_quat_conv_sizes_fit(x) && images <= COUNT_MAX &&
	       x->groups * outs <= COUNT_MAX && x->groups * x->channels <= COUNT_MAX;
}

struct hzi_quat_matrix hzi_quat_conv_pixels_of(const struct hzi_quat_array *a, int conj,
					       int64_t *stride)
{
	struct hzi_quat_view v = {.data = a->data, .col = a->stride[4]};
	struct hzi_quat_matrix m;

	memcpy(v.comp, a->comp, sizeof(v.comp));
	m = hzi_quat_matrix_of(&v, a->dtype, conj, NULL, 0);
	for (int d = 0; d < 4; d++) {
		stride[d] = a->stride[d];
		m.whole &= a->stride[d] % 4 == 0;
	}
	return m;
}

struct hzi_quat_conv_window hzi_quat_conv_window_of(const struct hzi_quat_patch_step *x,
						    int64_t images, int64_t outs, int conj)
{
	struct hzi_quat_conv_window s = {
		.images = (int32_t)images, .groups = (int32_t)x->groups,
		.channels = (int32_t)x->channels, .outs = (int32_t)outs,
		.strips = (int32_t)ceil_div(x->count[2], HZI_DEPTHWISE_PIXELS),
	};

	s.x = hzi_quat_conv_pixels_of(&x->x, conj, s.x_stride);
	for (int d = 0; d < 3; d++) {
		s.size[d] = (int32_t)x->size[d];
		s.count[d] = (int32_t)x->count[d];
		s.taps[d] = (int32_t)x->taps[d];
		s.step[d] = (int32_t)x->step[d];
		s.each[d] = (int32_t)x->each[d];
		s.base[d] = (int32_t)x->base[d];
	}
	return s;
}

struct hzi_quat_conv_direct hzi_quat_conv_direct_of(const struct hzi_quat_conv_step *a)
{
	const struct hzi_quat_gemm_args *g = &a->g;
	struct hzi_quat_conv_direct p = {
		.s = hzi_quat_conv_window_of(&a->x, a->images, g->m, g->conj_b),
		.out = hzi_quat_conv_out_of(a),
		.w = hzi_quat_matrix_of(&g->a, g->dtype, g->conj_a, &a->a_group, 1),
		.no_epilogue = !g->bias && !a->pre.data && g->activation == HZ_ACT_NONE,
	};

	p.w.batch[0] = a->a_group;
	memcpy(p.c_stride, a->y.stride, sizeof(p.c_stride));
	memcpy(p.pre_stride, a->pre.stride, sizeof(p.pre_stride));
	return p;
}

int hzi_cuda_quat_conv_reduce(struct hz_context *ctx, const char *op,
			      const struct hzi_quat_wgrad_sum *sum)
{
	const struct hzi_launch launch = {.grid = {(unsigned)ceil_div(sum->count, 32)},
					  .block = {32, HZI_WGRAD_SUM_THREADS}, .early = true};

	return hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_conv_wgrad_reduce, &launch, sum,
			       sizeof(*sum));
}
