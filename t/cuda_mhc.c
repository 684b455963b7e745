/*
 * cuda_mhc.c - what hyper-connections hand to the driver, seen by a stand-in
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "tap.h"

int main(void)
{
	skip_all("nothing yet");
}
