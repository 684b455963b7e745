/*
 * coef.h - what coefficients of hyper-connections and their gradients share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_MHC_PRE_H
#define HZI_CPU_MHC_PRE_H

#include "cpu/mhc/mhc.h"

#define TOKENS HZI_MHC_BATCH	/* of a tile, whose coefficients are made at once */

/*
 * Channels that halves are made of at a time: parts of rows long enough for memory to be read at
 * its rate. Shorter ones, fetched ahead or not, come at half of it.
 */
#define HZI_PHI_WIDE 1024
#define HZI_PHI_SOME 32			/* tokens whose streams stay in L2 meanwhile */

/* Rows of arrays that tiles are loaded from or stored to do not fall into the same sets of L1. */
#define HZI_PHI_LD (HZI_PHI_WIDE + 32)
#define HZI_PHI_ADD (HZI_MHC_TILE + 16)

/* phi as products take it: rows of n streams of `stream` numbers each, 0 beyond C, times gain */
struct hzi_phi {
	const float *data;
	int64_t row, stream;
	const uint16_t *half;		/* the same for hzi_mhc_kern.half, or NULL */
	const uint16_t *spread;		/* and for mhc_half_spread */
	int32_t panels;
};

/* Arrays of a thread, in floats */
struct hzi_phi_room {
	float *x;			/* [TOKENS][HZI_PHI_LD]; halves in two parts */
	float *sums;			/* [block][m] lanes; of halves [block][16 panels] */
	float *squares;			/* [block] lanes */
	float *raw;			/* [block][m + 1]: sums_k phi_k x of tokens, mean squares */
	float *y, *dz, *dy;		/* [m][TOKENS] */
	float *p, *q, *dp, *dq;		/* [n][TOKENS] */
	float *a, *da;			/* [n n][TOKENS] */
	float *dalpha;			/* [3][TOKENS] */
	float *add;			/* [n][TOKENS][HZI_PHI_ADD] */
	uint16_t *woven;		/* [2 parts][HZI_PHI_SOME][HZI_PHI_WIDE] */
	uint16_t *d_spread, *d_outer;	/* d, for mhc_half_spread and for mhc_half_outer */
	float *d, *factor;		/* [block][m], [block]: what gradients of these make of x */
	float *token;			/* [block][n + n n]: p and a */
	float *du;			/* [block + 1][C], forwards [1][C] */
};

struct hzi_phi_plan {
	int64_t channels, padded;	/* C, and up to whole pairs of any level's vectors */
	int64_t block;			/* tokens that are multiplied by a part of phi at a time */
	int n, m;
	bool all;			/* q and a, too */
	bool backwards, norm;
	bool pack;			/* phi is copied */
	size_t phi;			/* floats */
	int32_t panels;			/* of phi in halves of 16 bits, or 0 */
	size_t half;			/* the same, in floats */
	size_t spread;			/* of phi for gradients of x by halves, or 0 */
	bool halves;			/* gradients are made of halves */
	size_t sums;			/* floats that products of a token take */
	size_t room;			/* floats of a thread */
	int threads;
};

/* ---- Routes: members of struct hzi_route ----------------------------------------------------- */

const char *hzi_cpu_mhc_coef_amx_unsupported(const struct hz_context *ctx, const void *args);
size_t hzi_cpu_mhc_coef_amx_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_mhc_coef_amx(struct hz_context *ctx, const void *args);
size_t hzi_cpu_mhc_coef_vectors_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_mhc_coef_vectors(struct hz_context *ctx, const void *args);

const char *hzi_cpu_mhc_coef_bwd_amx_unsupported(const struct hz_context *ctx, const void *args);
size_t hzi_cpu_mhc_coef_bwd_amx_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_mhc_coef_bwd_amx(struct hz_context *ctx, const void *args);
size_t hzi_cpu_mhc_coef_bwd_vectors_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_mhc_coef_bwd_vectors(struct hz_context *ctx, const void *args);

/* Why AMX tiles do not support products of such streams and phi, or NULL */
const char *hzi_phi_amx_unsupported(const struct hz_context *ctx, const struct hzi_mhc_shape *s,
				    const float *phi);

/* ---- Plans ----------------------------------------------------------------------------------- */

/* phi, gain: they are given; norm: u is normalized; amx: products by AMX tiles */
struct hzi_phi_plan hzi_phi_plan_of(const struct hz_context *ctx, const struct hzi_mhc_shape *s,
				    const struct hzi_mhc_rule *rule, bool phi, bool gain,
				    bool backwards, bool norm, bool amx);
struct hzi_phi_room hzi_phi_room_of(const struct hzi_phi_plan *p, float *base, int thread);
/* work: hzi_phi_floats() */
size_t hzi_phi_floats(const struct hzi_phi_plan *p);
struct hzi_phi hzi_phi_of(const struct hz_context *ctx, const struct hzi_phi_plan *p,
			  const float *phi, const float *gain, float *work);
/* v as two numbers of bf16, to 16 bits or more */
void hzi_phi_parts(float v, uint16_t *high, uint16_t *low);
/* Up to whole pairs of vectors, what hzi_phi_widen() fills */
int64_t hzi_phi_pairs(const struct hz_context *ctx, int64_t count);
/* Channels c .. of stream j of a token, side by side: where they lie, or else in buffer */
const void *hzi_phi_stream(const struct hzi_mhc_array *x, int64_t size, int64_t t, int j,
			   int64_t c, int64_t count, void *buffer);
/* Those of tokens t .., if there are such, to be fetched */
struct hzi_mhc_ahead hzi_phi_ahead(const struct hzi_mhc_array *x, const struct hzi_phi_plan *p,
				   int64_t size, int64_t t, int j, int64_t c);
/* Channels c .. of stream j of tokens as floats to r->x, 0 up to whole pairs; their squares */
void hzi_phi_widen(const struct hz_context *ctx, const struct hzi_phi_plan *p,
		   const struct hzi_mhc_array *x, int dtype, int64_t t, int tokens, int j,
		   int64_t c, int64_t count, const struct hzi_phi_room *r);
/* r->raw of a block of tokens, at most p->block */
void hzi_phi_project(const struct hz_context *ctx, const struct hzi_phi_plan *p,
		     const struct hzi_phi *phi, const struct hzi_mhc_array *x, int dtype,
		     int64_t t, int tokens, const struct hzi_phi_room *r);
/* Numbers y of a tile from sums and mean squares, or 0, and the inverse root mean squares rho */
void hzi_phi_normalize(const struct hzi_phi_plan *p, const struct hzi_mhc_rule *rule,
		       const float *raw, int tokens, float *y, float *rho);
struct hzi_mhc_batch hzi_phi_batch_of(const struct hzi_phi_plan *p, const struct hzi_mhc_rule *rule,
				      const float *alpha, const float *bias, int tokens,
				      const struct hzi_phi_room *r);
/* Means of groups to to [groups][n][padded], and these as streams of one token a group */
void hzi_phi_means(const struct hz_context *ctx, const struct hzi_phi_plan *p,
		   const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s, float *rooms,
		   float *to);
struct hzi_mhc_array hzi_phi_mean_array(const struct hzi_phi_plan *p, float *mean);

/* Token i of a batch: its numbers, back to back */
static inline float *hzi_phi_pick(const float *from, int i, int count, float *to)
{
	for (int e = 0; e < count; e++)
		to[e] = from[e * TOKENS + i];
	return to;
}

static inline void hzi_phi_place(float *to, int i, int count, const float *from)
{
	for (int e = 0; e < count; e++)
		to[e * TOKENS + i] = from[e];
}

#endif
