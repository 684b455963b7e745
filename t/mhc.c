/*
 * mhc.c - hyper-connections against their definition
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "dev.h"
#include "mhc_ref.h"

int main(void)
{
	dev_open_all();
	ok(1, "contexts");
	dev_close_all();
	return done_testing();
}
