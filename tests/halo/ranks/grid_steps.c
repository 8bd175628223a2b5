/* SPDX-License-Identifier: MIT-0 */
/* Tests deep halos (dpar_grid_valid, dpar_grid_reflect, desc.steps) over real ranks: random grids
 * whose ranks exchange every k-th step, against one rank that computes the whole array, bit by bit.
 * Halos and everything that a sub-step does not compute are NaN, so that a cell that reads anything
 * stale is wrong. A second check finds by brute force which cells a sub-step may compute.
 *     ./grid_steps [processes|threads] [ranks]     without arguments: both, 1 to 6 and 1 to 4 */
#include "dpar_halo.h"
#include "rank_program.h"

enum { ROUNDS = 48, POINTS = 343 };

static int below(uint64_t *lot, int n)
{
    return (int)lot_below(lot, n);
}

typedef struct one_case {
    dpar_grid_desc d;
    dpar_grid *g;
    int64_t cuts[3][8], low[3], high[3];
    int64_t radius_low[3], radius_high[3];
    int steps, exchanges, overlaps, allocates, points;
    int offset[POINTS][3];
    double weight[POINTS];
    double *whole[2]; /* [cells], dense in C order: before and after a step */
    double *mine[2];  /* first elements of this rank's arrays, with halo */
    void *own[2];     /* addresses of their first own cells */
    int64_t size[3], count;
} one_case;

/* ---- a random case ---- */

static void random_cuts(one_case *k, uint64_t *lot, int d)
{
    const int parts = k->d.parts[d];
    for (int i = 1; i < parts; i++) {
        const int64_t rest = k->d.cells[d] - k->cuts[d][i - 1];
        k->cuts[d][i] = k->cuts[d][i - 1] + below(lot, (int)rest + 1);
    }
    k->cuts[d][parts] = k->d.cells[d];
    k->d.cuts[d] = k->cuts[d];
}

static void random_ends(one_case *k, uint64_t *lot, int d)
{
    k->d.periodic[d] = below(lot, 2);
    if (!k->d.periodic[d] && below(lot, 3) == 0) {
        k->d.mirror_low[d] = below(lot, 3);
        k->d.mirror_high[d] = below(lot, 3);
    }
}

static void random_grid(one_case *k, uint64_t *lot, int ranks)
{
    int left = ranks, radius = 1 + below(lot, 3);
    memset(k, 0, sizeof *k);
    k->d.dims = 1 + below(lot, 3);
    k->steps = 1 + below(lot, 6);
    while (k->d.dims == 3 && radius * k->steps > 6) {
        k->steps--;
    }
    k->d.steps = k->steps == 1 ? below(lot, 2) : k->steps;
    k->d.order = below(lot, 2);
    k->d.check = below(lot, 4) == 0;
    k->d.exchange_walls = below(lot, 4) == 0;
    k->d.halo = k->steps * radius;
    for (int d = 0; d < k->d.dims; d++) {
        k->d.cells[d] = ranks + below(lot, 8);
        k->d.parts[d] = 1 + below(lot, left);
        while (left % k->d.parts[d] != 0) {
            k->d.parts[d]--;
        }
        if (d + 1 == k->d.dims) {
            k->d.parts[d] = left;
        }
        left /= k->d.parts[d];
        random_ends(k, lot, d);
        if (below(lot, 3) == 0) {
            random_cuts(k, lot, d);
        }
        if (below(lot, 6) == 0) {
            k->d.halo_low[d] = k->steps * (1 + below(lot, radius));
        }
    }
    if (below(lot, 8) == 0) { /* a halo on some sides only */
        k->d.halo = 0;
        k->d.halo_high[0] = k->steps * radius;
    }
    for (int d = 0; d < k->d.dims; d++) {
        k->low[d] = k->d.halo_low[d] ? k->d.halo_low[d] : k->d.halo;
        k->high[d] = k->d.halo_high[d] ? k->d.halo_high[d] : k->d.halo;
        k->radius_low[d] = k->low[d] / k->steps;
        k->radius_high[d] = k->high[d] / k->steps;
        if (k->d.parts[d] == 1 && !k->d.periodic[d] && k->d.halo > 0 && below(lot, 2)) {
            /* such a dim needs only the radius */
            k->d.halo_low[d] = k->low[d] = k->radius_low[d];
            k->d.halo_high[d] = k->high[d] = k->radius_high[d];
        }
    }
    k->exchanges = 2 + below(lot, 2);
    k->overlaps = below(lot, 2);
    k->allocates = below(lot, 2);
    k->d.type = k->allocates ? 0 : DPAR_F64;
}

/* Lists the points of a star or a box, with weights that no symmetry relates. */
static void random_stencil(one_case *k, uint64_t *lot)
{
    const int star = below(lot, 2);
    int64_t o[3] = {0, 0, 0};
    double sum = 0;
    for (o[0] = -k->radius_low[0]; o[0] <= k->radius_high[0]; o[0]++) {
        for (o[1] = -k->radius_low[1]; o[1] <= k->radius_high[1]; o[1]++) {
            for (o[2] = -k->radius_low[2]; o[2] <= k->radius_high[2]; o[2]++) {
                if (star && (o[0] != 0) + (o[1] != 0) + (o[2] != 0) > 1) {
                    continue;
                }
                for (int d = 0; d < 3; d++) {
                    k->offset[k->points][d] = (int)o[d];
                }
                k->weight[k->points] = 0.1 + (double)below(lot, 1000) / 777.0;
                sum += k->weight[k->points++];
            }
        }
    }
    for (int i = 0; i < k->points; i++) {
        k->weight[i] /= sum;
    }
}

/* ---- the whole array ---- */

/* Maps a place of a dim to the cell of the grid whose value is there, if there is one. */
static int64_t cell_at(const one_case *k, int d, int64_t i)
{
    const int64_t n = k->d.cells[d];
    if (k->d.periodic[d]) {
        return (i % n + n) % n;
    }
    for (;;) {
        if (i < 0 && k->d.mirror_low[d]) {
            i = k->d.mirror_low[d] == DPAR_GRID_MIRROR_FACE ? -1 - i : -i;
        } else if (i >= n && k->d.mirror_high[d]) {
            i = k->d.mirror_high[d] == DPAR_GRID_MIRROR_FACE ? 2 * n - 1 - i : 2 * n - 2 - i;
        } else {
            return i;
        }
        if (n == 1 && (i < 0 || i > 0)) {
            return i; /* a mirror of one cell; not used, as the array does not hold such cells */
        }
    }
}

/* Returns 1 if a place, in global indices, is beyond a wall. at[] becomes the cell that is seen. */
static int beyond_wall(const one_case *k, int64_t *at)
{
    int outside = 0;
    for (int d = 0; d < k->d.dims; d++) {
        at[d] = cell_at(k, d, at[d]);
        outside |= at[d] < 0 || at[d] >= k->d.cells[d];
    }
    return outside;
}

/* The values beyond walls, and those of the cells at first. */
static double value_of(const one_case *k, const int64_t *at)
{
    int64_t h = 17;
    for (int d = 0; d < k->d.dims; d++) {
        h = h * 131 + at[d] + 64;
    }
    return (double)scrambled(5, h) / 4294967296.0;
}

static double seen(const one_case *k, const double *whole, const int64_t *place)
{
    int64_t at[3] = {place[0], place[1], place[2]}, i = 0;
    if (beyond_wall(k, at)) {
        return value_of(k, at);
    }
    for (int d = 0; d < k->d.dims; d++) {
        i = i * k->d.cells[d] + at[d];
    }
    return whole[i];
}

/* The only sum, so that all compilers round both sides in the same way. */
static double weighted(const double *weight, const double *value, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        sum += weight[i] * value[i];
    }
    return sum;
}

static void step_whole(const one_case *k, const double *from, double *to)
{
    const int64_t *n = k->d.cells;
    const int64_t ny = k->d.dims > 1 ? n[1] : 1, nz = k->d.dims > 2 ? n[2] : 1;
    int64_t i = 0;
    for (int64_t x = 0; x < n[0]; x++) {
        for (int64_t y = 0; y < ny; y++) {
            for (int64_t z = 0; z < nz; z++) {
                double value[POINTS];
                for (int p = 0; p < k->points; p++) {
                    const int64_t at[3] = {x + k->offset[p][0], y + k->offset[p][1],
                                           z + k->offset[p][2]};
                    value[p] = seen(k, from, at);
                }
                to[i++] = weighted(k->weight, value, k->points);
            }
        }
    }
}

/* ---- this rank's part ---- */

/* Returns the index of a cell in this rank's array, which holds it. */
static int64_t index_of(const one_case *k, const int64_t *at)
{
    int64_t i = 0;
    for (int d = 0; d < k->d.dims; d++) {
        i = i * k->size[d] + at[d] + k->low[d];
    }
    return i;
}

/* Makes the arrays: values beyond walls, own values, and NaN in the halo. */
static void begin_array(const one_case *k, double *u, int with_own)
{
    int64_t at[3] = {0, 0, 0}, i = 0;
    const dpar_grid *g = k->g;
    for (int d = 0; d < k->d.dims; d++) {
        at[d] = -k->low[d];
    }
    for (i = 0; i < k->count; i++) {
        int64_t place[3] = {0, 0, 0};
        int own = with_own;
        for (int d = 0; d < k->d.dims; d++) {
            place[d] = g->first[d] + at[d];
            own = own && at[d] >= 0 && at[d] < g->count[d];
        }
        u[i] = beyond_wall(k, place) || own ? value_of(k, place) : (double)NAN;
        for (int d = k->d.dims - 1; d >= 0; d--) {
            if (++at[d] < g->count[d] + k->high[d]) {
                break;
            }
            at[d] = -k->low[d];
        }
    }
}

static void compute_box(const one_case *k, const double *u, double *v, const dpar_box *box)
{
    const int dims = k->d.dims;
    for (int64_t x = box->lo[0]; x < box->hi[0]; x++) {
        for (int64_t y = box->lo[1]; y < (dims > 1 ? box->hi[1] : 1); y++) {
            for (int64_t z = box->lo[2]; z < (dims > 2 ? box->hi[2] : 1); z++) {
                const int64_t here[3] = {x, y, z};
                double value[POINTS];
                for (int p = 0; p < k->points; p++) {
                    const int64_t at[3] = {x + k->offset[p][0], y + k->offset[p][1],
                                           z + k->offset[p][2]};
                    value[p] = u[index_of(k, at)];
                }
                v[index_of(k, here)] = weighted(k->weight, value, k->points);
            }
        }
    }
}

/* Counts the cells of a box whose bits differ from those of the whole array. */
static int64_t compare_box(const one_case *k, const double *u, const double *whole,
                           const dpar_box *box)
{
    const int dims = k->d.dims;
    int64_t wrong = 0;
    for (int64_t x = box->lo[0]; x < box->hi[0]; x++) {
        for (int64_t y = box->lo[1]; y < (dims > 1 ? box->hi[1] : 1); y++) {
            for (int64_t z = box->lo[2]; z < (dims > 2 ? box->hi[2] : 1); z++) {
                const int64_t here[3] = {x, y, z};
                int64_t place[3] = {0, 0, 0};
                double expected;
                for (int d = 0; d < dims; d++) {
                    place[d] = k->g->first[d] + here[d];
                }
                expected = seen(k, whole, place);
                wrong += memcmp(&u[index_of(k, here)], &expected, sizeof expected) != 0;
            }
        }
    }
    return wrong;
}

/* Checks the box of a sub-step: it holds all own cells, ends at walls and mirrors, and extends into
 * the halo by what the later sub-steps need and no more. */
static void check_box(const one_case *k, int j, const dpar_box *box)
{
    int empty = 0;
    CHECK_INT(box->dims, k->d.dims);
    for (int d = 0; d < k->d.dims; d++) {
        empty |= k->g->count[d] == 0;
    }
    for (int d = 0; d < k->d.dims; d++) {
        const int64_t left = k->steps - 1 - j;
        int64_t lo = k->g->first[d], hi = lo + k->g->count[d];
        for (int64_t i = 0; i < left * k->radius_low[d] && (k->d.periodic[d] || lo > 0); i++) {
            lo--;
        }
        for (int64_t i = 0;
             i < left * k->radius_high[d] && (k->d.periodic[d] || hi < k->d.cells[d]); i++) {
            hi++;
        }
        CHECK_INT(box->lo[d], empty ? 0 : lo - k->g->first[d]);
        CHECK_INT(box->hi[d], empty ? 0 : hi - k->g->first[d]);
    }
}

/* Computes sub-step 0 in two parts, the interior during the exchange. Checks that both parts
 * together are the box of sub-step 0, each cell once. */
static void first_step_overlapped(const one_case *k, const double *u, double *v, void *own,
                                  const dpar_box *all)
{
    dpar_box box;
    int64_t cells = 0;
    CHECK_INT(dpar_grid_begin(k->g, own), DPAR_OK);
    if (dpar_grid_interior(k->g, &box)) {
        compute_box(k, u, v, &box);
        cells += dpar_box_volume(&box);
    }
    CHECK_INT(dpar_grid_end(k->g, own), DPAR_OK);
    for (int n = 0; dpar_grid_boundary(k->g, n, &box); n++) {
        compute_box(k, u, v, &box);
        cells += dpar_box_volume(&box);
    }
    CHECK_INT(cells, dpar_box_volume(all));
}

static int has_mirror(const one_case *k)
{
    int found = 0;
    for (int d = 0; d < k->d.dims; d++) {
        found |= k->d.mirror_low[d] | k->d.mirror_high[d];
    }
    return found;
}

/* Exchanges once and computes all sub-steps. Every buffer is poisoned before it is written.
 * Returns the number of wrong cells. */
static int64_t sub_steps(one_case *k)
{
    int64_t wrong = 0;
    dpar_box box;
    int j;
    for (j = 0; dpar_grid_valid(k->g, j, &box); j++) {
        double *u = k->mine[0], *v = k->mine[1], *w = k->whole[0];
        void *own = k->own[0];
        check_box(k, j, &box);
        step_whole(k, k->whole[0], k->whole[1]);
        begin_array(k, v, 0);
        if (j == 0 && k->overlaps) {
            first_step_overlapped(k, u, v, own, &box);
        } else {
            if (j == 0) {
                CHECK_INT(dpar_grid_exchange(k->g, own), DPAR_OK);
            }
            compute_box(k, u, v, &box);
        }
        wrong += compare_box(k, v, k->whole[1], &box);
        k->mine[0] = v;
        k->mine[1] = u;
        k->whole[0] = k->whole[1];
        k->whole[1] = w;
        k->own[0] = k->own[1];
        k->own[1] = own;
        if (has_mirror(k) || j % 4 == 0) {
            CHECK_INT(dpar_grid_reflect(k->g, &k->own[0], 1), DPAR_OK);
        }
    }
    CHECK_INT(j, k->steps);
    return wrong;
}

static dpar_status make_grid(one_case *k, dpar_comm *c)
{
    dpar_why why;
    dpar_status status = dpar_grid_make(c, &k->d, &k->g, &why);
    if (status == DPAR_E_RANGE) { /* a block is too thin for its mirrors */
        memset(k->d.mirror_low, 0, sizeof k->d.mirror_low);
        memset(k->d.mirror_high, 0, sizeof k->d.mirror_high);
        status = dpar_grid_make(c, &k->d, &k->g, &why);
    }
    if (status != DPAR_OK) {
        printf("    %s\n", why.text);
    }
    return status;
}

static int64_t one_round(dpar_comm *c, uint64_t *lot)
{
    one_case *k = (one_case *)zeroed((int64_t)sizeof *k);
    int64_t wrong = 0, cells = 1, origin = 0, at[3] = {0, 0, 0};
    random_grid(k, lot, c->size);
    if (make_grid(k, c) != DPAR_OK) {
        free(k);
        return 1;
    }
    random_stencil(k, lot);
    k->count = 1;
    for (int d = 0; d < k->d.dims; d++) {
        k->size[d] = k->low[d] + k->g->count[d] + k->high[d];
        k->count *= k->size[d];
        cells *= k->d.cells[d];
    }
    origin = index_of(k, at);
    for (int i = 0; i < 2; i++) {
        k->whole[i] = (double *)zeroed(cells * 8);
        if (k->allocates) {
            k->own[i] = dpar_grid_array(k->g, DPAR_F64, NULL);
            CHECK(k->own[i] != NULL);
            k->mine[i] = (double *)k->own[i] - origin;
        } else {
            k->mine[i] = (double *)zeroed(k->count * 8);
            k->own[i] = k->mine[i] + origin;
        }
    }
    begin_array(k, k->mine[0], 1);
    for (int64_t i = 0; i < cells; i++) {
        int64_t place[3] = {0, 0, 0}, rest = i;
        for (int d = k->d.dims - 1; d >= 0; d--) {
            place[d] = rest % k->d.cells[d];
            rest /= k->d.cells[d];
        }
        k->whole[0][i] = value_of(k, place);
    }
    for (int i = 0; i < k->exchanges; i++) {
        wrong += sub_steps(k);
    }
    CHECK_INT(dpar_grid_free(k->g), DPAR_OK);
    for (int i = 0; i < 2; i++) {
        free(k->whole[i]);
        if (!k->allocates) {
            free(k->mine[i]);
        }
    }
    free(k);
    return wrong;
}

/* ---- what is refused ---- */

static void refused(dpar_comm *c, const dpar_grid_desc *d, dpar_status status, const char *text)
{
    dpar_grid *g = NULL;
    dpar_why why;
    CHECK_INT(dpar_grid_make(c, d, &g, &why), status);
    CHECK(strstr(why.text, text) != NULL);
}

static void refusals(dpar_comm *c)
{
    dpar_grid_desc d;
    dpar_grid *g = NULL;
    dpar_box box;
    memset(&d, 0, sizeof d);
    d.dims = 2;
    d.cells[0] = d.cells[1] = 16;
    d.periodic[0] = d.periodic[1] = 1;
    d.halo = 6;
    d.steps = -1;
    refused(c, &d, DPAR_E_ARG, "desc.steps is -1");
    d.steps = 4;
    refused(c, &d, DPAR_E_DIVIDE, "desc.steps is 4; it must divide the halo's widths, 6 below");
    d.steps = 3;
    d.halo_high[1] = 2;
    refused(c, &d, DPAR_E_DIVIDE, "dim 1: desc.steps is 3");
    d.halo_high[1] = 0;
    d.star = 1;
    refused(c, &d, DPAR_E_ARG, "desc.steps is 3, star 1");
    d.star = 0;
    d.steps = c->rank == 0 ? 3 : 2;
    if (c->size > 1) {
        refused(c, &d, DPAR_E_MISMATCH, "steps");
    }
    d.steps = 3;
    CHECK_INT(dpar_grid_make(c, &d, &g, NULL), DPAR_OK);
    memset(&box, 7, sizeof box);
    CHECK_INT(dpar_grid_valid(g, -1, &box), 0);
    CHECK_INT(dpar_grid_valid(g, 3, &box), 0);
    CHECK_INT(dpar_grid_valid(g, 0, NULL), 0);
    CHECK_INT(dpar_grid_valid(NULL, 0, &box), 0);
    CHECK_INT(dpar_grid_boundary(NULL, 0, &box), 0);
    CHECK_INT(dpar_grid_reflect(NULL, NULL, 1), DPAR_E_ARG);
    CHECK_INT(dpar_grid_reflect(g, NULL, 1), DPAR_E_ARG);
    CHECK_INT(dpar_grid_free(g), DPAR_OK);
}

static int each(dpar_comm *c, void *arg)
{
    const double began = now();
    int64_t mistakes = 0;
    (void)arg;
    for (int i = 0; i < ROUNDS && mistakes == 0; i++) {
        uint64_t lot = (uint64_t)i * 1000 + 7;
        mistakes += all_sum(c, one_round(c, &lot) + failures());
        if (mistakes > 0 && c->rank == 0) {
            printf("    round %d\n", i);
        }
    }
    refusals(c);
    return all_right(c, mistakes + failures(), began);
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, each, NULL, 6, 4, NULL);
}
