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

/* Routes of quantize and dequantize, with struct hzi_codes_args; see struct hzi_route. */
const char *hzi_cuda_codes_contiguous_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cuda_codes_contiguous(struct hz_context *ctx, const void *args);
const char *hzi_cuda_codes_strided_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cuda_codes_strided(struct hz_context *ctx, const void *args);
const char *hzi_cuda_codes_hadamard_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cuda_codes_hadamard(struct hz_context *ctx, const void *args);
size_t hzi_cuda_codes_hadamard_workspace(const struct hz_context *ctx, const void *args);

/* ---- Dimensions ------------------------------------------------------------------------------ */

/* A dimension: steps of floats, of codes and, for each index / group, of the parameters' number */
struct hzi_dim {
	int64_t size, x, q, p, group;
};

/* Dimensions of more than one element, in no order; at most HZ_MAXDIM + 2 */
struct hzi_dims {
	int n;
	struct hzi_dim d[HZ_MAXDIM + 3];
};

#define HZI_DIM_MAX ((int64_t)1 << 30)	/* elements along one dimension of a launch */
#define HZI_CUT 2048		/* what a single long dimension is cut into, or a little more */

struct hzi_dims hzi_quantize_dims_of(const struct hzi_quantize_map *map);
void hzi_quantize_remove_dim(struct hzi_dims *t, int d);
int hzi_quantize_longest(const struct hzi_dims *t);

/* The dimension with the smallest stride of floats, or of codes */
int hzi_quantize_closest(const struct hzi_dims *t, bool codes);

/* Makes the groups of dimension d a dimension of their own. */
void hzi_quantize_split_group(struct hzi_dims *t, int d);

/*
 * Cuts dimension i, which stays the shorter part; j gets the number of parts, the last of which has
 * last elements.
 */
void hzi_quantize_cut(struct hzi_dim *i, struct hzi_dim *j, int64_t *last);

/* Whether the outer dimensions are one whose step is item elements */
bool hzi_quantize_joined(const struct hzi_quantize_map *map, const int64_t *stride, int64_t item);

static inline int64_t hzi_quantize_elements(const struct hzi_quantize_map *map)
{
	int64_t total = map->n;

	for (int d = 0; d < map->ndim; d++)
		total *= map->shape[d];
	return total;
}

/* The smallest l with 2^l >= n */
static inline int hzi_log2_up(int64_t n)
{
	return n > 1 ? 64 - __builtin_clzll((unsigned long long)n - 1) : 0;
}

/* Distances of 0 are the farthest. */
static inline uint64_t hzi_distance(int64_t stride)
{
	return (uint64_t)(stride < 0 ? -stride : stride) - 1;
}

/* The kernel of a dtype: those for f32, f16 and bf16 follow each other. */
static inline int hzi_kernel_of(int f32_kernel, int dtype)
{
	return f32_kernel + (dtype == HZ_F16 ? 1 : dtype == HZ_BF16 ? 2 : 0);
}

/* ---- choose_qparams -------------------------------------------------------------------------- */

struct hzi_range_cluster {
	struct hzi_range_strided p;
	struct hzi_launch launch;
	bool wins;			/* blocks are enough, or their shares small */
};

struct hzi_range_call {
	const struct hzi_choose_qparams_args *a;
	struct hzi_dims dims;		/* each with one step of p for an index */
	struct hzi_range_cluster *cluster;	/* filled where that route supports the call */
};

/* Routes of choose_qparams, with struct hzi_range_call */
const char *hzi_cuda_range_groups_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cuda_range_groups(struct hz_context *ctx, const void *args);
const char *hzi_cuda_range_cluster_unsupported(const struct hz_context *ctx, const void *args);
int hzi_cuda_range_cluster(struct hz_context *ctx, const void *args);
const char *hzi_cuda_range_rows_unsupported(const struct hz_context *ctx, const void *args);
bool hzi_cuda_range_rows_wins(const struct hzi_range_call *c);
int hzi_cuda_range_rows(struct hz_context *ctx, const void *args);
int hzi_cuda_range_two_pass(struct hz_context *ctx, const void *args);

#endif
