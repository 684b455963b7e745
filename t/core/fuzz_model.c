/*
 * fuzz_model.c - a fuzz target for the readers of .safetensors and .gguf files: every tensor of
 * what they accept can be read, and a header written of it is accepted
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define FUZZ_NAME "model"

#include <config.h>

#include "t/core/fuzz.h"
#include "tools/core/model.h"
#include "tools/core/tool.h"

void *allocate(size_t bytes)
{
	/* Exact sizes, so that a sanitizer finds an access beyond the end */
	return bytes > PTRDIFF_MAX ? NULL : malloc(bytes ? bytes : 1);
}

static void read_tensors(const struct model *m, const uint8_t *data, size_t size)
{
	for (int64_t i = 0; i < m->count; i++) {
		const struct model_tensor *t = &m->tensor[i];
		char why[NPY_WHY] = "";
		struct npy a;

		fuzz_must(t->data >= data && t->bytes <= size &&
			  t->data + t->bytes <= data + size, "model_parse", "a tensor outside");
		fuzz_must(model_array(t, &a, why) == 0 ? a.bytes == 0 || a.data : why[0] != 0,
			  "model_array", "neither data nor a message");
		npy_free(&a);
	}
}

/* The header of a file with these tensors, in the order of the table, is read again. */
static void write_again(const struct model *m)
{
	char why[NPY_WHY];
	size_t bytes, data_bytes = 0;
	char *header = safetensors_header(m, 0, &bytes), *file;
	struct model again;

	for (int64_t i = 0; i < m->count; i++)
		data_bytes += m->tensor[i].bytes;
	file = calloc(1, bytes + data_bytes);
	fuzz_must(header && file, "safetensors_header", "no memory");
	memcpy(file, header, bytes);
	fuzz_must(model_parse(&again, file, bytes + data_bytes, why) == 0, "safetensors_header",
		  why);
	fuzz_must(again.count == m->count && again.texts == m->texts, "safetensors_header",
		  "another number of tensors");
	model_close(&again);
	free(header);
	free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char why[NPY_WHY] = "";
	uint8_t *copy = malloc(size ? size : 1);
	struct model m;

	fuzz_must(copy != NULL, "malloc", "no memory");
	if (size)
		memcpy(copy, data, size);
	if (model_parse(&m, copy, size, why) != 0) {
		fuzz_must(!m.tensor && strlen(why) > 0 && strlen(why) < NPY_WHY, "model_parse",
			  "an error without a message");
		fuzz_must(strchr(why, '\n') == NULL, "model_parse", "a message of two lines");
	} else {
		read_tensors(&m, copy, size);
		if (!m.gguf)
			write_again(&m);
		model_close(&m);
	}
	free(copy);
	return 0;
}
