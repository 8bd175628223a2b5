/* SPDX-License-Identifier: MIT-0 */
/* record - private: operations as the engines over MPI and NCCL record them, for messages and
 * reports. Header-only, so that only these engines contain the code. */
#ifndef DPARI_COMM_RECORD_H
#define DPARI_COMM_RECORD_H

#include "../base/arith.h"
#include "../base/base_private.h"
#include "comm.h"
#include "engine.h"

typedef struct dpari_record {
    int64_t sequence, count;
    int32_t kind, type, op, root, tag;
    int32_t state; /* DPAR_MORE while in progress, then the status with which it ended */
} dpari_record;

enum { DPARI_RECORDS = 32 }; /* the last operations of a communicator, which are kept in a ring */

DPARI_FN dpari_record dpari_record_of(const dpar_call *call, int64_t sequence)
{
    dpari_record r;
    r.sequence = sequence;
    r.count = call->count;
    r.kind = call->kind;
    r.type = call->type;
    r.op = call->op;
    r.root = call->root;
    r.tag = call->tag;
    r.state = DPAR_OK;
    return r;
}

/* True if both are the same call. counts: 0 if the ranks may pass different counts. */
DPARI_FN int dpari_record_same(const dpari_record *a, const dpari_record *b, int counts)
{
    return a->kind == b->kind && a->type == b->type && a->op == b->op && a->root == b->root &&
           dpari_tag_compared(a->tag) == dpari_tag_compared(b->tag) &&
           (!counts || a->count == b->count);
}

/* Writes "all-reduce #12 of 100 f32 sum", with all that ranks have to agree on. */
DPARI_FN void dpari_record_text(dpar_text *text, const dpari_record *r)
{
    dpari_operation_text(text, r->kind, r->sequence, r->type, r->count, r->root, r->tag);
    if (dpari_tag_compared(r->tag) != r->tag) {
        return;
    }
    if (dpari_kind_reduces(r->kind)) {
        dpari_text_say(text, " %s", dpari_op_name(r->op));
    }
    if (dpari_kind_rooted(r->kind)) {
        dpari_text_say(text, " root %d", r->root);
    }
    if (!dpari_kind_sends(r->kind) && r->tag != 0) {
        dpari_text_say(text, " tag %d", r->tag);
    }
}

/* Writes "rank 0 of 4, mpi", and a line for each operation in the ring. count: operations so far.
 */
DPARI_FN void dpari_record_report(dpar_text *text, const dpar_comm *comm, const dpari_record *ring,
                                  int64_t count)
{
    int64_t i = count > DPARI_RECORDS ? count - DPARI_RECORDS : 0;
    dpari_text_say(text, "rank %d of %d, %s\n", comm->rank, comm->size, comm->engine.name);
    for (; i < count; i++) {
        const dpari_record *r = &ring[i % DPARI_RECORDS];
        dpar_text_put(text, "  ");
        dpari_record_text(text, r);
        if (r->state == DPAR_MORE) {
            dpar_text_put(text, ": in progress\n");
        } else {
            dpar_text_put(text, r->state < 0 ? ": failed\n" : ": done\n");
        }
    }
}

#endif
