/*
 * gated_hidden.cuh - roots of streams by a warp a token, sums of slices of the products by them
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_GATED_HIDDEN_CUH
#define HZI_GPU_MHC_GATED_HIDDEN_CUH

#include "gpu/mhc/gated_tile.cuh"
#include "gpu/mhc/gated_wgmma.h"

/*
 * The root of stream `lane` of a token, and its slope; a warp. From x where its mean square leaves
 * f32: see square_scale().
 */
HZ_DEVICE float root_of_lane(const hzi_mhc_gated_job &p, int64_t t, float *squares,
			     float &slope)
{
	const hzi_mhc_gated_args &a = p.a;
	const int lane = threadIdx.x % 32;
	float own = 0;

	for (int s = lane; s < p.slices; s += 32)
		squares[s] = p.squares[s * a.s.tokens + t];
	__syncwarp();
	for (int s = 0; lane < a.s.n && s < p.stream_slices; s++)
		own += squares[lane * p.stream_slices + s];
	own /= (float)a.s.channels;

	uint32_t wide = __ballot_sync(0xffffffff, lane < a.s.n &&
				      hzi_mhc_leaves_f32(own, hzi_mhc_least_square(&a.rule)));

	for (; wide; wide &= wide - 1) {
		const int i = __ffs(wide) - 1;
		const float scale = square_scale(__shfl_sync(0xffffffff, own, i));
		float sum = 0;

		for (int64_t c = lane; c < a.s.channels; c += 32) {
			const float v = scale *
					load_value(a.s.dtype, a.x.data, offset(a.x, t, i, c));

			sum = fmaf(v, v, sum);
		}
		sum = -sqrtf(warp_sum(sum) / (float)a.s.channels) / scale;
		own = lane == i ? sum : own;
	}
	return roots_of(a.rule, own, slope);
}

HZ_DEVICE float4 add_scaled(const float4 &to, float factor, const float4 &v)
{
	return {fmaf(factor, v.x, to.x), fmaf(factor, v.y, to.y), fmaf(factor, v.z, to.z),
		fmaf(factor, v.w, to.w)};
}

#endif
