/*
 * plan.h - one call of a quaternion layer, made of a device's products and steps
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_LAYER_PLAN_H
#define HZI_QUAT_LAYER_PLAN_H

#include "lib/core/route.h"
#include "lib/quat_gemm/quat_gemm.h"
#include "lib/quat_layer/quat_layer.h"

struct hzi_qrun {
	struct hz_context *ctx;
	const struct hzi_quat_steps *steps;
	const struct hzi_quat_conv_steps *conv;	/* lib/quat_conv: NULL in other layers */
	const struct hzi_qlayer *l;
	const char *op;
	char *base;			/* of the workspace */
	size_t used, peak;
	bool dry;			/* nothing is done but counting the workspace */
};

/*
 * Steps of a dry run, which counts the bytes of sizes for which there may be no memory: where steps
 * are a stride of whole elements apart, the ninth is where the first is, modulo 16 bytes.
 */
#define HZI_QRUN_DRY 8

/* What products and sums of a dtype are made in */
static inline int hzi_qsum_dtype(int dtype)
{
	return dtype == HZ_F64 ? HZ_F64 : HZ_F32;
}

struct hzi_qrun hzi_qrun_begin(struct hz_context *ctx, const struct hzi_quat_steps *steps,
			       const struct hzi_qlayer *l, const char *op, bool dry);

/*
 * Whether a device that has a most for products may refuse one of the layer's. Then a dry run says
 * so before anything is written.
 */
bool hzi_qrun_may_refuse(const struct hzi_quat_steps *steps, const struct hzi_qlayer *l);

/* Where the step after that at i begins, of steps of a size; in a dry run the last one by then. */
int64_t hzi_qrun_next(const struct hzi_qrun *r, int64_t i, int64_t size, int64_t end);

/* Scratch memory, released by setting used back */
void *hzi_qrun_take(struct hzi_qrun *r, int64_t elements, int dtype);
int hzi_qrun_clear(struct hzi_qrun *r, void *p, int64_t elements, int dtype);

int hzi_qrun_map(struct hzi_qrun *r, struct hzi_qmap_args *m);
int hzi_qrun_copy(struct hzi_qrun *r, const struct hzi_qarray *from, const struct hzi_qtensor *to,
		  bool accumulate);

/* ---- Products -------------------------------------------------------------------------------- */

/* A view of the matrix that begins offset elements behind the array's first */
struct hzi_quat_view hzi_qarray_matrix(const struct hzi_qarray *a, int64_t offset, int64_t row,
				       int64_t col);

/* The bias b from element `first` on, if there is one */
void hzi_quat_gemm_bias(struct hzi_quat_gemm_args *g, const struct hzi_qarray *b, int64_t first);

/* What the layer says of its products; reversed: the factors in the other order */
void hzi_qrun_settle(const struct hzi_qrun *r, struct hzi_quat_gemm_args *g, bool reversed);

/* Runs a route in what is left of the workspace; in a dry run counts what it needs of that. */
int hzi_qrun_call(struct hzi_qrun *r, const struct hzi_route *route, const void *args);

int hzi_qrun_multiply(struct hzi_qrun *r, struct hzi_quat_gemm_args *g, bool reversed);

/*
 * Parts into which a product of few rows and columns, but many terms, is cut along these: as many
 * as give the device enough to do at once. Sizes alone say how many.
 */
int64_t hzi_qrun_splits(const struct hzi_qrun *r, int64_t m, int64_t n, int64_t k);

/* Adds a product's parts to as many results, which are part elements apart. */
int hzi_qrun_multiply_split(struct hzi_qrun *r, const struct hzi_quat_gemm_args *g, int64_t splits,
			    int64_t part, bool reversed);

/* to = the sum of count arrays of its shape, one behind the other */
int hzi_qrun_sum_parts(struct hzi_qrun *r, void *parts, int64_t count,
		       const struct hzi_qtensor *to);

/* ---- Arrays ---------------------------------------------------------------------------------- */

/* Quaternions back to back, of that shape */
struct hzi_qtensor hzi_qtensor_packed(void *data, int dtype, int ndim, const int64_t *shape);

int64_t hzi_qcount(int ndim, const int64_t *shape);

/* The first ndim dimensions, in which arrays step together, as few as they can be */
struct hzi_qjoint {
	int n;
	int64_t size[HZI_QDIM], stride[3][HZI_QDIM];
};

struct hzi_qjoint hzi_qjoin(int ndim, const int64_t *shape, const struct hzi_qarray *a,
			    const struct hzi_qarray *b, const struct hzi_qarray *c);

/* ---- What backward passes have in common ----------------------------------------------------- */

/* The sum of z over all dimensions but the last, into db */
int hzi_qrun_bias_gradient(struct hzi_qrun *r, const struct hzi_qtensor *z,
			   const struct hzi_qtensor *db);

/* *z = dy, or with an activation its gradient, in scratch memory; forward() makes its input. */
int hzi_qrun_act_gradient(struct hzi_qrun *r, struct hzi_qtensor *z,
			  int (*forward)(struct hzi_qrun *r, const void *a,
					 const struct hzi_qtensor *y), const void *a);

#endif
