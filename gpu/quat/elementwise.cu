/*
 * elementwise.cu - elementwise quaternion operations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Each operation of ops.cuh has a strided kernel for any operands and dtype, and contiguous kernels
 * for f32, f16 and bf16, whose threads have several 16-byte pieces in flight.
 */
#include "gpu/quat/contiguous.cuh"
#include "gpu/device/cp_async.cuh"

/* ---- Strided operands: groups of 16 bytes of each component ---------------------------------- */

/*
 * A group of 4 quaternions of f32 (SIZE = 4) or 8 of 16 bits (SIZE = 2), by component. In memory
 * operands are planar, contiguous (interleaved), or have arbitrary strides. One or two quaternions
 * at a time leave from word 0 and enter at word 3 of each component, so that a loop over them need
 * not be unrolled.
 */
template <int SIZE>
struct group {

	uint32_t w[4][4];

	static __device__ __forceinline__ bool has(operand_kind kind, int real, int c)
	{
		return kind == REAL ? c == 0 : kind == QUATERNION || c > 0 || real;
	}

	/*
	 * Interleaved to planar: four pieces of contiguous quaternions to 16 bytes of each
	 * component; or back. xyzw: the order in memory.
	 */
	__device__ __forceinline__ void transpose(bool back, bool xyzw)
	{
		uint32_t v[4][4];

#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				v[i][c] = xyzw && back ? w[(i + 1) % 4][c] : w[i][c];
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int c = 0; c < 4; c++) {
				const uint32_t halves[2] = {0x5410, 0x7632}; /* low, high halves */

				if (SIZE == 4)
					w[c][i] = v[i][c];
				else if (back)
					w[c][i] = __byte_perm(v[2 * (i % 2)][c],
							      v[2 * (i % 2) + 1][c],
							      halves[i / 2]);
				else
					w[c][i] = __byte_perm(v[i][c / 2], v[i][2 + c / 2],
							      halves[c % 2]);
			}
		if (!xyzw || back)
			return;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint32_t last = w[3][i];

			w[3][i] = w[2][i], w[2][i] = w[1][i], w[1][i] = w[0][i], w[0][i] = last;
		}
	}

	/* Whether pieces of the operand are contiguous quaternions */
	static __device__ __forceinline__ bool is_whole(const hzi_quat_operand &o,
							operand_kind kind)
	{
		return kind == QUATERNION && o.dense >= HZI_QUAT_INTERLEAVED;
	}

	/* Transposes among four lanes: piece i of lane j becomes piece j of lane i. */
	__device__ __forceinline__ void exchange(void)
	{
#pragma unroll
		for (int step = 1; step < 4; step *= 2) {
			const bool upper = threadIdx.x & step;

#pragma unroll
			for (int i = 0; i < 4; i++) {
				if (i & step)
					continue;
#pragma unroll
				for (int c = 0; c < 4; c++) {
					uint32_t &low = w[i][c], &high = w[i | step][c];
					const uint32_t other = __shfl_xor_sync(
						~0u, upper ? low : high, step);

					low = upper ? other : low;
					high = upper ? high : other;
				}
			}
		}
	}

	/* Two 16-bit elements, `step` elements apart */
	static __device__ __forceinline__ uint32_t halves(const char *src, int64_t step)
	{
		return *(const uint16_t *)src | *(const uint16_t *)(src + 2 * step) << 16;
	}

	/*
	 * adjacent: four lanes have adjacent groups; they read and write whole sectors and exchange
	 * their pieces.
	 */
	__device__ __forceinline__ void load(const hzi_quat_operand &o, operand_kind kind, int real,
					     int64_t at, int64_t step, bool adjacent)
	{
		if (is_whole(o, kind)) {
			const uint4 *src = (const uint4 *)((const char *)o.data + at * SIZE);

			if (adjacent)
				src -= 3 * (threadIdx.x % 4);
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint4 u = src[adjacent ? 4 * i : i];

				w[i][0] = u.x, w[i][1] = u.y, w[i][2] = u.z, w[i][3] = u.w;
			}
			return;
		}
#pragma unroll
		for (int c = 0; c < 4; c++) {
			const char *const src = (const char *)o.data + (at + o.comp[c]) * SIZE;

			if (!has(kind, real, c)) {
#pragma unroll
				for (int i = 0; i < 4; i++)
					w[c][i] = 0;
			} else if (o.dense == HZI_QUAT_PLANAR) {
				const uint4 u = *(const uint4 *)src;

				w[c][0] = u.x, w[c][1] = u.y, w[c][2] = u.z, w[c][3] = u.w;
			} else {
#pragma unroll
				for (int i = 0; i < 4; i++)
					w[c][i] = SIZE == 4 ?
						  *(const uint32_t *)(src + 4 * i * step) :
						  halves(src + 4 * i * step, step);
			}
		}
	}

	/* Converts what load() read, once all loads are in flight. */
	__device__ __forceinline__ void unpack(const hzi_quat_operand &o, operand_kind kind,
					       bool adjacent)
	{
		if (!is_whole(o, kind))
			return;
		if (adjacent)
			exchange();
		transpose(false, o.dense == HZI_QUAT_INTERLEAVED_XYZW);
	}

	__device__ __forceinline__ void store(const hzi_quat_operand &o, operand_kind kind,
					      int real, int64_t at, int64_t step, bool adjacent)
	{
		if (is_whole(o, kind)) {
			uint4 *dst = (uint4 *)((char *)o.data + at * SIZE);

			transpose(true, o.dense == HZI_QUAT_INTERLEAVED_XYZW);
			if (adjacent) {
				exchange();
				dst -= 3 * (threadIdx.x % 4);
			}
#pragma unroll
			for (int i = 0; i < 4; i++)
				dst[adjacent ? 4 * i : i] =
					make_uint4(w[i][0], w[i][1], w[i][2], w[i][3]);
			return;
		}
#pragma unroll
		for (int c = 0; c < 4; c++) {
			char *const dst = (char *)o.data + (at + o.comp[c]) * SIZE;

			if (!has(kind, real, c))
				continue;
			if (o.dense == HZI_QUAT_PLANAR) {
				*(uint4 *)dst = make_uint4(w[c][0], w[c][1], w[c][2], w[c][3]);
				continue;
			}
#pragma unroll
			for (int i = 0; i < 4; i++) {
				if (SIZE == 4) {
					*(uint32_t *)(dst + 4 * i * step) = w[c][i];
					continue;
				}
				*(uint16_t *)(dst + 4 * i * step) = (uint16_t)w[c][i];
				*(uint16_t *)(dst + (4 * i + 2) * step) = w[c][i] >> 16;
			}
		}
	}

	/* Quaternion e of word 0 */
	__device__ __forceinline__ quat get(int dtype, int e) const
	{
		float f[4];

#pragma unroll
		for (int c = 0; c < 4; c++)
			f[c] = SIZE == 4 ? __uint_as_float(w[c][0])
			       : dtype == HZ_F16 ? e ? f16_high(w[c][0]) : f16_low(w[c][0])
						 : e ? bf16_high(w[c][0]) : bf16_low(w[c][0]);
		return {f[0], f[1], f[2], f[3]};
	}

	/* Appends quaternion a, or with 16 bits a and b. */
	__device__ __forceinline__ void put(int dtype, quat a, quat b)
	{
		const float low[4] = {a.w, a.x, a.y, a.z}, high[4] = {b.w, b.x, b.y, b.z};

#pragma unroll
		for (int c = 0; c < 4; c++) {
			next(c);
			w[c][3] = SIZE == 4 ? __float_as_uint(low[c])
				  : dtype == HZ_F16 ? to_f16x2(low[c], high[c])
						    : to_bf16x2(low[c], high[c]);
		}
	}

	__device__ __forceinline__ void next(int c)
	{
#pragma unroll
		for (int i = 0; i < 3; i++)
			w[c][i] = w[c][i + 1];
	}
};

template <class OP, int SIZE>
HZ_DEVICE void run_group(const hzi_quat_job &p, const int64_t (&at)[OP::inputs + OP::outputs],
			 bool adjacent)
{
	constexpr int IN = OP::inputs, OUT = OP::outputs, EACH = 4 / SIZE;
	const int last = p.ndim - 1;
	group<SIZE> in[IN], out[OUT];
	OP op;

#pragma unroll
	for (int n = 0; n < IN; n++)
		in[n].load(p.at[n], OP::kind(n), 0, at[n], p.at[n].stride[last], adjacent);
#pragma unroll
	for (int n = 0; n < OUT; n++)
		if (op.adds(p) && p.at[IN + n].data)
			out[n].load(p.at[IN + n], OP::kind(IN + n), p.real, at[IN + n],
				    p.at[IN + n].stride[last], adjacent);
#pragma unroll
	for (int n = 0; n < IN; n++)
		in[n].unpack(p.at[n], OP::kind(n), adjacent);
#pragma unroll
	for (int n = 0; n < OUT; n++)
		if (op.adds(p) && p.at[IN + n].data)
			out[n].unpack(p.at[IN + n], OP::kind(IN + n), adjacent);
#pragma unroll 1
	for (int i = 0; i < 4; i++) {
		quat results[EACH][OUT];

#pragma unroll
		for (int e = 0; e < EACH; e++) {
			quat one[IN];

#pragma unroll
			for (int n = 0; n < IN; n++)
				one[n] = in[n].get(p.dtype, e);
			op.run(p, one, results[e]);
		}
#pragma unroll
		for (int n = 0; n < IN; n++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				in[n].next(c);
#pragma unroll
		for (int n = 0; op.adds(p) && n < OUT; n++)
#pragma unroll
			for (int e = 0; e < EACH; e++)
				results[e][n] = quat_add(results[e][n], out[n].get(p.dtype, e));
#pragma unroll
		for (int n = 0; n < OUT; n++)
			out[n].put(p.dtype, results[0][n], results[EACH - 1][n]);
	}
#pragma unroll
	for (int n = 0; n < OUT; n++)
		if (p.at[IN + n].data)
			out[n].store(p.at[IN + n], OP::kind(IN + n), p.real, at[IN + n],
				     p.at[IN + n].stride[last], adjacent);
}

/* p.groups of the last dimension, or with 0 one quaternion at a time */
template <class OP>
HZ_DEVICE void run_strided(const hzi_quat_job &p)
{
	constexpr int N = OP::inputs + OP::outputs;
	const int64_t all = (int64_t)gridDim.x * HZI_QUAT_THREADS;
	const int lane = threadIdx.x % 32, last = p.ndim - 1;
	const int count = !p.groups ? 1 : p.dtype == HZ_F32 ? 4 : 8;
	int64_t i = (int64_t)blockIdx.x * HZI_QUAT_THREADS + threadIdx.x;

	/* Whole warps, because lanes exchange what they store */
	for (; i - lane < p.count; i += all) {
		const int64_t row = !p.groups ? i : i >> 31 ? i / p.groups
						   : (uint32_t)i / (uint32_t)p.groups;
		const int64_t begin = p.groups ? count * (i - row * p.groups) : 0;
		const int64_t end = p.groups ? p.shape[last] : 1;
		const bool full = p.groups && i < p.count && begin + count <= end;
		const bool adjacent = __all_sync(~0u, full && begin >= count * (lane % 4));
		int64_t at[N] = {};

		if (i >= p.count)
			continue;

		add_offsets<N>(p, 0, p.groups ? last : p.ndim, row, at);
#pragma unroll
		for (int n = 0; p.groups && n < N; n++)
			at[n] += begin * p.at[n].stride[last];
		if (full) {
			if (p.dtype == HZ_F32)
				run_group<OP, 4>(p, at, adjacent);
			else
				run_group<OP, 2>(p, at, adjacent);
			continue;
		}
#pragma unroll 1
		for (int64_t l = begin;;) {
			run_one<OP>(p, at);
			if (++l >= end)
				break;
#pragma unroll
			for (int n = 0; n < N; n++)
				at[n] += p.at[n].stride[last];
		}
	}
}

/* ---- Contiguous operands --------------------------------------------------------------------- */

/*
 * Each block has HZI_QUAT_BLOCK 16-byte pieces of a row, the last dimension; a warp has portions of
 * them (contiguous.cuh). Operands are contiguous there, or one quaternion for the row.
 */

/*
 * A full portion of a warp; at: its first element in each operand. Callers pass xyzw as a
 * constant, since code for both orders takes registers.
 */
template <class OP, int DTYPE, int COUNT>
HZ_DEVICE void run_portion(const hzi_quat_job &p, const int64_t (&at)[OP::inputs + OP::outputs],
			   bool xyzw, uint32_t *scratch)
{
	constexpr int IN = OP::inputs, OUT = OP::outputs, EACH = piece<DTYPE>::each;
	portion<DTYPE, COUNT> in[IN], out[OUT];
	OP op;

#pragma unroll
	for (int n = 0; n < IN; n++)
		in[n].load(p.at[n], OP::kind(n), at[n]);
#pragma unroll
	for (int n = IN; n < IN + OUT; n++)
		if (op.adds(p) && p.at[n].data)
			out[n - IN].load(p.at[n], OP::kind(n), at[n]);
#pragma unroll
	for (int n = 0; n < IN; n++)
		in[n].unpack(p.at[n], OP::kind(n), xyzw, scratch);
#pragma unroll
	for (int n = IN; n < IN + OUT; n++)
		if (op.adds(p) && p.at[n].data)
			out[n - IN].unpack(p.at[n], OP::kind(n), xyzw, scratch);
#pragma unroll
	for (int u = 0; u < COUNT; u++) {
		quat results[OUT][EACH];

#pragma unroll
		for (int e = 0; e < EACH; e++) {
			quat one[IN], result[OUT];

#pragma unroll
			for (int n = 0; n < IN; n++)
				one[n] = in[n].of[u].get(OP::kind(n), false, e);
			op.run(p, one, result);
#pragma unroll
			for (int n = 0; n < OUT; n++)
				results[n][e] = result[n];
		}
#pragma unroll
		for (int n = 0; op.adds(p) && n < OUT; n++)
#pragma unroll
			for (int e = 0; e < EACH; e++)
				results[n][e] = quat_add(results[n][e],
							 out[n].of[u].get(OP::kind(IN + n), true,
									  e));
#pragma unroll
		for (int n = 0; n < OUT; n++)
			out[n].of[u].put(OP::kind(IN + n), results[n]);
	}
#pragma unroll
	for (int n = 0; n < OUT; n++)
		if (p.at[IN + n].data)
			out[n].store(p.at[IN + n], OP::kind(IN + n), xyzw, at[IN + n], scratch);
}

/*
 * The same through shared memory, for operations whose pieces in flight would take so many
 * registers that few warps fit. tile: COUNT * 32 16-byte pieces per input.
 */
template <class OP, int DTYPE, int COUNT>
HZ_DEVICE void run_staged(const hzi_quat_job &p, const int64_t (&at)[OP::inputs + OP::outputs],
			  bool xyzw, uint4 *tile, uint32_t *scratch)
{
	constexpr int IN = OP::inputs, OUT = OP::outputs, EACH = piece<DTYPE>::each;
	constexpr int PIECES = 32 * COUNT, VECTORS = 24 * COUNT, SIZE = DTYPE == HZ_F32 ? 4 : 2;
	const int lane = threadIdx.x % 32;
	OP op;

#pragma unroll
	for (int n = 0; n < IN; n++) {
		const uint4 *const src = (const uint4 *)((const char *)p.at[n].data +
							 at[n] * SIZE);
		const int pieces = !p.at[n].dense ? 0 : p.at[n].width == 3 ? VECTORS : PIECES;

#pragma unroll
		for (int i = lane; i < PIECES; i += 32)
			if (i < pieces)
				cp_async(shared_address(tile + n * PIECES + i), src + i);
	}
	cp_async_wait_all();
	__syncwarp();
#pragma unroll
	for (int u = 0; u < COUNT; u++) {
		piece<DTYPE> in[IN];
		quat results[OUT][EACH];

#pragma unroll
		for (int n = 0; n < IN; n++) {
			const hzi_quat_operand &o = p.at[n];
			const uint4 *const src = tile + n * PIECES;

			if (OP::kind(n) == VECTOR && o.width == 3) {
#pragma unroll
				for (int i = 0; i < 3; i++)
					in[n].w[i] = ((const uint32_t *)src)[(32 * u + lane) * 3 +
									     i];
				in[n].w[3] = 0;
				continue;
			}
			uint4 v;

			if (o.dense) {
				v = src[32 * u + lane];
			} else if (DTYPE == HZ_F32) {
				v = *(const uint4 *)((const char *)o.data + at[n] * SIZE);
			} else {
				const uint2 h = *(const uint2 *)((const char *)o.data +
								 at[n] * SIZE);

				v = make_uint4(h.x, h.y, h.x, h.y);
			}
			in[n].w[0] = v.x, in[n].w[1] = v.y, in[n].w[2] = v.z, in[n].w[3] = v.w;
			in[n].unpack(OP::kind(n), xyzw);
		}
#pragma unroll
		for (int e = 0; e < EACH; e++) {
			quat one[IN], result[OUT];

#pragma unroll
			for (int n = 0; n < IN; n++)
				one[n] = in[n].get(OP::kind(n), false, e);
			op.run(p, one, result);
#pragma unroll
			for (int n = 0; n < OUT; n++)
				results[n][e] = result[n];
		}
#pragma unroll
		for (int n = 0; n < OUT; n++) {
			const hzi_quat_operand &o = p.at[IN + n];
			const operand_kind kind = OP::kind(IN + n);
			char *const dst = (char *)o.data + at[IN + n] * SIZE;
			piece<DTYPE> out;

			if (!o.data)
				continue;
			if (op.adds(p)) {
				const auto old = old_piece<DTYPE, COUNT>(o, kind, xyzw, dst, u);

#pragma unroll
				for (int e = 0; e < EACH; e++)
					results[n][e] = quat_add(results[n][e],
								 old.get(kind, true, e));
			}
			out.put(kind, results[n]);
			if (kind == VECTOR && o.width == 3) {
#pragma unroll
				for (int i = 0; i < 3; i++)
					scratch[(32 * u + lane) * 3 + i] = out.w[i];
				continue;
			}
			out.pack(kind, xyzw);
			((uint4 *)dst)[32 * u + lane] =
				make_uint4(out.w[0], out.w[1], out.w[2], out.w[3]);
		}
	}
	__syncwarp();
#pragma unroll
	for (int n = IN; n < IN + OUT; n++) {
		if (OP::kind(n) != VECTOR || !p.at[n].data || p.at[n].width != 3)
			continue;
#pragma unroll
		for (int i = lane; i < PIECES; i += 32)
			if (i < VECTORS)
				((uint4 *)((char *)p.at[n].data + at[n] * SIZE))[i] =
					((const uint4 *)scratch)[i];
	}
	__syncwarp();
}

template <class OP, int DTYPE>
HZ_DEVICE void run_contiguous(const hzi_quat_job &p)
{
	constexpr int N = OP::inputs + OP::outputs;
	constexpr int BLOCK = HZI_QUAT_BLOCK * piece<DTYPE>::each;
	constexpr bool VECTORS = OP::kind(0) == VECTOR || OP::kind(1) == VECTOR;
	constexpr bool STAGED = VECTORS && N > 3;
	/* what registers hold */
	constexpr int COUNT = N <= 3 ? 4 : 2, TILE = OP::inputs * COUNT * 32;
	constexpr int WARPS = HZI_QUAT_THREADS / 32;
	constexpr int EACH_WARP = portion<DTYPE, COUNT>::quaternions;
	__shared__ __align__(16) uint32_t scratch[VECTORS ? WARPS : 1][VECTORS ? COUNT * 96 : 1];
	__shared__ uint4 tile[STAGED ? WARPS : 1][STAGED ? TILE : 1];
	const int warp = threadIdx.x / 32;
	const int64_t row = blockIdx.x / p.row_blocks, last = p.ndim - 1;
	const int64_t begin = (int64_t)(blockIdx.x % p.row_blocks) * BLOCK;
	const int64_t n = p.ndim ? p.shape[last] : 1, end = min(begin + BLOCK, n);

	for (int64_t i = begin + warp * EACH_WARP; i < end; i += WARPS * EACH_WARP) {
		int64_t at[N], step[N];

#pragma unroll
		for (int o = 0; o < N; o++) {
			step[o] = p.ndim ? p.at[o].stride[last] : 0;
			at[o] = (p.ndim == 2 ? row * p.at[o].stride[0] : 0) + i * step[o];
		}
		if (i + EACH_WARP <= end) {
			if constexpr (STAGED) {
				run_staged<OP, DTYPE, COUNT>(p, at, p.xyzw, tile[warp],
							     scratch[warp]);
			} else if (p.xyzw) {
				run_portion<OP, DTYPE, COUNT>(p, at, true,
							      scratch[VECTORS ? warp : 0]);
			} else {
				run_portion<OP, DTYPE, COUNT>(p, at, false,
							      scratch[VECTORS ? warp : 0]);
			}
			continue;
		}
		for (int64_t l = threadIdx.x % 32; i + l < end; l += 32) {
			int64_t one[N];

#pragma unroll
			for (int o = 0; o < N; o++)
				one[o] = at[o] + l * step[o];
			run_one<OP>(p, one);
		}
	}
}

/* ---- The kernels ----------------------------------------------------------------------------- */

/* blocks: least blocks per SM that contiguous kernels are compiled for; 0: any */
#define CONTIGUOUS(name, blocks, type, dtype) \
	HZ_KERNEL(quat_##name##_contiguous_##type, hzi_quat_job, (HZI_QUAT_THREADS, blocks), \
		  run_contiguous<op_##name, dtype>(p))
#define KERNELS(name, blocks) \
	HZ_KERNEL(quat_##name##_strided, hzi_quat_job, (HZI_QUAT_THREADS, 2), \
		  run_strided<op_##name>(p)) \
	HZ_FLOAT_DTYPES(CONTIGUOUS, name, blocks)

KERNELS(mul, 0)
KERNELS(mul_bwd, 0)
KERNELS(axpy, 0)
KERNELS(map, 0)
KERNELS(norm, 0)
KERNELS(map_bwd, 0)
KERNELS(norm_bwd, 0)
KERNELS(rotate, 0)
KERNELS(rotate_bwd, 4)
