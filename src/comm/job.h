/* SPDX-License-Identifier: MIT-0 */
/* job - private: which launcher started this process, read from one place so that tests can put
 * another environment and other files there. */
#ifndef DPARI_COMM_JOB_H
#define DPARI_COMM_JOB_H

#include "../base/arith.h"
#include "../base/text.h"
#include "launch.h"
#include "os.h"

/* Where the environment and the files under /proc, /sys and /dev are read. */
typedef struct dpari_site {
    const char *(*env)(const void *user, const char *name); /* NULL: not set */
    const void *user;
    const char *root; /* put before absolute paths; "" is this machine */
} dpari_site;

/* The real environment and the real files. */
DPARI_API void dpari_site_here(dpari_site *site);
/* Text of a variable; NULL when it is not set. */
DPARI_API const char *dpari_site_env(const dpari_site *site, const char *name);
/* Reads at most room - 1 bytes of root + path and ends them with NUL; the bytes, -1: cannot. */
DPARI_API int64_t dpari_site_read(const dpari_site *site, const char *path, char *text,
                                  size_t room);

/* "torchrun", "Open MPI", ...; "none"; "?" for a number that is none. Static text. */
DPARI_API const char *dpari_launcher_name(int32_t launcher);

/* Digits alone, value at most `most`; 1 when it is such a number. */
DPARI_API int dpari_job_number(const char *text, int64_t most, int64_t *value);
/* All of dpar_launcher_detect, and the nodes. */
DPARI_API dpar_status dpari_job_here(dpar_launcher_info *job, int32_t *nodes, dpar_why *why);

/* ---- of this header's own modules ---- */

/* A field of /proc/PID/stat, counted from 1 as proc(5) does; it is 3 or more. Of field 3, the
 * state, its letter. 0 where there is no such file. */
enum { DPARI_PROCESS_STATE = 3, DPARI_PROCESS_THREADS = 20, DPARI_PROCESS_STARTED = 22 };
DPARI_INTERNAL int64_t dpari_job_process(int64_t pid, int32_t field);

/* The descriptor of the segment that dpar_init_or_launch made for this rank before it started it;
 * -1: this process was not started so. DPAR_SEGMENT is "fd.pid": processes that a rank starts have
 * its environment and another pid. */
#define DPARI_JOB_SEGMENT "DPAR_SEGMENT"
DPARI_INTERNAL int dpari_job_segment(const dpari_site *site);

/* "4(x2),3": tasks of node `node` (-1: only if all nodes have as many) and the number of nodes.
 * 1 when the text is of this form and knows the node. */
DPARI_INTERNAL int dpari_job_tasks(const char *text, int32_t node, int32_t *tasks, int32_t *nodes);
/* The pure part of dpar_launcher_detect: id stays empty where no variable tells jobs apart. *nodes:
 * of the whole job, 0 where nothing says. */
DPARI_INTERNAL dpar_status dpari_job_from(const dpari_site *site, dpar_launcher_info *job,
                                          int32_t *nodes, dpar_why *why);

#endif
