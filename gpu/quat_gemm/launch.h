/*
 * launch.h - quaternion matrix products on a GPU: operands, f16 planes, code paths
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_GEMM_LAUNCH_H
#define HZI_GPU_QUAT_GEMM_LAUNCH_H

#include "gpu/quat_gemm/quat_gemm.h"
#include "gpu/runtime/cuda.h"
#include "lib/quat_gemm/quat_gemm.h"

/* ---- Sizes ----------------------------------------------------------------------------------- */

/* Bytes of a part of the workspace, rounded up so that the next one is aligned */
static inline size_t padded(int64_t bytes)
{
	return ((size_t)bytes + 255) & ~(size_t)255;
}

/* ---- What all of them want (operands.c) ----------------------------------------------------- */

/* A view and its strides in a batch of ndim dimensions, in the form of kernels */
struct hzi_quat_matrix hzi_quat_matrix_of(const struct hzi_quat_view *v, int dtype, int conj,
					  const int64_t *stride, int ndim);

/* Fills the shape of a batch; returns its items. */
int64_t hzi_quat_batch_of(int64_t *shape3, const int64_t *shape, int ndim);

struct hzi_quat_out hzi_quat_out_of(const struct hzi_quat_gemm_args *a);

/* ---- Planes of f16 (pack_planar.c) ----------------------------------------------------------- */

/* The f16 planes of an operand: gpu/quat_gemm/wgmma.h */
struct hzi_quat_planar {
	uint16_t *data;
	float *scales;
	uint16_t *copy;			/* receives the matrix as it is; NULL: none */
	int64_t lines, k;		/* rows (of B: columns) and k of the matrix */
	int64_t all_lines, all_k;	/* padded */
	int32_t count;			/* planes, without the low parts of a split */
	int32_t split;
};

/* Whether products of that dtype and precision use f16 planes; *split: as high and low parts. */
bool hzi_quat_uses_planar_f16(const struct hz_context *ctx, int dtype, int precision, int *split);

struct hzi_quat_planar hzi_quat_planar_of(int64_t lines, int64_t k, int count, int split);

/* The planes of a packed m x k matrix; by the fast method those of w, x, y, z are the last four. */
struct hzi_quat_planar hzi_quat_packed_planes(int64_t m, int64_t k, int method, int split);

/*
 * Packed 16-bit matrices also hold a copy of the matrix, behind planes and scales: rows of
 * contiguous quaternions, each aligned to 16 bytes. Elements of a row
 */
static inline int64_t hzi_quat_copy_line(int64_t k)
{
	return 4 * round_up(k, 2);
}

/* Bytes of planes and scales; sets where they are */
size_t hzi_quat_planar_bytes(const struct hzi_quat_planar *p);
void hzi_quat_planar_set(struct hzi_quat_planar *p, void *data);

/*
 * Fills y. x: rows are lines. left: planes of packed A, scaled so that products with planes of
 * others have the factors of the fast method. k_scales: NULL, or factors of the quaternions at k.
 */
int hzi_quat_planar_pack(struct hz_context *ctx, const char *op, const struct hzi_quat_planar *y,
			 const struct hzi_quat_matrix *x, bool left, const float *k_scales);

/* TMA map of all planes: hzi_cuda_tensor_map_2d() */
int hzi_quat_planar_map(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
			const struct hzi_quat_planar *p, int box_bytes, int box_rows);

/* ---- Routes (routes.c) ----------------------------------------------------------------------- */

/* The functions of a route that needs a workspace; gpu/quat_conv/launch.h, too */
#define HZI_QUAT_ROUTE(op, name) \
	const char *hzi_cuda_##op##_##name##_unsupported(const struct hz_context *ctx, \
							 const void *args); \
	size_t hzi_cuda_##op##_##name##_workspace(const struct hz_context *ctx, const void *args); \
	int hzi_cuda_##op##_##name(struct hz_context *ctx, const void *args);

HZI_QUAT_ROUTE(quat_gemm, gemv_rows)
HZI_QUAT_ROUTE(quat_gemm, gemv_mma)
HZI_QUAT_ROUTE(quat_gemm, gemv_transposed)
HZI_QUAT_ROUTE(quat_gemm, gemv_planar)
HZI_QUAT_ROUTE(quat_gemm, wgmma)
HZI_QUAT_ROUTE(quat_gemm, wgmma_in_place)
HZI_QUAT_ROUTE(quat_gemm, simt_f32)

/* Whether another route that supports the call is faster */
bool hzi_cuda_quat_gemm_gemv_mma_is_slower(const struct hzi_quat_gemm_args *a);
bool hzi_cuda_quat_gemm_wgmma_in_place_is_slower(const struct hzi_quat_gemm_args *a, bool packed);
bool hzi_cuda_quat_gemm_wgmma_is_slower(const struct hzi_quat_gemm_args *a);
/* Expected ns of a product of 16 bits by planes; packed: those of A exist */
double hzi_cuda_quat_gemm_wgmma_ns(const struct hzi_quat_gemm_args *a, bool packed);

/*
 * Whether an m x k matrix is packed as f16 planes, for wgmma, and 16 bits as a copy; otherwise
 * as f32 planes, which only simt_f32 reads.
 */
bool hzi_cuda_quat_gemm_packs_f16(const struct hz_context *ctx, int dtype, int precision, int64_t m,
				  int64_t k);
/*
 * Whether a product with packed A is faster with the copy of A that it has; *to becomes that
 * product.
 */
bool hzi_cuda_quat_gemm_uses_copy(const struct hz_context *ctx, const struct hzi_quat_gemm_args *a,
				  struct hzi_quat_gemm_args *to);
int hzi_cuda_quat_gemm_wgmma_pack(struct hz_context *ctx, const struct hzi_quat_gemm_pack_args *a);
int hzi_cuda_quat_gemm_simt_f32_pack(struct hz_context *ctx,
				     const struct hzi_quat_gemm_pack_args *a);

#endif
