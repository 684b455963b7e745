/*
 * file.c - linear layers from damaged bytes: refused with a message, or loaded, and never a crash
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <stddef.h>

#include "lib/linear/linear.h"
#include "lib/vlut/vlut.h"
#include "t/core/dev.h"

#define OUT 33
#define IN 72

static uint64_t rnd;
static unsigned char *bytes, *good_bytes;	/* aligned to 64 */
static size_t size;
static hz_context *ctx;

/* n bytes, aligned to 64 and no more than that, so that sanitizers see reads beyond them */
static void *exactly(size_t n)
{
	void *p;

	if (posix_memalign(&p, 64, n ? n : 1))
		bail("no memory");
	return p;
}

static void make(int format, bool rotates)
{
	static float w[OUT][IN];
	const hz_tensor wt = hz_tensor_2d(w, HZ_F32, HZ_CPU, OUT, IN);
	const hz_linear_open_opts o = {.format = format, .flags = rotates ? HZ_LINEAR_ROTATE : 0,
				       .seed = rotates ? 5 : 0};
	hz_linear *l;

	for (int i = 0; i < OUT * IN; i++)
		w[i / IN][i % IN] = (float)rnd_normal(&rnd);
	if (hz_linear_open(ctx, &l, &wt, &o) || hz_linear_save_bytes(ctx, l, &size))
		bail("%s", hz_errmsg(ctx));
	free(bytes);
	free(good_bytes);
	bytes = exactly(size);
	good_bytes = exactly(size);
	if (hz_linear_save(ctx, l, good_bytes, size))
		bail("%s", hz_errmsg(ctx));
	hz_linear_close(l);
}

/* Loads `n` bytes, and multiplies if that is a layer of the same shape; the status of loading */
static int load(size_t n)
{
	static float x[3][IN], y[3][OUT], w[OUT][IN];
	const hz_tensor xt = hz_tensor_2d(x, HZ_F32, HZ_CPU, 3, IN);
	hz_tensor yt = hz_tensor_2d(y, HZ_F32, HZ_CPU, 3, OUT);
	hz_tensor wt = hz_tensor_2d(w, HZ_F32, HZ_CPU, OUT, IN);
	unsigned char *copy = exactly(n);
	hz_linear *l;
	int status;

	memcpy(copy, bytes, n);
	status = hz_linear_load(ctx, &l, copy, n);
	if (status == HZ_OK) {
		hz_linear_info info;

		hz_linear_get_info(l, &info);
		if (info.out == OUT && info.in == IN &&
		    (hz_linear_forward(ctx, l, &xt, NULL, &yt, NULL) ||
		     hz_linear_dequantize(ctx, l, &wt)))
			bail("%s", hz_errmsg(ctx));
		hz_linear_close(l);
	} else if (l) {
		bail("a layer that is refused is not NULL");
	}
	free(copy);
	return status;
}

#define FIELD(name, ...) {#name, offsetof(struct hzi_linear_header, name), \
	sizeof(((struct hzi_linear_header *)0)->name), {__VA_ARGS__}}

/* Each field with values that it must not have */
static const struct {
	const char *name;
	size_t at, bytes;
	uint64_t value[6];		/* ends at ~0 */
} fields[] = {
	FIELD(magic, 0, 1, ~0ull),
	FIELD(version, 0, 2, 0xffffffff, ~0ull),
	FIELD(format, 0, 16, 0xffffffff, 1 << 16, ~0ull),
	FIELD(flags, 4, 8, 0x80000001, ~0ull),
	FIELD(plan, 9, 0xffffffff, 1, ~0ull),
	FIELD(base, 77, 0xffffffff, ~0ull),
	FIELD(order, 3, 0xffffffff, 1 << 20, ~0ull),
	FIELD(out, 0, 34, 1ull << 63, 1ull << 40, 0x7fffffffffffffc0, ~0ull),
	FIELD(in, 0, 73, 1ull << 63, 1ull << 23, 0x7fffffffffffffc0, ~0ull),
	FIELD(error, 0x7ff0000000000000, 0x7ff8000000000000, 0xbff0000000000000, ~0ull),
	FIELD(scales_at, 0, 64, 192, 1ull << 63, ~0ull),
	FIELD(scales_bytes, 0, 1, 1ull << 63, ~0ull),
	FIELD(codes_at, 0, 128, 1ull << 40, ~0ull),
	FIELD(codes_bytes, 0, 1, 1ull << 62, ~0ull),
	FIELD(bytes, 0, 128, 1ull << 62, ~0ull),
	FIELD(tensor_scale, 0x3f800000, 0x80000000, 0x73800001, 0x7f800000, 0x7fc00000, ~0ull),
	FIELD(reserved0, 1, ~0ull),
	FIELD(reserved, 1, ~0ull),
};

static void test_header(void)
{
	for (size_t f = 0; f < sizeof(fields) / sizeof(*fields); f++) {
		bool good = true;

		for (int v = 0; fields[f].value[v] != ~0ull; v++) {
			memcpy(bytes, good_bytes, size);
			memcpy(bytes + fields[f].at, &fields[f].value[v],
			       fields[f].bytes < 8 ? fields[f].bytes : 8);
			good &= load(size) == HZ_EINVAL &&
				strstr(hz_errmsg(ctx), "linear_load: data ");
			if (!good)
				diag("value %d: %s", v, hz_errmsg(ctx));
		}
		ok(good, "header: %s out of range", fields[f].name);
	}
}

static void test_contents(int format)
{
	static const float bad[] = {NAN, INFINITY, -1, -0.0f, 0x1.000002p104f};
	const struct hzi_linear_header *const h = (const void *)good_bytes;
	bool good = true;

	memcpy(bytes, good_bytes, size);
	good &= load(size) == HZ_OK;
	for (size_t n = 0; n < size; n += 1 + n / 7)
		good &= load(n) == HZ_EINVAL;
	for (int i = 0; i < 5 && format < HZ_LINEAR_S8_G128; i++) {
		memcpy(bytes, good_bytes, size);
		memcpy(bytes + h->scales_at + 4 * (OUT - 1), &bad[i], 4);
		good &= load(size) == HZ_EINVAL && strstr(hz_errmsg(ctx), "in row 32");
	}
	for (int i = 0; i < 5 && format >= HZ_LINEAR_S8_G128; i++) {
		/* Of bf16 the upper byte, of e8m0 and e4m3 all of it */
		static const unsigned char upper[] = {0xff, 0x7f, 0x80, 0xbf, 0x73};
		const bool e8m0 = format == HZ_LINEAR_MXFP4;

		memcpy(bytes, good_bytes, size);
		bytes[h->scales_at] = e8m0 && i ? 231 + (unsigned char)i : 0xff;
		if (format < HZ_LINEAR_MXFP4)
			bytes[h->scales_at + 1] = upper[i];
		else if (!e8m0)
			bytes[h->scales_at] = upper[i & 3];
		good &= load(size) == HZ_EINVAL && strstr(hz_errmsg(ctx), "in row 0");
	}
	if (format == HZ_LINEAR_U4_G128) {
		memcpy(bytes, good_bytes, size);
		bytes[h->scales_at + h->scales_bytes - 1] = 16;
		good &= load(size) == HZ_EINVAL && strstr(hz_errmsg(ctx), "above 15");
	}
	if (format == HZ_LINEAR_S8_G128 || format == HZ_LINEAR_S4_G32) {
		memcpy(bytes, good_bytes, size);
		bytes[h->codes_at + 3] = 0x80;
		good &= load(size) == HZ_EINVAL && strstr(hz_errmsg(ctx), "a code of -");
	}
	memcpy(bytes, good_bytes, size);
	if (h->scales_bytes % 64) {
		bytes[h->codes_at - 1] = 1;
		good &= load(size) == HZ_EINVAL;
	}
	if (format == HZ_LINEAR_S8_ROW) {
		const uint64_t at[] = {0, h->codes_bytes - 1, h->codes_bytes / 2};

		for (int i = 0; i < 3; i++) {
			memcpy(bytes, good_bytes, size);
			bytes[h->codes_at + at[i]] ^= 0x41;
			good &= load(size) == HZ_EINVAL;
		}
		memcpy(bytes, good_bytes, size);
		bytes[h->codes_at] = 0x80;
		good &= load(size) == HZ_EINVAL && strstr(hz_errmsg(ctx), "-128");
	}
	ok(good, "%s: cut off, scales, padding, codes", hz_linear_format_name(format));
}

/* Codes in rows, as a GPU packs them, are packed on the CPU to what is stored. */
static void test_unpack(int format)
{
	static uint32_t codes[OUT * IN];
	static uint8_t t_data[OUT * IN], repacked[1 << 14] __attribute__((aligned(64)));
	struct hzi_linear_header h;
	struct hzi_linear_layout l;
	hz_tensor c = hz_tensor_2d(codes, HZ_S8, HZ_CPU, OUT, IN), columns;
	const hz_tensor t = hz_tensor_2d(t_data, HZ_U8, HZ_CPU, OUT, IN / 8);
	hz_lattice *lattice = NULL;
	hz_vlut *vlut = NULL;
	hz_packed packed;
	int status;

	if (hzi_linear_check_bytes(ctx, "check", good_bytes, size, &h) ||
	    (format != HZ_LINEAR_S8_ROW && hzi_linear_open_lattice(ctx, &h, &lattice, &vlut)))
		bail("%s", hz_errmsg(ctx));
	hzi_linear_make_layout(&h, lattice, vlut ? vlut->bitfield_code_table : NULL, &l);
	if (lattice) {
		hz_lattice_info info;

		hz_lattice_get_info(lattice, &info);
		c = hz_tensor_3d(codes, info.level_dtype, HZ_CPU, OUT, IN / info.dim, info.levels);
	}
	hzi_linear_unpack(&l, good_bytes + h.codes_at, vlut ? vlut->bitfield_code_table : NULL, &c,
			  &t);
	if (lattice) {
		const hz_coded w = {.codes = c, .t = &t, .k = IN};

		status = hz_vlut_pack(ctx, vlut, &w, repacked, sizeof(repacked), &packed);
	} else {
		columns = hz_view_transpose(&c, 0, 1);
		status = hz_qgemm_pack(ctx, &columns, repacked, sizeof(repacked), &packed);
	}
	ok(!status && packed.bytes == h.codes_bytes &&
	   memcmp(repacked, good_bytes + h.codes_at, h.codes_bytes) == 0,
	   "%s: codes in rows and packed again", hz_linear_format_name(format));
	hz_vlut_close(vlut);
	hz_lattice_close(lattice);
}

/* Random bytes anywhere: no crash, whatever comes of it */
static void test_random(int format)
{
	const int rounds = tap_quick() ? 300 : 3000;
	long refused = 0;

	for (int i = 0; i < rounds; i++) {
		const int count = 1 + (int)rnd_below(&rnd, 4);

		memcpy(bytes, good_bytes, size);
		for (int k = 0; k < count; k++)
			bytes[rnd_below(&rnd, i % 2 ? 128 : (int64_t)size)] =
				(unsigned char)rnd_below(&rnd, 256);
		refused += load(size) != HZ_OK;
	}
	ok(refused > 0, "%s: random bytes, %ld of %d refused", hz_linear_format_name(format),
	   refused, rounds);
}

int main(void)
{
	static const int damaged[] = {HZ_LINEAR_S8_ROW, HZ_LINEAR_E8_4_25, HZ_LINEAR_D4_4_50,
				      HZ_LINEAR_S8_G128, HZ_LINEAR_S4_G32, HZ_LINEAR_U4_G128,
				      HZ_LINEAR_MXFP4, HZ_LINEAR_NVFP4};
	const hz_options o = {.device = HZ_CPU, .threads = 2};

	rnd = tap_seed();
	if (hz_open(&ctx, &o))
		bail("%s", hz_open_errmsg());
	for (int i = 0; i < 8; i++) {
		make(damaged[i], i != 2);
		if (i < 2)
			test_header();
		test_contents(damaged[i]);
		test_random(damaged[i]);
	}
	for (int format = 1; format <= HZ_LINEAR_D4_4_50; format++) {
		make(format, false);
		test_unpack(format);
	}
	free(bytes);
	free(good_bytes);
	hz_close(ctx);
	return done_testing();
}
