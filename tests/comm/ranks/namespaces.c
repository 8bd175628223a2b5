/* SPDX-License-Identifier: MIT-0 */
/* Tests ranks of one node in different namespaces, as in the containers of a pod: what they read
 * from each other must be right, or an error, but never the memory of another process.
 *
 * Four ranks run, two on each of two sides. Each pair of kinds (a new PID, user, mount, network or
 * time namespace, another user, or nothing new) is a cell. Further cells forbid system calls to
 * rank 3 by seccomp, before and after the start, or set DPAR_WORLD_NO_CMA. In a cell the ranks
 * exchange messages and collectives of 4 B to 4 MiB of static memory, over the world and over
 * groups with one rank of each side. Built without PIE, all ranks have that memory at the same
 * address, so that a read from the wrong process would succeed. Expected values: each element is
 * computed from the rank that sends it, its index and the number of the operation.
 *
 * Prints a word for each cell:
 *   both     right values; each side reads the other's memory directly
 *   first    right values; only the ranks of the row's side read the column's
 *   second   right values; only the ranks of the column's side read the row's
 *   ring     right values; neither side reads the other
 *   apart    a message that says what ranks need to meet (other user; other network and /tmp)
 *   error    another error, with its text
 *   skipped  the machine forbids such a namespace
 * The test fails on wrong values, a hang, another word than `apart` where ranks cannot meet, or an
 * error where they can. Needs root for most of the namespaces. */
#define DPAR_IMPLEMENTATION
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dpar_comm.h"
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

enum { RANKS = 4, MOST = 1 << 20, OTHER_USER = 65533 };
enum { NONE, PID, USER, MOUNT, NETWORK, TIME, UID, KINDS };
static const char *const kind_name[KINDS] = {"none",    "PID",  "user", "mount",
                                             "network", "time", "uid"};
/* What only rank 3 does. */
enum {
    NOTHING,
    FILTER_EPERM,
    FILTER_ENOSYS,
    FILTER_KILL,
    FILTER_LATER,
    FILTER_MEETS_COLLECTIVE,
    WITHOUT_CMA,
    EXTRAS
};
static const char *const extra_name[EXTRAS] = {"",
                                               "seccomp EPERM",
                                               "seccomp ENOSYS",
                                               "seccomp kill",
                                               "seccomp EPERM after the start",
                                               "seccomp EPERM after the start, a collective first",
                                               "DPAR_WORLD_NO_CMA"};

typedef struct outcome {
    int ended, wrong, reads;
    dpar_status status;
    char text[sizeof(dpar_why)];
} outcome;

typedef struct board {
    int forbidden;
    outcome rank[RANKS];
} board;

static float mine[MOST], got[MOST];
static board *shared;

static float value(int rank, int64_t i, int operation)
{
    return (float)(rank * 1000003 % 4096 + i % 1021 + operation * 37);
}

/* ---- namespaces and filters ------------------------------------------------------------------ */

static int write_file(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY);
    const ssize_t wrote = fd >= 0 ? write(fd, text, strlen(text)) : -1;
    if (fd >= 0) {
        close(fd);
    }
    return wrote == (ssize_t)strlen(text) ? 0 : -1;
}

/* Moves this process (for PID and time: the children that it forks) into new namespaces of a
 * kind. */
static int enter(int kind)
{
    static const int flag[KINDS] = {
        0, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWTIME, 0};
    char map[64];
    if (kind == UID) {
        return 0; /* the ranks change it themselves */
    }
    (void)snprintf(map, sizeof map, "0 %d 1", (int)getuid());
    if (kind != NONE && unshare(flag[kind]) != 0) {
        return -1;
    }
    if (kind == USER) {
        (void)write_file("/proc/self/setgroups", "deny");
        return write_file("/proc/self/uid_map", map);
    }
    if (kind == MOUNT) {
        return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
                       mount("none", "/dev/shm", "tmpfs", 0, "size=16m") != 0 ||
                       mount("none", "/tmp", "tmpfs", 0, "size=16m") != 0
                   ? -1
                   : 0;
    }
    if (kind == TIME) {
        return write_file("/proc/self/timens_offsets", "monotonic 1000000 0\n");
    }
    return 0;
}

static int forbid_reads(unsigned action)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program;
    program.len = sizeof code / sizeof code[0];
    program.filter = code;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
                   prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0
               ? -1
               : 0;
}

static int prepare(int rank, int extra)
{
    if (rank != RANKS - 1) {
        return 0;
    }
    switch (extra) {
    case FILTER_EPERM: return forbid_reads(SECCOMP_RET_ERRNO | EPERM);
    case FILTER_ENOSYS: return forbid_reads(SECCOMP_RET_ERRNO | ENOSYS);
    case FILTER_KILL: return forbid_reads(0x80000000U); /* SECCOMP_RET_KILL_PROCESS */
    default: return 0;
    }
}

/* ---- what the ranks do ----------------------------------------------------------------------- */

static int operation;

static void fill(const dpar_comm *c, int world_rank, int64_t n)
{
    (void)c;
    operation++;
    for (int64_t i = 0; i < n; i++) {
        mine[i] = value(world_rank, i, operation);
    }
    memset(got, 0xff, sizeof(float) * (size_t)n);
}

/* Returns how many of n elements of `got` from `at` on differ from those that the rank sent from
 * `from` on. */
static int differ(int rank, int64_t at, int64_t from, int64_t n)
{
    int wrong = 0;
    for (int64_t i = 0; i < n; i++) {
        wrong += !(got[at + i] == value(rank, from + i, operation));
    }
    return wrong;
}

static dpar_status message(dpar_comm *c, const int *world, int64_t n, int step, int *wrong)
{
    const int32_t to = (c->rank + step) % c->size, from = (c->rank + c->size - step) % c->size;
    dpar_work receives;
    dpar_status status, sent;
    memset(&receives, 0, sizeof receives);
    fill(c, world[c->rank], n);
    status = dpar_recv(c, got, n, DPAR_F32, from, 7, &receives);
    sent = status == DPAR_OK ? dpar_send(c, mine, n, DPAR_F32, to, 7, NULL) : status;
    status = status == DPAR_OK ? dpar_wait(&receives) : status;
    if (status == DPAR_OK) {
        *wrong += differ(world[from], 0, 0, n);
    }
    return sent != DPAR_OK ? sent : status;
}

static dpar_status collectives(dpar_comm *c, const int *world, int64_t n, int *wrong)
{
    const int64_t piece = n / c->size > 0 ? n / c->size : 1;
    dpar_status status;
    fill(c, world[c->rank], piece * c->size);
    status = dpar_all_gather(c, mine, got, piece, DPAR_F32, NULL);
    for (int32_t r = 0; r < c->size && status == DPAR_OK; r++) {
        *wrong += differ(world[r], r * piece, 0, piece);
    }
    if (status < 0) {
        return status;
    }
    fill(c, world[c->rank], piece * c->size);
    status = dpar_all_to_all(c, mine, got, piece, DPAR_F32, NULL);
    for (int32_t r = 0; r < c->size && status == DPAR_OK; r++) {
        *wrong += differ(world[r], r * piece, c->rank * piece, piece);
    }
    if (status < 0) {
        return status;
    }
    fill(c, world[c->rank], n);
    status = dpar_all_reduce(c, mine, got, n, DPAR_F32, DPAR_SUM, NULL);
    for (int64_t i = 0; i < n && status == DPAR_OK; i++) {
        float sum = 0.0f; /* whole numbers far below 2^24: exact in any order */
        for (int32_t r = 0; r < c->size; r++) {
            sum += value(world[r], i, operation);
        }
        *wrong += !(got[i] == sum);
    }
    if (status < 0) {
        return status;
    }
    fill(c, world[c->rank], n);
    status = dpar_broadcast(c, c->rank == c->size - 1 ? mine : got, n, DPAR_F32, c->size - 1, NULL);
    if (status == DPAR_OK && c->rank != c->size - 1) {
        *wrong += differ(world[c->size - 1], 0, 0, n);
    }
    return status;
}

static dpar_status all_sizes(dpar_comm *c, const int *world, int *wrong)
{
    static const int64_t count[] = {1, 1024, 5000, 16384, MOST};
    dpar_status status = DPAR_OK;
    for (int k = 0; k < 5 && status == DPAR_OK; k++) {
        for (int step = 1; step < c->size && status == DPAR_OK; step++) {
            status = message(c, world, count[k], step, wrong);
        }
        status = status == DPAR_OK ? collectives(c, world, count[k], wrong) : status;
    }
    return status;
}

/* Rank 2 waits for rank 0, so its last heartbeat is recent. Checks that rank 0 sees that by the
 * clock that they share, whatever the clocks of their namespaces show. */
static int clocks_agree(dpar_comm *c)
{
    int32_t word = 0;
    double age;
    if (c->rank == 2) {
        return dpar_recv(c, &word, 1, DPAR_I32, 0, 9, NULL) == DPAR_OK;
    }
    if (c->rank != 0) {
        return 1;
    }
    usleep(200000);
    age = dpari_beat_age(dpari_group_of(c)->world, 2);
    return dpar_send(c, &word, 1, DPAR_I32, 2, 9, NULL) == DPAR_OK && age >= 0.0 && age < 5.0;
}

static dpar_status work(dpar_comm *c, int extra, outcome *o)
{
    const int all[RANKS] = {0, 1, 2, 3};
    const int pair[2] = {c->rank % 2, c->rank % 2 + 2};
    dpar_comm *part = NULL;
    dpar_status status;
    if ((extra == FILTER_LATER || extra == FILTER_MEETS_COLLECTIVE) && c->rank == RANKS - 1 &&
        forbid_reads(SECCOMP_RET_ERRNO | EPERM) != 0) {
        return DPAR_E_SYSTEM;
    }
    status = extra == FILTER_MEETS_COLLECTIVE ? collectives(c, all, MOST, &o->wrong) : DPAR_OK;
    status = status == DPAR_OK ? all_sizes(c, all, &o->wrong) : status;
    if (status == DPAR_OK) {
        o->wrong += !clocks_agree(c);
        status = dpar_comm_split(c, c->rank % 2, 0, &part);
    }
    (void)snprintf(o->text, sizeof o->text, "%s", c->why.text);
    if (status == DPAR_OK) {
        status = all_sizes(part, pair, &o->wrong);
        (void)snprintf(o->text, sizeof o->text, "%s", part->why.text);
        (void)dpar_comm_free(part);
    }
    return status;
}

static void be_rank(int rank, int kind, int extra, const char *timeout)
{
    outcome *o = &shared->rank[rank];
    dpar_world_desc options;
    dpar_comm *c;
    dpar_why why;
    char number[16];
    (void)snprintf(number, sizeof number, "%d", rank);
    (void)setenv("DPAR_RANK", number, 1);
    (void)setenv("DPAR_SIZE", "4", 1);
    (void)setenv("DPAR_TIMEOUT", timeout, 1);
    memset(&options, 0, sizeof options);
    options.disable = extra == WITHOUT_CMA ? DPAR_WORLD_NO_CMA : 0;
    if ((kind == UID && setresuid(OTHER_USER, OTHER_USER, OTHER_USER) != 0) ||
        prepare(rank, extra) != 0) {
        shared->forbidden = errno;
        return;
    }
    o->status = dpar_init(&c, &options, &why);
    if (o->status < 0) {
        memcpy(o->text, why.text, sizeof o->text);
        o->ended = 1;
        return;
    }
    o->reads = dpari_group_of(c)->world->rank[rank].reads;
    o->status = work(c, extra, o);
    (void)dpar_comm_free(c);
    o->ended = 1;
}

/* ---- cells ----------------------------------------------------------------------------------- */

/* Runs a side: its two ranks, in namespaces that they share. The first process of a PID namespace
 * is not one of the ranks, because the namespace ends with it. */
static void be_side(int side, int kind, int extra, const char *timeout)
{
    if (enter(kind) != 0) {
        shared->forbidden = errno;
        _exit(0);
    }
    if (fork() != 0) {
        while (wait(NULL) > 0) {
        }
        _exit(0);
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int k = 0; k < 2; k++) {
        if (fork() == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            be_rank(2 * side + k, kind, extra, timeout);
            _exit(0);
        }
    }
    while (wait(NULL) > 0) {
    }
    _exit(0);
}

/* Runs both sides until they end. Returns 0 if they do not. */
static int run(const int *kind, int extra, const char *timeout)
{
    static int cell;
    char job[64];
    pid_t side[2];
    int left = 2;
    (void)snprintf(job, sizeof job, "namespaces %d %d", (int)getpid(), ++cell);
    (void)setenv("DPAR_JOB", job, 1);
    memset(shared, 0, sizeof *shared);
    for (int s = 0; s < 2; s++) {
        side[s] = fork();
        if (side[s] == 0) {
            be_side(s, kind[s], extra, timeout);
        }
    }
    for (int k = 0; k < 12000 && left > 0; k++) { /* 120 s; all timeouts are shorter */
        const pid_t ended = waitpid(-1, NULL, WNOHANG);
        left -= ended > 0;
        if (ended == 0) {
            usleep(10000);
        }
        if (shared->forbidden && left == 1) {
            break; /* the other side would wait in vain */
        }
    }
    for (int s = 0; s < 2 && left > 0; s++) {
        kill(side[s], SIGKILL); /* its ranks end too */
    }
    for (int s = 0; s < 2; s++) {
        (void)waitpid(side[s], NULL, 0);
    }
    return left == 0;
}

/* Returns 1 if sides of these kinds can meet. Otherwise both must report what they need. */
static int can_meet(int a, int b)
{
    if ((a == UID) != (b == UID)) {
        return 0;
    }
    return !(a == NETWORK && b == MOUNT) && !(a == MOUNT && b == NETWORK);
}

static const char *word_of(int ended)
{
    static char text[64 + sizeof(dpar_why)];
    int wrong = 0, apart = 0, failed = 0;
    (void)snprintf(text, sizeof text, "error (a rank ended early)");
    for (int r = 0; r < RANKS; r++) {
        const outcome *o = &shared->rank[r];
        wrong += o->wrong;
        failed += o->status < 0 || !o->ended;
        apart += strstr(o->text, "ranks must share a user") != NULL;
        if (o->status < 0 && apart == 0) {
            (void)snprintf(text, sizeof text, "error (rank %d: %s)", r, o->text);
        }
    }
    if (shared->forbidden) {
        return "skipped";
    }
    if (wrong > 0) {
        return "WRONG VALUES";
    }
    if (!ended) {
        return "HANGS";
    }
    if (failed > 0) {
        return apart > 0 ? "apart" : text;
    }
    const int first = shared->rank[0].reads == RANKS && shared->rank[1].reads == RANKS;
    const int second = shared->rank[2].reads == RANKS && shared->rank[3].reads == RANKS;
    if (first && second) {
        return "both";
    }
    if (first || second) {
        return first ? "first" : "second";
    }
    return "ring";
}

/* Runs all pairs if `whole` is set, otherwise those with `none` and those of equal kinds. */
static void matrix(int whole)
{
    printf("%-8s", "");
    for (int b = 0; b < KINDS; b++) {
        printf(" %-8s", kind_name[b]);
    }
    printf("\n");
    for (int a = 0; a < KINDS; a++) {
        printf("%-8s", kind_name[a]);
        for (int b = 0; b < KINDS; b++) {
            const int kind[2] = {a, b};
            const char *word = "";
            if (b < a || (!whole && a != NONE && a != b)) {
                printf(" %-8s", b < a ? "" : ".");
                continue;
            }
            word = word_of(run(kind, NOTHING, can_meet(a, b) ? "60" : "2"));
            printf(" %-8s", word);
            (void)fflush(stdout);
            if (strcmp(word, "skipped") != 0) {
                CHECK_INT(strcmp(word, "apart") == 0, !can_meet(a, b));
                CHECK(strchr(word, ' ') == NULL && strcmp(word, "HANGS") != 0);
            }
        }
        printf("\n");
    }
}

static void extras(void)
{
    const int kind[2] = {NONE, NONE};
    for (int extra = FILTER_EPERM; extra < EXTRAS; extra++) {
        const char *word = word_of(run(kind, extra, "30"));
        printf("%s: %s\n", extra_name[extra], word);
        if (strcmp(word, "skipped") == 0) {
            continue;
        }
        CHECK(strcmp(word, "HANGS") != 0 && strcmp(word, "WRONG VALUES") != 0);
        if (extra == FILTER_KILL) { /* it is killed, which the others must report */
            CHECK(strncmp(word, "error (", 7) == 0 && strstr(word, "rank 3") != NULL);
        } else if (extra == FILTER_MEETS_COLLECTIVE) { /* all ranks have chosen to read before */
            CHECK(strstr(word, "cannot be read any more (not permitted") != NULL);
        } else {
            CHECK(strchr(word, ' ') == NULL);
        }
    }
}

/* Tests Yama's scopes. The setting is global for the machine, so it is changed only on request. */
static void yama(void)
{
    static const char path[] = "/proc/sys/kernel/yama/ptrace_scope";
    const int kind[2] = {NONE, NONE};
    char before[8] = "";
    const int fd = open(path, O_RDONLY);
    const ssize_t bytes = fd >= 0 ? read(fd, before, sizeof before - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    if (bytes <= 0 || getenv("DPAR_TEST_YAMA") == NULL || write_file(path, before) != 0) {
        printf("skipped: Yama's ptrace_scope 0 to 2 (%s)\n",
               bytes <= 0 ? "this kernel has none" : "DPAR_TEST_YAMA=1 lets root change it");
        return;
    }
    for (int scope = 0; scope < 3; scope++) { /* scope 3 would stay until the next boot */
        const char text[2] = {(char)('0' + scope), 0};
        const char *word;
        if (write_file(path, text) != 0) {
            break;
        }
        word = word_of(run(kind, NOTHING, "60"));
        printf("ptrace_scope %d: %s\n", scope, word);
        CHECK(strchr(word, ' ') == NULL && strcmp(word, "HANGS") != 0);
    }
    (void)write_file(path, before);
}

int main(int argc, char **argv)
{
    void *p = mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return 1;
    }
    shared = (board *)p;
    matrix(argc > 1 && strcmp(argv[1], "whole") == 0);
    extras();
    yama();
    return CHECK_DONE();
}
