/* SPDX-License-Identifier: MIT-0 */
/* Tests exchanges of bytes whose number only the sender knows, in random graphs of ranks. Every
 * rank computes from a seed what each rank sends to each other one.
 *     ./neighbours [processes|threads] [ranks]    without arguments: both, 1 to 8 and 1 to 4 */
#include "dpar_particles.h"
#include "rank_program.h"

enum { RANKS = 16, ROUNDS = 12, GRAPHS = 10 };

/* Returns how many bytes rank a sends to rank b: often none, sometimes many. */
static int64_t length(uint64_t seed, int round, int a, int b)
{
    uint64_t lot = seed + (uint64_t)(round * 1000 + a * 31 + b * 1009);
    switch (lot_below(&lot, 6)) {
    case 0: return 0;
    case 1: return lot_below(&lot, 300000);
    case 2: return 440 + lot_below(&lot, 20);
    default: return lot_below(&lot, 3000);
    }
}

static unsigned char value(int round, int a, int b, int64_t i)
{
    return (unsigned char)(scrambled((uint32_t)(round * 97 + a * 13 + b), i) >> 7);
}

static int linked(uint64_t seed, int a, int b)
{
    uint64_t lot = seed + (uint64_t)((a < b ? a * 64 + b : b * 64 + a) * 7919);
    return lot_below(&lot, 3) > 0;
}

/* Lists the neighbours in an order of this rank's own. */
static int32_t list(const dpar_comm *c, uint64_t seed, int32_t *rank)
{
    int32_t n = 0, k;
    for (k = 0; k < c->size; k++) {
        const int r = (k * (c->rank % 2 ? 1 : -1) + 5 * c->size + c->rank) % c->size;
        if (linked(seed, c->rank, r)) {
            rank[n++] = r;
        }
    }
    return n;
}

static void graph(dpar_comm *c, uint64_t seed)
{
    dpar_neighbours_desc desc = {0};
    dpar_neighbours *n = NULL;
    int32_t rank[RANKS], k;
    const void *out[RANKS];
    int64_t bytes[RANKS], i, wrong = 0;
    dpar_why why;
    int round;
    desc.count = list(c, seed, rank);
    desc.rank = rank;
    desc.tag = 3;
    CHECK_INT(dpar_neighbours_make(c, &desc, &n, &why), DPAR_OK);
    for (round = 0; round < ROUNDS; round++) {
        unsigned char *own[RANKS] = {NULL};
        for (k = 0; k < desc.count; k++) {
            unsigned char *to;
            bytes[k] = length(seed, round, c->rank, rank[k]);
            if (round % 3 == k % 3) {
                to = (unsigned char *)dpar_neighbours_buffer(n, k, bytes[k]);
                CHECK(to && (uintptr_t)to % 64 == 0);
                out[k] = k % 2 ? to : NULL;
            } else {
                to = own[k] = (unsigned char *)zeroed(bytes[k] + 1);
                out[k] = to;
            }
            for (i = 0; i < bytes[k]; i++) {
                to[i] = value(round, c->rank, rank[k], i);
            }
        }
        CHECK_INT(dpar_neighbours_exchange(n, out, bytes), DPAR_OK);
        for (k = 0; k < desc.count; k++) {
            const unsigned char *in = (const unsigned char *)n->in[k];
            CHECK_INT(n->in_bytes[k], length(seed, round, rank[k], c->rank));
            CHECK((uintptr_t)in % 64 == 0);
            for (i = 0; i < n->in_bytes[k]; i++) {
                wrong += in[i] != value(round, rank[k], c->rank, i);
            }
            free(own[k]);
        }
        CHECK_INT(wrong, 0);
    }
    CHECK_INT(dpar_neighbours_free(n), DPAR_OK);
}

static void wrong_calls(dpar_comm *c)
{
    dpar_neighbours_desc desc = {0};
    dpar_neighbours *n = NULL;
    int32_t rank[2] = {0, 0};
    int64_t bytes[1] = {-1};
    dpar_why why;
    desc.rank = rank;
    desc.count = 2;
    CHECK_INT(dpar_neighbours_make(c, &desc, &n, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "rank 0 is neighbour 0 and 1"));
    rank[0] = c->size;
    desc.count = 1;
    CHECK_INT(dpar_neighbours_make(c, &desc, &n, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "neighbour 0 is rank"));
    CHECK_INT(dpar_neighbours_make(c, NULL, &n, &why), DPAR_E_ARG);
    CHECK_INT(dpar_neighbours_make(NULL, &desc, &n, &why), DPAR_E_ARG);
    if (c->size > 1) { /* rank 0 lists rank 1, which lists nobody */
        rank[0] = 1;
        desc.count = c->rank == 0;
        CHECK_INT(dpar_neighbours_make(c, &desc, &n, &why), DPAR_E_ARG);
        CHECK(strstr(why.text, "rank 0 lists rank 1, which does not list it"));
        desc.count = 0;
        desc.tag = c->rank;
        CHECK_INT(dpar_neighbours_make(c, &desc, &n, &why), DPAR_E_MISMATCH);
        desc.tag = 0;
    }
    rank[0] = c->rank;
    desc.count = 1;
    CHECK_INT(dpar_neighbours_make(c, &desc, &n, &why), DPAR_OK);
    CHECK(dpar_neighbours_buffer(n, 1, 8) == NULL && dpar_neighbours_buffer(n, 0, -1) == NULL);
    CHECK_INT(dpar_neighbours_exchange(NULL, NULL, bytes), DPAR_E_ARG);
    bytes[0] = 0;
    CHECK_INT(dpar_neighbours_exchange(n, NULL, bytes), DPAR_OK);
    CHECK_INT(n->in_bytes[0], 0);
    CHECK_INT(dpar_neighbours_free(n), DPAR_OK);
    CHECK_INT(dpar_neighbours_free(NULL), DPAR_OK);
}

/* A wrong number of bytes on one rank: all ranks fail, with its message. */
static void wrong_bytes(dpar_comm *c)
{
    dpar_comm *sub[3] = {NULL};
    int k;
    for (k = 0; k < 3; k++) {
        const int32_t all[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        int64_t bytes[8] = {0};
        dpar_neighbours_desc desc = {0};
        dpar_neighbours *n = NULL;
        dpar_why why;
        CHECK_INT(dpar_comm_split(c, 0, c->rank, &sub[k]), DPAR_OK);
        desc.rank = all;
        desc.count = c->size;
        CHECK_INT(dpar_neighbours_make(sub[k], &desc, &n, &why), DPAR_OK);
        CHECK_INT(dpar_barrier(c, NULL), DPAR_OK); /* all have made theirs */
        if (c->rank == 0) {
            bytes[0] = k == 0 ? -1 : 1 << 20;
        }
        CHECK_INT(dpar_neighbours_exchange(n, NULL, k == 2 && c->rank == 0 ? NULL : bytes),
                  DPAR_E_ARG);
        CHECK(strstr(sub[k]->why.text, k == 0   ? "-1 bytes from rank 0 to its neighbour 0"
                                       : k == 1 ? "has returned memory for"
                                                : "out_bytes is NULL on rank 0"));
        CHECK_INT(dpar_neighbours_free(n), DPAR_E_ARG);
    }
    for (k = 0; k < 3; k++) {
        (void)dpar_comm_free(sub[k]);
    }
}

static int test(dpar_comm *c, void *arg)
{
    int k;
    (void)arg;
    wrong_calls(c);
    wrong_bytes(c);
    for (k = 0; k < GRAPHS && failures() == 0; k++) {
        graph(c, (uint64_t)(k * 12345 + 1));
    }
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, test, NULL, 8, 4, NULL);
}
