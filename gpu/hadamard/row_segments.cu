/*
 * row_segments.cu - a few rows of segments of several lengths 2^k, in one launch, also to codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A block has a segment in shared memory. To codes, the blocks of a cluster have all segments of a
 * row, so that the largest magnitude of the row is found by one pass over it.
 */
#include "gpu/device/pdl.cuh"
#include "gpu/hadamard/shared_rows.cuh"
#include "gpu/quantize/quantize.cuh"

extern __shared__ float4 shared[];

/* The offsets of a vector in each operand */
HZ_DEVICE hzi_hadamard_dim position_of(const hzi_hadamard_row_segments &p, int64_t vector)
{
	const int64_t hi = vector / p.dim[1].size, lo = vector - hi * p.dim[1].size;
	const hzi_hadamard_dim &a = p.dim[0], &b = p.dim[1];

	return {0, hi * a.x + lo * b.x, hi * a.y + lo * b.y, hi * a.pre + lo * b.pre,
		hi * a.post + lo * b.post, hi * a.scale + lo * b.scale,
		hi * a.row_offset + lo * b.row_offset};
}

/* Eight results from element e of a segment on */
HZ_DEVICE void finish(float *v, const hzi_hadamard_job &job, const hzi_hadamard_segment &seg,
		      const padded_row &row, int64_t post, int e)
{
	load_piece<4>(v, row.at(e));
	load_piece<4>(v + 4, row.at(e) + 4);
#pragma unroll
	for (int j = 0; j < 8; j++)
		v[j] = __fmul_rn(v[j], seg.factor);
	if (job.post_kind)
		multiply_factors<8>(v, job.post_kind, job.post, post + seg.offset + e);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
hadamard_row_segments(const __grid_constant__ hzi_hadamard_row_segments p)
{
	const hzi_hadamard_job &job = p.job;
	const hzi_hadamard_segment &seg = p.seg[blockIdx.y];
	const padded_row row((float *)shared, seg.k);
	const int n = (int)seg.count << seg.k;

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t vector = blockIdx.x; vector < job.vectors; vector += gridDim.x) {
		const hzi_hadamard_dim at = position_of(p, vector);

		transform_rows(row, job, at.x + seg.offset, at.pre + seg.offset, n, seg.k);
		for (int e = 8 * threadIdx.x; e < n; e += 8 * blockDim.x) {
			const int64_t to = at.y + seg.offset + e;
			float v[8];

			finish(v, job, seg, row, at.post, e);
			with_dtype(job.y_dtype, [&](auto dtype) {
				constexpr int DTYPE = decltype(dtype)::value;
				char *y = (char *)job.y + to * (DTYPE == HZ_F32 ? 4 : 2);

				store_results<DTYPE, 4>(y, v);
				store_results<DTYPE, 4>(y + (DTYPE == HZ_F32 ? 16 : 8), v + 4);
			});
		}
		__syncthreads();
	}
}

/* Stores the codes of eight values, from code `to` on. */
HZ_DEVICE void store_8_codes(const hzi_hadamard_job &job, int64_t to, float *v, const quantizer &z)
{
	with_code_dtype(job.y_dtype, [&](auto dtype) {
		constexpr int DTYPE = decltype(dtype)::value;
		uint8_t *y = (uint8_t *)job.y + code_bytes<DTYPE>(to);

		if (z.shift != 1) {
#pragma unroll
			for (int j = 0; j < 8; j++)
				v[j] = shifted(v[j], z, DTYPE);
		}
		store_codes<4, DTYPE>(y, encode<4, DTYPE>(v, z));
		store_codes<4, DTYPE>(y + code_bytes<DTYPE>(4), encode<4, DTYPE>(v + 4, z));
	});
}

/* The quantizer of a group of this largest magnitude, whose scale `lead` stores as number i */
HZ_DEVICE quantizer quantizer_for(const hzi_hadamard_job &job, float most, int64_t i, bool lead)
{
	uint32_t code;
	const float scale = group_scale(most, job.y_dtype, job.scale_dtype, &code);

	if (lead)
		store_scale(job.scale_dtype, job.scale, i, scale, code);
	return quantizer_of(scale, job.y_dtype);
}

/*
 * Groups are whole rows, or of 32 to 256 elements within segments: those of up to 32 lanes. Block r
 * of a cluster of C has segments r, r + C, ... of a row.
 */
extern "C" __global__ void __launch_bounds__(1024, 1)
hadamard_row_segments_quantize(const __grid_constant__ hzi_hadamard_row_segments p)
{
	const hzi_hadamard_job &job = p.job;
	const int rank = blockIdx.x, blocks = gridDim.x, g = job.group_log2;
	const bool row_group = g == HZI_GROUP_IS_ROW;
	float *const scratch = (float *)shared;

	/* each(segment, its shared memory) */
	auto segments = [&](auto each) {
		float *buffer = scratch + 32;

		for (int s = rank; s < p.nseg; s += blocks) {
			const hzi_hadamard_segment &seg = p.seg[s];
			const padded_row row(buffer, seg.k);

			each(seg, row);
			buffer = row.at((int)seg.count << seg.k);
		}
	};

	pdl_launch_dependents();
	pdl_wait();
	for (int64_t vector = blockIdx.y; vector < job.vectors; vector += gridDim.y) {
		const hzi_hadamard_dim at = position_of(p, vector);
		float most = 0;

		segments([&](const hzi_hadamard_segment &seg, const padded_row &row) {
			const int n = (int)seg.count << seg.k, lane = threadIdx.x % 32;

			transform_rows(row, job, at.x + seg.offset, at.pre + seg.offset, n, seg.k);
			for (int i = threadIdx.x; i - lane < n / 8; i += blockDim.x) {
				const int e = 8 * i;
				const bool here = e < n;
				float v[8] = {}, m = 0;

				if (here)
					finish(v, job, seg, row, at.post, e);
#pragma unroll
				for (int j = 0; j < 8; j++) {
					v[j] = round_to(job.round_to, v[j]);
					m = max_nan(m, fabsf(v[j]));
				}
				if (row_group) {
					most = max_nan(most, m);
					if (here) {
						store_piece<4>(row.at(e), v);
						store_piece<4>(row.at(e) + 4, v + 4);
					}
					continue;
				}
				for (int b = 1; b < 1 << (g - 3); b *= 2)
					m = max_nan(m, __shfl_xor_sync(~0u, m, b));

				const quantizer z = quantizer_for(
					job, m,
					at.scale + ((at.row_offset + seg.offset + e) >> g),
					here && (e & ((1 << g) - 1)) == 0);

				if (here)
					store_8_codes(job, at.y + seg.offset + e, v, z);
			}
		});
		if (row_group) {
			most = max_block(most, scratch, 31 - __clz(blocks));

			const quantizer z = quantizer_for(job, most, at.scale,
							  rank == 0 && threadIdx.x == 0);

			segments([&](const hzi_hadamard_segment &seg, const padded_row &row) {
				const int n = (int)seg.count << seg.k;

				for (int e = 8 * threadIdx.x; e < n; e += 8 * blockDim.x) {
					float v[8];

					load_piece<4>(v, row.at(e));
					load_piece<4>(v + 4, row.at(e) + 4);
					store_8_codes(job, at.y + seg.offset + e, v, z);
				}
			});
		}
		__syncthreads();
	}
}
