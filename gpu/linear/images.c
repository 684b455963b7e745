/*
 * images.c - the device code of gpu/linear
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"

#define HZI_ONE_FAMILY 1
#define HZI_LINEAR 1
#include "gpu/runtime/images.inc"
