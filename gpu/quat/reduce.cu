/*
 * reduce.cu - sums over quaternions: dot products, gradients of broadcast operands
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block has 2^lanes_log2 neighbouring results and a chunk of the terms of each. T = threads /
 * results threads share a result: thread t adds terms t, t + T, ...; the T sums are added by a
 * tree, t and t + T / 2 first. Sums of chunks go to memory, and quat_sum_finish adds them in the
 * same way. The order depends on shapes and strides alone.
 */
#include "gpu/quat/contiguous.cuh"

/* Stores the sum of result i to operand o, whose offset is at. */
HZ_DEVICE void sum_store(const hzi_quat_job &p, int o, operand_kind kind, int64_t at, quat q)
{
	if (p.conj_y)
		q = quat_conj(q);
	if (p.accumulate)
		q = quat_add(q, operand_old(p.at[o], kind, p.dtype, p.real, at));
	operand_store(p.at[o], kind, p.dtype, p.real, at, q);
}

/*
 * Stores a chunk's sum of result i: to the output if there is one chunk, else for quat_sum_finish.
 */
HZ_DEVICE void chunk_store(const hzi_quat_job &p, int o, operand_kind kind, int64_t chunk,
			   int64_t i, int64_t at, quat q)
{
	if (p.partial)
		*(float4 *)(p.partial + 4 * (chunk * p.count + i)) =
			make_float4(q.w, q.x, q.y, q.z);
	else
		sum_store(p, o, kind, at, q);
}

/* A term of the sum, from `inputs` operands of these kinds */
struct sum_dot {
	static constexpr int inputs = 2;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE quat term(const hzi_quat_job &p, const quat *in)
	{
		return quat_mul(quat_conj_if(p.conj_a, in[0]), quat_conj_if(p.conj_b, in[1]));
	}
};

/* kind: the output of op_rotate_bwd */
struct sum_rotate {
	static constexpr int inputs = 3;
	HZ_DEVICE constexpr operand_kind kind(int i) { return i == 1 ? QUATERNION : VECTOR; }

	HZ_DEVICE quat term(const hzi_quat_job &p, const quat *in)
	{
		quat out[2];

		op_rotate_bwd().run(p, in, out);
		return out[p.kind];
	}
};

/* U terms of contiguous quaternions, `threads` apart */
template <class SUM, int DTYPE, int U, int N>
HZ_DEVICE void add_terms(const hzi_quat_job &p, int threads, int64_t (&at)[N], quat &sum)
{
	quat_raw<DTYPE> q[U][SUM::inputs];
	SUM op;

#pragma unroll
	for (int u = 0; u < U; u++)
#pragma unroll
		for (int n = 0; n < SUM::inputs; n++) {
			q[u][n].load(p.at[n].data, at[n]);
			at[n] += threads * p.at[n].stride[p.kept];
		}
#pragma unroll
	for (int u = 0; u < U; u++) {
		quat in[SUM::inputs];

#pragma unroll
		for (int n = 0; n < SUM::inputs; n++)
			in[n] = p.xyzw ? quat_from_xyzw(q[u][n].get(0)) : q[u][n].get(0);
		sum = quat_add(sum, op.term(p, in));
	}
}

/* DTYPE: contiguous quaternions, one summed dimension; 0: any operands */
template <class SUM, int DTYPE>
HZ_DEVICE void run_sum(const hzi_quat_job &p, operand_kind kind)
{
	constexpr int N = SUM::inputs;
	constexpr bool WHOLE = DTYPE != 0;
	const int lanes = 1 << p.lanes_log2, lane = threadIdx.x & (lanes - 1);
	const int64_t groups = (p.count + lanes - 1) >> p.lanes_log2;
	const int64_t group = blockIdx.x % groups, chunk = blockIdx.x / groups;
	const int64_t i = (group << p.lanes_log2) + lane, end = min(p.terms, (chunk + 1) * p.chunk);
	const int threads = HZI_QUAT_THREADS >> p.lanes_log2;
	int64_t base[N + 1] = {}, l = chunk * p.chunk + (threadIdx.x >> p.lanes_log2);
	quat sum = {0, 0, 0, 0};
	SUM op;

	if (i < p.count) {
		add_offsets<N + 1>(p, 0, p.kept, i, base);
		if constexpr (WHOLE) {
			constexpr int U = DTYPE == HZ_F32 ? 4 : 8;	/* terms in flight */
			const int64_t rounds = l < end ? (end - l + threads - 1) / threads : 0;
			int64_t r = 0;

#pragma unroll
			for (int n = 0; n < N; n++)
				base[n] += l * p.at[n].stride[p.kept];
			for (; r + U <= rounds; r += U)
				add_terms<SUM, DTYPE, U>(p, threads, base, sum);
			for (; r < rounds; r++)
				add_terms<SUM, DTYPE, 1>(p, threads, base, sum);
		} else {
			/* A constant trip count, so that several loads are in flight */
#pragma unroll 4
			for (int r = 0; r < HZI_QUAT_TERMS; r++, l += threads) {
				int64_t at[N + 1];
				quat in[N];

				if (l >= end)
					break;
#pragma unroll
				for (int n = 0; n < N; n++)
					at[n] = base[n];
				add_offsets<N + 1>(p, p.kept, p.ndim, l, at);
#pragma unroll
				for (int n = 0; n < N; n++)
					in[n] = operand_load(p.at[n], SUM::kind(n), p.dtype, at[n]);
				sum = quat_add(sum, op.term(p, in));
			}
		}
	}
	sum = block_sum<false>({sum}, p.lanes_log2);
	if (threadIdx.x < lanes && i < p.count)
		chunk_store(p, N, kind, chunk, i, base[N], sum);
}

/*
 * run_sum() for contiguous pairs of 16-bit terms, one result per block, with half the threads: each
 * thread does the additions of two threads of run_sum(), in their order.
 */
template <int DTYPE>
HZ_DEVICE void run_pairs(const hzi_quat_job &p, operand_kind kind)
{
	constexpr int T = HZI_QUAT_THREADS / 2, U = 4;	/* U: iterations in flight */
	const int64_t i = blockIdx.x % p.count, chunk = blockIdx.x / p.count;
	const int64_t end = min(p.terms, (chunk + 1) * p.chunk);
	int64_t base[3] = {}, l = chunk * p.chunk + 2 * threadIdx.x;
	quat sum[2] = {};
	sum_dot op;

	add_offsets<3>(p, 0, p.kept, i, base);
	const uint4 *a = (const uint4 *)((const uint16_t *)p.at[0].data + base[0] + 4 * l);
	const uint4 *b = (const uint4 *)((const uint16_t *)p.at[1].data + base[1] + 4 * l);

	for (; l + 2 * T * (U - 1) + 1 < end; l += 2 * T * U, a += T * U, b += T * U) {
		uint4 x[U], y[U];

#pragma unroll
		for (int u = 0; u < U; u++) {
			x[u] = a[u * T];
			y[u] = b[u * T];
		}
#pragma unroll
		for (int u = 0; u < U; u++) {
			uint32_t v[4] = {x[u].x, x[u].y, x[u].z, x[u].w};
			uint32_t w[4] = {y[u].x, y[u].y, y[u].z, y[u].w};

			if (p.xyzw) {
				words_xyzw<DTYPE, false>(v);
				words_xyzw<DTYPE, false>(w);
			}

			const quat first[2] = {quat_unpack(DTYPE, make_uint2(v[0], v[1])),
					       quat_unpack(DTYPE, make_uint2(w[0], w[1]))};
			const quat second[2] = {quat_unpack(DTYPE, make_uint2(v[2], v[3])),
						quat_unpack(DTYPE, make_uint2(w[2], w[3]))};

			sum[0] = quat_add(sum[0], op.term(p, first));
			sum[1] = quat_add(sum[1], op.term(p, second));
		}
	}
	for (; l < end; l += 2 * T, a += T, b += T) {
#pragma unroll
		for (int e = 0; e < 2; e++) {
			if (l + e >= end)
				continue;
			quat in[2] = {quat_unpack(DTYPE, ((const uint2 *)a)[e]),
				      quat_unpack(DTYPE, ((const uint2 *)b)[e])};

			if (p.xyzw)
				in[0] = quat_from_xyzw(in[0]), in[1] = quat_from_xyzw(in[1]);

			sum[e] = quat_add(sum[e], op.term(p, in));
		}
	}
	sum[0] = block_sum<true>(sum, 0);
	if (threadIdx.x == 0)
		chunk_store(p, 2, kind, chunk, i, base[2], sum[0]);
}

/* ---- An elementwise gradient fused with one that is a sum ------------------------------------ */

/*
 * Gradients of the operand with many quaternions (operands dy, x and the output dx) and of the
 * broadcast one, operand 2. step(): dx of one quaternion, and its term of the sum; total(): the
 * gradient from the sum.
 */

/*
 * d = dy or its conjugate (conj_a), k = operand 2, conjugated unless conj_y: dx = d k or its
 * conjugate (conj_b); the term is x d with x, or unless conj_b its conjugate.
 */
struct fused_mul {
	static constexpr operand_kind KIND = QUATERNION;
	static constexpr int COUNT = 4;		/* pieces in flight that registers hold */
	const uint32_t mask_dy, mask_dx, mask_x;
	quat k, sum;

	__device__ __forceinline__ explicit fused_mul(const hzi_quat_job &p)
		: mask_dy(p.conj_a ? 0x80000000 : 0), mask_dx(p.conj_b ? 0x80000000 : 0),
		  mask_x(p.conj_b ? 0 : 0x80000000), sum{0, 0, 0, 0}
	{
		k = quat_conj_if(!p.conj_y, operand_load(p.at[2], QUATERNION, p.dtype, 0));
	}

	__device__ __forceinline__ quat step(quat dy, quat x)
	{
		const quat d = quat_flip_signs(dy, mask_dy);

		sum = quat_fma(quat_flip_signs(x, mask_x), d, sum);
		return quat_flip_signs(quat_mul(d, k), mask_dx);
	}

	__device__ __forceinline__ quat total(void) const { return sum; }
};

/*
 * Rotations: dx = R^T dy. The gradient is linear in M = sum of dy x^T: from -2 dy q x, sum of M_ij
 * e_i q e_j; from <dy, R x>, the inner product of R and M.
 */
struct fused_rotate {
	static constexpr operand_kind KIND = VECTOR;
	static constexpr int COUNT = 2;
	const hzi_quat_job &p;
	float matrix[3][3], m[3][3];

	static __device__ __forceinline__ quat unit(int i)
	{
		return {0, i == 0 ? 1.0f : 0, i == 1 ? 1.0f : 0, i == 2 ? 1.0f : 0};
	}

	/* The rotation of q times *scale if normalized; *r: 1 / |q|^2, or 1 */
	__device__ __forceinline__ quat rotation(float *scale, float *r) const
	{
		quat q = quat_conj_if(p.inverse, operand_load(p.at[2], QUATERNION, p.dtype, 0));

		*scale = *r = 1;
		if (p.normalize) {
			*scale = quat_scale_of(q);
			q = quat_scale(*scale, q);
			*r = approx_inverse(quat_inner(q, q));
		}
		return q;
	}

	__device__ __forceinline__ explicit fused_rotate(const hzi_quat_job &p_) : p(p_), m{}
	{
		float scale, r;
		const quat q = rotation(&scale, &r);

#pragma unroll
		for (int i = 0; i < 3; i++) {
			const quat e = unit(i);
			const quat v = quat_scale(r, quat_rotate(q, e));

			matrix[0][i] = v.x, matrix[1][i] = v.y, matrix[2][i] = v.z;
		}
	}

	__device__ __forceinline__ quat step(quat dy, quat x)
	{
		const float a[3] = {dy.x, dy.y, dy.z}, b[3] = {x.x, x.y, x.z};
		float d[3];

#pragma unroll
		for (int i = 0; i < 3; i++) {
			d[i] = fmaf(matrix[0][i], a[0],
				    fmaf(matrix[1][i], a[1], matrix[2][i] * a[2]));
#pragma unroll
			for (int j = 0; j < 3; j++)
				m[i][j] = fmaf(a[i], b[j], m[i][j]);
		}
		return {0, d[0], d[1], d[2]};
	}

	__device__ __forceinline__ quat total(void) const
	{
		quat dq = {0, 0, 0, 0};
		float inner = 0, scale, r;
		const quat q = rotation(&scale, &r);

#pragma unroll
		for (int i = 0; i < 3; i++) {
			const quat row = {0, m[i][0], m[i][1], m[i][2]};
			const quat e = unit(i);

			dq = quat_add(dq, quat_mul(quat_mul(e, q), row));
			inner = fmaf(matrix[i][0], row.x, fmaf(matrix[i][1], row.y,
							     fmaf(matrix[i][2], row.z, inner)));
		}
		dq = quat_scale(-2, dq);
		if (p.normalize) {
			dq = quat_add(dq, quat_scale(-2 * inner, q));
			dq = quat_scale(scale, quat_scale(r, dq));
		}
		return quat_conj_if(p.inverse, dq);
	}
};

/* A full portion of a warp; callers pass xyzw as a constant. */
template <class OP, int DTYPE, int COUNT>
HZ_DEVICE void fused_portion(const hzi_quat_job &p, const int64_t (&at)[3], bool xyzw, OP &op,
			     uint32_t *scratch)
{
	constexpr int EACH = piece<DTYPE>::each;
	const hzi_quat_operand &dst = p.at[3];
	const char *const before = (const char *)dst.data + at[2] * (DTYPE == HZ_F32 ? 4 : 2);
	portion<DTYPE, COUNT> dy, x;	/* dy, then dx */

	dy.load(p.at[0], OP::KIND, at[0]);
	x.load(p.at[1], OP::KIND, at[1]);
	dy.unpack(p.at[0], OP::KIND, xyzw, scratch);
	x.unpack(p.at[1], OP::KIND, xyzw, scratch);
#pragma unroll
	for (int u = 0; u < COUNT; u++) {
		quat results[EACH];

#pragma unroll
		for (int e = 0; e < EACH; e++)
			results[e] = op.step(dy.of[u].get(OP::KIND, false, e),
					     x.of[u].get(OP::KIND, false, e));
		if (p.accumulate) {
			const auto old = old_piece<DTYPE, COUNT>(dst, OP::KIND, xyzw, before, u);

#pragma unroll
			for (int e = 0; e < EACH; e++)
				results[e] = quat_add(results[e], old.get(OP::KIND, true, e));
		}
		dy.of[u].put(OP::KIND, results);
	}
	dy.store(dst, OP::KIND, xyzw, at[2], scratch);
}

/* Stores the sum of each block at p.partial. */
template <class OP, int DTYPE>
HZ_DEVICE void run_fused_sum(const hzi_quat_job &p)
{
	constexpr int COUNT = OP::COUNT, WARPS = HZI_QUAT_THREADS / 32;
	constexpr int BLOCK = HZI_QUAT_SUM_BLOCK * piece<DTYPE>::each;
	constexpr int EACH_WARP = portion<DTYPE, COUNT>::quaternions;
	constexpr bool VECTORS = OP::KIND == VECTOR;
	__shared__ __align__(16) uint32_t scratch[VECTORS ? WARPS : 1][VECTORS ? COUNT * 96 : 1];
	const int warp = threadIdx.x / 32;
	const int64_t begin = (int64_t)blockIdx.x * BLOCK, end = min(begin + BLOCK, p.shape[0]);
	const int64_t step[3] = {p.at[0].stride[0], p.at[1].stride[0], p.at[3].stride[0]};
	OP op(p);

	for (int64_t i = begin + warp * EACH_WARP; i < end; i += WARPS * EACH_WARP) {
		uint32_t *const mine = scratch[VECTORS ? warp : 0];

		if (i + EACH_WARP <= end) {
			const int64_t at[3] = {i * step[0], i * step[1], i * step[2]};

			if (p.xyzw)
				fused_portion<OP, DTYPE, COUNT>(p, at, true, op, mine);
			else
				fused_portion<OP, DTYPE, COUNT>(p, at, false, op, mine);
			continue;
		}
		for (int64_t l = i + threadIdx.x % 32; l < end; l += 32) {
			const hzi_quat_operand &dst = p.at[3];
			const int64_t at = l * step[2];
			quat q = op.step(operand_load(p.at[0], OP::KIND, p.dtype, l * step[0]),
					 operand_load(p.at[1], OP::KIND, p.dtype, l * step[1]));

			if (p.accumulate)
				q = quat_add(q, operand_old(dst, OP::KIND, p.dtype, p.real, at));
			operand_store(dst, OP::KIND, p.dtype, p.real, at, q);
		}
	}

	const quat sum = block_sum<false>({op.total()}, 0);

	if (threadIdx.x == 0)
		((float4 *)p.partial)[blockIdx.x] = make_float4(sum.w, sum.x, sum.y, sum.z);
}

/* ---- The last step --------------------------------------------------------------------------- */

/* Operand 0: output; terms: number of chunks */
extern "C" __global__ void __launch_bounds__(HZI_QUAT_THREADS)
quat_sum_finish(const __grid_constant__ hzi_quat_job p)
{
	const int lanes = 1 << p.lanes_log2, threads = HZI_QUAT_THREADS >> p.lanes_log2;
	const int64_t i = ((int64_t)blockIdx.x << p.lanes_log2) + (threadIdx.x & (lanes - 1));
	quat sum = {0, 0, 0, 0};
	int64_t at[1] = {};

	if (i < p.count) {
#pragma unroll 8
		for (int64_t l = threadIdx.x >> p.lanes_log2; l < p.terms; l += threads) {
			const float4 f = *(const float4 *)(p.partial + 4 * (l * p.count + i));

			sum = quat_add(sum, {f.x, f.y, f.z, f.w});
		}
		add_offsets<1>(p, 0, p.kept, i, at);
	}
	sum = block_sum<false>({sum}, p.lanes_log2);
	if (threadIdx.x < lanes && i < p.count)
		sum_store(p, 0, (operand_kind)p.kind, at[0], sum);
}

/* ---- The kernels ----------------------------------------------------------------------------- */

#define KERNEL(name, threads) \
	extern "C" __global__ void __launch_bounds__(threads) \
	name(const __grid_constant__ hzi_quat_job p)
#define DOT(name, dtype) \
	KERNEL(quat_dot_##name, HZI_QUAT_THREADS) \
	{ \
		run_sum<sum_dot, dtype>(p, p.real ? REAL : QUATERNION); \
	}
#define DOT_PAIRS(name, dtype) \
	KERNEL(quat_dot_pairs_##name, HZI_QUAT_THREADS / 2) \
	{ \
		run_pairs<dtype>(p, p.real ? REAL : QUATERNION); \
	}

DOT(strided, 0)
DOT(contiguous_f32, HZ_F32)
DOT(contiguous_f16, HZ_F16)
DOT(contiguous_bf16, HZ_BF16)
DOT_PAIRS(f16, HZ_F16)
DOT_PAIRS(bf16, HZ_BF16)

KERNEL(quat_rotate_sum, HZI_QUAT_THREADS)
{
	run_sum<sum_rotate, 0>(p, p.kind ? VECTOR : QUATERNION);
}

#define FUSED_SUM(name, type, dtype) \
	HZ_KERNEL(quat_##name##_fused_sum_##type, hzi_quat_job, (HZI_QUAT_THREADS, 4), \
		  run_fused_sum<fused_##name, dtype>(p))

HZ_FLOAT_DTYPES(FUSED_SUM, mul)
HZ_FLOAT_DTYPES(FUSED_SUM, rotate)
