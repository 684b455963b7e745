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

static bool is_aligned(const void *data, int dtype, int64_t distance)
{
	return (uintptr_t)data % 16 == 0 && distance * (int64_t)hz_dtype_size(dtype) % 16 == 0;
}

/* Splits of k that make about a block for each SM, each of at least 8 pieces of 32 steps */
static struct hzi_mhc_product_job product_of(const struct hz_context *ctx,
					     const struct hzi_mhc_product_args *a)
{
	const int64_t blocks = ceil_div(a->m, HZI_MHC_PRODUCT_TILE) *
			       ceil_div(a->n, HZI_MHC_PRODUCT_TILE);
	const int64_t pieces = a->k > 0 ? ceil_div(a->k, 32) : 1;
	const int64_t wanted = hzi_cuda_device(ctx)->sms / (blocks ? blocks : 1);
	const int64_t splits = wanted < pieces / 8 ? wanted : pieces / 8;
	const int64_t steps = ceil_div(pieces, splits > 1 ? splits : 1);

	return (struct hzi_mhc_product_job){
		.g = *a, .steps = steps * 32, .splits = (int32_t)ceil_div(pieces, steps),
		.a_aligned = is_aligned(a->a, HZ_F32, a->a_step == 1 ? a->a_row : a->a_step),
		.b_aligned = is_aligned(a->b, a->b_dtype, a->b_step == 1 ? a->b_row : a->b_step),
	};
}

size_t hzi_cuda_mhc_product_workspace(const struct hz_context *ctx,
				      const struct hzi_mhc_product_args *a)
{
	const int64_t splits = product_of(ctx, a).splits;

	return splits > 1 ? (size_t)(splits * a->m * a->n) * sizeof(float) : 0;
}

int hzi_cuda_mhc_product(struct hz_context *ctx, const struct hzi_mhc_product_args *a)
{
	static const char op[] = "mhc_product";
	struct hzi_mhc_product_job p = product_of(ctx, a);
	const int64_t blocks = ceil_div(a->m, HZI_MHC_PRODUCT_TILE) *
			       ceil_div(a->n, HZI_MHC_PRODUCT_TILE);

	p.partial = p.splits > 1 ? ctx->workspace : NULL;
	HZ_CHECK(hzi_cuda_mhc_launch(ctx, op, HZI_KERNEL_mhc_product, blocks * p.splits, 1,
				     HZI_MHC_PRODUCT_THREADS, HZI_MHC_PRODUCT_BYTES, &p,
				     sizeof(p)));
	if (p.splits == 1)
		return HZ_OK;
	return hzi_cuda_mhc_launch(ctx, op, HZI_KERNEL_mhc_product_sum,
				   ceil_div(a->m * a->n, HZI_MHC_GATED_THREADS), 1,
				   HZI_MHC_GATED_THREADS, 0, &p, sizeof(p));
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
