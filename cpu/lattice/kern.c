/*
 * kern.c - the tables of micro-kernels of lattice quantizers
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/lattice/kern.h"

HZI_KERN_TABLES(lattice, HZI_FILL_VNNI(lattice))
