/*
 * route.h - routes: the code paths of an operation as a table, and how one is picked
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * An operation that has several implementations on a backend lists them in routes.c of its family,
 * the only file that knows all of them. The first row that supports a call takes it; where rows
 * have costs, the supported row of the least cost, the earlier of equal ones.
 */
#ifndef HZI_ROUTE_H
#define HZI_ROUTE_H

#include "lib/core/internal.h"

enum hzi_arch {
	HZI_ANY_ARCH,
	HZI_SM_80 = 80,		/* this compute capability or a later one */
	HZI_SM_90 = 90,
	HZI_SM_90A = 901	/* compute capability 9.0 alone, in a build with code for sm_90a */
};

struct hzi_route {
	const char *name;	/* as in HURWITZ_ROUTE; lower case, words joined by _ */
	const char *what;	/* what it is for: a phrase */
	int arch;		/* enum hzi_arch, or on a CPU the lowest enum hz_isa */
	/* NULL if the call is supported, else the reason. No function: supports any call. */
	const char *(*unsupported)(const struct hz_context *ctx, const void *args);
	/*
	 * Expected time in any unit that the rows of one table share; no function: the row's index
	 * in the table. Not called for a call that the row does not support.
	 */
	int64_t (*cost)(const struct hz_context *ctx, const void *args);
	/* Bytes of workspace; no function: none. */
	size_t (*workspace)(const struct hz_context *ctx, const void *args);
	/* No function: whoever picked the row makes the call of other operations. */
	int (*run)(struct hz_context *ctx, const void *args);
};

/* The routes of one operation on one backend */
struct hzi_op_routes {
	enum hzi_op op;
	int count;
	const struct hzi_route *route;
	bool ranked;		/* no cost is below the row's index: picking ends early */
};

#define HZI_ROUTES(op, list) {HZI_OP_##op, (int)(sizeof(list) / sizeof(*(list))), list, false}
#define HZI_RANKED_ROUTES(op, list) {HZI_OP_##op, (int)(sizeof(list) / sizeof(*(list))), list, true}

/*
 * Defines NAME_cost() for a table whose costs are ranks: rank if the condition holds, else other.
 * The condition may use the arguments of the call, const type *a, and ctx.
 */
#define HZI_RANK(name, type, condition, rank, other) \
	static int64_t name##_cost(const struct hz_context *ctx, const void *args) \
	{ \
		const type *const a = args; \
		(void)ctx, (void)a; \
		return (condition) ? (rank) : (other); \
	}

/*
 * A family's tables on a backend, an array that ends with a count of 0:
 * const struct hzi_op_routes hzi_cpu_<family>_routes[], hzi_cuda_<family>_routes[].
 * They are reached by weak references: those of families that the program links.
 */
#define HZ_FAMILY(family) \
	extern const struct hzi_op_routes hzi_cpu_##family##_routes[] __attribute__((weak)); \
	extern const struct hzi_op_routes hzi_cuda_##family##_routes[] __attribute__((weak));
#include "lib/core/ops.def"

/* The table of an operation; NULL: it has one implementation, or its family is not linked. */
const struct hzi_op_routes *hzi_routes_of(enum hzi_op op, int backend);

/* The route that a call takes; NULL, with the reason in *why: the one that is forced cannot. */
const struct hzi_route *hzi_route_pick(const struct hz_context *ctx,
				       const struct hzi_op_routes *routes, const void *args,
				       const char **why);

/* HZ_ENOTSUP, with a message that gives the reason why the forced route cannot take a call */
int hzi_route_refused(struct hz_context *ctx, const struct hzi_op_routes *routes, const char *why);

/*
 * Runs the route that hzi_route_workspace() picked in the same HZI_RUN(), or picks one: args of
 * both describe the same call. HZ_ENOTSUP with the reason if the one that is forced cannot.
 */
int hzi_route_run(struct hz_context *ctx, const struct hzi_op_routes *routes, const void *args);

/* The workspace of the route that hzi_route_run() would pick */
size_t hzi_route_workspace(const struct hz_context *ctx, const struct hzi_op_routes *routes,
			   const void *args);

/*
 * Reads a list op:route[,op:route] into ctx->forced. Operations whose family is not linked are
 * skipped. HZ_EINVAL for an unknown name, with a message in *message (of HZI_ERRMSG_BYTES).
 */
int hzi_force_routes(struct hz_context *ctx, const char *list, char *message);

#endif
