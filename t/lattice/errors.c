/*
 * errors.c - lattice quantizers: invalid arguments, failing allocations
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "t/lattice/pair.h"

/* ---- Arguments ------------------------------------------------------------------------------- */

static void refused_open(const char *what, int status, const char *message, hz_lattice_opts o)
{
	hz_lattice *l = (hz_lattice *)(uintptr_t)1;
	int got = open_lattice(devs[0].ctx, &l, &o);

	ok(got == status && !l && strstr(hz_errmsg(devs[0].ctx), message), "refused: %s", what);
	if (got != status || l || !strstr(hz_errmsg(devs[0].ctx), message))
		diag("%d, %s", got, hz_errmsg(devs[0].ctx));
}

#define D4 .kind = HZ_LATTICE_D, .q = 4, .levels = 2

static void test_open_errors(void)
{
	static const double singular[4] = {1, 2, 2, 4}, basis[4] = {1, 0, 0, 1}, bank[2] = {1, -1},
			    far[4] = {1e6, 0, 0, 0}, nan_dither[4] = {0, NAN, 0, 0},
			    huge[4] = {1e300, 0, 0, 1e300}, tiny[4] = {1e-40, 0, 0, 1e-40},
			    wide[4] = {0, 0, 1e39, 0};
	static const int64_t offset[4] = {1000, 0, 0, 0};
	static const hz_lattice_opts unset = {D4};
	hz_lattice *l = (hz_lattice *)(uintptr_t)1;

	refused_open("kind", HZ_EINVAL, "opts->kind is 0, must be 1 to 5",
		     (hz_lattice_opts){.q = 4, .levels = 1});
	refused_open("q", HZ_EINVAL, "opts->q is 1, must be 2",
		     (hz_lattice_opts){.kind = HZ_LATTICE_Z, .q = 1, .levels = 1});
	refused_open("levels", HZ_EINVAL, "opts->levels is 0, must be 1 to 32",
		     (hz_lattice_opts){.kind = HZ_LATTICE_Z, .q = 4});
	refused_open("dim of E8", HZ_EINVAL, "must be 0 or 8",
		     (hz_lattice_opts){.kind = HZ_LATTICE_E8, .dim = 4, .q = 4, .levels = 1});
	refused_open("dim", HZ_EINVAL, "must be 0 to 24",
		     (hz_lattice_opts){.kind = HZ_LATTICE_Z, .dim = 25, .q = 4, .levels = 1});
	refused_open("beta", HZ_EINVAL, "opts->beta is -1, must be positive",
		     (hz_lattice_opts){D4, .beta = -1});
	refused_open("beta NaN", HZ_EINVAL, "opts->beta is", (hz_lattice_opts){D4, .beta = NAN});
	ok(hz_lattice_open(devs[0].ctx, &l, &unset) == HZ_EINVAL && !l &&
	   strcmp(hz_errmsg(devs[0].ctx),
		  "lattice_open: opts->beta is 0: give the scale, for example that of "
		  "lattice_design() for the data") == 0, "refused: beta unset");
	refused_open("alpha", HZ_EINVAL, "opts->alpha is -1, must be positive",
		     (hz_lattice_opts){D4, .alpha = -1});
	refused_open("alpha without T", HZ_EINVAL, "opts->alpha is 0.5, must be 0 unless "
		     "opts->policy is HZ_LATTICE_T or HZ_LATTICE_GROUP",
		     (hz_lattice_opts){D4, .alpha = 0.5, .policy = HZ_LATTICE_CLIP});
	refused_open("alpha of a preset", HZ_EINVAL, "opts->alpha is 0.5, must be 0 unless",
		     (hz_lattice_opts){.preset = HZ_LATTICE_PRESET_E8_4_50, .alpha = 0.5});
	refused_open("FIRST_FIT without a choice", HZ_EINVAL, "HZ_LATTICE_FIRST_FIT is set, but "
		     "opts->policy is not HZ_LATTICE_BANK or HZ_LATTICE_GROUP",
		     (hz_lattice_opts){D4, .policy = HZ_LATTICE_T, .flags = HZ_LATTICE_FIRST_FIT});
	refused_open("scales beyond f32", HZ_EINVAL, "the scale of t = 4 is",
		     (hz_lattice_opts){D4, .alpha = 32, .policy = HZ_LATTICE_T});
	refused_open("policy", HZ_EINVAL, "opts->policy is 5, must be 0 to 4",
		     (hz_lattice_opts){D4, .policy = 5});
	refused_open("group", HZ_EINVAL, "opts->group is 0, must be 8 to 128",
		     (hz_lattice_opts){D4, .policy = HZ_LATTICE_GROUP});
	refused_open("group of d", HZ_EINVAL, "opts->group is 10, must be a multiple of 4",
		     (hz_lattice_opts){D4, .policy = HZ_LATTICE_GROUP, .group = 10});
	refused_open("group without GROUP", HZ_EINVAL, "opts->group is 8, must be 0 unless "
		     "opts->policy is HZ_LATTICE_GROUP or HZ_LATTICE_BANK",
		     (hz_lattice_opts){D4, .group = 8});
	refused_open("banks without BANK", HZ_EINVAL, "opts->banks is 2, must be 0 unless "
		     "opts->policy is HZ_LATTICE_BANK", (hz_lattice_opts){D4, .banks = 2});
	refused_open("banks", HZ_EINVAL, "opts->banks is 0, must be 1 to 16",
		     (hz_lattice_opts){D4, .policy = HZ_LATTICE_BANK});
	refused_open("bank NULL", HZ_EINVAL, "opts->bank is NULL",
		     (hz_lattice_opts){D4, .policy = HZ_LATTICE_BANK, .banks = 2});
	refused_open("bank", HZ_EINVAL, "opts->bank[1] is -1, must be positive",
		     (hz_lattice_opts){D4, .policy = HZ_LATTICE_BANK, .banks = 2, .bank = bank});
	refused_open("flags", HZ_EINVAL, "opts->flags has unknown bits 0x40 (valid: "
		     "HZ_LATTICE_CENTER, HZ_LATTICE_SPHERE, HZ_LATTICE_FIRST_FIT, HZ_LATTICE_WIDE)",
		     (hz_lattice_opts){D4, .flags = 65});
	refused_open("basis missing", HZ_EINVAL, "opts->basis is NULL",
		     (hz_lattice_opts){.kind = HZ_LATTICE_BASIS, .dim = 2, .q = 4, .levels = 1});
	refused_open("basis given", HZ_EINVAL, "opts->basis is given",
		     (hz_lattice_opts){D4, .basis = basis});
	refused_open("basis singular", HZ_EINVAL, "opts->basis is singular",
		     (hz_lattice_opts){.kind = HZ_LATTICE_BASIS,
				       .dim = 2,
				       .q = 4,
				       .levels = 1,
				       .basis = singular});
	refused_open("transform singular", HZ_EINVAL, "opts->transform is singular",
		     (hz_lattice_opts){
			     .kind = HZ_LATTICE_A2, .q = 4, .levels = 1, .transform = singular});
	refused_open("sphere", HZ_EINVAL, "HZ_LATTICE_SPHERE is for a basis",
		     (hz_lattice_opts){D4, .flags = HZ_LATTICE_SPHERE});
	refused_open("two offsets", HZ_EINVAL, "HZ_LATTICE_CENTER set",
		     (hz_lattice_opts){D4, .flags = HZ_LATTICE_CENTER, .offset = offset});
	refused_open("offset outside", HZ_EINVAL, "leave 0 outside of the code",
		     (hz_lattice_opts){D4, .offset = offset, .policy = HZ_LATTICE_CLIP});
	refused_open("dither outside", HZ_EINVAL, "leave 0 outside of the code",
		     (hz_lattice_opts){D4, .dither = far, .policy = HZ_LATTICE_T});
	refused_open("dither NaN", HZ_EINVAL, "opts->dither[1] is",
		     (hz_lattice_opts){D4, .dither = nan_dither});
	refused_open("too many levels", HZ_ENOTSUP, "must be up to 2^24",
		     (hz_lattice_opts){.kind = HZ_LATTICE_Z, .q = 16, .levels = 8});
	refused_open("too many levels, centred, nearest points searched", HZ_ENOTSUP,
		     "must be up to 2^24",
		     (hz_lattice_opts){.kind = HZ_LATTICE_BASIS,
				       .dim = 2,
				       .q = 2,
				       .levels = 32,
				       .basis = basis,
				       .flags = HZ_LATTICE_CENTER | HZ_LATTICE_SPHERE});
	refused_open("transform beyond f32", HZ_EINVAL, "opts->transform, or its inverse, has",
		     (hz_lattice_opts){.kind = HZ_LATTICE_Z,
				       .dim = 2,
				       .q = 4,
				       .levels = 2,
				       .transform = huge});
	refused_open("basis whose inverse is beyond f32", HZ_EINVAL,
		     "opts->basis, or its inverse, has",
		     (hz_lattice_opts){.kind = HZ_LATTICE_BASIS,
				       .dim = 2,
				       .q = 4,
				       .levels = 2,
				       .basis = tiny});
	refused_open("dither beyond f32", HZ_EINVAL, "opts->dither has numbers",
		     (hz_lattice_opts){D4, .dither = wide});
	refused_open("reserved", HZ_EINVAL, "opts->reserved[1] is 1",
		     (hz_lattice_opts){D4, .reserved = {0, 1}});
}

static void refused(const char *what, int got, int status, const char *message)
{
	const int good = got == status && strstr(hz_errmsg(devs[0].ctx), message);

	ok(good, "refused: %s", what);
	if (!good)
		diag("%d, %s", got, hz_errmsg(devs[0].ctx));
}

static void test_call_errors(void)
{
	struct dev *dev = &devs[0];
	hz_context *ctx = dev->ctx;
	hz_lattice_opts o = {D4, .policy = HZ_LATTICE_T};
	hz_lattice *l = lattice_new(ctx, &o), *plain, *wide;
	struct pair p = pair_new(dev, l, HZ_LATTICE_LEVEL, 3, 16);
	hz_tensor bad, points = hz_tensor_3d(p.y.data, HZ_S8, dev->device, 3, 4, 4);
	hz_lattice_code_opts c = {.pack = 0};
	hz_lattice_info info;

	o.policy = HZ_LATTICE_NONE;
	plain = lattice_new(ctx, &o);
	o.q = 300;
	wide = lattice_new(ctx, &o);
	memset(&info, 0xff, sizeof(info));
	hz_lattice_get_info(wide, &info);
	ok(info.reserved[0] == 0 && info.reserved[7] == 0,
	   "what is reserved in hz_lattice_info is 0");
	refused("no lattice", hz_lattice_encode(ctx, NULL, &p.xt, &p.ct, &p.tt, NULL, NULL),
		HZ_EINVAL, "lattice_encode: lattice is NULL");
	refused("no x", hz_lattice_encode(ctx, l, NULL, &p.ct, &p.tt, NULL, NULL), HZ_EINVAL,
		"x is NULL");
	refused("no t", hz_lattice_encode(ctx, l, &p.xt, &p.ct, NULL, NULL, NULL), HZ_EINVAL,
		"t is NULL");
	refused("t too much", hz_lattice_encode(ctx, plain, &p.xt, &p.ct, &p.tt, NULL, NULL),
		HZ_EINVAL, "t is given, must be NULL");
	bad = p.xt;
	bad.dtype = HZ_F64;
	refused("dtype of x", hz_lattice_encode(ctx, l, &bad, &p.ct, &p.tt, NULL, NULL), HZ_EDTYPE,
		"x.dtype is f64, must be f32, f16 or bf16");
	bad = p.ct;
	bad.dtype = HZ_U16;
	refused("dtype of codes", hz_lattice_encode(ctx, l, &p.xt, &bad, &p.tt, NULL, NULL),
		HZ_EDTYPE, "codes.dtype is u16, must be u8");
	bad = p.ct;
	bad.shape[1] = 3;
	refused("blocks", hz_lattice_encode(ctx, l, &p.xt, &bad, &p.tt, NULL, NULL), HZ_ESHAPE,
		"codes.shape[1] is 3, must be 4, the number of blocks");
	bad = p.ct;
	bad.shape[2] = 1;
	refused("levels", hz_lattice_encode(ctx, l, &p.xt, &bad, &p.tt, NULL, NULL), HZ_ESHAPE,
		"codes.shape[2] is 1, must be 2, the levels");
	bad = p.ct;
	bad.ndim = 2;
	refused("ndim of codes", hz_lattice_encode(ctx, l, &p.xt, &bad, &p.tt, NULL, NULL),
		HZ_ESHAPE, "codes.ndim is 2, must be 3");
	bad = p.ct;
	bad.shape[0] = 2;
	refused("rows of codes", hz_lattice_encode(ctx, l, &p.xt, &bad, &p.tt, NULL, NULL),
		HZ_ESHAPE, "codes.shape[0] is 2, must be 3, as x");
	bad = p.tt;
	bad.shape[1] = bad.stride[0] = 5;
	refused("shape of t", hz_lattice_encode(ctx, l, &p.xt, &p.ct, &bad, NULL, NULL), HZ_ESHAPE,
		"t.shape[1] is 5, must be 4");
	bad = p.ot;
	bad.shape[0] = 3;
	refused("overload", hz_lattice_encode(ctx, l, &p.xt, &p.ct, &p.tt, &bad, NULL), HZ_ESHAPE,
		"overload has ndim 1 and 3 elements, must be [2] and contiguous");
	bad = p.ct;
	bad.data = p.x.data;
	refused("codes over x", hz_lattice_encode(ctx, l, &p.xt, &bad, &p.tt, NULL, NULL),
		HZ_EALIAS, "codes overlaps x");
	bad = p.ct;
	bad.stride[0] = 0;
	refused("codes twice", hz_lattice_encode(ctx, l, &p.xt, &bad, &p.tt, NULL, NULL),
		HZ_ESTRIDE, "two elements at one address");
	bad = p.xt;
	bad.device = dev->device == HZ_CPU ? HZ_CUDA : HZ_CPU;
	refused("device", hz_lattice_encode(ctx, l, &bad, &p.ct, &p.tt, NULL, NULL), HZ_EDEVICE,
		"x is on");
	{
		/* In a recording, which needs no memory: x in f32 is 2^64 bytes. */
		const int64_t rows = INT64_C(1) << 58, blocks = p.ct.shape[1];
		hz_tensor x = hz_tensor_2d(NULL, HZ_F32, dev->device, rows, p.xt.shape[1]);
		hz_tensor codes = hz_tensor_3d(NULL, HZ_U8, dev->device, rows, blocks, 2);
		hz_tensor t = hz_tensor_2d(NULL, HZ_U8, dev->device, rows, blocks);
		hz_tensor scale = hz_tensor_1d(NULL, HZ_F32, dev->device, rows);
		const hz_lattice_code_opts scaled = {.row_scale = &scale};
		size_t bytes;

		x.stride[0] = 0;
		is_int(hz_record_begin(ctx), HZ_OK, "recording");
		refused("x too large", hz_lattice_encode(ctx, l, &x, &codes, &t, NULL, &scaled),
			HZ_ESHAPE, "lattice_encode: x is too large: its size overflows");
		is_int(hz_record_end(ctx, &bytes), HZ_OK, "recorded");
	}
	c.pack = 3;
	refused("pack", hz_lattice_encode(ctx, l, &p.xt, &p.ct, &p.tt, NULL, &c), HZ_EINVAL,
		"opts->pack is 3, must be 0 to 2");
	c.pack = HZ_LATTICE_FULL64;
	refused("full64 beyond 64 bits", hz_lattice_encode(ctx, wide, &p.xt, &p.ct, NULL, NULL, &c),
		HZ_ENOTSUP, "must not be packed as HZ_LATTICE_FULL64");
	c.pack = HZ_LATTICE_LEVEL;
	refused("level beyond 32 bits", hz_lattice_encode(ctx, wide, &p.xt, &p.ct, NULL, NULL, &c),
		HZ_ENOTSUP, "must be packed as HZ_LATTICE_LIMBS");
	ok(info.level_max == -1 && info.level_dtype == 0 && !info.full64 && info.limbs == 3,
	   "packings of D4 q=300 M=2");
	c.use_levels = 1;
	refused("levels of encoding", hz_lattice_encode(ctx, l, &p.xt, &p.ct, &p.tt, NULL, &c),
		HZ_EINVAL, "opts->use_levels is 1, must be 0: decoding alone has it");
	c.use_levels = 3;
	refused("levels", hz_lattice_decode(ctx, l, &p.ct, &p.tt, &p.yt, &c), HZ_EINVAL,
		"opts->use_levels is 3, must be 0 to 2");
	c.use_levels = 0;
	c.to = HZ_LATTICE_POINTS;
	refused("to of encoding", hz_lattice_encode(ctx, l, &p.xt, &p.ct, &p.tt, NULL, &c),
		HZ_EINVAL, "opts->to is 1, must be 0: decoding alone has it");
	c.to = 3;
	refused("to", hz_lattice_decode(ctx, l, &p.ct, &p.tt, &p.yt, &c), HZ_EINVAL,
		"opts->to is 3");
	c.to = HZ_LATTICE_VALUES;
	c.flags = 1;
	refused("flags of a call", hz_lattice_encode(ctx, l, &p.xt, &p.ct, &p.tt, NULL, &c),
		HZ_EINVAL, "opts->flags is 0x1, must be 0");
	c.flags = 0;
	c.to = HZ_LATTICE_DIGITS;
	bad = hz_tensor_4d(p.y.data, HZ_U8, dev->device, 3, 4, 1, 4);
	refused("levels of digits", hz_lattice_decode(ctx, l, &p.ct, NULL, &bad, &c), HZ_ESHAPE,
		"y.shape[2] is 1, must be 2, the levels");
	bad = hz_tensor_4d(p.y.data, HZ_U8, dev->device, 3, 4, 2, 3);
	refused("digits of a block", hz_lattice_decode(ctx, l, &p.ct, NULL, &bad, &c), HZ_ESHAPE,
		"y.shape[3] is 3, must be 4, the dimension of the lattice");
	bad = hz_tensor_4d(p.y.data, HZ_U8, dev->device, 3, 4, 2, 4);
	refused("digits beyond u8", hz_lattice_decode(ctx, wide, &p.ct, NULL, &bad, &c), HZ_EDTYPE,
		"y.dtype is u8, but digits are up to 299");
	c.to = HZ_LATTICE_POINTS;
	bad = points;
	bad.shape[2] = 3;
	refused("coordinates of points", hz_lattice_decode(ctx, l, &p.ct, NULL, &bad, &c),
		HZ_ESHAPE, "y.shape[2] is 3, must be 4");
	refused("points beyond s8", hz_lattice_decode(ctx, wide, &p.ct, NULL, &points, &c),
		HZ_EDTYPE, "y.dtype is s8, but points have integers up to");
	points.dtype = HZ_F32;
	refused("points in f32", hz_lattice_decode(ctx, l, &p.ct, &p.tt, &points, &c), HZ_EDTYPE,
		"y.dtype is f32, must be s8, s16 or s32");
	points.dtype = HZ_S8;
	ok(hz_lattice_decode(ctx, l, &p.ct, NULL, &points, &c) == HZ_OK, "points need no T");
	c.hadamard = &(hz_hadamard_opts){.plan = HZ_PLAN_AUTO};
	refused("rotated points", hz_lattice_decode(ctx, l, &p.ct, NULL, &points, &c), HZ_EINVAL,
		"there are no values to rotate");
	c.to = 0;
	c.hadamard = &(hz_hadamard_opts){.axis = HZ_AXIS(0)};
	refused("rotated columns", hz_lattice_encode(ctx, l, &p.xt, &p.ct, &p.tt, NULL, &c),
		HZ_ENOTSUP, "opts->hadamard->axis is HZ_AXIS(0), must be HZ_AXIS(-1) or 0, the last "
		"dimension");
	c.hadamard = &(hz_hadamard_opts){.axis = HZ_AXIS(p.xt.ndim - 1)};
	ok(hz_reserve(ctx, 1 << 16) == HZ_OK &&
	   hz_lattice_encode(ctx, l, &p.xt, &p.ct, &p.tt, NULL, &c) == HZ_OK,
	   "the last dimension, counted from the first");
	bad = hz_tensor_1d(p.ct.data, HZ_F32, dev->device, 16);
	c.hadamard = &(hz_hadamard_opts){.post = &bad};
	refused("codes over factors", hz_lattice_encode(ctx, l, &p.xt, &p.ct, &p.tt, NULL, &c),
		HZ_EALIAS, "overlaps");
	refused("pack of repack", hz_lattice_repack(ctx, l, &p.ct, &p.ct, 0, 3), HZ_EINVAL,
		"to_pack is 3, must be 0 to 2");
	refused("repack", hz_lattice_repack(ctx, l, &p.ct, &p.ct, 0, 0), HZ_EALIAS,
		"to overlaps from");
	refused("repack shape", hz_lattice_repack(ctx, l, &p.ct, &p.ct, 1, 0), HZ_EDTYPE,
		"from.dtype is u8, must be u64");
	pair_free(&p);
	hz_lattice_close(l);
	hz_lattice_close(plain);
	hz_lattice_close(wide);
	hz_lattice_close(NULL);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static int allocations, releases, left;

static void *count_alloc(void *user, size_t bytes, size_t align)
{
	(void)user;
	if (left-- == 0)
		return NULL;
	allocations++;
	return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void count_free(void *user, void *p, size_t bytes)
{
	(void)user;
	(void)bytes;
	releases++;
	free(p);
}

static void test_memory(void)
{
	hz_allocator allocator = {.alloc = count_alloc, .free = count_free};
	hz_options options = {.device = HZ_CPU, .allocator = &allocator, .threads = 1};
	hz_lattice_opts o = {D4}, found;
	hz_context *ctx;
	hz_lattice *l;
	double bank[16];
	int n, status = HZ_ENOMEM;

	left = 1 << 20;
	if (hz_open(&ctx, &options) != HZ_OK)
		bail("hz_open: %s", hz_open_errmsg());
	for (n = 0; n < 10 && status == HZ_ENOMEM; n++) {
		left = n;
		status = open_lattice(ctx, &l, &o);
	}
	left = 1 << 20;
	ok(status == HZ_OK && n == 4,
	   "a quantizer is two pieces of memory and one to make it, each of which may be missing");
	hz_lattice_close(l);
	o.policy = HZ_LATTICE_BANK;
	o.banks = 2;
	for (n = 0; n < 2; n++) {
		left = n;
		ok(hz_lattice_design(ctx, &o, 0, 1, NULL, &found, bank, NULL) == HZ_ENOMEM,
		   "the optimiser without memory, %d", n);
	}
	left = 1 << 20;
	hz_close(ctx);
	is_int(releases, allocations, "everything was released");
}

int main(void)
{
	dev_open_all();
	test_open_errors();
	test_call_errors();
	test_memory();
	dev_close_all();
	return done_testing();
}
