/* SPDX-License-Identifier: MIT-0 */
/* os - what ranks need of POSIX and Linux, behind small functions. Private; the one place that
 * includes system headers, which the private functions that headers share do not. */
#ifndef DPARI_COMM_OS_H
#define DPARI_COMM_OS_H

#include "../base/arith.h"
#include "../base/text.h"

/* Shared words. Loads acquire, stores release; SWAP and the rest are sequentially consistent. */
#define DPARI_LOAD(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define DPARI_STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define DPARI_STORE_SEQ(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
#define DPARI_LOAD_SEQ(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define DPARI_ADD(p, v) __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)
#define DPARI_CLAIM(p, old, now)                                                                   \
    __atomic_compare_exchange_n((p), (old), (now), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

/* Seconds of a clock that only grows. */
DPARI_API double dpari_os_now(void);
/* For how many of the seconds since the last look at the clock this process did not run, because
 * its job was suspended and continued, or its machine slept. Whoever waits adds them to the moment
 * at which the wait began, so that nobody is late for time in which nobody ran. A wait looks each
 * 20 ms; of a longer gap a quarter of a second counts, which a busy machine may take. *looked is 0
 * before the first look. */
DPARI_API double dpari_os_suspended(double *looked, double now);
/* The seconds since the first call with this stopwatch, which is zeroed before, without those for
 * which this process was suspended. To be called each 0.2 s at least. */
typedef struct dpari_stopwatch {
    double began, looked;
} dpari_stopwatch;
DPARI_API double dpari_os_waited(dpari_stopwatch *s);
DPARI_API void dpari_os_sleep(double seconds);

/* Private pages, zeroed; NULL when there are none. */
DPARI_API void *dpari_os_pages(int64_t bytes);
DPARI_API void dpari_os_unmap(void *at, int64_t bytes);
/* A descriptor that took the place of a closed stdin, stdout or stderr moves to 3 or more: what a
 * program prints would go into it. -1 with errno, where fd is none or there is no room. */
DPARI_API int dpari_os_beyond_standard(int fd);
/* The CPUs that this thread may use, as 1024 bits. */
enum { DPARI_CPU_WORDS = 16 };
DPARI_API void dpari_os_cpus(uint64_t mask[DPARI_CPU_WORDS]);
/* The CPU that this thread runs on now; -1 if the system cannot tell. 5 ns. */
DPARI_API int32_t dpari_os_cpu(void);
/* Moves this thread to that CPU, one of those that it may use, which stay the same: the system may
 * move it again at once. 1 if it runs there now. About 10 us. */
DPARI_API int dpari_os_move_to(int32_t cpu);

/* A process that is to be read, and the proof that it is the one that is meant: a word that only
 * its memory holds at this address. A pid alone proves nothing: in another PID namespace, or once
 * the process has ended, it is that of someone else. */
typedef struct dpari_os_target {
    int32_t pid;
    uint64_t at, word;
} dpari_os_target;
/* Copies from another process (bytes 0: only proves that it can). The word is read in the same
 * system call as the bytes, so both come from one memory. 0, or -1 with errno: what the kernel
 * says, ESRCH where the process is another one. What is at `to` then is undefined. */
DPARI_API int dpari_os_read_peer(const dpari_os_target *target, void *to, uint64_t from,
                                 int64_t bytes);
/* Shows a name that processes of this user see within one network namespace of one machine, for as
 * long as the descriptor is open; -1: not possible here. */
DPARI_API int dpari_os_show(uint64_t *name);
DPARI_API int dpari_os_sees(uint64_t name);
/* Which namespace of a kind ("pid", "user") this process is in; 0: not known. */
DPARI_API uint64_t dpari_os_namespace(const char *kind);
/* Bytes of physical memory; 0 where it cannot be had. */
DPARI_API int64_t dpari_os_memory(void);
DPARI_API int64_t dpari_os_page(void);
/* Returns 1 if this CPU has vectors of 32 bytes (AVX2) and conversions of f16 (F16C), and the
 * system saves them. Returns 2 if it has vectors of 64 bytes, too, and otherwise 0. Takes
 * microseconds in a virtual machine. */
DPARI_API int dpari_os_wide(void);

/* Threads; -1 where the program is linked without them. The handle is the system's. */
typedef struct dpari_thread {
    uint64_t handle;
} dpari_thread;
DPARI_API int dpari_os_thread(dpari_thread *thread, void *(*run)(void *), void *arg);
DPARI_API void dpari_os_join(dpari_thread thread);

/* ": No such file or directory" and its kin, for a few numbers that matter; else the number. */
DPARI_API void dpari_os_error(dpar_text *t, int number);

/* ---- of this header's own modules ---- */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* What is used of the system is POSIX 2008 and what every system shows beside it, as compilers do
 * unless told -std=c99 and its like; what glibc shows with _GNU_SOURCE alone is declared in os.c.
 * Under -std=c99 a system header that came before hides POSIX, and nothing brings it back. */
#if !defined(MAP_ANONYMOUS) || !defined(CLOCK_MONOTONIC) || !defined(F_DUPFD_CLOEXEC)
#error strict C hides POSIX: define DPAR_IMPLEMENTATION and include dpar before any other header, \
    or compile with -D_GNU_SOURCE
#endif

/* Between two looks at a word that another core will write. */
DPARI_INTERNAL void dpari_os_pause(void);
/* Sleeps while *word is `value`, at most so long; may return early. Without futexes: sleeps up to
 * 50 us. Wakes whoever sleeps on the word. `own`: all sleepers are threads of this process. */
DPARI_INTERNAL void dpari_os_futex_wait(uint32_t *word, uint32_t value, double seconds, int own);
DPARI_INTERNAL void dpari_os_futex_wake(uint32_t *word, int own);

/* A file of `bytes` without a name that processes can share by its descriptor (closed on exec), or,
 * without memfd, one whose name is gone on return. -1 with errno. */
DPARI_INTERNAL int dpari_os_segment(int64_t bytes, int without_memfd);
/* Maps [begin, begin + bytes) of the file; NULL with errno. */
DPARI_INTERNAL void *dpari_os_map(int fd, int64_t begin, int64_t bytes);
/* Keeps mapped memory out of core files, or takes it in again. The system would write all of a
 * shared mapping, and take a page of memory for each page of it that was never used. */
DPARI_INTERNAL void dpari_os_dump(void *at, int64_t bytes, int dumped);
/* True if that process is writing a core file. */
DPARI_INTERNAL int dpari_os_dumps(int32_t pid);
/* The namespace in which this process has its pid, if /proc shows that one; 0: unknown. */
DPARI_INTERNAL uint64_t dpari_os_pids(void);
/* Bytes of addresses that this process may have (ulimit -v); INT64_MAX: any number. */
DPARI_INTERNAL int64_t dpari_os_addresses(void);
/* "out of addresses (ulimit -v is 4000000 KiB)". */
DPARI_INTERNAL void dpari_os_put_addresses(dpar_text *t);
/* Makes sure that these bytes exist; 0, or an error number (ENOSPC, ENOMEM). */
DPARI_INTERNAL int dpari_os_reserve(int fd, int64_t begin, int64_t bytes);
/* Small pages that exist become large ones where whole ones fit into the range, if the system can
 * (it can where shared memory gets none of its own accord, too; a second a GB). */
enum { DPARI_OS_LARGE = 1 << 21 };
DPARI_INTERNAL void dpari_os_large_pages(void *at, int64_t bytes);

/* Locks byte `at` of the file for as long as this process lives; the second tests whether another
 * process has locked it. */
DPARI_INTERNAL int dpari_os_hold(int fd, int64_t at);
DPARI_INTERNAL int dpari_os_is_held(int fd, int64_t at);

/* The first CPU of the last-level cache that all these CPUs share; -1: they share none, or nobody
 * can tell. */
DPARI_INTERNAL int32_t dpari_os_cache(const uint64_t mask[DPARI_CPU_WORDS]);

/* "NAME=value" each, then NULL. */
DPARI_INTERNAL char **dpari_os_environment(void);
/* Nanoseconds of processor time that a process has used, all its threads together; -1 where the
 * system does not say. */
DPARI_INTERNAL int64_t dpari_os_used(int32_t pid);
/* Path of the program that this process runs; `name` (its argv[0]) where the system does not say.
 * Returns 0, or -1 where it does not fit. */
DPARI_INTERNAL int dpari_os_program(const char *name, char *path, size_t bytes);

/* Lets an OpenMP runtime in this process end its threads, if there is one; os.c says why. */
enum { DPARI_OPENMP_SOFT = 1, DPARI_OPENMP_HARD = 2 };
DPARI_INTERNAL void dpari_os_pause_openmp(int kind);

/* Who is at the other end of a socket of this machine; pid 0: not known. -1: nobody can tell. */
DPARI_INTERNAL int dpari_os_peer(int fd, int64_t *pid, int64_t *user);

/* A number that no other call gives, here or on another machine. */
DPARI_INTERNAL uint64_t dpari_os_random(void);
/* One page, zeroed, that reads as zeros in children that this process forks; NULL: no memory. */
DPARI_INTERNAL uint64_t *dpari_os_own_page(void);
/* The number of this process's user outside of its user namespace, as far as it is known. */
DPARI_INTERNAL int64_t dpari_os_user(void);

/* What memory can be had now, and who limits it. */
typedef struct dpari_available {
    int64_t bytes;   /* INT64_MAX: unknown */
    int64_t most;    /* the limit of the control group; 0: only the machine's memory limits */
    char group[128]; /* that group, below the directory where groups are mounted */
    int32_t cpus;    /* whole processors that quotas of time allow, at least 1; INT32_MAX: all */
    int32_t room;
    uint64_t who; /* the same for processes in one group, and so under one quota */
} dpari_available;
/* Of the machine, and of each control group (version 1 or 2) that this process is in, up to the
 * root. Page cache that the system can drop counts as available. Also the processors that the
 * groups' quotas allow (cpu.max, cpu.cfs_quota_us). */
DPARI_INTERNAL void dpari_os_available(dpari_available *a);
/* The part of it that is about control groups, for the text of a /proc/self/cgroup and the
 * directory where groups are mounted: lowers bytes and cpus of *a. */
DPARI_INTERNAL void dpari_os_groups(dpari_available *a, const char *text, const char *root);

/* The message "what bytes bytes: error" (bytes 0: "what: error"); E_SYSTEM. */
DPARI_INTERNAL dpar_status dpari_os_why(dpar_why *why, const char *what, int64_t bytes, int number);

#endif
