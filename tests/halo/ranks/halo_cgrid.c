/* SPDX-License-Identifier: MIT-0 */
/* Tests halo exchanges of u and v on faces of a cubed sphere's cells (C- and D-grids): all sizes of
 * faces from 2 to 6, widths 1 to 3, all cuts of faces among the ranks, all methods of exchange. The
 * value of a point depends only on its place in space and its component's direction there
 * (cube_space.h): the same number wherever that place is held, with the sign of the direction.
 * There are two fields of vectors and two of scalars on the same points, in Fortran's order and
 * with other widths. Then tests the adjoint's dot product, poison, the checks, plans of shared
 * points and narrower ones.
 * cc -DDPAR_IMPLEMENTATION -I. -Itests/lib tests/halo/ranks/halo_cgrid.c -o halo_cgrid
 *     ./halo_cgrid [threads] [long] [RANKS|FROM-TO] [seed=S]   long: every method for every case */
#include "dpar_debug.h"
#include "halo_plans.h"
#include "run_oracle.h"

#include "cube_space.h"
#include "points.h"

/* Combines the values of all holders of a point and gives the result to all of them. */
static dpar_status reduce_exchange(dpar_halo_plan *x, int32_t op)
{
    const dpar_status s = dpar_halo_plan_reduce(x, op);
    return s == DPAR_OK ? dpar_halo_plan_exchange(x) : s;
}

enum { FIELDS = 4, SIDE = 6, PLACES = 2 * SIDE + 1 };

typedef struct array {
    dpar_halo h, thin;
    dpar_box own, all;
    int64_t stride[3], origin[3], elements;
    int comps, vector;
    double *at;
} array;

typedef struct sphere {
    oracle *o;
    int64_t n;
    int has, way;
    array f[FIELDS]; /* u, v, and scalars on the points of both */
    const char *doing;
} sphere;

static int wrong(sphere *s, int f, const int64_t *x, double is, double should)
{
    if (s->o->failed++ < 3) {
        const dpar_halo *h = &s->f[f].h;
        printf("WRONG rank %d of %d, side %d, way %d, cut %d %d %d, points %d %d: %s, field %d (%d "
               "%d %d): %g, expected %g\n",
               s->o->world->rank, s->o->world->size, (int)s->n, s->way, h->grid.mesh.axis[0].size,
               h->grid.mesh.axis[1].size, h->grid.mesh.axis[2].size, h->points[1], h->points[2],
               s->doing, f, (int)x[0], (int)x[1], (int)x[2], is, should);
        fflush(stdout);
        dpar_comm_abort(s->o->world, DPAR_E_SYSTEM,
                        "something is wrong"); /* otherwise other ranks would wait */
    }
    return 0;
}

static int good(sphere *s, dpar_status st, const char *text)
{
    static const int64_t nowhere[3] = {0, 0, 0};
    if (st != DPAR_OK) {
        printf("WRONG %s: %s: %s\n", s->doing, dpar_status_text(st), text);
        return wrong(s, 0, nowhere, st, 0);
    }
    return 1;
}

static double *cell(const array *a, const int64_t *x, int c)
{
    int64_t at = c;
    int d;
    for (d = 0; d < 3; d++) {
        at += (a->origin[d] + x[d] - a->own.lo[d]) * a->stride[d];
    }
    return &a->at[at];
}

/* Returns 1 if x is in a box of a rank's points with this width around it. */
static int around(const dpar_box *own, const dpar_halo *widths, const int64_t *x)
{
    int d;
    for (d = 0; d < 3; d++) {
        if (x[d] < own->lo[d] - (widths ? widths->low[d] : 0) ||
            x[d] >= own->hi[d] + (widths ? widths->high[d] : 0)) {
            return 0;
        }
    }
    return 1;
}

/* Returns the value of a place for a direction. */
static double value(const int64_t *p, int c, int sign)
{
    return sign * (double)(((p[0] + 7) * 20 + p[1] + 7) * 20 + p[2] + 7 + 10000 * c);
}

/* Returns the value of point x; *place is its number. Returns 0 where three faces meet. */
static int told(const sphere *s, int f, const int64_t *x, int c, double *v, int64_t *place,
                int *sign)
{
    int64_t p[3];
    int direction;
    if (!cube_position(&s->f[f].h, f % 2, x, p, &direction)) {
        return 0;
    }
    *sign = s->f[f].vector && direction < 0 ? -1 : 1;
    *v = value(p, c, *sign);
    *place = ((p[0] + s->n) * PLACES + p[1] + s->n) * PLACES + p[2] + s->n;
    return 1;
}

/* Returns small whole numbers that differ between ranks, points and rounds. */
static double small(const sphere *s, int rank, int f, const int64_t *x, int c, int round)
{
    uint64_t h = (uint64_t)(((rank * 8 + f) * 8 + c) * 8 + round);
    h = oracle_mix(h * 1000003 + (uint64_t)((x[0] * 64 + x[1] + 16) * 64 + x[2] + 16));
    (void)s;
    return (double)(int64_t)(h % 15) - 7.0;
}

enum { EVERYTHING = -1, HALOS, SHARED, THIN }; /* the points that a plan exchanges */

/* Returns 1 if a plan writes x, which is not an own point. */
static int is_written(const sphere *s, int f, const dpar_box *own, const int64_t *x, int plan)
{
    const dpar_halo *h = &s->f[f].h;
    dpar_halo faces;
    double v;
    int64_t place;
    int sign, d;
    if (around(own, NULL, x) || !told(s, f, x, 0, &v, &place, &sign)) {
        return 0;
    }
    memset(&faces, 0, sizeof faces);
    for (d = 0; d < 3; d++) {
        faces.low[d] = h->points[d] == DPAR_HALO_AT_HIGH_FACES;
        faces.high[d] = h->points[d] == DPAR_HALO_AT_LOW_FACES;
    }
    return around(own, plan == SHARED ? &faces : plan == THIN ? &s->f[f].thin : h, x);
}

/* ---- what is done ---------------------------------------------------------------------------- */

static void fill(sphere *s)
{
    int f, c, sign;
    for (f = 0; f < FIELDS && s->has; f++) {
        const array *a = &s->f[f];
        int64_t x[3], place, k;
        for (k = 0; k < a->elements; k++) {
            a->at[k] = -0.5;
        }
        memcpy(x, a->own.lo, sizeof x);
        do {
            for (c = 0; c < a->comps; c++) {
                (void)told(s, f, x, c, cell(a, x, c), &place, &sign);
            }
        } while (next_point(&a->own, x));
    }
}

/* Checks all points of all arrays after a plan ran. */
static int look(sphere *s, int plan)
{
    int f, c, sign;
    for (f = 0; f < FIELDS && s->has; f++) {
        const array *a = &s->f[f];
        int64_t x[3], place;
        memcpy(x, a->all.lo, sizeof x);
        do {
            const int filled = around(&a->own, NULL, x) || is_written(s, f, &a->own, x, plan);
            for (c = 0; c < a->comps; c++) {
                double want = -0.5;
                if (filled) {
                    (void)told(s, f, x, c, &want, &place, &sign);
                }
                if (*cell(a, x, c) != want) {
                    return wrong(s, f, x, *cell(a, x, c), want);
                }
            }
        } while (next_point(&a->all, x));
    }
    s->o->cases++;
    return 1;
}

/* Checks <E x, y> = <x, E' y> over all ranks and fields. */
static int dot(sphere *s, dpar_halo_plan *x, int plan)
{
    double sum[2] = {0, 0}, all[2] = {0, 0};
    const int me = s->o->world->rank;
    int f, c, pass;
    for (pass = 0; pass < 4; pass++) { /* x in, E x out; y in, E' y out */
        for (f = 0; f < FIELDS && s->has; f++) {
            const array *a = &s->f[f];
            int64_t at[3];
            memcpy(at, a->all.lo, sizeof at);
            do {
                const int own = around(&a->own, NULL, at);
                for (c = 0; c < a->comps && (own || is_written(s, f, &a->own, at, plan)); c++) {
                    double *v = cell(a, at, c);
                    const double p = own ? small(s, 0, f, at, c, 1) : 0.0;
                    const double q = small(s, me + 1, f, at, c, 2);
                    sum[0] += pass == 1 ? *v * q : 0.0;
                    sum[1] += pass == 3 ? *v * p : 0.0;
                    *v = pass == 0 ? p : pass == 2 ? q : *v;
                }
            } while (next_point(&a->all, at));
        }
        if (pass == 0 && !good(s, dpar_halo_plan_exchange(x), s->o->world->why.text)) {
            return 0;
        }
        if (pass == 2 && (!good(s, dpar_halo_plan_reduce_begin(x, DPAR_SUM), "begin") ||
                          !good(s, dpar_halo_plan_end(x), s->o->world->why.text))) {
            return 0;
        }
    }
    if (!good(s, dpar_all_reduce(s->o->world, sum, all, 2, DPAR_F64, DPAR_SUM, NULL), "sums")) {
        return 0;
    }
    s->o->cases++;
    return all[0] == all[1] || wrong(s, 0, s->f[0].own.lo, all[1], all[0]);
}

/* Sums what all holders of each place have into sum[vector or not][component][place]: each rank's
 * own points and the faces beyond. */
static void add_up(const sphere *s, double *sum)
{
    int rank, f, c, sign;
    memset(sum, 0, 4 * PLACES * PLACES * PLACES * sizeof *sum);
    for (rank = 0; rank < s->o->world->size; rank++) {
        for (f = 0; f < FIELDS; f++) {
            dpar_box own, all;
            int64_t x[3], place;
            double v;
            if (!dpar_halo_owned(&s->f[f].h, rank, &own) ||
                !dpar_halo_box(&s->f[f].h, rank, &all)) {
                continue;
            }
            memcpy(x, all.lo, sizeof x);
            do {
                if (!around(&own, NULL, x) && !is_written(s, f, &own, x, SHARED)) {
                    continue;
                }
                for (c = 0; c < s->f[f].comps; c++) {
                    (void)told(s, f, x, c, &v, &place, &sign);
                    sum[(f / 2 * 2 + c) * PLACES * PLACES * PLACES + place] +=
                        sign * small(s, rank, f, x, c, 3);
                }
            } while (next_point(&all, x));
        }
    }
}

/* Checks that all holders of a place get the sum of what they had, each in its own direction. */
static int assemble(sphere *s, dpar_halo_plan *x, double *sum)
{
    int pass, f, c, sign;
    add_up(s, sum);
    for (pass = 0; pass < 2; pass++) {
        for (f = 0; f < FIELDS && s->has; f++) {
            const array *a = &s->f[f];
            int64_t at[3], place;
            double v;
            memcpy(at, a->all.lo, sizeof at);
            do {
                if (!around(&a->own, NULL, at) && !is_written(s, f, &a->own, at, SHARED)) {
                    continue;
                }
                for (c = 0; c < a->comps; c++) {
                    double *is = cell(a, at, c), want;
                    (void)told(s, f, at, c, &v, &place, &sign);
                    want = sign * sum[(f / 2 * 2 + c) * PLACES * PLACES * PLACES + place];
                    if (pass == 1 && *is != want) {
                        return wrong(s, f, at, *is, want);
                    }
                    *is = pass ? *is : small(s, s->o->world->rank, f, at, c, 3);
                }
            } while (next_point(&a->all, at));
        }
        if (pass == 0 && !good(s, reduce_exchange(x, DPAR_SUM), "assemble")) {
            return 0;
        }
    }
    s->o->cases++;
    return good(s, dpar_halo_plan_check(x, DPAR_HALO_STALE, &s->o->world->why),
                s->o->world->why.text);
}

/* Changes a value of a halo on one rank and checks that all ranks report it. */
static int checks(sphere *s, dpar_halo_plan *x, int plan)
{
    dpar_why *why = &s->o->world->why;
    int32_t any = 0, changed = 0;
    dpar_status st[2];
    int64_t at[3];
    double *v = NULL;
    if (!good(s, dpar_halo_plan_check(x, DPAR_HALO_STALE, why), why->text) ||
        !good(s, dpar_halo_plan_check(x, DPAR_HALO_WRONG, why), why->text)) {
        return 0;
    }
    if (s->has && s->o->world->rank == s->o->world->size / 2) {
        const array *a = &s->f[1];
        memcpy(at, a->all.lo, sizeof at);
        do {
            if (is_written(s, 1, &a->own, at, plan)) {
                v = cell(a, at, 0);
            }
        } while (next_point(&a->all, at));
        changed = v != NULL;
    }
    if (v) {
        *v = -*v;
    }
    (void)dpar_all_reduce(s->o->world, &changed, &any, 1, DPAR_I32, DPAR_MAX, NULL);
    st[0] = dpar_halo_plan_check(x, DPAR_HALO_STALE, NULL);
    st[1] = dpar_halo_plan_check(x, DPAR_HALO_WRONG, NULL);
    if (any && (st[0] != DPAR_E_MISMATCH || st[1] != DPAR_E_MISMATCH)) {
        return wrong(s, 1, s->f[1].own.lo, st[0], st[1]);
    }
    s->o->cases++;
    return 1;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static int with_plan(sphere *s, int plan, double *sum)
{
    dpar_halo_field f[FIELDS];
    dpar_halo_plan_desc o;
    dpar_halo_plan *x = NULL;
    dpar_why why;
    int64_t bytes = 0;
    void *memory = NULL;
    int i, ok = 1;
    memset(f, 0, sizeof f);
    memset(&o, 0, sizeof o);
    s->doing = plan == HALOS ? "halos" : plan == SHARED ? "shared points" : "narrower";
    o.method = s->way;
    o.shared = plan == SHARED;
    for (i = 0; i < FIELDS; i++) {
        const array *a = &s->f[i];
        f[i].type = DPAR_F64;
        f[i].halo = &a->h;
        f[i].vector = a->vector;
        f[i].pair = i % 2 ? DPAR_HALO_PAIR_V : DPAR_HALO_PAIR_U;
        f[i].components = a->comps;
        f[i].data = s->has ? a->at : NULL;
        if (i >= 2) { /* the others are contiguous */
            memcpy(f[i].stride, a->stride, sizeof a->stride);
            memcpy(f[i].first, a->origin, sizeof a->origin);
        }
        if (plan == THIN) {
            f[i].halo = &a->thin;
            f[i].array_halo = &a->h;
        }
    }
    ok = ok && good(s, plan_bytes(s->o->world, f, FIELDS, &o, &bytes, &why), why.text);
    if (!ok || posix_memalign(&memory, 64, (size_t)bytes) != 0) {
        return 0;
    }
    ok = good(s, plan_init(memory, bytes, s->o->world, f, FIELDS, &o, &x, &why), why.text);
    if (ok) {
        fill(s);
        if (plan == HALOS) {
            (void)dpar_halo_plan_check(x, DPAR_HALO_POISON, NULL);
        }
        ok = good(s, dpar_halo_plan_exchange(x), s->o->world->why.text) && look(s, plan) &&
             (plan == THIN ||
              good(s, dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why), why.text)) &&
             checks(s, x, plan) && dot(s, x, plan) && (plan != SHARED || assemble(s, x, sum));
    }
    if (x) {
        ok = good(s, dpar_halo_plan_free(x), s->o->world->why.text) && ok;
    }
    free(memory);
    return ok;
}

/* Makes u and v on such faces of cells, along their own component (C) or across it (D). */
static int make(sphere *s, int64_t width, int32_t faces, int d_grid, const int32_t *parts)
{
    const int64_t extent[3] = {6, s->n, s->n};
    dpar_placement p[3];
    dpar_mesh m;
    int i, d;
    for (d = 0; d < 3; d++) {
        p[d] = dpar_shard_by(d, DPAR_SPLIT_EVEN, 0);
    }
    if (dpar_mesh_init(&m, "a b c", parts, DPAR_ORDER_LAST_FASTEST, 0, NULL) != DPAR_OK) {
        return 0;
    }
    for (i = 0; i < FIELDS; i++) {
        array *a = &s->f[i];
        const int at = (i % 2 == 0) != d_grid ? 2 : 1;
        int64_t step;
        memset(&a->h, 0, sizeof a->h);
        if (dpar_layout_init(&a->h.grid, &m, 3, extent, p, NULL) != DPAR_OK) {
            return 0;
        }
        a->h.cube = 1;
        a->h.shape = DPAR_STENCIL_BOX;
        a->h.points[at] = faces;
        for (d = 1; d < 3; d++) { /* the face at the other end and `width` beyond; scalars less */
            a->h.low[d] =
                width + (d == at && faces == DPAR_HALO_AT_HIGH_FACES) - (i >= 2 && d != at);
            a->h.high[d] = width + (d == at && faces == DPAR_HALO_AT_LOW_FACES);
            a->h.low[d] = a->h.low[d] < s->n ? a->h.low[d] : s->n;
            a->h.high[d] = a->h.high[d] < s->n ? a->h.high[d] : s->n;
        }
        a->thin = a->h;
        for (d = 1; d < 3; d++) {
            a->thin.low[d] = a->h.low[d] > 1;
            a->thin.high[d] = 1;
        }
        a->comps = 1 + i / 2;
        a->vector = i < 2;
        s->has = dpar_halo_owned(&a->h, s->o->world->rank, &a->own) &&
                 dpar_halo_box(&a->h, s->o->world->rank, &a->all);
        step = a->comps;
        for (d = 0; d < 3 && s->has; d++) {
            const int e = i >= 2 ? d : 2 - d; /* Fortran's order with padding, or contiguous */
            a->stride[e] = step;
            a->origin[e] = a->own.lo[e] - a->all.lo[e];
            step *= a->all.hi[e] - a->all.lo[e] + (i >= 2);
        }
        a->elements = s->has ? step : 1;
        a->at = (double *)oracle_memory((size_t)a->elements * sizeof(double));
    }
    return 1;
}

/* Checks halos, and in turns shared points or narrower halos. */
static int one_case(sphere *s, int64_t width, int kind, const int32_t *parts, int turn, double *sum)
{
    int i, ok = make(s, width, 1 + kind % 2, kind / 2, parts);
    ok =
        ok && with_plan(s, HALOS, sum) && with_plan(s, turn % 2 || width == 1 ? SHARED : THIN, sum);
    for (i = 0; i < FIELDS; i++) {
        free(s->f[i].at);
        s->f[i].at = NULL;
    }
    return ok;
}

static void cases(oracle *o)
{
    sphere s;
    double *sum = (double *)oracle_memory(4 * PLACES * PLACES * PLACES * sizeof(double));
    const int32_t ranks = o->world->size - (o->world->size == 7); /* 7: one has no cells */
    int32_t parts[3];
    int64_t width;
    int turn = (int)o->seed, k, kinds;
    memset(&s, 0, sizeof s);
    s.o = o;
    for (s.n = 2; s.n <= SIDE; s.n++) {
        for (width = 1; width <= 3 && width <= s.n; width++) {
            for (parts[0] = 1; parts[0] <= 6; parts[0]++) {
                for (parts[1] = 1; parts[1] <= s.n && parts[0] * parts[1] <= ranks; parts[1]++) {
                    parts[2] = ranks / parts[0] / parts[1];
                    if (parts[0] * parts[1] * parts[2] != ranks || parts[2] > s.n) {
                        continue;
                    }
                    kinds = o->effort ? 16 : 1; /* each with every method, or in turns */
                    for (k = 0; k < kinds && o->failed == 0; k++, turn++) {
                        s.way = o->effort ? k / 4 : turn % 4;
                        (void)one_case(&s, width, o->effort ? k % 4 : turn / 4 % 4, parts, turn / 2,
                                       sum);
                    }
                }
            }
        }
    }
    free(sum);
}

int main(int argc, char **argv)
{
    return oracle_program(argc, argv, "halo_cgrid", cases);
}
