/* SPDX-License-Identifier: MIT-0 */
/* Tests halo exchanges against the whole grid by brute force: random grids, cuts (empty, nested,
 * uneven), widths, staggering, folds and fields in random memory. Predicts every byte of every
 * array from the global index of its point, by the definitions of halo.h and without transfer
 * lists: halos with an image get its value, all else (own points, padding, cells beyond the end) is
 * unchanged. Computes the adjoint by adding up over all ranks what their halos hold, and its dot
 * product. Kills ranks, or makes them late, at a random moment of an exchange. Plans of shared
 * points and plans over narrower halos are predicted by the same rules with other points; fields in
 * a device's memory, which traps all accesses except by its table's functions, like any other.
 * cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/halo/ranks/halo_oracle.c -o halo_oracle
 *     ./halo_oracle [threads] [long] [RANKS|FROM-TO] [seed=S]   a failure prints the seed */
#include "dpar_debug.h"
#include "axes.h"
#include "halo_plans.h"
#include "run_oracle.h"

#include "layout_oracle.h"

#include <sys/time.h>

/* Combines the values of all holders of a point and gives the result to all of them. */
static dpar_status assemble(dpar_halo_plan *x, int32_t op)
{
    const dpar_status s = dpar_halo_plan_reduce(x, op);
    return s == DPAR_OK ? dpar_halo_plan_exchange(x) : s;
}

enum { FIELDS = 4, MOST = 6000, GUARDS = 64, PLANS = 2, CASES = 12 };

/* One field. Members up to `rank's own` are equal on all ranks. */
typedef struct field {
    dpar_halo h, near; /* near: that of the plan if it is narrower than the array */
    int type, comps, vector, wire, compact; /* wire 0: same as the type */
    int pair; /* 1: the next field is its v; 2: the previous one is its u */
    /* rank's own: */
    int has, dense, registered, elsewhere;
    int64_t own[DPAR_MAX_DIMS][2], box[DPAR_MAX_DIMS][2]; /* of points */
    int64_t stride[DPAR_MAX_DIMS], origin[DPAR_MAX_DIMS], comp_stride;
    int64_t data, slabs; /* bytes from the block's beginning: index 0 of the array; the halos */
    size_t bytes;
    unsigned char *block[2], *want; /* two arrays, bound in turns */
} field;

typedef struct grid {
    uint64_t seed;
    int n; /* number of ranks */
    dpar_layout l;
    int64_t cuts[DPAR_MAX_AXES][ORACLE_RANKS + 1];
    int64_t cells[ORACLE_RANKS][DPAR_MAX_DIMS][2]; /* blocks; empty if hi <= lo */
    int cube, owners;
    int plain;                       /* cells on the host, one dim cut, corners */
    int sync, narrower;              /* plans of shared points; plans over narrower halos */
    int32_t owner[2 * ORACLE_RANKS]; /* of the mesh's blocks; -1 if masked */
    int group[ORACLE_RANKS]; /* ranks with the same coordinates in axes that do not cut; -1 */
    int fields;
    field f[FIELDS];
    struct device *device; /* the memory of fields on a device */
} grid;

/* ---- the whole grid -------------------------------------------------------------------------- */

static int64_t ring(int64_t i, int64_t n)
{
    return (i % n + n) % n;
}

static int64_t points_of(const dpar_halo *h, int d)
{
    int64_t n = h->grid.extent[d];
    int closed = (h->periodic >> d & 1) != 0 || (h->cube && d >= h->grid.dims - 2);
    return n > 0 && h->points[d] != DPAR_HALO_AT_CELLS && !closed ? n + 1 : n;
}

static const int normal[6][3] = {{1, 0, 0},  {0, 1, 0},  {0, 0, 1},
                                 {-1, 0, 0}, {0, -1, 0}, {0, 0, -1}};
static const int right[6][3] = {{0, 1, 0},  {-1, 0, 0}, {-1, 0, 0},
                                {0, 0, -1}, {0, 0, -1}, {0, 1, 0}};
static const int up[6][3] = {{0, 0, 1}, {0, 0, 1}, {0, -1, 0}, {0, -1, 0}, {1, 0, 0}, {1, 0, 0}};

/* Carries a point around an edge of a cube whose faces are arranged as in halo.h: the point at[] (0
 * along x, 1 along y, from the middle) beyond the edge k, sign, moves to the face that it meets
 * there, or onto that edge. Coordinates are doubled so that all are whole. Returns the quarter
 * turns. */
static int bend(int64_t n, int k, int sign, int64_t *face, int64_t *at)
{
    int64_t p[3], a = 0, b = 0;
    int d, to, east = 0, north = 0, was = (int)*face;
    for (to = 0; to < 6; to++) { /* the face on the other side of the edge */
        for (d = 0; d < 3 && normal[to][d] == sign * (k ? up : right)[was][d]; d++) {
        }
        if (d == 3) {
            break;
        }
    }
    for (d = 0; d < 3; d++) {
        p[d] = (n - (sign * at[k] - n)) * normal[was][d] + n * normal[to][d] +
               at[!k] * (k ? right : up)[was][d];
    }
    for (d = 0; d < 3; d++) {
        a += p[d] * right[to][d];
        b += p[d] * up[to][d];
    }
    /* its rightward direction, turned with the face about the edge: normal to normal */
    for (d = 0; d < 3; d++) {
        int e, along = 0, over = 0, turned;
        for (e = 0; e < 3; e++) {
            along += right[to][e] * (k ? right : up)[was][e];
            over += right[to][e] * normal[was][e];
        }
        turned = along * (k ? right : up)[was][d] - over * normal[to][d];
        east += turned * right[was][d];
        north += turned * up[was][d];
    }
    *face = to;
    at[0] = a;
    at[1] = b;
    return east == 1 ? 0 : north == 1 ? 1 : east == -1 ? 2 : 3;
}

/* Finds the point at the place of x, beyond an edge or on one that another face owns. Returns 0
 * where three faces meet. */
static int cube_image(const dpar_halo *h, int64_t *x, int *turns)
{
    int64_t n = h->grid.extent[h->grid.dims - 1], at[2];
    int last = h->grid.dims - 1, offset[2], beyond[2], k, turned, hops;
    for (k = 0; k < 2; k++) { /* points in their cells */
        int points = h->points[last - k];
        offset[k] = points == DPAR_HALO_AT_CELLS ? 1 : points == DPAR_HALO_AT_LOW_FACES ? 0 : 2;
    }
    for (hops = 0; hops < 3; hops++) {
        for (k = 0; k < 2; k++) {
            at[k] = 2 * x[last - k] + offset[k] - n;
            beyond[k] = at[k] < -n ? -1 : at[k] > n;
        }
        if (beyond[0] && beyond[1]) {
            return 0;
        }
        for (k = 0; k < 2 && !beyond[0] && !beyond[1]; k++) { /* on an edge */
            beyond[k] = x[last - k] < 0 ? -1 : x[last - k] >= n;
        }
        if (!beyond[0] && !beyond[1]) {
            return 1;
        }
        k = beyond[1] != 0;
        turned = bend(n, k, beyond[k], &x[0], at);
        *turns = (*turns + turned) % 4;
        k = offset[0];
        offset[0] = turned % 2 ? offset[1] : k;
        offset[1] = turned % 2 ? k : offset[1];
        x[last] = (at[0] + n - offset[0]) / 2;
        x[last - 1] = (at[1] + n - offset[1]) / 2;
    }
    return 0;
}

/* Maps a point beyond a fold or a pole, or on a fold's row that exists twice. */
static void turn_over(const dpar_halo *h, int64_t *x, int *turns)
{
    int64_t n = points_of(h, h->fold), columns = points_of(h, h->mirror);
    int64_t i = ring(x[h->mirror], columns), other = ring(columns - 1 + h->shift - i, columns);
    int64_t j = x[h->fold];
    int low = (h->pole_rows & DPAR_HALO_POLE_LOW) != 0,
        high = (h->pole_rows & DPAR_HALO_POLE_HIGH) != 0;
    if ((h->poles & DPAR_HALO_POLE_LOW) && j < 0) {
        x[h->fold] = low - 1 - j;
        x[h->mirror] = i + columns / 2;
        *turns = 2;
    } else if (h->folds && j >= n - h->on_row &&
               (j >= n || other < i)) { /* the first half counts */
        x[h->fold] = 2 * (n - 1) + 1 - h->on_row - j;
        x[h->mirror] = other;
        *turns = 2;
    } else if ((h->poles & DPAR_HALO_POLE_HIGH) && j >= n) {
        x[h->fold] = 2 * (n - 1) + 1 - high - j;
        x[h->mirror] = i + columns / 2;
        *turns = 2;
    }
}

/* Replaces x by the point that its value comes from; returns 0 if there is none. *turns is the
 * quarter turns of a vector. */
static int image(const dpar_halo *h, int64_t *x, int *turns)
{
    int d;
    *turns = 0;
    if (h->cube && !cube_image(h, x, turns)) {
        return 0;
    }
    if (h->folds || h->poles) {
        turn_over(h, x, turns);
    }
    for (d = 0; d < h->grid.dims; d++) {
        int64_t n = points_of(h, d);
        if (h->periodic >> d & 1) {
            x[d] = ring(x[d], n);
        }
        if (x[d] < 0 || x[d] >= n) {
            return 0;
        }
    }
    return 1;
}

/* Sets the points that a rank owns and those that its array holds; returns 0 if there are none. */
static int boxes_of(const grid *g, const dpar_halo *h, int rank, int64_t (*own)[2],
                    int64_t (*box)[2])
{
    int d;
    for (d = 0; d < h->grid.dims; d++) {
        int64_t n = h->grid.extent[d];
        own[d][0] = g->cells[rank][d][0];
        own[d][1] = g->cells[rank][d][1];
        if (own[d][1] <= own[d][0]) {
            return 0;
        }
        if (points_of(h, d) > n && h->points[d] == DPAR_HALO_AT_LOW_FACES) {
            own[d][1] += own[d][1] == n;
        } else if (points_of(h, d) > n) {
            own[d][0] += own[d][0] > 0;
            own[d][1]++;
        }
        box[d][0] = own[d][0] - h->low[d];
        box[d][1] = own[d][1] + h->high[d];
    }
    return 1;
}

static int is_in(int dims, const int64_t (*box)[2], const int64_t *x)
{
    int d;
    for (d = 0; d < dims && x[d] >= box[d][0] && x[d] < box[d][1]; d++) {
    }
    return d == dims;
}

/* Returns 1 if some rank of this rank's copy of the grid owns point x. */
static int exists(const grid *g, const dpar_halo *h, int rank, const int64_t *x)
{
    int64_t own[DPAR_MAX_DIMS][2], box[DPAR_MAX_DIMS][2];
    int r;
    for (r = 0; r < g->n; r++) {
        if (g->group[r] == g->group[rank] && boxes_of(g, h, r, own, box) &&
            is_in(g->l.dims, own, x)) {
            return 1;
        }
    }
    return 0;
}

/* Returns 1 if an exchange writes point x of the array of `rank`, which owns `own`. from[] is its
 * image. */
static int is_written(const grid *g, const dpar_halo *h, int rank, const int64_t (*own)[2],
                      const int64_t *x, int64_t *from, int *turns)
{
    int d, outside = 0;
    memcpy(from, x, DPAR_MAX_DIMS * sizeof *x);
    for (d = 0; d < h->grid.dims; d++) {
        outside += x[d] < own[d][0] || x[d] >= own[d][1];
    }
    for (d = 0; d < h->grid.dims && g->narrower; d++) { /* h is a part of a field */
        const dpar_halo *near = &((const field *)(const void *)h)->near;
        if (x[d] < own[d][0] - near->low[d] || x[d] >= own[d][1] + near->high[d]) {
            return 0;
        }
    }
    for (d = 0; d < h->grid.dims && g->sync; d++) { /* the faces of own cells */
        if (x[d] < own[d][0] - (h->points[d] == DPAR_HALO_AT_HIGH_FACES) ||
            x[d] >= own[d][1] + (h->points[d] == DPAR_HALO_AT_LOW_FACES) ||
            ((h->periodic >> d & 1) == 0 && (!h->cube || d < h->grid.dims - 2) &&
             (x[d] < 0 || x[d] >= points_of(h, d)))) {
            return 0;
        }
    }
    if (!g->sync && ((outside > 1 && h->shape == DPAR_STENCIL_STAR) ||
                     (outside > 2 && h->shape == DPAR_STENCIL_EDGES))) {
        return 0;
    }
    return image(h, from, turns) && (outside > 0 || *turns) &&
           (!g->owners || exists(g, h, rank, from));
}

static int next_point(int dims, const int64_t (*box)[2], int64_t *x)
{
    int d;
    for (d = dims - 1; d >= 0; d--) {
        if (++x[d] < box[d][1]) {
            return 1;
        }
        x[d] = box[d][0];
    }
    return 0;
}

static void first_point(int dims, const int64_t (*box)[2], int64_t *x)
{
    int d;
    memset(x, 0, DPAR_MAX_DIMS * sizeof *x);
    for (d = 0; d < dims; d++) {
        x[d] = box[d][0];
    }
}

static int64_t volume_of(int dims, const int64_t (*box)[2])
{
    int64_t v = 1;
    int d;
    for (d = 0; d < dims; d++) {
        v *= box[d][1] - box[d][0];
    }
    return v;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Returns the number of a point: any bits that are not NaN, or small and whole, so that sums are
 * exact. */
static uint64_t number_of(int type, uint64_t h, int whole)
{
    static const int small[8] = {1, -1, 2, -2, 3, -3, 1, -1};
    unsigned char at[8] = {0};
    uint64_t bits = 0;
    double v = whole ? small[h & 7] : (double)((int64_t)h >> 10) / 4503599627370496.0 + 0.25;
    float f = (float)v;
    uint16_t u;
    switch (type) {
    case DPAR_F64: memcpy(at, &v, 8); break;
    case DPAR_F32: memcpy(at, &f, 4); break;
    case DPAR_F16: u = oracle_to_f16(f), memcpy(at, &u, 2); break;
    case DPAR_BF16: u = bf16_of(f), memcpy(at, &u, 2); break;
    case DPAR_F8: at[0] = (unsigned char)h; break;
    default: oracle_write_int(at, type, whole ? (uint64_t)(int64_t)small[h & 7] : h);
    }
    memcpy(&bits, at, 8);
    return bits;
}

static double float_of(int type, uint64_t bits)
{
    unsigned char at[8];
    double v;
    memcpy(at, &bits, 8);
    memcpy(&v, at, 8);
    return type == DPAR_F64 ? v : (double)oracle_read_f32(at, type);
}

static uint64_t bits_of(int type, double v)
{
    unsigned char at[8] = {0};
    float f = (float)v;
    uint64_t bits;
    uint16_t u;
    switch (type) {
    case DPAR_F64: memcpy(at, &v, 8); break;
    case DPAR_F32: memcpy(at, &f, 4); break;
    case DPAR_F16: u = oracle_to_f16(f), memcpy(at, &u, 2); break;
    default: u = bf16_of(f), memcpy(at, &u, 2);
    }
    memcpy(&bits, at, 8);
    return bits;
}

/* Returns the value that is sent: with another sign, rounded to the wire's type. */
static uint64_t travelled(const field *f, uint64_t bits, int negate)
{
    unsigned char at[8] = {0};
    if (f->wire) {
        bits = bits_of(f->type, float_of(f->wire, bits_of(f->wire, float_of(f->type, bits))));
    }
    if (!negate) {
        return bits;
    }
    if (oracle_is_float(f->type)) {
        return bits ^ (UINT64_C(1) << (8 * dpar_type_bytes(f->type) - 1));
    }
    memcpy(at, &bits, 8);
    oracle_write_int(at, f->type, UINT64_C(0) - oracle_read_int(at, f->type));
    memcpy(&bits, at, 8);
    return bits;
}

/* Returns which component becomes component c after these quarter turns, and whether with another
 * sign: (u, v), (-v, u), (-u, -v), (v, -u). */
static int component_of(const field *f, int c, int turns, int *negate)
{
    *negate = f->vector == 1 ? turns == 2 : f->vector == 2 && (turns == 2 || turns == 1 + 2 * c);
    *negate |= f->pair && f->vector && turns == 2 * f->pair - 1;
    return f->vector == 2 && turns % 2 == 1 ? 1 - c : c;
}

/* Returns the field from which field i gets turned values. */
static int source_of(const grid *g, int i, int turns)
{
    return turns % 2 == 0 || g->f[i].pair == 0 ? i : g->f[i].pair == 1 ? i + 1 : i - 1;
}

/* Returns x op y for small whole numbers, exact in every type up to *most. */
static uint64_t combined(int type, int op, uint64_t x, uint64_t y, double *most)
{
    unsigned char a[8] = {0}, b[8] = {0};
    uint64_t bits = 0, i, j;
    if (oracle_is_float(type)) {
        double v = oracle_fold_f64(float_of(type, x), float_of(type, y), op);
        *most = v > *most ? v : -v > *most ? -v : *most;
        return bits_of(type, v);
    }
    memcpy(a, &x, 8);
    memcpy(b, &y, 8);
    i = oracle_read_int(a, type);
    j = oracle_read_int(b, type);
    if (op == DPAR_SUM) {
        i += j;
    } else if (oracle_signed(type)) {
        i = ((int64_t)i < (int64_t)j) == (op == DPAR_MAX) ? j : i;
    } else {
        i = (i < j) == (op == DPAR_MAX) ? j : i;
    }
    oracle_write_int(a, type, oracle_wrap(i, type));
    memcpy(&bits, a, (size_t)dpar_type_bytes(type));
    return bits;
}

static uint64_t hash_of(const grid *g, int f, int64_t round, int rank, const int64_t *x, int comp)
{
    uint64_t h = oracle_mix(g->seed + (uint64_t)f * 77 + (uint64_t)round * 1000003);
    int d;
    for (d = 0; d < g->l.dims; d++) {
        h = oracle_mix(h ^ (uint64_t)(x[d] + 1000));
    }
    return oracle_mix(h + (uint64_t)comp * 31 + (uint64_t)(rank + 1) * 65537);
}

/* ---- random grids ---------------------------------------------------------------------------- */

static int random_mesh(grid *g, uint64_t *s)
{
    static const int32_t rules[] = {DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_FLOOR,
                                    DPAR_SPLIT_RAGGED};
    int32_t axes = 1 + (int32_t)oracle_below(s, 3), size[3], left, a;
    int64_t extent[DPAR_MAX_DIMS];
    int dims = 1 + (int)oracle_below(s, 3), d, blocks, k;
    dpar_placement p[3];
    uint32_t cut = 0;
    dpar_mesh m;
    g->plain = oracle_below(s, 4) == 0;
    g->cube = !g->plain && oracle_below(s, 8) == 0;
    g->owners = !g->plain && oracle_below(s, 4) == 0;
    left = g->n + (g->owners ? (int32_t)oracle_below(s, 4) : 0);
    dims = g->cube ? 3 : g->plain ? 2 + (int)oracle_below(s, 2) : dims;
    dims += dims == 3 && oracle_below(s, 3) == 0;
    for (a = 0; a < axes; a++) {
        size[a] = a == 0 && oracle_below(s, 3) ? left : 1 + (int32_t)oracle_below(s, left);
        size[a] = axes == 2 && left % 2 == 0 && oracle_below(s, 2) ? left / 2 : size[a];
        left /= size[a];
    }
    for (d = 0; d < dims; d++) {
        extent[d] = 1 + oracle_below(s, dims == 1 ? 30 : dims == 2 ? 11 : dims == 3 ? 6 : 4);
        extent[d] = oracle_below(s, 200) == 0 ? 0 : extent[d];
        if (g->plain && d == 0 && oracle_below(s, 3) == 0) {
            extent[d] = 34 + oracle_below(s, 30); /* sides of many rows have loops of their own */
        }
    }
    if (g->cube) {
        extent[0] = 6;
        extent[dims - 2] = extent[dims - 1] = 1 + oracle_below(s, dims == 3 ? 6 : 4);
    }
    d = (int)oracle_below(s, dims);
    for (a = 0; a < axes; a++) {
        d = g->plain ? d : (int)oracle_below(s, dims);
        p[a] = dpar_shard_by(d, rules[oracle_below(s, 4)], 0);
        if (!g->plain && oracle_below(s, 8) == 0) {
            p[a] = dpar_replicate();
            continue;
        }
        if (p[a].rule == DPAR_SPLIT_RAGGED && (cut >> d & 1)) {
            p[a].rule = DPAR_SPLIT_CHUNK;
        }
        if (p[a].rule == DPAR_SPLIT_RAGGED) { /* sorted random cuts; equal ones make empty blocks */
            int64_t *c = g->cuts[a];
            int i, j;
            for (i = 0; i <= size[a]; i++) {
                int64_t v = i == 0 ? 0 : i == size[a] ? extent[d] : oracle_below(s, extent[d] + 1);
                for (j = i; j > 0 && c[j - 1] > v; j--) {
                    c[j] = c[j - 1];
                }
                c[j] = v;
            }
            p[a].cuts = c;
        }
        cut |= 1u << d;
    }
    if (dpar_mesh_init(&m, axis_names(axes), size,
                       oracle_below(s, 2) ? DPAR_ORDER_LAST_FASTEST : DPAR_ORDER_FIRST_FASTEST, 0,
                       NULL) != DPAR_OK) {
        return 0;
    }
    /* each rank has at most one block, in any order; the surplus and some more are masked */
    blocks = m.size;
    for (k = 0; k < blocks || k < g->n; k++) {
        int j = (int)oracle_below(s, k + 1);
        g->owner[k] = g->owner[j];
        g->owner[j] = k < g->n && oracle_below(s, 8) ? k : -1;
    }
    return dpar_layout_init(&g->l, &m, dims, extent, p, NULL) == DPAR_OK;
}

/* Finds the blocks of cells by the definitions of the rules. */
static void find_blocks(grid *g)
{
    int rank, d, a, block;
    for (rank = 0; rank < g->n; rank++) {
        int32_t coord[DPAR_MAX_AXES];
        int list[64];
        memset(g->cells[rank], 0, sizeof g->cells[rank]);
        g->group[rank] = -1;
        block = rank;
        if (g->owners) {
            for (block = 0; block < g->l.mesh.size && g->owner[block] != rank; block++) {
            }
        }
        if (!dpar_mesh_coords(&g->l.mesh, block, coord)) {
            continue;
        }
        for (d = 0; d < g->l.dims; d++) {
            int k = owned(&g->l, coord, d, list);
            g->cells[rank][d][0] = k > 0 ? list[0] : 0;
            g->cells[rank][d][1] = k > 0 ? list[k - 1] + 1 : 0;
        }
        g->group[rank] = 0;
        for (a = 0; a < g->l.mesh.axes; a++) {
            if (g->l.axis[a].kind != DPAR_PLACEMENT_SHARD) {
                g->group[rank] = g->group[rank] * g->l.mesh.axis[a].size + coord[a];
            }
        }
    }
}

static void random_halo(grid *g, dpar_halo *h, uint64_t *s)
{
    int d, dims = g->l.dims, wide = (int)oracle_below(s, 6) == 0;
    memset(h, 0, sizeof *h);
    h->grid = g->l;
    h->cube = g->cube;
    h->owner = g->owners ? g->owner : NULL;
    h->shape = (int32_t)oracle_below(s, 3); /* STAR, BOX, EDGES */
    h->shape = g->plain && h == &g->f[0].h ? DPAR_STENCIL_BOX : h->shape;
    h->periodic = (uint32_t)oracle_below(s, INT64_C(1) << dims);
    h->periodic |= (uint32_t)oracle_below(s, INT64_C(1) << dims);
    for (d = 0; d < dims; d++) {
        int64_t most = wide ? (dims == 1 ? 3 * g->l.extent[d] : g->l.extent[d] + 2) : 3;
        h->low[d] = oracle_below(s, most + 1);
        h->high[d] = oracle_below(s, most + 1);
        h->points[d] = g->cube || g->plain || oracle_below(s, 2) ? DPAR_HALO_AT_CELLS
                                                                 : (int32_t)oracle_below(s, 3);
        h->high[d] += g->sync && h->points[d] == DPAR_HALO_AT_LOW_FACES && h->high[d] == 0;
        h->low[d] += g->sync && h->points[d] == DPAR_HALO_AT_HIGH_FACES && h->low[d] == 0;
    }
    if (g->cube) {
        h->periodic &= ~(1u | 3u << (dims - 2));
        h->low[0] = h->high[0] = 0;
    } else if (!g->plain && dims > 1 && oracle_below(s, 2) == 0) {
        h->folds = (int32_t)oracle_below(s, 2);
        h->poles = (uint32_t)oracle_below(s, h->folds ? 2 : 4);
        h->pole_rows = h->poles & (uint32_t)oracle_below(s, 4);
        h->fold = (int32_t)oracle_below(s, dims - 1);
        h->mirror = h->fold + 1 + (int32_t)oracle_below(s, dims - 1 - h->fold);
        h->periodic = (h->periodic | 1u << h->mirror) & ~(1u << h->fold);
        h->on_row = (int32_t)oracle_below(s, 2);
        h->shift = (int32_t)oracle_below(s, 3) - 1;
    }
}

/* Returns 1 if the field is legal and small enough; then also sets the widths of a narrower
 * plan. */
static int settles(grid *g, field *f, uint64_t *s)
{
    int r;
    for (r = 0; r < g->n; r++) {
        if (boxes_of(g, &f->h, r, f->own, f->box) &&
            volume_of(g->l.dims, (const int64_t(*)[2])f->box) * f->comps > MOST) {
            return 0;
        }
    }
    f->near = f->h;
    for (r = 0; r < g->l.dims; r++) {
        int low = g->sync && f->h.points[r] == DPAR_HALO_AT_HIGH_FACES;
        int high = g->sync && f->h.points[r] == DPAR_HALO_AT_LOW_FACES;
        f->near.low[r] = low + oracle_below(s, f->h.low[r] + 1 - low);
        f->near.high[r] = high + oracle_below(s, f->h.high[r] + 1 - high);
    }
    return dpar_halo_check(&f->h, NULL) == DPAR_OK;
}

static int random_field(grid *g, field *f, uint64_t *s)
{
    static const int types[] = {DPAR_F64,  DPAR_F64, DPAR_F32, DPAR_F32, DPAR_F16,
                                DPAR_BF16, DPAR_I8,  DPAR_U8,  DPAR_I32, DPAR_U32,
                                DPAR_I64,  DPAR_U64, DPAR_F8};
    memset(f, 0, sizeof *f);
    random_halo(g, &f->h, s);
    /* across a low pole to the row that a fold overwrites, whose earlier value is undefined */
    if (f->h.folds && f->h.on_row && f->h.poles &&
        f->h.low[f->h.fold] + (f->h.pole_rows & 1) >= points_of(&f->h, f->h.fold)) {
        return 0;
    }
    f->type = types[oracle_below(s, 13)];
    f->comps = oracle_below(s, 2) ? 1 : 1 + (int)oracle_below(s, 4);
    if (f->type != DPAR_F8 && (f->h.folds || f->h.poles || g->cube) && oracle_below(s, 2)) {
        f->vector = 1 + (g->cube || oracle_below(s, 2));
        f->comps = f->vector == 2 ? 2 : f->comps;
    }
    f->compact = !g->plain && oracle_below(s, 5) == 0 && !g->narrower &&
                 !(g->sync && f->h.shape == DPAR_STENCIL_STAR); /* there are no corners then */
    if ((f->type == DPAR_F64 || f->type == DPAR_F32) && oracle_below(s, 3) == 0) {
        f->wire = f->type == DPAR_F64 ? DPAR_F32 : oracle_below(s, 2) ? DPAR_F16 : DPAR_BF16;
    }
    return settles(g, f, s);
}

/* Makes f the u and v the v of a pair: a C-grid, a D-grid or cells. */
static int random_pair(grid *g, field *f, field *v, uint64_t *s)
{
    int dims = g->l.dims, at = dims - 1 - (int)oracle_below(s, 2), kind, i;
    kind = (int)oracle_below(s, 4);
    kind = kind == 3 ? DPAR_HALO_AT_LOW_FACES : kind;
    f->vector = f->vector != 0;
    f->pair = 1;
    f->h.points[at] = kind;
    *v = *f;
    v->pair = 2;
    v->h.points[at] = DPAR_HALO_AT_CELLS;
    v->h.points[2 * dims - 3 - at] = kind;
    v->h.shape = (int32_t)oracle_below(s, 3);
    v->compact =
        oracle_below(s, 3) == 0 && !g->narrower && !(g->sync && v->h.shape == DPAR_STENCIL_STAR);
    for (i = 1; i < dims; i++) {
        v->h.low[i] = oracle_below(s, 4);
        v->h.high[i] = oracle_below(s, 4);
    }
    for (i = 1; i < 2 * dims; i++) {
        dpar_halo *h = i < dims ? &f->h : &v->h;
        h->high[i % dims] +=
            g->sync && h->points[i % dims] == DPAR_HALO_AT_LOW_FACES && h->high[i % dims] == 0;
        h->low[i % dims] +=
            g->sync && h->points[i % dims] == DPAR_HALO_AT_HIGH_FACES && h->low[i % dims] == 0;
    }
    return settles(g, f, s) && settles(g, v, s);
}

static void random_grid(grid *g, uint64_t seed, int n)
{
    uint64_t s = oracle_mix(seed);
    int i;
    do {
        memset(g, 0, sizeof *g);
        g->seed = seed;
        g->n = n;
    } while (!random_mesh(g, &s));
    find_blocks(g);
    g->sync = !g->plain && oracle_below(&s, 4) == 0;
    g->narrower = oracle_below(&s, 5) == 0;
    g->fields = 1 + (int)oracle_below(&s, FIELDS);
    for (i = 0; i < g->fields; i++) {
        int pair = g->cube && i + 1 < g->fields && oracle_below(&s, 2);
        while (!random_field(g, &g->f[i], &s) ||
               (pair && !random_pair(g, &g->f[i], &g->f[i + 1], &s))) {
        }
        i += pair;
    }
}

/* ---- a device -------------------------------------------------------------------------------- */

/* Memory that may be accessed only by the functions of its table. Boxes wait there for a while; the
 * host's side of each must be pinned. */
enum { QUEUE = 4000, PINS = 200 };
typedef struct device {
    dpar_mem table;
    uint64_t own;
    int regions, queued, pins;
    struct {
        unsigned char *at;
        size_t bytes;
    } region[2 * FIELDS], pinned[PINS];
    dpar_mem_box box[QUEUE];
    const char *wrong;
} device;

static int lies_in(const void *p, const unsigned char *at, size_t bytes)
{
    const unsigned char *q = (const unsigned char *)p;
    return q >= at && q < at + bytes;
}

static void doors(const device *v, int open)
{
    int i;
    for (i = 0; i < v->regions; i++) {
        if (mprotect(v->region[i].at, v->region[i].bytes,
                     open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
            _exit(4);
        }
    }
}

static void shut(const grid *g)
{
    doors(g->device, 0);
}

static void lay_open(const grid *g)
{
    doors(g->device, 1);
}

/* Moves one element by the definition of mem.h. */
static void move_element(const dpar_mem_box *b, unsigned char *to, unsigned char *from)
{
    uint64_t bits = 0, now = 0;
    double most = 0;
    field f;
    memset(&f, 0, sizeof f);
    f.type = b->from_type;
    memcpy(&bits, from, (size_t)dpar_type_bytes(b->from_type));
    f.wire = b->round_type != b->from_type ? b->round_type : DPAR_TYPE_NONE;
    bits = travelled(&f, bits, b->negate);
    if (b->to_type != b->from_type) {
        bits = bits_of(b->to_type, float_of(b->from_type, bits));
    }
    if (b->op != DPAR_COPY) {
        memcpy(&now, to, (size_t)dpar_type_bytes(b->to_type));
        bits = combined(b->to_type, b->op, now, bits, &most);
    }
    memcpy(to, &bits, (size_t)dpar_type_bytes(b->to_type));
    if (b->clear) {
        memset(from, 0, (size_t)dpar_type_bytes(b->from_type));
    }
}

static void move_box(const dpar_mem_box *b)
{
    int64_t at[DPAR_MEM_DIMS] = {0}, to = 0, from = 0;
    int d;
    for (d = 0; d < b->dims; d++) {
        if (b->extent[d] == 0) {
            return;
        }
    }
    do {
        move_element(b, (unsigned char *)b->to + to * dpar_type_bytes(b->to_type),
                     (unsigned char *)b->from + from * dpar_type_bytes(b->from_type));
        for (d = b->dims - 1; d >= 0; d--) {
            to += b->to_stride[d], from += b->from_stride[d];
            if (++at[d] < b->extent[d]) {
                break;
            }
            to -= b->to_stride[d] * b->extent[d], from -= b->from_stride[d] * b->extent[d];
            at[d] = 0;
        }
    } while (d >= 0);
}

static dpar_status device_wait(void *ctx)
{
    device *v = (device *)ctx;
    int i;
    doors(v, 1);
    for (i = 0; i < v->queued; i++) {
        move_box(&v->box[i]);
    }
    v->queued = 0;
    doors(v, 0);
    return DPAR_OK;
}

static dpar_status device_move(void *ctx, const dpar_mem_box *box, int32_t n)
{
    device *v = (device *)ctx;
    int32_t i;
    int k, side;
    for (i = 0; i < n; i++) {
        int here = 0;
        for (side = 0; side < 2; side++) {
            const void *p = side ? box[i].from : box[i].to;
            int known = 0;
            for (k = 0; k < v->regions; k++) {
                here |= lies_in(p, v->region[k].at, v->region[k].bytes);
                known |= lies_in(p, v->region[k].at, v->region[k].bytes);
            }
            for (k = 0; k < v->pins && !known; k++) {
                known = lies_in(p, v->pinned[k].at, v->pinned[k].bytes);
            }
            v->wrong = known ? v->wrong : "a box in memory that is not pinned";
        }
        v->wrong = here ? v->wrong : "a box that is not the device's";
        if (v->queued == QUEUE) {
            (void)device_wait(ctx);
        }
        v->box[v->queued++] = box[i];
    }
    if (oracle_below(&v->own, 3) == 0) {
        (void)device_wait(ctx);
    }
    return DPAR_OK;
}

static dpar_status device_pin(void *ctx, void *memory, int64_t bytes)
{
    device *v = (device *)ctx;
    if (v->pins == PINS) {
        return DPAR_E_ROOM;
    }
    v->pinned[v->pins].at = (unsigned char *)memory;
    v->pinned[v->pins++].bytes = (size_t)bytes;
    return DPAR_OK;
}

static dpar_status device_unpin(void *ctx, void *memory)
{
    device *v = (device *)ctx;
    int i;
    for (i = 0; i < v->pins; i++) {
        if (v->pinned[i].at == (unsigned char *)memory) {
            v->pinned[i] = v->pinned[--v->pins];
            return DPAR_OK;
        }
    }
    v->wrong = "unpinned what was not pinned";
    return DPAR_E_ARG;
}

static void *device_memory(device *v, size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        _exit(4);
    }
    v->region[v->regions].at = (unsigned char *)p;
    v->region[v->regions++].bytes = bytes;
    return p;
}

static device *make_device(uint64_t seed)
{
    device *v = (device *)oracle_memory(sizeof *v);
    memset(v, 0, sizeof *v);
    v->own = seed;
    v->table.ctx = v;
    v->table.move = device_move;
    v->table.wait = device_wait;
    v->table.pin = device_pin;
    v->table.unpin = device_unpin;
    return v;
}

static void free_device(device *v)
{
    int i;
    for (i = 0; i < v->regions; i++) {
        munmap(v->region[i].at, v->region[i].bytes);
    }
    free(v);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* Chooses strides in a random order of the dims and the components, with padding. */
static int64_t random_strides(field *f, int dims, uint64_t *s)
{
    int order[DPAR_MAX_DIMS + 1], i;
    int64_t step = 1;
    for (i = 0; i <= dims; i++) {
        int j = (int)oracle_below(s, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (i = 0; i <= dims; i++) {
        int d = order[i];
        int64_t pad = oracle_below(s, 3) == 0 ? oracle_below(s, 3) : 0;
        if (d == dims) {
            f->comp_stride = step;
            step *= f->comps + pad;
        } else {
            int64_t own = f->own[d][1] - f->own[d][0], low = f->compact ? 0 : f->h.low[d];
            f->stride[d] = step;
            f->origin[d] = low + pad;
            step *= own + low + (f->compact ? 0 : f->h.high[d]) + pad + oracle_below(s, 2);
        }
    }
    return step;
}

static void make_array(oracle *o, grid *g, field *f, uint64_t *s)
{
    int dims = g->l.dims, i;
    int64_t bytes = dpar_type_bytes(f->type), elements = 0, halos = 0, d;
    f->has = boxes_of(g, &f->h, o->world->rank, f->own, f->box);
    f->dense = (int)oracle_below(s, 2);
    f->registered = (int)oracle_below(s, 2);
    f->elsewhere = !g->plain && oracle_below(s, 4) == 0; /* on some ranks, but not on others */
    f->elsewhere = f->pair == 2 ? (f - 1)->elsewhere : f->elsewhere;
    f->registered = f->elsewhere ? 0 : f->registered;
    if (f->has) {
        elements = random_strides(f, dims, s);
        if (f->dense) { /* the defaults: left 0 for the plan */
            elements = f->comps;
            for (d = dims - 1; d >= 0; d--) {
                f->stride[d] = elements;
                f->origin[d] = f->compact ? 0 : f->h.low[d];
                elements *=
                    f->own[d][1] - f->own[d][0] + (f->compact ? 0 : f->h.low[d] + f->h.high[d]);
            }
            f->comp_stride = 1;
        }
        halos = f->compact ? volume_of(dims, (const int64_t(*)[2])f->box) * f->comps : 0;
    }
    f->data = GUARDS;
    f->slabs = f->data + (elements * bytes + 63) / 64 * 64 + GUARDS;
    f->bytes = (size_t)(f->slabs + halos * bytes + GUARDS);
    f->want = (unsigned char *)oracle_memory(f->bytes);
    for (i = 0; i < 2; i++) {
        void *p = NULL;
        if (f->elsewhere) {
            f->block[i] = (unsigned char *)device_memory(g->device, f->bytes);
        } else if (f->registered && dpar_comm_alloc(o->world, (int64_t)f->bytes, &p) == DPAR_OK) {
            f->block[i] = (unsigned char *)p;
        } else {
            f->registered = i == 0 ? 0 : f->registered;
            f->block[i] = (unsigned char *)oracle_memory(f->bytes);
        }
    }
}

static void free_array(oracle *o, field *f)
{
    int i;
    free(f->want);
    for (i = 0; i < 2; i++) {
        if (f->registered) {
            dpar_comm_release(o->world, f->block[i]);
        } else if (!f->elsewhere) {
            free(f->block[i]);
        }
    }
}

/* Returns the byte of component c of point x in the block; -1 where a compact star has no
 * corner. */
static int64_t place_of(const grid *g, const field *f, int rank, const int64_t *x, int c)
{
    int64_t at = c * f->comp_stride, bytes = dpar_type_bytes(f->type);
    int dims = g->l.dims, d, k;
    dpar_box slab;
    if (!f->compact || is_in(dims, f->own, x)) {
        for (d = 0; d < dims; d++) {
            at += (f->origin[d] + x[d] - f->own[d][0]) * f->stride[d];
        }
        return f->data + at * bytes;
    }
    for (k = 0, at = 0; dpar_halo_slab(&f->h, rank, k, &slab); k++) {
        int64_t inside = 0;
        for (d = 0; d < dims && x[d] >= slab.lo[d] && x[d] < slab.hi[d]; d++) {
            inside = inside * (slab.hi[d] - slab.lo[d]) + x[d] - slab.lo[d];
        }
        if (d == dims) {
            return f->slabs + ((at + inside) * f->comps + c) * bytes;
        }
        at += dpar_box_volume(&slab);
    }
    return -1;
}

/* Writes a pattern everywhere and numbers to own points; halos become NaN, or with `all` numbers
 * where they have images. round < 0: small whole ones. */
static void fill(const grid *g, int i, int rank, unsigned char *block, int64_t round, int whole,
                 int all)
{
    const field *f = &g->f[i];
    int64_t x[DPAR_MAX_DIMS], from[DPAR_MAX_DIMS], at;
    size_t bytes = (size_t)dpar_type_bytes(f->type), k;
    int c, turns;
    for (k = 0; k < f->bytes; k++) {
        block[k] = (unsigned char)(k * 29 ^ 0xA5);
    }
    if (!f->has) {
        return;
    }
    first_point(g->l.dims, f->box, x);
    do {
        int mine = is_in(g->l.dims, f->own, x);
        int holds = mine || (all && is_written(g, &f->h, rank, f->own, x, from, &turns));
        for (c = 0; c < f->comps; c++) {
            /* forward all copies of a point hold the same value; what an adjoint collects
             * differs */
            uint64_t bits = number_of(f->type, hash_of(g, i, round, all ? rank : -1, x, c), whole);
            at = place_of(g, f, rank, x, c);
            if (at >= 0 && holds) {
                memcpy(block + at, &bits, bytes);
            } else if (at >= 0) {
                memset(block + at, 0xFF, bytes);
            }
        }
    } while (next_point(g->l.dims, f->box, x));
}

/* Predicts the result of a forward exchange. */
static void foretell(const grid *g, int i, int rank, const unsigned char *block, int64_t round,
                     int whole)
{
    const field *f = &g->f[i];
    int64_t x[DPAR_MAX_DIMS], from[DPAR_MAX_DIMS];
    int c, turns;
    memcpy(f->want, block, f->bytes);
    if (!f->has) {
        return;
    }
    first_point(g->l.dims, f->box, x);
    do {
        if (is_written(g, &f->h, rank, f->own, x, from, &turns)) {
            for (c = 0; c < f->comps; c++) {
                int negate, k = component_of(f, c, turns, &negate), of = source_of(g, i, turns);
                uint64_t bits = number_of(f->type, hash_of(g, of, round, -1, from, k), whole);
                bits = travelled(f, bits, negate);
                memcpy(f->want + place_of(g, f, rank, x, c), &bits,
                       (size_t)dpar_type_bytes(f->type));
            }
        }
    } while (next_point(g->l.dims, f->box, x));
}

/* Adds what one rank's halos of field j give to own points of field i of this one, and their end.
 * *most is the largest number. */
static void collect(const grid *g, int i, int j, int rank, int other, int64_t round, int op,
                    double *most)
{
    const field *f = &g->f[i], *halos = &g->f[j];
    int64_t own[DPAR_MAX_DIMS][2], box[DPAR_MAX_DIMS][2], x[DPAR_MAX_DIMS], to[DPAR_MAX_DIMS];
    size_t bytes = (size_t)dpar_type_bytes(f->type);
    int c, turns;
    if (g->group[other] != g->group[rank] || !boxes_of(g, &halos->h, other, own, box)) {
        return;
    }
    first_point(g->l.dims, box, x);
    do {
        if (!is_written(g, &halos->h, other, own, x, to, &turns)) {
            continue;
        }
        for (c = 0; c < f->comps; c++) {
            if (source_of(g, j, turns) == i && is_in(g->l.dims, f->own, to)) {
                int negate, k = component_of(halos, c, turns, &negate);
                uint64_t y = number_of(f->type, hash_of(g, j, round, other, x, c), 1), now = 0;
                unsigned char *at = f->want + place_of(g, f, rank, to, k);
                memcpy(&now, at, bytes);
                now = combined(f->type, op, now, travelled(f, y, negate), most);
                memcpy(at, &now, bytes);
            }
            if (other == rank && i == j) {
                memset(f->want + place_of(g, f, rank, x, c), 0, bytes);
            }
        }
    } while (next_point(g->l.dims, box, x));
}

static int foretell_adjoint(const grid *g, int i, int rank, const unsigned char *block,
                            int64_t round, int op)
{
    const field *f = &g->f[i];
    double most = 0;
    int other, j;
    memcpy(f->want, block, f->bytes);
    for (other = 0; f->has && other < g->n; other++) {
        for (j = 0; j < g->fields; j++) {
            if (j == i || j == source_of(g, i, 1)) {
                collect(g, i, j, rank, other, round, op, &most);
            }
        }
    }
    return most <= (f->type == DPAR_BF16 ? 256 : f->type == DPAR_F16 ? 2048 : 1e7);
}

/* ---- running --------------------------------------------------------------------------------- */

typedef struct run {
    oracle *o;
    grid *g;
    int plans, now[PLANS]; /* the array that each plan has */
    int quiet;             /* an error is not printed */
    int late;              /* a rank will be late: ranks that only test have no deadline */
    dpar_halo_plan_desc options[PLANS];
    void *memory[PLANS];
    dpar_halo_plan *x[PLANS];
} run;

static const char given_up[] = "another rank has found something wrong";

static void complain(const run *r, int p, const char *what)
{
    const grid *g = r->g;
    int i, d;
    if (r->o->failed++ >= 3) {
        return;
    }
    printf("WRONG rank %d of %d, seed=%llu case %llu: %s; way %d%s, runs of %d\n",
           r->o->world->rank, g->n, (unsigned long long)g->seed / CASES,
           (unsigned long long)g->seed, what, r->options[p].method,
           r->options[p].ordered ? " ordered" : "", (int)r->options[p].run_bytes);
    printf("    %s%s\n", g->sync ? " shared" : "", g->narrower ? " narrower" : "");
    for (i = 0; i < g->fields; i++) {
        const field *f = &g->f[i];
        printf("    field %d%s: %s x %d%s%s%s%s%s, %s, extents", i,
               f->pair ? f->pair == 1 ? " u" : " v" : "", dpar_type_name(f->type), f->comps,
               f->vector ? f->vector == 2 ? " pair" : " vector" : "", f->wire ? " wire" : "",
               f->compact ? " compact" : "", f->registered ? " registered" : "",
               f->elsewhere ? " device" : "",
               f->h.shape == DPAR_STENCIL_STAR  ? "star"
               : f->h.shape == DPAR_STENCIL_BOX ? "box"
                                                : "edges");
        for (d = 0; d < g->l.dims; d++) {
            printf(" %d%s-%d+%d@%d", (int)g->l.extent[d], f->h.periodic >> d & 1 ? "p" : "",
                   (int)f->h.low[d], (int)f->h.high[d], f->h.points[d]);
        }
        if (f->h.folds || f->h.poles) {
            printf(" fold %d: %d %d on_row %d shift %d poles %d rows %d", f->h.folds, f->h.fold,
                   f->h.mirror, f->h.on_row, f->h.shift, (int)f->h.poles, (int)f->h.pole_rows);
        }
        printf("%s%s", f->h.cube ? " cube" : "", f->h.owner ? " owners" : "");
        printf("\n");
    }
    fflush(stdout);
    dpar_comm_abort(r->o->world, DPAR_E_SYSTEM, given_up); /* otherwise the others would wait */
}

static int failed(const run *r, int p, const char *what, dpar_status s)
{
    char text[400];
    if (s == DPAR_OK) {
        return 0;
    }
    if (r->quiet) {
        return 1;
    }
    if (strstr(r->o->world->why.text, given_up) != NULL) {
        r->o->failed++;
        return 1;
    }
    (void)snprintf(text, sizeof text, "%s: %s: %s", what, dpar_status_text(s),
                   r->o->world->why.text);
    complain(r, p, text);
    return 1;
}

/* Compares all bytes of field i with the prediction; prints which point differs. */
static int differs(const run *r, int p, int i, const char *what)
{
    const grid *g = r->g;
    const field *f = &g->f[i];
    const unsigned char *block = f->block[r->now[p]];
    int64_t x[DPAR_MAX_DIMS];
    size_t bytes = (size_t)dpar_type_bytes(f->type), k;
    char text[300], a[40], b[40];
    int c, d, rank = r->o->world->rank, used;
    if (memcmp(block, f->want, f->bytes) == 0) {
        return 0;
    }
    first_point(g->l.dims, f->box, x);
    do {
        for (c = 0; f->has && c < f->comps; c++) {
            int64_t at = place_of(g, f, rank, x, c);
            if (at >= 0 && memcmp(block + at, f->want + at, bytes) != 0) {
                oracle_show(block + at, f->type, a, sizeof a);
                oracle_show(f->want + at, f->type, b, sizeof b);
                used =
                    snprintf(text, sizeof text, "%s: field %d component %d of point", what, i, c);
                for (d = 0; d < g->l.dims; d++) {
                    used += snprintf(text + used, sizeof text - (size_t)used, " %d", (int)x[d]);
                }
                (void)snprintf(text + used, sizeof text - (size_t)used, "%s is %s, expected %s",
                               is_in(g->l.dims, f->own, x) ? " (own)" : "", a, b);
                complain(r, p, text);
                return 1;
            }
        }
    } while (f->has && next_point(g->l.dims, f->box, x));
    for (k = 0; block[k] == f->want[k]; k++) {
    }
    (void)snprintf(text, sizeof text, "%s: byte %d of field %d, which holds no point, was written",
                   what, (int)k, i);
    complain(r, p, text);
    return 1;
}

static int open_plan(run *r, int p)
{
    grid *g = r->g;
    dpar_halo_field fields[FIELDS];
    int64_t bytes = 0;
    dpar_status s;
    int i;
    memset(fields, 0, sizeof fields);
    for (i = 0; i < g->fields; i++) {
        field *f = &g->f[i];
        dpar_halo_field *to = &fields[i];
        to->halo = &f->h;
        to->type = f->type, to->vector = f->vector, to->wire_type = f->wire;
        to->components = f->comps;
        to->pair = f->pair;
        to->data = f->has ? f->block[r->now[p]] + f->data : NULL;
        /* whether it is compact is equal on all ranks */
        to->compact_halo = f->compact ? f->block[r->now[p]] + f->slabs : NULL;
        if (!f->dense) {
            memcpy(to->stride, f->stride, sizeof to->stride);
            memcpy(to->first, f->origin, sizeof to->first);
            to->component_stride = f->comp_stride;
        }
        to->mem = f->elsewhere ? &g->device->table : NULL;
        if (g->narrower) {
            to->halo = &f->near;
            to->array_halo = &f->h;
        }
    }
    shut(g);
    s = plan_bytes(r->o->world, fields, g->fields, &r->options[p], &bytes, &r->o->world->why);
    if (failed(r, p, "bytes", s)) {
        lay_open(g);
        return 0;
    }
    r->memory[p] = NULL;
    if (posix_memalign(&r->memory[p], 64, (size_t)bytes + 64) != 0) {
        _exit(3);
    }
    memset((char *)r->memory[p] + bytes, 0x5A, 64);
    s = plan_init(r->memory[p], bytes, r->o->world, fields, g->fields, &r->options[p], &r->x[p],
                  &r->o->world->why);
    lay_open(g);
    for (i = 0; i < 64; i++) {
        if (((unsigned char *)r->memory[p])[bytes + i] != 0x5A) {
            complain(r, p, "init wrote behind its memory");
            break;
        }
    }
    return !failed(r, p, "init", s);
}

/* Runs one exchange of each plan in `set`, begun in turn and ended in turn, or backwards. */
static dpar_status exchange_shut(run *r, uint32_t set, int op, int how)
{
    dpar_status s = DPAR_OK;
    int p, k, tests;
    for (p = 0; p < r->plans && s == DPAR_OK; p++) {
        if ((set >> p & 1) == 0) {
            continue;
        }
        oracle_delay(r->o);
        if (how == 0 && op == 0 && set == 1u << p) {
            return dpar_halo_plan_exchange(r->x[p]);
        }
        s = op ? dpar_halo_plan_reduce_begin(r->x[p], op) : dpar_halo_plan_begin(r->x[p]);
        /* some ranks are further than others when the next plan begins */
        tests = how == 3 && r->options[p].ordered ? (int)oracle_below(&r->o->own, 2) * 8 : 0;
        for (; tests > 0 && s == DPAR_OK; tests--) {
            usleep(20);
            s = dpar_halo_plan_test(r->x[p]);
            s = s == DPAR_MORE ? DPAR_OK : s;
        }
    }
    for (k = 0; k < r->plans && s == DPAR_OK; k++) {
        p = (op + how) % 2 != 0 ? r->plans - 1 - k : k;
        tests = how == 2 && !r->late ? 1 << 30 : how == 3 ? (int)oracle_below(&r->o->own, 4) : 0;
        if ((set >> p & 1) == 0) {
            continue;
        }
        oracle_delay(r->o);
        for (s = DPAR_MORE; tests > 0 && s == DPAR_MORE; tests--) {
            s = dpar_halo_plan_test(r->x[p]);
            oracle_delay(r->o);
        }
        if (s == DPAR_OK || s == DPAR_MORE) {
            s = dpar_halo_plan_end(r->x[p]);
        }
    }
    return s;
}

static dpar_status exchange(run *r, uint32_t set, int op, int how)
{
    dpar_status s;
    shut(r->g);
    s = exchange_shut(r, set, op, how);
    lay_open(r->g);
    if (r->g->device->wrong || (r->g->device->queued && s == DPAR_OK)) {
        complain(r, set == 2, r->g->device->wrong ? r->g->device->wrong : "left in the queue");
    }
    return s;
}

/* Gives a plan other arrays than the previous one has: the second plan gets the second arrays. */
static int rebind(run *r, int p)
{
    int i;
    r->now[p] = 1 - r->now[p];
    for (i = 0; i < r->g->fields; i++) {
        field *f = &r->g->f[i];
        unsigned char *block = f->block[r->now[p]];
        if (failed(r, p, "bind",
                   dpar_halo_plan_bind(r->x[p], i, f->has ? block + f->data : NULL,
                                       f->compact ? block + f->slabs : NULL))) {
            return 0;
        }
    }
    return 1;
}

/* Runs the plans in `set` forward or adjoint and checks all bytes. Returns 0 if continuing is
 * useless. */
static int one_round(run *r, int64_t round, uint32_t set, int op, int how)
{
    int rank = r->o->world->rank, i, p;
    for (p = 0; p < r->plans; p++) {
        for (i = 0; i < r->g->fields && (set >> p & 1); i++) {
            fill(r->g, i, rank, r->g->f[i].block[r->now[p]], round * 2 + p, op != 0, op != 0);
        }
    }
    if (failed(r, set == 2, op ? "adjoint" : "forward", exchange(r, set, op, how))) {
        return 0;
    }
    for (p = 0; p < r->plans; p++) {
        for (i = 0; i < r->g->fields && (set >> p & 1); i++) {
            field *f = &r->g->f[i];
            unsigned char *spare = (unsigned char *)oracle_memory(f->bytes);
            fill(r->g, i, rank, spare, round * 2 + p, op != 0, op != 0);
            if (op == 0) {
                foretell(r->g, i, rank, spare, round * 2 + p, 0);
            } else if (!foretell_adjoint(r->g, i, rank, spare, round * 2 + p, op)) {
                free(spare); /* sums that its type does not hold exactly */
                continue;
            }
            free(spare);
            r->o->cases++;
            if (differs(r, p, i, op ? "adjoint" : "forward")) {
                return 0;
            }
        }
    }
    return 1;
}

/* Checks <E x, y> = <x, E' y>, summed over all ranks, for the fields that add exactly. */
static int dot(run *r, int p, int64_t round)
{
    const grid *g = r->g;
    int64_t sum[2] = {0, 0}, all[2], x[DPAR_MAX_DIMS], from[DPAR_MAX_DIMS];
    int rank = r->o->world->rank, i, c, pass, turns;
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < g->fields; i++) {
            fill(g, i, rank, g->f[i].block[r->now[p]], round + pass, 1, pass);
        }
        if (failed(r, p, "dot", exchange(r, 1u << p, pass ? DPAR_SUM : 0, 1))) {
            return 0;
        }
        for (i = 0; i < g->fields; i++) {
            const field *f = &g->f[i];
            if (!f->has || (f->type != DPAR_F64 && f->type != DPAR_I64)) {
                continue;
            }
            first_point(g->l.dims, f->box, x);
            do {
                int mine = is_in(g->l.dims, f->own, x);
                for (c = 0; c < f->comps; c++) {
                    /* forward: E x times y; adjoint: E' y times x, in own points */
                    uint64_t h = hash_of(g, i, round + !pass, pass ? -1 : rank, x, c), now = 0;
                    uint64_t other = number_of(DPAR_I64, h, 1);
                    if (mine || (!pass && is_written(g, &f->h, rank, f->own, x, from, &turns))) {
                        memcpy(&now, f->block[r->now[p]] + place_of(g, f, rank, x, c), 8);
                        now =
                            f->type == DPAR_F64 ? (uint64_t)(int64_t)float_of(DPAR_F64, now) : now;
                        sum[pass] += (int64_t)now * (int64_t)other;
                    }
                }
            } while (next_point(g->l.dims, f->box, x));
        }
    }
    if (failed(r, p, "all_reduce",
               dpar_all_reduce(r->o->world, sum, all, 2, DPAR_I64, DPAR_SUM, NULL))) {
        return 0;
    }
    r->o->cases++;
    if (all[0] != all[1]) {
        char text[100];
        (void)snprintf(text, sizeof text, "<E x, y> is %lld, <x, E' y> %lld", (long long)all[0],
                       (long long)all[1]);
        complain(r, p, text);
        return 0;
    }
    return 1;
}

/* ---- what a plan reports about itself -------------------------------------------------------- */

/* Moves a point one hop back: dim by dim, the last dim first, it is received from the neighbour
 * along the first dim in which it is outside, which has it in the halos of the other dims; from
 * there on an own point is enough. */
static void last_hop(int dims, const int64_t (*own)[2], const int64_t *x, int64_t *from)
{
    int d, last = -1;
    for (d = 0; d < dims; d++) {
        if ((x[d] < own[d][0] || x[d] >= own[d][1]) && last++ >= 0) {
            from[d] = own[d][0];
        }
    }
}

/* How a plan exchanges: all at once; dim by dim; along one dim with others, along all others
 * locally. */
enum { AT_ONCE, BY_DIMS, ONE_CUT };

/* Takes what is outside along a dim that is not cut from the rank itself. */
static void by_itself(int dims, int cut, const int64_t (*own)[2], const int64_t *x, int64_t *from)
{
    int d;
    for (d = 0; d < dims && (d == cut || (x[d] >= own[d][0] && x[d] < own[d][1])); d++) {
    }
    if (d < dims) {
        from[cut] = own[cut][0];
    }
}

/* Returns the only dim that is cut; -1 if none, -2 if several. */
static int only_cut(const grid *g)
{
    int a, cut = -1;
    for (a = 0; a < g->l.mesh.axes; a++) {
        if (g->l.mesh.axis[a].size > 1 && g->l.axis[a].kind == DPAR_PLACEMENT_SHARD) {
            if (cut >= 0 && cut != g->l.axis[a].dim) {
                return -2;
            }
            cut = g->l.axis[a].dim;
        }
    }
    return cut;
}

/* Returns the points that rank `other` gets in field i from `rank` in each exchange. */
static int64_t flow_of(const grid *g, int i, int rank, int other, int goes)
{
    const dpar_halo *h = &g->f[i].h;
    int64_t own[DPAR_MAX_DIMS][2], box[DPAR_MAX_DIMS][2], x[DPAR_MAX_DIMS], from[DPAR_MAX_DIMS];
    int64_t n = 0;
    int turns;
    if (g->group[other] != g->group[rank] || !boxes_of(g, h, other, own, box)) {
        return 0;
    }
    first_point(g->l.dims, box, x);
    do {
        if (is_written(g, h, other, own, x, from, &turns)) {
            if (goes == BY_DIMS) {
                last_hop(g->l.dims, own, x, from);
            } else if (goes == ONE_CUT) {
                by_itself(g->l.dims, only_cut(g), own, x, from);
            }
            n += is_in(g->l.dims, g->f[source_of(g, i, turns)].own, from);
        }
    } while (next_point(g->l.dims, box, x));
    return n;
}

/* Returns 1 if the fields may be exchanged dim by dim, which folds and compact halos may not. */
static int may_be_ordered(const grid *g)
{
    int i;
    for (i = g->sync ? g->fields : 0; i < g->fields && !g->f[i].h.folds && !g->f[i].h.poles &&
                                      !g->f[i].h.cube && !g->f[i].h.owner && !g->f[i].compact &&
                                      (g->f[i].h.shape != DPAR_STENCIL_EDGES || g->l.dims <= 2);
         i++) {
    }
    return i == g->fields && !g->sync;
}

/* Returns how a plan exchanges by default: all at once unless there are corners and at most one dim
 * is cut. */
static int goes_by_itself(const grid *g)
{
    int i, cut = only_cut(g), corners = 0;
    for (i = 0; i < g->fields; i++) {
        corners |= g->f[i].h.shape != DPAR_STENCIL_STAR;
    }
    return !corners || cut == -2 || !may_be_ordered(g) ? AT_ONCE
           : cut == -1 || cut == g->l.dims - 1         ? BY_DIMS
                                                       : ONE_CUT;
}

/* Adds what a transfer of halo.h's walk adds to own points of field i. */
static void add_box(const grid *g, int i, int rank, const dpar_transfer *t, int64_t round)
{
    const field *f = &g->f[i];
    int64_t own[DPAR_MAX_DIMS][2], box[DPAR_MAX_DIMS][2], k[DPAR_MAX_DIMS], ends[DPAR_MAX_DIMS][2];
    int64_t x[DPAR_MAX_DIMS], to[DPAR_MAX_DIMS];
    size_t bytes = (size_t)dpar_type_bytes(f->type);
    double most = 0;
    int c, d;
    boxes_of(g, &f->h, t->peer, own, box);
    for (d = 0; d < t->dims; d++) {
        ends[d][0] = 0;
        ends[d][1] = t->extent[d];
    }
    first_point(t->dims, ends, k);
    do {
        for (d = 0; d < t->dims; d++) { /* dim d of the receiver is dim `of` of the sender */
            int of = d == t->swap[0] ? t->swap[1] : d == t->swap[1] ? t->swap[0] : d;
            int64_t at = t->flip >> d & 1 ? t->extent[of] - 1 - k[of] : k[of];
            x[d] = box[d][0] + t->theirs[d] + at;
            to[d] = f->box[d][0] + t->mine[d] + k[d];
        }
        for (c = 0; c < f->comps; c++) {
            int negate, mine = component_of(f, c, t->turn, &negate);
            uint64_t y = number_of(f->type, hash_of(g, i, round, t->peer, x, c), 0), now = 0;
            unsigned char *at = f->want + place_of(g, f, rank, to, mine);
            memcpy(&now, at, bytes);
            now = combined(f->type, DPAR_SUM, now, travelled(f, y, negate), &most);
            memcpy(at, &now, bytes);
        }
    } while (next_point(t->dims, ends, k));
}

/* Checks sums of numbers that round: in the order of the walk, whichever rank is first. */
static int in_order(run *r, int p, int64_t round, int how)
{
    const grid *g = r->g;
    int i, rank = r->o->world->rank, turns;
    int64_t x[DPAR_MAX_DIMS], from[DPAR_MAX_DIMS];
    if (r->options[p].ordered || goes_by_itself(g) != AT_ONCE || g->sync || g->narrower) {
        return 1;
    }
    for (i = 0; i < g->fields; i++) {
        fill(g, i, rank, g->f[i].block[r->now[p]], round, 0, 1);
    }
    for (i = 0; i < g->fields; i++) {
        const field *f = &g->f[i];
        dpar_halo_cursor w;
        dpar_transfer t;
        memcpy(f->want, f->block[r->now[p]], f->bytes);
        if (f->pair || !f->has ||
            dpar_halo_first(&w, &f->h, rank, DPAR_TRANSFER_SEND, DPAR_HALO_FORWARD, NULL) !=
                DPAR_OK) {
            continue;
        }
        while (dpar_halo_next(&w, &t)) {
            add_box(g, i, rank, &t, round);
        }
        first_point(g->l.dims, f->box, x);
        do {
            int c;
            for (c = 0; c < f->comps && is_written(g, &f->h, rank, f->own, x, from, &turns); c++) {
                memset(f->want + place_of(g, f, rank, x, c), 0, (size_t)dpar_type_bytes(f->type));
            }
        } while (next_point(g->l.dims, f->box, x));
    }
    if (failed(r, p, "in order", exchange(r, 1u << p, DPAR_SUM, how))) {
        return 0;
    }
    for (i = 0; i < g->fields; i++) {
        if (!g->f[i].pair) {
            r->o->cases++;
            if (differs(r, p, i, "adjoint in order")) {
                return 0;
            }
        }
    }
    return 1;
}

/* Returns the first rank whose traffic differs from bytes counted point by point, or g->n. */
static int wrong_traffic(const run *r, const int64_t *said, int goes, int64_t *want)
{
    const grid *g = r->g;
    int k, i;
    for (k = 0; k < g->n; k++) {
        *want = 0;
        for (i = 0; i < g->fields; i++) {
            const field *f = &g->f[i];
            *want += (f->has ? flow_of(g, i, r->o->world->rank, k, goes) : 0) * f->comps *
                     dpar_type_bytes(f->wire ? f->wire : f->type);
        }
        if (said[k] != *want) {
            break;
        }
    }
    return k;
}

static int traffic(const run *r, int p)
{
    int64_t said[ORACLE_RANKS] = {0}, want = 0;
    dpari_hx_traffic t;
    char text[120];
    int k, goes;
    for (k = 0; dpari_hx_traffic_of(r->x[p], k, &t); k++) {
        said[t.peer] += t.bytes;
    }
    r->o->cases++;
    goes = r->options[p].ordered ? BY_DIMS : goes_by_itself(r->g);
    k = wrong_traffic(r, said, goes, &want);
    if (k < r->g->n && !r->options[p].ordered && !r->g->plain) { /* faces, or a device somewhere */
        k = wrong_traffic(r, said, AT_ONCE, &want);
    }
    if (k < r->g->n) {
        (void)snprintf(text, sizeof text, "traffic: %d bytes to rank %d, expected %d", (int)said[k],
                       k, (int)want);
        complain(r, p, text);
        return 0;
    }
    return 1;
}

/* Returns the first byte that an exchange writes in an array of this rank; NULL if none. */
static unsigned char *first_written(const run *r, int p)
{
    const grid *g = r->g;
    int64_t x[DPAR_MAX_DIMS], from[DPAR_MAX_DIMS];
    int i, turns, rank = r->o->world->rank;
    for (i = 0; i < g->fields; i++) {
        const field *f = &g->f[i];
        if (!f->has) {
            continue;
        }
        first_point(g->l.dims, f->box, x);
        do {
            if (is_written(g, &f->h, rank, f->own, x, from, &turns)) {
                return f->block[r->now[p]] + place_of(g, f, rank, x, 0);
            }
        } while (next_point(g->l.dims, f->box, x));
    }
    return NULL;
}

static uint64_t digest(const run *r, int p)
{
    uint64_t h = 1;
    size_t k;
    int i;
    for (i = 0; i < r->g->fields; i++) {
        for (k = 0; k < r->g->f[i].bytes; k++) {
            h = oracle_mix(h ^ r->g->f[i].block[r->now[p]][k]);
        }
    }
    return h;
}

/* Calls compare or agree with arrays locked, which must stay unchanged. */
static dpar_status checks(const run *r, int p, int agrees)
{
    uint64_t before = digest(r, p);
    dpar_status s;
    shut(r->g);
    s = agrees ? dpar_halo_plan_check(r->x[p], DPAR_HALO_STALE, &r->o->world->why)
               : dpar_halo_plan_check(r->x[p], DPAR_HALO_WRONG, &r->o->world->why);
    lay_open(r->g);
    if (digest(r, p) != before) {
        complain(r, p, agrees ? "agree changes an array" : "compare changes an array");
    }
    return s;
}

/* Checks compare: right after an exchange; wrong on all ranks after one bit of a halo was
 * flipped. */
static int compared(const run *r, int p, int victim, int agrees)
{
    int32_t turned = 0, any = 0;
    unsigned char *at = first_written(r, p);
    dpar_status s = checks(r, p, agrees);
    if (failed(r, p, agrees ? "agree" : "compare", s)) {
        return 0;
    }
    if (r->o->world->rank == victim && at != NULL) {
        *at ^= 1;
        turned = 1;
    }
    if (failed(r, p, "all_reduce",
               dpar_all_reduce(r->o->world, &turned, &any, 1, DPAR_I32, DPAR_MAX, NULL))) {
        return 0;
    }
    s = checks(r, p, agrees);
    r->o->cases++;
    if (s != (any ? DPAR_E_MISMATCH : DPAR_OK)) {
        complain(r, p,
                 any ? "compare does not see a turned bit" : "compare sees what is not there");
        return 0;
    }
    if (turned) {
        *at ^= 1;
    }
    return 1;
}

/* Checks that own points hold what an adjoint makes of them, all others what their owners hold. */
static int assembled(run *r, int p, int64_t round)
{
    const grid *g = r->g;
    int i, c, sums = 1;
    int64_t x[DPAR_MAX_DIMS];
    dpar_status s;
    for (i = 0; i < g->fields; i++) {
        fill(g, i, r->o->world->rank, g->f[i].block[r->now[p]], round, 1, 1);
        sums &=
            foretell_adjoint(g, i, r->o->world->rank, g->f[i].block[r->now[p]], round, DPAR_SUM);
    }
    shut(g);
    s = assemble(r->x[p], DPAR_SUM);
    lay_open(g);
    if (failed(r, p, "assemble", s) || failed(r, p, "assembled", checks(r, p, 1))) {
        return 0;
    }
    r->o->cases++;
    for (i = 0; i < g->fields && sums; i++) {
        const field *f = &g->f[i];
        int64_t from[DPAR_MAX_DIMS], at;
        int turns;
        if (!f->has) {
            continue;
        }
        first_point(g->l.dims, f->own, x);
        do {
            for (c = 0; c < f->comps; c++) {
                at = place_of(g, f, r->o->world->rank, x, c);
                if (!is_written(g, &f->h, r->o->world->rank, f->own, x, from, &turns) &&
                    memcmp(f->want + at, f->block[r->now[p]] + at,
                           (size_t)dpar_type_bytes(f->type)) != 0) {
                    complain(r, p, "assemble: another sum");
                    return 0;
                }
            }
        } while (next_point(g->l.dims, f->own, x));
    }
    return 1;
}

/* Checks poison and unpoisoned for numbers that are not NaN. */
static int poisoned(run *r, int p)
{
    const grid *g = r->g;
    dpar_why why;
    dpar_status want;
    int i;
    for (i = 0; i < g->fields; i++) {
        if (!oracle_is_float(g->f[i].type)) {
            return 1;
        }
    }
    shut(g);
    (void)dpar_halo_plan_check(r->x[p], DPAR_HALO_POISON, NULL);
    want = dpar_halo_plan_check(r->x[p], DPAR_HALO_UNFILLED, &why);
    lay_open(g);
    r->o->cases++;
    if (want != (first_written(r, p) != NULL ? DPAR_E_ARG : DPAR_OK)) {
        complain(r, p, "unpoisoned before an exchange");
        return 0;
    }
    if (failed(r, p, "run", exchange(r, 1u << p, 0, 0))) {
        return 0;
    }
    shut(g);
    want = dpar_halo_plan_check(r->x[p], DPAR_HALO_UNFILLED, &why);
    lay_open(g);
    if (want != DPAR_OK) {
        complain(r, p, why.text);
        return 0;
    }
    return 1;
}

static int diagnosed(run *r, int p, int victim)
{
    int i;
    for (i = 0; i < r->g->fields; i++) {
        fill(r->g, i, r->o->world->rank, r->g->f[i].block[r->now[p]], 3000, 0, 0);
    }
    return traffic(r, p) && !failed(r, p, "run", exchange(r, 1u << p, 0, 0)) && poisoned(r, p) &&
           compared(r, p, victim, 0) && compared(r, p, victim, 1);
}

static int is_addable(const grid *g)
{
    int i;
    for (i = 0; i < g->fields && dpari_type_can_reduce(g->f[i].type); i++) {
    }
    return i == g->fields;
}

static int rounds(run *r, uint64_t *s)
{
    static const int ops[] = {DPAR_SUM, DPAR_SUM, DPAR_MAX, DPAR_MIN};
    int64_t k, n = 3 + oracle_below(s, 5);
    int good = 1, adds = is_addable(r->g);
    for (k = 0; k < n && good; k++) {
        uint32_t set = 1 + (uint32_t)oracle_below(s, 3);
        int op = adds && oracle_below(s, 3) == 0 ? ops[oracle_below(s, 4)] : 0;
        int how = (int)oracle_below(s, 4), swap = oracle_below(s, 3) == 0;
        good = one_round(r, k, set, op, how);
        good = good && (!swap || (rebind(r, 0) && rebind(r, 1)));
    }
    good = good && (!adds || dot(r, (int)oracle_below(s, 2), 1000));
    good = good && (!adds || assembled(r, (int)oracle_below(s, 2), 2000));
    good = good && (!adds || in_order(r, (int)oracle_below(s, 2), 4000, (int)oracle_below(s, 4)));
    return good && diagnosed(r, (int)oracle_below(s, 2), (int)oracle_below(s, r->g->n));
}

static void one_case(oracle *o, uint64_t seed)
{
    grid *g = (grid *)oracle_memory(sizeof *g);
    uint64_t s = oracle_mix(seed ^ 0x77), own = oracle_mix(seed * 64 + (uint64_t)o->world->rank);
    run r;
    int i, p, good = 1;
    memset(&r, 0, sizeof r);
    r.o = o, r.g = g, r.plans = PLANS;
    random_grid(g, seed, o->world->size);
    g->device = make_device(own + 5);
    for (i = 0; i < g->fields; i++) {
        make_array(o, g, &g->f[i], &own);
    }
    for (p = 0; p < PLANS; p++) {
        static const int64_t runs[] = {0, 1, 16, 1 << 20};
        r.options[p].method = (int32_t)oracle_below(&s, 4);
        r.options[p].ordered = may_be_ordered(g) && oracle_below(&s, 3) == 0;
        r.options[p].shared = g->sync;
        r.options[p].run_bytes = runs[oracle_below(&s, 4)];
        r.options[p].timers = (int32_t)oracle_below(&s, 2);
        r.options[p].tag = 100 + ((seed & 3) == 0 ? p : 0); /* mostly equal */
        r.now[p] = p;
        good = good && open_plan(&r, p);
    }
    good = good && rounds(&r, &s);
    for (p = 0; p < PLANS; p++) {
        if (r.x[p]) {
            dpar_status closed = dpar_halo_plan_free(r.x[p]);
            good = good && !failed(&r, p, "close", closed);
        }
        free(r.memory[p]);
    }
    for (i = 0; i < g->fields; i++) {
        free_array(o, &g->f[i]);
    }
    if (good && (g->device->pins != 0 || g->device->queued != 0)) {
        complain(&r, 0, "memory is still pinned, boxes still wait");
    }
    free_device(g->device);
    free(g);
}

static void cases(oracle *o)
{
    int i;
    for (i = 0; i < CASES && o->failed == 0 && o->world->status == DPAR_OK; i++) {
        one_case(o, o->seed * CASES + (uint64_t)i);
    }
}

/* ---- ranks that do not arrive ---------------------------------------------------------------- */

typedef struct board { /* shared by all ranks */
    uint64_t seed;
    int n, victim, late; /* late: it sleeps past the deadline; otherwise it is killed */
    long after_us;
    struct {
        volatile int told;
        int over;
        dpar_status status, again;
        char text[sizeof(dpar_why)];
    } rank[ORACLE_RANKS];
} board;

static void on_alarm_die(int signal_number)
{
    (void)signal_number;
    kill(getpid(), SIGKILL);
}

static board *sleeper; /* of the process that is late */

/* Sleeps until all others have timed out, however long a busy machine takes for that. */
static void on_alarm_sleep(int signal_number)
{
    int r, i;
    (void)signal_number;
    for (r = 0; r < sleeper->n; r++) {
        for (i = 0; i < 3000 && r != sleeper->victim && !sleeper->rank[r].told; i++) {
            struct timespec t = {0, 10000000};
            nanosleep(&t, NULL);
        }
    }
}

/* Exchanges until one fails, with a barrier now and then for ranks that need nothing of the
 * victim. */
static dpar_status until_it_fails(run *r, uint64_t *s)
{
    dpar_status st = DPAR_OK;
    int p, k;
    for (p = 0; p < PLANS; p++) {
        r->options[p].method = (int32_t)oracle_below(s, 4);
        r->options[p].ordered = may_be_ordered(r->g) && oracle_below(s, 3) == 0;
        r->options[p].shared = r->g->sync;
        r->options[p].tag = 100 + p;
        r->now[p] = p;
        if (!open_plan(r, p)) {
            return r->o->world->status;
        }
    }
    for (k = 1; st == DPAR_OK; k++) {
        uint32_t set = 1 + (uint32_t)oracle_below(s, 3);
        int op = is_addable(r->g) && oracle_below(s, 2) ? DPAR_SUM : 0;
        st = k % 32 != 0 ? exchange(r, set, op, (int)oracle_below(s, 4))
                         : dpar_barrier(r->o->world, NULL);
    }
    return st;
}

static int fault_main(dpar_comm *world, void *arg)
{
    board *b = (board *)arg;
    grid *g = (grid *)oracle_memory(sizeof *g);
    uint64_t s = oracle_mix(b->seed ^ 0x99), own = oracle_mix(b->seed + (uint64_t)world->rank);
    struct itimerval timer;
    oracle o;
    run r;
    int i;
    memset(&o, 0, sizeof o);
    memset(&r, 0, sizeof r);
    memset(&timer, 0, sizeof timer);
    o.world = world, o.own = own;
    r.o = &o, r.g = g, r.plans = PLANS, r.quiet = 1, r.late = b->late;
    random_grid(g, b->seed, world->size);
    g->device = make_device(own + 5);
    for (i = 0; i < g->fields; i++) {
        make_array(&o, g, &g->f[i], &own);
        fill(g, i, world->rank, g->f[i].block[0], 0, 1, 1);
        fill(g, i, world->rank, g->f[i].block[1], 0, 1, 1);
    }
    /* a rank that waits may be kept from its core for a quarter of it: it signals each 0.02 s */
    world->timeout_s = b->late ? 0.8 : world->timeout_s;
    if (world->rank == b->victim) {
        sleeper = b;
        signal(SIGALRM, b->late ? on_alarm_sleep : on_alarm_die);
        timer.it_value.tv_usec = b->after_us;
        setitimer(ITIMER_REAL, &timer, NULL);
    }
    b->rank[world->rank].status = until_it_fails(&r, &s);
    memcpy(b->rank[world->rank].text, world->why.text, sizeof world->why.text);
    b->rank[world->rank].again = dpar_barrier(world, NULL);
    b->rank[world->rank].told = 1;
    for (i = 0; i < PLANS; i++) {
        if (r.x[i]) {
            (void)dpar_halo_plan_free(r.x[i]);
        }
        free(r.memory[i]);
    }
    b->rank[world->rank].over = g->device->queued == 0; /* closed plans move nothing */
    for (i = 0; i < g->fields; i++) {
        free_array(&o, &g->f[i]);
    }
    free_device(g->device);
    free(g);
    return 0;
}

static int judge(const board *b, int n, dpar_status launched, double seconds)
{
    char name[32];
    int r, wrong = 0;
    (void)snprintf(name, sizeof name, "rank %d", b->victim);
    wrong += launched != (b->late ? DPAR_OK : DPAR_E_PEER) || seconds > 20;
    for (r = 0; r < n; r++) {
        const dpar_status want = b->late ? DPAR_E_TIMEOUT : DPAR_E_PEER;
        if (r != b->victim && (!b->rank[r].over || b->rank[r].status != want ||
                               b->rank[r].again != want || strstr(b->rank[r].text, name) == NULL)) {
            printf("WRONG case %llu: rank %d %s after %ld us, rank %d of %d: over %d, %s, then %s: "
                   "%s\n",
                   (unsigned long long)b->seed, b->victim, b->late ? "late" : "killed", b->after_us,
                   r, n, b->rank[r].over, dpar_status_text(b->rank[r].status),
                   dpar_status_text(b->rank[r].again), b->rank[r].text);
            wrong++;
        }
    }
    if (wrong) {
        printf("WRONG case %llu: the launch says %s after %.1f s\n", (unsigned long long)b->seed,
               dpar_status_text(launched), seconds);
    }
    return wrong > 0;
}

/* Checks that if one rank is killed or late at a random moment, all others report its number. */
static void faults(oracle_total *t, uint64_t seed, int n, int count)
{
    board *b =
        (board *)mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double began = oracle_now();
    long wrong = 0;
    int i;
    for (i = 0; i < count; i++) {
        uint64_t s = oracle_mix(seed * 1000 + (uint64_t)i);
        double start = oracle_now();
        dpar_world_desc options;
        dpar_status st;
        memset(b, 0, sizeof *b);
        memset(&options, 0, sizeof options);
        b->seed = seed * 1000 + (uint64_t)i;
        b->n = n;
        b->victim = (int)oracle_below(&s, n);
        b->late = oracle_below(&s, 8) == 0;
        b->after_us = 1 + oracle_below(&s, INT64_C(1) << oracle_below(&s, 17));
        options.timeout_s = 20;
        st = dpar_launch(n, fault_main, b, &options, NULL);
        wrong += judge(b, n, st, oracle_now() - start);
    }
    printf("faults                       %d processes: %d rounds, %ld wrong, %.2f s\n", n, count,
           wrong, oracle_now() - began);
    t->cases += count;
    t->failed += wrong;
    munmap(b, sizeof *b);
}

int main(int argc, char **argv)
{
    static const int plain[4] = {0, DPAR_WORLD_NO_DIRECT, DPAR_WORLD_NO_CMA, DPAR_WORLD_NO_FUTEX};
    oracle_args a;
    oracle_total t = {0, 0, 0};
    oracle base;
    dpar_world_desc options;
    int n, k;
    if (!oracle_read_args(&a, argc, argv)) {
        return 2;
    }
    oracle_base(&base, &a, &options);
#if defined(USE_MPI)
    MPI_Init(&argc, &argv);
    a.to = a.from; /* the ranks that exist */
#endif
    for (n = a.from; n <= a.to; n++) {
        for (k = 0; k < (a.effort ? 100 : 6) && t.failed == 0; k++) {
            base.seed = a.seed + (uint64_t)k;
            base.delays = base.seed % 2 == 1;
            options.disable = plain[base.seed / 2 % 4];
            oracle_launch(&t, "halo", n, cases, &base, &options);
        }
#if !defined(USE_MPI)
        if (!a.threads && n > 1) {
            faults(&t, a.seed, n, a.effort ? 200 : 12);
        }
#endif
    }
#if defined(USE_MPI)
    MPI_Finalize();
#endif
    return oracle_end(&t);
}
