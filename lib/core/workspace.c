/*
 * workspace.c - scratch memory on the context's device: the context's own, or lent by the caller
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "lib/core/internal.h"

#define WORKSPACE_ALIGN 64

static void set_own_workspace(struct hz_context *ctx, void *p, size_t bytes)
{
	ctx->own_workspace = p;
	ctx->own_workspace_bytes = bytes;
	if (!ctx->workspace_lent) {
		ctx->workspace = p;
		ctx->workspace_bytes = bytes;
	}
}

/* Grows the context's own workspace to that size, or leaves it as it was. */
static int grow(struct hz_context *ctx, const char *op, size_t bytes)
{
	void *p;
	int status;

	if (bytes <= ctx->own_workspace_bytes)
		return HZ_OK;
	if (!ctx->gpu) {
		p = hzi_malloc(ctx, bytes, WORKSPACE_ALIGN);
		if (!p)
			return hzi_fail(ctx, HZ_ENOMEM,
					"%s: no memory for a workspace of %zu bytes", op, bytes);
		hzi_mfree(ctx, ctx->own_workspace, ctx->own_workspace_bytes);
		set_own_workspace(ctx, p, bytes);
		return HZ_OK;
	}
	if (ctx->gpu->capturing(ctx))
		return hzi_fail(ctx, HZ_EWORKSPACE,
				"%s: the workspace has %zu bytes, must have %zu: it "
				"cannot grow while the stream is captured into a graph",
				op, ctx->own_workspace_bytes, bytes);
	HZ_CHECK(ctx->gpu->alloc(ctx, &p, bytes));
	/* Work in flight may still use the old workspace. */
	status = ctx->own_workspace ? ctx->gpu->sync(ctx) : HZ_OK;
	if (status != HZ_OK) {
		ctx->gpu->free(ctx, p);
		return status;
	}
	if (ctx->own_workspace)
		ctx->gpu->free(ctx, ctx->own_workspace);
	set_own_workspace(ctx, p, bytes);
	return HZ_OK;
}

int hz_reserve(hz_context *ctx, size_t bytes)
{
	HZI_ENTER(ctx, "reserve");
	return grow(ctx, "reserve", bytes);
}

int hz_set_workspace(hz_context *ctx, void *p, size_t bytes)
{
	HZI_ENTER(ctx, "set_workspace");
	if (!p != !bytes)
		return hzi_fail(ctx, HZ_EINVAL,
				"set_workspace: p is %p and bytes is %zu, must be both "
				"zero or neither",
				p, bytes);
	if ((uintptr_t)p % WORKSPACE_ALIGN)
		return hzi_fail(ctx, HZ_EINVAL, "set_workspace: p is %p, must be a multiple of %d",
				p, WORKSPACE_ALIGN);
	ctx->workspace_lent = p != NULL;
	ctx->workspace = p ? p : ctx->own_workspace;
	ctx->workspace_bytes = p ? bytes : ctx->own_workspace_bytes;
	return HZ_OK;
}

int hzi_workspace_grow(struct hz_context *ctx, const char *op, size_t bytes)
{
	if (ctx->recording) {
		if (bytes > ctx->recorded_bytes)
			ctx->recorded_bytes = bytes;
		return HZ_OK;
	}
	if (bytes <= ctx->workspace_bytes)
		return HZ_OK;
	if (ctx->workspace_lent)
		return hzi_fail(ctx, HZ_EWORKSPACE,
				"%s: the workspace lent by hz_set_workspace() has %zu "
				"bytes, must have %zu",
				op, ctx->workspace_bytes, bytes);
	if (ctx->gpu)
		return hzi_fail(ctx, HZ_EWORKSPACE,
				"%s: the workspace has %zu bytes, must have %zu: call "
				"hz_reserve() first",
				op, ctx->workspace_bytes, bytes);
	return grow(ctx, op, bytes);
}

int hzi_parts(struct hz_context *ctx, const char *op, size_t scratch_bytes, hzi_parts_run *run,
	      const void *parts)
{
	const bool recording = ctx->recording, lent = ctx->workspace_lent;
	const size_t recorded = ctx->recorded_bytes;
	void *workspace;
	size_t inner, all;
	int status;

	/* The calls then have all of the workspace. */
	if (!scratch_bytes)
		return run(ctx, parts, NULL);
	ctx->recording = true;
	ctx->recorded_bytes = 0;
	status = run(ctx, parts, NULL);
	inner = ctx->recorded_bytes;
	ctx->recording = recording;
	ctx->recorded_bytes = recorded;
	HZ_CHECK(status);
	HZ_CHECK(hzi_workspace(ctx, op, scratch_bytes + inner));
	if (recording)
		return HZ_OK;
	workspace = ctx->workspace;
	all = ctx->workspace_bytes;
	ctx->workspace = (char *)workspace + scratch_bytes;
	ctx->workspace_bytes = all - scratch_bytes;
	ctx->workspace_lent = true;	/* The calls must not replace it. */
	status = run(ctx, parts, workspace);
	ctx->workspace = workspace;
	ctx->workspace_bytes = all;
	ctx->workspace_lent = lent;
	return status;
}

/* ---- Recording ------------------------------------------------------------------------------- */

/*
 * The k-th placeholder of a call is PLACEHOLDER + k PLACEHOLDER_STEP + PLACEHOLDER_AT. No processor
 * or GPU has addresses there, and no size or stride of an operand is as large. Arguments are
 * searched for such addresses. Where the lower half is less than 2^30, or a small negative number,
 * it is an integer, beside padding that holds the upper half of an address, or of a double.
 */
#define PLACEHOLDER ((uint64_t)1 << 62)
#define PLACEHOLDER_STEP ((uint64_t)1 << 48)
#define PLACEHOLDER_AT ((uint64_t)1 << 31)

int hz_record_begin(hz_context *ctx)
{
	HZI_ENTER(ctx, "record_begin");
	if (ctx->recording)
		return hzi_fail(ctx, HZ_EINVAL,
				"record_begin: the context is recording already: call "
				"hz_record_end() first");
	ctx->recording = true;
	ctx->recorded_bytes = 0;
	return HZ_OK;
}

int hz_record_end(hz_context *ctx, size_t *bytes)
{
	HZI_ENTER(ctx, "record_end");
	if (!ctx->recording)
		return hzi_fail(ctx, HZ_EINVAL,
				"record_end: the context is not recording: call hz_record_begin() "
				"first");
	if (!bytes)
		return hzi_fail(ctx, HZ_EINVAL, "record_end: bytes is NULL, must be a size_t to set");
	ctx->recording = false;
	*bytes = ctx->recorded_bytes;
	return HZ_OK;
}

void *hzi_placeholder(struct hz_context *ctx)
{
	return (void *)(uintptr_t)(PLACEHOLDER + PLACEHOLDER_AT +
				   (uint64_t)ctx->placeholders++ * PLACEHOLDER_STEP);
}

/* Adds step to every address in the k-th placeholder, k < 0: in any. */
static void move_placeholders(void *args, size_t bytes, int k, uint64_t step)
{
	for (size_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
		uint64_t word;

		memcpy(&word, (char *)args + i, sizeof(word));
		if (word < PLACEHOLDER || word >= 2 * PLACEHOLDER ||
		    (uint32_t)word < UINT32_C(1) << 30 || (uint32_t)word >> 16 == 0xffff ||
		    (k >= 0 && (word - PLACEHOLDER) / PLACEHOLDER_STEP != (uint64_t)k))
			continue;
		word += step;
		memcpy((char *)args + i, &word, sizeof(word));
	}
}

bool hzi_misalign(const struct hz_context *ctx, const void *args, size_t bytes, int k)
{
	void *const p = (void *)(uintptr_t)args;

	if (k > 0)
		move_placeholders(p, bytes, k - 1, (uint64_t)-1);
	if (k < ctx->placeholders)
		move_placeholders(p, bytes, k, 1);
	else if (k == ctx->placeholders && k > 0)
		move_placeholders(p, bytes, -1, 1);
	else if (k > 0)
		move_placeholders(p, bytes, -1, (uint64_t)-1);
	return k <= ctx->placeholders && ctx->placeholders > 0;
}
