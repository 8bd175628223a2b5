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
 * What is the same on any number of ranks: the mesh, and all results but for rounding. Dot products
 * are exact (dpar_exact.h), but sums at nodes between ranks are added in another order; the error
 * differs by 1e-7 of itself at most, the number of iterations by one or two. With one number of
 * ranks all bits are the same in every run.
 *
 * With --exact all bits are the same on any number of ranks. Matrix entries and vectors are then
 * cut into slices of so few bits that all products and sums of slices are exact
 * (`multiply_slices`), which makes their order irrelevant. Do not compile that with -ffast-math.
 *
 * Exit code: 0 second order, 1 not, or an error, 2 bad input (one message on stderr). */
#include "dpar_cost.h"
#include "dpar_points.h"

#include "dpar_exact.h"
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
    "  fem [--cells N] [--meshes K] [--tolerance T] [--traffic] [--exact] [--ranks N]\n"
    "  mpirun -np N fem ...    built with -DUSE_MPI\n"
    "\n"
    "  --cells      cells along an edge of the finest mesh, each of six tetrahedra\n"
    "               (default 32; 4 to 256)\n"
    "  --meshes     so many meshes, each with half the cells of the next (default 4)\n"
    "  --tolerance  of the residual, times the first (default 1e-11)\n"
    "  --traffic    who sends what to whom on the finest mesh, how long an exchange\n"
    "               takes, and what the planner's formula says\n"
    "  --exact      the same bits on any number of ranks, and all digits of the error\n"
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

#include "../helpers/options.h"

#include "start.h"

enum { CORNERS = 4, RANKS = 64, MESHES = 7, SLICES = 4 };

typedef struct request {
    int cells, meshes, ranks, traffic, exact;
    double tolerance;
} request;

/* One mesh, as this rank has it. Local nodes: own ones, then ghosts. */
typedef struct fem {
    const request *options;
    dpar_comm *comm;
    int64_t cells, nodes, elements; /* cells along an edge; of all ranks */
    /* as it was read: numbers in a row */
    int64_t node_first, node_count, element_first, element_count;
    double *read_xyz; /* [node_count][3] */
    int64_t *read;    /* [element_count][CORNERS] node numbers */
    /* as it is computed with */
    dpar_points_migration *mesh;
    dpar_points *points;
    int64_t own, local; /* nodes; with ghosts */
    double *xyz;        /* [local][3] */
    int64_t *begin;     /* [local + 1] matrix by rows, of own elements alone */
    int32_t *column;
    double *value;
    double *low;    /* with --exact: the low slices of the matrix; `value` has the high ones */
    double *slices; /* [local][SLICES] sums of products of slices */
    double entry_most, load_most; /* powers of 2 above sums of entries and of right-hand sides */
    double *solution, *right_side, *diagonal, *residual, *direction, *product; /* [local] */
    unsigned char *fixed; /* [local] on the cube's surface: x is known */
    int32_t iterations;
    double began, done, all; /* for the progress line */
    dpar_status st;          /* the first failure: after it no rank talks any more */
    dpar_why why;
} fem;

/* ---- the problem: - laplace u = f in the cube, u = exact on its surface ---------------------- */

static double exact(const double *point)
{
    const double x = point[0], y = point[1], z = point[2];
    return 16.0 * (x - x * x * x) * (y - y * y) * (2.0 * z - 3.0 * z * z + z * z * z) + x * y -
           0.5 * z;
}

static double source(const double *point)
{
    const double x = point[0], y = point[1], z = point[2];
    const double a = x - x * x * x, b = y - y * y, c = 2.0 * z - 3.0 * z * z + z * z * z;
    return 16.0 * (6.0 * x * b * c + 2.0 * a * c + a * b * (6.0 - 6.0 * z));
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
static void read_node(const fem *part, int64_t place, double *xyz)
{
    const int64_t side = part->cells + 1;
    const int64_t at[3] = {place / side / side, place / side % side, place % side};
    int d;
    for (d = 0; d < 3; d++) {
        const int inside = at[d] > 0 && at[d] < part->cells;
        xyz[d] =
            ((double)at[d] + (inside ? 0.25 * chance(3 * place + d) : 0.0)) / (double)part->cells;
    }
}

/* Corners of tetrahedron `place`. A cell has six; each goes along three edges from the cell's first
 * corner to its last. */
static void read_element(const fem *part, int64_t place, int64_t stride, int64_t *corner)
{
    static const int way[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const int64_t cell = place / 6, side = part->cells + 1;
    int64_t at[3] = {cell / part->cells / part->cells, cell / part->cells % part->cells,
                     cell % part->cells};
    int k;
    for (k = 0; k < CORNERS; k++) {
        corner[k] = (at[0] * side + at[1]) * side + at[2];
        corner[k] = corner[k] * stride % part->nodes; /* its number in the file */
        if (k < 3) {
            at[way[place % 6][k]]++;
        }
    }
}

/* Zeroed memory that other ranks can read directly. It is freed by let_go, or with the world. */
static void *memory(fem *part, int64_t bytes)
{
    void *at = NULL;
    if (part->st == DPAR_OK) {
        part->st = dpar_comm_alloc(part->comm, bytes + 8, &at);
    }
    return at;
}

static void let_go(fem *part, void *at)
{
    dpar_comm_release(part->comm, at);
}

static void read_mesh(fem *part)
{
    const int64_t side = part->cells + 1, rank = part->comm->rank, size = part->comm->size;
    int64_t i, node_stride, element_stride;
    part->nodes = side * side * side;
    part->elements = 6 * part->cells * part->cells * part->cells;
    node_stride = stride_of(part->nodes);
    element_stride = stride_of(part->elements);
    part->node_first = part->nodes * rank / size;
    part->node_count = part->nodes * (rank + 1) / size - part->node_first;
    part->element_first = part->elements * rank / size;
    part->element_count = part->elements * (rank + 1) / size - part->element_first;
    part->read_xyz = (double *)memory(part, 24 * part->node_count);
    part->read = (int64_t *)memory(part, 8 * CORNERS * part->element_count);
    if (part->st != DPAR_OK) {
        return;
    }
    for (i = 0; i < part->node_count; i++) {
        read_node(part, unstride(part->node_first + i, node_stride, part->nodes),
                  part->read_xyz + 3 * i);
    }
    for (i = 0; i < part->element_count; i++) {
        read_element(part, unstride(part->element_first + i, element_stride, part->elements),
                     node_stride, part->read + CORNERS * i);
    }
}

/* ---- from the file to the owners ------------------------------------------------------------- */

/* A field with a vector of 3 at each node. ghosts: where its ghosts are, or NULL if they follow. */
static dpar_points_field triples(double *data, double *ghosts)
{
    dpar_points_field field;
    memset(&field, 0, sizeof field);
    field.type = DPAR_F64;
    field.components = 3;
    field.data = data;
    field.ghosts = ghosts;
    return field;
}

/* Computes the centres of the elements that this rank read. The coordinates of their corners are
 * fetched from the ranks that read them. */
static void fetch_centres(fem *part, double *centre)
{
    const int64_t corners = CORNERS * part->element_count;
    dpar_points_desc desc;
    dpar_points *points = NULL;
    double *corner = (double *)memory(part, 24 * corners);
    dpar_points_field coordinates = triples(part->read_xyz, corner);
    int64_t i, d;
    memset(&desc, 0, sizeof desc);
    desc.own_count =
        part->node_count; /* node numbers are consecutive from rank to rank: no own_id */
    desc.ghost_count = corners;
    desc.ghost_id = part->read;
    if (part->st == DPAR_OK) {
        part->st = dpar_points_make(part->comm, &desc, &points, &part->why);
    }
    if (part->st == DPAR_OK) {
        part->st = dpar_points_exchange_many(points, &coordinates, 1);
    }
    if (part->st == DPAR_OK) {
        part->st = dpar_points_free(points);
    }
    for (i = 0; i < 3 * part->element_count && part->st == DPAR_OK; i++) {
        d = i / 3 * 12 + i % 3;
        centre[i] = 0.25 * ((corner[d] + corner[d + 3]) + (corner[d + 6] + corner[d + 9]));
    }
    let_go(part, corner);
}

/* Assigns elements to ranks and moves the mesh. Elements and nodes are ordered along a curve, so
 * that neighbours in space are close to each other in memory. */
static void place(fem *part)
{
    const int64_t most =
        part->element_count > part->node_count ? part->element_count : part->node_count;
    double *centre = (double *)memory(part, 24 * part->element_count);
    int32_t *owner = (int32_t *)memory(part, 4 * part->element_count);
    int32_t *unused = (int32_t *)memory(part, 4 * most);
    int64_t *key = (int64_t *)memory(part, 8 * part->element_count);
    int64_t *node_key = (int64_t *)memory(part, 8 * part->node_count);
    dpar_points_partition_desc cloud;
    dpar_points_migration_desc piece;
    if (part->st == DPAR_OK) {
        fetch_centres(part, centre);
    }
    memset(&cloud, 0, sizeof cloud);
    cloud.dims = 3;
    cloud.count = part->element_count;
    cloud.position = centre;
    if (part->st == DPAR_OK) {
        part->st = dpar_points_partition(part->comm, &cloud, owner, key, &part->why);
    }
    cloud.count = part->node_count;
    cloud.position = part->read_xyz;
    if (part->st == DPAR_OK) {
        part->st = dpar_points_partition(part->comm, &cloud, unused, node_key, &part->why);
    }
    memset(&piece, 0, sizeof piece);
    piece.point_count = part->node_count;
    piece.order = node_key;
    piece.element_count = part->element_count;
    piece.corner_count = CORNERS;
    piece.corner = part->read;
    piece.element_owner = owner;
    piece.element_order = key;
    if (part->st == DPAR_OK) {
        part->st = dpar_points_migration_make(part->comm, &piece, &part->mesh, &part->why);
    }
    let_go(part, centre);
    let_go(part, owner);
    let_go(part, unused);
    let_go(part, key);
    let_go(part, node_key);
}

/* Moves the coordinates to the new owners, and plans the exchanges from now on. */
static void settle(fem *part)
{
    dpar_points_field coordinates;
    part->own = part->mesh ? part->mesh->desc.own_count : 0;
    part->local = part->mesh ? part->own + part->mesh->desc.ghost_count : 0;
    part->xyz = (double *)memory(part, 24 * part->local);
    if (part->st != DPAR_OK) {
        return;
    }
    coordinates = triples(part->read_xyz, part->xyz);
    part->st = dpar_points_exchange_many(part->mesh->points, &coordinates, 1);
    if (part->st == DPAR_OK) {
        part->st = dpar_points_make(part->comm, &part->mesh->desc, &part->points, &part->why);
    }
    coordinates = triples(part->xyz, NULL);
    if (part->st == DPAR_OK) {
        part->st = dpar_points_exchange_many(part->points, &coordinates, 1);
    }
    let_go(part, part->read_xyz);
    let_go(part, part->read);
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Computes the gradients of a tetrahedron's four shape functions. Returns its volume. */
static double gradients(const fem *part, const int32_t *corner, double gradient[CORNERS][3])
{
    double edge[3][3], volume = 0.0;
    int i, d;
    for (i = 0; i < 3; i++) {
        for (d = 0; d < 3; d++) {
            edge[i][d] = part->xyz[3 * corner[i + 1] + d] - part->xyz[3 * corner[0] + d];
        }
    }
    for (i = 0; i < 3; i++) { /* e[i + 1] x e[i + 2] */
        const double *first = edge[(i + 1) % 3], *second = edge[(i + 2) % 3];
        for (d = 0; d < 3; d++) {
            gradient[i + 1][d] =
                first[(d + 1) % 3] * second[(d + 2) % 3] - first[(d + 2) % 3] * second[(d + 1) % 3];
        }
    }
    for (d = 0; d < 3; d++) {
        volume += edge[0][d] * gradient[1][d];
    }
    for (d = 0; d < 3; d++) {
        for (i = 1; i < CORNERS; i++) {
            gradient[i][d] /= volume;
        }
        gradient[0][d] = -(gradient[1][d] + gradient[2][d] + gradient[3][d]);
    }
    return (volume < 0.0 ? -volume : volume) / 6.0;
}

/* Barycentric coordinate k of quadrature point q. The four points have equal weight, and are exact
 * for polynomials of degree 2. */
static double share(int q, int k)
{
    return q == k ? 0.58541019662496845 : 0.13819660112501052;
}

static void quadrature_point(const fem *part, const int32_t *corner, int q, double *at)
{
    int k, d;
    for (d = 0; d < 3; d++) {
        at[d] = 0.0;
        for (k = 0; k < CORNERS; k++) {
            at[d] += share(q, k) * part->xyz[3 * corner[k] + d];
        }
    }
}

/* The place of a column in a row, or the row's end if it is new. */
static int64_t place_in(fem *part, const int64_t *end, int32_t row, int32_t column)
{
    int64_t at = part->begin[row];
    while (at < end[row] && part->column[at] != column) {
        at++;
    }
    return at;
}

/* An entry of an element's matrix. */
static double entry_of(double gradient[CORNERS][3], double volume, int i, int k)
{
    return volume * (gradient[i][0] * gradient[k][0] + gradient[i][1] * gradient[k][1] +
                     gradient[i][2] * gradient[k][2]);
}

/* Rounds v to a multiple of unit, a power of 2, if it is less than 2^51 of them. */
static double rounded(double v, double unit)
{
    const double large = 6755399441055744.0 * unit; /* 1.5 * 2^52 */
    return (v + large) - large;
}

/* The smallest power of 2 that is not below x, or 1 if x is 0. */
static double power_above(double x)
{
    double power = 1.0;
    while (power < x) {
        power *= 2.0;
    }
    while (x > 0.0 && 0.5 * power >= x) {
        power *= 0.5;
    }
    return power;
}

/* Finds the bounds of entry_most and load_most: no node has more than 32 elements, with CORNERS
 * entries each. */
static void bound(fem *part)
{
    double gradient[CORNERS][3], at[3], most[2] = {0.0, 0.0};
    int64_t element;
    int i;
    for (element = 0; element < part->mesh->element_count; element++) {
        const int32_t *corner = part->mesh->corner + CORNERS * element;
        const double volume = gradients(part, corner, gradient);
        for (i = 0; i < CORNERS; i++) { /* a diagonal entry is the largest of its row */
            const double entry = entry_of(gradient, volume, i, i);
            double load;
            quadrature_point(part, corner, i, at);
            load = volume * (source(at) < 0.0 ? -source(at) : source(at));
            most[0] = entry > most[0] ? entry : most[0];
            most[1] = load > most[1] ? load : most[1];
        }
    }
    part->st = dpar_all_reduce(part->comm, most, most, 2, DPAR_F64, DPAR_MAX, NULL);
    part->entry_most = power_above(128.0 * most[0]);
    part->load_most = power_above(128.0 * most[1]);
}

/* Adds an element to the matrix, its diagonal and the right-hand side. */
static void add_element(fem *part, const int32_t *corner, int64_t *end)
{
    double gradient[CORNERS][3], at[3];
    const double volume = gradients(part, corner, gradient);
    int i, k;
    for (i = 0; i < CORNERS; i++) {
        for (k = 0; k < CORNERS; k++) {
            const int64_t to = place_in(part, end, corner[i], corner[k]);
            double entry = entry_of(gradient, volume, i, k), low = 0.0;
            if (to == end[corner[i]]) {
                part->column[to] = corner[k];
                end[corner[i]]++;
            }
            if (part->low) {
                const double high = rounded(entry, 0x1p-26 * part->entry_most);
                low = rounded(entry - high, 0x1p-47 * part->entry_most);
                entry = high;
                part->low[to] += low;
            }
            part->value[to] += entry;
            part->diagonal[corner[i]] += i == k ? entry + low : 0.0;
        }
        quadrature_point(part, corner, i, at);
        for (k = 0; k < CORNERS; k++) {
            const double load = 0.25 * volume * share(i, k) * source(at);
            part->right_side[corner[k]] +=
                part->low ? rounded(load, 0x1p-50 * part->load_most) : load;
        }
    }
}

/* Removes the gaps between rows, which had space for all columns of all their elements. */
static void close_up(fem *part, const int64_t *end)
{
    int64_t row, k, to = 0;
    for (row = 0; row < part->local; row++) {
        const int64_t from = part->begin[row];
        part->begin[row] = to;
        for (k = from; k < end[row]; k++) {
            part->column[to] = part->column[k];
            part->value[to] = part->value[k];
            if (part->low) {
                part->low[to] = part->low[k];
            }
            to++;
        }
    }
    part->begin[part->local] = to;
}

static double *vector(fem *part)
{
    return (double *)memory(part, 8 * part->local);
}

/* Builds the matrix of own elements, the right-hand side and the first guess. */
static void build(fem *part)
{
    const int64_t elements = part->mesh ? part->mesh->element_count : 0;
    int64_t *end = (int64_t *)memory(part, 8 * part->local);
    int64_t i;
    int d;
    part->begin = (int64_t *)memory(part, 8 * (part->local + 1));
    part->column = (int32_t *)memory(part, 4 * CORNERS * CORNERS * elements);
    part->value = (double *)memory(part, 8 * CORNERS * CORNERS * elements);
    if (part->options->exact) {
        part->low = (double *)memory(part, 8 * CORNERS * CORNERS * elements);
        part->slices = (double *)memory(part, 8 * SLICES * part->local);
    }
    part->fixed = (unsigned char *)memory(part, part->local);
    part->solution = vector(part);
    part->right_side = vector(part);
    part->diagonal = vector(part);
    part->residual = vector(part);
    part->direction = vector(part);
    part->product = vector(part);
    if (part->st != DPAR_OK) {
        return;
    }
    for (i = 0; i < CORNERS * elements; i++) {
        part->begin[part->mesh->corner[i] + 1] += CORNERS;
    }
    for (i = 0; i < part->local; i++) {
        part->begin[i + 1] += part->begin[i];
        end[i] = part->begin[i];
        for (d = 0; d < 3; d++) {
            part->fixed[i] |= part->xyz[3 * i + d] <= 0.0 || part->xyz[3 * i + d] >= 1.0;
        }
        part->solution[i] = part->fixed[i] ? exact(part->xyz + 3 * i) : 0.0;
    }
    if (part->options->exact) {
        bound(part);
    }
    for (i = 0; i < elements; i++) {
        add_element(part, part->mesh->corner + CORNERS * i, end);
    }
    close_up(part, end);
    let_go(part, end);
}

/* ---- solving --------------------------------------------------------------------------------- */

/* Gives each node the sum over all ranks that have elements with it. y may be NULL. */
static void assemble(fem *part, double *first, double *second)
{
    const int32_t count = second ? 2 : 1;
    dpar_points_field fields[2];
    memset(fields, 0, sizeof fields);
    fields[0].type = fields[1].type = DPAR_F64;
    fields[0].data = first;
    fields[1].data = second;
    if (part->st == DPAR_OK) {
        part->st = dpar_points_reduce_many(part->points, fields, count, DPAR_SUM);
    }
    if (part->st == DPAR_OK) {
        part->st = dpar_points_exchange_many(part->points, fields, count);
    }
}

/* Computes y = A x from slices. With a = high + low of the matrix and x = upper + lower, the sums
 * of high * upper, high * lower, low * upper and low * lower have at most 53 bits each: in units of
 * entry_most * the power of 2 above x,
 *
 *     high    multiple of 2^-26, sums at most 1        upper   multiple of 2^-26, at most 1
 *     low     multiple of 2^-47, sums at most 2^-20    lower   multiple of 2^-50, at most 2^-27
 *
 * No sum rounds, neither here nor between ranks. Only the last three additions do, at the owner. */
static void multiply_slices(fem *part, const double *x, double *y)
{
    double most = 0.0;
    dpar_points_field field;
    int64_t row, k;
    for (row = 0; row < part->local; row++) {
        const double size = x[row] < 0.0 ? -x[row] : x[row];
        most = size > most ? size : most;
    }
    if (part->st == DPAR_OK) {
        part->st = dpar_all_reduce(part->comm, &most, &most, 1, DPAR_F64, DPAR_MAX, NULL);
    }
    most = power_above(most);
    for (row = 0; row < part->local; row++) {
        double sum[SLICES] = {0.0, 0.0, 0.0, 0.0};
        for (k = part->begin[row]; k < part->begin[row + 1]; k++) {
            const double high = part->value[k], low = part->low[k], v = x[part->column[k]];
            const double upper = rounded(v, 0x1p-26 * most);
            const double lower = rounded(v - upper, 0x1p-50 * most);
            sum[0] += high * upper;
            sum[1] += high * lower;
            sum[2] += low * upper;
            sum[3] += low * lower;
        }
        memcpy(part->slices + SLICES * row, sum, sizeof sum);
    }
    memset(&field, 0, sizeof field);
    field.type = DPAR_F64;
    field.components = SLICES;
    field.data = part->slices;
    if (part->st == DPAR_OK) {
        part->st = dpar_points_reduce_many(part->points, &field, 1, DPAR_SUM);
    }
    for (row = 0; row < part->own; row++) {
        const double *sum = part->slices + SLICES * row;
        y[row] = sum[0] + (sum[1] + (sum[2] + sum[3]));
    }
    if (part->st == DPAR_OK) {
        part->st = dpar_points_exchange(part->points, y);
    }
}

/* Computes y = A x in any order. */
static void multiply_sums(fem *part, const double *x, double *y)
{
    int64_t row, k;
    for (row = 0; row < part->local; row++) {
        double sum = 0.0;
        for (k = part->begin[row]; k < part->begin[row + 1]; k++) {
            sum += part->value[k] * x[part->column[k]];
        }
        y[row] = sum;
    }
    assemble(part, y, NULL);
}

/* Computes y = A x, and 0 where x is fixed. */
static void multiply(fem *part, const double *x, double *y)
{
    int64_t row;
    if (part->low) {
        multiply_slices(part, x, y);
    } else {
        multiply_sums(part, x, y);
    }
    for (row = 0; row < part->local; row++) {
        y[row] = part->fixed[row] ? 0.0 : y[row];
    }
}

/* Computes a . b and a . c over all nodes. */
static void dots(fem *part, const double *a, const double *b, const double *c, double *sum)
{
    dpar_exact_term terms[2];
    terms[0] = dpar_exact_dot_of(a, b, part->own, DPAR_F64);
    terms[1] = dpar_exact_dot_of(a, c, part->own, DPAR_F64);
    sum[0] = sum[1] = 0.0;
    if (part->st == DPAR_OK) {
        part->st = dpar_exact_many(part->comm, terms, 2, sum);
    }
}

static void progress(const fem *part, int32_t iteration)
{
    const double n = (double)part->cells, expected = 3.0 * n;
    const double share_of = iteration < expected ? iteration / expected : 1.0;
    if (part->comm->rank == 0 && iteration % 16 == 0) {
        options_progress(part->began, 0.99 * (part->done + n * n * n * n * share_of) / part->all,
                         "conjugate gradients");
    }
}

/* Conjugate gradients, with the diagonal as preconditioner. */
static void solve(fem *part)
{
    double *const direction = part->direction, now[2], last[2], along[2], first;
    int64_t i;
    assemble(part, part->diagonal, part->right_side);
    multiply(part, part->solution, part->product);
    for (i = 0; i < part->local && part->st == DPAR_OK; i++) {
        part->diagonal[i] = part->fixed[i] ? 0.0 : 1.0 / part->diagonal[i];
        part->residual[i] = part->fixed[i] ? 0.0 : part->right_side[i] - part->product[i];
        direction[i] = part->product[i] = part->diagonal[i] * part->residual[i];
    }
    dots(part, part->residual, part->product, part->residual,
         now); /* between products y is r divided by the diagonal */
    first = now[1];
    for (part->iterations = 0; part->st == DPAR_OK &&
                               now[1] > first * part->options->tolerance * part->options->tolerance;
         part->iterations++) {
        double step;
        progress(part, part->iterations);
        multiply(part, direction, part->product);
        dots(part, direction, part->product, part->product, along);
        step = now[0] / along[0];
        for (i = 0; i < part->local; i++) {
            part->solution[i] += step * direction[i];
            part->residual[i] -= step * part->product[i];
            part->product[i] = part->diagonal[i] * part->residual[i];
        }
        last[0] = now[0];
        dots(part, part->residual, part->product, part->residual, now);
        for (i = 0; i < part->local; i++) {
            direction[i] = part->product[i] + now[0] / last[0] * direction[i];
        }
        if (part->iterations >= 100 * part->cells + 1000) {
            snprintf(part->why.text, sizeof part->why.text,
                     "conjugate gradients did not converge in %d iterations: raise --tolerance",
                     (int)part->iterations);
            part->st = DPAR_E_NONE;
        }
    }
}

/* The norm of the error in L2. */
static double error_of(fem *part)
{
    double squares[CORNERS], gradient[CORNERS][3], at[3];
    dpar_exact sum;
    int64_t element;
    int point, k;
    memset(&sum, 0, sizeof sum);
    for (element = 0; part->st == DPAR_OK && element < part->mesh->element_count; element++) {
        const int32_t *corner = part->mesh->corner + CORNERS * element;
        const double volume = gradients(part, corner, gradient);
        for (point = 0; point < CORNERS; point++) {
            double u = 0.0;
            for (k = 0; k < CORNERS; k++) {
                u += share(point, k) * part->solution[corner[k]];
            }
            quadrature_point(part, corner, point, at);
            u -= exact(at);
            squares[point] = 0.25 * volume * u * u;
        }
        (void)dpar_exact_add(&sum, squares, CORNERS, DPAR_F64);
    }
    if (part->st == DPAR_OK) {
        part->st = dpar_exact_all_reduce(part->comm, &sum, 1);
    }
    return dpar_exact_root(&sum, DPAR_F64);
}

/* ---- traffic --------------------------------------------------------------------------------- */

/* The cost of an exchange of one vector by the planner's formula, from the plan's numbers. */
static double priced(const fem *part)
{
    dpar_neighbour to[RANKS];
    dpar_points_traffic traffic;
    int32_t k;
    memset(to, 0, sizeof to);
    for (k = 0; k < RANKS && dpar_points_peer(part->points, k, &traffic); k++) {
        to[k].bytes = 8 * traffic.receive_count;
        to[k].runs = traffic.send_runs + traffic.receive_runs;
        to[k].copies = 2;
        to[k].location = traffic.method == DPAR_POINTS_MESSAGES;
        if (traffic.rank == part->comm->rank) {
            to[k].location = 2;
        }
    }
    return dpar_neighbours_cost(to, k, 1, NULL);
}

static void show_traffic(fem *part)
{
    enum { TIMES = 50, ROUNDS = 7 };
    static char buffer[20000];
    double least = 1e30, expected = 0.0;
    dpar_text text;
    int round, i;
    dpar_text_init(&text, buffer, sizeof buffer);
    if (part->st == DPAR_OK) {
        part->st = dpar_points_draw(part->points, &text);
    }
    for (round = 0; round < ROUNDS && part->st == DPAR_OK; round++) {
        double spent = now();
        for (i = 0; i < TIMES && part->st == DPAR_OK; i++) {
            part->st = dpar_points_exchange(part->points, part->solution);
        }
        spent = (now() - spent) / TIMES;
        least = spent < least ? spent : least;
    }
    if (part->st == DPAR_OK) {
        expected = dpar_max(part->comm, priced(part));
        least = dpar_max(part->comm, least);
    }
    if (part->st == DPAR_OK && part->comm->rank == 0) {
        printf("\nvalues that ranks send (rows) to ranks (columns) at each exchange\n%s", buffer);
        printf("an exchange of one vector: %.1f us, priced %.1f us at the default rates\n",
               1e6 * least, 1e6 * expected);
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void close_mesh(fem *part)
{
    if (part->st == DPAR_OK) {
        part->st = dpar_points_free(part->points);
    }
    if (part->st == DPAR_OK) {
        part->st = dpar_points_migration_free(part->mesh);
    }
    let_go(part, part->xyz);
    let_go(part, part->begin);
    let_go(part, part->column);
    let_go(part, part->value);
    let_go(part, part->low);
    let_go(part, part->slices);
    let_go(part, part->solution);
    let_go(part, part->right_side);
    let_go(part, part->diagonal);
    let_go(part, part->residual);
    let_go(part, part->direction);
    let_go(part, part->product);
    let_go(part, part->fixed);
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
static double run(fem *part, double coarser)
{
    const double began = now();
    double error, ghosts, most;
    read_mesh(part);
    place(part);
    settle(part);
    build(part);
    if (part->st == DPAR_OK) {
        solve(part);
    }
    error = error_of(part);
    ghosts = dpar_sum(part->comm, (double)(part->local - part->own)) / (double)part->nodes;
    most = dpar_max(part->comm, part->mesh ? (double)part->mesh->element_count : 0.0) *
           part->comm->size;
    if (part->st == DPAR_OK && part->comm->rank == 0) {
        options_progress(part->began, 1.0, NULL);
        printf("%5ld %9ld %10ld %7.1f %% %8.4f %6d   %.5e ", (long)part->cells, (long)part->nodes,
               (long)part->elements, 100.0 * ghosts, most / (double)part->elements,
               (int)part->iterations, error);
        if (coarser > 0.0) {
            printf("%5.2f ", log2_of(coarser / error));
        } else {
            printf("      ");
        }
        printf("%9.3f\n", now() - began);
        fflush(stdout);
    }
    return error;
}

/* Prints whether the errors fall with second order. Returns the exit code. */
static int tell(const request *options, double last, double coarser)
{
    const int meshes = options->meshes;
    const int second = coarser / last >= 3.3636; /* 2^1.75 */
    if (meshes > 1) {
        printf("\n%s\n", second ? "second order: yes" : "second order: NO");
    }
    if (options->exact) {
        printf("error %.17g\n", last);
    }
#ifndef __OPTIMIZE__
    printf("(compiled without -O2: slow)\n");
#endif
    return options_finish(0) != 0 || (meshes > 1 && !second);
}

/* What each rank runs. */
static int work(dpar_comm *comm, void *arg)
{
    const request *const options = (const request *)arg;
    double error = 0.0, coarser = 0.0, done = 0.0, all = 0.0;
    const double began = now();
    int k;
    for (k = 0; k < options->meshes; k++) {
        const double n = options->cells >> k;
        all += n * n * n * n;
    }
    if (comm->rank == 0) {
        printf("fem: %d rank%s, engine %s\n\n", (int)comm->size, comm->size > 1 ? "s" : "",
               comm->engine.name);
        printf(
            "cells     nodes   elements    ghosts  balance  iter.   error in L2 order   seconds\n");
    }
    for (k = options->meshes - 1; k >= 0; k--) {
        fem part;
        memset(&part, 0, sizeof part);
        part.options = options;
        part.comm = comm;
        part.cells = options->cells >> k;
        part.began = began;
        part.done = done;
        part.all = all;
        coarser = error;
        error = run(&part, coarser);
        if (k == 0 && options->traffic) {
            show_traffic(&part);
        }
        close_mesh(&part);
        if (part.st != DPAR_OK) {
            return dpar_fail(comm, part.why.text[0] != 0 ? &part.why : NULL);
        }
        done += (double)part.cells * (double)part.cells * (double)part.cells * (double)part.cells;
    }
    return comm->rank == 0 ? tell(options, error, coarser) : 0;
}

/* Reads the command line (start_read of apps/start.h). */
static int reads(int argc, char **argv, int *ranks, void *at)
{
    request *options = (request *)at;
    const option list[] = {{"--cells", OPTION_INT, &options->cells, 4, 256},
                           {"--meshes", OPTION_INT, &options->meshes, 1, MESHES},
                           {"--tolerance", OPTION_REAL, &options->tolerance, 1e-14, 0.1},
                           {"--traffic", OPTION_FLAG, &options->traffic, 0, 0},
                           {"--exact", OPTION_FLAG, &options->exact, 0, 0},
                           {"--ranks", OPTION_INT, &options->ranks, 1, RANKS}};
    int code = options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
    code = code < 0 ? start_ranks(ranks, options->ranks) : code;
    if (code >= 0) {
        return code;
    }
    *ranks = *ranks > 0 ? *ranks : 1;
    if (*ranks > RANKS) {
        return complain("fem runs on at most 64 ranks", NULL);
    }
    if (options->cells >> (options->meshes - 1) < 2 ||
        options->cells >> (options->meshes - 1) << (options->meshes - 1) != options->cells) {
        char text[120];
        snprintf(text, sizeof text,
                 "--cells %d cannot be halved %d times to 2 or more, as --meshes %d needs",
                 options->cells, options->meshes - 1, options->meshes);
        return complain(text, NULL);
    }
    return -1;
}

int main(int argc, char **argv)
{
    request options = {32, 4, 0, 0, 0, 1e-11};
    return start(argc, argv, reads, work, &options);
}
