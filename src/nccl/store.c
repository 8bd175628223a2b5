/* SPDX-License-Identifier: MIT-0 */
/* torchrun's store: rank 0 stores the card, and the other ranks get it.
 *
 * The agent of torchrun on the first node serves a TCPStore of PyTorch (2.4 or later) at
 * MASTER_ADDR and MASTER_PORT. A request is one byte, which says what is wanted, and its arguments.
 * Numbers have the byte order of the machine; a text or a value is its length, 8 bytes, and its
 * bytes. The names of the queries are those of PyTorch's TCPStoreBackend.hpp. */
#include "store.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/os.h"
#include "nccl_make.h"
#include "socket.h"

enum {
    DPARI_NCCL_VALIDATE = 0, /* begins a connection; takes DPARI_NCCL_STORE_MAGIC */
    DPARI_NCCL_SET = 1,      /* key, value */
    DPARI_NCCL_GET = 3,      /* key; answers with its value */
    DPARI_NCCL_ADD = 4,      /* key, a number of 8 bytes; answers with the sum */
    DPARI_NCCL_WAIT = 6 /* a number of keys and each key; answers with a byte once they exist */
};

#define DPARI_NCCL_STORE_MAGIC UINT32_C(0x3C85F7CE)

typedef struct dpari_nccl_request {
    char bytes[1024];
    size_t used;
} dpari_nccl_request;

static void dpari_nccl_put(dpari_nccl_request *q, const void *from, size_t bytes)
{
    memcpy(q->bytes + q->used, from, bytes);
    q->used += bytes;
}

static void dpari_nccl_put_value(dpari_nccl_request *q, const void *from, size_t bytes)
{
    const uint64_t length = bytes;
    dpari_nccl_put(q, &length, sizeof length);
    dpari_nccl_put(q, from, bytes);
}

/* Appends a query and the key "dpar_nccl/JOB/NUMBER" or "dpar_nccl/JOB/rank/NUMBER". */
static void dpari_nccl_put_key(dpari_nccl_request *q, char query, uint64_t job, const char *kind,
                               int64_t number)
{
    const uint64_t one = 1;
    char key[80];
    dpar_text t;
    dpar_text_init(&t, key, sizeof key);
    dpar_text_put(&t, "dpar_nccl/");
    dpari_text_int(&t, (int64_t)job);
    dpar_text_put(&t, kind);
    dpari_text_int(&t, number);
    dpari_nccl_put(q, &query, 1);
    if (query == DPARI_NCCL_WAIT) {
        dpari_nccl_put(q, &one, sizeof one);
    }
    dpari_nccl_put_value(q, key, strlen(key));
}

/* Sends a request and receives its answer. Returns -1 on failure. */
static int dpari_nccl_ask_store(int fd, dpari_nccl_request *q, void *answer, size_t bytes,
                                double until)
{
    const int bad = dpari_nccl_write(fd, q->bytes, q->used, until) != 0 ||
                    dpari_nccl_read(fd, answer, bytes, until) != 0;
    q->used = 0;
    return bad ? -1 : 0;
}

/* Sends rank 0's bytes to all ranks over the store at the other end of fd. The first request counts
 * the meetings of this rank, because a key can be used only once. Returns -1 on failure. */
static int dpari_nccl_over_store(int fd, const dpar_nccl_rendezvous *m, void *bytes, size_t n,
                                 double until)
{
    const uint32_t magic = DPARI_NCCL_STORE_MAGIC;
    const int64_t one = 1;
    const char begin = DPARI_NCCL_VALIDATE;
    int64_t meeting = 0;
    uint64_t length = 0;
    char exists = 1;
    dpari_nccl_request q;
    q.used = 0;
    dpari_nccl_put(&q, &begin, 1);
    dpari_nccl_put(&q, &magic, sizeof magic);
    dpari_nccl_put_key(&q, DPARI_NCCL_ADD, m->job, "/rank/", m->rank);
    dpari_nccl_put(&q, &one, sizeof one);
    if (dpari_nccl_ask_store(fd, &q, &meeting, sizeof meeting, until) != 0) {
        return -1;
    }
    if (m->rank == 0) {
        dpari_nccl_put_key(&q, DPARI_NCCL_SET, m->job, "/", meeting);
        dpari_nccl_put_value(&q, bytes, n);
    }
    dpari_nccl_put_key(&q, DPARI_NCCL_WAIT, m->job, "/", meeting);
    if (dpari_nccl_ask_store(fd, &q, &exists, 1, until) != 0 || exists != 0) {
        return -1;
    }
    dpari_nccl_put_key(&q, DPARI_NCCL_GET, m->job, "/", meeting);
    if (dpari_nccl_ask_store(fd, &q, &length, sizeof length, until) != 0 || length != n) {
        return -1;
    }
    return dpari_nccl_read(fd, bytes, n, until);
}

/* Connects to the store at m->address and m->port, trying again until the deadline. */
static dpar_status dpari_nccl_reach_store(const dpar_nccl_rendezvous *m, int *fd, double until,
                                          dpar_why *why)
{
    struct addrinfo hints, *all = NULL, *i;
    char service[16];
    dpar_text t;
    int code;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    dpar_text_init(&t, service, sizeof service);
    dpari_text_int(&t, m->port);
    code = getaddrinfo(m->address, service, &hints, &all);
    if (code != 0) {
        return dpari_wrong(why, "cannot resolve the address %s of torchrun's store: %s", m->address,
                           gai_strerror(code));
    }
    while (*fd < 0 && dpari_os_now() < until) {
        for (i = all; i != NULL && *fd < 0; i = i->ai_next) {
            const double soon = dpari_os_now() + 1;
            *fd = dpari_nccl_connect(i->ai_addr, i->ai_addrlen, soon < until ? soon : until);
        }
        if (*fd < 0) {
            dpari_os_sleep(0.02);
        }
    }
    freeaddrinfo(all);
    if (*fd < 0) {
        return dpari_say(DPAR_E_TIMEOUT, why,
                         "torchrun's store at %s, port %d was not reached before the deadline",
                         m->address, m->port);
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_nccl_by_store(const dpar_nccl_rendezvous *m, void *bytes, size_t n,
                                               double until, dpar_why *why)
{
    int fd = -1, code;
    dpar_status status = dpari_nccl_reach_store(m, &fd, until, why);
    if (status < 0) {
        return status;
    }
    code = dpari_nccl_over_store(fd, m, bytes, n, until);
    (void)close(fd);
    if (code == 0) {
        return DPAR_OK;
    }
    if (dpari_os_now() >= until) {
        return dpari_say(DPAR_E_TIMEOUT, why,
                         "rank 0 stored no id in torchrun's store at %s, port %d before the "
                         "deadline",
                         m->address, m->port);
    }
    return dpari_say(DPAR_E_SYSTEM, why,
                     "the server at %s, port %d is not torchrun's store: set DPAR_NCCL_PORT to a "
                     "free port, at which NCCL then listens",
                     m->address, m->port);
}
