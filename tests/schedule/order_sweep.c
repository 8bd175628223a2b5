/* SPDX-License-Identifier: MIT-0 */
/* Tests every published order on 2 to 8 ranks with up to 4 micro-batches per rank with all of
 * dpar_schedule.h: generates, checks, lowers, checks again, runs it to its end over every
 * transport, sinks its receives and runs it again where that class of channels is promised, counts
 * slots, and simulates it with and without its messages. Run with: tests/run test schedule. */
#include "dpar_schedule.h"

#include "check.h"
#include "schedule_calls.h"

enum { BYTES = 1 << 21 };
static int64_t made[BYTES / 8], lower[BYTES / 8], sink[BYTES / 8], work[BYTES / 8];
static dpar_action_slots slots[1 << 15];
static dpar_slot_counts counts[64];
static int lists;

/* Checks that the status is OK, and otherwise prints the call and the reason. */
static void fine(const dpar_schedule_desc *o, const char *what, dpar_status st, const dpar_why *why)
{
    CHECK(st == DPAR_OK);
    if (st != DPAR_OK) {
        printf("  %s, %d ranks, %d chunks, %d micro-batches: %s: %s\n", dpar_schedule_name(o->rule),
               o->ranks, o->chunks, o->micro_batches, what, why->text);
    }
}

static void run(const dpar_schedule_desc *o, const dpar_schedule *s, int32_t transport,
                int32_t room)
{
    dpar_why why;
    fine(o, dpari_transport_name(transport), check_run(s, transport, room, NULL, work, BYTES, &why),
         &why);
}

static void sunk(const dpar_schedule_desc *o, const dpar_schedule *in)
{
    /* from lower.h: ANY is safe on every transport, PEER from PAIR on, EDGE on EDGE only */
    static const int32_t least[] = {DPAR_TRANSPORT_BLOCKING, DPAR_TRANSPORT_PAIR,
                                    DPAR_TRANSPORT_EDGE};
    dpar_schedule out;
    dpar_why why;
    int32_t kind, t;
    for (kind = 0; kind < DPAR_CHANNEL_COUNT; kind++) {
        dpar_status st = late_recv(&out, in, kind, sink, BYTES, &why);
        fine(o, "sink", st, &why);
        for (t = least[kind]; st == DPAR_OK && t <= DPAR_TRANSPORT_EDGE; t++) {
            run(o, &out, t, 1);
        }
    }
}

static void through(const dpar_schedule_desc *o)
{
    dpar_schedule s, full;
    dpar_schedule_times t;
    dpar_timing plain, sent;
    dpar_why why;
    int32_t transport, r;
    dpar_status st = dpar_schedule_generate(&s, o, made, BYTES, &why);
    lists++;
    fine(o, "make", st, &why);
    if (st != DPAR_OK) {
        return;
    }
    fine(o, "check", check_list(&s, 0, work, BYTES, &why), &why);
    st = dpar_schedule_lower(&full, &s, NULL, lower, BYTES, &why);
    fine(o, "lower", st, &why);
    if (st != DPAR_OK) {
        return;
    }
    fine(o, "check lowered", check_list(&full, 0, work, BYTES, &why), &why);
    for (transport = 1; transport < DPAR_TRANSPORT_COUNT; transport++) {
        run(o, &full, transport, 1);
    }
    CHECK(full.begin[full.ranks] <= 1 << 15);
    fine(o, "slots", give_slots(&full, 0, slots, counts, work, BYTES, &why), &why);
    memset(&t, 0, sizeof t);
    t.forward.all = 3;
    t.input.all = t.weight.all = 2;
    t.latency.all = 1;
    fine(o, "simulate", simulate_list(&s, &t, NULL, NULL, &plain, NULL, work, BYTES, &why), &why);
    fine(o, "simulate lowered",
         simulate_list(&full, &t, NULL, NULL, &sent, NULL, work, BYTES, &why), &why);
    CHECK_INT(sent.makespan, plain.makespan); /* buffered sends take as long as implied messages */
    CHECK_INT(sent.peak_count, plain.peak_count);
    for (r = 0; r < s.ranks; r++) { /* as many slots as values live at once */
        CHECK(counts[r].activation <= plain.peak_count);
    }
    if (o->micro_batches % 3 == 0) {
        sunk(o, &full);
    }
}

int main(void)
{
    static const int32_t sizes[] = {2, 3, 4, 5, 6, 8};
    dpar_schedule_desc o;
    size_t k;
    int32_t v;
    memset(&o, 0, sizeof o);
    for (o.rule = 1; o.rule < DPAR_SCHEDULE_END; o.rule++) {
        int before = lists;
        for (k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            o.ranks = sizes[k];
            for (o.micro_batches = 1; o.micro_batches <= 4 * o.ranks; o.micro_batches++) {
                for (v = 0; v <= 3; v++) { /* 0 selects the rule's own */
                    o.chunks = v;
                    if (dpari_order_check(&o, NULL) == DPAR_OK) {
                        through(&o);
                    }
                }
            }
        }
        CHECK(lists > before);
    }
    printf("%d lists\n", lists);
    return CHECK_DONE();
}
