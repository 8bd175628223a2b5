/* SPDX-License-Identifier: MIT-0 */
/* Tests that real exchanges send what the proof reports: plans of random grids with their traffic
 * by peer and their staging memory; moves between layouts that were proved.
 *     ./proof_runs [processes|threads] [ranks]        without arguments: both, 1 to 6 and 1 to 4 */
#include "dpar_halo.h"
#include "dpar_proof.h"
#define PER_RANK __thread
#include "rank_program.h"
#include "random.h"

enum { MEMORY = 1 << 20 };

/* Numbers of plans that exchange all dims at once, and of those that go dim by dim. */
static PER_RANK int at_once, by_dim;

/* Makes a random grid over all ranks, the same on each. Returns 0 if it is refused. */
static int random_grid(dpar_halo *h, int32_t ranks)
{
    static const char names[3][6] = {"a", "a b", "a b c"};
    const int32_t dims = 1 + below(3);
    int32_t parts[3] = {0, 0, 0}, d;
    int64_t extent[3];
    dpar_placement p[3];
    dpar_mesh mesh;
    memset(h, 0, sizeof *h);
    if (dpar_cart_dims(ranks, dims, parts, NULL) < 0) {
        return 0;
    }
    for (d = 0; d < dims; d++) {
        extent[d] = 1 + below(12);
        p[d] = dpar_shard_by(d, below(2) ? DPAR_SPLIT_EVEN : DPAR_SPLIT_CHUNK, 0);
        h->low[d] = below(3);
        h->high[d] = below(3);
    }
    if (dpar_mesh_init(&mesh, names[dims - 1], parts, below(2), 0, NULL) < 0 ||
        dpar_layout_init(&h->grid, &mesh, dims, extent, p, NULL) < 0) {
        return 0;
    }
    h->shape = below(3);
    h->periodic = (uint32_t)below(1 << dims);
    if (dims > 1 && below(2)) {
        h->mirror = 1;
        h->periodic = (h->periodic | 2u) & ~1u;
        h->folds = below(2);
        h->on_row = h->folds && below(2);
        h->poles = h->folds ? (uint32_t)below(2) : 3u;
    }
    return dpar_halo_check(h, NULL) == DPAR_OK;
}

/* Computes the least, the most and the sum of a number of all ranks, and compares them. */
static int64_t compare(dpar_comm *c, const char *what, int64_t mine, const dpar_proof_range *range)
{
    int64_t out[3] = {0, 0, 0};
    (void)dpar_all_reduce(c, &mine, &out[0], 1, DPAR_I64, DPAR_MIN, NULL);
    (void)dpar_all_reduce(c, &mine, &out[1], 1, DPAR_I64, DPAR_MAX, NULL);
    (void)dpar_all_reduce(c, &mine, &out[2], 1, DPAR_I64, DPAR_SUM, NULL);
    if (out[0] == range->least && out[1] == range->most && out[2] == range->total &&
        (c->rank != range->most_rank || mine == range->most)) {
        return 0;
    }
    printf("rank %d of %d: %s: %lld %lld %lld, but proved %lld %lld %lld\n", (int)c->rank,
           (int)c->size, what, (long long)out[0], (long long)out[1], (long long)out[2],
           (long long)range->least, (long long)range->most, (long long)range->total);
    return 1;
}

/* Makes a plan of the grid and compares its traffic with the report of the proof. */
static int64_t one_plan(dpar_comm *c, const dpar_halo *h, int64_t *memory)
{
    const int32_t method = below(3) == 0 ? DPAR_HALO_AUTO : DPAR_HALO_MESSAGES;
    int64_t sent = 0, copied = 0, messages = 0, wrong = 0, points = 1;
    dpar_proof_desc desc;
    dpar_proof_report report;
    dpar_halo_plan_desc how;
    dpar_halo_field field;
    dpar_halo_plan *plan = NULL;
    dpari_hx_traffic t;
    dpar_box box;
    dpar_why why;
    int32_t k;
    double *data;
    memset(&desc, 0, sizeof desc);
    desc.memory = memory;
    desc.bytes = MEMORY;
    CHECK_INT(dpar_proof_halo(h, &desc, &report, &why), DPAR_OK);
    if (dpar_halo_box(h, c->rank, &box)) {
        points = dpar_box_volume(&box);
    }
    data = (double *)zeroed(8 * points);
    memset(&field, 0, sizeof field);
    field.halo = h;
    field.type = DPAR_F64;
    field.data = data;
    memset(&how, 0, sizeof how);
    how.field = &field;
    how.field_count = 1;
    how.method = method;
    if (dpar_halo_plan_make(c, &how, &plan, &why) != DPAR_OK) {
        printf("%s\n", why.text);
        free(data);
        return 1;
    }
    CHECK_INT(dpar_halo_plan_exchange(plan), DPAR_OK);
    for (k = 0; dpari_hx_traffic_of(plan, k, &t); k++) {
        if (t.peer == c->rank) {
            copied += t.bytes;
            continue;
        }
        sent += t.bytes;
        messages += t.bytes > 0;
    }
    wrong += compare(c, "messages", messages, &report.messages);
    if (plan->x.steps > 1) { /* dim by dim, so that ranks fill edges and corners themselves */
        wrong += sent > report.sent.most;
        by_dim++;
    } else {
        wrong += compare(c, "bytes sent", sent, &report.sent);
        wrong += compare(c, "bytes copied", copied, &report.copied);
        at_once++;
    }
    if (plan->x.world == NULL && plan->x.steps == 1) { /* only messages */
        wrong += compare(c, "staging", 2 * plan->turn + plan->arrive_bytes, &report.staging);
    } else {
        wrong += 2 * plan->turn > report.staging.most;
    }
    CHECK_INT(dpar_halo_plan_free(plan), DPAR_OK);
    free(data);
    return wrong;
}

/* Moves an array between two proved layouts, and compares each element. */
static int64_t one_move(dpar_comm *c, int64_t *memory)
{
    int64_t extent[2], shape[2], n = 0, run = 0, wrong = 0;
    dpar_placement p[2];
    dpar_layout layout[2];
    dpar_redistribute_desc move;
    dpar_proof_desc desc;
    dpar_proof_report report;
    dpar_mesh mesh;
    dpar_why why;
    int32_t *array[2], parts[2], k, d;
    extent[0] = 1 + below(20);
    extent[1] = 1 + below(20);
    for (k = 0; k < 2; k++) {
        parts[0] = parts[1] = 0;
        CHECK_INT(dpar_cart_dims(c->size, 2, parts, NULL), DPAR_OK);
        CHECK_INT(dpar_mesh_init(&mesh, "a b", parts, below(2), 0, NULL), DPAR_OK);
        p[0] = dpar_shard_by(below(2), below(2) ? DPAR_SPLIT_EVEN : DPAR_SPLIT_BLOCK_CYCLIC, 2);
        p[1] = below(3) == 0 ? dpar_replicate() : dpar_shard_by(1 - p[0].dim, DPAR_SPLIT_EVEN, 0);
        CHECK_INT(dpar_layout_init(&layout[k], &mesh, 2, extent, p, NULL), DPAR_OK);
        n = dpar_layout_count(&layout[k], c->rank);
        array[k] = (int32_t *)zeroed(4 * n + 4);
    }
    memset(&desc, 0, sizeof desc);
    desc.memory = memory;
    desc.bytes = MEMORY;
    desc.point_bytes = 4;
    CHECK_INT(dpar_proof_redistribute(&layout[0], &layout[1], 0, &desc, &report, &why), DPAR_OK);
    for (k = 0; k < 2; k++) {
        int64_t i;
        dpar_layout_local(&layout[k], c->rank, shape, NULL);
        n = shape[0] * shape[1];
        if (k == 1) {
            memset(&move, 0, sizeof move);
            move.type = DPAR_I32;
            move.from = &layout[0];
            move.to = &layout[1];
            move.in = dpar_layout_count(&layout[0], c->rank) > 0 ? array[0] : NULL;
            move.out = n > 0 ? array[1] : NULL;
            CHECK_INT(dpar_redistribute(c, &move, &why), DPAR_OK);
        }
        for (i = 0; i < n; i++) {
            int64_t at[2], global = 0;
            at[0] = i / shape[1];
            at[1] = i % shape[1];
            for (d = 0; d < 2; d++) {
                global = global * 100 + dpar_layout_global(&layout[k], c->rank, d, at[d], &run);
            }
            if (k == 0) {
                array[0][i] = (int32_t)global;
            } else {
                wrong += array[1][i] != (int32_t)global;
            }
        }
    }
    n = n * 4;
    {
        int64_t all = all_sum(c, n);
        CHECK_INT(all, report.sent.total + report.copied.total);
    }
    free(array[0]);
    free(array[1]);
    return wrong;
}

static int each(dpar_comm *c, void *arg)
{
    const double began = now();
    const int before = failures();
    int64_t *memory = (int64_t *)zeroed(MEMORY), wrong = 0;
    int trial;
    (void)arg;
    random_seed = 17;
    at_once = by_dim = 0;
    for (trial = 0; trial < 60; trial++) {
        dpar_halo h;
        if (random_grid(&h, c->size)) {
            wrong += one_plan(c, &h, memory);
        }
        wrong += one_move(c, memory);
    }
    free(memory);
    CHECK_INT(wrong, 0);
    CHECK(at_once > 10);
    return all_right(c, wrong, began) || failures() != before;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 6, 4, NULL);
}
