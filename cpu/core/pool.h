/*
 * pool.h - a job cut into shares, and the built-in thread pool that runs it
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_POOL_H
#define HZI_POOL_H

#include "cpu/core/cpu.h"

struct hzi_pool_worker;

/* Share i is units i * units / n .. (i + 1) * units / n - 1. Shares do not wait for each other. */
struct hzi_job {
	hzi_work work;
	void *data;
	int64_t units;
	int n;
	hzi_fp_modes modes;		/* for every share: the caller's, with round to nearest */
	struct hzi_pool_worker *const *worker;	/* of the pool: worker[i] is offered share i + 1 */
};

/* Runs one share with the job's floating-point modes and restores those of this thread. */
void hzi_run_share(const struct hzi_job *job, int i);

/*
 * Runs the job on the calling thread and at most job->n - 1 workers, and returns when all of it is
 * done. Sets job->n to the number of threads that there are. `most` limits the workers that
 * concurrent calls have together; the pool starts them when they are first needed. Where a thread
 * cannot be started there are fewer, down to the caller alone.
 */
void hzi_pool_run(struct hzi_pool *pool, struct hzi_job *job, int most);

#endif
