/*
 * route.c - HURWITZ_VERBOSE, HURWITZ_ROUTE, and the invariants of all route tables
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The program links t/core/calls.c, which pulls in all families: their tables are weak references.
 */
#include <config.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/core/route.h"
#include "t/core/tap.h"

static char logged[16][640];
static int lines;

static void note(void *user, int level, const char *message)
{
	(void)user;
	if (level == HZ_LOG_DEBUG && strncmp(message, "open:", 5) != 0 && lines < 16)
		snprintf(logged[lines++], sizeof(logged[0]), "%s", message);
}

/* A context on the CPU with these environment variables; NULL: unset */
static hz_context *open_with(const char *verbose, const char *route, bool log, int want)
{
	const hz_options options = {.device = HZ_CPU, .log = log ? note : NULL};
	hz_context *ctx = NULL;

	if (verbose)
		setenv("HURWITZ_VERBOSE", verbose, 1);
	if (route)
		setenv("HURWITZ_ROUTE", route, 1);
	is_int(hz_open(&ctx, &options), want, "open with HURWITZ_VERBOSE=%s HURWITZ_ROUTE=%s",
	       verbose ? verbose : "", route ? route : "");
	unsetenv("HURWITZ_VERBOSE");
	unsetenv("HURWITZ_ROUTE");
	lines = 0;
	return ctx;
}

static int transform(hz_context *ctx)
{
	static float x[3][16];
	hz_tensor t = hz_tensor_2d(x, HZ_F32, HZ_CPU, 3, 16);

	return hz_hadamard(ctx, &t, &t, NULL);
}

static void verbose(void)
{
	static const char begin[] = "hadamard x=f32[3,16] y=f32[3,16]: route ";
	hz_context *ctx = open_with("1", NULL, true, HZ_OK);
	char line[640] = "";
	int old, file;
	ssize_t n;

	is_int(transform(ctx), HZ_OK, "a call");
	is_int(lines, 1, "one line a call");
	ok(strncmp(logged[0], begin, strlen(begin)) == 0 && strstr(logged[0], " us"),
	   "operation, operands, route and time: %s", logged[0]);
	hz_close(ctx);

	ctx = open_with("0", NULL, true, HZ_OK);
	transform(ctx);
	is_int(lines, 0, "0 logs nothing");
	hz_close(ctx);

	ctx = open_with("3", NULL, true, HZ_EINVAL);
	ok(strstr(hz_open_errmsg(), "HURWITZ_VERBOSE is \"3\", must be 0, 1 or 2") != NULL, "%s",
	   hz_open_errmsg());

	ctx = open_with("1", NULL, false, HZ_OK);
	fflush(stderr);
	old = dup(STDERR_FILENO);
	file = open("route.tmp", O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (old < 0 || file < 0)
		bail("no file for stderr");
	dup2(file, STDERR_FILENO);
	transform(ctx);
	dup2(old, STDERR_FILENO);
	lseek(file, 0, SEEK_SET);
	n = read(file, line, sizeof(line) - 1);
	close(file);
	close(old);
	unlink("route.tmp");
	ok(n > 0 && strncmp(line, "hurwitz: hadamard x=", 20) == 0 && line[n - 1] == '\n',
	   "without a log it goes to stderr: %.*s", n > 0 ? (int)n - 1 : 0, line);
	hz_close(ctx);
}

static void forced(void)
{
	static const char *const wrong[] = {"hadamard", "hadamard:", "nothing:here", ":", "x"};
	hz_context *ctx;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		ctx = open_with(NULL, wrong[i], false, HZ_EINVAL);
		ok(!ctx && strstr(hz_open_errmsg(), "HURWITZ_ROUTE"), "%s", hz_open_errmsg());
	}
}

/* A route is forced where the program calls its operation, not where another operation uses it. */
static void forced_inside(void)
{
	static float x[40][40][4], w[40][40][4], y[40][40][4];
	const hz_tensor a = hz_tensor_3d(x, HZ_F32, HZ_CPU, 40, 40, 4);
	const hz_tensor b = hz_tensor_3d(w, HZ_F32, HZ_CPU, 40, 40, 4);
	hz_tensor c = hz_tensor_3d(y, HZ_F32, HZ_CPU, 40, 40, 4);
	hz_context *ctx = open_with("1", "quat_gemm:gemv", true, HZ_OK);

	is_int(hz_quat_gemm(ctx, &a, &b, &c, NULL), HZ_ENOTSUP, "%s", hz_errmsg(ctx));
	lines = 0;
	is_int(hz_quat_linear(ctx, &a, &b, NULL, &c, NULL), HZ_OK, "a layer uses any: %s",
	       hz_errmsg(ctx));
	is_int(lines, 1, "one line for the layer");
	hz_close(ctx);
}

/* Each name is one word and unique in its table. The last row supports any call, or has no run()
 * because other operations do the work. */
static void tables(void)
{
	int bad = 0, rows = 0;

	for (int op = 0; op < HZI_OPS_COUNT; op++) {
		for (int b = 0; b < HZI_BACKENDS; b++) {
			const struct hzi_op_routes *r = hzi_routes_of(op, b);

			for (int i = 0; r && i < r->count; i++, rows++) {
				const struct hzi_route *one = &r->route[i];

				bad += one->name[strspn(one->name, "abcdefghijklmnopqrstuvwxyz_"
								   "0123456789")] != '\0';
				bad += !one->what[0] || (!one->run && i < r->count - 1);
				for (int j = 0; j < i; j++)
					bad += strcmp(one->name, r->route[j].name) == 0;
			}
			if (r && r->route[r->count - 1].arch > HZI_SM_80) {
				diag("operation %d, backend %d: its last route needs more", op, b);
				bad++;
			}
		}
	}
	is_int(bad, 0, "names, descriptions and last rows of %d routes", rows);
	ok(rows > 100, "there are routes of all families");
}

int main(void)
{
	verbose();
	forced();
	forced_inside();
	tables();
	return done_testing();
}
