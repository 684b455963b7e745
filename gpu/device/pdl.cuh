/*
 * pdl.cuh - a kernel that starts before the one ahead has ended
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * What a launcher starts early has to call grid_wait(), and before it touches nothing that other
 * kernels write or read.
 */
#ifndef HZI_GRID_CUH
#define HZI_GRID_CUH

#include "gpu/device/common.cuh"

/* The next kernel may start as blocks end: it waits in grid_wait() for what this one writes. */
HZ_DEVICE void grid_next(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

HZ_DEVICE void grid_wait(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif
