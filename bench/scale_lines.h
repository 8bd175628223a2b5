/* SPDX-License-Identifier: MIT-0 */
/* scale_lines - which cache lines ranks of one node write and read when all wait for all: a barrier
 * or a small all_reduce (what is reduced lies in the lines that say that a rank has come).
 *
 * One level: each rank writes its own line and reads those of all others, from its right neighbour
 * on (src/comm/coll.c). Two: in groups of level[0] ranks, of level[1] such groups, the members
 * write, the group's first rank reads, writes for its group one level up, there all read all, from
 * the next on, and in the end it writes a line that the members wait for (src/comm/gate.h, groups
 * of 8). More levels: in the same way.
 *
 * The count is of transfers: a rank reads a line that another has written; and of lines taken back:
 * a rank writes one that others have read. Nobody looks at a line again before it is written, for
 * until then his copy is good. Time is in transfers: a line goes to one reader at a time, a rank
 * takes one line at a time, and taking one back is a transfer. */
#ifndef SCALE_LINES_H
#define SCALE_LINES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SCALE_LEVELS_MOST = 4, SCALE_OPS_MOST = 1 << 10 };

typedef struct scale_groups {
    int32_t levels;
    int32_t level[SCALE_LEVELS_MOST]; /* ranks are their product */
} scale_groups;

typedef struct scale_line_counts {
    int64_t transfers, taken_back; /* of all ranks */
    int64_t busiest;               /* lines that one rank reads */
    int64_t together, late;        /* on the longest path: all begin at once; a rank comes when all
                                      others wait */
} scale_line_counts;

/* What a rank does: the line, and whether it writes. */
typedef struct scale_op {
    int32_t line, writes;
} scale_op;

static int32_t scale_group_ranks(const scale_groups *groups)
{
    int32_t i, n = 1;
    for (i = 0; i < groups->levels; i++) {
        n *= groups->level[i];
    }
    return n;
}

/* Of each rank, each level: that it (and its group below) has come; that its group may go. */
static int32_t scale_line_of(int32_t rank, int32_t level, int32_t go)
{
    return (rank * SCALE_LEVELS_MOST + level) * 2 + go;
}

/* In the order in which it does them; how many. */
static int32_t scale_rank_ops(const scale_groups *groups, int32_t rank, scale_op *op)
{
    int32_t n = 0, level, unit = 1, i;
    for (level = 0; level < groups->levels; level++, unit *= groups->level[level - 1]) {
        const int32_t size = groups->level[level], me = rank / unit % size;
        const int32_t first = rank - me * unit, top = level == groups->levels - 1;
        op[n].line = scale_line_of(rank, level, 0);
        op[n++].writes = 1;
        for (i = 0; i < size && (top || me == 0); i++) {
            const int32_t other = top ? (me + i) % size : i;
            op[n].line = scale_line_of(first + other * unit, level, 0);
            op[n].writes = 0;
            n += other != me;
        }
        if (!top && me != 0) {
            op[n].line = scale_line_of(first, level, 1);
            op[n++].writes = 0;
            break;
        }
    }
    while (--level >= 0) { /* the groups that it is the first of, the largest first */
        unit /= groups->level[level];
        if (level < groups->levels - 1 && rank / unit % groups->level[level] == 0) {
            op[n].line = scale_line_of(rank, level, 1);
            op[n++].writes = 1;
        }
    }
    return n;
}

typedef struct scale_bus {
    int64_t *clock, *written,
        *busy; /* of ranks; of lines: since when it is there (-1: not), is free */
    int32_t *at, *ops;
    scale_op *op;
} scale_bus;

/* When the rank's next op can begin; -1: not yet. */
static int64_t scale_begins(const scale_bus *bus, int32_t rank)
{
    const scale_op *op = &bus->op[rank * SCALE_OPS_MOST + bus->at[rank]];
    int64_t when = bus->clock[rank];
    if (bus->at[rank] == bus->ops[rank] || (!op->writes && bus->written[op->line] < 0)) {
        return -1;
    }
    if (!op->writes) {
        when = when > bus->written[op->line] ? when : bus->written[op->line];
        when = when > bus->busy[op->line] ? when : bus->busy[op->line];
    }
    return when;
}

/* Runs all to the end, always what can begin first; when the last has ended. -1: they wait for each
 * other for ever. */
static int64_t scale_bus_run(scale_bus *bus, int32_t ranks)
{
    int64_t end = 0;
    for (;;) {
        int64_t begin = -1;
        int32_t r, next = -1, left = 0;
        for (r = 0; r < ranks; r++) {
            const int64_t when = scale_begins(bus, r);
            left += bus->at[r] < bus->ops[r];
            if (when >= 0 && (next < 0 || when < begin)) {
                begin = when;
                next = r;
            }
        }
        if (next < 0) {
            return left ? -1 : end;
        }
        const scale_op *op = &bus->op[next * SCALE_OPS_MOST + bus->at[next]++];
        bus->clock[next] = begin + 1;
        if (op->writes) {
            bus->written[op->line] = begin + 1;
        } else {
            bus->busy[op->line] = begin + 1;
        }
        end = begin + 1 > end ? begin + 1 : end;
    }
}

/* When one rank comes so much later than the others. */
static int64_t scale_bus_time(scale_bus *bus, int32_t ranks, int32_t late, int64_t comes)
{
    const int32_t lines = ranks * SCALE_LEVELS_MOST * 2;
    int32_t i;
    for (i = 0; i < lines; i++) {
        bus->written[i] = -1;
        bus->busy[i] = 0;
    }
    memset(bus->at, 0, (size_t)ranks * sizeof *bus->at);
    memset(bus->clock, 0, (size_t)ranks * sizeof *bus->clock);
    bus->clock[late] = comes;
    return scale_bus_run(bus, ranks) - comes;
}

/* 0: no memory. Late comes a member of the first group or of the last, whichever takes longer. */
static int32_t scale_count_lines(const scale_groups *groups, scale_line_counts *result)
{
    const int32_t ranks = scale_group_ranks(groups);
    const size_t n = (size_t)ranks, lines = n * SCALE_LEVELS_MOST * 2;
    int64_t *words = (int64_t *)malloc((n + 2 * lines) * sizeof *words);
    int32_t *counts = (int32_t *)malloc(2 * n * sizeof *counts);
    scale_bus bus;
    int32_t r, i;
    memset(result, 0, sizeof *result);
    bus.op = (scale_op *)malloc(n * SCALE_OPS_MOST * sizeof *bus.op);
    if (words == NULL || counts == NULL || bus.op == NULL) {
        free(words);
        free(counts);
        free(bus.op);
        return 0;
    }
    bus.clock = words;
    bus.written = words + n;
    bus.busy = bus.written + lines;
    bus.at = counts;
    bus.ops = counts + n;
    for (r = 0; r < ranks; r++) {
        int64_t reads = 0;
        scale_op *op = bus.op + (size_t)r * SCALE_OPS_MOST;
        bus.ops[r] = scale_rank_ops(groups, r, op);
        for (i = 0; i < bus.ops[r]; i++) {
            reads += !op[i].writes;
            result->taken_back += op[i].writes;
        }
        result->transfers += reads;
        result->busiest = reads > result->busiest ? reads : result->busiest;
    }
    result->together = scale_bus_time(&bus, ranks, 0, 0);
    result->late = scale_bus_time(&bus, ranks, 1, 100 * (int64_t)ranks);
    if (scale_bus_time(&bus, ranks, ranks - 1, 100 * (int64_t)ranks) > result->late) {
        result->late = scale_bus_time(&bus, ranks, ranks - 1, 100 * (int64_t)ranks);
    }
    free(words);
    free(counts);
    free(bus.op);
    return 1;
}

#endif
