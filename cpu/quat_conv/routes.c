/*
 * routes.c - convolutions of quaternions on the CPU: their routes; patches
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "cpu/core/cpu.h"
#include "cpu/quat_conv/depthwise.h"
#include "cpu/quat_layer/quat_layer.h"
#include "lib/quat_layer/sums_math.h"

/* ---- Patches --------------------------------------------------------------------------------- */

/*
 * Copies the channels of `pixels` neighbours, components of `size` bytes, or zeros if from is NULL;
 * more than one only if pixels are contiguous.
 */
static void patch_copy(const struct hzi_quat_patch_step *a, const char *from, char *to, size_t size,
		       int64_t pixels)
{
	const int64_t step = a->x.stride[4];
	const size_t all = (size_t)(pixels * a->channels * 4) * size;

	if (!from) {
		memset(to, 0, all);
		return;
	}
	if (a->x.whole && (step == 4 || a->channels == 1)) {
		memcpy(to, from, all);
		return;
	}
	for (int64_t i = 0; i < a->channels; i++) {
		for (int c = 0; c < 4; c++, to += size)
			memcpy(to, from + (i * step + a->x.comp[c]) * (int64_t)size, size);
	}
}

static bool is_inside(const struct hzi_quat_patch_step *a, int d, int64_t p)
{
	return p >= 0 && p < a->size[d];
}

/* The taps of a line, from pixel `from` on; inside: whether that is within the other dimensions. */
static void patch_line(const struct hzi_quat_patch_step *a, struct hzi_quat_position from,
		       bool inside, char *to, size_t size)
{
	const int64_t taps = a->taps[2], all = taps * a->taps[1] * a->taps[0];
	const size_t piece = (size_t)a->channels * 4 * size;
	const bool contiguous = a->groups == 1 && a->each[2] == 1 && a->x.whole &&
				a->x.stride[3] == 4 * a->channels &&
				(a->x.stride[4] == 4 || a->channels == 1);

	for (int64_t t = 0, n; t < taps; t += n, from.p[2] += n * a->each[2]) {
		const bool copied = inside && is_inside(a, 2, from.p[2]);

		n = 1;
		if (contiguous && copied)
			n = a->size[2] - from.p[2] < taps - t ? a->size[2] - from.p[2] : taps - t;
		for (int64_t g = 0; g < a->groups; g++) {
			from.c = g * a->channels;
			patch_copy(a, copied ? (const char *)a->x.data +
				   hzi_quat_position_offset(a->x.stride, from) * (int64_t)size :
				   NULL,
				   to + (size_t)(g * all + t) * piece, size, n);
		}
	}
}

static void patch_work(void *job, int thread, int64_t begin, int64_t end)
{
	const struct hzi_quat_patch_step *a = job;
	const size_t size = hz_dtype_size(a->x.dtype);
	const size_t line = (size_t)(a->taps[2] * a->channels * 4) * size;
	char *to = (char *)a->out + (size_t)(begin * a->groups * a->taps[0] * a->taps[1]) * line;

	(void)thread;
	for (int64_t r = begin; r < end; r++) {
		const struct hzi_quat_position u = hzi_quat_position(r + a->first, a->count, 1);
		struct hzi_quat_position from = {.image = u.image};

		from.p[2] = u.p[2] * a->step[2] + a->base[2];
		for (int64_t i = 0; i < a->taps[0]; i++) {
			from.p[0] = u.p[0] * a->step[0] + i * a->each[0] + a->base[0];
			for (int64_t j = 0; j < a->taps[1]; j++, to += line) {
				from.p[1] = u.p[1] * a->step[1] + j * a->each[1] + a->base[1];
				patch_line(a, from, is_inside(a, 0, from.p[0]) &&
					   is_inside(a, 1, from.p[1]), to, size);
			}
		}
		to += (size_t)((a->groups - 1) * a->taps[0] * a->taps[1]) * line;
	}
}

static int patch(struct hz_context *ctx, const char *op, const struct hzi_quat_patch_step *a)
{
	const int64_t row = a->groups * a->channels * a->taps[0] * a->taps[1] * a->taps[2] * 16;

	(void)op;
	hzi_parallel(ctx, hzi_threads(ctx, a->rows * row), patch_work, (void *)(uintptr_t)a,
		     a->rows);
	return HZ_OK;
}

/* ---- Routes ---------------------------------------------------------------------------------- */

/* Ranks: a single group is faster as a GEMM. */
HZI_RANK(depthwise, struct hzi_quat_conv_step, a->x.groups > 1, 0, 2)
HZI_RANK(wgrad_depthwise, struct hzi_quat_wgrad_step, a->x.groups > 1, 0, 2)

static const struct hzi_route conv[] = {
	{.name = "depthwise", .what = "one channel in each group",
	 .unsupported = hzi_cpu_quat_conv_depthwise_unsupported, .cost = depthwise_cost,
	 .workspace = hzi_cpu_quat_conv_depthwise_workspace, .run = hzi_cpu_quat_conv_depthwise},
	{.name = "patches", .what = "patches of x in memory, then quat_gemm"},
};

static const struct hzi_route wgrad[] = {
	{.name = "depthwise", .what = "one channel in each group",
	 .unsupported = hzi_cpu_quat_conv_wgrad_depthwise_unsupported,
	 .cost = wgrad_depthwise_cost, .workspace = hzi_cpu_quat_conv_wgrad_depthwise_workspace,
	 .run = hzi_cpu_quat_conv_wgrad_depthwise},
	{.name = "patches", .what = "patches of x in memory, then quat_gemm"},
};

/*
 * Routes of quat_conv_bwd compute the gradient of w; the gradient of x uses the routes of
 * quat_conv.
 */
const struct hzi_op_routes hzi_cpu_quat_conv_routes[] = {
	HZI_RANKED_ROUTES(quat_conv, conv), HZI_RANKED_ROUTES(quat_conv_bwd, wgrad), {0},
};

/*
 * Patches that stay in L2: on a Xeon 1 MiB at a time has 0.78 of the rate of the products alone, 8
 * MiB 0.73.
 */
const struct hzi_quat_conv_steps hzi_cpu_quat_conv_steps = {
	.layer = &hzi_cpu_quat_steps, .patch = patch,
	.conv = &hzi_cpu_quat_conv_routes[0], .weights = &hzi_cpu_quat_conv_routes[1],
	.packs = true, .patch_bytes = (size_t)1 << 20,
};
