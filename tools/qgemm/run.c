/*
 * run.c - hurwitz run of quantization, quantized multiplication and linear layers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/run.h"

static const struct word code_words[] = {{"u8", HZ_U8}, {"s8", HZ_S8}, {NULL, 0}};

static const struct word format_words[] = {
	{"u8", HZ_U8}, {"s8", HZ_S8}, {"e2m1", HZ_E2M1X2}, {"e4m3", HZ_E4M3}, {"e5m2", HZ_E5M2},
	{"s4", HZ_S4X2}, {"u4", HZ_U4X2}, {"s2", HZ_S2X4}, {"u2", HZ_U2X4}, {"s16", HZ_S16},
	{"u16", HZ_U16}, {NULL, 0},
};

static const struct word scale_words[] = {
	{"f32", HZ_F32}, {"e8m0", HZ_E8M0}, {"e4m3", HZ_E4M3}, {NULL, 0},
};

static const struct word rule_words[] = {
	{"auto", HZ_SCALE_AUTO}, {"amax", HZ_SCALE_AMAX}, {"floor", HZ_SCALE_FLOOR},
	{"ceil", HZ_SCALE_CEIL}, {"even", HZ_SCALE_EVEN}, {"rceil", HZ_SCALE_RCEIL},
	{"nv_te", HZ_SCALE_NV_TE}, {"nv_torchao", HZ_SCALE_NV_TORCHAO}, {"nv46", HZ_SCALE_NV46},
	{NULL, 0},
};

static const struct word group_words[] = {
	{"row", 0}, {"16", 16}, {"32", 32}, {"64", 64}, {"128", 128}, {NULL, 0},
};

static const struct word preset_words[] = {{"te_nvfp4", 1}, {NULL, 0}};

static const struct word round_words[] = {
	{"none", 0}, {"f16", HZ_F16}, {"bf16", HZ_BF16}, {NULL, 0},
};

static const struct word c_words[] = {
	{"u8", HZ_U8}, {"s8", HZ_S8}, {"s32", HZ_S32}, {"f32", HZ_F32}, {"f16", HZ_F16},
	{"bf16", HZ_BF16}, {NULL, 0},
};

static const struct word requant_words[] = {
	{"exact", HZ_REQUANT_EXACT}, {"float", HZ_REQUANT_FLOAT}, {"ruy", HZ_REQUANT_RUY},
	{"gemmlowp", HZ_REQUANT_GEMMLOWP}, {"litert_ref", HZ_REQUANT_LITERT_REF}, {NULL, 0},
};

static const struct word symmetric_words[] = {
	{"0", 0}, {"127", HZ_QPARAMS_SYMMETRIC}, {"127.5", HZ_QPARAMS_SYMMETRIC_127_5}, {NULL, 0},
};

static const struct word arith_words[] = {{"f64", 0}, {"f32", HZ_QPARAMS_F32}, {NULL, 0}};

enum { PER_TENSOR, PER_ROW, PER_COLUMN };

static const struct word per_words[] = {
	{"tensor", PER_TENSOR}, {"row", PER_ROW}, {"column", PER_COLUMN}, {NULL, 0},
};

#define END {NULL, 0, NULL, 0, 0, NULL, NULL}

/* ---- quantize, dequantize -------------------------------------------------------------------- */

static const struct key scale_keys[] = {
	{"scale", KEY_NUMBER, NULL, 0, 0, "NUMBER", "one scale for all; this or scales is needed"},
	{"zero", KEY_INT, NULL, INT32_MIN, INT32_MAX, "N", "one zero point for all; default 0"},
	END,
};

static const struct key rotate_keys[] = {
	{"rotate", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: with a transform of rows, as hadamard makes it; default 1 with one of\n"
	 "the keys below, pre or post"},
	END,
};

static const struct key format_keys[] = {
	{"format", KEY_WORD, format_words, 0, 0, "u8|s8|e2m1|e4m3|e5m2|s4|u4|s2|u2|s16|u16",
	 "what q holds; default u8, or as zeros or q. e2m1, s4, u4: two to a\n"
	 "byte, s2, u2: four, the earlier in the lower bits"},
	{"group", KEY_WORD, group_words, 0, 0, "row|16|32|64|128",
	 "elements of a row that share a scale, the last group may have fewer"},
	{"scale_type", KEY_WORD, scale_words, 0, 0, "f32|e8m0|e4m3",
	 "the type of scales; e8m0, e4m3: as uint8; default f32"},
	{"preset", KEY_WORD, preset_words, 0, 0, "te_nvfp4",
	 "TransformerEngine's recipe: format=e2m1 group=16 scale_type=e4m3 block=16\n"
	 "round_to=bf16 and its signs as pre"},
	END,
};

static const struct key choice_keys[] = {
	{"scale_rule", KEY_WORD, rule_words, 0, 0,
	 "auto|amax|floor|ceil|even|rceil|nv_te|nv_torchao|nv46",
	 "how new_scales are chosen; auto: f32 amax, e8m0 rceil, e4m3 nv_te"},
	{"round_to", KEY_WORD, round_words, 0, 0, "none|f16|bf16",
	 "with new_scales: round between transform and quantization; default none"},
	{"min", KEY_INT, NULL, -32768, 65535, "N", "integers: codes are at least this"},
	{"max", KEY_INT, NULL, -32768, 65535, "N", "integers: codes are at most this"},
	{"stochastic", KEY_SEED, NULL, 0, 0, "N", "stochastic rounding by this seed"},
	END,
};

static const struct key out_keys[] = {
	{"out", KEY_WORD, float_words, 0, 0, "f32|f16|bf16", "the dtype of y; default f32"},
	END,
};

#define SCALE_SHAPE "each size that of x, a divisor, or 1; e8m0, e4m3: u8"
#define ZERO_SHAPE "the shape of scales, the dtype of q; packed: s8 or u8"

static const struct operand quantize_operands[] = {
	{"x", NULL, 0, "f32 f16 bf16", "any shape"},
	{"q", NULL, OUTPUT, "u8 s8 e2m1x2 e4m3 e5m2 s4x2 u4x2 s2x4 u2x4 s16 u16",
	 "the shape of x; packed: the last a half or a quarter"},
	{"scales", NULL, OPTIONAL | RAW, "f32 u8", SCALE_SHAPE},
	{"zeros", NULL, OPTIONAL | RAW, "u8 s8 u16 s16", ZERO_SHAPE},
	{"new_scales", NULL, OUTPUT | OPTIONAL | ONLY, "f32 e8m0 e4m3",
	 "[..., N / group], chosen instead of scales"},
	{"tensor_scale", NULL, OPTIONAL, "f32", "[1], a further factor of decoding"},
	{"new_tensor_scale", NULL, OUTPUT | OPTIONAL | ONLY, "f32", "[1], chosen instead"},
	{"pre", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", SIGNS_SHAPE},
	{"post", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", "as pre, but after the transform"},
	{NULL, NULL, 0, NULL, NULL},
};

static const struct operand dequantize_operands[] = {
	{"q", NULL, RAW, "u8 s8 u16 s16", "any shape; packed: the last a half or a quarter"},
	{"y", "x", OUTPUT, "f32 f16 bf16", "the shape of the codes"},
	{"scales", NULL, OPTIONAL | RAW, "f32 u8", SCALE_SHAPE},
	{"zeros", NULL, OPTIONAL | RAW, "u8 s8 u16 s16", ZERO_SHAPE},
	{"tensor_scale", NULL, OPTIONAL, "f32", "[1], a further factor"},
	{"pre", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", SIGNS_SHAPE},
	{"post", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", "as pre, but after the transform"},
	{NULL, NULL, 0, NULL, NULL},
};

/* Checks scales while they are on the host: calls on a GPU cannot. Returns the exit status. */
static int check_scales(struct job *job, const char *name)
{
	const struct slot *slot = slot_of(job, name);
	const float *scale = slot->array.data;

	if (!slot->path)
		return 0;
	for (int64_t i = 0; i < slot->array.count && slot->array.dtype == HZ_F32; i++)
		if (!(scale[i] > 0 && isfinite(scale[i])))
			return complain(EXIT_BAD, "%s: element %lld of %s is %g, must be positive"
				" and finite", job->op->name, (long long)i, name, scale[i]);
	return 0;
}

/* Codes without a scale would mean nothing: there is no default. */
static int need_scale(struct job *job)
{
	struct npy *scale = &slot_of(job, "scales")->array;
	const int64_t type = value_or(job, "scale_type", HZ_F32);

	if (slot_of(job, "scales")->path && (type == HZ_F32) != (scale->dtype == HZ_F32))
		return complain(EXIT_BAD, "%s: scales holds %s, scale_type=%s wants %s",
				job->op->name, held(scale), hz_dtype_name((int)type),
				type == HZ_F32 ? "float32" : "uint8 or 'V1'");
	if (type != HZ_F32)
		scale->dtype = (int)type;
	if (!slot_of(job, "scales")->path && type != HZ_F32)
		return complain(EXIT_BAD, "%s: scale_type= is for scales in a file: scale= is a number",
				job->op->name);
	if (slot_of(job, "scales")->path || value_of(job, "scale")->given)
		return check_scales(job, "scales");
	return complain(EXIT_BAD, "%s: scale= or scales= is missing: give a number or a file, for "
			"example what choose_qparams prints", job->op->name);
}

static int check_range(struct job *job, const char *name, int32_t high)
{
	const struct slot *slot = slot_of(job, name);
	const int32_t *v = slot->array.data;

	if (!slot->path)
		return 0;
	for (int64_t i = 0; i < slot->array.count && slot->array.dtype == HZ_S32; i++)
		if (v[i] < 1 || v[i] > high)
			return complain(EXIT_BAD, "%s: element %lld of %s is %d, must be 1 to %d",
					job->op->name, (long long)i, name, (int)v[i], (int)high);
	return 0;
}

/* Whether the call has a transform: with rotate=1, or with an option of one */
static bool is_rotated(struct job *job)
{
	const struct value *rotate = value_of(job, "rotate");
	bool given = view_of(job, "pre") || view_of(job, "post");

	for (const struct key *k = rotation_keys; k->name; k++)
		given |= value_of(job, k->name)->given;
	return rotate->given ? rotate->n != 0 : given;
}

/* preset=: the keys that it stands for, where they are not given, and signs; the exit status */
static int take_preset(struct job *job)
{
	static const struct {
		const char *key;
		int n;
	} defaults[] = {
		{"format", HZ_E2M1X2}, {"group", 16}, {"scale_type", HZ_E4M3}, {"block", 16},
		{"round_to", HZ_BF16},
	};
	static const uint8_t signs[2] = {0xe8, 0xd7};	/* + + + - + - - - - - - + - + - - */
	struct slot *pre = slot_of(job, "pre");

	if (!value_of(job, "preset")->given)
		return 0;
	/* dequantize has no round_to */
	for (size_t i = 0; i < (job->op == &op_quantize ? 5 : 4); i++) {
		struct value *v = (struct value *)(uintptr_t)value_of(job, defaults[i].key);

		if (!v->given)
			*v = (struct value){.given = true, .n = defaults[i].n};
	}
	if (pre->path || value_of(job, "seed")->given)
		return 0;
	pre->path = "the signs of preset=";
	pre->array = (struct npy){.dtype = HZ_U8, .ndim = 1, .shape = {2}, .count = 2, .bytes = 2,
				  .data = allocate(2)};
	if (!pre->array.data)
		return complain(EXIT_FAILURE, "there is not enough memory for the signs");
	memcpy(pre->array.data, signs, 2);
	return 0;
}

/* The options that keys and operands of both calls give */
static void quantize_opts(struct job *job, hz_quantize_opts *o, hz_hadamard_opts *hadamard)
{
	const struct value *number = value_of(job, "scale");

	*o = (hz_quantize_opts){
		.scale = number->given ? number->number : 0,
		.zero = (int32_t)value_or(job, "zero", 0),
		.scales = view_of(job, "scales"),
		.zeros = view_of(job, "zeros"),
		.group = value_or(job, "group", 0),
		.tensor_scale = view_of(job, "tensor_scale"),
	};
	if (is_rotated(job)) {
		*hadamard = hadamard_opts(job);
		o->hadamard = hadamard;
	}
}

/* Gives zeros=FILE the type of zero points: files of int4 and the like hold a byte each. */
static void type_zeros(struct job *job, int format)
{
	struct npy *zero = &slot_of(job, "zeros")->array;

	if (zero->raw)
		zero->dtype = format == HZ_S4X2 || format == HZ_S2X4 ? HZ_S8 : HZ_U8;
	zero->raw = 0;
}

/* The shape of new_scales: that of x, whose last dimension counts groups */
static int new_scales_shape(struct job *job, const struct npy *x)
{
	struct npy *scale = &slot_of(job, "new_scales")->array;
	struct npy *tensor = &slot_of(job, "new_tensor_scale")->array;
	const int64_t group = value_or(job, "group", 0);
	const int last = x->ndim - 1;

	scale->dtype = (int)value_or(job, "scale_type", HZ_F32);
	scale->ndim = x->ndim;
	memcpy(scale->shape, x->shape, sizeof(x->shape));
	if (last >= 0)
		scale->shape[last] = group ? x->shape[last] / group + (x->shape[last] % group != 0)
					   : x->shape[last] > 0;
	tensor->dtype = HZ_F32;
	tensor->ndim = 1;
	tensor->shape[0] = 1;
	if (slot_of(job, "new_scales")->path)
		return 0;
	if (slot_of(job, "new_tensor_scale")->path || value_of(job, "scale_rule")->given)
		return complain(EXIT_BAD, "%s: %s= needs new_scales=FILE", job->op->name,
				value_of(job, "scale_rule")->given ? "scale_rule"
								   : "new_tensor_scale");
	return need_scale(job);
}

static int quantize_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array;
	struct slot *q = slot_of(job, "q"), *zero = slot_of(job, "zeros");
	const int last = x->ndim - 1;
	const bool preset = value_of(job, "preset")->given, given = slot_of(job, "new_scales")->path;
	int status, format;

	/* Quotients by scales that are given are of values that are not rounded. */
	if (preset && !given)
		return complain(EXIT_BAD, "%s: preset= needs new_scales=FILE", job->op->name);
	if (value_or(job, "round_to", 0) && !(given && (preset || is_rotated(job))))
		return complain(EXIT_BAD, "%s: round_to= needs new_scales=FILE and a transform, such as "
				"rotate=1", job->op->name);
	status = take_preset(job);
	if (!status)
		status = new_scales_shape(job, x);
	format = (int)value_or(job, "format", zero->path ? zero->array.dtype : HZ_U8);
	q->array.dtype = format;
	q->array.ndim = x->ndim;
	memcpy(q->array.shape, x->shape, sizeof(x->shape));
	if (last >= 0)
		q->array.shape[last] /= codes_per_byte(format);
	type_zeros(job, format);
	return status ? status : hadamard_common(job, x->ndim, x->shape);
}

static int quantize_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x");
	hz_hadamard_opts hadamard;
	hz_quantize_opts o;

	const struct value *min = value_of(job, "min"), *max = value_of(job, "max");
	const struct value *stochastic = value_of(job, "stochastic");

	quantize_opts(job, &o, &hadamard);
	hadamard.round_to = (int32_t)value_or(job, "round_to", 0);
	o.new_scales = view_of(job, "new_scales");
	o.new_tensor_scale = view_of(job, "new_tensor_scale");
	o.scale_rule = (int32_t)value_or(job, "scale_rule", HZ_SCALE_AUTO);
	o.given = (min->given ? HZ_QUANTIZE_GIVEN_MIN : 0) |
		  (max->given ? HZ_QUANTIZE_GIVEN_MAX : 0) |
		  (stochastic->given ? HZ_QUANTIZE_GIVEN_STOCHASTIC : 0);
	o.min = (int32_t)value_or(job, "min", 0);
	o.max = (int32_t)value_or(job, "max", 0);
	o.stochastic = (uint64_t)value_or(job, "stochastic", 0);
	return WITH_WORKSPACE(ctx, hz_quantize(ctx, x, view_of(job, "q"), &o));
}

/* Gives the file of codes the type that format= says; its dtype does not determine it. */
static int type_codes(struct job *job, const char *codes)
{
	struct npy *q = &slot_of(job, codes)->array;
	const struct value *format = value_of(job, "format");
	const int dtype = format->given ? (int)format->n : q->dtype;
	const int stored = dtype == HZ_S8 || dtype == HZ_S16 || dtype == HZ_U16 ? dtype : HZ_U8;
	const char *name = "";

	for (const struct word *w = format_words; w->name; w++) {
		if (w->value == dtype)
			name = w->name;
	}
	if (q->raw && !format->given)
		return complain(EXIT_BAD, "%s: %s holds %s: format= says what it is",
				job->op->name, codes, held(q));
	if (q->dtype != stored || (q->raw == 'f' && dtype != HZ_E5M2) ||
	    (q->raw == 'V' && (dtype == HZ_U8 || dtype == HZ_E5M2)))
		return complain(EXIT_BAD, "%s: %s holds %s, format=%s wants %s", job->op->name,
				codes, held(q), name,
				stored == HZ_S8 ? "int8" : stored == HZ_S16 ? "int16" :
				stored == HZ_U16 ? "uint16" : dtype == HZ_U8 ? "uint8" :
				dtype == HZ_E5M2 ? "uint8 or 'f1'" : "uint8 or 'V1'");
	if (q->raw) {
		const int status = pack_codes(job, q, dtype, name);

		if (status)
			return status;
	}
	q->raw = 0;
	q->dtype = dtype;
	type_zeros(job, dtype);
	return 0;
}

static int dequantize_outputs(struct job *job)
{
	const struct npy *q = &slot_of(job, "q")->array;
	struct slot *y = slot_of(job, "y");
	int status = take_preset(job);

	if (!status)
		status = type_codes(job, "q");
	if (!status)
		status = need_scale(job);
	y->array.ndim = q->ndim;
	memcpy(y->array.shape, q->shape, sizeof(q->shape));
	if (!status && q->ndim > 0 &&
	    __builtin_mul_overflow(q->shape[q->ndim - 1], codes_per_byte(q->dtype),
				   &y->array.shape[q->ndim - 1]))
		return complain(EXIT_BAD, "%s: the size of y overflows", job->op->name);
	if (!status)
		status = hadamard_common(job, q->ndim, q->shape);
	return status ? status : output_dtype(job, y, "y", HZ_F32);
}

static int dequantize_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *q = view_of(job, "q");
	hz_hadamard_opts hadamard;
	hz_quantize_opts o;

	quantize_opts(job, &o, &hadamard);
	return WITH_WORKSPACE(ctx, hz_dequantize(ctx, q, view_of(job, "y"), &o));
}

const struct op op_quantize = {
	"quantize", "q = clamp(zero + rne(x / scale)), x as it is or transformed",
	quantize_operands,
	(const struct key *const[]){scale_keys, format_keys, choice_keys, rotate_keys,
				    rotation_keys, NULL},
	quantize_outputs, quantize_call,
};

const struct op op_dequantize = {
	"dequantize", "y = scale (q - zero), transformed back if so quantized",
	dequantize_operands,
	(const struct key *const[]){scale_keys, format_keys, out_keys, rotate_keys, rotation_keys,
				    NULL},
	dequantize_outputs, dequantize_call,
};

/* ---- choose_qparams -------------------------------------------------------------------------- */

static const struct key choose_keys[] = {
	{"format", KEY_WORD, code_words, 0, 0, "u8|s8", "what to quantize to; default u8"},
	{"symmetric", KEY_WORD, symmetric_words, 0, 0, "0|127|127.5",
	 "not 0: the zero point is 0 for s8, 128 for u8, and the largest |x| has that code"},
	{"arith", KEY_WORD, arith_words, 0, 0, "f64|f32", "the dtype of quotients; default f64"},
	{"reduce_range", KEY_WORD, switch_words, 0, 0, "0|1", "1: codes of 7 bits"},
	{"per", KEY_WORD, per_words, 0, 0, "tensor|row|column",
	 "what has a scale and zero point of its own; default tensor"},
	{"group", KEY_INT, NULL, 1, INT64_MAX, "N",
	 "each N successive elements of a row have them"},
	END,
};

static const struct operand choose_operands[] = {
	{"x", NULL, 0, "f32 f16 bf16", "any shape"},
	{"scale", NULL, OUTPUT | OPTIONAL, "f32", "sizes 1 where shared; without a file printed"},
	{"zero", NULL, OUTPUT | OPTIONAL, "u8 s8", "the shape of scale, likewise"},
	{NULL, NULL, 0, NULL, NULL},
};

static int choose_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array;
	struct npy *scale = &slot_of(job, "scale")->array, *zero = &slot_of(job, "zero")->array;
	const struct value *group = value_of(job, "group");
	const int64_t per = value_or(job, "per", PER_TENSOR);
	const int last = x->ndim - 1;

	if (x->ndim == 0 && (group->given || per != PER_TENSOR))
		return complain(EXIT_BAD, "%s: x has no dimensions: per=tensor alone",
				job->op->name);
	if (group->given && value_of(job, "per")->given)
		return complain(EXIT_BAD, "%s: per= and group= are two ways: one of them",
				job->op->name);
	scale->ndim = x->ndim;
	for (int d = 0; d < x->ndim; d++)
		scale->shape[d] = (d == last ? per == PER_COLUMN : per == PER_ROW || group->given) ?
				  x->shape[d] : 1;
	if (group->given) {
		if (x->shape[last] % group->n)
			return complain(
				EXIT_BAD,
				"%s: group=%lld does not divide %lld, the last dimension of x",
				job->op->name, (long long)group->n,
					(long long)x->shape[last]);
		scale->shape[last] = x->shape[last] / group->n;
	}
	scale->dtype = HZ_F32;
	zero->ndim = scale->ndim;
	memcpy(zero->shape, scale->shape, sizeof(scale->shape));
	zero->dtype = (int)value_or(job, "format", HZ_U8);
	return 0;
}

static int choose_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x");
	hz_tensor *scale = view_of(job, "scale"), *zero = view_of(job, "zero");
	const uint32_t flags = (uint32_t)value_or(job, "symmetric", 0) |
			       (uint32_t)value_or(job, "arith", 0) |
			       (value_or(job, "reduce_range", 0) ? HZ_QPARAMS_REDUCE_RANGE : 0);

	return WITH_WORKSPACE(ctx, hz_choose_qparams(ctx, x, scale, zero, flags));
}

const struct op op_choose_qparams = {
	"choose_qparams", "scales and zero points from the ranges of x",
	choose_operands,  (const struct key *const[]){choose_keys, NULL},
	choose_outputs,	  choose_call,
};

/* ---- qgemm, qlinear -------------------------------------------------------------------------- */

static const struct key a_keys[] = {
	{"a_zero", KEY_INT, NULL, INT32_MIN, INT32_MAX, "N", "the zero point of A; default 0"},
	{"a_scale", KEY_NUMBER, NULL, 0, 0, "NUMBER", "the scale of A; default 1"},
	END,
};

static const struct key b_keys[] = {
	{"b_zero", KEY_INT, NULL, INT32_MIN, INT32_MAX, "N", "the zero point of B; default 0"},
	{"b_scale", KEY_NUMBER, NULL, 0, 0, "NUMBER", "the scale of B; default 1"},
	{"min", KEY_REAL, NULL, 0, 0, "NUMBER", "results are at least this"},
	{"max", KEY_REAL, NULL, 0, 0, "NUMBER", "results are at most this"},
	{"relu", KEY_WORD, switch_words, 0, 0, "0|1", "1: results are at least c_zero, or 0"},
	{"trans_b", KEY_WORD, switch_words, 0, 0, "0|1", "1: b holds the transpose, [..., n, k]"},
	{"pack", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: pack B first, which gives the same results"},
	END,
};

static const struct key c_keys[] = {
	{"c_zero", KEY_INT, NULL, INT32_MIN, INT32_MAX, "N", "the zero point of C; default 0"},
	{"c_scale", KEY_NUMBER, NULL, 0, 0, "NUMBER", "the scale of C; default 1"},
	{"sigma", KEY_NUMBER, NULL, 0, 0, "NUMBER", "a_scale b_scale / c_scale, instead of them"},
	{"multiplier", KEY_INT, NULL, 1, INT32_MAX, "U", "sigma is U / 2^S"},
	{"shift", KEY_INT, NULL, 1, 62, "S", "with multiplier"},
	{"requant", KEY_WORD, requant_words, 0, 0, "exact|float|ruy|gemmlowp|litert_ref",
	 "exact, the default: rounded once, in integers; else as in that library, float: in f32"},
	{"out", KEY_WORD, c_words, 0, 0, "u8|s8|s32|f32|f16|bf16", "the dtype of C; default u8"},
	{"trans_a", KEY_WORD, switch_words, 0, 0, "0|1", "1: a holds the transpose, [..., k, m]"},
	END,
};

static const struct key linear_keys[] = {
	{"x_dtype", KEY_WORD, code_words, 0, 0, "u8|s8", "what x is quantized to; default u8"},
	{"symmetric", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: zero is 0 for s8, 128 for u8, if rows have scales of their own"},
	{"a_zero", KEY_INT, NULL, INT32_MIN, INT32_MAX, "N", "with a_scale: the zero point of x"},
	{"a_scale", KEY_NUMBER, NULL, 0, 0, "NUMBER",
	 "one scale for x; without it each row has one of its range"},
	{"out", KEY_WORD, float_words, 0, 0, "f32|f16|bf16", "the dtype of y; default that of x"},
	END,
};

static const struct operand qgemm_operands[] = {
	{"a", NULL, 0, "u8 s8", "[..., m, k]"},
	{"b", NULL, 0, "u8 s8", "[..., k, n]"},
	{"c", NULL, OUTPUT, "u8 s8 s32 f32 f16 bf16", "[..., m, n]"},
	{"bias", NULL, OPTIONAL, "s32 f32", "[n]; f32 for a float C or requant=float"},
	{"a_zeros", NULL, OPTIONAL, "u8 s8", "[..., m], instead of a_zero"},
	{"b_zeros", NULL, OPTIONAL, "u8 s8", "[n]"},
	{"a_scales", NULL, OPTIONAL, "f32", "[..., m], for a float C"},
	{"b_scales", NULL, OPTIONAL, "f32", "[n]"},
	{"multipliers", NULL, OPTIONAL, "s32", "[n]"},
	{"shifts", NULL, OPTIONAL, "s32", "[n]"},
	{NULL, NULL, 0, NULL, NULL},
};

static const struct operand qlinear_operands[] = {
	{"x", NULL, 0, "f32 f16 bf16", "[..., m, k]"},
	{"b", NULL, 0, "u8 s8", "[..., k, n], the codes of the weights"},
	{"y", NULL, OUTPUT, "f32 f16 bf16", "[..., m, n]"},
	{"bias", NULL, OPTIONAL, "s32 f32", "[n]"},
	{"b_zeros", NULL, OPTIONAL, "u8 s8", "[n], instead of b_zero"},
	{"b_scales", NULL, OPTIONAL, "f32", "[n]"},
	{NULL, NULL, 0, NULL, NULL},
};

static const struct word group_format_words[] = {
	{"u4", HZ_U4X2}, {"s4", HZ_S4X2}, {"e2m1", HZ_E2M1X2}, {"u8", HZ_U8}, {"s8", HZ_S8},
	{"e4m3", HZ_E4M3}, {NULL, 0},
};

static const struct word byte_scale_words[] = {{"e8m0", HZ_E8M0}, {"e4m3", HZ_E4M3}, {NULL, 0}};

static const struct word x_type_words[] = {{"float", 0}, {"s8", HZ_S8}, {NULL, 0}};

static const struct word x_group_words[] = {{"row", 0}, {"32", 32}, {NULL, 0}};

static const struct key group_keys[] = {
	{"format", KEY_WORD, group_format_words, 0, 0, "u4|s4|e2m1|u8|s8|e4m3",
	 "what w holds; default as its file. u4, s4, e2m1: two of successive k to a byte,\n"
	 "the earlier in the lower half"},
	{"group", KEY_WORD, group_words, 0, 0, "16|32|64|128",
	 "of k, where the shape of scales does not say so"},
	{"scale_type", KEY_WORD, byte_scale_words, 0, 0, "e8m0|e4m3", "what scales holds as uint8"},
	{"trans_w", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: w, scales and zeros hold the transposes, [n, k / ..]"},
	{"x_dtype", KEY_WORD, x_type_words, 0, 0, "float|s8",
	 "s8: floats x are quantized to it; default float: they are not"},
	{"x_group", KEY_WORD, x_group_words, 0, 0, "row|32",
	 "with x_dtype=s8: what shares a scale; default row"},
	{"min", KEY_REAL, NULL, 0, 0, "NUMBER", "results are at least this"},
	{"max", KEY_REAL, NULL, 0, 0, "NUMBER", "results are at most this"},
	{"relu", KEY_WORD, switch_words, 0, 0, "0|1", "1: results are at least 0"},
	{"pack", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: pack w first, which gives the same results"},
	{"out", KEY_WORD, float_words, 0, 0, "f32|f16|bf16",
	 "the dtype of y; default that of x, f32 of s8"},
	END,
};

static const struct operand group_operands[] = {
	{"x", NULL, 0, "f32 f16 bf16 s8", "[..., m, k]"},
	{"w", NULL, RAW, "u8 s8", "[k, n], or [k / 2, n] of bytes of two"},
	{"scales", NULL, RAW, "f32 f16 bf16 u8", "[k / group, n] or [1, n]"},
	{"y", NULL, OUTPUT, "f32 f16 bf16", "[..., m, n]"},
	{"zeros", NULL, OPTIONAL | RAW, "u8 s8", "the shape of scales"},
	{"tensor_scale", NULL, OPTIONAL, "f32", "[1], a further factor of scales"},
	{"x_scales", NULL, OPTIONAL, "f32", "[..., m, 1] or [..., m, k / 32], for x of s8"},
	{"bias", NULL, OPTIONAL, "f32", "[n]"},
	{NULL, NULL, 0, NULL, NULL},
};

static hz_tensor transposed(const hz_tensor *t, bool wanted)
{
	hz_tensor v = *t;

	if (wanted && t->ndim >= 2) {
		const int i = t->ndim - 2, j = t->ndim - 1;

		v.shape[i] = t->shape[j];
		v.shape[j] = t->shape[i];
		v.stride[i] = t->stride[j];
		v.stride[j] = t->stride[i];
	}
	return v;
}

/* The shape of the product; the library reports operands that do not fit. */
static int product_shape(struct job *job, const struct npy *a, bool trans_a, const struct npy *b,
			 bool trans_b, struct npy *c)
{
	const int ndim = a->ndim > b->ndim ? a->ndim : b->ndim;

	if (a->ndim < 2 || b->ndim < 2)
		return complain(EXIT_BAD, "%s: a matrix has %d dimensions, must have 2 at least",
				job->op->name, a->ndim < 2 ? a->ndim : b->ndim);
	c->ndim = ndim;
	for (int d = 0; d < ndim - 2; d++) {
		const int in_a = d - (ndim - a->ndim), in_b = d - (ndim - b->ndim);
		const int64_t a_size = in_a < 0 ? 1 : a->shape[in_a];

		c->shape[d] = a_size == 1 && in_b >= 0 ? b->shape[in_b] : a_size;
	}
	c->shape[ndim - 2] = a->shape[a->ndim - (trans_a ? 1 : 2)];
	c->shape[ndim - 1] = b->shape[b->ndim - (trans_b ? 2 : 1)];
	return 0;
}

static double number_or_0(const struct job *job, const char *key)
{
	const struct value *v = value_of(job, key);

	return v->given ? v->number : 0;
}

/* Options of qgemm and qlinear */
static hz_qgemm_opts gemm_opts(struct job *job)
{
	const struct value *min = value_of(job, "min"), *max = value_of(job, "max");

	return (hz_qgemm_opts){
		.a_zero = (int32_t)value_or(job, "a_zero", 0),
		.b_zero = (int32_t)value_or(job, "b_zero", 0),
		.c_zero = (int32_t)value_or(job, "c_zero", 0),
		.flags = value_or(job, "relu", 0) ? HZ_QGEMM_RELU : 0,
		.given = (min->given ? HZ_QGEMM_GIVEN_MIN : 0) |
			 (max->given ? HZ_QGEMM_GIVEN_MAX : 0),
		.a_scale = number_or_0(job, "a_scale"),
		.b_scale = number_or_0(job, "b_scale"),
		.c_scale = number_or_0(job, "c_scale"),
		.sigma = number_or_0(job, "sigma"),
		.multiplier = (int32_t)value_or(job, "multiplier", 0),
		.shift = (int32_t)value_or(job, "shift", 0),
		.requant = (int32_t)value_or(job, "requant", HZ_REQUANT_EXACT),
		.min = number_or_0(job, "min"),
		.max = number_or_0(job, "max"),
		.b_zeros = view_of(job, "b_zeros"),
		.b_scales = view_of(job, "b_scales"),
		.bias = view_of(job, "bias"),
	};
}

/* Makes the call, after packing B if pack=1. */
static int gemm_call(hz_context *ctx, struct job *job, const hz_tensor *a, const hz_tensor *b,
		     hz_tensor *c, hz_qgemm_opts o, bool linear)
{
	hz_packed packed;
	size_t bytes;
	void *data = NULL;
	int status = HZ_OK;

	if (value_or(job, "pack", 0)) {
		status = hz_qgemm_pack_bytes(ctx, b, &bytes);
		if (status == HZ_OK)
			status = hz_alloc(ctx, &data, bytes, hz_device(ctx));
		if (status == HZ_OK)
			status = hz_qgemm_pack(ctx, b, data, bytes, &packed);
		o.packed = &packed;
		b = NULL;
	}
	if (status == HZ_OK)
		status = WITH_WORKSPACE(ctx, linear ? hz_qlinear(ctx, a, b, c, &o) :
						      hz_qgemm(ctx, a, b, c, &o));
	if (data) {
		hz_sync(ctx);
		hz_free(ctx, data, hz_device(ctx));
	}
	return status;
}

static int qgemm_outputs(struct job *job)
{
	struct slot *c = slot_of(job, "c");
	int status = product_shape(job, &slot_of(job, "a")->array, value_or(job, "trans_a", 0),
				   &slot_of(job, "b")->array, value_or(job, "trans_b", 0),
				   &c->array);

	if (!status)
		status = output_dtype(job, c, "c", HZ_U8);
	/* A float C accepts any scale; 0 is the scale of a row of zeros. */
	if (!status && (c->array.dtype == HZ_U8 || c->array.dtype == HZ_S8 ||
			c->array.dtype == HZ_S32))
		status = check_scales(job, "b_scales");
	if (!status)
		status = check_range(job, "multipliers", INT32_MAX);
	return status ? status : check_range(job, "shifts", 62);
}

static int qgemm_call(hz_context *ctx, struct job *job)
{
	const hz_tensor a = transposed(view_of(job, "a"), value_or(job, "trans_a", 0));
	const hz_tensor b = transposed(view_of(job, "b"), value_or(job, "trans_b", 0));
	hz_qgemm_opts o = gemm_opts(job);

	o.a_zeros = view_of(job, "a_zeros");
	o.a_scales = view_of(job, "a_scales");
	o.multipliers = view_of(job, "multipliers");
	o.shifts = view_of(job, "shifts");
	return gemm_call(ctx, job, &a, &b, view_of(job, "c"), o, false);
}

static int qlinear_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array;
	struct slot *y = slot_of(job, "y");
	const int status = product_shape(job, x, false, &slot_of(job, "b")->array,
					 value_or(job, "trans_b", 0), &y->array);

	return status ? status : output_dtype(job, y, "y", x->dtype);
}

static int qlinear_call(hz_context *ctx, struct job *job)
{
	const hz_tensor b = transposed(view_of(job, "b"), value_or(job, "trans_b", 0));
	hz_qgemm_opts o = gemm_opts(job);

	o.x_dtype = (int32_t)value_or(job, "x_dtype", 0);
	if (value_or(job, "symmetric", 0))
		o.flags |= HZ_QLINEAR_SYMMETRIC;
	return gemm_call(ctx, job, view_of(job, "x"), &b, view_of(job, "y"), o, true);
}

const struct op op_qgemm = {
	"qgemm", "C = clamp(c_zero + round(sigma ((A - a_zero) (B - b_zero) + bias)))",
	qgemm_operands, (const struct key *const[]){a_keys, b_keys, c_keys, NULL},
	qgemm_outputs, qgemm_call,
};

const struct op op_qlinear = {
	"qlinear", "y = x W + bias with dynamic activation quantization of x",
	qlinear_operands, (const struct key *const[]){b_keys, linear_keys, NULL},
	qlinear_outputs, qlinear_call,
};

static int group_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array, *w = &slot_of(job, "w")->array;
	struct npy *scale = &slot_of(job, "scales")->array;
	struct slot *y = slot_of(job, "y");
	const struct value *type = value_of(job, "scale_type");
	int status = type_codes(job, "w");

	if (!status && (scale->dtype == HZ_U8 || scale->raw) != type->given)
		return complain(EXIT_BAD, "%s: scales holds %s: scale_type= is for uint8, and needed "
				"there", job->op->name, held(scale));
	if (type->given) {
		scale->dtype = (int)type->n;
		scale->raw = 0;
	}
	if (!status)
		status = product_shape(job, x, false, w, value_or(job, "trans_w", 0), &y->array);
	return status ? status : output_dtype(job, y, "y", x->dtype == HZ_S8 ? HZ_F32 : x->dtype);
}

static int group_call(hz_context *ctx, struct job *job)
{
	const bool trans = value_or(job, "trans_w", 0), pack = value_or(job, "pack", 0);
	const struct value *min = value_of(job, "min"), *max = value_of(job, "max");
	const hz_tensor w = transposed(view_of(job, "w"), trans);
	const hz_tensor scales = transposed(view_of(job, "scales"), trans);
	hz_tensor zeros;
	hz_qlinear_group_opts p = {
		.group = value_or(job, "group", 0), .tensor_scale = view_of(job, "tensor_scale"),
	}, o;
	hz_packed packed;
	void *data = NULL;
	size_t bytes;
	int status = HZ_OK;

	if (view_of(job, "zeros")) {
		zeros = transposed(view_of(job, "zeros"), trans);
		p.zeros = &zeros;
	}
	o = pack ? (hz_qlinear_group_opts){.packed = &packed} : p;
	o.x_scales = view_of(job, "x_scales");
	o.bias = view_of(job, "bias");
	o.x_dtype = (int32_t)value_or(job, "x_dtype", 0);
	o.x_group = (int32_t)value_or(job, "x_group", 0);
	o.flags = value_or(job, "relu", 0) ? HZ_QGEMM_RELU : 0;
	o.given = (min->given ? HZ_QLINEAR_GROUP_GIVEN_MIN : 0) |
		  (max->given ? HZ_QLINEAR_GROUP_GIVEN_MAX : 0);
	o.min = number_or_0(job, "min");
	o.max = number_or_0(job, "max");
	if (pack) {
		status = hz_qlinear_group_pack_bytes(ctx, &w, &scales, &p, &bytes);
		if (status == HZ_OK)
			status = hz_alloc(ctx, &data, bytes, hz_device(ctx));
		if (status == HZ_OK)
			status = hz_qlinear_group_pack(ctx, &w, &scales, &p, data, bytes, &packed);
	}
	if (status == HZ_OK)
		status = WITH_WORKSPACE(ctx, hz_qlinear_group(ctx, view_of(job, "x"),
							      pack ? NULL : &w,
							      pack ? NULL : &scales,
							      view_of(job, "y"), &o));
	if (data) {
		hz_sync(ctx);
		hz_free(ctx, data, hz_device(ctx));
	}
	return status;
}

const struct op op_qlinear_group = {
	"qlinear_group", "y = x W + bias, groups of k of W having scales and zero points",
	group_operands, (const struct key *const[]){group_keys, NULL}, group_outputs, group_call,
};
