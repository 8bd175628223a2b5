/* SPDX-License-Identifier: MIT-0 */
/* Tests a rank that continues after the others have timed out and use their memory again. It must
 * not get DPAR_OK for data that it has read since. Rank 1 posts a collective or a message and
 * sleeps; the others time out and overwrite their registered arrays; then rank 1 waits or tests. If
 * it gets DPAR_OK, its data must be right. */
#include "run_oracle.h"

enum { N = 40000, FIRST = 1, SECOND = -7, KINDS = 5 };
static const char *const names[KINDS] = {"all-gather", "reduce-scatter", "broadcast", "all-to-all",
                                         "message"};

typedef struct board {
    volatile int gave_up, posted, wrong, told;
    int kind, tests;
} board;

static dpar_status post(dpar_comm *c, int kind, int32_t *in, int32_t *out, dpar_work *w)
{
    switch (kind) {
    case 0: return dpar_all_gather(c, in, out, N, DPAR_I32, w);
    case 1: return dpar_reduce_scatter(c, in, out, N, DPAR_I32, DPAR_MAX, w);
    case 2: return dpar_broadcast(c, c->rank == 0 ? in : out, N, DPAR_I32, 0, w);
    case 3: return dpar_all_to_all(c, in, out, N, DPAR_I32, w);
    default:
        return c->rank == 0 ? dpar_send(c, in, N, DPAR_I32, 1, 0, w)
                            : dpar_recv(c, out, N, DPAR_I32, 0, 0, w);
    }
}

static void until(const volatile int *flag)
{
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) {
        usleep(1000);
    }
}

static int one(dpar_comm *c, void *arg)
{
    board *b = (board *)arg;
    void *p = NULL, *q = NULL;
    int32_t *in, *out;
    dpar_work w;
    dpar_status s;
    int i;
    memset(&w, 0, sizeof w);
    if (dpar_comm_alloc(c, 2 * N * 4, &p) < 0 || dpar_comm_alloc(c, 2 * N * 4, &q) < 0) {
        return 1;
    }
    in = (int32_t *)p, out = (int32_t *)q;
    for (i = 0; i < 2 * N; i++) {
        in[i] = c->rank == 0 ? FIRST : -100;
        out[i] = FIRST;
    }
    if (dpar_barrier(c, NULL) < 0) {
        return 1;
    }
    c->timeout_s = 0.2;
    if (c->rank == 1) {
        s = post(c, b->kind, in, out, &w);
        __atomic_store_n(&b->posted, 1, __ATOMIC_RELEASE);
        until(&b->gave_up);
        if (s == DPAR_OK && b->tests) {
            while ((s = dpar_test(&w)) == DPAR_MORE) {
            }
        } else if (s == DPAR_OK) {
            s = dpar_wait(&w);
        }
        for (i = 0; i < N && s == DPAR_OK; i++) {
            b->wrong += out[i] == SECOND;
        }
        b->told = s;
        return 0;
    }
    until(&b->posted);
    s = post(c, b->kind, in, out, NULL);
    for (i = 0; i < 2 * N; i++) {
        in[i] = SECOND;
    }
    __atomic_store_n(&b->gave_up, 1 + (s < 0), __ATOMIC_RELEASE);
    usleep(50000); /* its memory stays valid for a while */
    return 0;
}

int main(void)
{
    void *p = mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board *b = (board *)p;
    dpar_world_desc o;
    dpar_why why;
    int kind, tests, bad = 0, late = 0;
    for (kind = 0; kind < KINDS; kind++) {
        for (tests = 0; tests < 2; tests++) {
            memset(b, 0, sizeof *b);
            b->kind = kind, b->tests = tests;
            memset(&o, 0, sizeof o);
            o.timeout_s = 60;
            (void)dpar_launch(2, one, b, &o, &why);
            late += b->gave_up == 2;
            if (b->wrong != 0 || b->gave_up == 0) {
                printf("WRONG %s, %s: told %d, and %d elements are others\n", names[kind],
                       tests ? "tested" : "waited for", (int)b->told, (int)b->wrong);
                bad++;
            }
        }
    }
    printf("%d collectives and messages, %d given up, %d wrong\n", 2 * KINDS, late, bad);
    return bad != 0 || late == 0;
}
