/*
 * gated_cluster.h - parameters of gated_cluster.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_GATED_CLUSTER_H
#define HZI_GPU_MHC_GATED_CLUSTER_H

#include "gpu/mhc/gated_fused.h"

#define HZI_MHC_CLUSTER 8		/* blocks */
#define HZI_MHC_CLUSTER_THREADS 256
#define HZI_MHC_CLUSTER_TOKENS 64	/* of a block, 8 of each block of a cluster */
#define HZI_MHC_CLUSTER_STREAMS 4	/* at most */
#define HZI_MHC_CLUSTER_RANK 128	/* at most */
#define HZI_MHC_CLUSTER_ROWS 64		/* of W_down: of a block of mhc_gated_cluster_down */
#define HZI_MHC_CLUSTER_SLICE 256	/* channels of it, at most */
#define HZI_MHC_CLUSTER_SLICES 32	/* clusters of a stream times streams, at most */
#define HZI_MHC_CLUSTER_CHANNELS 32	/* of a block of mhc_gated_cluster_up */
#define HZI_MHC_CLUSTER_MOST 512	/* tokens, for the size of the workspace */
#define HZI_MHC_CLUSTER_DOWN_BYTES (100 * 1024)	/* of shared memory */
#define HZI_MHC_CLUSTER_UP_BYTES (89 * 1024)

/*
 * In struct hzi_mhc_gated_job a slice of a stream is what a cluster of mhc_gated_cluster_down has,
 * but `slice` is the channels of each of its blocks. W_down's rows are in row_tiles groups of 64.
 * Four sums for W_q's rows from each group follow those of W_down's; they are added up later.
 */

#endif
