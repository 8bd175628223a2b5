/* SPDX-License-Identifier: MIT-0 */
/* Tests that each call of dpar_schedule.h without memory fails with DPAR_E_ROOM, puts the bytes
 * that the header states into why.bytes, and succeeds with exactly as many bytes, whose end a
 * sanitizer guards. Run with: tests/run test schedule. */
#include "dpar_schedule.h"

#include "check.h"
#include "schedule_calls.h"

#include <stdlib.h>

static dpar_why why;

/* Allocates as many bytes as the previous call asked for, which must be `counted`. */
static void *asked(dpar_status status, int64_t counted)
{
    void *memory;
    CHECK_INT(status, DPAR_E_ROOM);
    CHECK_INT(why.bytes, counted);
    memory = malloc((size_t)why.bytes);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

static void judged(const dpar_schedule *s)
{
    dpar_schedule_check_desc run;
    dpar_schedule_slots_desc slots;
    dpar_schedule_simulate_desc sim;
    dpar_schedule_times times;
    dpar_timing timing;
    void *memory;
    memset(&run, 0, sizeof run);
    memset(&slots, 0, sizeof slots);
    memset(&sim, 0, sizeof sim);
    memset(&times, 0, sizeof times);
    run.transport = DPAR_TRANSPORT_PAIR;
    times.forward.all = times.input.all = times.weight.all = 1;
    sim.times = &times;
    memory =
        asked(dpar_schedule_check(s, NULL, NULL, 0, &why), dpari_schedule_check_bytes(s, NULL));
    CHECK_INT(dpar_schedule_check(s, NULL, memory, why.bytes, &why), DPAR_OK);
    free(memory);
    memory =
        asked(dpar_schedule_check(s, &run, NULL, 0, &why), dpari_schedule_check_bytes(s, &run));
    CHECK_INT(dpar_schedule_check(s, &run, memory, why.bytes, &why), DPAR_OK);
    free(memory);
    memory = asked(dpar_schedule_slots(s, &slots, NULL, 0, &why), dpari_schedule_slots_bytes(s));
    CHECK_INT(dpar_schedule_slots(s, &slots, memory, why.bytes, &why), DPAR_OK);
    free(memory);
    memory = asked(dpar_schedule_simulate(s, &sim, &timing, NULL, 0, &why),
                   dpari_schedule_simulate_bytes(s, &sim));
    CHECK_INT(dpar_schedule_simulate(s, &sim, &timing, memory, why.bytes, &why), DPAR_OK);
    free(memory);
}

static void lowered(const dpar_schedule *s, int32_t passes)
{
    const dpar_schedule_lower_desc how = lowering_of(passes, 0);
    dpar_schedule out, late;
    void *memory = asked(dpar_schedule_lower(&out, s, &how, NULL, 0, &why),
                         dpari_schedule_lower_bytes(s, &how, NULL));
    CHECK_INT(dpar_schedule_lower(&out, s, &how, memory, why.bytes, &why), DPAR_OK);
    if (passes == DPAR_LOWER_MESSAGES) {
        const dpar_schedule_lower_desc last = lowering_of(DPAR_LOWER_LATE_RECV, DPAR_CHANNEL_ANY);
        void *more = asked(dpar_schedule_lower(&late, &out, &last, NULL, 0, &why),
                           dpari_schedule_lower_bytes(&out, &last, NULL));
        CHECK_INT(dpar_schedule_lower(&late, &out, &last, more, why.bytes, &why), DPAR_OK);
        judged(&late);
        free(more);
    }
    free(memory);
}

static void by_name(const char *name)
{
    dpar_schedule_desc desc = order_of(0, 4, 8, 0), ruled;
    dpar_schedule s;
    void *memory;
    desc.name = name;
    ruled = desc;
    CHECK_INT(dpar_schedule_find(&ruled, name, &why), DPAR_OK);
    memory = asked(dpar_schedule_generate(&s, &desc, NULL, 0, &why),
                   dpari_schedule_generate_bytes(&ruled, NULL));
    CHECK_INT(dpar_schedule_generate(&s, &desc, memory, why.bytes, &why), DPAR_OK);
    lowered(&s, DPAR_LOWER_MESSAGES);
    lowered(&s, DPAR_LOWER_MESSAGES | DPAR_LOWER_SHARDS | DPAR_LOWER_REDUCE | DPAR_LOWER_TURNS);
    lowered(&s, DPAR_LOWER_MERGE);
    free(memory);
}

static void found(void)
{
    dpar_schedule_times times;
    dpar_schedule_optimize_desc job;
    dpar_schedule_partition_desc how;
    dpar_schedule_optimize_result result;
    dpar_schedule s;
    int64_t cuts[5];
    void *memory;
    memset(&times, 0, sizeof times);
    memset(&job, 0, sizeof job);
    memset(&how, 0, sizeof how);
    times.forward.all = times.input.all = times.weight.all = 1;
    job.ranks = job.stages = 4;
    job.micro_batches = 8;
    job.split = 1;
    job.times = &times;
    memory = asked(dpar_schedule_optimize(&s, &job, &result, NULL, 0, &why),
                   dpari_schedule_auto_bytes(&job, NULL));
    CHECK(dpar_schedule_optimize(&s, &job, &result, memory, why.bytes, &why) >= 0);
    free(memory);
    how.job = &job;
    how.layers = 9;
    how.tries = 10;
    how.cuts = cuts;
    memory = asked(dpar_schedule_partition(&s, &how, &result, NULL, 0, &why),
                   dpari_schedule_place_bytes(&how));
    CHECK(dpar_schedule_partition(&s, &how, &result, memory, why.bytes, &why) >= 0);
    free(memory);
}

int main(void)
{
    static const char text[] = "0F0,0F1,0B0,0B1\n";
    const dpar_schedule_read_desc in = text_of_list(text, sizeof text - 1, 0);
    dpar_schedule s;
    void *memory;
    s.ranks = 3;
    s.stages = 5;
    memory = asked(dpar_schedule_init(&s, 7, NULL, 0, &why), dpari_schedule_bytes(3, 5, 7));
    CHECK_INT(dpar_schedule_init(&s, 7, memory, why.bytes, &why), DPAR_OK);
    free(memory);
    memory = asked(dpar_schedule_read(&s, &in, NULL, 0, &why), dpari_schedule_bytes(1, 1, 4));
    CHECK_INT(dpar_schedule_read(&s, &in, memory, why.bytes, &why), DPAR_OK);
    free(memory);
    by_name("1f1b");
    by_name("zbv");
    by_name("v-half");
    by_name("gpipe-lifo");
    found();
    return CHECK_DONE();
}
