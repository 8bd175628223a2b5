/* SPDX-License-Identifier: MIT-0 */
/* mg - the multigrid benchmark MG of the NAS Parallel Benchmarks, domain-parallel, written from its
 * specification (NAS-91-002; classes of NAS-95-020 and later): a few V-cycles for the Poisson
 * equation on a periodic cube with twenty point charges. The norm of the residual is known.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. apps/mg.c -o mg
 *   ./mg --class A --ranks 2
 *
 * and over MPI:
 *
 *   mpicc -O2 -DUSE_MPI -DDPAR_IMPLEMENTATION -I. apps/mg.c -o mg
 *   mpirun -np 2 ./mg --class A
 *
 * Domain decomposition. The cube is cut along z and y. x is not cut, and each row also stores its
 * two periodic neighbours (points -1 and n), so that kernels need no special case and planes are
 * sent in one piece. Part p of P has rows [floor(n p / P), floor(n (p + 1) / P)) of each level, so
 * that coarse point i belongs to the rank of fine point 2 i + 1, for any number of ranks. A level
 * with less than two planes for each rank, or of 8^3 points, is stored whole on every rank: once a
 * cycle it is gathered (some ranks may have nothing of it), and from there down and up again no
 * message is needed.
 *
 * One exchange where the reference code has two. The residual r has a halo of width 2. So each rank
 * smooths its own points and one around them, and neither u nor the interpolation, which also
 * extends one point further, needs an exchange. All work between two exchanges runs in one sweep
 * over the planes while they are in the cache: interpolation and residual, or smoothing and
 * residual. That leaves no work to overlap with an exchange, because r is written to the end of a
 * sweep and read directly after it.
 *
 * dpar is used in `choose_grid` (dpar_cart_choose_parts), `set_up_level` (dpar_layout_init,
 * dpar_halo_owned, dpar_halo_plan_make), `exchange` (dpar_halo_plan_exchange), go_down
 * (dpar_all_reduce) and norm_of (dpar_exact_many).
 *
 * The bits are the same for any number of ranks: each point is computed by the same operations on
 * whichever rank it is, and the norm is the root of an exact sum (norm_of).
 *
 * Exit code: 0 verified, 1 not, or an error, 2 bad input (one message on stderr). */
#include "dpar_exact.h"
#include "dpar_halo.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows are computed with vector instructions also at -O2, and with wide ones if the processor has
 * them. The operations, and so the bits, are the same. APART tells the compiler that the loop's
 * arrays do not overlap, except that they may be identical. */
#if defined(__clang__)
#define APART _Pragma("clang loop vectorize(assume_safety)")
#define ROW static void
#elif defined(__GNUC__)
#define APART _Pragma("GCC ivdep")
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__OPTIMIZE__)
#define ROW __attribute__((optimize("O3"), target_clones("avx2", "default"))) static void
#else
#define ROW static void
#endif
#else
#define APART
#define ROW static void
#endif
#if defined(__GNUC__)
#define INLINE __attribute__((always_inline)) static inline
#define FETCH(p) __builtin_prefetch(p)
#else
#define INLINE static
#define FETCH(p) ((void)(p))
#endif

static const char program[] = "mg";
static const char help[] =
    "mg: NAS Parallel Benchmark MG, domain-parallel\n"
    "\n"
    "  mg [--class S|W|A|B|C] [--ranks N]\n"
    "  mpirun -np N mg [--class S|W|A|B|C]    built with -DUSE_MPI\n"
    "\n"
    "  --class   S: 32^3 points (default), W: 128^3, A and B: 256^3, C: 512^3;\n"
    "            4 iterations, B and C 20\n"
    "  --ranks   1 to 64 (default 1)\n"
    "\n"
    "Prints the norm of the residual, whether it is the official one (to 1e-8, as the "
    "specification\n"
    "says), the time and Mop/s: 58 operations for each finest point and iteration.\n"
    "Exit code: 0 the official norm, 1 another, or an error, 2 bad input\n"
    "\n"
    "examples\n"
    "  mg\n"
    "  mg --class A --ranks 4\n"
    "  mpirun -np 4 mg --class B\n";

#include "../helpers/options.h"
#include "start.h"

typedef struct problem {
    char name;
    int32_t points, iterations; /* points along each edge, a power of two */
    double norm;                /* the official norm of the residual */
    double smoother[3]; /* smoother: coefficients of centre, faces and edges; corners have 0 */
} problem;

static const problem problems[] = {
    {'S', 32, 4, 0.5307707005734e-04, {-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0}},
    {'W', 128, 4, 0.6467329375339e-05, {-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0}},
    {'A', 256, 4, 0.2433365309069e-05, {-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0}},
    {'B', 256, 20, 0.1800564401355e-05, {-3.0 / 17.0, 1.0 / 33.0, -1.0 / 61.0}},
    {'C', 512, 20, 0.5706732285740e-06, {-3.0 / 17.0, 1.0 / 33.0, -1.0 / 61.0}},
};
enum {
    PROBLEMS = sizeof problems / sizeof problems[0],
    LEVELS = 9,
    MOST = 512,
    WIDTH = 2,
    RANKS = 64
};

/* The command line. */
typedef struct request {
    const problem *task;
    int32_t ranks, grid[2]; /* ranks in all, and along z and y */
} request;

/* One grid: its points and what this rank has of them. */
typedef struct level {
    int64_t points;           /* points along each edge: 2, 4, ... */
    int whole;                /* 1: every rank has all of it */
    int64_t lo[2], hi[2];     /* own z and y; lo = hi if there are none */
    int64_t row, plane;       /* elements between neighbours along y and z */
    double *u, *r;            /* solution, residual */
    int64_t size;             /* elements of u and r */
    dpar_halo halo;           /* of r, whose rows have two points more */
    dpar_halo_plan *exchange; /* of r */
} level;

typedef struct mg {
    const problem *task;
    dpar_comm *comm;
    dpar_mesh mesh;       /* z, y */
    level levels[LEVELS]; /* the coarsest first */
    int32_t top;          /* the finest */
    double *v;            /* charges, an array like u of the finest level */
    dpar_status st;       /* the first failure, after which nothing more is sent */
    dpar_why why;
} mg;

/* ---- rows: n points that begin at the given addresses ---------------------------------------- */

/* The 27-point operators have one coefficient each for the centre, the faces, the edges and the
 * corners. In the plane across x, a point has four neighbours at distance 1 (near) and four at
 * distance sqrt 2 (far). Each of these sums is used by three points along x. [0] is point -1. */
INLINE void around(const double *centre, int64_t row, int64_t plane, int64_t n, double *near,
                   double *far)
{
    const double *below = centre - plane - 1, *middle = centre - 1, *above = centre + plane - 1;
    int64_t i;
    for (i = 0; i < n + 2; i++) {
        near[i] = (middle[i - row] + middle[i + row]) + (below[i] + above[i]);
        far[i] = (below[i - row] + below[i + row]) + (above[i - row] + above[i + row]);
    }
}

/* Prefetches a row that will be needed next, because processors prefetch within a page only. */
INLINE void fetch_row(const double *row, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i += 8) {
        FETCH(row + i);
    }
}

/* Sets points -1 and n, which are copies of points n - 1 and 0. */
INLINE void close_row(double *row, int64_t n)
{
    row[-1] = row[n - 1];
    row[n] = row[0];
}

/* r = v - A u, where A has the coefficients -8/3, 0, 1/6, 1/12. v may be r. */
ROW residual_row(double *r, const double *v, const double *u, int64_t row, int64_t plane, int64_t n)
{
    double near[MOST + 2], far[MOST + 2];
    int64_t i;
    fetch_row(v + row, n);
    around(u, row, plane, n, near, far);
    APART
    for (i = 0; i < n; i++) {
        r[i] = v[i] + 8.0 / 3.0 * u[i] - 1.0 / 6.0 * (far[i + 1] + near[i] + near[i + 2]) -
               1.0 / 12.0 * (far[i] + far[i + 2]);
    }
    close_row(r, n);
}

/* u += S r. */
ROW smooth_row(double *u, const double *r, int64_t row, int64_t plane, int64_t n,
               const double *smoother)
{
    const double s0 = smoother[0], s1 = smoother[1], s2 = smoother[2];
    double near[MOST + 2], far[MOST + 2];
    int64_t i;
    fetch_row(r + plane + 2 * row, n);
    fetch_row(u + row, n);
    around(r, row, plane, n, near, far);
    APART
    for (i = 0; i < n; i++) {
        u[i] = u[i] + s0 * r[i] + s1 * (r[i - 1] + r[i + 1] + near[i + 1]) +
               s2 * (far[i + 1] + near[i] + near[i + 2]);
    }
    close_row(u, n);
}

/* out = P r, where P has the coefficients 1/2, 1/4, 1/8, 1/16. Point i of out is at point 2 i + 1
 * of r. */
ROW restrict_row(double *out, const double *r, int64_t row, int64_t plane, int64_t n)
{
    double near[MOST + 2], far[MOST + 2];
    int64_t i;
    fetch_row(r + plane + 3 * row, 2 * n);
    fetch_row(r + plane + 2 * row, 2 * n);
    around(r, row, plane, 2 * n, near, far);
    APART
    for (i = 0; i < n; i++) {
        const double *const at_near = near + 2 * i + 1, *const at_far = far + 2 * i + 1;
        out[i] = 0.5 * r[2 * i + 1] + 0.25 * (r[2 * i] + r[2 * i + 2] + at_near[1]) +
                 0.125 * (at_far[1] + at_near[0] + at_near[2]) + 0.0625 * (at_far[0] + at_far[2]);
    }
    close_row(out, n);
}

/* u += Q z, where Q has the coefficients 1, 1/2, 1/4, 1/8. z has n points in a row. The fine row is
 * between the rows a, b, c and d of z, two or all of which are identical if it coincides with one.
 */
ROW prolong_row(double *u, const double *a, const double *b, const double *c, const double *d,
                int64_t n)
{
    double sum[MOST / 2 + 1];
    int64_t i;
    for (i = 0; i < n + 1; i++) {
        sum[i] = (a[i - 1] + b[i - 1]) + (c[i - 1] + d[i - 1]);
    }
    APART
    for (i = 0; i < n; i++) {
        u[2 * i] = u[2 * i] + 0.125 * (sum[i] + sum[i + 1]);
        u[2 * i + 1] = u[2 * i + 1] + 0.25 * sum[i + 1];
    }
    close_row(u, 2 * n);
}

/* ---- planes and levels ----------------------------------------------------------------------- */

static double *at(const level *grid, double *field, int64_t z, int64_t y)
{
    return field + (z - grid->lo[0] + WIDTH) * grid->plane + (y - grid->lo[1] + WIDTH) * grid->row +
           1;
}

/* r = v - A u, of own points. */
static void residual_plane(const level *grid, double *v, int64_t z)
{
    int64_t y;
    for (y = grid->lo[1]; y < grid->hi[1]; y++) {
        residual_row(at(grid, grid->r, z, y), at(grid, v, z, y), at(grid, grid->u, z, y), grid->row,
                     grid->plane, grid->points);
    }
}

/* Smooths a plane: own points and one around them. */
static void smooth_plane(const level *grid, const double *smoother, int64_t z)
{
    int64_t y;
    for (y = grid->lo[1] - 1; y <= grid->hi[1]; y++) {
        smooth_row(at(grid, grid->u, z, y), at(grid, grid->r, z, y), grid->row, grid->plane,
                   grid->points, smoother);
    }
}

/* Interpolates a plane: own points and one around them. Coarse point i is fine point 2 i + 1. */
static void prolong_plane(const level *fine, const level *coarse, int64_t z, int fresh)
{
    const int64_t z0 = (z + 1) / 2 - 1, z1 = (z + 2) / 2 - 1;
    int64_t y;
    for (y = fine->lo[1] - 1; y <= fine->hi[1]; y++) {
        const int64_t y0 = (y + 1) / 2 - 1, y1 = (y + 2) / 2 - 1;
        double *const u = at(fine, fine->u, z, y);
        if (fresh) {
            memset(u, 0, (size_t)fine->points * sizeof *u);
        }
        prolong_row(u, at(coarse, coarse->u, z0, y0), at(coarse, coarse->u, z0, y1),
                    at(coarse, coarse->u, z1, y0), at(coarse, coarse->u, z1, y1), coarse->points);
    }
}

/* r = v - A u. */
static void residual(const level *grid, double *v)
{
    int64_t z;
    for (z = grid->lo[0]; z < grid->hi[0]; z++) {
        residual_plane(grid, v, z);
    }
}

/* Computes u = Q z, on the finest level u += Q z, and one plane behind it r = v - A u. */
static void prolong(const level *fine, const level *coarse, double *v)
{
    int64_t z;
    for (z = fine->lo[0] - 1; z <= fine->hi[0]; z++) {
        prolong_plane(fine, coarse, z, v == fine->r);
        if (z > fine->lo[0]) {
            residual_plane(fine, v, z - 1);
        }
    }
}

/* Computes u += S r, and on the finest level, one plane behind it, where r is not needed any more,
 * r = v - A u. */
static void smooth(const level *grid, const double *smoother, double *v)
{
    int64_t z;
    for (z = grid->lo[0] - 1; z <= grid->hi[0]; z++) {
        smooth_plane(grid, smoother, z);
        if (v != grid->r && z > grid->lo[0]) {
            residual_plane(grid, v, z - 1);
        }
    }
}

/* Fills the halo of a level's residual. */
static void exchange(mg *solver, const level *grid)
{
    if (solver->st == DPAR_OK) {
        solver->st = dpar_halo_plan_exchange(grid->exchange);
    }
}

/* Restricts the residual to the next coarser level. If that is the first one that is stored whole,
 * each rank sets what it has and 0 elsewhere, so that a sum over the ranks gathers it without
 * rounding. */
static void go_down(mg *solver, const level *fine, const level *coarse)
{
    const int apart = coarse->whole && !fine->whole;
    int64_t z, y;
    if (apart) {
        memset(coarse->r, 0, (size_t)coarse->size * sizeof *coarse->r);
    }
    for (z = fine->lo[0] / 2; z < fine->hi[0] / 2; z++) {
        for (y = fine->lo[1] / 2; y < fine->hi[1] / 2; y++) {
            restrict_row(at(coarse, coarse->r, z, y), at(fine, fine->r, 2 * z + 1, 2 * y + 1),
                         fine->row, fine->plane, coarse->points);
        }
    }
    if (apart && solver->st == DPAR_OK) {
        solver->st = dpar_all_reduce(solver->comm, coarse->r, coarse->r, coarse->size, DPAR_F64,
                                     DPAR_SUM, NULL);
    }
    exchange(solver, coarse);
}

/* Runs a V-cycle. It begins with a residual whose halo is filled, and ends with the next one. */
static void cycle(mg *solver)
{
    const double *const smoother = solver->task->smoother;
    level *const levels = solver->levels;
    int32_t k;
    for (k = solver->top; k > 0; k--) {
        go_down(solver, &levels[k], &levels[k - 1]);
    }
    memset(levels[0].u, 0, (size_t)levels[0].size * sizeof *levels[0].u);
    smooth(&levels[0], smoother, levels[0].r);
    for (k = 1; k <= solver->top; k++) {
        double *const v = k == solver->top ? solver->v : levels[k].r;
        prolong(&levels[k], &levels[k - 1], v);
        exchange(solver, &levels[k]);
        smooth(&levels[k], smoother, v);
    }
    exchange(solver, &levels[solver->top]);
}

/* The root mean square of the finest residual, from the exact sum of the squares of own points. */
static double norm_of(mg *solver)
{
    const level *const grid = &solver->levels[solver->top];
    const int64_t n = grid->points;
    const double *const own = at(grid, grid->r, grid->lo[0], grid->lo[1]);
    dpar_exact_term squares = dpar_exact_dot_of(own, own, 0, DPAR_F64);
    double sum = 0.0, root = 1.0;
    int64_t i;
    squares.dims = 3;
    squares.extent[0] = grid->hi[0] - grid->lo[0];
    squares.extent[1] = grid->hi[1] - grid->lo[1];
    squares.extent[2] = n;
    squares.x_stride[0] = squares.y_stride[0] = grid->plane;
    squares.x_stride[1] = squares.y_stride[1] = grid->row;
    squares.x_stride[2] = squares.y_stride[2] = 1;
    if (solver->st == DPAR_OK) {
        solver->st = dpar_exact_many(solver->comm, &squares, 1, &sum);
    }
    sum /= (double)n * (double)n * (double)n;
    for (i = 0; i < 60; i++) {
        root = 0.5 * (root + sum / root); /* Newton's square root: no -lm */
    }
    return root;
}

/* ---- charges --------------------------------------------------------------------------------- */

/* The ten largest values that were offered, and their points. */
enum { TEN = 10 };
typedef struct ten {
    int64_t value[TEN], point[TEN];
} ten;

static void offer(ten *list, int64_t value, int64_t point)
{
    int i;
    if (value <= list->value[TEN - 1]) {
        return;
    }
    for (i = TEN - 1; i > 0 && list->value[i - 1] < value; i--) {
        list->value[i] = list->value[i - 1];
        list->point[i] = list->point[i - 1];
    }
    list->value[i] = value;
    list->point[i] = point;
}

/* Sets a charge, if this rank has its point. */
static void charge(const mg *solver, int64_t point, double value)
{
    const level *const grid = &solver->levels[solver->top];
    const int64_t z = point / grid->points / grid->points, y = point / grid->points % grid->points;
    if (z >= grid->lo[0] && z < grid->hi[0] && y >= grid->lo[1] && y < grid->hi[1]) {
        at(grid, solver->v, z, y)[point % grid->points] = value;
    }
}

/* Sets u = 0, and v = 1 at the ten largest random numbers, -1 at the ten smallest, otherwise 0. The
 * numbers are x = 5^13 x mod 2^46, from 314159265 on, in the order of points with x fastest. Every
 * rank computes all of them, which takes less than the first cycle. */
static void begin(mg *solver)
{
    const level *const grid = &solver->levels[solver->top];
    const uint64_t mask = (UINT64_C(1) << 46) - 1;
    uint64_t x = 314159265;
    ten most, least;
    int64_t i;
    for (i = 0; i < TEN; i++) {
        most.value[i] = least.value[i] = INT64_MIN;
    }
    for (i = 0; i < grid->points * grid->points * grid->points; i++) {
        x = x * 1220703125 & mask;
        offer(&most, (int64_t)x, i);
        offer(&least, -(int64_t)x, i);
    }
    memset(grid->u, 0, (size_t)grid->size * sizeof *grid->u);
    memset(solver->v, 0, (size_t)grid->size * sizeof *solver->v);
    for (i = 0; i < TEN; i++) {
        charge(solver, most.point[i], 1.0);
        charge(solver, least.point[i], -1.0);
    }
}

/* ---- setting up ------------------------------------------------------------------------------ */

/* Zeroed memory that other ranks can read directly. It is freed with the world. */
static void *memory(mg *solver, int64_t bytes)
{
    void *at = NULL;
    if (solver->st == DPAR_OK) {
        solver->st = dpar_comm_alloc(solver->comm, bytes, &at);
    }
    return at;
}

/* Distributes a level over the ranks and plans its exchange. grid->points and grid->whole are
 * known. */
static void set_up_level(mg *solver, level *grid)
{
    const int64_t extent[3] = {grid->points, grid->points, grid->points + 2};
    dpar_placement cuts[2];
    dpar_halo_field field;
    dpar_halo_plan_desc options;
    dpar_box own;
    int d;
    memset(&field, 0, sizeof field);
    memset(&own, 0, sizeof own);
    for (d = 0; d < 2; d++) {
        cuts[d] = grid->whole ? dpar_replicate() : dpar_shard_by(d, DPAR_SPLIT_FLOOR, 0);
        grid->halo.low[d] = grid->halo.high[d] = WIDTH;
    }
    grid->halo.shape = DPAR_STENCIL_BOX;
    grid->halo.periodic = 3;
    if (solver->st == DPAR_OK) {
        solver->st =
            dpar_layout_init(&grid->halo.grid, &solver->mesh, 3, extent, cuts, &solver->why);
    }
    if (solver->st == DPAR_OK) {
        (void)dpar_halo_owned(&grid->halo, solver->comm->rank, &own);
    }
    memcpy(grid->lo, own.lo, sizeof grid->lo);
    memcpy(grid->hi, own.hi, sizeof grid->hi);
    grid->row = grid->points + 2;
    grid->plane = (grid->hi[1] - grid->lo[1] + 2 * WIDTH) * grid->row;
    grid->size = (grid->hi[0] - grid->lo[0] + 2 * WIDTH) * grid->plane;
    grid->u = (double *)memory(solver, grid->size * 8);
    grid->r = (double *)memory(solver, grid->size * 8);
    field.halo = &grid->halo;
    field.type = DPAR_F64;
    field.data = grid->r;
    memset(&options, 0, sizeof options);
    options.field = &field;
    options.field_count = 1;
    if (solver->st == DPAR_OK) {
        solver->st = dpar_halo_plan_make(solver->comm, &options, &grid->exchange, &solver->why);
    }
}

static void set_up(mg *solver, const int32_t *grid)
{
    const int64_t finest = solver->task->points;
    level *latest = solver->levels;
    int64_t points;
    solver->st = dpar_mesh_init(&solver->mesh, "z y", grid, DPAR_ORDER_LAST_FASTEST,
                                solver->comm->size, &solver->why);
    for (points = 2; points <= finest; points *= 2) {
        latest = &solver->levels[solver->top++];
        latest->points = points;
        latest->whole =
            solver->comm->size > 1 && points < finest && (points <= 8 || points < 2 * grid[0]);
        set_up_level(solver, latest);
    }
    solver->top--;
    solver->v = (double *)memory(solver, latest->size * 8);
}

/* ---- the benchmark --------------------------------------------------------------------------- */

/* Computes the first residual, runs so many cycles and returns the norm. */
static double run(mg *solver, int32_t cycles)
{
    int32_t i;
    residual(&solver->levels[solver->top], solver->v);
    exchange(solver, &solver->levels[solver->top]);
    (void)norm_of(solver); /* the reference code also times this */
    for (i = 0; i < cycles; i++) {
        cycle(solver);
    }
    return norm_of(solver);
}

/* Prints the result. Returns 1 if it is wrong. */
static int tell(const mg *solver, double norm, double seconds)
{
    const problem *const task = solver->task;
    const double points = task->points;
    const double off = norm > task->norm ? norm - task->norm : task->norm - norm;
    const int verified = off <= 1e-8 * task->norm;
    printf("mg: class %c, %d^3 points, %d iterations, %d rank%s (%d x %d), engine %s\n", task->name,
           (int)task->points, (int)task->iterations, (int)solver->comm->size,
           solver->comm->size > 1 ? "s" : "", (int)solver->mesh.axis[0].size,
           (int)solver->mesh.axis[1].size, solver->comm->engine.name);
    printf("norm      %.16e\n", norm);
    printf("official  %.13e\n", task->norm);
    printf("verified  %s (%.1e off, 1e-8 allowed)\n", verified ? "yes" : "NO", off / task->norm);
    printf("time      %.4f s\n", seconds);
    printf("Mop/s     %.1f\n", 58e-6 * points * points * points * task->iterations / seconds);
#ifndef __OPTIMIZE__
    printf("(compiled without -O2: slow)\n");
#endif
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "mg: the results could not be written to standard output\n");
        return 1;
    }
    return !verified;
}

/* What each rank runs. */
static int solve(dpar_comm *comm, void *arg)
{
    const request *const options = (const request *)arg;
    double norm = 0.0, seconds = 0.0, slowest = 0.0;
    mg solver;
    int32_t k;
    memset(&solver, 0, sizeof solver);
    solver.task = options->task;
    solver.comm = comm;
    set_up(&solver, options->grid);
    if (solver.st == DPAR_OK) {
        begin(&solver);
        (void)run(&solver, 1); /* as in the reference code: touches all memory first */
        begin(&solver);
        if (solver.st == DPAR_OK) {
            solver.st = dpar_barrier(comm, NULL);
        }
        seconds = now();
        norm = run(&solver, options->task->iterations);
        seconds = now() - seconds;
    }
    if (solver.st == DPAR_OK) {
        solver.st = dpar_all_reduce(comm, &seconds, &slowest, 1, DPAR_F64, DPAR_MAX, NULL);
    }
    for (k = 0; k <= solver.top && solver.st == DPAR_OK; k++) {
        solver.st = dpar_halo_plan_free(solver.levels[k].exchange);
    }
    if (solver.st != DPAR_OK) {
        fprintf(stderr, "mg: rank %d: %s: %s\n", (int)comm->rank, dpar_status_text(solver.st),
                solver.why.text[0] != 0 ? solver.why.text : comm->why.text);
        return 1;
    }
    return comm->rank == 0 ? tell(&solver, norm, slowest) : 0;
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* Chooses how many ranks there are along z and y. Returns 0, or 2 after a message. */
static int choose_grid(request *options)
{
    dpar_cart_choose_desc grid;
    dpar_why why;
    memset(&grid, 0, sizeof grid);
    grid.ranks = options->ranks;
    grid.dims = 2;
    grid.cells[0] = grid.cells[1] = options->task->points;
    grid.weight[0] = 4; /* cheaper, because planes of z are contiguous */
    grid.weight[1] = 5;
    grid.periodic = 3;
    if (dpar_cart_choose_parts(&grid, options->grid, NULL, &why) != DPAR_OK) {
        return complain(why.text, NULL);
    }
    return 0;
}

/* Reads the command line (start_read of apps/start.h). */
static int reads(int argc, char **argv, int *ranks, void *at)
{
    request *options = (request *)at;
    const char *given = "S";
    int asked = 0, code;
    const option list[] = {{"--class", OPTION_WORD, &given, 0, 0},
                           {"--ranks", OPTION_INT, &asked, 1, RANKS}};
    code = options_read(argc, argv, list, 2, NULL, 0);
    code = code < 0 ? start_ranks(ranks, asked) : code;
    if (code >= 0) {
        return code;
    }
    for (options->task = problems; options->task < problems + PROBLEMS; options->task++) {
        if (given[0] == options->task->name && given[1] == 0) {
            break;
        }
    }
    if (options->task == problems + PROBLEMS) {
        return complain("--class is S, W, A, B or C, not", given);
    }
    if (*ranks > RANKS) {
        return complain("mg runs on at most 64 ranks", NULL);
    }
    *ranks = *ranks > 0 ? *ranks : 1;
    options->ranks = *ranks;
    return choose_grid(options) != 0 ? 2 : -1;
}

int main(int argc, char **argv)
{
    request options = {&problems[0], 0, {0, 0}};
    return start(argc, argv, reads, solve, &options);
}
