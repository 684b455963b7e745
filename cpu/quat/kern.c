/*
 * kern.c - the tables of micro-kernels of elementwise work on quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/quat/kern.h"

HZI_KERN_TABLES(quat, HZI_FILL_VNNI(quat))
