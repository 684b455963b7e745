/*
 * plan.c - hz_hadamard_plan() and hz_hadamard_signs()
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "hurwitz.h"
#include "t/core/tap.h"

#define MAX 4096

static int64_t blocks[MAX + 1];

static int64_t plan_of(int64_t n, hz_hadamard_opts o)
{
	int i;

	for (i = 0; i <= MAX; i++)
		blocks[i] = -7;
	return hz_hadamard_plan(n, &o, blocks, MAX);
}

/* Whether the plan of n is this list, which 0 ends */
static int is_plan(int64_t n, hz_hadamard_opts o, const int64_t *want)
{
	int64_t got = plan_of(n, o), i;

	for (i = 0; want[i]; i++)
		if (i >= got || blocks[i] != want[i])
			break;
	if (!want[i] && got == i && blocks[i] == -7)
		return 1;
	diag("n = %lld: %lld blocks, [%lld] is %lld", (long long)n, (long long)got, (long long)i,
	     (long long)blocks[i]);
	return 0;
}

#define LIST(...) (const int64_t[]){ __VA_ARGS__, 0 }
#define OPTS(...) (hz_hadamard_opts){ __VA_ARGS__ }

static void test_lists(void)
{
	static const hz_hadamard_opts greedy = { .plan = HZ_PLAN_GREEDY };
	static const hz_hadamard_opts marlin = { .plan = HZ_PLAN_GREEDY, .max_block = 128,
						 .min_block = 32 };

	ok(is_plan(32, greedy, LIST(32)) && is_plan(64, greedy, LIST(64)) &&
	   is_plan(96, greedy, LIST(64, 32)) && is_plan(128, greedy, LIST(128)) &&
	   is_plan(160, greedy, LIST(128, 32)) && is_plan(192, greedy, LIST(128, 64)) &&
	   is_plan(256, greedy, LIST(256)),
	   "greedy: 96 = 64 + 32, 160 = 128 + 32, 192 = 128 + 64, powers of two undivided");
	ok(is_plan(80, greedy, LIST(64, 16)) && is_plan(112, greedy, LIST(64, 32, 16)) &&
	   is_plan(320, greedy, LIST(256, 64)) && is_plan(224, greedy, LIST(128, 64, 32)),
	   "greedy: 80 = 64 + 16, 112, 320, 224");
	ok(is_plan(256, marlin, LIST(128, 128)) && is_plan(160, marlin, LIST(128, 32)) &&
	   is_plan(288, marlin, LIST(128, 128, 32)), "greedy with max_block 128");
	is_int(plan_of(100, marlin), HZ_ESHAPE, "greedy with min_block 32 cannot make 100");
	ok(is_plan(100, OPTS(.plan = HZ_PLAN_GREEDY, .min_block = 4), LIST(64, 32, 4)),
	   "greedy with min_block 4 can");
	ok(is_plan(256, OPTS(.plan = HZ_PLAN_GREEDY, .max_block = 100), LIST(64, 64, 64, 64)),
	   "a max_block that is no power of two counts as the one below");

	ok(is_plan(96, OPTS(.plan = HZ_PLAN_UNIFORM), LIST(32, 32, 32)) &&
	   is_plan(192, OPTS(.plan = HZ_PLAN_UNIFORM), LIST(64, 64, 64)) &&
	   is_plan(80, OPTS(.plan = HZ_PLAN_UNIFORM), LIST(16, 16, 16, 16, 16)) &&
	   is_plan(256, OPTS(.plan = HZ_PLAN_UNIFORM), LIST(256)) &&
	   is_plan(256, OPTS(.plan = HZ_PLAN_UNIFORM, .max_block = 128), LIST(128, 128)) &&
	   is_plan(3, OPTS(.plan = HZ_PLAN_UNIFORM), LIST(1, 1, 1)), "uniform");
	is_int(plan_of(29568, OPTS(.plan = HZ_PLAN_UNIFORM)), 231, "uniform: 29568 = 231 x 128");
	is_int(blocks[230], 128, "to the last");

	ok(is_plan(96, OPTS(.plan = HZ_PLAN_TRUE), LIST(96)) &&
	   is_plan(80, OPTS(.plan = HZ_PLAN_TRUE), LIST(80)) &&
	   is_plan(11008, OPTS(.plan = HZ_PLAN_TRUE), LIST(11008)) &&
	   is_plan(64, OPTS(.plan = HZ_PLAN_TRUE), LIST(64)) &&
	   is_plan(96, OPTS(.plan = HZ_PLAN_TRUE, .order = 24), LIST(96)), "true");
	ok(is_plan(64, OPTS(.plan = HZ_PLAN_SYLVESTER), LIST(64)) &&
	   is_plan(1, OPTS(.plan = HZ_PLAN_SYLVESTER), LIST(1)), "sylvester");
	ok(is_plan(64, OPTS(0), LIST(64)) && is_plan(96, OPTS(0), LIST(64, 32)) &&
	   is_plan(1, OPTS(0), LIST(1)) && is_plan(8, OPTS(0), LIST(8)),
	   "auto is sylvester for powers of two, else greedy");
	ok(is_plan(192, OPTS(.block = 96), LIST(64, 32, 64, 32)) &&
	   is_plan(192, OPTS(.block = 96, .plan = HZ_PLAN_TRUE), LIST(96, 96)) &&
	   is_plan(64, OPTS(.block = 16), LIST(16, 16, 16, 16)) &&
	   is_plan(4, OPTS(.block = 1), LIST(1, 1, 1, 1)), "block repeats a plan");
	is_int(hz_hadamard_plan(96, NULL, blocks, 2), 2, "options may be NULL");
}

/* Blocks sum to n, are powers of two, and decrease, without max_block. */
static void test_greedy_all(void)
{
	int64_t n, got, i, sum;
	int good = 1;

	for (n = 1; n <= 1024; n++) {
		got = plan_of(n, OPTS(0));
		for (i = sum = 0; i < got; i++) {
			sum += blocks[i];
			good &= blocks[i] > 0 && (blocks[i] & (blocks[i] - 1)) == 0;
			good &= i == 0 || blocks[i] < blocks[i - 1];
		}
		good &= sum == n && got == __builtin_popcountll((unsigned long long)n);
		got = plan_of(n, OPTS(.plan = HZ_PLAN_GREEDY, .min_block = 16));
		good &= got == (n % 16 ? HZ_ESHAPE : __builtin_popcountll((unsigned long long)n));
		got = plan_of(n, OPTS(.max_block = 64));
		for (i = sum = 0; i < got; i++) {
			sum += blocks[i];
			good &= blocks[i] > 0 && blocks[i] <= 64;
			good &= (blocks[i] & (blocks[i] - 1)) == 0;
			good &= i == 0 || blocks[i] <= blocks[i - 1];
		}
		good &= sum == n;
		if (!good) {
			diag("n = %lld", (long long)n);
			break;
		}
	}
	ok(good, "auto and greedy for every n to 1024");
}

static void test_large(void)
{
	int64_t n = INT64_MAX, first;

	is_int(plan_of(n, OPTS(.plan = HZ_PLAN_GREEDY)), 63, "greedy, 2^63 - 1");
	is_int(blocks[0], INT64_C(1) << 62, "largest first");
	is_int(blocks[62], 1, "1 at last");
	is_int(plan_of(n, OPTS(.plan = HZ_PLAN_UNIFORM)), n, "uniform, 2^63 - 1 blocks of 1");
	is_int(blocks[MAX - 1], 1, "max of them written");
	is_int(blocks[MAX], -7, "and no more");
	is_int(plan_of(n - 1, OPTS(.block = 2)), n / 2, "blocks of 2");
	first = -7;
	is_int(hz_hadamard_plan(224, NULL, &first, 1), 3, "the count may exceed max");
	is_int(first, 128, "what fits is written");
	is_int(hz_hadamard_plan(224, NULL, NULL, 0), 3, "max 0 writes nothing");
	is_int(hz_hadamard_plan(0, NULL, NULL, 0), 0, "nothing makes 0 blocks");
}

static void test_refusals(void)
{
	static const struct {
		int64_t n;
		hz_hadamard_opts o;
		int want;
		const char *what;
	} bad[] = {
		{ -1, { 0 }, HZ_EINVAL, "n = -1" },
		{ 100, { .min_block = 16 }, HZ_ESHAPE, "auto of 100: a block of 4 is below 16" },
		{ 96, { .plan = HZ_PLAN_SYLVESTER }, HZ_ESHAPE, "sylvester of 96" },
		{ 96, { .plan = HZ_PLAN_TRUE, .order = 20 }, HZ_ESHAPE, "96 is not 20 x 2^k" },
		{ 96, { .plan = HZ_PLAN_TRUE, .order = 1 }, HZ_ESHAPE, "96 is not 1 x 2^k" },
		{ 96, { .plan = HZ_PLAN_TRUE, .base = HZ_BASE_WILLIAMSON }, HZ_ENOTSUP,
		  "true with williamson of order 12" },
		{ 176, { .plan = HZ_PLAN_TRUE, .base = HZ_BASE_PALEY2 }, HZ_ENOTSUP,
		  "true with paley2 of order 44" },
		{ 188, { .plan = HZ_PLAN_TRUE }, HZ_ESHAPE, "true of 188: no matrix known here" },
		{ 36 * 49, { .plan = HZ_PLAN_TRUE }, HZ_ESHAPE, "true of 1764: order above 256" },
		{ 30, { .plan = HZ_PLAN_TRUE }, HZ_ESHAPE, "true of 30: 60 does not divide it" },
		{ 15, { .plan = HZ_PLAN_TRUE }, HZ_ESHAPE, "true of an odd length" },
		{ INT64_MAX, { .plan = HZ_PLAN_TRUE }, HZ_ESHAPE, "true of 2^63 - 1" },
		{ 192, { .block = 100 }, HZ_ESHAPE, "a block that does not divide" },
		{ 192, { .block = 384 }, HZ_ESHAPE, "a block that is too long" },
		{ 96, { .base = HZ_BASE_DAO }, HZ_EINVAL, "a base matrix of another plan" },
		{ 96, { .plan = HZ_PLAN_GREEDY, .order = 12 }, HZ_EINVAL, "its order" },
		{ 192, { .plan = 5 }, HZ_EINVAL, "plan 5" },
		{ 192, { .plan = -1 }, HZ_EINVAL, "plan -1" },
		{ 192, { .block = -1 }, HZ_EINVAL, "block -1" },
		{ 8, { .min_block = 16 }, HZ_ESHAPE, "auto of 8, a power of two below 16" },
		{ 96, { .plan = HZ_PLAN_UNIFORM, .min_block = 16 }, HZ_EINVAL,
		  "min_block of a uniform plan" },
		{ 96, { .plan = HZ_PLAN_TRUE, .min_block = 16 }, HZ_EINVAL,
		  "min_block of a true plan" },
		{ 64, { .plan = HZ_PLAN_SYLVESTER, .max_block = 64 }, HZ_EINVAL,
		  "max_block of a sylvester plan" },
		{ 96, { .plan = HZ_PLAN_TRUE, .max_block = 16 }, HZ_EINVAL,
		  "max_block of a true plan" },
		{ 192, { .max_block = -1 }, HZ_EINVAL, "max_block -1" },
		{ 192, { .min_block = -1 }, HZ_EINVAL, "min_block -1" },
		{ 192, { .plan = HZ_PLAN_TRUE, .base = 6 }, HZ_EINVAL, "base 6" },
		{ 192, { .plan = HZ_PLAN_TRUE, .base = -1 }, HZ_EINVAL, "base -1" },
		{ 192, { .plan = HZ_PLAN_TRUE, .order = -12 }, HZ_EINVAL, "order -12" },
		{ 192, { .plan = HZ_PLAN_TRUE, .order = 1 << 20 }, HZ_EINVAL, "order 2^20" },
	};
	int i;

	for (i = 0; i < (int)(sizeof(bad) / sizeof(*bad)); i++) {
		is_int(plan_of(bad[i].n, bad[i].o), bad[i].want, "refused: %s", bad[i].what);
		if (blocks[0] != -7)
			ok(0, "and writes nothing");
	}
	is_int(hz_hadamard_plan(64, NULL, NULL, 1), HZ_EINVAL, "refused: blocks is NULL");
}

/* Word w is the first output of splitmix64 started at seed + w, bits little endian. */
static void test_signs(void)
{
	/* splitmix64 of 0, 1 and 2^64 - 1 as published with the generator */
	static const uint64_t known[] = { 0xe220a8397b1dcdaf, 0x910a2dec89025cc1,
					  0xe4d971771b652c20 };
	uint8_t bits[70];
	uint64_t state, word;
	int i, n, good = 1;

	is_int(hz_hadamard_signs(bits, 128, 0), HZ_OK, "128 signs");
	for (i = 0; i < 128; i++)
		good &= (bits[i / 8] >> i % 8 & 1) == (int)(known[i / 64] >> i % 64 & 1);
	ok(good, "of seed 0 are splitmix64 of 0 and 1");
	hz_hadamard_signs(bits, 128, UINT64_MAX);
	for (i = 0, good = 1; i < 128; i++)
		good &= (bits[i / 8] >> i % 8 & 1) ==
			(int)(known[i < 64 ? 2 : 0] >> i % 64 & 1);
	ok(good, "of seed 2^64 - 1 wrap to 0");
	for (n = 0, good = 1; n <= 512; n++) {
		memset(bits, 0xee, sizeof(bits));
		good &= hz_hadamard_signs(bits, n, 12345) == HZ_OK;
		for (i = 0; i < 8 * (int)sizeof(bits); i++) {
			state = 12345 + (uint64_t)i / 64;
			word = rnd_u64(&state);
			good &= (bits[i / 8] >> i % 8 & 1) ==
				(i < n ? (int)(word >> i % 64 & 1)
				       : i < (n + 7) / 8 * 8 ? 0 : 0xee >> i % 8 & 1);
		}
	}
	ok(good, "every count to 512; unused bits are 0, further bytes as they were");
	is_int(hz_hadamard_signs(NULL, 0, 1), HZ_OK, "none into NULL");
	is_int(hz_hadamard_signs(NULL, 1, 1), HZ_EINVAL, "refused: bits is NULL");
	memset(bits, 0xee, sizeof(bits));
	is_int(hz_hadamard_signs(bits, -1, 1), HZ_EINVAL, "refused: n = -1");
	is_int(bits[0], 0xee, "and writes nothing");
}

int main(void)
{
	test_lists();
	test_greedy_all();
	test_large();
	test_refusals();
	test_signs();
	return done_testing();
}
