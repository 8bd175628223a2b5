/* SPDX-License-Identifier: MIT-0 */
/* Tests distributed particles against brute force. Every rank knows all particles by their ids.
 * After each step it looks for each particle and each of its images whether this rank should have
 * it.
 *     ./particles [processes|threads] [ranks]     without arguments: both, 1 to 8 and 1 to 4 */
#include "dpar_particles.h"
#include "rank_program.h"

enum { RANKS = 8, MOST = 120, ROOM = MOST * 30, CODES = 27, STEPS = 4 };

/* What a particle takes along, if it is a struct. */
typedef struct record {
    float weight;
    int32_t id;
    double x[3], f[2];
    float single[3];
    int64_t count;
} record;

/* A world: the box, and all particles by id. */
typedef struct world {
    dpar_particles_desc desc;
    double cuts[3][RANKS + 1];
    int n, structs, single; /* how the particles are stored, and whether positions are F32 */
    double x[MOST][3];      /* where each particle is */
    int64_t seen[MOST];
    dpar_particles *p;
    dpar_particles_arrays arrays;
    dpar_particles_field field[6];
    record *all; /* arrays of structs */
    double *xs, *fs;
    float *xf, *singles;
    int32_t *ids;
    int64_t *counts;
    int32_t code[ROOM]; /* of each ghost: the direction from its owner to this rank */
} world;

/* ---- the arrays ---- */

static int32_t *id_at(world *w, int64_t i)
{
    return w->structs ? &w->all[i].id : &w->ids[i];
}

static double *force_at(world *w, int64_t i)
{
    return w->structs ? w->all[i].f : w->fs + 2 * i;
}

static float *single_at(world *w, int64_t i)
{
    return w->structs ? w->all[i].single : w->singles + 3 * i;
}

static int64_t *count_at(world *w, int64_t i)
{
    return w->structs ? &w->all[i].count : &w->counts[i];
}

static double get_x(world *w, int64_t i, int d)
{
    if (w->structs) {
        return w->all[i].x[d];
    }
    return w->single ? (double)w->xf[3 * i + d] : w->xs[3 * i + d];
}

static void put_x(world *w, int64_t i, int d, double x)
{
    if (w->structs) {
        w->all[i].x[d] = x;
    } else if (w->single) {
        w->xf[3 * i + d] = (float)x;
    } else {
        w->xs[3 * i + d] = x;
    }
}

static void set_field(dpar_particles_field *f, void *data, int32_t type, int32_t n, int64_t stride)
{
    memset(f, 0, sizeof *f);
    f->data = data;
    f->type = type;
    f->components = n;
    f->stride = stride;
}

static void make_arrays(world *w)
{
    const int64_t step = w->structs ? (int64_t)sizeof(record) : 0;
    w->all = (record *)zeroed(ROOM * (int64_t)sizeof *w->all);
    w->xs = (double *)zeroed(ROOM * 24);
    w->fs = (double *)zeroed(ROOM * 16);
    w->xf = (float *)zeroed(ROOM * 12);
    w->singles = (float *)zeroed(ROOM * 12);
    w->ids = (int32_t *)zeroed(ROOM * 4);
    w->counts = (int64_t *)zeroed(ROOM * 8);
    w->arrays.fields = w->field;
    if (w->structs) {
        set_field(&w->field[0], w->all, DPAR_U8, (int32_t)sizeof(record), 0);
        set_field(&w->arrays.position, w->all[0].x, DPAR_F64, 3, step);
        w->arrays.field_count = 1;
        return;
    }
    set_field(&w->field[0], w->ids, DPAR_I32, 0, 0);
    set_field(&w->field[1], w->single ? (void *)w->xf : (void *)w->xs,
              w->single ? DPAR_F32 : DPAR_F64, 3, 0);
    set_field(&w->field[2], w->fs, DPAR_F64, 2, 0);
    set_field(&w->field[3], w->singles, DPAR_F32, 3, 0);
    set_field(&w->field[4], w->counts, DPAR_I64, 1, 0);
    w->arrays.position = w->field[1];
    w->arrays.field_count = 5;
    w->arrays.ghost_fields = 2;
}

static void free_arrays(world *w)
{
    free(w->all);
    free(w->xs);
    free(w->fs);
    free(w->xf);
    free(w->singles);
    free(w->ids);
    free(w->counts);
}

/* Values that a particle takes along, by its id. */
static void put_values(world *w, int64_t i, int id)
{
    *id_at(w, i) = id;
    force_at(w, i)[0] = id * 0.5;
    force_at(w, i)[1] = -id;
    single_at(w, i)[2] = (float)id * 0.25f;
    *count_at(w, i) = (int64_t)id << 33;
}

static int values_are(world *w, int64_t i, int id)
{
    return *id_at(w, i) == id && force_at(w, i)[0] >= id * 0.5 && force_at(w, i)[0] <= id * 0.5 &&
           single_at(w, i)[2] >= (float)id * 0.25f && single_at(w, i)[2] <= (float)id * 0.25f &&
           *count_at(w, i) == (int64_t)id << 33;
}

/* ---- a random world ---- */

static void split_ranks(int ranks, int dims, int32_t *parts, uint64_t *seed)
{
    int d, k;
    for (d = 0; d < dims; d++) {
        parts[d] = 1;
    }
    for (k = 2; ranks > 1;) {
        if (ranks % k == 0) {
            parts[lot_below(seed, dims)] *= k;
            ranks /= k;
        } else {
            k++;
        }
    }
}

static void box(dpar_comm *c, world *w, uint64_t *seed)
{
    dpar_particles_desc *desc = &w->desc;
    double narrow = 1e9;
    int d, i;
    desc->dims = 1 + (int32_t)lot_below(seed, 3);
    split_ranks(c->size, desc->dims, desc->parts, seed);
    desc->order = (int32_t)lot_below(seed, 2);
    desc->half = (int32_t)lot_below(seed, 2);
    desc->tag = (int32_t)lot_below(seed, 100);
    w->structs = (int)lot_below(seed, 2);
    w->single = !w->structs && lot_below(seed, 3) == 0;
    for (d = 0; d < desc->dims; d++) {
        const int parts = desc->parts[d];
        const int cut = lot_below(seed, 2) == 0;
        desc->low[d] = (double)(lot_below(seed, 9) - 4);
        desc->high[d] = desc->low[d] + 2.0 + (double)lot_below(seed, 5);
        desc->periodic[d] = (int32_t)lot_below(seed, 2);
        for (i = 0; i <= parts; i++) { /* multiples of 1/64, so that cuts are exact in F32 */
            const double even = (desc->high[d] - desc->low[d]) * i / parts;
            w->cuts[d][i] =
                desc->low[d] + floor(64 * even + (double)(i % parts) * 0.0) / 64.0 +
                (cut && i > 0 && i < parts ? (double)(lot_below(seed, 9) - 4) / 128.0 : 0.0);
            if (i > 0 && w->cuts[d][i] - w->cuts[d][i - 1] < narrow) {
                narrow = w->cuts[d][i] - w->cuts[d][i - 1];
            }
        }
        desc->cuts[d] = w->cuts[d];
    }
    desc->cutoff = lot_below(seed, 3) == 0 ? narrow : narrow * (double)lot_below(seed, 100) / 100.0;
    w->n = lot_below(seed, 4) == 0 ? (int)lot_below(seed, 4) : (int)lot_below(seed, MOST);
}

static double round_x(const world *w, double x)
{
    return w->single ? (double)(float)x : x;
}

/* Puts each particle anywhere, at times on a cut or near a corner of the box, and deals them to
 * ranks that need not own them. */
static void deal(dpar_comm *c, world *w, uint64_t *seed)
{
    const int one = lot_below(seed, 3) == 0 ? (int)lot_below(seed, c->size) : -1;
    const int corner = lot_below(seed, 3) == 0;
    int i, d;
    for (i = 0; i < w->n; i++) {
        const int r = one >= 0 ? one : (int)lot_below(seed, c->size);
        for (d = 0; d < w->desc.dims; d++) {
            const double length = w->desc.high[d] - w->desc.low[d];
            double u = (double)lot_below(seed, 1 << 20) / (1 << 20);
            if (corner) {
                u = u * 0.1;
            }
            w->x[i][d] = round_x(w, w->desc.low[d] + length * (u * 1.2 - 0.1));
            if (lot_below(seed, 20) == 0) {
                w->x[i][d] = w->cuts[d][lot_below(seed, w->desc.parts[d] + 1)];
            }
        }
        if (r == c->rank) {
            const int64_t k = w->arrays.count++;
            put_values(w, k, i);
            for (d = 0; d < w->desc.dims; d++) {
                put_x(w, k, d, w->x[i][d]);
            }
        }
    }
}

/* Moves particles a little, or some of them far. */
static void move(world *w, uint64_t *seed)
{
    const int far = lot_below(seed, 3) == 0;
    int64_t i;
    int id, d;
    for (id = 0; id < w->n; id++) {
        for (d = 0; d < w->desc.dims; d++) {
            const double u = (double)lot_below(seed, 2001) / 1000.0 - 1.0;
            const double step = far && id % 5 == 0 ? 30.0 : 0.3;
            w->x[id][d] = round_x(w, w->x[id][d] + u * step);
        }
    }
    for (i = 0; i < w->arrays.count; i++) {
        for (d = 0; d < w->desc.dims; d++) {
            put_x(w, i, d, w->x[*id_at(w, i)][d]);
        }
    }
}

/* ---- migration ---- */

/* Checks that each particle is on one rank, which owns its position, and where it should be. Then
 * takes its position from there. */
static void check_owners(dpar_comm *c, world *w)
{
    double mine[MOST][3], theirs[MOST][3];
    int64_t i;
    int id, d;
    memset(mine, 0, sizeof mine);
    memset(w->seen, 0, sizeof w->seen);
    for (i = 0; i < w->arrays.count; i++) {
        id = *id_at(w, i);
        CHECK(id >= 0 && id < w->n && values_are(w, i, id));
        if (id < 0 || id >= w->n) {
            continue;
        }
        w->seen[id]++;
        for (d = 0; d < w->desc.dims; d++) {
            const double x = get_x(w, i, d), length = w->desc.high[d] - w->desc.low[d];
            const double turns = (x - w->x[id][d]) / length;
            const double lost = fabs(x - w->x[id][d] - rint(turns) * length);
            mine[id][d] = x;
            if (w->desc.periodic[d]) {
                CHECK(lost < (w->single ? 1e-5 : 1e-12) && x >= w->p->low[d] && x < w->p->high[d]);
            } else {
                CHECK(x >= w->x[id][d] && x <= w->x[id][d]);
                CHECK((x >= w->p->low[d] || w->p->coord[d] == 0) &&
                      (x < w->p->high[d] || w->p->coord[d] == w->p->parts[d] - 1));
            }
        }
    }
    CHECK_INT(dpar_all_reduce(c, w->seen, w->seen, MOST, DPAR_I64, DPAR_SUM, NULL), DPAR_OK);
    CHECK_INT(dpar_all_reduce(c, mine, theirs, 3 * MOST, DPAR_F64, DPAR_SUM, NULL), DPAR_OK);
    for (id = 0; id < w->n; id++) {
        CHECK_INT(w->seen[id], 1);
    }
    memcpy(w->x, theirs, sizeof theirs);
}

/* Migrates with a capacity that often does not suffice: then nothing may have changed. */
static void migrate(dpar_comm *c, world *w, uint64_t *seed)
{
    const int tight = lot_below(seed, 2) == 0;
    const int64_t count = w->arrays.count;
    record *before = (record *)zeroed(ROOM * (int64_t)sizeof *before);
    dpar_status status;
    int64_t owned[RANKS] = {0}, wants, most = 0, i;
    int d;
    for (i = 0; i < w->n; i++) {
        owned[dpar_particles_owner(w->p, w->x[i])]++;
    }
    wants = owned[c->rank];
    w->arrays.capacity = tight ? count : ROOM;
    most = wants > w->arrays.capacity;
    CHECK_INT(dpar_all_reduce(c, &most, &most, 1, DPAR_I64, DPAR_MAX, NULL), DPAR_OK);
    for (i = 0; i < count; i++) {
        before[i].id = *id_at(w, i);
        for (d = 0; d < 3; d++) {
            before[i].x[d] = get_x(w, i, d);
        }
    }
    status = dpar_particles_migrate(w->p, &w->arrays);
    CHECK_INT(status, most ? DPAR_E_ROOM : DPAR_OK);
    if (status == DPAR_E_ROOM) {
        CHECK(strstr(c->why.text, "capacity is"));
        CHECK_INT(w->arrays.count, count);
        CHECK_INT(w->p->needed, wants);
        for (i = 0; i < count; i++) {
            CHECK(before[i].id == *id_at(w, i) && values_are(w, i, before[i].id));
            for (d = 0; d < 3; d++) {
                CHECK(before[i].x[d] >= get_x(w, i, d) && before[i].x[d] <= get_x(w, i, d));
            }
        }
        w->arrays.capacity = ROOM;
        CHECK_INT(dpar_particles_migrate(w->p, &w->arrays), DPAR_OK);
    }
    CHECK_INT(w->arrays.count, wants);
    CHECK_INT(w->p->needed, wants);
    free(before);
    w->arrays.capacity = ROOM;
    check_owners(c, w);
}

/* ---- ghosts ---- */

/* Says whether image `s` of a particle should be a ghost here: 1, 0, or -1 if rounding decides.
 * *code is then the direction from its owner to this rank. */
static int expected(dpar_comm *c, const world *w, const double *x, const int *s, int *code)
{
    const dpar_particles_desc *desc = &w->desc;
    int near = 1, d, first = 0, mine = 1;
    *code = 0;
    (void)c;
    for (d = 0; d < desc->dims; d++) {
        const double at = x[d] + s[d] * (desc->high[d] - desc->low[d]);
        int part = 0, step;
        double distance = -1.0;
        while (part + 1 < desc->parts[d] && x[d] >= w->cuts[d][part + 1]) {
            part++;
        }
        step = part + s[d] * desc->parts[d] - w->p->coord[d];
        mine &= step == 0;
        if (step < -1 || step > 1 || (s[d] != 0 && !desc->periodic[d])) {
            return 0;
        }
        if (step != 0) {
            distance = step > 0 ? at - w->p->high[d] : w->p->low[d] - at;
            first = first == 0 ? step : first;
        }
        if (distance > desc->cutoff + 1e-5) {
            return 0;
        }
        near = distance > desc->cutoff - 1e-5 ? -1 : near;
        *code = 3 * *code + 1 - step;
    }
    return mine || (desc->half && first < 0) ? 0 : near;
}

/* Checks the ghosts: each that there should be, once, and no other. */
static void check_ghosts(dpar_comm *c, world *w)
{
    int8_t have[MOST][CODES];
    int64_t i;
    int id, s[3] = {0, 0, 0}, code, image, d, before = -1;
    memset(have, 0, sizeof have);
    for (i = w->arrays.count; i < w->arrays.count + w->p->ghost_count; i++) {
        int found = 0, owner;
        id = *id_at(w, i);
        CHECK(id >= 0 && id < w->n);
        if (id < 0 || id >= w->n) {
            return;
        }
        for (image = 0; image < CODES; image++) {
            int same = 1;
            for (d = 0; d < 3; d++) {
                s[d] = (d == 0 ? image / 9 : d == 1 ? image / 3 % 3 : image % 3) - 1;
            }
            for (d = 0; d < 3; d++) {
                const double length = d < w->desc.dims ? w->desc.high[d] - w->desc.low[d] : 0.0;
                const double x = round_x(w, w->x[id][d] + s[d] * length);
                same &= d < w->desc.dims ? x >= get_x(w, i, d) && x <= get_x(w, i, d) : s[d] == 0;
            }
            if (!same) {
                continue;
            }
            CHECK(expected(c, w, w->x[id], s, &code) != 0);
            CHECK(!have[id][code]);
            have[id][code] = 1;
            w->code[i] = code;
            found = 1;
        }
        CHECK(found);
        owner = dpar_particles_owner(w->p, w->x[id]);
        CHECK(owner >= before);
        before = owner;
    }
    for (id = 0; id < w->n; id++) {
        for (image = 0; image < CODES; image++) {
            for (d = 0; d < 3; d++) {
                s[d] = (d == 0 ? image / 9 : d == 1 ? image / 3 % 3 : image % 3) - 1;
            }
            if ((w->desc.dims < 3 && s[2] != 0) || (w->desc.dims < 2 && s[1] != 0)) {
                continue;
            }
            if (expected(c, w, w->x[id], s, &code) == 1) {
                CHECK(have[id][code]);
            }
        }
    }
}

/* New positions and values of the same particles. */
static void check_update(world *w, uint64_t *seed)
{
    dpar_particles_field field[2];
    int64_t i;
    int id, d;
    for (id = 0; id < w->n; id++) {
        for (d = 0; d < w->desc.dims; d++) {
            const double u = (double)lot_below(seed, 2001) / 1000.0 - 1.0;
            w->x[id][d] = round_x(w, w->x[id][d] + 0.001 * u);
        }
    }
    for (i = 0; i < w->arrays.count; i++) {
        for (d = 0; d < w->desc.dims; d++) {
            put_x(w, i, d, w->x[*id_at(w, i)][d]);
        }
        single_at(w, i)[1] = (float)(*id_at(w, i) + 7);
    }
    field[0] = w->arrays.position;
    field[0].is_position = 1;
    set_field(&field[1], single_at(w, 0), DPAR_F32, 3, w->structs ? (int64_t)sizeof(record) : 0);
    CHECK_INT(dpar_particles_update(w->p, field, 2), DPAR_OK);
    for (i = w->arrays.count; i < w->arrays.count + w->p->ghost_count; i++) {
        id = *id_at(w, i);
        CHECK(single_at(w, i)[1] >= (float)(id + 7) && single_at(w, i)[1] <= (float)(id + 7));
        for (d = 0; d < w->desc.dims; d++) {
            const double length = w->desc.high[d] - w->desc.low[d];
            const double turns = rint((get_x(w, i, d) - w->x[id][d]) / length);
            const double x = round_x(w, w->x[id][d] + turns * length);
            CHECK(x >= get_x(w, i, d) && x <= get_x(w, i, d));
        }
    }
}

/* A value that cannot be added exactly. */
static double part(int rank, int id, int code, int k)
{
    return 1.0 / (1.0 + scrambled((uint32_t)(rank * 31 + code), id * 7 + k) % 1000);
}

/* Sums of forces have the bits of sums by rank, then by direction. */
static void check_reduce(dpar_comm *c, world *w)
{
    static _Thread_local int32_t have[RANKS][MOST][CODES];
    dpar_particles_field field[3];
    int64_t i, all = w->arrays.count + w->p->ghost_count;
    int k, r, code;
    memset(have, 0, sizeof have);
    for (i = 0; i < all; i++) {
        const int ghost = i >= w->arrays.count;
        code = ghost ? w->code[i] : CODES / 2;
        for (k = 0; k < 2; k++) {
            force_at(w, i)[k] = part(ghost ? c->rank : 99, *id_at(w, i), code, k);
            single_at(w, i)[k] = (float)(*id_at(w, i) + k);
        }
        *count_at(w, i) = ghost ? 1 : 1000;
        have[c->rank][*id_at(w, i)][code] += ghost;
    }
    CHECK_INT(dpar_all_reduce(c, have, have, (int64_t)sizeof have / 4, DPAR_I32, DPAR_SUM, NULL),
              DPAR_OK);
    set_field(&field[0], force_at(w, 0), DPAR_F64, 2, w->structs ? (int64_t)sizeof(record) : 0);
    set_field(&field[1], count_at(w, 0), DPAR_I64, 1, w->structs ? (int64_t)sizeof(record) : 0);
    set_field(&field[2], single_at(w, 0), DPAR_F32, 2,
              w->structs ? (int64_t)sizeof(record) : 3 * (int64_t)sizeof(float));
    CHECK_INT(dpar_particles_reduce(w->p, field, 3), DPAR_OK);
    for (i = 0; i < w->arrays.count; i++) {
        const int id = *id_at(w, i);
        double sum[2] = {part(99, id, CODES / 2, 0), part(99, id, CODES / 2, 1)};
        int64_t n = 0;
        for (r = 0; r < c->size; r++) {
            for (code = 0; code < CODES; code++) {
                for (k = 0; k < 2 && have[r][id][code]; k++) {
                    sum[k] += part(r, id, code, k);
                }
                n += have[r][id][code];
            }
        }
        CHECK_INT(*count_at(w, i), 1000 + n);
        for (k = 0; k < 2; k++) {
            CHECK(force_at(w, i)[k] >= sum[k] && force_at(w, i)[k] <= sum[k]);
            CHECK(single_at(w, i)[k] >= (float)((id + k) * (n + 1)) &&
                  single_at(w, i)[k] <= (float)((id + k) * (n + 1)));
        }
        put_values(w, i, id);
    }
}

static void ghosts(dpar_comm *c, world *w, uint64_t *seed)
{
    const int64_t tight = lot_below(seed, 2) == 0;
    int64_t some = 0;
    dpar_status status;
    w->arrays.capacity = tight ? w->arrays.count : ROOM;
    status = dpar_particles_ghosts(w->p, &w->arrays);
    CHECK(status == DPAR_OK || (tight && status == DPAR_E_ROOM));
    if (status == DPAR_E_ROOM) {
        CHECK_INT(w->p->ghost_count, 0);
        CHECK(strstr(c->why.text, "ghosts, but the capacity is"));
        w->arrays.capacity = ROOM;
        CHECK_INT(dpar_particles_ghosts(w->p, &w->arrays), DPAR_OK);
    }
    some = tight ? w->p->ghost_count : 0;
    CHECK_INT(dpar_all_reduce(c, &some, &some, 1, DPAR_I64, DPAR_MAX, NULL), DPAR_OK);
    CHECK_INT(status, some > 0 ? DPAR_E_ROOM : DPAR_OK);
    CHECK_INT(w->p->needed, w->arrays.count + w->p->ghost_count);
    w->arrays.capacity = ROOM;
    check_ghosts(c, w);
}

/* A position that is not finite: all ranks fail, and nothing has changed. */
static void not_finite(dpar_comm *c, world *w)
{
    static const double bad[3] = {NAN, INFINITY, -INFINITY};
    int k, d = w->desc.dims - 1;
    for (k = 0; k < 3; k++) {
        const int64_t count = w->arrays.count;
        int64_t any = count > 0;
        const double x = any ? get_x(w, 0, d) : 0.0;
        dpar_status status;
        if (any) {
            put_x(w, 0, d, bad[k]);
        }
        CHECK_INT(dpar_all_reduce(c, &any, &any, 1, DPAR_I64, DPAR_MAX, NULL), DPAR_OK);
        status = dpar_particles_migrate(w->p, &w->arrays);
        CHECK_INT(status, any ? DPAR_E_ARG : DPAR_OK);
        CHECK(!any || strstr(c->why.text, k ? "is infinite" : "is NaN"));
        CHECK_INT(w->arrays.count, count);
        if (k == 0) {
            CHECK_INT(dpar_particles_ghosts(w->p, &w->arrays), any ? DPAR_E_ARG : DPAR_OK);
        }
        if (count > 0) {
            put_x(w, 0, d, x);
        }
    }
}

static void one_world(dpar_comm *c, uint64_t seed)
{
    world *w = (world *)zeroed(sizeof *w);
    dpar_why why;
    int step;
    box(c, w, &seed);
    make_arrays(w);
    CHECK_INT(dpar_particles_make(c, &w->desc, &w->p, &why), DPAR_OK);
    if (w->p) {
        deal(c, w, &seed);
        for (step = 0; step < STEPS; step++) {
            migrate(c, w, &seed);
            ghosts(c, w, &seed);
            check_update(w, &seed);
            check_reduce(c, w);
            if (step == 1) {
                not_finite(c, w);
            }
            move(w, &seed);
        }
        CHECK_INT(dpar_particles_free(w->p), DPAR_OK);
    }
    free_arrays(w);
    free(w);
}

/* ---- wrong calls ---- */

static void refuse(dpar_comm *c, const dpar_particles_desc *desc, int status, const char *text)
{
    dpar_particles *p = NULL;
    dpar_why why;
    why.text[0] = 0;
    CHECK_INT(dpar_particles_make(c, desc, &p, &why), status);
    if (!strstr(why.text, text)) {
        CHECK(0);
        printf("    \"%s\" does not say \"%s\"\n", why.text, text);
    }
}

static void wrong_descriptions(dpar_comm *c)
{
    const double down[3] = {0.0, 2.0, 1.0}, outside[2] = {0.0, 2.0};
    dpar_particles_desc good = {0}, desc;
    good.dims = 2;
    good.high[0] = good.high[1] = 1.0;
    good.cutoff = 0.01;
    refuse(c, NULL, DPAR_E_ARG, "NULL");
    desc = good;
    desc.dims = 4;
    refuse(c, &desc, DPAR_E_ARG, "4 dims");
    desc = good;
    desc.high[1] = 0.0;
    refuse(c, &desc, DPAR_E_ARG, "dim 1 goes from low 0 to high 0");
    desc.high[1] = NAN;
    refuse(c, &desc, DPAR_E_ARG, "dim 1 goes from");
    desc = good;
    desc.periodic[0] = 2;
    refuse(c, &desc, DPAR_E_ARG, "periodic[0] is 2");
    desc = good;
    desc.cutoff = -1.0;
    refuse(c, &desc, DPAR_E_ARG, "cutoff -1");
    desc = good;
    desc.parts[0] = c->size + 1;
    desc.parts[1] = 1;
    refuse(c, &desc, DPAR_E_DIVIDE, "");
    desc = good;
    desc.cutoff = 1.5;
    desc.periodic[0] = 1;
    refuse(c, &desc, DPAR_E_ARG, "cutoff 1.5 is wider than block");
    desc = good;
    desc.parts[0] = c->size;
    desc.cuts[1] = outside;
    refuse(c, &desc, DPAR_E_ARG, "cuts[1] needs");
    desc.parts[1] = 1;
    refuse(c, &desc, DPAR_E_ARG, "cuts[1] goes from 0 to 2");
    if (c->size == 2) {
        desc.high[1] = 1.0;
        desc.cuts[1] = down;
        desc.parts[0] = 1;
        desc.parts[1] = 2;
        refuse(c, &desc, DPAR_E_ARG, "is cut at 2 and then at 1");
        desc = good;
        desc.cutoff = c->rank ? 0.01 : 0.02;
        refuse(c, &desc, DPAR_E_MISMATCH, "cutoff is 0.02 on rank 0, 0.01 on rank 1");
    }
}

/* Checks that the cutoff may be the width of a block, also if that is rounded. */
static void cutoff_of_a_block(dpar_comm *c)
{
    dpar_particles *p = NULL;
    dpar_particles_desc desc = {0};
    dpar_why why;
    int low;
    for (low = -4; low <= 4; low++) {
        desc.dims = 1;
        desc.low[0] = low;
        desc.high[0] = low + 2;
        desc.periodic[0] = 1;
        desc.cutoff = (desc.high[0] - desc.low[0]) / c->size;
        CHECK_INT(dpar_particles_make(c, &desc, &p, &why), DPAR_OK);
        CHECK_INT(dpar_particles_free(p), DPAR_OK);
        p = NULL;
        desc.cutoff *= 1.0 + 1e-12;
        refuse(c, &desc, DPAR_E_ARG, "is wider than block");
    }
}

static void wrong_calls(dpar_comm *c)
{
    dpar_particles_desc desc = {0};
    dpar_particles_arrays arrays = {0};
    dpar_particles_field field = {0}, other = {0};
    dpar_particles *p = NULL;
    double x[8][3] = {{0}}, f[8] = {0};
    const double far[1] = {1e300}, nan[1] = {NAN};
    dpar_why why;
    desc.dims = 1;
    desc.high[0] = 1.0;
    desc.periodic[0] = 1;
    CHECK_INT(dpar_particles_make(c, &desc, &p, &why), DPAR_OK);
    CHECK_INT(p->parts[0], c->size);
    CHECK_INT(dpar_particles_owner(p, far), -1);
    CHECK_INT(dpar_particles_owner(p, nan), -1);
    CHECK_INT(dpar_particles_owner(NULL, nan), -1);
    field.data = x;
    field.type = DPAR_F64;
    field.components = 3;
    arrays.capacity = 8;
    arrays.fields = &field;
    arrays.field_count = 1;
    arrays.position = field;
    CHECK_INT(dpar_particles_update(p, &field, 1), DPAR_OK); /* of no particles */
    CHECK_INT(dpar_particles_ghosts(p, &arrays), DPAR_OK);
    CHECK_INT(dpar_particles_migrate(p, &arrays), DPAR_OK);
    CHECK_INT(dpar_particles_update(p, &field, 1), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "dpar_particles_ghosts first"));
    CHECK_INT(dpar_particles_reduce(p, &field, 1), DPAR_E_ARG);
    CHECK_INT(dpar_particles_migrate(p, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_particles_ghosts(p, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_particles_migrate(NULL, &arrays), DPAR_E_ARG);
    arrays.count = 9;
    CHECK_INT(dpar_particles_migrate(p, &arrays), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "9 particles in a capacity of 8"));
    arrays.count = 0;
    arrays.position.data = f;
    CHECK_INT(dpar_particles_migrate(p, &arrays), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "none of the 1 fields"));
    arrays.position = field;
    arrays.position.type = DPAR_I32;
    CHECK_INT(dpar_particles_migrate(p, &arrays), DPAR_E_ARG);
    arrays.position = field;
    arrays.ghost_fields = 2;
    CHECK_INT(dpar_particles_ghosts(p, &arrays), DPAR_E_ARG);
    arrays.ghost_fields = 0;
    arrays.field_count = 65;
    CHECK_INT(dpar_particles_ghosts(p, &arrays), DPAR_E_ARG);
    arrays.field_count = 1;
    CHECK_INT(dpar_particles_ghosts(p, &arrays), DPAR_OK);
    other.data = f;
    other.type = DPAR_U8;
    other.components = 8;
    CHECK_INT(dpar_particles_update(p, &other, 1), DPAR_OK);
    other.is_position = 1;
    CHECK_INT(dpar_particles_update(p, &other, 1), DPAR_E_ARG);
    other.stride = 4;
    CHECK_INT(dpar_particles_update(p, &other, 1), DPAR_E_ARG);
    other.type = 999;
    CHECK_INT(dpar_particles_reduce(p, &other, 1), DPAR_E_ARG);
    CHECK_INT(dpar_particles_update(p, NULL, 1), DPAR_E_ARG);
    CHECK_INT(dpar_particles_free(p), DPAR_OK);
    CHECK_INT(dpar_particles_free(NULL), DPAR_OK);
}

static int test(dpar_comm *c, void *arg)
{
    const int rounds = getenv("PARTICLES_ROUNDS") ? atoi(getenv("PARTICLES_ROUNDS")) : 25;
    int k;
    (void)arg;
    wrong_descriptions(c);
    cutoff_of_a_block(c);
    wrong_calls(c);
    for (k = 0; k < rounds && all_sum(c, failures()) == 0; k++) {
        one_world(c, (uint64_t)(k * 7919 + 11 + c->size));
    }
    if (failures() > 0) {
        printf("round %d of %d ranks\n", k, (int)c->size);
    }
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, test, NULL, 8, 4, NULL);
}
