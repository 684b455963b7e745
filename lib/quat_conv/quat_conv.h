/*
 * quat_conv.h - quaternion convolutions: arguments of the routes of a device
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_CONV_H
#define HZI_QUAT_CONV_H

#include "lib/core/route.h"
#include "lib/quat_gemm/quat_gemm.h"
#include "lib/quat_layer/quat_layer.h"

/*
 * A convolution of x.groups groups: y = act(w patches + bias), in each group the product g of
 * weights g.a, g.m output channels by g.k taps and input channels, and the patches x of g.n pixels.
 * g.b and g.c have no data. x, y and pre start at the first group's channels; a_group is the stride
 * of the groups of g.a. The plan asks for a route for all groups, then for one for each group.
 */
struct hzi_quat_conv_step {
	const char *op;			/* name of the call, for messages */
	struct hzi_quat_gemm_args g;
	struct hzi_quat_patch_step x;
	struct hzi_quat_array y, pre;
	int64_t images, a_group;
};

/*
 * The gradient of the weights of x.groups groups: sum, contiguous f32 [output channel][tap][input
 * channel][4], in each group the product g of `small`, g.m channels by g.k pixels, and the patches
 * x of these pixels, g.n taps and input channels. g.a, g.b and g.c have no data.
 */
struct hzi_quat_wgrad_step {
	const char *op;
	struct hzi_quat_gemm_args g;
	struct hzi_quat_patch_step x;
	struct hzi_quat_array small;
	int64_t images;
	void *sum;
};

/* The functions of a device for convolutions, besides the steps of layers */
struct hzi_quat_conv_steps {
	const struct hzi_quat_steps *layer;
	int (*patch)(struct hz_context *ctx, const char *op, const struct hzi_quat_patch_step *a);
	/*
	 * Routes of a convolution and of the gradient of x (struct hzi_quat_conv_step), and of the
	 * gradient of w (struct hzi_quat_wgrad_step). The last one of each has no run(): it stands
	 * for GEMM with patches, in lib/quat_conv/plan.c.
	 */
	const struct hzi_op_routes *conv, *weights;
	bool packs;			/* patch() is fast for contiguous channels: copy others */
	size_t patch_bytes;		/* bytes of patches at a time */
};

extern const struct hzi_quat_conv_steps hzi_cpu_quat_conv_steps, hzi_cuda_quat_conv_steps;

/* Arrays are [image][3 dimensions, some of size 1][channel]; w: [out][3 taps][in]. */
struct hzi_quat_conv_args {
	struct hzi_quat_layer l;
	struct hzi_quat_rotation_opts rotation;
	int64_t groups, stride[3], dilation[3];
	int64_t pad[3];			/* before the first element: what is after it, sizes say */
	int32_t transposed, conj;	/* conj: conjugated weights, if transposed */
	int32_t reflect;		/* padded by what is inside, else by zeros */
};

struct hzi_quat_conv_bwd_args {
	struct hzi_quat_conv_args f;
};

/* Runs a call on a device's steps; if bytes is not NULL, only sets *bytes to its workspace. */
int hzi_quat_conv_do(struct hz_context *ctx, const struct hzi_quat_conv_steps *steps,
		     const struct hzi_quat_conv_args *a, bool backward, size_t *bytes);

#endif
