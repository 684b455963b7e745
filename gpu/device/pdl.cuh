/*
 * pdl.cuh - programmatic dependent launch (PDL)
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * With PDL a kernel starts before the previous kernel on the stream has ended. A kernel launched so
 * calls pdl_wait(). Before that call it accesses no memory that another kernel reads or writes.
 */
#ifndef HZI_DEVICE_PDL_CUH
#define HZI_DEVICE_PDL_CUH

#include "gpu/device/base.cuh"

/*
 * Lets the next kernel start when all blocks of this one have called this or exited. The next
 * kernel still waits for the end of this one in pdl_wait().
 */
HZ_DEVICE void pdl_launch_dependents(void)
{
	HZ_ASM_SM90("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Waits until the previous kernel has ended and its writes are visible. */
HZ_DEVICE void pdl_wait(void)
{
	HZ_ASM_SM90("griddepcontrol.wait;" ::: "memory");
}

#endif
