/*
 * mhc.c - a residual network of four streams
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <hurwitz.h>

int main(void)
{
	return hz_mhc_rows(4, NULL) == 24 ? 0 : 1;
}
