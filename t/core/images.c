/*
 * images.c - which target of a packed image a GPU gets; images that are damaged; memory
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * The image is made here, of targets that hold their name alone, and stands in the place of the one
 * that tools/core/peak.c has: hz_open() loads it.
 */
#include <config.h>

#include "gpu/runtime/cuda.h"
#include "t/core/fakecuda.h"
#include "hurwitz.h"
#include "t/core/meter.h"
#include "t/core/tap.h"

#if !HZ_HAVE_CUDA || !defined(HZ_HAVE_LZMA)

int main(void)
{
	skip_all("this build has no device code that xz has compressed");
}

#else

#include <lzma.h>

#define DICTIONARY (8u << 20)	/* as in tools/pack-fatbin */

static const int sms[] = {80, 86, 89, 90, 100, 103, 110, 120, 121};
#define DEVICES ((int)(sizeof(sms) / sizeof(*sms)))

static const struct fakecuda *fake;
static unsigned char packed[1 << 16];
static size_t packed_bytes;
static struct hzi_image image = {.code = packed};
static const char *const kernel[] = {"peak_f32"};
const struct hzi_images hzi_images_tools = {
	.image = &image, .images = 1, .kernel = kernel, .kernels = 1,
	.first_image = HZI_IMAGES_tools, .first_kernel = HZI_KERNELS_tools,
};

/* A cubin begins as an ELF file. The stand-in for the driver tells what it got, as text. */
static void text_of(const char *target, char *text, size_t size)
{
	snprintf(text, size, "%s %s", strncmp(target, "sm_", 3) ? ".version 9.0" : "\177ELF", target);
}

static void pack_text(const char *target, const char *text, uint32_t dictionary)
{
	lzma_options_lzma options;
	const lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, NULL}};
	unsigned char xz[1024];
	size_t bytes = 0;

	lzma_lzma_preset(&options, 0);
	options.dict_size = dictionary;
	options.lc = 0;
	options.lp = options.pb = 4;
	if (lzma_stream_buffer_encode((lzma_filter *)filters, LZMA_CHECK_CRC32, NULL,
				      (uint8_t *)text, strlen(text), xz, &bytes, sizeof(xz)))
		bail("liblzma does not compress");
	packed_bytes += (size_t)sprintf((char *)packed + packed_bytes, "%s %zu %zu\n", target, bytes,
					strlen(text));
	memcpy(packed + packed_bytes, xz, bytes);
	packed_bytes += bytes;
	packed[packed_bytes] = 0;
	image.end = packed + packed_bytes;
}

static void pack_target(const char *target, uint32_t dictionary)
{
	char text[64];

	text_of(target, text, sizeof(text));
	pack_text(target, text, dictionary);
}

/* Packs targets, which blanks separate. */
static void pack(const char *targets)
{
	char copy[128], *save = NULL;

	packed_bytes = 0;
	snprintf(copy, sizeof(copy), "%s", targets);
	for (char *t = strtok_r(copy, " ", &save); t; t = strtok_r(NULL, " ", &save))
		pack_target(t, DICTIONARY);
}

static int open_device(int i, const hz_allocator *allocator)
{
	const hz_options o = {.device = HZ_CUDA + i, .threads = 1, .allocator = allocator};
	hz_context *ctx;
	const int status = hz_open(&ctx, &o);

	if (status == HZ_OK)
		hz_close(ctx);
	return status;
}

/* What the driver would choose from a fatbin with the same targets; NULL: nothing */
static void choices(void)
{
	static const struct {
		const char *targets, *want[DEVICES];
	} rows[] = {
		/* The default of --with-cuda-arch, in nvcc's order and another */
		{"sm_80 sm_90a compute_90 sm_100 sm_120",
		 {"sm_80", "sm_80", "sm_80", "sm_90a", "sm_100", "sm_100", "compute_90", "sm_120",
		  "sm_120"}},
		{"sm_120 compute_90 sm_90a sm_100 sm_80",
		 {"sm_80", "sm_80", "sm_80", "sm_90a", "sm_100", "sm_100", "compute_90", "sm_120",
		  "sm_120"}},
		{"sm_90a", {[3] = "sm_90a"}},
		{"sm_90 sm_90a", {[3] = "sm_90a"}},
		{"sm_80 sm_86 sm_103", {"sm_80", "sm_86", "sm_86", [5] = "sm_103"}},
		{"compute_80 compute_90 sm_121",
		 {"compute_80", "compute_80", "compute_80", "compute_90", "compute_90", "compute_90",
		  "compute_90", "compute_90", "sm_121"}},
		{"compute_90a", {[3] = "compute_90a"}},
		{"compute_90", {[3] = "compute_90", "compute_90", "compute_90", "compute_90",
				"compute_90", "compute_90"}},
		{"compute_100f sm_120f", {[4] = "compute_100f", "compute_100f",
					  [7] = "sm_120f", "sm_120f"}},
		{"compute_80 sm_75", {"compute_80", "compute_80", "compute_80", "compute_80",
				      "compute_80", "compute_80", "compute_80", "compute_80",
				      "compute_80"}},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		pack(rows[i].targets);
		for (int d = 0; d < DEVICES; d++) {
			const char *want = rows[i].want[d];
			const int status = open_device(d, NULL);
			char text[64];

			if (want) {
				text_of(want, text, sizeof(text));
				ok(status == HZ_OK && !strcmp(fake->image(), text),
				   "SM %d gets %s of %s", sms[d], want, rows[i].targets);
			} else {
				ok(status == HZ_ENODEV, "SM %d gets nothing of %s", sms[d],
				   rows[i].targets);
			}
		}
	}
	pack("sm_90a sm_100");
	is_int(open_device(0, NULL), HZ_ENODEV, "nothing for SM 8.0");
	has_str(hz_open_errmsg(), "Stand-in 0: the tools/peak device code is for sm_90a, sm_100, and "
		"does not run on SM 8.0", "its message");
}

/* Registers of PTX: differences from the last one of the kind that began a line's list */
static void registers(void)
{
	static const struct {
		const char *packed, *ptx;	/* NULL: damaged */
	} rows[] = {
		{".version 9.0\nadd.f32 %f2, %f-1, %f-1;\nmov.b32 %r12, %f0;\n@%p1 bra $L1;\n"
		 "ld.f32 %f1, [%rd5+8];\nst.f32 [%rd5], %f0;\nmad.s32 %r-2, %tid.x, %clock64;\n",
		 ".version 9.0\nadd.f32 %f2, %f1, %f1;\nmov.b32 %r12, %f2;\n@%p1 bra $L1;\n"
		 "ld.f32 %f3, [%rd5+8];\nst.f32 [%rd5], %f3;\nmad.s32 %r10, %tid.x, %clock64;\n"},
		{".reg .f32 %f<70>; 100% %", ".reg .f32 %f<70>; 100% %"},
		{"/ %r-1", NULL}, {"/ %r1\n%r-2", NULL}, {"/ %r9999999999999", NULL},
		{"/ %toolongname1", NULL},
		{"/%a1%b1%c1%d1%e1%f1%g1%h1%i1%j1%k1%l1%m1%n1%o1%p1%q1", NULL},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		int status;

		packed_bytes = 0;
		pack_text("compute_80", rows[i].packed, DICTIONARY);
		status = open_device(0, NULL);
		if (rows[i].ptx)
			ok(status == HZ_OK && !strcmp(fake->image(), rows[i].ptx),
			   "registers of PTX, %zu", i);
		else
			has_str(status == HZ_ENODEV ? hz_open_errmsg() : "", "device code is damaged",
				"numbers of registers that are damaged, %zu", i);
	}
}

/* Each byte of an image is changed, and it ends at each byte. */
static void damage(void)
{
	uint64_t seed = tap_seed();
	size_t bytes, used = 0, good = 0, cases = 0;
	char text[64];

	pack("sm_80 compute_100");
	bytes = packed_bytes;
	text_of("sm_80", text, sizeof(text));
	for (size_t at = 0; at < 2 * bytes; at++) {
		unsigned char *const p = &packed[at % bytes], kept = *p;
		int status;

		if (at < bytes)
			*p ^= (unsigned char)(1 << rnd_below(&seed, 8));
		else
			*p = 0, image.end = p;
		status = open_device(0, NULL);
		*p = kept;
		image.end = packed + bytes;
		cases++;
		/* What is behind the target that is used may be damaged. */
		used += status == HZ_OK;
		good += (status == HZ_OK && !strcmp(fake->image(), text)) || status == HZ_ENODEV;
	}
	is_int(good, cases, "an image with a byte changed, or cut off, is refused or as before");
	ok(used < bytes, "most are refused");
	is_int(open_device(0, NULL), HZ_OK, "the image works afterwards");
	packed[20] ^= 1;
	is_int(open_device(0, NULL), HZ_ENODEV, "a damaged image");
	has_str(hz_open_errmsg(), "Stand-in 0: the tools/peak device code is damaged", "its message");
	packed_bytes = 0;
	pack_target("sm_80", 64u << 20);
	is_int(open_device(0, NULL), HZ_ENODEV, "an image that needs too much memory");
}

static void memory(const char *target)
{
	struct meter meter = {0};
	const hz_allocator a = {.alloc = meter_alloc, .free = meter_free, .user = &meter};
	const hz_options o = {.device = HZ_CUDA, .threads = 1, .allocator = &a};
	int status, all = 1, unpacking = 0;
	char text[64], message[96];
	size_t held;
	hz_context *ctx;

	text_of(target, text, sizeof(text));
	snprintf(message, sizeof(message), "no memory to unpack %zu bytes of tools/peak device code",
		 strlen(text));
	pack(target);
	is_int(hz_open(&ctx, &o), HZ_OK, "open");
	held = meter.bytes;
	ok(meter.most > held + DICTIONARY && meter.most < held + 2 * DICTIONARY,
	   "the memory for unpacking is the context's: %zu bytes", meter.most - held);
	ok(held < 1 << 20, "it is freed when the image is loaded: %zu bytes are left", held);
	hz_close(ctx);
	is_int(meter.live, 0, "closing frees the rest");
	for (long k = 1; meter.calls >= meter.fail_at; k++) {
		meter.calls = 0;
		meter.fail_at = k;
		status = open_device(0, &a);
		if (meter.calls >= k) {
			all &= status == HZ_ENOMEM && !meter.live && !meter.bytes && !meter.bad;
			unpacking += strstr(hz_open_errmsg(), message) != NULL;
		}
	}
	ok(all, "each allocation that fails is told, and nothing is left");
	ok(unpacking >= 3, "%d of them while unpacking", unpacking);
}

int main(void)
{
	unsetenv("HURWITZ_DEVICE");
	if (tap_cuda())
		skip_all("on the stand-in alone");
	fake = fakecuda_load();
	if (!fake)
		bail("t/core/fakecuda.so beside this program is needed");
	setenv("FAKECUDA_UNPACK", "1", 1);
	setenv("FAKECUDA_DEVICES", "9", 1);
	setenv("FAKECUDA_SM", "80,86,89,90,100,103,110,120,121", 1);
	choices();
	registers();
	damage();
	memory("sm_80");
	memory("compute_80");
	is_int(fakecuda_leaked(fake), 0, "nothing leaked");
	is_int(fake->complaints(NULL, 0), 0, "no complaints");
	return done_testing();
}

#endif
