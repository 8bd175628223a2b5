/* SPDX-License-Identifier: MIT-0 */
/* shallow_water - the weather of one layer of air on a rotating planet, cut into blocks.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. apps/shallow_water.c -o shallow_water
 *   ./shallow_water --case 2 --table --rows 64 --ranks 2
 *
 *   flow at 0 degrees to the equator, after 5 days
 *         cells  error: l1        l2       max  order     mass   energy
 *     16 x   32   7.98e-05  8.58e-05  1.36e-04        -2.2e-16 +7.5e-07
 *     32 x   64   2.48e-05  2.69e-05  4.06e-05   1.67 -2.2e-16 +5.8e-08
 *     64 x  128   7.45e-06  8.01e-06  1.22e-05   1.75 -2.2e-16 +4.4e-09
 *
 *   ./shallow_water --case 5 --days 15 --ranks 2 --every 120 --frames mountain_ --save day15
 *   mpicc -O2 -DUSE_MPI -DDPAR_IMPLEMENTATION -I. apps/shallow_water.c -o over_mpi
 *   mpirun -np 6 ./over_mpi --resume day15 --days 20
 *
 * The equations: vector-invariant form on Arakawa's C grid, h in the middle of a cell, u on its
 * western face, v on its southern one,
 *
 *     dh/dt = -div(h u, h v)    du/dt = w v - grad_x B    dv/dt = -w u - grad_y B
 *     w = f + curl              B = g (h + ground) + (u^2 + v^2) / 2 - damping * div(u, v)
 *
 * Mass that leaves a cell through a face enters the next cell, so that the total is conserved. w v
 * and w u are products of averages, as in the scheme of Sadourny (1975) that conserves enstrophy
 * (his has (f + curl) / h and h u, with which the errors below are 1.7 to 3 times as large).
 * Averages of products would conserve energy, but it accumulates in waves of two cells: with them
 * case 5 blew up on day 90 on 48 rows, and on day 270 on 24. With products of averages it also
 * does, later (after day 200 on 24 and 37 rows), unless divergence that changes from cell to cell
 * is damped (--damping; balanced flow has almost none). A step has the three stages of Wicker and
 * Skamarock (2002): 1/3, 1/2, 1.
 *
 * The poles. No cap is cut off: the polar faces have length 0, so that nothing flows through them.
 * But cells become narrow there, and a wave that crosses one in less than a step makes the scheme
 * unstable. Where cells are narrower than half their height, tendencies are therefore filtered
 * along longitude: averaged with weights that decrease linearly to both sides, which is the same as
 * two averages over 2 m + 1 cells, about as wide everywhere. This slows short waves down as larger
 * cells would, and does not change balanced flow. It needs a halo that is wide in longitude (16
 * cells of 100), but no Fourier transforms of whole circles. Averages conserve the mass. On the
 * last circle even wave number 1 is slowed down, by 8 %.
 *
 * Accuracy. Case 2: the error of h on 64 rows after 5 days (l2), for flow at 0, 45, 60 and 90
 * degrees, is 8.0e-6, 5.6e-4, 3.8e-4 and 1.1e-4, second order. Most of it comes from the poles. The
 * averages of v for u weight circles by their lengths: at distance d from a pole, with cells of
 * size s, they are wrong by s^2 / 4d of the slope, which is first order on the last circle. They
 * are multiplied by w, which is small at the poles if the flow passes directly over them. Equal
 * weights give 4.2e-4 at 45 degrees, but 1.3e-4 at 90, and 20 times the drift of energy. Case 5 has
 * no exact solution. On day 15 the surface is between 5041 and 5942 m on 64 rows, and between 5033
 * and 5954 m on 192 (undamped), from which 64 rows differ by 2.1e-3 (l2) and 32 rows by 7.3e-3. A
 * published result to compare: DWD's GME differs from a spectral model by 1.4e-3 with 10242 points,
 * and 0.7e-3 with 40962 (icon.enes.org/swm/gmeswm). Energy falls by 2.6e-5 in these 15 days on 64
 * rows, and by 1.0e-3 in 200; motion had 4.6e-3 of it in the beginning. In long runs the wind
 * around a pole is wrong. The cap within the last circle has the vorticity of the circle around it
 * (its own would be a sum over all ranks), so that nothing limits its rotation: 48 m/s on day 160
 * on 48 rows, 16 on the next circle.
 *
 * The bits are the same on any number of ranks, also after a restart on another number, because
 * every cell is computed by the same expressions from the same numbers, and sums over the globe are
 * exact (dpar_exact.h). All ranks write their parts of a file, so that several nodes need a common
 * file system.
 *
 * Many blocks per rank. With --blocks the grid is cut into blocks of the given size, each with its
 * own arrays (dpar_blocks.h). One exchange updates all blocks and fields, and then a rank computes
 * one block after the other. Ranks with the same number of cells do not have the same work, because
 * a filter reads up to 81 numbers of each field on 128 rows next to a pole, and only one at the
 * equator. The first steps measure the seconds of each block, and then blocks move to other ranks
 * if that pays.
 *
 *   ./shallow_water --case 5 --rows 128 --blocks 8x128 --ranks 4
 *
 *   case 5, 128 x 256 cells in 16 x 2 blocks of 8 x 128 on 4 ranks, 2760 steps of 157 s
 *   after 10 steps: imbalance 1.19, 1.02 with 4 of 32 blocks on another rank
 *
 * Narrow blocks are slow, because each computes as far around it as filters reach: with 16x16 a
 * step takes two to three times as long.
 *
 * dpar is used in `divide` (dpar_cart_choose_parts), `cut` (dpar_layout_init, dpar_halo_owned),
 * `plan` (dpar_halo_plan_make, one plan for three fields), `begin` and `stage`, which compute the
 * core (dpar_halo_interior) between dpar_halo_plan_begin and dpar_halo_plan_end, and `cut_blocks`,
 * `exchange` and `balance` (dpar_blocks_make, dpar_blocks_exchange_many, dpar_blocks_move).
 *
 * On GPUs use shallow_water.cu, which includes this file and runs its circles as kernels.
 *
 * Exit code: 0 fine, 1 an error on the way, 2 bad input (one message on stderr). */
#include "dpar_blocks.h"
#include "dpar_exact.h"
#include "dpar_halo.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char program[] = "shallow_water";
static const char help[] =
    "shallow_water: test cases of Williamson et al. (1992) on blocks of a latitude-longitude grid\n"
    "\n"
    "  --case 2        steady flow; prints the norms l1, l2, max of the error of h (default)\n"
    "  --case 5        flow over a mountain\n"
    "  --alpha DEGREES angle of the flow to the equator, 0 to 90 (default 0)\n"
    "  --damping C     of divergence, in cells^2 a step, 0 to 0.1 (default 0.05)\n"
    "  --rows N        cells from pole to pole, 8 to 4096, twice as many around (default 64)\n"
    "  --days D        where to end, 0.001 to 10000 (default 5)\n"
    "  --table         case 2 on N/4, N/2 and N rows: how fast the error falls\n"
    "  --ranks N       processes, 1 to 64 (default 1); built with -DUSE_MPI: mpirun's -np\n"
    "  --grid AxB      blocks from south to north, from west to east (default: least traffic)\n"
    "  --blocks AxB    many blocks per rank, of A rows and B columns, which move to other ranks\n"
    "                  if that pays (default: one block per rank, the same bits)\n"
    "  --every HOURS   reports, frames and checkpoints also under way (default: at the end)\n"
    "  --frames PREFIX pictures of the surface, PREFIX0000.ppm and so on by the hour\n"
    "  --save FILE     checkpoint\n"
    "  --resume FILE   goes on from there, on any number of ranks: the same bits\n"
    "  --progress      where it is and when it ends, on stderr (default: if that is a terminal)\n"
    "Exit code: 0 fine, 1 an error under way, 2 bad input\n"
    "\n"
    "examples\n"
    "  shallow_water --table\n"
    "  shallow_water --case 5 --rows 128 --days 15 --ranks 4 --every 24 --frames wave\n"
    "  shallow_water --case 5 --rows 128 --blocks 8x128 --ranks 4\n"
    "  mpirun -np 4 shallow_water --resume saved --days 30\n";

#include "../helpers/options.h"
#ifndef ON_GPU
#include "start.h"
#endif

#ifndef ON_GPU   /* shallow_water.cu defines it, and */
#define ANYWHERE /* the attributes of functions that run on the host and on a device */
#endif
#define NARROW 0.5 /* of a cell's height: cells that are narrower are filtered to this width */
#define PI 3.14159265358979323846
#define RADIUS 6.37122e6 /* m; this and the next two are from Williamson et al. */
#define OMEGA 7.292e-5   /* 1/s */
#define GRAVITY 9.80616  /* m/s^2 */

enum { H, U, V, FIELDS }; /* the state */
enum { HEAD = 8 };        /* numbers before the fields of a checkpoint */
enum { ARRAYS = 18 };     /* arrays of a layer */
enum { LASTING = 11 };    /* the first of them, which are needed in the next step */
enum { RIMS = 4 };        /* the most boxes of cells that need the halo */
enum { TRIAL = 10 };      /* steps that are measured before blocks move */

typedef struct settings {
    double test, rows, ranks, every, alpha, days, damping; /* every: hours; alpha: degrees */
    const char *grid, *blocks, *frames, *save, *resume;
    int table, progress;
    int32_t parts[2];
    int64_t size[2]; /* of --blocks: rows and columns of a block; 0 for one block per rank */
    int64_t step;    /* of the checkpoint */
    void *device;    /* shallow_water.cu: a rank's */
} settings;

/* One circle of cells, and of the faces south of it. */
typedef struct circle {
    double width, edge;           /* cos(latitude) */
    double damping;               /* m^2/s */
    int64_t near, edge_near, far; /* how many cells filters reach: of cells, of faces, and the
                                     most of this circle and its neighbours */
} circle;

/* The arrays of a block's physics. All have the same shape: cell (j, i) is at(a, j, i), and so are
 * its u and v. */
typedef struct layer {
    int64_t rows, pitch, lo[2]; /* pitch: from row to row; lo: the first row and column stored */
    double size;                /* of a cell, in both directions, in radians */
    const circle *row;
    double *state[3][FIELDS], *trend[FIELDS]; /* the state and two stages; tendencies */
    double *flux_u, *flux_v, *vorticity, *bernoulli, *ground, *coriolis;
} layer;

/* A block of this rank. `seen` has the state, the ground and the rotation for the host: the arrays
 * of `air` itself, or a copy of them if those are in a device's memory. */
typedef struct own_block {
    dpar_box own[FIELDS], box; /* box: the cells that the arrays hold */
    layer air, seen;
    double seconds; /* --blocks: of the fastest stage so far */
} own_block;

/* A rank. */
typedef struct planet {
    dpar_comm *comm;
    const settings *options;
    int64_t rows, columns, per_hour; /* per_hour: steps */
    double depth, wind, dt, size;    /* m, m/s, s; of a cell, in radians */
    circle *row;
    own_block *block;
    int32_t count; /* of blocks; 1 without --blocks */
    /* One block per rank: */
    dpar_halo points[FIELDS];
    dpar_halo_plan *exchange;
    void *memory;
    /* Many blocks per rank: */
    dpar_blocks *blocks;               /* NULL if there is one block per rank */
    dpar_blocks_array *array[LASTING]; /* in the order of `address` */
    double *scratch;                   /* the other arrays, which all blocks use in turn */
    int64_t reach;                     /* width of the halo along a circle */
    const char *trouble;               /* why a file could not be written, or NULL */
    dpar_why why;
} planet;

typedef struct result {
    double mass, energy, l1, l2, most; /* over the globe; norms of the error of h */
    double low, high;                  /* of the surface, m */
} result;

/* ---- mathematics, so that -lm is not needed -------------------------------------------------- */

static double sine(double x)
{
    double term, sum;
    int n;
    while (x > PI) {
        x -= 2 * PI;
    }
    term = sum = x;
    for (n = 1; n < 16; n++) {
        term *= -x * x / (2 * n * (2 * n + 1));
        sum += term;
    }
    return sum;
}

static double cosine(double x)
{
    return sine(x + PI / 2);
}

static double root(double x)
{
    double r = x > 1 ? x : 1;
    int n;
    for (n = 0; n < 100; n++) {
        r = 0.5 * (r + x / r);
    }
    return x > 0 ? r : 0;
}

/* The logarithm of x >= 1. */
static double log_2(double x)
{
    double bit = 0.5, sum = 0;
    for (; x >= 2; x /= 2) {
        sum++;
    }
    for (; bit > 1e-6; bit /= 2) {
        x *= x;
        sum += x >= 2 ? bit : 0;
        x = x >= 2 ? x / 2 : x;
    }
    return sum;
}

/* ---- the physics ----------------------------------------------------------------------------- */

static ANYWHERE int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static ANYWHERE int64_t at(const layer *air, int64_t j, int64_t i)
{
    return (j - air->lo[0]) * air->pitch + i - air->lo[1];
}

static ANYWHERE double bernoulli(const layer *air, int from, int64_t j, int64_t k)
{
    const double *u = air->state[from][U] + k;
    const double *v = air->state[from][V] + k;
    const double *north = v + air->pitch;
    const double south_edge = air->row[j].edge, north_edge = air->row[j + 1].edge;
    return GRAVITY * (air->state[from][H][k] + air->ground[k]) +
           0.25 * (u[0] * u[0] + u[1] * u[1]) +
           0.25 * (south_edge * v[0] * v[0] + north_edge * north[0] * north[0]) / air->row[j].width;
}

static ANYWHERE double divergence(const layer *air, int from, int64_t j, int64_t k)
{
    const double *u = air->state[from][U] + k;
    const double *v = air->state[from][V] + k;
    const double *north = v + air->pitch;
    const double through = u[1] - u[0] + air->row[j + 1].edge * north[0] - air->row[j].edge * v[0];
    return through / (air->row[j].width * air->size * RADIUS);
}

/* The following three functions process one circle, j. A thread has every `threads`-th of its
 * cells; on the host one thread has all. */

/* Computes fluxes, vorticity and B (with the damping of divergence) of a state, as far as the
 * tendencies in a box of cells need them: on the circles from the one south to the one north of it.
 */
static ANYWHERE void diagnose(const layer *air, int from, const dpar_box *box, int64_t j,
                              int64_t thread, int64_t threads)
{
    const double *h = air->state[from][H], *u = air->state[from][U], *v = air->state[from][V];
    const double across = 1 / (air->size * RADIUS);
    const int64_t pitch = air->pitch;
    int64_t k, end;
    if (j >= 0 && j < box->hi[0]) {
        end = at(air, j, box->hi[1] + air->row[j].far);
        for (k = at(air, j, box->lo[1] - air->row[j].far) + thread; k <= end; k += threads) {
            air->flux_u[k] = 0.5 * (h[k - 1] + h[k]) * u[k];
        }
        for (k = at(air, j, box->lo[1] - air->row[j].far - 1) + thread; k < end; k += threads) {
            air->bernoulli[k] =
                bernoulli(air, from, j, k) - air->row[j].damping * divergence(air, from, j, k);
        }
    }
    /* Nothing flows through the poles. Blocks share this array, so that it may have other values.
     */
    if (j == 0 || j == air->rows) {
        end = at(air, j, box->hi[1] + air->row[j].far);
        for (k = at(air, j, box->lo[1] - air->row[j].far - 1) + thread; k < end; k += threads) {
            air->flux_v[k] = 0;
        }
    }
    if (j >= larger(box->lo[0], 1) && j < air->rows) {
        const double south = air->row[j - 1].width;
        const double north = air->row[j].width;
        const double edge = air->row[j].edge;
        end = at(air, j, box->hi[1] + air->row[j].far);
        for (k = at(air, j, box->lo[1] - air->row[j].far - 1) + thread; k < end; k += threads) {
            air->flux_v[k] = 0.5 * edge * (h[k - pitch] + h[k]) * v[k];
        }
        for (k = at(air, j, box->lo[1] - air->row[j].far) + thread; k <= end; k += threads) {
            const double curl =
                (v[k] - v[k - 1] - u[k] * north + u[k - pitch] * south) * across / edge;
            air->vorticity[k] = air->coriolis[k] + curl;
        }
    }
}

/* Computes the tendencies of the state that was diagnosed, in a box of cells and as far around it
 * as filters reach. */
static ANYWHERE void tend(const layer *air, int from, const dpar_box *box, int64_t j,
                          int64_t thread, int64_t threads)
{
    const double *u = air->state[from][U], *v = air->state[from][V];
    const double *w = air->vorticity, *B = air->bernoulli, *fu = air->flux_u, *fv = air->flux_v;
    const double along = 1 / (air->size * RADIUS), across = along / air->row[j].width;
    const double below = air->row[j].edge / air->row[j].width;
    const double above = air->row[j + 1].edge / air->row[j].width;
    const int64_t pitch = air->pitch;
    /* A pole has the vorticity of the circle around it. */
    const int64_t south = j > 0 ? 0 : pitch;
    const int64_t north = j < air->rows - 1 ? pitch : 0;
    int64_t k, end = at(air, j, box->hi[1] + air->row[j].near);
    for (k = at(air, j, box->lo[1] - air->row[j].near) + thread; k < end; k += threads) {
        const double wind = below * (v[k - 1] + v[k]) + above * (v[k + pitch - 1] + v[k + pitch]);
        air->trend[H][k] = (fu[k] - fu[k + 1] + fv[k] - fv[k + pitch]) * across;
        air->trend[U][k] =
            0.125 * (w[k + south] + w[k + north]) * wind - (B[k] - B[k - 1]) * across;
    }
    end = at(air, j, box->hi[1] + air->row[j].edge_near);
    for (k = at(air, j, box->lo[1] - air->row[j].edge_near) + thread; k < end && j > 0;
         k += threads) {
        const double wind = u[k - pitch] + u[k - pitch + 1] + u[k] + u[k + 1];
        air->trend[V][k] = (B[k - pitch] - B[k]) * along - 0.125 * (w[k] + w[k + 1]) * wind;
    }
}

/* Computes to = base + dt * tendency, filtered near the poles, in a box of cells. */
static ANYWHERE void advance(const layer *air, int base, int to, double dt, const dpar_box *box,
                             int64_t j, int64_t thread, int64_t threads)
{
    const int64_t first = at(air, j, box->lo[1]) + thread, end = at(air, j, box->hi[1]);
    int64_t k, n;
    int field;
    for (field = 0; field < FIELDS; field++) {
        const double *trend = air->trend[field], *was = air->state[base][field];
        const int64_t peak = 1 + (field == V ? air->row[j].edge_near : air->row[j].near);
        const double scale = dt / (double)(peak * peak);
        for (k = first; k < end && (field != V || j > 0); k += threads) {
            double sum = (double)peak * trend[k];
            for (n = 1; n < peak; n++) {
                sum += (double)(peak - n) * (trend[k - n] + trend[k + n]);
            }
            air->state[to][field][k] = was[k] + scale * sum;
        }
    }
}

/* ---- the memory in which it is computed ------------------------------------------------------ */

/* Returns where a layer has the address of array n. */
static double **address(layer *air, int n)
{
    double **const place[ARRAYS] = {&air->state[0][H], &air->state[0][U], &air->state[0][V],
                                    &air->ground,      &air->coriolis,    &air->state[1][H],
                                    &air->state[1][U], &air->state[1][V], &air->state[2][H],
                                    &air->state[2][U], &air->state[2][V], &air->trend[H],
                                    &air->trend[U],    &air->trend[V],    &air->flux_u,
                                    &air->flux_v,      &air->vorticity,   &air->bernoulli};
    return place[n];
}

/* Places the first `arrays` arrays one after the other in `memory`. */
static void lay(layer *air, int arrays, void *memory, int64_t size)
{
    int n;
    for (n = 0; n < arrays; n++) {
        *address(air, n) = (double *)memory + n * size;
    }
}

/* These functions are for host memory. shallow_water.cu has those for a device. */
#ifdef ON_GPU
static dpar_status open_air(planet *p);
static void close_air(planet *p);
static void show(planet *p);
static void look(planet *p);
static void compute(planet *p, const own_block *here, const dpar_box *box, int n, int base,
                    int from, int to, double dt);
#else
/* Allocates the arrays, zeroed, in memory that other ranks can read directly. */
static dpar_status open_air(planet *globe)
{
    own_block *here = globe->block;
    const int64_t size = dpar_box_volume(&here->box);
    const dpar_status st = dpar_comm_alloc(globe->comm, size * ARRAYS * 8, &globe->memory);
    if (st == DPAR_OK) {
        lay(&here->air, ARRAYS, globe->memory, size);
        here->seen = here->air;
    }
    return st;
}

static void close_air(planet *globe)
{
    dpar_comm_release(globe->comm, globe->memory);
}

/* show copies what the host wrote into `seen` to `air`, and look copies the state back. Here both
 * are the same memory. */
static void show(planet *globe)
{
    (void)globe;
}

static void look(planet *globe)
{
    (void)globe;
}

/* Advances `base` by the tendencies of the state `from`, in n boxes of a block. */
static void compute(planet *globe, const own_block *here, const dpar_box *box, int n, int base,
                    int from, int to, double dt)
{
    const layer *air = &here->air;
    int64_t j;
    int i;
    (void)globe;
    for (i = 0; i < n; i++) {
        const dpar_box *one = &box[i];
        for (j = one->lo[0] - 1; j <= one->hi[0]; j++) {
            diagnose(air, from, one, j, 0, 1);
        }
        for (j = one->lo[0]; j < one->hi[0]; j++) {
            tend(air, from, one, j, 0, 1);
        }
        for (j = one->lo[0]; j < one->hi[0]; j++) {
            advance(air, base, to, dt, one, j, 0, 1);
        }
    }
}
#endif

/* Starts the exchange of a state's three fields. */
static dpar_status begin(planet *globe, int from)
{
    dpar_status st = DPAR_OK;
    int32_t field;
    for (field = 0; field < FIELDS && st == DPAR_OK; field++) {
        st =
            dpar_halo_plan_bind(globe->exchange, field, globe->block->air.state[from][field], NULL);
    }
    return st == DPAR_OK ? dpar_halo_plan_begin(globe->exchange) : st;
}

/* Exchanges the halos of a state's three fields, of all blocks. */
static dpar_status exchange(planet *globe, int from)
{
    static const int first[3] = {0, 5, 8}; /* array of a state's h; u and v are the next two */
    dpar_status st;
    if (globe->blocks != NULL) {
        return dpar_blocks_exchange_many(globe->blocks, globe->array + first[from], FIELDS);
    }
    st = begin(globe, from);
    return st == DPAR_OK ? dpar_halo_plan_end(globe->exchange) : st;
}

/* Runs one stage in all blocks, one after the other, and measures how long each takes. The fastest
 * of several stages counts, because others may have been interrupted. */
static dpar_status stage_blocks(planet *globe, int base, int from, int to, double dt)
{
    const dpar_status st = exchange(globe, from);
    double before = now();
    int32_t n;
    for (n = 0; n < globe->count && st == DPAR_OK; n++) {
        own_block *here = &globe->block[n];
        double after;
        compute(globe, here, &here->own[H], 1, base, from, to, dt);
        after = now();
        here->seconds = after - before < here->seconds ? after - before : here->seconds;
        before = after;
    }
    return st;
}

/* Runs one stage: the cells that do not need the halo during the exchange, then the others. */
static dpar_status stage(planet *globe, int base, int from, int to, double dt)
{
    const own_block *here = globe->block;
    dpar_box core, rim[RIMS];
    dpar_status st;
    int n = 0;
    if (globe->blocks != NULL) {
        return stage_blocks(globe, base, from, to, dt);
    }
    st = begin(globe, from);
    if (st == DPAR_OK && dpar_halo_interior(&globe->points[H], globe->comm->rank, &core)) {
        compute(globe, here, &core, 1, base, from, to, dt);
    }
    if (st == DPAR_OK) {
        st = dpar_halo_plan_end(globe->exchange);
    }
    while (n < RIMS && dpar_halo_boundary(&globe->points[H], globe->comm->rank, n, &rim[n])) {
        n++;
    }
    if (st == DPAR_OK) {
        compute(globe, here, rim, n, base, from, to, dt);
    }
    return st;
}

static dpar_status step(planet *globe)
{
    dpar_status st = stage(globe, 0, 0, 1, globe->dt / 3);
    if (st == DPAR_OK) {
        st = stage(globe, 0, 1, 2, globe->dt / 2);
    }
    return st == DPAR_OK ? stage(globe, 0, 2, 0, globe->dt) : st;
}

/* ---- the cases ------------------------------------------------------------------------------- */

/* The sine of the latitude in the tilted coordinates in which the flow is zonal. */
static double tilted(const planet *globe, double latitude, double longitude)
{
    const double angle = globe->options->alpha * (PI / 180);
    return sine(latitude) * cosine(angle) - cosine(longitude) * cosine(latitude) * sine(angle);
}

/* Height of the surface that balances the flow. */
static double balanced(const planet *globe, double latitude, double longitude)
{
    const double tilt = tilted(globe, latitude, longitude);
    return globe->depth - (RADIUS * OMEGA + globe->wind / 2) * globe->wind * tilt * tilt / GRAVITY;
}

/* Case 5: a cone of 2000 m, 20 degrees around 30 N, 90 W. */
static double mountain(const planet *globe, double latitude, double longitude)
{
    const double y = latitude - PI / 6, x = longitude - 3 * PI / 2, wide = PI / 9;
    const double square = x * x + y * y;
    return globe->options->test > 2 && square < wide * wide ? 2000 * (1 - root(square) / wide) : 0;
}

static double south_of(const planet *globe, int64_t j)
{
    return ((double)j - 0.5 * (double)globe->rows) * globe->size;
}

/* Sets the ground, the rotation and the first state of a block, also in halos. */
static void fill(const planet *globe, const own_block *here)
{
    const double angle = globe->options->alpha * (PI / 180);
    const layer *to = &here->seen;
    int64_t j, i;
    for (j = larger(here->box.lo[0], 0); j < here->box.hi[0] && j <= globe->rows; j++) {
        const double edge = south_of(globe, j), middle = edge + globe->size / 2;
        for (i = here->box.lo[1]; i < here->box.hi[1]; i++) {
            const double west = globe->size * (double)((i + globe->columns) % globe->columns);
            const double centre = west + globe->size / 2;
            const int64_t k = at(to, j, i);
            to->coriolis[k] = 2 * OMEGA * tilted(globe, edge, west);
            to->ground[k] = mountain(globe, middle, centre);
            to->state[0][H][k] = balanced(globe, middle, centre) - to->ground[k];
            to->state[0][U][k] = globe->wind * (cosine(middle) * cosine(angle) +
                                                cosine(west) * sine(middle) * sine(angle));
            to->state[0][V][k] =
                j == 0 || j == globe->rows ? 0 : -globe->wind * sine(centre) * sine(angle);
        }
    }
}

/* Adds row k of part[count][width], which has n numbers, to sum k. */
static void add(dpar_exact *sums, const double *part, int32_t count, int32_t width, int32_t n)
{
    int32_t k;
    for (k = 0; k < count; k++) {
        (void)dpar_exact_add(&sums[k], part + k * width, n, DPAR_F64);
    }
}

enum { MASS, ENERGY, FIRST, SECOND, NORM, NORM2, SUMS };

/* Adds the cells of a block to the sums of `measure`, and raises what is the most: of the error,
 * the height and the negative height. */
static void measure_block(const planet *globe, const own_block *here, dpar_exact *sums,
                          double *most)
{
    enum { PART = 256 };
    double part[SUMS][PART];
    int64_t j, i;
    int32_t parts = 0;
    const layer *seen = &here->seen;
    for (j = here->own[H].lo[0]; j < here->own[H].hi[0]; j++) {
        for (i = here->own[H].lo[1]; i < here->own[H].hi[1]; i++) {
            const int64_t place = at(seen, j, i);
            const double h = seen->state[0][H][place] / globe->depth, w = globe->row[j].width;
            const double B = bernoulli(seen, 0, j, place) / (GRAVITY * globe->depth);
            const double was = balanced(globe, south_of(globe, j) + globe->size / 2,
                                        ((double)i + 0.5) * globe->size) /
                               globe->depth;
            const double surface = seen->state[0][H][place] + seen->ground[place];
            const double off = surface / globe->depth - was, far = off > 0 ? off : -off;
            part[MASS][parts] = w * h;
            part[ENERGY][parts] = w * h * (B - h / 2);
            part[FIRST][parts] = w * far;
            part[SECOND][parts] = w * off * off;
            part[NORM][parts] = w * was;
            part[NORM2][parts] = w * was * was;
            parts++;
            if (parts == PART) {
                add(sums, part[0], SUMS, PART, parts);
                parts = 0;
            }
            most[0] = far / was > most[0] ? far / was : most[0];
            most[1] = surface > most[1] ? surface : most[1];
            most[2] = -surface > most[2] ? -surface : most[2];
        }
    }
    add(sums, part[0], SUMS, PART, parts);
}

/* Computes mass, energy, and the difference of the surface from the beginning, which in case 2 is
 * the error. */
static dpar_status measure(planet *globe, result *found)
{
    double all[SUMS];
    dpar_exact sums[SUMS];
    int32_t k;
    double mine[3] = {0, -1e30, -1e30}, most[3]; /* error, high, -low */
    dpar_status st = exchange(globe, 0);
    if (st == DPAR_OK) {
        look(globe);
    }
    memset(sums, 0, sizeof sums);
    for (k = 0; k < globe->count; k++) {
        measure_block(globe, &globe->block[k], sums, mine);
    }
    if (st == DPAR_OK) {
        st = dpar_exact_all_reduce(globe->comm, sums, SUMS);
    }
    if (st == DPAR_OK) {
        st = dpar_all_reduce(globe->comm, mine, most, 3, DPAR_F64, DPAR_MAX, NULL);
    }
    if (st == DPAR_OK) {
        for (k = 0; k < SUMS; k++) {
            all[k] = dpar_exact_result(&sums[k], DPAR_F64);
        }
        found->mass = all[MASS];
        found->energy = all[ENERGY];
        found->l1 = all[FIRST] / all[NORM];
        found->l2 = root(all[SECOND] / all[NORM2]);
        found->most = most[0];
        found->high = most[1];
        found->low = -most[2];
    }
    return st;
}

/* ---- the grid -------------------------------------------------------------------------------- */

/* How many cells the filter reaches to each side, 2 m, so that its averages over 2 m + 1 cells are
 * as wide as NARROW. */
static int64_t roof(double width)
{
    return width > 0 && width < NARROW ? (int64_t)(NARROW / width / 2 + 0.5) * 2 : 0;
}

/* Sets the scales of the case and the time step: below 1.73, the limit of the stages on the
 * imaginary axis, for gravity waves in both directions and the winds of the case, and a whole
 * number of steps in an hour. */
static void scale(planet *globe, const settings *options)
{
    double fast;
    globe->options = options;
    globe->rows = (int64_t)options->rows;
    globe->columns = 2 * globe->rows;
    globe->size = PI / (double)globe->rows;
    globe->wind = options->test < 5 ? 2 * PI * RADIUS / (12 * 86400.0) : 20;
    globe->depth = options->test < 5 ? 2.94e4 / GRAVITY : 5960;
    fast = (root(GRAVITY * globe->depth) + 2 * globe->wind) * 2 * root(1 + 1 / (NARROW * NARROW));
    globe->per_hour = 1 + (int64_t)(3600 * fast / (1.3 * globe->size * RADIUS));
    globe->dt = 3600.0 / (double)globe->per_hour;
}

/* Computes the circles and the width of the halo. */
static void survey(planet *globe)
{
    const double size = globe->size * RADIUS;
    double wide;
    int64_t j, n, reach = 0;
    for (j = 0; j <= globe->rows; j++) {
        globe->row[j].edge = j == 0 || j == globe->rows ? 0 : cosine(south_of(globe, j));
        globe->row[j].width = j == globe->rows ? 0 : cosine(south_of(globe, j) + globe->size / 2);
        wide = globe->row[j].width < NARROW ? globe->row[j].width / NARROW : 1;
        globe->row[j].damping = globe->options->damping * wide * wide * size * size / globe->dt;
        globe->row[j].near = roof(globe->row[j].width);
        globe->row[j].edge_near =
            roof(globe->row[j].edge); /* at most that of the cells poleward of it */
    }
    for (j = 0; j <= globe->rows; j++) {
        for (n = larger(j - 1, 0); n <= j + 1 && n <= globe->rows; n++) {
            globe->row[j].far = larger(globe->row[j].far, globe->row[n].near);
        }
        reach = larger(reach, globe->row[j].far);
    }
    globe->reach = reach + 1;
}

/* Sets the shape of a block's arrays, once `box` is known. */
static void set_shape(const planet *globe, own_block *here)
{
    here->air.rows = globe->rows;
    here->air.size = globe->size;
    here->air.row = globe->row;
    here->air.pitch = here->box.hi[1] - here->box.lo[1];
    memcpy(here->air.lo, here->box.lo, sizeof here->air.lo);
}

/* Distributes the cells in blocks as even as possible, one per rank. */
static dpar_status cut(planet *globe)
{
    const int64_t extent[2] = {globe->rows, globe->columns};
    dpar_placement placement[2];
    dpar_mesh mesh;
    dpar_halo halo;
    int32_t field;
    own_block *here = globe->block;
    dpar_status st = dpar_mesh_init(&mesh, "south_north west_east", globe->options->parts,
                                    DPAR_ORDER_LAST_FASTEST, globe->comm->size, &globe->why);
    placement[0] = dpar_shard_by(0, DPAR_SPLIT_EVEN, 0);
    placement[1] = dpar_shard_by(1, DPAR_SPLIT_EVEN, 0);
    memset(&halo, 0, sizeof halo);
    if (st == DPAR_OK) {
        st = dpar_layout_init(&halo.grid, &mesh, 2, extent, placement, &globe->why);
    }
    halo.shape = DPAR_STENCIL_BOX;
    halo.low[0] = halo.high[0] = 1;
    halo.low[1] = halo.high[1] = globe->reach;
    halo.periodic = 2; /* dim 1 */
    for (field = 0; field < FIELDS && st == DPAR_OK; field++) {
        halo.points[0] = field == V ? DPAR_HALO_AT_LOW_FACES : DPAR_HALO_AT_CELLS;
        halo.points[1] = field == U ? DPAR_HALO_AT_LOW_FACES : DPAR_HALO_AT_CELLS;
        globe->points[field] = halo;
        st = dpar_halo_check(&halo, &globe->why);
        (void)dpar_halo_owned(&halo, globe->comm->rank, &here->own[field]);
    }
    (void)dpar_halo_box(&globe->points[H], globe->comm->rank, &here->box);
    here->box.hi[0]++; /* faces north of the last cells */
    set_shape(globe, here);
    return st;
}

/* Allocates memory and plans one exchange for all three fields. */
static dpar_status plan(planet *globe)
{
    dpar_halo_field field[FIELDS];
    dpar_halo_plan_desc options;
    const own_block *here = globe->block;
    int n;
    dpar_status st = open_air(globe);
    memset(field, 0, sizeof field);
    memset(&options, 0, sizeof options);
    options.field = field;
    options.field_count = FIELDS;
    for (n = 0; n < FIELDS; n++) {
        field[n].halo = &globe->points[n];
        field[n].type = DPAR_F64;
        field[n].data = here->air.state[0][n];
        field[n].mem = globe->comm->mem; /* packs in a device's memory, if that is used */
        field[n].stride[0] = here->air.pitch;
        field[n].stride[1] = 1;
        field[n].first[0] = here->own[n].lo[0] - here->box.lo[0];
        field[n].first[1] = here->own[n].lo[1] - here->box.lo[1];
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpar_halo_plan_make(globe->comm, &options, &globe->exchange, &globe->why);
}

/* ---- many blocks per rank -------------------------------------------------------------------- */

/* True, after a message, if st is an error. */
static int failed(const planet *globe, dpar_status st)
{
    if (st != DPAR_OK) {
        fprintf(stderr, "shallow_water: rank %d: %s: %s\n", (int)globe->comm->rank,
                dpar_status_text(st),
                globe->why.text[0] != 0 ? globe->why.text : globe->comm->why.text);
    }
    return st != DPAR_OK;
}

/* True if `bad` is set on any rank. Collective. */
static int anyone(dpar_comm *comm, int bad)
{
    int32_t mine = bad, all = 0;
    return dpar_all_reduce(comm, &mine, &all, 1, DPAR_I32, DPAR_MAX, NULL) != DPAR_OK || all != 0;
}

/* Sets `block` from the blocks that this rank owns now. A cell owns the faces to the south and west
 * of it, so that all arrays have the shape of cells. The faces at the northern pole are in the halo
 * of the last cells, where they stay 0. Returns 1, after a message, if memory is missing on any
 * rank. Collective. */
static int find_blocks(planet *globe)
{
    const dpar_blocks *blocks = globe->blocks;
    const int64_t halo[2] = {1, globe->reach};
    const int64_t pitch = blocks->size[1] + 2 * globe->reach;
    const int64_t size = (blocks->size[0] + 2) * pitch;
    int32_t n, k, dim;
    free(globe->block);
    free(globe->scratch);
    globe->block = (own_block *)calloc((size_t)blocks->count + 1, sizeof *globe->block);
    globe->scratch = (double *)calloc((size_t)((ARRAYS - LASTING) * size), sizeof(double));
    globe->count = blocks->count;
    if (anyone(globe->comm, globe->block == NULL || globe->scratch == NULL)) {
        return complain("no memory for the blocks", NULL) != 0;
    }
    for (n = 0; n < globe->count; n++) {
        own_block *here = &globe->block[n];
        dpar_box *own = here->own;
        for (dim = 0; dim < 2; dim++) {
            const int64_t first = blocks->block[n].first[dim];
            own[H].lo[dim] = first;
            own[H].hi[dim] = first + blocks->block[n].count[dim];
            here->box.lo[dim] = first - halo[dim];
            here->box.hi[dim] = first + blocks->size[dim] + halo[dim];
        }
        own[H].dims = here->box.dims = 2;
        own[U] = own[V] = own[H];
        own[V].hi[0] += own[H].hi[0] == globe->rows ? 1 : 0;
        set_shape(globe, here);
        for (k = 0; k < LASTING; k++) {
            *address(&here->air, k) =
                (double *)globe->array[k]->block[n] - at(&here->air, own[H].lo[0], own[H].lo[1]);
        }
        for (; k < ARRAYS; k++) {
            *address(&here->air, k) = globe->scratch + (k - LASTING) * size;
        }
        here->seen = here->air;
        here->seconds = 1e9;
    }
    return 0;
}

/* Cuts the grid into blocks of --blocks. */
static int cut_blocks(planet *globe)
{
    dpar_blocks_desc desc;
    int32_t k;
    memset(&desc, 0, sizeof desc);
    desc.dims = 2;
    desc.cells[0] = globe->rows;
    desc.cells[1] = globe->columns;
    desc.block[0] = globe->options->size[0];
    desc.block[1] = globe->options->size[1];
    desc.halo = 1;
    desc.halo_low[1] = desc.halo_high[1] = globe->reach;
    desc.periodic[1] = 1;
    if (failed(globe, dpar_blocks_make(globe->comm, &desc, &globe->blocks, &globe->why))) {
        return 1;
    }
    for (k = 0; k < LASTING; k++) {
        if (failed(globe, dpar_blocks_array_make(globe->blocks, DPAR_F64, NULL, &globe->array[k],
                                                 &globe->why))) {
            return 1;
        }
    }
    return find_blocks(globe);
}

/* Moves blocks to other ranks, by the seconds that they take, if that pays in the steps that are
 * left. Returns 1, after a message, on failure. */
static int balance(planet *globe, int64_t left)
{
    dpar_blocks_move_desc desc;
    dpar_blocks_rebalance_result found;
    double *seconds = (double *)malloc(((size_t)globe->count + 1) * sizeof *seconds);
    dpar_status st;
    int32_t n;
    if (anyone(globe->comm, seconds == NULL)) {
        free(seconds);
        return complain("no memory for the weights of the blocks", NULL) != 0;
    }
    for (n = 0; n < globe->count; n++) {
        seconds[n] = globe->block[n].seconds;
    }
    memset(&desc, 0, sizeof desc);
    desc.weight = seconds;
    desc.steps = left;
    desc.seconds_per_weight = 3;  /* stages of a step */
    desc.seconds_per_byte = 1e-9; /* a copy to another rank and its memory */
    desc.seconds = 0.002;         /* of new plans */
    desc.threshold = 0.02;        /* less is not worth it, because times vary */
    st = dpar_blocks_move(globe->blocks, &desc, &found, &globe->why);
    free(seconds);
    if (failed(globe, st)) {
        return 1;
    }
    if (globe->comm->rank == 0 && !globe->options->table) {
        printf("after %d steps: imbalance %.2f, ", (int)TRIAL, found.before.imbalance);
        if (found.pays) {
            printf("%.2f with %lld of %lld blocks on another rank\n", found.after.imbalance,
                   (long long)found.blocks_moved, (long long)found.after.blocks);
        } else {
            printf("moving blocks does not pay\n");
        }
    }
    return find_blocks(globe);
}

/* ---- files: all ranks write their parts ------------------------------------------------------ */

/* True if the name is of something that exists and is no regular file. Opening a pipe could wait
 * for ever, and writing could destroy a device's data. */
static int special(const char *name)
{
    struct stat there;
    return stat(name, &there) == 0 && !S_ISREG(there.st_mode);
}

/* True, with errno, if the file cannot be created. Removes what the trial created. */
static int cannot_create(const char *name)
{
    char part[1100];
    FILE *file;
    long bytes;
    snprintf(part, sizeof part, "%s.part", name);
    if (special(part)) {
        errno = EINVAL;
        return 1;
    }
    file = fopen(part, "ab");
    if (file == NULL) {
        return 1;
    }
    bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 1;
    fclose(file);
    if (bytes == 0) {
        (void)remove(part);
    }
    return 0;
}

/* Creates a file with its head, under another name until all ranks have written. NULL on failure.
 * Collective. */
static FILE *create(planet *globe, const char *name, const void *head, size_t bytes)
{
    char part[1100];
    FILE *file = NULL;
    snprintf(part, sizeof part, "%s.part", name);
    globe->trouble = special(name) || special(part) ? "it exists and is no regular file" : NULL;
    if (globe->comm->rank == 0 && globe->trouble == NULL) {
        file = fopen(part, "wb");
        globe->trouble = file == NULL ? strerror(errno) : NULL;
        if (file != NULL && (fwrite(head, 1, bytes, file) != bytes || fflush(file) != 0)) {
            globe->trouble = strerror(errno);
            fclose(file);
            (void)remove(part);
            file = NULL;
        }
    }
    if (anyone(globe->comm, globe->comm->rank == 0 && file == NULL)) {
        return NULL;
    }
    return globe->comm->rank == 0 ? file : fopen(part, "r+b");
}

/* Closes a file, and renames it if all ranks have written their parts. Returns 1, after a message,
 * on failure. Collective. */
static int finish(planet *globe, FILE *file, int bad, const char *name)
{
    char part[1100];
    const int mine = file == NULL || fclose(file) != 0 || bad;
    snprintf(part, sizeof part, "%s.part", name);
    if (mine && globe->trouble == NULL) {
        globe->trouble = strerror(errno);
    }
    bad = anyone(globe->comm, mine);
    if (globe->comm->rank == 0 && (bad || rename(part, name) != 0)) {
        const char *another = bad ? "another rank failed to write its part" : strerror(errno);
        fprintf(stderr, "shallow_water: '%s' cannot be written: %s\n", name,
                globe->trouble != NULL ? globe->trouble : another);
        if (file != NULL) {
            (void)remove(part);
        }
        bad = 1;
    }
    return anyone(globe->comm, bad);
}

/* Reads or writes a block's rows of all fields at their places in a checkpoint. Returns 1 on
 * failure. */
static int move_rows(const planet *globe, const own_block *here, FILE *file, int writes)
{
    int64_t j;
    int32_t field;
    int bad = 0;
    for (field = 0; field < FIELDS; field++) {
        const dpar_box *own = &here->own[field];
        const size_t n = (size_t)(own->hi[1] - own->lo[1]);
        for (j = own->lo[0]; j < own->hi[0] && !bad; j++) {
            const int64_t first = HEAD + (field * globe->rows + j) * globe->columns + own->lo[1];
            double *row = here->seen.state[0][field] + at(&here->seen, j, own->lo[1]);
            bad = fseek(file, (long)(8 * first), SEEK_SET) != 0 ||
                  (writes ? fwrite(row, 8, n, file) : fread(row, 8, n, file)) != n;
        }
    }
    return bad;
}

/* Does this for all blocks of this rank. */
static int move_blocks(const planet *globe, FILE *file, int writes)
{
    int bad = file == NULL;
    int32_t n;
    for (n = 0; n < globe->count && !bad; n++) {
        bad = move_rows(globe, &globe->block[n], file, writes);
    }
    return bad;
}

/* A hash of 8 bytes and their place. The sum over a state is a checksum that does not depend on the
 * order. */
static uint64_t mix(const void *number, int64_t place)
{
    uint64_t hash;
    memcpy(&hash, number, 8);
    hash ^= (uint64_t)(place + 1) * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ (hash >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return (hash ^ (hash >> 29)) * UINT64_C(0xd6e8feb86659fd93);
}

static uint64_t block_checksum(const planet *globe, const own_block *here)
{
    uint64_t sum = 0;
    int64_t j, i;
    int32_t field;
    for (field = 0; field < FIELDS; field++) {
        const dpar_box *own = &here->own[field];
        for (j = own->lo[0]; j < own->hi[0]; j++) {
            for (i = own->lo[1]; i < own->hi[1]; i++) {
                sum += mix(here->seen.state[0][field] + at(&here->seen, j, i),
                           (field * globe->rows + j) * globe->columns + i);
            }
        }
    }
    return sum;
}

static uint64_t checksum(planet *globe)
{
    uint64_t sum = 0, all = 0;
    int32_t n;
    for (n = 0; n < globe->count; n++) {
        sum += block_checksum(globe, &globe->block[n]);
    }
    (void)dpar_all_reduce(globe->comm, &sum, &all, 1, DPAR_I64, DPAR_SUM, NULL);
    return all;
}

/* Sets the last number of the head to the checksum of the head and of all fields. */
static void seal(int64_t *head, uint64_t sum)
{
    int n;
    for (n = 0; n < HEAD - 1; n++) {
        sum += mix(head + n, -2 - n);
    }
    memcpy(head + n, &sum, 8);
}

static int save(planet *globe, int64_t step_now, uint64_t sum)
{
    int64_t head[HEAD] = {0, 1, 0, 0, 0, 0, 0, 0}; /* the 1 reveals another byte order */
    FILE *file;
    memcpy(head, "dpar-sw2", 8);
    head[2] = (int64_t)globe->options->test;
    head[3] = globe->rows;
    head[4] = step_now;
    memcpy(head + 5, &globe->options->alpha, 8);
    memcpy(head + 6, &globe->options->damping, 8);
    seal(head, sum);
    file = create(globe, globe->options->save, head, sizeof head);
    return finish(globe, file, move_blocks(globe, file, 1), globe->options->save);
}

/* Reads the head of a checkpoint into the settings, and all numbers to check that it is whole.
 * Returns 2 after a message, otherwise 0. */
static int inspect(settings *options, FILE *file)
{
    int64_t head[HEAD], number, sealed, n, points;
    uint64_t sum = 0;
    char text[160];
    if (fread(head, 8, HEAD, file) != HEAD || memcmp(head, "dpar-sw2", 8) != 0 || head[1] != 1) {
        return complain("not a checkpoint of this program and byte order:", options->resume);
    }
    points = head[3] >= 8 && head[3] <= 4096 ? 2 * head[3] * (3 * head[3] + 1) : 0;
    for (n = 0; n < points && fread(&number, 8, 1, file) == 1; n++) {
        sum += mix(&number, n);
    }
    sealed = head[HEAD - 1];
    seal(head, sum);
    if (n < points || sealed != head[HEAD - 1] || fgetc(file) != EOF) {
        snprintf(text, sizeof text, "truncated: %lld of %lld numbers are in", (long long)n,
                 (long long)points);
        return complain(n < points ? text : "damaged: the checksum differs in", options->resume);
    }
    options->test = (double)head[2];
    options->rows = (double)head[3];
    options->step = head[4];
    memcpy(&options->alpha, head + 5, 8);
    memcpy(&options->damping, head + 6, 8);
    return 0;
}

/* The colour of a cell: the height of the surface, with every other 50 m darker. The mountain is
 * darker, too. */
static void colour(const planet *globe, const own_block *here, int64_t k, unsigned char *rgb)
{
    static const double stop[5][3] = {
        {38, 24, 96}, {36, 110, 180}, {110, 200, 190}, {250, 230, 140}, {200, 60, 40}};
    const double low = globe->options->test > 2 ? 5000 : 1000;
    const double high = globe->options->test > 2 ? 6000 : 3000;
    const double height = here->seen.state[0][H][k] + here->seen.ground[k];
    const double scaled = (height - low) / (high - low) * 4;
    const double below = scaled < 3.999 ? scaled : 3.999;
    const double within = scaled > 0 ? below : 0;
    const int n = (int)within, dark = (int)(within * (high - low) / 200) % 2;
    int channel;
    for (channel = 0; channel < 3; channel++) {
        const double mixed =
            stop[n][channel] + (within - n) * (stop[n + 1][channel] - stop[n][channel]);
        rgb[channel] =
            (unsigned char)((dark ? 0.9 : 1) * (1 - here->seen.ground[k] / 4000) * mixed);
    }
}

/* Writes a block's part of a picture, behind `head` bytes. Returns 1 on failure. */
static int paint_block(const planet *globe, const own_block *here, FILE *file, int64_t head,
                       int64_t zoom)
{
    const dpar_box *own = &here->own[H];
    const int64_t wide = globe->columns * zoom, pixels = zoom * (own->hi[1] - own->lo[1]);
    unsigned char *line = (unsigned char *)malloc((size_t)(3 * pixels));
    int64_t j, n;
    int bad = line == NULL;
    for (j = own->lo[0] * zoom; j < own->hi[0] * zoom && !bad; j++) {
        const int64_t first = (globe->rows * zoom - 1 - j) * wide + own->lo[1] * zoom;
        for (n = 0; n < pixels; n++) {
            colour(globe, here, at(&here->seen, j / zoom, own->lo[1] + n / zoom), line + 3 * n);
        }
        bad = fseek(file, (long)(head + 3 * first), SEEK_SET) != 0 ||
              fwrite(line, 3, (size_t)pixels, file) != (size_t)pixels;
    }
    free(line);
    return bad;
}

/* Writes a picture, with north at the top. All ranks write their parts. */
static int paint(planet *globe, int64_t hour)
{
    const int64_t zoom = larger(720 / globe->columns, 1);
    char name[1050], head[64];
    int32_t n;
    int bad;
    FILE *file;
    snprintf(name, sizeof name, "%s%04d.ppm", globe->options->frames, (int)hour);
    snprintf(head, sizeof head, "P6\n%d %d\n255\n", (int)(globe->columns * zoom),
             (int)(globe->rows * zoom));
    file = create(globe, name, head, strlen(head));
    bad = file == NULL;
    for (n = 0; n < globe->count && !bad; n++) {
        bad = paint_block(globe, &globe->block[n], file, (int64_t)strlen(head), zoom);
    }
    return finish(globe, file, bad, name);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Updates the progress line on stderr, a few times a second. */
static void progress(const planet *globe, int64_t n, int64_t all, double began)
{
    static double last;
    const double seconds = now(), each = (seconds - began) / (double)(n - globe->options->step);
    const double left = each * (double)(all - n);
    if (seconds - last > 0.3 || n == all) {
        last = seconds;
        fprintf(stderr, "\r%5.1f %%, day %.2f of %.2f, %.2f Mcells/s, %d:%02d left %s",
                100 * (double)n / (double)all, (double)n * globe->dt / 86400, globe->options->days,
                (double)(globe->rows * globe->columns) / each / 1e6, (int)left / 60, (int)left % 60,
                n == all ? "\n" : "");
    }
}

/* Prints and writes everything that is due now. Returns 1, after a message, on failure. */
static int report(planet *globe, const result *first, result *found, int64_t n)
{
    uint64_t sum;
    if (failed(globe, measure(globe, found))) {
        return 1;
    }
    sum = checksum(globe);
    found->mass = found->mass / first->mass - 1;
    found->energy = found->energy / first->energy - 1;
    if (!(found->mass > -1e-9 && found->mass < 1e-9)) {
        return globe->comm->rank == 0 ? complain("the flow has blown up: raise --damping", NULL)
                                      : 1;
    }
    if (globe->comm->rank == 0 && !globe->options->table) {
        printf("day %6.2f: mass %+.1e, energy %+.1e, ", (double)n * globe->dt / 86400, found->mass,
               found->energy);
        if (globe->options->test < 5) {
            printf("error %.2e %.2e %.2e, ", found->l1, found->l2, found->most);
        }
        printf("surface %.0f to %.0f m, state %016llx\n", found->low, found->high,
               (unsigned long long)sum);
        fflush(stdout);
    }
    return (globe->options->save != NULL && save(globe, n, sum)) ||
           (globe->options->frames != NULL && paint(globe, n / globe->per_hour));
}

/* Prints what is computed and how it is distributed. */
static void announce(const planet *globe, int64_t steps)
{
    const int32_t *parts = globe->blocks != NULL ? globe->blocks->grid : globe->options->parts;
    char ranks[64] = "";
    if (globe->blocks != NULL) {
        snprintf(ranks, sizeof ranks, " blocks of %d x %d on %d", (int)globe->blocks->size[0],
                 (int)globe->blocks->size[1], (int)globe->comm->size);
    }
    printf("case %d, %d x %d cells %s %d x %d%s rank%s, %lld steps of %.0f s\n",
           (int)globe->options->test, (int)globe->rows, (int)globe->columns,
           globe->blocks != NULL ? "in" : "on", (int)parts[0], (int)parts[1], ranks,
           globe->blocks != NULL ? options_plural(globe->comm->size, "s") : "s", (long long)steps,
           globe->dt);
}

/* Runs from the first state, or that of the checkpoint, to the end. */
static int go(planet *globe, result *found)
{
    const int64_t all = (int64_t)(globe->options->days * 86400 / globe->dt + 0.5);
    const int speaks = globe->comm->rank == 0 && !globe->options->table;
    int64_t n = globe->options->step;
    int32_t k;
    double began, best = 1e9;
    result first;
    FILE *file = globe->options->resume != NULL ? fopen(globe->options->resume, "rb") : NULL;
    for (k = 0; k < globe->count; k++) {
        fill(globe, &globe->block[k]);
    }
    show(globe);
    if (failed(globe, measure(globe, &first))) {
        return 1;
    }
    if (anyone(globe->comm, globe->options->resume != NULL && move_blocks(globe, file, 0))) {
        return globe->comm->rank == 0
                   ? complain("the checkpoint cannot be read:", globe->options->resume)
                   : 1;
    }
    show(globe);
    if (file != NULL) {
        fclose(file);
    }
    if (speaks) {
        announce(globe, all - n);
    }
    if (globe->options->frames != NULL && n == 0 && paint(globe, 0)) {
        return 1;
    }
    began = now();
    for (;; n++) {
        if (n > globe->options->step && speaks && globe->options->progress) {
            progress(globe, n, all, began);
        }
        if (n == all || (globe->options->every > 0 && n > globe->options->step &&
                         n % ((int64_t)globe->options->every * globe->per_hour) == 0)) {
            if (report(globe, &first, found, n)) {
                return 1;
            }
        }
        if (n == all) {
            break;
        }
        {
            const double before = now();
            double took;
            if (failed(globe, step(globe))) {
                return 1;
            }
            took = now() - before;
            best = took < best ? took : best;
        }
        if (globe->blocks != NULL && n + 1 == globe->options->step + TRIAL &&
            balance(globe, all - n - 1)) {
            return 1;
        }
    }
    if (speaks && all > globe->options->step) {
        printf("%.2f Mcells/s, best step %.4g s\n",
               (double)(globe->rows * globe->columns * (all - globe->options->step)) /
                   (now() - began) / 1e6,
               best);
    }
    return 0;
}

/* Gives one block to each rank. Returns 1, after a message, on failure. */
static int cut_whole(planet *globe)
{
    globe->count = 1;
    globe->block = (own_block *)calloc(1, sizeof *globe->block);
    if (anyone(globe->comm, globe->block == NULL)) {
        free(globe->block);
        globe->block = NULL;
        return complain("no memory for the block", NULL) != 0;
    }
    return failed(globe, cut(globe)) || failed(globe, plan(globe));
}

static int simulate(dpar_comm *comm, const settings *options, result *found)
{
    planet globe;
    int bad;
    memset(&globe, 0, sizeof globe);
    globe.comm = comm;
    scale(&globe, options);
    globe.row = (circle *)calloc((size_t)globe.rows + 1, sizeof *globe.row);
    if (anyone(comm, globe.row == NULL)) {
        free(globe.row);
        return complain("no memory for the circles of cells", NULL);
    }
    survey(&globe);
    bad = options->blocks != NULL ? cut_blocks(&globe) : cut_whole(&globe);
    bad = bad || go(&globe, found);
    if (!bad) {
        bad = failed(&globe, globe.blocks != NULL ? dpar_blocks_free(globe.blocks)
                                                  : dpar_halo_plan_free(globe.exchange));
    }
    if (options->blocks == NULL && globe.block != NULL) {
        close_air(&globe);
    }
    free(globe.scratch);
    free(globe.block);
    free(globe.row);
    return bad;
}

/* Runs case 2 on three grids, and prints how fast the error falls. */
static int table(dpar_comm *comm, settings options)
{
    const double last = options.rows;
    result found, before;
    memset(&before, 0, sizeof before);
    if (comm->rank == 0) {
        printf("flow at %g degrees to the equator, after %g days\n"
               "      cells  error: l1        l2       max  order     mass   energy\n",
               options.alpha, options.days);
    }
    for (options.rows = last / 4; options.rows <= last; options.rows *= 2) {
        if (simulate(comm, &options, &found)) {
            return 1;
        }
        if (comm->rank == 0) {
            printf("%4d x %4d   %.2e  %.2e  %.2e  ", (int)options.rows, (int)(2 * options.rows),
                   found.l1, found.l2, found.most);
            if (before.l2 > found.l2) {
                printf("%5.2f", log_2(before.l2 / found.l2));
            }
            printf("%*s %+.1e %+.1e\n", before.l2 > found.l2 ? 0 : 5, "", found.mass, found.energy);
            fflush(stdout);
        }
        before = found;
    }
    return 0;
}

static int planet_main(dpar_comm *comm, void *arg)
{
    const settings *options = (const settings *)arg;
    result found;
    const int bad = options->table ? table(comm, *options) : simulate(comm, options, &found);
    if (comm->rank == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        fprintf(stderr, "shallow_water: the results could not be written to standard output\n");
        return 1;
    }
    return bad;
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* Reads the command line. Returns -1 to continue, otherwise the exit code. */
static int read_words(int argc, char **argv, settings *options)
{
    const option list[] = {{"--case", OPTION_WHOLE, &options->test, 2, 5},
                           {"--rows", OPTION_WHOLE, &options->rows, 8, 4096},
                           {"--ranks", OPTION_WHOLE, &options->ranks, 1, 64},
                           {"--every", OPTION_WHOLE, &options->every, 1, 240000},
                           {"--alpha", OPTION_REAL, &options->alpha, 0, 90},
                           {"--days", OPTION_REAL, &options->days, 0.001, 10000},
                           {"--damping", OPTION_REAL, &options->damping, 0, 0.1},
                           {"--grid", OPTION_WORD, &options->grid, 0, 0},
                           {"--blocks", OPTION_WORD, &options->blocks, 0, 0},
                           {"--frames", OPTION_WORD, &options->frames, 0, 0},
                           {"--save", OPTION_WORD, &options->save, 0, 0},
                           {"--resume", OPTION_WORD, &options->resume, 0, 0},
                           {"--table", OPTION_FLAG, &options->table, 0, 0},
                           {"--progress", OPTION_FLAG, &options->progress, 0, 0}};
    return options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
}

/* Checks the options, together with those of the checkpoint. Returns 2 after a message, otherwise
 * 0. */
static int settle(settings *options)
{
    FILE *file;
    planet globe;
    if (options->resume != NULL && special(options->resume)) {
        return complain("--resume takes a regular file, not", options->resume);
    }
    if (options->save != NULL && special(options->save)) {
        return complain("--save takes a regular file, not", options->save);
    }
    if (options->save != NULL && cannot_create(options->save)) {
        return complain(errno == EINVAL ? "--save: it exists and is no regular file:"
                                        : strerror(errno),
                        options->save);
    }
    file = options->resume != NULL ? fopen(options->resume, "rb") : NULL;
    if (options->resume != NULL && (options->test > 0 || options->rows > 0 || options->alpha >= 0 ||
                                    options->damping >= 0 || options->table)) {
        return complain("--resume takes --case, --rows, --alpha and --damping from the file, and "
                        "allows no --table",
                        NULL);
    }
    if (options->resume != NULL && (file == NULL || inspect(options, file))) {
        return file == NULL ? complain(strerror(errno), options->resume) : 2;
    }
    options->test = options->test > 0 ? options->test : 2;
    options->rows = options->rows > 0 ? options->rows : 64;
    options->alpha = options->alpha > 0 ? options->alpha : 0;
    options->damping = options->damping >= 0 ? options->damping : 0.05;
    if (file != NULL) {
        fclose(file);
    }
    if (options->test > 2 && (options->test < 5 || options->table)) {
        return complain(options->table ? "--table needs --case 2" : "--case takes 2 or 5", NULL);
    }
    if (options->table && ((int)options->rows % 4 != 0 || options->rows < 32)) {
        return complain("--table halves --rows twice: it must be 32 or more, and divisible by 4",
                        NULL);
    }
    if (options->table &&
        (options->save != NULL || options->frames != NULL || options->every > 0)) {
        return complain("--table allows no --save, --frames or --every", NULL);
    }
    scale(&globe, options);
    if ((double)options->step > options->days * 86400 / globe.dt) {
        return complain("--days ends before the checkpoint: raise it", NULL);
    }
    return 0;
}

/* Reads the size of the blocks of --blocks. Returns 2 after a message, otherwise 0. */
static int divide_blocks(settings *options)
{
    int a = 0, b = 0, end = 0;
    if (options->grid != NULL) {
        return complain("--blocks allows no --grid", NULL);
    }
    if (sscanf(options->blocks, "%4dx%4d%n", &a, &b, &end) != 2 || options->blocks[end] != 0 ||
        a < 1 || b < 1) {
        return complain("--blocks takes AxB, rows and columns of a block, not", options->blocks);
    }
    options->size[0] = a;
    options->size[1] = b;
    return 0;
}

/* Divides the grid into blocks for so many ranks: as --grid says, or with the least to exchange.
 * Returns 2 after a message, otherwise 0. */
static int divide(settings *options, int32_t ranks)
{
    const int64_t rows = (int64_t)(options->table ? options->rows / 4 : options->rows);
    dpar_cart_choose_desc grid;
    dpar_why why;
    int a = 0, b = 0, end = 0;
    memset(&grid, 0, sizeof grid);
    grid.ranks = ranks;
    grid.dims = 2;
    grid.cells[0] = rows;
    grid.cells[1] = 2 * rows;
    grid.weight[0] = 1; /* widths of the halos */
    grid.weight[1] = roof(sine(PI / 2 / options->rows)) + 1;
    grid.periodic = 2;
    if (options->blocks != NULL) {
        return divide_blocks(options);
    }
    if (options->grid != NULL && (sscanf(options->grid, "%2dx%2d%n", &a, &b, &end) != 2 ||
                                  options->grid[end] != 0 || a < 1 || b < 1 || a * b != ranks)) {
        return complain("--grid takes AxB with A times B ranks, not", options->grid);
    }
    options->parts[0] = a;
    options->parts[1] = b;
    if (dpar_cart_choose_parts(&grid, options->parts, NULL, &why) != DPAR_OK) {
        return complain(why.text, NULL);
    }
    return 0;
}

static settings defaults(void)
{
    settings options;
    memset(&options, 0, sizeof options);
    options.alpha = options.damping = -1;
    options.days = 5;
    options.progress = isatty(2);
    return options;
}

/* Starts the ranks, or runs on those of a launcher. */
#ifdef ON_GPU
static int run(settings *s);
static int launched(void);

int main(int argc, char **argv)
{
    settings s = defaults();
    int code;
    options_quiet = launched();
    code = read_words(argc, argv, &s);
    if (code >= 0) {
        return code;
    }
    return settle(&s) != 0 ? 2 : run(&s);
}
#else
static int reads(int argc, char **argv, int *ranks, void *at)
{
    settings *options = (settings *)at;
    int code = read_words(argc, argv, options);
    if (code < 0) {
        code = start_ranks(ranks, (int)options->ranks);
    }
    if (code >= 0) {
        return code;
    }
    *ranks = *ranks > 0 ? *ranks : 1;
    return settle(options) || divide(options, *ranks) ? 2 : -1;
}

int main(int argc, char **argv)
{
    settings options = defaults();
    return start(argc, argv, reads, planet_main, &options);
}
#endif
