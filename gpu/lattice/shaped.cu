/*
 * shaped.cu - encodes to codes with a shaping other than NESTED
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * CUBE by hzi_shaped_choose(), a thread for each block. D8STAR and E8 likewise, but in two parts.
 * First a thread tries all scales of its block. That leaves scales at which the nearest point is
 * outside of the code, while a point inside may still be the best of all. To find it takes tests of
 * 240 vectors, again and again, so the lanes of a warp do that together, for one block at a time.
 */
#include "gpu/lattice/generic.cuh"
#include "lib/lattice/shaped.h"

#define VECTORS 240		/* minimal vectors of E8: +-e_i +-e_j, i < j, 4 of each; (+-1/2)^8 */
#define PAIRS 112

/* The best point so far of a block */
struct choice {
	float least;
	int t, found, fits;
	int32_t g[8];
};

/* i and j of the vector +-e_i +-e_j of that index, in the order of hzi_shaped_step() */
HZ_DEVICE void pair_of(int index, int *i, int *j)
{
	int pair = index >> 2, first = 0;

	while (pair >= 7 - first) {
		pair -= 7 - first;
		first++;
	}
	*i = first;
	*j = first + 1 + pair;
}

/* p = g moved by the vector of that index; pair: its i and j */
HZ_DEVICE void move_point(const int32_t (&g)[8], int index, int i, int j, int32_t (&p)[8])
{
	const uint32_t signs = index < PAIRS ? 0 : hzi_shaped_signs((uint32_t)(index - PAIRS));

#pragma unroll
	for (int l = 0; l < 8; l++) {
		if (index >= PAIRS)
			p[l] = g[l] + (signs >> l & 1 ? -1 : 1);
		else
			p[l] = g[l] + (l == i ? (index & 1 ? -2 : 2) : 0) +
			       (l == j ? (index & 2 ? -2 : 2) : 0);
	}
}

/* As hzi_shaped_step(), of e and g that all lanes have */
HZ_DEVICE bool step_together(const hzi_lattice_rule *r, const float (&e)[8], int32_t (&g)[8],
			     int lane)
{
	float most = 1;
	int best = VECTORS, i = 0, j = 0;
	int32_t p[8];

	for (int index = lane; index < VECTORS; index += 32) {
		float gain;

		if (index < PAIRS) {
			float a = 0, b = 0;

			pair_of(index, &i, &j);
#pragma unroll
			for (int l = 0; l < 8; l++) {
				a = l == i ? e[l] : a;
				b = l == j ? e[l] : b;
			}
			gain = hzi_ladd(index & 1 ? -a : a, index & 2 ? -b : b);
		} else {
			const uint32_t signs = hzi_shaped_signs((uint32_t)(index - PAIRS));

			gain = hzi_lmul(0.5f, hzi_ladd(hzi_shaped_four(e, signs & 15),
						       hzi_shaped_four(e + 4, signs >> 4)));
		}
		if (!(gain > most))
			continue;
		move_point(g, index, i, j, p);
		if (hzi_shaped_inside(r->shaping, r->log2q, p)) {
			most = gain;
			best = index;
		}
	}

	/* Gains are above 1, so their bits have the same order. Of equals the first */
	const uint32_t bits = __float_as_uint(best < VECTORS ? most : 0.0f);
	const uint32_t top = __reduce_max_sync(~0u, bits);

	if (top == 0)
		return false;
	best = __reduce_min_sync(~0u, bits == top ? best : VECTORS);
	if (best < PAIRS)
		pair_of(best, &i, &j);
	move_point(g, best, i, j, p);
#pragma unroll
	for (int l = 0; l < 8; l++)
		g[l] = p[l];
	return true;
}

/* As hzi_shaped_clip(), of y that all lanes have; each lane tries another factor. */
HZ_DEVICE float clip_together(const hzi_lattice_rule *r, const float (&y)[8], int32_t (&g)[8],
			      int lane)
{
	const float low = r->shaping == HZI_SHAPING_E8 ? -HZI_LATTICE_RANGE : 0;
	const float high = r->shaping == HZI_SHAPING_E8 ? HZI_LATTICE_RANGE : (float)(r->q - 1);
	float z[8], e[8], error, size = 0;
	int exponent, limit, j = 1;
	uint32_t fitting;

#pragma unroll
	for (int i = 0; i < 8; i++)
		size = fabsf(y[i]) > size ? fabsf(y[i]) : size;
	frexpf(size, &exponent);
	frexpf(r->reach, &limit);
	if (exponent - 1 - limit > 0)
		j = 16 * (exponent - 1 - limit);
	for (;; j += 32) {
		const int own = j + lane;
		const float factor = own < HZI_LATTICE_SHRINKS ? hzi_lattice_factor(r, own) : 0;

#pragma unroll
		for (int i = 0; i < 8; i++)
			z[i] = hzi_lmul(y[i], factor);
		hzi_shaped_nearest(r->q, low, high, z, g);
		fitting = __ballot_sync(~0u, hzi_shaped_inside(r->shaping, r->log2q, g));
		if (fitting)
			break;
	}
#pragma unroll
	for (int i = 0; i < 8; i++)
		g[i] = __shfl_sync(~0u, g[i], __ffs(fitting) - 1);
	error = hzi_shaped_error(y, g, e);
	for (int steps = 0; steps < 64 && step_together(r, e, g, lane); steps++)
		error = hzi_shaped_error(y, g, e);
	return error;
}

/* CUBE, which has a point for every block and scale */
HZ_DEVICE void encode_cube(const hzi_lattice_generic &p)
{
	const hzi_lattice_rule *r = &p.rule;
	const int64_t step = (int64_t)gridDim.x * blockDim.x;
	uint32_t overloaded = 0, nonfinite = 0;

	for (int64_t u = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; u < p.units; u += step) {
		const row_offsets at = find_row(p, u);
		float v[HZI_LATTICE_DIMS];
		int32_t g[8] = {0, 0, 0, 0, 0, 0, 0, 0};
		int t = 0;
		const int kind = load_block(p, nullptr, at.v, at.unit, v);

		nonfinite += kind != 0;
		if (!(kind & HZI_LATTICE_IS_NAN))
			overloaded += (uint32_t)hzi_shaped_choose(r, v, &t, g);
		hzi_shaped_write(r, g, code_at(p.codes, at.codes, at.unit));
		p.t[at.t + at.unit * p.t_step] = (uint8_t)t;
	}
	if (p.overload)
		count_overload(p.overload, overloaded, nonfinite);
}

/* D8STAR and E8 */
HZ_DEVICE void encode_together(const hzi_lattice_generic &p)
{
	__shared__ float bounds[HZ_LATTICE_MAXBANKS][HZI_LATTICE_THREADS];
	const hzi_lattice_rule *r = &p.rule;
	const int64_t step = (int64_t)gridDim.x * blockDim.x;
	const int lane = threadIdx.x % 32;
	uint32_t overloaded = 0, nonfinite = 0;

	/* All lanes of a warp take part in each of its turns. */
	for (int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x - lane;
	     first < p.units; first += step) {
		const bool exists = first + lane < p.units;
		const row_offsets at = find_row(p, exists ? first + lane : p.units - 1);
		float all[HZI_LATTICE_DIMS], v[8], y[8];
		choice c = {0, 0, 0, 0, {0, 0, 0, 0, 0, 0, 0, 0}};
		const int kind = load_block(p, nullptr, at.v, at.unit, all);
		const bool counts = exists && !(kind & HZI_LATTICE_IS_NAN);
		float size = 0;

		nonfinite += exists && kind != 0;
#pragma unroll
		for (int i = 0; i < 8; i++) {
			v[i] = all[i];
			size = fabsf(v[i]) > size ? fabsf(v[i]) : size;
		}
		const bool far = hzi_lmul(size, r->inverse[r->largest]) > (float)(4 * r->q);

		for (int k = 0; k < r->scales; k++) {
			const float square = hzi_lmul(r->scale[k], r->scale[k]);
			int32_t g[8];
			float error;

			bounds[k][threadIdx.x] = -1;
			if (!counts || (far && k != r->largest))
				continue;
			error = hzi_shaped_at(r, v, k, y, g);
			if (!hzi_shaped_inside(r->shaping, r->log2q, g)) {
				const float beyond = r->shaping == HZI_SHAPING_E8 ?
						     hzi_shaped_beyond(r->q, y) : 0;

				bounds[k][threadIdx.x] =
					hzi_lmul(beyond > error ? beyond : error, square);
				continue;
			}
			error = hzi_lmul(error, square);
			if (c.found && !(error < c.least))
				continue;
			c.found = 1;
			c.least = error;
			c.t = k;
#pragma unroll
			for (int i = 0; i < 8; i++)
				c.g[i] = g[i];
		}
		c.fits = c.found;
		for (int k = r->scales - 1; k >= 0; k--) {
			const float bound = bounds[k][threadIdx.x];
			uint32_t left = __ballot_sync(
				~0u, !(bound < 0 || (c.found && !(bound < c.least))));

			for (; left; left &= left - 1) {
				const int source = __ffs(left) - 1;
				int32_t g[8];
				float error;

#pragma unroll
				for (int i = 0; i < 8; i++)
					y[i] = hzi_lclamp(hzi_lmul(__shfl_sync(~0u, v[i], source),
								   r->inverse[k]), FLT_MAX);
				error = hzi_lmul(clip_together(r, y, g, lane),
						 hzi_lmul(r->scale[k], r->scale[k]));
				if (lane != source || (c.found && !(error < c.least)))
					continue;
				c.found = 1;
				c.fits = r->shaping == HZI_SHAPING_E8 && c.fits;
				c.least = error;
				c.t = k;
#pragma unroll
				for (int i = 0; i < 8; i++)
					c.g[i] = g[i];
			}
		}
		if (p.overload && counts &&
		    !(c.fits && (r->shaping == HZI_SHAPING_E8 ||
				 hzi_lmul(size, r->inverse[c.t]) <= 0.5f * (float)r->q - 1.5f)))
			overloaded += (uint32_t)!hzi_shaped_fits(r, v);
		if (exists) {
			hzi_shaped_write(r, c.g, code_at(p.codes, at.codes, at.unit));
			p.t[at.t + at.unit * p.t_step] = (uint8_t)c.t;
		}
	}
	if (p.overload)
		count_overload(p.overload, overloaded, nonfinite);
}

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_encode_shaped(const __grid_constant__ hzi_lattice_generic p)
{
	if (p.rule.shaping == HZI_SHAPING_CUBE)
		encode_cube(p);
	else
		encode_together(p);
}
