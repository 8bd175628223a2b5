/* SPDX-License-Identifier: MIT-0 */
/* Tests proof_halo: proves random grids of all kinds and compares the report with sums over their
 * lists; changes lists in every way that matters and expects the message that names the fault. Run
 * with: tests/run test proof. */
#include "dpar_proof.h"

#include "proof_cases.h"

static case_lists lists;
static dpar_why why;

static dpar_proof_desc desc_of(void)
{
    dpar_proof_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.memory = proof_memory;
    desc.bytes = sizeof proof_memory;
    return desc;
}

static void expect(dpar_status status, dpar_status expected, const char *text)
{
    CHECK_INT(status, expected);
    if (strncmp(why.text, text, strlen(text)) != 0) {
        CHECK(0);
        printf("message: %s\nexpected: %s\n", why.text, text);
    }
}

/* ---- reports --------------------------------------------------------------------------------- */

/* Computes the report of lists by the definition of each number. owner: [units], or NULL. */
static void sum_lists(dpar_proof_report *sum, int32_t ranks, int32_t units, const int32_t *owner,
                      int64_t bytes)
{
    int32_t rank, unit, other;
    int n;
    memset(sum, 0, sizeof *sum);
    sum->ranks = ranks;
    for (unit = 0; unit < units; unit++) {
        sum->blocks += owner == NULL || owner[unit] >= 0;
    }
    for (rank = 0; rank < ranks; rank++) {
        int64_t out[CASE_RANKS] = {0}, in[CASE_RANKS] = {0}, staging = 0, value[6] = {0};
        dpar_proof_range *range[6];
        int k;
        for (unit = 0; unit < units; unit++) {
            if ((owner == NULL ? unit : owner[unit]) != rank) {
                continue;
            }
            for (n = 0; n < lists.count[DPAR_TRANSFER_SEND][unit]; n++) {
                const dpar_transfer *t = &lists.t[DPAR_TRANSFER_SEND][unit][n];
                sum->transfers++;
                out[owner == NULL ? t->peer : owner[t->peer]] += bytes * dpar_transfer_volume(t);
            }
            for (n = 0; n < lists.count[DPAR_TRANSFER_RECV][unit]; n++) {
                const dpar_transfer *t = &lists.t[DPAR_TRANSFER_RECV][unit][n];
                sum->points += dpar_transfer_volume(t);
                in[owner == NULL ? t->peer : owner[t->peer]] += bytes * dpar_transfer_volume(t);
            }
        }
        for (other = 0; other < ranks; other++) {
            const int64_t most = out[other] > in[other] ? out[other] : in[other];
            if (other == rank) {
                value[4] = out[other];
                continue;
            }
            value[0] += out[other] > 0;
            value[1] += most > 0;
            value[2] += out[other];
            value[3] += in[other];
            staging += (most + 127) / 128 * 128;
        }
        value[5] = 3 * staging;
        range[0] = &sum->messages;
        range[1] = &sum->peers;
        range[2] = &sum->sent;
        range[3] = &sum->received;
        range[4] = &sum->copied;
        range[5] = &sum->staging;
        for (k = 0; k < 6; k++) {
            if (rank == 0 || value[k] < range[k]->least) {
                range[k]->least = value[k];
                range[k]->least_rank = rank;
            }
            if (rank == 0 || value[k] > range[k]->most) {
                range[k]->most = value[k];
                range[k]->most_rank = rank;
            }
            range[k]->total += value[k];
        }
    }
}

static void check_report(const dpar_proof_report *got, const dpar_proof_report *sum)
{
    const dpar_proof_range *a = &got->messages, *b = &sum->messages;
    int k;
    CHECK_INT(got->ranks, sum->ranks);
    CHECK_INT(got->blocks, sum->blocks);
    CHECK_INT(got->transfers, sum->transfers);
    CHECK_INT(got->points, sum->points);
    for (k = 0; k < 6; k++) {
        CHECK_INT(a[k].least, b[k].least);
        CHECK_INT(a[k].most, b[k].most);
        CHECK_INT(a[k].total, b[k].total);
        CHECK_INT(a[k].least_rank, b[k].least_rank);
        CHECK_INT(a[k].most_rank, b[k].most_rank);
    }
}

/* Proves a grid with its own lists and with a copy of them, and checks the report. */
static void prove(const dpar_halo *h, int32_t ranks)
{
    dpar_proof_desc desc = desc_of();
    dpar_proof_report report, sum;
    dpar_status status;
    desc.point_bytes = 1 + below(40);
    case_walk(&lists, h, ranks);
    sum_lists(&sum, ranks, ranks, NULL, desc.point_bytes);
    status = dpar_proof_halo(h, &desc, &report, &why);
    CHECK_INT(status, DPAR_OK);
    if (status != DPAR_OK) {
        printf("%s\n", why.text);
        return;
    }
    check_report(&report, &sum);
    desc.next = case_next;
    desc.lists = &lists;
    memset(&report, 0, sizeof report);
    CHECK_INT(dpar_proof_halo(h, &desc, &report, &why), DPAR_OK);
    check_report(&report, &sum);
    desc.ranks = ranks;
    CHECK_INT(report.owners, 1);
    memset(&report, 0, sizeof report);
    CHECK_INT(dpar_proof_transfers(&desc, &report, &why), DPAR_OK);
    CHECK_INT(report.owners, 0);
    check_report(&report, &sum);
}

static void test_random(void)
{
    int trial, proved = 0, folds = 0, poles = 0, cubes = 0, masks = 0, windows = 0;
    dpar_halo h;
    for (trial = 0; trial < 4000; trial++) {
        int32_t owner[CASE_RANKS], i, d;
        if (!case_grid(&h)) {
            continue;
        }
        if (below(4) == 0) { /* each rank owns one block or none, and some blocks do not exist */
            for (i = 0; i < h.grid.mesh.size; i++) {
                owner[i] = below(4) == 0 ? -1 : h.grid.mesh.size - 1 - i;
            }
            owner[below(h.grid.mesh.size)] = h.grid.mesh.size;
            h.owner = owner;
            masks++;
        }
        prove(&h, h.owner == NULL ? h.grid.mesh.size : h.grid.mesh.size + 1);
        proved++;
        folds += h.folds;
        poles += h.poles != 0;
        cubes += h.cube;
        for (d = 0; d < h.grid.dims; d++) {
            windows += h.window[d].kernel != 0;
        }
    }
    CHECK(proved > 2000 && folds > 200 && poles > 200 && cubes > 60 && masks > 300 && windows > 60);
}

/* Proves the pairs of fields of a cubed sphere on faces of cells. */
static void test_cgrid(void)
{
    int trial;
    for (trial = 0; trial < 400; trial++) {
        const int32_t parts[3] = {1 + below(3), 1 + below(3), 1 + below(2)};
        const int64_t n = 1 + below(5), extent[3] = {6, n, n};
        const int32_t kind = 1 + below(2), pair = below(2);
        dpar_placement p[3];
        dpar_mesh mesh;
        dpar_halo h[2];
        int32_t d, k;
        for (d = 0; d < 3; d++) {
            p[d] = dpar_shard_by(d, DPAR_SPLIT_EVEN, 0);
        }
        memset(h, 0, sizeof h);
        CHECK_INT(dpar_mesh_init(&mesh, "a b c", parts, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        for (k = 0; k < 2; k++) {
            CHECK_INT(dpar_layout_init(&h[k].grid, &mesh, 3, extent, p, NULL), DPAR_OK);
            h[k].cube = 1;
            h[k].shape = below(3);
            h[k].points[k == pair ? 2 : 1] = kind;
            h[k].partner = &h[1 - k];
            for (d = 1; d < 3; d++) {
                h[k].low[d] = below((int)n + 1);
                h[k].high[d] = below((int)n + 1);
            }
        }
        prove(&h[0], mesh.size);
        prove(&h[1], mesh.size);
    }
}

/* Proves grids of which ranks own any number of blocks, and compares the report with sums over the
 * lists of the blocks. */
static void test_blocks(void)
{
    int trial, proved = 0;
    for (trial = 0; trial < 3000; trial++) {
        const int32_t ranks = 1 + below(5);
        int32_t owner[CASE_RANKS], i, direction;
        dpar_proof_desc desc = desc_of();
        dpar_proof_report report, sum;
        dpar_halo h;
        if (!case_grid(&h)) {
            continue;
        }
        case_walk(&lists, &h, h.grid.mesh.size);
        for (i = 0; i < h.grid.mesh.size; i++) {
            owner[i] = below(6) == 0 ? -1 : below(ranks);
        }
        for (i = 0; i < h.grid.mesh.size; i++) { /* without the blocks that do not exist */
            for (direction = 0; direction < 2; direction++) {
                int n, kept = 0;
                for (n = 0; n < lists.count[direction][i]; n++) {
                    if (owner[i] >= 0 && owner[lists.t[direction][i][n].peer] >= 0) {
                        lists.t[direction][i][kept++] = lists.t[direction][i][n];
                    }
                }
                lists.count[direction][i] = kept;
            }
        }
        desc.owner = owner;
        desc.ranks = ranks;
        desc.point_bytes = 16;
        sum_lists(&sum, ranks, h.grid.mesh.size, owner, 16);
        if (dpar_proof_halo(&h, &desc, &report, &why) != DPAR_OK) {
            CHECK(0);
            printf("%s\n", why.text);
            continue;
        }
        check_report(&report, &sum);
        desc.next = case_next;
        desc.lists = &lists;
        CHECK_INT(dpar_proof_halo(&h, &desc, &report, &why), DPAR_OK);
        check_report(&report, &sum);
        proved++;
    }
    CHECK(proved > 1500);
}

/* ---- planted faults -------------------------------------------------------------------------- */

/* Makes 3 x 4 ranks with a grid of 12 x 16 cells, of which dim 1 is periodic. */
static void plain_grid(dpar_halo *h)
{
    static const int32_t parts[2] = {3, 4};
    static const int64_t extent[2] = {12, 16};
    const dpar_placement p[2] = {dpar_shard(0), dpar_shard(1)};
    dpar_mesh mesh;
    memset(h, 0, sizeof *h);
    CHECK_INT(dpar_mesh_init(&mesh, "y x", parts, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&h->grid, &mesh, 2, extent, p, NULL), DPAR_OK);
    h->shape = DPAR_STENCIL_BOX;
    h->periodic = 2;
    h->low[0] = h->high[0] = h->low[1] = h->high[1] = 1;
}

static dpar_transfer *find(int direction, int rank, int peer)
{
    int n;
    for (n = 0; n < lists.count[direction][rank]; n++) {
        if (lists.t[direction][rank][n].peer == peer) {
            return &lists.t[direction][rank][n];
        }
    }
    CHECK(0);
    return &lists.t[0][0][0];
}

static void drop(int direction, int rank, const dpar_transfer *t)
{
    dpar_transfer *list = lists.t[direction][rank];
    int n = (int)(t - list);
    for (; n + 1 < lists.count[direction][rank]; n++) {
        list[n] = list[n + 1];
    }
    lists.count[direction][rank]--;
}

/* Proves the changed lists, which must fail with this message. Then restores them. */
static void refuted(const dpar_halo *h, const char *message)
{
    dpar_proof_desc desc = desc_of();
    dpar_proof_report report, untouched;
    memset(&report, 77, sizeof report);
    memset(&untouched, 77, sizeof untouched);
    desc.next = case_next;
    desc.lists = &lists;
    expect(dpar_proof_halo(h, &desc, &report, &why), DPAR_E_MISMATCH, message);
    CHECK(memcmp(&report, &untouched, sizeof report) == 0);
    case_walk(&lists, h, 12);
}

static void test_partners(void)
{
    dpar_transfer *send, *receive, other;
    dpar_halo h;
    int n;
    plain_grid(&h);
    case_walk(&lists, &h, 12);
    send = find(DPAR_TRANSFER_SEND, 1, 5);
    receive = find(DPAR_TRANSFER_RECV, 5, 1);

    drop(DPAR_TRANSFER_SEND, 1, send);
    refuted(&h, "partner: receive 0 of rank 5 from rank 1 (1 x 4 points) has no send");
    drop(DPAR_TRANSFER_RECV, 5, receive);
    refuted(&h, "missing: point (3, 4) of rank 5, an image of point (3, 4), is not received");
    drop(DPAR_TRANSFER_RECV, 5, receive); /* also with a walk of all that does not know a grid */
    {
        dpar_proof_desc desc = desc_of();
        dpar_proof_report report;
        desc.next = case_next;
        desc.lists = &lists;
        desc.ranks = 12;
        expect(dpar_proof_transfers(&desc, &report, &why), DPAR_E_MISMATCH,
               "partner: send 0 of rank 1 to rank 5 (1 x 4 points) has no receive");
    }
    case_walk(&lists, &h, 12);
    send->extent[1] = 5;
    refuted(&h, "partner: send 0 of rank 1 to rank 5 has 1 x 5 points, but its receive has 1 x 4");
    receive->extent[1] = 3;
    refuted(&h, "partner: send 0 of rank 1 to rank 5 has 1 x 4 points, but its receive has 1 x 3");
    send->mine[0]--;
    refuted(&h, "partner: send 0 of rank 1 to rank 5 reads from (3, 1), but its receive expects (4, 1)");
    send->theirs[1]++;
    refuted(&h, "partner: send 0 of rank 1 to rank 5 writes to (0, 2), but its receive writes to (0, 1)");
    send->flip = 2;
    refuted(&h, "partner: send 0 of rank 1 to rank 5 has other dims, flip, swap, turn or op");
    send->op = DPAR_SUM;
    refuted(&h, "partner: send 0 of rank 1 to rank 5 has other dims, flip, swap, turn or op");
    send->turn = 2;
    refuted(&h, "partner: send 0 of rank 1 to rank 5 has other dims, flip, swap, turn or op");

    /* Two ranks in a ring send each other two columns, in the order of the receiver. */
    h.shape = DPAR_STENCIL_STAR;
    {
        static const int32_t parts[2] = {1, 2};
        static const int64_t extent[2] = {4, 6};
        const dpar_placement p[2] = {dpar_shard(0), dpar_shard(1)};
        dpar_mesh mesh;
        CHECK_INT(dpar_mesh_init(&mesh, "y x", parts, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&h.grid, &mesh, 2, extent, p, NULL), DPAR_OK);
    }
    h.low[0] = h.high[0] = 0;
    case_walk(&lists, &h, 2);
    CHECK_INT(lists.count[DPAR_TRANSFER_SEND][0], 2);
    other = lists.t[DPAR_TRANSFER_SEND][0][0];
    lists.t[DPAR_TRANSFER_SEND][0][0] = lists.t[DPAR_TRANSFER_SEND][0][1];
    lists.t[DPAR_TRANSFER_SEND][0][1] = other;
    {
        dpar_proof_desc desc = desc_of();
        dpar_proof_report report;
        desc.next = case_next;
        desc.lists = &lists;
        expect(dpar_proof_halo(&h, &desc, &report, &why), DPAR_E_MISMATCH,
               "partner: send 0 of rank 0 to rank 1 reads from (0, 1), but its receive expects (0, 3)");
        lists.t[DPAR_TRANSFER_SEND][0][1] = lists.t[DPAR_TRANSFER_SEND][0][0];
        lists.t[DPAR_TRANSFER_SEND][0][0] = other; /* a third send, to a rank that receives two */
        lists.t[DPAR_TRANSFER_SEND][0][lists.count[DPAR_TRANSFER_SEND][0]++] = other;
        expect(dpar_proof_halo(&h, &desc, &report, &why), DPAR_E_MISMATCH,
               "partner: send 2 of rank 0 to rank 1 (4 x 1 points) has no receive");
        lists.t[DPAR_TRANSFER_SEND][0][2].peer = 2;
        expect(dpar_proof_halo(&h, &desc, &report, &why), DPAR_E_ARG, "rank 0, send 2: peer is 2 of 2");
        for (n = 0; n < 4; n++) {
            lists.t[DPAR_TRANSFER_SEND][0][2] = other;
            lists.t[DPAR_TRANSFER_SEND][0][2].extent[0] -= n == 0 ? 4 : 0;
            lists.t[DPAR_TRANSFER_SEND][0][2].mine[0] -= n == 1 ? 1 : 0;
            lists.t[DPAR_TRANSFER_SEND][0][2].dims += n == 2 ? 1 : 0;
            lists.t[DPAR_TRANSFER_SEND][0][2].swap[1] = n == 3 ? 2 : 0;
            expect(dpar_proof_halo(&h, &desc, &report, &why), DPAR_E_ARG, "rank 0, send 2: ");
        }
    }
}

/* Faults that are the same in both lists, so that each message has its partner. */
static void test_owners(void)
{
    dpar_transfer *send, *receive;
    dpar_halo h;
    plain_grid(&h);
    case_walk(&lists, &h, 12);
    send = find(DPAR_TRANSFER_SEND, 1, 5);
    receive = find(DPAR_TRANSFER_RECV, 5, 1);

    send->mine[0] = receive->theirs[0] = 3; /* the row before the one next to the neighbour */
    refuted(&h, "owner: point (3, 4) of rank 5 is received from rank 1, which sends point (2, 4) in "
                "place of (3, 4)");
    send->theirs[0] = receive->mine[0] = 1;
    refuted(&h, "owner: point (4, 4) of rank 5 is received from rank 1, but it is not a halo point");
    send->extent[0] = receive->extent[0] = 2;
    refuted(&h, "owner: point (3, 4) of rank 5 is received from rank 1, and 2 points of dim 0 with it");
    send->flip = receive->flip = 2;
    refuted(&h, "owner: point (3, 4) of rank 5 is received from rank 1, which sends point (3, 7)");
    send->turn = receive->turn = 2;
    refuted(&h, "owner: point (3, 4) of rank 5 is received from rank 1, after 2 quarter turns");
    send->op = receive->op = DPAR_SUM;
    refuted(&h, "owner: a receive of rank 5 has op 1, but halo cells must be copied");
    send->swap[1] = receive->swap[1] = 1;
    refuted(&h, "owner: point (3, 4) of rank 5 is received from rank 1, and 4 points of dim 0");

    /* Rank 2 sends to rank 5 what rank 1 should: its halo has the same points. */
    send->extent[1] = receive->extent[1] = 1;
    send->mine[1] = receive->theirs[1] = 4;
    send->theirs[1] = receive->mine[1] = 4;
    refuted(&h, "missing: point (3, 4) of rank 5");
    drop(DPAR_TRANSFER_SEND, 1, send);
    receive->peer = 0;
    receive->extent[1] = 1;
    receive->theirs[1] = 5; /* the halo of rank 0 holds (3, 4), the first point */
    lists.t[DPAR_TRANSFER_SEND][0][lists.count[DPAR_TRANSFER_SEND][0]] = *send;
    {
        dpar_transfer *t = &lists.t[DPAR_TRANSFER_SEND][0][lists.count[DPAR_TRANSFER_SEND][0]++];
        *t = *receive;
        t->peer = 5;
        memcpy(t->mine, receive->theirs, sizeof t->mine);
        memcpy(t->theirs, receive->mine, sizeof t->theirs);
        drop(DPAR_TRANSFER_RECV, 5, receive);
        lists.t[DPAR_TRANSFER_RECV][5][lists.count[DPAR_TRANSFER_RECV][5]] = *t;
        t = &lists.t[DPAR_TRANSFER_RECV][5][lists.count[DPAR_TRANSFER_RECV][5]++];
        t->peer = 0;
        memcpy(t->mine, lists.t[DPAR_TRANSFER_SEND][0][lists.count[DPAR_TRANSFER_SEND][0] - 1].theirs, sizeof t->mine);
        memcpy(t->theirs, lists.t[DPAR_TRANSFER_SEND][0][lists.count[DPAR_TRANSFER_SEND][0] - 1].mine, sizeof t->mine);
    }
    refuted(&h, "owner: point (3, 4) of rank 5 is received from rank 0, which does not own the point "
                "(3, 4) that it sends");

    /* The same box twice. */
    lists.t[DPAR_TRANSFER_SEND][1][lists.count[DPAR_TRANSFER_SEND][1]++] = *send;
    lists.t[DPAR_TRANSFER_RECV][5][lists.count[DPAR_TRANSFER_RECV][5]++] = *receive;
    refuted(&h, "twice: index (0, 1) of the array of rank 5 is received from rank 1 and from rank 1");

    /* Both lists without the box. */
    drop(DPAR_TRANSFER_SEND, 1, send);
    drop(DPAR_TRANSFER_RECV, 5, receive);
    refuted(&h, "missing: point (3, 4) of rank 5, an image of point (3, 4), is not received");

    /* A star is given where the box is wanted: corners are missing. */
    h.shape = DPAR_STENCIL_STAR;
    case_walk(&lists, &h, 12);
    h.shape = DPAR_STENCIL_BOX;
    refuted(&h, "missing: point (4, -1) of rank 0, an image of point (4, 15), is not received");
}

/* Checks the text of a report, memory that is too small, and cancelling. */
static int calls;
static int cancel(void *context, int64_t done, int64_t total)
{
    calls++;
    CHECK(context == &calls && done > 0 && done <= total);
    return done == total;
}

static void test_report(void)
{
    static const char expected[] =
        "PROVED for 12 ranks: 72 transfers of 192 points.\n"
        "Each send has its receive, with the same bytes.\nEach point that is due comes once, from its owner.\n";
    static char text[2000];
    dpar_proof_desc desc = desc_of();
    dpar_proof_report report;
    dpar_text out;
    dpar_halo h;
    int64_t bytes;
    plain_grid(&h);
    CHECK_INT(dpar_proof_halo(&h, &desc, &report, &why), DPAR_OK);
    dpar_text_init(&out, text, sizeof text);
    dpar_proof_draw(&report, &out);
    CHECK(strncmp(text, expected, strlen(expected)) == 0);
    CHECK(strstr(text, "\n  bytes sent                     112          160  rank 4 ") != NULL);
    dpar_proof_draw(NULL, &out);
    desc.owner = NULL;
    desc.progress = cancel;
    desc.context = &calls;
    CHECK_INT(dpar_proof_halo(&h, &desc, &report, &why), DPAR_MORE);
    CHECK_INT(calls, 1);
    desc.progress = NULL;
    for (bytes = 0, calls = 0; calls < 40; calls++) { /* each failure names a size to try */
        desc.bytes = bytes;
        if (dpar_proof_halo(&h, &desc, &report, &why) == DPAR_OK) {
            break;
        }
        CHECK(why.bytes > bytes);
        bytes = why.bytes;
    }
    desc.bytes = sizeof proof_memory;
    CHECK(calls > 0 && calls < 10 && bytes < (int64_t)sizeof proof_memory);
    h.low[0] = -1;
    CHECK_INT(dpar_proof_halo(&h, &desc, &report, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_proof_halo(NULL, &desc, &report, &why), DPAR_E_ARG);
    CHECK_INT(dpar_proof_halo(&h, NULL, &report, &why), DPAR_E_ARG);
    CHECK_INT(dpar_proof_transfers(&desc, &report, &why), DPAR_E_ARG);
    h.low[0] = 1;
    {
        int32_t owner[12] = {0, 0, 1, 1, 2, 2, 0, 1, 2, 0, 1, 3};
        desc.owner = owner;
        desc.ranks = 3;
        expect(dpar_proof_halo(&h, &desc, &report, &why), DPAR_E_ARG, "owner[11] is 3, but must be -1 to 2");
        owner[11] = -2;
        expect(dpar_proof_halo(&h, &desc, &report, &why), DPAR_E_ARG, "owner[11] is -2: must be a rank or -1");
    }
    desc.owner = NULL; /* a message of 2^62 bytes */
    desc.point_bytes = INT64_MAX / 16;
    expect(dpar_proof_halo(&h, &desc, &report, &why), DPAR_E_RANGE, "the bytes of ranks 0 to 0 exceed 2^63 - 1");
    desc.point_bytes = -1;
    CHECK_INT(dpar_proof_halo(&h, &desc, &report, &why), DPAR_E_ARG);
}

/* Proves 4096 ranks with memory for the lists of a few of them only, and with much memory. */
static void test_little_memory(void)
{
    static const int32_t parts[2] = {64, 64};
    static const int64_t extent[2] = {130, 200};
    const dpar_placement p[2] = {dpar_shard(0), dpar_shard(1)};
    dpar_proof_desc desc = desc_of();
    dpar_proof_report report[2];
    dpar_mesh mesh;
    dpar_halo h;
    plain_grid(&h);
    CHECK_INT(dpar_mesh_init(&mesh, "y x", parts, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&h.grid, &mesh, 2, extent, p, NULL), DPAR_OK);
    CHECK_INT(dpar_proof_halo(&h, &desc, &report[0], &why), DPAR_OK);
    desc.bytes = 42000;
    CHECK_INT(dpar_proof_halo(&h, &desc, &report[1], &why), DPAR_OK);
    check_report(&report[0], &report[1]);
    CHECK_INT(report[0].ranks, 4096);
}

int main(void)
{
    random_seed = 5;
    test_random();
    test_cgrid();
    test_blocks();
    test_partners();
    test_owners();
    test_report();
    test_little_memory();
    CHECK_DONE();
}
