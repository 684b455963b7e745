/*
 * launch.h - routes of the Hadamard operations on a GPU, and their arguments
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_HADAMARD_LAUNCH_H
#define HZI_GPU_HADAMARD_LAUNCH_H

#include "gpu/hadamard/hadamard.h"
#include "gpu/runtime/cuda.h"
#include "lib/hadamard/hadamard.h"
#include "lib/qgemm/qgemm.h"

HZI_LINK_IMAGES(hadamard);

/* The launch for one segment */
struct hzi_hadamard_launch {
	int kernel;
	struct hzi_launch launch;
	size_t bytes;			/* bytes of parameters */
	union {
		struct hzi_hadamard_rows rows;
		struct hzi_hadamard_base_rows base;
		struct hzi_hadamard_base_split_big split;
		struct hzi_hadamard_row_segments segments;
	} p;
};

/* Arguments of the routes of hadamard, hadamard_quantize and dequantize_hadamard */
struct hzi_hadamard_call {
	const char *op;
	const struct hzi_cuda_device *device;
	const struct hzi_hadamard_args *t;
	const struct hzi_hadamard_quantize_args *quantize;	/* NULL: another operation */
	const struct hzi_dequantize_hadamard_args *dequantize;	/* likewise */
	/* What follows describes x and y in elements, whether they are floats or codes. */
	struct hzi_hadamard_job job;		/* without what the segment determines */
	int64_t x_block, y_block;
	const int64_t *x_stride, *y_stride;	/* of the outer dimensions */
	const int64_t *scale_stride;		/* NULL: no quantization */
	int64_t group;
	int64_t code_stride[HZ_MAXDIM];		/* storage of x_stride or y_stride */
	/*
	 * The launch that unsupported() of a route by segments has prepared last. Costs are ranks,
	 * so that run() of a route that is taken follows its unsupported() at once.
	 */
	struct hzi_hadamard_launch *prepared;
};

/* A route: why it does not support a call, and its launch. See struct hzi_route. */
#define HZI_HADAMARD_ROUTE(name) \
	const char *hzi_cuda_##name##_unsupported(const struct hz_context *ctx, const void *args); \
	int hzi_cuda_##name(struct hz_context *ctx, const void *args)

/* Arguments: struct hzi_hadamard_call */
HZI_HADAMARD_ROUTE(hadamard_in_registers);
HZI_HADAMARD_ROUTE(hadamard_contiguous);
HZI_HADAMARD_ROUTE(hadamard_base_mma);
HZI_HADAMARD_ROUTE(hadamard_base_f32);
HZI_HADAMARD_ROUTE(hadamard_rows);
HZI_HADAMARD_ROUTE(hadamard_base_rows);
HZI_HADAMARD_ROUTE(hadamard_columns_16bit);
HZI_HADAMARD_ROUTE(hadamard_columns);
HZI_HADAMARD_ROUTE(hadamard_row_segments);
#define HZI_HADAMARD_LAST 100	/* a rank behind those of all routes */
int64_t hzi_cuda_hadamard_in_registers_cost(const struct hz_context *ctx, const void *args);
int64_t hzi_cuda_hadamard_row_segments_cost(const struct hz_context *ctx, const void *args);
HZI_HADAMARD_ROUTE(hadamard_by_segment);
int hzi_cuda_hadamard_strided(struct hz_context *ctx, const void *args);
HZI_HADAMARD_ROUTE(hadamard_quantize_contiguous);
HZI_HADAMARD_ROUTE(dequantize_hadamard_contiguous);

/* Arguments: struct hzi_codes_args with a transform, for the tables of gpu/quantize */
HZI_HADAMARD_ROUTE(quantize_hadamard_contiguous);
HZI_HADAMARD_ROUTE(quantize_hadamard_base_mma);
HZI_HADAMARD_ROUTE(dequantize_hadamard_scaled);
HZI_HADAMARD_ROUTE(dequantize_hadamard_base_mma);

/*
 * Contiguous 16-bit rows to MXFP4, MXFP8 or NVFP4, of 2^11 to 2^13 elements, or of m 2^k which
 * hzi_hadamard_no_base_mma() accepts, k from 7 on; measure: only *most is written, the bits of the
 * largest magnitude
 */
#define HZI_HADAMARD_MICROSCALING_MAX 13
int hzi_hadamard_microscaling(struct hz_context *ctx, const struct hzi_codes_args *a,
			      uint32_t *most, bool measure);

struct hzi_hadamard_quantize;

/*
 * Contiguous 16-bit rows of m 2^k elements, total in all, to or from codes (base.c): NULL, or why
 * the kernels do not support them; the launch, with operands and scales of q
 */
const char *hzi_hadamard_no_base_mma(const struct hz_context *ctx,
				     const struct hzi_hadamard_args *a, int64_t total);
int hzi_hadamard_base_mma_codes(struct hz_context *ctx, const struct hzi_hadamard_args *a,
			    const struct hzi_hadamard_quantize *q, bool to_codes);

/* The same to MXFP4, MXFP8 or NVFP4, from k = 7 on */
int hzi_hadamard_base_mma_microscaling(struct hz_context *ctx, const struct hzi_hadamard_args *a,
				       const struct hzi_hadamard_quantize *q);

#define HZI_HADAMARD_SHORT 16384	/* elements an SM */

/* Whether a call takes about as long as a launch does, so that it is launched early. */
static inline bool hzi_hadamard_is_short(const struct hz_context *ctx, int64_t elements)
{
	return elements <= (int64_t)HZI_HADAMARD_SHORT * hzi_cuda_device(ctx)->sms;
}

/* NULL if x and y are contiguous rows of one dtype in segments of one kind, else the reason. */
static inline const char *hzi_hadamard_not_contiguous(const struct hzi_hadamard_args *a)
{
	if (a->plan.nseg != 1)
		return "the plan has segments of several lengths";
	if (a->x_dtype != a->y_dtype)
		return "x and y differ in dtype";
	if (a->ndim != 0 || a->x_step != 1 || a->y_step != 1 || a->x_block != a->plan.n ||
	    a->y_block != a->plan.n)
		return "x and y are not contiguous rows";
	return ((uintptr_t)a->x | (uintptr_t)a->y) % 16 ? "x and y are not 16-byte aligned" : NULL;
}

#endif
