/*
 * basis.c - bases of lattices: named ones, reduction, factors
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <string.h>

#include "lib/lattice/lattice.h"

#define DIMS HZI_LATTICE_DIMS

void hzi_basis_named(int kind, int d, double *g)
{
	memset(g, 0, (size_t)(d * d) * sizeof(*g));
	switch (kind) {
	case HZ_LATTICE_A2:
		g[0] = 1;
		g[1] = 0.5;
		g[3] = 0.86602540378443864676;
		return;
	case HZ_LATTICE_D:
		for (int j = 0; j < d; j++) {
			if (j > 0)
				g[(j - 1) * d + j] = 1;
			g[j * d + j] = -1;
		}
		g[d] = -1;
		return;
	case HZ_LATTICE_E8:
		g[0] = 2;
		for (int j = 1; j < 7; j++) {
			g[(j - 1) * d + j] = -1;
			g[j * d + j] = 1;
		}
		for (int i = 0; i < 8; i++)
			g[i * d + 7] = 0.5;
		return;
	default:
		for (int i = 0; i < d; i++)
			g[i * d + i] = 1;
	}
}

void hzi_matrix_multiply(int d, const double *a, const double *b, double *c)
{
	for (int i = 0; i < d; i++) {
		for (int j = 0; j < d; j++) {
			double s = 0;

			for (int k = 0; k < d; k++)
				s += a[i * d + k] * b[k * d + j];
			c[i * d + j] = s;
		}
	}
}

/* Gauss-Jordan elimination with the largest pivot of each column */
bool hzi_matrix_invert(int d, const double *a, double *inverse)
{
	double left[DIMS * DIMS], size = 0;

	memcpy(left, a, (size_t)(d * d) * sizeof(*a));
	hzi_basis_named(HZ_LATTICE_Z, d, inverse);
	for (int i = 0; i < d * d; i++)
		size = fmax(size, fabs(a[i]));
	for (int c = 0; c < d; c++) {
		int best = c;
		double pivot;

		for (int i = c + 1; i < d; i++) {
			if (fabs(left[i * d + c]) > fabs(left[best * d + c]))
				best = i;
		}
		pivot = left[best * d + c];
		if (!(fabs(pivot) > 1e-12 * size))
			return false;
		for (int j = 0; j < d; j++) {
			const double r = left[best * d + j], v = inverse[best * d + j];

			left[best * d + j] = left[c * d + j];
			inverse[best * d + j] = inverse[c * d + j];
			left[c * d + j] = r / pivot;
			inverse[c * d + j] = v / pivot;
		}
		for (int i = 0; i < d; i++) {
			const double f = left[i * d + c];

			if (i == c)
				continue;
			for (int j = 0; j < d; j++) {
				left[i * d + j] -= f * left[c * d + j];
				inverse[i * d + j] -= f * inverse[c * d + j];
			}
		}
	}
	return true;
}

/* Gram-Schmidt, each column twice, which makes q orthogonal to the last bits */
void hzi_basis_qr(int d, const double *g, double *q, double *r)
{
	memset(r, 0, (size_t)(d * d) * sizeof(*r));
	for (int j = 0; j < d; j++) {
		double norm = 0;

		for (int i = 0; i < d; i++)
			q[i * d + j] = g[i * d + j];
		for (int round = 0; round < 2; round++) {
			for (int k = 0; k < j; k++) {
				double dot = 0;

				for (int i = 0; i < d; i++)
					dot += q[i * d + k] * q[i * d + j];
				for (int i = 0; i < d; i++)
					q[i * d + j] -= dot * q[i * d + k];
				r[k * d + j] += dot;
			}
		}
		for (int i = 0; i < d; i++)
			norm += q[i * d + j] * q[i * d + j];
		norm = sqrt(norm);
		r[j * d + j] = norm;
		for (int i = 0; i < d && norm > 0; i++)
			q[i * d + j] /= norm;
	}
}

/* Subtracts f times column k from column j of the basis and of its factor, k < j. */
static void subtract(int d, double *g, double *r, int j, int k, double f)
{
	for (int i = 0; i < d; i++) {
		g[i * d + j] -= f * g[i * d + k];
		r[i * d + j] -= f * r[i * d + k];
	}
}

#define DELTA 0.99		/* of the Lovasz condition */

/* Bases that doubles can reduce need far fewer swaps. */
#define ROUNDS_MAX 100000

bool hzi_basis_reduce(int d, double *g)
{
	double q[DIMS * DIMS], r[DIMS * DIMS], least, most;
	int rounds = 0;

	hzi_basis_qr(d, g, q, r);
	for (int j = 1; j < d;) {
		for (int k = j - 1; k >= 0; k--) {
			const double f = rint(r[k * d + j] / r[k * d + k]);

			if (!isfinite(f))
				return false;
			if (f != 0)
				subtract(d, g, r, j, k, f);
		}
		least = r[j * d + j] * r[j * d + j] +
			r[(j - 1) * d + j] * r[(j - 1) * d + j];
		if (least >= DELTA * r[(j - 1) * d + j - 1] * r[(j - 1) * d + j - 1]) {
			j++;
			continue;
		}
		if (++rounds == ROUNDS_MAX)
			return false;
		for (int i = 0; i < d; i++) {
			const double t = g[i * d + j];

			g[i * d + j] = g[i * d + j - 1];
			g[i * d + j - 1] = t;
		}
		hzi_basis_qr(d, g, q, r);
		j = j > 1 ? j - 1 : 1;
	}
	hzi_basis_qr(d, g, q, r);
	least = most = r[0];
	for (int j = 1; j < d; j++) {
		least = fmin(least, r[j * d + j]);
		most = fmax(most, r[j * d + j]);
	}
	return least > 1e-9 * most;
}
