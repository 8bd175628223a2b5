/* SPDX-License-Identifier: MIT-0 */
/* Calls each public function of dpar_comm.h that takes a communicator with NULL. Functions with a
 * status return DPAR_E_ARG (freeing NULL is allowed, as documented in the header), with a message
 * if they can store one. The others return without a crash. Then tests works whose memory was not
 * zeroed. */
#include "dpar_comm.h"

#include "check.h"

#include <stdlib.h>

static void test_statuses(void)
{
    double x[4] = {0}, y[4] = {0};
    int64_t count[1] = {1};
    dpar_work work;
    dpar_call call;
    dpar_comm *out = NULL;
    dpar_mesh mesh;
    dpar_redistribute_desc move;
    dpar_why why = {"", 0};
    void *memory = NULL;
    memset(&work, 0, sizeof work);
    memset(&call, 0, sizeof call);
    memset(&mesh, 0, sizeof mesh);
    memset(&move, 0, sizeof move);
    CHECK_INT(dpar_barrier(NULL, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_broadcast(NULL, x, 1, DPAR_F64, 0, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_reduce(NULL, x, y, 1, DPAR_F64, DPAR_SUM, 0, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_all_reduce(NULL, x, y, 1, DPAR_F64, DPAR_SUM, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_all_gather(NULL, x, y, 1, DPAR_F64, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_reduce_scatter(NULL, x, y, 1, DPAR_F64, DPAR_SUM, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_all_to_all(NULL, x, y, 1, DPAR_F64, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_gather(NULL, x, y, 1, DPAR_F64, 0, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_scatter(NULL, x, y, 1, DPAR_F64, 0, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_all_gather_v(NULL, x, y, count, NULL, DPAR_F64, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_reduce_scatter_v(NULL, x, y, count, DPAR_F64, DPAR_SUM, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_all_to_all_v(NULL, x, count, NULL, y, count, NULL, DPAR_F64, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_gather_v(NULL, x, 1, y, count, NULL, DPAR_F64, 0, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_scatter_v(NULL, x, count, NULL, y, 1, DPAR_F64, 0, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_send(NULL, x, 1, DPAR_F64, 0, 0, &work), DPAR_E_ARG);
    CHECK_INT(dpar_wait(&work), DPAR_E_ARG); /* the work keeps the status */
    CHECK_INT(dpar_recv(NULL, x, 1, DPAR_F64, 0, 0, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_batch(NULL, &call, 1, NULL), DPAR_E_ARG);
    CHECK_INT(dpari_post(NULL, &call, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_comm_split(NULL, 0, 0, &out), DPAR_E_ARG);
    CHECK_INT(dpar_comm_split_axes(NULL, &mesh, 1, &out), DPAR_E_ARG);
    CHECK_INT(dpar_comm_shrink(NULL, &out, NULL, &why), DPAR_E_ARG);
    CHECK(why.text[0] != 0);
    CHECK_INT(dpar_comm_free(NULL), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(NULL, 8, &memory), DPAR_E_ARG);
    CHECK_INT(dpar_comm_progress(NULL, 1), DPAR_E_ARG);
    why.text[0] = 0;
    CHECK_INT(dpar_comm_check_equal(NULL, x, 1, DPAR_F64, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "NULL") != NULL);
    CHECK_INT(dpar_comm_check_equal(NULL, NULL, 0, DPAR_F64, NULL), DPAR_E_ARG);
    why.text[0] = 0;
    CHECK_INT(dpar_redistribute(NULL, &move, &why), DPAR_E_ARG);
    CHECK(why.text[0] != 0);
    CHECK_INT(dpar_transfers_exchange(NULL, &move, &why), DPAR_E_ARG);
    CHECK(out == NULL && memory == NULL);
}

/* The maximum is NaN, as after any other failure. */
static void test_others(void)
{
    char text[100] = "";
    dpar_text t;
    const double value[] = {dpar_max(NULL, 1.0), dpar_min(NULL, 1.0), dpar_sum(NULL, 1.0),
                            dpar_mean(NULL, 1.0)};
    size_t i;
    for (i = 0; i < 4; i++) {
        CHECK(isnan(value[i]));
    }
    dpar_comm_release(NULL, NULL);
    dpar_comm_abort(NULL, DPAR_E_PEER, "nobody");
    dpar_text_init(&t, text, sizeof text);
    dpar_comm_describe(NULL, &t);
    dpar_comm_report(NULL, &t);
    CHECK(t.used < sizeof text);
}

/* Tests works with any initial bytes. MPI_Request needs no initial value, and code written for MPI
 * often allocates its works with malloc. So a work with any bytes can be posted, and waiting for
 * one that was never posted is refused. */
static int works(dpar_comm *c, void *arg)
{
    static const int fill[] = {0xa5, 255, 1, 0};
    dpar_work *k = (dpar_work *)malloc(3 * sizeof *k);
    double x = 1.0, y = 0.0;
    size_t i;
    (void)arg;
    CHECK(k != NULL);
    for (i = 0; k != NULL && i < sizeof fill / sizeof *fill; i++) {
        dpar_call call[2];
        memset(call, 0, sizeof call);
        memset(k, fill[i], 3 * sizeof *k);
        CHECK_INT(dpar_test(k), fill[i] == 0 ? DPAR_OK : DPAR_E_ARG);
        CHECK_INT(dpar_wait(k), fill[i] == 0 ? DPAR_OK : DPAR_E_ARG);
        CHECK_INT(dpar_wait_all(k, 3), fill[i] == 0 ? DPAR_OK : DPAR_E_ARG);
        CHECK_INT(dpar_all_reduce(c, &x, &y, 1, DPAR_F64, DPAR_SUM, &k[0]), DPAR_OK);
        CHECK_INT(dpar_wait(&k[0]), DPAR_OK);
        CHECK(y == (double)c->size);
        memset(k, fill[i], 3 * sizeof *k);
        CHECK_INT(dpar_recv(c, &y, 1, DPAR_F64, (c->rank + 1) % c->size, 0, &k[0]), DPAR_OK);
        CHECK_INT(dpar_recv(c, &y, 1, DPAR_F64, 0, 0, &k[0]), DPAR_E_ARG); /* in progress */
        CHECK(strstr(c->why.text, "in progress") != NULL);
        /* no message may be sent before this, or the receive would not be in progress */
        CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
        CHECK_INT(dpar_send(c, &x, 1, DPAR_F64, (c->rank + 1) % c->size, 0, &k[1]), DPAR_OK);
        CHECK_INT(dpar_wait_all(k, 2), DPAR_OK);
        memset(k, fill[i], 3 * sizeof *k);
        call[0].kind = DPAR_CALL_RECV;
        call[0].out = &y;
        call[1].kind = DPAR_CALL_SEND;
        call[1].in = &x;
        call[0].count = call[1].count = 1;
        call[0].type = call[1].type = DPAR_F64;
        call[0].root = call[1].root = (c->rank + 1) % c->size;
        CHECK_INT(dpar_batch(c, call, 2, k), DPAR_OK);
        CHECK_INT(dpar_wait_all(k, 2), DPAR_OK);
        CHECK_INT(dpar_batch(c, call, 2, NULL), DPAR_OK); /* uses works of the library */
        memset(k, fill[i], 3 * sizeof *k); /* a work whose call is refused keeps the status */
        CHECK_INT(dpar_all_reduce(c, &x, &y, -1, DPAR_F64, DPAR_SUM, &k[0]), DPAR_E_ARG);
        CHECK_INT(dpar_wait(&k[0]), DPAR_E_ARG);
    }
    free(k);
    return checks_failed > 0;
}

int main(void)
{
    dpar_world_desc o;
    dpar_why why;
    memset(&o, 0, sizeof o);
    test_statuses();
    test_others();
    CHECK_INT(dpar_launch(2, works, NULL, &o, &why), DPAR_OK);
    o.threads = 1; /* the checks of one rank must count in this process */
    CHECK_INT(dpar_launch(1, works, NULL, &o, &why), DPAR_OK);
    return CHECK_DONE();
}
