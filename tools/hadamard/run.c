/*
 * run.c - hurwitz run of Walsh-Hadamard transforms, with and without quantization
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/run.h"

static const struct word plan_words[] = {
	{"auto", HZ_PLAN_AUTO}, {"sylvester", HZ_PLAN_SYLVESTER}, {"greedy", HZ_PLAN_GREEDY},
	{"uniform", HZ_PLAN_UNIFORM}, {"true", HZ_PLAN_TRUE}, {NULL, 0},
};

static const struct word base_words[] = {
	{"auto", HZ_BASE_AUTO}, {"paley1", HZ_BASE_PALEY1}, {"paley2", HZ_BASE_PALEY2},
	{"williamson", HZ_BASE_WILLIAMSON}, {"dao", HZ_BASE_DAO}, {"quip", HZ_BASE_QUIP}, {NULL, 0},
};

static const struct word format_words[] = {
	{"s8", HZ_S8}, {"s4", HZ_S4X2}, {"e4m3", HZ_E4M3}, {"e5m2", HZ_E5M2}, {NULL, 0},
};

static const struct word group_words[] = {
	{"row", 0}, {"32", 32}, {"64", 64}, {"128", 128}, {NULL, 0},
};

static const struct word scale_words[] = {{"f32", HZ_F32}, {"e8m0", HZ_E8M0}, {NULL, 0}};

int codes_per_byte(int dtype)
{
	return dtype == HZ_S2X4 || dtype == HZ_U2X4 ? 4 :
	       dtype == HZ_S4X2 || dtype == HZ_U4X2 || dtype == HZ_E2M1X2 ? 2 : 1;
}

static const struct word round_words[] = {
	{"none", 0}, {"f16", HZ_F16}, {"bf16", HZ_BF16}, {NULL, 0},
};

const struct key rotation_keys[] = {
	{"block", KEY_INT, NULL, 0, INT64_MAX, "N",
	 "the plan is for blocks of this length; 0, the default: the whole axis"},
	{"plan", KEY_WORD, plan_words, 0, 0, "auto|sylvester|greedy|uniform|true",
	 "how a length is made of Hadamard matrices; auto: sylvester for powers of\n"
	 "two up to max_block=, else greedy"},
	{"max_block", KEY_INT, NULL, 0, INT64_MAX, "N",
	 "auto, greedy, uniform: largest power of two; 0, the default: no limit"},
	{"min_block", KEY_INT, NULL, 0, INT64_MAX, "N",
	 "auto, greedy: a length that needs a smaller block is refused; default 1"},
	{"base", KEY_WORD, base_words, 0, 0, "auto|paley1|paley2|williamson|dao|quip",
	 "true: the family of the base matrix"},
	{"order", KEY_INT, NULL, 0, INT32_MAX, "M",
	 "true: order of the base matrix; default 4 times the odd part of the length"},
	{"transpose", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: the transpose, which is the inverse if raw=0"},
	{"raw", KEY_WORD, switch_words, 0, 0, "0|1",
	 "1: entries +-1, without the factor 1/sqrt(length) of each block"},
	{"factor", KEY_NUMBER, NULL, 0, 0, "NUMBER", "a further factor of the result; default 1"},
	{"seed", KEY_SEED, NULL, 0, 0, "N", "random signs made of this number in place of pre"},
	{NULL, 0, NULL, 0, 0, NULL, NULL},
};

static const struct key axis_keys[] = {
	{"axis", KEY_INT, NULL, -HZ_MAXDIM, HZ_MAXDIM - 1, "I",
	 "the dimension, as in NumPy: 0 the first, -1, the default, the last, which is\n"
	 "the only one with quantization"},
	{NULL, 0, NULL, 0, 0, NULL, NULL},
};

static const struct key out_keys[] = {
	{"out", KEY_WORD, float_words, 0, 0, "f32|f16|bf16", "the dtype of y"},
	{NULL, 0, NULL, 0, 0, NULL, NULL},
};

static const struct key code_keys[] = {
	{"format", KEY_WORD, format_words, 0, 0, "s8|s4|e4m3|e5m2",
	 "what q holds; s8, the default: int8; the others: uint8, s4 two to a byte,\n"
	 "the earlier in the low half"},
	{"group", KEY_WORD, group_words, 0, 0, "row|32|64|128",
	 "elements of a row that share a scale; default row"},
	{"scale_type", KEY_WORD, scale_words, 0, 0, "f32|e8m0",
	 "f32, the default: float32; e8m0: powers of two as uint8 exponents"},
	{NULL, 0, NULL, 0, 0, NULL, NULL},
};

static const struct key round_keys[] = {
	{"round_to", KEY_WORD, round_words, 0, 0, "none|f16|bf16",
	 "round between transform and quantization; default none"},
	{NULL, 0, NULL, 0, 0, NULL, NULL},
};

static const struct operand hadamard_operands[] = {
	{"x", NULL, 0, "f32 f16 bf16", "1 to 6 dimensions"},
	{"y", NULL, OUTPUT, "f32 f16 bf16", "the shape of x, and its dtype by default"},
	{"pre", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", SIGNS_SHAPE},
	{"post", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", "as pre, but after the transform"},
	{NULL, NULL, 0, NULL, NULL},
};

static const struct operand hadamard_quantize_operands[] = {
	{"x", NULL, 0, "f32 f16 bf16", "[..., N]"},
	{"q", NULL, OUTPUT, "s8 s4x2 e4m3 e5m2", "[..., N]; format=s4: [..., N / 2]"},
	{"scale", NULL, OUTPUT, "f32 e8m0", "[..., N / group]; group=row: [..., 1]"},
	{"pre", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", SIGNS_SHAPE},
	{"post", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", "as pre, but after the transform"},
	{NULL, NULL, 0, NULL, NULL},
};

static const struct operand dequantize_hadamard_operands[] = {
	{"q", NULL, RAW, "s8 u8", "[..., N]; format=s4: [..., N / 2]"},
	{"scale", NULL, RAW, "f32 u8", "[..., N / group]; group=row: [..., 1]"},
	{"y", NULL, OUTPUT, "f32 f16 bf16", "[..., N], f32 by default"},
	{"pre", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", SIGNS_SHAPE},
	{"post", NULL, OPTIONAL | SIGNS, "u8 f32 f16 bf16", "likewise, as in hadamard_quantize"},
	{NULL, NULL, 0, NULL, NULL},
};

hz_hadamard_opts hadamard_opts(struct job *job)
{
	const struct value *factor = value_of(job, "factor"), *axis = value_of(job, "axis");

	return (hz_hadamard_opts){
		.plan = (int32_t)value_or(job, "plan", HZ_PLAN_AUTO),
		.axis = axis->given ? HZ_AXIS((int32_t)axis->n) : 0,
		.block = value_or(job, "block", 0),
		.max_block = value_or(job, "max_block", 0),
		.min_block = value_or(job, "min_block", 0),
		.base = (int32_t)value_or(job, "base", HZ_BASE_AUTO),
		.order = (int32_t)value_or(job, "order", 0),
		.flags = (value_or(job, "transpose", 0) ? HZ_HADAMARD_TRANSPOSE : 0) |
			 (value_or(job, "raw", 0) ? HZ_HADAMARD_RAW : 0),
		.factor = factor->given ? factor->number : 0,
		.pre = view_of(job, "pre"),
		.post = view_of(job, "post"),
	};
}

int hadamard_common(struct job *job, int ndim, const int64_t *shape)
{
	const struct value *seed = value_of(job, "seed");
	const int64_t axis = value_or(job, "axis", -1);
	struct slot *s = slot_of(job, "pre");
	int64_t n;

	if ((axis >= ndim || axis < -ndim) && ndim > 0)
		return complain(EXIT_BAD, "%s: axis=%lld: the value must be %d to %d", job->op->name,
				(long long)axis, -ndim, ndim - 1);
	if (job->op != &op_hadamard && axis != -1 && axis != ndim - 1)
		return complain(EXIT_BAD, "%s: axis=%lld is not the last dimension; hadamard takes "
				"every axis", job->op->name, (long long)axis);
	if (value_or(job, "plan", HZ_PLAN_AUTO) != HZ_PLAN_TRUE &&
	    (value_or(job, "base", HZ_BASE_AUTO) || value_or(job, "order", 0)))
		return complain(EXIT_BAD, "%s: base= and order= are for plan=true", job->op->name);
	if (!seed->given)
		return 0;
	if (s->path)
		return complain(EXIT_BAD,
				"%s: pre= and seed= are two ways to give the signs: one of them",
				job->op->name);
	n = ndim > 0 ? shape[axis < 0 ? ndim + axis : axis] : 0;
	s->path = "the signs of seed=";
	s->array = (struct npy){.dtype = HZ_U8, .ndim = 1, .shape = {(n + 7) / 8}};
	npy_size(1, s->array.shape, HZ_U8, &s->array.count, &s->array.bytes);
	s->array.data = allocate(s->array.bytes);
	if (!s->array.data)
		return complain(EXIT_FAILURE, "there is not enough memory for the signs");
	hz_hadamard_signs(s->array.data, n, (uint64_t)seed->n);
	return 0;
}

static int hadamard_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array;
	struct slot *y = slot_of(job, "y");
	int status = hadamard_common(job, x->ndim, x->shape);

	if (!status)
		status = output_dtype(job, y, "y", x->dtype);
	y->array.ndim = x->ndim;
	memcpy(y->array.shape, x->shape, sizeof(x->shape));
	return status;
}

static int hadamard_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x");
	const hz_hadamard_opts opts = hadamard_opts(job);

	return WITH_WORKSPACE(ctx, hz_hadamard(ctx, x, view_of(job, "y"), &opts));
}

static int hadamard_quantize_outputs(struct job *job)
{
	const struct npy *x = &slot_of(job, "x")->array;
	struct slot *q = slot_of(job, "q"), *scale = slot_of(job, "scale");
	const int64_t n = x->ndim > 0 ? x->shape[x->ndim - 1] : 0;
	const int64_t group = value_or(job, "group", 0);
	int status = hadamard_common(job, x->ndim, x->shape);

	if (status)
		return status;
	q->array.dtype = (int)value_or(job, "format", HZ_S8);
	scale->array.dtype = (int)value_or(job, "scale_type", HZ_F32);
	for (int i = 0; i < 2; i++) {
		struct npy *a = i ? &scale->array : &q->array;

		a->ndim = x->ndim;
		memcpy(a->shape, x->shape, sizeof(x->shape));
	}
	if (x->ndim < 1)
		return 0;
	if (q->array.dtype == HZ_S4X2) {
		if (n % 2)
			return complain(EXIT_BAD,
					"%s: the last dimension of x is %lld, must be even for "
					"format=s4",
					job->op->name, (long long)n);
		q->array.shape[x->ndim - 1] = n / 2;
	}
	if (group && n % group)
		return complain(EXIT_BAD,
				"%s: the last dimension of x is %lld, which group=%lld does not "
				"divide",
				job->op->name, (long long)n, (long long)group);
	scale->array.shape[x->ndim - 1] = group ? n / group : n > 0;
	return 0;
}

static int hadamard_quantize_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *x = view_of(job, "x");
	hz_tensor *q = view_of(job, "q"), *scale = view_of(job, "scale");
	hz_hadamard_opts opts = hadamard_opts(job);

	opts.round_to = (int32_t)value_or(job, "round_to", 0);
	return WITH_WORKSPACE(ctx, hz_hadamard_quantize(ctx, x, q, scale, &opts));
}

int pack_codes(const struct job *job, struct npy *q, int format, const char *name)
{
	const int last = q->ndim - 1, per_byte = codes_per_byte(format), bits = 8 / per_byte;
	const bool is_signed = format == HZ_S4X2 || format == HZ_S2X4;
	const int most = is_signed ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
	uint8_t *byte = q->data;

	if (last < 0 || per_byte == 1)
		return 0;
	if (q->shape[last] % per_byte)
		return complain(EXIT_BAD,
				"%s: the last dimension of q is %lld, must be %s for format=%s",
				job->op->name, (long long)q->shape[last],
				per_byte == 2 ? "even" : "a multiple of 4", name);
	for (int64_t i = 0; i < q->count; i++) {
		/* ml_dtypes extends signs to the byte, but older versions did not. */
		if (byte[i] >= 1 << bits && !(is_signed && byte[i] >= 255 - most))
			return complain(EXIT_BAD,
					"%s: q holds %s, of which [%lld] is %d, not one %s of a "
					"byte", job->op->name, held(q), (long long)i, byte[i], name);
	}
	q->shape[last] /= per_byte;
	q->count /= per_byte;
	q->bytes /= (size_t)per_byte;
	for (int64_t i = 0; i < q->count; i++) {
		unsigned packed = 0;

		for (int k = 0; k < per_byte; k++)
			packed |= (byte[per_byte * i + k] & ((1u << bits) - 1)) << k * bits;
		byte[i] = (uint8_t)packed;
	}
	return 0;
}

/* A file's dtype does not determine the format: uint8 may be any of three. */
static int dequantize_formats(struct job *job)
{
	struct npy *q = &slot_of(job, "q")->array, *scale = &slot_of(job, "scale")->array;
	const struct value *format = value_of(job, "format"), *type = value_of(job, "scale_type");
	const char *op = job->op->name;

	if (q->dtype == HZ_U8 && !format->given)
		return complain(EXIT_BAD, "%s: q holds %s: say format=s4, e4m3 or e5m2", op,
				held(q));
	if (format->given && (format->n == HZ_S8) != (q->dtype == HZ_S8))
		return complain(EXIT_BAD, "%s: q holds %s, format=%s wants %s", op, held(q),
				q->dtype == HZ_S8 ? "s4, e4m3 or e5m2" : "s8",
				q->dtype == HZ_S8 ? "uint8" : "int8");
	if (q->raw == 'f' && format->n != HZ_E5M2)
		return complain(EXIT_BAD, "%s: q holds %s, format=%s wants uint8 or 'V1'", op,
				held(q), format->n == HZ_S4X2 ? "s4" : "e4m3");
	if (q->raw && format->n == HZ_S4X2) {
		const int status = pack_codes(job, q, HZ_S4X2, "s4");

		if (status)
			return status;
	}
	if (format->given)
		q->dtype = (int)format->n;
	if (scale->raw == 'f' || (type->given && (type->n == HZ_F32) != (scale->dtype == HZ_F32)))
		return complain(EXIT_BAD, "%s: scale holds %s, scale_type=%s wants %s", op,
				held(scale), type->given && type->n == HZ_F32 ? "f32" : "e8m0",
				type->given && type->n == HZ_F32 ? "float32" : "uint8 or 'V1'");
	if (scale->dtype == HZ_U8)
		scale->dtype = HZ_E8M0;
	return 0;
}

static int dequantize_hadamard_outputs(struct job *job)
{
	const struct npy *q = &slot_of(job, "q")->array, *scale = &slot_of(job, "scale")->array;
	struct slot *y = slot_of(job, "y");
	const struct value *group = value_of(job, "group");
	const int last = q->ndim - 1;
	int status = dequantize_formats(job);
	int64_t n, want;

	if (status)
		return status;
	y->array.ndim = q->ndim;
	memcpy(y->array.shape, q->shape, sizeof(q->shape));
	if (q->ndim > 0) {
		if (q->dtype == HZ_S4X2 &&
		    __builtin_mul_overflow(q->shape[last], 2, &y->array.shape[last]))
			return complain(EXIT_BAD, "%s: the size of y overflows", job->op->name);
		n = y->array.shape[last];
		want = group->given && group->n ? n / group->n : n > 0;
		if (group->given && scale->ndim == q->ndim && scale->shape[last] != want)
			return complain(
				EXIT_BAD,
				"%s: the last dimension of scale is %lld, must be %lld, as "
				"group= says",
				job->op->name, (long long)scale->shape[last], (long long)want);
	}
	status = hadamard_common(job, y->array.ndim, y->array.shape);
	return status ? status : output_dtype(job, y, "y", HZ_F32);
}

static int dequantize_hadamard_call(hz_context *ctx, struct job *job)
{
	const hz_tensor *q = view_of(job, "q"), *scale = view_of(job, "scale");
	hz_tensor *y = view_of(job, "y");
	const hz_hadamard_opts opts = hadamard_opts(job);

	return WITH_WORKSPACE(ctx, hz_dequantize_hadamard(ctx, q, scale, y, &opts));
}

const struct op op_hadamard = {
	"hadamard", "Walsh-Hadamard transform: y = factor D_post H D_pre x along one axis",
	hadamard_operands, (const struct key *const[]){rotation_keys, axis_keys, out_keys, NULL},
	hadamard_outputs, hadamard_call,
};

const struct op op_hadamard_quantize = {
	"hadamard_quantize", "the transform of the last axis with quantization fused",
	hadamard_quantize_operands,
	(const struct key *const[]){rotation_keys, axis_keys, code_keys, round_keys, NULL},
	hadamard_quantize_outputs, hadamard_quantize_call,
};

const struct op op_dequantize_hadamard = {
	"dequantize_hadamard", "dequantization, then the transposed transform",
	dequantize_hadamard_operands,
	(const struct key *const[]){rotation_keys, axis_keys, code_keys, out_keys, NULL},
	dequantize_hadamard_outputs, dequantize_hadamard_call,
};
