/*
 * strided.cuh - rows with a base matrix, columns, and the fallback for any order and strides
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Part of rows.cu.
 */

/* ---- Rows with a base matrix ----------------------------------------------------------------- */

/*
 * Rows of n = m 2^k, m <= 64, 6 <= k <= 11, n a multiple of 2^(6 + MID), the elements of a thread
 * group of the second phase. A block transforms one vector: stages as above, then the base matrix.
 * For f32 results that is a sum in ascending order, by fused multiply-adds with +-1; a thread
 * computes 8 results of 4 columns.
 *
 * For 16-bit results it is a tf32 product on tensor cores: a value is split into two terms of 11
 * bits, which leaves an error of 2^-22 of it, far below the rounding of the result. Columns do not
 * mix, and rows that pad the matrix are exact zeros.
 *
 * In shared memory the row of each index of the base matrix begins `stride` words after the
 * previous one, stride % 32 = 8, so that the four rows that 8 threads read are in different banks.
 */
#define BASE_ORDER_MAX 64

template <int DTYPE>
HZ_DEVICE void store_8(void *p, const float *v)
{
	*(uint4 *)p = make_uint4(to_16x2<DTYPE>(v[0], v[1]), to_16x2<DTYPE>(v[2], v[3]),
				 to_16x2<DTYPE>(v[4], v[5]), to_16x2<DTYPE>(v[6], v[7]));
}

/* A warp computes rows row0 .. row0 + 31 and columns column .. column + 31. bits: 2 words a row */
HZ_DEVICE void multiply_base_mma(const hzi_hadamard_base_rows &p, const float *buffer,
				 const uint32_t *bits, int stride, char *y, int64_t post, int row0,
				 int column)
{
	const int m = p.job.m, k = p.job.k, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
	const float *from = buffer + q * stride + column + 4 * g + (column >> 6) * 4;
	float c[2][4][4] = {};

	for (int j0 = 0; j0 < m; j0 += 8, from += 8 * stride) {
		uint32_t a[2][4];
		float x[2][4] = {};

#pragma unroll
		for (int h = 0; h < 2; h++) {
			const int j = j0 + q + 4 * h;

			if (j < m)
				load_piece<4>(x[h], from + 4 * h * stride);
#pragma unroll
			for (int r = 0; r < 4; r++) {
				/*
				 * Rows g, g + 8 of both tiles of 16; entries of unused results do
				 * not matter.
				 */
				const uint32_t word = bits[(row0 + g + 8 * r) * 2 + (j >> 5)];

				a[r / 2][r % 2 + 2 * h] = 0x3f800000 | (word >> (j & 31) << 31);
			}
		}
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint32_t high[2], low[2];

#pragma unroll
			for (int h = 0; h < 2; h++) {
				high[h] = __float_as_uint(x[h][i]) & 0xffffe000;
				/* Inf has no lower part. */
				low[h] = fabsf(x[h][i]) < __uint_as_float(0x7f800000)
						 ? __float_as_uint(x[h][i] -
								   __uint_as_float(high[h]))
						 : 0;
			}
#pragma unroll
			for (int r = 0; r < 2; r++) {
				mma_m16n8k8_tf32(c[r][i], a[r], high[0], high[1]);
				mma_m16n8k8_tf32(c[r][i], a[r], low[0], low[1]);
			}
		}
	}
	/* Column 4 l + i of the 32 is column l of product i; here l = 2 q, 2 q + 1. */
#pragma unroll
	for (int r = 0; r < 4; r++) {
		const int row = row0 + g + 8 * r;
		float v[8];

#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = __fmul_rn(c[r / 2][i % 4][r % 2 * 2 + i / 4], p.job.factor);
		if (row < m) {
			const int e = (row << k) + column + 8 * q;

			if (p.job.post_kind)
				multiply_factors<8>(v, p.job.post_kind, p.job.post, post + e);
			if (p.job.y_dtype == HZ_F16)
				store_8<HZ_F16>(y + e * 2, v);
			else
				store_8<HZ_BF16>(y + e * 2, v);
		}
	}
}

/*
 * A thread computes rows row0 .. row0 + 7 and 4 columns. signs: entry (i, j) as +-1 at j *
 * BASE_ORDER_MAX + i
 */
HZ_DEVICE void multiply_base_fma(const hzi_hadamard_base_rows &p, const float *buffer,
				 const float *signs, int stride, float *y, int64_t post, int row0,
				 int column)
{
	const int m = p.job.m;
	const float *from = buffer + column + (column >> 6) * 4;
	float sum[8][4];

	for (int j = 0; j < m; j++, from += stride) {
		float x[4], sign[8];

		load_piece<4>(x, from);
		load_piece<4>(sign, signs + j * BASE_ORDER_MAX + row0);
		load_piece<4>(sign + 4, signs + j * BASE_ORDER_MAX + row0 + 4);
#pragma unroll
		for (int i = 0; i < 32; i++)
			sum[i / 4][i % 4] = j ? __fmaf_rn(sign[i / 4], x[i % 4], sum[i / 4][i % 4])
					      : __fmul_rn(sign[i / 4], x[i % 4]);
	}
#pragma unroll
	for (int i = 0; i < 8; i++) {
		const int e = ((row0 + i) << p.job.k) + column;

		if (row0 + i >= m)
			break;
#pragma unroll
		for (int l = 0; l < 4; l++)
			sum[i][l] = __fmul_rn(sum[i][l], p.job.factor);
		if (p.job.post_kind)
			multiply_factors<4>(sum[i], p.job.post_kind, p.job.post, post + e);
		store_results<HZ_F32, 4>(y + e, sum[i]);
	}
}

template <int MID>
HZ_DEVICE void rows_with_base(const hzi_hadamard_base_rows &p)
{
	constexpr int MV = 6 - MID;
	const int m = p.job.m, k = p.job.k, n = m << k, chunks = n >> 6;
	const int stride = p.stride, gap = stride - (ROW_WORDS << (k - 6));
	const bool mma = p.job.y_dtype != HZ_F32;
	float *buffer = (float *)shared, *signs = buffer + m * stride;
	uint32_t *bits = (uint32_t *)signs;
	float v[64];

	/* The address of chunk c of 64 elements */
	auto chunk_at = [&](int c) {
		return buffer + c * ROW_WORDS + (c >> (k - 6)) * gap;
	};

	if (mma) {
		for (int i = threadIdx.x; i < 2 * BASE_ORDER_MAX; i += blockDim.x)
			bits[i] = p.bits[i];
	} else {
		for (int i = threadIdx.x; i < m * BASE_ORDER_MAX; i += blockDim.x) {
			const int row = i % BASE_ORDER_MAX, j = i / BASE_ORDER_MAX;

			signs[i] = p.bits[row * 2 + (j >> 5)] >> (j & 31) & 1 ? -1.0f : 1.0f;
		}
	}
	for (int64_t vector = blockIdx.x; vector < p.job.vectors; vector += gridDim.x) {
		const int64_t hi = vector / p.dim[1].size, lo = vector - hi * p.dim[1].size;
		const int64_t x0 = hi * p.dim[0].x + lo * p.dim[1].x,
			      y0 = hi * p.dim[0].y + lo * p.dim[1].y;
		const int64_t pre = p.job.offset + hi * p.dim[0].pre + lo * p.dim[1].pre;
		const int64_t post = p.job.offset + hi * p.dim[0].post + lo * p.dim[1].post;
		const int pieces_log2 = p.job.x_dtype == HZ_F32 ? 4 : 3;
		const uint4 *x = (const uint4 *)((const char *)p.job.x +
						 x0 * (p.job.x_dtype == HZ_F32 ? 4 : 2));

		for (int i = threadIdx.x; i < chunks << pieces_log2; i += blockDim.x)
			cp_async(shared_address(chunk_at(i >> pieces_log2)) +
				 (i & ((1 << pieces_log2) - 1)) * 16,
			 x + i);
		cp_async_wait_all();
		__syncthreads();
		for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
			unpack<false>(v, p.job.x_dtype, (const uint4 *)chunk_at(c));
			if (p.job.pre_kind)
				multiply_factors<64>(v, p.job.pre_kind, p.job.pre, pre + c * 64);
			stages<64, 0, 6>(v, 6);
#pragma unroll
			for (int i = 0; i < 16; i++)
				store_piece<4>(chunk_at(c) + 4 * i, &v[4 * i]);
		}
		__syncthreads();
		for (int c = threadIdx.x; k > 6 && c < chunks; c += blockDim.x) {
			const int first = c >> MID << MID, at = (c & ((1 << MID) - 1)) << MV;

#pragma unroll
			for (int i = 0; i < 1 << MID; i++)
				load_piece<1 << MV>(&v[i << MV], chunk_at(first + i) + at);
			stages<64, MV, 6>(v, k - 6);
#pragma unroll
			for (int i = 0; i < 1 << MID; i++)
				store_piece<1 << MV>(chunk_at(first + i) + at, &v[i << MV]);
		}
		__syncthreads();
		if (mma) {
			const int column_tasks = 1 << (k - 5),
				  tasks = ((m + 31) >> 5) * column_tasks;

			for (int i = threadIdx.x / 32; i < tasks; i += blockDim.x / 32) {
				multiply_base_mma(p, buffer, bits, stride, (char *)p.job.y + y0 * 2,
						  post, i / column_tasks * 32,
						  i % column_tasks * 32);
			}
		} else {
			const int column_tasks = 1 << (k - 2),
				  tasks = ((m + 7) >> 3) * column_tasks;

			for (int i = threadIdx.x; i < tasks; i += blockDim.x)
				multiply_base_fma(p, buffer, signs, stride, (float *)p.job.y + y0,
						  post, i / column_tasks * 8, i % column_tasks * 4);
		}
		__syncthreads();
	}
}

extern "C" __global__ void __launch_bounds__(512, 1)
hadamard_base_rows(const __grid_constant__ hzi_hadamard_base_rows p)
{
	if (p.job.k <= 10)
		rows_with_base<4>(p);
	else
		rows_with_base<5>(p);
}

/* ---- Columns --------------------------------------------------------------------------------- */

/*
 * Columns of 2^(OWN + TOP) elements, contiguous along rows. A thread has 2^OWN successive rows of
 * two columns, then, after an exchange through shared memory, 2^TOP rows at strides of 2^OWN,
 * 2^(OWN - TOP) times. A warp reads 64 columns of a row at once, or for the longest 32 columns of
 * two rows. A block has one tile of rows and columns.
 */
template <int OWN, int TOP>
HZ_DEVICE void columns(const hzi_hadamard_rows &p)
{
	constexpr int WIDE = OWN + TOP == 10 ? 16 : 32, U = OWN - TOP, ROWS = 1 << OWN;
	const int64_t tiles = p.job.vectors * p.column_tiles;
	const int c = threadIdx.x % WIDE, g = threadIdx.x / WIDE;
	const int64_t tile = blockIdx.x;
	const int64_t vector = tiles < 1ll << 31 ? (uint32_t)tile / (uint32_t)p.column_tiles
						 : tile / p.column_tiles;
	const int64_t column = (tile - vector * p.column_tiles) * (2 * WIDE) + 2 * c;
	const split s = split_vector(p, vector);
	const int64_t x0 = s.hi * p.dim[0].x + s.lo * p.dim[1].x + column + g * ROWS * p.job.x_step;
	const int64_t y0 = s.hi * p.dim[0].y + s.lo * p.dim[1].y + column + g * p.job.y_step;
	const bool here = column < p.columns;
	float2 *exchange = (float2 *)shared;
	float v[2 * ROWS];

	with_dtype(p.job.x_dtype, [&](auto dtype) {
		constexpr int DTYPE = decltype(dtype)::value, BYTES = DTYPE == HZ_F32 ? 4 : 2;
		const char *x = (const char *)p.job.x + x0 * BYTES;
		const int64_t step = p.job.x_step * BYTES;

#pragma unroll
		for (int i = 0; i < ROWS; i++, x += step) {
			float2 f = {};

			if (here)
				f = DTYPE == HZ_F32 ? *(const float2 *)x
						    : unpair<DTYPE>(*(const uint32_t *)x);
			v[2 * i] = f.x;
			v[2 * i + 1] = f.y;
		}
	});
	if (p.job.pre_kind) {
		const int64_t pre0 =
			p.job.offset + s.hi * p.dim[0].pre + s.lo * p.dim[1].pre + g * ROWS;
		float f[ROWS];

		load_factors<ROWS>(f, p.job.pre_kind, p.job.pre, pre0, [](int i) { return i; });
#pragma unroll
		for (int i = 0; i < 2 * ROWS; i++)
			v[i] = __fmul_rn(v[i], f[i / 2]);
	}
	stages<2 * ROWS, 1, OWN + 1>(v, OWN);
	/* The row of the tile that is a thread's i-th after the exchange, without g */
	auto row_of = [](int i) {
		return TOP ? ((i & ((1 << U) - 1)) << TOP) + (i >> U << OWN) : i;
	};
	if constexpr (TOP > 0) {
#pragma unroll
		for (int i = 0; i < ROWS; i++)
			exchange[(g * ROWS + i) * WIDE + c] = make_float2(v[2 * i], v[2 * i + 1]);
		__syncthreads();
#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			const float2 f = exchange[(g + row_of(i)) * WIDE + c];

			v[2 * i] = f.x;
			v[2 * i + 1] = f.y;
		}
		stages<2 * ROWS, 1 + U, OWN + 1>(v, TOP);
	}
#pragma unroll
	for (int i = 0; i < 2 * ROWS; i++)
		v[i] = __fmul_rn(v[i], p.job.factor);
	if (p.job.post_kind) {
		const int64_t post0 =
			p.job.offset + s.hi * p.dim[0].post + s.lo * p.dim[1].post + g;
		float f[ROWS];

		load_factors<ROWS>(f, p.job.post_kind, p.job.post, post0, row_of);
#pragma unroll
		for (int i = 0; i < 2 * ROWS; i++)
			v[i] = __fmul_rn(v[i], f[i / 2]);
	}
	if (!here)
		return;
	with_dtype(p.job.y_dtype, [&](auto dtype) {
		constexpr int DTYPE = decltype(dtype)::value, BYTES = DTYPE == HZ_F32 ? 4 : 2;
		char *y = (char *)p.job.y + y0 * BYTES;
		const int64_t step = (p.job.y_step << TOP) * BYTES;

		/* row_of() goes up in steps of 2^TOP. */
#pragma unroll
		for (int i = 0; i < ROWS; i++, y += step)
			store_results<DTYPE, 2>(y, &v[2 * i]);
	});
}

extern "C" __global__ void __launch_bounds__(512, 2)
hadamard_columns(const __grid_constant__ hzi_hadamard_rows p)
{
	if (p.job.k == 5)
		columns<4, 1>(p);
	else if (p.job.k == 6)
		columns<4, 2>(p);
	else if (p.job.k == 7)
		columns<4, 3>(p);
	else
		columns<4, 4>(p);
}

extern "C" __global__ void __launch_bounds__(512, 1)
hadamard_columns_10(const __grid_constant__ hzi_hadamard_rows p)
{
	if (p.job.k == 9)
		columns<5, 4>(p);
	else
		columns<5, 5>(p);
}

/* ---- Any order, length and strides ----------------------------------------------------------- */

/*
 * Several vectors at a time in shared memory, element i of vector v at v * length + i; any strides,
 * any m. If a vector is too long for a block, a cluster shares it by the highest bits of the index
 * in the Sylvester part: block r of 2^c has the elements whose index there begins with r.
 */

/* The word of element e in shared memory: one word of padding every 32 */
HZ_DEVICE int padded(int e)
{
	return e + (e >> 5);
}

/*
 * The Sylvester stages and the base matrix for count vectors of m 2^k elements in buffer, from
 * element `offset` on
 */
HZ_DEVICE void transform_shared(float *buffer, int offset, int count, int m, int k,
				int cluster_log2, int rank, const uint32_t *bits, int words,
				bool transpose)
{
	const int local = k - cluster_log2, length = m << local, all = count * length;

	for (int b = 0; b < local; b += 3) {
		const int radix = local - b < 3 ? local - b : 3;

		for (int i = threadIdx.x; i < all >> radix; i += blockDim.x) {
			const int e = offset + ((i >> b << (b + radix)) | (i & ((1 << b) - 1)));
			float v[8];

#pragma unroll
			for (int j = 0; j < 8; j++)
				v[j] = j < 1 << radix ? buffer[padded(e + (j << b))] : 0.0f;
			stages<8, 0, 3>(v, radix);
#pragma unroll
			for (int j = 0; j < 8; j++) {
				if (j < 1 << radix)
					buffer[padded(e + (j << b))] = v[j];
			}
		}
		__syncthreads();
	}
	for (int c = 0; c < cluster_log2; c++) {
		/* Each block of a pair computes half of the butterflies. */
		const uint32_t at = shared_address(buffer);
		const uint32_t first = cluster_map(at, rank & ~(1 << c)),
			       second = cluster_map(at, rank | 1 << c);
		const int half = rank >> c & 1;

		cluster_arrive();
		cluster_wait();
		for (int i = threadIdx.x + half * blockDim.x; i < all; i += 2 * blockDim.x) {
			const uint32_t w = padded(offset + i) * 4;
			const float a = cluster_load(first + w), b = cluster_load(second + w);

			cluster_store(first + w, a + b);
			cluster_store(second + w, a - b);
		}
		cluster_arrive();
		cluster_wait();
	}
	if (m == 1)
		return;
	/* A warp for each column of m values: lane l computes results l, l + 32, ... */
	for (int i = threadIdx.x / 32; i < count << local; i += blockDim.x / 32) {
		const int e = offset + (i >> local) * length + (i & ((1 << local) - 1));
		const int lane = threadIdx.x % 32;
		float sum[8] = {};

		for (int j = 0; j < m; j++) {
			const uint32_t x = __float_as_uint(buffer[padded(e + (j << local))]);

#pragma unroll
			for (int r = 0; r < 8; r++) {
				const int a = lane + 32 * r, row = transpose ? j : a,
					  column = transpose ? a : j;

				if (a >= m)
					break;
				const uint32_t minus =
					bits[row * words + (column >> 5)] >> (column & 31) << 31;
				const float term = __uint_as_float(x ^ minus);

				sum[r] = j ? sum[r] + term : term;
			}
		}
		__syncwarp();
#pragma unroll
		for (int r = 0; r < 8; r++) {
			if (lane + 32 * r < m)
				buffer[padded(e + ((lane + 32 * r) << local))] = sum[r];
		}
	}
	__syncthreads();
}

/*
 * The offsets of vector v in each operand, summed over all dimensions; unused fields cost nothing.
 */
HZ_DEVICE hzi_hadamard_dim locate(const hzi_hadamard_strided &p, int64_t v)
{
	hzi_hadamard_dim at = {};

	for (int d = p.ndim - 1; d >= 0; d--) {
		const hzi_hadamard_dim &s = p.dim[d];
		int64_t i = v;

		v = (uint64_t)v >> 32
			    ? v / s.size
			    : (uint32_t)v / (s.size >> 32 ? 0xffffffff : (uint32_t)s.size);
		i -= v * s.size;
		at.x += i * s.x;
		at.y += i * s.y;
		at.pre += i * s.pre;
		at.post += i * s.post;
		at.scale += i * s.scale;
		at.row_offset += i * s.row_offset;
	}
	return at;
}

HZ_DEVICE void strided(const hzi_hadamard_strided &p, const uint32_t *bits)
{
	const hzi_hadamard_job &job = p.job;
	const int c = p.cluster_log2, rank = blockIdx.x & ((1 << c) - 1);
	const int local = job.k - c, length = job.m << local;
	float *buffer = (float *)shared;

	for (int64_t v0 = (int64_t)(blockIdx.x >> c) * p.tile; v0 < job.vectors;
	     v0 += (int64_t)(gridDim.x >> c) * p.tile) {
		const int count = job.vectors - v0 < p.tile ? (int)(job.vectors - v0) : p.tile;
		hzi_hadamard_dim at = {};
		int last = -1;

		for (int i = threadIdx.x; i < count * length; i += blockDim.x) {
			const int v = p.across_vectors ? i % count : i / length,
				  e = p.across_vectors ? i / count : i - v * length;
			/* The element's index in the vector */
			const int w =
				(e >> local << job.k) | rank << local | (e & ((1 << local) - 1));
			float f;

			if (v != last)
				at = locate(p, v0 + v);
			last = v;
			f = load_any(job.x_dtype, job.x, at.x + (job.offset + w) * job.x_step);
			if (job.scale)
				f = __fmul_rn(
					f, load_any(job.scale_dtype, job.scale,
						    at.scale + ((job.offset + at.row_offset + w) >>
								job.group_log2)));
			if (job.pre_kind)
				f = __fmul_rn(
					f, factor(job.pre_kind, job.pre, job.offset + at.pre + w));
			buffer[padded(v * length + e)] = f;
		}
		__syncthreads();
		transform_shared(buffer, 0, count, job.m, job.k, c, rank, bits, p.words,
				 p.transpose);
		for (int i = threadIdx.x; i < count * length; i += blockDim.x) {
			const int v = p.across_vectors ? i % count : i / length,
				  e = p.across_vectors ? i / count : i - v * length;
			const int w =
				(e >> local << job.k) | rank << local | (e & ((1 << local) - 1));
			float f = __fmul_rn(buffer[padded(v * length + e)], job.factor);

			if (v != last)
				at = locate(p, v0 + v);
			last = v;
			if (job.post_kind)
				f = __fmul_rn(f, factor(job.post_kind, job.post,
							job.offset + at.post + w));
			store_any(job.y_dtype, job.y, at.y + (job.offset + w) * job.y_step, f);
		}
		__syncthreads();
	}
}

/* Quantizes count elements of buffer with one scale; of 4-bit codes, count is even. */
HZ_DEVICE void store_group(const hzi_hadamard_job &job, const float *buffer, int e, int count,
			   int step, int64_t y, const quantizer &z)
{
	with_code_dtype(job.y_dtype, [&](auto dtype) {
		constexpr int DTYPE = decltype(dtype)::value, N = DTYPE == HZ_S4X2 ? 2 : 1;

		for (int i = e * N; i < count; i += step * N) {
			float v[2] = {buffer[padded(i)], N == 2 ? buffer[padded(i + 1)] : 0};

			if (z.shift != 1) {
				v[0] = shifted(v[0], z, DTYPE);
				v[1] = shifted(v[1], z, DTYPE);
			}
			store_codes<N, DTYPE>((uint8_t *)job.y + code_bytes<DTYPE>(y + i),
					      encode<N, DTYPE>(v, z));
		}
	});
}

/*
 * A block, or cluster, for each row. Its transforms go through the buffer one after the other;
 * groups are quantized as they become complete, and what is left moves to the front. With one scale
 * for a row there are two passes: the first finds the largest magnitude, the second stores codes.
 */
HZ_DEVICE void strided_quantize(const hzi_hadamard_strided &p, const uint32_t *bits)
{
	const hzi_hadamard_job &job = p.job;
	const int c = p.cluster_log2, rank = blockIdx.x & ((1 << c) - 1), g = job.group_log2;
	const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
	const bool row_group = g == HZI_GROUP_IS_ROW;
	/* Elements that are quantized together; with one scale for a row, as many as make a byte */
	const int group = !row_group ? 1 << g : job.y_dtype == HZ_S4X2 ? 2 : 1;
	float *scratch = (float *)shared, *spill = scratch + 32, *buffer = spill + 128;

	for (int64_t row = blockIdx.x >> c; row < job.vectors; row += gridDim.x >> c) {
		const hzi_hadamard_dim at = locate(p, row);
		const int64_t y0 = at.y;
		float most = 0;
		quantizer z = {};

		for (int pass = row_group ? 0 : 1; pass < 2; pass++) {
			int64_t done = 0;	/* quantized elements of the row */
			int filled = 0;		/* elements that wait in the buffer */

			for (int64_t i = 0; i < p.blocks * p.nseg; i++) {
				const int64_t b = i / p.nseg;
				const hzi_hadamard_segment &seg = p.seg[i - b * p.nseg];
				const int local = seg.k - c, length = seg.m << local;

				for (int64_t r = 0; r < seg.count; r++) {
					const int64_t first = seg.offset + r * (seg.m << seg.k);
					int groups;

					for (int e = threadIdx.x; e < length; e += blockDim.x) {
						const int w = (e >> local << seg.k) |
							      rank << local |
							      (e & ((1 << local) - 1));
						float f =
							load_any(job.x_dtype, job.x,
								 at.x + b * p.x_block +
									 (first + w) * job.x_step);

						if (job.pre_kind)
							f = __fmul_rn(f,
								      factor(job.pre_kind, job.pre,
									     b * p.pre_block +
										     first + w));
						buffer[padded(filled + e)] = f;
					}
					__syncthreads();
					transform_shared(buffer, filled, 1, seg.m, seg.k, c, rank,
							 bits, p.words, p.transpose);
					for (int e = threadIdx.x; e < length; e += blockDim.x) {
						const int w = (e >> local << seg.k) |
							      rank << local |
							      (e & ((1 << local) - 1));
						float f = __fmul_rn(buffer[padded(filled + e)],
								    seg.factor);

						if (job.post_kind)
							f = __fmul_rn(f, factor(job.post_kind,
										job.post,
										b * p.post_block +
											first + w));
						f = round_to(job.round_to, f);
						most = max_nan(most, fabsf(f));
						buffer[padded(filled + e)] = f;
					}
					__syncthreads();
					if (pass == 0)
						continue;
					filled += length;
					groups = filled / group;
					if (row_group && !c)
						store_group(job, buffer, threadIdx.x,
							    groups * group, blockDim.x, y0 + done,
							    z);
					for (int j = warp; j < (row_group ? c ? seg.m : 0 : groups);
					     j += warps) {
						/*
						 * One group, or a contiguous part of a cluster's
						 * block
						 */
						const int size = row_group ? 1 << local : group,
							  e0 = j * size;
						const int64_t row_offset =
							done +
							(c ? (e0 >> local << seg.k) |
									 rank << local |
									 (e0 & ((1 << local) - 1))
							   : e0);
						uint32_t code;
						float top = 0;

						if (!row_group) {
							for (int e = lane; e < group; e += 32)
								top = max_nan(top,
									      fabsf(buffer[padded(
										      e0 + e)]));
							for (int m = 16; m; m >>= 1)
								top = max_nan(
									top,
									__shfl_xor_sync(0xffffffff,
											top, m));
							top = group_scale(top, job.y_dtype,
									  job.scale_dtype, &code);
							z = quantizer_of(top, job.y_dtype);
							if (lane == 0)
								store_scale(
									job.scale_dtype, job.scale,
									at.scale + ((at.row_offset +
										     row_offset) >>
										    g),
									top, code);
						}
						/*
						 * padded(e0 + e) = padded(e0) + padded(e), since
						 * groups are multiples of 32, or there is only one
						 */
						store_group(job, buffer + padded(e0), lane, size,
							    32, y0 + row_offset, z);
					}
					filled -= groups * group;
					__syncthreads();
					for (int e = threadIdx.x; e < filled; e += blockDim.x)
						spill[e] = buffer[padded(groups * group + e)];
					__syncthreads();
					for (int e = threadIdx.x; e < filled; e += blockDim.x)
						buffer[padded(e)] = spill[e];
					done += c ? (int64_t)seg.m << seg.k : groups * group;
				}
			}
			if (pass == 0) {
				uint32_t code;
				float scale;

				most = max_block(most, scratch, c);
				scale = group_scale(most, job.y_dtype, job.scale_dtype, &code);
				z = quantizer_of(scale, job.y_dtype);
				if (threadIdx.x == 0 && rank == 0)
					store_scale(job.scale_dtype, job.scale, at.scale, scale,
						    code);
			}
			__syncthreads();
		}
	}
}

#define STRIDED(name, function, size) \
	extern "C" __global__ void __launch_bounds__(512, 1) \
	hadamard_##name(const __grid_constant__ hzi_hadamard_strided_##size p) \
	{ \
		function(p.a, p.bits); \
	}

STRIDED(strided, strided, small)
STRIDED(strided_big, strided, big)
STRIDED(strided_quantize, strided_quantize, small)
STRIDED(strided_quantize_big, strided_quantize, big)
