/*
 * mhc_any.c - coefficients of hyper-connections for any number of streams
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The rule of lib/mhc_rule.h with n a variable, for what micro-kernels have not: n other than 2, 4.
 */
#include <config.h>

#define HZI_MHC_UNROLL
#include "cpu/mhc.h"
#include "lib/mhc_rule.h"

/* Number e of token t of a batch */
static void take(const float *from, int count, int t, float *to)
{
	for (int e = 0; e < count; e++)
		to[e] = from[e * HZI_MHC_BATCH + t];
}

static void put(float *to, int count, int t, const float *from)
{
	for (int e = 0; e < count; e++)
		to[e * HZI_MHC_BATCH + t] = from[e];
}

void hzi_mhc_any_coefs(const struct hzi_mhc_batch *b)
{
	const int n = b->rule->n, m = b->rule->m;
	float y[HZI_MHC_ROWS], p[HZI_MHC_STREAMS], q[HZI_MHC_STREAMS], a[HZI_MHC_SQUARE];

	for (int t = 0; t < b->count; t++) {
		take(b->y, m, t, y);
		hzi_mhc_coefs(n, b->rule, b->all, y, b->alpha, b->bias, p, q, a);
		put(b->p, n, t, p);
		if (!b->all)
			continue;
		put(b->q, n, t, q);
		put(b->a, n * n, t, a);
	}
}

void hzi_mhc_any_coefs_bwd(const struct hzi_mhc_batch *b)
{
	const int n = b->rule->n, m = b->rule->m;
	float y[HZI_MHC_ROWS], dp[HZI_MHC_STREAMS], dq[HZI_MHC_STREAMS], da[HZI_MHC_SQUARE];
	float dz[HZI_MHC_ROWS], dy[HZI_MHC_ROWS], dalpha[3];
	float history[HZI_MHC_HISTORY * 2 * HZI_MHC_STREAMS];

	for (int t = 0; t < b->count; t++) {
		take(b->y, m, t, y);
		take(b->dp, n, t, dp);
		if (b->all) {
			take(b->dq, n, t, dq);
			take(b->da, n * n, t, da);
		}
		hzi_mhc_coefs_bwd(n, b->rule, b->all, y, b->alpha, b->bias, dp, dq, da, dz, dy,
				  dalpha, history, 1);
		put(b->dz, m, t, dz);
		put(b->dy, m, t, dy);
		put(b->dalpha, b->all ? 3 : 1, t, dalpha);
	}
}

void hzi_mhc_any_sinkhorn(const struct hzi_mhc_batch *b)
{
	const int n = b->rule->n;
	float z[HZI_MHC_SQUARE];

	for (int t = 0; t < b->count; t++) {
		take(b->y, n * n, t, z);
		hzi_mhc_sinkhorn(n, b->rule, z, z);
		put(b->a, n * n, t, z);
	}
}

void hzi_mhc_any_sinkhorn_bwd(const struct hzi_mhc_batch *b)
{
	const int n = b->rule->n;
	float z[HZI_MHC_SQUARE], dp[HZI_MHC_SQUARE], dz[HZI_MHC_SQUARE];
	float history[HZI_MHC_HISTORY * 2 * HZI_MHC_STREAMS];

	for (int t = 0; t < b->count; t++) {
		take(b->y, n * n, t, z);
		take(b->da, n * n, t, dp);
		hzi_mhc_sinkhorn_bwd(n, b->rule, z, dp, dz, history, 1);
		put(b->dz, n * n, t, dz);
	}
}
