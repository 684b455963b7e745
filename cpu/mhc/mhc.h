/*
 * mhc.h - what the loops of hyper-connections share: places, tiles, coefficients
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

static inline int64_t hzi_mhc_size(int dtype)
{
	return dtype == HZ_F32 ? 4 : 2;
}

/* 1 / sqrt(squares / count + eps), 0 where that is 0 */
static inline float hzi_mhc_inverse_root(double squares, int64_t count, float eps)
{
	const double mean = (count > 0 ? squares / (double)count : 0) + (double)eps;

	return mean != 0 ? (float)(1 / sqrt(mean)) : 0;
}

/* Tokens of a group */
static inline int64_t hzi_mhc_length(const struct hzi_mhc_shape *s)
{
	return s->groups > 0 ? s->tokens / s->groups : 0;
}

/* Channels c .. of a token's streams, or NULL */
static inline void *hzi_mhc_at(const struct hzi_mhc_array *a, int64_t size, int64_t t, int64_t c)
{
	return a->data ? (char *)a->data + (t * a->token + c * a->channel) * size : NULL;
}

/* rows by columns coefficients of a group, back to back; NULL if there are none */
const float *hzi_mhc_take(const struct hzi_mhc_coef *a, int64_t group, int rows, int columns,
			  float *to);
void hzi_mhc_put(const struct hzi_mhc_coef *a, int64_t group, int rows, int columns,
		 const float *from);

#define HZI_MHC_WIDE 512		/* channels of a tile at most */
/* Of a tile that has to be gathered: buffers are on the stack, which threads may have little of. */
#define HZI_MHC_NARROW 64

static inline int64_t hzi_mhc_room(int64_t channels)
{
	return hzi_mhc_ceil(channels, 32) * 32;
}

/*
 * A tile of a token's streams with channels side by side: where they lie, or if they do not lie so
 * in buffer, rows of hzi_mhc_room(count) elements.
 */
struct hzi_mhc_tile {
	void *p;			/* NULL: none */
	int64_t stream;
};

/* Whether tiles of it need no buffer */
static inline bool hzi_mhc_in_place(const struct hzi_mhc_array *a)
{
	return !a->data || a->channel == 1;
}

struct hzi_mhc_tile hzi_mhc_tile(const struct hzi_mhc_array *a, int64_t size, int64_t t, int64_t c,
				 int n, int64_t count, void *buffer, bool read);
/* Writes a tile back that was in a buffer. */
void hzi_mhc_untile(const struct hzi_mhc_array *a, int64_t size, int64_t t, int64_t c, int n,
		    int64_t count, const struct hzi_mhc_tile *tile);

/* Whether stores to a, rows of size * count bytes, may go past the caches */
bool hzi_mhc_stream(const struct hz_context *ctx, const struct hzi_mhc_array *a,
		    const struct hzi_mhc_shape *s, int rows);

/* Sums over channels of a token: lanes floats for each of dp [n], dq [n], dA [n][n] */
struct hzi_mhc_sums {
	float dp[HZI_MHC_STREAMS * HZI_MHC_BATCH], dq[HZI_MHC_STREAMS * HZI_MHC_BATCH];
	float da[HZI_MHC_STREAMS * HZI_MHC_STREAMS * HZI_MHC_BATCH];
};

/* Coefficients of a token; NULL as in struct hzi_mhc_streams_args */
struct hzi_mhc_taken {
	const float *p, *q, *a;
};

/* u and y of a token; u_floats [C] instead of u. next: there is a token after it. */
void hzi_mhc_mix(const struct hz_context *ctx, const struct hzi_mhc_streams_args *a, int64_t t,
		 const struct hzi_mhc_taken *coef, float *u_floats, bool stream_u, bool stream_y,
		 bool next);

/*
 * Channels c .. c + count - 1 of gradients of a token: sums of dp, dq and da where a has data for
 * them, dx, df; dbias [count] is added to, du_floats [count] stands for du, and add [n][add_stream]
 * is added to dx, and with it factor x; NULL: none.
 */
struct hzi_mhc_unmix {
	const struct hzi_mhc_streams_bwd_args *a;
	struct hzi_mhc_taken coef;
	struct hzi_mhc_sums *sums;
	float *dbias;
	const float *du_floats, *add;
	int64_t add_stream;
	float factor;
	bool stream_dx, stream_df;
	bool next, last;		/* there is a token after it; nothing is fetched ahead */
};

void hzi_mhc_unmix(const struct hz_context *ctx, const struct hzi_mhc_unmix *u, int64_t t,
		   int64_t c, int64_t count);

/* What gradients of coefficients need beside those of streams */
struct hzi_mhc_beside {
	const float *norm;		/* [C], NULL: none; u is made anew from x and p */
	float norm_eps;
	float *dnorm;			/* NULL: not wanted */
	bool accumulate_dnorm;
	float *room;			/* [threads][2][hzi_mhc_room()], of norm */
	const float *add;		/* onto dx, [groups][n][add_stream]; NULL: none */
	int64_t add_stream;
};

/*
 * g [C] = the gradient of u before its norm, from that after, du; dnorm [C] is added to. u [C] is
 * scratch; both have hzi_mhc_room().
 */
void hzi_mhc_unnorm(const struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a,
		    const struct hzi_mhc_beside *b, int64_t t, const float *p, float *u, float *g,
		    float *dnorm);

/* hzi_cpu_mhc_streams_bwd() with that beside, or NULL, and its workspace at work */
size_t hzi_mhc_unmix_bytes(const struct hzi_mhc_streams_bwd_args *a,
			   const struct hzi_mhc_beside *b);
void hzi_mhc_unmix_all(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a,
		       const struct hzi_mhc_beside *b, void *work);

#endif
