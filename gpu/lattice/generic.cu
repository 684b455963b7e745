/*
 * generic.cu - the lattice quantizer of any named lattice, strides and packing
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/lattice/generic.cuh"

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_encode_any(const __grid_constant__ hzi_lattice_any p)
{
	encode_any(p, nullptr);
}

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_decode_any(const __grid_constant__ hzi_lattice_any p)
{
	decode_any(p, nullptr);
}

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_repack_any(const __grid_constant__ hzi_lattice_any p)
{
	const int64_t step = (int64_t)gridDim.x * blockDim.x;

	for (int64_t u = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; u < p.units; u += step) {
		const lattice_row at = find_row(p, u);
		hzi_lattice_code from = code_at(p.codes, at.codes, at.unit);
		hzi_lattice_code to = code_at(p.to, at.to, at.unit);
		int32_t b[HZI_LATTICE_DIMS];

		for (int level = 0; level < p.rule.levels; level++) {
			hzi_lattice_get(&from, &p.rule, b);
			hzi_lattice_put(&to, &p.rule, b);
		}
		hzi_lattice_flush(&to);
	}
}
