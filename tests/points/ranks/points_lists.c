/* SPDX-License-Identifier: MIT-0 */
/* Tests mixed arrays, unsent ghosts, and counts and ids of 32 bits against brute force. Every rank
 * knows the whole world that a seed makes: the role of each place of each rank, and the pairs of
 * places between which each two ranks send values. The expected result is looked up there.
 *     ./points_lists [processes|threads] [ranks]        without arguments: both, 1 to 6 and 1 to 4
 */
#include "dpar_points.h"
#include "rank_program.h"

enum { PLACES = 48, RANKS = 8, VECTORS = 3, COMPONENTS = 3, NOBODY = -1 };

/* ---- a world --------------------------------------------------------------------------------- */

enum { MIXED, BY_LISTS, BY_RANGE, BY_DIRECTORY, BY_OWNER, KINDS };

typedef struct world {
    int ranks, kind, order;
    int places[RANKS], own[RANKS]; /* own: places that are not in a receive_index or ghost_id */
    int is_ghost[RANKS][PLACES];
    int owner[RANKS][PLACES], owner_at[RANKS][PLACES]; /* of ghosts; NOBODY if it is not sent */
    int64_t id[RANKS][PLACES];
    int given[RANKS]; /* ghosts in the order in which the caller lists them: place = given_at */
    int given_at[RANKS][PLACES];
    uint32_t shuffle;
} world;

/* Decides the role of each place. Unless the array is mixed, ghosts follow the own values. */
static void set_roles(world *w, uint64_t *seed)
{
    int r, i;
    for (r = 0; r < w->ranks; r++) {
        const int from = (int)lot_below(seed, 5); /* 0: no own values, 4: no ghosts */
        w->places[r] = (int)lot_below(seed, PLACES + 1);
        for (i = 0; i < w->places[r]; i++) {
            w->is_ghost[r][i] = lot_below(seed, 4) >= from;
            w->own[r] += !w->is_ghost[r][i];
        }
        for (i = 0; i < w->places[r] && w->kind != MIXED; i++) {
            w->is_ghost[r][i] = i >= w->own[r];
        }
    }
}

static void choose_owners(world *w, uint64_t *seed)
{
    int r, i, o, k;
    for (r = 0; r < w->ranks; r++) {
        for (i = 0; i < w->places[r]; i++) {
            o = (int)lot_below(seed, w->ranks);
            k = (int)lot_below(seed, PLACES);
            w->owner[r][i] = NOBODY;
            if (w->is_ghost[r][i] && k < w->places[o] && !w->is_ghost[o][k]) {
                w->owner[r][i] = o;
                w->owner_at[r][i] = k;
            }
        }
    }
}

/* Numbers own values: consecutively, or by any 32-bit numbers. Unsent ghosts get other numbers. */
static void choose_ids(world *w, uint64_t *seed)
{
    int64_t next = 0, strange = -1;
    int r, i;
    for (r = 0; r < w->ranks; r++) {
        for (i = 0; i < w->places[r]; i++) {
            if (!w->is_ghost[r][i]) {
                w->id[r][i] = w->kind == BY_RANGE ? next : next * 1000 + lot_below(seed, 1000);
                next++;
            }
        }
    }
    for (r = 0; r < w->ranks; r++) {
        for (i = 0; i < w->places[r]; i++) {
            if (w->is_ghost[r][i]) {
                w->id[r][i] =
                    w->owner[r][i] == NOBODY ? strange-- : w->id[w->owner[r][i]][w->owner_at[r][i]];
            }
        }
    }
}

static int is_before(const world *w, int r, int a, int b)
{
    const int x = w->owner[r][a] == NOBODY ? RANKS : w->owner[r][a];
    const int y = w->owner[r][b] == NOBODY ? RANKS : w->owner[r][b];
    if (x != y) {
        return x < y;
    }
    return x < RANKS && w->id[r][a] != w->id[r][b] ? w->id[r][a] < w->id[r][b] : a < b;
}

/* Stores the order in which callers list their ghosts, then reorders the world's places as
 * DPAR_POINTS_ORDER_BY_OWNER does. */
static void sort_by_owner(world *w)
{
    const world was = *w;
    int r, a, b;
    for (r = 0; r < w->ranks; r++) {
        for (a = w->own[r]; a < w->places[r]; a++) {
            int at = w->own[r];
            for (b = w->own[r]; b < w->places[r]; b++) {
                at += is_before(&was, r, b, a);
            }
            w->given_at[r][a] = at;
            w->owner[r][at] = was.owner[r][a];
            w->owner_at[r][at] = was.owner_at[r][a];
            w->id[r][at] = was.id[r][a];
        }
    }
}

static void build(world *w, int ranks, int kind, uint64_t *seed)
{
    int r, i;
    memset(w, 0, sizeof *w);
    w->ranks = ranks;
    w->kind = kind;
    w->shuffle = (uint32_t)lot_next(seed);
    set_roles(w, seed);
    choose_owners(w, seed);
    choose_ids(w, seed);
    for (r = 0; r < ranks; r++) {
        for (i = 0; i < w->places[r]; i++) {
            w->given_at[r][i] = i;
        }
    }
    if (kind >= BY_RANGE && lot_below(seed, 2)) {
        w->order = DPAR_POINTS_ORDER_BY_OWNER;
        sort_by_owner(w);
    }
}

/* Lists the ghosts of `reader` that `owner` sends, in the order in which they are sent: any order
 * for lists, that of the ghosts for ids. Returns how many there are. */
static int pairs(const world *w, int owner, int reader, int *ghost)
{
    int i, k, n = 0;
    for (i = 0; i < w->places[reader]; i++) {
        if (w->is_ghost[reader][i] && w->owner[reader][i] == owner) {
            ghost[n++] = i;
        }
    }
    for (i = 1; i < n && w->kind <= BY_LISTS; i++) {
        const int other =
            (int)(scrambled(w->shuffle + (uint32_t)i, owner * RANKS + reader) % (uint32_t)(i + 1));
        k = ghost[i];
        ghost[i] = ghost[other];
        ghost[other] = k;
    }
    return n;
}

/* ---- as a plan ------------------------------------------------------------------------------- */

typedef struct description {
    int32_t peer[RANKS], send_at[RANKS * PLACES], receive_at[PLACES], owner[PLACES];
    int64_t sends[RANKS], receives[RANKS], own_id[PLACES], ghost_id[PLACES];
    int32_t sends32[RANKS], receives32[RANKS], own_id32[PLACES], ghost_id32[PLACES];
    dpar_points_lists lists;
    dpar_points_desc desc;
} description;

static void list_pairs(const world *w, int me, description *d, int narrow)
{
    int ghost[PLACES], r, i, n, s = 0, t = 0;
    for (r = w->ranks - 1; r >= 0; r--) {
        const int32_t k = d->lists.peer_count;
        n = pairs(w, me, r, ghost);
        for (i = 0; i < n; i++) {
            d->send_at[s++] = w->owner_at[r][ghost[i]];
        }
        d->sends[k] = d->sends32[k] = n;
        n = pairs(w, r, me, ghost);
        for (i = 0; i < n; i++) {
            d->receive_at[t++] = ghost[i];
        }
        d->receives[k] = d->receives32[k] = n;
        d->peer[k] = r;
        d->lists.peer_count += d->sends[k] + d->receives[k] > 0;
    }
    d->lists.peer = d->peer;
    d->lists.send_count = narrow & 1 ? NULL : d->sends;
    d->lists.send_count32 = narrow & 1 ? d->sends32 : NULL;
    d->lists.receive_count = narrow & 2 ? NULL : d->receives;
    d->lists.receive_count32 = narrow & 2 ? d->receives32 : NULL;
    d->lists.send_index = d->send_at;
    d->lists.receive_index = d->receive_at;
    d->desc.lists = &d->lists;
}

static void list_ids(const world *w, int me, description *d, int narrow)
{
    const int own = w->own[me];
    int i;
    for (i = 0; i < own; i++) {
        d->own_id[i] = d->own_id32[i] = (int32_t)w->id[me][i];
    }
    for (i = own; i < w->places[me]; i++) {
        const int at = w->given_at[me][i];
        d->ghost_id[i - own] = d->ghost_id32[i - own] = (int32_t)w->id[me][at];
        d->owner[i - own] = w->owner[me][at];
    }
    d->desc.ghost_id = narrow & 1 ? NULL : d->ghost_id;
    d->desc.ghost_id32 = narrow & 1 ? d->ghost_id32 : NULL;
    if (w->kind != BY_RANGE) {
        d->desc.own_id = narrow & 2 ? NULL : d->own_id;
        d->desc.own_id32 = narrow & 2 ? d->own_id32 : NULL;
    }
    d->desc.owner = w->kind == BY_OWNER ? d->owner : NULL;
}

static void describe(const world *w, int me, description *d, int narrow)
{
    memset(d, 0, sizeof *d);
    d->desc.order = w->order;
    if (w->kind <= BY_LISTS) {
        list_pairs(w, me, d, narrow);
    } else {
        list_ids(w, me, d, narrow);
    }
    if (w->kind == MIXED) {
        d->desc.mixed_count = w->places[me];
        return;
    }
    d->desc.own_count = w->own[me];
    d->desc.ghost_count = w->places[me] - w->own[me];
    d->desc.unsent_ghosts = 1;
}

/* ---- vectors --------------------------------------------------------------------------------- */

static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_I64, DPAR_U8};

/* Makes vectors: interleaved, padded, in planes; ghosts separate; registered or not. */
static void make(dpar_comm *c, dpar_points_field *v, void **registered, int n, uint64_t *seed)
{
    int i;
    memset(v, 0, (size_t)n * sizeof *v);
    for (i = 0; i < n; i++) {
        const uint64_t mine = lot_next(seed) + (uint64_t)c->rank * 7; /* each rank differently */
        const int64_t bytes = (PLACES + 1) * 2 * COMPONENTS * 8;
        v[i].type = types[lot_below(seed, 4)];
        v[i].components = (int32_t)lot_below(seed, COMPONENTS + 1);
        if (mine % 3 == 1) {
            v[i].stride = (v[i].components ? v[i].components : 1) + 1;
        } else if (mine % 3 == 2) {
            v[i].component_stride = PLACES + 1;
        }
        if (mine / 4 % 2) {
            CHECK_INT(dpar_comm_alloc(c, bytes, &v[i].data), DPAR_OK);
            registered[i] = v[i].data;
        } else {
            v[i].data = zeroed(bytes);
            registered[i] = NULL;
        }
        v[i].ghosts = mine / 8 % 4 == 0 ? zeroed(bytes) : NULL;
    }
}

static void drop(dpar_comm *c, const dpar_points_field *v, void **registered, int n)
{
    int i;
    for (i = 0; i < n; i++) {
        if (registered[i]) {
            dpar_comm_release(c, registered[i]);
        } else {
            free(v[i].data);
        }
        free(v[i].ghosts);
    }
}

static unsigned char *number(const world *w, int me, const dpar_points_field *v, int i, int k)
{
    const int64_t bytes = dpar_type_bytes(v->type), n = v->components ? v->components : 1;
    const int64_t stride = v->stride ? v->stride : v->component_stride ? 1 : n;
    const int64_t apart = v->component_stride ? v->component_stride : 1;
    int64_t at = i;
    unsigned char *base = (unsigned char *)v->data;
    if (v->ghosts && w->is_ghost[me][i] && (w->kind != MIXED || w->owner[me][i] != NOBODY)) {
        base = (unsigned char *)v->ghosts;
        at -= w->kind == MIXED ? 0 : w->own[me];
    }
    return base + bytes * (at * stride + k * apart);
}

static double get(int32_t type, const unsigned char *at)
{
    double d;
    float f;
    int64_t l;
    switch (type) {
    case DPAR_F64: memcpy(&d, at, 8); return d;
    case DPAR_F32: memcpy(&f, at, 4); return (double)f;
    case DPAR_I64: memcpy(&l, at, 8); return (double)l;
    default: return *at;
    }
}

static void put(int32_t type, unsigned char *at, double value)
{
    const float f = (float)value;
    const int64_t l = (int64_t)value;
    switch (type) {
    case DPAR_F64: memcpy(at, &value, 8); break;
    case DPAR_F32: memcpy(at, &f, 4); break;
    case DPAR_I64: memcpy(at, &l, 8); break;
    default: *at = (unsigned char)l; break;
    }
}

/* Returns small whole numbers, which all types hold; for F64 thirds, whose sums depend on their
 * order. */
static double content(int32_t type, int round, int rank, int i, int vector, int k)
{
    const uint32_t h = scrambled((uint32_t)(round * 31 + vector * 7 + k), rank * 1000 + i);
    return type == DPAR_F64 ? (double)(h % 100000) / 3.0 : (double)(h % 6);
}

static void fill(const world *w, int me, const dpar_points_field *v, int n, int round)
{
    int i, j, k;
    for (j = 0; j < n; j++) {
        for (i = 0; i < w->places[me]; i++) {
            for (k = 0; k < (v[j].components ? v[j].components : 1); k++) {
                put(v[j].type, number(w, me, &v[j], i, k), content(v[j].type, round, me, i, j, k));
            }
        }
    }
}

/* Returns own op the ghosts of rank 0 in the order in which they are sent, of rank 1, ... */
static double combined(const world *w, int round, int op, int me, int i, int32_t type, int j, int k)
{
    double sum = content(type, round, me, i, j, k);
    int ghost[PLACES], r, g;
    for (r = 0; r < w->ranks; r++) {
        const int n = pairs(w, me, r, ghost);
        for (g = 0; g < n; g++) {
            const double add = content(type, round, r, ghost[g], j, k);
            if (w->owner_at[r][ghost[g]] != i) {
                continue;
            }
            if (op == DPAR_SUM) {
                sum += add;
            } else if (op == DPAR_MAX ? add > sum : add < sum) {
                sum = add;
            }
            sum = type == DPAR_U8 ? (double)((int)sum & 255) : sum;
        }
    }
    return sum;
}

enum { EXCHANGED, REDUCED };

static void compare(const world *w, int me, const dpar_points_field *v, int n, int round, int op,
                    int what)
{
    int i, j, k;
    for (j = 0; j < n; j++) {
        for (k = 0; k < (v[j].components ? v[j].components : 1); k++) {
            for (i = 0; i < w->places[me]; i++) {
                double want = content(v[j].type, round, me, i, j, k);
                if (w->is_ghost[me][i] && w->owner[me][i] != NOBODY) {
                    want = what == REDUCED ? 0.0
                                           : content(v[j].type, round, w->owner[me][i],
                                                     w->owner_at[me][i], j, k);
                } else if (!w->is_ghost[me][i] && what == REDUCED) {
                    want = combined(w, round, op, me, i, v[j].type, j, k);
                }
                CHECK(get(v[j].type, number(w, me, &v[j], i, k)) == want);
            }
        }
    }
}

/* ---- random worlds --------------------------------------------------------------------------- */

static void exchange(dpar_points *p, const world *w, int me, uint64_t *seed)
{
    static const int ops[3] = {DPAR_SUM, DPAR_MAX, DPAR_MIN};
    dpar_points_field v[VECTORS];
    void *registered[VECTORS];
    dpar_why why;
    int round;
    for (round = 0; round < 4; round++) {
        const int n = 1 + (int)lot_below(seed, VECTORS), op = ops[lot_below(seed, 3)];
        make(p->comm, v, registered, n, seed);
        fill(w, me, v, n, round);
        CHECK_INT(dpar_points_check(p, v, n, DPAR_POINTS_POISON, &why), DPAR_OK);
        CHECK_INT(dpar_points_exchange_many(p, v, n), DPAR_OK);
        compare(w, me, v, n, round, 0, EXCHANGED);
        CHECK_INT(dpar_points_check(p, v, n, DPAR_POINTS_UNFILLED, &why), DPAR_OK);
        CHECK_INT(dpar_points_check(p, v, n, DPAR_POINTS_STALE, &why), DPAR_OK);
        fill(w, me, v, n, round);
        CHECK_INT(dpar_points_reduce_many(p, v, n, op), DPAR_OK);
        compare(w, me, v, n, round, op, REDUCED);
        drop(p->comm, v, registered, n);
    }
}

/* Compares rows with random columns to what each column is. */
static void rows(const dpar_points *p, const world *w, int me, uint64_t own_seed)
{
    enum { ROWS = 20 };
    int32_t begin32[ROWS + 1] = {0}, column[3 * ROWS], row[ROWS], row32[ROWS];
    int64_t begin[ROWS + 1] = {0}, interior = -1, interior32 = -1, i, k, at = 0;
    int reads[ROWS] = {0}, pass;
    for (i = 0; i < ROWS; i++) {
        begin[i + 1] = begin[i] + (w->places[me] > 0 ? lot_below(&own_seed, 4) : 0);
        begin32[i + 1] = (int32_t)begin[i + 1];
        for (k = begin[i]; k < begin[i + 1]; k++) {
            column[k] = (int32_t)lot_below(&own_seed, w->places[me]);
            reads[i] |= w->is_ghost[me][column[k]] && w->owner[me][column[k]] != NOBODY;
        }
    }
    CHECK_INT(dpar_points_interior_rows(p, ROWS, begin, column, row, &interior), DPAR_OK);
    CHECK_INT(dpar_points_interior_rows32(p, ROWS, begin32, column, row32, &interior32), DPAR_OK);
    CHECK_INT(interior, interior32);
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < ROWS; i++) {
            if (reads[i] == pass) {
                CHECK_INT(row[at], i);
                CHECK_INT(row32[at++], i);
            }
        }
        CHECK(pass == 1 || interior == at);
    }
}

/* Checks the numbers of the public struct, and the local indices of ids in both widths. */
static void numbering(const dpar_points *p, const world *w, int me)
{
    int64_t received = 0, whole = 0, id[PLACES];
    int32_t at[PLACES], both[PLACES];
    int r, i;
    for (r = 0; r < w->ranks; r++) {
        for (i = 0; i < w->places[r]; i++) {
            const int sent = w->is_ghost[r][i] && w->owner[r][i] != NOBODY;
            whole += w->kind == MIXED ? !sent : i < w->own[r];
            received += r == me && sent;
        }
    }
    CHECK_INT(p->global_count, whole);
    CHECK_INT(p->own_count + p->ghost_count, w->places[me]);
    CHECK_INT(p->ghost_count, w->kind == MIXED ? received : w->places[me] - w->own[me]);
    for (i = 0; i < w->places[me]; i++) {
        id[i] = w->id[me][i];
        both[i] = (int32_t)id[i];
    }
    if (w->kind <= BY_LISTS) {
        CHECK_INT(dpar_points_to_local32(p, both, 1, at), DPAR_E_ARG);
        return;
    }
    CHECK_INT(dpar_points_to_local(p, id, w->places[me], at), DPAR_OK);
    CHECK_INT(dpar_points_to_local32(p, both, w->places[me], both), DPAR_OK);
    for (i = 0; i < w->places[me]; i++) {
        CHECK_INT(at[i], both[i]);
        CHECK(at[i] <= i && w->id[me][at[i]] == id[i]);
    }
}

/* Sets the memory of a description to the bytes that it needs, and checks that fewer are refused.
 * Returns the pointer to free. */
static void *give_memory(dpar_comm *c, dpar_points_desc *d)
{
    dpar_points *p = NULL;
    dpar_why why;
    void *whole;
    d->bytes = 1;
    CHECK_INT(dpar_points_make(c, d, &p, &why), DPAR_E_ROOM);
    d->bytes = why.bytes;
    d->memory = zeroed_aligned(why.bytes, &whole);
    d->bytes -= c->rank == c->size - 1;
    CHECK_INT(dpar_points_make(c, d, &p, &why), DPAR_E_ROOM);
    d->bytes = why.bytes;
    return whole;
}

static void random_worlds(dpar_comm *c, int rounds)
{
    uint64_t seed = 777 + (uint64_t)c->size;
    world *w = (world *)zeroed(sizeof *w);
    description *d = (description *)zeroed(sizeof *d);
    int i;
    for (i = 0; i < rounds && c->status == DPAR_OK; i++) {
        dpar_points *p = NULL;
        dpar_why why;
        void *memory = NULL;
        build(w, c->size, i % KINDS, &seed);
        describe(w, c->rank, d, (int)(lot_next(&seed) + (uint64_t)c->rank) & 3);
        if (lot_below(&seed, 4) == 0) {
            memory = give_memory(c, &d->desc);
        }
        d->desc.method = (int32_t)lot_below(&seed, 4);
        d->desc.run_bytes = lot_below(&seed, 2) * 16;
        why.text[0] = 0;
        CHECK_INT(dpar_points_make(c, &d->desc, &p, &why), DPAR_OK);
        memset(d, 0, sizeof *d); /* the plan must not read it later */
        if (!p) {
            fprintf(stderr, "rank %d: %s\n", (int)c->rank, why.text);
            break;
        }
        numbering(p, w, c->rank);
        rows(p, w, c->rank, seed);
        exchange(p, w, c->rank, &seed);
        CHECK_INT(dpar_points_free(p), DPAR_OK);
        free(memory);
    }
    free(d);
    free(w);
}

/* Changes one number of this rank's description. Arrays have memory for all resulting counts. */
static void spoil(description *d, uint64_t *seed)
{
    const int64_t any = (int64_t)lot_next(seed) >> lot_below(seed, 64);
    const int64_t one = lot_below(seed, 3) - 1, at = lot_below(seed, 8);
    switch (lot_below(seed, 12)) {
    case 0: d->desc.mixed_count = one ? d->desc.mixed_count - at : -any; break;
    case 1: d->desc.unsent_ghosts = 0; break;
    case 2: d->desc.own_count = one && d->desc.own_count > 0 ? d->desc.own_count - 1 : -1; break;
    case 3: d->desc.ghost_count = d->desc.ghost_count > 0 ? d->desc.ghost_count - 1 : -1; break;
    case 4: d->lists.peer_count = (int32_t)(one ? d->lists.peer_count - one : any); break;
    case 5: d->sends[at] = d->sends32[at] = (int32_t)(d->sends[at] - at); break;
    case 6: d->receives[at] = d->receives32[at] = (int32_t)(d->receives[at] - at); break;
    case 7: d->send_at[at] = (int32_t)(one ? d->receive_at[at] : any); break;
    case 8: d->receive_at[at] = (int32_t)(one ? d->receive_at[at] + one : any); break;
    case 9: d->ghost_id[at] = d->ghost_id32[at] = (int32_t)(one ? d->own_id[0] : any); break;
    case 10: d->owner[at] = (int32_t)(one ? d->owner[at] + one : any); break;
    default: d->own_id[at] = d->own_id32[at] = (int32_t)(one ? d->own_id[0] : any); break;
    }
}

/* Checks that if one rank describes something wrong, all ranks plan or all are refused with a
 * message. */
static void fuzz(dpar_comm *c, int rounds)
{
    uint64_t seed = 4321 + (uint64_t)c->size;
    world *w = (world *)zeroed(sizeof *w);
    description *d = (description *)zeroed(sizeof *d);
    int i;
    for (i = 0; i < rounds && c->status == DPAR_OK; i++) {
        dpar_points *p = NULL;
        dpar_status status;
        dpar_why why;
        build(w, c->size, i % KINDS, &seed);
        describe(w, c->rank, d, (int)lot_below(&seed, 4));
        if ((int)lot_below(&seed, c->size) == c->rank) {
            uint64_t own_seed = seed;
            spoil(d, &own_seed);
        }
        why.text[0] = 0;
        status = dpar_points_make(c, &d->desc, &p, &why);
        CHECK((status == DPAR_OK) == (why.text[0] == 0));
        CHECK_INT(all_sum(c, status == DPAR_OK), status == DPAR_OK ? c->size : 0);
        if (p) {
            CHECK_INT(dpar_points_free(p), DPAR_OK);
        }
    }
    free(d);
    free(w);
}

/* ---- uses as codes have them ----------------------------------------------------------------- */

/* Open ends, as in lattices with open boundaries: ranks form a line, and each has a ghost below and
 * a ghost above its values. Nobody sends the first rank's lower and the last rank's upper ghost. */
static void open_ends(dpar_comm *c)
{
    const int32_t send_at[2] = {0, 3}, receive_at[2] = {4, 5}, up = 1;
    const int lower = c->rank > 0, upper = c->rank < c->size - 1;
    int32_t peer[2], count[2] = {1, 1};
    double x[6] = {1.0, 2.0, 3.0, 4.0, -7.0, -8.0};
    dpar_points_lists lists;
    dpar_points_desc desc;
    dpar_points *p = NULL;
    dpar_why why;
    memset(&lists, 0, sizeof lists);
    memset(&desc, 0, sizeof desc);
    peer[0] = lower ? c->rank - 1 : c->rank + 1;
    peer[1] = c->rank + 1;
    lists.peer_count = lower + upper;
    lists.peer = peer;
    lists.send_count32 = lists.receive_count32 = count;
    lists.send_index = send_at + (lower ? 0 : up);
    lists.receive_index = receive_at + (lower ? 0 : up);
    desc.own_count = 4;
    desc.ghost_count = 2;
    desc.lists = &lists;
    CHECK_INT(dpar_points_make(c, &desc, &p, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "but ghost_count is 2; if no rank sends the other ghosts, set "
                           "unsent_ghosts") != NULL);
    desc.unsent_ghosts = 1;
    CHECK_INT(dpar_points_make(c, &desc, &p, &why), DPAR_OK);
    if (!p) {
        return;
    }
    CHECK_INT(dpar_points_exchange(p, x), DPAR_OK);
    CHECK(x[4] == (lower ? 4.0 : -7.0) && x[5] == (upper ? 1.0 : -8.0));
    CHECK_INT(dpar_points_reduce(p, x), DPAR_OK);
    CHECK(x[0] == (lower ? 2.0 : 1.0) && x[3] == (upper ? 8.0 : 4.0));
    CHECK(x[4] == (lower ? 0.0 : -7.0) && x[5] == (upper ? 0.0 : -8.0));
    CHECK_INT(dpar_points_free(p), DPAR_OK);
}

/* Tiles with a border in one array, as codes with tiles store them: a ring of tiles in x, with
 * walls in y. Rows of TILE_X + 2 values, of which the first and the last are ghosts. */
static void tiles(dpar_comm *c)
{
    enum { TILE_X = 4, TILE_Y = 3, ROW = TILE_X + 2, ALL = ROW * (TILE_Y + 2) };
    const int lower = (c->rank + c->size - 1) % c->size, upper = (c->rank + 1) % c->size;
    int32_t peer[2], count[2] = {TILE_Y, TILE_Y}, send_at[2 * TILE_Y], receive_at[2 * TILE_Y];
    dpar_points_lists lists;
    dpar_points_desc desc;
    dpar_points *p = NULL;
    dpar_why why;
    double *x;
    int i, y;
    memset(&lists, 0, sizeof lists);
    memset(&desc, 0, sizeof desc);
    for (y = 0; y < TILE_Y; y++) {
        const int row = ROW * (y + 1);
        send_at[y] = row + 1;
        send_at[TILE_Y + y] = row + TILE_X;
        receive_at[y] = row + (lower == upper ? ROW - 1 : 0);
        receive_at[TILE_Y + y] = row + (lower == upper ? 0 : ROW - 1);
    }
    peer[0] = lower;
    peer[1] = upper;
    lists.peer = peer;
    lists.peer_count = lower == upper ? 1 : 2;
    if (lower == upper) {
        count[0] = 2 * TILE_Y;
    }
    lists.send_count32 = lists.receive_count32 = count;
    lists.send_index = send_at;
    lists.receive_index = receive_at;
    desc.mixed_count = ALL;
    desc.lists = &lists;
    CHECK_INT(dpar_points_make(c, &desc, &p, &why), DPAR_OK);
    x = (double *)dpar_points_array(p, DPAR_F64, 1);
    for (i = 0; i < ALL && x; i++) {
        x[i] = 100.0 * c->rank + i;
    }
    CHECK_INT(dpar_points_exchange(p, x), DPAR_OK);
    for (i = 0; i < ALL && x; i++) {
        double want = 100.0 * c->rank + i;
        if (i / ROW >= 1 && i / ROW <= TILE_Y && i % ROW == 0) {
            want = 100.0 * lower + i + TILE_X;
        } else if (i / ROW >= 1 && i / ROW <= TILE_Y && i % ROW == ROW - 1) {
            want = 100.0 * upper + i - TILE_X;
        }
        CHECK(x[i] == want);
    }
    CHECK_INT(dpar_points_free(p), DPAR_OK);
    dpar_comm_release(c, x);
}

/* A sparse matrix with 32-bit ids and offsets, whose columns are converted in place: the second
 * difference of squares on a line, with walls whose values the program itself sets. */
static void matrix(dpar_comm *c)
{
    enum { N = 5 };
    const int32_t first = N * c->rank, whole = N * c->size;
    int32_t begin[N + 1], column[3 * N], ghost[2], row[N], i, k;
    double x[N + 2], y[N];
    int64_t interior = -1;
    dpar_points_desc desc;
    dpar_points *p = NULL;
    dpar_why why;
    memset(&desc, 0, sizeof desc);
    ghost[0] = first - 1;
    ghost[1] = first + N;
    for (i = 0; i < N; i++) {
        begin[i] = 3 * i;
        column[3 * i] = first + i;
        column[3 * i + 1] = first + i - 1;
        column[3 * i + 2] = first + i + 1;
        x[i] = (double)(first + i) * (first + i);
    }
    begin[N] = 3 * N;
    x[N] = first == 0 ? 1.0 : 0.0; /* the square of -1 */
    x[N + 1] = (double)whole * whole;
    desc.own_count = N;
    desc.ghost_count = 2;
    desc.ghost_id32 = ghost;
    CHECK_INT(dpar_points_make(c, &desc, &p, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "is owned by no rank, which needs unsent_ghosts"));
    desc.unsent_ghosts = 1;
    CHECK_INT(dpar_points_make(c, &desc, &p, &why), DPAR_OK);
    if (!p) {
        return;
    }
    CHECK_INT(dpar_points_to_local32(p, column, 3 * N, column), DPAR_OK);
    CHECK_INT(dpar_points_interior_rows32(p, N, begin, column, row, &interior), DPAR_OK);
    CHECK_INT(interior, N - (c->rank > 0) - (c->rank < c->size - 1));
    CHECK_INT(dpar_points_exchange(p, x), DPAR_OK);
    for (i = 0; i < N; i++) {
        y[i] = -3.0 * x[column[3 * i]];
        for (k = begin[i]; k < begin[i + 1]; k++) {
            y[i] += x[column[k]];
        }
        CHECK(y[i] == 2.0);
    }
    column[0] = whole + 3;
    CHECK_INT(dpar_points_to_local32(p, column, 1, column), DPAR_E_ARG);
    CHECK(column[0] == -1 && strstr(c->why.text, "ids[0] is ") != NULL);
    CHECK_INT(dpar_points_free(p), DPAR_OK);
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

/* Each fault is on the last rank only. Each rank sends two values to itself. */
static void wrong_lists(dpar_comm *c)
{
    const int last = c->rank == c->size - 1;
    int32_t peer[1], send_at[2] = {0, 2}, receive_at[2] = {1, 3};
    int32_t count32[1] = {2};
    int64_t count[1] = {2};
    dpar_points_lists lists;
    dpar_points_desc d;
    memset(&lists, 0, sizeof lists);
    memset(&d, 0, sizeof d);
    peer[0] = c->rank;
    lists.peer_count = 1;
    lists.peer = peer;
    lists.send_count = lists.receive_count = count;
    lists.send_index = send_at;
    lists.receive_index = receive_at;
    d.lists = &lists;
    d.mixed_count = 4;
    receive_at[1] = last ? 1 : 3;
    refused(c, &d, DPAR_E_ARG, "receive_index lists 1 twice");
    receive_at[1] = last ? 4 : 3;
    refused(c, &d, DPAR_E_ARG, "receive_index[1] is 4, but ghosts are 0 to 3");
    receive_at[1] = last ? -1 : 3;
    refused(c, &d, DPAR_E_ARG, "receive_index[1] is -1, but ghosts are 0 to 3");
    receive_at[1] = 3;
    send_at[1] = last ? 4 : 2;
    refused(c, &d, DPAR_E_ARG, "is 4, but mixed_count is 4");
    send_at[1] = last ? 3 : 2;
    refused(c, &d, DPAR_E_ARG, "send_index[1] is 3, which receive_index lists too");
    send_at[1] = 2;
    lists.receive_index = last ? NULL : receive_at;
    refused(c, &d, DPAR_E_ARG, "receive_index is NULL, but mixed_count is 4");
    lists.receive_index = receive_at;
    d.mixed_count = last ? 1 : 4;
    refused(c, &d, DPAR_E_ARG, "is 2, but mixed_count is 1");
    d.mixed_count = last ? -1 : 4;
    refused(c, &d, DPAR_E_ARG, "or mixed_count -1 is negative");
    d.mixed_count = last ? INT64_C(1) << 31 : 4;
    refused(c, &d, DPAR_E_RANGE, "mixed_count 2147483648 is more");
    d.mixed_count = 4;
    d.own_count = last ? 3 : 0;
    refused(c, &d, DPAR_E_ARG, "mixed_count is 4: lists must be set, own_count 3 and");
    d.own_count = 0;
    lists.send_count32 = last ? count32 : NULL;
    refused(c, &d, DPAR_E_ARG, "send_count and send_count32 are both set");
    lists.send_count32 = NULL;
    lists.receive_count32 = last ? count32 : NULL;
    refused(c, &d, DPAR_E_ARG, "receive_count and receive_count32 are both set");
    lists.receive_count32 = NULL;
    lists.send_count = last ? NULL : count;
    refused(c, &d, DPAR_E_ARG, "send_count or receive_count is NULL");
    lists.send_count = NULL;
    lists.send_count32 = count32;
    count32[0] = last ? -1 : 2;
    refused(c, &d, DPAR_E_ARG, "its send_count -1, or its receive_count, is out of range");
    count32[0] = 2;
    lists.peer_count = last ? c->size + 1 : 1;
    refused(c, &d, DPAR_E_ARG, "peer_count is ");
    lists.peer_count = last ? -1 : 1;
    refused(c, &d, DPAR_E_ARG, "peer_count is -1, but there are ");
    lists.peer_count = 1;
    d.mixed_count = 0;
    d.own_count = 3;
    d.ghost_count = 3;
    d.unsent_ghosts = 1;
    receive_at[0] = last ? 2 : 3;
    receive_at[1] = 4;
    refused(c, &d, DPAR_E_ARG,
            "receive_index[0] is 2, but ghosts are 3 to 5; mixed_count allows any other place");
    receive_at[0] = 3;
    d.ghost_count = last ? 1 : 3;
    refused(c, &d, DPAR_E_ARG, "the receive_counts add up to 2 (send_counts: 2)");
}

static void wrong_ids(dpar_comm *c)
{
    const int last = c->rank == c->size - 1;
    const int64_t own[1] = {c->rank}, ghost[1] = {(c->rank + 1) % c->size};
    const int32_t own32[1] = {c->rank}, ghost32[1] = {(c->rank + 1) % c->size};
    int32_t owner[1];
    dpar_points_desc d;
    memset(&d, 0, sizeof d);
    owner[0] = (c->rank + 1) % c->size;
    d.own_count = d.ghost_count = 1;
    d.own_id = own;
    d.ghost_id = ghost;
    d.own_id32 = last ? own32 : NULL;
    refused(c, &d, DPAR_E_ARG, "own_id and own_id32 are both set, but only one of them is allowed");
    d.own_id32 = NULL;
    d.ghost_id32 = last ? ghost32 : NULL;
    refused(c, &d, DPAR_E_ARG, "ghost_id and ghost_id32 are both set");
    d.ghost_id32 = NULL;
    d.mixed_count = last;
    refused(c, &d, DPAR_E_ARG, "mixed_count is 1: lists must be set");
    d.mixed_count = 0;
    d.owner = owner;
    owner[0] = last ? -1 : owner[0];
    refused(c, &d, DPAR_E_ARG, "owner -1 is not one of the ");
    d.unsent_ghosts = 1;
    owner[0] = last ? -2 : owner[0];
    refused(c, &d, DPAR_E_ARG, "owner -2 is not one of the ");
}

/* Checks that a vector with separate ghosts is found stale by its own place. */
static void stale(dpar_comm *c)
{
    int32_t peer[1], count[1] = {1}, send_at[1] = {2}, receive_at[1] = {1};
    double x[3] = {1.0, 2.0, 3.0};
    dpar_points_lists lists;
    dpar_points_field v;
    dpar_points_desc d;
    dpar_points *p = NULL;
    dpar_why why;
    memset(&lists, 0, sizeof lists);
    memset(&d, 0, sizeof d);
    memset(&v, 0, sizeof v);
    peer[0] = c->rank;
    lists.peer_count = 1;
    lists.peer = peer;
    lists.send_count32 = lists.receive_count32 = count;
    lists.send_index = send_at;
    lists.receive_index = receive_at;
    d.lists = &lists;
    d.mixed_count = 3;
    CHECK_INT(dpar_points_make(c, &d, &p, &why), DPAR_OK);
    v.type = DPAR_F64;
    v.data = x;
    CHECK_INT(dpar_points_check(p, &v, 1, DPAR_POINTS_STALE, &why), DPAR_E_MISMATCH);
    CHECK(strstr(why.text, "vector 0: ghost 1, local index 1 of rank ") != NULL);
    CHECK_INT(dpar_points_check(p, &v, 1, DPAR_POINTS_POISON, &why), DPAR_OK);
    CHECK(x[0] == 1.0 && x[1] != x[1] && x[2] == 3.0);
    CHECK_INT(dpar_points_check(p, &v, 1, DPAR_POINTS_UNFILLED, &why), DPAR_E_ARG);
    CHECK_INT(dpar_points_exchange(p, x), DPAR_OK);
    CHECK(x[0] == 1.0 && x[1] == 3.0 && x[2] == 3.0);
    CHECK_INT(dpar_points_free(p), DPAR_OK);
}

static int test(dpar_comm *c, void *arg)
{
    const int rounds = getenv("POINTS_ROUNDS") ? atoi(getenv("POINTS_ROUNDS")) : 60;
    (void)arg;
    random_worlds(c, rounds);
    fuzz(c, 5 * rounds);
    open_ends(c);
    tiles(c);
    matrix(c);
    wrong_lists(c);
    wrong_ids(c);
    stale(c);
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, test, NULL, 6, 4, NULL);
}
