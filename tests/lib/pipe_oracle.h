/* SPDX-License-Identifier: MIT-0 */
/* pipe_oracle: jobs to schedule. Include it after dpar_schedule.h and check.h. */
#ifndef DPAR_PIPE_ORACLE_H
#define DPAR_PIPE_ORACLE_H

#include "schedule_calls.h"

#include <stdlib.h>

enum { PIPE_MOST = 24 };

/* A job and its arrays. */
typedef struct pipe_case {
    dpar_schedule_optimize_desc job;
    dpar_schedule_times times;
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
    c->job.micro_batches = m;
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

/* Reads the next line of tests/data/pipeline/exact_optimum.txt. Returns 1, or 0 at the end. */
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
        pipe_start(c, p, v, m, map[0] == 'V' ? DPAR_STAGE_MAP_V : DPAR_STAGE_MAP_LOOP,
                   split[0] == 's');
        pipe_uniform(c, f, i, w, 0, cap);
        if (line[0] == 'T') { /* TF=1,2,1 TI=1,2,1 TW=1,2,1 */
            c->times.forward.each = pipe_numbers(line + 3, p, c->f);
            c->times.input.each = pipe_numbers(strstr(line, "TI=") + 3, p, c->i);
            c->times.weight.each = pipe_numbers(strstr(line, "TW=") + 3, p, c->w);
        }
        c->expected = best;
        return 1;
    }
    return 0;
}

#endif
