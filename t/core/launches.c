/*
 * launches.c - a golden trace: which kernels each call launches on which GPU, and how
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Makes thousands of calls on the stand-in driver, for GPUs of compute capability 8.0, 9.0, 10.0
 * and 12.0, and compares every launch with t/core/launches.golden: kernel, grid, block, cluster,
 * dynamic shared memory, parameter bytes. A change that keeps all routing leaves that file alone; a
 * renamed kernel changes its name there and the checksums. t/<family>/launches.c make the calls.
 *
 *	t/core/launches			compares with t/core/launches.golden
 *	t/core/launches --print		writes that file to stdout, and the kernels that no call
 *					launches to stderr
 *	t/core/launches --all		writes the launches of all calls
 *	make launches			writes t/core/launches.golden
 *
 * A call has a line, "call operands and options", and below it one line per launch, in order, which
 * begins with the compute capabilities it applies to:
 *
 *	  80,90 KERNEL grid X,Y,Z block X,Y,Z shared BYTES params BYTES [cluster N] [cooperative] [early]
 *
 * Trailing ones of grid and block are left out. "params 0" means parameters passed by address, and
 * "early" programmatic dependent launch. The workspace that the call asks for, and a status other
 * than 0, precede the launches. The golden file contains a call only if a function or a GPU
 * launches a kernel there for the first time. It ends with a checksum per function over the lines
 * of all its calls; where only a checksum differs, compare --all of two builds.
 */
#include <config.h>

#include "t/core/launches.h"

#include "t/core/cuda_calls.h"
#include "gpu/runtime/cuda.h"

#if HZ_HAVE_CUDA

#define OPERANDS_AT ((uintptr_t)1 << 44)
#define OPERAND_BYTES ((uintptr_t)1 << 36)	/* between the addresses of two operands */
#define WORKSPACE_AT ((uintptr_t)1 << 46)
#define WORKSPACE_BYTES ((size_t)1 << 40)

static const int sms[GPUS] = {80, 90, 100, 120};

hz_context *ctx;
int device, gpu;
size_t workspace;
struct scene scenes[GPUS];

static char text[2048];		/* operands and options of the call */
static int operands;
static FILE *out;		/* writes `traced` */
static char *traced;
static size_t traced_bytes;
static bool all;		/* --all: write every call */

/* ---- Recording ------------------------------------------------------------------------------- */

/* What has launched a kernel: a bit for each GPU, and a bit for each function */
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

/* The functions called, each with a checksum of the lines of its calls */
static struct function {
	const char *name;
	int calls;
	uint64_t sum;
} functions[128];
static int functions_count;

static struct function *function_of(const char *name)
{
	struct function *f = functions;

	while (f < functions + functions_count && strcmp(f->name, name) != 0)
		f++;
	if (f == functions + functions_count) {
		if (functions_count == 128)
			bail("more than 128 functions");
		functions_count++;
		*f = (struct function){.name = name, .sum = 14695981039346656037u};
	}
	return f;
}

/* Adds s to the checksum: FNV-1a. */
static void checksum(struct function *f, const char *s)
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

void note(const char *format, ...)
{
	const size_t n = strlen(text);
	va_list ap;

	va_start(ap, format);
	vsnprintf(text + n, sizeof(text) - n, format, ap);
	va_end(ap);
}

void note_clear(void)
{
	text[0] = '\0';
}

char *operand_at(int i)
{
	return (char *)(OPERANDS_AT + (uintptr_t)i * OPERAND_BYTES);
}

hz_tensor view_at(int dtype, int ndim, const int64_t *shape, int skew)
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

static void put_three(FILE *f, const char *name, const unsigned *n)
{
	fprintf(f, " %s %u", name, n[0]);
	if (n[1] != 1 || n[2] != 1)
		fprintf(f, ",%u", n[1]);
	if (n[2] != 1)
		fprintf(f, ",%u", n[2]);
}

/* The launches of a call on one GPU, one per line; the caller frees them. Sets *news if one of them
 * is a first. */
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
		fprintf(f, "%s%s\n", l->cooperative ? " cooperative" : "",
			l->early ? " early" : "");
	}
	fclose(f);
	return lines;
}

#define LINES_MOST 8	/* per call and GPU: a loop over slabs launches the same again and again */

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

/* GPUs with the same launches share lines. */
void trace(const char *name, int (*run)(const void *row), const void *row)
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
		note_clear();
		operands = 0;
		workspace = 0;
		fake->reset();
		/* No earlier launch in the stream that a kernel might overlap with */
		hz_set_stream(ctx, NULL);
		hz_set_workspace(ctx, (void *)WORKSPACE_AT, WORKSPACE_BYTES);
		status = run(row);
		lines[gpu] = lines_of(status, index, &news);
		any |= lines[gpu][0] != '\0';
	}
	if (any) {
		function->calls++;
		checksum(function, text);
	}
	for (int i = 0; i < GPUS && any; i++)
		checksum(function, lines[i]);
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

/* ---- The trace ------------------------------------------------------------------------------- */

static void make_trace(void)
{
	setenv("FAKECUDA_SM", "80,90,100,120", 1);
	setenv("FAKECUDA_DEVICES", "4", 1);
	setenv("FAKECUDA_NOWHERE", "1", 1);
	fake = fakecuda_load();
	if (!fake)
		skip_all("no stand-in driver");
	out = open_memstream(&traced, &traced_bytes);
	if (!out)
		bail("no memory");
	for (int g = 0; g < GPUS; g++) {
		const hz_options o = {.device = HZ_CUDA + g, .threads = 1};

		scene_open(&scenes[g], &o);
	}
	quantizers_open();
	trace_calls();
	trace_hadamard();
	trace_quantize();
	trace_qgemm();
	trace_quat();
	trace_quat_gemm();
	trace_quat_linear();
	trace_quat_conv();
	trace_quat_layer();
	trace_lattice();
	trace_vlut();
	trace_linear();
	trace_mhc();
	for (int i = 0; i < functions_count; i++)
		fprintf(out, "= %s: %d calls, %016" PRIx64 "\n", functions[i].name,
			functions[i].calls, functions[i].sum);
	quantizers_close();
	for (int g = 0; g < GPUS; g++)
		scene_close(&scenes[g]);
	fclose(out);
}

/* The number of kernels that no call has launched; writes their names to f. */
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

#define SHOWN 12	/* lines of each side */

/* Shows the first lines that differ, below their call. */
static void show(const char *golden)
{
	const char *a = golden, *b = traced, *call = traced;
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
		fputs(traced, stdout);
		fprintf(stderr, "kernels that no call launches: %d\n", unreached(stderr));
		return 0;
	}
	golden = read_golden();
	if (!ok(strcmp(golden, traced) == 0, "calls launch what t/core/launches.golden says"))
		show(golden);
	diag("%d kernels are launched by none of these calls", unreached(NULL));
	free(golden);
	free(traced);
	return done_testing();
}

#endif
