/* SPDX-License-Identifier: MIT-0 */
/* A mismatch: one of four ranks has one batch fewer, and all ranks get an error. */
#include "pictures.h"
#include "dpar_comm.h"
#include <stdio.h>
#include <string.h>

enum { RANKS = 4, CALLS = 4, ODD = 2 };

/* For each rank: its calls, their statuses, and its last error message. */
static struct {
    int32_t call[CALLS];
    dpar_status status[CALLS];
    char told[400];
} lane[RANKS];

/* Three batches; rank ODD has data for two. Ranks are threads, so that all can fill `lane`. */
static int three_batches(dpar_comm *world, void *unused)
{
    const int32_t batches = world->rank == ODD ? 2 : 3;
    float x[4] = {0};
    int32_t k;
    (void)unused;
    for (k = 0; k < CALLS; k++) {
        dpar_status st;
        int32_t what = DPAR_CALL_ALL_REDUCE;
        if (k == 0) {
            what = DPAR_CALL_BROADCAST;
            st = dpar_broadcast(world, x, 4, DPAR_F32, 0, NULL);
        } else if (k <= batches) {
            st = dpar_all_reduce(world, x, x, 4, DPAR_F32, DPAR_SUM, NULL);
        } else {
            what = DPAR_CALL_BARRIER;
            st = dpar_barrier(world, NULL);
        }
        lane[world->rank].call[k] = what;
        lane[world->rank].status[k] = st;
    }
    snprintf(lane[world->rank].told, sizeof lane[0].told, "%s", world->why.text);
    return 0;
}

/* Lists the ranks whose last call differs from the last call of `rank`. */
static void waits_for(int rank, char *line, size_t bytes)
{
    size_t at = (size_t)snprintf(line, bytes, "waits for rank%s", rank == ODD ? "s" : "");
    int k;
    for (k = 0; k < RANKS; k++) {
        if (lane[k].call[CALLS - 1] != lane[rank].call[CALLS - 1]) {
            at += (size_t)snprintf(line + at, bytes - at, " %d", k);
        }
    }
}

int draw_trouble(dpar_text *t, dpar_why *why)
{
    dpar_world_desc o = {0};
    const char *said;
    char line[200];
    int rank, k;
    o.threads = 1;
    if (dpar_launch(RANKS, three_batches, NULL, &o, why) < 0) {
        return 1;
    }
    page(t, 860, 296, "rank 2 has one batch fewer");
    for (rank = 0; rank < RANKS; rank++) {
        const int y = 46 + 50 * rank;
        snprintf(line, sizeof line, "rank %d", rank);
        word(t, 16, y + 25, line);
        for (k = 0; k < CALLS; k++) {
            const dpar_status st = lane[rank].status[k];
            box(t, 80 + 150 * k, y, 144, 42, st >= 0 ? pale[2] : rank == ODD ? pale[5] : pale[1]);
            snprintf(line, sizeof line, "%s #%d", dpar_call_name(lane[rank].call[k]), k + 1);
            centred(t, 152 + 150 * k, y + 18, 0, line);
            centred(t, 152 + 150 * k, y + 34, 1, st >= 0 ? "done" : "E_MISMATCH");
        }
        waits_for(rank, line, sizeof line);
        word(t, 690, y + 25, line);
    }
    said = strstr(lane[0].told, "rank 2 called"); /* the other rank in it may be any */
    if (lane[0].status[CALLS - 1] != DPAR_E_MISMATCH || said == NULL) {
        snprintf(why->text, sizeof why->text, "unexpected error on rank 0: %.100s", lane[0].told);
        return 1;
    }
    snprintf(line, sizeof line, "All ranks get E_MISMATCH (%s) and a message",
             dpar_status_text(DPAR_E_MISMATCH));
    word(t, 80, 266, line);
    snprintf(line, sizeof line, "that names both calls: ... %.*s ...", (int)strcspn(said, ","),
             said);
    word(t, 80, 284, line);
    return 0;
}
