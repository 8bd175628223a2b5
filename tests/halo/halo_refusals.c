/* SPDX-License-Identifier: MIT-0 */
/* Tests what dpar_halo.h refuses on a world of one rank: one wrong number at a time, with the
 * message. Run with: tests/run test halo. */
#define CHECK_THREADS /* two ranks check at once */
#include "dpar_halo.h"

#include "axes.h"
#include "check.h"
#include "no_memory.h"
#include "refused.h"

#include <stdlib.h>

static double data[64];

static dpar_halo halo_of(void)
{
    dpar_halo h;
    dpar_mesh m;
    dpar_placement p = dpar_replicate();
    int64_t extent[2] = {4, 4};
    int32_t one = 1;
    memset(&h, 0, sizeof h);
    CHECK_INT(dpar_mesh_init(&m, "a", &one, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&h.grid, &m, 2, extent, &p, NULL), DPAR_OK);
    h.low[0] = h.low[1] = h.high[0] = h.high[1] = 1;
    return h;
}

static void refuse(dpar_comm *c, const dpar_halo_field *f, int32_t fields, int32_t ordered,
                   dpar_status status, const char *words)
{
    dpar_halo_plan_desc o;
    dpar_why why;
    int64_t bytes = 0;
    memset(&o, 0, sizeof o);
    o.field = f, o.field_count = fields, o.ordered = ordered;
    REFUSED(dpari_hx_bytes(c, &o, &bytes, &why), status, words);
}

static void test_fields(dpar_comm *c)
{
    dpar_halo h = halo_of(), far;
    dpar_halo_field fine, f;
    int32_t owner[1] = {3};
    double seconds;
    dpar_halo_plan *plan = NULL;
    dpar_why why;
    memset(&fine, 0, sizeof fine);
    fine.halo = &h, fine.type = DPAR_F64, fine.data = data + 7;
    refuse(c, &fine, 1, 0, DPAR_OK, NULL);
    REFUSED(dpar_halo_plan_make(NULL, NULL, &plan, &why), DPAR_E_ARG, "comm is NULL");
    REFUSED(dpar_halo_plan_tune(NULL, NULL, &seconds, &why), DPAR_E_ARG, "comm is NULL");
    refuse(c, &fine, 0, 0, DPAR_E_ARG, "field_count is 0; it must be 1 to 4096");
    refuse(c, &fine, 4097, 0, DPAR_E_ARG, "field_count is 4097; it must be 1 to 4096");
    f = fine;
    f.halo = NULL;
    refuse(c, &f, 1, 0, DPAR_E_ARG, "field 0: halo is NULL");
    f = fine;
    f.components = -1;
    refuse(c, &f, 1, 0, DPAR_E_ARG, "field 0: components is -1");
    f = fine;
    f.vector = 1, f.type = DPAR_F8;
    refuse(c, &f, 1, 0, DPAR_E_ARG, "has no sign to change");
    f = fine;
    far = h;
    far.grid.mesh.first_rank = 1;
    f.halo = &far;
    refuse(c, &f, 1, 0, DPAR_E_ARG, "on ranks up to 1, but the communicator has 1");
    far = h;
    far.owner = owner;
    refuse(c, &f, 1, 0, DPAR_E_ARG, "on ranks up to 3");
    far = h;
    far.shape = DPAR_STENCIL_EDGES;
    owner[0] = 0;
    far.owner = owner;
    owner[0] = 0;
    far.periodic = 3, far.folds = 1, far.fold = 0, far.mirror = 1;
    far.periodic = 2;
    refuse(c, &f, 1, 1, DPAR_E_ARG, "cannot be exchanged dim by dim");
}

static void test_grids(dpar_comm *c)
{
    static double many[100000];
    dpar_grid_desc d;
    dpar_grid *g = NULL;
    dpar_grid_field field;
    dpar_why why;
    int i, refused = 0;
    REFUSED(dpar_grid_attach(NULL, data, DPAR_F64, NULL, &why), DPAR_E_ARG,
            "dpar_grid_attach: grid is NULL");
    memset(&d, 0, sizeof d);
    d.dims = 2, d.cells[0] = d.cells[1] = 4, d.halo = 1;
    d.expected_count[1] = 3;
    REFUSED(dpar_grid_make(c, &d, &g, &why), DPAR_E_ARG,
            "has 4 cells in dim 1, but expected_count is 3");
    d.expected_count[1] = 0;
    d.cells[0] = d.cells[1] = INT64_C(1) << 30;
    REFUSED(dpar_grid_make(c, &d, &g, &why), DPAR_E_RANGE, "more than 2^56 points");
    d.cells[0] = d.cells[1] = 4;
    CHECK_INT(dpar_grid_make(c, &d, &g, &why), DPAR_OK);
    for (i = 1; i < 1000 && !refused; i++) { /* arrays with ever different strides */
        memset(&field, 0, sizeof field);
        field.stride[0] = 10 + i, field.stride[1] = 1;
        refused = dpar_grid_attach(g, many + 2000 + 8 * i, DPAR_F64, &field, &why) == DPAR_E_RANGE;
    }
    CHECK(refused && i > 8);
    CHECK(strstr(why.text, "its arrays have more than") != NULL);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
}

/* Makes a grid, an array of the caller's and an exchange, each in memory of its own. */
static void a_grid(void *arg, char *text)
{
    dpar_comm *c = (dpar_comm *)arg;
    dpar_grid_desc d;
    dpar_grid *g = NULL;
    dpar_why why;
    memset(&d, 0, sizeof d);
    d.dims = 2, d.cells[0] = d.cells[1] = 4, d.halo = 1;
    why.text[0] = 0;
    if (dpar_grid_make(c, &d, &g, &why) == DPAR_OK) {
        if (dpar_grid_attach(g, data + 7, DPAR_F64, NULL, &why) == DPAR_OK) {
            strcpy(why.text, dpar_grid_exchange(g, data + 7) == DPAR_OK ? "" : g->comm->why.text);
        }
        (void)dpar_grid_free(g);
    }
    strcpy(text, why.text);
}

static void test_no_memory(dpar_comm *c)
{
    static few_pages few;
    if (!few_pages_said(&few, a_grid, c, 1 << 10)) {
        puts("a limit of memory: not kept, skipped");
        return;
    }
    CHECK(few_pages_has(&few, "bytes cannot be allocated"));
    CHECK(few_pages_has(&few, "bytes for a plan cannot be allocated"));
}

/* Checks an exchange that no rank waited for, and a world that ended before its grid. */
static void test_ends(void)
{
    dpar_comm *world = NULL, *part = NULL;
    dpar_grid_desc d;
    dpar_grid *g = NULL;
    static dpar_work work;
    dpar_why why;
    memset(&d, 0, sizeof d);
    d.dims = 2, d.cells[0] = d.cells[1] = 4, d.halo = 1;
    CHECK_INT(dpar_init(&world, NULL, &why), DPAR_OK);
    CHECK_INT(dpar_comm_split(world, 0, 0, &part), DPAR_OK);
    d.owns_comm = 1, d.free_why = &why;
    CHECK_INT(dpar_grid_make(part, &d, &g, &why), DPAR_OK);
    CHECK_INT(dpar_recv(part, data, 1, DPAR_F64, 0, 1, &work), DPAR_OK);
    REFUSED(dpar_grid_free(g), DPAR_E_ARG,
            "dpar_grid_free: the grid's communicator was not closed well: ");
    (void)dpar_comm_free(world);
    d.owns_comm = 0, d.free_why = NULL;
    CHECK_INT(dpar_init(&world, NULL, &why), DPAR_OK);
    CHECK_INT(dpar_grid_make(world, &d, &g, &why), DPAR_OK);
    CHECK_INT(dpar_comm_free(world), DPAR_OK);
    REFUSED(dpar_grid_attach(g, data, DPAR_F64, NULL, &why), DPAR_E_ARG,
            "dpar_grid_attach: grid was closed with its world");
    (void)dpar_grid_free(g);
}

/* Checks rank 1, which has no cell but has the output that reads rank 0's. */
static int two_ranks(dpar_comm *c, void *arg)
{
    static const int64_t cuts[] = {0, 0, 1}, one = 1;
    int32_t two = 2;
    dpar_placement p = dpar_shard(0);
    dpar_layout outputs;
    dpar_halo h, room;
    dpar_halo_field f;
    dpar_mesh m;
    memset(&h, 0, sizeof h);
    memset(&f, 0, sizeof f);
    CHECK_INT(dpar_mesh_init(&m, "a", &two, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&h.grid, &m, 1, &one, &p, NULL), DPAR_OK);
    room = h;
    p = dpar_shard_by(0, DPAR_SPLIT_RAGGED, 0);
    p.cuts = cuts;
    CHECK_INT(dpar_layout_init(&outputs, &m, 1, &one, &p, NULL), DPAR_OK);
    h.window[0].kernel = 1;
    h.outputs = &outputs;
    f.halo = &h, f.type = DPAR_F64, f.data = data;
    refuse(c, &f, 1, 0, DPAR_OK, NULL);
    if (c->rank == 1) {
        f.array_halo = &room;
        refuse(c, &f, 1, 0, DPAR_E_RANGE, "field 0: array_halo has no points on rank 1");
        f.array_halo = NULL;
        f.data = NULL;
        refuse(c, &f, 1, 0, DPAR_E_ARG, "field 0: data and compact_halo are NULL on rank 1");
    }
    return checks_failed > 0 || arg != NULL;
}

static int one_rank(dpar_comm *c, void *arg)
{
    (void)arg;
    test_no_memory(c);
    test_fields(c);
    test_grids(c);
    return checks_failed > 0;
}

int main(void)
{
    dpar_world_desc o;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.threads = 1; /* the checks count in this process */
    CHECK_INT(dpar_launch(1, one_rank, NULL, &o, &why), DPAR_OK);
    CHECK_INT(dpar_launch(2, two_ranks, NULL, &o, &why), DPAR_OK);
    test_ends();
    return CHECK_DONE();
}
