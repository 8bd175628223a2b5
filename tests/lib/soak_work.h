/* SPDX-License-Identifier: MIT-0 */
/* soak_work: what the soak test (tests/soak.c) does between faults: random small operations of each
 * kind. All of it follows from a seed that is equal on all ranks: the inputs of each rank, the
 * options, and so the expected results. Values are small whole numbers, whose sums are exact in any
 * order; only attention has a tolerance. */
#ifndef DPAR_SOAK_WORK_H
#define DPAR_SOAK_WORK_H

#include "dpar_halo.h"
#include "dpar_points.h"
#include "dpar_train.h"
#include "halo_work.h"
#include "layout_oracle.h"

enum {
    SOAK_COLLECTIVE,
    SOAK_POSTED,
    SOAK_MESSAGES,
    SOAK_SPLIT,
    SOAK_MOVE,
    SOAK_HALO,
    SOAK_POINTS,
    SOAK_OVER,
    SOAK_DDP,
    SOAK_FSDP,
    SOAK_TENSOR,
    SOAK_ATTENTION,
    SOAK_EXPERTS,
    SOAK_PIPELINE,
    SOAK_KINDS
};
static const char *const soak_names[SOAK_KINDS] = {
    "collective", "posted", "messages", "split",  "redistribute", "halo",    "points",
    "ddp_flat",   "ddp",    "fsdp",     "tensor", "attention",    "experts", "pipeline"};

enum { SOAK_ROOM = 300000, SOAK_SLOTS = 3, SOAK_PIECES = 48 };

typedef struct soak_job {
    oracle o;
    oracle_slot slot[SOAK_SLOTS];
    dpar_comm *world, *twin, *half; /* all ranks; the same ranks again; each second rank */
    dpar_comm *failed;              /* the communicator whose call failed */
    int keep;  /* 1: after a failure keep memory, because MPI may still write to it */
    int spoil; /* the number of results until one is made wrong on purpose; 0: none */
    int kind;  /* of the operation in progress, or of the failed one */
    int64_t done[SOAK_KINDS];
    int64_t bytes; /* of compared results */
    int64_t wrong;
    char text[200]; /* describes the first wrong result */
    void *piece[SOAK_PIECES];
    dpar_comm *piece_of[SOAK_PIECES]; /* NULL for private memory */
    int pieces;
} soak_job;

/* ---- numbers and memory ---- */

static double soak_value(uint64_t seed, int64_t a, int64_t b)
{
    return (double)(oracle_mix(seed ^ oracle_mix((uint64_t)a * 1000003u + (uint64_t)b)) % 17) - 8;
}

static void soak_wrong(soak_job *j, const char *what, int64_t at, double got, double want)
{
    if (j->wrong++ == 0) {
        (void)snprintf(j->text, sizeof j->text, "%s: element %lld is %.17g, expected %.17g", what,
                       (long long)at, got, want);
    }
}

/* Returns 1 if this result is to be made wrong. */
static int soak_spoils(soak_job *j)
{
    return j->spoil > 0 && --j->spoil == 0;
}

static void soak_same(soak_job *j, const char *what, int64_t at, double got, double want,
                      double relative)
{
    got += soak_spoils(j) ? 1 : 0;
    j->bytes += 8;
    if (!(fabs(got - want) <= relative * (1 + fabs(want)))) {
        soak_wrong(j, what, at, got, want);
    }
}

/* Checks a local call, which must succeed whatever other ranks do. */
static dpar_status soak_fine(soak_job *j, const char *what, dpar_status s, const char *why)
{
    if (s < 0 && j->wrong++ == 0) {
        (void)snprintf(j->text, sizeof j->text, "%s: %s: %.120s", what, dpar_status_text(s), why);
    }
    return s;
}

/* Allocates zeroed memory, valid until soak_clear. registered: from dpar_comm_alloc. */
static void *soak_memory(soak_job *j, dpar_comm *c, int64_t bytes, int registered)
{
    void *p = NULL;
    bytes = (bytes + 64) / 64 * 64;
    if (j->pieces == SOAK_PIECES) {
        printf("soak: too many pieces\n");
        _exit(4);
    }
    if (registered ? dpar_comm_alloc(c, bytes, &p) != DPAR_OK
                   : posix_memalign(&p, 64, (size_t)bytes) != 0) {
        printf("soak: no memory: %s\n", c->why.text);
        _exit(4);
    }
    memset(p, 0, (size_t)bytes);
    j->piece_of[j->pieces] = registered ? c : NULL;
    j->piece[j->pieces++] = p;
    return p;
}

static double *soak_doubles(soak_job *j, dpar_comm *c, int64_t n, int registered)
{
    return (double *)soak_memory(j, c, 8 * n, registered);
}

static void soak_clear(soak_job *j, dpar_status s)
{
    while (j->pieces > 0) {
        j->pieces--;
        if (s < 0 && j->keep) {
            continue;
        }
        if (j->piece_of[j->pieces] != NULL) {
            dpar_comm_release(j->piece_of[j->pieces], j->piece[j->pieces]);
        } else {
            free(j->piece[j->pieces]);
        }
    }
}

static dpar_status soak_first(dpar_status a, dpar_status b)
{
    return a < 0 ? a : b;
}

/* ---- collectives and messages ---- */

static dpar_comm *soak_any(soak_job *j, uint64_t *seed)
{
    const int64_t k = oracle_below(seed, 6);
    j->failed = k < 3 ? j->world : k < 5 ? j->twin : j->half;
    return j->failed;
}

static void soak_check(soak_job *j, oracle_flight *f)
{
    const int before = j->o.failed;
    if (f->length[0] > 0 && soak_spoils(j)) {
        oracle_first(f, 0)[0] ^= 1;
    }
    oracle_check(&j->o, f);
    j->bytes += (f->length[0] + f->length[1]) * dpar_type_bytes(f->k.type);
    if (j->o.failed != before && j->wrong++ == 0) {
        char text[160];
        oracle_describe(text, sizeof text, &f->k);
        (void)snprintf(j->text, sizeof j->text, "%s", text);
    }
}

static dpar_status soak_collective(soak_job *j, uint64_t seed)
{
    dpar_comm *c = soak_any(j, &seed);
    oracle_case k = oracle_random_case(oracle_next(&seed), c->size, SOAK_ROOM);
    oracle_flight f;
    dpar_status s = oracle_begin(&j->o, c, &k, &j->slot[0], &f);
    s = s == DPAR_OK ? oracle_wait(&j->o, &f) : s;
    if (s == DPAR_OK) {
        soak_check(j, &f);
    }
    return s;
}

/* Posts three operations. After a failure the other works must end, too. */
static dpar_status soak_posted(soak_job *j, uint64_t seed)
{
    oracle_flight f[SOAK_SLOTS];
    dpar_status s = DPAR_OK, first;
    int i, begun = 0;
    for (i = 0; i < SOAK_SLOTS && s == DPAR_OK; i++) {
        dpar_comm *c = oracle_below(&seed, 2) ? j->world : j->twin;
        oracle_case k = oracle_random_case(oracle_next(&seed), c->size, SOAK_ROOM / 4);
        k.how = k.how == ORACLE_BLOCKING ? ORACLE_WAIT : k.how;
        j->failed = c;
        s = oracle_begin(&j->o, c, &k, &j->slot[i], &f[i]);
        begun += s == DPAR_OK;
    }
    first = s;
    for (i = begun - 1; i >= 0; i--) {
        s = oracle_wait(&j->o, &f[i]);
        if (s == DPAR_OK) {
            soak_check(j, &f[i]);
        } else if (first == DPAR_OK) {
            first = s;
            j->failed = f[i].comm;
        }
    }
    return first;
}

/* Sends from each rank to each rank in one batch, with pieces of different sizes. */
static dpar_status soak_messages(soak_job *j, uint64_t seed)
{
    dpar_comm *c = soak_any(j, &seed);
    const int registered = (int)oracle_below(&seed, 2), n = c->size, me = c->rank;
    const int64_t most = oracle_below(&seed, INT64_C(1) << oracle_below(&seed, 13)) + 1;
    double *in = soak_doubles(j, c, most * n, registered);
    double *out = soak_doubles(j, c, most * n, registered);
    dpar_call call[2 * ORACLE_RANKS];
    dpar_status s;
    int64_t i;
    int r, k = 0;
    memset(call, 0, sizeof call);
    for (r = 0; r < n; r++) {
        call[k].kind = DPAR_CALL_RECV, call[k + 1].kind = DPAR_CALL_SEND;
        call[k].root = call[k + 1].root = r;
        call[k].type = call[k + 1].type = DPAR_F64;
        call[k].tag = call[k + 1].tag = 7;
        call[k].count = 1 + (r * 31 + me * 17) % most, call[k].out = out + r * most;
        call[k + 1].count = 1 + (me * 31 + r * 17) % most, call[k + 1].in = in + r * most;
        for (i = 0; i < call[k + 1].count; i++) {
            in[r * most + i] = soak_value(seed, me * 64 + r, i);
        }
        k += 2;
    }
    s = dpar_batch(c, call, k, NULL);
    for (r = 0; r < n && s == DPAR_OK; r++) {
        for (i = 0; i < most; i++) {
            const int came = i < call[2 * r].count;
            soak_same(j, "messages", i, out[r * most + i],
                      came ? soak_value(seed, r * 64 + me, i) : 0, 0);
        }
    }
    return s;
}

static dpar_status soak_split(soak_job *j, uint64_t seed)
{
    dpar_comm *c = oracle_below(&seed, 2) ? j->world : j->twin, *part = NULL;
    const uint64_t lot = oracle_next(&seed);
    const int colors = 1 + (int)oracle_below(&seed, 3), turned = (int)oracle_below(&seed, 2);
    int64_t mine = c->rank, out[ORACLE_RANKS], r, k = 0;
    dpar_status s, closed;
    int32_t color = (int32_t)(oracle_mix(lot + (uint64_t)c->rank) % (uint64_t)colors);
    j->failed = c;
    s = dpar_comm_split(c, color, turned ? -c->rank : 0, &part);
    if (s < 0) {
        return s;
    }
    j->failed = part;
    s = dpar_all_gather(part, &mine, out, 1, DPAR_I64, NULL);
    for (r = 0; r < c->size && s == DPAR_OK; r++) {
        const int64_t rank = turned ? c->size - 1 - r : r;
        if ((int32_t)(oracle_mix(lot + (uint64_t)rank) % (uint64_t)colors) == color) {
            soak_same(j, "split", k, (double)out[k], (double)rank, 0);
            k++;
        }
    }
    if (s < 0) { /* its message is read when it is closed */
        c->why = part->why;
    }
    closed = dpar_comm_free(part);
    j->failed = c;
    if (s == DPAR_OK && closed < 0) { /* a rank has died: reports what the survivor gets */
        s = soak_first(dpar_barrier(c, NULL), closed);
    }
    return s;
}

/* ---- redistribution ---- */

static void soak_put(void *at, int64_t i, int32_t type, double v)
{
    switch (type) {
    case DPAR_F64: ((double *)at)[i] = v; break;
    case DPAR_F32: ((float *)at)[i] = (float)v; break;
    case DPAR_I32: ((int32_t *)at)[i] = (int32_t)v; break;
    default: ((int8_t *)at)[i] = (int8_t)v;
    }
}

static double soak_get(const void *at, int64_t i, int32_t type)
{
    switch (type) {
    case DPAR_F64: return ((const double *)at)[i];
    case DPAR_F32: return (double)((const float *)at)[i];
    case DPAR_I32: return (double)((const int32_t *)at)[i];
    default: return (double)((const int8_t *)at)[i];
    }
}

static void soak_layout(soak_job *j, dpar_comm *c, uint64_t *seed, const int64_t *extent, int sums,
                        dpar_layout *l)
{
    static const int32_t rules[4] = {DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_FLOOR,
                                     DPAR_SPLIT_BLOCK_CYCLIC};
    const int two = c->size % 2 == 0 && oracle_below(seed, 2);
    int32_t sizes[2];
    dpar_placement p[2];
    dpar_mesh m;
    dpar_why why;
    int i;
    why.text[0] = 0;
    sizes[0] = two ? c->size / 2 : c->size;
    sizes[1] = 2;
    for (i = 0; i < 2; i++) {
        const int64_t draw = oracle_below(seed, 8);
        const int32_t rule = rules[oracle_below(seed, 4)], dim = (int32_t)oracle_below(seed, 2);
        const int64_t block = 1 + oracle_below(seed, 3);
        p[i] = draw < 2 ? dpar_replicate()
               : draw < 4 && sums
                   ? dpar_partial(DPAR_SUM)
                   : dpar_shard_by(dim, rule, rule == DPAR_SPLIT_BLOCK_CYCLIC ? block : 0);
    }
    (void)soak_fine(j, "mesh",
                    dpar_mesh_init(&m, two ? "a b" : "a", sizes, DPAR_ORDER_LAST_FASTEST, 0, &why),
                    why.text);
    (void)soak_fine(j, "layout", dpar_layout_init(l, &m, 2, extent, p, &why), why.text);
}

/* Returns the sum over the ranks that hold parts of it: v + 0 + 1 + ... of their numbers. */
static double soak_share(const dpar_layout *l, const int32_t *coord, double v, int all)
{
    int64_t part = 0, parts = 1, k;
    for (k = 0; k < l->mesh.axes; k++) {
        if (l->axis[k].kind == DPAR_PLACEMENT_PARTIAL) {
            part = part * l->mesh.axis[k].size + coord[k];
            parts *= l->mesh.axis[k].size;
        }
    }
    return all ? (double)parts * v + (double)(parts * (parts - 1)) / 2 : v + (double)part;
}

static dpar_status soak_move(soak_job *j, uint64_t seed)
{
    static const int32_t types[4] = {DPAR_F64, DPAR_F32, DPAR_I32, DPAR_I8};
    dpar_comm *c = soak_any(j, &seed);
    const int32_t type = types[oracle_below(&seed, 4)];
    const int64_t extent[2] = {1 + oracle_below(&seed, 40), 1 + oracle_below(&seed, 40)};
    const int registered = (int)oracle_below(&seed, 2);
    dpar_layout l[2];
    int32_t coord[2][DPAR_MAX_AXES];
    int rows[2][40], columns[2][40], nr[2], nc[2], s, a, b;
    void *at[2];
    dpar_redistribute_desc move;
    dpar_why why;
    dpar_status st;
    memset(&move, 0, sizeof move);
    why.text[0] = 0;
    for (s = 0; s < 2; s++) {
        soak_layout(j, c, &seed, extent, s == 0, &l[s]);
        (void)dpar_mesh_coords(&l[s].mesh, c->rank, coord[s]);
        nr[s] = owned(&l[s], coord[s], 0, rows[s]);
        nc[s] = owned(&l[s], coord[s], 1, columns[s]);
        at[s] = soak_memory(j, c, (int64_t)nr[s] * nc[s] * 8, registered);
    }
    for (a = 0; a < nr[0]; a++) {
        for (b = 0; b < nc[0]; b++) {
            soak_put(at[0], a * nc[0] + b, type,
                     soak_share(&l[0], coord[0], soak_value(seed, rows[0][a], columns[0][b]), 0));
        }
    }
    move.type = type;
    move.from = &l[0], move.to = &l[1];
    move.in = at[0], move.out = at[1];
    st = dpar_redistribute(c, &move, &why);
    for (a = 0; a < nr[1] && st == DPAR_OK; a++) {
        for (b = 0; b < nc[1]; b++) {
            soak_same(j, "redistribute", a * nc[1] + b, soak_get(at[1], a * nc[1] + b, type),
                      soak_share(&l[0], coord[0], soak_value(seed, rows[1][a], columns[1][b]), 1),
                      0);
        }
    }
    return st;
}

/* ---- halos ---- */

static dpar_status soak_halo(soak_job *j, uint64_t seed)
{
    dpar_comm *c = soak_any(j, &seed);
    halo_work w;
    dpar_status s = halo_work_open(&w, c, oracle_next(&seed)), closed;
    const int runs = 1 + (int)oracle_below(&seed, 4);
    volatile int32_t wrong = 0;
    int i;
    for (i = 0; i < runs && s == DPAR_OK; i++) {
        const int adds = oracle_below(&seed, 3) == 0;
        s = halo_work_run(&w, &j->o, oracle_next(&seed) % 1000, adds, (int)oracle_below(&seed, 4),
                          &wrong);
        j->bytes += w.a[0].has ? dpar_box_volume(&w.a[0].box) * w.a[0].comps * 8 : 0;
    }
    if (wrong != 0 || soak_spoils(j)) {
        soak_wrong(j, "halo: cells", wrong, 0, 0);
    }
    if (s < 0 && j->keep) {
        return s;
    }
    closed = halo_work_close(&w);
    return soak_first(s, closed);
}

/* ---- points ---- */

typedef struct soak_points_list {
    int64_t own, first, ghosts, ghost[64];
} soak_points_list;

static int64_t soak_points_of(uint64_t seed, int n, soak_points_list *of)
{
    int64_t all = 0, i;
    int r;
    for (r = 0; r < n; r++) {
        of[r].own = oracle_below(&seed, 60);
        of[r].first = all;
        all += of[r].own;
    }
    for (r = 0; r < n; r++) {
        of[r].ghosts = all > 0 ? oracle_below(&seed, 64) : 0;
        for (i = 0; i < of[r].ghosts; i++) {
            of[r].ghost[i] = oracle_below(&seed, all);
        }
    }
    return all;
}

static dpar_status soak_points(soak_job *j, uint64_t seed)
{
    dpar_comm *c = soak_any(j, &seed);
    const int comps = 1 + (int)oracle_below(&seed, 3), registered = (int)oracle_below(&seed, 2);
    const int n = c->size, me = c->rank;
    const uint64_t lot = oracle_next(&seed);
    soak_points_list of[ORACLE_RANKS];
    dpar_points_desc d;
    dpar_points_field v;
    dpar_points *p = NULL;
    dpar_why why;
    dpar_status s;
    double *x;
    int64_t i;
    int r, k;
    why.text[0] = 0;
    (void)soak_points_of(oracle_next(&seed), n, of);
    memset(&d, 0, sizeof d);
    memset(&v, 0, sizeof v);
    d.own_count = of[me].own;
    d.ghost_count = of[me].ghosts;
    d.ghost_id = of[me].ghost;
    d.method = (int32_t)oracle_below(&seed, 4);
    x = soak_doubles(j, c, (d.own_count + d.ghost_count) * comps, registered);
    v.type = DPAR_F64, v.components = comps, v.data = x;
    s = dpar_points_make(c, &d, &p, &why);
    if (s < 0) {
        return s;
    }
    for (i = 0; i < d.own_count * comps; i++) {
        x[i] = soak_value(lot, of[me].first + i / comps, i % comps);
    }
    s = dpar_points_exchange_many(p, &v, 1);
    for (i = 0; i < d.ghost_count * comps && s == DPAR_OK; i++) {
        soak_same(j, "points", i, x[d.own_count * comps + i],
                  soak_value(lot, of[me].ghost[i / comps], i % comps), 0);
    }
    for (i = 0; i < d.ghost_count * comps && s == DPAR_OK; i++) {
        x[d.own_count * comps + i] = soak_value(lot + 1, me * 64 + i / comps, i % comps);
    }
    s = s < 0 ? s : dpar_points_reduce_begin_many(p, &v, 1, DPAR_SUM);
    s = s < 0 ? s : dpar_points_end(p);
    if (s == DPAR_OK) {
        double want[60 * 3];
        for (i = 0; i < d.own_count * comps; i++) {
            want[i] = soak_value(lot, of[me].first + i / comps, i % comps);
        }
        for (r = 0; r < n; r++) {
            for (i = 0; i < of[r].ghosts; i++) {
                const int64_t at = of[r].ghost[i] - of[me].first;
                for (k = 0; k < comps && at >= 0 && at < d.own_count; k++) {
                    want[at * comps + k] += soak_value(lot + 1, r * 64 + i, k);
                }
            }
        }
        for (i = 0; i < (d.own_count + d.ghost_count) * comps; i++) {
            soak_same(j, "points, adjoint", i, x[i], i < d.own_count * comps ? want[i] : 0, 0);
        }
    }
    return soak_first(s, dpar_points_free(p));
}

/* ---- data parallel ---- */

static double soak_sum(uint64_t seed, int n, int64_t a, int64_t i)
{
    double sum = 0;
    int r;
    for (r = 0; r < n; r++) {
        sum += soak_value(seed, a * 64 + r, i);
    }
    return sum;
}

static dpar_status soak_over(soak_job *j, uint64_t seed)
{
    dpar_comm *c = soak_any(j, &seed);
    const int64_t n = 1 + oracle_below(&seed, INT64_C(1) << oracle_below(&seed, 13));
    const int32_t type = oracle_below(&seed, 2) ? DPAR_F64 : DPAR_F32;
    /* two parts: the second one is what is reported */
    const int64_t count = oracle_below(&seed, n);
    void *g = soak_memory(j, c, n * 8, (int)oracle_below(&seed, 2));
    int64_t counts[2];
    dpar_ddp_desc o;
    dpar_ddp *d = NULL;
    dpar_why why;
    dpar_status s;
    int64_t i;
    int step;
    why.text[0] = 0;
    memset(&o, 0, sizeof o);
    counts[0] = count;
    counts[1] = n - count;
    o.params = 2;
    o.count = counts;
    o.type = type;
    o.gradients = g;
    o.first_bucket_bytes = o.bucket_bytes = 1 + oracle_below(&seed, 4000);
    s = dpar_ddp_make(c, &o, &d, &why);
    for (step = 0; step < 3 && s == DPAR_OK; step++) {
        for (i = 0; i < n; i++) {
            soak_put(g, i, type, soak_value(seed, step * 64 + c->rank, i));
        }
        s = oracle_below(&j->o.own, 2) != 0 ? dpar_ddp_ready(d, 1) : DPAR_OK;
        s = s < 0 ? s : dpar_ddp_end(d);
        for (i = 0; i < n && s == DPAR_OK; i++) {
            soak_same(j, "ddp_flat", i, soak_get(g, i, type),
                      soak_sum(seed, c->size, step, i) / c->size, type == DPAR_F64 ? 1e-15 : 1e-6);
        }
        seed += 3;
    }
    return soak_first(s, dpar_ddp_free(d));
}

static dpar_status soak_ddp(soak_job *j, uint64_t seed)
{
    dpar_comm *c = soak_any(j, &seed);
    dpar_ddp_desc o;
    dpar_ddp *d = NULL;
    dpar_why why;
    dpar_status s;
    int64_t numel[8], i;
    void *array[8];
    int order[8], k, m, micros;
    memset(&o, 0, sizeof o);
    why.text[0] = 0;
    o.params = 1 + (int32_t)oracle_below(&seed, 8);
    o.type = DPAR_F32;
    o.count = numel;
    o.sum = 1;
    o.require_ready = 1;
    o.first_bucket_bytes = 64;
    o.bucket_bytes = 1 + oracle_below(&seed, 4000);
    for (k = 0; k < o.params; k++) {
        numel[k] = oracle_below(&seed, 700);
        order[k] = k;
    }
    if (oracle_below(&seed, 2) != 0) { /* one array for each, or memory of dpar */
        for (k = 0; k < o.params; k++) {
            array[k] = soak_memory(j, c, 8 + numel[k] * 4, k % 2);
            memset(array[k], 0, (size_t)numel[k] * 4);
        }
        o.arrays = array;
    } else {
        o.align = 1 + oracle_below(&seed, 64);
    }
    micros = 1 + (int)oracle_below(&seed, 3);
    s = dpar_ddp_make(c, &o, &d, &why);
    for (m = 0; m < micros && s == DPAR_OK; m++) {
        s = dpar_ddp_begin(d, m == micros - 1);
        /* in a different order on each rank */
        for (k = o.params - 1; k >= 0 && s == DPAR_OK; k--) {
            const int other = (int)oracle_below(&j->o.own, k + 1), param = order[other];
            float *g = (float *)dpar_ddp_gradient(d, param, NULL);
            order[other] = order[k];
            order[k] = param;
            for (i = 0; i < numel[param]; i++) {
                g[i] += (float)soak_value(seed, (m * 8 + param) * 64 + c->rank, i);
            }
            s = dpar_ddp_ready(d, param);
        }
        s = s < 0 ? s : dpar_ddp_end(d);
    }
    for (k = 0; k < o.params && s == DPAR_OK; k++) {
        const float *g = (const float *)dpar_ddp_gradient(d, k, NULL);
        for (i = 0; i < numel[k]; i++) {
            double want = 0;
            for (m = 0; m < micros; m++) {
                want += soak_sum(seed, c->size, m * 8 + k, i);
            }
            soak_same(j, "ddp", i, (double)g[i], want, 0);
        }
    }
    return soak_first(s, dpar_ddp_free(d));
}

/* ---- sharded: plain gradient descent in steps of a half, exact ---- */

static double soak_weight(uint64_t seed, int n, int steps, int micros, int param, int64_t i)
{
    double w = soak_value(seed, 77 + param, i);
    int t;
    for (t = 0; t < steps * micros; t++) {
        w -= 0.5 * soak_sum(seed, n, 1000 + t * 16 + param, i);
    }
    return w;
}

static void soak_unit(soak_job *j, const dpar_fsdp *f, uint64_t seed, int steps, int micros,
                      int first, int count, const int64_t *numel)
{
    int k;
    int64_t i;
    for (k = first; k < first + count; k++) {
        const void *w = dpar_fsdp_weight(f, k);
        for (i = 0; i < numel[k]; i++) {
            soak_same(j, "fsdp", i, soak_get(w, i, DPAR_F32),
                      soak_weight(seed, j->failed->size, steps, micros, k, i), 0);
        }
    }
}

/* Runs forward of all units, then backward from the last. */
static dpar_status soak_pass(soak_job *j, dpar_fsdp *f, const dpar_fsdp_desc *o, uint64_t seed,
                             int steps, int micros, int micro)
{
    dpar_status s = dpar_fsdp_begin(f, micro == micros - 1);
    int u, k, first = 0;
    int64_t i;
    for (u = 0; u < o->units && s == DPAR_OK; u++) {
        s = dpar_fsdp_unshard(f, u, DPAR_ACTION_FORWARD);
        if (s == DPAR_OK) {
            soak_unit(j, f, seed, steps, micros, first, o->params_per_unit[u], o->count);
            s = dpar_fsdp_reshard(f, u, DPAR_ACTION_FORWARD);
        }
        first += o->params_per_unit[u];
    }
    for (u = o->units - 1; u >= 0 && s == DPAR_OK; u--) {
        first -= o->params_per_unit[u];
        s = dpar_fsdp_unshard(f, u, DPAR_ACTION_BACKWARD);
        for (k = first; k < first + o->params_per_unit[u] && s == DPAR_OK; k++) {
            float *g = (float *)dpar_fsdp_gradient(f, k, NULL);
            for (i = 0; i < o->count[k]; i++) {
                g[i] += (float)soak_value(
                    seed, (1000 + (steps * micros + micro) * 16 + k) * 64 + j->failed->rank, i);
            }
        }
        s = s < 0 ? s : dpar_fsdp_reshard(f, u, DPAR_ACTION_BACKWARD);
        s = s < 0 ? s : dpar_fsdp_ready(f, u);
    }
    return s < 0 ? s : dpar_fsdp_end(f);
}

static dpar_status soak_fsdp(soak_job *j, uint64_t seed)
{
    dpar_comm *c = soak_any(j, &seed);
    dpar_fsdp_desc o;
    dpar_fsdp *f = NULL;
    dpar_why why;
    dpar_status s;
    int32_t params_of[4];
    int64_t numel[12], i;
    float values[200];
    int params = 0, k, u, step, m, micros = 1 + (int)oracle_below(&seed, 2);
    memset(&o, 0, sizeof o);
    why.text[0] = 0;
    o.units = 1 + (int32_t)oracle_below(&seed, 4);
    o.zero = 1 + (int32_t)oracle_below(&seed, 3);
    o.params_per_unit = params_of;
    o.count = numel;
    o.prefetch = (int32_t)oracle_below(&seed, 3);
    o.reduce_last = (int32_t)oracle_below(&seed, 2);
    o.sum = 1;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_SGD);
    for (u = 0; u < o.units; u++) {
        params_of[u] = 1 + (int32_t)oracle_below(&seed, 3);
        for (k = 0; k < params_of[u]; k++) {
            numel[params++] = 1 + oracle_below(&seed, 200);
        }
    }
    s = dpar_fsdp_make(c, &o, &f, &why);
    for (k = 0; k < params && s == DPAR_OK; k++) {
        for (i = 0; i < numel[k]; i++) {
            values[i] = (float)soak_value(seed, 77 + k, i);
        }
        s = soak_fine(j, "fsdp_set", dpar_fsdp_set(f, k, values), c->why.text);
    }
    for (step = 0; step < 2 && s == DPAR_OK; step++) {
        dpar_fsdp_zero(f);
        for (m = 0; m < micros && s == DPAR_OK; m++) {
            s = soak_pass(j, f, &o, seed, step, micros, m);
        }
        s = s < 0 ? s : dpar_fsdp_step(f, 0.5, 1.0);
    }
    for (u = 0, k = 0; u < o.units && s == DPAR_OK; u++) {
        s = dpar_fsdp_unshard(f, u, DPAR_ACTION_FORWARD);
        if (s == DPAR_OK) {
            soak_unit(j, f, seed, 2, micros, k, params_of[u], numel);
            s = dpar_fsdp_reshard(f, u, DPAR_ACTION_FORWARD);
        }
        k += params_of[u];
    }
    return soak_first(s, dpar_fsdp_free(f));
}

/* ---- tensor parallel: a column layer, then a row layer ---- */

enum { SOAK_TOKENS = 12, SOAK_IN = 6, SOAK_SHARE = 3, SOAK_OUT = 5 };

static double soak_x(uint64_t seed, int64_t t, int64_t k)
{
    return soak_value(seed + 1, t, k);
}

static double soak_up(uint64_t seed, int64_t h, int64_t k)
{
    return soak_value(seed + 2, h, k);
}

static double soak_down(uint64_t seed, int64_t o, int64_t h)
{
    return soak_value(seed + 3, o, h);
}

static double soak_dy(uint64_t seed, int64_t t, int64_t o)
{
    return soak_value(seed + 4, t, o);
}

static double soak_hidden(uint64_t seed, int64_t t, int64_t h)
{
    double sum = 0;
    int64_t k;
    for (k = 0; k < SOAK_IN; k++) {
        sum += soak_x(seed, t, k) * soak_up(seed, h, k);
    }
    return sum;
}

static double soak_dhidden(uint64_t seed, int64_t t, int64_t h)
{
    double sum = 0;
    int64_t o;
    for (o = 0; o < SOAK_OUT; o++) {
        sum += soak_dy(seed, t, o) * soak_down(seed, o, h);
    }
    return sum;
}

static dpar_status soak_tensor(soak_job *j, uint64_t seed)
{
    dpar_comm *c = soak_any(j, &seed);
    const int cut = (int)oracle_below(&seed, 2); /* sequence parallel */
    const int64_t n = 1 + oracle_below(&seed, SOAK_TOKENS), all = (int64_t)c->size * SOAK_SHARE;
    const int64_t mine = (int64_t)c->rank * SOAK_SHARE;
    int64_t counts[ORACLE_RANKS], first = 0, own = n, t, h, k, i;
    double *w = soak_doubles(j, c, SOAK_SHARE * SOAK_IN, 0),
           *v = soak_doubles(j, c, SOAK_OUT * SOAK_SHARE, 0);
    double *x = soak_doubles(j, c, n * SOAK_IN, 0), *y = soak_doubles(j, c, n * SOAK_SHARE, 0);
    double *z = soak_doubles(j, c, n * SOAK_OUT, 0), *dz = soak_doubles(j, c, n * SOAK_OUT, 0);
    double *dh = soak_doubles(j, c, n * SOAK_SHARE, 0), *dx = soak_doubles(j, c, n * SOAK_IN, 0);
    double *dw = soak_doubles(j, c, SOAK_SHARE * SOAK_IN, 0),
           *dv = soak_doubles(j, c, SOAK_OUT * SOAK_SHARE, 0);
    double *whole[3];
    dpar_tensor_parallel g;
    dpar_linear up, down;
    dpar_linear_arrays a, b;
    dpar_why why;
    dpar_status s;
    why.text[0] = 0;
    for (i = 0; i < 3; i++) {
        whole[i] = soak_doubles(j, c, n * (i == 1 ? SOAK_OUT : SOAK_IN), 1);
    }
    s = soak_fine(j, "tensor",
                  dpar_tensor_parallel_init(&g, c, DPAR_F64, n, cut ? counts : NULL, &why),
                  why.text);
    if (cut) {
        (void)dpar_split_range(DPAR_SPLIT_EVEN, n, c->size, c->rank, &first, &own);
    }
    memset(&up, 0, sizeof up), memset(&down, 0, sizeof down);
    memset(&a, 0, sizeof a), memset(&b, 0, sizeof b);
    up.kind = DPAR_LINEAR_COLUMN, up.in = SOAK_IN, up.out = SOAK_SHARE;
    down.kind = DPAR_LINEAR_ROW, down.in = SOAK_SHARE, down.out = SOAK_OUT;
    for (i = 0; i < SOAK_SHARE * SOAK_IN; i++) {
        w[i] = soak_up(seed, mine + i / SOAK_IN, i % SOAK_IN);
    }
    for (i = 0; i < SOAK_OUT * SOAK_SHARE; i++) {
        v[i] = soak_down(seed, i / SOAK_SHARE, mine + i % SOAK_SHARE);
    }
    for (i = 0; i < own * SOAK_IN; i++) {
        x[i] = soak_x(seed, first + i / SOAK_IN, i % SOAK_IN);
    }
    for (i = 0; i < own * SOAK_OUT; i++) {
        dz[i] = soak_dy(seed, first + i / SOAK_OUT, i % SOAK_OUT);
    }
    a.w = w, a.x = x, a.y = y, a.dy = dh, a.dx = dx, a.dw = dw;
    b.w = v, b.x = y, b.y = z, b.dy = dz, b.dx = dh, b.dw = dv;
    if (cut) {
        a.gathered = whole[0], b.gathered = whole[1], a.gathered_dx = whole[2];
    }
    s = s < 0 ? s : dpar_linear_forward(&g, &up, &a);
    s = s < 0 ? s : dpar_linear_forward(&g, &down, &b);
    s = s < 0 ? s : dpar_linear_backward(&g, &down, &b);
    s = s < 0 ? s : dpar_linear_backward(&g, &up, &a);
    for (i = 0; i < own * SOAK_OUT && s == DPAR_OK; i++) {
        double want = 0;
        for (h = 0; h < all; h++) {
            want += soak_hidden(seed, first + i / SOAK_OUT, h) * soak_down(seed, i % SOAK_OUT, h);
        }
        soak_same(j, "tensor y", i, z[i], want, 0);
    }
    for (i = 0; i < own * SOAK_IN && s == DPAR_OK; i++) {
        double want = 0;
        for (h = 0; h < all; h++) {
            want += soak_dhidden(seed, first + i / SOAK_IN, h) * soak_up(seed, h, i % SOAK_IN);
        }
        soak_same(j, "tensor dx", i, dx[i], want, 0);
    }
    for (i = 0; i < SOAK_SHARE * SOAK_IN && s == DPAR_OK; i++) {
        double want = 0;
        for (t = 0; t < n; t++) {
            want += soak_dhidden(seed, t, mine + i / SOAK_IN) * soak_x(seed, t, i % SOAK_IN);
        }
        soak_same(j, "tensor dw", i, dw[i], want, 0);
    }
    for (k = 0; k < SOAK_OUT * SOAK_SHARE && s == DPAR_OK; k++) {
        double want = 0;
        for (t = 0; t < n; t++) {
            want += soak_dy(seed, t, k / SOAK_SHARE) * soak_hidden(seed, t, mine + k % SOAK_SHARE);
        }
        soak_same(j, "tensor dv", k, dv[k], want, 0);
    }
    return s;
}

/* ---- attention over tokens that ranks share ---- */

typedef struct soak_heads {
    uint64_t seed;
    int heads, groups, width, causal;
    int64_t ends[3];
    int docs;
} soak_heads;

static double soak_qkv(const soak_heads *a, int which, int64_t t, int h, int k)
{
    return soak_value(a->seed + (uint64_t)which, t, h * 16 + k) / 8;
}

/* Computes the probabilities of query t of head h for the keys of its document, from *first on.
 * Returns how many. */
static int64_t soak_softmax(const soak_heads *a, int64_t t, int h, double *p, int64_t *first)
{
    const int d = t >= a->ends[1], g = h / (a->heads / a->groups);
    const int64_t last = a->causal ? t + 1 : a->ends[d + 1];
    double sum = 0;
    int64_t i;
    int k;
    *first = a->ends[d];
    for (i = *first; i < last; i++) {
        double score = 0;
        for (k = 0; k < a->width; k++) {
            score += soak_qkv(a, 0, t, h, k) * soak_qkv(a, 1, i, g, k);
        }
        p[i - *first] = exp(score / sqrt((double)a->width));
        sum += p[i - *first];
    }
    for (i = 0; i < last - *first; i++) {
        p[i] /= sum;
    }
    return last - *first;
}

/* Computes out, dq, dk and dv of all tokens, [tokens][heads or groups][width], on one rank, from
 * the formulas: dS = P (dP - sum P dP), dP = dO V. */
static void soak_attention_whole(const soak_heads *a, int64_t tokens, double *out, double *dq,
                                 double *dk, double *dv)
{
    const double scale = 1 / sqrt((double)a->width);
    const int ratio = a->heads / a->groups;
    double p[80], dp[80];
    int64_t t, i, n, first = 0;
    int h, k;
    for (t = 0; t < tokens; t++) {
        for (h = 0; h < a->heads; h++) {
            const int64_t at = (t * a->heads + h) * a->width;
            double mean = 0;
            n = soak_softmax(a, t, h, p, &first);
            for (i = 0; i < n; i++) {
                dp[i] = 0;
                for (k = 0; k < a->width; k++) {
                    const int64_t key = ((first + i) * a->groups + h / ratio) * a->width + k;
                    out[at + k] += p[i] * soak_qkv(a, 2, first + i, h / ratio, k);
                    dv[key] += p[i] * soak_qkv(a, 3, t, h, k);
                    dp[i] += soak_qkv(a, 3, t, h, k) * soak_qkv(a, 2, first + i, h / ratio, k);
                }
                mean += p[i] * dp[i];
            }
            for (i = 0; i < n; i++) {
                const double ds = p[i] * (dp[i] - mean) * scale;
                for (k = 0; k < a->width; k++) {
                    const int64_t key = ((first + i) * a->groups + h / ratio) * a->width + k;
                    dq[at + k] += ds * soak_qkv(a, 1, first + i, h / ratio, k);
                    dk[key] += ds * soak_qkv(a, 0, t, h, k);
                }
            }
        }
    }
}

static dpar_status soak_attention(soak_job *j, uint64_t seed)
{
    static const int32_t rules[3] = {DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_ZIGZAG};
    dpar_comm *c = soak_any(j, &seed);
    const int ulysses = oracle_below(&seed, 3) == 0;
    const int32_t rule = ulysses ? DPAR_SPLIT_EVEN : rules[oracle_below(&seed, 3)];
    soak_heads a;
    dpar_attention_desc layer;
    dpar_attention_plan *plan = NULL;
    dpar_attention_arrays x;
    dpar_why why;
    dpar_status s;
    double *ref[4], *in[4], *got[4]; /* q k v dout; out dq dk dv */
    int64_t tokens, own[80], mine = 0, t, i;
    int w, h, k;
    why.text[0] = 0;
    memset(&layer, 0, sizeof layer), memset(&x, 0, sizeof x), memset(&a, 0, sizeof a);
    a.groups = 1 + (int)oracle_below(&seed, 2);
    a.heads = a.groups * (1 + (int)oracle_below(&seed, 2));
    if (ulysses) { /* at least one key head per rank */
        a.groups = a.heads = c->size * (1 + (int)oracle_below(&seed, 2));
    }
    a.width = 1 + (int)oracle_below(&seed, 6);
    a.causal = (int)oracle_below(&seed, 2);
    a.docs = 2;
    a.ends[1] = 1 + oracle_below(&seed, 36);
    tokens = a.ends[2] = a.ends[1] + 1 + oracle_below(&seed, 36);
    a.seed = oracle_next(&seed);
    s = soak_fine(j, "tokens", dpar_packed_init(&layer.tokens, a.docs, a.ends, c->size, rule, &why),
                  why.text);
    layer.method = ulysses ? dpar_attention_ulysses : NULL;
    layer.heads = a.heads, layer.groups = a.groups, layer.width = a.width;
    layer.type = DPAR_F64, layer.causal = a.causal;
    s = s < 0 ? s : dpar_attention_make(c, &layer, &plan, &why);
    if (s < 0) {
        return s;
    }
    if (ulysses) {
        for (t = 0; t < tokens; t++) {
            if (owner_of(DPAR_SPLIT_EVEN, (int)t, (int)tokens, c->size, 1, 0) == c->rank) {
                own[mine++] = t;
            }
        }
    } else {
        for (h = 0; h < a.docs; h++) { /* the rule cuts each document */
            const int64_t n = a.ends[h + 1] - a.ends[h];
            for (t = 0; t < n; t++) {
                if (owner_of(rule, (int)t, (int)n, c->size, 1, 0) == c->rank) {
                    own[mine++] = a.ends[h] + t;
                }
            }
        }
    }
    soak_same(j, "attention's tokens", 0, (double)plan->tokens, (double)mine, 0);
    for (w = 0; w < 4; w++) {
        const int heads = w == 1 || w == 2 ? a.groups : a.heads;
        in[w] = soak_doubles(j, c, tokens * heads * a.width, (int)(a.seed >> w & 1));
        for (t = 0; t < mine; t++) {
            for (h = 0; h < heads; h++) {
                for (k = 0; k < a.width; k++) {
                    in[w][(t * heads + h) * a.width + k] = soak_qkv(&a, w, own[t], h, k);
                }
            }
        }
        got[w] = soak_doubles(j, c, tokens * a.heads * a.width, 0);
        ref[w] = soak_doubles(j, c, tokens * a.heads * a.width, 0);
    }
    x.q = in[0], x.k = in[1], x.v = in[2], x.out_gradient = in[3];
    x.out = got[0], x.q_gradient = got[1], x.k_gradient = got[2], x.v_gradient = got[3];
    x.lse = soak_doubles(j, c, tokens * a.heads, 0);
    x.saved = soak_memory(j, c, plan->saved_bytes, 1);
    s = dpar_attention_forward(plan, &x);
    s = s < 0 ? s : dpar_attention_backward(plan, &x);
    if (s == DPAR_OK) {
        soak_attention_whole(&a, tokens, ref[0], ref[1], ref[2], ref[3]);
        for (w = 0; w < 4; w++) {
            const int heads = w < 2 ? a.heads : a.groups;
            for (t = 0; t < mine; t++) {
                for (i = 0; i < heads * a.width; i++) {
                    soak_same(j, w == 0 ? "attention" : "attention, backward", i,
                              got[w][t * heads * a.width + i], ref[w][own[t] * heads * a.width + i],
                              1e-11);
                }
            }
        }
    }
    return soak_first(s, dpar_attention_free(plan));
}

/* ---- experts: expert e multiplies by e + 1 ---- */

enum { SOAK_EXPERT_TOKENS = 12 };

static dpar_status soak_experts(soak_job *j, uint64_t seed)
{
    dpar_comm *c = soak_any(j, &seed);
    const int64_t experts = 1 + oracle_below(&seed, 9);
    const int choices = experts > 1 ? 1 + (int)oracle_below(&seed, 2) : 1;
    const int64_t width = 1 + oracle_below(&seed, 9);
    const int registered = (int)oracle_below(&seed, 2);
    const int64_t n = (int64_t)(oracle_mix(seed + (uint64_t)c->rank) % (SOAK_EXPERT_TOKENS + 1));
    int32_t chosen[SOAK_EXPERT_TOKENS * 2];
    dpar_experts_desc layer;
    dpar_experts_plan *plan = NULL;
    dpar_experts_routing *routing = NULL;
    dpar_experts_choices what;
    dpar_experts_arrays a;
    dpar_why why;
    dpar_status s;
    double *x, *weight, *rows, *results, *y, *kept, *dy, *dresults, *dweight, *drows, *dx;
    int64_t i, e, k, most;
    why.text[0] = 0;
    memset(&layer, 0, sizeof layer), memset(&what, 0, sizeof what), memset(&a, 0, sizeof a);
    s = soak_fine(j, "experts",
                  dpar_split_init(&layer.experts, DPAR_SPLIT_EVEN, experts, c->size, 1, &why),
                  why.text);
    layer.choices = choices, layer.drop = DPAR_EXPERTS_DROP_NONE;
    layer.max_tokens = SOAK_EXPERT_TOKENS, layer.width = width, layer.type = DPAR_F64;
    s = s < 0 ? s : dpar_experts_make(c, &layer, &plan, &why);
    if (s < 0) {
        return s;
    }
    most = plan->max_rows + 1;
    x = soak_doubles(j, c, SOAK_EXPERT_TOKENS * width, registered);
    dy = soak_doubles(j, c, SOAK_EXPERT_TOKENS * width, registered);
    weight = soak_doubles(j, c, 2 * SOAK_EXPERT_TOKENS, registered);
    y = soak_doubles(j, c, SOAK_EXPERT_TOKENS * width, 0);
    dx = soak_doubles(j, c, SOAK_EXPERT_TOKENS * width, 0);
    dweight = soak_doubles(j, c, 2 * SOAK_EXPERT_TOKENS, 0);
    kept = soak_doubles(j, c, 2 * SOAK_EXPERT_TOKENS * width, registered);
    rows = soak_doubles(j, c, most * width, 0);
    results = soak_doubles(j, c, most * width, registered);
    dresults = soak_doubles(j, c, most * width, 0);
    drows = soak_doubles(j, c, most * width, registered);
    for (i = 0; i < n; i++) {
        const uint64_t lot = oracle_mix(seed + 1000u + (uint64_t)(c->rank * 64 + i));
        chosen[i * choices] = (int32_t)(lot % (uint64_t)experts);
        if (choices == 2) {
            chosen[i * 2 + 1] =
                (int32_t)((chosen[i * 2] + 1 + (int64_t)(lot >> 20) % (experts - 1)) % experts);
        }
        for (k = 0; k < choices; k++) {
            weight[i * choices + k] = soak_value(seed + 2, c->rank * 64 + i, k) / 4;
        }
        for (k = 0; k < width; k++) {
            x[i * width + k] = soak_value(seed + 3, c->rank * 64 + i, k);
            dy[i * width + k] = soak_value(seed + 4, c->rank * 64 + i, k);
        }
    }
    what.tokens = n, what.chosen = chosen, what.weight = weight;
    s = dpar_experts_route(plan, NULL, 0, &what, &routing, &why);
    a.x = x, a.rows = rows, a.results = results, a.weight = weight, a.y = y, a.saved = kept;
    a.dy = dy, a.dresults = dresults, a.dweight = dweight, a.drows = drows, a.dx = dx;
    s = s < 0 ? s : dpar_experts_dispatch(plan, routing, &a);
    for (e = 0; e < plan->count && s == DPAR_OK; e++) {
        for (i = routing->first[e] * width; i < (routing->first[e] + routing->count[e]) * width;
             i++) {
            results[i] = rows[i] * (double)(plan->first + e + 1);
        }
    }
    s = s < 0 ? s : dpar_experts_combine(plan, routing, &a);
    s = s < 0 ? s : dpar_experts_combine_backward(plan, routing, &a);
    for (e = 0; e < plan->count && s == DPAR_OK; e++) {
        for (i = routing->first[e] * width; i < (routing->first[e] + routing->count[e]) * width;
             i++) {
            drows[i] = dresults[i] * (double)(plan->first + e + 1);
        }
    }
    s = s < 0 ? s : dpar_experts_dispatch_backward(plan, routing, &a);
    for (i = 0; i < n && s == DPAR_OK; i++) {
        double factor = 0, product = 0;
        for (k = 0; k < width; k++) {
            product += x[i * width + k] * dy[i * width + k];
        }
        for (k = 0; k < choices; k++) {
            factor += weight[i * choices + k] * (chosen[i * choices + k] + 1);
            soak_same(j, "experts dweight", i, dweight[i * choices + k],
                      product * (chosen[i * choices + k] + 1), 0);
        }
        for (k = 0; k < width; k++) {
            soak_same(j, "experts y", i, y[i * width + k], factor * x[i * width + k], 0);
            soak_same(j, "experts dx", i, dx[i * width + k], factor * dy[i * width + k], 0);
        }
    }
    return soak_first(s, dpar_experts_free(plan));
}

/* ---- pipelines: stage s adds s + 1, forward and backward ---- */

typedef struct soak_pipe {
    soak_job *j;
    uint64_t seed;
    int64_t losses, starts; /* computed by this rank */
} soak_pipe;

static dpar_status soak_stage_forward(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    soak_pipe *p = (soak_pipe *)ctx;
    const double *in = (const double *)t->in;
    double *out = (double *)t->out;
    const int64_t stage = t->action.stage, micro = t->action.micro_batch;
    const int64_t n = t->out != NULL ? t->out_count : t->in_count;
    int64_t i;
    (void)why;
    for (i = 0; i < n; i++) {
        const double want =
            /* that of the stages before */
            soak_value(p->seed, micro, i) + (double)(stage * (stage + 1) / 2);
        if (in != NULL) {
            soak_same(p->j, "pipeline", i, in[i], want, 0);
        }
        if (out != NULL) {
            out[i] = (in != NULL ? in[i] : want) + (double)(stage + 1);
        }
    }
    p->losses += t->out == NULL;
    return DPAR_OK;
}

static dpar_status soak_stage_backward(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    soak_pipe *p = (soak_pipe *)ctx;
    const double *in = (const double *)t->in;
    double *out = (double *)t->out;
    const int64_t stage = t->action.stage, micro = t->action.micro_batch;
    const int64_t n = t->out != NULL ? t->out_count : t->in_count;
    int64_t i;
    (void)why;
    for (i = 0; i < n; i++) { /* element 0 counts the stages */
        const int64_t all = in != NULL ? (int64_t)in[0] / 1000 : stage + 1;
        const double at_the_end = soak_value(p->seed + 1, micro, i) + 500;
        const double want = (i == 0 ? (double)all * 1000 : at_the_end) +
                            (i == 0 ? 0.0 : (double)((all - 1 - stage) * (all + stage + 2) / 2));
        if (in != NULL) {
            soak_same(p->j, "pipeline, back", i, in[i], want, 0);
        }
        if (out != NULL) {
            out[i] = (in != NULL ? in[i] : want) + (i == 0 ? 0.0 : (double)(stage + 1));
        }
    }
    p->starts += t->out == NULL;
    return DPAR_OK;
}

static dpar_status soak_stage_weight(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    (void)ctx, (void)t, (void)why;
    return DPAR_OK;
}

static dpar_status soak_pipeline(soak_job *j, uint64_t seed)
{
    static const char *const names[] = {"gpipe",       "1f1b",   "zb-h1",      "zbv",
                                        "interleaved", "v-half", "eager-1f1b", "breadth-first",
                                        "zb-2p",       "v-min",  "1f1b-v",     "interleaved-zb"};
    dpar_comm *c = oracle_below(&seed, 2) ? j->world : j->twin;
    const char *name = names[oracle_below(&seed, 12)];
    const int micros = c->size * (1 + (int)oracle_below(&seed, 3));
    dpar_pipeline_desc o;
    dpar_pipeline *p = NULL;
    soak_pipe pipe;
    dpar_why why;
    dpar_status s;
    int64_t sums[2] = {0, 0};
    int steps;
    j->failed = c;
    if (c->size == 1) {
        return DPAR_OK;
    }
    memset(&o, 0, sizeof o);
    why.text[0] = 0;
    pipe.j = j, pipe.seed = oracle_next(&seed);
    pipe.losses = pipe.starts = 0;
    o.type = DPAR_F64, o.count = 2 + oracle_below(&seed, 300);
    o.forward = soak_stage_forward;
    o.backward = o.input = soak_stage_backward;
    o.weight = soak_stage_weight;
    o.ctx = &pipe;
    o.order = name;
    o.micro_batches = micros;
    s = dpar_pipeline_make(c, &o, &p, &why);
    for (steps = 0; steps < 2 && s == DPAR_OK; steps++) {
        s = dpar_pipeline_run(p, 1, &why);
    }
    if (s == DPAR_OK) {
        const int64_t mine[2] = {pipe.losses, pipe.starts};
        s = dpar_all_reduce(c, mine, sums, 2, DPAR_I64, DPAR_SUM, NULL);
    }
    if (s == DPAR_OK) {
        soak_same(j, "pipeline's losses", 0, (double)sums[0], 2.0 * micros, 0);
        soak_same(j, "pipeline's first stages", 0, (double)sums[1], 2.0 * micros, 0);
    }
    return soak_first(s, dpar_pipeline_free(p));
}

/* ---- one random operation ---- */

static dpar_status soak_operation(soak_job *j, uint64_t seed)
{
    static dpar_status (*const each[SOAK_KINDS])(soak_job *, uint64_t) = {
        soak_collective, soak_posted,    soak_messages, soak_split,   soak_move,
        soak_halo,       soak_points,    soak_over,     soak_ddp,     soak_fsdp,
        soak_tensor,     soak_attention, soak_experts,  soak_pipeline};
    /* The frequency of each kind, of 40. */
    static const int weight[SOAK_KINDS] = {8, 3, 4, 2, 4, 4, 3, 2, 2, 2, 2, 1, 2, 1};
    int64_t draw = oracle_below(&seed, 40);
    dpar_status s;
    int k = 0;
    while (draw >= weight[k]) {
        draw -= weight[k++];
    }
    j->kind = k;
    s = each[k](j, oracle_next(&seed));
    soak_clear(j, s);
    j->done[k] += s == DPAR_OK ? k == SOAK_POSTED ? SOAK_SLOTS : 1 : 0;
    return s;
}

/* Makes all tables of the oracle first, so that memory does not grow with the choice of
 * operations. */
static void soak_tables(oracle *o, int most)
{
    int n, t, k;
    for (n = 1; n <= most; n++) {
        for (t = 0; t < DPAR_TYPE_COUNT; t++) {
            for (k = 0; dpari_type_can_reduce(t) && dpar_type_bytes(t) > 0 && k < n; k++) {
                (void)oracle_values(o, n, t, k);
            }
            for (k = DPAR_SUM; dpari_type_can_reduce(t) && k < DPAR_OP_COUNT; k++) {
                (void)oracle_results(o, n, t, k);
            }
        }
    }
}

/* Makes what a job needs besides the world. Collective. */
static dpar_status soak_open(soak_job *j, dpar_comm *world)
{
    dpar_status s = DPAR_OK;
    int i;
    j->o.world = j->world = j->failed = world;
    j->twin = j->half = NULL;
    memset(j->slot, 0, sizeof j->slot);
    for (i = 0; i < SOAK_SLOTS && s == DPAR_OK; i++) {
        s = oracle_slot_make(&j->o, &j->slot[i], (int64_t)SOAK_ROOM * world->size);
    }
    s = s < 0 ? s : dpar_comm_split(world, 0, 0, &j->twin);
    return s < 0 ? s : dpar_comm_split(world, world->rank % 2, -world->rank, &j->half);
}

/* Frees everything except the world. */
static dpar_status soak_close(soak_job *j, dpar_status s)
{
    int i;
    s = soak_first(s, dpar_comm_free(j->half));
    s = soak_first(s, dpar_comm_free(j->twin));
    for (i = 0; i < SOAK_SLOTS && !(s < 0 && j->keep); i++) {
        if (j->slot[i].image != NULL) {
            oracle_slot_free(&j->o, &j->slot[i]);
        }
    }
    return s;
}

#endif
