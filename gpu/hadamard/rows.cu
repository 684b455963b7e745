/*
 * rows.cu - rows of 2^4 to 2^16 elements of any dtypes, also to and from codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Arithmetic is f32 in the order that hurwitz.h fixes, so results are bit for bit those of the CPU,
 * but for 16-bit results with a base matrix, which tensor cores compute. Products are written as
 * __fmul_rn(), so that none is contracted with an addition.
 */
#include "gpu/device/cp_async.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/device/pdl.cuh"
#include "gpu/hadamard/shared_rows.cuh"
#include "gpu/quantize/quantize.cuh"

extern __shared__ float4 shared[];

/* ---- Rows ------------------------------------------------------------------------------------ */

/*
 * A thread has 64 values in registers, first 64 successive elements: 6 stages. Exchanges through
 * shared memory give it others for the next stages: 2^MID at strides of 64, and above 2^10 elements
 * 2^TOP at strides of 2^FIRST. Of each it has 2^V successive elements, so that memory is accessed
 * in vectors, and after the last exchange at 2^U offsets in the tile. A tile is what the T threads
 * of a team hold: a warp up to 2^11 (one vector or several), else all threads of a block, or of a
 * cluster of 2^CLUSTER blocks (one vector).
 *
 * In shared memory 64 elements are a row with 16 bytes of padding: 8 threads that access 16 bytes
 * each, at the same offset in their rows or along a row, have no bank conflicts.
 */
#define ROW_WORDS 68

template <int K, int CLUSTER, bool QUANTIZE>
struct shape {
	static constexpr bool SINGLE = K > 10;		/* a tile is one vector */
	static constexpr bool ONE_EXCHANGE = K <= (QUANTIZE ? 10 : 12);
	static constexpr int MID = K < 15 ? 4 : K == 15 ? 5 : 6, MID_V = 6 - MID;
	static constexpr int FIRST = ONE_EXCHANGE ? 6 : 6 + MID;
	static constexpr int TOP = SINGLE ? K - FIRST : 4;	/* k <= 10: some unused */
	static constexpr int V = TOP > 4 ? 6 - TOP : 2, U = 6 - TOP - V, U_BIT = FIRST - U;
	static constexpr int TEAM_LOG2 = SINGLE ? K - 6 - CLUSTER : 5;
	static constexpr int T = 1 << TEAM_LOG2;
	static constexpr int TILE_LOG2 = TEAM_LOG2 + 6 + CLUSTER;
	static constexpr int THREADS = T < 64 ? 128 : T;
};

template <int T>
HZ_DEVICE void team_sync(void)
{
	if (T == 32)
		__syncwarp();
	else
		__syncthreads();
}

/*
 * Copies a tile to shared memory, CHUNKS pieces of 16 bytes a thread. left: elements of the tile
 * that exist; SINGLE: all are of one vector, `from`.
 */
template <int T, int TILE_LOG2, bool SINGLE, int CHUNKS>
HZ_DEVICE void fetch(const hzi_hadamard_rows &p, const split &from, int64_t tile, int rank, int t,
		     int left, char *shared_tile)
{
	constexpr int LOG2 = CHUNKS == 16  ? 2
			     : CHUNKS == 8 ? 3
			     : CHUNKS == 4 ? 4
					   : 5; /* log2 of the elements of a piece */
	constexpr int BYTES = CHUNKS * 16 + 16;
	const int k = p.job.k, e = rank * (T << 6) + (t << LOG2);
	char *to = shared_tile + t / CHUNKS * BYTES + t % CHUNKS * 16;
	const char *x = (const char *)p.job.x +
			((from.hi * p.dim[0].x + from.lo * p.dim[1].x + e) * 16 >> LOG2);

	if (SINGLE || (p.contiguous && left == 1 << TILE_LOG2)) {
		if constexpr (CHUNKS == 16) {
			/*
			 * Through registers: 1 % faster than cp.async for 4-byte elements, slower
			 * for others.
			 */
			uint4 u[CHUNKS];

#pragma unroll
			for (int j = 0; j < CHUNKS; j++)
				u[j] = __ldg((const uint4 *)(x + j * T * 16));
#pragma unroll
			for (int j = 0; j < CHUNKS; j++)
				*(uint4 *)(to + j * (T / CHUNKS) * BYTES) = u[j];
		} else {
#pragma unroll
			for (int j = 0; j < CHUNKS; j++)
				cp_async(shared_address(to) + j * (T / CHUNKS) * BYTES,
					 x + j * T * 16);
		}
		return;
	}
	if constexpr (!SINGLE) {
#pragma unroll 2
		for (int j = 0; j < CHUNKS; j++) {
			const int ej = e + (j * T << LOG2);
			const split here = split_vector(p, ((tile << TILE_LOG2) + ej) >> k);

			x = (const char *)p.job.x + ((here.hi * p.dim[0].x + here.lo * p.dim[1].x +
						      (ej & ((1 << k) - 1))) * 16 >> LOG2);
			if (ej < left)
				cp_async(shared_address(to) + j * (T / CHUNKS) * BYTES, x);
		}
	}
}

/* The two 16-bit floats of a word */
template <int DTYPE>
HZ_DEVICE float2 unpair(uint32_t w)
{
	return DTYPE == HZ_F16 ? make_float2(f16_low(w), f16_high(w))
			       : make_float2(bf16_low(w), bf16_high(w));
}

/* Converts this thread's 64 raw elements. */
template <int DTYPE>
HZ_DEVICE void unpack_as(float *v, const uint4 *from)
{
	constexpr int EACH = DTYPE == HZ_F32			   ? 4
			     : DTYPE == HZ_F16 || DTYPE == HZ_BF16 ? 8
			     : DTYPE == HZ_S4X2			   ? 32
								   : 16;

#pragma unroll
	for (int i = 0; i < 64 / EACH; i++) {
		const uint4 u = from[i];
		const uint32_t w[4] = {u.x, u.y, u.z, u.w};

#pragma unroll
		for (int j = 0; j < EACH; j++) {
			const uint32_t word = w[j * 4 / EACH];
			float *f = &v[i * EACH + j];

			if constexpr (DTYPE == HZ_F32) {
				*f = __uint_as_float(word);
			} else if constexpr (EACH == 8) {
				const float2 both = unpair<DTYPE>(word);

				*f = j % 2 ? both.y : both.x;
			} else if constexpr (DTYPE == HZ_S4X2) {
				*f = from_s4(word >> (j % 8 * 4));
			} else {
				const uint32_t code = word >> (j % 4 * 8);

				*f = DTYPE == HZ_S8	? from_s8(code)
				     : DTYPE == HZ_E4M3 ? from_e4m3(code)
							: from_e5m2(code);
			}
		}
	}
}

template <bool CODES>
HZ_DEVICE void unpack(float *v, int dtype, const uint4 *from)
{
	if (dtype == HZ_F32)
		unpack_as<HZ_F32>(v, from);
	else if (dtype == HZ_F16)
		unpack_as<HZ_F16>(v, from);
	else if (!CODES || dtype == HZ_BF16)
		unpack_as<HZ_BF16>(v, from);
	else if (dtype == HZ_S8)
		unpack_as<HZ_S8>(v, from);
	else if (dtype == HZ_S4X2)
		unpack_as<HZ_S4X2>(v, from);
	else if (dtype == HZ_E4M3)
		unpack_as<HZ_E4M3>(v, from);
	else
		unpack_as<HZ_E5M2>(v, from);
}

/* The largest magnitude of each piece of 2^V values */
template <int V>
HZ_DEVICE void piece_amax(float *m, const float *v)
{
#pragma unroll
	for (int i = 0; i < 64 >> V; i++) {
		m[i] = fabsf(v[i << V]);
#pragma unroll
		for (int j = 1; j < 1 << V; j++)
			m[i] = max_nan(m[i], fabsf(v[i << V | j]));
	}
}

/*
 * Maxima of groups; a thread has 16 >> IN, each of 2^IN successive pieces in 2^LANES lanes. In each
 * step a lane sends half of its groups to its partner and receives those that it keeps, until its
 * own are in m[0] and, if there are more groups than lanes, m[1]. Group g is then in the lane whose
 * bits are those of g, the highest first.
 */
template <int IN, int LANES>
HZ_DEVICE void share_amax(float *m)
{
	const int lane = threadIdx.x % 32;

#pragma unroll
	for (int b = 0; b < IN; b++) {
#pragma unroll
		for (int i = 0; i < 16; i += 2 << b)
			m[i] = max_nan(m[i], m[i | 1 << b]);
	}
#pragma unroll
	for (int i = 1; i < 16 >> IN; i++)
		m[i] = m[i << IN];
#pragma unroll
	for (int b = 0; b < LANES; b++) {
		const int count = 16 >> IN >> b;

		if (count < 2) {
			m[0] = max_nan(m[0], __shfl_xor_sync(0xffffffff, m[0], 1 << b));
			continue;
		}
#pragma unroll
		for (int i = 0; i < 8; i++) {
			if (i < count / 2) {
				const float first = m[i], second = m[i + count / 2];
				const bool high = lane >> b & 1;
				const float other =
					__shfl_xor_sync(0xffffffff, high ? first : second, 1 << b);

				m[i] = max_nan(high ? second : first, other);
			}
		}
	}
}

/* The 4 bits of i reversed */
HZ_DEVICE int reverse_4(int i)
{
	return (int)(__brev((uint32_t)i) >> 28);
}

/*
 * The maximum over a team; scratch: a float per warp. The blocks of a cluster have arrived at the
 * cluster barrier at the end, and wait before scratch is used again.
 */
template <int T, int CLUSTER>
HZ_DEVICE float team_amax(float most, float *scratch, int t)
{
	for (int b = 1; b < 32; b <<= 1)
		most = max_nan(most, __shfl_xor_sync(0xffffffff, most, b));
	if (T > 32) {
		__syncthreads();
		if (t % 32 == 0)
			scratch[t / 32] = most;
		__syncthreads();
		for (int w = 0; w < T / 32; w++)
			most = max_nan(most, scratch[w]);
	}
	if (CLUSTER) {
		__syncthreads();
		if (t == 0)
			scratch[0] = most;
		cluster_arrive();
		cluster_wait();
		for (int r = 0; r < 1 << CLUSTER; r++)
			most = max_nan(most, cluster_load(cluster_map(shared_address(scratch), r)));
		cluster_arrive();
	}
	return most;
}

/*
 * Stages of bits LOW .. HIGH - 1, the first count of them. One branch for each count, not for each
 * stage: where branches join, values must be in the same registers.
 */
template <int LOW, int HIGH>
HZ_DEVICE void stages_up_to(float *v, int count)
{
	if constexpr (LOW < HIGH) {
		if (count >= HIGH - LOW)
			stages<64, LOW, HIGH>(v, HIGH - LOW);
		else
			stages_up_to<LOW, HIGH - 1>(v, count);
	}
}

/* Rows of 2^KMAX elements; KMAX = 10: also of fewer */
template <int KMAX, int CLUSTER, bool QUANTIZE>
HZ_DEVICE void rows(const hzi_hadamard_rows &p)
{
	using S = shape<KMAX, CLUSTER, QUANTIZE>;
	constexpr int T = S::T, V = S::V, U = S::U, LOCAL = S::TOP - CLUSTER;
	constexpr bool SINGLE = S::SINGLE;
	const int k = SINGLE ? KMAX : p.job.k, t = threadIdx.x % T, team = threadIdx.x / T;
	const int teams = S::THREADS / T;
	const int rank = CLUSTER ? blockIdx.x & ((1 << CLUSTER) - 1) : 0;
	const int64_t total = p.job.vectors << k,
		      tiles = (total + (1 << S::TILE_LOG2) - 1) >> S::TILE_LOG2;
	const int raw_bytes = (1024 >> p.piece_log2) + 16;	/* 64 elements of x, padded */
	float *exchange = (float *)shared + team * T * ROW_WORDS;
	/*
	 * After the last exchange: the offset of this thread's first value in the tile and in the
	 * exchange
	 */
	const int low = S::ONE_EXCHANGE ? (t & ((64 >> V) - 1)) << V : (rank * T + t) << V,
		  high = S::ONE_EXCHANGE ? t >> (6 - V) : 0;
	const int e0 = low | high << (6 + S::TOP);
	const int at0 = low + (low >> 6) * 4 + high * (ROW_WORDS << S::TOP);
	float v[64];

	pdl_wait();
	pdl_launch_dependents();
	/* Raw data and the exchange share memory. */
	char *raw_tile = (char *)exchange;
	const int64_t first = (int64_t)(blockIdx.x >> CLUSTER) * teams + team;
	const int64_t step = (int64_t)(gridDim.x >> CLUSTER) * teams;

	auto left_of = [&](int64_t tile) {
		const int64_t left = total - (tile << S::TILE_LOG2);

		return left < 1 << S::TILE_LOG2 ? (int)left : 1 << S::TILE_LOG2;
	};
	auto begin = [&](int64_t tile) {
		const split from = split_vector(p, tile << S::TILE_LOG2 >> k);
		const int left = left_of(tile);

		if (p.piece_log2 == 2)
			fetch<T, S::TILE_LOG2, SINGLE, 16>(p, from, tile, rank, t, left, raw_tile);
		else if (p.piece_log2 == 3)
			fetch<T, S::TILE_LOG2, SINGLE, 8>(p, from, tile, rank, t, left, raw_tile);
		else if (!QUANTIZE && p.piece_log2 == 4)
			fetch<T, S::TILE_LOG2, SINGLE, 4>(p, from, tile, rank, t, left, raw_tile);
		else if (!QUANTIZE)
			fetch<T, S::TILE_LOG2, SINGLE, 2>(p, from, tile, rank, t, left, raw_tile);
	};

	for (int64_t tile = first; tile < tiles; tile += step) {
		const int left = left_of(tile);
		const int64_t vector0 = tile << S::TILE_LOG2 >> k;
		const split s0 = split_vector(p, vector0);
		const int e1 =
			(rank * T + t) * 64; /* this thread's first element at first */

		begin(tile);
		cp_async_wait_all();
		team_sync<T>();
		unpack<!QUANTIZE>(v, p.job.x_dtype, (const uint4 *)(raw_tile + t * raw_bytes));
		if (!QUANTIZE && p.job.scale) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				const int e = e1 + j * 32;
				const split s = split_vector(p, vector0 + (e >> k));
				const int64_t row_offset = p.job.offset +
							   s.hi * p.dim[0].row_offset +
							   s.lo * p.dim[1].row_offset +
							   (e & ((1 << k) - 1));
				float f = 0;

				if (e < left)
					f = load_any(p.job.scale_dtype, p.job.scale,
						     s.hi * p.dim[0].scale + s.lo * p.dim[1].scale +
							     (row_offset >> p.job.group_log2));
#pragma unroll
				for (int i = 32 * j; i < 32 * j + 32; i++)
					v[i] = __fmul_rn(v[i], f);
			}
		}
		if (p.job.pre_kind) {
			const split s = split_vector(p, vector0 + (e1 >> k));

			if (e1 < left)
				multiply_factors<64>(v, p.job.pre_kind, p.job.pre,
						     p.job.offset + s.hi * p.dim[0].pre +
							     s.lo * p.dim[1].pre +
							     (e1 & ((1 << k) - 1)));
		}
		if (SINGLE || k >= 6)
			stages<64, 0, 6>(v, 6);
		else
			stages<64, 0, 5>(v, k);
		team_sync<T>();
#pragma unroll
		for (int i = 0; i < 16; i++)
			store_piece<4>(&exchange[t * ROW_WORDS + 4 * i], &v[4 * i]);
		team_sync<T>();
		if constexpr (!S::ONE_EXCHANGE) {
			constexpr int MV = S::MID_V;
			float *at = &exchange[((t & ((64 >> MV) - 1)) << MV) +
					      (t >> (6 - MV)) * (ROW_WORDS << S::MID)];

#pragma unroll
			for (int i = 0; i < 1 << S::MID; i++)
				load_piece<1 << MV>(&v[i << MV], at + i * ROW_WORDS);
			stages<64, MV, 6>(v, 6);
#pragma unroll
			for (int i = 0; i < 1 << S::MID; i++)
				store_piece<1 << MV>(at + i * ROW_WORDS, &v[i << MV]);
			if (CLUSTER) {
				cluster_arrive();
				cluster_wait();
			} else {
				team_sync<T>();
			}
		}
		constexpr int STEP = (ROW_WORDS << S::FIRST) / 64,
			      U_STEP = (ROW_WORDS << S::U_BIT) / 64;

#pragma unroll
		for (int i = 0; i < 64 >> V; i++) {
			const int a = i >> U, w = i & ((1 << U) - 1);
			float *at = &exchange[at0 + (a & ((1 << LOCAL) - 1)) * STEP + w * U_STEP];

			if constexpr (CLUSTER > 0) {
				const float4 f =
					cluster_load4(cluster_map(shared_address(at), a >> LOCAL));

				v[4 * i] = f.x;
				v[4 * i + 1] = f.y;
				v[4 * i + 2] = f.z;
				v[4 * i + 3] = f.w;
			} else {
				load_piece<1 << V>(&v[i << V], at);
			}
		}
		if (CLUSTER)
			cluster_arrive();
		stages_up_to<V + U, 6>(v, SINGLE ? 6 : k - 6);
#pragma unroll
		for (int i = 0; i < 64; i++)
			v[i] = __fmul_rn(v[i], p.job.factor);

		/*
		 * The first element of piece i in the tile, its vector, and its index in that
		 * vector
		 */
		auto element = [&](int i) {
			return e0 + ((i >> U) << S::FIRST) + ((i & ((1 << U) - 1)) << S::U_BIT);
		};
		auto vector_of = [&](int e) {
			return SINGLE ? s0 : split_vector(p, vector0 + (e >> k));
		};
		auto inner = [&](int e) {
			return SINGLE ? e : e & ((1 << k) - 1);
		};
		if (p.job.post_kind) {
#pragma unroll
			for (int i = 0; i < 64 >> V; i++) {
				const int e = element(i);
				const split s = vector_of(e);

				if (e < left)
					multiply_factors<1 << V>(
						&v[i << V], p.job.post_kind, p.job.post,
						p.job.offset + s.hi * p.dim[0].post +
							s.lo * p.dim[1].post + inner(e));
			}
		}
		if constexpr (!QUANTIZE) {
			with_dtype(p.job.y_dtype, [&](auto dtype) {
				constexpr int DTYPE = decltype(dtype)::value,
					      BYTES = DTYPE == HZ_F32 ? 4 : 2;
				char *y = (char *)p.job.y +
					  (s0.hi * p.dim[0].y + s0.lo * p.dim[1].y + e0) * BYTES;

				if (SINGLE || p.contiguous) {
#pragma unroll
					for (int i = 0; i < 64 >> V; i++) {
						if (SINGLE || element(i) < left)
							store_results<DTYPE, 1 << V>(
								y + (int64_t)(element(i) - e0) *
										BYTES,
								&v[i << V]);
					}
					return;
				}
				if constexpr (!SINGLE) {
#pragma unroll
					for (int i = 0; i < 64 >> V; i++) {
						const int e = element(i);
						const split s = vector_of(e);

						y = (char *)p.job.y +
						    (s.hi * p.dim[0].y + s.lo * p.dim[1].y +
						     inner(e)) *
							    BYTES;
						if (e < left)
							store_results<DTYPE, 1 << V>(y, &v[i << V]);
					}
				}
			});
		} else {
			const int g = p.job.group_log2;
			float m[16];

			if (p.job.round_to == HZ_F16) {
#pragma unroll
				for (int i = 0; i < 64; i++)
					v[i] = round_to(HZ_F16, v[i]);
			} else if (p.job.round_to == HZ_BF16) {
#pragma unroll
				for (int i = 0; i < 64; i++)
					v[i] = round_to(HZ_BF16, v[i]);
			}
			const int q_dtype = p.job.y_dtype, lane = threadIdx.x % 32;
			/*
			 * The scale of a group is computed by the lane whose bits in `own` are
			 * those of the group's first piece, the highest first. With `two` a lane
			 * also computes that of the next piece; with own = 0 all lanes compute that
			 * of the whole row.
			 */
			int own = 0;
			bool two = false, first = inner(e0) == 0;
			auto share = [&](auto in_, auto lanes_) {
				constexpr int IN = decltype(in_)::value,
					      LANES = decltype(lanes_)::value;
				constexpr int BITS = LANES < 4 - IN ? LANES : 4 - IN;

				share_amax<IN, LANES>(m);
				own = (1 << BITS) - 1;
				two = BITS < 4 - IN;
				first = (lane & ((1 << LANES) - 1)) >> BITS == 0;
			};
			piece_amax<V>(m, v);
			if (SINGLE ? g == k : g == 10) {
				/* One group: the whole row */
#pragma unroll
				for (int i = 1; i < 16; i++)
					m[0] = max_nan(m[0], m[i]);
				if (SINGLE) {
					/*
					 * All threads have read the exchange, in a cluster all
					 * blocks.
					 */
					if (CLUSTER)
						cluster_wait();
					else
						team_sync<T>();
					m[0] = team_amax<T, CLUSTER>(m[0], exchange, t);
				} else {
					for (int b = 0; b < 4; b++)
						m[0] = max_nan(m[0], __shfl_xor_sync(0xffffffff,
										     m[0], 1 << b));
				}
			} else if (g == 5) {
				share(std_int<0>(), std_int<3>());
			} else if (g == 6) {
				share(std_int<0>(), std_int<4>());
			} else if (g == 7) {
				share(std_int<SINGLE ? 0 : 1>(), std_int<SINGLE ? 5 : 4>());
			} else if constexpr (!SINGLE) {
				if (g == 8)
					share(std_int<2>(), std_int<4>());
				else
					share(std_int<3>(), std_int<4>());
			}

			auto scale_of = [&](float most, int piece) {
				const int e = element(piece);
				const split s = vector_of(e);
				uint32_t code;
				const float scale =
					group_scale(most, q_dtype, p.job.scale_dtype, &code);

				if (first && e < left)
					store_scale(
						p.job.scale_dtype, p.job.scale,
						s.hi * p.dim[0].scale + s.lo * p.dim[1].scale +
							((p.job.offset +
							  s.hi * p.dim[0].row_offset +
							  s.lo * p.dim[1].row_offset + inner(e)) >>
							 g),
						scale, code);
				return quantizer_of(scale, q_dtype);
			};
			const int piece = reverse_4(lane & own);
			/* The quantizers of this lane's even and odd pieces */
			const quantizer even = scale_of(m[0], piece);
			const quantizer odd = two ? scale_of(m[1], piece + 1) : even;
			auto from = [&](int i) {
				return (lane & ~own) | (reverse_4(i) & own);
			};

			if (__any_sync(0xffffffff, even.shift != 1 || odd.shift != 1)) {
#pragma unroll
				for (int i = 0; i < 16; i++) {
					quantizer z = i % 2 ? odd : even;

					z.s = __shfl_sync(0xffffffff, z.s, from(i));
					z.shift = __shfl_sync(0xffffffff, z.shift, from(i));
					if (z.shift == 1)
						continue;
#pragma unroll
					for (int j = 4 * i; j < 4 * i + 4; j++)
						v[j] = shifted(v[j], z, q_dtype);
				}
			}
			if (own) {
#pragma unroll
				for (int i = 0; i < 16; i++) {
					quantizer z = i % 2 ? odd : even;

					z.s = __shfl_sync(0xffffffff, z.s, from(i));
					z.r = __shfl_sync(0xffffffff, z.r, from(i));
					z.low = __shfl_sync(0xffffffff, z.low, from(i));
#pragma unroll
					for (int j = 4 * i; j < 4 * i + 4; j++)
						v[j] = signed_quotient(v[j], z);
				}
			} else {
#pragma unroll
				for (int j = 0; j < 64; j++)
					v[j] = signed_quotient(v[j], even);
			}
			with_code_dtype(q_dtype, [&](auto dtype) {
				constexpr int DTYPE = decltype(dtype)::value;
				uint8_t *y = (uint8_t *)p.job.y +
					     code_bytes<DTYPE>(s0.hi * p.dim[0].y +
							       s0.lo * p.dim[1].y + e0);

#pragma unroll
				for (int i = 0; i < 16; i++) {
					if (SINGLE || element(i) < left)
						store_codes<4, DTYPE>(
							y + code_bytes<DTYPE>(element(i) - e0),
							pack_codes<4, DTYPE>(&v[4 * i]));
				}
			});
		}
		/*
		 * All threads have read the exchange before it is filled again, or the block exits.
		 */
		if (CLUSTER)
			cluster_wait();
		else
			team_sync<T>();
	}
}

#define THREADS_SM 512		/* with 128 registers each */

#define ROWS(name, k, cluster, quantize) \
	extern "C" __global__ void \
	__launch_bounds__((shape<k, cluster, quantize>::THREADS), \
			  (THREADS_SM / shape<k, cluster, quantize>::THREADS)) \
	name(const __grid_constant__ hzi_hadamard_rows p) \
	{ \
		rows<k, cluster, quantize>(p); \
	}

ROWS(hadamard_rows_10, 10, 0, false)
ROWS(hadamard_rows_11, 11, 0, false)
ROWS(hadamard_rows_12, 12, 0, false)
ROWS(hadamard_rows_13, 13, 0, false)
ROWS(hadamard_rows_14, 14, 0, false)
ROWS(hadamard_rows_15, 15, 0, false)
ROWS(hadamard_rows_16_c4, 16, 2, false)
ROWS(hadamard_rows_quantize_10, 10, 0, true)
ROWS(hadamard_rows_quantize_11, 11, 0, true)
ROWS(hadamard_rows_quantize_12, 12, 0, true)
ROWS(hadamard_rows_quantize_13, 13, 0, true)
ROWS(hadamard_rows_quantize_14, 14, 0, true)
ROWS(hadamard_rows_quantize_15, 15, 0, true)
ROWS(hadamard_rows_quantize_16_c4, 16, 2, true)

#include "gpu/hadamard/strided.cuh"
