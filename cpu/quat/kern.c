/*
 * kern.c - the micro-kernel tables of elementwise quaternion operations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/quat/kern.h"

HZI_KERN_TABLES(quat, HZI_FILL_VNNI(quat))
