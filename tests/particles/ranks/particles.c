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

/* Between a begin and its end everything else is refused, and own values may change. */
static void refuse_between(dpar_comm *c, world *w)
{
    const int64_t ghosts = w->p->ghost_count;
    CHECK_INT(dpar_particles_migrate(w->p, &w->arrays), DPAR_E_ARG);
    CHECK(strstr(c->why.text, "call dpar_particles_end first"));
    CHECK_INT(dpar_particles_ghosts(w->p, &w->arrays), DPAR_E_ARG);
    CHECK_INT(dpar_particles_update(w->p, w->field, 1), DPAR_E_ARG);
    CHECK_INT(dpar_particles_reduce_begin(w->p, w->field, 1), DPAR_E_ARG);
    CHECK_INT(dpar_particles_free(w->p), DPAR_E_ARG);
    CHECK_INT(w->p->ghost_count, ghosts);
}

static void end(world *w, int tests)
{
    int k;
    for (k = 0; k < tests; k++) {
        const dpar_status status = dpar_particles_test(w->p);
        CHECK(status == DPAR_OK || status == DPAR_MORE);
    }
    CHECK_INT(dpar_particles_end(w->p), DPAR_OK);
    CHECK_INT(dpar_particles_end(w->p), DPAR_OK); /* nothing is in progress */
    CHECK_INT(dpar_particles_test(w->p), DPAR_OK);
}

/* New positions and values of the same particles. */
static void check_update(dpar_comm *c, world *w, uint64_t *seed)
{
    const int split = (int)lot_below(seed, 3); /* 0: one call, 1: begin and end, 2: with tests */
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
    if (split) {
        CHECK_INT(dpar_particles_update_begin(w->p, field, 2), DPAR_OK);
        memset(field, 0, sizeof field);
        refuse_between(c, w);
        for (i = 0; i < w->arrays.count; i++) {
            single_at(w, i)[1] = -1.0f;
            put_x(w, i, 0, 99.0);
        }
        end(w, 4 * (split - 1));
        for (i = 0; i < w->arrays.count; i++) {
            put_x(w, i, 0, w->x[*id_at(w, i)][0]);
        }
    } else {
        CHECK_INT(dpar_particles_update(w->p, field, 2), DPAR_OK);
    }
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
static void check_reduce(dpar_comm *c, world *w, uint64_t *seed)
{
    const int split = (int)lot_below(seed, 3);
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
            force_at(w, i)[k] *= ghost || !split; /* own values follow after the begin */
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
    if (split) {
        CHECK_INT(dpar_particles_reduce_begin(w->p, field, 3), DPAR_OK);
        memset(field, 0, sizeof field);
        refuse_between(c, w);
        for (i = 0; i < w->arrays.count; i++) {
            for (k = 0; k < 2; k++) {
                force_at(w, i)[k] = part(99, *id_at(w, i), CODES / 2, k);
            }
        }
        end(w, 4 * (split - 1));
    } else {
        CHECK_INT(dpar_particles_reduce(w->p, field, 3), DPAR_OK);
    }
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

static world *make_world(dpar_comm *c, world *w)
{
    dpar_why why;
    make_arrays(w);
    CHECK_INT(dpar_particles_make(c, &w->desc, &w->p, &why), DPAR_OK);
    if (!w->p) {
        puts(why.text);
        exit(1);
    }
    return w;
}

static void free_world(world *w)
{
    CHECK_INT(dpar_particles_free(w->p), DPAR_OK);
    free_arrays(w);
    free(w);
}

static void check_step(dpar_comm *c, world *w, uint64_t *seed)
{
    migrate(c, w, seed);
    ghosts(c, w, seed);
    check_update(c, w, seed);
    check_reduce(c, w, seed);
}

static void one_world(dpar_comm *c, uint64_t seed)
{
    world *w = (world *)zeroed(sizeof *w);
    int step;
    box(c, w, &seed);
    make_world(c, w);
    deal(c, w, &seed);
    for (step = 0; step < STEPS; step++) {
        check_step(c, w, &seed);
        if (step == 1) {
            not_finite(c, w);
        }
        move(w, &seed);
    }
    free_world(w);
}

/* ---- cases by name ---- */

/* A periodic cube of side 4 with n particles, all of them on one rank, at the low corner. */
static world *cube(dpar_comm *c, int n, int half, int rank)
{
    world *w = (world *)zeroed(sizeof *w);
    int d, i;
    w->desc.dims = 3;
    w->desc.half = half;
    w->desc.cutoff = 0.4;
    w->n = n;
    for (d = 0; d < 3; d++) {
        w->desc.high[d] = 4.0;
        w->desc.periodic[d] = 1;
    }
    make_world(c, w);
    for (d = 0; d < 3; d++) {
        w->desc.parts[d] = w->p->parts[d];
        for (i = 0; i <= w->p->parts[d]; i++) {
            w->cuts[d][i] = 4.0 * i / w->p->parts[d];
        }
    }
    for (i = 0; i < n && c->rank == rank; i++) {
        put_values(w, w->arrays.count++, i);
    }
    return w;
}

/* Puts particle id at a position, on whatever rank it is. */
static void put(world *w, int id, double x, double y, double z)
{
    int64_t i;
    w->x[id][0] = x;
    w->x[id][1] = y;
    w->x[id][2] = z;
    for (i = 0; i < w->arrays.count; i++) {
        if (*id_at(w, i) == id) {
            put_x(w, i, 0, x);
            put_x(w, i, 1, y);
            put_x(w, i, 2, z);
        }
    }
}

/* Particles cross the corners of all blocks, along all diagonals and edges, back and forth, also
 * those of the box. */
static void particles_cross_corners(dpar_comm *c)
{
    uint64_t seed = 5;
    world *w = cube(c, 8 * CODES / 2, c->size % 2, 0);
    int id, step;
    for (step = 0; step < 4; step++) {
        const double by = step % 2 ? -0.01 : 0.01;
        for (id = 0; id < w->n; id++) { /* a corner of a block, and a direction from it */
            const int corner = id % 8, code = id / 8;
            put(w, id, 2.0 * (corner / 4) + by * (code / 9 - 1),
                2.0 * (corner / 2 % 2) + by * (code / 3 % 3 - 1),
                2.0 * (corner % 2) + by * (code % 3 - 1));
        }
        check_step(c, w, &seed);
    }
    free_world(w);
}

/* All particles are in one block, so that the other ranks are empty; then they are in another. */
static void all_on_one_rank_others_empty(dpar_comm *c)
{
    uint64_t seed = 6;
    world *w = cube(c, 60, (c->size + 1) % 2, c->size - 1);
    int id, step;
    for (step = 0; step < 4; step++) {
        const double at = step % 2 ? 3.95 : 0.0; /* within 0.05 of one or the other end */
        const int owner = step % 2 ? c->size - 1 : 0;
        for (id = 0; id < w->n; id++) {
            put(w, id, at + 0.0008 * id, at + 0.0007 * id, at + 0.0006 * (60 - id));
        }
        check_step(c, w, &seed);
        CHECK_INT(w->arrays.count, c->rank == owner ? w->n : 0);
    }
    free_world(w);
}

/* No rank has a particle; then one particle appears, and its images are its only neighbours. */
static void no_particles(dpar_comm *c)
{
    uint64_t seed = 7;
    world *w = cube(c, 0, 0, 0);
    check_step(c, w, &seed);
    CHECK_INT(w->arrays.count + w->p->ghost_count, 0);
    w->n = 1;
    if (c->rank == c->size / 2) {
        put_values(w, 0, 0);
        w->arrays.count = 1;
    }
    put(w, 0, 3.9, 3.9, 3.9);
    check_step(c, w, &seed);
    free_world(w);
}

/* ---- pairs at the cutoff ---- */

/* Rounds a difference as code that stores positions in this type does. */
static double difference(int single, double a, double b)
{
    return single ? (double)((float)a - (float)b) : a - b;
}

/* A periodic ring in which many particles are a cutoff away from others, up to rounding. Each pair
 * that a code would accept after it has computed the distance is found by one rank at least, and
 * with half lists by only one. */
static void pairs_at_the_cutoff(dpar_comm *c, uint64_t seed, int single)
{
    enum { PAIRS = 200, ALL = 2 * PAIRS };
    const double fine = single ? 1024.0 : 999.0; /* F32 needs ends that it holds exactly */
    const double low = (double)lot_below(&seed, 801) / fine - 1.0;
    const double length = 1.0 + (double)lot_below(&seed, 400) / fine;
    const double cutoff = length / c->size * (double)(1 + lot_below(&seed, 990)) / 1000.0;
    int32_t found[ALL] = {0};
    double x[ALL], mine[4 * ALL];
    float narrow[4 * ALL];
    int32_t id[4 * ALL];
    dpar_particles_desc desc;
    dpar_particles_arrays arrays;
    dpar_particles_field field[2];
    dpar_particles *p = NULL;
    dpar_why why;
    int64_t i, k;
    memset(&desc, 0, sizeof desc);
    memset(&arrays, 0, sizeof arrays);
    desc.dims = 1;
    desc.low[0] = low;
    desc.high[0] = low + length;
    desc.periodic[0] = 1;
    desc.cutoff = single ? (double)(float)cutoff : cutoff;
    desc.half = (int32_t)lot_below(&seed, 2);
    CHECK_INT(dpar_particles_make(c, &desc, &p, &why), DPAR_OK);
    for (i = 0; i < PAIRS; i++) { /* on both sides of a cut or of the end, often right at it */
        const double cut = low + length * (double)lot_below(&seed, c->size + 1) / c->size;
        const double step = (single ? 3e-8 : 5e-17) * (double)(lot_below(&seed, 9) - 4);
        double below = cut - cutoff * (double)lot_below(&seed, 1000) / 1000.0;
        double above = below + desc.cutoff + step;
        if (i % 3 == 0) { /* the last number before the end */
            below = desc.high[0] - (single ? 6e-8 : 1.2e-16) * (double)(1 + lot_below(&seed, 2));
            above = low + desc.cutoff + step;
        } else if (i % 3 == 1) {
            below = desc.high[0] - desc.cutoff - step;
            above = low;
        }
        x[2 * i] = single ? (double)(float)below : below;
        x[2 * i + 1] = single ? (double)(float)above : above;
    }
    for (i = c->rank; i < ALL; i += c->size) {
        mine[arrays.count] = x[i];
        narrow[arrays.count] = (float)x[i];
        id[arrays.count++] = (int32_t)i;
    }
    set_field(&field[0], single ? (void *)narrow : (void *)mine, single ? DPAR_F32 : DPAR_F64, 1,
              0);
    set_field(&field[1], id, DPAR_I32, 1, 0);
    arrays.position = field[0];
    arrays.fields = field;
    arrays.field_count = 2;
    arrays.capacity = 4 * ALL;
    CHECK_INT(dpar_particles_migrate(p, &arrays), DPAR_OK);
    CHECK_INT(dpar_particles_ghosts(p, &arrays), DPAR_OK);
    for (i = 0; i < arrays.count; i++) {
        for (k = 0; k < arrays.count + p->ghost_count; k++) {
            const double a = single ? (double)narrow[i] : mine[i];
            const double b = single ? (double)narrow[k] : mine[k];
            if (id[i] / 2 == id[k] / 2 && id[i] != id[k] && (k >= arrays.count || k > i) &&
                fabs(difference(single, a, b)) <= desc.cutoff) {
                found[id[i] & ~1]++;
            }
        }
    }
    memset(x, 0, sizeof x);
    for (i = 0; i < arrays.count; i++) { /* the migration may have rounded them */
        x[id[i]] = single ? (double)narrow[i] : mine[i];
    }
    CHECK_INT(dpar_all_reduce(c, x, x, ALL, DPAR_F64, DPAR_SUM, NULL), DPAR_OK);
    CHECK_INT(dpar_all_reduce(c, found, found, ALL, DPAR_I32, DPAR_SUM, NULL), DPAR_OK);
    for (i = 0; i < PAIRS; i++) {
        const double *pair = &x[2 * i];
        int32_t wanted = 0, s;
        for (s = -1; s <= 1; s++) { /* the images of the second one, as the first one sees them */
            const double shift = s * (desc.high[0] - desc.low[0]);
            const double to = single ? (double)(float)(pair[1] + shift) : pair[1] + shift;
            const double back = single ? (double)(float)(pair[0] - shift) : pair[0] - shift;
            const int there = fabs(difference(single, pair[0], to)) <= desc.cutoff;
            const int here = fabs(difference(single, pair[1], back)) <= desc.cutoff;
            const int32_t step =
                dpar_particles_owner(p, &pair[1]) + s * c->size - dpar_particles_owner(p, &pair[0]);
            if (step == 0) {
                wanted += there;
            } else if (step == 1 || step == -1) {
                wanted += (!desc.half || step > 0) && there;
                wanted += (!desc.half || step < 0) && here;
            }
        }
        CHECK_INT(found[2 * i], wanted);
    }
    CHECK_INT(dpar_particles_free(p), DPAR_OK);
}

/* ---- all cases ---- */

static int test(dpar_comm *c, void *arg)
{
    const int rounds = getenv("PARTICLES_ROUNDS") ? atoi(getenv("PARTICLES_ROUNDS")) : 25;
    int k;
    (void)arg;
    particles_cross_corners(c);
    all_on_one_rank_others_empty(c);
    no_particles(c);
    for (k = 0; k < 4 * rounds; k++) {
        pairs_at_the_cutoff(c, (uint64_t)(k * 7919 + 5), k % 2);
    }
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
