/* SPDX-License-Identifier: MIT-0 */
/* matrices: tests whole matrices out of shards on real ranks.
 *
 *   - Random matrices, types and shards (ZeRO-1 on a ddp; ZeRO-1, 2 and 3 of fsdp with frozen
 *     units, alignment and replicas): gather gives every element on the owner, scatter gives back
 *     what the owner wrote, other parameters keep their bits, and the bytes sent are those of
 *     pieces whose owner is another rank.
 *   - The owners, against the rule written out here and against the best of all divisions.
 *   - Muon (momentum 0.95, Nesterov, 5 steps of Newton-Schulz): training a small network gives the
 *     weights of loops in f64 on one rank.
 *   - Wrong arguments and calls.
 *
 *   matrices [processes|threads] [ranks]   without arguments: both, 1 to 6 ranks
 *   mpirun -np 4 matrices                  built with -DUSE_MPI */
#include "dpar_train.h"
#include "optimizers.h"
#include "rank_program.h"

enum { PARAMS = 8, MOST = 400, TRIALS = 60 };
/* The forms of sharding: ZeRO-1 on the flat array of a ddp, and the three stages of fsdp. */
enum { FLAT, SHARDS_1, SHARDS_2, SHARDS_3, WAYS };

/* ---- a model whose gradients are known ------------------------------------------------------- */

typedef struct job {
    dpar_comm *c, *replicas;
    int32_t way, type, params, units;
    int64_t count[PARAMS];
    int32_t in_unit[PARAMS], unit_of[PARAMS], frozen[PARAMS];
    int64_t align;
    dpar_optimizer sgd;
    dpar_ddp *ddp;
    dpar_zero1 *zero1;
    dpar_fsdp *fsdp;
    void *grads, *weights; /* of FLAT */
} job;

/* Returns a small whole number, which 16 bits hold exactly. */
static double number(int32_t key, int32_t param, int64_t e)
{
    return (double)(scrambled((uint32_t)(key * 64 + param), e) % 200u) - 100.0;
}

static void open_job(job *j)
{
    dpar_why why;
    memset(&why, 0, sizeof why);
    j->sgd = sgd(0.0);
    if (j->way == FLAT) {
        dpar_ddp_desc desc;
        dpar_zero1_desc zero;
        memset(&desc, 0, sizeof desc);
        memset(&zero, 0, sizeof zero);
        CHECK_INT(dpar_comm_alloc(j->c, PARAMS * MOST * 8, &j->grads), DPAR_OK);
        CHECK_INT(dpar_comm_alloc(j->c, PARAMS * MOST * 8, &j->weights), DPAR_OK);
        desc.params = j->params;
        desc.count = j->count;
        desc.type = j->type;
        desc.gradients = j->grads;
        zero.weights = j->weights;
        zero.optimizer = &j->sgd;
        CHECK_INT(dpar_ddp_make(j->c, &desc, &j->ddp, &why), DPAR_OK);
        CHECK_INT(dpar_zero1_make(j->ddp, &zero, &j->zero1, &why), DPAR_OK);
    } else {
        dpar_fsdp_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.units = j->units;
        desc.params_per_unit = j->in_unit;
        desc.zero = j->way;
        desc.count = j->count;
        desc.type = j->type == DPAR_F64 ? DPAR_F64 : DPAR_F32;
        desc.compute_type = j->type;
        desc.replicas = j->replicas;
        desc.align = j->align;
        desc.frozen = j->frozen;
        desc.optimizer = j->sgd;
        CHECK_INT(dpar_fsdp_make(j->c, &desc, &j->fsdp, &why), DPAR_OK);
    }
    if (failures() > 0) {
        printf("%s\n", why.text);
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

/* Runs a pass in which each rank has the gradients gradient[param][], in f64. */
static void backward(job *j, double (*gradient)[MOST])
{
    int32_t u, i;
    int64_t e, at = 0;
    if (j->way == FLAT) {
        dpar_ddp_zero(j->ddp);
        for (i = 0; i < j->params; i++) {
            for (e = 0; e < j->count[i]; e++) {
                float_put(j->grads, at++, j->type, gradient[i][e]);
            }
        }
        return;
    }
    dpar_fsdp_zero(j->fsdp);
    CHECK_INT(dpar_fsdp_begin(j->fsdp, 1), DPAR_OK);
    for (u = j->units - 1; u >= 0; u--) {
        CHECK_INT(dpar_fsdp_unshard(j->fsdp, u, DPAR_ACTION_BACKWARD), DPAR_OK);
        for (i = 0; i < j->params; i++) {
            void *g = j->unit_of[i] == u ? dpar_fsdp_gradient(j->fsdp, i, NULL) : NULL;
            for (e = 0; e < j->count[i] && g != NULL; e++) {
                float_put(g, e, j->type, gradient[i][e]);
            }
        }
        CHECK_INT(dpar_fsdp_reshard(j->fsdp, u, DPAR_ACTION_BACKWARD), DPAR_OK);
        if (!j->frozen[u]) {
            CHECK_INT(dpar_fsdp_ready(j->fsdp, u), DPAR_OK);
        }
    }
    CHECK_INT(dpar_fsdp_end(j->fsdp), DPAR_OK);
}

static dpar_status norm_of(job *j, dpar_update *update)
{
    return j->way == FLAT ? dpar_zero1_norm(j->zero1, update) : dpar_fsdp_norm(j->fsdp, update);
}

/* Returns the address of this rank's piece of parameter i, or NULL if it is empty. */
static void *piece_of(job *j, int32_t i, dpar_piece *piece, int32_t *type)
{
    char *at;
    if (j->way == FLAT) {
        int64_t first = 0, count = 0, start = 0, low, high;
        int32_t k;
        (void)dpar_zero1_state(j->zero1, 0, &first, &count, NULL);
        for (k = 0; k < i; k++) {
            start += j->count[k];
        }
        low = first > start ? first : start;
        high = first + count < start + j->count[i] ? first + count : start + j->count[i];
        piece->in_param = low - start;
        piece->count = high - low;
        *type = j->type;
        return high > low ? (char *)j->grads + low * dpar_type_bytes(j->type) : NULL;
    }
    if (!dpar_fsdp_piece(j->fsdp, i, piece) || j->frozen[j->unit_of[i]]) {
        return NULL;
    }
    at = (char *)dpar_fsdp_state(j->fsdp, DPAR_FSDP_GRADIENT, j->unit_of[i], NULL, type);
    return at + piece->in_shard * dpar_type_bytes(*type);
}

/* Returns the type of the shards of gradients: ZeRO-2 and 3 sum micro-batches in F32 or F64. */
static int32_t gradients_type(const job *j)
{
    if (j->way == FLAT || j->way == SHARDS_1) {
        return j->type;
    }
    return j->type == DPAR_F64 ? DPAR_F64 : DPAR_F32;
}

static void draw(job *j, dpar_comm *c, uint64_t *seed)
{
    static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_BF16};
    int32_t i, u = 0;
    memset(j, 0, sizeof *j);
    j->c = c;
    j->way = (int32_t)lot_below(seed, WAYS);
    j->type = types[lot_below(seed, 3)];
    j->params = 1 + (int32_t)lot_below(seed, PARAMS);
    j->align = 1 + lot_below(seed, 2) * 7;
    for (i = 0; i < j->params; i++) {
        j->count[i] = lot_below(seed, 5) == 0 ? lot_below(seed, 3) : lot_below(seed, MOST);
        u += i > 0 && lot_below(seed, 2);
        j->unit_of[i] = u;
        j->in_unit[u]++;
    }
    j->units = u + 1;
    for (u = 0; u < j->units; u++) {
        j->frozen[u] = j->way != FLAT && lot_below(seed, 5) == 0;
    }
}

/* ---- gather and scatter ---------------------------------------------------------------------- */

/* Returns the smallest possible largest cost of a rank, over all divisions of matrices k, ... */
static double best_division(const double *cost, int32_t n, int32_t k, double *load, int32_t ranks)
{
    double best = 1e300;
    int32_t r;
    if (k == n) {
        best = 0.0;
        for (r = 0; r < ranks; r++) {
            best = load[r] > best ? load[r] : best;
        }
        return best;
    }
    for (r = 0; r < ranks; r++) {
        double largest;
        load[r] += cost[k];
        largest = best_division(cost, n, k + 1, load, ranks);
        best = largest < best ? largest : best;
        load[r] -= cost[k];
    }
    return best;
}

/* Compares the owners with the rule, and the largest cost with 4/3 of the best. */
static void check_owners(dpar_matrices *m, const double *cost, int32_t n, int32_t ranks)
{
    int32_t owner[PARAMS], step, k, r;
    double load[8] = {0}, zero[8] = {0}, largest = 0.0;
    memset(owner, -1, sizeof owner);
    for (step = 0; step < n; step++) {
        int32_t next = -1, least = 0;
        for (k = n - 1; k >= 0; k--) {
            next = owner[k] < 0 && (next < 0 || cost[k] >= cost[next]) ? k : next;
        }
        for (r = ranks - 1; r >= 0; r--) {
            least = load[r] <= load[least] ? r : least;
        }
        owner[next] = least;
        load[least] += cost[next];
    }
    for (k = 0; k < n; k++) {
        CHECK_INT(dpar_matrices_owner(m, k), owner[k]);
    }
    for (r = 0; r < ranks; r++) {
        largest = load[r] > largest ? load[r] : largest;
    }
    if (ranks <= 4 && n <= 6) {
        const double best = best_division(cost, n, 0, zero, ranks);
        CHECK(largest <= (4.0 / 3.0 - 1.0 / (3.0 * ranks)) * best * (1.0 + 1e-12));
    }
}

/* Checks this rank's pieces: matrices have the numbers of one key, other parameters of another. */
static void check_pieces(job *j, const int32_t *matrix_of, int32_t key, int32_t other)
{
    int32_t i, type = 0;
    int64_t e, wrong = 0;
    for (i = 0; i < j->params; i++) {
        dpar_piece piece;
        const void *at = piece_of(j, i, &piece, &type);
        for (e = 0; at != NULL && e < piece.count; e++) {
            wrong += float_get(at, e, type) !=
                     number(matrix_of[i] >= 0 ? key : other, i, piece.in_param + e);
        }
    }
    CHECK_INT(wrong, 0);
}

/* Gathers, compares with the numbers of a key, writes those of another one, and scatters. */
static void exchange(job *j, dpar_matrices *m, const int32_t *param, int32_t n, int32_t key,
                     int32_t next)
{
    const int64_t before = j->c->sent[DPAR_CALL_ALL_TO_ALL];
    int64_t e, wrong = 0, away = 0, bytes = 0;
    int32_t k, type = 0;
    CHECK_INT(dpar_matrices_gather(m), DPAR_OK);
    for (k = 0; k < n; k++) {
        dpar_piece piece;
        if (piece_of(j, param[k], &piece, &type) != NULL) {
            bytes = dpar_type_bytes(type);
            away += dpar_matrices_owner(m, k) != j->c->rank ? piece.count : 0;
        }
    }
    CHECK_INT(j->c->sent[DPAR_CALL_ALL_TO_ALL] - before, away * bytes);
    for (k = 0; k < n; k++) {
        void *g = dpar_matrices_at(m, k);
        const int mine = dpar_matrices_owner(m, k) == j->c->rank;
        CHECK((g != NULL) == (mine && j->count[param[k]] > 0 && !j->frozen[j->unit_of[param[k]]]));
        type = gradients_type(j);
        for (e = 0; g != NULL && e < j->count[param[k]]; e++) {
            wrong += float_get(g, e, type) != number(key, param[k], e);
            float_put(g, e, type, number(next, param[k], e));
        }
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(dpar_matrices_scatter(m), DPAR_OK);
}

static void exchange_case(dpar_comm *world, uint64_t seed)
{
    static __thread job j;
    static __thread double gradient[PARAMS][MOST];
    int32_t param[PARAMS], matrix_of[PARAMS], n = 0, i;
    const int copies = world->size % 2 == 0 && seed % 4 == 1;
    double cost[PARAMS];
    int64_t e, wrong = 0;
    dpar_comm *shard = world, *replicas = NULL;
    dpar_matrices_desc desc;
    dpar_matrices *m = NULL;
    dpar_update update;
    dpar_why why;
    if (copies) {
        CHECK_INT(dpar_comm_split(world, world->rank % 2, 0, &shard), DPAR_OK);
        CHECK_INT(dpar_comm_split(world, world->rank / 2, 0, &replicas), DPAR_OK);
    }
    draw(&j, shard, &seed);
    if (copies && j.way != FLAT) {
        j.replicas = replicas;
    }
    open_job(&j);
    for (i = 0; i < j.params; i++) {
        matrix_of[i] = -1;
        if (lot_below(&seed, 4) > 0) {
            cost[n] = lot_below(&seed, 2) ? (double)lot_below(&seed, 5) : (double)j.count[i];
            matrix_of[i] = n;
            param[n++] = i;
        }
    }
    memset(&desc, 0, sizeof desc);
    desc.zero1 = j.zero1;
    desc.fsdp = j.fsdp;
    desc.matrices = n;
    desc.param = param;
    desc.cost = seed % 3 ? cost : NULL;
    if (desc.cost == NULL) {
        for (i = 0; i < n; i++) {
            cost[i] = j.frozen[j.unit_of[param[i]]] ? 0.0 : (double)j.count[param[i]];
        }
    }
    CHECK_INT(dpar_matrices_make(shard, &desc, &m, &why), DPAR_OK);
    check_owners(m, cost, n, shard->size);
    for (i = 0; i < j.params; i++) {
        for (e = 0; e < j.count[i]; e++) {
            gradient[i][e] = number(7, i, e);
        }
    }
    for (i = 0; i < 2; i++) {
        backward(&j, gradient);
        memset(&update, 0, sizeof update);
        CHECK_INT(norm_of(&j, &update), DPAR_OK);
        exchange(&j, m, param, n, 7, 8 + i);
        check_pieces(&j, matrix_of, 8 + i, 7);
        exchange(&j, m, param, n, 8 + i, 10);
        check_pieces(&j, matrix_of, 10, 7);
    }
    if (j.way != FLAT) { /* now the gradients only count as 0 */
        dpar_fsdp_zero(j.fsdp);
        CHECK_INT(dpar_matrices_gather(m), DPAR_OK);
        for (i = 0; i < n; i++) {
            const void *g = dpar_matrices_at(m, i);
            for (e = 0; g != NULL && e < j.count[param[i]]; e++) {
                wrong += float_get(g, e, gradients_type(&j)) != 0.0;
            }
        }
        CHECK_INT(wrong, 0);
    }
    if (failures() > 0) {
        printf("way %d, type %d, %d params, %d units, %d matrices, %d ranks\n", j.way, j.type,
               j.params, j.units, n, shard->size);
    }
    CHECK_INT(dpar_matrices_free(m), DPAR_OK);
    close_job(&j);
    if (copies) {
        CHECK_INT(dpar_comm_free(shard), DPAR_OK);
        CHECK_INT(dpar_comm_free(replicas), DPAR_OK);
    }
}

/* ---- Muon ------------------------------------------------------------------------------------ */

/* tanh(W1 x + b) -> W2, on samples that are divided among the ranks. */
enum { INPUTS = 7, HIDDEN = 6, OUTPUTS = 4, SAMPLES = 12, STEPS = 12, WEIGHTS = 3 };
static const int32_t rows_of[WEIGHTS] = {HIDDEN, HIDDEN, OUTPUTS};
static const int32_t columns_of[WEIGHTS] = {INPUTS, 1, HIDDEN};

/* Adds the gradients of samples first, first + step, ... of a mean over all samples times `factor`
 * to gradient. */
static void network(double (*weight)[MOST], double (*gradient)[MOST], int first, int step,
                    double factor)
{
    int s, i, h, o;
    for (s = first; s < SAMPLES; s += step) {
        double x[INPUTS], y[HIDDEN], dy[HIDDEN] = {0};
        for (i = 0; i < INPUTS; i++) {
            x[i] = sin(1.0 + s * 3.7 + i * 1.3);
        }
        for (h = 0; h < HIDDEN; h++) {
            double sum = weight[1][h];
            for (i = 0; i < INPUTS; i++) {
                sum += weight[0][h * INPUTS + i] * x[i];
            }
            y[h] = tanh(sum);
        }
        for (o = 0; o < OUTPUTS; o++) {
            double out = -cos(2.0 + s * 1.1 + o * 2.3); /* the target */
            for (h = 0; h < HIDDEN; h++) {
                out += weight[2][o * HIDDEN + h] * y[h];
            }
            for (h = 0; h < HIDDEN; h++) {
                gradient[2][o * HIDDEN + h] += factor * out * y[h];
                dy[h] += factor * out * weight[2][o * HIDDEN + h];
            }
        }
        for (h = 0; h < HIDDEN; h++) {
            dy[h] *= 1.0 - y[h] * y[h];
            gradient[1][h] += dy[h];
            for (i = 0; i < INPUTS; i++) {
                gradient[0][h * INPUTS + i] += dy[h] * x[i];
            }
        }
    }
}

/* Replaces a gradient by the direction of Muon: momentum, then Newton-Schulz (Jordan 2024). */
static void muon(void *gradient, int32_t type, double *momentum, int rows, int columns)
{
    const int small_side = rows < columns ? rows : columns, n = rows * columns;
    double x[MOST], a[MOST], b[MOST], squares = 0.0;
    int i, k, l, step;
    for (i = 0; i < n; i++) {
        const double g = float_get(gradient, i, type);
        momentum[i] = 0.95 * momentum[i] + g;
        x[i] = g + 0.95 * momentum[i];
        squares += x[i] * x[i];
    }
    for (i = 0; i < n; i++) {
        x[i] /= sqrt(squares) + 1e-7;
    }
    for (step = 0; step < 5; step++) {
        double next[MOST];
        /* a = x x' if there are fewer rows, else x' x; b = -4.775 a + 2.0315 a a */
        for (k = 0; k < small_side; k++) {
            for (l = 0; l < small_side; l++) {
                double sum = 0.0;
                for (i = 0; i < n / small_side; i++) {
                    sum += rows <= columns ? x[k * columns + i] * x[l * columns + i]
                                           : x[i * columns + k] * x[i * columns + l];
                }
                a[k * small_side + l] = sum;
            }
        }
        for (k = 0; k < small_side; k++) {
            for (l = 0; l < small_side; l++) {
                double sum = 0.0;
                for (i = 0; i < small_side; i++) {
                    sum += a[k * small_side + i] * a[i * small_side + l];
                }
                b[k * small_side + l] = -4.775 * a[k * small_side + l] + 2.0315 * sum;
            }
        }
        for (k = 0; k < rows; k++) {
            for (l = 0; l < columns; l++) {
                double sum = 3.4445 * x[k * columns + l];
                for (i = 0; i < small_side; i++) {
                    sum += rows <= columns ? b[k * small_side + i] * x[i * columns + l]
                                           : x[k * columns + i] * b[i * small_side + l];
                }
                next[k * columns + l] = sum;
            }
        }
        memcpy(x, next, sizeof x);
    }
    for (i = 0; i < n; i++) {
        float_put(gradient, i, type, x[i]);
    }
}

/* Trains on the ranks with lines like those of matrices.h, and on one rank. */
static void muon_case(dpar_comm *c, int32_t way, int32_t type)
{
    static __thread job j;
    static __thread double alone[WEIGHTS][MOST], weight[WEIGHTS][MOST], gradient[WEIGHTS][MOST],
        momentum[WEIGHTS][MOST], kept[WEIGHTS][MOST];
    static const int32_t matrix[2] = {0, 2};
    const double rate = 0.02, decay = 0.1;
    dpar_matrices_desc desc;
    dpar_matrices *matrices = NULL;
    dpar_update update;
    dpar_why why;
    double worst = 0.0;
    int32_t i, k, step;
    int64_t e, at;
    memset(&j, 0, sizeof j);
    memset(kept, 0, sizeof kept);
    memset(momentum, 0, sizeof momentum);
    j.c = c;
    j.way = way;
    j.type = type;
    j.params = j.units = WEIGHTS;
    for (i = 0; i < WEIGHTS; i++) {
        j.count[i] = rows_of[i] * columns_of[i];
        j.in_unit[i] = 1;
        j.unit_of[i] = i;
    }
    j.in_unit[0] = 2; /* the first matrix and the biases form a unit */
    j.in_unit[1] = 1;
    j.unit_of[1] = 0;
    j.unit_of[2] = 1;
    j.units = 2;
    open_job(&j);
    if (way == FLAT) {
        j.sgd.decay = decay; /* zero1 reads it in each step */
    }
    at = 0;
    for (i = 0; i < WEIGHTS; i++) {
        double start[MOST];
        for (e = 0; e < j.count[i]; e++) {
            const double w = (double)(scrambled((uint32_t)i, e) % 1000u) / 1024.0 - 0.5;
            alone[i][e] = weight[i][e] = w;
            float_put(start, e, type, w);
            if (way == FLAT) {
                float_put(j.weights, at++, type, w);
            }
        }
        if (way != FLAT) {
            CHECK_INT(dpar_fsdp_set(j.fsdp, i, start), DPAR_OK);
        }
    }
    memset(&desc, 0, sizeof desc);
    desc.zero1 = j.zero1;
    desc.fsdp = j.fsdp;
    desc.matrices = 2;
    desc.param = matrix;
    CHECK_INT(dpar_matrices_make(c, &desc, &matrices, &why), DPAR_OK);
    for (step = 0; step < STEPS; step++) {
        memset(gradient, 0, sizeof gradient);
        network(weight, gradient, c->rank, c->size, (double)c->size / SAMPLES);
        backward(&j, gradient);
        memset(&update, 0, sizeof update);
        CHECK_INT(norm_of(&j, &update), DPAR_OK);
        CHECK_INT(dpar_matrices_gather(matrices), DPAR_OK);
        for (k = 0; k < 2; k++) {
            void *g = dpar_matrices_at(matrices, k);
            if (g != NULL) {
                muon(g, type, momentum[k], rows_of[matrix[k]], columns_of[matrix[k]]);
            }
        }
        CHECK_INT(dpar_matrices_scatter(matrices), DPAR_OK);
        CHECK_INT(way == FLAT ? dpar_zero1_step(j.zero1, rate, 0.0)
                              : dpar_fsdp_step(j.fsdp, rate, 1.0),
                  DPAR_OK);
        memset(gradient, 0, sizeof gradient);
        network(alone, gradient, 0, 1, 1.0 / SAMPLES);
        muon(gradient[0], DPAR_F64, kept[0], HIDDEN, INPUTS);
        muon(gradient[2], DPAR_F64, kept[2], OUTPUTS, HIDDEN);
        at = 0;
        for (i = 0; i < WEIGHTS; i++) {
            const double part = way == FLAT ? decay : 0.0;
            const void *w = j.weights;
            if (way != FLAT) {
                CHECK_INT(dpar_fsdp_unshard(j.fsdp, j.unit_of[i], DPAR_ACTION_FORWARD), DPAR_OK);
                w = dpar_fsdp_weight(j.fsdp, i);
                at = 0;
            }
            for (e = 0; e < j.count[i]; e++) {
                alone[i][e] -= rate * (gradient[i][e] + part * alone[i][e]);
                weight[i][e] = float_get(w, at++, type);
                worst = fmax(worst, fabs(weight[i][e] - alone[i][e]));
            }
            if (way != FLAT) {
                CHECK_INT(dpar_fsdp_reshard(j.fsdp, j.unit_of[i], DPAR_ACTION_FORWARD), DPAR_OK);
            }
        }
    }
    CHECK(worst <= (type == DPAR_F64 ? 2e-14 : 2e-5));
    if (worst > 0.0 && getenv("DPAR_SHOW") != NULL && c->rank == 0) {
        printf("way %d, type %d, %d ranks: largest difference %.3g\n", way, type, c->size, worst);
    }
    CHECK_INT(dpar_matrices_free(matrices), DPAR_OK);
    close_job(&j);
}

/* ---- wrong arguments ------------------------------------------------------------------------- */

/* Makes with a description that all ranks or only the last one get wrong. Checks that all fail, and
 * the message of the ranks that are at fault. */
static void refused(dpar_comm *c, const dpar_matrices_desc *good, const dpar_matrices_desc *bad,
                    const char *text)
{
    int all;
    for (all = 0; all < 2; all++) {
        const int fault = all || c->rank == c->size - 1;
        dpar_matrices *m = NULL;
        dpar_why why;
        CHECK_INT(dpar_matrices_make(c, fault ? bad : good, &m, &why), DPAR_E_ARG);
        CHECK(m == NULL);
        if (fault) {
            CHECK_TEXT(why.text, text);
        } else {
            CHECK(strstr(why.text, text) != NULL);
        }
    }
}

static void errors(dpar_comm *c, int32_t way)
{
    static __thread job j;
    static __thread double gradient[PARAMS][MOST];
    static const int32_t descending[] = {1, 0}, beyond[] = {0, 9};
    double cost[2] = {1.0, -2.0};
    dpar_matrices_desc desc, bad;
    dpar_matrices *m = NULL;
    dpar_update update;
    dpar_why why;
    int32_t k;
    memset(&j, 0, sizeof j);
    j.c = c;
    j.way = way;
    j.type = DPAR_F32;
    j.params = j.units = 2;
    for (k = 0; k < 2; k++) {
        j.count[k] = 10 + k;
        j.in_unit[k] = 1;
        j.unit_of[k] = k;
    }
    open_job(&j);
    memset(&desc, 0, sizeof desc);
    desc.zero1 = j.zero1;
    desc.fsdp = j.fsdp;
    desc.matrices = 2;
    bad = desc;
    bad.matrices = -1;
    refused(c, &desc, &bad,
            "dpar_matrices_make: desc.matrices is -1, but must be 0 or more, and desc must have "
            "either a zero1 or an fsdp, which was made on comm");
    bad = desc;
    bad.zero1 = NULL;
    bad.fsdp = NULL;
    refused(c, &desc, &bad,
            "dpar_matrices_make: desc.matrices is 2, but must be 0 or more, and desc must have "
            "either a zero1 or an fsdp, which was made on comm");
    bad = desc;
    bad.matrices = 3;
    refused(c, &desc, &bad,
            "dpar_matrices_make: param[2] is 2 and cost[2] 0, but parameters must ascend, here "
            "from 2 to 1, and costs must be 0 or more and finite");
    bad = desc;
    bad.param = descending;
    refused(c, &desc, &bad,
            "dpar_matrices_make: param[1] is 0 and cost[1] 0, but parameters must ascend, here "
            "from 2 to 1, and costs must be 0 or more and finite");
    bad.param = beyond;
    refused(c, &desc, &bad,
            "dpar_matrices_make: param[1] is 9 and cost[1] 0, but parameters must ascend, here "
            "from 1 to 1, and costs must be 0 or more and finite");
    bad = desc;
    bad.cost = cost;
    refused(c, &desc, &bad,
            "dpar_matrices_make: param[1] is 1 and cost[1] -2, but parameters must ascend, here "
            "from 1 to 1, and costs must be 0 or more and finite");
    refused(c, &desc, NULL,
            "dpar_matrices_make: desc.matrices is 0, but must be 0 or more, and desc must have "
            "either a zero1 or an fsdp, which was made on comm");
    cost[1] = c->rank == c->size - 1 && c->size > 1 ? 3.0 : 2.0;
    if (c->size > 1) {
        CHECK_INT(dpar_matrices_make(c, &bad, &m, &why), DPAR_E_MISMATCH);
        CHECK(strstr(why.text, "matrices: cost[1] is 2 on rank") != NULL);
    }
    CHECK_INT(dpar_matrices_make(NULL, &desc, &m, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dpar_matrices_make: comm and matrices must not be NULL");
    CHECK_INT(dpar_matrices_make(c, &desc, NULL, &why), DPAR_E_ARG);
    CHECK_INT(dpar_matrices_make(c, &desc, &m, &why), DPAR_OK);
    CHECK_INT(dpar_matrices_owner(m, -1), -1);
    CHECK_INT(dpar_matrices_owner(m, 2), -1);
    CHECK_INT(dpar_matrices_owner(NULL, 0), -1);
    CHECK(dpar_matrices_at(m, -1) == NULL && dpar_matrices_at(m, 2) == NULL);
    CHECK(dpar_matrices_at(NULL, 0) == NULL);
    CHECK_INT(dpar_matrices_gather(NULL), DPAR_E_ARG);
    CHECK_INT(dpar_matrices_free(NULL), DPAR_OK);
    if (way == FLAT) {
        CHECK_INT(dpar_matrices_gather(m), DPAR_E_ARG);
        CHECK_TEXT(c->why.text, "dpar_matrices_gather: call dpar_zero1_norm before");
    } else {
        CHECK_INT(dpar_fsdp_begin(j.fsdp, 0), DPAR_OK);
        CHECK_INT(dpar_matrices_gather(m), DPAR_E_ARG);
        CHECK_TEXT(c->why.text, "dpar_matrices_gather: call dpar_fsdp_end before");
        CHECK_INT(dpar_fsdp_end(j.fsdp), DPAR_OK);
    }
    memset(gradient, 0, sizeof gradient);
    backward(&j, gradient);
    memset(&update, 0, sizeof update);
    CHECK_INT(norm_of(&j, &update), DPAR_OK);
    CHECK_INT(dpar_matrices_scatter(m), DPAR_E_ARG);
    CHECK_TEXT(c->why.text, "dpar_matrices_scatter: call dpar_matrices_gather before");
    CHECK_INT(dpar_matrices_gather(m), DPAR_OK);
    CHECK_INT(dpar_matrices_scatter(m), DPAR_OK);
    CHECK_INT(dpar_matrices_free(m), DPAR_OK);
    desc.matrices = 0;
    CHECK_INT(dpar_matrices_make(c, &desc, &m, &why), DPAR_OK);
    CHECK_INT(dpar_matrices_gather(m), DPAR_OK);
    CHECK_INT(dpar_matrices_scatter(m), DPAR_OK);
    CHECK_INT(dpar_matrices_free(m), DPAR_OK);
    close_job(&j);
}

#ifndef USE_MPI
/* One rank scatters while the others gather: all fail, none waits. */
static void confused(dpar_comm *world)
{
    static __thread job j;
    static __thread double gradient[PARAMS][MOST];
    dpar_matrices_desc desc;
    dpar_matrices *m = NULL;
    dpar_comm *c = NULL;
    dpar_why why;
    int32_t k;
    CHECK_INT(dpar_comm_split(world, 0, 0, &c), DPAR_OK);
    memset(&j, 0, sizeof j);
    j.c = c;
    j.way = SHARDS_2;
    j.type = DPAR_F32;
    j.params = j.units = 1;
    j.count[0] = 64;
    j.in_unit[0] = 1;
    open_job(&j);
    memset(&desc, 0, sizeof desc);
    desc.fsdp = j.fsdp;
    desc.matrices = 1;
    CHECK_INT(dpar_matrices_make(c, &desc, &m, &why), DPAR_OK);
    memset(gradient, 0, sizeof gradient);
    backward(&j, gradient);
    CHECK_INT(dpar_matrices_gather(m), DPAR_OK);
    CHECK_INT(dpar_matrices_scatter(m), DPAR_OK);
    if (c->size > 1) {
        k = c->rank == c->size - 1 ? dpar_matrices_scatter(m) : dpar_matrices_gather(m);
        CHECK(k < 0);
        CHECK(c->why.text[0] != 0);
    }
    CHECK_INT(dpar_matrices_free(m), DPAR_OK);
    close_job(&j);
    (void)dpar_comm_free(c);
}
#endif

static int everything(dpar_comm *c, void *arg)
{
    int32_t i;
    (void)arg;
    for (i = 0; i < TRIALS && failures() == 0; i++) {
        exchange_case(c, (uint64_t)i);
    }
    for (i = 0; i < WAYS && failures() == 0; i++) {
        muon_case(c, i, DPAR_F64);
        muon_case(c, i, DPAR_F32);
        errors(c, i);
    }
#ifndef USE_MPI
    confused(c);
#endif
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, everything, NULL, 6, 3, NULL);
}
