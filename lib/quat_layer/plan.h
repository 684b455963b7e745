/*
 * plan.h - a plan: one call of a quaternion layer as a sequence of a device's products and steps
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_LAYER_PLAN_H
#define HZI_QUAT_LAYER_PLAN_H

#include "lib/core/route.h"
#include "lib/quat_gemm/quat_gemm.h"
#include "lib/quat_layer/quat_layer.h"

struct hzi_quat_plan {
	struct hz_context *ctx;
	const struct hzi_quat_steps *steps;
	const struct hzi_quat_conv_steps *conv;	/* lib/quat_conv: NULL in other layers */
	const struct hzi_quat_layer *l;
	const char *op;
	char *base;			/* of the workspace */
	size_t used, peak;		/* bytes of the workspace */
	bool dry;			/* only count the workspace */
};

/*
 * A dry run of a loop takes the first 8 steps and the last. A step's workspace depends on the
 * alignment of its data, and the ninth step has the alignment of the first, modulo 16 bytes.
 */
#define HZI_QUAT_DRY_STEPS 8

/* The dtype in which products and sums accumulate */
static inline int hzi_quat_sum_dtype(int dtype)
{
	return dtype == HZ_F64 ? HZ_F64 : HZ_F32;
}

struct hzi_quat_plan hzi_quat_plan_begin(struct hz_context *ctx, const struct hzi_quat_steps *steps,
					 const struct hzi_quat_layer *l, const char *op, bool dry);

/*
 * Whether a product may exceed the sizes that the device supports. Then a dry run finds out before
 * anything is written.
 */
bool hzi_quat_plan_may_refuse(const struct hzi_quat_steps *steps, const struct hzi_quat_layer *l);

/* The start of the next step of a loop over 0 .. end - 1; a dry run skips to the last step. */
int64_t hzi_quat_plan_next(const struct hzi_quat_plan *r, int64_t i, int64_t size, int64_t end);

/* Scratch memory; setting r->used back releases it. */
void *hzi_quat_plan_take(struct hzi_quat_plan *r, int64_t elements, int dtype);
int hzi_quat_plan_clear(struct hzi_quat_plan *r, void *p, int64_t elements, int dtype);

int hzi_quat_plan_map(struct hzi_quat_plan *r, struct hzi_quat_map_step *m);
int hzi_quat_plan_copy(struct hzi_quat_plan *r, const struct hzi_quat_array *from,
		       const struct hzi_quat_tensor *to, bool accumulate);

/* ---- Products -------------------------------------------------------------------------------- */

/* A matrix in the array, `offset` elements from its first element */
static inline struct hzi_quat_view hzi_quat_array_matrix(const struct hzi_quat_array *a,
							 int64_t offset, int64_t row, int64_t col)
{
	return (struct hzi_quat_view){
		.data = (char *)a->data + offset * (int64_t)hz_dtype_size(a->dtype),
		.row = row, .col = col, .comp = {a->comp[0], a->comp[1], a->comp[2], a->comp[3]},
	};
}

/* Adds the bias b from element `first` on, if there is one. */
void hzi_quat_gemm_bias(struct hzi_quat_gemm_args *g, const struct hzi_quat_array *b,
			int64_t first);

/* Sets the layer's options for a product. reversed: the factors in the other order */
void hzi_quat_plan_options(const struct hzi_quat_plan *r, struct hzi_quat_gemm_args *g,
			   bool reversed);

/* Runs a route with the unused part of the workspace; a dry run counts its workspace. */
int hzi_quat_plan_call(struct hzi_quat_plan *r, const struct hzi_route *route, const void *args);

int hzi_quat_plan_multiply(struct hzi_quat_plan *r, struct hzi_quat_gemm_args *g, bool reversed);

/*
 * Split-K: the number of parts along k of a product with few rows and columns, so that the device
 * has enough tiles. It depends on the sizes only.
 */
int64_t hzi_quat_plan_splits(const struct hzi_quat_plan *r, int64_t m, int64_t n, int64_t k);

/* Computes the parts of a product to `splits` results, `part` elements apart. */
int hzi_quat_plan_multiply_split(struct hzi_quat_plan *r, const struct hzi_quat_gemm_args *g,
				 int64_t splits, int64_t part, bool reversed);

/* to = the sum of `count` contiguous arrays of its shape */
int hzi_quat_plan_sum_parts(struct hzi_quat_plan *r, void *parts, int64_t count,
			    const struct hzi_quat_tensor *to);

/* ---- Arrays ---------------------------------------------------------------------------------- */

/* A contiguous tensor at data; in scratch memory */
struct hzi_quat_tensor hzi_quat_contiguous(void *data, int dtype, int ndim, const int64_t *shape);
struct hzi_quat_tensor hzi_quat_plan_tensor(struct hzi_quat_plan *r, int dtype, int ndim,
					    const int64_t *shape);

int64_t hzi_quat_count(int ndim, const int64_t *shape);

/* The first ndim dimensions of up to three arrays, merged where all of them are contiguous */
struct hzi_quat_merged {
	int n;
	int64_t size[HZI_QUAT_LAYER_DIMS], stride[3][HZI_QUAT_LAYER_DIMS];
};

struct hzi_quat_merged hzi_quat_merge(int ndim, const int64_t *shape,
				      const struct hzi_quat_array *a,
				      const struct hzi_quat_array *b,
				      const struct hzi_quat_array *c);

/*
 * The rotations by the layer's weights, n rows of m, for rows of ld numbers at data. Also what the
 * gradient needs, except for dq and accumulate.
 */
struct hzi_quat_rotation_step
hzi_quat_plan_rotation(const struct hzi_quat_plan *r, const struct hzi_quat_rotation_opts *o,
		       int64_t n, int64_t m, int64_t ld, void *data);

/* ---- Backward passes ------------------------------------------------------------------------- */

/* db = the sum of z over all dimensions but the last */
int hzi_quat_plan_bias_gradient(struct hzi_quat_plan *r, const struct hzi_quat_tensor *z,
				const struct hzi_quat_tensor *db);

/*
 * dw = z x^H of the layer's x and dw: one product if the batch has one stride, else a sum of
 * products in f32 or f64
 */
int hzi_quat_plan_weight_gradient(struct hzi_quat_plan *r, const struct hzi_quat_tensor *z);

/*
 * *z = dy, or with an activation the gradient at its input, in scratch memory. forward() recomputes
 * that input if the call was not given it (pre).
 */
int hzi_quat_plan_act_gradient(struct hzi_quat_plan *r, struct hzi_quat_tensor *z,
			       int (*forward)(struct hzi_quat_plan *r, const void *a,
					      const struct hzi_quat_tensor *y), const void *a);

#endif
