/*
 * kern.c - the tables of micro-kernels of products with lattice codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/vlut/kern.h"

HZI_KERN_TABLES(vlut, HZI_FILL_VNNI(vlut) HZI_FILL_AMX(vlut))
