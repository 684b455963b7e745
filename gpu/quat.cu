/*
 * quat.cu - elementwise operations of quaternions
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Of each operation of quat_ops.cuh a kernel for every dtype is made, for whole quaternions one
 * after the other, in 16-byte pieces of which a thread has several under way; and one for anything
 * else.
 */
#include "gpu/quat_any.cuh"

/* ---- Neighbours, 16 bytes of each component -------------------------------------------------- */

/*
 * Four of f32 or eight of 16 bits, component by component. In memory the components are in planes,
 * or quaternions side by side, or anything else.
 */
template <int DTYPE>
struct group {
	static constexpr int SIZE = DTYPE == HZ_F32 ? 4 : 2, COUNT = 16 / SIZE;

	uint32_t w[4][4];

	static __device__ __forceinline__ bool has(operand_kind kind, int real, int c)
	{
		return kind == REAL ? c == 0 : kind == QUATERNION || c > 0 || real;
	}

	/* From four pieces of whole quaternions to those of components, or back. */
	__device__ __forceinline__ void turn(bool back)
	{
		uint32_t v[4][4];

#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				v[i][c] = w[i][c];
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int c = 0; c < 4; c++) {
				const uint32_t halves[2] = {0x5410, 0x7632};	/* lower, upper */

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
	}

	/* Piece i of lane j becomes piece j of lane i, of four lanes. */
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

	/* Two elements of 16 bits, step elements apart. */
	static __device__ __forceinline__ uint32_t halves(const char *from, int64_t step)
	{
		return *(const uint16_t *)from | *(const uint16_t *)(from + 2 * step) << 16;
	}

	/*
	 * beside: four lanes have groups that lie side by side, so that they read and write whole
	 * sectors and exchange their pieces.
	 */
	__device__ __forceinline__ void load(const hzi_quat_operand &o, operand_kind kind, int real,
					     int64_t at, int64_t step, bool beside)
	{
		if (kind == QUATERNION && o.dense == HZI_QUAT_WHOLE) {
			const uint4 *from = (const uint4 *)((const char *)o.data + at * SIZE);

			if (beside)
				from -= 3 * (threadIdx.x % 4);
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint4 u = from[beside ? 4 * i : i];

				w[i][0] = u.x, w[i][1] = u.y, w[i][2] = u.z, w[i][3] = u.w;
			}
			return;
		}
#pragma unroll
		for (int c = 0; c < 4; c++) {
			const char *const from = (const char *)o.data + (at + o.comp[c]) * SIZE;

			if (!has(kind, real, c)) {
#pragma unroll
				for (int i = 0; i < 4; i++)
					w[c][i] = 0;
			} else if (o.dense == HZI_QUAT_PLANES) {
				const uint4 u = *(const uint4 *)from;

				w[c][0] = u.x, w[c][1] = u.y, w[c][2] = u.z, w[c][3] = u.w;
			} else {
#pragma unroll
				for (int i = 0; i < 4; i++)
					w[c][i] = SIZE == 4 ?
						  *(const uint32_t *)(from + 4 * i * step) :
						  halves(from + 4 * i * step, step);
			}
		}
	}

	/* After all loads are under way. */
	__device__ __forceinline__ void settle(const hzi_quat_operand &o, operand_kind kind,
					       bool beside)
	{
		if (kind != QUATERNION || o.dense != HZI_QUAT_WHOLE)
			return;
		if (beside)
			exchange();
		turn(false);
	}

	__device__ __forceinline__ void store(const hzi_quat_operand &o, operand_kind kind,
					      int real, int64_t at, int64_t step, bool beside)
	{
		if (kind == QUATERNION && o.dense == HZI_QUAT_WHOLE) {
			uint4 *to = (uint4 *)((char *)o.data + at * SIZE);

			turn(true);
			if (beside) {
				exchange();
				to -= 3 * (threadIdx.x % 4);
			}
#pragma unroll
			for (int i = 0; i < 4; i++)
				to[beside ? 4 * i : i] =
					make_uint4(w[i][0], w[i][1], w[i][2], w[i][3]);
			return;
		}
#pragma unroll
		for (int c = 0; c < 4; c++) {
			char *const to = (char *)o.data + (at + o.comp[c]) * SIZE;

			if (!has(kind, real, c))
				continue;
			if (o.dense == HZI_QUAT_PLANES) {
				*(uint4 *)to = make_uint4(w[c][0], w[c][1], w[c][2], w[c][3]);
				continue;
			}
#pragma unroll
			for (int i = 0; i < 4; i++) {
				if (SIZE == 4) {
					*(uint32_t *)(to + 4 * i * step) = w[c][i];
					continue;
				}
				*(uint16_t *)(to + 4 * i * step) = (uint16_t)w[c][i];
				*(uint16_t *)(to + (4 * i + 2) * step) = w[c][i] >> 16;
			}
		}
	}

	__device__ __forceinline__ quat get(int e) const
	{
		return {number_in<DTYPE>(w[0], e), number_in<DTYPE>(w[1], e),
			number_in<DTYPE>(w[2], e), number_in<DTYPE>(w[3], e)};
	}

	/* Word i, of quaternion a, or of 16 bits a and b. */
	__device__ __forceinline__ void put(int i, quat a, quat b)
	{
		w[0][i] = word_of<DTYPE>(a.w, b.w);
		w[1][i] = word_of<DTYPE>(a.x, b.x);
		w[2][i] = word_of<DTYPE>(a.y, b.y);
		w[3][i] = word_of<DTYPE>(a.z, b.z);
	}
};

template <class OP, int DTYPE>
HZ_DEVICE void run_group(const hzi_quat_job &p, const int64_t (&at)[OP::inputs + OP::outputs],
			 bool beside)
{
	constexpr int IN = OP::inputs, OUT = OP::outputs, EACH = group<DTYPE>::COUNT / 4;
	const int last = p.ndim - 1;
	group<DTYPE> in[IN], out[OUT];
	OP op;

#pragma unroll
	for (int n = 0; n < IN; n++)
		in[n].load(p.at[n], OP::kind(n), 0, at[n], p.at[n].stride[last], beside);
#pragma unroll
	for (int n = 0; n < OUT; n++)
		if (op.adds(p) && p.at[IN + n].data)
			out[n].load(p.at[IN + n], OP::kind(IN + n), p.real, at[IN + n],
				    p.at[IN + n].stride[last], beside);
#pragma unroll
	for (int n = 0; n < IN; n++)
		in[n].settle(p.at[n], OP::kind(n), beside);
#pragma unroll
	for (int n = 0; n < OUT; n++)
		if (op.adds(p) && p.at[IN + n].data)
			out[n].settle(p.at[IN + n], OP::kind(IN + n), beside);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		quat results[EACH][OUT];

#pragma unroll
		for (int e = 0; e < EACH; e++) {
			quat one[IN];

#pragma unroll
			for (int n = 0; n < IN; n++)
				one[n] = in[n].get(EACH * i + e);
			op.run(p, one, results[e]);
		}
#pragma unroll
		for (int n = 0; op.adds(p) && n < OUT; n++)
#pragma unroll
			for (int e = 0; e < EACH; e++)
				results[e][n] = quat_add(results[e][n], out[n].get(EACH * i + e));
#pragma unroll
		for (int n = 0; n < OUT; n++)
			out[n].put(i, results[0][n], results[EACH - 1][n]);
	}
#pragma unroll
	for (int n = 0; n < OUT; n++)
		if (p.at[IN + n].data)
			out[n].store(p.at[IN + n], OP::kind(IN + n), p.real, at[IN + n],
				     p.at[IN + n].stride[last], beside);
}

/* p.groups of the last dimension, if there are such, else one at a time. */
template <class OP>
HZ_DEVICE void run_any(const hzi_quat_job &p)
{
	constexpr int N = OP::inputs + OP::outputs;
	const int64_t all = (int64_t)gridDim.x * HZI_QUAT_THREADS;
	int64_t i = (int64_t)blockIdx.x * HZI_QUAT_THREADS + threadIdx.x;

	for (; !p.groups && i < p.count; i += all) {
		int64_t at[N] = {};

		places_of<N>(p, 0, p.ndim, i, at);
		run_one<OP>(p, at);
	}
	/* Warps as wholes, whose lanes exchange what they store */
	for (const int lane = threadIdx.x % 32; p.groups && i - lane < p.count; i += all) {
		const int last = p.ndim - 1;
		const int64_t row = i >> 31 ? i / p.groups : (uint32_t)i / (uint32_t)p.groups;
		const int count = p.dtype == HZ_F32 ? 4 : 8;
		const int64_t begin = count * (i - row * p.groups);
		const bool full = i < p.count && begin + count <= p.shape[last];
		const bool beside = __all_sync(~0u, full && begin >= count * (lane % 4));
		int64_t at[N] = {};

		if (i >= p.count)
			continue;

		places_of<N>(p, 0, last, row, at);
#pragma unroll
		for (int n = 0; n < N; n++)
			at[n] += begin * p.at[n].stride[last];
		if (full) {
			if (p.dtype == HZ_F32)
				run_group<OP, HZ_F32>(p, at, beside);
			else if (p.dtype == HZ_F16)
				run_group<OP, HZ_F16>(p, at, beside);
			else
				run_group<OP, HZ_BF16>(p, at, beside);
			continue;
		}
		for (int64_t l = begin; l < p.shape[last]; l++) {
			run_one<OP>(p, at);
#pragma unroll
			for (int n = 0; n < N; n++)
				at[n] += p.at[n].stride[last];
		}
	}
}

/* ---- Operands that lie one after the other --------------------------------------------------- */

/*
 * Rows of the last dimension, a block each HZI_QUAT_BLOCK times 16 bytes of quaternions. A warp
 * takes portions of COUNT pieces a lane, a piece being a quaternion of f32 or two of 16 bits.
 * Operands lie without gaps, or are one quaternion for the row.
 *
 * The words of a piece: four of QUATERNION; x, y, z in three of VECTOR and their real parts in the
 * fourth; one of REAL.
 */
template <int DTYPE>
struct piece {
	static constexpr int each = DTYPE == HZ_F32 ? 1 : 2;

	uint32_t w[4];

	__device__ __forceinline__ float at(int i) const { return number_in<DTYPE>(w, i); }

	/* real: with what a vector has besides. */
	__device__ __forceinline__ quat get(operand_kind kind, bool real, int e) const
	{
		if (kind == REAL)
			return {at(e), 0, 0, 0};
		if (kind == VECTOR)
			return {real ? at(3 * each + e) : 0, at(3 * e), at(3 * e + 1),
				at(3 * e + 2)};
		return {at(4 * e), at(4 * e + 1), at(4 * e + 2), at(4 * e + 3)};
	}

	__device__ __forceinline__ void put(operand_kind kind, const quat (&q)[each])
	{
		const quat a = q[0], b = q[each - 1];

		if (kind == REAL) {
			w[0] = word_of<DTYPE>(a.w, b.w);
		} else if (kind == VECTOR) {
			w[0] = word_of<DTYPE>(a.x, a.y);
			w[1] = DTYPE == HZ_F32 ? word_of<DTYPE>(a.y, 0) : word_of<DTYPE>(a.z, b.x);
			w[2] = DTYPE == HZ_F32 ? word_of<DTYPE>(a.z, 0) : word_of<DTYPE>(b.y, b.z);
			w[3] = word_of<DTYPE>(a.w, b.w);
		} else if (DTYPE == HZ_F32) {
			w[0] = word_of<DTYPE>(a.w, 0), w[1] = word_of<DTYPE>(a.x, 0);
			w[2] = word_of<DTYPE>(a.y, 0), w[3] = word_of<DTYPE>(a.z, 0);
		} else {
			w[0] = word_of<DTYPE>(a.w, a.x), w[1] = word_of<DTYPE>(a.y, a.z);
			w[2] = word_of<DTYPE>(b.w, b.x), w[3] = word_of<DTYPE>(b.y, b.z);
		}
	}

	/* From four words of whole quaternions to those of VECTOR, and back. */
	__device__ __forceinline__ void to_vector(void)
	{
		const uint32_t a = w[0], b = w[1], c = w[2], d = w[3];

		if (DTYPE == HZ_F32) {
			w[0] = b, w[1] = c, w[2] = d, w[3] = a;
		} else {
			w[0] = __byte_perm(a, b, 0x5432);
			w[1] = __byte_perm(b, c, 0x7632);
			w[2] = d;
			w[3] = __byte_perm(a, c, 0x5410);
		}
	}

	__device__ __forceinline__ void from_vector(void)
	{
		const uint32_t a = w[0], b = w[1], c = w[2], d = w[3];

		if (DTYPE == HZ_F32) {
			w[0] = d, w[1] = a, w[2] = b, w[3] = c;
		} else {
			w[0] = __byte_perm(d, a, 0x5410);
			w[1] = __byte_perm(a, b, 0x5432);
			w[2] = __byte_perm(d, b, 0x7632);
			w[3] = c;
		}
	}
};

/* What a warp has of an operand. room: 12 bytes for each piece, for vectors of three. */
template <int DTYPE, int COUNT>
struct portion {
	static constexpr int each = piece<DTYPE>::each, size = DTYPE == HZ_F32 ? 4 : 2;
	static constexpr int quaternions = COUNT * 32 * each;

	piece<DTYPE> of[COUNT];

	/* Words of COUNT a lane, three times: a warp's vectors as they lie in memory. */
	static __device__ __forceinline__ uint32_t *unit(void *first, int i)
	{
		return (uint32_t *)first + (32 * i + threadIdx.x % 32) * COUNT;
	}

	__device__ __forceinline__ void load(const hzi_quat_operand &o, operand_kind kind,
					     int64_t at)
	{
		const int lane = threadIdx.x % 32;
		char *const from = (char *)o.data + at * size;

		if (kind == REAL) {
#pragma unroll
			for (int u = 0; u < COUNT; u++)
				of[u].w[0] = ((const uint32_t *)from)[32 * u + lane];
		} else if (kind == VECTOR && o.width == 3) {
#pragma unroll
			for (int i = 0; i < 3; i++) {
				if (COUNT == 4) {
					const uint4 v = *(const uint4 *)unit(from, i);

					of[0].w[i] = v.x, of[1 % COUNT].w[i] = v.y;
					of[2 % COUNT].w[i] = v.z, of[3 % COUNT].w[i] = v.w;
				} else {
					const uint2 v = *(const uint2 *)unit(from, i);

					of[0].w[i] = v.x, of[1].w[i] = v.y;
				}
			}
		} else if (o.dense) {
#pragma unroll
			for (int u = 0; u < COUNT; u++) {
				const uint4 v = ((const uint4 *)from)[32 * u + lane];

				of[u].w[0] = v.x, of[u].w[1] = v.y;
				of[u].w[2] = v.z, of[u].w[3] = v.w;
			}
		} else {
			uint4 v;

			if (DTYPE == HZ_F32) {
				v = *(const uint4 *)from;
			} else {
				const uint2 h = *(const uint2 *)from;

				v = make_uint4(h.x, h.y, h.x, h.y);
			}
#pragma unroll
			for (int u = 0; u < COUNT; u++) {
				of[u].w[0] = v.x, of[u].w[1] = v.y;
				of[u].w[2] = v.z, of[u].w[3] = v.w;
			}
		}
	}

	/* After all loads are under way. */
	__device__ __forceinline__ void settle(const hzi_quat_operand &o, operand_kind kind,
					       uint32_t *room)
	{
		if (kind != VECTOR)
			return;
		if (o.width != 3) {
#pragma unroll
			for (int u = 0; u < COUNT; u++)
				of[u].to_vector();
			return;
		}
#pragma unroll
		for (int i = 0; i < 3; i++)
#pragma unroll
			for (int u = 0; u < COUNT; u++)
				unit(room, i)[u] = of[u].w[i];
		__syncwarp();
#pragma unroll
		for (int u = 0; u < COUNT; u++) {
#pragma unroll
			for (int i = 0; i < 3; i++)
				of[u].w[i] = room[(32 * u + threadIdx.x % 32) * 3 + i];
			of[u].w[3] = 0;
		}
		__syncwarp();
	}

	__device__ __forceinline__ void store(const hzi_quat_operand &o, operand_kind kind,
					      int64_t at, uint32_t *room)
	{
		const int lane = threadIdx.x % 32;
		char *const to = (char *)o.data + at * size;

		if (kind == REAL) {
#pragma unroll
			for (int u = 0; u < COUNT; u++)
				((uint32_t *)to)[32 * u + lane] = of[u].w[0];
			return;
		}
		if (kind == VECTOR && o.width == 3) {
#pragma unroll
			for (int u = 0; u < COUNT; u++)
#pragma unroll
				for (int i = 0; i < 3; i++)
					room[(32 * u + lane) * 3 + i] = of[u].w[i];
			__syncwarp();
#pragma unroll
			for (int i = 0; i < 3; i++) {
				if (COUNT == 4)
					*(uint4 *)unit(to, i) = *(const uint4 *)unit(room, i);
				else
					*(uint2 *)unit(to, i) = *(const uint2 *)unit(room, i);
			}
			__syncwarp();
			return;
		}
#pragma unroll
		for (int u = 0; u < COUNT; u++) {
			if (kind == VECTOR)
				of[u].from_vector();
			((uint4 *)to)[32 * u + lane] =
				make_uint4(of[u].w[0], of[u].w[1], of[u].w[2], of[u].w[3]);
		}
	}
};

/* A warp's portion, which is full; at: where it begins in the operands. */
template <class OP, int DTYPE, int COUNT>
HZ_DEVICE void run_portion(const hzi_quat_job &p, const int64_t (&at)[OP::inputs + OP::outputs],
			   uint32_t *room)
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
		in[n].settle(p.at[n], OP::kind(n), room);
#pragma unroll
	for (int n = IN; n < IN + OUT; n++)
		if (op.adds(p) && p.at[n].data)
			out[n - IN].settle(p.at[n], OP::kind(n), room);
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
			out[n].store(p.at[IN + n], OP::kind(IN + n), at[IN + n], room);
}

/* What an output holds, of piece u; as of(). */
template <int DTYPE, int COUNT>
HZ_DEVICE piece<DTYPE> old_piece(const hzi_quat_operand &o, operand_kind kind, const char *from,
				 int u)
{
	const int at = 32 * u + threadIdx.x % 32;
	piece<DTYPE> old;

	if (kind == VECTOR && o.width == 3) {
#pragma unroll
		for (int i = 0; i < 3; i++)
			old.w[i] = ((const uint32_t *)from)[3 * at + i];
		old.w[3] = 0;
		return old;
	}
	const uint4 v = ((const uint4 *)from)[at];

	old.w[0] = v.x, old.w[1] = v.y, old.w[2] = v.z, old.w[3] = v.w;
	if (kind == VECTOR)
		old.to_vector();
	return old;
}

/*
 * The same where registers for all that is under way would leave room for few warps: inputs come
 * through shared memory. tile: COUNT * 32 pieces of 16 bytes for each. SUM: output p.kind is added
 * to sum.
 */
template <class OP, int DTYPE, int COUNT, bool SUM>
HZ_DEVICE void run_staged(const hzi_quat_job &p, const int64_t (&at)[OP::inputs + OP::outputs],
			  uint4 *tile, uint32_t *room, quat &sum)
{
	constexpr int IN = OP::inputs, OUT = OP::outputs, EACH = piece<DTYPE>::each;
	constexpr int PIECES = 32 * COUNT, VECTORS = 24 * COUNT, SIZE = DTYPE == HZ_F32 ? 4 : 2;
	const int lane = threadIdx.x % 32;
	OP op;

#pragma unroll
	for (int n = 0; n < IN; n++) {
		const uint4 *const from = (const uint4 *)((const char *)p.at[n].data +
							  at[n] * SIZE);
		const int pieces = !p.at[n].dense ? 0 : p.at[n].width == 3 ? VECTORS : PIECES;

#pragma unroll
		for (int i = lane; i < PIECES; i += 32)
			if (i < pieces)
				copy_async(shared_address(tile + n * PIECES + i), from + i);
	}
	copy_wait();
	__syncwarp();
#pragma unroll
	for (int u = 0; u < COUNT; u++) {
		piece<DTYPE> in[IN];
		quat results[OUT][EACH];

#pragma unroll
		for (int n = 0; n < IN; n++) {
			const hzi_quat_operand &o = p.at[n];
			const uint4 *const from = tile + n * PIECES;

			if (OP::kind(n) == VECTOR && o.width == 3) {
#pragma unroll
				for (int i = 0; i < 3; i++)
					in[n].w[i] = ((const uint32_t *)from)[(32 * u + lane) * 3 +
									      i];
				in[n].w[3] = 0;
				continue;
			}
			uint4 v;

			if (o.dense) {
				v = from[32 * u + lane];
			} else if (DTYPE == HZ_F32) {
				v = *(const uint4 *)((const char *)o.data + at[n] * SIZE);
			} else {
				const uint2 h = *(const uint2 *)((const char *)o.data +
								 at[n] * SIZE);

				v = make_uint4(h.x, h.y, h.x, h.y);
			}
			in[n].w[0] = v.x, in[n].w[1] = v.y, in[n].w[2] = v.z, in[n].w[3] = v.w;
			if (OP::kind(n) == VECTOR)
				in[n].to_vector();
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
			char *const to = (char *)o.data + at[IN + n] * SIZE;
			piece<DTYPE> out;

			if (SUM && n == p.kind) {
#pragma unroll
				for (int e = 0; e < EACH; e++)
					sum = quat_add(sum, results[n][e]);
				continue;
			}
			if (!o.data)
				continue;
			if (op.adds(p)) {
				const auto old = old_piece<DTYPE, COUNT>(o, kind, to, u);

#pragma unroll
				for (int e = 0; e < EACH; e++)
					results[n][e] = quat_add(results[n][e],
								 old.get(kind, true, e));
			}
			out.put(kind, results[n]);
			if (kind == VECTOR && o.width == 3) {
#pragma unroll
				for (int i = 0; i < 3; i++)
					room[(32 * u + lane) * 3 + i] = out.w[i];
				continue;
			}
			if (kind == VECTOR)
				out.from_vector();
			((uint4 *)to)[32 * u + lane] =
				make_uint4(out.w[0], out.w[1], out.w[2], out.w[3]);
		}
	}
	__syncwarp();
#pragma unroll
	for (int n = IN; n < IN + OUT; n++) {
		if (OP::kind(n) != VECTOR || !p.at[n].data || p.at[n].width != 3 ||
		    (SUM && n - IN == p.kind))
			continue;
#pragma unroll
		for (int i = lane; i < PIECES; i += 32)
			if (i < VECTORS)
				((uint4 *)((char *)p.at[n].data + at[n] * SIZE))[i] =
					((const uint4 *)room)[i];
	}
	__syncwarp();
}

/* SUM: sums of an output, by blocks, are put at p.partial. */
template <class OP, int DTYPE, bool SUM = false>
HZ_DEVICE void run_whole(const hzi_quat_job &p)
{
	constexpr int N = OP::inputs + OP::outputs;
	constexpr int BLOCK = (SUM ? HZI_QUAT_SUM_BLOCK : HZI_QUAT_BLOCK) * piece<DTYPE>::each;
	constexpr bool VECTORS = OP::kind(0) == VECTOR || OP::kind(1) == VECTOR;
	constexpr bool STAGED = VECTORS && N > 3;
	/* As fit into registers */
	constexpr int COUNT = N <= 3 ? 4 : 2, TILE = OP::inputs * COUNT * 32;
	constexpr int WARPS = HZI_QUAT_THREADS / 32;
	constexpr int EACH_WARP = portion<DTYPE, COUNT>::quaternions;
	__shared__ __align__(16) uint32_t room[VECTORS ? WARPS : 1][VECTORS ? COUNT * 96 : 1];
	__shared__ uint4 tile[STAGED ? WARPS : 1][STAGED ? TILE : 1];
	const int warp = threadIdx.x / 32;
	const int64_t row = blockIdx.x / p.row_blocks, last = p.ndim - 1;
	const int64_t begin = (int64_t)(blockIdx.x % p.row_blocks) * BLOCK;
	const int64_t n = p.ndim ? p.shape[last] : 1, end = min(begin + BLOCK, n);
	quat sum = {0, 0, 0, 0};

	for (int64_t i = begin + warp * EACH_WARP; i < end; i += WARPS * EACH_WARP) {
		int64_t at[N], step[N];

#pragma unroll
		for (int o = 0; o < N; o++) {
			step[o] = p.ndim ? p.at[o].stride[last] : 0;
			at[o] = (p.ndim == 2 ? row * p.at[o].stride[0] : 0) + i * step[o];
		}
		if (i + EACH_WARP <= end) {
			if constexpr (STAGED)
				run_staged<OP, DTYPE, COUNT, SUM>(p, at, tile[warp], room[warp],
								  sum);
			else
				run_portion<OP, DTYPE, COUNT>(p, at, room[VECTORS ? warp : 0]);
			continue;
		}
		for (int64_t l = threadIdx.x % 32; i + l < end; l += 32) {
			int64_t one[N];

#pragma unroll
			for (int o = 0; o < N; o++)
				one[o] = at[o] + l * step[o];
			run_one<OP, SUM>(p, one, &sum);
		}
	}
	if constexpr (SUM) {
		sum = block_sum<false>({sum}, 0);
		if (threadIdx.x == 0)
			((float4 *)p.partial)[blockIdx.x] =
				make_float4(sum.w, sum.x, sum.y, sum.z);
	}
}

/* ---- The kernels ----------------------------------------------------------------------------- */

/* blocks: of a multiprocessor, that registers of whole operands are to do for; 0: any */
#define KERNEL(name, blocks) \
	extern "C" __global__ void __launch_bounds__(HZI_QUAT_THREADS, blocks) name
#define KERNELS(name, blocks) \
	extern "C" __global__ void __launch_bounds__(HZI_QUAT_THREADS, 2) \
	quat_##name##_any(const __grid_constant__ hzi_quat_job p) \
	{ \
		run_any<op_##name>(p); \
	} \
	KERNEL(quat_##name##_f32, blocks)(const __grid_constant__ hzi_quat_job p) \
	{ \
		run_whole<op_##name, HZ_F32>(p); \
	} \
	KERNEL(quat_##name##_f16, blocks)(const __grid_constant__ hzi_quat_job p) \
	{ \
		run_whole<op_##name, HZ_F16>(p); \
	} \
	KERNEL(quat_##name##_bf16, blocks)(const __grid_constant__ hzi_quat_job p) \
	{ \
		run_whole<op_##name, HZ_BF16>(p); \
	}

KERNELS(mul, 0)
KERNELS(mul_bwd, 0)
KERNELS(axpy, 0)
KERNELS(map, 0)
KERNELS(norm, 0)
KERNELS(map_bwd, 0)
KERNELS(norm_bwd, 0)
KERNELS(rotate, 0)
KERNELS(rotate_bwd, 4)

#define SUMS(name, dtype, type) \
	KERNEL(quat_##name##_sum_##type, 4)(const __grid_constant__ hzi_quat_job p) \
	{ \
		run_whole<op_##name, dtype, true>(p); \
	}

SUMS(rotate_bwd, HZ_F32, f32)
SUMS(rotate_bwd, HZ_F16, f16)
SUMS(rotate_bwd, HZ_BF16, bf16)
