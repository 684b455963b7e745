/*
 * convert_math.h - conversions of one quaternion, shared by C and CUDA
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The C compiler and nvcc both read this file. Quaternions are w, x, y, z here, matrices are
 * row-major. Powers of two keep squares in range: results have no spurious overflow or underflow.
 */
#ifndef HZI_QUAT_CONVERT_MATH_H
#define HZI_QUAT_CONVERT_MATH_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum hzi_quat_convert_kind {		/* inputs: output */
	HZI_QUAT_TO_MATRIX,		/* q: m */
	HZI_QUAT_FROM_MATRIX,		/* m: q */
	HZI_QUAT_TO_AXIS_ANGLE,		/* q: r */
	HZI_QUAT_FROM_AXIS_ANGLE,	/* r: q */
	HZI_QUAT_EXP,			/* x: y */
	HZI_QUAT_LOG,			/* x: y */
	HZI_QUAT_SLERP,			/* a, b, t: y */
	HZI_QUAT_TO_MATRIX_BWD,		/* q, dm: dq */
	HZI_QUAT_FROM_MATRIX_BWD,	/* m, dq: dm */
	HZI_QUAT_CONVERTS
};

#define HZI_QUAT_CONVERT_INPUTS 3
#define HZI_QUAT_CONVERT_PARTS 9	/* most numbers of an operand: a matrix */

/* HZI_NUMBER: double on a CPU, float on a GPU; its functions, and 2^k by its bits */
#ifdef __CUDACC__
#define HZI_CONVERT static __device__ __forceinline__
#define HZI_NUMBER float
#define HZI_NUMBER_BITS uint32_t
#define HZI_MATH(name) name##f
#define HZI_NEARLY_ONE 0.9999f
enum { HZI_MANTISSA = 23, HZI_BIAS = 127 };
#else
#define HZI_CONVERT static inline
#define HZI_NUMBER double
#define HZI_NUMBER_BITS uint64_t
#define HZI_MATH(name) name
#define HZI_NEARLY_ONE (1 - 2e-8)
enum { HZI_MANTISSA = 52, HZI_BIAS = 1023 };
#endif

/* ---- Norms ----------------------------------------------------------------------------------- */

/* A power of two that scales the largest of n numbers to [1, 2), or as near as it can */
HZI_CONVERT HZI_NUMBER hzi_quat_unit_scale(const HZI_NUMBER *v, int n)
{
	HZI_NUMBER most = 0, scale;
	HZI_NUMBER_BITS bits;
	int exponent;

	for (int i = 0; i < n; i++) {
		const HZI_NUMBER size = HZI_MATH(fabs)(v[i]);

		most = size > most ? size : most;
	}
	memcpy(&bits, &most, sizeof(bits));
	exponent = 2 * HZI_BIAS - (int)(bits >> HZI_MANTISSA);
	exponent = exponent < 1 ? 1 : exponent > 2 * HZI_BIAS - 1 ? 2 * HZI_BIAS - 1 : exponent;
	bits = (HZI_NUMBER_BITS)exponent << HZI_MANTISSA;
	memcpy(&scale, &bits, sizeof(scale));
	return scale;
}

HZI_CONVERT HZI_NUMBER hzi_quat_inner(const HZI_NUMBER *a, const HZI_NUMBER *b)
{
	return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
}

HZI_CONVERT HZI_NUMBER hzi_vector_norm(const HZI_NUMBER *v)
{
	const HZI_NUMBER s = hzi_quat_unit_scale(v, 3);
	const HZI_NUMBER x = s * v[0], y = s * v[1], z = s * v[2];

	return HZI_MATH(sqrt)(x * x + y * y + z * z) / s;
}

/* u = q / |q|; NaN if q is 0. Returns |s q| for the power of two *s. */
HZI_CONVERT HZI_NUMBER hzi_quat_unit(const HZI_NUMBER *q, HZI_NUMBER *u, HZI_NUMBER *s)
{
	HZI_NUMBER n;

	*s = hzi_quat_unit_scale(q, 4);
	for (int c = 0; c < 4; c++)
		u[c] = *s * q[c];
	n = HZI_MATH(sqrt)(hzi_quat_inner(u, u));
	for (int c = 0; c < 4; c++)
		u[c] /= n;
	return n;
}

/* y = a b */
HZI_CONVERT void hzi_quat_product(const HZI_NUMBER *a, const HZI_NUMBER *b, HZI_NUMBER *y)
{
	y[0] = a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3];
	y[1] = a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2];
	y[2] = a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1];
	y[3] = a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0];
}

/* ---- Matrices -------------------------------------------------------------------------------- */

/*
 * The symmetric 4 x 4 matrix k with q^T k q = <m, |q|^2 R(q)> for the matrix R(q) of every q. Its
 * eigenvector of the largest eigenvalue is the rotation nearest to m (Davenport's q-method).
 */
HZI_CONVERT void hzi_quat_davenport(const HZI_NUMBER *m, HZI_NUMBER (*k)[4])
{
	k[0][0] = m[0] + m[4] + m[8];
	k[1][1] = m[0] - m[4] - m[8];
	k[2][2] = m[4] - m[0] - m[8];
	k[3][3] = m[8] - m[0] - m[4];
	k[0][1] = k[1][0] = m[7] - m[5];
	k[0][2] = k[2][0] = m[2] - m[6];
	k[0][3] = k[3][0] = m[3] - m[1];
	k[1][2] = k[2][1] = m[1] + m[3];
	k[1][3] = k[3][1] = m[2] + m[6];
	k[2][3] = k[3][2] = m[5] + m[7];
}

/* m[i] = the coefficient of matrix element i in p^T k q */
HZI_CONVERT void hzi_quat_davenport_adjoint(const HZI_NUMBER *p, const HZI_NUMBER *q,
					    HZI_NUMBER *m)
{
	const HZI_NUMBER ww = p[0] * q[0], xx = p[1] * q[1], yy = p[2] * q[2], zz = p[3] * q[3];
	const HZI_NUMBER wx = p[0] * q[1] + p[1] * q[0], wy = p[0] * q[2] + p[2] * q[0];
	const HZI_NUMBER wz = p[0] * q[3] + p[3] * q[0], xy = p[1] * q[2] + p[2] * q[1];
	const HZI_NUMBER xz = p[1] * q[3] + p[3] * q[1], yz = p[2] * q[3] + p[3] * q[2];

	m[0] = ww + xx - yy - zz;
	m[1] = xy - wz;
	m[2] = xz + wy;
	m[3] = xy + wz;
	m[4] = ww - xx + yy - zz;
	m[5] = yz - wx;
	m[6] = xz - wy;
	m[7] = yz + wx;
	m[8] = ww - xx - yy + zz;
}

/* The matrix of v -> u v conj(u), u = q / |q| */
HZI_CONVERT void hzi_quat_to_matrix(const HZI_NUMBER *q, HZI_NUMBER *m)
{
	const HZI_NUMBER s = hzi_quat_unit_scale(q, 4);
	const HZI_NUMBER w = s * q[0], x = s * q[1], y = s * q[2], z = s * q[3];
	const HZI_NUMBER f = 2 / (w * w + x * x + y * y + z * z);

	m[0] = 1 - f * (y * y + z * z);
	m[1] = f * (x * y - w * z);
	m[2] = f * (x * z + w * y);
	m[3] = f * (x * y + w * z);
	m[4] = 1 - f * (x * x + z * z);
	m[5] = f * (y * z - w * x);
	m[6] = f * (x * z - w * y);
	m[7] = f * (y * z + w * x);
	m[8] = 1 - f * (x * x + y * y);
}

/* With u = q / |q|: dq = 2 (k(dm) u - u (u^T k(dm) u)) / |q| */
HZI_CONVERT void hzi_quat_to_matrix_bwd(const HZI_NUMBER *q, const HZI_NUMBER *dm, HZI_NUMBER *dq)
{
	HZI_NUMBER k[4][4], u[4], s, n, along;

	n = hzi_quat_unit(q, u, &s);
	hzi_quat_davenport(dm, k);
	for (int i = 0; i < 4; i++)
		dq[i] = hzi_quat_inner(k[i], u);
	along = hzi_quat_inner(dq, u);
	for (int i = 0; i < 4; i++)
		dq[i] = 2 * (dq[i] - along * u[i]) / n * s;
}

/*
 * Most squarings of k: m off a rotation by d then has an error of about (d / 2)^17. None is needed
 * after one whose trace, of a square of trace 1, is HZI_NEARLY_ONE: 1 - 2 d for other eigenvalues
 * of sum d, whose squares are below rounding. Those of k itself may have either sign.
 */
#define HZI_QUAT_SQUARINGS 4

/*
 * The unit quaternion of the rotation nearest to m; k: Davenport's matrix of s m, *s a power of
 * two. k + c 1 with c = |s m| / sqrt(3) is 4 c q q^T if m is a multiple of a rotation, and else its
 * powers tend to a multiple of q q^T, since no other eigenvalue is as large if det m > 0.
 */
HZI_CONVERT void hzi_quat_nearest(const HZI_NUMBER *m, HZI_NUMBER (*k)[4], HZI_NUMBER *q,
				  HZI_NUMBER *s)
{
	HZI_NUMBER p[4][4], square[4][4], scaled[9], sum = 0, c, f, u[4];

	*s = hzi_quat_unit_scale(m, 9);
	for (int i = 0; i < 9; i++) {
		scaled[i] = *s * m[i];
		sum += scaled[i] * scaled[i];
	}
	c = HZI_MATH(sqrt)(sum / 3);
	hzi_quat_davenport(scaled, k);
	f = 1 / (4 * c);	/* k has the trace 0 */
	for (int i = 0; i < 4; i++) {
		for (int j = 0; j < 4; j++)
			p[i][j] = f * (k[i][j] + (i == j ? c : 0));
	}
	for (int n = 0; n < HZI_QUAT_SQUARINGS; n++) {
		HZI_NUMBER trace;

		for (int i = 0; i < 4; i++) {
			for (int j = i; j < 4; j++)
				square[i][j] = hzi_quat_inner(p[i], p[j]);
		}
		trace = square[0][0] + square[1][1] + square[2][2] + square[3][3];
		f = 1 / trace;
		for (int i = 0; i < 4; i++) {
			for (int j = i; j < 4; j++)
				p[i][j] = p[j][i] = f * square[i][j];
		}
		if (n > 0 && trace > HZI_NEARLY_ONE)
			break;
	}
	/* The row of the largest component; of equal ones the first in the order x, y, z, w */
	c = p[1][1];
	for (int j = 0; j < 4; j++)
		u[j] = p[1][j];
	for (int i = 2; i <= 4; i++) {
		const bool more = p[i % 4][i % 4] > c;

		c = more ? p[i % 4][i % 4] : c;
		for (int j = 0; j < 4; j++)
			u[j] = more ? p[i % 4][j] : u[j];
	}
	f = HZI_MATH(sqrt)(hzi_quat_inner(u, u));
	for (int i = 0; i < 4; i++)
		q[i] = u[i] / f;
}

/*
 * The eigenvector's derivative is (l 1 - k)^+ dk q with the eigenvalue l: with z the solution of
 * (l 1 - k + l q q^T) z = dq - q <q, dq>, dm is the adjoint of k at z, q. Cholesky decomposition of
 * the matrix, which is positive definite if det m > 0.
 */
HZI_CONVERT void hzi_quat_from_matrix_bwd(const HZI_NUMBER *m, const HZI_NUMBER *dq,
					  HZI_NUMBER *dm)
{
	HZI_NUMBER k[4][4], a[4][4], q[4], z[4], s, l = 0, along;

	hzi_quat_nearest(m, k, q, &s);
	for (int i = 0; i < 4; i++)
		l += q[i] * hzi_quat_inner(k[i], q);
	along = hzi_quat_inner(q, dq);
	for (int i = 0; i < 4; i++) {
		z[i] = dq[i] - along * q[i];
		for (int j = 0; j <= i; j++)
			a[i][j] = (i == j ? l : 0) - k[i][j] + l * q[i] * q[j];
	}
	for (int i = 0; i < 4; i++) {
		for (int j = 0; j <= i; j++) {
			HZI_NUMBER sum = a[i][j];

			for (int n = 0; n < j; n++)
				sum -= a[i][n] * a[j][n];
			a[i][j] = i == j ? HZI_MATH(sqrt)(sum) : sum / a[j][j];
		}
	}
	for (int i = 0; i < 4; i++) {
		for (int n = 0; n < i; n++)
			z[i] -= a[i][n] * z[n];
		z[i] /= a[i][i];
	}
	for (int i = 3; i >= 0; i--) {
		for (int n = i + 1; n < 4; n++)
			z[i] -= a[n][i] * z[n];
		z[i] /= a[i][i];
	}
	hzi_quat_davenport_adjoint(z, q, dm);
	for (int i = 0; i < 9; i++)
		dm[i] *= s;
}

/* ---- Exponential and logarithm --------------------------------------------------------------- */

/*
 * y = k v times the angle of w and |v| by |v|; pi along x where v is 0 and w < 0. v is scaled and w
 * with it: of a subnormal |v| the quotient would be Inf, and |v| inexact. A power of two less keeps
 * s w in range where the angle is not below all numbers.
 */
HZI_CONVERT void hzi_quat_angle(HZI_NUMBER k, HZI_NUMBER w, const HZI_NUMBER *v, HZI_NUMBER *y)
{
	const HZI_NUMBER s = hzi_quat_unit_scale(v, 3);
	const HZI_NUMBER less = s > 1 ? (HZI_NUMBER)0x1p-63 : 1;
	HZI_NUMBER n, f;

	for (int c = 0; c < 3; c++)
		y[c] = s * v[c];
	n = HZI_MATH(sqrt)(y[0] * y[0] + y[1] * y[1] + y[2] * y[2]);
	f = n != 0 ? k * HZI_MATH(atan2)(less * n, less * s * w) / n : 1;
	for (int c = 0; c < 3; c++)
		y[c] *= f;
	if (n == 0 && w < 0)
		y[0] = (HZI_NUMBER)3.14159265358979323846;
}

/* q = cos(f |v|) + sin(f |v|) v / |v| */
HZI_CONVERT void hzi_quat_from_vector(HZI_NUMBER f, const HZI_NUMBER *v, HZI_NUMBER *q)
{
	const HZI_NUMBER n = hzi_vector_norm(v);
	const HZI_NUMBER g = n != 0 ? HZI_MATH(sin)(f * n) / n : f;

	q[0] = HZI_MATH(cos)(f * n);
	for (int c = 0; c < 3; c++)
		q[1 + c] = g * v[c];
}

HZI_CONVERT void hzi_quat_exp(const HZI_NUMBER *x, HZI_NUMBER *y)
{
	const HZI_NUMBER e = HZI_MATH(exp)(x[0]);

	hzi_quat_from_vector(1, x + 1, y);
	for (int c = 0; c < 4; c++)
		y[c] = y[c] != 0 ? e * y[c] : y[c];	/* e may be Inf */
}

HZI_CONVERT void hzi_quat_log(const HZI_NUMBER *x, HZI_NUMBER *y)
{
	HZI_NUMBER s = hzi_quat_unit_scale(x, 4), n2 = 0;

	for (int c = 0; c < 4; c++)
		n2 += s * x[c] * (s * x[c]);
	y[0] = HZI_MATH(log)(HZI_MATH(sqrt)(n2)) - HZI_MATH(log)(s);
	hzi_quat_angle(1, x[0], x + 1, y + 1);
}

/* Angle times axis, of 0 to pi; NaN if q is 0 */
HZI_CONVERT void hzi_quat_to_axis_angle(const HZI_NUMBER *q, HZI_NUMBER *r)
{
	const bool none = q[1] == 0 && q[2] == 0 && q[3] == 0;
	const HZI_NUMBER zero = none ? (q[0] - q[0]) / q[0] : 0;

	hzi_quat_angle(q[0] < 0 ? -2 : 2, HZI_MATH(fabs)(q[0]), q + 1, r);
	for (int c = 0; c < 3; c++)
		r[c] += zero;
}

/*
 * (b conj(a))^t a of unit quaternions; keep: not by the shorter way. Where b is -a only rounding
 * makes b conj(a) differ from -1, so that its axis would be any: it is x.
 */
HZI_CONVERT void hzi_quat_slerp(const HZI_NUMBER *a, const HZI_NUMBER *b, HZI_NUMBER t, bool keep,
				HZI_NUMBER *y)
{
	const HZI_NUMBER least = (HZI_NUMBER)2 / ((int64_t)1 << HZI_MANTISSA);
	HZI_NUMBER u[4], v[4], r[4], power[4], s;

	hzi_quat_unit(a, u, &s);
	hzi_quat_unit(b, v, &s);
	power[0] = u[0];
	for (int c = 1; c < 4; c++)
		power[c] = -u[c];
	hzi_quat_product(v, power, r);
	if (r[0] < 0 && !keep) {
		for (int c = 0; c < 4; c++)
			r[c] = -r[c];
	}
	if (r[0] < 0 && hzi_vector_norm(r + 1) <= least)
		r[1] = r[2] = r[3] = 0;
	hzi_quat_angle(1, r[0], r + 1, v);
	hzi_quat_from_vector(t, v, power);
	hzi_quat_product(power, u, y);
}

/* out = the conversion of in[i], the inputs of a kind */
HZI_CONVERT void hzi_quat_convert_one(int kind, bool keep,
				      const HZI_NUMBER (*in)[HZI_QUAT_CONVERT_PARTS],
				      HZI_NUMBER *out)
{
	HZI_NUMBER k[4][4], s;

	switch (kind) {
	case HZI_QUAT_TO_MATRIX:
		hzi_quat_to_matrix(in[0], out);
		break;
	case HZI_QUAT_FROM_MATRIX:
		hzi_quat_nearest(in[0], k, out, &s);
		break;
	case HZI_QUAT_TO_AXIS_ANGLE:
		hzi_quat_to_axis_angle(in[0], out);
		break;
	case HZI_QUAT_FROM_AXIS_ANGLE:
		hzi_quat_from_vector((HZI_NUMBER)0.5, in[0], out);
		break;
	case HZI_QUAT_EXP:
		hzi_quat_exp(in[0], out);
		break;
	case HZI_QUAT_LOG:
		hzi_quat_log(in[0], out);
		break;
	case HZI_QUAT_SLERP:
		hzi_quat_slerp(in[0], in[1], in[2][0], keep, out);
		break;
	case HZI_QUAT_TO_MATRIX_BWD:
		hzi_quat_to_matrix_bwd(in[0], in[1], out);
		break;
	default:
		hzi_quat_from_matrix_bwd(in[0], in[1], out);
		break;
	}
}

#endif
