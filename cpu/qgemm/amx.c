/*
 * amx.c - quantized multiplication with AMX tiles
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <immintrin.h>
#include <string.h>

#include "cpu/core/tiles.h"
#include "cpu/qgemm/kern.h"
#include "cpu/qgemm/epilogue512.inc"

/*
 * A block of C is 32 x 32: four tiles of 16 x 16 accumulators. A step multiplies 64 of k: two tiles
 * of A by two of B, four instructions of 16 cycles each. What else takes time, and how it is
 * hidden:
 *
 * - Loads come together before the multiplications of a step. Interleaved they cost 5 to 15 %.
 * - A panel of A, 32 rows of at most KC steps, stays in L1; B streams from L2 by the non-temporal
 *   tile load. With the ordinary load a third of the time is lost.
 * - The tiles of a finished block are stored within the first step of the next block: 96 % of the
 *   full rate instead of 88.
 * - The epilogue of a block overlaps the multiplications of the next, two rows in a step. It is
 *   free as long as the loop's state is in registers: tile loads wait for stores whose addresses
 *   agree in the low 12 bits, so ten spilled counters cost 15 %, a store in each step 5 %.
 * - A tile store takes 900 cycles more if there was none for 2000 cycles. So blocks end after at
 *   most KC steps, and their accumulators are stored and reloaded.
 * - Then misses of L1 are the limit, 16 lines at a time: B, and with k above 1024 the accumulators
 *   between parts of k and the next panel of A. Each line from the last-level cache, C's too, adds
 *   8 cycles to a step of 64 cycles, however it is fetched.
 */
enum {
	ROWS = 32,
	STEP = 64,		/* of k */
	TILE = 1024,		/* bytes */
	PAIR = 2 * TILE,	/* bytes of a step of a panel, of A and of B */
	KC = 16,		/* steps whose panel of A, 32 KiB, fits L1 with the other data */
	SUMS = ROWS * SUMS_LD,	/* bytes of a block's accumulators */
	WIDTH = 32,		/* most panels of B at a time: 128 KiB of the caller's scratch */
	/* Without scratch: accumulators are on the stack, which may be small in threads. */
	STACK_WIDTH = 2,
	SKINNY_BANDS = 8			/* bands of rows */
};

/* The multiplying instruction, by the signedness of A and B */
enum { UU, US, SU, SS };

static const int32_t zeros[64] __attribute__((aligned(64)));
static const uint8_t ones[64] __attribute__((aligned(64))) = {[0 ... 63] = 1};

/* ---- Packing of A: [m / 32][k / 64][32][64], padded with 0 ----------------------------------- */

static int64_t qgemm_pack_a_bytes(int64_t m, int64_t k)
{
	return ceil_div(m, ROWS) * ceil_div(k, STEP) * PAIR;
}

static int32_t qgemm_pack_a_offset(int32_t a_dtype, int32_t b_dtype)
{
	(void)a_dtype;
	(void)b_dtype;
	return 0;
}

/*
 * Packs a row of k contiguous codes. Meanwhile the next row, at a distance of ld bytes, is
 * prefetched into L2.
 */
static void pack_row(const char *from, char *to, int64_t k, int64_t ld, int64_t step)
{
	for (; k >= STEP; k -= STEP, from += STEP, to += step) {
		_mm_prefetch(from + ld, _MM_HINT_T1);
		_mm512_storeu_si512(to, _mm512_loadu_si512(from));
	}
	if (k > 0)
		_mm512_storeu_si512(to, _mm512_maskz_loadu_epi8((1ull << k) - 1, from));
}

static int32_t sum_row(const char *row, int64_t k, int64_t step, bool is_signed)
{
	__m512i sum = _mm512_setzero_si512();

	for (int64_t i = 0; i < k; i += STEP, row += step)
		sum = add_fours(sum, _mm512_loadu_si512(row), is_signed);
	return _mm512_reduce_add_epi32(sum);
}

static void qgemm_pack_a(const struct hzi_qgemm_pack_a *a)
{
	const int64_t panel = qgemm_pack_a_bytes(ROWS, a->k);

	for (int64_t i = 0; i < a->m; i++) {
		const char *from = (const char *)a->a + i * a->a_m;
		char *to = (char *)a->packed + i / ROWS * panel + i % ROWS * STEP;

		if (a->a_k == 1) {
			pack_row(from, to, a->k, a->a_m, PAIR);
		} else {
			for (int64_t l = 0; l < a->k; l += STEP) {
				char codes[STEP] = {0};

				for (int64_t j = 0; j < min_i64(STEP, a->k - l); j++)
					codes[j] = from[(l + j) * a->a_k];
				memcpy(to + l / STEP * PAIR, codes, STEP);
			}
		}
		if (a->row)
			a->row[i] = sum_row(to, a->k, PAIR, a->a_dtype == HZ_S8);
	}
	for (int64_t i = a->m; i % ROWS; i++) {
		char *to = (char *)a->packed + i / ROWS * panel + i % ROWS * STEP;

		for (int64_t l = 0; l < a->k; l += STEP, to += PAIR)
			memset(to, 0, STEP);
	}
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* A block; half: 16 rows, two tiles. Accumulators start from those at init, rows init_ld apart. */
struct block {
	const char *a, *b;
	int64_t a_ld, a_step, steps;	/* of tiles of A: strides of rows and of steps */
	const char *init;
	int64_t init_ld;
};

/*
 * Work that overlaps the multiplications: in each step, rows of A are packed and lines prefetched
 * into L2; with each pair of rows of codes, a line of C, row by row
 */
struct overlapped {
	const char *from;
	char *to;
	int64_t from_ld, rows;
	const char *soon, *c;
	int64_t lines;
};

/* Where the tiles in registers are to be stored; NULL: they hold nothing */
struct held {
	char *sums;
	int64_t ld;
};

/* Tile registers: 0 .. 3 accumulators, 4 and 5 of A, 6 and 7 of B */
#define DOT(sum, a, b) do { \
	if (signs == UU) \
		_tile_dpbuud(sum, a, b); \
	else if (signs == US) \
		_tile_dpbusd(sum, a, b); \
	else if (signs == SU) \
		_tile_dpbsud(sum, a, b); \
	else \
		_tile_dpbssd(sum, a, b); \
} while (0)

INLINE void load(const char *a, int64_t a_ld, const char *b, const bool half)
{
	_tile_stream_loadd(6, b, 64);
	_tile_stream_loadd(7, b + TILE, 64);
	_tile_loadd(4, a, a_ld);
	if (!half)
		_tile_loadd(5, a + 16 * a_ld, a_ld);
}

INLINE void store(const struct held *h, const bool half)
{
	_tile_stored(0, h->sums, h->ld);
	_tile_stored(1, h->sums + 64, h->ld);
	if (!half) {
		_tile_stored(2, h->sums + 16 * h->ld, h->ld);
		_tile_stored(3, h->sums + 16 * h->ld + 64, h->ld);
	}
	BARRIER();
}

/* The first step. If the tiles hold accumulators, those belong to a block with as many tiles. */
INLINE void first_step(const int signs, const bool half, const struct block *k, struct held *h)
{
	const char *down = k->init + 16 * k->init_ld;

	load(k->a, k->a_ld, k->b, half);
	if (h->sums)
		_tile_stored(0, h->sums, h->ld);
	_tile_loadd(0, k->init, k->init_ld);
	DOT(0, 4, 6);
	if (h->sums)
		_tile_stored(1, h->sums + 64, h->ld);
	_tile_loadd(1, k->init + 64, k->init_ld);
	DOT(1, 4, 7);
	if (!half) {
		if (h->sums)
			_tile_stored(2, h->sums + 16 * h->ld, h->ld);
		_tile_loadd(2, down, k->init_ld);
		DOT(2, 5, 6);
		if (h->sums)
			_tile_stored(3, h->sums + 16 * h->ld + 64, h->ld);
		_tile_loadd(3, down + 64, k->init_ld);
		DOT(3, 5, 7);
	}
	h->sums = NULL;
	BARRIER();
}

/*
 * Steps, overlapped with the epilogue of pairs of rows of f, from row 0 on, and with packing of A
 */
INLINE void run(const int signs, const bool half, const int kind, const int pairs, const int rows,
		const struct block *k, const struct finish *f, const struct bounds *bounds,
		const struct overlapped *s)
{
	const struct bounds limit = *bounds;
	const struct scale scale = f->scale;
	const char *a = k->a, *b = k->b, *soon = s->soon, *c_soon = s->c, *sums = f->sums;
	const char *from = s->from;
	const int64_t a_ld = k->a_ld, a_step = k->a_step, c_ld = f->c_ld, lines = s->lines;
	const int64_t from_ld = s->from_ld;
	const int32_t *row = f->row;
	const struct float_row *float_row = f->float_row;
	const struct floats floats = f->floats;
	char *c = f->c, *to = s->to;

	for (const char *end = b + k->steps * PAIR; b < end; b += PAIR) {
		load(a, a_ld, b, half);
		DOT(0, 4, 6);
		DOT(1, 4, 7);
		if (!half) {
			DOT(2, 5, 6);
			DOT(3, 5, 7);
		}
		a += a_step;
		for (int p = 0; p < pairs; p++) {
			char *const below = c + c_ld;
			__m512i codes;

			if (kind == FLOATS) {
				store_floats(c, sums, float_row, &floats);
				store_floats(below, sums + SUMS_LD, float_row + 1, &floats);
				c = below + c_ld;
				sums += 2 * SUMS_LD;
				float_row += 2;
				continue;
			}
			_mm_prefetch(c_soon, _MM_HINT_T1);
			c_soon += c_ld;
			codes = two_rows(sums, row, &scale, &limit);
			_mm256_storeu_si256((void *)c, _mm512_castsi512_si256(codes));
			_mm256_storeu_si256((void *)below, _mm512_extracti64x4_epi64(codes, 1));
			c = below + c_ld;
			sums += 2 * SUMS_LD;
			row += 2;
		}
		for (int64_t i = 0; i < lines; i++, soon += 64)
			_mm_prefetch(soon, _MM_HINT_T1);
		for (int r = 0; r < rows; r++)
			_mm512_storeu_si512(to + r * STEP, _mm512_loadu_si512(from + r * from_ld));
		if (rows) {
			from += STEP;
			to += PAIR;
		}
	}
}

INLINE void run_steps(const int signs, const bool half, const int kind, const int pairs,
		      const struct block *k, const struct finish *f, const struct bounds *bounds,
		      const struct overlapped *s)
{
	/* A half block is in the last band, when all of A is packed. */
	if (s->rows == 4 && !half)
		run(signs, half, kind, pairs, 4, k, f, bounds, s);
	else if (s->rows == 1 && !half)
		run(signs, half, kind, pairs, 1, k, f, bounds, s);
	else
		run(signs, half, kind, pairs, 0, k, f, bounds, s);
}

/* A block, overlapped with the epilogue of f, whose accumulators the tiles hold */
INLINE void multiply(const int signs, const bool half, const int kind, const struct block *block,
		     struct held *h, struct finish *f, const struct bounds *bounds,
		     const struct overlapped *overlapped)
{
	/* Pairs of rows whose epilogue can be overlapped: those of whole blocks of columns */
	const int64_t count = f->mask == ~0u && f->kind == kind ? f->rows / 2 : 0;
	struct overlapped s = *overlapped;
	struct block k = *block, part;
	int64_t pairs;

	first_step(signs, half, &k, h);
	if (f->rows > 0)
		subtract_zero_points(f);
	for (int64_t r = 0; r < s.rows; r++)
		_mm512_storeu_si512(s.to + r * STEP, _mm512_loadu_si512(s.from + r * s.from_ld));
	s.from += STEP;
	s.to += PAIR;
	k.a += k.a_step;
	k.b += PAIR;
	k.steps--;
	/* With 16 steps, 15 here, the last pair is left. */
	pairs = k.steps >= count - 1 ? 1 : k.steps >= count / 2 - 1 ? 2 : 4;
	if (count == 0 || k.steps == 0)
		pairs = 0;
	if (pairs > 0) {
		part = k;
		part.steps = min_i64(k.steps, count / pairs);
		if (pairs == 1)
			run_steps(signs, half, kind, 1, &part, f, bounds, &s);
		else if (pairs == 2)
			run_steps(signs, half, kind, 2, &part, f, bounds, &s);
		else
			run_steps(signs, half, kind, 4, &part, f, bounds, &s);
		k.a += part.steps * k.a_step;
		k.b += part.steps * PAIR;
		k.steps -= part.steps;
		s.from += part.steps * STEP;
		s.to += part.steps * PAIR;
		s.soon += part.steps * s.lines * 64;
		finish_rows(f, bounds, part.steps * pairs * 2);
	} else {
		finish_rows(f, bounds, 0);
	}
	f->rows = 0;
	if (k.steps > 0)
		run_steps(signs, half, kind, 0, &k, f, bounds, &s);
	BARRIER();
}

/* Separate functions, so that each loop has all registers */
#define MULTIPLY(name, signs, half, kind) \
	static void name(const struct block *k, struct held *h, struct finish *f, \
			 const struct bounds *b, const struct overlapped *s) \
	{ \
		multiply(signs, half, kind, k, h, f, b, s); \
	}

MULTIPLY(multiply_uu, UU, false, CODES)
MULTIPLY(multiply_uu_floats, UU, false, FLOATS)
MULTIPLY(multiply_uu_half, UU, true, CODES)
MULTIPLY(multiply_uu_half_floats, UU, true, FLOATS)
MULTIPLY(multiply_us, US, false, CODES)
MULTIPLY(multiply_us_floats, US, false, FLOATS)
MULTIPLY(multiply_us_half, US, true, CODES)
MULTIPLY(multiply_us_half_floats, US, true, FLOATS)
MULTIPLY(multiply_su, SU, false, CODES)
MULTIPLY(multiply_su_floats, SU, false, FLOATS)
MULTIPLY(multiply_su_half, SU, true, CODES)
MULTIPLY(multiply_su_half_floats, SU, true, FLOATS)
MULTIPLY(multiply_ss, SS, false, CODES)
MULTIPLY(multiply_ss_floats, SS, false, FLOATS)
MULTIPLY(multiply_ss_half, SS, true, CODES)
MULTIPLY(multiply_ss_half_floats, SS, true, FLOATS)
#undef MULTIPLY

typedef void (*multiplier)(const struct block *, struct held *, struct finish *,
			   const struct bounds *, const struct overlapped *);

static const multiplier multiply_of[4][2][2] = {
	[UU] = {{multiply_uu, multiply_uu_half}, {multiply_uu_floats, multiply_uu_half_floats}},
	[US] = {{multiply_us, multiply_us_half}, {multiply_us_floats, multiply_us_half_floats}},
	[SU] = {{multiply_su, multiply_su_half}, {multiply_su_floats, multiply_su_half_floats}},
	[SS] = {{multiply_ss, multiply_ss_half}, {multiply_ss_floats, multiply_ss_half_floats}},
};

/* ---- Regions --------------------------------------------------------------------------------- */

/* Whether 32 rows of lines, ld bytes apart, need more than 9 of the 12 ways of a set of L1 */
static bool crowded(int64_t ld, int64_t lines)
{
	int count[64] = {0}, most = 0;

	for (int64_t r = 0; r < ROWS; r++) {
		for (int64_t i = 0; i < lines; i++) {
			const int n = ++count[(r * (ld / 64) + i) % 64];

			most = n > most ? n : most;
		}
	}
	return most > 9;
}

/* Row sums of a panel by tiles of ones. The tiles must hold nothing before. */
static void sum_rows(bool is_signed, const char *a, int64_t a_ld, int64_t a_step,
		     int64_t steps, int64_t rows, int32_t *row)
{
	int32_t sums[2][16][16] __attribute__((aligned(64)));

	_tile_zero(0);
	_tile_zero(1);
	_tile_loadd(6, ones, 0);
	for (int64_t i = 0; i < steps; i++, a += a_step) {
		_tile_loadd(4, a, a_ld);
		_tile_loadd(5, a + 16 * a_ld, a_ld);
		if (is_signed) {
			_tile_dpbsud(0, 4, 6);
			_tile_dpbsud(1, 5, 6);
		} else {
			_tile_dpbuud(0, 4, 6);
			_tile_dpbuud(1, 5, 6);
		}
	}
	_tile_stored(0, sums[0], 64);
	_tile_stored(1, sums[1], 64);
	BARRIER();
	for (int64_t r = 0; r < rows; r++)
		row[r] = sums[r / 16][r % 16][0];
}

struct region {
	const struct hzi_qgemm_mul *q;
	int64_t steps, panels, bands;	/* of k; of columns; of rows */
	int64_t width, part;		/* panels and steps at a time */
	bool one_zero;			/* all columns have one zero point */
	bool pack;			/* A is still to be packed */
	bool direct;			/* or its tiles are loaded in place */
	int kind;
	int64_t size;			/* bytes of an element of C */
	struct bounds bounds;
	struct held held;
	bool held_half;
	struct finish finish;		/* the block that the tiles hold, or that was just stored */
};

/*
 * Columns: as many panels of B at a time as stay in L2. Of 2 MiB, 1.25 keep the full rate when they
 * are read repeatedly; with k split, accumulators and two bands of A need space, too. Where B is
 * read only a few times and the next panels are prefetched meanwhile, a sixth. Rows: bands of 32.
 * k: parts whose panel of A stays in L1, unless there is one band, which reuses nothing. Bytes for
 * B at 2048^3: 1 MiB 5.98 ms, 768 KiB 5.60; at 4096^3 48.9, 47.8.
 */
static void plan(struct region *g)
{
	const struct hzi_qgemm_mul *q = g->q;
	const int64_t budget = g->bands <= SKINNY_BANDS ? 320 << 10 :
			     g->steps <= KC ? 1 << 20 : 768 << 10;
	int64_t most = budget / (g->steps * PAIR);

	g->part = g->bands == 1 ? g->steps : ceil_div(g->steps, ceil_div(g->steps, KC));
	if (most > (q->sums ? WIDTH : STACK_WIDTH) && g->part < g->steps)
		most = q->sums ? WIDTH : STACK_WIDTH;
	most = most < 1 ? 1 : most > WIDTH ? WIDTH : most;
	g->width = g->bands == 1 ? g->panels : ceil_div(g->panels, ceil_div(g->panels, most));
	g->pack = q->src;
	g->direct = q->src && q->m >= ROWS && q->k % STEP == 0 && q->src_ld % 64 == 0 &&
		    (uintptr_t)q->src % 64 == 0 && !crowded(q->src_ld, g->part);
	g->one_zero = q->raw || have_one_zero(q);
	if (g->kind == CODES)
		g->bounds = make_bounds(q);
}

/* The tiles have been stored. */
static void finish_held(struct region *g)
{
	g->held.sums = NULL;
	if (g->finish.rows > 0)
		subtract_zero_points(&g->finish);
	finish_rows(&g->finish, &g->bounds, 0);
	g->finish.rows = 0;
}

static void flush(struct region *g)
{
	if (g->held.sums)
		store(&g->held, g->held_half);
	finish_held(g);
}

/* Packs rows of band p from row `first` on; rows from m on are 0. */
static void pack_band(const struct region *g, int64_t p, int64_t first)
{
	const struct hzi_qgemm_mul *q = g->q;
	const int64_t rows = min_i64(ROWS, q->m - p * ROWS);
	char *to = (char *)q->a + p * g->steps * PAIR;

	for (int64_t r = first; r < rows; r++)
		pack_row((const char *)q->src + (p * ROWS + r) * q->src_ld, to + r * STEP, q->k,
			 q->src_ld, PAIR);
	for (int64_t r = rows; r < ROWS; r++) {
		for (int64_t i = 0; i < g->steps; i++)
			memset(to + i * PAIR + r * STEP, 0, STEP);
	}
}

/* Subtracts k times the zero points of rows from row sums that were computed here. */
static void subtract_row_zeros(const struct hzi_qgemm_mul *q, bool made, int64_t first,
			       int64_t rows)
{
	for (int64_t r = first; made && q->a_zero && r < first + rows; r++)
		q->row[r] =
			(int32_t)((uint32_t)q->row[r] - (uint32_t)q->k * (uint32_t)q->a_zero[r]);
}

/* The row sums of a band, for zero points of B, and their product with the one zero point */
static void prepare_rows(struct region *g, bool is_signed, int64_t p, const char *a,
			 int64_t a_ld, int64_t a_step, bool count, int32_t *off)
{
	const struct hzi_qgemm_mul *q = g->q;
	const int64_t rows = min_i64(ROWS, q->m - p * ROWS);
	int32_t *row = q->row + p * ROWS;

	if (count) {
		flush(g);
		sum_rows(is_signed, a, a_ld, a_step, g->steps, rows, row);
		subtract_row_zeros(q, true, p * ROWS, rows);
	}
	if (g->one_zero)
		times_zero(off, q->b_zero[0], row, rows);
}

/* Sets the rows of the next band to be packed during block j, steps from k0 on. */
static void plan_packing(const struct region *g, int64_t p, int64_t j, int64_t each, int64_t k0,
			 struct overlapped *s)
{
	const struct hzi_qgemm_mul *q = g->q;
	const int64_t first = (p + 1) * ROWS + j * each;

	s->from = (const char *)q->src + first * q->src_ld + k0 * STEP;
	s->from_ld = q->src_ld;
	s->to = (char *)q->a + ((p + 1) * g->steps + k0) * PAIR + j * each * STEP;
	s->rows = each;
	s->lines = 1;
	s->soon = s->from + each * q->src_ld;
}

/* After the block at a column of band p: records that tiles hold it, and sets up its epilogue. */
static void hold(struct region *g, int64_t p, int64_t column, char *own, const int32_t *off,
		 const struct float_row *float_row, bool last)
{
	const struct hzi_qgemm_mul *q = g->q;
	const int64_t rows = min_i64(ROWS, q->m - p * ROWS), columns = min_i64(COLS, q->n - column);
	const int64_t c_ld = q->c_ld * g->size;
	char *c = (char *)q->c + p * ROWS * c_ld + column * g->size;
	struct finish *f = &g->finish;

	g->held_half = rows <= ROWS / 2;
	if (last && q->raw && rows == ROWS && columns == COLS) {
		g->held = (struct held){c, c_ld};
		return;
	}
	g->held = (struct held){own, SUMS_LD};
	if (!last)
		return;
	f->sums = own;
	f->row = off;
	f->float_row = float_row;
	f->b_zero = g->one_zero ? NULL : q->b_zero + column;
	f->row_sum = q->row + p * ROWS;
	f->c = c;
	f->c_ld = c_ld;
	f->rows = rows;
	f->mask = (__mmask32)(~0u >> (COLS - columns));
	f->kind = g->kind;
	set_zero_points(f, q, p * ROWS, column);
	if (g->kind == CODES)
		set_scale(&f->scale, q->u + column, q->shift + column);
	else if (g->kind == FLOATS)
		set_floats(&f->floats, q, column, f->mask);
}

/*
 * Prefetches, during block j of a band, half of the rows of the line of C that the next block but
 * one and the one after it write; at the end of a band, those of the next band. Stores that miss
 * hold up loads: 5 % at 4096^3.
 */
static const char *next_c(const struct region *g, int64_t p, int64_t j0, int64_t j, int64_t width)
{
	const struct hzi_qgemm_mul *q = g->q;
	const int64_t panel = j0 + j;
	int64_t row = p * ROWS + panel % 2 * (ROWS / 2), column = (panel / 2 + 1) * 2 * COLS;

	if (j + 2 >= width) {
		row += p + 1 < g->bands ? ROWS : 0;
		column = j0 * COLS;
	}
	return (const char *)q->c + (row * q->c_ld + column) * g->size;
}

static void region(int signs, struct region *g)
{
	const struct hzi_qgemm_mul *q = g->q;
	const int64_t steps = g->steps, bands = g->bands;
	char own_sums[STACK_WIDTH * SUMS] __attribute__((aligned(64)));
	char *const sums = q->sums && g->part < steps ? q->sums : own_sums;
	/* Alternating: the last block of a band is finished during the first of the next. */
	int32_t off[2][ROWS] __attribute__((aligned(64))) = {{0}};
	struct float_row float_row[2][ROWS];
	int parity = 0;

	for (int64_t j0 = 0; j0 < g->panels; j0 += g->width) {
		const int64_t width = min_i64(g->width, g->panels - j0);
		const char *const b0 = (const char *)q->b + j0 * q->b_panel;
		const bool pack = g->pack && j0 == 0;
		const bool overlapped = pack && !g->direct && q->k % STEP == 0;
		/* Rows of the next band that are packed during a block */
		const int64_t each = width >= 32 ? 1 : 4;
		int64_t packed = 0;

		for (int64_t p = 0; p < bands; p++) {
			const int64_t rows = min_i64(ROWS, q->m - p * ROWS);
			const bool half = rows <= ROWS / 2, floats = g->kind == FLOATS;
			const multiplier multiply_block = multiply_of[signs][floats][half];
			const bool direct = g->direct && rows == ROWS;
			const bool next = p + 1 < bands && q->m - (p + 1) * ROWS >= ROWS;
			const char *const a = direct ? (const char *)q->src + p * ROWS * q->src_ld :
						       (const char *)q->a + p * steps * PAIR;
			const int64_t a_ld = direct ? q->src_ld : 64, a_step = direct ? 64 : PAIR;
			/* A share of the next band or part is prefetched during a block. */
			const bool prefetch_next = !direct && bands > SKINNY_BANDS;
			const char *soon = a + ROWS * q->src_ld;
			int64_t lines = next || prefetch_next ? ceil_div(ROWS, width) : 0;

			if (pack && !direct)
				pack_band(g, p, packed);
			packed = 0;
			parity ^= 1;
			if (half != g->held_half)
				flush(g);
			if (q->row && !q->raw)
				prepare_rows(g, signs >= SU, p, a, a_ld, a_step, pack, off[parity]);
			if (g->kind == FLOATS)
				set_float_rows(float_row[parity], q, p * ROWS, rows, off[parity]);
			if (bands <= SKINNY_BANDS) {
				/* A is small: prefetch the next columns of B instead. */
				lines = ceil_div(ROWS, bands);
				if (bands == 1 || j0 + width >= g->panels)
					lines = 0;
				soon = b0 + width * (q->b_panel + p * lines * STEP * steps);
			}
			for (int64_t k0 = 0; k0 < steps; k0 += g->part) {
				const bool last = k0 + g->part >= steps;

				if (prefetch_next)
					soon = !last ? a + (k0 + g->part) * PAIR :
					       p + 1 < bands ? a + steps * PAIR : q->a;
				for (int64_t j = 0; j < width; j++) {
					const int64_t column = (j0 + j) * COLS;
					char *own = sums + (g->part < steps ? j : j & 1) * SUMS;
					const struct block k = {
						.a = a + k0 * a_step, .a_ld = a_ld,
						.a_step = a_step,
						.b = b0 + j * q->b_panel + k0 * PAIR,
						.steps = min_i64(g->part, steps - k0),
						.init = k0 ? own : q->raw ? (const char *)zeros :
							(const char *)(q->col + column),
						.init_ld = k0 ? SUMS_LD : 0,
					};
					struct overlapped s = {
						.soon = soon, .lines = lines,
						.c = next_c(g, p, j0, j, width),
					};

					if (overlapped && next && j * each < ROWS) {
						plan_packing(g, p, j, each, k0, &s);
						packed = (j + 1) * each;
					} else if (bands == 1) {
						/* 32 rows; 4 steps ahead: 1.15 times as slow */
						s.soon = k.b + 2 * PAIR;
						s.lines = PAIR / 64;
					}
					multiply_block(&k, &g->held, &g->finish, &g->bounds, &s);
					soon += k.steps * lines * 64;
					hold(g, p, column, own, off[parity], float_row[parity],
					     last);
				}
			}
		}
	}
	flush(g);
}

#include "cpu/qgemm/skinny_amx.inc"

static void qgemm_mul(const struct hzi_qgemm_mul *q)
{
	const bool a_signed = q->a_dtype == HZ_S8, b_signed = q->b_dtype == HZ_S8;
	const int signs = a_signed ? b_signed ? SS : SU : b_signed ? US : UU;
	struct region g = {
		.q = q, .steps = ceil_div(q->k, STEP), .panels = ceil_div(q->n, COLS),
		.bands = ceil_div(q->m, ROWS), .kind = kind_of(q), .size = c_bytes(q),
	};

	plan(&g);
	if (q->m <= ROWS / 2) {
		skinny(signs, &g);
	} else {
		__asm__ volatile("ldtilecfg %0" : : "m"(config));
		region(signs, &g);
	}
	/* Releasing the tiles saves 8 KiB of state at a context switch. */
	_tile_release();
}

void hzi_qgemm_kern_amx(void *table)
{
	struct hzi_qgemm_kern *const kern = table;

	kern->rows = ROWS;
	kern->sums = WIDTH * SUMS;
	kern->packs_a = kern->float_epilogue = true;
	kern->pack_a_bytes = qgemm_pack_a_bytes;
	kern->pack_a_offset = qgemm_pack_a_offset;
	kern->pack_a = qgemm_pack_a;
	kern->mul = qgemm_mul;
}
