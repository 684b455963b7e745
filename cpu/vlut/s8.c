/*
 * s8.c - products with lattice codes: points and x as s8, by the micro-kernels of qgemm
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * p - o fits s8. A column of x is a factor times a sum of signed base-256 digits. The accumulators
 * are exact, so results do not depend on the ISA level or the number of threads.
 */
#include <config.h>

#include <string.h>

#include "cpu/qgemm/kern.h"
#include "cpu/vlut/vlut.h"
#include "lib/qgemm/qgemm.h"

#define CHUNK 16384		/* of k: 1 MiB of a panel's points; sums of 2^28 at most */
#define COLUMNS 96		/* multiplied at a time */

static bool from_bitfield(const struct hzi_vlut_s8 *j)
{
	return j->w->bitfield && j->w->w->packed;
}

/*
 * Columns of group g; and the rows of A that they need: with one row of 0, if packing offsets codes
 */
static int64_t group_cols(const struct hzi_vlut_s8 *j, int64_t g)
{
	return hzi_vlut_min(COLUMNS, j->cols - g * COLUMNS);
}

static int64_t group_rows(const struct hzi_vlut_s8 *j, int64_t cols)
{
	return cols * j->parts + (j->zero ? 1 : 0);
}

/* Scratch for the codes of a chunk */
static int64_t codes_bytes(const struct hzi_vlut_s8 *j)
{
	return from_bitfield(j) ? 0 : hzi_round_up(hzi_vlut_view_bytes(j->w, j->chunk), 64);
}

static int64_t chunk_k(const struct hzi_vlut_s8 *j, int64_t c)
{
	const int64_t k = hzi_vlut_min(j->chunk, j->w->blocks - c * j->chunk) * j->w->embed;

	return from_bitfield(j) ? hzi_round_up(k, 64) : k;
}

void hzi_vlut_s8_init(struct hzi_vlut_s8 *j, char *base, size_t *used)
{
	const struct hzi_qgemm_kern *const kern = hzi_qgemm_kern + j->ctx->level;
	const struct hzi_vlut_side *w = j->w;
	const int64_t most = hzi_vlut_min(COLUMNS, j->cols);
	int64_t padded;

	j->k = w->blocks * w->embed;
	if (from_bitfield(j))
		j->k = hzi_round_up(j->k, 64);
	j->chunk = hzi_vlut_min(CHUNK / w->embed, w->blocks);
	j->chunks = (w->blocks + j->chunk - 1) / j->chunk;
	j->groups = (j->cols + COLUMNS - 1) / COLUMNS;
	j->zero = kern->pack_a_offset(HZ_S8, HZ_S8) != 0;
	padded = hzi_round_up(j->chunk * w->embed, 64);
	j->threads = hzi_threads(j->ctx,
				 w->panels * HZI_VLUT_ROWS * j->k * (1 + j->cols * j->parts / 64));
	j->factor = hzi_vlut_workspace_take(base, used, 8 * j->cols);
	j->shift = hzi_vlut_workspace_take(base, used, 8 * j->cols);
	j->rows = hzi_vlut_workspace_take(base, used, (j->cols * j->parts + j->groups) * j->k);
	j->table = hzi_vlut_workspace_take(base, used, hzi_vlut_byte_table_bytes(w));
	j->packed_each = hzi_round_up(kern->pack_a_bytes(group_rows(j, most), padded), 64);
	j->packed = hzi_vlut_workspace_take(base, used, j->groups * j->chunks * j->packed_each);
	/* A view, the points, sums of a group, and these of all chunks */
	j->scratch_each = codes_bytes(j) +
			  HZI_VLUT_ROWS * padded +
			  HZI_VLUT_ROWS * (4 * group_rows(j, most) + 8 * most) + 64;
	j->scratch_each = hzi_round_up(j->scratch_each, 64);
	j->scratch = hzi_vlut_workspace_take(base, used, j->threads * j->scratch_each);
}

int8_t *hzi_vlut_s8_row(const struct hzi_vlut_s8 *j, int64_t col)
{
	return j->rows + (col * j->parts + col / COLUMNS) * j->k;
}

static void pack_rows(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_s8 *j = data;

	(void)thread;
	for (int64_t u = begin; u < end; u++) {
		const int64_t g = u / j->chunks, c = u % j->chunks, cols = group_cols(j, g);
		int8_t *row = hzi_vlut_s8_row(j, g * COLUMNS) + c * j->chunk * j->w->embed;
		const struct hzi_qgemm_pack_a p = {
			.a = row, .packed = j->packed + u * j->packed_each,
			.m = group_rows(j, cols),
			.k = chunk_k(j, c), .a_m = j->k, .a_k = 1, .a_dtype = HZ_S8,
			.b_dtype = HZ_S8,
		};

		memset(row + cols * j->parts * j->k, 0, (size_t)p.k);
		for (int64_t i = 0; i < cols * j->parts && from_bitfield(j); i++) {
			const int64_t k = hzi_vlut_min(p.k, (j->w->blocks - c * j->chunk) * 4);

			memset(row + i * j->k + k, 0, (size_t)(p.k - k));
			hzi_vlut_kern[j->ctx->level].bitfield_order(row + i * j->k, p.k);
		}
		hzi_qgemm_kern[j->ctx->level].pack_a(&p);
	}
}

/*
 * Adds sums of bytes, times their weight, to those of a column. They are integers below 2^53, which
 * baseline vectors add as 64-bit numbers and multiply by 256 at no cost.
 */
static void add_part(const int32_t *from, const int32_t *none, int part, double *to)
{
	typedef int32_t four __attribute__((vector_size(16)));
	typedef uint32_t bits __attribute__((vector_size(16)));
	typedef double sums __attribute__((vector_size(32)));
	const double weight = (double)((int64_t)1 << 8 * part);

	for (int r = 0; r < HZI_VLUT_ROWS; r += 4) {
		bits v, less = {0};
		sums s;

		memcpy(&v, from + r, sizeof(v));
		if (none)
			memcpy(&less, none + r, sizeof(less));
		memcpy(&s, to + r, sizeof(s));
		s += __builtin_convertvector((four)(v - less), sums) * weight;
		memcpy(to + r, &s, sizeof(s));
	}
}

/* Stores the sums of a column for a panel to y, with factor and shift. */
static void store_column(const struct hzi_vlut_s8 *j, int64_t panel, int64_t col,
			 const double *sums)
{
	const struct hzi_vlut_side *w = j->w;
	float y[HZI_VLUT_ROWS];

	if (j->y.dtype == HZ_S32) {
		const int64_t row = panel * HZI_VLUT_ROWS;
		int32_t *to = (int32_t *)j->y.y + row * j->y.y_i + col * j->y.y_j;

		for (int64_t i = 0; i < hzi_vlut_min(HZI_VLUT_ROWS, w->w->rows - row); i++)
			to[i * j->y.y_i] = (int32_t)(uint32_t)(int64_t)sums[i];
		return;
	}
	for (int i = 0; i < HZI_VLUT_ROWS; i++)
		y[i] = (float)(sums[i] * j->factor[col] + j->shift[col]);
	hzi_vlut_store(j->ctx, w, &j->y, panel, col, y);
}

static void multiply_panels(void *data, int thread, int64_t begin, int64_t end)
{
	const struct hzi_vlut_s8 *j = data;
	const struct hzi_vlut_side *w = j->w;
	const struct hz_context *ctx = j->ctx;
	const int64_t most = hzi_vlut_min(COLUMNS, j->cols);
	const int64_t padded = hzi_round_up(j->chunk * w->embed, 64), b_panel = 32 * padded;
	char *scratch = j->scratch + thread * j->scratch_each;
	uint8_t *codes = (uint8_t *)scratch;
	uint8_t *b = codes + codes_bytes(j);
	double *sums = (double *)(void *)(b + HZI_VLUT_ROWS * padded);
	int32_t *raw = (int32_t *)(void *)(sums + HZI_VLUT_ROWS * most);

	for (int64_t panel = begin; panel < end; panel++) {
		int64_t decoded = -1;

		for (int64_t g = 0; g < j->groups; g++) {
			const int64_t cols = group_cols(j, g), rows = group_rows(j, cols);

			memset(sums, 0, (size_t)(cols * HZI_VLUT_ROWS) * 8);
			for (int64_t c = 0; c < j->chunks; c++) {
				const struct hzi_qgemm_mul mul = {
					.a = j->packed + (g * j->chunks + c) * j->packed_each,
					.b = b,
					.c = raw, .m = rows, .n = HZI_VLUT_ROWS, .k = chunk_k(j, c),
					.b_panel = b_panel, .c_ld = HZI_VLUT_ROWS, .a_dtype = HZ_S8,
					.b_dtype = HZ_S8, .c_dtype = HZ_S32, .raw = true,
				};
				const int64_t blocks = mul.k / w->embed;
				const int32_t *none =
					j->zero ? raw + cols * j->parts * HZI_VLUT_ROWS : NULL;

				if (decoded != c && from_bitfield(j)) {
					hzi_vlut_bitfield_bytes(ctx, w, panel, c * j->chunk,
								mul.k / 4, b, b_panel);
					decoded = c;
				} else if (decoded != c) {
					const struct hzi_vlut_view v =
						hzi_vlut_view(ctx, w, panel, c * j->chunk, blocks,
							      codes);

					hzi_vlut_bytes(ctx, w, &v, j->table, blocks, b, b_panel);
					decoded = c;
				}
				hzi_qgemm_kern[ctx->level].mul(&mul);
				for (int64_t i = 0; i < cols * j->parts; i++)
					add_part(raw + i * HZI_VLUT_ROWS, none, (int)(i % j->parts),
						 sums + i / j->parts * HZI_VLUT_ROWS);
			}
			for (int64_t i = 0; i < cols; i++)
				store_column(j, panel, g * COLUMNS + i, sums + i * HZI_VLUT_ROWS);
		}
	}
}

void hzi_vlut_s8_run(struct hzi_vlut_s8 *j)
{
	hzi_vlut_byte_table(j->w, j->table);
	hzi_parallel(j->ctx, j->threads, pack_rows, j, j->groups * j->chunks);
	hzi_parallel(j->ctx, j->threads, multiply_panels, j, j->w->panels);
}
