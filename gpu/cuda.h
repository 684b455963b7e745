/*
 * cuda.h - the GPU half of a context, and how a launcher starts a kernel
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CUDA_H
#define HZI_CUDA_H

#include "hz.h"

/*
 * Device code comes in images, one fatbin per family, embedded by gpu/image.c. A family's kernels
 * are the rows of gpu/<family>.kernels.def: HZ_KERNEL(name), extern "C" names in its .cu file; its
 * launchers name them by their index there.
 */
enum hzi_family {
	HZI_FAMILY_HADAMARD,
	HZI_FAMILIES
};

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
};

/*
 * Puts one kernel on the context's stream. params is the kernel's one argument, a struct passed by
 * value. The context is current for the length of the call only. Loads the family's image at its
 * first launch. HZ_ECUDA, HZ_ENOTSUP (no code for this GPU), with the sentence; op names the call.
 */
int hzi_cuda_launch(struct hz_context *ctx, const char *op, enum hzi_family family, int kernel,
		    const struct hzi_launch *launch, const void *params, size_t params_bytes);

#endif
