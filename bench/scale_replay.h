/* SPDX-License-Identifier: MIT-0 */
/* scale_replay - adds up the messages of scale_lists.h, step by step, for the busiest rank of a
 * node, its ports and its memory. tests/comm/scale.c compares the sums with every rank's list in
 * small worlds. */
#ifndef SCALE_REPLAY_H
#define SCALE_REPLAY_H

#include "scale_lists.h"

/* One step. Each number of a rank is that of the busiest one, for that number. */
typedef struct scale_step {
    int64_t times;       /* the number of steps like this one */
    int64_t sent, got;   /* messages that a rank sends and receives */
    int64_t far, near;   /* messages that a rank sends to other nodes, and within its own */
    int64_t far_bytes;   /* bytes of messages that a rank receives from other nodes */
    int64_t near_bytes;  /* and from its own */
    int64_t moved_bytes; /* through memory: what a rank puts there, once, and what it reads */
    int64_t peers;       /* ranks from which a rank reads through memory */
    int64_t out_messages, out, in; /* of the node: messages it sends, bytes it sends and receives */
    int64_t port_bytes;            /* over its busiest port one way; rank i uses port i % ports */
    int64_t node_moved; /* bytes of all its ranks: through memory, into and out of near messages */
} scale_step;

/* The sums of a walk over one rank. */
typedef struct scale_tally {
    const scale_job *job;
    int32_t rank, ports;
    scale_step *node, *mine; /* [steps] */
    int64_t *port;           /* [steps][ports][out, in] bytes */
    scale_message given;     /* by memory, the last one */
} scale_tally;

/* Returns 1 if both messages are the same data, which is then in the node's memory only once. */
static int32_t scale_again(const scale_message *first, const scale_message *second)
{
    return first->step == second->step && first->from == second->from &&
           first->begin == second->begin && first->count == second->count &&
           first->source == second->source && first->target == second->target &&
           first->sides == second->sides;
}

/* A scale_put that adds a message to a scale_tally. */
static void scale_count(void *to, const scale_message *message)
{
    scale_tally *tally = (scale_tally *)to;
    const int32_t p = tally->job->per_node, sends = message->from == tally->rank;
    const int32_t far = message->from / p != message->to / p;
    scale_step *mine = &tally->mine[message->step], *node = &tally->node[message->step];
    if (message->memory) {
        const int64_t moved = sends && scale_again(&tally->given, message) ? 0 : message->bytes;
        tally->given = sends ? *message : tally->given;
        mine->moved_bytes += moved;
        mine->peers += !sends;
        node->node_moved += moved;
        return;
    }
    mine->sent += sends;
    mine->got += !sends;
    mine->far += far && sends;
    mine->near += !far && sends;
    mine->far_bytes += far && !sends ? message->bytes : 0;
    mine->near_bytes += far || sends ? 0 : message->bytes;
    if (far) {
        tally->port[((int64_t)message->step * tally->ports + tally->rank % p % tally->ports) * 2 +
                    !sends] += message->bytes;
        node->out_messages += sends;
        node->out += sends ? message->bytes : 0;
        node->in += sends ? 0 : message->bytes;
    } else {
        node->node_moved +=
            sends ? 0 : 2 * message->bytes; /* a copy into the message, one out of it */
    }
}

static int64_t scale_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The same for the numbers of ranks alone. */
static void scale_busiest(scale_step *all, const scale_step *one)
{
    all->sent = scale_most(all->sent, one->sent);
    all->got = scale_most(all->got, one->got);
    all->far = scale_most(all->far, one->far);
    all->near = scale_most(all->near, one->near);
    all->far_bytes = scale_most(all->far_bytes, one->far_bytes);
    all->near_bytes = scale_most(all->near_bytes, one->near_bytes);
    all->moved_bytes = scale_most(all->moved_bytes, one->moved_bytes);
    all->peers = scale_most(all->peers, one->peers);
}

/* Takes each number of `one` that is larger than that of `all`. */
static void scale_busier(scale_step *all, const scale_step *one)
{
    scale_busiest(all, one);
    all->out_messages = scale_most(all->out_messages, one->out_messages);
    all->out = scale_most(all->out, one->out);
    all->in = scale_most(all->in, one->in);
    all->port_bytes = scale_most(all->port_bytes, one->port_bytes);
    all->node_moved = scale_most(all->node_moved, one->node_moved);
}

/* Adds up the lanes [0, lanes) of a node. Returns 0 if there is no memory, otherwise 1. */
static int32_t scale_add_up(const scale_job *job, int32_t node, int32_t lanes, int32_t ports,
                            scale_step *step)
{
    const int32_t steps = scale_steps(job);
    scale_tally tally;
    int32_t lane, s, k, ok;
    tally.job = job;
    tally.ports = ports;
    tally.node = step;
    tally.mine = (scale_step *)malloc((size_t)steps * sizeof *tally.mine);
    tally.port = (int64_t *)calloc((size_t)steps * (size_t)ports * 2, sizeof *tally.port);
    ok = tally.mine != NULL && tally.port != NULL;
    memset(step, 0, (size_t)steps * sizeof *step);
    for (lane = 0; ok && lane < lanes; lane++) {
        memset(tally.mine, 0, (size_t)steps * sizeof *tally.mine);
        memset(&tally.given, 0xff, sizeof tally.given);
        tally.rank = node * job->per_node + lane;
        scale_walk(job, tally.rank, scale_count, &tally);
        for (s = 0; s < steps; s++) {
            scale_busiest(&step[s], &tally.mine[s]);
        }
    }
    for (s = 0; ok && s < steps; s++) {
        step[s].times = 1;
        for (k = 0; k < 2 * ports; k++) {
            step[s].port_bytes =
                scale_most(step[s].port_bytes, tally.port[(int64_t)s * ports * 2 + k]);
        }
    }
    free(tally.mine);
    free(tally.port);
    return ok;
}

/* Returns the *steps steps of a world, which the caller frees, or NULL if there is no memory.
 *
 * Two nodes stand for all: the first, and the last, which sends and receives more than the others
 * if the number of nodes is no power of two. For flat doubling and halos the numbers of nodes and
 * of ranks on a node have to be powers of two. All steps of a ring are alike, because its vector is
 * rounded up to a multiple of the ranks, so that one step is replayed. In an all_to_all from each
 * to each one rank stands for all of its node. */
static scale_step *scale_replay(const scale_job *job, int32_t ports, int32_t *steps)
{
    const int64_t n = (int64_t)job->nodes * job->per_node;
    const int32_t one = job->way == ALL_EACH;
    scale_job replayed = *job;
    int32_t lanes = job->per_node, used_ports = ports;
    scale_step *step;
    int32_t s;
    if (one) {
        lanes = 1;
        used_ports = 1;
    }
    if (replayed.way == REDUCE_RING) {
        replayed.first_alone = 1;
        replayed.count = (replayed.count + n - 1) / n * n;
    }
    *steps = scale_steps(&replayed);
    step = (scale_step *)malloc(2 * (size_t)*steps * sizeof *step);
    if (step == NULL || !scale_add_up(&replayed, 0, lanes, used_ports, step) ||
        !scale_add_up(&replayed, replayed.nodes - 1, lanes, used_ports, step + *steps)) {
        free(step);
        return NULL;
    }
    for (s = 0; s < *steps; s++) {
        scale_busier(&step[s], &step[*steps + s]);
    }
    if (replayed.way == REDUCE_RING) {
        step->times = 2 * (n - 1);
    } else if (one) {
        step->out_messages *= replayed.per_node;
        step->out *= replayed.per_node;
        step->in *= replayed.per_node;
        step->node_moved *= replayed.per_node;
        step->port_bytes *= (replayed.per_node + ports - 1) / ports;
    }
    return step;
}

#endif
