/* SPDX-License-Identifier: MIT-0 */
/* Wraps what dpar needs of POSIX and Linux: clocks, futexes, mappings, files, processes, CPUs,
 * reading another process's memory, sockets, and threads.
 *
 * The functions allocate nothing and keep no state, so that every other file of the engine and the
 * other engines may call them at any time. Each one handles a missing feature itself, in one of two
 * ways. Either it uses a substitute (a file in /dev/shm instead of a memfd, short sleeps instead of
 * a futex), or its result says that the feature is missing (dpari_os_read_peer fails with ENOSYS,
 * dpari_os_cpu returns -1), and the caller uses a slower method. Numbers are read from /proc and
 * /sys because these need no library. If a file cannot be read, the number is unknown, which is
 * never an error. System calls that glibc shows only with _GNU_SOURCE are made through syscall, so
 * that a program may include dpar without defining it. */
#include "os.h"

#include "../base/base_private.h"

/* ---- time and waiting ------------------------------------------------------------------------ */

DPARI_API DPARI_NOINLINE double dpari_os_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

DPARI_API double dpari_os_suspended(double *looked, double now)
{
    const double most = 0.25; /* s, how long a busy machine may delay a look at the clock */
    const double gap = *looked > 0.0 ? now - *looked : 0.0;
    *looked = now;
    return gap > most ? gap - most : 0.0;
}

DPARI_API double dpari_os_waited(dpari_stopwatch *watch)
{
    const double now = dpari_os_now();
    if (!(watch->looked > 0.0)) {
        watch->began = now;
        watch->looked = now;
    }
    watch->began += dpari_os_suspended(&watch->looked, now);
    return now - watch->began;
}

DPARI_INTERNAL void dpari_os_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield");
#endif
}

/* Converts a duration for system calls, limited to 0 .. 1e6 seconds so that it fits a time_t of 32
 * bits. */
static struct timespec dpari_os_span(double seconds)
{
    const double limited = dpari_leastf(dpari_mostf(seconds, 0.0), 1e6);
    struct timespec span;
    span.tv_sec = (time_t)limited;
    span.tv_nsec = (long)((limited - (double)span.tv_sec) * 1e9);
    return span;
}

DPARI_API void dpari_os_sleep(double seconds)
{
    struct timespec span = dpari_os_span(seconds);
    nanosleep(&span, NULL);
}

/* The numbers of linux/futex.h, because not every system that has the call has the header. */
enum { DPARI_OS_FUTEX_WAIT = 0, DPARI_OS_FUTEX_WAKE = 1, DPARI_OS_FUTEX_PRIVATE = 128 };

DPARI_INTERNAL void dpari_os_futex_wait(uint32_t *word, uint32_t value, double seconds, int own)
{
#if defined(__linux__) && defined(SYS_futex)
    struct timespec span = dpari_os_span(seconds);
    const int op = DPARI_OS_FUTEX_WAIT | (own ? DPARI_OS_FUTEX_PRIVATE : 0);
    syscall(SYS_futex, word, op, value, &span, NULL, 0);
#else
    (void)own;
    if (DPARI_LOAD(word) == value) {
        dpari_os_sleep(seconds < 50e-6 ? seconds : 50e-6);
    }
#endif
}

DPARI_INTERNAL void dpari_os_futex_wake(uint32_t *word, int own)
{
#if defined(__linux__) && defined(SYS_futex)
    const int op = DPARI_OS_FUTEX_WAKE | (own ? DPARI_OS_FUTEX_PRIVATE : 0);
    syscall(SYS_futex, word, op, INT32_MAX, NULL, NULL, 0);
#else
    (void)word;
    (void)own;
#endif
}

/* ---- memory ---------------------------------------------------------------------------------- */

DPARI_API DPARI_COLD void *dpari_os_pages(int64_t bytes)
{
    void *at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

DPARI_API DPARI_COLD void dpari_os_unmap(void *at, int64_t bytes)
{
    if (at) {
        munmap(at, (size_t)bytes);
    }
}

#if defined(O_TMPFILE)
#define DPARI_OS_TMPFILE O_TMPFILE
#elif defined(__O_TMPFILE) /* glibc without _GNU_SOURCE */
#define DPARI_OS_TMPFILE __O_TMPFILE
#endif

DPARI_INTERNAL DPARI_COLD uint64_t *dpari_os_own_page(void)
{
    uint64_t *page = (uint64_t *)dpari_os_pages(dpari_os_page());
#if defined(__linux__) && !defined(__hppa__)
    const int wipe = 18; /* MADV_WIPEONFORK since Linux 4.14; before that children keep a copy */
    if (page != NULL) {
        (void)madvise(page, (size_t)dpari_os_page(), wipe);
    }
#endif
    return page;
}

/* Opens a new file in /dev/shm, for systems without memfd. It has no name, or its name is removed
 * at once; until then, mode 0600 keeps other users out. Returns the descriptor, or -1 with
 * errno. */
static int dpari_os_named(void)
{
    char name[64];
    dpar_text out;
    int fd = -1;
#if defined(__linux__) && defined(DPARI_OS_TMPFILE) /* the file never has a name */
    fd = open("/dev/shm", DPARI_OS_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
#endif
    for (int32_t attempt = 0; attempt < 100 && fd < 0; attempt++) {
        dpar_text_init(&out, name, sizeof name);
#if defined(__linux__)
        dpar_text_put(&out, "/dev/shm");
#endif
        dpari_text_print(&out, "/dpar.%ld.%ld.%d", (int64_t)getpid(),
                         (int64_t)(dpari_os_now() * 1e9), attempt);
#if defined(__linux__) /* not shm_open, which needed -lrt before glibc 2.34 */
        fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
#else
        fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
#endif
        if (fd >= 0) {
#if defined(__linux__)
            unlink(name);
#else
            shm_unlink(name);
#endif
        } else if (errno != EEXIST) {
            return -1;
        }
    }
    return fd;
}

DPARI_API DPARI_COLD int dpari_os_beyond_standard(int fd)
{
    int high = fd, number;
    if (fd >= 0 && fd <= 2) {
        high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        number = errno;
        close(fd);
        errno = number;
    }
    return high;
}

DPARI_API void dpari_os_close(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

DPARI_INTERNAL DPARI_COLD int dpari_os_segment(int64_t bytes, int without_memfd)
{
    int fd = -1;
    /* ftruncate past this limit raises a signal that ends the program */
    if (dpari_os_limit(RLIMIT_FSIZE) < bytes) {
        errno = EFBIG;
        return -1;
    }
#if defined(__linux__) && defined(SYS_memfd_create)
    if (!without_memfd) {
        fd = (int)syscall(SYS_memfd_create, "dpar", 1U /* MFD_CLOEXEC */);
    }
#else
    (void)without_memfd;
#endif
    fd = dpari_os_beyond_standard(fd >= 0 ? fd : dpari_os_named());
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
        int number = errno;
        close(fd);
        errno = number;
        fd = -1;
    }
    return fd;
}

/* Places the mapping at a multiple of a large page, so that the system can use large pages for it.
 * For that it reserves addresses for one more large page, and releases those before and after the
 * mapping. If there are not enough addresses, the system chooses the place. */
DPARI_INTERNAL DPARI_COLD void *dpari_os_map(int fd, int64_t begin, int64_t bytes)
{
    const size_t unit = (size_t)DPARI_OS_LARGE, size = (size_t)bytes;
    char *place = NULL;
    void *at;
    if ((uint64_t)bytes > (uint64_t)SIZE_MAX / 4) {
        errno = ENOMEM;
        return NULL;
    }
    char *room = (char *)mmap(NULL, size + unit, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if ((void *)room != MAP_FAILED) {
        const size_t before = (unit - (uintptr_t)room % unit) % unit;
        place = room + before;
        munmap(place + size, unit - before);
        if (before > 0) {
            munmap(room, before);
        }
    }
    at = mmap(place, size, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_NORESERVE | (place ? MAP_FIXED : 0), fd, (off_t)begin);
    if (at == MAP_FAILED && place) {
        const int number = errno;
        munmap(place, size);
        errno = number;
    }
    return at == MAP_FAILED ? NULL : at;
}

DPARI_INTERNAL DPARI_COLD void dpari_os_dump(void *at, int64_t bytes, int dumped)
{
#if defined(__linux__) && defined(MADV_DONTDUMP)
    (void)madvise(at, (size_t)bytes, dumped ? MADV_DODUMP : MADV_DONTDUMP);
#else
    (void)at;
    (void)bytes;
    (void)dumped;
#endif
}

DPARI_API DPARI_COLD int64_t dpari_os_limit(int resource)
{
    struct rlimit limit;
    int got;
    /* glibc has a type of its own for the resource */
#if defined(__GLIBC__) && !defined(__cplusplus)
    got = getrlimit((__rlimit_resource_t)resource, &limit);
#elif defined(__GLIBC__)
    got = getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
#else
    got = getrlimit(resource, &limit);
#endif
    if (got != 0 || limit.rlim_cur == RLIM_INFINITY ||
        (uint64_t)limit.rlim_cur > (uint64_t)INT64_MAX) {
        return INT64_MAX;
    }
    return (int64_t)limit.rlim_cur;
}

DPARI_INTERNAL DPARI_COLD void dpari_os_put_addresses(dpar_text *out)
{
    const int64_t most = dpari_os_limit(RLIMIT_AS);
    if (most < INT64_MAX) {
        dpari_text_print(out, "out of addresses (ulimit -v is %ld KiB)", most / 1024);
    } else {
        dpar_text_put(out, "out of addresses (or of mappings: vm.max_map_count)");
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_os_large_pages(void *at, int64_t bytes)
{
#if defined(__linux__) && !defined(__hppa__)
    const int collapse = 25; /* MADV_COLLAPSE since Linux 6.1 */
    const uintptr_t unit = (uintptr_t)DPARI_OS_LARGE;
    const uintptr_t begin = ((uintptr_t)at + unit - 1) / unit * unit;
    const uintptr_t end = ((uintptr_t)at + (uintptr_t)bytes) / unit * unit;
    if (begin < end) {
        (void)madvise((void *)begin, end - begin, collapse);
    }
#else
    (void)at;
    (void)bytes;
#endif
}

DPARI_INTERNAL DPARI_COLD int dpari_os_reserve(int fd, int64_t begin, int64_t bytes)
{
#if defined(__APPLE__)
    (void)fd;
    (void)begin;
    (void)bytes;
    return 0; /* nothing to do, because memory is backed by swap */
#else
    int number;
    do {
        number = posix_fallocate(fd, (off_t)begin, (off_t)bytes);
    } while (number == EINTR);
    return number;
#endif
}

/* ---- signs of life ----------------------------------------------------------------------------
 *
 * A rank proves that it is alive by a lock on one byte of the shared file. The system releases the
 * lock whenever and however the process ends, and a forked child does not inherit it. */

static struct flock dpari_os_byte(int64_t at, short kind)
{
    struct flock lock;
    memset(&lock, 0, sizeof lock);
    lock.l_type = kind;
    lock.l_whence = SEEK_SET;
    lock.l_start = (off_t)at;
    lock.l_len = 1;
    return lock;
}

DPARI_INTERNAL DPARI_COLD int dpari_os_hold(int fd, int64_t at)
{
    struct flock lock = dpari_os_byte(at, F_WRLCK);
    return fcntl(fd, F_SETLK, &lock);
}

DPARI_INTERNAL DPARI_COLD int dpari_os_is_held(int fd, int64_t at)
{
    struct flock lock = dpari_os_byte(at, F_WRLCK);
    return fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* ---- the machine ----------------------------------------------------------------------------- */

DPARI_API DPARI_COLD void dpari_os_cpus(uint64_t mask[DPARI_CPU_WORDS])
{
    long count = 1;
    memset(mask, 0, DPARI_CPU_WORDS * sizeof mask[0]);
#if defined(__linux__) && defined(SYS_sched_getaffinity)
    if (syscall(SYS_sched_getaffinity, 0, DPARI_CPU_WORDS * sizeof mask[0], mask) > 0) {
        return;
    }
#endif
#if defined(_SC_NPROCESSORS_ONLN)
    count = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    for (long i = 0; i < count && i < 64 * DPARI_CPU_WORDS; i++) {
        mask[i / 64] |= UINT64_C(1) << (i % 64);
    }
}

DPARI_API int32_t dpari_os_cpu(void)
{
#if defined(__linux__)
#if !defined(__cplusplus) /* glibc shows it only with _GNU_SOURCE, which C++ compilers define */
    extern int sched_getcpu(void);
#endif
    return (int32_t)sched_getcpu();
#else
    return -1;
#endif
}

DPARI_INTERNAL int32_t dpari_os_cpu_count(const uint64_t mask[DPARI_CPU_WORDS])
{
    int32_t count = 0;
    for (int32_t i = 0; i < DPARI_CPU_WORDS; i++) {
        for (uint64_t word = mask[i]; word != 0; word &= word - 1) {
            count++;
        }
    }
    return count;
}

/* Restricts this thread to the CPU, which moves it there at once, and then allows the same CPUs as
 * before. */
DPARI_API DPARI_COLD int dpari_os_move_to(int32_t cpu)
{
#if defined(__linux__) && defined(SYS_sched_getaffinity) && defined(SYS_sched_setaffinity)
    uint64_t allowed[DPARI_CPU_WORDS], there[DPARI_CPU_WORDS];
    int moved;
    memset(allowed, 0, sizeof allowed);
    memset(there, 0, sizeof there);
    if (cpu < 0 || cpu >= 64 * DPARI_CPU_WORDS ||
        syscall(SYS_sched_getaffinity, 0, sizeof allowed, allowed) <= 0) {
        return 0;
    }
    there[cpu / 64] = UINT64_C(1) << (cpu % 64);
    if ((allowed[cpu / 64] & there[cpu / 64]) == 0) {
        return 0;
    }
    moved = syscall(SYS_sched_setaffinity, 0, sizeof there, there) == 0;
    return moved && syscall(SYS_sched_setaffinity, 0, sizeof allowed, allowed) == 0;
#else
    (void)cpu;
    return 0;
#endif
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_os_text(const char *path, char *text, size_t room)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t used = 0;
    ssize_t got = 1;
    text[0] = '\0';
    if (fd < 0) {
        return -1;
    }
    while (used + 1 < room && (got > 0 || (got < 0 && errno == EINTR))) {
        got = read(fd, text + used, room - 1 - used);
        used += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    text[used] = '\0';
    return (int64_t)used;
}

DPARI_INTERNAL DPARI_COLD const char *dpari_os_digits(const char *text, int64_t *number)
{
    const char *at = text;
    *number = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        *number = at - text < 18 ? *number * 10 + (*at - '0') : INT64_MAX;
    }
    return at;
}

/* Converts a list of CPUs such as "0-3,8-11" to bits. CPUs from number 1024 on are ignored. */
static void dpari_os_list(const char *text, uint64_t mask[DPARI_CPU_WORDS])
{
    memset(mask, 0, DPARI_CPU_WORDS * sizeof mask[0]);
    while (*text >= '0' && *text <= '9') {
        int64_t first, last;
        text = dpari_os_digits(text, &first);
        last = first;
        if (*text == '-') {
            text = dpari_os_digits(text + 1, &last);
        }
        for (int64_t i = first; i <= last && i < 64 * DPARI_CPU_WORDS; i++) {
            mask[i / 64] |= UINT64_C(1) << (i % 64);
        }
        text += *text == ',';
    }
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_os_cache(const uint64_t mask[DPARI_CPU_WORDS])
{
    uint64_t shares[DPARI_CPU_WORDS];
    char path[96], list[1024];
    int32_t cpu = 0, first = 0, level = 4;
    dpar_text out;
    while (cpu < 64 * DPARI_CPU_WORDS && (mask[cpu / 64] >> (cpu % 64) & 1) == 0) {
        cpu++;
    }
    list[0] = '\0';
    /* index4 down to index1, until the system describes one; most machines have index3 as the
     * last */
    for (; level > 0 && list[0] == '\0'; level--) {
        dpar_text_init(&out, path, sizeof path);
        dpari_text_print(&out, "/sys/devices/system/cpu/cpu%d/cache/index%d/shared_cpu_list", cpu,
                         level);
        (void)dpari_os_text(path, list, sizeof list);
    }
    dpari_os_list(list, shares);
    for (int32_t i = 0; i < DPARI_CPU_WORDS; i++) {
        if (mask[i] & ~shares[i]) {
            return -1;
        }
    }
    while (first < cpu && (shares[first / 64] >> (first % 64) & 1) == 0) {
        first++;
    }
    return first;
}

DPARI_INTERNAL DPARI_COLD char **dpari_os_environment(void)
{
    extern char **environ; /* POSIX requires this declaration, because no header has it */
    return environ;
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_os_used(int32_t pid)
{
#if defined(__linux__)
    clockid_t clock;
    struct timespec time;
    if (clock_getcpuclockid((pid_t)pid, &clock) == 0 && clock_gettime(clock, &time) == 0) {
        return (int64_t)time.tv_sec * 1000000000 + (int64_t)time.tv_nsec;
    }
#else
    (void)pid;
#endif
    return -1;
}

DPARI_INTERNAL DPARI_COLD int dpari_os_program(const char *name, char *path, size_t bytes)
{
    size_t length = dpari_length(name);
#if defined(__linux__)
    /* Not /proc/self/exe itself: ps would then show all ranks as "exe". */
    const ssize_t got = readlink("/proc/self/exe", path, bytes);
    if (got > 0 && (size_t)got < bytes) {
        path[got] = 0;
        if (access(path, X_OK) == 0) {
            return 0;
        }
        name = "/proc/self/exe"; /* works even if the file was deleted */
        length = dpari_length(name);
    }
#endif
    if (length == 0 || length >= bytes) {
        return -1;
    }
    dpari_copy_text(path, bytes, name, length);
    return 0;
}

DPARI_INTERNAL DPARI_COLD uint64_t dpari_os_random(void)
{
    uint64_t number = 0;
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, &number, sizeof number) : -1;
    struct timespec time;
    dpari_os_close(fd);
    if (got == (ssize_t)sizeof number) {
        return number;
    }
    /* a minimal container has no such device: mix the time, the pid and the address of the stack */
    clock_gettime(CLOCK_REALTIME, &time);
    number ^= (uint64_t)time.tv_sec << 32 ^ (uint64_t)time.tv_nsec ^ (uint64_t)getpid() << 40;
    return (number ^ (uint64_t)(uintptr_t)&number) * UINT64_C(0x9e3779b97f4a7c15);
}

DPARI_INTERNAL DPARI_COLD uint64_t dpari_os_hash(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *at = (const unsigned char *)bytes;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ at[i]) * UINT64_C(1099511628211);
    }
    return h;
}

DPARI_INTERNAL DPARI_COLD void dpari_os_put_hex(dpar_text *out, uint64_t number)
{
    for (int digit = 60; digit >= 0; digit -= 4) {
        dpari_text_char(out, "0123456789abcdef"[number >> digit & 15]);
    }
}

DPARI_API DPARI_COLD uint64_t dpari_os_namespace(const char *kind)
{
#if defined(__linux__)
    char path[32];
    struct stat about;
    dpar_text out;
    dpar_text_init(&out, path, sizeof path);
    dpari_text_print(&out, "/proc/self/ns/%s", kind);
    return stat(path, &about) == 0 ? (uint64_t)about.st_ino : 0;
#else
    (void)kind;
    return 0;
#endif
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_os_user(void)
{
    const int64_t user = (int64_t)getuid();
#if defined(__linux__)
    char text[1024];
    const char *at = text;
    (void)dpari_os_text("/proc/self/uid_map", text, sizeof text);
    /* each line has three numbers: first user inside, first user outside, how many */
    while (*at != '\0') {
        int64_t number[3];
        for (int32_t i = 0; i < 3; i++) {
            at = dpari_os_digits(at + strspn(at, " \n"), &number[i]);
        }
        if (user >= number[0] && user - number[0] < number[2]) {
            return number[1] + (user - number[0]);
        }
        at += strcspn(at, "\n");
        at += strspn(at, "\n");
    }
#endif
    return user;
}

/* ---- sockets --------------------------------------------------------------------------------- */

/* Prepares a socket that was made or accepted, as dpari_os_socket says. */
static DPARI_COLD int dpari_os_prepare(int made)
{
    const int fd = dpari_os_beyond_standard(made);
#if defined(SO_NOSIGPIPE)
    const int on = 1;
#endif
    if (fd >= 0) {
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
        (void)fcntl(fd, F_SETFL, O_NONBLOCK);
#if defined(SO_NOSIGPIPE)
        (void)setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    }
    return fd;
}

DPARI_API DPARI_COLD int dpari_os_socket(int family, int kind)
{
    return dpari_os_prepare(socket(family, kind, 0));
}

DPARI_API DPARI_COLD int dpari_os_accept(int listener)
{
    return dpari_os_prepare(accept(listener, NULL, NULL));
}

DPARI_INTERNAL DPARI_COLD int dpari_os_milliseconds(double seconds)
{
    if (seconds <= 0.0) {
        return 0;
    }
    return seconds > 0.1 ? 100 : (int)(seconds * 1e3) + 1;
}

DPARI_API DPARI_COLD int dpari_os_poll(int fd, short events, double until)
{
    const double left = until - dpari_os_now();
    struct pollfd p;
    if (left <= 0.0) {
        return 0;
    }
    p.fd = fd;
    p.events = events;
    p.revents = 0;
    (void)poll(&p, 1, dpari_os_milliseconds(left));
    return 1;
}

DPARI_INTERNAL DPARI_COLD int dpari_os_peer(int fd, int64_t *pid, int64_t *user)
{
#if defined(__linux__) && defined(SO_PEERCRED)
    struct { /* struct ucred, which glibc shows only with _GNU_SOURCE */
        pid_t pid;
        uid_t uid;
        gid_t gid;
    } peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
        return -1;
    }
    *pid = (int64_t)peer.pid;
    *user = (int64_t)peer.uid;
    return 0;
#elif defined(__linux__)
    (void)fd;
    (void)pid;
    (void)user;
    return -1;
#else
    uid_t uid;
    gid_t gid;
    if (getpeereid(fd, &uid, &gid) != 0) {
        return -1;
    }
    *pid = 0;
    *user = (int64_t)uid;
    return 0;
#endif
}

/* Writes a socket's address with an abstract name, as Linux has. Such names have no file, disappear
 * with their socket, and are visible within one network namespace. Returns the bytes of the
 * address. */
static DPARI_COLD socklen_t dpari_os_shown(uint64_t name, struct sockaddr_un *at)
{
    dpar_text out;
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    dpar_text_init(&out, at->sun_path + 1, sizeof at->sun_path - 1);
    dpari_text_print(&out, "dpar.%ld.seen.%ld", dpari_os_user(), (int64_t)(name >> 1));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + out.used);
}

DPARI_API DPARI_COLD int dpari_os_show(uint64_t *name)
{
#if defined(__linux__)
    const int fd = dpari_os_socket(AF_UNIX, SOCK_DGRAM);
    struct sockaddr_un at;
    socklen_t bytes;
    *name = dpari_os_random();
    bytes = dpari_os_shown(*name, &at);
    if (fd < 0 || bind(fd, (struct sockaddr *)(void *)&at, bytes) == 0) {
        return fd;
    }
    close(fd);
#else
    *name = 0;
#endif
    return -1;
}

DPARI_API DPARI_COLD int dpari_os_sees(uint64_t name)
{
    const int fd = dpari_os_socket(AF_UNIX, SOCK_DGRAM);
    struct sockaddr_un at;
    const socklen_t bytes = dpari_os_shown(name, &at);
    const int sees = fd >= 0 && connect(fd, (struct sockaddr *)(void *)&at, bytes) == 0;
    dpari_os_close(fd);
    return sees;
}

DPARI_API int dpari_os_read_peer(const dpari_os_target *target, void *to, uint64_t from,
                                 int64_t bytes)
{
#if defined(__linux__) && defined(SYS_process_vm_readv)
    do {
        /* the system copies at most 2 GiB in one call, and returns how much it has copied */
        const int64_t piece = dpari_least(bytes, INT64_C(1) << 30);
        struct iovec mine[2], theirs[2];
        uint64_t word = 0;
        long got;
        mine[0].iov_base = &word;
        mine[0].iov_len = sizeof word;
        theirs[0].iov_base = (void *)(uintptr_t)target->at;
        theirs[0].iov_len = sizeof word;
        mine[1].iov_base = to;
        mine[1].iov_len = (size_t)piece;
        theirs[1].iov_base = (void *)(uintptr_t)from;
        theirs[1].iov_len = (size_t)piece;
        got = syscall(SYS_process_vm_readv, (pid_t)target->pid, mine, 2UL, theirs, 2UL, 0UL);
        if (got < 0) {
            return -1;
        }
        if (word != target->word) {
            errno = ESRCH;
            return -1;
        }
        if (bytes == 0) {
            return 0;
        }
        got -= (long)sizeof word;
        if (got <= 0) {
            errno = EFAULT;
            return -1;
        }
        to = (char *)to + got;
        from += (uint64_t)got;
        bytes -= got;
    } while (bytes > 0);
    return 0;
#else
    (void)target;
    (void)to;
    (void)from;
    (void)bytes;
    errno = ENOSYS;
    return -1;
#endif
}

DPARI_API int64_t dpari_os_page(void)
{
    long page = sysconf(_SC_PAGESIZE);
    return page > 0 ? page : 4096;
}

DPARI_API DPARI_COLD int64_t dpari_os_memory(void)
{
#if defined(_SC_PHYS_PAGES)
    long pages = sysconf(_SC_PHYS_PAGES);
    return pages > 0 ? (int64_t)pages * dpari_os_page() : 0;
#else
    return 0;
#endif
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_os_number_in(const char *path, const char *key)
{
    char text[4096];
    const char *at;
    int64_t value;
    (void)dpari_os_text(path, text, sizeof text);
    at = strstr(text, key);
    if (!at) {
        return -1;
    }
    at += strlen(key);
    at += strspn(at, " \t");
    return dpari_os_digits(at, &value) > at ? value : -1;
}

DPARI_INTERNAL DPARI_COLD int dpari_os_dumps(int32_t pid)
{
    char path[64];
    dpar_text out;
    dpar_text_init(&out, path, sizeof path);
    dpari_text_print(&out, "/proc/%d/status", pid);
    return dpari_os_number_in(path, "\nCoreDumping:") > 0; /* since Linux 4.15 */
}

DPARI_INTERNAL DPARI_COLD uint64_t dpari_os_pids(void)
{
    struct stat about;
    char text[32];
    int64_t pid;
    const ssize_t got = readlink("/proc/self", text, sizeof text - 1);
    text[got > 0 ? got : 0] = '\0';
    dpari_os_digits(text, &pid);
    if (got <= 0 || pid != (int64_t)getpid() || stat("/proc/self/ns/pid", &about) != 0) {
        return 0; /* /proc shows the processes of another namespace, or does not exist */
    }
    return (uint64_t)about.st_ino;
}

/* ---- threads --------------------------------------------------------------------------------- */

/* omp_pause_resource_all of OpenMP 5.0, which libgomp (GNU), libomp (LLVM) and Intel's runtime
 * have. The declaration is weak, so that its address is NULL in a program without OpenMP, and has a
 * name of our own, because omp.h declares the function with an enumeration.
 *
 * It is called before ranks are forked, because libgomp keeps its threads after a parallel region.
 * A fork does not copy them, but the child still counts on them and waits for them for ever in its
 * first parallel region. After the call, parent and child start new threads when they need them.
 *
 * A forked rank calls it before it ends by _exit, because libomp writes a file
 * /dev/shm/__KMP_REGISTERED_LIB_pid_uid in every process that runs a parallel region. It removes
 * the file in a destructor, which _exit does not run; a hard pause removes it too. */
#if defined(__ELF__) && defined(__GNUC__)
extern int dpari_os_openmp(int kind) __asm__("omp_pause_resource_all") __attribute__((weak));
#define DPARI_HAS_OPENMP (&dpari_os_openmp != NULL)
#else
#define DPARI_HAS_OPENMP 0
#define dpari_os_openmp(kind) ((void)(kind))
#endif

DPARI_INTERNAL DPARI_COLD void dpari_os_pause_openmp(int kind)
{
    if (DPARI_HAS_OPENMP) {
        (void)dpari_os_openmp(kind);
    }
}

/* Before 2.34, glibc had threads in a separate library (-lpthread), which a program may not be
 * linked with. */
#if defined(__GLIBC__) && (__GLIBC__ == 2 && __GLIBC_MINOR__ < 34)
#pragma weak pthread_create
#pragma weak pthread_join
#define DPARI_HAS_THREADS (&pthread_create != NULL)
#else
#define DPARI_HAS_THREADS 1
#endif

DPARI_API DPARI_COLD int dpari_os_thread(dpari_thread *thread, void *(*run)(void *), void *arg)
{
    pthread_t made;
    thread->handle = 0;
    if (!(DPARI_HAS_THREADS) || sizeof made > sizeof thread->handle ||
        pthread_create(&made, NULL, run, arg) != 0) {
        return -1;
    }
    memcpy(&thread->handle, &made, sizeof made);
    return 0;
}

DPARI_API DPARI_COLD void dpari_os_join(dpari_thread thread)
{
    pthread_t made;
    memcpy(&made, &thread.handle, sizeof made);
    pthread_join(made, NULL);
}

DPARI_API DPARI_COLD void dpari_os_error(dpar_text *out, int number)
{
    switch (number) {
    case ENOMEM: dpar_text_put(out, "out of memory"); break;
    case ENOSPC: dpar_text_put(out, "no space left (is /dev/shm too small?)"); break;
    case EACCES:
    case EPERM: dpar_text_put(out, "not permitted"); break;
    case EMFILE:
    case ENFILE: dpar_text_put(out, "too many open files"); break;
    case EAGAIN: dpar_text_put(out, "too many processes or threads"); break;
    case EFBIG: dpar_text_put(out, "larger than the limit on files (ulimit -f)"); break;
    case ENOSYS: dpar_text_put(out, "this system has no such call"); break;
    default: dpar_text_put(out, "error "); dpari_text_int(out, number);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_os_why(dpar_why *why, const char *what, int64_t bytes,
                                                   int number)
{
    dpar_text out;
    if (why) {
        dpari_text_why(&out, why);
        dpar_text_put(&out, what);
        if (bytes > 0) {
            dpari_text_print(&out, "%ld bytes", bytes);
        }
        dpar_text_put(&out, ": ");
        dpari_os_error(&out, number);
    }
    return DPAR_E_SYSTEM;
}
