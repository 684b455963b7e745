/*
 * plot.c - the figure of hurwitz demo: loss, accuracy over bits, speed
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/demo/story.h"

bool have_gnuplot(void)
{
	const char *path = getenv("PATH");

	while (path && *path) {
		const size_t length = strcspn(path, ":");
		char file[4096];

		if (length > 0 && length < sizeof(file) - 16) {
			snprintf(file, sizeof(file), "%.*s/gnuplot", (int)length, path);
			if (access(file, X_OK) == 0)
				return true;
		}
		path += length + (path[length] == ':');
	}
	return false;
}

/* Bits and accuracy: the forms without rotation, then f32 again and those with rotation */
static void write_forms(FILE *to, const struct plot *p)
{
	fprintf(to, "$forms << EOD\n");
	for (int rotated = 0; rotated < 2; rotated++) {
		for (int i = 0; i < p->count; i++) {
			const struct form *f = &p->forms[i];

			if (i == 0 || f->rotate == (rotated == 1))
				fprintf(to, "%.4f %.3f\n", f->bits,
					100 * (p->cpu ? f->cpu : f->gpu).right);
		}
		fprintf(to, "\n\n");
	}
	fprintf(to, "EOD\n$times << EOD\n");
	for (int i = 0; i < p->count; i++)
		fprintf(to, "\"%s\" %.6g %.6g\n", p->forms[i].name, p->forms[i].cpu.seconds * 1e3,
			p->forms[i].gpu.seconds * 1e3);
	fprintf(to, "EOD\n");
}

static void write_script(FILE *to, const struct plot *p, const char *path)
{
	const struct model *m = p->training;
	const size_t length = strlen(path);
	const bool svg = length > 4 && strcmp(path + length - 4, ".svg") == 0;

	fprintf(to, "$training << EOD\n");
	for (int i = 0; i < m->points; i++)
		fprintf(to, "%d %.6f %.6f\n", i * m->shown, m->train[i], m->test[i]);
	fprintf(to, "EOD\n");
	write_forms(to, p);
	fprintf(to, svg ? "set terminal svg size 1200, 400 dynamic background 'white'\n" :
			  "set terminal png size 1200, 400\n");
	fprintf(to, "set multiplot layout 1, 3\n"
		    "set grid\n"
		    "set title 'Training'\nset xlabel 'epochs'\nset ylabel 'cross entropy'\n"
		    "plot $training using 1:2 with linespoints pt 7 title 'training', \\\n"
		    "     '' using 1:3 with linespoints pt 7 title 'test'\n"
		    "set title 'Right in the test'\nset xlabel 'bits a weight'\n"
		    "set ylabel 'per cent'\nset logscale x 2\nset xrange [1.8:40]\n"
		    "set key bottom right\n"
		    "plot $forms index 0 using 1:2 with linespoints pt 7 title 'as they are', \\\n"
		    "     '' index 1 using 1:2 with linespoints pt 7 title 'rotated'\n"
		    "set title 'Time for the whole test'\nunset logscale x\nunset xlabel\n"
		    "set ylabel 'ms'\nset xrange [*:*]\nset yrange [0:*]\nset key top left\n"
		    "set offsets 0, 0, graph 0.15, 0\n"
		    "set style data histogram\nset style fill solid 0.8\n"
		    "set xtics rotate by -40 noenhanced\n");
	if (p->cpu)
		fprintf(to, "plot $times using 2:xtic(1) title 'CPU'%s\n",
			p->gpu ? ", '' using 3 title 'GPU'" : "");
	else
		fprintf(to, "plot $times using 3:xtic(1) title 'GPU'\n");
}

/* Copies everything from a pipe to fd; returns 0 or an errno. */
static int copy_pipe(int pipe, int fd)
{
	char part[4096];
	int error = 0;
	ssize_t n;

	while ((n = read(pipe, part, sizeof(part))) > 0 || (n < 0 && errno == EINTR)) {
		for (ssize_t done = 0; done < n && !error;) {
			const ssize_t w = write(fd, part + done, (size_t)(n - done));

			if (w >= 0)
				done += w;
			else if (errno != EINTR)
				error = errno;
		}
	}
	return n < 0 ? errno : error;
}

/* gnuplot reads the script from an unlinked temporary file. The figure comes through a pipe,
 * because gnuplot does not report a full disk. */
int draw_plot(const struct plot *p, const char *path, int fd)
{
	FILE *script = tmpfile();
	int result = -1, error = 0, ends[2] = {-1, -1};
	pid_t child = -1;

	if (!script)
		return complain(EXIT_FAILURE, "demo: %s", strerror(errno));
	write_script(script, p, path);
	if (fflush(script) == 0 && !ferror(script) && pipe(ends) == 0) {
		rewind(script);
		fflush(stdout);
		child = fork();
	}
	if (child == 0) {
		close(ends[0]);
		if (dup2(fileno(script), STDIN_FILENO) >= 0 && dup2(ends[1], STDOUT_FILENO) >= 0)
			execlp("gnuplot", "gnuplot", "-", (char *)NULL);
		_exit(127);
	}
	fclose(script);
	close(ends[1]);
	if (child > 0)
		error = copy_pipe(ends[0], fd);
	close(ends[0]);
	if (child < 0 || waitpid(child, &result, 0) != child || result != 0)
		return complain(EXIT_FAILURE, "%s: gnuplot could not draw it", path);
	if (error)
		return complain(EXIT_FAILURE, "%s: %s", path, strerror(error));
	return 0;
}
