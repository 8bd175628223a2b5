/* SPDX-License-Identifier: MIT-0 */
/* Tests proof_redistribute: proves random pairs of layouts (all split rules, several axes per dim,
 * replicas, partial sums, other meshes) and compares the report with sums over their lists. Plants
 * faults in lists by proving them against another layout. Run with: tests/run test proof. */
#include "dpar_proof.h"

#include "proof_cases.h"

static int64_t ragged[2][4][CASE_RANKS + 1];

/* Makes a random layout of an array. side: 0 for `from`, 1 for `to`. */
static int random_layout(dpar_layout *l, int side, int32_t dims, const int64_t *extent)
{
    static const int32_t rules[] = {DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_FLOOR,
                                    DPAR_SPLIT_RAGGED, DPAR_SPLIT_BLOCK_CYCLIC};
    int32_t axes = 1 + below(3), size[3], i, left = 12;
    dpar_placement p[3];
    dpar_mesh mesh;
    for (i = 0; i < axes; i++) {
        const int kind = below(6), d = below(dims);
        int64_t k;
        size[i] = 1 + below(left < 4 ? left : 4);
        left /= size[i];
        p[i] = dpar_shard_by(d, rules[below(5)], 1 + below(3));
        if (p[i].rule == DPAR_SPLIT_RAGGED) {
            ragged[side][i][0] = 0;
            for (k = 1; k <= size[i]; k++) {
                ragged[side][i][k] = ragged[side][i][k - 1] + below((int)(extent[d] - ragged[side][i][k - 1]) + 1);
            }
            ragged[side][i][size[i]] = extent[d];
            p[i].cuts = ragged[side][i];
        }
        if (kind == 0) {
            p[i] = dpar_replicate();
        } else if (kind == 1) {
            p[i] = dpar_partial(DPAR_SUM);
        }
    }
    if (dpar_mesh_init(&mesh, axis_names(axes), size, below(2), 0, NULL) < 0) {
        return 0;
    }
    mesh.first_rank = below(4) == 0 ? below(5) : 0;
    return dpar_layout_init(l, &mesh, dims, extent, p, NULL) == DPAR_OK;
}

/* Returns the transfers and elements of all lists in one direction. */
static void sum(const dpar_layout *from, const dpar_layout *to, int32_t per_node, int32_t rank,
                int direction, int64_t *transfers, int64_t *away, int64_t *kept)
{
    dpar_redistribute_cursor w;
    dpar_transfer t;
    *away = *kept = 0;
    CHECK_INT(dpar_redistribute_first(&w, from, to, rank, direction, per_node), DPAR_OK);
    while (dpar_redistribute_next(&w, &t)) {
        ++*transfers;
        *(t.peer == rank ? kept : away) += dpar_transfer_volume(&t);
    }
}

static int32_t last_of(const dpar_layout *l)
{
    int32_t i, last = l->mesh.first_rank;
    for (i = 0; i < l->mesh.axes; i++) {
        last += (l->mesh.axis[i].size - 1) * l->mesh.axis[i].stride;
    }
    return last;
}

static void test_random(void)
{
    int trial, proved = 0, partial = 0;
    for (trial = 0; trial < 6000; trial++) {
        const int32_t dims = 1 + below(3), per_node = below(4) - 1;
        int64_t extent[3], sends = 0, receives = 0, sent = 0, received = 0, copied = 0, most = 0;
        int32_t d, rank, i;
        dpar_layout from, to;
        dpar_proof_desc desc;
        dpar_proof_report report;
        dpar_why why;
        dpar_status status;
        for (d = 0; d < dims; d++) {
            extent[d] = below(8) == 0 ? 0 : 1 + below(9);
        }
        if (!random_layout(&from, 0, dims, extent) || !random_layout(&to, 1, dims, extent)) {
            continue;
        }
        if (below(3) == 0) {
            to.mesh = from.mesh;
            if (dpar_layout_init(&to, &from.mesh, dims, extent, below(2) ? from.axis : to.axis, NULL) < 0) {
                continue;
            }
        }
        if (dpar_redistribute_check(&from, &to, NULL) < 0) {
            continue;
        }
        memset(&desc, 0, sizeof desc);
        desc.memory = proof_memory;
        desc.bytes = sizeof proof_memory;
        desc.point_bytes = 4;
        status = dpar_proof_redistribute(&from, &to, per_node, &desc, &report, &why);
        CHECK_INT(status, DPAR_OK);
        if (status != DPAR_OK) {
            printf("trial %d: %s\n", trial, why.text);
            continue;
        }
        CHECK_INT(report.ranks, 1 + (last_of(&from) > last_of(&to) ? last_of(&from) : last_of(&to)));
        for (rank = 0; rank < report.ranks; rank++) {
            int64_t away, kept;
            sum(&from, &to, per_node, rank, DPAR_TRANSFER_SEND, &sends, &away, &kept);
            sent += away;
            most = away > most ? away : most;
            copied += kept;
            sum(&from, &to, per_node, rank, DPAR_TRANSFER_RECV, &receives, &away, &kept);
            received += away;
        }
        CHECK_INT(report.transfers, sends);
        CHECK_INT(report.transfers, receives);
        CHECK_INT(report.sent.total, 4 * sent);
        CHECK_INT(report.sent.most, 4 * most);
        CHECK_INT(report.received.total, 4 * received);
        CHECK_INT(report.copied.total, 4 * copied);
        CHECK_INT(report.points, sent + copied);
        proved++;
        for (i = 0; i < from.mesh.axes; i++) {
            partial += from.axis[i].kind == DPAR_PLACEMENT_PARTIAL;
        }
    }
    CHECK(proved > 3000 && partial > 500);
}

/* Proves the redistribution of a large array over many ranks, with little memory. */
static void test_large(void)
{
    static const int64_t extent[2] = {INT64_C(1) << 40, 1000};
    const int32_t size[2] = {64, 32};
    dpar_placement rows[2], columns[2];
    dpar_layout from, to;
    dpar_proof_desc desc;
    dpar_proof_report report;
    dpar_mesh mesh;
    dpar_why why;
    rows[0] = rows[1] = dpar_shard(0);
    columns[0] = dpar_shard(1);
    columns[1] = dpar_shard_by(0, DPAR_SPLIT_EVEN, 0);
    CHECK_INT(dpar_mesh_init(&mesh, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&from, &mesh, 2, extent, rows, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&to, &mesh, 2, extent, columns, NULL), DPAR_OK);
    memset(&desc, 0, sizeof desc);
    desc.memory = proof_memory;
    desc.bytes = 200000;
    CHECK_INT(dpar_proof_redistribute(&from, &to, 0, &desc, &report, &why), DPAR_OK);
    CHECK_INT(report.points, 1000 * extent[0]);
    CHECK_INT(report.sent.total + report.copied.total, 8000 * extent[0]);
    CHECK_INT(report.messages.most, 63); /* a rank of 2048 sends to one row of 64 ranks */
}

static void test_refusals(void)
{
    static const int64_t extent[1] = {8}, other[1] = {9};
    const int32_t size[1] = {2};
    const dpar_placement p[1] = {dpar_shard(0)};
    dpar_layout from, to;
    dpar_proof_desc desc;
    dpar_proof_report report;
    dpar_mesh mesh;
    dpar_why why;
    CHECK_INT(dpar_mesh_init(&mesh, "a", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&from, &mesh, 1, extent, p, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&to, &mesh, 1, other, p, NULL), DPAR_OK);
    memset(&desc, 0, sizeof desc);
    CHECK_INT(dpar_proof_redistribute(&from, &to, 0, &desc, &report, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dim 0 has 8 elements before and 9 after");
    CHECK_INT(dpar_proof_redistribute(&from, &from, 0, &desc, &report, &why), DPAR_E_ROOM);
    CHECK(why.bytes > 0 && why.bytes < 100000);
    CHECK_INT(dpar_proof_redistribute(&from, NULL, 0, &desc, &report, &why), DPAR_E_ARG);
    CHECK_INT(dpar_proof_redistribute(&from, &from, 0, NULL, &report, &why), DPAR_E_ARG);
    desc.memory = proof_memory;
    desc.bytes = sizeof proof_memory;
    CHECK_INT(dpar_proof_redistribute(&from, &from, -2, &desc, &report, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "per_node is -2: see dpar_redistribute_first");
    CHECK_INT(dpar_proof_redistribute(&from, &from, 0, &desc, &report, &why), DPAR_OK);
    CHECK_INT(report.copied.total, 64);
}

int main(void)
{
    random_seed = 7;
    test_random();
    test_large();
    test_refusals();
    CHECK_DONE();
}
