/*
 * stream.c - the library between an application's own CUDA calls, on its stream and in its graph
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A cudaStream_t is what hz_set_stream() takes, and a view may point to memory of cudaMalloc().
 * The library neither synchronises nor allocates behind the application's back, so its calls are
 * captured with those around them: here a copy in, a rotation with quantization to 8 bits, its
 * inverse, a copy out, as one graph that is launched again and again with new data.
 *
 *     cc stream.c $(pkg-config --cflags --libs --static hurwitz) -lcudart
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>
#include <hurwitz.h>

#define ROWS 512
#define N 1024
#define LAUNCHES 3

static hz_context *ctx;

static void try(int status)
{
	if (status == HZ_OK)
		return;
	fprintf(stderr, "stream: %s\n", hz_errmsg(ctx));
	exit(1);
}

static void try_cuda(cudaError_t error)
{
	if (error == cudaSuccess)
		return;
	fprintf(stderr, "stream: %s\n", cudaGetErrorString(error));
	exit(1);
}

int main(void)
{
	const size_t bytes = (size_t)ROWS * N * sizeof(float);
	hz_options options = {.device = HZ_CUDA};
	cudaStream_t stream;
	cudaGraph_t graph;
	cudaGraphExec_t launchable;
	float *in, *out, *x, *scale;
	int8_t *q;
	hz_tensor vx, vq, vscale;
	double worst = 0;
	int device;

	/* The library takes the device that the runtime has made current, in the same context. */
	if (cudaGetDevice(&device) != cudaSuccess) {
		fprintf(stderr, "stream: there is no GPU\n");
		return 77;
	}
	options.device = HZ_CUDA + device;
	if (hz_open(&ctx, &options) != HZ_OK) {
		fprintf(stderr, "stream: %s\n", hz_open_errmsg());
		return 77;
	}
	try_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	try_cuda(cudaMallocHost((void **)&in, bytes));
	try_cuda(cudaMallocHost((void **)&out, bytes));
	try_cuda(cudaMalloc((void **)&x, bytes));
	try_cuda(cudaMalloc((void **)&q, (size_t)ROWS * N));
	try_cuda(cudaMalloc((void **)&scale, ROWS * sizeof(float)));
	vx = hz_tensor_2d(x, HZ_F32, hz_device(ctx), ROWS, N);
	vq = hz_tensor_2d(q, HZ_S8, hz_device(ctx), ROWS, N);
	vscale = hz_tensor_2d(scale, HZ_F32, hz_device(ctx), ROWS, 1);

	/* Device code is loaded before: that cannot be captured. */
	try(hz_prepare(ctx));
	try(hz_set_stream(ctx, stream));
	try_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	try_cuda(cudaMemcpyAsync(x, in, bytes, cudaMemcpyHostToDevice, stream));
	try(hz_hadamard_quantize(ctx, &vx, &vq, &vscale, NULL));
	try(hz_dequantize_hadamard(ctx, &vq, &vscale, &vx, NULL));
	try_cuda(cudaMemcpyAsync(out, x, bytes, cudaMemcpyDeviceToHost, stream));
	try_cuda(cudaStreamEndCapture(stream, &graph));
	try_cuda(cudaGraphInstantiateWithFlags(&launchable, graph, 0));

	for (int launch = 0; launch < LAUNCHES; launch++) {
		double error = 0, all = 0;

		for (int i = 0; i < ROWS * N; i++)
			in[i] = sinf((float)(i % 7919 + 31 * launch));
		try_cuda(cudaGraphLaunch(launchable, stream));
		try_cuda(cudaStreamSynchronize(stream));
		for (int i = 0; i < ROWS * N; i++) {
			error += ((double)out[i] - in[i]) * ((double)out[i] - in[i]);
			all += (double)in[i] * in[i];
		}
		error = sqrt(error / all);
		printf("launch %d: error %.4f\n", launch, error);
		worst = error > worst ? error : worst;
	}

	/* The graph before the context, whose device code it calls */
	try_cuda(cudaGraphExecDestroy(launchable));
	try_cuda(cudaGraphDestroy(graph));
	hz_close(ctx);
	cudaFree(x);
	cudaFree(q);
	cudaFree(scale);
	cudaFreeHost(in);
	cudaFreeHost(out);
	cudaStreamDestroy(stream);
	return worst > 0 && worst < 0.05 ? 0 : 1;
}
