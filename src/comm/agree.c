/* SPDX-License-Identifier: MIT-0 */
/* Compares descriptions across ranks before they plan something together, and divides the caller's
 * memory into pieces.
 *
 * A collective constructor describes its arguments as facts: names with numbers. dpari_agree_on
 * hashes them, and compares the hashes and the ranks' own statuses in one small all-reduce. If the
 * hashes differ, the all-reduce also finds two ranks whose hashes differ, and these find the first
 * fact that differs by bisection. All ranks then fail with DPAR_E_MISMATCH, and the message names
 * the fact, the two ranks and both values. If a rank had failed before, it returns its own status,
 * and the other ranks return the worst status of all. Called by the moves of ../exchange, simple.c
 * and the functions of dpar_halo.h, dpar_points.h, dpar_train.h and dpar_spatial.h that make plans.
 */
#include "agree.h"

#include "../base/base_private.h"
#include "../base/type.h"
#include "../host/elements.h"
#include "../index/layout.h"
#include "comm.h"
#include "engine.h"

/* The multiplier is 2^64 divided by the golden ratio, as in Fibonacci hashing. The shift mixes the
 * upper bits of the product, which depend on all bits of the factors, into the lower ones. */
DPARI_API DPARI_NOINLINE uint64_t dpari_hash(uint64_t h, int64_t v)
{
    h = (h ^ (uint64_t)v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* Returns the bits of a real number as an integer. */
static int64_t dpari_real_bits(double v)
{
    int64_t bits;
    v += 0.0; /* makes -0.0 equal to 0.0 */
    dpari_elements_bits(&bits, &v, 8);
    return bits;
}

DPARI_API DPARI_COLD uint64_t dpari_hash_real(uint64_t h, double v)
{
    return dpari_hash(h, dpari_real_bits(v));
}

/* Two small numbers share a step: dims (at most 6) and placement kinds are below 16, and `dim` is
 * below 64. */
DPARI_API DPARI_COLD uint64_t dpari_hash_layout(uint64_t h, const dpar_layout *layout)
{
    int32_t i, k;
    h = dpari_hash(h, layout->dims + 16 * layout->mesh.axes);
    h = dpari_hash(h, layout->mesh.first_rank);
    for (i = 0; i < layout->dims; i++) {
        h = dpari_hash(h, layout->extent[i]);
    }
    for (i = 0; i < layout->mesh.axes; i++) {
        const dpar_placement *placement = &layout->axis[i];
        h = dpari_hash(h, layout->mesh.axis[i].size);
        h = dpari_hash(h, layout->mesh.axis[i].stride);
        h = dpari_hash(h, placement->kind + 16 * layout->order[i]);
        if (placement->kind == DPAR_PLACEMENT_PARTIAL) {
            h = dpari_hash(h, placement->op);
        }
        if (placement->kind == DPAR_PLACEMENT_SHARD) {
            h = dpari_hash(h, placement->dim + 64 * placement->rule);
            h = dpari_hash(h, placement->block);
            h = dpari_hash(h, placement->source);
            for (k = 0; placement->rule == DPAR_SPLIT_RAGGED && k <= layout->mesh.axis[i].size;
                 k++) {
                h = dpari_hash(h, placement->cuts[k]);
            }
        }
    }
    return h;
}

/* Rank `who` has failed with the status `worst`. Broadcasts its message, which the ranks that have
 * not failed themselves return with that status. */
static dpar_status dpari_agree_failed(dpar_comm *comm, dpar_status mine, dpar_status worst,
                                      int32_t who, dpar_why *why)
{
    dpar_why said;
    dpar_status s;
    dpari_zero(&said, sizeof said);
    if (why != NULL && comm->rank == who) {
        said = *why;
    }
    s = dpar_broadcast(comm, said.text, sizeof said.text, DPAR_U8, who, NULL);
    if (mine != DPAR_OK) {
        return mine;
    }
    if (s != DPAR_OK) {
        return dpari_repeat(s, why, comm->why.text);
    }
    if (said.text[0] == 0) {
        return dpari_say(worst, why, "rank %d: %s", who, dpar_status_text(worst));
    }
    return dpari_say(worst, why, "rank %d: %s", who, said.text);
}

/* Compares the statuses and hashes of all ranks. If two hashes differ, stores the two ranks in
 * who[2], the lower one first, and returns DPAR_E_MISMATCH without a message. Otherwise sets both
 * to -1, and returns DPAR_OK or, with a message, an error: a rank has failed, has not called this
 * function, or the communicator has failed.
 *
 * One all-reduce finds three minima: the worst status with its rank, the smallest hash with its
 * rank, and the negative of the largest hash with its rank. The rank is in the low bits of each
 * number: below 2^32 for the status, and below 2^20 for the hash. Only the upper 42 bits of the
 * hash are compared, so that it fits in 62 bits together with the rank. A result that cannot be
 * such a minimum means that the all-reduce was matched with another operation, which an engine that
 * does not compare calls allows. */
static DPARI_COLD dpar_status dpari_agree_pair(dpar_comm *comm, dpar_status st, const char *plan,
                                               uint64_t hash, int32_t *who, dpar_why *why)
{
    const int64_t unit = INT64_C(1) << 32, ranks = INT64_C(1) << 20;
    const int64_t mine = (int64_t)(hash >> 22) * ranks + comm->rank;
    const int64_t in[3] = {st * unit + comm->rank, mine, -mine};
    int64_t out[3] = {0, 0, 0}, rank[2];
    dpar_status run, worst;
    int32_t i, impossible = 0;
    dpar_call call = dpari_call(DPAR_CALL_ALL_REDUCE, in, out, 3, DPAR_I64);
    call.op = DPAR_MIN;
    call.tag = dpari_plan_tag(plan);
    who[0] = who[1] = -1;
    run = dpari_post(comm, &call, NULL);
    if (run != DPAR_OK) {
        return dpari_repeat(run, why, comm->why.text);
    }
    for (i = 0; i < 3; i++) {
        impossible |= out[i] > in[i] || out[i] == INT64_MIN;
        out[i] = impossible ? 0 : out[i];
    }
    worst = (dpar_status)dpari_floor_div(out[0], unit);
    rank[0] = worst != DPAR_OK ? out[0] - worst * unit : out[1] % ranks;
    rank[1] = worst != DPAR_OK ? rank[0] : -out[2] % ranks;
    impossible |= out[1] / ranks != -out[2] / ranks && worst == DPAR_OK && rank[0] == rank[1];
    if (impossible || worst > 0 || rank[0] < 0 || rank[0] >= comm->size || rank[1] < 0 ||
        rank[1] >= comm->size) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "rank %d: the all-reduce of %d ranks before a plan has a result that no "
                         "rank gave: another rank called another operation",
                         comm->rank, comm->size);
    }
    if (worst != DPAR_OK) {
        return dpari_agree_failed(comm, st, worst, (int32_t)rank[0], why);
    }
    if (out[1] / ranks == -out[2] / ranks) {
        return DPAR_OK;
    }
    if (out[1] / ranks == 0) { /* a hash of 0 means that the rank does not make a plan */
        return dpari_say(DPAR_E_MISMATCH, why,
                         "rank %ld begins a plan, but rank %ld called another operation", rank[1],
                         rank[0]);
    }
    who[0] = (int32_t)dpari_least(rank[0], rank[1]);
    who[1] = (int32_t)dpari_most(rank[0], rank[1]);
    return DPAR_E_MISMATCH;
}

DPARI_API dpar_why *dpari_why_of(dpar_comm *comm, dpar_why *why)
{
    if (why != NULL || comm->status != DPAR_OK) {
        return why;
    }
    comm->why.text[0] = 0;
    comm->why.bytes = 0;
    return &comm->why;
}

DPARI_API dpar_status dpari_agree(dpar_comm *comm, dpar_status st, dpar_why *why)
{
    int32_t who[2];
    return dpari_agree_pair(comm, st, NULL, 0, who, why);
}

/* ---- facts ----------------------------------------------------------------------------------- */

enum { DPARI_FACT_NUMBER, DPARI_FACT_TYPE, DPARI_FACT_REAL, DPARI_FACT_HASH };

/* Adds a fact to the hash, and stores it if it is the one at position `keep`. */
static DPARI_COLD void dpari_fact_of(dpari_facts *facts, const char *name, int64_t index,
                                     int64_t value, int32_t kind)
{
    if (facts->count == facts->keep) {
        facts->before = facts->hash;
        facts->name = name;
        facts->index = index;
        facts->kept_of = facts->of;
        facts->kept_of_index = facts->of_index;
        facts->value = value;
        facts->kind = kind;
    }
    facts->hash = dpari_hash(facts->hash, value);
    facts->count++;
}

DPARI_API DPARI_COLD void dpari_fact(dpari_facts *facts, const char *name, int64_t index,
                                     int64_t value)
{
    dpari_fact_of(facts, name, index, value, DPARI_FACT_NUMBER);
}

DPARI_API DPARI_COLD void dpari_fact_type(dpari_facts *facts, const char *name, int64_t index,
                                          int32_t type)
{
    dpari_fact_of(facts, name, index, type, DPARI_FACT_TYPE);
}

DPARI_API DPARI_COLD void dpari_fact_real(dpari_facts *facts, const char *name, int64_t index,
                                          double value)
{
    dpari_fact_of(facts, name, index, dpari_real_bits(value), DPARI_FACT_REAL);
}

DPARI_API DPARI_COLD void dpari_fact_hash(dpari_facts *facts, const char *name, int64_t index,
                                          uint64_t hash)
{
    dpari_fact_of(facts, name, index, (int64_t)hash, DPARI_FACT_HASH);
}

/* Returns the hash of a plan's name, with which the hash of its facts begins. */
static uint64_t dpari_facts_plan(const char *plan)
{
    uint64_t h = 1;
    for (; *plan != 0; plan++) {
        h = dpari_hash(h, *plan);
    }
    return h;
}

/* Computes the hash of all facts of a plan, and stores the fact at position `keep`. */
static void dpari_facts_state(dpari_facts *facts, const char *plan, dpari_state *state,
                              const void *given, int64_t keep)
{
    dpari_zero(facts, sizeof *facts);
    facts->hash = dpari_facts_plan(plan);
    facts->keep = keep;
    state(facts, given);
    if (facts->name == NULL) {
        facts->before = facts->hash;
    }
}

DPARI_API DPARI_COLD uint64_t dpari_facts_hash(const char *plan, dpari_state *state,
                                               const void *given)
{
    dpari_facts f;
    dpari_facts_state(&f, plan, state, given, 0);
    return f.hash | UINT64_C(1) << 63; /* not 0, even if compared without its lower bits */
}

/* Finds the position of the first fact in which ranks who[0] and who[1] differ, by bisection. In
 * each step who[0] broadcasts the hash of its facts up to the middle one, and who[1] broadcasts
 * whether it has the same hash. COLLECTIVE. */
static dpar_status dpari_facts_first_difference(dpar_comm *comm, const int32_t *who,
                                                const char *plan, dpari_state *state,
                                                const void *given, int64_t *first)
{
    dpari_facts f;
    int64_t low = 0, high;
    dpar_status st;
    dpari_facts_state(&f, plan, state, given, 0);
    high = f.count;
    st = dpar_broadcast(comm, &high, 1, DPAR_I64, who[0], NULL);
    while (low < high && st == DPAR_OK) {
        const int64_t middle = low + (high - low) / 2;
        uint64_t before;
        int32_t equal;
        dpari_facts_state(&f, plan, state, given, middle + 1);
        before = f.before;
        st = dpar_broadcast(comm, &before, 1, DPAR_I64, who[0], NULL);
        equal = before == f.before;
        if (st == DPAR_OK) {
            st = dpar_broadcast(comm, &equal, 1, DPAR_I32, who[1], NULL);
        }
        low = equal ? middle + 1 : low;
        high = equal ? high : middle;
    }
    *first = low;
    return st;
}

/* Appends a name, with the index in place of '#'. */
static void dpari_fact_put_name(dpar_text *text, const char *name, int64_t index)
{
    for (; name != NULL && *name != 0; name++) {
        if (*name == '#') {
            dpari_text_int(text, index);
        } else {
            dpari_text_char(text, *name);
        }
    }
}

static double dpari_fact_real_of(int64_t value)
{
    double real;
    dpari_elements_bits(&real, &value, 8);
    return real;
}

/* Appends a value of a fact. Real numbers have 6 digits, or 17, which distinguish any two doubles,
 * if `other` differs by less than 1e-4 of the value. */
static void dpari_fact_put_value(dpar_text *text, int32_t kind, int64_t value, int64_t other)
{
    if (kind == DPARI_FACT_REAL) {
        const double x = dpari_fact_real_of(value), y = dpari_fact_real_of(other);
        const double difference = x > y ? x - y : y - x;
        const double size = x > 0.0 ? x : -x;
        dpari_text_real(text, x, difference < 1e-4 * size ? 17 : 6);
    } else if (kind == DPARI_FACT_TYPE) {
        dpar_text_put(text, dpar_type_name((int32_t)value));
    } else {
        dpari_text_int(text, value);
    }
}

/* Writes the message about the stored fact, on rank who[1]. other: its value on rank who[0].
 * comparable: 1 if rank who[0] makes the same kind of plan and also has this fact, so that the
 * values can be compared. */
static void dpari_facts_say(const dpari_facts *facts, const char *plan, int comparable,
                            int64_t other, const int32_t *who, dpar_why *found)
{
    const int64_t value[2] = {other, facts->value};
    dpar_text t;
    int32_t i;
    dpari_text_why(&t, found);
    dpari_text_print(&t, "%s: ", plan);
    if (facts->name == NULL || !comparable) {
        dpari_text_print(&t, "rank %d begins such a plan, but rank %d another one", who[1], who[0]);
        return;
    }
    dpari_fact_put_name(&t, facts->kept_of, facts->kept_of_index);
    dpari_fact_put_name(&t, facts->name, facts->index);
    for (i = 0; i < 2; i++) {
        if (facts->kind == DPARI_FACT_HASH) {
            dpar_text_put(&t, i ? " and " : " is not the same on ranks ");
        } else {
            dpar_text_put(&t, i ? ", " : " is ");
            dpari_fact_put_value(&t, facts->kind, value[i], value[1 - i]);
            dpar_text_put(&t, " on rank ");
        }
        dpari_text_int(&t, who[i]);
    }
}

DPARI_API DPARI_COLD dpar_status dpari_agree_on(dpar_comm *comm, dpar_status st, const char *plan,
                                                dpari_state *state, const void *given,
                                                dpar_why *why)
{
    dpari_facts f;
    dpar_why found;
    int64_t first = 0, shown[3];
    int32_t who[2];
    uint64_t hash = 0;
    if (st == DPAR_OK && state) {
        hash = dpari_facts_hash(plan, state, given);
    }
    st = dpari_agree_pair(comm, st, plan, hash, who, why);
    if (who[0] == who[1]) {
        return st;
    }
    dpari_zero(&found, sizeof found);
    st = dpari_facts_first_difference(comm, who, plan, state, given, &first);
    dpari_facts_state(&f, plan, state, given, first);
    shown[0] = f.name != NULL;
    shown[1] = f.value;
    shown[2] = (int64_t)dpari_facts_plan(plan);
    if (st == DPAR_OK) {
        st = dpar_broadcast(comm, shown, 3, DPAR_I64, who[0], NULL);
    }
    if (st == DPAR_OK && comm->rank == who[1]) {
        const int alike = shown[0] != 0 && shown[2] == (int64_t)dpari_facts_plan(plan);
        dpari_facts_say(&f, plan, alike, shown[1], who, &found);
    }
    if (st == DPAR_OK) {
        st = dpar_broadcast(comm, found.text, (int64_t)sizeof found.text, DPAR_U8, who[1], NULL);
    }
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, comm->why.text);
    }
    return dpari_repeat(DPAR_E_MISMATCH, why, found.text);
}

DPARI_API dpar_status dpari_post_alike(dpar_comm *comm, dpar_call *call, uint64_t hash,
                                       const char *what, dpar_work *work)
{
    dpar_status st;
    call->tag = 1 + (int32_t)(hash % INT32_MAX);
    st = dpari_post(comm, call, work);
    if (st == DPAR_E_MISMATCH && comm->status == st) {
        const dpar_why said = comm->why;
        dpar_text t;
        dpari_text_why(&t, &comm->why);
        dpari_text_print(&t, "%s: %s", what, said.text);
    }
    return st;
}

/* ---- reporting wrong calls ------------------------------------------------------------------- */

static DPARI_COLD dpar_status dpari_comm_say_list(dpar_comm *comm, dpar_status st, const char *form,
                                                  va_list *list)
{
    return comm->status < 0 ? comm->status : dpari_say_list(st, &comm->why, form, list);
}

DPARI_API DPARI_COLD dpar_status dpari_comm_say(dpar_comm *comm, dpar_status st, const char *form,
                                                ...)
{
    va_list list;
    va_start(list, form);
    st = dpari_comm_say_list(comm, st, form, &list);
    va_end(list);
    return st;
}

DPARI_API DPARI_COLD dpar_status dpari_comm_wrong(dpar_comm *comm, const char *form, ...)
{
    dpar_status st;
    va_list list;
    va_start(list, form);
    st = dpari_comm_say_list(comm, DPAR_E_ARG, form, &list);
    va_end(list);
    return st;
}

DPARI_API DPARI_COLD dpar_status dpari_comm_wrong_all(dpar_comm *comm, dpar_status st,
                                                      const char *form, ...)
{
    dpar_why why;
    va_list list;
    if (comm->status < 0) {
        return comm->status;
    }
    va_start(list, form);
    (void)dpari_say_list(st, &why, form, &list);
    va_end(list);
    dpar_comm_abort(comm, st, why.text);
    return dpari_repeat(st, &comm->why, why.text);
}

/* ---- memory ---------------------------------------------------------------------------------- */

DPARI_API void *dpari_room_take(dpari_room *r, int64_t n, size_t bytes)
{
    int64_t at = r->used;
    r->used += dpari_room_up(n * (int64_t)bytes);
    return r->at != NULL ? r->at + at : NULL;
}
