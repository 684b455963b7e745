/*
 * internal.h - shared by every file of the library: the context, the operation tables, the helpers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZ_H
#define HZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hurwitz.h"
#include "lib/core/fp.h"
#include "lib/core/threads.h"

struct hz_context;
struct hzi_pool;	/* cpu/core/pool.c */
struct hzi_cuda;	/* gpu/runtime/cuda.h: the GPU half of a context */

/* ---- Operation tables ------------------------------------------------------------------------ */

#define HZ_OP(name, family, dtypes, summary) struct hzi_##name##_args;
#include "lib/core/ops.def"

enum { HZI_CPU, HZI_CUDA, HZI_BACKENDS };

enum hzi_op {
#define HZ_OP(name, family, dtypes, summary) HZI_OP_##name,
#include "lib/core/ops.def"
	HZI_OPS_COUNT,
	HZI_NO_OP = HZI_OPS_COUNT
};

/*
 * Each family has two const tables, of its CPU and of its CUDA implementations, made from ops.def
 * in lib/<family>/ops.c. hz_open() picks device and ISA level once, from hwloc and CUDA device
 * queries; no call decides again: HZI_CALL(ctx, hadamard, hadamard, &args).
 *
 * lib/ has checked the arguments: an implementation may assert, it need not check. <name>_workspace
 * returns the bytes of device scratch that the call then finds at ctx->workspace; on the CPU it
 * counts ctx->threads threads.
 */
#define HZ_FAMILY(family) struct hzi_##family##_ops {
#define HZ_OP(name, family, dtypes, summary) \
	int (*name)(struct hz_context *ctx, const struct hzi_##name##_args *a); \
	size_t (*name##_workspace)(const struct hz_context *ctx, const struct hzi_##name##_args *a);
#define HZ_FAMILY_END(family) \
	}; \
	extern const struct hzi_##family##_ops *const hzi_##family##_ops[HZI_BACKENDS];
#include "lib/core/ops.def"

#define HZI_OPS(ctx, family) (hzi_##family##_ops[(ctx)->backend])

/*
 * HZI_RUN makes the context's workspace as large as an implementation needs, and calls it; `call`
 * names it in messages. The route that the workspace was counted for runs. HZI_WORKSPACE and
 * HZI_CALL are its two halves, for calls of several parts: the bytes alone, and the call alone,
 * which is left out while ctx records. args are not const: while ctx records, placeholders in them
 * move. ctx->op is the operation meanwhile: only its route can be forced. HURWITZ_VERBOSE logs one
 * line. An implementation that needs another operation calls it directly or by HZI_OPS(): that is
 * part of its own call.
 */
#define HZI_RUN(ctx, call, family, op_, args) \
	__extension__({ \
		HZI_FP_NEAREST(fp_run_); \
		int run_ = hzi_workspace(ctx, call, HZI_WORKSPACE(ctx, family, op_, args)); \
		if (run_ == HZ_OK && !(ctx)->recording) \
			run_ = HZI_CALL_PICKED(ctx, family, op_, args); \
		run_; \
	})

#define HZI_CALL(ctx, family, op_, args) \
	__extension__({ \
		HZI_FP_NEAREST(fp_call_); \
		(ctx)->picked = NULL; \
		(ctx)->recording ? HZ_OK : HZI_CALL_PICKED(ctx, family, op_, args); \
	})

#define HZI_CALL_PICKED(ctx, family, op_, args) \
	__extension__({ \
		struct hzi_verbose_call call_; \
		int status_; \
		(ctx)->op = HZI_OP_##op_; \
		if ((ctx)->verbose) \
			hzi_verbose_begin(ctx, &call_); \
		status_ = HZI_OPS(ctx, family)->op_(ctx, args); \
		if ((ctx)->verbose) \
			hzi_verbose_end(ctx, &call_, #op_, status_); \
		(ctx)->op = HZI_NO_OP; \
		status_; \
	})

#define HZI_WORKSPACE(ctx, family, op_, args) \
	__extension__({ \
		size_t bytes_, other_; \
		(ctx)->op = HZI_OP_##op_; \
		(ctx)->picked = NULL; \
		bytes_ = HZI_OPS(ctx, family)->op_##_workspace(ctx, args); \
		for (int k_ = 0; (ctx)->recording && \
		     hzi_misalign(ctx, args, sizeof(*(args)), k_); k_++) { \
			other_ = HZI_OPS(ctx, family)->op_##_workspace(ctx, args); \
			bytes_ = other_ > bytes_ ? other_ : bytes_; \
		} \
		(ctx)->op = HZI_NO_OP; \
		bytes_; \
	})

#define HZ_OP(name, family, dtypes, summary) \
	int hzi_cpu_##name(struct hz_context *ctx, const struct hzi_##name##_args *a); \
	size_t hzi_cpu_##name##_workspace(const struct hz_context *ctx, \
					  const struct hzi_##name##_args *a); \
	int hzi_cuda_##name(struct hz_context *ctx, const struct hzi_##name##_args *a); \
	size_t hzi_cuda_##name##_workspace(const struct hz_context *ctx, \
					   const struct hzi_##name##_args *a);
#include "lib/core/ops.def"

/* Defines the workspace function of an implementation that needs none. */
#define HZI_NO_WORKSPACE(backend, op) \
	size_t hzi_##backend##_##op##_workspace(const struct hz_context *ctx, \
						const struct hzi_##op##_args *a) \
	{ \
		(void)ctx, (void)a; \
		return 0; \
	}

/* ---- Devices --------------------------------------------------------------------------------- */

/*
 * What a context does with its device. Every function but open() sets the context's message when it
 * fails.
 */
struct hzi_device {
	const char *name;	/* "cpu" or "cuda" */
	/*
	 * Opens device `ordinal`, or the first that works if it is negative: sets ctx->device and
	 * what close() releases. Otherwise returns a status, with the reason in ctx->gpu_reason.
	 */
	int (*open)(struct hz_context *ctx, int ordinal);
	void (*close)(struct hz_context *ctx);
	void (*info)(const struct hz_context *ctx, hz_info *info);
	int (*alloc)(struct hz_context *ctx, void **p, size_t bytes);
	int (*free)(struct hz_context *ctx, void *p);
	/* Asynchronous on the context's stream; either side may be host or device memory. */
	int (*copy)(struct hz_context *ctx, void *dst, int dst_device, const void *src,
		    int src_device, size_t bytes);
	int (*set_stream)(struct hz_context *ctx, void *stream);
	int (*sync)(struct hz_context *ctx);
	bool (*capturing)(struct hz_context *ctx);	/* whether the stream captures a graph */
	int (*prepare)(struct hz_context *ctx);
};

extern const struct hzi_device hzi_device_cuda;		/* gpu/runtime/cuda.c */

/* ---- Topology (lib/core/topology.c) ---------------------------------------------------------- */

struct hzi_topology {
	int machine_cores;		/* 0: unknown */
	int cores;			/* physical cores among the CPUs of hz_open(), at least 1 */
	int numa_nodes;
	int64_t l1d_bytes, l2_bytes, l3_bytes;	/* 0: unknown */
	int64_t memory_bytes;
	char cpu_name[96];
	char source[64];
};

/*
 * Fills *t from an hwloc_topology_t. If topology is NULL, asks hwloc, or with no_hwloc the system.
 * It has no more cores than cpus.
 */
void hzi_topology_read(struct hzi_topology *t, void *topology, bool no_hwloc,
		       const struct hzi_cpus *cpus);

/* ---- Context --------------------------------------------------------------------------------- */

#define HZI_ERRMSG_BYTES 512
#define HZI_OPERANDS_BYTES 384
#define HZI_BASES 120		/* base matrices that a context caches: all 117 that exist */

struct hz_context {
	int backend;			/* HZI_CPU or HZI_CUDA: which operation tables */
	const struct hzi_device *gpu;	/* NULL on a CPU context */
	struct hzi_cuda *cuda;		/* state of the GPU, NULL likewise */
	int device;			/* HZ_CPU or HZ_CUDA + i */
	int isa, isa_max;		/* enum hz_isa */
	int level;			/* of isa in the tables of micro-kernels: cpu/core/kern.h */
	int threads;			/* at least 1 */
	int grain_bits;			/* 2^this bytes are worth a thread; tests: 0, always all */
	const char *threads_source;	/* what decided their number */
	int default_threads;		/* of HURWITZ_THREADS, or automatic */
	const char *default_threads_source;
	int threading;			/* enum hz_threading, not AUTO */
	struct hzi_pool *pool;
	void (*parallel_for)(void *user, int n, void (*body)(void *arg, int i), void *arg);
	void *parallel_user;
	int quat_method;		/* enum hz_quat_method: what AUTO stands for */
	int sm;				/* 90 for compute capability 9.0; 0 on the CPU */
	bool sm_90a;			/* sm is 90, and the build has code for sm_90a */
	int verbose;			/* HURWITZ_VERBOSE: 0, 1 or 2 */
	char operands[HZI_OPERANDS_BYTES];	/* of the checked call, if verbose */
	int op;				/* enum hzi_op of the running call; HZI_NO_OP: none */
	const struct hzi_route *picked;	/* that this call's workspace is for; NULL: pick again */
	const char *route;		/* name of the route that ran last */
	bool any_forced;
	/* For tests: calls that a forced route does not support run by the other routes. */
	bool prefer_forced;
	const struct hzi_route *forced[HZI_OPS_COUNT];	/* HURWITZ_ROUTE, for this backend */
	unsigned fork_generation;	/* hzi_fork_generation() at hz_open() */
	bool recording;			/* between hz_record_begin() and hz_record_end() */
	int placeholders;		/* that the call being recorded has */
	size_t recorded_bytes;		/* the largest workspace of the recorded calls */
	void *workspace;		/* on the device; 64-byte aligned */
	size_t workspace_bytes;
	bool workspace_lent;		/* by hz_set_workspace(): never grown or freed here */
	void *own_workspace;		/* from hz_reserve(), used unless one is lent */
	size_t own_workspace_bytes;
	hz_allocator allocator;
	void (*log)(void *user, int level, const char *message);
	void *log_user;
	struct hzi_topology topology;
	struct hzi_base *base[HZI_BASES];	/* lib/hadamard/base.c; filled in order */
	void (*free_base)(struct hz_context *ctx);	/* set with the first base matrix */
	struct hzi_mhc_chain *chain;		/* lib/mhc/layer.c; made on first use */
	void (*free_chain)(struct hz_context *ctx);	/* set with it */
	char isa_reason[160];
	char gpu_reason[HZI_ERRMSG_BYTES];
	char errmsg[HZI_ERRMSG_BYTES];
};

/* Formats the context's sentence and returns status: return hzi_fail(ctx, HZ_ESHAPE, "..."). */
int hzi_fail(struct hz_context *ctx, int status, const char *format, ...)
	__attribute__((cold, format(printf, 3, 4)));

/* ---- HURWITZ_VERBOSE (lib/core/route.c) ------------------------------------------------------ */

struct hzi_verbose_call {
	char operands[HZI_OPERANDS_BYTES];
	int64_t start;			/* ns */
};

void hzi_verbose_operand(struct hz_context *ctx, const char *name, const hz_tensor *t);
void hzi_verbose_begin(struct hz_context *ctx, struct hzi_verbose_call *call);
void hzi_verbose_end(struct hz_context *ctx, const struct hzi_verbose_call *call, const char *op,
		     int status);

/* Writes one line to the log at HZ_LOG_DEBUG, or without a log to stderr, in one write. */
void hzi_verbose(const struct hz_context *ctx, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Passes a line to the log callback, if there is one. */
void hzi_log(const struct hz_context *ctx, int level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Host memory from the context's allocator, not zeroed; NULL if there is none */
void *hzi_malloc(const struct hz_context *ctx, size_t bytes, size_t align);
void hzi_mfree(const struct hz_context *ctx, void *p, size_t bytes);

/*
 * The address of an operand that has passed hzi_check(). While ctx records, an operand without data
 * has a placeholder: an address of its own that no memory has, aligned until hzi_misalign().
 */
void *hzi_placeholder(struct hz_context *ctx);
static inline void *hzi_data(struct hz_context *ctx, const hz_tensor *t)
{
	return t->data || !ctx->recording ? t->data : hzi_placeholder(ctx);
}

/* Likewise of a packed matrix, whose data is always aligned */
static inline void *hzi_packed_data(const struct hz_context *ctx, const hz_packed *p)
{
	return p->data || !ctx->recording ? p->data : (void *)(uintptr_t)64;
}

/* The dimension that HZ_AXIS(i) in options means, of ndim >= 1 dimensions; -1 if there is none */
static inline int hzi_axis(int32_t axis, int ndim)
{
	const int64_t d = axis > 0 ? (int64_t)axis - 1 : (int64_t)ndim + (axis ? axis : -1);

	return d >= 0 && d < ndim ? (int)d : -1;
}

/* The i of HZ_AXIS(i), for messages */
static inline int hzi_axis_said(int32_t axis)
{
	return axis > 0 ? axis - 1 : axis;
}

/*
 * Makes addresses in a struct of arguments odd that are in the k-th placeholder, after the last one
 * in any, and takes that back for k - 1. False if there is no k-th.
 */
bool hzi_misalign(const struct hz_context *ctx, const void *args, size_t bytes, int k);

/*
 * While ctx records, notes the number of bytes. Otherwise makes ctx->workspace at least that large:
 * grows it on the CPU, fails with HZ_EWORKSPACE on the GPU. op names the call in the message.
 */
int hzi_workspace_grow(struct hz_context *ctx, const char *op, size_t bytes);
static inline int hzi_workspace(struct hz_context *ctx, const char *op, size_t bytes)
{
	return bytes <= ctx->workspace_bytes && !ctx->recording
		       ? HZ_OK : hzi_workspace_grow(ctx, op, bytes);
}

/*
 * A call made of others: run() makes them, on scratch_bytes of scratch, a multiple of 64, at the
 * beginning of the workspace; they have the rest of it. Before, run() counts what they need, with
 * scratch NULL and recording on. With no scratch it is called once.
 */
typedef int hzi_parts_run(struct hz_context *ctx, const void *parts, char *scratch);
int hzi_parts(struct hz_context *ctx, const char *op, size_t scratch_bytes, hzi_parts_run *run,
	      const void *parts);

/* Starts counting forks, once; false without memory for that */
bool hzi_count_forks(void);

/* Number of forks since then: different in a child process */
unsigned hzi_fork_generation(void);

/* HZ_OK, or the status of a context that cannot be used here: NULL, a GPU context after fork(). */
int hzi_enter_other(struct hz_context *ctx, const char *op);
static inline int hzi_enter(struct hz_context *ctx, const char *op)
{
	if (!ctx || ctx->gpu || ctx->verbose)
		return hzi_enter_other(ctx, op);
	ctx->placeholders = 0;
	return HZ_OK;
}

/* hzi_enter(), whose failure the caller returns, and round to nearest until the end of the block */
#define HZI_ENTER(ctx, op) \
	HZI_FP_NEAREST(fp_enter_); \
	HZ_CHECK(hzi_enter(ctx, op))

/* ---- CPU dispatch (cpu/core/cpu.c) ----------------------------------------------------------- */

/*
 * Picks the micro-kernels: the highest ISA up to cap (enum hz_isa; HZ_ISA_AUTO: none) that this
 * machine and build have. Fills ctx->level, isa, isa_max and isa_reason.
 */
void hzi_cpu_select(struct hz_context *ctx, int cap);

/* Reads HURWITZ_ISA: HZ_ISA_AUTO if it is unset, -1 if it names no level */
int hzi_isa_from_name(const char *name);

/*
 * Bytes of the last-level cache that a call may count on. A virtual machine reports the whole
 * cache, which others share.
 */
int64_t hzi_cache_share(const struct hz_context *ctx);

/* ---- Threads (cpu/core/parallel.c, pool.c) --------------------------------------------------- */

/*
 * Number of threads worth starting for a call that reads and writes that many bytes: 1 ..
 * ctx->threads
 */
int hzi_threads(const struct hz_context *ctx, int64_t bytes);

/* Processes units begin .. end - 1 of a job as worker number `thread`. */
typedef void (*hzi_work)(void *job, int thread, int64_t begin, int64_t end);

/*
 * Splits units over at most `threads` workers, each with one contiguous share, and waits for them:
 * by OpenMP, the pool or the application's parallel_for, as the context says. Shares do not wait
 * for each other and run in any order; no two of one `thread` run at the same time. All round to
 * nearest and have the caller's modes for denormals and exceptions. threads <= 1 calls work() alone.
 */
void hzi_parallel(const struct hz_context *ctx, int threads, hzi_work work, void *job,
		  int64_t units);

/*
 * The pool of threads that run on these CPUs; NULL without memory. Starts none. The last close()
 * ends all threads of all pools; no call is running then.
 */
struct hzi_pool *hzi_pool_open(const struct hzi_cpus *cpus);
void hzi_pool_close(struct hzi_pool *pool);

/* The pools do not change between the two, of which the second runs in parent and child. */
void hzi_pool_before_fork(void);
void hzi_pool_after_fork(void);

/* ---- Argument checks (lib/core/tensor.c) ----------------------------------------------------- */

/*
 * Fast path of hzi_check(): true for a contiguous, non-empty view with an allowed dtype, on the
 * context's device, aligned and no larger than any object can be; *count is then its number of
 * elements. Most views are like this, and with few elements the checks themselves take time.
 */
bool hzi_check_contiguous(const struct hz_context *ctx, const hz_tensor *t, const int *dtypes,
			  int64_t *count);

/*
 * Checks a view: not NULL, dtype in the list (ends with 0), ndim and shape sane, products and
 * address ranges without overflow, data not NULL unless empty, aligned to its element, on the
 * context's device; for an output, no two elements at one address. op and name go into the message.
 */
int hzi_check(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
	      const int *dtypes, bool output);

/*
 * A checked view with strides of 0 in dimensions that no index steps along, where any stride is
 * valid: all dimensions of an empty view, and dimensions of size 1 whose stride is so large that
 * its products could overflow.
 */
hz_tensor hzi_canonical_strides(const hz_tensor *t);

/* t if its strides are canonical, as most are, else *copy, which then is hzi_canonical_strides(t) */
const hz_tensor *hzi_canonical_view(const hz_tensor *t, hz_tensor *copy);

/* HZ_OK if the memory ranges of a and b are disjoint, else HZ_EALIAS with a message */
int hzi_check_apart(struct hz_context *ctx, const char *op, const char *a_name, const hz_tensor *a,
		    const char *b_name, const hz_tensor *b);

/* The same, but a and b may be the same view: data, dtype, shape and strides. */
int hzi_check_apart_or_same(struct hz_context *ctx, const char *op, const char *a_name,
			    const hz_tensor *a, const char *b_name, const hz_tensor *b);

/* HZ_OK if b has the ndim and shape of a, else HZ_ESHAPE with a message */
int hzi_check_same_shape(struct hz_context *ctx, const char *op, const char *a_name,
			 const hz_tensor *a, const char *b_name, const hz_tensor *b);

/* A bit of a flags word and its name; HZI_FLAG(HZ_NAME) makes one, a list ends with {0, NULL}. */
struct hzi_flag {
	uint32_t bit;
	const char *name;
};
#define HZI_FLAG(flag) {flag, #flag}

/*
 * HZ_OK if flags, which messages call name, has no bits but those of valid, else HZ_EINVAL with a
 * message. list names the bits.
 */
int hzi_fail_flags(struct hz_context *ctx, const char *op, const char *name, uint32_t flags,
		   uint32_t valid, const struct hzi_flag *list) __attribute__((cold));
static inline int hzi_check_flags(struct hz_context *ctx, const char *op, const char *name,
				  uint32_t flags, uint32_t valid, const struct hzi_flag *list)
{
	return flags & ~valid ? hzi_fail_flags(ctx, op, name, flags, valid, list) : HZ_OK;
}

/* HZ_OK if the n integers opts->reserved are 0, else HZ_EINVAL with a message */
int hzi_fail_reserved(struct hz_context *ctx, const char *op, const int64_t *reserved)
	__attribute__((cold));
static inline int hzi_check_reserved(struct hz_context *ctx, const char *op,
				     const int64_t *reserved, int n)
{
	int64_t any = 0;

	for (int i = 0; i < n; i++)
		any |= reserved[i];
	return any ? hzi_fail_reserved(ctx, op, reserved) : HZ_OK;
}

/* A hash of n numbers, continued from h; calls with packed data spend 30 ns on it, not 160 */
#define HZI_HASH 2166136261u
uint32_t hzi_hash(uint32_t h, const int64_t *number, int n);

/*
 * p->check of a matrix that is packed now: a checksum of all fields, by which a wrong use of the
 * data shows; its complement while the context records, since data is then not written.
 */
uint32_t hzi_packed_check(const struct hz_context *ctx, const hz_packed *p);

/* HZ_OK if data, called name, can hold packed data of `bytes` bytes */
int hzi_check_packed_data(struct hz_context *ctx, const char *op, const char *name,
			  const void *data, size_t bytes);

/*
 * HZ_OK if a packed matrix, called name, is as filler() filled it, has at least min_ndim
 * dimensions, and is on the context's device. The caller checks its layout.
 */
int hzi_check_packed(struct hz_context *ctx, const char *op, const char *name, const char *filler,
		     int min_ndim, const hz_packed *p);

/* Overflow-checked product of sizes; false if it does not fit or one is negative. */
static inline bool hzi_mul(int64_t a, int64_t b, int64_t *product)
{
	return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, product);
}

/*
 * Size of dimension d of the result's batch in an operand with fewer dimensions: 1 where it has
 * none
 */
static inline int64_t hzi_batch_size(int ndim, const int64_t *shape, int result_ndim, int d)
{
	const int own = d - (result_ndim - ndim);

	return own < 0 ? 1 : shape[own];
}

/* Whether stride outer equals size steps of stride inner: the two dimensions can be merged */
static inline bool hzi_continues(int64_t outer, int64_t inner, int64_t size)
{
	int64_t whole;

	return !__builtin_mul_overflow(inner, size, &whole) && outer == whole;
}

/* Returns from the caller with the status of an expression that is not HZ_OK. */
#define HZ_CHECK(expression) \
	do { \
		int check_status_ = (expression); \
		if (check_status_ != HZ_OK) \
			return check_status_; \
	} while (0)

#ifdef __clang_analyzer__
/* Static analysers look at one file at a time: this shows them which status is returned. */
#define hzi_fail(ctx, status, ...) ((void)hzi_fail(ctx, status, __VA_ARGS__), (status))
#endif

#endif
