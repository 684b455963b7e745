/*
 * check.c - argument checks that quaternion layers share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/quat_layer/quat_layer.h"

/* Fills *q with a view as quaternions; its last dimension holds the components. */
static void set_quaternions(struct hz_context *ctx, const hz_tensor *from, uint32_t flags,
			    struct hzi_quat_tensor *q)
{
	hz_tensor copy;
	const hz_tensor *const t = hzi_canonical_view(from, &copy);
	const int64_t step = t->stride[t->ndim - 1];
	const uintptr_t size = 4 * hz_dtype_size(t->dtype);

	memset(q, 0, sizeof(*q));
	q->a.data = hzi_data(ctx, t);
	q->a.dtype = t->dtype;
	q->ndim = t->ndim - 1;
	for (int c = 0; c < 4; c++)
		q->a.comp[c] = step * (flags & HZ_QUAT_XYZW ? (c + 3) % 4 : c);
	q->a.whole = step == 1 && !(flags & HZ_QUAT_XYZW) && (uintptr_t)q->a.data % size == 0;
	for (int d = 0; d < q->ndim; d++) {
		q->shape[d] = t->shape[d];
		q->a.stride[d] = t->stride[d];
		q->a.whole = q->a.whole && (t->shape[d] == 1 || t->stride[d] % 4 == 0);
	}
}

bool hzi_quat_misalign(const struct hz_context *ctx, struct hzi_quat_layer *l)
{
	struct hzi_quat_tensor *const all[] = {&l->x, &l->w, &l->b, &l->y, &l->pre, &l->dx, &l->dw,
					       &l->db};
	bool changed = false;

	for (int i = 0; i < 8 && ctx->recording && ctx->placeholders > 0; i++) {
		changed |= all[i]->a.whole != 0;
		all[i]->a.whole = 0;
	}
	return changed;
}

int hzi_quat_check_size(struct hz_context *ctx, const char *op, const char *name, int d,
			int64_t size, int64_t wanted, const char *as)
{
	if (size != wanted)
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.shape[%d] is %lld, must be %lld%s", op,
				name, d, (long long)size, (long long)wanted, as);
	return HZ_OK;
}

int hzi_quat_check(struct hz_context *ctx, const char *op, const char *name, const hz_tensor *t,
		   int dtype, int min_ndim, int max_ndim, bool output, uint32_t flags,
		   struct hzi_quat_tensor *q)
{
	static const int any[] = {HZ_F32, HZ_F16, HZ_BF16, HZ_F64, 0};
	const int one[] = {dtype, 0};
	int64_t count = 1;

	HZ_CHECK(hzi_check(ctx, op, name, t, dtype ? one : any, output));
	if (t->dtype == HZ_F64 && ctx->device != HZ_CPU)
		return hzi_fail(ctx, HZ_ENOTSUP, "%s: %s.dtype is f64, which only the CPU takes",
				op, name);
	if (t->ndim < min_ndim || t->ndim > max_ndim) {
		if (min_ndim == max_ndim)
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d", op, name,
					t->ndim, min_ndim);
		return hzi_fail(ctx, HZ_ESHAPE, "%s: %s.ndim is %d, must be %d to %d", op, name,
				t->ndim, min_ndim, max_ndim);
	}
	HZ_CHECK(hzi_quat_check_size(ctx, op, name, t->ndim - 1, t->shape[t->ndim - 1], 4, ""));
	/*
	 * Copies of a broadcast view may be larger than memory, and an empty tensor may have any
	 * other sizes: bound the product of all sizes but 0.
	 */
	for (int d = 0; d < t->ndim; d++) {
		if (t->shape[d] &&
		    (!hzi_mul(count, t->shape[d], &count) || count > INT64_MAX >> 12))
			return hzi_fail(ctx, HZ_ESHAPE, "%s: %s is too large: its size overflows",
					op, name);
	}
	set_quaternions(ctx, t, flags, q);
	return HZ_OK;
}

int hzi_quat_check_apart(struct hz_context *ctx, const char *op,
			 const struct hzi_quat_layer_view *list, int n, const char *in,
			 const char *same_out)
{
	for (int i = 0; i < n; i++) {
		const struct hzi_quat_layer_view *b = &list[i];

		for (int k = 0; k < i && b->t; k++) {
			const struct hzi_quat_layer_view *a = &list[k];
			bool same;

			if (!a->t || !(a->output || b->output))
				continue;
			same = in && strcmp(a->name, in) == 0 && strcmp(b->name, same_out) == 0;
			HZ_CHECK(same ? hzi_check_apart_or_same(ctx, op, a->name, a->t, b->name,
								b->t) :
					hzi_check_apart(ctx, op, a->name, a->t, b->name, b->t));
		}
	}
	return HZ_OK;
}

int hzi_quat_check_range(struct hz_context *ctx, const char *op, const char *name, int64_t value,
			 int64_t low, int64_t high)
{
	if (value < low || value > high)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s is %lld, must be %lld to %lld", op,
				name, (long long)value, (long long)low, (long long)high);
	return HZ_OK;
}

int hzi_quat_check_spatial(struct hz_context *ctx, const char *op, const char *name,
			   const int64_t *from, int n, int64_t low, int64_t zero, int64_t *to)
{
	for (int d = 0; d < n; d++) {
		const int64_t value = from[d] ? from[d] : zero;

		to[3 - n + d] = value;
		if (value < low || value > INT32_MAX)
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s[%d] is %lld, must be %lld to "
					"%d", op, name, d, (long long)value, (long long)low,
					INT32_MAX);
	}
	for (int d = n; d < 3; d++) {
		to[d - n] = low;
		if (from[d])
			return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s[%d] is %lld, must be 0: x has "
					"%d spatial dimension%s", op, name, d, (long long)from[d],
					n, n == 1 ? "" : "s");
	}
	return HZ_OK;
}

int hzi_quat_check_flags(struct hz_context *ctx, const char *op, const char *name, uint32_t flags,
			 uint32_t known)
{
	static const struct hzi_flag list[] = {
		HZI_FLAG(HZ_QUAT_XYZW), HZI_FLAG(HZ_QUAT_REVERSED), HZI_FLAG(HZ_QUAT_ACCUMULATE),
		HZI_FLAG(HZ_QUAT_ROTATION), HZI_FLAG(HZ_QUAT_TRANSPOSED), HZI_FLAG(HZ_QUAT_NOCONJ),
		HZI_FLAG(HZ_QUAT_WHITEN), HZI_FLAG(HZ_QUAT_EVAL), HZI_FLAG(HZ_QUAT_PER_STEP),
		{0, NULL},
	};

	return hzi_check_flags(ctx, op, name, flags, known, list);
}

int hzi_quat_check_eps(struct hz_context *ctx, const char *op, bool rotate, double eps,
		       int32_t eps_rule, struct hzi_quat_rotation_opts *r)
{
	HZ_CHECK(hzi_quat_check_range(ctx, op, "eps_rule", eps_rule, 0, HZ_QUAT_EPS_NORM));
	if (!(eps >= 0) || !isfinite(eps))
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->eps is %g, must be finite and not "
				"negative", op, eps);
	if ((eps > 0 || eps_rule) && !rotate)
		return hzi_fail(ctx, HZ_EINVAL, "%s: opts->%s needs HZ_QUAT_ROTATION", op,
				eps > 0 ? "eps" : "eps_rule");
	r->rotate = rotate;
	r->eps = eps;
	r->eps_norm = eps_rule == HZ_QUAT_EPS_NORM;
	return HZ_OK;
}

/* Checks the options that linear layers and convolutions share. */
int hzi_quat_check_options(struct hz_context *ctx, const char *op, int32_t side, int32_t method,
			   int32_t precision, int32_t activation, const int64_t *reserved,
			   struct hzi_quat_layer *l)
{
	HZ_CHECK(hzi_quat_check_range(ctx, op, "side", side, HZ_QUAT_LEFT, HZ_QUAT_RIGHT));
	HZ_CHECK(hzi_quat_check_range(ctx, op, "method", method, 0, HZ_QUAT_FAST));
	HZ_CHECK(hzi_quat_check_range(ctx, op, "precision", precision, 0, HZ_PRECISION_HALF));
	HZ_CHECK(hzi_quat_check_range(ctx, op, "activation", activation, 0, HZ_ACT_NORMCLIP));
	HZ_CHECK(hzi_check_reserved(ctx, op, reserved, 4));
	l->method = method;
	l->precision = precision;
	l->activation = activation;
	l->reversed = side == HZ_QUAT_RIGHT;
	return HZ_OK;
}

int hzi_quat_check_bias(struct hz_context *ctx, const char *op, const char *name,
			const hz_tensor *b, int dtype, int64_t channels, const char *as,
			bool output, uint32_t flags, struct hzi_quat_tensor *q)
{
	if (!b)
		return HZ_OK;
	/* f32, or the dtype of the others; f64 alone beside f64 */
	if (b->dtype == HZ_F32 && dtype != HZ_F64)
		dtype = HZ_F32;
	HZ_CHECK(hzi_quat_check(ctx, op, name, b, dtype, 2, 2, output, flags, q));
	return hzi_quat_check_size(ctx, op, name, 0, b->shape[0], channels, as);
}
