/*
 * unit.c - the micro-kernels of `hurwitz bench`, once for each ISA level
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/peak/kern.h"
#include "cpu/core/vec.h"

static void fma_peak(int64_t fmas)
{
	volatile float seed = 0.5f;
	const vf a = set_f(seed), b = set_f(seed / 2);
	vf v[12];

	UNROLL
	for (int j = 0; j < 12; j++)
		v[j] = set_f((float)j);
	for (int64_t i = 0; i < fmas; i += 12 * LANES) {
		UNROLL
		for (int j = 0; j < 12; j++)
			v[j] = fma_f(v[j], a, b);
	}
	for (int j = 1; j < 12; j++)
		v[0] += v[j];
	seed = v[0][0];
}

static void triad(const float *a, const float *b, float *y, int64_t n, bool stream)
{
	const vf three = set_f(3);

	for (int64_t i = 0; i + 4 * LANES <= n; i += 4 * LANES) {
		UNROLL
		for (int64_t j = i; j < i + 4 * LANES; j += LANES) {
			const vf v = fma_f(load_f32(b + j), three, load_f32(a + j));

			if (stream)
				stream_f32(y + j, v);
			else
				store_f32(y + j, v);
		}
	}
	if (stream)
		stream_end();
}

static float read_streams(const float *p, int64_t n)
{
	const int64_t part = n / 8;
	vf sum[8];

	UNROLL
	for (int s = 0; s < 8; s++)
		sum[s] = set_f(0);
	for (int64_t i = 0; i + LANES <= part; i += LANES) {
		UNROLL
		for (int s = 0; s < 8; s++)
			sum[s] += load_f32(p + s * part + i);
	}
	for (int s = 1; s < 8; s++)
		sum[0] += sum[s];
	return sum[0][0];
}

#ifdef HZ_VNNI
/* macs multiply-adds in registers */
static void dot_peak(int64_t macs)
{
	const __m512i a = _mm512_set1_epi32(0x7f3a91c5), b = _mm512_set1_epi32(0x1d95e3a7);
	__m512i sum[16];

	/* Opaque to the compiler, which would merge equal accumulators */
	UNROLL
	for (int i = 0; i < 16; i++)
		__asm__ volatile("vpxorq %0, %0, %0" : "=v"(sum[i]));
	for (int64_t n = 0; n < macs; n += 16 * 64) {
		UNROLL
		for (int i = 0; i < 16; i++)
			sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
	}
	/* The accumulators count as used, so they are not optimized away. */
	UNROLL
	for (int i = 0; i < 16; i++)
		__asm__ volatile("" : : "v"(sum[i]));
}
#endif

void HZI_FILL(peak)(void *table)
{
	struct hzi_peak_kern *const kern = table;

	kern->fma = fma_peak;
	kern->triad = triad;
	kern->read = read_streams;
#ifdef HZ_VNNI
	kern->dot = dot_peak;
#endif
}
