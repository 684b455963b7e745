/*
 * mhc.h - parameters of mix.cu, mix_bwd.cu and sinkhorn.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_MHC_H
#define HZI_GPU_MHC_H

#include <assert.h>

#include "lib/mhc/mhc.h"

#define HZI_MHC_THREADS 128		/* kernels of mix.cu */
#define HZI_MHC_BWD_THREADS 128		/* kernels that sum over channels */
#define HZI_MHC_DBIAS_LANES 32		/* channels, or vectors of them, per block */
#define HZI_MHC_STRIDED_CHANNELS 4	/* per thread of mhc_mix_strided */
#define HZI_MHC_SINKHORN_THREADS 64		/* one matrix per thread */
#define HZI_MHC_SINKHORN_BWD_THREADS(n) ((n) > 4 ? 32 : 64)	/* history in shared memory */
#define HZI_MHC_SINKHORN_PITCH(n) ((n) * (n) | 1)	/* floats from matrix to matrix */
#define HZI_MHC_WIDEN 8			/* weights of a thread of mhc_widen */
#define HZI_MHC_CHAIN 64		/* layers of one launch of mhc_recompute */

/* Terms of a vectorized kernel: u, streams mixed by a, streams added unmixed, f */
enum hzi_mhc_terms {
	HZI_TERM_U = 1, HZI_TERM_MIX = 2, HZI_TERM_ADD = 4, HZI_TERM_F = 8
};

/* Which coefficients are contiguous, aligned float4s */
enum hzi_mhc_float4s {
	HZI_MHC_P_FLOAT4 = 1, HZI_MHC_Q_FLOAT4 = 2, HZI_MHC_A_FLOAT4 = 4
};

struct hzi_mhc_streams_job {
	struct hzi_mhc_streams_args a;
	int64_t per;			/* tokens of a group */
	int64_t vectors;		/* 16-byte vectors of a row of channels */
	int32_t lanes_log2;		/* log2 of threads per token and of vectors per tile */
	int32_t tiles, terms, layout;
};

/*
 * A block has `chunk` tokens of a group; if groups are single tokens, one token per team of
 * threads. Sums go to partial [S][sums][chunks], or with one chunk to the outputs.
 */
struct hzi_mhc_streams_bwd_job {
	struct hzi_mhc_streams_bwd_args a;
	int64_t per, vectors, chunk, chunks;
	float *partial;
	int32_t lanes_log2;
	int32_t terms, layout, sums;	/* sums: whether any are wanted */
};

/* dbias: a block has adjacent channels and a chunk of tokens; partial [chunks][C] */
struct hzi_mhc_dbias_job {
	struct hzi_mhc_shape s;
	struct hzi_mhc_array dy;
	struct hzi_mhc_coef q;
	int64_t per, chunk, chunks;
	float *partial, *dbias;
	int32_t accumulate, vectors;	/* vectors: rows are whole 16-byte vectors */
};

/* Layers with equal strides */
struct hzi_mhc_chain_job {
	struct hzi_mhc_shape s;
	struct hzi_mhc_array x, f, u, y;	/* strides; data of x only */
	struct hzi_mhc_coef p, q, a;
	int64_t per, vectors;			/* vectors 0: any strides, one channel per thread */
	int32_t layers, layout;
	struct {
		const float *p, *q, *a, *bias;
		const void *f;
		void *u, *y;
	} layer[HZI_MHC_CHAIN];
};

static_assert(sizeof(struct hzi_mhc_streams_job) == 296, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_mhc_streams_bwd_job) == 496, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_mhc_dbias_job) == 144, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_mhc_chain_job) <= 4096, "the parameters that any driver takes");

#endif
