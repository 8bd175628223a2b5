/* SPDX-License-Identifier: MIT-0 */
/* Finds the limits of the machine and of control groups, which a container or a batch job has.
 *
 * A process is in one group of each hierarchy, and every group around that group may have a limit
 * of its own. All of them are therefore read, from the process's own group up to the root. Version
 * 1 has a hierarchy for memory and one for cpu, version 2 has one for everything. */
#include "limits.h"

#include "../base/base_private.h"

/* Bytes of a group's path. The system allows 4096 characters (PATH_MAX), and paths of Kubernetes
 * have more than 300. */
enum { DPARI_LIMITS_PATH = 4096 };

/* Reads a number from a file of a control group. Returns -1 if there is none. */
static int64_t dpari_limits_number(const char *group, const char *file, const char *key)
{
    char path[DPARI_LIMITS_PATH + 32];
    dpar_text out;
    dpar_text_init(&out, path, sizeof path);
    dpari_text_print(&out, "%s/%s", group, file);
    return dpari_os_number_in(path, key);
}

/* Lowers the bytes in *available to those of one group: what is left below its limit, plus the page
 * cache of files, which the system can drop. This library's shared memory is not part of that
 * cache, because the system counts it as anonymous. */
static void dpari_limits_memory(dpari_available *available, const char *group, size_t root,
                                int version)
{
    const char *const limits[] = {"memory.limit_in_bytes", "memory.max"};
    const char *const uses[] = {"memory.usage_in_bytes", "memory.current"};
    /* version 1 includes the groups inside a group only in the numbers that begin with "total" */
    const char *const inactive[] = {"\ntotal_inactive_file", "\ninactive_file"};
    const char *const active[] = {"\ntotal_active_file", "\nactive_file"};
    const int row = version - 1;
    const int64_t most = dpari_limits_number(group, limits[row], "");
    const int64_t used = dpari_limits_number(group, uses[row], "");
    int64_t left;
    if (most < 0 || used < 0 || most == INT64_MAX) { /* version 1 has about 2^63 for no limit */
        return;
    }
    left = dpari_most(most - used, 0) +
           dpari_most(dpari_limits_number(group, "memory.stat", inactive[row]), 0) +
           dpari_most(dpari_limits_number(group, "memory.stat", active[row]), 0);
    if (left < available->bytes) {
        dpar_text out;
        available->bytes = left;
        available->most = most;
        dpar_text_init(&out, available->group, sizeof available->group);
        dpar_text_put(&out, group[root] == '\0' ? "/" : group + root);
    }
}

/* Lowers the processors in *available to those that the quota of one group allows. The quota is the
 * processor time that the group may use in each period. */
static void dpari_limits_cpus(dpari_available *available, const char *group, int version)
{
    int64_t quota, period;
    if (version == 1) {
        quota = dpari_limits_number(group, "cpu.cfs_quota_us", "");
        period = dpari_limits_number(group, "cpu.cfs_period_us", "");
    } else { /* one line "quota period" */
        quota = dpari_limits_number(group, "cpu.max", "");
        period = dpari_limits_number(group, "cpu.max", " ");
    }
    if (quota > 0 && period > 0) {
        const double hundredths = (double)quota / (double)period * 100.0 + 0.5;
        available->cpus = (int32_t)dpari_least(available->cpus, dpari_most(quota / period, 1));
        if (hundredths < (double)available->hundredths) {
            available->hundredths = (int32_t)hundredths;
        }
    }
}

/* True if `name` is one of the names in [list, end), which commas separate. */
static int dpari_limits_lists(const char *list, const char *end, const char *name)
{
    const size_t length = strlen(name);
    while (list < end) {
        const char *comma = list;
        while (comma < end && *comma != ',') {
            comma++;
        }
        if ((size_t)(comma - list) == length && memcmp(list, name, length) == 0) {
            return 1;
        }
        list = comma + 1;
    }
    return 0;
}

/* Applies the limits of the group in one line of /proc/self/cgroup ("4:memory:/a/b", "1:cpu:/a" or
 * "0::/a/b"), and of all groups around it. A container may see only part of the path, because its
 * own group is mounted as the root. Groups in the part that it does not see have no files and so
 * change nothing. Not inlined, so that its buffer is not in the caller's frame too. */
DPARI_STATIC_NOINLINE void dpari_limits_line(dpari_available *available, const char *line,
                                             size_t bytes, const char *root)
{
    const char *const end = line + bytes;
    const char *list = (const char *)memchr(line, ':', bytes);
    const char *path = list ? (const char *)memchr(list + 1, ':', (size_t)(end - list - 1)) : NULL;
    char group[DPARI_LIMITS_PATH];
    size_t least, length;
    int version, memory, cpu;
    dpar_text out;
    if (!path) {
        return;
    }
    version = path == list + 1 ? 2 : 1;
    memory = version == 2 || dpari_limits_lists(list + 1, path, "memory");
    cpu = version == 2 || dpari_limits_lists(list + 1, path, "cpu");
    if (!memory && !cpu) {
        return;
    }
    dpar_text_init(&out, group, sizeof group);
    dpar_text_put(&out, root);
    if (version == 1) {
        dpar_text_put(&out, memory ? "/memory" : "/cpu");
    }
    least = strlen(group);
    length = (size_t)(end - path - 1);
    if (least + length + 1 > sizeof group) {
        length = 0; /* the path is too long: read only the root */
    }
    memcpy(group + least, path + 1, length);
    length += least;
    while (length > least && group[length - 1] == '/') {
        length--;
    }
    group[length] = '\0';
    for (;;) {
        if (memory) {
            dpari_limits_memory(available, group, strlen(root), version);
        }
        if (cpu) {
            dpari_limits_cpus(available, group, version);
        }
        if (length <= least) {
            return;
        }
        while (length > least && group[length - 1] != '/') {
            length--;
        }
        length -= length > least;
        group[length] = '\0';
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_limits_groups(dpari_available *available, const char *text,
                                                   const char *root)
{
    while (*text) {
        const char *end = strchr(text, '\n');
        const size_t bytes = end ? (size_t)(end - text) : strlen(text);
        dpari_limits_line(available, text, bytes, root);
        text += bytes + (end != NULL);
    }
}

DPARI_API DPARI_COLD void dpari_limits_find(dpari_available *available)
{
    const int64_t kib = dpari_os_number_in("/proc/meminfo", "MemAvailable:");
    char text[2 * DPARI_LIMITS_PATH]; /* version 1 has a line for each of about 12 hierarchies */
    available->bytes = kib < 0 ? INT64_MAX : kib * 1024;
    available->most = 0;
    available->group[0] = '\0';
    available->cpus = available->hundredths = INT32_MAX;
    (void)dpari_os_text("/proc/self/cgroup", text, sizeof text);
    available->who = dpari_os_hash(dpari_os_namespace("cgroup"), text, strlen(text));
    dpari_limits_groups(available, text, "/sys/fs/cgroup");
}
