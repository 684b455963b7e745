/*
 * terrain.h - the heights of a made-up volcano, the data of hurwitz demo
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A cone with a crater, on a plain that falls to one side, with noise: values between 0 and 1 at the
 * points of grids of 16, 8 and 4 cells, smoothly interpolated. Only operations that IEEE 754 rounds
 * in one way, so that every machine has the same heights.
 */
#ifndef TERRAIN_H
#define TERRAIN_H

#include <stdint.h>

#define TERRAIN_ROWS 87
#define TERRAIN_COLUMNS 61

/* A number between 0 and 1 for each point of a grid */
static inline float terrain_random(uint32_t i, uint32_t j, uint32_t cell)
{
	uint32_t h = i * 0x9e3779b1u ^ j * 0x85ebca77u ^ cell * 0xc2b2ae3du;

	h = (h ^ h >> 15) * 0x2c1b3c6du;
	h = (h ^ h >> 12) * 0x297a2d39u;
	return (float)((h ^ h >> 15) >> 8) / (1 << 24);
}

static inline float terrain_noise(int i, int j, int cell)
{
	const float s = (float)(i % cell) / (float)cell, t = (float)(j % cell) / (float)cell;
	const float a = s * s * (3 - 2 * s), b = t * t * (3 - 2 * t);
	const uint32_t y = (uint32_t)(i / cell), x = (uint32_t)(j / cell), size = (uint32_t)cell;
	const float low = terrain_random(y, x, size) * (1 - b) + terrain_random(y, x + 1, size) * b;
	const float high = terrain_random(y + 1, x, size) * (1 - b) +
			   terrain_random(y + 1, x + 1, size) * b;

	return low * (1 - a) + high * a;
}

/* In whole metres; i and j count cells of 10 m from one corner. */
static inline float terrain_height(int i, int j)
{
	const float y = ((float)i - 40) / 22, x = ((float)j - 32) / 17;
	const float r = y * y + x * x;		/* squared distance from the middle of the cone */
	const float v = ((float)i - 36) / 9, u = ((float)j - 30) / 7;
	const float c = v * v + u * u;		/* the same of the crater */
	const float plain = 105 - 0.12f * (float)i - 0.08f * (float)j;
	const float cone = 120 / ((1 + r) * (1 + r)), crater = 60 / (1 + c * c);
	const float noise = 24 * terrain_noise(i, j, 16) + 12 * terrain_noise(i, j, 8) +
			    5 * terrain_noise(i, j, 4);

	return (float)(int)(plain + cone - crater + noise);
}

#endif
