/*
 * error.c - messages, the log, and contexts that a child of fork() inherited
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/core/internal.h"

/* ---- Errors and log -------------------------------------------------------------------------- */

#undef hzi_fail
int hzi_fail(struct hz_context *ctx, int status, const char *format, ...)
{
	va_list ap;

	if (ctx) {
		va_start(ap, format);
		vsnprintf(ctx->errmsg, sizeof(ctx->errmsg), format, ap);
		va_end(ap);
	}
	return status;
}

void hzi_log(const struct hz_context *ctx, int level, const char *format, ...)
{
	char message[2 * HZI_ERRMSG_BYTES];
	va_list ap;

	if (!ctx || !ctx->log)
		return;
	va_start(ap, format);
	vsnprintf(message, sizeof(message), format, ap);
	va_end(ap);
	ctx->log(ctx->log_user, level, message);
}

void hzi_verbose(const struct hz_context *ctx, const char *format, ...)
{
	char line[HZI_OPERANDS_BYTES + HZI_ERRMSG_BYTES] = "hurwitz: ";
	const size_t begin = strlen(line), size = sizeof(line) - 1;
	va_list ap;
	int n;

	va_start(ap, format);
	n = vsnprintf(line + begin, size - begin, format, ap);
	va_end(ap);
	if (ctx->log) {
		ctx->log(ctx->log_user, HZ_LOG_DEBUG, line + begin);
		return;
	}
	n = n < 0 ? 0 : n;
	n = (size_t)n < size - begin ? n : (int)(size - begin) - 1;
	line[begin + (size_t)n] = '\n';
	if (write(STDERR_FILENO, line, begin + (size_t)n + 1) < 0)
		return;
}

const char *hz_errmsg(const hz_context *ctx)
{
	return ctx ? ctx->errmsg : "";
}

/* ---- fork() ---------------------------------------------------------------------------------- */

static atomic_uint forks;
static pthread_once_t forks_once = PTHREAD_ONCE_INIT;
static bool forks_counted;

static void count_fork(void)
{
	atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
	hzi_pool_after_fork();
}

/*
 * Whether this process began by fork() and has not called exec() since: PF_FORKNOEXEC of the kernel,
 * among the flags of its first thread. A library that is loaded later has not seen that fork().
 */
static bool is_forked(void)
{
	bool forked = false;
#ifdef __linux__
	FILE *const in = fopen("/proc/self/stat", "r");
	char line[512];
	unsigned flags = 0;

	/* PID (NAME) STATE and five numbers before the flags; NAME may have blanks and brackets. */
	if (in && fgets(line, sizeof(line), in)) {
		const char *const end = strrchr(line, ')');

		forked = end && sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) == 1 &&
			 flags & 0x40;
	}
	if (in)
		fclose(in);
#endif
	return forked;
}

static void count_forks(void)
{
	atomic_store_explicit(&forks, is_forked(), memory_order_relaxed);
	forks_counted = pthread_atfork(hzi_pool_before_fork, hzi_pool_after_fork, count_fork) == 0;
}

bool hzi_count_forks(void)
{
	pthread_once(&forks_once, count_forks);
	return forks_counted;
}

unsigned hzi_fork_generation(void)
{
	return atomic_load_explicit(&forks, memory_order_relaxed);
}

int hzi_enter_other(struct hz_context *ctx, const char *op)
{
	if (!ctx)
		return HZ_EINVAL;
	if (ctx->gpu && ctx->fork_generation != hzi_fork_generation())
		return hzi_fail(
			ctx, HZ_EFORK,
			"%s: the context has a GPU and was opened before fork(): CUDA does not "
			"work in the child",
			op);
	if (ctx->verbose)
		ctx->operands[0] = '\0';
	ctx->placeholders = 0;
	return HZ_OK;
}
