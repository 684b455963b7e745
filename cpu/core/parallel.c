/*
 * parallel.c - work split over threads: by OpenMP, the built-in pool, or the application
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <dlfcn.h>
#include <omp.h>
#pragma weak dladdr
#pragma weak dlclose
#pragma weak dlopen
#endif
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "cpu/core/pool.h"

int hzi_threads(const struct hz_context *ctx, int64_t bytes)
{
	const int64_t worth = bytes >> ctx->grain_bits;

	if (ctx->threads <= 1 || worth <= 1)
		return 1;
#ifdef _OPENMP
	/* Threads of a parallel region already have the cores. */
	if (ctx->threading != HZ_THREADING_CALLBACK && omp_in_parallel())
		return 1;
#endif
	return worth < ctx->threads ? (int)worth : ctx->threads;
}

int64_t hzi_run_shares(const struct hzi_job *job, int begin, int end)
{
	const int64_t from = job->units * begin / job->n, to = job->units * end / job->n;
	const hzi_fp_modes own = hzi_fp_set(job->modes);

	job->work(job->data, begin, from, to);
	hzi_fp_set(own);
	return to - from;
}

static void call_share(void *job, int i)
{
	hzi_run_shares(job, i, i + 1);
}

/* ---- OpenMP ---------------------------------------------------------------------------------- */

#ifdef _OPENMP

/*
 * Threads of OpenMP wait in its code for the next parallel region, also after dlclose() of a plugin
 * that holds this library, which would unload the runtime under them.
 */
static void keep_openmp_loaded(void)
{
	Dl_info runtime;
	void *library;

	/* A static program has neither of these, and unloads nothing. */
	if (!dladdr || !dlopen || !dladdr((void *)(uintptr_t)omp_get_max_threads, &runtime))
		return;
	library = dlopen(runtime.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
	if (library)
		dlclose(library);
}

static void *wait_for_gate(void *gate)
{
	pthread_mutex_lock(gate);
	pthread_mutex_unlock(gate);
	return NULL;
}

/* How many of n threads can be started: libgomp ends the process if one of its cannot. */
static int startable(int n)
{
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	pthread_t thread[HZI_THREADS_MAX];
	int started = 0;

	pthread_mutex_lock(&gate);
	while (started < n && pthread_create(&thread[started], NULL, wait_for_gate, &gate) == 0)
		started++;
	pthread_mutex_unlock(&gate);
	for (int i = 0; i < started; i++)
		pthread_join(thread[i], NULL);
	pthread_mutex_destroy(&gate);
	return started;
}

static void run_openmp(struct hzi_job *job)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	/* Threads of this thread's regions: at most, and last, since libgomp ends those beyond */
	static _Thread_local int most, last;
	const bool more = job->n > last;
	sigset_t all, old;

	pthread_once(&once, keep_openmp_loaded);
	if (more) {
		/* Threads that start now inherit it: signals are for the application's threads. */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
	}
	if (job->n > most)
		job->n = most = startable(job->n - 1) + 1;
	last = job->n;
	if (job->n == 1) {
		hzi_run_shares(job, 0, 1);
	} else {
#pragma omp parallel num_threads(job->n)
		{
			struct hzi_job own = *job;

			/* May be fewer than were asked for: libgomp's OMP_DYNAMIC looks at the load. */
			own.n = omp_get_num_threads();
			if (omp_get_thread_num() == 0)
				last = own.n;
			hzi_run_shares(&own, omp_get_thread_num(), omp_get_thread_num() + 1);
		}
	}
	if (more)
		pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* Adds the CPUs of a place to cpus; returns whether it is the whole of old. */
static bool add_place(int place, struct hzi_cpus *cpus, const struct hzi_cpus *old)
{
	const int n = omp_get_place_num_procs(place);
	const long machine = sysconf(_SC_NPROCESSORS_CONF);
	int *const id = n > 0 ? malloc((size_t)n * sizeof(*id)) : NULL;
	bool whole = n == old->count && id;

	if (id)
		omp_get_place_proc_ids(place, id);
	for (int i = 0; id && i < n; i++) {
		whole &= hzi_cpus_have(old, id[i]);
		/* GOMP_CPU_AFFINITY=0-63 has 64 places, however few CPUs there are. */
		if (machine < 1 || id[i] < machine)
			hzi_cpus_add(cpus, id[i]);
	}
	free(id);
	return whole;
}

#endif

void hzi_cpus_undo_openmp(struct hzi_cpus *cpus)
{
#if defined(_OPENMP) && defined(__linux__)
	struct hzi_cpus all = {.count = 0};
	bool bound = false;

	if (omp_get_proc_bind() == omp_proc_bind_false || syscall(SYS_gettid) != getpid())
		return;
	for (int i = 0; i < omp_get_num_places(); i++)
		bound |= add_place(i, &all, cpus);
	if (bound)
		*cpus = all;
#else
	(void)cpus;
#endif
}

/* ---- The one function ------------------------------------------------------------------------ */

void hzi_parallel(const struct hz_context *ctx, int threads, hzi_work work, void *data,
		  int64_t units)
{
	const int most = ctx->threads > ctx->topology.cores ? ctx->threads : ctx->topology.cores;
	struct hzi_job job;

	/* The call has set the rounding mode already. */
	if (threads <= 1 || units <= 1) {
		work(data, 0, 0, units);
		return;
	}
	job = (struct hzi_job){
		.work = work, .data = data, .units = units,
		.n = threads > units ? (int)units : threads,
		.modes = hzi_fp_to_nearest(hzi_fp_get()),
	};
	if (ctx->threading == HZ_THREADING_CALLBACK) {
		ctx->parallel_for(ctx->parallel_user, job.n, call_share, &job);
#ifdef _OPENMP
	/*
	 * A child of fork() has no threads of libgomp, and its first region would wait for those of
	 * its parent.
	 */
	} else if (ctx->threading == HZ_THREADING_OPENMP && hzi_fork_generation() == 0) {
		run_openmp(&job);
#endif
	} else {
		hzi_pool_run(ctx->pool, &job, most - 1, ctx->grain_bits == 0);
	}
}
