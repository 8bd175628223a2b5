/* SPDX-License-Identifier: MIT-0 */
/* measure - measures the machine with all ranks at work at once: memory, matrix products, calls,
 * messages inside and between nodes, and halos. doctor --cluster writes the results to a file, and
 * bench/loop.c measures the same calls at other sizes. Include options.h before it; it includes
 * dpar_cost.h and dpar_halo.h.
 *
 * A round takes as long as its slowest rank. The result is the shortest of many rounds, which is
 * what the machine does if nobody else uses it. The rounds of one measurement last `seconds`
 * together. All ranks must call every function that measures. */
#ifndef DPAR_HELPERS_MEASURE_H
#define DPAR_HELPERS_MEASURE_H

#include "dpar_cost.h"
#include "dpar_halo.h"

enum {
    MEASURE_HALOS = 16,      /* capacity for halos; measure_sizes lists them */
    MEASURE_WORDS = 5 << 20, /* doubles of an array of measure_stream: 40 MiB, larger than caches */
    MEASURE_DIM = 192        /* side of the square matrices */
};

/* A measurement, which times calls of `run` with its arguments. */
typedef struct measure_call {
    /* does the work `times` times; returns nonzero on failure */
    int (*run)(struct measure_call *call, int times);
    dpar_comm *world; /* all ranks, which measure at the same time */
    dpar_comm *comm;  /* the ranks that communicate in `run` */
    void *in, *out;
    int64_t count;
    dpar_grid *grid;
} measure_call;

/* Returns the seconds of one call, or -1 on failure. Calls are repeated within a round until the
 * round takes least_s, which any clock resolves. */
static inline double measure_time(measure_call *call, double seconds)
{
    const double least_s = 20e-6, began = now();
    double best = 1e9, took = 0.0, left = 1.0;
    int times = 1, round = 0, bad = call->run(call, 1);
    while (left > 0.0 || round < 3) {
        double rest;
        bad |= dpar_barrier(call->world, NULL) != DPAR_OK;
        took = now();
        bad |= call->run(call, times);
        took = dpar_max(call->world, (now() - took) / times);
        if (took * times < least_s && times < 10000) { /* the same on all ranks */
            times = 1 + (int)(1.5 * least_s / (took > 1e-9 ? took : 1e-9));
        } else {
            best = took < best ? took : best;
            round++;
        }
        rest = began + seconds - now();
        left = dpar_max(call->world, rest);
        if (call->world->status < 0 || dpar_max(call->world, bad) > 0.0) {
            return -1.0;
        }
    }
    return best;
}

/* ---- what a core does ------------------------------------------------------------------------ */

/* Computes a = b + s c with three arrays that are larger than caches. */
static inline int measure_stream(measure_call *call, int times)
{
    double *a = (double *)call->in;
    const double *b = a + call->count, *c = b + call->count;
    int64_t i;
    for (; times > 0; times--) {
        for (i = 0; i < call->count; i++) {
            a[i] = b[i] + 3.0 * c[i];
        }
    }
    return 0;
}

#define MEASURE_PRODUCT(name, real, lanes, wide)                                                   \
    /* Multiplies square matrices in plain C, 4 rows and 2 vectors at a time. */                   \
    static inline int name(measure_call *call, int times)                                          \
    {                                                                                              \
        const int n = MEASURE_DIM;                                                                 \
        const real *a = (const real *)call->in, *b = a + n * n;                                    \
        real *c = (real *)call->out;                                                               \
        int i, j, k;                                                                               \
        for (; times > 0; times--) {                                                               \
            for (j = 0; j < n; j += 2 * (wide)) {                                                  \
                for (i = 0; i < n; i += 4) {                                                       \
                    lanes s[8], x, y;                                                              \
                    memset(s, 0, sizeof s);                                                        \
                    for (k = 0; k < n; k++) {                                                      \
                        memcpy(&x, b + k * n + j, sizeof x);                                       \
                        memcpy(&y, b + k * n + j + (wide), sizeof y);                              \
                        s[0] += a[i * n + k] * x;                                                  \
                        s[1] += a[i * n + k] * y;                                                  \
                        s[2] += a[(i + 1) * n + k] * x;                                            \
                        s[3] += a[(i + 1) * n + k] * y;                                            \
                        s[4] += a[(i + 2) * n + k] * x;                                            \
                        s[5] += a[(i + 2) * n + k] * y;                                            \
                        s[6] += a[(i + 3) * n + k] * x;                                            \
                        s[7] += a[(i + 3) * n + k] * y;                                            \
                    }                                                                              \
                    for (k = 0; k < 4; k++) {                                                      \
                        memcpy(c + (i + k) * n + j, &s[2 * k], 2 * sizeof x);                      \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        return 0;                                                                                  \
    }
#ifdef __GNUC__
typedef float measure_f32 __attribute__((vector_size(16)));
typedef double measure_f64 __attribute__((vector_size(16)));
MEASURE_PRODUCT(measure_product32, float, measure_f32, 4)
MEASURE_PRODUCT(measure_product64, double, measure_f64, 2)
#else
MEASURE_PRODUCT(measure_product32, float, float, 1)
MEASURE_PRODUCT(measure_product64, double, double, 1)
#endif

/* A call through a pointer that does next to nothing: the cost of a call before any work is done.
 */
static inline int measure_little(measure_call *call, int times)
{
    double *a = (double *)call->in;
    a[times % 8] += a[(times + 1) % 8] + (double)call->count;
    return 0;
}

static inline int measure_launch(measure_call *call, int times)
{
    int (*volatile little)(measure_call *, int) = measure_little;
    int bad = 0;
    for (; times > 0; times--) {
        bad |= little(call, times);
    }
    return bad;
}

/* ---- what ranks do together ------------------------------------------------------------------ */

/* An all-reduce of f32 in place, in memory of dpar_comm_alloc. */
static inline int measure_all_reduce(measure_call *call, int times)
{
    int bad = 0;
    for (; times > 0; times--) {
        bad |= dpar_all_reduce(call->comm, call->in, call->in, call->count, DPAR_F32, DPAR_SUM,
                               NULL) != DPAR_OK;
    }
    return bad;
}

/* A message from rank 0 to rank 1 and one back, so that the time must be halved. Other ranks wait.
 */
static inline int measure_send(measure_call *call, int times)
{
    const int32_t me = call->comm->rank;
    int bad = 0;
    for (; times > 0 && me < 2; times--) {
        if (me == 0) {
            bad |= dpar_send(call->comm, call->in, call->count, DPAR_F32, 1, 0, NULL) != DPAR_OK;
            bad |= dpar_recv(call->comm, call->out, call->count, DPAR_F32, 1, 0, NULL) != DPAR_OK;
        } else {
            bad |= dpar_recv(call->comm, call->out, call->count, DPAR_F32, 0, 0, NULL) != DPAR_OK;
            bad |= dpar_send(call->comm, call->in, call->count, DPAR_F32, 0, 0, NULL) != DPAR_OK;
        }
    }
    return bad;
}

static inline int measure_exchange(measure_call *call, int times)
{
    int bad = 0;
    for (; times > 0; times--) {
        bad |= dpar_grid_exchange(call->grid, call->in) != DPAR_OK;
    }
    return bad;
}

/* A halo exchange: n^3 doubles per rank, cut only in dim `cut`, periodic, with edges and corners.
 */
typedef struct measure_halo {
    int64_t n, width; /* cells along each side; width of the halo */
    int cut;
    double seconds; /* time of an exchange */
} measure_halo;

/* Describes the exchange to dpar_halo_cost_predict. */
static inline dpar_halo_cost_desc measure_halo_job(const measure_halo *halo, int32_t ranks,
                                                   int32_t per_node, dpar_halo_cost *grid)
{
    dpar_halo_cost_desc job;
    int d;
    memset(&job, 0, sizeof job);
    memset(grid, 0, sizeof *grid);
    job.ranks = ranks;
    job.per_node = per_node;
    job.dims = 3;
    job.shape = DPAR_STENCIL_BOX;
    job.periodic = 7;
    job.bytes = 8;
    for (d = 0; d < 3; d++) {
        grid->parts[d] = d == halo->cut ? ranks : 1;
        grid->stride[d] = 1;
        job.cells[d] = halo->n * grid->parts[d];
        job.width[d] = halo->width;
    }
    return job;
}

/* Measures halo->seconds. Returns nonzero on failure, with a message in *why. */
static inline int measure_one_halo(dpar_comm *world, measure_halo *halo, double seconds,
                                   dpar_why *why)
{
    dpar_grid_desc desc;
    measure_call call;
    int i;
    memset(&desc, 0, sizeof desc);
    memset(&call, 0, sizeof call);
    desc.dims = 3;
    desc.halo = halo->width;
    for (i = 0; i < 3; i++) {
        desc.parts[i] = i == halo->cut ? world->size : 1;
        desc.cells[i] = halo->n * desc.parts[i];
        desc.periodic[i] = 1;
    }
    if (dpar_grid_make(world, &desc, &call.grid, why) < 0) {
        return 1;
    }
    call.run = measure_exchange;
    call.world = call.comm = world;
    call.in = dpar_grid_array(call.grid, DPAR_F64, NULL);
    halo->seconds = call.in != NULL ? measure_time(&call, seconds) : -1.0;
    if (halo->seconds < 0.0) {
        *why = world->why;
    }
    return dpar_grid_free(call.grid) < 0 || halo->seconds < 0.0;
}

/* ---- rates of halos by least squares --------------------------------------------------------- */

enum { MEASURE_TERMS = 6 };

/* Computes the factors of the rates in the time of an exchange: bytes and runs copied, peers,
 * messages, bytes out of a node, and runs if the block exceeds `cache` bytes. Each one is the
 * prediction of dpar_halo_cost_predict with a rate of 1 for it and no cost for the others. */
static inline void measure_halo_terms(const measure_halo *halo, int32_t ranks, int32_t per_node,
                                      double cache, double *term)
{
    int k;
    for (k = 0; k < MEASURE_TERMS; k++) {
        dpar_halo_cost cost;
        const dpar_halo_cost_desc job = measure_halo_job(halo, ranks, per_node, &cost);
        dpar_halo_rates rates;
        rates.copy_Bps = k == 0 ? 1.0 : 1e30;
        rates.run_s = k == 1;
        rates.peer_s = k == 2;
        rates.message_s = k == 3;
        rates.nic_Bps = k == 4;
        rates.far_s = k == 5;
        rates.cache_bytes = cache;
        term[k] = dpar_halo_cost_predict(&job, &rates, &cost, NULL) == DPAR_OK ? cost.seconds : 0.0;
        term[k] = term[k] < 1e-3 ? 0.0 : term[k]; /* drops what 1e30 B/s leave */
    }
}

/* Finds the nonnegative rates with the least sum of squared relative errors, and returns that sum.
 * It minimises one coordinate after the other, which converges fast enough for six of them. */
static inline double measure_fit_cache(const measure_halo *halo, int n, int32_t ranks,
                                       int32_t per_node, double cache, dpar_halo_rates *rates)
{
    double term[MEASURE_HALOS][MEASURE_TERMS], x[MEASURE_TERMS] = {0}, sum = 0.0;
    int i, j, k, round;
    for (i = 0; i < n; i++) {
        measure_halo_terms(&halo[i], ranks, per_node, cache, term[i]);
    }
    for (round = 0; round < 5000; round++) {
        /* backwards, so that the rates of the network are fitted before those of copies */
        for (k = MEASURE_TERMS - 1; k >= 0; k--) {
            double up = 0.0, down = 0.0;
            for (i = 0; i < n; i++) {
                const double seconds = halo[i].seconds, factor = term[i][k] / seconds;
                double rest = 1.0;
                for (j = 0; j < MEASURE_TERMS; j++) {
                    rest -= j != k ? x[j] * term[i][j] / seconds : 0.0;
                }
                up += factor * rest;
                down += factor * factor;
            }
            x[k] = down > 0.0 && up > 0.0 ? up / down : 0.0;
        }
    }
    for (i = 0; i < n; i++) {
        double off = -1.0;
        for (j = 0; j < MEASURE_TERMS; j++) {
            off += x[j] * term[i][j] / halo[i].seconds;
        }
        sum += off * off;
    }
    rates->copy_Bps = x[0] > 1e-15 ? 1.0 / x[0] : 1e15;
    rates->run_s = x[1];
    rates->peer_s = x[2];
    rates->message_s = x[3];
    rates->nic_Bps = x[4] > 1e-15 ? 1.0 / x[4] : 0.0;
    rates->far_s = x[5];
    rates->cache_bytes = cache;
    return sum;
}

/* Fits the rates, with the size of a cache between 2 and 64 MB if that halves the sum of squares.
 */
static inline void measure_fit_halos(const measure_halo *halo, int n, int32_t ranks,
                                     int32_t per_node, dpar_halo_rates *rates)
{
    double best = measure_fit_cache(halo, n, ranks, per_node, 0.0, rates), cache;
    best = 0.5 * best;
    for (cache = 2e6; cache < 64e6; cache *= 1.25) {
        dpar_halo_rates tried;
        const double sum = measure_fit_cache(halo, n, ranks, per_node, cache, &tried);
        if (sum < best && tried.far_s > tried.run_s) {
            best = sum;
            *rates = tried;
        }
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

typedef struct measured {
    int32_t ranks, nodes;
    double memory_bytes; /* per rank */
    double stream_Bps, flops32, flops64, launch_s;
    dpar_curve curve[DPAR_CURVE_COUNT];
    dpar_halo_rates halo;
    measure_halo at[MEASURE_HALOS]; /* the exchanges that `halo` is fitted to */
} measured;

/* Returns the bytes at a point of a curve. Points are closer where the protocol of messages and the
 * caches change. */
static inline int64_t measure_bytes(int point)
{
    if (point == 0) {
        return 8;
    }
    if (point < 7) {
        return INT64_C(512) << (point - 1);
    }
    if (point < 11) {
        return INT64_C(65536) << 2 * (point - 7);
    }
    return (INT64_C(4) << 20) * (point - 9);
}

/* Measures a call of call->comm at all sizes up to `room`, the bytes at call->in and call->out.
 * Returns nonzero on failure. */
static inline int measure_curve(measure_call *call, int64_t room, double seconds, dpar_curve *curve)
{
    const double half = call->run == measure_send ? 0.5 : 1.0;
    int i;
    memset(curve, 0, sizeof *curve);
    for (i = 0; i < DPAR_CURVE_POINTS && measure_bytes(i) <= room; i++) {
        double took;
        call->count = measure_bytes(i) / 4;
        took = measure_time(call, seconds);
        if (took < 0.0) {
            return 1;
        }
        curve->bytes[i] = (double)measure_bytes(i);
        curve->seconds[i] = half * took;
        curve->count = i + 1;
    }
    curve->ranks = call->comm->size > 1 ? call->comm->size : 2;
    return 0;
}

/* Returns the bytes of memory of the node, or 4 GB if the system does not say. */
static inline double measure_free_memory(void)
{
#if defined(_SC_PHYS_PAGES) && defined(_SC_PAGESIZE)
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
#else
    return 4e9;
#endif
}

static const measure_halo measure_sizes[] = {{20, 1, 0, 0}, {40, 1, 0, 0},  {48, 2, 0, 0},
                                             {80, 1, 0, 0}, {112, 1, 0, 0}, {144, 1, 0, 0},
                                             {24, 1, 2, 0}, {64, 1, 2, 0},  {96, 2, 0, 0}};
enum { MEASURE_SIZES = (int)(sizeof measure_sizes / sizeof *measure_sizes) };

/* Measures what a core does, in 9 parts of the time. Returns nonzero on failure. */
static inline int measure_core(measure_call *call, double part, measured *to)
{
    const double products = 2.0 * MEASURE_DIM * MEASURE_DIM * MEASURE_DIM;
    call->count = MEASURE_WORDS;
    call->run = measure_stream;
    to->stream_Bps = 24.0 * MEASURE_WORDS / measure_time(call, 4 * part);
    call->run = measure_product32;
    to->flops32 = products / measure_time(call, 2 * part);
    call->run = measure_product64;
    to->flops64 = products / measure_time(call, 2 * part);
    call->run = measure_launch;
    to->launch_s = measure_time(call, part);
    return !(to->stream_Bps > 0 && to->flops32 > 0 && to->flops64 > 0 && to->launch_s > 0);
}

/* Measures everything in about `seconds`. `node` is the number of this rank's node, 0..nodes-1; all
 * nodes must have the same number of ranks. Returns nonzero on failure, with a message in *why. */
static inline int measure_all(dpar_comm *world, int32_t node, int32_t nodes, double seconds,
                              measured *to, dpar_why *why)
{
    const int64_t bytes = 24 * (int64_t)MEASURE_WORDS, room = INT64_C(16) << 20;
    const double part = seconds / 60.0; /* there are about 60 measurements */
    dpar_comm *inside = NULL, *across = NULL;
    measure_call call;
    int bad, i;
    memset(to, 0, sizeof *to);
    memset(&call, 0, sizeof call);
    why->text[0] = 0;
    to->ranks = world->size;
    to->nodes = nodes;
    to->memory_bytes = measure_free_memory() / (world->size / nodes);
    call.world = call.comm = world;
    bad = dpar_comm_split(world, node, world->rank, &inside) != DPAR_OK ||
          dpar_comm_split(world, inside->rank, world->rank, &across) != DPAR_OK ||
          dpar_comm_alloc(world, bytes, &call.in) != DPAR_OK ||
          dpar_comm_alloc(world, room, &call.out) != DPAR_OK;
    if (!bad) {
        memset(call.in, 0, (size_t)bytes);
        memset(call.out, 0, (size_t)room);
        bad = measure_core(&call, part, to);
    }
    for (i = 0; i < DPAR_CURVE_COUNT && !bad; i++) {
        call.comm = i < DPAR_CURVE_NET ? inside : across;
        call.run = i % 2 == 0 ? measure_all_reduce : measure_send;
        if (dpar_max(world, call.comm->size) > 1.0) {
            bad = measure_curve(&call, room, part, &to->curve[i]);
        }
    }
    for (i = 0; i < MEASURE_SIZES && !bad; i++) {
        to->at[i] = measure_sizes[i];
        bad = measure_one_halo(world, &to->at[i], 3 * part, why);
    }
    if (bad && why->text[0] == 0) {
        *why = world->why;
    }
    dpar_comm_release(world, call.in);
    dpar_comm_release(world, call.out);
    bad |= across != NULL && dpar_comm_free(across) != DPAR_OK;
    bad |= inside != NULL && dpar_comm_free(inside) != DPAR_OK;
    return bad;
}

/* Returns the predicted seconds of an exchange. */
static inline double measure_predicted(const measure_halo *halo, const measured *found,
                                       const dpar_halo_rates *rates)
{
    dpar_halo_cost cost;
    const dpar_halo_cost_desc job =
        measure_halo_job(halo, found->ranks, found->ranks / found->nodes, &cost);
    return dpar_halo_cost_predict(&job, rates, &cost, NULL) == DPAR_OK ? cost.seconds : 0.0;
}

/* Writes the comment that names an exchange in the cluster file; measure_better looks for it. */
static inline void measure_halo_name(const measure_halo *halo, char *name, size_t room)
{
    snprintf(name, room, "# %d^3 f64 a rank, %d wide, cut in dim %d, us: ", (int)halo->n,
             (int)halo->width, halo->cut);
}

static inline double measure_more(double a, double b)
{
    return a > b ? a : b;
}

/* Takes the better values of an earlier file, which was written when others used the machine less.
 * `text` is that file, because times of halos are only in its comments. Returns 0 if it was
 * measured with another number of nodes or ranks. */
static inline int measure_better(measured *found, const dpar_cluster *was, const char *text)
{
    int i, k;
    if (was->nodes != found->nodes || was->gpus_per_node != found->ranks / found->nodes) {
        return 0;
    }
    found->stream_Bps = measure_more(found->stream_Bps, was->gpu.memory_Bps);
    found->flops32 = measure_more(found->flops32, was->gpu.flops[DPAR_F32]);
    found->flops64 = measure_more(found->flops64, was->gpu.flops[DPAR_F64]);
    found->launch_s = -measure_more(-found->launch_s, -was->cal.value[DPAR_CAL_LAUNCH_S]);
    for (i = 0; i < DPAR_CURVE_COUNT; i++) {
        dpar_curve *curve = &found->curve[i];
        for (k = 0; k < curve->count && curve->count == was->curve[i].count; k++) {
            curve->seconds[k] = -measure_more(-curve->seconds[k], -was->curve[i].seconds[k]);
        }
    }
    for (i = 0; i < MEASURE_SIZES; i++) {
        char name[60];
        const char *at;
        double us;
        measure_halo_name(&found->at[i], name, sizeof name);
        at = strstr(text, name);
        us = at != NULL ? atof(at + strlen(name)) : 0.0;
        if (us > 0.0 && us * 1e-6 < found->at[i].seconds) {
            found->at[i].seconds = us * 1e-6;
        }
    }
    return 1;
}

/* Fits found->halo. Returns the largest relative error of the predictions. */
static inline double measure_fit(measured *found)
{
    double most = 0.0;
    int i;
    measure_fit_halos(found->at, MEASURE_SIZES, found->ranks, found->ranks / found->nodes,
                      &found->halo);
    for (i = 0; i < MEASURE_SIZES; i++) {
        const double off =
            measure_predicted(&found->at[i], found, &found->halo) / found->at[i].seconds - 1.0;
        most = measure_more(most, off < 0.0 ? -off : off);
    }
    return most;
}

/* ---- the cluster file ------------------------------------------------------------------------ */

typedef struct cluster_file {
    FILE *to; /* NULL to count the lines only */
    int settings;
} cluster_file;

static inline void cluster_line(cluster_file *file, const char *key, double value, const char *says)
{
    if (file->to != NULL) {
        fprintf(file->to, "%-15s = %-22.6g # %s\n", key, value, says);
    }
    file->settings++;
}

static inline void cluster_curve(cluster_file *file, const char *key, const dpar_curve *curve,
                                 const char *says)
{
    int i;
    for (i = 0; i < curve->count; i++) {
        char text[80];
        snprintf(text, sizeof text, "%dx%.0fx%.6g", (int)curve->ranks, curve->bytes[i],
                 curve->seconds[i] * 1e6);
        if (file->to != NULL && i == 0) {
            fprintf(file->to, "%-15s = %-22s # ranks x bytes x us: %s\n", key, text, says);
        } else if (file->to != NULL) {
            fprintf(file->to, "%-15s = %-22s # as above\n", key, text);
        }
        file->settings++;
    }
}

/* Writes, or only counts, all settings after the line "settings". */
static inline void cluster_settings(cluster_file *file, const measured *found)
{
    const int32_t per_node = found->ranks / found->nodes;
    int i;
    cluster_line(file, "memory", found->memory_bytes / 1e9,
                 "GB a rank: what the node has, shared out");
    cluster_line(file, "stream", found->stream_Bps / 1e9,
                 "GB/s a rank: a = b + s c in f64 over 120 MiB, bytes of all three");
    cluster_line(file, "tflops", found->flops32 / 1e12,
                 "TFLOP/s a rank, as tflops32: cores have no more");
    cluster_line(file, "tflops32", found->flops32 / 1e12,
                 "TFLOP/s a rank: a product of 192 x 192 x 192 f32 in plain C");
    cluster_line(file, "tflops64", found->flops64 / 1e12, "TFLOP/s a rank: the same in f64");
    cluster_line(file, "launch_us", found->launch_s * 1e6, "us: a call through a pointer");
    cluster_line(file, "contention", 1, "a core copies or computes: nothing is hidden for free");
    cluster_line(file, "skew", 0, "times are the least: nobody is waited for");
    cluster_line(file, "step_ms", 1e-5, "ms of a step outside of its layers: not measured");
    if (per_node > 1) {
        const dpar_curve *curve = &found->curve[DPAR_CURVE_LINK_SEND];
        cluster_line(file, "nvlink",
                     curve->bytes[curve->count - 1] / curve->seconds[curve->count - 1] / 1e9,
                     "GB/s one way between two ranks of a node, the largest message");
    }
    if (found->nodes > 1) {
        const dpar_curve *curve = &found->curve[DPAR_CURVE_NET_SEND];
        const double rate = curve->bytes[curve->count - 1] / curve->seconds[curve->count - 1] / 1e9;
        if (file->to != NULL) {
            fprintf(file->to,
                    "nic             = 1x%-20.6g # GB/s one way between nodes, the same\n", rate);
        }
        file->settings++;
    }
    cluster_curve(file, "link_reduce", &found->curve[DPAR_CURVE_LINK],
                  "all_reduce of a node's ranks, f32 in place");
    cluster_curve(file, "link_send", &found->curve[DPAR_CURVE_LINK_SEND],
                  "a message inside a node, one way: half of there and back");
    cluster_curve(file, "net_reduce", &found->curve[DPAR_CURVE_NET],
                  "all_reduce of one rank a node, all those of a node at once");
    cluster_curve(file, "net_send", &found->curve[DPAR_CURVE_NET_SEND],
                  "a message between nodes, one way, all ranks of a node at once");
    for (i = 0; i < MEASURE_SIZES && file->to != NULL; i++) {
        char name[60];
        measure_halo_name(&found->at[i], name, sizeof name);
        fprintf(file->to, "%s%.6g, by the rates below %.6g\n", name, found->at[i].seconds * 1e6,
                measure_predicted(&found->at[i], found, &found->halo) * 1e6);
    }
    cluster_line(file, "halo_copy", found->halo.copy_Bps / 1e9,
                 "GB/s: these are fitted to the exchanges above");
    cluster_line(file, "halo_run", found->halo.run_s * 1e9, "ns a run of cells without gaps");
    cluster_line(file, "halo_peer", found->halo.peer_s * 1e6, "us a peer on the node");
    cluster_line(file, "halo_msg", found->halo.message_s * 1e6, "us a peer on another node");
    cluster_line(file, "halo_nic", found->halo.nic_Bps / 1e9, "GB/s out of a node; 0: not met");
    cluster_line(file, "halo_cache", found->halo.cache_bytes / 1e6,
                 "MB: a larger block lies in memory; 0: not met");
    cluster_line(file, "halo_far", found->halo.far_s * 1e9, "ns a run of cells there");
    cluster_line(file, "taper", 1, "the last line");
}

/* Writes the cluster file. Returns 1 if it cannot be written. */
static inline int cluster_write(const char *path, const measured *found, const char *joined)
{
    cluster_file file = {NULL, 0};
    const time_t at = time(NULL);
    char when[40] = "";
    strftime(when, sizeof when, "%Y-%m-%d %H:%M", localtime(&at));
    cluster_settings(&file, found);
    file.to = fopen(path, "w");
    if (file.to == NULL) {
        return 1;
    }
    fprintf(file.to,
            "# A machine as doctor --cluster measured it, %s: %d rank%s on %d node%s (%s).\n"
            "# All ranks at work at once; the least of many rounds, of each the slowest rank.\n"
            "# For plan --cluster FILE; dpar_cluster_read reads it.\n"
            "machine         = %dx%d:core\n"
            "settings        = %-22d # that follow: a file that was cut short is refused\n",
            when, (int)found->ranks, options_plural(found->ranks, "s"), (int)found->nodes,
            options_plural(found->nodes, "s"), joined, (int)found->nodes,
            (int)(found->ranks / found->nodes), file.settings);
    cluster_settings(&file, found);
    return ferror(file.to) != 0 || fclose(file.to) != 0;
}

#endif
