/* SPDX-License-Identifier: MIT-0 */
/* Implements the flight recorder. Each rank writes the ring of its own records, and the others may
 * read them at any time, also after the rank has died. */
#include "flight.h"

#include "../base/base_private.h"
#include "../host/kernel.h"
#include "engine.h"

/* A record as words. */
typedef union dpari_flight_words {
    dpari_flight f;
    uint64_t word[sizeof(dpari_flight) / sizeof(uint64_t)];
} dpari_flight_words;

/* Copies a record that another rank may be writing or reading at the same time. The copy is made
 * word by word with atomic accesses, so that no word is half old and half new. */
static void dpari_flight_copy(uint64_t *to, const uint64_t *from)
{
    for (uint32_t i = 0; i < sizeof(dpari_flight) / sizeof(uint64_t); i++) {
        uint64_t v = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
        __atomic_store_n(&to[i], v, __ATOMIC_RELAXED);
    }
}

DPARI_INTERNAL dpari_flight dpari_flight_read(const dpari_rank *record, uint64_t number)
{
    const dpari_flight *from = &record->flight[number % DPARI_FLIGHTS];
    dpari_flight_words now;
    dpari_flight_copy(now.word, (const uint64_t *)(const void *)from);
    return now.f;
}

DPARI_INTERNAL dpari_flight dpari_flight_of(const dpar_call *call, int64_t sequence)
{
    dpari_flight f;
    f.sequence = sequence;
    f.count = call->count;
    f.comm = 0;
    f.kind = call->kind;
    f.type = call->type;
    f.op = call->op;
    f.root = call->root;
    f.tag = call->tag;
    f.state = DPARI_FLIGHT_POSTED;
    f.varies = call->variable_counts;
    f.padding[0] = 0;
    f.padding[1] = 0;
    return f;
}

DPARI_INTERNAL int64_t dpari_flight_begin(dpari_world *world, uint32_t comm, int64_t sequence,
                                          const dpar_call *call)
{
    dpari_rank *record = &world->rank[world->me];
    uint64_t number = record->flights;
    dpari_flight_words now;
    dpari_flight *slot = &record->flight[number % DPARI_FLIGHTS];
    now.f = dpari_flight_of(call, sequence);
    now.f.comm = comm;
    dpari_flight_copy((uint64_t *)(void *)slot, now.word);
    DPARI_STORE(&record->flights, number + 1);
    return (int64_t)number;
}

DPARI_INTERNAL void dpari_flight_end(dpari_world *world, int64_t number, int32_t state)
{
    dpari_rank *record = &world->rank[world->me];
    if (record->flights - (uint64_t)number <= DPARI_FLIGHTS) {
        __atomic_store_n(&record->flight[(uint64_t)number % DPARI_FLIGHTS].state, state,
                         __ATOMIC_RELAXED);
    }
}

DPARI_INTERNAL int dpari_flight_find(const dpari_world *world, int32_t rank, uint32_t comm,
                                     int64_t sequence, dpari_flight *out)
{
    const dpari_rank *record = &world->rank[rank];
    uint64_t n = DPARI_LOAD(&record->flights), k;
    for (k = n; k > 0 && n - k < DPARI_FLIGHTS; k--) {
        const dpari_flight f = dpari_flight_read(record, k - 1);
        if (sequence == DPARI_FLIGHT_LAST ||
            (sequence == DPARI_FLIGHT_LAST_FAILED && f.state == DPARI_FLIGHT_FAILED) ||
            (f.comm == comm && f.sequence == sequence && f.kind < DPAR_CALL_COLLECTIVE_COUNT)) {
            *out = f;
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL DPARI_COLD void dpari_flight_text(dpar_text *text, const dpari_flight *flight)
{
    const int own = flight->root == DPARI_CLOSE || flight->root == DPARI_SPLIT;
    const char *name = dpar_call_name(flight->kind);
    if (dpari_planning_text(text, flight->kind, flight->sequence, flight->tag)) {
        return;
    }
    if (own) {
        name = flight->root == DPARI_CLOSE ? "close" : "split";
    }
    dpari_text_print(text, "%s #%ld", name, flight->sequence);
    if (flight->kind == DPAR_CALL_BARRIER || own) {
        return;
    }
    dpar_text_put(text, " (");
    if (flight->varies) {
        dpar_text_put(text, "pieces of ");
    } else {
        dpari_text_print(text, "%ld ", flight->count);
    }
    dpar_text_put(text, dpar_type_name(dpari_kern_stored(flight->type)));
    if (flight->type >= DPAR_TYPE_COUNT) {
        dpari_text_print(text, " as %s", dpar_type_name(dpari_kern_wire(flight->type)));
    }
    if (flight->op != DPAR_COPY) {
        dpari_text_print(text, ", %s", dpari_op_name(flight->op));
    }
    if (flight->kind >= DPAR_CALL_COLLECTIVE_COUNT) {
        dpari_text_print(text, "%s%d, tag %d",
                         flight->kind == DPAR_CALL_SEND ? ", to rank " : ", from rank ",
                         flight->root, flight->tag);
    } else if (flight->kind == DPAR_CALL_BROADCAST || flight->kind == DPAR_CALL_REDUCE ||
               flight->kind == DPAR_CALL_GATHER || flight->kind == DPAR_CALL_SCATTER) {
        dpari_text_print(text, ", root %d", flight->root);
    }
    if (flight->kind < DPAR_CALL_COLLECTIVE_COUNT && flight->tag != 0) {
        dpari_text_print(text, ", tag %d", flight->tag);
    }
    dpari_text_char(text, ')');
}

static void dpari_put_flight(dpar_text *text, const dpari_flight *flight)
{
    const char *state = " (in ";
    if (flight->state == DPARI_FLIGHT_DONE) {
        state = " (last done: ";
    } else if (flight->state == DPARI_FLIGHT_FAILED) {
        state = " (failed: ";
    }
    dpar_text_put(text, state);
    dpari_flight_text(text, flight);
    if (flight->comm != 0) {
        dpari_text_print(text, " of group %ld", (int64_t)flight->comm);
    }
    dpari_text_char(text, ')');
}

DPARI_INTERNAL DPARI_COLD void dpari_put_last(dpar_text *text, const dpari_world *world,
                                              int32_t rank)
{
    dpari_flight f;
    if (dpari_flight_find(world, rank, 0, DPARI_FLIGHT_LAST, &f)) {
        dpari_put_flight(text, &f);
    } else {
        dpar_text_put(text, " (it has begun no operation yet)");
    }
}

DPARI_API DPARI_COLD void dpari_put_failed(dpar_text *text, const dpari_world *world, int32_t rank)
{
    dpari_flight f;
    if (dpari_flight_find(world, rank, 0, DPARI_FLIGHT_LAST_FAILED, &f)) {
        dpari_put_flight(text, &f);
    }
}
