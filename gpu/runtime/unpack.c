/*
 * unpack.c - device code that tools/pack-fatbin has compressed: the target for a GPU, by liblzma
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The driver chooses from a fatbin itself, and unpacks what nvcc has compressed. xz makes device
 * code smaller, but then the choice is made here. Each target is compressed alone, so that only the
 * GPU's is unpacked.
 */
#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/runtime/unpack.h"

#ifdef HZ_HAVE_LZMA

#include <lzma.h>

static const unsigned char fatbin_magic[] = {0x50, 0xed, 0x55, 0xba};

/* Of the decoder: tools/pack-fatbin has it look back 8 MiB at most. */
#define MEMORY_LIMIT (16 << 20)

struct target {
	char name[16];			/* sm_90a, compute_90 */
	const unsigned char *xz;
	size_t xz_bytes, bytes;
};

/* Reads the target at p. Returns the end of it, or NULL if the image is damaged. */
static const unsigned char *read_target(const unsigned char *p, const unsigned char *end,
					struct target *t)
{
	int n = 0;

	/* A zero byte follows the image: see images.inc. */
	if (sscanf((const char *)p, "%15[a-z0-9_] %zu %zu%n", t->name, &t->xz_bytes, &t->bytes,
		   &n) != 3 || n >= end - p || p[n] != '\n')
		return NULL;
	t->xz = p + n + 1;
	return t->xz_bytes <= (size_t)(end - t->xz) && t->bytes < PTRDIFF_MAX ?
		       t->xz + t->xz_bytes : NULL;
}

/*
 * How well a target fits compute capability sm, as the driver chooses from a fatbin; 0: not at all.
 * Machine code runs on GPUs of the same major version and no lower minor version, PTX on all that
 * are not older; with a suffix a on the GPU of that number alone, and PTX with a suffix f on GPUs of
 * the same major version. Machine code is better than PTX, then the highest number is best.
 */
static int fit(const char *name, int sm)
{
	int number = 0, machine_code;
	char suffix = 0;

	machine_code = sscanf(name, "sm_%d%c", &number, &suffix) > 0;
	if (!machine_code && sscanf(name, "compute_%d%c", &number, &suffix) < 1)
		return 0;
	if (number > sm || (suffix == 'a' && number != sm) ||
	    ((machine_code || suffix) && number / 10 != sm / 10))
		return 0;
	return (machine_code << 16) + (number << 2) + (suffix == 'a' ? 2 : suffix == 'f');
}

/* liblzma does not say how much it frees, so that is in front. */
#define HEAD 64

static void *lzma_malloc(void *ctx, size_t n, size_t size)
{
	const size_t bytes = n * size + HEAD;	/* liblzma's n is 1 */
	char *p = hzi_malloc(ctx, bytes, HEAD);

	if (!p)
		return NULL;
	memcpy(p, &bytes, sizeof(bytes));
	return p + HEAD;
}

static void lzma_mfree(void *ctx, void *p)
{
	size_t bytes;

	if (!p)
		return;
	p = (char *)p - HEAD;
	memcpy(&bytes, p, sizeof(bytes));
	hzi_mfree(ctx, p, bytes);
}

/* ---- PTX ------------------------------------------------------------------------------------- */

#define REGISTERS 16		/* kinds: r, rd, f, p and so on */

struct registers {
	struct {
		char name[8];
		long last;
	} of[REGISTERS];
	int count;
};

/* The last number of a kind; NULL: too many kinds, or too long a name */
static long *last_of(struct registers *r, const char *name, size_t n)
{
	if (n >= sizeof(r->of->name))
		return NULL;
	for (int i = 0; i < r->count; i++) {
		if (!strncmp(r->of[i].name, name, n) && !r->of[i].name[n])
			return &r->of[i].last;
	}
	if (r->count == REGISTERS)
		return NULL;
	memcpy(r->of[r->count].name, name, n);
	return &r->of[r->count++].last;
}

/*
 * Undoes relative() of tools/pack-fatbin, to `to` unless it is NULL. Returns how long the text is,
 * or 0 if it is damaged.
 */
static size_t restore_registers(const char *p, char *to)
{
	struct registers registers = {.count = 0};
	bool begins = true;
	size_t n = 0;

	while (*p) {
		const size_t letters = *p == '%' ? strspn(p + 1, "abcdefghijklmnopqrstuvwxyz") : 0;
		const char *number = p + 1 + letters, *digits = number;
		char text[24];
		long *last, value;
		char *end;
		int length;

		digits += letters && *digits == '-';
		if (!letters || *digits < '0' || *digits > '9') {
			begins |= *p == '\n';
			if (to)
				to[n] = *p;
			n++, p++;
			continue;
		}
		last = last_of(&registers, p + 1, letters);
		value = strtol(number, &end, 10);
		if (!last || end - number > 12 || (value += *last) < 0)
			return 0;
		length = snprintf(text, sizeof(text), "%ld", value);
		if (to) {
			memcpy(to + n, p, 1 + letters);
			memcpy(to + n + 1 + letters, text, (size_t)length);
		}
		n += 1 + letters + (size_t)length;
		if (begins)
			*last = value;
		begins = false;
		p = end;
	}
	return n;
}

/*
 * Replaces *code, `bytes` of PTX with relative numbers and a zero byte, by PTX. Returns the bytes of
 * that, or 0 if it is damaged or, with *code NULL, if there is no memory.
 */
static size_t restore_ptx(struct hz_context *ctx, char **code, size_t bytes)
{
	const size_t restored = restore_registers(*code, NULL);
	char *p;

	if (!restored)
		return 0;
	p = hzi_malloc(ctx, restored + 1, HEAD);
	if (p) {
		restore_registers(*code, p);
		p[restored] = 0;
	}
	hzi_mfree(ctx, *code, bytes + 1);
	*code = p;
	return p ? restored : 0;
}

/* ---- Images ---------------------------------------------------------------------------------- */

__attribute__((cold))
int hzi_cuda_unpack(struct hz_context *ctx, const char *op, const char *what,
		    const struct hzi_image *image, int sm, void **code, size_t *bytes)
{
	const lzma_allocator allocator = {.alloc = lzma_malloc, .free = lzma_mfree, .opaque = ctx};
	uint64_t limit = MEMORY_LIMIT;
	size_t names_used = 0, in = 0, out = 0;
	struct target t, best = {.name = ""};
	char names[160] = "";
	int best_fit = 0;
	lzma_ret r;
	char *p;

	*code = (void *)image->code;
	*bytes = 0;
	if (memcmp(image->code, fatbin_magic, sizeof(fatbin_magic)) == 0)
		return HZ_OK;
	for (const unsigned char *at = image->code; at < image->end;) {
		at = read_target(at, image->end, &t);
		if (!at)
			goto damaged;
		if (fit(t.name, sm) > best_fit) {
			best_fit = fit(t.name, sm);
			best = t;
		}
		if (names_used < sizeof(names))
			names_used += (size_t)snprintf(names + names_used, sizeof(names) - names_used,
						       "%s%s", names_used ? ", " : "", t.name);
	}
	if (!best_fit)
		return hzi_fail(ctx, HZ_ENOTSUP,
				"%s: the %s device code is for %s, and does not run on SM %d.%d", op,
				what, names, sm / 10, sm % 10);
	/* One more for the zero byte behind PTX */
	p = hzi_malloc(ctx, best.bytes + 1, HEAD);
	if (!p)
		goto no_memory;
	r = lzma_stream_buffer_decode(&limit, 0, &allocator, best.xz, &in, best.xz_bytes,
				      (uint8_t *)p, &out, best.bytes);
	if (r == LZMA_OK && in == best.xz_bytes && out == best.bytes) {
		p[best.bytes] = 0;
		if (best.name[0] == 'c')
			out = restore_ptx(ctx, &p, best.bytes);
		if (out) {
			*code = p;
			*bytes = out + 1;
			return HZ_OK;
		}
		if (!p)
			goto no_memory;
	}
	hzi_mfree(ctx, p, best.bytes + 1);
	if (r != LZMA_MEM_ERROR)
		goto damaged;
no_memory:
	return hzi_fail(ctx, HZ_ENOMEM, "%s: no memory to unpack %zu bytes of %s device code", op,
			best.bytes, what);
damaged:
	return hzi_fail(ctx, HZ_ENOTSUP, "%s: the %s device code is damaged", op, what);
}

#else

int hzi_cuda_unpack(struct hz_context *ctx, const char *op, const char *what,
		    const struct hzi_image *image, int sm, void **code, size_t *bytes)
{
	(void)ctx, (void)op, (void)what, (void)sm;
	*code = (void *)image->code;
	*bytes = 0;
	return HZ_OK;
}

#endif
