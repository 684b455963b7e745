/*
 * common.c - launches, alignment of operands and tensor maps for all of gpu/mhc
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/launch.h"
#include "gpu/mhc/mhc.h"

#define BLOCKS_MAX ((int64_t)0x7fffffff)	/* along x */

int hzi_cuda_mhc_check_blocks(struct hz_context *ctx, const char *op, int64_t x)
{
	if (x > BLOCKS_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: too many tokens for a GPU", op);
	return HZ_OK;
}

int hzi_cuda_mhc_launch(struct hz_context *ctx, const char *op, int kernel, int64_t x, int64_t y,
			int threads, size_t shared_bytes, const void *params, size_t params_bytes)
{
	const struct hzi_launch launch = {
		.grid = {(unsigned)x, (unsigned)y}, .block = {(unsigned)threads},
		.shared_bytes = (unsigned)shared_bytes, .early = true,
	};

	HZ_CHECK(hzi_cuda_mhc_check_blocks(ctx, op, x));
	return hzi_cuda_launch(ctx, op, kernel, &launch, params, params_bytes);
}

/* ---- Operands -------------------------------------------------------------------------------- */

bool hzi_cuda_mhc_is_aligned(const struct hzi_mhc_array *x, int dtype)
{
	const int64_t size = (int64_t)hz_dtype_size(dtype);

	return !x->data || (x->channel == 1 && (uintptr_t)x->data % 16 == 0 &&
			    x->token * size % 16 == 0 && x->stream * size % 16 == 0);
}

static bool is_small(int64_t n)
{
	return n > -(INT32_MAX / 16) && n < INT32_MAX / 16;
}

bool hzi_cuda_mhc_fits_int32(const struct hzi_mhc_array *x, int64_t tokens)
{
	return !x->data || (is_small(x->token) && is_small(x->stream) && is_small(tokens));
}

bool hzi_cuda_mhc_has_tensor_map(const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s,
				 int streams)
{
	return !x->data ||
		(hzi_cuda_mhc_is_aligned(x, s->dtype) && hzi_cuda_mhc_fits_int32(x, s->tokens) &&
			    x->token >= s->channels &&
			    (streams == 1 || x->stream >= s->channels));
}

int hzi_cuda_mhc_make_tensor_map(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
				 const struct hzi_mhc_array *x, const struct hzi_mhc_shape *s,
				 int streams, int box_tokens, int box_streams)
{
	if (!x->data)
		return HZ_OK;
	return hzi_cuda_tensor_map_3d(ctx, op, map, x->data, 2 * s->channels, s->tokens,
				      2 * x->token, streams,
				      2 * (streams > 1 ? x->stream : x->token), 128,
				      box_tokens, box_streams);
}

const char *hzi_cuda_mhc_four_streams_unsupported(const struct hzi_mhc_shape *s, int m,
						  const float *phi)
{
	if (s->n != 4)
		return "other than 4 streams";
	if (!phi || m > HZI_MHC_FOUR_ROWS)
		return "phi is NULL, or has more than 24 rows";
	if (s->tokens == 0 || s->groups != s->tokens)
		return "groups are not tokens, or there are none";
	if (s->channels == 0 || s->channels % 8 != 0)
		return "channels are not a multiple of 8";
	return NULL;
}

const char *hzi_cuda_mhc_rule_unsupported(const struct hzi_mhc_rule *rule)
{
	return hzi_mhc_is_common(rule) ? NULL :
	       "q_eps, z_min, z_max, eps_rule, rms or rms_eps_rule is set";
}

const char *hzi_cuda_mhc_four_16bit_streams_unsupported(const struct hz_context *ctx,
							const struct hzi_mhc_shape *s, int m,
							const float *phi, int shared_bytes)
{
	const char *const why = hzi_cuda_mhc_four_streams_unsupported(s, m, phi);

	if (why)
		return why;
	if (hzi_cuda_device(ctx)->shared_block_bytes < shared_bytes)
		return "too little shared memory";
	return s->dtype == HZ_F32 ? "streams are f32" : NULL;
}

const char *hzi_cuda_mhc_common_pre_unsupported(const struct hz_context *ctx,
						const struct hzi_mhc_pre_args *a, int shared_bytes)
{
	const char *const why = hzi_cuda_mhc_four_16bit_streams_unsupported(
		ctx, &a->s, a->rule.m, a->phi, shared_bytes);

	if (why || hzi_mhc_is_common(&a->rule))
		return why;
	return hzi_cuda_mhc_rule_unsupported(&a->rule);
}

int hzi_cuda_mhc_vector_kernel(const struct hzi_mhc_shape *s)
{
	static const int index[HZI_MHC_STREAMS + 1] = {-1, 2, 1, 3, 0, 4, 5, 6, 7};

	if (s->tokens == 0 || s->channels == 0 ||
	    s->channels * (int64_t)hz_dtype_size(s->dtype) % 16 != 0)
		return -1;
	return 3 * index[s->n] + hzi_cuda_mhc_type_index(s->dtype);
}

static bool is_float4(const struct hzi_mhc_coef *c, int n, bool matrix)
{
	return n == 4 && c->data && (uintptr_t)c->data % 16 == 0 && c->group % 4 == 0 &&
	       (matrix ? c->row == 4 && c->column == 1 : c->row == 1);
}

int hzi_cuda_mhc_float4_coefs(const struct hzi_mhc_coef *p, const struct hzi_mhc_coef *q,
			      const struct hzi_mhc_coef *a, int n)
{
	return (is_float4(p, n, false) ? HZI_MHC_P_FLOAT4 : 0) |
	       (is_float4(q, n, false) ? HZI_MHC_Q_FLOAT4 : 0) |
	       (is_float4(a, n, true) ? HZI_MHC_A_FLOAT4 : 0);
}

bool hzi_cuda_mhc_streams_innermost(const struct hzi_mhc_array *a, const struct hzi_mhc_shape *s)
{
	const int64_t bytes = s->n * (int64_t)hz_dtype_size(s->dtype);
	const int64_t size = bytes < 16 ? bytes : 16;

	return !a->data || (a->stream == 1 && a->channel % s->n == 0 && a->token % s->n == 0 &&
			    (uintptr_t)a->data % (uintptr_t)size == 0 &&
			    (s->n == 2 || s->n == 4 || s->n == 8));
}
