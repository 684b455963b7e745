/*
 * threads.c - how many threads: affinity, cores, OpenMP's variables, quotas of control groups
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HAVE_SCHED_GETAFFINITY
#include <sched.h>
#endif

#include "lib/core/threads.h"

#define PATH_BYTES 2048
#define LINE_BYTES 2048

/* ---- CPUs ------------------------------------------------------------------------------------ */

void hzi_cpus_read(struct hzi_cpus *cpus)
{
	memset(cpus, 0, sizeof(*cpus));
#ifdef HAVE_SCHED_GETAFFINITY
	if (sched_getaffinity(0, sizeof(cpus->bits), (cpu_set_t *)(void *)cpus->bits) != 0)
		return;
	for (int i = 0; i < HZI_CPUS_MAX / 64; i++)
		cpus->count += __builtin_popcountll(cpus->bits[i]);
	hzi_cpus_undo_openmp(cpus);
#endif
}

/* Reads the first line of a file without its end; false if there is none. */
static bool first_line(const char *path, char *to, int bytes)
{
	FILE *const in = fopen(path, "r");
	const bool good = in && fgets(to, bytes, in);

	if (in)
		fclose(in);
	return good;
}

/* The first hardware thread of a CPU's core; -1 if the system does not say */
static int first_sibling(const char *root, int cpu)
{
	char path[PATH_BYTES], line[64];
	int sibling;

	snprintf(path, sizeof(path), "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
		 root, cpu);
	return first_line(path, line, sizeof(line)) && sscanf(line, "%d", &sibling) == 1 ? sibling
											 : -1;
}

static int16_t siblings[HZI_CPUS_MAX];	/* of this machine: one file a CPU, read once */
static int configured;

static void read_siblings(void)
{
	const long n = sysconf(_SC_NPROCESSORS_CONF);

	configured = n < 0 ? 0 : n > HZI_CPUS_MAX ? HZI_CPUS_MAX : (int)n;
	for (int i = 0; i < HZI_CPUS_MAX; i++)
		siblings[i] = (int16_t)(i < configured ? first_sibling("", i) : -1);
}

int hzi_cores_of(const char *root, const struct hzi_cpus *cpus)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct hzi_cpus seen = {.count = 0};
	bool known = false;

	pthread_once(&once, read_siblings);
	for (int cpu = 0; cpu < (cpus ? HZI_CPUS_MAX : configured); cpu++) {
		int sibling;

		if (cpus && !hzi_cpus_have(cpus, cpu))
			continue;
		sibling = *root ? first_sibling(root, cpu) : siblings[cpu];
		known |= sibling >= 0;
		hzi_cpus_add(&seen, sibling >= 0 ? sibling : cpu);
	}
	return known ? (int)seen.count : 0;
}

/* ---- Control groups -------------------------------------------------------------------------- */

/* floor(quota / period), at least 1; 0: no quota */
static int quota_cpus(int64_t quota, int64_t period)
{
	const int64_t cpus = quota > 0 && period > 0 ? quota / period : 0;

	if (quota <= 0 || period <= 0)
		return 0;
	return cpus < 1 ? 1 : cpus > HZI_CPUS_MAX ? HZI_CPUS_MAX : (int)cpus;
}

static __attribute__((cold)) int group_quota(const char *directory, int version)
{
	char path[PATH_BYTES + 32], line[64];
	long long quota = 0, period = 0;

	snprintf(path, sizeof(path), "%s/%s", directory,
		 version == 2 ? "cpu.max" : "cpu.cfs_quota_us");
	if (!first_line(path, line, sizeof(line)))
		return 0;
	if (version == 2)
		return sscanf(line, "%lld %lld", &quota, &period) == 2 ? quota_cpus(quota, period)
								       : 0;
	if (sscanf(line, "%lld", &quota) != 1)
		return 0;
	snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", directory);
	if (!first_line(path, line, sizeof(line)) || sscanf(line, "%lld", &period) != 1)
		return 0;
	return quota_cpus(quota, period);
}

static int least(int a, int b)
{
	return a == 0 || (b != 0 && b < a) ? b : a;
}

/* Whether a comma-separated list has the word */
static bool has_word(const char *list, const char *word)
{
	const size_t n = strlen(word);

	for (; list; list = strchr(list, ',')) {
		list += *list == ',';
		if (strncmp(list, word, n) == 0 && (list[n] == ',' || list[n] == '\0'))
			return true;
	}
	return false;
}

/* Reads a line without its end; cuts what does not fit. */
static bool next_line(FILE *in, char *line)
{
	int c;

	if (!fgets(line, LINE_BYTES, in))
		return false;
	if (!strchr(line, '\n')) {
		while ((c = getc(in)) != EOF && c != '\n')
			continue;
	}
	line[strcspn(line, "\n")] = '\0';
	return true;
}

/* The kernel writes blanks, tabs, newlines and backslashes as \ooo. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++, to++) {
		*to = *s;
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
		    s[3] >= '0' && s[3] <= '7') {
			*to = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
			s += 3;
		}
	}
	*to = '\0';
}

/* The path of this process in the hierarchy of that version; false if it is in none */
static bool group_path(const char *root, int version, char *path)
{
	char name[PATH_BYTES], line[LINE_BYTES];
	bool found = false;
	FILE *in;

	snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
	in = fopen(name, "r");
	while (in && !found && next_line(in, line)) {
		char *controllers = strchr(line, ':'), *at;

		at = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!at)
			continue;
		*at++ = '\0';
		found = version == 2 ? strcmp(line, "0:") == 0 : has_word(controllers + 1, "cpu");
		if (found)
			snprintf(path, PATH_BYTES, "%s", at);
	}
	if (in)
		fclose(in);
	return found;
}

/* Where that hierarchy is mounted, and which of its groups is there */
static bool group_mount(const char *root, int version, char *mount, char *top)
{
	char name[PATH_BYTES], line[LINE_BYTES];
	bool found = false;
	FILE *in;

	snprintf(name, sizeof(name), "%s/proc/self/mountinfo", root);
	in = fopen(name, "r");
	while (in && !found && next_line(in, line)) {
		const char *const rest = strstr(line, " - ");
		char type[16], options[LINE_BYTES] = "";

		if (!rest || sscanf(rest, " - %15s %*s %2047s", type, options) < 1)
			continue;
		if (version == 2 ? strcmp(type, "cgroup2") != 0
				 : strcmp(type, "cgroup") != 0 || !has_word(options, "cpu"))
			continue;
		found = sscanf(line, "%*s %*s %*s %2047s %2047s", top, mount) == 2;
	}
	if (in)
		fclose(in);
	unescape(top);
	unescape(mount);
	return found;
}

static __attribute__((cold)) int hierarchy_cpus(const char *root, int version)
{
	char path[PATH_BYTES], mount[LINE_BYTES] = "", top[LINE_BYTES] = "";
	char directory[2 * PATH_BYTES];
	const char *below = path;
	size_t n, stop;
	int cpus;

	if (!group_path(root, version, path) || !group_mount(root, version, mount, top))
		return 0;
	/* A container sees its own group as the top of the mount, and perhaps its path outside. */
	n = strcmp(top, "/") == 0 ? 0 : strlen(top);
	if (strncmp(path, top, n) == 0 && (path[n] == '/' || path[n] == '\0'))
		below += n;
	else
		below = "";
	if (strcmp(below, "/") == 0 || strstr(below, "/.."))
		below = "";
	stop = (size_t)snprintf(directory, sizeof(directory), "%s%s", root, mount);
	if (stop >= PATH_BYTES || stop + strlen(below) >= PATH_BYTES)
		return 0;
	strcpy(directory + stop, below);
	for (cpus = group_quota(directory, version); directory[stop];
	     cpus = least(cpus, group_quota(directory, version)))
		*strrchr(directory + stop, '/') = '\0';
	return cpus;
}

int hzi_cgroup_cpus(const char *root)
{
	return least(hierarchy_cpus(root, 2), hierarchy_cpus(root, 1));
}

/* ---- The number ------------------------------------------------------------------------------ */

/* The first number of a variable such as OMP_NUM_THREADS=4,2; 0: not set, or no number */
static int first_number(const char *name)
{
	const char *const value = getenv(name);
	const long n = value ? strtol(value, NULL, 10) : 0;

	return n < 0 ? 0 : n > HZI_THREADS_MAX ? HZI_THREADS_MAX : (int)n;
}

__attribute__((cold))
int hzi_threads_auto(const char *root, int machine_cores, int cores, const char **source)
{
	const struct {
		const char *name;
		int n;
	} limit[] = {
		{"the cores", machine_cores},
		{"the affinity mask", cores},
		{"OMP_NUM_THREADS", first_number("OMP_NUM_THREADS")},
		{"OMP_THREAD_LIMIT", first_number("OMP_THREAD_LIMIT")},
		{"the cgroup's quota", hzi_cgroup_cpus(root)},
	};
	int n = 0;

	*source = "the system";
	for (size_t i = 0; i < sizeof(limit) / sizeof(*limit); i++) {
		if (limit[i].n > 0 && (n == 0 || limit[i].n < n)) {
			n = limit[i].n;
			*source = limit[i].name;
		}
	}
	return n > 0 ? n : 1;
}
