/*
 * run.c - hurwitz run of linear layers with quantized weights
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "tools/core/run.h"

#define END {NULL, 0, NULL, 0, 0, NULL, NULL}
#define LAST {NULL, NULL, 0, NULL, NULL}

static const struct word format_words[] = {
	{"s8-row", HZ_LINEAR_S8_ROW}, {"e8-4.5-fast", HZ_LINEAR_E8_4_50_FAST},
	{"e8-4.5", HZ_LINEAR_E8_4_50}, {"e8-4.25", HZ_LINEAR_E8_4_25},
	{"e8-4.25-best", HZ_LINEAR_E8_4_25_BEST}, {"e8-3.25-fast", HZ_LINEAR_E8_3_25_FAST},
	{"e8-3.25", HZ_LINEAR_E8_3_25}, {"e8-2.25", HZ_LINEAR_E8_2_25},
	{"d4-4.5", HZ_LINEAR_D4_4_50}, {"s8-g128", HZ_LINEAR_S8_G128},
	{"s4-g32", HZ_LINEAR_S4_G32}, {"s4-g128", HZ_LINEAR_S4_G128},
	{"u4-g128", HZ_LINEAR_U4_G128}, {"mxfp4", HZ_LINEAR_MXFP4},
	{"nvfp4", HZ_LINEAR_NVFP4}, {NULL, 0},
};

static const struct word linear_activation_words[] = {
	{"none", HZ_ACT_NONE}, {"relu", HZ_ACT_RELU}, {"tanh", HZ_ACT_TANH},
	{"sigmoid", HZ_ACT_SIGMOID}, {"gelu", HZ_ACT_GELU}, {"silu", HZ_ACT_SILU},
	{"gelu_tanh", HZ_ACT_GELU_TANH}, {NULL, 0},
};

static const struct key linear_keys[] = {
	{"format", KEY_WORD, format_words, 0, 0,
	 "s8-row|e8-4.5-fast|e8-4.5|e8-4.25|e8-4.25-best|e8-3.25-fast|e8-3.25|e8-2.25|d4-4.5|"
	 "s8-g128|s4-g32|s4-g128|u4-g128|mxfp4|nvfp4",
	 "what w is quantized to; default s8-row"},
	{"rotate", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: in-features are rotated by a randomized Hadamard transform"},
	{"seed", KEY_SEED, NULL, 0, 0, "N", "with rotate=1: the seed of its signs; default 0"},
	{"out", KEY_WORD, float_words, 0, 0, "f32|f16|bf16",
	 "the dtype of the output; default f32"},
	END,
};

static const struct key forward_keys[] = {
	{"activation", KEY_WORD, linear_activation_words, 0, 0,
	 "none|relu|tanh|sigmoid|gelu|silu|gelu_tanh", "default none"},
	{"gated", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: y = activation(first half of out) times the second half"},
	{"weight_only", KEY_WORD, switch_words, 0, 0, "0|1", "1: groups multiply x as it is"},
	END,
};

#define W {"w", NULL, 0, "f32 f16 bf16", "[out, in], the weights to quantize"}
#define MOMENTS {"moments", NULL, OPTIONAL, "f32", \
		 "[in], means of x^2, which weigh errors, or [in, in], of x_j x_k"}

static const struct operand forward_operands[] = {
	W, MOMENTS, {"x", NULL, 0, "f32 f16 bf16", "[.., in]"},
	{"bias", NULL, OPTIONAL, "f32", "[out]"},
	{"y", NULL, OUTPUT, "f32 f16 bf16", "[.., out]; gated=1: [.., out / 2]"}, LAST,
};

static const struct operand bwd_operands[] = {
	W, MOMENTS, {"dy", NULL, 0, "f32 f16 bf16", "[.., out]"},
	{"dx", NULL, OUTPUT, "f32 f16 bf16", "[.., in]"}, LAST,
};

static const struct operand dequantize_operands[] = {
	W, MOMENTS, {"y", NULL, OUTPUT, "f32 f16 bf16", "[out, in], the decoded weights"}, LAST,
};

/* The output has the dimensions of x but for the last, dimension d of w divided by `by`. */
static int shape_of(struct job *job, const char *x_name, const char *y_name, int d, int by)
{
	const struct npy *w = &slot_of(job, "w")->array, *x = &slot_of(job, x_name)->array;
	struct slot *y = slot_of(job, y_name);

	if (w->ndim != 2)
		return complain(EXIT_BAD, "%s: w.ndim is %d, must be 2: [out, in]", job->op->name,
				w->ndim);
	if (x->ndim < 1)
		return complain(EXIT_BAD, "%s: %s.ndim is 0, must be 1 to %d", job->op->name, x_name,
				HZ_MAXDIM);
	y->array.ndim = x->ndim;
	for (int i = 0; i < x->ndim - 1; i++)
		y->array.shape[i] = x->shape[i];
	y->array.shape[x->ndim - 1] = w->shape[d] / by;
	return output_dtype(job, y, y_name, HZ_F32);
}

static int forward_outputs(struct job *job)
{
	return shape_of(job, "x", "y", 0, value_or(job, "gated", 0) ? 2 : 1);
}

static int bwd_outputs(struct job *job)
{
	return shape_of(job, "dy", "dx", 1, 1);
}

static int dequantize_outputs(struct job *job)
{
	return shape_of(job, "w", "y", 1, 1);
}

static int open_layer(hz_context *ctx, struct job *job, hz_linear **layer)
{
	const hz_linear_open_opts o = {
		.format = (int32_t)value_or(job, "format", 0),
		.flags = value_or(job, "rotate", 0) ? HZ_LINEAR_ROTATE : 0,
		.seed = (uint64_t)value_or(job, "seed", 0), .moments = view_of(job, "moments"),
	};

	return hz_linear_open(ctx, layer, view_of(job, "w"), &o);
}

/* Waits for the call, then closes the layer; the call's status. */
static int finish(hz_context *ctx, hz_linear *layer, int status)
{
	const int waited = hz_sync(ctx);

	hz_linear_close(layer);
	return status ? status : waited;
}

static int forward_call(hz_context *ctx, struct job *job)
{
	const hz_linear_opts o = {
		.activation = (int32_t)value_or(job, "activation", HZ_ACT_NONE),
		.flags = (value_or(job, "gated", 0) ? HZ_LINEAR_GATED : 0) |
			 (value_or(job, "weight_only", 0) ? HZ_LINEAR_WEIGHT_ONLY : 0),
	};
	hz_linear *l;
	const int status = open_layer(ctx, job, &l);

	return status ? status :
	       finish(ctx, l, WITH_WORKSPACE(ctx, hz_linear_forward(ctx, l, view_of(job, "x"),
								    view_of(job, "bias"),
								    view_of(job, "y"), &o)));
}

static int bwd_call(hz_context *ctx, struct job *job)
{
	hz_linear *l;
	const int status = open_layer(ctx, job, &l);

	return status ? status :
	       finish(ctx, l, WITH_WORKSPACE(ctx, hz_linear_bwd(ctx, l, view_of(job, "dy"),
								view_of(job, "dx"))));
}

static int dequantize_call(hz_context *ctx, struct job *job)
{
	hz_linear *l;
	const int status = open_layer(ctx, job, &l);

	return status ? status :
	       finish(ctx, l, WITH_WORKSPACE(ctx, hz_linear_dequantize(ctx, l, view_of(job, "y"))));
}

const struct op op_linear_forward = {
	"linear_forward", "y = activation(x W'^T + bias), W' being w quantized",
	forward_operands, (const struct key *const[]){linear_keys, forward_keys, NULL},
	forward_outputs, forward_call,
};

const struct op op_linear_bwd = {
	"linear_bwd", "dx = dy W', W' being w quantized",
	bwd_operands, (const struct key *const[]){linear_keys, NULL}, bwd_outputs, bwd_call,
};

const struct op op_linear_dequantize = {
	"linear_dequantize", "y = W', w quantized and decoded again",
	dequantize_operands, (const struct key *const[]){linear_keys, NULL},
	dequantize_outputs, dequantize_call,
};
