/*
 * mainloop.cuh - tiles, accumulators and epilogue of the kernels by 8 real products
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_QUAT_CONV_MAINLOOP_CUH
#define HZI_GPU_QUAT_CONV_MAINLOOP_CUH

#include <type_traits>

#include "gpu/quat_conv/implicit_gemm8.cuh"
#include "gpu/device/tma.cuh"
#include "gpu/device/wgmma_f16.cuh"

#define PIXELS (HZI_CONV8_TILE_N / 2)	/* of a warpgroup */
#define ACC (PIXELS / 2)

/* Initialises the barriers and waits for the cluster and the previous kernel; returns the rank. */
template <int CONVERTERS, typename MEMORY>
HZ_DEVICE uint32_t begin_block(MEMORY &s)
{
	constexpr int stages = sizeof(s.full) / sizeof(*s.full);
	constexpr int steps = sizeof(s.x_full) / sizeof(*s.x_full);
	const uint32_t rank = cluster_rank();

	if (threadIdx.x == 0) {
		for (int i = 0; i < stages; i++) {
			mbarrier_init(shared_address(&s.full[i]), 1);
			mbarrier_init(shared_address(&s.empty[i]), 8 * HZI_CONV8_CLUSTER);
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

/*
 * A block: LOADERS warpgroups, of which CONVERTERS warps load and convert pixels and a thread of
 * the next warp loads weights, then two warpgroups that multiply. LESS, MORE: their registers
 */
template <typename MEMORY, int LOADERS, int CONVERTERS, int LESS, int MORE, auto LOAD_PIXELS,
	  auto LOAD_WEIGHTS, auto MULTIPLY>
HZ_DEVICE void run_block(const hzi_quat_conv8 &p)
{
	MEMORY &s = *(MEMORY *)shared_start();
	const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
	const uint32_t rank = begin_block<CONVERTERS>(s);

	if (LOADERS == 1 ? group == 0 : group < LOADERS) {
		setmaxnreg_dec<LESS>();
		if (threadIdx.x < 32 * CONVERTERS)
			LOAD_PIXELS(p, s, rank);
		else if (threadIdx.x == 32 * CONVERTERS)
			LOAD_WEIGHTS(p, s, rank);
	} else {
		setmaxnreg_inc<MORE>();
		MULTIPLY(p, s, rank, group - LOADERS);
	}
	cluster_end();
}

/* Tile t of a cluster: two neighbours of the same channels; the last may be beyond all rows. */
HZ_DEVICE tile tile_of(const hzi_quat_conv8 &p, int t, int rank)
{
	const int per = p.flat ? HZI_CONV8_TILE_N : HZI_CONV8_TILE_ROWS;
	const int along = (p.all_rows + per - 1) / per;
	const int i = 2 * (t % p.pairs) + rank, strip = i / along;
	tile r;

	r.channel = t / p.pairs * HZI_CONV8_TILE_M;
	r.row = strip < p.strips ? i % along * per : p.all_rows;
	r.col = 8 * strip;
	return r;
}

/* Planes of the left factor of accumulators 0 to 3; phase 0 has w, y, x, z: see hadamard(). */
HZ_DEVICE int left_plane(int phase, int sum)
{
	return phase ? sum : 0x6754 >> 4 * sum & 7;
}

/* Planes of the right factor, in shared memory */
HZ_DEVICE int right_plane(int phase, int sum)
{
	return phase ? sum : 0x1230 >> 4 * sum & 3;
}

HZ_DEVICE void scale_acc(float (&acc)[4][ACC], float by)
{
#pragma unroll
	for (int i = 0; i < 4 * ACC; i++)
		acc[i / ACC][i % ACC] *= by;
}

HZ_DEVICE void keep_acc(float (&acc)[4][ACC])
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		wgmma_keep(acc[i]);
}

/* a + b and a - b, in place: with another temporary ptxas spills accumulators. */
HZ_DEVICE void butterfly(float &a, float &b)
{
	a += b;
	b = fmaf(-2, b, a);
}

/* H times the four accumulators, and swaps the middle two; twice: 4 times the accumulators */
HZ_DEVICE void hadamard(float (&acc)[4][ACC])
{
#pragma unroll
	for (int i = 0; i < ACC; i++) {
		butterfly(acc[0][i], acc[1][i]);
		butterfly(acc[2][i], acc[3][i]);
		butterfly(acc[0][i], acc[2][i]);
		butterfly(acc[1][i], acc[3][i]);
	}
}

/* Offsets of the output pixels of a warpgroup, one for each thread */
HZ_DEVICE void find_outputs(const hzi_quat_conv8 &p, int64_t *dst_offsets, int64_t *pre_offsets,
			    const tile &o, int group)
{
	const int i = threadIdx.x % 128;
	const int row = o.row + (p.flat ? PIXELS * group + i : PIXELS / 8 * group + i / 8);
	const int col = p.flat ? 0 : o.col + i % 8;
	int64_t dst = HZI_CONV_OUTSIDE, pre = 0;
	int image, slab, inside;

	if (i >= PIXELS)
		return;
	if (locate_row(p, row, image, slab, inside) && inside < p.count[1] && col < p.count[2]) {
		dst = image * p.c_stride[0] + slab * p.c_stride[1] + inside * p.c_stride[2] +
		      col * p.c_stride[3];
		pre = image * p.pre_stride[0] + slab * p.pre_stride[1] +
		      inside * p.pre_stride[2] + col * p.pre_stride[3];
	}
	dst_offsets[i] = dst;
	pre_offsets[i] = pre;
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

/* volatile: not before the code above, since all offsets at once would take too many registers */
HZ_DEVICE longlong2 load_offsets(const int64_t *p)
{
	longlong2 v;

	asm volatile("ld.shared.v2.b64 {%0, %1}, [%2];"
		     : "=l"(v.x), "=l"(v.y) : "r"(shared_address(p)) : "memory");
	return v;
}

HZ_DEVICE void store_if(bool inside, uint16_t *dst, uint2 v)
{
	asm volatile("{.reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.cs.v2.b32 [%1], {%2, %3};}"
		     :: "r"((int)inside), "l"(dst), "r"(v.x), "r"(v.y) : "memory");
}

HZ_DEVICE void store_if(bool inside, float *dst, quat q)
{
	asm volatile("{.reg .pred p; setp.ne.b32 p, %0, 0; "
		     "@p st.global.cs.v4.f32 [%1], {%2, %3, %4, %5};}"
		     :: "r"((int)inside), "l"(dst), "f"(q.w), "f"(q.x), "f"(q.y), "f"(q.z)
		     : "memory");
}

/* Stores results of DTYPE, or of the dtype of out. */
template <int EPILOGUE, int DTYPE>
HZ_DEVICE void store(const hzi_quat_conv8 &p, const int64_t *dst_offsets,
		     const int64_t *pre_offsets, const float (&acc)[4][ACC], int row, float scale)
{
	const hzi_quat_out &out = p.out;
	const int dtype = DTYPE == HZI_CONV_ANY_DTYPE ? out.c.dtype : DTYPE;
	const int lane = threadIdx.x % 32;
	const float slope = out.activation == HZ_ACT_NONE ? 1 :
			    out.activation == HZ_ACT_LEAKY ? out.slope : 0;
	const int64_t *const offsets = &dst_offsets[2 * (lane & 3)];
	longlong2 dst = load_offsets(offsets);
	using word = std::conditional_t<DTYPE == HZ_F32, float, uint16_t>;
	word *c[2];
	float by[2], by_xyz[2];
	quat bias[2];

#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int r = row + 8 * h;

		by[h] = r < out.m ? scale * p.weight_scales[r] : 0;
		by_xyz[h] = flipped(by[h], p.flip);
		c[h] = (word *)out.c.data + r * out.c.row;
		bias[h] = EPILOGUE == HZI_CONV_EPILOGUE_BIAS_ACT && r < out.m ? bias_of(out,
										    r) : quat{};
	}
#pragma unroll
	for (int j = 0; j < ACC / 4; j++) {
		const longlong2 next = j + 1 < ACC / 4 ? load_offsets(offsets + 8 * (j + 1)) : dst;

#pragma unroll
		for (int i = 4 * j; i < 4 * j + 4; i++) {
			const int h = i % 4 / 2, e = i % 2;
			const int64_t begin = e ? dst.y : dst.x;
			const bool inside = is_inside(begin) && row + 8 * h < out.m;
			quat q = {by[h] * acc[0][i], by_xyz[h] * acc[2][i], by_xyz[h] * acc[1][i],
				  by_xyz[h] * acc[3][i]};

			if (EPILOGUE == HZI_CONV_EPILOGUE_FULL) {
				if (inside)
					quat_finish_row(out, begin,
							pre_offsets[8 * j + 2 * (lane & 3) + e],
							row + 8 * h, q);
				continue;
			}
			if (EPILOGUE == HZI_CONV_EPILOGUE_BIAS_ACT)
				q = {leaky(q.w + bias[h].w, slope), leaky(q.x + bias[h].x, slope),
				     leaky(q.y + bias[h].y, slope), leaky(q.z + bias[h].z, slope)};
			if constexpr (DTYPE == HZ_F32)
				store_if(inside, c[h] + begin, q);
			else
				store_if(inside, c[h] + begin, quat_pack(dtype, q));
		}
		dst = next;
	}
}

/*
 * Waits for the planes of a step. Rescales the accumulators to their scale, of the given exponent,
 * unless they are empty; e: the exponent of the accumulators.
 */
HZ_DEVICE void wait_inputs(uint64_t &full, uint32_t parity, const int &exponent, int &e, bool empty,
			   float (&acc)[4][ACC])
{
	int next;

	mbarrier_wait(shared_address(&full), parity);
	/* Read by the lane that will arrive at x_empty. */
	next = threadIdx.x % 32 == 0 ? exponent : 0;
	next = __shfl_sync(~0u, next, 0);
	if (next != e && !empty)
		scale_acc(acc, rescale(e, next));
	e = next;
}

/* From the accumulators of phase 1 to C; to, pre: the offsets of find_outputs() */
template <int EPILOGUE, int DTYPE>
HZ_DEVICE void finish_tile(const hzi_quat_conv8 &p, const int64_t *dst, const int64_t *pre,
			   float (&acc)[4][ACC], int row, int e, int group)
{
	hadamard(acc);
	/* Offsets were computed by other threads of the warpgroup, and soon are again. */
	bar_sync(2 + group, 128);
	store<EPILOGUE, DTYPE>(p, dst, pre, acc, row, power_of_two(-e));
	bar_sync(2 + group, 128);
}

/* A kernel, of kernel<DTYPE, EPILOGUE>() in the .cu file; one for each epilogue */
#define CONV8_KERNEL(name, threads, dtype, epilogue) \
	extern "C" __global__ __launch_bounds__(threads, 1) void \
	name(const __grid_constant__ hzi_quat_conv8 p) \
	HZ_HOPPER_BODY((kernel<dtype, epilogue>(p)))
#define CONV8_KERNELS(suffix, threads, dtype) \
	CONV8_KERNEL(quat_conv_implicit_gemm8_##suffix, threads, dtype, HZI_CONV_EPILOGUE_NONE) \
	CONV8_KERNEL(quat_conv_implicit_gemm8_bias_act_##suffix, threads, dtype, \
		     HZI_CONV_EPILOGUE_BIAS_ACT) \
	CONV8_KERNEL(quat_conv_implicit_gemm8_full_epilogue_##suffix, threads, dtype, \
		     HZI_CONV_EPILOGUE_FULL)

#endif
