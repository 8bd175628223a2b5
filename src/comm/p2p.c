/* SPDX-License-Identifier: MIT-0 */
/* Implements messages of the shared-memory engine as steps that never wait. Called by shm.c.
 *
 * There is one channel for each ordered pair of ranks, a ring of cells with a block each. It is in
 * the sender's heap and is made when the first record is written. A cell's word is 1 + the index of
 * its record, and is written last. The receiver always takes the records of a channel in order, and
 * counts them in `consumed`. A message whose receive is not posted yet is moved into a note in
 * private memory, so that the ring becomes free regardless of the order in which receives are
 * posted. Records are:
 *
 *     EAGER  the envelope and the first bytes, in the cell or in its block. DATA records with the
 *            rest follow. The sender is done when the last one is in the ring.
 *     RTS    the envelope of a large message. Once it is matched, the receiver copies from the
 *            sender's registered memory, or from its process, and answers FIN. Or the receiver
 *            answers CTS. With a ref to its own registered memory, the sender copies there and
 *            sends PUT; without one the sender sends DATA. If both memories are registered and the
 *            sender waits, each copies a half: CTS, both copy, PUT and FIN.
 *     DATA   a piece of a message, in the block or in the cell. `bytes` is its offset in the
 *            message, `tag` its length.
 *
 * CTS and FIN are sent in the channel of the opposite direction. An id is the sender's number of
 * the message; answers and pieces carry it. A record with an unknown id is dropped, because its
 * communicator has broken on this rank.
 *
 * A blocking wait checks one channel, and now and then all of them, so that every waiting rank also
 * receives what other ranks send to it. */
#include "p2p.h"

#include "../base/base_private.h"
#include "../host/kernel.h"
#include "copy_choice.h"
#include "heap.h"
#include "os.h"
#include "wait.h"
#include "world.h"

enum {
    DPARI_P2P_CELLS = 32, /* cells of a channel */
    DPARI_P2P_TELL = 8,   /* number of records after which the receiver updates `consumed` */
    DPARI_P2P_HEAD = 32,  /* bytes of a cell before the payload */
    DPARI_P2P_INLINE = DPARI_LINE - DPARI_P2P_HEAD,
    DPARI_P2P_BLOCK = 8192,
    DPARI_P2P_DIRECT = 4096,       /* bytes from which registered memory is copied only once */
    DPARI_P2P_EAGER = 65536,       /* bytes above which a private message waits for its receive */
    DPARI_P2P_EAGER_CMA = 12288,   /* the same if the kernel can copy it */
    DPARI_P2P_EAGER_CROWD = 32768, /* the same if ranks also share cores, because waits are then
                                      long */
    DPARI_P2P_SHARE = 32768,       /* bytes from which both ranks copy a half if they can */
    DPARI_P2P_STREAM = 8 << 20,    /* bytes from which copies bypass the cache */
    DPARI_P2P_OFTEN = 16,          /* number of checks of its own channel after which a wait checks
                                      all channels */
    DPARI_P2P_PATIENT = 256,       /* number of checks without success after which it checks all
                                      channels each time */
    DPARI_P2P_CLASSES = 12,        /* size classes of notes, 128 B to 256 KiB */
    DPARI_P2P_CHUNK = 1 << 20      /* bytes allocated at a time for notes */
};

enum {
    DPARI_P2P_IS_EAGER = 1,
    DPARI_P2P_IS_RTS,
    DPARI_P2P_IS_CTS,
    DPARI_P2P_IS_DATA,
    DPARI_P2P_IS_PUT,
    DPARI_P2P_IS_FIN
};

/* The values of dpar_work.phase for messages. */
enum {
    DPARI_P2P_POSTED = 1, /* a receive without a message */
    DPARI_P2P_ARRIVING,   /* a receive of which a part has not arrived yet */
    DPARI_P2P_QUEUED,     /* a send whose envelope is not written yet */
    DPARI_P2P_SENDING,    /* a send that is writing its data */
    DPARI_P2P_WAITING,    /* a send that waits for an answer */
    DPARI_P2P_DONE
};

/* The indices of dpar_work.state for messages: id, size, bytes sent or received so far, and the
 * time in ns at which a timed transfer began, or 0. */
enum { DPARI_P2P_ID, DPARI_P2P_BYTES, DPARI_P2P_AT, DPARI_P2P_BEGAN };

/* The envelope of a record. */
typedef struct dpari_p2p_head {
    uint32_t comm; /* id of the group */
    int32_t tag;
    uint32_t id;         /* the sender's number of the message */
    uint16_t kind, type; /* DPARI_P2P_IS_x, and the type of the elements */
    int64_t bytes;       /* size of the message; of DATA, the offset in it */
} dpari_p2p_head;

typedef struct dpari_p2p_cell {
    uint64_t word;
    dpari_p2p_head head;
    char payload[DPARI_P2P_INLINE];
} dpari_p2p_cell;

/* The payload of RTS and CTS: memory of the rank that wrote it. */
typedef struct dpari_p2p_where {
    uint64_t ref;     /* 0 if the memory is not registered */
    uint64_t address; /* in its process */
    int64_t begin;    /* in a CTS, the offset from which on the sender must copy */
    int64_t present;  /* in an RTS, 1 if the sender waits in a call and so will answer at once */
} dpari_p2p_where;

typedef struct dpari_p2p_channel {
    uint64_t consumed; /* written by the receiver */
    char padding[DPARI_LINE - 8];
    dpari_p2p_cell cell[DPARI_P2P_CELLS];
    char block[DPARI_P2P_CELLS][DPARI_P2P_BLOCK];
} dpari_p2p_channel;

/* A record that was taken out of the ring before its receive was posted, or an answer that the ring
 * was too full for. The payload of a message follows it. */
typedef struct dpari_p2p_note {
    struct dpari_p2p_note *next;
    int64_t got;        /* bytes of the payload that have arrived */
    int32_t size_class; /* the note has 128 << size_class bytes */
    dpari_p2p_head head;
    dpari_p2p_where where;
} dpari_p2p_note;

typedef struct dpari_p2p_works {
    dpar_work *first;
    dpar_work **end; /* the NULL pointer at the end of the list, if the list is not empty */
} dpari_p2p_works;

typedef struct dpari_p2p_notes {
    dpari_p2p_note *first, *last;
} dpari_p2p_notes;

/* This rank's state for one peer, which may be itself. */
typedef struct dpari_p2p_link {
    dpari_p2p_channel *in;     /* the channel from the peer; NULL if it is not open yet */
    uint64_t in_next, in_told; /* records taken, and the last value written to `consumed` */
    dpari_p2p_works posted;    /* receives without a message */
    dpari_p2p_works arriving;  /* receives of which a part has not arrived yet */
    dpari_p2p_notes early;     /* messages without a receive */
    dpari_p2p_channel *out;    /* the channel to the peer; NULL if it is not open yet */
    uint64_t out_next;         /* records written */
    uint64_t out_free;         /* records known to be consumed */
    dpari_p2p_works queue;     /* sends that wait for a free cell; the first may be partly sent */
    dpari_p2p_works waiting;   /* sends whose RTS is sent; to itself, sends without a receive */
    dpari_p2p_works streams;   /* sends whose data a CTS has requested */
    dpari_p2p_notes answers;   /* CTS, FIN and PUT that wait for a free cell */
    uint32_t ids;              /* ids used so far */
    dpari_pace pace[DPARI_PACES]; /* of large private messages from the peer while it waits */
    int32_t rang;                 /* 1 if the peer was woken because its ring is full */
} dpari_p2p_link;

/* A piece of private memory for notes, which follow it. */
typedef struct dpari_p2p_chunk {
    struct dpari_p2p_chunk *next;
    int64_t bytes;
} dpari_p2p_chunk;

struct dpari_p2p {
    dpari_world *world;
    int64_t bytes;       /* size of this struct with its links */
    int32_t open;        /* works that are not done */
    int32_t idle;        /* number of checks without success since the last successful one */
    int32_t direct, cma; /* 1 if registered memory, and other processes, may be read directly */
    dpari_p2p_note *idle_notes[DPARI_P2P_CLASSES]; /* unused notes by size class */
    char *fresh, *fresh_end;                       /* the unused part of the last chunk */
    dpari_p2p_chunk *chunks;
    dpari_p2p_link link[1]; /* [world->size] */
};

DPARI_INTERNAL dpari_p2p *dpari_p2p_open(dpari_world *world)
{
    int64_t bytes =
        (int64_t)sizeof(dpari_p2p) + (world->size - 1) * (int64_t)sizeof(dpari_p2p_link);
    dpari_p2p *p2p = (dpari_p2p *)dpari_os_pages(bytes);
    if (!p2p) {
        return NULL;
    }
    p2p->world = world;
    p2p->bytes = bytes;
    p2p->direct = !(world->head->plain & DPAR_WORLD_NO_DIRECT);
    p2p->cma = !(world->head->plain & DPAR_WORLD_NO_CMA) && !world->threads;
    return p2p;
}

DPARI_INTERNAL void dpari_p2p_close(dpari_p2p *p2p)
{
    if (!p2p) {
        return;
    }
    while (p2p->chunks) {
        dpari_p2p_chunk *c = p2p->chunks;
        p2p->chunks = c->next;
        dpari_os_unmap(c, c->bytes);
    }
    dpari_os_unmap(p2p, p2p->bytes);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void dpari_p2p_append(dpari_p2p_works *list, dpar_work *work)
{
    work->next = NULL;
    *(list->first ? list->end : &list->first) = work;
    list->end = &work->next;
}

/* Takes the operation at *link off the list and returns it. */
static dpar_work *dpari_p2p_unlink(dpari_p2p_works *list, dpar_work **link)
{
    dpar_work *work = *link;
    *link = work->next;
    if (list->end == &work->next) {
        list->end = link;
    }
    work->next = NULL;
    return work;
}

/* Takes the first work of this communicator and tag off the list. Returns NULL if there is none. */
static dpar_work *dpari_p2p_match(dpari_p2p_works *list, uint32_t comm, int32_t tag)
{
    for (dpar_work **link = &list->first; *link; link = &(*link)->next) {
        if ((*link)->call.tag == tag && dpari_group_of((*link)->comm)->id == comm) {
            return dpari_p2p_unlink(list, link);
        }
    }
    return NULL;
}

static dpar_work *dpari_p2p_find(const dpari_p2p_works *list, uint32_t id)
{
    dpar_work *work = list->first;
    while (work && work->state[DPARI_P2P_ID] != (int64_t)id) {
        work = work->next;
    }
    return work;
}

/* Takes an operation off the list. */
static void dpari_p2p_take_off(dpari_p2p_works *list, dpar_work *work)
{
    dpar_work **link = &list->first;
    while (*link != work) {
        link = &(*link)->next;
    }
    (void)dpari_p2p_unlink(list, link);
}

/* Moves a message that is no longer in a list to the finished works of its group. */
DPARI_STATIC_NOINLINE void dpari_p2p_finish(dpari_p2p *p2p, dpar_work *work, dpar_status status)
{
    dpari_group *group = dpari_group_of(work->home);
    work->status = status;
    work->phase = DPARI_P2P_DONE;
    work->behind = group->finished;
    group->finished = work;
    p2p->open--;
}

/* ---- notes ----------------------------------------------------------------------------------- */

/* Takes a note with space for `bytes` after it. Sizes are powers of two, and freed notes are used
 * again. Returns NULL if there is no memory. */
static dpari_p2p_note *dpari_p2p_note_make(dpari_p2p *p2p, int64_t bytes)
{
    const int64_t need = bytes + (int64_t)sizeof(dpari_p2p_note);
    int32_t size_class = 0;
    dpari_p2p_note *note;
    int64_t take;
    while (INT64_C(128) << size_class < need) {
        size_class++;
    }
    take = INT64_C(128) << size_class;
    note = p2p->idle_notes[size_class];
    if (note) {
        p2p->idle_notes[size_class] = note->next;
    } else {
        if (p2p->fresh_end - p2p->fresh < take) {
            dpari_p2p_chunk *c = (dpari_p2p_chunk *)dpari_os_pages(DPARI_P2P_CHUNK);
            if (!c) {
                return NULL;
            }
            c->bytes = DPARI_P2P_CHUNK;
            c->next = p2p->chunks;
            p2p->chunks = c;
            p2p->fresh = (char *)c + DPARI_LINE;
            p2p->fresh_end = (char *)c + DPARI_P2P_CHUNK;
        }
        note = (dpari_p2p_note *)(void *)p2p->fresh;
        p2p->fresh += take;
    }
    note->size_class = size_class;
    note->next = NULL;
    note->got = 0;
    return note;
}

static void dpari_p2p_note_free(dpari_p2p *p2p, dpari_p2p_note *note)
{
    note->next = p2p->idle_notes[note->size_class];
    p2p->idle_notes[note->size_class] = note;
}

static void dpari_p2p_note_append(dpari_p2p_notes *list, dpari_p2p_note *note)
{
    if (list->first) {
        list->last->next = note;
    } else {
        list->first = note;
    }
    list->last = note;
}

static void dpari_p2p_note_unlink(dpari_p2p_notes *list, dpari_p2p_note *before,
                                  dpari_p2p_note *note)
{
    if (before) {
        before->next = note->next;
    } else {
        list->first = note->next;
    }
    if (list->last == note) {
        list->last = before;
    }
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void dpari_p2p_copy(void *to, const void *from, int64_t bytes)
{
    if (bytes > 0) {
        memcpy(to, from, (size_t)bytes);
    }
}

static void dpari_p2p_copy_large(const dpari_world *world, void *to, const void *from,
                                 int64_t bytes)
{
    const int32_t plain = world->head->plain;
    dpari_kern_copy(to, from, bytes,
                    bytes >= DPARI_P2P_STREAM && !(plain & DPAR_WORLD_NO_STREAMING_STORES));
}

/* ---- writing into a channel ------------------------------------------------------------------ */

/* Makes the channel to the peer if there is none yet. */
static dpar_status dpari_p2p_channel_open(dpari_world *world, dpari_p2p_link *link, int32_t peer)
{
    uint64_t *ref = &world->channel[(int64_t)peer * world->size + world->me];
    void *memory = NULL;
    dpar_status s;
    if (link->out) {
        return DPAR_OK;
    }
    s = dpari_heap_alloc(world, (int64_t)sizeof(dpari_p2p_channel), DPARI_HEAP_LIBRARY,
                         &memory); /* zeroed */
    if (s == DPAR_OK) {
        link->out = (dpari_p2p_channel *)memory;
        DPARI_STORE(ref, dpari_ref(world, memory, (int64_t)sizeof(dpari_p2p_channel)));
    }
    return s;
}

/* Returns the next cell of the channel to the peer, or NULL if the ring is full. */
static dpari_p2p_cell *dpari_p2p_room(dpari_world *world, dpari_p2p_link *link)
{
    if (link->out_next - link->out_free == DPARI_P2P_CELLS) {
        link->out_free = DPARI_LOAD(&link->out->consumed);
        if (link->out_next - link->out_free == DPARI_P2P_CELLS) {
            /* the receiver may sleep in a wait from which only another rank wakes it */
            if (!link->rang && DPARI_LOAD(&world->head->sleepers)) {
                link->rang = 1;
                dpari_ring_all(&world->segment);
            }
            return NULL;
        }
        link->rang = 0;
    }
    return &link->out->cell[link->out_next % DPARI_P2P_CELLS];
}

/* Publishes the record in the next cell. */
static void dpari_p2p_push(dpari_world *world, dpari_p2p_link *link, dpari_p2p_cell *cell)
{
    link->out_next++;
    dpari_publish(world, &cell->word, link->out_next);
}

static void dpari_p2p_send_answer(dpari_world *world, dpari_p2p_link *link, dpari_p2p_cell *cell,
                                  const dpari_p2p_head *head, const dpari_p2p_where *where)
{
    cell->head = *head;
    memcpy(cell->payload, where, sizeof *where);
    dpari_p2p_push(world, link, cell);
}

/* Sends CTS, FIN or PUT for the message `id`, now or as soon as a cell is free. Returns 0 if there
 * is no memory to keep it until then. */
static int dpari_p2p_answer(dpari_p2p *p2p, int32_t peer, int kind, uint32_t id,
                            const dpari_p2p_where *where)
{
    dpari_world *world = p2p->world;
    dpari_p2p_link *link = &p2p->link[peer];
    dpari_p2p_note *note;
    dpari_p2p_head head = {0, 0, 0, 0, 0, 0};
    head.id = id;
    head.kind = (uint16_t)kind;
    if (!link->answers.first && dpari_p2p_channel_open(world, link, peer) == DPAR_OK) {
        dpari_p2p_cell *cell = dpari_p2p_room(world, link);
        if (cell) {
            dpari_p2p_send_answer(world, link, cell, &head, where);
            return 1;
        }
    }
    note = dpari_p2p_note_make(p2p, 0);
    if (!note) {
        return 0;
    }
    note->head = head;
    note->where = *where;
    dpari_p2p_note_append(&link->answers, note);
    DPARI_STORE(&world->rank[world->me].owes, world->rank[world->me].owes + 1);
    return 1;
}

/* Returns the size of the piece at offset `at` if `left` bytes remain. The first pieces are small,
 * so that the receiver can begin to copy soon. */
static int64_t dpari_p2p_piece(int64_t at, int64_t left)
{
    const int64_t most = at < DPARI_P2P_BLOCK ? DPARI_P2P_BLOCK / 2 : DPARI_P2P_BLOCK;
    return left < most ? left : most;
}

static void dpari_p2p_envelope(const dpar_work *work, dpari_p2p_head *head)
{
    head->comm = dpari_group_of(work->comm)->id;
    head->tag = work->call.tag;
    head->id = (uint32_t)work->state[DPARI_P2P_ID];
    head->type = (uint16_t)work->call.type;
    head->bytes = work->state[DPARI_P2P_BYTES];
}

/* Returns the ref of this memory if others can copy from or to it directly, otherwise 0. */
static uint64_t dpari_p2p_ref(const dpari_p2p *p2p, const void *at, int64_t bytes)
{
    return p2p->direct ? dpari_ref(p2p->world, at, bytes) : 0;
}

/* Returns the largest private message that is sent without waiting for its receive. */
static int64_t dpari_p2p_eager(const dpari_p2p *p2p, int32_t peer)
{
    const dpari_world *world = p2p->world;
    if (!p2p->cma || !dpari_world_reads(world, peer, world->me)) {
        return DPARI_P2P_EAGER;
    }
    return world->crowded ? DPARI_P2P_EAGER_CROWD : DPARI_P2P_EAGER_CMA;
}

/* Writes the envelope of a queued send into the cell. Returns the next phase of the send. */
static int32_t dpari_p2p_put_envelope(dpari_p2p *p2p, dpari_p2p_link *link, int32_t peer,
                                      dpar_work *work, dpari_p2p_cell *cell)
{
    dpari_world *world = p2p->world;
    const int64_t bytes = work->state[DPARI_P2P_BYTES], first = dpari_p2p_piece(0, bytes);
    dpari_p2p_where where = {0, 0, 0, 0};
    int32_t phase = DPARI_P2P_DONE;
    dpari_p2p_envelope(work, &cell->head);
    cell->head.kind = DPARI_P2P_IS_EAGER;
    if (bytes >= DPARI_P2P_DIRECT) {
        where.ref = dpari_p2p_ref(p2p, work->call.in, bytes);
    }
    if (where.ref || (bytes > DPARI_P2P_EAGER_CMA && bytes > dpari_p2p_eager(p2p, peer))) {
        where.address = (uint64_t)(uintptr_t)work->call.in;
        where.present = !world->crowded && DPARI_LOAD(&world->waiting);
        cell->head.kind = DPARI_P2P_IS_RTS;
        memcpy(cell->payload, &where, sizeof where);
        phase = DPARI_P2P_WAITING;
    } else if (bytes <= DPARI_P2P_INLINE) {
        dpari_p2p_copy(cell->payload, work->call.in, bytes);
    } else {
        dpari_p2p_copy(link->out->block[link->out_next % DPARI_P2P_CELLS], work->call.in, first);
        work->state[DPARI_P2P_AT] = first;
        phase = DPARI_P2P_SENDING;
    }
    dpari_p2p_push(world, link, cell);
    return phase;
}

/* Puts the next pieces of a send into the ring. Returns 1 if the last one is in. */
static int dpari_p2p_put_data(dpari_world *world, dpari_p2p_link *link, dpar_work *work)
{
    const int64_t bytes = work->state[DPARI_P2P_BYTES];
    while (work->state[DPARI_P2P_AT] < bytes) {
        const int64_t at = work->state[DPARI_P2P_AT], piece = dpari_p2p_piece(at, bytes - at);
        char *block = link->out->block[link->out_next % DPARI_P2P_CELLS];
        dpari_p2p_cell *cell = dpari_p2p_room(world, link);
        if (!cell) {
            return 0;
        }
        dpari_p2p_envelope(work, &cell->head);
        cell->head.kind = DPARI_P2P_IS_DATA;
        cell->head.bytes = at;
        cell->head.tag = (int32_t)piece;
        dpari_p2p_copy(piece <= DPARI_P2P_INLINE ? cell->payload : block,
                       (const char *)work->call.in + at, piece);
        dpari_p2p_push(world, link, cell);
        work->state[DPARI_P2P_AT] = at + piece;
    }
    return 1;
}

/* Sends the answers that wait for a free cell. Returns 0 if the ring is full before the last
 * one. */
static int dpari_p2p_push_answers(dpari_p2p *p2p, dpari_p2p_link *link)
{
    dpari_world *world = p2p->world;
    while (link->answers.first) {
        dpari_p2p_note *note = link->answers.first;
        dpari_p2p_cell *cell = dpari_p2p_room(world, link);
        if (!cell) {
            return 0;
        }
        dpari_p2p_send_answer(world, link, cell, &note->head, &note->where);
        dpari_p2p_note_unlink(&link->answers, NULL, note);
        dpari_p2p_note_free(p2p, note);
        DPARI_STORE(&world->rank[world->me].owes, world->rank[world->me].owes - 1);
    }
    return 1;
}

/* Sends the queued messages. Returns 0 if the ring is full before the end of the last one. */
static int dpari_p2p_push_queue(dpari_p2p *p2p, dpari_p2p_link *link, int32_t peer)
{
    dpari_world *world = p2p->world;
    while (link->queue.first) {
        dpar_work *work = link->queue.first;
        if (work->phase == DPARI_P2P_QUEUED) {
            dpari_p2p_cell *cell = dpari_p2p_room(world, link);
            if (!cell) {
                return 0;
            }
            work->phase = dpari_p2p_put_envelope(p2p, link, peer, work, cell);
        }
        if (work->phase == DPARI_P2P_SENDING && !dpari_p2p_put_data(world, link, work)) {
            return 0;
        }
        (void)dpari_p2p_unlink(&link->queue, &link->queue.first);
        if (work->phase == DPARI_P2P_WAITING) {
            dpari_p2p_append(&link->waiting, work);
        } else {
            dpari_p2p_finish(p2p, work, DPAR_OK);
        }
    }
    return 1;
}

/* Writes records as long as the channel has space: answers first, then messages in their order,
 * then the data that receivers have requested. */
static void dpari_p2p_pump(dpari_p2p *p2p, dpari_p2p_link *link, int32_t peer)
{
    dpari_world *world = p2p->world;
    if (!link->answers.first && !link->queue.first && !link->streams.first) {
        return;
    }
    if (dpari_p2p_channel_open(world, link, peer) != DPAR_OK ||
        !dpari_p2p_push_answers(p2p, link) || !dpari_p2p_push_queue(p2p, link, peer)) {
        return;
    }
    while (link->streams.first) {
        if (!dpari_p2p_put_data(world, link, link->streams.first)) {
            return;
        }
        dpari_p2p_finish(p2p, dpari_p2p_unlink(&link->streams, &link->streams.first), DPAR_OK);
    }
}

/* ---- a message is matched with its receive --------------------------------------------------- */

/* Breaks the communicator with the same message on all ranks, as in "recv #7 of 4 f32 on rank 0
 * from rank 1, tag 3: rank 1 sent 8 f32". */
static DPARI_COLD void dpari_p2p_mismatch(dpari_p2p *p2p, dpar_work *work,
                                          const dpari_p2p_head *head)
{
    dpari_group *group = dpari_group_of(work->comm);
    const int32_t unit = dpar_type_bytes(head->type);
    char buffer[DPARI_WHY_TEXT];
    dpar_text t;
    dpar_text_init(&t, buffer, sizeof buffer);
    dpari_text_print(&t, "recv #%ld of %ld %s on ", work->sequence, work->call.count,
                     dpar_type_name(work->call.type));
    dpari_put_rank(&t, group, group->comm.rank);
    dpar_text_put(&t, " from ");
    dpari_put_rank(&t, group, work->call.root);
    dpari_text_print(&t, ", tag %d: ", work->call.tag);
    dpari_put_rank(&t, group, work->call.root);
    dpari_text_print(&t, " sent %ld %s", unit > 0 ? head->bytes / unit : head->bytes,
                     dpar_type_name(head->type));
    dpari_p2p_finish(p2p, work, dpari_group_break(group, DPAR_E_MISMATCH, buffer));
}

/* Fails the work and returns 1 if its communicator has broken. The memory of the other rank may
 * then be in use for something else, so it must not be read or written any more. */
static int dpari_p2p_is_lost(dpari_p2p *p2p, dpar_work *work)
{
    dpar_status s = dpari_group_broken(dpari_group_of(work->comm));
    if (s != DPAR_OK) {
        dpari_p2p_finish(p2p, work, s);
    }
    return s != DPAR_OK;
}

/* True if the message has the size and type of its receive. */
static int dpari_p2p_fits(const dpar_work *work, const dpari_p2p_head *head)
{
    return work->state[DPARI_P2P_BYTES] == head->bytes && work->call.type == (int32_t)head->type;
}

/* Takes the first `got` bytes of an EAGER message. */
static void dpari_p2p_meet_eager(dpari_p2p *p2p, dpari_p2p_link *link, dpar_work *work,
                                 const dpari_p2p_head *head, const char *from, int64_t got)
{
    if (!dpari_p2p_fits(work, head)) {
        dpari_p2p_mismatch(p2p, work, head);
        return;
    }
    dpari_p2p_copy(work->call.out, from, got);
    if (got == head->bytes) {
        dpari_p2p_finish(p2p, work, DPAR_OK);
        return;
    }
    work->state[DPARI_P2P_ID] = head->id;
    work->state[DPARI_P2P_AT] = got;
    work->phase = DPARI_P2P_ARRIVING;
    dpari_p2p_append(&link->arriving, work);
}

/* Copies a message from the sender's process. Returns 0 without copying if that is not possible or
 * the ring is faster. The ring is considered only if the sender is present, since otherwise this
 * rank would have to wait for it. */
static int dpari_p2p_read(const dpari_p2p *p2p, dpari_p2p_link *link, int32_t peer, dpar_work *work,
                          const dpari_p2p_where *where)
{
    dpari_world *world = p2p->world;
    const int64_t bytes = work->state[DPARI_P2P_BYTES];
    double began = 0.0;
    int read;
    if (!p2p->cma || !dpari_world_reads(world, world->me, peer)) {
        return 0;
    }
    if (where->present) {
        began = dpari_os_now();
        if (dpari_pace_choose(dpari_pace_of(link->pace, bytes)) == DPARI_BY_RING) {
            work->state[DPARI_P2P_BEGAN] = (int64_t)(began * 1e9);
            return 0;
        }
    }
    read = dpari_world_read(world, peer, work->call.out, where->address, bytes) == 0;
    if (where->present && read) {
        dpari_pace_tell(dpari_pace_of(link->pace, bytes), DPARI_BY_KERNEL, bytes,
                        dpari_os_now() - began);
    }
    return read;
}

/* Requests the bytes from offset `begin` on from the sender. The operation then waits for them. */
static void dpari_p2p_ask(dpari_p2p *p2p, int32_t peer, dpar_work *work, uint32_t id, uint64_t ref,
                          int64_t begin)
{
    dpari_p2p_where where = {0, 0, 0, 0};
    where.ref = ref;
    where.begin = begin;
    work->state[DPARI_P2P_ID] = id;
    work->state[DPARI_P2P_AT] = 0;
    work->phase = DPARI_P2P_ARRIVING;
    if (dpari_p2p_answer(p2p, peer, DPARI_P2P_IS_CTS, id, &where)) {
        dpari_p2p_append(&p2p->link[peer].arriving, work);
    } else {
        dpari_p2p_finish(p2p, work, DPAR_E_MEMORY);
    }
}

/* Takes the envelope of a large message: copies the message, or requests it from the sender, or
 * both, a half each. */
static void dpari_p2p_meet_large(dpari_p2p *p2p, int32_t peer, dpar_work *work,
                                 const dpari_p2p_head *head, const dpari_p2p_where *where)
{
    dpari_world *world = p2p->world;
    const dpari_p2p_where none = {0, 0, 0, 0};
    int64_t mine = head->bytes; /* bytes that this rank copies */
    const void *from;
    uint64_t ref;
    int told;
    if (!dpari_p2p_fits(work, head)) {
        dpari_p2p_mismatch(p2p, work, head);
        return;
    }
    if (dpari_p2p_is_lost(p2p, work)) {
        return;
    }
    ref = dpari_p2p_ref(p2p, work->call.out, head->bytes);
    from = where->ref ? dpari_at(world, where->ref) : NULL; /* also NULL if no addresses are left */
    if (from) {
        if (ref && where->present && mine >= DPARI_P2P_SHARE) {
            mine = mine / 2 / DPARI_P2P_BLOCK * DPARI_P2P_BLOCK;
            dpari_p2p_ask(p2p, peer, work, head->id, ref, mine);
        }
        dpari_p2p_copy_large(world, work->call.out, from, mine);
    } else if (!dpari_p2p_read(p2p, &p2p->link[peer], peer, work, where)) {
        dpari_p2p_ask(p2p, peer, work, head->id, ref, 0);
        return;
    }
    told = dpari_p2p_answer(p2p, peer, DPARI_P2P_IS_FIN, head->id, &none);
    if (mine == head->bytes) {
        dpari_p2p_finish(p2p, work, told ? DPAR_OK : DPAR_E_MEMORY);
    }
}

/* ---- reading a channel ----------------------------------------------------------------------- */

/* Stores a message whose receive is not posted yet in a note. Returns 0 if there is no memory. */
static int dpari_p2p_store(dpari_p2p *p2p, dpari_p2p_link *link, const dpari_p2p_head *head,
                           const char *from, int64_t got)
{
    const int large = head->kind == DPARI_P2P_IS_RTS;
    dpari_p2p_note *note = dpari_p2p_note_make(p2p, large ? 0 : head->bytes);
    if (!note) {
        return 0;
    }
    note->head = *head;
    note->got = got;
    if (large) {
        memcpy(&note->where, from, sizeof note->where);
    } else {
        dpari_p2p_copy((char *)(note + 1), from, got);
    }
    dpari_p2p_note_append(&link->early, note);
    return 1;
}

/* Stores a piece of a message whose receive is not posted yet. It belongs to the last note, because
 * the pieces of a message follow its envelope. */
static void dpari_p2p_store_data(const dpari_p2p_link *link, const dpari_p2p_head *head,
                                 const char *from)
{
    dpari_p2p_note *note = link->early.last;
    if (note && note->head.kind == DPARI_P2P_IS_EAGER && note->head.id == head->id &&
        note->got == head->bytes && note->head.bytes - note->got >= head->tag) {
        dpari_p2p_copy((char *)(note + 1) + note->got, from, head->tag);
        note->got += head->tag;
    }
}

/* Records the time of a transfer through the ring, if it was timed. */
static void dpari_p2p_tell_pace(dpari_p2p_link *link, const dpar_work *work)
{
    const int64_t bytes = work->state[DPARI_P2P_BYTES], began = work->state[DPARI_P2P_BEGAN];
    if (began != 0) {
        dpari_pace_tell(dpari_pace_of(link->pace, bytes), DPARI_BY_RING, bytes,
                        dpari_os_now() - (double)began * 1e-9);
    }
}

/* Takes a DATA record. */
static void dpari_p2p_take_data(dpari_p2p *p2p, dpari_p2p_link *link, const dpari_p2p_head *head,
                                const char *from)
{
    dpar_work *work = dpari_p2p_find(&link->arriving, head->id);
    const int64_t piece = head->tag;
    if (!work) {
        dpari_p2p_store_data(link, head, from);
        return;
    }
    if (head->bytes != work->state[DPARI_P2P_AT] ||
        piece > work->state[DPARI_P2P_BYTES] - head->bytes) {
        return;
    }
    dpari_p2p_copy((char *)work->call.out + head->bytes, from, piece);
    work->state[DPARI_P2P_AT] += piece;
    if (work->state[DPARI_P2P_AT] == work->state[DPARI_P2P_BYTES]) {
        dpari_p2p_tell_pace(link, work);
        dpari_p2p_take_off(&link->arriving, work);
        dpari_p2p_finish(p2p, work, DPAR_OK);
    }
}

/* Takes a CTS, by which the peer requests a message: copies into the peer's registered memory, or
 * begins to send the data. */
static void dpari_p2p_take_cts(dpari_p2p *p2p, int32_t peer, uint32_t id,
                               const dpari_p2p_where *where)
{
    dpari_world *world = p2p->world;
    const dpari_p2p_where none = {0, 0, 0, 0};
    dpari_p2p_link *link = &p2p->link[peer];
    dpar_work *work = dpari_p2p_find(&link->waiting, id);
    char *to;
    if (!work) {
        return;
    }
    dpari_p2p_take_off(&link->waiting, work);
    if (dpari_p2p_is_lost(p2p, work)) {
        return;
    }
    /* if no addresses are left to map that memory, all of the message is sent as data */
    to = where->ref ? (char *)dpari_at(world, where->ref) : NULL;
    if (to) {
        dpari_p2p_copy_large(world, to + where->begin, (const char *)work->call.in + where->begin,
                             work->state[DPARI_P2P_BYTES] - where->begin);
        if (!dpari_p2p_answer(p2p, peer, DPARI_P2P_IS_PUT, id, &none)) {
            dpari_p2p_finish(p2p, work, DPAR_E_MEMORY);
        } else if (where->begin > 0) {
            dpari_p2p_append(&link->waiting, work); /* for the FIN of the receiver's own part */
        } else {
            dpari_p2p_finish(p2p, work, DPAR_OK);
        }
        return;
    }
    work->phase = DPARI_P2P_SENDING;
    dpari_p2p_append(&link->streams, work);
}

/* Takes a PUT or FIN, which ends the work with this id. */
static void dpari_p2p_take_end(dpari_p2p *p2p, dpari_p2p_works *list, uint32_t id)
{
    dpar_work *work = dpari_p2p_find(list, id);
    if (work) {
        dpari_p2p_take_off(list, work);
        dpari_p2p_finish(p2p, work, DPAR_OK);
    }
}

/* True if the payload of a record is in its cell, false if it is in the block. */
static int dpari_p2p_is_inline(const dpari_p2p_head *head)
{
    if (head->kind == DPARI_P2P_IS_DATA) {
        return head->tag <= DPARI_P2P_INLINE;
    }
    return head->kind != DPARI_P2P_IS_EAGER || head->bytes <= DPARI_P2P_INLINE;
}

/* Takes one record. Returns 0, and leaves the record in the ring, if there is no memory for it. */
static int dpari_p2p_take(dpari_p2p *p2p, int32_t peer, const dpari_p2p_cell *cell,
                          const char *block)
{
    dpari_p2p_link *link = &p2p->link[peer];
    const dpari_p2p_head *head = &cell->head;
    const char *from = dpari_p2p_is_inline(head) ? cell->payload : block;
    dpari_p2p_where where = {0, 0, 0, 0};
    dpar_work *work;
    switch (head->kind) {
    case DPARI_P2P_IS_EAGER:
        work = dpari_p2p_match(&link->posted, head->comm, head->tag);
        if (!work) {
            return dpari_p2p_store(p2p, link, head, from, dpari_p2p_piece(0, head->bytes));
        }
        dpari_p2p_meet_eager(p2p, link, work, head, from, dpari_p2p_piece(0, head->bytes));
        return 1;
    case DPARI_P2P_IS_RTS:
        work = dpari_p2p_match(&link->posted, head->comm, head->tag);
        if (!work) {
            return dpari_p2p_store(p2p, link, head, from, 0);
        }
        memcpy(&where, from, sizeof where);
        dpari_p2p_meet_large(p2p, peer, work, head, &where);
        return 1;
    case DPARI_P2P_IS_DATA: dpari_p2p_take_data(p2p, link, head, from); return 1;
    case DPARI_P2P_IS_CTS:
        memcpy(&where, from, sizeof where);
        dpari_p2p_take_cts(p2p, peer, head->id, &where);
        return 1;
    case DPARI_P2P_IS_PUT: dpari_p2p_take_end(p2p, &link->arriving, head->id); return 1;
    default: dpari_p2p_take_end(p2p, &link->waiting, head->id); return 1;
    }
}

/* Breaks the communicators of these works because the channel from the peer cannot be mapped. */
static DPARI_COLD void dpari_p2p_fail_works(const dpari_p2p_works *list, uint64_t ref)
{
    for (const dpar_work *work = list->first; work; work = work->next) {
        (void)dpari_group_unmapped(dpari_group_of(work->comm), work, ref);
    }
}

static dpari_p2p_channel *dpari_p2p_channel_find(const dpari_world *world, dpari_p2p_link *link,
                                                 int32_t peer)
{
    uint64_t ref = DPARI_LOAD(&world->channel[(int64_t)world->me * world->size + peer]);
    link->in = ref ? (dpari_p2p_channel *)dpari_at(world, ref) : NULL;
    if (ref && !link->in) { /* otherwise all works that wait for this peer would wait for ever */
        dpari_p2p_fail_works(&link->posted, ref);
        dpari_p2p_fail_works(&link->waiting, ref);
        dpari_p2p_fail_works(&link->queue, ref);
    }
    return link->in;
}

/* Takes all records that are in the channel from the peer. */
static void dpari_p2p_drain(dpari_p2p *p2p, dpari_p2p_link *link, int32_t peer)
{
    dpari_world *world = p2p->world;
    dpari_p2p_channel *in = link->in ? link->in : dpari_p2p_channel_find(world, link, peer);
    while (in) {
        const uint64_t at = link->in_next % DPARI_P2P_CELLS;
        if (DPARI_LOAD(&in->cell[at].word) != link->in_next + 1 ||
            !dpari_p2p_take(p2p, peer, &in->cell[at], in->block[at])) {
            return;
        }
        link->in_next++;
        if (link->in_next - link->in_told == DPARI_P2P_TELL) {
            link->in_told = link->in_next;
            dpari_publish(world, &in->consumed, link->in_next);
        }
    }
}

/* ---- messages of a rank to itself ------------------------------------------------------------ */

static void dpari_p2p_meet_self(dpari_p2p *p2p, dpar_work *from, dpar_work *to)
{
    dpari_p2p_head head = {0, 0, 0, 0, 0, 0};
    dpari_p2p_envelope(from, &head);
    if (!dpari_p2p_fits(to, &head)) {
        dpari_p2p_mismatch(p2p, to, &head);
        dpari_p2p_finish(p2p, from, to->status);
        return;
    }
    dpari_p2p_copy(to->call.out, from->call.in, head.bytes);
    dpari_p2p_finish(p2p, from, DPAR_OK);
    dpari_p2p_finish(p2p, to, DPAR_OK);
}

static void dpari_p2p_self(dpari_p2p *p2p, dpari_p2p_link *link, uint32_t comm, dpar_work *work)
{
    const int sends = work->call.kind == DPAR_CALL_SEND;
    dpari_p2p_works *others = sends ? &link->posted : &link->waiting;
    dpar_work *other = dpari_p2p_match(others, comm, work->call.tag);
    if (!other) {
        work->phase = sends ? DPARI_P2P_WAITING : DPARI_P2P_POSTED;
        dpari_p2p_append(sends ? &link->waiting : &link->posted, work);
    } else if (sends) {
        dpari_p2p_meet_self(p2p, work, other);
    } else {
        dpari_p2p_meet_self(p2p, other, work);
    }
}

/* ---- the functions of p2p.h ------------------------------------------------------------------ */

/* Matches a receive with a message that arrived before it was posted. Returns 1 if there is such a
 * message. */
static int dpari_p2p_recv_early(dpari_p2p *p2p, int32_t peer, uint32_t comm, dpar_work *work)
{
    dpari_p2p_link *link = &p2p->link[peer];
    dpari_p2p_note *before = NULL, *n;
    for (n = link->early.first; n; before = n, n = n->next) {
        if (n->head.comm == comm && n->head.tag == work->call.tag) {
            dpari_p2p_note_unlink(&link->early, before, n);
            if (n->head.kind == DPARI_P2P_IS_RTS) {
                dpari_p2p_meet_large(p2p, peer, work, &n->head, &n->where);
            } else {
                dpari_p2p_meet_eager(p2p, link, work, &n->head, (char *)(n + 1), n->got);
            }
            dpari_p2p_note_free(p2p, n);
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL dpar_status dpari_p2p_start(dpari_p2p *p2p, dpari_group *group,
                                           const dpar_call *call, dpar_work *work)
{
    dpari_world *world = p2p->world;
    const int32_t peer = group->world_rank[call->root];
    dpari_p2p_link *link = &p2p->link[peer];
    if (call->kind == DPAR_CALL_SEND && peer != world->me) {
        dpar_status status = dpari_p2p_channel_open(world, link, peer);
        if (status != DPAR_OK) { /* breaks it, because the peer would wait for ever */
            return dpari_group_break(group, status,
                                     "send: no shared memory for a channel between two ranks");
        }
    }
    work->state[DPARI_P2P_ID] = link->ids++;
    work->state[DPARI_P2P_BYTES] = call->count * dpar_type_bytes(call->type);
    work->state[DPARI_P2P_AT] = 0;
    work->state[DPARI_P2P_BEGAN] = 0;
    p2p->open++;
    if (peer == world->me) {
        dpari_p2p_self(p2p, link, group->id, work);
    } else if (call->kind == DPAR_CALL_SEND) {
        work->phase = DPARI_P2P_QUEUED;
        dpari_p2p_append(&link->queue, work);
        dpari_p2p_pump(p2p, link, peer);
    } else if (!link->early.first || !dpari_p2p_recv_early(p2p, peer, group->id, work)) {
        work->phase = DPARI_P2P_POSTED;
        dpari_p2p_append(&link->posted, work);
        dpari_p2p_drain(p2p, link, peer);
    }
    return work->phase == DPARI_P2P_DONE ? work->status : DPAR_MORE;
}

static void dpari_p2p_poll(dpari_p2p *p2p, int32_t peer)
{
    dpari_p2p_link *link = &p2p->link[peer];
    dpari_p2p_drain(p2p, link, peer);
    dpari_p2p_pump(p2p, link, peer);
}

DPARI_INTERNAL void dpari_p2p_progress(dpari_p2p *p2p)
{
    dpari_world *world = p2p->world;
    for (int32_t i = 0; i < world->size; i++) {
        if (i != world->me) {
            dpari_p2p_poll(p2p, i);
        }
    }
}

DPARI_INTERNAL dpar_status dpari_p2p_advance(dpari_p2p *p2p, dpari_group *group, dpar_work *work)
{
    const dpari_world *world = p2p->world;
    const int32_t peer = group->world_rank[work->call.root];
    if (work->phase != DPARI_P2P_DONE && peer != world->me) {
        dpari_p2p_poll(p2p, peer);
    }
    if (work->phase != DPARI_P2P_DONE) {
        p2p->idle = p2p->idle < DPARI_P2P_PATIENT * DPARI_P2P_OFTEN ? p2p->idle + 1 : p2p->idle;
        if (p2p->idle % DPARI_P2P_OFTEN == 0 || p2p->idle > DPARI_P2P_PATIENT) {
            dpari_p2p_progress(p2p);
        }
    }
    if (work->phase == DPARI_P2P_DONE) {
        p2p->idle = 0;
        return work->status;
    }
    group->blocker = p2p->open > 1 ? -1 : peer;
    return DPAR_MORE;
}

/* Ends the works of a group in one list. Returns how many there were. */
static int32_t dpari_p2p_forget_works(dpari_p2p *p2p, dpari_p2p_works *list,
                                      const dpari_group *group)
{
    const dpar_status status = group->comm.status != DPAR_OK ? group->comm.status : DPAR_E_ARG;
    dpar_work **link = &list->first;
    int32_t n = 0;
    while (*link) {
        if ((*link)->comm == &group->comm) {
            dpari_p2p_finish(p2p, dpari_p2p_unlink(list, link), status);
            n++;
        } else {
            link = &(*link)->next;
        }
    }
    return n;
}

DPARI_INTERNAL int32_t dpari_p2p_forget(dpari_p2p *p2p, dpari_group *group)
{
    const dpari_world *world = p2p->world;
    int32_t n = 0;
    for (int32_t i = 0; i < world->size; i++) {
        dpari_p2p_link *link = &p2p->link[i];
        dpari_p2p_note *before = NULL, *note = link->early.first;
        n += dpari_p2p_forget_works(p2p, &link->posted, group);
        n += dpari_p2p_forget_works(p2p, &link->arriving, group);
        n += dpari_p2p_forget_works(p2p, &link->queue, group);
        n += dpari_p2p_forget_works(p2p, &link->waiting, group);
        n += dpari_p2p_forget_works(p2p, &link->streams, group);
        while (note) {
            dpari_p2p_note *next = note->next;
            if (note->head.comm == group->id) {
                dpari_p2p_note_unlink(&link->early, before, note);
                dpari_p2p_note_free(p2p, note);
            } else {
                before = note;
            }
            note = next;
        }
    }
    return n;
}
