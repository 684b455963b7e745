/*
 * vnni.c - the micro-kernels for AVX-512 with VNNI and bfloat16 conversion
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#define HZ_VEC HZ_VEC_AVX512
#include "cpu/core/kern.inc"
#include "cpu/vlut/d4_bitfield512.inc"
#include "cpu/qgemm/epilogue512.inc"

/* ---- Quantized multiplication ---------------------------------------------------------------- */

/*
 * The instruction multiplies unsigned by signed bytes and adds four products. B stays as it is, so
 * A is made to have the other sign: by 128 less or more, which flips the upper bit of a code.
 *
 * A is packed as [m / 12][k / 64][12][64]: a block is 12 rows by a panel of 32 columns, 24 vectors
 * of sums, for each four of k two loads of B and 12 of A, which are spread by the load itself.
 */
enum {
	BLOCK = 12,
	STEP = 64,
	STEPS_AHEAD = 8 * STEP * 32	/* bytes of B */
};

static int64_t vnni_pack_a_bytes(int64_t m, int64_t k)
{
	return ceil_div(m, BLOCK) * BLOCK * ceil_div(k, STEP) * STEP;
}

static int32_t vnni_pack_a_less(int32_t a_dtype, int32_t b_dtype)
{
	return a_dtype != b_dtype ? 0 : a_dtype == HZ_U8 ? 128 : -128;
}

static void vnni_pack_a(const struct hzi_qpack_a *a)
{
	const int64_t block = vnni_pack_a_bytes(BLOCK, a->k);
	const bool is_signed = a->b_dtype == HZ_U8;	/* what is packed */
	const __m512i flip = _mm512_set1_epi8(a->a_dtype == a->b_dtype ? -128 : 0);

	for (int64_t i = 0; i < a->m; i++) {
		const char *from = (const char *)a->a + i * a->a_m;
		char *to = (char *)a->packed + i / BLOCK * block + i % BLOCK * STEP;
		__m512i sum = _mm512_setzero_si512();

		for (int64_t l = 0; l < a->k; l += STEP, to += BLOCK * STEP) {
			const int64_t n = min_i64(STEP, a->k - l);
			const __mmask64 mask = ~0ull >> (STEP - n);
			__m512i v;

			if (a->a_k == 1) {
				v = _mm512_maskz_loadu_epi8(mask, from + l);
			} else {
				char codes[STEP] = {0};

				for (int64_t j = 0; j < n; j++)
					codes[j] = from[(l + j) * a->a_k];
				v = _mm512_loadu_si512(codes);
			}
			v = _mm512_maskz_mov_epi8(mask, _mm512_xor_si512(v, flip));
			sum = add_fours(sum, v, is_signed);
			_mm512_storeu_si512(to, v);
		}
		if (a->row)
			a->row[i] = _mm512_reduce_add_epi32(sum);
	}
	for (int64_t i = a->m; i % BLOCK; i++) {
		char *to = (char *)a->packed + i / BLOCK * block + i % BLOCK * STEP;

		for (int64_t l = 0; l < a->k; l += STEP, to += BLOCK * STEP)
			memset(to, 0, STEP);
	}
}

/*
 * Rows of a block by a panel; sums start as those at col, or 0. B is fetched eight steps ahead, each
 * line as far before its use: with two steps an AMD EPYC (Zen 5) took 1.4 to 1.8 times as long by 8
 * to 16 rows, for memory took its turn with the multiplications. In the order in which lines lie
 * that would be 0.35 instead of 0.37 ms by 4 x 4096 x 4096, but 1.36 instead of 0.76 on a Xeon.
 */
INLINE void vnni_sums(const int rows, const bool b_signed, const char *a, const char *b,
		      int64_t steps, const int32_t *col, char *sums)
{
	__m512i acc[BLOCK][2];

	UNROLL
	for (int r = 0; r < rows; r++) {
		acc[r][0] = col ? _mm512_loadu_si512(col) : _mm512_setzero_si512();
		acc[r][1] = col ? _mm512_loadu_si512(col + 16) : _mm512_setzero_si512();
	}
	for (int64_t i = 0; i < steps; i++, a += (BLOCK - 1) * STEP) {
		for (const char *end = a + STEP; a < end; a += 4, b += 64) {
			const __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + 1024);

			_mm_prefetch(b + STEPS_AHEAD, _MM_HINT_T0);
			_mm_prefetch(b + STEPS_AHEAD + 1024, _MM_HINT_T0);

			UNROLL
			for (int r = 0; r < rows; r++) {
				int32_t four;
				__m512i v;

				memcpy(&four, a + r * STEP, 4);
				v = _mm512_set1_epi32(four);
				acc[r][0] = b_signed ? _mm512_dpbusd_epi32(acc[r][0], v, b0) :
						       _mm512_dpbusd_epi32(acc[r][0], b0, v);
				acc[r][1] = b_signed ? _mm512_dpbusd_epi32(acc[r][1], v, b1) :
						       _mm512_dpbusd_epi32(acc[r][1], b1, v);
			}
		}
		b += 1024;
	}
	UNROLL
	for (int r = 0; r < rows; r++) {
		_mm512_storeu_si512(sums + r * SUMS_LD, acc[r][0]);
		_mm512_storeu_si512(sums + r * SUMS_LD + 64, acc[r][1]);
	}
}

/*
 * Less than 12 rows as the next larger number that there is, up to 4 of a panel that is not near as
 * 6: from memory those take 0.37 ms for 4096 x 4096 on that EPYC, and 4 rows 0.45.
 */
INLINE void vnni_block(const bool b_signed, const bool near, int64_t rows, const char *a,
		       const char *b, int64_t steps, const int32_t *col, char *sums)
{
	if (rows > 8)
		vnni_sums(12, b_signed, a, b, steps, col, sums);
	else if (rows > 6)
		vnni_sums(8, b_signed, a, b, steps, col, sums);
	else if (rows > 4 || (rows > 2 && !near))
		vnni_sums(6, b_signed, a, b, steps, col, sums);
	else if (rows > 2)
		vnni_sums(4, b_signed, a, b, steps, col, sums);
	else if (rows > 1)
		vnni_sums(2, b_signed, a, b, steps, col, sums);
	else
		vnni_sums(1, b_signed, a, b, steps, col, sums);
}

/* A panel of B stays in L1 or L2 while so much of A as fits L2 passes by. */
static void vnni_mul(const struct hzi_qmul *q)
{
	const int64_t steps = ceil_div(q->k, STEP), block = vnni_pack_a_bytes(BLOCK, q->k);
	const int64_t some = BLOCK * (1 + (512 << 10) / block);	/* rows */
	const bool b_signed = q->b_dtype == HZ_S8, one_zero = q->raw || have_one_zero(q);
	const int kind = kind_of(q);
	const struct bounds bounds = kind == CODES ? make_bounds(q) : (struct bounds){0};
	const int64_t size = c_bytes(q);
	struct float_row float_row[BLOCK];
	char sums[BLOCK * SUMS_LD] __attribute__((aligned(64)));
	int32_t off[BLOCK] = {0};

	for (int64_t i0 = 0; i0 < q->m; i0 += some) {
		for (int64_t j = 0; j < q->n; j += COLS) {
			const char *b = (const char *)q->b + j / COLS * q->b_panel;
			struct finish f = {
				.sums = sums, .row = off, .c_ld = q->c_ld * size, .kind = kind,
				.float_row = float_row,
				.mask = (__mmask32)(~0u >> (COLS - min_i64(COLS, q->n - j))),
				.b_zero = one_zero || !q->row ? NULL : q->b_zero + j,
			};

			if (kind == CODES)
				set_scale(&f.scale, q->u + j, q->shift + j);
			else if (kind == FLOATS)
				set_floats(&f.floats, q, j, f.mask);
			for (int64_t i = i0; i < min_i64(i0 + some, q->m); i += BLOCK) {
				const char *a = (const char *)q->a + i / BLOCK * block;
				const int32_t *col = q->raw ? NULL : q->col + j;

				f.rows = min_i64(BLOCK, q->m - i);
				f.c = (char *)q->c + i * f.c_ld + j * size;
				if (b_signed)
					vnni_block(true, i > i0, f.rows, a, b, steps, col, sums);
				else
					vnni_block(false, i > i0, f.rows, a, b, steps, col, sums);
				if (q->row && !q->raw) {
					f.row_sum = q->row + i;
					if (one_zero)
						times_zero(off, q->b_zero[0], f.row_sum, f.rows);
				}
				set_zeros(&f, q, i, j);
				take_zeros(&f);
				if (kind == FLOATS)
					set_float_rows(float_row, q, i, f.rows, off);
				finish_rest(&f, &bounds, 0);
			}
		}
	}
}

/* ---- Packing of B ---------------------------------------------------------------------------- */

/* Four rows of 32 codes to two of the layout: 16 columns of four codes each */
INLINE void four_rows(const __m256i *row, __m512i *halves)
{
	const __m256i low01 = _mm256_unpacklo_epi8(row[0], row[1]);
	const __m256i high01 = _mm256_unpackhi_epi8(row[0], row[1]);
	const __m256i low23 = _mm256_unpacklo_epi8(row[2], row[3]);
	const __m256i high23 = _mm256_unpackhi_epi8(row[2], row[3]);
	/* In parts of 128 bits: columns 0 .. 3, 16 .. 19, 4 .. 7, 20 .. 23; 8 .. 11 and so on */
	const __m512i a = _mm512_inserti64x4(
		_mm512_castsi256_si512(_mm256_unpacklo_epi16(low01, low23)),
		_mm256_unpackhi_epi16(low01, low23), 1);
	const __m512i b = _mm512_inserti64x4(
		_mm512_castsi256_si512(_mm256_unpacklo_epi16(high01, high23)),
		_mm256_unpackhi_epi16(high01, high23), 1);

	halves[0] = _mm512_shuffle_i64x2(a, b, 0x88);
	halves[1] = _mm512_shuffle_i64x2(a, b, 0xdd);
}

/* 16 x 16 lanes transposed */
INLINE void transpose_lanes(__m512i *v)
{
	__m512i t[16];

	UNROLL
	for (int i = 0; i < 16; i += 2) {
		t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
		t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
	}
	UNROLL
	for (int i = 0; i < 16; i += 4) {
		v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
		v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
		v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
		v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
	}
	/* v[4 i + j]: of rows 4 i .. 4 i + 3 lanes j, 4 + j, 8 + j, 12 + j */
	UNROLL
	for (int j = 0; j < 4; j++) {
		t[j] = _mm512_shuffle_i32x4(v[j], v[4 + j], 0x88);
		t[4 + j] = _mm512_shuffle_i32x4(v[j], v[4 + j], 0xdd);
		t[8 + j] = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0x88);
		t[12 + j] = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0xdd);
	}
	UNROLL
	for (int j = 0; j < 4; j++) {
		v[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
		v[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
		v[4 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0x88);
		v[12 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0xdd);
	}
}

/* Rows of codes, back to back. Two panels at a time, which share the cache lines of a row. */
static void pack_rows_of_b(const struct hzi_qpack_b *a)
{
	const int64_t padded = ceil_div(a->k, STEP) * STEP;
	const bool is_signed = a->b_dtype == HZ_S8;

	for (int64_t j = 0; j < a->n; j += 2 * COLS) {
		__m512i sum[2][2] = {{_mm512_setzero_si512()}};
		const int panels = a->n - j > COLS ? 2 : 1;

		for (int64_t k = 0; k < padded; k += 4) {
			for (int p = 0; p < panels; p++) {
				const int64_t column = j + p * COLS;
				const __mmask32 mask = ~0u >> (COLS - min_i64(COLS, a->n - column));
				const char *from = (const char *)a->b + k * a->b_k + column;
				uint8_t *to = a->packed + column * padded + k / STEP * STEP * COLS +
					      k % STEP * 16;
				__m256i row[4];
				__m512i halves[2];

				for (int r = 0; r < 4; r++) {
					const __mmask32 m = k + r < a->k ? mask : 0;

					row[r] = _mm256_maskz_loadu_epi8(m, from + r * a->b_k);
				}
				four_rows(row, halves);
				_mm512_storeu_si512(to, halves[0]);
				_mm512_storeu_si512(to + 1024, halves[1]);
				sum[p][0] = add_fours(sum[p][0], halves[0], is_signed);
				sum[p][1] = add_fours(sum[p][1], halves[1], is_signed);
			}
		}
		for (int p = 0; p < panels; p++) {
			_mm512_storeu_si512(a->sum + j + p * COLS, sum[p][0]);
			_mm512_storeu_si512(a->sum + j + p * COLS + 16, sum[p][1]);
		}
	}
}

/* Columns of codes, back to back */
static void pack_columns_of_b(const struct hzi_qpack_b *a)
{
	const bool is_signed = a->b_dtype == HZ_S8;
	uint8_t *to = a->packed;

	for (int64_t j = 0; j < a->n; j += COLS) {
		__m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};

		for (int64_t k = 0; k < a->k; k += STEP) {
			const __mmask64 mask = ~0ull >> (STEP - min_i64(STEP, a->k - k));

			for (int h = 0; h < 2; h++, to += 1024) {
				__m512i v[16];

				UNROLL
				for (int c = 0; c < 16; c++) {
					const int64_t column = j + 16 * h + c;
					const char *from = (const char *)a->b + k + column * a->b_n;

					v[c] = _mm512_setzero_si512();
					if (column < a->n)
						v[c] = _mm512_maskz_loadu_epi8(mask, from);
				}
				transpose_lanes(v);
				UNROLL
				for (int r = 0; r < 16; r++) {
					_mm512_storeu_si512(to + r * 64, v[r]);
					sum[h] = add_fours(sum[h], v[r], is_signed);
				}
			}
		}
		_mm512_storeu_si512(a->sum + j, sum[0]);
		_mm512_storeu_si512(a->sum + j + 16, sum[1]);
	}
}

static void vnni_pack_b(const struct hzi_qpack_b *a)
{
	if (a->b_n == 1)
		pack_rows_of_b(a);
	else if (a->b_k == 1)
		pack_columns_of_b(a);
	else
		qpack_b(a);
}

/* macs multiplications in registers */
static void vnni_peak(int64_t macs)
{
	const __m512i a = _mm512_set1_epi32(0x7f3a91c5), b = _mm512_set1_epi32(0x1d95e3a7);
	__m512i sum[16];

	/* Opaque, lest one be taken for another */
	UNROLL
	for (int i = 0; i < 16; i++)
		__asm__ volatile("vpxorq %0, %0, %0" : "=v"(sum[i]));
	for (int64_t n = 0; n < macs; n += 16 * 64) {
		UNROLL
		for (int i = 0; i < 16; i++)
			sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
	}
	/* The sums count as used, so that they are made. */
	UNROLL
	for (int i = 0; i < 16; i++)
		__asm__ volatile("" : : "v"(sum[i]));
}

void hzi_kern_vnni(struct hz_kern *kern)
{
	fill(kern);
	kern->fields_rows = 3;
	kern->vlut_fields = fields512_few;
	kern->q_rows = BLOCK;
	kern->q_floats = true;
	kern->qpack_a_bytes = vnni_pack_a_bytes;
	kern->qpack_a_less = vnni_pack_a_less;
	kern->qpack_a = vnni_pack_a;
	kern->qpack_b = vnni_pack_b;
	kern->qmul = vnni_mul;
	kern->qpeak = vnni_peak;
}
