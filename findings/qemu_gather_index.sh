#!/bin/sh
# qemu_gather_index.sh - QEMU 7.2 ignores the indices of a gather if they are in xmm4 or ymm4
# SPDX-License-Identifier: BSD-2-Clause
#
# SIMD libraries run their AVX2 code under QEMU's user mode to test it on machines without AVX2, or as
# an older processor (-cpu Haswell). Most people expect an instruction to be right for all registers or
# wrong for all, so that a test of the instruction finds the error.
#
# What happens: vpgatherdd reads the element with index 0 into every lane if its index vector is
# register 4; registers 0 to 3 and 5 to 15 are right. In an ordinary address an index register of 4
# means "no index", and QEMU applies that rule to vector indices too. Processors and valgrind do not.
#
# Why it matters: which register holds the indices is the compiler's choice, so a table lookup is right
# or wrong by the compiler's version and options, and one more variable in a loop can change it. Repeat
# on a processor what fails only under QEMU before you look for an error in your code.
#
# Seen with qemu-user 1:7.2+dfsg-7+deb12u18+b3 (Debian 12), gcc 12.2, 2026-11-30, x86_64 Linux with
# AVX2. Takes gcc, apt-get and dpkg-deb; installs nothing.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
apt-get download -o APT::Sandbox::User=root -q=2 qemu-user=1:7.2+dfsg-7+deb12u18+b3
dpkg-deb -x qemu-user_*.deb qemu
cat >gather.c <<'END'
#include <stdio.h>

/* Gathers table[index[i]], i = 0 to 7, with the indices in register n. */
#define GATHER(n, mask, result) \
	__asm__ volatile("vmovdqu %1, %%ymm" #n "\n\t" \
			 "vpcmpeqd %%ymm" #mask ", %%ymm" #mask ", %%ymm" #mask "\n\t" \
			 "vpgatherdd %%ymm" #mask ", (%2, %%ymm" #n ", 4), %%ymm" #result "\n\t" \
			 "vmovdqu %%ymm" #result ", %0" \
			 : "=m"(values) : "m"(index), "r"(table) \
			 : "memory", "xmm" #n, "xmm" #mask, "xmm" #result); \
	printf("ymm%-2d", n); \
	for (int i = 0; i < 8; i++) \
		printf(" %d", values[i]); \
	printf("\n")

int main(void)
{
	static const int table[8] = {0, 10, 20, 30, 40, 50, 60, 70};
	static const int index[8] = {7, 6, 5, 4, 3, 2, 1, 0};
	static int values[8];

	GATHER(3, 1, 2);
	GATHER(4, 1, 2);
	GATHER(5, 1, 2);
	GATHER(12, 1, 2);
	return 0;
}
END
gcc -O1 -mavx2 -o gather gather.c
{
	./gather
	echo "QEMU:"
	qemu/usr/bin/qemu-x86_64 -cpu Haswell ./gather 2>/dev/null
} >output
cat output
cat >expected <<'END'
ymm3  70 60 50 40 30 20 10 0
ymm4  70 60 50 40 30 20 10 0
ymm5  70 60 50 40 30 20 10 0
ymm12 70 60 50 40 30 20 10 0
QEMU:
ymm3  70 60 50 40 30 20 10 0
ymm4  0 0 0 0 0 0 0 0
ymm5  70 60 50 40 30 20 10 0
ymm12 70 60 50 40 30 20 10 0
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
