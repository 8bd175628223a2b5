/* SPDX-License-Identifier: MIT-0 */
/* What dpar_comm.h refuses before any rank runs, and what a world of one rank refuses of a move:
 * one wrong number at a time, with its sentence. */
#include "dpar_comm.h"

#include "axes.h"
#include "check.h"
#include "refused.h"

#include <stdlib.h>

static int nothing(dpar_comm *c, void *arg)
{
    return c->size < 0 && arg != NULL;
}

static void test_launch(void)
{
    dpar_options o;
    dpar_why why;
    memset(&o, 0, sizeof o);
    REFUSED(dpar_launch_with(1, NULL, NULL, NULL, &why), DPAR_E_ARG, "needs a function to run");
    REFUSED(dpar_launch_with(0, nothing, NULL, NULL, &why), DPAR_E_ARG, "ranks, not 0");
    REFUSED(dpar_launch_with(1 << 30, nothing, NULL, NULL, &why), DPAR_E_ARG, "ranks, not 10737");
    o.grace_s = -1.0;
    REFUSED(dpar_launch_with(1, nothing, NULL, &o, &why), DPAR_E_ARG, "grace_s is 0 .. 1e9");
    o.grace_s = 0.0, o.timeout_s = (double)NAN;
    REFUSED(dpar_launch_with(1, nothing, NULL, &o, &why), DPAR_E_ARG, "timeout_s is no number");
    o.timeout_s = 0.0, o.threads = 2;
    REFUSED(dpar_launch_with(1, nothing, NULL, &o, &why), DPAR_E_ARG, "threads is 0 or 1, not 2");
    REFUSED(dpar_init(NULL, NULL, &why), DPAR_E_ARG, "world is NULL");
}

/* Jobs that a launcher says are there. */
static void test_jobs(void)
{
    static const char *const names[] = {"DPAR_RANK", "DPAR_SIZE", "DPAR_LOCAL_RANK",
                                        "DPAR_LOCAL_SIZE", "DPAR_JOB"};
    dpar_comm *world = NULL;
    dpar_why why;
    size_t i;
    CHECK_INT(setenv("DPAR_JOB", "refusals", 1), 0);
    CHECK_INT(setenv("DPAR_RANK", "0", 1), 0);
    CHECK_INT(setenv("DPAR_SIZE", "100000", 1), 0);
    REFUSED(dpar_init(&world, NULL, &why), DPAR_E_ARG,
            "says 100000 ranks: dpar_comm.h joins at most");
    CHECK_INT(setenv("DPAR_SIZE", "4", 1), 0);
    CHECK_INT(setenv("DPAR_LOCAL_RANK", "0", 1), 0);
    CHECK_INT(setenv("DPAR_LOCAL_SIZE", "2", 1), 0);
    REFUSED(dpar_init(&world, NULL, &why), DPAR_E_ARG, "says 4 ranks, 2 of them on this node");
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_INT(unsetenv(names[i]), 0);
    }
    CHECK_INT(setenv("DPAR_TIMEOUT", "soon", 1), 0);
    REFUSED(dpar_init(&world, NULL, &why), DPAR_E_ARG,
            "DPAR_TIMEOUT is \"soon\", which is no number");
    CHECK_INT(unsetenv("DPAR_TIMEOUT"), 0);
    CHECK(world == NULL);
}

static void test_moves(dpar_comm *c)
{
    dpar_mesh m;
    dpar_layout l, huge;
    dpar_placement p = dpar_replicate();
    dpar_move move, fine;
    dpar_transfer t;
    dpar_why why;
    int64_t extent[3] = {4, 4, 4}, shape[3] = {4, 4, 4}, far[1], bytes = 0;
    int32_t one = 1;
    double in[64], out[64];
    memset(in, 0, sizeof in);
    CHECK_INT(dpar_mesh_init(&m, "a", &one, DPAR_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&l, &m, 3, extent, &p, NULL), DPAR_OK);
    memset(&fine, 0, sizeof fine);
    fine.type = DPAR_F64, fine.from = fine.to = &l, fine.in = in, fine.out = out;
    CHECK_INT(dpar_redistribute_run(c, &fine, &why), DPAR_OK);
    move = fine;
    move.per_node = -2;
    REFUSED(dpar_redistribute_run(c, &move, &why), DPAR_E_ARG, "-2 ranks a node");
    move = fine;
    shape[1] = 3;
    move.in_shape = shape;
    REFUSED(dpar_redistribute_run(c, &move, &why), DPAR_E_ARG, "an array of 3 for 4 elements");
    shape[1] = -1;
    CHECK(dpar_redistribute_run(c, &move, &why) == DPAR_E_ARG);
    REFUSED(dpar_move_bytes(NULL, &fine, &bytes, &why), DPAR_E_ARG, "or bytes is NULL");
    REFUSED(dpar_move_bytes(c, NULL, &bytes, &why), DPAR_E_ARG, "or bytes is NULL");
    REFUSED(dpar_move_bytes(c, &fine, NULL, &why), DPAR_E_ARG, "or bytes is NULL");
    memset(&move, 0, sizeof move);
    memset(&t, 0, sizeof t);
    move.type = DPAR_F64, move.in = in, move.out = out, move.in_shape = move.out_shape = shape;
    t.dims = 3, t.extent[0] = t.extent[1] = t.extent[2] = 1;
    move.send = move.receive = &t, move.sends = move.receives = 1;
    REFUSED(dpar_transfers_run(c, &move, &why), DPAR_E_ARG, "dim 1 of a shape is -1");
    t.dims = 7; /* more than there are */
    REFUSED(dpar_move_bytes(c, &move, &bytes, &why), DPAR_E_ARG, "a transfer of 7 dims: 0 to 6");
    t.dims = -1;
    REFUSED(dpar_move_bytes(c, &move, &bytes, &why), DPAR_E_ARG, "a transfer of -1 dims");
    far[0] = INT64_C(1) << 61; /* elements that fit, bytes that do not */
    t.dims = 1;
    move.in_shape = move.out_shape = far;
    REFUSED(dpar_transfers_run(c, &move, &why), DPAR_E_RANGE,
            "2305843009213693952 elements of 8 bytes");
    extent[0] = INT64_C(1) << 61, extent[1] = extent[2] = 4;
    CHECK_INT(dpar_layout_init(&huge, &m, 3, extent, &p, NULL), DPAR_OK);
    move = fine;
    move.from = move.to = &huge;
    CHECK(dpar_move_bytes(c, &move, &bytes, &why) == DPAR_E_RANGE);
}

static int one_rank(dpar_comm *c, void *arg)
{
    (void)arg;
    test_moves(c);
    return checks_failed > 0;
}

int main(void)
{
    dpar_options o;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.threads = 1; /* the checks count here */
    test_launch();
    test_jobs();
    CHECK_INT(dpar_launch_with(1, one_rank, NULL, &o, &why), DPAR_OK);
    return CHECK_DONE();
}
