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
	struct hzi_pool_worker *const *worker;	/* of the pool: offered share first + 1 + i */
	int workers, first;
};

/*
 * Runs successive shares, begin .. end - 1, as one with the number of the first, in the job's
 * floating-point modes, and restores those of this thread. Returns the number of units.
 */
int64_t hzi_run_shares(const struct hzi_job *job, int begin, int end);

/*
 * Runs the job on the calling thread and at most job->n - 1 workers, and returns when all of it is
 * done. Sets job->n to the number of threads that there are. `most` limits the workers that
 * concurrent calls have together; the pool starts them when they are first needed. Where a thread
 * cannot be started there are fewer, down to the caller alone; unless `always`, the caller is also
 * alone after workers have cost more time than they gained, in calls that its first share shows to
 * be short.
 */
void hzi_pool_run(struct hzi_pool *pool, struct hzi_job *job, int most, bool always);

/*
 * Adds to the credit what workers gained in a call, or takes from it what they cost. The call took
 * `took` ns; its caller ran the fraction `part` of it in `own` ns. Returns for how many ns short
 * calls are to do without workers; 0 while there is credit.
 */
int64_t hzi_pool_account(int64_t *credit, double part, int64_t own, int64_t took);

#endif
