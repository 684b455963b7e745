#!/bin/sh
# nvcc_addresses.sh - nvcc 13.0 makes different code of the same file from run to run
# SPDX-License-Identifier: BSD-2-Clause
#
# Most people expect that the same compiler, options and source give the same PTX and machine code,
# so that builds can be reproduced, caches of compiled files be shared, and a change of code be proved
# to change nothing by comparing the two.
#
# What happens: cicc, which makes PTX of CUDA C++, gives one of several results for
# gpu/lattice/shaped.cu of commit 3016ab1 of this tree, 2 to 11 in 12 runs, with 122920 and 122792 bytes
# of machine code for sm_90a. The addresses of its memory decide. Two things change them: address space
# layout randomization, and the allocator in cicc, jemalloc, which gives unused pages back after a time.
# Without the first (setarch -R) the result is mostly the same, but on a busy machine, 23 processes on
# two cores, 12 runs had 3 results. Without both it is always the same. Of 72 other files of that commit
# one more was seen to vary, gpu/vlut/table_s8_skinny.cu, by 11 lines of PTX.
#
# Why it matters: a comparison of hashes calls a file changed that is not, and two builds of one
# release differ. For both sides compile by `setarch -R` with
# MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1, by which jemalloc keeps its pages.
#
# Seen with CUDA 13.0.88, 2026-11-30, x86_64 Linux. Takes nvcc of PATH or of NVCC, and that commit from
# the clone that this script is in. No GPU is needed.
set -eu

nvcc=${NVCC:-nvcc}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
git -C "$(dirname "$0")/.." archive 3016ab1 gpu include lib | tar -x -C "$directory"

# The number of different results of 12 runs
results()
{
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
		"$@" "$nvcc" -ptx -O3 -std=c++17 -arch=compute_90a -I"$directory/include" -I"$directory" \
			-o "$directory/shaped.ptx" "$directory/gpu/lattice/shaped.cu"
		sha256sum <"$directory/shaped.ptx"
	done | sort -u | wc -l
}

random=$(results env)
fixed=$(results env MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1 setarch -R)
echo "12 runs: $random results; with fixed addresses: $fixed"

# Output seen:
#   12 runs: 11 results; with fixed addresses: 1
[ "$random" -gt 1 ] && [ "$fixed" -eq 1 ]
