/*
 * thread_count.c - how many threads: made-up trees of control groups and CPUs, variables, affinity
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <config.h>

#include <ftw.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef HAVE_SCHED_GETAFFINITY
#include <sched.h>
#endif
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__)) && \
	__has_include(<linux/seccomp.h>)
#define HAVE_SECCOMP 1
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#ifdef HZ_HAVE_HWLOC
#include <hwloc.h>
#endif

#include "lib/core/internal.h"
#include "t/core/tap.h"

/* ---- Made-up trees --------------------------------------------------------------------------- */

static char root[] = "/tmp/hz-thread-count-XXXXXX";

/* Writes a file below root, with its directories; text NULL: only those. */
static void put(const char *name, const char *text)
{
	char path[1024];
	FILE *out;

	snprintf(path, sizeof(path), "%s%s", root, name);
	for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
		*p = '\0';
		mkdir(path, 0700);
	}
	if (!text)
		return;
	out = fopen(path, "w");
	if (!out || fputs(text, out) < 0 || fclose(out))
		bail("%s", path);
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *f)
{
	(void)s, (void)type, (void)f;
	return remove(path);
}

static void clear(void)
{
	nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	mkdir(root, 0700);
}

#define MOUNT_V2 "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
#define MOUNT_V1 \
	"31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"

static void version2(void)
{
	clear();
	is_int(hzi_cgroup_cpus(root), 0, "no /proc");
	put("/proc/self/cgroup", "0::/a/b/c\n");
	is_int(hzi_cgroup_cpus(root), 0, "no mountinfo");
	put("/proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda rw\n" MOUNT_V2);
	is_int(hzi_cgroup_cpus(root), 0, "v2: no files");
	put("/sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
	is_int(hzi_cgroup_cpus(root), 0, "v2: max is no limit");
	put("/sys/fs/cgroup/a/b/c/cpu.max", "400000 100000\n");
	is_int(hzi_cgroup_cpus(root), 4, "v2: four periods");
	put("/sys/fs/cgroup/a/b/c/cpu.max", "399999 100000\n");
	is_int(hzi_cgroup_cpus(root), 3, "v2: almost four");
	put("/sys/fs/cgroup/a/b/c/cpu.max", "5000 100000\n");
	is_int(hzi_cgroup_cpus(root), 1, "v2: a twentieth is one");
	put("/sys/fs/cgroup/a/b/c/cpu.max", "800000 100000\n");
	put("/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
	is_int(hzi_cgroup_cpus(root), 2, "v2: the least up the tree");
	put("/sys/fs/cgroup/cpu.max", "100000 100000\n");
	is_int(hzi_cgroup_cpus(root), 1, "v2: the top counts");
	put("/proc/self/cgroup", "0::/../elsewhere\n");
	is_int(hzi_cgroup_cpus(root), 1, "v2: a group outside of the namespace");
	put("/proc/self/cgroup", "0::/\n");
	put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
	is_int(hzi_cgroup_cpus(root), 3, "v2: a namespace's own top");
	put("/sys/fs/cgroup/cpu.max", "99999999999999999 1\n");
	is_int(hzi_cgroup_cpus(root), HZI_CPUS_MAX, "v2: a huge quota");
	put("/sys/fs/cgroup/cpu.max", "100000 0\n");
	is_int(hzi_cgroup_cpus(root), 0, "v2: a period of 0");
	put("/sys/fs/cgroup/cpu.max", "-5 100000\n");
	is_int(hzi_cgroup_cpus(root), 0, "v2: a negative quota");
	put("/sys/fs/cgroup/cpu.max", "");
	is_int(hzi_cgroup_cpus(root), 0, "v2: an empty file");
	put("/sys/fs/cgroup/cpu.max", "nonsense\n");
	is_int(hzi_cgroup_cpus(root), 0, "v2: nonsense");
}

static void version1(void)
{
	clear();
	put("/proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/id\n3:cpuset:/x\n"
				 "1:name=systemd:/cpu\n");
	put("/proc/self/mountinfo", "29 23 0:25 / /sys/fs/cgroup/cpuset rw - cgroup cgroup "
				    "rw,cpuset\n" MOUNT_V1);
	put("/sys/fs/cgroup/cpu,cpuacct/docker/id/cpu.cfs_quota_us", "-1\n");
	put("/sys/fs/cgroup/cpu,cpuacct/docker/id/cpu.cfs_period_us", "100000\n");
	is_int(hzi_cgroup_cpus(root), 0, "v1: -1 is no limit");
	put("/sys/fs/cgroup/cpu,cpuacct/docker/id/cpu.cfs_quota_us", "650000\n");
	is_int(hzi_cgroup_cpus(root), 6, "v1: six and a half periods");
	put("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "100000\n");
	put("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "50000\n");
	is_int(hzi_cgroup_cpus(root), 2, "v1: the least up the tree");
	/* A container without a namespace: the path is the host's, the mount is of that group. */
	put("/proc/self/mountinfo",
	    "31 23 0:27 /docker/id /sys/fs/cgroup/with\\040blank rw - cgroup cgroup rw,cpu\n");
	put("/sys/fs/cgroup/with blank/cpu.cfs_quota_us", "300000\n");
	put("/sys/fs/cgroup/with blank/cpu.cfs_period_us", "100000\n");
	is_int(hzi_cgroup_cpus(root), 3, "v1: the mount is the group itself");
	put("/proc/self/cgroup", "4:cpu:/docker/idle\n");
	is_int(hzi_cgroup_cpus(root), 3, "v1: a path that only begins as the mount's");
	put("/proc/self/mountinfo", MOUNT_V1 MOUNT_V2);
	put("/proc/self/cgroup", "4:cpu,cpuacct:/docker/id\n0::/u\n");
	put("/sys/fs/cgroup/u/cpu.max", "100000 100000\n");
	is_int(hzi_cgroup_cpus(root), 1, "both versions: the least");
}

/* Lines that are longer than any buffer */
static void long_lines(void)
{
	static char text[20000], path[8000];

	clear();
	memset(path, 'x', sizeof(path) - 1);
	snprintf(text, sizeof(text), "1 0 0:1 / / rw - overlay overlay lowerdir=%s\n" MOUNT_V2,
		 path);
	put("/proc/self/mountinfo", text);
	put("/proc/self/cgroup", "0::/\n");
	put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
	is_int(hzi_cgroup_cpus(root), 2, "a long line of mountinfo before");
	snprintf(text, sizeof(text), "0::/%s\n", path);
	put("/proc/self/cgroup", text);
	ok(hzi_cgroup_cpus(root) >= 0, "a path that is too long");
}

static void cores(void)
{
	struct hzi_cpus cpus = {.count = 0};
	char name[100], text[20];

	clear();
	for (int i = 0; i < 8; i++)
		hzi_cpus_add(&cpus, i);
	is_int(hzi_cores_of(root, &cpus), 0, "cores of a machine that does not say");
	for (int i = 0; i < 8; i++) {
		snprintf(name, sizeof(name),
			 "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
		snprintf(text, sizeof(text), i % 2 ? "%d,%d\n" : "%d-%d\n", i % 4, i % 4 + 4);
		put(name, text);
	}
	is_int(hzi_cores_of(root, &cpus), 4, "8 hardware threads of 4 cores");
	memset(&cpus, 0, sizeof(cpus));
	hzi_cpus_add(&cpus, 1);
	hzi_cpus_add(&cpus, 5);
	hzi_cpus_add(&cpus, 6);
	is_int(hzi_cores_of(root, &cpus), 2, "3 of these, of 2 cores");
}

/* ---- The least of all ------------------------------------------------------------------------ */

static void decided(int cores_there, int usable, int want, const char *by)
{
	const char *source = "";

	is_int(hzi_threads_auto(root, cores_there, usable, &source), want, "%d threads", want);
	is_str(source, by, "by %s", by);
}

static void sources(void)
{
	clear();
	unsetenv("OMP_NUM_THREADS");
	unsetenv("OMP_THREAD_LIMIT");
	decided(8, 8, 8, "the cores");
	decided(8, 3, 3, "the affinity mask");
	decided(0, 4, 4, "the affinity mask");
	setenv("OMP_NUM_THREADS", "2,4", 1);
	decided(8, 3, 2, "OMP_NUM_THREADS");
	setenv("OMP_NUM_THREADS", " 64", 1);
	decided(8, 8, 8, "the cores");
	setenv("OMP_NUM_THREADS", "many", 1);
	decided(8, 8, 8, "the cores");
	setenv("OMP_NUM_THREADS", "-3", 1);
	decided(8, 8, 8, "the cores");
	setenv("OMP_THREAD_LIMIT", "5", 1);
	decided(8, 8, 5, "OMP_THREAD_LIMIT");
	put("/proc/self/cgroup", "0::/\n");
	put("/proc/self/mountinfo", MOUNT_V2);
	put("/sys/fs/cgroup/cpu.max", "400000 100000\n");
	decided(8, 8, 4, "the cgroup's quota");
	unsetenv("OMP_NUM_THREADS");
	unsetenv("OMP_THREAD_LIMIT");
}

/* ---- Whole processes ------------------------------------------------------------------------- */

static const char *program;

/* Threads and backend as this program started with NAME=VALUE or WORD sees them: "2 pool" */
static const char *started(const char *variables, const char *word)
{
	static char line[200];
	char command[10000];
	FILE *in;

	snprintf(command, sizeof(command), "%s '%s' %s 2>/dev/null", variables, program, word);
	line[0] = '\0';
	in = popen(command, "r");
	if (in && fgets(line, sizeof(line), in))
		line[strcspn(line, "\n")] = '\0';
	if (in && pclose(in) != 0)
		snprintf(line, sizeof(line), "a status that is not 0");
	return line;
}

static int report(bool cores)
{
	hz_context *ctx;
	hz_info info;

	if (hz_open(&ctx, &(hz_options){.device = HZ_CPU}) != HZ_OK) {
		printf("%s\n", hz_open_errmsg());
		return 0;
	}
	hz_device_info(ctx, &info);
	if (cores)
		printf("%d cores\n", info.cores);
	else
		printf("%d %s\n", info.threads, info.threading_name);
	hz_close(ctx);
	return 0;
}

#ifdef HAVE_SECCOMP
/* The system refuses sched_getaffinity() from now on; false if that cannot be had. */
static bool refuse_affinity(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_getaffinity, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog filter = {sizeof(code) / sizeof(*code), code};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}
#else
static bool refuse_affinity(void)
{
	return false;
}
#endif

/* What hwloc reads of a file that describes a machine of 64 cores, even if it says to be this one */
static void other_machine(const char *want)
{
#ifdef HZ_HAVE_HWLOC
	char file[] = "/tmp/hz-machine-XXXXXX", variables[100];
	const int fd = mkstemp(file);
	hwloc_topology_t t;

	if (fd < 0 || hwloc_topology_init(&t) != 0)
		bail("no temporary file, or no topology");
	close(fd);
	if (hwloc_topology_set_synthetic(t, "numa:1 core:64 pu:1") != 0 ||
	    hwloc_topology_load(t) != 0 || hwloc_topology_export_xml(t, file, 0) != 0)
		bail("hwloc cannot write a machine");
	hwloc_topology_destroy(t);
	for (int here = 0; here < 2; here++) {
		snprintf(variables, sizeof(variables), "HWLOC_XMLFILE=%s HWLOC_THISSYSTEM=%d", file,
			 here);
		is_str(started(variables, "report"), want, "another machine's XML%s",
		       here ? ", said to be this one's" : "");
	}
	unlink(file);
#else
	(void)want;
	skip(2, "no hwloc");
#endif
}

/* Which release of hwloc was asked: not the number of its interface, which is 2.8.0 for 2.9.0, too */
static void release(void)
{
#ifdef HZ_HAVE_HWLOC
	char want[64] = "hwloc";
	hwloc_topology_t t;
	hz_context *ctx;
	hz_info info;

	if (hwloc_topology_init(&t) != 0 || hwloc_topology_load(t) != 0)
		bail("hwloc cannot read this machine");
	if (hwloc_topology_is_thissystem(t)) {
		const char *version = hwloc_obj_get_info_by_name(hwloc_get_root_obj(t),
								 "hwlocVersion");

		if (version)
			snprintf(want, sizeof(want), "hwloc %s", version);
	}
	hwloc_topology_destroy(t);
	if (hz_open(&ctx, &(hz_options){.device = HZ_CPU}) != HZ_OK)
		bail("%s", hz_open_errmsg());
	hz_device_info(ctx, &info);
	is_str(info.topology_source, want, "the release of hwloc");
	hz_close(ctx);
#else
	skip(1, "no hwloc");
#endif
}

#ifdef _OPENMP
/* libgomp's places for all CPUs of this process, and for some that the machine has not */
static void affinity(const char *usual)
{
#ifdef HAVE_SCHED_GETAFFINITY
	const int machine = (int)sysconf(_SC_NPROCESSORS_CONF);
	char list[8000] = "GOMP_CPU_AFFINITY='", cores[200];
	cpu_set_t all;
	size_t n = strlen(list);

	if (sched_getaffinity(0, sizeof(all), &all) != 0)
		CPU_ZERO(&all);
	for (int i = 0; i < CPU_SETSIZE; i++) {
		if (CPU_ISSET(i, &all))
			n += (size_t)snprintf(list + n, sizeof(list) - n, "%d ", i);
	}
	snprintf(list + n, sizeof(list) - n, "%d-%d'", machine, machine + 3);
	snprintf(cores, sizeof(cores), "%s", started("", "cores"));
	is_str(started(list, "report"), usual, "%s", list);
	is_str(started(list, "cores"), cores, "%s, cores", list);
#else
	(void)usual;
	skip(2, "no affinity");
#endif
}
#endif

static void processes(void)
{
	char usual[200], want[200];
	hz_context *ctx;
	hz_info info;
	int threads = 0;

	snprintf(usual, sizeof(usual), "%s", started("", "report"));
	ok(sscanf(usual, "%d pool", &threads) == 1 && strstr(usual, " pool"),
	   "without variables: %s", usual);
	snprintf(want, sizeof(want), "%d pool", threads);
	is_str(started("HWLOC_SYNTHETIC='numa:1 core:64 pu:1'", "report"), want,
	       "a synthetic machine of 64 cores");
	other_machine(want);
	is_str(started("HURWITZ_THREADS=5 OMP_NUM_THREADS=1 HURWITZ_THREADING=pool", "report"),
	       "5 pool", "HURWITZ_THREADS");
	is_str(started("OMP_THREAD_LIMIT=", "report"), want, "an empty variable counts as unset");
	has_str(started("HURWITZ_THREADING=tbb", "report"),
		"open: HURWITZ_THREADING is \"tbb\", must be openmp or pool", "another word");
#ifdef _OPENMP
	snprintf(want, sizeof(want), "%d openmp", threads);
	is_str(started("OMP_NUM_THREADS=1", "report"), "1 openmp", "OMP_NUM_THREADS");
	is_str(started("OMP_PROC_BIND=true", "report"), want, "OMP_PROC_BIND");
	is_str(started("OMP_PLACES=cores", "report"), want, "OMP_PLACES");
	is_str(started("OMP_PLACES=cores OMP_PROC_BIND=close HURWITZ_THREADING=pool", "report"),
	       usual, "OMP_PLACES, by the pool");
	affinity(usual);
	is_str(started("HURWITZ_THREADING=openmp", "report"), want, "HURWITZ_THREADING");
#else
	has_str(started("HURWITZ_THREADING=openmp", "report"),
		"open: HURWITZ_THREADING is openmp, but this build has no OpenMP", "no OpenMP");
	is_int(hz_open(&ctx, &(hz_options){.device = HZ_CPU, .threading = HZ_THREADING_OPENMP}),
	       HZ_ENOTSUP, "options.threading without OpenMP");
#endif
	if (strcmp(started("", "refuses"), "yes") == 0)
		ok(strstr(started("", "sandbox"), " pool") != NULL,
		   "a sandbox that refuses sched_getaffinity()");
	else
		skip(1, "no system call can be refused here");
	if (hz_open(&ctx, &(hz_options){.device = HZ_CPU, .threads = 3}) != HZ_OK)
		bail("%s", hz_open_errmsg());
	hz_device_info(ctx, &info);
	is_int(info.threads, 3, "options.threads");
	is_str(info.threads_source, "options.threads", "which info says");
	hz_close(ctx);
}

static void pinned(void)
{
#ifdef HAVE_SCHED_GETAFFINITY
	cpu_set_t all, one;
	hz_context *ctx;
	hz_info info;
	int cpu = 0;

	if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) < 2) {
		skip(4, "one CPU");
		return;
	}
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	for (int i = 0; i < 2; i++) {
		const uint32_t flags = i ? HZ_NO_TOPOLOGY : 0;

		sched_setaffinity(0, sizeof(one), &one);
		if (hz_open(&ctx, &(hz_options){.device = HZ_CPU, .flags = flags}) != HZ_OK)
			bail("%s", hz_open_errmsg());
		hz_device_info(ctx, &info);
		hz_close(ctx);
		is_int(info.threads, 1, "one thread where the thread is pinned, flags %u", flags);
		sched_setaffinity(0, sizeof(all), &all);
		if (hz_open(&ctx, &(hz_options){.device = HZ_CPU, .flags = flags}) != HZ_OK)
			bail("%s", hz_open_errmsg());
		hz_device_info(ctx, &info);
		hz_close(ctx);
		ok(info.threads >= 1 && info.threads <= CPU_COUNT(&all) &&
		   (info.threads > 1 || info.cores == 1 || strstr(info.threads_source, "quota")),
		   "and %d where it no longer is", info.threads);
	}
#else
	skip(4, "no affinity");
#endif
}

static void options(void)
{
	hz_context *ctx;

	is_int(hz_open(&ctx, &(hz_options){.threading = 4}), HZ_EINVAL, "threading 4");
	has_str(hz_open_errmsg(), "options.threading is 4, must be one of enum hz_threading",
		"its message");
	is_int(hz_open(&ctx, &(hz_options){.threading = -1}), HZ_EINVAL, "threading -1");
	is_int(hz_open(&ctx, &(hz_options){.threading = HZ_THREADING_CALLBACK}), HZ_EINVAL,
	       "a callback that is not there");
	has_str(hz_open_errmsg(), "options.parallel_for is NULL", "its message");
}

int main(int argc, char **argv)
{
	unsetenv("HURWITZ_DEVICE");
	program = argv[0];
	if (argc > 1 && strcmp(argv[1], "refuses") == 0) {
		printf("%s\n", refuse_affinity() ? "yes" : "no");
		return 0;
	}
	if (argc > 1) {
		alarm(60);
		if (strcmp(argv[1], "sandbox") == 0)
			refuse_affinity();
		return report(strcmp(argv[1], "cores") == 0);
	}
	unsetenv("HURWITZ_THREADS");
	unsetenv("HURWITZ_THREADING");
	for (const char *const *name = (const char *const[]){
		     "OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_PROC_BIND", "OMP_PLACES",
		     "OMP_WAIT_POLICY", "OMP_DYNAMIC", "OMP_SCHEDULE", NULL}; *name; name++)
		unsetenv(*name);
	if (!mkdtemp(root))
		bail("no temporary directory");
	version2();
	version1();
	long_lines();
	cores();
	sources();
	clear();
	rmdir(root);
	options();
	release();
	processes();
	pinned();
	return done_testing();
}
