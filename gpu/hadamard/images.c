/*
 * images.c - the device code of gpu/hadamard
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"

#define HZI_ONE_FAMILY 1
#define HZI_HADAMARD 1
#include "gpu/runtime/images.inc"
