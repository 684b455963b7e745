/*
 * coef_splitk.h - parameters of coef_splitk.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_COEF_SPLITK_H
#define HZI_GPU_MHC_COEF_SPLITK_H

#include "lib/mhc/mhc.h"

#define HZI_MHC_SPLITK_TOKENS 64	/* of a block that projects */
#define HZI_MHC_SPLITK_CHUNK 64		/* channels of a stream: a warp's at a time */
#define HZI_MHC_SPLITK_THREADS 256
#define HZI_MHC_SPLITK_ROW 28		/* sums of a token: 24 rows of phi, squares, 3 unused */
#define HZI_MHC_SPLITK_FINISHED 8	/* tokens of a block that makes coefficients, at most */
#define HZI_MHC_SPLITK_BYTES \
	(HZI_MHC_SPLITK_THREADS / 32 * HZI_MHC_SPLITK_TOKENS * HZI_MHC_SPLITK_ROW * 4)

/* sums [splits][tokens][ROW] */
struct hzi_mhc_splitk {
	struct hzi_mhc_array x, u;
	struct hzi_mhc_coef p, q, a, p_in;
	const float *phi, *gain, *alpha[3], *bias;
	float *saved, *sums;
	struct hzi_mhc_rule rule;
	int64_t tokens, channels;
	int32_t splits, dtype;
	int32_t finished, pad_;		/* tokens of a block that makes coefficients: 1 2 4 8 */
};

#endif
