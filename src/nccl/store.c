/* SPDX-License-Identifier: MIT-0 */
/* torchrun's store, over which rank 0 sends its card to all ranks.
 *
 * The agent of torchrun on the first node serves a TCPStore of PyTorch (2.4 or later) at
 * MASTER_ADDR and MASTER_PORT. A request is one byte, which says what is wanted, and its arguments.
 * Numbers have the byte order of the machine; a text or a value is its length, 8 bytes, and its
 * bytes. The names of the queries are those of PyTorch's TCPStoreBackend.hpp.
 *
 * The store outlives the ranks: torchrun may restart them, each agent counts its own restarts, and
 * what ranks stored that have ended since is still there. Therefore nothing depends on counts or on
 * the state of earlier attempts. Each rank draws a ticket, a number that the store gives only once,
 * and stores it. Rank 0 stores its own ticket and the card under each ticket that it finds, and
 * asks again until every rank has stored rank 0's ticket, which shows that it has the card. */
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

/* Queries that are sent together. The longest, which stores a card and adds to two numbers, have
 * about 600 bytes. */
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

/* Appends a query and the key "dpar_nccl/JOB/KIND/NUMBER". */
static void dpari_nccl_put_key(dpari_nccl_request *q, char query, uint64_t job, const char *kind,
                               int64_t number)
{
    const uint64_t one = 1;
    char key[80];
    dpar_text t;
    dpar_text_init(&t, key, sizeof key);
    dpari_text_say(&t, "dpar_nccl/%ld/%s/%ld", (int64_t)job, kind, number);
    dpari_nccl_put(q, &query, 1);
    if (query == DPARI_NCCL_WAIT) {
        dpari_nccl_put(q, &one, sizeof one);
    }
    dpari_nccl_put_value(q, key, strlen(key));
}

/* Appends a query that adds to a number, which is 0 if the key does not exist, and returns it. */
static void dpari_nccl_put_add(dpari_nccl_request *q, uint64_t job, const char *kind,
                               int64_t number, int64_t more)
{
    dpari_nccl_put_key(q, DPARI_NCCL_ADD, job, kind, number);
    dpari_nccl_put(q, &more, sizeof more);
}

/* Appends a query that stores a number, as a text, which ADD expects. */
static void dpari_nccl_put_number(dpari_nccl_request *q, uint64_t job, const char *kind,
                                  int64_t number, int64_t value)
{
    char digits[24];
    dpar_text t;
    dpar_text_init(&t, digits, sizeof digits);
    dpari_text_int(&t, value);
    dpari_nccl_put_key(q, DPARI_NCCL_SET, job, kind, number);
    dpari_nccl_put_value(q, digits, strlen(digits));
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

/* Begins the connection and draws this rank's ticket. Returns -1 on failure. */
static int dpari_nccl_draw_ticket(int fd, uint64_t job, int64_t *ticket, double until)
{
    const uint32_t magic = DPARI_NCCL_STORE_MAGIC;
    const char begin = DPARI_NCCL_VALIDATE;
    dpari_nccl_request q;
    q.used = 0;
    dpari_nccl_put(&q, &begin, 1);
    dpari_nccl_put(&q, &magic, sizeof magic);
    dpari_nccl_put_add(&q, job, "tickets", 0, 1);
    return dpari_nccl_ask_store(fd, &q, ticket, sizeof *ticket, until);
}

/* On rank 0: stores the bytes for all ranks until each of them has them, or until the deadline.
 * Returns the number of ranks that have not, with the lowest in *rank, or -1 on failure. */
static int dpari_nccl_give_card(int fd, const dpar_nccl_rendezvous *m, const void *bytes, size_t n,
                                int32_t *rank, double until)
{
    int64_t root = 0, of[2]; /* the ticket of a rank, and that of the rank 0 whose bytes it has */
    const uint64_t length = sizeof root + n;
    dpari_nccl_request q;
    int32_t r, missing;
    q.used = 0;
    if (dpari_nccl_draw_ticket(fd, m->job, &root, until) != 0) {
        return -1;
    }
    do {
        missing = 0;
        for (r = m->size - 1; r > 0; r--) {
            dpari_nccl_put_add(&q, m->job, "rank", r, 0);
            dpari_nccl_put_add(&q, m->job, "has", r, 0);
            /* a second longer than the deadline, after which the missing ranks are reported */
            if (dpari_nccl_ask_store(fd, &q, of, sizeof of, until + 1) != 0) {
                return -1;
            }
            if (of[1] == root) {
                continue;
            }
            missing++;
            *rank = r;
            if (of[0] != 0) {
                dpari_nccl_put_key(&q, DPARI_NCCL_SET, m->job, "card", of[0]);
                dpari_nccl_put(&q, &length, sizeof length);
                dpari_nccl_put(&q, &root, sizeof root);
                dpari_nccl_put(&q, bytes, n);
            }
        }
        if (missing > 0) {
            dpari_os_sleep(0.01);
        }
    } while (missing > 0 && dpari_os_now() < until);
    return missing;
}

/* On other ranks: gets the bytes that rank 0 has stored for this rank's ticket. Returns -1 on
 * failure. */
static int dpari_nccl_take_card(int fd, const dpar_nccl_rendezvous *m, void *bytes, size_t n,
                                double until)
{
    int64_t ticket = 0, root = 0;
    uint64_t length = 0;
    char exists = 1;
    dpari_nccl_request q;
    q.used = 0;
    if (dpari_nccl_draw_ticket(fd, m->job, &ticket, until) != 0) {
        return -1;
    }
    dpari_nccl_put_number(&q, m->job, "rank", m->rank, ticket);
    dpari_nccl_put_key(&q, DPARI_NCCL_WAIT, m->job, "card", ticket);
    if (dpari_nccl_ask_store(fd, &q, &exists, 1, until) != 0 || exists != 0) {
        return -1;
    }
    dpari_nccl_put_key(&q, DPARI_NCCL_GET, m->job, "card", ticket);
    if (dpari_nccl_ask_store(fd, &q, &length, sizeof length, until) != 0 ||
        length != sizeof root + n || dpari_nccl_read(fd, &root, sizeof root, until) != 0 ||
        dpari_nccl_read(fd, bytes, n, until) != 0) {
        return -1;
    }
    dpari_nccl_put_number(&q, m->job, "has", m->rank, root);
    return dpari_nccl_write(fd, q.bytes, q.used, until);
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
    int32_t rank = 0;
    dpar_status status = dpari_nccl_reach_store(m, &fd, until, why);
    if (status < 0) {
        return status;
    }
    code = m->rank == 0 ? dpari_nccl_give_card(fd, m, bytes, n, &rank, until)
                        : dpari_nccl_take_card(fd, m, bytes, n, until);
    (void)close(fd);
    if (code == 0) {
        return DPAR_OK;
    }
    if (code > 0) {
        return dpari_say(DPAR_E_TIMEOUT, why,
                         "torchrun's store at %s, port %d: %d of %d ranks did not come before the "
                         "deadline; the first of them is rank %d",
                         m->address, m->port, code, m->size, rank);
    }
    if (dpari_os_now() >= until && m->rank == 0) {
        return dpari_say(DPAR_E_TIMEOUT, why,
                         "torchrun's store at %s, port %d did not answer before the deadline",
                         m->address, m->port);
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
