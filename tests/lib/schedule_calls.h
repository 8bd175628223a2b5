/* SPDX-License-Identifier: MIT-0 */
/* schedule_calls: the calls of dpar_schedule.h with separate arguments, for tests of one of them at
 * a time. Include it after dpar.h. */
#ifndef SCHEDULE_CALLS_H
#define SCHEDULE_CALLS_H

#include "dpar_schedule.h"

#include <string.h>

/* Each test uses only some of these functions. */

/* Returns the bytes that a call without memory reports as needed; -1 if it fails otherwise. */
static inline int64_t needed_bytes(dpar_status status, const dpar_why *said, dpar_why *why)
{
    if (why != NULL) {
        *why = *said;
    }
    return status == DPAR_E_ROOM ? said->bytes : -1;
}

static inline dpar_schedule_desc order_of(int32_t rule, int32_t ranks, int32_t micros,
                                          int32_t chunks)
{
    dpar_schedule_desc o;
    memset(&o, 0, sizeof o);
    o.rule = rule;
    o.ranks = ranks;
    o.micro_batches = micros;
    o.chunks = chunks;
    return o;
}

static inline dpar_status generate_named(void *mem, int64_t bytes, const char *name, int32_t ranks,
                                         int32_t micros, dpar_schedule *s, dpar_why *why)
{
    dpar_schedule_desc o = order_of(0, ranks, micros, 0);
    o.name = name;
    return dpar_schedule_generate(s, &o, mem, bytes, why);
}

static inline int is_message(int kind)
{
    return kind >= DPAR_ACTION_SEND_F && kind <= DPAR_ACTION_RECV_B;
}

static inline int is_receive(const dpar_action *a)
{
    return a->kind == DPAR_ACTION_RECV_F || a->kind == DPAR_ACTION_RECV_B;
}

static inline dpar_status schedule_init(dpar_schedule *s, int32_t ranks, int32_t stages,
                                        int64_t actions, void *mem, int64_t bytes,
                                        dpar_why *why)
{
    s->ranks = ranks;
    s->stages = stages;
    return dpar_schedule_init(s, actions, mem, bytes, why);
}

static inline dpar_schedule_read_desc text_of_list(const char *text, size_t n, int32_t chain)
{
    dpar_schedule_read_desc in;
    in.text = text;
    in.bytes = n;
    in.chain = chain;
    return in;
}

static inline int64_t read_csv_bytes(const char *text, size_t n, dpar_why *why)
{
    const dpar_schedule_read_desc in = text_of_list(text, n, 0);
    dpar_schedule s;
    dpar_why said;
    return needed_bytes(dpar_schedule_read(&s, &in, NULL, 0, &said), &said, why);
}

static inline dpar_status read_csv(dpar_schedule *s, const char *text, size_t n,
                                   int32_t chain, void *mem, int64_t bytes, dpar_why *why)
{
    const dpar_schedule_read_desc in = text_of_list(text, n, chain);
    return dpar_schedule_read(s, &in, mem, bytes, why);
}

static inline int64_t check_list_bytes(const dpar_schedule *s)
{
    dpar_why said;
    return needed_bytes(dpar_schedule_check(s, NULL, NULL, 0, &said), &said, NULL);
}

static inline dpar_status check_list(const dpar_schedule *s, int32_t flags, void *mem,
                                     int64_t bytes, dpar_why *why)
{
    dpar_schedule_check_desc how;
    memset(&how, 0, sizeof how);
    how.flags = flags;
    return dpar_schedule_check(s, flags == 0 ? NULL : &how, mem, bytes, why);
}

static inline int64_t check_run_bytes(const dpar_schedule *s)
{
    dpar_schedule_check_desc how;
    dpar_why said;
    memset(&how, 0, sizeof how);
    how.transport = DPAR_TRANSPORT_PAIR; /* any */
    return needed_bytes(dpar_schedule_check(s, &how, NULL, 0, &said), &said, NULL);
}

static inline dpar_status check_run(const dpar_schedule *s, int32_t transport, int32_t room,
                                    int64_t *stuck, void *mem, int64_t bytes, dpar_why *why)
{
    dpar_schedule_check_desc how;
    memset(&how, 0, sizeof how);
    how.transport = transport;
    how.capacity = room;
    how.stuck = stuck;
    return dpar_schedule_check(s, &how, mem, bytes, why);
}

static inline dpar_status give_slots(const dpar_schedule *s, int32_t in_flight,
                                     dpar_action_slots *slots, dpar_slot_counts *counts, void *mem,
                                     int64_t bytes, dpar_why *why)
{
    dpar_schedule_slots_desc how;
    how.in_flight = in_flight;
    how.slots = slots;
    how.counts = counts;
    return dpar_schedule_slots(s, &how, mem, bytes, why);
}

static inline dpar_schedule_lower_desc lowering_of(int32_t passes, int32_t channel)
{
    dpar_schedule_lower_desc how;
    memset(&how, 0, sizeof how);
    how.passes = passes;
    how.channel = channel;
    return how;
}

static inline int64_t merge_list_bytes(const dpar_schedule *in, dpar_why *why)
{
    const dpar_schedule_lower_desc how = lowering_of(DPAR_LOWER_MERGE, 0);
    dpar_schedule out;
    dpar_why said;
    return needed_bytes(dpar_schedule_lower(&out, in, &how, NULL, 0, &said), &said, why);
}

static inline dpar_status merge_list(dpar_schedule *out, const dpar_schedule *in, void *mem,
                                     int64_t bytes, dpar_why *why)
{
    const dpar_schedule_lower_desc how = lowering_of(DPAR_LOWER_MERGE, 0);
    return dpar_schedule_lower(out, in, &how, mem, bytes, why);
}

static inline int64_t late_recv_bytes(const dpar_schedule *in, dpar_why *why)
{
    const dpar_schedule_lower_desc how = lowering_of(DPAR_LOWER_LATE_RECV, 0);
    dpar_schedule out;
    dpar_why said;
    return needed_bytes(dpar_schedule_lower(&out, in, &how, NULL, 0, &said), &said, why);
}

static inline dpar_status late_recv(dpar_schedule *out, const dpar_schedule *in,
                                    int32_t channel, void *mem, int64_t bytes, dpar_why *why)
{
    const dpar_schedule_lower_desc how = lowering_of(DPAR_LOWER_LATE_RECV, channel);
    return dpar_schedule_lower(out, in, &how, mem, bytes, why);
}

static inline int64_t simulate_list_bytes(const dpar_schedule *s, const dpar_schedule_times *t)
{
    dpar_schedule_simulate_desc how;
    dpar_timing timing;
    dpar_why said;
    memset(&how, 0, sizeof how);
    how.times = t;
    return needed_bytes(dpar_schedule_simulate(s, &how, &timing, NULL, 0, &said), &said, NULL);
}

static inline dpar_status simulate_list(const dpar_schedule *s, const dpar_schedule_times *t,
                                        int64_t *start, int64_t *end, dpar_timing *timing,
                                        dpar_rank_timing *rank, void *mem, int64_t bytes,
                                        dpar_why *why)
{
    dpar_schedule_simulate_desc how;
    memset(&how, 0, sizeof how);
    how.times = t;
    how.start = start;
    how.end = end;
    how.rank = rank;
    return dpar_schedule_simulate(s, &how, timing, mem, bytes, why);
}

static inline dpar_status make_auto(const dpar_schedule_optimize_desc *job, int64_t nodes,
                                    dpar_schedule *s, dpar_schedule_optimize_result *result,
                                    void *mem, int64_t bytes, dpar_why *why)
{
    dpar_schedule_optimize_desc asked = *job;
    asked.nodes = nodes;
    return dpar_schedule_optimize(s, &asked, result, mem, bytes, why);
}

static inline dpar_status place_layers(const dpar_schedule_optimize_desc *job, int32_t layers,
                                       const dpar_schedule *given, int64_t tries, int64_t *cuts,
                                       dpar_schedule *s, dpar_schedule_optimize_result *result,
                                       void *mem, int64_t bytes, dpar_why *why)
{
    dpar_schedule_partition_desc how;
    how.job = job;
    how.layers = layers;
    how.given = given;
    how.tries = tries;
    how.cuts = cuts;
    return dpar_schedule_partition(s, &how, result, mem, bytes, why);
}

static inline int64_t place_layers_bytes(const dpar_schedule_optimize_desc *job, int32_t layers,
                                         const dpar_schedule *given)
{
    dpar_schedule_partition_desc how;
    dpar_schedule_optimize_result result;
    dpar_schedule s;
    dpar_why said;
    memset(&how, 0, sizeof how);
    how.job = job;
    how.layers = layers;
    how.given = given;
    how.tries = 1;
    return needed_bytes(dpar_schedule_partition(&s, &how, &result, NULL, 0, &said), &said, NULL);
}

#endif
