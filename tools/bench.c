/*
 * bench.c - hurwitz bench: each primitive against this machine's own ceilings
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The ceiling of a case is a copy of the same bytes in the same memory, unless it says otherwise,
 * timed in turn with it, so that whatever slows the machine down slows both. gb_per_s counts bytes
 * read and written; ratio is the ceiling's median time by the primitive's. One CPU thread is timed
 * by its own clock, which stands still while other processes have the core.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/cuda.h"
#include "bench.h"
#include "hz.h"

/* ---- Cases ----------------------------------------------------------------------------------- */

enum kind { HADAMARD, QUANTIZE, DEQUANTIZE };

enum size {
	LARGE,		/* 2^24 elements on the CPU, 2^27 on a GPU: beyond the caches */
	SMALL,		/* 4096 elements: 16 KiB of f32, in the first-level cache */
	ONE_ROW,	/* latency */
};

enum {
	CPU = 1,
	GPU = 2,
	QUICK = 4,		/* with --quick, too: of a range the lengths 2^8, 2^12, 2^16 */
	COLUMNS = 8,
	TWO_STEPS = 16,		/* the ceiling: the transform, then a copy for quantization */
};

static const struct row {
	enum kind kind;
	enum size size;
	int flags;
	int x_dtype, y_dtype;	/* the floating-point operand, and what it becomes */
	int64_t n_low, n_high;	/* in powers of two from one to the other */
	int plan;
	int64_t group;		/* quantization; 0: a scale a row */
	int scale_dtype;
} rows[] = {
	{HADAMARD, LARGE, CPU | QUICK, HZ_F32, HZ_F32, 32, 1 << 20, 0, 0, 0},
	{HADAMARD, SMALL, CPU | QUICK, HZ_F32, HZ_F32, 32, 4096, 0, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F16, HZ_F16, 32, 1 << 20, 0, 0, 0},
	{HADAMARD, LARGE, CPU | QUICK, HZ_BF16, HZ_BF16, 32, 1 << 20, 0, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_BF16, HZ_F32, 128, 128, 0, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_BF16, HZ_F32, 4096, 4096, 0, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F16, 4096, 4096, 0, 0, 0},
	{HADAMARD, LARGE, CPU | COLUMNS | QUICK, HZ_F32, HZ_F32, 128, 128, 0, 0, 0},
	{HADAMARD, LARGE, CPU | COLUMNS, HZ_BF16, HZ_BF16, 128, 128, 0, 0, 0},
	{HADAMARD, LARGE, CPU | QUICK, HZ_F32, HZ_F32, 96, 96, HZ_PLAN_GREEDY, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 160, 160, HZ_PLAN_GREEDY, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 192, 192, HZ_PLAN_GREEDY, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 96, 96, HZ_PLAN_UNIFORM, 0, 0},
	{HADAMARD, LARGE, CPU | QUICK, HZ_F32, HZ_F32, 96, 96, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 5120, 5120, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 6144, 6144, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 11008, 11008, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, CPU, HZ_F32, HZ_F32, 14336, 14336, HZ_PLAN_TRUE, 0, 0},
	{QUANTIZE, LARGE, CPU | QUICK, HZ_F32, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, CPU, HZ_BF16, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, CPU, HZ_BF16, HZ_S4X2, 4096, 4096, 0, 128, HZ_F32},
	{QUANTIZE, LARGE, CPU | QUICK, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 128, HZ_F32},
	{QUANTIZE, LARGE, CPU, HZ_BF16, HZ_E4M3, 128, 128, 0, 32, HZ_E8M0},
	{QUANTIZE, LARGE, CPU, HZ_BF16, HZ_E5M2, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, CPU | TWO_STEPS, HZ_BF16, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{DEQUANTIZE, LARGE, CPU | QUICK, HZ_BF16, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{DEQUANTIZE, LARGE, CPU, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 128, HZ_F32},

	{HADAMARD, LARGE, GPU | QUICK, HZ_F16, HZ_F16, 64, 65536, 0, 0, 0},
	{HADAMARD, LARGE, GPU | QUICK, HZ_BF16, HZ_BF16, 64, 65536, 0, 0, 0},
	{HADAMARD, LARGE, GPU | QUICK, HZ_F32, HZ_F32, 64, 65536, 0, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F16, HZ_F16, 6144, 6144, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F16, HZ_F16, 5120, 5120, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F16, HZ_F16, 7168, 7168, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F16, HZ_F16, 14336, 14336, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F16, HZ_F16, 10240, 10240, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F16, HZ_F16, 40960, 40960, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 6144, 6144, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 5120, 5120, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 7168, 7168, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 14336, 14336, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 10240, 10240, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 40960, 40960, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 6144, 6144, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 5120, 5120, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 7168, 7168, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 14336, 14336, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 10240, 10240, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_F32, HZ_F32, 40960, 40960, HZ_PLAN_TRUE, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 96, 96, HZ_PLAN_GREEDY, 0, 0},
	{HADAMARD, LARGE, GPU, HZ_BF16, HZ_BF16, 192, 192, HZ_PLAN_GREEDY, 0, 0},
	{HADAMARD, LARGE, GPU | COLUMNS, HZ_F16, HZ_F16, 128, 128, 0, 0, 0},
	{HADAMARD, LARGE, GPU | COLUMNS | QUICK, HZ_BF16, HZ_BF16, 128, 128, 0, 0, 0},
	{HADAMARD, LARGE, GPU | COLUMNS, HZ_F32, HZ_F32, 128, 128, 0, 0, 0},
	{QUANTIZE, LARGE, GPU | QUICK, HZ_BF16, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, GPU | QUICK, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, GPU, HZ_BF16, HZ_E4M3, 128, 128, 0, 128, HZ_F32},
	{QUANTIZE, LARGE, GPU, HZ_BF16, HZ_S4X2, 4096, 4096, 0, 128, HZ_F32},
	{QUANTIZE, LARGE, GPU, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 32, HZ_E8M0},
	{QUANTIZE, LARGE, GPU | TWO_STEPS | QUICK, HZ_BF16, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, GPU | TWO_STEPS | QUICK, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 0, HZ_F32},
	{QUANTIZE, LARGE, GPU | TWO_STEPS, HZ_BF16, HZ_E4M3, 128, 128, 0, 128, HZ_F32},
	{DEQUANTIZE, LARGE, GPU, HZ_BF16, HZ_S8, 4096, 4096, 0, 0, HZ_F32},
	{DEQUANTIZE, LARGE, GPU, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 128, HZ_F32},
	{HADAMARD, ONE_ROW, GPU | QUICK, HZ_BF16, HZ_BF16, 4096, 4096, 0, 0, 0},
	{HADAMARD, ONE_ROW, GPU, HZ_F32, HZ_F32, 4096, 4096, 0, 0, 0},
	{HADAMARD, ONE_ROW, GPU, HZ_BF16, HZ_BF16, 16384, 16384, 0, 0, 0},
	{QUANTIZE, ONE_ROW, GPU, HZ_BF16, HZ_E4M3, 4096, 4096, 0, 0, HZ_F32},
};

#define ROWS (sizeof(rows) / sizeof(*rows))

static const char *const op_names[] = {
	[HADAMARD] = "hadamard",
	[QUANTIZE] = "hadamard_quantize",
	[DEQUANTIZE] = "dequantize_hadamard",
};

static const struct {
	const char *name, *family;
} primitives[] = {
#define HZ_OP(name, family, dtypes, summary) {#name, #family},
#include "ops.def"
#undef HZ_OP
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

/* A family's name stands for those, too, that go on from it: quat for quat_gemm. */
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

/* A Hadamard case and what it needs */
struct hadamard_case {
	struct bench_case c;
	const struct row *row;
	int64_t n, items, elements;
	hz_tensor x, y, scale;
	hz_hadamard_opts opts;
};

/* Element types of the pool, made once and repeated through x. */
int bench_fill(struct bench *b, int dtype, int64_t elements, hz_tensor x)
{
	uint64_t seed = 1;
	const size_t size = hz_dtype_size(dtype);
	void *pool = allocate((size_t)POOL * size);
	int status = pool ? HZ_OK : HZ_ENOMEM;

	for (int64_t i = 0; i < POOL && pool; i++) {
		if (dtype == HZ_U8 || dtype == HZ_S8)
			((uint8_t *)pool)[i] = (uint8_t)(random_u64(&seed) >> 56);
		else
			store_element(pool, i, dtype, (double)random_normal(&seed));
	}
	for (int64_t at = 0; at < elements && !status; at += POOL) {
		const int64_t count = elements - at < POOL ? elements - at : POOL;
		const hz_tensor from = hz_tensor_1d(pool, dtype, HZ_CPU, count);
		const hz_tensor to =
			hz_tensor_1d((char *)x.data + (size_t)at * size, dtype, x.device, count);

		status = hz_copy(b->ctx, &from, &to);
	}
	if (!status)
		status = hz_sync(b->ctx);
	free(pool);
	return status;
}

/* Additions that the transform of a row takes. */
static double additions(int64_t n, const hz_hadamard_opts *o)
{
	int64_t length, sum = 0;
	int64_t *blocks = allocate((size_t)n * sizeof(*blocks));
	const int64_t count = blocks ? hz_hadamard_plan(n, o, blocks, n) : 0;

	for (int64_t i = 0; i < count; i++) {
		int64_t m = 1;

		length = blocks[i];
		if (o->plan == HZ_PLAN_TRUE && (length & (length - 1)))
			m = 4 * (length / (length & -length));
		sum += length * (m - 1);
		for (int64_t power = length / m; power > 1; power /= 2)
			sum += length;
	}
	free(blocks);
	return (double)sum;
}

/*
 * The copy in pieces: in a graph the driver copies more than 256 MiB at once at two thirds of the
 * rate of less, as seen on an H200 with CUDA 13.0.
 */
static int device_copy(struct bench *b, const struct bench_case *c)
{
	const int64_t bytes = c->from.shape[0], most = (int64_t)256 << 20;

	for (int64_t done = 0; done < bytes; done += most) {
		hz_tensor from = c->from, to = c->to;
		int status;

		from.data = (char *)from.data + done;
		to.data = (char *)to.data + done;
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
		bytes &= ~(int64_t)0xfffff; /* whole megabytes: the driver copies others slower */
	c->from = hz_tensor_1d(b->from, HZ_U8, hz_device(b->ctx), bytes);
	c->to = hz_tensor_1d(b->to, HZ_U8, hz_device(b->ctx), bytes);
}

int bench_copy(struct bench *b, struct bench_case *c)
{
	const int threads = b->info.threads;
	const int64_t bytes = c->from.shape[0];

	if (b->gpu)
		return device_copy(b, c);
	if (threads <= 1) {
		memcpy(c->to.data, c->from.data, (size_t)bytes);
		return HZ_OK;
	}
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static)
#endif
	for (int t = 0; t < threads; t++) {
		const int64_t begin = bytes * t / threads, end = bytes * (t + 1) / threads;

		memcpy((char *)c->to.data + begin, (const char *)c->from.data + begin,
		       (size_t)(end - begin));
	}
	return HZ_OK;
}

/* The primitive, once. */
static int call(struct bench *b, struct bench_case *c)
{
	struct hadamard_case *h = (struct hadamard_case *)c;

	switch (h->row->kind) {
	case HADAMARD:
		return hz_hadamard(b->ctx, &h->x, &h->y, &h->opts);
	case QUANTIZE:
		return hz_hadamard_quantize(b->ctx, &h->x, &h->y, &h->scale, &h->opts);
	default:
		return hz_dequantize_hadamard(b->ctx, &h->y, &h->scale, &h->x, &h->opts);
	}
}

/* For a fused case: the transform, then a copy, which is the least that two passes can take */
static int call_two_steps(struct bench *b, struct bench_case *c)
{
	struct hadamard_case *h = (struct hadamard_case *)c;
	hz_tensor t = h->x;
	int status;

	t.data = b->from;
	status = hz_hadamard(b->ctx, &h->x, &t, &h->opts);
	return status ? status : bench_copy(b, c);
}

static void name_case(struct hadamard_case *h)
{
	static const char *const plan[] = {"", "", " greedy", " uniform", " true"};
	const struct row *r = h->row;
	const char *layout;
	char group[32] = "";

	if (r->kind != HADAMARD && r->group)
		snprintf(group, sizeof(group), " group=%lld", (long long)r->group);
	layout = r->flags & COLUMNS ? "cols" : r->size == ONE_ROW ? "1 row" : "rows";
	snprintf(h->c.name, sizeof(h->c.name), "%s n=%lld%s%s%s%s%s", layout, (long long)h->n,
		 plan[r->plan], group, r->scale_dtype == HZ_E8M0 ? " e8m0" : "",
		 r->size == SMALL ? " L1" : "", r->flags & TWO_STEPS ? " fused" : "");
	snprintf(h->c.dtype, sizeof(h->c.dtype), "%s",
		 hz_dtype_name(r->kind == DEQUANTIZE ? r->y_dtype : r->x_dtype));
	if (r->x_dtype != r->y_dtype) {
		const size_t used = strlen(h->c.dtype);

		snprintf(h->c.dtype + used, sizeof(h->c.dtype) - used, ":%s",
			 hz_dtype_name(r->kind == DEQUANTIZE ? r->x_dtype : r->y_dtype));
	}
}

static void make_case(struct bench *b, const struct row *r, int64_t n, struct hadamard_case *h)
{
	const int device = hz_device(b->ctx);
	const int64_t total = r->size == SMALL ? 4096 : r->size == ONE_ROW ? n : b->elements;
	const int64_t wide = b->gpu ? 8192 : 4096;	/* columns of the matrix */

	memset(h, 0, sizeof(*h));
	h->row = r;
	h->n = n;
	h->items = total / n;
	h->elements = h->items * n;
	h->opts = (hz_hadamard_opts){.plan = r->plan};
	if (r->flags & COLUMNS) {
		h->x = hz_tensor_2d(b->x, r->x_dtype, device, total / wide, wide);
		h->opts.axis = 1;
		h->opts.block = n;
	} else {
		h->x = hz_tensor_2d(b->x, r->x_dtype, device, h->items, n);
	}
	h->y = h->x;
	h->y.dtype = (int16_t)r->y_dtype;
	h->c.moved_bytes = (double)h->elements * (double)hz_dtype_size(r->x_dtype);
	if (r->kind == HADAMARD) {
		/* In place on the CPU; others' figures for GPUs are out of place. */
		if (b->gpu || r->x_dtype != r->y_dtype)
			h->y.data = b->y;
	} else {
		const int64_t group = r->group ? r->group : n;

		h->y = hz_tensor_2d(b->y, r->y_dtype, device, h->items,
				    r->y_dtype == HZ_S4X2 ? n / 2 : n);
		h->scale = hz_tensor_2d(b->scale, r->scale_dtype, device, h->items, n / group);
		h->c.moved_bytes += (double)hz_tensor_bytes(&h->scale);
	}
	h->c.moved_bytes += (double)hz_tensor_bytes(&h->y);
	h->c.operations =
		(double)(h->elements / n) * additions(n, &(hz_hadamard_opts){.plan = r->plan});
	h->c.op = op_names[r->kind];
	h->c.call = call;
	h->c.ceiling = r->flags & TWO_STEPS ? call_two_steps : bench_copy;
	h->c.against = r->flags & TWO_STEPS ? "hadamard, then a copy"
		       : b->gpu		    ? "device copy"
					    : "memcpy";
	h->c.large = r->size == LARGE;
	bench_copy_of(b, &h->c);
	name_case(h);
}

/* A call made ready to be repeated: on a GPU as a graph of count calls. */
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
	/* Code is loaded and the copies settled before anything is captured. */
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
	hzi_cuda_capture_end(b->ctx, &r->graph);	/* the sentence of the call is lost then */
	return status;
}

static double cpu_clock(const struct bench *b)
{
	struct timespec t;

	if (b->info.threads > 1 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
		return now();
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of one call. */
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

/* So many calls that the clock's own cost and grain do not matter. */
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
#define PATIENCE 20	/* seconds beyond the time of a case after which few samples do */

struct result {
	double median, min, ceiling;	/* seconds */
};

static int measure(struct bench *b, struct bench_case *c, struct result *result)
{
	static double op_times[SAMPLES], ceiling_times[SAMPLES];
	struct repeated op = {0}, ceiling = {0};
	const double limit = now() + b->set->seconds;
	int samples = 0;
	int status = repeat_make(b, c, c->call, &op);

	if (!status)
		status = repeat_make(b, c, c->ceiling, &ceiling);
	if (!status)
		status = repeat_calibrate(b, c, &op);
	if (!status)
		status = repeat_calibrate(b, c, &ceiling);
	for (; !status && samples < SAMPLES && (samples < 7 || now() < limit) &&
	     (samples == 0 || now() < limit + PATIENCE); samples++) {
		status = repeat_time(b, c, &op, &op_times[samples]);
		if (!status)
			status = repeat_time(b, c, &ceiling, &ceiling_times[samples]);
	}
	if (op.graph)
		hzi_cuda_graph_free(b->ctx, op.graph);
	if (ceiling.graph)
		hzi_cuda_graph_free(b->ctx, ceiling.graph);
	if (status)
		return status;
	result->median = median(op_times, samples);
	result->min = op_times[0];
	result->ceiling = median(ceiling_times, samples);
	return HZ_OK;
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
		printf("%s%s%s, %s, threads %d", style(stdout, BOLD),
		       *b->info.cpu_name ? b->info.cpu_name : "CPU", style(stdout, PLAIN),
		       b->info.isa_name, b->info.threads);
	printf("; large cases 2^%d elements; %s in the same run\n",
	       63 - __builtin_clzll((unsigned long long)b->elements),
	       b->gpu ? "copies on the device" : "memcpy");
	printf("%-20s%-28s%-10s%11s%11s%9s%9s  %s\n", "", "case", "dtype", "median us", "min us",
	       "GB/s", "Gop/s", "ratio");
}

static void print_result(const struct bench *b, const struct bench_case *c, const struct result *r)
{
	const double ratio = r->ceiling / r->median;
	const double gb = c->moved_bytes / r->median * 1e-9, gop = c->operations / r->median * 1e-9;
	char sm[16];

	progress_clear();
	snprintf(sm, sizeof(sm), "sm_%d", b->info.sm);
	if (b->set->table)
		printf("%-20s%-28s%-10s%11.2f%11.2f%9.2f%9.2f  %.3f\n", c->op, c->name, c->dtype,
		       r->median * 1e6, r->min * 1e6, gb, gop, ratio);
	if (b->set->json) {
		FILE *out = b->set->json;

		fprintf(out,
			"{\"op\": \"%s\", \"case\": \"%s\", \"dtype\": \"%s\", \"device\": \"%s\", "
			"\"isa\": \"%s\", \"threads\": %d, \"median_us\": %.4f, \"min_us\": %.4f, "
			"\"gb_per_s\": %.4g, \"gop_per_s\": %.4g, \"ceiling\": \"%s\", \"ratio\": "
			"%.4f}\n",
			c->op, c->name, c->dtype, b->gpu ? "cuda" : "cpu",
			b->gpu ? sm : b->info.isa_name, b->gpu ? 0 : b->info.threads,
			r->median * 1e6, r->min * 1e6, gb, gop, c->against, ratio);
		fflush(out);
	}
	fflush(stdout);
}

/* The result of repeated calls is still numbers: a figure for NaN would mean nothing. */
static bool is_finite(struct bench *b, const struct hadamard_case *c)
{
	const hz_tensor *const made[] = {
		[HADAMARD] = &c->y, [QUANTIZE] = &c->scale, [DEQUANTIZE] = &c->x};
	const hz_tensor *of = made[c->row->kind];
	const size_t size = hz_dtype_size(of->dtype);
	char sample[64 * 8];
	const int64_t count = hz_tensor_count(of) < 64 ? hz_tensor_count(of) : 64;
	const hz_tensor from = hz_tensor_1d(of->data, of->dtype, of->device, count);
	const hz_tensor to = hz_tensor_1d(sample, of->dtype, HZ_CPU, count);

	if (size > 8 || hz_copy(b->ctx, &from, &to) != HZ_OK || hz_sync(b->ctx) != HZ_OK)
		return false;
	for (int64_t i = 0; i < count; i++) {
		if (!isfinite(load_element(sample, i, of->dtype)))
			return false;
	}
	return true;
}

int bench_run(struct bench *b, struct bench_case *c)
{
	struct result result;
	const int status = measure(b, c, &result);

	if (status)
		return complain(EXIT_FAILURE, "bench: %s %s: %s", c->op, c->name,
				hz_errmsg(b->ctx));
	print_result(b, c, &result);
	return 0;
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

static int run_case(struct bench *b, const struct row *r, int64_t n)
{
	struct hadamard_case h;
	int status;

	make_case(b, r, n, &h);
	progress("bench: %s %s %s", h.c.op, h.c.name, h.c.dtype);
	status = bench_fill(b, r->x_dtype, h.elements, h.x);
	/* What is dequantized was quantized before. */
	if (!status && r->kind == DEQUANTIZE)
		status = hz_hadamard_quantize(b->ctx, &h.x, &h.y, &h.scale, &h.opts);
	if (!status)
		status = h.c.call(b, &h.c);
	if (status)
		return complain(EXIT_FAILURE, "bench: %s %s: %s", h.c.op, h.c.name,
				hz_errmsg(b->ctx));
	status = bench_run(b, &h.c);
	if (!status && !is_finite(b, &h))
		return complain(EXIT_FAILURE, "bench: %s %s: the results are no finite numbers",
				h.c.op, h.c.name);
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
	/* A small GPU gets less to do: four arrays and the scales are to fit into half of it. */
	while (b->gpu && b->info.memory_bytes > 0 && 40 * b->elements > b->info.memory_bytes)
		b->elements /= 2;
	scales = b->elements / 32;
	for (size_t i = 0; i < sizeof(memory) / sizeof(*memory) && !status; i++) {
		status = hz_alloc(b->ctx, memory[i], (size_t)b->elements * sizeof(float), device);
		/* Touched, so that no case pays for pages that come into being. */
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
	if (b->start)
		hzi_cuda_event_free(b->ctx, b->start);
	if (b->stop)
		hzi_cuda_event_free(b->ctx, b->stop);
	hz_set_stream(b->ctx, NULL);
	if (b->stream)
		hzi_cuda_stream_free(b->ctx, b->stream);
	hz_close(b->ctx);
}

static bool in_quick(const struct row *r, int64_t n)
{
	return (r->flags & QUICK) && (r->n_low == r->n_high || n == 256 || n == 4096 || n == 65536);
}

static int bench_device(const struct settings *set, hz_context *ctx, bool gpu)
{
	struct bench b = {.set = set, .ctx = ctx, .gpu = gpu};
	int status;

	hz_device_info(ctx, &b.info);
	progress("bench: making random data");
	status = prepare(&b);
	for (size_t i = 0; i < ROWS && !status; i++) {
		const struct row *r = &rows[i];

		if (!(r->flags & (gpu ? GPU : CPU)) || !bench_wanted(set, op_names[r->kind]))
			continue;
		for (int64_t n = r->n_low; n <= r->n_high && !status; n *= 2) {
			if (set->quick && !in_quick(r, n))
				continue;
			print_head(&b);
			status = run_case(&b, r, n);
		}
	}
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
		status = bench_mhc(&b, print_head);
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
			status = set->quality ? bench_quality(set, ctx) : bench_device(set, ctx, false);
	}
	/* The quality is the same everywhere. */
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
	       "Measure each primitive, or those named, against a copy of the same bytes in\n"
	       "the same run. GB/s counts bytes read and written; the ratio is the time of the\n"
	       "copy by that of the primitive. One CPU thread is timed by its own clock, which\n"
	       "stands still while other processes have the core.\n"
	       "\n"
	       "  -d, --device DEVICE  cpu, cuda, cuda:N, or auto, the default: all there are\n"
	       "  -t, --threads N      CPU threads; default 1\n"
	       "  -q, --quick          fewer cases, less time\n"
	       "  -s, --seconds S      time for each case; default 0.5, quick 0.1\n"
	       "  -j, --json FILE      one JSON object a line to FILE; '-': to standard output\n"
	       "                       in place of the table\n"
	       "  -Q, --quality        of lattice: error against rate in place of time\n"
	       "  -h, --help           this\n"
	       "\n"
	       "Families and their primitives:\n");
	for (size_t i = 0; i < PRIMITIVES; i++)
		printf("  %-12s %s\n", primitives[i].family, primitives[i].name);
}

static int parse(int argc, char **argv, struct settings *set, int32_t *device, const char **json,
		 bool *done)
{
	static const struct option options[] = {
		{"device", required_argument, NULL, 'd'}, {"threads", required_argument, NULL, 't'},
		{"quick", no_argument, NULL, 'q'}, {"seconds", required_argument, NULL, 's'},
		{"json", required_argument, NULL, 'j'}, {"quality", no_argument, NULL, 'Q'},
		{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0},
	};
	int c;

	while ((c = next_option(argc, argv, "bench", "d:t:qs:j:Qh", options)) != -1) {
		switch (c) {
		case 'd':
			if (parse_device("bench", optarg, device))
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
			return complain(EXIT_BAD,
					"bench: the seconds '%s' are no number above 0, to 3600",
					optarg);
		case 'j':
			*json = optarg;
			break;
		case 'Q':
			set->quality = true;
			break;
		case 'h':
			help();
			*done = true;
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
			known |= strcmp(argv[i], primitives[p].name) == 0 ||
				 strcmp(argv[i], primitives[p].family) == 0;
		if (!known)
			return complain(
				EXIT_BAD,
				"bench: there is no family or primitive '%s'; try 'hurwitz bench "
				"--help'",
				argv[i]);
	}
	return 0;
}

int verb_bench(int argc, char **argv)
{
	struct settings set = {.threads = 1, .table = true};
	const char *json = NULL;
	int32_t device = HZ_AUTO;
	bool done = false;
	int status = parse(argc, argv, &set, &device, &json, &done);

	if (status || done)
		return status;
	if (set.seconds == 0)
		set.seconds = set.quick ? 0.1 : 0.5;
	if (json && strcmp(json, "-") == 0) {
		set.json = stdout;
		set.table = false;
	} else if (json) {
		set.json = fopen(json, "w");
		if (!set.json)
			return complain(EXIT_BAD, "%s: %s", json, strerror(errno));
	}
	status = bench_all(&set, device);
	if (set.json && set.json != stdout && fclose(set.json) != 0 && !status)
		status = complain(EXIT_FAILURE, "%s: %s", json, strerror(errno));
	return status;
}
