/*
 * output.c - output files that appear only when all are complete
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/core/output.h"
#include "tools/core/tool.h"

/* Each output is written to a temporary file in the same directory, which is renamed when all
 * outputs are complete. Temporary files are removed if the program ends early, also by a signal. */
struct output {
	int fd;
	bool named;		/* the temporary file exists */
	char place[PATH_MAX], temporary[PATH_MAX + 64];
};

static struct output outputs[OUTPUTS_MAX];
static volatile sig_atomic_t output_count;

void outputs_drop(void)
{
	for (int i = 0; i < output_count; i++) {
		if (outputs[i].named)
			unlink(outputs[i].temporary);
		outputs[i].named = false;
	}
}

static void on_signal(int number)
{
	outputs_drop();
	signal(number, SIG_DFL);
	raise(number);
}

static void catch_signals(void)
{
	static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXCPU, SIGXFSZ,
				      SIGBUS /* a mapped input was cut */};
	struct sigaction old, action = {.sa_handler = on_signal};

	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
			sigaction(numbers[i], &action, NULL);
	}
}

/* The exit status for an errno of open(): bad argument, or failure of the machine */
static int blame(int error)
{
	switch (error) {
	case EACCES:
	case EISDIR:
	case ELOOP:
	case ENAMETOOLONG:
	case ENOENT:
	case ENOTDIR:
	case EPERM:
	case EROFS:
		return EXIT_BAD;
	default:
		return EXIT_FAILURE;
	}
}

/* A unique name for a file that does not exist yet, however its path is spelled */
static void place_of(const char *path, char place[PATH_MAX])
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	char directory[PATH_MAX] = ".", real[PATH_MAX];

	if (slash)
		snprintf(directory, sizeof(directory), "%.*s", (int)(slash + 1 - path), path);
	if (!realpath(directory, real) ||
	    snprintf(place, PATH_MAX, "%s/%s", real, name) >= PATH_MAX)
		strcpy(place, path);
}

/* The path that a chain of symbolic links leads to, also where no file is; false: see errno */
static bool follow_links(const char *path, char target[PATH_MAX])
{
	char text[PATH_MAX];

	if (snprintf(target, PATH_MAX, "%s", path) >= PATH_MAX) {
		errno = ENAMETOOLONG;
		return false;
	}
	for (int links = 0; links < 40; links++) {
		const ssize_t n = readlink(target, text, sizeof(text) - 1);
		const char *slash = strrchr(target, '/');
		const size_t directory = n > 0 && text[0] != '/' && slash ?
					 (size_t)(slash + 1 - target) : 0;

		if (n < 0)	/* no link, or nothing */
			return errno == EINVAL || errno == ENOENT;
		text[n] = '\0';
		if (directory + (size_t)n >= PATH_MAX) {
			errno = ENAMETOOLONG;
			return false;
		}
		strcpy(target + directory, text);
	}
	errno = ELOOP;
	return false;
}

int output_open(const char *path)
{
	struct output *out = &outputs[output_count];
	char target[PATH_MAX];
	const char *slash;
	size_t directory;
	struct stat st;
	bool there;

	if (output_count == 0)
		catch_signals();
	if (output_count == OUTPUTS_MAX)
		return complain(EXIT_FAILURE, "%s: too many files", path);
	out->fd = -1;
	out->named = false;
	if (strcmp(path, "-") == 0) {
		if (isatty(STDOUT_FILENO))
			return complain(
				EXIT_BAD,
				"standard output is a terminal, where an array is of no use");
		out->fd = STDOUT_FILENO;
		output_count++;
		return 0;
	}
	if (!*path)
		return complain(EXIT_BAD, "the name of an output is empty");
	there = stat(path, &st) == 0;
	if (!there && errno != ENOENT)	/* also a name that is too long, before any work */
		return complain(blame(errno), "%s: %s", path, strerror(errno));
	if (there && S_ISDIR(st.st_mode))
		return complain(EXIT_BAD, "%s: is a directory", path);
	if (there && !S_ISREG(st.st_mode)) {
		/* Devices and pipes are not replaced. */
		out->fd = open(path, O_WRONLY | O_CLOEXEC);
		if (out->fd < 0)
			return complain(blame(errno), "%s: %s", path, strerror(errno));
		output_count++;
		return 0;
	}
	/* A symbolic link's target is replaced, or made, and not the link. */
	if (!follow_links(path, target))
		return complain(blame(errno), "%s: %s", path, strerror(errno));
	if (!there)
		place_of(target, out->place);
	else if (!realpath(path, out->place))
		place_of(path, out->place);
	for (int i = 0; i < output_count; i++) {
		if (outputs[i].named && strcmp(outputs[i].place, out->place) == 0)
			return complain(EXIT_BAD, "%s: two outputs have this place", path);
	}
	slash = strrchr(out->place, '/');
	directory = slash ? (size_t)(slash + 1 - out->place) : 0;
	memcpy(out->temporary, out->place, directory);
	for (int i = 0; i < 100 && out->fd < 0; i++) {
		snprintf(out->temporary + directory, sizeof(out->temporary) - directory,
			 ".hurwitz-%ld-%d-%d.tmp", (long)getpid(), (int)output_count, i);
		out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (out->fd < 0 && errno != EEXIST)
			break;
	}
	if (out->fd < 0)
		return complain(blame(errno), "%s: %s", path, strerror(errno));
	out->named = true;
	output_count++;
	if (there && fchmod(out->fd, st.st_mode & 07777) != 0)
		return complain(EXIT_FAILURE, "%s: %s", path, strerror(errno));
	return 0;
}

int output_fd(int i)
{
	return outputs[i].fd;
}

int output_close(int i, const char *path)
{
	if (outputs[i].fd == STDOUT_FILENO || close(outputs[i].fd) == 0)
		return 0;
	return complain(EXIT_FAILURE, "%s: %s", path, strerror(errno));
}

int outputs_finish(void)
{
	for (int i = 0; i < output_count; i++) {
		if (!outputs[i].named)
			continue;
		if (rename(outputs[i].temporary, outputs[i].place) != 0)
			return complain(EXIT_FAILURE, "%s: %s", outputs[i].place, strerror(errno));
		outputs[i].named = false;
	}
	return 0;
}
