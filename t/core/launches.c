/*
 * launches.c - a golden trace: which kernels each call launches on which GPU, and how
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Makes thousands of calls on the stand-in driver, for GPUs of compute capability 8.0, 9.0, 10.0
 * and 12.0, and compares every launch with t/core/launches.golden: kernel, grid, block, cluster, dynamic
 * shared memory, bytes of parameters. A change that should change no routing leaves the file as it
 * is; a renamed kernel changes its name and the checksums.
 *
 *	t/core/launches			compares with t/core/launches.golden
 *	t/core/launches --print		writes what that file should be to stdout, and the
 *					kernels that no call launches to stderr
 *	t/core/launches --all		writes the launches of all calls
 *	make launches			writes t/core/launches.golden
 *
 * A call has a line, "call operands and options", and below it a line for each launch, in order,
 * that begins with the GPUs that it is for:
 *
 *	  80,90 KERNEL grid X,Y,Z block X,Y,Z shared BYTES params BYTES [cluster N] [early]
 *
 * Trailing ones of grid and block are left out. params 0: handed over by address. The workspace
 * that the call asks for and a status other than 0 stand ahead of the launches. The golden file has
 * the calls by which a function reaches a kernel first, or a GPU does; at its end is a checksum of
 * the lines of all calls of a function. Where only that differs, compare --all of two builds.
 *
 * Operands lie where no memory is: nothing reads or writes them. The file is long because every
 * function has its own way to be called.
 */
#include <config.h>

#include "t/core/calls.h"
#include "t/core/cuda_calls.h"
#include "gpu/runtime/cuda.h"

#if HZ_HAVE_CUDA

#define GPUS 4
#define OPERANDS_AT ((uintptr_t)1 << 44)
#define OPERAND_BYTES ((uintptr_t)1 << 36)	/* that the addresses of one are apart */
#define WORKSPACE_AT ((uintptr_t)1 << 46)
#define WORKSPACE_BYTES ((size_t)1 << 40)

static const int sms[GPUS] = {80, 90, 100, 120};

/* The context and the device of the call that is being made; no workspace is asked for it yet. */
static hz_context *ctx;
static int device, gpu;
static size_t workspace;
static struct scene scenes[GPUS];

static char text[2048];		/* operands and options of the call */
static int operands;
static FILE *out;
static char *trace;
static size_t trace_bytes;

/* ---- Recording ------------------------------------------------------------------------------- */

/* By whom a kernel has been launched: a bit for each GPU, for each function */
struct seen {
	unsigned gpus;
	uint64_t functions[2];
};

static struct seen seen[HZI_KERNELS];

static const struct {
	const char *image, *name;
} kernels[HZI_KERNELS] = {
#define HZ_KERNEL(image, name) [HZI_KERNEL_##name] = {#image, #name},
#include "gpu/kernels.def"
};

/* The functions, with a checksum of the lines of their calls */
static struct function {
	const char *name;
	int calls;
	uint64_t sum;
} functions[128];
static int functions_count;
static bool all;			/* write all calls */

static struct function *function_of(const char *name)
{
	struct function *f = functions;

	while (f < functions + functions_count && strcmp(f->name, name) != 0)
		f++;
	if (f == functions + functions_count) {
		if (functions_count == 128)
			bail("more functions than there is room for");
		functions_count++;
		*f = (struct function){.name = name, .sum = 14695981039346656037u};
	}
	return f;
}

/* FNV-1a */
static void add_to(struct function *f, const char *s)
{
	for (; *s; s++)
		f->sum = (f->sum ^ (unsigned char)*s) * 1099511628211u;
}

/* Whether this GPU or this function launches that kernel for the first time */
static bool mark(const char *kernel, int function)
{
	for (int k = 0; k < HZI_KERNELS; k++) {
		struct seen *const s = &seen[k];
		uint64_t *const by = &s->functions[function / 64];
		bool first;

		if (strcmp(kernels[k].name, kernel) != 0)
			continue;
		first = !(s->gpus >> gpu & 1) || !(*by >> function % 64 & 1);
		s->gpus |= 1u << gpu;
		*by |= (uint64_t)1 << function % 64;
		return first;
	}
	bail("launched: %s, which gpu/kernels.def does not have", kernel);
}

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...)
{
	const size_t n = strlen(text);
	va_list ap;

	va_start(ap, format);
	vsnprintf(text + n, sizeof(text) - n, format, ap);
	va_end(ap);
}

static char *operand_at(int i)
{
	return (char *)(OPERANDS_AT + (uintptr_t)i * OPERAND_BYTES);
}

/* The next operand: contiguous, at an address of its own that `skew` bytes are added to */
static hz_tensor view_at(int dtype, int ndim, const int64_t *shape, int skew)
{
	char *const p = operand_at(operands++);
	const hz_tensor t = hz_tensor_nd(p + skew, dtype, device, ndim, shape);

	note(" %s[", hz_dtype_name(dtype));
	for (int d = 0; d < ndim; d++)
		note("%s%" PRId64, d ? "," : "", shape[d]);
	note("]");
	if (skew)
		note("+%d", skew);
	return t;
}

/* Where packed matrices lie, behind the operands of any call */
#define PACKED_AT operand_at(30)

#define SHAPE(...) \
	(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}
#define V(dtype, ...) view_at(dtype, SHAPE(__VA_ARGS__), 0)

static void put_three(FILE *f, const char *name, const unsigned *n)
{
	fprintf(f, " %s %u", name, n[0]);
	if (n[1] != 1 || n[2] != 1)
		fprintf(f, ",%u", n[1]);
	if (n[2] != 1)
		fprintf(f, ",%u", n[2]);
}

/* The launches of a call on one GPU, a line each; to be freed. *news: one is a first one. */
static char *lines_of(int status, int function, bool *news)
{
	char *lines = NULL, first[256] = "";
	size_t bytes = 0;
	FILE *f = open_memstream(&lines, &bytes);

	if (!f)
		bail("no memory");
	if (fake->complaints(first, sizeof(first)))
		bail("%s: the driver complains: %s", text, first);
	if (status != HZ_OK)
		fprintf(f, "status %d\n", status);
	if (workspace)
		fprintf(f, "workspace %zu\n", workspace);
	for (long i = 0; i < fake->launches(); i++) {
		const struct fakecuda_launch *const l = fake->launch(i);

		*news |= mark(l->kernel, function);
		fprintf(f, "%s", l->kernel);
		put_three(f, "grid", l->grid);
		put_three(f, "block", l->block);
		fprintf(f, " shared %u params %zu", l->shared_bytes, l->params_bytes);
		if (l->cluster)
			fprintf(f, " cluster %u", l->cluster);
		fprintf(f, "%s\n", l->early ? " early" : "");
	}
	fclose(f);
	return lines;
}

#define LINES_MOST 8	/* of a call on a GPU; slabs are launched again and again */

static void put_lines(const char *gpus, const char *lines)
{
	int n = 0;

	for (const char *end; (end = strchr(lines, '\n')); lines = end + 1) {
		if (n++ < LINES_MOST || all)
			fprintf(out, "  %s %.*s\n", gpus, (int)(end - lines), lines);
	}
	if (n > LINES_MOST && !all)
		fprintf(out, "  %s %d more\n", gpus, n - LINES_MOST);
}

/* Makes the call on each GPU. GPUs that launch the same share lines. */
static void each(const char *name, int (*run)(const void *row), const void *row)
{
	struct function *const function = function_of(name);
	const int index = (int)(function - functions);
	char *lines[GPUS];
	bool any = false, news = all;

	for (gpu = 0; gpu < GPUS; gpu++) {
		struct scene *const s = &scenes[gpu];
		int status;

		ctx = s->ctx;
		device = s->device;
		text[0] = '\0';
		operands = 0;
		workspace = 0;
		fake->reset();
		/* Nothing is ahead that a kernel may overlap with. */
		hz_set_stream(ctx, NULL);
		hz_set_workspace(ctx, (void *)WORKSPACE_AT, WORKSPACE_BYTES);
		status = run(row);
		lines[gpu] = lines_of(status, index, &news);
		any |= lines[gpu][0] != '\0';
	}
	if (any) {
		function->calls++;
		add_to(function, text);
	}
	for (int i = 0; i < GPUS && any; i++)
		add_to(function, lines[i]);
	news &= any;
	if (news)
		fprintf(out, "%s%s\n", name, text);
	for (int i = 0; i < GPUS; i++) {
		char gpus[64] = "";

		if (!lines[i])
			continue;
		for (int j = i; j < GPUS; j++) {
			const size_t n = strlen(gpus);

			if (!lines[j] || strcmp(lines[i], lines[j]) != 0)
				continue;
			snprintf(gpus + n, sizeof(gpus) - n, "%s%d", n ? "," : "", sms[j]);
			if (j > i) {
				free(lines[j]);
				lines[j] = NULL;
			}
		}
		if (news)
			put_lines(gpus, lines[i]);
		free(lines[i]);
	}
}

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define EACH(i, array) for (size_t i = 0; i < COUNT(array); i++)

static const int floats[] = {HZ_F32, HZ_F16, HZ_BF16};

/* ---- The rows of calls.def, by other shapes -------------------------------------------------- */

/*
 * sizes: "FROM=TO ..." replaces sizes of the operands' shapes. dtype: that of what is data and no
 * parameter. Without `all` operands that may miss do.
 */
struct other {
	const char *calls;		/* names; "x*": all that begin so */
	const char *sizes;
	int dtype, skew;
	bool all;
};

static int64_t size_of(const char *sizes, int64_t size)
{
	char from[32];
	const char *at;
	const int n = snprintf(from, sizeof(from), "%" PRId64 "=", size);

	for (at = sizes; (at = strstr(at, from)); at += n) {
		if (at == sizes || at[-1] == ' ')
			return strtoll(at + n, NULL, 10);
	}
	return size;
}

/* An operand whose dtype is f32 whatever that of the others is */
static bool is_parameter(const struct call *c, const struct operand *o)
{
	static const char *const names[] = {
		"gamma", "beta", "dgamma", "dbeta", "opts->running_mean", "opts->running_var",
		"opts->saved", "b", "db", "opts->bias",
	};

	if (strncmp(c->name, "mhc_", 4) == 0)
		return o->ndim < 2 || o->shape[o->ndim - 1] != 8;
	EACH(i, names) {
		if (strcmp(c->name, "quat_mul") && strcmp(c->name, "quat_mul_bwd") &&
		    strcmp(c->name, "quat_dot") && strcmp(c->name, "quat_gemm") &&
		    strcmp(names[i], o->name) == 0)
			return true;
	}
	return false;
}

struct pair {
	const struct call *c;
	const struct other *o;
};

static int run_pair(const void *row)
{
	const struct pair *const p = row;
	const struct call *const c = p->c;
	struct scene *const s = &scenes[gpu];
	const hz_tensor *v[CALL_OPERANDS] = {NULL};
	hz_tensor t[CALL_OPERANDS];

	note("%s", p->o->all ? " all" : "");
	for (int i = 0; i < CALL_OPERANDS && c->operand[i].name; i++) {
		const struct operand *const o = &c->operand[i];
		int64_t shape[HZ_MAXDIM];
		int dtype = o->dtype;

		if ((o->flags & MAY_MISS) && !(o->flags & WRITES) && !p->o->all)
			continue;
		if ((o->flags & OBJECT) || (o->flags & RAW)) {
			t[i] = hz_tensor_1d(operand_at(0), HZ_U8, device, 1);
			v[i] = &t[i];
			continue;
		}
		for (int d = 0; d < o->ndim; d++)
			shape[d] = size_of(p->o->sizes, o->shape[d]);
		if (p->o->dtype && !is_parameter(c, o) &&
		    (dtype == HZ_F32 || dtype == HZ_F16 || dtype == HZ_BF16))
			dtype = p->o->dtype;
		t[i] = view_at(dtype, o->ndim, shape, p->o->skew);
		v[i] = &t[i];
	}
	if (c->query) {
		s->ask = true;
		s->bytes = 0;
		if (c->run(s, v) == HZ_OK)
			workspace = s->bytes;
		s->ask = false;
	}
	return c->run(s, v);
}

static bool names_it(const char *calls, const char *name)
{
	const size_t n = strlen(calls);

	return n && calls[n - 1] == '*' ? strncmp(calls, name, n - 1) == 0 :
					  strcmp(calls, name) == 0;
}

static void others(const struct other *o)
{
	for (int i = 0; i < calls_count; i++) {
		const struct pair p = {&calls[i], o};

		if (call_writes(&calls[i]) && names_it(o->calls, calls[i].name) &&
		    strcmp(calls[i].name, "copy") != 0)
			each(calls[i].name, run_pair, &p);
	}
}

static void trace_calls(void)
{
	static const char *const mhc[] = {	/* tokens, streams, channels, m, n C, m + 1 */
		"5=64 8=1024 32=4096", "5=1 8=4096 32=16384", "5=8192 8=64 32=256",
		"5=1024 8=4104 32=16416", "5=113 8=1000 32=4000", "5=3 8=1023 32=4092",
		"5=512 8=7168 32=28672",
		"5=64 4=2 8=1024 24=8 32=2048 25=9", "5=30 4=3 8=1024 24=15 32=3072 25=16",
		"5=64 4=8 8=256 24=80 32=2048 25=81", "5=64 4=1 8=512 24=3 32=512 25=4",
		"5=64 4=5 8=1024 24=35 32=5120 25=36", "5=64 4=6 8=1024 24=48 32=6144 25=49",
		"5=64 4=7 8=1024 24=63 32=7168 25=64", "5=64 4=9 8=64 24=99 32=576 25=100",
		"5=64 4=8 8=33 24=80 32=264 25=81", "5=64 4=2 8=33 24=8 32=66 25=9",
	};
	static const char *const quats[] = {"5=1000", "5=1", "5=100000 9=3", "5=1001 9=100"};
	struct other o = {.calls = "*", .sizes = "", .all = true};

	others(&o);
	o.all = false;
	others(&o);
	o.calls = "mhc_*";
	EACH(i, mhc) {
		EACH(d, floats) {
			for (int all = 0; all < 2; all++) {
				o = (struct other){"mhc_*", mhc[i], floats[d], 0, all};
				/* Most calls with two sizes alone, of 16 bits by one dtype alone */
				if (d == 2 && i > 9 && all)
					continue;
				others(&o);
			}
		}
	}
	o = (struct other){"mhc_*", mhc[0], HZ_BF16, 2, true};
	others(&o);
	EACH(i, quats) {
		static const char *const of[] = {
			"quat_mul", "quat_mul_bwd", "quat_dot", "quat_conj", "quat_axpy",
			"quat_norm", "quat_norm_bwd", "quat_normalize", "quat_normalize_bwd",
			"quat_inverse_bwd", "quat_rotate", "quat_rotate_bwd", "quat_dropout",
			"quat_init",
		};
		EACH(d, floats) {
			EACH(k, of) {
				o = (struct other){of[k], quats[i], floats[d], 0, true};
				others(&o);
				o.skew = 2 * (int)hz_dtype_size(floats[d]);
				if (i == 0)
					others(&o);
			}
		}
	}
}

/* ---- Hadamard transforms, quantization ------------------------------------------------------- */

enum hadamard_call { FORTH, CODES, BACK, CODES_GIVEN, BACK_GIVEN };

struct hadamard_row {
	enum hadamard_call call;
	int x, y;			/* dtypes; y: of codes */
	int64_t rows, n, group;		/* group 0: a row */
	hz_hadamard_opts o;
	bool signs, in_place, columns;	/* columns: a scale for each */
	int64_t stride;			/* of rows of x; 0: n */
};

static int run_hadamard(const void *row)
{
	const struct hadamard_row *const r = row;
	hz_hadamard_opts o = r->o;
	const int64_t pairs = r->y == HZ_S4X2 ? 2 : 1;
	hz_tensor x = V(r->x, r->rows, r->n), y, scale, signs;
	hz_quantize_opts q = {.scales = &scale, .hadamard = &o};

	if (r->stride) {
		x.stride[0] = r->stride;
		note(" rows %" PRId64 " apart", r->stride);
	}
	y = x;
	if (r->in_place)
		note(" in place");
	else
		y = V(r->y, r->rows, r->n / pairs);
	if (r->call != FORTH)
		scale = r->columns ? V(HZ_F32, 1, r->n) :
				     V(HZ_F32, r->rows, r->group ? r->n / r->group : 1);
	if (r->signs) {
		signs = V(HZ_U8, (o.axis ? r->rows : r->n) / 8);
		*(r->call == BACK || r->call == BACK_GIVEN ? &o.post : &o.pre) = &signs;
		note(" signs");
	}
	if (o.block)
		note(" block %" PRId64, o.block);
	if (o.plan)
		note(" plan %d", o.plan);
	if (o.order)
		note(" order %d", o.order);
	if (o.axis)
		note(" columns");
	switch (r->call) {
	case FORTH:
		hz_hadamard_workspace(ctx, &x, &y, &o, &workspace);
		return hz_hadamard(ctx, &x, &y, &o);
	case CODES:
		hz_hadamard_quantize_workspace(ctx, &x, &y, &scale, &o, &workspace);
		return hz_hadamard_quantize(ctx, &x, &y, &scale, &o);
	case BACK:
		hz_dequantize_hadamard_workspace(ctx, &y, &scale, &x, &o, &workspace);
		return hz_dequantize_hadamard(ctx, &y, &scale, &x, &o);
	case CODES_GIVEN:
		hz_quantize_workspace(ctx, &x, &y, &q, &workspace);
		return hz_quantize(ctx, &x, &y, &q);
	default:
		hz_dequantize_workspace(ctx, &y, &x, &q, &workspace);
		return hz_dequantize(ctx, &y, &x, &q);
	}
}

static void hadamard(const struct hadamard_row *r)
{
	static const char *const names[] = {
		[FORTH] = "hadamard", [CODES] = "hadamard_quantize",
		[BACK] = "dequantize_hadamard", [CODES_GIVEN] = "quantize",
		[BACK_GIVEN] = "dequantize",
	};

	each(names[r->call], run_hadamard, r);
}

static void trace_hadamard(void)
{
	static const int orders[] = {12, 20, 28, 36, 60, 156};
	static const int codes[] = {HZ_S8, HZ_S4X2, HZ_E4M3, HZ_U8};
	static const int64_t more_rows[] = {1, 301, 20000};

	EACH(d, floats) {
		const int x = floats[d];

		for (int k = 3; k <= 17; k++) {
			struct hadamard_row r = {.x = x, .y = HZ_F32, .rows = 5, .n = 1 << k,
						 .in_place = true};

			hadamard(&r);
			r.signs = true;
			hadamard(&r);
			EACH(i, more_rows) {
				r.rows = more_rows[i];
				if (k % 3 == 1)
					hadamard(&r);
			}
			r.rows = 5;
			r.signs = r.in_place = false;
			r.y = x == HZ_F32 ? HZ_F16 : HZ_F32;
			hadamard(&r);
			r.y = x;
			r.stride = (1 << k) + (k % 2 ? 8 : 1);
			hadamard(&r);
			r.stride = 0;
			for (int call = CODES; call <= BACK_GIVEN; call++) {
				r.call = call;
				r.rows = 5;
				r.y = HZ_S8;
				hadamard(&r);
				r.rows = 1000;
				r.signs = true;
				hadamard(&r);
				r.signs = false;
				r.group = 128;
				if (k > 7)
					hadamard(&r);
				r.y = HZ_S4X2;
				r.group = k > 5 ? 32 : 0;
				if (call != CODES_GIVEN && call != BACK_GIVEN)
					hadamard(&r);
				r.group = 0;
			}
		}
		/* Columns */
		for (int k = 4; k <= 12; k++) {
			struct hadamard_row r = {.x = x, .y = x, .rows = 2 << k, .n = 104,
						 .o = {.axis = 1, .block = 1 << k}};

			hadamard(&r);
			r.n = 101;
			hadamard(&r);
			r.n = 4096;
			r.signs = true;
			hadamard(&r);
		}
		EACH(m, orders) {
			for (int k = 2; k <= 13; k++) {
				struct hadamard_row r = {
					.x = x, .y = HZ_S8, .rows = 8, .n = (int64_t)orders[m] << k,
					.in_place = true,
					.o = {.plan = HZ_PLAN_TRUE, .order = orders[m]}};

				if (m > 2 && k % 4 != 2)
					continue;
				hadamard(&r);
				r.signs = true;
				hadamard(&r);
				r.in_place = r.signs = false;
				for (int call = CODES; call <= BACK_GIVEN; call++) {
					r.call = call;
					hadamard(&r);
				}
			}
		}
		EACH(c, codes) {
			struct hadamard_row r = {.call = CODES, .x = x, .y = codes[c], .rows = 100,
						 .n = 4096};

			hadamard(&r);
			r.group = 128;
			hadamard(&r);
			r.call = BACK;
			hadamard(&r);
			r.group = 0;
			r.o.block = 128;
			hadamard(&r);
			r.call = CODES;
			hadamard(&r);
			r.o.block = 32;
			hadamard(&r);
			r.call = BACK;
			hadamard(&r);
			r.columns = true;
			r.call = CODES_GIVEN;
			hadamard(&r);
			r.call = BACK_GIVEN;
			hadamard(&r);
		}
		for (int plan = HZ_PLAN_AUTO; plan <= HZ_PLAN_UNIFORM; plan++) {
			for (int n = 80; n < 10000; n = 5 * n) {
				struct hadamard_row r = {.x = x, .y = HZ_F32, .rows = 100, .n = n,
							 .o = {.plan = plan}};
				if (plan == HZ_PLAN_SYLVESTER)
					continue;
				hadamard(&r);
				r.call = CODES_GIVEN;
				r.y = HZ_S8;
				hadamard(&r);
			}
		}
	}
}

struct quantize_row {
	int call;			/* 0: quantize, 1: dequantize, 2: choose_qparams */
	int dtype, skew, zeros;
	int64_t rows, n, scale_rows, scale_n;	/* scale_rows 0: one scale for all */
	bool transposed;
};

static int run_quantize(const void *row)
{
	const struct quantize_row *const r = row;
	hz_tensor x = view_at(r->dtype, SHAPE(r->rows, r->n), r->skew);
	const hz_tensor q = r->call < 2 ? V(HZ_U8, r->rows, r->n) : x;
	hz_tensor scale, zero;
	hz_quantize_opts o = {.scale = 0.5, .zero = 3};

	if (r->transposed) {
		x.stride[0] = 1;
		x.stride[1] = r->rows;
		note(" by columns");
	}
	if (r->scale_rows) {
		scale = V(HZ_F32, r->scale_rows, r->scale_n);
		o = (hz_quantize_opts){.scales = &scale};
		if (r->zeros) {
			zero = V(HZ_U8, r->scale_rows, r->scale_n);
			o.zeros = &zero;
		}
	}
	switch (r->call) {
	case 0:
		hz_quantize_workspace(ctx, &x, &q, &o, &workspace);
		return hz_quantize(ctx, &x, &q, &o);
	case 1:
		hz_dequantize_workspace(ctx, &q, &x, &o, &workspace);
		return hz_dequantize(ctx, &q, &x, &o);
	default:
		hz_choose_qparams_workspace(ctx, &x, &scale, &zero, 0, &workspace);
		return hz_choose_qparams(ctx, &x, &scale, &zero, 0);
	}
}

static void trace_quantize(void)
{
	static const char *const names[] = {"quantize", "dequantize", "choose_qparams"};
	static const int64_t sizes[][2] = {
		{1, 7}, {3, 64}, {4096, 4096}, {16384, 4096}, {65536, 1024}, {4096, 16384},
		{40, 4096}, {300, 4095}, {900, 7}, {128, 40000}, {1000000, 64}, {16384, 4095},
		{1, 1 << 20},
	};

	EACH(d, floats) {
		EACH(i, sizes) {
			const int64_t m = sizes[i][0], n = sizes[i][1];
			const int64_t scales[][2] = {{1, 1}, {m, 1}, {1, n}, {m, n / 64}, {0, 0}};

			for (int call = 0; call < 3; call++) {
				EACH(s, scales) {
					struct quantize_row r = {
						call, floats[d], 0, 1, m, n, scales[s][0],
						scales[s][1], false};

					if ((call == 2 && s == 4) || (s == 3 && n % 64))
						continue;
					each(names[call], run_quantize, &r);
					r.skew = (int)hz_dtype_size(floats[d]);
					if (i == 2)
						each(names[call], run_quantize, &r);
					r.skew = 0;
					r.transposed = true;
					if (i == 2 || i == 7)
						each(names[call], run_quantize, &r);
				}
			}
		}
	}
}

/* ---- Quantized matrices ---------------------------------------------------------------------- */

struct qgemm_row {
	int64_t items, m, n, k;
	int a, b, c;
	bool packed, linear;
};

static int run_qgemm(const void *row)
{
	const struct qgemm_row *const r = row;
	const bool batch = r->items > 1;
	const hz_tensor a = batch ? V(r->a, r->items, r->m, r->k) : V(r->a, r->m, r->k);
	const hz_tensor b = batch && !r->packed ? V(r->b, r->items, r->k, r->n) :
						  V(r->b, r->k, r->n);
	const hz_tensor c = batch ? V(r->c, r->items, r->m, r->n) : V(r->c, r->m, r->n);
	hz_qgemm_opts o = {.a_zero = 3, .multiplier = 1 << 30, .shift = 40};
	hz_packed packed;
	size_t bytes;
	int status;

	if (r->c != HZ_U8 && r->c != HZ_S8)
		o = (hz_qgemm_opts){0};
	if (r->packed) {
		note(" packed");
		status = hz_qgemm_pack_bytes(ctx, &b, &bytes);
		if (status == HZ_OK)
			status = hz_qgemm_pack(ctx, &b, PACKED_AT,
					       bytes, &packed);
		if (status != HZ_OK)
			return status;
		o.packed = &packed;
	}
	if (r->linear) {
		hz_qlinear_workspace(ctx, &a, r->packed ? NULL : &b, &c, &o, &workspace);
		return hz_qlinear(ctx, &a, r->packed ? NULL : &b, &c, &o);
	}
	hz_qgemm_workspace(ctx, &a, r->packed ? NULL : &b, &c, &o, &workspace);
	return hz_qgemm(ctx, &a, r->packed ? NULL : &b, &c, &o);
}

static void trace_qgemm(void)
{
	static const int results[] = {HZ_U8, HZ_S32, HZ_F32, HZ_F16};
	static const int64_t sizes[][3] = {
		{1, 4096, 4096}, {9, 100, 4096}, {32, 64, 48}, {64, 4096, 4096}, {65, 100, 208},
		{1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 4096, 4096}, {512, 4096, 4096},
		{128, 11008, 4096}, {256, 11008, 4096}, {256, 11000, 4090}, {512, 8448, 8192},
		{100, 9008, 129}, {90, 12000, 100}, {300, 4200, 130}, {140, 12000, 200},
		{130, 16496, 70}, {2700, 3000, 260}, {7, 9, 0}, {7, 9, 80000}, {7, 9, 262145},
		{7, 9, 140000}, {100, 9, 80000}, {128, 128, 16384}, {512, 512, 4096},
		{16, 4096, 4096},
		{2, 256, 4096}, {3, 256, 4096}, {4, 256, 4096},
	};

	EACH(i, sizes) {
		EACH(kind, results) {
			struct qgemm_row r = {
				1, sizes[i][0], sizes[i][1], sizes[i][2],
				kind % 2 ? HZ_S8 : HZ_U8, kind == 2 ? HZ_U8 : HZ_S8,
				results[kind],
				false, false};

			each("qgemm", run_qgemm, &r);
			r.packed = true;
			each("qgemm", run_qgemm, &r);
			r.packed = false;
			r.items = 5;
			each("qgemm", run_qgemm, &r);
		}
		EACH(d, floats) {
			struct qgemm_row r = {1, sizes[i][0], sizes[i][1], sizes[i][2], floats[d],
					      HZ_S8, floats[d], true, true};

			each("qlinear", run_qgemm, &r);
			r.packed = false;
			each("qlinear", run_qgemm, &r);
		}
	}
}

/* ---- Quaternions ----------------------------------------------------------------------------- */

/* Elementwise calls of components in planes, and of rows by one row */
struct planes_row {
	int call, dtype;
	int64_t rows, n;
	bool one_a, one_b, planes;
	uint32_t flags;
};

static hz_tensor quats(const struct planes_row *r, int64_t rows)
{
	hz_tensor t = V(r->dtype, rows, r->n, 4);

	if (r->planes) {
		t.stride[2] = rows * r->n;
		t.stride[1] = 1;
		t.stride[0] = r->n;
	}
	return t;
}

static int run_planes(const void *row)
{
	const struct planes_row *const r = row;
	const hz_tensor a = quats(r, r->one_a ? 1 : r->rows), b = quats(r, r->one_b ? 1 : r->rows);
	const hz_tensor y = quats(r, r->rows), da = quats(r, a.shape[0]), db = quats(r, b.shape[0]);

	note("%s flags %u", r->planes ? " planes" : "", r->flags);
	switch (r->call) {
	case 0:
		return hz_quat_mul(ctx, &a, &b, &y, r->flags);
	case 1:
		hz_quat_mul_bwd_workspace(ctx, &y, &a, &b, &da, &db, r->flags, &workspace);
		return hz_quat_mul_bwd(ctx, &y, &a, &b, &da, &db, r->flags);
	case 2:
		return hz_quat_rotate(ctx, &a, &b, &y, r->flags);
	case 3:
		hz_quat_rotate_bwd_workspace(ctx, &y, &a, &b, &da, &db, r->flags, &workspace);
		return hz_quat_rotate_bwd(ctx, &y, &a, &b, &da, &db, r->flags);
	case 4:
		return hz_quat_conj(ctx, &a, &y, r->flags);
	default:
		return hz_quat_inverse_bwd(ctx, &y, &a, &da, r->flags);
	}
}

static void trace_elementwise(void)
{
	static const char *const names[] = {"quat_mul", "quat_mul_bwd", "quat_rotate",
					    "quat_rotate_bwd", "quat_conj", "quat_inverse_bwd"};

	EACH(d, floats) {
		EACH(call, names) {
			for (int i = 0; i < 8; i++) {
				struct planes_row r = {
					(int)call, floats[d], 50, 1024, i % 4 == 1, i % 4 == 2,
					i >= 4, i % 4 == 3 ? HZ_QUAT_XYZW : 0};

				if (call > 3 && i % 4 > 0)
					continue;
				each(names[call], run_planes, &r);
				r.rows = 1;
				r.n = 100;
				if (i == 0 || i == 4)
					each(names[call], run_planes, &r);
			}
			for (int i = 0; i < 2; i++) {	/* one of 100000 */
				const struct planes_row r = {
					(int)call, floats[d], 100000, 1, i == 0, i == 1, false, 0};

				if (call < 4)
					each(names[call], run_planes, &r);
			}
		}
	}
}

struct gemm_row {
	int64_t items, m, n, k;
	int dtype, op_a, method, precision;
	bool packed, by_columns;	/* B and C */
	int skew;
};

static int run_gemm(const void *row)
{
	const struct gemm_row *const r = row;
	const bool turned = r->op_a == HZ_QUAT_T || r->op_a == HZ_QUAT_H;
	const hz_quat_gemm_opts plain = {.method = r->method, .precision = r->precision};
	const hz_tensor a = r->items > 1 ?
			    view_at(r->dtype, SHAPE(r->items, r->m, r->k, 4), r->skew) :
			    view_at(r->dtype, SHAPE(turned ? r->k : r->m, turned ? r->m : r->k, 4),
				    r->skew);
	hz_tensor b = r->items > 1 ? V(r->dtype, r->items, r->k, r->n, 4) :
				       V(r->dtype, r->k, r->n, 4);
	hz_tensor c = r->items > 1 ? V(r->dtype, r->items, r->m, r->n, 4) :
				       V(r->dtype, r->m, r->n, 4);
	hz_quat_gemm_opts o = {.op_a = r->op_a, .method = r->method, .precision = r->precision};
	hz_packed packed;
	size_t bytes;
	int status;

	note(" op %d method %d precision %d", r->op_a, r->method, r->precision);
	if (r->by_columns && r->items <= 1) {
		b.stride[0] = c.stride[0] = 4;
		b.stride[1] = 4 * r->k;
		c.stride[1] = 4 * r->m;
		note(" by columns");
	}
	if (r->packed) {
		note(" packed");
		status = hz_quat_gemm_pack_bytes(ctx, &a, &plain, &bytes);
		if (status == HZ_OK)
			status = hz_quat_gemm_pack(ctx, &a, PACKED_AT,
						   bytes, &packed, &plain);
		if (status != HZ_OK)
			return status;
		o.packed = &packed;
	}
	hz_quat_gemm_workspace(ctx, r->packed ? NULL : &a, &b, &c, &o, &workspace);
	return hz_quat_gemm(ctx, r->packed ? NULL : &a, &b, &c, &o);
}

static void trace_quat_gemm(void)
{
	static const int64_t sizes[][3] = {
		{4096, 1, 4096}, {4096, 2, 4096}, {4096, 3, 4096}, {4096, 8, 4096}, {64, 1, 4096},
		{512, 1, 4096}, {100, 1, 101}, {100, 9, 101}, {1024, 1024, 1024}, {7, 9, 0},
		{1024, 4096, 1024}, {200, 64, 300}, {33, 10, 20}, {4096, 4096, 4096},
		{1000, 160, 1000}, {64, 20000, 64}, {129, 129, 129},
	};

	EACH(d, floats) {
		EACH(i, sizes) {
			const int precisions = floats[d] == HZ_F32 ? 4 : 2;

			for (int p = 0; p < precisions; p++) {
				for (int op = 0; op < 4; op++) {
					struct gemm_row r = {1, sizes[i][0], sizes[i][1],
							     sizes[i][2], floats[d], op,
							     HZ_QUAT_DIRECT, p, false, false, 0};

					if (p && op % 2)
						continue;
					each("quat_gemm", run_gemm, &r);
					r.method = HZ_QUAT_FAST;
					each("quat_gemm", run_gemm, &r);
					r.by_columns = true;
					if (op < 2 && p < 3)
						each("quat_gemm", run_gemm, &r);
					r.by_columns = false;
					r.packed = true;
					if (op == 0 || op == HZ_QUAT_H)
						each("quat_gemm", run_gemm, &r);
					r.packed = false;
					r.skew = (int)hz_dtype_size(floats[d]);
					if (op == 0 && p == 0)
						each("quat_gemm", run_gemm, &r);
					r.skew = 0;
					r.items = 12;
					if (op == 0 && p == 0 && i > 5)
						each("quat_gemm", run_gemm, &r);
				}
			}
		}
	}
}

struct layer_row {
	int dtype;
	int64_t rows, in, out;
	int side, method, precision, activation;
	uint32_t flags;
	int64_t items;			/* 2: gradients in planes */
};

static int run_linear(const void *row)
{
	const struct layer_row *const r = row;
	const hz_tensor x = V(r->dtype, r->rows, r->in, 4), w = V(r->dtype, r->out, r->in, 4);
	const hz_tensor b = V(HZ_F32, r->out, 4), y = V(r->dtype, r->rows, r->out, 4);
	const hz_quat_linear_opts o = {.side = r->side, .method = r->method, .flags = r->flags,
				       .precision = r->precision, .activation = r->activation};

	note(" side %d method %d precision %d activation %d flags %u", r->side, r->method,
	     r->precision, r->activation, r->flags);
	hz_quat_linear_workspace(ctx, &x, &w, &b, &y, &o, &workspace);
	return hz_quat_linear(ctx, &x, &w, &b, &y, &o);
}

static int run_linear_bwd(const void *row)
{
	const struct layer_row *const r = row;
	const hz_tensor x = V(r->dtype, r->rows, r->in, 4), w = V(r->dtype, r->out, r->in, 4);
	const hz_tensor b = V(HZ_F32, r->out, 4);
	hz_tensor y = V(r->dtype, r->rows, r->out, 4);
	const hz_tensor dx = V(r->dtype, r->rows, r->in, 4), dw = V(r->dtype, r->out, r->in, 4);
	const hz_tensor db = V(HZ_F32, r->out, 4);
	const hz_tensor pre = r->activation ? V(r->dtype, r->rows, r->out, 4) : y;
	const hz_quat_linear_opts o = {.side = r->side, .method = r->method, .flags = r->flags,
				       .precision = r->precision, .activation = r->activation,
				       .pre = r->activation ? &pre : NULL};

	if (r->items == 2) {
		y.stride[1] = 1;
		y.stride[2] = r->out;
		note(" planes");
	}
	note(" side %d method %d precision %d activation %d flags %u", r->side, r->method,
	     r->precision, r->activation, r->flags);
	hz_quat_linear_bwd_workspace(ctx, &x, &w, &b, &y, &dx, &dw, &db, &o, &workspace);
	return hz_quat_linear_bwd(ctx, &x, &w, &b, &y, &dx, &dw, &db, &o);
}

static void trace_linear(void)
{
	static const int64_t sizes[][3] = {
		{8192, 4096, 4096}, {4200, 4, 16}, {256, 512, 512}, {1, 512, 512}, {33, 7, 5},
	};

	EACH(d, floats) {
		EACH(i, sizes) {
			for (int side = 0; side < 2; side++) {
				struct layer_row r = {floats[d], sizes[i][0], sizes[i][1],
						      sizes[i][2], side, 0, 0,
						      side ? HZ_ACT_GELU : 0, 0, 1};

				each("quat_linear", run_linear, &r);
				each("quat_linear_bwd", run_linear_bwd, &r);
				r.items = 2;
				r.activation = 0;
				each("quat_linear_bwd", run_linear_bwd, &r);
				r.items = 1;
				r.flags = HZ_QUAT_ROTATION;
				each("quat_linear", run_linear, &r);
				each("quat_linear_bwd", run_linear_bwd, &r);
			}
		}
	}
}

struct conv_row {
	const char *what;
	int64_t images, side, in, taps, out, groups, stride, pad, dilation;
	int dims;			/* spatial dimensions: 1, 2 or 3 */
	int y_dtype;			/* 0: that of x */
	uint32_t flags;
	int precision, method, activation;
	/* Set by the loop */
	int dtype, skew;
};

static hz_tensor pixels(const struct conv_row *r, int64_t side, int64_t channels, int skew)
{
	int64_t shape[6] = {r->images};

	for (int d = 0; d < r->dims; d++)
		shape[1 + d] = side;
	shape[1 + r->dims] = channels;
	shape[2 + r->dims] = 4;
	return view_at(r->dtype, r->dims + 3, shape, skew);
}

static int run_conv(const void *row, bool bwd)
{
	const struct conv_row *const r = row;
	const int64_t dilation = r->dilation ? r->dilation : 1, stride = r->stride ? r->stride : 1;
	const int64_t reach = dilation * (r->taps - 1) + 1, groups = r->groups ? r->groups : 1;
	const int64_t small = (r->side + 2 * r->pad - reach) / stride + 1;
	const int64_t turned_side = (r->side - 1) * stride + reach - 2 * r->pad;
	const bool turned = r->flags & HZ_QUAT_TRANSPOSED;
	const hz_tensor x = pixels(r, r->side, r->in, r->skew);
	const hz_tensor y = pixels(r, turned ? turned_side : small, r->out, 0);
	hz_quat_conv_opts o = {.flags = r->flags, .groups = (int32_t)groups, .method = r->method,
			       .precision = r->precision, .activation = bwd ? 0 : r->activation};
	int64_t shape[6] = {turned ? r->in : r->out};
	hz_tensor w, b, dx, dw, db;

	for (int d = 0; d < r->dims; d++) {
		shape[1 + d] = r->taps;
		o.stride[d] = stride;
		o.pad[d] = r->pad;
		o.dilation[d] = dilation;
	}
	shape[1 + r->dims] = (turned ? r->out : r->in) / groups;
	shape[2 + r->dims] = 4;
	w = view_at(r->dtype, r->dims + 3, shape, 0);
	b = V(HZ_F32, r->out, 4);
	note(" groups %" PRId64 " stride %" PRId64 " pad %" PRId64 " dilation %" PRId64
	     " flags %u precision %d method %d activation %d",
	     groups, stride, r->pad, dilation, r->flags, r->precision, r->method, o.activation);
	if (!bwd) {
		hz_quat_conv_workspace(ctx, &x, &w, &b, &y, &o, &workspace);
		return hz_quat_conv(ctx, &x, &w, &b, &y, &o);
	}
	dx = pixels(r, r->side, r->in, r->skew);
	dw = view_at(r->dtype, r->dims + 3, shape, 0);
	db = V(HZ_F32, r->out, 4);
	hz_quat_conv_bwd_workspace(ctx, &x, &w, &b, &y, &dx, &dw, &db, &o, &workspace);
	return hz_quat_conv_bwd(ctx, &x, &w, &b, &y, &dx, &dw, &db, &o);
}

static int run_conv_forth(const void *row)
{
	return run_conv(row, false);
}

static int run_conv_bwd(const void *row)
{
	return run_conv(row, true);
}

static const struct conv_row convs[] = {
	{.what = "3 x 3", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1},
	{.what = "many channels", .images = 4, .side = 28, .in = 256, .taps = 3, .out = 256,
	 .pad = 1},
	{.what = "more images", .images = 32, .side = 56, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .activation = HZ_ACT_RELU},
	{.what = "usual", .images = 4, .side = 28, .in = 32, .taps = 3, .out = 32, .pad = 1,
	 .activation = HZ_ACT_RELU},
	{.what = "tanh", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .activation = HZ_ACT_TANH},
	{.what = "odd", .images = 32, .side = 56, .in = 30, .taps = 3, .out = 30, .pad = 1},
	{.what = "odd groups", .images = 32, .side = 56, .in = 34, .taps = 1, .out = 34,
	 .groups = 2},
	{.what = "1 x 1", .images = 4, .side = 56, .in = 128, .taps = 1, .out = 256,
	 .precision = HZ_PRECISION_HALF},
	{.what = "1 x 1", .images = 4, .side = 56, .in = 128, .taps = 1, .out = 256},
	{.what = "first layer", .images = 4, .side = 28, .in = 3, .taps = 7, .out = 64, .stride = 2,
	 .pad = 3},
	{.what = "strided", .images = 4, .side = 56, .in = 64, .taps = 3, .out = 128, .stride = 2,
	 .pad = 1},
	{.what = "dilated", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 2,
	 .dilation = 2},
	{.what = "12 groups", .images = 4, .side = 14, .in = 96, .taps = 3, .out = 96, .groups = 12,
	 .pad = 1},
	{.what = "6 groups", .images = 4, .side = 14, .in = 96, .taps = 3, .out = 96, .groups = 6,
	 .pad = 1},
	{.what = "6 groups, one tap", .images = 4, .side = 14, .in = 96, .taps = 1, .out = 96,
	 .groups = 6},
	{.what = "6 groups, 2 x 2", .images = 4, .side = 14, .in = 96, .taps = 2, .out = 24,
	 .groups = 6},
	{.what = "4 groups", .images = 4, .side = 14, .in = 96, .taps = 3, .out = 96, .groups = 4,
	 .pad = 1},
	{.what = "eight to eight", .images = 4, .side = 28, .in = 8, .taps = 3, .out = 8, .pad = 1},
	{.what = "two a group", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64,
	 .groups = 32, .pad = 1},
	{.what = "depthwise", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .groups = 64,
	 .pad = 1},
	{.what = "depthwise 5", .images = 4, .side = 28, .in = 64, .taps = 5, .out = 64,
	 .groups = 64, .pad = 2},
	{.what = "depthwise 7", .images = 4, .side = 28, .in = 64, .taps = 7, .out = 64,
	 .groups = 64, .pad = 3},
	{.what = "depthwise by 2", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64,
	 .groups = 64, .pad = 1, .stride = 2},
	{.what = "three out", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 3, .pad = 1},
	{.what = "two to two", .images = 4, .side = 28, .in = 2, .taps = 3, .out = 2, .pad = 1},
	{.what = "12 x 12 taps", .images = 2, .side = 40, .in = 128, .taps = 12, .out = 128},
	{.what = "65 channels", .images = 8, .side = 40, .in = 130, .taps = 12, .out = 32,
	 .groups = 2},
	{.what = "transposed", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .flags = HZ_QUAT_TRANSPOSED},
	{.what = "transposed by 2", .images = 4, .side = 14, .in = 64, .taps = 4, .out = 32,
	 .stride = 2, .pad = 1, .flags = HZ_QUAT_TRANSPOSED},
	{.what = "16 products", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .method = HZ_QUAT_DIRECT},
	{.what = "8 products", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .method = HZ_QUAT_FAST},
	{.what = "f32", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .precision = HZ_PRECISION_F32},
	{.what = "in parts", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .precision = HZ_PRECISION_SPLIT},
	{.what = "in parts, large", .images = 32, .side = 28, .in = 256, .taps = 3, .out = 256,
	 .pad = 1, .precision = HZ_PRECISION_SPLIT},
	{.what = "tf32", .images = 4, .side = 28, .in = 64, .taps = 3, .out = 64, .pad = 1,
	 .precision = HZ_PRECISION_TF32},
	{.what = "a line", .images = 2, .side = 1000, .in = 32, .taps = 5, .out = 40, .pad = 2,
	 .dims = 1},
	{.what = "a line by 8 products", .images = 2, .side = 1000, .in = 32, .taps = 5, .out = 40,
	 .pad = 2, .dims = 1, .method = HZ_QUAT_FAST},
	{.what = "in space", .images = 2, .side = 12, .in = 32, .taps = 3, .out = 32, .pad = 1,
	 .dims = 3},
	{.what = "one image", .images = 1, .side = 7, .in = 512, .taps = 3, .out = 512, .pad = 1},
	{.what = "few pixels", .images = 1, .side = 7, .in = 512, .taps = 1, .out = 2048},
	{.what = "32 to 32", .images = 16, .side = 28, .in = 32, .taps = 1, .out = 32},
};

static void trace_conv(void)
{
	EACH(d, floats) {
		EACH(i, convs) {
			struct conv_row r = convs[i];

			r.dtype = floats[d];
			if (!r.dims)
				r.dims = 2;
			each("quat_conv", run_conv_forth, &r);
			each("quat_conv_bwd", run_conv_bwd, &r);
			r.skew = (int)hz_dtype_size(r.dtype);
			each("quat_conv", run_conv_forth, &r);
			each("quat_conv_bwd", run_conv_bwd, &r);
		}
	}
}

/* Normalization, pooling */
struct norm_row {
	int dtype, skew;
	int64_t images, side, channels;
	uint32_t flags;
	bool planes, bwd;
	/* Pooling */
	int kind, window, stride, pad;
	int step1;			/* stride of the second dimension, if another */
};

static hz_tensor image(const struct norm_row *r, int64_t side)
{
	hz_tensor t = view_at(r->dtype, SHAPE(r->images, side, side, r->channels, 4), r->skew);

	if (r->planes) {
		t.stride[3] = 1;
		t.stride[4] = r->channels;
	}
	return t;
}

static int run_norm(const void *row)
{
	const struct norm_row *const r = row;
	const hz_tensor x = image(r, r->side), y = image(r, r->side);
	const int whiten = (r->flags & HZ_QUAT_WHITEN) != 0;
	const hz_tensor gamma = whiten ? V(HZ_F32, r->channels, 10) : V(HZ_F32, r->channels);
	const hz_tensor beta = V(HZ_F32, r->channels, 4), mean = V(HZ_F32, r->channels, 4);
	const hz_tensor var = whiten ? V(HZ_F32, r->channels, 10) : V(HZ_F32, r->channels);
	const hz_tensor saved = V(HZ_F32, r->channels, 14);
	hz_quat_batchnorm_opts o = {.flags = r->flags, .running_mean = &mean, .running_var = &var,
				    .saved = &saved};

	note("%s flags %u", r->planes ? " planes" : "", r->flags);
	if (!r->bwd) {
		hz_quat_batchnorm_workspace(ctx, &x, &gamma, &beta, &y, &o, &workspace);
		return hz_quat_batchnorm(ctx, &x, &gamma, &beta, &y, &o);
	}
	o.running_mean = o.running_var = NULL;
	const hz_tensor dx = image(r, r->side), dbeta = V(HZ_F32, r->channels, 4);
	const hz_tensor dgamma = whiten ? V(HZ_F32, r->channels, 10) : V(HZ_F32, r->channels);

	hz_quat_batchnorm_bwd_workspace(ctx, &x, &gamma, &y, &dx, &dgamma, &dbeta, &o, &workspace);
	return hz_quat_batchnorm_bwd(ctx, &x, &gamma, &y, &dx, &dgamma, &dbeta, &o);
}

static int run_pool(const void *row)
{
	const struct norm_row *const r = row;
	const int64_t stride = r->stride ? r->stride : r->window;
	const int64_t small = (r->side + 2 * r->pad - r->window) / stride + 1;
	const hz_quat_pool_opts o = {.kind = r->kind, .window = {r->window, r->window},
				     .stride = {stride, stride}, .pad = {r->pad, r->pad}};
	const hz_tensor x = image(r, r->side), y = image(r, small);
	const hz_tensor index = V(HZ_S32, r->images, small, small, r->channels);
	const hz_tensor *const i = r->kind == HZ_POOL_MAX ? &index : NULL;

	note(" kind %d window %d stride %d pad %d", r->kind, r->window, (int)stride, r->pad);
	return r->bwd ? hz_quat_pool_bwd(ctx, i, &y, &x, &o) : hz_quat_pool(ctx, &x, &y, i, &o);
}

static void trace_layers(void)
{
	static const int windows[][3] = {{2, 2, 0}, {3, 2, 1}, {3, 1, 1}, {3, 3, 0}, {4, 4, 0}};

	EACH(d, floats) {
		for (int bwd = 0; bwd < 2; bwd++) {
			for (int i = 0; i < 8; i++) {
				struct norm_row r = {.dtype = floats[d], .images = 32, .side = 28,
						     .channels = i & 4 ? 5 : 48, .bwd = bwd,
						     .planes = i & 2,
						     .flags = i & 1 ? HZ_QUAT_WHITEN : 0};

				each(bwd ? "quat_batchnorm_bwd" : "quat_batchnorm", run_norm, &r);
				r.images = 1;
				r.side = 2;
				each(bwd ? "quat_batchnorm_bwd" : "quat_batchnorm", run_norm, &r);
			}
			EACH(w, windows) {
				for (int i = 0; i < 4; i++) {
					struct norm_row r = {
						.dtype = floats[d], .images = 2, .side = 28,
						.channels = 16, .bwd = bwd, .window = windows[w][0],
						.stride = windows[w][1], .pad = windows[w][2],
						.kind = i & 1 ? HZ_POOL_AVERAGE : HZ_POOL_MAX,
						.skew = i & 2 ? (int)hz_dtype_size(floats[d]) : 0};

					each(bwd ? "quat_pool_bwd" : "quat_pool", run_pool, &r);
				}
			}
		}
	}
}

/* ---- Lattice codes --------------------------------------------------------------------------- */

static const double basis[] = {1.0, 0.4, 0.1, 1.2};
static const int64_t far[] = {1500, -700, 1100, 300, 0, 0, 0, 0};
static const int64_t far_z[] = {70000};

static const struct kind {
	const char *name;
	hz_lattice_opts o;
} kinds[] = {
	{"Z q=16 M=1", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 1}},
	{"Z q=16 M=2", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 2}},
	{"Z q=16 M=1 /32", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 1, .policy = HZ_LATTICE_GROUP,
			    .group = 32}},
	{"Z q=16 M=2 /32", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 2, .policy = HZ_LATTICE_GROUP,
			    .group = 32}},
	{"Z far", {.kind = HZ_LATTICE_Z, .q = 16, .levels = 1, .offset = far_z}},
	{"Z2 q=4 M=2", {.kind = HZ_LATTICE_Z, .dim = 2, .q = 4, .levels = 2}},
	{"Z4 q=4 M=2", {.kind = HZ_LATTICE_Z, .dim = 4, .q = 4, .levels = 2}},
	{"Z8 q=4 M=1", {.kind = HZ_LATTICE_Z, .dim = 8, .q = 4, .levels = 1}},
	{"Z20 q=4 M=1", {.kind = HZ_LATTICE_Z, .dim = 20, .q = 4, .levels = 1}},
	{"Z5 q=4 M=2", {.kind = HZ_LATTICE_Z, .dim = 5, .q = 4, .levels = 2}},
	{"A2 q=4 M=2", {.kind = HZ_LATTICE_A2, .q = 4, .levels = 2}},
	{"A2 q=16 M=1", {.kind = HZ_LATTICE_A2, .q = 16, .levels = 1}},
	{"A2 q=4 M=2 /64", {.kind = HZ_LATTICE_A2, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
			    .group = 64}},
	{"A2 q=16 M=1 /64", {.kind = HZ_LATTICE_A2, .q = 16, .levels = 1,
			     .policy = HZ_LATTICE_GROUP, .group = 64}},
	{"D3 q=4 M=2", {.kind = HZ_LATTICE_D, .dim = 3, .q = 4, .levels = 2}},
	{"D4 q=4 M=1", {.kind = HZ_LATTICE_D, .q = 4, .levels = 1}},
	{"D4 q=4 M=2", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2}},
	{"D4 q=4 M=2 T", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_T}},
	{"D4 q=4 M=2 T 0.5", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_T,
			      .alpha = 0.5}},
	{"D4 q=4 M=2 /32", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
			    .group = 32}},
	{"D4 q=4 M=2 /16", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
			    .group = 16}},
	{"D4 q=4 M=2 /24", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
			    .group = 24}},
	{"D4 q=4 M=4", {.kind = HZ_LATTICE_D, .q = 4, .levels = 4}},
	{"D4 q=2 M=4", {.kind = HZ_LATTICE_D, .q = 2, .levels = 4}},
	{"D4 q=3 M=3", {.kind = HZ_LATTICE_D, .q = 3, .levels = 3}},
	{"D4 q=6 M=2 /128", {.kind = HZ_LATTICE_D, .q = 6, .levels = 2, .policy = HZ_LATTICE_GROUP,
			     .group = 128}},
	{"D4 q=8 M=2", {.kind = HZ_LATTICE_D, .q = 8, .levels = 2}},
	{"D4 q=12 M=1", {.kind = HZ_LATTICE_D, .q = 12, .levels = 1}},
	{"D4 q=12 M=1 T", {.kind = HZ_LATTICE_D, .q = 12, .levels = 1, .policy = HZ_LATTICE_T}},
	{"D4 far", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .offset = far}},
	{"D8 q=5 M=1", {.kind = HZ_LATTICE_D, .dim = 8, .q = 5, .levels = 1}},
	{"D8 q=4 M=2 clip", {.kind = HZ_LATTICE_D, .dim = 8, .q = 4, .levels = 2,
			     .policy = HZ_LATTICE_CLIP}},
	{"D16 q=4 M=1 T", {.kind = HZ_LATTICE_D, .dim = 16, .q = 4, .levels = 1,
			   .policy = HZ_LATTICE_T}},
	{"E8 q=2 M=1", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 1}},
	{"E8 q=2 M=2", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 2}},
	{"E8 q=2 M=4", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 4}},
	{"E8 q=2 M=4 T", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 4, .policy = HZ_LATTICE_T}},
	{"E8 q=2 M=4 /64", {.kind = HZ_LATTICE_E8, .q = 2, .levels = 4,
			    .policy = HZ_LATTICE_GROUP, .group = 64}},
	{"E8 q=3 M=2", {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2}},
	{"E8 q=3 M=2 T", {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2, .policy = HZ_LATTICE_T}},
	{"E8 q=4 M=1", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 1}},
	{"E8 q=4 M=2", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2}},
	{"E8 q=4 M=2 T", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .policy = HZ_LATTICE_T}},
	{"E8 q=4 M=2 /32", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .policy = HZ_LATTICE_GROUP,
			    .group = 32}},
	{"E8 q=4 M=3", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 3}},
	{"E8 q=16 M=1", {.kind = HZ_LATTICE_E8, .q = 16, .levels = 1}},
	{"E8 q=16 M=1 T", {.kind = HZ_LATTICE_E8, .q = 16, .levels = 1, .policy = HZ_LATTICE_T}},
	{"E8 q=14 M=1 /32", {.kind = HZ_LATTICE_E8, .q = 14, .levels = 1,
			     .policy = HZ_LATTICE_GROUP, .group = 32}},
	{"basis q=4 M=2", {.kind = HZ_LATTICE_BASIS, .dim = 2, .q = 4, .levels = 2,
			   .basis = basis}},
};

/* A quantizer for each GPU, opened once; products through tables, or by what is fastest */
struct opened {
	hz_lattice *lattice;
	hz_vlut *vlut, *table, *both, *table_both;
	hz_lattice_info info;
};

static struct opened opened[GPUS][COUNT(kinds)];

/* NULL where there is none: some have no tables */
static hz_vlut *vlut_of(hz_context *c, const hz_lattice *w, const hz_lattice *x, int route)
{
	const hz_vlut_opts o = {.route = route};
	hz_vlut *v = NULL;

	return hz_vlut_open(c, &v, w, x, &o) == HZ_OK ? v : NULL;
}

static void open_kinds(void)
{
	for (int g = 0; g < GPUS; g++) {
		hz_context *const c = scenes[g].ctx;

		EACH(i, kinds) {
			struct opened *const o = &opened[g][i];
			hz_lattice *l;

			if (hz_lattice_open(c, &l, &kinds[i].o) != HZ_OK)
				bail("%s: %s", kinds[i].name, hz_errmsg(c));
			hz_lattice_get_info(l, &o->info);
			o->lattice = l;
			o->vlut = vlut_of(c, l, NULL, HZ_VLUT_AUTO);
			o->table = vlut_of(c, l, NULL, HZ_VLUT_TABLE);
			o->both = vlut_of(c, l, l, HZ_VLUT_AUTO);
			/* A table of the products of all pairs: of few leaders */
			if (o->info.level_max <= 256)
				o->table_both = vlut_of(c, l, l, HZ_VLUT_TABLE);
		}
	}
}

static void close_kinds(void)
{
	for (int g = 0; g < GPUS; g++) {
		EACH(i, kinds) {
			hz_vlut_close(opened[g][i].vlut);
			hz_vlut_close(opened[g][i].table);
			hz_vlut_close(opened[g][i].both);
			hz_vlut_close(opened[g][i].table_both);
			hz_lattice_close(opened[g][i].lattice);
		}
	}
}

struct lattice_row {
	size_t kind;
	int dtype, skew, to, pack;
	int64_t rows, blocks, gap;
	bool decode, count;
};

static int run_lattice(const void *row)
{
	const struct lattice_row *const r = row;
	const struct opened *const l = &opened[gpu][r->kind];
	const hz_lattice_code_opts o = {.to = r->to, .pack = r->pack};
	const int64_t n = r->blocks * l->info.dim;
	hz_tensor x, c, t, counts;

	note(" %s", kinds[r->kind].name);
	x = r->to == HZ_LATTICE_POINTS ? V(HZ_S8, r->rows, r->blocks, l->info.embed) :
					 view_at(r->dtype, SHAPE(r->rows, n), r->skew);
	if (r->gap) {
		x.stride[0] += r->gap;
		note(" gap %" PRId64, r->gap);
	}
	c = r->pack == HZ_LATTICE_LIMBS ? V(HZ_U32, r->rows, r->blocks, l->info.limbs) :
	    r->pack == HZ_LATTICE_FULL64 ? V(HZ_U64, r->rows, r->blocks) :
	    V(l->info.level_dtype ? l->info.level_dtype : HZ_U32, r->rows, r->blocks,
	      kinds[r->kind].o.levels);
	if (l->info.scales)
		t = V(HZ_U8, r->rows, l->info.group ? (n + l->info.group - 1) / l->info.group :
						      r->blocks);
	if (r->count)
		counts = V(HZ_S64, 2);
	if (r->decode) {
		hz_lattice_decode_workspace(ctx, l->lattice, &c, l->info.scales ? &t : NULL, &x, &o,
					    &workspace);
		return hz_lattice_decode(ctx, l->lattice, &c, l->info.scales ? &t : NULL, &x, &o);
	}
	hz_lattice_encode_workspace(ctx, l->lattice, &x, &c, l->info.scales ? &t : NULL, &o,
				    &workspace);
	return hz_lattice_encode(ctx, l->lattice, &x, &c, l->info.scales ? &t : NULL,
				 r->count ? &counts : NULL, &o);
}

static int run_repack(const void *row)
{
	const struct lattice_row *const r = row;
	const struct opened *const l = &opened[gpu][r->kind];
	const hz_tensor full = V(HZ_U64, r->rows, r->blocks);
	const hz_tensor limbs = V(HZ_U32, r->rows, r->blocks, l->info.limbs);

	note(" %s", kinds[r->kind].name);
	return hz_lattice_repack(ctx, l->lattice, &limbs, HZ_LATTICE_LIMBS, &full,
				 HZ_LATTICE_FULL64);
}

static void trace_lattice(void)
{
	static const char *const names[] = {"lattice_encode", "lattice_decode"};

	EACH(i, kinds) {
		EACH(d, floats) {
			for (int decode = 0; decode < 2; decode++) {
				const char *const name = names[decode];
				struct lattice_row r = {.kind = i, .dtype = floats[d], .rows = 4,
							.blocks = 120, .decode = decode};

				each(name, run_lattice, &r);
				r.skew = (int)hz_dtype_size(floats[d]);
				if (d != 1)
					each(name, run_lattice, &r);
				r.skew = 0;
				r.gap = 8;
				if (d == 1)
					each(name, run_lattice, &r);
				r.gap = 0;
				r.rows = 4096;
				r.count = true;
				if (d == 2)
					each(name, run_lattice, &r);
				r.pack = HZ_LATTICE_LIMBS;
				if (d == 0)
					each(name, run_lattice, &r);
				r.pack = HZ_LATTICE_FULL64;
				if (d == 0 && opened[0][i].info.full64)
					each(name, run_lattice, &r);
			}
		}
		const struct lattice_row points = {.kind = i, .rows = 4, .blocks = 120,
						   .decode = true, .to = HZ_LATTICE_POINTS};

		each("lattice_decode", run_lattice, &points);
		if (opened[0][i].info.full64)
			each("lattice_repack", run_repack, &points);
	}
}

struct vlut_row {
	size_t kind;
	int x_dtype, y_dtype, levels;
	bool table, packed, x_columns;
	int64_t rows, k, batch, step;
};

static hz_coded coded_of(const struct vlut_row *r, int64_t rows, hz_tensor *t)
{
	const struct opened *const l = &opened[gpu][r->kind];
	const int64_t blocks = (r->k + l->info.dim - 1) / l->info.dim;
	hz_coded w = {.k = r->k, .levels = r->levels};

	w.codes = V(l->info.level_dtype ? l->info.level_dtype : HZ_U32, rows, blocks,
		    kinds[r->kind].o.levels);
	w.codes.stride[0] += r->step;
	if (l->info.scales) {
		*t = V(HZ_U8, rows, l->info.group ? (r->k + l->info.group - 1) / l->info.group :
						    blocks);
		w.t = t;
	}
	return w;
}

static int run_vlut(const void *row)
{
	const struct vlut_row *const r = row;
	const struct opened *const l = &opened[gpu][r->kind];
	const hz_vlut *const v = r->table ? l->table : l->vlut;
	hz_tensor t, x, y;
	hz_coded w;
	int status;

	note(" %s%s%s%s", kinds[r->kind].name, r->table ? " table" : "", r->packed ? " packed" : "",
	     r->levels ? " coarser" : "");
	if (r->step)
		note(" rows %" PRId64 " further", r->step);
	if (!v) {
		text[0] = '\0';
		return HZ_OK;
	}
	w = coded_of(r, r->rows, &t);
	if (r->packed) {
		w.levels = 0;
		status = hz_vlut_pack(ctx, v, &w, PACKED_AT);
		if (status != HZ_OK)
			return status;
		w = (hz_coded){.rows = r->rows, .k = r->k, .levels = r->levels,
			       .packed = PACKED_AT};
	}
	x = V(r->x_dtype, r->k, r->batch);
	if (r->x_columns) {
		x.stride[0] = 1;
		x.stride[1] = (r->k + 7) / 8 * 8;
		note(" by columns");
	}
	y = V(r->y_dtype ? r->y_dtype : HZ_F32, r->rows, r->batch);
	hz_vlut_gemm_workspace(ctx, v, &w, &x, &y, &workspace);
	return hz_vlut_gemm(ctx, v, &w, &x, &y);
}

static int run_vlut2(const void *row)
{
	const struct vlut_row *const r = row;
	const struct opened *const l = &opened[gpu][r->kind];
	const hz_vlut *const v = r->table ? l->table_both : l->both;
	hz_tensor t, u, y;
	hz_coded w, x;
	int status;

	note(" %s%s%s", kinds[r->kind].name, r->table ? " table" : "", r->packed ? " packed" : "");
	if (!v) {
		text[0] = '\0';
		return HZ_OK;
	}
	w = coded_of(r, r->rows, &t);
	x = coded_of(r, r->batch, &u);
	if (r->packed) {
		status = hz_vlut_pack(ctx, v, &w, PACKED_AT);
		if (status != HZ_OK)
			return status;
		w = (hz_coded){.rows = r->rows, .k = r->k,
			       .packed = PACKED_AT};
	}
	y = V(r->y_dtype ? r->y_dtype : HZ_F32, r->rows, r->batch);
	hz_vlut_gemm2_workspace(ctx, v, &w, &x, &y, &workspace);
	return hz_vlut_gemm2(ctx, v, &w, &x, &y);
}

static void trace_vlut(void)
{
	static const int64_t sizes[][3] = {	/* rows, k, batch */
		{4096, 3840, 1}, {4096, 3840, 8}, {640, 960, 3}, {4096, 3840, 32}, {60, 960, 1},
		{640, 960, 16}, {640, 1920, 200}, {16384, 960, 64}, {20000, 960, 2},
	};
	static const int64_t packed[][3] = {
		{64, 1008, 1}, {8192, 1008, 1}, {20000, 1008, 1}, {2000, 1008, 8}, {8192, 1008, 8},
		{20000, 1008, 8}, {4096, 1008, 32}, {11008, 1008, 32}, {11008, 1008, 16},
		{16384, 1008, 32}, {4096, 1008, 64}, {16384, 1008, 64}, {11008, 1008, 64},
		{2048, 1008, 128}, {16384, 1008, 128}, {4096, 1008, 256}, {11008, 1008, 256},
		{4352, 1288, 256}, {4249, 2600, 200}, {8192, 2048, 24}, {4096, 1008, 33},
		{4096, 8192, 2}, {640, 40968, 1}, {64, 1008, 20}, {4096, 4096, 16},
		{16384, 1008, 16}, {8192, 8192, 16}, {640, 1024, 5}, {640, 1024, 9},
		{8192, 16384, 9},
	};
	static const int x_dtypes[] = {HZ_F16, HZ_F32, HZ_BF16, HZ_S8};

	EACH(i, kinds) {
		EACH(s, sizes) {
			EACH(d, x_dtypes) {
				struct vlut_row r = {
					.kind = i, .x_dtype = x_dtypes[d],
					.y_dtype = x_dtypes[d] == HZ_S8 ? HZ_S32 : HZ_F32,
					.rows = sizes[s][0], .k = sizes[s][1],
					.batch = sizes[s][2]};

				/* Of k's that no block divides, and of dtypes beside f16, some */
				if (d > 0 && s != 0 && s != 2 && s != 5)
					continue;
				each("vlut_gemm", run_vlut, &r);
				r.table = true;
				if (s == 2 && d != 2)
					each("vlut_gemm", run_vlut, &r);
				r.table = false;
				r.step = 8;
				if (s == 2 && d == 0)
					each("vlut_gemm", run_vlut, &r);
				r.step = 0;
				r.levels = 1;
				if (s == 2 && d == 0)
					each("vlut_gemm", run_vlut, &r);
				r.levels = 0;
				r.packed = true;
				if (s == 2)
					each("vlut_gemm", run_vlut, &r);
			}
		}
		for (int n = 0; n < 6; n++) {
			const struct vlut_row r = {.kind = i, .rows = 640, .k = 1920,
						   .batch = n % 2 ? 600 : 100, .packed = n / 2 == 1,
						   .table = n / 2 == 2,
						   .y_dtype = n % 2 ? HZ_F32 : HZ_S32};

			each("vlut_gemm2", run_vlut2, &r);
		}
		if (strcmp(kinds[i].name, "D4 q=4 M=2") && strcmp(kinds[i].name, "E8 q=4 M=2"))
			continue;
		EACH(s, packed) {
			EACH(d, x_dtypes) {
				struct vlut_row r = {
					.kind = i, .x_dtype = x_dtypes[d], .packed = true,
					.y_dtype = x_dtypes[d] == HZ_S8 ? HZ_S32 : HZ_F32,
					.rows = packed[s][0], .k = packed[s][1],
					.batch = packed[s][2]};

				each("vlut_gemm", run_vlut, &r);
				r.x_columns = true;
				if (d == 0 && r.batch < 9)
					each("vlut_gemm", run_vlut, &r);
			}
		}
	}
}

/* ---- Hyper-connections, where options choose ------------------------------------------------- */

struct mhc_row {
	int64_t tokens, groups, n, channels;
	int dtype, preset;
	bool chain;
};

static int run_mhc_pre(const void *row)
{
	const struct mhc_row *const r = row;
	const hz_mhc_opts opts = hz_mhc_preset(r->preset);
	const int64_t m = hz_mhc_rows((int)r->n, &opts);
	const hz_tensor x = V(r->dtype, r->tokens, r->n, r->channels);
	const hz_tensor phi = V(HZ_F32, m, r->n * r->channels), alpha = V(HZ_F32, 3);
	const hz_tensor bias = V(HZ_F32, m), p = V(HZ_F32, r->groups, r->n);
	const hz_tensor q = V(HZ_F32, r->groups, r->n), a = V(HZ_F32, r->groups, r->n, r->n);
	const hz_tensor u = V(r->dtype, r->tokens, r->channels);

	note(" preset %d", r->preset);
	hz_mhc_pre_workspace(ctx, &x, &phi, &alpha, &bias, &p, &q, &a, &u, &opts, &workspace);
	return hz_mhc_pre(ctx, &x, &phi, &alpha, &bias, &p, &q, &a, &u, &opts);
}

static int run_mhc_pre_bwd(const void *row)
{
	const struct mhc_row *const r = row;
	const hz_mhc_opts opts = hz_mhc_preset(r->preset);
	const int64_t m = hz_mhc_rows((int)r->n, &opts);
	const hz_tensor x = V(r->dtype, r->tokens, r->n, r->channels);
	const hz_tensor phi = V(HZ_F32, m, r->n * r->channels), alpha = V(HZ_F32, 3);
	const hz_tensor bias = V(HZ_F32, m), dq = V(HZ_F32, r->groups, r->n);
	const hz_tensor du = V(r->dtype, r->tokens, r->channels), dx = x, dphi = phi, dy = x;
	hz_mhc_grads g = {.du = &du, .dq = &dq, .dy = &dy, .dx = &dx, .dphi = &dphi};
	hz_tensor *const moved[] = {(hz_tensor *)&dx, (hz_tensor *)&dphi, (hz_tensor *)&dy};

	for (int i = 0; i < 3; i++)
		moved[i]->data = operand_at(20 + i);
	note(" preset %d", r->preset);
	hz_mhc_pre_bwd_workspace(ctx, &x, &phi, &alpha, &bias, &g, &opts, &workspace);
	return hz_mhc_pre_bwd(ctx, &x, &phi, &alpha, &bias, &g, &opts);
}

static int run_mhc_chain(const void *row)
{
	const struct mhc_row *const r = row;
	hz_mhc_block block[3];
	const hz_tensor x = V(r->dtype, r->tokens, r->n, r->channels);

	for (int i = 0; i < 3; i++)
		block[i] = (hz_mhc_block){
			.p = V(HZ_F32, r->tokens, r->n), .q = V(HZ_F32, r->tokens, r->n),
			.a = V(HZ_F32, r->tokens, r->n, r->n),
			.f = V(r->dtype, r->tokens, r->channels),
			.u = V(r->dtype, r->tokens, r->channels),
			.y = V(r->dtype, r->tokens, r->n, r->channels)};
	text[0] = '\0';
	note(" %s[%" PRId64 ",%" PRId64 ",%" PRId64 "] three layers", hz_dtype_name(r->dtype),
	     r->tokens, r->n, r->channels);
	return hz_mhc_recompute(ctx, &x, 3, block);
}

static int run_mhc_sinkhorn(const void *row)
{
	const struct mhc_row *const r = row;
	const hz_mhc_opts opts = hz_mhc_preset(r->preset);
	const hz_tensor m = V(HZ_F32, r->tokens, r->n, r->n), p = V(HZ_F32, r->tokens, r->n, r->n);

	note(" preset %d", r->preset);
	return hz_mhc_sinkhorn(ctx, &m, &p, &opts);
}

static void trace_mhc(void)
{
	static const int64_t sizes[][3] = {	/* tokens, groups, channels */
		{64, 64, 1024}, {64, 2, 1024}, {8192, 8192, 64}, {113, 113, 1024}, {30, 3, 40},
		{2048, 2048, 4096}, {1, 1, 33},
	};

	EACH(d, floats) {
		EACH(i, sizes) {
			for (int n = 1; n <= 9; n++) {
				for (int preset = 0; preset <= HZ_MHC_LITE_PRESET; preset++) {
					const struct mhc_row r = {sizes[i][0], sizes[i][1], n,
								  sizes[i][2], floats[d], preset,
								  false};
					const bool lite = preset == HZ_MHC_LITE_PRESET;

					if ((preset && n % 4) || (lite && n > 4) ||
					    (i > 1 && preset > 2))
						continue;
					each("mhc_pre", run_mhc_pre, &r);
					each("mhc_pre_bwd", run_mhc_pre_bwd, &r);
					if (!preset && i < 2)
						each("mhc_recompute", run_mhc_chain, &r);
					if (d == 0 && i == 0)
						each("mhc_sinkhorn", run_mhc_sinkhorn, &r);
				}
			}
		}
	}
}

/* ---- Everything ------------------------------------------------------------------------------ */

static void make_trace(void)
{
	setenv("FAKECUDA_SM", "80,90,100,120", 1);
	setenv("FAKECUDA_DEVICES", "4", 1);
	setenv("FAKECUDA_NOWHERE", "1", 1);
	fake = fakecuda_load();
	if (!fake)
		skip_all("no stand-in driver");
	out = open_memstream(&trace, &trace_bytes);
	if (!out)
		bail("no memory");
	for (int g = 0; g < GPUS; g++) {
		const hz_options o = {.device = HZ_CUDA + g, .threads = 1};

		scene_open(&scenes[g], &o);
	}
	open_kinds();
	trace_calls();
	trace_hadamard();
	trace_quantize();
	trace_qgemm();
	trace_elementwise();
	trace_quat_gemm();
	trace_linear();
	trace_conv();
	trace_layers();
	trace_lattice();
	trace_vlut();
	trace_mhc();
	for (int i = 0; i < functions_count; i++)
		fprintf(out, "= %s: %d calls, %016" PRIx64 "\n", functions[i].name,
			functions[i].calls, functions[i].sum);
	close_kinds();
	for (int g = 0; g < GPUS; g++)
		scene_close(&scenes[g]);
	fclose(out);
}

/* How many kernels no call has launched; their names go to f. */
static int unreached(FILE *f)
{
	int count = 0;

	for (int k = 0; k < HZI_KERNELS; k++) {
		if (seen[k].gpus || strcmp(kernels[k].image, "tools_peak") == 0)
			continue;
		count++;
		if (f)
			fprintf(f, "never launched: %s: %s\n", kernels[k].image, kernels[k].name);
	}
	return count;
}

static char *read_golden(void)
{
	const char *const top = getenv("top_srcdir");
	char path[4096];
	char *data;
	long bytes;
	FILE *f;

	snprintf(path, sizeof(path), "%s/t/core/launches.golden", top ? top : ".");
	f = fopen(path, "r");
	if (!f)
		bail("%s cannot be read", path);
	fseek(f, 0, SEEK_END);
	bytes = ftell(f);
	rewind(f);
	data = calloc(1, (size_t)bytes + 1);
	if (!data || fread(data, 1, (size_t)bytes, f) != (size_t)bytes)
		bail("%s cannot be read", path);
	fclose(f);
	return data;
}

#define SHOWN 12	/* lines of a difference */

/* The first lines that differ, below the call that they are of */
static void show(const char *golden)
{
	const char *a = golden, *b = trace, *call = trace;
	int line = 1;

	for (; *a && *b; line++) {
		const size_t n = strcspn(a, "\n") + 1, m = strcspn(b, "\n") + 1;

		if (n != m || memcmp(a, b, n) != 0)
			break;
		if (*b != ' ')
			call = b;
		a += n;
		b += m;
	}
	diag("line %d, in the call: %.*s", line, (int)strcspn(call, "\n"), call);
	for (int i = 0; i < SHOWN && *a; i++, a += strcspn(a, "\n") + 1)
		diag("golden: %.*s", (int)strcspn(a, "\n"), a);
	for (int i = 0; i < SHOWN && *b; i++, b += strcspn(b, "\n") + 1)
		diag("now:    %.*s", (int)strcspn(b, "\n"), b);
	diag("all launches: t/core/launches --all; if that is what is wanted: make launches");
}

int main(int argc, char **argv)
{
	const bool print = argc == 2 && strcmp(argv[1], "--print") == 0;
	char *golden;

	if (!HZ_CUDA_90A)
		skip_all("the trace is that of builds with code for sm_90a");
	all = argc == 2 && strcmp(argv[1], "--all") == 0;
	make_trace();
	if (print || all) {
		fputs(trace, stdout);
		fprintf(stderr, "kernels that no call launches: %d\n", unreached(stderr));
		return 0;
	}
	golden = read_golden();
	if (!ok(strcmp(golden, trace) == 0, "calls launch what t/core/launches.golden says"))
		show(golden);
	diag("%d kernels are launched by none of these calls", unreached(NULL));
	free(golden);
	free(trace);
	return done_testing();
}

#endif
