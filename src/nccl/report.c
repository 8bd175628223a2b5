/* SPDX-License-Identifier: MIT-0 */
/* Writes reports from the ring of the last operations and from the notes that other ranks sent over
 * the side channel. */
#include "report.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/comm.h"
#include "../comm/record.h"
#include "operation.h"
#include "state.h"

DPARI_INTERNAL void dpari_nccl_report(dpar_comm *comm, dpar_text *out)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    dpari_nccl_world *world = context->world;
    int32_t r;
    dpari_nccl_lock(world);
    dpari_nccl_reap(world);
    dpari_record_report(out, comm, context->ring, context->records);
    for (r = 0; world->side.known != NULL && r < comm->size; r++) {
        const dpari_nccl_note *n = &world->side.note[context->member[r]];
        if (r != comm->rank && world->side.known[context->member[r]] && n->comm == context->name &&
            n->last.sequence >= 0) {
            dpari_text_say(out, "rank %d reported that it %s ", r,
                           n->last.state == DPAR_MORE ? "waits in" : "has finished");
            dpari_record_text(out, &n->last);
            dpari_text_char(out, '\n');
        }
    }
    dpari_nccl_unlock(world);
}

/* Returns the number of machines on which the context's ranks are, or 0 if it is not known. */
static int32_t dpari_nccl_nodes(const dpari_nccl_ctx *context)
{
    const uint64_t *node = context->world->node;
    int32_t r, k, nodes = 0;
    for (r = 0; node != NULL && r < context->comm.size; r++) {
        for (k = 0; k < r && node[context->member[k]] != node[context->member[r]]; k++) {
        }
        nodes += k == r;
    }
    return nodes;
}

DPARI_INTERNAL void dpari_nccl_describe(dpar_comm *comm, dpar_text *out)
{
    const int32_t nodes = dpari_nccl_nodes(dpari_nccl_ctx_of(comm));
    dpar_text_put(out, ", a GPU each");
    if (nodes > 0) {
        dpari_text_say(out, " on %d node%s", nodes, nodes == 1 ? "" : "s");
    }
    dpar_text_put(out, "; NCCL chooses the paths: in a node NVLink, PCIe or host memory");
    dpar_text_put(out, nodes == 1 ? "" : ", between nodes the network");
}
