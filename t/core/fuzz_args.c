/*
 * fuzz_args.c - a fuzz target for views: arguments of every function, with fields changed
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The first two bytes select the row of calls.def, and the call or its recording; each four
 * further bytes change a field of an operand. Each operand then gets memory of its own of exactly
 * the size that its view describes, so that a sanitizer finds an access beyond it. Views that
 * describe more than LARGEST bytes get no memory, and it is only recorded.
 */
#define FUZZ_NAME "args"

#include <config.h>

#include "t/core/calls.h"
#include "t/core/fuzz.h"

#define LARGEST (1 << 14)	/* largest view that gets memory, in bytes */
#define WORKSPACE (1 << 26)	/* bytes; empty views may have any number of rows */

enum { MISSING, DTYPE, NDIM, DEVICE, SHAPE, STRIDE, SKEW, ALIAS, FIELDS };

struct input {
	hz_tensor t[CALL_OPERANDS];
	bool given[CALL_OPERANDS];
	int skew[CALL_OPERANDS], alias[CALL_OPERANDS];	/* alias: index of another operand, or -1 */
	void *memory[CALL_OPERANDS];
};

/* Small numbers, and numbers at which something overflows */
static int64_t number(uint8_t code)
{
	static const int64_t special[] = {
		INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1, INT64_C(1) << 62,
		(INT64_C(1) << 62) - 1, INT64_C(1) << 61, INT64_C(1) << 40, INT64_C(1) << 33,
		INT64_C(1) << 32, (INT64_C(1) << 32) - 1, INT64_C(1) << 31, (INT64_C(1) << 31) - 1,
		-(INT64_C(1) << 31), -(INT64_C(1) << 32), -(INT64_C(1) << 62), 65535, 65536, 100,
		128, 256, 1024,
	};

	if (code < 176)
		return code < 144 ? code : (int64_t)code - 176;
	return special[(size_t)(code - 176) % (sizeof(special) / sizeof(*special))];
}

static void edit(struct input *in, int n, struct bytes *b)
{
	const int i = next_byte(b) % n, field = next_byte(b) % FIELDS;
	const uint8_t where = next_byte(b), code = next_byte(b);
	hz_tensor *const t = &in->t[i];

	switch (field) {
	case MISSING: in->given[i] = false; break;
	case DTYPE: t->dtype = (int16_t)number(code); break;
	case NDIM: t->ndim = (int16_t)number(code); break;
	case DEVICE: t->device = (int32_t)number(code); break;
	case SHAPE: t->shape[where % HZ_MAXDIM] = number(code); break;
	case STRIDE: t->stride[where % HZ_MAXDIM] = number(code); break;
	case SKEW: in->skew[i] = code % 16; break;
	default: in->alias[i] = where % n; break;
	}
}

/* Bytes from the lowest address in use up to data */
static int64_t below(const hz_tensor *t)
{
	int64_t elements = 0;

	for (int d = 0; d < t->ndim; d++)
		elements -= t->stride[d] < 0 ? t->stride[d] * (t->shape[d] - 1) : 0;
	return elements * (int64_t)hz_dtype_size(t->dtype);
}

/* Gives views memory; returns whether the call may be made, or only the recording. */
static bool give_memory(struct input *in, const struct call *c, int n)
{
	bool all = true;

	for (int i = 0; i < n; i++) {
		hz_tensor *const t = &in->t[i];
		const bool raw = c->operand[i].flags & RAW;
		const int64_t bytes = raw ? c->operand[i].shape[0] : hz_tensor_bytes(t);
		const int other = in->alias[i];

		if (raw)
			t->data = in->memory[i] = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
		else if (other >= 0 && other < i && in->memory[other] && bytes > 0 &&
			 bytes <= hz_tensor_bytes(&in->t[other]))
			t->data = (char *)in->memory[other] + below(t);
		else if (bytes > LARGEST || hz_tensor_count(t) > LARGEST)
			all = false;	/* strides of 0: much work on little memory */
		else if (bytes > 0 && (in->memory[i] = malloc((size_t)(bytes + in->skew[i]))))
			t->data = (char *)in->memory[i] + in->skew[i] + below(t);
		if (in->memory[i])
			memset(in->memory[i], 1, (size_t)(bytes + (raw ? 0 : in->skew[i])));
	}
	return all;
}

static void *alloc(void *user, size_t bytes, size_t align)
{
	(void)user;
	return bytes > WORKSPACE ? NULL : aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void release(void *user, void *p, size_t bytes)
{
	(void)user;
	(void)bytes;
	free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const hz_allocator allocator = {.alloc = alloc, .free = release};
	static struct scene s;
	struct bytes b = {.at = data, .left = size};
	hz_tensor *t[CALL_OPERANDS] = {NULL};
	const struct call *c;
	struct input in;
	size_t used;
	bool all;
	int n, status = HZ_OK;

	if (!s.ctx)
		scene_open(&s, &(hz_options){.device = HZ_CPU, .threads = 1, .isa = HZ_ISA_C,
					     .flags = HZ_NO_TOPOLOGY, .allocator = &allocator});
	c = &calls[next_byte(&b) % calls_count];
	s.record = next_byte(&b) & 1;
	n = scene_views(&s, c, in.t, &used);
	/* hz_lattice_design() takes too long. */
	if (n == 0 || c->operand[0].flags & HOST)
		return 0;
	for (int i = 0; i < n; i++) {
		in.given[i] = true;
		in.skew[i] = 0;
		in.alias[i] = -1;
		in.memory[i] = NULL;
	}
	while (b.left)
		edit(&in, n, &b);
	all = give_memory(&in, c, n);
	for (int i = 0; i < n; i++)
		t[i] = in.given[i] ? &in.t[i] : NULL;
	hz_alloc(s.ctx, NULL, 0, HZ_CPU);
	/* A call that makes an object of an operand reads it in a recording, too. */
	if (all || (s.record && !(c->operand[0].flags & READ)))
		status = scene_run(&s, c, t);
	fuzz_must(status <= 0 && status >= HZ_EFORK, c->name, "no status");
	fuzz_must(status == HZ_OK || (strncmp(hz_errmsg(s.ctx), "alloc", 5) != 0 &&
				      strstr(hz_errmsg(s.ctx), ": ")), c->name, "no message");
	for (int i = 0; i < n; i++)
		free(in.memory[i]);
	return 0;
}
