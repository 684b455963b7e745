/*
 * launch.h - routes of quaternion convolutions on a GPU, and what their launchers share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_CONV_LAUNCH_H
#define HZI_GPU_QUAT_CONV_LAUNCH_H

#include "gpu/quat_conv/quat_conv.h"
#include "gpu/quat_gemm/launch.h"
#include "lib/quat_conv/quat_conv.h"

/* ---- Routes of a convolution and of the gradient of weights (routes.c) ----------------------- */

/* struct hzi_quat_conv_step */
HZI_QUAT_ROUTE(quat_conv, grouped)
HZI_QUAT_ROUTE(quat_conv, implicit_gemm16)
HZI_QUAT_ROUTE(quat_conv, implicit_gemm8)
/* struct hzi_quat_wgrad_step */
HZI_QUAT_ROUTE(quat_conv, wgrad_depthwise)
HZI_QUAT_ROUTE(quat_conv, wgrad16)
HZI_QUAT_ROUTE(quat_conv, wgrad8)

/* Needs no workspace. */
const char *hzi_cuda_quat_conv_depthwise_unsupported(const struct hz_context *ctx,
						     const void *args);
int hzi_cuda_quat_conv_depthwise(struct hz_context *ctx, const void *args);

/* Whether a route that supports a call is expected to be the fastest */
bool hzi_cuda_quat_conv_depthwise_wins(const struct hzi_quat_conv_step *a);
bool hzi_cuda_quat_conv_grouped_wins(const struct hzi_quat_conv_step *a);
bool hzi_cuda_quat_conv_implicit_gemm8_wins(const struct hz_context *ctx,
					    const struct hzi_quat_conv_step *a);
bool hzi_cuda_quat_conv_wgrad_depthwise_wins(const struct hzi_quat_wgrad_step *a);

/*
 * The cost models count work per SM and clock cycle, and bytes as a share of the peak bandwidth of
 * the memory, so that they scale with the GPU. Their constants were measured on an H200, 132 SMs at
 * 1980 MHz with 4.9 TB/s; launches are in us.
 */
static inline double hzi_quat_conv_sm_us(const struct hz_context *ctx, double work,
					 double per_cycle)
{
	const struct hzi_cuda_device *d = hzi_cuda_device(ctx);

	return work / (per_cycle * d->sms * d->clock_mhz);
}

static inline double hzi_quat_conv_memory_us(const struct hz_context *ctx, double bytes,
					     double share)
{
	return bytes / (share * hzi_cuda_device(ctx)->memory_bytes_per_us);
}

/* Expected us. has_copy: the route works on a copy of x in which taps are channels. */
double hzi_cuda_quat_conv_implicit_gemm16_us(const struct hz_context *ctx,
					     const struct hzi_quat_conv_step *a);
double hzi_cuda_quat_conv_implicit_gemm8_us(const struct hz_context *ctx,
					    const struct hzi_quat_conv_step *a);
double hzi_cuda_quat_conv_wgrad16_us(const struct hz_context *ctx,
				     const struct hzi_quat_wgrad_step *a, bool *has_copy);
double hzi_cuda_quat_conv_wgrad8_us(const struct hz_context *ctx,
				    const struct hzi_quat_wgrad_step *a);

/* ---- Geometry; arrays in the form of kernels (common.c) -------------------------------------- */

/*
 * Inputs whose coordinates in dimension d are equal modulo the stride are a phase. Returns the
 * index in its phase of the input that tap t reads for output 0; *phase: which phase.
 */
int64_t hzi_quat_conv_phase_of(const struct hzi_quat_patch_step *x, int d, int64_t t,
			       int64_t *phase);

/*
 * Pitch of dimension d where its copies are concatenated, padded so that no window reaches from one
 * copy into the next.
 */
int64_t hzi_quat_conv_padded_pitch(const struct hzi_quat_patch_step *x, int d);

/* Whether sizes are at most 2^30, strides and offsets fit 16 bits, and taps are few enough. */
bool hzi_quat_conv_sizes_fit(const struct hzi_quat_patch_step *x);

/* The same, and images and the channels of all groups are at most 2^30: depthwise.c, grouped.c */
bool hzi_quat_conv_direct_fits(const struct hzi_quat_patch_step *x, int64_t images, int64_t outs);

/* true: channels are contiguous quaternions, and pixels of 16 bits are 16-byte aligned pairs. */
bool hzi_quat_conv_array_of(struct hzi_quat_conv_array *s, const struct hzi_quat_array *a,
			    int64_t channels, int conj);

/* The output of all groups: rows are channels; whole if pixels have aligned strides, too */
struct hzi_quat_out hzi_quat_conv_out_of(const struct hzi_quat_conv_step *a);

/* A matrix whose columns are channels; *stride gets the strides of images and dimensions. */
struct hzi_quat_matrix hzi_quat_conv_pixels_of(const struct hzi_quat_array *a, int conj,
					       int64_t *stride);

struct hzi_quat_conv_window hzi_quat_conv_window_of(const struct hzi_quat_patch_step *x,
						    int64_t images, int64_t outs, int conj);

/* The parameters that depthwise.c and grouped.c share */
struct hzi_quat_conv_direct hzi_quat_conv_direct_of(const struct hzi_quat_conv_step *a);

/* Adds up partial sums. */
struct hzi_quat_wgrad_sum;

int hzi_cuda_quat_conv_reduce(struct hz_context *ctx, const char *op,
			      const struct hzi_quat_wgrad_sum *sum);

/* ---- Copies of x with taps as channels (taps_to_channels.c) ---------------------------------- */

struct hzi_quat_conv_copy;

/*
 * Expected us of a channel for each tap and for each phase (grid). Channels are padded to `unit`.
 * set: the taps of a phase take as long as the next multiple of this; 0: each counts.
 */
struct hzi_quat_conv_copy_costs {
	double tap, grid;
	int64_t unit, set;
};

/*
 * The bytes of a copy *f of x in which some taps are channels, and the convolution *inner of that
 * copy; the caller sets inner->x.data. 0: the copy does not pay.
 */
size_t hzi_quat_conv_copy_plan(const struct hz_context *ctx,
			       const struct hzi_quat_patch_step *x, int64_t images,
			       const struct hzi_quat_conv_copy_costs *costs,
			       struct hzi_quat_conv_copy *f, struct hzi_quat_patch_step *inner);

/* Makes *inner x again, where no kernel supports the copy. false: it was x already. */
bool hzi_quat_conv_copy_drop(const struct hzi_quat_patch_step *x, struct hzi_quat_patch_step *inner,
			     size_t *bytes);

int hzi_quat_conv_copy_run(struct hz_context *ctx, const char *op, struct hzi_quat_conv_copy *f,
			   void *out);

#endif
