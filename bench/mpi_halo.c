/* SPDX-License-Identifier: MIT-0 */
/* mpi_halo - measures halo exchanges over an MPI library and, in the same run, those of other
 * engines, which bench/halo_engine.h adds. bench/halo.sh runs it and divides dpar's times by those
 * of the fastest way of MPI: less than 1 means that dpar is faster.
 *
 *   mpicc -O2 [-DHALO_F32] bench/mpi_halo.c -o build/mpi_halo
 *   mpirun -np 2 build/mpi_halo [label=openmpi] [grid=2x1x1] [n=32,64,128] [w=1,2]
 *                               [shapes=faces,full] [samples=21] [seconds=0.01] [engines=pack,...]
 *                               [usual=NS,US] [lost=SHARE] [patience=20]
 *   mpirun -np 2 build/mpi_halo measure=20
 *
 * Each rank has n^3 doubles, or floats with -DHALO_F32, inside an array of (n + 2w)^3 with x
 * contiguous. The ranks are a grid z, y, x that is periodic in all three dims; 1x1x2 cuts the
 * contiguous dim. "faces" means 6 neighbours, "full" 26. MPI exchanges in four ways:
 *
 *   types      Irecv and Isend of subarray types, a message for each neighbour
 *   neighbour  Neighbor_alltoallw of the same types over a distributed graph
 *   pack       packed by hand; what the rank sends to itself is copied
 *   ordered    packed by hand, first x, then y, then z, each time with the halos received so far
 *              (only for full)
 *
 * Two more engines show what is possible. `windows` exchanges eight fields in shared windows: each
 * rank waits for a word that says that a neighbour's arrays are ready, copies out of them, and
 * waits for a second word before it returns (only on one node, up to 64^3). `floor` copies the
 * boxes of `pack` inside each rank's own array, all ranks at once: one read and one write for each
 * byte of halo, and nobody waits.
 *
 * Prints a row for each case and engine:
 *     label,ranks,grid,n,w,shape,engine,halo_bytes,samples,min_us,median_us,left_out
 *
 * A sample is the slowest rank's time of about `seconds` of exchanges back to back, divided by
 * their number, after an eighth as many that do not count. Engines take turns sample by sample.
 * Before any sample, every engine exchanges halos that hold NaN, and every cell is compared with
 * what the whole array has there; a wrong cell ends the run.
 *
 * Samples that something else has disturbed are left out and taken again, by three options:
 *   usual=NS,US   the nanoseconds that a cache line takes between ranks 0 and 1, and the
 * microseconds of a small loop on a core that nobody else uses. Both are measured before and after
 *                 each sample, which counts if the first is within a factor of 1.5 and the second
 *                 within 1.1. A run with measure=SECONDS measures and prints them.
 *   lost=SHARE    the largest share of a sample's time in which a rank may have waited for its core
 *   patience=S    seconds for a case; an engine that does not have half of its samples by then gets
 *                 no row
 * left_out counts samples that were taken and dropped.
 *
 * Another engine is added with -DENGINE_H='"my_engine.h"', a file that defines EXTRA_ENGINES as one
 * or more initialisers of `engine`, each followed by a comma.
 *
 * Exit codes: 0 measured; 1 a wrong cell, or no memory; 2 a wrong option. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe.h"

#ifdef HALO_F32
typedef float real;
#define REAL_MPI MPI_FLOAT
enum { REAL_BASE = 251 }; /* 251^3 + 7 has an exact value as float */
#else
typedef double real;
#define REAL_MPI MPI_DOUBLE
enum { REAL_BASE = 4096 };
#endif

enum {
    SIDES = 27,
    MIDDLE = 13,
    MAX_SAMPLES = 501,
    MOST_PER_SAMPLE = 5000,
    MAX_ARRAYS = 8,
    PINGS = 200
};

/* What an engine does, which says how its result is checked. */
enum { FORWARD, ADJOINT, FLOOR };

/* One of the contestants. */
typedef struct {
    const char *name;
    int kind; /* FORWARD, ADJOINT or FLOOR */
    /* Puts the arrays that the engine exchanges into array[], of which `common` may be one. Returns
     * how many these are, or 0, on all ranks alike, if it does not have this case. */
    int (*open)(real *common, real **array);
    void (*ready)(real **array); /* called when the arrays are filled; may be NULL */
    void (*run)(real **array);   /* one exchange of all arrays, finished on return */
    void (*close)(void);         /* may be NULL */
} engine;

/* The neighbour at side k = 9 (z + 1) + 3 (y + 1) + x + 1. Box `own` is sent there, and box `halo`
 * receives what the neighbour sends towards its side 26 - k. */
typedef struct {
    int peer, own[3], halo[3], extent[3];
    size_t cells;
    real *out, *in;
    MPI_Datatype out_type, in_type;
} side;

/* A step of an exchange: sides that do not depend on each other. */
typedef struct {
    int sides, number[SIDES];
    side at[SIDES];
} step;

static struct {
    int rank, ranks, grid[3], place[3];
    int n, w, edge, full;
} block;

static const char *label = "mpi";

/* ---- boxes ---- */

static size_t cells_in_all(void)
{
    return (size_t)block.edge * (size_t)block.edge * (size_t)block.edge;
}

static size_t index_of(const int *place)
{
    return ((size_t)place[0] * (size_t)block.edge + (size_t)place[1]) * (size_t)block.edge +
           (size_t)place[2];
}

/* Adds side k to a step. In dims from `open` on the box includes the halos. */
static void add_side(step *stage, int k, int open)
{
    const int direction[3] = {k / 9 - 1, k / 3 % 3 - 1, k % 3 - 1};
    side *one = &stage->at[stage->sides];
    stage->number[stage->sides++] = k;
    memset(one, 0, sizeof *one);
    one->cells = 1;
    for (int d = 0; d < 3; d++) {
        const int g = block.grid[d], first = direction[d] == 0 && d >= open ? 0 : block.w;
        one->extent[d] = direction[d] != 0 ? block.w : block.edge - 2 * first;
        one->own[d] = direction[d] > 0 ? block.n : first;
        one->halo[d] = first;
        if (direction[d] > 0) {
            one->halo[d] = block.n + block.w;
        } else if (direction[d] < 0) {
            one->halo[d] = 0;
        }
        one->peer = one->peer * g + (block.place[d] + direction[d] + g) % g;
        one->cells *= (size_t)one->extent[d];
    }
}

/* Returns in how many dims side k is not in the middle: 1 for faces, 2 for edges, 3 for corners. */
static int dims_off(int k)
{
    return (k / 9 != 1) + (k / 3 % 3 != 1) + (k % 3 != 1);
}

static void all_sides(step *stage)
{
    stage->sides = 0;
    for (int k = 0; k < SIDES; k++) {
        if (k != MIDDLE && (block.full || dims_off(k) == 1)) {
            add_side(stage, k, 3);
        }
    }
}

/* Returns the index in the step of side k, which it has. */
static int find_side(const step *stage, int k)
{
    int i = 0;
    while (stage->number[i] != k) {
        i++;
    }
    return i;
}

/* Copies a box of extent[] cells between arrays with the given distances of rows and planes. */
static void copy_box(real *to, size_t to_row, size_t to_plane, const real *from, size_t from_row,
                     size_t from_plane, const int *extent)
{
    const size_t width = (size_t)extent[2];
    for (int z = 0; z < extent[0]; z++) {
        real *to_line = to;
        const real *from_line = from;
        for (int y = 0; y < extent[1]; y++) {
            if (width < 8) {
                for (size_t x = 0; x < width; x++) {
                    to_line[x] = from_line[x];
                }
            } else {
                memcpy(to_line, from_line, width * sizeof *to_line);
            }
            to_line += to_row;
            from_line += from_row;
        }
        to += to_plane;
        from += from_plane;
    }
}

static void pack(const real *array, const int *first, const side *one, real *dense)
{
    const size_t edge = (size_t)block.edge, width = (size_t)one->extent[2];
    copy_box(dense, width, width * (size_t)one->extent[1], array + index_of(first), edge,
             edge * edge, one->extent);
}

static void unpack(real *array, const int *first, const side *one, const real *dense)
{
    const size_t edge = (size_t)block.edge, width = (size_t)one->extent[2];
    copy_box(array + index_of(first), edge, edge * edge, dense, width,
             width * (size_t)one->extent[1], one->extent);
}

/* Copies what a side sends into the halo of the opposite side. This is an exchange if the rank is
 * its own peer. */
static void copy_across(real *array, const step *stage, int i)
{
    const size_t edge = (size_t)block.edge;
    const side *one = &stage->at[i],
               *opposite = &stage->at[find_side(stage, SIDES - 1 - stage->number[i])];
    copy_box(array + index_of(opposite->halo), edge, edge * edge, array + index_of(one->own), edge,
             edge * edge, one->extent);
}

/* ---- the four ways of MPI ---- */

static step plain, typed, ordered[3];
static MPI_Comm graph;
static MPI_Request request[2 * SIDES];
static real *buffers;

static int take_common(real *common, real **array)
{
    array[0] = common;
    return 1;
}

static int open_types(real *common, real **array)
{
    const int whole[3] = {block.edge, block.edge, block.edge};
    all_sides(&typed);
    for (side *one = typed.at; one < typed.at + typed.sides; one++) {
        MPI_Type_create_subarray(3, whole, one->extent, one->own, MPI_ORDER_C, REAL_MPI,
                                 &one->out_type);
        MPI_Type_create_subarray(3, whole, one->extent, one->halo, MPI_ORDER_C, REAL_MPI,
                                 &one->in_type);
        MPI_Type_commit(&one->out_type);
        MPI_Type_commit(&one->in_type);
    }
    return take_common(common, array);
}

static void close_types(void)
{
    for (side *one = typed.at; one < typed.at + typed.sides; one++) {
        MPI_Type_free(&one->out_type);
        MPI_Type_free(&one->in_type);
    }
}

/* The tag of a message is the side towards which it is sent. */
static void run_types(real **array)
{
    MPI_Request *sends = request + typed.sides;
    for (int i = 0; i < typed.sides; i++) {
        MPI_Irecv(array[0], 1, typed.at[i].in_type, typed.at[i].peer, SIDES - 1 - typed.number[i],
                  MPI_COMM_WORLD, &request[i]);
    }
    for (int i = 0; i < typed.sides; i++) {
        MPI_Isend(array[0], 1, typed.at[i].out_type, typed.at[i].peer, typed.number[i],
                  MPI_COMM_WORLD, &sends[i]);
    }
    MPI_Waitall(2 * typed.sides, request, MPI_STATUSES_IGNORE);
}

static int ones[SIDES];
static MPI_Aint nowhere[SIDES];
static MPI_Datatype send_type[SIDES], receive_type[SIDES];
static step graph_sides;

/* Two neighbours may be the same process, whose blocks are then matched in the order of the lists.
 * Therefore the sources are listed by the side towards which they send. */
static int open_neighbour(real *common, real **array)
{
    int from[SIDES], to[SIDES], n;
    const step keep = typed;
    open_types(common, array);
    graph_sides = typed;
    typed = keep;
    n = graph_sides.sides;
    for (int i = 0; i < n; i++) {
        const side *opposite = &graph_sides.at[n - 1 - i]; /* sides are listed symmetrically */
        to[i] = graph_sides.at[i].peer;
        from[i] = opposite->peer;
        send_type[i] = graph_sides.at[i].out_type;
        receive_type[i] = opposite->in_type;
        ones[i] = 1;
    }
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, n, from, MPI_UNWEIGHTED, n, to, MPI_UNWEIGHTED,
                                   MPI_INFO_NULL, 0, &graph);
    return 1;
}

static void run_neighbour(real **array)
{
    MPI_Neighbor_alltoallw(array[0], ones, nowhere, send_type, array[0], ones, nowhere,
                           receive_type, graph);
}

static void close_neighbour(void)
{
    for (side *one = graph_sides.at; one < graph_sides.at + graph_sides.sides; one++) {
        MPI_Type_free(&one->out_type);
        MPI_Type_free(&one->in_type);
    }
    MPI_Comm_free(&graph);
}

/* Gives each side of a step its buffers, from `at` on. Returns where they end. */
static real *give_buffers(step *stage, real *at)
{
    for (side *one = stage->at; one < stage->at + stage->sides; one++) {
        one->out = at;
        one->in = at + one->cells;
        at += 2 * one->cells;
    }
    return at;
}

static int open_pack(real *common, real **array)
{
    all_sides(&plain);
    give_buffers(&plain, buffers);
    return take_common(common, array);
}

/* Uses the same buffers as `pack`, because they never run at once. */
static int open_ordered(real *common, real **array)
{
    real *at = buffers;
    int apart = 1;
    for (int i = 0; i < 3 && block.full; i++) {
        ordered[i].sides = 0;
        add_side(&ordered[i], MIDDLE - apart, 3 - i);
        add_side(&ordered[i], MIDDLE + apart, 3 - i);
        at = give_buffers(&ordered[i], at);
        apart *= 3;
    }
    return block.full ? take_common(common, array) : 0;
}

/* Exchanges a step by packed messages; unpacks them as they arrive. */
static void run_step(real *array, const step *stage)
{
    int posted = 0, remote[SIDES];
    for (int i = 0; i < stage->sides; i++) {
        const side *one = &stage->at[i];
        if (one->peer != block.rank) {
            remote[posted] = i;
            MPI_Irecv(one->in, (int)one->cells, REAL_MPI, one->peer, SIDES - 1 - stage->number[i],
                      MPI_COMM_WORLD, &request[posted++]);
        }
    }
    for (int j = 0; j < posted; j++) {
        const side *one = &stage->at[remote[j]];
        pack(array, one->own, one, one->out);
        MPI_Isend(one->out, (int)one->cells, REAL_MPI, one->peer, stage->number[remote[j]],
                  MPI_COMM_WORLD, &request[SIDES + j]);
    }
    for (int i = 0; i < stage->sides; i++) {
        if (stage->at[i].peer == block.rank) {
            copy_across(array, stage, i);
        }
    }
    for (int left = posted; left > 0; left--) {
        int j;
        MPI_Waitany(posted, request, &j, MPI_STATUS_IGNORE);
        unpack(array, stage->at[remote[j]].halo, &stage->at[remote[j]], stage->at[remote[j]].in);
    }
    MPI_Waitall(posted, request + SIDES, MPI_STATUSES_IGNORE);
}

static void run_pack(real **array)
{
    run_step(array[0], &plain);
}

static void run_ordered(real **array)
{
    for (int i = 0; i < 3; i++) {
        run_step(array[0], &ordered[i]);
    }
}

/* ---- by hand, in shared windows ---- */

enum { WORD_LINE = 64 }; /* bytes of a cache line */

/* A rank sets `ready` to the number of the exchange when its arrays may be read, and `done` when it
 * has read those of its neighbours. */
typedef struct {
    uint32_t ready, done;
    char pad[WORD_LINE - 8];
} words;

static step shared;
static MPI_Win shared_window;
static words *words_of[SIDES]; /* of each side's peer */
static real *array_of[SIDES][MAX_ARRAYS];
static words *own_words;
static uint32_t epoch;

/* Returns the part of the window that belongs to a rank: its words, then its arrays. */
static void *part_of(int rank)
{
    MPI_Aint bytes;
    int unit;
    void *at;
    MPI_Win_shared_query(shared_window, rank, &bytes, &unit, &at);
    return at;
}

/* Returns array i of the rank whose words are at `head`. */
static real *array_after(words *head, int i)
{
    const size_t lines = (cells_in_all() * sizeof(real) + WORD_LINE - 1) / WORD_LINE;
    return (real *)(void *)((char *)head + (1 + (size_t)i * lines) * WORD_LINE);
}

static int open_windows(real *common, real **array)
{
    const MPI_Aint bytes = (MPI_Aint)(MAX_ARRAYS * (cells_in_all() * sizeof(real) + WORD_LINE));
    (void)common;
    if (probes.of == NULL || block.n > 64) {
        return 0;
    }
    all_sides(&shared);
    MPI_Win_allocate_shared(bytes + WORD_LINE, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &own_words,
                            &shared_window);
    memset(own_words, 0, sizeof *own_words);
    epoch = 0;
    for (int i = 0; i < MAX_ARRAYS; i++) {
        array[i] = array_after(own_words, i);
        for (int k = 0; k < shared.sides; k++) {
            words_of[k] = part_of(shared.at[k].peer);
            array_of[k][i] = array_after(words_of[k], i);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return MAX_ARRAYS;
}

static void run_windows(real **array)
{
    const size_t edge = (size_t)block.edge;
    __atomic_store_n(&own_words->ready, ++epoch, __ATOMIC_RELEASE);
    for (int i = 0; i < MAX_ARRAYS; i++) {
        for (int k = 0; k < shared.sides; k++) {
            if (shared.at[k].peer == block.rank) {
                copy_across(array[i], &shared, k);
            }
        }
    }
    for (int k = 0; k < shared.sides; k++) {
        const side *one = &shared.at[k],
                   *opposite = &shared.at[find_side(&shared, SIDES - 1 - shared.number[k])];
        if (one->peer != block.rank) {
            probe_await(&words_of[k]->ready, epoch);
            for (int i = 0; i < MAX_ARRAYS; i++) {
                copy_box(array[i] + index_of(one->halo), edge, edge * edge,
                         array_of[k][i] + index_of(opposite->own), edge, edge * edge, one->extent);
            }
        }
    }
    __atomic_store_n(&own_words->done, epoch, __ATOMIC_RELEASE);
    for (int k = 0; k < shared.sides; k++) {
        probe_await(&words_of[k]->done, epoch);
    }
}

static void close_windows(void)
{
    MPI_Win_free(&shared_window);
}

static step floor_sides;

static int open_floor(real *common, real **array)
{
    all_sides(&floor_sides);
    return take_common(common, array);
}

static void run_floor(real **array)
{
    for (int i = 0; i < floor_sides.sides; i++) {
        copy_across(array[0], &floor_sides, i);
    }
}

#ifdef ENGINE_H
#include ENGINE_H
#else
#define EXTRA_ENGINES
#endif

static const engine engines[] = {
    {"types", FORWARD, open_types, NULL, run_types, close_types},
    {"neighbour", FORWARD, open_neighbour, NULL, run_neighbour, close_neighbour},
    {"pack", FORWARD, open_pack, NULL, run_pack, NULL},
    {"ordered", FORWARD, open_ordered, NULL, run_ordered, NULL},
    {"windows", FORWARD, open_windows, NULL, run_windows, close_windows},
    EXTRA_ENGINES{"floor", FLOOR, open_floor, NULL, run_floor, NULL}};
enum { ENGINES = sizeof engines / sizeof engines[0] };

/* ---- values ---- */

/* Returns what the whole, periodic array holds at a cell of this rank. Sets *out to the number of
 * dims in which the cell is in the halo, and *copies to the number of halos that have a copy. */
static double whole_value(size_t cell, int *out, int *copies)
{
    const size_t edge = (size_t)block.edge;
    const int place[3] = {(int)(cell / edge / edge), (int)(cell / edge % edge), (int)(cell % edge)};
    double value = 0;
    int faces = 0, all = 1;
    *out = 0;
    for (int d = 0; d < 3; d++) {
        const int i = place[d] - block.w, total = block.grid[d] * block.n;
        const int near_ends = (i < block.w) + (i >= block.n - block.w);
        *out += i < 0 || i >= block.n;
        faces += near_ends;
        all *= 1 + near_ends;
        value = value * REAL_BASE + (block.place[d] * block.n + i + total) % total % REAL_BASE;
    }
    *copies = block.full ? all - 1 : faces;
    return value;
}

/* Returns 1 if an exchange fills a halo cell that is outside in so many dims: with `faces` only if
 * that is one. */
static int reached(int out)
{
    return out == 1 || (out > 1 && block.full);
}

/* Fills an array before the check. Halos hold NaN, or 1 for the adjoint where it reaches them. */
static void fill(real *array, int kind)
{
    for (size_t i = 0; i < cells_in_all(); i++) {
        int out, copies;
        const double value = whole_value(i, &out, &copies);
        array[i] = (real)NAN;
        if (out == 0) {
            array[i] = (real)value;
        } else if (kind == ADJOINT && reached(out)) {
            array[i] = 1;
        }
    }
}

/* Returns the number of wrong cells after an exchange. */
static long count_wrong(const real *array, int kind)
{
    long wrong = 0;
    for (size_t i = 0; i < cells_in_all(); i++) {
        int out, copies;
        const double value = whole_value(i, &out, &copies);
        if (out == 0) {
            wrong += array[i] != (kind == ADJOINT ? value + copies : value);
        } else if (reached(out)) {
            wrong += array[i] != (kind == ADJOINT ? 0 : value);
        } else {
            wrong += array[i] == array[i]; /* has to be NaN still */
        }
    }
    return wrong;
}

/* ---- times ---- */

typedef struct {
    int arrays, batch, samples, left_out;
    real *array[MAX_ARRAYS];
    double sample[MAX_SAMPLES];
} contestant;

static contestant field[ENGINES];
static double seconds = 0.01, patience = 20;
static double usual_line, usual_work, lost = HUGE_VAL; /* seconds; a share of the time */
static int wanted_samples = 21;
static const char *only_engines = "";

/* Returns 1 if the list a,b,c has the word or is empty. */
static int listed(const char *list, const char *word)
{
    const size_t n = strlen(word);
    if (*list == 0) {
        return 1;
    }
    for (const char *at = strstr(list, word); at; at = strstr(at + 1, word)) {
        if ((at == list || at[-1] == ',') && (at[n] == 0 || at[n] == ',')) {
            return 1;
        }
    }
    return 0;
}

/* Measures the seconds of a cache line between the cores, and of work on the slower one. */
static void ask_probes(double *line, double *work)
{
    const double mine = probe_work();
    *line = probe_line(PINGS);
    MPI_Bcast(line, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    MPI_Allreduce(&mine, work, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

/* Returns 1 if the cores are as far apart as usual and nobody else uses them. The host of a virtual
 * machine may move its cores further apart for seconds, or give them to another guest, and then
 * everything takes longer. */
static int as_usual(void)
{
    double line = 0, work = 0;
    if (usual_work <= 0) {
        return 1;
    }
    ask_probes(&line, &work);
    return work <= 1.1 * usual_work &&
           (usual_line <= 0 || line <= 0 || (line <= 1.5 * usual_line && 1.5 * line >= usual_line));
}

/* Returns the slowest rank's time of one of `times` exchanges, or -1 if a rank waited too long for
 * its core. An eighth as many that do not count come before them, because the caches still hold
 * what another engine has left there. */
static double exchanges(const engine *tried, contestant *state, int times)
{
    double mine[2], worst[2];
    for (int i = 0; i <= times / 8; i++) {
        tried->run(state->array);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    mine[1] = probe_waited();
    mine[0] = now();
    for (int i = 0; i < times; i++) {
        tried->run(state->array);
    }
    mine[0] = now() - mine[0];
    mine[1] = probe_waited() - mine[1];
    MPI_Allreduce(mine, worst, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return worst[1] <= lost * worst[0] ? worst[0] / times : -1;
}

/* The same, repeated up to two times if something disturbed it. */
static double estimate(const engine *tried, contestant *state, int times)
{
    const double allowed = lost;
    double once = -1;
    for (int k = 0; k < 3 && once < 0; k++) {
        lost = k < 2 ? allowed : HUGE_VAL;
        once = exchanges(tried, state, times);
    }
    lost = allowed;
    return once;
}

/* Takes a sample, and keeps it if the machine was as usual before and after. */
static void take_sample(const engine *tried, contestant *state)
{
    double once;
    if (!as_usual()) {
        return;
    }
    once = exchanges(tried, state, state->batch);
    if (as_usual() && once >= 0) {
        state->sample[state->samples++] = once;
    } else {
        state->left_out++;
    }
}

/* Opens an engine, checks its exchange, and chooses how many exchanges a sample has. Returns 1 if
 * it takes part in this case. */
static int enter(const engine *tried, contestant *state, real *common)
{
    long mine = 0, all;
    double once;
    memset(state, 0, sizeof *state);
    if (!listed(only_engines, tried->name)) {
        return 0;
    }
    state->arrays = tried->open(common, state->array);
    if (state->arrays == 0) {
        return 0;
    }
    for (int i = 0; i < state->arrays; i++) {
        fill(state->array[i], tried->kind);
    }
    if (tried->ready) {
        tried->ready(state->array);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    tried->run(state->array);
    for (int i = 0; i < state->arrays && tried->kind != FLOOR; i++) {
        mine += count_wrong(state->array[i], tried->kind);
    }
    MPI_Allreduce(&mine, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (all > 0) {
        if (block.rank == 0) {
            fprintf(stderr, "mpi_halo: engine %s: %ld cells are wrong: n %d, w %d, %s\n",
                    tried->name, all, block.n, block.w, block.full ? "full" : "faces");
        }
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    once = estimate(tried, state, 5);
    once = estimate(tried, state, 1 + (int)(seconds / 10 / (once + 1e-9)));
    state->batch = 1 + (int)(seconds / (once + seconds / MOST_PER_SAMPLE));
    MPI_Bcast(&state->batch, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return 1;
}

static int by_value(const void *first, const void *second)
{
    const double x = *(const double *)first, y = *(const double *)second;
    return (x > y) - (x < y);
}

/* Prints the row of an engine. */
static void tell(const engine *tried, contestant *state)
{
    step stage;
    size_t cells = 0;
    all_sides(&stage);
    for (int i = 0; i < stage.sides; i++) {
        cells += stage.at[i].cells;
    }
    if (2 * state->samples < wanted_samples) {
        if (block.rank == 0) {
            fprintf(
                stderr,
                "mpi_halo: engine %s has no row for n %d, w %d, %s: only %d of %d samples counted "
                "in %g s\n",
                tried->name, block.n, block.w, block.full ? "full" : "faces", state->samples,
                wanted_samples, patience);
        }
        return;
    }
    qsort(state->sample, (size_t)state->samples, sizeof state->sample[0], by_value);
    if (block.rank == 0) {
        printf("%s,%d,%dx%dx%d,%d,%d,%s,%s,%zu,%d,%.3f,%.3f,%d\n", label, block.ranks,
               block.grid[0], block.grid[1], block.grid[2], block.n, block.w,
               block.full ? "full" : "faces", tried->name,
               cells * sizeof(real) * (size_t)state->arrays, state->samples, state->sample[0] * 1e6,
               state->sample[state->samples / 2] * 1e6, state->left_out);
        fflush(stdout);
    }
}

/* Measures all engines on one block size, halo width and shape. */
static void one_case(int n, int w, int full)
{
    int in[ENGINES], more;
    double end;
    real *common;
    block.n = n;
    block.w = w;
    block.edge = n + 2 * w;
    block.full = full;
    common = malloc(cells_in_all() * sizeof *common);
    buffers = calloc(2 * cells_in_all(), sizeof *buffers);
    if (!common || !buffers) {
        fprintf(stderr, "mpi_halo: rank %d: no memory for arrays of %zu cells (n %d, w %d)\n",
                block.rank, cells_in_all(), n, w);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (int e = 0; e < ENGINES; e++) {
        in[e] = enter(&engines[e], &field[e], common);
    }
    end = now() + patience;
    do {
        more = 0;
        for (int e = 0; e < ENGINES; e++) {
            if (in[e] && field[e].samples < wanted_samples) {
                take_sample(&engines[e], &field[e]);
                more |= field[e].samples < wanted_samples;
            }
        }
        more = more && now() < end;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    } while (more);
    for (int e = 0; e < ENGINES; e++) {
        if (in[e]) {
            tell(&engines[e], &field[e]);
            if (engines[e].close) {
                engines[e].close();
            }
        }
    }
    free(common);
    free(buffers);
}

/* ---- main ---- */

static double measure; /* seconds in which `usual` is measured; 0 measures exchanges */
static const char *sizes = "32,64,128", *widths = "1,2", *shapes = "faces,full";

/* Reads one argument. Ends all ranks if it is not valid. */
static void option(const char *word)
{
    const char *value = strchr(word, '=');
    const size_t n = value ? (size_t)(value - word) : 0;
    if (n == 5 && memcmp(word, "label", n) == 0) {
        label = value + 1;
    } else if (n == 4 && memcmp(word, "grid", n) == 0 &&
               sscanf(value + 1, "%dx%dx%d", &block.grid[0], &block.grid[1], &block.grid[2]) == 3) {
        return;
    } else if (n == 1 && *word == 'n') {
        sizes = value + 1;
    } else if (n == 1 && *word == 'w') {
        widths = value + 1;
    } else if (n == 6 && memcmp(word, "shapes", n) == 0) {
        shapes = value + 1;
    } else if (n == 7 && memcmp(word, "seconds", n) == 0) {
        seconds = atof(value + 1);
    } else if (n == 7 && memcmp(word, "samples", n) == 0) {
        wanted_samples = atoi(value + 1);
        if (wanted_samples < 1) {
            wanted_samples = 1;
        } else if (wanted_samples > MAX_SAMPLES) {
            wanted_samples = MAX_SAMPLES;
        }
    } else if (n == 7 && memcmp(word, "engines", n) == 0) {
        only_engines = value + 1;
    } else if (n == 5 && memcmp(word, "usual", n) == 0 &&
               sscanf(value + 1, "%lf,%lf", &usual_line, &usual_work) == 2) {
        usual_line *= 1e-9;
        usual_work *= 1e-6;
    } else if (n == 4 && memcmp(word, "lost", n) == 0) {
        lost = atof(value + 1);
    } else if (n == 8 && memcmp(word, "patience", n) == 0) {
        patience = atof(value + 1);
    } else if (n == 7 && memcmp(word, "measure", n) == 0) {
        measure = atof(value + 1);
    } else {
        fprintf(stderr,
                "mpi_halo: option '%s' is unknown or has a value that cannot be read; the options "
                "are label, grid, n, w, shapes, samples, seconds, engines, usual, lost, patience "
                "and measure, each followed by =VALUE\n",
                word);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

/* Reads the first number of a list with commas. Returns the rest of the list. */
static const char *next_number(const char *list, int *number)
{
    char *end;
    *number = (int)strtol(list, &end, 10);
    return *end == ',' ? end + 1 : end;
}

/* Measures every 5 ms what is usual, and prints the lower quartile of the distance between the
 * cores and the lowest tenth of the work, which others can only slow down. It does not sleep in
 * between, because a core that has slept is slow at first. */
static void print_usual(void)
{
    const int most = 1 + (int)(measure / 5e-3);
    double *line = malloc((size_t)most * sizeof *line), *work = malloc((size_t)most * sizeof *work);
    for (int k = 0; k < most && line && work; k++) {
        const double next = now() + 5e-3;
        ask_probes(&line[k], &work[k]);
        while (now() < next) {
        }
    }
    if (!line || !work) {
        fprintf(stderr, "mpi_halo: rank %d: no memory for two lists of %d times\n", block.rank,
                most);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    qsort(line, (size_t)most, sizeof *line, by_value);
    qsort(work, (size_t)most, sizeof *work, by_value);
    if (block.rank == 0) {
        printf("%.0f,%.2f\n", line[most / 4] * 1e9, work[most / 10] * 1e6);
    }
    free(line);
    free(work);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &block.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &block.ranks);
    for (int i = 1; i < argc; i++) {
        option(argv[i]);
    }
    probe_open();
    if (measure > 0) {
        print_usual();
        sizes = "";
    }
    MPI_Dims_create(block.ranks, 3, block.grid); /* ends all ranks if a given grid does not fit */
    block.place[0] = block.rank / (block.grid[1] * block.grid[2]);
    block.place[1] = block.rank / block.grid[2] % block.grid[1];
    block.place[2] = block.rank % block.grid[2];
    for (const char *sizes_left = sizes; *sizes_left;) {
        int n;
        sizes_left = next_number(sizes_left, &n);
        for (const char *widths_left = widths; *widths_left;) {
            int w;
            widths_left = next_number(widths_left, &w);
            if (w < 1 || n < w || n > 1024) {
                fprintf(stderr,
                        "mpi_halo: n is %d and w is %d; w has to be at least 1, and n from w to "
                        "1024\n",
                        n, w);
                MPI_Abort(MPI_COMM_WORLD, 2);
            }
            for (int full = 0; full < 2; full++) {
                if (listed(shapes, full ? "full" : "faces")) {
                    one_case(n, w, full);
                }
            }
        }
    }
#ifdef ENGINES_END
    ENGINES_END();
#endif
    probe_close();
    MPI_Finalize();
    return 0;
}
