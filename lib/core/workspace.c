/*
 * workspace.c - scratch memory on the context's device: the context's own, or lent by the caller
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

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

int hzi_workspace(struct hz_context *ctx, const char *op, size_t bytes)
{
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
