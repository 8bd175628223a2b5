/* SPDX-License-Identifier: MIT-0 */
/* Tests halo_check: halos that are deliberately wrong are found, with a message that names the
 * place; right ones are not reported; only halos change. Also tests the report's table.
 * (halo_oracle, halo_exchange and halo_cgrid check every kind of exchange.)
 *     ./halo_check [processes|threads] [ranks]        without arguments: both, 1 to 8 and 1 to 4 */
#include "dpar_debug.h"
#include "rank_program.h"
#include "halo_grid.h"

/* ---- stale, wrong ---------------------------------------------------------------------------- */

/* Checks rows of faces between blocks, with rank 0's copy of rank 1's first face spoiled. */
static void sentence(dpar_comm *c)
{
    const int64_t extent[2] = {3 * (int64_t)c->size, 3};
    dpar_halo h;
    dpar_halo_field f[2];
    dpar_halo_plan_desc o;
    dpar_halo_plan *x;
    dpar_box own, all;
    double at[2][20 * 3];
    char word[100];
    dpar_why why;
    void *memory;
    int i;
    memset(&h, 0, sizeof h);
    memset(f, 0, sizeof f);
    f[0].type = f[1].type = DPAR_F64;
    memset(&o, 0, sizeof o);
    h.grid = grid_of(2, extent, c->size, 1);
    h.points[0] = DPAR_HALO_AT_LOW_FACES;
    h.high[0] = 1;
    o.shared = 1;
    for (i = 0; i < 60; i++) {
        at[0][i] = at[1][i] = 1.25;
    }
    for (i = 0; i < 2; i++) {
        f[i].halo = &h;
        f[i].data = at[i];
    }
    x = plan_of(c, f, 2, &o, &memory);
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_STALE, &why), DPAR_OK);
    CHECK(dpar_halo_owned(&h, c->rank, &own) && dpar_halo_box(&h, c->rank, &all));
    if (c->rank == 0 && c->size > 1) {
        at[1][own.hi[0] * 3 + 2] = 1.5;
    }
    if (c->size > 1) {
        CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_STALE, &why), DPAR_E_MISMATCH);
        CHECK_INT(dpar_broadcast(c, &own.hi[0], 1, DPAR_I64, 0, NULL), DPAR_OK);
        (void)snprintf(word, sizeof word,
                       "field 1, point (%d, 2) component 0 of rank 0 is 1.5; its owner, rank 1, "
                       "has 1.25",
                       (int)own.hi[0]);
        CHECK(strcmp(why.text, word) == 0);
        if (c->rank == 1 && c->size > 2) { /* an earlier field comes first, on any rank */
            at[0][3 * 3] = -2;             /* its copy of the first of rank 2 */
        }
        CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_STALE, &why), DPAR_E_MISMATCH);
        CHECK(strncmp(why.text, c->size > 2 ? "field 0" : "field 1", 7) == 0);
        CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_WRONG, &why), DPAR_E_MISMATCH);
        if (c->size == 2) {
            (void)snprintf(word, sizeof word,
                           "field 1, point (%d, 2) component 0 of rank 0 is 1.5; its owner's, "
                           "point (%d, 2) is 1.25",
                           (int)own.hi[0], (int)own.hi[0]);
            CHECK(strcmp(why.text, word) == 0);
        }
        CHECK(c->rank != 0 || at[1][own.hi[0] * 3 + 2] == 1.5); /* nothing was repaired */
        CHECK_INT(dpar_halo_plan_exchange(x), DPAR_OK);         /* the owner's value wins */
        CHECK(c->rank != 0 || at[1][own.hi[0] * 3 + 2] == 1.25);
    }
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_STALE, NULL), DPAR_OK);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
}

/* ---- poison ---------------------------------------------------------------------------------- */

/* Returns 1 for rows 0 and 3, which are halo. */
static int is_halo(int k)
{
    return k / COLUMNS == 0 || k / COLUMNS == 3;
}

/* Checks that halos are NaN, or all bits of an integer set, and own cells unchanged. The first one
 * is found while it is there, and an exchange leaves none. */
static void poison(dpar_comm *c)
{
    const dpar_halo h = two_rows(c);
    double at[4 * COLUMNS];
    int32_t whole[4 * COLUMNS];
    dpar_halo_field f[2];
    dpar_halo_plan *x;
    dpar_why why;
    char word[100];
    void *memory;
    int k;
    memset(f, 0, sizeof f);
    f[0].halo = f[1].halo = &h;
    f[0].type = DPAR_F64;
    f[0].data = at;
    f[1].type = DPAR_I32;
    f[1].data = whole;
    for (k = 0; k < 4 * COLUMNS; k++) {
        at[k] = whole[k] = is_halo(k) ? 77 : 1 + k;
    }
    x = plan_of(c, f, 2, NULL, &memory);
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why), DPAR_OK);
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_POISON, &why), DPAR_OK);
    for (k = 0; k < 4 * COLUMNS; k++) {
        CHECK(is_halo(k) ? at[k] != at[k] && whole[k] == -1 : at[k] == 1 + k && whole[k] == 1 + k);
    }
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why), DPAR_E_ARG);
    CHECK(strncmp(why.text, "field 0, point (", 16) == 0);
    CHECK_INT(dpar_halo_plan_exchange(x), DPAR_OK);
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why), DPAR_OK);
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_WRONG, &why), DPAR_OK);
    for (k = 0; k < 4 * COLUMNS;
         k++) { /* the same on all ranks: rows 3, 1, 2, 3 -> own 2, 1, 2, 1 */
        const int from = k < COLUMNS ? k + 2 * COLUMNS : k >= 3 * COLUMNS ? k - 2 * COLUMNS : k;
        CHECK(at[k] == 1 + from && whole[k] == 1 + from);
    }
    at[3 * COLUMNS + 5] = (double)NAN; /* only one, on this rank */
    (void)snprintf(word, sizeof word, "point (%d, 5) component 0 of rank %d",
                   (int)(2 * c->rank + 2), (int)c->rank);
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, word) != NULL);
    at[3 * COLUMNS + 5] = 1 + COLUMNS + 5;
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why), DPAR_OK);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
}

/* ---- what is refused, what is reported ------------------------------------------------------- */

static void refused(dpar_halo_plan *x, int32_t what, const char *word)
{
    dpar_why why;
    why.text[0] = 0;
    CHECK_INT(dpar_halo_plan_check(x, what, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, word) != NULL);
    CHECK_INT(dpar_halo_plan_check(x, what, NULL), DPAR_E_ARG);
}

/* Each rank r sends a row to each of its neighbours, or both rows to its only one, and copies its
 * own rows. */
static void refusals_and_report(dpar_comm *c)
{
    const dpar_halo h = two_rows(c);
    double at[4 * COLUMNS];
    char page[2000], small[8] = "";
    dpar_halo_field f;
    dpar_halo_plan *x;
    dpar_text t;
    void *memory;
    const char *line;
    int32_t what, lines = 0, whole = 0;
    memset(&f, 0, sizeof f);
    memset(at, 0, sizeof at);
    f.halo = &h;
    f.type = DPAR_F64;
    f.data = at;
    for (what = DPAR_HALO_POISON; what <= DPAR_HALO_WRONG; what++) {
        refused(NULL, what, "the plan is NULL");
        refused(NULL, what, "NULL");
    }
    x = plan_of(c, &f, 1, NULL, &memory);
    refused(x, 0,
            "dpar_halo_plan_check: check 0 does not exist; use DPAR_HALO_POISON (1) to "
            "DPAR_HALO_WRONG (4)");
    refused(x, DPAR_HALO_WRONG + 1, "check 5 does not exist");
    CHECK_INT(dpar_halo_plan_begin(x), DPAR_OK);
    for (what = DPAR_HALO_POISON; what <= DPAR_HALO_WRONG; what++) {
        refused(x, what, "dpar_halo_plan_check: halo exchange 1 has not ended");
    }
    CHECK_INT(dpar_halo_plan_end(x), DPAR_OK);
    dpar_text_init(&t, small, sizeof small);
    dpar_halo_plan_report(NULL, &t);
    dpar_halo_plan_report(x, NULL);
    CHECK(small[0] == 0);
    dpar_text_init(&t, page, sizeof page);
    dpar_halo_plan_report(x, &t);
    CHECK(strncmp(page, "halo exchange of rank ", 22) == 0 && atoi(page + 22) == c->rank);
    CHECK(strstr(page, ", 1 field\n") != NULL && strstr(page, "\n  1 exchanges\n") != NULL);
    line = strchr(strchr(page, '\n') + 1, '\n');
    for (; strstr(line, " exchanges") != line + 4; line = strchr(line + 1, '\n'), lines++) {
        int peer = -1, hops = -1, pieces = -1, bytes = -1;
        char way[12];
        CHECK_INT(sscanf(line, "%d %11s %d %d %d", &peer, way, &hops, &pieces, &bytes), 5);
        CHECK(c->size == 1 ? peer == 0 && strcmp(way, "copy") == 0
                           : (peer - c->rank + c->size) % c->size == 1 ||
                                 (c->rank - peer + c->size) % c->size == 1);
        CHECK(c->size == 1 || hops == 1);
        whole += bytes;
    }
    CHECK_INT(lines, c->size > 2 ? 2 : 1);
    CHECK_INT(whole, 2 * COLUMNS * 8);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
}

/* Checks how a field in this memory is sent to peers that share memory, and the line that states
 * why it is packed. */
static void travels(dpar_comm *c, void *at, int is_packed)
{
    const dpar_halo h = two_rows(c);
    dpar_halo_plan_desc o;
    dpar_halo_field f;
    dpar_halo_plan *x;
    char page[2000], way[12];
    const char *line;
    int packed = 0, direct = 0, says;
    dpar_text t;
    void *memory;
    memset(&f, 0, sizeof f);
    memset(&o, 0, sizeof o);
    f.halo = &h;
    f.type = DPAR_F64;
    f.data = at;
    o.method = DPAR_HALO_DIRECT;
    o.run_bytes = 8;
    x = plan_of(c, &f, 1, &o, &memory);
    dpar_text_init(&t, page, sizeof page);
    dpar_halo_plan_report(x, &t);
    for (line = strchr(page, '\n'); line != NULL; line = strchr(line + 1, '\n')) {
        if (sscanf(line, "%*d %11s %*d %*d %*d %*d %*d", way) == 1) {
            packed += strcmp(way, "packed") == 0;
            direct += strcmp(way, "direct") == 0;
        }
    }
    says = strstr(page, "\n  field 0 is packed: it is not in memory of dpar_comm_alloc of this "
                        "communicator\n") != NULL;
    CHECK((is_packed ? direct : packed) == 0);
    CHECK_INT(says, packed > 0);
    CHECK(c->engine.name[0] == 'm' || c->size == 1 || packed + direct > 0);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
}

static void memories(dpar_comm *c)
{
    const int shares = c->engine.name[0] == 's'; /* threads share all memory */
    dpar_comm *other = NULL;
    char about[300];
    dpar_text t;
    void *at = NULL;
    dpar_text_init(&t, about, sizeof about);
    dpar_comm_describe(c, &t);
    CHECK_INT(dpar_comm_alloc(c, 4 * COLUMNS * 8, &at), DPAR_OK);
    travels(c, at, 0);
    dpar_comm_release(c, at);
    CHECK_INT(dpar_comm_split(c, 0, -c->rank, &other), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(other, 4 * COLUMNS * 8, &at), DPAR_OK);
    travels(c, at, 0);
    dpar_comm_release(other, at);
    CHECK_INT(dpar_comm_free(other), DPAR_OK);
    at = zeroed(4 * COLUMNS * 8);
    travels(c, at, !shares || strstr(about, "threads") == NULL);
    free(at);
#ifdef USE_MPI
    CHECK_INT(dpar_mpi_make(MPI_COMM_WORLD, NULL, &other, NULL), DPAR_OK); /* a world of its own */
    CHECK_INT(dpar_comm_alloc(other, 4 * COLUMNS * 8, &at), DPAR_OK);
    travels(c, at, 1);
    dpar_comm_release(other, at);
    CHECK_INT(dpar_comm_free(other), DPAR_OK);
#endif
}

static int each(dpar_comm *c, void *arg)
{
    (void)arg;
    memories(c);
    sentence(c);
    poison(c);
    refusals_and_report(c);
    return checks_failed;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 8, 4, NULL);
}
