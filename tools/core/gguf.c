/*
 * gguf.c - .gguf files, versions 2 and 3
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The format is that of ggml's docs/gguf.md. All numbers are little-endian. A table of keys and
 * values comes first, then one of tensors, then, from a multiple of general.alignment on, data.
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/model.h"
#include "tools/core/tool.h"

/* ---- Element types --------------------------------------------------------------------------- */

struct type {
	const char *name;
	int block;		/* elements; 0: there is no such type */
	int bytes;		/* of a block */
	int dtype;		/* that the command gives; 0: it does not read this type */
	void (*dequantize)(const unsigned char *p, float *y);
};

static double f16(const unsigned char *p)
{
	const int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, mantissa = bits & 1023;
	const double sign = bits & 0x8000 ? -1 : 1;

	if (exponent == 31)
		return mantissa ? (double)NAN : sign * (double)INFINITY;
	return sign * (exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24));
}

/* d q, q from -8 to 7: element i in the low half of byte i, i + 16 in the high half */
static void q4_0(const unsigned char *p, float *y)
{
	const double d = f16(p);

	for (int i = 0; i < 16; i++) {
		y[i] = (float)(d * ((p[2 + i] & 15) - 8));
		y[i + 16] = (float)(d * ((p[2 + i] >> 4) - 8));
	}
}

static void q8_0(const unsigned char *p, float *y)
{
	const double d = f16(p);

	for (int i = 0; i < 32; i++)
		y[i] = (float)(d * (int8_t)p[2 + i]);
}

/* 8 groups of 32, d scale q - d_min min; scale and min have 6 bits, packed in 12 bytes */
static void q4_k(const unsigned char *p, float *y)
{
	const double d = f16(p), d_min = f16(p + 2);
	const unsigned char *s = p + 4, *q = p + 16;

	for (int g = 0; g < 8; g++) {
		const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
		const int min = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;

		for (int i = 0; i < 32; i++) {
			const int code = q[32 * (g / 2) + i] >> (g % 2 ? 4 : 0) & 15;

			y[32 * g + i] = (float)(d * scale * code - d_min * min);
		}
	}
}

/* 16 groups of 16, d scale q, q from -32 to 31: 4 low bits, 2 high bits, then scales, then d */
static void q6_k(const unsigned char *p, float *y)
{
	const double d = f16(p + 208);

	for (int i = 0; i < 256; i++) {
		const int half = i / 128, part = i % 128 / 32, at = i % 32;
		const int low = p[64 * half + 32 * (part % 2) + at] >> (part / 2 ? 4 : 0) & 15;
		const int high = p[128 + 32 * half + at] >> 2 * part & 3;

		y[i] = (float)(d * (int8_t)p[192 + i / 16] * ((low | high << 4) - 32));
	}
}

/* 2^(e - 127) times e2m1, in the order of q4_0. An e of 255 is 2^128, as in ggml, and not NaN. */
static void mxfp4(const unsigned char *p, float *y)
{
	static const double value[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
	const double d = ldexp(1, p[0] - 127);

	for (int i = 0; i < 32; i++) {
		const int code = p[1 + i % 16] >> (i < 16 ? 0 : 4) & 15;

		y[i] = (float)(d * (code & 8 ? -value[code & 7] : value[code & 7]));
	}
}

static const struct type types[] = {
	[0] = {"F32", 1, 4, HZ_F32, NULL}, [1] = {"F16", 1, 2, HZ_F16, NULL},
	[2] = {"Q4_0", 32, 18, HZ_F32, q4_0}, [3] = {"Q4_1", 32, 20, 0, NULL},
	[6] = {"Q5_0", 32, 22, 0, NULL}, [7] = {"Q5_1", 32, 24, 0, NULL},
	[8] = {"Q8_0", 32, 34, HZ_F32, q8_0}, [9] = {"Q8_1", 32, 40, 0, NULL},
	[10] = {"Q2_K", 256, 84, 0, NULL}, [11] = {"Q3_K", 256, 110, 0, NULL},
	[12] = {"Q4_K", 256, 144, HZ_F32, q4_k}, [13] = {"Q5_K", 256, 176, 0, NULL},
	[14] = {"Q6_K", 256, 210, HZ_F32, q6_k}, [15] = {"Q8_K", 256, 292, 0, NULL},
	[16] = {"IQ2_XXS", 256, 66, 0, NULL}, [17] = {"IQ2_XS", 256, 74, 0, NULL},
	[18] = {"IQ3_XXS", 256, 98, 0, NULL}, [19] = {"IQ1_S", 256, 50, 0, NULL},
	[20] = {"IQ4_NL", 32, 18, 0, NULL}, [21] = {"IQ3_S", 256, 110, 0, NULL},
	[22] = {"IQ2_S", 256, 82, 0, NULL}, [23] = {"IQ4_XS", 256, 136, 0, NULL},
	[24] = {"I8", 1, 1, HZ_S8, NULL}, [25] = {"I16", 1, 2, HZ_S16, NULL},
	[26] = {"I32", 1, 4, HZ_S32, NULL}, [27] = {"I64", 1, 8, HZ_S64, NULL},
	[28] = {"F64", 1, 8, HZ_F64, NULL}, [29] = {"IQ1_M", 256, 56, 0, NULL},
	[30] = {"BF16", 1, 2, HZ_BF16, NULL}, [34] = {"TQ1_0", 256, 54, 0, NULL},
	[35] = {"TQ2_0", 256, 66, 0, NULL}, [39] = {"MXFP4", 32, 17, HZ_F32, mxfp4},
	[40] = {"NVFP4", 64, 36, 0, NULL}, [41] = {"Q1_0", 128, 18, 0, NULL},
};

void gguf_dequantize(const struct model_tensor *t, float *y)
{
	const struct type *type = types;

	while (!type->name || strcmp(type->name, t->type) != 0)
		type++;
	for (size_t at = 0; at < t->bytes; at += (size_t)type->bytes, y += type->block)
		type->dequantize(t->data + at, y);
}

/* ---- The tables ------------------------------------------------------------------------------ */

#define NAME_MAX_BYTES 65535

/* Bytes of a value of a key by its type; 0: a string or an array */
static const unsigned char value_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
enum { VALUE_U32 = 4, VALUE_STRING = 8, VALUE_ARRAY = 9 };

struct cursor {
	const unsigned char *p;
	size_t left;
	char *why;
};

static int truncated(struct cursor *c)
{
	return model_refuse(c->why, "is truncated in its tables");
}

static int skip(struct cursor *c, uint64_t n)
{
	if (n > c->left)
		return truncated(c);
	c->p += n;
	c->left -= (size_t)n;
	return 0;
}

/* A little-endian number of 4 or 8 bytes */
static int take(struct cursor *c, int bytes, uint64_t *value)
{
	const unsigned char *p = c->p;

	*value = 0;
	if (skip(c, (uint64_t)bytes))
		return EXIT_BAD;
	for (int i = bytes - 1; i >= 0; i--)
		*value = *value << 8 | p[i];
	return 0;
}

/* Whether it is UTF-8 without NUL: no overlong forms, surrogates or numbers beyond 0x10ffff */
static bool is_utf8(const unsigned char *p, size_t n)
{
	static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};

	for (size_t i = 0; i < n; i++) {
		const int more = p[i] < 0x80 ? 0 : p[i] >> 5 == 6 ? 1 : p[i] >> 4 == 14 ? 2 :
				 p[i] >> 3 == 30 ? 3 : -1;
		uint32_t code;

		if (p[i] == 0 || more < 0 || n - i <= (size_t)more)
			return false;
		code = p[i] & (more ? 0x3f >> more : 0x7f);
		for (int k = 0; k < more; k++) {
			if (p[++i] >> 6 != 2)
				return false;
			code = code << 6 | (p[i] & 0x3f);
		}
		if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
			return false;
	}
	return true;
}

/* A string, in place */
static int take_string(struct cursor *c, const unsigned char **s, size_t *n)
{
	uint64_t length;

	if (take(c, 8, &length))
		return EXIT_BAD;
	*s = c->p;
	*n = (size_t)length;
	return skip(c, length);
}

static int take_name(struct cursor *c, const char *what, const unsigned char **s, size_t *n)
{
	if (take_string(c, s, n))
		return EXIT_BAD;
	if (*n == 0 || *n > NAME_MAX_BYTES || !is_utf8(*s, *n))
		return model_refuse(c->why, "has a %s that is not 1 to %d bytes of UTF-8", what,
				    NAME_MAX_BYTES);
	return 0;
}

/* Skips the value of a key. Arrays of arrays, which no reader has, are refused. */
static int skip_value(struct cursor *c, uint64_t type)
{
	const unsigned char *s;
	uint64_t count;
	size_t n;

	if (type == VALUE_STRING)
		return take_string(c, &s, &n);
	if (type >= sizeof(value_bytes))
		return model_refuse(c->why, "has a value of type %llu, which is not known",
				    (unsigned long long)type);
	if (type != VALUE_ARRAY)
		return skip(c, value_bytes[type]);
	if (take(c, 4, &type) || take(c, 8, &count))
		return EXIT_BAD;
	if (type == VALUE_ARRAY)
		return model_refuse(c->why, "has an array of arrays");
	/* An element has at least one byte, which bounds the loop and the product. */
	if (count > c->left)
		return truncated(c);
	if (type < sizeof(value_bytes) && value_bytes[type])
		return skip(c, count * value_bytes[type]);
	for (uint64_t i = 0; i < count; i++) {
		if (skip_value(c, type))
			return EXIT_BAD;
	}
	return 0;
}

static int read_keys(struct cursor *c, uint64_t count, uint64_t *alignment)
{
	static const char key[] = "general.alignment";
	const unsigned char *s;
	uint64_t type;
	size_t n;

	for (uint64_t i = 0; i < count; i++) {
		if (take_name(c, "key", &s, &n) || take(c, 4, &type))
			return EXIT_BAD;
		if (n != sizeof(key) - 1 || memcmp(s, key, n) != 0) {
			if (skip_value(c, type))
				return EXIT_BAD;
			continue;
		}
		if (type != VALUE_U32)
			return model_refuse(c->why, "has a general.alignment that is no uint32");
		if (take(c, 4, alignment))
			return EXIT_BAD;
		if (*alignment == 0 || (*alignment & (*alignment - 1)))
			return model_refuse(c->why, "has a general.alignment of %llu, which is no "
					    "power of two", (unsigned long long)*alignment);
	}
	return 0;
}

/* Reads a row of the table of tensors; *offset counts from the begin of the data. */
static int read_tensor(struct cursor *c, struct model_tensor *t, uint64_t alignment,
		       uint64_t *offset)
{
	const unsigned char *s;
	uint64_t ndim, type;
	size_t n;

	if (take_name(c, "tensor's name", &s, &n))
		return EXIT_BAD;
	t->name = strndup((const char *)s, n);
	if (!t->name)
		return model_no_memory(c->why);
	if (take(c, 4, &ndim))
		return EXIT_BAD;
	if (ndim > MODEL_DIMS)
		return model_refuse(c->why, "tensor '" MODEL_NAME "' has %llu dimensions, at most "
				    "%d are read", t->name, (unsigned long long)ndim, MODEL_DIMS);
	t->ndim = (int)ndim;
	/* The first dimension of the file is the contiguous one. */
	for (int i = t->ndim - 1; i >= 0; i--) {
		uint64_t size;

		if (take(c, 8, &size))
			return EXIT_BAD;
		if (size > INT64_MAX)
			return model_refuse(c->why, "tensor '" MODEL_NAME "' has a size in its "
					    "shape that is beyond 63 bits", t->name);
		t->shape[i] = (int64_t)size;
	}
	if (take(c, 4, &type) || take(c, 8, offset))
		return EXIT_BAD;
	if (type >= sizeof(types) / sizeof(*types) || !types[type].name)
		return model_refuse(c->why, "tensor '" MODEL_NAME "' has the type %llu, which is "
				    "not known", t->name, (unsigned long long)type);
	t->type = types[type].name;
	t->dtype = types[type].dtype;
	if (*offset % alignment)
		return model_refuse(c->why, "tensor '" MODEL_NAME "' has the offset %llu, which is "
				    "no multiple of %llu", t->name, (unsigned long long)*offset,
				    (unsigned long long)alignment);
	return model_bytes(t, types[type].block, 8 * types[type].bytes, c->why);
}

int gguf_parse(struct model *m, const unsigned char *p, size_t bytes, char why[NPY_WHY])
{
	struct cursor c = {.p = p, .left = bytes, .why = why};
	uint64_t version, tensors, keys, alignment = 32, *offset;
	int status = 0;

	if (skip(&c, 4) || take(&c, 4, &version))
		return EXIT_BAD;
	if (version != 2 && version != 3)
		return model_refuse(why, "is a .gguf file of version %llu%s; 2 and 3 are read",
				    (unsigned long long)version,
				    version & 0xffff ? "" : " (big-endian)");
	if (take(&c, 8, &tensors) || take(&c, 8, &keys) || read_keys(&c, keys, &alignment))
		return EXIT_BAD;
	/* A row has 25 bytes at least, which bounds the memory by the file's size. */
	if (tensors > c.left / 25)
		return truncated(&c);
	offset = calloc((size_t)tensors + 1, sizeof(*offset));
	m->tensor = calloc((size_t)tensors + 1, sizeof(*m->tensor));
	if (!offset || !m->tensor) {
		free(offset);
		return model_no_memory(why);
	}
	for (uint64_t i = 0; i < tensors && !status; i++) {
		m->count++;
		status = read_tensor(&c, &m->tensor[i], alignment, &offset[i]);
	}
	if (!status) {
		const uint64_t pad = -(uint64_t)(c.p - p) & (alignment - 1);
		const uint64_t begin = (uint64_t)(c.p - p) + pad;
		const uint64_t size = pad < c.left ? c.left - pad : 0;

		for (uint64_t i = 0; i < tensors && !status; i++) {
			struct model_tensor *t = &m->tensor[i];

			if (offset[i] > size || t->bytes > size - offset[i])
				status = model_refuse(why, "tensor '" MODEL_NAME "' has %zu bytes "
						      "at offset %llu, and the data %llu bytes",
						      t->name, t->bytes,
						      (unsigned long long)offset[i],
						      (unsigned long long)size);
			else
				t->data = size ? p + begin + offset[i] : p;
		}
	}
	free(offset);
	return status ? status : model_check(m, p, bytes, false, why);
}
