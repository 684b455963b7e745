/*
 * check.c - hurwitz check: every primitive on every device and ISA level against its definition
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tools/core/check.h"

/* ---- TAP ------------------------------------------------------------------------------------- */

static int tests, failures;

void test(bool good, const char *format, ...)
{
	va_list ap;

	progress_clear();
	tests++;
	failures += !good;
	if (good)
		printf("ok %d - ", tests);
	else
		printf("%snot ok%s %d - ", style(stdout, RED), style(stdout, PLAIN), tests);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

bool wrong(const char *format, ...)
{
	va_list ap;

	progress_clear();
	printf("# ");
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
	return false;
}

const int float_types[3] = {HZ_F32, HZ_F16, HZ_BF16};

void fill_normal(void *p, int dtype, int64_t count, uint64_t *seed)
{
	for (int64_t i = 0; i < count; i++)
		store_element(p, i, dtype, (double)random_normal(seed));
}

/* ---- The run --------------------------------------------------------------------------------- */

static void check_subject(const struct subject *s)
{
	check_hadamard(s);
	check_qgemm(s);
	check_quat(s);
	test(check_lattices(s->ctx, s->name), "%s: lattice_encode and lattice_decode", s->name);
	test(check_vluts(s->ctx, s->name), "%s: vlut_gemv, all routes", s->name);
	test(check_linears(s->ctx, s->name), "%s: linear_forward and linear_bwd, all formats",
	     s->name);
	test(check_mhc(s->ctx, s->name), "%s: mhc_pre, mhc_post and their gradients", s->name);
}

static int check_cpu(void)
{
	struct subject s = {0};
	hz_context *plain = NULL;
	int last = 0, status = 0;

	for (int isa = HZ_ISA_C; isa <= HZ_ISA_DOTPROD && !status; isa++) {
		hz_info info;

		/* A level that this machine lacks opens as a lower one, which was tested. */
		if (strcmp(hz_isa_name(isa), "?") == 0)
			continue;
		status = open_context(&s.ctx, HZ_CPU, 0, isa);
		if (status)
			break;
		hz_device_info(s.ctx, &info);
		s.plain = plain;
		snprintf(s.name, sizeof(s.name), "cpu %s", info.isa_name);
		if (info.isa > last) {
			check_subject(&s);
			last = info.isa;
		}
		if (plain)
			hz_close(s.ctx);
		else
			plain = s.ctx;
	}
	hz_close(plain);
	return status;
}

/* A missing GPU is a failure only if it was requested. */
static int check_gpu(int32_t device)
{
	const hz_options o = {.device = device == HZ_AUTO ? HZ_CUDA : device};
	struct subject s = {.name = "cuda"};
	int status = hz_open(&s.ctx, &o);

	if (status && device != HZ_AUTO)
		return complain(exit_status(status), "%s", hz_open_errmsg());
	if (status) {
		progress_clear();
		printf("ok %d # SKIP cuda: %s\n", ++tests, hz_open_errmsg());
		return 0;
	}
	check_subject(&s);
	hz_close(s.ctx);
	return 0;
}

static void help(void)
{
	printf("Usage: hurwitz check [-d DEVICE]\n"
	       "Test the library on this machine: every primitive, on every instruction set\n"
	       "and device here, against its definition in double precision, and the bits of\n"
	       "every instruction set against those of plain C. Prints TAP.\n"
	       "\n"
	       "  -d, --device DEVICE  cpu, cuda, cuda:N, or auto, the default: all there are\n"
	       "  -h, --help           this\n"
	       "\n"
	       "Exit status: 0 if all tests pass, 1 if not, 2 for bad usage.\n");
}

int verb_check(int argc, char **argv)
{
	static const struct option options[] = {
		{"device", required_argument, NULL, 'd'}, {"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	int32_t device = HZ_AUTO;
	int c, status = 0;

	while ((c = next_option(argc, argv, "check", "d:h", options)) != -1) {
		switch (c) {
		case 'd':
			if (parse_device("check", optarg, &device))
				return EXIT_BAD;
			break;
		case 'h':
			help();
			return EXIT_SUCCESS;
		default:
			return EXIT_BAD;
		}
	}
	if (optind < argc)
		return complain(EXIT_BAD, "check: there is one argument too many: '%s'", argv[optind]);
	check_bases();
	if (device == HZ_AUTO || device == HZ_CPU)
		status = check_cpu();
	if (!status && device != HZ_CPU)
		status = check_gpu(device);
	printf("1..%d\n", tests);
	return status ? status : failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
