/*
 * weights.c - tensors of f32 in a .safetensors file, mapped
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The file has the length of its header in 8 bytes, the header, in JSON, and data. This reads what
 * the writers of the format make, and is no reader of JSON: tools/core/safetensors.c is one.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "encoder.h"

struct weights {
	void *map;
	size_t bytes, data_at;
	char *header;		/* without white space, ends in 0 */
};

struct weights *weights_open(const char *path)
{
	struct weights *const w = calloc(1, sizeof(*w));
	const int file = open(path, O_RDONLY);
	struct stat status;
	uint64_t size;
	char *to;

	if (!w || file < 0 || fstat(file, &status) != 0)
		fail("cannot open %s", path);
	w->bytes = (size_t)status.st_size;
	w->map = w->bytes > 8 ? mmap(NULL, w->bytes, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
	close(file);
	if (w->map == MAP_FAILED)
		fail("cannot map %s", path);
	memcpy(&size, w->map, 8);
	if (size > w->bytes - 8 || size % 4)
		fail("%s is no .safetensors file: its header would have %llu bytes", path,
		     (unsigned long long)size);
	w->data_at = 8 + (size_t)size;
	w->header = to = malloc((size_t)size + 1);
	if (!to)
		fail("no memory");
	for (const char *from = (const char *)w->map + 8; size; size--, from++) {
		if (*from != ' ' && *from != '\n' && *from != '\t' && *from != '\r' && *from)
			*to++ = *from;
	}
	*to = 0;
	return w;
}

void weights_close(struct weights *w)
{
	munmap(w->map, w->bytes);
	free(w->header);
	free(w);
}

const float *weights_find(const struct weights *w, const char *name, int64_t shape[2])
{
	const size_t room = w->bytes - w->data_at;
	unsigned long long begin, end;
	long long rows = 1, columns;
	const char *at, *sizes;
	char key[256];

	snprintf(key, sizeof(key), "\"%s\":{\"dtype\":\"F32\",\"shape\":[", name);
	at = strstr(w->header, key);
	if (!at)
		return NULL;
	sizes = at + strlen(key);
	at = strstr(sizes, "\"data_offsets\":[");
	if (!at || sscanf(at, "\"data_offsets\":[%llu,%llu]", &begin, &end) != 2)
		return NULL;
	if (sscanf(sizes, "%lld,%lld]", &rows, &columns) != 2) {
		rows = 1;
		if (sscanf(sizes, "%lld]", &columns) != 1)
			return NULL;
	}
	if (begin > end || end > room || begin % 4 || rows < 1 || columns < 1 ||
	    (uint64_t)rows > room || (uint64_t)columns > room ||
	    (end - begin) / 4 / (uint64_t)columns != (uint64_t)rows ||
	    (end - begin) % (4 * (uint64_t)columns))
		fail("tensor %s: its shape and its place in the file do not fit", name);
	shape[0] = rows;
	shape[1] = columns;
	return (const float *)((const char *)w->map + w->data_at + begin);
}

const float *weights_need(const struct weights *w, int64_t rows, int64_t columns,
			  const char *format, ...)
{
	int64_t shape[2];
	const float *data;
	char name[200];
	va_list list;

	va_start(list, format);
	vsnprintf(name, sizeof(name), format, list);
	va_end(list);
	data = weights_find(w, name, shape);
	if (!data)
		fail("the model has no f32 tensor %s", name);
	if ((rows && shape[0] != rows) || (columns && shape[1] != columns))
		fail("tensor %s is [%lld, %lld], must be [%lld, %lld]", name, (long long)shape[0],
		     (long long)shape[1], (long long)rows, (long long)columns);
	return data;
}
