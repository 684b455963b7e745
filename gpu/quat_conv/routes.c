/*
 * routes.c - the code paths of quaternion convolutions on a GPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/quat_conv/launch.h"
#include "gpu/quat_layer/launch.h"

HZI_LINK_IMAGES(quat_conv);

/*
 * Costs are ranks: the first route of the table that is expected to be the fastest runs, else
 * patches. Another route that supports the call has the rank LAST: it runs when it is forced.
 */
enum { DEPTHWISE, GROUPED, GEMM16, GEMM8, LAST = 8 };
enum { WGRAD16 = 1, WGRAD16_ALONE = 3 };	/* gradient of w; 3: behind wgrad8 */

#define GEMM16_LEAST 16		/* least channels at which implicit_gemm16 wins */
#define GEMM16_POINTS 256	/* with one tap, most input or output channels */

HZI_RANK(depthwise, void, hzi_cuda_quat_conv_depthwise_wins(a), DEPTHWISE, LAST)
HZI_RANK(grouped, void, hzi_cuda_quat_conv_grouped_wins(a), GROUPED, LAST)

/* 16 products read 16-bit pixels in place; 8 products need planes of pixels and weights. */
static int64_t implicit_gemm16_cost(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_conv_step *a = args;
	const struct hzi_quat_patch_step *x = &a->x;
	const int64_t taps = x->taps[0] * x->taps[1] * x->taps[2];

	/* With fewer channels taps become channels; with many, the number of products counts. */
	if ((taps > 1 && x->channels < GEMM16_LEAST) ||
	    (taps == 1 && a->g.m >= GEMM16_POINTS && x->channels >= GEMM16_POINTS))
		return LAST;
	return hzi_cuda_quat_conv_implicit_gemm16_us(ctx, a) <
	       hzi_cuda_quat_conv_implicit_gemm8_us(ctx, a) ? GEMM16 : LAST;
}

HZI_RANK(implicit_gemm8, void, hzi_cuda_quat_conv_implicit_gemm8_wins(ctx, a), GEMM8, LAST)
HZI_RANK(wgrad_depthwise, void, hzi_cuda_quat_conv_wgrad_depthwise_wins(a), DEPTHWISE, LAST)

static int64_t wgrad16_cost(const struct hz_context *ctx, const void *args)
{
	const struct hzi_quat_wgrad_step *a = args;
	struct hzi_quat_wgrad_step one = *a;
	bool on_copy;
	const double us = hzi_cuda_quat_conv_wgrad16_us(ctx, a, &on_copy);

	/* With taps as channels 16 products were faster in every measurement. */
	if (on_copy || us < hzi_cuda_quat_conv_wgrad8_us(ctx, a))
		return WGRAD16;
	/* If wgrad8 supports each group by itself, leave the call to one call for each group. */
	one.x.groups = 1;
	return a->x.groups == 1 || hzi_cuda_quat_conv_wgrad8_unsupported(ctx, &one) ?
		       WGRAD16_ALONE : LAST;
}

#define FUNCTIONS(route) \
	.unsupported = hzi_cuda_quat_conv_##route##_unsupported, \
	.workspace = hzi_cuda_quat_conv_##route##_workspace, .run = hzi_cuda_quat_conv_##route
#define WHAT8 "wgmma, 8 real products per quaternion product; f32 in split precision"
#define PATCHES {.name = "patches", .what = "patches of x in memory, then quat_gemm"}

static const struct hzi_route conv[] = {
	{.name = "depthwise", .what = "few channels in a group, or few outputs",
	 .unsupported = hzi_cuda_quat_conv_depthwise_unsupported, .cost = depthwise_cost,
	 .run = hzi_cuda_quat_conv_depthwise},
	{.name = "grouped", .what = "8 to 24 channels in a group, mma.sync", .arch = HZI_SM_80,
	 .cost = grouped_cost, FUNCTIONS(grouped)},
	{.name = "implicit_gemm16",
	 .what = "16-bit pixels in place, wgmma, 16 real products per quaternion product",
	 .arch = HZI_SM_90A, .cost = implicit_gemm16_cost, FUNCTIONS(implicit_gemm16)},
	{.name = "implicit_gemm8", .what = WHAT8, .arch = HZI_SM_90A, .cost = implicit_gemm8_cost,
	 FUNCTIONS(implicit_gemm8)},
	PATCHES,
};

static const struct hzi_route wgrad[] = {
	{.name = "depthwise", .what = "few channels in a group", .cost = wgrad_depthwise_cost,
	 FUNCTIONS(wgrad_depthwise)},
	{.name = "wgrad16",
	 .what = "pixels in place, wgmma, 16 real products per quaternion product",
	 .arch = HZI_SM_90A, .cost = wgrad16_cost, FUNCTIONS(wgrad16)},
	{.name = "wgrad8", .what = WHAT8, .arch = HZI_SM_90A, FUNCTIONS(wgrad8)},
	PATCHES,
};

/* Routes of quat_conv_bwd compute the gradient of w; that of x is a call of quat_conv's routes. */
const struct hzi_op_routes hzi_cuda_quat_conv_routes[] = {
	HZI_RANKED_ROUTES(quat_conv, conv), HZI_RANKED_ROUTES(quat_conv_bwd, wgrad), {0},
};

static int patch(struct hz_context *ctx, const char *op, const struct hzi_quat_patch_step *a)
{
	return hzi_cuda_quat_step(ctx, op, HZI_KERNEL_quat_conv_im2col,
				  a->rows * a->groups * a->channels, a, sizeof(*a));
}

/* patch_bytes: enough pixels to fill a large GPU with tiles, for 64 channels and 9 taps */
const struct hzi_quat_conv_steps hzi_cuda_quat_conv_steps = {
	.layer = &hzi_cuda_quat_steps, .patch = patch,
	.conv = &hzi_cuda_quat_conv_routes[0], .weights = &hzi_cuda_quat_conv_routes[1],
	.patch_bytes = (size_t)128 << 20,
};
