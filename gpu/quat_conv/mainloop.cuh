/*
 * mainloop.cuh - tiles of quaternion convolutions, their sums and what becomes of these
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_QUAT_CONV_SUMS_CUH
#define HZI_QUAT_CONV_SUMS_CUH

#include "gpu/quat_conv/implicit_gemm8.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

#define PIXELS (HZI_QC_PIXELS / 2)	/* of a warpgroup */
#define SUMS (PIXELS / 2)

/* Barriers of a block's memory; its number in the cluster. The kernel ahead has ended. */
template <int CONVERTERS, typename MEMORY>
HZ_DEVICE uint32_t begin_block(MEMORY &s)
{
	constexpr int stages = sizeof(s.full) / sizeof(*s.full);
	constexpr int steps = sizeof(s.x_full) / sizeof(*s.x_full);
	const uint32_t rank = cluster_rank();

	if (threadIdx.x == 0) {
		for (int i = 0; i < stages; i++) {
			mbarrier_init(shared_address(&s.full[i]), 1);
			mbarrier_init(shared_address(&s.empty[i]), 8 * HZI_QC_CLUSTER);
		}
		for (int i = 0; i < steps; i++) {
			mbarrier_init(shared_address(&s.x_full[i]), CONVERTERS);
			mbarrier_init(shared_address(&s.x_empty[i]), 8);
		}
		mbarrier_init_fence();
	}
	cluster_begin();
	return rank;
}

/* A cluster's tiles are two neighbours of the same channels; a last one may be beyond all rows. */
HZ_DEVICE tile tile_of(const hzi_quat_conv &p, int t, int rank)
{
	const int per = p.flat ? HZI_QC_PIXELS : HZI_QC_ROWS;
	const int along = (p.all_rows + per - 1) / per;
	const int i = 2 * (t % p.pairs) + rank, strip = i / along;
	tile r;

	r.channel = t / p.pairs * HZI_QC_OUT;
	r.row = strip < p.strips ? i % along * per : p.all_rows;
	r.col = 8 * strip;
	return r;
}

/* What left planes are for sums 0 to 3 in either phase; in phase 0 of w, y, x and z: transform() */
HZ_DEVICE int left_plane(int phase, int sum)
{
	return phase ? sum : 0x6754 >> 4 * sum & 7;
}

/* And what right ones: of those that lie in shared memory */
HZ_DEVICE int right_plane(int phase, int sum)
{
	return phase ? sum : 0x1230 >> 4 * sum & 3;
}

HZ_DEVICE void scale_sums(float (&acc)[4][SUMS], float by)
{
#pragma unroll
	for (int i = 0; i < 4 * SUMS; i++)
		acc[i / SUMS][i % SUMS] *= by;
}

HZ_DEVICE void keep(float (&acc)[4][SUMS])
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		wgmma_keep(acc[i]);
}

/* a + b and a - b, in place: with more ptxas puts sums into memory. */
HZ_DEVICE void pair_up(float &a, float &b)
{
	a += b;
	b = fmaf(-2, b, a);
}

/* H times the four sums, the middle ones of which change places: twice, that is 4 times these. */
HZ_DEVICE void transform(float (&acc)[4][SUMS])
{
#pragma unroll
	for (int i = 0; i < SUMS; i++) {
		pair_up(acc[0][i], acc[1][i]);
		pair_up(acc[2][i], acc[3][i]);
		pair_up(acc[0][i], acc[2][i]);
		pair_up(acc[1][i], acc[3][i]);
	}
}

/* Where the pixels of a warpgroup go, a thread for each. */
HZ_DEVICE void find_places(const hzi_quat_conv &p, int64_t *to_of, int64_t *pre_of, const tile &o,
			   int group)
{
	const int i = threadIdx.x % 128;
	const int row = o.row + (p.flat ? PIXELS * group + i : PIXELS / 8 * group + i / 8);
	const int col = p.flat ? 0 : o.col + i % 8;
	int64_t to = HZI_QC_NOWHERE, pre = 0;
	int image, slab, inside;

	if (i >= PIXELS)
		return;
	if (slab_of(p, row, image, slab, inside) && inside < p.count[1] && col < p.count[2]) {
		to = image * p.c_stride[0] + slab * p.c_stride[1] + inside * p.c_stride[2] +
		     col * p.c_stride[3];
		pre = image * p.pre_stride[0] + slab * p.pre_stride[1] +
		      inside * p.pre_stride[2] + col * p.pre_stride[3];
	}
	to_of[i] = to;
	pre_of[i] = pre;
}

HZ_DEVICE quat bias_of(const hzi_quat_out &o, int row)
{
	const int64_t b = row * o.bias_row;

	if (!o.bias)
		return {0, 0, 0, 0};
	return {load_any(o.bias_dtype, o.bias, b + o.bias_comp[0]),
		load_any(o.bias_dtype, o.bias, b + o.bias_comp[1]),
		load_any(o.bias_dtype, o.bias, b + o.bias_comp[2]),
		load_any(o.bias_dtype, o.bias, b + o.bias_comp[3])};
}

HZ_DEVICE float flipped(float v, uint32_t bits)
{
	return __uint_as_float(__float_as_uint(v) ^ bits);
}

HZ_DEVICE float leaky(float v, float slope)
{
	return v < 0 ? slope * v : v;
}

/* Not before what stands ahead: all places at once would not leave registers enough. */
HZ_DEVICE longlong2 places_at(const int64_t *p)
{
	longlong2 v;

	asm volatile("ld.shared.v2.b64 {%0, %1}, [%2];"
		     : "=l"(v.x), "=l"(v.y) : "r"(shared_address(p)) : "memory");
	return v;
}

HZ_DEVICE void store_if(bool there, uint16_t *to, uint2 v)
{
	asm volatile("{.reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.cs.v2.b32 [%1], {%2, %3};}"
		     :: "r"((int)there), "l"(to), "r"(v.x), "r"(v.y) : "memory");
}

HZ_DEVICE void store_if(bool there, float *to, quat q)
{
	asm volatile("{.reg .pred p; setp.ne.b32 p, %0, 0; "
		     "@p st.global.cs.v4.f32 [%1], {%2, %3, %4, %5};}"
		     :: "r"((int)there), "l"(to), "f"(q.w), "f"(q.x), "f"(q.y), "f"(q.z)
		     : "memory");
}

template <int DTYPE>
struct word_of {
	using type = uint16_t;
};

template <>
struct word_of<HZ_F32> {
	using type = float;
};

/* Results of DTYPE, or as out says. */
template <int KIND, int DTYPE>
HZ_DEVICE void store(const hzi_quat_conv &p, const int64_t *to_of, const int64_t *pre_of,
		     const float (&acc)[4][SUMS], int row, float scale)
{
	const hzi_quat_out &out = p.out;
	const int dtype = DTYPE == HZI_QC_OTHERS ? out.c.dtype : DTYPE;
	const int lane = threadIdx.x % 32;
	const float slope = out.activation == HZ_ACT_NONE ? 1 :
			    out.activation == HZ_ACT_LEAKY ? out.slope : 0;
	const int64_t *const places = &to_of[2 * (lane & 3)];
	longlong2 to = places_at(places);
	using word = typename word_of<DTYPE>::type;
	word *c[2];
	float by[2], by_xyz[2];
	quat bias[2];

#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int r = row + 8 * h;

		by[h] = r < out.m ? scale * p.weight_scales[r] : 0;
		by_xyz[h] = flipped(by[h], p.flip);
		c[h] = (word *)out.c.data + r * out.c.row;
		bias[h] = KIND == HZI_QC_USUAL && r < out.m ? bias_of(out, r) : quat{};
	}
#pragma unroll
	for (int j = 0; j < SUMS / 4; j++) {
		const longlong2 next = j + 1 < SUMS / 4 ? places_at(places + 8 * (j + 1)) : to;

#pragma unroll
		for (int i = 4 * j; i < 4 * j + 4; i++) {
			const int h = i % 4 / 2, e = i % 2;
			const int64_t begin = e ? to.y : to.x;
			const bool there = is_somewhere(begin) && row + 8 * h < out.m;
			quat q = {by[h] * acc[0][i], by_xyz[h] * acc[2][i], by_xyz[h] * acc[1][i],
				  by_xyz[h] * acc[3][i]};

			if (KIND == HZI_QC_ANY) {
				if (there)
					quat_finish_row(out, begin,
							pre_of[8 * j + 2 * (lane & 3) + e],
							row + 8 * h, q);
				continue;
			}
			if (KIND == HZI_QC_USUAL)
				q = {leaky(q.w + bias[h].w, slope), leaky(q.x + bias[h].x, slope),
				     leaky(q.y + bias[h].y, slope), leaky(q.z + bias[h].z, slope)};
			if constexpr (DTYPE == HZ_F32)
				store_if(there, c[h] + begin, q);
			else
				store_if(there, c[h] + begin, quat_pack(dtype, q));
		}
		to = next;
	}
}

#endif
