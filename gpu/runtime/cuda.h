/*
 * cuda.h - the GPU half of a context, and how a launcher starts a kernel
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CUDA_H
#define HZI_CUDA_H

#include "lib/core/internal.h"

/*
 * Every image of device code and every kernel has an index: the rows of gpu/kernels.def. Launchers
 * name kernels by theirs.
 *
 * A program carries the images of the families that it links, and no others. gpu/<family>/images.c
 * embeds them. A file that launches kernels of a family has HZI_LINK_IMAGES(family) in it or in a
 * header, which pulls them in. gpu/runtime/cuda.c knows the families by weak references, which pull
 * in nothing.
 */
enum hzi_image_id {
#define HZ_FAMILY(family) \
	HZI_IMAGES_##family, HZI_IMAGES_BEFORE_##family = HZI_IMAGES_##family - 1,
#define HZ_IMAGE(family, file) HZI_IMAGE_##family##_##file,
#include "gpu/kernels.def"
	HZI_IMAGES
};

enum hzi_kernel {
#define HZ_FAMILY(family) \
	HZI_KERNELS_##family, HZI_KERNELS_BEFORE_##family = HZI_KERNELS_##family - 1,
#define HZ_KERNEL(image, name) HZI_KERNEL_##name,
#include "gpu/kernels.def"
	HZI_KERNELS
};

struct hzi_image {
	const unsigned char *code;	/* NULL: this build has no device code */
	const unsigned char *end;
};

/* The images and kernels of a family, in the order of their indices, from the first ones on */
struct hzi_images {
	const struct hzi_image *image;
	const char *const *kernel;	/* names */
	int first_image, images;
	int first_kernel, kernels;
};

#define HZI_LINK_IMAGES(family) \
	extern const struct hzi_images hzi_images_##family __attribute__((visibility("hidden"))); \
	static const struct hzi_images *const hzi_link_images_##family __attribute__((used)) = \
		&hzi_images_##family

/* What a launcher may want to know of the device. Read once at hz_open(). */
struct hzi_cuda_device {
	int ordinal;
	int sm;				/* 90 for compute capability 9.0 */
	int multiprocessors;
	int shared_block_bytes;		/* most dynamic shared memory a block may ask for */
	int shared_sm_bytes;
	int64_t memory_bytes;
	int64_t l2_bytes;
	char name[96];
};

const struct hzi_cuda_device *hzi_cuda_device(const struct hz_context *ctx);

struct hzi_launch {
	unsigned grid[3], block[3];	/* a 0 counts as 1 */
	unsigned shared_bytes;		/* dynamic; above 48 KiB the limit is raised once */
	unsigned cluster;		/* blocks per cluster along x; 0 or 1: none */
	/*
	 * May start before the kernel ahead of it has ended, if that is of this kind and this
	 * context's too: then it waits by griddepcontrol.wait before it touches what other kernels
	 * may write.
	 */
	bool early;
	/*
	 * params is a struct with an alignment above 16. The compiler puts it at an offset among
	 * the parameters, so that it is handed over by its address: the driver knows the offset.
	 */
	bool aligned;
};

/*
 * Puts one kernel on the context's stream. params is the kernel's one argument, a struct passed by
 * value. The context is current for the length of the call only. Loads the kernel and its image at
 * the first launch. HZ_ECUDA, HZ_ENOTSUP (no code for this GPU, or not in this program), with the
 * sentence; op names the call.
 */
int hzi_cuda_launch(struct hz_context *ctx, const char *op, int kernel,
		    const struct hzi_launch *launch, const void *params, size_t params_bytes);

/* How many clusters of such blocks the device runs at a time. The grid is not looked at. */
int hzi_cuda_clusters(struct hz_context *ctx, const char *op, int kernel,
		      const struct hzi_launch *launch, int *count);

struct hzi_tensor_map;

/*
 * Fills map for copies of boxes of box_bytes columns, 64 or 128, by box_rows rows of a matrix of
 * bytes: rows of columns, row_bytes apart, what lies outside being 0. Lines of as many bytes with
 * the swizzle of that size.
 */
int hzi_cuda_tensor_map(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
			const void *p, int64_t columns, int64_t rows, int64_t row_bytes,
			int box_bytes, int box_rows);

/* The same by box_rows rows of box_planes of planes, plane_bytes apart. */
int hzi_cuda_tensor_map_planes(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
			       const void *p, int64_t columns, int64_t rows, int64_t row_bytes,
			       int planes, int64_t plane_bytes, int box_bytes, int box_rows,
			       int box_planes);

/*
 * The same of five dimensions, the first of which is that of bytes; steps: bytes, from the second
 * on. A box has what each leaves of its pixels.
 */
int hzi_cuda_tensor_map_pixels(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
			       const void *p, const uint64_t *sizes, const uint64_t *steps,
			       const uint32_t *box, const uint32_t *each);

/* ---- What the command line and the tests need besides ---------------------------------------- */

/*
 * All return a status with the sentence, like the calls above; everything works on the context's
 * stream and is to be released while the context is open. The stream made here does not wait for
 * the default stream; hz_set_stream() takes it.
 */
int hzi_cuda_stream_new(struct hz_context *ctx, void **stream);
int hzi_cuda_stream_free(struct hz_context *ctx, void *stream);

/* The calls between begin and end go into a graph; the stream must not be the default one. */
int hzi_cuda_capture_begin(struct hz_context *ctx);
int hzi_cuda_capture_end(struct hz_context *ctx, void **graph);
int hzi_cuda_graph_launch(struct hz_context *ctx, void *graph);
int hzi_cuda_graph_free(struct hz_context *ctx, void *graph);

/* Time stamps; hzi_cuda_event_ms() waits for end. */
int hzi_cuda_event_new(struct hz_context *ctx, void **event);
int hzi_cuda_event_record(struct hz_context *ctx, void *event);
int hzi_cuda_event_ms(struct hz_context *ctx, void *start, void *end, double *milliseconds);
int hzi_cuda_event_free(struct hz_context *ctx, void *event);

/* Bytes of the device code that this program carries */
int64_t hzi_cuda_code_bytes(void);

int hzi_cuda_fill(struct hz_context *ctx, void *p, int byte, size_t bytes);

/* ---- Sizes, indices ------------------------------------------------------------------------- */

static inline int64_t min_of(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t max_of(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
	return a / b + (a % b != 0);
}

static inline int64_t round_up(int64_t n, int64_t unit)
{
	return ceil_div(n, unit) * unit;
}

/* Steps an index through a shape; false after the last. */
static inline bool next_index(int64_t *index, const int64_t *shape, int ndim)
{
	for (int d = ndim - 1; d >= 0; d--) {
		if (++index[d] < shape[d])
			return true;
		index[d] = 0;
	}
	return false;
}

static inline int64_t offset_of(const int64_t *index, const int64_t *stride, int ndim)
{
	int64_t offset = 0;

	for (int d = 0; d < ndim; d++)
		offset += index[d] * stride[d];
	return offset;
}

#endif
