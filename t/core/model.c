/*
 * model.c - readers of .safetensors and .gguf files: values, refusals, the written header
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "t/core/tap.h"
#include "tools/core/model.h"
#include "tools/core/tool.h"

void *allocate(size_t bytes)
{
	/* Exact sizes, so that a sanitizer finds an access beyond the end */
	return malloc(bytes ? bytes : 1);
}

/* ---- Files in memory ------------------------------------------------------------------------- */

struct file {
	uint8_t p[2048];
	size_t n;
};

static void put(struct file *f, const void *p, size_t n)
{
	memcpy(f->p + f->n, p, n);
	f->n += n;
}

static void put_number(struct file *f, int bytes, uint64_t value)
{
	for (int i = 0; i < bytes; i++)
		f->p[f->n++] = (uint8_t)(value >> 8 * i);
}

static void put_string(struct file *f, const char *s)
{
	put_number(f, 8, strlen(s));
	put(f, s, strlen(s));
}

/* A file of one tensor "t" of n elements in blocks of so many bytes; version 3, alignment 32 */
static void gguf_of(struct file *f, int type, int64_t n, const uint8_t *data, size_t bytes)
{
	f->n = 0;
	put(f, "GGUF", 4);
	put_number(f, 4, 3);
	put_number(f, 8, 1);
	put_number(f, 8, 0);
	put_string(f, "t");
	put_number(f, 4, 1);
	put_number(f, 8, (uint64_t)n);
	put_number(f, 4, (uint64_t)type);
	put_number(f, 8, 0);
	while (f->n % 32)
		put_number(f, 1, 0);
	put(f, data, bytes);
}

static void safetensors_of(struct file *f, const char *header, size_t data_bytes)
{
	f->n = 0;
	put_string(f, header);
	memset(f->p + f->n, 1, data_bytes);
	f->n += data_bytes;
}

/* Parses a copy of exact size, so that a sanitizer finds an access beyond the end. */
static int parse(struct model *m, const struct file *f, uint8_t **copy, char *why)
{
	*copy = malloc(f->n ? f->n : 1);
	if (!*copy)
		bail("no memory");
	memcpy(*copy, f->p, f->n);
	why[0] = '\0';
	return model_parse(m, *copy, f->n, why);
}

static void is_refused(const struct file *f, const char *pattern, const char *name)
{
	char why[NPY_WHY];
	struct model m;
	uint8_t *copy;
	const int status = parse(&m, f, &copy, why);

	ok(status != 0 && strstr(why, pattern) && !m.tensor, "refused: %s", name);
	if (!strstr(why, pattern))
		diag("status %d, '%s', wanted '%s'", status, why, pattern);
	if (!status)
		model_close(&m);
	free(copy);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

/*
 * One block each with the bytes 37 i + 11 mod 256, but f16 scales of 0x2e66 and 0x2f89, and 124 as
 * the exponent of MXFP4. The values are those of the Python package gguf 0.19.0: the first two, the
 * two in the middle, the last two, and the sum of all, times 1 to 7 in turn, in double.
 */
static const struct block {
	const char *name;
	int type, n;
	size_t bytes, scale;		/* where the scales are */
	int scales;
	double value[6], sum;
} blocks[] = {
	{"Q4_0", 2, 32, 18, 0, 1, {-0x1.332p-2, 0x1.998p-3, -0x1.998p-1, -0x1.332p-2, -0x1.332p-2,
	 0}, 0x1.665p+1},
	{"Q8_0", 8, 32, 34, 0, 1, {0x1.0fefp+3, 0x1.864ep+3, -0x1.998p+3, -0x1.2321p+3,
	 -0x1.0fefp+3, -0x1.332p+2}, -0x1.ee478p+5},
	{"Q4_K", 12, 256, 144, 0, 2, {0x1.c164cp+4, -0x1.804bp+2, 0x1.72dap+2, 0x1.4bd04p+5,
	 0x1.4724p+0, 0x1.3d22p+1}, 0x1.251134ap+14},
	{"Q6_K", 14, 256, 210, 208, 1, {-0x1.1e215p+7, 0x1.531ep+7, 0x1.2bed4p+7, -0x1.18bb4p+5,
	 -0x1.ffep+1, -0x1.7fe8p+2}, 0x1.edbabcp+9},
	{"MXFP4", 39, 32, 17, 0, 0, {0, 0x1.8p-2, -0x1.8p-3, 0x1.8p-3, 0x1.8p-3, 0x1.8p-2},
	 0x1.54p+2},
};

static bool same_values(const struct block *b, const float *y)
{
	const int at[6] = {0, 1, b->n / 2 - 1, b->n / 2, b->n - 2, b->n - 1};
	double sum = 0;
	bool same = true;

	for (int i = 0; i < b->n; i++)
		sum += (double)y[i] * (i % 7 + 1);
	for (int i = 0; i < 6; i++)
		same &= (double)y[at[i]] == b->value[i];
	if (!same || sum != b->sum)
		diag("%a %a %a %a %a %a, sum %a", (double)y[at[0]], (double)y[at[1]],
		     (double)y[at[2]], (double)y[at[3]], (double)y[at[4]], (double)y[at[5]], sum);
	return same && sum == b->sum;
}

/* Two equal blocks: the second has the values of the first. */
static void test_blocks(void)
{
	for (size_t i = 0; i < sizeof(blocks) / sizeof(*blocks); i++) {
		const struct block *b = &blocks[i];
		uint8_t data[2 * 256], *copy;
		char why[NPY_WHY];
		struct model m;
		struct file f;
		struct npy a;

		for (size_t k = 0; k < b->bytes; k++)
			data[k] = (uint8_t)(37 * k + 11);
		for (int k = 0; k < b->scales; k++) {
			data[b->scale + 2 * k] = (uint8_t)(0x66 + 0x23 * k);
			data[b->scale + 2 * k + 1] = (uint8_t)(0x2e + k);
		}
		if (!b->scales)
			data[0] = 124;
		memcpy(data + b->bytes, data, b->bytes);
		gguf_of(&f, b->type, 2 * b->n, data, 2 * b->bytes);
		ok(parse(&m, &f, &copy, why) == 0 && m.count == 1 &&
		   strcmp(m.tensor[0].type, b->name) == 0 && m.tensor[0].shape[0] == 2 * b->n &&
		   model_array(&m.tensor[0], &a, why) == 0 && a.dtype == HZ_F32 &&
		   same_values(b, a.data) && same_values(b, (float *)a.data + b->n),
		   "%s: values of gguf 0.19.0", b->name);
		npy_free(&a);
		model_close(&m);
		free(copy);
	}
}

/* A valid file with some keys, and what makes it invalid: bytes at an offset */
static void test_gguf_refusals(void)
{
	static const struct {
		size_t at;
		int bytes;
		uint64_t value;
		const char *pattern, *name;
	} change[] = {
		{4, 4, 1, "version 1; 2 and 3", "version 1"},
		{4, 4, 0x03000000, "big-endian", "big-endian"},
		{8, 8, UINT64_MAX, "truncated", "2^64 - 1 tensors"},
		{8, 8, 2, "UTF-8", "more tensors than there are"},
		{16, 8, UINT64_MAX, "UTF-8", "2^64 - 1 keys"},
		{24, 8, UINT64_MAX - 7, "truncated", "a key of 2^64 - 8 bytes"},
		{24, 8, 0, "1 to 65535 bytes of UTF-8", "a key of no bytes"},
		{32, 1, 0xff, "UTF-8", "a key that is not UTF-8"},
		{49, 4, 5, "no uint32", "an alignment that is int32"},
		{53, 4, 24, "no power of two", "an alignment of 24"},
		{66, 4, 99, "type 99", "an unknown type of a value"},
		{70, 4, 9, "array of arrays", "an array of arrays"},
		{74, 8, UINT64_MAX / 4, "truncated", "an array of 2^62 elements"},
		{98, 1, 0, "UTF-8", "a name with a NUL"},
		{99, 4, 9, "9 dimensions", "9 dimensions"},
		{103, 8, UINT64_MAX, "63 bits", "a size of 2^64 - 1"},
		{103, 8, INT64_MAX, "overflows", "a size of 2^63 - 1"},
		{103, 8, 31, "bytes at offset", "bytes beyond the file"},
		{111, 4, 4, "type 4, which is not known", "an element type that is gone"},
		{111, 4, 2, "a multiple of 32", "blocks of 32 in rows of 4"},
		{115, 8, 1, "no multiple of 32", "an offset that is not aligned"},
		{115, 8, 32, "bytes at offset 32", "an offset at the end"},
		{115, 8, UINT64_MAX - 31, "bytes at offset", "an offset of nearly 2^64"},
	};
	const uint8_t data[32] = {0};
	struct file f = {.n = 0}, bad;

	put(&f, "GGUF", 4);
	put_number(&f, 4, 2);
	put_number(&f, 8, 1);
	put_number(&f, 8, 2);
	put_string(&f, "general.alignment");	/* 24, the text at 32 */
	put_number(&f, 4, 4);			/* 49 */
	put_number(&f, 4, 32);
	put_string(&f, "a");			/* 57 */
	put_number(&f, 4, 9);			/* 66: an array of one string */
	put_number(&f, 4, 8);
	put_number(&f, 8, 1);			/* 74 */
	put_string(&f, "");
	put_string(&f, "x");			/* 90 */
	put_number(&f, 4, 1);			/* 99 */
	put_number(&f, 8, 4);
	put_number(&f, 4, 0);			/* 111 */
	put_number(&f, 8, 0);
	while (f.n % 32)
		put_number(&f, 1, 0);
	put(&f, data, 16);
	{
		char why[NPY_WHY];
		struct model m;
		uint8_t *copy;
		const int status = parse(&m, &f, &copy, why);

		ok(status == 0 && m.tensor[0].bytes == 16 && m.tensor[0].data == copy + f.n - 16,
		   "gguf: the file that is changed is valid %s", why);
		model_close(&m);
		free(copy);
	}
	for (size_t i = 0; i < sizeof(change) / sizeof(*change); i++) {
		bad = f;
		bad.n = change[i].at;
		put_number(&bad, change[i].bytes, change[i].value);
		bad.n = f.n;
		is_refused(&bad, change[i].pattern, change[i].name);
	}
	bad = f;
	bad.n = f.n - 1;
	is_refused(&bad, "16 bytes at offset 0, and the data 15", "the last byte missing");
	bad.n = 120;
	is_refused(&bad, "truncated", "the tables cut");
	bad.n = 0;
	is_refused(&bad, "is empty", "no bytes");
}

/* Tensors a and b of 4 bytes: with one name, and at one place */
static void test_gguf_pairs(void)
{
	for (int same_name = 0; same_name < 2; same_name++) {
		struct file f = {.n = 0};

		put(&f, "GGUF", 4);
		put_number(&f, 4, 3);
		put_number(&f, 8, 2);
		put_number(&f, 8, 0);
		for (int i = 0; i < 2; i++) {
			put_string(&f, i && !same_name ? "b" : "a");
			put_number(&f, 4, 0);
			put_number(&f, 4, 0);
			put_number(&f, 8, same_name ? (uint64_t)i * 32 : 0);
		}
		while (f.n % 32)
			put_number(&f, 1, 0);
		for (int i = 0; i < 36; i++)
			put_number(&f, 1, 0);
		is_refused(&f, same_name ? "two tensors with the name 'a'" : "overlaps",
			   same_name ? "gguf: one name twice" : "gguf: one place twice");
	}
}

/* ---- safetensors ----------------------------------------------------------------------------- */

#ifdef HZ_HAVE_JANSSON

#define ROW(name, dtype, shape, begin, end) \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," \
	#end "]}"
#define ENTRY(text) \
	"{\"__metadata__\":{\"hurwitz\":\"" text "\"}," ROW("a", "U8", "8", 0, 8) "}"

static void test_safetensors_refusals(void)
{
	static const struct {
		const char *header;
		size_t bytes;
		const char *pattern, *name;
	} cases[] = {
		{"[]", 8, "neither", "a header that is no object"},
		{"{", 0, "not JSON", "half an object"},
		{"{} x", 0, "not JSON", "text behind the object"},
		{"{\"a\":{}}", 0, "'a' has no dtype", "a tensor without members"},
		{"{" ROW("a", "F31", "1", 0, 4) "}", 4, "dtype 'F31'", "an unknown dtype"},
		{"{" ROW("a", "F32", "-1", 0, 4) "}", 4, "no shape", "a negative size"},
		{"{" ROW("a", "F32", "1.5", 0, 4) "}", 4, "no shape", "a size that is no integer"},
		{"{" ROW("a", "F32", "1,1,1,1,1,1,1,1,1", 0, 4) "}", 4, "no shape", "9 dimensions"},
		{"{" ROW("a", "F32", "99999999999999999999", 0, 4) "}", 4, "not JSON",
		 "beyond 64 bits"},
		{"{" ROW("a", "F32", "4611686018427387904,4", 0, 4) "}", 4, "overflows",
		 "2^64 elements"},
		{"{" ROW("a", "F32", "0,4611686018427387904,4", 0, 0) "}", 0, "overflows",
		 "2^64 elements times 0"},
		{"{" ROW("a", "F32", "2", 0, 4) "}", 4, "has 4 bytes, its shape needs 8",
		 "too few bytes"},
		{"{" ROW("a", "F4", "3", 0, 2) "}", 2, "multiple of 2", "half a byte"},
		{"{" ROW("a", "F6_E2M3", "3", 0, 2) "}", 2, "whole number", "a part of a byte"},
		{"{" ROW("a", "F32", "1", 4, 0) "}", 4, "ascending", "offsets that descend"},
		{"{" ROW("a", "F32", "1", -4, 0) "}", 4, "ascending", "a negative offset"},
		{"{" ROW("a", "F32", "1", 4, 8) "}", 4, "ends at byte 8",
		 "an offset beyond the data"},
		{"{" ROW("a", "F32", "1", 4, 8) "}", 8, "a gap before", "a gap"},
		{"{" ROW("a", "F32", "1", 0, 4) "}", 8, "4 bytes after",
		 "data that are no tensor's"},
		{"{" ROW("a", "F32", "1", 0, 4) "," ROW("b", "F32", "1", 2, 6) "}", 6, "overlaps",
		 "an overlap"},
		{"{" ROW("a", "F32", "1", 0, 4) "," ROW("a", "F32", "1", 4, 8) "}", 8, "duplicate",
		 "one name twice"},
		{"{" ROW("", "F32", "1", 0, 4) "}", 4, "without a name", "no name"},
		{"{" ROW("\xff", "F32", "1", 0, 4) "}", 4, "not JSON", "a name that is not UTF-8"},
		{"{" ROW("a\\u0000b", "F32", "1", 0, 4) "}", 4, "not JSON", "a name with a NUL"},
		{"{\"__metadata__\":[]}", 0, "is no object", "metadata that are a list"},
		{"{\"__metadata__\":{\"a\":1}}", 0, "is no string", "metadata that are a number"},
		{ENTRY("{}"), 8, "no JSON object with version", "an entry without members"},
		{ENTRY("{\\\"version\\\":2,\\\"tensors\\\":{}}"), 8, "version 2",
		 "a later version"},
		{ENTRY("{\\\"version\\\":1,\\\"tensors\\\":{\\\"b\\\":{}}}"), 8,
		 "does not have: 1 of 1", "a layer that is not there"},
		{ENTRY("{\\\"version\\\":1,\\\"tensors\\\":{\\\"a\\\":{}}}"), 8,
		 "does not give 'a'",
		 "a layer without a format"},
	};
	static struct file f;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		safetensors_of(&f, cases[i].header, cases[i].bytes);
		is_refused(&f, cases[i].pattern, cases[i].name);
	}
	safetensors_of(&f, "{}", 0);
	f.p[0] = 3;
	is_refused(&f, "truncated: a header of 3 bytes is announced, 2 follow", "a long header");
	memset(f.p, 0xff, 8);
	is_refused(&f, "truncated", "a header of 2^64 - 1 bytes");
	f.n = 0;
	put_number(&f, 8, 2000);
	put(&f, "{\"a\":", 5);
	memset(f.p + f.n, '[', 1995);
	f.n += 1995;
	is_refused(&f, "not JSON", "1995 brackets");
}

/* What safetensors_header() writes is read as it was. */
static void test_header(void)
{
	struct model_text text[] = {{"format", "pt"}, {"\"\\\n\x1f\xc3\xa9", "\t/"}};
	struct model_tensor t[] = {
		{.name = "packed \"w\"", .type = "U8", .ndim = 1, .shape = {64}, .bytes = 64,
		 .layer = {"e8-4.25", "BF16", {4, 24}}},
		{.name = "b\xc3\xa9", .type = "F32", .ndim = 2, .shape = {2, 3}, .bytes = 24},
		{.name = "none", .type = "F64", .ndim = 2, .shape = {0, 3}},
		{.name = "scalar", .type = "F4", .ndim = 1, .shape = {2}, .bytes = 1},
	};
	const struct model from = {.tensor = t, .count = 4, .text = text, .texts = 2};
	char why[NPY_WHY] = "";
	struct model m;
	size_t bytes, longer;
	char *header = safetensors_header(&from, 0, &bytes);
	char *long_header = safetensors_header(&from, bytes + 1, &longer);
	uint8_t *file = calloc(1, bytes + 89);
	struct npy array;
	bool same;

	if (!header || !long_header || !file)
		bail("no memory");
	ok(bytes % 64 == 0 && longer == bytes + 64, "the header is a multiple of 64 bytes");
	memcpy(file, header, bytes);
	same = model_parse(&m, file, bytes + 89, why) == 0 && m.count == 4 && m.texts == 2;
	for (int i = 0; i < 4 && same; i++) {
		const struct model_tensor *a = &t[i], *b = &m.tensor[i];

		same = strcmp(a->name, b->name) == 0 && strcmp(a->type, b->type) == 0 &&
		       a->ndim == b->ndim && a->bytes == b->bytes &&
		       memcmp(a->shape, b->shape, sizeof(a->shape)) == 0;
	}
	for (int i = 0; i < 2 && same; i++)
		same = strcmp(text[i].key, m.text[i].key) == 0 &&
		       strcmp(text[i].value, m.text[i].value) == 0;
	ok(same, "tensors and metadata come back %s", why);
	ok(same && m.tensor[0].layer.format && strcmp(m.tensor[0].layer.format, "e8-4.25") == 0 &&
	   strcmp(m.tensor[0].layer.dtype, "BF16") == 0 && m.tensor[0].layer.shape[1] == 24 &&
	   !m.tensor[1].layer.format, "and so does a layer");
	ok(same && model_array(&m.tensor[0], &array, why) == EXIT_BAD &&
	   strstr(why, "is a compressed layer (e8-4.25)"), "a layer is no array");
	ok(same && model_find(&m, "scalar") == &m.tensor[3] && !model_find(&m, "x") &&
	   m.tensor[3].data == file + bytes + 88, "a tensor is found by its name");
	model_close(&m);
	free(header);
	free(long_header);
	free(file);
}

#else

static void test_safetensors_refusals(void)
{
	static struct file f;

	safetensors_of(&f, "{}", 0);
	is_refused(&f, "built without jansson", "a .safetensors file without jansson");
	safetensors_of(&f, "[]", 0);
	is_refused(&f, "neither", "another file");
}

static void test_header(void)
{
	skip(1, "built without jansson: no .safetensors file is read");
}

#endif

static void test_paths(void)
{
	ok(model_path("a.safetensors:b") == 13 && model_path("x/a.gguf:b:c") == 8 &&
	   model_path("a.safetensors") == 0 && model_path("a.npy:b") == 0 && model_path("-") == 0,
	   "FILE.safetensors:TENSOR and FILE.gguf:TENSOR");
}

int main(void)
{
	test_blocks();
	test_gguf_refusals();
	test_gguf_pairs();
	test_safetensors_refusals();
	test_header();
	test_paths();
	return done_testing();
}
