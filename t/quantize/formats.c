/*
 * formats.c - hz_quantize() and hz_dequantize() to and from any format, by given and chosen scales
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The definitions search a table of all codes of a format, in double.
 */
#include <config.h>

#include "t/quantize/quantize.h"

static const int formats[] = {HZ_E2M1X2, HZ_E4M3, HZ_E5M2, HZ_S4X2, HZ_U4X2, HZ_S2X4, HZ_U2X4,
			      HZ_S16, HZ_U16, HZ_S8, HZ_U8};
#define FORMATS ((int)(sizeof(formats) / sizeof(*formats)))

static int bits_of(int dtype)
{
	return dtype == HZ_S2X4 || dtype == HZ_U2X4 ? 2 :
	       dtype == HZ_S4X2 || dtype == HZ_U4X2 || dtype == HZ_E2M1X2 ? 4 :
	       8 * (int)hz_dtype_size(dtype);
}

static int is_float(int dtype)
{
	return dtype == HZ_E2M1X2 || dtype == HZ_E4M3 || dtype == HZ_E5M2;
}

static int is_signed(int dtype)
{
	return dtype != HZ_U8 && dtype != HZ_U16 && dtype != HZ_U4X2 && dtype != HZ_U2X4;
}

static int low_of(int dtype)
{
	return is_signed(dtype) ? -(1 << (bits_of(dtype) - 1)) : 0;
}

/* The number that a code stands for */
static double value_of(int dtype, unsigned code)
{
	static const double e2m1[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
	const int range = 1 << bits_of(dtype);

	if (dtype == HZ_E2M1X2)
		return code & 8 ? -e2m1[code & 7] : e2m1[code & 7];
	if (is_float(dtype))
		return ref_small_decode(dtype, code);
	return is_signed(dtype) && (int)code >= range / 2 ? (int)code - range : (int)code;
}

static double largest_of(int dtype)
{
	return dtype == HZ_E2M1X2 ? 6 : dtype == HZ_E4M3 ? 448 : dtype == HZ_E5M2 ? 57344
									       : -low_of(dtype) - 1;
}

static double uniform(uint64_t seed, uint64_t i)
{
	uint64_t z = seed + i + 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return ldexp((double)((z ^ (z >> 31)) >> 40), -24);
}

/* The float code of t; u < 0: to nearest, ties to even codes */
static unsigned float_code(int dtype, double t, double u)
{
	const unsigned minus = 1u << (bits_of(dtype) - 1), sign = signbit(t) ? minus : 0;
	unsigned code = 0;
	double low, high;

	if (isnan(t))
		return dtype == HZ_E2M1X2 ? 0 : 0x7f;
	t = fmin(fabs(t), largest_of(dtype));
	while (value_of(dtype, code) < largest_of(dtype) && value_of(dtype, code + 1) <= t)
		code++;
	low = value_of(dtype, code);
	if (low == t)
		return sign | code;
	high = value_of(dtype, code + 1);
	if (u >= 0)
		return sign | (code + (u < (t - low) / (high - low)));
	return sign | (code + (t - low > high - t || (t - low == high - t && code % 2)));
}

static int integer_code(double t, int zero, int low, int high, double u)
{
	double r;

	if (isnan(t))
		t = 0;
	t = fmax(fmin(t, high - zero), low - zero);
	r = u < 0 ? nearbyint(t) : floor(t) + (u < t - floor(t));
	return (int)r + zero;
}

static unsigned get_code(int dtype, const unsigned char *q, int64_t i)
{
	const int bits = bits_of(dtype);
	uint16_t wide;

	if (bits == 16) {
		memcpy(&wide, q + 2 * i, 2);
		return wide;
	}
	return q[i * bits / 8] >> i * bits % 8 & ((1u << bits) - 1);
}

static void put_code(int dtype, unsigned char *q, int64_t i, unsigned code)
{
	const int bits = bits_of(dtype);
	const unsigned mask = (1u << bits) - 1;
	const uint16_t wide = (uint16_t)code;

	if (bits == 16)
		memcpy(q + 2 * i, &wide, 2);
	else
		q[i * bits / 8] = (unsigned char)((q[i * bits / 8] & ~(mask << i * bits % 8)) |
						  (code & mask) << i * bits % 8);
}

static float decode_scale(int dtype, const void *s, int64_t i)
{
	return (float)ref_get(dtype, s, i);
}

static uint32_t bits32(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, 4);
	return bits;
}

/* ---- The scales of groups -------------------------------------------------------------------- */

struct factor {
	float s, p, most;
};

static struct factor make_factor(float most, int torchao)
{
	volatile float s = 2688.0f / most, p = most / 2688.0f;
	struct factor f = {.most = most};

	if (torchao) {
		f.p = p > 0 && isfinite(p) ? p : 1;
		f.s = 1 / f.p;
		return f;
	}
	f.s = !(most > 0) || isinf(most) ? 1 : fminf(s, FLT_MAX);
	f.p = 1 / f.s;
	return f;
}

static struct factor given_factor(float p)
{
	return (struct factor){1 / p, p, p * 2688.0f};
}

/* 2^-127 <= s; NaN is code 255 */
static unsigned e8m0_code(float amax, int dtype, int rule)
{
	const int top = dtype == HZ_E2M1X2 ? 2 : dtype == HZ_E4M3 ? 8 : 15;
	const int mantissa = dtype == HZ_E2M1X2 ? 1 : dtype == HZ_E4M3 ? 3 : 2;
	volatile float quotient = amax / (float)largest_of(dtype);
	int e;

	if (isnan(amax))
		return 255;
	if (rule == HZ_SCALE_RCEIL) {
		if (isinf(amax))
			return 254;
		if (quotient == 0)
			return 0;
		e = ilogbf(quotient);
		e += quotient > ldexpf(1, e);
		return (unsigned)(e < -127 ? 0 : e + 127);
	}
	/* Exponents of subnormals and of Inf are those of their bits. */
	e = isinf(amax) ? 128 : amax < FLT_MIN ? -127 : ilogbf(amax);
	if (rule == HZ_SCALE_EVEN && amax >= FLT_MIN && !isinf(amax)) {
		const double m = (double)amax / ldexp(1, e);	/* 1 <= m < 2 */

		e += m + ldexp(1, -mantissa - 1) >= 2;
	} else if (rule == HZ_SCALE_EVEN && amax < FLT_MIN) {
		e += (double)amax + ldexp(1, -127 - mantissa) >= ldexp(1, -126);
	} else if (rule == HZ_SCALE_CEIL && !isinf(amax)) {
		e += amax < FLT_MIN ? amax > 0 : amax > ldexpf(1, e);
	}
	e -= top;
	return (unsigned)(e < -127 ? 0 : e + 127);
}

static float inverse(float v)
{
	volatile float r = 1 / v;

	return v == 0 ? FLT_MAX : r > FLT_MAX ? FLT_MAX : r;
}

/* A chosen scale as stored; values are multiplied by *factor, or divided by it. */
struct scale {
	unsigned bits;
	float factor;
	int divide;
};

static struct scale nv_scale(float base, float p)
{
	struct scale s = {float_code(HZ_E4M3, (double)base, -1), 0, 0};
	volatile float product = (float)value_of(HZ_E4M3, s.bits) * p;

	s.factor = inverse(product);
	return s;
}

static struct scale choose(const float *t, int64_t n, int dtype, int rule, struct factor f)
{
	struct scale s = {0, 0, 0}, four;
	volatile float base, third;
	float amax = 0, error[2] = {0, 0};

	for (int64_t i = 0; i < n; i++)
		amax = isnan(t[i]) || isnan(amax) ? NAN : fmaxf(amax, fabsf(t[i]));
	switch (rule) {
	case HZ_SCALE_AMAX:
		base = (amax == FLT_MAX ? nextafterf(amax, 0) : amax) / (float)largest_of(dtype);
		s.factor = amax == 0 ? 1 : base < FLT_MIN ? FLT_MIN : base;
		s.bits = isnan(s.factor) ? 0x7fc00000 : bits32(s.factor);
		s.divide = 1;
		return s;
	case HZ_SCALE_NV_TE:
		third = f.s * (1.0f / 6);
		base = amax * third;
		return nv_scale(base, f.p);
	case HZ_SCALE_NV_TORCHAO:
		base = amax / 6;
		base = base / f.p;
		base = base < 0x1p-6f ? 0x1p-6f : base;
		s.bits = float_code(HZ_E4M3, (double)base, -1);
		third = 1 / f.p;
		s.factor = third / (float)value_of(HZ_E4M3, s.bits);
		return s;
	case HZ_SCALE_NV46:
		base = amax / 6;
		base = base * f.s;
		s = nv_scale(base, f.p);
		base = base * 1.5f;
		four = nv_scale(base, f.p);
		for (int k = 0; k < 2; k++) {
			const struct scale *c = k ? &four : &s;

			for (int64_t i = 0; i < n; i++) {
				volatile float q = t[i] * c->factor, v, e;

				v = (float)value_of(dtype, float_code(dtype, (double)q, -1)) *
				    (float)value_of(HZ_E4M3, c->bits);
				v = v * f.most;
				v = v / 2688.0f;
				e = v - t[i];
				e = e * e;
				error[k] += e;
			}
		}
		return error[1] < error[0] ? four : s;
	default:
		s.bits = e8m0_code(amax, dtype, rule);
		s.factor = s.bits == 255 ? NAN : (float)ldexp(1, 127 - (int)s.bits);
		return s;
	}
}

/* ---- Random cases ---------------------------------------------------------------------------- */

/*
 * rule 0: scales are given. own: the shape of the scales; tensor: 0 none, 1 given, 2 new; bounds:
 * bits of opts.given
 */
struct fcase {
	int ndim, x_dtype, q_dtype, s_dtype, rule, scalar, zeros, bounds, tensor, stochastic, wild;
	int64_t shape[3], own[3], group;
	int64_t said;			/* opts.group */
	int min, max;
	uint64_t seed;
};

static const char *fdescribe(const struct fcase *c)
{
	static char text[300];

	snprintf(text, sizeof(text),
		 "%d: %lld %lld %lld group %lld (%lld) %s to %s scales %s rule %d scalar %d "
		 "zeros %d tensor %d stochastic %d wild %d bounds %d", c->ndim, (long long)c->shape[0],
		 (long long)c->shape[1], (long long)c->shape[2], (long long)c->group,
		 (long long)c->said, hz_dtype_name(c->x_dtype), hz_dtype_name(c->q_dtype),
		 hz_dtype_name(c->s_dtype), c->rule, c->scalar, c->zeros, c->tensor, c->stochastic,
		 c->wild, c->bounds);
	return text;
}

static struct fcase random_fcase(int q_dtype, int chosen)
{
	static const int e8m0_rules[] = {HZ_SCALE_FLOOR, HZ_SCALE_CEIL, HZ_SCALE_EVEN,
					 HZ_SCALE_RCEIL};
	static const int nv_rules[] = {HZ_SCALE_NV_TE, HZ_SCALE_NV_TORCHAO, HZ_SCALE_NV46};
	static const int64_t groups[] = {16, 32, 64, 128, 12, 2000};
	const int pack = bits_of(q_dtype) < 8 ? 8 / bits_of(q_dtype) : 1;
	struct fcase c = {.q_dtype = q_dtype};
	int last;

	c.ndim = 1 + (int)rnd_below(&rnd, 3);
	last = c.ndim - 1;
	for (int d = 0; d < c.ndim; d++)
		c.shape[d] = 1 + rnd_below(&rnd, d == last ? 150 : 6);
	if (rnd_below(&rnd, 6) == 0)
		c.shape[last] = 1000 + rnd_below(&rnd, 1500);
	if (rnd_below(&rnd, 3) == 0)
		c.shape[last] = (c.shape[last] + 127) / 128 * 128;
	c.shape[last] = (c.shape[last] + pack - 1) / pack * pack;
	c.x_dtype = floats[rnd_below(&rnd, 3)];
	c.wild = (int)rnd_below(&rnd, 3);
	c.stochastic = rnd_below(&rnd, 4) == 0;
	c.seed = rnd_u64(&rnd);
	c.s_dtype = (const int[]){HZ_F32, HZ_E8M0, HZ_E4M3}[rnd_below(&rnd, 3)];
	if (chosen && !is_signed(q_dtype))
		chosen = 0;
	if (chosen) {
		if (q_dtype != HZ_E2M1X2 && c.s_dtype == HZ_E4M3)
			c.s_dtype = HZ_E8M0;
		c.rule = c.s_dtype == HZ_F32 ? HZ_SCALE_AMAX :
			 c.s_dtype == HZ_E4M3 ? nv_rules[rnd_below(&rnd, 3)] :
			 is_float(q_dtype) ? e8m0_rules[rnd_below(&rnd, 4)] : HZ_SCALE_RCEIL;
		if (c.s_dtype == HZ_E4M3)
			c.tensor = (int)rnd_below(&rnd, 3);
	} else {
		c.tensor = (int)rnd_below(&rnd, 2);
		c.scalar = rnd_below(&rnd, 5) == 0;
		c.zeros = !is_float(q_dtype) && rnd_below(&rnd, 2);
	}
	if (!is_float(q_dtype) && rnd_below(&rnd, 3) == 0)
		c.bounds = 1 + (int)rnd_below(&rnd, 3);
	for (int d = 0; d < c.ndim; d++)
		c.own[d] = chosen || rnd_below(&rnd, 2) ? c.shape[d] : 1;
	c.group = rnd_below(&rnd, 4) ? groups[rnd_below(&rnd, 6)] : c.shape[last];
	if (c.rule == HZ_SCALE_NV46)
		c.group = 16;
	if (!chosen && rnd_below(&rnd, 4) == 0)
		c.group = 1 + rnd_below(&rnd, 9);
	if (c.group < c.shape[last] && (chosen || c.own[last] > 1)) {
		c.said = c.group;
		c.own[last] = (c.shape[last] + c.group - 1) / c.group;
	} else {
		c.own[last] = 1;
		c.group = c.shape[last];
	}
	c.min = low_of(q_dtype) + (int)rnd_below(&rnd, 1 << bits_of(q_dtype));
	c.max = low_of(q_dtype) + (1 << bits_of(q_dtype)) - 1;
	c.max -= (int)rnd_below(&rnd, c.bounds & HZ_QUANTIZE_GIVEN_MIN ? c.max - c.min + 1 :
				      1 << bits_of(q_dtype));
	return c;
}

/* bfloat16 to a float format, in groups whose number of elements is a power of two */
static struct fcase bf16_fcase(int q_dtype)
{
	struct fcase c = random_fcase(q_dtype, 1);
	const int last = c.ndim - 1;

	c.x_dtype = HZ_BF16;
	c.stochastic = 0;
	c.shape[last] = 128 * (1 + rnd_below(&rnd, 12));
	c.group = c.rule == HZ_SCALE_NV46 ? 16 : 16 << rnd_below(&rnd, 3);
	c.said = c.group;
	for (int d = 0; d < c.ndim; d++)
		c.own[d] = c.shape[d];
	c.own[last] /= c.group;
	return c;
}

/* Strides of codes: packed ones are contiguous in rows, others any */
static void codes_side(struct side *s, const struct fcase *c, int64_t *q_shape)
{
	const int pack = bits_of(c->q_dtype) < 8 ? 8 / bits_of(c->q_dtype) : 1;
	const int before = contiguous_sides;

	memcpy(q_shape, c->shape, sizeof(c->shape));
	q_shape[c->ndim - 1] /= pack;
	contiguous_sides |= pack > 1;
	side_new(s, c->q_dtype, c->ndim, q_shape);
	contiguous_sides = before;
}

/* Everything that is compared, as it should be */
struct wanted {
	struct side x, q, y;
	int64_t q_shape[3], params;
	unsigned char *scales, *zeros;
	float tensor;
	float scale;
	int zero;
};

static int64_t dot(const int64_t *at, const int64_t *stride, int n)
{
	int64_t sum = 0;

	for (int d = 0; d < n; d++)
		sum += at[d] * stride[d];
	return sum;
}

/* The indices of element i in C order, and the number of its scale */
static int64_t locate(const struct fcase *c, int64_t i, int64_t *at)
{
	int64_t p = 0, step = 1;

	for (int d = c->ndim - 1; d >= 0; d--) {
		at[d] = i % c->shape[d];
		i /= c->shape[d];
	}
	for (int d = c->ndim - 1; d >= 0; d--) {
		p += (d == c->ndim - 1 ? at[d] / c->group : c->own[d] > 1 ? at[d] : 0) * step;
		step *= c->own[d];
	}
	return p;
}

static void make_wanted(const struct fcase *c, struct wanted *w)
{
	const int size = c->s_dtype == HZ_F32 ? 4 : 1, wide = bits_of(c->q_dtype) == 16;
	const int pack = bits_of(c->q_dtype) < 8 ? 8 / bits_of(c->q_dtype) : 1;
	const int high = c->bounds & HZ_QUANTIZE_GIVEN_MAX ? c->max :
			 low_of(c->q_dtype) + (1 << bits_of(c->q_dtype)) - 1;
	const int low = c->bounds & HZ_QUANTIZE_GIVEN_MIN ? c->min :
			c->rule && high > low_of(c->q_dtype) ? low_of(c->q_dtype) + 1 :
			low_of(c->q_dtype);
	const int last = c->ndim - 1;
	int64_t n = 1, at[3];
	float *values, most = 0;
	struct factor f = given_factor(1);

	w->params = 1;
	for (int d = 0; d < c->ndim; d++) {
		n *= c->shape[d];
		w->params *= c->own[d];
	}
	values = calloc((size_t)n, sizeof(*values));
	side_new(&w->x, c->x_dtype, c->ndim, c->shape);
	side_new(&w->y, c->x_dtype, c->ndim, c->shape);
	codes_side(&w->q, c, w->q_shape);
	w->scales = calloc((size_t)w->params, (size_t)size);
	w->zeros = calloc((size_t)w->params, 2);
	w->tensor = (float)ldexp(1 + fabs(rnd_normal(&rnd)), (int)rnd_below(&rnd, 9) - 8);
	w->scale = fabsf(random_scale(0)) + 1e-3f;
	w->zero = c->zeros ? low_of(c->q_dtype) + (int)rnd_below(&rnd, 1 << bits_of(c->q_dtype)) : 0;
	for (int64_t p = 0; p < w->params && !c->rule; p++) {
		const float s = random_scale(c->wild);
		const int z = low_of(c->q_dtype) + (int)rnd_below(&rnd, 1 << bits_of(c->q_dtype));
		const int16_t z16 = (int16_t)z;

		if (c->s_dtype == HZ_F32)
			memcpy(w->scales + 4 * p, &s, 4);
		else
			w->scales[p] = (unsigned char)(c->wild ? rnd_below(&rnd, 256)
							       : 30 + rnd_below(&rnd, 90));
		if (wide)
			memcpy(w->zeros + 2 * p, &z16, 2);
		else
			w->zeros[p] = (unsigned char)z;
	}
	for (int64_t i = 0; i < n; i++) {
		double v = random_value(&(struct tcase){.wild = c->wild});

		locate(c, i, at);
		if (rnd_below(&rnd, 3) == 0)	/* often a tie */
			v = ldexp(rnd_below(&rnd, 33), (int)rnd_below(&rnd, 4) - 3);
		if (rnd_below(&rnd, 20) == 0)	/* small beside the others */
			v = ldexp(rnd_below(&rnd, 33), -(int)rnd_below(&rnd, 30));
		if (at[last] / 16 % 5 == 1)
			v = 0;
		ref_put(c->x_dtype, origin(&w->x, w->x.image), dot(at, w->x.stride, c->ndim), v);
		values[i] = (float)ref_get(c->x_dtype, origin(&w->x, w->x.image),
					   dot(at, w->x.stride, c->ndim));
		most = isnan(values[i]) || isnan(most) ? NAN : fmaxf(most, fabsf(values[i]));
	}
	if (c->tensor == 2) {
		f = make_factor(most, c->rule == HZ_SCALE_NV_TORCHAO);
		w->tensor = f.p;
	} else if (c->tensor == 1) {
		f = given_factor(w->tensor);
	}
	for (int64_t i = 0; i < n; i++) {
		const int64_t p = locate(c, i, at);
		unsigned char *q = (unsigned char *)origin(&w->q, w->q.want) +
				   dot(at, w->q.stride, last) * (int64_t)hz_dtype_size(c->q_dtype);
		const int64_t q_at = at[last] * (pack > 1 ? 1 : w->q.stride[last]);
		const double u = c->stochastic ? uniform(c->seed, (uint64_t)i) : -1;
		static struct scale s;
		int zero = 0;
		unsigned code;
		volatile float t, y;
		float d;

		if (c->rule && at[last] % c->group == 0) {
			const int64_t left = c->shape[last] - at[last];

			s = choose(values + i, left < c->group ? left : c->group, c->q_dtype,
				   c->rule, f);
			if (c->s_dtype == HZ_F32)
				memcpy(w->scales + 4 * p, &s.bits, 4);
			else
				w->scales[p] = (unsigned char)s.bits;
		}
		d = c->scalar ? w->scale : decode_scale(c->s_dtype, w->scales, p);
		if (!c->rule) {
			volatile float both = c->tensor ? d * w->tensor : d;

			s = (struct scale){0, both, 1};
		}
		if (c->scalar)
			zero = w->zero;
		else if (c->zeros)
			zero = (int)value_of(c->q_dtype,
					     wide ? get_code(HZ_U16, w->zeros, p) :
						    w->zeros[p] & ((1u << bits_of(c->q_dtype)) - 1));
		t = s.divide ? values[i] / s.factor : values[i] * s.factor;
		code = is_float(c->q_dtype)
			       ? float_code(c->q_dtype, (double)t, u)
			       : (unsigned)integer_code((double)t, zero, low, high, u);
		put_code(c->q_dtype, q, q_at, code);
		code = get_code(c->q_dtype, q, q_at);
		y = (float)(value_of(c->q_dtype, code) - zero) * d;
		if (c->tensor)
			y = y * w->tensor;
		ref_put(c->x_dtype, origin(&w->y, w->y.want), dot(at, w->y.stride, c->ndim),
			(double)y);
	}
	free(values);
}

/* What hz_dequantize() is called with after hz_quantize() */
static hz_quantize_opts back_opts(const hz_quantize_opts *o)
{
	return (hz_quantize_opts){
		.scale = o->scale, .zero = o->zero, .zeros = o->zeros, .group = o->group,
		.scales = o->new_scales ? o->new_scales : o->scales,
		.tensor_scale = o->new_tensor_scale ? o->new_tensor_scale : o->tensor_scale};
}

static int run_fcase(const struct fcase *c)
{
	const size_t s_bytes = c->s_dtype == HZ_F32 ? 4 : 1;
	struct wanted w;
	int good = 1;

	make_wanted(c, &w);
	for (int d = 0; d < ndevs && good; d++) {
		struct dev *dev = &devs[d];
		struct area xa = area_new(dev, w.x.bytes, 0), qa = area_new(dev, w.q.bytes, 0);
		struct area ya = area_new(dev, w.y.bytes, 0), ta = area_new(dev, 4, 0), ga, za;
		struct area sa = area_new(dev, (size_t)w.params * s_bytes, 0);
		hz_tensor zeros = hz_tensor_nd(w.zeros, bits_of(c->q_dtype) >= 8 ? c->q_dtype :
					       is_signed(c->q_dtype) ? HZ_S8 : HZ_U8, HZ_CPU,
					       c->ndim, c->own);
		hz_tensor given = hz_tensor_nd(w.scales, c->s_dtype, HZ_CPU, c->ndim, c->own);
		hz_tensor x = side_view(&w.x, &xa, c->ndim, c->shape);
		hz_tensor q = side_view(&w.q, &qa, c->ndim, w.q_shape);
		hz_tensor y = side_view(&w.y, &ya, c->ndim, c->shape);
		hz_tensor t = hz_tensor_1d(ta.data, HZ_F32, dev->device, 1);
		hz_tensor s = hz_tensor_nd(sa.data, c->s_dtype, dev->device, c->ndim, c->own);
		hz_quantize_opts o = {.group = c->said}, back;
		unsigned char *got = malloc(w.q.total + w.y.total + 2 * GUARD + 4 +
					    (size_t)w.params * s_bytes);
		size_t bytes = 0;
		int st;

		area_write(&xa, w.x.image);
		area_write(&qa, w.q.image);
		area_write(&ya, w.y.image);
		memset(got, 0, 2 * GUARD + 4);
		memcpy(got + GUARD, &w.tensor, 4);
		area_write(&ta, got);
		given = to_device(dev, &given, &ga);
		zeros = to_device(dev, &zeros, &za);
		o.given = (c->stochastic ? HZ_QUANTIZE_GIVEN_STOCHASTIC : 0) |
			  (uint32_t)c->bounds;
		if (c->stochastic)
			o.stochastic = c->seed;
		if (c->bounds & HZ_QUANTIZE_GIVEN_MIN)
			o.min = c->min;
		if (c->bounds & HZ_QUANTIZE_GIVEN_MAX)
			o.max = c->max;
		if (c->rule) {
			o.new_scales = &s;
			if (c->rule != HZ_SCALE_AMAX && c->rule != HZ_SCALE_NV_TE)
				o.scale_rule = c->rule;
		} else if (c->scalar) {
			o.scale = (double)w.scale;
			o.zero = w.zero;
			o.group = 0;
		} else {
			o.scales = &given;
			o.zeros = c->zeros ? &zeros : NULL;
		}
		if (c->tensor == 2)
			o.new_tensor_scale = &t;
		else if (c->tensor)
			o.tensor_scale = &t;
		st = RECORD(dev->ctx, hz_quantize(dev->ctx, &x, &q, &o), &bytes);
		if (!st)
			st = hz_reserve(dev->ctx, bytes);
		if (!st)
			st = hz_quantize(dev->ctx, &x, &q, &o);
		area_read(&qa, got);
		good = !st && same_bits(got, w.q.want, w.q.total, 1);
		if (!good)
			diag("quantize, %s: %s: %s", dev->name, fdescribe(c),
			     st ? hz_errmsg(dev->ctx) : "wrong");
		if (good && c->rule) {
			area_read(&sa, got);
			good = same_bits(got + GUARD, w.scales, (size_t)w.params, s_bytes);
			area_read(&ta, got);
			good &= same_bits(got + GUARD, &w.tensor, 1, 4);
			if (!good)
				diag("scales, %s: %s", dev->name, fdescribe(c));
		}
		back = back_opts(&o);
		if (good) {
			st = hz_dequantize(dev->ctx, &q, &y, &back);
			area_read(&ya, got);
			good = !st && same_side(&w.y, got);
			if (!good)
				diag("dequantize, %s: %s: %s", dev->name, fdescribe(c),
				     st ? hz_errmsg(dev->ctx) : "wrong");
		}
		free(got);
		area_free(&xa);
		area_free(&qa);
		area_free(&ya);
		area_free(&ta);
		area_free(&sa);
		area_free(&ga);
		area_free(&za);
	}
	side_free(&w.x);
	side_free(&w.q);
	side_free(&w.y);
	free(w.scales);
	free(w.zeros);
	return good;
}

static void test_random_formats(void)
{
	for (int f = 0; f < FORMATS; f++) {
		for (int chosen = 0; chosen < 2; chosen++) {
			int bad = 0;

			if (chosen && !is_signed(formats[f]))
				continue;
			for (int i = 0; i < (quick ? 25 : 300) && bad < 3; i++) {
				const struct fcase c = chosen && is_float(formats[f]) && i % 3 == 0 ?
						       bf16_fcase(formats[f]) :
						       random_fcase(formats[f], chosen);

				contiguous_sides = i % 2;
				bad += !run_fcase(&c);
			}
			contiguous_sides = 0;
			ok(!bad, "%s, %s scales", hz_dtype_name(formats[f]),
			   chosen ? "chosen" : "given");
		}
	}
}

/*
 * Calls of more than 32 MiB store codes past the caches, and blocks of a GPU process several tiles:
 * they are those of smaller calls on a CPU.
 */
static void test_large(void)
{
	static const struct {
		int q_dtype, s_dtype, group, tensor;
	} kind[] = {{HZ_E2M1X2, HZ_E8M0, 32, 0}, {HZ_E4M3, HZ_E8M0, 32, 0},
		    {HZ_E2M1X2, HZ_E4M3, 16, 0}, {HZ_E2M1X2, HZ_E4M3, 16, 1}};
	enum { ROWS = 2816, LENGTH = 4096, PATTERN = 1 << 16 };
	const size_t n = (size_t)ROWS * LENGTH;
	const hz_options cpu = {.device = HZ_CPU};
	uint16_t *data = aligned_alloc(64, n * 2);
	unsigned char *codes[2], *scales[2];
	struct dev *dev = &devs[0];
	struct area xa;
	hz_context *c;
	hz_tensor tx = hz_tensor_2d(data, HZ_BF16, HZ_CPU, ROWS, LENGTH);

	if (hz_open(&c, &cpu))
		bail("%s", hz_open_errmsg());
	for (int i = 0; i < 2; i++) {
		codes[i] = aligned_alloc(64, n + 2 * GUARD);
		scales[i] = aligned_alloc(64, n / 16 + 2 * GUARD);
	}
	for (size_t i = 0; i < PATTERN; i++)
		data[i] = (uint16_t)(bits32((float)rnd_normal(&rnd)) >> 16);
	for (size_t i = PATTERN; i < n; i += PATTERN)
		memcpy(data + i, data, PATTERN * 2);
	data[n / 2 + rnd_below(&rnd, PATTERN)] = 0x42c8;
	tx = to_device(dev, &tx, &xa);
	for (int k = 0; k < 4; k++) {
		const int64_t width = LENGTH / (kind[k].q_dtype == HZ_E2M1X2 ? 2 : 1);
		const int64_t groups = LENGTH / kind[k].group, parts = kind[k].tensor ? 1 : 4;
		struct area qa = area_new(dev, (size_t)(ROWS * width), 0);
		struct area sa = area_new(dev, (size_t)(ROWS * groups), 0);
		struct area ta = area_new(dev, 4, 0);
		float most[2] = {0};
		unsigned char image[4 + 2 * GUARD];
		size_t bytes = 0;
		int st = 0;

		for (int64_t i = 0; i <= parts && !st; i++) {
			const int64_t rows = i ? ROWS / parts : ROWS, row = i ? (i - 1) * rows : 0;
			hz_context *const ctx = i ? c : dev->ctx;
			const int on = hz_device(ctx);
			hz_tensor x = hz_tensor_2d(i ? data + row * LENGTH : tx.data, HZ_BF16, on,
						   rows, LENGTH);
			hz_tensor q = hz_tensor_2d(i ? codes[1] + row * width : qa.data,
						   kind[k].q_dtype, on, rows, width);
			hz_tensor s = hz_tensor_2d(i ? scales[1] + row * groups : sa.data,
						   kind[k].s_dtype, on, rows, groups);
			hz_tensor t = hz_tensor_1d(i ? (void *)&most[1] : ta.data, HZ_F32, on, 1);
			const hz_quantize_opts o = {.new_scales = &s, .group = kind[k].group,
						    .new_tensor_scale = kind[k].tensor ? &t : NULL};

			st = RECORD(ctx, hz_quantize(ctx, &x, &q, &o), &bytes);
			st = st ? st : hz_reserve(ctx, bytes);
			st = st ? st : hz_quantize(ctx, &x, &q, &o);
		}
		area_read(&qa, codes[0]);
		area_read(&sa, scales[0]);
		area_read(&ta, image);
		if (kind[k].tensor)
			memcpy(&most[0], image + GUARD, 4);
		ok(!st && same_bits(codes[0] + GUARD, codes[1], (size_t)(ROWS * width), 1) &&
		   same_bits(scales[0] + GUARD, scales[1], (size_t)(ROWS * groups), 1) &&
		   most[0] == most[1],
		   "large, %s by %s%s", hz_dtype_name(kind[k].q_dtype),
		   hz_dtype_name(kind[k].s_dtype), kind[k].tensor ? " and a new factor" : "");
		area_free(&qa);
		area_free(&sa);
		area_free(&ta);
	}
	area_free(&xa);
	hz_close(c);
	for (int i = 0; i < 2; i++) {
		free(codes[i]);
		free(scales[i]);
	}
	free(data);
}

/* ---- With a transform ------------------------------------------------------------------------ */

/* A transform in f32, and then quantization of its result, give the same as both in one call. */
static void test_rotated(void)
{
	static const struct {
		int q_dtype, s_dtype, rule, tensor, round_to, stochastic;
		int64_t group, n, block;
	} rows[] = {
		{HZ_E2M1X2, HZ_E4M3, 0, 2, HZ_BF16, 0, 16, 160, 16},
		{HZ_E2M1X2, HZ_E4M3, HZ_SCALE_NV46, 2, 0, 0, 16, 96, 32},
		{HZ_E2M1X2, HZ_E8M0, 0, 0, HZ_F16, 1, 32, 2048, 0},
		{HZ_E4M3, HZ_E8M0, HZ_SCALE_FLOOR, 0, 0, 0, 32, 1056, 32},
		{HZ_S4X2, HZ_F32, 0, 0, 0, 0, 0, 1152, 128},
		{HZ_E5M2, HZ_F32, 0, 0, 0, 1, 100, 256, 0},
	};
	enum { M = 3, K = 2, N = 2048 };

	for (size_t r = 0; r < sizeof(rows) / sizeof(*rows); r++) {
		const int64_t n = rows[r].n, groups =
			rows[r].group ? (n + rows[r].group - 1) / rows[r].group : 1;
		const int pack = bits_of(rows[r].q_dtype) < 8 ? 8 / bits_of(rows[r].q_dtype) : 1;
		const size_t q_bytes = (size_t)(M * K * n / pack), count = (size_t)(M * K * n);
		const size_t s_bytes =
			(size_t)(M * K * groups) * (rows[r].s_dtype == HZ_F32 ? 4 : 1);
		static float values[M * K * N];
		int bad = 0;

		for (size_t i = 0; i < count; i++)
			values[i] = (float)rnd_normal(&rnd);
		for (int d = 0; d < ndevs && !bad; d++) {
			struct dev *dev = &devs[d];
			hz_context *ctx = dev->ctx;
			const int rotated_dtype = rows[r].round_to ? rows[r].round_to : HZ_F32;
			unsigned char *images[2][3];
			struct area xa, ra = area_new(dev, count * 4, 0);
			/* With stochastic rounding, rows that are not in C order */
			hz_tensor x = hz_tensor_3d(values, HZ_F32, HZ_CPU, M, K, n), rotated;
			hz_hadamard_opts h = {.block = rows[r].block};

			x = to_device(dev, &x, &xa);
			x = hz_view_transpose(&x, 0, 1);
			rotated = hz_tensor_3d(ra.data, rotated_dtype, dev->device, K, M, n);
			for (int apart = 0; apart < 2; apart++) {
				struct area qa = area_new(dev, q_bytes, 0);
				struct area sa = area_new(dev, s_bytes, 0), ta = area_new(dev, 4, 0);
				hz_tensor q = hz_tensor_3d(qa.data, rows[r].q_dtype, dev->device, K,
							   M, n / pack);
				hz_tensor s = hz_tensor_3d(sa.data, rows[r].s_dtype, dev->device, K,
							   M, groups);
				hz_tensor t = hz_tensor_1d(ta.data, HZ_F32, dev->device, 1);
				hz_quantize_opts o = {
					.new_scales = &s, .scale_rule = rows[r].rule,
					.new_tensor_scale = rows[r].tensor ? &t : NULL,
					.group = rows[r].group,
					.given = rows[r].stochastic * HZ_QUANTIZE_GIVEN_STOCHASTIC,
					.stochastic = rows[r].stochastic ? 77 : 0,
				};
				size_t bytes = 0;

				if (apart) {
					RECORD(ctx, hz_hadamard(ctx, &x, &rotated, &h), &bytes);
					hz_reserve(ctx, bytes);
					bad += hz_hadamard(ctx, &x, &rotated, &h) != HZ_OK;
				} else {
					h.round_to = rows[r].round_to;
					o.hadamard = &h;
				}
				RECORD(ctx, hz_quantize(ctx, apart ? &rotated : &x, &q, &o), &bytes);
				hz_reserve(ctx, bytes);
				if (hz_quantize(ctx, apart ? &rotated : &x, &q, &o)) {
					diag("%s", hz_errmsg(ctx));
					bad++;
				}
				h.round_to = 0;
				images[apart][0] = malloc(q_bytes + 2 * GUARD);
				images[apart][1] = malloc(s_bytes + 2 * GUARD);
				images[apart][2] = malloc(4 + 2 * GUARD);
				area_read(&qa, images[apart][0]);
				area_read(&sa, images[apart][1]);
				area_read(&ta, images[apart][2]);
				area_free(&qa);
				area_free(&sa);
				area_free(&ta);
			}
			bad += !same_bits(images[0][0] + GUARD, images[1][0] + GUARD, q_bytes, 1);
			bad += !same_bits(images[0][1] + GUARD, images[1][1] + GUARD, s_bytes, 1);
			if (rows[r].tensor)
				bad += !same_bits(images[0][2] + GUARD, images[1][2] + GUARD, 4, 1);
			if (bad)
				diag("%s", dev->name);
			for (int i = 0; i < 6; i++)
				free(images[i / 3][i % 3]);
			area_free(&xa);
			area_free(&ra);
		}
		ok(!bad, "%s with a transform, scales %s, rule %d", hz_dtype_name(rows[r].q_dtype),
		   hz_dtype_name(rows[r].s_dtype), rows[r].rule);
	}
}

/* ||a - b|| / ||b|| */
static double distance(int dtype, const void *a, const void *b, int64_t n)
{
	double apart = 0, all = 0;

	for (int64_t i = 0; i < n; i++) {
		const double v = ref_get(dtype, b, i), d = ref_get(dtype, a, i) - v;

		apart += d * d;
		all += v * v;
	}
	return sqrt(apart / all);
}

/*
 * The same from any floats, by each ISA level in one call, and apart by plain C. Some rows have
 * NaN, Inf, subnormals, numbers whose sums exceed f32, or only large or small ones.
 */
static void test_rotated_levels(void)
{
	static const struct {
		int q_dtype, s_dtype, rule, round_to;
		int64_t group;
	} kind[] = {
		{HZ_E2M1X2, HZ_E8M0, HZ_SCALE_AUTO, 0, 32},
		{HZ_E4M3, HZ_E8M0, HZ_SCALE_FLOOR, 0, 32},
		{HZ_E5M2, HZ_E8M0, HZ_SCALE_EVEN, HZ_BF16, 32},
		{HZ_E2M1X2, HZ_E8M0, HZ_SCALE_CEIL, HZ_F16, 32},
		{HZ_E2M1X2, HZ_E4M3, HZ_SCALE_NV_TE, 0, 16},
		{HZ_E2M1X2, HZ_E4M3, HZ_SCALE_NV_TE, HZ_BF16, 16},
		{HZ_E2M1X2, HZ_E4M3, HZ_SCALE_NV_TORCHAO, 0, 16},
	};
	static const uint16_t odd[] = {0x7fff, 0xff80, 0x7f7f, 0x0001, 0xff7f, 0x0080, 0x7f81};
	enum { M = 9, N = 8192 + 64, KINDS = sizeof(kind) / sizeof(*kind) };
	static uint16_t x[M * N], half[M * N];
	static float x32[M * N], rotated[M * N];
	static uint8_t signs[N / 8], q[2][M * N], s[2][M * N];
	const hz_options plain = {.device = HZ_CPU, .isa = HZ_ISA_C, .threads = 1};
	hz_context *c;

	if (hz_open(&c, &plain))
		bail("%s", hz_open_errmsg());
	for (int r = 0; r < 4 * KINDS; r++) {
		const int k = r % KINDS, pack = kind[k].q_dtype == HZ_E2M1X2 ? 2 : 1;
		const int64_t block = 8 << 5 * r % 11, pad = r % 3 == 0 ? 7 : 0;
		const int64_t step = block < 128 ? 128 : block;
		const int64_t n = (1 + (int64_t)rnd_below(&rnd, 1 + 2432 / (uint64_t)step)) * step +
				  (block <= 32 ? 32 : 0);
		const int64_t groups = n / kind[k].group;
		const int found = kind[k].s_dtype == HZ_E4M3 && rnd_below(&rnd, 2);
		const float given = r % 4 == 3 ? 0.001f : 0.01f;
		float factor[2] = {given, given};
		const hz_tensor pre = hz_tensor_1d(signs, HZ_U8, HZ_CPU, (r & 4 ? n : block) / 8);
		hz_hadamard_opts h = {.block = block, .pre = r & 2 ? &pre : NULL};
		const int dtype = r % 4 == 1 ? HZ_F32 : r % 4 == 2 ? HZ_F16 : HZ_BF16;
		void *const from = dtype == HZ_F32 ? (void *)x32 : x;
		hz_tensor tx = hz_tensor_2d(from, dtype, HZ_CPU, M, n), ty = tx;
		int bad = 0;

		tx.stride[0] = n + pad;
		for (int64_t i = 0; i < M * (n + pad); i++) {
			const float far = r % 2 ? 0x1p-90f : 0x1p100f;
			const float v = (float)rnd_normal(&rnd) * (i / (n + pad) == 7 ? far : 1);
			uint32_t bits;

			memcpy(&bits, &v, 4);
			x[i] = (uint16_t)(bits >> 16);
			if (dtype != HZ_BF16)
				ref_put(dtype, from, i, v);
		}
		for (int64_t i = 0; i < M && r >= KINDS; i += 2)
			x[i * (n + pad) + (int64_t)rnd_below(&rnd, (uint64_t)n)] =
				odd[(size_t)(r + i) % (sizeof(odd) / sizeof(*odd))];
		for (int64_t i = 0; i < n && r >= KINDS; i++)
			x[5 * (n + pad) + i] = (uint16_t)(0x7f00 + rnd_below(&rnd, 0x80));
		for (int64_t i = 0; i < M * (n + pad) && dtype == HZ_F32 && r >= KINDS; i++) {
			const uint32_t low = (uint32_t)rnd_u64(&rnd) & 0xffff;
			const uint32_t bits = (uint32_t)x[i] << 16 | low;

			memcpy(&x32[i], &bits, 4);
		}
		for (int64_t i = 0; i < N / 8; i++)
			signs[i] = (uint8_t)rnd_below(&rnd, 256);
		ty.data = kind[k].round_to ? (void *)half : rotated;
		ty.dtype = kind[k].round_to ? kind[k].round_to : HZ_F32;
		if (hz_hadamard(c, &tx, &ty, &h))
			bail("%s", hz_errmsg(c));
		h.round_to = kind[k].round_to;
		for (int d = -1; d < ndevs && !bad; d++) {
			hz_context *const ctx = d < 0 ? c : devs[d].ctx;
			hz_tensor tq = hz_tensor_2d(q[d >= 0], kind[k].q_dtype, HZ_CPU, M, n / pack);
			hz_tensor ts = hz_tensor_2d(s[d >= 0], kind[k].s_dtype, HZ_CPU, M, groups);
			hz_tensor t = hz_tensor_1d(&factor[d >= 0], HZ_F32, HZ_CPU, 1);
			const hz_quantize_opts o = {
				.new_scales = &ts, .scale_rule = kind[k].rule,
				.group = kind[k].group, .hadamard = d < 0 ? NULL : &h,
				.tensor_scale = kind[k].s_dtype == HZ_E4M3 && !found ? &t : NULL,
				.new_tensor_scale = found ? &t : NULL,
			};

			if (d >= 0 && devs[d].device != HZ_CPU)
				continue;
			memset(q[d >= 0], 0x5a, sizeof(*q));
			memset(s[d >= 0], 0x5a, sizeof(*s));
			if (hz_quantize(ctx, d < 0 ? &ty : &tx, &tq, &o))
				bail("%s", hz_errmsg(ctx));
			bad = d >= 0 && (!same_bits(q[0], q[1], sizeof(*q), 1) ||
					 !same_bits(s[0], s[1], sizeof(*s), 1) ||
					 !same_bits(&factor[0], &factor[1], 1, 4));
			if (bad)
				diag("%s", devs[d].name);
		}
		ok(!bad, "%s to %s by %s, rule %d, blocks of %d, rows of %d", hz_dtype_name(dtype),
		   hz_dtype_name(kind[k].q_dtype), hz_dtype_name(kind[k].s_dtype), kind[k].rule,
		   (int)block, (int)n);
	}
	hz_close(c);
}

/* Dequantizes contiguous groups of any codes by any scales and factor of the tensor. */
static void test_values(void)
{
	static const int kind[][3] = {{HZ_E2M1X2, HZ_E8M0, 32}, {HZ_E4M3, HZ_E8M0, 32},
				      {HZ_E5M2, HZ_E8M0, 32}, {HZ_E2M1X2, HZ_E4M3, 16}};
	static const int dtypes[] = {HZ_F32, HZ_F16, HZ_BF16};
	const float factors[] = {1, 0.7f, -3e-5f, 0, -1e-35f, 3e38f, INFINITY, NAN};
	enum { MOST = 32 * 40, TAIL = 64 };
	static uint8_t q[MOST], s[MOST / 16];
	static float y[MOST + TAIL], want[MOST + TAIL];

	for (int r = 0; r < 12 * (quick ? 8 : 64); r++) {
		const int q_dtype = kind[r % 4][0], s_dtype = kind[r % 4][1], group = kind[r % 4][2];
		const int dtype = dtypes[r / 4 % 3], pack = q_dtype == HZ_E2M1X2 ? 2 : 1;
		const int64_t n = 32 * (1 + (int64_t)rnd_below(&rnd, MOST / 32));
		const int64_t off = (int64_t)rnd_below(&rnd, 2);
		const int form = (int)rnd_below(&rnd, 4);
		float factor = factors[rnd_below(&rnd, 8)];
		hz_tensor tq = hz_tensor_1d(q, q_dtype, HZ_CPU, n / pack);
		hz_tensor ts = hz_tensor_1d(s, s_dtype, HZ_CPU, n / group);
		hz_tensor tt = hz_tensor_1d(&factor, HZ_F32, HZ_CPU, 1);
		const hz_quantize_opts o = {.scales = &ts, .group = group,
					    .tensor_scale = form ? &tt : NULL};
		int bad = 0;

		factor = form == 1 ? 1 : factor;
		for (int64_t i = 0; i < n; i++)
			q[i] = (uint8_t)rnd_below(&rnd, 256);
		/* Few groups with NaN, so that most calls begin with groups of numbers */
		for (int64_t i = 0; i < n / group; i++)
			s[i] = (uint8_t)(s_dtype == HZ_E8M0 && rnd_below(&rnd, 2) ?
						 100 + rnd_below(&rnd, 50) :
						 rnd_below(&rnd, rnd_below(&rnd, 64) ? 127 : 256));
		for (int64_t i = 0; i < n && q_dtype == HZ_E4M3 && form < 2; i++)
			q[i] ^= (q[i] & 0x7f) == 0x7f;
		memset(want, 0x5a, sizeof(want));
		for (int64_t i = 0; i < n; i++) {
			const unsigned e = s[i / group];
			const double scale = s_dtype == HZ_E4M3 ? value_of(HZ_E4M3, e) :
					     e == 255 ? NAN : ldexp(1, (int)e - 127);
			const float v = (float)(value_of(q_dtype, get_code(q_dtype, q, i)) * scale);

			ref_put(dtype, want, i + off, o.tensor_scale ?
				(double)(float)((double)v * (double)factor) : (double)v);
		}
		for (int d = 0; d < ndevs && !bad; d++) {
			const size_t size = hz_dtype_size(dtype);
			hz_tensor ty = hz_tensor_1d((char *)y + (size_t)off * size, dtype, HZ_CPU,
						    n);

			if (devs[d].device != HZ_CPU)
				continue;
			memset(y, 0x5a, sizeof(y));
			if (hz_dequantize(devs[d].ctx, &tq, &ty, &o))
				bail("%s", hz_errmsg(devs[d].ctx));
			bad = !same_numbers(dtype, y, want, (int64_t)(sizeof(y) / size));
			if (bad)
				diag("%s", devs[d].name);
		}
		if (bad) {
			ok(0, "%s by %s to %s, %d codes, factor %g", hz_dtype_name(q_dtype),
			   hz_dtype_name(s_dtype), hz_dtype_name(dtype), (int)n,
			   o.tensor_scale ? (double)factor : 1);
			return;
		}
	}
	ok(1, "dequantize contiguous groups of any codes, scales and factors");
}

/*
 * Contiguous rows of one dtype, which a GPU quantizes in one launch: the same bits as plain C. With
 * a transform x has integers, so that sums are exact.
 */
static void test_contiguous(void)
{
	static const int dtypes[][2] = {{HZ_E2M1X2, HZ_E8M0}, {HZ_E4M3, HZ_E8M0},
					{HZ_E5M2, HZ_E8M0}, {HZ_E2M1X2, HZ_E4M3}};
	/* m 2^k: up to k = 10 each has a kernel */
	static const int base[][2] = {
		{12, 7}, {12, 8}, {12, 9}, {12, 10}, {12, 11}, {12, 12}, {20, 7}, {20, 8},
		{20, 9}, {20, 10}, {20, 11}, {28, 7}, {28, 8}, {28, 9}, {28, 10}, {28, 11},
	};
	enum { TOTAL = 58000, USUAL = 9000, BASES = sizeof(base) / sizeof(*base) };
	static float most;
	static unsigned char x[4 * TOTAL], y[2][4 * TOTAL], q[2][TOTAL], s[2][TOTAL / 16];
	static unsigned char signs[TOTAL / 8];
	const int n = quick ? 40 : 400, each = quick ? 1 : 5;
	const hz_options plain = {.device = HZ_CPU, .isa = HZ_ISA_C};
	hz_context *c;
	int bad = hz_open(&c, &plain) != HZ_OK;

	for (int i = 0; i < n + each * BASES && !bad; i++) {
		const int *of = i < n ? NULL : base[(i - n) / each];
		struct fcase f = random_fcase(HZ_E2M1X2, 1);
		const int q_dtype = dtypes[i % 4][0], s_dtype = dtypes[i % 4][1];
		const int log2 = of ? 11 :
				 rnd_below(&rnd, 3) ?
					 (const int[]){0, 0, 4, 5, 6, 7}[rnd_below(&rnd, 6)] :
					 (const int[]){8, 9, 10, 11, 12, 13}[rnd_below(&rnd, 6)];
		const int pack = q_dtype == HZ_E2M1X2 ? 2 : 1, tensor = (int)rnd_below(&rnd, 3);
		const int64_t group = 16 << rnd_below(&rnd, 2), unit = 32 << rnd_below(&rnd, 3);
		const int64_t row = of	       ? (int64_t)of[0] << of[1]
				    : log2 > 7 ? (1 + rnd_below(&rnd, USUAL >> log2)) << log2
				    : log2     ? 128 * (1 + rnd_below(&rnd, 10))
					       : unit * (1 + rnd_below(&rnd, 20));
		const int64_t rows = 1 + rnd_below(&rnd, row < USUAL ? USUAL / row : 1);
		const int64_t count = rows * row;
		hz_hadamard_opts h = {.block = of ? row : (int64_t)1 << log2,
				      .plan = of ? HZ_PLAN_TRUE : 0, .order = of ? of[0] : 0};

		if (of)
			f.x_dtype = rnd_below(&rnd, 2) ? HZ_F16 : HZ_BF16;
		if (rnd_below(&rnd, 2)) {
			for (size_t b = 0; b < sizeof(signs); b++)
				signs[b] = (unsigned char)rnd_below(&rnd, 256);
		}
		h.round_to = (const int[]){0, HZ_F16, HZ_BF16}[rnd_below(&rnd, 3)];
		for (int64_t j = 0; j < count; j++) {
			double v = random_value(&(struct tcase){.wild = f.wild});

			/* Not 0: a sum of zeros may be 0 or -0. */
			if (log2)
				v = ldexp((double)rnd_below(&rnd, 2) - 0.5, 1) *
				    (double)(1 + rnd_below(&rnd, 15));
			ref_put(f.x_dtype, x, j, !log2 && j / 16 % 5 == 1 && i % 3 ? 0 : v);
		}
		for (int d = -1; d < ndevs && !bad; d++) {
			hz_context *ctx = d < 0 ? c : devs[d].ctx;
			struct dev on = {.ctx = ctx, .device = hz_device(ctx), .name = "C"};
			struct dev *dev = d < 0 ? &on : &devs[d];
			const int k = d >= 0;
			const hz_tensor shape = hz_tensor_2d(x, f.x_dtype, HZ_CPU, rows, row);
			const hz_tensor diag_host = hz_tensor_1d(signs, HZ_U8, HZ_CPU,
								 h.block / 8 + !log2);
			const size_t bytes[] = {(size_t)(count / pack), (size_t)(count / group), 4,
						(size_t)count * hz_dtype_size(f.x_dtype)};
			struct area xa, sa, area[4];
			hz_tensor tx = to_device(dev, &shape, &xa);
			hz_tensor pre = to_device(dev, &diag_host, &sa);
			hz_tensor tq, ts, tt, ty;
			hz_quantize_opts o = {.group = group, .scale_rule = f.rule};
			size_t work = 0;
			int status;

			for (int b = 0; b < 4; b++)
				area[b] = area_new(dev, bytes[b], 0);
			tq = hz_tensor_2d(area[0].data, q_dtype, dev->device, rows, row / pack);
			ts = hz_tensor_2d(area[1].data, s_dtype, dev->device, rows, row / group);
			tt = hz_tensor_1d(area[2].data, HZ_F32, dev->device, 1);
			ty = hz_tensor_2d(area[3].data, f.x_dtype, dev->device, rows, row);
			h.pre = i % 2 && log2 && (!of || i % 10 == 1) ? &pre : NULL;
			o.hadamard = log2 ? &h : NULL;
			o.new_scales = &ts;
			o.scale_rule = s_dtype == HZ_E4M3 ? HZ_SCALE_NV_TE + i / 4 % 2
							  : HZ_SCALE_FLOOR + i / 4 % 4;
			o.new_tensor_scale = s_dtype == HZ_E4M3 && tensor == 2 ? &tt : NULL;
			status = RECORD(ctx, hz_quantize(ctx, &tx, &tq, &o), &work);
			status = status ? status : hz_reserve(ctx, work);
			status = status ? status : hz_quantize(ctx, &tx, &tq, &o);
			o = back_opts(&o);
			if (!status)
				status = RECORD(ctx, hz_dequantize(ctx, &tq, &ty, &o), &work);
			status = status ? status : hz_reserve(ctx, work);
			status = status ? status : hz_dequantize(ctx, &tq, &ty, &o);
			if (status)
				diag("%s: %s", dev->name, hz_errmsg(ctx));
			bad += status != 0;
			for (int b = 0; b < 4; b++) {
				unsigned char *const to[] = {q[k], s[k], (unsigned char *)&most,
							     y[k]};
				unsigned char *image = malloc(bytes[b] + 2 * GUARD);

				area_read(&area[b], image);
				memcpy(to[b], image + GUARD, bytes[b]);
				for (int g = 0; g < GUARD; g++)
					bad += 8 * (image[g] != GUARD_BYTE ||
						    image[GUARD + bytes[b] + g] != GUARD_BYTE);
				free(image);
				area_free(&area[b]);
			}
			area_free(&xa);
			area_free(&sa);
			if (k && !bad) {
				bad += memcmp(q[0], q[1], bytes[0]) != 0;
				bad += 2 * (memcmp(s[0], s[1], bytes[1]) != 0);
				if (!log2 || f.x_dtype == HZ_F32 || dev->device == HZ_CPU)
					bad += 4 * !same_numbers(f.x_dtype, y[1], y[0], count);
				else
					bad += 4 * !(distance(f.x_dtype, y[1], y[0], count) < 0x1p-7);
			}
			if (bad)
				diag("%s: %d, %s to %s, scales %s, rule %d, group %d, rows %d x %d, "
				     "transform %d, signs %d, round to %d, tensor %d", dev->name, bad,
				     hz_dtype_name(f.x_dtype), hz_dtype_name(q_dtype),
				     hz_dtype_name(s_dtype), o.scale_rule, (int)group, (int)rows,
				     (int)row, (int)h.block, h.pre != NULL, h.round_to, tensor);
		}
	}
	hz_close(c);
	ok(!bad, "contiguous rows, %d cases", n);
}

/*
 * NVFP4 of bfloat16 by each ISA level and by plain C: each scale of e4m3 with the numbers on both
 * sides of each bound between codes; then numbers beyond the largest scale, and below the smallest
 */
static void test_nv_bounds(void)
{
	static const float bound[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 28};
	enum { GROUPS = 126 + 4 };
	static uint16_t x[16 * GROUPS];
	static uint8_t q[2][8 * GROUPS], s[2][GROUPS];
	const hz_options plain = {.device = HZ_CPU, .isa = HZ_ISA_C, .threads = 1};
	const int n = quick ? 40 : 400;
	hz_context *c;
	int bad = hz_open(&c, &plain) != HZ_OK;

	for (int i = 0; i < n && !bad; i++) {
		/* Powers of two have ties; beyond 2^100 there is another kernel. */
		const double p = ldexp(i % 3 ? 1 + rnd_uniform(&rnd) : 1,
				       i % 8 ? (int)rnd_below(&rnd, 30) - 20 :
					       (int)rnd_below(&rnd, 220) - 115);
		float factor = (float)p;
		const hz_tensor t = hz_tensor_1d(&factor, HZ_F32, HZ_CPU, 1);

		for (int g = 0; g < GROUPS; g++) {
			const double scale = g < 126 ? ref_small_decode(HZ_E4M3, (unsigned)g + 1) :
					     g < 128 ? 448 * 64 : ldexp(1, -14);

			for (int j = 0; j < 16; j++) {
				const float v = (float)(scale * factor * bound[j / 2]);
				uint32_t bits;

				memcpy(&bits, &v, 4);
				bits = (bits >> 16) + (uint32_t)(j % 2);
				if (j >= 14 && g < 126) {
					const float most = (float)(scale * factor * 6);

					memcpy(&bits, &most, 4);
					bits >>= 16;
				}
				x[16 * g + j] = (uint16_t)(bits | rnd_below(&rnd, 2) << 15);
			}
		}
		for (int d = -1; d < ndevs && !bad; d++) {
			const int k = d >= 0;
			const hz_tensor tx = hz_tensor_1d(x, HZ_BF16, HZ_CPU, 16 * GROUPS);
			hz_tensor tq = hz_tensor_1d(q[k], HZ_E2M1X2, HZ_CPU, 8 * GROUPS);
			hz_tensor ts = hz_tensor_1d(s[k], HZ_E4M3, HZ_CPU, GROUPS);
			const hz_quantize_opts o = {
				.new_scales = &ts, .group = 16, .tensor_scale = &t,
				.scale_rule = i % 2 ? HZ_SCALE_NV_TE : HZ_SCALE_NV_TORCHAO,
			};

			if (k && devs[d].device != HZ_CPU)
				continue;
			bad = hz_quantize(k ? devs[d].ctx : c, &tx, &tq, &o) != HZ_OK ||
			      (k && (memcmp(q[0], q[1], sizeof(*q)) ||
				     memcmp(s[0], s[1], sizeof(*s))));
			if (bad)
				diag("factor %a, rule %d", p, o.scale_rule);
		}
	}
	hz_close(c);
	ok(!bad, "bounds between codes of NVFP4, %d factors", n);
}

/* ---- Values of other libraries --------------------------------------------------------------- */

/*
 * What ml_dtypes 0.6.0 makes of f32: float4_e2m1fn, float8_e4m3fn and float8_e5m2. Values beyond
 * those of e4m3 and e5m2 are left out: there they become NaN or Inf.
 */
static void test_ml_dtypes(void)
{
	static const float x[16] = {-0.0f, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 7, -0.1f,
				    0x1p-9f, 0x1p-10f, 0x1.8p-9f, 0x1p-17f, -5.5f, 447};
	static const struct {
		int dtype;
		uint8_t code[16];
	} want[] = {
		{HZ_E2M1X2, {8, 0, 2, 2, 4, 4, 6, 6, 7, 8, 0, 0, 0, 0, 15, 7}},
		{HZ_E4M3,
		 {0x80, 0x28, 0x34, 0x3a, 0x3e, 0x42, 0x46, 0x4a, 0x4e, 0x9d, 1, 0, 2, 0, 0xcb,
		  0x7e}},
		{HZ_E5M2,
		 {0x80, 0x34, 0x3a, 0x3d, 0x3f, 0x41, 0x43, 0x45, 0x47, 0xae, 0x18, 0x14, 0x1a, 0,
		  0xc6, 0x5f}},
	};

	for (int d = 0; d < ndevs; d++) {
		struct dev *dev = &devs[d];
		struct area xa, qa = area_new(dev, 16, 0);
		hz_tensor v = hz_tensor_1d((void *)(uintptr_t)x, HZ_F32, HZ_CPU, 16);
		int bad = 0;

		v = to_device(dev, &v, &xa);
		for (size_t f = 0; f < sizeof(want) / sizeof(*want); f++) {
			const int pack = bits_of(want[f].dtype) < 8 ? 2 : 1;
			hz_tensor q = hz_tensor_1d(qa.data, want[f].dtype, dev->device, 16 / pack);
			unsigned char image[16 + 2 * GUARD];

			bad += hz_quantize(dev->ctx, &v, &q, &(hz_quantize_opts){.scale = 1}) != 0;
			area_read(&qa, image);
			for (int i = 0; i < 16; i++) {
				const unsigned got = get_code(want[f].dtype, image + GUARD, i);

				if (got == want[f].code[i])
					continue;
				diag("%s: %a is %#x, want %#x", hz_dtype_name(want[f].dtype),
				     (double)x[i], got, want[f].code[i]);
				bad++;
			}
		}
		ok(!bad, "codes of ml_dtypes, %s", dev->name);
		area_free(&xa);
		area_free(&qa);
	}
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static void refused(hz_context *ctx, const hz_tensor *x, hz_tensor *q, const hz_quantize_opts *o,
		    int status, const char *message)
{
	is_int(hz_quantize(ctx, x, q, o), status, "refused");
	is_str(hz_errmsg(ctx), message, "the reason");
}

static void test_errors(void)
{
	static float x[64], s[64], other[1];
	static uint8_t q[64], b[64];
	hz_context *ctx = devs[0].ctx;
	hz_tensor tx = hz_tensor_2d(x, HZ_F32, HZ_CPU, 2, 32);
	hz_tensor tq = hz_tensor_2d(q, HZ_E2M1X2, HZ_CPU, 2, 16);
	hz_tensor bytes = hz_tensor_2d(q, HZ_U8, HZ_CPU, 2, 32);
	hz_tensor odd = hz_tensor_2d(x, HZ_F32, HZ_CPU, 2, 31);
	hz_tensor f32 = hz_tensor_2d(s, HZ_F32, HZ_CPU, 2, 2);
	hz_tensor e8m0 = hz_tensor_2d(b, HZ_E8M0, HZ_CPU, 2, 2);
	hz_tensor e4m3 = hz_tensor_2d(b, HZ_E4M3, HZ_CPU, 2, 2);
	hz_tensor one = hz_tensor_1d(other, HZ_F32, HZ_CPU, 1);

	refused(ctx, &odd, &tq, &(hz_quantize_opts){.scale = 1}, HZ_ESHAPE,
		"quantize: x.shape[1] is 31, must be a multiple of 2 for e2m1x2");
	refused(ctx, &tx, &bytes, &(hz_quantize_opts){.new_scales = &f32}, HZ_EDTYPE,
		"quantize: q.dtype is u8, must be signed or a float with opts->new_scales; "
		"choose_qparams() gives scales and zeros");
	refused(ctx, &tx, &tq, &(hz_quantize_opts){.new_scales = &f32, .scale_rule = HZ_SCALE_FLOOR},
		HZ_EDTYPE, "quantize: opts->new_scales.dtype is f32, must be e8m0 for HZ_SCALE_FLOOR");
	refused(ctx, &tx, &tq, &(hz_quantize_opts){.new_scales = &e8m0, .scale_rule = 9}, HZ_EINVAL,
		"quantize: opts->scale_rule is 9, must be 0 to 8");
	refused(ctx, &tx, &tq, &(hz_quantize_opts){.new_scales = &e8m0, .group = 32}, HZ_ESHAPE,
		"quantize: opts->new_scales.shape[1] is 2, must be 1, groups of 32 in 32 elements");
	refused(ctx, &tx, &tq, &(hz_quantize_opts){.new_scales = &e8m0, .scale = 1}, HZ_EINVAL,
		"quantize: opts->new_scales excludes opts->scale, scales, zero and zeros");
	refused(ctx, &tx, &tq, &(hz_quantize_opts){.scale = 1, .zero = 1}, HZ_EINVAL,
		"quantize: opts->zero must not be set: the zero of e2m1x2 is 0");
	refused(ctx, &tx, &tq, &(hz_quantize_opts){.scale = 1, .stochastic = 3}, HZ_EINVAL,
		"quantize: opts->stochastic is 3, but opts->given lacks "
		"HZ_QUANTIZE_GIVEN_STOCHASTIC: set it, or stochastic to 0");
	refused(ctx, &tx, &tq, &(hz_quantize_opts){.scale = 1, .min = -1, .given = 1}, HZ_EINVAL,
		"quantize: opts->min is for integers, q is e2m1x2");
	refused(ctx, &tx, &bytes, &(hz_quantize_opts){.scale = 1, .min = 9, .max = 3, .given = 3},
		HZ_EINVAL, "quantize: opts->min is 9, above opts->max, 3");
	refused(ctx, &tx, &bytes, &(hz_quantize_opts){.scale = 1, .max = 3}, HZ_EINVAL,
		"quantize: opts->max is 3, but opts->given lacks HZ_QUANTIZE_GIVEN_MAX: set it, or "
		"max to 0");
	refused(ctx, &tx, &tq, &(hz_quantize_opts){.new_scales = &e8m0, .new_tensor_scale = &one},
		HZ_EDTYPE,
		"quantize: opts->new_tensor_scale needs new_scales of e4m3, which are e8m0");
	refused(ctx, &tx, &tq, &(hz_quantize_opts){.new_scales = &e4m3, .tensor_scale = &f32},
		HZ_ESHAPE, "quantize: opts->tensor_scale has 4 elements, must have 1");
	refused(ctx, &tx, &tq, &(hz_quantize_opts){.scale = 1, .group = 16}, HZ_EINVAL,
		"quantize: opts->group needs opts->scales or new_scales");
	is_int(hz_dequantize(ctx, &tq, &tx, &(hz_quantize_opts){.new_scales = &e8m0}), HZ_EINVAL,
	       "dequantize chooses no scales");
}

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	dev_open_routes(HZI_OP_quantize);
	test_random_formats();
	test_rotated();
	test_rotated_levels();
	test_values();
	test_contiguous();
	test_nv_bounds();
	test_ml_dtypes();
	if (devs[0].device != HZ_CPU || !quick)
		test_large();
	if (devs[0].device == HZ_CPU)
		test_errors();
	dev_close_all();
	return done_testing();
}
