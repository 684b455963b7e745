/*
 * coef.h - plans, scratch and products of mhc_pre and mhc_pre_bwd
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_MHC_COEF_H
#define HZI_CPU_MHC_COEF_H

#include "cpu/mhc/mhc.h"

#define TOKENS HZI_MHC_BATCH	/* tokens of a tile */

/*
 * Channels that are converted for AMX tiles at a time. Shorter reads of rows, prefetched or not,
 * reach half the bandwidth of memory.
 */
#define HZI_MHC_AMX_CHANNELS 1024
#define HZI_MHC_AMX_L2_TOKENS 32	/* tokens whose streams stay in L2 between dphi and dx */

/* Leading dimensions that keep the rows of a tile out of the same sets of L1 */
#define HZI_MHC_X_LD (HZI_MHC_AMX_CHANNELS + 32)
#define HZI_MHC_ADD_LD (HZI_MHC_TILE + 16)

/* phi times gain: m rows of n streams of `stream` elements each, 0 from C on */
struct hzi_mhc_packed_phi {
	const float *data;
	int64_t row, stream;
	const uint16_t *amx;		/* packed for amx_project, or NULL */
	const uint16_t *amx_dx;		/* packed for amx_dx and amx_bwd, or NULL */
	int32_t panels;
};

/* Scratch arrays of a thread */
struct hzi_mhc_scratch {
	float *x;			/* [TOKENS][HZI_MHC_X_LD] of f32, or of 2 terms in bf16 */
	float *sums;			/* [block][m][lanes]; AMX: [block][16 panels] */
	float *squares;			/* [block][lanes] */
	float *raw;			/* [block][m + 1]: <phi_k, x>, then the mean square of x */
	float *y, *dz, *dy;		/* [m][TOKENS] */
	float *p, *q, *dp, *dq;		/* [n][TOKENS] */
	float *a, *da;			/* [n n][TOKENS] */
	float *dalpha;			/* [3][TOKENS] */
	float *add;			/* [n][TOKENS][HZI_MHC_ADD_LD] */
	uint16_t *interleaved;		/* [2 terms][HZI_MHC_AMX_L2_TOKENS][HZI_MHC_AMX_CHANNELS] */
	uint16_t *d_dx, *d_dphi;	/* d packed for amx_dx and for amx_dphi */
	/* [block][m], [block]: dx = sum_k d_k phi_k + factor x if far is 0, else + factor far x */
	float *d, *factor, *far;
	float *token;			/* [block][n + n n]: p and a */
	/*
	 * With HZ_MHC_RMS_STREAM. raws [block][n][m]: sums of each stream; roots [block][n]: rho
	 * and slope; parts [n][block][m]: d of each stream; shares [n][block]: that of x rho in dx
	 */
	float *raws, *roots, *parts, *shares;
	float *du;			/* [block + 1][C]; forward [1][C] */
};

struct hzi_mhc_coef_plan {
	int64_t channels, padded;	/* C, and rounded up to pairs of vectors at any ISA level */
	int64_t block;			/* tokens that are multiplied by one part of phi */
	int n, m;
	bool all;			/* q and a too, not only p */
	bool backwards, norm;
	float least;			/* mean squares below this are computed again */
	const struct hzi_mhc_rule *divided;	/* of HZ_MHC_RMS_STREAM; NULL: other rules */
	bool pack;			/* phi is copied */
	size_t phi;			/* floats of the copy */
	int32_t panels;			/* of 16 columns, of phi packed for AMX tiles; 0: none */
	size_t amx_phi;			/* floats of that; 0: none */
	size_t amx_phi_dx;		/* floats of phi packed for amx_dx; 0: none */
	bool amx_bwd;			/* dx and dphi by AMX tiles */
	size_t sums;			/* floats of r->sums for a token */
	size_t scratch;			/* floats of a thread */
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

/* The reason why AMX tiles do not support products of these streams and phi, or NULL */
const char *hzi_mhc_amx_unsupported(const struct hz_context *ctx, const struct hzi_mhc_shape *s,
				    const struct hzi_mhc_rule *rule, const float *phi);

/* ---- Plans ----------------------------------------------------------------------------------- */

/* phi, gain: they are given; norm: u is normalized; amx: products by AMX tiles */
struct hzi_mhc_coef_plan hzi_mhc_plan_coef(const struct hz_context *ctx,
					   const struct hzi_mhc_shape *s,
					   const struct hzi_mhc_rule *rule, bool phi, bool gain,
					   bool backwards, bool norm, bool amx);
struct hzi_mhc_scratch hzi_mhc_scratch_of(const struct hzi_mhc_coef_plan *p, float *base,
					  int thread);
/* Floats of phi in the workspace; packs phi there. */
size_t hzi_mhc_phi_floats(const struct hzi_mhc_coef_plan *p);
struct hzi_mhc_packed_phi hzi_mhc_pack_phi(const struct hz_context *ctx,
					   const struct hzi_mhc_coef_plan *p,
					   const float *phi, const float *gain, float *work);
/* Splits v into high + low in bf16, which have at least 16 significant bits together. */
void hzi_mhc_split_bf16(float v, uint16_t *high, uint16_t *low);
/* count rounded up to pairs of vectors, which hzi_mhc_widen() fills */
int64_t hzi_mhc_round_to_pairs(const struct hz_context *ctx, int64_t count);
/* Contiguous channels from c on of stream j of a token: in place, or copied to buffer */
const void *hzi_mhc_stream_row(const struct hzi_mhc_array *x, int64_t size, int64_t t, int j,
			       int64_t c, int64_t count, void *buffer);
/* The same for tokens from t on, to be prefetched; nothing beyond the last channel or stream */
struct hzi_mhc_ahead hzi_mhc_rows_ahead(const struct hzi_mhc_array *x,
					const struct hzi_mhc_coef_plan *p,
					int64_t size, int64_t t, int j, int64_t c);
/*
 * Converts channels from c on of stream j of tokens to f32 in r->x; adds up their squares unless
 * r->squares is NULL.
 */
void hzi_mhc_widen(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p,
		   const struct hzi_mhc_array *x, int dtype, int64_t t, int tokens, int j,
		   int64_t c, int64_t count, const struct hzi_mhc_scratch *r);
/* Fills r->raw for at most p->block tokens. */
void hzi_mhc_project_tokens(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p,
		     const struct hzi_mhc_packed_phi *phi, const struct hzi_mhc_array *x, int dtype,
			    int64_t t, int tokens, const struct hzi_mhc_scratch *r);
/*
 * Of each token of a tile: rho, by which sums are multiplied, and slope: the derivative of rho by
 * x_j is -rho slope x_j / (n C).
 */
struct hzi_mhc_roots {
	float rho[TOKENS], slope[TOKENS];
};

/* rho and slope of one mean square */
double hzi_mhc_root_of(const struct hzi_mhc_rule *rule, double square, float *slope);
/* y and roots of a tile, from sums and mean squares; raw NULL: y = 0 */
void hzi_mhc_normalize(const struct hzi_mhc_coef_plan *p, const struct hzi_mhc_rule *rule,
		       const float *raw, int tokens, float *y, struct hzi_mhc_roots *roots);
struct hzi_mhc_batch hzi_mhc_batch_of(const struct hzi_mhc_coef_plan *p,
				      const struct hzi_mhc_rule *rule,
				      const float *const *alpha, const float *bias, int tokens,
				      const struct hzi_mhc_scratch *r);
/* Means of groups, to [groups][n][padded]; and these as streams of one token per group */
void hzi_mhc_group_means(const struct hz_context *ctx, const struct hzi_mhc_coef_plan *p,
		   const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s, float *scratch,
			 float *to);
struct hzi_mhc_array hzi_mhc_mean_array(const struct hzi_mhc_coef_plan *p, float *mean);

/* Values of token i of a batch, contiguous */
static inline float *hzi_mhc_get_token(const float *from, int i, int count, float *to)
{
	for (int e = 0; e < count; e++)
		to[e] = from[e * TOKENS + i];
	return to;
}

static inline void hzi_mhc_set_token(float *to, int i, int count, const float *from)
{
	for (int e = 0; e < count; e++)
		to[e * TOKENS + i] = from[e];
}

#endif
