/*
 * launch.h - routes of quantization on a GPU, and what their launchers share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUANTIZE_LAUNCH_H
#define HZI_GPU_QUANTIZE_LAUNCH_H

#include "gpu/quantize/quantize.h"
#include "gpu/runtime/cuda.h"
#include "lib/qgemm/qgemm.h"

HZI_LINK_IMAGES(quantize);

/* Routes of quantize and dequantize; args is struct hzi_codes_args. See struct hzi_route. */
const char *hzi_cuda_quantize_contiguous_unsupported(const struct hz_context *ctx,
						     const void *args);
int hzi_cuda_quantize_contiguous(struct hz_context *ctx, const void *args);
const char *hzi_cuda_quantize_strided_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cuda_quantize_strided(struct hz_context *ctx, const void *args);
const char *hzi_cuda_quantize_hadamard_chunked_unsupported(const struct hz_context *ctx,
							   const void *args);
int hzi_cuda_quantize_hadamard_chunked(struct hz_context *ctx, const void *args);
size_t hzi_cuda_quantize_hadamard_chunked_workspace(const struct hz_context *ctx, const void *args);

const char *hzi_cuda_quantize_formats_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cuda_quantize_formats(struct hz_context *ctx, const void *args);
size_t hzi_cuda_quantize_formats_workspace(const struct hz_context *ctx, const void *args);

const char *hzi_cuda_quantize_microscaling_unsupported(const struct hz_context *ctx,
						       const void *args);
int hzi_cuda_quantize_microscaling(struct hz_context *ctx, const void *args);
size_t hzi_cuda_quantize_microscaling_workspace(const struct hz_context *ctx, const void *args);

/*
 * The launches of any format without a transform: that which finds the largest magnitude of x, as
 * bits, where *most was 0 before; that which quantizes or dequantizes
 */
#define HZI_FORMATS_WORKSPACE 64	/* bytes of *most */
int hzi_cuda_formats_most(struct hz_context *ctx, const struct hzi_format_args *a, uint32_t *most);
int hzi_cuda_formats_codes(struct hz_context *ctx, const struct hzi_format_args *a, uint32_t *most);

/* Either of them, by the kernels of microscaling where they support it */
int hzi_cuda_formats_chunk(struct hz_context *ctx, const struct hzi_format_args *f, uint32_t *most,
			   bool measure);

/* ---- Dimensions ------------------------------------------------------------------------------ */

/*
 * A dimension: its size, and the strides of floats (x), codes (q) and parameters (p). Index i has
 * parameter i / group * p.
 */
struct hzi_quantize_dim {
	int64_t size, x, q, p, group;
};

/* Dimensions above size 1, in any order; at most HZ_MAXDIM + 2 */
struct hzi_quantize_dims {
	int n;
	struct hzi_quantize_dim d[HZ_MAXDIM + 3];
};

#define HZI_QUANTIZE_DIM_MAX ((int64_t)1 << 30)	/* largest dimension of a launch */
#define HZI_QUANTIZE_SPLIT 2048	/* a single long dimension is split into about this many elements */

struct hzi_quantize_dims hzi_quantize_make_dims(const struct hzi_quantize_map *map);
void hzi_quantize_remove_dim(struct hzi_quantize_dims *t, int d);
int hzi_quantize_longest_dim(const struct hzi_quantize_dims *t);

/* The dimension with the smallest nonzero stride of floats, or of codes */
int hzi_quantize_min_stride_dim(const struct hzi_quantize_dims *t, bool codes);

/* Splits dimension d into groups and elements of a group. */
void hzi_quantize_split_group(struct hzi_quantize_dims *t, int d);

/*
 * Splits the long dimension i: i keeps the elements of a part, j gets the parts. The last part has
 * *last elements.
 */
void hzi_quantize_split_long(struct hzi_quantize_dim *i, struct hzi_quantize_dim *j, int64_t *last);

/* Whether the outer dimensions are equivalent to one dimension with stride `item` */
bool hzi_quantize_is_contiguous(const struct hzi_quantize_map *map, const int64_t *stride,
				int64_t item);

static inline int64_t hzi_quantize_elements(const struct hzi_quantize_map *map)
{
	int64_t total = map->n;

	for (int d = 0; d < map->ndim; d++)
		total *= map->shape[d];
	return total;
}

/* ceil(log2(n)) */
static inline int hzi_log2_up(int64_t n)
{
	return n > 1 ? 64 - __builtin_clzll((unsigned long long)n - 1) : 0;
}

/* Orders strides by magnitude; 0 comes last. */
static inline uint64_t hzi_distance(int64_t stride)
{
	return (uint64_t)(stride < 0 ? -stride : stride) - 1;
}

/* The kernel of a dtype: those for f32, f16 and bf16 are adjacent. */
static inline int hzi_quantize_kernel(int f32_kernel, int dtype)
{
	return f32_kernel + (dtype == HZ_F16 ? 1 : dtype == HZ_BF16 ? 2 : 0);
}

/* ---- choose_qparams -------------------------------------------------------------------------- */

struct hzi_minmax_cluster {
	struct hzi_minmax_strided p;
	struct hzi_launch launch;
	bool wins;			/* there are enough blocks, or each has few rows */
};

struct hzi_minmax_call {
	const struct hzi_choose_qparams_args *a;
	struct hzi_quantize_dims dims;	/* split so that every group is 1 */
	struct hzi_minmax_cluster *cluster;	/* filled by the check of that route */
};

/* Routes of choose_qparams; args is struct hzi_minmax_call. */
const char *hzi_cuda_choose_qparams_groups_unsupported(const struct hz_context *ctx,
						       const void *args);
int hzi_cuda_choose_qparams_groups(struct hz_context *ctx, const void *args);
const char *hzi_cuda_choose_qparams_cluster_unsupported(const struct hz_context *ctx,
							const void *args);
int hzi_cuda_choose_qparams_cluster(struct hz_context *ctx, const void *args);
const char *hzi_cuda_choose_qparams_rows_unsupported(const struct hz_context *ctx,
						     const void *args);
bool hzi_cuda_choose_qparams_rows_wins(const struct hzi_minmax_call *c);
int hzi_cuda_choose_qparams_rows(struct hz_context *ctx, const void *args);
int hzi_cuda_choose_qparams_two_pass(struct hz_context *ctx, const void *args);

#endif
