/* SPDX-License-Identifier: MIT-0 */
/* ZeRO-1, 2 and 3. The gathered weights of a unit are in a slot, and its gradients are computed in
 * a bucket. With ZeRO-1 and 2 each unit keeps the same slot. With ZeRO-3 there is a pool of
 * prefetch + units_in_use slots: dpar_fsdp_unshard gathers the unit and the next ones in the same
 * direction, into free slots or into the slot whose unit is needed last. Buckets form such a pool
 * if gradients are shards; otherwise each unit keeps the same bucket. Resident units always keep
 * their own slot and bucket, outside of the pool.
 *
 * dpar_fsdp_ready posts the reduce-scatter of a bucket. The bucket is free again once its result
 * has been added to the rank's shard. Every collective has the unit as its tag, so that ranks that
 * visit units in different orders get DPAR_E_MISMATCH instead of mixed weights.
 *
 * Zeroing is lazy: dpar_fsdp_zero only marks the gradients of each unit as 0 (`fresh`). The next
 * function that needs them overwrites or zeroes their memory. */
#include "fsdp.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/memory_calls.h"
#include "../comm/object_memory.h"
#include "../host/moment_codes.h"
#include "../index/flat.h"
#include "../index/index_private.h"
#include "fsdp_arrays.h"
#include "fsdp_place.h"
#include "fsdp_private.h"
#include "layer_calls.h"
#include "update_private.h"

/* ---- make and free --------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_fsdp_sizes_init(dpar_fsdp_sizes *sizes, int32_t shards,
                                                     const dpar_fsdp_desc *desc, dpar_why *why)
{
    dpar_fsdp d;
    if (sizes == NULL) {
        return dpari_wrong(why, "dpar_fsdp_sizes_init: sizes is NULL");
    }
    return dpari_fsdp_plan(&d, shards, desc, sizes, why);
}

DPARI_INTERNAL DPARI_COLD void dpari_fsdp_facts_place(dpari_facts *facts, const dpari_fsdp_given *g)
{
    if (g->shard != NULL) {
        facts->of = "across replicas: ";
        dpari_fact(facts, "the number of shards", 0, g->shard->size);
        dpari_fact(facts, "the rank in the shards' communicator", 0, g->shard->rank);
    } else {
        dpari_fact(facts, "replicas != NULL", 0, g->replicas);
    }
}

/* Lists the values that must be equal on all ranks in dpar_fsdp_make. */
static DPARI_COLD void dpari_fsdp_facts(dpari_facts *facts, const void *given)
{
    const dpari_fsdp_given *g = (const dpari_fsdp_given *)given;
    const dpar_fsdp_desc *desc = &g->fsdp->desc;
    int32_t i;
    dpari_fsdp_facts_place(facts, g);
    dpari_fact(facts, "the number of units", 0, g->fsdp->units);
    dpari_fact(facts, "zero", 0, desc->zero);
    dpari_fact_type(facts, "type", 0, desc->type);
    dpari_fact_type(facts, "compute_type", 0, desc->compute_type);
    dpari_fact_type(facts, "gradient_type", 0, desc->gradient_type);
    dpari_fact(facts, "prefetch", 0, desc->prefetch);
    dpari_fact(facts, "gradient_buffers", 0, dpari_most(1, desc->gradient_buffers));
    dpari_fact(facts, "units_in_use", 0, dpari_most(1, desc->units_in_use));
    dpari_fact(facts, "reduce_last", 0, desc->reduce_last);
    dpari_fact(facts, "sum", 0, desc->sum);
    dpari_fact(facts, "overwrite_gradients", 0, desc->overwrite_gradients);
    dpari_fact(facts, "align", 0, dpari_most(1, desc->align));
    dpari_update_facts(facts, &desc->optimizer, dpari_fsdp_moment_type(desc));
    for (i = 0; i < g->fsdp->units; i++) {
        dpari_fact(facts, "params_per_unit[#]", i, dpari_fsdp_params(desc, i));
        dpari_fact(facts, "frozen[#]", i, dpari_fsdp_flag(desc->frozen, i));
        dpari_fact(facts, "resident[#]", i, dpari_fsdp_flag(desc->resident, i));
    }
    dpari_fact(facts, "the number of groups", 0, desc->groups);
    for (i = 0; i < desc->groups; i++) {
        dpari_update_facts_group(facts, i, &desc->group[i]);
    }
    dpari_fact(facts, "arrays", 0, desc->arrays);
    for (i = 0; i < dpari_fsdp_listed(desc, g->fsdp->params); i++) {
        if (desc->arrays > 0) {
            dpari_fact(facts, "array[#].count", i, desc->array[i].count);
            dpari_fact(facts, "array[#].slices", i, desc->array[i].slices);
            dpari_fact(facts, "array[#].unit", i, desc->array[i].unit);
        } else {
            dpari_fact(facts, "count[#]", i, desc->count[i]);
        }
        if (desc->groups > 0) {
            dpari_fact(facts, "group_of[#]", i, desc->group_of[i]);
        }
    }
}

/* Allocates the registered memory and divides it into its parts. */
static DPARI_COLD dpar_status dpari_fsdp_allocate(dpar_fsdp *fsdp, const dpar_fsdp_sizes *s,
                                                  dpar_why *why)
{
    const int64_t moment =
        dpari_moment_bytes(dpari_fsdp_moment_type(&fsdp->desc), fsdp->trained_sum);
    void *memory = NULL;
    unsigned char *at;
    dpar_status st = dpar_comm_alloc(fsdp->shard, dpari_most(64, s->registered), &memory);
    if (st != DPAR_OK) {
        return dpari_say(st, why, "%s: no memory for %ld bytes", "fsdp", s->registered);
    }
    at = fsdp->memory = (unsigned char *)memory;
    fsdp->weights = at; /* s->weights or s->gathered is 0 */
    at += dpari_room_up(s->weights) + dpari_room_up(s->gathered);
    fsdp->grads = at; /* whole gradients, or the buckets, which the sums follow */
    if (!dpari_fsdp_gradients_whole(&fsdp->desc)) {
        at += dpari_room_up(s->buckets);
    }
    fsdp->sums = at;
    at += dpari_room_up(s->gradients);
    fsdp->master = at;
    at += dpari_room_up(s->master);
    fsdp->moment[0] = at;
    fsdp->moment[1] = at + moment;
    if (fsdp->shard->mem != NULL && fsdp->shard->mem->pin != NULL) {
        st = fsdp->shard->mem->pin(fsdp->shard->mem->ctx, &fsdp->squares,
                                   (int64_t)sizeof fsdp->squares);
        if (st != DPAR_OK) {
            return dpari_say(st, why, "fsdp: %ld bytes cannot be pinned",
                             (int64_t)sizeof fsdp->squares);
        }
        fsdp->pinned = 1;
    }
    return DPAR_OK;
}

/* Frees the registered memory. */
static DPARI_COLD void dpari_fsdp_release(dpar_fsdp *fsdp)
{
    if (fsdp->pinned && fsdp->shard->mem->unpin != NULL) {
        (void)fsdp->shard->mem->unpin(fsdp->shard->mem->ctx, &fsdp->squares);
    }
    if (fsdp->memory != NULL) {
        dpar_comm_release(fsdp->shard, fsdp->memory);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_fsdp_agree(dpar_comm *shard, dpar_comm *replicas,
                                                       dpar_status st, const char *plan,
                                                       dpari_state *state, dpari_fsdp_given *given,
                                                       dpar_why *why)
{
    dpar_status within;
    given->shard = NULL;
    given->replicas = replicas != NULL;
    st = dpari_agree_on(shard, st, plan, state, given, why);
    if (replicas == NULL) {
        return st;
    }
    within = st;
    given->shard = shard;
    st = dpari_agree_on(replicas, st, plan, state, given, why);
    /* so that an error found only across replicas reaches all ranks */
    return within == DPAR_OK ? dpari_agree(shard, st, why) : st;
}

/* Fills in an fsdp for which the numbers were computed and memory was provided, allocates the
 * registered memory, and copies the first values of the arrays. */
static DPARI_COLD dpar_status dpari_fsdp_build(dpar_fsdp *fsdp, dpar_comm *comm,
                                               const dpar_fsdp_sizes *sizes, dpar_why *why)
{
    int64_t plan;
    int32_t i;
    dpar_status st;
    dpari_fsdp_place(fsdp, fsdp, &plan);
    fsdp->shard = comm;
    fsdp->replicas = fsdp->desc.replicas;
    st = dpari_fsdp_fill_in(fsdp, why);
    if (st == DPAR_OK) {
        st = dpari_fsdp_allocate(fsdp, sizes, why);
    }
    for (i = 0; i < fsdp->params && fsdp->desc.arrays > 0 && st == DPAR_OK; i++) {
        const void *values = dpari_fsdp_first_values(fsdp, i);
        st = values != NULL ? dpar_fsdp_set(fsdp, i, values) : DPAR_OK;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_make(dpar_comm *comm, const dpar_fsdp_desc *desc,
                                               dpar_fsdp **fsdp, dpar_why *why)
{
    dpar_fsdp counted, *d;
    dpar_fsdp_sizes sizes;
    dpari_fsdp_given given;
    dpar_comm *replicas;
    void *memory = NULL;
    dpar_status st;
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_fsdp_make: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    replicas = desc != NULL ? desc->replicas : NULL;
    sizes.plan = 0;
    st = fsdp == NULL ? dpari_wrong(why, "dpar_fsdp_make: the result is NULL")
                      : dpari_fsdp_plan(&counted, comm->size, desc, &sizes, why);
    if (st == DPAR_OK && comm->mem != NULL && dpari_fsdp_moment_type(&counted.desc) == DPAR_F8) {
        st = dpari_wrong(why, "fsdp: moment_type is f8, which needs the memory of the host");
    }
    if (st == DPAR_OK) {
        st = dpari_fsdp_check_arrays(&counted, why);
    }
    if (st == DPAR_OK) {
        st = dpari_object_memory(comm, desc->memory, desc->bytes, sizes.plan, "fsdp", &memory, why);
    }
    dpari_zero(&given, sizeof given);
    given.fsdp = &counted;
    st = dpari_fsdp_agree(comm, replicas, st, "fsdp", dpari_fsdp_facts, &given, why);
    if (st == DPAR_OK) {
        d = (dpar_fsdp *)memory;
        *d = counted;
        d->last = 1;
        st = dpari_fsdp_agree(comm, replicas, dpari_fsdp_build(d, comm, &sizes, why), "fsdp", NULL,
                              &given, why);
        if (st == DPAR_OK) {
            *fsdp = d;
            return DPAR_OK;
        }
        dpari_fsdp_release(d);
    }
    return dpari_object_failed(st, desc != NULL ? desc->memory : NULL, memory, sizes.plan, why);
}

DPARI_INTERNAL int dpari_fsdp_broken(const dpar_fsdp *fsdp)
{
    return fsdp->shard->status != DPAR_OK ||
           (fsdp->replicas != NULL && fsdp->replicas->status != DPAR_OK);
}

DPARI_INTERNAL dpar_status dpari_fsdp_why_broken(const dpar_fsdp *fsdp)
{
    return fsdp->shard->status != DPAR_OK ? fsdp->shard->status : fsdp->replicas->status;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_fsdp_forget(dpar_fsdp *fsdp, int32_t trained)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < fsdp->slots; i++) {
        dpari_fsdp_slot *s = &fsdp->slot[i];
        if (s->unit >= 0 && !(trained && fsdp->unit[s->unit].frozen)) {
            st = dpari_first_error(st, dpar_wait(&s->work));
            fsdp->unit[s->unit].slot = -1;
            s->unit = -1;
        }
    }
    return st;
}

/* Ends the use of all units and of their gradients. */
static DPARI_COLD void dpari_fsdp_end_use(dpar_fsdp *fsdp)
{
    int32_t u;
    for (u = 0; u < fsdp->units; u++) {
        dpari_fsdp_unit *unit = &fsdp->unit[u];
        if (unit->used) {
            dpari_fsdp_point(fsdp, u, 0, 0);
        }
        if (unit->state == DPARI_FSDP_OPEN) {
            dpari_fsdp_point(fsdp, u, 1, 0);
        }
        unit->used = 0;
        unit->state = DPARI_FSDP_NONE;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_free(dpar_fsdp *fsdp)
{
    int32_t i;
    if (fsdp == NULL) {
        return DPAR_OK;
    }
    if (fsdp->under_way && !dpari_fsdp_broken(fsdp)) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_free: the pass has not ended");
    }
    /* If a communicator broke during a pass, operations may still use the memory. */
    dpari_fsdp_end_use(fsdp);
    (void)dpari_fsdp_forget(fsdp, 0);
    for (i = 0; i < fsdp->buckets; i++) {
        (void)dpar_wait(&fsdp->bucket[i].work);
    }
    for (i = 0; i < fsdp->units; i++) {
        (void)dpar_wait(&fsdp->unit[i].across);
    }
    dpari_fsdp_release(fsdp);
    return dpari_object_end(DPAR_OK, fsdp->desc.memory == NULL ? fsdp : NULL);
}

/* Posts a collective on unit u. The tag is the unit, so that ranks that visit units of equal size
 * in different orders get an error. */
static DPARI_COLD dpar_status dpari_fsdp_post(dpar_fsdp *fsdp, int32_t kind, int32_t u,
                                              const void *in, void *out, int32_t type,
                                              dpar_work *work)
{
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = kind;
    call.type = type;
    call.tag = u + 1;
    call.in = in;
    call.out = out;
    call.count = fsdp->unit[u].flat.shard;
    if (kind == DPAR_CALL_REDUCE_SCATTER) {
        call.op = fsdp->desc.sum ? DPAR_SUM : DPAR_AVG;
    }
    return dpari_post(fsdp->shard, &call, work);
}

/* ---- parameters ----------------------------------------------------------------------------- */

DPAR_API DPARI_COLD const void *dpar_fsdp_weight(const dpar_fsdp *fsdp, int32_t i)
{
    const dpari_fsdp_unit *unit;
    if (fsdp == NULL || i < 0 || i >= fsdp->params) {
        return NULL;
    }
    unit = &fsdp->unit[fsdp->home[i]];
    if (!unit->used || (unit->slot < 0 && unit->flat.shard > 0)) {
        return NULL;
    }
    if (unit->slot < 0) {
        return fsdp->weights; /* a unit without elements: any address that is not NULL */
    }
    return dpari_fsdp_slot_at(fsdp, unit->slot) +
           fsdp->start[i] * dpar_type_bytes(fsdp->desc.compute_type);
}

DPAR_API DPARI_COLD void *dpar_fsdp_gradient(const dpar_fsdp *fsdp, int32_t i, int *adds)
{
    const dpari_fsdp_unit *unit;
    if (adds != NULL) {
        *adds = 1;
    }
    if (fsdp == NULL || i < 0 || i >= fsdp->params) {
        return NULL;
    }
    unit = &fsdp->unit[fsdp->home[i]];
    if (adds != NULL) {
        *adds = unit->adds;
    }
    if (unit->state != DPARI_FSDP_OPEN || unit->frozen) {
        return NULL;
    }
    if (unit->bucket < 0) {
        return fsdp->grads; /* a unit without elements */
    }
    return dpari_fsdp_bucket_at(fsdp, unit->bucket) +
           fsdp->start[i] * dpar_type_bytes(fsdp->desc.gradient_type);
}

DPAR_API int dpar_fsdp_piece(const dpar_fsdp *fsdp, int32_t i, dpar_piece *piece)
{
    dpar_piece unwanted;
    return fsdp != NULL && i >= 0 && i < fsdp->params &&
           dpari_flat_piece(&fsdp->unit[fsdp->home[i]].flat, fsdp->start[i], fsdp->count[i],
                            fsdp->shard->rank, piece != NULL ? piece : &unwanted);
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_set(dpar_fsdp *fsdp, int32_t i, const void *values)
{
    const unsigned char *from = (const unsigned char *)values;
    dpar_piece piece;
    int64_t each;
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_set: the pass has not ended");
    }
    if (i < 0 || i >= fsdp->params) {
        return dpari_comm_wrong(
            fsdp->shard, "dpar_fsdp_set: parameter %d does not exist (the model has %d parameters)",
            i, fsdp->params);
    }
    if (values == NULL && fsdp->count[i] > 0) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_set: the %ld values of parameter %d are NULL",
                                fsdp->count[i], i);
    }
    each = dpar_type_bytes(fsdp->desc.type);
    st = dpari_fsdp_forget(fsdp, 0);
    if (st == DPAR_OK && dpar_fsdp_piece(fsdp, i, &piece)) {
        st = dpari_do_copy(fsdp->shard,
                           dpari_fsdp_master_at(fsdp, fsdp->home[i]) + piece.in_shard * each,
                           from + piece.in_param * each, piece.count * each);
    }
    return st;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Writes "unit 'wte'" or "unit 3". */
static DPARI_COLD void dpari_fsdp_put_unit(const dpar_fsdp *fsdp, dpar_text *text, int32_t u)
{
    const char *name = fsdp->desc.names != NULL ? fsdp->desc.names[u] : NULL;
    if (name != NULL) {
        dpari_text_print(text, "unit '%s'", name);
    } else {
        dpari_text_print(text, "unit %d", u);
    }
}

/* Reports that no slot or bucket is left for unit u, and which units hold them. */
static DPARI_COLD dpar_status dpari_fsdp_no_room(dpar_fsdp *fsdp, int32_t u, int32_t gradients)
{
    enum { NAMED = 3 };
    dpar_why why;
    dpar_text t;
    int32_t v, n = 0;
    dpari_text_why(&t, &why);
    dpar_text_put(&t, gradients ? "fsdp: no memory is left for the gradients of "
                                : "fsdp: no memory is left for the weights of ");
    dpari_fsdp_put_unit(fsdp, &t, u);
    dpar_text_put(&t, " in addition to those of ");
    for (v = 0; v < fsdp->units; v++) {
        const dpari_fsdp_unit *unit = &fsdp->unit[v];
        const int holds = gradients ? unit->state == DPARI_FSDP_OPEN && !unit->frozen : unit->used;
        if (!holds || unit->resident) {
            continue;
        }
        if (n < NAMED) {
            dpar_text_put(&t, n > 0 ? ", " : "");
            dpari_fsdp_put_unit(fsdp, &t, v);
        }
        n++;
    }
    if (n > NAMED) {
        dpari_text_say(&t, " and %d more", n - (int32_t)NAMED);
    }
    dpar_text_put(&t, gradients ? ", which are not ready (desc.units_in_use is the limit)"
                                : ", which are in use (desc.units_in_use is the limit)");
    return dpari_comm_say(fsdp->shard, DPAR_E_ROOM, "%s", why.text);
}

/* Returns a slot for unit u: a free one, otherwise the slot of the unit that is needed last, which
 * is the smallest unit in forward and the largest in backward. Units in use keep their slots, and
 * so do units lo .. hi, which are needed next. Returns -1 if that leaves no slot. */
static DPARI_COLD int32_t dpari_fsdp_pick(const dpar_fsdp *fsdp, int32_t u, int32_t lo, int32_t hi,
                                          int32_t back)
{
    int32_t i, best = -1;
    if (fsdp->unit[u].own_slot >= 0) {
        return fsdp->unit[u].own_slot;
    }
    for (i = 0; i < fsdp->pool_slots; i++) {
        const int32_t v = fsdp->slot[i].unit;
        if (v < 0) {
            return i;
        }
        if (fsdp->unit[v].used || (v >= lo && v <= hi)) {
            continue;
        }
        if (best < 0 || (back ? v > fsdp->slot[best].unit : v < fsdp->slot[best].unit)) {
            best = i;
        }
    }
    return best;
}

/* Converts this rank's masters of unit u from desc.type to compute_type. Those of a frozen unit are
 * always rounded to nearest, so that they have the same bits in each step. */
static dpar_status dpari_fsdp_cast(const dpar_fsdp *fsdp, int32_t u, unsigned char *to)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    const int64_t count = fsdp->unit[u].flat.shard;
    dpar_mem_round r;
    if (desc->compute_type != DPAR_BF16 || !desc->optimizer.stochastic || fsdp->unit[u].frozen) {
        return dpari_do_convert(fsdp->shard, to, desc->compute_type, dpari_fsdp_master_at(fsdp, u),
                                desc->type, count, 0);
    }
    dpari_zero(&r, sizeof r);
    r.to = to;
    r.from = dpari_fsdp_master_at(fsdp, u);
    r.count = count;
    r.from_type = desc->type;
    r.seed = desc->optimizer.seed;
    r.stream = (uint64_t)fsdp->steps;
    r.index = dpari_fsdp_key(fsdp, u);
    return dpari_do_round(fsdp->shard, &r);
}

/* Posts the all-gather of unit u's weights if they are in no slot. Returns DPAR_MORE if no slot is
 * free for them. back is 1 in backward; dpari_fsdp_pick explains lo and hi. */
static DPARI_COLD dpar_status dpari_fsdp_request(dpar_fsdp *fsdp, int32_t u, int32_t lo, int32_t hi,
                                                 int32_t back)
{
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    dpari_fsdp_slot *s;
    unsigned char *whole, *mine;
    dpar_status st;
    int32_t slot;
    if (unit->slot >= 0 || unit->flat.shard == 0) {
        return DPAR_OK;
    }
    slot = dpari_fsdp_pick(fsdp, u, lo, hi, back);
    if (slot < 0) {
        return DPAR_MORE;
    }
    s = &fsdp->slot[slot];
    if (s->unit >= 0) {
        st = dpar_wait(&s->work);
        fsdp->unit[s->unit].slot = -1;
        s->unit = -1;
        if (st != DPAR_OK) {
            return st;
        }
    }
    whole = dpari_fsdp_slot_at(fsdp, slot);
    mine = dpari_fsdp_master_at(fsdp, u);
    if (fsdp->desc.type != fsdp->desc.compute_type) {
        mine = whole + dpari_fsdp_own(fsdp, u, fsdp->desc.compute_type);
        st = dpari_fsdp_cast(fsdp, u, mine);
        if (st != DPAR_OK) {
            return st;
        }
    }
    st = dpari_fsdp_post(fsdp, DPAR_CALL_ALL_GATHER, u, mine, whole, fsdp->desc.compute_type,
                         &s->work);
    if (st == DPAR_OK) {
        s->unit = u;
        unit->slot = slot;
    }
    return st;
}

/* Requests unit u and the next `ahead` units in this direction, and waits for unit u. */
static DPARI_COLD dpar_status dpari_fsdp_gather(dpar_fsdp *fsdp, int32_t u, int64_t ahead,
                                                int32_t back)
{
    const int32_t lo = back ? (int32_t)dpari_most(0, u - ahead) : u;
    const int32_t hi = back ? u : (int32_t)dpari_least(fsdp->units - 1, u + ahead);
    int32_t k;
    dpar_status st = dpari_fsdp_request(fsdp, u, lo, hi, back);
    /* All slots hold units that are in use or needed next. Gives up one of the latter, which can be
     * gathered again. */
    if (st == DPAR_MORE) {
        st = dpari_fsdp_request(fsdp, u, u, u, back);
    }
    for (k = 1; k <= hi - lo && st == DPAR_OK; k++) {
        st = dpari_fsdp_request(fsdp, back ? u - k : u + k, lo, hi, back);
    }
    if (st == DPAR_MORE && fsdp->unit[u].slot < 0 && fsdp->unit[u].flat.shard > 0) {
        return dpari_fsdp_no_room(fsdp, u, 0);
    }
    if (st < DPAR_OK || fsdp->unit[u].slot < 0) {
        return st < DPAR_OK ? st : DPAR_OK;
    }
    return dpar_wait(&fsdp->slot[fsdp->unit[u].slot].work);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Waits for the reduction of bucket b, adds the result to the shard and frees the bucket. With
 * replicas, posts the all-reduce of the shard in the last micro-batch. */
static DPARI_COLD dpar_status dpari_fsdp_collect(dpar_fsdp *fsdp, int32_t b)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    dpari_fsdp_slot *s = &fsdp->bucket[b];
    const int32_t u = s->unit;
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    int32_t type;
    void *reduced = dpari_fsdp_reduced_at(fsdp, u, &type);
    dpar_status st = dpar_wait(&s->work);
    s->unit = -1;
    s->sent = 0;
    unit->bucket = -1;
    if (st != DPAR_OK) {
        return st;
    }
    if (!dpari_fsdp_gradients_whole(desc) && !s->straight) {
        const unsigned char *came =
            dpari_fsdp_bucket_at(fsdp, b) + dpari_fsdp_own(fsdp, u, desc->gradient_type);
        const int adds = !unit->fresh || desc->gradient_type == type;
        if (adds) {
            reduced = dpari_fsdp_settled(fsdp, u, &type);
        }
        st = dpari_do_convert(fsdp->shard, reduced, type, came, desc->gradient_type,
                              unit->flat.shard, adds);
    }
    unit->fresh = 0;
    if (st == DPAR_OK && fsdp->last && fsdp->replicas != NULL) {
        st = dpar_all_reduce(fsdp->replicas, reduced, reduced, unit->flat.shard, type,
                             desc->sum ? DPAR_SUM : DPAR_AVG, &unit->across);
    }
    return st;
}

/* Prepares the bucket of unit u at address `whole`. Leaves it unchanged if it contains gradients of
 * earlier passes. Otherwise sets all of it to 0, or with overwrite_gradients only the gaps between
 * parameters and the padding at the end, because backward writes the rest. Several layers add to
 * the gradients of a resident unit, which are therefore always set to 0. */
static DPARI_COLD dpar_status dpari_fsdp_clear(dpar_fsdp *fsdp, int32_t u, unsigned char *whole)
{
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    const int64_t each = dpar_type_bytes(fsdp->desc.gradient_type),
                  all = unit->flat.shard * fsdp->shard->size;
    const int earlier = dpari_fsdp_gradients_whole(&fsdp->desc) && !unit->fresh;
    const int writes = fsdp->desc.overwrite_gradients && !unit->resident;
    dpar_status st = DPAR_OK;
    int64_t at = 0;
    int32_t i;
    unit->adds = earlier || !writes;
    unit->fresh = unit->fresh && !dpari_fsdp_gradients_whole(&fsdp->desc);
    if (earlier) {
        return DPAR_OK;
    }
    for (i = unit->first; i < unit->last && writes && st == DPAR_OK; i++) {
        st = dpari_do_copy(fsdp->shard, whole + at * each, NULL, (fsdp->start[i] - at) * each);
        at = fsdp->start[i] + fsdp->count[i];
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_do_copy(fsdp->shard, whole + at * each, NULL, (all - at) * each);
}

/* Returns a bucket for a unit's gradients: a free one, otherwise the one whose reduction was posted
 * first. Returns -1 if all buckets hold gradients that are not ready. */
static int32_t dpari_fsdp_pick_bucket(const dpar_fsdp *fsdp)
{
    int32_t i, best = -1;
    for (i = 0; i < fsdp->pool_buckets; i++) {
        const dpari_fsdp_slot *s = &fsdp->bucket[i];
        if (s->unit < 0) {
            return i;
        }
        if (s->sent && (best < 0 || s->sent < fsdp->bucket[best].sent)) {
            best = i;
        }
    }
    return best;
}

/* Assigns a bucket to unit u, in which backward computes its gradients. */
static DPARI_COLD dpar_status dpari_fsdp_open(dpar_fsdp *fsdp, int32_t u)
{
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    int32_t b = unit->own_bucket;
    const int none = unit->flat.shard == 0 || unit->frozen;
    if (!none && b < 0) {
        b = dpari_fsdp_pick_bucket(fsdp);
        if (b < 0) {
            return dpari_fsdp_no_room(fsdp, u, 1);
        }
        if (fsdp->bucket[b].unit >= 0) {
            const dpar_status st = dpari_fsdp_collect(fsdp, b);
            if (st != DPAR_OK) {
                return st;
            }
        }
    }
    unit->state = DPARI_FSDP_OPEN;
    if (none) {
        return DPAR_OK;
    }
    unit->bucket = b;
    fsdp->bucket[b].unit = u;
    fsdp->bucket[b].sent = 0;
    return dpari_fsdp_clear(fsdp, u, dpari_fsdp_bucket_at(fsdp, b));
}

/* Posts the reduction of unit u's gradients. */
static DPARI_COLD dpar_status dpari_fsdp_send(dpar_fsdp *fsdp, int32_t u)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    dpari_fsdp_slot *s;
    unsigned char *whole, *to;
    int32_t b, type, most = 0;
    if (unit->bucket < 0) {
        return DPAR_OK;
    }
    s = &fsdp->bucket[unit->bucket];
    if (dpari_fsdp_gradients_whole(desc) && !fsdp->last) {
        s->unit = -1;
        unit->bucket = -1;
        return DPAR_OK;
    }
    whole = dpari_fsdp_bucket_at(fsdp, unit->bucket);
    for (b = 0; b < fsdp->buckets && !dpari_fsdp_gradients_whole(desc); b++) {
        most = (int32_t)dpari_most(most, fsdp->bucket[b].sent);
    }
    s->sent = most + 1;
    to = dpari_fsdp_reduced_at(fsdp, u, &type);
    s->straight = unit->fresh && !dpari_fsdp_gradients_whole(desc) && type == desc->gradient_type;
    return dpari_fsdp_post(fsdp, DPAR_CALL_REDUCE_SCATTER, u, whole,
                           s->straight ? to : whole + dpari_fsdp_own(fsdp, u, desc->gradient_type),
                           desc->gradient_type, &s->work);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

DPAR_API void dpar_fsdp_zero(dpar_fsdp *fsdp)
{
    int32_t u;
    for (u = 0; fsdp != NULL && u < fsdp->units; u++) {
        fsdp->unit[u].fresh = 1;
        if (fsdp->unit[u].state == DPARI_FSDP_OPEN && fsdp->unit[u].bucket >= 0) {
            const dpar_status st =
                dpari_fsdp_clear(fsdp, u, dpari_fsdp_bucket_at(fsdp, fsdp->unit[u].bucket));
            fsdp->status = dpari_first_error(fsdp->status, st);
        }
    }
    if (fsdp != NULL && !fsdp->under_way) {
        fsdp->last = 1; /* zeros need no reduction */
    }
}

/* Begins the use of a unit whose weights were gathered, in backward also of its gradients. */
static DPARI_COLD dpar_status dpari_fsdp_use(dpar_fsdp *fsdp, int32_t u, int32_t back)
{
    if (back) {
        const dpar_status st = dpari_fsdp_open(fsdp, u);
        if (st != DPAR_OK) {
            return st;
        }
        dpari_fsdp_point(fsdp, u, 1, 1);
    }
    fsdp->unit[u].used = 1;
    dpari_fsdp_point(fsdp, u, 0, 1);
    return DPAR_OK;
}

/* Begins the use of the resident units for a whole pass. */
static DPARI_COLD dpar_status dpari_fsdp_use_residents(dpar_fsdp *fsdp)
{
    dpar_status st = DPAR_OK;
    int32_t u;
    for (u = 0; u < fsdp->units && st == DPAR_OK; u++) {
        if (fsdp->unit[u].resident) {
            st = dpari_fsdp_gather(fsdp, u, 0, 0);
            st = st == DPAR_OK ? dpari_fsdp_use(fsdp, u, 1) : st;
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_begin(dpar_fsdp *fsdp, int32_t last)
{
    dpar_status st;
    int32_t u;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (dpari_fsdp_broken(fsdp)) {
        return dpari_fsdp_why_broken(fsdp);
    }
    if (fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_begin: the previous pass has not ended (dpar_fsdp_end)");
    }
    for (u = 0; u < fsdp->units; u++) {
        fsdp->unit[u].state = DPARI_FSDP_NONE;
    }
    fsdp->under_way = 1;
    fsdp->last = last != 0;
    fsdp->status = DPAR_OK;
    st = dpari_fsdp_use_residents(fsdp);
    if (st != DPAR_OK) {
        dpari_fsdp_end_use(fsdp);
        fsdp->under_way = 0;
    }
    return st;
}

/* Checks that unit u exists and that the direction is valid. */
static DPARI_COLD dpar_status dpari_fsdp_check_unit(dpar_fsdp *fsdp, int32_t u, int32_t direction)
{
    if (!dpari_fsdp_is_unit(fsdp, u)) {
        return dpari_comm_wrong(fsdp->shard, "fsdp: unit %d does not exist (there are %d units)", u,
                                fsdp->units);
    }
    if (direction != DPAR_ACTION_FORWARD && direction != DPAR_ACTION_BACKWARD) {
        return dpari_comm_wrong(fsdp->shard,
                                "fsdp: direction %d of unit %d is neither DPAR_ACTION_FORWARD nor "
                                "DPAR_ACTION_BACKWARD",
                                direction, u);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_unshard(dpar_fsdp *fsdp, int32_t unit, int32_t direction)
{
    const int32_t back = direction == DPAR_ACTION_BACKWARD;
    int in_use;
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    st = dpari_fsdp_check_unit(fsdp, unit, direction);
    if (st != DPAR_OK) {
        return st;
    }
    in_use = fsdp->unit[unit].resident && fsdp->under_way;
    if (fsdp->unit[unit].used && !in_use) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_unshard: unit %d is already in use", unit);
    }
    if (back && !fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_unshard: unit %d for backward, but no pass is in "
                                "progress (dpar_fsdp_begin)",
                                unit);
    }
    if (back && !in_use && fsdp->unit[unit].state != DPARI_FSDP_NONE) {
        return dpari_comm_wrong(
            fsdp->shard, "dpar_fsdp_unshard: unit %d already had backward in this pass", unit);
    }
    if (fsdp->under_way && fsdp->status != DPAR_OK) {
        return fsdp->status;
    }
    st = dpari_fsdp_gather(fsdp, unit, fsdp->desc.prefetch, back);
    if (st == DPAR_OK && !in_use) {
        st = dpari_fsdp_use(fsdp, unit, back);
    }
    if (st != DPAR_OK && fsdp->under_way && dpari_fsdp_broken(fsdp)) {
        fsdp->status = st;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_reshard(dpar_fsdp *fsdp, int32_t unit, int32_t direction)
{
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    st = dpari_fsdp_check_unit(fsdp, unit, direction);
    if (st != DPAR_OK) {
        return st;
    }
    if (!fsdp->unit[unit].used) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_reshard: unit %d is not in use", unit);
    }
    if (fsdp->unit[unit].resident && fsdp->under_way) {
        return DPAR_OK;
    }
    dpari_fsdp_point(fsdp, unit, 0, 0);
    fsdp->unit[unit].used = 0;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_ready(dpar_fsdp *fsdp, int32_t unit)
{
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (!dpari_fsdp_is_unit(fsdp, unit) || !fsdp->under_way ||
        fsdp->unit[unit].state != DPARI_FSDP_OPEN) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_ready: unit %d of %d was not unsharded for backward in "
                                "this pass, or is already ready",
                                unit, fsdp->units);
    }
    dpari_fsdp_point(fsdp, unit, 1, 0);
    fsdp->unit[unit].state = DPARI_FSDP_DONE;
    if (fsdp->status == DPAR_OK) {
        fsdp->status = dpari_fsdp_send(fsdp, unit);
    }
    return fsdp->status;
}

/* Checks at the end of a pass that no unit is in use and all gradients are ready. If not, the pass
 * fails on all ranks. */
static DPARI_COLD void dpari_fsdp_check_ended(dpar_fsdp *fsdp)
{
    int32_t u;
    for (u = 0; u < fsdp->units && fsdp->status == DPAR_OK; u++) {
        const dpari_fsdp_unit *unit = &fsdp->unit[u];
        const int missing = unit->state == DPARI_FSDP_OPEN ||
                            (fsdp->last && unit->state == DPARI_FSDP_NONE && unit->flat.shard > 0);
        const int used = unit->used && !unit->resident;
        if (used || (missing && !unit->frozen)) {
            dpar_why why;
            (void)dpari_wrong(&why,
                              used ? "dpar_fsdp_end: unit %d is still in use on rank %d"
                                   : "dpar_fsdp_end: unit %d is not ready on rank %d",
                              u, fsdp->shard->rank);
            dpar_comm_abort(fsdp->shard, DPAR_E_ARG, why.text);
            fsdp->status = fsdp->shard->status != DPAR_OK ? fsdp->shard->status : DPAR_E_ARG;
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_end(dpar_fsdp *fsdp)
{
    int32_t b, u;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (!fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_end: no pass is in progress (dpar_fsdp_begin)");
    }
    for (u = 0; u < fsdp->units; u++) {
        if (fsdp->unit[u].resident && fsdp->unit[u].state == DPARI_FSDP_OPEN) {
            (void)dpar_fsdp_ready(fsdp, u);
        }
    }
    dpari_fsdp_check_ended(fsdp);
    /* The order matters if each unit has its own bucket: it is then that of backward. */
    for (b = fsdp->buckets - 1; b >= 0; b--) {
        if (fsdp->bucket[b].unit >= 0 && fsdp->bucket[b].sent) {
            fsdp->status = dpari_first_error(fsdp->status, dpari_fsdp_collect(fsdp, b));
        } else if (fsdp->bucket[b].unit >= 0) {
            fsdp->unit[fsdp->bucket[b].unit].bucket = -1;
            fsdp->bucket[b].unit = -1;
        }
    }
    for (u = 0; u < fsdp->units && fsdp->last && fsdp->replicas != NULL; u++) {
        fsdp->status = dpari_first_error(fsdp->status, dpar_wait(&fsdp->unit[u].across));
    }
    dpari_fsdp_end_use(fsdp);
    fsdp->under_way = 0;
    return fsdp->status;
}
