/*
 * append.c - tests of rows appended to packed matrices: the bytes are those of packing all at once
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "t/vlut/vlut.h"

static const double r8[] = {20, 25, 28, 31, 34, 37, 42, 50}, r3[] = {21, 30, 43};

/* One for each layout of packed codes on both kinds of device, then the presets */
static const struct {
	const char *name;
	hz_lattice_opts o;
} codes[] = {
	{"bits of D4", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.2}},
	{"bits of E8", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 2, .beta = 0.1,
	  .policy = HZ_LATTICE_CLIP, .flags = HZ_LATTICE_CENTER}},
	{"bytes with T", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.1,
	  .policy = HZ_LATTICE_T}},
	{"bytes, groups of 16", {.kind = HZ_LATTICE_D, .q = 4, .levels = 2, .beta = 0.1,
	  .policy = HZ_LATTICE_GROUP, .group = 16}},
	{"words with T", {.kind = HZ_LATTICE_E8, .q = 3, .levels = 2, .beta = 0.2,
	  .policy = HZ_LATTICE_T}},
	{"three values in four bytes", {.kind = HZ_LATTICE_D, .dim = 3, .q = 50, .levels = 1,
	  .beta = 0.1}},
	{"labels of 2 bits", {.kind = HZ_LATTICE_E8, .q = 4, .levels = 1, .beta = 0.04,
	  .policy = HZ_LATTICE_BANK, .shaping = HZ_LATTICE_SHAPING_CUBE, .banks = 8, .bank = r8}},
	{"labels of 4 bits, 3 scales", {.kind = HZ_LATTICE_E8, .q = 16, .levels = 1, .beta = 0.01,
	  .policy = HZ_LATTICE_BANK, .shaping = HZ_LATTICE_SHAPING_E8, .banks = 3, .bank = r3}},
	{"e8-4.5-fast", {.preset = HZ_LATTICE_PRESET_E8_4_50_FAST}},
	{"e8-4.5", {.preset = HZ_LATTICE_PRESET_E8_4_50}},
	{"e8-4.25", {.preset = HZ_LATTICE_PRESET_E8_4_25}},
	{"e8-4.25-best", {.preset = HZ_LATTICE_PRESET_E8_4_25_BEST}},
	{"e8-3.25-fast", {.preset = HZ_LATTICE_PRESET_E8_3_25_FAST}},
	{"e8-3.25", {.preset = HZ_LATTICE_PRESET_E8_3_25}},
	{"e8-2.25", {.preset = HZ_LATTICE_PRESET_E8_2_25}},
	{"d4-4.5", {.preset = HZ_LATTICE_PRESET_D4_4_50}},
};

#define CODES ((int)(sizeof(codes) / sizeof(*codes)))
#define FIRST_PRESET 8
#define K_MAX 300
#define ROWS_MAX 200

/* A cache, and what is in it as operands of hz_vlut_pack() */
struct cache {
	struct dev *dev;
	hz_lattice *l;
	hz_vlut *v;
	hz_lattice_info info;
	struct area packed_area, packed_again, x_area, code_area, t_area, scale_area, signs_area;
	hz_packed packed;
	hz_tensor signs;
	hz_hadamard_opts rotation;
	int64_t rows, k, blocks, groups;
	int x_dtype;
	bool scaled, rotated;
};

static struct cache cache_new(struct dev *dev, int code, int64_t rows, int64_t k)
{
	struct cache c = {
		.dev = dev, .rows = rows, .k = k, .scaled = code >= FIRST_PRESET,
		.x_dtype = floats[rnd_below(&rnd, 3)],
	};
	const hz_coded empty = {.rows = rows, .k = k};
	uint8_t bits[K_MAX / 8 + 1];
	size_t bytes;

	if (hz_lattice_open(dev->ctx, &c.l, &codes[code].o) ||
	    hz_vlut_open(dev->ctx, &c.v, c.l, NULL, NULL) ||
	    hz_vlut_pack_bytes(dev->ctx, c.v, &empty, &bytes))
		bail("%s: %s", codes[code].name, hz_errmsg(dev->ctx));
	hz_lattice_get_info(c.l, &c.info);
	c.blocks = (k + c.info.dim - 1) / c.info.dim;
	c.groups = (c.blocks + c.l->rule.group - 1) / c.l->rule.group;
	c.rotated = c.scaled && rnd_below(&rnd, 2);
	c.packed_area = area_new(dev, bytes, 0);
	c.packed_again = area_new(dev, bytes, 0);
	c.x_area = area_new(dev, (size_t)(rows * (k + 3) * 4), 0);
	c.code_area = area_new(dev, (size_t)(rows * c.blocks * c.info.levels) *
			       hz_dtype_size(c.info.level_dtype), 0);
	c.t_area = area_new(dev, (size_t)(rows * c.groups), 0);
	c.scale_area = area_new(dev, (size_t)rows * 4, 0);
	hz_hadamard_signs(bits, k, rnd_u64(&rnd));
	area_put(dev, &c.signs_area, bits, (size_t)(k + 7) / 8);
	c.signs = hz_tensor_1d(c.signs_area.data, HZ_U8, dev->device, (k + 7) / 8);
	c.rotation = (hz_hadamard_opts){.plan = HZ_PLAN_GREEDY};
	if (hz_vlut_pack(dev->ctx, c.v, &empty, c.packed_area.data, bytes, &c.packed))
		bail("%s: %s", codes[code].name, hz_errmsg(dev->ctx));
	return c;
}

static void cache_free(struct cache *c)
{
	area_free(&c->packed_area);
	area_free(&c->packed_again);
	area_free(&c->x_area);
	area_free(&c->code_area);
	area_free(&c->t_area);
	area_free(&c->scale_area);
	area_free(&c->signs_area);
	hz_vlut_close(c->v);
	hz_lattice_close(c->l);
}

/* Rows of an area whose rows have `last` elements, `step` apart */
static hz_tensor rows_of(const struct cache *c, const struct area *a, int dtype, int64_t first,
			 int64_t rows, int64_t last, int64_t step)
{
	hz_tensor t = hz_tensor_2d((char *)a->data + first * step * (int64_t)hz_dtype_size(dtype),
				   dtype, c->dev->device, rows, last);

	t.stride[0] = step;
	return t;
}

static hz_tensor codes_of(const struct cache *c, int64_t first, int64_t rows)
{
	const int64_t row = c->blocks * c->info.levels;
	const size_t size = hz_dtype_size(c->info.level_dtype);

	return hz_tensor_3d((char *)c->code_area.data + (size_t)(first * row) * size,
			    c->info.level_dtype, c->dev->device, rows, c->blocks, c->info.levels);
}

/* New values for rows first .. first + rows - 1, with NaN and Inf among them now and then */
static void put_x(const struct cache *c, int64_t first, int64_t rows)
{
	unsigned char *image = malloc(c->x_area.total);
	const bool special = rnd_below(&rnd, 8) == 0;

	area_read(&c->x_area, image);
	for (int64_t i = first; i < first + rows; i++) {
		for (int64_t k = 0; k < c->k; k++)
			ref_put(c->x_dtype, image + GUARD, i * (c->k + 3) + k,
				special && rnd_below(&rnd, 50) == 0 ?
				(rnd_below(&rnd, 2) ? NAN : INFINITY) :
				rnd_normal(&rnd) * (i % 3 == 0 ? 20 : 1));
	}
	area_write(&c->x_area, image);
	free(image);
}

/* Appends rows, and encodes them for hz_vlut_pack(). */
static void append(struct cache *c, int64_t first, int64_t rows)
{
	struct dev *const dev = c->dev;
	const hz_tensor x = rows_of(c, &c->x_area, c->x_dtype, first, rows, c->k, c->k + 3);
	hz_tensor scale = hz_tensor_1d((float *)c->scale_area.data + first, HZ_F32, dev->device,
				       rows);
	hz_tensor t = rows_of(c, &c->t_area, HZ_U8, first, rows, c->groups, c->groups);
	hz_tensor to = codes_of(c, first, rows);
	const hz_lattice_code_opts o = {
		.row_scale = c->scaled ? &scale : NULL, .hadamard = c->rotated ? &c->rotation : NULL,
	};

	c->rotation.pre = &c->signs;
	CALL(hz_lattice_encode(dev->ctx, c->l, &x, &to, c->info.scales ? &t : NULL, NULL, &o));
	CALL(hz_vlut_append(dev->ctx, c->v, &x, first, &c->packed, &o));
}

/* Whether the bytes are those of hz_vlut_pack() of codes with T, 0 in rows that have none yet */
static bool is_packed(struct cache *c)
{
	const hz_tensor t = rows_of(c, &c->t_area, HZ_U8, 0, c->rows, c->groups, c->groups);
	const hz_coded w = {.codes = codes_of(c, 0, c->rows), .t = c->info.scales ? &t : NULL,
			    .k = c->k};
	unsigned char *got = malloc(c->packed_area.total), *want = malloc(c->packed_area.total);
	hz_packed again;
	size_t bytes;
	bool good;

	area_fill(&c->packed_again);
	if (hz_vlut_pack_bytes(c->dev->ctx, c->v, &w, &bytes) ||
	    hz_vlut_pack(c->dev->ctx, c->v, &w, c->packed_again.data, bytes, &again))
		bail("%s", hz_errmsg(c->dev->ctx));
	area_read(&c->packed_area, got);
	area_read(&c->packed_again, want);
	good = bytes == c->packed_area.bytes && !memcmp(got, want, c->packed_area.total) &&
	       c->packed.check == again.check;
	free(got);
	free(want);
	return good;
}

/* Whether a product with the first rows is that with a matrix of these alone */
static bool multiplies_first(struct cache *c, int64_t rows)
{
	struct dev *const dev = c->dev;
	const hz_tensor t = rows_of(c, &c->t_area, HZ_U8, 0, rows, c->groups, c->groups);
	const hz_tensor x = rows_of(c, &c->x_area, c->x_dtype, c->rows - 1, 1, c->k, c->k + 3);
	const hz_tensor scale = hz_tensor_1d(c->scale_area.data, HZ_F32, dev->device, rows);
	hz_coded w = {.codes = codes_of(c, 0, rows), .t = c->info.scales ? &t : NULL, .k = c->k};
	struct area y[2];
	unsigned char *image[2];
	hz_packed packed;
	size_t bytes;
	bool good;

	if (hz_vlut_pack_bytes(dev->ctx, c->v, &w, &bytes) ||
	    bytes > c->packed_again.bytes ||
	    hz_vlut_pack(dev->ctx, c->v, &w, c->packed_again.data, bytes, &packed))
		bail("%s", hz_errmsg(dev->ctx));
	w = (hz_coded){.row_scale = c->scaled ? &scale : NULL};
	for (int i = 0; i < 2; i++) {
		hz_tensor to;

		y[i] = area_new(dev, (size_t)rows * 4, 0);
		to = hz_tensor_2d(y[i].data, HZ_F32, dev->device, 1, rows);
		w.packed = i ? &c->packed : &packed;
		w.rows = i ? rows : 0;
		CALL(hz_vlut_gemm(dev->ctx, c->v, &w, &x, &to));
		image[i] = malloc(y[i].total);
		area_read(&y[i], image[i]);
	}
	good = !memcmp(image[0], image[1], y[0].total);
	for (int i = 0; i < 2; i++) {
		free(image[i]);
		area_free(&y[i]);
	}
	return good;
}

static void clear(struct area *a)
{
	unsigned char *image = malloc(a->total);

	area_read(a, image);
	memset(image + GUARD, 0, a->bytes);
	area_write(a, image);
	free(image);
}

/* Rows in pieces of `step`, 0: of any size; then some again */
static bool run(struct dev *dev, int code, int64_t rows, int64_t k, int64_t step)
{
	struct cache c = cache_new(dev, code, rows, k);
	bool good;

	clear(&c.code_area);
	clear(&c.t_area);
	clear(&c.scale_area);
	put_x(&c, 0, rows);
	good = is_packed(&c);
	for (int64_t i = 0, n; i < rows && good; i += n) {
		n = step ? step : 1 + (int64_t)rnd_below(&rnd, 70);
		n = n < rows - i ? n : rows - i;
		append(&c, i, n);
		append(&c, i + n, 0);
		if (i + n == rows || rnd_below(&rnd, 1 + (uint64_t)(rows / n / 3)) == 0)
			good = is_packed(&c) && multiplies_first(&c, i + n);
	}
	for (int i = 0; i < 3 && good; i++) {
		const int64_t first = (int64_t)rnd_below(&rnd, (uint64_t)rows);
		const int64_t n = 1 + (int64_t)rnd_below(&rnd, (uint64_t)(rows - first));

		put_x(&c, first, n);
		append(&c, first, n);
		good = is_packed(&c);
	}
	if (!good)
		diag("%s, %s: %lld rows of %lld by %lld", dev->name, codes[code].name,
		     (long long)rows, (long long)k, (long long)step);
	cache_free(&c);
	return good;
}

static void test_bytes(int code)
{
	static const int64_t sizes[] = {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 100, 128, 130, 192};
	static const int64_t lengths[] = {1, 7, 8, 24, 31, 64, 65, 128, 130, 257, K_MAX};
	static const int64_t steps[] = {1, 0, 16, 3, 64, 1000};
	bool good = true;

	for (int d = 0; d < ndevs && good; d++) {
		for (int n = 0; n < (tap_quick() ? 4 : 20) && good; n++)
			good = run(&devs[d], code, sizes[rnd_below(&rnd, 14)],
				   lengths[rnd_below(&rnd, 11)], steps[n % 6]);
	}
	ok(good, "%s: rows appended are rows packed", codes[code].name);
}

static void test_refused(struct dev *dev)
{
	hz_context *const ctx = dev->ctx;
	struct cache c = cache_new(dev, FIRST_PRESET, 40, 64), other = cache_new(dev, 9, 40, 64);
	hz_tensor x = hz_tensor_2d(c.x_area.data, HZ_F32, dev->device, 3, 64), bad;
	hz_tensor scale = hz_tensor_1d(c.scale_area.data, HZ_F32, dev->device, 3);
	hz_tensor y = hz_tensor_1d(c.scale_area.data, HZ_F32, dev->device, 40);
	hz_lattice_code_opts o = {.row_scale = &scale};
	hz_coded w = {.packed = &c.packed, .rows = 41};
	unsigned char *before = malloc(c.packed_area.total), *after = malloc(c.packed_area.total);
	hz_packed p;
	size_t bytes;

	append(&c, 0, 5);
	area_read(&c.packed_area, before);
	REFUSED(HZ_EINVAL, "vlut_append: vlut is NULL",
		hz_vlut_append(ctx, NULL, &x, 0, &c.packed, &o));
	REFUSED(HZ_EINVAL, "vlut_append: packed is NULL",
		hz_vlut_append(ctx, c.v, &x, 0, NULL, &o));
	REFUSED(HZ_ESHAPE, "vlut_append: row is 38, must be 0 to 37: x has 3 rows, packed 40",
		hz_vlut_append(ctx, c.v, &x, 38, &c.packed, &o));
	REFUSED(HZ_ESHAPE, "vlut_append: row is -1",
		hz_vlut_append(ctx, c.v, &x, -1, &c.packed, &o));
	REFUSED(HZ_ESHAPE, "vlut_append: row is 9223372036854775807",
		hz_vlut_append(ctx, c.v, &x, INT64_MAX, &c.packed, &o));
	bad = hz_view_slice(&x, 1, 0, 63);
	REFUSED(HZ_ESHAPE, "vlut_append: x.shape[1] is 63, must be 64, the values of a "
		"row of packed", hz_vlut_append(ctx, c.v, &bad, 0, &c.packed, &o));
	bad = hz_tensor_1d(c.x_area.data, HZ_F32, dev->device, 64);
	REFUSED(HZ_ESHAPE, "vlut_append: x.ndim is 1, must be 2",
		hz_vlut_append(ctx, c.v, &bad, 0, &c.packed, &o));
	bad = hz_tensor_2d(c.x_area.data, HZ_S8, dev->device, 3, 64);
	REFUSED(HZ_EDTYPE, "x.dtype is s8", hz_vlut_append(ctx, c.v, &bad, 0, &c.packed, &o));
	REFUSED(HZ_EINVAL, "vlut_append: packed is of another lattice or layout",
		hz_vlut_append(ctx, c.v, &x, 0, &other.packed, &o));
	p = c.packed;
	p.shape[0] = 80;
	REFUSED(HZ_EINVAL, "packed is not as hz_vlut_pack() filled it",
		hz_vlut_append(ctx, c.v, &x, 0, &p, &o));
	bad = hz_tensor_2d(c.packed_area.data, HZ_U8, dev->device, 3, 64);
	bad.dtype = HZ_F32;
	REFUSED(HZ_EALIAS, "x", hz_vlut_append(ctx, c.v, &bad, 0, &c.packed, &o));
	o.row_scale = &y;
	REFUSED(HZ_ESHAPE, "opts->row_scale.shape[0] is 40, must be 3",
		hz_vlut_append(ctx, c.v, &x, 0, &c.packed, &o));
	o = (hz_lattice_code_opts){.pack = HZ_LATTICE_LIMBS};
	REFUSED(HZ_EINVAL, "vlut_append: opts->pack is 2, must be 0",
		hz_vlut_append(ctx, c.v, &x, 0, &c.packed, &o));
	bad = hz_tensor_1d(c.packed_area.data, HZ_F32, dev->device, 3);
	o = (hz_lattice_code_opts){.row_scale = &bad};
	REFUSED(HZ_EALIAS, "opts->row_scale overlaps packed",
		hz_vlut_append(ctx, c.v, &x, 0, &c.packed, &o));
	area_read(&c.packed_area, after);
	ok(!memcmp(before, after, c.packed_area.total), "what was refused wrote nothing");
	x = hz_tensor_1d(c.x_area.data, HZ_F32, dev->device, 64);
	REFUSED(HZ_ESHAPE, "w->rows is 41, must be 0 to 40, the rows packed",
		hz_vlut_gemv(ctx, c.v, &w, &x, &y));
	w = (hz_coded){.rows = -1, .k = 64};
	REFUSED(HZ_ESHAPE, "vlut_pack: w->rows is -1 and w->k 64, must not be negative",
		hz_vlut_pack_bytes(ctx, c.v, &w, &bytes));
	w = (hz_coded){.rows = INT64_MAX / 8, .k = 64};
	REFUSED(HZ_ESHAPE, "take less than 2^63 bytes",
		hz_vlut_pack_bytes(ctx, c.v, &w, &bytes));
	free(before);
	free(after);
	cache_free(&c);
	cache_free(&other);
}

#if HZ_HAVE_CUDA

static bool same(const struct area *a, const unsigned char *want)
{
	unsigned char *got = malloc(a->total);
	bool good;

	area_read(a, got);
	good = !memcmp(got, want, a->total);
	free(got);
	return good;
}

/* Rows 13 .. 20 and a product in a CUDA graph: what the calls write, whenever it is launched */
static void test_graph(struct dev *dev, int code)
{
	hz_context *const ctx = dev->ctx;
	struct cache c = cache_new(dev, code, 40, 136);
	const hz_tensor x = rows_of(&c, &c.x_area, c.x_dtype, 13, 8, c.k, c.k + 3);
	const hz_tensor of_all = hz_tensor_1d(c.scale_area.data, HZ_F32, dev->device, 21);
	hz_tensor scale = hz_tensor_1d((float *)c.scale_area.data + 13, HZ_F32, dev->device, 8);
	const hz_lattice_code_opts o = {.row_scale = c.scaled ? &scale : NULL};
	const hz_coded w = {.packed = &c.packed, .rows = 21,
			    .row_scale = c.scaled ? &of_all : NULL, .activation = HZ_ACT_SILU};
	struct area y = area_new(dev, 2 * 21 * 4, 0);
	const hz_tensor v = rows_of(&c, &c.x_area, c.x_dtype, 0, 2, c.k, c.k + 3);
	hz_tensor yt = hz_tensor_2d(y.data, HZ_F32, dev->device, 2, 21);
	unsigned char *packed = malloc(c.packed_area.total), *products = malloc(y.total);
	void *stream, *graph = NULL;
	bool good;

	clear(&c.scale_area);
	put_x(&c, 0, 40);
	c.rotated = false;
	append(&c, 0, 13);
	CALL(hz_vlut_append(ctx, c.v, &x, 13, &c.packed, &o));
	CALL(hz_vlut_gemm(ctx, c.v, &w, &v, &yt));
	area_read(&c.packed_area, packed);
	area_read(&y, products);
	if (hzi_cuda_stream_new(ctx, &stream) || hz_set_stream(ctx, stream))
		bail("a stream: %s", hz_errmsg(ctx));
	good = hzi_cuda_capture_begin(ctx) == HZ_OK &&
	       hz_vlut_append(ctx, c.v, &x, 13, &c.packed, &o) == HZ_OK &&
	       hz_vlut_gemm(ctx, c.v, &w, &v, &yt) == HZ_OK;
	good = hzi_cuda_capture_end(ctx, &graph) == HZ_OK && good;
	for (int i = 0; i < 3 && good; i++) {
		put_x(&c, 13, 8);
		if (i == 2) {
			/* Other rows, then those again */
			append(&c, 13, 8);
			CALL(hz_vlut_gemm(ctx, c.v, &w, &v, &yt));
			area_read(&c.packed_area, packed);
			area_read(&y, products);
		}
		good = hzi_cuda_graph_launch(ctx, graph) == HZ_OK && hz_sync(ctx) == HZ_OK &&
		       (i < 2 || (same(&c.packed_area, packed) && same(&y, products)));
	}
	ok(good, "%s: appended in a graph, and multiplied: %s", codes[code].name, hz_errmsg(ctx));
	hzi_cuda_graph_free(ctx, graph);
	hz_set_stream(ctx, NULL);
	hzi_cuda_stream_free(ctx, stream);
	free(packed);
	free(products);
	area_free(&y);
	cache_free(&c);
}

#else

static void test_graph(struct dev *dev, int code)
{
	(void)dev, (void)code;
}

#endif

int main(void)
{
	rnd = tap_seed();
	quick = tap_quick();
	dev_open_all();
	for (int code = 0; code < CODES; code++)
		test_bytes(code);
	test_refused(&devs[0]);
	for (int code = 0; code < CODES && devs[0].device != HZ_CPU; code++)
		test_graph(&devs[0], code);
	dev_close_all();
	return done_testing();
}
