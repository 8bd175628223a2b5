/* SPDX-License-Identifier: MIT-0 */
/* Tests how ranks wait. The clock of deadlines must not count time in which the process was
 * suspended. A rank that finds a peer on its own CPU must move to another one, and the set of CPUs
 * that it may use must not change.
 *
 * Expected values: a gap of more than 0.25 s between two looks at the clock counts as 0.25 s
 * (os.h). The allowed CPUs are those that sched_getaffinity returns before and after. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "dpar_comm.h"

#include "check.h"

static void clock_of_deadlines(void)
{
    dpari_stopwatch watch = {0, 0};
    double looked = 0.0, waited;
    CHECK_NEAR(dpari_os_suspended(&looked, 100.0), 0.0, 0.0);
    CHECK_NEAR(looked, 100.0, 0.0);
    CHECK_NEAR(dpari_os_suspended(&looked, 100.02), 0.0, 0.0);
    CHECK_NEAR(dpari_os_suspended(&looked, 100.27), 0.0, 0.0);
    CHECK_NEAR(dpari_os_suspended(&looked, 103.52), 3.0, 1e-9);
    CHECK_NEAR(dpari_os_suspended(&looked, 103.53), 0.0, 0.0);
    CHECK_NEAR(dpari_os_waited(&watch), 0.0, 0.0);
    dpari_os_sleep(0.05);
    waited = dpari_os_waited(&watch);
    CHECK(waited >= 0.05 && waited <= 0.3);
    dpari_os_sleep(1.0);
    waited = dpari_os_waited(&watch) - waited;
    CHECK(waited > 0.2 && waited < 0.3);
}

/* Tests four ranks: 0, 1 and 2 in one control group, 3 in another. Spinning is short if a group has
 * fewer processors than ranks. */
static void quotas(void)
{
    static const int32_t all[] = {INT32_MAX, 4, 3, 2, 1};
    static const int32_t thrifty[] = {0, 0, 0, 1, 1};
    static dpari_rank rank[4];
    static dpari_world w;
    w.rank = rank;
    w.size = 4;
    for (int32_t i = 0; i < 5; i++) {
        for (int32_t r = 0; r < 4; r++) {
            rank[r].group = r < 3 ? 77 : 78;
            rank[r].quota = all[i];
        }
        for (w.me = 0; w.me < 4; w.me++) {
            CHECK_INT(dpari_world_quota_is_short(&w), w.me < 3 ? thrifty[i] : 0);
        }
    }
}

#if defined(__linux__)
static int32_t count_of(const uint64_t mask[DPARI_CPU_WORDS])
{
    int32_t count = 0;
    for (int32_t cpu = 0; cpu < 64 * DPARI_CPU_WORDS; cpu++) {
        count += (int32_t)(mask[cpu / 64] >> (cpu % 64) & 1);
    }
    return count;
}

static void moving(void)
{
    uint64_t before[DPARI_CPU_WORDS], after[DPARI_CPU_WORDS];
    int32_t cpu, moves = 0;
    dpari_os_cpus(before);
    CHECK(dpari_os_cpu() >= 0);
    for (cpu = 0; cpu < 64 * DPARI_CPU_WORDS; cpu++) {
        const int allowed = (int)(before[cpu / 64] >> (cpu % 64) & 1);
        CHECK_INT(dpari_os_move_to(cpu), allowed);
        moves += allowed;
        dpari_os_cpus(after);
        CHECK(memcmp(before, after, sizeof before) == 0);
    }
    CHECK_INT(moves, count_of(before));
    CHECK_INT(dpari_os_move_to(-1), 0);
    CHECK_INT(dpari_os_move_to(64 * DPARI_CPU_WORDS), 0);
}

/* Moves both ranks to the first CPU that they may use, and then lets them wait for each other. */
static int share(dpar_comm *c, void *arg)
{
    const dpar_world_desc *o = (const dpar_world_desc *)arg;
    dpari_world *w = dpari_world_of(c);
    uint64_t before[DPARI_CPU_WORDS], after[DPARI_CPU_WORDS];
    const double until = dpari_os_now() + 5.0;
    int32_t first = 0, moved = 0;
    dpari_os_cpus(before);
    if (count_of(before) < 2) {
        return 0;
    }
    while ((before[first / 64] >> (first % 64) & 1) == 0) {
        first++;
    }
    do {
        int32_t there = 1, all = 0;
        for (int32_t i = 0; i < 200; i++) {
            if (i % 50 == 0) {
                (void)dpari_os_move_to(first);
            }
            dpar_barrier(c, NULL);
        }
        there = w->moved > 0.0;
        dpar_all_reduce(c, &there, &all, 1, DPAR_I32, DPAR_MAX, NULL);
        moved = all;
    } while (!moved && dpari_os_now() < until && o->disable == 0);
    dpari_os_cpus(after);
    if (memcmp(before, after, sizeof before) != 0) {
        printf("rank %d: the CPUs that it may use are others than before\n", (int)c->rank);
        return 1;
    }
    if (c->rank == 0 && w->moved > 0.0) {
        printf("rank 0 moved; of two ranks on a CPU the higher one does\n");
        return 1;
    }
    if (moved != (o->disable == 0)) {
        printf("rank %d: moved %d with plain %d\n", (int)c->rank, (int)moved, (int)o->disable);
        return 1;
    }
    return c->status < 0;
}

/* Checks that a rank that has not joined has no CPU. It must not be CPU 0, which a waiting rank
 * could be using. */
static void absent(void)
{
    dpari_segment segment;
    dpar_why why;
    CHECK_INT(dpari_segment_make(&segment, 3, NULL, &why), DPAR_OK);
    for (int32_t i = 0; i < 3; i++) {
        CHECK_INT(dpari_segment_ranks(&segment)[i].cpu, -1);
    }
    dpari_segment_close(&segment);
}

static void sharing(void)
{
    dpar_world_desc o;
    dpar_why why;
    memset(&o, 0, sizeof o);
    CHECK_INT(dpar_launch(2, share, &o, &o, &why), DPAR_OK);
    o.disable = DPAR_WORLD_NO_MIGRATION;
    CHECK_INT(dpar_launch(2, share, &o, &o, &why), DPAR_OK);
}
#endif

int main(void)
{
    clock_of_deadlines();
    quotas();
#if defined(__linux__)
    moving();
    absent();
    sharing();
#endif
    return CHECK_DONE();
}
