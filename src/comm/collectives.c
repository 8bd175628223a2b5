/* SPDX-License-Identifier: MIT-0 */
/* Implements the collectives of the shared-memory engine as steps that never wait. shm.c calls the
 * steps, and decides when and for how long to wait between them.
 *
 * Collective k of a communicator proceeds in these steps on every rank:
 *
 *   1. Input is put where others can read it: small input into the rank's entry line, other input
 *      into the slot of parity k & 1, unless it is in registered memory already. Then the rank
 *      publishes its entry: word = k << 32 | fingerprint of the call.
 *   2. The rank waits for the entries of ALL ranks (many ranks do so by levels: gate.h), and
 *      compares their fingerprints. If ranks have called different operations, all of them notice
 *      here. Because of this wait, two sets of entries and slots, used in turn, are enough. A
 *      rank that begins k + 2 has seen all entries of k + 1, and a rank that has entered k + 1 has
 * finished reading k.
 *   3. All ranks have now seen the same entries, so they choose the same method:
 *      box     All input is readable, and each rank takes what it needs. If some of it is in users'
 *              memory, nobody returns before all have published (word a) that they are done.
 *      push    For reductions whose outputs can be reached too. A rank reduces its part of all
 *              inputs and stores it into all outputs, so that each byte is read and written once.
 *      cma     The kernel copies from the other processes.
 *      chunks  Pieces are passed through the slots, four buffers deep. In step j a
 *              rank waits until all are done with chunk j - 4, writes its chunk j and sets word a
 *              to j + 1. It then reduces or takes chunk j (word b) and takes the results of the
 *              others (word c).
 *
 * Each word has one writer and only grows. A published word makes everything visible that its
 * writer wrote before, so release and acquire are sufficient. */
#include "collectives.h"

#include "../base/inner.h"
#include "engine.h"
#include "gate.h"
#include "kernel.h"
#include "pace_private.h"

enum {
    /* All but DPARI_BUFFERS are in bytes. */
    DPARI_DIRECT_FROM = 1024,      /* from this size on, two waits take less time than a copy */
    DPARI_BUFFERS = 4,             /* chunks of a rank that are in the slots at a time */
    DPARI_BLOCK = 64 << 10,        /* the most that a rank reads of another before it reduces */
    DPARI_CMA_PIECE = 32 << 10,    /* from this size on, one copy by the kernel beats two of ours */
    DPARI_BROADCAST_BOX = 8 << 10, /* larger broadcasts are faster in several pieces */
    DPARI_BROADCAST_LEAST = 8 << 10,  /* the smallest such piece */
    DPARI_BROADCAST_MOST = 128 << 10, /* and the largest */
    DPARI_BROADCAST_CMA = 12 << 10,   /* from this size on, the kernel may copy broadcasts */
    DPARI_REDUCTION_CMA = 256 << 10   /* and the inputs of reductions */
};
/* If a rank writes at least this many bytes, streaming stores, which bypass the cache, are faster.
 * Measured on two cores of a server (docs/records/performance.md). */
#define DPARI_STREAM_FROM (INT64_C(16) << 20)
#define DPARI_STREAM_COPY_FROM (INT64_C(64) << 20)

/* The phase of a collective, in the low 8 bits of dpar_work.phase. The bits above have the kind of
 * word, DPARI_WORD_x, that it waits for. */
enum { DPARI_ENTER, DPARI_ENTRIES, DPARI_CHUNKS, DPARI_CMA_RESULTS, DPARI_FINAL };

/* What a rank publishes in its entry if its input is not inline. */
typedef struct dpari_offer {
    uint64_t in, out;       /* refs of its input and output; 0 if the others cannot reach them */
    uint64_t in_at, out_at; /* their addresses in its process */
    int64_t largest;        /* bytes of the largest piece that it gives to one rank */
    int64_t flags;          /* a sum of the following */
} dpari_offer;
enum {
    DPARI_BOXED = 1,     /* its input is a copy in its slot */
    DPARI_IN_PLACE = 2,  /* dpari_in_place */
    DPARI_CAN_CMA = 4,   /* it can read the private memory of all ranks of the group */
    DPARI_OWN_TAKEN = 8, /* it has copied its own piece already */
    DPARI_KERNEL = 16    /* the rank that chooses the method wants the kernel to copy */
};

/* The layout of dpar_work.state for collectives. It also keeps copies of what this rank
 * has published. Once others have read a cache line, reading it back costs as much as reading one
 * of theirs. */
typedef struct dpari_coll {
    dpari_watch at;            /* ranks seen so far, from the right neighbour on */
    int64_t target;            /* value that the word must reach */
    int64_t in_step, mid_step; /* chunks put in, and chunks reduced or taken */
    int64_t out_step;          /* chunks of which the results are taken */
    int64_t steps;             /* number of chunks */
    int64_t piece;             /* bytes of a piece of a chunk */
    int64_t buffers;           /* chunks that fit in the slots */
    int64_t inline_bytes;      /* bytes of each inline input; -1 if entries have offers */
    uint64_t mine;             /* word of this rank's entry */
    dpari_offer offer;
} dpari_coll;

static dpari_coll *dpari_coll_of(dpar_work *k)
{
    return (dpari_coll *)(void *)k->state;
}

static const dpari_coll *dpari_coll_of_const(const dpar_work *k)
{
    return (const dpari_coll *)(const void *)k->state;
}

static const dpari_offer *dpari_offer_of(const dpari_group *g, const dpar_work *k, int32_t rank)
{
    if (rank == g->comm.rank) {
        return &dpari_coll_of_const(k)->offer;
    }
    return (const dpari_offer *)(const void *)g->member[rank]->entry[k->sequence & 1].payload;
}

static uint64_t dpari_step_word(const dpar_work *k, int64_t step)
{
    return (uint64_t)(uint32_t)k->sequence << 32 | (uint64_t)step;
}

/* ---- pieces: what each rank gives to each other -----------------------------------------------
 */

/* Bytes of an element. */
static int64_t dpari_unit(const dpar_call *call)
{
    return dpar_type_bytes(dpari_kern_stored(call->type));
}

static int64_t dpari_sum_before(const int64_t *count, int32_t rank)
{
    int64_t sum = 0;
    for (int32_t r = 0; r < rank; r++) {
        sum += count[r];
    }
    return sum;
}

/* Returns the piece of this rank's `in` that rank `to` receives. */
static dpari_piece dpari_piece_to(const dpari_group *g, const dpar_call *call, int32_t to)
{
    const int64_t unit = dpari_unit(call);
    const int root = call->root == g->comm.rank;
    dpari_piece p = {0, call->count * unit};
    switch (call->kind) {
    case DPAR_CALL_BROADCAST: p.bytes = root ? p.bytes : 0; break;
    case DPAR_CALL_GATHER: p.bytes = call->root == to ? p.bytes : 0; break;
    case DPAR_CALL_ALL_GATHER: break;
    case DPAR_CALL_SCATTER:
    case DPAR_CALL_ALL_TO_ALL:
        if (call->kind == DPAR_CALL_SCATTER && !root) {
            p.bytes = 0;
        } else if (call->variable_counts) {
            p.begin =
                unit * (call->in_first ? call->in_first[to] : dpari_sum_before(call->in_count, to));
            p.bytes = unit * call->in_count[to];
        } else {
            p.begin = p.bytes * to;
        }
        break;
    default: p.bytes = 0;
    }
    return p;
}

/* Returns the piece of this rank's `out` that receives the data of rank `from`. */
static dpari_piece dpari_piece_from(const dpari_group *g, const dpar_call *call, int32_t from)
{
    const int64_t unit = dpari_unit(call);
    dpari_piece p = {0, call->count * unit};
    switch (call->kind) {
    case DPAR_CALL_BROADCAST:
    case DPAR_CALL_SCATTER: p.bytes = call->root == from ? p.bytes : 0; break;
    case DPAR_CALL_GATHER:
    case DPAR_CALL_ALL_GATHER:
    case DPAR_CALL_ALL_TO_ALL:
        if (call->kind == DPAR_CALL_GATHER && call->root != g->comm.rank) {
            p.bytes = 0;
        } else if (call->variable_counts) {
            p.begin = unit * (call->out_first ? call->out_first[from]
                                              : dpari_sum_before(call->out_count, from));
            p.bytes = unit * call->out_count[from];
        } else {
            p.begin = p.bytes * from;
        }
        break;
    default: p.bytes = 0;
    }
    return p;
}

/* True if a rank gives the same bytes to every other rank. */
static int dpari_gives_one(const dpar_call *call)
{
    return call->kind == DPAR_CALL_BROADCAST || call->kind == DPAR_CALL_GATHER ||
           call->kind == DPAR_CALL_ALL_GATHER;
}

/* Returns part q of a reduction, the elements that rank q reduces. */
static dpari_piece dpari_part(const dpari_group *g, const dpar_call *call, int32_t q)
{
    const int64_t unit = dpari_unit(call), n = g->comm.size;
    dpari_piece p;
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        const int64_t before =
            call->variable_counts ? dpari_sum_before(call->in_count, q) : call->count * q;
        p.begin = unit * before;
        p.bytes = unit * (call->variable_counts ? call->in_count[q] : call->count);
        return p;
    }
    /* equal shares of whole cache lines */
    int64_t all = call->count * unit, lines = (all + 63) / 64, share = (lines + n - 1) / n * 64;
    p.begin = q * share < all ? q * share : all;
    p.bytes = all - p.begin < share ? all - p.begin : share;
    return p;
}

/* Returns the bytes of a rank's whole input, which is the same on all ranks unless sizes vary. */
static int64_t dpari_gives(const dpari_group *g, const dpar_call *call)
{
    const int64_t one = call->count * dpari_unit(call);
    switch (call->kind) {
    case DPAR_CALL_BARRIER: return 0;
    case DPAR_CALL_SCATTER:
    case DPAR_CALL_ALL_TO_ALL:
    case DPAR_CALL_REDUCE_SCATTER: return one * g->comm.size;
    default: return one;
    }
}

static int dpari_is_reduction(const dpar_call *call)
{
    return call->kind == DPAR_CALL_ALL_REDUCE || call->kind == DPAR_CALL_REDUCE ||
           call->kind == DPAR_CALL_REDUCE_SCATTER;
}

/* True if this rank has an input. */
static int dpari_gives_any(const dpari_group *g, const dpar_call *call)
{
    return (call->kind != DPAR_CALL_BROADCAST && call->kind != DPAR_CALL_SCATTER) ||
           call->root == g->comm.rank;
}

/* ---- fingerprints -----------------------------------------------------------------------------
 */

static uint64_t dpari_coll_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* Hashes everything of a call that must be equal on all ranks. */
static uint32_t dpari_fingerprint(const dpari_group *g, const dpar_call *call)
{
    uint64_t h = (uint64_t)(uint32_t)call->kind | (uint64_t)(uint32_t)call->op << 8 |
                 (uint64_t)(uint32_t)call->type << 12 |
                 (uint64_t)(uint32_t)call->variable_counts << 24 |
                 (uint64_t)(uint32_t)call->root << 32;
    h = dpari_coll_mix(h, 1 | (uint64_t)(uint32_t)dpari_tag_compared(call->tag) << 32);
    if (!call->variable_counts) {
        h = dpari_coll_mix(h, (uint64_t)call->count);
    } else if (call->kind == DPAR_CALL_ALL_GATHER || call->kind == DPAR_CALL_REDUCE_SCATTER) {
        const int64_t *count = call->in_count ? call->in_count : call->out_count;
        for (int32_t r = 0; r < g->comm.size; r++) {
            h = dpari_coll_mix(h, (uint64_t)count[r]);
        }
    }
    return (uint32_t)(h >> 32);
}

/* ---- waiting for words ------------------------------------------------------------------------
 */

/* Tests whether the words of all ranks have reached the target. If not, g->blocker
 * becomes the first rank whose word has not reached it. */
static int dpari_reached(dpari_group *g, dpar_work *k, int32_t which, uint64_t target)
{
    dpari_coll *o = dpari_coll_of(k);
    const int32_t n = g->comm.size;
    for (; o->at.cursor < n - 1; o->at.cursor++) {
        int32_t r = g->comm.rank + 1 + o->at.cursor;
        r = r >= n ? r - n : r;
        if ((int64_t)(DPARI_LOAD(dpari_word_of(g, k, r, which)) - target) < 0) {
            g->blocker = g->world_rank[r];
            o->target = (int64_t)target;
            k->phase = (k->phase & 0xff) | which << 8;
            return 0;
        }
    }
    o->at.cursor = 0;
    return 1;
}

DPARI_INTERNAL int dpari_coll_missing(const dpari_group *g, const dpar_work *k, int32_t rank)
{
    const dpari_coll *o = (const dpari_coll *)(const void *)k->state;
    if (rank == g->comm.rank || (k->phase & 0xff) == DPARI_ENTER) {
        return 0;
    }
    return (int64_t)(DPARI_LOAD(dpari_word_of(g, k, rank, k->phase >> 8)) - (uint64_t)o->target) <
           0;
}

/* ---- entering ---------------------------------------------------------------------------------
 */

/* Copies the pieces for all ranks, one after the other, into the slot. The table has their sizes.
 */
static void dpari_fill_box(const dpari_group *g, const dpar_call *call, char *box, int64_t bytes)
{
    int64_t at = 0;
    if (dpari_is_reduction(call) || !call->variable_counts || dpari_gives_one(call)) {
        memcpy(box, call->in, (size_t)bytes);
        return;
    }
    for (int32_t r = 0; r < g->comm.size; r++) {
        dpari_piece p = dpari_piece_to(g, call, r);
        if (p.bytes > 0) {
            memcpy(box + at, (const char *)call->in + p.begin, (size_t)p.bytes);
        }
        at += p.bytes;
    }
}

/* Fills in the table of pieces of different sizes. Their positions are those in the slot if
 * `packed`, otherwise those in `in`. Returns the bytes of all pieces in the slot. *largest is the
 * largest piece. */
static int64_t dpari_table_fill(const dpari_group *g, const dpar_work *k, int packed,
                                int64_t *largest)
{
    dpari_piece *table = dpari_table(g, g->comm.rank, k->sequence);
    int64_t at = 0;
    *largest = 0;
    for (int32_t r = 0; r < g->comm.size; r++) {
        dpari_piece p = dpari_piece_to(g, &k->call, r);
        *largest = p.bytes > *largest ? p.bytes : *largest;
        if (packed) {
            p.begin = dpari_gives_one(&k->call) ? 0 : at;
        }
        table[r] = p;
        at = dpari_gives_one(&k->call) ? *largest : at + p.bytes;
    }
    return at;
}

/* Returns a reference to `in` if all ranks can reach it from its first to its last byte, otherwise
 * 0. */
static uint64_t dpari_in_ref(const dpari_group *g, const dpar_call *call)
{
    int64_t bytes = dpari_gives(g, call);
    if (!call->in || (g->world->head->plain & DPAR_WORLD_NO_DIRECT)) {
        return 0;
    }
    if (call->variable_counts && call->in_count) {
        bytes = 0;
        for (int32_t r = 0; r < g->comm.size; r++) {
            int64_t begin =
                call->in_first ? call->in_first[r] : dpari_sum_before(call->in_count, r);
            int64_t end = (begin + call->in_count[r]) * dpari_unit(call);
            bytes = end > bytes ? end : bytes;
        }
    }
    return dpari_ref(g->world, call->in, bytes);
}

/* Returns a reference to `out` if other ranks may store results there, otherwise 0. */
static uint64_t dpari_out_ref(const dpari_group *g, const dpar_call *call)
{
    int takes = call->kind == DPAR_CALL_ALL_REDUCE ||
                (call->kind == DPAR_CALL_REDUCE && call->root == g->comm.rank);
    if (!takes || (g->world->head->plain & DPAR_WORLD_NO_DIRECT)) {
        return 0;
    }
    return dpari_ref(g->world, call->out, call->count * dpari_unit(call));
}

/* Returns DPARI_IN_PLACE if this rank's output overwrites its input. That is a problem only if
 * others read the input in the user's buffer. */
static int64_t dpari_in_place(const dpar_call *call)
{
    int over = call->kind == DPAR_CALL_ALL_REDUCE || call->kind == DPAR_CALL_REDUCE ||
               call->kind == DPAR_CALL_ALL_TO_ALL;
    return over && call->in == call->out ? DPARI_IN_PLACE : 0;
}

/* True if this rank may read the memory of all others in its group (process_vm_readv). */
static int dpari_reads_all(const dpari_group *g, int32_t rank)
{
    const dpari_world *w = g->world;
    const int32_t reader = g->world_rank[rank], count = DPARI_LOAD(&w->rank[reader].reads);
    int32_t r = 0;
    if (count == 0 || count == w->size) {
        return count != 0;
    }
    while (r < g->comm.size && dpari_world_reads(w, reader, g->world_rank[r])) {
        r++;
    }
    return r == g->comm.size;
}

/* True if each rank can read the memory of all others. A result of 1 is kept: a rank that
 * later cannot read any more no longer offers DPARI_CAN_CMA, which is enough. */
static int dpari_all_cma(dpari_group *g)
{
    for (int32_t r = 0; r < g->comm.size && !g->all_cma; r++) {
        if (!dpari_reads_all(g, r)) {
            return 0;
        }
    }
    g->all_cma = 1;
    return 1;
}

/* Returns the bytes up to which an input should be copied into the slot. */
static int64_t dpari_box_most(dpari_group *g, const dpar_call *call, int64_t largest)
{
    int64_t n = g->comm.size < 4 ? 4 : g->comm.size;
    /* Each rank reads the whole slots of all others. With many ranks, chunks are faster, because
     * each rank then reads only its part of them. */
    if (dpari_is_reduction(call)) {
        return g->slot_bytes * 4 / n;
    }
    if (call->kind == DPAR_CALL_BROADCAST) {
        const int64_t most = DPARI_BROADCAST_BOX;
        return most < g->slot_bytes ? most : g->slot_bytes;
    }
    if (largest >= DPARI_CMA_PIECE && !dpari_in_place(call) && dpari_all_cma(g)) {
        return 0;
    }
    return g->slot_bytes;
}

/* Returns the bytes of this rank's input. If sizes vary, a table lists what each other rank may
 * take. */
static int64_t dpari_gives_here(const dpari_group *g, const dpar_work *k, dpari_offer *offer)
{
    const dpar_call *call = &k->call;
    offer->largest = dpari_gives_any(g, call) ? call->count * dpari_unit(call) : 0;
    if (!call->variable_counts) {
        return dpari_gives_any(g, call) ? dpari_gives(g, call) : 0;
    }
    if (dpari_is_reduction(call)) {
        return dpari_sum_before(call->in_count, g->comm.size) * dpari_unit(call);
    }
    return dpari_table_fill(g, k, 1, &offer->largest);
}

/* Returns this rank's record of how long each copy method takes (pace.h) for private memory of this
 * call's size, and sets *bytes to that size. Returns NULL if this rank does not choose the method,
 * or the call is small. In a broadcast the root chooses. In a reduction rank 0 does, because all
 * ranks copy the same amount. */
static dpari_pace *dpari_way_pace(dpari_group *g, const dpar_call *call, int64_t *bytes)
{
    const int reduces =
        call->kind == DPAR_CALL_ALL_REDUCE || call->kind == DPAR_CALL_REDUCE_SCATTER;
    if (g->comm.rank != (reduces ? 0 : call->root) ||
        (!reduces && call->kind != DPAR_CALL_BROADCAST)) {
        return NULL;
    }
    *bytes = call->variable_counts
                 ? dpari_sum_before(call->in_count, g->comm.size) * dpari_unit(call)
                 : dpari_gives(g, call);
    if (*bytes < (reduces ? DPARI_REDUCTION_CMA : DPARI_BROADCAST_CMA)) {
        return NULL;
    }
    return dpari_pace_of(reduces ? g->sums : g->pace, *bytes);
}

/* Fills in this rank's offer, and copies the input into the slot if that is better. */
static void dpari_offer_make(dpari_group *g, dpar_work *k, dpari_offer *offer)
{
    const dpar_call *call = &k->call;
    char *slot = dpari_staging(g, g->comm.rank) + (k->sequence & 1) * g->slot_bytes;
    const int64_t bytes = dpari_gives_here(g, k, offer);
    int64_t paced;
    dpari_pace *pace = dpari_way_pace(g, call, &paced);
    offer->in_at = (uint64_t)(uintptr_t)call->in;
    offer->out_at = (uint64_t)(uintptr_t)call->out;
    offer->out = dpari_out_ref(g, call);
    offer->in = 0;
    offer->flags = dpari_in_place(call) | (dpari_reads_all(g, g->comm.rank) ? DPARI_CAN_CMA : 0);
    if (pace && dpari_pace_choose(pace) == DPARI_BY_KERNEL) {
        offer->flags |= DPARI_KERNEL;
    }
    if (bytes >= DPARI_DIRECT_FROM &&
        !(call->kind == DPAR_CALL_ALL_TO_ALL && (offer->flags & DPARI_IN_PLACE))) {
        offer->in = dpari_in_ref(g, call);
    }
    if (!offer->in && bytes <= dpari_box_most(g, call, offer->largest)) {
        if (bytes > 0) {
            dpari_fill_box(g, call, slot, bytes);
        }
        offer->in = dpari_ref(g->world, slot, bytes);
        offer->flags |= DPARI_BOXED;
    } else if (call->variable_counts && !dpari_is_reduction(call)) {
        dpari_table_fill(g, k, 0, &offer->largest);
    }
}

/* True if so many bytes should be written with streaming stores. */
static int32_t dpari_streams(const dpari_group *g, int64_t bytes)
{
    return bytes >= DPARI_STREAM_FROM && !(g->world->head->plain & DPAR_WORLD_NO_STREAMING_STORES);
}

/* Copies the rank's own piece from `in` to `out`. */
static void dpari_take_own(dpari_group *g, const dpar_call *call, int32_t stream)
{
    const dpari_piece to = dpari_piece_from(g, call, g->comm.rank);
    const dpari_piece from = dpari_piece_to(g, call, g->comm.rank);
    if (to.bytes > 0 && call->kind != DPAR_CALL_BROADCAST) {
        dpari_kern_copy((char *)call->out + to.begin, (const char *)call->in + from.begin, to.bytes,
                        stream);
    }
}

/* The first step: makes the input readable and publishes the entry. */
static void dpari_enter(dpari_group *g, dpar_work *k)
{
    dpari_coll *o = dpari_coll_of(k);
    dpari_entry *entry = &g->member[g->comm.rank]->entry[k->sequence & 1];
    const int64_t bytes = dpari_gives(g, &k->call);
    memset(&o->at, 0, sizeof o->at);
    g->levels.doubt = 0;
    o->inline_bytes = !k->call.variable_counts && bytes <= DPARI_INLINE ? bytes : -1;
    if (o->inline_bytes < 0) {
        dpari_offer_make(g, k, &o->offer);
        memcpy(entry->payload, &o->offer, sizeof o->offer);
    } else if (bytes > 0 && dpari_gives_any(g, &k->call)) {
        memcpy(entry->payload, k->call.in, (size_t)bytes);
    }
    k->phase = DPARI_ENTRIES;
    o->mine = dpari_step_word(k, (int64_t)dpari_fingerprint(g, &k->call));
    dpari_publish(g->world, &entry->word, o->mine);
    /* copies the own piece, which needs no other rank, while the others enter */
    if (k->call.kind == DPAR_CALL_ALL_GATHER && o->inline_bytes < 0 && o->offer.in &&
        !(o->offer.flags & DPARI_BOXED)) {
        dpari_take_own(g, &k->call, dpari_streams(g, bytes * g->comm.size));
        o->offer.flags |= DPARI_OWN_TAKEN;
    }
}

/* Appends the call that a rank has published. Returns 1 if that call closes the communicator. */
static int dpari_put_called(dpar_text *t, const dpari_group *g, const dpar_work *k, int32_t rank)
{
    dpari_flight f;
    dpari_put_rank(t, g, rank);
    if (!dpari_flight_find(g->world, g->world_rank[rank], g->id, k->sequence, &f)) {
        dpar_text_put(t, " called a different operation");
        return 0;
    }
    if (f.root == DPARI_CLOSE) {
        dpar_text_put(t, " closed the communicator or returned");
        dpari_put_failed(t, g->world, g->world_rank[rank]); /* most likely the reason */
        return 1;
    }
    dpar_text_put(t, " called ");
    dpari_put_flight_of(t, g, &f);
    return 0;
}

/* True if both calls have variable counts and agree in everything that the message shows. Then only
 * their counts can differ. */
static int dpari_same_but_counts(const dpari_group *g, const dpar_work *k, int32_t other)
{
    dpari_flight f;
    return dpari_flight_find(g->world, g->world_rank[other], g->id, k->sequence, &f) && f.varies &&
           k->call.variable_counts && f.kind == k->call.kind && f.type == k->call.type &&
           f.op == k->call.op && f.root == k->call.root;
}

/* Breaks the communicator because another rank has called a different operation. */
static DPARI_COLD dpar_status dpari_coll_mismatch(dpari_group *g, const dpar_work *k, int32_t other)
{
    const int32_t me = g->comm.rank, first = me < other ? me : other;
    dpar_why why;
    dpar_text t;
    int left;
    /* if a rank has died, that is why the others call different operations */
    for (int32_t r = 0; r < g->comm.size; r++) {
        if (dpari_rank_state(g->world, g->world_rank[r]) == DPARI_RANK_DEAD) {
            return dpari_fail_peer(g, k, r);
        }
    }
    dpar_text_init(&t, why.text, sizeof why.text);
    if (g->id != 0 && g->called == NULL) {
        dpari_text_print(&t, "group %ld: ", (int64_t)g->id);
    }
    left = dpari_put_called(&t, g, k, first);
    dpar_text_put(&t, ", ");
    left |= dpari_put_called(&t, g, k, first == me ? other : me);
    dpar_text_put(&t, dpari_same_but_counts(g, k, other) ? ": their counts differ" : "");
    return dpari_group_break(g, left ? DPAR_E_PEER : DPAR_E_MISMATCH, why.text);
}

/* Returns DPAR_OK if all ranks have entered the same call, DPAR_MORE if some have not entered, and
 * DPAR_E_MISMATCH if calls differ. */
static dpar_status dpari_entries_of_all(dpari_group *g, dpar_work *k)
{
    dpari_coll *o = dpari_coll_of(k);
    const int32_t n = g->comm.size;
    const uint64_t mine = o->mine;
    for (; o->at.cursor < n - 1; o->at.cursor++) {
        int32_t r = g->comm.rank + 1 + o->at.cursor;
        r = r >= n ? r - n : r;
        uint64_t word = DPARI_LOAD(&g->member[r]->entry[k->sequence & 1].word);
        int32_t ahead = (int32_t)((uint32_t)(word >> 32) - (uint32_t)(mine >> 32));
        /* If ahead > 0, the rank has compared this entry already and has reused its member for
         * another communicator. That is possible only after the barrier that closes a
         * communicator, and a barrier reads no data. */
        if (word == mine || ahead > 0) {
            continue;
        }
        if (ahead < 0) {
            g->blocker = g->world_rank[r];
            o->target = (int64_t)(mine >> 32 << 32);
            k->phase = DPARI_ENTRIES | DPARI_WORD_ENTRY << 8;
            return DPAR_MORE;
        }
        return dpari_coll_mismatch(g, k, r);
    }
    o->at.cursor = 0;
    return DPAR_OK;
}

/* Does the same as dpari_entries_of_all, by levels (gate.h) if possible. */
static dpar_status dpari_entries(dpari_group *g, dpar_work *k)
{
    dpari_coll *o = dpari_coll_of(k);
    const int came = dpari_gate_look(g, k, &o->at, DPARI_WORD_ENTRY, o->mine);
    if (came < 0) {
        return dpari_entries_of_all(g, k);
    }
    o->target = (int64_t)(o->mine >> 32 << 32);
    k->phase = DPARI_ENTRIES | DPARI_WORD_ENTRY << 8;
    return came ? DPAR_OK : DPAR_MORE;
}

/* True if all ranks have published their last word for this operation. */
static int dpari_last_words(dpari_group *g, dpar_work *k)
{
    dpari_coll *o = dpari_coll_of(k);
    const int32_t which = k->phase >> 8;
    const uint64_t target = (uint64_t)o->target;
    int came = dpari_gate_look(g, k, &o->at, which, target);
    came = came < 0 ? dpari_reached(g, k, which, target) : came;
    if (came) {
        dpari_gate_tell(g, k, &o->at, which, target, NULL, 0);
    }
    return came;
}

/* ---- all input is readable --------------------------------------------------------------------
 */

/* True if a reduction writes over its own input. Those lines are in the caches, where streaming
 * stores would take three times as long. */
static int dpari_over_input(const dpari_group *g, int32_t outs)
{
    for (int32_t j = 0; j < outs; j++) {
        for (int32_t r = 0; r < g->comm.size; r++) {
            if (g->out[j] == g->in[r]) {
                return 1;
            }
        }
    }
    return 0;
}

/* Reduces `bytes` bytes at g->in[r] of all ranks r into the `outs` outputs g->out. */
static void dpari_reduce_range(dpari_group *g, const dpar_call *call, int32_t outs, int64_t bytes,
                               int64_t written)
{
    const int32_t stream = dpari_streams(g, written) && !dpari_over_input(g, outs);
    dpari_kern_reduce(g->out, outs, g->in, g->comm.size, bytes / dpari_unit(call), call->type,
                      call->op, stream);
}

/* Returns the inline input of another rank. */
static const char *dpari_inline_given(const dpari_group *g, const dpar_work *k, int32_t rank)
{
    return (const char *)dpari_gate_given(g, k, rank, dpari_coll_of_const(k)->mine);
}

static void dpari_inline_reduce(dpari_group *g, const dpar_work *k)
{
    const dpar_call *call = &k->call;
    int64_t begin = 0, bytes = call->count * dpari_unit(call);
    const void *result;
    if (bytes == 0 || (call->kind == DPAR_CALL_REDUCE && call->root != g->comm.rank)) {
        return; /* if there are no elements, `in` and `out` may be NULL */
    }
    result = call->kind == DPAR_CALL_ALL_REDUCE ? dpari_gate_result(g, &dpari_coll_of_const(k)->at)
                                                : NULL;
    if (result) {
        memcpy(call->out, result, (size_t)bytes);
        return;
    }
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        begin = bytes * g->comm.rank;
    }
    for (int32_t r = 0; r < g->comm.size; r++) {
        g->in[r] =
            (r == g->comm.rank ? (const char *)call->in : dpari_inline_given(g, k, r)) + begin;
    }
    g->out[0] = call->out;
    dpari_reduce_range(g, call, 1, bytes, 0);
}

static void dpari_inline_take(dpari_group *g, const dpar_work *k)
{
    const dpar_call *call = &k->call;
    if (dpari_is_reduction(call)) {
        dpari_inline_reduce(g, k);
        return;
    }
    for (int32_t r = 0; r < g->comm.size; r++) {
        dpari_piece p = dpari_piece_from(g, call, r);
        int64_t from = dpari_gives_one(call) ? 0 : p.bytes * g->comm.rank;
        if (r == g->comm.rank) {
            dpari_take_own(g, call, 0);
        } else if (p.bytes > 0) {
            memcpy((char *)call->out + p.begin, dpari_inline_given(g, k, r) + from,
                   (size_t)p.bytes);
        }
    }
}

/* ---- reductions on offers ---------------------------------------------------------------------
 */

/* Method push: this rank reduces its part of all inputs and stores it into all outputs. */
static dpar_status dpari_push(dpari_group *g, const dpar_work *k)
{
    const dpar_call *call = &k->call;
    const dpari_piece part = dpari_part(g, call, g->comm.rank);
    int32_t outs = 0;
    for (int32_t r = 0; r < g->comm.size; r++) {
        const dpari_offer *offer = dpari_offer_of(g, k, r);
        const char *in = (const char *)dpari_at(g->world, offer->in);
        if (!in) {
            return dpari_fail_unmapped(g, k, offer->in);
        }
        g->in[r] = in + part.begin;
        if (call->kind == DPAR_CALL_ALL_REDUCE ||
            (call->kind == DPAR_CALL_REDUCE && r == call->root)) {
            char *out = (char *)dpari_at(g->world, offer->out);
            if (!out) {
                return dpari_fail_unmapped(g, k, offer->out);
            }
            g->out[outs++] = out + part.begin;
        }
    }
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        g->out[outs++] = call->out;
    }
    if (part.bytes > 0) {
        dpari_reduce_range(g, call, outs, part.bytes, part.bytes * outs);
    }
    return DPAR_OK;
}

/* Method box of a reduction: this rank reduces all elements of its own output. */
static dpar_status dpari_pull_reduce(dpari_group *g, const dpar_work *k)
{
    const dpar_call *call = &k->call;
    if (call->kind == DPAR_CALL_REDUCE && call->root != g->comm.rank) {
        return DPAR_OK;
    }
    for (int32_t r = 0; r < g->comm.size; r++) {
        const uint64_t ref = dpari_offer_of(g, k, r)->in;
        g->in[r] = r == g->comm.rank ? call->in : dpari_at(g->world, ref);
        if (!g->in[r]) {
            return dpari_fail_unmapped(g, k, ref);
        }
    }
    g->out[0] = call->out;
    dpari_reduce_range(g, call, 1, call->count * dpari_unit(call), call->count * dpari_unit(call));
    return DPAR_OK;
}

/* A summary of all offers, which all ranks compute equally. */
typedef struct dpari_offers {
    int readable;    /* 1 if all inputs can be read */
    int writable;    /* 1 if all outputs that are needed can be written by others */
    int boxed;       /* 1 if no input is in a user's memory */
    int in_place;    /* 1 if a rank overwrites input that the others read in its buffer */
    int cma;         /* 1 if all ranks can read the others' memory */
    int kernel;      /* 1 if the rank that chooses wants the kernel to copy */
    int64_t largest; /* bytes of the largest piece */
} dpari_offers;

static dpari_offers dpari_survey(const dpari_group *g, const dpar_work *k)
{
    const dpar_call *call = &k->call;
    dpari_offers all = {1, 1, 1, 0, 1, 0, 0};
    for (int32_t r = 0; r < g->comm.size; r++) {
        const dpari_offer *offer = dpari_offer_of(g, k, r);
        const int boxed = (offer->flags & DPARI_BOXED) != 0;
        all.readable &= offer->in != 0;
        all.writable &= offer->out != 0 || call->kind == DPAR_CALL_REDUCE_SCATTER ||
                        (call->kind == DPAR_CALL_REDUCE && r != call->root);
        all.boxed &= boxed;
        all.in_place |= !boxed && (offer->flags & DPARI_IN_PLACE);
        all.cma &= (offer->flags & DPARI_CAN_CMA) != 0;
        all.kernel |= (offer->flags & DPARI_KERNEL) != 0;
        all.largest = offer->largest > all.largest ? offer->largest : all.largest;
    }
    return all;
}

/* ---- method cma: a reduction that reads through the kernel ------------------------------------
 */

/* Breaks the communicator because a rank's memory could not be read. number: errno of the read. */
static DPARI_COLD dpar_status dpari_cma_failed(dpari_group *g, const dpar_work *k, int32_t rank,
                                               int number)
{
    dpar_text t;
    dpar_why why;
    /* a process that dies loses its memory some time before its lock */
    for (int32_t i = 0; i < 2000; i++) {
        if (dpari_rank_state(g->world, g->world_rank[rank]) != DPARI_RANK_HERE) {
            return dpari_fail_peer(g, k, rank);
        }
        dpari_os_sleep(100e-6);
    }
    dpar_text_init(&t, why.text, sizeof why.text);
    dpari_put_work(&t, g, k);
    dpar_text_put(&t, "the memory of ");
    dpari_put_rank(&t, g, rank);
    dpar_text_put(&t, " cannot be read any more (");
    dpari_os_error(&t, number);
    if (number == EPERM) {
        dpar_text_put(&t, ": perhaps one of the two processes has changed its user, its seccomp "
                          "filter or PR_SET_DUMPABLE since the start");
    }
    dpar_text_put(
        &t, "). To copy without such reads, set DPAR_WORLD_NO_CMA in dpar_world_desc.disable");
    return dpari_group_break(g, DPAR_E_SYSTEM, why.text);
}

/* Copies from a rank's private memory. */
static int dpari_cma_read(const dpari_group *g, int32_t rank, void *to, uint64_t from,
                          int64_t bytes)
{
    return dpari_world_read(g->world, g->world_rank[rank], to, from, bytes);
}

/* Reduces this rank's part of all inputs into its own output, block by block. The blocks of the
 * other ranks are read into this rank's slots. */
static dpar_status dpari_cma_reduce(dpari_group *g, const dpar_work *k)
{
    const dpar_call *call = &k->call;
    const dpari_piece part = dpari_part(g, call, g->comm.rank);
    const int32_t n = g->comm.size, me = g->comm.rank;
    const int64_t most = DPARI_BLOCK;
    int64_t block = 2 * g->slot_bytes / n / 64 * 64;
    char *slots = dpari_staging(g, me);
    block = block < most ? block : most;
    for (int64_t at = 0; at < part.bytes; at += block) {
        int64_t bytes = part.bytes - at < block ? part.bytes - at : block;
        for (int32_t r = 0; r < n; r++) {
            char *copy = slots + r * block;
            uint64_t from = dpari_offer_of(g, k, r)->in_at + (uint64_t)(part.begin + at);
            g->in[r] = r == me ? (const char *)call->in + part.begin + at : copy;
            if (r != me && dpari_cma_read(g, r, copy, from, bytes) != 0) {
                return dpari_cma_failed(g, k, r, errno);
            }
        }
        g->out[0] =
            (char *)call->out + at + (call->kind == DPAR_CALL_REDUCE_SCATTER ? 0 : part.begin);
        dpari_reduce_range(g, call, 1, bytes, 0);
    }
    return DPAR_OK;
}

/* Reads the parts that the other ranks have reduced. */
static dpar_status dpari_cma_results(dpari_group *g, const dpar_work *k)
{
    for (int32_t i = 1; i < g->comm.size; i++) {
        const int32_t r = (g->comm.rank + i) % g->comm.size;
        const dpari_piece part = dpari_part(g, &k->call, r);
        uint64_t from = dpari_offer_of(g, k, r)->out_at + (uint64_t)part.begin;
        if (dpari_cma_read(g, r, (char *)k->call.out + part.begin, from, part.bytes) != 0) {
            return dpari_cma_failed(g, k, r, errno);
        }
    }
    return DPAR_OK;
}

/* ---- moves (operations that do not reduce) on offers ------------------------------------------
 */

static dpar_status dpari_size_mismatch(dpari_group *g, const dpar_work *k, int32_t from,
                                       int64_t gives, int64_t takes)
{
    const int64_t unit = dpari_unit(&k->call);
    dpar_text t;
    dpar_why why;
    dpar_text_init(&t, why.text, sizeof why.text);
    dpari_text_print(&t, "%s #%ld: rank %d gives %ld elements to rank %d, which takes %ld",
                     dpar_call_name(k->call.kind), k->sequence, from, gives / unit, g->comm.rank,
                     takes / unit);
    return dpari_group_break(g, DPAR_E_MISMATCH, why.text);
}

/* Returns where the piece for this rank is in what rank `from` offers. */
static dpari_piece dpari_offered(const dpari_group *g, const dpar_work *k, int32_t from)
{
    const dpar_call *call = &k->call;
    dpari_piece p = {0, call->count * dpari_unit(call)};
    if (call->variable_counts) {
        return dpari_table(g, from, k->sequence)[g->comm.rank];
    }
    p.begin = dpari_gives_one(call) ? 0 : p.bytes * g->comm.rank;
    return p;
}

/* Checks that the other ranks give as much as this rank takes, if sizes vary. */
static dpar_status dpari_sizes_check(dpari_group *g, const dpar_work *k)
{
    for (int32_t r = 0; r < g->comm.size && k->call.variable_counts; r++) {
        const int64_t gives = dpari_table(g, r, k->sequence)[g->comm.rank].bytes;
        const int64_t takes = dpari_piece_from(g, &k->call, r).bytes;
        if (gives != takes) {
            return dpari_size_mismatch(g, k, r, gives, takes);
        }
    }
    return DPAR_OK;
}

/* Copies the own piece of an all-to-all and that of the right neighbour in turns, line by line,
 * because one copy can proceed while the other waits for a line of another core. Returns 0 if that
 * is not possible here. */
static int dpari_pull_beside(dpari_group *g, const dpar_work *k)
{
    const dpar_call *call = &k->call;
    const int32_t me = g->comm.rank, r = me + 1 < g->comm.size ? me + 1 : 0;
    const uint64_t ref = dpari_offer_of(g, k, r)->in;
    const dpari_piece own = dpari_piece_to(g, call, me), other = dpari_offered(g, k, r);
    const char *in;
    if (call->kind != DPAR_CALL_ALL_TO_ALL || call->variable_counts || call->in == call->out ||
        r == me || !ref) {
        return 0;
    }
    in = (const char *)dpari_at(g->world, ref);
    if (!in) {
        return 0; /* the caller tries again and writes the message */
    }
    dpari_kern_fetch_beside(
        (char *)call->out + dpari_piece_from(g, call, me).begin, (const char *)call->in + own.begin,
        (char *)call->out + dpari_piece_from(g, call, r).begin, in + other.begin, own.bytes);
    return 1;
}

/* Takes all pieces for this rank from where they are offered, or through the kernel. */
static dpar_status dpari_pull(dpari_group *g, const dpar_work *k, int64_t largest)
{
    const dpar_call *call = &k->call;
    const int32_t n = g->comm.size;
    const int32_t stream =
        dpari_streams(g, call->kind == DPAR_CALL_BROADCAST ? largest / 2 : largest * n);
    /* if the others read this rank's input in its buffer, the own piece is copied first, before
     * their reads take its lines out of the cache */
    const int32_t first = (dpari_coll_of_const(k)->offer.flags & DPARI_BOXED) != 0;
    const int32_t done = !stream && !first && dpari_pull_beside(g, k) ? 2 : 0;
    for (int32_t i = done; i < n; i++) {
        const int32_t r = (g->comm.rank + first + i) % n;
        const dpari_offer *offer = dpari_offer_of(g, k, r);
        const dpari_piece to = dpari_piece_from(g, call, r), from = dpari_offered(g, k, r);
        const char *in;
        if (to.bytes == 0) {
            continue;
        }
        in = offer->in && r != g->comm.rank ? (const char *)dpari_at(g->world, offer->in) : NULL;
        if (r == g->comm.rank) {
            if (!(offer->flags & DPARI_OWN_TAKEN)) {
                dpari_take_own(g, call, stream);
            }
        } else if (offer->in && !in) {
            return dpari_fail_unmapped(g, k, offer->in);
        } else if (offer->in && !stream) {
            dpari_kern_fetch((char *)call->out + to.begin, in + from.begin, to.bytes);
        } else if (offer->in) {
            dpari_kern_copy((char *)call->out + to.begin, in + from.begin, to.bytes, stream);
        } else if (dpari_cma_read(g, r, (char *)call->out + to.begin,
                                  offer->in_at + (uint64_t)from.begin, to.bytes) != 0) {
            return dpari_cma_failed(g, k, r, errno);
        }
    }
    return DPAR_OK;
}

/* ---- method chunks ----------------------------------------------------------------------------
 */

/* Returns the buffer in the slots of a rank that chunk `step` uses. */
static char *dpari_buffer(const dpari_group *g, const dpari_coll *o, int32_t rank, int64_t step)
{
    return dpari_staging(g, rank) + (step % o->buffers) * (2 * g->slot_bytes / o->buffers);
}

/* Returns the part of a piece that is in chunk `step`, with 0 bytes past the end of the piece. */
static dpari_piece dpari_chunk(dpari_piece p, int64_t size, int64_t step)
{
    int64_t skip = step * size;
    dpari_piece c = {p.begin + skip, dpari_least(p.bytes - skip, size)};
    c.bytes = dpari_most(c.bytes, 0);
    return c;
}

/* Chooses the bytes of a chunk and the number of buffers. A broadcast is sent in small chunks, so
 * that the others begin soon, and its root fills all buffers before it has to wait. */
static void dpari_chunks_cut(const dpari_group *g, const dpar_call *call, dpari_coll *o,
                             int64_t largest)
{
    const int64_t room = 2 * g->slot_bytes, least = DPARI_BROADCAST_LEAST;
    const int64_t limit = DPARI_BROADCAST_MOST;
    o->buffers = DPARI_BUFFERS;
    if (call->kind == DPAR_CALL_BROADCAST) {
        int64_t piece = largest / 8 / 64 * 64, most = room / DPARI_BUFFERS;
        most = most < limit ? most : limit;
        piece = piece < least ? least : piece;
        o->piece = piece < most ? piece : most;
        o->buffers = room / o->piece;
    } else {
        o->piece = dpari_gives_one(call) ? room / DPARI_BUFFERS
                                         : room / DPARI_BUFFERS / g->comm.size / 64 * 64;
    }
    o->steps = (largest + o->piece - 1) / o->piece;
}

/* Begins the chunks. A rank that gives nothing sets its word `a` to the last step at once, and a
 * rank that takes nothing does the same with its word `b`. */
static void dpari_chunks_begin(dpari_group *g, dpar_work *k, int64_t largest)
{
    dpari_coll *o = dpari_coll_of(k);
    dpari_member *mine = g->member[g->comm.rank];
    const int32_t kind = k->call.kind;
    const int root = k->call.root == g->comm.rank;
    const int from_root = kind == DPAR_CALL_BROADCAST || kind == DPAR_CALL_SCATTER;
    dpari_chunks_cut(g, &k->call, o, largest);
    o->in_step = o->mid_step = o->out_step = 0;
    k->phase = DPARI_CHUNKS;
    if ((from_root && !root) || (kind == DPAR_CALL_GATHER && root)) {
        o->in_step = o->steps;
        dpari_publish(g->world, &mine->a.word, dpari_step_word(k, o->steps));
    } else if ((from_root && root) || (kind == DPAR_CALL_GATHER && !root)) {
        o->mid_step = o->steps;
        dpari_publish(g->world, &mine->b.word, dpari_step_word(k, o->steps));
    }
}

/* Writes the part of this chunk that the others will take or reduce. */
static void dpari_chunk_in(dpari_group *g, const dpar_work *k, const dpari_coll *o)
{
    char *buffer = dpari_buffer(g, o, g->comm.rank, o->in_step);
    for (int32_t r = 0; r < g->comm.size; r++) {
        dpari_piece p = dpari_is_reduction(&k->call) ? dpari_part(g, &k->call, r)
                                                     : dpari_piece_to(g, &k->call, r);
        if (r == g->comm.rank || p.bytes == 0) {
            continue;
        }
        p = dpari_chunk(p, o->piece, o->in_step);
        if (p.bytes > 0) {
            memcpy(buffer + (dpari_gives_one(&k->call) ? 0 : r * o->piece),
                   (const char *)k->call.in + p.begin, (size_t)p.bytes);
        }
        if (dpari_gives_one(&k->call)) {
            return;
        }
    }
}

/* Takes this rank's pieces of the chunk. */
static void dpari_chunk_take(dpari_group *g, const dpar_work *k, const dpari_coll *o)
{
    const dpar_call *call = &k->call;
    for (int32_t i = 1; i < g->comm.size; i++) {
        const int32_t r = (g->comm.rank + i) % g->comm.size;
        const dpari_piece p = dpari_chunk(dpari_piece_from(g, call, r), o->piece, o->mid_step);
        const char *from = dpari_buffer(g, o, r, o->mid_step) +
                           (dpari_gives_one(call) ? 0 : g->comm.rank * o->piece);
        if (p.bytes > 0) {
            dpari_kern_copy((char *)call->out + p.begin, from, p.bytes,
                            o->steps * o->piece >= DPARI_STREAM_COPY_FROM &&
                                dpari_streams(g, DPARI_STREAM_FROM));
        }
    }
}

/* Reduces this rank's part of the chunk into its own output and, for the others to take, into its
 * buffer. */
static void dpari_chunk_reduce(dpari_group *g, const dpar_work *k, const dpari_coll *o)
{
    const dpar_call *call = &k->call;
    const int32_t me = g->comm.rank;
    const dpari_piece part = dpari_part(g, call, me);
    const dpari_piece p = dpari_chunk(part, o->piece, o->mid_step);
    int32_t outs = 0;
    for (int32_t r = 0; r < g->comm.size; r++) {
        g->in[r] = r == me ? (const char *)call->in + p.begin
                           : dpari_buffer(g, o, r, o->mid_step) + me * o->piece;
    }
    if (call->kind != DPAR_CALL_REDUCE_SCATTER) {
        g->out[outs++] = dpari_buffer(g, o, me, o->mid_step) + me * o->piece;
    }
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        g->out[outs++] = (char *)call->out + (p.begin - part.begin);
    } else if (call->kind == DPAR_CALL_ALL_REDUCE || call->root == me) {
        g->out[outs++] = (char *)call->out + p.begin;
    }
    if (p.bytes > 0) {
        dpari_reduce_range(g, call, outs, p.bytes, 0);
    }
}

/* Takes the parts of the chunk that the other ranks have reduced. */
static void dpari_chunk_results(dpari_group *g, const dpar_work *k, const dpari_coll *o)
{
    const dpar_call *call = &k->call;
    if (call->kind == DPAR_CALL_REDUCE && call->root != g->comm.rank) {
        return;
    }
    for (int32_t i = 1; i < g->comm.size; i++) {
        const int32_t r = (g->comm.rank + i) % g->comm.size;
        const dpari_piece p = dpari_chunk(dpari_part(g, call, r), o->piece, o->out_step);
        if (p.bytes > 0) {
            dpari_kern_fetch((char *)call->out + p.begin,
                             dpari_buffer(g, o, r, o->out_step) + r * o->piece, p.bytes);
        }
    }
}

/* Returns the word that a rank publishes last for a chunk: c if results are taken, otherwise b. */
static int32_t dpari_last_word(const dpar_call *call)
{
    return call->kind == DPAR_CALL_ALL_REDUCE || call->kind == DPAR_CALL_REDUCE ? DPARI_WORD_C
                                                                                : DPARI_WORD_B;
}

/* Advances the chunks. Chunk j is put in while j - 1 is reduced or taken and the results of j - 2
 * are taken. */
static dpar_status dpari_chunks(dpari_group *g, dpar_work *k)
{
    dpari_coll *o = dpari_coll_of(k);
    dpari_member *mine = g->member[g->comm.rank];
    const int32_t last = dpari_last_word(&k->call);
    while (o->in_step < o->steps || o->mid_step < o->steps ||
           (last == DPARI_WORD_C && o->out_step < o->steps)) {
        if (o->in_step < o->steps && o->in_step <= o->mid_step + 1 &&
            (last == DPARI_WORD_B || o->in_step <= o->out_step + 2)) {
            if (o->in_step >= o->buffers &&
                !dpari_reached(g, k, last, dpari_step_word(k, o->in_step - o->buffers + 1))) {
                return DPAR_MORE;
            }
            dpari_chunk_in(g, k, o);
            dpari_publish(g->world, &mine->a.word, dpari_step_word(k, ++o->in_step));
        } else if (o->mid_step < o->in_step &&
                   (last == DPARI_WORD_B || o->mid_step <= o->out_step + 1)) {
            if (!dpari_reached(g, k, DPARI_WORD_A, dpari_step_word(k, o->mid_step + 1))) {
                return DPAR_MORE;
            }
            if (dpari_is_reduction(&k->call)) {
                dpari_chunk_reduce(g, k, o);
            } else {
                dpari_chunk_take(g, k, o);
            }
            dpari_publish(g->world, &mine->b.word, dpari_step_word(k, ++o->mid_step));
        } else {
            if (!dpari_reached(g, k, DPARI_WORD_B, dpari_step_word(k, o->out_step + 1))) {
                return DPAR_MORE;
            }
            dpari_chunk_results(g, k, o);
            dpari_publish(g->world, &mine->c.word, dpari_step_word(k, ++o->out_step));
        }
    }
    if (!dpari_is_reduction(&k->call)) {
        dpari_take_own(g, &k->call, 0);
    }
    o->target = (int64_t)dpari_step_word(k, o->steps);
    k->phase = DPARI_FINAL | last << 8;
    return DPAR_MORE;
}

/* ---- choosing the method ----------------------------------------------------------------------
 */

/* Publishes that this rank is done with the memory of the others. The collective ends once all are.
 */
static void dpari_done_with_others(dpari_group *g, dpar_work *k, int32_t phase, int64_t step)
{
    dpari_coll *o = dpari_coll_of(k);
    k->phase = phase | DPARI_WORD_A << 8;
    o->target = (int64_t)dpari_step_word(k, step);
    dpari_publish(g->world, &g->member[g->comm.rank]->a.word, (uint64_t)o->target);
}

/* Begins to time the method of k, on the rank that chose it. dpari_timed ends that once all ranks
 * are done. */
static void dpari_time_way(dpari_group *g, dpar_work *k)
{
    int64_t bytes;
    if (dpari_way_pace(g, &k->call, &bytes)) {
        g->timed = k->sequence + 1;
        g->timed_way =
            dpari_coll_of(k)->offer.flags & DPARI_KERNEL ? DPARI_BY_KERNEL : DPARI_BY_RING;
        g->timed_from = dpari_os_now();
    }
}

static void dpari_timed(dpari_group *g, const dpar_work *k)
{
    int64_t bytes;
    dpari_pace *pace = dpari_way_pace(g, &k->call, &bytes);
    g->timed = 0;
    if (pace) {
        dpari_pace_tell(pace, g->timed_way, bytes, dpari_os_now() - g->timed_from);
    }
}

/* Chooses the method of a reduction and takes its first step. Returns DPAR_OK if that is all, or
 * DPAR_MORE if the work continues at its phase. */
static dpar_status dpari_choose_reduction(dpari_group *g, dpar_work *k)
{
    const dpari_offers all = dpari_survey(g, k);
    dpar_status status = DPAR_OK;
    int64_t largest = 0;
    if (all.readable && all.writable &&
        (!all.boxed || dpari_gives(g, &k->call) >= DPARI_DIRECT_FROM ||
         k->call.kind == DPAR_CALL_REDUCE_SCATTER)) {
        status = dpari_push(g, k);
        if (status != DPAR_OK || (all.boxed && k->call.kind == DPAR_CALL_REDUCE_SCATTER)) {
            return status;
        }
        dpari_done_with_others(g, k, DPARI_FINAL, 1);
        return DPAR_MORE;
    }
    if (all.readable && !all.in_place) {
        status = dpari_pull_reduce(g, k);
        if (status != DPAR_OK || all.boxed) {
            return status;
        }
        dpari_done_with_others(g, k, DPARI_FINAL, 1);
        return DPAR_MORE;
    }
    for (int32_t q = 0; q < g->comm.size; q++) {
        int64_t bytes = dpari_part(g, &k->call, q).bytes;
        largest = bytes > largest ? bytes : largest;
    }
    if (all.cma) {
        dpari_time_way(g, k);
    }
    if (all.cma && all.kernel) {
        status = dpari_cma_reduce(g, k);
        dpari_done_with_others(
            g, k, k->call.kind == DPAR_CALL_ALL_REDUCE ? DPARI_CMA_RESULTS : DPARI_FINAL, 1);
        return status != DPAR_OK ? status : DPAR_MORE;
    }
    dpari_chunks_begin(g, k, largest);
    return DPAR_MORE;
}

/* Does the same for an operation that does not reduce. */
static dpar_status dpari_choose_move(dpari_group *g, dpar_work *k)
{
    const dpari_offers all = dpari_survey(g, k);
    dpar_status status = dpari_sizes_check(g, k);
    if (status != DPAR_OK) {
        return status;
    }
    if (all.cma && !all.readable) {
        dpari_time_way(g, k);
    }
    if (all.readable ||
        (all.cma && !all.in_place && (k->call.kind != DPAR_CALL_BROADCAST || all.kernel))) {
        status = dpari_pull(g, k, all.largest);
        if (status != DPAR_OK || (all.boxed && !k->call.variable_counts)) {
            return status;
        }
        dpari_done_with_others(g, k, DPARI_FINAL, 1);
        return DPAR_MORE;
    }
    dpari_chunks_begin(g, k, all.largest);
    return DPAR_MORE;
}

/* Called when all ranks have entered. A leader tells the other ranks so (gate.h). Then the
 * collective begins. */
static dpar_status dpari_coll_choose(dpari_group *g, dpar_work *k)
{
    dpari_coll *o = dpari_coll_of(k);
    const int result = o->inline_bytes > 0 && k->call.kind == DPAR_CALL_ALL_REDUCE;
    if (!result) {
        dpari_gate_tell(g, k, &o->at, DPARI_WORD_ENTRY, o->mine, NULL, 0);
    }
    if (o->inline_bytes >= 0) {
        dpari_inline_take(g, k);
        if (result) {
            dpari_gate_tell(g, k, &o->at, DPARI_WORD_ENTRY, o->mine, k->call.out, o->inline_bytes);
        }
        return DPAR_OK;
    }
    memset(&o->at, 0, sizeof o->at);
    return dpari_is_reduction(&k->call) ? dpari_choose_reduction(g, k) : dpari_choose_move(g, k);
}

DPARI_INTERNAL dpar_status dpari_coll_advance(dpari_group *g, dpar_work *k)
{
    dpar_status status = DPAR_MORE;
    if ((k->phase & 0xff) == DPARI_ENTER) {
        dpari_enter(g, k);
    }
    if ((k->phase & 0xff) == DPARI_ENTRIES) {
        status = dpari_entries(g, k);
        if (status == DPAR_OK) {
            status = dpari_coll_choose(g, k);
        }
    }
    if (status == DPAR_MORE && (k->phase & 0xff) == DPARI_CHUNKS) {
        status = dpari_chunks(g, k);
    }
    if (status == DPAR_MORE && (k->phase & 0xff) == DPARI_CMA_RESULTS &&
        dpari_reached(g, k, DPARI_WORD_A, dpari_step_word(k, 1))) {
        status = dpari_cma_results(g, k);
        if (status == DPAR_OK) {
            dpari_done_with_others(g, k, DPARI_FINAL, 2);
            status = DPAR_MORE;
        }
    }
    if (status == DPAR_MORE && (k->phase & 0xff) == DPARI_FINAL) {
        status = dpari_last_words(g, k) ? DPAR_OK : DPAR_MORE;
    }
    if (status == DPAR_OK && g->timed == k->sequence + 1) {
        dpari_timed(g, k);
    }
    return status;
}
