/*
 * planar.cu - quaternion products and their gradients, with planar operands
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A warp has a tile of the last dimension. Planar and contiguous operands come through shared
 * memory in 16-byte pieces, so that registers do not limit the bytes in flight; others, such as a
 * broadcast quaternion, are loaded where they are used.
 */
#include "gpu/quat/strided.cuh"
#include "gpu/quat/planar.h"
#include "gpu/device/cp_async.cuh"

#define WARPS (HZI_QUAT_THREADS / 32)

/*
 * Words of each component, one f32 or two 16-bit numbers, from the words of contiguous quaternions
 */
template <int DTYPE>
HZ_DEVICE void to_components(uint32_t (&w)[4], int dense)
{
	const uint32_t a = w[0], b = w[1], c = w[2], d = w[3];

	if (DTYPE != HZ_F32) {
		w[0] = __byte_perm(a, c, 0x5410), w[1] = __byte_perm(a, c, 0x7632);
		w[2] = __byte_perm(b, d, 0x5410), w[3] = __byte_perm(b, d, 0x7632);
	}
	if (dense == HZI_QUAT_INTERLEAVED_XYZW) {
		const uint32_t last = w[3];

		w[3] = w[2], w[2] = w[1], w[1] = w[0], w[0] = last;
	}
}

template <int DTYPE>
HZ_DEVICE void from_components(uint32_t (&w)[4], int dense)
{
	if (dense == HZI_QUAT_INTERLEAVED_XYZW) {
		const uint32_t first = w[0];

		w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = first;
	}
	const uint32_t a = w[0], b = w[1], c = w[2], d = w[3];

	if (DTYPE != HZ_F32) {
		w[0] = __byte_perm(a, b, 0x5410), w[1] = __byte_perm(c, d, 0x5410);
		w[2] = __byte_perm(a, b, 0x7632), w[3] = __byte_perm(c, d, 0x7632);
	}
}

/* COUNT: 16-byte pieces of an operand per lane */
template <int DTYPE, int COUNT>
struct tile {
	static constexpr int SIZE = DTYPE == HZ_F32 ? 4 : 2, EACH = DTYPE == HZ_F32 ? 1 : 2;
	static constexpr int PIECES = 32 * COUNT;	/* 16-byte pieces of an operand */
	static constexpr int PLANE = PIECES / 4;

	static __device__ __forceinline__ bool has(operand_kind kind, int real, int c)
	{
		return kind == REAL ? c == 0 : kind == QUATERNION || c > 0 || real;
	}

	/* Starts asynchronous copies of the first `full` quaternions of an operand. */
	static __device__ __forceinline__ void fetch(const hzi_quat_operand &o, operand_kind kind,
						     int real, int64_t at, int full, uint4 *dst)
	{
		if (o.dense == HZI_QUAT_STRIDED)
			return;
#pragma unroll
		for (int k = 0; k < COUNT; k++) {
			const int i = 32 * k + threadIdx.x % 32, c = i / PLANE;
			const char *src = (const char *)o.data + at * SIZE;
			bool wanted;

			if (o.dense == HZI_QUAT_PLANAR) {
				src += o.comp[c] * SIZE + i % PLANE * 16;
				wanted = has(kind, real, c) && i % PLANE * (16 / SIZE) < full;
			} else {
				src += 16 * i;
				wanted = i * EACH < full;
			}
			if (wanted)
				cp_async(shared_address(dst + i), src);
		}
	}

	/* The quaternions of this lane in part u of the tile */
	static __device__ __forceinline__ void get(const hzi_quat_operand &o, operand_kind kind,
						   int real, int dtype, int64_t at, int64_t step,
						   const uint4 *src, int u, quat (&q)[EACH])
	{
		const int i = 32 * u + threadIdx.x % 32;
		uint32_t w[4];

		if (o.dense == HZI_QUAT_STRIDED) {
#pragma unroll
			for (int e = 0; e < EACH; e++)
				q[e] = operand_old(o, kind, dtype, real,
						   at + (EACH * i + e) * step);
			return;
		}
		if (o.dense == HZI_QUAT_PLANAR) {
#pragma unroll
			for (int c = 0; c < 4; c++)
				w[c] = has(kind, real, c) ?
				       ((const uint32_t *)src)[c * PIECES + i] : 0;
		} else {
			const uint4 v = src[i];

			w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
			to_components<DTYPE>(w, o.dense);
			if (kind == VECTOR && !real)
				w[0] = 0;
		}
#pragma unroll
		for (int e = 0; e < EACH; e++)
			q[e] = {number_in<DTYPE>(w, e), number_in<DTYPE>(w + 1, e),
				number_in<DTYPE>(w + 2, e), number_in<DTYPE>(w + 3, e)};
	}

	static __device__ __forceinline__ void put(const hzi_quat_operand &o, operand_kind kind,
						   int real, int dtype, int64_t at, int64_t step,
						   int u, const quat (&q)[EACH])
	{
		const int i = 32 * u + threadIdx.x % 32;
		const quat a = q[0], b = q[EACH - 1];
		char *const dst = (char *)o.data + at * SIZE;
		uint32_t w[4] = {word_of<DTYPE>(a.w, b.w), word_of<DTYPE>(a.x, b.x),
				 word_of<DTYPE>(a.y, b.y), word_of<DTYPE>(a.z, b.z)};

		if (o.dense == HZI_QUAT_STRIDED) {
#pragma unroll
			for (int e = 0; e < EACH; e++)
				operand_store(o, kind, dtype, real, at + (EACH * i + e) * step,
					      q[e]);
		} else if (o.dense == HZI_QUAT_PLANAR) {
#pragma unroll
			for (int c = 0; c < 4; c++)
				if (has(kind, real, c))
					((uint32_t *)(dst + o.comp[c] * SIZE))[i] = w[c];
		} else {
			from_components<DTYPE>(w, o.dense);
			((uint4 *)dst)[i] = make_uint4(w[0], w[1], w[2], w[3]);
		}
	}
};

/* p.groups tiles of the last dimension */
template <class OP, int DTYPE, int COUNT>
HZ_DEVICE void run_planar(const hzi_quat_job &p)
{
	typedef tile<DTYPE, COUNT> T;
	constexpr int IN = OP::inputs, N = IN + OP::outputs, EACH = T::EACH;
	constexpr int ALL = 32 * COUNT * EACH;	/* quaternions of a tile */
	__shared__ uint4 scratch[WARPS][N * T::PIECES];
	uint4 *const mine = scratch[threadIdx.x / 32];
	const int last = p.ndim - 1;
	const int64_t step = (int64_t)gridDim.x * WARPS;
	int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
	OP op;

	for (; t < p.count; t += step) {
		const int64_t row = t >> 31 ? t / p.groups : (uint32_t)t / (uint32_t)p.groups;
		const int64_t begin = ALL * (t - row * p.groups);
		const int count = (int)min((int64_t)ALL, p.shape[last] - begin);
		const int full = count & -(16 / T::SIZE);
		int64_t at[N] = {};

		add_offsets<N>(p, 0, last, row, at);
#pragma unroll
		for (int n = 0; n < N; n++)
			at[n] += begin * p.at[n].stride[last];
#pragma unroll
		for (int n = 0; n < N; n++)
			if (n < IN || (op.adds(p) && p.at[n].data))
				T::fetch(p.at[n], OP::kind(n), n >= IN && p.real, at[n], full,
					 mine + n * T::PIECES);
		cp_async_wait_all();
		__syncwarp();
		/* Not unrolled: the pieces are in shared memory. */
#pragma unroll 1
		for (int u = 0; u < COUNT; u++) {
			quat in[IN][EACH], out[N - IN][EACH];

			if ((32 * u + (int)threadIdx.x % 32) * EACH >= full)
				continue;
#pragma unroll
			for (int n = 0; n < IN; n++)
				T::get(p.at[n], OP::kind(n), 0, p.dtype, at[n],
				       p.at[n].stride[last], mine + n * T::PIECES, u, in[n]);
#pragma unroll
			for (int e = 0; e < EACH; e++) {
				quat one[IN], result[N - IN];

#pragma unroll
				for (int n = 0; n < IN; n++)
					one[n] = in[n][e];
				op.run(p, one, result);
#pragma unroll
				for (int n = 0; n < N - IN; n++)
					out[n][e] = result[n];
			}
#pragma unroll
			for (int n = IN; n < N; n++) {
				quat old[EACH];

				if (!p.at[n].data)
					continue;
				if (op.adds(p)) {
					T::get(p.at[n], OP::kind(n), p.real, p.dtype, at[n],
					       p.at[n].stride[last], mine + n * T::PIECES, u, old);
#pragma unroll
					for (int e = 0; e < EACH; e++)
						out[n - IN][e] = quat_add(out[n - IN][e], old[e]);
				}
				T::put(p.at[n], OP::kind(n), p.real, p.dtype, at[n],
				       p.at[n].stride[last], u, out[n - IN]);
			}
		}
		if (full + (int)threadIdx.x % 32 < count) {
#pragma unroll
			for (int n = 0; n < N; n++)
				at[n] += (full + (int)threadIdx.x % 32) * p.at[n].stride[last];
			run_one<OP>(p, at);
		}
		__syncwarp();
	}
}

#define KERNEL(name, count, type, dtype) \
	HZ_KERNEL(quat_##name##_planar_##type, hzi_quat_job, (HZI_QUAT_THREADS, 4), \
		  run_planar<op_##name, dtype, count>(p))

HZ_FLOAT_DTYPES(KERNEL, mul, HZI_QUAT_TILE_MUL)
HZ_FLOAT_DTYPES(KERNEL, mul_bwd, HZI_QUAT_TILE_MUL_BWD)
