/*
 * packing.c - unpacks lattice codes of any packing to arrays of indices, and packs them, on the CPU
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include "cpu/lattice/lattice.h"

void hzi_lattice_codec(const struct hzi_lattice_kern *kern, const struct hzi_lattice_rule *r,
		       const struct hzi_lattice_simd *lanes, int32_t dtype, int32_t pack,
		       struct hzi_lattice_codec *c)
{
	int digit = 0;

	*c = (struct hzi_lattice_codec){
		.kern = kern,
		.rule = r,
		.lanes = *lanes,
		.bytes = (int32_t)size_of(dtype),
		.pack = pack,
		.aligned = true,
	};
	hzi_lattice_index_layout(r, lanes, &c->layout);
	for (int n = 0; n < c->layout.arrays && pack == HZ_LATTICE_LIMBS; n++) {
		const int digits = hzi_lattice_array_digits(&c->layout, n);
		const int at = digit % r->limb_digits;

		c->limb[n] = (uint8_t)(digit / r->limb_digits);
		c->weight[n] = 1;
		for (int i = 0; i < at; i++)
			c->weight[n] *= (uint32_t)r->q;
		c->aligned &= at + digits <= r->limb_digits;
		digit += digits;
	}
}

/* ---- Codes to indices ------------------------------------------------------------------------ */

/*
 * Splits the digits of all levels, one number, into arrays; array n of those used goes to index[n *
 * step].
 */
static void split_full64(const struct hzi_lattice_codec *c, uint64_t number, int64_t step,
			 uint16_t *index)
{
	const int used = c->first * c->layout.per_level;

	for (int n = 0; n < c->layout.arrays; n++) {
		const uint32_t power = c->layout.power[hzi_lattice_array_digits(&c->layout, n)];
		const uint64_t upper = number / power;

		if (n >= used)
			index[(n - used) * step] = (uint16_t)(number - upper * power);
		number = upper;
	}
}

/* The same for count blocks and q = 2^k */
static void shift_full64(const struct hzi_lattice_codec *c, const uint64_t *codes, int64_t count,
			 int64_t step, uint16_t *index)
{
	const int used = c->first * c->layout.per_level;
	int shift = 0;

	for (int n = 0; n < c->layout.arrays; n++) {
		const int digits = hzi_lattice_array_digits(&c->layout, n);
		const uint64_t mask = c->layout.power[digits] - 1;
		uint16_t *const to = index + (n - used) * step;

		for (int64_t i = 0; i < count && n >= used; i++)
			to[i] = (uint16_t)(codes[i * c->block] >> shift & mask);
		shift += digits * c->rule->log2q;
	}
}

/* Limbs that hold whole arrays */
static void split_aligned_limbs(const struct hzi_lattice_codec *c, const uint32_t *codes,
				int64_t count, int64_t step, uint16_t *index)
{
	const bool pow2 = c->rule->log2q >= 0;

	for (int n = c->first * c->layout.per_level; n < c->layout.arrays; n++, index += step) {
		const uint32_t *const from = codes + c->limb[n] * c->level;
		const uint32_t weight = c->weight[n];
		const uint32_t power = c->layout.power[hzi_lattice_array_digits(&c->layout, n)];
		const int shift = __builtin_ctz(weight);

		for (int64_t i = 0; i < count && pow2; i++)
			index[i] = (uint16_t)(from[i * c->block] >> shift & (power - 1));
		for (int64_t i = 0; i < count && !pow2; i++)
			index[i] = (uint16_t)(from[i * c->block] / weight % power);
	}
}

/* Reads digits limb by limb, writes them array by array. */
static void split_limbs(const struct hzi_lattice_codec *c, const uint32_t *from, int64_t step,
			uint16_t *index)
{
	const int used = c->first * c->layout.per_level;
	uint32_t limb = 0;
	int left = 0;

	for (int n = 0; n < c->layout.arrays; n++) {
		int digits = hzi_lattice_array_digits(&c->layout, n);
		uint32_t sum = 0, weight = 1;

		while (digits) {
			uint32_t upper;
			int some;

			if (left == 0) {
				limb = *from;
				from += c->level;
				left = c->rule->limb_digits;
			}
			some = digits < left ? digits : left;
			upper = limb / c->layout.power[some];
			sum += (limb - upper * c->layout.power[some]) * weight;
			weight *= c->layout.power[some];
			limb = upper;
			digits -= some;
			left -= some;
		}
		if (n >= used)
			index[(n - used) * step] = (uint16_t)sum;
	}
}

void hzi_lattice_unpack_codes(const struct hzi_lattice_codec *c, const void *codes, int64_t count,
			      int64_t step, uint16_t *index)
{
	const struct hzi_lattice_rule *r = c->rule;

	if (c->pack == HZ_LATTICE_LIMBS && c->aligned) {
		split_aligned_limbs(c, codes, count, step, index);
	} else if (c->pack == HZ_LATTICE_LIMBS) {
		for (int64_t i = 0; i < count; i++)
			split_limbs(c, (const uint32_t *)codes + i * c->block, step, index + i);
	} else if (c->pack == HZ_LATTICE_FULL64 && r->log2q >= 0) {
		shift_full64(c, codes, count, step, index);
	} else if (c->pack == HZ_LATTICE_FULL64) {
		for (int64_t i = 0; i < count; i++)
			split_full64(c, ((const uint64_t *)codes)[i * c->block], step, index + i);
	} else {
		c->kern->index(&(struct hzi_lattice_index){
			.lanes = &c->lanes,
			.codes = codes,
			.index = index,
			.count = count,
			.step = step,
			.code_block = c->block,
			.code_level = c->level,
			.levels = r->levels - c->first,
			.bytes = c->bytes,
			.size = r->level_size,
			.weight = c->layout.power[c->layout.digits],
		});
	}
}

/* ---- Indices to codes ------------------------------------------------------------------------ */

/* The digits of a level, as one number, from the arrays that begin at index */
static inline uint32_t level_of(const struct hzi_lattice_codec *c, const uint16_t *index,
				int64_t step)
{
	uint32_t number = 0;

	for (int n = c->layout.per_level - 1; n >= 0; n--)
		number = number * c->layout.power[c->layout.digits] + index[n * step];
	return number;
}

/* LEVEL, any strides */
static inline void store_levels(const struct hzi_lattice_codec *c, const uint16_t *index,
				int64_t count, int64_t step, void *codes, const int64_t bytes)
{
	for (int m = 0; m < c->rule->levels; m++, index += c->layout.per_level * step) {
		for (int64_t i = 0; i < count; i++) {
			const int64_t at = i * c->block + m * c->level;

			if (bytes == 1)
				((uint8_t *)codes)[at] = (uint8_t)index[i];
			else if (bytes == 2)
				((uint16_t *)codes)[at] = index[i];
			else
				((uint32_t *)codes)[at] = level_of(c, index + i, step);
		}
	}
}

/* FULL64, which has one number a block */
static void store_full64(const struct hzi_lattice_codec *c, const uint16_t *index, int64_t count,
			 int64_t step, uint64_t *codes)
{
	for (int n = c->layout.arrays - 1; n >= 0; n--) {
		const uint64_t power = c->layout.power[hzi_lattice_array_digits(&c->layout, n)];
		const uint16_t *const from = index + n * step;
		const bool more = n + 1 < c->layout.arrays;

		for (int64_t i = 0; i < count; i++) {
			uint64_t *const to = codes + i * c->block;

			*to = (more ? *to * power : 0) + from[i];
		}
	}
}

/* Limbs that hold whole arrays */
static void store_aligned_limbs(const struct hzi_lattice_codec *c, const uint16_t *index,
				int64_t count, int64_t step, uint32_t *codes)
{
	for (int n = 0, arrays; n < c->layout.arrays; n += arrays) {
		struct hzi_lattice_limb limb = {
			.index = index + n * step,
			.to = codes + c->limb[n] * c->level,
			.count = count,
			.step = step,
			.block = c->block,
		};

		for (arrays = 0; n + arrays < c->layout.arrays &&
		     c->limb[n + arrays] == c->limb[n]; arrays++)
			limb.power[arrays] = c->layout.power[
				hzi_lattice_array_digits(&c->layout, n + arrays)];
		limb.arrays = arrays;
		c->kern->limb(&limb);
	}
}

/* Reads digits array by array, writes them limb by limb. */
static void store_limbs(const struct hzi_lattice_codec *c, const uint16_t *index, int64_t step,
			uint32_t *to)
{
	const int limb_digits = c->rule->limb_digits;
	uint32_t limb = 0, weight = 1;
	int free_digits = limb_digits;

	for (int n = 0; n < c->layout.arrays; n++) {
		uint32_t left = index[n * step];
		int digits = hzi_lattice_array_digits(&c->layout, n);

		while (digits) {
			const int some = digits < free_digits ? digits : free_digits;

			if (some == digits) {
				limb += left * weight;
			} else {
				const uint32_t upper = left / c->layout.power[some];

				limb += (left - upper * c->layout.power[some]) * weight;
				left = upper;
			}
			digits -= some;
			free_digits -= some;
			weight *= c->layout.power[some];
			if (free_digits == 0) {
				*to = limb;
				to += c->level;
				limb = 0;
				weight = 1;
				free_digits = limb_digits;
			}
		}
	}
	if (free_digits < limb_digits)
		*to = limb;
}

void hzi_lattice_pack_codes(const struct hzi_lattice_codec *c, const uint16_t *index, int64_t count,
			    int64_t step, void *codes)
{
	const struct hzi_lattice_rule *r = c->rule;

	if (c->pack == HZ_LATTICE_LIMBS && c->aligned) {
		store_aligned_limbs(c, index, count, step, codes);
	} else if (c->pack == HZ_LATTICE_LIMBS) {
		for (int64_t i = 0; i < count; i++)
			store_limbs(c, index + i, step, (uint32_t *)codes + i * c->block);
	} else if (c->pack == HZ_LATTICE_FULL64) {
		store_full64(c, index, count, step, codes);
	} else if ((c->level == 1 || r->levels == 1) && c->block == r->levels &&
		   c->layout.per_level == 1 && c->bytes <= 2 && step == RUN) {
		c->kern->codes(&(struct hzi_lattice_codes){
			.index = index,
			.codes = codes,
			.count = count,
			.levels = r->levels,
			.bytes = c->bytes,
		});
	} else if (c->bytes == 1) {
		store_levels(c, index, count, step, codes, 1);
	} else if (c->bytes == 2) {
		store_levels(c, index, count, step, codes, 2);
	} else {
		store_levels(c, index, count, step, codes, 4);
	}
}
