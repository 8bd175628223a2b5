/* SPDX-License-Identifier: MIT-0 */
/* Tests dpar_grid over real ranks with random grids, fields and exchanges, and looks at each
 * element of each array afterwards. The expected value follows from the position of the element's
 * point in space: a point beyond a periodic end is a point of the grid some rounds away, one beyond
 * a mirror is as far in front of the wall (positions are doubles, no indices are used), with a sign
 * for each wall. All other elements, padding too, must be unchanged. Then tests swaps, begin and
 * end, whole arrays, parts of files, bad input.
 *     ./grid [processes|threads] [ranks]        without arguments: both, 1 to 6 and 1 to 4 */
#include "dpar_debug.h"
#include "rank_program.h"

enum { MOST = 4, POISON = -77, CELLS = 1 << 16, ROUNDS = 60 };

static int below(uint64_t *lot, int n)
{
    return (int)lot_below(lot, n);
}

/* ---- a case: what is exchanged, and its arrangement ---- */

typedef struct array {
    dpar_grid_field f;
    int32_t type, comps, attached, registered;
    int64_t points[DPAR_MAX_DIMS]; /* of its memory, without padding */
    int64_t stride[DPAR_MAX_DIMS], component_stride;
    int64_t count, at; /* elements of its memory; the index of the first own point */
    int64_t before;    /* elements from the address that is passed to the first own point */
    unsigned char *memory, *u;
    int8_t direction[8 * DPAR_MAX_DIMS];
    int32_t mirror[2][DPAR_MAX_DIMS]; /* that count for this array, at the low and the high ends */
} array;

typedef struct one_case {
    dpar_grid_desc d;
    dpar_mem mem; /* a table for host memory, used like a device's */
    dpar_grid *g;
    int64_t low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS];
    int64_t cuts[DPAR_MAX_DIMS][16];
    int32_t walls;                  /* 1 if points beyond walls have values, too */
    int32_t expects[DPAR_MAX_DIMS]; /* 1 if only expected_count says where a dim is cut */
    int n;
    array a[MOST];
} one_case;

static double get(const array *a, int64_t i)
{
    float s;
    int32_t w;
    double v;
    const unsigned char *at = a->memory + i * dpar_type_bytes(a->type);
    switch (a->type) {
    case DPAR_F64: memcpy(&v, at, 8); return v;
    case DPAR_F32: memcpy(&s, at, 4); return (double)s;
    default: memcpy(&w, at, 4); return (double)w;
    }
}

static void set(const array *a, int64_t i, double v)
{
    const float s = (float)v;
    const int32_t w = (int32_t)v;
    unsigned char *at = a->memory + i * dpar_type_bytes(a->type);
    switch (a->type) {
    case DPAR_F64: memcpy(at, &v, 8); break;
    case DPAR_F32: memcpy(at, &s, 4); break;
    default: memcpy(at, &w, 4);
    }
}

/* Says only how many cells this rank expects, in place of the cuts. */
static void expect_the_cuts(one_case *k, int rank)
{
    int32_t coord[DPAR_MAX_DIMS];
    dpar_mesh mesh;
    dpar_why why;
    CHECK_INT(
        dpar_mesh_init(&mesh, &"c b a"[2 * (3 - k->d.dims)], k -> d.parts, k->d.order, 0, &why),
        DPAR_OK);
    CHECK_INT(dpar_mesh_coords(&mesh, rank, coord), 1);
    for (int d = 0; d < k->d.dims; d++) {
        if (k->d.cuts[d]) {
            k->d.expected_count[d] = k->cuts[d][coord[d] + 1] - k->cuts[d][coord[d]];
            k->d.cuts[d] = NULL;
            k->expects[d] = 1;
        }
    }
}

static void random_case(one_case *k, uint64_t *lot, int rank, int ranks)
{
    int left = ranks;
    memset(k, 0, sizeof *k);
    k->d.dims = 1 + below(lot, 3);
    k->d.star = below(lot, 4) == 0;
    k->d.order = below(lot, 2);
    k->d.check = below(lot, 4) == 0;
    k->d.halo = below(lot, 3);
    k->walls = k->d.exchange_walls = below(lot, 3) == 0;
    k->d.array_start = below(lot, 3) == 0;
    k->mem = dpar_mem_host();
    k->d.mem = below(lot, 4) == 0 ? &k->mem : NULL;
    for (int d = 0; d < k->d.dims; d++) {
        k->d.cells[d] = ranks + 2 + below(lot, 5);
        if (below(lot, 3) == 0) {
            k->d.halo_low[d] = below(lot, 3);
            k->d.halo_high[d] = below(lot, 3);
        }
        k->d.periodic[d] = below(lot, 3) == 0;
        if (!k->d.periodic[d] && below(lot, 2)) {
            k->d.mirror_low[d] = below(lot, 3);
            k->d.mirror_high[d] = below(lot, 3);
        }
        k->low[d] = k->d.halo_low[d] ? k->d.halo_low[d] : k->d.halo;
        k->high[d] = k->d.halo_high[d] ? k->d.halo_high[d] : k->d.halo;
    }
    for (int d = 0; d < k->d.dims && below(lot, 3) > 0; d++) {
        int p = 1 + below(lot, left);
        while (left % p != 0) {
            p--;
        }
        k->d.parts[d] = d + 1 == k->d.dims ? left : p;
        left /= k->d.parts[d];
        if (below(lot, 4) == 0) { /* possibly more parts than cells */
            k->d.cells[d] = 1 + below(lot, 3);
        }
        if (below(lot, 2)) { /* the first parts have one cell, the last has the rest */
            for (int i = 0; i < k->d.parts[d]; i++) {
                k->cuts[d][i] = i < k->d.cells[d] ? i : k->d.cells[d];
            }
            k->cuts[d][k->d.parts[d]] = k->d.cells[d];
            k->d.cuts[d] = k->cuts[d];
        } else if (below(lot, 3) == 0) { /* any numbers, also none */
            for (int i = 1; i <= k->d.parts[d]; i++) {
                const int64_t rest = k->d.cells[d] - k->cuts[d][i - 1];
                k->cuts[d][i] = k->cuts[d][i - 1] + below(lot, (int)rest + 1);
            }
            k->cuts[d][k->d.parts[d]] = k->d.cells[d];
            k->d.cuts[d] = k->cuts[d];
        }
    }
    if (k->d.parts[k->d.dims - 1] > 0 && below(lot, 2)) {
        expect_the_cuts(k, rank);
    }
}

/* Gives some arrays strides of their own, different on each rank. */
static void random_array(one_case *k, array *a, uint64_t *lot)
{
    static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_I32};
    const int planes = below(lot, 4) == 0, strided = below(lot, 3) == 0;
    const int dims = k->d.dims;
    int64_t step, low = 0, high = 0;
    memset(a, 0, sizeof *a);
    a->type = types[below(lot, 3)];
    a->f.components = below(lot, 4);
    a->f.order = below(lot, 2);
    a->comps = a->f.components ? a->f.components : 1;
    a->attached = strided || k->d.mem || below(lot, 2);
    for (int d = 0; d < dims; d++) {
        a->f.location[d] = below(lot, 3) == 0;
        a->f.odd[d] = (uint32_t)below(lot, 8) & ((1u << a->comps) - 1u);
        a->points[d] = k->low[d] + k->g->count[d] + (a->f.location[d] ? 1 : 0) + k->high[d];
        if (!k->d.periodic[d] && below(lot, 3) == 0) {
            a->f.mirror_low[d] = below(lot, 4);
            a->f.mirror_high[d] = below(lot, 4);
        }
    }
    if (below(lot, 4) == 0) {
        a->f.components = a->comps = 1 + below(lot, 8);
        for (int i = 0; i < a->comps * dims; i++) {
            a->direction[i] = (int8_t)(below(lot, 3) - 1);
        }
        a->f.direction = a->direction;
        for (int d = 0; d < dims; d++) {
            const int32_t none = k->d.periodic[d] ? DPAR_GRID_MIRROR_NONE : DPAR_GRID_MIRROR_OFF;
            a->points[d] -= a->f.location[d];
            a->f.location[d] = 0;
            a->f.odd[d] = 0;
            a->f.mirror_low[d] = a->f.mirror_high[d] = none;
        }
    }
    step = planes ? 1 : a->comps;
    for (int i = 0; i < dims; i++) {
        const int d = a->f.order == DPAR_ORDER_FIRST_FASTEST ? i : dims - 1 - i;
        const int64_t pad = strided ? (below(lot, 3) + k->g->comm->rank) % 3 : 0;
        a->stride[d] = step;
        step *= a->points[d] + pad;
        if (strided && below(lot, 4) == 0) {
            a->stride[d] = -a->stride[d];
        }
    }
    a->component_stride = planes ? step + 3 : 1;
    a->f.component_stride = planes ? a->component_stride : 0;
    for (int d = 0; d < dims; d++) {
        const int64_t s = a->stride[d], b = k->low[d];
        const int64_t c = a->points[d] > b ? a->points[d] - 1 - b : 0;
        a->f.stride[d] = strided ? s : 0;
        low += s > 0 ? b * s : -c * s;
        high += s > 0 ? c * s : -b * s;
    }
    if (planes) {
        high += (a->comps - 1) * a->component_stride;
    } else {
        high += a->comps - 1;
    }
    a->at = low + 5;
    a->count = low + high + 11;
    for (int d = 0; d < dims && k->d.array_start; d++) {
        a->before += k->low[d] * a->stride[d];
    }
}

/* Sets a->mirror. A mirror of the field that needs more cells than a rank has is left out. */
static void choose_mirrors(one_case *k, array *a)
{
    dpar_grid_part part;
    int32_t refused = dpar_grid_block(k->g, &a->f, &part) != DPAR_OK, all = 0;
    CHECK_INT(dpar_all_reduce(k->g->comm, &refused, &all, 1, DPAR_I32, DPAR_MAX, NULL), DPAR_OK);
    for (int d = 0; d < k->d.dims; d++) {
        if (all) {
            a->f.mirror_low[d] = a->f.mirror_high[d] = DPAR_GRID_MIRROR_NONE;
        }
        for (int side = 0; side < 2; side++) {
            const int32_t mine = side ? a->f.mirror_high[d] : a->f.mirror_low[d];
            const int32_t its = side ? k->d.mirror_high[d] : k->d.mirror_low[d];
            a->mirror[side][d] = mine == DPAR_GRID_MIRROR_OFF ? 0 : mine ? mine : its;
        }
    }
}

static int make_array(one_case *k, array *a)
{
    dpar_why why;
    const int64_t bytes = dpar_type_bytes(a->type);
    choose_mirrors(k, a);
    if (a->attached) { /* on some ranks where peers read it, on others not */
        void *memory = NULL;
        a->registered = (k->g->comm->rank + a->comps) % 3 == 0;
        if (a->registered) {
            CHECK_INT(dpar_comm_alloc(k->g->comm, a->count * bytes, &memory), DPAR_OK);
        }
        a->memory = (unsigned char *)(a->registered ? memory : zeroed(a->count * bytes));
        a->u = a->memory + (a->at - a->before) * bytes;
        why.text[0] = 0;
        CHECK_INT(dpar_grid_attach(k->g, a->u, a->type, &a->f, &why), DPAR_OK);
        if (why.text[0] != 0) {
            printf("    %s\n", why.text);
        }
    } else {
        a->u = (unsigned char *)dpar_grid_array(k->g, a->type, &a->f);
        CHECK(a->u != NULL);
        if (!a->u) {
            printf("    %s\n", k->g->comm->why.text);
            return 0;
        }
        CHECK_INT(((uintptr_t)a->u + (uintptr_t)(a->before * bytes)) % 64, 0);
        CHECK(*a->u == 0);
        a->memory = a->u + (a->before - a->at + 5) * bytes; /* without a margin: memory of others */
        a->at -= 5;
        a->count -= 10;
    }
    return 1;
}

/* ---- the expected value of each element ---- */

static double value(int number, const int64_t *p, int comp)
{
    uint32_t h = scrambled((uint32_t)(number * 8 + comp), p[0] * 4096 + p[1] * 64 + p[2]);
    return (double)(h % 100003u) + 1.0;
}

/* Sets the point of the grid that local point x of dim d shows; returns 0 if there is none. */
static int image(const one_case *k, const array *a, int d, int64_t x, int comp, int64_t *p,
                 double *sign)
{
    const double cells = (double)k->d.cells[d], half = a->f.location[d] ? 0.0 : 0.5;
    double place = (double)(k->g->first[d] + x) + half, wall;
    if (k->d.periodic[d]) {
        place -= floor(place / cells) * cells;
    } else if (place < 0 && a->mirror[0][d]) {
        wall = a->mirror[0][d] == DPAR_GRID_MIRROR_CELL ? 0.5 : 0.0;
        place = 2 * wall - place;
        *sign *= a->f.odd[d] >> comp & 1u ? -1.0 : 1.0;
    } else if (place > cells && a->mirror[1][d]) {
        wall = a->mirror[1][d] == DPAR_GRID_MIRROR_CELL ? cells - 0.5 : cells;
        place = 2 * wall - place;
        *sign *= a->f.odd[d] >> comp & 1u ? -1.0 : 1.0;
    }
    *p = (int64_t)floor(place - half + 0.25);
    return (place >= 0 || (k->walls && !a->mirror[0][d])) &&
           (place <= cells || (k->walls && !a->mirror[1][d]));
}

/* Returns 1 if this rank owns the point. */
static int owned(const one_case *k, const array *a, int d, int64_t x)
{
    const int end =
        a->f.location[d] && !k->d.periodic[d] && k->g->first[d] + k->g->count[d] == k->d.cells[d];
    return k->g->count[d] > 0 && x >= 0 && x < k->g->count[d] + end;
}

/* Returns 1 if this rank gives the point its value: it owns the point, or is next to the wall. */
static int given(const one_case *k, const array *a, int d, int64_t x)
{
    const int64_t n = k->g->count[d];
    if (k->walls && !k->d.periodic[d] && n > 0) {
        const int low = x < 0 && k->g->first[d] == 0 && !a->mirror[0][d];
        const int high = x >= n && k->g->first[d] + n == k->d.cells[d] && !a->mirror[1][d];
        return low || high || owned(k, a, d, x);
    }
    return owned(k, a, d, x);
}

/* Returns 1 if this rank has no cells. */
static int is_empty(const one_case *k)
{
    int empty = 0;
    for (int d = 0; d < k->d.dims; d++) {
        empty = empty || k->g->count[d] == 0;
    }
    return empty;
}

/* Advances to the next local point; returns 0 at the end. */
static int next_local(const one_case *k, const array *a, int64_t *x)
{
    for (int d = k->d.dims - 1; d >= 0; d--) {
        if (++x[d] < a->points[d] - k->low[d]) {
            return 1;
        }
        x[d] = -k->low[d];
    }
    return 0;
}

/* Returns 0 if the array has no points. */
static int first_local(const one_case *k, const array *a, int64_t *x)
{
    int some = 1;
    for (int d = 0; d < DPAR_MAX_DIMS; d++) {
        x[d] = d < k->d.dims ? -k->low[d] : 0;
        some = some && (d >= k->d.dims || a->points[d] > 0);
    }
    return some;
}

static int64_t place_of(const one_case *k, const array *a, const int64_t *x, int comp)
{
    int64_t at = a->at + comp * a->component_stride;
    for (int d = 0; d < k->d.dims; d++) {
        at += x[d] * a->stride[d];
    }
    return at;
}

/* Fills own points with value(number), all other elements with poison. */
static void fill(const one_case *k, const array *a, int number)
{
    int64_t x[DPAR_MAX_DIMS], p[DPAR_MAX_DIMS] = {0};
    for (int64_t i = 0; i < a->count; i++) {
        set(a, i, POISON);
    }
    if (!first_local(k, a, x)) {
        return;
    }
    do {
        int own = 1;
        for (int d = 0; d < k->d.dims; d++) {
            own = own && given(k, a, d, x[d]);
            p[d] = k->g->first[d] + x[d];
        }
        own = own && !is_empty(k);
        for (int c = 0; own && c < a->comps; c++) {
            set(a, place_of(k, a, x, c), value(number, p, c));
        }
    } while (next_local(k, a, x));
}

/* Counts mistakes in an array after an exchange of this depth (-1: there was none), then poisons
 * it. */
static int64_t look(const one_case *k, const array *a, int number, int64_t depth)
{
    int64_t x[DPAR_MAX_DIMS], mistakes = 0;
    int star = k->d.star; /* fields on faces have edges and corners in any case */
    for (int d = 0; d < k->d.dims; d++) {
        star = star && !a->f.location[d];
    }
    if (!first_local(k, a, x)) {
        return 0;
    }
    do {
        int outside = 0, reached = 1;
        for (int d = 0; d < k->d.dims; d++) {
            const int64_t w = depth < k->low[d] ? depth : k->low[d];
            const int64_t v = depth < k->high[d] ? depth : k->high[d];
            const int64_t n = k->g->count[d] + (a->f.location[d] ? 1 : 0);
            outside += !given(k, a, d, x[d]);
            reached = reached && ((x[d] >= -w && x[d] < n + v) || given(k, a, d, x[d]));
        }
        for (int c = 0; c < a->comps; c++) {
            const int64_t at = place_of(k, a, x, c);
            int64_t p[DPAR_MAX_DIMS] = {0};
            double sign = 1.0, want;
            int shown = outside == 0 || (depth >= 0 && reached && !is_empty(k));
            for (int d = 0; a->f.direction && d < k->d.dims; d++) {
                const int from = x[d] < 0 ? 1 : -1; /* the direction that leads into the block */
                shown = shown && (given(k, a, d, x[d]) || a->direction[c * k->d.dims + d] == from);
            }
            for (int d = 0; d < k->d.dims; d++) {
                shown = image(k, a, d, x[d], c, &p[d], &sign) && shown;
            }
            shown = shown && !(star && outside > 1);
            want = shown ? sign * value(number, p, c) : POISON;
            if (get(a, at) != want) {
                if (mistakes++ < 2) {
                    printf("    rank %d, point %lld %lld %lld, component %d: %g, not %g\n",
                           (int)k->g->comm->rank, (long long)x[0], (long long)x[1], (long long)x[2],
                           c, get(a, at), want);
                }
            }
            set(a, at, POISON);
        }
    } while (next_local(k, a, x));
    for (int64_t i = 0; i < a->count; i++) {
        mistakes += get(a, i) != POISON; /* padding and margins */
    }
    return mistakes;
}

/* ---- whole arrays ---- */

static int64_t points_of(const one_case *k, const array *a, int d)
{
    return k->d.cells[d] + (a->f.location[d] && !k->d.periodic[d]);
}

/* Gathers the array on rank 0, checks each point there, and scatters other values from it. */
static int64_t whole_array(one_case *k, const array *a, int number)
{
    const int32_t walls = k->walls;
    int64_t n = a->comps, mistakes = 0, i = 0, p[DPAR_MAX_DIMS] = {0}, end[3] = {1, 1, 1};
    array w = *a;
    for (int d = 0; d < k->d.dims; d++) {
        end[d] = points_of(k, a, d);
        n *= end[d];
    }
    w.memory = (unsigned char *)(k->g->comm->rank == 0 ? zeroed(8 * n) : NULL);
    k->walls = 0; /* they are not part of the whole array */
    fill(k, a, number);
    CHECK_INT(dpar_grid_gather(k->g, a->u, w.memory), DPAR_OK);
    for (p[0] = 0; w.memory && p[0] < end[0]; p[0]++) {
        for (p[1] = 0; p[1] < end[1]; p[1]++) {
            for (p[2] = 0; p[2] < end[2]; p[2]++) {
                for (int c = 0; c < a->comps; c++, i++) {
                    mistakes += get(&w, i) != value(number, p, c);
                    set(&w, i, value(number + 1, p, c));
                }
            }
        }
    }
    mistakes += look(k, a, number, -1);
    CHECK_INT(dpar_grid_scatter(k->g, a->u, w.memory), DPAR_OK);
    mistakes += look(k, a, number + 1, -1);
    k->walls = walls;
    free(w.memory);
    return mistakes;
}

/* Checks the statements of the header about arrays of cells. */
static int64_t head_wrong(const one_case *k)
{
    const dpar_grid *g = k->g;
    int64_t step = 1, mistakes = g->dims != k->d.dims;
    int32_t size = 1, d;
    for (d = g->dims - 1; d >= 0; d--) {
        mistakes += g->stride[d] != step || g->cells[d] != k->d.cells[d];
        mistakes += g->coord[d] < 0 || g->coord[d] >= g->parts[d];
        mistakes += g->first[d] < 0 || g->count[d] < 0 || g->first[d] + g->count[d] > g->cells[d];
        mistakes += k->d.parts[d] > 0 && g->parts[d] != k->d.parts[d];
        if (k->d.cuts[d] || k->expects[d]) {
            mistakes += g->first[d] != k->cuts[d][g->coord[d]];
            mistakes += g->count[d] != k->cuts[d][g->coord[d] + 1] - g->first[d];
        }
        step *= k->low[d] + g->count[d] + k->high[d];
        size *= g->parts[d];
    }
    return mistakes + (size != g->comm->size);
}

/* Checks a part of a file: its points are those that the rank owns, where the array has them. */
static int64_t part_of_file(const one_case *k, const array *a)
{
    dpar_grid_part b;
    int64_t mistakes = 0;
    CHECK_INT(dpar_grid_block(k->g, &a->f, &b), DPAR_OK);
    for (int d = 0; d < k->d.dims; d++) {
        int64_t own = 0;
        while (owned(k, a, d, own)) {
            own++;
        }
        mistakes += b.global_count[d] != points_of(k, a, d) || b.start[d] != k->g->first[d] ||
                    (b.count[d] != own && !is_empty(k)) || b.local_count[d] != a->points[d] ||
                    b.local_start[d] != k->low[d] || b.stride[d] != a->stride[d];
    }
    return mistakes + (b.component_stride != a->component_stride);
}

/* ---- core and boundary ---- */

/* Checks that core and boundary together are the own cells, each once, and that the core is as far
 * from filled halos as these are wide. */
static int64_t core_and_rim(const one_case *k)
{
    unsigned char met[CELLS] = {0};
    const dpar_grid *g = k->g;
    dpar_box b;
    int64_t mistakes = 0, cells = 1, x[3];
    int32_t below_too[DPAR_MAX_DIMS] = {0}, above_too[DPAR_MAX_DIMS] = {0};
    int boxes = 0, n;
    for (int d = 0; d < g->dims; d++) {
        cells *= g->count[d];
    }
    for (int i = 0; i < k->n; i++) {
        for (int d = 0; d < g->dims; d++) {
            below_too[d] |= k->a[i].mirror[0][d];
            above_too[d] |= k->a[i].mirror[1][d];
        }
    }
    for (n = -1; n < 0 || dpar_grid_boundary(g, n, &b); n++) {
        if (n < 0 && !dpar_grid_interior(g, &b)) {
            continue;
        }
        boxes++;
        for (x[0] = b.lo[0]; x[0] < b.hi[0]; x[0]++) {
            for (x[1] = g->dims > 1 ? b.lo[1] : 0; x[1] < (g->dims > 1 ? b.hi[1] : 1); x[1]++) {
                for (x[2] = g->dims > 2 ? b.lo[2] : 0; x[2] < (g->dims > 2 ? b.hi[2] : 1); x[2]++) {
                    int64_t at = 0;
                    for (int d = 0; d < g->dims; d++) {
                        const int low = g->first[d] > 0 || k->d.periodic[d] || k->d.mirror_low[d] ||
                                        below_too[d];
                        const int high = g->first[d] + g->count[d] < g->cells[d] ||
                                         k->d.periodic[d] || k->d.mirror_high[d] || above_too[d];
                        at = at * g->count[d] + x[d];
                        mistakes += x[d] < 0 || x[d] >= g->count[d];
                        mistakes += n < 0 && ((low && x[d] < k->low[d]) ||
                                              (high && x[d] + k->high[d] >= g->count[d]));
                    }
                    met[at]++;
                }
            }
        }
    }
    mistakes += boxes > 2 * g->dims + 1;
    while (cells-- > 0) {
        mistakes += met[cells] != 1;
    }
    return mistakes;
}

/* ---- a round ---- */

static int64_t one_round(dpar_comm *c, uint64_t *lot, int *made)
{
    one_case *k = (one_case *)zeroed((int64_t)sizeof *k);
    void *list[MOST];
    dpar_why why;
    int64_t mistakes = 0, widest = 0;
    int i, turn;
    dpar_status st;
    random_case(k, lot, c->rank, c->size);
    st = dpar_grid_make(c, &k->d, &k->g, &why);
    if (st != DPAR_OK) { /* a mirror of too few cells, or cuts where other parts were chosen */
        CHECK(st == DPAR_E_RANGE || st == DPAR_E_DIVIDE || st == DPAR_E_NONE || st == DPAR_E_ARG);
        if (st == DPAR_E_ARG || strncmp(why.text, "grid: dim", 9) == 0) {
            CHECK(strstr(why.text, "mirror") != NULL);
        }
        free(k);
        return 0;
    }
    ++*made;
    k->n = 1 + below(lot, MOST);
    for (i = 0; i < k->n; i++) {
        random_array(k, &k->a[i], lot);
        if (!make_array(k, &k->a[i])) {
            return 1;
        }
        list[i] = k->a[i].u;
    }
    for (int d = 0; d < k->d.dims; d++) {
        widest = k->low[d] > widest ? k->low[d] : widest;
        widest = k->high[d] > widest ? k->high[d] : widest;
    }
    for (turn = 0; turn < 6; turn++) {
        void *chosen[MOST];
        int32_t count = 0;
        const int way = below(lot, 5), which = below(lot, k->n);
        uint64_t mask = (uint64_t)(1 + below(lot, (1 << k->n) - 1));
        int64_t depth = below(lot, (int)widest + 1);
        for (i = 0; i < k->n; i++) {
            fill(k, &k->a[i], 100 * turn + 10 * i);
        }
        if (way == 0 || way == 3) {
            mask = 1u << which;
            depth = 0;
        } else if (way == 1) {
            mask = (1u << k->n) - 1;
            depth = 0;
        }
        for (i = 0; i < k->n; i++) {
            if (mask >> i & 1u) {
                chosen[count++] = list[i];
            }
        }
        st = way == 0   ? dpar_grid_exchange(k->g, list[which])
             : way < 3  ? dpar_grid_exchange_many(k->g, chosen, count, (int32_t)depth)
             : way == 3 ? dpar_grid_begin(k->g, list[which])
                        : dpar_grid_begin_many(k->g, chosen, count, (int32_t)depth);
        if (way > 2 && st == DPAR_OK) {
            st = dpar_grid_end(k->g, chosen[count - 1]);
        }
        CHECK_INT(st, DPAR_OK);
        if (st != DPAR_OK) {
            printf("    %s\n", c->why.text);
            return 1;
        }
        if (way == 0 && k->a[which].f.direction && !k->d.mem) {
            dpar_halo_plan *plan = dpar_grid_plan(k->g, chosen, 1);
            CHECK_INT(dpar_halo_plan_check(plan, DPAR_HALO_WRONG, NULL), DPAR_OK);
            CHECK_INT(dpar_halo_plan_check(plan, DPAR_HALO_STALE, NULL), DPAR_OK);
        }
        for (i = 0; i < k->n; i++) {
            const int64_t deep = !(mask >> i & 1u) ? -1 : depth > 0 ? depth : 1000;
            const int64_t wrong = look(k, &k->a[i], 100 * turn + 10 * i, deep);
            if (wrong > 0) {
                printf("    turn %d, way %d, array %d, depth %d\n", turn, way, i, (int)deep);
            }
            mistakes += wrong;
        }
    }
    for (i = 0; i < k->n; i++) {
        mistakes += whole_array(k, &k->a[i], 10 * i);
        mistakes += part_of_file(k, &k->a[i]);
    }
    mistakes += head_wrong(k) + core_and_rim(k);
    CHECK_INT(dpar_grid_free(k->g), DPAR_OK);
    for (i = 0; i < k->n; i++) {
        if (k->a[i].registered) {
            dpar_comm_release(c, k->a[i].memory);
        } else if (k->a[i].attached) {
            free(k->a[i].memory);
        }
    }
    free(k);
    return mistakes;
}

/* ---- swaps, several at once ---- */

static dpar_grid *ring(dpar_comm *c, int check)
{
    dpar_grid_desc d;
    dpar_grid *g = NULL;
    dpar_why why;
    memset(&d, 0, sizeof d);
    d.dims = 1;
    d.cells[0] = 3 * (int64_t)c->size;
    d.halo = 1;
    d.periodic[0] = 1;
    d.check = check;
    CHECK_INT(dpar_grid_make(c, &d, &g, &why), DPAR_OK);
    return g;
}

/* Returns the mistakes in u[3] of a ring, whose cells must be base + their number, with halo. */
static int64_t ring_wrong(const dpar_grid *g, const double *u, double base)
{
    const int64_t n = g->cells[0], first = g->first[0];
    return (u[-1] != base + (double)((first + n - 1) % n)) +
           (u[3] != base + (double)((first + 3) % n));
}

static void ring_fill(const dpar_grid *g, double *u, double base)
{
    u[-1] = u[3] = POISON;
    for (int64_t i = 0; i < 3; i++) {
        u[i] = base + (double)(g->first[0] + i);
    }
}

static int64_t swaps(dpar_comm *c)
{
    dpar_grid *g = ring(c, 0);
    double own[5] = {0}, next[5] = {0}, *u[4], *t;
    void *list[2], *other[1];
    dpar_halo_plan *x;
    dpar_why why;
    int64_t mistakes = 0;
    int i;
    for (i = 0; i < 3; i++) {
        u[i] = (double *)dpar_grid_array(g, DPAR_F64, NULL);
    }
    u[3] = own + 1;
    CHECK_INT(dpar_grid_attach(g, u[3], DPAR_F64, NULL, &why), DPAR_OK);
    CHECK(dpar_grid_halo(g)->low[0] == 1 && dpar_grid_halo(NULL) == NULL);
    other[0] = u[0];
    x = dpar_grid_plan(g, other, 1);
    CHECK(x != NULL);
    for (i = 0; i < 9; i++) { /* old and new in turns, with one plan for both */
        ring_fill(g, u[0], 10 * i);
        CHECK_INT(dpar_grid_exchange(g, u[0]), DPAR_OK);
        mistakes += ring_wrong(g, u[0], 10 * i);
        t = u[0], u[0] = u[1], u[1] = t;
    }
    other[0] = u[1];
    CHECK(dpar_grid_plan(g, other, 1) == x);
    ring_fill(g, u[3], 4); /* the same except for its memory, which peers do not read */
    CHECK_INT(dpar_grid_exchange(g, u[3]), DPAR_OK);
    mistakes += ring_wrong(g, u[3], 4);
    for (i = 0; i < 4; i++) { /* two of one shape, one of another, in flight in turn */
        ring_fill(g, u[0], 1);
        ring_fill(g, u[2], 2);
        ring_fill(g, u[3], 3);
        CHECK_INT(dpar_grid_begin(g, u[0]), DPAR_OK);
        CHECK_INT(dpar_grid_begin(g, u[2]), DPAR_OK);
        CHECK_INT(dpar_grid_begin(g, u[3]), DPAR_OK);
        while (dpar_grid_test(g, u[2]) == DPAR_MORE) { /* all of it arrives */
        }
        CHECK_INT(dpar_grid_test(g, u[2]), DPAR_OK);
        CHECK_INT(dpar_grid_test(g, u[1]), DPAR_E_ARG);
        CHECK_INT(dpar_grid_free(g), DPAR_E_ARG);
        CHECK(strstr(c->why.text, "has not ended") != NULL);
        CHECK_INT(dpar_grid_end(g, u[0]), DPAR_OK);
        CHECK_INT(dpar_grid_end(g, u[2]), DPAR_OK);
        CHECK_INT(dpar_grid_end(g, u[3]), DPAR_OK);
        mistakes += ring_wrong(g, u[0], 1) + ring_wrong(g, u[2], 2) + ring_wrong(g, u[3], 3);
    }
    for (i = 0; i < 4; i++) { /* lists whose members swap places */
        list[0] = u[i % 2 ? 2 : 0];
        list[1] = u[i % 2 ? 0 : 2];
        ring_fill(g, (double *)list[0], 5);
        ring_fill(g, (double *)list[1], 6);
        CHECK_INT(dpar_grid_exchange_many(g, list, 2, 0), DPAR_OK);
        mistakes += ring_wrong(g, (double *)list[0], 5) + ring_wrong(g, (double *)list[1], 6);
    }
    for (i = 0; i < 4; i++) { /* the previous one is in flight: it must not be exchanged again */
        ring_fill(g, u[i % 2], 8);
        CHECK_INT(dpar_grid_exchange(g, u[i % 2]), DPAR_OK);
    }
    CHECK_INT(dpar_grid_begin(g, u[0]), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, u[1]), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, u[0]), DPAR_E_ARG);
    CHECK_INT(dpar_grid_end(g, u[0]), DPAR_OK);
    mistakes += ring_wrong(g, u[0], 8) + ring_wrong(g, u[1], 8);
    /* the plan that ran last had u[0] before u[1], and u[0] is in flight in another plan */
    CHECK_INT(dpar_grid_begin(g, u[2]), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, u[0]), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, u[1]), DPAR_OK);
    CHECK_INT(dpar_grid_end(g, u[2]), DPAR_OK);
    CHECK_INT(dpar_grid_begin(g, u[0]), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, u[1]), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, u[0]), DPAR_E_ARG);
    CHECK_INT(dpar_grid_end(g, u[0]), DPAR_OK);
    /* another shape at an old address that was the array of the exchange before the last */
    CHECK_INT(dpar_grid_attach(g, next + 1, DPAR_F64, NULL, &why), DPAR_OK);
    for (i = 0; i < 4; i++) {
        t = i % 2 ? next + 1 : u[3];
        ring_fill(g, t, 7 * i);
        CHECK_INT(dpar_grid_exchange(g, t), DPAR_OK);
        mistakes += ring_wrong(g, t, 7 * i);
    }
    CHECK_INT(dpar_grid_attach(g, u[3], DPAR_F32, NULL, &why), DPAR_OK);
    {
        float *f = (float *)(void *)u[3];
        f[-1] = f[3] = POISON;
        for (i = 0; i < 3; i++) {
            f[i] = (float)g->first[0] + (float)i;
        }
        CHECK_INT(dpar_grid_exchange(g, f), DPAR_OK);
        mistakes += f[-1] != (float)((g->first[0] + g->cells[0] - 1) % g->cells[0]);
        mistakes += f[3] != (float)((g->first[0] + 3) % g->cells[0]);
    }
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    return mistakes;
}

/* ---- what is refused, and how ---- */

static void says(const char *text, const char *want)
{
    CHECK(strstr(text, want) != NULL);
    if (strstr(text, want) == NULL) {
        printf("    \"%s\" does not say \"%s\"\n", text, want);
    }
}

static void refused(dpar_comm *c, const dpar_grid_desc *d, dpar_status st, const char *want)
{
    dpar_grid *g = (dpar_grid *)(void *)&g; /* is not changed */
    dpar_grid *const before = g;
    dpar_why why;
    why.text[0] = 0;
    CHECK_INT(dpar_grid_make(c, d, &g, &why), st);
    CHECK(g == before);
    says(why.text, want);
    c->why.text[0] = 0; /* dpar_fail(c, NULL) prints this message */
    CHECK_INT(dpar_grid_make(c, d, &g, NULL), st);
    says(c->why.text, want);
}

static void refusals(dpar_comm *c)
{
    const int64_t uneven[3] = {0, 5, 4}, cuts[3] = {0, 3, 8};
    dpar_grid_desc good, d;
    dpar_why why;
    char word[100];
    memset(&good, 0, sizeof good);
    good.dims = 2;
    good.cells[0] = good.cells[1] = 8;
    good.halo = 1;
    CHECK_INT(dpar_grid_make(NULL, &good, NULL, &why), DPAR_E_ARG);
    refused(c, NULL, DPAR_E_ARG, "NULL");
    d = good, d.dims = 0, refused(c, &d, DPAR_E_ARG, "desc.dims is 0; it must be 1 to 6");
    d = good, d.dims = 7, refused(c, &d, DPAR_E_ARG, "desc.dims is 7");
    d = good, d.cells[1] = 0, refused(c, &d, DPAR_E_ARG, "desc.cells[1] is 0");
    d = good, d.halo = -2, refused(c, &d, DPAR_E_ARG, "dim 0: the halo is -2 wide below");
    d = good, d.halo_high[1] = -1,
    refused(c, &d, DPAR_E_ARG, "dim 1: the halo is 1 wide below and -1 above");
    d = good, d.halo = 200, d.periodic[0] = 1, refused(c, &d, DPAR_E_RANGE, "16 times its");
    d = good, d.star = 2, refused(c, &d, DPAR_E_ARG, "star is 2");
    d = good, d.order = 2, refused(c, &d, DPAR_E_ARG, "order 2");
    d = good, d.periodic[1] = 2, refused(c, &d, DPAR_E_ARG, "dim 1: periodic is 2");
    d = good, d.mirror_low[0] = 3, refused(c, &d, DPAR_E_ARG, "mirror_low 3 and mirror_high 0");
    d = good, d.periodic[0] = d.mirror_high[0] = 1;
    refused(c, &d, DPAR_E_ARG, "periodic is 1 (0 or 1 allowed), mirror_low 0 and mirror_high 1");
    d = good, d.parts[0] = c->size, d.parts[1] = 3;
    sprintf(word, "the fixed parts multiply to %d, which does not divide %d ranks",
            3 * (int)c->size, (int)c->size);
    refused(c, &d, DPAR_E_DIVIDE, word);
    d = good, d.parts[0] = INT32_MAX, d.cuts[0] = cuts; /* cuts that do not exist are not read */
    refused(c, &d, DPAR_E_DIVIDE, "desc.parts[0] is 2147483647, but there are");
    d = good, d.cuts[0] = cuts,
    refused(c, &d, DPAR_E_ARG, "desc.cuts[0] is set, but desc.parts[0] is 0");
    if (c->size == 2) {
        d = good, d.parts[0] = 2, d.cuts[0] = uneven;
        refused(c, &d, DPAR_E_ARG,
                "desc.cuts[0] must not descend, but part 1 begins at 5 and ends at 4");
        d.cuts[0] = cuts, d.cells[0] = 9, refused(c, &d, DPAR_E_DIVIDE, "9");
        d = good, d.cells[0] = d.cells[1] = 1;
        refused(c, &d, DPAR_E_NONE, "");
    }
    d = good, d.halo = 9, d.mirror_low[0] = 1, d.parts[0] = 1;
    d.parts[1] = c->size, d.halo_low[1] = d.halo_high[1] = 1;
    refused(c, &d, DPAR_E_RANGE, "it owns 8, and its halo is 9 wide below and 9 above");
    if (c->size > 1) { /* each rank its own */
        d = good, d.halo = c->rank + 1 < c->size ? 1 : 2;
        memset(&why, 0, sizeof why);
        {
            dpar_grid *g;
            CHECK_INT(dpar_grid_make(c, &d, &g, &why), DPAR_E_MISMATCH);
        }
        CHECK(says_who_differs(why.text, c->size, "grid: halo", "1", "2"));
    }
    CHECK_INT(dpar_grid_free(NULL), DPAR_OK);
}

/* Checks expected counts that fit no cut, on one rank or together, and ones that fit although some
 * are 0. */
static void refused_counts(dpar_comm *c)
{
    const int32_t last = c->size - 1;
    const int64_t far = INT64_C(1) << 56;
    const int64_t cuts[] = {0, 4, 10};
    dpar_grid_desc good, d;
    dpar_grid *g = NULL;
    dpar_why why;
    memset(&good, 0, sizeof good);
    good.dims = 1;
    good.cells[0] = 10;
    good.halo = 1;
    d = good;
    d.expected_count[0] = c->rank == last ? -1 : 0;
    refused(c, &d, DPAR_E_ARG, "expected_count is -1, and no cut fits: a number is not 0 to cells");
    d.expected_count[0] = c->rank == last ? INT64_MAX : 0;
    refused(c, &d, DPAR_E_ARG, "no cut fits: a number is not 0 to cells");
    if (c->size == 1) {
        return;
    }
    d.expected_count[0] = c->rank == last ? 9 : c->rank == 0 ? 2 : 0;
    refused(c, &d, DPAR_E_ARG, "no cut fits: the numbers of all parts exceed the cells");
    d.expected_count[0] = c->rank == last ? 6 : 0;
    refused(c, &d, DPAR_E_ARG, "no cut fits: the numbers of all parts are fewer than the cells");
    d.expected_count[0] = c->rank == last ? 10 : 0;
    CHECK_INT(dpar_grid_make(c, &d, &g, &why), DPAR_OK);
    CHECK_INT(g->count[0], c->rank == last ? 10 : 0);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    if (c->size == 2) {
        d.parts[0] = 2;
        d.cuts[0] = cuts;
        d.expected_count[0] = 5;
        refused(c, &d, DPAR_E_ARG, "no cut fits: desc.cuts is set");
    }
    d = good; /* the array of one rank is too large, and only in the expected cut */
    d.cells[0] = far + far / 2;
    d.expected_count[0] = c->rank == 0 ? far : c->rank == last ? far / 2 : 0;
    refused(c, &d, DPAR_E_RANGE, "the array of rank 0 would have more than 2^56 points");
    CHECK_INT(c->status, DPAR_OK);
}

/* Makes grids of random cuts that only expected_count describes: without parts, and sometimes with
 * parts that have no cells. */
static void counts_without_parts(dpar_comm *c, uint64_t *lot)
{
    for (int round = 0; round < 40; round++) {
        int64_t cuts[3][9];
        int32_t parts[3], coord[DPAR_MAX_DIMS];
        int left = c->size;
        dpar_grid_desc d;
        dpar_grid *g = NULL;
        dpar_mesh mesh;
        dpar_why why;
        memset(&d, 0, sizeof d);
        d.dims = 1 + below(lot, 3);
        d.order = below(lot, 2);
        d.halo = below(lot, 3);
        for (int k = 0; k < d.dims; k++) {
            const int some = k == d.dims - 1 ? left : 1 + below(lot, left);
            parts[k] = left % some == 0 ? some : 1;
            left /= parts[k];
        }
        CHECK_INT(dpar_mesh_init(&mesh, &"c b a"[2 * (3 - d.dims)], parts, d.order, 0, &why),
                  DPAR_OK);
        CHECK_INT(dpar_mesh_coords(&mesh, c->rank, coord), 1);
        for (int k = 0; k < d.dims; k++) {
            d.cells[k] = c->size + below(lot, 20);
            cuts[k][0] = 0;
            for (int p = 1; p < parts[k]; p++) {
                const int64_t rest = d.cells[k] - cuts[k][p - 1];
                cuts[k][p] = cuts[k][p - 1] + below(lot, (int)rest + 1);
            }
            cuts[k][parts[k]] = d.cells[k];
            d.expected_count[k] = cuts[k][coord[k] + 1] - cuts[k][coord[k]];
        }
        CHECK_INT(dpar_grid_make(c, &d, &g, &why), DPAR_OK);
        for (int k = 0; k < d.dims; k++) {
            CHECK_INT(g->parts[k], parts[k]);
            CHECK_INT(g->first[k], cuts[k][coord[k]]);
            CHECK_INT(g->count[k], d.expected_count[k]);
        }
        CHECK_INT(dpar_grid_free(g), DPAR_OK);
    }
}

static void refused_arrays(dpar_comm *c)
{
    dpar_grid *g = ring(c, 1);
    double own[5], *u = (double *)dpar_grid_array(g, DPAR_F64, NULL), *v;
    void *list[2];
    dpar_grid_field f;
    dpar_grid_part part;
    dpar_why why;
    memset(&f, 0, sizeof f);
    v = (double *)dpar_grid_array(g, DPAR_F64, NULL);
    CHECK_INT(dpar_grid_attach(NULL, u, DPAR_F64, NULL, &why), DPAR_E_ARG);
    CHECK_INT(dpar_grid_attach(g, NULL, DPAR_F64, NULL, &why), DPAR_E_ARG);
    says(why.text, "is NULL");
    CHECK_INT(dpar_grid_attach(g, own + 1, DPAR_TYPE_NONE, NULL, &why), DPAR_E_ARG);
    says(why.text, "type none (0)");
    f.components = -1;
    CHECK_INT(dpar_grid_attach(g, own + 1, DPAR_F64, &f, &why), DPAR_E_ARG);
    says(why.text, "field.components is -1");
    CHECK_INT(dpar_grid_block(g, &f, &part), DPAR_E_ARG);
    f.components = 0, f.location[0] = 2;
    CHECK_INT(dpar_grid_attach(g, own + 1, DPAR_F64, &f, &why), DPAR_E_ARG);
    says(why.text, "field.location[0] is 2");
    f.location[0] = 0, f.odd[0] = 1;
    CHECK_INT(dpar_grid_attach(g, own + 1, DPAR_F8, &f, &why), DPAR_E_ARG);
    says(why.text, "f8 has no sign");
    f.odd[0] = 4;
    CHECK_INT(dpar_grid_attach(g, own + 1, DPAR_F64, &f, &why), DPAR_E_ARG);
    says(why.text, "odd[0] is 4, which has bits beyond the number of components, 1");
    f.odd[0] = 0, f.stride[0] = INT64_C(1) << 60;
    CHECK_INT(dpar_grid_attach(g, own + 1, DPAR_F64, &f, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_grid_block(g, &f, &part), DPAR_E_RANGE);
    CHECK(dpar_grid_array(g, DPAR_F64, &f) == NULL);
    says(c->why.text, "2^57");
    f.stride[0] = 0, f.components = 1 << 24;
    CHECK(dpar_grid_array(g, 99, NULL) == NULL);
    CHECK(dpar_grid_array(NULL, DPAR_F64, NULL) == NULL);
    CHECK_INT(dpar_grid_exchange(NULL, u), DPAR_E_ARG);
    CHECK_INT(dpar_grid_exchange(g, u + 1), DPAR_E_ARG);
    says(c->why.text, "grid: array 0 of the list of 1 does not belong to this grid");
    list[0] = u, list[1] = own;
    CHECK_INT(dpar_grid_exchange_many(g, list, 2, 0), DPAR_E_ARG);
    says(c->why.text, "array 1 of the list of 2 does not belong to this grid");
    CHECK_INT(dpar_grid_exchange_many(g, list, 0, 0), DPAR_E_ARG);
    CHECK_INT(dpar_grid_exchange_many(g, NULL, 2, 0), DPAR_E_ARG);
    says(c->why.text, "the list of 2 arrays is NULL");
    CHECK_INT(dpar_grid_exchange_many(g, list, 4097, 0), DPAR_E_ARG);
    CHECK_INT(dpar_grid_begin_many(g, NULL, 2, 0), DPAR_E_ARG);
    CHECK_INT(dpar_grid_begin_many(NULL, list, 1, 0), DPAR_E_ARG);
    CHECK_INT(dpar_grid_exchange_many(NULL, list, 1, 0), DPAR_E_ARG);
    CHECK_INT(dpar_grid_exchange_many(g, list, 1, 2), DPAR_E_RANGE);
    says(c->why.text, "depth is 2; it must be 0 to 1, the width of the halo");
    CHECK_INT(dpar_grid_exchange_many(g, list, 1, -1), DPAR_E_RANGE);
    list[1] = u;
    CHECK_INT(dpar_grid_exchange_many(g, list, 2, 0), DPAR_E_ARG); /* the same one twice */
    says(c->why.text, "in common");
    CHECK_INT(dpar_grid_end(g, u), DPAR_E_ARG);
    CHECK_INT(dpar_grid_end(NULL, u), DPAR_E_ARG);
    CHECK_INT(dpar_grid_test(NULL, u), DPAR_E_ARG);
    says(c->why.text, "has begun");
    CHECK_INT(dpar_grid_gather(g, own, own), DPAR_E_ARG);
    CHECK_INT(dpar_grid_gather(g, u, NULL), DPAR_E_ARG);
    says(c->why.text, "rank 0");
    CHECK_INT(dpar_grid_scatter(NULL, u, own), DPAR_E_ARG);
    if (c->size > 1) { /* each passes another one; then all are right again */
        CHECK_INT(dpar_grid_exchange(g, c->rank + 1 < c->size ? u : v), DPAR_E_MISMATCH);
        CHECK(says_who_differs(c->why.text, c->size, "grid: array 0 of the list", "0", "1"));
        CHECK(dpar_grid_array(g, c->rank + 1 < c->size ? DPAR_F64 : DPAR_F32, NULL) == NULL);
        CHECK(says_who_differs(c->why.text, c->size, "grid: type", "f64", "f32"));
    }
    ring_fill(g, u, 7);
    CHECK_INT(dpar_grid_exchange(g, u), DPAR_OK);
    CHECK_INT(ring_wrong(g, u, 7), 0);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
}

/* Checks that strides which no array has are reported when it is attached, on all ranks. */
static void refused_strides(dpar_comm *c)
{
    const int64_t far[2] = {INT64_MAX, INT64_MIN};
    const int bad = c->size - 1; /* the rank that passes them */
    static double own[100 * 100];
    dpar_grid_desc d;
    dpar_grid_field f;
    dpar_grid_part part;
    dpar_grid *g;
    dpar_why why;
    char word[100];
    int i;
    memset(&d, 0, sizeof d);
    d.dims = 2, d.halo = 1;
    d.cells[0] = 4 * (int64_t)c->size, d.cells[1] = 4;
    d.parts[0] = c->size, d.parts[1] = 1;
    d.periodic[0] = 1; /* exchanges use 6 rows of 4 cells, 6 in memory */
    CHECK_INT(dpar_grid_make(c, &d, &g, NULL), DPAR_OK);
    for (i = 0; i < 5; i++) {
        memset(&f, 0, sizeof f);
        f.stride[0] = 6, f.stride[1] = 1;
        if (c->rank == bad) {
            f.stride[0] = i == 0 ? 3 : i == 1 ? 0 : i == 2 ? -1 : 6;
            f.stride[1] = i == 3 ? 0 : i == 4 ? 6 : 1;
        }
        CHECK_INT(dpar_grid_attach(g, own + 200, DPAR_F64, &f, &why), DPAR_E_ARG);
        sprintf(word, "grid: rank %d has %d points in dim %d, %d elements apart: several points",
                bad, i < 2 ? 6 : 4, i < 2 ? 0 : 1,
                i == 0   ? 3
                : i == 2 ? 1
                : i == 4 ? 6
                         : 0);
        says(why.text, word);
    }
    f.stride[1] = 1, f.stride[0] = 4; /* no two used cells overlap: none are used beyond x's ends */
    CHECK_INT(dpar_grid_attach(g, own + 200, DPAR_F64, &f, &why), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, own + 200), DPAR_OK);
    f.stride[0] = 6, f.components = 2, f.component_stride = 1;
    CHECK_INT(dpar_grid_attach(g, own + 200, DPAR_F64, &f, &why), DPAR_E_ARG);
    says(why.text, "has 2 components, 1 elements apart");
    f.component_stride = -6;
    CHECK_INT(dpar_grid_attach(g, own + 200, DPAR_F64, &f, &why), DPAR_E_ARG);
    says(why.text, "elements apart: several");
    f.component_stride = 36;
    CHECK_INT(dpar_grid_attach(g, own + 200, DPAR_F64, &f, &why), DPAR_OK);
    for (i = 0; i < 4; i++) {
        f.component_stride = 36, f.stride[1] = 1, f.stride[0] = 6;
        if (c->rank == bad) {
            *(i < 2 ? &f.stride[i] : &f.component_stride) = far[i % 2];
        }
        CHECK_INT(dpar_grid_attach(g, own + 200, DPAR_F64, &f, &why), DPAR_E_RANGE);
        says(why.text, i < 2 ? "beyond 2^57 bytes: 6 points in dim " : "2^57 bytes: 2 components");
        CHECK_INT(dpar_grid_block(g, &f, &part), c->rank == bad ? DPAR_E_RANGE : DPAR_OK);
    }
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
}

/* True if the library has to recognise blocks of malloc. This does not use the library's own
 * macro, so that the test notices if the check is compiled nowhere. */
static int malloc_is_known(void)
{
#if defined(__SANITIZE_ADDRESS__) || !defined(__GLIBC__) || UINTPTR_MAX == UINT32_MAX
    return 0;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
    return 0;
#else
    return 1;
#endif
#else
    return 1;
#endif
}

/* Returns zeroed memory that does not begin at a page. The library does not look at the bytes in
 * front of a page, which may not be mapped, so it would accept such an address. */
static char *block_within_a_page(size_t bytes)
{
    char *first = (char *)calloc(bytes, 1);
    char *second;
    if ((uintptr_t)first % 4096 != 0) {
        return first;
    }
    second = (char *)calloc(bytes, 1); /* malloc keeps its size between the two */
    free(first);
    return second;
}

/* Checks that the address of a whole array is refused where that of its first own cell is due, and
 * accepted with array_start. */
static void refused_starts(dpar_comm *c)
{
    static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_I32, DPAR_I64};
    dpar_grid_desc d;
    dpar_grid *g = NULL;
    dpar_why why;
    memset(&d, 0, sizeof d);
    d.dims = 2;
    d.cells[0] = 6 * (int64_t)c->size;
    d.parts[1] = 1;
    d.halo = 1;
    d.periodic[0] = d.periodic[1] = 1;
    for (int i = 0; i < 8; i++) {
        const int64_t large = i % 2 ? 30000 : 7; /* malloc maps pages for the large one */
        char *u;
        d.cells[1] = large;
        d.type = types[i / 2];
        d.array_start = 0;
        CHECK_INT(dpar_grid_make(c, &d, &g, &why), DPAR_OK);
        u = block_within_a_page(8 * (size_t)(large + 2) * (size_t)dpar_type_bytes(d.type));
        if (i < 4 && malloc_is_known()) { /* integers may have any value */
            CHECK_INT(dpar_grid_gather(g, u, u), DPAR_E_ARG);
            says(c->why.text, "passes the beginning of a block of malloc for the whole array");
            CHECK_INT(dpar_grid_exchange(g, u), DPAR_E_ARG);
            says(c->why.text, "passes the beginning of a block of malloc for the whole array");
            CHECK_INT(dpar_grid_attach(g, u, d.type, NULL, &why), DPAR_E_ARG);
            says(why.text, "pass the address of the first own point");
        }
        if (i >= 4) { /* an integer in front of the first own point that is a size of malloc */
            const int64_t size = 8 * (large + 2) * dpar_type_bytes(d.type) + 17;
            memcpy(u + (large + 3) * dpar_type_bytes(d.type) - 8, &size, 8);
        }
        CHECK_INT(dpar_grid_exchange(g, u + (large + 3) * dpar_type_bytes(d.type)), DPAR_OK);
        CHECK_INT(dpar_grid_free(g), DPAR_OK);
        d.array_start = 1;
        CHECK_INT(dpar_grid_make(c, &d, &g, &why), DPAR_OK);
        CHECK_INT(dpar_grid_exchange(g, u), DPAR_OK);
        CHECK_INT(dpar_grid_free(g), DPAR_OK);
        free(u);
    }
}

/* Checks addresses within known arrays and exchanges in flight: the error is reported, and nothing
 * changes. */
static int64_t refused_places(dpar_comm *c)
{
    double own[60] = {0}, *u, *v = own + 20;
    void *list[3];
    dpar_grid_desc d;
    dpar_grid_field f;
    dpar_grid *g;
    dpar_why why;
    int64_t mistakes = 0;
    int i;
    memset(&d, 0, sizeof d);
    memset(&f, 0, sizeof f);
    d.dims = 1, d.halo = 1, d.periodic[0] = 1, d.type = DPAR_F64;
    d.cells[0] = 3 * (int64_t)c->size;
    CHECK_INT(dpar_grid_make(c, &d, &g, NULL), DPAR_OK);
    u = (double *)dpar_grid_array(g, DPAR_F64, NULL);
    CHECK_INT(dpar_grid_attach(g, v, DPAR_F64, NULL, NULL), DPAR_OK);
    for (i = -4; i <= 4; i++) { /* u and v have 5 elements */
        if (i != 0) {
            CHECK_INT(dpar_grid_exchange(g, u + i), DPAR_E_ARG);
            CHECK_INT(dpar_grid_begin(g, v + i), DPAR_E_ARG);
            CHECK_INT(dpar_grid_attach(g, u + i, DPAR_F64, NULL, &why), DPAR_E_ARG);
            says(why.text, "in common with one of dpar_grid_array");
        }
    }
    CHECK_INT(dpar_grid_exchange(g, u + 2), DPAR_E_ARG);
    says(c->why.text, "array 0 of the list points into another array, 16 bytes after its first");
    CHECK_INT(dpar_grid_exchange(g, v + 5), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, v - 5), DPAR_OK);
    ring_fill(g, u, 1);
    ring_fill(g, v, 2);
    list[0] = u, list[1] = v;
    CHECK_INT(dpar_grid_begin_many(g, list, 2, 0), DPAR_OK);
    for (i = 0; i < 2; i++) {
        CHECK_INT(dpar_grid_attach(g, list[i], DPAR_F64, NULL, &why), DPAR_E_ARG);
        says(why.text, "at this address that has not ended");
        CHECK_INT(dpar_grid_attach(g, v + 1, DPAR_F64, NULL, &why), DPAR_E_ARG);
        CHECK_INT(dpar_grid_begin(g, list[i]), DPAR_E_ARG);
        says(c->why.text, "array 0 of the list of 1 has begun and not ended");
        CHECK_INT(dpar_grid_exchange(g, list[i]), DPAR_E_ARG);
        CHECK_INT(dpar_grid_exchange_many(g, list, 2, 0), DPAR_E_ARG);
    }
    CHECK_INT(dpar_grid_end(g, v), DPAR_OK);
    CHECK_INT(dpar_grid_end(g, u), DPAR_E_ARG);
    mistakes += ring_wrong(g, u, 1) + ring_wrong(g, v, 2);
    if (c->size > 1) { /* other arrays in a first exchange: the message names their types */
        float *w = (float *)dpar_grid_array(g, DPAR_F32, NULL);
        list[0] = c->rank + 1 < c->size ? (void *)w : (void *)(own + 50);
        list[1] = u, list[2] = v; /* three arrays, for which no rank has a plan */
        CHECK_INT(dpar_grid_exchange_many(g, list, 3, 0), DPAR_E_MISMATCH);
        CHECK(says_who_differs(c->why.text, c->size, "grid exchange: the type of array 0", "f32",
                               "f64"));
    }
    /* an array that overlaps one of the user's replaces it; interleaved arrays do not */
    CHECK_INT(dpar_grid_attach(g, v + 1, DPAR_F64, NULL, &why), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, v), DPAR_E_ARG);
    ring_fill(g, v + 1, 3);
    CHECK_INT(dpar_grid_exchange(g, v + 1), DPAR_OK);
    mistakes += ring_wrong(g, v + 1, 3);
    f.components = 2;
    CHECK_INT(dpar_grid_attach(g, own + 40, DPAR_F64, &f, &why), DPAR_OK);
    f.components = 1, f.stride[0] = 2;
    CHECK_INT(dpar_grid_attach(g, own + 41, DPAR_F64, &f, &why), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, own + 40), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, own + 41), DPAR_OK);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    return mistakes;
}

/* Checks that an array is refused that has elements in common with two known ones, the second of
 * which is the grid's own, and that both are still known afterwards. */
static int64_t refused_by_the_second(dpar_comm *c)
{
    double memory[5], *v = memory + 1, *u;
    dpar_grid_field f;
    dpar_grid *g = ring(c, 0);
    dpar_why why;
    int64_t mistakes;
    memset(&f, 0, sizeof f);
    CHECK_INT(dpar_grid_attach(g, v, DPAR_F64, NULL, NULL), DPAR_OK);
    u = (double *)dpar_grid_array(g, DPAR_F64, NULL);
    f.stride[0] = ((int64_t)(uintptr_t)u - (int64_t)(uintptr_t)(v + 1)) / 8; /* v[1], then u[0] */
    CHECK_INT(dpar_grid_attach(g, v + 1, DPAR_F64, &f, &why), DPAR_E_ARG);
    says(why.text, "in common with one of dpar_grid_array");
    ring_fill(g, u, 1);
    ring_fill(g, v, 2);
    CHECK_INT(dpar_grid_exchange(g, u), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, v), DPAR_OK);
    mistakes = ring_wrong(g, u, 1) + ring_wrong(g, v, 2);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    return mistakes;
}

/* Checks that a list with an array twice is refused, also if there is a plan for two such arrays.
 */
static void refused_twice(dpar_comm *c)
{
    dpar_grid *g = ring(c, 0);
    double *u = (double *)dpar_grid_array(g, DPAR_F64, NULL);
    double *v = (double *)dpar_grid_array(g, DPAR_F64, NULL);
    void *both[2], *twice[2];
    both[0] = u, both[1] = v;
    twice[0] = twice[1] = v;
    CHECK_INT(dpar_grid_reduce_many(g, twice, 2, DPAR_SUM), DPAR_E_ARG);
    CHECK_INT(dpar_grid_reduce_many(g, both, 2, DPAR_SUM), DPAR_OK);
    CHECK_INT(dpar_grid_reduce_many(g, twice, 2, DPAR_SUM), DPAR_E_ARG);
    says(c->why.text, "array 0 of the list of 2 is in the list twice");
    twice[0] = twice[1] = u;
    CHECK_INT(dpar_grid_reduce_many(g, twice, 2, DPAR_SUM), DPAR_E_ARG);
    says(c->why.text, "array 1 of the list of 2 is in the list twice");
    CHECK_INT(dpar_grid_reduce_many(g, both, 2, DPAR_SUM), DPAR_OK);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
}

/* ---- arrays of the grid's type, which no rank attaches ---- */

static int64_t of_a_type(dpar_comm *c)
{
    double *u[8], *kept = NULL, whole[3 * 8], all[3 * 8 + 1];
    void *memory = NULL, *list[2];
    dpar_grid_desc d;
    dpar_grid *g;
    dpar_halo_plan *x = NULL;
    dpar_why why;
    int64_t mistakes = 0;
    int i;
    memset(&d, 0, sizeof d);
    d.dims = 1, d.halo = 1, d.periodic[0] = 1;
    d.cells[0] = 3 * (int64_t)c->size;
    d.type = DPAR_F4;
    refused(c, &d, DPAR_E_ARG, "no whole number of bytes");
    d.type = DPAR_F64, d.owns_comm = 2;
    refused(c, &d, DPAR_E_ARG, "owns_comm 2");
    d.owns_comm = 0;
    CHECK_INT(dpar_grid_make(c, &d, &g, &why), DPAR_OK);
    CHECK_INT(dpar_comm_alloc(c, 80, &memory), DPAR_OK);
    for (i = 0; i < 8; i++) { /* another address each time, on some ranks in registered memory */
        u[i] = (double *)((i + c->rank) % 3 == 0 ? memory : zeroed(40 + 8 * i)) + 1;
        ring_fill(g, u[i], 10 * i);
        CHECK_INT(dpar_grid_exchange(g, u[i]), DPAR_OK);
        mistakes += ring_wrong(g, u[i], 10 * i);
        list[0] = u[i];
        CHECK(i == 0 || dpar_grid_plan(g, list, 1) == x); /* one plan for all */
        x = dpar_grid_plan(g, list, 1);
    }
    list[0] = (double *)memory + 1, list[1] = (double *)memory + 6;
    for (i = 0; i < 2; i++) {
        ring_fill(g, (double *)list[0], 1);
        ring_fill(g, (double *)list[1], 2);
        CHECK_INT(i ? dpar_grid_begin_many(g, list, 2, 1) : dpar_grid_exchange_many(g, list, 2, 0),
                  DPAR_OK);
        CHECK_INT(i ? dpar_grid_end(g, list[1]) : DPAR_OK, DPAR_OK);
        mistakes += ring_wrong(g, (double *)list[0], 1) + ring_wrong(g, (double *)list[1], 2);
    }
    ring_fill(g, (double *)list[0], 0); /* to rank 0 and back */
    CHECK_INT(dpar_grid_gather(g, list[0], whole), DPAR_OK);
    for (i = 0; i < 3 * c->size; i++) {
        mistakes += c->rank == 0 && whole[i] != i;
        all[i] = 5 + i;
    }
    CHECK_INT(dpar_grid_scatter(g, list[0], all), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, list[0]), DPAR_OK);
    mistakes += ring_wrong(g, (double *)list[0], 5);
    kept = (double *)dpar_grid_array(g, DPAR_F64, NULL); /* next to one that is known */
    list[1] = kept;
    ring_fill(g, kept, 3);
    CHECK_INT(dpar_grid_exchange_many(g, list, 2, 0), DPAR_OK);
    mistakes += ring_wrong(g, kept, 3);
    CHECK_INT(dpar_grid_exchange(g, NULL), DPAR_E_ARG);
    says(c->why.text, "does not belong to this grid");
    CHECK_INT(dpar_grid_attach(g, list[0], DPAR_I64, NULL, &why), DPAR_OK); /* known as another */
    for (i = 0; i < 5; i++) {
        ((int64_t *)list[0])[i - 1] = i > 0 && i < 4 ? (INT64_C(1) << 60) + 3 * c->rank + i : 0;
    }
    CHECK_INT(dpar_grid_exchange(g, list[0]), DPAR_OK);
    mistakes += ((int64_t *)list[0])[3] != (INT64_C(1) << 60) + 3 * ((c->rank + 1) % c->size) + 1;
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    for (i = 0; i < 8; i++) {
        if (u[i] != (double *)memory + 1) {
            free(u[i] - 1);
        }
    }
    dpar_comm_release(c, memory);
    return mistakes;
}

/* Makes two plans for one shape, and then passes the array that was exchanged last on rank 0, and
 * another one elsewhere. All ranks must choose the same of the two plans. */
static int64_t two_plans(dpar_comm *c)
{
    double memory[3][5], *u;
    dpar_grid_desc d;
    dpar_grid *g;
    dpar_why why;
    int64_t mistakes;
    memset(&d, 0, sizeof d);
    d.dims = 1;
    d.halo = 1;
    d.periodic[0] = 1;
    d.cells[0] = 3 * (int64_t)c->size;
    d.type = DPAR_F64;
    CHECK_INT(dpar_grid_make(c, &d, &g, &why), DPAR_OK);
    ring_fill(g, memory[0] + 1, 1);
    ring_fill(g, memory[1] + 1, 2);
    CHECK_INT(dpar_grid_begin(g, memory[0] + 1), DPAR_OK);
    CHECK_INT(dpar_grid_exchange(g, memory[1] + 1), DPAR_OK);
    CHECK_INT(dpar_grid_end(g, memory[0] + 1), DPAR_OK);
    mistakes = ring_wrong(g, memory[0] + 1, 1) + ring_wrong(g, memory[1] + 1, 2);
    u = memory[c->rank == 0 ? 1 : 2] + 1;
    ring_fill(g, u, 3);
    CHECK_INT(dpar_grid_exchange(g, u), DPAR_OK);
    mistakes += ring_wrong(g, u, 3);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    return mistakes;
}

/* Exchanges random lists of arrays of two shapes: more plans than a grid keeps keys of, each used
 * again after others, with other arrays. Some arrays get a new place now and then. */
static int64_t many_plans(dpar_comm *c)
{
    enum { ARRAYS = 12 };
    static const int32_t types[2] = {DPAR_F64, DPAR_F32};
    dpar_grid *g = ring(c, 0);
    double wide[2 * ARRAYS][5];
    float narrow[ARRAYS][5];
    uint64_t lot = 5;
    int64_t mistakes = 0;
    memset(wide, 0, sizeof wide); /* what the stack has could look like a size of malloc */
    for (int i = 0; i < 2 * ARRAYS; i++) {
        CHECK_INT(dpar_grid_attach(g, wide[i] + 1, types[0], NULL, NULL), DPAR_OK);
        CHECK_INT(dpar_grid_attach(g, narrow[i / 2] + 1, types[1], NULL, NULL), DPAR_OK);
    }
    for (int round = 0; round < 300; round++) {
        const int count = 1 + below(&lot, ARRAYS), other = below(&lot, 2 * ARRAYS);
        const int shift = below(&lot, 2 * ARRAYS);
        void *list[ARRAYS];
        for (int i = 0; i < count; i++) {
            double *u = wide[(i + shift) % (2 * ARRAYS)] + 1;
            ring_fill(g, u, round + 1000.0 * i);
            list[i] = u;
        }
        if (other < count) {
            float *u = narrow[shift % ARRAYS] + 1;
            for (int x = 0; x < 3; x++) {
                u[x] = (float)(g->first[0] + x);
            }
            list[other] = u;
        }
        if (round % 7 == 0) { /* what is known of this address is looked up again */
            CHECK_INT(dpar_grid_attach(g, list[count - 1], types[other == count - 1], NULL, NULL),
                      DPAR_OK);
        }
        CHECK_INT(dpar_grid_exchange_many(g, list, count, 0), DPAR_OK);
        for (int i = 0; i < count; i++) {
            if (i != other) {
                mistakes += ring_wrong(g, (const double *)list[i], round + 1000.0 * i);
                continue;
            }
            mistakes += ((const float *)list[i])[-1] !=
                        (float)((g->first[0] + g->cells[0] - 1) % g->cells[0]);
            mistakes += ((const float *)list[i])[3] != (float)((g->first[0] + 3) % g->cells[0]);
        }
    }
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    return mistakes;
}

/* Checks that a grid knows 256 shapes. After that, arrays of these shapes can still be added, and
 * one of another shape is refused on all ranks. */
static void many_shapes(dpar_comm *c)
{
    static const int32_t types[4] = {DPAR_F64, DPAR_F32, DPAR_I64, DPAR_I32};
    dpar_grid *g = ring(c, 0);
    dpar_grid_field f;
    memset(&f, 0, sizeof f);
    for (int k = 0; k < 256; k++) {
        f.components = 1 + k / 4;
        CHECK(dpar_grid_array(g, types[k % 4], &f) != NULL);
    }
    f.components = 65;
    CHECK(dpar_grid_array(g, DPAR_F64, &f) == NULL);
    CHECK_INT(c->status, DPAR_OK);
    says(c->why.text, "more than 256 different shapes");
    f.components = 7;
    CHECK(dpar_grid_array(g, DPAR_F32, &f) != NULL);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
}

/* ---- the communicator is closed before its grid ---- */

static void closed_before(dpar_comm *c)
{
    dpar_grid *g[3];
    dpar_comm *part, *other;
    dpar_box box;
    double *u, *gone = NULL;
    int i;
    for (i = 0; i < 3; i++) {
        CHECK_INT(dpar_comm_split(c, 0, 0, &part), DPAR_OK);
        g[i] = ring(part, 0);
        u = (double *)dpar_grid_array(g[i], DPAR_F64, NULL);
        CHECK_INT(dpar_grid_exchange(g[i], u), DPAR_OK);
        gone = i == 0 ? u : gone;
        if (i == 2) { /* both in order */
            CHECK_INT(dpar_grid_free(g[2]), DPAR_OK);
        }
        CHECK_INT(dpar_comm_free(part), DPAR_OK);
        if (i == 1) { /* the grid knows that it was closed */
            CHECK_INT(dpar_grid_exchange(g[1], u), DPAR_E_ARG);
            says(g[1]->comm->why.text, "closed before");
            CHECK_INT(dpar_grid_free(g[1]), DPAR_OK);
        }
    }
    for (i = 0; i < 17; i++) { /* until the first one's memory is released */
        CHECK_INT(dpar_comm_split(c, 0, 0, &other), DPAR_OK);
        CHECK_INT(dpar_comm_free(other), DPAR_OK);
    }
    CHECK(g[0]->comm == NULL);
    CHECK_INT(dpar_grid_exchange(g[0], gone), DPAR_E_ARG);
    CHECK_INT(dpar_grid_end(g[0], gone), DPAR_E_ARG);
    CHECK_INT(dpar_grid_gather(g[0], gone, &box), DPAR_E_ARG);
    CHECK_INT(dpar_grid_block(g[0], NULL, NULL), DPAR_E_ARG);
    CHECK(dpar_grid_array(g[0], DPAR_F64, NULL) == NULL);
    CHECK(dpar_grid_interior(g[0], &box) == (c->size > 0));
    CHECK_INT(dpar_grid_free(g[0]), DPAR_OK);
    CHECK_INT(dpar_comm_split(c, 0, 0, &part), DPAR_OK); /* a grid that closes it */
    {
        dpar_grid_desc d;
        memset(&d, 0, sizeof d);
        d.dims = 1, d.cells[0] = c->size, d.halo = d.owns_comm = 1;
        CHECK_INT(dpar_grid_make(part, &d, &g[0], NULL), DPAR_OK);
        CHECK_INT(dpar_grid_free(g[0]), DPAR_OK);
        CHECK_INT(dpar_barrier(part, NULL), DPAR_E_ARG);
        says(part->why.text, "closed before");
        for (i = 0; i < 2; i++) { /* its message if it fails */
            dpar_why kept;
            memset(&kept, 0, sizeof kept);
            d.free_why = &kept;
            CHECK_INT(dpar_comm_split(c, 0, 0, &part), DPAR_OK);
            CHECK_INT(dpar_grid_make(part, &d, &g[0], NULL), DPAR_OK);
            CHECK(i == 0 ||
                  dpar_grid_exchange(g[0], dpar_grid_array(g[0], DPAR_F64, NULL)) == DPAR_OK);
            CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
            if (c->rank == 0) {
                dpar_comm_abort(part, DPAR_E_SYSTEM, "the disk is full");
            }
            CHECK_INT(dpar_grid_free(g[0]), DPAR_E_SYSTEM);
            says(kept.text, "the disk is full");
        }
    }
}

/* ---- one rank plans while the others wait: messages name the user's call ---- */

static void another_call(dpar_comm *c)
{
    static const char *const of[3] = {
        "dpar_grid_make, _array, _attach, _gather or _scatter (all-re",
        "a first dpar_grid_exchange (all-reduce #", "dpar_comm_check_equal (all-reduce #"};
    dpar_comm *part;
    dpar_grid *g;
    double u[5] = {0};
    dpar_status st;
    dpar_why why;
    char word[140];
    int i;
    for (i = 0; i < 3 && c->size > 1; i++) {
        CHECK_INT(dpar_comm_split(c, 0, 0, &part), DPAR_OK);
        g = ring(part, 0);
        CHECK_INT(dpar_grid_attach(g, u + 1, DPAR_F64, NULL, NULL), DPAR_OK);
        st = c->rank > 0 ? dpar_barrier(part, NULL)
             : i == 0    ? dpar_grid_attach(g, u + 1, DPAR_F64, NULL, &why)
             : i == 1    ? dpar_grid_exchange(g, u + 1)
                         : dpar_comm_check_equal(part, u, 1, DPAR_F64, &why);
        CHECK_INT(st, DPAR_E_MISMATCH);
        sprintf(word, "rank 0 called the planning of %s", of[i]);
        if (strcmp(c->engine.name, "shm") == 0) { /* others name their own operation */
            says(part->why.text, word);
        }
        (void)dpar_grid_free(g);
        (void)dpar_comm_free(part);
    }
}

/* ---- pictures ---- */

static void pictures(dpar_comm *c)
{
    const dpar_mem mem = dpar_mem_host();
    dpar_grid_desc d;
    dpar_grid *g;
    dpar_text t;
    char page[2000];
    memset(&d, 0, sizeof d);
    d.dims = 3;
    d.cells[0] = 4, d.cells[1] = 9, d.cells[2] = 7;
    d.halo_low[1] = d.halo_high[1] = d.halo_low[2] = 2, d.halo_high[2] = 1;
    CHECK_INT(dpar_grid_make(c, &d, &g, NULL), DPAR_OK);
    CHECK_INT(g->parts[0], 1); /* no halo there, but others have some */
    dpar_text_init(&t, page, sizeof page);
    dpar_grid_draw(g, &t);
    if (c->size == 4) { /* by hand: least cut, 2 x 2 */
        CHECK(strcmp(page, "4 x 9 x 7 cells on 1 x 2 x 2 ranks, halo 0 2 2 below, 0 2 1 above\n"
                           "dim 0: 0..3\n"
                           "              0..3          4..6\n"
                           "  0..4        rank 0        rank 1\n"
                           "  5..8        rank 2        rank 3\n") == 0);
    }
    CHECK(strstr(page, "rank 0") != NULL);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    dpar_grid_draw(NULL, &t);
    memset(&d, 0, sizeof d);
    d.dims = 2;
    d.cells[0] = d.cells[1] = 24;
    d.halo = 1;
    CHECK_INT(dpar_grid_make(c, &d, &g, NULL), DPAR_OK);
    CHECK(dpar_grid_array(g, DPAR_F64, NULL) != NULL);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
    d.mem = &mem;
    CHECK_INT(dpar_grid_make(c, &d, &g, NULL), DPAR_OK);
    CHECK(dpar_grid_array(g, DPAR_F64, NULL) == NULL);
    says(c->why.text, "desc.mem is not the memory of the communicator");
    if (c->size == 2) { /* of equal cuts the one with whole rows */
        CHECK(g->parts[0] == 2 && g->parts[1] == 1);
    }
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
}

static int each(dpar_comm *c, void *arg)
{
    const double began = now();
    uint64_t lot = 36;
    int64_t mistakes = 0;
    int i, made = 0, before;
    (void)arg;
    for (i = 0; i < ROUNDS && mistakes == 0; i++) {
        lot = (uint64_t)i * 1000 + 7;
        before = made;
        mistakes += one_round(c, &lot, &made);
        mistakes = all_sum(c, mistakes);
        if (mistakes > 0) {
            printf("    round %d%s\n", i, made > before ? "" : ", none made");
        }
    }
    CHECK(made > ROUNDS / 2);
    mistakes += swaps(c);
    refusals(c);
    refused_counts(c);
    counts_without_parts(c, &lot);
    refused_arrays(c);
    refused_strides(c);
    refused_starts(c);
    mistakes += refused_places(c);
    refused_twice(c);
    mistakes += refused_by_the_second(c);
    mistakes += of_a_type(c);
    mistakes += two_plans(c);
    mistakes += many_plans(c);
    if (c->size <= 2) {
        many_shapes(c);
    }
    closed_before(c);
    pictures(c);
    another_call(c);
    return all_right(c, mistakes + failures(), began);
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 6, 4, NULL);
}
