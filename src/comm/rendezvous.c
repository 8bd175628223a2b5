/* SPDX-License-Identifier: MIT-0 */
/* Lets the ranks of a job that a launcher started find each other and share one segment.
 * rendezvous.h has the protocol; launch.c calls it.
 *
 * Rank 0 is the host. It serves all connections in one poll loop, and drops those that do not speak
 * the protocol or belong to other users. The other ranks are guests, which retry until the
 * deadline. Words such as `named` refer to the socket: 1 if it is a file, 0 if its name is
 * abstract. */
#include "rendezvous.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "job.h"
#include "os.h"
#include "world.h"

#define DPARI_MEET_MAGIC UINT64_C(0x3174656d72617064) /* "dparmet1" */

#if !defined(MSG_CMSG_CLOEXEC)
#define MSG_CMSG_CLOEXEC 0
#endif

/* Space for a descriptor that is passed with a message. */
typedef union dpari_rights {
    struct cmsghdr head;
    char space[CMSG_SPACE(sizeof(int))];
} dpari_rights;

/* A connection to rank 0. */
enum { DPARI_GUEST_NEW, DPARI_GUEST_WELCOME, DPARI_GUEST_MAPPED };
typedef struct dpari_guest {
    int32_t state, rank; /* rank is -1 until its HELLO */
    size_t got;          /* bytes of `in` so far */
    dpari_hello in;
} dpari_guest;

/* The state of rank 0 while it waits for the others. */
typedef struct dpari_host {
    const dpar_launcher_info *job;
    dpari_segment *segment;
    int32_t guests;    /* the most connections at a time */
    int32_t mapped;    /* ranks that have mapped the segment */
    int32_t named;     /* 1 if the only listener is in /tmp */
    int32_t strangers; /* connections of other users, or that did not speak the protocol */
    double deadline, began;
    double looked;           /* last look at the clock */
    struct sockaddr_un name; /* address of the listener that was made last */
    struct sockaddr_un file; /* address of the listener in /tmp, if there is one */
    struct pollfd *poll;     /* [guests + 2] the listener, the guests, a second listener in /tmp;
                                fd is -1 for one that does not exist */
    dpari_guest *guest;      /* [guests] */
    int32_t *place;          /* [size] 1 + the guest of this rank; 0 if it has not arrived */
} dpari_host;

/* ---- names, messages, sockets ---------------------------------------------------------------- */

static uint64_t dpari_meet_id(const dpar_launcher_info *job)
{
    const uint64_t kind = dpari_os_hash(DPARI_OS_HASH, &job->kind, sizeof job->kind);
    return dpari_os_hash(kind, job->id, dpari_length(job->id));
}

DPARI_INTERNAL DPARI_COLD socklen_t dpari_meet_name(const dpar_launcher_info *job, int32_t k,
                                                    int32_t named, struct sockaddr_un *name)
{
    const size_t begin = named ? 0 : 1; /* an abstract name follows a NUL */
    dpar_text t;
    dpari_zero(name, sizeof *name);
    name->sun_family = AF_UNIX;
    dpar_text_init(&t, name->sun_path + begin, sizeof name->sun_path - begin);
    dpari_text_print(&t, "%s%ld.", named ? "/tmp/dpar." : "dpar.", dpari_os_user());
    dpari_os_put_hex(&t, dpari_meet_id(job));
    dpari_text_print(&t, ".%d", k);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + begin + t.used + (named ? 1 : 0));
}

/* Fills in a HELLO of this rank. */
static DPARI_COLD void dpari_meet_greet(const dpar_launcher_info *job, dpari_hello *h)
{
    const uint64_t sizes[] = {sizeof(dpari_world_head), sizeof(dpari_rank), sizeof(dpari_hello),
                              DPAR_VERSION_MAJOR * 10000 + DPAR_VERSION_MINOR * 100 +
                                  DPAR_VERSION_PATCH};
    const uint64_t layout = dpari_os_hash(DPARI_OS_HASH, sizes, sizeof sizes);
    dpari_zero(h, sizeof *h);
    h->magic = DPARI_MEET_MAGIC;
    h->job = dpari_meet_id(job);
    h->layout = (uint32_t)(layout ^ layout >> 32);
    h->kind = DPARI_HELLO;
    h->rank = job->rank;
    h->size = job->size;
}

/* Returns 1 if the socket must be a file, because only Linux has abstract names. Tests define
 * DPARI_MEET_NAMED to do on Linux what other systems do. */
static int32_t dpari_meet_is_named(void)
{
#if defined(__linux__) && !defined(DPARI_MEET_NAMED)
    return 0;
#else
    return 1;
#endif
}

/* True if the process at the other end of the socket runs as this user. */
static int dpari_meet_is_mine(int fd)
{
    int64_t pid, user;
    return dpari_os_peer(fd, &pid, &user) == 0 && user == (int64_t)getuid();
}

/* Sends one message, with a descriptor unless it is -1. Returns 1 if all of it was sent. */
static int dpari_meet_send(int fd, const dpari_hello *h, int pass)
{
    dpari_hello copy = *h;
    dpari_rights rights;
    struct msghdr m;
    struct iovec part;
    ssize_t sent;
    part.iov_base = &copy;
    part.iov_len = sizeof copy;
    memset(&m, 0, sizeof m);
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    if (pass >= 0) {
        memset(&rights, 0, sizeof rights);
        rights.head.cmsg_level = SOL_SOCKET;
        rights.head.cmsg_type = SCM_RIGHTS;
        rights.head.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&rights.head), &pass, sizeof pass);
        m.msg_control = &rights;
        m.msg_controllen = sizeof rights;
    }
    do {
        sent = sendmsg(fd, &m, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof copy;
}

/* Continues to read a message into h from byte *got. A descriptor that arrives with it is stored in
 * *passed, whose previous one is closed; it is closed itself if `passed` is NULL. Returns 1 if the
 * message is complete, 0 if not yet, and -1 if the other end is closed. */
static int dpari_meet_read(int fd, dpari_hello *h, size_t *got, int *passed)
{
    dpari_rights rights;
    struct msghdr m;
    struct iovec part;
    ssize_t n;
    part.iov_base = (char *)h + *got;
    part.iov_len = sizeof *h - *got;
    memset(&m, 0, sizeof m);
    memset(&rights, 0, sizeof rights);
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = &rights;
    m.msg_controllen = sizeof rights;
    n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    if (n < 0) {
        return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
    }
    if (m.msg_controllen >= CMSG_LEN(sizeof(int)) && rights.head.cmsg_level == SOL_SOCKET &&
        rights.head.cmsg_type == SCM_RIGHTS) {
        int given;
        memcpy(&given, CMSG_DATA(&rights.head), sizeof given);
        dpari_os_close(passed != NULL ? *passed : given);
        if (passed != NULL) {
            *passed = dpari_os_beyond_standard(given);
        }
    }
    *got += (size_t)n;
    return n == 0 ? -1 : *got == sizeof *h;
}

/* Unlinks a socket of this user in /tmp at which no process listens. It must be at least a minute
 * old, because a new one refuses connections as well until its process listens. */
DPARI_STATIC_NOINLINE void dpari_meet_end_stale(const char *entry)
{
    struct sockaddr_un name;
    struct stat about;
    dpar_text t;
    int fd;
    dpari_zero(&name, sizeof name);
    name.sun_family = AF_UNIX;
    dpar_text_init(&t, name.sun_path, sizeof name.sun_path);
    dpari_text_print(&t, "/tmp/%s", entry);
    if (t.used >= sizeof name.sun_path || lstat(name.sun_path, &about) != 0 ||
        !S_ISSOCK(about.st_mode) || about.st_uid != getuid() || time(NULL) - about.st_mtime < 60) {
        return;
    }
    fd = dpari_os_socket(AF_UNIX, SOCK_STREAM);
    if (fd >= 0 && connect(fd, (struct sockaddr *)(void *)&name, (socklen_t)sizeof name) != 0 &&
        errno == ECONNREFUSED) {
        unlink(name.sun_path);
    }
    dpari_os_close(fd);
}

/* Removes the sockets that jobs of this user left in /tmp when their rank 0 was killed. */
static void dpari_meet_sweep(void)
{
    char begin[32];
    dpar_text t;
    DIR *folder = opendir("/tmp");
    struct dirent *entry;
    dpar_text_init(&t, begin, sizeof begin);
    dpari_text_print(&t, "dpar.%ld.", dpari_os_user());
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (strncmp(entry->d_name, begin, t.used) == 0) {
            dpari_meet_end_stale(entry->d_name);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

/* Listens at a name of the job. If this user has already taken a name, a process of the same job
 * that has not ended yet answers there; if none answers, the name is an old file, which is
 * unlinked. A name that another user has taken is skipped. Returns 1 and sets *listener, 0 if the
 * caller must try again, or -1 and errno if it fails. */
static int dpari_host_listen(dpari_host *host, int32_t named, int *listener)
{
    int32_t k;
    for (k = 0; k < DPARI_NAMES; k++) {
        socklen_t bytes = dpari_meet_name(host->job, k, named, &host->name);
        int fd = dpari_os_socket(AF_UNIX, SOCK_STREAM), other, mine, number;
        if (fd < 0) {
            return -1;
        }
        if (bind(fd, (struct sockaddr *)(void *)&host->name, bytes) == 0 && listen(fd, 128) == 0) {
            host->file = named ? host->name : host->file;
            *listener = fd;
            return 1;
        }
        number = errno;
        close(fd);
        if (number != EADDRINUSE) {
            errno = number;
            return -1;
        }
        other = dpari_os_socket(AF_UNIX, SOCK_STREAM);
        if (other < 0) {
            return -1;
        }
        mine = 1;
        if (connect(other, (struct sockaddr *)(void *)&host->name, bytes) == 0) {
            mine = dpari_meet_is_mine(other);
        } else if (named && errno == ECONNREFUSED) {
            struct stat about;
            mine = lstat(host->name.sun_path, &about) == 0 && about.st_uid == getuid();
            if (mine) {
                unlink(host->name.sun_path);
            }
        }
        close(other);
        if (mine) {
            return 0;
        }
    }
    return 0;
}

/* Closes the connection of guest i. */
static void dpari_host_drop(dpari_host *host, int32_t i)
{
    dpari_guest *g = &host->guest[i];
    close(host->poll[1 + i].fd);
    host->poll[1 + i].fd = -1;
    if (g->rank > 0) {
        host->place[g->rank] = 0;
    }
    host->mapped -= g->state == DPARI_GUEST_MAPPED;
    dpari_zero(g, sizeof *g);
    g->rank = -1;
}

static void dpari_host_accept(dpari_host *host, int listener)
{
    const int fd = dpari_os_accept(listener);
    int32_t i = 0;
    if (fd < 0) {
        return;
    }
    while (i < host->guests && host->poll[1 + i].fd >= 0) {
        i++;
    }
    if (i == host->guests || !dpari_meet_is_mine(fd)) {
        host->strangers++;
        close(fd);
        return;
    }
    host->poll[1 + i].fd = fd;
    host->poll[1 + i].events = POLLIN;
    host->poll[1 + i].revents = 0;
    host->guest[i].rank = -1;
}

static void dpari_host_accept_all(dpari_host *host)
{
    if (host->poll[0].revents != 0) {
        dpari_host_accept(host, host->poll[0].fd);
    }
    if (host->poll[1 + host->guests].revents != 0) {
        dpari_host_accept(host, host->poll[1 + host->guests].fd);
    }
}

/* True if the guest has closed its connection, which the host may not have noticed yet. */
static int dpari_host_is_gone(const dpari_host *host, int32_t i)
{
    char byte;
    return recv(host->poll[1 + i].fd, &byte, 1, MSG_PEEK) == 0;
}

/* Checks the first message of a guest: it must be a rank of this job, of the same build, and the
 * first guest with its rank. */
static dpar_status dpari_host_hello(dpari_host *host, int32_t i, dpar_why *why)
{
    dpari_guest *g = &host->guest[i];
    dpari_hello mine;
    int32_t rank = g->in.rank;
    dpari_meet_greet(host->job, &mine);
    if (g->in.magic != mine.magic || g->in.job != mine.job || g->in.kind != DPARI_HELLO) {
        host->strangers++;
        dpari_host_drop(host, i);
        return DPAR_OK;
    }
    if (g->in.layout != mine.layout) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "rank %d is built with another version of dpar.h than rank 0", rank);
    }
    if (g->in.size != host->job->size || rank < 1 || rank >= host->job->size) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "a process says that it is rank %d of %d, but rank 0 says that there are "
                         "%d ranks",
                         rank, g->in.size, host->job->size);
    }
    if (host->place[rank] != 0 && dpari_host_is_gone(host, host->place[rank] - 1)) {
        dpari_host_drop(host, host->place[rank] - 1);
    }
    if (host->place[rank] != 0) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "two processes say that they are rank %d of %d: perhaps two jobs have the "
                         "same id",
                         rank, host->job->size);
    }
    g->rank = rank;
    g->state = DPARI_GUEST_WELCOME;
    host->place[rank] = i + 1;
    mine.kind = DPARI_WELCOME;
    mine.nonce = g->in.nonce;
    if (!dpari_meet_send(host->poll[1 + i].fd, &mine, host->segment->fd)) {
        dpari_host_drop(host, i);
    }
    return DPAR_OK;
}

/* Handles a message from a guest. Fails if the job cannot start. */
static dpar_status dpari_host_receive(dpari_host *host, int32_t i, dpar_why *why)
{
    dpari_guest *g = &host->guest[i];
    const int whole = dpari_meet_read(host->poll[1 + i].fd, &g->in, &g->got, NULL);
    if (whole < 0) {
        int32_t rank = g->rank, mapped = g->state == DPARI_GUEST_MAPPED;
        dpari_host_drop(host, i);
        if (!mapped) {
            return DPAR_OK; /* it may connect again */
        }
        return dpari_say(DPAR_E_PEER, why, "rank %d ended while %d ranks were starting", rank,
                         host->job->size);
    }
    if (whole == 0) {
        return DPAR_OK;
    }
    g->got = 0;
    if (g->state == DPARI_GUEST_NEW) {
        return dpari_host_hello(host, i, why);
    }
    if (g->in.kind != DPARI_MAPPED || g->state != DPARI_GUEST_WELCOME) {
        dpari_host_drop(host, i);
        return DPAR_OK;
    }
    if (g->in.status != DPAR_OK) {
        g->in.text[sizeof g->in.text - 1] = 0;
        return dpari_say(DPAR_E_SYSTEM, why, "rank %d cannot map the segment: %s", g->rank,
                         g->in.text);
    }
    g->state = DPARI_GUEST_MAPPED;
    host->mapped++;
    return DPAR_OK;
}

/* Appends possible reasons why ranks do not find each other. */
static void dpari_meet_put_reasons(dpar_text *text, const dpar_launcher_info *job)
{
    if (strncmp(job->id, "process ", 8) == 0) { /* the id that dpari_job_here derives from a pid */
        dpar_text_put(text, "; its id differs between PID namespaces: set DPAR_JOB");
    }
    dpar_text_put(text, "; ranks must share a user, and a network namespace or /tmp");
    if (job->local_size < 0) { /* the launcher does not report how many ranks are on this node */
        dpar_text_put(text, "; if some are on other nodes, use dpar_mpi.h or dpar_nccl.h");
    }
}

/* Fails with "ranks 2, 3 of 4 did not arrive within 5.0 s". */
static dpar_status dpari_host_late(const dpari_host *host, dpar_why *why)
{
    int32_t r, named = 0, missing = host->job->size - 1 - host->mapped;
    dpar_text t;
    dpari_text_why(&t, why);
    if (host->poll[0].fd < 0) {
        dpari_text_print(&t, "another process is rank 0 of this job (%s, %s) and did not end",
                         dpari_launcher_name(host->job->kind), host->job->id);
    } else {
        dpar_text_put(&t, missing == 1 ? "rank " : "ranks ");
        for (r = 1; r < host->job->size; r++) {
            if ((host->place[r] == 0 ||
                 host->guest[host->place[r] - 1].state != DPARI_GUEST_MAPPED) &&
                named++ < 16) {
                dpari_text_print(&t, "%s%d", named > 1 ? ", " : "", r);
            }
        }
        dpari_text_print(&t, "%s%d did not arrive", named > 16 ? ", ... of " : " of ",
                         host->job->size);
    }
    dpari_text_print(&t, " within %.1f s", dpari_os_now() - host->began);
    if (host->strangers > 0) {
        dpari_text_print(&t, "; %d connections did not belong to ranks of this job",
                         host->strangers);
    }
    dpari_meet_put_reasons(&t, host->job);
    return DPAR_E_TIMEOUT;
}

/* Seconds after which ranks also try the file in /tmp: ranks that have not arrived by then may be
 * in another network namespace, where abstract names are not visible but files are. */
#define DPARI_MEET_WIDER 1.0

/* Also listens at the file in /tmp if ranks are still missing after DPARI_MEET_WIDER. */
static void dpari_host_widen(dpari_host *host)
{
    struct pollfd *second = &host->poll[1 + host->guests];
    if (host->named || second->fd >= 0 || dpari_os_now() - host->began < DPARI_MEET_WIDER) {
        return;
    }
    dpari_meet_sweep();
    (void)dpari_host_listen(host, 1, &second->fd); /* if that fails, the first listener must be
                                                      enough */
}

/* Waits until all ranks have mapped the segment, or the job cannot start. */
static dpar_status dpari_host_wait(dpari_host *host, dpar_why *why)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    while (status == DPAR_OK && host->mapped < host->job->size - 1) {
        const double now = dpari_os_now();
        double left;
        host->deadline += dpari_os_suspended(&host->looked, now);
        left = host->deadline - now;
        if (left <= 0.0) {
            return dpari_host_late(host, why);
        }
        if (host->poll[0].fd < 0) {
            int listens = dpari_host_listen(host, host->named, &host->poll[0].fd);
            if (listens < 0) {
                return dpari_os_why(why, "the socket where ranks meet", 0, errno);
            }
            if (listens == 0) {
                dpari_os_sleep(dpari_leastf(left, 5e-3));
                continue;
            }
        }
        dpari_host_widen(host);
        if (poll(host->poll, (nfds_t)host->guests + 2, dpari_os_milliseconds(left)) <= 0) {
            continue;
        }
        for (i = 0; i < host->guests && status == DPAR_OK; i++) {
            if (host->poll[1 + i].fd >= 0 && host->poll[1 + i].revents != 0) {
                status = dpari_host_receive(host, i, why);
            }
        }
        dpari_host_accept_all(host);
    }
    return status;
}

/* Sends the result to a guest that has identified itself. */
static void dpari_host_answer(dpari_host *host, int32_t i, dpar_status status, const dpar_why *why)
{
    dpari_hello mine;
    dpari_meet_greet(host->job, &mine);
    mine.kind = status == DPAR_OK ? DPARI_GO : DPARI_REFUSED;
    mine.status = status;
    mine.nonce = host->guest[i].in.nonce;
    dpari_copy_text(mine.text, sizeof mine.text, status != DPAR_OK ? why->text : "",
                    sizeof mine.text);
    dpari_meet_send(host->poll[1 + i].fd, &mine, -1);
    dpari_host_drop(host, i);
}

/* Waits up to a second for ranks that arrive after the job has failed to start, so that they fail
 * with the same message. answered: number of ranks that have the message already. */
static void dpari_host_linger(dpari_host *host, dpar_status status, const dpar_why *why,
                              int32_t answered)
{
    const double end = dpari_leastf(host->deadline, dpari_os_now() + 1.0);
    int32_t i;
    while (answered < host->job->size - 1 && host->poll[0].fd >= 0 && dpari_os_now() < end) {
        if (poll(host->poll, (nfds_t)host->guests + 2, dpari_os_milliseconds(0.05)) <= 0) {
            continue;
        }
        for (i = 0; i < host->guests; i++) {
            dpari_guest *g = &host->guest[i];
            int whole;
            if (host->poll[1 + i].fd < 0 || host->poll[1 + i].revents == 0) {
                continue;
            }
            whole = dpari_meet_read(host->poll[1 + i].fd, &g->in, &g->got, NULL);
            if (whole > 0) {
                answered++;
                dpari_host_answer(host, i, status, why);
            } else if (whole < 0) {
                dpari_host_drop(host, i);
            }
        }
        dpari_host_accept_all(host);
    }
}

/* Sends the result to all guests and closes the listeners. */
static void dpari_host_end(dpari_host *host, dpar_status status, const dpar_why *why)
{
    int32_t i, answered = 0;
    struct pollfd *second = &host->poll[1 + host->guests];
    if (status == DPAR_OK || status == DPAR_E_TIMEOUT) {
        dpari_os_close(host->poll[0].fd);
        dpari_os_close(second->fd);
        host->poll[0].fd = second->fd = -1;
    }
    for (i = 0; i < host->guests; i++) {
        if (host->poll[1 + i].fd >= 0 && host->guest[i].in.magic != 0) {
            answered++;
            dpari_host_answer(host, i, status, why);
        }
    }
    dpari_host_linger(host, status, why, answered);
    for (i = 0; i <= host->guests + 1; i++) {
        dpari_os_close(host->poll[i].fd);
    }
    if (host->file.sun_path[0] != 0) {
        unlink(host->file.sun_path);
    }
}

/* Runs the protocol on rank 0. */
static DPARI_COLD dpar_status dpari_meet_host(const dpar_launcher_info *job,
                                              const dpar_world_desc *o, double deadline,
                                              dpari_segment *segment, dpar_why *why)
{
    const int64_t places = (int64_t)job->size + 33; /* guests + 2, as poll needs */
    const int64_t bytes =
        places * (int64_t)(sizeof(dpari_guest) + sizeof(struct pollfd) + sizeof(int32_t)) + 64;
    dpari_host h;
    dpar_why said;
    int32_t i;
    char *memory;
    dpar_status status = dpari_segment_make(segment, job->size, o, why);
    if (status != DPAR_OK) {
        return status;
    }
    memory = (char *)dpari_os_pages(bytes);
    if (memory == NULL) {
        dpari_segment_close(segment);
        return dpari_os_why(why, "the table of ranks", 0, ENOMEM);
    }
    dpari_zero(&h, sizeof h);
    h.job = job;
    h.segment = segment;
    h.guests = job->size + 31; /* all other ranks, and up to 32 strangers at a time */
    h.named = dpari_meet_is_named();
    h.began = dpari_os_now();
    h.deadline = deadline;
    h.guest = (dpari_guest *)(void *)memory;
    h.poll = (struct pollfd *)(void *)(h.guest + places);
    h.place = (int32_t *)(void *)(h.poll + places);
    for (i = 0; i <= h.guests + 1; i++) {
        h.poll[i].fd = -1;
        h.poll[i].events = POLLIN;
    }
    if (h.named) {
        dpari_meet_sweep();
    }
    status = dpari_host_wait(&h, &said);
    dpari_host_end(&h, status, &said);
    dpari_os_unmap(memory, bytes);
    if (status != DPAR_OK) {
        dpari_segment_close(segment);
        if (why != NULL) {
            *why = said;
        }
    }
    return status;
}

/* ---- the other ranks ------------------------------------------------------------------------- */

/* Waits for a whole message. Returns 1 if it has arrived, 0 after the deadline, and -1 if the other
 * end is closed. */
static int dpari_meet_receive(int fd, dpari_hello *h, int *passed, double deadline)
{
    size_t got = 0;
    double looked = 0.0;
    for (;;) {
        int whole;
        deadline += dpari_os_suspended(&looked, dpari_os_now());
        if (!dpari_os_poll(fd, POLLIN, deadline)) {
            return 0;
        }
        whole = dpari_meet_read(fd, h, &got, passed);
        if (whole != 0) {
            return whole;
        }
    }
}

/* True if this is the answer of this job's rank 0 to this hello. */
static int dpari_meet_answers(const dpari_hello *answer, const dpari_hello *mine)
{
    return answer->magic == mine->magic && answer->job == mine->job &&
           answer->nonce == mine->nonce && answer->rank == 0;
}

/* Fails with the status and message of a refusal. */
static dpar_status dpari_meet_refused(dpari_hello *answer, dpar_why *why)
{
    answer->text[sizeof answer->text - 1] = 0;
    return dpari_repeat(answer->status < 0 ? answer->status : DPAR_E_PEER, why, answer->text);
}

/* Runs steps 3 and 4 of the protocol, once rank 0 has sent the descriptor: maps the segment,
 * reports that, and waits for GO. */
static dpar_status dpari_meet_map(int fd, int passed, dpari_hello *mine, double deadline,
                                  dpari_segment *segment, dpar_why *why)
{
    dpari_hello answer;
    dpar_why said;
    int got, answers;
    dpar_status status = dpari_segment_open(segment, passed, &said);
    mine->kind = DPARI_MAPPED;
    mine->status = status;
    dpari_copy_text(mine->text, sizeof mine->text, status != DPAR_OK ? said.text : "",
                    sizeof mine->text);
    dpari_meet_send(fd, mine, -1); /* if this fails, rank 0 may have sent the reason before */
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, said.text);
    }
    /* waits longer than rank 0, whose message is better because it names the missing ranks */
    got = dpari_meet_receive(fd, &answer, NULL, deadline + 5.0);
    answers = got > 0 && dpari_meet_answers(&answer, mine);
    if (answers && answer.kind == DPARI_GO) {
        return DPAR_OK;
    }
    dpari_segment_close(segment);
    if (answers) {
        return dpari_meet_refused(&answer, why);
    }
    if (got == 0) {
        return dpari_say(DPAR_E_TIMEOUT, why,
                         "rank 0 of %d accepted rank %d, but then did not answer any more",
                         mine->size, mine->rank);
    }
    return dpari_say(DPAR_E_PEER, why, "rank 0 ended while %d ranks were starting", mine->size);
}

/* Tries to connect at one name. Returns DPAR_MORE if no process listens there, or one that is not
 * rank 0 of this job. */
static dpar_status dpari_meet_call(const struct sockaddr_un *name, socklen_t bytes,
                                   dpari_hello *mine, double deadline, dpari_segment *segment,
                                   int32_t *strangers, dpar_why *why)
{
    struct sockaddr_un to = *name;
    dpari_hello answer;
    int passed = -1, got, fd = dpari_os_socket(AF_UNIX, SOCK_STREAM);
    dpar_status status = DPAR_MORE;
    if (fd < 0) {
        return dpari_os_why(why, "the socket where ranks meet", 0, errno);
    }
    if (connect(fd, (struct sockaddr *)(void *)&to, bytes) != 0) {
        close(fd);
        return DPAR_MORE;
    }
    mine->kind = DPARI_HELLO;
    mine->status = DPAR_OK;
    mine->nonce = dpari_os_random();
    got = dpari_meet_is_mine(fd) && dpari_meet_send(fd, mine, -1) ? 1 : -1;
    if (got > 0) { /* rank 0 answers at once, unless it is stopped */
        got =
            dpari_meet_receive(fd, &answer, &passed, dpari_leastf(deadline, dpari_os_now() + 2.0));
    }
    if (got > 0 && dpari_meet_answers(&answer, mine) && answer.kind == DPARI_REFUSED) {
        status = dpari_meet_refused(&answer, why);
    } else if (got > 0 && passed >= 0 && dpari_meet_answers(&answer, mine) &&
               answer.kind == DPARI_WELCOME) {
        status = dpari_meet_map(fd, passed, mine, deadline, segment, why);
        passed = -1;
    } else {
        *strangers += 1;
    }
    dpari_os_close(passed);
    close(fd);
    return status;
}

/* Runs the protocol on every other rank. */
static dpar_status dpari_meet_guest(const dpar_launcher_info *job, double deadline,
                                    dpari_segment *segment, dpar_why *why)
{
    /* rank 0 makes the segment meanwhile, which takes about 0.1 ms */
    double began = dpari_os_now(), nap = 20e-6, now = began, looked = 0.0;
    int32_t k, strangers = 0, named = dpari_meet_is_named(), widens = !named;
    dpari_hello mine;
    dpar_text t;
    dpari_meet_greet(job, &mine);
    while (now < deadline) {
        for (k = 0; k < DPARI_NAMES; k++) {
            struct sockaddr_un name;
            socklen_t bytes = dpari_meet_name(job, k, named, &name);
            dpar_status status =
                dpari_meet_call(&name, bytes, &mine, deadline, segment, &strangers, why);
            if (status != DPAR_MORE) {
                return status;
            }
        }
        looked = dpari_os_now(); /* so that the 2 s of a connection to a stopped rank 0 count as
                                    waiting */
        dpari_os_sleep(nap);
        nap = dpari_leastf(1.5 * nap, 20e-3);
        now = dpari_os_now();
        deadline += dpari_os_suspended(&looked, now);
        if (widens && now - began > DPARI_MEET_WIDER) {
            named = !named; /* tries both kinds of names in turn */
        }
    }
    dpari_text_why(&t, why);
    dpari_text_print(&t, "rank 0 of %d did not arrive within %.1f s (job %s of %s)%s", job->size,
                     dpari_os_now() - began, job->id, dpari_launcher_name(job->kind),
                     strangers > 0 ? "; another process has its socket, or it ended early" : "");
    dpari_meet_put_reasons(&t, job);
    return DPAR_E_TIMEOUT;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_meet_ranks(const dpar_launcher_info *job,
                                                       const dpar_world_desc *o,
                                                       dpari_segment *segment, dpar_why *why)
{
    const double timeout = dpari_world_timeout(o);
    const double deadline = dpari_os_now() + (timeout > 0.0 ? timeout : 1e15);
    if (job->rank == 0) {
        return dpari_meet_host(job, o, deadline, segment, why);
    }
    return dpari_meet_guest(job, deadline, segment, why);
}
