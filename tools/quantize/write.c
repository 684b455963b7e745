/*
 * write.c - a .safetensors file, written tensor by tensor
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/core/output.h"
#include "tools/quantize/quantize.h"

static int failed(const struct writer *w)
{
	return complain(EXIT_FAILURE, "%s: %s", w->path, strerror(errno));
}

int writer_open(struct writer *w, const char *path, const struct model *longest)
{
	char *header = safetensors_header(longest, 0, &w->header_bytes);
	int status;

	w->path = path;
	if (!header)
		return complain(EXIT_FAILURE, "%s: there is not enough memory for its header",
				path);
	if (strcmp(path, "-") == 0)
		status = complain(EXIT_BAD, "the output cannot be standard output: its header is "
				  "written last");
	else
		status = output_open(path);
	if (!status && lseek(output_fd(0), 0, SEEK_CUR) < 0)
		status = complain(EXIT_BAD, "%s: is a pipe, where the header cannot be written "
				  "last", path);
	if (!status && !put_bytes(output_fd(0), header, w->header_bytes))
		status = failed(w);
	free(header);
	return status;
}

int writer_put(const struct writer *w, const void *p, size_t bytes)
{
	return put_bytes(output_fd(0), p, bytes) ? 0 : failed(w);
}

int writer_finish(const struct writer *w, const struct model *m)
{
	size_t bytes;
	char *header = safetensors_header(m, w->header_bytes, &bytes);
	int status = 0;

	if (!header || bytes != w->header_bytes)
		status = complain(EXIT_FAILURE, "%s: there is not enough %s for its header",
				  w->path, header ? "space" : "memory");
	else if (lseek(output_fd(0), 0, SEEK_SET) < 0 ||
		 !put_bytes(output_fd(0), header, bytes) ||
		 (fsync(output_fd(0)) != 0 && errno != EINVAL && errno != EROFS))
		status = failed(w);
	free(header);
	if (!status)
		status = output_close(0, w->path);
	return status ? status : outputs_finish();
}

int model_align(const struct model_tensor *t)
{
	uint64_t count = 1;

	if (t->dtype)
		return (int)hz_dtype_size(t->dtype);
	for (int i = 0; i < t->ndim; i++)
		count *= (uint64_t)t->shape[i];
	return count && t->bytes / count ? (int)(t->bytes / count) : 1;
}

void model_release(const struct model *m, const struct model_tensor *t)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), base = (uintptr_t)m->map;
	const uintptr_t begin = ((uintptr_t)t->data - base) / page * page;
	const uintptr_t end = (uintptr_t)t->data - base + t->bytes;

	if (t->bytes)
		madvise((char *)m->map + begin, end - begin, MADV_DONTNEED);
}

const void *model_aligned(const struct model *m, const struct model_tensor *t, size_t align,
			  void **copy)
{
	*copy = NULL;
	if ((uintptr_t)t->data % align == 0)
		return t->data;
	*copy = allocate(t->bytes);
	if (*copy) {
		memcpy(*copy, t->data, t->bytes);
		model_release(m, t);
	}
	return *copy;
}
