/*
 * run_mhc.c - hurwitz run of hyper-connections
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "run.h"
