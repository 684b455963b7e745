/*
 * generic.cu - the lattice quantizer with any lattice, strides and packing
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include "gpu/lattice/generic.cuh"

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_encode_generic(const __grid_constant__ hzi_lattice_generic p)
{
	encode(p, nullptr);
}

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_decode_generic(const __grid_constant__ hzi_lattice_generic p)
{
	decode(p, nullptr);
}

extern "C" __global__ void __launch_bounds__(HZI_LATTICE_THREADS)
lattice_repack_generic(const __grid_constant__ hzi_lattice_generic p)
{
	const int64_t step = (int64_t)gridDim.x * blockDim.x;

	for (int64_t u = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; u < p.units; u += step) {
		const row_offsets at = find_row(p, u);
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
