/*
 * mix_bwd.c - launchers of the gradients of mixed streams
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/launch.h"
#include "gpu/mhc/mhc.h"

#define OP "mhc_streams_bwd"
#define CHUNK_BLOCKS 8192	/* of 32768 tokens: on an H200 4 % faster than 2048 */
#define BIAS_BLOCKS 2048	/* of dbias, about */

static size_t padded(int64_t bytes)
{
	return ((size_t)bytes + 255) & ~(size_t)255;
}

/*
 * Tokens that a block adds up. It depends on sizes only, so that the bits of sums do not depend on
 * the GPU.
 */
static int64_t chunk_of(const struct hzi_mhc_shape *s)
{
	const int64_t per = hzi_cuda_mhc_tokens_per_group(s);
	const int64_t chunk = ceil_div(s->tokens, CHUNK_BLOCKS);

	return chunk < 4 ? (per < 4 ? per : 4) : chunk < per ? chunk : per;
}

static int64_t chunks_of(const struct hzi_mhc_shape *s)
{
	const int64_t per = hzi_cuda_mhc_tokens_per_group(s), chunk = chunk_of(s);

	return per > 1 ? ceil_div(per, chunk) : 1;
}

static int64_t bias_chunks(const struct hzi_mhc_shape *s)
{
	const int64_t columns = ceil_div(s->channels, 2 * HZI_MHC_DBIAS_LANES);
	const int64_t want = columns < BIAS_BLOCKS ? BIAS_BLOCKS / (columns + 1) + 1 : 1;
	const int64_t most = s->tokens / 64 + 1;

	return want < most ? want : most;
}

static size_t sums_bytes(const struct hzi_mhc_streams_bwd_args *a)
{
	const int64_t chunks = chunks_of(&a->s), n = a->s.n;

	if (chunks == 1 || !(a->dp.data || a->dq.data || a->da.data))
		return 0;
	return padded(a->s.groups * chunks * (n * n + 2 * n) * 4);
}

size_t hzi_cuda_mhc_mix_bwd_workspace(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_streams_bwd_args *a = args;

	(void)ctx;
	return sums_bytes(a) + (a->dbias ? padded(bias_chunks(&a->s) * a->s.channels * 4) : 0);
}

static int bias_gradient(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a)
{
	struct hzi_mhc_dbias_job p = {
		.s = a->s, .dy = a->dy, .q = a->q, .per = hzi_cuda_mhc_tokens_per_group(&a->s),
		.chunks = bias_chunks(&a->s), .dbias = a->dbias, .accumulate = a->accumulate,
		.partial = (float *)((char *)ctx->workspace + sums_bytes(a)),
	};
	const int bytes = (int)hz_dtype_size(a->s.dtype);

	p.chunk = ceil_div(a->s.tokens, p.chunks);
	p.vectors = a->s.channels * bytes % 16 == 0 && hzi_cuda_mhc_is_aligned(&a->dy, a->s.dtype);
	HZ_CHECK(hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_mix_bwd_dbias,
				     ceil_div(a->s.channels,
					      HZI_MHC_DBIAS_LANES * (p.vectors ? 16 / bytes : 1)),
				     p.chunks, HZI_MHC_THREADS, 0, &p, sizeof(p)));
	return hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_mix_bwd_dbias_finish,
			      ceil_div(a->s.channels, HZI_MHC_THREADS), 1, HZI_MHC_THREADS, 0, &p,
				   sizeof(p));
}

static bool same_array(const struct hzi_mhc_array *a, const struct hzi_mhc_array *b)
{
	return a->data == b->data && a->token == b->token && a->stream == b->stream &&
	       a->channel == b->channel;
}

/*
 * Terms of the vectorized kernel for a call: u; mixed streams and u; mixed streams and f; unmixed
 * streams and f. Operands of these terms that the call does not have are not read. 0: another
 * combination.
 */
static int vector_terms(const struct hzi_mhc_streams_bwd_args *a)
{
	const bool dx_of_dy = a->dx.data && a->dy.data;
	const bool mixed = a->da.data || (dx_of_dy && a->a.data);
	const bool u = a->dp.data || (a->dx.data && a->du.data), f = a->df.data || a->dq.data;

	if ((a->dx.data && a->accumulate) || (mixed && dx_of_dy && !a->a.data))
		return 0;
	if (mixed)
		return u && f ? 0 : HZI_TERM_MIX | (u ? HZI_TERM_U : HZI_TERM_F);
	if (u)
		return f || dx_of_dy ? 0 : HZI_TERM_U;
	return a->dy.data ? HZI_TERM_ADD | HZI_TERM_F : 0;
}

/* Drops operands that no wanted result needs: x without dp and da; dx if it is dy already. */
static struct hzi_mhc_streams_bwd_args reduced(const struct hzi_mhc_streams_bwd_args *a)
{
	struct hzi_mhc_streams_bwd_args r = *a;

	if (!a->da.data && !a->dp.data)
		r.x.data = NULL;
	if (!a->a.data && !a->du.data && !a->accumulate && same_array(&a->dx, &a->dy))
		r.dx.data = NULL;
	return r;
}

const char *hzi_cuda_mhc_mix_bwd_vectorized_unsupported(const struct hz_context *ctx,
							const void *args)
{
	const struct hzi_mhc_streams_bwd_args a = reduced(args);
	const int dtype = a.s.dtype;

	(void)ctx;
	if (hzi_cuda_mhc_vector_kernel(&a.s) < 0)
		return "rows of channels are not whole 16-byte vectors";
	if (!vector_terms(&a))
		return "no vectorized kernel has these gradients, or dx is accumulated";
	if (!hzi_cuda_mhc_is_aligned(&a.x, dtype) || !hzi_cuda_mhc_is_aligned(&a.f, dtype) ||
	    !hzi_cuda_mhc_is_aligned(&a.du, dtype) || !hzi_cuda_mhc_is_aligned(&a.dy, dtype) ||
	    !hzi_cuda_mhc_is_aligned(&a.dx, dtype) || !hzi_cuda_mhc_is_aligned(&a.df, dtype))
		return "rows of x, f, du, dy, dx or df are not contiguous and 16-byte aligned";
	return NULL;
}

/* Whether the gradients of a and p of more than 4 streams of 16 bits are all that is wanted */
static bool is_products(const struct hzi_mhc_streams_bwd_args *a)
{
	return a->da.data && !a->dx.data && !a->df.data && !a->dq.data && a->s.n > 4 &&
	       a->s.dtype != HZ_F32 && a->s.groups == a->s.tokens;
}

static int gradients(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a, bool vectors)
{
	struct hzi_mhc_streams_bwd_job p = {
		.a = reduced(a), .per = hzi_cuda_mhc_tokens_per_group(&a->s),
		.chunk = chunk_of(&a->s), .chunks = chunks_of(&a->s), .partial = ctx->workspace,
		.sums = a->dp.data || a->dq.data || a->da.data,
	};
	const int n = a->s.n;
	const bool any = a->s.groups > 0 && (p.sums || p.a.dx.data || a->df.data);
	int kernel = HZI_KERNEL_mhc_mix_bwd_strided, per_block = 1, count;
	int64_t blocks;

	if (vectors) {
		p.terms = vector_terms(&p.a);
		kernel = (p.terms & HZI_TERM_MIX ? HZI_KERNEL_mhc_mix_bwd_matrix_f32_4 :
			  HZI_KERNEL_mhc_mix_bwd_gates_f32_4) +
			 hzi_cuda_mhc_vector_kernel(&a->s);
		p.vectors = a->s.channels * (int64_t)hz_dtype_size(a->s.dtype) / 16;
		p.layout = hzi_cuda_mhc_float4_coefs(&a->p, &a->q, &a->a, n);
		p.lanes_log2 = p.vectors > 64 ? 7 : p.vectors > 32 ? 6 : 5;
		per_block = HZI_MHC_BWD_THREADS >> p.lanes_log2;
	} else {
		p.terms = (a->dp.data ? HZI_TERM_U : 0) | (a->dq.data ? HZI_TERM_F : 0) |
			  (a->da.data ? HZI_TERM_MIX : 0);
		p.layout = hzi_cuda_mhc_streams_innermost(&p.a.x, &a->s) &&
			   hzi_cuda_mhc_streams_innermost(&a->dy, &a->s) &&
			   hzi_cuda_mhc_streams_innermost(&p.a.dx, &a->s);
	}
	blocks = p.per == 1 ? ceil_div(a->s.tokens, per_block) : a->s.groups * p.chunks;
	/* Before any launch: dbias comes first, since the other kernels may overwrite dy. */
	if (any)
		HZ_CHECK(hzi_cuda_mhc_check_blocks(ctx, OP, blocks));
	if (a->dbias && a->s.channels > 0)
		HZ_CHECK(bias_gradient(ctx, a));
	if (!any)
		return HZ_OK;
	if (vectors && is_products(&p.a))
		return hzi_cuda_mhc_token_products(ctx, &p.a);
	HZ_CHECK(hzi_cuda_mhc_launch(ctx, OP, kernel, blocks, 1, HZI_MHC_BWD_THREADS, 0, &p,
				     sizeof(p)));
	if (!p.sums || p.chunks == 1)
		return HZ_OK;
	count = (p.terms & HZI_TERM_U ? n : 0) + (p.terms & HZI_TERM_F ? n : 0) +
		(p.terms & HZI_TERM_MIX ? n * n : 0);
	return hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_mix_bwd_sums_finish, a->s.groups * count,
				   1, HZI_MHC_BWD_THREADS, 0, &p, sizeof(p));
}

int hzi_cuda_mhc_mix_bwd_vectorized(struct hz_context *ctx, const void *args)
{
	return gradients(ctx, args, true);
}

int hzi_cuda_mhc_mix_bwd_strided(struct hz_context *ctx, const void *args)
{
	return gradients(ctx, args, false);
}

int hzi_cuda_mhc_mix_bwd(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a)
{
	return gradients(ctx, a, !hzi_cuda_mhc_mix_bwd_vectorized_unsupported(ctx, a));
}
