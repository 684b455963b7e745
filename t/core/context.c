/*
 * context.c - contexts: options, environment, errors, allocators, fork, threads
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * With HZ_TEST_DEVICE=cuda the tests that need a device run on a GPU too.
 */
#include <config.h>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/core/internal.h"
#include "t/core/meter.h"
#include "t/core/tap.h"

static const char *const variables[] = {"HURWITZ_DEVICE", "HURWITZ_THREADS", "HURWITZ_ISA",
					"HURWITZ_QUAT"};

static void clear_environment(void)
{
	for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++)
		unsetenv(variables[i]);
}

static hz_context *open_or_bail(const hz_options *o)
{
	hz_context *ctx;

	if (hz_open(&ctx, o) != HZ_OK)
		bail("%s", hz_open_errmsg());
	return ctx;
}

static hz_context *open_cpu(int threads)
{
	const hz_options o = {.device = HZ_CPU, .threads = threads};

	return open_or_bail(&o);
}

static hz_info info_of(hz_context *ctx)
{
	hz_info info;

	memset(&info, 0xff, sizeof(info));
	if (hz_device_info(ctx, &info) != HZ_OK)
		bail("%s", hz_errmsg(ctx));
	for (int i = 0; i < 8; i++) {
		if (info.reserved[i])
			bail("info.reserved[%d] is not 0", i);
	}
	return info;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void *some_alloc(void *user, size_t bytes, size_t align)
{
	(void)user, (void)bytes, (void)align;
	return NULL;
}

static void some_free(void *user, void *p, size_t bytes)
{
	(void)user, (void)p, (void)bytes;
}

static void bad_options(void)
{
	const hz_allocator no_alloc = {.free = some_free}, no_free = {.alloc = some_alloc};
	const hz_allocator empty = {.alloc = some_alloc, .free = some_free};
	const struct {
		hz_options o;
		int status;
		const char *part;
	} rows[] = {
		{{.device = -1}, HZ_EINVAL, "open: options.device is -1, must be"},
		{{.device = INT32_MIN}, HZ_EINVAL, "options.device is -2147483648"},
		{{.device = HZ_CUDA + 9999}, HZ_ENODEV, "open: cuda:9999: "},
		{{.device = INT32_MAX}, HZ_ENODEV, "open: cuda:2147483645: "},
		{{.device = HZ_CPU, .threads = -1},
		 HZ_EINVAL,
		 "options.threads is -1, must not be negative"},
		{{.device = HZ_CPU, .isa = -1}, HZ_EINVAL, "options.isa is -1"},
		{{.device = HZ_CPU, .isa = 6},
		 HZ_EINVAL,
		 "options.isa is 6, must be one of enum hz_isa"},
		{{.device = HZ_CPU, .isa = 15}, HZ_EINVAL, "options.isa is 15"},
		{{.device = HZ_CPU, .isa = 18}, HZ_EINVAL, "options.isa is 18"},
		{{.device = HZ_CPU, .flags = 8}, HZ_EINVAL,
		 "options.flags has unknown bits 0x8 (valid: HZ_NO_TOPOLOGY, HZ_QUAT_PREFER_FAST, "
		 "HZ_QUAT_PREFER_DIRECT)"},
		{{.device = HZ_CPU, .flags = 6}, HZ_EINVAL, "options.flags prefers both"},
		{{.device = HZ_CPU, .flags = 0x80000001u},
		 HZ_EINVAL,
		 "options.flags has unknown bits 0x80000000 (valid: HZ_NO_TOPOLOGY"},
		{{.device = HZ_CPU, .allocator = &no_alloc},
		 HZ_EINVAL,
		 "options.allocator lacks alloc"},
		{{.device = HZ_CPU, .allocator = &no_free},
		 HZ_EINVAL,
		 "options.allocator lacks free"},
		{{.device = HZ_CPU, .allocator = &empty},
		 HZ_ENOMEM,
		 "open: no memory for a context"},
		{{.device = HZ_CPU, .reserved = {1}},
		 HZ_EINVAL,
		 "options.reserved[0] is 1, must be 0"},
		{{.device = HZ_CPU, .reserved = {0, 0, 0, -5}},
		 HZ_EINVAL,
		 "options.reserved[3] is -5"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		hz_context *ctx = (hz_context *)&ctx;
		const int status = hz_open(&ctx, &rows[i].o);

		ok(status == rows[i].status && ctx == NULL &&
			   strstr(hz_open_errmsg(), rows[i].part),
		   "refused: %s", rows[i].part);
		if (status != rows[i].status)
			diag("status %d, want %d: %s", status, rows[i].status, hz_open_errmsg());
		hz_close(ctx);
	}
	is_int(hz_open(NULL, NULL), HZ_EINVAL, "open(NULL) is refused");
	has_str(hz_open_errmsg(), "open: ctx is NULL", "and says why");
	hz_close(NULL);
}

static void null_arguments(void)
{
	hz_context *ctx = open_cpu(1);
	hz_tensor t = hz_tensor_1d(&ctx, HZ_U8, HZ_CPU, 1);
	hz_info info;
	void *p = &p;

	is_int(hz_alloc(NULL, &p, 1, HZ_CPU), HZ_EINVAL, "alloc without a context");
	ok(p == &p, "leaves the pointer as it was");
	is_int(hz_free(NULL, NULL, HZ_CPU), HZ_EINVAL, "free without a context");
	is_int(hz_copy(NULL, &t, &t), HZ_EINVAL, "copy without a context");
	is_int(hz_sync(NULL), HZ_EINVAL, "sync without a context");
	is_int(hz_set_stream(NULL, NULL), HZ_EINVAL, "set_stream without a context");
	is_int(hz_set_threads(NULL, 1), HZ_EINVAL, "set_threads without a context");
	is_int(hz_reserve(NULL, 1), HZ_EINVAL, "reserve without a context");
	is_int(hz_set_workspace(NULL, NULL, 0), HZ_EINVAL, "set_workspace without a context");
	is_int(hz_prepare(NULL), HZ_EINVAL, "prepare without a context");
	is_int(hz_device_info(NULL, &info), HZ_EINVAL, "device_info without a context");
	is_int(hz_device(NULL), 0, "device of no context");
	is_str(hz_errmsg(NULL), "", "errmsg of no context");
	is_str(hz_errmsg(ctx), "", "no error yet");
	is_int(hz_device_info(ctx, NULL), HZ_EINVAL, "device_info of NULL");
	has_str(hz_errmsg(ctx), "device_info: info is NULL", "its message");
	is_int(hz_alloc(ctx, NULL, 1, HZ_CPU), HZ_EINVAL, "alloc to NULL");
	has_str(hz_errmsg(ctx), "alloc: p is NULL", "its message");
	is_int(hz_copy(ctx, NULL, &t), HZ_EINVAL, "copy of NULL");
	has_str(hz_errmsg(ctx), "copy: src is NULL", "its message");
	is_int(hz_copy(ctx, &t, NULL), HZ_EINVAL, "copy to NULL");
	has_str(hz_errmsg(ctx), "copy: dst is NULL", "its message");
	is_int(hz_sync(ctx), HZ_OK, "a call that succeeds");
	has_str(hz_errmsg(ctx), "copy: dst is NULL", "keeps the last failure's message");
	is_int(hz_set_stream(ctx, &p), HZ_OK, "a stream has no effect on the CPU");
	is_int(hz_prepare(ctx), HZ_OK, "neither has prepare");
	hz_close(ctx);
}

static void environment(void)
{
	static const struct {
		const char *name, *value, *part;	/* part of the message; NULL: accepted */
	} rows[] = {
		{"HURWITZ_DEVICE", "cpu", NULL},
		{"HURWITZ_DEVICE", "auto", NULL},
		{"HURWITZ_DEVICE", "", NULL},
		{"HURWITZ_DEVICE", "CPU",
		 "HURWITZ_DEVICE is \"CPU\", must be cpu, cuda, cuda:N or auto"},
		{"HURWITZ_DEVICE", "cpu ", "HURWITZ_DEVICE is \"cpu \""},
		{"HURWITZ_DEVICE", "gpu", "HURWITZ_DEVICE is \"gpu\""},
		{"HURWITZ_DEVICE", "cuda:", "HURWITZ_DEVICE is \"cuda:\""},
		{"HURWITZ_DEVICE", "cuda:x", "HURWITZ_DEVICE is \"cuda:x\""},
		{"HURWITZ_DEVICE", "cuda:-1", "HURWITZ_DEVICE is \"cuda:-1\""},
		{"HURWITZ_DEVICE", "cuda:+1", "HURWITZ_DEVICE is \"cuda:+1\""},
		{"HURWITZ_DEVICE", "cuda:1 ", "HURWITZ_DEVICE is \"cuda:1 \""},
		{"HURWITZ_DEVICE", "cuda:4294967296", "HURWITZ_DEVICE is \"cuda:4294967296\""},
		{"HURWITZ_DEVICE", "cuda1", "HURWITZ_DEVICE is \"cuda1\""},
		{"HURWITZ_THREADS", "1", NULL},
		{"HURWITZ_THREADS", "", NULL},
		{"HURWITZ_THREADS", "999999", NULL},
		{"HURWITZ_THREADS", "0", "HURWITZ_THREADS is \"0\", must be a number from 1"},
		{"HURWITZ_THREADS", "-1", "HURWITZ_THREADS is \"-1\""},
		{"HURWITZ_THREADS", "1000000", "HURWITZ_THREADS is \"1000000\""},
		{"HURWITZ_THREADS", "4294967297", "HURWITZ_THREADS is \"4294967297\""},
		{"HURWITZ_THREADS", "99999999999999999999999999", "HURWITZ_THREADS is \"9999"},
		{"HURWITZ_THREADS", "2x", "HURWITZ_THREADS is \"2x\""},
		{"HURWITZ_THREADS", " 2", "HURWITZ_THREADS is \" 2\""},
		{"HURWITZ_THREADS", "two", "HURWITZ_THREADS is \"two\""},
		{"HURWITZ_ISA", "c", NULL},
		{"HURWITZ_ISA", "", NULL},
		{"HURWITZ_ISA", "avx1024", "HURWITZ_ISA is \"avx1024\""},
		{"HURWITZ_ISA", "C", "HURWITZ_ISA is \"C\""},
		{"HURWITZ_QUAT", "fast", NULL},
		{"HURWITZ_QUAT", "direct", NULL},
		{"HURWITZ_QUAT", "auto", NULL},
		{"HURWITZ_QUAT", "slow", "HURWITZ_QUAT is \"slow\", must be auto, direct or fast"},
	};
	hz_options o = {.device = HZ_CPU};
	hz_context *ctx;
	char text[400];

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		int status;

		setenv(rows[i].name, rows[i].value, 1);
		/* Opens the CPU: the result does not depend on a GPU. */
		status = hz_open(&ctx, &o);
		ok(rows[i].part
			   ? status == HZ_EINVAL && !ctx && strstr(hz_open_errmsg(), rows[i].part)
			   : status == HZ_OK && ctx,
		   "%s=%s is %s", rows[i].name, rows[i].value, rows[i].part ? "refused" : "taken");
		hz_close(ctx);
		unsetenv(rows[i].name);
	}
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	setenv("HURWITZ_DEVICE", text, 1);
	is_int(hz_open(&ctx, NULL), HZ_EINVAL, "a very long value is refused");
	ok(strlen(hz_open_errmsg()) < HZI_ERRMSG_BYTES, "with a short message");
	unsetenv("HURWITZ_DEVICE");

	setenv("HURWITZ_THREADS", "3", 1);
	setenv("HURWITZ_ISA", "c", 1);
	setenv("HURWITZ_DEVICE", "cpu", 1);
	ctx = open_or_bail(NULL);
	is_int(info_of(ctx).threads, 3, "HURWITZ_THREADS is the default");
	is_int(info_of(ctx).isa, HZ_ISA_C, "HURWITZ_ISA is a cap");
	ok(info_of(ctx).isa_max == HZ_ISA_C || *info_of(ctx).isa_reason, "and a reason: %s",
	   info_of(ctx).isa_reason);
	is_int(hz_device(ctx), HZ_CPU, "HURWITZ_DEVICE is the default");
	hz_close(ctx);
	o.threads = 2;
	o.isa = HZ_ISA_AVX512;
	ctx = open_or_bail(&o);
	is_int(info_of(ctx).threads, 2, "options.threads wins over it");
	is_int(info_of(ctx).isa, HZ_ISA_C, "the lower cap of both holds");
	hz_close(ctx);
	setenv("HURWITZ_ISA", "avx512", 1);
	o.isa = HZ_ISA_C;
	ctx = open_or_bail(&o);
	is_int(info_of(ctx).isa, HZ_ISA_C, "whichever it is");
	hz_close(ctx);
	setenv("HURWITZ_QUAT", "fast", 1);
	ctx = open_or_bail(&o);
	is_int(ctx->quat_method, HZ_QUAT_FAST, "HURWITZ_QUAT is the default");
	hz_close(ctx);
	o.flags = HZ_QUAT_PREFER_DIRECT;
	ctx = open_or_bail(&o);
	is_int(ctx->quat_method, HZ_QUAT_DIRECT, "options.flags win over it");
	hz_close(ctx);
	setenv("HURWITZ_DEVICE", "cuda:9999", 1);
	is_int(hz_open(&ctx, NULL), HZ_ENODEV, "HURWITZ_DEVICE=cuda:9999");
	has_str(hz_open_errmsg(), "open: cuda:9999: ", "its message");
	ctx = open_or_bail(&o);
	is_int(hz_device(ctx), HZ_CPU, "options.device wins over it");
	hz_close(ctx);
	clear_environment();
	o = (hz_options){.device = HZ_CPU, .threads = 100000};
	ctx = open_or_bail(&o);
	is_int(info_of(ctx).threads, 1024, "threads are cut to 1024");
	hz_close(ctx);
}

/* HZ_AUTO falls back to the CPU if the GPU cannot be used. */
static void fallback(void)
{
	char *before = getenv("HURWITZ_LIBCUDA");
	hz_context *ctx;

	if (tap_cuda()) {
		skip(4, "a GPU is there");
		return;
	}
	setenv("HURWITZ_LIBCUDA", "/nowhere/libcuda.so.1", 1);
	ctx = open_or_bail(NULL);
	is_int(hz_device(ctx), HZ_CPU, "no driver: the CPU");
	ok(*info_of(ctx).gpu_reason, "because %s", info_of(ctx).gpu_reason);
	is_str(hz_errmsg(ctx), "", "which is no error");
	ok(info_of(ctx).cuda_driver == 0 && info_of(ctx).cuda_devices == 0, "no driver is told");
	hz_close(ctx);
	if (!before)
		unsetenv("HURWITZ_LIBCUDA");
}

static void information(void)
{
	const hz_options plain = {.device = HZ_CPU, .flags = HZ_NO_TOPOLOGY};
	const hz_options low = {.device = HZ_CPU, .isa = HZ_ISA_C};
	hz_context *ctx = open_cpu(0);
	hz_info info = info_of(ctx);

	is_int(info.device, HZ_CPU, "device");
	ok(info.isa >= HZ_ISA_C && info.isa <= info.isa_max, "isa %d of %d", info.isa,
	   info.isa_max);
	is_str(info.isa_name, hz_isa_name(info.isa), "isa_name");
	ok((info.isa == info.isa_max) == (info.isa_reason[0] == '\0') || info.isa == info.isa_max,
	   "isa_reason \"%s\"", info.isa_reason);
	ok(info.cores >= 1 && info.threads == (info.cores > 1024 ? 1024 : info.cores),
	   "%d cores, as many threads", info.cores);
	ok(info.numa_nodes >= 1, "%d NUMA nodes", info.numa_nodes);
	ok(info.l1d_bytes >= 0 && info.l2_bytes >= 0 && info.l3_bytes >= 0, "caches %lld %lld %lld",
	   (long long)info.l1d_bytes, (long long)info.l2_bytes, (long long)info.l3_bytes);
	ok(info.memory_bytes > 0, "memory %lld", (long long)info.memory_bytes);
	ok(info.cpu_name != NULL && *info.topology_source, "cpu \"%s\" from %s", info.cpu_name,
	   info.topology_source);
	ok(info.sm == 0 && info.sm_count == 0, "no GPU");
	is_str(info.gpu_name, "", "without a name");
	is_str(info.gpu_reason, "the CPU was asked for", "with a reason");
	hz_close(ctx);

	ctx = open_or_bail(&plain);
	info = info_of(ctx);
	ok(strncmp(info.topology_source, "hwloc", 5) != 0 && *info.topology_source,
	   "HZ_NO_TOPOLOGY: %s", info.topology_source);
	ok(info.cores >= 1 && info.threads >= 1, "%d cores", info.cores);
	hz_close(ctx);
	ctx = open_or_bail(&low);
	is_int(info_of(ctx).isa, HZ_ISA_C, "options.isa is a cap");
	hz_close(ctx);
}

struct heard {
	int count[4];
	char last[256];
};

static void hear(void *user, int level, const char *message)
{
	struct heard *h = user;

	if (level >= HZ_LOG_WARNING && level <= HZ_LOG_DEBUG)
		h->count[level]++;
	else
		h->count[0]++;
	snprintf(h->last, sizeof(h->last), "%s", message);
}

static void logging(void)
{
	struct heard h = {{0}, ""};
	const hz_options o = {.device = HZ_CPU, .threads = 1, .log = hear, .log_user = &h};
	hz_context *ctx = open_or_bail(&o);

	is_int(h.count[HZ_LOG_DEBUG], 1, "opening is told to the log");
	has_str(h.last, "open: cpu, isa ", "as one line");
	is_int(h.count[0] + h.count[HZ_LOG_WARNING], 0, "without a warning");
	hzi_log(ctx, HZ_LOG_INFO, "%s %d", "a", 7);
	is_str(h.last, "a 7", "a line of one's own");
	hzi_log(NULL, HZ_LOG_INFO, "nothing");
	is_int(hzi_fail(ctx, HZ_ESHAPE, "%0*d", 1000, 1), HZ_ESHAPE,
	       "a message of 1000 characters");
	is_int((long long)strlen(hz_errmsg(ctx)), HZI_ERRMSG_BYTES - 1, "is cut");
	hz_close(ctx);
}

/* hz_open_errmsg() is per thread. */
static void *open_badly(void *arg)
{
	const hz_options o = {.threads = -7};
	hz_context *ctx;
	int *bad = arg;

	*bad += strcmp(hz_open_errmsg(), "") != 0;
	*bad += hz_open(&ctx, &o) != HZ_EINVAL;
	*bad += !strstr(hz_open_errmsg(), "-7");
	return NULL;
}

static void open_message(void)
{
	const hz_options o = {.threads = -3};
	hz_context *ctx;
	pthread_t thread;
	int bad = 0;

	is_int(hz_open(&ctx, &o), HZ_EINVAL, "a bad open");
	if (pthread_create(&thread, NULL, open_badly, &bad))
		bail("no thread");
	pthread_join(thread, NULL);
	is_int(bad, 0, "another thread has its own message");
	has_str(hz_open_errmsg(), "-3", "and leaves this one's");
	ctx = open_cpu(1);
	has_str(hz_open_errmsg(), "-3", "a good open leaves it too");
	hz_close(ctx);
}

/* ---- Work ------------------------------------------------------------------------------------ */

enum { ROWS = 6, LENGTH = 12 * 64 };

/* A transform with a base matrix, so that the context allocates all that it can hold */
static int transform(hz_context *ctx, float *x)
{
	const hz_hadamard_opts o = {.plan = HZ_PLAN_TRUE, .order = 12};
	hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, ROWS, LENGTH);

	return hz_hadamard(ctx, &t, &t, &o);
}

static void fill(float *x, int seed)
{
	for (int i = 0; i < ROWS * LENGTH; i++)
		x[i] = (float)((i * 37 + seed * 101) % 1009) - 500;
}

/* Makes every call that allocates; returns an error status if any call did. */
static int use_all(const hz_options *o, const float *want, long *bad)
{
	static float x[ROWS * LENGTH], before[ROWS * LENGTH];
	hz_context *ctx = (hz_context *)&x;
	void *p = NULL, *kept = &kept;
	int status, st;

	status = hz_open(&ctx, o);
	if (status != HZ_OK) {
		*bad += ctx != NULL || status != HZ_ENOMEM || !*hz_open_errmsg();
		return status;
	}
	st = hz_reserve(ctx, 10000);
	*bad += st != HZ_OK && st != HZ_ENOMEM;
	status = st ? st : status;
	p = kept;
	st = hz_alloc(ctx, &p, 1000, HZ_CPU);
	*bad += (st != HZ_OK && st != HZ_ENOMEM) || (st != HZ_OK && p != kept);
	if (st == HZ_OK)
		hz_free(ctx, p, HZ_CPU);
	status = st ? st : status;
	fill(x, 0);
	memcpy(before, x, sizeof(x));
	st = transform(ctx, x);
	*bad += st != HZ_OK && st != HZ_ENOMEM;
	*bad += st != HZ_OK && memcmp(x, before, sizeof(x)) != 0;
	*bad += st == HZ_OK && memcmp(x, want, sizeof(x)) != 0;
	status = st ? st : status;
	*bad += status != HZ_OK && !*hz_errmsg(ctx);
	hz_close(ctx);
	return status;
}

static void allocator(void)
{
	static float want[ROWS * LENGTH];

	for (int threads = 1; threads <= 3; threads += 2) {
		struct meter m = {0};
		const hz_allocator a = {.alloc = meter_alloc, .free = meter_free, .user = &m};
		const hz_options o = {.device = HZ_CPU, .threads = threads, .allocator = &a};
		hz_context *plain = open_cpu(threads);
		long calls, bad = 0, failed = 0;

		fill(want, 0);
		if (transform(plain, want) != HZ_OK)
			bail("%s", hz_errmsg(plain));
		hz_close(plain);
		is_int(use_all(&o, want, &bad), HZ_OK, "all calls with an allocator, %d threads",
		       threads);
		calls = m.calls;
		ok(calls >= 4 && m.live == 0 && m.bad == 0,
		   "%ld allocations, all freed with their size", calls);
		for (long k = 1; k <= calls; k++) {
			for (int ever = 0; ever < 2; ever++) {
				m = (struct meter){.fail_at = k, .ever = ever};
				failed += use_all(&o, want, &bad) != HZ_OK;
				bad += m.live != 0 || m.bad != 0;
				if (bad)
					diag("allocation %ld failing %s: %ld live, %ld bad", k,
					     ever ? "for ever" : "once", m.live, bad);
			}
		}
		ok(bad == 0 && failed > 0, "%ld faults: %ld told, none leaked or wrote", 2 * calls,
		   failed);
	}
}

static void forked(void)
{
	static float x[ROWS * LENGTH], want[ROWS * LENGTH];
	hz_context *ctx = open_cpu(3), *own;
	const unsigned generation = hzi_fork_generation();
	int status = -1;
	pid_t child;

	fill(want, 1);
	is_int(transform(ctx, want), HZ_OK, "a call before fork()");
	fflush(NULL);
	child = fork();
	if (child == 0) {
		int bad = 0;
		void *p;

		/* Ends a child that waits for threads that it does not have */
		alarm(60);
		bad += hzi_fork_generation() != generation + 1;
		fill(x, 1);
		bad += transform(ctx, x) != HZ_OK || memcmp(x, want, sizeof(x)) != 0;
		bad += hz_alloc(ctx, &p, 100, HZ_CPU) != HZ_OK || hz_free(ctx, p, HZ_CPU) != HZ_OK;
		bad += hz_sync(ctx) != HZ_OK;
		own = open_cpu(3);
		fill(x, 1);
		bad += transform(own, x) != HZ_OK || memcmp(x, want, sizeof(x)) != 0;
		hz_close(own);
		hz_close(ctx);
		_exit(bad);
	}
	waitpid(child, &status, 0);
	ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child goes on with CPU contexts");
	is_int(hzi_fork_generation(), generation, "the parent is as it was");
	fill(x, 1);
	ok(transform(ctx, x) == HZ_OK && memcmp(x, want, sizeof(x)) == 0, "and computes the same");
	hz_close(ctx);
}

struct hammer {
	int id;
	long bad;
	const float *want;
};

static void *hammer(void *arg)
{
	struct hammer *h = arg;
	const int rounds = tap_quick() ? 4 : 40;
	float *x = malloc(sizeof(float) * ROWS * LENGTH);

	for (int i = 0; i < rounds && x; i++) {
		/* Alternates one and two threads, to use several OpenMP pools at once */
		hz_context *ctx = open_cpu(1 + (i + h->id) % 2);

		fill(x, 2);
		h->bad += transform(ctx, x) != HZ_OK;
		h->bad += memcmp(x, h->want, sizeof(float) * ROWS * LENGTH) != 0;
		h->bad += hz_reserve(ctx, 0) != HZ_OK || hz_reserve(ctx, SIZE_MAX) != HZ_ENOMEM;
		h->bad += !strstr(hz_errmsg(ctx), "reserve: ");
		hz_close(ctx);
	}
	h->bad += x == NULL;
	free(x);
	return NULL;
}

static void threads(void)
{
	enum { THREADS = 16 };
	static float want[ROWS * LENGTH];
	struct hammer h[THREADS];
	pthread_t thread[THREADS];
	hz_context *ctx = open_cpu(1);
	long bad = 0;

	fill(want, 2);
	if (transform(ctx, want) != HZ_OK)
		bail("%s", hz_errmsg(ctx));
	hz_close(ctx);
	for (int i = 0; i < THREADS; i++) {
		h[i] = (struct hammer){.id = i, .want = want};
		if (pthread_create(&thread[i], NULL, hammer, &h[i]))
			bail("no thread");
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(thread[i], NULL);
		bad += h[i].bad;
	}
	is_int(bad, 0, "%d threads with contexts of their own", THREADS);
}

/* ---- On a GPU, if asked ---------------------------------------------------------------------- */

/* A context on the second GPU, with memory of the first */
static void next_gpu(hz_tensor *d)
{
	const hz_options o = {.device = HZ_CUDA + 1, .threads = 1};
	hz_context *ctx = open_or_bail(&o);
	hz_tensor host = *d;
	static float x[1024];

	host.device = HZ_CPU;
	host.data = x;
	is_int(hz_device(ctx), HZ_CUDA + 1, "the next GPU");
	is_int(hz_hadamard(ctx, d, d, NULL), HZ_EDEVICE, "a call on another GPU's memory");
	is_int(hz_copy(ctx, d, &host), HZ_EDEVICE, "and a copy of it are refused");
	hz_close(ctx);
}

static void on_gpu(void)
{
	const hz_options asked = {.device = HZ_CUDA, .threads = 1};
	static float x[1024], y[1024];
	hz_tensor hx = hz_tensor_1d(x, HZ_F32, HZ_CPU, 1024),
		  hy = hz_tensor_1d(y, HZ_F32, HZ_CPU, 1024), d;
	hz_context *ctx;
	hz_info info;
	void *p;

	if (!tap_cuda()) {
		skip(15, "HZ_TEST_DEVICE=cuda is not set");
		return;
	}
	ctx = open_or_bail(NULL);
	is_int(hz_device(ctx), HZ_CUDA, "HZ_AUTO finds the GPU");
	hz_close(ctx);
	ctx = open_or_bail(&asked);
	info = info_of(ctx);
	ok(info.sm >= 80 && info.memory_bytes > 0 && *info.gpu_name, "%s, SM %d", info.gpu_name,
	   info.sm);
	is_int(hz_alloc(ctx, &p, sizeof(x), HZ_CUDA), HZ_OK, "alloc");
	d = hz_tensor_1d(p, HZ_F32, HZ_CUDA, 1024);
	for (int i = 0; i < 1024; i++)
		x[i] = (float)i;
	is_int(hz_copy(ctx, &hx, &d), HZ_OK, "copy there");
	is_int(hz_copy(ctx, &d, &hy), HZ_OK, "copy back");
	is_int(hz_sync(ctx), HZ_OK, "sync");
	is_bits(y, x, 1024, 4, "round trip");
	memset(y, 0, sizeof(y));
	is_int(hz_copy(ctx, &hx, &hy), HZ_OK, "copy on the host of a GPU context");
	is_bits(y, x, 1024, 4, "is done on return");
	is_int(hz_hadamard(ctx, &hx, &hy, NULL), HZ_EDEVICE, "a call on host memory is refused");
	is_int(hz_prepare(ctx), HZ_OK, "prepare");
	if (info.cuda_devices > 1)
		next_gpu(&d);
	else
		skip(3, "there is one GPU");
	is_int(hz_free(ctx, p, HZ_CUDA), HZ_OK, "free");
	hz_close(ctx);
}

static void set_threads(void)
{
	hz_context *ctx = open_cpu(0);
	hz_info first = info_of(ctx), info;

	is_int(hz_set_threads(ctx, 5), HZ_OK, "set_threads of 5");
	info = info_of(ctx);
	is_int(info.threads, 5, "5 threads");
	is_str(info.threads_source, "hz_set_threads()", "set_threads decided");
	is_int(hz_set_threads(ctx, -1), HZ_EINVAL, "set_threads of -1");
	is_str(hz_errmsg(ctx), "set_threads: threads is -1, must not be negative", "its message");
	is_int(hz_set_threads(ctx, INT32_MIN), HZ_EINVAL, "set_threads of INT32_MIN");
	is_int(info_of(ctx).threads, 5, "the number stays");
	is_int(hz_set_threads(ctx, INT32_MAX), HZ_OK, "set_threads of INT32_MAX");
	is_int(info_of(ctx).threads, HZI_THREADS_MAX, "is clamped as by open");
	is_int(hz_set_threads(ctx, 0), HZ_OK, "set_threads of 0");
	info = info_of(ctx);
	is_int(info.threads, first.threads, "the automatic number again");
	is_str(info.threads_source, first.threads_source, "and what decided it");
	hz_close(ctx);

	ctx = open_cpu(first.threads + 1);
	is_int(hz_set_threads(ctx, 0), HZ_OK, "set_threads of 0 in a context opened with a number");
	is_int(info_of(ctx).threads, first.threads, "the automatic number");
	is_str(info_of(ctx).threads_source, first.threads_source, "and what decided it");
	hz_close(ctx);

	setenv("HURWITZ_THREADS", "3", 1);
	ctx = open_cpu(2);
	setenv("HURWITZ_THREADS", "4", 1);
	is_int(hz_set_threads(ctx, 0), HZ_OK, "set_threads of 0 where HURWITZ_THREADS is set");
	is_int(info_of(ctx).threads, 3, "what it was at hz_open()");
	is_str(info_of(ctx).threads_source, "HURWITZ_THREADS", "which info says");
	hz_close(ctx);
	unsetenv("HURWITZ_THREADS");
}

/* Each status has a message of its own. */
static void statuses(void)
{
	int good = 1;

	is_str(hz_strerror(HZ_OK), "success", "no error");
	for (int i = HZ_OK; i >= HZ_EFORK; i--) {
		good &= *hz_strerror(i) != '\0' && strcmp(hz_strerror(i), hz_strerror(1)) != 0;
		for (int j = HZ_OK; j > i; j--)
			good &= strcmp(hz_strerror(i), hz_strerror(j)) != 0;
	}
	ok(good, "each status is called by another name");
	is_str(hz_strerror(HZ_EFORK - 1), "unknown status", "a status that there is not");
	is_str(hz_strerror(1), "unknown status", "a positive one");
}

int main(void)
{
	clear_environment();
	statuses();
	is_str(hz_open_errmsg(), "", "no open has failed yet");
	fallback();
	bad_options();
	null_arguments();
	environment();
	information();
	set_threads();
	logging();
	open_message();
	allocator();
	forked();
	threads();
	on_gpu();
	return done_testing();
}
