/*
 * bench.c - hurwitz bench: each primitive against ceilings that this machine measures
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The ceiling of a case is a copy of the same bytes in the same memory, or the other ceiling that
 * the case names, or the slower of the two. It is timed alternately with the case, so that a
 * slowdown of the machine affects both. gb_per_s counts bytes read and written; ratio is the
 * ceiling's median time divided by the primitive's. With one CPU thread the time is that thread's
 * CPU time, which excludes other processes.
 */
#include <config.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cpu/core/cpu.h"
#include "cpu/peak/kern.h"
#include "gpu/runtime/cuda.h"
#include "tools/core/bench.h"
#include "tools/core/peak.h"
#include "lib/core/internal.h"

static const struct {
	const char *name, *family, *summary;
} primitives[] = {
#define HZ_OP(name, family, dtypes, summary) {#name, #family, summary},
#include "lib/core/ops.def"
};

#define PRIMITIVES (sizeof(primitives) / sizeof(*primitives))

static const char *family_of(const char *op)
{
	for (size_t i = 0; i < PRIMITIVES; i++) {
		if (strcmp(primitives[i].name, op) == 0)
			return primitives[i].family;
	}
	return "";
}

/* A family's name also selects the families whose names continue it: quat selects quat_gemm. */
static bool in_family(const char *family, const char *name)
{
	const size_t length = strlen(name);

	return strncmp(family, name, length) == 0 &&
	       (family[length] == '\0' || family[length] == '_');
}

bool bench_wanted(const struct settings *set, const char *op)
{
	for (int i = 0; i < set->wanted_count; i++) {
		if (strcmp(set->wanted[i], op) == 0 || in_family(family_of(op), set->wanted[i]))
			return true;
	}
	return set->wanted_count == 0;
}

/* ---- One case -------------------------------------------------------------------------------- */

/* Random elements of a dtype are made once; NULL: no memory */
static void *pool_of(struct bench *b, int dtype)
{
	uint64_t seed = 1;
	void *pool = b->pools[dtype];

	if (pool)
		return pool;
	pool = b->pools[dtype] = allocate((size_t)POOL * hz_dtype_size(dtype));
	for (int64_t i = 0; i < POOL && pool; i++) {
		if (dtype == HZ_U8 || dtype == HZ_S8)
			((uint8_t *)pool)[i] = (uint8_t)(random_u64(&seed) >> 56);
		else
			store_element(pool, i, dtype, (double)random_normal(&seed));
	}
	return pool;
}

int bench_fill(struct bench *b, int dtype, int64_t elements, hz_tensor x)
{
	const size_t size = hz_dtype_size(dtype);
	void *pool = pool_of(b, dtype);
	int status = pool ? HZ_OK : HZ_ENOMEM;

	for (int64_t at = 0; at < elements && !status; at += POOL) {
		const int64_t count = elements - at < POOL ? elements - at : POOL;
		const hz_tensor from = hz_tensor_1d(pool, dtype, HZ_CPU, count);
		hz_tensor to =
			hz_tensor_1d((char *)x.data + (size_t)at * size, dtype, x.device, count);

		status = hz_copy(b->ctx, &from, &to);
	}
	return status ? status : hz_sync(b->ctx);
}

/* Copies of at most 256 MiB each: within a graph the driver copies larger ones at two thirds of the
 * rate (H200, CUDA 13.0). More bytes than the arrays have begin again at their start. */
static int device_copy(struct bench *b, const struct bench_case *c)
{
	const int64_t bytes = c->from.shape[0], all = b->elements * (int64_t)sizeof(float);
	const int64_t most = all < (int64_t)256 << 20 ? all : (int64_t)256 << 20;

	for (int64_t done = 0; done < bytes; done += most) {
		hz_tensor from = c->from, to = c->to;
		int status;

		from.data = (char *)from.data + done % all;
		to.data = (char *)to.data + done % all;
		from.shape[0] = to.shape[0] = bytes - done < most ? bytes - done : most;
		status = hz_copy(b->ctx, &from, &to);
		if (status)
			return status;
	}
	return HZ_OK;
}

void bench_copy_of(struct bench *b, struct bench_case *c)
{
	int64_t bytes = (int64_t)(c->moved_bytes / 2);

	if (bytes > (int64_t)64 << 20)
		bytes &= ~(int64_t)0xfffff; /* multiples of 1 MiB: the driver copies other sizes
					     * slower */
	c->from = hz_tensor_1d(b->from, HZ_U8, hz_device(b->ctx), bytes);
	c->to = hz_tensor_1d(b->to, HZ_U8, hz_device(b->ctx), bytes);
}

struct shares {
	bench_work *work;
	const void *arg;
	int64_t unit;
	atomic_int status;	/* of one share that failed, or HZ_OK */
};

static void run_share(void *job, int thread, int64_t begin, int64_t end)
{
	struct shares *const s = job;
	const int status = s->work(s->arg, begin * s->unit, end * s->unit);

	(void)thread;
	if (status)
		atomic_store(&s->status, status);
}

int bench_parallel(const struct bench *b, int64_t count, int64_t unit, bench_work *work,
		   const void *arg)
{
	struct shares shares = {work, arg, unit, HZ_OK};

	if (b->info.threads <= 1)
		return work(arg, 0, count);
	hzi_parallel(b->ctx, b->info.threads, run_share, &shares, count / unit);
	return atomic_load(&shares.status);
}

static int copy_share(const void *arg, int64_t begin, int64_t end)
{
	const struct bench_case *const c = arg;

	memcpy((char *)c->to.data + begin, (const char *)c->from.data + begin,
	       (size_t)(end - begin));
	return HZ_OK;
}

int bench_copy(struct bench *b, struct bench_case *c)
{
	return b->gpu ? device_copy(b, c) : bench_parallel(b, c->from.shape[0], 1, copy_share, c);
}

static int fma_share(const void *arg, int64_t begin, int64_t end)
{
	((const struct hzi_peak_kern *)arg)->fma(end - begin);
	return HZ_OK;
}

int bench_peak(struct bench *b, struct bench_case *c)
{
	return bench_parallel(b, (int64_t)(c->operations / 2), 1, fma_share,
			      hzi_peak_kern + b->ctx->level);
}

struct read {
	const struct hzi_peak_kern *kern;
	const float *p;
};

static volatile float read_sum;

static int read_share(const void *arg, int64_t begin, int64_t end)
{
	const struct read *const r = arg;

	read_sum = r->kern->read(r->p + begin, end - begin);
	return HZ_OK;
}

int bench_read(struct bench *b, const float *p, int64_t n)
{
	return bench_parallel(b, n, 1024, read_share,
			      &(struct read){hzi_peak_kern + b->ctx->level, p});
}

static int call_products(struct bench *b, struct bench_case *c)
{
	return tool_peak(b->ctx, c->mac_dtype, (int64_t)c->macs);
}

void bench_products_of(struct bench *b, struct bench_case *c, int dtype, double macs)
{
	bench_copy_of(b, c);
	c->ceiling = bench_copy;
	c->against = "device copy";
	c->other = call_products;
	c->other_against = dtype == HZ_F32 ? "bare multiply-adds" :
			   dtype == HZ_F16 ? "bare products of 16 bits" : "bare products of 8 bits";
	c->mac_dtype = dtype;
	c->macs = macs;
}

/* A call prepared for repetition; on a GPU a graph of `count` calls */
struct repeated {
	bench_call call;
	void *graph;
	int count;
};

static int repeat_make(struct bench *b, struct bench_case *c, bench_call f, struct repeated *r)
{
	int status;

	r->call = f;
	r->graph = NULL;
	r->count = 1;
	if (!b->gpu)
		return f(b, c);
	/* Loads code and completes copies before the capture. */
	status = f(b, c);
	if (!status)
		status = hz_sync(b->ctx);
	if (!status)
		status = hzi_cuda_capture_begin(b->ctx);
	if (status)
		return status;
	r->count = c->large ? 10 : 1000;
	for (int i = 0; i < r->count && !status; i++)
		status = f(b, c);
	if (!status)
		return hzi_cuda_capture_end(b->ctx, &r->graph);
	hzi_cuda_capture_end(b->ctx, &r->graph);	/* loses the error message of the call */
	return status;
}

static double cpu_clock(const struct bench *b)
{
	struct timespec t;

	if (b->info.threads > 1 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
		return now();
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds per call */
static int repeat_time(struct bench *b, struct bench_case *c, struct repeated *r, double *seconds)
{
	int status = HZ_OK;

	if (b->gpu) {
		double ms = 0;

		status = hzi_cuda_event_record(b->ctx, b->start);
		if (!status)
			status = hzi_cuda_graph_launch(b->ctx, r->graph);
		if (!status)
			status = hzi_cuda_event_record(b->ctx, b->stop);
		if (!status)
			status = hzi_cuda_event_ms(b->ctx, b->start, b->stop, &ms);
		*seconds = ms * 1e-3 / r->count;
	} else {
		const double t = cpu_clock(b);

		for (int i = 0; i < r->count && !status; i++)
			status = r->call(b, c);
		*seconds = (cpu_clock(b) - t) / r->count;
	}
	return status;
}

/* Enough calls that the clock's cost and resolution do not matter */
static int repeat_calibrate(struct bench *b, struct bench_case *c, struct repeated *r)
{
	double seconds;
	int status;

	for (;;) {
		status = repeat_time(b, c, r, &seconds);
		if (status || b->gpu || seconds * r->count > 100e-6 || r->count > 1 << 20)
			return status;
		r->count *= 4;
	}
}

#define SAMPLES 4000
#define PATIENCE 20	/* seconds beyond a case's time after which few samples suffice */

struct result {
	double median, min, ceiling;	/* seconds */
	const char *against;
};

enum { OP, CEILING, OTHER, CALLS };

static int measure(struct bench *b, struct bench_case *c, struct result *result)
{
	static double times[CALLS][SAMPLES];
	const bench_call calls[CALLS] = {c->call, c->ceiling, c->other};
	const int count = c->other ? CALLS : OTHER;
	const double limit = now() + b->set->seconds;
	struct repeated each[CALLS] = {{0}};
	int status = HZ_OK, samples = 0;
	double other;

	for (int i = 0; i < count && !status; i++)
		status = repeat_make(b, c, calls[i], &each[i]);
	for (int i = 0; i < count && !status; i++)
		status = repeat_calibrate(b, c, &each[i]);
	for (; !status && samples < SAMPLES && (samples < 7 || now() < limit) &&
	     (samples == 0 || now() < limit + PATIENCE); samples++) {
		for (int i = 0; i < count && !status; i++)
			status = repeat_time(b, c, &each[i], &times[i][samples]);
	}
	for (int i = 0; i < count; i++) {
		if (each[i].graph)
			hzi_cuda_graph_free(b->ctx, each[i].graph);
	}
	if (status)
		return status;
	result->median = median(times[OP], samples);
	result->min = times[OP][0];
	result->ceiling = median(times[CEILING], samples);
	result->against = c->against;
	other = c->other ? median(times[OTHER], samples) : 0;
	if (other > result->ceiling) {
		result->ceiling = other;
		result->against = c->other_against;
	}
	return HZ_OK;
}

int bench_time(struct bench *b, struct bench_case *c, double limit, double *seconds)
{
	double times[15];
	const int most = sizeof(times) / sizeof(*times);
	struct repeated r = {0};
	int samples = 0, status = repeat_make(b, c, c->call, &r);
	double end;

	if (!status)
		status = repeat_calibrate(b, c, &r);
	end = now() + limit;
	for (; !status && samples < most && (samples == 0 || now() < end); samples++)
		status = repeat_time(b, c, &r, &times[samples]);
	if (r.graph)
		hzi_cuda_graph_free(b->ctx, r.graph);
	*seconds = status ? 0 : median(times, samples);
	return status;
}

static void print_head(struct bench *b)
{
	if (b->head || !b->set->table)
		return;
	b->head = true;
	if (b->gpu)
		printf("%s%s%s, compute capability %d.%d", style(stdout, BOLD), b->info.gpu_name,
		       style(stdout, PLAIN), b->info.sm / 10, b->info.sm % 10);
	else
		printf("%s%s%s, %s", style(stdout, BOLD),
		       *b->info.cpu_name ? b->info.cpu_name : "CPU", style(stdout, PLAIN),
		       b->info.isa_name);
	printf("; large cases 2^%d elements; medians; rooflines of the same run\n",
	       63 - __builtin_clzll((unsigned long long)b->elements));
	printf("%-20s%-30s %-10s%7s%14s%17s    %s\n", "primitive", "case", "dtype", "threads", "time",
	       "rate", "of the roofline");
}

struct bench_row bench_row_begin(const struct bench *b)
{
	struct bench_row row = {.threads = b->gpu ? 0 : b->info.threads};

	snprintf(row.device, sizeof(row.device), "%s", b->gpu ? "cuda" : "cpu");
	if (b->gpu)
		snprintf(row.isa, sizeof(row.isa), "sm_%d", b->info.sm);
	else
		snprintf(row.isa, sizeof(row.isa), "%s", b->info.isa_name);
	return row;
}

static struct bench_row row_of(const struct bench *b, const struct bench_case *c,
			       const struct result *r)
{
	struct bench_row row = bench_row_begin(b);

	row.median_us = r->median * 1e6;
	row.ratio = r->ceiling / r->median;
	snprintf(row.op, sizeof(row.op), "%s", c->op);
	snprintf(row.name, sizeof(row.name), "%s", c->name);
	snprintf(row.dtype, sizeof(row.dtype), "%s", c->dtype);
	snprintf(row.ceiling, sizeof(row.ceiling), "%s", r->against);
	return row;
}

int bench_row_write(const struct bench *b, const struct bench_case *c, const struct bench_row *row,
		    double min_us)
{
	FILE *out = b->set->json;

	if (!out)
		return 0;
	fprintf(out,
		"{\"op\": \"%s\", \"case\": \"%s\", \"dtype\": \"%s\", \"device\": \"%s\", "
		"\"isa\": \"%s\", \"threads\": %d, \"median_us\": %.4f, \"min_us\": %.4f, "
		"\"gb_per_s\": %.4g, \"gop_per_s\": %.4g, \"ceiling\": \"%s\", \"ratio\": "
		"%.5g}\n",
		row->op, row->name, row->dtype, row->device, row->isa, row->threads,
		row->median_us, min_us, c->moved_bytes / row->median_us * 1e-3,
		c->operations / row->median_us * 1e-3, row->ceiling, row->ratio);
	/* fclose() does not report a full disk; main() checks standard output. */
	if (fflush(out) != 0 && out != stdout)
		return complain(EXIT_FAILURE, "bench: --json: %s", strerror(errno));
	return 0;
}

static int print_result(const struct bench *b, const struct bench_case *c, const struct result *r)
{
	const double gb = c->moved_bytes / r->median * 1e-9, gop = c->operations / r->median * 1e-9;
	const struct bench_row row = row_of(b, c, r);
	/* What the roofline counts: instructions or bytes */
	const bool counts_operations = strncmp(row.ceiling, "bare", 4) == 0;
	char threads[16] = "GPU";
	int status;

	progress_clear();
	if (!b->gpu)
		snprintf(threads, sizeof(threads), "%d", row.threads);
	if (b->set->table)
		printf("%-20s%-30s %-10s%7s%11.2f us%11.2f %-5s%5.0f %% (%s)\n", row.op, row.name,
		       row.dtype, threads, row.median_us, counts_operations ? gop : gb,
		       counts_operations ? "GOP/s" : "GB/s", 100 * row.ratio, row.ceiling);
	status = bench_row_write(b, c, &row, r->min * 1e6);
	fflush(stdout);
	if (!status && b->set->measured && !bench_rows_add(b->set->measured, &row))
		return complain(EXIT_FAILURE, "bench: no memory");
	return status;
}

int bench_run(struct bench *b, struct bench_case *c)
{
	struct result result;
	const int status = measure(b, c, &result);

	if (status)
		return complain(EXIT_FAILURE, "bench: %s %s: %s", c->op, c->name,
				hz_errmsg(b->ctx));
	return print_result(b, c, &result);
}

int bench_made(struct bench *b, struct bench_case *c, int status)
{
	if (!status)
		status = c->call(b, c);
	if (status)
		status = complain(EXIT_FAILURE, "bench: %s %s: %s", c->op, c->name,
				  hz_errmsg(b->ctx));
	else
		status = bench_run(b, c);
	hz_sync(b->ctx);
	return status;
}

/* ---- A device -------------------------------------------------------------------------------- */

static int prepare(struct bench *b)
{
	const int device = hz_device(b->ctx);
	void **const memory[] = {&b->x, &b->y, &b->from, &b->to};
	int64_t scales;
	int status = HZ_OK;

	b->elements = (int64_t)1 << (b->gpu ? 27 : 24);
	/* A small GPU gets smaller cases: four arrays and the scales must fit into half of its
	 * memory. */
	while (b->gpu && b->info.memory_bytes > 0 && 40 * b->elements > b->info.memory_bytes)
		b->elements /= 2;
	scales = b->elements / 32;
	for (size_t i = 0; i < sizeof(memory) / sizeof(*memory) && !status; i++) {
		status = hz_alloc(b->ctx, memory[i], (size_t)b->elements * sizeof(float), device);
		/* Writes to all arrays, so that no case pays for page faults. */
		if (!status)
			status = bench_fill(b, HZ_F32, b->elements,
				      hz_tensor_1d(*memory[i], HZ_F32, device, b->elements));
	}
	if (!status)
		status = hz_alloc(b->ctx, &b->scale, (size_t)scales * sizeof(float), device);
	if (!status)
		status = bench_fill(b, HZ_F32, scales,
				    hz_tensor_1d(b->scale, HZ_F32, device, scales));
	if (!status && b->gpu)
		status = hz_prepare(b->ctx);
	if (!status && b->gpu)
		status = hzi_cuda_stream_new(b->ctx, &b->stream);
	if (!status && b->gpu)
		status = hz_set_stream(b->ctx, b->stream);
	if (!status && b->gpu)
		status = hzi_cuda_event_new(b->ctx, &b->start);
	if (!status && b->gpu)
		status = hzi_cuda_event_new(b->ctx, &b->stop);
	if (status)
		return complain(EXIT_FAILURE, "bench: %s", hz_errmsg(b->ctx));
	return 0;
}

static void finish(struct bench *b)
{
	void *const memory[] = {b->x, b->y, b->from, b->to, b->scale};

	hz_sync(b->ctx);
	for (size_t i = 0; i < sizeof(memory) / sizeof(*memory); i++) {
		if (memory[i])
			hz_free(b->ctx, memory[i], hz_device(b->ctx));
	}
	for (size_t i = 0; i < sizeof(b->pools) / sizeof(*b->pools); i++)
		free(b->pools[i]);
	if (b->start)
		hzi_cuda_event_free(b->ctx, b->start);
	if (b->stop)
		hzi_cuda_event_free(b->ctx, b->stop);
	hz_set_stream(b->ctx, NULL);
	if (b->stream)
		hzi_cuda_stream_free(b->ctx, b->stream);
	hz_close(b->ctx);
}

static int bench_device(const struct settings *set, hz_context *ctx, bool gpu)
{
	struct bench b = {.set = set, .ctx = ctx, .gpu = gpu, .begin = now()};
	int status;

	hz_device_info(ctx, &b.info);
	progress("bench: making random data");
	status = prepare(&b);
	if (set->grid) {
		status = status ? status : bench_grid(&b);
		finish(&b);
		return status;
	}
	if (!status)
		status = bench_hadamard(&b, print_head);
	if (!status)
		status = bench_qgemm(&b, print_head);
	if (!status)
		status = bench_quat(&b, print_head);
	if (!status)
		status = bench_quat_layer(&b, print_head);
	if (!status)
		status = bench_lattice(&b, print_head);
	if (!status)
		status = bench_vlut(&b, print_head);
	if (!status)
		status = bench_linear(&b, print_head);
	if (!status)
		status = bench_mhc(&b, print_head);
	if (!status)
		status = bench_single(&b, print_head);
	progress_clear();
	finish(&b);
	return status;
}

static int bench_all(const struct settings *set, int32_t device)
{
	hz_context *ctx;
	const hz_options gpu = {.device = device == HZ_AUTO ? HZ_CUDA : device};
	int status = 0;

	if (device == HZ_AUTO || device == HZ_CPU) {
		status = open_context(&ctx, HZ_CPU, set->threads, HZ_ISA_AUTO);
		if (!status)
			status = set->quality ? bench_quality(set, ctx) :
						bench_device(set, ctx, false);
	}
	/* The error does not depend on the device. */
	if (status || device == HZ_CPU || (set->quality && device == HZ_AUTO))
		return status;
	status = hz_open(&ctx, &gpu);
	if (status && device == HZ_AUTO)
		return 0;
	if (status)
		return complain(exit_status(status), "%s", hz_open_errmsg());
	return set->quality ? bench_quality(set, ctx) : bench_device(set, ctx, true);
}

static void help(void)
{
	printf("Usage: hurwitz bench [OPTION]... [FAMILY|PRIMITIVE]...\n"
	       "Measure each primitive, or those named, in turn with what bounds it: a copy of\n"
	       "the same bytes or, if that takes longer, bare instructions. The rate counts\n"
	       "bytes read and written or, where instructions bound it, operations; 100 %% of\n"
	       "the roofline is as fast as what bounds it. One CPU thread is timed by its own\n"
	       "clock, which stands still while other processes have the core.\n"
	       "\n"
	       "  -d, --device DEVICE  cpu, cuda, cuda:N, or auto, the default: all there are\n"
	       "  -t, --threads N      CPU threads; default 1\n"
	       "  -q, --quick          fewer cases, less time\n"
	       "  -s, --seconds S      time for each case; default 0.5, quick 0.1\n"
	       "  -j, --json FILE      one JSON object a line to FILE; '-': to standard output\n"
	       "                       in place of the table\n"
	       "  -b, --busy N         what threads cost while N processes keep cores busy:\n"
	       "                       calls of about 20 us, 200 us and 2 ms by one thread and\n"
	       "                       by -t N, default 2, and an empty job\n"
	       "  -g, --grid           products and layers over batch, width, dtype, packed and\n"
	       "                       strided operands: time over the roofline, and cliffs;\n"
	       "                       cells that the --json FILE has are taken from it\n"
	       "  -B, --budget S       seconds for --grid on each device; default 300\n"
	       "  -Q, --quality        of lattice: error against rate in place of time\n"
	       "  -c, --compare FILE   also compare with FILE, which --json wrote before: for\n"
	       "                       each case the new time divided by the old one, the same\n"
	       "                       of its roofline, and net, the first divided by the\n"
	       "                       second, in which a machine that is slower today cancels;\n"
	       "                       status 3 if net of a case is above 1 by more than P\n"
	       "  -n, --new FILE       with --compare: nothing is measured, FILE has the cases\n"
	       "  -T, --threshold P    percent; default 10\n"
	       "  -h, --help           this\n"
	       "\n"
	       "Families and their primitives:\n");
	for (size_t i = 0; i < PRIMITIVES; i++) {
		if (!is_part(primitives[i].summary))
			printf("  %-10s %-19s %s\n", primitives[i].family, primitives[i].name,
			       primitives[i].summary);
	}
}

/* Options of the whole run */
struct request {
	int32_t device;
	const char *json, *compare, *new;	/* file names */
	double threshold;			/* in percent; -1: not given */
	int busy;				/* processes, -1: no --busy */
	bool done;
};

static int parse(int argc, char **argv, struct settings *set, struct request *request)
{
	static const struct option options[] = {
		{"device", required_argument, NULL, 'd'}, {"threads", required_argument, NULL, 't'},
		{"quick", no_argument, NULL, 'q'}, {"seconds", required_argument, NULL, 's'},
		{"json", required_argument, NULL, 'j'}, {"quality", no_argument, NULL, 'Q'},
		{"grid", no_argument, NULL, 'g'}, {"budget", required_argument, NULL, 'B'},
		{"busy", required_argument, NULL, 'b'}, {"compare", required_argument, NULL, 'c'},
		{"new", required_argument, NULL, 'n'}, {"threshold", required_argument, NULL, 'T'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	double busy = 0;
	int c;

	while ((c = next_option(argc, argv, "bench", "d:t:qs:j:gB:Qb:c:n:T:h", options)) != -1) {
		switch (c) {
		case 'd':
			if (parse_device("bench", optarg, &request->device))
				return EXIT_BAD;
			break;
		case 't':
			if (parse_threads("bench", optarg, &set->threads))
				return EXIT_BAD;
			break;
		case 'q':
			set->quick = true;
			break;
		case 's':
			if (parse_number(optarg, &set->seconds) && set->seconds > 0 &&
			    set->seconds <= 3600)
				break;
			return complain(EXIT_BAD, "bench: --seconds=%s: the value must be a number "
					"above 0, up to 3600", optarg);
		case 'j':
			request->json = optarg;
			break;
		case 'g':
			set->grid = true;
			break;
		case 'B':
			if (parse_number(optarg, &set->budget) && set->budget > 0 &&
			    set->budget <= 1e6)
				break;
			return complain(EXIT_BAD, "bench: --budget=%s: the value must be a number "
					"of seconds above 0, up to 1e6", optarg);
		case 'Q':
			set->quality = true;
			break;
		case 'b':
			if (!parse_number(optarg, &busy) || busy != (int)busy || busy < 0 ||
			    busy > 64)
				return complain(EXIT_BAD,
						"bench: the busy processes '%s' are no whole "
						"number from 0 to 64",
						optarg);
			request->busy = (int)busy;
			break;
		case 'c':
			request->compare = optarg;
			break;
		case 'n':
			request->new = optarg;
			break;
		case 'T':
			if (parse_number(optarg, &request->threshold) && request->threshold >= 0 &&
			    request->threshold <= 1e6)
				break;
			return complain(EXIT_BAD, "bench: --threshold=%s: the value must be a "
					"number of percent, 0 to 1e6", optarg);
		case 'h':
			help();
			request->done = true;
			return EXIT_SUCCESS;
		default:
			return EXIT_BAD;
		}
	}
	set->wanted = argv + optind;
	set->wanted_count = argc - optind;
	for (int i = optind; i < argc; i++) {
		bool known = false;

		for (size_t p = 0; p < PRIMITIVES; p++)
			known |= (strcmp(argv[i], primitives[p].name) == 0 &&
				  !is_part(primitives[p].summary)) ||
				 strcmp(argv[i], primitives[p].family) == 0;
		if (!known)
			return complain(
				EXIT_BAD,
				"bench: there is no family or primitive '%s'; try 'hurwitz bench "
				"--help'",
				argv[i]);
	}
	if (request->new && !request->compare)
		return complain(EXIT_BAD, "bench: --new is for --compare");
	if (request->new && (request->json || request->device != HZ_AUTO || set->wanted_count ||
			     set->quick || set->seconds > 0 || set->threads))
		return complain(EXIT_BAD, "bench: --new measures nothing: it goes with --compare and "
				"--threshold only");
	if (request->threshold >= 0 && !request->compare)
		return complain(EXIT_BAD, "bench: --threshold is for --compare");
	if (request->compare && set->quality)
		return complain(EXIT_BAD, "bench: --compare is of times, --quality has none");
	if (set->quality && set->seconds > 0)
		return complain(EXIT_BAD, "bench: --seconds is of times, --quality has none");
	if (set->budget > 0 && !set->grid)
		return complain(EXIT_BAD, "bench: --budget is for --grid");
	if (set->grid && (request->compare || set->quality || set->quick || set->seconds > 0))
		return complain(EXIT_BAD,
				"bench: --grid goes with --budget, --device, --threads and --json "
				"only");
	if (request->busy >= 0 && (set->wanted_count || request->json || request->compare ||
				   set->quality || set->grid || set->seconds > 0 ||
				   request->device > HZ_CPU))
		return complain(EXIT_BAD,
				"bench: --busy goes with --threads and --quick only, on the CPU");
	if (request->compare && request->json && strcmp(request->json, "-") == 0)
		return complain(EXIT_BAD,
				"bench: --compare and --json - both print to standard output");
	return 0;
}

/* Compares cases, measured now or read from a file, with those of old, which have been read. */
static int compare(const struct settings *set, const struct request *request,
		   struct bench_rows *old, struct bench_rows *new)
{
	const int status =
		request->new ? bench_rows_read(new, request->new) : bench_all(set, request->device);

	if (status)
		return status;
	if (!request->new)
		printf("\n");
	return bench_compare(old, new, request->compare,
			     (request->threshold >= 0 ? request->threshold : 10) / 100);
}

/* Whether a regular file is there and not empty */
static bool has_text(const char *file)
{
	struct stat st;

	return stat(file, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
}

/* Shortens a file by a last line without an end, which a run that was killed may leave. */
static int drop_unfinished_line(const char *name)
{
	FILE *f = fopen(name, "r");
	long size = 0, good = 0;
	int c, status = 0;

	if (!f)
		return complain(EXIT_BAD, "%s: %s", name, strerror(errno));
	while ((c = getc(f)) != EOF) {
		size++;
		if (c == '\n')
			good = size;
	}
	if (good < size && truncate(name, good) != 0)
		status = complain(EXIT_BAD, "%s: %s", name, strerror(errno));
	fclose(f);
	return status;
}

int verb_bench(int argc, char **argv)
{
	struct settings set = {.table = true};
	struct request request = {.device = HZ_AUTO, .threshold = -1, .busy = -1};
	struct bench_rows old = {0}, new = {0};
	int status = parse(argc, argv, &set, &request);

	if (status || request.done)
		return status;
	if (set.threads == 0)
		set.threads = request.busy >= 0 ? 2 : 1;
	if (request.busy >= 0)
		return bench_busy(&set, request.busy);
	if (set.seconds == 0)
		set.seconds = set.quick ? 0.1 : 0.5;
	if (set.budget == 0)
		set.budget = 300;
	if (request.compare) {
		/* before measuring, and before --json may overwrite the file */
		status = bench_rows_read(&old, request.compare);
		set.measured = &new;
	}
	if (!status && request.json && strcmp(request.json, "-") == 0) {
		set.json = stdout;
		set.table = false;
	} else if (!status && request.json) {
		if (set.grid && has_text(request.json)) {
			status = bench_rows_read(&old, request.json);
			if (!status)
				status = drop_unfinished_line(request.json);
			set.before = &old;
		}
		set.json = status ? NULL : fopen(request.json, set.grid ? "a" : "w");
		if (!status && !set.json)
			status = complain(EXIT_BAD, "%s: %s", request.json, strerror(errno));
	}
	if (!status)
		status = request.compare ? compare(&set, &request, &old, &new)
					 : bench_all(&set, request.device);
	if (set.json && set.json != stdout && fclose(set.json) != 0 && !status)
		status = complain(EXIT_FAILURE, "%s: %s", request.json, strerror(errno));
	free(old.row);
	free(new.row);
	return status;
}
