/*
 * topology.c - cores, caches and NUMA nodes that this process may use
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef HZ_HAVE_HWLOC
#include <hwloc.h>
#endif

#include "lib/core/internal.h"

static int64_t system_value(int name)
{
	long value = sysconf(name);

	return value > 0 ? value : 0;
}

static int64_t system_memory(void)
{
	return system_value(_SC_PHYS_PAGES) * system_value(_SC_PAGESIZE);
}

#ifdef HZ_HAVE_HWLOC

/* The size of a cache level of the first allowed core; 0 if unknown */
static int64_t cache_bytes(hwloc_topology_t t, hwloc_const_cpuset_t allowed, hwloc_obj_type_t type)
{
	hwloc_obj_t cache = hwloc_get_next_obj_covering_cpuset_by_type(t, allowed, type, NULL);

	return cache ? (int64_t)cache->attr->cache.size : 0;
}

/*
 * Counts cores, not hardware threads: a second thread of a core adds nothing to bandwidth or to
 * multiplication throughput.
 */
static __attribute__((cold))
void read_hwloc(struct hzi_topology *out, hwloc_topology_t t, const struct hzi_cpus *cpus)
{
	hwloc_bitmap_t allowed = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(t));
	hwloc_bitmap_t bound = hwloc_bitmap_alloc();
	hwloc_obj_t package = hwloc_get_obj_by_type(t, HWLOC_OBJ_PACKAGE, 0);
	const char *name = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
	int cores = 0;

	for (int i = 0; bound && i < HZI_CPUS_MAX; i++) {
		if (hzi_cpus_have(cpus, i))
			hwloc_bitmap_set(bound, (unsigned)i);
	}
	if (allowed && bound && hwloc_topology_is_thissystem(t) &&
	    hwloc_bitmap_intersects(allowed, bound))
		hwloc_bitmap_and(allowed, allowed, bound);
	if (allowed) {
		hwloc_obj_t core = NULL;

		while ((core = hwloc_get_next_obj_covering_cpuset_by_type(t, allowed,
									  HWLOC_OBJ_CORE, core)))
			cores++;
		if (cores == 0)
			cores = hwloc_bitmap_weight(allowed);
		out->l1d_bytes = cache_bytes(t, allowed, HWLOC_OBJ_L1CACHE);
		out->l2_bytes = cache_bytes(t, allowed, HWLOC_OBJ_L2CACHE);
		out->l3_bytes = cache_bytes(t, allowed, HWLOC_OBJ_L3CACHE);
	}
	out->cores = cores > 0 ? cores : 1;
	out->numa_nodes = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_NUMANODE);
	out->memory_bytes = (int64_t)hwloc_get_root_obj(t)->total_memory;
	if (name)
		snprintf(out->cpu_name, sizeof(out->cpu_name), "%s", name);
	hwloc_bitmap_free(bound);
	hwloc_bitmap_free(allowed);
}

static struct hzi_topology own;
static bool own_is_read, own_is_other;	/* other: of another machine, as HWLOC_SYNTHETIC says */

/* Loads only cores, caches, packages and NUMA nodes: no I/O devices, no OS objects. */
static void load_own(void)
{
	const char *release;
	struct hzi_cpus cpus;
	hwloc_topology_t t;

	hzi_cpus_read(&cpus);
#ifdef HAVE_SCHED_GETAFFINITY
	/* hwloc asks with ever larger masks, without end where a sandbox refuses the call. */
	if (cpus.count == 0)
		return;
#endif
#ifdef __linux__
	/*
	 * In a container without /sys, hwloc learns little and prints a message to standard error.
	 */
	if (access("/sys/devices/system/cpu", F_OK) != 0)
		return;
#endif
	if (hwloc_topology_init(&t))
		return;
	hwloc_topology_set_all_types_filter(t, HWLOC_TYPE_FILTER_KEEP_NONE);
	hwloc_topology_set_cache_types_filter(t, HWLOC_TYPE_FILTER_KEEP_ALL);
	hwloc_topology_set_type_filter(t, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
	hwloc_topology_set_type_filter(t, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL);
	if (hwloc_topology_load(t) == 0) {
		read_hwloc(&own, t, &cpus);
		own_is_other = !hwloc_topology_is_thissystem(t);
		/*
		 * The file of a NUMA node may not count memory that was added to a running machine.
		 */
		own.memory_bytes = system_memory();
		/*
		 * Of another machine's file this would be the release that wrote it. The number of
		 * hwloc_get_api_version() is that of the interface, which releases may share.
		 */
		release = hwloc_obj_get_info_by_name(hwloc_get_root_obj(t), "hwlocVersion");
		if (release && hwloc_topology_is_thissystem(t))
			snprintf(own.source, sizeof(own.source), "hwloc %s", release);
		else
			snprintf(own.source, sizeof(own.source), "hwloc");
		own_is_read = true;
	}
	hwloc_topology_destroy(t);
}

#endif

static void read_system(struct hzi_topology *out, const struct hzi_cpus *cpus)
{
	out->cores = cpus->count > 0 ? (int)cpus->count : (int)system_value(_SC_NPROCESSORS_ONLN);
	if (out->cores < 1)
		out->cores = 1;
	snprintf(out->source, sizeof(out->source), "%s",
		 cpus->count > 0 ? "sched_getaffinity" : "sysconf");
	out->numa_nodes = 1;
	out->memory_bytes = system_memory();
#ifdef _SC_LEVEL1_DCACHE_SIZE
	out->l1d_bytes = system_value(_SC_LEVEL1_DCACHE_SIZE);
	out->l2_bytes = system_value(_SC_LEVEL2_CACHE_SIZE);
	out->l3_bytes = system_value(_SC_LEVEL3_CACHE_SIZE);
#endif
}

/* Returns whether the topology is this machine's, not one with which to limit what it has. */
static bool read_topology(struct hzi_topology *t, void *topology, bool no_hwloc,
			  const struct hzi_cpus *cpus)
{
#ifdef HZ_HAVE_HWLOC
	if (topology) {
		read_hwloc(t, topology, cpus);
		snprintf(t->source, sizeof(t->source), "the application");
		return false;
	}
	if (!no_hwloc) {
		static pthread_once_t once = PTHREAD_ONCE_INIT;

		pthread_once(&once, load_own);
		if (own_is_read) {
			*t = own;
			return !own_is_other;
		}
	}
#endif
	(void)topology;
	(void)no_hwloc;
	read_system(t, cpus);
	return true;
}

static int machine_cores;

static void count_machine(void)
{
	machine_cores = hzi_cores_of("", NULL);
}

__attribute__((cold))
void hzi_topology_read(struct hzi_topology *t, void *topology, bool no_hwloc,
		       const struct hzi_cpus *cpus)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	bool here;
	int cores;

	memset(t, 0, sizeof(*t));
	pthread_once(&once, count_machine);
	here = read_topology(t, topology, no_hwloc, cpus);
	t->machine_cores = machine_cores;
	cores = cpus->count > 0 ? hzi_cores_of("", cpus) : machine_cores;
	/* Without that part of /sys, hardware threads are the limit. */
	if (cores == 0 && cpus->count > 0 && t->cores > cpus->count)
		cores = (int)cpus->count;
	if (cores > 0 && (here || cores < t->cores))
		t->cores = cores;
}
