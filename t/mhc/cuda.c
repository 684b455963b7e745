/*
 * cuda.c - launches of hyper-connections on the stand-in driver
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Checks which kernels are launched and that the driver accepts the launches. Nothing is computed:
 * t/mhc/mhc, t/mhc/coef and t/mhc/calls check results, with HZ_TEST_DEVICE=cuda.
 */
#include <config.h>

#include "t/core/cuda_calls.h"
#include "t/core/record.h"

#if HZ_HAVE_CUDA

#define ARRAYS 8
#define ARRAY_BYTES ((size_t)1 << 24)

static hz_context *ctx;
static int device;
static char *memory[ARRAYS];
static char **const arrays[ARRAYS] = {&memory[0], &memory[1], &memory[2], &memory[3],
				      &memory[4], &memory[5], &memory[6], &memory[7]};

/* Operands of T tokens, S groups, n streams, C channels; none of them overlaps another. */
struct operands {
	hz_tensor x, y, dx, dy, u, f, du, df, p, q, a, dp, dq, da, phi, dphi, alpha, bias, channels;
};

static hz_tensor part(int array, int place, int dtype, int ndim, const int64_t *shape)
{
	return hz_tensor_nd(memory[array] + (size_t)place * (ARRAY_BYTES / 8), dtype, device, ndim,
			    shape);
}

static struct operands make(int dtype, int64_t T, int64_t S, int n, int64_t C)
{
	const int64_t streams[] = {T, n, C}, values[] = {T, C}, gates[] = {S, n},
		      mixes[] = {S, n, n};
	const int64_t weights[] = {n * n + 2 * n, n * C}, three[] = {3}, rows[] = {n * n + 2 * n};

	return (struct operands){
		.x = part(0, 0, dtype, 3, streams), .y = part(1, 0, dtype, 3, streams),
		.dx = part(2, 0, dtype, 3, streams), .dy = part(3, 0, dtype, 3, streams),
		.u = part(4, 0, dtype, 2, values), .f = part(4, 2, dtype, 2, values),
		.du = part(4, 4, dtype, 2, values), .df = part(4, 6, dtype, 2, values),
		.p = part(5, 0, HZ_F32, 2, gates), .q = part(5, 1, HZ_F32, 2, gates),
		.a = part(5, 2, HZ_F32, 3, mixes), .dp = part(5, 3, HZ_F32, 2, gates),
		.dq = part(5, 4, HZ_F32, 2, gates), .da = part(5, 5, HZ_F32, 3, mixes),
		.alpha = part(5, 6, HZ_F32, 1, three), .bias = part(5, 7, HZ_F32, 1, rows),
		.phi = part(6, 0, HZ_F32, 2, weights), .dphi = part(7, 0, HZ_F32, 2, weights),
		.channels = part(6, 6, HZ_F32, 1, (int64_t[]){C}),
	};
}

/* ---- Streams -----------------------------------------------------------------------------------
 */

enum call { MIX, MIX_BWD, ADD, ADD_BWD, POST, POST_BWD, EXPAND, EXPAND_BWD };

static const struct row {
	const char *name;
	enum call call;
	int dtype;
	int64_t T, S;
	int n;
	int64_t C, step;		/* channel stride; 0: 1 */
	const char *kernels;
	unsigned grid;			/* blocks of the last launch */
} table[] = {
	{"mix", MIX, HZ_BF16, 64, 64, 4, 4096, 0, "mhc_mix_matrix_bf16_4", 256},
	{"mix in f32", MIX, HZ_F32, 64, 64, 4, 1024, 0, "mhc_mix_matrix_f32_4", 128},
	{"mix of two streams", MIX, HZ_F16, 64, 64, 2, 1024, 0, "mhc_mix_matrix_f16_2", 64},
	{"mix of three streams", MIX, HZ_F16, 64, 64, 3, 1024, 0, "mhc_mix_matrix_f16_3", 64},
	{"mix of eight streams", MIX, HZ_F32, 64, 64, 8, 1024, 0, "mhc_mix_matrix_f32_8", 128},
	{"mix of few channels", MIX, HZ_BF16, 64, 64, 3, 64, 0, "mhc_mix_strided", 8},
	{"add of five streams", ADD, HZ_BF16, 64, 64, 5, 64, 0, "mhc_mix_gates_bf16_5", 4},
	{"mix of odd channels", MIX, HZ_BF16, 64, 64, 4, 1023, 0, "mhc_mix_strided", 128},
	{"mix of channels apart", MIX, HZ_BF16, 64, 64, 4, 512, 4, "mhc_mix_strided", 64},
	{"add", ADD, HZ_BF16, 64, 64, 4, 4096, 0, "mhc_mix_gates_bf16_4", 256},
	{"post", POST, HZ_BF16, 64, 64, 4, 4096, 0, "mhc_mix_matrix_bf16_4", 256},
	{"post of one token", POST, HZ_BF16, 1, 1, 4, 4096, 0, "mhc_mix_matrix_bf16_4", 4},
	{"expand", EXPAND, HZ_F16, 64, 64, 4, 1024, 0, "mhc_mix_gates_f16_4", 64},
	{"mix_bwd", MIX_BWD, HZ_BF16, 64, 64, 4, 4096, 0, "mhc_mix_bwd_matrix_bf16_4", 64},
	{"mix_bwd of sequences", MIX_BWD, HZ_BF16, 64, 2, 4, 4096, 0,
	 "mhc_mix_bwd_matrix_bf16_4 mhc_mix_bwd_sums_finish", 40},
	{"add_bwd", ADD_BWD, HZ_BF16, 64, 64, 4, 4096, 0, "mhc_mix_bwd_gates_bf16_4", 64},
	{"post_bwd", POST_BWD, HZ_F32, 64, 64, 4, 1024, 0, "mhc_mix_bwd_matrix_f32_4", 64},
	{"post_bwd of five streams", POST_BWD, HZ_F32, 64, 64, 5, 1024, 0,
	 "mhc_mix_bwd_matrix_f32_5", 64},
	{"post_bwd of odd channels", POST_BWD, HZ_F32, 64, 64, 5, 1023, 0, "mhc_mix_bwd_strided",
	 64},
	{"mix_bwd of eight streams, of sequences", MIX_BWD, HZ_BF16, 64, 2, 8, 4096, 0,
	 "mhc_mix_bwd_matrix_bf16_8 mhc_mix_bwd_sums_finish", 144},
	{"expand_bwd", EXPAND_BWD, HZ_BF16, 64, 64, 4, 1024, 0, "mhc_mix_bwd_gates_bf16_4", 16},
};

static int call_streams(const struct row *r, struct operands *o)
{
	switch (r->call) {
	case MIX:
		return hz_mhc_mix(ctx, &o->x, &o->p, &o->a, &o->u, &o->y);
	case MIX_BWD:
		return hz_mhc_mix_bwd(ctx, &o->x, &o->p, &o->a, &o->du, &o->dy, &o->dx,
					      &o->dp, &o->da);
	case ADD:
		return hz_mhc_add(ctx, &o->x, &o->f, &o->q, &o->y);
	case ADD_BWD:
		return hz_mhc_add_bwd(ctx, &o->f, &o->q, &o->dy, NULL, &o->df, &o->dq);
	case POST:
		return hz_mhc_post(ctx, &o->x, &o->f, &o->q, &o->a, NULL, &o->y);
	case POST_BWD:
		return hz_mhc_post_bwd(ctx, &o->x, &o->f, &o->q, &o->a, NULL, &o->dy,
					       &o->dx, &o->df, &o->dq, &o->da, NULL);
	case EXPAND:
		return hz_mhc_expand(ctx, &o->f, &o->y);
	default:
		return hz_mhc_expand_bwd(ctx, &o->dy, &o->df);
	}
}

static void test_streams(const struct row *r)
{
	struct operands o = make(r->dtype, r->T, r->S, r->n, r->C);
	hz_tensor *const streams[] = {&o.x, &o.y, &o.dx, &o.dy};
	size_t bytes = 0, i;

	for (i = 0; i < 4 && r->step; i++) {
		streams[i]->stride[2] = r->step;
		streams[i]->stride[1] = 1;
		streams[i]->stride[0] = r->step * r->C;
	}
	is_int(RECORD(ctx, call_streams(r, &o), &bytes), HZ_OK, "%s: workspace", r->name);
	is_int(call_streams(r, &o), HZ_OK, "%s: %s", r->name, hz_errmsg(ctx));
	is_str(taken(), r->kernels, "%s: kernels", r->name);
	is_int(last()->grid[0], r->grid, "%s: blocks", r->name);
}

/* ---- Matrices, chains, weights ------------------------------------------------------------------
 */

static void test_chain(int n, const char *kernels)
{
	struct operands o = make(HZ_BF16, 8, 8, n, 1024);
	const hz_mhc_block block = {.p = o.p, .q = o.q, .a = o.a, .f = o.f, .u = o.u, .y = o.y};

	is_int(hz_mhc_recompute(ctx, &o.x, 1, &block), HZ_OK, "recompute of %d streams: %s", n,
	       hz_errmsg(ctx));
	is_str(taken(), kernels, "its kernel");
}

/* Kernels of Sinkhorn's iteration on matrices of n streams; z_max, if not 0, is a rare rule. */
static void test_sinkhorn(int n, double z_max, const char *forward, const char *gradient)
{
	struct operands o = make(HZ_BF16, 64, 64, n, 1024);
	const hz_mhc_opts opts = {.z_max = z_max, .given = z_max != 0 ? HZ_MHC_GIVEN_Z_MAX : 0};

	is_int(hz_mhc_sinkhorn(ctx, &o.a, &o.da, &opts), HZ_OK, "sinkhorn of %d streams: %s", n,
	       hz_errmsg(ctx));
	is_str(taken(), forward, "its kernel");
	is_int(hz_mhc_sinkhorn_bwd(ctx, &o.a, &o.da, &o.da, &opts), HZ_OK, "its gradient: %s",
	       hz_errmsg(ctx));
	is_str(taken(), gradient, "its kernel");
}

static void test_small(void)
{
	struct operands o = make(HZ_BF16, 64, 64, 4, 1024);
	hz_mhc_block block[3];
	hz_tensor out = part(7, 0, HZ_F32, 2, (int64_t[]){64, 4});
	int l;

	is_int(hz_mhc_sinkhorn(ctx, &o.a, &o.da, NULL), HZ_OK, "sinkhorn");
	is_str(taken(), "mhc_sinkhorn_4", "its kernel");
	is_int(last()->grid[0], 1, "64 matrices a block");
	is_int(hz_mhc_sinkhorn_bwd(ctx, &o.a, &o.da, &o.da, NULL), HZ_OK, "sinkhorn_bwd");
	is_str(taken(), "mhc_sinkhorn_bwd_4", "its kernel");
	is_int(last()->shared_bytes, 4 * 2 * 4 * 20 * 64, "the history of 20 iterations");
	for (l = 0; l < 3; l++) {
		block[l] = (hz_mhc_block){
			.p = o.p, .q = o.q, .a = o.a, .f = o.f, .u = o.u, .y = o.y};
		block[l].u.data = (char *)memory[7] + (size_t)l * (1 << 20);
		block[l].y.data = memory[l + 1];
	}
	is_int(hz_mhc_recompute(ctx, &o.x, 3, block), HZ_OK, "recompute: %s", hz_errmsg(ctx));
	is_str(taken(), "mhc_recompute_4", "three layers in one launch");
	test_chain(2, "mhc_recompute_1_3");
	test_chain(8, "mhc_recompute_5_8");
	block[2].y.stride[1] *= 2;
	block[2].y.stride[0] *= 2;
	is_int(hz_mhc_recompute(ctx, &o.x, 3, block), HZ_OK, "recompute of another layout");
	is_str(taken(), "mhc_recompute_4 mhc_recompute_4", "in two");
	block[1].u.stride[0] *= 2;
	block[1].y.data = NULL;
	is_int(hz_mhc_recompute(ctx, &o.x, 3, block), HZ_ENOTSUP, "without the streams between");
	is_str(taken(), "", "no layer is done");
	is_int(hz_mhc_diagnose(ctx, &o.a, &out), HZ_OK, "diagnose");
	is_str(taken(), "mhc_diagnose", "its kernel");
	is_int(hz_mhc_init(ctx, HZ_MHC_INIT_IDENTITY, 0, 1, &o.phi, &o.alpha, &o.bias, NULL), HZ_OK,
	       "init");
	is_str(taken(), "mhc_init", "its kernel");
}

/* ---- Coefficients ------------------------------------------------------------------------------
 */

/* fused: one launch and no workspace on GPUs that have coef_small_batch and coef_input_fused */
static void test_pre(int64_t T, int64_t S, int n, int dtype, int fused)
{
	struct operands o = make(dtype, T, S, n, 1024);
	const hz_mhc_opts triton = {.preset = HZ_MHC_PRESET_TRITON,
				    .coefficients = HZ_MHC_PER_SEQUENCE};
	const hz_mhc_opts *opts = S == T ? NULL : &triton;
	const hz_mhc_grads g = {
		.du = &o.du, .dq = &o.dq, .dy = &o.dy, .dx = &o.dx, .dphi = &o.dphi};
	size_t bytes = 1;
	long before;

	is_int(RECORD(ctx, hz_mhc_pre(ctx, &o.x, &o.phi, &o.alpha, &o.bias, &o.p, &o.q, &o.a, &o.u,
				    opts), &bytes),
	       HZ_OK, "pre of %d tokens, %d groups: workspace", (int)T, (int)S);
	before = fake->launches();
	is_int(hz_mhc_pre(ctx, &o.x, &o.phi, &o.alpha, &o.bias, &o.p, &o.q, &o.a, &o.u, opts),
	       HZ_OK, "pre: %s", hz_errmsg(ctx));
	if (fused) {
		is_int(fake->launches() - before, 1, "one launch");
		is_int((long long)bytes, 0, "without a workspace");
		is_int(hz_mhc_post_pre(ctx, &o.x, &o.f, &o.q, &o.a, NULL, &o.phi, &o.alpha,
				       &o.bias, &o.y, &o.p, &o.dq, &o.da, &o.u, NULL),
		       HZ_OK, "post_pre");
		is_int(fake->launches() - before, T > 112 ? 2 : 3,
		       "and one, post made on the way; or post ahead of few tokens");
	} else {
		ok(fake->launches() - before > 1 && bytes > 0,
		   "more than one launch, and a workspace");
	}
	before = fake->launches();
	is_int(RECORD(ctx, hz_mhc_pre_bwd(ctx, &o.x, &o.phi, &o.alpha, &o.bias, &g, opts), &bytes),
	       HZ_OK, "pre_bwd: workspace");
	is_int(hz_mhc_pre_bwd(ctx, &o.x, &o.phi, &o.alpha, &o.bias, &g, opts), HZ_OK, "pre_bwd: %s",
	       hz_errmsg(ctx));
	ok(fake->launches() > before, "its launches");
	taken();
}

static void test_pre_all(int hopper)
{
	test_pre(1, 1, 4, HZ_BF16, hopper);
	test_pre(64, 64, 4, HZ_F16, hopper);
	test_pre(64, 64, 4, HZ_F32, hopper);
	test_pre(113, 113, 4, HZ_F32, 0);
	test_pre(113, 113, 4, HZ_F16, 0);
	test_pre(1025, 1025, 4, HZ_F16, hopper);
	test_pre(64, 2, 4, HZ_BF16, 0);
	test_pre(30, 30, 3, HZ_BF16, 0);
	test_pre(0, 2, 4, HZ_BF16, 0);
}

/* coef_persistent is for many tokens without u; other routes next to its limits */
static void test_weights(int hopper)
{
	static const struct {
		const char *name;
		int64_t T, C;
		int dtype, with_u, moved;	/* bytes, of the address of phi */
		const char *kernels;
		unsigned grid;
	} rows_of[] = {
		{"of many tokens", 8192, 64, HZ_BF16, 0, 0, "mhc_coef_persistent_bf16", 128},
		{"and u of few", 48, 64, HZ_BF16, 1, 0, "mhc_coef_small_batch_bf16", 96},
		{"and u of more", 49, 64, HZ_BF16, 1, 0, "mhc_coef_small_batch_bf16", 64},
		{"and u of some hundred", 113, 64, HZ_BF16, 1, 0,
		 "mhc_coef_splitk_project_bf16 mhc_coef_splitk_finish_bf16", 113},
		{"and u of 512", 512, 64, HZ_BF16, 1, 0,
		 "mhc_coef_splitk_project_bf16 mhc_coef_splitk_finish_bf16", 256},
		{"and u of more than those", 513, 64, HZ_F16, 1, 0,
		 "mhc_coef_input_fused_f16", 130},
		{"of more than one turn", 32768, 8, HZ_F16, 0, 0, "mhc_coef_persistent_f16", 128},
		{"of fewer", 8191, 64, HZ_BF16, 0, 0, "mhc_coef_input_fused_bf16", 132},
		{"and u", 8192, 64, HZ_BF16, 1, 0, "mhc_coef_input_fused_bf16", 132},
		{"of an odd phi", 8192, 64, HZ_BF16, 0, 8, "mhc_coef_input_fused_bf16", 132},
		{"of many channels", 1025, 4104, HZ_BF16, 0, 0, "mhc_coef_persistent_bf16", 34},
		{"of fewer of many channels", 1023, 4104, HZ_BF16, 0, 0,
		 "mhc_coef_splitk_project_bf16 mhc_coef_splitk_finish_bf16", 256},
	};
	size_t i, bytes = 1;

	for (i = 0; i < sizeof(rows_of) / sizeof(*rows_of); i++) {
		struct operands o = make(rows_of[i].dtype, rows_of[i].T, rows_of[i].T, 4,
					 rows_of[i].C);
		hz_tensor *u = rows_of[i].with_u ? &o.u : NULL;

		o.phi.data = (char *)o.phi.data + rows_of[i].moved;
		is_int(RECORD(ctx, hz_mhc_pre(ctx, &o.x, &o.phi, &o.alpha, &o.bias, &o.p, &o.q,
					      &o.a, u, NULL), &bytes),
		       HZ_OK, "weights %s: workspace", rows_of[i].name);
		is_int(u ? hz_mhc_pre(ctx, &o.x, &o.phi, &o.alpha, &o.bias, &o.p, &o.q, &o.a, u,
				      NULL)
			 : hz_mhc_weights(ctx, &o.x, &o.phi, &o.alpha, &o.bias, &o.p, &o.q, &o.a,
					  NULL),
		       HZ_OK, "weights %s: %s", rows_of[i].name, hz_errmsg(ctx));
		if (hopper) {
			is_str(taken(), rows_of[i].kernels, "weights %s: kernels", rows_of[i].name);
			is_int(last()->grid[0], rows_of[i].grid, "weights %s: blocks",
			       rows_of[i].name);
			is_int(bytes > 0, strstr(rows_of[i].kernels, "project") != NULL,
			       "weights %s: a workspace", rows_of[i].name);
		} else {
			ok(bytes > 0, "weights %s: a workspace", rows_of[i].name);
			taken();
		}
	}
}

/* Gradients that coef_bwd_fused does not support, of aligned and unaligned rows */
static void test_gradients(int hopper)
{
	static const struct {
		const char *name;
		int dtype, n, moved;		/* bytes, of the address of dx */
		int64_t T, C;
		const char *kernels, *of_hopper;	/* NULL: the same */
	} rows_of[] = {
		{"of f32", HZ_F32, 4, 0, 64, 512,
		 "mhc_mix_bwd_matrix_f32_4 mhc_coef_gradients_4 mhc_coef_mma_dx_f32_4 "
		 "mhc_coef_mma_dphi_f32_32 mhc_coef_sum_weights", NULL},
		{"of eight streams", HZ_BF16, 8, 0, 64, 256,
		 "mhc_token_products_bf16 mhc_coef_gradients_8 mhc_coef_mma_dx_bf16_8 "
		 "mhc_coef_mma_dphi_bf16_80 mhc_coef_sum_weights",
		 "mhc_token_products_bf16 mhc_coef_gradients_8 mhc_coef_wgmma_dx "
		 "mhc_coef_wgmma_dphi"},
		{"of eight streams of splits", HZ_BF16, 8, 0, 65, 256,
		 "mhc_token_products_bf16 mhc_coef_gradients_8 mhc_coef_mma_dx_bf16_8 "
		 "mhc_coef_mma_dphi_bf16_80 mhc_coef_sum_weights",
		 "mhc_token_products_bf16 mhc_coef_gradients_8 mhc_coef_wgmma_dx "
		 "mhc_coef_wgmma_dphi mhc_coef_sum_weights"},
		{"of five streams of f16", HZ_F16, 5, 0, 64, 256,
		 "mhc_token_products_f16 mhc_coef_gradients_8 mhc_coef_mma_dx_f16_8 "
		 "mhc_coef_mma_dphi_f16_80 mhc_coef_sum_weights", NULL},
		{"of two streams", HZ_F16, 2, 0, 3, 8,
		 "mhc_mix_bwd_matrix_f16_2 mhc_coef_gradients_3 mhc_coef_mma_dx_f16_4 "
		 "mhc_coef_mma_dphi_f16_32 mhc_coef_sum_weights", NULL},
		{"of an odd dx", HZ_F16, 2, 2, 3, 8,
		 "mhc_mix_bwd_matrix_f16_2 mhc_coef_gradients_3 mhc_coef_generic_dx "
		 "mhc_coef_mma_dphi_f16_32 mhc_coef_sum_weights", NULL},
		{"of odd channels", HZ_F32, 3, 0, 64, 33,
		 "mhc_mix_bwd_strided mhc_coef_gradients_3 mhc_coef_generic_dx "
		 "mhc_coef_generic_dphi_24 "
		 "mhc_coef_sum_weights", NULL},
	};

	for (size_t i = 0; i < sizeof(rows_of) / sizeof(*rows_of); i++) {
		const int64_t T = rows_of[i].T, n = rows_of[i].n;
		struct operands o = make(rows_of[i].dtype, T, T, (int)n, rows_of[i].C);
		hz_tensor saved = part(7, 6, HZ_F32, 2, (int64_t[]){T, n * n + 2 * n + 1});
		const hz_mhc_opts opts = {.saved = &saved};
		const hz_mhc_grads g = {.du = &o.du, .dy = &o.dy, .dx = &o.dx, .dphi = &o.dphi};

		o.dx.data = (char *)o.dx.data + rows_of[i].moved;
		is_int(hz_mhc_pre_bwd(ctx, &o.x, &o.phi, &o.alpha, &o.bias, &g, &opts), HZ_OK,
		       "gradients %s: %s", rows_of[i].name, hz_errmsg(ctx));
		is_str(taken(), hopper && rows_of[i].of_hopper ? rows_of[i].of_hopper :
				rows_of[i].kernels, "gradients %s: kernels", rows_of[i].name);
	}
}

/* Rows of x that no 16-byte load may touch, where it has to be projected again */
static void test_unaligned_x(void)
{
	struct operands o = make(HZ_BF16, 64, 64, 2, 64);
	const hz_mhc_grads g = {.du = &o.du, .dy = &o.dy, .dx = &o.dx, .dphi = &o.dphi};
	size_t bytes = 0;

	o.x.stride[0] += 4;
	is_int(RECORD(ctx, hz_mhc_pre_bwd(ctx, &o.x, &o.phi, &o.alpha, &o.bias, &g, NULL), &bytes),
	       HZ_OK, "gradients of unaligned rows: workspace");
	is_int(hz_mhc_pre_bwd(ctx, &o.x, &o.phi, &o.alpha, &o.bias, &g, NULL), HZ_OK,
	       "gradients of unaligned rows: %s", hz_errmsg(ctx));
	is_str(taken(), "mhc_coef_generic_project_8 mhc_mix_bwd_strided mhc_coef_gradients_3 "
	       "mhc_coef_mma_dx_bf16_4 mhc_coef_generic_dphi_8 mhc_coef_sum_weights",
	       "gradients of unaligned rows: kernels");
}

static int layer_steps(const hz_mhc_layer *l, struct operands *o)
{
	int status = hz_mhc_layer_begin(ctx, l, &o->x, &o->u);

	if (!status)
		status = hz_mhc_layer_end_bwd(ctx, l, &o->f, &o->dy, &o->df);
	return status ? status :
	       hz_mhc_layer_begin_bwd(ctx, l, &o->x, &o->dy, &o->du, &o->dx);
}

/* A layer's recorded workspace is enough for operands that the fastest routes do not support. */
static void test_layer(int64_t T)
{
	struct operands o = make(HZ_BF16, T, T, 4, 1024);
	hz_mhc_layer l = {.phi = o.phi, .alpha = o.alpha, .bias = o.bias};
	size_t bytes = 0;

	o.u.data = (char *)o.u.data + 2;
	o.dx.data = (char *)o.dx.data + 2;
	is_int(hz_mhc_layer_bind(ctx, &l, 4, T, memory[1], NULL), HZ_OK,
	       "a layer of %d tokens", (int)T);
	is_int(RECORD(ctx, layer_steps(&l, &o), &bytes), HZ_OK, "its workspace");
	is_int(hz_set_workspace(ctx, memory[0] + ARRAY_BYTES / 2, bytes), HZ_OK, "so much");
	is_int(layer_steps(&l, &o), HZ_OK, "its calls: %s", hz_errmsg(ctx));
	is_int(hz_set_workspace(ctx, NULL, 0), HZ_OK, "the own one again");
	taken();
}

/* ---- What goes wrong ---------------------------------------------------------------------------
 */

static void test_errors(void)
{
	struct operands o = make(HZ_BF16, 64, 2, 4, 1024);
	size_t bytes = 0;

	is_int(RECORD(ctx, hz_mhc_mix_bwd(ctx, &o.x, &o.p, &o.a, &o.du, &o.dy, &o.dx, &o.dp,
					  &o.da), &bytes),
	       HZ_OK, "a workspace is asked for");
	ok(bytes > 0, "of sums over tokens");
	is_int(hz_set_workspace(ctx, memory[7], 64), HZ_OK, "one that is too small");
	is_int(hz_mhc_mix_bwd(ctx, &o.x, &o.p, &o.a, &o.du, &o.dy, &o.dx, &o.dp, &o.da),
	       HZ_EWORKSPACE, "is refused");
	has_str(hz_errmsg(ctx), "mhc_mix_bwd", "by a sentence");
	is_int(hz_set_workspace(ctx, NULL, 0), HZ_OK, "the own one again");
	fake->fail_at(1, 1, 0);
	is_int(hz_mhc_mix_bwd(ctx, &o.x, &o.p, &o.a, &o.du, &o.dy, &o.dx, &o.dp, &o.da), HZ_ECUDA,
	       "a launch that fails");
	fake->fail_at(0, 0, 0);
	is_int(hz_mhc_mix_bwd(ctx, &o.x, &o.p, &o.a, &o.du, &o.dy, &o.dx, &o.dp, &o.da), HZ_OK,
	       "and one that does not");
	taken();
}

/* More tokens than a grid has blocks: nothing is launched. No memory lies at these addresses. */
static void test_tokens_most(void)
{
	char *const far = (char *)((uintptr_t)1 << 44);
	const int64_t T = (int64_t)1 << 31, streams[] = {T, 1, 1}, gates[] = {T, 1};
	const hz_tensor dy = hz_tensor_nd(far, HZ_F16, device, 3, streams);
	hz_tensor dx = hz_tensor_nd(far + 4 * T, HZ_F16, device, 3, streams);
	const hz_tensor q = hz_tensor_nd(far + 8 * T, HZ_F32, device, 2, gates);
	const hz_tensor f = hz_tensor_nd(far + 16 * T, HZ_F16, device, 2, gates);
	hz_tensor df = hz_tensor_nd(far + 20 * T, HZ_F16, device, 2, gates);
	const hz_tensor bias = hz_tensor_1d(far + 24 * T, HZ_F32, device, 1);
	hz_tensor dbias = hz_tensor_1d(far + 25 * T, HZ_F32, device, 1);

	taken();
	is_int(hz_mhc_post_bwd(ctx, NULL, &f, &q, NULL, &bias, &dy, &dx, &df, NULL, NULL, &dbias),
	       HZ_ENOTSUP, "too many tokens: %s", hz_errmsg(ctx));
	is_str(taken(), "", "of which nothing is launched");
}

static void test_all(void)
{
	size_t i;

	/* A GPU of compute capability 9.0, and one before it */
	stand_in_load(true);
	for (device = HZ_CUDA; device <= HZ_CUDA + 1; device++) {
		ctx = stand_in_open(device, arrays, ARRAYS, ARRAY_BYTES, ARRAY_BYTES * 2);
		for (i = 0; i < sizeof(table) / sizeof(*table); i++)
			test_streams(&table[i]);
		test_small();
		test_sinkhorn(3, 0, "mhc_sinkhorn_generic", "mhc_sinkhorn_bwd_generic");
		test_sinkhorn(4, 9, "mhc_sinkhorn_generic", "mhc_sinkhorn_bwd_generic");
		test_sinkhorn(8, 0, "mhc_sinkhorn_8", "mhc_sinkhorn_bwd_8");
		test_sinkhorn(8, 9, "mhc_sinkhorn_warp", "mhc_sinkhorn_bwd_warp");
		test_pre_all(HZ_CUDA_90A && device == HZ_CUDA);
		test_weights(HZ_CUDA_90A && device == HZ_CUDA);
		test_gradients(HZ_CUDA_90A && device == HZ_CUDA);
		test_unaligned_x();
		test_layer(2);
		test_layer(64);
		test_errors();
		test_tokens_most();
		stand_in_close(ctx, device, arrays, ARRAYS);
	}
}

int main(void)
{
	stand_in_few(test_all);
	test_all();
	return done_testing();
}

#endif
