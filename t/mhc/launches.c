/*
 * launches.c - hyper-connections for the launch trace, where options choose the kernel
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/core/launches.h"
#include "t/core/record.h"

struct mhc_row {
	int64_t tokens, groups, n, channels;
	int dtype, preset;
	bool chain;
};

static int run_mhc_pre(const void *row)
{
	const struct mhc_row *const r = row;
	const hz_mhc_opts opts = {.preset = r->preset, .coefficients = r->groups < r->tokens};
	const int64_t m = hz_mhc_rows((int)r->n, &opts);
	const hz_tensor x = V(r->dtype, r->tokens, r->n, r->channels);
	const hz_tensor phi = V(HZ_F32, m, r->n * r->channels), alpha = V(HZ_F32, 3);
	const hz_tensor bias = V(HZ_F32, m);
	hz_tensor p = V(HZ_F32, r->groups, r->n), q = V(HZ_F32, r->groups, r->n);
	hz_tensor a = V(HZ_F32, r->groups, r->n, r->n);
	hz_tensor u = V(r->dtype, r->tokens, r->channels);

	note(" preset %d", r->preset - 1);
	RECORD(ctx, hz_mhc_pre(ctx, &x, &phi, &alpha, &bias, &p, &q, &a, &u, &opts), &workspace);
	return hz_mhc_pre(ctx, &x, &phi, &alpha, &bias, &p, &q, &a, &u, &opts);
}

static int run_mhc_pre_bwd(const void *row)
{
	const struct mhc_row *const r = row;
	const hz_mhc_opts opts = {.preset = r->preset, .coefficients = r->groups < r->tokens};
	const int64_t m = hz_mhc_rows((int)r->n, &opts);
	const hz_tensor x = V(r->dtype, r->tokens, r->n, r->channels);
	const hz_tensor phi = V(HZ_F32, m, r->n * r->channels), alpha = V(HZ_F32, 3);
	const hz_tensor bias = V(HZ_F32, m), dq = V(HZ_F32, r->groups, r->n);
	const hz_tensor du = V(r->dtype, r->tokens, r->channels);
	hz_tensor dx = x, dphi = phi, dy = x;
	hz_mhc_grads g = {.du = &du, .dq = &dq, .dy = &dy, .dx = &dx, .dphi = &dphi};
	hz_tensor *const moved[] = {&dx, &dphi, &dy};

	for (int i = 0; i < 3; i++)
		moved[i]->data = operand_at(20 + i);
	note(" preset %d", r->preset - 1);
	RECORD(ctx, hz_mhc_pre_bwd(ctx, &x, &phi, &alpha, &bias, &g, &opts), &workspace);
	return hz_mhc_pre_bwd(ctx, &x, &phi, &alpha, &bias, &g, &opts);
}

static int run_mhc_chain(const void *row)
{
	const struct mhc_row *const r = row;
	hz_mhc_block block[3];
	const hz_tensor x = V(r->dtype, r->tokens, r->n, r->channels);

	for (int i = 0; i < 3; i++)
		block[i] = (hz_mhc_block){
			.p = V(HZ_F32, r->tokens, r->n), .q = V(HZ_F32, r->tokens, r->n),
			.a = V(HZ_F32, r->tokens, r->n, r->n),
			.f = V(r->dtype, r->tokens, r->channels),
			.u = V(r->dtype, r->tokens, r->channels),
			.y = V(r->dtype, r->tokens, r->n, r->channels)};
	note_clear();
	note(" %s[%" PRId64 ",%" PRId64 ",%" PRId64 "] three layers", hz_dtype_name(r->dtype),
	     r->tokens, r->n, r->channels);
	return hz_mhc_recompute(ctx, &x, 3, block);
}

static int run_mhc_sinkhorn(const void *row)
{
	const struct mhc_row *const r = row;
	const hz_mhc_opts opts = {.preset = r->preset};
	const hz_tensor m = V(HZ_F32, r->tokens, r->n, r->n);
	hz_tensor p = V(HZ_F32, r->tokens, r->n, r->n);

	note(" preset %d", r->preset - 1);
	return hz_mhc_sinkhorn(ctx, &m, &p, &opts);
}

struct gated_row {
	int64_t tokens, channels, rank;
	int dtype, weights;
};

static int run_mhc_gated(const void *row)
{
	const struct gated_row *const r = row;
	const hz_mhc_opts opts = {.preset = HZ_MHC_PRESET_QWEN4_EXP};
	const hz_tensor x = V(r->dtype, r->tokens, 4, r->channels);
	const hz_tensor down = V(r->weights, r->rank, 4 * r->channels);
	const hz_tensor up = V(r->weights, 4 * r->channels, r->rank);
	const hz_tensor w_q = V(r->weights, 4, 4 * r->channels);
	hz_tensor q = V(HZ_F32, r->tokens, 4), u = V(r->dtype, r->tokens, r->channels);

	RECORD(ctx, hz_mhc_gated_pre(ctx, &x, &down, &up, &w_q, &q, &u, &opts), &workspace);
	return hz_mhc_gated_pre(ctx, &x, &down, &up, &w_q, &q, &u, &opts);
}

static int run_mhc_gated_bwd(const void *row)
{
	const struct gated_row *const r = row;
	const hz_tensor x = V(r->dtype, r->tokens, 4, r->channels);
	const hz_tensor gain = V(HZ_F32, 4 * r->channels);
	const hz_tensor down = V(r->weights, r->rank, 4 * r->channels);
	const hz_tensor up = V(r->weights, 4 * r->channels, r->rank);
	const hz_tensor w_q = V(r->weights, 4, 4 * r->channels);
	const hz_tensor du = V(r->dtype, r->tokens, r->channels), dq = V(HZ_F32, r->tokens, 4);
	hz_tensor dx = V(r->dtype, r->tokens, 4, r->channels), dgain = gain;
	hz_tensor dw_down = V(HZ_F32, r->rank, 4 * r->channels);
	hz_tensor dw_up = V(HZ_F32, 4 * r->channels, r->rank);
	hz_tensor dw_q = V(HZ_F32, 4, 4 * r->channels);
	const hz_mhc_opts opts = {.preset = HZ_MHC_PRESET_QWEN4_EXP, .gain = &gain,
				  .dgain = &dgain};
	const hz_mhc_gated_grads g = {.du = &du, .dq = &dq, .dx = &dx, .dw_down = &dw_down,
				      .dw_up = &dw_up, .dw_q = &dw_q};
	hz_tensor *const moved[] = {&dx, &dw_down, &dw_up, &dw_q, &dgain};

	for (int i = 0; i < 5; i++)
		moved[i]->data = operand_at(20 + i);
	RECORD(ctx, hz_mhc_gated_pre_bwd(ctx, &x, &down, &up, &w_q, &g, &opts), &workspace);
	return hz_mhc_gated_pre_bwd(ctx, &x, &down, &up, &w_q, &g, &opts);
}

/* Each tile of the fused kernels, and operands that they do not support */
static void trace_gated(void)
{
	static const int64_t sizes[][3] = {	/* tokens, channels, rank */
		{1, 4096, 128}, {64, 4096, 128}, {300, 1024, 64}, {4096, 4096, 128},
		{2048, 7168, 256}, {8, 40, 24}, {16, 4096, 128},
	};

	EACH(i, sizes) {
		EACH(d, floats) {
			EACH(w, floats)
				trace("mhc_gated_pre", run_mhc_gated,
				      &(struct gated_row){sizes[i][0], sizes[i][1], sizes[i][2],
							  floats[d], floats[w]});
			trace("mhc_gated_pre_bwd", run_mhc_gated_bwd,
			      &(struct gated_row){sizes[i][0], sizes[i][1], sizes[i][2], floats[d],
						  floats[d]});
		}
	}
}

void trace_mhc(void)
{
	static const int64_t sizes[][3] = {	/* tokens, groups, channels */
		{64, 64, 1024}, {64, 2, 1024}, {8192, 8192, 64}, {113, 113, 1024}, {30, 3, 40},
		{2048, 2048, 4096}, {1, 1, 33},
	};

	trace_gated();
	EACH(d, floats) {
		EACH(i, sizes) {
			for (int n = 1; n <= 9; n++) {
				for (int preset = 1; preset <= HZ_MHC_PRESET_LITE; preset++) {
					const struct mhc_row r = {sizes[i][0], sizes[i][1], n,
								  sizes[i][2], floats[d], preset,
								  false};
					const bool lite = preset == HZ_MHC_PRESET_LITE;

					if ((preset > 1 && n % 4) || (lite && n > 4) ||
					    (i > 1 && preset > 3))
						continue;
					trace("mhc_pre", run_mhc_pre, &r);
					trace("mhc_pre_bwd", run_mhc_pre_bwd, &r);
					if (preset == 1 && i < 2)
						trace("mhc_recompute", run_mhc_chain, &r);
					if (d == 0 && i == 0)
						trace("mhc_sinkhorn", run_mhc_sinkhorn, &r);
				}
			}
		}
	}
}
