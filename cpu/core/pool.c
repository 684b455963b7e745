/*
 * pool.c - the built-in thread pool
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A call leases idle workers, offers each one share of its work, runs the first share itself, takes
 * back the shares that no worker has begun meanwhile, and waits for those begun. A worker that the
 * system has not run therefore costs the call nothing, and a call never waits for a thread that is
 * asleep. Workers spin for SPIN_NS after their work, then sleep.
 *
 * A worker that the system interrupts in the middle of a share costs the call a time slice, some
 * ms. Each call therefore compares its time with what its caller alone would have taken, which the
 * caller's own shares show. What workers gain is credit, up to CREDIT_NS; what they lose is taken
 * from it. When a loss exceeds the credit, calls do without workers for ALONE times the excess: on
 * busy cores successive calls take at most 1 + 1 / ALONE times as long as one thread, plus
 * CREDIT_NS. Losses of long calls do not count: one thread on busy cores is interrupted as often. A
 * call without workers offers them its other shares if its first one shows that it is long.
 *
 * There is one pool for each set of CPUs on which contexts were opened, since a worker must run
 * where the threads of its callers may. Threads of a process that call at the same time share the
 * workers of their pool. All end when the last context is closed. A child of fork() has none of
 * them: its first call starts new ones.
 */
#include <config.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef HAVE_SCHED_GETAFFINITY
#include <sched.h>
#endif
#ifdef __linux__
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "cpu/core/pool.h"

#define SPIN_NS 20000		/* about as long as sleeping and waking take together */
#define STACK_BYTES ((size_t)1 << 20)	/* hurwitz(7) says how much calls use */
#define PATIENCE 1000		/* calls after a refused thread before the next try */
#define WAKES 4			/* workers that each thread of a job wakes */
#define LONG_NS 1000000		/* a call that one thread would take as long for is long */
#define CREDIT_NS 10000000	/* a few time slices */
#define ALONE 20
#define ALONE_MOST_NS INT64_C(2000000000)	/* the process may have been stopped for hours */

/*
 * A worker's state. It sleeps while its state is ASLEEP; its caller, while the state is AWAITED.
 *
 *	IDLE -> ASLEEP			the worker has spun for long enough
 *	IDLE, ASLEEP -> POSTED		a caller offers a share
 *	POSTED -> TAKEN -> IDLE		the worker runs it
 *	POSTED -> IDLE or ASLEEP	the caller takes the share back
 *	TAKEN -> AWAITED -> IDLE	the caller sleeps until it is done
 *	IDLE, ASLEEP -> QUIT
 */
enum { IDLE, ASLEEP, POSTED, TAKEN, AWAITED, QUIT };

struct hzi_pool_worker {
	_Alignas(64) atomic_uint state;
	atomic_uint unwoken;		/* was ASLEEP when posted, and nobody has woken it */
	const struct hzi_job *job;
	int share;
	bool spins;
	struct hzi_pool *pool;
	struct hzi_pool_worker *next_idle, *next;
	pthread_t thread;
};

struct hzi_pool {
	struct hzi_cpus cpus;
	struct hzi_pool_worker *idle, *all;
	int leased, workers;
	int refused;			/* calls to go before the next try to start a thread */
	int64_t credit;			/* ns that workers have gained */
	int64_t alone_until;		/* nanoseconds() until which calls do without workers */
	struct hzi_pool *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hzi_pool *pools;
static int contexts;			/* that hold a pool */
static unsigned generation;		/* of fork(), to which the workers belong */

/* ---- Sleeping and waking --------------------------------------------------------------------- */

#ifdef __linux__

/* As in linux/futex.h: not every C library (musl) comes with the kernel's headers. */
#define FUTEX_WAIT_PRIVATE 128
#define FUTEX_WAKE_PRIVATE 129

static void sleep_while(atomic_uint *word, unsigned value)
{
	while (atomic_load_explicit(word, memory_order_acquire) == value)
		syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake_sleeper(atomic_uint *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#else

static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void sleep_while(atomic_uint *word, unsigned value)
{
	pthread_mutex_lock(&sleep_lock);
	while (atomic_load_explicit(word, memory_order_acquire) == value)
		pthread_cond_wait(&changed, &sleep_lock);
	pthread_mutex_unlock(&sleep_lock);
}

static void wake_sleeper(atomic_uint *word)
{
	(void)word;
	pthread_mutex_lock(&sleep_lock);
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&sleep_lock);
}

#endif

static int64_t nanoseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" : : : "memory");
#endif
}

/* Spins for a while as long as the state is a or b; returns the state. */
static unsigned spin_while(atomic_uint *word, unsigned a, unsigned b)
{
	const int64_t begin = nanoseconds();
	unsigned state;

	do {
		for (int i = 0; i < 16; i++) {
			state = atomic_load_explicit(word, memory_order_acquire);
			if (state != a && state != b)
				return state;
			pause_cpu();
		}
	} while (nanoseconds() - begin < SPIN_NS);
	return state;
}

static bool change(struct hzi_pool_worker *w, unsigned from, unsigned to)
{
	return atomic_compare_exchange_strong(&w->state, &from, to);
}

/* ---- Workers --------------------------------------------------------------------------------- */

/* The i-th thread of a job, its caller the 0th, wakes the sleepers from WAKES i + 1 on. */
static void wake(const struct hzi_job *job, int i)
{
	for (int k = WAKES * i + 1; k <= WAKES * (i + 1) && k <= job->workers; k++) {
		struct hzi_pool_worker *const w = job->worker[k - 1];

		if (atomic_load_explicit(&w->unwoken, memory_order_relaxed) &&
		    atomic_exchange(&w->unwoken, 0))
			wake_sleeper(&w->state);
	}
}

/* Moves to the pool's CPUs if the thread that started this one was on others. */
static void use_cpus(const struct hzi_cpus *cpus)
{
#ifdef HAVE_SCHED_GETAFFINITY
	struct hzi_cpus own = {.count = 0};

	if (cpus->count > 0 &&
	    sched_getaffinity(0, sizeof(own.bits), (cpu_set_t *)(void *)own.bits) == 0 &&
	    memcmp(own.bits, cpus->bits, sizeof(own.bits)) != 0)
		(void)sched_setaffinity(0, sizeof(cpus->bits),
					(const cpu_set_t *)(const void *)cpus->bits);
#else
	(void)cpus;
#endif
}

static void *run_worker(void *arg)
{
	struct hzi_pool_worker *const w = arg;
	unsigned state;

	use_cpus(&w->pool->cpus);
#ifdef __linux__
	(void)prctl(PR_SET_NAME, "hurwitz");
#endif
	for (;;) {
		state = atomic_load_explicit(&w->state, memory_order_acquire);
		if (state == IDLE && w->spins)
			state = spin_while(&w->state, IDLE, IDLE);
		if (state == IDLE)
			change(w, IDLE, ASLEEP);
		sleep_while(&w->state, ASLEEP);
		if (change(w, POSTED, TAKEN)) {
			wake(w->job, w->share - w->job->first);
			hzi_run_shares(w->job, w->share, w->share + 1);
			if (atomic_exchange(&w->state, IDLE) == AWAITED)
				wake_sleeper(&w->state);
		} else if (atomic_load(&w->state) == QUIT) {
			return NULL;
		}
	}
}

/* A thread with all signals blocked: those of the process are for its own threads. */
static bool start_thread(struct hzi_pool_worker *w)
{
	sigset_t all, old;
	pthread_attr_t attr;
	bool started;

	if (pthread_attr_init(&attr))
		return false;
	(void)pthread_attr_setstacksize(&attr, STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	/* A stack of this size may be too small for the thread-local variables of the process. */
	started = pthread_create(&w->thread, &attr, run_worker, w) == 0 ||
		  pthread_create(&w->thread, NULL, run_worker, w) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return started;
}

static struct hzi_pool_worker *new_worker(struct hzi_pool *pool)
{
	struct hzi_pool_worker *w;

	if (pool->refused > 0) {
		pool->refused--;
		return NULL;
	}
	w = aligned_alloc(_Alignof(struct hzi_pool_worker), sizeof(*w));
	if (w) {
		*w = (struct hzi_pool_worker){.pool = pool, .next = pool->all};
		/* Where there are more workers than CPUs, a spinning one delays another. */
		w->spins = pool->workers + 1 < pool->cpus.count;
		if (start_thread(w)) {
			pool->all = w;
			pool->workers++;
			return w;
		}
		free(w);
	}
	pool->refused = PATIENCE;
	return NULL;
}

static void free_workers(struct hzi_pool *pool, bool join)
{
	while (pool->all) {
		struct hzi_pool_worker *const w = pool->all;

		pool->all = w->next;
		if (join) {
			atomic_exchange(&w->state, QUIT);
			wake_sleeper(&w->state);
			pthread_join(w->thread, NULL);
		}
		free(w);
	}
	pool->idle = NULL;
	pool->leased = pool->workers = pool->refused = 0;
	pool->credit = pool->alone_until = 0;
}

/* ---- fork() ---------------------------------------------------------------------------------- */

void hzi_pool_before_fork(void)
{
	pthread_mutex_lock(&lock);
}

void hzi_pool_after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* Forgets the workers of a parent process. The lock is held. */
static void forget_lost(void)
{
	if (generation == hzi_fork_generation())
		return;
	generation = hzi_fork_generation();
	for (struct hzi_pool *p = pools; p; p = p->next)
		free_workers(p, false);
}

/* ---- Pools ----------------------------------------------------------------------------------- */

struct hzi_pool *hzi_pool_open(const struct hzi_cpus *cpus)
{
	struct hzi_pool *pool;

	pthread_mutex_lock(&lock);
	for (pool = pools; pool; pool = pool->next) {
		if (memcmp(&pool->cpus, cpus, sizeof(*cpus)) == 0)
			break;
	}
	if (!pool) {
		pool = calloc(1, sizeof(*pool));
		if (pool) {
			pool->cpus = *cpus;
			pool->next = pools;
			pools = pool;
		}
	}
	contexts += pool != NULL;
	pthread_mutex_unlock(&lock);
	return pool;
}

void hzi_pool_close(struct hzi_pool *pool)
{
	struct hzi_pool *list = NULL;

	if (!pool)
		return;
	pthread_mutex_lock(&lock);
	forget_lost();
	if (--contexts == 0) {
		list = pools;
		pools = NULL;
	}
	pthread_mutex_unlock(&lock);
	while (list) {
		pool = list;
		list = pool->next;
		free_workers(pool, true);
		free(pool);
	}
}

int64_t hzi_pool_account(int64_t *credit, double part, int64_t own, int64_t took)
{
	const int64_t one = (int64_t)((double)own / part);
	int64_t excess;

	if (one < LONG_NS || took < one)
		*credit += one - took;
	if (*credit > CREDIT_NS)
		*credit = CREDIT_NS;
	if (*credit >= 0)
		return 0;
	excess = -*credit;
	*credit = 0;
	return excess < ALONE_MOST_NS / ALONE ? ALONE * excess : ALONE_MOST_NS;
}

/* Whether short calls do without workers now */
static bool is_alone(struct hzi_pool *pool)
{
	bool alone;

	pthread_mutex_lock(&lock);
	forget_lost();
	if (pool->alone_until && nanoseconds() >= pool->alone_until)
		pool->alone_until = 0;
	alone = pool->alone_until;
	pthread_mutex_unlock(&lock);
	return alone;
}

/* Takes at most n workers; returns how many. */
static int lease(struct hzi_pool *pool, int n, int most, struct hzi_pool_worker **worker)
{
	int got = 0;

	pthread_mutex_lock(&lock);
	forget_lost();
	if (n > most - pool->leased)
		n = most - pool->leased;
	for (; got < n && pool->idle; got++) {
		worker[got] = pool->idle;
		pool->idle = pool->idle->next_idle;
	}
	while (got < n && (worker[got] = new_worker(pool)))
		got++;
	pool->leased += got;
	pthread_mutex_unlock(&lock);
	return got;
}

/*
 * In the order of lease(), so that a worker has the same share of the next call. The caller ran
 * `part` of the call in `own` ns; the whole took from `begin` to `end`.
 */
static void give_back(struct hzi_pool *pool, int n, struct hzi_pool_worker **worker, double part,
		      int64_t own, int64_t begin, int64_t end)
{
	int64_t alone;

	pthread_mutex_lock(&lock);
	for (int i = n - 1; i >= 0; i--) {
		worker[i]->next_idle = pool->idle;
		pool->idle = worker[i];
	}
	pool->leased -= n;
	alone = hzi_pool_account(&pool->credit, part, own, end - begin);
	/* A call at the same time may have lost more. */
	if (alone && pool->alone_until < end + alone)
		pool->alone_until = end + alone;
	pthread_mutex_unlock(&lock);
}

static void post(struct hzi_pool_worker *w, const struct hzi_job *job, int share)
{
	w->job = job;
	w->share = share;
	atomic_store_explicit(&w->unwoken, atomic_load(&w->state) == ASLEEP, memory_order_relaxed);
	if (atomic_exchange(&w->state, POSTED) == ASLEEP)
		atomic_store_explicit(&w->unwoken, 1, memory_order_relaxed);
}

/* Whether the worker has not begun. One that nobody has woken sleeps on. */
static bool take_back(struct hzi_pool_worker *w)
{
	return change(w, POSTED, atomic_exchange(&w->unwoken, 0) ? ASLEEP : IDLE);
}

static void await(struct hzi_pool_worker *w)
{
	unsigned state = atomic_load_explicit(&w->state, memory_order_acquire);

	if (state == TAKEN)
		state = spin_while(&w->state, TAKEN, TAKEN);
	if (state == TAKEN && change(w, TAKEN, AWAITED))
		sleep_while(&w->state, AWAITED);
}

void hzi_pool_run(struct hzi_pool *pool, struct hzi_job *job, int most, bool always)
{
	struct hzi_pool_worker *worker[HZI_THREADS_MAX];
	int64_t begin, posted, done, end, units, all;
	int first = 0, n;

	if (!always && is_alone(pool)) {
		begin = nanoseconds();
		hzi_run_shares(job, 0, 1);
		if (nanoseconds() - begin < LONG_NS / job->n) {
			hzi_run_shares(job, 1, job->n);
			return;
		}
		first = 1;
	}
	n = lease(pool, job->n - first - 1, most, worker);
	if (first == 0)
		job->n = n + 1;
	if (n == 0) {
		hzi_run_shares(job, first, job->n);
		return;
	}
	job->worker = worker;
	job->workers = n;
	job->first = first;
	begin = nanoseconds();
	for (int i = 0; i < n; i++)
		post(worker[i], job, first + 1 + i);
	wake(job, 0);
	posted = nanoseconds();
	units = hzi_run_shares(job, first, first + 1);
	if (first + 1 + n < job->n)
		units += hzi_run_shares(job, first + 1 + n, job->n);
	for (int i = n; i > 0; i--) {
		if (take_back(worker[i - 1]))
			units += hzi_run_shares(job, first + i, first + i + 1);
	}
	end = done = nanoseconds();
	all = job->units - job->units * first / job->n;
	if (units < all) {
		for (int i = 0; i < n; i++)
			await(worker[i]);
		end = nanoseconds();
	}
	give_back(pool, n, worker, (double)units / (double)all, done - posted, begin, end);
}
