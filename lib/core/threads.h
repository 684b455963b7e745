/*
 * threads.h - how many threads, on which CPUs
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_THREADS_H
#define HZI_THREADS_H

#include <stdbool.h>
#include <stdint.h>

#define HZI_CPUS_MAX 8192
#define HZI_THREADS_MAX 1024 /* more are clamped: far beyond any machine's cores, still few pages */

/* A set of CPUs, as sched_getaffinity() writes it */
struct hzi_cpus {
	uint64_t bits[HZI_CPUS_MAX / 64];
	int64_t count;			/* 0: the system does not say */
};

static inline bool hzi_cpus_have(const struct hzi_cpus *c, int cpu)
{
	return cpu >= 0 && cpu < HZI_CPUS_MAX && (c->bits[cpu / 64] >> cpu % 64 & 1);
}

static inline void hzi_cpus_add(struct hzi_cpus *c, int cpu)
{
	if (cpu < 0 || cpu >= HZI_CPUS_MAX || hzi_cpus_have(c, cpu))
		return;
	c->bits[cpu / 64] |= UINT64_C(1) << cpu % 64;
	c->count++;
}

/*
 * The CPUs that threads of this thread may use: its affinity mask. OpenMP binds the initial thread
 * to one place when it is loaded, if the environment says so; then the CPUs of all places.
 */
void hzi_cpus_read(struct hzi_cpus *cpus);

/* If *cpus is the place that OpenMP bound this thread to, replaces it by the union of all places. */
void hzi_cpus_undo_openmp(struct hzi_cpus *cpus);	/* cpu/core/parallel.c */

/*
 * Number of cores, not hardware threads, among the CPUs; 0 if unknown. NULL: of the machine. root
 * is the directory that stands for "/".
 */
int hzi_cores_of(const char *root, const struct hzi_cpus *cpus);

/*
 * CPUs that the quotas of control groups allow: the least max(1, floor(quota / period)) from this
 * process's group up to the root of what is mounted, of version 2 and of version 1; 0: no limit.
 */
int hzi_cgroup_cpus(const char *root);

/* Automatic number of threads; *source says what decided. cores: of the machine, and usable here. */
int hzi_threads_auto(const char *root, int machine_cores, int cores, const char **source);

#endif
