/* SPDX-License-Identifier: MIT-0 */
/* pipe_oracle - jobs to schedule, what judges a schedule of one (the simulator, which shares no
 * code with the schedulers). Include it after dpar.h and check.h. */
#ifndef DPAR_PIPE_ORACLE_H
#define DPAR_PIPE_ORACLE_H

#include "schedule_calls.h"

#include <stdlib.h>

enum { PIPE_MOST = 24 };

/* A job with its arrays beside it. */
typedef struct pipe_case {
    dpar_pipe_job job;
    dpar_times times;
    int64_t f[PIPE_MOST], i[PIPE_MOST], w[PIPE_MOST], lag[PIPE_MOST], cap[PIPE_MOST];
    int64_t hold_f[PIPE_MOST], hold_i[PIPE_MOST], hold_w[PIPE_MOST];
    int64_t expected;
} pipe_case;

static inline void pipe_start(pipe_case *c, int p, int v, int m, int map, int split)
{
    memset(c, 0, sizeof *c);
    c->job.times = &c->times;
    c->job.ranks = p;
    c->job.stages = p * v;
    c->job.micros = m;
    c->job.map = map;
    c->job.split = split;
}

static inline void pipe_uniform(pipe_case *c, int64_t f, int64_t i, int64_t w, int64_t lag, int64_t cap)
{
    c->times.forward.all = f;
    c->times.input.all = i;
    c->times.weight.all = w;
    c->times.latency.all = lag;
    c->job.cap.all = cap;
}

static inline void pipe_holds(pipe_case *c, int64_t f, int64_t i, int64_t w)
{
    c->times.hold_forward.all = f;
    c->times.hold_input.all = i;
    c->times.hold_weight.all = w;
}

static inline const int64_t *pipe_numbers(const char *text, int n, int64_t *out)
{
    int k;
    for (k = 0; k < n; k++) {
        char *end;
        out[k] = strtol(text, &end, 10);
        text = end + (*end == ',');
    }
    return out;
}

/* The next line of tests/data/pipeline/exact_optimum.txt: 1, or 0 at the end. */
static inline int pipe_line(FILE *file, pipe_case *c)
{
    char line[256], map[8], split[12];
    int p, v, m, f, i, w, cap, best;
    while (fgets(line, sizeof line, file) != NULL) {
        const char *at = strstr(line, "p=");
        if (at == NULL || line[0] == '#' ||
            sscanf(at, "p=%d v=%d %7s m=%d F=%d I=%d W=%d %11s cap=%d : OPT makespan=%d", &p, &v,
                   map, &m, &f, &i, &w, split, &cap, &best) != 10) {
            continue;
        }
        pipe_start(c, p, v, m, map[0] == 'V' ? DPAR_MAP_V : DPAR_MAP_LOOP, split[0] == 's');
        pipe_uniform(c, f, i, w, 0, cap);
        if (line[0] == 'T') { /* TF=1,2,1 TI=1,2,1 TW=1,2,1 */
            c->times.forward.of = pipe_numbers(line + 3, p, c->f);
            c->times.input.of = pipe_numbers(strstr(line, "TI=") + 3, p, c->i);
            c->times.weight.of = pipe_numbers(strstr(line, "TW=") + 3, p, c->w);
        }
        c->expected = best;
        return 1;
    }
    return 0;
}

/* The schedule has every action of the job once, is in order, takes what the result says and stays
 * within the caps. */
static inline void pipe_judge(const dpar_pipe_job *job, const dpar_schedule *s,
                       const dpar_pipe_result *result)
{
    static int64_t mem[1 << 20];
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
    CHECK(result->bound <= (job->objective == DPAR_LEAST_SPAN ? t.span : t.makespan));
    for (n = 0; n < s->begin[s->ranks]; n++) {
        k = s->action[n].kind;
        CHECK(k == DPAR_FORWARD ||
              (job->split ? k == DPAR_INPUT || k == DPAR_WEIGHT : k == DPAR_BACKWARD));
        CHECK(s->action[n].stage < job->stages && s->action[n].micro < job->micros);
    }
    for (k = 0; k < job->stages; k++) {
        CHECK_INT(s->rank_of[k], job->rank_of != NULL ? job->rank_of[k]
                                                      : dpari_stage_rank(job->map, job->ranks, k));
    }
    for (r = 0; r < job->ranks; r++) {
        int64_t cap = job->cap.of != NULL ? job->cap.of[r] : job->cap.all;
        int counted = job->times->hold_forward.of == NULL && job->times->hold_forward.all == 0;
        CHECK(cap == 0 || (counted ? rank[r].peak_count : rank[r].peak_bytes) <= cap);
    }
}

#endif
