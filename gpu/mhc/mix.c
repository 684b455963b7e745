/*
 * mix.c - launchers of the mixing of streams, and of chains of layers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/launch.h"
#include "gpu/mhc/mhc.h"

#define OP "mhc_streams"
#define CHAIN_OP "mhc_recompute"

/*
 * log2 of the threads of a token that has `vectors` vectors: the largest of 128, 64 and 32 that
 * leaves at most a sixteenth of them idle, but no more threads than vectors, rounded up
 */
static int lanes_for(int64_t vectors)
{
	int log2;

	for (log2 = 7; log2 > 5; log2--) {
		const int64_t lanes = (int64_t)1 << log2;

		if ((ceil_div(vectors, lanes) * lanes - vectors) * 16 <= vectors)
			break;
	}
	while (log2 > 0 && (int64_t)1 << (log2 - 1) >= vectors)
		log2--;
	return log2;
}

/* ---- Streams --------------------------------------------------------------------------------- */

static struct hzi_mhc_streams_job job_of(const struct hzi_mhc_streams_args *a)
{
	struct hzi_mhc_streams_job p = {.a = *a, .per = hzi_cuda_mhc_tokens_per_group(&a->s)};

	if (!a->x.data)
		p.a.a.data = NULL;
	p.terms = (a->u.data ? HZI_TERM_U : 0) |
		  (!a->y.data ? 0 : p.a.a.data ? HZI_TERM_MIX : HZI_TERM_ADD);
	return p;
}

const char *hzi_cuda_mhc_mix_vectorized_unsupported(const struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_streams_args *a = args;
	const int dtype = a->s.dtype;
	const bool mixed = a->y.data && a->x.data && a->a.data;

	(void)ctx;
	if (hzi_cuda_mhc_vector_kernel(&a->s) < 0)
		return "rows of channels are not whole 16-byte vectors";
	if (a->u.data && (!a->x.data || (a->y.data && !mixed)))
		return "u without x, or with streams that no matrix mixes";
	if (!hzi_cuda_mhc_is_aligned(&a->x, dtype) || !hzi_cuda_mhc_is_aligned(&a->f, dtype) ||
	    !hzi_cuda_mhc_is_aligned(&a->u, dtype) || !hzi_cuda_mhc_is_aligned(&a->y, dtype))
		return "rows of x, f, u or y are not contiguous and 16-byte aligned";
	/* streams_by_rows() keeps the coefficients of one token per warp in shared memory. */
	if (mixed && a->s.n != 4 && a->s.n != 2 &&
	    a->s.channels * (int64_t)hz_dtype_size(dtype) <= 16 * 16)
		return "at most 256 bytes of channels, of other than 2 or 4 mixed streams";
	return NULL;
}

int hzi_cuda_mhc_mix_vectorized(struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_streams_args *a = args;
	struct hzi_mhc_streams_job p = job_of(a);
	const int first = p.terms & HZI_TERM_MIX ? HZI_KERNEL_mhc_mix_matrix_f32_4 :
						   HZI_KERNEL_mhc_mix_gates_f32_4;

	p.vectors = a->s.channels * (int64_t)hz_dtype_size(a->s.dtype) / 16;
	p.layout = hzi_cuda_mhc_float4_coefs(&p.a.p, &p.a.q, &p.a.a, a->s.n);
	p.lanes_log2 = lanes_for(p.vectors);
	p.tiles = (int32_t)ceil_div(p.vectors, (int64_t)1 << p.lanes_log2);
	return hzi_cuda_mhc_launch(ctx, OP, first + hzi_cuda_mhc_vector_kernel(&a->s),
			      p.tiles * ceil_div(a->s.tokens, HZI_MHC_THREADS >> p.lanes_log2), 1,
				   HZI_MHC_THREADS, 0, &p, sizeof(p));
}

int hzi_cuda_mhc_mix_strided(struct hz_context *ctx, const void *args)
{
	const struct hzi_mhc_streams_args *a = args;
	struct hzi_mhc_streams_job p = job_of(a);

	if (a->s.tokens == 0 || a->s.channels == 0)
		return HZ_OK;
	p.layout = hzi_cuda_mhc_streams_innermost(&a->x, &a->s) &&
		   hzi_cuda_mhc_streams_innermost(&a->y, &a->s);
	p.lanes_log2 = lanes_for(ceil_div(a->s.channels, HZI_MHC_STRIDED_CHANNELS));
	p.tiles =
		(int32_t)ceil_div(a->s.channels, (int64_t)HZI_MHC_STRIDED_CHANNELS << p.lanes_log2);
	return hzi_cuda_mhc_launch(ctx, OP, HZI_KERNEL_mhc_mix_strided,
			      p.tiles * ceil_div(a->s.tokens, HZI_MHC_THREADS >> p.lanes_log2), 1,
				   HZI_MHC_THREADS, 0, &p, sizeof(p));
}

int hzi_cuda_mhc_mix(struct hz_context *ctx, const struct hzi_mhc_streams_args *a)
{
	return hzi_cuda_mhc_mix_vectorized_unsupported(ctx, a) ?
		       hzi_cuda_mhc_mix_strided(ctx, a) : hzi_cuda_mhc_mix_vectorized(ctx, a);
}

/* ---- Chains of layers ------------------------------------------------------------------------ */

/* True if an array has the strides of those of the layers before; the first array sets them. */
static bool same_strides(struct hzi_mhc_array *known, const struct hzi_mhc_array *a)
{
	if (!a->data)
		return true;
	if (!known->data)
		*known = *a;
	return known->token == a->token && known->stream == a->stream &&
	       known->channel == a->channel;
}

static bool same_coef_strides(struct hzi_mhc_coef *known, const struct hzi_mhc_coef *c)
{
	if (!c->data)
		return true;
	if (!known->data)
		*known = *c;
	return known->group == c->group && known->row == c->row && known->column == c->column;
}

/* Adds a layer, if its strides are those of the layers before. */
static bool add_layer(struct hzi_mhc_chain_job *p, const struct hzi_mhc_layer_args *l)
{
	struct hzi_mhc_chain_job q = *p;

	if (!same_coef_strides(&q.p, &l->p) || !same_coef_strides(&q.q, &l->q) ||
	    !same_coef_strides(&q.a, &l->a) || !same_strides(&q.f, &l->f) ||
	    !same_strides(&q.u, &l->u) || !same_strides(&q.y, &l->y))
		return false;
	*p = q;
	p->layer[p->layers].p = l->p.data;
	p->layer[p->layers].q = l->q.data;
	p->layer[p->layers].a = l->a.data;
	p->layer[p->layers].bias = l->bias;
	p->layer[p->layers].f = l->f.data;
	p->layer[p->layers].u = l->u.data;
	p->layer[p->layers].y = l->y.data;
	p->layers++;
	return true;
}

static bool is_vectorized(const struct hzi_mhc_chain_job *p)
{
	const int dtype = p->s.dtype;

	if (hzi_cuda_mhc_vector_kernel(&p->s) < 0 || !hzi_cuda_mhc_is_aligned(&p->x, dtype) ||
	    !hzi_cuda_mhc_is_aligned(&p->f, dtype) || !hzi_cuda_mhc_is_aligned(&p->u, dtype) ||
	    !hzi_cuda_mhc_is_aligned(&p->y, dtype))
		return false;
	for (int l = 0; l < p->layers; l++) {
		if (((uintptr_t)p->layer[l].f | (uintptr_t)p->layer[l].u |
		     (uintptr_t)p->layer[l].y) % 16 != 0)
			return false;
	}
	return true;
}

static int launch_chain(struct hz_context *ctx, struct hzi_mhc_chain_job *p, bool vectors)
{
	int64_t threads = p->s.tokens * p->s.channels;

	vectors = vectors && is_vectorized(p);
	p->layout = hzi_cuda_mhc_float4_coefs(&p->p, &p->q, &p->a, p->s.n);
	for (int l = 0; l < p->layers; l++) {
		if (((uintptr_t)p->layer[l].p | (uintptr_t)p->layer[l].q |
		     (uintptr_t)p->layer[l].a) % 16 != 0)
			p->layout = 0;
	}
	if (vectors) {
		p->vectors = p->s.channels * (int64_t)hz_dtype_size(p->s.dtype) / 16;
		threads = p->s.tokens * p->vectors;
	}
	return hzi_cuda_mhc_launch(ctx, CHAIN_OP,
				   !vectors ? HZI_KERNEL_mhc_recompute_strided :
				   p->s.n == 4 ? HZI_KERNEL_mhc_recompute_4 :
				   p->s.n < 4 ? HZI_KERNEL_mhc_recompute_1_3 :
				   HZI_KERNEL_mhc_recompute_5_8,
				   ceil_div(threads, HZI_MHC_THREADS), 1, HZI_MHC_THREADS, 0, p,
				   sizeof(*p));
}

/*
 * Collects the layers of one launch: from `first` on, as long as strides are equal. They start from
 * the streams that the layer before `first` stored. Returns the index of the first layer of the
 * next launch.
 */
static int layers_of_launch(const struct hzi_mhc_recompute_args *a, int first,
			    struct hzi_mhc_chain_job *p)
{
	int l = first;

	*p = (struct hzi_mhc_chain_job){
		.s = a->s, .x = first ? a->layer[first - 1].y : a->x,
		.per = hzi_cuda_mhc_tokens_per_group(&a->s),
	};
	while (l < a->layers && add_layer(p, &a->layer[l]))
		l++;
	return l;
}

static int recompute(struct hz_context *ctx, const struct hzi_mhc_recompute_args *a, bool vectors)
{
	struct hzi_mhc_chain_job p;

	if (a->s.tokens == 0 || a->s.channels == 0)
		return HZ_OK;
	/* Checks everything first: a call that fails leaves all streams unchanged. */
	for (int l = layers_of_launch(a, 0, &p); l < a->layers; l = layers_of_launch(a, l, &p)) {
		if (!a->layer[l - 1].y.data)
			return hzi_fail(ctx, HZ_ENOTSUP,
					"%s: block[%d] has other strides than those before it: on "
					"a GPU block[%d].y has to be there", CHAIN_OP, l, l - 1);
	}
	for (int l = 0; l < a->layers;) {
		l = layers_of_launch(a, l, &p);
		HZ_CHECK(launch_chain(ctx, &p, vectors));
	}
	return HZ_OK;
}

/* Layers with unaligned rows have a launch of their own, of the strided kernel. */
const char *hzi_cuda_mhc_recompute_vectorized_unsupported(const struct hz_context *ctx,
							  const void *args)
{
	const struct hzi_mhc_recompute_args *a = args;

	(void)ctx;
	return hzi_cuda_mhc_vector_kernel(&a->s) < 0 ?
		       "rows of channels are not whole 16-byte vectors" : NULL;
}

int hzi_cuda_mhc_recompute_vectorized(struct hz_context *ctx, const void *args)
{
	return recompute(ctx, args, true);
}

int hzi_cuda_mhc_recompute_strided(struct hz_context *ctx, const void *args)
{
	return recompute(ctx, args, false);
}
