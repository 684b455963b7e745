/*
 * mhc.c - launchers of streams of hyper-connections, their gradients, Sinkhorn's iteration
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/mhc/mhc.h"
#include "gpu/mhc/coef_launch.h"
#include "lib/mhc/mhc_math.h"

#define BLOCKS_MAX ((int64_t)0x7fffffff)	/* along x */
#define CHUNK_BLOCKS 8192	/* of sums over tokens: 4 of 32768, 4 % faster than 16 on an H200 */
#define BIAS_BLOCKS 2048	/* of dbias, about */

static const char streams_name[] = "mhc_streams", bwd_name[] = "mhc_streams_bwd",
		  chain_name[] = "mhc_recompute";

static size_t padded(int64_t bytes)
{
	return ((size_t)bytes + 255) & ~(size_t)255;
}

static int check_blocks(struct hz_context *ctx, const char *op, int64_t x)
{
	if (x > BLOCKS_MAX)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: too many tokens for a GPU", op);
	return HZ_OK;
}

int hzi_mhc_launch(struct hz_context *ctx, const char *op, int kernel, int64_t x, int64_t y,
		   int threads, size_t shared_bytes, const void *params, size_t params_bytes)
{
	const struct hzi_launch launch = {
		.grid = {(unsigned)x, (unsigned)y}, .block = {(unsigned)threads},
		.shared_bytes = (unsigned)shared_bytes, .early = true,
	};

	HZ_CHECK(check_blocks(ctx, op, x));
	return hzi_cuda_launch(ctx, op, kernel, &launch, params, params_bytes);
}

/* ---- Which operands are rows of 16-byte vectors ---------------------------------------------- */

static bool in_vectors(const struct hzi_mhc_array *a, int bytes)
{
	return !a->data || (a->channel == 1 && (uintptr_t)a->data % 16 == 0 &&
			    a->token * bytes % 16 == 0 && a->stream * bytes % 16 == 0);
}

/* Such rows' kernel after the first, -1 if they are none */
static int vector_kernel(const struct hzi_mhc_shape *s)
{
	static const int place[HZI_MHC_STREAMS + 1] = {-1, 2, 1, 3, 0, 4, 5, 6, 7};
	const int type = s->dtype == HZ_F32 ? 0 : s->dtype == HZ_F16 ? 1 : 2;

	if (s->tokens == 0 || s->channels == 0 ||
	    s->channels * (int64_t)hz_dtype_size(s->dtype) % 16 != 0)
		return -1;
	return type + 3 * place[s->n];
}

static bool whole(const struct hzi_mhc_coef *c, int n, bool matrix)
{
	return n == 4 && c->data && (uintptr_t)c->data % 16 == 0 && c->group % 4 == 0 &&
	       (matrix ? c->row == 4 && c->column == 1 : c->row == 1);
}

static int wholes(const struct hzi_mhc_coef *p, const struct hzi_mhc_coef *q,
		  const struct hzi_mhc_coef *a, int n)
{
	return (whole(p, n, false) ? HZI_MHC_P_WHOLE : 0) |
	       (whole(q, n, false) ? HZI_MHC_Q_WHOLE : 0) |
	       (whole(a, n, true) ? HZI_MHC_A_WHOLE : 0);
}

/* Whether streams of a channel lie next to each other, as one aligned vector or two */
static bool together(const struct hzi_mhc_array *a, const struct hzi_mhc_shape *s)
{
	const int64_t bytes = s->n * (int64_t)hz_dtype_size(s->dtype);
	const int64_t size = bytes < 16 ? bytes : 16;

	return !a->data || (a->stream == 1 && a->channel % s->n == 0 && a->token % s->n == 0 &&
			    (uintptr_t)a->data % (uintptr_t)size == 0 &&
			    (s->n == 2 || s->n == 4 || s->n == 8));
}

static int64_t tokens_per_group(const struct hzi_mhc_shape *s)
{
	return s->groups > 0 ? s->tokens / s->groups : 0;
}

/*
 * Threads of a token that has so much for them to do: the most of which a sixteenth or less have
 * nothing, or 32, but no more than that
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

size_t hzi_cuda_mhc_streams_workspace(const struct hz_context *ctx,
				      const struct hzi_mhc_streams_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_mhc_streams(struct hz_context *ctx, const struct hzi_mhc_streams_args *a)
{
	const int bytes = (int)hz_dtype_size(a->s.dtype);
	const int64_t total = a->s.tokens * a->s.channels;
	struct hzi_mhc_streams_job p = {.a = *a, .per = tokens_per_group(&a->s)};
	int kernel = vector_kernel(&a->s);

	if (total == 0)
		return HZ_OK;
	if (!a->x.data)
		p.a.a.data = NULL;
	p.kind = (a->u.data ? HZI_TERM_U : 0) |
		 (!a->y.data ? 0 : p.a.a.data ? HZI_TERM_MIX : HZI_TERM_ADD);
	if (kernel < 0 || (p.kind & HZI_TERM_U && (p.kind & HZI_TERM_ADD || !a->x.data)) ||
	    !in_vectors(&a->x, bytes) || !in_vectors(&a->f, bytes) || !in_vectors(&a->u, bytes) ||
	    !in_vectors(&a->y, bytes) ||
	    (kernel >= 6 && p.kind & HZI_TERM_MIX && lanes_for(a->s.channels * bytes / 16) < 5)) {
		p.whole = together(&a->x, &a->s) && together(&a->y, &a->s);
		p.lanes_log2 = lanes_for(ceil_div(a->s.channels, HZI_MHC_ANY));
		p.tiles = (int32_t)ceil_div(a->s.channels, (int64_t)HZI_MHC_ANY << p.lanes_log2);
		return hzi_mhc_launch(ctx, streams_name, HZI_KERNEL_mhc_streams_any,
				      p.tiles * ceil_div(a->s.tokens,
							 HZI_MHC_THREADS >> p.lanes_log2),
				      1, HZI_MHC_THREADS, 0, &p, sizeof(p));
	}
	p.vectors = a->s.channels * bytes / 16;
	p.whole = wholes(&p.a.p, &p.a.q, &p.a.a, a->s.n);
	p.lanes_log2 = lanes_for(p.vectors);
	p.tiles = (int32_t)ceil_div(p.vectors, (int64_t)1 << p.lanes_log2);
	kernel += p.kind & HZI_TERM_MIX ? HZI_KERNEL_mhc_streams_mixed_f32_4 :
					  HZI_KERNEL_mhc_streams_plain_f32_4;
	return hzi_mhc_launch(ctx, streams_name, kernel,
			      p.tiles * ceil_div(a->s.tokens, HZI_MHC_THREADS >> p.lanes_log2), 1,
			      HZI_MHC_THREADS, 0, &p, sizeof(p));
}

/* ---- Their gradients ------------------------------------------------------------------------- */

/* Tokens that a block adds up: depends on nothing but sizes, and so do the sums' bits */
static int64_t chunk_of(const struct hzi_mhc_shape *s)
{
	const int64_t per = tokens_per_group(s);
	const int64_t chunk = ceil_div(s->tokens, CHUNK_BLOCKS);

	return chunk < 4 ? (per < 4 ? per : 4) : chunk < per ? chunk : per;
}

static int64_t chunks_of(const struct hzi_mhc_shape *s)
{
	const int64_t per = tokens_per_group(s), chunk = chunk_of(s);

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

size_t hzi_cuda_mhc_streams_bwd_workspace(const struct hz_context *ctx,
					  const struct hzi_mhc_streams_bwd_args *a)
{
	(void)ctx;
	return sums_bytes(a) + (a->dbias ? padded(bias_chunks(&a->s) * a->s.channels * 4) : 0);
}

static int bias_gradient(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a)
{
	struct hzi_mhc_dbias_job p = {
		.s = a->s, .dy = a->dy, .q = a->q, .per = tokens_per_group(&a->s),
		.chunks = bias_chunks(&a->s), .dbias = a->dbias, .accumulate = a->accumulate,
		.partial = (float *)((char *)ctx->workspace + sums_bytes(a)),
	};
	const int bytes = (int)hz_dtype_size(a->s.dtype);

	p.chunk = ceil_div(a->s.tokens, p.chunks);
	p.vectors = a->s.channels * bytes % 16 == 0 && in_vectors(&a->dy, bytes);
	HZ_CHECK(hzi_mhc_launch(ctx, bwd_name, HZI_KERNEL_mhc_dbias,
				ceil_div(a->s.channels,
					 HZI_MHC_DBIAS_LANES * (p.vectors ? 16 / bytes : 1)),
				p.chunks, HZI_MHC_THREADS, 0, &p, sizeof(p)));
	return hzi_mhc_launch(ctx, bwd_name, HZI_KERNEL_mhc_dbias_finish,
			      ceil_div(a->s.channels, HZI_MHC_THREADS), 1, HZI_MHC_THREADS, 0, &p,
			      sizeof(p));
}

static bool same_array(const struct hzi_mhc_array *a, const struct hzi_mhc_array *b)
{
	return a->data == b->data && a->token == b->token && a->stream == b->stream &&
	       a->channel == b->channel;
}

/*
 * The kinds of kernels for vectors: u alone, streams mixed and u, streams mixed and f, streams as
 * they are and f. What a kind has and the call has not is not read. 0: another combination.
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

int hzi_cuda_mhc_streams_bwd(struct hz_context *ctx, const struct hzi_mhc_streams_bwd_args *a)
{
	const int bytes = (int)hz_dtype_size(a->s.dtype);
	struct hzi_mhc_streams_bwd_job p = {
		.a = *a, .per = tokens_per_group(&a->s), .chunk = chunk_of(&a->s),
		.chunks = chunks_of(&a->s), .partial = ctx->workspace,
	};
	const bool sums = a->dp.data || a->dq.data || a->da.data;
	const int n = a->s.n;
	int kernel = vector_kernel(&a->s), per_block = 1, count;
	bool any;
	int64_t blocks;

	if (!a->da.data && !a->dp.data)
		p.a.x.data = NULL;
	if (!a->a.data && !a->du.data && !a->accumulate && same_array(&a->dx, &a->dy))
		p.a.dx.data = NULL;
	any = a->s.groups > 0 && (sums || p.a.dx.data || a->df.data);
	p.kind = vector_terms(&p.a);
	if (kernel >= 0 && p.kind && in_vectors(&p.a.x, bytes) &&
	    in_vectors(&a->f, bytes) && in_vectors(&a->du, bytes) && in_vectors(&a->dy, bytes) &&
	    in_vectors(&p.a.dx, bytes) && in_vectors(&a->df, bytes)) {
		kernel += p.kind & HZI_TERM_MIX ? HZI_KERNEL_mhc_streams_bwd_mixed_f32_4 :
						  HZI_KERNEL_mhc_streams_bwd_plain_f32_4;
		p.vectors = a->s.channels * bytes / 16;
		p.whole = wholes(&a->p, &a->q, &a->a, n);
		p.lanes_log2 = p.vectors > 64 ? 7 : p.vectors > 32 ? 6 : 5;
		per_block = HZI_MHC_BWD_THREADS >> p.lanes_log2;
	} else {
		kernel = HZI_KERNEL_mhc_streams_bwd_any;
		p.kind = (a->dp.data ? HZI_TERM_U : 0) | (a->dq.data ? HZI_TERM_F : 0) |
			 (a->da.data ? HZI_TERM_MIX : 0);
		p.whole = together(&p.a.x, &a->s) && together(&a->dy, &a->s) &&
			  together(&p.a.dx, &a->s);
	}
	p.sums = sums;
	blocks = p.per == 1 ? ceil_div(a->s.tokens, per_block) : a->s.groups * p.chunks;
	/* Before dbias is written; what is behind it may overwrite dy. */
	if (any)
		HZ_CHECK(check_blocks(ctx, bwd_name, blocks));
	if (a->dbias && a->s.channels > 0)
		HZ_CHECK(bias_gradient(ctx, a));
	if (!any)
		return HZ_OK;
	HZ_CHECK(hzi_mhc_launch(ctx, bwd_name, kernel, blocks, 1, HZI_MHC_BWD_THREADS, 0, &p,
				sizeof(p)));
	if (!sums || p.chunks == 1)
		return HZ_OK;
	count = (p.kind & HZI_TERM_U ? n : 0) + (p.kind & HZI_TERM_F ? n : 0) +
		(p.kind & HZI_TERM_MIX ? n * n : 0);
	return hzi_mhc_launch(ctx, bwd_name, HZI_KERNEL_mhc_sums_finish, a->s.groups * count, 1,
			      HZI_MHC_BWD_THREADS, 0, &p, sizeof(p));
}

/* ---- Chains of layers ------------------------------------------------------------------------ */

size_t hzi_cuda_mhc_recompute_workspace(const struct hz_context *ctx,
					const struct hzi_mhc_recompute_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

/* Whether an array lies as those of the layers before; the first decides. */
static bool agree(struct hzi_mhc_array *known, const struct hzi_mhc_array *a)
{
	if (!a->data)
		return true;
	if (!known->data)
		*known = *a;
	return known->token == a->token && known->stream == a->stream &&
	       known->channel == a->channel;
}

static bool agree_coef(struct hzi_mhc_coef *known, const struct hzi_mhc_coef *c)
{
	if (!c->data)
		return true;
	if (!known->data)
		*known = *c;
	return known->group == c->group && known->row == c->row && known->column == c->column;
}

/* Adds a layer, if it lies as the others do. */
static bool add_layer(struct hzi_mhc_chain_job *p, const struct hzi_mhc_layer_args *l)
{
	struct hzi_mhc_chain_job q = *p;

	if (!agree_coef(&q.p, &l->p) || !agree_coef(&q.q, &l->q) || !agree_coef(&q.a, &l->a) ||
	    !agree(&q.f, &l->f) || !agree(&q.u, &l->u) || !agree(&q.y, &l->y))
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

static int chain(struct hz_context *ctx, struct hzi_mhc_chain_job *p)
{
	const int bytes = (int)hz_dtype_size(p->s.dtype);
	bool vectors = vector_kernel(&p->s) >= 0 && in_vectors(&p->x, bytes) &&
		       in_vectors(&p->f, bytes) && in_vectors(&p->u, bytes) &&
		       in_vectors(&p->y, bytes);
	int64_t threads = p->s.tokens * p->s.channels;

	p->whole = wholes(&p->p, &p->q, &p->a, p->s.n);
	for (int l = 0; l < p->layers; l++) {
		vectors = vectors && ((uintptr_t)p->layer[l].f | (uintptr_t)p->layer[l].u |
				      (uintptr_t)p->layer[l].y) % 16 == 0;
		if (((uintptr_t)p->layer[l].p | (uintptr_t)p->layer[l].q |
		     (uintptr_t)p->layer[l].a) % 16 != 0)
			p->whole = 0;
	}
	if (vectors) {
		p->vectors = p->s.channels * bytes / 16;
		threads = p->s.tokens * p->vectors;
	}
	return hzi_mhc_launch(ctx, chain_name,
			      !vectors ? HZI_KERNEL_mhc_recompute_any :
			      p->s.n == 4 ? HZI_KERNEL_mhc_recompute_4 :
			      p->s.n < 4 ? HZI_KERNEL_mhc_recompute_few :
					   HZI_KERNEL_mhc_recompute_many,
			      ceil_div(threads, HZI_MHC_THREADS), 1, HZI_MHC_THREADS, 0, p,
			      sizeof(*p));
}

/*
 * What one launch does: layers from `first` on that lie alike, from the streams that the one before
 * it stored. Returns the layer behind them.
 */
static int alike(const struct hzi_mhc_recompute_args *a, int first, struct hzi_mhc_chain_job *p)
{
	int l = first;

	*p = (struct hzi_mhc_chain_job){
		.s = a->s, .x = first ? a->layer[first - 1].y : a->x,
		.per = tokens_per_group(&a->s),
	};
	while (l < a->layers && add_layer(p, &a->layer[l]))
		l++;
	return l;
}

int hzi_cuda_mhc_recompute(struct hz_context *ctx, const struct hzi_mhc_recompute_args *a)
{
	struct hzi_mhc_chain_job p;

	if (a->s.tokens == 0 || a->s.channels == 0)
		return HZ_OK;
	/* What is refused leaves all streams as they were. */
	for (int l = alike(a, 0, &p); l < a->layers; l = alike(a, l, &p)) {
		if (!a->layer[l - 1].y.data)
			return hzi_fail(ctx, HZ_ENOTSUP,
					"%s: block[%d] has other strides than those before it: on "
					"a GPU block[%d].y has to be there", chain_name, l, l - 1);
	}
	for (int l = 0; l < a->layers;) {
		l = alike(a, l, &p);
		HZ_CHECK(chain(ctx, &p));
	}
	return HZ_OK;
}

/* ---- Small matrices, weights ----------------------------------------------------------------- */

size_t hzi_cuda_mhc_sinkhorn_workspace(const struct hz_context *ctx,
				       const struct hzi_mhc_sinkhorn_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_mhc_sinkhorn(struct hz_context *ctx, const struct hzi_mhc_sinkhorn_args *a)
{
	if (a->count == 0)
		return HZ_OK;
	return hzi_mhc_launch(ctx, "mhc_sinkhorn",
			      a->rule.n == 4 ? HZI_KERNEL_mhc_sinkhorn_4 :
					       HZI_KERNEL_mhc_sinkhorn_any,
			      ceil_div(a->count, HZI_MHC_SINK_THREADS), 1, HZI_MHC_SINK_THREADS, 0,
			      a, sizeof(*a));
}

size_t hzi_cuda_mhc_sinkhorn_bwd_workspace(const struct hz_context *ctx,
					   const struct hzi_mhc_sinkhorn_bwd_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_mhc_sinkhorn_bwd(struct hz_context *ctx, const struct hzi_mhc_sinkhorn_bwd_args *a)
{
	const int n = a->rule.n, threads = HZI_MHC_SINK_BWD_THREADS(n);
	const int kept = a->rule.iterations < HZI_MHC_HISTORY ? a->rule.iterations :
								HZI_MHC_HISTORY;
	const int staged = n == 4 ? 0 : HZI_MHC_SINK_APART(n);

	if (a->count == 0)
		return HZ_OK;
	return hzi_mhc_launch(ctx, "mhc_sinkhorn_bwd",
			      n == 4 ? HZI_KERNEL_mhc_sinkhorn_bwd_4 :
				       HZI_KERNEL_mhc_sinkhorn_bwd_any,
			      ceil_div(a->count, threads), 1, threads,
			      sizeof(float) * (size_t)((2 * n * kept + staged) * threads), a,
			      sizeof(*a));
}

size_t hzi_cuda_mhc_diagnose_workspace(const struct hz_context *ctx,
				       const struct hzi_mhc_diagnose_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_mhc_diagnose(struct hz_context *ctx, const struct hzi_mhc_diagnose_args *a)
{
	if (a->groups == 0)
		return HZ_OK;
	return hzi_mhc_launch(ctx, "mhc_diagnose", HZI_KERNEL_mhc_diagnose,
			      ceil_div(a->groups, HZI_MHC_SINK_THREADS), 1, HZI_MHC_SINK_THREADS, 0,
			      a, sizeof(*a));
}

size_t hzi_cuda_mhc_init_workspace(const struct hz_context *ctx, const struct hzi_mhc_init_args *a)
{
	(void)ctx;
	(void)a;
	return 0;
}

int hzi_cuda_mhc_init(struct hz_context *ctx, const struct hzi_mhc_init_args *a)
{
	const int64_t blocks = ceil_div(a->phi ? a->count : 0, 4 * HZI_MHC_SINK_THREADS);
	const int64_t least = ceil_div(HZI_MHC_ROWS, HZI_MHC_SINK_THREADS);	/* for the bias */

	return hzi_mhc_launch(ctx, "mhc_init", HZI_KERNEL_mhc_init,
			      blocks < least ? least : blocks < 4096 ? blocks : 4096, 1,
			      HZI_MHC_SINK_THREADS, 0, a, sizeof(*a));
}
