/* SPDX-License-Identifier: MIT-0 */
/* Tests exchanges by ids and by lists against brute force. Every rank knows the whole world that a
 * seed makes: the owner of each id and what each rank reads. The expected result of an exchange is
 * looked up there; that of an adjoint is added in the order that the header states.
 *     ./points [processes|threads] [ranks]        without arguments: both, 1 to 6 and 1 to 4 */
#include "dpar_points.h"
#include "rank_program.h"

enum { IDS = 60, GHOSTS = 40, RANKS = 8, VECTORS = 3, COMPONENTS = 3 };

/* ---- a world --------------------------------------------------------------------------------- */

enum { BY_DIRECTORY, BY_RANGE, BY_OWNER, BY_RULE, BY_LISTS, KINDS };

typedef struct world {
    /* given: with 1 own ids are listed, of a kind that need not be; with 2 the owners of
     * consecutive ids are passed */
    int ranks, kind, order, given;
    int64_t own[RANKS], ghosts[RANKS], whole;
    int64_t own_id[RANKS][IDS], ghost_id[RANKS][GHOSTS];
    int32_t owner[RANKS][GHOSTS], owner_at[RANKS][GHOSTS]; /* and the place in the owner's values */
    int64_t place[RANKS][GHOSTS];                          /* in the vectors, after own values */
    int64_t name[IDS];
    dpar_mesh mesh;
    dpar_layout rule;
} world;

/* Sets own[] of the ranks: some have none; in a third of the worlds one has all. */
static void deal(world *w, uint64_t *seed)
{
    const int all = lot_below(seed, 3) == 0 ? (int)lot_below(seed, w->ranks) : -1;
    int64_t i, r;
    int owner[IDS];
    w->whole = lot_below(seed, IDS + 1);
    for (i = 0; i < w->whole; i++) {
        owner[i] = all >= 0 ? all : (int)lot_below(seed, w->ranks);
        w->own[owner[i]]++;
    }
    for (i = 0; i < w->whole; i++) { /* any numbers, each once */
        w->name[i] =
            w->kind == BY_RANGE ? i : (int64_t)(lot_next(seed) >> 1) / IDS * IDS + i - 1000;
    }
    if (w->kind == BY_RANGE) {
        for (r = 0, i = 0; r < w->ranks; r++) {
            int64_t k;
            for (k = 0; k < w->own[r]; k++, i++) {
                w->own_id[r][k] = i;
            }
        }
        return;
    }
    for (r = 0; r < w->ranks; r++) {
        w->own[r] = 0;
    }
    for (i = 0; i < w->whole; i++) {
        w->own_id[owner[i]][w->own[owner[i]]++] = w->name[i];
    }
}

/* Makes the ids elements of a 2-d array on a mesh of all ranks. */
static void deal_by_rule(world *w, uint64_t *seed)
{
    const int64_t extent[2] = {1 + lot_below(seed, 7), 1 + lot_below(seed, 8)};
    const int32_t size = w->ranks;
    const dpar_placement cut =
        lot_below(seed, 2) ? dpar_shard_by(1, DPAR_SPLIT_BLOCK_CYCLIC, 1 + lot_below(seed, 2))
                           : dpar_shard((int32_t)lot_below(seed, 2));
    int64_t i;
    CHECK_INT(dpar_mesh_init(&w->mesh, "r", &size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&w->rule, &w->mesh, 2, extent, &cut, NULL), DPAR_OK);
    w->whole = extent[0] * extent[1];
    for (i = 0; i < w->whole; i++) {
        const int64_t index[2] = {i / extent[1], i % extent[1]};
        const int32_t r = dpar_layout_owner(&w->rule, index, 0, NULL);
        w->name[i] = i;
        w->own_id[r][w->own[r]++] = i;
    }
}

static void find(world *w, int r, int g)
{
    int32_t o;
    int64_t k;
    for (o = 0; o < w->ranks; o++) {
        for (k = 0; k < w->own[o]; k++) {
            if (w->own_id[o][k] == w->ghost_id[r][g]) {
                w->owner[r][g] = o;
                w->owner_at[r][g] = (int32_t)k;
                return;
            }
        }
    }
    CHECK(!"an owner");
}

/* Returns 1 if ghost a comes before ghost b in the order by owner. */
static int before(const world *w, int r, int a, int b)
{
    return w->owner[r][a] != w->owner[r][b]         ? w->owner[r][a] < w->owner[r][b]
           : w->ghost_id[r][a] != w->ghost_id[r][b] ? w->ghost_id[r][a] < w->ghost_id[r][b]
                                                    : a < b;
}

static void read_others(world *w, int r, uint64_t *seed)
{
    int g, k;
    w->ghosts[r] = w->whole == 0 ? 0 : lot_below(seed, GHOSTS + 1);
    if (lot_below(seed, 4) == 0) {
        w->ghosts[r] = 0;
    }
    for (g = 0; g < w->ghosts[r]; g++) {
        const int in_a_row = g > 0 && lot_below(seed, 2);
        const int64_t i = lot_below(seed, w->whole);
        w->ghost_id[r][g] =
            in_a_row && w->kind == BY_RANGE ? (w->ghost_id[r][g - 1] + 1) % w->whole : w->name[i];
        find(w, r, g);
    }
    for (g = 0; g < w->ghosts[r]; g++) {
        w->place[r][g] = g;
        if (w->order == DPAR_POINTS_ORDER_BY_OWNER) {
            for (k = 0, w->place[r][g] = 0; k < w->ghosts[r]; k++) {
                w->place[r][g] += before(w, r, k, g);
            }
        }
    }
}

static void build(world *w, int ranks, int kind, uint64_t *seed)
{
    int r;
    memset(w, 0, sizeof *w);
    w->ranks = ranks;
    w->kind = kind;
    w->order = kind == BY_LISTS ? DPAR_POINTS_ORDER_GIVEN : (int)lot_below(seed, 2);
    w->given = (int)lot_below(seed, 4);
    if (kind == BY_RULE) {
        deal_by_rule(w, seed);
    } else {
        deal(w, seed);
    }
    for (r = 0; r < ranks; r++) {
        read_others(w, r, seed);
    }
}

/* ---- as a plan ------------------------------------------------------------------------------- */

typedef struct both_sides {
    int32_t peer[RANKS], send_at[RANKS * GHOSTS], receive_at[GHOSTS];
    int64_t sends[RANKS], receives[RANKS];
    dpar_points_lists lists;
} both_sides;

/* Lists what HPCG has: for each peer what is sent and received, with peers in descending order. */
static void list_both(const world *w, int me, both_sides *b)
{
    int r, g, s = 0, n = 0;
    memset(b, 0, sizeof *b);
    for (r = w->ranks - 1; r >= 0; r--) {
        const int32_t k = b->lists.peer_count;
        for (g = 0; g < w->ghosts[r]; g++) {
            if (w->owner[r][g] == me) {
                b->send_at[s++] = w->owner_at[r][g];
                b->sends[k]++;
            }
        }
        for (g = 0; g < w->ghosts[me]; g++) {
            if (w->owner[me][g] == r) {
                b->receive_at[n++] = (int32_t)(w->own[me] + g);
                b->receives[k]++;
            }
        }
        b->peer[k] = r;
        b->lists.peer_count += b->sends[k] + b->receives[k] > 0;
    }
    b->lists.peer = b->peer;
    b->lists.send_count = b->sends;
    b->lists.receive_count = b->receives;
    b->lists.send_index = b->send_at;
    b->lists.receive_index = b->receive_at;
}

static void describe(const world *w, int me, both_sides *b, dpar_points_desc *d)
{
    memset(d, 0, sizeof *d);
    d->own_count = w->own[me];
    d->ghost_count = w->ghosts[me];
    d->order = w->order;
    if (w->kind == BY_LISTS) {
        list_both(w, me, b);
        d->lists = &b->lists;
        return;
    }
    d->ghost_id = w->ghost_id[me];
    d->own_id =
        w->kind == BY_DIRECTORY || w->kind == BY_OWNER || w->given & 1 ? w->own_id[me] : NULL;
    d->owner = w->kind == BY_OWNER || (w->kind == BY_RANGE && w->given & 2) ? w->owner[me] : NULL;
    d->layout = w->kind == BY_RULE ? &w->rule : NULL;
}

/* Makes a plan from n own ids, of which NULL numbers the ranks' values consecutively, and m ghosts.
 */
static dpar_status make_by_ids(dpar_comm *c, const int64_t *own, int64_t n, const int64_t *ghost,
                               int64_t m, dpar_points **p, dpar_why *why)
{
    dpar_points_desc d;
    memset(&d, 0, sizeof d);
    d.own_count = n;
    d.own_id = own;
    d.ghost_count = m;
    d.ghost_id = ghost;
    return dpar_points_make(c, &d, p, why);
}

/* ---- vectors --------------------------------------------------------------------------------- */

typedef struct vectors {
    dpar_points_field v[VECTORS];
    void *memory[VECTORS], *apart[VECTORS];
} vectors;

static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_I32, DPAR_I64, DPAR_U8, DPAR_BF16};

/* Makes vectors: interleaved, padded, in planes; ghosts separate; registered or not. */
static void make(dpar_comm *c, const world *w, int me, vectors *x, int n, uint64_t *seed)
{
    const int64_t all = w->own[me] + w->ghosts[me] + 1;
    int i;
    memset(x, 0, sizeof *x);
    for (i = 0; i < n; i++) {
        dpar_points_field *v = &x->v[i];
        const uint64_t mine = lot_next(seed) + (uint64_t)me * 7;
        const int64_t room = all * 2 * COMPONENTS * 8;
        v->type = types[lot_below(seed, 6)];
        v->components = (int32_t)lot_below(seed, COMPONENTS + 1);
        if (mine % 3 == 1) { /* each rank differently */
            v->stride = (v->components ? v->components : 1) + 1;
        } else if (mine % 3 == 2) {
            v->component_stride = all + 1;
        }
        if (mine / 4 % 2) {
            CHECK_INT(dpar_comm_alloc(c, room, &x->memory[i]), DPAR_OK);
            v->data = x->memory[i];
        } else {
            v->data = zeroed(room);
        }
        if (mine / 8 % 2) {
            v->ghosts = x->apart[i] = zeroed(room);
        }
    }
}

static void drop(dpar_comm *c, vectors *x, int n)
{
    int i;
    for (i = 0; i < n; i++) {
        if (x->memory[i]) {
            dpar_comm_release(c, x->memory[i]);
        } else {
            free(x->v[i].data);
        }
        free(x->apart[i]);
    }
}

static unsigned char *number(const dpar_points_field *v, int64_t own, int64_t i, int k)
{
    const int64_t bytes = dpar_type_bytes(v->type), n = v->components ? v->components : 1;
    const int64_t stride = v->stride ? v->stride : v->component_stride ? 1 : n;
    const int64_t apart = v->component_stride ? v->component_stride : 1;
    unsigned char *base = (unsigned char *)(i >= own && v->ghosts ? v->ghosts : v->data);
    return base + bytes * ((i >= own && v->ghosts ? i - own : i) * stride + k * apart);
}

static double get(int32_t type, const unsigned char *at)
{
    double d;
    float f;
    int32_t i;
    int64_t l;
    uint16_t b;
    uint32_t u;
    switch (type) {
    case DPAR_F64: memcpy(&d, at, 8); return d;
    case DPAR_F32: memcpy(&f, at, 4); return (double)f;
    case DPAR_I32: memcpy(&i, at, 4); return i;
    case DPAR_I64: memcpy(&l, at, 8); return (double)l;
    case DPAR_BF16:
        memcpy(&b, at, 2);
        u = (uint32_t)b << 16;
        memcpy(&f, &u, 4);
        return (double)f;
    default: return *at;
    }
}

static void put(int32_t type, unsigned char *at, double value)
{
    const float f = (float)value;
    const int32_t i = (int32_t)value;
    const int64_t l = (int64_t)value;
    uint32_t u;
    uint16_t b;
    switch (type) {
    case DPAR_F64: memcpy(at, &value, 8); break;
    case DPAR_F32: memcpy(at, &f, 4); break;
    case DPAR_I32: memcpy(at, &i, 4); break;
    case DPAR_I64: memcpy(at, &l, 8); break;
    case DPAR_BF16: /* whole numbers that BF16 can hold */
        memcpy(&u, &f, 4);
        b = (uint16_t)(u >> 16);
        memcpy(at, &b, 2);
        break;
    default: *at = (unsigned char)i; break;
    }
}

/* Returns small whole numbers, which all types hold; for F64 thirds, whose sums depend on their
 * order. */
static double content(int32_t type, int round, int64_t rank, int64_t i, int vector, int k)
{
    const uint32_t h = scrambled((uint32_t)(round * 31 + vector * 7 + k), rank * 1000 + i);
    return type == DPAR_F64 ? (double)(h % 100000) / 3.0 : (double)(h % 6);
}

static void fill(const world *w, int me, vectors *x, int n, int round)
{
    const int64_t own = w->own[me], all = own + w->ghosts[me];
    int64_t i;
    int j, k;
    for (j = 0; j < n; j++) {
        for (i = 0; i < all; i++) {
            for (k = 0; k < (x->v[j].components ? x->v[j].components : 1); k++) {
                put(x->v[j].type, number(&x->v[j], own, i, k),
                    content(x->v[j].type, round, me, i, j, k));
            }
        }
    }
}

/* ---- the expected result --------------------------------------------------------------------- */

/* Checks that ghosts are their owners' values as `value` returns them, and that own values are
 * unchanged or as it returns. */
typedef double value_of(const world *w, int round, int op, int rank, int64_t i, int32_t type, int j,
                        int k);

static double plain(const world *w, int round, int op, int rank, int64_t i, int32_t type, int j,
                    int k)
{
    (void)w;
    (void)op;
    return content(type, round, rank, i, j, k);
}

/* Returns own op the ghosts of rank 0 in their order, of rank 1, ... */
static double combined(const world *w, int round, int op, int rank, int64_t i, int32_t type, int j,
                       int k)
{
    double sum = content(type, round, rank, i, j, k);
    int r, g, place;
    for (r = 0; r < w->ranks; r++) {
        for (place = 0; place < w->ghosts[r]; place++) {
            for (g = 0; w->place[r][g] != place; g++) {
            }
            if (w->owner[r][g] == rank && w->owner_at[r][g] == i) {
                const double add = content(type, round, r, w->own[r] + place, j, k);
                sum = op == DPAR_SUM   ? sum + add
                      : op == DPAR_MAX ? (add > sum ? add : sum)
                                       : (add < sum ? add : sum);
                sum = type == DPAR_U8 ? (double)((int)sum & 255) : sum;
            }
        }
    }
    return sum;
}

/* Compares the vectors with the expected values. ghosts 1: owners' values; 0: zero, because they
 * were added. */
static void compare(const world *w, int me, const vectors *x, int n, int round, int op,
                    value_of *value, int ghosts)
{
    int64_t i;
    int j, k, g;
    for (j = 0; j < n; j++) {
        const dpar_points_field *v = &x->v[j];
        for (k = 0; k < (v->components ? v->components : 1); k++) {
            for (i = 0; i < w->own[me]; i++) {
                CHECK(get(v->type, number(v, w->own[me], i, k)) ==
                      value(w, round, op, me, i, v->type, j, k));
            }
            for (g = 0; g < w->ghosts[me]; g++) {
                const double at =
                    get(v->type, number(v, w->own[me], w->own[me] + w->place[me][g], k));
                CHECK(at == (ghosts ? value(w, round, op, w->owner[me][g], w->owner_at[me][g],
                                            v->type, j, k)
                                    : 0.0));
            }
        }
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void exchange(dpar_points *p, const world *w, int me, uint64_t *seed)
{
    static const int ops[3] = {DPAR_SUM, DPAR_MAX, DPAR_MIN};
    int round, n, op;
    vectors x;
    dpar_why why;
    for (round = 0; round < 5; round++) {
        n = 1 + (int)lot_below(seed, VECTORS);
        op = ops[lot_below(seed, 3)];
        make(p->comm, w, me, &x, n, seed);
        fill(w, me, &x, n, round);
        CHECK_INT(dpar_points_begin_many(p, x.v, n), DPAR_OK);
        while (round == 2 && dpar_points_test(p) == DPAR_MORE) {
        }
        CHECK_INT(dpar_points_end(p), DPAR_OK);
        compare(w, me, &x, n, round, 0, plain, 1);
        CHECK_INT(dpar_points_check(p, x.v, n, DPAR_POINTS_STALE, &why), DPAR_OK);
        fill(w, me, &x, n, round);
        CHECK_INT(dpar_points_reduce_begin_many(p, x.v, n, op), DPAR_OK);
        CHECK_INT(dpar_points_end(p), DPAR_OK);
        compare(w, me, &x, n, round, op, combined, 0);
        fill(w, me, &x, n, round);
        CHECK_INT(dpar_points_reduce_many(p, x.v, n, op), DPAR_OK);
        compare(w, me, &x, n, round, op, combined, 0);
        CHECK_INT(dpar_points_exchange_many(p, x.v, n), DPAR_OK);
        compare(w, me, &x, n, round, op, combined, 1);
        drop(p->comm, &x, n);
    }
}

static void numbering(const dpar_points *p, const world *w, int me)
{
    int32_t at[IDS + GHOSTS];
    int64_t g, k, first;
    CHECK_INT(p->global_count, w->whole);
    if (w->kind == BY_LISTS) {
        CHECK_INT(dpar_points_to_local(p, w->own_id[me], 1, at), DPAR_E_ARG);
        return;
    }
    CHECK_INT(dpar_points_to_local(p, w->own_id[me], w->own[me], at), DPAR_OK);
    for (g = 0; g < w->own[me]; g++) {
        CHECK_INT(at[g], g);
    }
    CHECK_INT(dpar_points_to_local(p, w->ghost_id[me], w->ghosts[me], at), DPAR_OK);
    for (g = 0; g < w->ghosts[me]; g++) {
        first = w->owner[me][g] == me ? w->owner_at[me][g] : INT64_MAX;
        for (k = 0; k < w->ghosts[me] && first == INT64_MAX; k++) {
            if (w->ghost_id[me][k] == w->ghost_id[me][g]) {
                first = w->own[me] + w->place[me][k];
                break;
            }
        }
        for (k = 0; k < w->ghosts[me] && first >= w->own[me]; k++) {
            if (w->ghost_id[me][k] == w->ghost_id[me][g] && w->own[me] + w->place[me][k] < first) {
                first = w->own[me] + w->place[me][k];
            }
        }
        CHECK_INT(at[g], first);
    }
}

/* Checks that what peers report of each other agrees and adds up. */
static void traffic(const dpar_points *p, const world *w, int me)
{
    dpar_points_traffic t;
    int64_t received = 0, last = -1;
    int32_t k;
    for (k = 0; dpar_points_peer(p, k, &t); k++) {
        int64_t sends = 0, receives = 0;
        int g;
        for (g = 0; g < w->ghosts[t.rank]; g++) {
            sends += w->owner[t.rank][g] == me;
        }
        for (g = 0; g < w->ghosts[me]; g++) {
            receives += w->owner[me][g] == t.rank;
        }
        CHECK_INT(t.send_count, sends);
        CHECK_INT(t.receive_count, receives);
        CHECK(t.rank > last);
        last = t.rank;
        received += t.receive_count;
    }
    CHECK_INT(k, p->peer_count);
    CHECK_INT(received, w->ghosts[me]);
}

static void random_worlds(dpar_comm *c, int rounds)
{
    uint64_t seed = 12345 + (uint64_t)c->size;
    world *w = (world *)zeroed(sizeof *w);
    both_sides *b = (both_sides *)zeroed(sizeof *b);
    int i;
    for (i = 0; i < rounds && c->status == DPAR_OK; i++) {
        dpar_points_desc d;
        dpar_points *p = NULL;
        dpar_why why;
        build(w, c->size, i % KINDS, &seed);
        describe(w, c->rank, b, &d);
        d.method = (int32_t)lot_below(&seed, 4);
        d.run_bytes = lot_below(&seed, 2) * 16;
        why.text[0] = 0;
        CHECK_INT(dpar_points_make(c, &d, &p, &why), DPAR_OK);
        if (!p) {
            fprintf(stderr, "rank %d: %s\n", (int)c->rank, why.text);
            break;
        }
        numbering(p, w, c->rank);
        traffic(p, w, c->rank);
        exchange(p, w, c->rank, &seed);
        CHECK_INT(dpar_points_free(p), DPAR_OK);
    }
    free(b);
    free(w);
}

/* ---- errors, which all ranks report ---------------------------------------------------------- */

static void refused(dpar_comm *c, const dpar_points_desc *d, dpar_status want, const char *words)
{
    dpar_points *p = NULL;
    dpar_why why;
    why.text[0] = 0;
    CHECK_INT(dpar_points_make(c, d, &p, &why), want);
    CHECK(p == NULL && strstr(why.text, words) != NULL);
    if (!strstr(why.text, words)) {
        fprintf(stderr, "rank %d says '%s', not '%s'\n", (int)c->rank, why.text, words);
    }
}

static void faults(dpar_comm *c)
{
    const int last = c->size - 1, me = c->rank;
    int64_t own[2] = {10 + 2 * (int64_t)me, 11 + 2 * (int64_t)me}, ghost[2] = {10, 11};
    int32_t owner[2] = {0, 0}, send_at[1] = {0}, receive_at[2] = {2, 3};
    int32_t peer[2] = {(me + 1) % c->size, (me + last) % c->size};
    int64_t sends[2] = {0, 0}, receives[2] = {0, 0};
    dpar_points_lists lists = {0};
    char word[100];
    dpar_points_desc d;
    lists.peer_count = 1;
    lists.peer = peer;
    lists.send_count = sends;
    lists.receive_count = receives;
    lists.send_index = send_at;
    lists.receive_index = receive_at;
    memset(&d, 0, sizeof d);
    d.own_count = d.ghost_count = 2;
    d.own_id = own;
    d.ghost_id = ghost;
    ghost[1] = me == last ? 7 : 11;
    refused(c, &d, DPAR_E_ARG, "id 7, ghost 1 of rank ");
    refused(c, &d, DPAR_E_ARG, "is owned by no rank");
    ghost[1] = 11;
    if (c->size > 1) {
        own[1] = me == last ? 10 : own[1];
        refused(c, &d, DPAR_E_ARG, "id 10 is owned by two ranks, 0 and ");
        d.own_id = me == last ? NULL : own;
        refused(c, &d, DPAR_E_MISMATCH, "own_id is NULL on some ranks");
        d.own_id = own;
        d.order = me == last;
        refused(c, &d, DPAR_E_MISMATCH, "order is 0 on rank 0, 1 on rank");
        d.order = 0;
    }
    own[1] = me == last ? own[0] : 11 + 2 * me;
    (void)snprintf(word, sizeof word, "id %d is listed twice among the own ids of rank %d",
                   10 + 2 * last, last);
    refused(c, &d, DPAR_E_ARG, word);
    own[1] = 11 + 2 * me;
    d.owner = owner;
    owner[1] = me == last ? last : 0;
    if (c->size > 1) {
        (void)snprintf(word, sizeof word,
                       "id 11, which rank %d reads, is not among the own ids of rank %d", last,
                       last);
        refused(c, &d, DPAR_E_ARG, word);
    }
    owner[1] = me == last ? c->size : 0;
    (void)snprintf(word, sizeof word, "ghost 1, id 11: owner %d is not one of the %d ranks",
                   last + 1, last + 1);
    refused(c, &d, DPAR_E_ARG, word);
    d.owner = NULL;
    d.own_id = NULL;
    ghost[0] = me == 0 ? 2 * c->size : 0;
    ghost[1] = 0;
    (void)snprintf(word, sizeof word, "id %d, ghost 0 of rank 0, is owned by no rank", 2 * c->size);
    refused(c, &d, DPAR_E_ARG, word);
    d.own_count = me == last ? -1 : 2;
    refused(c, &d, DPAR_E_ARG, "own_count -1 or");
    d.own_count = 2;
    d.lists = &lists;
    d.ghost_count = me == last;
    refused(c, &d, DPAR_E_ARG,
            "the receive_counts add up to 0 (send_counts: 0), but ghost_count is 1");
    d.ghost_count = 0;
    if (c->size > 1) { /* rank 0 sends, no rank receives */
        sends[0] = me == 0;
        refused(c, &d, DPAR_E_MISMATCH, "rank 0 sends 1 values to rank 1, which expects 0");
        send_at[0] = me == 0 ? 2 : 0;
        refused(c, &d, DPAR_E_ARG, "send_index[0], for rank 1, is 2");
        send_at[0] = 0;
        sends[0] = 0;
        lists.peer_count = me == last ? 2 : 1;
        peer[1] = me == last ? peer[0] : peer[1];
        refused(c, &d, DPAR_E_ARG, "is listed twice in peer");
        receives[0] = receives[1] = me == last ? INT64_MAX : 0; /* their sum exceeds 64 bits */
        refused(c, &d, DPAR_E_ARG, "or its receive_count, is out of range");
        receives[0] = receives[1] = 0;
        sends[0] = sends[1] = me == last ? INT64_MAX : 0;
        refused(c, &d, DPAR_E_ARG, "its send_count 9223372036854775807");
        sends[0] = sends[1] = 0;
    }
    lists.peer_count = 1;
    receives[0] = sends[0] = 2;
    d.ghost_count = 2;
    receive_at[1] = me == last ? 2 : 3;
    lists.send_index = receive_at;
    d.own_count = 2;
    receive_at[0] = 2;
    peer[0] = me;
    {
        static const int32_t both[2] = {0, 1};
        lists.send_index = both;
    }
    refused(c, &d, DPAR_E_ARG, "receive_index lists 2 twice");
    receive_at[1] = me == last ? 4 : 3;
    refused(c, &d, DPAR_E_ARG, "receive_index[1] is 4, but ghosts are 2 to 3");
}

/* Changes one number of this rank's description. Arrays have memory for all resulting counts. */
static void spoil(world *w, int me, both_sides *b, dpar_points_desc *d, uint64_t *seed)
{
    const int64_t any = (int64_t)lot_next(seed) >> lot_below(seed, 64),
                  one = lot_below(seed, 3) - 1;
    const int64_t g = d->ghost_count > 0 ? lot_below(seed, d->ghost_count) : 0;
    switch (lot_below(seed, 13)) {
    case 0: d->own_count = d->own_count > 0 ? d->own_count + (one > 0 ? -1 : one) : -any; break;
    case 1: d->ghost_count = d->ghost_count > 0 ? d->ghost_count - 1 : -1; break;
    case 2: d->order = (int32_t)any; break;
    case 3: d->method = (int32_t)any; break;
    case 4: d->tag = (int32_t)any; break;
    case 5: d->run_bytes = any; break;
    case 6: w->ghost_id[me][g] += one ? one : any; break;
    case 7:
        w->own_id[me][d->own_count > 0 ? lot_below(seed, d->own_count) : 0] =
            one ? any : w->name[0];
        break;
    case 8: w->owner[me][g] = (int32_t)(one ? w->owner[me][g] + one : any); break;
    case 9: b->sends[lot_below(seed, RANKS)] += one; break;
    case 10: b->receives[lot_below(seed, RANKS)] += one; break;
    case 11: b->peer[lot_below(seed, RANKS)] = (int32_t)(one ? lot_below(seed, RANKS) : any); break;
    default: (one ? b->send_at : b->receive_at)[g] = (int32_t)any; break;
    }
}

/* Checks that if one rank describes something wrong, all ranks plan or all are refused with a
 * message. */
static void fuzz(dpar_comm *c, int rounds)
{
    uint64_t seed = 777 + (uint64_t)c->size;
    world *w = (world *)zeroed(sizeof *w);
    both_sides *b = (both_sides *)zeroed(sizeof *b);
    int i;
    for (i = 0; i < rounds && c->status == DPAR_OK; i++) {
        dpar_points_desc d;
        dpar_points *p = NULL;
        dpar_why why;
        dpar_status st;
        int who;
        build(w, c->size, i % KINDS, &seed);
        describe(w, c->rank, b, &d);
        who = (int)lot_below(&seed, c->size);
        if (who == c->rank) {
            uint64_t own_seed = seed;
            spoil(w, who, b, &d, &own_seed);
        }
        why.text[0] = 0;
        st = dpar_points_make(c, &d, &p, &why);
        CHECK((st == DPAR_OK) == (why.text[0] == 0));
        CHECK_INT(all_sum(c, st == DPAR_OK), st == DPAR_OK ? c->size : 0);
        if (p) {
            CHECK_INT(dpar_points_free(p), DPAR_OK);
        }
    }
    free(b);
    free(w);
}

/* Checks that wrong calls on a rank leave the plan unchanged. */
static void wrong_calls(dpar_comm *c)
{
    const int64_t ghost[1] = {(c->rank + 1) % c->size};
    double x[2] = {(double)c->rank, -1.0};
    dpar_points_field v;
    dpar_points *p = NULL;
    int32_t at[2];
    int64_t id[2] = {0, 99};
    dpar_why why;
    memset(&v, 0, sizeof v);
    CHECK_INT(make_by_ids(c, NULL, 1, ghost, 1, &p, &why), DPAR_OK);
    if (!p) {
        return;
    }
    CHECK_INT(dpar_points_exchange_many(p, &v, 1), DPAR_E_ARG);
    v.type = DPAR_F4;
    CHECK_INT(dpar_points_exchange_many(p, &v, 1), DPAR_E_ARG);
    v.type = DPAR_F64;
    CHECK_INT(dpar_points_exchange_many(p, &v, 1), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "data is NULL") != NULL);
    v.data = x;
    CHECK_INT(dpar_points_exchange_many(p, &v, 0), DPAR_E_ARG);
    CHECK_INT(dpar_points_reduce_begin_many(p, &v, 1, DPAR_PRODUCT), DPAR_E_ARG);
    v.components = 2;
    v.stride = 1;
    CHECK_INT(dpar_points_exchange_many(p, &v, 1), DPAR_E_ARG);
    v.components = 0;
    v.stride = 0;
    CHECK_INT(dpar_points_to_local(p, id, 2, at), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "ids[1] is 99") != NULL || c->size > 2);
    CHECK_INT(dpar_points_check(p, &v, 1, DPAR_POINTS_POISON, &why), DPAR_OK);
    CHECK(x[1] != x[1]);
    CHECK_INT(dpar_points_check(p, &v, 1, DPAR_POINTS_UNFILLED, &why), DPAR_E_ARG);
    CHECK_INT(dpar_points_exchange(p, x), DPAR_OK);
    CHECK_INT(dpar_points_check(p, &v, 1, DPAR_POINTS_UNFILLED, &why), DPAR_OK);
    x[1] += c->rank == c->size - 1;
    CHECK_INT(dpar_points_check(p, &v, 1, DPAR_POINTS_STALE, &why), DPAR_E_MISMATCH);
    CHECK(strstr(why.text, "vector 0: ghost 0, local index 1 of rank ") != NULL);
    v.data = c->rank == c->size - 1 ? NULL : x; /* all report it */
    CHECK_INT(dpar_points_check(p, &v, 1, DPAR_POINTS_STALE, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "data is NULL") != NULL);
    v.data = NULL;
    CHECK_INT(dpar_points_check(p, &v, 1, DPAR_POINTS_POISON, &why), DPAR_E_ARG);
    CHECK_INT(dpar_points_check(p, &v, 1, DPAR_POINTS_UNFILLED, &why), DPAR_E_ARG);
    x[0] = 1.0;
    x[1] = 2.0;
    CHECK_INT(dpar_points_reduce(p, x), DPAR_OK);
    CHECK(x[0] == 3.0 && x[1] == 0.0);
    CHECK_INT(dpar_points_begin(p, x), DPAR_OK);
    CHECK_INT(dpar_points_end(p), DPAR_OK);
    CHECK(x[0] == 3.0 && x[1] == 3.0);
    CHECK_INT(dpar_points_reduce_begin(p, x), DPAR_OK);
    CHECK_INT(dpar_points_end(p), DPAR_OK);
    CHECK(x[0] == 6.0 && x[1] == 0.0);
    CHECK_INT(dpar_points_begin(NULL, x), DPAR_E_ARG);
    CHECK_INT(dpar_points_free(p), DPAR_OK);
    CHECK_INT(dpar_points_free(NULL), DPAR_OK);
}

/* Checks that a refused vector is refused again, also by plans that compare it only with the last
 * one. */
static void refused_again(dpar_comm *c)
{
    const int64_t ghost[1] = {(c->rank + 1) % c->size};
    double x[2] = {(double)c->rank, -1.0};
    dpar_points_field v;
    dpar_points_desc d;
    dpar_points *p = NULL;
    dpar_why why;
    memset(&v, 0, sizeof v);
    memset(&d, 0, sizeof d);
    d.own_count = 1;
    d.ghost_count = 1;
    d.ghost_id = ghost;
    d.method = DPAR_POINTS_MESSAGES;
    CHECK_INT(dpar_points_make(c, &d, &p, &why), DPAR_OK);
    if (!p) {
        return;
    }
    CHECK_INT(dpar_points_exchange(p, x), DPAR_OK);
    v.data = x;
    CHECK_INT(dpar_points_begin_many(p, &v, 1), DPAR_E_ARG);
    CHECK_INT(dpar_points_begin_many(p, &v, 1), DPAR_E_ARG);
    CHECK_INT(dpar_points_exchange(p, x), DPAR_OK);
    CHECK_INT(dpar_points_free(p), DPAR_OK);
}

/* Checks vectors of planes, whose length is the number of values: 2 on rank 0, and 1 or none on the
 * others. */
static void short_planes(dpar_comm *c)
{
    const int64_t ghost[1] = {1}, own = c->rank < 2, ghosts = c->rank == 0 && c->size > 1;
    double x[4] = {10.0, 20.0, 30.0, 40.0};
    dpar_points_field v;
    dpar_points *p = NULL;
    dpar_why why;
    memset(&v, 0, sizeof v);
    CHECK_INT(make_by_ids(c, NULL, own, ghost, ghosts, &p, &why), DPAR_OK);
    if (!p) {
        return;
    }
    v.type = DPAR_F64;
    v.components = 2;
    v.stride = 1;
    v.component_stride = own + ghosts;
    v.data = x;
    CHECK_INT(dpar_points_exchange_many(p, &v, 1), DPAR_OK);
    CHECK(ghosts == 0 || (x[0] == 10.0 && x[1] == 10.0 && x[2] == 30.0 && x[3] == 20.0));
    CHECK_INT(dpar_points_free(p), DPAR_OK);
}

static void rows(dpar_comm *c)
{
    const int64_t ghost[1] = {(c->rank + 1) % c->size}, begin[6] = {0, 2, 2, 3, 5, 6};
    const int32_t column[6] = {0, 2, 1, 1, 0, 2};
    int32_t row[5];
    int64_t core = -1;
    dpar_points *p = NULL;
    dpar_why why;
    CHECK_INT(make_by_ids(c, NULL, 2, ghost, 1, &p, &why), DPAR_OK);
    CHECK_INT(dpar_points_interior_rows(p, 5, begin, column, row, &core), DPAR_OK);
    CHECK(core == 3 && row[0] == 1 && row[1] == 2 && row[2] == 3 && row[3] == 0 && row[4] == 4);
    {
        const int32_t wrong[6] = {0, 2, 1, 3, 0, 2};
        CHECK_INT(dpar_points_interior_rows(p, 5, begin, wrong, row, &core), DPAR_E_ARG);
        CHECK(strstr(c->why.text, "row 3 (columns 3 to 4)") != NULL);
    }
    CHECK_INT(dpar_points_free(p), DPAR_OK);
}

/* Checks one long run with vectors of another arrangement on every other rank: planes here,
 * interleaved there. */
static void long_run(dpar_comm *c)
{
    enum { N = 200 };
    int64_t ghost[N];
    dpar_points_field v[2];
    dpar_points *p = NULL;
    dpar_why why;
    double *x;
    int i, k, shape;
    for (i = 0; i < N; i++) {
        ghost[i] = N * ((c->rank + 1) % c->size) + i;
    }
    CHECK_INT(make_by_ids(c, NULL, N, ghost, N, &p, &why), DPAR_OK);
    x = (double *)dpar_points_array(p, DPAR_F64, 4);
    for (shape = 0; shape < 4 && x; shape++) {
        memset(v, 0, sizeof v);
        v[0].type = DPAR_F64;
        v[0].components = 3;
        v[0].data = x;
        v[0].component_stride = (shape + c->rank) % 2 ? 2 * N : 0;
        v[0].stride = (shape + c->rank) % 4 == 2 ? 4 : 0;
        for (i = 0; i < 2 * N; i++) {
            for (k = 0; k < 3; k++) {
                double *at = (double *)(void *)number(&v[0], N, i, k);
                *at = i < N ? 1000.0 * c->rank + i + 0.25 * k : -1.0;
            }
        }
        CHECK_INT(dpar_points_exchange_many(p, v, 1), DPAR_OK);
        for (i = 0; i < N; i++) {
            for (k = 0; k < 3; k++) {
                CHECK(*(double *)(void *)number(&v[0], N, N + i, k) ==
                      1000.0 * ((c->rank + 1) % c->size) + i + 0.25 * k);
            }
        }
    }
    CHECK_INT(dpar_points_free(p), DPAR_OK);
    dpar_comm_release(c, x);
}

/* Repeats the same plan as a solver does: mostly the same exchange as before, with one of three
 * vectors in turns; now and then with another shape, adjoint, tested to its end, or called
 * wrongly. */
static double steady(int owner, int i, int k, int round)
{
    return 64.0 * owner + i + 0.25 * k + 2048.0 * (round % 16); /* exact in f32 too */
}

static void again(dpar_comm *c)
{
    enum { N = 24, GHOSTS = 12, ROUNDS = 200 };
    const int next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size;
    double room[3][3 * (N + GHOSTS)], apart[3 * GHOSTS];
    int64_t ghost[GHOSTS];
    dpar_points *p = NULL;
    dpar_why why;
    uint64_t seed = 7;
    int i, k, round;
    for (i = 0; i < GHOSTS;
         i++) { /* a run of the next rank, some scattered ones of the previous one */
        ghost[i] = i < 6 ? N * next + 9 + i : N * before + 3 * (i - 6) + 1;
    }
    CHECK_INT(make_by_ids(c, NULL, N, ghost, GHOSTS, &p, &why), DPAR_OK);
    for (round = 0; round < ROUNDS && p; round++) {
        const uint64_t turn = lot_below(&seed, 10), which = lot_below(&seed, 3);
        const uint64_t shape = round / 20 % 3, looks = lot_below(&seed, 3);
        const int n = shape == 1 ? 3 : 1;
        dpar_points_field v;
        memset(&v, 0, sizeof v);
        v.type = shape == 2 ? DPAR_F32 : DPAR_F64;
        v.components = n;
        v.data = room[which];
        v.ghosts = round / 60 % 2 ? apart : NULL;
        for (i = 0; i < N + GHOSTS; i++) {
            for (k = 0; k < n; k++) {
                put(v.type, number(&v, N, i, k), i < N ? steady(c->rank, i, k, round) : turn == 9);
            }
        }
        if (turn == 0) {
            CHECK_INT(dpar_points_exchange_many(p, &v, 0), DPAR_E_ARG);
        }
        CHECK_INT(turn == 9 ? dpar_points_reduce_begin_many(p, &v, 1, DPAR_SUM)
                            : dpar_points_begin_many(p, &v, 1),
                  DPAR_OK);
        while (looks == 0 && dpar_points_test(p) == DPAR_MORE) {
        }
        CHECK_INT(dpar_points_end(p), DPAR_OK);
        for (i = 0; i < N + GHOSTS; i++) {
            const int given = turn == 9 && i < N
                                  ? (i >= 9 && i < 15) + (i % 3 == 1 && i < 18) /* the readers */
                                  : 0;
            for (k = 0; k < n; k++) {
                const double want = i < N       ? steady(c->rank, i, k, round) + given
                                    : turn == 9 ? 0.0
                                    : i - N < 6 ? steady(next, 9 + i - N, k, round)
                                                : steady(before, 3 * (i - N - 6) + 1, k, round);
                CHECK(get(v.type, number(&v, N, i, k)) == want);
            }
        }
    }
    CHECK_INT(dpar_points_free(p), DPAR_OK);
}

/* Checks the full interface in the caller's memory, its drawing, and the arrays of the simple
 * interface. */
static void full(dpar_comm *c)
{
    const int64_t ghost[3] = {(2 * c->rank + 2) % (2 * c->size), (2 * c->rank + 3) % (2 * c->size),
                              (2 * c->rank + 2) % (2 * c->size)};
    char text[4000];
    dpar_points_desc d;
    dpar_points *p = NULL;
    dpar_text t;
    int64_t bytes = 0;
    void *memory, *whole;
    dpar_why why;
    double *x;
    memset(&d, 0, sizeof d);
    d.own_count = 2;
    d.ghost_count = 3;
    d.ghost_id = ghost;
    d.timers = 1;
    d.bytes = 1;
    CHECK_INT(dpar_points_make(c, &d, &p, &why), DPAR_E_ROOM);
    bytes = why.bytes;
    CHECK(p == NULL && bytes > 0 && bytes < 2048);
    memory = zeroed_aligned(bytes, &whole);
    d.memory = memory;
    d.bytes = bytes - (c->rank == 0); /* too small on rank 0 only: all ranks fail */
    CHECK_INT(dpar_points_make(c, &d, &p, &why), DPAR_E_ROOM);
    CHECK(p == NULL && why.bytes == bytes && strstr(why.text, "desc.memory must have ") != NULL);
    d.memory = (char *)memory + 8;
    d.bytes = bytes;
    CHECK_INT(dpar_points_make(c, &d, &p, &why), DPAR_E_ROOM);
    CHECK(p == NULL && strstr(why.text, "begins 8 bytes past one") != NULL);
    d.memory = memory;
    CHECK_INT(dpar_points_make(c, &d, &p, &why), DPAR_OK);
    CHECK((void *)p == memory);
    CHECK(p && p->own_count == 2 && p->ghost_count == 3 && p->first_id == 2 * c->rank &&
          p->global_count == 2 * c->size);
    x = (double *)dpar_points_array(p, DPAR_F64, 1);
    CHECK(x != NULL && dpar_points_array(p, DPAR_F4, 1) == NULL);
    x[0] = 1.0 + (double)c->rank;
    x[1] = -x[0];
    CHECK_INT(dpar_points_exchange(p, x), DPAR_OK);
    CHECK(x[2] == 1.0 + (double)((c->rank + 1) % c->size) && x[3] == -x[2] && x[4] == x[2]);
    dpar_text_init(&t, text, sizeof text);
    dpar_points_report(p, &t);
    CHECK(strstr(text, "2 own values, 3 ghosts, 1 exchanges") &&
          strstr(text, "each exchange: packing"));
    CHECK(strstr(text, "  memory  ") || strstr(text, "messages  ") || strstr(text, "  itself  "));
    dpar_text_init(&t, text, sizeof text);
    CHECK_INT(dpar_points_draw(p, &t), DPAR_OK);
    CHECK(strstr(text, "values from") != NULL && strstr(text, "         3") != NULL);
    CHECK_INT(dpar_points_free(p), DPAR_OK);
    dpar_comm_release(c, x);
    free(whole);
}

/* Checks ids that differ only in high bits, as packed numbers do: planning must not take long. A
 * hash that multiplies once puts 600,000 of them into neighbouring ones of 2^19 places, so that
 * searches are long: more than 45 s instead of 0.2 s. */
static void high_bits(dpar_comm *c)
{
    enum { N = 300000, WITHIN_S = 20 };
    int64_t *own = (int64_t *)zeroed(N * sizeof *own),
            *ghost = (int64_t *)zeroed(N * sizeof *ghost);
    const int peer = (c->rank + 1) % c->size;
    const time_t began = time(NULL);
    dpar_points *p = NULL;
    dpar_why why;
    int64_t i;
    for (i = 0; i < N; i++) {
        own[i] = (i * c->size + c->rank) << 40;
        ghost[i] = (i * c->size + peer) << 40;
    }
    CHECK_INT(make_by_ids(c, own, N, ghost, N, &p, &why), DPAR_OK);
    CHECK(time(NULL) - began < WITHIN_S);
    CHECK_INT(dpar_points_free(p), DPAR_OK);
    free(own);
    free(ghost);
}

static int test(dpar_comm *c, void *arg)
{
    const int rounds = getenv("POINTS_ROUNDS") ? atoi(getenv("POINTS_ROUNDS")) : 60;
    (void)arg;
    random_worlds(c, rounds);
    faults(c);
    fuzz(c, 5 * rounds);
    wrong_calls(c);
    refused_again(c);
    rows(c);
    short_planes(c);
    full(c);
    long_run(c);
    again(c);
    if (c->size == 2) {
        high_bits(c);
    }
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, test, NULL, 6, 4, NULL);
}
