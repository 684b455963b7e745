/*
 * cuda.h - the CUDA part of a context; launches, tensor maps, streams, graphs, events
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CUDA_H
#define HZI_CUDA_H

#include "lib/core/internal.h"

/*
 * Every image of device code and every kernel has an index, from the rows of gpu/kernels.def.
 * Launchers name kernels by index.
 *
 * A program carries the images of the families that it links. gpu/<family>/images.c embeds them.
 * Each file that launches kernels of a family has HZI_LINK_IMAGES(family), directly or from a
 * header; that reference pulls the images in. gpu/runtime/cuda.c refers to the families by weak
 * references, which pull nothing in.
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
	const unsigned char *code;	/* a fatbin, packed or not; NULL: no device code is built */
	const unsigned char *end;
};

/* The images and kernels of one family, ordered by index */
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

/* Properties of the device, read once by hz_open() */
struct hzi_cuda_device {
	int ordinal;
	int sm;				/* 90 for compute capability 9.0 */
	int sms;
	int shared_block_bytes;		/* most dynamic shared memory a block may ask for */
	int shared_sm_bytes;
	double clock_mhz;		/* peak clock of the SMs: cycles per us */
	double memory_bytes_per_us;	/* peak bandwidth */
	int64_t memory_bytes;
	int64_t l2_bytes;
	char name[96];
};

const struct hzi_cuda_device *hzi_cuda_device(const struct hz_context *ctx);

struct hzi_launch {
	unsigned grid[3], block[3];	/* 0 means 1 */
	unsigned shared_bytes;		/* dynamic; above 48 KiB the limit is raised once */
	unsigned cluster;		/* blocks per cluster along x; 0 or 1: none */
	/*
	 * Launch with PDL (programmatic dependent launch): the kernel may start before the previous
	 * one has ended, if that was launched with this flag by the same context. It then calls
	 * griddepcontrol.wait before it accesses memory that other kernels write.
	 */
	bool early;
	bool cooperative;		/* all blocks run at the same time, or the launch fails */
	/*
	 * params has an alignment above 16. The compiler then pads it to an offset in the parameter
	 * buffer that only the driver knows, so it is passed by address.
	 */
	bool aligned;
};

/*
 * Launches a kernel on the context's stream. params is its one argument, a struct passed by value.
 * The CUDA context is current only during this call. The first launch loads the kernel and its
 * image. Fails with HZ_ECUDA, HZ_ENOMEM, or HZ_ENOTSUP if there is no code for this GPU or in this
 * program; op names the call in the message.
 */
int hzi_cuda_launch(struct hz_context *ctx, const char *op, int kernel,
		    const struct hzi_launch *launch, const void *params, size_t params_bytes);

/*
 * *count becomes the number of clusters of this launch that the device runs at a time. The grid is
 * ignored.
 */
int hzi_cuda_clusters(struct hz_context *ctx, const char *op, int kernel,
		      const struct hzi_launch *launch, int *count);

struct hzi_tensor_map;

/*
 * Fills map for TMA copies from a row-major matrix of bytes: `rows` rows of `columns` bytes,
 * row_bytes apart. A copy moves a box of box_rows rows by box_bytes columns, 32, 64 or 128, into
 * shared memory rows of box_bytes bytes with the swizzle of that size. Elements outside the matrix
 * are 0.
 */
int hzi_cuda_tensor_map_2d(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
			   const void *p, int64_t columns, int64_t rows, int64_t row_bytes,
			   int box_bytes, int box_rows);

/*
 * The same with a third dimension of `depth` matrices, depth_bytes apart; a box has box_depth of
 * them.
 */
int hzi_cuda_tensor_map_3d(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
			   const void *p, int64_t columns, int64_t rows, int64_t row_bytes,
			   int depth, int64_t depth_bytes, int box_bytes, int box_rows,
			   int box_depth);

/*
 * The same with five dimensions, the first of which counts bytes. steps: bytes, from the second
 * dimension on. steps_in_box: the traversal stride of each dimension inside the box.
 */
int hzi_cuda_tensor_map_5d(struct hz_context *ctx, const char *op, struct hzi_tensor_map *map,
			   const void *p, const uint64_t *sizes, const uint64_t *steps,
			   const uint32_t *box, const uint32_t *steps_in_box);

/* ---- For the command line and the tests ------------------------------------------------------ */

/*
 * Each returns a status, with the message in the context. They work on the context's stream; what
 * they create must be released while the context is open. A stream from hzi_cuda_stream_new() does
 * not wait for the default stream; pass it to hz_set_stream().
 */
int hzi_cuda_stream_new(struct hz_context *ctx, void **stream);
int hzi_cuda_stream_free(struct hz_context *ctx, void *stream);

/*
 * Captures the calls between begin and end into a graph. The stream must not be the default stream.
 */
int hzi_cuda_capture_begin(struct hz_context *ctx);
int hzi_cuda_capture_end(struct hz_context *ctx, void **graph);
int hzi_cuda_graph_launch(struct hz_context *ctx, void *graph);
int hzi_cuda_graph_free(struct hz_context *ctx, void *graph);

/* Time stamps; hzi_cuda_event_ms() waits for `end`. */
int hzi_cuda_event_new(struct hz_context *ctx, void **event);
int hzi_cuda_event_record(struct hz_context *ctx, void *event);
int hzi_cuda_event_ms(struct hz_context *ctx, void *start, void *end, double *milliseconds);
int hzi_cuda_event_free(struct hz_context *ctx, void *event);

/* Bytes of device code in this program */
int64_t hzi_cuda_code_bytes(void);

int hzi_cuda_fill(struct hz_context *ctx, void *p, int byte, size_t bytes);

/* ---- Sizes and indices ----------------------------------------------------------------------- */

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

/* Advances an index through a shape, last dimension first; false after the last index. */
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
