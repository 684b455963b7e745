/*
 * quat_layer.cu - the steps of quaternion layers, for any strides and dtypes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A thread computes one quaternion at a time. Neighbouring threads have neighbours in the last
 * dimension, so that accesses coalesce where that dimension is contiguous.
 */
#include "gpu/quat_layer/quat_layer.cuh"
#include "gpu/device/reduce.cuh"

/* ---- Maps ------------------------------------------------------------------------------------ */

template <int KIND>
HZ_DEVICE void map(const hzi_quat_map_step &p)
{
	for (int64_t i = first_element(); i < p.total; i += step_elements()) {
		int64_t at[4] = {0, 0, 0, 0}, remainder = i, index;

		for (int d = p.ndim - 1; d >= 0; d--) {
			if (d > 0)
				remainder = divide(remainder, p.shape[d], &index);
			else
				index = remainder;
			at[0] += index * p.a.stride[d];
			at[1] += index * p.b.stride[d];
			at[2] += index * p.out.stride[d];
			at[3] += index * p.pre.stride[d];
		}
		hzi_quat_map_one(&p, KIND, i, 0, at);
	}
}

KERNEL(quat_layer_copy_strided, hzi_quat_map_step) { map<HZI_QUAT_MAP_COPY>(p); }
KERNEL(quat_layer_act_strided, hzi_quat_map_step) { map<HZI_QUAT_MAP_ACT>(p); }
KERNEL(quat_layer_act_bwd_strided, hzi_quat_map_step) { map<HZI_QUAT_MAP_ACT_BWD>(p); }
KERNEL(quat_layer_dropout_strided, hzi_quat_map_step) { map<HZI_QUAT_MAP_DROPOUT>(p); }
KERNEL(quat_layer_init_strided, hzi_quat_map_step) { map<HZI_QUAT_MAP_INIT>(p); }

/*
 * Affine maps: a thread goes through rows of one channel, whose coefficients stay in registers.
 * blockIdx.y counts blocks of channels.
 */
template <int KIND>
HZ_DEVICE void affine(const hzi_quat_map_step &p)
{
	typedef typename coefficients<KIND>::type type;
	const int64_t channels = p.shape[p.ndim - 1], rows = p.total / channels;
	int lanes = HZI_QUAT_SUM_LANES;

	while (lanes / 2 >= channels)
		lanes /= 2;
	const int64_t row_threads = THREADS / lanes;
	const int64_t first = (int64_t)blockIdx.x * row_threads + (int)threadIdx.x / lanes;

	for (int64_t c = (int64_t)blockIdx.y * lanes + (int)threadIdx.x % lanes; c < channels;
	     c += (int64_t)gridDim.y * lanes) {
		const type own = ((const type *)p.coef)[c];

		for (int64_t r = first; r < rows; r += gridDim.x * row_threads) {
			int64_t at[4], remainder = r, index;
			const int last = p.ndim - 1;

			at[0] = c * p.a.stride[last];
			at[1] = c * p.b.stride[last];
			at[2] = c * p.out.stride[last];
			for (int d = last - 1; d >= 0; d--) {
				if (d > 0)
					remainder = divide(remainder, p.shape[d], &index);
				else
					index = remainder;
				at[0] += index * p.a.stride[d];
				at[1] += index * p.b.stride[d];
				at[2] += index * p.out.stride[d];
			}
			hzi_quat_map_one(&p, KIND, r, &own, at);
		}
	}
}

KERNEL(quat_layer_affine_strided, hzi_quat_map_step) { affine<HZI_QUAT_MAP_AFFINE>(p); }
KERNEL(quat_layer_affine_bwd_strided, hzi_quat_map_step) { affine<HZI_QUAT_MAP_AFFINE_BWD>(p); }

/* ---- Sums ------------------------------------------------------------------------------------ */

KERNEL(quat_layer_sum_strided, hzi_quat_sum_step) { sum<HZI_QUAT_SUM_PLAIN, 0>(p); }
KERNEL(quat_layer_cross_strided, hzi_quat_sum_step) { sum<HZI_QUAT_SUM_CROSS, 0>(p); }
KERNEL(quat_layer_moments_strided, hzi_quat_sum_step) { moments<0>(p); }

/*
 * Coefficients of a channel, computed by a warp with a lane for each element of the 4 x 4 matrices;
 * lanes 16 to 31 repeat lanes 0 to 15. In one thread, the functions of lib/quat_layer/sums_math.h
 * would be thousands of instructions, bound by instruction fetch and the latency of their loads.
 */
struct finish_memory {
	double all[20];			/* sums of all rows */
	double gamma[4][4], m[4][4], t[4][4], u[4][4];
};

/* Index of (r, c) of a symmetric matrix in ten numbers, the upper triangle by rows */
HZ_DEVICE int symmetric_index(int r, int c)
{
	const int low = min(r, c), high = max(r, c);

	return 4 * low - low * (low + 1) / 2 + high;
}

/* Element (r, c) of a b, or of a^T b */
template <bool TRANSPOSED>
HZ_DEVICE double element_of(const double (&a)[4][4], const double (&b)[4][4], int r, int c)
{
	double s = 0;

#pragma unroll
	for (int k = 0; k < 4; k++)
		s += (TRANSPOSED ? a[k][r] : a[r][k]) * b[k][c];
	return s;
}

struct finish_lane {
	const hzi_quat_finish_step &p;
	const int64_t channel;
	const int lane, r, c, ten;
	const bool lead;		/* one lane for each (r, c) writes */
	double gamma, beta, mean, var, saved;	/* of (r, c), or of component c */

	__device__ __forceinline__ finish_lane(const hzi_quat_finish_step &p_, int64_t channel_)
		: p(p_), channel(channel_), lane((int)threadIdx.x % 32), r(lane / 4 % 4),
		  c(lane % 4), ten(symmetric_index(r, c)), lead(lane < 16) {}

	__device__ __forceinline__ double get(const void *src, int each, int i) const
	{
		return hzi_quat_param(p.dtype, src, channel * each + i);
	}

	__device__ __forceinline__ void set(double (&m)[4][4], double d) const
	{
		if (lead)
			m[r][c] = d;
	}

	/* Stores d, or adds it to the old value. */
	__device__ __forceinline__ void put(void *dst, int each, int i, double d, bool add) const
	{
		hzi_quat_set_param(p.dtype, dst, channel * each + i, d + (add ? get(dst, each, i) :
									  0));
	}

	/* Loads what does not depend on the sums, to overlap with their loads. */
	__device__ __forceinline__ void load(void)
	{
		const bool backward = p.kind == HZI_QUAT_FINISH_NORM_BWD;

		gamma = r == c;
		if (p.gamma && p.whiten)
			gamma = get(p.gamma, 10, ten);
		else if (p.gamma)
			gamma *= get(p.gamma, 1, 0);
		beta = p.beta && !backward ? get(p.beta, 4, p.order[c]) : 0;
		mean = p.running_mean && !backward ? get(p.running_mean, 4, p.order[c]) : 0;
		var = !p.running_var || backward ? 0 : p.whiten ? get(p.running_var, 10, ten) :
		      get(p.running_var, 1, 0);
		saved = backward || !p.eval ? get(p.saved, HZI_QUAT_SAVED, c) : 0;
	}

	/* hzi_quat_finish_moments(); with running values, eval, hzi_quat_finish_norm() */
	__device__ __forceinline__ void norm(finish_memory &s)
	{
		hzi_quat_affine *const dst = (hzi_quat_affine *)p.coef + channel;
		const double keep = 1 - p.momentum, rows = (double)p.rows;
		double v = p.whiten ? var : 0, trace = var, own = mean;

		if (!p.eval) {
			const double d = s.all[c] / rows;

			own = saved + d;
			v = (s.all[4 + ten] - rows * (s.all[r] / rows) * d) / rows;
		}
		set(s.gamma, gamma);
		set(s.t, v + (r == c ? p.eps : 0));
		set(s.u, v);
		__syncwarp();
		if (!p.eval) {
			trace = s.u[0][0] + s.u[1][1] + s.u[2][2] + s.u[3][3];
			if (p.running_var && p.whiten ? lead && r <= c : lane == 0 && p.running_var)
				put(p.running_var, p.whiten ? 10 : 1, p.whiten ? ten : 0,
				    keep * var + p.momentum * (p.whiten ? v : trace), false);
			if (p.running_mean && lane < 4)
				put(p.running_mean, 4, p.order[c], keep * mean + p.momentum * own,
				    false);
		}
		__syncwarp();
		whiten(s, trace);
		if (lane < 4) {
			put(p.saved, HZI_QUAT_SAVED, c, own, false);
			dst->mean[c] = (hzi_quat_real)own;
			dst->shift[c] = (hzi_quat_real)beta;
		}
		if (lead && c <= r)
			put(p.saved, HZI_QUAT_SAVED, 4 + r * (r + 1) / 2 + c, s.m[r][c], false);
		if (lead)
			dst->m[4 * r + c] = (hzi_quat_real)element_of<false>(s.gamma, s.m, r, c);
	}

	/* s.m = the inverse of L, s.t = L L^T; the Cholesky factor L replaces s.t. */
	__device__ __forceinline__ void whiten(finish_memory &s, double trace)
	{
		if (!p.whiten) {
			set(s.m, r == c ? 1 / sqrt(trace + p.eps) : 0);
			__syncwarp();
			return;
		}
		/* Lane c computes row c of L */
#pragma unroll 1
		for (int j = 0; j < 4; j++) {
			double d = s.t[j][j], b = s.t[c][j];

			for (int k = 0; k < j; k++) {
				d -= s.t[j][k] * s.t[j][k];
				b -= s.t[c][k] * s.t[j][k];
			}
			/* A pivot below eps becomes eps, its column 0: hzi_quat_whiten(). */
			const bool flat = d < p.eps;

			d = sqrt(flat ? p.eps : d);
			__syncwarp();
			if (lane < 4 && c >= j)
				s.t[c][j] = c == j ? d : flat ? 0 : b / d;
			__syncwarp();
		}
		/* and column c of the inverse. */
#pragma unroll 1
		for (int i = 0; i < 4 && lane < 4; i++) {
			double b = i == c;

			for (int k = c; k < i; k++)
				b -= s.t[i][k] * s.m[k][c];
			s.m[i][c] = i < c ? 0 : b / s.t[i][i];
		}
		__syncwarp();
	}

	/* hzi_quat_finish_norm_bwd(); here sums are of b (x - mean)^T: z = m (x - mean) follows. */
	__device__ __forceinline__ void norm_bwd(finish_memory &s)
	{
		hzi_quat_affine_bwd *const dst = (hzi_quat_affine_bwd *)p.coef + channel;
		const double by = -1 / (double)p.rows;
		double d, trace;

		set(s.gamma, gamma);
		set(s.m, c > r ? 0 : get(p.saved, HZI_QUAT_SAVED, 4 + r * (r + 1) / 2 + c));
		__syncwarp();
		d = 0;
#pragma unroll
		for (int k = 0; k < 4; k++)
			d += s.all[4 + 4 * r + k] * s.m[c][k];
		set(s.t, d);
		__syncwarp();
		d += c > r ? s.t[c][r] : 0;
		trace = s.t[0][0] + s.t[1][1] + s.t[2][2] + s.t[3][3];
		if (p.dgamma && (p.whiten ? lead && r <= c : lane == 0))
			put(p.dgamma, p.whiten ? 10 : 1, p.whiten ? ten : 0, p.whiten ? d : trace,
			    p.accumulate);
		if (p.dbeta && lane < 4)
			put(p.dbeta, 4, p.order[c], s.all[c], p.accumulate);
		if (!p.coef)
			return;
		set(s.u, element_of<false>(s.gamma, s.t, r, c));
		__syncwarp();
		trace = s.u[0][0] + s.u[1][1] + s.u[2][2] + s.u[3][3];
		d = p.whiten ? s.u[max(r, c)][min(r, c)] : r == c ? trace : 0;
		__syncwarp();
		set(s.u, d);
		d = element_of<true>(s.m, s.gamma, r, c);
		__syncwarp();
		if (lead)
			dst->m[4 * r + c] = (hzi_quat_real)d;
		/* The shift of row r, summed over its four lanes */
		d *= s.all[c];
		d = quad_sum(d);
		if (lead && c == 0)
			dst->shift[r] = (hzi_quat_real)(p.eval ? 0 : by * d);
		set(s.t, element_of<false>(s.u, s.m, r, c));
		__syncwarp();
		if (lead)
			dst->n[4 * r + c] =
				(hzi_quat_real)(p.eval ? 0 : by * element_of<true>(s.m, s.t, r, c));
		if (lane < 4)
			dst->mean[c] = (hzi_quat_real)saved;
	}
};

/* A block per channel, a lane per value: each warp adds up chunks, warp 0 adds up the warps. */
KERNEL(quat_layer_finish, hzi_quat_finish_step)
{
	constexpr int WARPS = THREADS / 32;
	__shared__ double part[WARPS][32];
	__shared__ finish_memory s;
	const int values = hzi_quat_finish_values(p.kind);
	const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
	const bool norm = p.kind >= HZI_QUAT_FINISH_NORM;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t channel = blockIdx.x; channel < p.channels; channel += gridDim.x) {
		const double *src = p.part + channel * values + lane;
		finish_lane own(p, channel);
		double sum = 0;

		if (norm && warp == 0)
			own.load();
#pragma unroll 16
		for (int64_t k = warp; k < p.chunks && lane < values; k += WARPS)
			sum += src[k * p.channels * values];
		part[warp][lane] = sum;
		__syncthreads();
		if (warp == 0) {
			sum = 0;
#pragma unroll
			for (int w = 0; w < WARPS; w++)
				sum += part[w][lane];
			if (lane < 20)
				s.all[lane] = sum;
			__syncwarp();
			if (p.kind == HZI_QUAT_FINISH_NORM_BWD)
				own.norm_bwd(s);
			else if (norm)
				own.norm(s);
			else if (lane == 0)
				hzi_quat_finish_one(&p, channel, s.all);
		}
		__syncthreads();
	}
}

/* ---- Pooling, rotations ---------------------------------------------------------------------- */

KERNEL(quat_pool_generic, hzi_quat_pool_step)
{
	const int64_t total = p.images * p.count[0] * p.count[1] * p.count[2] * p.channels;

	for (int64_t i = first_element(); i < total; i += step_elements())
		hzi_quat_pool_one(&p, hzi_quat_position(i, p.count, p.channels));
}

KERNEL(quat_pool_bwd_generic, hzi_quat_pool_step)
{
	const int64_t total = p.images * p.size[0] * p.size[1] * p.size[2] * p.channels;

	for (int64_t i = first_element(); i < total; i += step_elements())
		hzi_quat_pool_bwd_one(&p, hzi_quat_position(i, p.size, p.channels));
}

/* Windows that tile x: each element of x is in one window. */
KERNEL(quat_pool_bwd_tiled, hzi_quat_pool_step)
{
	const int64_t total = p.images * p.count[0] * p.count[1] * p.count[2] * p.channels;

	for (int64_t i = first_element(); i < total; i += step_elements())
		hzi_quat_pool_bwd_window(&p, hzi_quat_position(i, p.count, p.channels));
}

KERNEL(quat_layer_rotation, hzi_quat_rotation_step)
{
	for (int64_t i = first_element(); i < p.n * p.m; i += step_elements())
		hzi_quat_rotation_one(&p, i / p.m, i % p.m);
}

KERNEL(quat_layer_rotation_bwd, hzi_quat_rotation_step)
{
	for (int64_t i = first_element(); i < p.n * p.m; i += step_elements())
		hzi_quat_rotation_bwd_one(&p, i / p.m, i % p.m);
}
