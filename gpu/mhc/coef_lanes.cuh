/*
 * coef_lanes.cuh - the coefficients of a token of four streams by a warp
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Lane k has z of row k of phi. Latency bounds these functions.
 */
#ifndef HZI_GPU_MHC_COEF_LANES_CUH
#define HZI_GPU_MHC_COEF_LANES_CUH

#include "gpu/mhc/coef.cuh"

/* z of row k of phi from its sum; alpha and bias of that row, kept: the mean square of the token */
template <class PARAMS>
HZ_DEVICE float z_of_lanes(const PARAMS &p, float sum, float kept, float alpha, float bias)
{
	const float mean = kept + p.rule.rms_eps;
	float slope;

	if (kept < 0)
		sum *= wide_inverse(kept, p.rule.rms_eps);
	else
		sum = mean == 0 ? 0 : sum * rsqrtf(mean);
	return hzi_m_fma(alpha, hzi_mhc_input(&p.rule, sum, &slope), bias);
}

/*
 * Calls send() with what u is mixed by, then stores p and q of a token, if there is one: that of
 * each LANES lanes, whose lane k has z of row k.
 */
template <int LANES, class PARAMS, class SEND>
HZ_DEVICE void gates_of_lanes(const PARAMS &p, int64_t token, bool stores, float z, SEND send)
{
	const int lane = threadIdx.x % LANES;
	float of_p[4], gate[4], mixing[4], post;

#pragma unroll
	for (int i = 0; i < 4; i++)
		of_p[i] = __shfl_sync(0xffffffff, z, i, LANES);
	hzi_mhc_gates(4, &p.rule, of_p, gate);
#pragma unroll
	for (int i = 0; i < 4; i++)
		mixing[i] = p.p_in.data && stores ? *coef_at(p.p_in, token, i, 0) : gate[i];
	send(mixing[0], mixing[1], mixing[2], mixing[3]);
	if (p.p.data && stores && lane == 0) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			*coef_at(p.p, token, i, 0) = gate[i];
	}
	hzi_mhc_post_gates(1, &p.rule, &z, &post);
	if (p.q.data && stores && lane / 4 == 1)
		*coef_at(p.q, token, lane % 4, 0) = post;
}

/*
 * A half iteration over ROWS or columns: sums of k times `src`, plus eps times the sums of the
 * half iteration before the last; dst = the inverses of the sums times a common factor h. Instead
 * of a reciprocal, each inverse is the product of the other three sums times an approximation of 1
 * / (product of all four). The factor cancels in later half iterations, except in the term of eps:
 * `part` corrects it by the factors of the last two, h[1] and h[0].
 */
template <bool ROWS>
HZ_DEVICE void divide(const float *k, float eps, const float *src, float *sums, float *dst,
		      float (&h)[2])
{
	const float part = eps * hzi_m_inverse(h[0]) * h[1];
	float low, high, all, inverse;

#pragma unroll
	for (int j = 0; j < 4; j++) {
		float sum = k[ROWS ? j * 4 : j] * src[0];

#pragma unroll
		for (int i = 1; i < 4; i++)
			sum = fmaf(k[ROWS ? j * 4 + i : i * 4 + j], src[i], sum);
		sums[j] = fmaf(part, sums[j], sum);
	}
	low = sums[0] * sums[1];
	high = sums[2] * sums[3];
	all = low * high;
	/* Approximate reciprocal: subtracts the exponent, and with it the mantissa. */
	inverse = __uint_as_float(0x7ef311c7 - __float_as_uint(all));
	dst[0] = sums[1] * high * inverse;
	dst[1] = sums[0] * high * inverse;
	dst[2] = sums[3] * low * inverse;
	dst[3] = sums[2] * low * inverse;
	h[0] = h[1];
	h[1] = all * inverse;
}

/* Element (i, j) of hzi_mhc_sinkhorn() in lane i * 4 + j of each 16, which has that of z */
HZI_MHC_RARE float any_sinkhorn_of_lanes(const hzi_mhc_rule &rule, float z)
{
	hzi_mhc_rule by_columns = rule;
	float k[16], result = 0;

	by_columns.order = HZ_MHC_COLS;
#pragma unroll
	for (int e = 0; e < 16; e++)
		k[e] = __shfl_sync(0xffffffff, z, e, 16);
	hzi_mhc_sinkhorn(4, &by_columns, k, k);
#pragma unroll
	for (int e = 0; e < 16; e++) {
		float v = k[e];

		asm volatile("" : "+f"(v));	/* keeps v in a register: no indexed local memory */
		result = threadIdx.x % 16 == e ? v : result;
	}
	return result;
}

/*
 * hzi_mhc_sinkhorn() with lower latency. Lane i * 4 + j of each 16 has element (i, j) of z, and
 * returns that of the result. Every lane iterates on the whole matrix: a half iteration is a chain of
 * dependent operations, and four products have less latency than reciprocals or shuffles. Inputs
 * that might overflow, and infinities, take hzi_mhc_sinkhorn(), in a function of its own: inlined,
 * its copy of the rule precedes the test.
 */
HZ_DEVICE float sinkhorn_of_lanes(const hzi_mhc_rule &rule, float z)
{
	const int i = threadIdx.x / 4 % 4, j = threadIdx.x % 4;
	float k[16], r[4] = {1, 1, 1, 1}, c[4] = {1, 1, 1, 1}, h[2] = {1, 1};
	float of_r[4] = {1, 1, 1, 1}, of_c[4] = {1, 1, 1, 1};
	float own = fabsf(z) + rule.eps;

	if (rule.map != HZ_MHC_ABS) {
		float most = hzi_m_max(z, __shfl_xor_sync(0xffffffff, z, 4));

		most = hzi_m_max(most, __shfl_xor_sync(0xffffffff, most, 8));
		own = hzi_m_exp(z - most);
	}
	if (rule.map == HZ_MHC_SOFTMAX) {
		float sum = own + __shfl_xor_sync(0xffffffff, own, 4);

		sum += __shfl_xor_sync(0xffffffff, sum, 8);
		own = fmaf(own, hzi_m_inverse(sum), rule.eps);
	}
	/* Powers of two cancel: what matters is the ratio. Only ABS has numbers from 4 on. */
	if (__all_sync(0xffffffff, rule.map == HZ_MHC_ABS ? own > 0x1p-18f && own < 16
							  : own > 0x1p-20f && own < 4) &&
	    rule.eps < 0.5f && rule.iterations <= 64) {
#pragma unroll
		for (int e = 0; e < 16; e++)
			k[e] = __shfl_sync(0xffffffff, own, e, 16);
		for (int t = 0; t < rule.iterations; t++) {
			if (t > 0 || rule.map != HZ_MHC_SOFTMAX)
				divide<false>(k, rule.eps, r, of_c, c, h);
			divide<true>(k, rule.eps, c, of_r, r, h);
		}
#pragma unroll
		for (int e = 1; e < 4; e++) {
			of_r[0] = i == e ? of_r[e] : of_r[0];
			c[0] = j == e ? c[e] : c[0];
		}
		return hzi_m_inverse(of_r[0]) * own * c[0];
	}
	return any_sinkhorn_of_lanes(rule, z);
}

/* Whether k of the iteration is the transpose of z */
HZ_DEVICE bool is_transposed(const hzi_mhc_rule &rule)
{
	return rule.residual == HZ_MHC_SINKHORN && rule.order == HZ_MHC_ROWS;
}

/* The row of phi that makes the element of the matrix that a lane of 16 has */
HZ_DEVICE int row_of_lane(const hzi_mhc_rule &rule)
{
	const int i = threadIdx.x / 4 % 4, j = threadIdx.x % 4;

	return 8 + (is_transposed(rule) ? j * 4 + i : i * 4 + j);
}

/* Stores the matrix of a token of each 16 lanes, if there is one, from z of row_of_lane() */
template <class PARAMS>
HZ_DEVICE void matrix_of_lanes(const PARAMS &p, int64_t token, bool stores, float a)
{
	const int i = threadIdx.x / 4 % 4, j = threadIdx.x % 4;
	const bool swapped = is_transposed(p.rule) != ((p.rule.flags & HZ_MHC_OLD_NEW) != 0);

	if (p.rule.residual == HZ_MHC_SINKHORN)
		a = sinkhorn_of_lanes(p.rule, a);
	else if (p.rule.residual == HZ_MHC_IDENTITY)
		a = i == j;
	if (stores)
		*coef_at(p.a, token, swapped ? j : i, swapped ? i : j) = a;
}

#endif
