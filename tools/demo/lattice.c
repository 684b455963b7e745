/*
 * lattice.c - hurwitz demo of the lattice quantizer: a matrix at 2, 3 and 4 bits per value
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Blocks of eight values become points of E8; 32 values share one of 64 scales. It is compared with
 * integers of as many bits that share a 16-bit scale per 32 values, and with the limit for codes of
 * Gaussian values, 6.02 dB per bit. The codes are multiplied by a vector without decoding them to
 * memory.
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/demo/demo.h"

#define GROUP 32
#define SEED 3		/* of the vector, and of the rotation's signs */

static const struct {
	int bits, q, levels;
} codes[] = {{2, 4, 1}, {3, 8, 1}, {4, 4, 2}};

struct matrix {
	hz_context *ctx;
	int64_t rows, n;
	float *x, *y, *v, *product;	/* on the host; v: [n], product: [rows] */
	uint8_t *bits;
	hz_tensor on_x, on_y, on_codes, on_t, on_v, on_product, on_signs;
	hz_hadamard_opts rotation;
	double power;			/* mean square of x */
};

static double noise_of(const struct matrix *m, const float *y)
{
	double sum = 0;

	for (int64_t i = 0; i < m->rows * m->n; i++)
		sum += ((double)y[i] - m->x[i]) * ((double)y[i] - m->x[i]);
	return sum / (double)(m->rows * m->n);
}

static double decibels(double signal, double noise)
{
	return 10 * log10(signal / noise);
}

/* Integers of that many bits; the largest magnitude of a group maps to the largest integer. */
static void scalar(const float *x, int64_t count, int bits, float *y)
{
	const float most = (float)((1 << (bits - 1)) - 1);

	for (int64_t i = 0; i < count; i += GROUP) {
		const int64_t end = i + GROUP < count ? i + GROUP : count;
		float peak = 0;

		for (int64_t j = i; j < end; j++)
			peak = fmaxf(peak, fabsf(x[j]));
		for (int64_t j = i; j < end; j++)
			y[j] = peak > 0 ? rintf(x[j] / peak * most) * peak / most : 0;
	}
}

/* 64 scales in steps of 2^(1/8), the smallest for an eighth of the mean deviation */
static int open_lattice(const struct matrix *m, int c, hz_lattice **l)
{
	const hz_lattice_opts opts = {
		.kind = HZ_LATTICE_E8,
		.q = codes[c].q,
		.levels = codes[c].levels,
		.beta = sqrt(m->power) / pow(codes[c].q, codes[c].levels) / 8,
		.policy = HZ_LATTICE_GROUP,
		.group = GROUP,
		.flags = HZ_LATTICE_CENTER,
	};

	return hz_lattice_open(m->ctx, l, &opts);
}

static void set_codes(struct matrix *m, const hz_lattice *l)
{
	hz_lattice_info info;

	hz_lattice_get_info(l, &info);
	m->on_codes = hz_tensor_3d(m->on_codes.data, info.level_dtype, hz_device(m->ctx), m->rows,
				   m->n / info.dim, info.levels);
}

/* Encodes x, keeps the codes, decodes them and returns the noise. */
static int encode_decode(struct matrix *m, const hz_lattice *l, bool rotate, double *noise)
{
	const hz_lattice_code_opts o = {.hadamard = rotate ? &m->rotation : NULL};
	hz_tensor y = hz_tensor_2d(m->y, HZ_F32, HZ_CPU, m->rows, m->n);
	int status;

	set_codes(m, l);
	status = WITH_WORKSPACE(m->ctx, hz_lattice_encode(m->ctx, l, &m->on_x, &m->on_codes,
							  &m->on_t, NULL, &o));
	if (!status)
		status = WITH_WORKSPACE(m->ctx, hz_lattice_decode(m->ctx, l, &m->on_codes,
								  &m->on_t, &m->on_y, &o));
	if (!status)
		status = from_device(m->ctx, &m->on_y, &y);
	*noise = status ? 0 : noise_of(m, m->y);
	return status;
}

/* ||codes v - x v|| / ||x v||; v is rotated if the rows of x were */
static int product_error(struct matrix *m, const hz_lattice *l, bool rotate, double *error)
{
	hz_tensor product = hz_tensor_1d(m->product, HZ_F32, HZ_CPU, m->rows);
	hz_coded w = {.codes = m->on_codes, .t = &m->on_t, .k = m->n};
	const hz_tensor v = hz_tensor_1d(m->v, HZ_F32, HZ_CPU, m->n);
	hz_vlut *vlut = NULL;
	double far = 0, all = 0;
	int status = hz_vlut_open(m->ctx, &vlut, l, NULL, NULL);

	if (!status)
		status = hz_copy(m->ctx, &v, &m->on_v);
	if (!status && rotate)
		status = hz_hadamard(m->ctx, &m->on_v, &m->on_v, &m->rotation);
	if (!status)
		status = WITH_WORKSPACE(m->ctx, hz_vlut_gemv(m->ctx, vlut, &w, &m->on_v,
							     &m->on_product));
	if (!status)
		status = from_device(m->ctx, &m->on_product, &product);
	hz_vlut_close(vlut);
	for (int64_t i = 0; i < m->rows && !status; i++) {
		double y = 0;

		for (int64_t j = 0; j < m->n; j++)
			y += (double)m->x[i * m->n + j] * m->v[j];
		far += (m->product[i] - y) * (m->product[i] - y);
		all += y * y;
	}
	*error = sqrt(far / all);
	return status;
}

static int show(struct matrix *m)
{
	int status = HZ_OK;

	printf("%s made points of E8 of blocks of eight heights, with one of 64\n"
	       "scales for each %d, of the rows as they are or rotated. Signal to noise in dB,\n"
	       "beside integers with scales of 16 bits, and what codes of Gaussian numbers\n"
	       "cannot exceed; and how far %s, the codes times a vector, is from the\n"
	       "product:\n\n",
	       name_of("lattice_encode"), GROUP, name_of("vlut_gemv"));
	printf("  %-6s%8s%9s%8s%12s%16s%9s\n", "bits", "E8", "rotated", "limit", "integers",
	       "product of E8", "rotated");
	for (size_t c = 0; c < sizeof(codes) / sizeof(*codes) && !status; c++) {
		double noise[2], error[2];

		for (int rotate = 0; rotate < 2 && !status; rotate++) {
			hz_lattice *l = NULL;

			status = open_lattice(m, (int)c, &l);
			if (!status)
				status = encode_decode(m, l, rotate, &noise[rotate]);
			if (!status)
				status = product_error(m, l, rotate, &error[rotate]);
			hz_lattice_close(l);
		}
		if (status)
			break;
		scalar(m->x, m->rows * m->n, codes[c].bits, m->y);
		printf("  %-6.2f%8.1f%9.1f%8.1f%6.1f (%.1f)%15.2f%%%8.2f%%\n",
		       codes[c].bits + 6.0 / GROUP, decibels(m->power, noise[0]),
		       decibels(m->power, noise[1]), 20 * log10(2) * (codes[c].bits + 6.0 / GROUP),
		       decibels(m->power, noise_of(m, m->y)), codes[c].bits + 16.0 / GROUP,
		       100 * error[0], 100 * error[1]);
	}
	return status;
}

/* The heights minus their mean, and memory on the device */
static int prepare(struct matrix *m, const struct ground *g)
{
	const int64_t count = m->rows * m->n;
	hz_tensor x, room, v, product, signs;
	double mean = 0;
	uint64_t seed = SEED;
	int status;

	m->x = allocate((size_t)count * sizeof(float));
	m->y = allocate((size_t)count * sizeof(float));
	m->v = allocate((size_t)m->n * sizeof(float));
	m->product = allocate((size_t)m->rows * sizeof(float));
	m->bits = allocate((size_t)(m->n + 7) / 8);
	if (!m->x || !m->y || !m->v || !m->product || !m->bits)
		return HZ_ENOMEM;
	hz_hadamard_signs(m->bits, m->n, SEED);
	for (int64_t i = 0; i < count; i++)
		mean += (double)height(g, i / m->n, i % m->n) / (double)count;
	for (int64_t i = 0; i < count; i++) {
		m->x[i] = (float)((double)height(g, i / m->n, i % m->n) - mean);
		m->power += (double)m->x[i] * m->x[i] / (double)count;
	}
	for (int64_t i = 0; i < m->n; i++)
		m->v[i] = random_normal(&seed);
	x = hz_tensor_2d(m->x, HZ_F32, HZ_CPU, m->rows, m->n);
	v = hz_tensor_1d(m->v, HZ_F32, HZ_CPU, m->n);
	product = hz_tensor_1d(m->product, HZ_F32, HZ_CPU, m->rows);
	signs = hz_tensor_1d(m->bits, HZ_U8, HZ_CPU, (m->n + 7) / 8);
	/* On the CPU views may use host memory directly; rotation and codes need memory of their
	 * own. */
	status = hz_alloc(m->ctx, &m->on_codes.data, (size_t)count, hz_device(m->ctx));
	if (!status)
		status = hz_alloc(m->ctx, &m->on_v.data, hz_tensor_bytes(&v), hz_device(m->ctx));
	m->on_v = hz_tensor_1d(m->on_v.data, HZ_F32, hz_device(m->ctx), m->n);
	if (!status)
		status = hz_alloc(m->ctx, &m->on_t.data, (size_t)count, hz_device(m->ctx));
	m->on_t = hz_tensor_2d(m->on_t.data, HZ_U8, hz_device(m->ctx), m->rows,
			       (m->n + GROUP - 1) / GROUP);
	room = x;
	room.data = m->y;
	if (!status)
		status = to_device(m->ctx, &x, true, &m->on_x);
	if (!status)
		status = to_device(m->ctx, &room, false, &m->on_y);
	if (!status)
		status = to_device(m->ctx, &product, false, &m->on_product);
	if (!status)
		status = to_device(m->ctx, &signs, true, &m->on_signs);
	m->rotation.pre = &m->on_signs;
	return status;
}

int demo_lattice(hz_context *ctx, const struct ground *g)
{
	struct matrix m = {.ctx = ctx, .rows = g->rows, .n = g->columns / 8 * 8};
	int status;

	m.rotation = (hz_hadamard_opts){0};
	status = prepare(&m, g);
	if (!status)
		status = show(&m);
	status = demo_status(ctx, status);
	free_device(ctx, &m.on_x);
	free_device(ctx, &m.on_y);
	free_device(ctx, &m.on_product);
	free_device(ctx, &m.on_signs);
	if (m.on_t.data)
		hz_free(ctx, m.on_t.data, hz_device(ctx));
	if (m.on_codes.data)
		hz_free(ctx, m.on_codes.data, hz_device(ctx));
	if (m.on_v.data)
		hz_free(ctx, m.on_v.data, hz_device(ctx));
	free(m.x);
	free(m.y);
	free(m.v);
	free(m.product);
	free(m.bits);
	return status;
}
