/* SPDX-License-Identifier: MIT-0 */
/* Tests several operations at a time: works in progress on one communicator and on two, waited for
 * in another order on each rank; posted collectives together with blocking ones and with messages;
 * a progress thread; and communicators split from others.
 *   cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/comm/ranks/several.c -o several
 *   ./several */
#include "run_oracle.h"

enum { FLIGHTS = 6, ROOM = 1 << 20 };

static int failed(oracle *o, const char *what, dpar_status s, const dpar_comm *c)
{
    if (s == DPAR_OK) {
        return 0;
    }
    if (o->failed++ < 4) {
        printf("WRONG rank %d of %d: %s: %s: %s\n", o->world->rank, o->world->size, what,
               dpar_status_text(s), c->why.text);
        fflush(stdout);
    }
    return 1;
}

static void expect(oracle *o, const char *what, long long got, long long want)
{
    o->cases++;
    if (got != want && o->failed++ < 4) {
        printf("WRONG rank %d of %d: %s is %lld, expected %lld\n", o->world->rank, o->world->size,
               what, got, want);
        fflush(stdout);
    }
}

/* Returns a random collective that is posted. */
static oracle_case posted(uint64_t seed, int n, int64_t bytes)
{
    oracle_case k = oracle_random_case(seed, n, bytes);
    k.how = k.how == ORACLE_BLOCKING ? ORACLE_WAIT : k.how;
    return k;
}

/* Posts FLIGHTS collectives, each on one of `comms` communicators, which is the same on all ranks.
 * Then waits for them in an order that differs between ranks. Does so `rounds` times. */
static int in_flight(oracle *o, dpar_comm **comm, int comms, oracle_slot *slot, int rounds,
                     int64_t bytes, uint64_t seed)
{
    oracle_flight f[FLIGHTS];
    int order[FLIGHTS], i, j, round, bad = 0;
    for (round = 0; round < rounds && !bad; round++) {
        for (i = 0; i < FLIGHTS && !bad; i++) {
            int c = (int)oracle_below(&seed, comms);
            oracle_case k = posted(oracle_next(&seed), comm[c]->size, bytes);
            bad = oracle_bad(o, &f[i], oracle_begin(o, comm[c], &k, &slot[i], &f[i]));
            j = (int)oracle_below(&o->own, i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        for (i = 0; i < FLIGHTS && !bad; i++) {
            bad = oracle_bad(o, &f[order[i]], oracle_wait(o, &f[order[i]]));
        }
        for (i = 0; i < FLIGHTS && !bad; i++) {
            oracle_check(o, &f[i]);
        }
    }
    return bad;
}

/* Posts collectives on c; meanwhile runs blocking ones on d and messages between neighbours on
 * c. */
static int beside(oracle *o, dpar_comm *c, dpar_comm *d, oracle_slot *slot, int rounds)
{
    uint64_t seed = o->seed + 5;
    int round, i, me = c->rank, n = c->size, bad = 0;
    for (round = 0; round < rounds && !bad; round++) {
        oracle_flight f[2];
        int64_t there = me * 1000 + round, back = -1;
        for (i = 0; i < 2 && !bad; i++) {
            oracle_case k = posted(oracle_next(&seed), n, ROOM / 16);
            bad = oracle_bad(o, &f[i], oracle_begin(o, c, &k, &slot[i], &f[i]));
        }
        if (!bad) {
            oracle_case k = oracle_random_case(oracle_next(&seed), d->size, ROOM / 16);
            bad = oracle_run(o, d, &k, &slot[2]);
        }
        if (!bad && n > 1) { /* blocking messages: even ranks send first */
            int first = me % 2 == 0;
            dpar_status s = DPAR_OK;
            for (i = 0; i < 2 && s == DPAR_OK; i++) {
                s = (i == 0) == first
                        ? dpar_send(c, &there, 1, DPAR_I64, (me + 1) % n, round, NULL)
                        : dpar_recv(c, &back, 1, DPAR_I64, (me + n - 1) % n, round, NULL);
            }
            bad = failed(o, "message beside posted collectives", s, c);
            expect(o, "message", back, (me + n - 1) % n * 1000 + round);
        }
        for (i = 1; i >= 0 && !bad; i--) {
            bad = oracle_bad(o, &f[i], oracle_wait(o, &f[i]));
        }
        for (i = 0; i < 2 && !bad; i++) {
            oracle_check(o, &f[i]);
        }
    }
    return bad;
}

/* Checks that with a progress thread posted work ends although no rank calls: once the thread has
 * completed it, the first dpar_test returns OK. */
static int progress(oracle *o, dpar_comm *c, oracle_slot *slot)
{
    dpar_status s = dpar_comm_progress(c, 1);
    int i, t, bad = 0;
    if (s == DPAR_E_SYSTEM) {
        return 0; /* an engine without threads (see dpar_mpi.h) */
    }
    bad = failed(o, "progress on", s, c);
    for (i = 0; i < (o->effort ? 5 : 1) && !bad; i++) {
        oracle_flight f;
        oracle_case k = posted(o->seed * 7 + (uint64_t)i, c->size, ROOM / 4);
        bad = oracle_bad(o, &f, oracle_begin(o, c, &k, slot, &f));
        if (!bad) {
            for (t = 0; t < 30000 && __atomic_load_n(&f.work.comm, __ATOMIC_ACQUIRE) != NULL; t++) {
                usleep(1000); /* on a busy machine other ranks may be slow */
            }
            s = dpar_test(&f.work);
            expect(o, "status of posted work with a progress thread", s, DPAR_OK);
            bad = s == DPAR_MORE ? oracle_bad(o, &f, dpar_wait(&f.work)) : oracle_bad(o, &f, s);
        }
        if (!bad) {
            oracle_check(o, &f);
        }
    }
    return bad || in_flight(o, &c, 1, slot, 10, ROOM / 16, o->seed + 3) ||
           failed(o, "progress off", dpar_comm_progress(c, 0), c) ||
           in_flight(o, &c, 1, slot, 3, ROOM / 16, o->seed + 4);
}

/* Runs some blocking collectives on c. */
static int use(oracle *o, dpar_comm *c, oracle_slot *slot, uint64_t seed, int operations)
{
    int i, bad = 0;
    for (i = 0; i < operations && !bad; i++) {
        oracle_case k = oracle_random_case(oracle_next(&seed), c->size, ROOM / 32);
        bad = oracle_run(o, c, &k, slot);
    }
    return bad;
}

/* Splits by colour and key, also twice, compares rank and size with a count, and runs operations on
 * all parts. */
static int splits(oracle *o, oracle_slot *slot, int rounds)
{
    uint64_t seed = o->seed * 17;
    int me = o->world->rank, n = o->world->size, round, r, bad = 0;
    for (round = 0; round < rounds && !bad; round++) {
        int color[ORACLE_RANKS] = {0}, key[ORACLE_RANKS] = {0}, size = 0, rank = 0;
        dpar_comm *part = NULL, *inner = NULL;
        for (r = 0; r < n; r++) {
            color[r] = (int)oracle_below(&seed, 4) - 1;
            key[r] = (int)oracle_below(&seed, 3) * (round % 2 == 0 ? 1 : 1000000000) - 1000000000;
        }
        for (r = 0; r < n; r++) {
            if (color[r] == color[me]) {
                size++;
                rank += key[r] < key[me] || (key[r] == key[me] && r < me);
            }
        }
        part = o->world; /* must be overwritten */
        bad = failed(o, "split", dpar_comm_split(o->world, color[me], key[me], &part), o->world);
        if (bad) {
            return 1;
        }
        expect(o, "a negative colour has a communicator", part != NULL, color[me] >= 0);
        if (part != NULL) {
            expect(o, "rank after a split", part->rank, rank);
            expect(o, "size after a split", part->size, size);
            expect(o, "deadline after a split", (long long)part->timeout_s,
                   (long long)o->world->timeout_s);
            bad = use(o, part, slot, oracle_mix(seed + (uint64_t)color[me]), 8) ||
                  failed(o, "nested split",
                         dpar_comm_split(part, part->rank % 2, -part->rank, &inner), part);
            if (!bad) { /* reversed by the negative key */
                expect(o, "rank after a nested split", inner->rank,
                       (part->size - 1 - part->rank) / 2);
                bad = use(o, inner, slot, oracle_mix(seed + 99u + (uint64_t)(part->rank % 2)), 6) ||
                      use(o, part, slot, oracle_mix(seed + (uint64_t)color[me] + 7u), 4) ||
                      failed(o, "close", dpar_comm_free(inner), part) ||
                      use(o, part, slot, oracle_mix(seed + (uint64_t)color[me] + 8u), 2) ||
                      failed(o, "close", dpar_comm_free(part), o->world);
            }
        }
        bad = bad || use(o, o->world, slot, seed, 3);
    }
    return bad;
}

/* Splits along the axes of a mesh and compares the groups with the mesh's own functions. */
static int axes(oracle *o, oracle_slot *slot)
{
    int32_t sizes[3];
    int n = o->world->size, me = o->world->rank, order, r, bad = 0;
    uint32_t which;
    sizes[0] = n % 4 == 0 ? 2 : 1;
    sizes[1] = n % 2 == 0 ? 2 : 1;
    sizes[2] = n / (sizes[0] * sizes[1]);
    for (order = 0; order < 2; order++) {
        for (which = 0; which < 8 && !bad; which++) {
            dpar_mesh mesh;
            dpar_comm *group = NULL;
            int64_t mine, all[ORACLE_RANKS];
            dpar_why why;
            if (dpar_mesh_init(&mesh, "a b c", sizes, order, n, &why) != DPAR_OK) {
                expect(o, "a mesh", 0, 1);
                return 1;
            }
            bad = failed(o, "split_axes", dpar_comm_split_axes(o->world, &mesh, which, &group),
                         o->world);
            if (bad) {
                return 1;
            }
            expect(o, "size of a group", group->size, dpar_mesh_group_size(&mesh, which));
            expect(o, "rank in a group", group->rank, dpar_mesh_group_index(&mesh, which, me));
            mine = me;
            bad = failed(o, "all_gather in a group",
                         dpar_all_gather(group, &mine, all, 1, DPAR_I64, NULL), group);
            for (r = 0; r < group->size && !bad; r++) {
                expect(o, "member of a group", all[r], dpar_mesh_group_member(&mesh, which, me, r));
            }
            bad = bad ||
                  use(o, group, slot,
                      oracle_mix(o->seed + 64u * which +
                                 (uint64_t)dpar_mesh_group_index(&mesh, ~which, me)),
                      3) ||
                  failed(o, "close", dpar_comm_free(group), o->world);
        }
    }
    /* A mesh over a part of the ranks: the others get no group. */
    if (!bad && n > 1) {
        dpar_mesh mesh;
        dpar_comm *group = o->world;
        dpar_why why;
        sizes[0] = n - 1;
        (void)dpar_mesh_init(&mesh, "a", sizes, DPAR_ORDER_LAST_FASTEST, n - 1, &why);
        mesh.first_rank = 1;
        bad = failed(o, "split_axes", dpar_comm_split_axes(o->world, &mesh, 1, &group), o->world);
        expect(o, "ranks outside a mesh have a group", group != NULL, me > 0);
        if (!bad && group != NULL) {
            expect(o, "rank in a part", group->rank, me - 1);
            bad = use(o, group, slot, o->seed + 1234, 3) ||
                  failed(o, "close", dpar_comm_free(group), o->world);
        }
    }
    return bad;
}

/* Checks that messages on a duplicate do not match those of the original with the same tags. */
static int apart(oracle *o, dpar_comm *c, dpar_comm *d)
{
    int me = c->rank, n = c->size, right = (me + 1) % n, left = (me + n - 1) % n;
    int32_t out[2], in[2] = {-1, -1};
    dpar_work w[4];
    memset(w, 0, sizeof w);
    out[0] = 100 + me;
    out[1] = 200 + me;
    if (failed(o, "send", dpar_send(c, &out[0], 1, DPAR_I32, right, 7, &w[0]), c) ||
        failed(o, "send", dpar_send(d, &out[1], 1, DPAR_I32, right, 7, &w[1]), d) ||
        failed(o, "recv", dpar_recv(d, &in[1], 1, DPAR_I32, left, 7, &w[2]), d) ||
        failed(o, "wait", dpar_wait(&w[2]), d) ||
        failed(o, "recv", dpar_recv(c, &in[0], 1, DPAR_I32, left, 7, &w[3]), c) ||
        failed(o, "wait", dpar_wait_all(w, 4), c)) {
        return 1;
    }
    expect(o, "message on the original", in[0], 100 + left);
    expect(o, "message on the duplicate", in[1], 200 + left);
    return 0;
}

static void several(oracle *o)
{
    oracle_slot slot[FLIGHTS];
    dpar_comm *comm[2];
    int i, bad = 0, more = o->effort ? 10 : 1;
    memset(slot, 0, sizeof slot);
    for (i = 0; i < FLIGHTS; i++) {
        bad = bad || oracle_slot_make(o, &slot[i], ROOM * ORACLE_RANKS) != DPAR_OK;
    }
    comm[0] = o->world;
    bad = bad || failed(o, "dup", dpar_comm_split(o->world, 0, 0, &comm[1]), o->world);
    if (!bad) {
        expect(o, "rank of a duplicate", comm[1]->rank, o->world->rank);
        expect(o, "size of a duplicate", comm[1]->size, o->world->size);
        bad = in_flight(o, comm, 1, slot, 20 * more, ROOM / 64, o->seed) ||
              in_flight(o, comm, 1, slot, 3 * more, ROOM, o->seed + 1) ||
              in_flight(o, comm, 2, slot, 20 * more, ROOM / 64, o->seed + 2) ||
              in_flight(o, comm, 2, slot, 3 * more, ROOM, o->seed + 3) ||
              beside(o, comm[0], comm[1], slot, 20 * more) || apart(o, comm[0], comm[1]) ||
              splits(o, slot, 6 * more) || axes(o, slot) || progress(o, comm[1], slot) ||
              failed(o, "close", dpar_comm_free(comm[1]), o->world) ||
              use(o, o->world, slot, o->seed, 5);
    }
    for (i = 0; i < FLIGHTS; i++) {
        oracle_slot_free(o, &slot[i]);
    }
}

int main(int argc, char **argv)
{
    return oracle_program(argc, argv, "several", several);
}
