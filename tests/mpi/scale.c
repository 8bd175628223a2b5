/* SPDX-License-Identifier: MIT-0 */
/* Compares the messages that bench/scale_lists.h lists with those that ranks really send. All calls
 * of MPI_Isend and MPI_Irecv are intercepted and counted here, to and from each rank, with their
 * bytes. Tests all_reduce, all_to_all and halos, as if nodes had two ranks (if the number of ranks
 * is even) and by messages only; with messages whole and in two parts. With
 * -DDPAR_MPI_LIMIT=100000000 a few ranks use the methods of many. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(DPAR_MPI_LIMIT)
#define SCALE_DIRECT 2
#define SCALE_TRADED 2
#endif
#include "bench/scale_lists.h"
#include "dpar_halo.h"
#include "dpar_mpi.h"
#include "check.h"

enum { MOST = 64, SENDS = 0, GETS = 1 };

static struct {
    int on;
    MPI_Comm side; /* reports of waiting ranks are sent on this one, with a tag of their own */
    int64_t messages[2][MOST], bytes[2][MOST];
} counted, expected;

static void count(int way, int64_t n, MPI_Datatype type, int peer, int tag, MPI_Comm comm)
{
    int size = 0;
    if (counted.on && !(comm == counted.side && tag == DPARI_MPI_TAG_NOTE)) {
        PMPI_Type_size(type, &size);
        counted.messages[way][peer]++;
        counted.bytes[way][peer] += n * size;
    }
}

int MPI_Isend(const void *from, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    count(SENDS, n, type, to, tag, comm);
    return PMPI_Isend(from, n, type, to, tag, comm, request);
}

int MPI_Irecv(void *to, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    count(GETS, n, type, from, tag, comm);
    return PMPI_Irecv(to, n, type, from, tag, comm, request);
}

#if MPI_VERSION >= 4
int MPI_Isend_c(const void *from, MPI_Count n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                MPI_Request *request)
{
    count(SENDS, n, type, to, tag, comm);
    return PMPI_Isend_c(from, n, type, to, tag, comm, request);
}

int MPI_Irecv_c(void *to, MPI_Count n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                MPI_Request *request)
{
    count(GETS, n, type, from, tag, comm);
    return PMPI_Irecv_c(to, n, type, from, tag, comm, request);
}
#endif

static void expect(void *rank, const scale_message *m)
{
    const int32_t sends = m->from == *(const int32_t *)rank;
    if (!m->memory) {
        expected.messages[!sends][sends ? m->to : m->from]++;
        expected.bytes[!sends][sends ? m->to : m->from] += m->bytes;
    }
}

static void begin_to_count(dpar_comm *c)
{
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    memset(&counted, 0, sizeof counted);
    counted.side = dpari_mpi_ctx_of(c)->side;
    counted.on = 1;
}

static int as_listed(const scale_job *j, int32_t rank)
{
    memset(&expected, 0, sizeof expected);
    scale_walk(j, rank, expect, &rank);
    return memcmp(counted.messages, expected.messages, sizeof expected.messages) == 0 &&
           memcmp(counted.bytes, expected.bytes, sizeof expected.bytes) == 0;
}

static int64_t sent_by(int64_t of[2][MOST])
{
    int64_t sum = 0;
    int32_t r;
    for (r = 0; r < MOST; r++) {
        sum += of[SENDS][r];
    }
    return sum;
}

static void same(const scale_job *j, const dpar_comm *c, const char *what)
{
    const int good = as_listed(j, c->rank);
    counted.on = 0;
    CHECK(good);
    if (!good) {
        printf("%s, rank %d, %d nodes of %d, %lld elements, at once %lld: %lld messages of %lld "
               "bytes sent, %lld of %lld listed\n",
               what, c->rank, j->nodes, j->per_node, (long long)j->count, (long long)j->at_once,
               (long long)sent_by(counted.messages), (long long)sent_by(counted.bytes),
               (long long)sent_by(expected.messages), (long long)sent_by(expected.bytes));
    }
}

static void all_reduce(dpar_comm *c, scale_job j, int64_t n)
{
    float *x = (float *)malloc((size_t)n * sizeof *x),
          *sum = (float *)malloc((size_t)n * sizeof *x);
    int64_t i, bad = 0;
    CHECK(x != NULL && sum != NULL);
    for (i = 0; i < n; i++) {
        x[i] = (float)(c->rank + i % 5);
    }
    j.way = REDUCE_LEVELS;
    j.count = n;
    j.bytes = 4;
    begin_to_count(c);
    CHECK_INT(dpar_all_reduce(c, x, sum, n, DPAR_F32, DPAR_SUM, NULL), DPAR_OK);
    same(&j, c, "all_reduce");
    for (i = 0; i < n; i++) {
        bad += sum[i] != (float)(c->size * (c->size - 1) / 2 + c->size * (i % 5));
    }
    CHECK_INT(bad, 0);
    free(x);
    free(sum);
}

static void all_to_all(dpar_comm *c, scale_job j, int64_t n)
{
    const int64_t all = n * c->size;
    int32_t *x = (int32_t *)malloc((size_t)all * sizeof *x);
    int32_t *y = (int32_t *)malloc((size_t)all * sizeof *y);
    int64_t i, bad = 0;
    CHECK(x != NULL && y != NULL);
    for (i = 0; i < all; i++) {
        x[i] = (int32_t)(c->rank * 1000 + i / n);
    }
    dpari_mpi_ctx_of(c)->world->dealt[0] = DPARI_MPI_DEALT; /* even if that is slower here */
    j.way = j.per_node > 1 && n * 4 <= DPARI_MPI_DEALT ? ALL_LANES : ALL_EACH;
    j.count = n;
    j.bytes = 4;
    begin_to_count(c);
    CHECK_INT(dpar_all_to_all(c, x, y, n, DPAR_I32, NULL), DPAR_OK);
    same(&j, c, "all_to_all");
    for (i = 0; i < all; i++) {
        bad += y[i] != (int32_t)(i / n * 1000 + c->rank);
    }
    CHECK_INT(bad, 0);
    free(x);
    free(y);
}

/* Tests blocks of cells^3 doubles on this grid of ranks, dim 0 the slowest. */
static void halo(dpar_comm *c, scale_job j, const int32_t *parts)
{
    const int32_t cells = 6, width = 2;
    int64_t extent[3];
    dpar_placement cut[3];
    dpar_halo_plan_desc o;
    dpar_halo_field f;
    dpar_halo_plan *x = NULL;
    dpar_mesh mesh;
    dpar_halo h;
    dpar_box box;
    dpar_why why;
    int32_t d;
    memset(&h, 0, sizeof h);
    memset(&f, 0, sizeof f);
    memset(&o, 0, sizeof o);
    j.stride[2] = 1;
    for (d = 2; d >= 0; d--) {
        extent[d] = (int64_t)cells * parts[d];
        cut[d] = dpar_shard(d);
        h.low[d] = h.high[d] = width;
        j.parts[d] = parts[d];
        j.stride[d] = d == 2 ? 1 : j.stride[d + 1] * parts[d + 1];
    }
    h.periodic = 7;
    CHECK_INT(dpar_mesh_init(&mesh, "z y x", parts, DPAR_ORDER_LAST_FASTEST, 0, &why), DPAR_OK);
    CHECK_INT(dpar_layout_init(&h.grid, &mesh, 3, extent, cut, &why), DPAR_OK);
    CHECK(dpar_halo_box(&h, c->rank, &box));
    f.halo = &h;
    f.type = DPAR_F64;
    CHECK_INT(dpar_comm_alloc(c, dpar_box_volume(&box) * 8, &f.data), DPAR_OK);
    o.field = &f;
    o.field_count = 1;
    CHECK_INT(dpar_halo_plan_make(c, &o, &x, &why), DPAR_OK);
    j.way = c->node != NULL ? HALO_LEVELS : HALO_FLAT;
    j.cells = cells;
    j.width = width;
    j.bytes = 8;
    begin_to_count(c);
    CHECK_INT(dpar_halo_plan_begin(x), DPAR_OK);
    CHECK_INT(dpar_halo_plan_end(x), DPAR_OK);
    same(&j, c, "halo");
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    dpar_comm_release(c, f.data);
}

static void every(dpar_comm *c, int32_t per_node)
{
    static const int64_t n[] = {1, 100, 700, 1024, 2000, 5000, 20000, 150000, 4500000};
    static const int64_t lanes_from[] = {SCALE_LANES, 500, 1 << 18};
    enum { N = sizeof n / sizeof n[0] };
    scale_job j;
    int32_t i, two;
    memset(&j, 0, sizeof j);
    j.per_node = per_node;
    j.nodes = c->size / per_node;
    for (two = 0; two < 3; two++) { /* 2: without lanes too */
        j.at_once = dpari_mpi_ctx_of(c)->world->at_once = two % 2 ? 3000 : 0;
        j.lanes_from = dpari_mpi_ctx_of(c)->world->lanes_from = lanes_from[two];
        for (i = 0; i < N; i++) {
            /* For larger sizes and many ranks the engine calls MPI's own operations. */
            if (per_node > 1 || c->size <= SCALE_DIRECT || n[i] * 4 <= SCALE_SMALL) {
                all_reduce(c, j, n[i]);
            }
            if (c->size <= SCALE_DIRECT || (c->size <= SCALE_TRADED && n[i] * 4 >= SCALE_WORTH)) {
                all_to_all(c, j, n[i] < 100000 ? n[i] : 100000);
            }
        }
        for (i = 1; i <= c->size; i++) {
            const int32_t parts[3] = {i, c->size / i, 1}, turned[3] = {1, i, c->size / i};
            if (c->size % i == 0) {
                halo(c, j, parts);
                halo(c, j, turned);
            }
        }
    }
}

static void constants(void)
{
    CHECK_INT(SCALE_LANES, DPARI_MPI_LANES);
    CHECK_INT(SCALE_WORTH, DPARI_MPI_WORTH);
    CHECK_INT(SCALE_SMALL, DPARI_MPI_SMALL);
    CHECK_INT(SCALE_BLOCK, DPARI_MPI_BLOCK);
    CHECK_INT(SCALE_DIRECT, DPARI_MPI_DIRECT);
    CHECK_INT(SCALE_TRADED, DPARI_MPI_TRADED);
}

int main(int argc, char **argv)
{
    dpar_comm *c = NULL;
    dpar_why why;
    int32_t by_nodes;
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    constants();
    for (by_nodes = 0; by_nodes < 2; by_nodes++) {
        setenv("DPAR_MPI_FLAT", by_nodes ? "0" : "1", 1);
        setenv("DPAR_MPI_NODE", "2", 1);
        if (by_nodes && (size % 2 || size < 4)) {
            continue;
        }
        CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, NULL, &c, &why), DPAR_OK);
        CHECK_TEXT(c->engine.name, "mpi");
        CHECK((c->node != NULL) == by_nodes);
        every(c, by_nodes ? 2 : 1);
        CHECK_INT(dpar_comm_free(c), DPAR_OK);
    }
    MPI_Finalize();
    return CHECK_DONE();
}
