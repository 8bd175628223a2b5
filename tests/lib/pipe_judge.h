/* SPDX-License-Identifier: MIT-0 */
/* pipe_judge: checks that a schedule that the search found has the properties that the search
 * reports. The simulator measures them; it shares no code with the schedulers. Uses private
 * functions of dpar_schedule.h. */
#ifndef PIPE_JUDGE_H
#define PIPE_JUDGE_H

#include "dpar_schedule.h"

#include "check.h"
#include "schedule_calls.h"

/* Checks that the schedule has each action of the job once, is in order, takes the reported time
 * and stays within the limits. */
static inline void pipe_judge(const dpar_schedule_optimize_desc *job, const dpar_schedule *s,
                              const dpar_schedule_optimize_result *result)
{
    static int64_t mem[1 << 19];
    static dpar_rank_timing rank[64];
    dpar_timing t;
    dpar_why why;
    int32_t r, k;
    int64_t n;
    why.text[0] = 0;
    CHECK_INT(s->begin[s->ranks], dpari_pipe_actions(job)); /* and none twice: */
    CHECK_INT(simulate_list(s, job->times, NULL, NULL, &t, rank, mem, sizeof mem, &why), DPAR_OK);
    CHECK_TEXT(why.text, "");
    CHECK_INT(t.makespan, result->makespan);
    CHECK_INT(t.span, result->span);
    CHECK(result->bound <= (job->objective == DPAR_OBJECTIVE_SPAN ? t.span : t.makespan));
    for (n = 0; n < s->begin[s->ranks]; n++) {
        k = s->action[n].kind;
        CHECK(k == DPAR_ACTION_FORWARD ||
              (job->split ? k == DPAR_ACTION_INPUT || k == DPAR_ACTION_WEIGHT
                          : k == DPAR_ACTION_BACKWARD));
        CHECK(s->action[n].stage < job->stages && s->action[n].micro_batch < job->micro_batches);
    }
    for (k = 0; k < job->stages; k++) {
        CHECK_INT(s->rank_of[k], job->rank_of != NULL ? job->rank_of[k]
                                                      : dpari_stage_rank(job->map, job->ranks, k));
    }
    for (r = 0; r < job->ranks; r++) {
        int64_t cap = job->cap.each != NULL ? job->cap.each[r] : job->cap.all;
        int counted = job->times->hold_forward.each == NULL && job->times->hold_forward.all == 0;
        CHECK(cap == 0 || (counted ? rank[r].peak_count : rank[r].peak_bytes) <= cap);
    }
}

#endif
