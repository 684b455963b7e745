/*
 * quat_conv.h - what convolutions of quaternions hand to their implementations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_CONV_H
#define HZI_QUAT_CONV_H

#include "lib/core/route.h"
#include "lib/quat_gemm/quat_gemm.h"
#include "lib/quat_layer/quat_layer.h"

/*
 * A convolution of some groups of channels as one step: what product of a by patches that of the
 * first is, b and c having no data; patches, of all images, x beginning at the first channel; where
 * the pixels of c and pre are, these beginning at the first channel too; and from a to that of the
 * next group. Devices are asked for all groups first, and then for one at a time.
 */
struct hzi_qconv_args {
	const char *op;			/* of the call, for messages */
	struct hzi_quat_gemm_args g;
	struct hzi_qpatch_args x;
	struct hzi_qarray y, pre;
	int64_t images, a_group;
};

/*
 * The gradient of some groups' weights as one step: what product that of the first is of small by
 * patches of big, a, b and c having no data; small and patches beginning at the first channel. The
 * sum is of f32, rows of taps and channels back to back.
 */
struct hzi_qconv_weights_args {
	const char *op;
	struct hzi_quat_gemm_args g;
	struct hzi_qpatch_args x;
	struct hzi_qarray small;
	int64_t images;
	void *sum;
};

/* What a device has for convolutions besides the steps of layers */
struct hzi_quat_conv_steps {
	const struct hzi_quat_steps *layer;
	int (*patch)(struct hz_context *ctx, const char *op, const struct hzi_qpatch_args *a);
	/*
	 * The routes of a convolution (struct hzi_qconv_args), also of the gradient of x, and of
	 * the gradient of w (struct hzi_qconv_weights_args). The last one of each, which has no
	 * run(), is products with patches, which lib/quat_conv/plan.c makes.
	 */
	const struct hzi_op_routes *conv, *weights;
	bool packs;			/* patches want channels whole and contiguous, or a copy */
	size_t patch_bytes;		/* patches that are made at a time */
};

extern const struct hzi_quat_conv_steps hzi_cpu_quat_conv_steps, hzi_cuda_quat_conv_steps;

/* Arrays have an image, three dimensions, some of size 1, and channels; w: out, taps, in. */
struct hzi_quat_conv_args {
	struct hzi_qlayer l;
	int64_t groups, stride[3], pad[3], dilation[3];
	int32_t transposed, conj;	/* conj: of the weights, if transposed */
};

struct hzi_quat_conv_bwd_args {
	struct hzi_quat_conv_args f;
};

/* As hzi_quat_linear_do() (lib/quat_conv/plan.c) */
int hzi_quat_conv_do(struct hz_context *ctx, const struct hzi_quat_conv_steps *steps,
		     const struct hzi_quat_conv_args *a, bool backward, size_t *bytes);

#endif
