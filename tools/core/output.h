/*
 * output.h - files that appear when they are complete
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef OUTPUT_H
#define OUTPUT_H

#define OUTPUTS_MAX 32

/*
 * Opens a file to be written, "-" being standard output; a device or a pipe is opened as it is.
 * They are numbered from 0. Says what is wrong and returns the exit status.
 */
int output_open(const char *path);
int output_fd(int i);

/* Closes the file; its place is taken later. */
int output_close(int i, const char *path);

/* Gives every file its name. */
int outputs_finish(void);

/* Removes what did not get its name; a signal that ends the program does that, too. */
void outputs_drop(void);

#endif
