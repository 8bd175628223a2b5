/* SPDX-License-Identifier: MIT-0 */
/* Tests proof_points: proves random exchanges by index lists, made from owners and ids, and compares
 * the report with sums over them; plants faults. Run with: tests/run test proof. */
#include "dpar_proof.h"

#include "proof_cases.h"

enum { RANKS = 6, IDS = 200, GHOSTS = 40 };

/* The lists of all ranks. */
static int64_t own_count[RANKS], ghost_count[RANKS], id[RANKS][IDS + GHOSTS];
static int32_t peer_count[RANKS], peer[RANKS][RANKS], send_index[RANKS][RANKS * GHOSTS],
    receive_index[RANKS][GHOSTS];
static int64_t send_count[RANKS][RANKS], receive_count[RANKS][RANKS];
static int with_ids, unsent, ordered;
static dpar_why why;

static void index_of(void *lists, int32_t rank, dpar_proof_index *index)
{
    CHECK(lists == &ordered);
    index->own_count = own_count[rank];
    index->ghost_count = ghost_count[rank];
    index->peer_count = peer_count[rank];
    index->peer = peer[rank];
    index->send_count = send_count[rank];
    index->receive_count = receive_count[rank];
    index->send_index = send_index[rank];
    index->receive_index = ordered ? NULL : receive_index[rank];
    index->id = with_ids ? id[rank] : NULL;
    index->unsent_ghosts = unsent;
}

/* Makes random owners of ids, and ghosts that each rank needs. Ghosts are in the order of their
 * owners if `ordered` is set. */
static void make(int32_t ranks)
{
    int32_t owner[IDS], place[IDS], rank, r, i, k;
    memset(own_count, 0, sizeof own_count);
    for (i = 0; i < IDS; i++) {
        owner[i] = below(ranks);
        place[i] = (int32_t)own_count[owner[i]];
        id[owner[i]][own_count[owner[i]]++] = 1000 + i;
    }
    for (rank = 0; rank < ranks; rank++) {
        ghost_count[rank] = 0;
        for (i = 0; i < IDS && ghost_count[rank] < GHOSTS; i++) {
            if (owner[i] != rank && below(4) == 0) {
                id[rank][own_count[rank] + ghost_count[rank]++] = 1000 + i;
            }
        }
        for (i = (int32_t)ghost_count[rank] - 1; i > 0; i--) { /* in random order */
            int64_t *g = &id[rank][own_count[rank]], was = g[i];
            k = below(i + 1);
            g[i] = g[k];
            g[k] = was;
        }
        for (i = 0; ordered && i < ghost_count[rank]; i++) {
            for (k = i; k > 0; k--) {
                int64_t *g = &id[rank][own_count[rank] + k], was = g[0];
                if (owner[g[-1] - 1000] <= owner[g[0] - 1000]) {
                    break;
                }
                g[0] = g[-1];
                g[-1] = was;
            }
        }
    }
    for (rank = 0; rank < ranks; rank++) {
        int sends = 0, receives = 0;
        peer_count[rank] = ranks;
        for (r = 0; r < ranks; r++) {
            peer[rank][r] = r;
            send_count[rank][r] = receive_count[rank][r] = 0;
            for (k = 0; k < ghost_count[rank]; k++) {
                if (owner[id[rank][own_count[rank] + k] - 1000] == r) {
                    receive_index[rank][receives++] = (int32_t)own_count[rank] + k;
                    receive_count[rank][r]++;
                }
            }
            for (k = 0; k < ghost_count[r]; k++) {
                const int64_t which = id[r][own_count[r] + k] - 1000;
                if (owner[which] == rank) {
                    send_index[rank][sends++] = place[which];
                    send_count[rank][r]++;
                }
            }
        }
    }
}

static dpar_status prove(int32_t ranks, dpar_proof_report *report)
{
    dpar_proof_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.memory = proof_memory;
    desc.bytes = 64;
    desc.ranks = ranks;
    desc.point_bytes = 24;
    why.text[0] = 0;
    desc.index_of = index_of;
    desc.lists = &ordered;
    return dpar_proof_points(&desc, report, &why);
}

static void test_random(void)
{
    int trial;
    for (trial = 0; trial < 1000; trial++) {
        const int32_t ranks = 1 + below(RANKS);
        dpar_proof_report report;
        int64_t ghosts = 0, most = 0, sent = 0;
        int32_t rank, r;
        with_ids = below(2);
        ordered = below(2);
        make(ranks);
        CHECK_INT(prove(ranks, &report), DPAR_OK);
        for (rank = 0; rank < ranks; rank++) {
            ghosts += ghost_count[rank];
            for (r = 0, sent = 0; r < ranks; r++) {
                sent += 24 * send_count[rank][r];
            }
            most = sent > most ? sent : most;
        }
        CHECK_INT(report.points, ghosts);
        CHECK_INT(report.sent.total, 24 * ghosts);
        CHECK_INT(report.received.total, 24 * ghosts);
        CHECK_INT(report.sent.most, most);
        CHECK_INT(report.copied.total, 0);
        CHECK_INT(report.ranks, ranks);
        CHECK_INT(report.owners, with_ids || ghosts == 0);
    }
}

static void refuted(dpar_status status, const char *message)
{
    dpar_proof_report report;
    CHECK_INT(prove(3, &report), status);
    if (strncmp(why.text, message, strlen(message)) != 0) {
        CHECK(0);
        printf("message: %s\nexpected: %s\n", why.text, message);
    }
    random_seed = 11;
    make(3);
}

static void test_faults(void)
{
    char text[200];
    with_ids = 1;
    ordered = unsent = 0;
    random_seed = 11;
    make(3);
    receive_count[1][0]--;
    snprintf(text, sizeof text, "partner: rank 1 receives %d values from rank 0, which sends %d",
             (int)receive_count[1][0], (int)receive_count[1][0] + 1);
    refuted(DPAR_E_MISMATCH, text);
    receive_index[1][3] = receive_index[1][0];
    snprintf(text, sizeof text, "twice: rank 1 receives local index %d a second time, from rank 0",
             (int)receive_index[1][0]);
    refuted(DPAR_E_MISMATCH, text);
    receive_index[1][0] = 0;
    refuted(DPAR_E_MISMATCH, "owner: rank 1 receives local index 0 from rank 0, but its ghosts are ");
    send_index[2][0] = (int32_t)own_count[2];
    refuted(DPAR_E_MISMATCH, "owner: rank 2 sends its local index ");
    send_index[2][0] = (send_index[2][0] + 1) % (int32_t)own_count[2];
    refuted(DPAR_E_MISMATCH, "owner: rank 0 receives id ");
    ghost_count[2]++;
    refuted(DPAR_E_MISMATCH, "missing: rank 2 does not receive local index ");
    ghost_count[2]++;
    unsent = 1;
    refuted(DPAR_OK, "");
    unsent = 0;
    peer_count[2] = 2; /* rank 2 sends nothing to itself, so this is the same exchange */
    refuted(DPAR_OK, "");
    peer[1][2] = 0;
    refuted(DPAR_E_ARG, "rank 1 lists peer 0 twice");
    peer[1][2] = 3;
    refuted(DPAR_E_ARG, "rank 1: peer 3 of 3 ranks");
    peer_count[1] = 0; /* rank 1 receives nothing, but the others send to it */
    ghost_count[1] = 0;
    refuted(DPAR_E_MISMATCH, "partner: rank 0 receives ");
    peer_count[2] = 0;
    ghost_count[2] = 0;
    receive_count[0][2] = receive_count[1][2] = 0;
    with_ids = 0;
    unsent = 1;
    snprintf(text, sizeof text, "partner: rank 0 sends %d values to rank 2, which receives none", (int)send_count[0][2]);
    refuted(DPAR_E_MISMATCH, text);
    own_count[0] = -1;
    refuted(DPAR_E_ARG, "rank 0 has -1 own values");
}

int main(void)
{
    random_seed = 9;
    test_random();
    test_faults();
    CHECK_DONE();
}
