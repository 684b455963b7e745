/*
 * route.c - picks the route of a call; forced routes; one line a call for HURWITZ_VERBOSE
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "lib/core/route.h"

#define OP_NAME_BYTES 48

static const char *const op_names[HZI_OPS_COUNT] = {
#define HZ_OP(name, family, dtypes, summary) [HZI_OP_##name] = #name,
#include "lib/core/ops.def"
};

static const struct {
	const struct hzi_op_routes *on[HZI_BACKENDS];
} families[] = {
#define HZ_FAMILY(family) \
	{{[HZI_CPU] = hzi_cpu_##family##_routes, [HZI_CUDA] = hzi_cuda_##family##_routes}},
#include "lib/core/ops.def"
};

const struct hzi_op_routes *hzi_routes_of(enum hzi_op op, int backend)
{
	for (size_t f = 0; f < sizeof(families) / sizeof(*families); f++) {
		const struct hzi_op_routes *r = families[f].on[backend];

		for (; r && r->count > 0; r++) {
			if (r->op == op)
				return r;
		}
	}
	return NULL;
}

/* ---- Picking --------------------------------------------------------------------------------- */

static const char *lacks_arch(const struct hz_context *ctx, int arch)
{
	if (ctx->backend == HZI_CPU)
		return ctx->isa >= arch ? NULL : "the ISA level is lower";
	if (arch == HZI_SM_90A)
		return ctx->sm_90a ? NULL : "it needs compute capability 9.0 and code for sm_90a";
	return ctx->sm >= arch ? NULL : "the compute capability is lower";
}

/* Why the route does not support the call, or NULL */
static const char *reason_not(const struct hz_context *ctx, const struct hzi_route *r,
			      const void *args)
{
	const char *why = r->arch ? lacks_arch(ctx, r->arch) : NULL;

	return why || !r->unsupported ? why : r->unsupported(ctx, args);
}

/* The supported row of the least cost. Some row of every table supports any call. */
static inline const struct hzi_route *by_cost(const struct hz_context *ctx,
					      const struct hzi_op_routes *r, const void *args,
					      bool log_refusals)
{
	const struct hzi_route *best = NULL;
	int64_t least = INT64_MAX;

	for (int i = 0; i < r->count && !(r->ranked && best && least <= i); i++) {
		const struct hzi_route *const one = &r->route[i];
		const char *const reason = reason_not(ctx, one, args);
		int64_t cost;

		if (reason) {
			if (log_refusals)
				hzi_verbose(ctx, "%s: not %s: %s", op_names[r->op], one->name,
					    reason);
			continue;
		}
		if (!one->cost && !best && !r->route[r->count - 1].cost)
			return one;
		cost = one->cost ? one->cost(ctx, args) : i;
		if (!best || cost < least) {
			best = one;
			least = cost;
		}
	}
	return best;
}

/* With forced routes or a log; NULL if a forced route does not support the call, with *why */
static __attribute__((noinline)) const struct hzi_route *
pick_forced(const struct hz_context *ctx, const struct hzi_op_routes *r, const void *args,
	    const char **why, bool log_refusals)
{
	/* Not where another operation uses it, except in tests */
	const bool may_force = ctx->any_forced && (ctx->op == (int)r->op || ctx->prefer_forced);
	const struct hzi_route *const forced = may_force ? ctx->forced[r->op] : NULL;

	if (forced) {
		*why = reason_not(ctx, forced, args);
		if (!*why || !ctx->prefer_forced)
			return *why ? NULL : forced;
	}
	return by_cost(ctx, r, args, log_refusals);
}

static inline const struct hzi_route *pick(const struct hz_context *ctx,
					   const struct hzi_op_routes *r, const void *args,
					   const char **why, bool log_refusals)
{
	*why = NULL;
	if (__builtin_expect(ctx->any_forced || log_refusals, 0))
		return pick_forced(ctx, r, args, why, log_refusals);
	return by_cost(ctx, r, args, false);
}

const struct hzi_route *hzi_route_pick(const struct hz_context *ctx,
				       const struct hzi_op_routes *routes, const void *args,
				       const char **why)
{
	return pick(ctx, routes, args, why, ctx->verbose > 1);
}

int hzi_route_refused(struct hz_context *ctx, const struct hzi_op_routes *routes, const char *why)
{
	return hzi_fail(ctx, HZ_ENOTSUP, "%s: HURWITZ_ROUTE asks for %s: %s",
			op_names[routes->op], ctx->forced[routes->op]->name, why);
}

int hzi_route_run(struct hz_context *ctx, const struct hzi_op_routes *routes, const void *args)
{
	const struct hzi_route *one = ctx->op == (int)routes->op ? ctx->picked : NULL;
	const char *why;
	int status;

	ctx->picked = NULL;		/* calls inside pick their own */
	if (!one)
		one = pick(ctx, routes, args, &why, ctx->verbose > 1);
	if (!one)
		return hzi_route_refused(ctx, routes, why);
	status = one->run(ctx, args);
	ctx->route = one->name;		/* not that of a call inside */
	return status;
}

/* Counting does not modify the context, but for the route that it remembers. */
size_t hzi_route_workspace(const struct hz_context *ctx, const struct hzi_op_routes *routes,
			   const void *args)
{
	const char *why;
	const struct hzi_route *const one = pick(ctx, routes, args, &why, false);

	/* HURWITZ_VERBOSE=2 logs refused routes when a call runs. */
	if (ctx->op == (int)routes->op && ctx->verbose <= 1)
		((struct hz_context *)(uintptr_t)ctx)->picked = one;
	return one && one->workspace ? one->workspace(ctx, args) : 0;
}

/* ---- Forcing --------------------------------------------------------------------------------- */

/* Whether the length bytes at word are name */
static bool is_word(const char *word, size_t length, const char *name)
{
	return strlen(name) == length && memcmp(word, name, length) == 0;
}

static const struct hzi_route *route_named(const struct hzi_op_routes *r, const char *word,
					   size_t length)
{
	for (int i = 0; i < r->count; i++) {
		if (is_word(word, length, r->route[i].name))
			return &r->route[i];
	}
	return NULL;
}

/* One op:route, length bytes long */
static int force(struct hz_context *ctx, const char *word, size_t length, char *message)
{
	const char *const colon = memchr(word, ':', length);
	const size_t op_length = colon ? (size_t)(colon - word) : length;
	const size_t route_length = colon ? length - op_length - 1 : 0;
	const struct hzi_op_routes *routes[HZI_BACKENDS];
	const struct hzi_route *found = NULL;
	int op = 0;

	while (op < HZI_OPS_COUNT && !is_word(word, op_length, op_names[op]))
		op++;
	if (!route_length || op == HZI_OPS_COUNT) {
		snprintf(message, HZI_ERRMSG_BYTES,
			 "open: HURWITZ_ROUTE has \"%.*s\", must be op:route with an op of "
			 "`hurwitz info --routes`",
			 (int)(length < OP_NAME_BYTES ? length : OP_NAME_BYTES), word);
		return HZ_EINVAL;
	}
	for (int b = 0; b < HZI_BACKENDS; b++) {
		routes[b] = hzi_routes_of(op, b);
		if (routes[b]) {
			const struct hzi_route *r = route_named(routes[b], colon + 1, route_length);

			if (r && (b == ctx->backend || !found))
				found = r;
			if (r && b == ctx->backend)
				ctx->forced[op] = r;
		}
	}
	if (!found && (routes[HZI_CPU] || routes[HZI_CUDA])) {
		snprintf(message, HZI_ERRMSG_BYTES,
			 "open: HURWITZ_ROUTE has no route \"%.*s\" of %s: `hurwitz info --routes` "
			 "lists them",
			 (int)(route_length < OP_NAME_BYTES ? route_length : OP_NAME_BYTES),
			 colon + 1, op_names[op]);
		return HZ_EINVAL;
	}
	ctx->any_forced |= ctx->forced[op] != NULL;
	return HZ_OK;
}

int hzi_force_routes(struct hz_context *ctx, const char *list, char *message)
{
	while (*list) {
		const size_t length = strcspn(list, ",");

		HZ_CHECK(force(ctx, list, length, message));
		list += length + (list[length] == ',');
	}
	return HZ_OK;
}

/* ---- One line a call ------------------------------------------------------------------------- */

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void hzi_verbose_begin(struct hz_context *ctx, struct hzi_verbose_call *call)
{
	memcpy(call->operands, ctx->operands, sizeof(call->operands));
	ctx->route = NULL;
	call->start = now_ns();
}

void hzi_verbose_end(struct hz_context *ctx, const struct hzi_verbose_call *call, const char *op,
		     int status)
{
	const char *const route = ctx->route ? ctx->route : "-";
	const double us = (double)(now_ns() - call->start) * 1e-3;

	if (status != HZ_OK)
		hzi_verbose(ctx, "%s%s: route %s: %s", op, call->operands, route,
			    hz_strerror(status));
	else if (ctx->gpu)
		hzi_verbose(ctx, "%s%s: route %s", op, call->operands, route);
	else
		hzi_verbose(ctx, "%s%s: route %s, %.1f us", op, call->operands, route, us);
}
