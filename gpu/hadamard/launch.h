/*
 * launch.h - the launchers that gpu/hadamard/hadamard.c tries before its own
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_HADAMARD_LAUNCH_H
#define HZI_HADAMARD_LAUNCH_H

#include "gpu/runtime/cuda.h"
#include "lib/hadamard/hadamard.h"
#include "lib/qgemm/qgemm.h"

HZI_LINK_IMAGES(hadamard);

struct hzi_hadamard_static;

/* Whether x and y are of one dtype, their rows back to back, of one kind of transforms each. */
static inline bool hzi_hadamard_back_to_back(const struct hzi_hadamard_args *a)
{
	return a->plan.nseg == 1 && a->ndim == 0 && a->x_dtype == a->y_dtype && a->x_step == 1 &&
	       a->y_step == 1 && a->x_block == a->plan.n && a->y_block == a->plan.n &&
	       ((uintptr_t)a->x | (uintptr_t)a->y) % 16 == 0;
}

/* Each launches what it is made for; *done says whether it did. */
int hzi_hadamard_fast(struct hz_context *ctx, const struct hzi_hadamard_args *a, bool *done);
int hzi_hadamard_base(struct hz_context *ctx, const struct hzi_hadamard_args *a, bool *done);
/* Such rows to codes, and codes to such rows */
int hzi_hadamard_base_codes(struct hz_context *ctx, const struct hzi_hadamard_args *a,
			    const struct hzi_hadamard_static *c, bool *done);
int hzi_hadamard_base_values(struct hz_context *ctx, const struct hzi_hadamard_args *a,
			     const struct hzi_hadamard_static *c, bool *done);
int hzi_hadamard_quantize_fast(struct hz_context *ctx, const struct hzi_hadamard_quantize_args *a,
			       bool *done);
int hzi_dequantize_hadamard_fast(struct hz_context *ctx,
				 const struct hzi_dequantize_hadamard_args *a, bool *done);
int hzi_hadamard_static_fast(struct hz_context *ctx, const struct hzi_codes_args *a, bool *done);
int hzi_dequantize_static_fast(struct hz_context *ctx, const struct hzi_codes_args *a, bool *done);

#endif
