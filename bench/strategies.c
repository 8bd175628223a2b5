/* SPDX-License-Identifier: MIT-0 */
/* What a strategy costs above the bare collectives of the same bytes: two ranks, each on a core of
 * its own, in turns in one run.
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. bench/strategies.c -o strategies && ./strategies [seconds]
 *
 * A sample is one step after both ranks have rewritten their gradients; the slower rank counts.
 * Columns: median us of the bare collectives, of the strategy, and their ratio (bar: 1.10). Both
 * use memory of dpar_comm_alloc. The last step of each row is checked. */
#include "dpar.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SAMPLES = 400, RANKS = 2 };

/* Gradients of `params` tensors of `numel` elements each. */
typedef struct row {
    const char *name;
    int32_t params;
    int64_t numel;
    int32_t narrow, scatter, finite;
    int64_t bucket_bytes;
} row;

static const row rows[] = {
    {"ddp, 24 x 1 MiB, buckets of 25 MiB", 24, 262144, 0, 0, 0, 0},
    {"ddp, 24 x 1 MiB, buckets of 4 MiB", 24, 262144, 0, 0, 0, 4 << 20},
    {"ddp, 600 x 16 KiB, buckets of 1 MiB", 600, 4096, 0, 0, 0, 1 << 20},
    {"ddp, 64 x 1 KiB, buckets of 16 KiB", 64, 256, 0, 0, 0, 16 << 10},
    {"ddp, 24 x 1 MiB, reduce-scatter", 24, 262144, 0, 1, 0, 0},
    {"ddp, 24 x 1 MiB, bf16 on the wire", 24, 262144, 1, 0, 0, 0},
    {"ddp, 24 x 1 MiB, looks for NaN", 24, 262144, 0, 0, 1, 0},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

typedef struct result {
    double bare, strategy;
    int wrong;
} result;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pin(int32_t rank)
{
#if defined(__linux__) && defined(CPU_SET)
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) > 1) {
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (CPU_ISSET(cpu, &allowed) && rank-- == 0) {
                CPU_ZERO(&one);
                CPU_SET(cpu, &one);
                sched_setaffinity(0, sizeof one, &one);
            }
        }
    }
#else
    (void)rank;
#endif
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void rewrite(dpar_ddp *d, const row *r, float with)
{
    for (int32_t i = 0; i < r->params; i++) {
        float *g = (float *)dpar_ddp_gradient(d, i);
        for (int64_t e = 0; e < r->numel; e++) {
            g[e] = with;
        }
    }
}

static dpar_status strategy(dpar_ddp *d, const row *r)
{
    dpar_status st = dpar_ddp_begin(d, 1);
    for (int32_t i = r->params - 1; i >= 0 && st == DPAR_OK; i--) {
        st = dpar_ddp_ready(d, i);
    }
    return st == DPAR_OK ? dpar_ddp_finish(d) : st;
}

/* The same collectives, posted one after the other. With a narrow wire: of that type, already
 * rounded, which is what is on the wire; what rounding costs is the strategy's. */
static dpar_status bare(dpar_comm *c, dpar_ddp *d, const row *r, unsigned char *at, dpar_work *work)
{
    const int32_t type = r->narrow ? DPAR_BF16 : DPAR_F32, each = r->narrow ? 2 : 4;
    dpar_bucket b;
    int32_t k;
    dpar_status st = DPAR_OK;
    for (k = 0; dpar_ddp_bucket(d, k, &b) && st == DPAR_OK; k++) {
        unsigned char *data = at + b.lo * each;
        const int64_t share = (b.hi - b.lo) / c->size;
        st = r->scatter ? dpar_reduce_scatter(c, data, data + share * c->rank * each, share, type,
                                              DPAR_AVG, &work[k])
                        : dpar_all_reduce(c, data, data, b.hi - b.lo, type, DPAR_AVG, &work[k]);
    }
    return st == DPAR_OK ? dpar_wait_all(work, k) : st;
}

/* Seconds of the slower rank; *st. */
static double timed(dpar_comm *c, dpar_ddp *d, const row *r, unsigned char *at, dpar_work *work,
                    dpar_status *st)
{
    double t, slowest = 0.0;
    *st = *st == DPAR_OK ? dpar_barrier(c, NULL) : *st;
    t = now();
    if (*st == DPAR_OK) {
        *st = at != NULL ? bare(c, d, r, at, work) : strategy(d, r);
    }
    t = now() - t;
    *st = *st == DPAR_OK ? dpar_all_reduce(c, &t, &slowest, 1, DPAR_F64, DPAR_MAX, NULL) : *st;
    return slowest;
}

static int wrong_cells(const dpar_ddp *d, const row *r, const dpar_comm *c)
{
    int wrong = 0;
    dpar_bucket b;
    const float *all = (const float *)dpar_ddp_buffer(d);
    for (int32_t k = 0; dpar_ddp_bucket(d, k, &b); k++) {
        const int64_t share = r->scatter ? (b.hi - b.lo) / c->size : b.hi - b.lo;
        const int64_t lo = b.lo + (r->scatter ? share * c->rank : 0);
        for (int64_t i = lo; i < lo + share; i++) { /* (1 + 2) / 2; padding is 0 */
            wrong += all[i] != 1.5f && i < b.lo + b.used;
        }
    }
    return wrong;
}

static dpar_status measure(dpar_comm *c, const row *r, double seconds, result *out)
{
    static double t[2][SAMPLES];
    dpar_ddp_options o = {0};
    dpar_ddp *d = NULL;
    dpar_why why;
    int64_t *numel = (int64_t *)calloc((size_t)r->params, sizeof *numel), bytes = 0;
    const int64_t most = r->params * r->numel * 4 + (1 << 20);
    void *memory = NULL, *at = NULL;
    dpar_work *work = (dpar_work *)calloc((size_t)r->params, sizeof *work);
    dpar_status st;
    int32_t i, n = 0, go = 1;
    double began = now();
    for (i = 0; i < r->params; i++) {
        numel[i] = r->numel;
    }
    o.type = DPAR_F32;
    o.narrow = r->narrow;
    o.wire = DPAR_BF16;
    o.scatter = r->scatter;
    o.finite = r->finite;
    o.bucket_bytes = r->bucket_bytes;
    st = dpar_ddp_bytes(c, r->params, numel, &o, &bytes, &why);
    st = st == DPAR_OK ? dpar_comm_alloc(c, bytes, &memory) : st;
    st = st == DPAR_OK ? dpar_comm_alloc(c, most, &at) : st;
    st = st == DPAR_OK ? dpar_ddp_init(memory, bytes, c, r->params, numel, &o, &d, &why) : st;
    for (n = 0; n < SAMPLES && st == DPAR_OK && go; n++) {
        float *f = (float *)at;
        for (int64_t e = 0; e < most / 4; e++) {
            f[e] = (float)(c->rank + 1);
        }
        t[0][n] = timed(c, d, r, (unsigned char *)at, work, &st);
        rewrite(d, r, (float)(c->rank + 1));
        t[1][n] = timed(c, d, r, NULL, NULL, &st);
        go = now() - began < seconds || n < 8;
        st = st == DPAR_OK ? dpar_broadcast(c, &go, 1, DPAR_I32, 0, NULL) : st;
    }
    if (st == DPAR_OK) {
        qsort(t[0], (size_t)n, sizeof t[0][0], by_value);
        qsort(t[1], (size_t)n, sizeof t[1][0], by_value);
        out->bare = t[0][n / 2];
        out->strategy = t[1][n / 2];
        out->wrong += wrong_cells(d, r, c);
        st = dpar_ddp_close(d);
    }
    dpar_comm_release(c, at);
    dpar_comm_release(c, memory);
    free(work);
    free(numel);
    return st;
}

static int each(dpar_comm *c, void *arg)
{
    const double seconds = *(const double *)arg;
    pin(c->rank);
    for (int32_t k = 0; k < ROWS; k++) {
        result r = {0, 0, 0};
        dpar_status st = measure(c, &rows[k], seconds, &r);
        int32_t wrong = r.wrong, all = 0;
        st = st == DPAR_OK ? dpar_all_reduce(c, &wrong, &all, 1, DPAR_I32, DPAR_SUM, NULL) : st;
        if (st != DPAR_OK || all > 0) {
            printf("rank %d: %s: %s, %d elements wrong\n", c->rank, rows[k].name,
                   dpar_status_text(st), all);
            return 1;
        }
        if (c->rank == 0) {
            printf("| %-36s | %9.1f | %9.1f | %5.2f%s |\n", rows[k].name, 1e6 * r.bare,
                   1e6 * r.strategy, r.strategy / r.bare,
                   r.strategy <= 1.1 * r.bare ? ", met" : ", **missed**");
            fflush(stdout);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 2.0;
    dpar_why why;
    dpar_options o = {0};
    if (!(seconds > 0.0) || argc > 2) {
        fprintf(stderr, "usage: %s [seconds a row]\n", argv[0]);
        return 2;
    }
    printf("| strategy | bare us | strategy us | ratio (1.10) |\n|---|---|---|---|\n");
    fflush(stdout);
    if (dpar_launch_with(RANKS, each, &seconds, &o, &why) != DPAR_OK) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    return 0;
}
