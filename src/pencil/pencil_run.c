/* SPDX-License-Identifier: MIT-0 */
/* Begins, tests and ends transposes for the caller, and packs and takes points for ../exchange.
 * pencil_plan.h describes how a transpose runs. */
#include "pencil_run.h"

#include "../comm/agree.h"
#include "../comm/heap.h"
#include "pencil.h"
#include "pencil_copy.h"

/* ---- what ../exchange calls ------------------------------------------------------------------ */

/* Returns the entry of peer i in a table of the direction in progress. */
static int64_t dpari_pencil_entry(const dpari_pencil *plan, int32_t i)
{
    return (int64_t)plan->direction * plan->x.peers + i;
}

/* Copies the points that peers of this node read to registered memory. Returns the reference to
 * this copy. If there is no memory, returns 0 and breaks the communicator, because the other ranks
 * have begun. */
static uint64_t dpari_pencil_lend_copy(dpari_pencil *plan)
{
    const int64_t *bytes = plan->head.bytes;
    void *memory = plan->lent;
    int32_t i;
    if (!memory) {
        dpar_comm *of = dpari_pencil_memory_of(plan);
        const dpar_status status =
            dpar_comm_alloc(of, dpari_most(bytes[0], dpari_most(bytes[1], bytes[2])), &memory);
        if (status != DPAR_OK) {
            const dpar_why why = of->why;
            (void)dpari_comm_wrong_all(plan->head.comm, status, "%s", why.text);
            return 0;
        }
        plan->lent = (unsigned char *)memory;
    }
    for (i = 0; i < plan->x.peers; i++) {
        const dpari_pencil_side *give = &plan->give[dpari_pencil_entry(plan, i)];
        if (give->copy && i != plan->x.self && plan->x.peer[i].world >= 0) {
            dpari_pencil_run(give->copy, plan->lent, plan->in);
        }
    }
    return dpari_ref(plan->x.world, plan->lent, 1);
}

/* Publishes the reference to the array that peers of this node read, or to its copy. */
static dpar_status dpari_pencil_pack(void *of, int32_t s)
{
    dpari_pencil *plan = (dpari_pencil *)of;
    const int32_t from = plan->direction / 3;
    uint64_t ref;
    (void)s;
    plan->x.lends = plan->lends[plan->direction];
    if (!plan->x.lends) {
        return DPAR_OK;
    }
    ref = dpari_ref(plan->x.world, plan->in, plan->head.bytes[from]);
    if (ref == 0) {
        ref = dpari_pencil_lend_copy(plan);
    }
    plan->x.line->place[0] = ref;
    return ref != 0 ? DPAR_OK : plan->head.comm->status;
}

/* Returns where the message from peer i arrives, or if `sends`, the address of the message
 * to it, which is packed first unless it is sent in place. */
static unsigned char *dpari_pencil_message(void *of, int32_t s, int32_t i, int sends)
{
    dpari_pencil *plan = (dpari_pencil *)of;
    const dpari_pencil_side *give = &plan->give[dpari_pencil_entry(plan, i)];
    const dpari_pencil_side *take = &plan->take[dpari_pencil_entry(plan, i)];
    (void)s;
    if (!sends) {
        return take->at < 0 ? plan->out + take->copy->to_at : plan->in_messages + take->at;
    }
    if (give->at < 0) { /* messages are only read */
        return (unsigned char *)(uintptr_t)plan->in + give->copy->from_at;
    }
    dpari_pencil_run(give->copy, plan->out_messages + give->at, plan->in);
    return plan->out_messages + give->at;
}

/* Copies the points that this rank keeps. */
static void dpari_pencil_take_own(void *of, int32_t s)
{
    dpari_pencil *plan = (dpari_pencil *)of;
    const dpari_pencil_side *take;
    (void)s;
    if (plan->x.self >= 0) {
        take = &plan->take[dpari_pencil_entry(plan, plan->x.self)];
        if (take->copy) {
            dpari_pencil_run(take->copy, plan->out, plan->in);
        }
    }
}

/* Takes the points of peer i, which have arrived. */
static dpar_status dpari_pencil_take(void *of, int32_t s, int32_t i)
{
    dpari_pencil *plan = (dpari_pencil *)of;
    const dpari_pencil_side *take = &plan->take[dpari_pencil_entry(plan, i)];
    const unsigned char *from;
    uint64_t ref;
    (void)s;
    if (plan->x.peer[i].world < 0) {
        if (take->at >= 0) {
            dpari_pencil_run(take->copy, plan->out, plan->in_messages + take->at);
        }
        return DPAR_OK;
    }
    ref = plan->x.peer[i].line->place[0];
    from = (const unsigned char *)dpari_at(plan->x.world, ref);
    if (!from) {
        return dpari_exchange_unmapped(&plan->x, ref);
    }
    dpari_pencil_run(take->copy, plan->out, from);
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_pencil_set_functions(dpari_pencil *plan)
{
    plan->x.plan = plan;
    plan->x.pack = plan->x.shared > 0 ? dpari_pencil_pack : NULL;
    plan->x.message = dpari_pencil_message;
    plan->x.take_own = dpari_pencil_take_own;
    plan->x.take = dpari_pencil_take;
}

/* ---- transposes ------------------------------------------------------------------------------ */

/* Checks the arguments of a transpose. */
static dpar_status dpari_pencil_check(const dpari_pencil *plan, int32_t from, int32_t to,
                                      const void *in, const void *out)
{
    dpar_comm *comm = plan->head.comm;
    const uintptr_t a = (uintptr_t)in, b = (uintptr_t)out;
    int64_t in_bytes, out_bytes;
    if (from < 0 || from > 2 || to < 0 || to > 2 || from == to) {
        return dpari_comm_wrong(comm,
                                "pencil transpose from axis %d to axis %d: two different axes of "
                                "0, 1 and 2 are allowed",
                                from, to);
    }
    in_bytes = plan->head.bytes[from];
    out_bytes = plan->head.bytes[to];
    if ((!in && in_bytes > 0) || (!out && out_bytes > 0)) {
        return dpari_comm_wrong(
            comm, "pencil transpose from axis %d to axis %d: %s is NULL but must hold %ld bytes",
            from, to, !in && in_bytes > 0 ? "in" : "out",
            !in && in_bytes > 0 ? in_bytes : out_bytes);
    }
    if (in_bytes > 0 && out_bytes > 0 && a < b + (uintptr_t)out_bytes &&
        b < a + (uintptr_t)in_bytes) {
        return dpari_comm_wrong(comm,
                                "pencil transpose from axis %d to axis %d: in (%ld bytes) and out "
                                "(%ld bytes) overlap; use two arrays",
                                from, to, in_bytes, out_bytes);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_pencil_begin(dpar_pencil *pencil, int32_t from, int32_t to,
                                       const void *in, void *out)
{
    dpari_pencil *plan = dpari_pencil_of(pencil);
    dpar_status status;
    if (!pencil) {
        return DPAR_E_ARG;
    }
    status = dpari_exchange_may_begin(&plan->x);
    if (status == DPAR_OK) {
        status = dpari_pencil_check(plan, from, to, in, out);
    }
    if (status != DPAR_OK) {
        return status;
    }
    plan->direction = 3 * from + to;
    plan->in = (const unsigned char *)in;
    plan->out = (unsigned char *)out;
    plan->x.flow = plan->flow + (int64_t)plan->direction * plan->x.peers;
    plan->x.step[0].meets = plan->meets[plan->direction];
    /* peers compare the direction, which is above the bits of the operation */
    return dpari_exchange_begin(&plan->x, DPAR_COPY,
                                (uint64_t)plan->direction * (DPARI_EXCHANGE_OP + 1));
}

DPAR_API dpar_status dpar_pencil_test(dpar_pencil *pencil)
{
    return pencil ? dpari_exchange_advance(&dpari_pencil_of(pencil)->x, 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_pencil_end(dpar_pencil *pencil)
{
    return pencil ? dpari_exchange_advance(&dpari_pencil_of(pencil)->x, 1) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_pencil_transpose(dpar_pencil *pencil, int32_t from, int32_t to,
                                           const void *in, void *out)
{
    const dpar_status status = dpar_pencil_begin(pencil, from, to, in, out);
    return status == DPAR_OK ? dpar_pencil_end(pencil) : status;
}
