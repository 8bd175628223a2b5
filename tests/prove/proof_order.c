/* SPDX-License-Identifier: MIT-0 */
/* Tests proof_order: known deadlocks and their repairs on each transport; random orders against a
 * brute-force run that takes ranks and messages in random order; the order in which dpar posts
 * an exchange, for random grids. Run with: tests/run test proof. */
#include "dpar_proof.h"

#include "proof_cases.h"

enum { MOST_ACTIONS = 4000, MOST_ORDERED = 16 };

static dpar_proof_action action[MOST_ACTIONS];
static int64_t first[CASE_RANKS + 1];
static dpar_why why;
static int transports[5] = {DPAR_PROOF_BLOCKING, DPAR_PROOF_EAGER, DPAR_PROOF_RANK, DPAR_PROOF_PAIR, -1};

static dpar_status run(int32_t ranks, int transport, int capacity)
{
    dpar_proof_order_desc order;
    memset(&order, 0, sizeof order);
    order.ranks = ranks;
    order.first = first;
    order.action = action;
    order.transport = transport;
    order.capacity = capacity;
    order.memory = proof_memory;
    order.bytes = sizeof proof_memory;
    why.text[0] = 0;
    return dpar_proof_order(&order, &why);
}

/* Reads the actions of ranks from text: "s1 r1 | r0 s0": S and R are posted, w waits, and a letter
 * in front of the kind names a group. */
static int32_t read_order(const char *text)
{
    int32_t rank = 0;
    int64_t n = 0;
    first[0] = 0;
    for (; *text; text++) {
        dpar_proof_action *a = &action[n];
        if (*text == '|') {
            first[++rank] = n;
            continue;
        }
        if (*text == ' ') {
            continue;
        }
        memset(a, 0, sizeof *a);
        if (*text >= 'a' && *text <= 'c') {
            a->group = *text++ - 'a' + 1;
        }
        a->kind = *text == 's' ? DPAR_PROOF_SEND : *text == 'r' ? DPAR_PROOF_RECV :
                  *text == 'S' ? DPAR_PROOF_POST_SEND : *text == 'R' ? DPAR_PROOF_POST_RECV : DPAR_PROOF_WAIT;
        if (a->kind != DPAR_PROOF_WAIT) {
            a->peer = *++text - '0';
        }
        n++;
    }
    first[++rank] = n;
    return rank;
}

static void expect(const char *text, int transport, int capacity, dpar_status status, const char *message)
{
    const dpar_status got = run(read_order(text), transport, capacity);
    CHECK_INT(got, status);
    if (strncmp(why.text, message, strlen(message)) != 0 || got != status) {
        CHECK(0);
        printf("%s: %s\nexpected: %s\n", text, why.text, message);
    }
}

static void test_known(void)
{
    static const char both[] = "s1 r1 | s0 r0", ring[] = "s1 r2 | s2 r0 | s0 r1";
    /* both send first */
    expect(both, DPAR_PROOF_BLOCKING, 0, DPAR_E_STUCK,
           "2 ranks wait for each other: rank 0 waits at action 0 for its send to rank 1; rank 1 waits at "
           "action 0 for its send to rank 0");
    expect(both, DPAR_PROOF_EAGER, 1, DPAR_OK, "");
    expect(both, DPAR_PROOF_EAGER, 0, DPAR_E_STUCK, "2 ranks wait for each other: ");
    expect(both, DPAR_PROOF_RANK, 0, DPAR_E_STUCK, "2 ranks wait for each other: ");
    expect("s1 r1 | r0 s0", DPAR_PROOF_BLOCKING, 0, DPAR_OK, "");
    expect(ring, DPAR_PROOF_BLOCKING, 0, DPAR_E_STUCK, "3 ranks wait for each other: ");
    expect("s1 r2 | r0 s2 | s0 r1", DPAR_PROOF_BLOCKING, 0, DPAR_OK, "");
    /* two messages need a buffer of two */
    expect("s1 s1 r1 r1 | s0 s0 r0 r0", DPAR_PROOF_EAGER, 1, DPAR_E_STUCK,
           "2 ranks wait for each other: rank 0 waits at action 1 for its send to rank 1");
    expect("s1 s1 r1 r1 | s0 s0 r0 r0", DPAR_PROOF_EAGER, 2, DPAR_OK, "");
    expect("s1 s1 r1 r1 | s0 r0 s0 r0", DPAR_PROOF_EAGER, 1, DPAR_OK, "");
    /* posted receives before the sends, as dpar does */
    expect("R1 S1 w | R0 S0 w", DPAR_PROOF_BLOCKING, 0, DPAR_OK, "");
    expect("R1 S1 w | R0 S0 w", DPAR_PROOF_EAGER, 0, DPAR_OK, "");
    /* ... but a queue of NCCL needs a group around them, or the reverse order on one side */
    expect("R1 S1 w | R0 S0 w", DPAR_PROOF_PAIR, 0, DPAR_E_STUCK,
           "2 ranks wait for each other: rank 0 waits at action 2 for its posted");
    expect("aR1 aS1 w | aR0 aS0 w", DPAR_PROOF_PAIR, 0, DPAR_OK, "");
    expect("aR1 aS1 w | aR0 aS0 w", DPAR_PROOF_RANK, 0, DPAR_OK, "");
    expect("R1 S1 w | S0 R0 w", DPAR_PROOF_RANK, 0, DPAR_OK, "");
    expect("aR1 aS1 bR1 bS1 | aR0 aS0 bR0 bS0", DPAR_PROOF_RANK, 0, DPAR_OK, "");
    /* a queue per rank orders messages with different peers, a queue per pair does not */
    expect("S1 S2 w | R2 R0 w | R0 S1 w", DPAR_PROOF_RANK, 0, DPAR_E_STUCK, "3 ranks wait for each other: ");
    expect("S1 S2 w | R2 R0 w | R0 S1 w", DPAR_PROOF_PAIR, 0, DPAR_OK, "");
    /* a rank that has ended while its queue has not */
    expect("S1 S2 | R2 R0 w | R0 S1 w", DPAR_PROOF_RANK, 0, DPAR_E_STUCK, "3 ranks wait for each other: ");
    /* a wait does not wait for what is posted after it */
    expect("w S1 | R0 w", DPAR_PROOF_BLOCKING, 0, DPAR_OK, "");
    expect("R1 w S1 | R0 w S0", DPAR_PROOF_BLOCKING, 0, DPAR_E_STUCK,
           "2 ranks wait for each other: rank 0 waits at action 1 for its posted receive from rank 1");
    /* partners */
    expect("s1 s1 | r0", DPAR_PROOF_BLOCKING, 0, DPAR_E_MISMATCH,
           "partner: action 1 of rank 0, a send to rank 1, has no partner");
    expect("s1 | r0 r0", DPAR_PROOF_BLOCKING, 0, DPAR_E_MISMATCH,
           "partner: action 1 of rank 1, a receive from rank 0, has no partner");
    expect("s0 | r0", DPAR_PROOF_BLOCKING, 0, DPAR_E_ARG, "action 0 of rank 0: kind is 0 and peer is 0");
    expect("s2 | r0", DPAR_PROOF_BLOCKING, 0, DPAR_E_ARG, "action 0 of rank 0: kind is 0 and peer is 2");
    expect("", DPAR_PROOF_BLOCKING, 0, DPAR_OK, "");
}

static void test_refusals(void)
{
    dpar_proof_order_desc order;
    memset(&order, 0, sizeof order);
    CHECK_INT(dpar_proof_order(NULL, &why), DPAR_E_ARG);
    CHECK_INT(dpar_proof_order(&order, &why), DPAR_E_ARG);
    order.ranks = read_order("s1 | r0");
    order.first = first;
    order.action = action;
    CHECK_INT(dpar_proof_order(&order, &why), DPAR_E_ROOM);
    order.memory = proof_memory;
    order.bytes = why.bytes;
    CHECK_INT(dpar_proof_order(&order, &why), DPAR_OK);
    order.bytes--;
    CHECK_INT(dpar_proof_order(&order, &why), DPAR_E_ROOM);
    order.bytes++;
    order.transport = 4;
    CHECK_INT(dpar_proof_order(&order, &why), DPAR_E_ARG);
    order.transport = 0;
    first[0] = 1;
    CHECK_INT(dpar_proof_order(&order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "first[0] is 1, but must be 0");
    first[0] = 0;
    first[1] = 3;
    CHECK_INT(dpar_proof_order(&order, &why), DPAR_E_ARG);
}

/* ---- brute force ----------------------------------------------------------------------------- */

/* Runs an order by the definitions of the transports, with nothing but counters: takes any rank or
 * message that can go on, in random order, until none can. Returns 1 if all ranks reach their end. */
static int all_end(int32_t ranks, int transport, int capacity)
{
    static int posted[MOST_ACTIONS], done[MOST_ACTIONS];
    int64_t next[MOST_ORDERED], k;
    int moved = 1, rank, i;
    memset(posted, 0, sizeof posted);
    memset(done, 0, sizeof done);
    for (rank = 0; rank < ranks; rank++) {
        next[rank] = first[rank];
    }
    while (moved) {
        moved = 0;
        for (i = 0; i < 3 * ranks; i++) { /* ranks */
            int64_t at;
            int waits = 0;
            rank = i < 2 * ranks ? below(ranks) : i - 2 * ranks;
            at = next[rank];
            if (at == first[rank + 1]) {
                continue;
            }
            posted[at] = 1;
            for (k = first[rank]; k <= at; k++) {
                const dpar_proof_action *a = &action[k];
                const int is_send = a->kind == DPAR_PROOF_SEND || a->kind == DPAR_PROOF_POST_SEND;
                int open = !done[k] && a->kind != DPAR_PROOF_WAIT;
                if (open && is_send && transport == DPAR_PROOF_EAGER) {
                    int64_t j, sent = 0;
                    for (j = first[rank]; j < k; j++) { /* sent before it and not received */
                        sent += action[j].peer == a->peer && !done[j] &&
                                (action[j].kind == DPAR_PROOF_SEND || action[j].kind == DPAR_PROOF_POST_SEND);
                    }
                    open = sent >= capacity;
                }
                if ((k == at && (a->kind == DPAR_PROOF_SEND || a->kind == DPAR_PROOF_RECV)) ||
                    action[at].kind == DPAR_PROOF_WAIT) {
                    waits |= open;
                }
            }
            if (!waits) {
                next[rank]++;
                moved = 1;
            }
        }
        for (rank = 0; rank < ranks; rank++) { /* messages: the first posted one of each pair */
            int peer;
            for (peer = 0; peer < ranks; peer++) {
                int64_t s = -1, r = -1;
                int blocked = 0;
                for (k = first[rank]; k < first[rank + 1] && s < 0; k++) {
                    if (!done[k] && action[k].peer == peer &&
                        (action[k].kind == DPAR_PROOF_SEND || action[k].kind == DPAR_PROOF_POST_SEND)) {
                        s = k;
                    }
                }
                for (k = first[peer]; k < first[peer + 1] && r < 0; k++) {
                    if (!done[k] && action[k].peer == rank &&
                        (action[k].kind == DPAR_PROOF_RECV || action[k].kind == DPAR_PROOF_POST_RECV)) {
                        r = k;
                    }
                }
                if (peer == rank || s < 0 || r < 0 || !posted[s] || !posted[r]) {
                    continue;
                }
                for (k = first[rank]; k < s && transport >= DPAR_PROOF_RANK; k++) {
                    blocked |= !done[k] && action[k].kind != DPAR_PROOF_WAIT &&
                               (transport == DPAR_PROOF_RANK || action[k].peer == peer);
                }
                for (k = first[peer]; k < r && transport >= DPAR_PROOF_RANK; k++) {
                    blocked |= !done[k] && action[k].kind != DPAR_PROOF_WAIT &&
                               (transport == DPAR_PROOF_RANK || action[k].peer == rank);
                }
                if (!blocked) {
                    done[s] = done[r] = 1;
                    moved = 1;
                }
            }
        }
    }
    for (rank = 0; rank < ranks; rank++) {
        if (next[rank] < first[rank + 1]) {
            return 0;
        }
    }
    return 1;
}

/* Makes a random order of a few ranks: messages are inserted at random places of both ranks, some
 * near the same time. */
static void random_order(int32_t ranks, int messages)
{
    static dpar_proof_action list[MOST_ORDERED][64];
    int count[MOST_ORDERED] = {0}, m, rank;
    for (m = 0; m < messages; m++) {
        const int a = below(ranks), b = (a + 1 + below(ranks - 1)) % ranks, posts = below(3);
        int end;
        for (end = 0; end < 2; end++) {
            dpar_proof_action *l = list[end ? b : a];
            int *n = &count[end ? b : a], at = *n - below(3), k;
            at = at < 0 ? 0 : at;
            for (k = *n; k > at; k--) {
                l[k] = l[k - 1];
            }
            ++*n;
            memset(&l[at], 0, sizeof l[at]);
            l[at].kind = end ? (posts == 1 ? DPAR_PROOF_POST_RECV : DPAR_PROOF_RECV)
                             : (posts == 2 ? DPAR_PROOF_POST_SEND : DPAR_PROOF_SEND);
            l[at].peer = end ? a : b;
            if (below(4) == 0) {
                memset(&l[*n], 0, sizeof l[*n]);
                l[*n].kind = DPAR_PROOF_WAIT;
                l[*n].peer = -1;
                ++*n;
            }
        }
    }
    first[0] = 0;
    for (rank = 0; rank < ranks; rank++) {
        memcpy(&action[first[rank]], list[rank], (size_t)count[rank] * sizeof list[0][0]);
        first[rank + 1] = first[rank] + count[rank];
    }
}

static void test_random(void)
{
    int trial, stuck[4] = {0}, ends[4] = {0}, t;
    for (trial = 0; trial < 4000; trial++) {
        const int32_t ranks = 2 + below(4);
        random_order(ranks, 1 + below(12));
        for (t = 0; transports[t] >= 0; t++) {
            const int capacity = below(3);
            const dpar_status status = run(ranks, transports[t], capacity);
            CHECK(status == DPAR_OK || status == DPAR_E_STUCK);
            CHECK_INT(status == DPAR_OK, all_end(ranks, transports[t], capacity));
            *(status == DPAR_OK ? &ends[t] : &stuck[t]) += 1;
        }
    }
    for (t = 0; t < 4; t++) {
        CHECK(stuck[t] > 200 && ends[t] > 200);
    }
}

/* Checks the order of dpar's exchanges: each rank posts a receive and a send per peer, then waits;
 * with one exchange after another, and dim by dim. */
static void test_exchanges(void)
{
    int trial, t;
    for (trial = 0; trial < 300; trial++) {
        const int32_t steps = 1 + below(3), parts[2] = {1 + below(4), 1 + below(4)};
        int32_t rank, d, side, step, peers;
        int64_t n = 0;
        for (rank = 0; rank < parts[0] * parts[1]; rank++) {
            first[rank] = n;
            for (step = 0; step < steps; step++) {
                for (d = 0; d < 2; d++) {
                    int32_t at[2] = {rank / parts[1], rank % parts[1]}, peer[2];
                    for (side = 0; side < 2; side++) {
                        int32_t to[2] = {at[0], at[1]};
                        to[d] = (to[d] + (side ? 1 : parts[d] - 1)) % parts[d];
                        peer[side] = to[0] * parts[1] + to[1];
                    }
                    peers = peer[0] == rank ? 0 : peer[0] == peer[1] ? 1 : 2;
                    for (side = 0; side < 2 * peers; side++) {
                        memset(&action[n], 0, sizeof action[n]);
                        action[n].kind = side < peers ? DPAR_PROOF_POST_RECV : DPAR_PROOF_POST_SEND;
                        action[n].peer = peer[side % peers];
                        action[n].group = 2 * step + d + 1;
                        n++;
                    }
                    action[n++].kind = DPAR_PROOF_WAIT;
                }
            }
        }
        first[rank] = n;
        for (t = 0; transports[t] >= 0; t++) {
            CHECK_INT(run(rank, transports[t], 0), DPAR_OK);
        }
    }
}

int main(void)
{
    random_seed = 3;
    test_known();
    test_refusals();
    test_random();
    test_exchanges();
    CHECK_DONE();
}
