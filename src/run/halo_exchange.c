/* SPDX-License-Identifier: MIT-0 */
/* How an exchange runs. A box that goes from one rank to another is an item of either: the owner
 * lists what it sends (S), in the order of the walk, the holder of the halo what it receives (R),
 * by peer. Forward the owner packs and the holder takes; adjoint the holder packs and the owner
 * takes, in the order of S. What a rank packs for others lies in its staging memory, twice: the
 * exchanges take turns. Ranks that share memory tell each other in two words,
 *
 *     ready = exchange << 8 | kind    what I pack is packed, my arrays may be read
 *     done  = exchange                I have taken all that I take
 *
 * and staging memory of a turn is written again when those who read it are done with the exchange
 * before the last. With others one message each way goes. */
#include "halo_exchange.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../index/halo.h"
#include "../index/layout.h"
#include "../index/mesh.h"
#include "../index/redistribute.h"
#include "comm.h"
#include "kernel.h"
#include "os.h"
#include "shm.h"
#include "strided.h"
#include "world.h"

enum {
    DPARI_HX_DIMS = DPAR_MAX_DIMS + 1, /* the last: components */
    DPARI_HX_STEPS = DPAR_MAX_DIMS,    /* of an ordered exchange */
    DPARI_HX_SHORT = 64,               /* bytes of a run: two sides are walked together */
    DPARI_HX_NEAR = 64,                /* items to look through for the other side */
    DPARI_HX_HEAD = 8,                 /* words of a record, and for each field */
    DPARI_HX_WORDS = 2 * DPAR_MAX_DIMS + 2,
    DPARI_HX_OWN = 0, /* parts of a field: its own points, compact halos */
    DPARI_HX_HALOS = 1,
    DPARI_HX_PACKING = 0, /* what the time goes to */
    DPARI_HX_COPYING,
    DPARI_HX_WAITING
};

/* What a rank says to its peers, one for each step. */
typedef struct dpari_hx_line {
    uint64_t ready;
    uint64_t version; /* of the addresses of its arrays */
    char room_0[DPARI_LINE - 16];
    uint64_t done;
    char room_1[DPARI_LINE - 8];
} dpari_hx_line;

/* A field as one rank holds it. Steps in elements. */
typedef struct dpari_hx_array {
    const dpar_halo *h;
    int32_t rank, compact;
    int32_t reach[2]; /* may peers read it where it lies? */
    int32_t exists;
    int64_t low[DPAR_MAX_DIMS], own[DPAR_MAX_DIMS]; /* first own point in the local box; how many */
    int64_t origin[DPAR_MAX_DIMS], stride[DPAR_MAX_DIMS], component;
} dpari_hx_array;

/* A box in an array: from index 0 of the box on. */
typedef struct dpari_hx_spot {
    int32_t part;
    int64_t at; /* elements from the beginning of the part */
    int64_t stride[DPARI_HX_DIMS];
} dpari_hx_spot;

/* One box, seen from this rank. */
typedef struct dpari_hx_item {
    int32_t field, peer;  /* -1: oneself */
    int32_t mine, theirs; /* parts */
    int32_t packs;        /* goes through memory when this rank gives it */
    int32_t direct;       /* this rank reads it where it lies when it takes it */
    int32_t negate, dims;
    int32_t give_mate, take_mate; /* so many items on is the other side of the box, walked with this
                                     one; -1: that other side; 0: alone */
    int64_t mine_at, theirs_at;   /* bytes */
    int64_t pack_at, take_at;     /* bytes in the staging memory */
    int64_t elements;
    int64_t local[DPAR_MAX_DIMS]; /* where it begins in the local box, */
    int32_t here[DPARI_HX_DIMS];  /* this rank's dims for the sender's, */
    uint32_t flip;                /* those of them that count backwards */
    int64_t extent[DPARI_HX_DIMS], own_step[DPARI_HX_DIMS], other_step[DPARI_HX_DIMS];
    int64_t dense[DPARI_HX_DIMS];
    dpari_stride give, take, zero;
} dpari_hx_item;

/* What goes between this rank and a peer in one step; [mode]. */
typedef struct dpari_hx_flow {
    int64_t out_at[2], out_bytes[2], out_direct[2]; /* what this rank packs; what the peer reads */
    int64_t in_at[2], in_bytes[2], in_direct[2];
    int64_t first, boxes; /* of R */
    int64_t sends;        /* items of S */
    uint64_t hash[2];     /* of S, of R */
    int32_t taken;
} dpari_hx_flow;

typedef struct dpari_hx_peer {
    int32_t rank;
    int32_t world; /* its number where memory is shared; -1: messages */
    uint64_t version;
    dpari_hx_line *line;
    const uint64_t *refs;
    const unsigned char **at; /* its arrays here: two parts a field */
    unsigned char *staging;
    int64_t turn;          /* bytes from one turn's staging memory to the other's */
    dpari_hx_array *array; /* while it is planned */
    dpari_hx_flow flow[DPARI_HX_STEPS];
} dpari_hx_peer;

typedef struct dpari_hx_step {
    int64_t r, r_items, s, s_items, self; /* in `item`; self: those of R from oneself */
    int32_t dim;                          /* -1: all at once */
} dpari_hx_step;

struct dpar_halo_exchange {
    dpar_comm *c, *node;
    dpari_world *world; /* NULL: messages alone */
    dpar_halo_options options;
    int32_t fields, peers, steps, rank;
    dpar_halo_field *field;
    dpari_hx_array *array;
    unsigned char **part; /* two a field */
    dpari_hx_peer *peer;
    int32_t *peer_of; /* 1 + the peer of a rank */
    dpari_hx_item *item;
    dpari_hx_step step[DPARI_HX_STEPS];
    dpar_call *call;
    dpar_work *work;       /* receives, then sends, two a peer */
    int64_t *record;       /* two a peer, and what is gathered */
    unsigned char *memory; /* registered: lines, refs, staging twice, what arrives */
    dpari_hx_line *line;
    uint64_t *refs;
    unsigned char *staging, *arrivals;
    int64_t turn, arrive_bytes;
    int64_t count;                      /* exchanges begun */
    int32_t active, mode, op, prepared; /* prepared: the op of the items */
    int32_t now, stage, messages;
    uint64_t version;
    double looked;
    double seconds[3];        /* DPARI_HX_PACKING, ... */
    int32_t lends[2], shares; /* some peer reads my arrays; some peer shares memory */
};

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct dpari_hx_room {
    unsigned char *at; /* NULL: counted alone */
    int64_t used;
} dpari_hx_room;

static void *dpari_hx_carve(dpari_hx_room *r, int64_t n, size_t bytes)
{
    int64_t at = r->used;
    r->used += (n * (int64_t)bytes + 63) / 64 * 64;
    return r->at ? r->at + at : NULL;
}

/* How large a plan is. */
typedef struct dpari_hx_size {
    int64_t items, peers;
    int32_t fields, steps, ranks;
} dpari_hx_size;

static int64_t dpari_hx_words(int32_t fields)
{
    return DPARI_HX_HEAD * DPARI_HX_STEPS + (int64_t)fields * DPARI_HX_WORDS;
}

static dpar_halo_exchange *dpari_hx_layout(const dpari_hx_size *z, void *memory, int64_t *bytes)
{
    dpari_hx_room r;
    dpar_halo_exchange none, *x;
    int64_t i;
    r.at = (unsigned char *)memory;
    r.used = 0;
    x = (dpar_halo_exchange *)dpari_hx_carve(&r, 1, sizeof *x);
    x = memory ? x : &none;
    x->field = (dpar_halo_field *)dpari_hx_carve(&r, z->fields, sizeof *x->field);
    x->array = (dpari_hx_array *)dpari_hx_carve(&r, z->fields, sizeof *x->array);
    x->part = (unsigned char **)dpari_hx_carve(&r, 2 * z->fields, sizeof *x->part);
    x->peer = (dpari_hx_peer *)dpari_hx_carve(&r, z->peers, sizeof *x->peer);
    x->peer_of = (int32_t *)dpari_hx_carve(&r, z->ranks, 2 * sizeof *x->peer_of);
    x->item = (dpari_hx_item *)dpari_hx_carve(&r, z->items, sizeof *x->item);
    x->call = (dpar_call *)dpari_hx_carve(&r, 2 * z->peers, sizeof *x->call);
    x->work = (dpar_work *)dpari_hx_carve(&r, 2 * z->peers, sizeof *x->work);
    x->record =
        (int64_t *)dpari_hx_carve(&r, 2 * z->peers * dpari_hx_words(z->fields), sizeof *x->record);
    for (i = 0; i < z->peers; i++) {
        void *at = dpari_hx_carve(&r, 2 * z->fields, sizeof *x->peer[0].at);
        void *array = dpari_hx_carve(&r, z->fields, sizeof *x->array);
        if (memory) {
            x->peer[i].at = (const unsigned char **)at;
            x->peer[i].array = (dpari_hx_array *)array;
        }
    }
    *bytes = r.used;
    return (dpar_halo_exchange *)memory;
}

/* ---- fields ---------------------------------------------------------------------------------- */

static int32_t dpari_hx_components(const dpar_halo_field *f)
{
    return f->components > 0 ? f->components : 1;
}

static int32_t dpari_hx_wire(const dpar_halo_field *f)
{
    return f->narrow ? f->wire : f->type;
}

static int dpari_hx_narrows(int32_t from, int32_t to)
{
    return (from == DPAR_F64 && to == DPAR_F32) ||
           (from == DPAR_F32 && (to == DPAR_F16 || to == DPAR_BF16));
}

/* This rank's own and local boxes: where a rank has no own points its array begins with the box. */
static int dpari_hx_boxes(const dpar_halo *h, int32_t rank, dpar_box *own, dpar_box *all)
{
    int32_t d;
    if (!dpar_halo_box(h, rank, all)) {
        return 0;
    }
    if (!dpar_halo_owned(h, rank, own)) {
        *own = *all;
        for (d = 0; d < all->dims; d++) {
            own->hi[d] = own->lo[d];
        }
    }
    return 1;
}

/* The array as `rank` holds it, when origin and strides are the defaults. */
static void dpari_hx_dense(dpari_hx_array *a, const dpar_halo_field *f, int32_t rank)
{
    dpar_box own, all;
    int64_t step = dpari_hx_components(f);
    int32_t d;
    dpari_zero(a, sizeof *a);
    a->h = f->halo;
    a->rank = rank;
    a->component = 1;
    a->exists = dpari_hx_boxes(f->halo, rank, &own, &all);
    for (d = f->halo->grid.dims - 1; d >= 0 && a->exists; d--) {
        a->low[d] = own.lo[d] - all.lo[d];
        a->own[d] = own.hi[d] - own.lo[d];
        a->origin[d] = f->halos ? 0 : a->low[d];
        a->stride[d] = step;
        step *= f->halos ? dpari_most(a->own[d], 1) : all.hi[d] - all.lo[d];
    }
}

static int dpari_hx_strided(const dpar_halo_field *f)
{
    int32_t d;
    for (d = 0; d < f->halo->grid.dims; d++) {
        if (f->stride[d] != 0) {
            return 1;
        }
    }
    return 0;
}

static void dpari_hx_array_of(dpari_hx_array *a, const dpar_halo_field *f, int32_t rank)
{
    int32_t d;
    dpari_hx_dense(a, f, rank);
    a->compact = f->halos != NULL;
    a->component = f->component_stride != 0 ? f->component_stride : 1;
    if (dpari_hx_strided(f)) {
        for (d = 0; d < f->halo->grid.dims; d++) {
            a->origin[d] = f->origin[d];
            a->stride[d] = f->stride[d];
        }
    }
}

static dpar_status dpari_hx_check_type(const dpar_halo_field *f, int32_t i, dpar_why *why)
{
    if (dpar_type_bytes(f->type) == 0) {
        return dpari_say(DPAR_E_ARG, why, "field #: type # has no whole bytes", i, f->type, 0, 0);
    }
    if (f->narrow && !dpari_hx_narrows(f->type, f->wire)) {
        return dpari_say_word(
            DPAR_E_ARG, why,
            "field # of @ cannot travel as type #: F64 travels as F32, F32 as F16 "
            "or BF16",
            dpar_type_name(f->type), 8, i, f->wire, 0, 0);
    }
    if (f->vector && !dpar_type_reduces(f->type)) {
        return dpari_say_word(DPAR_E_ARG, why, "field #: @ has no sign to change",
                              dpar_type_name(f->type), 8, i, 0, 0, 0);
    }
    return DPAR_OK;
}

/* All ranks of the field are ranks of the communicator. */
static dpar_status dpari_hx_check_ranks(const dpar_comm *c, const dpar_halo *h, int32_t i,
                                        dpar_why *why)
{
    const dpar_mesh *m = &h->grid.mesh;
    int32_t k, last = -1;
    for (k = 0; h->owner && k < m->size; k++) {
        last = h->owner[k] > last ? h->owner[k] : last;
    }
    if ((h->owner && last >= c->size) ||
        (!h->owner && (m->offset < 0 || m->offset + (int64_t)m->size > c->size))) {
        return dpari_say(DPAR_E_ARG, why,
                         "field # is on ranks up to #, the communicator has # of them", i,
                         h->owner ? last : m->offset + (int64_t)m->size - 1, c->size, 0);
    }
    return DPAR_OK;
}

/* Dim by dim: where a block and its neighbours in one dim are alike in all others. */
static int dpari_hx_can_order(const dpar_halo_field *f)
{
    const dpar_halo *h = f->halo;
    int32_t d;
    for (d = 0; d < h->grid.dims; d++) {
        if (h->window[d].kernel != 0) {
            return 0;
        }
    }
    return !h->folds && !h->poles && !h->cube && !h->owner && !f->halos;
}

static dpar_status dpari_hx_check_field(const dpar_comm *c, const dpar_halo_field *f, int32_t i,
                                        int32_t ordered, dpar_why *why)
{
    dpar_box own, all;
    dpar_status st;
    if (!f->halo) {
        return dpari_say(DPAR_E_ARG, why, "field # has no halo", i, 0, 0, 0);
    }
    st = dpar_halo_check(f->halo, why);
    st = st == DPAR_OK ? dpari_hx_check_type(f, i, why) : st;
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_hx_check_ranks(c, f->halo, i, why);
    if (st != DPAR_OK) {
        return st;
    }
    if ((f->vector == 2 && f->components != 2) || (f->halo->cube && f->vector == 1)) {
        return dpari_say(DPAR_E_ARG, why,
                         "field #: vector # with # components: 2 is for pairs (u, v), and a cubed "
                         "sphere turns pairs",
                         i, f->vector, f->components, 0);
    }
    if (f->components < 0) {
        return dpari_say(DPAR_E_ARG, why, "field # has # components", i, f->components, 0, 0);
    }
    if (!f->data && dpar_halo_owned(f->halo, c->rank, &own)) {
        return dpari_say(DPAR_E_ARG, why, "field # has no data on rank #", i, c->rank, 0, 0);
    }
    if (!f->data && !f->halos && dpar_halo_box(f->halo, c->rank, &all)) {
        return dpari_say(DPAR_E_ARG, why, "field # has no array for the halo of rank #", i, c->rank,
                         0, 0);
    }
    if (ordered && !dpari_hx_can_order(f)) {
        return dpari_say(DPAR_E_ARG, why,
                         "field # has a fold, poles, a cube, masked ranks, windows or compact "
                         "halos: it cannot be exchanged dim by dim",
                         i, 0, 0, 0);
    }
    return DPAR_OK;
}

/* ---- the walk of a field in a step ----------------------------------------------------------- */

typedef struct dpari_hx_walk {
    dpar_halo_walk walk;
    dpar_halo h;
    int32_t step, rank; /* step -1: all at once */
    int64_t low[DPAR_MAX_DIMS], before[DPAR_MAX_DIMS], after[DPAR_MAX_DIMS];
} dpari_hx_walk;

/* In step s the halos of the dims before it travel along, as far as they have images. */
static void dpari_hx_widen(dpari_hx_walk *w, const dpar_halo *h)
{
    dpar_box own, all;
    int32_t d;
    if (!dpari_hx_boxes(h, w->rank, &own, &all)) {
        return;
    }
    for (d = 0; d < h->grid.dims; d++) {
        const int wraps = (int)(h->periodic >> d & 1u);
        w->low[d] = d == w->step ? 0 : own.lo[d] - all.lo[d];
        if (d == w->step) {
            continue;
        }
        if (d < w->step && h->shape == DPAR_STENCIL_BOX) {
            w->before[d] = wraps ? h->low[d] : dpari_least(h->low[d], own.lo[d]);
            w->after[d] =
                wraps ? h->high[d] : dpari_least(h->high[d], dpar_halo_points(h, d) - own.hi[d]);
        }
        w->h.low[d] = w->h.high[d] = 0;
    }
}

static dpar_status dpari_hx_begin_walk(dpari_hx_walk *w, const dpar_halo_field *f, int32_t rank,
                                       int32_t step, int32_t direction)
{
    dpari_zero(w, sizeof *w);
    w->h = *f->halo;
    w->step = step;
    w->rank = rank;
    if (step >= 0) {
        if (step >= w->h.grid.dims) {
            return DPAR_DONE;
        }
        dpari_hx_widen(w, f->halo);
    }
    return dpar_halo_begin(&w->walk, &w->h, rank, direction, DPAR_HALO_FORWARD, NULL);
}

static int dpari_hx_next(dpari_hx_walk *w, dpar_transfer *t)
{
    int32_t d;
    if (!dpar_halo_next(&w->walk, t)) {
        return 0;
    }
    for (d = 0; d < t->dims && w->step >= 0; d++) {
        t->mine[d] += w->low[d] - w->before[d];
        t->theirs[d] += w->low[d] - w->before[d];
        t->extent[d] += w->before[d] + w->after[d];
    }
    return 1;
}

/* Pairs that turn by one or three quarters go component by component: two items. */
static int32_t dpari_hx_parts(const dpar_halo_field *f, const dpar_transfer *t)
{
    return f->vector == 2 && (t->turn & 1) != 0 ? 2 : 1;
}

/* Items and peers, at most. */
static dpar_status dpari_hx_measure(const dpar_comm *c, const dpar_halo_field *fields, int32_t n,
                                    const dpar_halo_options *o, dpari_hx_size *z, dpar_why *why)
{
    dpari_hx_walk w;
    dpar_transfer t;
    dpar_status st = DPAR_OK;
    int32_t i, direction, step;
    dpari_zero(z, sizeof *z);
    z->fields = n;
    z->ranks = c->size;
    z->steps = 1;
    for (i = 0; i < n && st == DPAR_OK; i++) {
        st = dpari_hx_check_field(c, &fields[i], i, o->ordered, why);
        if (st == DPAR_OK && o->ordered) {
            z->steps = (int32_t)dpari_most(z->steps, fields[i].halo->grid.dims);
        }
    }
    for (i = 0; i < n && st == DPAR_OK; i++) {
        for (step = 0; step < z->steps; step++) {
            for (direction = 0; direction < 2; direction++) {
                dpar_status walks =
                    dpari_hx_begin_walk(&w, &fields[i], c->rank, o->ordered ? step : -1, direction);
                while (walks == DPAR_OK && dpari_hx_next(&w, &t)) {
                    z->items += dpari_hx_parts(&fields[i], &t);
                    z->peers += t.peer != c->rank;
                }
            }
        }
    }
    z->peers = dpari_least(z->peers, c->size);
    return st;
}

static dpar_status dpari_hx_judge(const dpar_comm *c, const dpar_halo_field *fields, int32_t n,
                                  const dpar_halo_options *o, dpari_hx_size *z, dpar_why *why)
{
    if (n < 1 || n > 4096 || !fields) {
        return dpari_say(DPAR_E_ARG, why, "# fields: 1 to 4096", n, 0, 0, 0);
    }
    if (o->way < DPAR_HALO_AUTO || o->way > DPAR_HALO_DIRECT || o->run_bytes < 0 || o->tag < 0) {
        return dpari_say(DPAR_E_ARG, why, "way # (0 to 3), runs of # bytes (0 or more), tag #",
                         o->way, o->run_bytes, o->tag, 0);
    }
    return dpari_hx_measure(c, fields, n, o, z, why);
}

DPAR_API dpar_status dpar_halo_exchange_bytes(const dpar_comm *c, const dpar_halo_field *fields,
                                              int32_t n, const dpar_halo_options *options,
                                              int64_t *bytes, dpar_why *why)
{
    dpar_halo_options o;
    dpari_hx_size z;
    dpar_status st;
    dpari_zero(&o, sizeof o);
    o = options ? *options : o;
    if (!c || !bytes) {
        return dpari_say(DPAR_E_ARG, why, "communicator or result is NULL", 0, 0, 0, 0);
    }
    st = dpari_hx_judge(c, fields, n, &o, &z, why);
    if (st == DPAR_OK) {
        (void)dpari_hx_layout(&z, NULL, bytes);
    }
    return st;
}

/* ---- agreeing ---------------------------------------------------------------------------------
 */

static uint64_t dpari_hx_mix(uint64_t h, int64_t v)
{
    h = (h ^ (uint64_t)v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* What all ranks must have given alike. */
static uint64_t dpari_hx_hash(const dpar_halo_field *fields, int32_t n, const dpar_halo_options *o)
{
    uint64_t h = dpari_hx_mix(1, n);
    int32_t i, d;
    h = dpari_hx_mix(h, o->way);
    h = dpari_hx_mix(h, o->ordered);
    h = dpari_hx_mix(h, o->run_bytes);
    h = dpari_hx_mix(h, o->tag);
    for (i = 0; i < n; i++) {
        const dpar_halo_field *f = &fields[i];
        const dpar_halo *g = f->halo;
        h = dpari_hx_mix(h, f->type);
        h = dpari_hx_mix(h, dpari_hx_wire(f) + 64 * dpari_hx_components(f));
        h = dpari_hx_mix(h, f->vector);
        h = dpari_hx_mix(h, g->grid.dims + 16 * g->shape);
        h = dpari_hx_mix(h, (int64_t)g->periodic);
        h = dpari_hx_mix(h, g->folds + 2 * g->cube + 4 * (int64_t)g->poles);
        for (d = 0; d < g->grid.dims; d++) {
            h = dpari_hx_mix(h, g->grid.extent[d]);
            h = dpari_hx_mix(h, g->low[d]);
            h = dpari_hx_mix(h, g->high[d]);
            h = dpari_hx_mix(h, g->points[d]);
        }
    }
    return h;
}

/* All hear how the worst of them fares. */
static dpar_status dpari_hx_agree(dpar_comm *c, dpar_status st, uint64_t hash, dpar_why *why)
{
    const int64_t unit = INT64_C(1) << 32;
    int64_t in[3], out[3] = {0, 0, 0};
    dpar_status s, worst;
    in[0] = st * unit + c->rank;
    in[1] = (int64_t)(hash >> 2);
    in[2] = -in[1];
    s = dpar_all_reduce(c, in, out, 3, DPAR_I64, DPAR_MIN, NULL);
    if (s != DPAR_OK) {
        return dpari_say_word(s, why, "@", c->why.text, sizeof c->why.text, 0, 0, 0, 0);
    }
    worst = (dpar_status)dpari_floor_div(out[0], unit);
    if (st != DPAR_OK) {
        return st;
    }
    if (worst != DPAR_OK) {
        return dpari_say_word(worst, why, "rank #: @", dpar_status_text(worst), 80,
                              out[0] - worst * unit, 0, 0, 0);
    }
    if (out[1] != -out[2]) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "ranks gave different fields or options (types, wires, components, "
                         "vectors, grids, widths, way, tag)",
                         0, 0, 0, 0);
    }
    return DPAR_OK;
}

/* Each peer's record for this rank in place of this rank's for it. */
static dpar_status dpari_hx_swap(dpar_halo_exchange *x, int64_t words)
{
    const int64_t side = x->peers * dpari_hx_words(x->fields);
    dpar_status s;
    int32_t i;
    for (i = 0; i < x->peers; i++) {
        dpar_call *in = &x->call[i], *out = &x->call[x->peers + i];
        dpari_zero(in, sizeof *in);
        in->kind = DPAR_RECV;
        in->type = DPAR_I64;
        in->root = x->peer[i].rank;
        in->tag = x->options.tag;
        in->count = words;
        *out = *in;
        out->kind = DPAR_SEND;
        in->out = x->record + i * words;
        out->in = x->record + side + i * words;
    }
    s = dpar_batch(x->c, x->call, 2 * x->peers, x->work);
    return s == DPAR_OK ? dpar_wait_all(x->work, 2 * x->peers) : s;
}

static int64_t *dpari_hx_to_peer(const dpar_halo_exchange *x, int32_t i, int64_t words)
{
    return x->record + x->peers * dpari_hx_words(x->fields) + i * words;
}

/* ---- peers ------------------------------------------------------------------------------------
 */

static void dpari_hx_mark_peers(dpar_halo_exchange *x)
{
    dpari_hx_walk w;
    dpar_transfer t;
    int32_t i, direction, s;
    for (i = 0; i < x->fields; i++) {
        for (s = 0; s < x->steps; s++) {
            for (direction = 0; direction < 2; direction++) {
                dpar_status walks =
                    dpari_hx_begin_walk(&w, &x->field[i], x->rank, x->step[s].dim, direction);
                while (walks == DPAR_OK && dpari_hx_next(&w, &t)) {
                    x->peer_of[t.peer] = 1;
                }
            }
        }
    }
    x->peer_of[x->rank] = 0;
    for (i = 0; i < x->c->size; i++) {
        if (x->peer_of[i]) {
            x->peer[x->peers].rank = i;
            x->peer[x->peers].world = -1;
            x->peer_of[i] = ++x->peers;
        }
    }
}

/* Which of the peers share memory with this rank? COLLECTIVE over the node. */
static dpar_status dpari_hx_find_node(dpar_halo_exchange *x)
{
    const dpari_shm *s = (const dpari_shm *)(const void *)x->node;
    int32_t *ranks = x->peer_of + x->c->size, i;
    if (!x->world) {
        return DPAR_OK;
    }
    if (x->node != x->c) {
        dpar_status st;
        if (x->node->size > x->c->size) {
            return DPAR_E_ARG;
        }
        st = dpar_all_gather(x->node, &x->rank, ranks, 1, DPAR_I32, NULL);
        if (st != DPAR_OK) {
            return st;
        }
    }
    for (i = 0; i < x->node->size; i++) {
        const int32_t rank = x->node == x->c ? i : ranks[i];
        if (rank >= 0 && rank < x->c->size && x->peer_of[rank]) {
            x->peer[x->peer_of[rank] - 1].world = s->world_rank[i];
        }
    }
    return DPAR_OK;
}

/* Tells the peers how this rank's arrays lie, and hears how theirs do. */
static dpar_status dpari_hx_swap_arrays(dpar_halo_exchange *x)
{
    const int64_t words = (int64_t)x->fields * DPARI_HX_WORDS;
    dpar_status st;
    int32_t i, f, d;
    for (i = 0; i < x->peers; i++) {
        int64_t *r = dpari_hx_to_peer(x, i, words);
        for (f = 0; f < x->fields; f++, r += DPARI_HX_WORDS) {
            const dpari_hx_array *a = &x->array[f];
            for (d = 0; d < DPAR_MAX_DIMS; d++) {
                r[d] = a->origin[d];
                r[DPAR_MAX_DIMS + d] = a->stride[d];
            }
            r[2 * DPAR_MAX_DIMS] = a->component;
            r[2 * DPAR_MAX_DIMS + 1] =
                a->compact + 2 * a->reach[0] + 4 * a->reach[1] + 8 * (x->peer[i].world >= 0);
        }
    }
    st = dpari_hx_swap(x, words);
    for (i = 0; i < x->peers && st == DPAR_OK; i++) {
        const int64_t *r = x->record + i * words;
        for (f = 0; f < x->fields; f++, r += DPARI_HX_WORDS) {
            dpari_hx_array *a = &x->peer[i].array[f];
            const int64_t bits = r[2 * DPAR_MAX_DIMS + 1];
            dpari_hx_dense(a, &x->field[f], x->peer[i].rank);
            for (d = 0; d < DPAR_MAX_DIMS; d++) {
                a->origin[d] = r[d];
                a->stride[d] = r[DPAR_MAX_DIMS + d];
            }
            a->component = r[2 * DPAR_MAX_DIMS];
            a->compact = (int32_t)(bits & 1);
            a->reach[0] = (int32_t)(bits >> 1 & 1);
            a->reach[1] = (int32_t)(bits >> 2 & 1);
            if ((bits >> 3 & 1) == 0) { /* the other does not think so: options.node is lame */
                x->peer[i].world = -1;
            }
        }
    }
    return st;
}

/* ---- items ------------------------------------------------------------------------------------
 */

/* The slab of the compact form that a box begins in; elements before it. */
static int dpari_hx_slab(const dpari_hx_array *a, const int64_t *at, int32_t components,
                         dpar_box *slab, int64_t *before)
{
    dpar_box own, all;
    int32_t n, d;
    *before = 0;
    if (!dpari_hx_boxes(a->h, a->rank, &own, &all)) {
        return 0;
    }
    for (n = 0; dpar_halo_slab(a->h, a->rank, n, slab); n++) {
        int64_t points = 1;
        int inside = 1;
        for (d = 0; d < slab->dims; d++) {
            slab->lo[d] -= all.lo[d];
            slab->hi[d] -= all.lo[d];
            inside = inside && at[d] >= slab->lo[d] && at[d] < slab->hi[d];
            points *= slab->hi[d] - slab->lo[d];
        }
        if (inside) {
            return 1;
        }
        *before += points * components;
    }
    return 0;
}

/* Where the box that begins at local point at[] lies in an array. */
static void dpari_hx_place(const dpari_hx_array *a, const int64_t *at, int32_t components,
                           dpari_hx_spot *p)
{
    const int32_t dims = a->h->grid.dims;
    int32_t d, own = 1;
    dpar_box slab;
    int64_t step = components;
    for (d = 0; d < dims; d++) {
        own = own && at[d] >= a->low[d] && at[d] < a->low[d] + a->own[d];
    }
    p->part = DPARI_HX_OWN;
    p->at = 0;
    p->stride[dims] = a->component;
    if (a->compact && !own) {
        if (!dpari_hx_slab(a, at, components, &slab, &p->at)) {
            p->part = -1; /* where a star has nothing */
            return;
        }
        p->part = DPARI_HX_HALOS;
        p->stride[dims] = 1;
        for (d = dims - 1; d >= 0; d--) {
            p->stride[d] = step;
            p->at += (at[d] - slab.lo[d]) * step;
            step *= slab.hi[d] - slab.lo[d];
        }
        return;
    }
    for (d = 0; d < dims; d++) {
        p->stride[d] = a->stride[d];
        p->at += (a->origin[d] + at[d] - a->low[d]) * a->stride[d];
    }
}

/* Bytes that lie in a row. */
static int64_t dpari_hx_in_a_row(const int64_t *extent, const int64_t *stride, int32_t dims,
                                 int32_t type)
{
    int64_t run = 1;
    int32_t d = 0;
    while (d < dims) {
        for (d = 0; d < dims; d++) {
            if (extent[d] > 1 && (stride[d] == run || stride[d] == -run)) {
                run *= extent[d];
                break;
            }
        }
    }
    return run * dpar_type_bytes(type);
}

/* The steps of the message: the owner's array, closed up. */
static void dpari_hx_close_up(dpari_hx_item *it, const int64_t *owner)
{
    int32_t done = 0, d, k;
    int64_t step = 1;
    for (k = 0; k < it->dims; k++) {
        int32_t best = -1;
        for (d = it->dims - 1; d >= 0; d--) {
            const int64_t a = owner[d] < 0 ? -owner[d] : owner[d];
            const int64_t b = best < 0 ? 0 : owner[best] < 0 ? -owner[best] : owner[best];
            if (!(done >> d & 1) && (best < 0 || a < b)) {
                best = d;
            }
        }
        done |= 1 << best;
        it->dense[best] = step;
        step *= it->extent[best];
    }
    it->elements = step;
}

/* Reads the other where it lies? The same on both sides: the run is that of whoever gives. */
static int dpari_hx_is_direct(const dpar_halo_exchange *x, const dpari_hx_array *giver,
                              const dpari_hx_spot *p, const dpari_hx_item *it, int32_t world)
{
    const int64_t run = x->options.run_bytes > 0 ? x->options.run_bytes : 64;
    return world >= 0 && x->options.way != DPAR_HALO_PACKED && giver->reach[p->part] &&
           dpari_hx_in_a_row(it->extent, p->stride, it->dims, x->field[it->field].type) >= run;
}

/* The receiver's dim for the sender's dim d. */
static int32_t dpari_hx_swapped(const dpar_transfer *t, int32_t d)
{
    return d == t->swap[0] ? t->swap[1] : d == t->swap[1] ? t->swap[0] : d;
}

/* The receiver counts flipped dims backwards, and its dims are those of the sender in its order. */
static void dpari_hx_turn(const dpar_transfer *t, dpari_hx_spot *p)
{
    int64_t stride[DPAR_MAX_DIMS];
    int32_t d;
    for (d = 0; d < t->dims; d++) {
        stride[d] = p->stride[d];
        if (t->flip >> d & 1u) {
            p->at += (t->extent[dpari_hx_swapped(t, d)] - 1) * stride[d];
            stride[d] = -stride[d];
        }
    }
    for (d = 0; d < t->dims; d++) {
        p->stride[d] = stride[dpari_hx_swapped(t, d)];
    }
}

/* Which component arrives as component k of a pair, and does its sign change? Turned by 1: (-v, u),
 * by 3: (v, -u). */
static void dpari_hx_component(dpari_hx_item *it, const dpar_transfer *t, int32_t k,
                               dpari_hx_spot *sender, dpari_hx_spot *receiver)
{
    sender->at += (1 - k) * sender->stride[t->dims];
    receiver->at += k * receiver->stride[t->dims];
    it->extent[t->dims] = 1;
    it->negate = (t->turn == 1) == (k == 0);
}

/* Item k of those that a transfer makes, without its place in messages. sends: of S. */
static void dpari_hx_fill(dpar_halo_exchange *x, dpari_hx_item *it, int32_t field,
                          const dpar_transfer *t, int sends, int32_t k)
{
    const dpar_halo_field *f = &x->field[field];
    const int32_t components = dpari_hx_components(f), peer = x->peer_of[t->peer] - 1;
    const dpari_hx_array *mine = &x->array[field];
    const dpari_hx_array *theirs = peer < 0 ? mine : &x->peer[peer].array[field];
    const int32_t bytes = dpar_type_bytes(f->type), world = peer < 0 ? -1 : x->peer[peer].world;
    dpari_hx_spot a, b;
    int32_t d;
    dpari_zero(it, sizeof *it);
    it->field = field;
    it->peer = peer;
    it->dims = t->dims + 1;
    it->negate = f->vector && t->turn == 2;
    for (d = 0; d < t->dims; d++) {
        it->extent[d] = t->extent[d];
        it->local[d] = t->mine[d];
        it->here[d] = sends ? d : dpari_hx_swapped(t, d);
    }
    it->here[t->dims] = t->dims;
    it->flip = sends ? 0 : t->flip;
    it->extent[t->dims] = components;
    dpari_hx_place(mine, t->mine, components, &a);
    dpari_hx_place(theirs, t->theirs, components, &b);
    dpari_hx_turn(t, sends ? &b : &a);
    if (dpari_hx_parts(f, t) > 1) {
        dpari_hx_component(it, t, k, sends ? &a : &b, sends ? &b : &a);
    }
    it->mine = a.part;
    it->theirs = b.part;
    it->mine_at = a.at * bytes;
    it->theirs_at = b.at * bytes;
    for (d = 0; d < it->dims; d++) {
        it->own_step[d] = a.stride[d];
        it->other_step[d] = b.stride[d];
    }
    dpari_hx_close_up(it, sends ? a.stride : b.stride);
    it->direct = peer < 0 || dpari_hx_is_direct(x, theirs, &b, it, world);
    it->packs = peer >= 0 && !dpari_hx_is_direct(x, mine, &a, it, world);
}

/* Its loops: giving, taking with `op`, zeroing. */
static void dpari_hx_prepare(const dpar_halo_exchange *x, dpari_hx_item *it, int32_t op)
{
    const dpar_halo_field *f = &x->field[it->field];
    const int32_t wire = dpari_hx_wire(f);
    dpari_stride_piece p;
    int32_t d;
    dpari_zero(&p, sizeof p);
    p.dims = it->dims;
    for (d = 0; d < it->dims; d++) {
        p.extent[d] = it->extent[d];
        p.to[d] = it->own_step[d];
        p.from[d] = it->direct ? it->other_step[d] : it->dense[d];
    }
    p.to_type = f->type;
    p.from_type = it->direct ? f->type : wire;
    p.through = wire;
    p.op = op;
    p.negate = it->negate;
    p.clear = op != DPAR_COPY && it->peer < 0; /* halos of one's own, read */
    p.back = it->peer >= 0 && op == DPAR_COPY;
    dpari_stride_prepare(&it->take, &p);
    p.back = 0;
    p.clear = op == DPAR_COPY; /* a box of the halo is given in the adjoint alone */
    p.op = DPAR_COPY;
    p.negate = 0;
    for (d = 0; d < it->dims; d++) {
        p.to[d] = it->dense[d];
        p.from[d] = it->own_step[d];
    }
    p.to_type = wire;
    p.from_type = f->type;
    dpari_stride_prepare(&it->give, &p);
    for (d = 0; d < it->dims; d++) {
        p.to[d] = it->own_step[d];
        p.from[d] = 0;
    }
    p.to_type = p.from_type = p.through = f->type;
    p.clear = 0;
    dpari_stride_prepare(&it->zero, &p);
}

/* The place of the item in what goes through memory in one direction. */
static int64_t dpari_hx_append(const dpar_halo_exchange *x, const dpari_hx_item *it, int64_t *bytes)
{
    const int64_t at = (*bytes + 15) / 16 * 16;
    *bytes = at + it->elements * dpar_type_bytes(dpari_hx_wire(&x->field[it->field]));
    return at;
}

static void dpari_hx_count_in(dpar_halo_exchange *x, dpari_hx_item *it, int32_t s, int sends)
{
    dpari_hx_flow *w;
    const int give = sends ? DPAR_HALO_FORWARD : DPAR_HALO_ADJOINT; /* when this rank gives */
    const int take = sends ? DPAR_HALO_ADJOINT : DPAR_HALO_FORWARD;
    int32_t d;
    if (it->peer < 0) {
        return;
    }
    w = &x->peer[it->peer].flow[s];
    for (d = 0; d < it->dims; d++) {
        w->hash[sends] = dpari_hx_mix(w->hash[sends], it->extent[d] + 1024 * it->field);
    }
    if (it->packs) {
        it->pack_at = dpari_hx_append(x, it, &w->out_bytes[give]);
    } else {
        w->out_direct[give]++;
    }
    if (!it->direct) {
        it->take_at = dpari_hx_append(x, it, &w->in_bytes[take]);
    } else {
        w->in_direct[take]++;
    }
}

/* The boxes of each peer (and oneself) in R, counted, or filled in where they belong. */
static void dpari_hx_list_receives(dpar_halo_exchange *x, int32_t s, int fill)
{
    dpari_hx_step *p = &x->step[s];
    dpari_hx_walk w;
    dpar_transfer t;
    int32_t i, k;
    for (i = 0; i < x->fields; i++) {
        if (dpari_hx_begin_walk(&w, &x->field[i], x->rank, p->dim, DPAR_RECEIVES) != DPAR_OK) {
            continue;
        }
        while (dpari_hx_next(&w, &t)) {
            dpari_hx_flow *flow =
                t.peer == x->rank ? NULL : &x->peer[x->peer_of[t.peer] - 1].flow[s];
            int64_t *n = flow ? &flow->boxes : &p->self;
            for (k = 0; k < dpari_hx_parts(&x->field[i], &t); k++, ++*n) {
                if (fill) {
                    dpari_hx_item *it = &x->item[(flow ? flow->first : p->r) + *n];
                    dpari_hx_fill(x, it, i, &t, 0, k);
                    dpari_hx_count_in(x, it, s, 0);
                }
            }
        }
    }
}

/* Lists R (by peer, oneself first) and S of step s from item `at` on; returns where they end. */
static int64_t dpari_hx_list(dpar_halo_exchange *x, int32_t s, int64_t at)
{
    dpari_hx_step *p = &x->step[s];
    dpari_hx_walk w;
    dpar_transfer t;
    int32_t i, k;
    p->r = at;
    dpari_hx_list_receives(x, s, 0);
    at += p->self;
    p->self = 0;
    for (i = 0; i < x->peers; i++) {
        x->peer[i].flow[s].first = at;
        at += x->peer[i].flow[s].boxes;
        x->peer[i].flow[s].boxes = 0;
    }
    dpari_hx_list_receives(x, s, 1);
    p->r_items = at - p->r;
    p->s = at;
    for (i = 0; i < x->fields; i++) {
        if (dpari_hx_begin_walk(&w, &x->field[i], x->rank, p->dim, DPAR_SENDS) != DPAR_OK) {
            continue;
        }
        while (dpari_hx_next(&w, &t)) {
            for (k = 0; k < dpari_hx_parts(&x->field[i], &t); k++, at++) {
                dpari_hx_fill(x, &x->item[at], i, &t, 1, k);
                dpari_hx_count_in(x, &x->item[at], s, 1);
                if (t.peer != x->rank) {
                    x->peer[x->peer_of[t.peer] - 1].flow[s].sends++;
                }
            }
        }
    }
    p->s_items = at - p->s;
    return at;
}

/* Places of the flows in this rank's memory: what it packs, by step, the same for both modes; what
 * comes by messages. */
static void dpari_hx_flows(dpar_halo_exchange *x)
{
    int32_t s, i, mode;
    x->turn = 0;
    x->arrive_bytes = 0;
    for (s = 0; s < x->steps; s++) {
        for (i = 0; i < x->peers; i++) {
            dpari_hx_flow *w = &x->peer[i].flow[s];
            int64_t most = 0, comes = 0;
            for (mode = 0; mode < 2; mode++) {
                w->out_at[mode] = x->turn;
                w->in_at[mode] = x->arrive_bytes;
                most = dpari_most(most, w->out_bytes[mode]);
                comes = dpari_most(comes, w->in_bytes[mode]);
                x->lends[mode] |= w->out_direct[mode] > 0;
            }
            x->turn += (most + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
            if (x->peer[i].world < 0) {
                x->arrive_bytes += (comes + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
            }
        }
    }
}

/* ---- planning ---------------------------------------------------------------------------------
 */

static int64_t dpari_hx_refs_bytes(const dpar_halo_exchange *x)
{
    return ((int64_t)sizeof(uint64_t) * 2 * x->fields + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
}

/* Registered memory: lines, addresses, two turns of what is packed, what comes by messages. */
static dpar_status dpari_hx_alloc(dpar_halo_exchange *x, dpar_why *why)
{
    const int64_t lines = x->steps * (int64_t)sizeof(dpari_hx_line), refs = dpari_hx_refs_bytes(x);
    dpar_comm *of = x->world ? x->node : x->c;
    void *memory = NULL;
    dpar_status st = dpar_comm_alloc(of, lines + refs + 2 * x->turn + x->arrive_bytes, &memory);
    if (st != DPAR_OK) {
        return dpari_say_word(st, why, "@", of->why.text, sizeof of->why.text, 0, 0, 0, 0);
    }
    x->memory = (unsigned char *)memory;
    x->line = (dpari_hx_line *)memory;
    x->refs = (uint64_t *)(void *)(x->memory + lines);
    x->staging = x->memory + lines + refs;
    x->arrivals = x->staging + 2 * x->turn;
    return DPAR_OK;
}

/* Where the parts of field f are, for this rank and, as refs, for its peers. */
static void dpari_hx_bind_field(dpar_halo_exchange *x, int32_t f)
{
    const dpar_halo_field *field = &x->field[f];
    x->part[2 * f] = (unsigned char *)field->data;
    x->part[2 * f + 1] = (unsigned char *)field->halos;
    if (x->world) {
        x->refs[2 * f] = field->data ? dpari_ref(x->world, field->data, 1) : 0;
        x->refs[2 * f + 1] = field->halos ? dpari_ref(x->world, field->halos, 1) : 0;
    }
}

/* Tells each peer where its messages lie, and compares what each thinks that goes between them. */
static dpar_status dpari_hx_swap_places(dpar_halo_exchange *x, dpar_why *why)
{
    const int64_t words = DPARI_HX_HEAD * DPARI_HX_STEPS;
    dpar_status st;
    int32_t i, s;
    for (i = 0; i < x->peers; i++) {
        int64_t *r = dpari_hx_to_peer(x, i, words);
        for (s = 0; s < x->steps; s++, r += DPARI_HX_HEAD) {
            const dpari_hx_flow *w = &x->peer[i].flow[s];
            r[0] = (int64_t)w->hash[1];
            r[1] = (int64_t)w->hash[0];
            r[2] = w->out_at[0];
            r[3] = w->out_bytes[0];
            r[4] = w->out_bytes[1];
            r[5] = x->turn;
            r[6] = x->world ? (int64_t)dpari_ref(x->world, x->memory, 1) : 0;
            r[7] = 0;
        }
    }
    st = dpari_hx_swap(x, words);
    for (i = 0; i < x->peers && st == DPAR_OK; i++) {
        dpari_hx_peer *p = &x->peer[i];
        const int64_t *r = x->record + i * words;
        if (p->world >= 0) {
            unsigned char *memory = (unsigned char *)dpari_at(x->world, (uint64_t)r[6]);
            p->line = (dpari_hx_line *)(void *)memory;
            p->refs = (const uint64_t *)(const void *)(p->line + x->steps);
            p->staging = memory + (x->staging - x->memory);
            p->turn = r[5];
        }
        for (s = 0; s < x->steps; s++, r += DPARI_HX_HEAD) {
            dpari_hx_flow *w = &p->flow[s];
            if ((uint64_t)r[0] != w->hash[0] || (uint64_t)r[1] != w->hash[1] ||
                r[3] != w->in_bytes[0] || r[4] != w->in_bytes[1]) {
                return dpari_say(DPAR_E_MISMATCH, why,
                                 "ranks # and # do not agree on what goes between them: different "
                                 "grids",
                                 x->rank, p->rank, 0, 0);
            }
            if (p->world >= 0) {
                w->in_at[0] = w->in_at[1] = r[2];
            }
        }
    }
    return st;
}

/* Two sides of a block, of one shape, whose runs are short: they lie in the same lines and pages.
 */
static int dpari_hx_mates(const dpari_hx_item *a, const dpari_hx_item *b)
{
    int32_t d;
    if (a->direct != b->direct || a->packs != b->packs || a->negate != b->negate ||
        a->mine != b->mine || (a->peer < 0) != (b->peer < 0)) {
        return 0;
    }
    for (d = 0; d < a->dims; d++) {
        if (a->extent[d] != b->extent[d] || a->own_step[d] != b->own_step[d]) {
            return 0;
        }
    }
    return 1;
}

/* Have two boxes of own cells no point in common? */
static int dpari_hx_apart(const dpari_hx_item *a, const dpari_hx_item *b)
{
    int32_t d;
    for (d = 0; d < a->dims - 1; d++) {
        const int64_t shift = b->local[d] - a->local[d];
        if (shift >= a->extent[d] || -shift >= a->extent[d]) {
            return 1;
        }
    }
    return 0;
}

/* Of R, what comes from one peer is taken together. Of S, which is combined, two boxes that follow
 * each other and have no point in common: the order of the others is promised. */
static int dpari_hx_taken_together(const dpari_hx_item *a, const dpari_hx_item *b, int sends)
{
    return a->take_mate == 0 && b->take_mate == 0 && a->take.run <= DPARI_HX_SHORT &&
           (sends ? b == a + 1 && dpari_hx_apart(a, b) : b->peer == a->peer);
}

static void dpari_hx_pair(dpari_hx_item *item, int64_t n, int sends)
{
    int64_t i, j;
    for (i = 0; i < n; i++) {
        dpari_hx_item *a = &item[i];
        for (j = i + 1; j < n && j < i + DPARI_HX_NEAR && item[j].field == a->field; j++) {
            dpari_hx_item *b = &item[j];
            if (!dpari_hx_mates(a, b)) {
                continue;
            }
            if (a->give_mate == 0 && b->give_mate == 0 && a->packs &&
                a->give.run <= DPARI_HX_SHORT) {
                a->give_mate = (int32_t)(j - i);
                b->give_mate = -1;
            }
            if (dpari_hx_taken_together(a, b, sends)) {
                a->take_mate = (int32_t)(j - i);
                b->take_mate = -1;
            }
        }
    }
}

/* hash[0] is of R: what one receives the other sends. */
static void dpari_hx_finish_items(dpar_halo_exchange *x)
{
    int32_t s;
    int64_t k;
    for (s = 0; s < x->steps; s++) {
        dpari_hx_step *p = &x->step[s];
        for (k = p->r; k < p->s + p->s_items; k++) {
            dpari_hx_item *it = &x->item[k];
            const int sends = k >= p->s;
            const int give = sends ? DPAR_HALO_FORWARD : DPAR_HALO_ADJOINT;
            if (it->peer >= 0) {
                const dpari_hx_flow *w = &x->peer[it->peer].flow[s];
                it->pack_at += w->out_at[give];
                it->take_at += w->in_at[!give];
            }
            dpari_hx_prepare(x, it, sends ? DPAR_SUM : DPAR_COPY);
        }
        dpari_hx_pair(x->item + p->r, p->r_items, 0);
        dpari_hx_pair(x->item + p->s, p->s_items, 1);
    }
    x->prepared = DPAR_SUM;
}

static dpar_status dpari_hx_plan(dpar_halo_exchange *x, dpar_why *why)
{
    int32_t i, s;
    int64_t at = 0;
    dpar_status st = dpari_hx_find_node(x);
    st = st == DPAR_OK ? dpari_hx_swap_arrays(x) : st;
    if (st != DPAR_OK) {
        return dpari_say_word(st, why, "@", x->c->why.text, sizeof x->c->why.text, 0, 0, 0, 0);
    }
    for (s = 0; s < x->steps; s++) {
        at = dpari_hx_list(x, s, at);
    }
    dpari_hx_flows(x);
    for (i = 0; i < x->peers; i++) {
        x->shares |= x->peer[i].world >= 0;
    }
    st = dpari_hx_agree(x->c, dpari_hx_alloc(x, why), 0, why);
    if (st == DPAR_OK) {
        for (i = 0; i < x->fields; i++) {
            dpari_hx_bind_field(x, i);
        }
        x->version = 1;
        for (s = 0; s < x->steps; s++) {
            x->line[s].version = 1;
        }
        st = dpari_hx_agree(x->c, dpari_hx_swap_places(x, why), 0, why);
    }
    if (st != DPAR_OK) {
        if (x->memory) {
            dpar_comm_release(x->world ? x->node : x->c, x->memory);
        }
        return st;
    }
    dpari_hx_finish_items(x);
    return DPAR_OK;
}

/* This rank's arrays: can peers read them where they lie? */
static void dpari_hx_own_arrays(dpar_halo_exchange *x)
{
    const int shares = x->world && x->options.way != DPAR_HALO_PACKED;
    int32_t i;
    for (i = 0; i < x->fields; i++) {
        const dpar_halo_field *f = &x->field[i];
        dpari_hx_array_of(&x->array[i], f, x->rank);
        x->array[i].reach[0] = shares && f->data && dpari_ref(x->world, f->data, 1) != 0;
        x->array[i].reach[1] = shares && f->halos && dpari_ref(x->world, f->halos, 1) != 0;
    }
}

DPAR_API dpar_status dpar_halo_exchange_init(void *memory, int64_t bytes, dpar_comm *c,
                                             const dpar_halo_field *fields, int32_t n,
                                             const dpar_halo_options *options,
                                             dpar_halo_exchange **plan, dpar_why *why)
{
    dpar_halo_exchange *x;
    dpar_halo_options o;
    dpari_hx_size z;
    int64_t need = 0;
    int32_t i;
    dpar_status st;
    dpari_zero(&o, sizeof o);
    o = options ? *options : o;
    if (!c || !plan) {
        return dpari_say(DPAR_E_ARG, why, "communicator or plan is NULL", 0, 0, 0, 0);
    }
    st = dpari_hx_judge(c, fields, n, &o, &z, why);
    if (st == DPAR_OK) {
        (void)dpari_hx_layout(&z, NULL, &need);
        if (!memory || bytes < need || (uintptr_t)memory % 64 != 0) {
            st = dpari_say(DPAR_E_ROOM, why,
                           "# bytes of memory, aligned to 64, are needed: # are there at #", need,
                           bytes, (int64_t)((uintptr_t)memory % 64), 0);
        }
    }
    st = dpari_hx_agree(c, st, st == DPAR_OK ? dpari_hx_hash(fields, n, &o) : 0, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(memory, (size_t)need);
    x = dpari_hx_layout(&z, memory, &need);
    x->c = c;
    x->node = o.node ? o.node : c;
    x->world = o.way == DPAR_HALO_MESSAGES ? NULL : dpari_world_of(x->node);
    x->options = o;
    x->rank = c->rank;
    x->fields = n;
    x->steps = z.steps;
    for (i = 0; i < n; i++) {
        x->field[i] = fields[i];
    }
    for (i = 0; i < x->steps; i++) {
        x->step[i].dim = o.ordered ? i : -1;
    }
    dpari_hx_own_arrays(x);
    dpari_hx_mark_peers(x);
    st = dpari_hx_plan(x, why);
    if (st == DPAR_OK) {
        *plan = x;
    }
    return st;
}

DPAR_API dpar_status dpar_halo_exchange_bind(dpar_halo_exchange *x, int32_t f, void *data,
                                             void *halos)
{
    dpari_hx_array *a;
    int32_t s;
    if (!x || f < 0 || f >= x->fields || x->active || (data != NULL) != (x->part[2 * f] != NULL) ||
        (halos != NULL) != (x->part[2 * f + 1] != NULL)) {
        return DPAR_E_ARG;
    }
    a = &x->array[f];
    if ((a->reach[0] && dpari_ref(x->world, data, 1) == 0) ||
        (a->reach[1] && dpari_ref(x->world, halos, 1) == 0)) {
        return dpari_say(DPAR_E_ARG, &x->c->why,
                         "bind of field #: it was planned in registered memory, where peers read "
                         "it; this is none",
                         f, 0, 0, 0);
    }
    x->field[f].data = data;
    x->field[f].halos = halos;
    dpari_hx_bind_field(x, f);
    x->version++;
    for (s = 0; s < x->steps; s++) {
        x->line[s].version = x->version;
    }
    return DPAR_OK;
}

/* ---- waiting for peers ------------------------------------------------------------------------
 */

enum { DPARI_HX_PROGRESS = 64 }; /* turns of a wait between two looks at other work */

static dpar_status dpari_hx_broken(const dpar_halo_exchange *x)
{
    return x->c->status != DPAR_OK ? x->c->status : x->node->status;
}

/* The peer is gone, or did not come: breaks the communicator with a sentence. */
static dpar_status dpari_hx_fail(dpar_halo_exchange *x, dpar_status status, int32_t peer,
                                 double waited)
{
    dpari_shm *s = (dpari_shm *)(void *)x->node;
    const dpari_hx_peer *p = &x->peer[peer];
    dpar_why why;
    dpar_text t;
    dpar_text_init(&t, why.text, sizeof why.text);
    dpar_text_put(&t, x->mode == DPAR_HALO_FORWARD ? "halo exchange #" : "halo adjoint #");
    dpar_text_int(&t, x->count);
    dpar_text_put(&t, " of ");
    dpar_text_int(&t, x->fields);
    dpar_text_put(&t, x->fields == 1 ? " field: rank " : " fields: rank ");
    dpar_text_int(&t, p->rank);
    if (status == DPAR_E_PEER) {
        dpari_put_ending(&t, s, p->world);
    } else if (status == DPAR_E_TIMEOUT) {
        dpar_text_put(&t, " did not come in ");
        dpar_text_fixed(&t, waited, 1);
        dpar_text_put(&t, " s; it has begun exchange #");
        dpar_text_int(&t, (int64_t)(DPARI_LOAD(&p->line[x->now].ready) >> 8));
    } else {
        dpar_text_put(&t, " runs another mode or operation (forward, sum, max, min)");
    }
    status = dpari_shm_break(s, status, why.text);
    if (x->node != x->c) {
        dpar_comm_abort(x->c, status, x->node->why.text);
    }
    return status;
}

/* Messages and other work that is under way. */
static void dpari_hx_progress(dpar_halo_exchange *x)
{
    int32_t i;
    dpari_shm_progress_all((dpari_shm *)(void *)x->node);
    if (x->node != x->c) {
        for (i = 0; i < x->messages; i++) {
            (void)dpar_test(&x->work[i]);
        }
    }
}

/* Time has passed: does it make sense to wait on? */
static dpar_status dpari_hx_look(dpar_halo_exchange *x, int32_t peer, double began)
{
    const double timeout = x->c->timeout_s;
    const uint32_t state = dpari_rank_state(x->world, x->peer[peer].world);
    dpar_status st = dpari_shm_broken((dpari_shm *)(void *)x->node);
    if (st == DPAR_OK) {
        st = x->c->status;
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (state == DPARI_RANK_DEAD || state == DPARI_RANK_LEFT) {
        return DPAR_E_PEER;
    }
    return timeout > 0.0 && dpari_os_now() - began > timeout ? DPAR_E_TIMEOUT : DPAR_OK;
}

/* Timers: 0 where there are none. */
static double dpari_hx_clock(const dpar_halo_exchange *x)
{
    return x->options.timers ? dpari_os_now() : 0.0;
}

static void dpari_hx_count(dpar_halo_exchange *x, int32_t phase, double began)
{
    if (x->options.timers) {
        x->seconds[phase] += dpari_os_now() - began;
    }
}

static dpar_status dpari_hx_await_slowly(dpar_halo_exchange *x, int32_t peer, const uint64_t *word,
                                         uint64_t value)
{
    const double began = dpari_hx_clock(x);
    dpari_wait t = {0, 0, 0, 0, 0.0};
    dpar_status st = DPAR_OK;
    int32_t turn = 0;
    while (DPARI_LOAD(word) < value && st == DPAR_OK) {
        const dpar_status passed = dpari_wait_turn(x->world, &t, x->peer[peer].world);
        if (passed == DPAR_MORE || ++turn % DPARI_HX_PROGRESS == 0) {
            dpari_hx_progress(x);
        }
        if (passed == DPAR_MORE && DPARI_LOAD(word) < value) {
            st = dpari_hx_look(x, peer, t.began);
            if (st != DPAR_OK && DPARI_LOAD(word) >= value) {
                st = DPAR_OK; /* its last words */
            }
        }
    }
    dpari_wait_end(x->world, &t);
    dpari_hx_count(x, DPARI_HX_WAITING, began);
    return st == DPAR_OK || dpari_hx_broken(x) != DPAR_OK
               ? st
               : dpari_hx_fail(x, st, peer, dpari_os_now() - t.began);
}

#define DPARI_HX_LOOK_EVERY 10e-3 /* seconds between two looks at peers while one tests */

/* *word >= value? MORE: not yet, and wait is 0. */
static dpar_status dpari_hx_await(dpar_halo_exchange *x, int32_t peer, const uint64_t *word,
                                  uint64_t value, int wait)
{
    double now;
    dpar_status st;
    if (DPARI_LOAD(word) >= value) {
        return DPAR_OK;
    }
    if (wait) {
        return dpari_hx_await_slowly(x, peer, word, value);
    }
    now = dpari_os_now();
    if (x->looked > 0.0 && now - x->looked < DPARI_HX_LOOK_EVERY) {
        return DPAR_MORE;
    }
    x->looked = now;
    st = dpari_hx_look(x, peer, now);
    if (st == DPAR_E_PEER && DPARI_LOAD(word) < value) {
        st = dpari_hx_fail(x, st, peer, 0.0);
    }
    return st == DPAR_OK || DPARI_LOAD(word) >= value ? DPAR_MORE : st;
}

/* ---- one step ---------------------------------------------------------------------------------
 */

enum { DPARI_HX_TAKING, DPARI_HX_COMING, DPARI_HX_ADDING, DPARI_HX_DONE, DPARI_HX_LEAVING };

/* Does anything come from the peer in this mode? */
static int dpari_hx_takes(const dpari_hx_flow *w, int32_t mode)
{
    return (mode == DPAR_HALO_FORWARD ? w->boxes : w->sends) > 0;
}

static uint64_t dpari_hx_kind(const dpar_halo_exchange *x)
{
    return (uint64_t)(x->mode == DPAR_HALO_FORWARD ? 1 : 2 + x->op);
}

static int64_t dpari_hx_parity(const dpar_halo_exchange *x)
{
    return x->count & 1;
}

static unsigned char *dpari_hx_mine(const dpar_halo_exchange *x, const dpari_hx_item *it)
{
    return x->part[2 * it->field + it->mine] + it->mine_at;
}

/* Where what is taken lies. */
static const unsigned char *dpari_hx_from(const dpar_halo_exchange *x, const dpari_hx_item *it)
{
    const dpari_hx_peer *p = &x->peer[it->peer < 0 ? 0 : it->peer];
    if (it->peer < 0) {
        return x->part[2 * it->field + it->theirs] + it->theirs_at;
    }
    if (it->direct) {
        return p->at[2 * it->field + it->theirs] + it->theirs_at;
    }
    return p->world >= 0 ? p->staging + dpari_hx_parity(x) * p->turn + it->take_at
                         : x->arrivals + it->take_at;
}

static void dpari_hx_give(dpar_halo_exchange *x, int64_t first, int64_t n)
{
    const double began = dpari_hx_clock(x);
    unsigned char *to = x->staging + dpari_hx_parity(x) * x->turn;
    int64_t k;
    for (k = first; k < first + n; k++) {
        const dpari_hx_item *it = &x->item[k], *other = it + it->give_mate;
        if (!it->packs || it->give_mate < 0) {
            continue;
        }
        if (it->give_mate > 0) {
            dpari_stride_run_beside(&it->give, to + it->pack_at, dpari_hx_mine(x, it), &other->give,
                                    to + other->pack_at, dpari_hx_mine(x, other));
        } else {
            dpari_stride_run(&it->give, to + it->pack_at, dpari_hx_mine(x, it));
        }
    }
    dpari_hx_count(x, DPARI_HX_PACKING, began);
}

static void dpari_hx_take(dpar_halo_exchange *x, int64_t first, int64_t n)
{
    const double began = dpari_hx_clock(x);
    int64_t k;
    for (k = first; k < first + n; k++) {
        const dpari_hx_item *it = &x->item[k], *other = it + it->take_mate;
        if (it->take_mate < 0) {
            continue;
        }
        if (it->take_mate > 0) {
            dpari_stride_run_beside(&it->take, dpari_hx_mine(x, it), dpari_hx_from(x, it),
                                    &other->take, dpari_hx_mine(x, other), dpari_hx_from(x, other));
        } else {
            dpari_stride_run(&it->take, dpari_hx_mine(x, it), dpari_hx_from(x, it));
        }
    }
    dpari_hx_count(x, DPARI_HX_COPYING, began);
}

/* Receives, then sends of a step. */
static dpar_status dpari_hx_post(dpar_halo_exchange *x, int32_t s)
{
    const int mode = x->mode;
    unsigned char *from = x->staging + dpari_hx_parity(x) * x->turn;
    int32_t i, n = 0, pass;
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < x->peers; i++) {
            const dpari_hx_flow *w = &x->peer[i].flow[s];
            const int64_t bytes = pass ? w->out_bytes[mode] : w->in_bytes[mode];
            dpar_call *call = &x->call[n];
            if (x->peer[i].world >= 0 || bytes == 0) {
                continue;
            }
            dpari_zero(call, sizeof *call);
            call->kind = pass ? DPAR_SEND : DPAR_RECV;
            call->type = DPAR_U8;
            call->root = x->peer[i].rank;
            call->tag = x->options.tag;
            call->count = bytes;
            call->in = pass ? from + w->out_at[mode] : NULL;
            call->out = pass ? NULL : x->arrivals + w->in_at[mode];
            n++;
        }
    }
    x->messages = n;
    return n > 0 ? dpar_batch(x->c, x->call, n, x->work) : DPAR_OK;
}

static dpar_status dpari_hx_begin_step(dpar_halo_exchange *x, int32_t s)
{
    const dpari_hx_step *p = &x->step[s];
    const int forward = x->mode == DPAR_HALO_FORWARD;
    dpar_status st = DPAR_OK;
    int32_t i;
    x->now = s;
    x->stage = DPARI_HX_TAKING;
    for (i = 0; i < x->peers; i++) {
        dpari_hx_peer *peer = &x->peer[i];
        dpari_hx_flow *w = &peer->flow[s];
        w->taken = peer->world < 0 || !dpari_hx_takes(w, x->mode);
        if (peer->world >= 0 && x->count > 2 && (w->out_bytes[0] > 0 || w->out_bytes[1] > 0)) {
            st = dpari_hx_await(x, i, &peer->line[s].done, (uint64_t)x->count - 2, 1);
            if (st != DPAR_OK) {
                return st;
            }
        }
    }
    if (forward) {
        dpari_hx_give(x, p->s, p->s_items);
    } else {
        dpari_hx_give(x, p->r, p->r_items);
    }
    if (x->shares) {
        dpari_publish(x->world, &x->line[s].ready, (uint64_t)x->count << 8 | dpari_hx_kind(x));
    }
    st = dpari_hx_post(x, s);
    if (st == DPAR_OK && forward) {
        dpari_hx_take(x, p->r, p->self);
    }
    return st;
}

/* The peer says that it is ready: for the same? Where are its arrays? */
static dpar_status dpari_hx_meet(dpar_halo_exchange *x, int32_t i, int32_t s, int wait)
{
    dpari_hx_peer *p = &x->peer[i];
    dpar_status st = dpari_hx_await(x, i, &p->line[s].ready, (uint64_t)x->count << 8, wait);
    uint64_t word;
    int32_t f;
    if (st != DPAR_OK) {
        return st;
    }
    word = DPARI_LOAD(&p->line[s].ready);
    if (word >> 8 == (uint64_t)x->count && (word & 255u) != dpari_hx_kind(x)) {
        return dpari_hx_fail(x, DPAR_E_MISMATCH, i, 0.0);
    }
    if (p->flow[s].in_direct[x->mode] > 0 && p->line[s].version != p->version) {
        for (f = 0; f < 2 * x->fields; f++) {
            p->at[f] = (const unsigned char *)dpari_at(x->world, p->refs[f]);
        }
        p->version = p->line[s].version;
    }
    return DPAR_OK;
}

/* From those that share memory, as they come. */
static dpar_status dpari_hx_take_shared(dpar_halo_exchange *x, int32_t s, int wait)
{
    dpar_status all = DPAR_OK;
    int32_t i, pass;
    for (pass = 0; pass < (wait ? 2 : 1); pass++) {
        all = DPAR_OK;
        for (i = 0; i < x->peers; i++) {
            dpari_hx_flow *w = &x->peer[i].flow[s];
            dpar_status st;
            if (w->taken) {
                continue;
            }
            st = dpari_hx_meet(x, i, s, pass);
            if (st == DPAR_MORE) {
                all = DPAR_MORE;
            } else if (st != DPAR_OK) {
                return st;
            } else {
                w->taken = 1;
                if (x->mode == DPAR_HALO_FORWARD) {
                    dpari_hx_take(x, w->first, w->boxes);
                }
            }
        }
        if (all == DPAR_OK) {
            break;
        }
    }
    return all;
}

static dpar_status dpari_hx_wait_message(dpar_halo_exchange *x, int32_t i, int wait)
{
    const double began = dpari_hx_clock(x);
    const dpar_status st = wait ? dpar_wait(&x->work[i]) : dpar_test(&x->work[i]);
    dpari_hx_count(x, DPARI_HX_WAITING, began);
    return st;
}

/* Messages: receives were posted first, in the order of the peers. */
static dpar_status dpari_hx_take_messages(dpar_halo_exchange *x, int32_t s, int wait)
{
    dpar_status all = DPAR_OK;
    int32_t i, n = 0;
    for (i = 0; i < x->peers; i++) {
        dpari_hx_flow *w = &x->peer[i].flow[s];
        dpar_status st;
        if (x->peer[i].world >= 0 || w->in_bytes[x->mode] == 0) {
            continue;
        }
        n++;
        if (w->taken > 1) {
            continue;
        }
        st = dpari_hx_wait_message(x, n - 1, wait);
        if (st == DPAR_MORE) {
            all = DPAR_MORE;
        } else if (st != DPAR_OK) {
            return st;
        } else {
            w->taken = 2;
            if (x->mode == DPAR_HALO_FORWARD) {
                dpari_hx_take(x, w->first, w->boxes);
            }
        }
    }
    return all;
}

/* What peers read where it lay is 0 from now on; the rest is since it was read. */
static void dpari_hx_zero_halos(dpar_halo_exchange *x, int32_t s)
{
    const double began = dpari_hx_clock(x);
    const uint64_t zero[2] = {0, 0};
    const dpari_hx_step *p = &x->step[s];
    int64_t k;
    for (k = p->r; k < p->r + p->r_items; k++) {
        const dpari_hx_item *it = &x->item[k];
        if (it->peer >= 0 && !it->packs) {
            dpari_stride_run(&it->zero, dpari_hx_mine(x, it), zero);
        }
    }
    dpari_hx_count(x, DPARI_HX_COPYING, began);
}

/* Have those who read this rank's arrays read them, and have messages left? */
static dpar_status dpari_hx_leave(dpar_halo_exchange *x, int32_t s, int wait)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->peers && x->lends[x->mode] && st == DPAR_OK; i++) {
        if (x->peer[i].world >= 0 && x->peer[i].flow[s].out_direct[x->mode] > 0) {
            st = dpari_hx_await(x, i, &x->peer[i].line[s].done, (uint64_t)x->count, wait);
        }
    }
    for (i = 0; i < x->messages && st == DPAR_OK; i++) {
        st = dpari_hx_wait_message(x, i, wait);
    }
    return st;
}

/* As far as it goes in a step; OK: it is finished. */
static dpar_status dpari_hx_go(dpar_halo_exchange *x, int wait)
{
    const int32_t s = x->now;
    const dpari_hx_step *p = &x->step[s];
    dpar_status st = DPAR_OK;
    if (x->stage == DPARI_HX_TAKING) {
        st = dpari_hx_take_shared(x, s, wait);
        x->stage += st == DPAR_OK;
    }
    if (x->stage == DPARI_HX_COMING && st == DPAR_OK) {
        st = x->messages > 0 ? dpari_hx_take_messages(x, s, wait) : DPAR_OK;
        x->stage += st == DPAR_OK;
    }
    if (x->stage == DPARI_HX_ADDING && st == DPAR_OK) {
        if (x->mode == DPAR_HALO_ADJOINT) {
            dpari_hx_take(x, p->s, p->s_items);
        }
        if (x->shares) {
            dpari_publish(x->world, &x->line[s].done, (uint64_t)x->count);
        }
        x->stage = DPARI_HX_LEAVING;
    }
    if (x->stage == DPARI_HX_LEAVING && st == DPAR_OK) {
        st = dpari_hx_leave(x, s, wait);
        if (st == DPAR_OK && x->mode == DPAR_HALO_ADJOINT) {
            dpari_hx_zero_halos(x, s);
        }
    }
    return st;
}

/* The exchange failed: nothing of it stays under way. */
static dpar_status dpari_hx_drop(dpar_halo_exchange *x, dpar_status st)
{
    if (dpari_hx_broken(x) != DPAR_OK) {
        (void)dpar_wait_all(x->work, x->messages);
    }
    x->messages = 0;
    x->active = 0;
    return st;
}

static dpar_status dpari_hx_run(dpar_halo_exchange *x, int wait)
{
    const int32_t last = x->mode == DPAR_HALO_FORWARD ? x->steps - 1 : 0;
    for (;;) {
        dpar_status st = dpari_hx_go(x, wait);
        if (st == DPAR_MORE) {
            return st;
        }
        if (st != DPAR_OK) {
            return dpari_hx_drop(x, st);
        }
        if (x->now == last) {
            x->active = 0;
            return DPAR_OK;
        }
        st = dpari_hx_begin_step(x, x->now + (x->mode == DPAR_HALO_FORWARD ? 1 : -1));
        if (st != DPAR_OK) {
            return dpari_hx_drop(x, st);
        }
    }
}

/* ---- exchanges --------------------------------------------------------------------------------
 */

static dpar_status dpari_hx_begin(dpar_halo_exchange *x, int32_t mode, int32_t op)
{
    dpar_status st = DPAR_OK;
    if (x->world) { /* the others may have given this rank up */
        st = dpari_shm_broken((dpari_shm *)(void *)x->node);
    }
    st = st == DPAR_OK ? dpari_hx_broken(x) : st;
    if (st != DPAR_OK) {
        return st;
    }
    if (x->active) {
        return dpari_say(DPAR_E_ARG, &x->c->why, "halo exchange # has not ended", x->count, 0, 0,
                         0);
    }
    x->count++;
    x->active = 1;
    x->mode = mode;
    x->op = op;
    x->looked = 0.0;
    x->messages = 0;
    st = dpari_hx_begin_step(x, mode == DPAR_HALO_FORWARD ? 0 : x->steps - 1);
    return st == DPAR_OK ? st : dpari_hx_drop(x, st);
}

DPAR_API dpar_status dpar_halo_exchange_begin(dpar_halo_exchange *x)
{
    return x ? dpari_hx_begin(x, DPAR_HALO_FORWARD, DPAR_COPY) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_halo_exchange_begin_adjoint(dpar_halo_exchange *x, int32_t op)
{
    int32_t s, i;
    int64_t k;
    if (!x || (op != DPAR_SUM && op != DPAR_MAX && op != DPAR_MIN)) {
        return DPAR_E_ARG;
    }
    for (i = 0; i < x->fields; i++) {
        if (!dpar_type_reduces(x->field[i].type)) {
            return dpari_say_word(DPAR_E_ARG, &x->c->why, "field # of @ cannot be combined",
                                  dpar_type_name(x->field[i].type), 8, i, 0, 0, 0);
        }
    }
    for (s = 0; s < x->steps && op != x->prepared && !x->active; s++) {
        for (k = 0; k < x->step[s].s_items; k++) {
            dpari_hx_prepare(x, &x->item[x->step[s].s + k], op);
        }
    }
    x->prepared = x->active ? x->prepared : op;
    return dpari_hx_begin(x, DPAR_HALO_ADJOINT, op);
}

DPAR_API dpar_status dpar_halo_exchange_test(dpar_halo_exchange *x)
{
    if (!x) {
        return DPAR_E_ARG;
    }
    return x->active ? dpari_hx_run(x, 0) : dpari_hx_broken(x);
}

DPAR_API dpar_status dpar_halo_exchange_end(dpar_halo_exchange *x)
{
    if (!x) {
        return DPAR_E_ARG;
    }
    return x->active ? dpari_hx_run(x, 1) : dpari_hx_broken(x);
}

DPAR_API dpar_status dpar_halo_exchange_run(dpar_halo_exchange *x)
{
    const dpar_status st = dpar_halo_exchange_begin(x);
    return st == DPAR_OK ? dpar_halo_exchange_end(x) : st;
}

DPAR_API dpar_status dpar_halo_exchange_close(dpar_halo_exchange *x)
{
    dpar_status st;
    if (!x) {
        return DPAR_OK;
    }
    st = dpari_hx_broken(x);
    if (x->active && st == DPAR_OK) {
        return dpari_say(DPAR_E_ARG, &x->c->why, "halo exchange # has not ended", x->count, 0, 0,
                         0);
    }
    if (st == DPAR_OK) {
        st = dpar_barrier(x->c, NULL); /* peers may still look at this rank's words */
    }
    dpar_comm_release(x->world ? x->node : x->c, x->memory);
    return st;
}

/* ---- what goes where, and how long it took ----------------------------------------------------
 */

/* Blocks between two ranks along a mesh axis, at most, in the mesh of field 0. */
static int32_t dpari_hx_hops(const dpar_halo_exchange *x, int32_t a, int32_t b)
{
    const dpar_halo *h = x->field[0].halo;
    int32_t at[2][DPAR_MAX_AXES], most = 0, i, k, block[2];
    block[0] = a;
    block[1] = b;
    for (k = 0; k < 2; k++) {
        for (i = 0; h->owner && i < h->grid.mesh.size; i++) {
            if (h->owner[i] == (k ? b : a)) {
                block[k] = h->grid.mesh.offset + i;
            }
        }
        if (!dpar_mesh_coords(&h->grid.mesh, block[k], at[k])) {
            return 0;
        }
    }
    for (i = 0; i < h->grid.mesh.axes; i++) {
        const dpar_placement *p = &h->grid.axis[i];
        const int32_t size = h->grid.mesh.axis[i].size;
        int32_t n = at[0][i] > at[1][i] ? at[0][i] - at[1][i] : at[1][i] - at[0][i];
        if (p->kind == DPAR_SHARD && (h->periodic >> p->dim & 1u) && size - n < n) {
            n = size - n;
        }
        most = n > most ? n : most;
    }
    return most;
}

DPAR_API int dpar_halo_exchange_traffic(const dpar_halo_exchange *x, int32_t k,
                                        dpar_halo_traffic *t)
{
    int32_t peer = k, s;
    int64_t i;
    if (!x || !t || k < 0 || k > x->peers) {
        return 0;
    }
    dpari_zero(t, sizeof *t);
    peer = k == x->peers ? -1 : k;
    t->peer = peer < 0 ? x->rank : x->peer[peer].rank;
    t->hops = dpari_hx_hops(x, x->rank, t->peer);
    t->way = peer >= 0 && x->peer[peer].world < 0 ? DPAR_HALO_MESSAGES : DPAR_HALO_PACKED;
    for (s = 0; s < x->steps; s++) {
        for (i = x->step[s].s; i < x->step[s].s + x->step[s].s_items; i++) {
            const dpari_hx_item *it = &x->item[i];
            const int32_t type = x->field[it->field].type, width = dpar_type_bytes(type);
            const int64_t bytes =
                it->elements * dpar_type_bytes(dpari_hx_wire(&x->field[it->field]));
            if (it->peer != peer) {
                continue;
            }
            t->pieces++;
            t->bytes += bytes;
            t->direct += it->packs ? 0 : bytes;
            t->runs +=
                it->elements * width / dpari_hx_in_a_row(it->extent, it->own_step, it->dims, type);
        }
    }
    if (t->direct > 0) {
        t->way = DPAR_HALO_DIRECT;
    }
    return peer >= 0 || t->pieces > 0;
}

static const char *dpari_hx_way(int32_t way)
{
    switch (way) {
    case DPAR_HALO_MESSAGES: return "message";
    case DPAR_HALO_PACKED: return "packed";
    case DPAR_HALO_DIRECT: return "direct";
    default: return "auto";
    }
}

static void dpari_hx_put_time(dpar_text *out, const char *name, double seconds, int64_t times)
{
    dpar_text_put(out, name);
    dpar_text_fixed(out, times > 0 ? 1e6 * seconds / (double)times : 0.0, 2);
    dpar_text_put(out, " us");
}

DPAR_API void dpar_halo_exchange_report(const dpar_halo_exchange *x, dpar_text *out)
{
    dpar_halo_traffic t;
    int32_t k, c;
    dpar_text_put(out, "halo exchange of rank ");
    dpar_text_int(out, x->rank);
    dpar_text_put(out, ", ");
    dpar_text_int(out, x->fields);
    dpar_text_put(out, x->fields == 1 ? " field" : " fields");
    dpar_text_put(out, x->options.ordered ? ", dim by dim\n" : "\n");
    dpar_text_put(out,
                  "  to rank   way       hops   pieces        bytes       direct         runs\n");
    for (k = 0; dpar_halo_exchange_traffic(x, k, &t); k++) {
        int64_t column[6];
        static const int32_t place[6] = {4, 22, 31, 44, 57, 70};
        column[0] = t.peer;
        column[1] = t.hops;
        column[2] = t.pieces;
        column[3] = t.bytes;
        column[4] = t.direct;
        column[5] = t.runs;
        for (c = 0; c < 6; c++) {
            dpar_text_column(out, (size_t)place[c]);
            dpar_text_int(out, column[c]);
            if (c == 0) {
                dpar_text_column(out, 12);
                dpar_text_put(out, t.peer == x->rank ? "copy" : dpari_hx_way(t.way));
            }
        }
        dpar_text_char(out, '\n');
    }
    dpar_text_put(out, "  ");
    dpar_text_int(out, x->count);
    dpar_text_put(out, " exchanges");
    if (x->options.timers) {
        dpari_hx_put_time(out, ", each: packing ", x->seconds[DPARI_HX_PACKING], x->count);
        dpari_hx_put_time(out, ", copying ", x->seconds[DPARI_HX_COPYING], x->count);
        dpari_hx_put_time(out, ", waiting ", x->seconds[DPARI_HX_WAITING], x->count);
    }
    dpar_text_char(out, '\n');
}

/* ---- looking for mistakes ---------------------------------------------------------------------
 */

/* A value that no code computes: a quiet NaN, all bits of an integer. */
static void dpari_hx_poison_of(int32_t type, unsigned char *element)
{
    const uint64_t f64 = UINT64_C(0x7ff8) << 48;
    const uint32_t f32 = 0x7fc00000u;
    const uint16_t bf16 = 0x7fc0, f16 = 0x7e00;
    memset(element, 0xff, 8);
    switch (type) {
    case DPAR_F64: memcpy(element, &f64, 8); break;
    case DPAR_F32:
    case DPAR_TF32: memcpy(element, &f32, 4); break;
    case DPAR_BF16: memcpy(element, &bf16, 2); break;
    case DPAR_F16: memcpy(element, &f16, 2); break;
    default: break;
    }
}

/* Any NaN, or that integer. */
static int dpari_hx_is_poison(int32_t type, const unsigned char *at)
{
    unsigned char element[8];
    double d;
    float f;
    uint16_t h;
    switch (type) {
    case DPAR_F64: memcpy(&d, at, 8); return d != d;
    case DPAR_F32:
    case DPAR_TF32: memcpy(&f, at, 4); return f != f;
    case DPAR_BF16: memcpy(&h, at, 2); return (h & 0x7fff) > 0x7f80;
    case DPAR_F16: memcpy(&h, at, 2); return (h & 0x7fff) > 0x7c00;
    default: break;
    }
    memset(element, 0xff, 8);
    return memcmp(at, element, (size_t)dpar_type_bytes(type)) == 0;
}

DPAR_API void dpar_halo_exchange_poison(dpar_halo_exchange *x)
{
    int32_t s;
    int64_t k;
    for (s = 0; x && s < x->steps; s++) {
        for (k = x->step[s].r; k < x->step[s].s; k++) {
            const dpari_hx_item *it = &x->item[k];
            uint64_t element[1];
            dpari_hx_poison_of(x->field[it->field].type, (unsigned char *)element);
            dpari_stride_run(&it->zero, x->part[2 * it->field + it->mine] + it->mine_at, element);
        }
    }
}

/* "field 2, point (4, -1) component 1 of rank 3" from index at[] of an item. */
static void dpari_hx_put_cell(const dpar_halo_exchange *x, const dpari_hx_item *it,
                              const int64_t *at, dpar_text *out)
{
    const dpar_halo *h = x->field[it->field].halo;
    dpar_box all;
    int32_t d;
    dpar_text_put(out, "field ");
    dpar_text_int(out, it->field);
    dpar_text_put(out, ", point (");
    if (dpar_halo_box(h, x->rank, &all)) {
        for (d = 0; d < all.dims; d++) {
            dpar_text_put(out, d ? ", " : "");
            dpar_text_int(out, all.lo[d] + it->local[d] + at[d]);
        }
    }
    dpar_text_put(out, ") component ");
    dpar_text_int(out, at[it->dims - 1]);
    dpar_text_put(out, " of rank ");
    dpar_text_int(out, x->rank);
}

/* Goes over the cells of an item: at[] in its own dims and, in elements, where it lies; 0 past the
 * last. */
static int dpari_hx_step_on(const dpari_hx_item *it, int64_t *at, int64_t *place)
{
    int32_t d;
    for (d = it->dims - 1; d >= 0; d--) {
        *place += it->own_step[d];
        if (++at[d] < it->extent[d]) {
            return 1;
        }
        *place -= it->own_step[d] * it->extent[d];
        at[d] = 0;
    }
    return 0;
}

/* Index at[] of the sender's order, in the order of this rank's array. */
static void dpari_hx_here(const dpari_hx_item *it, const int64_t *at, int64_t *here)
{
    int32_t d;
    for (d = 0; d < it->dims; d++) {
        here[it->here[d]] = it->flip >> it->here[d] & 1u ? it->extent[d] - 1 - at[d] : at[d];
    }
}

DPAR_API dpar_status dpar_halo_exchange_unpoisoned(const dpar_halo_exchange *x, dpar_why *why)
{
    int32_t s;
    int64_t k;
    for (s = 0; x && s < x->steps; s++) {
        for (k = x->step[s].r; k < x->step[s].s; k++) {
            const dpari_hx_item *it = &x->item[k];
            const int32_t type = x->field[it->field].type;
            const unsigned char *from = x->part[2 * it->field + it->mine] + it->mine_at;
            int64_t at[DPARI_HX_DIMS] = {0, 0, 0, 0, 0, 0, 0}, here[DPARI_HX_DIMS], place = 0;
            do {
                dpar_text t;
                if (!dpari_hx_is_poison(type, from + place * dpar_type_bytes(type))) {
                    continue;
                }
                dpar_text_init(&t, why ? why->text : NULL, why ? sizeof why->text : 0);
                dpari_hx_here(it, at, here);
                dpari_hx_put_cell(x, it, here, &t);
                dpar_text_put(&t, " was not filled, or came from a cell without a value");
                return DPAR_E_ARG;
            } while (dpari_hx_step_on(it, at, &place));
        }
    }
    return x ? DPAR_OK : DPAR_E_ARG;
}

/* ---- comparing with the whole array -----------------------------------------------------------
 */

/* Field f on rank 0, while it is compared: all points, components last; one rank's local box. */
typedef struct dpari_hx_whole {
    const dpar_halo_exchange *x;
    int32_t f, components, width;
    dpar_box own, all; /* of the rank that is looked at */
    unsigned char *points, *local;
    dpar_why *why;
} dpari_hx_whole;

static int64_t dpari_hx_volume(const dpar_box *b)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        n *= b->hi[d] - b->lo[d];
    }
    return n;
}

/* Bytes to point p of a dense box. */
static int64_t dpari_hx_at(const dpari_hx_whole *w, const dpar_box *b, const int64_t *p)
{
    int64_t at = 0;
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        at = at * (b->hi[d] - b->lo[d]) + p[d] - b->lo[d];
    }
    return at * w->components * w->width;
}

static int dpari_hx_next_point(const dpar_box *b, int64_t *p)
{
    int32_t d;
    for (d = b->dims - 1; d >= 0; d--) {
        if (++p[d] < b->hi[d]) {
            return 1;
        }
        p[d] = b->lo[d];
    }
    return 0;
}

/* This rank's local box of field f, point by point, densely into `to`. Points that a compact form
 * has no place for stay 0. */
static void dpari_hx_collect(const dpar_halo_exchange *x, dpari_hx_whole *w)
{
    const dpari_hx_array *a = &x->array[w->f];
    int64_t p[DPAR_MAX_DIMS], at[DPAR_MAX_DIMS];
    int32_t d, k;
    for (d = 0; d < w->all.dims; d++) {
        p[d] = w->all.lo[d];
    }
    do {
        dpari_hx_spot spot;
        const unsigned char *from;
        for (d = 0; d < w->all.dims; d++) {
            at[d] = p[d] - w->all.lo[d];
        }
        dpari_hx_place(a, at, w->components, &spot);
        if (spot.part < 0) {
            continue;
        }
        from = x->part[2 * w->f + spot.part] + spot.at * w->width;
        for (k = 0; k < w->components; k++) {
            memcpy(w->local + dpari_hx_at(w, &w->all, p) + k * w->width,
                   from + k * spot.stride[w->all.dims] * w->width, (size_t)w->width);
        }
    } while (dpari_hx_next_point(&w->all, p));
}

/* Own points of a rank's local box into the whole. */
static void dpari_hx_assemble(dpari_hx_whole *w, const dpar_box *grid)
{
    int64_t p[DPAR_MAX_DIMS];
    int32_t d;
    if (dpari_hx_volume(&w->own) == 0) {
        return;
    }
    for (d = 0; d < w->own.dims; d++) {
        p[d] = w->own.lo[d];
    }
    do {
        memcpy(w->points + dpari_hx_at(w, grid, p), w->local + dpari_hx_at(w, &w->all, p),
               (size_t)(w->components * w->width));
    } while (dpari_hx_next_point(&w->own, p));
}

/* Which point does p show? The rules of halo.h in their own words, without its walk. 0: none, or it
 * is itself. *sign: -1 where vectors change it. */
static int dpari_hx_image(const dpari_hx_whole *w, const int64_t *p, int64_t *q, int *sign)
{
    const dpar_halo *h = w->x->field[w->f].halo;
    const int32_t m = h->mirror;
    int64_t columns = 0, shift = 0;
    int32_t d, outside = 0, over = 0, seam = 0, box = h->shape == DPAR_STENCIL_BOX;
    *sign = 1;
    for (d = 0; d < w->all.dims; d++) {
        const int64_t n = dpar_halo_points(h, d);
        const int bends = d == h->fold;
        box |= h->window[d].kernel != 0;
        outside += p[d] < w->own.lo[d] || p[d] >= w->own.hi[d];
        q[d] = p[d];
        if (h->periodic >> d & 1u) {
            q[d] = p[d] - dpari_floor_div(p[d], n) * n;
        } else if (bends && p[d] >= n && (h->folds || (h->poles & DPAR_POLE_HIGH))) {
            over = h->folds ? 1 : 2;
            q[d] = 2 * (n - 1) + 1 - p[d] -
                   (h->folds ? h->on_row : (h->pole_rows & DPAR_POLE_HIGH) != 0);
        } else if (bends && p[d] < 0 && (h->poles & DPAR_POLE_LOW)) {
            over = 2;
            q[d] = ((h->pole_rows & DPAR_POLE_LOW) != 0) - 1 - p[d];
        } else if (p[d] < 0 || p[d] >= n) {
            return 0;
        }
        seam |= bends && h->folds && h->on_row && p[d] == n - 1;
    }
    if (outside > 1 && !box) {
        return 0;
    }
    if (over == 2) {
        columns = dpar_halo_points(h, m);
        shift = q[m] + columns / 2;
    } else if (over == 1 || seam) {
        columns = dpar_halo_points(h, m);
        shift = columns - 1 + h->shift - q[m];
        shift -= dpari_floor_div(shift, columns) * columns;
        if (!over && shift >= q[m]) { /* of a pair on the fold the later one shows the first */
            return outside > 0;
        }
    }
    if (columns > 0) {
        q[m] = shift - dpari_floor_div(shift, columns) * columns;
        *sign = -1;
    }
    return outside > 0 || columns > 0;
}

/* What the exchange makes of an element: narrowed, with its sign changed. */
static void dpari_hx_passed(const dpari_hx_whole *w, int sign, void *to, const void *from)
{
    const dpar_halo_field *f = &w->x->field[w->f];
    dpari_stride_piece p;
    dpari_stride one;
    dpari_zero(&p, sizeof p);
    p.to_type = p.from_type = f->type;
    p.through = dpari_hx_wire(f);
    p.negate = f->vector && sign < 0;
    dpari_stride_prepare(&one, &p);
    dpari_stride_run(&one, to, from);
}

static dpar_status dpari_hx_differs(const dpari_hx_whole *w, int32_t rank, const int64_t *p,
                                    const int64_t *q, int32_t k)
{
    dpar_text t;
    int32_t d, pass;
    dpar_text_init(&t, w->why->text, sizeof w->why->text);
    dpar_text_put(&t, "field ");
    dpar_text_int(&t, w->f);
    for (pass = 0; pass < 2; pass++) {
        dpar_text_put(&t, pass ? " differs from its owner's at (" : ", point (");
        for (d = 0; d < w->all.dims; d++) {
            dpar_text_put(&t, d ? ", " : "");
            dpar_text_int(&t, pass ? q[d] : p[d]);
        }
        dpar_text_char(&t, ')');
        if (pass == 0) {
            dpar_text_put(&t, " component ");
            dpar_text_int(&t, k);
            dpar_text_put(&t, " of rank ");
            dpar_text_int(&t, rank);
        }
    }
    return DPAR_E_MISMATCH;
}

/* All cells of one rank's local box that have an image with an owner. */
static dpar_status dpari_hx_look_up(const dpari_hx_whole *w, const dpar_box *grid, int32_t rank,
                                    const unsigned char *known)
{
    int64_t p[DPAR_MAX_DIMS], q[DPAR_MAX_DIMS];
    int32_t d, k;
    int sign;
    for (d = 0; d < w->all.dims; d++) {
        p[d] = w->all.lo[d];
    }
    do {
        int64_t from;
        if (!dpari_hx_image(w, p, q, &sign)) {
            continue;
        }
        from = dpari_hx_at(w, grid, q);
        for (k = 0; k < w->components && known[from / (w->components * w->width)]; k++) {
            uint64_t want[1] = {0};
            const unsigned char *got = w->local + dpari_hx_at(w, &w->all, p) + k * w->width;
            dpari_hx_passed(w, sign, want, w->points + from + k * w->width);
            if (memcmp(want, got, (size_t)w->width) != 0) {
                return dpari_hx_differs(w, rank, p, q, k);
            }
        }
    } while (dpari_hx_next_point(&w->all, p));
    return DPAR_OK;
}

/* Rank 0 with everybody's local boxes, one after the other: puts own points together, then looks
 * halos up. */
static dpar_status dpari_hx_compare_all(dpar_halo_exchange *x, dpari_hx_whole *w,
                                        const dpar_box *grid, unsigned char *known)
{
    dpar_status st = DPAR_OK;
    int32_t pass, r;
    int64_t p[DPAR_MAX_DIMS];
    for (pass = 0; pass < 2; pass++) {
        for (r = 0; r < x->c->size && st >= DPAR_OK; r++) {
            if (!dpari_hx_boxes(x->field[w->f].halo, r, &w->own, &w->all)) {
                continue;
            }
            if (r == x->rank) {
                dpari_hx_collect(x, w);
            } else {
                const int64_t n = dpari_hx_volume(&w->all) * w->components * w->width;
                st = dpar_recv(x->c, w->local, n, DPAR_U8, r, x->options.tag, NULL);
            }
            if (st != DPAR_OK) {
                return st;
            }
            if (pass == 1) {
                if (w->why->text[0] == 0) {
                    (void)dpari_hx_look_up(w, grid, r, known); /* what it finds it writes there */
                }
                continue;
            }
            dpari_hx_assemble(w, grid);
            if (dpari_hx_volume(&w->own) > 0) {
                int32_t d;
                for (d = 0; d < w->own.dims; d++) {
                    p[d] = w->own.lo[d];
                }
                do {
                    known[dpari_hx_at(w, grid, p) / (w->components * w->width)] = 1;
                } while (dpari_hx_next_point(&w->own, p));
            }
        }
    }
    return st;
}

/* Memory for field f: a local box, the largest of any rank on rank 0, and there the whole. */
static dpar_status dpari_hx_compare_field(dpar_halo_exchange *x, int32_t f, dpar_why *found)
{
    const dpar_halo *h = x->field[f].halo;
    dpari_hx_whole w;
    dpar_box grid;
    void *memory = NULL;
    int64_t local = 0, whole = 1;
    int32_t r, d, has;
    dpar_status st;
    dpari_zero(&w, sizeof w);
    w.x = x;
    w.f = f;
    w.components = dpari_hx_components(&x->field[f]);
    w.width = dpar_type_bytes(x->field[f].type);
    w.why = found;
    grid.dims = h->grid.dims;
    for (d = 0; d < grid.dims; d++) {
        grid.lo[d] = 0;
        grid.hi[d] = dpar_halo_points(h, d);
        whole *= grid.hi[d];
    }
    for (r = x->rank; r < (x->rank == 0 ? x->c->size : x->rank + 1); r++) {
        if (dpari_hx_boxes(h, r, &w.own, &w.all)) {
            local = dpari_most(local, dpari_hx_volume(&w.all) * w.components * w.width);
        }
    }
    whole = x->rank == 0 ? whole : 0;
    st = dpar_comm_alloc(x->c, local + 64 + whole * (w.components * w.width + 1), &memory);
    st = dpari_hx_agree(x->c, st, 0, NULL);
    if (st != DPAR_OK) {
        if (memory) {
            dpar_comm_release(x->c, memory);
        }
        return st;
    }
    w.local = (unsigned char *)memory;
    w.points = w.local + (local + 63) / 64 * 64;
    has = dpari_hx_boxes(h, x->rank, &w.own, &w.all);
    if (x->rank == 0) {
        st = dpari_hx_compare_all(x, &w, &grid, w.points + whole * w.components * w.width);
    } else if (has) {
        dpari_hx_collect(x, &w);
        for (r = 0; r < 2 && st == DPAR_OK; r++) {
            st = dpar_send(x->c, w.local, local, DPAR_U8, 0, x->options.tag, NULL);
        }
    }
    dpar_comm_release(x->c, memory);
    return st;
}

DPAR_API dpar_status dpar_halo_exchange_compare(dpar_halo_exchange *x, dpar_why *why)
{
    dpar_why found;
    dpar_status st = DPAR_OK;
    int32_t f;
    if (!x || x->active) {
        return dpari_say(DPAR_E_ARG, why, "no plan, or an exchange that has not ended", 0, 0, 0, 0);
    }
    dpari_zero(&found, sizeof found);
    for (f = 0; f < x->fields && st == DPAR_OK; f++) {
        if (x->field[f].halo->cube) {
            return dpari_say(DPAR_E_ARG, why, "field # is on a cubed sphere: not compared", f, 0, 0,
                             0);
        }
        st = dpari_hx_compare_field(x, f, &found);
    }
    if (st == DPAR_OK) {
        st = dpar_broadcast(x->c, found.text, (int64_t)sizeof found.text, DPAR_U8, 0, NULL);
    }
    if (st != DPAR_OK) {
        return dpari_say_word(st, why, "@", x->c->why.text, sizeof x->c->why.text, 0, 0, 0, 0);
    }
    return found.text[0] == 0 ? DPAR_OK
                              : dpari_say_word(DPAR_E_MISMATCH, why, "@", found.text,
                                               sizeof found.text, 0, 0, 0, 0);
}

/* ---- choosing ---------------------------------------------------------------------------------
 */

enum { DPARI_HX_SAMPLES = 9, DPARI_HX_TRIES = 10 };
#define DPARI_HX_TUNE_FOR 20e-3 /* seconds a way */

/* The slowest rank's median; 0 with *st. */
static double dpari_hx_time(dpar_halo_exchange *x, dpar_status *st)
{
    double sample[DPARI_HX_SAMPLES], mine, slowest = 0.0;
    int64_t times = 1, k;
    int32_t i, j;
    for (i = -2; i < DPARI_HX_SAMPLES && *st == DPAR_OK; i++) {
        *st = dpar_barrier(x->c, NULL);
        mine = dpari_os_now();
        for (k = 0; k < times && *st == DPAR_OK; k++) {
            *st = dpar_halo_exchange_run(x);
        }
        mine = (dpari_os_now() - mine) / (double)times;
        if (*st == DPAR_OK) {
            *st = dpar_all_reduce(x->c, &mine, &slowest, 1, DPAR_F64, DPAR_MAX, NULL);
        }
        if (i < 0) { /* the first is cold */
            times = 1 + (int64_t)(DPARI_HX_TUNE_FOR / (double)DPARI_HX_SAMPLES / (slowest + 1e-7));
            times = i == -2 ? 3 : times;
            continue;
        }
        for (j = i; j > 0 && sample[j - 1] > slowest; j--) {
            sample[j] = sample[j - 1];
        }
        sample[j] = slowest;
    }
    return *st == DPAR_OK ? sample[DPARI_HX_SAMPLES / 2] : 0.0;
}

/* The n-th way to try: messages, packed, direct from runs of three lengths; each also ordered. */
static void dpari_hx_try(dpar_halo_options *o, int32_t n)
{
    o->ordered = n & 1;
    o->way = n < 2 ? DPAR_HALO_MESSAGES : n < 4 ? DPAR_HALO_PACKED : DPAR_HALO_DIRECT;
    o->run_bytes = n < 4 ? 0 : n < 6 ? 64 : n < 8 ? 16 : 256;
}

DPAR_API dpar_status dpar_halo_exchange_tune(void *memory, int64_t bytes, dpar_comm *c,
                                             const dpar_halo_field *fields, int32_t n,
                                             const dpar_halo_options *options,
                                             dpar_halo_choice *choice, dpar_why *why)
{
    dpar_halo_options o;
    dpar_halo_choice best;
    dpar_status st = DPAR_OK;
    int32_t i, k;
    dpari_zero(&o, sizeof o);
    dpari_zero(&best, sizeof best);
    o = options ? *options : o;
    o.timers = 0;
    if (!c || !choice || !fields) {
        return dpari_say(DPAR_E_ARG, why, "communicator, fields or result is NULL", 0, 0, 0, 0);
    }
    for (i = 0; i < DPARI_HX_TRIES && st == DPAR_OK; i++) {
        dpar_halo_exchange *x = NULL;
        double seconds;
        int ordered = 1;
        dpari_hx_try(&o, i);
        for (k = 0; k < n; k++) {
            ordered = ordered && fields[k].halo && dpari_hx_can_order(&fields[k]);
        }
        /* all ranks must try it, or none: compact halos are told apart by rank */
        st = dpari_hx_agree(c, o.ordered && !ordered ? DPAR_E_NONE : DPAR_OK, 0, NULL);
        if (st == DPAR_E_NONE) {
            st = DPAR_OK;
            continue;
        }
        st = st == DPAR_OK ? dpar_halo_exchange_init(memory, bytes, c, fields, n, &o, &x, why) : st;
        if (st != DPAR_OK) {
            return st;
        }
        seconds = dpari_hx_time(x, &st);
        if (st == DPAR_OK && (best.seconds <= 0.0 || seconds < best.seconds)) {
            best.way = o.way;
            best.ordered = o.ordered;
            best.run_bytes = o.run_bytes;
            best.seconds = seconds;
        }
        st = st == DPAR_OK ? dpar_halo_exchange_close(x) : st;
    }
    if (st != DPAR_OK) {
        return dpari_say_word(st, why, "@", c->why.text, sizeof c->why.text, 0, 0, 0, 0);
    }
    *choice = best;
    return DPAR_OK;
}
