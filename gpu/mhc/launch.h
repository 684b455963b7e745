/*
 * launch.h - declarations shared by the launchers of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Calls go down: routes.c lists the routes of mhc_streams, mhc_streams_bwd, mhc_recompute (mix.c,
 * mix_bwd.c), mhc_pre (coef_small_batch.c, coef_splitk.c, coef_input_fused.c, coef_persistent.c,
 * coef_gemv.c, coef_wgmma.c, coef.c), mhc_pre_bwd (coef_bwd.c), mhc_gated (gated_gemv.c, gated_wgmma.c,
 * gated_fused.c) and mhc_gated_bwd (gated_bwd_wgmma.c, gated_fused.c). These call launchers of
 * single kernels: coef_generic.c, coef_generic_bwd.c, coef_mma.c, coef_bwd_fused.c,
 * coef_bwd_wgmma.c; then common.c.
 */
#ifndef HZI_GPU_MHC_LAUNCH_H
#define HZI_GPU_MHC_LAUNCH_H

#include "gpu/runtime/cuda.h"
#include "gpu/mhc/coef.h"
#include "gpu/mhc/coef_bwd_fused.h"
#include "lib/mhc/mhc.h"

HZI_LINK_IMAGES(mhc);

/* ---- Routes: members of struct hzi_route ----------------------------------------------------- */

typedef const char *hzi_cuda_mhc_unsupported_fn(const struct hz_context *ctx, const void *args);
typedef size_t hzi_cuda_mhc_workspace_fn(const struct hz_context *ctx, const void *args);
typedef int hzi_cuda_mhc_run_fn(struct hz_context *ctx, const void *args);

hzi_cuda_mhc_run_fn hzi_cuda_mhc_mix_vectorized, hzi_cuda_mhc_mix_strided,
	hzi_cuda_mhc_mix_bwd_vectorized, hzi_cuda_mhc_mix_bwd_strided,
	hzi_cuda_mhc_recompute_vectorized, hzi_cuda_mhc_recompute_strided,
	hzi_cuda_mhc_coef_small_batch, hzi_cuda_mhc_coef_input_fused, hzi_cuda_mhc_coef_persistent,
	hzi_cuda_mhc_coef_splitk, hzi_cuda_mhc_coef_gemv, hzi_cuda_mhc_coef_wgmma, hzi_cuda_mhc_coef_mma,
	hzi_cuda_mhc_coef_generic,
	hzi_cuda_mhc_coef_bwd_fused, hzi_cuda_mhc_coef_bwd_wgmma, hzi_cuda_mhc_coef_bwd_mma,
	hzi_cuda_mhc_coef_bwd_generic, hzi_cuda_mhc_gated_fused, hzi_cuda_mhc_gated_wgmma,
	hzi_cuda_mhc_gated_gemv, hzi_cuda_mhc_gated_cluster, hzi_cuda_mhc_gated_chain,
	hzi_cuda_mhc_gated_bwd_wgmma, hzi_cuda_mhc_gated_bwd_chain;

hzi_cuda_mhc_unsupported_fn hzi_cuda_mhc_mix_vectorized_unsupported,
	hzi_cuda_mhc_mix_bwd_vectorized_unsupported, hzi_cuda_mhc_recompute_vectorized_unsupported,
	hzi_cuda_mhc_coef_small_batch_unsupported, hzi_cuda_mhc_coef_input_fused_unsupported,
	hzi_cuda_mhc_coef_persistent_unsupported, hzi_cuda_mhc_coef_splitk_unsupported,
	hzi_cuda_mhc_coef_gemv_unsupported, hzi_cuda_mhc_coef_wgmma_unsupported,
	hzi_cuda_mhc_coef_mma_unsupported,
	hzi_cuda_mhc_coef_bwd_fused_unsupported, hzi_cuda_mhc_coef_bwd_wgmma_unsupported,
	hzi_cuda_mhc_coef_bwd_mma_unsupported, hzi_cuda_mhc_gated_fused_unsupported,
	hzi_cuda_mhc_gated_wgmma_unsupported, hzi_cuda_mhc_gated_gemv_unsupported,
	hzi_cuda_mhc_gated_cluster_unsupported,
	hzi_cuda_mhc_gated_bwd_wgmma_unsupported;

hzi_cuda_mhc_workspace_fn hzi_cuda_mhc_mix_bwd_workspace, hzi_cuda_mhc_coef_small_batch_workspace,
	hzi_cuda_mhc_coef_input_fused_workspace, hzi_cuda_mhc_coef_persistent_workspace,
	hzi_cuda_mhc_coef_splitk_workspace, hzi_cuda_mhc_coef_gemv_workspace,
	hzi_cuda_mhc_coef_wgmma_workspace,
	hzi_cuda_mhc_coef_mma_workspace,
	hzi_cuda_mhc_coef_generic_workspace,
	hzi_cuda_mhc_coef_bwd_fused_workspace, hzi_cuda_mhc_coef_bwd_wgmma_workspace,
	hzi_cuda_mhc_coef_bwd_mma_workspace,
	hzi_cuda_mhc_coef_bwd_generic_workspace, hzi_cuda_mhc_gated_fused_workspace,
	hzi_cuda_mhc_gated_wgmma_workspace,
	hzi_cuda_mhc_gated_gemv_workspace, hzi_cuda_mhc_gated_cluster_workspace,
	hzi_cuda_mhc_gated_chain_workspace, hzi_cuda_mhc_gated_bwd_wgmma_workspace,
	hzi_cuda_mhc_gated_bwd_chain_workspace;

/* True if coef_input_fused, where it supports the call, also makes the streams of a->post. */
bool hzi_cuda_mhc_coef_input_fused_makes_y(const struct hzi_mhc_pre_args *a);

/* ---- The first launches of gated_wgmma.c, and of gated_bwd_wgmma.c --------------------------- */

struct hzi_mhc_gated_wgmma;

/* Returns the bytes of the workspace, whose parts it takes; tiles: of tokens. */
size_t hzi_cuda_mhc_gated_wgmma_plan(const struct hz_context *ctx,
				     const struct hzi_mhc_gated_args *a,
				     struct hzi_mhc_gated_wgmma *p, int64_t *tiles);

/* Makes partial sums, roots, hidden numbers and q. */
int hzi_cuda_mhc_gated_wgmma_hidden(struct hz_context *ctx, struct hzi_mhc_gated_wgmma *p,
				    int64_t tiles);

/* ---- Streams inside other operations (mix.c, mix_bwd.c) -------------------------------------- */

/* The vectorized route if it supports the call, else the strided one */
int hzi_cuda_mhc_mix(struct hz_context *ctx, const struct hzi_mhc_streams_args *a);
int hzi_cuda_mhc_mix_bwd(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a);

/* ---- common.c -------------------------------------------------------------------------------- */

/* HZ_ENOTSUP if a grid cannot have x blocks */
int hzi_cuda_mhc_check_blocks(struct hz_context *ctx, const char *op, int64_t x);

/* x by y blocks of `threads` threads, with programmatic dependent launch */
int hzi_cuda_mhc_launch(struct hz_context *ctx, const char *op, int kernel, int64_t x, int64_t y,
			int threads, size_t shared_bytes, const void *params, size_t params_bytes);

static inline int hzi_cuda_mhc_type_index(int dtype)
{
	return dtype == HZ_F32 ? 0 : dtype == HZ_F16 ? 1 : 2;
}

/* True if rows of channels are contiguous and 16-byte aligned, or there is no data. */
bool hzi_cuda_mhc_is_aligned(const struct hzi_mhc_array *x, int dtype);

/* True if strides and the number of tokens fit 32-bit offsets, or there is no data. */
bool hzi_cuda_mhc_fits_int32(const struct hzi_mhc_array *x, int64_t tokens);

/*
 * True if a tensor map of 16-bit streams (streams = 1: branch values) is possible, or there is no
 * data.
 */
bool hzi_cuda_mhc_has_tensor_map(const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s,
				 int streams);

/* A box has 64 channels, box_tokens tokens, box_streams streams. Does nothing without data. */
int hzi_cuda_mhc_make_tensor_map(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
				 const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s,
				 int streams, int box_tokens, int box_streams);

/* Why kernels for four streams, with coefficients per token, do not support a call; or NULL */
const char *hzi_cuda_mhc_four_streams_unsupported(const struct hzi_mhc_shape *s, int m,
						  const float *phi);

/* The same for kernels that also make the coefficients, by a common rule */
const char *hzi_cuda_mhc_rule_unsupported(const struct hzi_mhc_rule *rule);

/* The same for streams of 16 bits and a kernel with so much shared memory */
const char *hzi_cuda_mhc_four_16bit_streams_unsupported(const struct hz_context *ctx,
							const struct hzi_mhc_shape *s, int m,
							const float *phi, int shared_bytes);

/* The same for coefficients by a common rule, which these kernels have as constants */
const char *hzi_cuda_mhc_common_pre_unsupported(const struct hz_context *ctx,
						const struct hzi_mhc_pre_args *a, int shared_bytes);

/*
 * Offset of a vectorized kernel from the one for f32 and 4 streams; -1 if rows are not whole
 * vectors
 */
int hzi_cuda_mhc_vector_kernel(const struct hzi_mhc_shape *s);

/* Bits HZI_MHC_P_FLOAT4 etc.: which coefficients of 4 streams are aligned float4s */
int hzi_cuda_mhc_float4_coefs(const struct hzi_mhc_coef *p, const struct hzi_mhc_coef *q,
			      const struct hzi_mhc_coef *a, int n);

/*
 * True if the n streams of a channel are contiguous, as one or two aligned vectors, or there is no
 * data.
 */
bool hzi_cuda_mhc_streams_innermost(const struct hzi_mhc_array *a, const struct hzi_mhc_shape *s);

static inline int64_t hzi_cuda_mhc_tokens_per_group(const struct hzi_mhc_shape *s)
{
	return s->groups > 0 ? s->tokens / s->groups : 0;
}

/*
 * Takes `floats` floats of the workspace from *used on; NULL for none. While no workspace is set,
 * bytes are only counted and the address is not used.
 */
static inline float *hzi_cuda_mhc_take(const struct hz_context *ctx, size_t *used, int64_t floats)
{
	const uintptr_t base = ctx->workspace ? (uintptr_t)ctx->workspace : 256, at = base + *used;

	*used += ((size_t)floats * sizeof(float) + 255) & ~(size_t)255;
	return floats ? (float *)at : NULL;
}

/* Contiguous streams [tokens, n, C] */
static inline struct hzi_mhc_array hzi_cuda_mhc_contiguous(void *data, int n, int64_t channels)
{
	return (struct hzi_mhc_array){data, n * channels, channels, 1};
}

static inline struct hzi_mhc_coef hzi_cuda_mhc_coef(float *data, int64_t group, int64_t row)
{
	return (struct hzi_mhc_coef){data, group, row, 1};
}

/*
 * Whether phi multiplies a copy of x in f32: the means of groups of tokens, or streams divided by
 * their roots
 */
static inline bool hzi_cuda_mhc_copies_x(const struct hzi_mhc_shape *s,
					 const struct hzi_mhc_rule *rule)
{
	return s->groups != s->tokens || rule->rms == HZ_MHC_RMS_STREAM;
}

/* The rule of the coefficients of that copy: its streams have been divided already */
static inline struct hzi_mhc_rule hzi_cuda_mhc_rule_of_copy(struct hzi_mhc_rule rule)
{
	if (rule.rms == HZ_MHC_RMS_STREAM)
		rule.rms = HZ_MHC_RMS_NONE;
	return rule;
}

/* ---- Means, projection, coefficients (coef.c) ------------------------------------------------ */

/* What multiplies x and phi: coef_generic.c, coef_mma.c, coef_wgmma.c, coef_gemv.c */
enum hzi_mhc_products { HZI_MHC_GENERIC, HZI_MHC_MMA, HZI_MHC_WGMMA, HZI_MHC_GEMV };

/* Parts of the workspace for sums of x and phi, and how they are made */
struct hzi_mhc_projection {
	float *means, *mean_sums, *sums;
	float *roots;			/* [groups][n][2], of streams of means; NULL: none */
	float *parts;			/* partial sums; another kernel adds them up */
	float *phi;			/* of HZI_MHC_WGMMA: phi in two terms of 16 bits */
	int splits, mean_splits;	/* splits: of sums, or of parts if not NULL */
	enum hzi_mhc_products by;
};

/* by: what must support the call; projects: false if x has been projected already */
struct hzi_mhc_projection hzi_cuda_mhc_plan_projection(const struct hz_context *ctx,
						  const struct hzi_mhc_shape *s,
						       const struct hzi_mhc_rule *rule,
						       enum hzi_mhc_products by, bool projects,
						       size_t *used);

/*
 * Means of x over the tokens of a group if groups are not single tokens, divided by the roots of
 * their streams with HZ_MHC_RMS_STREAM; then the projection. *input is what was projected, *dtype
 * its dtype.
 */
int hzi_cuda_mhc_means(struct hz_context *ctx, const char *op, const struct hzi_mhc_shape *s,
		       const struct hzi_mhc_rule *rule,
		       const struct hzi_mhc_array *x, const struct hzi_mhc_projection *to,
		       struct hzi_mhc_array *input, int *dtype);
int hzi_cuda_mhc_project(struct hz_context *ctx, const char *op, const struct hzi_mhc_shape *s,
			 int m, const struct hzi_mhc_array *input, int dtype, const float *phi,
			 const float *gain, const struct hzi_mhc_projection *to);

/* What the kernels of coefficients need to know of a projection of input */
void hzi_cuda_mhc_set_sums(struct hzi_mhc_sums *sums, const struct hzi_mhc_projection *of,
			   const struct hzi_mhc_rule *rule, const struct hzi_mhc_shape *s,
			   const struct hzi_mhc_array *input, int dtype);

/*
 * Runs a call whose coefficients one launch makes: `launch`, which also makes the streams of
 * a->post if makes_y, and the branch input if makes_u. Other launches make the remaining results.
 */
int hzi_cuda_mhc_coef_in_one_launch(struct hz_context *ctx, const struct hzi_mhc_pre_args *a,
				    bool makes_y, bool makes_u,
				    int (*launch)(struct hz_context *ctx,
						  const struct hzi_mhc_pre_args *a));
size_t hzi_cuda_mhc_coef_in_one_launch_workspace(const struct hz_context *ctx,
						 const struct hzi_mhc_pre_args *a, bool makes_u);

/* Runs a call by a launch for each step, of which `by` is the projection. */
int hzi_cuda_mhc_coef_by_launches(struct hz_context *ctx, const struct hzi_mhc_pre_args *a,
				  enum hzi_mhc_products by);
size_t hzi_cuda_mhc_coef_by_launches_workspace(const struct hz_context *ctx,
					       const struct hzi_mhc_pre_args *a,
					       enum hzi_mhc_products by);

/* x of a call: a->x, or the streams of a->post */
static inline const struct hzi_mhc_array *hzi_cuda_mhc_coef_x(const struct hzi_mhc_pre_args *a)
{
	return a->post.y.data ? &a->post.y : &a->x;
}

/* ---- Single kernels -------------------------------------------------------------------------- */

/* coef_wgmma.c; phi: a workspace of hzi_cuda_mhc_wgmma_phi_floats() floats */
int64_t hzi_cuda_mhc_wgmma_phi_floats(const struct hzi_mhc_shape *s);
int hzi_cuda_mhc_wgmma_project_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s);
int hzi_cuda_mhc_wgmma_project(struct hz_context *ctx, const char *op,
			       const struct hzi_mhc_project *p, float *phi);

/* coef_gemv.c */
int hzi_cuda_mhc_gemv_project_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s);
int hzi_cuda_mhc_gemv_project(struct hz_context *ctx, const char *op,
			      const struct hzi_mhc_project *p);

/* coef_generic.c */
int hzi_cuda_mhc_generic_project_splits(const struct hz_context *ctx,
					const struct hzi_mhc_shape *s);
int hzi_cuda_mhc_generic_project(struct hz_context *ctx, const char *op,
				 const struct hzi_mhc_project *p);
int hzi_cuda_mhc_mean_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s);
int hzi_cuda_mhc_mean_sums(struct hz_context *ctx, const char *op, const struct hzi_mhc_means *p);
int hzi_cuda_mhc_sum_rows(struct hz_context *ctx, const char *op, int64_t parts,
			  const struct hzi_mhc_sum_rows *p);
int hzi_cuda_mhc_finish_coefs(struct hz_context *ctx, const char *op,
			      const struct hzi_mhc_finish *p);
int hzi_cuda_mhc_norm(struct hz_context *ctx, const struct hzi_mhc_norm *p);

/*
 * True if rows of x and u are aligned, a block can hold all channels of a token in registers, and
 * there are 1 to 4 or 8 streams.
 */
bool hzi_cuda_mhc_norm_is_aligned(const struct hzi_mhc_array *x, const struct hzi_mhc_array *u,
				  const struct hzi_mhc_shape *s);

/* coef_generic_bwd.c */
int hzi_cuda_mhc_token_products(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a);
int hzi_cuda_mhc_norm_bwd(struct hz_context *ctx, const struct hzi_mhc_norm_bwd *p, int64_t blocks);
int64_t hzi_cuda_mhc_gradient_blocks(const struct hzi_mhc_shape *s);
int hzi_cuda_mhc_gradients(struct hz_context *ctx, const struct hzi_mhc_gradients *p);
int hzi_cuda_mhc_generic_dx(struct hz_context *ctx, const struct hzi_mhc_dx *p);
bool hzi_cuda_mhc_has_group_dx(const struct hzi_mhc_dx *p);
int hzi_cuda_mhc_group_dx(struct hz_context *ctx, const struct hzi_mhc_dx *p);
int hzi_cuda_mhc_generic_dphi_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s);
int hzi_cuda_mhc_generic_dphi(struct hz_context *ctx, const struct hzi_mhc_dphi *p);
int hzi_cuda_mhc_sum_weights(struct hz_context *ctx, const struct hzi_mhc_sum_weights *p);

/* coef_mma.c: products of streams and phi on tensor cores, any number of streams */
const char *hzi_cuda_mhc_mma_project_unsupported(const struct hzi_mhc_shape *s,
						 const struct hzi_mhc_array *x, const float *phi,
						 const float *gain);
int hzi_cuda_mhc_mma_project_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s);
int hzi_cuda_mhc_mma_project(struct hz_context *ctx, const char *op,
			     const struct hzi_mhc_project *p);
bool hzi_cuda_mhc_mma_dx_is_aligned(const struct hzi_mhc_array *x, int dtype);
int hzi_cuda_mhc_mma_dx(struct hz_context *ctx, const struct hzi_mhc_dx *of);
int hzi_cuda_mhc_mma_dphi_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s);
int hzi_cuda_mhc_mma_dphi(struct hz_context *ctx, const struct hzi_mhc_dphi *p);

/* coef_bwd_fused.c: dx and partial sums of dphi in one pass over x */
int hzi_cuda_mhc_bwd_fused_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s);
int64_t hzi_cuda_mhc_bwd_fused_records(const struct hzi_mhc_shape *s);	/* in 32-bit words */
int hzi_cuda_mhc_bwd_fused(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
			   const uint32_t *records, float *partial);

/* coef_bwd_wgmma.c: dx, and partial sums of dphi, of 5 to 8 streams of bf16 */
int64_t hzi_cuda_mhc_bwd_wgmma_strips(const struct hzi_mhc_shape *s);
int hzi_cuda_mhc_bwd_wgmma_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s);
int hzi_cuda_mhc_wgmma_dx(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
			  const float *records, const uint16_t *terms, const uint16_t *phi);
int hzi_cuda_mhc_wgmma_dphi(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
			    const uint16_t *terms, float *partial, int splits);

#endif
