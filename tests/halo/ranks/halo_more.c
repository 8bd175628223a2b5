/* SPDX-License-Identifier: MIT-0 */
/* Tests what halo_oracle does not predict in halo exchanges: assembly of nodes against a serial
 * loop over all cells, two widths over one array, refusals, a device that fails; and one box of
 * mem.h, element by element.
 * cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/halo/ranks/halo_more.c
 *     ./halo_more [processes|threads] [ranks]        without arguments: both, 1 to 8 and 1 to 4 */
#include "dpar_spatial.h"
#include "dpar_debug.h"
#include "rank_program.h"
#include "halo_grid.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

/* Combines the values of all holders of a point and gives the result to all of them. */
static dpar_status assemble(dpar_halo_plan *x, int32_t op)
{
    const dpar_status s = dpar_halo_plan_reduce(x, op);
    return s == DPAR_OK ? dpar_halo_plan_exchange(x) : s;
}

enum { ROWS = 9 };

/* Checks that every rank refuses with this word in the message; plans in `memory` unless it is
 * NULL. */
static void refused_in(void *memory, dpar_comm *c, const dpar_halo_field *f, int32_t n,
                       const dpar_halo_plan_desc *o, dpar_status status, const char *word)
{
    unsigned char usual[1 << 16];
    unsigned char *at =
        memory ? (unsigned char *)memory : usual + (64 - (uintptr_t)usual % 64) % 64;
    dpar_halo_plan *x = NULL;
    dpar_why why;
    dpar_status st;
    why.text[0] = 0;
    st = plan_init(at, (1 << 16) - 64, c, f, n, o, &x, &why);
    CHECK_INT(st, status);
    CHECK(strstr(why.text, word) != NULL);
    if (strstr(why.text, word) == NULL) {
        printf("    \"%s\" does not say \"%s\"\n", why.text, word);
    }
}

static void refused_all(dpar_comm *c, const dpar_halo_field *f, int32_t n,
                        const dpar_halo_plan_desc *o, dpar_status status, const char *word)
{
    refused_in(NULL, c, f, n, o, status, word);
}

static void refused(dpar_comm *c, const dpar_halo_field *f, const dpar_halo_plan_desc *o,
                    dpar_status status, const char *word)
{
    refused_all(c, f, 1, o, status, word);
}

/* ---- assembly -------------------------------------------------------------------------------- */

/* Returns what cell (j, i) adds to its corner k; whole numbers, or not. */
static double adds(int64_t j, int64_t i, int k, int whole)
{
    uint64_t h = (uint64_t)(j * 1000 + i * 10 + k + 12345) * UINT64_C(0x9E3779B97F4A7C15);
    h ^= h >> 31;
    h *= UINT64_C(0xBF58476D1CE4E5B9);
    return whole ? (double)(h >> 50) : (double)(h >> 11) / 9007199254740992.0 - 0.4;
}

/* Counts how often the blocks of all ranks have node (j, i) among their corners. */
static int holders(const dpar_halo *cells, int32_t ranks, int64_t j, int64_t i, int64_t wrap)
{
    dpar_box b;
    int64_t k;
    int32_t r;
    int n = 0;
    for (r = 0; r < ranks; r++) {
        if (dpar_halo_owned(cells, r, &b) && j >= b.lo[0] && j <= b.hi[0]) {
            for (k = b.lo[1]; k <= b.hi[1]; k++) {
                n += k % wrap == i % wrap;
            }
        }
    }
    return n;
}

/* Checks nodes of a quadrilateral mesh, periodic across or not, together with a field of cells that
 * shares nothing: each rank adds up what its cells have, and assembly adds the rest. */
static void quads(dpar_comm *c, int32_t down, int32_t across, int periodic)
{
    const int64_t extent[2] = {ROWS, COLUMNS};
    dpar_halo nodes, cells;
    dpar_halo_field f[2];
    dpar_halo_plan_desc o;
    dpar_halo_plan *x;
    dpar_box own, all;
    double want[ROWS + 1][COLUMNS + 1] = {{0}}, at[(ROWS + 3) * (COLUMNS + 3)] = {0}, cell[300];
    int64_t j, i, width = 0, wrap = periodic ? COLUMNS : COLUMNS + 1;
    void *memory;
    int k, has;
    memset(&nodes, 0, sizeof nodes);
    memset(f, 0, sizeof f);
    f[0].type = f[1].type = DPAR_F64;
    memset(&o, 0, sizeof o);
    nodes.grid = grid_of(2, extent, down, across);
    nodes.points[0] = DPAR_HALO_AT_LOW_FACES;
    nodes.points[1] = DPAR_HALO_AT_LOW_FACES;
    nodes.high[0] = nodes.high[1] = 1; /* for the other end of the block */
    nodes.periodic = periodic ? 2u : 0u;
    cells = nodes;
    cells.points[0] = cells.points[1] = DPAR_HALO_AT_CELLS;
    cells.low[0] = 1;
    f[0].halo = &cells;
    f[1].halo = &nodes;
    f[0].data = cell;
    f[1].data = at;
    o.shared = 1;
    for (i = 0; i < 300; i++) {
        cell[i] = (double)(i + 1000 * c->rank);
    }
    for (j = 0; j < ROWS; j++) {
        for (i = 0; i < COLUMNS; i++) {
            for (k = 0; k < 4; k++) {
                want[j + k / 2][(i + k % 2) % wrap] += adds(j, i, k, 1);
            }
        }
    }
    has = dpar_halo_box(&nodes, c->rank, &all) && dpar_halo_owned(&cells, c->rank, &own);
    width = has ? all.hi[1] - all.lo[1] : 0;
    for (j = has ? own.lo[0] : 0; has && j < own.hi[0]; j++) {
        for (i = own.lo[1]; i < own.hi[1]; i++) {
            for (k = 0; k < 4; k++) {
                at[(j + k / 2 - all.lo[0]) * width + i + k % 2 - all.lo[1]] += adds(j, i, k, 1);
            }
        }
    }
    x = plan_of(c, f, 2, &o, &memory);
    CHECK_INT(assemble(x, DPAR_SUM), DPAR_OK);
    for (j = has ? own.lo[0] : 0; has && j <= own.hi[0]; j++) {
        for (i = own.lo[1]; i <= own.hi[1]; i++) {
            CHECK(at[(j - all.lo[0]) * width + i - all.lo[1]] == want[j][i % wrap]);
        }
    }
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_STALE, NULL), DPAR_OK);
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_WRONG, NULL), DPAR_OK);
    for (i = 0; i < (ROWS + 3) * (COLUMNS + 3); i++) {
        at[i] = 1;
    }
    CHECK_INT(assemble(x, DPAR_SUM), DPAR_OK); /* the number of holders of a node */
    for (j = has ? own.lo[0] : 0; has && j <= own.hi[0]; j++) {
        for (i = own.lo[1]; i <= own.hi[1]; i++) {
            CHECK(at[(j - all.lo[0]) * width + i - all.lo[1]] ==
                  holders(&cells, c->size, j, i, wrap));
        }
    }
    for (i = 0; i < 300; i++) { /* cells have no shared copies */
        CHECK(cell[i] == (double)(i + 1000 * c->rank));
    }
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
}

/* Checks a line of elements: a node has at most two holders, so the sums have the bits of the
 * serial sums. */
static void line(dpar_comm *c)
{
    const int64_t extent[1] = {41};
    dpar_halo h;
    dpar_halo_field f;
    dpar_halo_plan_desc o;
    dpar_halo_plan *x;
    dpar_box own, all;
    double want[42] = {0}, at[44] = {0};
    void *memory;
    int64_t i;
    int k, has;
    memset(&h, 0, sizeof h);
    memset(&f, 0, sizeof f);
    f.type = DPAR_F64;
    memset(&o, 0, sizeof o);
    h.grid = grid_of(1, extent, c->size, 1);
    h.points[0] = DPAR_HALO_AT_HIGH_FACES;
    h.low[0] = 1;
    f.halo = &h;
    f.data = at;
    o.shared = 1;
    for (i = 0; i < 41; i++) {
        for (k = 0; k < 2; k++) {
            want[i + k] += adds(0, i, k, 0);
        }
    }
    has = dpar_halo_box(&h, c->rank, &all) && dpar_halo_owned(&h, c->rank, &own);
    for (i = 0; has && i < 41; i++) { /* own cells end at own faces */
        for (k = 0; k < 2 && i + 1 >= own.lo[0] + (own.lo[0] == 0) && i + 1 < own.hi[0]; k++) {
            at[i + k - all.lo[0]] += adds(0, i, k, 0);
        }
    }
    x = plan_of(c, &f, 1, &o, &memory);
    CHECK_INT(assemble(x, DPAR_SUM), DPAR_OK);
    for (i = has ? own.lo[0] - (own.lo[0] > 0) : 0; has && i < own.hi[0]; i++) {
        CHECK(memcmp(&at[i - all.lo[0]], &want[i], sizeof(double)) == 0);
    }
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
}

/* ---- two widths ------------------------------------------------------------------------------ */

static void refused_room(dpar_comm *c, const dpar_halo_field *g, dpar_halo *narrow, int64_t low,
                         int faces, dpar_status status, const char *word)
{
    const dpar_halo was = *narrow;
    narrow->low[1] = (int32_t)low;
    narrow->points[0] = faces ? DPAR_HALO_AT_LOW_FACES : DPAR_HALO_AT_CELLS;
    refused(c, g, NULL, status, word);
    *narrow = was;
}

/* Does the same with a contiguous array, whose strides are those of the memory: the narrow plan
 * fills what is within one point, at the same places as the wide one. */
static void dense_widths(dpar_comm *c, const dpar_halo *wide, const dpar_halo *narrow)
{
    dpar_halo_field f[2];
    double at[2][20 * 20];
    dpar_halo_plan *x;
    dpar_box own, all;
    void *memory;
    int64_t i, j;
    int p, k;
    memset(f, 0, sizeof f);
    for (p = 0; p < 2; p++) {
        f[p].halo = p ? narrow : wide;
        f[p].array_halo = p ? wide : NULL;
        f[p].type = DPAR_F64;
        f[p].data = at[p];
        for (k = 0; k < 400; k++) {
            at[p][k] = -1;
        }
        if (dpar_halo_owned(wide, c->rank, &own) && dpar_halo_box(wide, c->rank, &all)) {
            for (j = own.lo[0]; j < own.hi[0]; j++) {
                for (i = own.lo[1]; i < own.hi[1]; i++) {
                    at[p][(j - all.lo[0]) * (all.hi[1] - all.lo[1]) + i - all.lo[1]] =
                        (double)(j * 10 + i);
                }
            }
        }
        x = plan_of(c, &f[p], 1, NULL, &memory);
        CHECK_INT(dpar_halo_plan_exchange(x), DPAR_OK);
        CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_WRONG, NULL), DPAR_OK);
        CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
        free(memory);
    }
    for (k = 0, j = 0; k < 400; k++) {
        CHECK(at[1][k] == at[0][k] || at[1][k] == -1);
        j += at[1][k] != at[0][k];
    }
    CHECK(!dpar_halo_owned(wide, c->rank, &own) || j > 0);
}

/* Checks halos of 3 and of 1 over one array in Fortran's order, padded: each plan fills its own. */
static void widths(dpar_comm *c)
{
    const int64_t extent[2] = {12, 10};
    dpar_halo wide, narrow;
    dpar_halo_field f, g;
    dpar_halo_plan *x[2];
    dpar_box own, all;
    double at[20 * 20];
    void *memory[2];
    int64_t j, i, far;
    int p, k;
    memset(&wide, 0, sizeof wide);
    memset(&f, 0, sizeof f);
    f.type = DPAR_F64;
    wide.grid = grid_of(2, extent, c->size < 4 ? c->size : c->size / 2, c->size < 4 ? 1 : 2);
    wide.shape = DPAR_STENCIL_BOX;
    wide.periodic = 3;
    wide.low[0] = wide.high[0] = wide.low[1] = wide.high[1] = 3;
    narrow = wide;
    narrow.low[0] = narrow.high[0] = narrow.low[1] = narrow.high[1] = 1;
    narrow.shape = DPAR_STENCIL_STAR;
    f.halo = &wide;
    f.data = at;
    f.stride[0] = 1;
    f.stride[1] = 19;
    f.first[0] = 4;
    f.first[1] = 3;
    g = f;
    g.halo = &narrow;
    g.array_halo = &wide;
    x[0] = plan_of(c, &f, 1, NULL, &memory[0]);
    x[1] = plan_of(c, &g, 1, NULL, &memory[1]);
    for (p = 0; p < 2; p++) {
        for (k = 0; k < 400; k++) {
            at[k] = -1;
        }
        if (!dpar_halo_owned(&wide, c->rank, &own) || !dpar_halo_box(&wide, c->rank, &all)) {
            CHECK_INT(dpar_halo_plan_exchange(x[p]), DPAR_OK);
            continue;
        }
        for (j = own.lo[0]; j < own.hi[0]; j++) {
            for (i = own.lo[1]; i < own.hi[1]; i++) {
                at[4 + j - own.lo[0] + 19 * (3 + i - own.lo[1])] = (double)(j * 10 + i);
            }
        }
        CHECK_INT(dpar_halo_plan_exchange(x[p]), DPAR_OK);
        for (j = all.lo[0]; j < all.hi[0]; j++) {
            for (i = all.lo[1]; i < all.hi[1]; i++) {
                const int64_t y = j < own.lo[0]    ? own.lo[0] - j
                                  : j >= own.hi[0] ? j + 1 - own.hi[0]
                                                   : 0;
                const int64_t z = i < own.lo[1]    ? own.lo[1] - i
                                  : i >= own.hi[1] ? i + 1 - own.hi[1]
                                                   : 0;
                far = p ? y + z : y > z ? y : z;
                CHECK(at[4 + j - own.lo[0] + 19 * (3 + i - own.lo[1])] ==
                      (far > (p ? 1 : 3) ? -1 : (double)((j + 12) % 12 * 10 + (i + 10) % 10)));
            }
        }
    }
    for (p = 0; p < 2; p++) {
        CHECK_INT(dpar_halo_plan_free(x[p]), DPAR_OK);
        free(memory[p]);
    }
    refused_room(c, &g, &narrow, 4, 0, DPAR_E_RANGE, "are more than array_halo has");
    refused_room(c, &g, &narrow, 1, 1, DPAR_E_ARG, "array_halo has other points than halo");
    g.compact_halo = at;
    refused(c, &g, NULL, DPAR_E_ARG, "a compact halo has the width of the plan");
    g.compact_halo = NULL;
    narrow.grid.extent[1]++;
    refused(c, &g, NULL, DPAR_E_ARG, "array_halo has a grid of another size");
    narrow.grid.extent[1]--;
    dense_widths(c, &wide, &narrow);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Checks numbers whose sums round: the adjoint adds in one order, with every method. Nothing is
 * lost: the sum of all numbers stays the same except for rounding. */
static void bits(dpar_comm *c)
{
    const int64_t extent[2] = {12, 10};
    static const int32_t way[4] = {DPAR_HALO_AUTO, DPAR_HALO_MESSAGES, DPAR_HALO_PACKED,
                                   DPAR_HALO_DIRECT};
    double first[20 * 20], at[20 * 20], sum[2] = {0, 0}, all[2];
    dpar_halo h;
    dpar_halo_field f;
    dpar_halo_plan_desc o;
    dpar_box box;
    int w, k, n = 1;
    memset(&h, 0, sizeof h);
    memset(&f, 0, sizeof f);
    memset(&o, 0, sizeof o);
    memset(first, 0, sizeof first);
    h.grid = grid_of(2, extent, c->size % 2 ? c->size : c->size / 2, c->size % 2 ? 1 : 2);
    h.shape = DPAR_STENCIL_BOX;
    h.periodic = 3;
    h.low[0] = h.low[1] = h.high[0] = h.high[1] = 2;
    f.halo = &h;
    f.type = DPAR_F64;
    f.data = at;
    n = dpar_halo_box(&h, c->rank, &box) ? (int)dpar_box_volume(&box) : 0;
    o.run_bytes = 8;
    for (w = 0; w < 4; w++) {
        void *memory;
        dpar_halo_plan *x;
        o.method = way[w];
        for (k = 0; k < n; k++) {
            at[k] = (double)((k * 37 + c->rank * 101) % 89 + 1) / 7.0;
            sum[0] += w == 0 ? at[k] : 0.0;
        }
        x = plan_of(c, &f, 1, &o, &memory);
        CHECK_INT(dpar_halo_plan_reduce_begin(x, DPAR_SUM), DPAR_OK);
        CHECK_INT(dpar_halo_plan_end(x), DPAR_OK);
        CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
        free(memory);
        if (w == 0) {
            memcpy(first, at, sizeof first);
        }
        CHECK(memcmp(first, at, (size_t)n * sizeof at[0]) == 0);
    }
    for (k = 0; k < n; k++) {
        sum[1] += first[k];
    }
    CHECK_INT(dpar_all_reduce(c, sum, all, 2, DPAR_F64, DPAR_SUM, NULL), DPAR_OK);
    CHECK(all[0] > 1.0 && all[0] - all[1] < 1e-10 * all[0] && all[1] - all[0] < 1e-10 * all[0]);
}

/* ---- small blocks ---------------------------------------------------------------------------- */

enum { SMALL = 5 * 5 * 5, SMALL_FIELDS = 5 };

/* Arrays of one type or the other, as one rank has them and as all ranks had them. */
typedef struct small_case {
    dpar_halo h;
    double f64[SMALL_FIELDS][SMALL], all_f64[8][SMALL_FIELDS][SMALL];
    float f32[SMALL_FIELDS][SMALL], all_f32[8][SMALL_FIELDS][SMALL];
    double other[SMALL];
} small_case;

static double small_met(double a, double b, int32_t type, int32_t op)
{
    if (op == DPAR_COPY) {
        return b;
    }
    if (op == DPAR_MAX) {
        return a > b ? a : b;
    }
    return type == DPAR_F32 ? (double)((float)a + (float)b) : a + b;
}

/* Lists field f's elements of the walk in its order. */
static void small_walk(small_case *s, dpar_comm *c, int32_t f, int32_t type, int32_t op)
{
    const int32_t direction = op == DPAR_COPY ? DPAR_TRANSFER_RECV : DPAR_TRANSFER_SEND;
    dpar_halo_cursor w;
    dpar_transfer t;
    dpar_box box;
    int64_t n[3], i[3];
    CHECK(dpar_halo_box(&s->h, c->rank, &box)); /* all blocks are equal */
    n[1] = box.hi[1] - box.lo[1], n[2] = box.hi[2] - box.lo[2];
    CHECK_INT(dpar_halo_first(&w, &s->h, c->rank, direction, DPAR_HALO_FORWARD, NULL), DPAR_OK);
    while (dpar_halo_next(&w, &t)) {
        for (i[0] = 0; i[0] < t.extent[0]; i[0]++) {
            for (i[1] = 0; i[1] < t.extent[1]; i[1]++) {
                for (i[2] = 0; i[2] < t.extent[2]; i[2]++) {
                    const int64_t at =
                        ((t.mine[0] + i[0]) * n[1] + t.mine[1] + i[1]) * n[2] + t.mine[2] + i[2];
                    const int64_t there =
                        ((t.theirs[0] + i[0]) * n[1] + t.theirs[1] + i[1]) * n[2] + t.theirs[2] +
                        i[2];
                    if (type == DPAR_F64) {
                        s->f64[f][at] =
                            small_met(s->f64[f][at], s->all_f64[t.peer][f][there], type, op);
                    } else {
                        s->f32[f][at] = (float)small_met(
                            (double)s->f32[f][at], (double)s->all_f32[t.peer][f][there], type, op);
                    }
                }
            }
        }
    }
    CHECK_INT(dpar_halo_first(&w, &s->h, c->rank, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL),
              DPAR_OK);
    while (op != DPAR_COPY && dpar_halo_next(&w, &t)) { /* halos were added, so they are 0 */
        for (i[0] = 0; i[0] < t.extent[0] * t.extent[1] * t.extent[2]; i[0]++) {
            const int64_t x = i[0] % t.extent[2], y = i[0] / t.extent[2] % t.extent[1];
            const int64_t z = i[0] / t.extent[2] / t.extent[1];
            const int64_t at = ((t.mine[0] + z) * n[1] + t.mine[1] + y) * n[2] + t.mine[2] + x;
            s->f64[f][at] = s->f32[f][at] = 0;
        }
    }
}

static dpar_status small_move(void *ctx, const dpar_mem_box *box, int32_t n)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        dpari_mem_move_box(&box[i]);
    }
    (void)ctx;
    return DPAR_OK;
}

/* Checks blocks of 1 to 3 cells in each dim with faces: five fields, the third and the last of F32,
 * the first (with more than two ranks) in a device's memory, are exchanged forward and back.
 * Compares every element with the walks of halo.h in their order, for numbers whose sums round.
 * Then does it again with another array in place of the second. */
static void small(dpar_comm *c)
{
    static const int32_t ops[] = {DPAR_COPY, DPAR_SUM, DPAR_MAX, DPAR_SUM, DPAR_COPY, DPAR_SUM};
    small_case got, want;
    const int64_t cells[3] = {1 + c->size % 3, 2, 2 + c->size / 2 % 2};
    const int32_t cut = c->size % 2;
    dpar_halo_field f[SMALL_FIELDS];
    dpar_halo_plan *x;
    int64_t extent[3];
    void *memory;
    dpar_mem device;
    uint32_t seed = 1 + (uint32_t)c->rank;
    memset(&device, 0, sizeof device);
    device.move = small_move;
    memset(&got, 0, sizeof got);
    memset(f, 0, sizeof f);
    memcpy(extent, cells, sizeof extent);
    extent[cut] *= c->size;
    got.h.grid = grid_of(3, extent, cut == 0 ? c->size : 1, cut == 0 ? 1 : c->size);
    got.h.periodic = 7;
    for (int d = 0; d < 3; d++) {
        got.h.low[d] = got.h.high[d] = 1;
    }
    for (int k = 0; k < SMALL_FIELDS; k++) {
        const int narrow = k % 2 == 0 && k > 0;
        f[k].halo = &got.h;
        f[k].type = narrow ? DPAR_F32 : DPAR_F64;
        f[k].data = narrow ? (void *)got.f32[k] : (void *)got.f64[k];
    }
    f[0].mem = c->size > 2 ? &device : NULL;
    x = plan_of(c, f, SMALL_FIELDS, NULL, &memory);
    for (int round = 0; round < 12; round++) {
        const int32_t op = ops[round % 6];
        for (int k = 0; k < SMALL_FIELDS; k++) {
            for (int i = 0; i < SMALL; i++) {
                seed = seed * 1664525u + 1013904223u;
                got.f64[k][i] = (double)(seed >> 16) / 7.0;
                got.f32[k][i] = (float)(seed >> 16) / 7.0f;
            }
        }
        if (round >= 6) {
            CHECK_INT(dpar_halo_plan_bind(x, 1, got.other, NULL), DPAR_OK);
            memcpy(got.other, got.f64[1], sizeof got.other);
        }
        CHECK_INT(dpar_all_gather(c, got.f64, got.all_f64, SMALL_FIELDS * SMALL, DPAR_F64, NULL),
                  DPAR_OK);
        CHECK_INT(dpar_all_gather(c, got.f32, got.all_f32, SMALL_FIELDS * SMALL, DPAR_F32, NULL),
                  DPAR_OK);
        want = got;
        for (int k = 0; k < SMALL_FIELDS; k++) {
            small_walk(&want, c, k, f[k].type, op);
        }
        CHECK_INT(op == DPAR_COPY ? dpar_halo_plan_begin(x) : dpar_halo_plan_reduce_begin(x, op),
                  DPAR_OK);
        CHECK_INT(dpar_halo_plan_end(x), DPAR_OK);
        for (int k = 0; k < SMALL_FIELDS; k++) {
            const double *at = round >= 6 && k == 1 ? got.other : got.f64[k];
            CHECK(f[k].type == DPAR_F64 ? memcmp(at, want.f64[k], sizeof want.f64[k]) == 0
                                        : memcmp(got.f32[k], want.f32[k], sizeof want.f32[k]) == 0);
        }
    }
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refusals(dpar_comm *c)
{
    const int64_t plane[2] = {16, 16}, tall[2] = {4 * c->size, 16};
    double at[20 * 20], halos[1000];
    dpar_halo h;
    dpar_halo_field f;
    dpar_halo_plan_desc o;
    memset(&h, 0, sizeof h);
    memset(&f, 0, sizeof f);
    f.type = DPAR_F64;
    memset(&o, 0, sizeof o);
    h.grid = grid_of(2, plane, c->size, 1);
    h.points[0] = DPAR_HALO_AT_LOW_FACES;
    f.halo = &h;
    f.data = at;
    o.shared = 1;
    refused(c, &f, &o, DPAR_E_ARG, "SYNC needs a halo that holds the other face");
    h.high[0] = 1;
    o.ordered = 1;
    refused(c, &f, &o, DPAR_E_ARG, "shared points are exchanged at once");
    o.ordered = 0;
    h.points[1] = DPAR_HALO_AT_HIGH_FACES;
    h.low[1] = 1;
    f.compact_halo = halos;
    refused(c, &f, &o, DPAR_E_ARG, "no place for the corners");
    /* sizes that no array has */
    memset(&h, 0, sizeof h);
    memset(&f, 0, sizeof f);
    f.type = DPAR_F64;
    h.grid = grid_of(2, tall, c->size, 1);
    h.low[0] = h.high[0] = h.low[1] = h.high[1] = 1;
    h.periodic = 2;
    f.halo = &h;
    f.data = at;
    f.stride[0] = 17; /* rows are 18 long */
    f.stride[1] = 1;
    refused(c, &f, NULL, DPAR_E_ARG, "have the same address");
    f.stride[0] = 0;
    refused(c, &f, NULL, DPAR_E_ARG, "have the same address");
    f.stride[0] = -18;
    f.stride[1] = -1;
    f.components = 2;
    refused(c, &f, NULL, DPAR_E_ARG, "have the same address");
    f.stride[0] = INT64_MAX / 2;
    refused(c, &f, NULL, DPAR_E_RANGE, "over more than 2^60 bytes");
    f.stride[0] = f.stride[1] = 0;
    f.components = INT32_MAX;
    refused(c, &f, NULL, DPAR_E_RANGE, "at most 2^24 are allowed");
    f.components = 1;
    h.grid.extent[0] = INT64_C(1) << 60;
    h.grid.extent[1] = INT64_C(1) << 40;
    refused(c, &f, NULL, DPAR_E_RANGE, "over more than 2^60 bytes");
}

/* ---- arrays that overlap --------------------------------------------------------------------- */

/* Checks two fields of 4 x 7 points with rows cut: one array, interleaved, in each other's
 * padding. */
static void overlaps(dpar_comm *c)
{
    double at[1 << 14];
    unsigned char *plan = (unsigned char *)at + (64 - (uintptr_t)at % 64) % 64;
    const dpar_halo h = two_rows(c);
    dpar_halo_field f[2];
    dpar_halo_plan *x;
    void *memory;
    int k, d;
    memset(f, 0, sizeof f);
    for (k = 0; k < 2; k++) {
        f[k].halo = &h;
        f[k].type = DPAR_F64;
        f[k].data = at;
    }
    refused_all(c, f, 2, NULL, DPAR_E_ARG, "fields 0 and 1 have elements in common on rank");
    f[1].data = at + 5;
    refused_all(c, f, 2, NULL, DPAR_E_ARG, "begins 40 bytes apart");
    f[1].data = at + 27; /* of 28 */
    refused_all(c, f, 2, NULL, DPAR_E_ARG, "begins 216 bytes apart");
    f[1].data = at; /* rows of another length */
    f[1].stride[0] = 9;
    f[1].stride[1] = 1;
    refused_all(c, f, 2, NULL, DPAR_E_ARG, "have elements in common on rank");
    f[1].compact_halo = at + 3; /* next to the block, and in it */
    f[1].data = at + 40;
    refused_all(c, f, 2, NULL, DPAR_E_ARG, "fields 0 and 1 have elements in common on rank");
    f[1].data = at + 50;
    f[1].compact_halo = at + 52;
    refused_all(c, f, 2, NULL, DPAR_E_ARG, "field 1: data and compact_halo have elements in common");
    f[1].compact_halo = NULL;
    f[1].data = plan + 256;
    refused_in(plan, c, f + 1, 1, NULL, DPAR_E_ARG, "bytes of the plan's memory");
    f[1].data = at + 7; /* a row of this, a row of that */
    for (k = 0; k < 2; k++) {
        f[k].stride[0] = 14;
        f[k].stride[1] = 1;
        f[k].first[0] = 1;
    }
    for (d = 0; d < 2; d++) { /* then pairs, as in a struct of two */
        f[1].data = d == 0 ? at + 7 : at + 1;
        f[0].stride[1] = f[1].stride[1] = 1 + d;
        for (k = 0; k < 56; k++) { /* element k is in row k / 14, of rows -1 to 2 */
            const int own = k / 14 > 0 && k / 14 < 3;
            at[k] = own ? (double)((2 * c->rank + k / 14 - 1) * 14 + k % 14) : -1;
        }
        x = plan_of(c, f, 2, NULL, &memory);
        CHECK_INT(dpar_halo_plan_exchange(x), DPAR_OK);
        for (k = 0; k < 56; k++) {
            const int row = (2 * c->rank + k / 14 - 1 + 2 * c->size) % (2 * c->size);
            CHECK(at[k] == (double)(row * 14 + k % 14));
        }
        CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
        free(memory);
    }
}

/* Returns a random number from 0 to n - 1. */
static int64_t below(uint64_t *seed, int64_t n)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((*seed >> 33) % (uint64_t)n);
}

/* Makes an array of 4 x 7 points with its dims in any order, some backwards, with gaps. Returns the
 * element of index 0, counted from the lowest. */
static int64_t any_array(dpar_halo_field *f, const dpar_halo *h, uint64_t *seed)
{
    const int64_t first = below(seed, 3), way = 1 + below(seed, 2);
    int64_t step = 1, before = 0, points[3] = {4, COLUMNS, 0};
    int k;
    memset(f, 0, sizeof *f);
    f->halo = h;
    f->type = below(seed, 4) > 0 ? DPAR_F64 : DPAR_F32;
    f->first[0] = 1; /* two of four rows are own rows */
    f->components = 1 + (int32_t)below(seed, 3);
    points[2] = f->components;
    for (k = 0; k < 3; k++) {
        const int64_t d = (first + way * k) % 3;
        step += below(seed, 3) == 0 ? below(seed, 9) : 0;
        if (d == 2) {
            f->component_stride = step;
        } else if (below(seed, 4) == 0) {
            f->stride[d] = -step;
            before += step * (points[d] - 1);
        } else {
            f->stride[d] = step;
        }
        step *= points[d];
    }
    return before;
}

/* Marks the bytes of the field's elements, with index 0 at byte `at`. Returns 1 if one of them
 * already has a mark. */
static int mark(unsigned char *marks, const dpar_halo_field *f, int64_t at, unsigned char mine)
{
    const int64_t wide = dpar_type_bytes(f->type);
    int64_t j, i, k, byte;
    int others = 0;
    for (j = 0; j < 4; j++) {
        for (i = 0; i < COLUMNS; i++) {
            for (k = 0; k < f->components; k++) {
                const int64_t element =
                    j * f->stride[0] + i * f->stride[1] + k * f->component_stride;
                for (byte = at + element * wide; byte < at + (element + 1) * wide; byte++) {
                    others |= marks[byte] != 0 && marks[byte] != mine;
                    marks[byte] = mine;
                }
            }
        }
    }
    return others;
}

/* Checks one rank with physical ends all around: it has no cells beyond them, so arrays may omit
 * them and follow each other without gaps; and planes of components in any order. */
static void without_ghosts(dpar_comm *c)
{
    const int64_t extent[2] = {4, 5};
    double at[80];
    dpar_halo h;
    dpar_halo_field f[2];
    dpar_halo_plan *x;
    void *memory;
    memset(&h, 0, sizeof h);
    memset(f, 0, sizeof f);
    f[0].type = f[1].type = DPAR_F64;
    h.grid = grid_of(2, extent, 1, 1);
    h.low[0] = h.high[0] = h.low[1] = h.high[1] = 1;
    f[0].halo = f[1].halo = &h;
    f[0].stride[0] = f[1].stride[0] = 5;
    f[0].stride[1] = f[1].stride[1] = 1;
    f[0].data = at;
    f[1].data = at + 20;
    x = plan_of(c, f, 2, NULL, &memory);
    CHECK_INT(dpar_halo_plan_exchange(x), DPAR_OK);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
    f[1].data = at + 19;
    refused_in(NULL, c, f, 2, NULL, DPAR_E_ARG, "fields 0 and 1 have elements in common on rank 0");
    f[0].components = 2;
    f[0].component_stride = -20;
    f[0].data = at + 20;
    x = plan_of(c, f, 1, NULL, &memory);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
    f[0].component_stride = -15; /* the last row of one is the first of the other */
    refused_in(NULL, c, f, 1, NULL, DPAR_E_ARG, "several points of rank 0 have the same address");
    memset(f[0].stride, 0, sizeof f[0].stride); /* dense is components last: planes need strides */
    f[0].component_stride = 20;
    f[0].data = at;
    refused_in(NULL, c, f, 1, NULL, DPAR_E_ARG, "(component_stride 20)");
    f[0].component_stride = 1;
    x = plan_of(c, f, 1, NULL, &memory);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
}

/* Checks random arrays on one rank: refused if and only if two elements share a byte, which is
 * determined byte by byte. */
static int lots(dpar_comm *c, void *arg)
{
    static unsigned char memory[1 << 16], bytes[1 << 14], marks[1 << 14];
    unsigned char *plan = memory + (64 - (uintptr_t)memory % 64) % 64;
    const dpar_halo h = two_rows(c);
    uint64_t seed = 5;
    int round, k, met = 0;
    (void)arg;
    for (round = 0; round < 4000; round++) {
        dpar_halo_field f[2];
        dpar_halo_plan *x = NULL;
        int64_t before[2];
        int meet = 0;
        before[0] = any_array(&f[0], &h, &seed);
        before[1] = any_array(&f[1], &h, &seed);
        if (below(&seed, 2) == 0) { /* equal: perhaps interleaved */
            f[1] = f[0];
            before[1] = before[0];
        }
        memset(marks, 0, sizeof marks);
        for (k = 0; k < 2; k++) {
            const int64_t at = 4 * below(&seed, 100) + before[k] * dpar_type_bytes(f[k].type);
            f[k].data = bytes + at;
            meet |= mark(marks, &f[k], at, (unsigned char)(1 + k));
        }
        CHECK_INT(plan_init(plan, (1 << 16) - 64, c, f, 2, NULL, &x, NULL),
                  meet ? DPAR_E_ARG : DPAR_OK);
        CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
        met += meet;
    }
    CHECK(met > 1000 && met < 3900); /* both occur */
    without_ghosts(c);
    return checks_failed;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Returns an address 8 bytes behind one that a plan may have. */
static void *at_8(unsigned char *line)
{
    return line + (64 - (uintptr_t)line % 64) % 64 + 8;
}

/* Checks calls without a plan; that bytes which are not numbers cannot be added, and that the plan
 * continues. */
static void nothing(dpar_comm *c, const dpar_halo_field *good)
{
    unsigned char at[4 * COLUMNS];
    dpar_halo_field f = *good;
    dpar_halo_plan *x = NULL;
    dpar_halo_plan_desc best;
    dpari_hx_traffic t;
    dpar_why why;
    void *memory;
    CHECK_INT(dpar_halo_plan_begin(NULL), DPAR_E_ARG);
    CHECK_INT(dpar_halo_plan_reduce_begin(NULL, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_halo_plan_test(NULL), DPAR_E_ARG);
    CHECK_INT(dpar_halo_plan_end(NULL), DPAR_E_ARG);
    CHECK_INT(dpar_halo_plan_exchange(NULL), DPAR_E_ARG);
    CHECK_INT(assemble(NULL, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_halo_plan_bind(NULL, 0, at, NULL), DPAR_E_ARG);
    CHECK_INT(dpari_hx_traffic_of(NULL, 0, &t), 0);
    CHECK_INT(dpar_halo_plan_make(c, NULL, &x, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "NULL") != NULL);
    CHECK_INT(dpar_halo_plan_free(NULL), DPAR_OK);
    CHECK_INT(plan_tune(c, NULL, 1, NULL, &best, NULL, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "NULL") != NULL);
    CHECK_INT(plan_init(at, 0, c, NULL, 1, NULL, &x, &why), DPAR_E_ARG);
    memset(at, 1 + c->rank, sizeof at);
    f.type = DPAR_F8;
    f.data = at;
    x = plan_of(c, &f, 1, NULL, &memory);
    CHECK_INT(dpar_halo_plan_reduce_begin(x, DPAR_SUM), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "field 0 has type f8, which cannot be combined") != NULL);
    CHECK_INT(dpar_halo_plan_end(x), DPAR_OK); /* no exchange is in flight */
    CHECK_INT(dpar_halo_plan_exchange(x), DPAR_OK);
    CHECK_INT(at[0], 1 + (c->rank + c->size - 1) % c->size);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
}

/* Checks a plan whose memory dpar allocates on all ranks except the last, which first passes too
 * little, then enough. If it is too little on one rank all ranks fail, and each learns what it
 * needs itself. */
static void own_memory(dpar_comm *c, const dpar_halo_field *f, int64_t bytes)
{
    const int last = c->rank == c->size - 1;
    dpar_halo_plan_desc desc = plan_options(f, 1, NULL);
    dpar_halo_plan *x = NULL;
    dpar_why why;
    why.bytes = 0;
    desc.memory = last ? aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64) : NULL;
    desc.bytes = last ? bytes - 1 : 0;
    CHECK_INT(dpar_halo_plan_make(c, &desc, &x, &why), DPAR_E_ROOM);
    CHECK(x == NULL);
    CHECK_INT(why.bytes, bytes);
    desc.bytes = last ? bytes : 0;
    CHECK_INT(dpar_halo_plan_make(c, &desc, &x, &why), DPAR_OK);
    CHECK_INT(dpar_halo_plan_exchange(x), DPAR_OK);
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_STALE, NULL), DPAR_OK);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(desc.memory);
}

/* Checks that all ranks report, with its numbers, what one rank does wrong, and that NULL does not
 * crash. */
static void sentences(dpar_comm *c)
{
    static unsigned char line[128];
    double at[4 * COLUMNS];
    const dpar_halo h = two_rows(c);
    dpar_halo_field f;
    dpar_halo_plan_desc o;
    dpar_halo_plan *x = NULL;
    int64_t bytes = 0;
    dpar_why why;
    char word[60];
    void *memory;
    memset(&f, 0, sizeof f);
    f.type = DPAR_F64;
    memset(&o, 0, sizeof o);
    f.halo = &h;
    f.data = c->rank == c->size - 1 ? NULL : at;
    (void)snprintf(word, sizeof word, "field 0: data is NULL on rank %d", (int)c->size - 1);
    refused(c, &f, NULL, DPAR_E_ARG, word);
    f.data = at;
    f.vector = 9;
    refused(c, &f, NULL, DPAR_E_ARG, "vector is 9; it must be 0 to 2");
    f.vector = 0;
    f.type = DPAR_TYPE_NONE;
    refused(c, &f, NULL, DPAR_E_ARG, "field 0: type none (0) is not allowed");
    f.type = DPAR_F64;
    f.wire_type = DPAR_F16;
    refused(c, &f, NULL, DPAR_E_ARG, "field 0 cannot be sent as f16 (wire_type 7)");
    f.wire_type = DPAR_TYPE_NONE;
    o.ordered = 9;
    refused(c, &f, &o, DPAR_E_ARG, "ordered is 9, shared 0, timers 0");
    CHECK_INT(plan_bytes(c, &f, 1, NULL, &bytes, &why), DPAR_OK);
    CHECK_INT(plan_init(NULL, bytes, c, &f, 1, NULL, &x, &why), DPAR_E_ROOM);
    (void)snprintf(word, sizeof word, "must have %d bytes at a multiple of 64, but has 0 bytes",
                   (int)bytes);
    CHECK(strstr(why.text, word) != NULL);
    CHECK_INT(why.bytes, bytes);
    CHECK_INT(plan_init(at_8(line), bytes, c, &f, 1, NULL, &x, &why), DPAR_E_ROOM);
    CHECK(strstr(why.text, "begins 8 bytes past one") != NULL);
    own_memory(c, &f, bytes);
    x = plan_of(c, &f, 1, NULL, &memory);
    CHECK_INT(dpar_halo_plan_reduce_begin(x, 99), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "op is 99") != NULL);
    CHECK_INT(dpar_halo_plan_bind(x, -1, at, NULL), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "field -1 does not exist (the plan has 0 to 0)") != NULL);
    CHECK_INT(dpar_halo_plan_bind(x, 0, NULL, NULL), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "planned with data only, but this call passes no array") != NULL);
    CHECK_INT(dpar_halo_plan_bind(x, 0, at, at), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "planned with data only, but this call passes data and halos") !=
          NULL);
    CHECK_INT(dpar_halo_check(NULL, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "NULL") != NULL);
    CHECK_INT(dpar_spatial_check(NULL, 0, NULL, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "NULL") != NULL);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
    nothing(c, &f);
}

/* Checks that if the last rank passes other values, all ranks report which, and both numbers. */
static void differs(dpar_comm *c, const dpar_halo_field *f, int32_t n, const dpar_halo_plan_desc *o,
                    const char *what, const char *others, const char *last)
{
    unsigned char usual[1 << 16];
    void *at = usual + (64 - (uintptr_t)usual % 64) % 64;
    dpar_halo_plan *x = NULL;
    dpar_why why;
    why.text[0] = 0;
    CHECK_INT(plan_init(at, (1 << 16) - 64, c, f, n, o, &x, &why), DPAR_E_MISMATCH);
    CHECK(says_who_differs(why.text, (int)c->size, what, others, last));
}

/* Checks the last rank's reduction of three numbers where the others begin a plan. The numbers are
 * those of a rank without an error and without a statement (src/comm/agree.c): its own call
 * continues, and all others report which rank does what. */
static void another_operation(dpar_comm *c, const dpar_halo_field *f)
{
    unsigned char usual[1 << 16];
    void *at = usual + (64 - (uintptr_t)usual % 64) % 64;
    dpar_halo_plan *x = NULL;
    int64_t mine[3], all[3] = {1, 1, 1};
    char said[96];
    dpar_why why;
    why.text[0] = 0;
    if (c->rank == c->size - 1) {
        mine[0] = mine[1] = c->rank;
        mine[2] = -mine[1];
        CHECK_INT(dpar_all_reduce(c, mine, all, 3, DPAR_I64, DPAR_MIN, NULL), DPAR_OK);
        CHECK_INT(all[1], c->rank);
        return;
    }
    snprintf(said, sizeof said, "rank %d begins a plan, but rank %d called another operation",
             (int)c->size - 2, (int)c->size - 1);
    CHECK_INT(plan_init(at, (1 << 16) - 64, c, f, 1, NULL, &x, &why), DPAR_E_MISMATCH);
    CHECK(strcmp(why.text, said) == 0);
}

/* Checks that all ranks report an error if the last one has no memory for the result, or tunes
 * where the others begin a plan. */
static void no_result(dpar_comm *c, const dpar_halo_field *f)
{
    const int last = c->rank == c->size - 1;
    unsigned char usual[1 << 16];
    void *at = usual + (64 - (uintptr_t)usual % 64) % 64;
    dpar_halo_plan *x = NULL;
    dpar_halo_plan_desc best = plan_options(f, 1, NULL);
    dpar_why why;
    CHECK_INT(plan_init(at, (1 << 16) - 64, c, f, 1, NULL, last ? NULL : &x, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "dpar_halo_plan_make: desc or plan is NULL") != NULL);
    CHECK_INT(dpar_halo_plan_tune(c, last ? NULL : &best, NULL, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "dpar_halo_plan_tune: desc is NULL") != NULL);
    why.text[0] = 0;
    if (last) {
        CHECK_INT(dpar_halo_plan_tune(c, &best, NULL, &why), DPAR_E_MISMATCH);
    } else {
        CHECK_INT(plan_init(at, (1 << 16) - 64, c, f, 1, NULL, &x, &why), DPAR_E_MISMATCH);
    }
    CHECK(strstr(why.text, "called another operation") != NULL);
}

static void disagreements(dpar_comm *c)
{
    const int last = c->rank == c->size - 1;
    int64_t cuts[9];
    double at[4 * 3 * (COLUMNS + 2)], more[4 * 3 * (COLUMNS + 2)];
    dpar_halo h = two_rows(c);
    const dpar_halo plain = h;
    dpar_halo_field f[2];
    dpar_halo_plan_desc o;
    int32_t i;
    memset(f, 0, sizeof f);
    f[0].type = f[1].type = DPAR_F64;
    memset(&o, 0, sizeof o);
    f[0].halo = f[1].halo = &h;
    f[0].data = at;
    f[1].data = more;
    another_operation(c, f);
    no_result(c, f);
    differs(c, f, last ? 2 : 1, NULL, "halo: the number of fields", "1", "2");
    o.method = last ? DPAR_HALO_PACKED : DPAR_HALO_AUTO;
    differs(c, f, 1, &o, "halo: desc.method", "0", "2");
    o.method = DPAR_HALO_AUTO;
    o.tag = last ? 5 : 4;
    differs(c, f, 1, &o, "halo: desc.tag", "4", "5");
    f[1].components = last ? 3 : 0;
    differs(c, f, 2, NULL, "halo: field 1: components", "1", "3");
    f[1].type = last ? DPAR_F64 : DPAR_I32;
    differs(c, f, 2, NULL, "halo: field 1: type", "i32", "f64");
    f[1].type = DPAR_F64;
    f[1].components = 1;
    h.high[0] = last ? 0 : 1;
    differs(c, f, 2, NULL, "halo: field 0: halo.high[0]", "1", "0");
    h = plain;
    h.grid.extent[1] += last;
    differs(c, f, 2, NULL, "halo: field 0: halo.grid.extent[1]", "7", "8");
    h = plain;
    h.periodic = last ? 3 : 1;
    differs(c, f, 1, NULL, "halo: field 0: halo.periodic", "1", "3");
    h = plain;
    h.window[1].kernel = 3;
    h.window[1].stride = 1 + last;
    h.window[1].pad_low = h.window[1].pad_high = 1;
    differs(c, f, 1, NULL, "halo: field 0: halo.window[1].stride", "1", "2");
    h.window[1].stride = 1;
    h.window[1].kernel = last ? 0 : 3;
    differs(c, f, 1, NULL, "halo: field 0: halo.window[1].kernel", "3", "0");
    h = plain;
    h.grid.axis[0].rule = last ? DPAR_SPLIT_EVEN : DPAR_SPLIT_CHUNK;
    differs(c, f, 1, NULL, "halo: field 0: the rule of placement 0 of halo.grid", "0", "1");
    for (i = 0; i <= c->size; i++) {
        cuts[i] = 2 * (int64_t)i - (last && i == 1);
    }
    h.grid.axis[0].rule = DPAR_SPLIT_RAGGED;
    h.grid.axis[0].cuts = cuts;
    differs(c, f, 1, NULL, "halo: field 0: the list of cuts of placement 0 of halo.grid", NULL,
            NULL);
}

/* Stands in for an engine whose messages mix with those of another operation, as MPI's may: every
 * number is 0 or as large as possible. */
static dpar_status mixed_up(dpar_comm *c, const dpar_call *call)
{
    memset(call->out, *(const int *)c->context, (size_t)call->count * 8);
    return DPAR_OK;
}

/* Checks that such a result is never taken for what ranks agree on. */
static void nonsense(void)
{
    int64_t bytes = 0, all = 0;
    int answer;
    dpar_comm c;
    dpar_halo h;
    dpar_halo_field f;
    dpar_halo_plan *x = NULL;
    dpar_why why;
    double at[64];
    void *memory;
    memset(&c, 0, sizeof c);
    memset(&f, 0, sizeof f);
    f.type = DPAR_F64;
    c.size = 2;
    c.rank = 1;
    c.engine.run = mixed_up;
    c.context = &answer;
    h = two_rows(&c);
    f.halo = &h;
    f.data = at;
    CHECK_INT(plan_bytes(&c, &f, 1, NULL, &bytes, &why), DPAR_OK);
    memory = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    for (answer = 0; answer < 256; answer += 127) { /* 0, 0x7f7f..., 0xfefe... */
        why.text[0] = 0;
        CHECK_INT(dpar_all_reduce(&c, &bytes, &all, 1, DPAR_I64, DPAR_MIN, NULL), DPAR_OK);
        CHECK_INT(plan_init(memory, bytes, &c, &f, 1, NULL, &x, &why), DPAR_E_MISMATCH);
        CHECK(strstr(why.text, "another rank called another operation") != NULL);
    }
    free(memory);
}

/* Checks registered memory, whose length is known: an array that is longer is refused on all ranks;
 * one that lacks only rows beyond the physical ends is accepted. */
static void too_short(dpar_comm *c)
{
    const int64_t page = sysconf(_SC_PAGESIZE), point = page / COLUMNS / 8 + 1;
    const int last = c->rank == c->size - 1;
    dpar_halo h = two_rows(c);
    dpar_halo_field f;
    dpar_halo_plan *x;
    void *at[3], *plan = NULL;
    char word[120];
    int32_t i;
    memset(&f, 0, sizeof f);
    f.type = DPAR_F64;
    f.halo = &h;
    f.components = (int32_t)point; /* a row is more than a page and less than two */
    for (i = 0; i < 3; i++) {
        CHECK_INT(dpar_comm_alloc(c, (i == 0 ? 8 : i == 1 ? 5 : 3) * page, &at[i]), DPAR_OK);
    }
    f.data = at[0];
    x = plan_of(c, &f, 1, NULL, &plan);
    CHECK_INT(dpar_halo_plan_exchange(x), DPAR_OK);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(plan);
    (void)snprintf(word, sizeof word, "on rank %d extend over %d bytes", (int)c->size - 1,
                   (int)(4 * COLUMNS * 8 * point));
    f.data = last ? (unsigned char *)at[0] + 5 * page : at[0]; /* ends in the next page */
    refused(c, &f, NULL, DPAR_E_ARG, word);
    f.data = last ? at[2] : at[0];
    refused(c, &f, NULL, DPAR_E_ARG, word);
    (void)snprintf(word, sizeof word, "has the first of them ends after %d bytes", (int)(3 * page));
    refused(c, &f, NULL, DPAR_E_ARG, word);
    dpar_comm_release(c, at[2]);
    refused(c, &f, NULL, DPAR_E_ARG, "has the first of them ends after 0 bytes");
    if (c->size == 1) { /* exchanges nothing except over the ends */
        h.periodic = 0;
        f.stride[1] = point;
        f.stride[0] = COLUMNS * point;
        f.data = at[1]; /* two rows */
        x = plan_of(c, &f, 1, NULL, &plan);
        CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
        free(plan);
    }
    dpar_comm_release(c, at[0]);
    dpar_comm_release(c, at[1]);
}

/* ---- what others do meanwhile ---------------------------------------------------------------- */

/* Checks messages of the caller's, with another tag than the plan's, in flight during an exchange.
 */
static void meanwhile(dpar_comm *world)
{
    const int32_t right = (world->rank + 1) % world->size;
    const int32_t left = (world->rank + world->size - 1) % world->size;
    double at[4 * COLUMNS], mine[2] = {100.0 + world->rank, -1.0};
    const dpar_halo h = two_rows(world);
    dpar_halo_field f;
    dpar_halo_plan_desc o;
    dpar_halo_plan *x;
    dpar_comm *c = NULL;
    dpar_work work;
    void *memory;
    int k;
    memset(&f, 0, sizeof f);
    f.type = DPAR_F64;
    memset(&o, 0, sizeof o);
    memset(&work, 0, sizeof work);
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    for (k = 0; k < 4 * COLUMNS; k++) {
        at[k] = (double)world->rank;
    }
    f.halo = &h;
    f.data = at;
    o.method = DPAR_HALO_MESSAGES;
    o.tag = 5;
    x = plan_of(c, &f, 1, &o, &memory);
    CHECK_INT(dpar_send(c, &mine[0], 1, DPAR_F64, right, 0, &work), DPAR_OK);
    CHECK_INT(dpar_halo_plan_exchange(x), DPAR_OK);
    CHECK(at[0] == (double)left && at[4 * COLUMNS - 1] == (double)right);
    CHECK_INT(dpar_recv(c, &mine[1], 1, DPAR_F64, left, 0, NULL), DPAR_OK);
    CHECK(mine[1] == 100.0 + left);
    CHECK_INT(dpar_wait(&work), DPAR_OK);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
    (void)dpar_comm_free(c);
}

/* ---- the fastest method ---------------------------------------------------------------------- */

static dpar_status (*quick_batch)(dpar_comm *, const dpar_call *, int32_t, dpar_work *);

static dpar_status slow_batch(dpar_comm *c, const dpar_call *calls, int32_t n, dpar_work *works)
{
    usleep(50000);
    return __atomic_load_n(&quick_batch, __ATOMIC_RELAXED)(c, calls, n, works);
}

/* Checks that all ranks choose the same method among the possible ones, which excludes messages,
 * which take 50 ms here. Afterwards halos are filled, own cells are unchanged, and a plan can be
 * made with it. */
static void tunes(dpar_comm *c, int star, int shared)
{
    double at[4 * COLUMNS], same[4], least[4], most[4];
    dpar_halo h = two_rows(c);
    dpar_halo_field f;
    dpar_halo_plan_desc o;
    dpar_halo_plan_desc best;
    double seconds = 0.0;
    dpar_halo_plan *x;
    dpar_why why;
    void *plan;
    int k;
    memset(&f, 0, sizeof f);
    f.type = DPAR_F64;
    memset(&o, 0, sizeof o);
    o.shared = shared;
    h.shape = star ? DPAR_STENCIL_STAR : DPAR_STENCIL_BOX;
    h.points[0] = shared ? DPAR_HALO_AT_LOW_FACES : DPAR_HALO_AT_CELLS;
    f.halo = &h;
    f.data = at;
    for (k = 0; k < 4 * COLUMNS; k++) {
        const int own = k / COLUMNS > 0 && k / COLUMNS < 3;
        at[k] = own ? (double)((2 * c->rank + k / COLUMNS - 1) * COLUMNS + k % COLUMNS) : -1;
    }
    h.grid.dims = 1 << 20; /* not made by dpar_layout_init */
    CHECK_INT(plan_tune(c, &f, 1, &o, &best, &seconds, &why), DPAR_E_ARG);
    CHECK(seconds == 0.0);
    h.grid.dims = 2;
    __atomic_store_n(&quick_batch, c->engine.batch, __ATOMIC_RELAXED);
    c->engine.batch = slow_batch;
    o.memory = at; /* not used: the plans that are measured have memory of their own */
    o.bytes = 8;
    CHECK_INT(plan_tune(c, &f, 1, &o, &best, &seconds, &why), DPAR_OK);
    CHECK(best.memory == at && best.bytes == 8);
    c->engine.batch = __atomic_load_n(&quick_batch, __ATOMIC_RELAXED);
    CHECK(best.method >= DPAR_HALO_AUTO && best.method <= DPAR_HALO_DIRECT && seconds > 0.0);
    CHECK(c->size == 1 || (best.method != DPAR_HALO_MESSAGES && seconds < 0.05));
    CHECK(best.ordered == 0 || (best.ordered == 1 && !shared));
    CHECK(best.method == DPAR_HALO_DIRECT
              ? best.run_bytes == 64 || best.run_bytes == 16 || best.run_bytes == 256
              : best.run_bytes == 0);
    same[0] = best.method;
    same[1] = best.ordered;
    same[2] = (double)best.run_bytes;
    same[3] = seconds;
    CHECK_INT(dpar_all_reduce(c, same, least, 4, DPAR_F64, DPAR_MIN, NULL), DPAR_OK);
    CHECK_INT(dpar_all_reduce(c, same, most, 4, DPAR_F64, DPAR_MAX, NULL), DPAR_OK);
    CHECK(memcmp(least, most, sizeof least) == 0);
    for (k = 0; k < 4 * COLUMNS; k++) {
        const int row = (2 * c->rank + k / COLUMNS - 1 + 2 * c->size) % (2 * c->size);
        const int whole = !shared || (k / COLUMNS > 0 && k / COLUMNS < 3);
        CHECK(!whole || at[k] == (double)(row * COLUMNS + k % COLUMNS));
    }
    x = plan_of(c, &f, 1, &best, &plan);
    CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_STALE, NULL), DPAR_OK);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(plan);
}

/* ---- a device that fails --------------------------------------------------------------------- */

typedef struct failing {
    int moves, pins; /* number of calls that succeed */
} failing;

static dpar_status fail_move(void *ctx, const dpar_mem_box *box, int32_t n)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        dpari_mem_move_box(&box[i]);
    }
    return ((failing *)ctx)->moves-- > 0 ? DPAR_OK : DPAR_E_SYSTEM;
}

static dpar_status fail_pin(void *ctx, void *memory, int64_t bytes)
{
    (void)memory;
    (void)bytes;
    return ((failing *)ctx)->pins-- > 0 ? DPAR_OK : DPAR_E_MEMORY;
}

/* Checks that all ranks report a failing device of the last rank, and that none waits. */
static void broken_device(dpar_comm *c)
{
    const int64_t extent[1] = {2 * (int64_t)c->size};
    double at[20] = {0};
    unsigned char memory[1 << 15], *aligned = memory + (64 - (uintptr_t)memory % 64) % 64;
    dpar_halo h;
    dpar_halo_field f;
    dpar_halo_plan *x = NULL;
    dpar_mem mem;
    failing v = {3, 0};
    dpar_status st;
    dpar_why why;
    int k;
    memset(&h, 0, sizeof h);
    memset(&f, 0, sizeof f);
    f.type = DPAR_F64;
    memset(&mem, 0, sizeof mem);
    h.grid = grid_of(1, extent, c->size, 1);
    h.low[0] = h.high[0] = 1;
    h.periodic = 1;
    mem.ctx = &v;
    mem.move = fail_move;
    mem.pin = fail_pin;
    f.halo = &h;
    f.data = at;
    f.mem = c->rank == c->size - 1 ? &mem : NULL;
    st = plan_init(aligned, (1 << 15) - 64, c, &f, 1, NULL, &x, &why);
    CHECK_INT(st, DPAR_E_MEMORY);
    CHECK(x == NULL && c->status == DPAR_OK);
    v.pins = 100;
    st = plan_init(aligned, (1 << 15) - 64, c, &f, 1, NULL, &x, &why);
    CHECK_INT(st, DPAR_OK);
    for (k = 0; k < 20 && st == DPAR_OK; k++) {
        st = dpar_halo_plan_exchange(x);
        st = st == DPAR_OK ? dpar_barrier(c, NULL) : st;
    }
    CHECK_INT(st, DPAR_E_SYSTEM);
    CHECK(strstr(c->why.text, "could not move the boxes in its fields' memory") != NULL);
    CHECK_INT(dpar_halo_plan_free(x), DPAR_E_SYSTEM);
}

/* Checks refusals of pairs: u and v of a C-grid cross a cube's edges as a pair of fields that
 * differ only in their points. */
static void refused_pairs(dpar_comm *c)
{
    const int64_t extent[3] = {6, 4, 4};
    double at[2][6 * 36];
    dpar_halo h[2];
    dpar_halo_field f[3], good[3];
    dpar_mem mem;
    int i;
    memset(h, 0, sizeof h);
    memset(good, 0, sizeof good);
    memset(&mem, 0, sizeof mem);
    mem.move = fail_move;
    for (i = 0; i < 2; i++) {
        h[i].grid = grid_of(3, extent, c->size < 6 ? c->size : 6, 1);
        h[i].cube = 1;
        h[i].low[1] = h[i].high[1] = h[i].low[2] = h[i].high[2] = 1;
        h[i].points[2 - i] = DPAR_HALO_AT_LOW_FACES;
        good[i].halo = &h[i];
        good[i].type = DPAR_F64;
        good[i].data = at[i];
        good[i].vector = 1;
        good[i].pair = i == 0 ? DPAR_HALO_PAIR_U : DPAR_HALO_PAIR_V;
    }
    good[2] = good[0];
#define REFUSED(change, n, sentence)                                                               \
    do {                                                                                           \
        memcpy(f, good, sizeof f);                                                                 \
        change;                                                                                    \
        refused_all(c, f, n, NULL, DPAR_E_ARG, sentence);                                          \
    } while (0)
#define ALONE "points on faces of cells need a pair of fields"
#define FOLLOWED "DPAR_HALO_PAIR_U (1) must be followed by DPAR_HALO_PAIR_V (2)"
#define ALIKE "fields 0 and 1 are a pair, but differ in type, wire_type, components"
    REFUSED(f[0].pair = f[1].pair = 0, 2, ALONE);
    REFUSED(f[1].pair = 0, 2, ALONE);
    REFUSED(f[1].pair = 3, 2, FOLLOWED);
    REFUSED(f[1].pair = -1, 2, FOLLOWED);
    REFUSED(f[0].pair = 2; f[1].pair = 1, 2, FOLLOWED);
    REFUSED((void)0, 1, FOLLOWED);
    REFUSED((void)0, 3, FOLLOWED);
    REFUSED(f[0].type = DPAR_F32, 2, ALIKE);
    REFUSED(f[1].wire_type = DPAR_F32, 2, ALIKE);
    REFUSED(f[1].vector = 0, 2, ALIKE);
    REFUSED(f[1].components = 2, 2, ALIKE);
    REFUSED(f[0].mem = &mem, 2, ALIKE);
    REFUSED(f[0].vector = f[1].vector = 2;
            f[0].components = f[1].components = 2, 2,
            "pair is only for cubed spheres and vector 0 or 1, but vector is 2");
    REFUSED(f[1].halo = &h[0], 2, "partner's is 1 in dim 2");
    h[1].cube = 0;
    REFUSED((void)0, 2, "pair is only for cubed spheres");
    h[1].cube = 1;
    h[1].grid.extent[1] = h[1].grid.extent[2] = 5;
    REFUSED((void)0, 2, "same grid, periodic and owner");
}

/* ---- one box --------------------------------------------------------------------------------- */

static void boxes(void)
{
    double a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {0, 0, 0, 0, 0, 0}, one = 7;
    float narrow[3] = {0, 0, 0};
    const double fine = 1.0 + 1.0 / 1073741824.0; /* more bits than F32 has */
    dpar_mem_box m;
    memset(&m, 0, sizeof m);
    m.to_type = m.from_type = DPAR_F64;
    m.to = b;
    m.from = a;
    m.dims = 2;
    m.extent[0] = 2;
    m.extent[1] = 3;
    m.from_stride[0] = 3;
    m.from_stride[1] = 1;
    m.to_stride[0] = 1;
    m.to_stride[1] = 2; /* transposed */
    dpari_mem_move_box(&m);
    CHECK(b[0] == 1 && b[1] == 4 && b[2] == 2 && b[3] == 5 && b[4] == 3 && b[5] == 6);
    m.op = DPAR_SUM;
    m.negate = 1;
    m.clear = 1;
    dpari_mem_move_box(&m);
    CHECK(b[0] == 0 && b[5] == 0 && a[0] == 0 && a[5] == 0);
    m.op = DPAR_COPY;
    m.negate = m.clear = 0;
    m.from = &one;
    m.from_stride[0] = m.from_stride[1] = 0; /* one element everywhere */
    dpari_mem_move_box(&m);
    CHECK(b[0] == 7 && b[3] == 7 && b[5] == 7);
    m.dims = 1;
    m.extent[0] = 3;
    m.from = a;
    m.to = narrow;
    m.to_type = m.round_type = DPAR_F32;
    m.from_stride[0] = 2;
    m.to_stride[0] = -1;
    m.to = &narrow[2];
    a[0] = fine;
    a[2] = 2;
    a[4] = -3;
    dpari_mem_move_box(&m);
    CHECK(narrow[2] == 1.0f && narrow[1] == 2.0f && narrow[0] == -3.0f);
    m.to = b;
    m.to_type = DPAR_F64;
    m.to_stride[0] = 1;
    dpari_mem_move_box(&m); /* rounded during the copy */
    CHECK(b[0] == 1.0 && b[1] == 2.0 && b[2] == -3.0);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* ---- after planning -------------------------------------------------------------------------- */

static int asked; /* for memory, after planning */

static dpar_status count_alloc(dpar_comm *c, int64_t bytes, void **memory)
{
    (void)c;
    (void)bytes;
    (void)memory;
    __atomic_store_n(&asked, 1, __ATOMIC_RELAXED);
    return DPAR_E_MEMORY;
}

/* Checks that exchanges of all kinds allocate no memory. (tools/lint checks that nothing in dpar.h
 * calls malloc.) */
static void nothing_allocated(dpar_comm *c)
{
    double at[2][4 * COLUMNS];
    dpar_halo h = two_rows(c);
    dpar_halo_field f;
    dpar_halo_plan_desc o;
    dpar_halo_plan *x;
    void *memory;
    int way, k;
    memset(&f, 0, sizeof f);
    f.type = DPAR_F64;
    memset(&o, 0, sizeof o);
    memset(at, 0, sizeof at);
    f.halo = &h;
    f.data = at[0];
    for (way = DPAR_HALO_AUTO; way <= DPAR_HALO_DIRECT; way++) {
        dpar_status (*const alloc)(dpar_comm *, int64_t, void **) = c->engine.alloc;
        o.method = way;
        o.ordered = way % 2;
        x = plan_of(c, &f, 1, &o, &memory);
        c->engine.alloc = count_alloc;
        for (k = 0; k < 20; k++) {
            CHECK_INT(dpar_halo_plan_begin(x), DPAR_OK);
            CHECK(dpar_halo_plan_test(x) >= DPAR_OK);
            CHECK_INT(dpar_halo_plan_end(x), DPAR_OK);
            CHECK_INT(assemble(x, DPAR_MAX), DPAR_OK);
            CHECK_INT(dpar_halo_plan_bind(x, 0, at[k % 2], NULL), DPAR_OK);
        }
        CHECK_INT(__atomic_load_n(&asked, __ATOMIC_RELAXED), 0);
        c->engine.alloc = alloc;
        CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
        free(memory);
    }
}

/* Returns the number of cores that the ranks of c may use. */
static int32_t cores_of(dpar_comm *c)
{
    uint64_t mine[16] = {0}, all[8 * 16];
    int32_t n = 0, i, r;
    cpu_set_t set;
    CPU_ZERO(&set);
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    for (i = 0; i < 1024; i++) {
        mine[i / 64] |= (uint64_t)(CPU_ISSET(i, &set) != 0) << i % 64;
    }
    CHECK_INT(dpar_all_gather(c, mine, all, 16, DPAR_U64, NULL), DPAR_OK);
    for (i = 0; i < 1024; i++) {
        for (r = 0; r < c->size && (all[16 * r + i / 64] >> i % 64 & 1) == 0; r++) {
        }
        n += r < c->size;
    }
    return n;
}

/* Checks that registered rows of 64 KiB are read in place, and that shorter ones are packed by
 * ranks that share cores unless DIRECT is requested. */
static void crowd(dpar_comm *c)
{
    const int crowded = cores_of(c) < c->size;
    int64_t extent[2];
    dpar_halo_plan_desc o;
    dpar_halo_field f;
    dpar_halo h;
    void *at = NULL, *memory;
    int32_t k;
    memset(&o, 0, sizeof o);
    memset(&h, 0, sizeof h);
    memset(&f, 0, sizeof f);
    CHECK_INT(dpar_comm_alloc(c, 8 * 3 * 8192, &at), DPAR_OK);
    h.low[0] = 1;
    f.halo = &h;
    f.type = DPAR_F64;
    f.data = at;
    for (k = 0; k < 4; k++) {
        const int large = k % 2, direct = k / 2;
        dpar_halo_plan *x;
        dpari_hx_traffic t;
        int32_t i;
        extent[0] = 2 * c->size;
        extent[1] = 8191 + large;
        h.grid = grid_of(2, extent, c->size, 1);
        o.method = direct ? DPAR_HALO_DIRECT : DPAR_HALO_AUTO;
        x = plan_of(c, &f, 1, &o, &memory);
        for (i = 0; dpari_hx_traffic_of(x, i, &t); i++) {
            if (t.bytes > 0) { /* what this rank sends to the next one */
                CHECK_INT(t.peer, c->rank + 1);
                CHECK_INT(t.way,
                          crowded && !large && !direct ? DPAR_HALO_PACKED : DPAR_HALO_DIRECT);
            }
        }
        CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
        free(memory);
    }
    dpar_comm_release(c, at);
}

/* Checks that what a rank adds of its own where no peer adds anything is there when begin_adjoint
 * returns: rank 0 looks before the others begin. */
static void early(dpar_comm *c, int32_t *looked)
{
    const int64_t extent[2] = {4 * (int64_t)c->size, 5};
    double a[6][7];
    dpar_halo_plan *x;
    dpar_halo_field f;
    dpar_halo h;
    dpari_hx_traffic t;
    void *memory;
    int i, j, own = 0;
    memset(&h, 0, sizeof h);
    memset(&f, 0, sizeof f);
    h.grid = grid_of(2, extent, c->size, 1);
    h.periodic = 3;
    h.shape = DPAR_STENCIL_STAR;
    h.low[0] = h.high[0] = h.low[1] = h.high[1] = 1;
    for (i = 0; i < 6; i++) {
        for (j = 0; j < 7; j++) {
            a[i][j] = 100.0 * i + j;
        }
    }
    f.halo = &h;
    f.type = DPAR_F64;
    f.data = a;
    x = plan_of(c, &f, 1, NULL, &memory);
    for (i = 0; dpari_hx_traffic_of(x, i, &t); i++) { /* what is split is a piece of it */
        CHECK(t.peer != c->rank || (t.pieces == 2 && t.runs == 8 && t.bytes == 64));
        own += t.peer == c->rank;
    }
    CHECK_INT(own, 1);
    while (c->rank > 0 && __atomic_load_n(looked, __ATOMIC_ACQUIRE) == 0) {
        usleep(100);
    }
    CHECK_INT(dpar_halo_plan_reduce_begin(x, DPAR_SUM), DPAR_OK);
    for (i = 2; i < 4 && c->rank == 0; i++) { /* 100 i + 1 and 100 i + 6, 100 i + 5 and 100 i */
        CHECK(a[i][1] == 200.0 * i + 7 && a[i][5] == 200.0 * i + 5 && a[i][0] == 0 && a[i][6] == 0);
    }
    if (c->rank == 0) {
        __atomic_store_n(looked, 1, __ATOMIC_RELEASE);
    }
    CHECK_INT(dpar_halo_plan_end(x), DPAR_OK);
    for (j = 2; j < 5; j++) { /* the same rows on all ranks: rows 5 and 0 of the neighbours */
        CHECK(a[1][j] == 100.0 + j + 500.0 + j && a[4][j] == 400.0 + j + j && a[2][j] == 200.0 + j);
    }
    CHECK_INT(dpar_halo_plan_free(x), DPAR_OK);
    free(memory);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK); /* all have read it */
    if (c->rank == 0) {
        *looked = 0; /* reset for the next launch */
    }
}

static int each(dpar_comm *c, void *arg)
{
    int32_t down;
    for (down = 1; down <= c->size; down++) {
        if (c->size % down == 0) {
            quads(c, down, c->size / down, 0);
            quads(c, down, c->size / down, 1);
        }
    }
    line(c);
    widths(c);
    bits(c);
    small(c);
    refusals(c);
    refused_pairs(c);
    overlaps(c);
    nothing_allocated(c);
    sentences(c);
    too_short(c);
    if (c->size <= 3) {
        tunes(c, 0, 0);
        tunes(c, 1, 1);
    }
    if (c->size > 1) {
        disagreements(c);
        early(c, (int32_t *)arg);
        meanwhile(c);
        crowd(c);
        broken_device(c);
    }
    return checks_failed;
}

int main(int argc, char **argv)
{
    dpar_world_desc o;
    void *word = mmap(NULL, 4, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(word != MAP_FAILED);
    memset(&o, 0, sizeof o);
    boxes();
    nonsense();
    if (argc == 1) {
        o.timeout_s = 60;
        on_ranks(1, ", arrays by lot", lots, NULL, &o);
    }
    return rank_program(argc, argv, each, word, 8, 4, NULL);
}
