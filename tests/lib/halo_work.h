/* SPDX-License-Identifier: MIT-0 */
/* halo_work: halo exchanges on a random grid, where each rank can compute each cell from the
 * documentation in halo.h. For tests about faults of ranks; tests/halo/ranks/halo_oracle.c tests
 * the geometry. There are two fields: eight f64 per point, whose rows are long enough to be read
 * directly from another rank's memory, and one i32. */
#ifndef DPAR_HALO_WORK_H
#define DPAR_HALO_WORK_H

#include "halo_plans.h"
#include "run_oracle.h"

enum { HALO_WORK_FIELDS = 2, HALO_WORK_POISON = -7 };

typedef struct halo_array {
    dpar_halo h;
    int type, comps, registered, has;
    dpar_box own, box;
    unsigned char *memory;
} halo_array;

typedef struct halo_work {
    dpar_comm *c;
    halo_array a[HALO_WORK_FIELDS];
    dpar_halo_field f[HALO_WORK_FIELDS];
    dpar_halo_plan_desc options;
    dpar_halo_plan *x;
    void *memory;
    int64_t bytes;
} halo_work;

static double halo_work_get(const halo_array *a, int64_t at)
{
    double d;
    int32_t i;
    if (a->type == DPAR_F64) {
        memcpy(&d, a->memory + at * 8, 8);
        return d;
    }
    memcpy(&i, a->memory + at * 4, 4);
    return (double)i;
}

static void halo_work_set(halo_array *a, int64_t at, double v)
{
    int32_t i = (int32_t)v;
    if (a->type == DPAR_F64) {
        memcpy(a->memory + at * 8, &v, 8);
    } else {
        memcpy(a->memory + at * 4, &i, 4);
    }
}

/* Returns a whole number for component k of point p in a round, so that sums are exact. `who` is -1
 * for the owner's value, otherwise the rank whose halo holds the value before an adjoint. */
static double halo_work_value(uint64_t round, int64_t who, const int64_t *p, int k)
{
    uint64_t h = oracle_mix(round * 1024 + (uint64_t)(who + 1) * 16 + (uint64_t)k);
    return (double)(oracle_mix(h ^ ((uint64_t)(p[0] + 99) << 32) ^ (uint64_t)(p[1] + 99)) % 1000);
}

/* Finds the owned point that a cell of the rank's halo shows. Returns 0 if there is none or the
 * cell is owned. */
static int halo_work_image(const halo_array *a, const dpar_box *own, const int64_t *p, int64_t *q)
{
    int d, outside = 0;
    for (d = 0; d < 2; d++) {
        int64_t n = a->h.grid.extent[d];
        outside += p[d] < own->lo[d] || p[d] >= own->hi[d];
        q[d] = p[d];
        if (a->h.periodic >> d & 1u) {
            q[d] = (p[d] % n + n) % n;
        } else if (p[d] < 0 || p[d] >= n) {
            return 0;
        }
    }
    return outside == 1 || (outside == 2 && a->h.shape == DPAR_STENCIL_BOX);
}

static int halo_work_in(const dpar_box *b, const int64_t *p)
{
    return p[0] >= b->lo[0] && p[0] < b->hi[0] && p[1] >= b->lo[1] && p[1] < b->hi[1];
}

static int halo_work_next(const dpar_box *b, int64_t *p)
{
    if (++p[1] < b->hi[1]) {
        return 1;
    }
    p[1] = b->lo[1];
    return ++p[0] < b->hi[0];
}

/* Fills own points with their values, halos with theirs before an adjoint (`adds`), and everything
 * else with the poison value. */
static void halo_work_fill(halo_work *w, uint64_t round, int adds)
{
    int i, k;
    for (i = 0; i < HALO_WORK_FIELDS; i++) {
        halo_array *a = &w->a[i];
        int64_t p[2] = {a->box.lo[0], a->box.lo[1]}, q[2], at = 0;
        if (!a->has) {
            continue;
        }
        do {
            int shown = halo_work_image(a, &a->own, p, q), own = halo_work_in(&a->own, p);
            for (k = 0; k < a->comps; k++) {
                halo_work_set(a, at++,
                              own             ? halo_work_value(round, -1, p, k)
                              : shown && adds ? halo_work_value(round, w->c->rank, p, k)
                                              : HALO_WORK_POISON);
            }
        } while (halo_work_next(&a->box, p));
    }
}

/* Returns the sum of what the halos of all ranks hold of an owned point. */
static double halo_work_collected(const halo_work *w, const halo_array *a, uint64_t round,
                                  const int64_t *mine, int k)
{
    double sum = 0;
    int r;
    for (r = 0; r < w->c->size; r++) {
        dpar_box own, box;
        int64_t p[2], q[2];
        if (!dpar_halo_owned(&a->h, r, &own) || !dpar_halo_box(&a->h, r, &box)) {
            continue;
        }
        p[0] = box.lo[0], p[1] = box.lo[1];
        do {
            if (halo_work_image(a, &own, p, q) && q[0] == mine[0] && q[1] == mine[1]) {
                sum += halo_work_value(round, r, p, k);
            }
        } while (halo_work_next(&box, p));
    }
    return sum;
}

/* Returns how many cells are wrong after an exchange. */
static int halo_work_wrong(const halo_work *w, uint64_t round, int adds)
{
    int i, k, wrong = 0;
    for (i = 0; i < HALO_WORK_FIELDS; i++) {
        const halo_array *a = &w->a[i];
        int64_t p[2] = {a->box.lo[0], a->box.lo[1]}, q[2], at = 0;
        if (!a->has) {
            continue;
        }
        do {
            int shown = halo_work_image(a, &a->own, p, q), own = halo_work_in(&a->own, p);
            for (k = 0; k < a->comps; k++) {
                double want = own      ? halo_work_value(round, -1, p, k)
                              : !shown ? HALO_WORK_POISON
                                       : (adds ? 0.0 : halo_work_value(round, -1, q, k));
                if (own && adds && k == 0) { /* the other ranks' sums; one component is enough */
                    want += halo_work_collected(w, a, round, p, k);
                }
                if ((!own || !adds || k == 0) && !(halo_work_get(a, at) == want)) {
                    wrong++;
                }
                at++;
            }
        } while (halo_work_next(&a->box, p));
    }
    return wrong;
}

/* Draws the grid and the fields from a seed that all ranks know. */
static void halo_work_plan(halo_work *w, dpar_comm *c, uint64_t seed)
{
    static const int64_t runs[3] = {0, 1, 1 << 20};
    dpar_placement place[2];
    dpar_mesh m;
    int32_t parts[2];
    int64_t extent[2];
    int i, d;
    memset(w, 0, sizeof *w);
    w->c = c;
    for (parts[0] = 1 + (int32_t)oracle_below(&seed, c->size); c->size % parts[0] != 0;) {
        parts[0]--;
    }
    parts[1] = c->size / parts[0];
    for (d = 0; d < 2; d++) {
        extent[d] = parts[d] * (1 + oracle_below(&seed, 6)) + oracle_below(&seed, 3);
        place[d] = dpar_shard_by(d, DPAR_SPLIT_EVEN, 0);
    }
    (void)dpar_mesh_init(&m, "y x", parts, DPAR_ORDER_LAST_FASTEST, c->size, NULL);
    for (i = 0; i < HALO_WORK_FIELDS; i++) {
        dpar_halo *h = &w->a[i].h;
        (void)dpar_layout_init(&h->grid, &m, 2, extent, place, NULL);
        h->periodic = (uint32_t)oracle_below(&seed, 4);
        h->shape = oracle_below(&seed, 2) ? DPAR_STENCIL_BOX : DPAR_STENCIL_STAR;
        for (d = 0; d < 2; d++) {
            h->low[d] = 1 + oracle_below(&seed, 2);
            h->high[d] = 1 + oracle_below(&seed, 2);
        }
        w->a[i].type = i == 0 ? DPAR_F64 : DPAR_I32;
        w->a[i].comps = i == 0 ? 8 : 1;
        w->a[i].registered = oracle_below(&seed, 3) > 0;
    }
    w->options.method = (int32_t)oracle_below(&seed, 4);
    w->options.ordered = (int32_t)oracle_below(&seed, 2);
    w->options.run_bytes = runs[oracle_below(&seed, 3)];
    w->options.tag = (int32_t)oracle_below(&seed, 1000);
}

/* Allocates arrays and makes the plan. Collective; after an error halo_work_close must still be
 * called. */
static dpar_status halo_work_open(halo_work *w, dpar_comm *c, uint64_t seed)
{
    dpar_why why;
    dpar_status s = DPAR_OK;
    int i;
    halo_work_plan(w, c, seed);
    for (i = 0; i < HALO_WORK_FIELDS && s == DPAR_OK; i++) {
        halo_array *a = &w->a[i];
        int64_t bytes;
        void *p = NULL;
        w->f[i].halo = &a->h;
        w->f[i].type = a->type;
        w->f[i].components = a->comps;
        a->has = dpar_halo_owned(&a->h, c->rank, &a->own) && dpar_halo_box(&a->h, c->rank, &a->box);
        if (!a->has) {
            continue;
        }
        bytes = dpar_box_volume(&a->box) * a->comps * dpar_type_bytes(a->type);
        if (a->registered) {
            s = dpar_comm_alloc(c, bytes, &p);
        } else {
            p = oracle_memory((size_t)bytes);
        }
        a->memory = (unsigned char *)p;
        w->f[i].data = p;
    }
    s = s == DPAR_OK ? plan_bytes(c, w->f, HALO_WORK_FIELDS, &w->options, &w->bytes, &why) : s;
    if (s != DPAR_OK || posix_memalign(&w->memory, 64, (size_t)w->bytes) != 0) {
        return s == DPAR_OK ? DPAR_E_MEMORY : s;
    }
    return plan_init(w->memory, w->bytes, c, w->f, HALO_WORK_FIELDS, &w->options, &w->x, &why);
}

/* Frees all. Collective unless an error happened. */
static dpar_status halo_work_close(halo_work *w)
{
    dpar_status s = dpar_halo_plan_free(w->x);
    int i;
    for (i = 0; i < HALO_WORK_FIELDS; i++) {
        if (w->a[i].registered && w->a[i].memory != NULL) {
            dpar_comm_release(w->c, w->a[i].memory);
        } else {
            free(w->a[i].memory);
        }
    }
    free(w->memory);
    return s;
}

/* Runs one exchange and waits for it in one of four ways; *wrong counts cells. A rank that only
 * tests has no timeout, so it waits after a thousand tests. */
static dpar_status halo_work_run(halo_work *w, oracle *o, uint64_t round, int adds, int how,
                                 volatile int32_t *wrong)
{
    dpar_status s;
    int tests;
    halo_work_fill(w, round, adds);
    if (how == 0 && !adds) {
        s = dpar_halo_plan_exchange(w->x);
    } else {
        s = adds ? dpar_halo_plan_reduce_begin(w->x, DPAR_SUM) : dpar_halo_plan_begin(w->x);
        if (s == DPAR_OK && how == 2) {
            for (tests = 0; tests < 1000 && s >= DPAR_OK; tests++) {
                s = dpar_halo_plan_test(w->x);
                tests += s == DPAR_OK ? 1000 : 0;
            }
        } else if (s == DPAR_OK && how == 3) {
            oracle_delay(o);
        }
        s = s >= DPAR_OK ? dpar_halo_plan_end(w->x) : s;
    }
    if (s == DPAR_OK) {
        *wrong += halo_work_wrong(w, round, adds);
    }
    return s;
}

#endif
