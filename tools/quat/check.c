/*
 * check.c - hurwitz check of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>

#include "tools/core/check.h"

static uint64_t seed;

static struct {
	float x[64 * 128 * 4], y[128 * 64 * 4], z[64 * 64 * 4];
} b[1];

/* c += p q */
static void add_product(double *c, const double *p, const double *q)
{
	c[0] += p[0] * q[0] - p[1] * q[1] - p[2] * q[2] - p[3] * q[3];
	c[1] += p[0] * q[1] + p[1] * q[0] + p[2] * q[3] - p[3] * q[2];
	c[2] += p[0] * q[2] - p[1] * q[3] + p[2] * q[0] + p[3] * q[1];
	c[3] += p[0] * q[3] + p[1] * q[2] - p[2] * q[1] + p[3] * q[0];
}

static void load_quat(const void *p, int64_t i, int dtype, double *q)
{
	for (int c = 0; c < 4; c++)
		q[c] = load_element(p, 4 * i + c, dtype);
}

/* Checks C = A B of m x k and k x n quaternions, or with k = 0 elementwise products of m x n. */
static bool check_quats(const struct subject *s, int dtype, int method, int64_t m, int64_t n,
			int64_t k)
{
	hz_tensor host[3] = {
		hz_tensor_3d(b->x, dtype, HZ_CPU, m, k ? k : n, 4),
		hz_tensor_3d(b->y, dtype, HZ_CPU, k ? k : m, n, 4),
		hz_tensor_3d(b->z, dtype, HZ_CPU, m, n, 4),
	};
	const hz_quat_gemm_opts o = {.method = method};
	const char *const op = k ? "quat_gemm" : "quat_mul";
	hz_tensor on[3] = {{0}};
	double error = 0, norm = 0;
	int status = HZ_OK;

	fill_normal(b->x, dtype, hz_tensor_count(&host[0]), &seed);
	fill_normal(b->y, dtype, hz_tensor_count(&host[1]), &seed);
	for (int i = 0; i < 3 && !status; i++)
		status = to_device(s->ctx, &host[i], i < 2, &on[i]);
	if (!status)
		status = k ? WITH_WORKSPACE(s->ctx, hz_quat_gemm(s->ctx, &on[0], &on[1], &on[2], &o))
			   : hz_quat_mul(s->ctx, &on[0], &on[1], &on[2], 0);
	if (!status)
		status = from_device(s->ctx, &on[2], &host[2]);
	for (int i = 0; i < 3; i++)
		free_device(s->ctx, &on[i]);
	if (status)
		return wrong("%s: %s: %s", s->name, op, hz_errmsg(s->ctx));
	for (int64_t i = 0; i < m * n; i++) {
		double want[4] = {0}, p[4], q[4], got[4];

		for (int64_t l = 0; l < (k ? k : 1); l++) {
			load_quat(b->x, k ? i / n * k + l : i, dtype, p);
			load_quat(b->y, k ? l * n + i % n : i, dtype, q);
			add_product(want, p, q);
		}
		load_quat(b->z, i, dtype, got);
		for (int c = 0; c < 4; c++) {
			error += (want[c] - got[c]) * (want[c] - got[c]);
			norm += want[c] * want[c];
		}
	}
	/* half an ulp of the dtype for the result, and as much for the operands */
	if (sqrt(error) > (dtype == HZ_F32 ? 2e-6 : dtype == HZ_F16 ? 1e-3 : 4e-3) * sqrt(norm))
		return wrong("%s: %s %s: the error is %.3g of the norm", s->name, op,
			     hz_dtype_name(dtype), sqrt(error / norm));
	return true;
}

static bool check_all_quats(const struct subject *s, int method)
{
	static const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {33, 31, 65}, {64, 64, 128}};
	bool good = true;

	for (size_t i = 0; i < 4; i++) {
		for (int t = 0; t < 3; t++) {
			progress("check: %s, quaternions", s->name);
			good &= check_quats(s, float_types[t], method, sizes[i][0], sizes[i][1],
					    method ? sizes[i][2] : 0);
		}
	}
	return good;
}

/* Checks matrices of random quaternions, and the quaternions of these matrices. */
static bool check_matrices(const struct subject *s)
{
	enum { N = 1000 };
	hz_tensor host[3] = {
		hz_tensor_2d(b->x, HZ_F32, HZ_CPU, N, 4), hz_tensor_3d(b->y, HZ_F32, HZ_CPU, N, 3, 3),
		hz_tensor_2d(b->z, HZ_F32, HZ_CPU, N, 4),
	};
	hz_tensor on[3] = {{0}};
	double most = 0;
	int status = HZ_OK;

	progress("check: %s, quaternions", s->name);
	fill_normal(b->x, HZ_F32, 4 * N, &seed);
	for (int i = 0; i < 3 && !status; i++)
		status = to_device(s->ctx, &host[i], i < 1, &on[i]);
	if (!status)
		status = hz_quat_to_matrix(s->ctx, &on[0], &on[1], 0);
	if (!status)
		status = hz_quat_from_matrix(s->ctx, &on[1], &on[2], 0);
	for (int i = 1; i < 3 && !status; i++)
		status = from_device(s->ctx, &on[i], &host[i]);
	for (int i = 0; i < 3; i++)
		free_device(s->ctx, &on[i]);
	if (status)
		return wrong("%s: quat_to_matrix: %s", s->name, hz_errmsg(s->ctx));
	for (int64_t i = 0; i < N; i++) {
		double q[4], back[4], norm = 0, inner = 0;

		load_quat(b->x, i, HZ_F32, q);
		load_quat(b->z, i, HZ_F32, back);
		for (int c = 0; c < 4; c++) {
			norm += q[c] * q[c];
			inner += q[c] * back[c];
		}
		for (int j = 0; j < 3; j++) {
			/* Column j: q times unit vector j times conj(q) */
			double e[4] = {0}, qe[4] = {0}, y[4] = {0};
			const double conj[4] = {q[0], -q[1], -q[2], -q[3]};

			e[1 + j] = 1 / norm;
			add_product(qe, q, e);
			add_product(y, qe, conj);
			for (int c = 0; c < 3; c++)
				most = fmax(most, fabs(y[1 + c] - b->y[9 * i + 3 * c + j]));
		}
		most = fmax(most, fabs(fabs(inner) / sqrt(norm) - 1));
	}
	if (!(most < 1e-6))
		return wrong("%s: quat_to_matrix, quat_from_matrix: the error is %.3g", s->name,
			     most);
	return true;
}

/* Checks all steps of an RNN of 20 neurons. */
static bool check_recurrent(const struct subject *s)
{
	enum { T = 6, B = 3, H = 20 };
	const int64_t shape[5] = {T, B, 1, H, 4};
	hz_tensor host[3] = {
		hz_tensor_nd(b->x, HZ_F32, HZ_CPU, 5, shape),
		hz_tensor_4d(b->y, HZ_F32, HZ_CPU, 1, H, H, 4),
		hz_tensor_nd(b->z, HZ_F32, HZ_CPU, 5, shape),
	};
	hz_tensor on[3] = {{0}};
	double h[B][H][4] = {{{0}}}, most = 0;
	int status = HZ_OK;

	progress("check: %s, quaternions", s->name);
	fill_normal(b->x, HZ_F32, 4 * T * B * H, &seed);
	fill_normal(b->y, HZ_F32, 4 * H * H, &seed);
	for (int i = 0; i < 4 * H * H; i++)
		b->y[i] *= 0.1f;
	for (int i = 0; i < 3 && !status; i++)
		status = to_device(s->ctx, &host[i], i < 2, &on[i]);
	if (!status)
		status = WITH_WORKSPACE(s->ctx, hz_quat_recurrent(s->ctx, &on[0], &on[1], NULL, NULL,
								  &on[2], NULL, NULL, NULL));
	if (!status)
		status = from_device(s->ctx, &on[2], &host[2]);
	for (int i = 0; i < 3; i++)
		free_device(s->ctx, &on[i]);
	if (status)
		return wrong("%s: quat_recurrent: %s", s->name, hz_errmsg(s->ctx));
	for (int64_t i = 0; i < T * B; i++) {
		double next[H][4], u[4];

		for (int64_t k = 0; k < H; k++) {
			load_quat(b->x, i * H + k, HZ_F32, next[k]);
			for (int64_t l = 0; l < H; l++) {
				load_quat(b->y, k * H + l, HZ_F32, u);
				add_product(next[k], u, h[i % B][l]);
			}
		}
		for (int64_t k = 0; k < 4 * H; k++) {
			h[i % B][k / 4][k % 4] = tanh(next[k / 4][k % 4]);
			most = fmax(most, fabs(h[i % B][k / 4][k % 4] - b->z[i * H * 4 + k]));
		}
	}
	return most < 1e-4 || wrong("%s: quat_recurrent: the error is %.3g", s->name, most);
}

void check_quat(const struct subject *s)
{
	seed = 1;
	test(check_matrices(s), "%s: quat_to_matrix, quat_from_matrix", s->name);
	test(check_all_quats(s, 0), "%s: quat_mul", s->name);
	test(check_all_quats(s, HZ_QUAT_DIRECT), "%s: quat_gemm, direct", s->name);
	test(check_all_quats(s, HZ_QUAT_FAST), "%s: quat_gemm, fast", s->name);
	test(check_recurrent(s), "%s: quat_recurrent", s->name);
}
