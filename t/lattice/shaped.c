/*
 * shaped.c - codes with a shaping other than NESTED, presets, scales of rows
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "lib/lattice/label.h"
#include "t/lattice/lattice.h"

static const struct code {
	int shaping, q;
	const char *name;
} codes[] = {
	{HZ_LATTICE_SHAPING_CUBE, 16, "cube q=16"}, {HZ_LATTICE_SHAPING_CUBE, 4, "cube q=4"},
	{HZ_LATTICE_SHAPING_D8STAR, 16, "d8star q=16"},
	{HZ_LATTICE_SHAPING_D8STAR, 8, "d8star q=8"}, {HZ_LATTICE_SHAPING_D8STAR, 4, "d8star q=4"},
	{HZ_LATTICE_SHAPING_E8, 16, "e8 q=16"}, {HZ_LATTICE_SHAPING_E8, 8, "e8 q=8"},
	{HZ_LATTICE_SHAPING_E8, 4, "e8 q=4"},
};

#define CODES ((int)(sizeof(codes) / sizeof(*codes)))

/* A call's operands on a device, written and read as contiguous arrays of the host */
struct operand {
	struct area area;
	struct view view;
	hz_tensor tensor;
};

static struct operand operand_new(struct dev *dev, uint64_t *rnd, int dtype, int ndim,
				  const int64_t *shape, int wild)
{
	struct operand o = {.view = view_new(rnd, dtype, ndim, shape, wild)};

	o.area = area_new(dev, o.view.bytes, 0);
	o.tensor = view_tensor(&o.view, &o.area);
	return o;
}

/* Copies all elements, in row-major order; 0 if guard bytes or gaps were written. */
static int exchange(struct operand *o, void *host, int read)
{
	const size_t size = o->view.size;
	unsigned char *image = malloc(o->area.total);
	int64_t at[HZ_MAXDIM] = {0};
	int good = 1;

	area_read(&o->area, image);
	for (int64_t i = 0; i < o->view.count; i++) {
		int64_t left = i;
		unsigned char *element;

		for (int d = o->view.ndim - 1; d >= 0; d--) {
			at[d] = left % o->view.shape[d];
			left /= o->view.shape[d];
		}
		element = image + GUARD +
			  (size_t)view_at(&o->view, 0, o->view.ndim, at) * size;
		if (read) {
			memcpy((char *)host + (size_t)i * size, element, size);
			memset(element, GUARD_BYTE, size);
		} else {
			memcpy(element, (char *)host + (size_t)i * size, size);
		}
	}
	for (size_t i = 0; i < o->area.total && read; i++)
		good &= image[i] == GUARD_BYTE;
	if (!read)
		area_write(&o->area, image);
	free(image);
	return good;
}

static void operand_free(struct operand *o)
{
	area_free(&o->area);
}

static void reserve_for(struct dev *dev, int status, size_t bytes)
{
	if (status != HZ_OK || hz_reserve(dev->ctx, bytes) != HZ_OK)
		bail("recording: %s", hz_errmsg(dev->ctx));
}

/* What a call is about: rows of n values */
struct job {
	const hz_lattice *l;
	int64_t rows, n;
	int pack, dtype, wild, scaled;
	const void *x;
};

struct result {
	void *codes;
	uint8_t *t;
	float *row_scale;
	int64_t overload[2];
	size_t bytes;			/* of codes */
	int64_t ts;
};

static void result_free(struct result *r)
{
	free(r->codes);
	free(r->t);
	free(r->row_scale);
}

static struct result result_of(const struct job *j, int *dtype, int64_t *last)
{
	struct result r = {.codes = NULL};
	hz_lattice_info info;

	hz_lattice_get_info(j->l, &info);
	*dtype = j->pack == HZ_LATTICE_LEVEL ? info.level_dtype :
		 j->pack == HZ_LATTICE_FULL64 ? HZ_U64 : HZ_U32;
	*last = j->pack == HZ_LATTICE_LEVEL ? info.levels :
		j->pack == HZ_LATTICE_FULL64 ? 0 : info.limbs;
	r.bytes = (size_t)(j->rows * ((j->n + info.dim - 1) / info.dim) * (*last ? *last : 1)) *
		  hz_dtype_size(*dtype);
	r.ts = j->rows * ((j->n + 7) / 8);
	r.codes = calloc(1, r.bytes + 1);
	r.t = calloc(1, (size_t)r.ts + 1);
	r.row_scale = calloc((size_t)j->rows, 4);
	return r;
}

static int encode_on(struct dev *dev, uint64_t *rnd, const struct job *j, struct result *r)
{
	int dtype, good = 1;
	int64_t last;
	hz_lattice_info info;

	*r = result_of(j, &dtype, &last);
	hz_lattice_get_info(j->l, &info);

	const int64_t blocks = (j->n + info.dim - 1) / info.dim;
	struct operand x = operand_new(dev, rnd, j->dtype, 2, (int64_t[]){j->rows, j->n}, j->wild);
	struct operand codes = operand_new(dev, rnd, dtype, last ? 3 : 2,
					   (int64_t[]){j->rows, blocks, last}, j->wild);
	struct operand t = operand_new(dev, rnd, HZ_U8, 2, (int64_t[]){j->rows, (j->n + 7) / 8},
				       j->wild);
	struct operand row = operand_new(dev, rnd, HZ_F32, 1, &j->rows, j->wild);
	struct operand over = operand_new(dev, rnd, HZ_S64, 1, (int64_t[]){2}, 0);
	hz_lattice_code_opts o = {.pack = j->pack, .row_scale = j->scaled ? &row.tensor : NULL};
	size_t bytes = 1;
	int status;

	exchange(&x, (void *)(uintptr_t)j->x, 0);
	status = RECORD(dev->ctx, hz_lattice_encode(dev->ctx, j->l, &x.tensor, &codes.tensor,
						    &t.tensor, &over.tensor, &o), &bytes);
	reserve_for(dev, status, bytes);
	if (hz_lattice_encode(dev->ctx, j->l, &x.tensor, &codes.tensor, &t.tensor, &over.tensor,
			      &o) != HZ_OK)
		bail("encode: %s", hz_errmsg(dev->ctx));
	good &= exchange(&codes, r->codes, 1);
	good &= exchange(&t, r->t, 1);
	good &= exchange(&over, r->overload, 1);
	if (j->scaled)
		good &= exchange(&row, r->row_scale, 1);
	operand_free(&x);
	operand_free(&codes);
	operand_free(&t);
	operand_free(&row);
	operand_free(&over);
	return good;
}

/* y: values of j->dtype, or points */
static int decode_on(struct dev *dev, uint64_t *rnd, const struct job *j, const struct result *r,
		     int to, int y_dtype, void *y)
{
	int dtype, good;
	int64_t last;
	hz_lattice_info info;
	struct result unused = result_of(j, &dtype, &last);

	hz_lattice_get_info(j->l, &info);

	const int64_t blocks = (j->n + info.dim - 1) / info.dim;
	const int64_t shapes[3][4] = {{j->rows, j->n}, {j->rows, blocks, info.embed},
				      {j->rows, blocks, info.levels, info.dim}};
	struct operand codes = operand_new(dev, rnd, dtype, last ? 3 : 2,
					   (int64_t[]){j->rows, blocks, last}, j->wild);
	struct operand t = operand_new(dev, rnd, HZ_U8, 2, (int64_t[]){j->rows, (j->n + 7) / 8},
				       j->wild);
	struct operand row = operand_new(dev, rnd, HZ_F32, 1, &j->rows, j->wild);
	struct operand out = operand_new(dev, rnd, y_dtype, 2 + to, shapes[to], j->wild);
	hz_lattice_code_opts o = {.pack = j->pack, .to = to,
				  .row_scale = j->scaled ? &row.tensor : NULL};
	size_t bytes = 1;
	int status;

	exchange(&codes, r->codes, 0);
	exchange(&t, r->t, 0);
	exchange(&row, r->row_scale, 0);
	status = RECORD(dev->ctx, hz_lattice_decode(dev->ctx, j->l, &codes.tensor, &t.tensor,
						    &out.tensor, &o), &bytes);
	reserve_for(dev, status, bytes);
	if (hz_lattice_decode(dev->ctx, j->l, &codes.tensor, &t.tensor, &out.tensor, &o) != HZ_OK)
		bail("decode: %s", hz_errmsg(dev->ctx));
	good = exchange(&out, y, 1);
	operand_free(&codes);
	operand_free(&t);
	operand_free(&row);
	operand_free(&out);
	result_free(&unused);
	return good;
}

static hz_lattice *open_code(const struct code *c, const double *bank, int banks)
{
	const hz_lattice_opts o = {.kind = HZ_LATTICE_E8, .q = c->q, .levels = 1, .beta = 1,
				   .shaping = c->shaping, .policy = HZ_LATTICE_BANK,
				   .bank = bank, .banks = banks};

	return lattice_new(devs[0].ctx, &o);
}

/* ---- Labels ---------------------------------------------------------------------------------- */

/* The squared distance of x from E8 */
static double distance_to_e8(const double *x)
{
	double least = 0;

	for (int h = 0; h < 2; h++) {
		double sum = 0, worst = 0;
		int odd = 0;

		for (int i = 0; i < 8; i++) {
			const double u = x[i] - 0.5 * h, n = rint(u), r = fabs(u - n);

			odd ^= (int)fmod(fabs(n), 2);
			sum += r * r;
			worst = r > worst ? r : worst;
		}
		sum += odd ? 1 - 2 * worst : 0;
		least = h == 0 || sum < least ? sum : least;
	}
	return least;
}

static int in_e8(const int32_t *v)
{
	double x[8];

	for (int i = 0; i < 8; i++)
		x[i] = 0.5 * v[i];
	return distance_to_e8(x) == 0;
}

/*
 * Whether v is the point that a word of 8 fields means: the point of CUBE with the same fields,
 * less a point of the shaping lattice, and for E8 no longer than any other of its coset
 */
static int is_point_of(const struct code *c, uint32_t word, const int32_t *v)
{
	const int b = c->q == 16 ? 4 : c->q == 8 ? 3 : 2;
	int32_t w[8], parity = 0, top = 0, l1 = 0, good = 1, multiple = 1, flipped = 1;
	double x[8], norm = 0;

	for (int i = 0; i < 8; i++) {
		w[i] = (int32_t)((word >> i * b) % (uint32_t)c->q);
		if (i == 0 && c->shaping != HZ_LATTICE_SHAPING_CUBE) {
			top = w[0] >= c->q / 2;
			w[0] %= c->q / 2;
		}
		if (i < 7)
			parity += w[i];
		else
			w[i] += parity % 2 - w[i] % 2;
		l1 += abs(2 * w[i] - c->q);
	}
	for (int i = 0; i < 8; i++)
		w[i] = 2 * w[i] - c->q + (int32_t)(word >> 7 * b & 1);
	if (!in_e8(v))
		return 0;
	if (c->shaping == HZ_LATTICE_SHAPING_CUBE)
		return memcmp(v, w, sizeof(w)) == 0;
	if (c->shaping == HZ_LATTICE_SHAPING_D8STAR) {
		/* Top bits turned: a coordinate moves by q to the other half of the cube. */
		for (int i = 0; i < 8; i++)
			good &= v[i] == (l1 <= 4 * c->q ? w[i] :
					 w[i] + (w[i] >= 0 ? -c->q : c->q));
		return good;
	}
	w[0] += 2 * c->q * top;
	for (int i = 0; i < 8; i++) {
		multiple &= (v[i] - w[i]) % (2 * c->q) == 0;
		flipped &= abs(v[i] - w[i]) % (2 * c->q) == c->q;
		parity = i == 0 ? 0 : parity;
		parity += abs(v[i] - w[i]) / (2 * c->q);
		x[i] = (double)v[i] / (2 * c->q);
		norm += x[i] * x[i];
	}
	/* Their difference is 2 q times a point of E8, from which 0 is one of the nearest to v. */
	for (int i = 0; i < 8; i++)
		w[i] = (v[i] - w[i]) / c->q;
	return (multiple || flipped) && in_e8(w) && norm <= distance_to_e8(x) + 1e-9;
}

static int labels_of(struct dev *dev, uint64_t *rnd, const struct code *c)
{
	const int64_t words = tap_quick() ? 3000 : c->q == 4 ? 65536 : 50000;
	const double one = 1;
	hz_lattice *l = open_code(c, &one, 1);
	struct job j = {.l = l, .rows = 1, .n = 8 * words, .dtype = HZ_F32};
	int32_t *v = malloc((size_t)words * 32);
	float *x = malloc((size_t)words * 32);
	uint8_t *digits = malloc((size_t)words * 8);
	struct result r, back;
	hz_lattice_info info;
	int good = 1, dtype;
	int64_t last;

	hz_lattice_get_info(l, &info);
	r = result_of(&j, &dtype, &last);
	for (int64_t i = 0; i < words; i++) {
		const uint32_t word = words == 65536 ? (uint32_t)i : (uint32_t)rnd_u64(rnd);

		put_int(r.codes, hz_dtype_size(dtype), i, word);
	}
	good &= decode_on(dev, rnd, &j, &r, HZ_LATTICE_POINTS, HZ_S32, v);
	good &= decode_on(dev, rnd, &j, &r, HZ_LATTICE_DIGITS, HZ_U8, digits);
	good &= decode_on(dev, rnd, &j, &r, HZ_LATTICE_VALUES, HZ_F32, x);
	j.x = x;
	good &= encode_on(dev, rnd, &j, &back);
	good &= back.overload[0] == 0 && back.overload[1] == 0;
	for (int64_t i = 0; i < words && good; i++) {
		const int b = c->q == 16 ? 4 : c->q == 8 ? 3 : 2;
		uint32_t word = 0, again = 0;

		memcpy(&word, (char *)r.codes + i * hz_dtype_size(dtype), hz_dtype_size(dtype));
		memcpy(&again, (char *)back.codes + i * hz_dtype_size(dtype),
		       hz_dtype_size(dtype));
		good &= is_point_of(c, word, v + 8 * i);
		for (int k = 0; k < 8; k++) {
			good &= digits[8 * i + k] == (word >> k * b) % (uint32_t)c->q;
			good &= x[8 * i + k] == 0.5f * (float)v[8 * i + k];
			good &= abs(v[8 * i + k]) <= info.point_max;
		}
		if (b < 4)
			word &= (1u << 8 * b) - 1;
		if (c->shaping == HZ_LATTICE_SHAPING_D8STAR)
			word &= ~(uint32_t)(c->q / 2);
		good &= word == again;
		if (!good)
			diag("%s: word %x, encoded again %x", c->name, word, again);
	}
	free(v);
	free(x);
	free(digits);
	result_free(&r);
	result_free(&back);
	hz_lattice_close(l);
	return good;
}

static void test_labels(uint64_t *rnd)
{
	for (int i = 0; i < CODES; i++)
		ok(labels_of(&devs[0], rnd, &codes[i]), "words, points and back: %s",
		   codes[i].name);
}

/* ---- Encoding -------------------------------------------------------------------------------- */

static double block_error(const float *x, const int32_t *v, double scale)
{
	double sum = 0;

	for (int i = 0; i < 8; i++)
		sum += (x[i] - 0.5 * scale * v[i]) * (x[i] - 0.5 * scale * v[i]);
	return sum;
}

/* The least error of CUBE at a scale: of all even sums of n, coordinate by coordinate */
static double cube_error(int q, const float *x, double scale)
{
	double least = INFINITY;

	for (int h = 0; h < 2; h++) {
		double even = 0, odd = INFINITY;

		for (int i = 0; i < 8; i++) {
			double by[2] = {INFINITY, INFINITY}, e, o;

			for (int n = 0; n < q; n++) {
				const double d = x[i] - 0.5 * scale * (2 * n + h - q);

				by[n % 2] = fmin(by[n % 2], d * d);
			}
			e = fmin(even + by[0], odd + by[1]);
			o = fmin(even + by[1], odd + by[0]);
			even = e;
			odd = o;
		}
		least = fmin(least, even);
	}
	return least;
}

/* Moves v by minimal vector k of E8: 112 of two coordinates, 128 of all. */
static void move(int k, int32_t *v)
{
	if (k < 112) {
		int a = 0, b, left = k / 4;

		while (left >= 7 - a)
			left -= 7 - a++;
		b = a + 1 + left;
		v[a] += k % 2 ? 2 : -2;
		v[b] += k / 2 % 2 ? 2 : -2;
		return;
	}
	for (int i = 0; i < 7; i++)
		v[i] += (k - 112) >> i & 1 ? 1 : -1;
	v[7] += __builtin_popcount((unsigned)(k - 112)) % 2 ? 1 : -1;
}

/* The nearest point of E8 at a scale, from which no minimal vector leads nearer */
static void nearest(const float *x, double scale, int32_t *v)
{
	double least;

	for (int i = 0; i < 8; i++)
		v[i] = 0;
	/* A point of D8 near to x */
	for (int i = 0; i < 8; i++)
		v[i] = 2 * (int32_t)rint(x[i] / scale);
	if (!in_e8(v))
		v[0] += 2;
	least = block_error(x, v, scale);
	for (int k = 0; k < 240; k++) {
		int32_t p[8];

		memcpy(p, v, sizeof(p));
		move(k, p);
		if (block_error(x, p, scale) < least * (1 - 1e-12)) {
			least = block_error(x, p, scale);
			memcpy(v, p, sizeof(p));
			k = -1;
		}
	}
}

/* Whether the result of a block is right */
static int check_block(const struct code *c, const float *x, const double *bank, int banks,
		       const int32_t *v, int t, int *fits)
{
	const int b = c->q == 16 ? 4 : c->q == 8 ? 3 : 2;
	const double error = block_error(x, v, bank[t]), slack = 1 + 2e-5;
	int good = hzi_label_has(c->shaping, b, v);

	*fits = 0;
	for (int k = 0; k < banks; k++) {
		int32_t p[8];

		nearest(x, bank[k], p);
		if (hzi_label_has(c->shaping, b, p)) {
			*fits = 1;
			good &= error <= slack * block_error(x, p, bank[k]) + 1e-9;
		}
		if (c->shaping == HZ_LATTICE_SHAPING_CUBE)
			good &= error <= slack * cube_error(c->q, x, bank[k]) + 1e-9;
	}
	for (int k = 0; k < 240; k++) {
		int32_t p[8];

		memcpy(p, v, sizeof(p));
		move(k, p);
		if (hzi_label_has(c->shaping, b, p))
			good &= error <= slack * block_error(x, p, bank[t]) + 1e-9;
	}
	return good;
}

static void test_encode(uint64_t *rnd)
{
	const int64_t blocks = tap_quick() ? 200 : 4000;
	float *x = malloc((size_t)blocks * 32);
	int32_t *v = malloc((size_t)blocks * 32);

	for (int i = 0; i < CODES; i++) {
		const int banks = 1 + (int)rnd_below(rnd, 5);
		int64_t over = 0, near = 0;
		double bank[5];
		int good = 1;

		for (int k = 0; k < banks; k++)
			bank[k] = exp2(rnd_uniform(rnd));

		hz_lattice *l = open_code(&codes[i], bank, banks);
		struct job j = {.l = l, .rows = 1, .n = 8 * blocks, .dtype = HZ_F32, .x = x};
		struct result r;

		for (int64_t e = 0; e < 8 * blocks; e++) {
			if (e % 8 == 0)
				near = rnd_below(rnd, 4);
			/* Of a block all values fit, or some do, or few */
			x[e] = (float)(rnd_normal(rnd) * codes[i].q / (near == 0 ? 2 : 4 + near));
		}
		good &= encode_on(&devs[0], rnd, &j, &r);
		good &= decode_on(&devs[0], rnd, &j, &r, HZ_LATTICE_POINTS, HZ_S32, v);
		for (int64_t k = 0; k < blocks && good; k++) {
			int fits = 1;

			good &= r.t[k] < banks && check_block(&codes[i], x + 8 * k, bank, banks,
							     v + 8 * k, r.t[k], &fits);
			over += !fits;
			if (!good)
				diag("%s, %d scales: block %lld", codes[i].name, banks,
				     (long long)k);
		}
		/* Ties may be seen otherwise by the test. */
		good &= !good || llabs(over - r.overload[0]) <= 1 + blocks / 1000;
		ok(good, "encode: %s, %lld of %lld blocks clipped", codes[i].name,
		   (long long)r.overload[0], (long long)blocks);
		result_free(&r);
		hz_lattice_close(l);
	}
	free(x);
	free(v);
}

/*
 * Blocks whose best point is easily missed. E8: the nearest point, outside of the code, moved by a
 * vector against the remainder. CUBE: both cosets have errors that are equal after their product
 * with s^2, but not before.
 */
static void test_close_blocks(uint64_t *rnd)
{
	static const struct {
		int preset, t;
		uint32_t code;
		float block[8];
	} cases[] = {
		{HZ_LATTICE_PRESET_E8_4_50, 13, 0x944e7eec,
		 {3.28125f, -1.09375f, -1.09375f, -6.5625f, -1.09375f, 3.28125f, 3.28125f, -5.46875f}},
		{HZ_LATTICE_PRESET_E8_4_50_FAST, 13, 0x567a4430,
		 {-7.84375f, -4.46875f, -3.359375f, -3.359375f, 2.234375f, -1.1171875f, -1.1171875f,
		  -3.359375f}},
	};
	enum { BLOCKS = 2100 };
	float *x = malloc(BLOCKS * 32);

	for (int k = 0; k < 2; k++) {
		const hz_lattice_opts o = {.preset = cases[k].preset, .flags = HZ_LATTICE_WIDE};
		hz_lattice *l = lattice_new(devs[0].ctx, &o);
		struct job j = {.l = l, .rows = 1, .n = 8 * BLOCKS, .dtype = HZ_F32, .x = x};
		int good = 1;

		for (int i = 0; i < BLOCKS; i++)
			memcpy(x + 8 * i, cases[k].block, 32);
		for (int d = 0; d < ndevs; d++) {
			struct result r;

			good &= encode_on(&devs[d], rnd, &j, &r);
			for (int i = 0; i < BLOCKS; i++)
				good &= r.t[i] == cases[k].t &&
					((const uint32_t *)r.codes)[i] == cases[k].code;
			result_free(&r);
		}
		ok(good, "close blocks %d: the best code everywhere", k);
		hz_lattice_close(l);
	}
	free(x);
}

/* Every device, layout and packing: the same codes and values as devs[0] */
static void test_devices(uint64_t *rnd)
{
	static const double special[] = {NAN, INFINITY, -INFINITY, -0.0, 3e38, -1e-45, 1e30, 1e6};
	static const int modes = 6;
	int good = 1;

	for (int n = 0; n < (tap_quick() ? 16 : 200) && good; n++) {
		const struct code *const c = &codes[n % CODES];
		const int preset = 1 + n % HZ_LATTICE_PRESET_D4_4_50, mode = (int)rnd_below(rnd, modes);
		const hz_lattice_opts named = {.preset = preset,
					       .flags = rnd_below(rnd, 2) ? HZ_LATTICE_WIDE : 0};
		double bank[16], block = 1;
		const int banks = 1 + (int)rnd_below(rnd, 16);

		/*
		 * Of the scales some are equal, and powers of two make ties with mode 0; a ratio of
		 * 1000 is beyond what bounds in f16 are for.
		 */
		for (int k = 0; k < banks; k++)
			bank[k] = exp2(n / CODES % 2 ? rnd_below(rnd, 3) :
				       (n / CODES % 4 ? 10 : 2) * rnd_uniform(rnd));

		hz_lattice *l = rnd_below(rnd, 2) ? open_code(c, bank, banks) :
				lattice_new(devs[0].ctx, &named);
		struct job j = {.l = l, .rows = 1 + rnd_below(rnd, 4),
				.n = 1 + rnd_below(rnd, rnd_below(rnd, 4) ? 300 : 16000),
				.dtype = floats[rnd_below(rnd, 3)], .scaled = (int)rnd_below(rnd, 2),
				.pack = (int)rnd_below(rnd, 3)};
		/* Rows of whole blocks are joined where they are contiguous. */
		j.n = rnd_below(rnd, 2) ? j.n : (j.n + 7) / 8 * 8;

		const size_t values = (size_t)(j.rows * j.n), size = hz_dtype_size(j.dtype);
		void *const x = malloc(values * size), *const y = malloc(values * size);
		void *const y_want = malloc(values * size);
		struct result want, r;

		for (size_t i = 0; i < values; i++) {
			/* 4: blocks of 0 and tiny ones; 5: the first coordinate is the largest */
			if (i % 8 == 0)
				block = mode == 4 ? exp2(-70.0 * (double)rnd_below(rnd, 3)) *
					(double)rnd_below(rnd, 2) : 16;
			else if (mode == 5)
				block = 0.5;
			ref_put(j.dtype, x, (int64_t)i, rnd_below(rnd, 100) == 0 ?
				special[rnd_below(rnd, 8)] :
				mode == 0 ? (double)(rnd_below(rnd, 65) - 32) / 2 :
				rnd_normal(rnd) * (mode == 1 ? 1 : mode == 2 ? 8 : mode == 3 ? exp2(
				(double)(rnd_below(rnd, 40) - 20)) : block));
		}
		j.x = x;
		good &= encode_on(&devs[0], rnd, &j, &want);
		good &= decode_on(&devs[0], rnd, &j, &want, HZ_LATTICE_VALUES, j.dtype, y_want);
		for (int d = 1; d < ndevs && good; d++) {
			j.wild = (int)rnd_below(rnd, 3);
			good &= encode_on(&devs[d], rnd, &j, &r);
			good &= decode_on(&devs[d], rnd, &j, &r, HZ_LATTICE_VALUES, j.dtype, y);
			good &= memcmp(r.codes, want.codes, want.bytes) == 0;
			good &= memcmp(r.t, want.t, (size_t)want.ts) == 0;
			good &= memcmp(r.overload, want.overload, 16) == 0;
			good &= same_bits(r.row_scale, want.row_scale, (size_t)j.rows, 4);
			good &= same_bits(y, y_want, values, size);
			result_free(&r);
			if (!good)
				diag("%s: %s or preset %d, [%lld][%lld] %s, pack %d, scaled %d",
				     devs[d].name, c->name, preset, (long long)j.rows,
				     (long long)j.n, hz_dtype_name(j.dtype), j.pack, j.scaled);
		}
		result_free(&want);
		free(x);
		free(y);
		free(y_want);
		hz_lattice_close(l);
	}
	ok(good, "the same codes and values everywhere");
}

/* More blocks than a GPU has threads, many of them with NaN, Inf and outliers */
static void test_many(uint64_t *rnd)
{
	static const int presets[] = {HZ_LATTICE_PRESET_E8_4_50_FAST, HZ_LATTICE_PRESET_E8_4_25};
	static const float special[] = {NAN, INFINITY, -3e38f, 1e4f, 12, -9, 7, 0};
	const int64_t n = 8 * (tap_quick() ? 3000 : 300000);
	float *x = malloc((size_t)n * 4);

	for (int k = 0; k < 2; k++) {
		const hz_lattice_opts o = {.preset = presets[k]};
		hz_lattice *l = lattice_new(devs[0].ctx, &o);
		struct job j = {.l = l, .rows = 1, .n = n, .dtype = HZ_F32, .x = x};
		struct result want, r;
		int good = 1;

		for (int64_t i = 0; i < n; i++)
			x[i] = rnd_below(rnd, 16) ? (float)rnd_normal(rnd) :
			       special[rnd_below(rnd, 8)];
		good &= encode_on(&devs[0], rnd, &j, &want);
		for (int d = 1; d < ndevs; d++) {
			good &= encode_on(&devs[d], rnd, &j, &r);
			good &= memcmp(r.codes, want.codes, want.bytes) == 0;
			good &= memcmp(r.t, want.t, (size_t)want.ts) == 0;
			good &= memcmp(r.overload, want.overload, 16) == 0;
			result_free(&r);
		}
		ok(good, "%lld blocks: the same codes everywhere", (long long)n / 8);
		result_free(&want);
		hz_lattice_close(l);
	}
	free(x);
}

/* ---- Presets --------------------------------------------------------------------------------- */

static void test_presets(uint64_t *rnd)
{
	static const struct {
		const char *name;
		double bits, narrow, wide;	/* most dB */
	} presets[] = {
		[HZ_LATTICE_PRESET_E8_4_50_FAST] = {"e8-4.5-fast", 4.5, -24.15, -23.8},
		[HZ_LATTICE_PRESET_E8_4_50] = {"e8-4.5", 4.5, -25.0, -24.8},
		[HZ_LATTICE_PRESET_E8_4_25] = {"e8-4.25", 4.25, -23.35, -22.7},
		[HZ_LATTICE_PRESET_E8_4_25_BEST] = {"e8-4.25-best", 4.25, -23.7, -23.0},
		[HZ_LATTICE_PRESET_E8_3_25_FAST] = {"e8-3.25-fast", 3.25, -17.2, -17.0},
		[HZ_LATTICE_PRESET_E8_3_25] = {"e8-3.25", 3.25, -17.7, -17.0},
		[HZ_LATTICE_PRESET_E8_2_25] = {"e8-2.25", 2.25, -11.5, -11.0},
		[HZ_LATTICE_PRESET_D4_4_50] = {"d4-4.5", 4.5, -23.9, -23.6},
	};
	const int64_t rows = tap_quick() ? 4 : 64, n = 4096;
	float *x = malloc((size_t)(rows * n) * 4), *y = malloc((size_t)(rows * n) * 4);
	const double slack = tap_quick() ? 0.1 : 0.02;

	for (int64_t i = 0; i < rows * n; i++)
		x[i] = (float)(0.37 * rnd_normal(rnd));
	for (int p = 1; p <= HZ_LATTICE_PRESET_D4_4_50; p++) {
		for (int wide = 0; wide < 2; wide++) {
			const hz_lattice_opts o = {.preset = p,
						   .flags = wide ? HZ_LATTICE_WIDE : 0};
			struct job j = {.rows = rows, .n = n, .dtype = HZ_F32, .scaled = 1, .x = x};
			double error = 0, power = 0, db;
			hz_lattice_info info;
			struct result r;
			hz_lattice *l;

			if (hz_lattice_open(devs[0].ctx, &l, &o) != HZ_OK)
				bail("preset %d: %s", p, hz_errmsg(devs[0].ctx));
			j.l = l;
			hz_lattice_get_info(l, &info);
			encode_on(&devs[0], rnd, &j, &r);
			decode_on(&devs[0], rnd, &j, &r, HZ_LATTICE_VALUES, HZ_F32, y);
			for (int64_t i = 0; i < rows * n; i++) {
				error += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
				power += (double)x[i] * x[i];
			}
			db = 10 * log10(error / power);
			ok(db <= (wide ? presets[p].wide : presets[p].narrow) + slack &&
			   info.bits == presets[p].bits + 32.0 / 4096,
			   "preset %s%s: %.2f dB, %.4f bits", presets[p].name, wide ? " wide" : "",
			   db, info.bits);
			result_free(&r);
			hz_lattice_close(l);
		}
	}
	free(x);
	free(y);
}

/* ---- Scales of rows -------------------------------------------------------------------------- */

static void test_row_scale(uint64_t *rnd)
{
	const hz_lattice_opts o = {.preset = HZ_LATTICE_PRESET_E8_4_50_FAST};
	hz_lattice *l = lattice_new(devs[0].ctx, &o);
	int good = 1;

	for (int i = 0; i < 20 && good; i++) {
		const int64_t n = i < 8 ? 1 + i : 1 + rnd_below(rnd, 3000);
		struct job j = {.l = l, .rows = 3, .n = n, .dtype = HZ_F32, .scaled = 1};
		float *x = malloc((size_t)n * 12), *divided = malloc((size_t)n * 12);
		struct result r, plain;

		for (int64_t e = 0; e < 3 * n; e++)
			x[e] = e < n ? 0 : (float)(rnd_normal(rnd) * exp2(10 * rnd_uniform(rnd)));
		if (n > 2)
			x[n] = NAN;
		j.x = x;
		good &= encode_on(&devs[0], rnd, &j, &r);
		for (int64_t row = 0; row < 3; row++) {
			double sum = 0;

			for (int64_t e = 0; e < n; e++) {
				const double v = (double)x[row * n + e];

				sum += isnan(v) ? 0 : v * v;
				divided[row * n + e] = x[row * n + e] / r.row_scale[row];
			}
			good &= row == 0 ? r.row_scale[0] == 1 :
				fabs(sqrt(sum / (double)n) - (double)r.row_scale[row]) <=
				1e-7 * (double)r.row_scale[row];
		}
		j.x = divided;
		j.scaled = 0;
		good &= encode_on(&devs[0], rnd, &j, &plain);
		good &= memcmp(plain.codes, r.codes, r.bytes) == 0;
		result_free(&r);
		result_free(&plain);
		free(x);
		free(divided);
	}
	ok(good, "row_scale is the root mean square, of which NaN is no part");
	hz_lattice_close(l);
}

/* Rotated rows have the scale of the rotated values. */
static void test_rotated(uint64_t *rnd)
{
	const hz_lattice_opts named = {.preset = HZ_LATTICE_PRESET_E8_4_25};
	const hz_hadamard_opts h = {0};
	hz_lattice *l = lattice_new(devs[0].ctx, &named);
	int good = 1;

	for (int d = 0; d < ndevs; d++) {
		struct operand x = operand_new(&devs[d], rnd, HZ_F32, 2, (int64_t[]){3, 64}, 1);
		struct operand y = operand_new(&devs[d], rnd, HZ_F32, 2, (int64_t[]){3, 64}, 1);
		struct operand codes = operand_new(&devs[d], rnd, HZ_U32, 3,
						   (int64_t[]){3, 8, 1}, 1);
		struct operand t = operand_new(&devs[d], rnd, HZ_U8, 2, (int64_t[]){3, 8}, 0);
		struct operand row = operand_new(&devs[d], rnd, HZ_F32, 1, (int64_t[]){3}, 0);
		const hz_lattice_code_opts o = {.hadamard = &h, .row_scale = &row.tensor};
		float v[192], w[192], s[3];
		double error = 0, power = 0;

		for (int i = 0; i < 192; i++)
			v[i] = (float)(rnd_normal(rnd) * (i % 64 == 5 ? 100 : 1));
		exchange(&x, v, 0);
		reserve_for(&devs[d], HZ_OK, 1 << 16);
		if (hz_lattice_encode(devs[d].ctx, l, &x.tensor, &codes.tensor, &t.tensor, NULL,
				      &o) != HZ_OK ||
		    hz_lattice_decode(devs[d].ctx, l, &codes.tensor, &t.tensor, &y.tensor,
				      &o) != HZ_OK)
			bail("rotated: %s", hz_errmsg(devs[d].ctx));
		good &= exchange(&y, w, 1);
		exchange(&row, s, 1);
		for (int r = 0; r < 3; r++) {
			double sum = 0;

			for (int i = 0; i < 64; i++) {
				sum += (double)v[64 * r + i] * v[64 * r + i];
				error += ((double)v[64 * r + i] - w[64 * r + i]) *
					 ((double)v[64 * r + i] - w[64 * r + i]);
			}
			power += sum;
			good &= fabs(s[r] / sqrt(sum / 64) - 1) < 1e-4 ||
				fabs(s[r] / sqrt(sum) - 1) < 1e-4;
		}
		good &= error < 0.05 * power;
		if (!good)
			diag("%s: scales %g %g %g, error %g of %g", devs[d].name, s[0], s[1], s[2],
			     error, power);
		operand_free(&x);
		operand_free(&y);
		operand_free(&codes);
		operand_free(&t);
		operand_free(&row);
	}
	ok(good, "rotated rows with scales");
	hz_lattice_close(l);
}

/* ---- Refused --------------------------------------------------------------------------------- */

static void refused(const char *message, hz_lattice_opts o)
{
	hz_lattice *l = (hz_lattice *)(uintptr_t)1;
	const int status = hz_lattice_open(devs[0].ctx, &l, &o);

	ok(status == HZ_EINVAL && !l && strcmp(hz_errmsg(devs[0].ctx), message) == 0,
	   "refused: %s", message);
	if (status != HZ_EINVAL || l || strcmp(hz_errmsg(devs[0].ctx), message) != 0)
		diag("%d, %s", status, hz_errmsg(devs[0].ctx));
}

#define CUBE .kind = HZ_LATTICE_E8, .q = 16, .levels = 1, .beta = 1, .policy = HZ_LATTICE_BANK, \
	.banks = 2, .bank = bank, .shaping = HZ_LATTICE_SHAPING_CUBE

static void test_refused(void)
{
	static const double bank[2] = {1, 2}, dither[8] = {0.1}, identity[64] = {1};
	static const int64_t offset[8] = {0};
	float x[16] = {0}, y[16];
	uint32_t codes[2];
	uint8_t t[2];
	float row = 0;
	const hz_lattice_opts cube = {CUBE};

	refused("lattice_open: opts->preset is 9, must be 0 to 8", (hz_lattice_opts){.preset = 9});
	refused("lattice_open: opts->shaping is 4, must be 0 to 3",
		(hz_lattice_opts){.preset = 1, .shaping = 4});
	refused("lattice_open: HZ_LATTICE_WIDE is set, but opts->preset is 0: it selects the bank "
		"of a preset", (hz_lattice_opts){CUBE, .flags = HZ_LATTICE_WIDE});
	refused("lattice_open: opts->shaping is 1, which needs kind HZ_LATTICE_E8, levels 1 and q "
		"4, 8 or 16: kind is 3, levels 1, q 16",
		(hz_lattice_opts){.preset = 1, .kind = HZ_LATTICE_D});
	refused("lattice_open: opts->shaping is 2, which needs kind HZ_LATTICE_E8, levels 1 and q "
		"4, 8 or 16: kind is 4, levels 1, q 12",
		(hz_lattice_opts){.preset = 3, .q = 12});
	refused("lattice_open: opts->policy is 2, must be HZ_LATTICE_BANK with shaping 1",
		(hz_lattice_opts){.preset = 1, .policy = HZ_LATTICE_CLIP});
	refused("lattice_open: opts->group is 16, must be 0 or 8 with shaping 1",
		(hz_lattice_opts){.preset = 1, .group = 16});
	refused("lattice_open: HZ_LATTICE_CENTER is set, which shaping 1 does not have",
		(hz_lattice_opts){CUBE, .flags = HZ_LATTICE_CENTER});
	refused("lattice_open: HZ_LATTICE_FIRST_FIT is set, which shaping 1 does not have",
		(hz_lattice_opts){CUBE, .flags = HZ_LATTICE_FIRST_FIT});
	refused("lattice_open: opts->dither is given, which shaping 1 does not have",
		(hz_lattice_opts){CUBE, .dither = dither});
	refused("lattice_open: opts->transform is given, which shaping 1 does not have",
		(hz_lattice_opts){CUBE, .transform = identity});
	refused("lattice_open: opts->offset is given, which shaping 1 does not have",
		(hz_lattice_opts){CUBE, .offset = offset});
	if (tap_cuda())
		return;

	hz_context *const ctx = devs[0].ctx;
	hz_lattice *l = lattice_new(ctx, &cube);
	const hz_tensor xt = hz_tensor_1d(x, HZ_F32, HZ_CPU, 16);
	hz_tensor yt = hz_tensor_1d(y, HZ_F32, HZ_CPU, 16), tt = hz_tensor_1d(t, HZ_U8, HZ_CPU, 2);
	hz_tensor ct = hz_tensor_2d(codes, HZ_U32, HZ_CPU, 2, 1);
	hz_tensor rt = hz_tensor_1d(&row, HZ_F32, HZ_CPU, 1);
	hz_tensor pt = hz_tensor_2d(y, HZ_S32, HZ_CPU, 2, 8);
	hz_lattice_code_opts o = {.row_scale = &rt};

	ok(hz_lattice_encode(ctx, l, &xt, &ct, &tt, NULL, &o) == HZ_ESHAPE &&
	   strcmp(hz_errmsg(ctx), "lattice_encode: opts->row_scale.ndim is 1, must be 0") == 0,
	   "refused: %s", hz_errmsg(ctx));
	o.to = HZ_LATTICE_POINTS;
	ok(hz_lattice_decode(ctx, l, &ct, &tt, &pt, &o) == HZ_EINVAL &&
	   strcmp(hz_errmsg(ctx), "lattice_decode: opts->row_scale is given, but there are no "
		  "values to scale") == 0, "refused: %s", hz_errmsg(ctx));
	o.to = 0;
	rt = yt;
	rt.ndim = 0;
	ok(hz_lattice_decode(ctx, l, &ct, &tt, &yt, &o) == HZ_EALIAS, "refused: %s",
	   hz_errmsg(ctx));
	hz_lattice_close(l);
}

int main(void)
{
	uint64_t rnd = tap_seed();

	dev_open_all();
	if (tap_cuda())		/* codes of a GPU are those of the CPU */
		dev_open(HZ_CPU, HZ_ISA_AUTO, 0);
	dev_open_routes(HZI_OP_lattice_encode);
	dev_open_routes(HZI_OP_lattice_decode);
	test_labels(&rnd);
	test_encode(&rnd);
	test_close_blocks(&rnd);
	test_devices(&rnd);
	if (tap_cuda() || tap_quick())
		test_many(&rnd);
	test_presets(&rnd);
	test_row_scale(&rnd);
	test_rotated(&rnd);
	test_refused();
	dev_close_all();
	return done_testing();
}
