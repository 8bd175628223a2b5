/* SPDX-License-Identifier: MIT-0 */
/* dpari_do_x runs operation x of layers.h with the table of comm->mem, or with the host's loops if
 * comm->mem is NULL. If the table has no such operation, the communicator breaks with
 * DPAR_E_UNKNOWN. */
#include "layer_calls.h"

#include "../comm/memory_calls.h"
#include "../host/layers_norm.h"
#include "../host/layers_private.h"

/* Breaks a communicator whose memory has no table of layers. */
static DPARI_COLD dpar_status dpari_do_without(dpar_comm *comm, const char *what)
{
    dpar_why why;
    if (comm->status >= 0) {
        (void)dpari_say(DPAR_E_UNKNOWN, &why,
                        "rank %d: comm->mem->layers is NULL, but the operation %s is needed",
                        comm->rank, what);
        dpar_comm_abort(comm, DPAR_E_UNKNOWN, why.text);
    }
    return DPAR_E_UNKNOWN;
}

/* Defines dpari_do_x, which runs operation x by the table of comm->mem, or of the host if that is
 * NULL. */
#define DPARI_DO_LAYER_OF(linkage, name, struct_name)                                              \
    linkage dpar_status dpari_do_##name(dpar_comm *comm, const struct_name *call)                  \
    {                                                                                              \
        const dpar_mem *m = comm->mem;                                                             \
        const dpar_mem_layers *l = m != NULL ? (const dpar_mem_layers *)m->layers : NULL;          \
        if (m == NULL) {                                                                           \
            return dpari_mem_##name(NULL, call);                                                   \
        }                                                                                          \
        if (l == NULL) {                                                                           \
            return dpari_do_without(comm, #name);                                                  \
        }                                                                                          \
        return dpari_do_ended(comm, l->name == NULL ? DPAR_E_UNKNOWN : l->name(m->ctx, call),      \
                              #name);                                                              \
    }
#define DPARI_DO_LAYER(linkage, name) DPARI_DO_LAYER_OF(linkage, name, dpar_mem_##name)
DPARI_DO_LAYER(DPARI_INTERNAL, squares)
DPARI_DO_LAYER(DPARI_INTERNAL, optimize)
DPARI_DO_LAYER(DPARI_INTERNAL, round)
DPARI_DO_LAYER(DPARI_INTERNAL, gather)
DPARI_DO_LAYER(DPARI_INTERNAL, scatter)
DPARI_DO_LAYER(DPARI_INTERNAL, combine)
DPARI_DO_LAYER(DPARI_INTERNAL, dot)
DPARI_DO_LAYER(DPARI_INTERNAL, cross_entropy)
DPARI_DO_LAYER(DPARI_INTERNAL, attention_merge)
DPARI_DO_LAYER(DPARI_INTERNAL, quantize)
DPARI_DO_LAYER_OF(DPARI_INTERNAL, dequantize, dpar_mem_quantize)
DPARI_DO_LAYER(DPARI_API, moments)
DPARI_DO_LAYER(DPARI_API, norm)
