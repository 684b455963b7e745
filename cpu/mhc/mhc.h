/*
 * mhc.h - helpers of all loops of hyper-connections: coefficients, tiles, a token's gradients
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_MHC_H
#define HZI_CPU_MHC_H

#include <math.h>

#include "cpu/core/cpu.h"
#include "cpu/mhc/kern.h"
#include "lib/mhc/mhc.h"

static inline int64_t hzi_mhc_min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t hzi_mhc_ceil(int64_t a, int64_t b)
{
	return a / b + (a % b != 0);
}

static inline int64_t hzi_mhc_dtype_bytes(int dtype)
{
	return dtype == HZ_F32 ? 4 : 2;
}

/* 1 / sqrt(squares / count + eps), or 0 if that root is 0 */
static inline float hzi_mhc_inverse_root(double squares, int64_t count, float eps)
{
	const double mean = (count > 0 ? squares / (double)count : 0) + (double)eps;

	return mean != 0 ? (float)(1 / sqrt(mean)) : 0;
}

/* Tokens of a group */
static inline int64_t hzi_mhc_group_tokens(const struct hzi_mhc_shape *s)
{
	return s->groups > 0 ? s->tokens / s->groups : 0;
}

/* Address of channel c of token t, or NULL */
static inline void *hzi_mhc_at(const struct hzi_mhc_array *a, int64_t size, int64_t t, int64_t c)
{
	return a->data ? (char *)a->data + (t * a->token + c * a->channel) * size : NULL;
}

/* Copies the rows by columns coefficients of a group to contiguous `to`; NULL if there are none */
const float *hzi_mhc_load_coefs(const struct hzi_mhc_coef *a, int64_t group, int rows, int columns,
				float *to);
void hzi_mhc_store_coefs(const struct hzi_mhc_coef *a, int64_t group, int rows, int columns,
			 const float *from);

#define HZI_MHC_TILE_CHANNELS 512		/* most channels of a tile */
#define HZI_MHC_GATHER_CHANNELS 64	/* channels of a gathered tile, on the stack */

static inline int64_t hzi_mhc_padded(int64_t channels)
{
	return hzi_mhc_ceil(channels, 32) * 32;
}

/*
 * A tile: `count` channels of all streams of a token, contiguous. It is in place if channels have
 * stride 1, else in a buffer with a row of hzi_mhc_padded(count) elements for each stream.
 */
struct hzi_mhc_tile {
	void *p;			/* NULL: none */
	int64_t stream;			/* stride, in elements */
};

/* Whether tiles need no buffer */
static inline bool hzi_mhc_in_place(const struct hzi_mhc_array *a)
{
	return !a->data || a->channel == 1;
}

struct hzi_mhc_tile hzi_mhc_tile(const struct hzi_mhc_array *a, int64_t size, int64_t t, int64_t c,
				 int n, int64_t count, void *buffer, bool read);
/* Scatters a tile that is in a buffer. */
void hzi_mhc_store_tile(const struct hzi_mhc_array *a, int64_t size, int64_t t, int64_t c, int n,
			int64_t count, const struct hzi_mhc_tile *tile);

/* Whether a is aligned for non-temporal stores, and too large for the caches */
bool hzi_mhc_nontemporal(const struct hz_context *ctx, const struct hzi_mhc_array *a,
			 const struct hzi_mhc_shape *s, int rows);

/* Sums over channels of a token: lanes floats for each of dp [n], dq [n], dA [n][n] */
struct hzi_mhc_sums {
	float dp[HZI_MHC_STREAMS * HZI_MHC_BATCH], dq[HZI_MHC_STREAMS * HZI_MHC_BATCH];
	float da[HZI_MHC_STREAMS * HZI_MHC_STREAMS * HZI_MHC_BATCH];
};

/* Contiguous coefficients of a token; NULL as in struct hzi_mhc_streams_args */
struct hzi_mhc_token_coefs {
	const float *p, *q, *a;
};

/* u and y of a token; u_floats [C]: u in f32, instead of u. next: another token follows. */
void hzi_mhc_mix_token(const struct hz_context *ctx, const struct hzi_mhc_streams_args *a,
		       int64_t t,
		       const struct hzi_mhc_token_coefs *coef, float *u_floats, bool stream_u,
		       bool stream_y, bool next);

/*
 * Gradients of a token for `count` channels from c on: dx, df, and the partial sums of those of dp,
 * dq and da that have data in a. dbias [count] is added to. du_floats [count]: du in f32, instead
 * of du. add [n][add_stream] and with it factor * x are added to dx. NULL: none.
 */
struct hzi_mhc_token_bwd {
	const struct hzi_mhc_streams_bwd_args *a;
	struct hzi_mhc_token_coefs coef;
	struct hzi_mhc_sums *sums;
	float *dbias;
	const float *du_floats, *add;
	int64_t add_stream;
	float factor;
	bool stream_dx, stream_df;
	bool next, last;		/* another token follows; nothing is prefetched */
};

void hzi_mhc_token_bwd(const struct hz_context *ctx, const struct hzi_mhc_token_bwd *u, int64_t t,
		       int64_t c, int64_t count);

/* Inputs of mhc_streams_bwd that only mhc_pre_bwd with shared coefficients uses */
struct hzi_mhc_bwd_extra {
	const float *norm;		/* [C]; NULL: none. u is recomputed from x and p */
	float norm_eps;
	float *dnorm;			/* NULL: not wanted */
	bool accumulate_dnorm;
	float *scratch;			/* [threads][2][hzi_mhc_padded()], for norm */
	const float *add;		/* added to dx: [groups][n][add_stream]; NULL: none */
	int64_t add_stream;
};

/*
 * g [C] = the gradient of the input of norm, from that of its output, du. dnorm [C] is added to. u
 * [C] is scratch; u and g hold hzi_mhc_padded(C) elements.
 */
void hzi_mhc_norm_bwd(const struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a,
		      const struct hzi_mhc_bwd_extra *b, int64_t t, const float *p, float *u,
		      float *g, float *dnorm);

/* mhc_streams_bwd with b (or NULL) and its workspace at `work` */
size_t hzi_mhc_mix_bwd_bytes(const struct hzi_mhc_streams_bwd_args *a,
			     const struct hzi_mhc_bwd_extra *b);
void hzi_mhc_mix_bwd(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a,
		     const struct hzi_mhc_bwd_extra *b, void *work);

#endif
