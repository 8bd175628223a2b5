/* SPDX-License-Identifier: MIT-0 */
/* job - private: detects which launcher started this process. All variables and files are read
 * through a dpari_site, so that tests can supply another environment and other files. */
#ifndef DPARI_COMM_JOB_H
#define DPARI_COMM_JOB_H

#include "../base/arith.h"
#include "../base/text.h"
#include "launch.h"
#include "os.h"

/* Where the environment and the files under /proc, /sys and /dev are read. */
typedef struct dpari_site {
    const char *(*env)(const void *user, const char *name); /* returns NULL if not set */
    const void *user;
    const char *root; /* precedes absolute paths; "" for the files of this machine */
} dpari_site;

/* Selects the real environment and the real files. */
DPARI_API void dpari_site_here(dpari_site *site);
/* Returns the text of a variable, or NULL if it is not set. */
DPARI_API const char *dpari_site_env(const dpari_site *site, const char *name);
/* Reads at most room - 1 bytes of the file root + path and appends a NUL. Returns the number of
 * bytes, or -1 if the file cannot be opened. */
DPARI_API int64_t dpari_site_read(const dpari_site *site, const char *path, char *text,
                                  size_t room);

/* Returns "torchrun", "Open MPI", ..., "none", or "?" if the number is not a launcher. Static text.
 */
DPARI_API const char *dpari_launcher_name(int32_t launcher);

/* Reads a number. Returns 1 if the text has only digits and the value is at most `most`. */
DPARI_API int dpari_job_number(const char *text, int64_t most, int64_t *value);
/* Does what dpar_launcher_detect does, and also finds the number of nodes, 0 if unknown. */
DPARI_API dpar_status dpari_job_here(dpar_launcher_info *job, int32_t *nodes, dpar_why *why);

/* ---- of this header's own modules ---- */

/* Returns one field of /proc/PID/stat. Fields are numbered from 1, as in proc(5), and `field` must
 * be at least 3. Field 3, the state, is returned as its letter. Returns 0 if there is no such
 * file. */
enum { DPARI_PROCESS_STATE = 3, DPARI_PROCESS_THREADS = 20, DPARI_PROCESS_STARTED = 22 };
DPARI_INTERNAL int64_t dpari_job_process(int64_t pid, int32_t field);

/* Returns the descriptor of the segment that dpar_init_or_launch made before it started this rank,
 * or -1 if this process was not started like that. DPAR_SEGMENT is "fd.pid". The pid is compared
 * because a process that a rank starts inherits the rank's environment but has another pid. */
#define DPARI_JOB_SEGMENT "DPAR_SEGMENT"
DPARI_INTERNAL int dpari_job_segment(const dpari_site *site);

/* Reads Slurm's "4(x2),3", which means two nodes with 4 tasks and one with 3. Sets *tasks to
 * the number of tasks on node `node`. If `node` is -1, sets it to the number of tasks on each node,
 * which must be the same on all. Sets *nodes to the
 * number of nodes. Returns 0 if the text has another form, the node is not in it, or `node` is -1
 * and the nodes differ. */
DPARI_INTERNAL int dpari_job_tasks(const char *text, int32_t node, int32_t *tasks, int32_t *nodes);
/* The part of dpar_launcher_detect that only reads the site. job->id is empty if no variable
 * distinguishes jobs. *nodes is the number of nodes of the whole job, 0 if unknown. */
DPARI_INTERNAL dpar_status dpari_job_from(const dpari_site *site, dpar_launcher_info *job,
                                          int32_t *nodes, dpar_why *why);

#endif
