/* SPDX-License-Identifier: MIT-0 */
/* scale - predicts what operations cost on large machines. It replays the message lists of
 * all_reduce, all_to_all and a 3-d halo (scale_lists.h) for 2 to 8192 nodes of 2 to 128 ranks on a
 * machine of dpar_cost.h, for the algorithms of dpar and for the flat ones, which are in the same
 * row. And it counts the cache lines of a barrier on a node of many ranks (scale_lines.h).
 *
 *   cc -O2 -I. -DDPAR_IMPLEMENTATION bench/scale.c -o build/scale
 *   build/scale [machine=dgx-h100] [memory=400] [nodes=2,64,1024,8192] [ranks=8,32,128]
 *
 *   machine   a name or description of dpar_cluster_read; its network ports are used
 *   memory    GB/s at which all ranks of a node together read its memory
 *
 * A cell has four numbers: messages that the busiest rank sends / messages that leave a node, for
 * each of its ports / bytes over the busiest port / predicted time.
 *
 *   mpicc -O2 -I. -DOVER_MPI -DDPAR_IMPLEMENTATION bench/scale.c -o build/scale_mpi
 *   mpirun -np 4 build/scale_mpi                                    on two nodes or more
 *
 * tests the model on a machine: it measures latency and bandwidth between and within the nodes,
 * then dpar's all_reduce, all_to_all and halos, and prints predicted over measured time, where 1 is
 * exact and above 1 means that the prediction is too slow.
 *
 * The model. Steps follow each other. In a step the first message of a rank to another node takes
 * message_s and each further one gap_s. A port carries the bytes of its ranks at port_Bps (rank i
 * uses port i mod ports), and the receiver reads them at copy_Bps. Within a node, a collective
 * waits for the cache lines of the other ranks (scale_lines.h), and a halo for each peer. A rank
 * copies what it sends into staging memory and reads what it receives, at copy_Bps, or at
 * memory_Bps for all ranks together if that takes longer. Messages within a node take near_s each,
 * and their bytes go at near_Bps. The copies of a halo are those of dpar_halo_cost_predict.
 *
 * Exit codes: 0 done; 1 no memory, or an operation failed; 2 wrong options, or too few nodes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#ifdef OVER_MPI
#include "dpar_halo.h"
#include "dpar_mpi.h"
#endif
#include "dpar_cost.h"

#include "scale_replay.h"
#ifndef OVER_MPI
#include "scale_lines.h"
#endif

/* ---- the model ---- */

typedef struct {
    double message_s, gap_s, port_Bps;
    double near_s, near_Bps;     /* messages within a node */
    double meet_s, peer_s;       /* a barrier within a node; a halo's wait for one peer there */
    double copy_Bps, memory_Bps; /* of a rank, of a node */
    double run_s;                /* of a copy, for each contiguous run of a face */
    double halo_copy_s;          /* a rank's copies in one exchange: dpar_halo_cost_predict */
    int32_t ports;
} rates;

typedef struct {
    int64_t messages, port_messages, port_bytes;
    double seconds;
} price;

static double larger(double first, double second)
{
    return first > second ? first : second;
}

/* Returns the predicted time of one step. */
static double seconds_of_step(const scale_job *job, const scale_step *step, const rates *speed)
{
    const int32_t halo = job->way >= HALO_LEVELS;
    const double read_s = halo ? 0 : 1 / speed->copy_Bps; /* halos: all copies together */
    double memory = 0, far = 0, beside = 0;
    if (step->peers > 0) {
        memory = halo ? (double)step->peers * speed->peer_s : speed->meet_s;
        memory += halo ? 0
                       : larger((double)step->moved_bytes / speed->copy_Bps,
                                (double)step->node_moved / speed->memory_Bps);
    }
    if (step->far > 0) {
        far = speed->message_s + (double)(step->far - 1) * speed->gap_s +
              (double)step->port_bytes / speed->port_Bps + (double)step->far_bytes * read_s;
    }
    if (step->near > 0) {
        beside = (double)step->near * speed->near_s +
                 larger((double)step->near_bytes / speed->near_Bps,
                        (double)step->node_moved / speed->memory_Bps);
    }
    /* if one rank sends both far and near messages the times add up; otherwise different ranks send
     * them at the same time */
    far = step->sent > step->far && step->sent > step->near ? far + beside : larger(far, beside);
    return larger(memory, far) + (halo ? speed->halo_copy_s : 0);
}

/* Returns the steps of a job. Ends the program if there is no memory. */
static scale_step *steps_of(const scale_job *job, const rates *speed, int32_t *steps)
{
    scale_step *step = scale_replay(job, speed->ports, steps);
    if (step == NULL) {
        fprintf(stderr, "scale: no memory for %d steps\n", (int)*steps);
        exit(1);
    }
    return step;
}

/* Returns the price of the steps if all messages have `times` as many bytes. */
static price price_of_steps(const scale_job *job, const scale_step *step, int32_t steps,
                            int64_t times, const rates *speed)
{
    price total;
    int32_t i;
    memset(&total, 0, sizeof total);
    for (i = 0; i < steps; i++) {
        scale_step one = step[i];
        one.far_bytes *= times;
        one.near_bytes *= times;
        one.moved_bytes *= times;
        one.node_moved *= times;
        one.port_bytes *= times;
        total.messages += one.times * (one.sent > one.got ? one.sent : one.got);
        total.port_messages += one.times * one.out_messages;
        total.port_bytes += one.times * one.port_bytes;
        total.seconds += (double)one.times * seconds_of_step(job, &one, speed);
    }
    total.port_messages = (total.port_messages + speed->ports - 1) / speed->ports;
    return total;
}

static price price_of(const scale_job *job, const rates *speed)
{
    int32_t steps;
    scale_step *step = steps_of(job, speed, &steps);
    const price total = price_of_steps(job, step, steps, 1, speed);
    free(step);
    return total;
}

/* Describes a halo of blocks of n^3 f64 with faces 1 deep, and sets halo_copy_s to what its copies
 * cost by dpar_halo_cost_predict. The ranks are a row if `row` is 1, otherwise the grid that
 * dpar_halo_cost_choose finds. */
static void halo_job(scale_job *job, int32_t n, int32_t row, rates *speed)
{
    dpar_halo_cost_desc cost;
    dpar_halo_cost grid;
    dpar_halo_rates host;
    dpar_why why;
    dpar_status status = DPAR_OK;
    int32_t d;
    memset(&cost, 0, sizeof cost);
    memset(&grid, 0, sizeof grid);
    dpar_halo_rates_init(&host);
    host.copy_Bps = speed->copy_Bps;
    host.run_s = speed->run_s;
    host.nic_Bps = speed->port_Bps * speed->ports;
    cost.ranks = job->nodes * job->per_node;
    cost.per_node = job->per_node;
    cost.dims = 3;
    cost.shape = DPAR_STENCIL_STAR;
    cost.periodic = 7;
    cost.bytes = cost.contiguous_bytes = job->bytes = 8;
    for (d = 0; d < 3; d++) {
        cost.cells[d] = INT64_C(1) << 17;
        cost.width[d] = 1;
        grid.parts[d] = d == 0 ? cost.ranks : 1;
        grid.stride[d] = 1;
    }
    if (!row) {
        status = dpar_halo_cost_choose(&cost, &host, &grid, &why);
    }
    for (d = 0; d < 3; d++) {
        cost.cells[d] = (int64_t)n * grid.parts[d];
        job->parts[d] = grid.parts[d];
        job->stride[d] = grid.stride[d];
    }
    if (status != DPAR_OK || dpar_halo_cost_predict(&cost, &host, &grid, &why) != DPAR_OK) {
        fprintf(stderr, "scale: a halo of %d^3 cells per rank cannot be predicted: %s\n", (int)n,
                why.text);
        exit(1);
    }
    job->cells = n;
    job->width = 1;
    speed->halo_copy_s = grid.copy_s;
}

/* ---- numbers for people ---- */

static const char *short_bytes(double bytes, char *text)
{
    static const char unit[] = " KMGT";
    int u = 0;
    for (; bytes >= 1000 && u < 4; u++) {
        bytes /= 1024;
    }
    if (u == 0) {
        sprintf(text, "%.0f B", bytes);
    } else {
        sprintf(text, bytes < 9.95 ? "%.1f %ciB" : "%.0f %ciB", bytes, unit[u]);
    }
    return text;
}

static const char *short_seconds(double seconds, char *text)
{
    const char *unit = "s";
    double value = seconds;
    if (seconds < 1e-3) {
        unit = "us";
        value = seconds * 1e6;
    } else if (seconds < 1) {
        unit = "ms";
        value = seconds * 1e3;
    }
    sprintf(text, value < 9.95 ? "%.1f %s" : "%.0f %s", value, unit);
    return text;
}

#ifndef OVER_MPI

static const char *short_count(int64_t n, char *text)
{
    if (n < 10000) {
        sprintf(text, "%d", (int)n);
    } else if (n < 10000000) {
        sprintf(text, "%dk", (int)((n + 500) / 1000));
    } else {
        sprintf(text, "%dM", (int)((n + 500000) / 1000000));
    }
    return text;
}

static void print_price(const price *total)
{
    char sent_text[40], port_text[40], bytes_text[40], time_text[40];
    printf(" %s / %s / %s / %s |", short_count(total->messages, sent_text),
           short_count(total->port_messages, port_text),
           short_bytes((double)total->port_bytes, bytes_text),
           short_seconds(total->seconds, time_text));
}

static void print_ways(scale_job *job, const rates *speed, int32_t first, int32_t last)
{
    for (job->way = first; job->way <= last; job->way++) {
        const price total = price_of(job, speed);
        print_price(&total);
    }
}

/* ---- the tables ---- */

/* Of a cache line between two cores; docs/records/performance.md has 120 to 171 ns. */
static const double line_s = 150e-9;

enum { LIST_MOST = 8 };
typedef struct {
    int32_t node_counts, nodes[LIST_MOST], rank_counts, ranks[LIST_MOST];
} worlds;

/* Returns the time in which the ranks of a node wait for each other: each for all others, or in
 * groups of 8 if there are more than 16 (src/comm/arrival.h). */
static double meet_seconds(int32_t ranks)
{
    scale_groups groups;
    scale_line_counts counts;
    groups.levels = ranks > 16 ? 2 : 1;
    groups.level[0] = ranks > 16 ? 8 : ranks;
    groups.level[1] = ranks / 8;
    if (!scale_count_lines(&groups, &counts)) {
        fprintf(stderr, "scale: no memory to count the cache lines of a barrier of %d ranks\n",
                (int)ranks);
        exit(1);
    }
    return (double)counts.together * line_s;
}

static void all_reduces(const worlds *list, rates *speed)
{
    static const int64_t sizes[] = {4096, 1 << 20, 64 << 20};
    char text[40];
    int32_t i, k, s;
    scale_job job;
    memset(&job, 0, sizeof job);
    job.bytes = 4;
    printf("\n### all_reduce\n\n| nodes x ranks | bytes | dpar: levels | levels, halving between "
           "nodes "
           "| flat doubling | flat ring |\n|---|---|---|---|---|---|\n");
    for (i = 0; i < list->node_counts; i++) {
        for (k = 0; k < list->rank_counts; k++) {
            for (s = 0; s < 3; s++) {
                job.nodes = list->nodes[i];
                job.per_node = list->ranks[k];
                speed->meet_s = meet_seconds(job.per_node);
                job.count = sizes[s] / 4;
                printf("| %d x %d | %s |", (int)job.nodes, (int)job.per_node,
                       short_bytes((double)sizes[s], text));
                print_ways(&job, speed, REDUCE_LEVELS, REDUCE_RING);
                printf("\n");
            }
        }
    }
}

/* Prints up to how many bytes, a power of two up to 1 MiB, `way` is faster than messages from each
 * rank to each. */
static void print_wins(scale_job job, const rates *speed, int32_t way)
{
    scale_step *step[2];
    int32_t steps[2];
    int64_t wins = 0, bytes;
    char text[40];
    scale_job other = job;
    job.count = other.count = job.bytes = other.bytes = 1;
    job.way = ALL_EACH;
    other.way = way;
    step[0] = steps_of(&job, speed, &steps[0]);
    step[1] = steps_of(&other, speed, &steps[1]);
    for (bytes = 1; bytes <= 1 << 20; bytes *= 2) {
        const price each = price_of_steps(&job, step[0], steps[0], bytes, speed);
        const price its = price_of_steps(&other, step[1], steps[1], bytes, speed);
        if (its.seconds < each.seconds) {
            wins = bytes;
        }
    }
    if (wins == 0) {
        printf(" never |");
    } else if (wins == 1 << 20) {
        printf(" >= 1 MiB |");
    } else {
        printf(" %s |", short_bytes((double)wins, text));
    }
    free(step[0]);
    free(step[1]);
}

static void all_to_alls(const worlds *list, rates *speed)
{
    static const int64_t sizes[] = {8, 1024};
    char text[40];
    int32_t i, k, s;
    scale_job job;
    memset(&job, 0, sizeof job);
    printf(
        "\n### all_to_all\n\n*Bytes* go from each rank to each. *Win to*: pieces up to which that "
        "way is faster than from each to each.\n\n| nodes x ranks | bytes | from each to each | by "
        "lanes | by pairs of nodes | lanes win to | pairs win to "
        "|\n|---|---|---|---|---|---|---|\n");
    for (i = 0; i < list->node_counts; i++) {
        for (k = 0; k < list->rank_counts; k++) {
            for (s = 0; s < 2; s++) {
                job.nodes = list->nodes[i];
                job.per_node = list->ranks[k];
                speed->meet_s = meet_seconds(job.per_node);
                job.count = sizes[s];
                job.bytes = 1;
                printf("| %d x %d | %s |", (int)job.nodes, (int)job.per_node,
                       short_bytes((double)sizes[s], text));
                print_ways(&job, speed, ALL_EACH, ALL_PAIRS);
                if (s == 0) {
                    print_wins(job, speed, ALL_LANES);
                    print_wins(job, speed, ALL_PAIRS);
                } else {
                    printf(" | |");
                }
                printf("\n");
            }
        }
    }
}

static void halos(const worlds *list, rates *speed)
{
    static const int32_t sizes[] = {32, 128};
    int32_t i, k, s;
    printf(
        "\n### Halo: faces of n^3 f64, periodic\n\n| nodes x ranks | grid | n | dpar: memory and "
        "messages | flat |\n|---|---|---|---|---|\n");
    for (i = 0; i < list->node_counts; i++) {
        for (k = 0; k < list->rank_counts; k++) {
            for (s = 0; s < 2; s++) {
                scale_job job;
                memset(&job, 0, sizeof job);
                job.nodes = list->nodes[i];
                job.per_node = list->ranks[k];
                halo_job(&job, sizes[s], 0, speed);
                printf("| %d x %d | %dx%dx%d | %d |", (int)job.nodes, (int)job.per_node,
                       (int)job.parts[0], (int)job.parts[1], (int)job.parts[2], (int)sizes[s]);
                print_ways(&job, speed, HALO_LEVELS, HALO_FLAT);
                printf("\n");
            }
        }
    }
}

static void cache_lines(void)
{
    static const scale_groups groups[] = {{1, {64}},    {2, {8, 8}},   {2, {16, 4}},   {1, {128}},
                                          {2, {8, 16}}, {2, {16, 8}},  {3, {8, 8, 2}}, {1, {192}},
                                          {2, {8, 24}}, {2, {16, 12}}, {3, {8, 12, 2}}};
    size_t i;
    printf(
        "\n### A barrier, or an all_reduce of one 4-byte number, on one node\n\n| ranks | levels | "
        "lines moved | lines taken back | a rank reads | longest path | a late rank | at %.0f ns a "
        "line |\n|---|---|---|---|---|---|---|---|\n",
        line_s * 1e9);
    for (i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        const scale_groups *group = &groups[i];
        char text[40];
        scale_line_counts counts;
        int32_t k;
        if (!scale_count_lines(group, &counts)) {
            fprintf(stderr, "scale: no memory to count the cache lines of a barrier of %d ranks\n",
                    (int)scale_group_ranks(group));
            exit(1);
        }
        printf("| %d | %s", (int)scale_group_ranks(group),
               group->levels == 1 ? "one: all to all" : "groups of ");
        for (k = 0; k < group->levels && group->levels > 1; k++) {
            const char *between = k == group->levels - 1 ? ", top " : ", of ";
            printf("%s%d", k > 0 ? between : "", (int)group->level[k]);
        }
        printf(" | %d | %d | %d: %d B | %d | %d | %s |\n", (int)counts.transfers,
               (int)counts.taken_back, (int)counts.busiest, (int)counts.busiest * 64,
               (int)counts.together, (int)counts.late,
               short_seconds((double)counts.together * line_s, text));
    }
}

/* ---- the command ---- */

/* clang-format off */
static const char usage[] =
    "scale: predicts what all_reduce, all_to_all and 3-d halos cost on large machines\n"
    "\n"
    "  machine=NAME   a machine of dpar_cost.h, or its description (default dgx-h100)\n"
    "  memory=N       GB/s at which all ranks of a node together read its memory (default 400)\n"
    "  nodes=LIST     powers of two from 2 to 8192 (default 2,64,1024,8192)\n"
    "  ranks=LIST     ranks of a node, powers of two from 2 to 128 (default 8,32,128)\n"
    "\n"
    "A cell is: messages that the busiest rank sends / messages that leave a node, for each port /\n"
    "bytes over the busiest port / predicted time.\n";
/* clang-format on */

static int refuse(const char *what, const char *text)
{
    fprintf(stderr, "scale: option '%s': %s (scale --help lists the options)\n", text, what);
    return 2;
}

/* Reads "2,64", powers of two from `least` to `most`. Returns how many there are, or 0 if the text
 * is not such a list or has more than LIST_MOST numbers. */
static int32_t read_list(const char *text, int32_t least, int32_t most, int32_t *list)
{
    int32_t n = 0;
    while (*text) {
        char *end;
        const long v = strtol(text, &end, 10);
        if (end == text || (*end != ',' && *end) || v < least || v > most || (v & (v - 1)) ||
            n == LIST_MOST) {
            return 0;
        }
        list[n++] = (int32_t)v;
        text = *end ? end + 1 : end;
    }
    return n;
}

/* Sets the rates of a machine: its own ports, and the default rates of a host
 * (dpar_halo_rates_init). Each further message that is under way takes a quarter of the first,
 * which is the share that src/cost/collective.c uses (from SimAI's all-to-all table). */
static void rates_of(const dpar_cluster *cluster, double memory_Bps, rates *speed)
{
    dpar_halo_rates host;
    dpar_halo_rates_init(&host);
    speed->message_s = host.message_s;
    speed->gap_s = host.message_s / 4;
    speed->port_Bps = cluster->nic_Bps * cluster->taper * cluster->cal.value[DPAR_CAL_NET_SHARE];
    speed->ports = cluster->nics;
    speed->near_s = speed->peer_s = host.peer_s;
    speed->near_Bps = host.copy_Bps / 2; /* into the message and out of it */
    speed->copy_Bps = host.copy_Bps;
    speed->run_s = host.run_s;
    speed->memory_Bps = memory_Bps;
}

int main(int argc, char **argv)
{
    worlds list = {4, {2, 64, 1024, 8192}, 3, {8, 32, 128}};
    dpar_cluster cluster;
    dpar_why why;
    rates speed;
    double memory = 400;
    int i;
    dpar_cluster_find(&cluster, "dgx-h100", NULL);
    for (i = 1; i < argc; i++) {
        const char *value = strchr(argv[i], '=') ? strchr(argv[i], '=') + 1 : "";
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return 0;
        }
        if (strncmp(argv[i], "machine=", 8) == 0) {
            if (dpar_cluster_read(&cluster, value, strlen(value), &why) != DPAR_OK) {
                return refuse(why.text, argv[i]);
            }
            if (cluster.nics < 1) {
                return refuse("the machine has 0 network ports; at least 1 is needed", argv[i]);
            }
        } else if (strncmp(argv[i], "memory=", 7) == 0) {
            memory = atof(value);
            if (!(memory > 0)) {
                return refuse("expected a number of GB/s above 0", argv[i]);
            }
        } else if (strncmp(argv[i], "nodes=", 6) == 0) {
            list.node_counts = read_list(value, 2, 8192, list.nodes);
        } else if (strncmp(argv[i], "ranks=", 6) == 0) {
            list.rank_counts = read_list(value, 2, 128, list.ranks);
        } else {
            return refuse("unknown; the options are machine=, memory=, nodes= and ranks=", argv[i]);
        }
        if (list.node_counts == 0 || list.rank_counts == 0) {
            return refuse("expected up to 8 powers of two with commas between, from 2 to 8192 for "
                          "nodes and from 2 to 128 for ranks",
                          argv[i]);
        }
    }
    rates_of(&cluster, memory * 1e9, &speed);
    printf("Machine: %s (%s); %d ports of %.1f GB/s a node; message %.2f us, each further one of a "
           "rank %.2f us; memory %.0f GB/s a node, %.0f GB/s a rank.\n",
           cluster.name[0] ? cluster.name : "as given", cluster.source, (int)speed.ports,
           speed.port_Bps / 1e9, speed.message_s * 1e6, speed.gap_s * 1e6, memory,
           speed.copy_Bps / 1e9);
    all_reduces(&list, &speed);
    all_to_alls(&list, &speed);
    halos(&list, &speed);
    cache_lines();
    return 0;
}

#else /* OVER_MPI */

/* ---- held against a machine ---- */

enum { SAMPLES = 31, BURST = 8, LARGE = 1 << 20, COPIED = 4 << 20 };

static dpar_comm *world;
static int32_t per_node = 1;

/* Returns the largest of all ranks. */
static double slowest(double seconds)
{
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
}

/* Ends all ranks if something has failed. */
static void must(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "scale: %s failed: %s\n", what, world ? world->why.text : "");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

typedef void work(void *arg);

/* Returns the seconds of one call: the smallest of SAMPLES samples. A sample is the slowest rank's
 * mean of calls back to back, as many as take a millisecond. */
static double measured(work *call, void *arg)
{
    double best = 0, once;
    int k, i, times;
    call(arg);
    MPI_Barrier(MPI_COMM_WORLD);
    once = MPI_Wtime();
    call(arg);
    call(arg);
    once = slowest((MPI_Wtime() - once) / 2);
    times = once > 1e-3 ? 1 : (int)(1e-3 / once) + 1;
    for (k = 0; k < SAMPLES; k++) {
        double began;
        MPI_Barrier(MPI_COMM_WORLD);
        began = MPI_Wtime();
        for (i = 0; i < times; i++) {
            call(arg);
        }
        once = slowest((MPI_Wtime() - began) / times);
        best = k == 0 || once < best ? once : best;
    }
    return best;
}

typedef struct {
    int peer, bytes, times; /* peer may be MPI_PROC_NULL */
    char *in, *out;
} trade;

static void run_trade(void *arg)
{
    trade *messages = (trade *)arg;
    MPI_Request request[2 * BURST];
    MPI_Status state[2 * BURST];
    int i;
    for (i = 0; i < messages->times; i++) {
        MPI_Irecv(messages->in + i * messages->bytes, messages->bytes, MPI_BYTE, messages->peer, 0,
                  MPI_COMM_WORLD, &request[2 * i]);
        MPI_Isend(messages->out + i * messages->bytes, messages->bytes, MPI_BYTE, messages->peer, 0,
                  MPI_COMM_WORLD, &request[2 * i + 1]);
    }
    MPI_Waitall(2 * messages->times, request, state);
}

/* Returns the seconds in which this rank and its peer send each other `times` messages at once. */
static double trade_seconds(int peer, int bytes, int times, char *memory)
{
    trade messages;
    messages.peer = peer;
    messages.bytes = bytes;
    messages.times = times;
    messages.in = memory;
    messages.out = memory + (size_t)bytes * (size_t)times;
    return measured(run_trade, &messages);
}

static void run_copy(void *arg)
{
    char *memory = (char *)arg;
    memcpy(memory, memory + COPIED, COPIED);
    __asm__ volatile("" : : "r"(memory) : "memory");
}

static void run_meet(void *unused)
{
    (void)unused;
    must(dpar_barrier(world, NULL) == DPAR_OK, "dpar_barrier");
}

typedef struct {
    float *in, *out;
    int64_t n;
} arrays;

static void run_all_reduce(void *arg)
{
    const arrays *data = (const arrays *)arg;
    must(dpar_all_reduce(world, data->in, data->out, data->n, DPAR_F32, DPAR_SUM, NULL) == DPAR_OK,
         "dpar_all_reduce");
}

static void run_all_to_all(void *arg)
{
    const arrays *data = (const arrays *)arg;
    must(dpar_all_to_all(world, data->in, data->out, data->n, DPAR_F32, NULL) == DPAR_OK,
         "dpar_all_to_all");
}

static void run_halo(void *arg)
{
    dpar_halo_plan *plan = (dpar_halo_plan *)arg;
    must(dpar_halo_plan_begin(plan) == DPAR_OK && dpar_halo_plan_end(plan) == DPAR_OK,
         "an exchange of halos");
}

/* Returns the seconds of an exchange of cubes of n^3 f64, in a row of all ranks of comm. */
static double halo_seconds(dpar_comm *comm, int32_t n)
{
    const int32_t parts[3] = {comm->size, 1, 1};
    int64_t extent[3];
    dpar_placement cut[3];
    dpar_halo_plan_desc desc;
    dpar_halo_field field;
    dpar_halo_plan *plan = NULL;
    dpar_mesh mesh;
    dpar_halo halo;
    dpar_box box;
    dpar_why why;
    double seconds;
    int32_t d;
    memset(&halo, 0, sizeof halo);
    memset(&field, 0, sizeof field);
    memset(&desc, 0, sizeof desc);
    for (d = 0; d < 3; d++) {
        extent[d] = (int64_t)n * parts[d];
        cut[d] = dpar_shard(d);
        halo.low[d] = halo.high[d] = 1;
    }
    halo.periodic = 7;
    must(dpar_mesh_init(&mesh, "z y x", parts, DPAR_ORDER_LAST_FASTEST, 0, &why) == DPAR_OK &&
             dpar_layout_init(&halo.grid, &mesh, 3, extent, cut, &why) == DPAR_OK &&
             dpar_halo_box(&halo, comm->rank, &box),
         "making the mesh and layout of a halo");
    field.halo = &halo;
    field.type = DPAR_F64;
    field.data = calloc((size_t)dpar_box_volume(&box), 8);
    desc.field = &field;
    desc.field_count = 1;
    must(field.data != NULL && dpar_halo_plan_make(comm, &desc, &plan, &why) == DPAR_OK,
         "dpar_halo_plan_make");
    seconds = measured(run_halo, plan);
    must(dpar_halo_plan_free(plan) == DPAR_OK, "dpar_halo_plan_free");
    free(field.data);
    return seconds;
}

/* What is measured of the machine, in seconds: exchanges between pairs of nodes (0 and 1, 2 and 3,
 * ...) and within nodes, in both directions at once, as in all steps; a barrier; copies. */
enum { FAR, FAR_BURST, FAR_LARGE, NEAR, NEAR_LARGE, MEET, COPY, HALO_ALONE, PROBES };

static void probe(double *seconds)
{
    const int rank = world->rank, lane = rank % per_node, node = rank / per_node;
    const int there = (node ^ 1) * per_node + lane, beside = node * per_node + (lane ^ 1);
    const int far = there < world->size ? there : MPI_PROC_NULL;
    const int near = (lane ^ 1) < per_node ? beside : MPI_PROC_NULL;
    char *memory = (char *)calloc(2, COPIED);
    dpar_comm *alone = NULL;
    must(memory != NULL, "allocating 8 MiB for messages");
    seconds[FAR] = trade_seconds(far, 8, 1, memory);
    seconds[FAR_BURST] = trade_seconds(far, 8, BURST, memory);
    seconds[FAR_LARGE] = trade_seconds(far, LARGE, 1, memory);
    seconds[NEAR] = trade_seconds(near, 8, 1, memory);
    seconds[NEAR_LARGE] = trade_seconds(near, LARGE, 1, memory);
    seconds[MEET] = measured(run_meet, NULL);
    seconds[COPY] = measured(run_copy, memory);
    must(dpar_comm_split(world, world->rank, 0, &alone) == DPAR_OK, "dpar_comm_split");
    seconds[HALO_ALONE] = halo_seconds(alone, 64);
    must(dpar_comm_free(alone) == DPAR_OK, "dpar_comm_free");
    free(memory);
}

static double positive(double x)
{
    return larger(x, 1e-12);
}

/* Derives the rates from the times of `probe`. A halo of one rank is only copies, so that the
 * formula of dpar_halo_cost_predict gives the cost of a run. In a barrier the ranks of a node wait
 * for each other twice, with a message to another node in between. */
static void rates_from(const double *seconds, rates *speed)
{
    scale_job job;
    double bytes_s;
    memset(speed, 0, sizeof *speed);
    speed->ports = 1;
    speed->message_s = seconds[FAR];
    speed->gap_s = positive((seconds[FAR_BURST] - seconds[FAR]) / (BURST - 1));
    speed->port_Bps = per_node * LARGE / positive(seconds[FAR_LARGE] - seconds[FAR]);
    speed->copy_Bps = COPIED / positive(seconds[COPY]);
    speed->memory_Bps = per_node * speed->copy_Bps;
    speed->near_s = seconds[NEAR];
    speed->near_Bps = LARGE / positive(seconds[NEAR_LARGE] - seconds[NEAR]);
    speed->meet_s = speed->peer_s = per_node > 1 ? positive((seconds[MEET] - seconds[FAR]) / 2) : 0;
    memset(&job, 0, sizeof job);
    job.nodes = job.per_node = 1;
    halo_job(&job, 64, 1, speed);
    bytes_s = speed->halo_copy_s;
    speed->run_s = 1e-9;
    halo_job(&job, 64, 1, speed);
    speed->run_s =
        positive((seconds[HALO_ALONE] - bytes_s) / (speed->halo_copy_s - bytes_s) * 1e-9);
}

/* What is predicted and measured: 5 sizes of two collectives, 3 halos. */
enum { SIZES = 5, CUBES = 3, ROWS = 2 * SIZES + CUBES };
static const int64_t sizes[SIZES] = {4, 4096, 65536, 1 << 20, 16 << 20};
static const int32_t cubes[CUBES] = {32, 64, 128};

/* Describes row i for the model. Returns its bytes: of the vector, to all ranks, of two faces. */
static double row_job(int i, scale_job *job)
{
    memset(job, 0, sizeof *job);
    job->nodes = world->size / per_node;
    job->per_node = per_node;
    job->at_once = dpari_mpi_ctx_of(world)->world->at_once;
    job->lanes_from = dpari_mpi_ctx_of(world)->world->lanes_from;
    job->bytes = 4;
    if (i < 2 * SIZES) {
        const int64_t n = sizes[i % SIZES] / 4, each = n / world->size;
        job->way = i < SIZES ? REDUCE_LEVELS : ALL_EACH;
        job->count = n;
        if (i >= SIZES) {
            job->count = each > 0 ? each : 1;
        }
        if (i >= SIZES && per_node > 1 &&
            job->count * 4 <= dpari_mpi_ctx_of(world)->world->dealt[0]) {
            job->way = ALL_LANES;
        }
        return (double)sizes[i % SIZES];
    }
    i -= 2 * SIZES;
    job->way = HALO_LEVELS;
    return 2.0 * cubes[i] * cubes[i] * 8;
}

/* Measures row i. */
static double row_seconds(int i, const scale_job *job, float *memory)
{
    arrays data;
    data.in = memory;
    data.out = memory + (4 << 20);
    data.n = job->count;
    if (i >= 2 * SIZES) {
        return halo_seconds(world, cubes[i - 2 * SIZES]);
    }
    return measured(i < SIZES ? run_all_reduce : run_all_to_all, &data);
}

static void print_row(int i, rates *speed, double seconds)
{
    static const char *const what[3] = {"all_reduce", "all_to_all", "halo, faces"};
    char bytes_text[40], predicted_text[40], measured_text[40];
    scale_job job;
    const double bytes = row_job(i, &job);
    price total;
    if (i >= 2 * SIZES) {
        halo_job(&job, cubes[i - 2 * SIZES], 1, speed);
    }
    total = price_of(&job, speed);
    printf("| %s | %s | %d | %s | %s | %.2f |\n", what[i / SIZES], short_bytes(bytes, bytes_text),
           (int)total.messages, short_seconds(total.seconds, predicted_text),
           short_seconds(seconds, measured_text), total.seconds / seconds);
}

static void print_rates(const rates *speed)
{
    printf("%d nodes of %d: message %.1f us, each further one %.1f us, %.2f GB/s a node",
           (int)(world->size / per_node), (int)per_node, speed->message_s * 1e6, speed->gap_s * 1e6,
           speed->port_Bps / 1e9);
    if (per_node > 1) {
        printf("; within %.1f us, %.2f GB/s; a node meets in %.1f us", speed->near_s * 1e6,
               speed->near_Bps / 1e9, speed->meet_s * 1e6);
    }
    printf("; copies at %.1f GB/s a rank and %.1f ns a run\n\n", speed->copy_Bps / 1e9,
           speed->run_s * 1e9);
    printf("| | bytes | messages a rank | predicted | measured | predicted / measured |\n"
           "|---|---|---|---|---|---|\n");
}

static double smaller(double first, double second)
{
    return first < second ? first : second;
}

static void keep_best(double *best, const double *seconds, int n, int first)
{
    int i;
    for (i = 0; i < n; i++) {
        best[i] = first ? seconds[i] : smaller(best[i], seconds[i]);
    }
}

/* Measures the machine and all rows in `rounds` rounds, takes the smallest of all, and prints them
 * with what the model predicts. */
static void hold(int rounds)
{
    float *memory = (float *)calloc(2, 16 << 20);
    double probed[PROBES], rows[ROWS], seconds[PROBES + ROWS];
    rates speed;
    int i, k;
    must(memory != NULL, "allocating 32 MiB for vectors");
    for (k = 0; k < rounds; k++) {
        probe(seconds);
        keep_best(probed, seconds, PROBES, k == 0);
        for (i = 0; i < ROWS; i++) {
            scale_job job;
            row_job(i, &job);
            seconds[i] = row_seconds(i, &job, memory);
        }
        keep_best(rows, seconds, ROWS, k == 0);
    }
    rates_from(probed, &speed);
    if (world->rank == 0) {
        print_rates(&speed);
    }
    for (i = 0; i < ROWS && world->rank == 0; i++) {
        print_row(i, &speed, rows[i]);
    }
    free(memory);
}

/* clang-format off */
static const char usage[] =
    "usage: mpirun -np N scale_mpi [rounds=7]\n"
    "\n"
    "Needs two nodes or more with the same number of ranks each. Measures latency and bandwidth, then\n"
    "dpar's all_reduce, all_to_all and halos, and prints predicted over measured time. Times are the\n"
    "smallest of all rounds; rounds is 1 or more.\n";
/* clang-format on */

int main(int argc, char **argv)
{
    int rounds = argc > 1 && strncmp(argv[1], "rounds=", 7) == 0 ? atoi(argv[1] + 7) : 7;
    dpar_why why;
    if (argc == 2 && (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0)) {
        fputs(usage, stdout);
        return 0;
    }
    if (argc > 2 || (argc == 2 && strncmp(argv[1], "rounds=", 7) != 0) || rounds < 1) {
        fprintf(stderr, "scale: argument '%s', %d in all: expected rounds=N, 1 or more\n%s",
                argv[1], argc - 1, usage);
        return 2;
    }
    MPI_Init(&argc, &argv);
    if (dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why) != DPAR_OK) {
        fprintf(stderr, "scale: dpar_mpi_make failed: %s\n", why.text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    per_node = world->node != NULL ? world->node->size : 1;
    if (strcmp(world->engine.name, "mpi") != 0 || world->size % per_node != 0 ||
        world->size == per_node) {
        fprintf(stderr,
                "scale: rank %d: %d of the %d ranks are on this node (engine '%s'); two nodes or "
                "more are needed, with as many ranks each\n",
                (int)world->rank, (int)per_node, (int)world->size, world->engine.name);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    hold(rounds);
    dpar_comm_free(world);
    MPI_Finalize();
    return 0;
}
#endif
