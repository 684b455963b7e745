/*
 * launch.h - convolutions of quaternions: what their launchers share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_CONV_LAUNCH_H
#define HZI_GPU_QUAT_CONV_LAUNCH_H

#include "gpu/quat_conv/quat_conv.h"
#include "gpu/quat_gemm/launch.h"
#include "lib/quat_conv/quat_conv.h"

/* ---- Routes of a convolution: struct hzi_quat_conv_step -------------------------------------- */

/* _wins: whether a route that supports a call is expected to be the fastest; _us: expected us */
const char *hzi_cuda_quat_conv_depthwise_unsupported(const struct hz_context *ctx,
						     const void *args);
bool hzi_cuda_quat_conv_depthwise_wins(const struct hzi_quat_conv_step *a);
int hzi_cuda_quat_conv_depthwise(struct hz_context *ctx, const void *args);

const char *hzi_cuda_quat_conv_grouped_unsupported(const struct hz_context *ctx, const void *args);
bool hzi_cuda_quat_conv_grouped_wins(const struct hzi_quat_conv_step *a);
size_t hzi_cuda_quat_conv_grouped_workspace(const struct hz_context *ctx, const void *args);
int hzi_cuda_quat_conv_grouped(struct hz_context *ctx, const void *args);

const char *hzi_cuda_quat_conv_implicit_gemm16_unsupported(const struct hz_context *ctx,
							   const void *args);
double hzi_cuda_quat_conv_implicit_gemm16_us(const struct hz_context *ctx,
					     const struct hzi_quat_conv_step *a);
size_t hzi_cuda_quat_conv_implicit_gemm16_workspace(const struct hz_context *ctx, const void *args);
int hzi_cuda_quat_conv_implicit_gemm16(struct hz_context *ctx, const void *args);

const char *hzi_cuda_quat_conv_implicit_gemm8_unsupported(const struct hz_context *ctx,
							  const void *args);
bool hzi_cuda_quat_conv_implicit_gemm8_wins(const struct hz_context *ctx,
					    const struct hzi_quat_conv_step *a);
double hzi_cuda_quat_conv_implicit_gemm8_us(const struct hz_context *ctx,
					    const struct hzi_quat_conv_step *a);
size_t hzi_cuda_quat_conv_implicit_gemm8_workspace(const struct hz_context *ctx, const void *args);
int hzi_cuda_quat_conv_implicit_gemm8(struct hz_context *ctx, const void *args);

/* ---- Routes of the gradient of weights: struct hzi_quat_wgrad_step --------------------------- */

const char *hzi_cuda_quat_conv_wgrad_depthwise_unsupported(const struct hz_context *ctx,
							   const void *args);
bool hzi_cuda_quat_conv_wgrad_depthwise_wins(const struct hzi_quat_wgrad_step *a);
size_t hzi_cuda_quat_conv_wgrad_depthwise_workspace(const struct hz_context *ctx,
						    const void *args);
int hzi_cuda_quat_conv_wgrad_depthwise(struct hz_context *ctx, const void *args);

/* has_copy: taps have become channels */
const char *hzi_cuda_quat_conv_wgrad16_unsupported(const struct hz_context *ctx, const void *args);
double hzi_cuda_quat_conv_wgrad16_us(const struct hz_context *ctx,
				     const struct hzi_quat_wgrad_step *a, bool *has_copy);
size_t hzi_cuda_quat_conv_wgrad16_workspace(const struct hz_context *ctx, const void *args);
int hzi_cuda_quat_conv_wgrad16(struct hz_context *ctx, const void *args);

const char *hzi_cuda_quat_conv_wgrad8_unsupported(const struct hz_context *ctx, const void *args);
double hzi_cuda_quat_conv_wgrad8_us(const struct hzi_quat_wgrad_step *a);
size_t hzi_cuda_quat_conv_wgrad8_workspace(const struct hz_context *ctx, const void *args);
int hzi_cuda_quat_conv_wgrad8(struct hz_context *ctx, const void *args);

/* ---- Geometry, arrays as kernels take them (common.c) ---------------------------------------- */

/*
 * Inputs whose places in dimension d are equal modulo the step are a phase. Returns the first
 * element that tap t sees of its phase; *rest: which phase.
 */
int64_t hzi_quat_conv_phase_of(const struct hzi_quat_patch_step *x, int d, int64_t t,
			       int64_t *rest);

/*
 * The pitch of dimension d, padded so that no window reaches from one line of the dimension ahead
 * into the next, where these are concatenated.
 */
int64_t hzi_quat_conv_padded_pitch(const struct hzi_quat_patch_step *x, int d);

/* Whether sizes are at most 2^30, steps and offsets within 16 bits, and taps few enough. */
bool hzi_quat_conv_sizes_fit(const struct hzi_quat_patch_step *x);

/* The same, and images and all channels at most 2^30: depthwise.c, grouped.c */
bool hzi_quat_conv_direct_fits(const struct hzi_quat_patch_step *x, int64_t images, int64_t outs);

/* true: channels are contiguous quaternions of 16 bits, and pixels are 16-byte aligned. */
bool hzi_quat_conv_side_of(struct hzi_quat_conv_side *s, const struct hzi_quat_array *a,
			   int64_t channels, int conj);

/* The output of all groups: rows are channels; whole if pixels are, too */
struct hzi_quat_out hzi_quat_conv_out_of(const struct hzi_quat_conv_step *a);

/* One side of a convolution: columns are channels; the strides of images and dimensions apart */
struct hzi_quat_matrix hzi_quat_conv_pixels_of(const struct hzi_quat_array *a, int conj,
					       int64_t *stride);

struct hzi_quat_few_sight hzi_quat_conv_window_of(const struct hzi_quat_patch_step *x,
						  int64_t images, int64_t outs, int conj);

/* The parameters that depthwise.c and grouped.c share */
struct hzi_quat_few hzi_quat_conv_direct_of(const struct hzi_quat_conv_step *a);

/* sum = the sum of its parts, in their order */
struct hzi_quat_few_sum;

int hzi_cuda_quat_conv_sum_parts(struct hz_context *ctx, const char *op,
				 const struct hzi_quat_few_sum *sum);

/* ---- Taps as channels (taps_to_channels.c) --------------------------------------------------- */

struct hzi_quat_conv_copy;

/*
 * Expected us of a channel, for each tap and for each phase. Channels are taken by `unit`. set:
 * fewer taps of a phase take as long as so many; 0: they do not.
 */
struct hzi_quat_conv_copy_costs {
	double tap, grid;
	int64_t unit, set;
};

/*
 * The bytes of a copy of x in which some taps are channels, and the convolution of that copy,
 * inner, whose x.data is to be set; 0: the copy does not pay.
 */
size_t hzi_quat_conv_copy_plan(const struct hzi_quat_patch_step *x, int64_t images,
			       const struct hzi_quat_conv_copy_costs *costs,
			       struct hzi_quat_conv_copy *f, struct hzi_quat_patch_step *inner);

/* Makes inner x again, where no kernel supports the copy. false: it was x already. */
bool hzi_quat_conv_copy_drop(const struct hzi_quat_patch_step *x, struct hzi_quat_patch_step *inner,
			     size_t *bytes);

int hzi_quat_conv_copy_run(struct hz_context *ctx, const char *op, struct hzi_quat_conv_copy *f,
			   void *out);

#endif
