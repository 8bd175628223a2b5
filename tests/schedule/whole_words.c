/* SPDX-License-Identifier: MIT-0 */
/* Tests that every size which dpar_schedule.h reports is a multiple of 8, because callers put one
 * array behind another in the same memory and each must be aligned as for int64_t. Uses odd numbers
 * of ranks, stages and micro-batches, for which the sizes would not be multiples without rounding.
 * Run with: tests/run test schedule. */
#include "dpar_schedule.h"

#include "check.h"
#include "schedule_calls.h"

static int64_t memory[1 << 16], lowered[1 << 16], work[1 << 16];

static void check_lists(const dpar_schedule *s)
{
    static const int32_t passes[] = {DPAR_LOWER_MESSAGES, DPAR_LOWER_MERGE, DPAR_LOWER_LATE_RECV};
    dpar_schedule_check_desc run;
    dpar_schedule_times times;
    dpar_schedule_simulate_desc how;
    size_t k;
    int64_t bytes;
    int32_t links;
    memset(&run, 0, sizeof run);
    CHECK_INT(dpari_schedule_check_bytes(s, NULL) % 8, 0);
    run.transport = DPAR_TRANSPORT_PAIR;
    CHECK_INT(dpari_schedule_check_bytes(s, &run) % 8, 0);
    CHECK_INT(dpari_schedule_slots_bytes(s) % 8, 0);
    for (k = 0; k < sizeof passes / sizeof *passes; k++) {
        dpar_schedule_lower_desc pass;
        memset(&pass, 0, sizeof pass);
        pass.passes = passes[k];
        bytes = dpari_schedule_lower_bytes(s, &pass, NULL);
        CHECK(bytes % 8 == 0 || bytes == -1); /* -1: has messages already, or has none */
    }
    memset(&times, 0, sizeof times);
    memset(&how, 0, sizeof how);
    how.times = &times;
    for (links = DPAR_CONTENTION_NONE; links <= DPAR_CONTENTION_RANK; links++) {
        times.links = links;
        CHECK_INT(dpari_schedule_simulate_bytes(s, &how) % 8, 0);
    }
}

/* Does what two callers of the library did: puts work behind a schedule, in the same memory. */
static void check_behind(const dpar_schedule *s, int64_t used)
{
    dpar_schedule_times times;
    dpar_schedule_simulate_desc how;
    dpar_timing timing;
    memset(&times, 0, sizeof times);
    memset(&how, 0, sizeof how);
    times.forward.all = times.input.all = times.weight.all = 1;
    how.times = &times;
    CHECK_INT((uintptr_t)((char *)memory + used) % 8, 0);
    CHECK_INT(dpar_schedule_simulate(s, &how, &timing, (char *)memory + used,
                                     (int64_t)sizeof memory - used, NULL),
              DPAR_OK);
}

static void check_order(int32_t rule, int32_t ranks, int32_t micros, int32_t chunks)
{
    const dpar_schedule_desc o = order_of(rule, ranks, micros, chunks);
    const int64_t bytes = dpari_schedule_generate_bytes(&o, NULL);
    dpar_schedule_lower_desc pass;
    dpar_schedule s, with;
    if (bytes < 0) {
        return;
    }
    CHECK_INT(bytes % 8, 0);
    CHECK_INT(dpar_schedule_generate(&s, &o, memory, sizeof memory, NULL), DPAR_OK);
    check_lists(&s);
    check_behind(&s, bytes);
    memset(&pass, 0, sizeof pass);
    pass.passes = DPAR_LOWER_MESSAGES;
    CHECK_INT(dpar_schedule_lower(&with, &s, &pass, lowered, sizeof lowered, NULL), DPAR_OK);
    check_lists(&with);
}

static void check_made(int32_t ranks, int32_t stages, int32_t micros)
{
    dpar_schedule_times times;
    dpar_schedule_optimize_desc job;
    dpar_schedule s;
    dpar_schedule_optimize_result result;
    dpar_schedule_partition_desc how;
    memset(&times, 0, sizeof times);
    memset(&job, 0, sizeof job);
    memset(&how, 0, sizeof how);
    times.forward.all = times.input.all = times.weight.all = 1;
    job.ranks = ranks;
    job.stages = stages;
    job.micro_batches = micros;
    job.split = 1;
    job.times = &times;
    CHECK(dpari_schedule_auto_bytes(&job, NULL) > 0);
    CHECK_INT(dpari_schedule_auto_bytes(&job, NULL) % 8, 0);
    CHECK(dpar_schedule_optimize(&s, &job, &result, work, sizeof work, NULL) >= 0);
    how.job = &job;
    how.layers = stages + 3;
    CHECK_INT(dpari_schedule_place_bytes(&how) % 8, 0);
}

int main(void)
{
    static const char csv[] = "0F0,0B0\n1F0,1B0\n2F0,2B0\n";
    int32_t rule, ranks, micros, chunks;
    CHECK_INT(read_csv_bytes(csv, sizeof csv - 1, NULL) % 8, 0);
    for (ranks = 1; ranks <= 7; ranks++) {
        int32_t stages;
        for (stages = 1; stages <= 9; stages++) {
            CHECK_INT(dpari_schedule_bytes(ranks, stages, 3) % 8, 0);
        }
        for (micros = 1; micros <= 13; micros += 2) {
            for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
                for (chunks = 0; chunks <= 3; chunks++) {
                    check_order(rule, ranks, micros, chunks);
                }
            }
            check_made(ranks, ranks, micros);
            check_made(ranks, 3 * ranks, micros);
        }
    }
    return CHECK_DONE();
}
