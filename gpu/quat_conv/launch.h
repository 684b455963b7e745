/*
 * launch.h - convolutions of quaternions: what their launchers share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_CONV_LAUNCH_H
#define HZI_GPU_QUAT_CONV_LAUNCH_H

#include "gpu/quat_conv/quat_conv.h"
#include "gpu/quat_gemm/launch.h"
#include "lib/quat_layer/quat_layer.h"

/* ---- Convolutions: struct hzi_quat_steps ----------------------------------------------------- */

/* What calls say whose workspace is 0, and which were not to be made */
#define HZI_QUAT_CONV_NOT_ONE "%s: no kernel of the GPU takes this convolution in one step"

size_t hzi_cuda_quat_conv_step_workspace(const struct hz_context *ctx,
					 const struct hzi_qconv_args *a);
int hzi_cuda_quat_conv_step(struct hz_context *ctx, const char *op, const struct hzi_qconv_args *a);
size_t hzi_cuda_quat_conv_weights_workspace(const struct hz_context *ctx,
					    const struct hzi_qconv_weights_args *a);
int hzi_cuda_quat_conv_weights(struct hz_context *ctx, const char *op,
			       const struct hzi_qconv_weights_args *a);

/* The same of few channels in a group, of all groups at once (quat_conv_few.c) */
bool hzi_cuda_quat_conv_few_takes(const struct hzi_qconv_args *a);
int hzi_cuda_quat_conv_few(struct hz_context *ctx, const char *op, const struct hzi_qconv_args *a);
bool hzi_cuda_quat_conv_groups_takes(const struct hz_context *ctx, const struct hzi_qconv_args *a);
size_t hzi_cuda_quat_conv_groups_workspace(const struct hzi_qconv_args *a);
int hzi_cuda_quat_conv_groups(struct hz_context *ctx, const char *op,
			      const struct hzi_qconv_args *a);
bool hzi_cuda_quat_conv_few_weights_takes(const struct hzi_qconv_weights_args *a);
size_t hzi_cuda_quat_conv_few_weights_workspace(const struct hz_context *ctx,
						const struct hzi_qconv_weights_args *a);
int hzi_cuda_quat_conv_few_weights(struct hz_context *ctx, const char *op,
				   const struct hzi_qconv_weights_args *a);

/* What parts of f32 add up to, in their order */
struct hzi_quat_few_sum;

int hzi_cuda_quat_conv_few_sum(struct hz_context *ctx, const char *op,
			       const struct hzi_quat_few_sum *sum);

/*
 * Gradients of weights of 16 bits by sixteen products (quat_direct.c): what a call takes is put
 * into *p, and how long that is expected to take in us, or 0 if it is not taken.
 */
struct hzi_quat_direct_weights;
struct hzi_quat_fold_costs;

struct hzi_quat_fold_costs hzi_quat_direct_weights_costs(const struct hzi_qconv_weights_args *a);
double hzi_quat_direct_weights_plan(const struct hz_context *ctx,
				    const struct hzi_qconv_weights_args *a,
				    struct hzi_quat_direct_weights *p);
size_t hzi_quat_direct_weights_bytes(const struct hzi_quat_direct_weights *p);
int hzi_quat_direct_weights(struct hz_context *ctx, const char *op,
			    const struct hzi_qconv_weights_args *a,
			    struct hzi_quat_direct_weights *p, void *workspace);

/* Convolutions of 16 bits by sixteen products: us as above, and what is launched */
double hzi_quat_direct_conv_us(const struct hz_context *ctx, const struct hzi_qconv_args *a);
size_t hzi_quat_direct_conv_workspace(const struct hz_context *ctx,
				      const struct hzi_qconv_args *a);
int hzi_quat_direct_conv(struct hz_context *ctx, const char *op, const struct hzi_qconv_args *a);

/*
 * Inputs whose places in dimension d leave the same rest by the step are a grid: of tap t, the
 * first of the grid that it sees, and which grid.
 */
int64_t hzi_qpatch_seen(const struct hzi_qpatch_args *x, int d, int64_t t, int64_t *rest);

/*
 * What to count places of dimension d by, so that those of the dimension ahead, put behind each
 * other, do not see each other's.
 */
int64_t hzi_qpatch_pitch(const struct hzi_qpatch_args *x, int d);

/* Whether sizes and places fit into what kernels count them in. */
bool hzi_qpatch_small(const struct hzi_qpatch_args *x);

/* true: channels are whole quaternions of 16 bits back to back, and pixels begin at 16 bytes. */
bool hzi_quat_conv_side_of(struct hzi_quat_conv_side *s, const struct hzi_qarray *a,
			   int64_t channels, int conj);

/* What becomes of the sums of all groups: rows are channels; whole if pixels are, too */
struct hzi_quat_out hzi_quat_conv_out_of(const struct hzi_qconv_args *a);

/* ---- Taps as channels (quat_conv_fold.c) ----------------------------------------------------- */

struct hzi_quat_fold;

/*
 * Channels are taken by unit: us of one of these by taps, and by grids, that are seen. set: fewer
 * taps of a grid take as long as so many; 0: they do not.
 */
struct hzi_quat_fold_costs {
	double tap, grid;
	int64_t unit, set;
};

/*
 * The bytes of a copy of x in which some taps are channels, and what sees all of it by those that
 * are left, inner, whose x.data is to be that copy; 0: it is not worth it.
 */
size_t hzi_quat_conv_fold_of(const struct hzi_qpatch_args *x, int64_t images,
			     const struct hzi_quat_fold_costs *costs, struct hzi_quat_fold *f,
			     struct hzi_qpatch_args *inner);

/* Where no kernel takes what sees the copy: inner is x again. false: it was so already. */
bool hzi_quat_conv_unfold(const struct hzi_qpatch_args *x, struct hzi_qpatch_args *inner,
			  size_t *bytes);

int hzi_quat_conv_fold(struct hz_context *ctx, const char *op, struct hzi_quat_fold *f, void *out);

#endif
