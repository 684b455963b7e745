/*
 * ops.cuh - the elementwise quaternion operations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * An operation is a struct that gives the kinds of its operands and computes one quaternion of each
 * output.
 */
#ifndef HZI_GPU_QUAT_OPS_CUH
#define HZI_GPU_QUAT_OPS_CUH

#include "gpu/quat/quat.h"
#include "gpu/quat_gemm/epilogue.cuh"

enum operand_kind {
	QUATERNION,
	VECTOR,				/* x, y, z; read w as 0 */
	REAL				/* in w */
};

/* ---- Arithmetic ------------------------------------------------------------------------------ */

HZ_DEVICE quat quat_add(quat a, quat b)
{
	return {a.w + b.w, a.x + b.x, a.y + b.y, a.z + b.z};
}

HZ_DEVICE float quat_inner(quat a, quat b)
{
	return fmaf(a.w, b.w, fmaf(a.x, b.x, fmaf(a.y, b.y, a.z * b.z)));
}

HZ_DEVICE quat quat_over(quat a, float f)
{
	return {a.w / f, a.x / f, a.y / f, a.z / f};
}

HZ_DEVICE float quat_largest(quat a)
{
	return fmaxf(fmaxf(fabsf(a.w), fabsf(a.x)), fmaxf(fabsf(a.y), fabsf(a.z)));
}

/* A power of two that scales the largest component to about 1; 0 stays 0. */
HZ_DEVICE float quat_scale_of(quat a)
{
	const int e = __float_as_int(quat_largest(a)) >> 23;

	return e >= 254 ? 0x1p-127f : __int_as_float((254 - e) << 23);
}

/*
 * For numbers scaled by quat_scale_of(), far from the ends of the range: four divisions per
 * quaternion would take longer than its memory traffic. Errors: at most 2^-23 and 2^-22.9. 0 gives
 * Inf, and Inf gives 0.
 */
HZ_DEVICE float approx_inverse(float f)
{
	return HZ_ASM_F32("rcp.approx.f32 %0, %1;", "f"(f));
}

HZ_DEVICE float approx_inverse_root(float f)
{
	return HZ_ASM_F32("rsqrt.approx.f32 %0, %1;", "f"(f));
}

HZ_DEVICE quat quat_inverse(quat x)
{
	const float s = quat_scale_of(x);

	x = quat_scale(s, x);
	return quat_scale(s, quat_scale(approx_inverse(quat_inner(x, x)), quat_conj(x)));
}

/* x / |x|, 0 where x is 0; no less accurate if the norm is denormal */
struct polar {
	float scale, square, root;	/* |scale x|^2, 1 / |scale x| */
	quat unit;

	__device__ __forceinline__ explicit polar(quat x)
	{
		scale = quat_scale_of(x);
		x = quat_scale(scale, x);
		square = quat_inner(x, x);
		root = square == 0 ? 0 : approx_inverse_root(square);
		unit = quat_scale(root, x);
	}

	/* |x| < eps */
	__device__ __forceinline__ bool below(float eps) const
	{
		return square < scale * eps * (scale * eps);
	}

	/* a / |x|; 0 where x is 0 */
	__device__ __forceinline__ quat over(quat a) const
	{
		return square == 0 ? quat{0, 0, 0, 0} : quat_scale(scale, quat_scale(root, a));
	}
};

/* q v conj(q); v has no real part */
HZ_DEVICE quat quat_rotate(quat q, quat v)
{
	const float d = fmaf(q.x, v.x, fmaf(q.y, v.y, q.z * v.z));
	const float x = fmaf(q.w, v.x, fmaf(q.y, v.z, -(q.z * v.y)));
	const float y = fmaf(q.w, v.y, fmaf(q.z, v.x, -(q.x * v.z)));
	const float z = fmaf(q.w, v.z, fmaf(q.x, v.y, -(q.y * v.x)));

	return {0, fmaf(q.w, x, fmaf(q.y, z, fmaf(-q.z, y, d * q.x))),
		fmaf(q.w, y, fmaf(q.z, x, fmaf(-q.x, z, d * q.y))),
		fmaf(q.w, z, fmaf(q.x, y, fmaf(-q.y, x, d * q.z)))};
}

/* conj is uniform in a warp. No branch: there would be one per quaternion. */
HZ_DEVICE quat quat_conj_if(int conj, quat a)
{
	return quat_flip_signs(a, conj ? 0x80000000 : 0);
}

/* ---- Operations ------------------------------------------------------------------------------ */

/*
 * An operation: inputs and outputs, kind() of each, run() from inputs to outputs; adds(): whether
 * results may be added to what outputs hold.
 */
struct op_mul {
	static constexpr int inputs = 2, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &p) { return p.accumulate; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		out[0] = quat_mul(quat_conj_if(p.conj_a, in[0]), quat_conj_if(p.conj_b, in[1]));
	}
};

struct op_mul_bwd {
	static constexpr int inputs = 3, outputs = 2;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &p) { return p.accumulate; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		const quat a = quat_conj_if(!p.conj_a, in[1]), b = quat_conj_if(!p.conj_b, in[2]);

		out[0] = quat_conj_if(p.conj_a, quat_mul(in[0], b));
		out[1] = quat_conj_if(p.conj_b, quat_mul(a, in[0]));
	}
};

struct op_axpy {
	static constexpr int inputs = 1, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &) { return true; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		const quat a = {p.alpha[0], p.alpha[1], p.alpha[2], p.alpha[3]};

		out[0] = p.conj_a ? quat_mul(in[0], a) : quat_mul(a, in[0]);
	}
};

struct op_map {
	static constexpr int inputs = 1, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &) { return false; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		if (p.kind == HZI_MAP_CONJ) {
			out[0] = quat_conj(in[0]);
		} else if (p.kind == HZI_MAP_INVERSE) {
			out[0] = quat_inverse(in[0]);
		} else {
			const polar x(in[0]);

			out[0] = x.below(p.eps) ? quat_over(in[0], p.eps) : x.unit;
		}
	}
};

struct op_norm {
	static constexpr int inputs = 1, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int i) { return i ? REAL : QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &) { return false; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		out[0].w = p.kind == HZI_MAP_NORM ? quat_norm(in[0]) : quat_inner(in[0], in[0]);
	}
};

struct op_map_bwd {
	static constexpr int inputs = 2, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int) { return QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &p) { return p.accumulate; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		if (p.kind == HZI_MAP_INVERSE) {
			const quat y = quat_conj(quat_inverse(in[1]));

			out[0] = quat_scale(-1, quat_mul(quat_mul(y, in[0]), y));
			return;
		}

		const polar x(in[1]);

		if (x.below(p.eps)) {
			out[0] = quat_over(in[0], p.eps);
		} else {
			const quat u = x.unit;
			const float d = -quat_inner(in[0], u);

			out[0] = x.over({fmaf(d, u.w, in[0].w), fmaf(d, u.x, in[0].x),
					 fmaf(d, u.y, in[0].y), fmaf(d, u.z, in[0].z)});
		}
	}
};

struct op_norm_bwd {
	static constexpr int inputs = 2, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int i) { return i ? QUATERNION : REAL; }

	HZ_DEVICE bool adds(const hzi_quat_job &p) { return p.accumulate; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		const float dn = in[0].w;

		out[0] = p.kind == HZI_MAP_NORM2 ? quat_scale(2 * dn, in[1])
						 : quat_scale(dn, polar(in[1]).unit);
	}
};

struct op_rotate {
	static constexpr int inputs = 2, outputs = 1;
	HZ_DEVICE constexpr operand_kind kind(int i) { return i ? VECTOR : QUATERNION; }

	HZ_DEVICE bool adds(const hzi_quat_job &) { return false; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		quat q = quat_conj_if(p.inverse, in[0]);

		if (p.normalize)
			q = quat_scale(quat_scale_of(q), q);
		out[0] = quat_rotate(q, in[1]);
		if (p.normalize)
			out[0] = quat_scale(approx_inverse(quat_inner(q, q)), out[0]);
		out[0].w = 0;
	}
};

struct op_rotate_bwd {
	static constexpr int inputs = 3, outputs = 2;
	HZ_DEVICE constexpr operand_kind kind(int i) { return i % 2 ? QUATERNION : VECTOR; }

	HZ_DEVICE bool adds(const hzi_quat_job &p) { return p.accumulate; }

	HZ_DEVICE void run(const hzi_quat_job &p, const quat *in, quat *out)
	{
		const quat dy = in[0], v = in[2];
		quat q = quat_conj_if(p.inverse, in[1]), dv, dq;
		float s = 1;

		/* A normalized rotation does not depend on the scale of q. */
		if (p.normalize) {
			s = quat_scale_of(q);
			q = quat_scale(s, q);
		}
		dv = quat_rotate(quat_conj(q), dy);
		/* dy q conj(v) + conj(dy) q v; dy and v have no real part */
		dq = quat_scale(-2, quat_mul(quat_mul(dy, q), v));
		if (p.normalize) {
			const float r = approx_inverse(quat_inner(q, q));
			const float d = -2 * (r * quat_inner(dy, quat_rotate(q, v)));

			dv = quat_scale(r, dv);
			dq = quat_add(dq, quat_scale(d, q));
			dq = quat_scale(s, quat_scale(r, dq));
		}
		dv.w = 0;
		out[0] = quat_conj_if(p.inverse, dq);
		out[1] = dv;
	}
};

#endif
