/*
 * memory.c - host and device memory, and copies between them
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "lib/core/internal.h"

#define ALIGN 64	/* of hz_alloc(): a cache line, and the widest vector */
#define HUGE_PAGE ((size_t)2 << 20)

/* ---- The allocator --------------------------------------------------------------------------- */

void *hzi_malloc(const struct hz_context *ctx, size_t bytes, size_t align)
{
	if (align < sizeof(void *))
		align = sizeof(void *);
	if (bytes == 0)
		bytes = 1;
	/* No object is larger than this; smaller sizes can be rounded up without overflow. */
	if (bytes > PTRDIFF_MAX - align)
		return NULL;
	if (ctx->allocator.alloc)
		return ctx->allocator.alloc(ctx->allocator.user, bytes, align);
#ifdef MADV_HUGEPAGE
	/*
	 * Asks for large pages, since the TLB holds few pages of 4 KiB: they save 4 to 7 % of a
	 * quantized multiplication of 2048^3. A refusal does not matter.
	 */
	if (bytes >= 2 * HUGE_PAGE && bytes <= PTRDIFF_MAX - HUGE_PAGE && align <= HUGE_PAGE) {
		const size_t total = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
		void *p = aligned_alloc(HUGE_PAGE, total);

		if (p)
			(void)madvise(p, total, MADV_HUGEPAGE);
		return p;
	}
#endif
	return aligned_alloc(align, (bytes + align - 1) / align * align);
}

void hzi_mfree(const struct hz_context *ctx, void *p, size_t bytes)
{
	if (!p)
		return;
	if (ctx->allocator.free)
		ctx->allocator.free(ctx->allocator.user, p, bytes ? bytes : 1);
	else
		free(p);
}

/* ---- hz_alloc, hz_free ----------------------------------------------------------------------- */

/*
 * Host memory is preceded by ALIGN bytes that hold its size: the allocator's free() wants it, and
 * hz_free() is not told.
 */
static int alloc_host(struct hz_context *ctx, void **p, size_t bytes)
{
	size_t total;
	char *base = NULL;

	if (!__builtin_add_overflow(bytes, ALIGN, &total))
		base = hzi_malloc(ctx, total, ALIGN);
	if (!base)
		return hzi_fail(ctx, HZ_ENOMEM, "alloc: no memory for %zu bytes on the host",
				bytes);
	memcpy(base, &total, sizeof(total));
	*p = base + ALIGN;
	return HZ_OK;
}

static void free_host(struct hz_context *ctx, void *p)
{
	char *base = (char *)p - ALIGN;
	size_t total;

	memcpy(&total, base, sizeof(total));
	hzi_mfree(ctx, base, total);
}

static int check_device(struct hz_context *ctx, const char *op, const char *name, int device)
{
	if (device == HZ_CPU || device == ctx->device)
		return HZ_OK;
	if (ctx->device == HZ_CPU)
		return hzi_fail(ctx, HZ_EDEVICE, "%s: %s is %d, must be HZ_CPU, as the context", op,
				name, device);
	return hzi_fail(ctx, HZ_EDEVICE,
			"%s: %s is %d, must be HZ_CPU or the context's, HZ_CUDA + %d", op, name,
			device, ctx->device - HZ_CUDA);
}

int hz_alloc(hz_context *ctx, void **p, size_t bytes, int device)
{
	HZI_ENTER(ctx, "alloc");
	if (!p)
		return hzi_fail(ctx, HZ_EINVAL,
				"alloc: p is NULL, must point to where the pointer goes");
	HZ_CHECK(check_device(ctx, "alloc", "device", device));
	return device == HZ_CPU ? alloc_host(ctx, p, bytes) : ctx->gpu->alloc(ctx, p, bytes);
}

int hz_free(hz_context *ctx, void *p, int device)
{
	HZI_ENTER(ctx, "free");
	HZ_CHECK(check_device(ctx, "free", "device", device));
	if (!p)
		return HZ_OK;
	if ((uintptr_t)p % ALIGN)
		return hzi_fail(ctx, HZ_EINVAL, "free: p is %p, which is not from hz_alloc()", p);
	if (device != HZ_CPU)
		return ctx->gpu->free(ctx, p);
	free_host(ctx, p);
	return HZ_OK;
}

/* ---- hz_copy --------------------------------------------------------------------------------- */

/* n elements with any strides, which count elements. */
static void copy_line(char *dst, int64_t dst_stride, const char *src, int64_t src_stride, int64_t n,
		      size_t size)
{
	if (dst_stride == 1 && src_stride == 1) {
		memcpy(dst, src, (size_t)n * size);
		return;
	}
	dst_stride *= (int64_t)size;
	src_stride *= (int64_t)size;
	/* A memcpy of constant size is one load and one store, whatever the alignment. */
	for (int64_t i = 0; i < n; i++, dst += dst_stride, src += src_stride) {
		switch (size) {
		case 1: memcpy(dst, src, 1); break;
		case 2: memcpy(dst, src, 2); break;
		case 4: memcpy(dst, src, 4); break;
		default: memcpy(dst, src, 8); break;
		}
	}
}

/* Both views have the same shape without a 0 and do not overlap. */
static void copy_host(const hz_tensor *src, const hz_tensor *dst)
{
	const size_t size = hz_dtype_size(src->dtype);
	int64_t shape[HZ_MAXDIM + 1] = {1}, from[HZ_MAXDIM + 1] = {1}, to[HZ_MAXDIM + 1] = {1};
	int64_t index[HZ_MAXDIM + 1] = {0};
	const char *s = src->data;
	char *d = dst->data;
	int n = 0, i;

	/* Innermost first; neighbouring dimensions that are contiguous in both views are merged. */
	for (i = src->ndim - 1; i >= 0; i--) {
		if (src->shape[i] == 1)
			continue;
		if (n > 0 && src->stride[i] == from[n - 1] * shape[n - 1] &&
		    dst->stride[i] == to[n - 1] * shape[n - 1]) {
			shape[n - 1] *= src->shape[i];
			continue;
		}
		shape[n] = src->shape[i];
		from[n] = src->stride[i];
		to[n] = dst->stride[i];
		n++;
	}
	do {
		copy_line(d, to[0], s, from[0], shape[0], size);
		for (i = 1; i < n; i++) {
			s += from[i] * (int64_t)size;
			d += to[i] * (int64_t)size;
			if (++index[i] < shape[i])
				break;
			s -= from[i] * shape[i] * (int64_t)size;
			d -= to[i] * shape[i] * (int64_t)size;
			index[i] = 0;
		}
	} while (i < n);
}

/* hzi_check() for an operand that may also be on the host of a GPU context */
static int check_operand(struct hz_context *ctx, const char *name, const hz_tensor *t, bool output)
{
	static const int dtypes[] = {
#define HZ_DTYPE(constant, name, bytes) constant,
#include "lib/core/dtype.def"
#undef HZ_DTYPE
		0
	};
	hz_tensor here;

	if (!t || t->device != HZ_CPU)
		return hzi_check(ctx, "copy", name, t, dtypes, output);
	here = *t;
	here.device = ctx->device;
	return hzi_check(ctx, "copy", name, &here, dtypes, output);
}

int hz_copy(hz_context *ctx, const hz_tensor *src, hz_tensor *dst)
{
	int64_t bytes;

	HZI_ENTER(ctx, "copy");
	HZ_CHECK(check_operand(ctx, "src", src, false));
	HZ_CHECK(check_operand(ctx, "dst", dst, true));
	if (src->dtype != dst->dtype)
		return hzi_fail(ctx, HZ_EDTYPE, "copy: dst.dtype is %s, must be %s, as src",
				hz_dtype_name(dst->dtype), hz_dtype_name(src->dtype));
	HZ_CHECK(hzi_check_same_shape(ctx, "copy", "src", src, "dst", dst));
	bytes = hz_tensor_count(src) * (int64_t)hz_dtype_size(src->dtype);
	if (bytes == 0)
		return HZ_OK;
	HZ_CHECK(hzi_check_apart(ctx, "copy", "src", src, "dst", dst));
	if (ctx->recording)
		return HZ_OK;
	if (src->device == HZ_CPU && dst->device == HZ_CPU) {
		copy_host(src, dst);
		return HZ_OK;
	}
	if (!hz_tensor_contiguous(src) || !hz_tensor_contiguous(dst))
		return hzi_fail(ctx, HZ_ESTRIDE,
				"copy: %s is not contiguous, must be for a copy from or to the GPU",
				hz_tensor_contiguous(src) ? "dst" : "src");
	return ctx->gpu->copy(ctx, dst->data, dst->device, src->data, src->device, (size_t)bytes);
}
