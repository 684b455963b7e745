/*
 * linear.c - tests of linear layers with quantized weights against a definition in double
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Decoded weights are compared with the weights by the error that a layer reports, products and
 * gradients with sums in double of decoded weights, and bias and activation with a product without
 * them, which rounds x alike.
 */
#include <config.h>

#include "lib/linear/linear.h"
#include "t/core/dev.h"

#define FORMATS HZ_LINEAR_NVFP4

static uint64_t rnd;

/* Most error of Gaussian weights in rows of 96 or more, in dB */
static const double most_db[] = {
	0, -38, -23, -23.5, -22, -22.2, -16, -16.3, -10.3, -22.5, -38, -18, -16, -16, -15, -18,
};

struct job {
	int format, w_dtype, x_dtype, y_dtype;
	int64_t out, in;
	int ndim;			/* of x and y */
	int64_t shape[4];		/* their leading dimensions */
	int64_t pad;			/* elements between rows */
	bool rotates, moments, step;	/* step: elements are 2 apart */
};

/* A tensor of a device with guards between rows, and a copy on the host as double */
struct operand {
	struct area area;
	hz_tensor t;
	double *value;			/* in C order */
	int64_t count;
};

static int64_t offset_of(const hz_tensor *t, int64_t i)
{
	int64_t at = 0;

	for (int d = t->ndim - 1; d >= 0; d--) {
		at += i % t->shape[d] * t->stride[d];
		i /= t->shape[d];
	}
	return at;
}

static struct operand operand_new(struct dev *dev, const struct job *j, int dtype, int ndim,
				  const int64_t *leading, int64_t last, bool random)
{
	struct operand o = {.count = last};
	int64_t shape[HZ_MAXDIM], stride[HZ_MAXDIM], low, high;
	const int64_t each = j->step ? 2 : 1;
	unsigned char *image;
	void *data;
	size_t size = hz_dtype_size(dtype);

	for (int d = 0; d < ndim - 1; d++) {
		shape[d] = leading[d];
		o.count *= leading[d];
	}
	shape[ndim - 1] = last;
	lay_out(ndim, shape, j->pad, stride);
	for (int d = 0; d < ndim; d++)
		stride[d] *= each;
	reach(ndim, shape, stride, &low, &high);
	o.area = area_new(dev, (size_t)(o.count ? high : 0) * size, 0);
	o.t = hz_tensor_nd(o.area.data, dtype, dev->device, ndim, shape);
	memcpy(o.t.stride, stride, sizeof(stride));
	o.value = calloc((size_t)o.count + 1, sizeof(double));
	if (!random)
		return o;
	image = image_new(o.area.bytes, 0, &data);
	for (int64_t i = 0; i < o.count; i++) {
		ref_put(dtype, data, offset_of(&o.t, i), rnd_normal(&rnd));
		o.value[i] = ref_get(dtype, data, offset_of(&o.t, i));
	}
	area_write(&o.area, image);
	free(image);
	return o;
}

/* Reads the values of an output, and looks whether guards are untouched. */
static bool operand_read(struct operand *o)
{
	unsigned char *image = malloc(o->area.total), *used = calloc(o->area.total, 1);
	const size_t size = hz_dtype_size(o->t.dtype);
	bool good = true;

	area_read(&o->area, image);
	for (int64_t i = 0; i < o->count; i++) {
		const int64_t at = offset_of(&o->t, i);

		o->value[i] = ref_get(o->t.dtype, image + GUARD, at);
		memset(used + GUARD + (size_t)at * size, 1, size);
	}
	for (size_t i = 0; i < o->area.total; i++)
		good &= used[i] || image[i] == GUARD_BYTE;
	free(image);
	free(used);
	return good;
}

static void operand_free(struct operand *o)
{
	free(o->value);
	area_free(&o->area);
}

/* A call whose workspace is recorded first */
#define CALL(dev, call) \
	__extension__({ \
		size_t call_bytes_ = 0; \
		RECORD((dev)->ctx, call, &call_bytes_) || hz_reserve((dev)->ctx, call_bytes_) || \
			(call) ? bail("%s", hz_errmsg((dev)->ctx)) : (void)0; \
	})

/* Of a from b, over the norm of b, whose square counts as `least` at least */
static double distance(const double *a, const double *b, int64_t n, double least)
{
	double d = 0, s = 0;

	for (int64_t i = 0; i < n; i++) {
		d += (a[i] - b[i]) * (a[i] - b[i]);
		s += b[i] * b[i];
	}
	s = fmax(s, least);
	return s > 0 ? sqrt(d / s) : sqrt(d);
}

/* x times decoded weights w [out][in], or their transpose */
static void multiply(const double *x, int64_t rows, const double *w, int64_t out, int64_t in,
		     bool transposed, double *y)
{
	memset(y, 0, (size_t)(rows * (transposed ? in : out)) * sizeof(double));
	for (int64_t t = 0; t < rows; t++) {
		for (int64_t o = 0; o < out; o++) {
			for (int64_t k = 0; k < in; k++) {
				if (transposed)
					y[t * in + k] += x[t * out + o] * w[o * in + k];
				else
					y[t * out + o] += x[t * in + k] * w[o * in + k];
			}
		}
	}
}

/* The bytes of the first context that made a layer: each other must make the same */
static unsigned char *first_bytes;
static size_t first_size;

static bool same_bytes(struct dev *dev, const hz_linear *l, unsigned char **data)
{
	size_t bytes;
	bool good;

	if (hz_linear_save_bytes(dev->ctx, l, &bytes))
		bail("%s", hz_errmsg(dev->ctx));
	*data = aligned_alloc(64, (bytes + 63) / 64 * 64);
	if (!*data || hz_linear_save(dev->ctx, l, *data, bytes))
		bail("%s", hz_errmsg(dev->ctx));
	if (!first_bytes) {
		first_bytes = malloc(bytes);
		first_size = bytes;
		memcpy(first_bytes, *data, bytes);
	}
	good = bytes == first_size && memcmp(first_bytes, *data, bytes) == 0;
	if (!good)
		diag("%s: other bytes", dev->name);
	return good;
}

/* Results of the first context with f32 y, whose bits others must have where hurwitz.h says so */
static double *first_y;

/* The error of decoded weights: that which the layer says, and small enough */
static bool test_weights(const struct job *j, const hz_linear *l, const double *w, const double *d)
{
	double noise = 0, power = 0, db;
	hz_linear_info info;

	hz_linear_get_info(l, &info);
	for (int64_t i = 0; i < j->out * j->in; i++) {
		noise += (w[i] - d[i]) * (w[i] - d[i]);
		power += w[i] * w[i];
	}
	db = 10 * log10(noise / power);
	/* With moments it is another error that the layer reports. */
	if (!j->moments && fabs(fmax(db, -200) - fmax(info.error_db, -200)) > 0.02) {
		diag("the error is %g dB, reported %g", db, info.error_db);
		return false;
	}
	if (info.out != j->out || info.in != j->in || info.format != j->format ||
	    !info.route || strcmp(info.format_name, hz_linear_format_name(j->format)) != 0 ||
	    fabs(info.bits - 8.0 * (double)info.bytes / (double)(j->out * j->in)) > 1e-12)
		return false;
	if (db > most_db[j->format] + (j->moments ? 1 : 0) + (j->in < 96 ? 4 : 0))
		diag("the error is %g dB", db);
	return db <= most_db[j->format] + (j->moments ? 1 : 0) + (j->in < 96 ? 4 : 0);
}

/* act(y0 + bias), of which y is the rounded result; y0: the product alone, as f32 */
static bool test_epilogue(struct dev *dev, const struct job *j, const hz_linear *l,
			  const struct operand *x, int64_t rows, const double *y0)
{
	static const int activations[] = {
		HZ_ACT_NONE, HZ_ACT_RELU, HZ_ACT_TANH, HZ_ACT_SIGMOID, HZ_ACT_GELU, HZ_ACT_SILU,
		HZ_ACT_GELU_TANH,
	};
	struct job plain = {.out = j->out, .pad = 0};
	struct operand bias = operand_new(dev, &plain, HZ_F32, 1, NULL, j->out, true);
	bool good = true;

	for (int k = 0; k < 14 && good; k++) {
		const bool gated = k >= 7 && j->out % 2 == 0;
		const hz_linear_opts o = {.activation = activations[k % 7],
					  .flags = gated ? HZ_LINEAR_GATED : 0};
		const int64_t n = gated ? j->out / 2 : j->out;
		const hz_tensor *const b = k % 3 == 2 ? NULL : &bias.t;
		struct operand y = operand_new(dev, j, j->y_dtype, j->ndim, j->shape, n, false);

		CALL(dev, hz_linear_forward(dev->ctx, l, &x->t, b, &y.t, &o));
		good &= operand_read(&y);
		for (int64_t i = 0; i < rows * n && good; i++) {
			const int64_t at = i / n * j->out + i % n;
			const float v = (float)(y0[at] + (b ? bias.value[i % n] : 0));
			const double up = b && gated ? bias.value[n + i % n] : 0;
			const float u = gated ? (float)(y0[at + n] + up) : 1;
			const double want = ref_act(o.activation, (double)v) * (double)u;
			/* On a GPU as the contract says, each step with its rounding */
			const double loose = dev->device == HZ_CPU ? 0 :
					     0x1p-20 * fabs((double)v * (double)u);
			const double bound = ref_half_ulp(j->y_dtype, want) * 1.01 + loose +
					     fabs(want) * 0x1p-22 + 1e-37;

			good &= fabs(y.value[i] - want) <= bound;
			if (!good)
				diag("activation %d%s: %.9g is %.9g, must be %.9g", o.activation,
				     gated ? ", gated" : "", (double)v, y.value[i], want);
		}
		operand_free(&y);
	}
	operand_free(&bias);
	return good;
}

/* The sum of all squares of x times w, which y has on average; of few numbers it may have far less. */
static double squares_of(const double *x, int64_t rows, const double *w, int64_t out, int64_t in)
{
	double sum = 0;

	for (int64_t k = 0; k < in; k++) {
		double of_x = 0, of_w = 0;

		for (int64_t t = 0; t < rows; t++)
			of_x += x[t * in + k] * x[t * in + k];
		for (int64_t o = 0; o < out; o++)
			of_w += w[o * in + k] * w[o * in + k];
		sum += of_x * of_w;
	}
	return sum;
}

static bool test_bwd(struct dev *dev, const struct job *j, const hz_linear *l, int64_t rows,
		     const double *d)
{
	struct operand dy = operand_new(dev, j, j->x_dtype, j->ndim, j->shape, j->out, true);
	struct operand dx = operand_new(dev, j, j->y_dtype, j->ndim, j->shape, j->in, false);
	double *want = calloc((size_t)(rows * j->in) + 1, sizeof(double)), error;
	bool good;

	CALL(dev, hz_linear_bwd(dev->ctx, l, &dy.t, &dx.t));
	good = operand_read(&dx);
	multiply(dy.value, rows, d, j->out, j->in, true, want);
	error = distance(dx.value, want, rows * j->in, 0);
	good &= error <= 2e-6 + (j->y_dtype == HZ_F32 ? 0 :
				 j->y_dtype == HZ_F16 ? 0x1p-11 : 0x1p-8);
	if (!good)
		diag("dx: the error is %g", error);
	operand_free(&dy);
	operand_free(&dx);
	free(want);
	return good;
}

/* Floats x as they are; y0: the same of x as codes, which has other bits */
static bool test_weight_only(struct dev *dev, const struct job *j, const hz_linear *l,
			     const struct operand *x, int64_t rows, const double *want,
			     double squares, const double *y0)
{
	const hz_linear_opts o = {.flags = HZ_LINEAR_WEIGHT_ONLY};
	struct operand y = operand_new(dev, j, HZ_F32, j->ndim, j->shape, j->out, false);
	const int64_t n = rows * j->out;
	double error;
	bool good;

	if (j->format < HZ_LINEAR_S8_G128) {
		good = hz_linear_forward(dev->ctx, l, &x->t, NULL, &y.t, &o) == HZ_ENOTSUP &&
		       strstr(hz_errmsg(dev->ctx), "is for formats with groups");
		operand_free(&y);
		return good;
	}
	CALL(dev, hz_linear_forward(dev->ctx, l, &x->t, NULL, &y.t, &o));
	good = operand_read(&y);
	error = distance(y.value, want, n, squares);
	if (!(error <= 2e-6))
		diag("y of floats: the error is %g", error);
	good &= error <= 2e-6 && (n < 8 || memcmp(y.value, y0, (size_t)n * sizeof(double)));
	operand_free(&y);
	return good;
}

static bool run(const struct job *j, struct dev *dev, uint64_t seed)
{
	const struct job plain = {.pad = j->pad, .step = j->step};
	int64_t rows = 1;
	struct operand w, x, y, d;
	float *moments = calloc((size_t)j->in, 4);
	const hz_tensor m = hz_tensor_1d(moments, HZ_F32, HZ_CPU, j->in);
	hz_linear_open_opts o = {.format = j->format, .flags = j->rotates ? HZ_LINEAR_ROTATE : 0,
				 .seed = j->rotates ? 77 : 0};
	hz_linear *l, *copy;
	double *want, error, squares;
	unsigned char *data;
	size_t bytes;
	bool good;

	rnd = seed;
	for (int i = 0; i < j->ndim - 1; i++)
		rows *= j->shape[i];
	w = operand_new(dev, &plain, j->w_dtype, 2, &j->out, j->in, true);
	x = operand_new(dev, j, j->x_dtype, j->ndim, j->shape, j->in, true);
	y = operand_new(dev, j, HZ_F32, j->ndim, j->shape, j->out, false);
	d = operand_new(dev, &plain, HZ_F32, 2, &j->out, j->in, false);
	if (j->moments) {
		for (int64_t k = 0; k < j->in; k++)
			moments[k] = k % 5 == 0 ? 4 : 0.5f;
		o.moments = &m;
	}
	if (hz_linear_open(dev->ctx, &l, &w.t, &o))
		bail("%s", hz_errmsg(dev->ctx));
	good = same_bytes(dev, l, &data);
	hz_linear_save_bytes(dev->ctx, l, &bytes);
	CALL(dev, hz_linear_dequantize(dev->ctx, l, &d.t));
	good &= operand_read(&d) && test_weights(j, l, w.value, d.value);

	/* A loaded layer is the same one. */
	if (hz_linear_load(dev->ctx, &copy, data, bytes))
		bail("%s", hz_errmsg(dev->ctx));
	CALL(dev, hz_linear_forward(dev->ctx, copy, &x.t, NULL, &y.t, NULL));
	hz_linear_close(l);
	l = copy;
	good &= operand_read(&y);
	want = calloc((size_t)(rows * j->out) + 1, sizeof(double));
	multiply(x.value, rows, d.value, j->out, j->in, false, want);
	squares = squares_of(x.value, rows, d.value, j->out, j->in);
	error = distance(y.value, want, rows * j->out, squares);
	if (error > 0.02)
		diag("y: the error is %g", error);
	good &= error <= 0.02;
	if (!first_y) {
		first_y = calloc((size_t)(rows * j->out) + 1, sizeof(double));
		memcpy(first_y, y.value, (size_t)(rows * j->out) * sizeof(double));
	}
	if (dev->device == HZ_CPU && (j->format == HZ_LINEAR_S8_ROW ||
				      j->format >= HZ_LINEAR_S8_G128 || rows <= 8))
		good &= same_bits(y.value, first_y, (size_t)(rows * j->out), sizeof(double));
	good &= test_weight_only(dev, j, l, &x, rows, want, squares, y.value);
	good &= test_epilogue(dev, j, l, &x, rows, y.value);
	good &= test_bwd(dev, j, l, rows, d.value);
	hz_linear_close(l);
	free(data);
	free(want);
	operand_free(&w);
	operand_free(&x);
	operand_free(&y);
	operand_free(&d);
	free(moments);
	return good;
}

static void test_job(const struct job *j)
{
	const uint64_t seed = rnd_u64(&rnd);
	bool good = true;

	for (int d = 0; d < ndevs && good; d++) {
		good = run(j, &devs[d], seed);
		if (!good)
			diag("on %s", devs[d].name);
	}
	free(first_bytes);
	free(first_y);
	first_bytes = NULL;
	first_y = NULL;
	rnd = seed + 1;
	ok(good, "%s, w %s [%d, %d], x %s, y %s%s%s%s", hz_linear_format_name(j->format),
	   hz_dtype_name(j->w_dtype), (int)j->out, (int)j->in, hz_dtype_name(j->x_dtype),
	   hz_dtype_name(j->y_dtype), j->rotates ? ", rotated" : "", j->moments ? ", moments" : "",
	   j->step ? ", strided" : "");
}

static void test_products(void)
{
	static const int64_t sizes[][2] = {{64, 96}, {130, 40}, {2, 1}, {33, 257}, {70, 160}};
	int k = 0;

	for (int format = 1; format <= FORMATS; format++) {
		for (int i = 0; i < 5; i++, k++) {
			struct job j = {
				.format = format, .out = sizes[i][0], .in = sizes[i][1],
				.w_dtype = floats[k % 3], .x_dtype = floats[k / 2 % 3],
				.y_dtype = floats[k / 3 % 3], .ndim = 1 + k % 4,
				.shape = {1 + k % 3, 2, 3}, .pad = k % 4 ? k % 5 : 0,
				.rotates = k % 2, .moments = i == 4, .step = k % 7 == 3,
			};

			if (tap_quick() && (format + i) % 2)
				continue;
			if (j.in == 1 && j.format != HZ_LINEAR_S8_ROW)
				j.in = 16;
			j.in += j.in % 2 && j.format >= HZ_LINEAR_S4_G32;
			test_job(&j);
		}
	}
	for (int format = 1; format <= FORMATS && !tap_quick(); format++) {
		const struct job j = {
			.format = format, .out = 600, .in = 768, .w_dtype = HZ_F32,
			.x_dtype = HZ_F32, .y_dtype = HZ_F32, .ndim = 2, .shape = {37},
			.rotates = true,
		};

		test_job(&j);
	}
}

/* Moments weigh errors: those of features with large moments become smaller. */
static void test_moments(void)
{
	static float w[64][64], m[64], d[64][64];
	double error[2] = {0, 0};

	for (int i = 0; i < 64 * 64; i++)
		w[i / 64][i % 64] = (float)(rnd_normal(&rnd) * (i % 64 < 8 ? 0.2 : 1 + i % 3));
	for (int k = 0; k < 64; k++)
		m[k] = k < 8 ? 100 : 1e-3f;
	for (int i = 0; i < 2 && !tap_cuda(); i++) {
		const hz_tensor weights = hz_tensor_2d(w, HZ_F32, HZ_CPU, 64, 64);
		const hz_tensor moments = hz_tensor_1d(m, HZ_F32, HZ_CPU, 64);
		const hz_linear_open_opts o = {.moments = i ? &moments : NULL};
		hz_tensor back = hz_tensor_2d(d, HZ_F32, HZ_CPU, 64, 64);
		hz_linear *l;

		if (hz_linear_open(devs[0].ctx, &l, &weights, &o) ||
		    hz_linear_dequantize(devs[0].ctx, l, &back))
			bail("%s", hz_errmsg(devs[0].ctx));
		for (int k = 0; k < 64 * 64; k++)
			error[i] += (double)m[k % 64] * pow((double)(d[k / 64][k % 64] -
							    w[k / 64][k % 64]), 2);
		hz_linear_close(l);
	}
	if (tap_cuda())
		skip(1, "on the host");
	else
		ok(error[1] < 0.9 * error[0], "moments: the weighted error is %.2g of that without",
		   error[1] / error[0]);
}

/*
 * Weights with outliers and moments of a heavy tail, the largest where the outliers are: without
 * moments errors are near those of Gaussian weights, and with moments their own error is less and
 * the plain one not much more.
 */
static void test_outliers(void)
{
	enum { OUT = 48, IN = 256 };
	static const struct {
		int format;
		double most;		/* dB */
	} formats[] = {
		{HZ_LINEAR_E8_4_50_FAST, -22.3}, {HZ_LINEAR_E8_4_50, -23.8},
		{HZ_LINEAR_E8_4_25, -21.3}, {HZ_LINEAR_E8_3_25, -16.5}, {HZ_LINEAR_D4_4_50, -22.5},
	};
	static float w[OUT][IN], m[IN], d[OUT][IN];
	double power = 0;

	for (int k = 0; k < IN; k++)
		m[k] = (float)exp2(rnd_normal(&rnd) * 2 + (k % 64 == 9 ? 10 : 0));
	for (int i = 0; i < OUT; i++) {
		for (int k = 0; k < IN; k++)
			w[i][k] = (float)rnd_normal(&rnd);
		w[i][9 + 64 * (i % 4)] *= i % 3 ? 1 : 20;
		for (int k = 0; k < IN; k++)
			power += (double)w[i][k] * (double)w[i][k];
	}
	for (size_t f = 0; f < sizeof(formats) / sizeof(*formats) && !tap_cuda(); f++) {
		double plain[2] = {0, 0}, weighted[2] = {0, 0};

		for (int i = 0; i < 2; i++) {
			const hz_tensor weights = hz_tensor_2d(w, HZ_F32, HZ_CPU, OUT, IN);
			const hz_tensor moments = hz_tensor_1d(m, HZ_F32, HZ_CPU, IN);
			const hz_linear_open_opts o = {.format = formats[f].format,
						       .moments = i ? &moments : NULL};
			hz_tensor back = hz_tensor_2d(d, HZ_F32, HZ_CPU, OUT, IN);
			hz_linear *l;

			if (hz_linear_open(devs[0].ctx, &l, &weights, &o) ||
			    hz_linear_dequantize(devs[0].ctx, l, &back))
				bail("%s", hz_errmsg(devs[0].ctx));
			for (int k = 0; k < OUT * IN; k++) {
				const double e = (double)d[k / IN][k % IN] -
						 (double)w[k / IN][k % IN];

				plain[i] += e * e;
				weighted[i] += (double)m[k % IN] * e * e;
			}
			hz_linear_close(l);
		}
		ok(10 * log10(plain[0] / power) <= formats[f].most && weighted[1] <= weighted[0] &&
		   plain[1] <= 4 * plain[0], "outliers, %s: %.2f dB, with moments %.2f, their own "
		   "error %.2g of that without", hz_linear_format_name(formats[f].format),
		   10 * log10(plain[0] / power), 10 * log10(plain[1] / power),
		   weighted[1] / weighted[0]);
	}
}

/* e (H + damping) e^T of all rows of a - b; b NULL: of a */
static double product_error(const float *a, const float *b, int64_t rows, int64_t n,
			    const float *h, double damping)
{
	double sum = 0;

	for (int64_t i = 0; i < rows; i++) {
		for (int64_t j = 0; j < n; j++) {
			const double ej = (double)a[i * n + j] - (b ? (double)b[i * n + j] : 0);
			double z = damping * ej;

			for (int64_t k = 0; k < n; k++)
				z += (double)h[j * n + k] *
				     ((double)a[i * n + k] - (b ? (double)b[i * n + k] : 0));
			sum += ej * z;
		}
	}
	return sum;
}

enum { OUT = 300, IN = 530, SAMPLES = 300 };	/* of test_matrix(), at most */

/*
 * Whether two layers by the same factors are like that of `bytes`, by the matrix h of samples x: the
 * same bytes or, where products are of rotated samples, the same error
 */
static bool same_by_factors(const hz_tensor *w, hz_linear_open_opts o, const float *h,
			    float x[SAMPLES][IN], const unsigned char *bytes, double error_db)
{
	static float rotated[SAMPLES][IN];
	static double d[IN];
	static uint8_t signs[IN];
	const int in = (int)w->shape[1];
	const int panels = (in + HZI_LINEAR_COLUMNS - 1) / HZI_LINEAR_COLUMNS;
	float *const u = calloc((size_t)hzi_linear_panels(panels), sizeof(*u));
	struct hzi_linear_factors f = {d, u, HZI_LINEAR_MOMENTS};
	struct hzi_linear_header header = {.in = in};
	const hz_tensor pre = hz_tensor_1d(signs, HZ_U8, HZ_CPU, (in + 7) / 8);
	hz_tensor r = hz_tensor_2d(rotated, HZ_F32, HZ_CPU, SAMPLES, in), squares = *o.moments;
	hz_hadamard_opts opts;
	bool same = u != NULL;

	hzi_linear_choose_plan(&header);
	opts = hzi_linear_rotation(&header);
	opts.pre = &pre;
	hz_hadamard_signs(signs, in, 0);
	r.stride[0] = IN;
	memcpy(rotated, x, sizeof(rotated));
	if (o.flags && hz_hadamard(devs[0].ctx, &r, &r, &opts))
		bail("%s", hz_errmsg(devs[0].ctx));
	for (int i = 0; i < in * in && u; i++) {
		const int k = i / in, row = i % in;
		double sum = 0;

		for (int s = 0; s < SAMPLES && row <= k && o.flags; s++)
			sum += (double)rotated[s][k] * (double)rotated[s][row] / SAMPLES;
		if (row <= k)
			u[hzi_linear_panels(k / HZI_LINEAR_COLUMNS) + row * HZI_LINEAR_COLUMNS +
			  k % HZI_LINEAR_COLUMNS] = o.flags ? (float)sum : h[k * in + row];
	}
	o.moments = &squares;
	for (int i = 0; i < 2 && u; i++) {
		unsigned char *other;
		hz_linear_info info;
		hz_linear *l;

		if (hzi_linear_open_factored(devs[0].ctx, &l, w, &o, &f) ||
		    hz_linear_get_info(l, &info))
			bail("%s", hz_errmsg(devs[0].ctx));
		other = malloc((size_t)info.bytes);
		if (!other || hz_linear_save(devs[0].ctx, l, other, (size_t)info.bytes))
			bail("%s", hz_errmsg(devs[0].ctx));
		same &= f.state == HZI_LINEAR_FACTORS;
		same &= o.flags ? fabs(info.error_db - error_db) < 0.05 :
				  !memcmp(bytes, other, (size_t)info.bytes);
		hz_linear_close(l);
		free(other);
	}
	free(u);
	return same;
}

/*
 * A matrix of moments: products with activations like those have less error than with its diagonal,
 * the layer reports it, and its bytes are the same on every context.
 */
static void test_matrix(int out, int in, size_t each)
{
	static const struct {
		int format;
		double most;		/* of the error with the diagonal */
	} formats[] = {
		{HZ_LINEAR_E8_4_50, 0.3}, {HZ_LINEAR_E8_4_25, 0.3}, {HZ_LINEAR_E8_3_25, 0.3},
		{HZ_LINEAR_E8_2_25, 0.3}, {HZ_LINEAR_D4_4_50, 0.3}, {HZ_LINEAR_S8_ROW, 0.3},
		{HZ_LINEAR_S8_G128, 0.3}, {HZ_LINEAR_S4_G32, 0.3}, {HZ_LINEAR_U4_G128, 0.3},
		{HZ_LINEAR_MXFP4, 1.0001},
	};
	static float w[OUT * IN], x[SAMPLES][IN], h[IN * IN], diagonal[IN], d[OUT * IN];
	static float mix[12][IN];
	const hz_tensor weights = hz_tensor_2d(w, HZ_F32, HZ_CPU, out, in);
	const hz_tensor moments[2] = {hz_tensor_1d(diagonal, HZ_F32, HZ_CPU, in),
				      hz_tensor_2d(h, HZ_F32, HZ_CPU, in, in)};
	hz_tensor back = hz_tensor_2d(d, HZ_F32, HZ_CPU, out, in);
	double mean = 0;

	for (int i = 0; i < out * in; i++)
		w[i] = (float)rnd_normal(&rnd);
	for (int i = 0; i < 12 * in; i++)
		mix[i / in][i % in] = (float)rnd_normal(&rnd);
	for (int s = 0; s < SAMPLES; s++) {
		for (int k = 0; k < in; k++)
			x[s][k] = (float)rnd_normal(&rnd);
		for (int l = 0; l < 12; l++) {
			const float f = (float)rnd_normal(&rnd);

			for (int k = 0; k < in; k++)
				x[s][k] += f * mix[l][k];
		}
	}
	for (int i = 0; i < in * in; i++) {
		const int j = i / in, k = i % in;
		double sum = 0;

		for (int s = 0; s < SAMPLES && k <= j; s++)
			sum += (double)x[s][j] * (double)x[s][k] / SAMPLES;
		if (k <= j)
			h[j * in + k] = h[k * in + j] = (float)sum;
	}
	for (int k = 0; k < in; k++) {
		diagonal[k] = h[k * in + k];
		mean += (double)diagonal[k] / in;
	}
	for (size_t f = 0; f < sizeof(formats) / sizeof(*formats) && !tap_cuda(); f += each) {
		double error[2] = {0}, damped = 0;
		hz_linear_info info = {0};
		unsigned char *bytes = NULL;
		bool same = true;

		for (int i = 0; i < 2; i++) {
			const hz_linear_open_opts o = {.format = formats[f].format,
						       .flags = f % 2 ? HZ_LINEAR_ROTATE : 0,
						       .moments = &moments[i]};
			hz_linear *l;

			if (hz_linear_open(devs[0].ctx, &l, &weights, &o) ||
			    hz_linear_dequantize(devs[0].ctx, l, &back) ||
			    hz_linear_get_info(l, &info))
				bail("%s", hz_errmsg(devs[0].ctx));
			error[i] = product_error(w, d, out, in, h, 0);
			damped = product_error(w, d, out, in, h, 0.1 * mean) /
				 product_error(w, NULL, out, in, h, 0.1 * mean);
			for (int c = 0; i == 1 && c < ndevs; c++) {
				unsigned char *const other = malloc((size_t)info.bytes);
				hz_linear *m;

				if (!other || hz_linear_open(devs[c].ctx, &m, &weights, &o) ||
				    hz_linear_save(devs[c].ctx, m, other, (size_t)info.bytes))
					bail("%s", hz_errmsg(devs[c].ctx));
				same &= !bytes || !memcmp(bytes, other, (size_t)info.bytes);
				hz_linear_close(m);
				free(bytes);
				bytes = other;
			}
			hz_linear_close(l);
		}
		same &= same_by_factors(&weights, (hz_linear_open_opts){
				.format = formats[f].format, .moments = &moments[0],
				.flags = f % 2 ? HZ_LINEAR_ROTATE : 0,
			}, h, x, bytes, info.error_db);
		free(bytes);
		ok(error[1] < formats[f].most * error[0] && same &&
		   fabs(10 * log10(damped) - info.error_db) < 0.01,
		   "a matrix of moments, %d x %d, %s: %.2f of the error with its diagonal, "
		   "%.2f dB, reported %.2f, the same bytes", out, in,
		   hz_linear_format_name(formats[f].format), error[1] / error[0],
		   10 * log10(damped), info.error_db);
	}
}

static void refuse(int status, int want, const char *message, const char *what)
{
	const bool good = status == want && strstr(hz_errmsg(devs[0].ctx), message);

	ok(good, "refused: %s", what);
	if (!good)
		diag("status %d: \"%s\"", status, hz_errmsg(devs[0].ctx));
}

static void test_refusals(void)
{
	static float w[6][8], x[2][8], y[2][6], b[6], m[8], matrix[8][8];
	static float u[64], one[8] = {1, 1, 1, 1, 1, 1, 1, 1};
	static double d[8];
	struct hzi_linear_factors factors = {d, u, HZI_LINEAR_MOMENTS};
	const hz_tensor ones = hz_tensor_1d(one, HZ_F32, HZ_CPU, 8);
	hz_tensor square = hz_tensor_2d(matrix, HZ_F32, HZ_CPU, 8, 8);
	hz_context *const ctx = devs[0].ctx;
	const hz_tensor wt = hz_tensor_2d(w, HZ_F32, HZ_CPU, 6, 8), moments =
		hz_tensor_1d(m, HZ_F32, HZ_CPU, 8), bias = hz_tensor_1d(b, HZ_F32, HZ_CPU, 6);
	hz_tensor xt = hz_tensor_2d(x, HZ_F32, HZ_CPU, 2, 8), bad = wt, none = wt;
	hz_tensor yt = hz_tensor_2d(y, HZ_F32, HZ_CPU, 2, 6);
	hz_linear_open_opts o = {.format = 99};
	hz_linear_opts f = {.activation = HZ_ACT_LEAKY};
	hz_linear *l, *odd;
	size_t bytes;

	if (tap_cuda())
		return;
	for (int i = 0; i < 48; i++)
		w[i / 8][i % 8] = (float)i;
#define OPEN(o_, w_) hz_linear_open(ctx, &l, w_, o_)
	refuse(OPEN(&o, &wt), HZ_EINVAL, "opts->format is 99", "an unknown format");
	o = (hz_linear_open_opts){.flags = 2};
	refuse(OPEN(&o, &wt), HZ_EINVAL, "opts->flags has unknown bits", "unknown flags");
	o = (hz_linear_open_opts){.seed = 3};
	refuse(OPEN(&o, &wt), HZ_EINVAL, "opts->seed is 3", "a seed without rotation");
	o = (hz_linear_open_opts){.reserved = {1}};
	refuse(OPEN(&o, &wt), HZ_EINVAL, "reserved", "reserved");
	o = (hz_linear_open_opts){.moments = &moments};
	refuse(OPEN(&o, &wt), HZ_EINVAL, "moments are all 0", "moments of 0");
	m[3] = NAN;
	refuse(OPEN(&o, &wt), HZ_EINVAL, "moments[3] is nan", "a moment that is NaN");
	m[3] = -1;
	refuse(OPEN(&o, &wt), HZ_EINVAL, "moments[3] is -1", "a negative moment");
	for (int i = 0; i < 64; i++)
		matrix[i / 8][i % 8] = i % 9 == 0;
	o = (hz_linear_open_opts){.moments = &square};
	matrix[5][2] = matrix[2][5] = 1.5f;
	refuse(OPEN(&o, &wt), HZ_EINVAL, "not positive semidefinite", "an indefinite matrix");
	for (int i = 0; i < 64; i++)
		u[i % 8 * 8 + i / 8] = matrix[i / 8][i % 8];
	for (int i = 0; i < 2; i++)
		refuse(hzi_linear_open_factored(ctx, &l, &wt, &(hz_linear_open_opts){
				.moments = &ones}, &factors), HZ_EINVAL,
		       "not positive semidefinite", "factors of one, also later");
	matrix[5][2] = NAN;
	refuse(OPEN(&o, &wt), HZ_EINVAL, "moments[5][2] is nan", "NaN in a matrix of moments");
	matrix[6][6] = -1;
	refuse(OPEN(&o, &wt), HZ_EINVAL, "moments[6][6] is -1", "a negative mean square in it");
	square.shape[0] = 7;
	refuse(OPEN(&o, &wt), HZ_ESHAPE, "must be [in] or [in, in] of 8", "a matrix of 7 x 8");
	w[2][1] = INFINITY;
	refuse(OPEN(NULL, &wt), HZ_EINVAL, "w has a value of inf in row 2", "a weight of Inf");
	w[2][1] = 1;
	none.shape[0] = 0;
	refuse(OPEN(NULL, &none), HZ_ESHAPE, "w.shape[0] is 0", "no rows");
	none = wt;
	none.shape[1] = 7;
	o = (hz_linear_open_opts){.format = HZ_LINEAR_NVFP4};
	refuse(OPEN(&o, &none), HZ_ESHAPE, "must be even for nvfp4", "an odd number of columns");
	bad.ndim = 1;
	refuse(OPEN(NULL, &bad), HZ_ESHAPE, "w.ndim is 1", "weights of one dimension");
	ok(!l, "a layer that is refused is NULL");
	if (OPEN(NULL, &wt))
		bail("%s", hz_errmsg(ctx));
#define FORWARD(x_, b_, y_, f_) hz_linear_forward(ctx, l, x_, b_, y_, f_)
	refuse(FORWARD(&xt, NULL, &yt, &f), HZ_EINVAL, "opts->activation is 2", "LEAKY");
	f = (hz_linear_opts){.flags = 4};
	refuse(FORWARD(&xt, NULL, &yt, &f), HZ_EINVAL, "opts->flags has unknown", "flags");
	f = (hz_linear_opts){.flags = HZ_LINEAR_GATED};
	refuse(FORWARD(&xt, NULL, &yt, &f), HZ_ESHAPE, "y.shape[1] is 6, must be 3", "gated y");
	bad = hz_tensor_1d(b, HZ_F32, HZ_CPU, 5);
	refuse(FORWARD(&xt, &bad, &yt, NULL), HZ_ESHAPE, "bias has ndim 1 and", "a short bias");
	refuse(FORWARD(&yt, &bias, &xt, NULL), HZ_ESHAPE, "x.shape[1] is 6", "x of other length");
	refuse(hz_linear_bwd(ctx, l, &xt, &yt), HZ_ESHAPE, "dy.shape[1] is 8", "dy of x");
	refuse(hz_linear_dequantize(ctx, l, &yt), HZ_ESHAPE,
	       "the shape of w is [2, 6], must be [6, 8]", "w of y");
	refuse(hz_linear_save_bytes(ctx, NULL, &bytes), HZ_EINVAL, "layer is NULL", "no layer");
	hz_linear_save_bytes(ctx, l, &bytes);
	refuse(hz_linear_save(ctx, l, w, bytes - 1), HZ_EINVAL, "must be at least", "few bytes");
	refuse(hz_linear_load(ctx, &odd, NULL, 128), HZ_EINVAL, "data is NULL", "no data");
	refuse(hz_linear_load(ctx, &odd, (char *)w + 4, 128), HZ_EINVAL, "multiple of 64",
	       "odd data");
	xt.shape[0] = yt.shape[0] = 0;
	ok(!FORWARD(&xt, NULL, &yt, NULL) && !hz_linear_bwd(ctx, l, &yt, &xt), "no rows of x");
	hz_linear_close(l);
	bad = hz_tensor_2d(w, HZ_F32, HZ_CPU, 5, 8);
	yt = hz_tensor_2d(y, HZ_F32, HZ_CPU, 2, 2);
	xt.shape[0] = 2;
	if (OPEN(NULL, &bad))
		bail("%s", hz_errmsg(ctx));
	f = (hz_linear_opts){.flags = HZ_LINEAR_GATED};
	refuse(FORWARD(&xt, NULL, &yt, &f), HZ_ESHAPE, "5 rows", "gated, odd number of rows");
	hz_linear_close(l);
	hz_linear_close(NULL);
	ok(hz_linear_get_info(NULL, NULL) == HZ_EINVAL, "refused: information of nothing");
	is_str(hz_linear_format_name(0), "?", "the name of no format");
}

/* Weights of 0, and rows of extreme magnitude */
static void test_extremes(void)
{
	static float w[8][24], d[8][24];
	const hz_tensor wt = hz_tensor_2d(w, HZ_F32, HZ_CPU, 8, 24);
	bool good = true;

	for (int i = 0; i < 8 * 24; i++)
		w[i / 24][i % 24] = (float)ldexp(rnd_uniform(&rnd), i < 24 ? -2000 : i < 48 ? -140 :
						 i < 72 ? 95 : i < 96 ? -60 : 0);
	for (int format = 1; format <= 2 * FORMATS && !tap_cuda(); format++) {
		const hz_linear_open_opts o = {.format = (format + 1) / 2,
					       .flags = format % 2 ? HZ_LINEAR_ROTATE : 0};
		hz_tensor back = hz_tensor_2d(d, HZ_F32, HZ_CPU, 8, 24);
		hz_linear *l;

		if (hz_linear_open(devs[0].ctx, &l, &wt, &o) ||
		    hz_linear_dequantize(devs[0].ctx, l, &back))
			bail("%s", hz_errmsg(devs[0].ctx));
		for (int i = 0; i < 8; i++) {
			double error = 0, power = 0;

			for (int k = 0; k < 24; k++) {
				good &= isfinite(d[i][k]);
				error += pow((double)d[i][k] - (double)w[i][k], 2);
				power += pow((double)w[i][k], 2);
			}
			/*
			 * Subnormal weights keep only their magnitude; small rows vanish beside
			 * large ones where all have one scale.
			 */
			good &= o.format == HZ_LINEAR_NVFP4 ? error <= 1.001 * power :
				i == 1 ? error <= 1e-70 : error <= 0.2 * power;
		}
		hz_linear_close(l);
	}
	ok(good, "rows of 0, of subnormal and of large weights");
}

static char heard[4096];

static void hear(void *user, int level, const char *message)
{
	const size_t n = strlen(heard);

	(void)user;
	(void)level;
	snprintf(heard + n, sizeof(heard) - n, "%s\n", message);
}

/* HURWITZ_VERBOSE names the operands of each part of a call, not those of the part before. */
static void test_verbose(void)
{
	static const int formats[] = {HZ_LINEAR_S8_ROW, HZ_LINEAR_E8_4_50};
	const hz_options options = {.device = HZ_CPU, .log = hear};
	static float w[8][32] = {{1}}, x[3][32], y[3][8];
	const hz_tensor wt = hz_tensor_2d(w, HZ_F32, HZ_CPU, 8, 32);
	hz_tensor xt = hz_tensor_2d(x, HZ_F32, HZ_CPU, 3, 32);
	hz_tensor yt = hz_tensor_2d(y, HZ_F32, HZ_CPU, 3, 8);
	const hz_linear_opts gelu = {.activation = HZ_ACT_GELU};
	hz_context *ctx;
	hz_linear *l;

	setenv("HURWITZ_VERBOSE", "1", 1);
	if (hz_open(&ctx, &options) != HZ_OK)
		bail("%s", hz_open_errmsg());
	unsetenv("HURWITZ_VERBOSE");
	for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
		const hz_linear_open_opts o = {.format = formats[i]};

		is_int(hz_linear_open(ctx, &l, &wt, &o), HZ_OK, "open");
		heard[0] = '\0';
		is_int(hz_linear_forward(ctx, l, &xt, NULL, &yt, &gelu), HZ_OK, "forward");
		has_str(heard, i ? "vlut_gemm x=f32[3,32] y=f32[3,8] w->row_scale=f32[8]: " :
				   "linear_forward from=f32[3,8] y=f32[3,8]: ", "the epilogue");
		heard[0] = '\0';
		is_int(hz_linear_bwd(ctx, l, &yt, &xt), HZ_OK, "bwd");
		has_str(heard, "linear_dequantize w=f32[8,32]: ", "what it decodes");
		has_str(heard, "linear_bwd dy=f32[3,8] dx=f32[3,32]: ", "the gradient");
		hz_linear_close(l);
	}
	hz_close(ctx);
}

int main(void)
{
	rnd = tap_seed();
	dev_open_all();
	test_products();
	test_moments();
	test_outliers();
	test_matrix(70, 146, 1);
	test_matrix(300, 530, 5);
	test_refusals();
	test_extremes();
	test_verbose();
	dev_close_all();
	return done_testing();
}
