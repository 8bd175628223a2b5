/* SPDX-License-Identifier: MIT-0 */
/* limits - private: the memory and processors that this process may use. */
#ifndef DPARI_COMM_LIMITS_H
#define DPARI_COMM_LIMITS_H

#include "os.h"

/* The available memory and processors, and what limits them. */
typedef struct dpari_available {
    int64_t bytes;      /* INT64_MAX if unknown */
    int64_t most;       /* limit of the control group; 0 if only the machine limits the memory */
    char group[128];    /* path of that group below the directory where groups are mounted */
    int32_t cpus;       /* whole processors that quotas allow, at least 1; INT32_MAX if unlimited */
    int32_t hundredths; /* hundredths of a processor that they allow; INT32_MAX if unlimited */
    uint64_t who;       /* equal for processes of one control group, and so under one quota */
} dpari_available;
/* Determines them from the machine and from each control group (version 1 or 2) of this process, up
 * to the root. Page cache that the system can drop counts as available. Processors are limited by
 * the quotas of the groups (cpu.max, cpu.cfs_quota_us). */
DPARI_API void dpari_limits_find(dpari_available *a);

/* ---- of this header's own modules ---- */

/* Determines the limits of control groups only, from the text of /proc/self/cgroup and the
 * directory where groups are mounted. Lowers bytes, cpus and hundredths of *a. */
DPARI_INTERNAL void dpari_limits_groups(dpari_available *a, const char *text, const char *root);

#endif
