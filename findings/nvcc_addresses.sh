#!/bin/sh
# nvcc_addresses.sh - nvcc 13.0 makes different code of the same file from run to run
# SPDX-License-Identifier: BSD-2-Clause
#
# Most people expect that the same compiler, options and source give the same PTX and machine code,
# so that builds can be reproduced, caches of compiled files be shared, and a change of code be proved
# to change nothing by comparing the two.
#
# What happens: cicc, which makes PTX of CUDA C++, gives one of two results for gpu/lattice/shaped.cu
# of this tree, here at least (122920 and 122792 bytes of machine code for sm_90a). Where the system
# puts its memory decides: with address space layout randomization off (setarch -R) it is always the
# same. 72 other files of this tree gave the same code in every run that was looked at.
#
# Why it matters: a comparison of hashes calls a file changed that is not, and two builds of one
# release differ. Compile by `setarch -R` for both sides.
#
# Seen with CUDA 13.0.88, 2026-11-29, x86_64 Linux. Takes nvcc of PATH or of NVCC. No GPU is needed.
set -eu

nvcc=${NVCC:-nvcc}
tree=$(cd "$(dirname "$0")/.." && pwd)
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM

# The number of different results of 12 runs
results()
{
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
		"$@" "$nvcc" -ptx -O3 -std=c++17 -arch=compute_90a -I"$tree/include" -I"$tree" \
			-o "$directory/shaped.ptx" "$tree/gpu/lattice/shaped.cu"
		sha256sum <"$directory/shaped.ptx"
	done | sort -u | wc -l
}

random=$(results env)
fixed=$(results setarch -R)
echo "12 runs: $random results; with fixed addresses: $fixed"

# Output seen:
#   12 runs: 2 results; with fixed addresses: 1
[ "$random" -gt 1 ] && [ "$fixed" -eq 1 ]
