/* SPDX-License-Identifier: MIT-0 */
/* pair - private: what each pair of ranks exchanges in an operation that moves data, as the
 * engines over MPI and NCCL send it. Header-only, so that only these engines contain the code. */
#ifndef DPARI_COMM_PAIR_H
#define DPARI_COMM_PAIR_H

#include "../base/arith.h"
#include "comm.h"

/* What this rank sends to one rank and receives from it, in elements. Every operation that moves
 * data is described as an all-to-all in which some messages do not exist. */
typedef struct dpari_pair {
    int64_t give, take; /* elements sent and received; -1 if there is no message, which is not the
                           same as an empty one */
    int64_t from, to;   /* the first of them in `in` and in `out` */
    int64_t in, out;    /* elements of the pieces so far; 0 before rank 0 */
} dpari_pair;

/* Sets *p to the piece of rank r, for r = 0, 1, ... one after the other. */
DPARI_FN void dpari_pair_next(const dpar_comm *comm, const dpar_call *call, int32_t r,
                              dpari_pair *p)
{
    const int64_t n = call->count;
    const int root = comm->rank == call->root;
    int in = 0, out = 0; /* 1: `in` and `out` have a piece for each rank */
    p->give = p->take = -1;
    p->from = p->to = 0;
    switch (call->kind) {
    case DPAR_CALL_BROADCAST:
        p->give = root ? n : -1;
        p->take = r == call->root ? n : -1;
        break;
    case DPAR_CALL_GATHER:
        p->give = r == call->root ? n : -1;
        out = root;
        break;
    case DPAR_CALL_SCATTER:
        p->take = r == call->root ? n : -1;
        in = root;
        break;
    case DPAR_CALL_ALL_GATHER:
        p->give = call->variable_counts ? call->out_count[comm->rank] : n;
        out = 1;
        break;
    case DPAR_CALL_ALL_TO_ALL: in = out = 1; break;
    default: break;
    }
    if (in) {
        p->give = call->variable_counts ? call->in_count[r] : n;
        p->from = call->variable_counts && call->in_first != NULL ? call->in_first[r] : p->in;
        p->in += p->give;
    }
    if (out) {
        p->take = call->variable_counts ? call->out_count[r] : n;
        p->to = call->variable_counts && call->out_first != NULL ? call->out_first[r] : p->out;
        p->out += p->take;
    }
}

#endif
