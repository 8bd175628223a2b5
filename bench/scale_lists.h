/* SPDX-License-Identifier: MIT-0 */
/* scale_lists - lists the messages that an operation sends, rank by rank, for any number of nodes.
 * It has the algorithms of dpar_mpi.h on several nodes (the ways *_LEVELS and ALL_EACH), algorithms
 * that are planned there, and the flat ones that they are compared with. scale_walk reports the
 * messages of one rank, so that nobody has to store those of a million ranks; scale_replay.h adds
 * up those of a node.
 *
 * All nodes have the same number of ranks, in order: rank r is on node r / per_node, and its number
 * there is its lane. Steps follow each other; all messages of a step may be under way at once. What
 * the ranks of a node exchange through its memory is listed as well: `to` reads it from `from`.
 *
 * tests/comm/scale.c executes such lists symbolically, and tests/mpi/scale.c compares them with
 * what ranks really send. */
#ifndef SCALE_LISTS_H
#define SCALE_LISTS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Limits of dpar_mpi.h; tests/mpi/scale.c checks that they are the same there. */
#ifndef SCALE_DIRECT
#define SCALE_DIRECT 8  /* most ranks among which small vectors are sent from each to each */
#define SCALE_TRADED 64 /* and large ones, if no ranks share memory */
#endif
enum {
    SCALE_LANES = 1 << 14, /* fewest bytes of a large part, and of a vector that all lanes share */
    SCALE_WORTH = 2048,    /* fewest bytes of a piece for which each rank adds one */
    SCALE_SMALL = 1 << 14, /* most bytes of all input that are gathered if a node has one rank */
    SCALE_BLOCK = 1 << 20  /* elements that are cut into pieces at a time */
};

enum {
    REDUCE_LEVELS,   /* all_reduce: in the node, between nodes lane by lane, in the node */
    REDUCE_HALVING,  /* the same with recursive halving between nodes; dpar does not have it */
    REDUCE_DOUBLING, /* flat: recursive doubling over all ranks */
    REDUCE_RING,     /* flat: a ring over all ranks */
    ALL_EACH,        /* all_to_all: from each rank to each */
    ALL_LANES,       /* small pieces: in the node to the target's lane, a message to each node */
    ALL_PAIRS,       /* gathered in the node, one message a pair of nodes, handed out */
    HALO_LEVELS,     /* a message for each peer on another node; memory within the node */
    HALO_FLAT,       /* a message for each peer */
    SCALE_WAYS
};

typedef struct scale_job {
    int32_t way, nodes, per_node;
    int64_t count;       /* elements: all_reduce the vector, all_to_all from each rank to each */
    int64_t bytes;       /* of an element, or of a cell of a halo */
    int64_t at_once;     /* messages of up to twice these bytes are sent in two; 0: none is */
    int64_t lanes_from;  /* fewest bytes of a vector that all lanes share; 0: SCALE_LANES */
    int32_t first_alone; /* 1: only the first step of a ring */
    /* halo: blocks of cells^3, periodic, faces `width` deep */
    int32_t parts[3], stride[3];
    int64_t cells, width;
} scale_job;

/* memory: 1 if it is read from the node's memory, 0 if it is a message.
 * all_reduce: elements [begin, begin + count) as the sender has them when the step begins. The
 * receiver adds them to its own if `adds` is 1, otherwise it takes them instead of its own.
 * all_to_all: the pieces that `sources` ranks from `source` on have for `targets` ranks from
 * `target` on, the latter `apart` from each other. halo: the receiver's halos that it fills: bit 2d
 * + 1 above, bit 2d below its block in dim d. */
typedef struct scale_message {
    int32_t step, from, to, memory;
    int64_t bytes;
    int64_t begin, count;
    int32_t adds;
    int32_t source, sources, target, targets, apart;
    uint32_t sides;
} scale_message;

/* Receives the messages of a walk. */
typedef void scale_put(void *to, const scale_message *message);

/* A walk over the messages of one rank. */
typedef struct scale_view {
    const scale_job *job;
    int32_t rank, step;
    scale_put *put;
    void *to;
} scale_view;

/* n ranks that reduce together; the i-th is rank first + i * apart. `me` is this rank's i. */
typedef struct scale_team {
    int32_t n, me, first, apart;
} scale_team;

static int64_t scale_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Where the r-th of n pieces of len elements begins. */
static int64_t scale_cut(int64_t len, int64_t r, int64_t n)
{
    return len / n * r + scale_least(r, len % n);
}

static int64_t scale_piece(int64_t len, int64_t r, int64_t n)
{
    return scale_cut(len, r + 1, n) - scale_cut(len, r, n);
}

/* Reports a message, in two parts if dpar_mpi.h sends it so. unit: bytes of an element. */
static void scale_send(const scale_view *view, const scale_message *whole, int64_t unit)
{
    const int64_t at_once = view->job->at_once;
    scale_message message = *whole;
    if (!message.memory && message.bytes > at_once && message.bytes <= 2 * at_once) {
        message.bytes = (at_once / unit + 1) * unit;
        message.count = message.bytes / unit;
        view->put(view->to, &message);
        message.begin += message.count;
        message.count = whole->count - message.count;
        message.bytes = whole->bytes - message.bytes;
        message.sources = 0; /* the first part stands for all pieces */
        message.sides = 0;
    }
    view->put(view->to, &message);
}

/* ---- all_reduce ---- */

/* Elements that this rank sends to `other` (gives 1) or receives from it. */
static void scale_vector(const scale_view *view, int32_t other, int32_t gives, int32_t memory,
                         int64_t begin, int64_t count, int32_t adds)
{
    scale_message message;
    if (count == 0) {
        return;
    }
    memset(&message, 0, sizeof message);
    message.step = view->step;
    message.from = gives ? view->rank : other;
    message.to = gives ? other : view->rank;
    message.memory = memory;
    message.begin = begin;
    message.count = count;
    message.bytes = count * view->job->bytes;
    message.adds = adds;
    scale_send(view, &message, view->job->bytes);
}

static int32_t scale_of(const scale_team *team, int32_t i)
{
    return team->first + i * team->apart;
}

/* Sends one part of the vector to `other` and receives another from it. A part is its first element
 * and its number of elements. */
static void scale_trade(const scale_view *view, int32_t other, const int64_t gives[2],
                        const int64_t takes[2], int32_t adds)
{
    scale_vector(view, other, 1, 0, gives[0], gives[1], adds);
    scale_vector(view, other, 0, 0, takes[0], takes[1], adds);
}

/* Each rank sends all of the part to each other rank, and adds what it receives. */
static void scale_gathered(scale_view *view, const scale_team *team, int64_t begin, int64_t count)
{
    int32_t r;
    for (r = 0; r < team->n; r++) {
        if (r != team->me) {
            scale_vector(view, scale_of(team, r), 1, 0, begin, count, 1);
            scale_vector(view, scale_of(team, r), 0, 0, begin, count, 1);
        }
    }
    view->step++;
}

/* Block by block: each rank receives its piece of the block from all others, adds them in the order
 * of ranks, and sends the sum to all. */
static void scale_ordered(scale_view *view, const scale_team *team, int64_t begin, int64_t count)
{
    int64_t at;
    int32_t r, back;
    for (at = 0; at < count; at += SCALE_BLOCK) {
        const int64_t len = scale_least(count - at, SCALE_BLOCK);
        const int64_t mine[2] = {begin + at + scale_cut(len, team->me, team->n),
                                 scale_piece(len, team->me, team->n)};
        for (back = 0; back < 2; back++) {
            for (r = 0; r < team->n; r++) {
                const int64_t its[2] = {begin + at + scale_cut(len, r, team->n),
                                        scale_piece(len, r, team->n)};
                if (r != team->me && back) {
                    scale_trade(view, scale_of(team, r), mine, its, 0);
                } else if (r != team->me) {
                    scale_trade(view, scale_of(team, r), its, mine, 1);
                }
            }
            view->step++;
        }
    }
}

/* Returns the largest k for which 2^k is at most n. */
static int32_t scale_rounds(int32_t n)
{
    int32_t k = 0;
    while (2 << k <= n) {
        k++;
    }
    return k;
}

/* Doubling and halving need a power of two of ranks. Before them, each rank beyond the last power
 * of two sends its vector to a rank below; after them, it receives the result from there. */
static void scale_spare(scale_view *view, const scale_team *team, int32_t after, int64_t begin,
                        int64_t count)
{
    const int32_t p = 1 << scale_rounds(team->n);
    if (team->n == p) {
        return;
    }
    if (team->me >= p) {
        scale_vector(view, scale_of(team, team->me - p), !after, 0, begin, count, !after);
    } else if (team->me + p < team->n) {
        scale_vector(view, scale_of(team, team->me + p), after, 0, begin, count, !after);
    }
    view->step++;
}

static void scale_doubling(scale_view *view, const scale_team *team, int64_t begin, int64_t count)
{
    const int32_t k = scale_rounds(team->n);
    int32_t i;
    scale_spare(view, team, 0, begin, count);
    for (i = 0; i < k; i++) {
        if (team->me < 1 << k) {
            scale_vector(view, scale_of(team, team->me ^ 1 << i), 1, 0, begin, count, 1);
            scale_vector(view, scale_of(team, team->me ^ 1 << i), 0, 0, begin, count, 1);
        }
        view->step++;
    }
    scale_spare(view, team, 1, begin, count);
}

/* Recursive halving: each round trades half of what is left with a partner, the farthest first.
 * Then the sums are sent back in the opposite order. */
static void scale_halving(scale_view *view, const scale_team *team, int64_t begin, int64_t count)
{
    const int32_t k = scale_rounds(team->n), p = 1 << k;
    int32_t i;
    scale_spare(view, team, 0, begin, count);
    for (i = 0; i < 2 * k && team->me < p; i++) {
        const int32_t back = i >= k, bit = p >> (back ? 2 * k - i : i + 1);
        const int32_t low = team->me & ~(2 * bit - 1),
                      other = team->me ^ bit; /* pieces low .. + 2 bit */
        const int32_t up = (team->me & bit) != 0;
        const int64_t cut[3] = {scale_cut(count, low, p), scale_cut(count, low + bit, p),
                                scale_cut(count, low + 2 * bit, p)};
        const int64_t mine[2] = {begin + cut[up], cut[up + 1] - cut[up]};
        const int64_t its[2] = {begin + cut[!up], cut[!up + 1] - cut[!up]};
        if (back) {
            scale_trade(view, scale_of(team, other), mine, its, 0);
        } else {
            scale_trade(view, scale_of(team, other), its, mine, 1);
        }
        view->step++;
    }
    if (team->me >= p) { /* it waits */
        view->step += 2 * k;
    }
    scale_spare(view, team, 1, begin, count);
}

/* Step s of a ring. In the first n - 1 steps each rank passes piece me - s on to the next rank,
 * which adds it; in the other n - 1 the sums are passed on. */
static void scale_ring_step(scale_view *view, const scale_team *team, int64_t count, int32_t s)
{
    const int32_t n = team->n, back = s >= n - 1, i = back ? s - (n - 1) : s;
    const int32_t out = (team->me + back - i + n) % n, in = (out - 1 + n) % n;
    scale_vector(view, scale_of(team, (team->me + 1) % n), 1, 0, scale_cut(count, out, n),
                 scale_piece(count, out, n), !back);
    scale_vector(view, scale_of(team, (team->me - 1 + n) % n), 0, 0, scale_cut(count, in, n),
                 scale_piece(count, in, n), !back);
    view->step++;
}

/* The algorithm that dpar_mpi.h chooses for the part of one lane, over the nodes. */
static void scale_between(scale_view *view, const scale_team *team, int64_t begin, int64_t count)
{
    const scale_job *job = view->job;
    const int64_t bytes =
        job->per_node > 1 ? job->count * job->bytes / job->per_node : count * job->bytes;
    const int32_t worth = count / team->n * job->bytes >= SCALE_WORTH;
    const int32_t direct = team->n <= SCALE_DIRECT || (team->n <= SCALE_TRADED && worth);
    const int32_t large = job->per_node > 1 ? bytes >= SCALE_LANES && bytes / team->n >= SCALE_WORTH
                                            : direct && bytes * team->n > SCALE_SMALL;
    if (job->way == REDUCE_HALVING && count * job->bytes > SCALE_SMALL) {
        scale_halving(view, team, begin, count);
    } else if (large) {
        scale_ordered(view, team, begin, count);
    } else if (team->n <= SCALE_DIRECT) {
        scale_gathered(view, team, begin, count);
    } else {
        scale_doubling(view, team, begin, count);
    }
}

/* Through the node's memory: first (1) the lanes that carry parts read them from all ranks of the
 * node; in the end (0) all ranks read the results from those lanes. */
static void scale_in_node(scale_view *view, int32_t first, int32_t carriers)
{
    const scale_job *job = view->job;
    const int32_t lane = view->rank % job->per_node, node = view->rank - lane;
    int32_t r;
    for (r = 0; r < job->per_node; r++) {
        const int64_t own = scale_cut(job->count, lane, carriers);
        const int64_t its = scale_cut(job->count, r, carriers);
        if (r != lane && r < carriers) { /* the part that lane r carries */
            scale_vector(view, node + r, first, 1, its, scale_piece(job->count, r, carriers),
                         first);
        }
        if (r != lane && lane < carriers) {
            scale_vector(view, node + r, !first, 1, own, scale_piece(job->count, lane, carriers),
                         first);
        }
    }
    view->step++;
}

/* Returns how many lanes carry a part between nodes: all of them if the vector is long enough. */
static int32_t scale_carriers(const scale_job *job)
{
    const int64_t fewest = job->lanes_from ? job->lanes_from : SCALE_LANES;
    return job->count * job->bytes < fewest ? 1 : job->per_node;
}

/* Returns an upper bound of the steps between nodes. */
static int32_t scale_most_between(const scale_job *job)
{
    const int64_t part = scale_piece(job->count, 0, scale_carriers(job));
    return (int32_t)(2 * ((part + SCALE_BLOCK - 1) / SCALE_BLOCK)) + 2 * scale_rounds(job->nodes) +
           2;
}

static void scale_levels(scale_view *view)
{
    const scale_job *job = view->job;
    const int32_t carriers = scale_carriers(job);
    scale_team lane;
    lane.n = job->nodes;
    lane.me = view->rank / job->per_node;
    lane.first = view->rank % job->per_node;
    lane.apart = job->per_node;
    if (job->per_node > 1) {
        scale_in_node(view, 1, carriers);
    }
    if (lane.first < carriers) {
        scale_between(view, &lane, scale_cut(job->count, lane.first, carriers),
                      scale_piece(job->count, lane.first, carriers));
    }
    view->step = 1 + scale_most_between(job);
    if (job->per_node > 1) {
        scale_in_node(view, 0, carriers);
    }
}

/* Returns the number of steps: each message's step is below it. */
static int32_t scale_steps(const scale_job *job)
{
    const int32_t n = job->nodes * job->per_node;
    switch (job->way) {
    case REDUCE_LEVELS:
    case REDUCE_HALVING: return scale_most_between(job) + 2;
    case REDUCE_DOUBLING: return scale_rounds(n) + 2;
    case REDUCE_RING: return job->first_alone ? 1 : 2 * (n - 1);
    case ALL_LANES: return 2;
    case ALL_PAIRS: return 3;
    default: return 1;
    }
}

static void scale_all_reduce(scale_view *view)
{
    const scale_job *job = view->job;
    scale_team all;
    int32_t s;
    all.n = job->nodes * job->per_node;
    all.me = view->rank;
    all.first = 0;
    all.apart = 1;
    if (job->way == REDUCE_DOUBLING) {
        scale_doubling(view, &all, 0, job->count);
    } else if (job->way == REDUCE_RING) {
        for (s = 0; s < scale_steps(job); s++) {
            scale_ring_step(view, &all, job->count, s);
        }
    } else {
        scale_levels(view);
    }
}

/* ---- all_to_all ---- */

/* which: source, sources, target, targets and apart of the message. */
static void scale_pieces(const scale_view *view, int32_t from, int32_t to, int32_t memory,
                         const int32_t *which)
{
    scale_message message;
    memset(&message, 0, sizeof message);
    message.step = view->step;
    message.from = from;
    message.to = to;
    message.memory = memory;
    message.source = which[0];
    message.sources = which[1];
    message.target = which[2];
    message.targets = which[3];
    message.apart = which[4];
    message.count = view->job->count * message.sources * message.targets;
    message.bytes = message.count * view->job->bytes;
    if (from != to && message.bytes > 0) {
        scale_send(view, &message, view->job->bytes);
    }
}

static void scale_all_each(scale_view *view)
{
    const int32_t n = view->job->nodes * view->job->per_node;
    int32_t r;
    for (r = 0; r < n; r++) {
        const int32_t out[5] = {view->rank, 1, r, 1, 1}, in[5] = {r, 1, view->rank, 1, 1};
        if (r != view->rank) {
            scale_pieces(view, view->rank, r, 0, out);
            scale_pieces(view, r, view->rank, 0, in);
        }
    }
}

/* Step 0: within the node to the rank in the target's lane. Step 1: from there one message to each
 * other node. */
static void scale_all_lanes(scale_view *view)
{
    const int32_t p = view->job->per_node, nodes = view->job->nodes;
    const int32_t lane = view->rank % p, node = view->rank / p;
    int32_t i;
    for (i = 0; i < p; i++) {
        const int32_t out[5] = {view->rank, 1, i, nodes, p},
                      in[5] = {node * p + i, 1, lane, nodes, p};
        if (i != lane) {
            scale_pieces(view, view->rank, node * p + i, 1, out);
            scale_pieces(view, node * p + i, view->rank, 1, in);
        }
    }
    view->step++;
    for (i = 0; i < nodes; i++) {
        const int32_t other = i * p + lane;
        const int32_t out[5] = {node * p, p, other, 1, 1}, in[5] = {i * p, p, view->rank, 1, 1};
        if (i != node) {
            scale_pieces(view, view->rank, other, 0, out);
            scale_pieces(view, other, view->rank, 0, in);
        }
    }
}

/* Returns the rank of node a that sends to node b and receives from it. Nodes take the ranks in
 * turns, counted from the node after a, so that all ranks of a node get the same share. */
static int32_t scale_carrier(const scale_job *job, int32_t a, int32_t b)
{
    return a * job->per_node + (b - a + job->nodes - 1) % job->nodes % job->per_node;
}

/* What the carrier of node a for node b collects, sends and hands out, in steps 0, 1 and 2. */
static void scale_carry(scale_view *view, int32_t a, int32_t b)
{
    const int32_t p = view->job->per_node, other = scale_carrier(view->job, b, a);
    const int32_t out[5] = {a * p, p, b * p, p, 1}, in[5] = {b * p, p, a * p, p, 1};
    int32_t i;
    view->step = 1;
    scale_pieces(view, view->rank, other, 0, out);
    scale_pieces(view, other, view->rank, 0, in);
    for (i = 0; i < p; i++) {
        const int32_t r = a * p + i, has[5] = {r, 1, b * p, p, 1}, its[5] = {b * p, p, r, 1, 1};
        view->step = 0;
        scale_pieces(view, r, view->rank, 1, has);
        view->step = 2;
        scale_pieces(view, view->rank, r, 1, its);
    }
}

/* Step 0: within the node to the carrier for the target's node, or to the target if it is on this
 * node. Step 1: a message for each pair of nodes. Step 2: within the node to the targets. */
static void scale_all_pairs(scale_view *view)
{
    const scale_job *job = view->job;
    const int32_t p = job->per_node, a = view->rank / p;
    int32_t b, i;
    for (i = 0; i < p; i++) {
        const int32_t r = a * p + i;
        const int32_t out[5] = {view->rank, 1, r, 1, 1}, in[5] = {r, 1, view->rank, 1, 1};
        view->step = 0;
        scale_pieces(view, view->rank, r, 1, out);
        scale_pieces(view, r, view->rank, 1, in);
    }
    for (b = 0; b < job->nodes; b++) {
        const int32_t carrier = scale_carrier(job, a, b);
        if (b != a && view->rank == carrier) {
            scale_carry(view, a, b);
        } else if (b != a) {
            const int32_t out[5] = {view->rank, 1, b * p, p, 1},
                          in[5] = {b * p, p, view->rank, 1, 1};
            view->step = 0;
            scale_pieces(view, view->rank, carrier, 1, out);
            view->step = 2;
            scale_pieces(view, carrier, view->rank, 1, in);
        }
    }
}

/* ---- halo ---- */

/* Returns the next rank of a periodic grid, upwards or downwards along a dim. */
static int32_t scale_beside(const scale_job *job, int32_t rank, int32_t dim, int32_t up)
{
    const int32_t n = job->parts[dim], at = rank / job->stride[dim] % n;
    return rank + ((at + (up ? 1 : n - 1)) % n - at) * job->stride[dim];
}

/* All faces for one peer are one message. */
static void scale_halo(scale_view *view)
{
    const scale_job *job = view->job;
    int32_t peer[6], i, k, gives;
    for (i = 0; i < 6; i++) {
        peer[i] = scale_beside(job, view->rank, i / 2, i % 2);
    }
    for (i = 0; i < 6; i++) {
        uint32_t above = 0, below = 0; /* this rank's halos; the peer's are at the opposite sides */
        int32_t faces = 0, before = 0;
        for (k = 0; k < 6; k++) {
            if (peer[k] == peer[i]) {
                before |= k < i;
                faces++;
                above |= 1u << k;
                below |= 1u << (k ^ 1);
            }
        }
        for (gives = 0; gives < 2 && !before && peer[i] != view->rank; gives++) {
            scale_message message;
            memset(&message, 0, sizeof message);
            message.from = gives ? view->rank : peer[i];
            message.to = gives ? peer[i] : view->rank;
            message.memory = job->way == HALO_LEVELS &&
                             message.from / job->per_node == message.to / job->per_node;
            message.bytes = faces * job->cells * job->cells * job->width * job->bytes;
            message.count = message.bytes;
            message.sides = gives ? below : above;
            scale_send(view, &message, 1);
        }
    }
}

/* Calls put(to, message) for all messages that `rank` sends or receives. Those with one peer are in
 * the order of steps; otherwise the order is undefined. */
static void scale_walk(const scale_job *job, int32_t rank, scale_put *put, void *to)
{
    scale_view view;
    view.job = job;
    view.rank = rank;
    view.step = 0;
    view.put = put;
    view.to = to;
    if (job->way < ALL_EACH) {
        scale_all_reduce(&view);
    } else if (job->way == ALL_EACH) {
        scale_all_each(&view);
    } else if (job->way == ALL_LANES) {
        scale_all_lanes(&view);
    } else if (job->way == ALL_PAIRS) {
        scale_all_pairs(&view);
    } else {
        scale_halo(&view);
    }
}

#endif
