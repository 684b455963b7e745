/*
 * info.c - hurwitz info: this machine and this library, for reports
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdlib.h>
#include <string.h>

#include "gpu/runtime/cuda.h"
#include "lib/core/route.h"
#include "tools/core/tool.h"

static const struct primitive {
	const char *name, *dtypes, *summary;
} primitives[] = {
#define HZ_OP(name, family, dtypes, summary) {#name, dtypes, summary},
#include "lib/core/ops.def"
};

#define PRIMITIVES (sizeof(primitives) / sizeof(*primitives))

/* Whether a primitive is the backward pass of the one before it; the two share a line. */
static bool is_backward(size_t i)
{
	const size_t n = i > 0 ? strlen(primitives[i - 1].name) : 0;

	return n > 0 && strncmp(primitives[i].name, primitives[i - 1].name, n) == 0 &&
	       strcmp(primitives[i].name + n, "_bwd") == 0;
}

bool is_part(const char *summary)
{
	return strncmp(summary, "part of others", 14) == 0;
}

struct facts {
	hz_context *cpu, *gpu;
	hz_info cpu_info, gpu_info;
	char gpu_reason[256];		/* why there is no GPU context, or "" */
	char code_reason[256];		/* why device code cannot be loaded, or "" */
	const char *used;		/* "cpu" or "cuda": what HZ_AUTO opens */
	char used_reason[256];		/* why it opens nothing, or "" */
};

static int gather(struct facts *f)
{
	const hz_options gpu = {.device = HZ_CUDA};
	hz_context *ctx;
	int status = open_context(&f->cpu, HZ_CPU, 0, HZ_ISA_AUTO);

	if (status)
		return status;
	hz_device_info(f->cpu, &f->cpu_info);
	if (hz_open(&f->gpu, &gpu) != HZ_OK)
		snprintf(f->gpu_reason, sizeof(f->gpu_reason), "%s", open_reason());
	else if (hz_prepare(f->gpu) != HZ_OK)
		snprintf(f->code_reason, sizeof(f->code_reason), "%s", hz_errmsg(f->gpu));
	hz_device_info(f->gpu ? f->gpu : f->cpu, &f->gpu_info);
	if (hz_open(&ctx, NULL) == HZ_OK) {
		f->used = ctx->gpu ? "cuda" : "cpu";
		hz_close(ctx);
	} else {
		f->used = "";
		snprintf(f->used_reason, sizeof(f->used_reason), "%s", hz_open_errmsg());
	}
	return 0;
}

/* "1.5 MiB" */
static const char *bytes_text(int64_t bytes, char to[24])
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double v = (double)bytes;
	int u = 0;

	for (; v >= 1024 && u < 4; u++)
		v /= 1024;
	snprintf(to, 24, "%.4g %s", v, unit[u]);
	return bytes ? to : "?";
}

static void print_text(const struct facts *f)
{
	const hz_info *c = &f->cpu_info, *g = &f->gpu_info;
	const char *bold = style(stdout, BOLD), *plain = style(stdout, PLAIN);
	const bool usual = !strcmp(HZ_NVCCFLAGS, "-O3");
	char a[24], b[24], d[24];

	printf("%shurwitz %s%s, device code ", bold, hz_version(), plain);
	if (hzi_cuda_code_bytes())
		printf("%s%s%s\n\n", bytes_text(hzi_cuda_code_bytes(), a),
		       usual ? "" : " by nvcc ", usual ? "" : HZ_NVCCFLAGS);
	else
		printf("not built in\n\n");
	printf("%sCPU%s       %s\n", bold, plain, *c->cpu_name ? c->cpu_name : "name not known");
	printf("  cores   %d, NUMA nodes %d (from %s); threads %d (from %s) by %s\n", c->cores,
	       c->numa_nodes, c->topology_source, c->threads, c->threads_source,
	       c->threading_name);
	printf("  caches  L1d %s, L2 %s, L3 %s\n", bytes_text(c->l1d_bytes, a),
	       bytes_text(c->l2_bytes, b), bytes_text(c->l3_bytes, d));
	printf("  memory  %s\n", bytes_text(c->memory_bytes, a));
	printf("  ISA     %s\n", c->isa_name);
	if (*c->isa_reason)
		printf("          %s\n", c->isa_reason);
	printf("\n%sGPU%s       ", bold, plain);
	if (f->gpu) {
		printf("%s, compute capability %d.%d\n", g->gpu_name, g->sm / 10, g->sm % 10);
		printf("  SMs     %d, memory %s, GPUs seen %d\n", g->sm_count,
		       bytes_text(g->memory_bytes, a), g->cuda_devices);
		if (*f->code_reason)
			printf("  code    cannot be used: %s\n", f->code_reason);
	} else {
		printf("none in use: %s\n", f->gpu_reason);
	}
	if (g->cuda_driver)
		printf("  driver  CUDA %d.%d\n", g->cuda_driver / 1000, g->cuda_driver % 1000 / 10);
	printf("\n%sIn use%s    %s\n", bold, plain, *f->used ? f->used : f->used_reason);
	printf("\n%s%-22s %-9s %s%s\n", bold, "Primitive", "runs on", "types", plain);
	for (size_t i = 0; i < PRIMITIVES; i++) {
		char name[40];

		if (is_backward(i) || is_part(primitives[i].summary))
			continue;
		snprintf(name, sizeof(name), "%s%s", primitives[i].name,
			 i + 1 < PRIMITIVES && is_backward(i + 1) ? ", _bwd" : "");
		printf("  %-20s %-9s %s\n", name,
		       strcmp(f->used, "cuda") == 0 ? "cuda" : c->isa_name, primitives[i].dtypes);
	}
}

static void json_field(const char *name, const char *value)
{
	printf("\"%s\": ", name);
	put_json_string(stdout, value);
	printf(", ");
}

static void print_json(const struct facts *f)
{
	const hz_info *c = &f->cpu_info, *g = &f->gpu_info;

	printf("{");
	json_field("version", hz_version());
	printf("\"device_code_bytes\": %lld,\n \"cpu\": {", (long long)hzi_cuda_code_bytes());
	json_field("name", c->cpu_name);
	printf("\"cores\": %d, \"numa_nodes\": %d, \"threads\": %d, ", c->cores, c->numa_nodes,
	       c->threads);
	json_field("threads_source", c->threads_source);
	json_field("threading", c->threading_name);
	json_field("topology", c->topology_source);
	printf("\"l1d_bytes\": %lld, \"l2_bytes\": %lld, \"l3_bytes\": %lld, \"memory_bytes\": "
	       "%lld, ",
	       (long long)c->l1d_bytes, (long long)c->l2_bytes, (long long)c->l3_bytes,
	       (long long)c->memory_bytes);
	json_field("isa", c->isa_name);
	json_field("isa_max", hz_isa_name(c->isa_max));
	printf("\"isa_reason\": ");
	put_json_string(stdout, c->isa_reason);
	printf("},\n \"gpu\": {\"usable\": %s, ", f->gpu && !*f->code_reason ? "true" : "false");
	json_field("reason", f->gpu ? f->code_reason : f->gpu_reason);
	json_field("name", f->gpu ? g->gpu_name : "");
	printf("\"sm\": %d, \"sm_count\": %d, \"memory_bytes\": %lld, \"driver\": %d, "
	       "\"devices\": %d},\n ", f->gpu ? g->sm : 0, f->gpu ? g->sm_count : 0,
	       f->gpu ? (long long)g->memory_bytes : 0, g->cuda_driver, g->cuda_devices);
	json_field("device", f->used);
	json_field("device_reason", f->used_reason);
	printf("\n \"primitives\": [");
	for (size_t i = 0; i < PRIMITIVES; i++) {
		printf("%s{", i ? ",\n  " : "");
		json_field("name", primitives[i].name);
		json_field("summary", primitives[i].summary);
		json_field("dtypes", primitives[i].dtypes);
		json_field("table", f->used);
		printf("\"isa\": ");
		put_json_string(stdout, strcmp(f->used, "cuda") == 0 ? "" : c->isa_name);
		printf("}");
	}
	printf("]}\n");
}

/* ---- Routes ---------------------------------------------------------------------------------- */

static const char *arch_text(int backend, int arch, char to[24])
{
	if (!arch)
		return backend == HZI_CPU ? "any ISA" : "any GPU";
	if (backend == HZI_CPU)
		return hz_isa_name(arch);
	if (arch == HZI_SM_90A)
		return "sm_90a";
	snprintf(to, 24, "sm_%d and later", arch);
	return to;
}

/* Prints the routes of each operation as Markdown, for doc/routes.md. */
static void print_routes(void)
{
	static const char *const backend[] = {[HZI_CPU] = "CPU", [HZI_CUDA] = "CUDA"};

	printf("# Routes\n\n"
	       "A route is a code path of an operation. A call takes the first row that supports it,\n"
	       "or where rows have costs, the row that is expected to be fastest. HURWITZ_VERBOSE=2\n"
	       "logs which it was and why others did not support the call;\n"
	       "HURWITZ_ROUTE=op:route forces one. Operations that are not listed have one code path\n"
	       "on each device.\n");
	for (size_t i = 0; i < PRIMITIVES; i++) {
		for (int b = 0; b < HZI_BACKENDS; b++) {
			const struct hzi_op_routes *const r = hzi_routes_of((enum hzi_op)i, b);
			char text[24];

			if (!r)
				continue;
			printf("\n## %s, %s\n\n| route | for | needs |\n|---|---|---|\n",
			       primitives[i].name, backend[b]);
			for (int k = 0; k < r->count; k++)
				printf("| %s | %s | %s |\n", r->route[k].name, r->route[k].what,
				       arch_text(b, r->route[k].arch, text));
		}
	}
}

static void help(void)
{
	printf("Usage: hurwitz info [--json | --routes]\n"
	       "Print what the library found on this machine: cores, caches, the instruction\n"
	       "set in use and why no higher one, the GPU or why there is none, and what stands\n"
	       "behind each primitive.\n"
	       "\n"
	       "  -j, --json    the same as one JSON object\n"
	       "  -r, --routes  the code paths of each operation, in Markdown\n"
	       "  -h, --help    this\n");
}

int verb_info(int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"routes", no_argument, NULL, 'r'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	struct facts f = {0};
	bool json = false, routes = false;
	int c, status;

	while ((c = next_option(argc, argv, "info", "jrh", options)) != -1) {
		if (c == 'h') {
			help();
			return EXIT_SUCCESS;
		}
		if (c != 'j' && c != 'r')
			return EXIT_BAD;
		json |= c == 'j';
		routes |= c == 'r';
	}
	if (optind < argc)
		return complain(EXIT_BAD, "info: there is one argument too many: '%s'", argv[optind]);
	if (json && routes)
		return complain(EXIT_BAD, "info: give --json or --routes, not both");
	if (routes) {
		print_routes();
		return EXIT_SUCCESS;
	}
	status = gather(&f);
	if (!status && json)
		print_json(&f);
	else if (!status)
		print_text(&f);
	hz_close(f.gpu);
	hz_close(f.cpu);
	return status;
}
