/* SPDX-License-Identifier: MIT-0 */
/* Tests how ranks agree whether to continue: the worst status wins and the message names its rank.
 * If facts differ, the first one is named with both values. Each rank and each fact is tried as the
 * odd one out. Also tests the hash of facts, and memory that is divided into pieces.
 *   ./agree [processes|threads] [ranks]        without arguments: both, 1 to 5 and 1 to 4 */
#include "dpar_comm.h"

#include "rank_program.h"

#include <stdio.h>
#include <string.h>

/* Four facts. `odd` is the one that this rank states differently, or -1. */
typedef struct statement {
    int odd;
} statement;

static void state_four(dpari_facts *facts, const void *given)
{
    const statement *s = (const statement *)given;
    facts->of = NULL;
    dpari_fact(facts, "count", 0, 10 + (s->odd == 0));
    facts->of = "field #: ";
    facts->of_index = 3;
    dpari_fact(facts, "extent[#]", 2, -7 - (s->odd == 1));
    dpari_fact_type(facts, "type", 0, s->odd == 2 ? DPAR_F64 : DPAR_F32);
    dpari_fact_real(facts, "rate", 0, s->odd == 3 ? 0.25 : 0.5);
}

static const char *const usual[4] = {"count is 10", "field 3: extent[2] is -7",
                                     "field 3: type is f32", "field 3: rate is 0.5"};
static const char *const other[4] = {"count is 11", "field 3: extent[2] is -8",
                                     "field 3: type is f64", "field 3: rate is 0.25"};

/* Fails on one rank; all return its status. */
static void one_fails(dpar_comm *comm)
{
    dpar_why why;
    char expected[64];
    for (int32_t rank = 0; rank < comm->size; rank++) {
        dpar_status status = DPAR_OK;
        why.text[0] = 0;
        if (comm->rank == rank) {
            status = dpari_say(DPAR_E_DIVIDE, &why, "3 parts of %d", (int32_t)10);
        }
        CHECK_INT(dpari_agree(comm, status, &why), DPAR_E_DIVIDE);
        snprintf(expected, sizeof expected, "rank %d: 3 parts of 10", (int)rank);
        CHECK_TEXT(why.text, comm->rank == rank ? "3 parts of 10" : expected);
    }
    why.text[0] = 0;
    CHECK_INT(dpari_agree(comm, DPAR_OK, &why), DPAR_OK);
    CHECK_TEXT(why.text, "");
    CHECK_INT(comm->status, DPAR_OK); /* the communicator remains usable */
}

/* States one fact differently on one rank. */
static void one_differs(dpar_comm *comm)
{
    statement s;
    dpar_why why;
    for (int32_t rank = 0; comm->size > 1 && rank < comm->size; rank++) {
        for (int fact = 0; fact < 4; fact++) {
            s.odd = comm->rank == rank ? fact : -1;
            CHECK_INT(dpari_agree_on(comm, DPAR_OK, "plan", state_four, &s, &why), DPAR_E_MISMATCH);
            CHECK(strncmp(why.text, "plan: ", 6) == 0);
            /* The message names one rank for each of the two values. */
            CHECK(strstr(why.text, rank == 0 ? other[fact] : usual[fact]) != NULL);
            CHECK(strstr(why.text, " on rank 0, ") != NULL);
            CHECK(strstr(why.text, strstr(rank == 0 ? usual[fact] : other[fact], " is ") + 4) != NULL);
        }
    }
    s.odd = -1;
    CHECK_INT(dpari_agree_on(comm, DPAR_OK, "plan", state_four, &s, &why), DPAR_OK);
    s.odd = 1; /* the same on all ranks */
    CHECK_INT(dpari_agree_on(comm, DPAR_OK, "plan", state_four, &s, &why), DPAR_OK);
    CHECK_INT(comm->status, DPAR_OK);
}

/* Checks that hashes are equal only if all facts are. */
static void hashes(void)
{
    statement s;
    uint64_t seen[5];
    for (int i = 0; i < 5; i++) {
        s.odd = i - 1;
        seen[i] = dpari_facts_hash("plan", state_four, &s);
        CHECK(seen[i] != 0);
        CHECK(seen[i] == dpari_facts_hash("plan", state_four, &s));
        for (int k = 0; k < i; k++) {
            CHECK(seen[i] != seen[k]);
        }
    }
    s.odd = -1;
    CHECK(dpari_facts_hash("another", state_four, &s) != seen[0]);
}

/* Checks that pieces begin at multiples of 64 and do not overlap, and that counting and taking give
 * the same size. */
static void pieces(void)
{
    static unsigned char memory[1024 + DPARI_ROOM_ALIGN];
    unsigned char *at = memory;
    dpari_room counted = {NULL, 0}, taken = {NULL, 0};
    unsigned char *before;
    at += (DPARI_ROOM_ALIGN - (uintptr_t)at % DPARI_ROOM_ALIGN) % DPARI_ROOM_ALIGN;
    before = at;
    taken.at = at;
    for (int64_t n = 0; n < 12; n++) {
        unsigned char *piece = (unsigned char *)dpari_room_take(&taken, n, 8);
        CHECK(dpari_room_take(&counted, n, 8) == NULL);
        CHECK((uintptr_t)piece % DPARI_ROOM_ALIGN == 0 && piece >= before);
        before = piece + n * 8;
        CHECK_INT(counted.used, taken.used);
        CHECK(at + taken.used >= before);
    }
}

static int each(dpar_comm *comm, void *arg)
{
    (void)arg;
    one_fails(comm);
    one_differs(comm);
    hashes();
    pieces();
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 5, 4, NULL);
}
