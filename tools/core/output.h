/*
 * output.h - output files that appear only when all are complete
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef OUTPUT_H
#define OUTPUT_H

#define OUTPUTS_MAX 32

/* Opens a file for writing ("-": standard output); devices and pipes are opened directly, and
 * symbolic links followed. Files are numbered from 0. Prints errors and returns the exit status. */
int output_open(const char *path);
int output_fd(int i);

/* Closes the file; outputs_finish() renames it. */
int output_close(int i, const char *path);

/* Renames all files to their final names. */
int outputs_finish(void);

/* Removes files that were not renamed; signal handlers do so, too. */
void outputs_drop(void);

#endif
