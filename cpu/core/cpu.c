/*
 * cpu.c - what this CPU supports, which micro-kernels that selects, and its share of the caches
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include "cpu/core/cpu.h"
#include "cpu/core/kern.h"

/* ---- Instruction-set levels ------------------------------------------------------------------ */

/*
 * In order: a level is usable if the CPU supports it and every level of the same architecture
 * before it. built: whether this build has kernels for the level. The index is ctx->level.
 */
static const struct level {
	int isa;
	const char *name, *what;
	bool built;
} levels[HZI_LEVELS] = {
	{HZ_ISA_C, "c", "", true},
#if defined(__x86_64__) || defined(__i386__)
#ifdef HZ_HAVE_AVX2
	{HZ_ISA_AVX2, "avx2", "AVX2 with FMA and F16C", true},
#else
	{HZ_ISA_AVX2, "avx2", "AVX2 with FMA and F16C", false},
#endif
#ifdef HZ_HAVE_AVX512
	{HZ_ISA_AVX512, "avx512", "AVX-512 F, BW, DQ, VL and CD", true},
#else
	{HZ_ISA_AVX512, "avx512", "AVX-512 F, BW, DQ, VL and CD", false},
#endif
#ifdef HZ_HAVE_VNNI
	{HZ_ISA_VNNI, "vnni", "AVX-512 VNNI, BF16, VBMI, BITALG and GFNI", true},
#else
	{HZ_ISA_VNNI, "vnni", "AVX-512 VNNI, BF16, VBMI, BITALG and GFNI", false},
#endif
#ifdef HZ_HAVE_AMX
	{HZ_ISA_AMX, "amx", "AMX", true},
#else
	{HZ_ISA_AMX, "amx", "AMX", false},
#endif
#elif defined(__aarch64__)
#ifdef HZ_HAVE_NEON
	{HZ_ISA_NEON, "neon", "Advanced SIMD", true},
#else
	{HZ_ISA_NEON, "neon", "Advanced SIMD", false},
#endif
	{HZ_ISA_DOTPROD, "dotprod", "the int8 dot product", false},
#endif
};

static const struct {
	int isa;
	const char *name;
} isa_names[] = {
	{HZ_ISA_AUTO, "auto"}, {HZ_ISA_C, "c"}, {HZ_ISA_AVX2, "avx2"}, {HZ_ISA_AVX512, "avx512"},
	{HZ_ISA_VNNI, "vnni"}, {HZ_ISA_AMX, "amx"}, {HZ_ISA_NEON, "neon"},
	{HZ_ISA_DOTPROD, "dotprod"},
};

#define ISA_NAMES ((int)(sizeof(isa_names) / sizeof(*isa_names)))

const char *hz_isa_name(int isa)
{
	for (int i = 0; i < ISA_NAMES; i++) {
		if (isa_names[i].isa == isa)
			return isa_names[i].name;
	}
	return "?";
}

int hzi_isa_from_name(const char *name)
{
	if (!name || !*name)
		return HZ_ISA_AUTO;
	for (int i = 0; i < ISA_NAMES; i++) {
		if (strcmp(isa_names[i].name, name) == 0)
			return isa_names[i].isa;
	}
	return -1;
}

#if defined(__x86_64__) || defined(__i386__)

/* The register state that the operating system saves and restores: XCR0 */
static unsigned saved_state(void)
{
	unsigned eax, edx;

	/* xgetbv, as bytes for assemblers and targets that do not know it */
	__asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(eax), "=d"(edx) : "c"(0));
	return eax;
}

/*
 * Linux grants tile registers only to processes that ask for them, for all threads at once. It
 * refuses if a thread's alternate signal stack is too small for their state.
 */
static bool may_use_tiles(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
	const long request = 0x1023;	/* ARCH_REQ_XCOMP_PERM */
	const long tile_data = 18;	/* XFEATURE_XTILEDATA */

	return syscall(SYS_arch_prctl, request, tile_data) == 0;
#else
	return false;
#endif
}

static int detect(void)
{
	const unsigned ymm = 0x06, zmm = 0xe6, tiles = 0x60000;
	unsigned eax, ebx, ecx, edx, max, ecx1, ebx7, ecx7, edx7, eax71 = 0, state;

	max = __get_cpuid_max(0, NULL);
	if (max < 7)
		return HZ_ISA_C;
	__cpuid(1, eax, ebx, ecx1, edx);
	if (!(ecx1 & bit_OSXSAVE))
		return HZ_ISA_C;
	state = saved_state();
	__cpuid_count(7, 0, eax, ebx7, ecx7, edx7);
	if (eax >= 1)
		__cpuid_count(7, 1, eax71, ebx, ecx, edx);
	if ((state & ymm) != ymm || !(ecx1 & bit_AVX) || !(ecx1 & bit_FMA) || !(ecx1 & bit_F16C) ||
	    !(ebx7 & bit_AVX2))
		return HZ_ISA_C;
	if ((state & zmm) != zmm || !(ebx7 & bit_AVX512F) || !(ebx7 & bit_AVX512BW) ||
	    !(ebx7 & bit_AVX512DQ) || !(ebx7 & bit_AVX512VL) || !(ebx7 & bit_AVX512CD))
		return HZ_ISA_AVX2;
	/* AVX512_VBMI, GFNI, AVX512_VNNI, AVX512_BITALG: bits 1, 8, 11 and 12; AVX512_BF16 */
	if ((ecx7 & 0x1902) != 0x1902 || !(eax71 & 1u << 5))
		return HZ_ISA_AVX512;
	/* AMX-BF16, AMX-TILE, AMX-INT8: bits 22, 24 and 25 */
	if ((state & tiles) != tiles || (edx7 & 0x3400000) != 0x3400000 || !may_use_tiles())
		return HZ_ISA_VNNI;
	return HZ_ISA_AMX;
}

bool hzi_cpu_is_amd(void)
{
	unsigned max, ebx, ecx, edx;

	__cpuid(0, max, ebx, ecx, edx);
	return ebx == signature_AMD_ebx;
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

static int detect(void)
{
	/* HWCAP_ASIMD, HWCAP_ASIMDDP */
	const unsigned long caps = getauxval(AT_HWCAP);

	return !(caps & 1ul << 1) ? HZ_ISA_C : !(caps & 1ul << 20) ? HZ_ISA_NEON : HZ_ISA_DOTPROD;
}

#else

static int detect(void)
{
	return HZ_ISA_C;
}

#endif

#if !defined(__x86_64__) && !defined(__i386__)
bool hzi_cpu_is_amd(void)
{
	return false;
}
#endif

/*
 * The families whose micro-kernels the program links. These references are weak: they link nothing
 * and are NULL for other families.
 */
#define FAMILIES(family) \
	family(hadamard) family(lattice) family(linear) family(mhc) family(peak) family(qgemm) \
	family(quantize) family(quat) family(quat_conv) family(quat_gemm) family(quat_layer) \
	family(vlut)
#define DECLARE(name) \
	extern const struct hzi_kern_family hzi_##name##_kern_family __attribute__((weak));
#define ADDRESS(name) &hzi_##name##_kern_family,
#define PLUS_ONE(name) + 1

FAMILIES(DECLARE)
enum { FAMILY_COUNT = FAMILIES(PLUS_ONE) };
static const struct hzi_kern_family *const families[FAMILY_COUNT] = {FAMILIES(ADDRESS)};

static int machine_isa;
static pthread_once_t kernels_once = PTHREAD_ONCE_INIT;

/*
 * The table of level i is that of level i - 1 overlaid with the kernels of level i. Tables above
 * machine_isa are not filled: their units may contain instructions that the machine lacks.
 */
static void fill_family(const struct hzi_kern_family *family)
{
	char *kern = family->kern;

	for (int i = 0; i < HZI_LEVELS && levels[i].isa <= machine_isa; i++) {
		if (i > 0)
			memcpy(kern, kern - family->bytes, family->bytes);
		if (family->fill[i])
			family->fill[i](kern);
		kern += family->bytes;
	}
}

static void make_kernels(void)
{
	machine_isa = detect();
	for (int i = 0; i < FAMILY_COUNT; i++) {
		if (families[i])
			fill_family(families[i]);
	}
}

void hzi_cpu_select(struct hz_context *ctx, int cap)
{
	int i = 0, top = 0;
	bool known = false;

	pthread_once(&kernels_once, make_kernels);
	/* A level of another architecture does not limit this one. */
	for (int l = 0; l < HZI_LEVELS; l++)
		known |= levels[l].isa == cap;
	if (!known)
		cap = levels[HZI_LEVELS - 1].isa;
	for (int l = 1; l < HZI_LEVELS && levels[l].isa <= machine_isa; l++) {
		if (!levels[l].built)
			continue;
		top = l;
		if (levels[l].isa <= cap)
			i = l;
	}
	ctx->level = i;
	ctx->isa = levels[i].isa;
	ctx->isa_max = levels[top].isa;
	ctx->isa_reason[0] = '\0';
	if (i < top)
		snprintf(ctx->isa_reason, sizeof(ctx->isa_reason),
			 "HURWITZ_ISA or the options cap it at %s", hz_isa_name(cap));
	else if (i + 1 < HZI_LEVELS && levels[i + 1].isa > machine_isa)
		snprintf(ctx->isa_reason, sizeof(ctx->isa_reason), "this CPU has no %s",
			 levels[i + 1].what);
	else if (i + 1 < HZI_LEVELS)
		snprintf(ctx->isa_reason, sizeof(ctx->isa_reason),
			 "this build has no kernels for %s", levels[i + 1].what);
}

/* ---- Caches ---------------------------------------------------------------------------------- */

#define L3_BYTES ((int64_t)32 << 20)	/* where the topology does not say */
#define L3_CORE ((int64_t)16 << 20)	/* share of the L3 that one core may count on, at most */

int64_t hzi_cache_share(const struct hz_context *ctx)
{
	const int64_t l3 = ctx->topology.l3_bytes > 0 ? ctx->topology.l3_bytes : L3_BYTES;
	const int64_t most = L3_CORE * ctx->topology.cores;

	return l3 < most ? l3 : most;
}
