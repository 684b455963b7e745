/*
 * coef_launch.h - the launchers of hyper-connections, for each other
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_PRE_LAUNCH_H
#define HZI_GPU_MHC_PRE_LAUNCH_H

#include "gpu/runtime/cuda.h"
#include "gpu/mhc/coef.h"
#include "gpu/mhc/coef_bwd_fused.h"
#include "lib/mhc/mhc.h"

HZI_LINK_IMAGES(mhc);

/* x by y blocks of so many threads, which may start early */
int hzi_mhc_launch(struct hz_context *ctx, const char *op, int kernel, int64_t x, int64_t y,
		   int threads, size_t shared_bytes, const void *params, size_t params_bytes);

/*
 * Takes so many floats of the workspace at *used, and says where they begin: NULL if there are
 * none. Where there is no workspace yet, and bytes are only counted, nobody looks there.
 */
static inline float *hzi_pre_take(const struct hz_context *ctx, size_t *used, int64_t floats)
{
	const uintptr_t base = ctx->workspace ? (uintptr_t)ctx->workspace : 256, at = base + *used;

	*used += ((size_t)floats * sizeof(float) + 255) & ~(size_t)255;
	return floats ? (float *)at : NULL;
}

/* Streams [tokens, n, C] back to back */
static inline struct hzi_mhc_array hzi_pre_array(void *data, int n, int64_t channels)
{
	return (struct hzi_mhc_array){data, n * channels, channels, 1};
}

static inline struct hzi_mhc_coef hzi_pre_coef(float *data, int64_t group, int64_t row)
{
	return (struct hzi_mhc_coef){data, group, row, 1};
}

/* Whether 8 channels that begin at a multiple of 8 are aligned to 16 bytes */
bool hzi_pre_quick(const struct hzi_mhc_array *x, int dtype);

/* Whether rows of streams and of branch values, or gradients, are such and not long */
bool hzi_pre_norm_near(const struct hzi_mhc_array *x, const struct hzi_mhc_array *u,
		       const struct hzi_mhc_shape *s);

/* Whether kernels may count its tokens, and steps, in 32 bits: quick ones, or without data */
bool hzi_pre_near(const struct hzi_mhc_array *x, int64_t tokens);

/*
 * Whether a tensor map of streams, or of branch values, of 16 bits can be made; that. Its boxes are
 * 64 channels of so many tokens, of so many streams at a time.
 */
bool hzi_pre_mapped(const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s, int streams);
int hzi_pre_map(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
		const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s, int streams,
		int tokens, int at_a_time);

/* Where the numbers that coefficients are made of lie in the workspace */
struct hzi_pre_room {
	float *means, *mean_sums, *sums;
	float *parts;			/* of sums, of mhc_wide_project: added up by another kernel */
	int splits, mean_splits;	/* splits: of sums, or of parts if they are there */
	bool wide;			/* by mhc_wide_project */
};

/* projects: not where sums of x are there already */
struct hzi_pre_room hzi_pre_room(const struct hz_context *ctx, const struct hzi_mhc_shape *s, int m,
				 const struct hzi_mhc_array *x, const float *phi, const float *gain,
				 bool projects, size_t *used);

/* The means of x if groups are not tokens: *from becomes what is projected, of dtype *dtype. */
int hzi_pre_means(struct hz_context *ctx, const char *op, const struct hzi_mhc_shape *s,
		  const struct hzi_mhc_array *x, const struct hzi_pre_room *room,
		  struct hzi_mhc_array *from, int *dtype);

int hzi_pre_project(struct hz_context *ctx, const char *op, const struct hzi_mhc_shape *s, int m,
		    const struct hzi_mhc_array *x, int dtype, const float *phi, const float *gain,
		    const struct hzi_pre_room *room);

int hzi_pre_coefs(struct hz_context *ctx, const char *op, const struct hzi_mhc_finish *p);

/* Few tokens of four streams on Hopper, all but post and norm; no workspace */
bool hzi_pre_few_takes(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a);
int hzi_pre_few(struct hz_context *ctx, const struct hzi_mhc_pre_args *a);

/* Four 16-bit streams on Hopper, all but norm; no workspace */
bool hzi_pre_fused_takes(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a);
bool hzi_pre_fused_posts(const struct hzi_mhc_pre_args *a);	/* whether it makes post's y too */
int hzi_pre_fused(struct hz_context *ctx, const struct hzi_mhc_pre_args *a);

/* Coefficients alone of many tokens of such streams, of any number of channels; no workspace */
bool hzi_weights_takes(const struct hz_context *ctx, const struct hzi_mhc_pre_args *a);
int hzi_weights(struct hz_context *ctx, const struct hzi_mhc_pre_args *a);

/* dx and partial sums of dphi of such streams in one pass, once it is known of which draw */
bool hzi_pre_joint_takes(const struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a);
int hzi_pre_joint_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s);
int64_t hzi_pre_joint_records(const struct hzi_mhc_shape *s);	/* in words of 32 bits */
int hzi_pre_joint(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
		  const uint32_t *records, float *partial);

/* Products of any number of streams in aligned rows and phi; x NULL: of means of that shape */
bool hzi_pre_wide_takes(const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s,
			const float *phi, const float *gain);
int hzi_pre_wide_project_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s);
int hzi_pre_wide_project(struct hz_context *ctx, const char *op, const struct hzi_mhc_project *p);

/* dx and partial sums of dphi of such streams, in a pass each */
bool hzi_pre_wide_takes_dx(const struct hz_context *ctx, const struct hzi_mhc_dx *p);
int hzi_pre_wide_dx(struct hz_context *ctx, const struct hzi_mhc_dx *of);
bool hzi_pre_wide_takes_dphi(const struct hzi_mhc_array *x, int64_t channels, int dtype);
int hzi_pre_wide_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s);
int hzi_pre_wide_dphi(struct hz_context *ctx, const struct hzi_mhc_dphi *p);

int hzi_pre_sum_rows(struct hz_context *ctx, const char *op, int64_t parts,
		     const struct hzi_mhc_sum_rows *p);

#endif
