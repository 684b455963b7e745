/*
 * kern.c - the tables of micro-kernels of convolutions of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/quat_conv/kern.h"

HZI_KERN_TABLES(quat_conv, HZI_FILL_VNNI(quat_conv))
