/* SPDX-License-Identifier: MIT-0 */
/* os - small functions for what ranks need of POSIX and Linux. Private. Only this file and
 * the doctor (src/debug) include system headers. The private functions that other headers of dpar
 * share do not need them.
 */
#ifndef DPARI_COMM_OS_H
#define DPARI_COMM_OS_H

#include "../base/arith.h"
#include "../base/text.h"

/* Accesses to shared words. LOAD acquires and STORE releases; the others are sequentially
 * consistent. */
#define DPARI_LOAD(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define DPARI_STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define DPARI_STORE_SEQ(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
#define DPARI_LOAD_SEQ(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define DPARI_ADD(p, v) __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)
#define DPARI_CLAIM(p, old, now)                                                                   \
    __atomic_compare_exchange_n((p), (old), (now), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

/* Returns the seconds of a monotonic clock. */
DPARI_API double dpari_os_now(void);
/* Returns the seconds since the last look at the clock for which this process did not run, because
 * its job was suspended or its machine slept. A wait adds them to the time at which it began, so
 * that no rank counts as late because of time in which no rank ran. Waits look at the clock every
 * 20 ms. The first quarter of a second of a longer gap still counts as time in which the process
 * ran, because a busy machine may cause it. *looked must be 0 before the first look. */
DPARI_API double dpari_os_suspended(double *looked, double now);
/* Returns the seconds since the first call with this stopwatch, without the time for which this
 * process was suspended. The stopwatch must be zeroed before that call. Must be called at least
 * every 0.2 s. */
typedef struct dpari_stopwatch {
    double began, looked;
} dpari_stopwatch;
DPARI_API double dpari_os_waited(dpari_stopwatch *s);
DPARI_API void dpari_os_sleep(double seconds);

/* Returns zeroed private pages, or NULL if there are none. */
DPARI_API void *dpari_os_pages(int64_t bytes);
DPARI_API void dpari_os_unmap(void *at, int64_t bytes);
/* Moves a descriptor below 3 to a number of 3 or more. It has such a number if stdin, stdout or
 * stderr was closed, and what the program prints would be written into it. Returns -1 and errno if
 * fd is -1 or no descriptor is free. */
DPARI_API int dpari_os_beyond_standard(int fd);
/* Closes a descriptor; -1 does nothing. */
DPARI_API void dpari_os_close(int fd);
/* Make a socket, or accept a connection: with a descriptor of 3 or more, which exec closes, and
 * whose calls do not block. Return -1 and errno on failure. */
DPARI_API int dpari_os_socket(int family, int kind);
DPARI_API int dpari_os_accept(int listener);
/* Waits for the socket, at most 0.1 s. Returns 0 if the deadline has passed. */
DPARI_API int dpari_os_poll(int fd, short events, double until);
/* The CPUs that this thread may use, as 1024 bits. */
enum { DPARI_CPU_WORDS = 16 };
DPARI_API void dpari_os_cpus(uint64_t mask[DPARI_CPU_WORDS]);
/* Returns the CPU on which this thread runs now, or -1 if the system cannot tell. Takes 5 ns. */
DPARI_API int32_t dpari_os_cpu(void);
/* Moves this thread to a CPU that it may use. The set of these CPUs does not change, so the system
 * may move the thread again at once. Returns 1 if the thread has moved there. Takes about 10 us. */
DPARI_API int dpari_os_move_to(int32_t cpu);

/* A process whose memory is to be read, with a proof of its identity: `word`, which only the memory
 * of that process has at address `at`. A pid is no such proof, because it may belong to another
 * process in another PID namespace, or once the process has ended. */
typedef struct dpari_os_target {
    int32_t pid;
    uint64_t at, word;
} dpari_os_target;
/* Copies from another process; if bytes is 0, only checks whether it can. The word is read in the
 * same system call as the bytes, so that both are from the same memory. Returns 0, or -1 with the
 * errno of the kernel, or ESRCH if the word differs. On failure the bytes at `to` are undefined. */
DPARI_API int dpari_os_read_peer(const dpari_os_target *target, void *to, uint64_t from,
                                 int64_t bytes);
/* Publishes a name that processes of this user can see within one network namespace of one machine
 * while the returned descriptor is open. Returns -1 if that is not possible on this system.
 * dpari_os_sees tests whether this process sees such a name. */
DPARI_API int dpari_os_show(uint64_t *name);
DPARI_API int dpari_os_sees(uint64_t name);
/* Returns the number that identifies this process's namespace of a kind ("pid", "user"), or 0 if
 * unknown. */
DPARI_API uint64_t dpari_os_namespace(const char *kind);
/* Returns the bytes of physical memory, or 0 if unknown. */
DPARI_API int64_t dpari_os_memory(void);
DPARI_API int64_t dpari_os_page(void);

/* Threads. dpari_os_thread returns -1 if the program is linked without them or none can be started.
 * The handle is the system's. */
typedef struct dpari_thread {
    uint64_t handle;
} dpari_thread;
DPARI_API int dpari_os_thread(dpari_thread *thread, void *(*run)(void *), void *arg);
DPARI_API void dpari_os_join(dpari_thread thread);

/* Appends the text of an error number, for those that matter here, or "error " and the number. */
DPARI_API void dpari_os_error(dpar_text *text, int number);

/* Returns a limit of this process as getrlimit does: RLIMIT_AS is that of addresses in
 * bytes (ulimit -v), RLIMIT_FSIZE that of files (ulimit -f). INT64_MAX if unlimited. */
DPARI_API int64_t dpari_os_limit(int resource);

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
#if !defined(MSG_NOSIGNAL) /* os.c then sets SO_NOSIGPIPE */
#define MSG_NOSIGNAL 0
#endif

/* dpar uses POSIX 2008 and common extensions that compilers offer by default, but not under
 * -std=c99 and the like. os.c declares what glibc offers only with _GNU_SOURCE. If a system header
 * was included before under -std=c99, it has hidden POSIX, which cannot be undone here. */
#if !defined(MAP_ANONYMOUS) || !defined(CLOCK_MONOTONIC) || !defined(F_DUPFD_CLOEXEC)
#error strict C hides POSIX: define DPAR_IMPLEMENTATION and include dpar before any other header, \
    or compile with -D_GNU_SOURCE
#endif

/* Pauses briefly between two looks at a word that another core will write. */
DPARI_INTERNAL void dpari_os_pause(void);
/* Sleeps while *word is `value`, at most `seconds`. May return early. Without futexes it sleeps up
 * to 50 us. dpari_os_futex_wake wakes all that sleep on the word. own: 1 if all of them are threads
 * of this process. */
DPARI_INTERNAL void dpari_os_futex_wait(uint32_t *word, uint32_t value, double seconds, int own);
DPARI_INTERNAL void dpari_os_futex_wake(uint32_t *word, int own);

/* Makes a file of `bytes` that processes can share by its descriptor, which exec closes. It has no
 * name, or, without memfd, its name is removed before this returns. Returns -1 and errno on
 * failure.
 */
DPARI_INTERNAL int dpari_os_segment(int64_t bytes, int without_memfd);
/* Maps [begin, begin + bytes) of the file. Returns NULL and errno on failure. */
DPARI_INTERNAL void *dpari_os_map(int fd, int64_t begin, int64_t bytes);
/* Leaves mapped memory out of core files, or includes it again. By default the system writes all of
 * a shared mapping, and allocates a page for each page of it that was never used. */
DPARI_INTERNAL void dpari_os_dump(void *at, int64_t bytes, int dumped);
/* True if this process is writing a core file. */
DPARI_INTERNAL int dpari_os_dumps(int32_t pid);
/* Returns the PID namespace of this process if /proc shows its processes, or 0. */
DPARI_INTERNAL uint64_t dpari_os_pids(void);
/* Appends "out of addresses (ulimit -v is 4000000 KiB)". */
DPARI_INTERNAL void dpari_os_put_addresses(dpar_text *text);
/* Allocates these bytes of the file. Returns 0 or an error number (ENOSPC, ENOMEM). */
DPARI_INTERNAL int dpari_os_reserve(int fd, int64_t begin, int64_t bytes);
/* Replaces small pages in a range by large ones, wherever whole large pages fit into the range and
 * the system supports it. It also works if the system gives shared memory no large pages by
 * default. Takes a second for each GB. */
enum { DPARI_OS_LARGE = 1 << 21 };
DPARI_INTERNAL void dpari_os_large_pages(void *at, int64_t bytes);

/* dpari_os_hold locks byte `at` of the file until this process ends. dpari_os_is_held tests whether
 * another process has locked it. */
DPARI_INTERNAL int dpari_os_hold(int fd, int64_t at);
DPARI_INTERNAL int dpari_os_is_held(int fd, int64_t at);

/* Reads at most room - 1 bytes from the beginning of a file and appends a NUL. Returns the number
 * of bytes, or -1 and the text "" if the file cannot be opened. */
DPARI_INTERNAL int64_t dpari_os_text(const char *path, char *text, size_t room);
/* Finds the first number after `key` in a file. Returns -1 if there is none, as for "max". */
DPARI_INTERNAL int64_t dpari_os_number_in(const char *path, const char *key);
/* Reads the digits at the beginning of a text, 0 if there are none, INT64_MAX if there are more
 * than
 * 18. Returns what follows them. */
DPARI_INTERNAL const char *dpari_os_digits(const char *text, int64_t *number);
/* Returns how many CPUs are in a set. */
DPARI_INTERNAL int32_t dpari_os_cpu_count(const uint64_t mask[DPARI_CPU_WORDS]);
/* Returns the first CPU of the last-level cache that all these CPUs share, or -1 if they share none
 * or that is unknown. */
DPARI_INTERNAL int32_t dpari_os_cache(const uint64_t mask[DPARI_CPU_WORDS]);

/* Returns the environment: texts "NAME=value", then NULL. */
DPARI_INTERNAL char **dpari_os_environment(void);
/* Returns the nanoseconds of processor time that all threads of a process have used, or -1 if
 * unknown. */
DPARI_INTERNAL int64_t dpari_os_used(int32_t pid);
/* Stores the path of the program that this process runs, or `name` (its argv[0]) if the system does
 * not tell. Returns 0, or -1 if it is too long. */
DPARI_INTERNAL int dpari_os_program(const char *name, char *path, size_t bytes);

/* Makes an OpenMP runtime in this process end its threads, if there is one. os.c has the reason. */
enum { DPARI_OPENMP_SOFT = 1, DPARI_OPENMP_HARD = 2 };
DPARI_INTERNAL void dpari_os_pause_openmp(int kind);

/* Finds the process and user at the other end of a local socket; *pid is 0 if unknown. Returns -1
 * if the system cannot tell. */
DPARI_INTERNAL int dpari_os_peer(int fd, int64_t *pid, int64_t *user);

/* Converts the remaining time for poll, to at most 100 ms, so that other conditions are checked
 * too. */
DPARI_INTERNAL int dpari_os_milliseconds(double seconds);

/* Continues a hash (64-bit FNV-1a) with n bytes. It begins with DPARI_OS_HASH. */
#define DPARI_OS_HASH UINT64_C(14695981039346656037)
DPARI_INTERNAL uint64_t dpari_os_hash(uint64_t h, const void *bytes, size_t n);
/* Appends 16 hexadecimal digits. */
DPARI_INTERNAL void dpari_os_put_hex(dpar_text *text, uint64_t number);
/* Returns a random number, different for each call on any machine. */
DPARI_INTERNAL uint64_t dpari_os_random(void);
/* Returns one zeroed page that reads as zeros in children that this process forks, or NULL if there
 * is no memory. */
DPARI_INTERNAL uint64_t *dpari_os_own_page(void);
/* Returns the number that this process's user has outside of its user namespace, if known,
 * otherwise the number inside. */
DPARI_INTERNAL int64_t dpari_os_user(void);

/* Fails with DPAR_E_SYSTEM and the message "what bytes bytes: error", or "what: error" if bytes is
 * 0. */
DPARI_INTERNAL dpar_status dpari_os_why(dpar_why *why, const char *what, int64_t bytes, int number);

#endif
