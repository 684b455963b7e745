/*
 * kern.c - the tables of micro-kernels of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/mhc/kern.h"

HZI_KERN_TABLES(mhc, HZI_FILL_AMX(mhc))
