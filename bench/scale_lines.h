/* SPDX-License-Identifier: MIT-0 */
/* scale_lines - counts the cache lines that move between the ranks of one node in a barrier, or in
 * a small all_reduce, whose numbers are in the same lines as the flags.
 *
 * With one level, each rank writes its own line and reads those of all others, beginning with its
 * right neighbour (src/comm/collectives.c). With two levels there are level[1] groups of level[0]
 * ranks: the members of a group write their lines, and the group's first rank reads them and writes
 * a line for its group. Among the first ranks all read the lines of all. In the end each of them
 * writes a line that its members wait for (src/comm/arrival.h, groups of 8). More levels work in
 * the same way.
 *
 * A transfer is a rank reading a line that another rank has written. A line is taken back if a rank
 * writes one that others have read. A rank that waits for a line does not count until the line is
 * written, because until then its own copy is valid.
 *
 * Times are in transfers, for which three rules hold: a line is sent to one reader at a time, a
 * rank receives one line at a time, and taking a line back takes as long as a transfer. */
#ifndef SCALE_LINES_H
#define SCALE_LINES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SCALE_LEVELS_MOST = 4, SCALE_OPS_MOST = 1 << 10 };

typedef struct scale_groups {
    int32_t levels;
    int32_t level[SCALE_LEVELS_MOST]; /* their product is the number of ranks */
} scale_groups;

typedef struct scale_line_counts {
    int64_t transfers, taken_back; /* of all ranks */
    int64_t busiest;               /* lines that one rank reads */
    int64_t together, late;        /* transfers on the longest path if all ranks begin at once, and
                                      if one begins when all others already wait */
} scale_line_counts;

/* A line that a rank writes (1) or reads (0). */
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

/* Returns the number of a line. Each rank has two lines for each level: that it and the group below
 * it have arrived (go 0), and that its group may go on (go 1). */
static int32_t scale_line_of(int32_t rank, int32_t level, int32_t go)
{
    return (rank * SCALE_LEVELS_MOST + level) * 2 + go;
}

/* Lists what a rank does, in order. Returns how many operations these are. */
static int32_t scale_rank_ops(const scale_groups *groups, int32_t rank, scale_op *op)
{
    int32_t n = 0, level, unit = 1, i;
    for (level = 0; level < groups->levels; level++) {
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
        unit *= size;
    }
    while (--level >= 0) { /* it releases the groups of which it is the first, the largest first */
        unit /= groups->level[level];
        if (level < groups->levels - 1 && rank / unit % groups->level[level] == 0) {
            op[n].line = scale_line_of(rank, level, 1);
            op[n++].writes = 1;
        }
    }
    return n;
}

/* All ranks at work. */
typedef struct scale_bus {
    int64_t *clock;   /* [ranks] when a rank has done its last operation */
    int64_t *written; /* [lines] when a line was written, or -1 */
    int64_t *busy;    /* [lines] when the last reader had it */
    int32_t *at;      /* [ranks] the next operation */
    int32_t *ops;     /* [ranks] how many there are */
    scale_op *op;     /* [ranks][SCALE_OPS_MOST] */
} scale_bus;

/* Returns when the rank's next operation can begin, or -1 if its line is not written yet or the
 * rank is done. */
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

/* Runs all ranks to the end, and always the operation that can begin first. Returns when the last
 * one ends, or -1 if the ranks wait for each other forever. */
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

/* Returns the time from the arrival of rank `late`, which is at time `comes`, to the end. All other
 * ranks arrive at 0. */
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

/* Fills *result. The late rank is a member of the first or of the last group, whichever takes
 * longer. Returns 0 if there is no memory, otherwise 1. */
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
