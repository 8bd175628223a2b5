/* SPDX-License-Identifier: MIT-0 */
/* update: tests steps with a norm, a clip, loss scaling and gradients that are not finite, and
 * optimizers of the caller's own, on real ranks. All results are compared with a training on one
 * rank that is written out here in f64.
 *
 *   - Random models, types and strategies (ZeRO-1 on a ddp; ZeRO-1, 2 and 3 of fsdp), whose scaled
 *     gradients overflow in random steps on one rank. PyTorch's GradScaler, clip_grad_norm_ and
 *     AdamW (or SGD) say what must happen. A skipped step must change no bit.
 *   - The norm over ranks that hold other parameters, and copies of some of them.
 *   - Lion (Chen et al. 2023) as the caller's own optimizer.
 *   - Steps that must be rejected on all ranks, also by ranks of other communicators.
 *
 *   update [processes|threads] [ranks]   without arguments: both, 1 to 4 ranks
 *   mpirun -np 4 update                  built with -DUSE_MPI */
#include "dpar_train.h"
#include "optimizers.h"
#include "rank_program.h"

#include <float.h>

enum { UNITS = 3, MOST = 120, STEPS = 9, TRIALS = 60 };
/* The ways to train: ZeRO-1 on the flat array of a ddp, and the three stages of fsdp. */
enum { FLAT, SHARDS_1, SHARDS_2, SHARDS_3, WAYS };

/* A model on this rank, and the same model on one rank in f64. */
typedef struct job {
    dpar_comm *c;
    int32_t way, type, gradient_type, micros;
    int64_t count[UNITS], first[UNITS + 1];
    dpar_optimizer optimizer;
    dpar_ddp *ddp;
    dpar_zero1 *zero1;
    dpar_fsdp *fsdp;
    void *grads, *weights;            /* of FLAT */
    double w[MOST], m[MOST], v[MOST]; /* the training on one rank */
    double g[MOST], norm;             /* its gradients and their norm */
    int64_t t;                        /* its steps */
} job;

/* Returns the gradient of element e in micro-batch b on rank r: a small whole number. */
static double number(int step, int r, int b, int64_t e)
{
    return (double)(scrambled((uint32_t)((step * 64 + r) * 8 + b), e) % 15u) - 7.0;
}

/* Stores a gradient, also one that is not finite. */
static void put(void *to, int64_t e, int32_t type, double x)
{
    if (type == DPAR_F16 && !(fabs(x) < INFINITY)) {
        ((uint16_t *)to)[e] = x != x ? 0x7e00u : 0x7c00u;
    } else {
        float_put(to, e, type, x);
    }
}

static void open_job(job *j, uint64_t *seed)
{
    dpar_why why;
    int32_t u;
    int64_t e;
    for (u = 0; u < UNITS; u++) {
        j->count[u] = 1 + lot_below(seed, MOST / UNITS);
        j->first[u + 1] = j->first[u] + j->count[u];
    }
    if (j->way == FLAT) {
        dpar_ddp_desc desc;
        dpar_zero1_desc zero;
        const int64_t n = j->first[UNITS];
        memset(&desc, 0, sizeof desc);
        memset(&zero, 0, sizeof zero);
        CHECK_INT(dpar_comm_alloc(j->c, n * 8, &j->grads), DPAR_OK);
        CHECK_INT(dpar_comm_alloc(j->c, n * 8, &j->weights), DPAR_OK);
        desc.params = UNITS;
        desc.count = j->count;
        desc.type = j->type;
        desc.gradients = j->grads;
        zero.weights = j->weights;
        zero.optimizer = &j->optimizer;
        CHECK_INT(dpar_ddp_make(j->c, &desc, &j->ddp, &why), DPAR_OK);
        CHECK_INT(dpar_zero1_make(j->ddp, &zero, &j->zero1, &why), DPAR_OK);
    } else {
        dpar_fsdp_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.units = UNITS;
        desc.zero = j->way;
        desc.count = j->count;
        desc.type = j->type;
        desc.gradient_type = j->gradient_type;
        if (j->gradient_type != j->type) {
            desc.compute_type = j->gradient_type;
        }
        desc.optimizer = j->optimizer;
        desc.prefetch = 1;
        CHECK_INT(dpar_fsdp_make(j->c, &desc, &j->fsdp, &why), DPAR_OK);
    }
    for (u = 0; u < UNITS; u++) {
        double start[MOST];
        for (e = 0; e < j->count[u]; e++) {
            const int64_t at = j->first[u] + e;
            j->w[at] = (double)(lot_below(seed, 2001) - 1000) / 1024.0;
            float_put(start, e, j->type, j->w[at]);
            if (j->way == FLAT) {
                float_put(j->weights, at, j->type, j->w[at]);
            }
        }
        if (j->way != FLAT) {
            CHECK_INT(dpar_fsdp_set(j->fsdp, u, start), DPAR_OK);
        }
    }
}

static void close_job(job *j)
{
    CHECK_INT(dpar_zero1_free(j->zero1), DPAR_OK);
    CHECK_INT(dpar_ddp_free(j->ddp), DPAR_OK);
    CHECK_INT(dpar_fsdp_free(j->fsdp), DPAR_OK);
    dpar_comm_release(j->c, j->grads);
    dpar_comm_release(j->c, j->weights);
}

/* Runs the passes of a step: each gradient is scale times its number. If bad is not 0, rank `rank`
 * has it as gradient of element `where` in the last micro-batch. */
static void backward(job *j, int step, double scale, double bad, int rank, int64_t where)
{
    int32_t u, b;
    int64_t e;
    if (j->way == FLAT) {
        dpar_ddp_zero(j->ddp);
        for (e = 0; e < j->first[UNITS]; e++) {
            double sum = 0.0;
            for (b = 0; b < j->micros; b++) {
                sum += scale * number(step, j->c->rank, b, e);
            }
            float_put(j->grads, e, j->type, sum);
        }
        if (bad != 0.0 && rank == j->c->rank) {
            float_put(j->grads, where, j->type, bad);
        }
        CHECK_INT(dpar_ddp_ready(j->ddp, step % UNITS), DPAR_OK);
        return;
    }
    dpar_fsdp_zero(j->fsdp);
    for (b = 0; b < j->micros; b++) {
        CHECK_INT(dpar_fsdp_begin(j->fsdp, b == j->micros - 1), DPAR_OK);
        for (u = UNITS - 1; u >= 0; u--) {
            void *g;
            CHECK_INT(dpar_fsdp_unshard(j->fsdp, u, DPAR_ACTION_BACKWARD), DPAR_OK);
            g = dpar_fsdp_gradient(j->fsdp, u, NULL);
            for (e = 0; e < j->count[u]; e++) {
                const int64_t at = j->first[u] + e;
                double x = scale * number(step, j->c->rank, b, at);
                if (bad != 0.0 && b == j->micros - 1 && rank == j->c->rank && where == at) {
                    x = bad;
                }
                put(g, e, j->gradient_type, x + float_get(g, e, j->gradient_type));
            }
            CHECK_INT(dpar_fsdp_reshard(j->fsdp, u, DPAR_ACTION_BACKWARD), DPAR_OK);
            CHECK_INT(dpar_fsdp_ready(j->fsdp, u), DPAR_OK);
        }
        CHECK_INT(dpar_fsdp_end(j->fsdp), DPAR_OK);
    }
}

/* Computes the gradients of a step on one rank, and their norm. */
static void oracle_gradients(job *j, int step)
{
    int64_t e;
    int32_t r, b;
    double squares = 0.0;
    for (e = 0; e < j->first[UNITS]; e++) {
        double sum = 0.0;
        for (r = 0; r < j->c->size; r++) {
            for (b = 0; b < j->micros; b++) {
                sum += number(step, r, b, e);
            }
        }
        j->g[e] = sum / j->c->size;
        squares += j->g[e] * j->g[e];
    }
    j->norm = sqrt(squares);
}

/* Clips the gradients as clip_grad_norm_ does, and does a step of AdamW or SGD as torch does. */
static void oracle_step(job *j, double rate, double clip)
{
    const dpar_optimizer *o = &j->optimizer;
    const double factor = clip > 0.0 && clip < j->norm + 1e-6 ? clip / (j->norm + 1e-6) : 1.0;
    int64_t e;
    j->t++;
    for (e = 0; e < j->first[UNITS]; e++) {
        double g = j->g[e] * factor;
        if (o->kind == DPAR_OPTIMIZER_ADAMW) {
            j->w[e] *= 1.0 - rate * o->decay;
            j->m[e] = o->beta1 * j->m[e] + (1.0 - o->beta1) * g;
            j->v[e] = o->beta2 * j->v[e] + (1.0 - o->beta2) * g * g;
            j->w[e] -= rate * (j->m[e] / (1.0 - pow(o->beta1, (double)j->t))) /
                       (sqrt(j->v[e] / (1.0 - pow(o->beta2, (double)j->t))) + o->epsilon);
        } else {
            g += o->decay * j->w[e];
            j->m[e] = o->momentum * j->m[e] + g;
            j->w[e] -= rate * j->m[e];
        }
    }
}

/* Copies the weights that forward uses, in f64, to seen[elements]. */
static void look(job *j, double *seen)
{
    int32_t u;
    int64_t e;
    for (e = 0; e < j->first[UNITS] && j->way == FLAT; e++) {
        seen[e] = float_get(j->weights, e, j->type);
    }
    for (u = 0; u < UNITS && j->way != FLAT; u++) {
        CHECK_INT(dpar_fsdp_unshard(j->fsdp, u, DPAR_ACTION_FORWARD), DPAR_OK);
        for (e = 0; e < j->count[u]; e++) {
            seen[j->first[u] + e] = float_get(dpar_fsdp_weight(j->fsdp, u), e, j->gradient_type);
        }
        CHECK_INT(dpar_fsdp_reshard(j->fsdp, u, DPAR_ACTION_FORWARD), DPAR_OK);
    }
}

/* Returns a hash of this rank's masters and moments. */
static uint32_t hash_state(job *j)
{
    uint32_t h = 1;
    int32_t k, u, type;
    int64_t n, i;
    for (k = 0; k < 3; k++) {
        for (u = 0; u < (j->way == FLAT ? 1 : UNITS); u++) {
            const unsigned char *at =
                (const unsigned char *)(j->way == FLAT
                                            ? dpar_zero1_state(j->zero1, k, NULL, &n, &type)
                                            : dpar_fsdp_state(j->fsdp, k, u, &n, &type));
            for (i = 0; at != NULL && i < n * dpar_type_bytes(type); i++) {
                h = (h ^ at[i]) * 16777619u;
            }
        }
    }
    return h;
}

/* Compares the weights that forward uses with those of one rank. */
static void compare(job *j)
{
    static const double unit[] = {4e-15, 4e-7, 1e-3, 8e-3};
    const int32_t type = j->way == FLAT ? j->type : j->gradient_type;
    const double most = type == DPAR_F64   ? unit[0]
                        : type == DPAR_F32 ? unit[1]
                        : type == DPAR_F16 ? unit[2]
                                           : unit[3];
    double seen[MOST];
    int64_t e, wrong = 0;
    look(j, seen);
    for (e = 0; e < j->first[UNITS]; e++) {
        wrong += !(fabs(seen[e] - j->w[e]) <= most * (1.0 + fabs(j->w[e])) * (double)(1 + j->t));
    }
    CHECK_INT(wrong, 0);
}

static dpar_status step_of(job *j, dpar_update *update)
{
    if (j->way != FLAT) {
        return dpar_fsdp_update(j->fsdp, update);
    }
    if (update->factor > 0.0) {
        return dpar_zero1_update(j->zero1, update);
    }
    return dpar_zero1_step(j->zero1, update->rate, update->clip);
}

static void draw(job *j, dpar_comm *c, uint64_t *seed)
{
    static const int32_t types[5][2] = {{DPAR_F64, DPAR_F64},
                                        {DPAR_F32, DPAR_F32},
                                        {DPAR_F64, DPAR_F32},
                                        {DPAR_F32, DPAR_F16},
                                        {DPAR_F32, DPAR_BF16}};
    const int32_t *type;
    memset(j, 0, sizeof *j);
    j->c = c;
    j->way = (int32_t)lot_below(seed, WAYS);
    type = types[lot_below(seed, j->way == FLAT ? 2 : 5)];
    j->type = type[0];
    j->gradient_type = type[1];
    j->micros = 1 + (int32_t)lot_below(seed, 3);
    j->optimizer = lot_below(seed, 2) ? adamw() : sgd(0.9);
    j->optimizer.decay = 0.125;
    j->optimizer.epsilon = 0.125; /* averages in f32 that cancel leave a remainder */
    j->optimizer.seed = 7;
    j->optimizer.stochastic = (int32_t)lot_below(seed, 2);
}

/* Trains with loss scaling. The scale is halved after a step that was skipped. */
static void scaled_case(dpar_comm *c, uint64_t seed)
{
    static __thread job j;
    double scale = 256.0, seen[MOST], after[MOST];
    int step, skipped = 0;
    draw(&j, c, &seed);
    open_job(&j, &seed);
    for (step = 0; step < STEPS && failures() == 0; step++) {
        const int plain = j.way == FLAT && step % 3 == 2; /* dpar_zero1_step */
        const double clip = lot_below(&seed, 2) ? 0.0 : 4.0, rate = 0.01;
        const double use = plain ? 1.0 : scale;
        const double bad = lot_below(&seed, 3) ? 0.0 : lot_below(&seed, 2) ? INFINITY : NAN;
        const int rank = (int)lot_below(&seed, c->size);
        const int64_t where = lot_below(&seed, j.first[UNITS]);
        const uint32_t before = hash_state(&j);
        dpar_update update;
        dpar_status st;
        memset(&update, 0, sizeof update);
        update.rate = rate;
        update.clip = clip;
        update.factor = plain ? 0.0 : 1.0 / use;
        update.norm = -1.0;
        look(&j, seen);
        backward(&j, step, use, bad, rank, where);
        st = step_of(&j, &update);
        if (st == DPAR_SKIPPED) {
            CHECK(bad != 0.0);
            CHECK(j.way == FLAT || !(update.norm < INFINITY));
            look(&j, after);
            CHECK(hash_state(&j) == before);
            CHECK(memcmp(seen, after, (size_t)j.first[UNITS] * sizeof *seen) == 0);
            scale /= 2.0;
            skipped++;
            continue;
        }
        CHECK_INT(st, bad == 0.0 ? DPAR_OK : DPAR_SKIPPED);
        oracle_gradients(&j, step);
        if (!plain) {
            CHECK_NEAR(update.norm, j.norm, j.gradient_type == DPAR_F64 ? 1e-15 : 1e-2);
        }
        oracle_step(&j, rate, clip);
        compare(&j);
    }
    if (failures() > 0) {
        printf("way %d, types %d and %d, %d micro-batches, %d ranks, %d skipped\n", j.way, j.type,
               j.gradient_type, j.micros, c->size, skipped);
    }
    close_job(&j);
}

/* ---- the norm over several forms of sharding ------------------------------------------------- */

/* Ranks form a mesh of copies x model. Each model rank has its own parameters 0 and 2, and a copy
 * of parameter 1 that is the same on all model ranks. */
static void model_norm(dpar_comm *c, uint64_t seed)
{
    static __thread job j;
    const int parts = c->size % 2 == 0 ? 2 : 1, part = c->rank % parts;
    dpar_comm *copies = NULL, *model = NULL;
    uint8_t duplicate[UNITS] = {0, 0, 0};
    dpar_update update;
    double squares = 0.0;
    int64_t e;
    int p;
    CHECK_INT(dpar_comm_split(c, part, c->rank, &copies), DPAR_OK);
    CHECK_INT(dpar_comm_split(c, c->rank / parts, c->rank, &model), DPAR_OK);
    draw(&j, copies, &seed);
    j.type = j.gradient_type = DPAR_F64;
    j.optimizer.stochastic = 0;
    open_job(&j, &seed); /* the same sizes on all ranks */
    duplicate[1] = part > 0;
    memset(&update, 0, sizeof update);
    update.rate = 0.01;
    update.clip = 3.0;
    update.factor = 0.5;
    update.model = model;
    update.duplicate = duplicate;
    for (p = 0; p < parts; p++) { /* step number: the parameters of a part; its copy is of part 0 */
        oracle_gradients(&j, p);
        for (e = 0; e < j.first[UNITS]; e++) {
            squares += p == 0 || e < j.first[1] || e >= j.first[2] ? j.g[e] * j.g[e] : 0.0;
        }
    }
    oracle_gradients(&j, part);
    backward(&j, part, 1.0, 0.0, 0, 0);
    CHECK_INT(step_of(&j, &update), DPAR_OK);
    CHECK(part != 0 || fabs(update.norm - 0.5 * sqrt(squares)) <= 1e-14 * sqrt(squares));
    CHECK_NEAR(update.scale, 0.5 * (3.0 / (update.norm + 1e-6)), 1e-15);
    for (e = 0; e < j.first[UNITS]; e++) {
        j.g[e] *= update.scale;
    }
    oracle_step(&j, 0.01, 0.0);
    compare(&j);
    update.model = NULL;
    update.duplicate = NULL;
    if (j.way == FLAT) { /* dpar_ddp_norm: the averages of all ranks */
        backward(&j, part, 1.0, 0.0, 0, 0);
        CHECK_INT(dpar_ddp_norm(j.ddp, &update), DPAR_E_ARG);
        CHECK(strstr(copies->why.text,
                     "dpar_ddp_norm: gradients are not averages yet (dpar_ddp_end)") != NULL);
        CHECK_INT(dpar_ddp_end(j.ddp), DPAR_OK);
        CHECK_INT(dpar_ddp_norm(j.ddp, &update), DPAR_OK);
        oracle_gradients(&j, part);
        CHECK_NEAR(update.norm, 0.5 * j.norm, 1e-15);
    }
    close_job(&j);
    CHECK_INT(dpar_comm_free(copies), DPAR_OK);
    CHECK_INT(dpar_comm_free(model), DPAR_OK);
}

/* dpar_ddp_norm of several arrays, in the caller's memory or in dpar's, with parameters left out.
 */
static void ddp_norm(dpar_comm *c, uint64_t seed, int arrays)
{
    enum { PARAMS = 5 };
    int64_t count[PARAMS], e;
    uint8_t duplicate[PARAMS];
    void *array[PARAMS];
    dpar_ddp_desc desc;
    dpar_ddp *ddp = NULL;
    dpar_update update;
    dpar_why why;
    double squares = 0.0;
    int i, r;
    memset(&desc, 0, sizeof desc);
    memset(&update, 0, sizeof update);
    for (i = 0; i < PARAMS; i++) {
        count[i] = lot_below(&seed, 50);
        duplicate[i] = lot_below(&seed, 3) == 0;
        CHECK_INT(dpar_comm_alloc(c, 8 + count[i] * 8, &array[i]), DPAR_OK);
    }
    desc.params = PARAMS;
    desc.count = count;
    desc.type = DPAR_F64;
    desc.arrays = arrays ? array : NULL;
    CHECK_INT(dpar_ddp_make(c, &desc, &ddp, &why), DPAR_OK);
    for (i = 0; i < PARAMS; i++) {
        double *g = (double *)dpar_ddp_gradient(ddp, i, NULL);
        for (e = 0; e < count[i]; e++) {
            double sum = 0.0;
            for (r = 0; r < c->size; r++) {
                sum += number(i, r, 0, e);
            }
            g[e] = number(i, c->rank, 0, e);
            squares += duplicate[i] ? 0.0 : sum / c->size * (sum / c->size);
        }
    }
    CHECK_INT(dpar_ddp_end(ddp), DPAR_OK);
    update.duplicate = duplicate;
    CHECK_INT(dpar_ddp_norm(ddp, &update), DPAR_OK);
    CHECK_NEAR(update.norm, sqrt(squares), 1e-15);
    CHECK_NEAR(update.scale, 1.0, 0.0);
    for (i = 0; i < PARAMS; i++) {
        duplicate[i] = 0;
    }
    for (i = 0; i < PARAMS && count[i] == 0; i++) {
    }
    if (i < PARAMS) {
        ((double *)dpar_ddp_gradient(ddp, i, NULL))[count[i] - 1] = NAN;
        CHECK_INT(dpar_ddp_norm(ddp, &update), DPAR_SKIPPED);
        update.duplicate = NULL;
        CHECK_INT(dpar_ddp_norm(ddp, &update), DPAR_SKIPPED);
        CHECK(update.norm != update.norm);
    }
    CHECK_INT(dpar_ddp_norm(NULL, &update), DPAR_E_ARG);
    CHECK_INT(dpar_ddp_norm(ddp, NULL), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_ddp_norm: update is NULL");
    CHECK_INT(dpar_ddp_free(ddp), DPAR_OK);
    for (i = 0; i < PARAMS; i++) {
        dpar_comm_release(c, array[i]);
    }
}

/* ---- an optimizer of the caller's own -------------------------------------------------------- */

/* Lion: the sign of a mean of momentum and gradient, and decay as in AdamW. */
static void lion(double *w, double g, double *m, double rate, double decay)
{
    const double mean = 0.9 * *m + 0.1 * g;
    *w -= rate * decay * *w;
    *w -= rate * ((mean > 0.0) - (mean < 0.0));
    *m = 0.99 * *m + 0.01 * g;
}

static void lion_case(dpar_comm *c, int32_t way, uint64_t seed)
{
    static __thread job j;
    double own[UNITS][MOST]; /* momentum of this rank's shards */
    int step;
    draw(&j, c, &seed);
    j.way = way;
    j.type = j.gradient_type = DPAR_F64;
    j.optimizer = sgd(0.0); /* keeps no state */
    open_job(&j, &seed);
    memset(own, 0, sizeof own);
    for (step = 0; step < 20 && failures() == 0; step++) {
        const double bad = step % 5 == 3 ? INFINITY : 0.0;
        dpar_update update;
        dpar_status st;
        int64_t first = 0, n = 0, i;
        int32_t u;
        memset(&update, 0, sizeof update);
        update.clip = 5.0;
        backward(&j, step, 1.0, bad, c->size - 1, 0);
        st = way == FLAT ? dpar_zero1_norm(j.zero1, &update) : dpar_fsdp_norm(j.fsdp, &update);
        CHECK_INT(st, bad > 0.0 ? DPAR_SKIPPED : DPAR_OK);
        if (st != DPAR_OK) {
            compare(&j);
            continue;
        }
        if (way == FLAT) {
            double *w = (double *)j.weights, *g = (double *)j.grads;
            CHECK(dpar_zero1_state(j.zero1, 0, &first, &n, NULL) == NULL);
            for (i = 0; i < n; i++) {
                lion(&w[first + i], update.scale * g[first + i], &own[0][i], 0.01, 0.1);
            }
            CHECK_INT(dpar_zero1_gather(j.zero1), DPAR_OK);
        }
        for (u = 0; u < UNITS && way != FLAT; u++) {
            double *w = (double *)dpar_fsdp_state(j.fsdp, DPAR_FSDP_MASTER, u, &n, NULL);
            const double *g =
                (const double *)dpar_fsdp_state(j.fsdp, DPAR_FSDP_GRADIENT, u, NULL, NULL);
            for (i = 0; i < n; i++) {
                lion(&w[i], update.scale * g[i], &own[u][i], 0.01, 0.1);
            }
        }
        if (way != FLAT) {
            CHECK_INT(dpar_fsdp_changed(j.fsdp), DPAR_OK);
        }
        oracle_gradients(&j, step);
        CHECK_NEAR(update.norm, j.norm, 1e-15);
        for (i = 0; i < j.first[UNITS]; i++) {
            lion(&j.w[i], j.g[i] * (j.norm + 1e-6 > 5.0 ? 5.0 / (j.norm + 1e-6) : 1.0), &j.m[i],
                 0.01, 0.1);
        }
        compare(&j);
    }
    if (way == FLAT) {
        CHECK_INT(dpar_ddp_begin(j.ddp, 1), DPAR_OK);
        CHECK_INT(dpar_zero1_gather(j.zero1), DPAR_E_ARG);
        CHECK_TEXT(c->why.text, "dpar_zero1_gather: a pass is in progress (dpar_zero1_norm)");
        CHECK_INT(dpar_ddp_end(j.ddp), DPAR_OK);
    }
    close_job(&j);
}

#ifndef USE_MPI
/* Passes another clip on one rank, or a number out of its domain: all ranks get an error, and no
 * weight has changed. */
static void disagree(dpar_comm *world, int32_t way, int domain)
{
    static __thread job j;
    uint64_t seed = 11;
    dpar_comm *c = NULL;
    dpar_update update;
    dpar_status st;
    uint32_t before;
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    draw(&j, c, &seed);
    j.way = way;
    j.type = j.gradient_type = DPAR_F32;
    open_job(&j, &seed);
    before = hash_state(&j);
    backward(&j, 0, 1.0, 0.0, 0, 0);
    CHECK_INT(dpar_barrier(c, NULL), DPAR_OK);
    memset(&update, 0, sizeof update);
    update.rate = 0.1;
    update.factor = 1.0;
    if (c->rank == c->size - 1) {
        update.clip = domain ? NAN : 2.0;
    }
    st = step_of(&j, &update);
    CHECK(st == (c->size > 1 ? DPAR_E_MISMATCH : domain ? DPAR_E_ARG : DPAR_OK));
    if (c->size > 1) {
        CHECK(hash_state(&j) == before);
        /* the rank that differs always has this message; others may still wait in their pass */
        CHECK(c->rank < c->size - 1 || domain ||
              strstr(c->why.text, "update: this rank has rate 0.1, clip 2 and factor 1. ") != NULL);
        CHECK(!domain || c->rank < c->size - 1 ||
              strstr(c->why.text, "clip nan and factor 1, but") != NULL);
        CHECK(c->why.text[0] != 0);
    } else if (domain) { /* all ranks rejected it: nothing was done */
        update.clip = 0.0;
        CHECK_INT(step_of(&j, &update), DPAR_OK);
    }
    close_job(&j);
    (void)dpar_comm_free(c);
}
#endif

/* Runs a pass of an fsdp with one unit of 2 elements, whose gradients are 1 and 2. */
static void small_pass(dpar_fsdp *fsdp, int32_t last)
{
    double *g;
    CHECK_INT(dpar_fsdp_begin(fsdp, last), DPAR_OK);
    CHECK_INT(dpar_fsdp_unshard(fsdp, 0, DPAR_ACTION_BACKWARD), DPAR_OK);
    g = (double *)dpar_fsdp_gradient(fsdp, 0, NULL);
    g[0] += 1.0;
    g[1] += 2.0;
    CHECK_INT(dpar_fsdp_reshard(fsdp, 0, DPAR_ACTION_BACKWARD), DPAR_OK);
    CHECK_INT(dpar_fsdp_ready(fsdp, 0), DPAR_OK);
    CHECK_INT(dpar_fsdp_end(fsdp), DPAR_OK);
}

/* Makes such an fsdp, whose weights are 0. */
static dpar_fsdp *small_fsdp(dpar_comm *c, dpar_comm *replicas)
{
    const int64_t count = 2;
    dpar_fsdp_desc desc;
    dpar_fsdp *fsdp = NULL;
    memset(&desc, 0, sizeof desc);
    desc.units = 1;
    desc.zero = 1;
    desc.count = &count;
    desc.type = DPAR_F64;
    desc.replicas = replicas;
    desc.optimizer = sgd(0.0);
    CHECK_INT(dpar_fsdp_make(c, &desc, &fsdp, NULL), DPAR_OK);
    return fsdp;
}

/* Returns the sum of this rank's masters. */
static double small_sum(const dpar_fsdp *fsdp)
{
    double sum = 0.0;
    int64_t n = 0, i;
    const double *w = (const double *)dpar_fsdp_state(fsdp, DPAR_FSDP_MASTER, 0, &n, NULL);
    for (i = 0; i < n; i++) {
        sum += w[i];
    }
    return sum;
}

/* Gradients that are not reduced, numbers that are not finite, and a norm beyond f64 change
 * nothing. */
static void not_reduced(dpar_comm *c)
{
    dpar_fsdp *fsdp = small_fsdp(c, NULL);
    dpar_update update;
    memset(&update, 0, sizeof update);
    update.rate = 1.0;
    small_pass(fsdp, 0);
    CHECK_INT(dpar_fsdp_update(fsdp, &update), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_fsdp_update: the latest pass was begun with last = 0");
    CHECK_INT(dpar_fsdp_step(fsdp, 1.0, 1.0), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_fsdp_step: the latest pass was begun with last = 0");
    dpar_fsdp_zero(fsdp);
    CHECK_INT(dpar_fsdp_update(fsdp, &update), DPAR_OK);
    CHECK_NEAR(update.norm, 0.0, 0.0);
    small_pass(fsdp, 1);
    CHECK_INT(dpar_fsdp_step(fsdp, NAN, 1.0), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_fsdp_step: rate is nan and factor 1, but both must be finite");
    CHECK_INT(dpar_fsdp_step(fsdp, 1.0, INFINITY), DPAR_E_ARG);
    update.factor = DBL_MAX;
    CHECK_INT(dpar_fsdp_update(fsdp, &update), DPAR_SKIPPED);
    CHECK(small_sum(fsdp) == 0.0);
    update.factor = 1.0;
    CHECK_INT(dpar_fsdp_update(fsdp, &update), DPAR_OK);
    CHECK_NEAR(update.norm, sqrt(5.0), 1e-15);
    CHECK_INT(dpar_fsdp_free(fsdp), DPAR_OK);
}

#ifndef USE_MPI
/* Half of the ranks pass another rate, or one out of its domain. The other half has replicas of
 * their shards, or other parameters of the same model. All ranks fail at once, and no weight has
 * changed. */
static void halves_disagree(dpar_comm *world, int replicas, int domain)
{
    const int half = world->size / 2;
    dpar_comm *c = NULL, *other = NULL;
    dpar_fsdp *fsdp;
    dpar_update update;
    CHECK_INT(dpar_comm_split(world, world->rank / half, world->rank, &c), DPAR_OK);
    CHECK_INT(dpar_comm_split(world, world->rank % half, world->rank, &other), DPAR_OK);
    fsdp = small_fsdp(c, replicas ? other : NULL);
    small_pass(fsdp, 1);
    memset(&update, 0, sizeof update);
    update.rate = world->rank >= half ? 0.5 : domain ? NAN : 0.25;
    update.model = replicas ? NULL : other;
    CHECK_INT(dpar_fsdp_update(fsdp, &update), DPAR_E_MISMATCH);
    CHECK(strstr(c->why.text, world->rank >= half ? "rate 0.5"
                              : domain            ? "rate is nan"
                                                  : "rate 0.25") != NULL);
    CHECK(small_sum(fsdp) == 0.0);
    CHECK_INT(dpar_fsdp_begin(fsdp, 1), DPAR_E_MISMATCH);
    CHECK_INT(dpar_fsdp_free(fsdp), DPAR_OK);
    (void)dpar_comm_free(c);
    (void)dpar_comm_free(other);
}
#endif

static int everything(dpar_comm *c, void *arg)
{
    int i;
    (void)arg;
    for (i = 0; i < TRIALS && failures() == 0; i++) {
        scaled_case(c, (uint64_t)i);
    }
    for (i = 0; i < 12 && failures() == 0; i++) {
        model_norm(c, 100 + (uint64_t)i);
        ddp_norm(c, 200 + (uint64_t)i, i % 2);
    }
    for (i = 0; i < WAYS && failures() == 0; i++) {
        lion_case(c, i, 300 + (uint64_t)i);
#ifndef USE_MPI
        disagree(c, i, 0);
        disagree(c, i, 1);
#endif
    }
    not_reduced(c);
#ifndef USE_MPI
    for (i = 0; i < 4 && c->size % 2 == 0; i++) {
        halves_disagree(c, i / 2, i % 2);
    }
#endif
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, everything, NULL, 4, 3, NULL);
}
