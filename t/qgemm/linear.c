/*
 * linear.c - hz_qlinear() against the calls that define it
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/qgemm/qgemm.h"

static hz_tensor device_tensor(struct dev *dev, struct area *area, int dtype, int ndim,
			       const int64_t *shape)
{
	hz_tensor t = hz_tensor_nd(NULL, dtype, dev->device, ndim, shape);

	*area = area_new(dev, (size_t)hz_tensor_bytes(&t), 0);
	t.data = area->data;
	return t;
}

enum { SYMMETRIC = 1, FIXED = 2, ACROSS = 4, WILD = 8 };

/* Rows of x are k + more elements apart, or columns m + more (ACROSS). WILD: some values are NaN,
 * Inf or outliers. */
static int linear_case(struct dev *dev, int x_dtype, int q_dtype, int y_dtype, int how,
		       int64_t more, int64_t batch, int64_t m, int64_t n, int64_t k)
{
	const int symmetric = how & SYMMETRIC, fixed = how & FIXED, across = how & ACROSS;
	const int64_t memory[] = { batch, across ? k : m, (across ? m : k) + more };
	const int64_t xs[] = { batch, m, k }, ys[] = { batch, m, n }, bs[] = { k, n };
	const int64_t ps[] = { batch, m, 1 }, vs[] = { batch, m };
	struct area xa, ya, wa, ba, qa, sa, za, bsa, bia, blob;
	struct vec x, b, scales, bias;
	hz_tensor tx, tb, ty, tw, tq, ts, tz, tbs, tbias;
	hz_qgemm_opts o = { 0 }, g;
	unsigned char *got, *want;
	size_t bytes = 0, total;
	hz_packed packed;
	int64_t i;
	int status = 0, good;
	void *data;

	vec_new(&x, x_dtype, 3, memory);
	vec_new(&b, HZ_S8, 2, bs);
	vec_new(&scales, HZ_F32, 1, &n);
	vec_new(&bias, HZ_F32, 1, &n);
	for (i = 0; i < hz_tensor_count(&x.t); i++)
		ref_put(x_dtype, x.host, i, rnd_normal(&rnd) + 0.5);
	for (i = 0; how & WILD && i < m / 3 + 1; i++) {
		static const double wild[] = { NAN, 0, 1e4, INFINITY, 60000, -INFINITY, 1e-7 };

		ref_put(x_dtype, x.host, rnd_below(&rnd, hz_tensor_count(&x.t)), wild[i % 7]);
	}
	for (i = 0; i < k * n; i++)
		put_code(b.host, i, random_code(HZ_S8, RANDOM));
	for (i = 0; i < n; i++) {
		((float *)scales.host)[i] = (float)(fabs(rnd_normal(&rnd)) * 0.01);
		((float *)bias.host)[i] = (float)rnd_normal(&rnd);
	}
	tx = to_device(dev, &x.t, &xa);
	tx.shape[1] = m;
	tx.shape[2] = k;
	if (across) {
		tx.stride[2] = tx.stride[1];
		tx.stride[1] = 1;
	}
	tb = to_device(dev, &b.t, &ba);
	tbs = to_device(dev, &scales.t, &bsa);
	tbias = to_device(dev, &bias.t, &bia);
	ty = device_tensor(dev, &ya, y_dtype, 3, ys);
	tw = device_tensor(dev, &wa, y_dtype, 3, ys);
	tq = device_tensor(dev, &qa, q_dtype, 3, xs);
	ts = device_tensor(dev, &sa, HZ_F32, 3, ps);
	tz = device_tensor(dev, &za, q_dtype, 3, ps);
	got = image_new(ya.bytes, 0, &data);
	want = image_new(ya.bytes, 0, &data);
	area_write(&ya, got);
	area_write(&wa, got);
	total = GUARD + ya.bytes + GUARD;

	o.b_scales = &tbs;
	o.bias = &tbias;
	o.b_zero = -3;
	o.x_dtype = q_dtype;
	o.flags = symmetric ? HZ_QLINEAR_SYMMETRIC : 0;
	o.given = HZ_QGEMM_GIVEN_MAX;
	o.max = 20;
	if (fixed) {
		o.a_scale = 0.03;
		o.a_zero = q_dtype == HZ_U8 ? 100 : -7;
	}
	g = o;
	g.x_dtype = 0;
	g.flags = 0;
	if (fixed) {
		hz_quantize_opts q = { .scale = 0.03, .zero = o.a_zero };

		status |= hz_quantize(dev->ctx, &tx, &tq, &q);
	} else {
		hz_quantize_opts q = { .scales = &ts, .zeros = &tz };
		hz_tensor zs = tz, ss = ts;
		const uint32_t flags = symmetric ? HZ_QPARAMS_SYMMETRIC : 0;

		status |= RECORD(dev->ctx, hz_choose_qparams(dev->ctx, &tx, &ts, &tz, flags),
				 &bytes);
		status |= hz_reserve(dev->ctx, bytes);
		status |= hz_choose_qparams(dev->ctx, &tx, &ts, &tz, flags);
		status |= hz_quantize(dev->ctx, &tx, &tq, &q);
		zs = hz_tensor_nd(tz.data, q_dtype, dev->device, 2, vs);
		ss = hz_tensor_nd(ts.data, HZ_F32, dev->device, 2, vs);
		g.a_zeros = &zs;
		g.a_scales = &ss;
		status |= reserve(dev, &tq, &tb, &tw, &g);
		status |= hz_qgemm(dev->ctx, &tq, &tb, &tw, &g);
	}
	if (fixed) {
		status |= reserve(dev, &tq, &tb, &tw, &g);
		status |= hz_qgemm(dev->ctx, &tq, &tb, &tw, &g);
	}
	status |= hz_qgemm_pack_bytes(dev->ctx, &tb, &bytes);
	blob = area_new(dev, bytes, 0);
	status |= hz_qgemm_pack(dev->ctx, &tb, blob.data, bytes, &packed);
	o.packed = &packed;
	status |= RECORD(dev->ctx, hz_qlinear(dev->ctx, &tx, NULL, &ty, &o), &bytes);
	status |= hz_reserve(dev->ctx, bytes);
	status |= hz_qlinear(dev->ctx, &tx, NULL, &ty, &o);
	area_read(&ya, got);
	area_read(&wa, want);
	good = !status && same_bits(got, want, total, 1);
	if (!good)
		diag("%s: %s %s %s, how %d, more %d, %lld x %lld x %lld x %lld: %s", dev->name,
		     hz_dtype_name(x_dtype), hz_dtype_name(q_dtype), hz_dtype_name(y_dtype), how,
		     (int)more, (long long)batch, (long long)m, (long long)n, (long long)k,
		     status ? hz_errmsg(dev->ctx) : "differs");
	free(got);
	free(want);
	free(x.host);
	free(b.host);
	free(scales.host);
	free(bias.host);
	area_free(&xa);
	area_free(&ya);
	area_free(&wa);
	area_free(&ba);
	area_free(&qa);
	area_free(&sa);
	area_free(&za);
	area_free(&bsa);
	area_free(&bia);
	area_free(&blob);
	return good;
}

static void test_linear(void)
{
	/* few, some and many rows; columns of one and of several blocks */
	static const int64_t sizes[][3] = {
		{ 1, 64, 4096 }, { 1, 200, 1000 }, { 2, 70, 2048 }, { 7, 100, 777 },
		{ 8, 4096, 1024 }, { 16, 300, 1280 }, { 17, 130, 2000 }, { 32, 600, 900 },
		{ 33, 500, 640 }, { 64, 1000, 1024 }, { 127, 200, 300 }, { 130, 777, 512 },
		{ 300, 3000, 260 }, { 1024, 1024, 1024 }, { 2000, 400, 129 }, { 5, 40, 70000 },
		{ 1, 8200, 3000 }, { 3, 4200, 4096 }, { 12, 4200, 4000 }, { 20, 4300, 2100 },
		{ 1, 20, 512 }, { 2, 80, 4096 }, { 1100, 256, 4200 }, { 4500, 2100, 40 },
	};
	const int count = (int)(sizeof(sizes) / sizeof(*sizes));
	int d, i, bad = 0;

	for (d = 0; d < ndevs; d++) {
		for (i = 0; i < 36 && bad < 5; i++)
			bad += !linear_case(&devs[d], floats[i % 3], code_dtypes[i / 3 % 2],
					    floats[i / 6 % 3],
					    i % 4 == 3 ? FIXED : i / 18 ? SYMMETRIC : 0, 0,
					    1 + rnd_below(&rnd, 3), 1 + rnd_below(&rnd, 20),
					    1 + rnd_below(&rnd, 80), 1 + rnd_below(&rnd, 300));
		for (i = 0; i < count * 4 && bad < 5; i++) {
			const int64_t *s = sizes[i % count];
			const int how = (i / count == 1 ? WILD : i / count == 2 ? ACROSS : 0) |
					(int[]){ 0, FIXED, SYMMETRIC }[i % 3];

			if (devs[d].device == HZ_CPU &&
			    ((i / count && !(how & ACROSS)) || s[0] * s[1] > 100000 ||
			     (tap_quick() && s[0] * s[1] * s[2] > 3000000)))
				continue;
			bad += !linear_case(&devs[d], floats[i / 2 % 3], code_dtypes[i / 5 % 2],
					    floats[i / 4 % 3], how, i / count == 3 ? 1 + i % 2 : 0,
					    1 + i % 5 / 4, s[0], s[1], s[2]);
		}
	}
	ok(!bad, "a linear layer is the composition that it stands for");
}

int main(void)
{
	rnd = tap_seed();
	dev_open_all();
	dev_open_routes(HZI_OP_qlinear);
	test_linear();
	dev_close_all();
	return done_testing();
}
