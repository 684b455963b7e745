/*
 * train.c - training data of the networks of hurwitz demo, and their training
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/demo/demo.h"

#define PI 3.14159265358979323846
#define GRID 10.0f	/* metres between heights */

/* ---- Places ---------------------------------------------------------------------------------- */

static void copy_place(struct places *p, int64_t to, int64_t from)
{
	memcpy(p->x + to * p->inputs, p->x + from * p->inputs, (size_t)p->inputs * sizeof(float));
	memcpy(p->t + to * p->outputs, p->t + from * p->outputs,
	       (size_t)p->outputs * sizeof(float));
}

static bool allocate_places(struct places *p, int64_t most, int inputs, int outputs)
{
	*p = (struct places){.inputs = inputs, .outputs = outputs};
	p->x = allocate((size_t)(most * inputs) * sizeof(float));
	p->t = allocate((size_t)(most * outputs) * sizeof(float));
	return p->x && p->t;
}

void free_places(struct places *p)
{
	free(p->x);
	free(p->t);
}

bool make_places(struct places *train, struct places *test, const struct ground *g, int margin,
		 int inputs, int outputs, describe_place describe, uint64_t seed)
{
	const int64_t most = g->rows * g->columns;

	*test = (struct places){.count = 0};
	if (!allocate_places(train, most, inputs, outputs) ||
	    !allocate_places(test, most, inputs, outputs))
		return false;
	for (int64_t i = margin; i < g->rows - margin; i++) {
		for (int64_t j = margin; j < g->columns - margin; j++) {
			struct places *p = random_u64(&seed) % 4 ? train : test;
			int64_t at = p->count++;

			/*
			 * Shuffles: a batch in grid order would be from one slope of the mountain.
			 */
			if (p == train) {
				const int64_t k =
					(int64_t)(random_u64(&seed) % (uint64_t)p->count);

				copy_place(p, at, k);
				at = k;
			}
			describe(g, i, j, p->x + at * inputs, p->t + at * outputs);
		}
	}
	return true;
}

void describe_point(const struct ground *g, int64_t i, int64_t j, float middle, int part,
		    float *q)
{
	const float down = (height(g, i + 1, j) - height(g, i - 1, j)) / (2 * GRID);
	const float across = (height(g, i, j + 1) - height(g, i, j - 1)) / (2 * GRID);
	const float size = sqrtf(down * down + across * across + 1);

	q[0] = (height(g, i, j) - middle) / METRES;
	q[part] = -down / size;
	q[2 * part] = -across / size;
	q[3 * part] = 1 / size;
}

void describe_around(const struct ground *g, int64_t i, int64_t j, int step, int part, float *q)
{
	for (int k = 0; k < POINTS; k++)
		describe_point(g, i + k / 4 * 2 - 3, j + k % 4 * 2 - 3, height(g, i, j), part,
			       q + k * step);
}

const int directions[DIRECTIONS][2] = {
	{AWAY, 0}, {6, 6}, {0, AWAY}, {-6, 6}, {-AWAY, 0}, {-6, -6}, {0, -AWAY}, {6, -6},
};

int lowest_direction(const struct ground *g, int64_t i, int64_t j)
{
	float lowest = INFINITY;
	int best = 0;

	for (int d = 0; d < DIRECTIONS; d++) {
		const float h = height(g, i + directions[d][0], j + directions[d][1]);

		if (h < lowest) {
			lowest = h;
			best = d;
		}
	}
	return best;
}

/* ---- Training -------------------------------------------------------------------------------- */

bool make_parameters(struct model *m, int64_t count)
{
	const size_t bytes = (size_t)count * sizeof(float);

	m->count = count;
	m->value = allocate(4 * bytes);
	if (!m->value)
		return false;
	memset(m->value, 0, 4 * bytes);
	m->gradient = m->value + count;
	m->first = m->gradient + count;
	m->second = m->first + count;
	return true;
}

double squared_error(const float *y, const float *t, int outputs, float *dy)
{
	double sum = 0;

	for (int i = 0; i < outputs; i++) {
		const double e = (double)y[i] - (double)t[i];

		sum += e * e;
		if (dy)
			dy[i] = (float)(2 * e);
	}
	return sum;
}

/* Adam (Kingma and Ba 2015); step counts from 1 */
static void adam(struct model *m, double rate, int step)
{
	const float by = (float)(rate * sqrt(1 - pow(0.999, step)) / (1 - pow(0.9, step)));

	for (int64_t i = 0; i < m->count; i++) {
		const float g = m->gradient[i];

		m->first[i] += 0.1f * (g - m->first[i]);
		m->second[i] += 0.001f * (g * g - m->second[i]);
		m->value[i] -= by * m->first[i] / (sqrtf(m->second[i]) + 1e-8f);
	}
}

/* The mean loss over places, and the share that is right (NULL: not wanted) */
static int measure(struct model *m, const struct places *p, double *loss, double *right)
{
	float *y = allocate((size_t)(m->batch * m->outputs) * sizeof(float));
	double sum = 0;
	int64_t good = 0;
	int status = y ? HZ_OK : HZ_ENOMEM;

	for (int64_t at = 0; at < p->count && !status; at += m->batch) {
		const int64_t left = p->count - at, count = left < m->batch ? left : m->batch;

		status = m->forward(m, p->x + at * m->inputs, count, y);
		for (int64_t i = 0; i < count && !status; i++) {
			const float *answer = y + i * m->outputs, *t = p->t + (at + i) * m->outputs;

			sum += m->loss(answer, t, m->outputs, NULL);
			good += m->right && m->right(answer, t, m->outputs);
		}
	}
	free(y);
	*loss = p->count ? sum / (double)p->count : 0;
	if (right)
		*right = p->count ? (double)good / (double)p->count : 0;
	return status;
}

static int take_point(struct model *m, const struct places *train, const struct places *test)
{
	const int at = m->points;
	int status = measure(m, train, &m->train[at], NULL);

	if (!status)
		status = measure(m, test, &m->test[at], &m->correct[at]);
	m->points++;
	if (!status && m->show) {
		progress_clear();
		m->show(m);
		fflush(stdout);
	}
	return status;
}

/* Trains on one batch: forward, backward, step; y is scratch for the answers. */
static int train_batch(struct model *m, const struct places *p, int64_t at, double rate, int step,
		       float *y)
{
	const float *x = p->x + at * m->inputs;
	int status = m->forward(m, x, m->batch, y);

	for (int64_t i = 0; i < m->batch && !status; i++) {
		float *answer = y + i * m->outputs;

		m->loss(answer, p->t + (at + i) * m->outputs, m->outputs, answer);
		for (int k = 0; k < m->outputs; k++)
			answer[k] /= (float)m->batch;
	}
	if (!status)
		status = m->backward(m, x, y);
	if (!status)
		adam(m, rate, step);
	return status;
}

int train_model(struct model *m, const struct places *train, const struct places *test)
{
	float *y = allocate((size_t)(m->batch * m->outputs) * sizeof(float));
	const int64_t batches = train->count / m->batch;
	int status = y ? HZ_OK : HZ_ENOMEM, step = 0;

	m->points = 0;
	for (int epoch = 0; epoch <= m->epochs && !status; epoch++) {
		const double start = now();

		for (int64_t b = 0; b < batches && epoch < m->epochs && !status; b++) {
			const double done = (double)step / (double)(batches * m->epochs);
			const double rate =
				m->decay ? m->rate * 0.5 * (1 + cos(PI * done)) : m->rate;

			if (b == 0 && epoch % m->shown == 0) {
				const double shown_at = now();

				status = take_point(m, train, test);
				m->seconds -= now() - shown_at;
			}
			progress("demo: training %s, %d %% done", m->name, (int)(100 * done));
			if (!status)
				status = train_batch(m, train, b * m->batch, rate, ++step, y);
		}
		m->seconds += now() - start;
	}
	if (!status)
		status = take_point(m, train, test);
	progress_clear();
	free(y);
	return status;
}
