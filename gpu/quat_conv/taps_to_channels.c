/*
 * taps_to_channels.c - taps of quaternion convolutions as channels, where channels are few
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Tensor cores multiply 16, 32 or 64 channels at a time; for the three channels of a first layer
 * most of that would be padding. Here x is copied: each pixel of the copy has as channels what all
 * taps along the last dimension read, or along the last two or all three (im2col of some
 * dimensions). The weights have this order already.
 */
#include <config.h>

#include <math.h>

#include "gpu/quat_conv/launch.h"
#include "gpu/quat_conv/im2col.h"

HZI_LINK_IMAGES(quat_conv);

#define BYTES_MOST ((int64_t)1 << 30)	/* of the copy */
#define COUNT_MAX ((int64_t)1 << 30)
#define BLOCKS 24			/* per SM: three waves */
#define COPY_SHARE 0.245		/* bytes written, of the peak bandwidth */
/* The copy must bring the expected time below this share, since the model is not exact. */
#define GAIN_LEAST 0.7
#define ODD_COST 1.5

/* The copy *f, in which taps of dimensions first .. 2 are channels, and the convolution of it */
static void describe_copy(const struct hzi_quat_patch_step *x, int64_t images, int first,
			  struct hzi_quat_conv_copy *f, struct hzi_quat_patch_step *inner)
{
	const int64_t unit = x->x.dtype == HZ_F32 ? 1 : 2;
	int64_t stride = 4, channels = x->channels;

	*f = (struct hzi_quat_conv_copy){.x = x->x, .images = images,
					 .channels = (int32_t)x->channels};
	*inner = *x;
	for (int d = 0; d < 3; d++) {
		const bool own = d >= first;

		f->size[d] = (int32_t)x->size[d];
		f->count[d] = (int32_t)(own ? x->count[d] : x->size[d]);
		f->taps[d] = (int32_t)(own ? x->taps[d] : 1);
		f->step[d] = (int32_t)(own ? x->step[d] : 1);
		f->each[d] = (int32_t)(own ? x->each[d] : 0);
		f->base[d] = (int32_t)(own ? x->base[d] : 0);
		inner->size[d] = f->count[d];
		if (!own)
			continue;
		inner->taps[d] = inner->step[d] = 1;
		inner->each[d] = inner->base[d] = 0;
		channels *= x->taps[d];
	}
	/* 16 bits: an even number of channels, so that pixels are 16-byte aligned */
	inner->channels = round_up(channels, unit);
	f->pitch = (int32_t)inner->channels;
	stride = 4 * inner->channels;
	inner->x = (struct hzi_quat_array){.comp = {0, 1, 2, 3}, .dtype = x->x.dtype, .whole = 1};
	inner->x.stride[4] = 4;
	for (int d = 3; d >= 0; d--) {
		inner->x.stride[d] = stride;
		stride *= d ? f->count[d - 1] : 1;
	}
	f->total = images * f->count[0] * f->count[1] * f->count[2] * f->pitch;
}

static int64_t bytes_of(const struct hzi_quat_conv_copy *f)
{
	return f->total * 4 * (int64_t)hz_dtype_size(f->x.dtype);
}

static bool fits(const struct hzi_quat_patch_step *x, int64_t images, int first)
{
	double channels = (double)x->channels, pixels = (double)images;

	for (int d = 0; d < 3; d++) {
		channels *= d >= first ? (double)x->taps[d] : 1;
		pixels *= d >= first ? (double)x->count[d] : (double)x->size[d];
	}
	return (channels + 1) * pixels * 4 * (double)hz_dtype_size(x->x.dtype) <= BYTES_MOST &&
	       (channels + 1) * (double)x->count[2] <= COUNT_MAX &&
	       images * x->size[0] <= COUNT_MAX;
}

/* Expected time of inner, us */
static double cost_of(const struct hzi_quat_patch_step *inner,
		      const struct hzi_quat_conv_copy_costs *c)
{
	const int64_t channels = round_up(inner->channels, c->unit);
	double taps = 1, grids = 1;

	for (int d = 0; d < 3; d++) {
		taps *= (double)inner->taps[d];
		grids *= (double)min_of(inner->step[d], inner->taps[d]);
	}
	if (c->set)
		taps = grids * (double)(c->set * ceil_div((int64_t)ceil(taps / grids), c->set));
	return (double)channels * (taps * c->tap + grids * c->grid);
}

size_t hzi_quat_conv_copy_plan(const struct hz_context *ctx,
			       const struct hzi_quat_patch_step *x, int64_t images,
			       const struct hzi_quat_conv_copy_costs *costs,
			       struct hzi_quat_conv_copy *f, struct hzi_quat_patch_step *inner)
{
	/* Kernels load an odd number of 16-bit channels one by one. */
	const double odd = x->x.dtype != HZ_F32 && x->channels % 2 ? ODD_COST : 1;
	double least = GAIN_LEAST * odd * cost_of(x, costs);
	size_t bytes = 0;

	if (x->groups > 1 || x->channels >= costs->unit || !hzi_quat_conv_sizes_fit(x))
		return 0;
	for (int first = 2; first >= 0; first--) {
		struct hzi_quat_conv_copy own;
		struct hzi_quat_patch_step left;
		double cost;

		if (x->taps[first] == 1)
			continue;
		if (!fits(x, images, first))
			break;
		describe_copy(x, images, first, &own, &left);
		cost = cost_of(&left, costs) +
		       hzi_quat_conv_memory_us(ctx, (double)bytes_of(&own), COPY_SHARE);
		if (cost >= least)
			continue;
		least = cost;
		*f = own;
		*inner = left;
		bytes = (size_t)bytes_of(f);
	}
	return bytes;
}

bool hzi_quat_conv_copy_drop(const struct hzi_quat_patch_step *x, struct hzi_quat_patch_step *inner,
			     size_t *bytes)
{
	const bool was = *bytes > 0;

	*inner = *x;
	*bytes = 0;
	return was;
}

int hzi_quat_conv_copy_run(struct hz_context *ctx, const char *op, struct hzi_quat_conv_copy *f,
			   void *out)
{
	const int64_t rows = f->images * f->count[0] * f->count[1];
	const int64_t columns = ceil_div((int64_t)f->count[2] * f->pitch, HZI_QUAT_STEP_THREADS);
	/* A thread computes its tap once for several rows. */
	const int64_t most = BLOCKS * (int64_t)hzi_cuda_device(ctx)->sms / columns;
	const struct hzi_launch l = {
		.grid = {(unsigned)columns, (unsigned)min_of(rows, most > 1 ? most : 1)},
		.block = {HZI_QUAT_STEP_THREADS},
	};

	f->out = out;
	f->rows = rows;
	return hzi_cuda_launch(ctx, op, HZI_KERNEL_quat_conv_taps_to_channels, &l, f, sizeof(*f));
}
