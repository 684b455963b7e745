/*
 * mhc.h - parameters of the kernels of streams and of Sinkhorn's iteration
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_MHC_H
#define HZI_GPU_MHC_H

#include "lib/mhc/mhc.h"

#ifdef __cplusplus
#define HZI_MHC_ASSERT static_assert
#else
#define HZI_MHC_ASSERT _Static_assert
#endif

#define HZI_MHC_THREADS 128		/* of kernels of streams */
#define HZI_MHC_BWD_THREADS 128		/* of those with sums over channels */
#define HZI_MHC_DBIAS_LANES 32		/* channels, or vectors of them, side by side */
#define HZI_MHC_ANY 4			/* channels of a thread of mhc_streams_any */
#define HZI_MHC_SINK_THREADS 64		/* a matrix each */
#define HZI_MHC_SINK_BWD_THREADS(n) ((n) > 4 ? 32 : 64)	/* for history in shared memory */
#define HZI_MHC_SINK_APART(n) ((n) * (n) | 1)	/* floats of a matrix in shared memory */
#define HZI_MHC_CHAIN 64		/* layers of one launch of mhc_recompute */

/* What kernels of whole 16-byte vectors do: terms of u, streams mixed by a or as they are, f */
enum hzi_mhc_terms {
	HZI_TERM_U = 1, HZI_TERM_MIX = 2, HZI_TERM_ADD = 4, HZI_TERM_F = 8
};

/* Coefficients of 4 floats next to each other, aligned: which of them are so */
enum hzi_mhc_wholes {
	HZI_MHC_P_WHOLE = 1, HZI_MHC_Q_WHOLE = 2, HZI_MHC_A_WHOLE = 4
};

struct hzi_mhc_streams_job {
	struct hzi_mhc_streams_args a;
	int64_t per;			/* tokens of a group */
	int64_t vectors;		/* 16-byte vectors of a row of channels */
	int32_t lanes_log2;		/* threads of a token; tiles: as many vectors or channels */
	int32_t tiles, kind, whole;
};

/*
 * A block has `chunk` tokens of a group; with one token to each group as many tokens as it has room
 * for. Sums go to partial [S][sums][chunks], or if chunks is 1 to where they belong.
 */
struct hzi_mhc_streams_bwd_job {
	struct hzi_mhc_streams_bwd_args a;
	int64_t per, vectors, chunk, chunks;
	float *partial;
	int32_t lanes_log2;
	int32_t kind, whole, sums;	/* sums: whether any are wanted */
};

/* dbias: a block has channels side by side and a chunk of tokens; partial [chunks][C] */
struct hzi_mhc_dbias_job {
	struct hzi_mhc_shape s;
	struct hzi_mhc_array dy;
	struct hzi_mhc_coef q;
	int64_t per, chunk, chunks;
	float *partial, *dbias;
	int32_t accumulate, vectors;	/* vectors: whether rows are of 16-byte vectors */
};

/* Layers of one layout */
struct hzi_mhc_chain_job {
	struct hzi_mhc_shape s;
	struct hzi_mhc_array x, f, u, y;	/* strides, of x also its data */
	struct hzi_mhc_coef p, q, a;
	int64_t per, vectors;			/* vectors 0: a channel a thread, of any strides */
	int32_t layers, whole;
	struct {
		const float *p, *q, *a, *bias;
		const void *f;
		void *u, *y;
	} layer[HZI_MHC_CHAIN];
};

HZI_MHC_ASSERT(sizeof(struct hzi_mhc_streams_job) == 296, "the same layout for C and CUDA");
HZI_MHC_ASSERT(sizeof(struct hzi_mhc_streams_bwd_job) == 496, "the same layout for C and CUDA");
HZI_MHC_ASSERT(sizeof(struct hzi_mhc_dbias_job) == 144, "the same layout for C and CUDA");
HZI_MHC_ASSERT(sizeof(struct hzi_mhc_chain_job) <= 4096, "the parameters that any driver takes");

#endif
