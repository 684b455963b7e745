/*
 * mhc.c - hyper-connections: argument checks, the calls into the table
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "hz.h"
#include "mhc.h"
