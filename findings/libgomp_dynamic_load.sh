#!/bin/sh
# libgomp_dynamic_load.sh - with OMP_DYNAMIC libgomp takes the load of the last 15 minutes off the threads
# SPDX-License-Identifier: BSD-2-Clause
#
# OMP_DYNAMIC=true lets an OpenMP runtime give a parallel region fewer threads than it asks for.
# omp_get_max_threads() says how many there are at most. Most people expect a limit by what is free: no
# more threads than cores, and all of an idle machine.
#
# What happens: libgomp gives the least of the number that is asked for and the cores, minus the third
# number of getloadavg(), the average of 15 minutes, and at least 1. A program that computed on all cores
# for a quarter of an hour gets one thread in its next region, its own load being what is taken off, and
# an idle machine stays so for minutes after a build. num_threads() does not change it.
# omp_get_max_threads() still gives the full number.
#
# Why it matters: programs that size arrays of results by omp_get_max_threads(), or that take such a
# number as the number of shares, must ask omp_get_num_threads() inside; and a benchmark under
# OMP_DYNAMIC measures what ran in the 15 minutes before. Programs of a container see the load of the
# whole machine.
#
# Seen with GCC 12.2.0 (libgomp 12.2.0-14+deb12u1 of Debian 12), 2026-11-30, x86_64 Linux. Takes cc with
# -fopenmp, and a machine with at least two cores. The program defines getloadavg(), by which libgomp
# asks.
set -eu

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM
cd "$directory"
cat >load.c <<'END'
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

static double average;

/* In place of that of the C library */
int getloadavg(double *load, int n)
{
	for (int i = 0; i < n; i++)
		load[i] = i == 2 ? average : 0;
	return n;
}

int main(void)
{
	for (int dynamic = 0; dynamic < 2; dynamic++) {
		omp_set_dynamic(dynamic);
		for (average = 0; average < 3; average += 1) {
			int n = 0;

#pragma omp parallel num_threads(2)
#pragma omp single
			n = omp_get_num_threads();
			printf("dynamic %d, load now 0, of 15 minutes %g: %d threads of %d\n", dynamic,
			       average, n, omp_get_max_threads());
		}
	}
	return 0;
}
END
cc -O1 -fopenmp -o load load.c
OMP_NUM_THREADS=2 ./load >output
cat output
cat >expected <<'END'
dynamic 0, load now 0, of 15 minutes 0: 2 threads of 2
dynamic 0, load now 0, of 15 minutes 1: 2 threads of 2
dynamic 0, load now 0, of 15 minutes 2: 2 threads of 2
dynamic 1, load now 0, of 15 minutes 0: 2 threads of 2
dynamic 1, load now 0, of 15 minutes 1: 1 threads of 2
dynamic 1, load now 0, of 15 minutes 2: 1 threads of 2
END
cmp output expected || { echo "this has changed" >&2; exit 1; }
