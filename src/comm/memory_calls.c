/* SPDX-License-Identifier: MIT-0 */
/* Calls the functions of comm->mem, or the loops of mem.c if comm->mem is NULL, and breaks the
 * communicator if a function fails. The moves and the strategies of dpar_train.h call it. */
#include "memory_calls.h"

#include "../base/base_private.h"
#include "../host/mem_private.h"

DPARI_API dpar_status dpari_do_ended(dpar_comm *comm, dpar_status st, const char *what)
{
    dpar_why why;
    if (st < 0 && comm->status >= 0) {
        (void)dpari_say(st, &why, "rank %d: %s of its dpar_mem failed", comm->rank, what);
        dpar_comm_abort(comm, st, why.text);
    }
    return st < 0 ? st : DPAR_OK;
}

DPARI_API dpar_status dpari_do_move(dpar_comm *comm, const dpar_mem_box *boxes, int32_t n)
{
    const dpar_mem *m = comm->mem;
    if (m == NULL) {
        return dpari_mem_move(NULL, boxes, n);
    }
    return dpari_do_ended(comm, m->move == NULL ? DPAR_E_UNKNOWN : m->move(m->ctx, boxes, n),
                          "move");
}

DPARI_API dpar_status dpari_do_wait(dpar_comm *comm)
{
    const dpar_mem *m = comm->mem;
    return m == NULL || m->wait == NULL ? DPAR_OK : dpari_do_ended(comm, m->wait(m->ctx), "wait");
}

DPARI_API dpar_status dpari_do_span(dpar_comm *comm, const dpar_mem_span *call, int32_t n)
{
    const dpar_mem *m = comm->mem;
    if (m == NULL) {
        return dpari_mem_span(NULL, call, n);
    }
    return dpari_do_ended(comm, m->span == NULL ? DPAR_E_UNKNOWN : m->span(m->ctx, call, n),
                          "span");
}

/* Defines dpari_do_reduce and dpari_do_finite. */
#define DPARI_DO(name)                                                                             \
    DPARI_API dpar_status dpari_do_##name(dpar_comm *comm, const dpar_mem_##name *call)            \
    {                                                                                              \
        const dpar_mem *m = comm->mem;                                                             \
        if (m == NULL) {                                                                           \
            return dpari_mem_##name(NULL, call);                                                   \
        }                                                                                          \
        return dpari_do_ended(comm, m->name == NULL ? DPAR_E_UNKNOWN : m->name(m->ctx, call),      \
                              #name);                                                              \
    }
DPARI_DO(reduce)
DPARI_DO(finite)

DPARI_API dpar_status dpari_do_convert(dpar_comm *comm, void *to, int32_t to_type, const void *from,
                                       int32_t from_type, int64_t count, int add)
{
    dpar_mem_span s;
    dpari_zero(&s, sizeof s);
    s.to = to;
    s.from = from;
    s.count = count;
    s.to_type = to_type;
    s.from_type = from_type;
    s.accumulate = add != 0;
    s.scale = from != NULL ? 1.0 : 0.0;
    return count > 0 ? dpari_do_span(comm, &s, 1) : DPAR_OK;
}

DPARI_API dpar_status dpari_do_copy(dpar_comm *comm, void *to, const void *from, int64_t bytes)
{
    return to == from ? DPAR_OK : dpari_do_convert(comm, to, DPAR_U8, from, DPAR_U8, bytes, 0);
}

DPARI_API dpar_status dpari_do_rows(dpar_comm *comm, void *to, int64_t to_step, const void *from,
                                    int64_t from_step, int64_t count, int64_t rows, int32_t type,
                                    int32_t op)
{
    dpar_mem_box b;
    if (count <= 0 || rows <= 0) {
        return DPAR_OK;
    }
    dpari_zero(&b, sizeof b);
    b.to = to;
    b.from = (void *)(uintptr_t)from; /* read only */
    b.to_type = b.from_type = b.round_type = type;
    b.op = op;
    b.dims = 2;
    b.extent[0] = rows;
    b.extent[1] = count;
    b.to_stride[0] = to_step;
    b.from_stride[0] = from_step;
    b.to_stride[1] = b.from_stride[1] = 1;
    return dpari_do_move(comm, &b, 1);
}
