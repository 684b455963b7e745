/*
 * launch.h - the code paths of elementwise quaternion operations, for routes.c
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_LAUNCH_H
#define HZI_GPU_QUAT_LAUNCH_H

#include "gpu/runtime/cuda.h"
#include "lib/quat/quat.h"

#define RUN(op, path) int hzi_cuda_##op##_##path(struct hz_context *ctx, const void *args);
#define WORKSPACE(op, path) \
	size_t hzi_cuda_##op##_##path##_workspace(const struct hz_context *ctx, const void *args);
#define PATH(op, path) \
	const char *hzi_cuda_##op##_##path##_unsupported(const struct hz_context *ctx, \
							 const void *args); \
	RUN(op, path)

PATH(quat_mul, contiguous) PATH(quat_mul, planar) RUN(quat_mul, strided)
PATH(quat_axpy, contiguous) RUN(quat_axpy, strided)
PATH(quat_map, contiguous) RUN(quat_map, strided)
PATH(quat_map_bwd, contiguous) RUN(quat_map_bwd, strided)
PATH(quat_rotate, contiguous) RUN(quat_rotate, strided)
PATH(quat_dot, contiguous_16bit) PATH(quat_dot, contiguous) RUN(quat_dot, strided)

/* fused_sum alone computes the gradient that is a sum, args->sum, too. */
PATH(quat_mul_bwd, fused_sum) WORKSPACE(quat_mul_bwd, fused_sum)
PATH(quat_mul_bwd, contiguous) PATH(quat_mul_bwd, planar) RUN(quat_mul_bwd, strided)
PATH(quat_rotate_bwd, fused_sum) WORKSPACE(quat_rotate_bwd, fused_sum)
PATH(quat_rotate_bwd, contiguous) RUN(quat_rotate_bwd, strided)
#undef RUN
#undef WORKSPACE
#undef PATH

/* The workspace of any path of quat_dot */
size_t hzi_cuda_quat_dot_sum_bytes(const struct hzi_quat_dot_args *a);

/* A gradient of rotations that is a sum: a->dims.kept < a->dims.ndim. */
size_t hzi_cuda_quat_rotate_sum_bytes(const struct hzi_quat_rotate_bwd_args *a);
int hzi_cuda_quat_rotate_sum(struct hz_context *ctx, const struct hzi_quat_rotate_bwd_args *a);

/* Sizes for which a contiguous, planar or fused_sum path is slower than the next one. */
bool hzi_cuda_quat_has_short_rows(const struct hzi_quat_dims *dims);
bool hzi_cuda_quat_has_small_tiles(const struct hzi_quat_dims *dims, int dtype, int pieces);
bool hzi_cuda_quat_is_short_sum(const struct hzi_quat_dims *dims);

#endif
