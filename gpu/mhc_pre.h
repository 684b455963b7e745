/*
 * mhc_pre.h - parameters of the kernels of gpu/mhc_pre.cu
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_MHC_PRE_H
#define HZI_GPU_MHC_PRE_H

#include "lib/mhc.h"

#endif
