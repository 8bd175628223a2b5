/* SPDX-License-Identifier: MIT-0 */
/* fem - finite elements on a mesh that nobody has put in order: linear tetrahedra, Poisson's
 * equation on a cube, conjugate gradients, on any number of ranks. The exact solution is known; the
 * table shows that the error falls with the square of the cells' width.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. apps/fem.c -o fem
 *   ./fem --ranks 4
 *
 * and over MPI:
 *
 *   mpicc -O2 -DUSE_MPI -DDPAR_IMPLEMENTATION -I. apps/fem.c -o fem
 *   mpirun -np 4 ./fem
 *
 * The mesh comes as a file has it: rank r reads the r-th part of the nodes (numbers in a row, with
 * coordinates) and the r-th part of the elements (four node numbers each). Numbers are dealt out
 * like cards: what one rank reads lies all over the cube. From there it takes these steps, each a
 * call or two:
 *
 *   fetch      corners' coordinates from the ranks that have read them: dpar_points_make,
 *              dpar_points_exchange_many
 *   partition  elements along a curve, by their centres: dpar_points_partition
 *   move       nodes and elements to their new owners, with corners renumbered:
 *              dpar_points_migration_make
 *   plan       the exchanges from now on: dpar_points_make
 *   assemble   the matrix of own elements. Rows of ghosts are kept here, too, because a product is
 *              a sum over all ranks that have the node: dpar_points_reduce_many,
 *              dpar_points_exchange_many
 *   solve      one such sum and two all-reduces an iteration. All vectors include their ghosts, and
 *              every rank computes the same for a copy as its owner does
 *
 * What is the same on any number of ranks: the mesh, and all results but for rounding. Sums at
 * nodes between ranks, and dot products, are added in another order; the error differs by 1e-7 of
 * itself at most, the number of iterations by one or two. With one number of ranks all bits are the
 * same in every run.
 *
 * Exit code: 0 second order, 1 not, or an error, 2 bad input (one sentence on stderr). */
#include "dpar_cost.h"
#include "dpar_points.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char program[] = "fem";
static const char help[] =
    "fem: finite elements on an unstructured mesh of a cube, domain-parallel\n"
    "\n"
    "  fem [--cells N] [--meshes K] [--tolerance T] [--traffic] [--ranks N]\n"
    "  mpirun -np N fem ...    built with -DUSE_MPI\n"
    "\n"
    "  --cells      cells along an edge of the finest mesh, each of six tetrahedra\n"
    "               (default 32; 4 to 256)\n"
    "  --meshes     so many meshes, each with half the cells of the next (default 4)\n"
    "  --tolerance  of the residual, times the first (default 1e-11)\n"
    "  --traffic    who sends what to whom on the finest mesh, how long an exchange\n"
    "               takes, and what the planner's formula says\n"
    "  --ranks      1 to 64 (default 1)\n"
    "\n"
    "Prints a line a mesh: nodes, tetrahedra, the share of ghosts, the most elements of a\n"
    "rank times ranks over all of them, iterations, error in L2, its order, seconds.\n"
    "Exit code: 0 the last order is 1.75 or more, 1 it is not, or an error, 2 bad input\n"
    "\n"
    "examples\n"
    "  fem\n"
    "  fem --cells 64 --ranks 4 --traffic\n"
    "  mpirun -np 8 fem --cells 128 --meshes 3\n";

#include "commands/options.h"

#include "apps/start.h"

enum { CORNERS = 4, RANKS = 64, MESHES = 7 };

typedef struct request {
    int cells, meshes, ranks, traffic;
    double tolerance;
} request;

/* One mesh, as this rank has it. Local nodes: own ones, then ghosts. */
typedef struct fem {
    const request *q;
    dpar_comm *c;
    int64_t n, nodes, elements; /* cells along an edge; of all ranks */
    /* as it was read: numbers in a row */
    int64_t node_first, node_count, element_first, element_count;
    double *read_xyz; /* [node_count][3] */
    int64_t *read;    /* [element_count][CORNERS] node numbers */
    /* as it is computed with */
    dpar_points_migration *mesh;
    dpar_points *p;
    int64_t own, local; /* nodes; with ghosts */
    double *xyz;        /* [local][3] */
    int64_t *begin;     /* [local + 1] matrix by rows, of own elements alone */
    int32_t *column;
    double *value;
    double *x, *b, *diagonal, *r, *z, *y; /* [local] */
    unsigned char *fixed;                 /* [local] on the cube's surface: x is known */
    int32_t iterations;
    double began, done, all; /* for the progress line */
    dpar_status st;          /* the first failure: after it no rank talks any more */
    dpar_why why;
} fem;

/* ---- the problem: - laplace u = f in the cube, u = exact on its surface ---------------------- */

static double exact(const double *p)
{
    const double x = p[0], y = p[1], z = p[2];
    return 16.0 * (x - x * x * x) * (y - y * y) * (2.0 * z - 3.0 * z * z + z * z * z) + x * y -
           0.5 * z;
}

static double source(const double *p)
{
    const double x = p[0], y = p[1], z = p[2];
    const double a = x - x * x * x, b = y - y * y, c = 2.0 * z - 3.0 * z * z + z * z * z;
    return 16.0 * (6.0 * x * b * c + 2.0 * a * c + a * b * (6.0 - 6.0 * z));
}

/* Newton's square root: no -lm. */
static double root_of(double a)
{
    double r = a > 1.0 ? a : 1.0;
    int i;
    for (i = 0; i < 80 && a > 0.0; i++) {
        r = 0.5 * (r + a / r);
    }
    return a > 0.0 ? r : 0.0;
}

/* ---- the file: a mesh whose numbers say nothing about positions ------------------------------ */

static int64_t common(int64_t a, int64_t b)
{
    return b == 0 ? a : common(b, a % b);
}

/* A step, near the golden section of n, with which one visits all of 0 .. n - 1, far apart each
 * time. */
static int64_t stride_of(int64_t n)
{
    int64_t step = (int64_t)(0.6180339887 * (double)n) + 1;
    while (common(step, n) != 1) {
        step++;
    }
    return step;
}

/* The number for which number * stride = place mod n, by Euclid's algorithm. */
static int64_t unstride(int64_t place, int64_t stride, int64_t n)
{
    int64_t a = stride % n, b = n, s = 1, t = 0;
    while (a > 1) {
        const int64_t quotient = a / b;
        int64_t swap = a % b;
        a = b;
        b = swap;
        swap = s - quotient * t;
        s = t;
        t = swap;
    }
    return n == 1 ? 0 : place * ((s % n + n) % n) % n;
}

/* A pseudo-random value from -0.5 to 0.5 that depends only on i (splitmix64). */
static double chance(int64_t i)
{
    uint64_t z = (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15) + UINT64_C(0x632be59bd9b4e019);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ z >> 31) >> 11) / 9007199254740992.0 - 0.5;
}

/* Coordinates of node `place` of the lattice. Inner nodes are moved by up to an eighth of a cell.
 */
static void read_node(const fem *f, int64_t place, double *xyz)
{
    const int64_t side = f->n + 1;
    const int64_t at[3] = {place / side / side, place / side % side, place % side};
    int d;
    for (d = 0; d < 3; d++) {
        const int inside = at[d] > 0 && at[d] < f->n;
        xyz[d] = ((double)at[d] + (inside ? 0.25 * chance(3 * place + d) : 0.0)) / (double)f->n;
    }
}

/* Corners of tetrahedron `place`. A cell has six; each goes along three edges from the cell's first
 * corner to its last. */
static void read_element(const fem *f, int64_t place, int64_t stride, int64_t *corner)
{
    static const int way[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const int64_t cell = place / 6, side = f->n + 1;
    int64_t at[3] = {cell / f->n / f->n, cell / f->n % f->n, cell % f->n};
    int k;
    for (k = 0; k < CORNERS; k++) {
        corner[k] = (at[0] * side + at[1]) * side + at[2];
        corner[k] = corner[k] * stride % f->nodes; /* its number in the file */
        if (k < 3) {
            at[way[place % 6][k]]++;
        }
    }
}

/* Zeroed memory that other ranks can read directly. It is freed by let_go, or with the world. */
static void *memory(fem *f, int64_t bytes)
{
    void *at = NULL;
    if (f->st == DPAR_OK) {
        f->st = dpar_comm_alloc(f->c, bytes + 8, &at);
    }
    return at;
}

static void let_go(fem *f, void *at)
{
    dpar_comm_release(f->c, at);
}

static void read_mesh(fem *f)
{
    const int64_t side = f->n + 1, rank = f->c->rank, size = f->c->size;
    int64_t i, node_stride, element_stride;
    f->nodes = side * side * side;
    f->elements = 6 * f->n * f->n * f->n;
    node_stride = stride_of(f->nodes);
    element_stride = stride_of(f->elements);
    f->node_first = f->nodes * rank / size;
    f->node_count = f->nodes * (rank + 1) / size - f->node_first;
    f->element_first = f->elements * rank / size;
    f->element_count = f->elements * (rank + 1) / size - f->element_first;
    f->read_xyz = (double *)memory(f, 24 * f->node_count);
    f->read = (int64_t *)memory(f, 8 * CORNERS * f->element_count);
    if (f->st != DPAR_OK) {
        return;
    }
    for (i = 0; i < f->node_count; i++) {
        read_node(f, unstride(f->node_first + i, node_stride, f->nodes), f->read_xyz + 3 * i);
    }
    for (i = 0; i < f->element_count; i++) {
        read_element(f, unstride(f->element_first + i, element_stride, f->elements), node_stride,
                     f->read + CORNERS * i);
    }
}

/* ---- from the file to the owners
 * -----------------------------------------------------------------
 */

/* A field with a vector of 3 at each node. ghosts: where its ghosts are, or NULL if they follow. */
static dpar_points_field triples(double *data, double *ghosts)
{
    dpar_points_field v;
    memset(&v, 0, sizeof v);
    v.type = DPAR_F64;
    v.components = 3;
    v.data = data;
    v.ghosts = ghosts;
    return v;
}

/* Computes the centres of the elements that this rank read. The coordinates of their corners are
 * fetched from the ranks that read them. */
static void fetch_centres(fem *f, double *centre)
{
    const int64_t corners = CORNERS * f->element_count;
    dpar_points_desc desc;
    dpar_points *p = NULL;
    double *corner = (double *)memory(f, 24 * corners);
    dpar_points_field v = triples(f->read_xyz, corner);
    int64_t i, d;
    memset(&desc, 0, sizeof desc);
    desc.own_count = f->node_count; /* node numbers are consecutive from rank to rank: no own_id */
    desc.ghost_count = corners;
    desc.ghost_id = f->read;
    if (f->st == DPAR_OK) {
        f->st = dpar_points_make(f->c, &desc, &p, &f->why);
    }
    if (f->st == DPAR_OK) {
        f->st = dpar_points_exchange_many(p, &v, 1);
    }
    if (f->st == DPAR_OK) {
        f->st = dpar_points_free(p);
    }
    for (i = 0; i < 3 * f->element_count && f->st == DPAR_OK; i++) {
        d = i / 3 * 12 + i % 3;
        centre[i] = 0.25 * ((corner[d] + corner[d + 3]) + (corner[d + 6] + corner[d + 9]));
    }
    let_go(f, corner);
}

/* Assigns elements to ranks and moves the mesh. Elements and nodes are ordered along a curve, so
 * that neighbours in space are close to each other in memory. */
static void place(fem *f)
{
    const int64_t most = f->element_count > f->node_count ? f->element_count : f->node_count;
    double *centre = (double *)memory(f, 24 * f->element_count);
    int32_t *owner = (int32_t *)memory(f, 4 * f->element_count);
    int32_t *unused = (int32_t *)memory(f, 4 * most);
    int64_t *key = (int64_t *)memory(f, 8 * f->element_count);
    int64_t *node_key = (int64_t *)memory(f, 8 * f->node_count);
    dpar_points_partition_desc cloud;
    dpar_points_migration_desc piece;
    if (f->st == DPAR_OK) {
        fetch_centres(f, centre);
    }
    memset(&cloud, 0, sizeof cloud);
    cloud.dims = 3;
    cloud.count = f->element_count;
    cloud.position = centre;
    if (f->st == DPAR_OK) {
        f->st = dpar_points_partition(f->c, &cloud, owner, key, &f->why);
    }
    cloud.count = f->node_count;
    cloud.position = f->read_xyz;
    if (f->st == DPAR_OK) {
        f->st = dpar_points_partition(f->c, &cloud, unused, node_key, &f->why);
    }
    memset(&piece, 0, sizeof piece);
    piece.point_count = f->node_count;
    piece.order = node_key;
    piece.element_count = f->element_count;
    piece.corner_count = CORNERS;
    piece.corner = f->read;
    piece.element_owner = owner;
    piece.element_order = key;
    if (f->st == DPAR_OK) {
        f->st = dpar_points_migration_make(f->c, &piece, &f->mesh, &f->why);
    }
    let_go(f, centre);
    let_go(f, owner);
    let_go(f, unused);
    let_go(f, key);
    let_go(f, node_key);
}

/* Moves the coordinates to the new owners, and plans the exchanges from now on. */
static void settle(fem *f)
{
    dpar_points_field v;
    f->own = f->mesh ? f->mesh->desc.own_count : 0;
    f->local = f->mesh ? f->own + f->mesh->desc.ghost_count : 0;
    f->xyz = (double *)memory(f, 24 * f->local);
    if (f->st != DPAR_OK) {
        return;
    }
    v = triples(f->read_xyz, f->xyz);
    f->st = dpar_points_exchange_many(f->mesh->points, &v, 1);
    if (f->st == DPAR_OK) {
        f->st = dpar_points_make(f->c, &f->mesh->desc, &f->p, &f->why);
    }
    v = triples(f->xyz, NULL);
    if (f->st == DPAR_OK) {
        f->st = dpar_points_exchange_many(f->p, &v, 1);
    }
    let_go(f, f->read_xyz);
    let_go(f, f->read);
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Computes the gradients of a tetrahedron's four shape functions. Returns its volume. */
static double gradients(const fem *f, const int32_t *corner, double g[CORNERS][3])
{
    double e[3][3], volume = 0.0;
    int i, d;
    for (i = 0; i < 3; i++) {
        for (d = 0; d < 3; d++) {
            e[i][d] = f->xyz[3 * corner[i + 1] + d] - f->xyz[3 * corner[0] + d];
        }
    }
    for (i = 0; i < 3; i++) { /* e[i + 1] x e[i + 2] */
        const double *a = e[(i + 1) % 3], *b = e[(i + 2) % 3];
        for (d = 0; d < 3; d++) {
            g[i + 1][d] = a[(d + 1) % 3] * b[(d + 2) % 3] - a[(d + 2) % 3] * b[(d + 1) % 3];
        }
    }
    for (d = 0; d < 3; d++) {
        volume += e[0][d] * g[1][d];
    }
    for (d = 0; d < 3; d++) {
        for (i = 1; i < CORNERS; i++) {
            g[i][d] /= volume;
        }
        g[0][d] = -(g[1][d] + g[2][d] + g[3][d]);
    }
    return (volume < 0.0 ? -volume : volume) / 6.0;
}

/* Barycentric coordinate k of quadrature point q. The four points have equal weight, and are exact
 * for polynomials of degree 2. */
static double share(int q, int k)
{
    return q == k ? 0.58541019662496845 : 0.13819660112501052;
}

static void quadrature_point(const fem *f, const int32_t *corner, int q, double *at)
{
    int k, d;
    for (d = 0; d < 3; d++) {
        at[d] = 0.0;
        for (k = 0; k < CORNERS; k++) {
            at[d] += share(q, k) * f->xyz[3 * corner[k] + d];
        }
    }
}

/* The place of a column in a row, or the row's end if it is new. */
static int64_t place_in(fem *f, const int64_t *end, int32_t row, int32_t column)
{
    int64_t at = f->begin[row];
    while (at < end[row] && f->column[at] != column) {
        at++;
    }
    return at;
}

/* Adds an element to the matrix, its diagonal and the right-hand side. */
static void add_element(fem *f, const int32_t *corner, int64_t *end)
{
    double g[CORNERS][3], at[3];
    const double volume = gradients(f, corner, g);
    int i, k;
    for (i = 0; i < CORNERS; i++) {
        for (k = 0; k < CORNERS; k++) {
            const int64_t to = place_in(f, end, corner[i], corner[k]);
            const double a = volume * (g[i][0] * g[k][0] + g[i][1] * g[k][1] + g[i][2] * g[k][2]);
            if (to == end[corner[i]]) {
                f->column[to] = corner[k];
                end[corner[i]]++;
            }
            f->value[to] += a;
            f->diagonal[corner[i]] += i == k ? a : 0.0;
        }
        quadrature_point(f, corner, i, at);
        for (k = 0; k < CORNERS; k++) {
            f->b[corner[k]] += 0.25 * volume * share(i, k) * source(at);
        }
    }
}

/* Removes the gaps between rows, which had space for all columns of all their elements. */
static void close_up(fem *f, const int64_t *end)
{
    int64_t row, k, to = 0;
    for (row = 0; row < f->local; row++) {
        const int64_t from = f->begin[row];
        f->begin[row] = to;
        for (k = from; k < end[row]; k++) {
            f->column[to] = f->column[k];
            f->value[to] = f->value[k];
            to++;
        }
    }
    f->begin[f->local] = to;
}

static double *vector(fem *f)
{
    return (double *)memory(f, 8 * f->local);
}

/* Builds the matrix of own elements, the right-hand side and the first guess. */
static void build(fem *f)
{
    const int64_t elements = f->mesh ? f->mesh->element_count : 0;
    int64_t *end = (int64_t *)memory(f, 8 * f->local);
    int64_t i;
    int d;
    f->begin = (int64_t *)memory(f, 8 * (f->local + 1));
    f->column = (int32_t *)memory(f, 4 * CORNERS * CORNERS * elements);
    f->value = (double *)memory(f, 8 * CORNERS * CORNERS * elements);
    f->fixed = (unsigned char *)memory(f, f->local);
    f->x = vector(f);
    f->b = vector(f);
    f->diagonal = vector(f);
    f->r = vector(f);
    f->z = vector(f);
    f->y = vector(f);
    if (f->st != DPAR_OK) {
        return;
    }
    for (i = 0; i < CORNERS * elements; i++) {
        f->begin[f->mesh->corner[i] + 1] += CORNERS;
    }
    for (i = 0; i < f->local; i++) {
        f->begin[i + 1] += f->begin[i];
        end[i] = f->begin[i];
        for (d = 0; d < 3; d++) {
            f->fixed[i] |= f->xyz[3 * i + d] <= 0.0 || f->xyz[3 * i + d] >= 1.0;
        }
        f->x[i] = f->fixed[i] ? exact(f->xyz + 3 * i) : 0.0;
    }
    for (i = 0; i < elements; i++) {
        add_element(f, f->mesh->corner + CORNERS * i, end);
    }
    close_up(f, end);
    let_go(f, end);
}

/* ---- solving --------------------------------------------------------------------------------- */

/* Gives each node the sum over all ranks that have elements with it. y may be NULL. */
static void assemble(fem *f, double *x, double *y)
{
    const int32_t count = y ? 2 : 1;
    dpar_points_field v[2];
    memset(v, 0, sizeof v);
    v[0].type = v[1].type = DPAR_F64;
    v[0].data = x;
    v[1].data = y;
    if (f->st == DPAR_OK) {
        f->st = dpar_points_reduce_many(f->p, v, count, DPAR_SUM);
    }
    if (f->st == DPAR_OK) {
        f->st = dpar_points_exchange_many(f->p, v, count);
    }
}

/* Computes y = A x, and 0 where x is fixed. */
static void multiply(fem *f, const double *x, double *y)
{
    int64_t row, k;
    for (row = 0; row < f->local; row++) {
        double sum = 0.0;
        for (k = f->begin[row]; k < f->begin[row + 1]; k++) {
            sum += f->value[k] * x[f->column[k]];
        }
        y[row] = sum;
    }
    assemble(f, y, NULL);
    for (row = 0; row < f->local; row++) {
        y[row] = f->fixed[row] ? 0.0 : y[row];
    }
}

/* Computes a . b and a . c over all nodes. */
static void dots(fem *f, const double *a, const double *b, const double *c, double *sum)
{
    int64_t i;
    sum[0] = sum[1] = 0.0;
    for (i = 0; i < f->own; i++) {
        sum[0] += a[i] * b[i];
        sum[1] += a[i] * c[i];
    }
    if (f->st == DPAR_OK) {
        f->st = dpar_all_reduce(f->c, sum, sum, 2, DPAR_F64, DPAR_SUM, NULL);
    }
}

static void progress(const fem *f, int32_t iteration)
{
    const double n = (double)f->n, expected = 3.0 * n;
    const double share_of = iteration < expected ? iteration / expected : 1.0;
    if (f->c->rank == 0 && iteration % 16 == 0) {
        options_progress(f->began, 0.99 * (f->done + n * n * n * n * share_of) / f->all,
                         "conjugate gradients");
    }
}

/* Conjugate gradients, with the diagonal as preconditioner. */
static void solve(fem *f)
{
    double *const p = f->z, now[2], last[2], along[2], first;
    int64_t i;
    assemble(f, f->diagonal, f->b);
    multiply(f, f->x, f->y);
    for (i = 0; i < f->local && f->st == DPAR_OK; i++) {
        f->diagonal[i] = f->fixed[i] ? 0.0 : 1.0 / f->diagonal[i];
        f->r[i] = f->fixed[i] ? 0.0 : f->b[i] - f->y[i];
        p[i] = f->y[i] = f->diagonal[i] * f->r[i];
    }
    dots(f, f->r, f->y, f->r, now); /* between products y is r divided by the diagonal */
    first = now[1];
    for (f->iterations = 0; f->st == DPAR_OK && now[1] > first * f->q->tolerance * f->q->tolerance;
         f->iterations++) {
        double step;
        progress(f, f->iterations);
        multiply(f, p, f->y);
        dots(f, p, f->y, f->y, along);
        step = now[0] / along[0];
        for (i = 0; i < f->local; i++) {
            f->x[i] += step * p[i];
            f->r[i] -= step * f->y[i];
            f->y[i] = f->diagonal[i] * f->r[i];
        }
        last[0] = now[0];
        dots(f, f->r, f->y, f->r, now);
        for (i = 0; i < f->local; i++) {
            p[i] = f->y[i] + now[0] / last[0] * p[i];
        }
        if (f->iterations >= 100 * f->n + 1000) {
            snprintf(f->why.text, sizeof f->why.text,
                     "conjugate gradients did not converge in %d iterations: raise --tolerance",
                     (int)f->iterations);
            f->st = DPAR_E_NONE;
        }
    }
}

/* The norm of the error in L2. */
static double error_of(fem *f)
{
    double sum[2] = {0.0, 0.0}, g[CORNERS][3], at[3];
    int64_t e;
    int q, k;
    for (e = 0; f->st == DPAR_OK && e < f->mesh->element_count; e++) {
        const int32_t *corner = f->mesh->corner + CORNERS * e;
        const double volume = gradients(f, corner, g);
        for (q = 0; q < CORNERS; q++) {
            double u = 0.0;
            for (k = 0; k < CORNERS; k++) {
                u += share(q, k) * f->x[corner[k]];
            }
            quadrature_point(f, corner, q, at);
            u -= exact(at);
            sum[0] += 0.25 * volume * u * u;
        }
    }
    if (f->st == DPAR_OK) {
        f->st = dpar_all_reduce(f->c, sum, sum, 1, DPAR_F64, DPAR_SUM, NULL);
    }
    return root_of(sum[0]);
}

/* ---- traffic
 * -------------------------------------------------------------------------------------
 */

/* The cost of an exchange of one vector by the planner's formula, from the plan's numbers. */
static double priced(const fem *f)
{
    dpar_neighbour to[RANKS];
    dpar_points_traffic t;
    int32_t k;
    memset(to, 0, sizeof to);
    for (k = 0; k < RANKS && dpar_points_peer(f->p, k, &t); k++) {
        to[k].bytes = 8 * t.receive_count;
        to[k].runs = t.send_runs + t.receive_runs;
        to[k].copies = 2;
        to[k].location = t.method == DPAR_POINTS_MESSAGES;
        if (t.rank == f->c->rank) {
            to[k].location = 2;
        }
    }
    return dpar_neighbours_cost(to, k, 1, NULL);
}

static void show_traffic(fem *f)
{
    enum { TIMES = 50, ROUNDS = 7 };
    static char buffer[20000];
    double least = 1e30, expected = 0.0;
    dpar_text text;
    int round, i;
    dpar_text_init(&text, buffer, sizeof buffer);
    if (f->st == DPAR_OK) {
        f->st = dpar_points_draw(f->p, &text);
    }
    for (round = 0; round < ROUNDS && f->st == DPAR_OK; round++) {
        double spent = options_now();
        for (i = 0; i < TIMES && f->st == DPAR_OK; i++) {
            f->st = dpar_points_exchange(f->p, f->x);
        }
        spent = (options_now() - spent) / TIMES;
        least = spent < least ? spent : least;
    }
    if (f->st == DPAR_OK) {
        expected = dpar_max(f->c, priced(f));
        least = dpar_max(f->c, least);
    }
    if (f->st == DPAR_OK && f->c->rank == 0) {
        printf("\nvalues that ranks send (rows) to ranks (columns) at each exchange\n%s", buffer);
        printf("an exchange of one vector: %.1f us, priced %.1f us at the default rates\n",
               1e6 * least, 1e6 * expected);
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void close_mesh(fem *f)
{
    if (f->st == DPAR_OK) {
        f->st = dpar_points_free(f->p);
    }
    if (f->st == DPAR_OK) {
        f->st = dpar_points_migration_free(f->mesh);
    }
    let_go(f, f->xyz);
    let_go(f, f->begin);
    let_go(f, f->column);
    let_go(f, f->value);
    let_go(f, f->x);
    let_go(f, f->b);
    let_go(f, f->diagonal);
    let_go(f, f->r);
    let_go(f, f->z);
    let_go(f, f->y);
    let_go(f, f->fixed);
}

/* The logarithm of base 2 of a ratio >= 1, by halves and squares: no -lm. */
static double log2_of(double ratio)
{
    double order = 0.0;
    int bit;
    for (; ratio >= 2.0; ratio *= 0.5) {
        order += 1.0;
    }
    for (bit = 1; bit < 30; bit++) {
        ratio *= ratio;
        if (ratio >= 2.0) {
            ratio *= 0.5;
            order += 1.0 / (double)(1 << bit);
        }
    }
    return order;
}

/* Solves on one mesh, and prints its line of the table. coarser: the error on the coarser mesh, or
 * 0. Returns the error. */
static double run(fem *f, double coarser)
{
    const double began = options_now();
    double error, ghosts, most;
    read_mesh(f);
    place(f);
    settle(f);
    build(f);
    if (f->st == DPAR_OK) {
        solve(f);
    }
    error = error_of(f);
    ghosts = dpar_sum(f->c, (double)(f->local - f->own)) / (double)f->nodes;
    most = dpar_max(f->c, f->mesh ? (double)f->mesh->element_count : 0.0) * f->c->size;
    if (f->st == DPAR_OK && f->c->rank == 0) {
        options_progress(f->began, 1.0, NULL);
        printf("%5ld %9ld %10ld %7.1f %% %8.4f %6d   %.5e ", (long)f->n, (long)f->nodes,
               (long)f->elements, 100.0 * ghosts, most / (double)f->elements, (int)f->iterations,
               error);
        if (coarser > 0.0) {
            printf("%5.2f ", log2_of(coarser / error));
        } else {
            printf("      ");
        }
        printf("%9.3f\n", options_now() - began);
        fflush(stdout);
    }
    return error;
}

/* Prints whether the errors fall with second order. Returns the exit code. */
static int tell(int meshes, double last, double coarser)
{
    const int second = coarser / last >= 3.3636; /* 2^1.75 */
    if (meshes > 1) {
        printf("\n%s\n", second ? "second order: yes" : "second order: NO");
    }
#ifndef __OPTIMIZE__
    printf("(compiled without -O2: slow)\n");
#endif
    return options_finish(0) != 0 || (meshes > 1 && !second);
}

/* What each rank runs. */
static int work(dpar_comm *c, void *arg)
{
    const request *const q = (const request *)arg;
    double error = 0.0, coarser = 0.0, done = 0.0, all = 0.0;
    const double began = options_now();
    int k;
    for (k = 0; k < q->meshes; k++) {
        const double n = q->cells >> k;
        all += n * n * n * n;
    }
    if (c->rank == 0) {
        printf("fem: %d rank%s, engine %s\n\n", (int)c->size, c->size > 1 ? "s" : "",
               c->engine.name);
        printf(
            "cells     nodes   elements    ghosts  balance  iter.   error in L2 order   seconds\n");
    }
    for (k = q->meshes - 1; k >= 0; k--) {
        fem f;
        memset(&f, 0, sizeof f);
        f.q = q;
        f.c = c;
        f.n = q->cells >> k;
        f.began = began;
        f.done = done;
        f.all = all;
        coarser = error;
        error = run(&f, coarser);
        if (k == 0 && q->traffic) {
            show_traffic(&f);
        }
        close_mesh(&f);
        if (f.st != DPAR_OK) {
            return dpar_fail(c, f.why.text[0] != 0 ? &f.why : NULL);
        }
        done += (double)f.n * (double)f.n * (double)f.n * (double)f.n;
    }
    return c->rank == 0 ? tell(q->meshes, error, coarser) : 0;
}

/* Reads the command line (start_read of apps/start.h). */
static int reads(int argc, char **argv, int *ranks, void *at)
{
    request *q = (request *)at;
    const option list[] = {{"--cells", OPTION_INT, &q->cells, 4, 256},
                           {"--meshes", OPTION_INT, &q->meshes, 1, MESHES},
                           {"--tolerance", OPTION_REAL, &q->tolerance, 1e-14, 0.1},
                           {"--traffic", OPTION_FLAG, &q->traffic, 0, 0},
                           {"--ranks", OPTION_INT, &q->ranks, 1, RANKS}};
    int code = options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
    code = code < 0 ? start_ranks(ranks, q->ranks) : code;
    if (code >= 0) {
        return code;
    }
    *ranks = *ranks > 0 ? *ranks : 1;
    if (*ranks > RANKS) {
        return complain("fem runs on at most 64 ranks", NULL);
    }
    if (q->cells >> (q->meshes - 1) < 2 ||
        q->cells >> (q->meshes - 1) << (q->meshes - 1) != q->cells) {
        char text[120];
        snprintf(text, sizeof text,
                 "--cells %d cannot be halved %d times to 2 or more, as --meshes %d needs",
                 q->cells, q->meshes - 1, q->meshes);
        return complain(text, NULL);
    }
    return -1;
}

int main(int argc, char **argv)
{
    request q = {32, 4, 0, 0, 1e-11};
    return start(argc, argv, reads, work, &q);
}
