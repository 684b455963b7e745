/*
 * context.c - opening and closing a context, and the environment
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/core/route.h"

/*
 * A thread is worth waking for 128 KiB: about 10 us of memory traffic, against a few us to start
 * and join.
 */
#define GRAIN_BITS 17
#define QUAT_PREFER (HZ_QUAT_PREFER_FAST | HZ_QUAT_PREFER_DIRECT)

/* Sizes of operands have 64 bits, and device code shares structs with the host. */
_Static_assert(sizeof(void *) == 8, "hurwitz is for processors with addresses of 64 bits");

/* Kernels extract bytes from lanes, and the layouts of codes and packed matrices depend on it. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "hurwitz is for processors with the lowest byte first");

/* ---- Messages of hz_open() ------------------------------------------------------------------- */

static _Thread_local char open_errmsg[HZI_ERRMSG_BYTES];

__attribute__((format(printf, 2, 3))) static int open_fail(int status, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(open_errmsg, sizeof(open_errmsg), format, ap);
	va_end(ap);
	return status;
}

const char *hz_open_errmsg(void)
{
	return open_errmsg;
}

/* ---- Options and environment ----------------------------------------------------------------- */

/* A decimal number from low to high and nothing else. */
static bool read_number(const char *s, int low, int high, int *value)
{
	int64_t n = 0;

	if (!*s)
		return false;
	for (; *s; s++) {
		if (*s < '0' || *s > '9')
			return false;
		n = 10 * n + (*s - '0');
		if (n > high)
			return false;
	}
	*value = (int)n;
	return n >= low;
}

/* An empty environment variable counts as unset. */
static const char *environment(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

#ifdef _OPENMP
static const bool have_openmp = true;
#else
static const bool have_openmp = false;
#endif

extern char **environ;

/* Whether a variable of OpenMP is set: then its runtime is meant to run the threads. */
static bool openmp_configured(void)
{
	for (char **e = environ; e && *e; e++) {
		const char *const value = strchr(*e, '=');

		if (strncmp(*e, "OMP_", 4) == 0 && value && value[1])
			return true;
	}
	return false;
}

/*
 * Reads the environment into the options that are left open and into the future context. A
 * meaningless value is an error even where an option overrides it, so that a typing error does not
 * wait for another program to show.
 */
static int read_environment(hz_options *o, struct hz_context *seed)
{
	const char *device = environment("HURWITZ_DEVICE");
	const char *threads = environment("HURWITZ_THREADS");
	const char *threading = environment("HURWITZ_THREADING");
	const char *isa = environment("HURWITZ_ISA");
	const char *quat = environment("HURWITZ_QUAT");
	const char *verbose = environment("HURWITZ_VERBOSE");
	int value = HZ_AUTO;

	if (device) {
		if (strcmp(device, "cpu") == 0)
			value = HZ_CPU;
		else if (strcmp(device, "cuda") == 0)
			value = HZ_CUDA;
		else if (strncmp(device, "cuda:", 5) == 0 &&
			 read_number(device + 5, 0, 9999, &value))
			value += HZ_CUDA;
		else if (strcmp(device, "auto") != 0)
			return open_fail(HZ_EINVAL,
					 "open: HURWITZ_DEVICE is \"%.40s\", must be cpu, cuda, "
					 "cuda:N or auto",
					 device);
		if (o->device == HZ_AUTO)
			o->device = value;
	}
	if (threads) {
		if (!read_number(threads, 1, 999999, &value))
			return open_fail(HZ_EINVAL,
					 "open: HURWITZ_THREADS is \"%.40s\", must be a number "
					 "from 1 to 999999",
					 threads);
		seed->default_threads = value;
		seed->default_threads_source = "HURWITZ_THREADS";
	}
	if (threading) {
		if (strcmp(threading, "openmp") == 0)
			value = HZ_THREADING_OPENMP;
		else if (strcmp(threading, "pool") == 0)
			value = HZ_THREADING_POOL;
		else
			return open_fail(HZ_EINVAL,
					 "open: HURWITZ_THREADING is \"%.40s\", must be openmp or "
					 "pool",
					 threading);
		if (value == HZ_THREADING_OPENMP && !have_openmp)
			return open_fail(HZ_ENOTSUP, "open: HURWITZ_THREADING is openmp, but this "
						     "build has no OpenMP: use pool");
		if (o->threading == HZ_THREADING_AUTO && !o->parallel_for)
			o->threading = value;
	}
	if (isa) {
		value = hzi_isa_from_name(isa);
		if (value < 0)
			return open_fail(HZ_EINVAL,
					 "open: HURWITZ_ISA is \"%.40s\", must be a level such "
					 "as c, avx2, avx512 or neon",
					 isa);
		if (o->isa == HZ_ISA_AUTO || (value != HZ_ISA_AUTO && value < o->isa))
			o->isa = value;
	}
	if (verbose) {
		if (!read_number(verbose, 0, 2, &value))
			return open_fail(HZ_EINVAL,
					 "open: HURWITZ_VERBOSE is \"%.40s\", must be 0, 1 or 2",
					 verbose);
		seed->verbose = value;
	}
	if (quat) {
		uint32_t prefer = 0;

		if (strcmp(quat, "fast") == 0)
			prefer = HZ_QUAT_PREFER_FAST;
		else if (strcmp(quat, "direct") == 0)
			prefer = HZ_QUAT_PREFER_DIRECT;
		else if (strcmp(quat, "auto") != 0)
			return open_fail(HZ_EINVAL,
					 "open: HURWITZ_QUAT is \"%.40s\", must be auto, direct "
					 "or fast",
					 quat);
		if (!(o->flags & QUAT_PREFER))
			o->flags |= prefer;
	}
	return HZ_OK;
}

static int check_options(const hz_options *o)
{
	if (o->device < 0)
		return open_fail(HZ_EINVAL,
				 "open: options.device is %d, must be HZ_AUTO, HZ_CPU or "
				 "HZ_CUDA + i",
				 o->device);
	if (o->threads < 0)
		return open_fail(HZ_EINVAL, "open: options.threads is %d, must not be negative",
				 o->threads);
	if (o->threading < HZ_THREADING_AUTO || o->threading > HZ_THREADING_CALLBACK)
		return open_fail(HZ_EINVAL,
				 "open: options.threading is %d, must be one of enum hz_threading",
				 o->threading);
	if (o->threading == HZ_THREADING_CALLBACK && !o->parallel_for)
		return open_fail(HZ_EINVAL, "open: options.threading is HZ_THREADING_CALLBACK, but "
					    "options.parallel_for is NULL");
	if (o->parallel_for && o->threading != HZ_THREADING_AUTO &&
	    o->threading != HZ_THREADING_CALLBACK)
		return open_fail(HZ_EINVAL,
				 "open: options.parallel_for is set, but options.threading is "
				 "HZ_THREADING_%s, must be AUTO or CALLBACK",
				 o->threading == HZ_THREADING_POOL ? "POOL" : "OPENMP");
	if (o->threading == HZ_THREADING_OPENMP && !have_openmp)
		return open_fail(HZ_ENOTSUP, "open: options.threading is HZ_THREADING_OPENMP, but "
					     "this build has no OpenMP");
	if (!(o->isa >= HZ_ISA_AUTO && o->isa <= HZ_ISA_AMX) &&
	    !(o->isa >= HZ_ISA_NEON && o->isa <= HZ_ISA_DOTPROD))
		return open_fail(HZ_EINVAL, "open: options.isa is %d, must be one of enum hz_isa",
				 o->isa);
	if (o->flags & ~(HZ_NO_TOPOLOGY | QUAT_PREFER))
		return open_fail(HZ_EINVAL, "open: options.flags has unknown bits %#x (valid: "
				 "HZ_NO_TOPOLOGY, HZ_QUAT_PREFER_FAST, HZ_QUAT_PREFER_DIRECT)",
				 (unsigned)o->flags & ~(HZ_NO_TOPOLOGY | QUAT_PREFER));
	if ((o->flags & QUAT_PREFER) == QUAT_PREFER)
		return open_fail(HZ_EINVAL, "open: options.flags prefers both fast and direct "
					    "products of quaternions");
	if (o->allocator && (!o->allocator->alloc || !o->allocator->free))
		return open_fail(HZ_EINVAL, "open: options.allocator lacks %s",
				 o->allocator->alloc ? "free" : "alloc");
	for (size_t i = 0; i < sizeof(o->reserved) / sizeof(*o->reserved); i++) {
		if (o->reserved[i])
			return open_fail(HZ_EINVAL,
					 "open: options.reserved[%zu] is %lld, must be 0", i,
					 (long long)o->reserved[i]);
	}
	return HZ_OK;
}

/* ---- Open and close -------------------------------------------------------------------------- */

static int open_device(struct hz_context *ctx, int device)
{
	int status;

	ctx->backend = HZI_CPU;
	ctx->op = HZI_NO_OP;
	ctx->device = HZ_CPU;
	if (device == HZ_CPU) {
		snprintf(ctx->gpu_reason, sizeof(ctx->gpu_reason), "the CPU was asked for");
		return HZ_OK;
	}
	status = hzi_device_cuda.open(ctx, device == HZ_AUTO ? -1 : device - HZ_CUDA);
	if (status == HZ_OK) {
		ctx->backend = HZI_CUDA;
		ctx->gpu = &hzi_device_cuda;
		ctx->gpu_reason[0] = '\0';
		return HZ_OK;
	}
	if (device == HZ_AUTO) {
		hzi_log(ctx, HZ_LOG_INFO, "open: no GPU in use: %s", ctx->gpu_reason);
		return HZ_OK;
	}
	return open_fail(status, "open: cuda:%d: %s", device - HZ_CUDA, ctx->gpu_reason);
}

static const char *const threading_names[] = {
	[HZ_THREADING_OPENMP] = "openmp",
	[HZ_THREADING_POOL] = "pool",
	[HZ_THREADING_CALLBACK] = "callback",
};

/* Which threads run: a child of fork() has none of OpenMP. See hzi_parallel(). */
static int threading_of(const struct hz_context *ctx)
{
	return ctx->threading == HZ_THREADING_OPENMP && hzi_fork_generation() != 0
		       ? HZ_THREADING_POOL : ctx->threading;
}

static void use_threads(struct hz_context *ctx, int threads, const char *source)
{
	const int n = threads ? threads : ctx->default_threads;

	ctx->threads = n < HZI_THREADS_MAX ? n : HZI_THREADS_MAX;
	ctx->threads_source = threads ? source : ctx->default_threads_source;
}

/* The CPUs that this thread may use, and how many threads on them; without memory no pool. */
static void open_threads(struct hz_context *ctx, const hz_options *o)
{
	struct hzi_cpus cpus;

	hzi_cpus_read(&cpus);
	hzi_topology_read(&ctx->topology, o->topology, o->flags & HZ_NO_TOPOLOGY, &cpus);
	ctx->grain_bits = GRAIN_BITS;
	if (!ctx->default_threads)
		ctx->default_threads = hzi_threads_auto("", ctx->topology.machine_cores,
							ctx->topology.cores,
							&ctx->default_threads_source);
	use_threads(ctx, o->threads, "options.threads");
	ctx->threading = o->threading;
	if (ctx->threading == HZ_THREADING_AUTO)
		ctx->threading = o->parallel_for ? HZ_THREADING_CALLBACK
				 : have_openmp && openmp_configured() ? HZ_THREADING_OPENMP
								      : HZ_THREADING_POOL;
	ctx->parallel_for = o->parallel_for;
	ctx->parallel_user = o->parallel_user;
	ctx->pool = hzi_pool_open(&cpus);
}

__attribute__((cold))
int hz_open(hz_context **out, const hz_options *options)
{
	hz_options o = {.device = HZ_AUTO};
	struct hz_context *ctx, seed = {.device = HZ_CPU};
	int status;

	if (!out)
		return open_fail(HZ_EINVAL,
				 "open: ctx is NULL, must point to where the context goes");
	*out = NULL;
	if (options)
		o = *options;
	HZ_CHECK(check_options(&o));
	HZ_CHECK(read_environment(&o, &seed));
	if (!hzi_count_forks())
		return open_fail(HZ_ENOMEM, "open: no memory to register a fork handler");

	if (o.allocator)
		seed.allocator = *o.allocator;
	ctx = hzi_malloc(&seed, sizeof(*ctx), _Alignof(struct hz_context));
	if (!ctx)
		return open_fail(HZ_ENOMEM, "open: no memory for a context of %zu bytes",
				 sizeof(*ctx));
	*ctx = seed;
	ctx->log = o.log;
	ctx->log_user = o.log_user;
	ctx->fork_generation = hzi_fork_generation();
	open_threads(ctx, &o);
	if (!ctx->pool) {
		hz_close(ctx);
		return open_fail(HZ_ENOMEM, "open: no memory for a thread pool");
	}
	ctx->quat_method = o.flags & HZ_QUAT_PREFER_FAST ? HZ_QUAT_FAST
			   : o.flags & HZ_QUAT_PREFER_DIRECT ? HZ_QUAT_DIRECT
							     : HZ_QUAT_AUTO;
	hzi_cpu_select(ctx, o.isa);
	status = open_device(ctx, o.device);
	if (status == HZ_OK && environment("HURWITZ_ROUTE"))
		status = hzi_force_routes(ctx, environment("HURWITZ_ROUTE"), open_errmsg);
	if (status != HZ_OK) {
		hz_close(ctx);
		return status;
	}
	hzi_log(ctx, HZ_LOG_DEBUG, "open: %s, isa %s, %d threads (from %s) by %s",
		ctx->gpu ? ctx->gpu->name : "cpu", hz_isa_name(ctx->isa), ctx->threads,
		ctx->threads_source, threading_names[threading_of(ctx)]);
	*out = ctx;
	return HZ_OK;
}

void hz_close(hz_context *ctx)
{
	struct hz_context seed = {.device = HZ_CPU};

	if (!ctx)
		return;
	seed.allocator = ctx->allocator;
	if (ctx->gpu)
		ctx->gpu->close(ctx);
	else
		hzi_mfree(ctx, ctx->own_workspace, ctx->own_workspace_bytes);
	if (ctx->free_base)
		ctx->free_base(ctx);
	if (ctx->free_chain)
		ctx->free_chain(ctx);
	hzi_pool_close(ctx->pool);
	hzi_mfree(&seed, ctx, sizeof(*ctx));
}

/* ---- Queries --------------------------------------------------------------------------------- */

int hz_device(const hz_context *ctx)
{
	return ctx ? ctx->device : 0;
}

int hz_device_info(hz_context *ctx, hz_info *info)
{
	if (!ctx)
		return HZ_EINVAL;
	if (!info)
		return hzi_fail(ctx, HZ_EINVAL,
				"device_info: info is NULL, must point to a hz_info");
	*info = (hz_info){
		.device = ctx->device,
		.isa = ctx->isa,
		.isa_max = ctx->isa_max,
		.threads = ctx->threads,
		.cores = ctx->topology.cores,
		.numa_nodes = ctx->topology.numa_nodes,
		.l1d_bytes = ctx->topology.l1d_bytes,
		.l2_bytes = ctx->topology.l2_bytes,
		.l3_bytes = ctx->topology.l3_bytes,
		.memory_bytes = ctx->topology.memory_bytes,
		.isa_name = hz_isa_name(ctx->isa),
		.isa_reason = ctx->isa_reason,
		.cpu_name = ctx->topology.cpu_name,
		.gpu_name = "",
		.gpu_reason = ctx->gpu_reason,
		.topology_source = ctx->topology.source,
		.threading = threading_of(ctx),
		.threading_name = threading_names[threading_of(ctx)],
		.threads_source = ctx->threads_source,
	};
	hzi_device_cuda.info(ctx, info);
	return HZ_OK;
}

/* ---- Threads and streams --------------------------------------------------------------------- */

int hz_set_threads(hz_context *ctx, int threads)
{
	HZI_ENTER(ctx, "set_threads");
	if (threads < 0)
		return hzi_fail(ctx, HZ_EINVAL, "set_threads: threads is %d, must not be negative",
				threads);
	use_threads(ctx, threads, "hz_set_threads()");
	return HZ_OK;
}

int hz_set_stream(hz_context *ctx, void *stream)
{
	HZI_ENTER(ctx, "set_stream");
	return ctx->gpu ? ctx->gpu->set_stream(ctx, stream) : HZ_OK;
}

int hz_sync(hz_context *ctx)
{
	HZI_ENTER(ctx, "sync");
	return ctx->gpu ? ctx->gpu->sync(ctx) : HZ_OK;
}

int hz_prepare(hz_context *ctx)
{
	HZI_ENTER(ctx, "prepare");
	return ctx->gpu ? ctx->gpu->prepare(ctx) : HZ_OK;
}
