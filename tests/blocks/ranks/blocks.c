/* SPDX-License-Identifier: MIT-0 */
/* Tests exchanges of blocks and their adjoints against brute force. The value of each point is
 * computed from its global index, and what a halo cell must receive from the definitions of periodic
 * dims, folds, poles and cubed spheres, point by point. Random grids, masks, owners and arrays.
 *     ./blocks [processes|threads] [ranks]        without arguments: both, 1 to 6 and 1 to 4 */
#include "dpar_blocks.h"
#include "rank_program.h"
#include "cube_space.h"

enum { CASES = 200, ARRAYS = 3, BLOCKS = 400, POINTS = 1500 };

/* ---- a random case --------------------------------------------------------------------------- */

typedef struct job {
    dpar_blocks_desc desc;
    dpar_halo frame; /* only for cube_position */
    int32_t grid[DPAR_MAX_DIMS], total;
    int64_t size[DPAR_MAX_DIMS];
    unsigned char exists[BLOCKS];
    int32_t owner[BLOCKS];
    dpar_blocks_field field[ARRAYS];
    int32_t type[ARRAYS], arrays, attached[ARRAYS];
    uint32_t salt;
    int again; /* number of the exchange */
} job;

static int64_t ring(int64_t i, int64_t n)
{
    return (i % n + n) % n;
}

static int64_t low_of(const job *j, int32_t d)
{
    return j->desc.halo_low[d] > 0 ? j->desc.halo_low[d] : j->desc.halo;
}

static int64_t high_of(const job *j, int32_t a, int32_t d)
{
    const int64_t high = j->desc.halo_high[d] > 0 ? j->desc.halo_high[d] : j->desc.halo;
    return high + (j->field[a].location[d] != 0);
}

static int64_t points_of(const job *j, int32_t a, int32_t d)
{
    return j->desc.cells[d] + (j->field[a].location[d] != 0 && !j->desc.periodic[d]);
}

/* Draws a number from 0 to n - 1. */
static int64_t pick(uint64_t *seed, int64_t n)
{
    return lot_below(seed, n);
}

static void draw_ends(job *j, uint64_t *seed, int kind)
{
    dpar_blocks_desc *desc = &j->desc;
    const int32_t dims = desc->dims;
    int32_t d;
    for (d = 0; d < dims; d++) {
        desc->periodic[d] = (int32_t)pick(seed, 2);
        desc->halo_low[d] = pick(seed, 3);
        desc->halo_high[d] = pick(seed, 3);
    }
    desc->halo = pick(seed, 2);
    if (kind == 3) { /* a cubed sphere */
        desc->cube = 1;
        desc->cells[0] = 6;
        desc->block[0] = pick(seed, 2);
        desc->cells[dims - 2] = desc->cells[dims - 1] = 2 + pick(seed, 3);
        desc->halo = 0;
        desc->periodic[0] = desc->periodic[dims - 2] = desc->periodic[dims - 1] = 0;
        desc->halo_low[0] = desc->halo_high[0] = 0;
    } else if (kind > 0) { /* a fold, poles, or a fold and a pole */
        desc->fold = (int32_t)pick(seed, dims - 1);
        desc->mirror = desc->fold + 1 + (int32_t)pick(seed, dims - 1 - desc->fold);
        desc->periodic[desc->fold] = 0;
        desc->periodic[desc->mirror] = 1;
        desc->cells[desc->fold] += 3;
        desc->folds = kind == 1;
        if (kind == 2 || pick(seed, 3) == 0) {
            desc->poles = desc->folds ? DPAR_HALO_POLE_LOW : 1u + (uint32_t)pick(seed, 3);
            desc->cells[desc->mirror] = 2 * (1 + pick(seed, 4));
        }
    }
}

static void draw_field(job *j, uint64_t *seed, int32_t a)
{
    static const int32_t types[4] = {DPAR_F64, DPAR_F32, DPAR_I32, DPAR_U8};
    dpar_blocks_field *field = &j->field[a];
    const dpar_blocks_desc *desc = &j->desc;
    int32_t d;
    j->type[a] = types[pick(seed, pick(seed, 2) ? 4 : 1)];
    j->attached[a] = pick(seed, 4) == 0;
    field->components = (int32_t)pick(seed, 4);
    field->planes = (int32_t)pick(seed, 2);
    field->order = pick(seed, 3) ? DPAR_ORDER_LAST_FASTEST : DPAR_ORDER_FIRST_FASTEST;
    if (desc->cube) {
        field->vector = j->type[a] == DPAR_U8 ? 0 : 2 * (int32_t)pick(seed, 2);
        field->components = field->vector ? 2 : field->components;
    } else if (desc->folds || desc->poles) {
        field->vector = j->type[a] == DPAR_U8 ? 0 : (int32_t)pick(seed, 2);
        field->on_row = desc->folds ? (int32_t)pick(seed, 2) : 0;
        field->shift = desc->folds ? (int32_t)pick(seed, 3) - 1 : 0;
        field->pole_rows = desc->poles & (uint32_t)pick(seed, 4);
    } else {
        for (d = 0; d < desc->dims; d++) {
            field->location[d] = pick(seed, 4) == 0;
        }
    }
}

/* Draws a case. All ranks draw the same. */
static void draw(job *j, uint64_t *seed, int ranks)
{
    dpar_blocks_desc *desc = &j->desc;
    const int kind = (int)pick(seed, 8) - 4; /* half of the grids are plain */
    int32_t d, b, a;
    memset(j, 0, sizeof *j);
    j->salt = (uint32_t)lot_next(seed);
    desc->dims = kind == 3 ? 3 + (int32_t)pick(seed, 2)
                           : (kind > 0 ? 2 : 1) + (int32_t)pick(seed, kind > 0 ? 2 : 3);
    for (d = 0; d < desc->dims; d++) {
        desc->cells[d] = 1 + pick(seed, desc->dims > 2 ? 6 : 14);
        desc->block[d] = pick(seed, 6);
    }
    desc->star = (int32_t)pick(seed, 2);
    draw_ends(j, seed, kind > 0 ? kind : 0);
    j->total = 1;
    for (d = 0; d < desc->dims; d++) {
        int64_t size = desc->block[d];
        if (size == 0 || size > desc->cells[d]) {
            size = desc->cube && d == 0 ? 1 : desc->cells[d];
        }
        j->size[d] = size;
        j->grid[d] = (int32_t)((desc->cells[d] + size - 1) / size);
        j->total *= j->grid[d];
        j->frame.grid.extent[d] = desc->cells[d];
    }
    j->frame.grid.dims = desc->dims;
    for (b = 0; b < j->total && b < BLOCKS; b++) {
        j->exists[b] = pick(seed, 5) > 0;
        j->owner[b] = j->exists[b] ? (int32_t)pick(seed, ranks) : -1;
    }
    if (pick(seed, 3) == 0) {
        memset(j->exists, 1, sizeof j->exists);
    } else {
        desc->exists = j->exists;
    }
    if (pick(seed, 2) && desc->exists) {
        desc->owner = j->owner;
    }
    desc->order = (int32_t)pick(seed, 3);
    j->arrays = 1 + (int32_t)pick(seed, ARRAYS);
    for (a = 0; a < j->arrays; a++) {
        draw_field(j, seed, a);
    }
}

/* ---- the oracle ------------------------------------------------------------------------------ */

/* Finds the point on the grid that x is the image of, and for component *c the source's component
 * and sign. Returns 0 if there is none. */
static int image_on_cube(const job *j, int64_t *x, int32_t *c, int vector, int *sign)
{
    const int32_t last = j->desc.dims - 1;
    int64_t p[3], q[3], y[DPAR_MAX_DIMS];
    int direction, other;
    int32_t k;
    if (!cube_position(&j->frame, vector ? *c : 0, x, p, &direction)) {
        return 0;
    }
    memcpy(y, x, sizeof y);
    for (y[0] = 0; y[0] < 6; y[0]++) {
        for (y[last - 1] = 0; y[last - 1] < j->desc.cells[last]; y[last - 1]++) {
            for (y[last] = 0; y[last] < j->desc.cells[last]; y[last]++) {
                for (k = 0; k < (vector ? 2 : 1); k++) {
                    if (!cube_position(&j->frame, k, y, q, &other) || memcmp(p, q, sizeof p) != 0 ||
                        (vector && other != direction && other != -direction)) {
                        continue;
                    }
                    memcpy(x, y, sizeof y);
                    *sign = vector && other != direction ? -1 : 1;
                    *c = vector ? k : *c;
                    return 1;
                }
            }
        }
    }
    return 0;
}

static int image(const job *j, int32_t a, int64_t *x, int32_t *c, int *sign)
{
    const dpar_blocks_desc *desc = &j->desc;
    const dpar_blocks_field *field = &j->field[a];
    int32_t d;
    int turned = 0;
    *sign = 1;
    for (d = 0; d < desc->dims; d++) {
        const int64_t n = points_of(j, a, d), columns = desc->cells[desc->mirror];
        if (desc->cube && (d == 0 || d >= desc->dims - 2)) {
            continue;
        }
        if ((desc->folds || desc->poles) && d == desc->fold) {
            int64_t *i = &x[desc->mirror];
            if (desc->folds && x[d] >= n) {
                turned = 1;
                x[d] = 2 * (n - 1) + 1 - field->on_row - x[d];
                *i = columns - 1 + field->shift - *i;
            } else if (x[d] >= n && (desc->poles & DPAR_HALO_POLE_HIGH)) {
                turned = 1;
                x[d] = 2 * (n - 1) + 1 - ((field->pole_rows & DPAR_HALO_POLE_HIGH) != 0) - x[d];
                *i += columns / 2;
            } else if (x[d] < 0 && (desc->poles & DPAR_HALO_POLE_LOW)) {
                turned = 1;
                x[d] = ((field->pole_rows & DPAR_HALO_POLE_LOW) != 0) - 1 - x[d];
                *i += columns / 2;
            }
            if (desc->folds && field->on_row && x[d] == n - 1) { /* the first of each pair counts */
                const int64_t at = ring(*i, columns);
                const int64_t other = ring(columns - 1 + field->shift - at, columns);
                turned ^= other < at;
                *i = other < at ? other : at;
            }
        }
        x[d] = desc->periodic[d] ? ring(x[d], n) : x[d];
        if (x[d] < 0 || x[d] >= n) {
            return 0;
        }
    }
    if (desc->cube) {
        return image_on_cube(j, x, c, field->vector == 2, sign);
    }
    *sign = turned && field->vector ? -1 : 1;
    return 1;
}

/* Returns the number of the block that owns a point. */
static int32_t block_of(const job *j, const int64_t *x)
{
    int32_t d, b = 0;
    for (d = 0; d < j->desc.dims; d++) {
        int64_t at = x[d] / j->size[d];
        at = at < j->grid[d] ? at : j->grid[d] - 1; /* the last face */
        b = b * j->grid[d] + (int32_t)at;
    }
    return b;
}

/* A point of a block, from its first own point. */
typedef struct place {
    int32_t b;
    int64_t first[DPAR_MAX_DIMS], own[DPAR_MAX_DIMS], l[DPAR_MAX_DIMS];
} place;

static int first_place(const job *j, int32_t a, int32_t b, place *p)
{
    int32_t d, rest = b;
    p->b = b;
    for (d = j->desc.dims - 1; d >= 0; d--) {
        const int64_t left = j->desc.cells[d] - rest % j->grid[d] * j->size[d];
        p->first[d] = rest % j->grid[d] * j->size[d];
        p->own[d] = left < j->size[d] ? left : j->size[d];
        p->own[d] += points_of(j, a, d) > j->desc.cells[d] && left <= j->size[d];
        p->l[d] = -low_of(j, d);
        rest /= j->grid[d];
    }
    return 1;
}

static int next_place(const job *j, int32_t a, place *p)
{
    int32_t d;
    for (d = j->desc.dims - 1; d >= 0; d--) {
        if (++p->l[d] < j->size[d] + high_of(j, a, d)) {
            return 1;
        }
        p->l[d] = -low_of(j, d);
    }
    return 0;
}

/* Returns the number of dims in which a place is outside of its block's own points. */
static int outside(const job *j, const place *p)
{
    int n = 0;
    int32_t d;
    for (d = 0; d < j->desc.dims; d++) {
        n += p->l[d] < 0 || p->l[d] >= p->own[d];
    }
    return n;
}

static int find_source(const job *j, int32_t a, const place *p, int64_t *x, int32_t *c, int *sign)
{
    const int n = outside(j, p);
    int32_t d, faces = 0;
    int64_t was[DPAR_MAX_DIMS];
    memset(x, 0, DPAR_MAX_DIMS * sizeof *x);
    for (d = 0; d < j->desc.dims; d++) {
        x[d] = p->first[d] + p->l[d];
        faces |= j->field[a].location[d] != 0;
        if (p->l[d] >= p->own[d] + high_of(j, a, d)) {
            return 0;
        }
    }
    if (j->desc.star && !faces && n > 1) {
        return 0;
    }
    memcpy(was, x, sizeof was);
    if (!image(j, a, x, c, sign) || (n == 0 && memcmp(was, x, sizeof was) == 0)) {
        return 0;
    }
    return j->exists[block_of(j, x)];
}

/* Returns 1 if an exchange writes component *c of a place, and sets its source. Components of
 * scalars have the same sources, which are found for the first one. */
static int source(const job *j, int32_t a, const place *p, int64_t *x, int32_t *c, int *sign)
{
    static __thread int64_t at[DPAR_MAX_DIMS];
    static __thread int found, turned;
    if (*c == 0 || j->field[a].vector == 2) {
        turned = 1;
        found = find_source(j, a, p, at, c, &turned);
    }
    memcpy(x, at, sizeof at);
    *sign = turned;
    return found;
}

static int64_t number_of(const job *j, int32_t a, const int64_t *x)
{
    int64_t n = 0;
    int32_t d;
    for (d = 0; d < j->desc.dims; d++) {
        n = n * points_of(j, a, d) + x[d];
    }
    return n;
}

static int32_t components_of(const job *j, int32_t a)
{
    return j->field[a].components > 0 ? j->field[a].components : 1;
}

/* The value of an own point. */
static int64_t value(const job *j, int32_t a, const int64_t *x, int32_t c)
{
    const int64_t n = number_of(j, a, x) * 8 + c;
    const uint32_t bits = scrambled(j->salt + (uint32_t)(7 * a + j->again), n);
    return j->type[a] == DPAR_U8 ? (int64_t)(bits % 200) : (int64_t)(bits % 100000) - 50000;
}

/* The value of a halo cell before an exchange. */
static int64_t other_value(const job *j, int32_t a, const place *p, int32_t c)
{
    int64_t n = p->b, x[DPAR_MAX_DIMS];
    int32_t d;
    for (d = 0; d < j->desc.dims; d++) {
        n = n * 40 + p->l[d] + 8;
        x[d] = p->first[d] + p->l[d];
    }
    if (outside(j, p) == 0) {
        return value(j, a, x, c);
    }
    n = (int64_t)(scrambled(j->salt + 1000u + (uint32_t)j->again, n * 8 + c) % 50000);
    return j->type[a] == DPAR_U8 ? n % 256 : n;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static char *address(const dpar_blocks_array *u, int32_t slot, const place *p, int32_t c)
{
    int64_t at = c * u->component_stride;
    int32_t d;
    for (d = 0; d < u->blocks->dims; d++) {
        at += p->l[d] * u->stride[d];
    }
    return (char *)u->block[slot] + at * dpar_type_bytes(u->type);
}

static void put(char *at, int32_t type, int64_t v)
{
    const double f64 = (double)v;
    const float f32 = (float)v;
    const int32_t i32 = (int32_t)v;
    if (type == DPAR_F64) {
        memcpy(at, &f64, 8);
    } else if (type == DPAR_F32) {
        memcpy(at, &f32, 4);
    } else if (type == DPAR_I32) {
        memcpy(at, &i32, 4);
    } else {
        *at = (char)(unsigned char)v;
    }
}

/* Returns 1 if an element has a value, bit for bit. */
static int has(const char *at, int32_t type, int64_t v)
{
    char want[8];
    put(want, type, v);
    if (v == 0 && (type == DPAR_F64 || type == DPAR_F32)) { /* -0 is the value 0 turned */
        return (type == DPAR_F64 ? *(const double *)(const void *)at
                                 : (double)*(const float *)(const void *)at) == 0.0;
    }
    return memcmp(at, want, (size_t)dpar_type_bytes(type)) == 0;
}

static void fill(const job *j, int32_t a, const dpar_blocks_array *u)
{
    int32_t i, c;
    place p;
    for (i = 0; i < u->blocks->count; i++) {
        first_place(j, a, u->blocks->block[i].number, &p);
        do {
            for (c = 0; c < u->components; c++) {
                put(address(u, i, &p, c), u->type, other_value(j, a, &p, c));
            }
        } while (next_place(j, a, &p));
    }
}

/* Counts elements that are not as after an exchange. */
static int64_t check_forward(const job *j, int32_t a, const dpar_blocks_array *u)
{
    int64_t wrong = 0, x[DPAR_MAX_DIMS];
    int32_t i, c;
    place p;
    for (i = 0; i < u->blocks->count; i++) {
        first_place(j, a, u->blocks->block[i].number, &p);
        do {
            for (c = 0; c < u->components; c++) {
                int sign = 1;
                int32_t from = c;
                const int64_t want = source(j, a, &p, x, &from, &sign) ? sign * value(j, a, x, from)
                                                                       : other_value(j, a, &p, c);
                wrong += !has(address(u, i, &p, c), u->type, want);
            }
        } while (next_place(j, a, &p));
    }
    return wrong;
}

static int64_t combined(int32_t op, int64_t a, int64_t b)
{
    if (op == DPAR_SUM) {
        return a + b;
    }
    return op == DPAR_MIN ? (a < b ? a : b) : (a > b ? a : b);
}

/* Counts elements that are not as after an adjoint. */
static int64_t check_adjoint(const job *j, int32_t a, const dpar_blocks_array *u, int32_t op)
{
    int64_t wrong = 0, x[DPAR_MAX_DIMS], points = 1, k;
    int64_t *sum;
    int32_t i, c, d, from;
    place p;
    int sign;
    for (d = 0; d < j->desc.dims; d++) {
        points *= points_of(j, a, d);
    }
    sum = (int64_t *)zeroed(points * u->components * 8);
    for (d = 0; d < 2; d++) { /* the owners' values, then those of halos */
        for (i = 0; i < j->total; i++) {
            if (!j->exists[i]) {
                continue;
            }
            first_place(j, a, i, &p);
            do {
                for (c = 0; c < u->components; c++) {
                    const int64_t v = other_value(j, a, &p, c);
                    from = c;
                    if (d == 1 && source(j, a, &p, x, &from, &sign)) {
                        k = number_of(j, a, x) * u->components + from;
                        sum[k] = combined(op, sum[k], sign * v);
                    } else if (d == 0 && outside(j, &p) == 0) {
                        int32_t e;
                        for (e = 0; e < j->desc.dims; e++) {
                            x[e] = p.first[e] + p.l[e];
                        }
                        sum[number_of(j, a, x) * u->components + c] = v;
                    }
                }
            } while (next_place(j, a, &p));
        }
    }
    for (i = 0; i < u->blocks->count; i++) {
        first_place(j, a, u->blocks->block[i].number, &p);
        do {
            for (c = 0; c < u->components; c++) {
                int64_t want = other_value(j, a, &p, c);
                from = c;
                if (source(j, a, &p, x, &from, &sign)) {
                    want = 0;
                } else if (outside(j, &p) == 0) {
                    for (d = 0; d < j->desc.dims; d++) {
                        x[d] = p.first[d] + p.l[d];
                    }
                    want = sum[number_of(j, a, x) * u->components + c];
                }
                wrong += !has(address(u, i, &p, c), u->type, want);
            }
        } while (next_place(j, a, &p));
    }
    free(sum);
    return wrong;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Makes an array or attaches memory of its own, with strides of its own in some cases. */
static void make_array(const job *j, int32_t a, dpar_blocks *blocks, dpar_blocks_array **u,
                       void **memory, uint64_t *seed)
{
    dpar_blocks_field field = j->field[a];
    const int64_t bytes = dpar_type_bytes(j->type[a]);
    int64_t step, origin = 0;
    void **block;
    int32_t d, k, i;
    const int strided = (int)pick(seed, 2);
    *memory = NULL;
    if (!j->attached[a]) {
        CHECK_INT(dpar_blocks_array_make(blocks, j->type[a], &field, u, NULL), DPAR_OK);
        return;
    }
    step = field.planes ? 1 : components_of(j, a);
    if (strided) {
        step += blocks->comm->rank % 3;
    }
    for (k = 0; k < j->desc.dims; k++) {
        d = field.order == DPAR_ORDER_FIRST_FASTEST ? k : j->desc.dims - 1 - k;
        origin += step * low_of(j, d);
        field.stride[d] = strided ? step : 0;
        step *= j->size[d] + low_of(j, d) + high_of(j, a, d);
    }
    field.component_stride = strided && field.planes ? step : 0;
    step *= field.planes ? components_of(j, a) : 1;
    *memory = zeroed((step + 1) * bytes * (blocks->count + 1));
    block = (void **)zeroed((blocks->count + 1) * (int64_t)sizeof *block);
    for (i = 0; i < blocks->count; i++) { /* in descending order */
        block[i] = (char *)*memory + ((blocks->count - i) * step + origin) * bytes;
    }
    CHECK_INT(dpar_blocks_attach(blocks, block, j->type[a], &field, u, NULL), DPAR_OK);
    free(block);
}

/* Checks the tables of blocks. */
static int64_t check_tables(const job *j, const dpar_blocks *blocks)
{
    int64_t wrong = blocks->total != j->total;
    int32_t i, d, n = 0;
    place p;
    for (i = 0; i < j->total; i++) {
        wrong += (blocks->owner[i] >= 0) != j->exists[i] || blocks->owner[i] >= blocks->comm->size;
        wrong += j->desc.owner && blocks->owner[i] != j->desc.owner[i];
        if (blocks->owner[i] != blocks->comm->rank) {
            continue;
        }
        first_place(j, 0, i, &p);
        wrong += blocks->block[n].number != i;
        for (d = 0; d < j->desc.dims; d++) {
            wrong += blocks->block[n].first[d] != p.first[d];
            wrong += blocks->block[n].count[d] !=
                     (j->desc.cells[d] - p.first[d] < j->size[d] ? j->desc.cells[d] - p.first[d]
                                                                 : j->size[d]);
        }
        n++;
    }
    return wrong + (n != blocks->count);
}

/* Gathers an array whose own points are those of fill, and scatters it again. Points of blocks that
 * do not exist keep what rank 0 has there. */
static int64_t check_whole(job *j, int32_t a, dpar_blocks *blocks, dpar_blocks_array *u)
{
    const int64_t bytes = dpar_type_bytes(u->type);
    int64_t points = 1, n, k, wrong = 0, x[DPAR_MAX_DIMS];
    char *whole = NULL;
    int32_t d, c, i;
    place p;
    for (d = 0; d < j->desc.dims; d++) {
        points *= points_of(j, a, d);
    }
    if (blocks->comm->rank == 0) {
        whole = (char *)zeroed(points * u->components * bytes);
        memset(whole, 77, (size_t)(points * u->components * bytes));
    }
    fill(j, a, u);
    CHECK_INT(dpar_blocks_gather(blocks, u, whole), DPAR_OK);
    for (n = 0; n < points && whole; n++) {
        for (k = n, d = j->desc.dims - 1; d >= 0; d--) {
            x[d] = k % points_of(j, a, d);
            k /= points_of(j, a, d);
        }
        for (c = 0; c < u->components; c++) {
            char *at = whole + (n * u->components + c) * bytes;
            if (j->exists[block_of(j, x)]) {
                wrong += !has(at, u->type, value(j, a, x, c));
            } else {
                wrong += at[0] != 77 || at[bytes - 1] != 77;
            }
        }
    }
    for (i = 0; i < blocks->count; i++) { /* own points are then scattered */
        first_place(j, a, blocks->block[i].number, &p);
        do {
            for (c = 0; c < u->components && outside(j, &p) == 0; c++) {
                put(address(u, i, &p, c), u->type, 1);
            }
        } while (next_place(j, a, &p));
    }
    CHECK_INT(dpar_blocks_scatter(blocks, u, whole), DPAR_OK);
    for (i = 0; i < blocks->count; i++) {
        first_place(j, a, blocks->block[i].number, &p);
        do {
            for (c = 0; c < u->components; c++) {
                wrong += !has(address(u, i, &p, c), u->type, other_value(j, a, &p, c));
            }
        } while (next_place(j, a, &p));
    }
    free(whole);
    return wrong;
}

/* Moves blocks to random owners, or to those that weights select. Values travel, also in halos. */
static int64_t check_move(job *j, dpar_blocks *blocks, dpar_blocks_array **u, uint64_t *seed)
{
    dpar_blocks_move_desc desc;
    dpar_blocks_rebalance_result result;
    double weight[BLOCKS];
    int64_t wrong = 0;
    int32_t a, b, i, c, moved = 0;
    place p;
    const int given = (int)pick(seed, 2);
    memset(&desc, 0, sizeof desc);
    for (b = 0; b < j->total; b++) {
        j->owner[b] = j->exists[b] ? (int32_t)pick(seed, blocks->comm->size) : -1;
        moved += j->exists[b] && j->owner[b] != blocks->owner[b];
    }
    for (i = 0; i < blocks->count; i++) {
        weight[i] = (double)(scrambled(j->salt, blocks->block[i].number) % 16);
    }
    desc.steps = 1;
    desc.weight = given ? NULL : weight;
    desc.owner = given ? j->owner : NULL;
    for (a = 0; a < j->arrays; a++) {
        fill(j, a, u[a]);
    }
    CHECK_INT(dpar_blocks_move(blocks, &desc, &result, NULL), DPAR_OK);
    for (b = 0; b < j->total && given; b++) {
        wrong += blocks->owner[b] != j->owner[b];
    }
    if (given) {
        wrong += result.blocks_moved != moved;
    } else {
        wrong += result.after.imbalance > result.before.imbalance + 1e-9;
        wrong += (result.blocks_moved > 0) != result.pays;
    }
    for (a = 0; a < j->arrays; a++) {
        for (i = 0; i < blocks->count; i++) {
            first_place(j, a, blocks->block[i].number, &p);
            do {
                for (c = 0; c < u[a]->components; c++) {
                    wrong += !has(address(u[a], i, &p, c), u[a]->type, other_value(j, a, &p, c));
                }
            } while (next_place(j, a, &p));
        }
    }
    return wrong;
}

static int64_t run_case(dpar_comm *comm, uint64_t *seed)
{
    static const int32_t ops[3] = {DPAR_SUM, DPAR_MIN, DPAR_MAX};
    job *j = (job *)zeroed(sizeof *j);
    dpar_blocks *blocks = NULL;
    dpar_blocks_array *u[ARRAYS];
    void *memory[ARRAYS];
    int64_t wrong = 0, points = 1;
    dpar_why why;
    int32_t a, d, round, n, fixed = 0;
    dpar_status status;
    draw(j, seed, comm->size);
    for (d = 0; d < j->desc.dims; d++) {
        points *= j->grid[d] * (j->size[d] + low_of(j, d) + high_of(j, 0, d));
    }
    if (j->total > BLOCKS || points > POINTS) {
        free(j);
        return -1;
    }
    status = dpar_blocks_make(comm, &j->desc, &blocks, &why);
    if (status != DPAR_OK) { /* a halo that is too wide for a fold or a periodic dim */
        free(j);
        CHECK_INT(strstr(why.text, "halo") != NULL, 1);
        return -1;
    }
    wrong += check_tables(j, blocks);
    for (a = 0; a < j->arrays; a++) {
        make_array(j, a, blocks, &u[a], &memory[a], seed);
    }
    for (a = 0; a < j->arrays; a++) {
        fixed += j->attached[a];
    }
    for (round = 0; round < 3; round++, j->again++) {
        const int32_t op = ops[pick(seed, 3)];
        if (round == 2 && fixed == 0) {
            wrong += check_move(j, blocks, u, seed);
        }
        for (a = 0; a < j->arrays; a++) {
            fill(j, a, u[a]);
        }
        if (round == 1) {
            status = dpar_blocks_begin(blocks, u, j->arrays);
            for (d = 0; d < 5 && status == DPAR_OK; d++) {
                status = dpar_blocks_test(blocks, u[0]);
                status = status == DPAR_MORE ? DPAR_OK : status;
            }
            CHECK_INT(status, DPAR_OK);
            CHECK_INT(dpar_blocks_end(blocks, u[j->arrays - 1]), DPAR_OK);
        } else {
            CHECK_INT(dpar_blocks_exchange_many(blocks, u, j->arrays), DPAR_OK);
        }
        for (a = 0; a < j->arrays; a++) {
            wrong += check_forward(j, a, u[a]);
        }
        for (n = 0, a = 0; a < j->arrays; a++) {
            n += j->type[a] == DPAR_U8;
        }
        if (n > 0 || round == (int32_t)(j->salt % 2)) { /* two adjoints of three exchanges */
            continue;
        }
        for (a = 0; a < j->arrays; a++) {
            fill(j, a, u[a]);
        }
        CHECK_INT(dpar_blocks_reduce(blocks, u, j->arrays, op), DPAR_OK);
        for (a = 0; a < j->arrays; a++) {
            wrong += check_adjoint(j, a, u[a], op);
        }
    }
    wrong += check_whole(j, 0, blocks, u[0]);
    if (pick(seed, 2)) {
        CHECK_INT(dpar_blocks_array_free(u[0]), DPAR_OK);
    }
    CHECK_INT(dpar_blocks_free(blocks), DPAR_OK);
    for (a = 0; a < j->arrays; a++) {
        free(memory[a]);
    }
    free(j);
    return wrong;
}

static int test(dpar_comm *comm, void *unused)
{
    const double began = now();
    uint64_t seed = 56;
    int64_t wrong = 0;
    int run = 0;
    (void)unused;
    while (run < CASES) {
        const uint64_t was = seed;
        const int64_t mistakes = run_case(comm, &seed);
        run += mistakes >= 0;
        if (mistakes > 0) {
            printf("rank %d: seed %llu: %lld wrong\n", (int)comm->rank, (unsigned long long)was,
                   (long long)mistakes);
            wrong += mistakes;
            break;
        }
    }
    CHECK_INT(wrong, 0);
    return all_right(comm, wrong + failures(), began);
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, test, NULL, 6, 4, NULL);
}
