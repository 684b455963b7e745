/*
 * gated.c - launchers of the kernels of gated.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/gated.h"
#include "gpu/mhc/launch.h"

static bool is_empty(const struct hzi_mhc_shape *s)
{
	return s->tokens == 0 || s->channels == 0;
}

HZI_NO_WORKSPACE(cuda, mhc_divide)

int hzi_cuda_mhc_divide(struct hz_context *ctx, const struct hzi_mhc_divide_args *a)
{
	if (is_empty(&a->s))
		return HZ_OK;
	return hzi_cuda_mhc_launch(ctx, "mhc_divide", HZI_KERNEL_mhc_divide,
				   a->s.tokens * a->s.n, 1, HZI_MHC_GATED_THREADS, 0, a,
				   sizeof(*a));
}

HZI_NO_WORKSPACE(cuda, mhc_divide_bwd)

int hzi_cuda_mhc_divide_bwd(struct hz_context *ctx, const struct hzi_mhc_divide_bwd_args *a)
{
	static const char op[] = "mhc_divide_bwd";
	const int64_t columns = a->s.n * a->s.channels;

	if (a->dgain && columns > 0)
		HZ_CHECK(hzi_cuda_mhc_launch(ctx, op, HZI_KERNEL_mhc_dgain,
					     ceil_div(columns, HZI_MHC_GATED_COLUMNS), 1, 256, 0, a,
					     sizeof(*a)));
	if (is_empty(&a->s) || !a->dx.data)
		return HZ_OK;
	return hzi_cuda_mhc_launch(ctx, op, HZI_KERNEL_mhc_divide_bwd, a->s.tokens * a->s.n, 1,
				   HZI_MHC_GATED_THREADS, 0, a, sizeof(*a));
}

HZI_NO_WORKSPACE(cuda, mhc_product)

int hzi_cuda_mhc_product(struct hz_context *ctx, const struct hzi_mhc_product_args *a)
{
	return hzi_cuda_mhc_launch(ctx, "mhc_product", HZI_KERNEL_mhc_product,
				   ceil_div(a->m, HZI_MHC_PRODUCT_ROWS) *
				   ceil_div(a->n, HZI_MHC_PRODUCT_COLUMNS), 1,
				   HZI_MHC_PRODUCT_THREADS, 0, a, sizeof(*a));
}

HZI_NO_WORKSPACE(cuda, mhc_hidden)

int hzi_cuda_mhc_hidden(struct hz_context *ctx, const struct hzi_mhc_hidden_args *a)
{
	if (a->tokens == 0)
		return HZ_OK;
	return hzi_cuda_mhc_launch(ctx, "mhc_hidden", HZI_KERNEL_mhc_hidden, a->tokens, 1,
				   HZI_MHC_GATED_THREADS, 0, a, sizeof(*a));
}

HZI_NO_WORKSPACE(cuda, mhc_gate)

int hzi_cuda_mhc_gate(struct hz_context *ctx, const struct hzi_mhc_gate_args *a)
{
	if (is_empty(&a->s))
		return HZ_OK;
	return hzi_cuda_mhc_launch(ctx, "mhc_gate", HZI_KERNEL_mhc_gate,
				   ceil_div(a->s.tokens * a->s.channels, HZI_MHC_GATED_THREADS), 1,
				   HZI_MHC_GATED_THREADS, 0, a, sizeof(*a));
}
