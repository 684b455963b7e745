/*
 * minimal.c - the least program: one row, transformed in place
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <stdio.h>

#include <hurwitz.h>

int main(void)
{
	float row[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	hz_tensor x = hz_tensor_1d(row, HZ_F32, HZ_CPU, 8);
	hz_options options = {.device = HZ_CPU};
	hz_context *ctx;

	if (hz_open(&ctx, &options) != HZ_OK) {
		fprintf(stderr, "%s\n", hz_open_errmsg());
		return 1;
	}
	if (hz_hadamard(ctx, &x, &x, NULL) != HZ_OK) {
		fprintf(stderr, "%s\n", hz_errmsg(ctx));
		return 1;
	}
	for (int i = 0; i < 8; i++)
		printf("%.4f%c", row[i], i < 7 ? ' ' : '\n');
	hz_close(ctx);
	return 0;
}
