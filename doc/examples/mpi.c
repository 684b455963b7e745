/*
 * mpi.c - a training step on many machines: each rank its part of the batch, gradients summed
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Every rank holds all weights of a network of quaternions, 24 to 32 to 8, and a part of the batch.
 * hz_quat_linear_bwd() gives the gradients of that part, MPI_Allreduce() the sum of all, and every
 * rank takes the same step. Each uses the device that HURWITZ_DEVICE says, or the GPUs of its
 * machine in turn; gradients are summed on the host, from where they are copied to the device
 * again: a CUDA-aware MPI would take pointers of the device, after hz_sync(), and spare that.
 *
 *     mpicc mpi.c $(pkg-config --cflags --libs --static hurwitz) -lm
 *     mpirun -n 2 ./a.out
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <hurwitz.h>
#include <mpi.h>

#define BATCH 96		/* of all ranks together */
#define IN 24
#define HIDDEN 32
#define OUT 8
#define STEPS 40
#define RATE 0.1f

#define W1 (4 * HIDDEN * IN)
#define W2 (4 * OUT * HIDDEN)
#define WEIGHTS (W1 + W2)

static hz_context *ctx;

static void try(int status)
{
	if (status == HZ_OK)
		return;
	fprintf(stderr, "mpi: %s\n", hz_errmsg(ctx));
	MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Quaternions [rows, columns, 4] in fresh memory of the device */
static hz_tensor quaternions(int64_t rows, int64_t columns)
{
	hz_tensor t = hz_tensor_3d(NULL, HZ_F32, hz_device(ctx), rows, columns, 4);

	try(hz_alloc(ctx, &t.data, (size_t)(4 * rows * columns) * sizeof(float), t.device));
	return t;
}

/* To or from the host, of numbers in one row */
static void move(const hz_tensor *t, float *host, int to_device)
{
	const int64_t count = hz_tensor_count(t);
	hz_tensor there = hz_tensor_1d(t->data, HZ_F32, t->device, count);
	hz_tensor here = hz_tensor_1d(host, HZ_F32, HZ_CPU, count);

	try(to_device ? hz_copy(ctx, &here, &there) : hz_copy(ctx, &there, &here));
	try(hz_sync(ctx));
}

struct step {
	hz_tensor x, w1, w2, pre, h, y, dw1, dw2, dh;
	hz_quat_linear_opts silu;
};

static void forward(struct step *s)
{
	try(hz_quat_linear(ctx, &s->x, &s->w1, NULL, &s->h, &s->silu));
	try(hz_quat_linear(ctx, &s->h, &s->w2, NULL, &s->y, NULL));
}

/* y holds its gradient. */
static void backward(struct step *s)
{
	try(hz_quat_linear_bwd(ctx, &s->h, &s->w2, NULL, &s->y, &s->dh, &s->dw2, NULL, NULL));
	try(hz_quat_linear_bwd(ctx, &s->x, &s->w1, NULL, &s->dh, NULL, &s->dw1, NULL, &s->silu));
}

static void make_step(struct step *s, int64_t batch)
{
	size_t bytes;

	s->x = quaternions(batch, IN);
	s->w1 = quaternions(HIDDEN, IN);
	s->w2 = quaternions(OUT, HIDDEN);
	s->pre = quaternions(batch, HIDDEN);
	s->h = quaternions(batch, HIDDEN);
	s->y = quaternions(batch, OUT);
	s->dw1 = quaternions(HIDDEN, IN);
	s->dw2 = quaternions(OUT, HIDDEN);
	s->dh = quaternions(batch, HIDDEN);
	s->silu = (hz_quat_linear_opts){.activation = HZ_ACT_SILU, .pre = &s->pre};
	try(hz_record_begin(ctx));
	forward(s);
	backward(s);
	try(hz_record_end(ctx, &bytes));
	try(hz_reserve(ctx, bytes));
	/* The same seeds: the same weights on every rank */
	try(hz_quat_init(ctx, &s->w1, HZ_QUAT_POLAR, hz_quat_init_scale(IN, HIDDEN), 1, 0, 0));
	try(hz_quat_init(ctx, &s->w2, HZ_QUAT_POLAR, hz_quat_init_scale(HIDDEN, OUT), 2, 0, 0));
}

static void free_step(struct step *s)
{
	hz_tensor *const all[] = {&s->x, &s->w1, &s->w2, &s->pre, &s->h, &s->y, &s->dw1, &s->dw2,
				  &s->dh};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		try(hz_free(ctx, all[i]->data, all[i]->device));
}

/* The loss of items first to last of the batch, mean over all of it, and its gradients */
static double gradients(struct step *s, int first, int count, float *gradient)
{
	static float y[BATCH * OUT * 4], x[BATCH * IN * 4];
	double loss = 0;

	for (int i = 0; i < count * IN * 4; i++)
		x[i] = sinf((float)((i + first * IN * 4) * 13 % 4099));
	move(&s->x, x, 1);
	forward(s);
	move(&s->y, y, 0);
	/* What is to be learnt: each output the square of an input */
	for (int i = 0; i < count * OUT * 4; i++) {
		const float in = x[i / (OUT * 4) * IN * 4 + i % (OUT * 4)];
		const float e = y[i] - in * in;

		loss += (double)e * e / (BATCH * OUT);
		y[i] = 2 * e / (BATCH * OUT);
	}
	move(&s->y, y, 1);
	backward(s);
	move(&s->dw1, gradient, 0);
	move(&s->dw2, gradient + W1, 0);
	return loss;
}

/* How far the sum is from the gradient that one rank has of the whole batch, at the first step */
static double distance_to_whole(const float *sum)
{
	static float whole[WEIGHTS];
	struct step s;
	double e = 0, all = 0;

	make_step(&s, BATCH);
	gradients(&s, 0, BATCH, whole);
	free_step(&s);
	for (int i = 0; i < WEIGHTS; i++) {
		e += ((double)sum[i] - whole[i]) * ((double)sum[i] - whole[i]);
		all += (double)whole[i] * whole[i];
	}
	return sqrt(e / all);
}

int main(int argc, char **argv)
{
	static float weights[WEIGHTS], gradient[WEIGHTS];
	hz_options options = {0};
	struct step s;
	int rank, ranks, local, first, count, good;
	double begin = 0, loss = 0, apart = 0, low, high;
	MPI_Comm machine;
	hz_info info;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
	MPI_Comm_rank(machine, &local);
	if (hz_open(&ctx, &options) != HZ_OK) {
		fprintf(stderr, "mpi: %s\n", hz_open_errmsg());
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	hz_device_info(ctx, &info);
	if (!getenv("HURWITZ_DEVICE") && info.device != HZ_CPU && local % info.cuda_devices) {
		options.device = HZ_CUDA + local % info.cuda_devices;
		hz_close(ctx);
		if (hz_open(&ctx, &options) != HZ_OK) {
			fprintf(stderr, "mpi: %s\n", hz_open_errmsg());
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}

	first = BATCH * rank / ranks;
	count = BATCH * (rank + 1) / ranks - first;
	make_step(&s, count);
	move(&s.w1, weights, 0);
	move(&s.w2, weights + W1, 0);
	for (int step = 0; step <= STEPS; step++) {
		loss = gradients(&s, first, count, gradient);
		MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		MPI_Allreduce(MPI_IN_PLACE, gradient, WEIGHTS, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
		if (step == 0) {
			begin = loss;
			apart = distance_to_whole(gradient);
		}
		for (int i = 0; i < WEIGHTS; i++)
			weights[i] -= RATE * gradient[i];
		move(&s.w1, weights, 1);
		move(&s.w2, weights + W1, 1);
	}

	/* All ranks must have come to the same weights. */
	low = high = 0;
	for (int i = 0; i < WEIGHTS; i++)
		low = high += (double)weights[i] * (i % 97 + 1);
	MPI_Allreduce(MPI_IN_PLACE, &low, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
	MPI_Allreduce(MPI_IN_PLACE, &high, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	good = loss < 0.5 * begin && apart < 1e-5 && low == high;
	if (rank == 0)
		printf("%d ranks: loss %.4f, %.4f after %d steps; "
		       "gradients %.0e from those of one\n",
		       ranks, begin, loss, STEPS, apart);
	free_step(&s);
	hz_close(ctx);
	MPI_Comm_free(&machine);
	MPI_Finalize();
	return good ? 0 : 1;
}
