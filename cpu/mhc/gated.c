/*
 * gated.c - the operations of gated branch inputs
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <string.h>

#include "cpu/mhc/coef.h"
#include "lib/mhc/gated.h"

/* The numbers of a token */
static inline int64_t columns(const struct hzi_mhc_shape *s)
{
	return s->n * s->channels;
}

static float sigma(float z)
{
	return z < 0 ? 1 - 1 / (1 + expf(z)) : 1 / (1 + expf(-z));
}

/* Channels of a stream, or of a branch value, of a token in f32, one tile of them */
static const float *load_tile(const struct hz_context *ctx, const struct hzi_mhc_array *x,
			      int dtype, int64_t t, int i, int64_t c, int64_t count, float *to)
{
	float buffer[HZI_MHC_TILE_CHANNELS];
	const void *row = hzi_mhc_stream_row(x, hzi_mhc_dtype_bytes(dtype), t, i, c, count, buffer);

	hzi_mhc_kern[ctx->level].widen(row, dtype, count, to, NULL, NULL);
	return to;
}

/* ---- Streams over their roots ---------------------------------------------------------------- */

struct divide_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_divide_args *a;
};

/* A unit is a token. */
static void divide_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct divide_job *const job = data;
	const struct hzi_mhc_divide_args *const a = job->a;
	const int64_t C = a->s.channels, step = a->order.channel;

	(void)thread;
	for (int64_t u = begin * a->s.n; u < end * a->s.n; u++) {
		const int64_t t = u / a->s.n, at = u % a->s.n * a->order.stream;
		const float *const gain = a->gain ? a->gain + at : NULL;
		float *const to = a->to + t * columns(&a->s) + at, slope;
		double squares = 0, rho;

		for (int64_t c = 0; c < C; c += HZI_MHC_TILE_CHANNELS) {
			const int64_t count = hzi_mhc_min(HZI_MHC_TILE_CHANNELS, C - c);
			float x[HZI_MHC_TILE_CHANNELS];

			load_tile(job->ctx, &a->x, a->s.dtype, t, (int)(u % a->s.n), c, count, x);
			for (int64_t e = 0; e < count; e++) {
				squares += (double)x[e] * (double)x[e];
				to[(c + e) * step] = x[e];
			}
		}
		rho = hzi_mhc_root_of(&a->rule, C > 0 ? squares / (double)C : 0, &slope);
		for (int64_t c = 0; c < C; c++)
			to[c * step] = (float)((double)to[c * step] * rho *
					       (gain ? (double)gain[c * step] : 1));
		if (a->roots) {
			a->roots[2 * u] = (float)rho;
			a->roots[2 * u + 1] = slope;
		}
	}
}

HZI_NO_WORKSPACE(cpu, mhc_divide)

int hzi_cpu_mhc_divide(struct hz_context *ctx, const struct hzi_mhc_divide_args *a)
{
	struct divide_job job = {ctx, a};

	hzi_parallel(ctx, hzi_threads(ctx, a->s.tokens * columns(&a->s) * 8), divide_units, &job,
		     a->s.tokens);
	return HZ_OK;
}

struct divide_bwd_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_divide_bwd_args *a;
};

/* A unit is one number of every token. */
static void dgain_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_mhc_divide_bwd_args *const a = ((struct divide_bwd_job *)data)->a;
	const int64_t K = columns(&a->s);

	(void)thread;
	for (int64_t j = begin; j < end; j++) {
		double sum = a->accumulate ? (double)a->dgain[j] : 0;

		for (int64_t t = 0; t < a->s.tokens; t++)
			sum += (double)a->d[t * K + j] * (double)a->x[t * K + j];
		a->dgain[j] = (float)sum;
	}
}

static void divide_bwd_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct divide_bwd_job *const job = data;
	const struct hzi_mhc_divide_bwd_args *const a = job->a;
	const int64_t C = a->s.channels, step = a->order.channel;
	const int64_t size = hzi_mhc_dtype_bytes(a->s.dtype);

	(void)thread;
	for (int64_t u = begin * a->s.n; u < end * a->s.n; u++) {
		const int i = (int)(u % a->s.n);
		const int64_t t = u / a->s.n, at = i * a->order.stream;
		const float *const x = a->x + t * columns(&a->s) + at;
		float *const d = a->d + t * columns(&a->s) + at;
		const double rho = (double)a->roots[2 * u];
		double dot = 0;

		for (int64_t c = 0; c < C; c++) {
			if (a->gain)
				d[c * step] *= a->gain[at + c * step];
			dot += (double)d[c * step] * (double)x[c * step];
		}
		dot *= (double)a->roots[2 * u + 1] / (double)C;
		for (int64_t c = 0; c < C; c += HZI_MHC_TILE_CHANNELS) {
			const int64_t count = hzi_mhc_min(HZI_MHC_TILE_CHANNELS, C - c);
			float sum[HZI_MHC_TILE_CHANNELS], more[HZI_MHC_TILE_CHANNELS];
			float buffer[HZI_MHC_TILE_CHANNELS], one[HZI_MHC_TILE_CHANNELS];
			struct hzi_mhc_array dx = a->dx;
			struct hzi_mhc_scale store = {
				.u_floats = sum, .norm = one, .factor = 1, .count = count,
				.dtype = a->s.dtype,
			};
			struct hzi_mhc_tile tile;

			for (int64_t e = 0; e < count; e++) {
				const int64_t k = (c + e) * step;

				one[e] = 1;
				sum[e] = (float)(rho * (double)d[k] - dot * (double)x[k]);
			}
			if (a->dy.data) {
				load_tile(job->ctx, &a->dy, a->s.dtype, t, i, c, count, more);
				for (int64_t e = 0; e < count; e++)
					sum[e] += more[e];
			}
			if (a->accumulate) {
				load_tile(job->ctx, &a->dx, a->s.dtype, t, i, c, count, more);
				for (int64_t e = 0; e < count; e++)
					sum[e] += more[e];
			}
			dx.data = (char *)dx.data + i * dx.stream * size;
			tile = hzi_mhc_tile(&dx, size, t, c, 1, count, buffer, false);
			store.u = tile.p;
			hzi_mhc_kern[job->ctx->level].scale(&store);
			hzi_mhc_store_tile(&dx, size, t, c, 1, count, &tile);
		}
	}
}

HZI_NO_WORKSPACE(cpu, mhc_divide_bwd)

int hzi_cpu_mhc_divide_bwd(struct hz_context *ctx, const struct hzi_mhc_divide_bwd_args *a)
{
	const int threads = hzi_threads(ctx, a->s.tokens * columns(&a->s) * 16);
	struct divide_bwd_job job = {ctx, a};

	if (a->dgain)
		hzi_parallel(ctx, threads, dgain_units, &job, columns(&a->s));
	if (a->dx.data && a->s.channels > 0)
		hzi_parallel(ctx, threads, divide_bwd_units, &job, a->s.tokens);
	return HZ_OK;
}

/* ---- Products -------------------------------------------------------------------------------- */

#define ROWS 128		/* of c, that share a packed block of b */
#define COLUMNS 24		/* of c */
#define STEPS 512		/* of k, packed at a time */

/* Scratch of a thread: b [COLUMNS][STEPS], a [TOKENS][STEPS], sums [ROWS][COLUMNS][lanes] */
#define PACKED ((COLUMNS + TOKENS) * STEPS)

struct product_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_product_args *a;
	float *scratch;
	int64_t wide;			/* blocks of columns */
};

static size_t product_floats(const struct hz_context *ctx)
{
	return PACKED + ROWS * COLUMNS * (size_t)hzi_mhc_kern[ctx->level].lanes;
}

/*
 * to [rows][STEPS] = rows of elements at r row + k step, one of which is 1; 0 from `count` up to
 * whole pairs of vectors
 */
static void pack(const struct hzi_mhc_kern *kern, const void *from, int dtype, int64_t row,
		 int64_t step, int rows, int64_t count, float *to)
{
	const int64_t size = hzi_mhc_dtype_bytes(dtype), pair = 2 * kern->lanes;
	float column[HZI_MHC_TILE_CHANNELS];

	for (int r = 0; r < rows && step == 1; r++)
		kern->widen((const char *)from + r * row * size, dtype, count, to + r * STEPS, NULL,
			    NULL);
	for (int64_t k = 0; k < hzi_mhc_ceil(count, pair) * pair && step != 1; k++) {
		if (k < count)
			kern->widen((const char *)from + k * step * size, dtype, rows, column, NULL,
				    NULL);
		for (int r = 0; r < rows; r++)
			to[r * STEPS + k] = k < count ? column[r] : 0;
	}
}

/* A unit is ROWS by COLUMNS elements of c. */
static void product_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct product_job *const job = data;
	const struct hzi_mhc_product_args *const a = job->a;
	const struct hzi_mhc_kern *const kern = hzi_mhc_kern + job->ctx->level;
	const int64_t lanes = kern->lanes, size = hzi_mhc_dtype_bytes(a->b_dtype);
	float *const b = job->scratch + thread * (int64_t)product_floats(job->ctx);
	float *const x = b + COLUMNS * STEPS, *const sums = b + PACKED;

	for (int64_t u = begin; u < end; u++) {
		const int64_t i0 = u / job->wide * ROWS, j0 = u % job->wide * COLUMNS;
		const int rows = (int)hzi_mhc_min(ROWS, a->m - i0);
		const int wide = (int)hzi_mhc_min(COLUMNS, a->n - j0);

		memset(sums, 0, (size_t)(rows * wide * lanes) * sizeof(float));
		for (int64_t k = 0; k < a->k; k += STEPS) {
			const int64_t count = hzi_mhc_min(STEPS, a->k - k);
			const int64_t padded = hzi_mhc_ceil(count, 2 * lanes) * 2 * lanes;

			pack(kern, (const char *)a->b + (j0 * a->b_row + k * a->b_step) * size,
			     a->b_dtype, a->b_row, a->b_step, wide, count, b);
			for (int i = 0; i < rows; i += TOKENS) {
				const int some = (int)hzi_mhc_min(TOKENS, rows - i);
				const struct hzi_mhc_product product = {
					.x = x, .x_ld = STEPS, .phi = b, .phi_ld = STEPS,
					.sums = sums + i * wide * lanes, .count = padded,
					.tokens = some, .m = wide,
				};

				pack(kern, a->a + (i0 + i) * a->a_row + k * a->a_step, HZ_F32,
				     a->a_row, a->a_step, some, count, x);
				kern->project(&product);
			}
		}
		for (int i = 0; i < rows; i++) {
			float *const to = a->c + (i0 + i) * a->n + j0, sum[COLUMNS];

			kern->sum_lanes(sums + i * wide * lanes, wide, sum);
			for (int j = 0; j < wide; j++)
				to[j] = (a->accumulate ? to[j] : 0) + sum[j];
		}
	}
}

static int product_threads(const struct hz_context *ctx, const struct hzi_mhc_product_args *a)
{
	return hzi_threads(ctx, a->m * a->n * a->k / 4);
}

size_t hzi_cpu_mhc_product_workspace(const struct hz_context *ctx,
				     const struct hzi_mhc_product_args *a)
{
	return product_floats(ctx) * sizeof(float) * (size_t)product_threads(ctx, a);
}

int hzi_cpu_mhc_product(struct hz_context *ctx, const struct hzi_mhc_product_args *a)
{
	struct product_job job = {ctx, a, ctx->workspace, hzi_mhc_ceil(a->n, COLUMNS)};

	hzi_parallel(ctx, product_threads(ctx, a), product_units, &job,
		     hzi_mhc_ceil(a->m, ROWS) * job.wide);
	return HZ_OK;
}

/* ---- Between and after the products ---------------------------------------------------------- */

static void hidden_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_mhc_hidden_args *const a = data;
	const int n = a->rule.n;
	const float scale = 1.0f / (float)n, q_scale = a->rule.q_scale;

	(void)thread;
	for (int64_t e = begin * a->rank; e < end * a->rank; e++) {
		const float z = a->down[e] * scale, s = sigma(z);

		if (a->backward)
			a->down[e] = a->hidden[e] * s * (1 + z * sigma(-z)) * scale;
		else
			a->hidden[e] = z * s;
	}
	for (int64_t t = begin; t < end && a->inject; t++) {
		float q[HZI_MHC_STREAMS] = {0};

		if (a->backward)
			hzi_mhc_load_coefs(&a->dq, t, n, 1, q);
		for (int i = 0; i < n; i++) {
			float *const z = a->inject + t * n + i;
			const float s = sigma(*z * scale);

			if (a->backward)
				*z = q[i] * q_scale * s * sigma(-*z * scale) * scale;
			else
				q[i] = q_scale * s + a->rule.q_eps;
		}
		if (!a->backward)
			hzi_mhc_store_coefs(&a->q, t, n, 1, q);
	}
}

HZI_NO_WORKSPACE(cpu, mhc_hidden)

int hzi_cpu_mhc_hidden(struct hz_context *ctx, const struct hzi_mhc_hidden_args *a)
{
	hzi_parallel(ctx, hzi_threads(ctx, a->tokens * a->rank * 32), hidden_units,
		     (void *)(uintptr_t)a, a->tokens);
	return HZ_OK;
}

struct gate_job {
	const struct hz_context *ctx;
	const struct hzi_mhc_gate_args *a;
};

/* A unit is a token. */
static void gate_units(void *data, int thread, int64_t begin, int64_t end)
{
	const struct gate_job *const job = data;
	const struct hzi_mhc_gate_args *const a = job->a;
	const int64_t C = a->s.channels, size = hzi_mhc_dtype_bytes(a->s.dtype);
	const float share = 1.0f / (float)a->s.n;
	float u[HZI_MHC_TILE_CHANNELS], buffer[HZI_MHC_TILE_CHANNELS], one[HZI_MHC_TILE_CHANNELS];

	(void)thread;
	for (int e = 0; e < HZI_MHC_TILE_CHANNELS; e++)
		one[e] = 1;
	for (int64_t t = begin; t < end; t++) {
		for (int64_t c = 0; c < C; c += HZI_MHC_TILE_CHANNELS) {
			const int64_t count = hzi_mhc_min(HZI_MHC_TILE_CHANNELS, C - c);
			struct hzi_mhc_scale store = {
				.u_floats = u, .norm = one, .factor = share, .count = count,
				.dtype = a->s.dtype,
			};
			struct hzi_mhc_tile tile;

			memset(u, 0, sizeof(u));
			if (a->backward && a->u.data)
				load_tile(job->ctx, &a->u, a->s.dtype, t, 0, c, count, u);
			for (int i = 0; i < a->s.n; i++) {
				for (int64_t e = 0; e < count; e++) {
					const int64_t at = t * columns(&a->s) +
							   i * a->order.stream +
							   (c + e) * a->order.channel;
					const float z = a->up[at], s = sigma(z), x = a->x[at];

					if (a->backward) {
						a->dx[at] = u[e] * share * s;
						a->up[at] = a->dx[at] * x * sigma(-z);
					} else {
						u[e] += s * x;
					}
				}
			}
			if (a->backward)
				continue;
			tile = hzi_mhc_tile(&a->u, size, t, c, 1, count, buffer, false);
			store.u = tile.p;
			hzi_mhc_kern[job->ctx->level].scale(&store);
			hzi_mhc_store_tile(&a->u, size, t, c, 1, count, &tile);
		}
	}
}

HZI_NO_WORKSPACE(cpu, mhc_gate)

int hzi_cpu_mhc_gate(struct hz_context *ctx, const struct hzi_mhc_gate_args *a)
{
	struct gate_job job = {ctx, a};

	hzi_parallel(ctx, hzi_threads(ctx, a->s.tokens * columns(&a->s) * 32), gate_units, &job,
		     a->s.tokens);
	return HZ_OK;
}

/* ---- All of it ------------------------------------------------------------------------------- */

size_t hzi_cpu_mhc_gated_workspace(const struct hz_context *ctx, const struct hzi_mhc_gated_args *a)
{
	return hzi_mhc_gated_chain_workspace(ctx, a);
}

int hzi_cpu_mhc_gated(struct hz_context *ctx, const struct hzi_mhc_gated_args *a)
{
	return hzi_mhc_gated_chain(ctx, a);
}

size_t hzi_cpu_mhc_gated_bwd_workspace(const struct hz_context *ctx,
				       const struct hzi_mhc_gated_bwd_args *a)
{
	return hzi_mhc_gated_bwd_chain_workspace(ctx, a);
}

int hzi_cpu_mhc_gated_bwd(struct hz_context *ctx, const struct hzi_mhc_gated_bwd_args *a)
{
	return hzi_mhc_gated_bwd_chain(ctx, a);
}
