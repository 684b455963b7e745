/*
 * model.c - files of named tensors: mapping, lookup, checks that both formats share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/core/model.h"
#include "tools/core/tool.h"

int model_refuse(char why[NPY_WHY], const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(why, NPY_WHY, format, ap);
	va_end(ap);
	for (char *p = why; *p; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	}
	return EXIT_BAD;
}

int model_no_memory(char why[NPY_WHY])
{
	model_refuse(why, "there is not enough memory for it");
	return EXIT_FAILURE;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

int model_bytes(struct model_tensor *t, int block, int bits, char why[NPY_WHY])
{
	const int64_t row = t->ndim ? t->shape[t->ndim - 1] : 1;
	int64_t n = 1, count;
	bool empty = false;

	if (row % block)
		return model_refuse(why, "tensor '" MODEL_NAME "' has rows of %lld elements, its "
				    "type %s wants a multiple of %d", t->name, (long long)row,
				    t->type, block);
	/* The other dimensions must fit even if one is 0: views compute strides from them. */
	for (int i = 0; i < t->ndim; i++) {
		empty |= t->shape[i] == 0;
		if (__builtin_mul_overflow(n, t->shape[i] ? t->shape[i] : 1, &n))
			return model_refuse(why, "tensor '" MODEL_NAME "' has a shape whose size "
					    "overflows", t->name);
	}
	count = empty ? 0 : n / block;
	if (__builtin_mul_overflow(count, bits, &n) || n % 8 || n / 8 > PTRDIFF_MAX / 2)
		return model_refuse(why, "tensor '" MODEL_NAME "' has a shape whose size %s",
				    t->name, n % 8 ? "is no whole number of bytes" : "overflows");
	t->bytes = (size_t)(n / 8);
	return 0;
}

/* An element of arrays that are sorted */
struct ref {
	const struct model_tensor *t;
};

static int compare_names(const void *a, const void *b)
{
	return strcmp(((const struct ref *)a)->t->name, ((const struct ref *)b)->t->name);
}

/* By address; an empty tensor before one that begins there */
static int compare_places(const void *a, const void *b)
{
	const struct model_tensor *x = ((const struct ref *)a)->t, *y = ((const struct ref *)b)->t;

	if (x->data != y->data)
		return x->data < y->data ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

int model_check(const struct model *m, const unsigned char *begin, size_t size, bool dense,
		char why[NPY_WHY])
{
	const size_t n = (size_t)m->count;
	struct ref *sorted = calloc(n + 1, sizeof(*sorted));
	const unsigned char *end = begin;
	int status = 0;

	if (!sorted)
		return model_no_memory(why);
	for (size_t i = 0; i < n; i++)
		sorted[i].t = &m->tensor[i];
	qsort(sorted, n, sizeof(*sorted), compare_names);
	for (size_t i = 1; i < n && !status; i++) {
		if (strcmp(sorted[i - 1].t->name, sorted[i].t->name) == 0)
			status = model_refuse(why, "has two tensors with the name '" MODEL_NAME "'",
					      sorted[i].t->name);
	}
	qsort(sorted, n, sizeof(*sorted), compare_places);
	for (size_t i = 0; i < n && !status; i++) {
		const struct model_tensor *t = sorted[i].t;

		if (t->data < end && t->bytes)
			status = model_refuse(why, "tensor '" MODEL_NAME "' overlaps '" MODEL_NAME
					      "'", t->name, sorted[i - 1].t->name);
		else if (dense && t->data != end)
			status = model_refuse(why, "has a gap before the data of tensor '"
					      MODEL_NAME "'", t->name);
		if (t->bytes)
			end = t->data + t->bytes;
	}
	if (!status && dense && end != begin + size)
		status = model_refuse(why, "has %zu bytes after its last tensor",
				      size - (size_t)(end - begin));
	free(sorted);
	return status;
}

/* ---- Opening --------------------------------------------------------------------------------- */

void model_close(struct model *m)
{
	for (int64_t i = 0; i < m->count; i++) {
		free(m->tensor[i].name);
		free(m->tensor[i].layer.format);
		free(m->tensor[i].layer.dtype);
	}
	for (int64_t i = 0; i < m->texts; i++) {
		free(m->text[i].key);
		free(m->text[i].value);
	}
	free(m->tensor);
	free(m->text);
	if (m->map)
		munmap(m->map, m->map_bytes);
	memset(m, 0, sizeof(*m));
}

static bool is_gguf(const void *p, size_t bytes)
{
	return bytes >= 4 && memcmp(p, "GGUF", 4) == 0;
}

static bool is_safetensors(const void *p, size_t bytes)
{
	return bytes > 8 && ((const char *)p)[8] == '{' && !is_gguf(p, bytes);
}

int model_parse(struct model *m, const void *p, size_t bytes, char why[NPY_WHY])
{
	int status;

	memset(m, 0, sizeof(*m));
	if (bytes == 0)
		return model_refuse(why, "is empty");
	m->gguf = is_gguf(p, bytes);
	if (!m->gguf && !is_safetensors(p, bytes))
		return model_refuse(why, "is neither a .safetensors nor a .gguf file");
	status = (m->gguf ? gguf_parse : safetensors_parse)(m, p, bytes, why);
	if (status)
		model_close(m);
	return status;
}

int model_open(struct model *m, const char *path, bool gguf, char why[NPY_WHY])
{
	/* Without O_NONBLOCK a pipe without a writer would be waited for. */
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	void *map = NULL;
	int status = 0;

	memset(m, 0, sizeof(*m));
	if (fd < 0)
		return model_refuse(why, "%s", strerror(errno));
	if (fstat(fd, &st) != 0)
		status = model_refuse(why, "%s", strerror(errno));
	else if (!S_ISREG(st.st_mode))
		status = model_refuse(why, S_ISDIR(st.st_mode) ? "is a directory" :
				      "is no regular file, and files of tensors are mapped");
	else if (st.st_size == 0)
		status = model_refuse(why, "is empty");
	else if ((map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) ==
		 MAP_FAILED) {
		model_refuse(why, "cannot be mapped: %s", strerror(errno));
		status = EXIT_FAILURE;
	}
	close(fd);
	if (status || !map)
		return status;
	if (!gguf && !is_safetensors(map, (size_t)st.st_size))
		status = model_refuse(why, "is %s file; a .safetensors file is needed",
				      is_gguf(map, (size_t)st.st_size) ? "a .gguf" : "another");
	else
		status = model_parse(m, map, (size_t)st.st_size, why);
	if (status) {
		munmap(map, (size_t)st.st_size);
		return status;
	}
	m->map = map;
	m->map_bytes = (size_t)st.st_size;
	return 0;
}

struct model_tensor *model_find(const struct model *m, const char *name)
{
	for (int64_t i = 0; i < m->count; i++) {
		if (strcmp(m->tensor[i].name, name) == 0)
			return &m->tensor[i];
	}
	return NULL;
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

int model_array(const struct model_tensor *t, struct npy *a, char why[NPY_WHY])
{
	const bool blocks = t->dtype == HZ_F32 && strcmp(t->type, "F32") != 0;

	memset(a, 0, sizeof(*a));
	if (t->layer.format)
		return model_refuse(why, "tensor '" MODEL_NAME "' is a compressed layer (%.20s); "
				    "'hurwitz dequantize' makes a file in which it is a matrix",
				    t->name, t->layer.format);
	if (!t->dtype)
		return model_refuse(why, "tensor '" MODEL_NAME "' holds %s, which is not read",
				    t->name, t->type);
	if (t->ndim > HZ_MAXDIM)
		return model_refuse(why, "tensor '" MODEL_NAME "' has %d dimensions, at most %d "
				    "are read", t->name, t->ndim, HZ_MAXDIM);
	a->dtype = t->dtype;
	a->ndim = t->ndim;
	memcpy(a->shape, t->shape, (size_t)t->ndim * sizeof(*t->shape));
	if (t->dtype == HZ_E2M1X2 && a->ndim)
		a->shape[a->ndim - 1] /= 2;
	if (!npy_size(a->ndim, a->shape, a->dtype, &a->count, &a->bytes))
		return model_refuse(why, "tensor '" MODEL_NAME "' has a shape whose size overflows",
				    t->name);
	if (a->bytes == 0)
		return 0;
	a->data = allocate(a->bytes);
	if (!a->data)
		return model_no_memory(why);
	if (blocks)
		gguf_dequantize(t, a->data);
	else
		memcpy(a->data, t->data, a->bytes);
	return 0;
}

size_t model_path(const char *path)
{
	static const char *const ends[] = {".safetensors:", ".gguf:"};

	for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
		const char *end = strstr(path, ends[i]);

		if (end)
			return (size_t)(end - path) + strlen(ends[i]) - 1;
	}
	return 0;
}

static bool ends_in(const char *path, const char *end)
{
	const size_t n = strlen(path), k = strlen(end);

	return n >= k && strcmp(path + n - k, end) == 0;
}

int array_read(struct npy *a, const char *path, char why[NPY_WHY])
{
	const size_t length = model_path(path);
	const struct model_tensor *t;
	struct model m;
	char *file;
	int status;

	memset(a, 0, sizeof(*a));
	if (ends_in(path, ".safetensors") || ends_in(path, ".gguf"))
		return model_refuse(why, "holds several tensors: give FILE:TENSOR; 'hurwitz "
				    "inspect FILE' lists them");
	if (!length)
		return npy_read(a, path, why);
	file = strndup(path, length);
	if (!file)
		return model_no_memory(why);
	status = model_open(&m, file, true, why);
	free(file);
	if (status)
		return status;
	t = model_find(&m, path + length + 1);
	if (t)
		status = model_array(t, a, why);
	else
		status = model_refuse(why, "there is no such tensor; 'hurwitz inspect FILE' lists "
				      "the %lld of the file", (long long)m.count);
	model_close(&m);
	return status;
}
