/*
 * pdl.cuh - programmatic dependent launch: a kernel starts before the one ahead of it has ended
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A kernel that a launcher starts early calls pdl_wait(). Before that it touches nothing that other
 * kernels read or write.
 */
#ifndef HZI_DEVICE_PDL_CUH
#define HZI_DEVICE_PDL_CUH

#include "gpu/device/base.cuh"

/* Lets the next kernel start as blocks of this one end. It waits for this one in pdl_wait(). */
HZ_DEVICE void pdl_launch_dependents(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until the kernel ahead has ended. */
HZ_DEVICE void pdl_wait(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif
