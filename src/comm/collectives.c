/* SPDX-License-Identifier: MIT-0 */
/* Implements the collectives of the shared-memory engine as steps that never wait. shm.c calls the
 * steps, and decides when and for how long to wait between them.
 *
 * Collective k of a communicator proceeds in these steps on every rank:
 *
 *   1. Input is put where others can read it: small input into the rank's entry line, other input
 *      into the slot of parity k & 1, unless it is in registered memory already. Then the rank
 *      publishes its entry: word = k << 32 | fingerprint of the call.
 *   2. The rank waits for the entries of ALL ranks (many ranks do so by levels: arrival.h), and
 *      compares their fingerprints. If ranks have called different operations, all of them notice
 *      here. Because of this wait, two sets of entries and slots, used alternately, are enough. A
 *      rank that begins k + 2 has seen all entries of k + 1, and a rank that has entered k + 1 has
 *      finished reading k.
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

#include "../base/base_private.h"
#include "../host/kernel.h"
#include "arrival.h"
#include "copy_choice.h"
#include "engine.h"
#include "flight.h"
#include "heap.h"
#include "wait.h"

enum {
    /* All but DPARI_BUFFERS are in bytes. */
    DPARI_DIRECT_FROM = 1024,        /* from this size on, two waits take less time than a copy */
    DPARI_BUFFERS = 4,               /* chunks of a rank that are in the slots at a time */
    DPARI_BLOCK = 64 << 10,          /* the most that method cma reads from one rank before it
                                        reduces */
    DPARI_CMA_PIECE = 32 << 10,      /* from this size on, one copy by the kernel is faster than two
                                        through a slot */
    DPARI_BROADCAST_BOX = 8 << 10,   /* larger broadcasts are faster in several pieces */
    DPARI_BROADCAST_LEAST = 8 << 10, /* the smallest size of such a piece */
    DPARI_BROADCAST_MOST = 128 << 10, /* the largest size of such a piece */
    DPARI_BROADCAST_CMA = 12 << 10,   /* from this size on, the kernel may copy broadcasts */
    DPARI_REDUCTION_CMA = 256 << 10   /* and may copy the inputs of reductions */
};
/* If a rank writes at least this many bytes, streaming stores, which bypass the cache, are faster.
 * Measured on two cores of a server (docs/records/performance.md). */
#define DPARI_STREAM_FROM (INT64_C(16) << 20)
#define DPARI_STREAM_COPY_FROM (INT64_C(64) << 20)

/* The phase of a collective, in the low 8 bits of dpar_work.phase. The bits above hold the kind of
 * word that the collective waits for, DPARI_WORD_x. */
enum { DPARI_ENTER, DPARI_ENTRIES, DPARI_CHUNKS, DPARI_CMA_RESULTS, DPARI_FINAL };

/* What a rank publishes in its entry if its input is not inline. */
typedef struct dpari_offer {
    uint64_t in, out;       /* refs of its input and output; 0 if the others cannot reach them */
    uint64_t in_at, out_at; /* their addresses in its process */
    int64_t largest;        /* bytes of the largest piece that it sends to one rank */
    int64_t flags;          /* a sum of the following */
} dpari_offer;
enum {
    DPARI_BOXED = 1,     /* its input is a copy in its slot */
    DPARI_IN_PLACE = 2,  /* its output overwrites its input (dpari_in_place) */
    DPARI_CAN_CMA = 4,   /* it can read the private memory of all ranks of the group */
    DPARI_OWN_TAKEN = 8, /* it has copied its own piece already */
    DPARI_KERNEL = 16    /* set by the rank that chooses the method if the kernel is to copy */
};

/* The layout of dpar_work.state for collectives. It includes copies of what this rank has
 * published, because reading a published cache line back after others have read it costs as much as
 * reading one of theirs. */
typedef struct dpari_coll {
    dpari_watch at;            /* progress of the wait for the other ranks, from the right neighbour
                                  on */
    int64_t target;            /* value that the word must reach */
    int64_t in_step, mid_step; /* number of chunks put into the slots, and reduced or taken */
    int64_t out_step;          /* number of chunks of which the results are taken */
    int64_t steps;             /* number of chunks */
    int64_t piece;             /* bytes of one piece of a chunk */
    int64_t buffers;           /* number of chunks that fit in the slots of a rank */
    int64_t inline_bytes;      /* bytes of each inline input; -1 if entries have offers */
    uint64_t mine;             /* word of this rank's entry */
    dpari_offer offer;
} dpari_coll;

static dpari_coll *dpari_coll_of(dpar_work *work)
{
    return (dpari_coll *)(void *)work->state;
}

static const dpari_coll *dpari_coll_of_const(const dpar_work *work)
{
    return (const dpari_coll *)(const void *)work->state;
}

static const dpari_offer *dpari_offer_of(const dpari_group *group, const dpar_work *work,
                                         int32_t rank)
{
    if (rank == group->comm.rank) {
        return &dpari_coll_of_const(work)->offer;
    }
    return (const dpari_offer *)(const void *)group->member[rank]
        ->entry[work->sequence & 1]
        .payload;
}

static uint64_t dpari_step_word(const dpar_work *work, int64_t step)
{
    return (uint64_t)(uint32_t)work->sequence << 32 | (uint64_t)step;
}

/* ---- pieces: what each rank sends to each other ---------------------------------------------- */

/* Returns the bytes of an element in memory. */
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

/* Returns piece r of an array that has one piece for each rank. count and first are NULL if all
 * pieces have call->count elements; first is NULL too if pieces are contiguous. */
static dpari_piece dpari_piece_at(const dpar_call *call, const int64_t *count, const int64_t *first,
                                  int32_t r)
{
    const int64_t unit = dpari_unit(call);
    dpari_piece p = {call->count * unit * r, call->count * unit};
    if (call->variable_counts) {
        p.begin = unit * (first ? first[r] : dpari_sum_before(count, r));
        p.bytes = unit * count[r];
    }
    return p;
}

/* Returns the piece of this rank's `in` that rank `to` receives. */
static dpari_piece dpari_piece_to(const dpari_group *group, const dpar_call *call, int32_t to)
{
    const int root = call->root == group->comm.rank;
    const dpari_piece none = {0, 0}, whole = {0, call->count * dpari_unit(call)};
    switch (call->kind) {
    case DPAR_CALL_BROADCAST: return root ? whole : none;
    case DPAR_CALL_GATHER: return call->root == to ? whole : none;
    case DPAR_CALL_ALL_GATHER: return whole;
    case DPAR_CALL_SCATTER:
        return root ? dpari_piece_at(call, call->in_count, call->in_first, to) : none;
    case DPAR_CALL_ALL_TO_ALL: return dpari_piece_at(call, call->in_count, call->in_first, to);
    default: return none;
    }
}

/* Returns the piece of this rank's `out` that receives the data of rank `from`. */
static dpari_piece dpari_piece_from(const dpari_group *group, const dpar_call *call, int32_t from)
{
    const dpari_piece none = {0, 0}, whole = {0, call->count * dpari_unit(call)};
    const int takes = call->kind != DPAR_CALL_GATHER || call->root == group->comm.rank;
    switch (call->kind) {
    case DPAR_CALL_BROADCAST:
    case DPAR_CALL_SCATTER: return call->root == from ? whole : none;
    case DPAR_CALL_GATHER:
    case DPAR_CALL_ALL_GATHER:
    case DPAR_CALL_ALL_TO_ALL:
        return takes ? dpari_piece_at(call, call->out_count, call->out_first, from) : none;
    default: return none;
    }
}

/* True if a rank sends the same bytes to every other rank. */
static int dpari_gives_one(const dpar_call *call)
{
    return call->kind == DPAR_CALL_BROADCAST || call->kind == DPAR_CALL_GATHER ||
           call->kind == DPAR_CALL_ALL_GATHER;
}

/* Returns part q of a reduction, the elements that rank q reduces. */
static dpari_piece dpari_part(const dpari_group *group, const dpar_call *call, int32_t q)
{
    const int64_t unit = dpari_unit(call), n = group->comm.size;
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
static int64_t dpari_gives(const dpari_group *group, const dpar_call *call)
{
    const int64_t one = call->count * dpari_unit(call);
    switch (call->kind) {
    case DPAR_CALL_BARRIER: return 0;
    case DPAR_CALL_SCATTER:
    case DPAR_CALL_ALL_TO_ALL:
    case DPAR_CALL_REDUCE_SCATTER: return one * group->comm.size;
    default: return one;
    }
}

static int dpari_is_reduction(const dpar_call *call)
{
    return call->kind == DPAR_CALL_ALL_REDUCE || call->kind == DPAR_CALL_REDUCE ||
           call->kind == DPAR_CALL_REDUCE_SCATTER;
}

/* True if this rank has an input. */
static int dpari_gives_any(const dpari_group *group, const dpar_call *call)
{
    return (call->kind != DPAR_CALL_BROADCAST && call->kind != DPAR_CALL_SCATTER) ||
           call->root == group->comm.rank;
}

/* ---- fingerprints ---------------------------------------------------------------------------- */

/* Adds v to the hash h, as dpari_hash does (agree.c). */
static uint64_t dpari_coll_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* Hashes everything in a call that must be equal on all ranks. The first word packs five fields
 * without overlap: kind (8 bits), op (4), type (12), variable_counts (8) and root (32). */
static uint32_t dpari_fingerprint(const dpari_group *group, const dpar_call *call)
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
        for (int32_t r = 0; r < group->comm.size; r++) {
            h = dpari_coll_mix(h, (uint64_t)count[r]);
        }
    }
    return (uint32_t)(h >> 32);
}

/* ---- waiting for words ----------------------------------------------------------------------- */

/* Returns 1 if the words of all ranks have reached the target. Otherwise sets group->blocker to the
 * first rank whose word has not, and returns 0. */
static int dpari_reached(dpari_group *group, dpar_work *work, int32_t which, uint64_t target)
{
    dpari_coll *coll = dpari_coll_of(work);
    const int32_t n = group->comm.size;
    for (; coll->at.cursor < n - 1; coll->at.cursor++) {
        int32_t r = group->comm.rank + 1 + coll->at.cursor;
        r = r >= n ? r - n : r;
        if ((int64_t)(DPARI_LOAD(dpari_word_of(group, work, r, which)) - target) < 0) {
            group->blocker = group->world_rank[r];
            coll->target = (int64_t)target;
            work->phase = (work->phase & 0xff) | which << 8;
            return 0;
        }
    }
    coll->at.cursor = 0;
    return 1;
}

DPARI_INTERNAL int dpari_coll_missing(const dpari_group *group, const dpar_work *work, int32_t rank)
{
    const dpari_coll *coll = (const dpari_coll *)(const void *)work->state;
    if (rank == group->comm.rank || (work->phase & 0xff) == DPARI_ENTER) {
        return 0;
    }
    return (int64_t)(DPARI_LOAD(dpari_word_of(group, work, rank, work->phase >> 8)) -
                     (uint64_t)coll->target) < 0;
}

/* ---- entering -------------------------------------------------------------------------------- */

/* Copies this rank's pieces for all ranks, one after the other, into `box`, which is its slot. The
 * table of pieces has their sizes. */
static void dpari_fill_box(const dpari_group *group, const dpar_call *call, char *box,
                           int64_t bytes)
{
    int64_t at = 0;
    if (dpari_is_reduction(call) || !call->variable_counts || dpari_gives_one(call)) {
        memcpy(box, call->in, (size_t)bytes);
        return;
    }
    for (int32_t r = 0; r < group->comm.size; r++) {
        dpari_piece p = dpari_piece_to(group, call, r);
        if (p.bytes > 0) {
            memcpy(box + at, (const char *)call->in + p.begin, (size_t)p.bytes);
        }
        at += p.bytes;
    }
}

/* Fills in the table of pieces of different sizes. Their positions are those in the slot if
 * `packed`, otherwise those in `in`. Returns the bytes of all pieces in the slot. *largest is the
 * largest piece. */
static int64_t dpari_table_fill(const dpari_group *group, const dpar_work *work, int packed,
                                int64_t *largest)
{
    dpari_piece *table = dpari_table(group, group->comm.rank, work->sequence);
    int64_t at = 0;
    *largest = 0;
    for (int32_t r = 0; r < group->comm.size; r++) {
        dpari_piece p = dpari_piece_to(group, &work->call, r);
        *largest = p.bytes > *largest ? p.bytes : *largest;
        if (packed) {
            p.begin = dpari_gives_one(&work->call) ? 0 : at;
        }
        table[r] = p;
        at = dpari_gives_one(&work->call) ? *largest : at + p.bytes;
    }
    return at;
}

/* Returns a reference to `in` if all ranks can reach it from its first to its last byte, otherwise
 * 0. */
static uint64_t dpari_in_ref(const dpari_group *group, const dpar_call *call)
{
    int64_t bytes = dpari_gives(group, call);
    if (!call->in || (group->world->head->plain & DPAR_WORLD_NO_DIRECT)) {
        return 0;
    }
    if (call->variable_counts && call->in_count) {
        bytes = 0;
        for (int32_t r = 0; r < group->comm.size; r++) {
            int64_t begin =
                call->in_first ? call->in_first[r] : dpari_sum_before(call->in_count, r);
            int64_t end = (begin + call->in_count[r]) * dpari_unit(call);
            bytes = end > bytes ? end : bytes;
        }
    }
    return dpari_ref(group->world, call->in, bytes);
}

/* Returns a reference to `out` if other ranks may store results there, otherwise 0. */
static uint64_t dpari_out_ref(const dpari_group *group, const dpar_call *call)
{
    int takes = call->kind == DPAR_CALL_ALL_REDUCE ||
                (call->kind == DPAR_CALL_REDUCE && call->root == group->comm.rank);
    if (!takes || (group->world->head->plain & DPAR_WORLD_NO_DIRECT)) {
        return 0;
    }
    return dpari_ref(group->world, call->out, call->count * dpari_unit(call));
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
static int dpari_reads_all(const dpari_group *group, int32_t rank)
{
    const dpari_world *world = group->world;
    const int32_t reader = group->world_rank[rank], count = DPARI_LOAD(&world->rank[reader].reads);
    int32_t r = 0;
    if (count == 0 || count == world->size) {
        return count != 0;
    }
    while (r < group->comm.size && dpari_world_reads(world, reader, group->world_rank[r])) {
        r++;
    }
    return r == group->comm.size;
}

/* True if each rank can read the memory of all others. A result of 1 is not checked again, because
 * a rank that can no longer read stops offering DPARI_CAN_CMA. */
static int dpari_all_cma(dpari_group *group)
{
    for (int32_t r = 0; r < group->comm.size && !group->all_cma; r++) {
        if (!dpari_reads_all(group, r)) {
            return 0;
        }
    }
    group->all_cma = 1;
    return 1;
}

/* Returns the bytes up to which an input should be copied into the slot. */
static int64_t dpari_box_most(dpari_group *group, const dpar_call *call, int64_t largest)
{
    int64_t n = group->comm.size < 4 ? 4 : group->comm.size;
    /* Each rank reads the whole slots of all others. With many ranks, chunks are faster, because
     * each rank then reads only its part of them. */
    if (dpari_is_reduction(call)) {
        return group->slot_bytes * 4 / n;
    }
    if (call->kind == DPAR_CALL_BROADCAST) {
        const int64_t most = DPARI_BROADCAST_BOX;
        return most < group->slot_bytes ? most : group->slot_bytes;
    }
    if (largest >= DPARI_CMA_PIECE && !dpari_in_place(call) && dpari_all_cma(group)) {
        return 0;
    }
    return group->slot_bytes;
}

/* Returns the bytes of this rank's input. If sizes vary, a table lists what each other rank may
 * take. */
static int64_t dpari_gives_here(const dpari_group *group, const dpar_work *work, dpari_offer *offer)
{
    const dpar_call *call = &work->call;
    offer->largest = dpari_gives_any(group, call) ? call->count * dpari_unit(call) : 0;
    if (!call->variable_counts) {
        return dpari_gives_any(group, call) ? dpari_gives(group, call) : 0;
    }
    if (dpari_is_reduction(call)) {
        return dpari_sum_before(call->in_count, group->comm.size) * dpari_unit(call);
    }
    return dpari_table_fill(group, work, 1, &offer->largest);
}

/* Returns the record (copy_choice.h) of how long each copy method takes for private memory of this
 * call's size, and sets *bytes to that size. Returns NULL if this rank does not choose the method,
 * or the call is small. In a broadcast the root chooses. In a reduction rank 0 does, because all
 * ranks copy the same amount. */
static dpari_pace *dpari_pace_of_call(dpari_group *group, const dpar_call *call, int64_t *bytes)
{
    const int reduces =
        call->kind == DPAR_CALL_ALL_REDUCE || call->kind == DPAR_CALL_REDUCE_SCATTER;
    if (group->comm.rank != (reduces ? 0 : call->root) ||
        (!reduces && call->kind != DPAR_CALL_BROADCAST)) {
        return NULL;
    }
    *bytes = call->variable_counts
                 ? dpari_sum_before(call->in_count, group->comm.size) * dpari_unit(call)
                 : dpari_gives(group, call);
    if (*bytes < (reduces ? DPARI_REDUCTION_CMA : DPARI_BROADCAST_CMA)) {
        return NULL;
    }
    return dpari_pace_of(reduces ? group->sums : group->pace, *bytes);
}

/* Fills in this rank's offer, and copies the input into the slot if that is better. */
static void dpari_offer_make(dpari_group *group, dpar_work *work, dpari_offer *offer)
{
    const dpar_call *call = &work->call;
    char *slot = dpari_staging(group, group->comm.rank) + (work->sequence & 1) * group->slot_bytes;
    const int64_t bytes = dpari_gives_here(group, work, offer);
    int64_t paced;
    dpari_pace *pace = dpari_pace_of_call(group, call, &paced);
    offer->in_at = (uint64_t)(uintptr_t)call->in;
    offer->out_at = (uint64_t)(uintptr_t)call->out;
    offer->out = dpari_out_ref(group, call);
    offer->in = 0;
    offer->flags =
        dpari_in_place(call) | (dpari_reads_all(group, group->comm.rank) ? DPARI_CAN_CMA : 0);
    if (pace && dpari_pace_choose(pace) == DPARI_BY_KERNEL) {
        offer->flags |= DPARI_KERNEL;
    }
    if (bytes >= DPARI_DIRECT_FROM &&
        !(call->kind == DPAR_CALL_ALL_TO_ALL && (offer->flags & DPARI_IN_PLACE))) {
        offer->in = dpari_in_ref(group, call);
    }
    if (!offer->in && bytes <= dpari_box_most(group, call, offer->largest)) {
        if (bytes > 0) {
            dpari_fill_box(group, call, slot, bytes);
        }
        offer->in = dpari_ref(group->world, slot, bytes);
        offer->flags |= DPARI_BOXED;
    } else if (call->variable_counts && !dpari_is_reduction(call)) {
        dpari_table_fill(group, work, 0, &offer->largest);
    }
}

/* True if an output of this many bytes should be written with streaming stores. */
static int32_t dpari_streams(const dpari_group *group, int64_t bytes)
{
    return bytes >= DPARI_STREAM_FROM &&
           !(group->world->head->plain & DPAR_WORLD_NO_STREAMING_STORES);
}

/* Copies the rank's own piece from `in` to `out`. */
static void dpari_take_own(dpari_group *group, const dpar_call *call, int32_t stream)
{
    const dpari_piece to = dpari_piece_from(group, call, group->comm.rank);
    const dpari_piece from = dpari_piece_to(group, call, group->comm.rank);
    if (to.bytes > 0 && call->kind != DPAR_CALL_BROADCAST) {
        dpari_kern_copy((char *)call->out + to.begin, (const char *)call->in + from.begin, to.bytes,
                        stream);
    }
}

/* The first step: makes the input readable and publishes the entry. */
static void dpari_enter(dpari_group *group, dpar_work *work)
{
    dpari_coll *coll = dpari_coll_of(work);
    dpari_entry *entry = &group->member[group->comm.rank]->entry[work->sequence & 1];
    const int64_t bytes = dpari_gives(group, &work->call);
    memset(&coll->at, 0, sizeof coll->at);
    group->levels.doubt = 0;
    coll->inline_bytes = !work->call.variable_counts && bytes <= DPARI_INLINE ? bytes : -1;
    if (coll->inline_bytes < 0) {
        dpari_offer_make(group, work, &coll->offer);
        memcpy(entry->payload, &coll->offer, sizeof coll->offer);
    } else if (bytes > 0 && dpari_gives_any(group, &work->call)) {
        memcpy(entry->payload, work->call.in, (size_t)bytes);
    }
    work->phase = DPARI_ENTRIES;
    coll->mine = dpari_step_word(work, (int64_t)dpari_fingerprint(group, &work->call));
    dpari_publish(group->world, &entry->word, coll->mine);
    /* copies the own piece, which needs no other rank, while the others enter */
    if (work->call.kind == DPAR_CALL_ALL_GATHER && coll->inline_bytes < 0 && coll->offer.in &&
        !(coll->offer.flags & DPARI_BOXED)) {
        dpari_take_own(group, &work->call, dpari_streams(group, bytes * group->comm.size));
        coll->offer.flags |= DPARI_OWN_TAKEN;
    }
}

/* Appends the call that a rank has published. Returns 1 if that call closes the communicator. */
static int dpari_put_called(dpar_text *text, const dpari_group *group, const dpar_work *work,
                            int32_t rank)
{
    dpari_flight f;
    dpari_put_rank(text, group, rank);
    if (!dpari_flight_find(group->world, group->world_rank[rank], group->id, work->sequence, &f)) {
        dpar_text_put(text, " called a different operation");
        return 0;
    }
    if (f.root == DPARI_CLOSE) {
        dpar_text_put(text, " closed the communicator or returned");
        dpari_put_failed(text, group->world, group->world_rank[rank]); /* most likely the reason */
        return 1;
    }
    dpar_text_put(text, " called ");
    dpari_put_flight_of(text, group, &f);
    return 0;
}

/* True if both calls have variable counts and agree in everything that the message shows. Then only
 * their counts can differ. */
static int dpari_same_but_counts(const dpari_group *group, const dpar_work *work, int32_t other)
{
    dpari_flight f;
    return dpari_flight_find(group->world, group->world_rank[other], group->id, work->sequence,
                             &f) &&
           f.varies && work->call.variable_counts && f.kind == work->call.kind &&
           f.type == work->call.type && f.op == work->call.op && f.root == work->call.root;
}

/* Breaks the communicator because another rank has called a different operation. */
static DPARI_COLD dpar_status dpari_coll_mismatch(dpari_group *group, const dpar_work *work,
                                                  int32_t other)
{
    const int32_t me = group->comm.rank, first = me < other ? me : other;
    dpar_why why;
    dpar_text t;
    int left;
    /* if a rank has died, that is why the others call different operations */
    for (int32_t r = 0; r < group->comm.size; r++) {
        if (dpari_rank_state(group->world, group->world_rank[r]) == DPARI_RANK_DEAD) {
            return dpari_fail_peer(group, work, r);
        }
    }
    dpari_text_why(&t, &why);
    if (group->id != 0 && group->called == NULL) {
        dpari_text_print(&t, "group %ld: ", (int64_t)group->id);
    }
    left = dpari_put_called(&t, group, work, first);
    dpar_text_put(&t, ", ");
    left |= dpari_put_called(&t, group, work, first == me ? other : me);
    dpar_text_put(&t, dpari_same_but_counts(group, work, other) ? ": their counts differ" : "");
    return dpari_group_break(group, left ? DPAR_E_PEER : DPAR_E_MISMATCH, why.text);
}

/* Returns DPAR_OK if all ranks have entered the same call, DPAR_MORE if some have not entered, and
 * DPAR_E_MISMATCH if calls differ. */
static dpar_status dpari_entries_of_all(dpari_group *group, dpar_work *work)
{
    dpari_coll *coll = dpari_coll_of(work);
    const int32_t n = group->comm.size;
    const uint64_t mine = coll->mine;
    for (; coll->at.cursor < n - 1; coll->at.cursor++) {
        int32_t r = group->comm.rank + 1 + coll->at.cursor;
        r = r >= n ? r - n : r;
        uint64_t word = DPARI_LOAD(&group->member[r]->entry[work->sequence & 1].word);
        int32_t ahead = (int32_t)((uint32_t)(word >> 32) - (uint32_t)(mine >> 32));
        /* If ahead > 0, the rank has compared this entry already and has reused its member for
         * another communicator. That is possible only after the barrier that closes a
         * communicator, and a barrier reads no data. */
        if (word == mine || ahead > 0) {
            continue;
        }
        if (ahead < 0) {
            group->blocker = group->world_rank[r];
            coll->target = (int64_t)(mine >> 32 << 32);
            work->phase = DPARI_ENTRIES | DPARI_WORD_ENTRY << 8;
            return DPAR_MORE;
        }
        return dpari_coll_mismatch(group, work, r);
    }
    coll->at.cursor = 0;
    return DPAR_OK;
}

/* Does the same as dpari_entries_of_all, by levels (arrival.h) if possible. */
static dpar_status dpari_entries(dpari_group *group, dpar_work *work)
{
    dpari_coll *coll = dpari_coll_of(work);
    const int came = dpari_gate_look(group, work, &coll->at, DPARI_WORD_ENTRY, coll->mine);
    if (came < 0) {
        return dpari_entries_of_all(group, work);
    }
    coll->target = (int64_t)(coll->mine >> 32 << 32);
    work->phase = DPARI_ENTRIES | DPARI_WORD_ENTRY << 8;
    return came ? DPAR_OK : DPAR_MORE;
}

/* True if all ranks have published their last word for this operation. */
static int dpari_last_words(dpari_group *group, dpar_work *work)
{
    dpari_coll *coll = dpari_coll_of(work);
    const int32_t which = work->phase >> 8;
    const uint64_t target = (uint64_t)coll->target;
    int came = dpari_gate_look(group, work, &coll->at, which, target);
    came = came < 0 ? dpari_reached(group, work, which, target) : came;
    if (came) {
        dpari_gate_tell(group, work, &coll->at, which, target, NULL, 0);
    }
    return came;
}

/* ---- all input is readable ------------------------------------------------------------------- */

/* True if a reduction writes over its own input. Those lines are in the caches, where streaming
 * stores would take three times as long. */
static int dpari_over_input(const dpari_group *group, int32_t outs)
{
    for (int32_t j = 0; j < outs; j++) {
        for (int32_t r = 0; r < group->comm.size; r++) {
            if (group->out[j] == group->in[r]) {
                return 1;
            }
        }
    }
    return 0;
}

/* Reduces `bytes` bytes at group->in[r] of all ranks r into the `outs` outputs group->out. */
static void dpari_reduce_range(dpari_group *group, const dpar_call *call, int32_t outs,
                               int64_t bytes, int64_t written)
{
    const int32_t stream = dpari_streams(group, written) && !dpari_over_input(group, outs);
    dpari_kern_reduce(group->out, outs, group->in, group->comm.size, bytes / dpari_unit(call),
                      call->type, call->op, stream);
}

/* Returns the inline input of another rank. */
static const char *dpari_inline_given(const dpari_group *group, const dpar_work *work, int32_t rank)
{
    return (const char *)dpari_gate_given(group, work, rank, dpari_coll_of_const(work)->mine);
}

static void dpari_inline_reduce(dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    int64_t begin = 0, bytes = call->count * dpari_unit(call);
    const void *result;
    if (bytes == 0 || (call->kind == DPAR_CALL_REDUCE && call->root != group->comm.rank)) {
        return; /* if there are no elements, `in` and `out` may be NULL */
    }
    result = call->kind == DPAR_CALL_ALL_REDUCE
                 ? dpari_gate_result(group, &dpari_coll_of_const(work)->at)
                 : NULL;
    if (result) {
        memcpy(call->out, result, (size_t)bytes);
        return;
    }
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        begin = bytes * group->comm.rank;
    }
    for (int32_t r = 0; r < group->comm.size; r++) {
        group->in[r] =
            (r == group->comm.rank ? (const char *)call->in : dpari_inline_given(group, work, r)) +
            begin;
    }
    group->out[0] = call->out;
    dpari_reduce_range(group, call, 1, bytes, 0);
}

static void dpari_inline_take(dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    if (dpari_is_reduction(call)) {
        dpari_inline_reduce(group, work);
        return;
    }
    for (int32_t r = 0; r < group->comm.size; r++) {
        dpari_piece p = dpari_piece_from(group, call, r);
        int64_t from = dpari_gives_one(call) ? 0 : p.bytes * group->comm.rank;
        if (r == group->comm.rank) {
            dpari_take_own(group, call, 0);
        } else if (p.bytes > 0) {
            memcpy((char *)call->out + p.begin, dpari_inline_given(group, work, r) + from,
                   (size_t)p.bytes);
        }
    }
}

/* ---- reductions on offers -------------------------------------------------------------------- */

/* Method push: this rank reduces its part of all inputs and stores it into all outputs. */
static dpar_status dpari_push(dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    const dpari_piece part = dpari_part(group, call, group->comm.rank);
    int32_t outs = 0;
    for (int32_t r = 0; r < group->comm.size; r++) {
        const dpari_offer *offer = dpari_offer_of(group, work, r);
        const char *in = (const char *)dpari_at(group->world, offer->in);
        if (!in) {
            return dpari_group_unmapped(group, work, offer->in);
        }
        group->in[r] = in + part.begin;
        if (call->kind == DPAR_CALL_ALL_REDUCE ||
            (call->kind == DPAR_CALL_REDUCE && r == call->root)) {
            char *out = (char *)dpari_at(group->world, offer->out);
            if (!out) {
                return dpari_group_unmapped(group, work, offer->out);
            }
            group->out[outs++] = out + part.begin;
        }
    }
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        group->out[outs++] = call->out;
    }
    if (part.bytes > 0) {
        dpari_reduce_range(group, call, outs, part.bytes, part.bytes * outs);
    }
    return DPAR_OK;
}

/* Method box of a reduction: this rank reduces all elements of its own output. */
static dpar_status dpari_pull_reduce(dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    if (call->kind == DPAR_CALL_REDUCE && call->root != group->comm.rank) {
        return DPAR_OK;
    }
    for (int32_t r = 0; r < group->comm.size; r++) {
        const uint64_t ref = dpari_offer_of(group, work, r)->in;
        group->in[r] = r == group->comm.rank ? call->in : dpari_at(group->world, ref);
        if (!group->in[r]) {
            return dpari_group_unmapped(group, work, ref);
        }
    }
    group->out[0] = call->out;
    dpari_reduce_range(group, call, 1, call->count * dpari_unit(call),
                       call->count * dpari_unit(call));
    return DPAR_OK;
}

/* A summary of all offers, which is the same on all ranks. */
typedef struct dpari_offers {
    int readable;    /* 1 if all inputs can be read */
    int writable;    /* 1 if all outputs that are needed can be written by others */
    int boxed;       /* 1 if no input is in a user's memory */
    int in_place;    /* 1 if a rank overwrites input that the others read in its buffer */
    int cma;         /* 1 if all ranks can read the others' memory */
    int kernel;      /* 1 if the kernel is to copy (DPARI_KERNEL) */
    int64_t largest; /* bytes of the largest piece */
} dpari_offers;

static dpari_offers dpari_survey(const dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    dpari_offers all = {1, 1, 1, 0, 1, 0, 0};
    for (int32_t r = 0; r < group->comm.size; r++) {
        const dpari_offer *offer = dpari_offer_of(group, work, r);
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

/* ---- method cma: a reduction that reads through the kernel ----------------------------------- */

/* Breaks the communicator because a rank's memory could not be read. number: errno of the read. */
static DPARI_COLD dpar_status dpari_cma_failed(dpari_group *group, const dpar_work *work,
                                               int32_t rank, int number)
{
    dpar_text t;
    dpar_why why;
    /* a process that dies loses its memory some time before its lock, so wait up to 0.2 s */
    for (int32_t i = 0; i < 2000; i++) {
        if (dpari_rank_state(group->world, group->world_rank[rank]) != DPARI_RANK_HERE) {
            return dpari_fail_peer(group, work, rank);
        }
        dpari_os_sleep(100e-6);
    }
    dpari_text_why(&t, &why);
    dpari_put_work(&t, group, work);
    dpar_text_put(&t, "the memory of ");
    dpari_put_rank(&t, group, rank);
    dpar_text_put(&t, " cannot be read any more (");
    dpari_os_error(&t, number);
    if (number == EPERM) {
        dpar_text_put(&t, ": perhaps one of the two processes has changed its user, its seccomp "
                          "filter or PR_SET_DUMPABLE since the start");
    }
    dpar_text_put(
        &t, "). To copy without such reads, set DPAR_WORLD_NO_CMA in dpar_world_desc.disable");
    return dpari_group_break(group, DPAR_E_SYSTEM, why.text);
}

/* Reduces this rank's part of all inputs into its own output, block by block. The blocks of the
 * other ranks are read into this rank's slots. */
static dpar_status dpari_cma_reduce(dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    const dpari_piece part = dpari_part(group, call, group->comm.rank);
    const int32_t n = group->comm.size, me = group->comm.rank;
    const int64_t most = DPARI_BLOCK;
    int64_t block = 2 * group->slot_bytes / n / 64 * 64;
    char *slots = dpari_staging(group, me);
    block = block < most ? block : most;
    for (int64_t at = 0; at < part.bytes; at += block) {
        int64_t bytes = part.bytes - at < block ? part.bytes - at : block;
        for (int32_t r = 0; r < n; r++) {
            char *copy = slots + r * block;
            uint64_t from = dpari_offer_of(group, work, r)->in_at + (uint64_t)(part.begin + at);
            group->in[r] = r == me ? (const char *)call->in + part.begin + at : copy;
            if (r != me &&
                dpari_world_read(group->world, group->world_rank[r], copy, from, bytes) != 0) {
                return dpari_cma_failed(group, work, r, errno);
            }
        }
        group->out[0] =
            (char *)call->out + at + (call->kind == DPAR_CALL_REDUCE_SCATTER ? 0 : part.begin);
        dpari_reduce_range(group, call, 1, bytes, 0);
    }
    return DPAR_OK;
}

/* Reads the parts that the other ranks have reduced. */
static dpar_status dpari_cma_results(dpari_group *group, const dpar_work *work)
{
    for (int32_t i = 1; i < group->comm.size; i++) {
        const int32_t r = (group->comm.rank + i) % group->comm.size;
        const dpari_piece part = dpari_part(group, &work->call, r);
        uint64_t from = dpari_offer_of(group, work, r)->out_at + (uint64_t)part.begin;
        char *to = (char *)work->call.out + part.begin;
        if (dpari_world_read(group->world, group->world_rank[r], to, from, part.bytes) != 0) {
            return dpari_cma_failed(group, work, r, errno);
        }
    }
    return DPAR_OK;
}

/* ---- moves (operations that do not reduce) on offers ----------------------------------------- */

static dpar_status dpari_size_mismatch(dpari_group *group, const dpar_work *work, int32_t from,
                                       int64_t gives, int64_t takes)
{
    const int64_t unit = dpari_unit(&work->call);
    dpar_why why;
    (void)dpari_say(DPAR_E_MISMATCH, &why,
                    "%s #%ld: rank %d sends %ld elements to rank %d, which expects %ld",
                    dpar_call_name(work->call.kind), work->sequence, from, gives / unit,
                    group->comm.rank, takes / unit);
    return dpari_group_break(group, DPAR_E_MISMATCH, why.text);
}

/* Returns the piece for this rank in the input that rank `from` offers. */
static dpari_piece dpari_offered(const dpari_group *group, const dpar_work *work, int32_t from)
{
    const dpar_call *call = &work->call;
    dpari_piece p = {0, call->count * dpari_unit(call)};
    if (call->variable_counts) {
        return dpari_table(group, from, work->sequence)[group->comm.rank];
    }
    p.begin = dpari_gives_one(call) ? 0 : p.bytes * group->comm.rank;
    return p;
}

/* If sizes vary, checks that each rank sends as many bytes to this rank as this rank expects. */
static dpar_status dpari_sizes_check(dpari_group *group, const dpar_work *work)
{
    for (int32_t r = 0; r < group->comm.size && work->call.variable_counts; r++) {
        const int64_t gives = dpari_table(group, r, work->sequence)[group->comm.rank].bytes;
        const int64_t takes = dpari_piece_from(group, &work->call, r).bytes;
        if (gives != takes) {
            return dpari_size_mismatch(group, work, r, gives, takes);
        }
    }
    return DPAR_OK;
}

/* Copies this rank's own piece of an all-to-all and the one from its right neighbour alternately,
 * line by line, because one copy can proceed while the other waits for a line of another core.
 * Returns 0 if that is not possible here. */
static int dpari_pull_two(dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    const int32_t me = group->comm.rank, r = me + 1 < group->comm.size ? me + 1 : 0;
    const uint64_t ref = dpari_offer_of(group, work, r)->in;
    const dpari_piece own = dpari_piece_to(group, call, me), other = dpari_offered(group, work, r);
    const char *in;
    if (call->kind != DPAR_CALL_ALL_TO_ALL || call->variable_counts || call->in == call->out ||
        r == me || !ref) {
        return 0;
    }
    in = (const char *)dpari_at(group->world, ref);
    if (!in) {
        return 0; /* the caller tries again and writes the message */
    }
    dpari_kern_fetch_beside((char *)call->out + dpari_piece_from(group, call, me).begin,
                            (const char *)call->in + own.begin,
                            (char *)call->out + dpari_piece_from(group, call, r).begin,
                            in + other.begin, own.bytes);
    return 1;
}

/* Copies all pieces for this rank from the offered memory, or through the kernel where it cannot be
 * reached. */
static dpar_status dpari_pull(dpari_group *group, const dpar_work *work, int64_t largest)
{
    const dpar_call *call = &work->call;
    const int32_t n = group->comm.size;
    const int32_t stream =
        dpari_streams(group, call->kind == DPAR_CALL_BROADCAST ? largest / 2 : largest * n);
    /* if the others read this rank's input in its buffer, the own piece is copied first, before
     * their reads take its lines out of the cache */
    const int32_t first = (dpari_coll_of_const(work)->offer.flags & DPARI_BOXED) != 0;
    const int32_t done = !stream && !first && dpari_pull_two(group, work) ? 2 : 0;
    for (int32_t i = done; i < n; i++) {
        const int32_t r = (group->comm.rank + first + i) % n;
        const dpari_offer *offer = dpari_offer_of(group, work, r);
        const dpari_piece to = dpari_piece_from(group, call, r),
                          from = dpari_offered(group, work, r);
        const char *in;
        if (to.bytes == 0) {
            continue;
        }
        in = offer->in && r != group->comm.rank ? (const char *)dpari_at(group->world, offer->in)
                                                : NULL;
        if (r == group->comm.rank) {
            if (!(offer->flags & DPARI_OWN_TAKEN)) {
                dpari_take_own(group, call, stream);
            }
        } else if (offer->in && !in) {
            return dpari_group_unmapped(group, work, offer->in);
        } else if (offer->in && !stream) {
            dpari_kern_fetch((char *)call->out + to.begin, in + from.begin, to.bytes);
        } else if (offer->in) {
            dpari_kern_copy((char *)call->out + to.begin, in + from.begin, to.bytes, stream);
        } else if (dpari_world_read(group->world, group->world_rank[r],
                                    (char *)call->out + to.begin,
                                    offer->in_at + (uint64_t)from.begin, to.bytes) != 0) {
            return dpari_cma_failed(group, work, r, errno);
        }
    }
    return DPAR_OK;
}

/* ---- method chunks --------------------------------------------------------------------------- */

/* Returns the buffer in the slots of a rank that chunk `step` uses. */
static char *dpari_buffer(const dpari_group *group, const dpari_coll *coll, int32_t rank,
                          int64_t step)
{
    return dpari_staging(group, rank) +
           (step % coll->buffers) * (2 * group->slot_bytes / coll->buffers);
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
static void dpari_chunks_cut(const dpari_group *group, const dpar_call *call, dpari_coll *coll,
                             int64_t largest)
{
    const int64_t room = 2 * group->slot_bytes, least = DPARI_BROADCAST_LEAST;
    const int64_t limit = DPARI_BROADCAST_MOST;
    coll->buffers = DPARI_BUFFERS;
    if (call->kind == DPAR_CALL_BROADCAST) {
        /* about 8 chunks of whole cache lines */
        int64_t piece = largest / 8 / 64 * 64, most = room / DPARI_BUFFERS;
        most = most < limit ? most : limit;
        piece = piece < least ? least : piece;
        coll->piece = piece < most ? piece : most;
        coll->buffers = room / coll->piece;
    } else {
        coll->piece = dpari_gives_one(call) ? room / DPARI_BUFFERS
                                            : room / DPARI_BUFFERS / group->comm.size / 64 * 64;
    }
    coll->steps = (largest + coll->piece - 1) / coll->piece;
}

/* Begins the chunks. A rank that sends nothing sets its word `a` to the last step at once, and a
 * rank that receives nothing does the same with its word `b`. */
static void dpari_chunks_begin(dpari_group *group, dpar_work *work, int64_t largest)
{
    dpari_coll *coll = dpari_coll_of(work);
    dpari_member *mine = group->member[group->comm.rank];
    const int32_t kind = work->call.kind;
    const int root = work->call.root == group->comm.rank;
    const int from_root = kind == DPAR_CALL_BROADCAST || kind == DPAR_CALL_SCATTER;
    dpari_chunks_cut(group, &work->call, coll, largest);
    coll->in_step = coll->mid_step = coll->out_step = 0;
    work->phase = DPARI_CHUNKS;
    if ((from_root && !root) || (kind == DPAR_CALL_GATHER && root)) {
        coll->in_step = coll->steps;
        dpari_publish(group->world, &mine->a.word, dpari_step_word(work, coll->steps));
    } else if ((from_root && root) || (kind == DPAR_CALL_GATHER && !root)) {
        coll->mid_step = coll->steps;
        dpari_publish(group->world, &mine->b.word, dpari_step_word(work, coll->steps));
    }
}

/* Writes the part of this chunk that the others will take or reduce. */
static void dpari_chunk_in(dpari_group *group, const dpar_work *work, const dpari_coll *coll)
{
    char *buffer = dpari_buffer(group, coll, group->comm.rank, coll->in_step);
    for (int32_t r = 0; r < group->comm.size; r++) {
        dpari_piece p = dpari_is_reduction(&work->call) ? dpari_part(group, &work->call, r)
                                                        : dpari_piece_to(group, &work->call, r);
        if (r == group->comm.rank || p.bytes == 0) {
            continue;
        }
        p = dpari_chunk(p, coll->piece, coll->in_step);
        if (p.bytes > 0) {
            memcpy(buffer + (dpari_gives_one(&work->call) ? 0 : r * coll->piece),
                   (const char *)work->call.in + p.begin, (size_t)p.bytes);
        }
        if (dpari_gives_one(&work->call)) {
            return;
        }
    }
}

/* Takes this rank's pieces of the chunk. */
static void dpari_chunk_take(dpari_group *group, const dpar_work *work, const dpari_coll *coll)
{
    const dpar_call *call = &work->call;
    for (int32_t i = 1; i < group->comm.size; i++) {
        const int32_t r = (group->comm.rank + i) % group->comm.size;
        const dpari_piece p =
            dpari_chunk(dpari_piece_from(group, call, r), coll->piece, coll->mid_step);
        const char *from = dpari_buffer(group, coll, r, coll->mid_step) +
                           (dpari_gives_one(call) ? 0 : group->comm.rank * coll->piece);
        if (p.bytes > 0) {
            dpari_kern_copy((char *)call->out + p.begin, from, p.bytes,
                            coll->steps * coll->piece >= DPARI_STREAM_COPY_FROM &&
                                dpari_streams(group, DPARI_STREAM_FROM));
        }
    }
}

/* Reduces this rank's part of the chunk into its own output and, for the others to take, into its
 * buffer. */
static void dpari_chunk_reduce(dpari_group *group, const dpar_work *work, const dpari_coll *coll)
{
    const dpar_call *call = &work->call;
    const int32_t me = group->comm.rank;
    const dpari_piece part = dpari_part(group, call, me);
    const dpari_piece p = dpari_chunk(part, coll->piece, coll->mid_step);
    int32_t outs = 0;
    for (int32_t r = 0; r < group->comm.size; r++) {
        group->in[r] = r == me ? (const char *)call->in + p.begin
                               : dpari_buffer(group, coll, r, coll->mid_step) + me * coll->piece;
    }
    if (call->kind != DPAR_CALL_REDUCE_SCATTER) {
        group->out[outs++] = dpari_buffer(group, coll, me, coll->mid_step) + me * coll->piece;
    }
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        group->out[outs++] = (char *)call->out + (p.begin - part.begin);
    } else if (call->kind == DPAR_CALL_ALL_REDUCE || call->root == me) {
        group->out[outs++] = (char *)call->out + p.begin;
    }
    if (p.bytes > 0) {
        dpari_reduce_range(group, call, outs, p.bytes, 0);
    }
}

/* Takes the parts of the chunk that the other ranks have reduced. */
static void dpari_chunk_results(dpari_group *group, const dpar_work *work, const dpari_coll *coll)
{
    const dpar_call *call = &work->call;
    if (call->kind == DPAR_CALL_REDUCE && call->root != group->comm.rank) {
        return;
    }
    for (int32_t i = 1; i < group->comm.size; i++) {
        const int32_t r = (group->comm.rank + i) % group->comm.size;
        const dpari_piece p = dpari_chunk(dpari_part(group, call, r), coll->piece, coll->out_step);
        if (p.bytes > 0) {
            dpari_kern_fetch((char *)call->out + p.begin,
                             dpari_buffer(group, coll, r, coll->out_step) + r * coll->piece,
                             p.bytes);
        }
    }
}

/* Advances the chunks. Chunk j is put in while j - 1 is reduced or taken and the results of j - 2
 * are taken. */
static dpar_status dpari_chunks(dpari_group *group, dpar_work *work)
{
    dpari_coll *coll = dpari_coll_of(work);
    dpari_member *mine = group->member[group->comm.rank];
    const int32_t kind = work->call.kind;
    const int results = kind == DPAR_CALL_ALL_REDUCE || kind == DPAR_CALL_REDUCE;
    /* the word that a rank publishes last for a chunk */
    const int32_t last = results ? DPARI_WORD_C : DPARI_WORD_B;
    while (coll->in_step < coll->steps || coll->mid_step < coll->steps ||
           (last == DPARI_WORD_C && coll->out_step < coll->steps)) {
        if (coll->in_step < coll->steps && coll->in_step <= coll->mid_step + 1 &&
            (last == DPARI_WORD_B || coll->in_step <= coll->out_step + 2)) {
            if (coll->in_step >= coll->buffers &&
                !dpari_reached(group, work, last,
                               dpari_step_word(work, coll->in_step - coll->buffers + 1))) {
                return DPAR_MORE;
            }
            dpari_chunk_in(group, work, coll);
            dpari_publish(group->world, &mine->a.word, dpari_step_word(work, ++coll->in_step));
        } else if (coll->mid_step < coll->in_step &&
                   (last == DPARI_WORD_B || coll->mid_step <= coll->out_step + 1)) {
            if (!dpari_reached(group, work, DPARI_WORD_A,
                               dpari_step_word(work, coll->mid_step + 1))) {
                return DPAR_MORE;
            }
            if (dpari_is_reduction(&work->call)) {
                dpari_chunk_reduce(group, work, coll);
            } else {
                dpari_chunk_take(group, work, coll);
            }
            dpari_publish(group->world, &mine->b.word, dpari_step_word(work, ++coll->mid_step));
        } else {
            if (!dpari_reached(group, work, DPARI_WORD_B,
                               dpari_step_word(work, coll->out_step + 1))) {
                return DPAR_MORE;
            }
            dpari_chunk_results(group, work, coll);
            dpari_publish(group->world, &mine->c.word, dpari_step_word(work, ++coll->out_step));
        }
    }
    if (!dpari_is_reduction(&work->call)) {
        dpari_take_own(group, &work->call, 0);
    }
    coll->target = (int64_t)dpari_step_word(work, coll->steps);
    work->phase = DPARI_FINAL | last << 8;
    return DPAR_MORE;
}

/* ---- choosing the method --------------------------------------------------------------------- */

/* Publishes that this rank is done with the memory of the others. The collective ends once all are.
 */
static void dpari_done_with_others(dpari_group *group, dpar_work *work, int32_t phase, int64_t step)
{
    dpari_coll *coll = dpari_coll_of(work);
    work->phase = phase | DPARI_WORD_A << 8;
    coll->target = (int64_t)dpari_step_word(work, step);
    dpari_publish(group->world, &group->member[group->comm.rank]->a.word, (uint64_t)coll->target);
}

/* Begins to time the method of a collective, on the rank that chose it. dpari_time_end records the
 * time once all ranks are done. */
static void dpari_time_begin(dpari_group *group, dpar_work *work)
{
    int64_t bytes;
    if (dpari_pace_of_call(group, &work->call, &bytes)) {
        group->timed = work->sequence + 1;
        group->timed_way =
            dpari_coll_of(work)->offer.flags & DPARI_KERNEL ? DPARI_BY_KERNEL : DPARI_BY_RING;
        group->timed_from = dpari_os_now();
    }
}

/* Records how long the collective took with its method. */
static void dpari_time_end(dpari_group *group, const dpar_work *work)
{
    int64_t bytes;
    dpari_pace *pace = dpari_pace_of_call(group, &work->call, &bytes);
    group->timed = 0;
    if (pace) {
        dpari_pace_tell(pace, group->timed_way, bytes, dpari_os_now() - group->timed_from);
    }
}

/* Chooses the method of a reduction and takes its first step. Returns DPAR_OK if the reduction is
 * done then, or DPAR_MORE if it continues at work->phase. */
static dpar_status dpari_choose_reduction(dpari_group *group, dpar_work *work)
{
    const dpari_offers all = dpari_survey(group, work);
    dpar_status status = DPAR_OK;
    int64_t largest = 0;
    if (all.readable && all.writable &&
        (!all.boxed || dpari_gives(group, &work->call) >= DPARI_DIRECT_FROM ||
         work->call.kind == DPAR_CALL_REDUCE_SCATTER)) {
        status = dpari_push(group, work);
        if (status != DPAR_OK || (all.boxed && work->call.kind == DPAR_CALL_REDUCE_SCATTER)) {
            return status;
        }
        dpari_done_with_others(group, work, DPARI_FINAL, 1);
        return DPAR_MORE;
    }
    if (all.readable && !all.in_place) {
        status = dpari_pull_reduce(group, work);
        if (status != DPAR_OK || all.boxed) {
            return status;
        }
        dpari_done_with_others(group, work, DPARI_FINAL, 1);
        return DPAR_MORE;
    }
    for (int32_t q = 0; q < group->comm.size; q++) {
        int64_t bytes = dpari_part(group, &work->call, q).bytes;
        largest = bytes > largest ? bytes : largest;
    }
    if (all.cma) {
        dpari_time_begin(group, work);
    }
    if (all.cma && all.kernel) {
        status = dpari_cma_reduce(group, work);
        dpari_done_with_others(
            group, work, work->call.kind == DPAR_CALL_ALL_REDUCE ? DPARI_CMA_RESULTS : DPARI_FINAL,
            1);
        return status != DPAR_OK ? status : DPAR_MORE;
    }
    dpari_chunks_begin(group, work, largest);
    return DPAR_MORE;
}

/* Does the same for an operation that does not reduce. */
static dpar_status dpari_choose_move(dpari_group *group, dpar_work *work)
{
    const dpari_offers all = dpari_survey(group, work);
    dpar_status status = dpari_sizes_check(group, work);
    if (status != DPAR_OK) {
        return status;
    }
    if (all.cma && !all.readable) {
        dpari_time_begin(group, work);
    }
    if (all.readable ||
        (all.cma && !all.in_place && (work->call.kind != DPAR_CALL_BROADCAST || all.kernel))) {
        status = dpari_pull(group, work, all.largest);
        if (status != DPAR_OK || (all.boxed && !work->call.variable_counts)) {
            return status;
        }
        dpari_done_with_others(group, work, DPARI_FINAL, 1);
        return DPAR_MORE;
    }
    dpari_chunks_begin(group, work, all.largest);
    return DPAR_MORE;
}

/* Called when all ranks have entered. A leader publishes that to the other ranks (arrival.h), and
 * the collective begins. */
static dpar_status dpari_coll_choose(dpari_group *group, dpar_work *work)
{
    dpari_coll *coll = dpari_coll_of(work);
    const int result = coll->inline_bytes > 0 && work->call.kind == DPAR_CALL_ALL_REDUCE;
    if (!result) {
        dpari_gate_tell(group, work, &coll->at, DPARI_WORD_ENTRY, coll->mine, NULL, 0);
    }
    if (coll->inline_bytes >= 0) {
        dpari_inline_take(group, work);
        if (result) {
            dpari_gate_tell(group, work, &coll->at, DPARI_WORD_ENTRY, coll->mine, work->call.out,
                            coll->inline_bytes);
        }
        return DPAR_OK;
    }
    memset(&coll->at, 0, sizeof coll->at);
    return dpari_is_reduction(&work->call) ? dpari_choose_reduction(group, work)
                                           : dpari_choose_move(group, work);
}

DPARI_INTERNAL dpar_status dpari_coll_advance(dpari_group *group, dpar_work *work)
{
    dpar_status status = DPAR_MORE;
    if ((work->phase & 0xff) == DPARI_ENTER) {
        dpari_enter(group, work);
    }
    if ((work->phase & 0xff) == DPARI_ENTRIES) {
        status = dpari_entries(group, work);
        if (status == DPAR_OK) {
            status = dpari_coll_choose(group, work);
        }
    }
    if (status == DPAR_MORE && (work->phase & 0xff) == DPARI_CHUNKS) {
        status = dpari_chunks(group, work);
    }
    if (status == DPAR_MORE && (work->phase & 0xff) == DPARI_CMA_RESULTS &&
        dpari_reached(group, work, DPARI_WORD_A, dpari_step_word(work, 1))) {
        status = dpari_cma_results(group, work);
        if (status == DPAR_OK) {
            dpari_done_with_others(group, work, DPARI_FINAL, 2);
            status = DPAR_MORE;
        }
    }
    if (status == DPAR_MORE && (work->phase & 0xff) == DPARI_FINAL) {
        status = dpari_last_words(group, work) ? DPAR_OK : DPAR_MORE;
    }
    if (status == DPAR_OK && group->timed == work->sequence + 1) {
        dpari_time_end(group, work);
    }
    return status;
}
