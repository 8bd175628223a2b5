/* SPDX-License-Identifier: MIT-0 */
/* Exchanges messages with neighbours if only the sender of each one knows its length.
 *
 * ../exchange runs the exchange. For each neighbour a rank has two pieces of memory, which
 * exchanges use in turn, and for each piece an entry that says where it is and how many bytes it
 * holds. Neighbours that share memory read the entry, and then the bytes in place. A rank packs
 * into a piece again after one exchange in between. That exchange has ended only when all
 * neighbours were ready for it, so that they no longer read the old contents of the piece. For the
 * same reason a piece may be replaced by a larger one without waiting.
 *
 * A piece begins with a head of 64 bytes, which holds the number of bytes that follow. A neighbour
 * that does not share memory gets a message with the head and the first bytes. Sender and receiver
 * both know the length of this message, because both know how many bytes were sent in the exchange
 * before. The head shows the receiver whether more bytes follow in a second message, which is the
 * second step of the exchange. */
#include "neighbours.h"

#include "../base/base_private.h"
#include "../comm/agree.h"
#include "../comm/group.h"
#include "../comm/heap.h"
#include "../comm/object_memory.h"
#include "../comm/shm.h"
#include "../exchange/exchange.h"
#include "../host/elements.h"
#include "neighbours_private.h"

enum {
    DPARI_NB_HEAD = DPARI_LINE, /* bytes of a piece before the data */
    DPARI_NB_FIRST = 448,       /* bytes of data for which every first message has space */
    DPARI_NB_MOST = 4096        /* the most neighbours of a rank */
};
#define DPARI_NB_BYTES (INT64_C(1) << 40) /* the most bytes to a neighbour */

/* Says where a piece is, for a neighbour that shares memory. Each entry fills a cache line. */
typedef struct dpari_nb_entry {
    uint64_t ref;
    int64_t bytes;
    char padding[DPARI_LINE - 16];
} dpari_nb_entry;

typedef struct dpari_nb_piece {
    unsigned char *at;
    int64_t bytes; /* of the memory, with the head */
} dpari_nb_piece;

/* What is known about a neighbour, in addition to its dpari_exchange_peer. */
typedef struct dpari_nb_peer {
    dpari_nb_piece out[2];
    dpari_nb_piece in;                   /* where its messages arrive */
    int64_t last_out[DPARI_NB_CHANNELS]; /* bytes sent to it by the last exchange of each channel */
    int64_t last_in[DPARI_NB_CHANNELS];  /* and bytes received from it */
    int64_t first_in;                    /* length of its first message in this exchange */
    int64_t first_out;                   /* and of the one to it */
    const dpari_nb_entry *entry;         /* its entries for this rank; NULL without shared memory */
    uint64_t ref[2];                     /* the pieces that were mapped last */
    const unsigned char *mapped[2];
} dpari_nb_peer;

typedef struct dpari_neighbours {
    dpar_neighbours head; /* the public struct; it must be first */
    dpari_exchange x;
    dpari_nb_peer *peer;
    dpari_nb_entry *entry; /* [count][2], registered memory */
    int32_t *rank;
    int32_t *number; /* [count] the number of this rank among the neighbours of each neighbour */
    const void **in;
    int64_t *in_bytes;
    int64_t *record; /* [4 * count] references that are sent, then those that are received */
    int32_t channel; /* of the exchange in progress; -1 if the lengths are known */
    void *memory;    /* registered memory of the lines, the tables and the entries */
} dpari_neighbours;

static dpari_neighbours *dpari_nb_of(dpar_neighbours *neighbours)
{
    return (dpari_neighbours *)(void *)neighbours;
}

/* Returns the communicator whose memory is used. */
static dpar_comm *dpari_nb_memory(const dpari_neighbours *plan)
{
    return plan->x.world ? plan->x.node : plan->head.comm;
}

/* Returns the length of a first message if the last exchange has sent `last` bytes of data. */
static int64_t dpari_nb_agreed(int64_t last)
{
    return DPARI_NB_HEAD + dpari_exchange_lines(last + last / 8 + DPARI_NB_FIRST);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Replaces a piece by one of at least `bytes` bytes, and copies the first `keep` bytes to it. */
static DPARI_COLD dpar_status dpari_nb_grow(dpari_neighbours *plan, dpari_nb_piece *piece,
                                            int64_t bytes, int64_t keep)
{
    dpar_comm *of = dpari_nb_memory(plan);
    const int64_t all = dpari_exchange_lines(bytes + bytes / 2);
    void *memory = NULL;
    const dpar_status status = dpar_comm_alloc(of, all, &memory);
    if (status != DPAR_OK) {
        if (of != plan->head.comm) {
            return dpari_repeat(status, &plan->head.comm->why, of->why.text);
        }
        return status;
    }
    if (keep > 0) {
        dpari_elements_bits(memory, piece->at, (size_t)keep);
    }
    dpar_comm_release(of, piece->at);
    piece->at = (unsigned char *)memory;
    piece->bytes = all;
    return DPAR_OK;
}

/* Returns the number of the piece that the next exchange sends. */
static int dpari_nb_turn(const dpari_neighbours *plan)
{
    return (int)((plan->x.count + 1) & 1);
}

/* Provides a piece for `bytes` bytes to neighbour k, which is also long enough for any first
 * message to it. */
static dpar_status dpari_nb_reserve(dpari_neighbours *plan, int32_t k, int64_t bytes)
{
    dpari_nb_peer *peer = &plan->peer[k];
    dpari_nb_piece *piece = &peer->out[dpari_nb_turn(plan)];
    int64_t need = DPARI_NB_HEAD + bytes;
    int32_t c;
    for (c = 0; c < DPARI_NB_CHANNELS && dpari_exchange_sends(&plan->x, k); c++) {
        need = dpari_most(need, dpari_nb_agreed(peer->last_out[c]));
    }
    if (piece->at && piece->bytes >= need) {
        return DPAR_OK;
    }
    return dpari_nb_grow(plan, piece, need, 0);
}

DPAR_API void *dpar_neighbours_buffer(dpar_neighbours *neighbours, int32_t k, int64_t bytes)
{
    dpari_neighbours *plan = dpari_nb_of(neighbours);
    if (!neighbours) {
        return NULL;
    }
    if (k < 0 || k >= neighbours->count || bytes < 0 || bytes > DPARI_NB_BYTES) {
        (void)dpari_comm_wrong(neighbours->comm,
                               "dpar_neighbours_buffer: neighbour %d is not 0 to %d, or %ld bytes "
                               "are not 0 to 2^40",
                               k, neighbours->count - 1, bytes);
        return NULL;
    }
    if (dpari_nb_reserve(plan, k, bytes) != DPAR_OK) {
        return NULL;
    }
    return plan->peer[k].out[dpari_nb_turn(plan)].at + DPARI_NB_HEAD;
}

/* ---- the functions that ../exchange calls ---------------------------------------------------- */

static unsigned char *dpari_nb_message(void *of, int32_t s, int32_t i, int sends)
{
    const dpari_neighbours *plan = (const dpari_neighbours *)of;
    const dpari_nb_peer *peer = &plan->peer[i];
    if (sends) {
        return peer->out[plan->x.count & 1].at + (s > 0 ? peer->first_out : 0);
    }
    return peer->in.at + (s > 0 ? peer->first_in : 0);
}

/* Does nothing: what a rank sends to itself is taken as if it came from a neighbour. */
static void dpari_nb_take_own(void *of, int32_t s)
{
    (void)of;
    (void)s;
}

/* Finds what a neighbour that shares memory has packed for this rank. */
static dpar_status dpari_nb_take_shared(dpari_neighbours *plan, int32_t i)
{
    dpari_nb_peer *peer = &plan->peer[i];
    const int turn = (int)(plan->x.count & 1);
    const dpari_nb_entry *entry = &peer->entry[turn];
    if (entry->ref != peer->ref[turn] || !peer->mapped[turn]) {
        peer->mapped[turn] = (const unsigned char *)dpari_at(plan->x.world, entry->ref);
        peer->ref[turn] = entry->ref;
        if (!peer->mapped[turn]) {
            return dpari_exchange_unmapped(&plan->x, entry->ref);
        }
    }
    plan->in[i] = peer->mapped[turn] + DPARI_NB_HEAD;
    plan->in_bytes[i] = entry->bytes;
    return DPAR_OK;
}

/* Reads the head of a message that has arrived. If more bytes follow, makes the second step receive
 * them. */
static dpar_status dpari_nb_take_message(dpari_neighbours *plan, int32_t i)
{
    dpari_nb_peer *peer = &plan->peer[i];
    dpari_exchange_flow *rest = &plan->x.flow[i * plan->x.steps + 1];
    int64_t bytes;
    dpari_elements_bits(&bytes, peer->in.at, 8);
    if (bytes < 0 || bytes > DPARI_NB_BYTES) {
        return dpari_comm_wrong_all(plan->head.comm, DPAR_E_MISMATCH,
                                    "neighbours: the message from rank %d does not begin with its "
                                    "length; another operation used tag %d",
                                    plan->x.peer[i].rank, plan->x.tag);
    }
    if (plan->channel >= 0) {
        peer->last_in[plan->channel] = bytes;
    } else if (DPARI_NB_HEAD + bytes != peer->first_in) {
        return dpari_comm_wrong_all(plan->head.comm, DPAR_E_MISMATCH,
                                    "neighbours: rank %d sends %ld bytes, but rank %d expects %ld",
                                    plan->x.peer[i].rank, bytes, plan->head.comm->rank,
                                    peer->first_in - DPARI_NB_HEAD);
    }
    if (DPARI_NB_HEAD + bytes > peer->first_in) {
        if (DPARI_NB_HEAD + bytes > peer->in.bytes &&
            dpari_nb_grow(plan, &peer->in, DPARI_NB_HEAD + bytes, peer->first_in) != DPAR_OK) {
            return dpari_comm_wrong_all(plan->head.comm, DPAR_E_MEMORY,
                                        "neighbours: no memory for %ld bytes from rank %d", bytes,
                                        plan->x.peer[i].rank);
        }
        rest->in_bytes[0] = DPARI_NB_HEAD + bytes - peer->first_in;
        rest->takes[0] = 1;
        plan->x.step[1].alone = 0;
    }
    plan->in[i] = peer->in.at + DPARI_NB_HEAD;
    plan->in_bytes[i] = bytes;
    return DPAR_OK;
}

static dpar_status dpari_nb_take(void *of, int32_t s, int32_t i)
{
    dpari_neighbours *plan = (dpari_neighbours *)of;
    if (s > 0) {
        return DPAR_OK;
    }
    if (i == plan->x.self) {
        plan->in[i] = plan->peer[i].out[plan->x.count & 1].at + DPARI_NB_HEAD;
        plan->in_bytes[i] = plan->entry[2 * i + (plan->x.count & 1)].bytes;
        return DPAR_OK;
    }
    return dpari_exchange_sends(&plan->x, i) ? dpari_nb_take_message(plan, i)
                                             : dpari_nb_take_shared(plan, i);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Prepares the messages to and from neighbour i. */
static dpar_status dpari_nb_prepare_messages(dpari_neighbours *plan, int32_t i, int64_t bytes,
                                             const dpari_nb_kind *kind)
{
    dpari_nb_peer *peer = &plan->peer[i];
    dpari_nb_piece *piece = &peer->out[dpari_nb_turn(plan)];
    dpari_exchange_flow *first = &plan->x.flow[i * plan->x.steps], *rest = first + 1;
    if (kind->in_bytes) {
        peer->first_out = DPARI_NB_HEAD + bytes;
        peer->first_in = DPARI_NB_HEAD + kind->in_bytes[i];
    } else {
        peer->first_out = dpari_nb_agreed(peer->last_out[kind->channel]);
        peer->first_in = dpari_nb_agreed(peer->last_in[kind->channel]);
        peer->last_out[kind->channel] = bytes;
    }
    dpari_elements_bits(piece->at, &bytes, 8);
    first->out_bytes[0] = peer->first_out;
    first->in_bytes[0] = peer->first_in;
    rest->out_bytes[0] = dpari_most(DPARI_NB_HEAD + bytes - peer->first_out, 0);
    rest->in_bytes[0] = 0;
    rest->takes[0] = 0;
    if (rest->out_bytes[0] > 0) {
        plan->x.step[1].alone = 0;
    }
    if (peer->first_in > peer->in.bytes) {
        return dpari_nb_grow(plan, &peer->in, peer->first_in, 0);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_nb_break(dpar_neighbours *neighbours,
                                                     dpar_status status, const char *text)
{
    const dpari_neighbours *plan = dpari_nb_of(neighbours);
    if (plan->x.node != neighbours->comm) {
        (void)dpari_comm_wrong_all(plan->x.node, status, "%s", text);
    }
    return dpari_comm_wrong_all(neighbours->comm, status, "%s", text);
}

DPARI_INTERNAL dpar_status dpari_nb_is_over(const dpar_neighbours *neighbours)
{
    return dpari_exchange_is_over(&((const dpari_neighbours *)(const void *)neighbours)->x, "");
}

DPARI_INTERNAL dpar_status dpari_nb_begin(dpar_neighbours *neighbours, const int64_t *out_bytes,
                                          const dpari_nb_kind *kind)
{
    dpari_neighbours *plan = dpari_nb_of(neighbours);
    const int turn = dpari_nb_turn(plan);
    dpar_status status = dpari_exchange_may_begin(&plan->x);
    int32_t i;
    if (status != DPAR_OK) {
        return status;
    }
    plan->channel = kind->in_bytes ? -1 : kind->channel;
    plan->x.step[1].alone = 1;
    for (i = 0; i < neighbours->count; i++) {
        dpari_nb_entry *entry = &plan->entry[2 * i + turn];
        status = dpari_nb_reserve(plan, i, out_bytes[i]);
        if (status == DPAR_OK && dpari_exchange_sends(&plan->x, i)) {
            status = dpari_nb_prepare_messages(plan, i, out_bytes[i], kind);
        }
        if (status != DPAR_OK) {
            return dpari_comm_wrong_all(neighbours->comm, status,
                                        "neighbours: no memory for %ld bytes to rank %d",
                                        out_bytes[i], neighbours->rank[i]);
        }
        entry->bytes = out_bytes[i];
        if (plan->x.peer[i].line) {
            entry->ref = dpari_ref(plan->x.world, plan->peer[i].out[turn].at, 1);
        }
    }
    return dpari_exchange_begin(&plan->x, DPAR_COPY, kind->hash);
}

DPARI_INTERNAL dpar_status dpari_nb_advance(dpar_neighbours *neighbours, int wait)
{
    return dpari_exchange_advance(&dpari_nb_of(neighbours)->x, wait);
}

DPARI_INTERNAL dpar_status dpari_nb_exchange(dpar_neighbours *neighbours, const int64_t *out_bytes,
                                             const dpari_nb_kind *kind)
{
    const dpar_status status = dpari_nb_begin(neighbours, out_bytes, kind);
    return status == DPAR_OK ? dpari_nb_advance(neighbours, 1) : status;
}

/* Checks `bytes`, and copies the bytes for neighbour k to its piece unless they are there. A wrong
 * argument breaks the communicator, because the others may already wait for these bytes. */
static dpar_status dpari_nb_pack(dpari_neighbours *plan, int32_t k, const void *out, int64_t bytes)
{
    dpari_nb_piece *piece = &plan->peer[k].out[dpari_nb_turn(plan)];
    dpar_comm *comm = plan->head.comm;
    if (bytes < 0 || bytes > DPARI_NB_BYTES) {
        return dpari_comm_wrong_all(comm, DPAR_E_ARG,
                                    "dpar_neighbours_exchange: %ld bytes from rank %d to its "
                                    "neighbour %d, but 0 to 2^40 are allowed",
                                    bytes, comm->rank, k);
    }
    if (!out || (piece->at && out == piece->at + DPARI_NB_HEAD)) {
        if (bytes > 0 && DPARI_NB_HEAD + bytes > piece->bytes) {
            return dpari_comm_wrong_all(comm, DPAR_E_ARG,
                                        "dpar_neighbours_exchange: %ld bytes from rank %d to its "
                                        "neighbour %d, but dpar_neighbours_buffer has returned "
                                        "memory for %ld",
                                        bytes, comm->rank, k,
                                        dpari_most(piece->bytes - DPARI_NB_HEAD, 0));
        }
        return DPAR_OK;
    }
    if (dpari_nb_reserve(plan, k, bytes) != DPAR_OK) {
        return dpari_comm_wrong_all(comm, DPAR_E_MEMORY,
                                    "neighbours: no memory for %ld bytes to rank %d", bytes,
                                    plan->rank[k]);
    }
    dpari_elements_bits(piece->at + DPARI_NB_HEAD, out, (size_t)bytes);
    return DPAR_OK;
}

DPAR_API dpar_status dpar_neighbours_exchange(dpar_neighbours *neighbours, const void *const *out,
                                              const int64_t *out_bytes)
{
    dpari_nb_kind kind = {0, 0, NULL};
    int32_t k;
    if (!neighbours) {
        return DPAR_E_ARG;
    }
    if (neighbours->count > 0 && !out_bytes) {
        return dpari_comm_wrong_all(neighbours->comm, DPAR_E_ARG,
                                    "dpar_neighbours_exchange: out_bytes is NULL on rank %d",
                                    neighbours->comm->rank);
    }
    for (k = 0; k < neighbours->count; k++) {
        const dpar_status status =
            dpari_nb_pack(dpari_nb_of(neighbours), k, out ? out[k] : NULL, out_bytes[k]);
        if (status != DPAR_OK) {
            return dpari_nb_break(neighbours, status, neighbours->comm->why.text);
        }
    }
    return dpari_nb_exchange(neighbours, out_bytes, &kind);
}

/* ---- making and freeing ---------------------------------------------------------------------- */

/* Checks the description of this rank. */
static dpar_status dpari_nb_check(const dpar_comm *comm, const dpar_neighbours_desc *desc,
                                  dpar_why *why)
{
    int32_t i, k;
    if (!desc || desc->count < 0 || desc->count > DPARI_NB_MOST ||
        (desc->count > 0 && !desc->rank)) {
        return dpari_wrong(why,
                           "dpar_neighbours_make: desc or desc.rank is NULL, or the number of "
                           "neighbours, %d, is not 0 to %d",
                           desc ? desc->count : 0, (int32_t)DPARI_NB_MOST);
    }
    if (desc->tag < 0) {
        return dpari_wrong(why, "dpar_neighbours_make: tag %d is negative", desc->tag);
    }
    for (i = 0; i < desc->count; i++) {
        if (desc->rank[i] < 0 || desc->rank[i] >= comm->size) {
            return dpari_wrong(why,
                               "dpar_neighbours_make: neighbour %d is rank %d, but there are %d "
                               "ranks",
                               i, desc->rank[i], comm->size);
        }
        for (k = 0; k < i; k++) {
            if (desc->rank[k] == desc->rank[i]) {
                return dpari_wrong(why, "dpar_neighbours_make: rank %d is neighbour %d and %d",
                                   desc->rank[i], k, i);
            }
        }
    }
    if (comm->mem && !comm->node && !dpari_world_of(comm)) {
        return dpari_wrong(why, "dpar_neighbours_make: the bytes are in the host's memory, but the "
                                "communicator sends a device's");
    }
    return DPAR_OK;
}

static DPARI_COLD void dpari_nb_state(dpari_facts *facts, const void *given)
{
    facts->of = NULL;
    dpari_fact(facts, "tag", 0, ((const dpar_neighbours_desc *)given)->tag);
}

/* Allocates the memory of a plan. The first pass counts bytes, the second sets pointers. */
static dpar_status dpari_nb_alloc(dpari_neighbours *plan, const dpar_neighbours_desc *desc,
                                  dpar_why *why)
{
    const int32_t n = desc->count;
    dpar_comm *of = dpari_nb_memory(plan);
    dpari_room room = dpari_room_of(NULL);
    int32_t pass;
    for (pass = 0; pass < 2; pass++) {
        room.used = 0;
        plan->x.line = (dpari_exchange_line *)dpari_room_take(&room, 1, sizeof *plan->x.line);
        dpari_exchange_room(&plan->x, &room, n, 2, plan->x.world ? plan->x.node->size : 0);
        plan->entry = (dpari_nb_entry *)dpari_room_take(&room, 2 * n, sizeof *plan->entry);
        plan->peer = (dpari_nb_peer *)dpari_room_take(&room, n, sizeof *plan->peer);
        plan->record = (int64_t *)dpari_room_take(&room, 4 * n, sizeof *plan->record);
        plan->in = (const void **)dpari_room_take(&room, n, sizeof *plan->in);
        plan->in_bytes = (int64_t *)dpari_room_take(&room, n, sizeof *plan->in_bytes);
        plan->rank = (int32_t *)dpari_room_take(&room, n, sizeof *plan->rank);
        plan->number = (int32_t *)dpari_room_take(&room, n, sizeof *plan->number);
        if (pass == 0) {
            const dpar_status status = dpar_comm_alloc(of, room.used, &plan->memory);
            if (status != DPAR_OK) {
                return dpari_repeat(status, why, of->why.text);
            }
            room.at = (unsigned char *)plan->memory;
        }
    }
    return DPAR_OK;
}

/* Sets the fields that do not depend on other ranks. */
static void dpari_nb_set(dpari_neighbours *plan, const dpar_neighbours_desc *desc)
{
    int32_t i;
    for (i = 0; i < desc->count; i++) {
        const int self = desc->rank[i] == plan->head.comm->rank;
        plan->rank[i] = desc->rank[i];
        plan->x.peer[i].rank = desc->rank[i];
        plan->x.peer[i].world = self ? 0 : -1; /* a rank sends no messages to itself */
        plan->x.flow[2 * i].takes[DPARI_EXCHANGE_FORWARD] = 1;
        if (self) {
            plan->x.self = i;
        }
    }
    plan->head.count = desc->count;
    plan->head.rank = plan->rank;
    plan->head.in = plan->in;
    plan->head.in_bytes = plan->in_bytes;
    plan->x.plan = plan;
    plan->x.message = dpari_nb_message;
    plan->x.take = dpari_nb_take;
    plan->x.take_own = dpari_nb_take_own;
    plan->x.name = "neighbours";
    plan->x.end = "dpar_particles_end"; /* neighbours alone have no exchange in two parts */
    plan->x.item = "list";
    plan->x.items = desc->count;
    plan->x.tag = desc->tag;
    plan->x.peers = desc->count;
    plan->x.steps = 2;
    plan->x.step[0].modes = plan->x.step[1].modes = 1 << DPARI_EXCHANGE_FORWARD;
    plan->x.step[1].alone = 1;
}

/* Finds out which number this rank has among the neighbours of each of its neighbours. Fails if a
 * rank lists another one that does not list it. Collective. */
static dpar_status dpari_nb_numbers(dpari_neighbours *plan, dpar_why *why)
{
    dpar_comm *comm = plan->head.comm;
    void *memory = dpari_object_alloc(comm, 8 * (int64_t)comm->size);
    int32_t *mine = (int32_t *)memory, *theirs;
    dpar_status status = DPAR_OK;
    int32_t i;
    if (!memory) {
        status = dpari_say(DPAR_E_MEMORY, why, "neighbours: no memory for %d ranks", comm->size);
    }
    status = dpari_agree(comm, status, why);
    if (status != DPAR_OK) {
        dpari_object_release(memory);
        return status;
    }
    theirs = mine + comm->size;
    for (i = 0; i < plan->head.count; i++) {
        mine[plan->rank[i]] = i + 1;
    }
    status = dpar_all_to_all(comm, mine, theirs, 1, DPAR_I32, NULL);
    if (status != DPAR_OK) {
        (void)dpari_repeat(status, why, comm->why.text);
    }
    for (i = 0; i < comm->size && status == DPAR_OK; i++) {
        if ((mine[i] > 0) != (theirs[i] > 0)) {
            status = dpari_wrong(why,
                                 "dpar_neighbours_make: rank %d lists rank %d, which does not list "
                                 "it",
                                 mine[i] > 0 ? comm->rank : i, mine[i] > 0 ? i : comm->rank);
        }
    }
    for (i = 0; i < plan->head.count && status == DPAR_OK; i++) {
        plan->number[i] = theirs[plan->rank[i]] - 1;
    }
    dpari_object_release(memory);
    return dpari_agree(comm, status, why);
}

/* Exchanges references to the memory of ranks that share it. Collective. */
static dpar_status dpari_nb_connect(dpari_neighbours *plan, dpar_why *why)
{
    dpar_comm *comm = plan->head.comm;
    const int32_t n = plan->head.count;
    int64_t *mine = plan->record, *theirs = plan->record + 2 * n;
    dpar_status status = dpari_exchange_find_node(&plan->x);
    int32_t i;
    for (i = 0; i < n && status == DPAR_OK; i++) {
        if (plan->x.world && plan->x.peer[i].world >= 0) {
            mine[2 * i] = (int64_t)dpari_ref(plan->x.world, plan->x.line, 1);
            mine[2 * i + 1] = (int64_t)dpari_ref(plan->x.world, plan->entry, 1);
        }
    }
    if (status == DPAR_OK) {
        status = dpari_exchange_records(&plan->x, mine, theirs, 2);
    }
    for (i = 0; i < n && status == DPAR_OK; i++) {
        dpari_exchange_peer *peer = &plan->x.peer[i];
        if (i == plan->x.self) {
            continue;
        }
        if (peer->world < 0 || theirs[2 * i] == 0 || mine[2 * i] == 0) {
            peer->world = -1;
            continue;
        }
        plan->x.shared++;
        peer->line = (dpari_exchange_line *)dpari_at(plan->x.world, (uint64_t)theirs[2 * i]);
        plan->peer[i].entry =
            (const dpari_nb_entry *)dpari_at(plan->x.world, (uint64_t)theirs[2 * i + 1]);
        if (!peer->line || !plan->peer[i].entry) {
            status = dpari_exchange_unmapped(&plan->x, (uint64_t)theirs[2 * i]);
            break;
        }
        plan->peer[i].entry += INT64_C(2) * plan->number[i];
    }
    plan->x.step[0].meets = plan->x.shared > 0;
    if (status != DPAR_OK) {
        (void)dpari_repeat(status, why, comm->why.text);
    }
    return dpari_agree(comm, status, why);
}

/* Releases the memory of a plan, but not the plan. */
static DPARI_COLD void dpari_nb_release(dpari_neighbours *plan)
{
    dpar_comm *of = dpari_nb_memory(plan);
    int32_t i;
    for (i = 0; i < plan->head.count; i++) {
        dpar_comm_release(of, plan->peer[i].out[0].at);
        dpar_comm_release(of, plan->peer[i].out[1].at);
        dpar_comm_release(of, plan->peer[i].in.at);
    }
    dpar_comm_release(of, plan->memory);
}

DPAR_API DPARI_COLD dpar_status dpar_neighbours_make(dpar_comm *comm,
                                                     const dpar_neighbours_desc *desc,
                                                     dpar_neighbours **neighbours, dpar_why *why)
{
    dpari_neighbours *plan = NULL;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_neighbours_make: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    status = neighbours ? dpari_nb_check(comm, desc, why)
                        : dpari_wrong(why, "dpar_neighbours_make: neighbours is NULL");
    if (status == DPAR_OK) {
        plan = (dpari_neighbours *)dpari_object_alloc(comm, (int64_t)sizeof *plan);
        if (plan) {
            plan->head.comm = plan->x.comm = comm;
            plan->x.node = comm->node ? comm->node : comm;
            plan->x.world = dpari_world_of(plan->x.node);
            plan->x.self = -1;
            status = dpari_nb_alloc(plan, desc, why);
        } else {
            status = dpari_say(DPAR_E_MEMORY, why, "dpar_neighbours_make: no memory");
        }
    }
    status = dpari_agree_on(comm, status, "neighbours", dpari_nb_state, desc, why);
    if (status == DPAR_OK) {
        dpari_nb_set(plan, desc);
        status = dpari_nb_numbers(plan, why);
    }
    if (status == DPAR_OK) {
        status = dpari_nb_connect(plan, why);
    }
    if (status != DPAR_OK) {
        if (plan && plan->memory) {
            dpari_nb_release(plan);
        }
        dpari_object_release(plan);
        return status;
    }
    *neighbours = &plan->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_neighbours_free(dpar_neighbours *neighbours)
{
    dpari_neighbours *plan = dpari_nb_of(neighbours);
    dpar_status status;
    int32_t refused;
    if (!neighbours) {
        return DPAR_OK;
    }
    status = dpari_exchange_close(&plan->x, "dpar_neighbours_free: ", &refused);
    if (refused) {
        return status;
    }
    dpari_nb_release(plan);
    return dpari_object_end(status, plan);
}
