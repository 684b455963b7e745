/*
 * safetensors.c - .safetensors files: the header, read by jansson, and written
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A file has the length of the header in 8 little-endian bytes, the header, and data. The header is
 * a JSON object with {"dtype": .., "shape": [..], "data_offsets": [begin, end]} for each tensor and
 * an object of strings, "__metadata__". As the format's own reader does, this one refuses names
 * that are there twice, gaps and overlaps. Compressed layers are tensors of dtype U8 with one
 * dimension; doc/files.md describes the entry "hurwitz" of __metadata__, which says what they hold.
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "tools/core/model.h"
#include "tools/core/tool.h"

static const char metadata_name[] = "__metadata__", entry_name[] = "hurwitz";

#define ENTRY_VERSION 1

#ifdef HZ_HAVE_JANSSON

#include <jansson.h>

#define HEADER_MAX 100000000	/* the format's own limit */

static const struct type {
	const char *name;
	int bits;
	int dtype;		/* 0: the library has none such */
} types[] = {
	{"F32", 32, HZ_F32}, {"F16", 16, HZ_F16}, {"BF16", 16, HZ_BF16}, {"F64", 64, HZ_F64},
	{"I8", 8, HZ_S8}, {"U8", 8, HZ_U8}, {"I16", 16, HZ_S16}, {"U16", 16, HZ_U16},
	{"I32", 32, HZ_S32}, {"U32", 32, HZ_U32}, {"I64", 64, HZ_S64}, {"U64", 64, HZ_U64},
	{"F8_E4M3", 8, HZ_E4M3}, {"F8_E5M2", 8, HZ_E5M2}, {"F8_E8M0", 8, HZ_E8M0},
	{"F4", 4, HZ_E2M1X2}, {"BOOL", 8, 0}, {"F6_E2M3", 6, 0}, {"F6_E3M2", 6, 0}, {"C64", 64, 0},
	{"F8_E4M3FNUZ", 8, 0}, {"F8_E5M2FNUZ", 8, 0},
};

/* The sizes of an array of at most `most` integers of 0 or more; their number, or -1 */
static int sizes(const json_t *array, int64_t *to, size_t most)
{
	const size_t n = json_array_size(array);

	if (!json_is_array(array) || n > most)
		return -1;
	for (size_t i = 0; i < n; i++) {
		const json_t *size = json_array_get(array, i);

		if (!json_is_integer(size) || json_integer_value(size) < 0)
			return -1;
		to[i] = json_integer_value(size);
	}
	return (int)n;
}

static int read_tensor(struct model_tensor *t, const json_t *row, const unsigned char *data,
		       size_t size, char *why)
{
	const char *dtype = json_string_value(json_object_get(row, "dtype"));
	int64_t offset[2];

	t->ndim = sizes(json_object_get(row, "shape"), t->shape, MODEL_DIMS);
	if (!dtype)
		return model_refuse(why, "tensor '" MODEL_NAME "' has no dtype", t->name);
	if (t->ndim < 0)
		return model_refuse(why, "tensor '" MODEL_NAME "' has no shape of at most %d "
				    "dimensions of 0 or more", t->name, MODEL_DIMS);
	if (sizes(json_object_get(row, "data_offsets"), offset, 2) != 2 || offset[1] < offset[0])
		return model_refuse(why, "tensor '" MODEL_NAME "' has no data_offsets, two "
				    "integers in ascending order", t->name);
	if ((uint64_t)offset[1] > size)
		return model_refuse(why, "tensor '" MODEL_NAME "' ends at byte %lld of the data, "
				    "which are %zu bytes", t->name, (long long)offset[1], size);
	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
		int status;

		if (strcmp(types[i].name, dtype) != 0)
			continue;
		t->type = types[i].name;
		t->dtype = types[i].dtype;
		status = model_bytes(t, t->dtype == HZ_E2M1X2 ? 2 : 1,
				     t->dtype == HZ_E2M1X2 ? 8 : types[i].bits, why);
		if (status)
			return status;
	}
	if (!t->type)
		return model_refuse(why, "tensor '" MODEL_NAME "' has the dtype '%.20s', which is "
				    "not known", t->name, dtype);
	if (t->bytes != (uint64_t)(offset[1] - offset[0]))
		return model_refuse(why, "tensor '" MODEL_NAME "' has %lld bytes, its shape needs "
				    "%zu", t->name, (long long)(offset[1] - offset[0]), t->bytes);
	t->data = data + offset[0];
	return 0;
}

/* Reads an entry {"format": .., "dtype": .., "shape": [out, in]} of what "hurwitz" says. */
static int read_layer(struct model_tensor *t, const json_t *row, char *why)
{
	const char *format = json_string_value(json_object_get(row, "format"));
	const char *dtype = json_string_value(json_object_get(row, "dtype"));

	if (t->dtype != HZ_U8 || t->ndim != 1)
		return model_refuse(why, "__metadata__.hurwitz names '" MODEL_NAME "', which is no "
				    "tensor of U8 with one dimension", t->name);
	if (!format || !dtype ||
	    (strcmp(dtype, "F32") != 0 && strcmp(dtype, "F16") != 0 &&
	     strcmp(dtype, "BF16") != 0) ||
	    sizes(json_object_get(row, "shape"), t->layer.shape, 2) != 2)
		return model_refuse(why, "__metadata__.hurwitz does not give '" MODEL_NAME "' a "
				    "format, a dtype F32, F16 or BF16, and a shape of two sizes",
				    t->name);
	t->layer.format = strdup(format);
	t->layer.dtype = strdup(dtype);
	return t->layer.format && t->layer.dtype ? 0 : model_no_memory(why);
}

static int read_entry(const struct model *m, const json_t *text, char *why)
{
	json_t *entry = json_loadb(json_string_value(text), json_string_length(text),
				   JSON_REJECT_DUPLICATES, NULL);
	const json_t *version = json_object_get(entry, "version");
	const json_t *layers = json_object_get(entry, "tensors");
	size_t found = 0;
	int status = 0;

	if (!json_is_integer(version) || !json_is_object(layers))
		status = model_refuse(why, "__metadata__.hurwitz is no JSON object with version "
				      "and tensors");
	else if (json_integer_value(version) != ENTRY_VERSION)
		status = model_refuse(why, "has compressed layers of version %lld, this program "
				      "reads %d", (long long)json_integer_value(version),
				      ENTRY_VERSION);
	for (int64_t i = 0; i < m->count && !status; i++) {
		const json_t *row = json_object_get(layers, m->tensor[i].name);

		if (!row)
			continue;
		found++;
		status = read_layer(&m->tensor[i], row, why);
	}
	if (!status && found != json_object_size(layers))
		status = model_refuse(why, "__metadata__.hurwitz names layers that the file does "
				      "not have: %zu of %zu", json_object_size(layers) - found,
				      json_object_size(layers));
	json_decref(entry);
	return status;
}

static int read_metadata(struct model *m, json_t *metadata, char *why)
{
	const json_t *value;
	const char *key;

	m->text = calloc(json_object_size(metadata) + 1, sizeof(*m->text));
	if (!m->text)
		return model_no_memory(why);
	json_object_foreach(metadata, key, value) {
		struct model_text *text = &m->text[m->texts];

		if (!json_is_string(value))
			return model_refuse(why, "__metadata__ has a value that is no string");
		if (strcmp(key, entry_name) == 0) {
			const int status = read_entry(m, value, why);

			if (status)
				return status;
			continue;
		}
		m->texts++;
		text->key = strdup(key);
		text->value = strdup(json_string_value(value));
		if (!text->key || !text->value)
			return model_no_memory(why);
	}
	return 0;
}

static int read_header(struct model *m, json_t *header, const unsigned char *data, size_t size,
		       char *why)
{
	json_t *metadata = json_object_get(header, metadata_name);
	const json_t *row;
	const char *name;
	int status;

	m->tensor = calloc(json_object_size(header) + 1, sizeof(*m->tensor));
	if (!m->tensor)
		return model_no_memory(why);
	json_object_foreach(header, name, row) {
		struct model_tensor *t = &m->tensor[m->count];

		if (row == metadata)
			continue;
		m->count++;
		if (!*name)
			return model_refuse(why, "has a tensor without a name");
		t->name = strdup(name);
		if (!t->name)
			return model_no_memory(why);
		status = read_tensor(t, row, data, size, why);
		if (status)
			return status;
	}
	if (metadata && !json_is_object(metadata))
		return model_refuse(why, "__metadata__ is no object");
	status = model_check(m, data, size, true, why);
	return status || !metadata ? status : read_metadata(m, metadata, why);
}

int safetensors_parse(struct model *m, const unsigned char *p, size_t bytes, char why[NPY_WHY])
{
	json_error_t error;
	uint64_t length = 0;
	json_t *header;
	int status;

	for (int i = 7; i >= 0; i--)
		length = length << 8 | p[i];
	if (length > bytes - 8)
		return model_refuse(why, "is truncated: a header of %llu bytes is announced, %zu "
				    "follow", (unsigned long long)length, bytes - 8);
	if (length > HEADER_MAX)
		return model_refuse(why, "has a header of %llu bytes, at most %d are read",
				    (unsigned long long)length, HEADER_MAX);
	header = json_loadb((const char *)p + 8, (size_t)length, JSON_REJECT_DUPLICATES, &error);
	if (!header)
		return json_error_code(&error) == json_error_out_of_memory ? model_no_memory(why) :
			model_refuse(why, "has a header that is not JSON with each name once, at "
				     "byte %d: %.100s", error.position, error.text);
	status = read_header(m, header, p + 8 + length, bytes - 8 - (size_t)length, why);
	json_decref(header);
	return status;
}

#else

int safetensors_parse(struct model *m, const unsigned char *p, size_t bytes, char why[NPY_WHY])
{
	(void)m, (void)p, (void)bytes;
	model_refuse(why, "this hurwitz was built without jansson: .safetensors files cannot be "
		     "read; install jansson and configure again");
	return EXIT_FAILURE;
}

#endif

/* ---- Writing --------------------------------------------------------------------------------- */

static void put_shape(FILE *out, int ndim, const int64_t *shape)
{
	fputc('[', out);
	for (int i = 0; i < ndim; i++)
		fprintf(out, "%s%lld", i ? "," : "", (long long)shape[i]);
	fputc(']', out);
}

/* The entry "hurwitz" as JSON; NULL without memory */
static char *layers_text(const struct model *m)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);
	bool first = true;

	if (!out)
		return NULL;
	fprintf(out, "{\"version\":%d,\"tensors\":{", ENTRY_VERSION);
	for (int64_t i = 0; i < m->count; i++) {
		const struct model_layer *layer = &m->tensor[i].layer;

		if (!layer->format)
			continue;
		fputs(first ? "" : ",", out);
		first = false;
		put_json_string(out, m->tensor[i].name);
		fprintf(out, ":{\"format\":\"%s\",\"dtype\":\"%s\",\"shape\":", layer->format,
			layer->dtype);
		put_shape(out, 2, layer->shape);
		fputc('}', out);
	}
	fputs("}}", out);
	if (fclose(out) == 0)
		return text;
	free(text);
	return NULL;
}

/* Writes "__metadata__":{..}, unless there would be nothing in it. */
static bool put_metadata(FILE *out, const struct model *m)
{
	bool layers = false, first = true;

	for (int64_t i = 0; i < m->count; i++)
		layers |= m->tensor[i].layer.format != NULL;
	if (!layers && m->texts == 0)
		return true;
	put_json_string(out, metadata_name);
	fputs(":{", out);
	for (int64_t i = 0; i < m->texts; i++) {
		fputs(first ? "" : ",", out);
		first = false;
		put_json_string(out, m->text[i].key);
		fputc(':', out);
		put_json_string(out, m->text[i].value);
	}
	if (layers) {
		char *text = layers_text(m);

		if (!text)
			return false;
		fputs(first ? "" : ",", out);
		put_json_string(out, entry_name);
		fputc(':', out);
		put_json_string(out, text);
		free(text);
	}
	fputs(m->count ? "}," : "}", out);
	return true;
}

char *safetensors_header(const struct model *m, size_t least, size_t *bytes)
{
	uint64_t at = 0, length;
	char *header = NULL;
	FILE *out = open_memstream(&header, bytes);
	bool good;

	if (!out)
		return NULL;
	fprintf(out, "%8s{", "");
	good = put_metadata(out, m);
	for (int64_t i = 0; i < m->count; i++) {
		const struct model_tensor *t = &m->tensor[i];
		const uint64_t end = at + t->bytes;

		fputs(i ? "," : "", out);
		put_json_string(out, t->name);
		fprintf(out, ":{\"dtype\":\"%s\",\"shape\":", t->type);
		put_shape(out, t->ndim, t->shape);
		fprintf(out, ",\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
			(unsigned long long)end);
		at = end;
	}
	fputc('}', out);
	fflush(out);
	while (good && (*bytes < least || *bytes % 64)) {
		fputc(' ', out);
		fflush(out);
	}
	if (fclose(out) != 0 || !good) {
		free(header);
		return NULL;
	}
	length = *bytes - 8;
	for (int i = 0; i < 8; i++)
		header[i] = (char)(length >> 8 * i);
	return header;
}
