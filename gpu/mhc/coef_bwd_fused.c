/*
 * coef_bwd_fused.c - launchers of the gradients of four streams and of phi in one pass
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/launch.h"

#define OP "mhc_pre_bwd"

const char *hzi_cuda_mhc_coef_bwd_fused_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_pre_bwd_args *a = args;
	const char *const why = hzi_cuda_mhc_four_16bit_streams_unsupported(
		ctx, &a->s, a->rule.m, a->phi, HZI_MHC_BWD_FUSED_BYTES);

	if (why)
		return why;
	if (a->norm && a->du.data)
		return "u is normalized";
	if (a->rule.rms == HZ_MHC_RMS_STREAM)
		return "each stream has its own mean square";
	if (!a->dx.data && !a->dphi && !a->dgain)
		return "neither dx, dphi nor dgain is wanted";
	if (!hzi_cuda_mhc_has_tensor_map(&a->x, &a->s, 4) ||
	    !hzi_cuda_mhc_has_tensor_map(&a->dy, &a->s, 4) ||
	    !hzi_cuda_mhc_has_tensor_map(&a->dx, &a->s, 4) ||
	    !hzi_cuda_mhc_has_tensor_map(&a->du, &a->s, 1))
		return "x, dy, dx or du has no tensor map: rows overlap, are unaligned or too far "
		       "apart";
	return NULL;
}

int hzi_cuda_mhc_bwd_fused_splits(const struct hz_context *ctx, const struct hzi_mhc_shape *s)
{
	const int64_t slices = ceil_div(s->channels, HZI_MHC_BWD_FUSED_CHANNELS);
	const int64_t splits = min_of(hzi_cuda_device(ctx)->sms / slices,
				      ceil_div(s->tokens, HZI_MHC_BWD_FUSED_TILE));

	return splits < 1 ? 1 : (int)splits;
}

int64_t hzi_cuda_mhc_bwd_fused_records(const struct hzi_mhc_shape *s)
{
	return ceil_div(s->tokens, HZI_MHC_BWD_FUSED_TILE) * HZI_MHC_BWD_FUSED_RECORD;
}

int hzi_cuda_mhc_bwd_fused(struct hz_context *ctx, const struct hzi_mhc_pre_bwd_args *a,
			   const uint32_t *records, float *partial)
{
	const struct hzi_mhc_array none = {.data = NULL};
	struct hzi_mhc_bwd_fused p = {
		/* Only for dx; their other effects are in the records. */
		.du = a->dx.data ? a->du : none, .dy = a->dx.data ? a->dy : none, .dx = a->dx,
		.phi = a->phi, .gain = a->gain, .records = records, .partial = partial,
		.tokens = a->s.tokens, .channels = a->s.channels, .m = a->rule.m,
		.splits = hzi_cuda_mhc_bwd_fused_splits(ctx, &a->s), .accumulate = a->accumulate,
	};
	const struct hzi_launch launch = {
		.grid = {(unsigned)(ceil_div(p.channels, HZI_MHC_BWD_FUSED_CHANNELS) * p.splits)},
		.block = {HZI_MHC_BWD_FUSED_THREADS}, .shared_bytes = HZI_MHC_BWD_FUSED_BYTES,
		.early = true, .aligned = true,
	};
	const int kernel = a->s.dtype == HZ_F16 ? HZI_KERNEL_mhc_coef_bwd_fused_f16 :
						  HZI_KERNEL_mhc_coef_bwd_fused_bf16;

	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, OP, &p.x_map, &a->x, &a->s, 4,
					      HZI_MHC_BWD_FUSED_TILE, 1));
	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, OP, &p.dy_map, &p.dy, &a->s, 4,
					      HZI_MHC_BWD_FUSED_TILE, 1));
	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, OP, &p.dx_map, &a->dx, &a->s, 4,
					      HZI_MHC_BWD_FUSED_TILE, 1));
	HZ_CHECK(hzi_cuda_mhc_make_tensor_map(ctx, OP, &p.du_map, &p.du, &a->s, 1,
					      HZI_MHC_BWD_FUSED_TILE, 1));
	return hzi_cuda_launch(ctx, OP, kernel, &launch, &p, sizeof(p));
}
