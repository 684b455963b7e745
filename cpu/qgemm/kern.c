/*
 * kern.c - the tables of micro-kernels of quantized multiplication
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/qgemm/kern.h"

HZI_KERN_TABLES(qgemm, HZI_FILL_VNNI(qgemm) HZI_FILL_AMX(qgemm))
