/*
 * quantize.h - what hurwitz quantize and dequantize share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef QUANTIZE_H
#define QUANTIZE_H

#include "lib/linear/linear.h"
#include "tools/core/model.h"
#include "tools/core/tool.h"

/* ---- Output (write.c) ------------------------------------------------------------------------ */

/*
 * A .safetensors file that is written tensor by tensor. Its header is written last, into space that
 * is as long as the header can become. All print errors and return the exit status; outputs_drop()
 * removes what is not complete.
 */
struct writer {
	const char *path;
	size_t header_bytes;
};

/* `longest` has the longest header: the number of bytes of its first tensor has the most digits. */
int writer_open(struct writer *w, const char *path, const struct model *longest);
int writer_put(const struct writer *w, const void *p, size_t bytes);

/* Writes the header of the tensors, in the order in which they were put, and renames the file. */
int writer_finish(const struct writer *w, const struct model *m);

/* More bytes than any file has, for the tensors of `longest` */
#define WRITER_MOST ((size_t)1000000000000000000)

/* The bytes of an element by which tensors are aligned: those with more come first in a file. */
int model_align(const struct model_tensor *t);

/* Tells the system that the pages of a tensor are not needed any more, to bound memory. */
void model_release(const struct model *m, const struct model_tensor *t);

/* The data aligned to `align`: in place, or a copy in *copy, which free() releases. NULL without
 * memory */
const void *model_aligned(const struct model *m, const struct model_tensor *t, size_t align,
			  void **copy);

/* ---- Formats (choose.c) ---------------------------------------------------------------------- */

/*
 * Of activations: the means of x_k^2, and of x_j x_k, of which the first layer makes factors. The
 * latter are made when a matrix needs them, for one file at a time unless it cannot be read twice.
 */
struct moments {
	hz_tensor squares;
	bool wanted;		/* products */
	struct hzi_linear_factors products;	/* u: from calloc(), or NULL */
	const char *path;
};

/* What is known of a tensor that becomes a layer */
struct layer_plan {
	struct model_tensor *t;
	int format;		/* enum hz_linear_format; 0: no format makes it smaller */
	double weights;		/* out * in */
	const char *refused;	/* why the tensor is copied, for the table; NULL: it is not */
	struct moments *moments;	/* of its input, or NULL */
};

/* The format of that name, or 0 */
int format_of_name(const char *name);

/* All names, separated by commas */
const char *format_names(void);

/* What makes a format refuse matrices of that shape, in a few words, or NULL */
const char *shape_fault(int format, const int64_t *shape);

/* Bytes that a layer takes in a file: those behind it stay aligned to 64. */
static inline size_t layer_file_bytes(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

/* Opens a layer of rows 0, step, 2 step, .. of a tensor, with factors or NULL; a library status */
int open_rows(hz_context *ctx, const struct model *m, const struct layer_plan *plan,
	      const hz_linear_open_opts *opts, struct hzi_linear_factors *f, int64_t rows,
	      int64_t step, hz_linear **layer);

/*
 * Prints why open_rows() failed. If the weights are the reason, a NaN for example, the tensor is
 * marked to be copied, and the result is 0; otherwise it is the exit status.
 */
int layer_refused(const hz_context *ctx, int status, struct layer_plan *plan);

/*
 * Chooses a format for each tensor so that all layers take at most bits * weights / 8 bytes: from
 * the one of fewest bits on, the step with the greatest decrease of the error per byte is taken
 * until none fits. The error is the sum of weights times the relative error of 64 of the rows.
 * Tensors that are copied do not count. Prints errors and returns the exit status.
 */
int choose_formats(hz_context *ctx, const struct model *m, struct layer_plan *plan, int64_t count,
		   double bits, uint32_t flags);

#endif
