/*
 * mhc.h - parameters of the kernels of gpu/mhc.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_H
#define HZI_GPU_MHC_H

#include "lib/mhc.h"

#endif
