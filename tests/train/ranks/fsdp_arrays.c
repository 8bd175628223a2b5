/* SPDX-License-Identifier: MIT-0 */
/* fsdp_arrays: tests desc.array and desc.resident on a small GPT-like network in f64 whose code
 * knows nothing of dpar: its arrays hold one kind of weights of all layers, it computes addresses
 * from their pointers, and its embedding is also its output layer.
 *
 *   - ZeRO-1, 2 and 3, with and without calls for the resident unit, compared with a training of
 * the same code on one rank and AdamW in plain C.
 *   - All arrays in one resident unit with ZeRO-1, compared bit by bit with dpar_zero1 on a flat
 *     array.
 *   - Wrong arrays and flags, on all ranks or on one.
 *
 *   fsdp_arrays [processes|threads] [ranks] */
#include "dpar_train.h"
#include "rank_program.h"

enum { VOCAB = 11, WIDE = 5, LENGTH = 6, LAYERS = 3, KINDS = 5, SAMPLES = 12, STEPS = 6 };

/* One pointer per kind: [VOCAB][WIDE], [LENGTH][WIDE], and [LAYERS] times [WIDE][WIDE], [WIDE],
 * [WIDE]. */
typedef struct tensors {
    double *token, *place, *matrix, *bias, *gain;
} tensors;

static const int64_t count_of[KINDS] = {VOCAB * WIDE, LENGTH *WIDE, WIDE *WIDE, WIDE, WIDE};

typedef struct code {
    tensors p, d; /* the pointers of the code: weights and gradients */
    double in[LAYERS + 1][LENGTH][WIDE], hidden[LAYERS][LENGTH][WIDE], odds[LENGTH][VOCAB];
    double *weights, *gradients; /* its flat arrays */
    dpar_fsdp *f;                /* NULL on one rank */
    int calls;                   /* 1 to call unshard for the resident unit too */
} code;

static int64_t elements(void)
{
    return count_of[0] + count_of[1] + LAYERS * (count_of[2] + count_of[3] + count_of[4]);
}

static void point(tensors *t, double *flat)
{
    t->token = flat;
    t->place = t->token + count_of[0];
    t->matrix = t->place + count_of[1];
    t->bias = t->matrix + LAYERS * count_of[2];
    t->gain = t->bias + LAYERS * count_of[3];
}

/* ---- the code, with one call before and after each layer --------------------------------------- */

static void begin_use(code *c, int unit, int direction)
{
    if (c->f != NULL && (unit > 0 || c->calls)) {
        CHECK_INT(dpar_fsdp_unshard(c->f, unit, direction), DPAR_OK);
    }
}

static void end_use(code *c, int unit, int direction)
{
    if (c->f != NULL && (unit > 0 || c->calls)) {
        CHECK_INT(dpar_fsdp_reshard(c->f, unit, direction), DPAR_OK);
        if (direction == DPAR_ACTION_BACKWARD) {
            CHECK_INT(dpar_fsdp_ready(c->f, unit), DPAR_OK);
        }
    }
}

static int token_of(int sample, int t)
{
    return (int)(scrambled((uint32_t)sample, t) % VOCAB);
}

static double forward(code *c, int sample)
{
    double loss = 0.0;
    int t, i, k, l, v;
    begin_use(c, 0, DPAR_ACTION_FORWARD);
    for (t = 0; t < LENGTH; t++) {
        for (i = 0; i < WIDE; i++) {
            c->in[0][t][i] = c->p.token[token_of(sample, t) * WIDE + i] + c->p.place[t * WIDE + i];
        }
    }
    for (l = 0; l < LAYERS; l++) {
        const double *matrix, *bias, *gain;
        begin_use(c, l + 1, DPAR_ACTION_FORWARD);
        matrix = c->p.matrix + l * WIDE * WIDE;
        bias = c->p.bias + l * WIDE;
        gain = c->p.gain + l * WIDE;
        for (t = 0; t < LENGTH; t++) {
            for (i = 0; i < WIDE; i++) {
                double sum = bias[i];
                for (k = 0; k < WIDE; k++) {
                    sum += matrix[i * WIDE + k] * c->in[l][t][k];
                }
                c->hidden[l][t][i] = tanh(sum);
                c->in[l + 1][t][i] = c->in[l][t][i] + gain[i] * c->hidden[l][t][i];
            }
        }
        end_use(c, l + 1, DPAR_ACTION_FORWARD);
    }
    for (t = 0; t < LENGTH; t++) {
        double sum = 0.0;
        for (v = 0; v < VOCAB; v++) {
            double score = 0.0;
            for (k = 0; k < WIDE; k++) {
                score += c->p.token[v * WIDE + k] * c->in[LAYERS][t][k];
            }
            c->odds[t][v] = exp(score);
            sum += c->odds[t][v];
        }
        for (v = 0; v < VOCAB; v++) {
            c->odds[t][v] /= sum;
        }
        loss -= log(c->odds[t][token_of(sample, t + 1)]);
    }
    return loss;
}

static void backward(code *c, int sample)
{
    double dx[LENGTH][WIDE] = {{0.0}};
    int t, i, k, l, v;
    for (t = 0; t < LENGTH; t++) {
        for (v = 0; v < VOCAB; v++) {
            const double d = c->odds[t][v] - (v == token_of(sample, t + 1));
            for (k = 0; k < WIDE; k++) {
                dx[t][k] += d * c->p.token[v * WIDE + k];
                c->d.token[v * WIDE + k] += d * c->in[LAYERS][t][k];
            }
        }
    }
    for (l = LAYERS - 1; l >= 0; l--) {
        const double *matrix, *gain;
        double *dmatrix, *dbias, *dgain;
        begin_use(c, l + 1, DPAR_ACTION_BACKWARD);
        matrix = c->p.matrix + l * WIDE * WIDE;
        gain = c->p.gain + l * WIDE;
        dmatrix = c->d.matrix + l * WIDE * WIDE;
        dbias = c->d.bias + l * WIDE;
        dgain = c->d.gain + l * WIDE;
        for (t = 0; t < LENGTH; t++) {
            double before[WIDE] = {0.0};
            for (i = 0; i < WIDE; i++) {
                const double h = c->hidden[l][t][i], d = dx[t][i] * gain[i] * (1.0 - h * h);
                dgain[i] += dx[t][i] * h;
                dbias[i] += d;
                for (k = 0; k < WIDE; k++) {
                    dmatrix[i * WIDE + k] += d * c->in[l][t][k];
                    before[k] += d * matrix[i * WIDE + k];
                }
            }
            for (k = 0; k < WIDE; k++) {
                dx[t][k] += before[k];
            }
        }
        end_use(c, l + 1, DPAR_ACTION_BACKWARD);
    }
    for (t = 0; t < LENGTH; t++) {
        for (i = 0; i < WIDE; i++) {
            c->d.token[token_of(sample, t) * WIDE + i] += dx[t][i];
            c->d.place[t * WIDE + i] += dx[t][i];
        }
    }
    end_use(c, 0, DPAR_ACTION_BACKWARD);
}

static void start(code *c)
{
    int64_t i;
    memset(c, 0, sizeof *c);
    c->weights = (double *)calloc((size_t)elements(), sizeof(double));
    c->gradients = (double *)calloc((size_t)elements(), sizeof(double));
    for (i = 0; i < elements(); i++) {
        c->weights[i] = (double)(scrambled(7, i) % 2001) / 2000.0 - 0.5;
    }
    point(&c->p, c->weights);
    point(&c->d, c->gradients);
}

/* ---- one rank ---------------------------------------------------------------------------------- */

/* Trains on one rank. Stores the loss of each step and the last weights. */
static void train_alone(double *loss, double *weights)
{
    static __thread code c;
    double *m = (double *)calloc((size_t)elements(), sizeof *m);
    double *v = (double *)calloc((size_t)elements(), sizeof *v);
    int step, s;
    int64_t i;
    start(&c);
    for (step = 0; step < STEPS; step++) {
        memset(c.gradients, 0, (size_t)elements() * sizeof *c.gradients);
        loss[step] = 0.0;
        for (s = 0; s < SAMPLES; s++) {
            loss[step] += forward(&c, s + step);
            backward(&c, s + step);
        }
        for (i = 0; i < elements(); i++) {
            const double g = c.gradients[i] / SAMPLES;
            double *w = &c.weights[i];
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.99 * v[i] + 0.01 * g * g;
            *w -= 0.05 * 0.1 * *w;
            *w -= 0.05 * (m[i] / (1.0 - pow(0.9, step + 1))) /
                  (sqrt(v[i] / (1.0 - pow(0.99, step + 1))) + 1e-3);
        }
    }
    memcpy(weights, c.weights, (size_t)elements() * sizeof *weights);
    free(m);
    free(v);
    free(c.weights);
    free(c.gradients);
}

/* ---- divided ----------------------------------------------------------------------------------- */

static dpar_optimizer adamw(void)
{
    dpar_optimizer o;
    dpar_optimizer_init(&o, DPAR_OPTIMIZER_ADAMW);
    o.beta2 = 0.99;
    o.epsilon = 1e-3;
    o.decay = 0.1;
    return o;
}

/* Describes the arrays of the code: the kinds without layers in unit 0, and the slices of the
 * others in units 1 to LAYERS, or all whole in unit 0. */
static void describe(code *c, dpar_fsdp_array *array, int whole)
{
    double **const weight[KINDS] = {&c->p.token, &c->p.place, &c->p.matrix, &c->p.bias, &c->p.gain};
    double **const gradient[KINDS] = {&c->d.token, &c->d.place, &c->d.matrix, &c->d.bias,
                                      &c->d.gain};
    int k;
    memset(array, 0, KINDS * sizeof *array);
    for (k = 0; k < KINDS; k++) {
        array[k].weights = (void **)weight[k];
        array[k].gradients = (void **)gradient[k];
        array[k].count = k < 2 ? count_of[k] : whole ? LAYERS * count_of[k] : count_of[k];
        array[k].slices = k < 2 || whole ? 0 : LAYERS;
        array[k].unit = k < 2 || whole ? 0 : 1;
    }
}

static void tied_case(dpar_comm *comm, int zero, int calls, int replicas, const double *loss,
                      const double *weights)
{
    static __thread code c;
    const int32_t resident[LAYERS + 1] = {1, 0};
    const int batches = SAMPLES / comm->size;
    dpar_comm *shard = comm, *across = NULL;
    dpar_fsdp_array array[KINDS];
    dpar_fsdp_desc desc;
    dpar_update update;
    int64_t i;
    int step, b, l;
    if (replicas) {
        CHECK_INT(dpar_comm_split(comm, comm->rank / 2, comm->rank, &shard), DPAR_OK);
        CHECK_INT(dpar_comm_split(comm, comm->rank % 2, comm->rank, &across), DPAR_OK);
    }
    start(&c);
    c.calls = calls;
    describe(&c, array, 0);
    memset(&desc, 0, sizeof desc);
    desc.units = LAYERS + 1;
    desc.array = array;
    desc.arrays = KINDS;
    desc.resident = resident;
    desc.zero = zero;
    desc.type = DPAR_F64;
    desc.prefetch = 1;
    desc.replicas = across;
    desc.optimizer = adamw();
    memset(&update, 0, sizeof update);
    update.rate = 0.05;
    update.factor = 1.0 / batches;
    CHECK_INT(dpar_fsdp_make(shard, &desc, &c.f, NULL), DPAR_OK);
    if (c.f == NULL) {
        return;
    }
    memset(c.weights, 0, (size_t)elements() * sizeof *c.weights); /* must not be read again */
    for (step = 0; step < STEPS; step++) {
        double sum = 0.0;
        if (step % 2 == 0) {
            dpar_fsdp_zero(c.f);
        }
        for (b = 0; b < batches; b++) {
            const int sample = b * comm->size + comm->rank + step;
            CHECK_INT(dpar_fsdp_begin(c.f, b == batches - 1), DPAR_OK);
            if (step % 2 == 1 && b == 0) {
                dpar_fsdp_zero(c.f); /* the gradients of the resident unit are already in use */
            }
            sum += forward(&c, sample);
            backward(&c, sample);
            CHECK_INT(dpar_fsdp_end(c.f), DPAR_OK);
            CHECK(c.p.token == NULL && c.p.bias == NULL && c.d.place == NULL && c.d.gain == NULL);
        }
        CHECK_NEAR(dpar_sum(comm, sum), loss[step], 1e-13);
        CHECK_INT(dpar_fsdp_update(c.f, &update), DPAR_OK);
    }
    CHECK_INT(dpar_fsdp_unshard(c.f, 0, DPAR_ACTION_FORWARD), DPAR_OK);
    for (i = 0; i < count_of[0]; i++) {
        CHECK_NEAR(c.p.token[i], weights[i], 1e-12);
    }
    CHECK_INT(dpar_fsdp_reshard(c.f, 0, DPAR_ACTION_FORWARD), DPAR_OK);
    for (l = 0; l < LAYERS; l++) {
        CHECK_INT(dpar_fsdp_unshard(c.f, l + 1, DPAR_ACTION_FORWARD), DPAR_OK);
        for (i = l * count_of[2]; i < (l + 1) * count_of[2]; i++) {
            CHECK_NEAR(c.p.matrix[i], weights[count_of[0] + count_of[1] + i], 1e-12);
        }
        CHECK_INT(dpar_fsdp_reshard(c.f, l + 1, DPAR_ACTION_FORWARD), DPAR_OK);
    }
    CHECK_INT(dpar_fsdp_free(c.f), DPAR_OK);
    free(c.weights);
    free(c.gradients);
    if (replicas) {
        (void)dpar_comm_free(shard);
        (void)dpar_comm_free(across);
    }
}

/* Trains with all arrays in one resident unit and with dpar_zero1 on the flat arrays, and compares
 * the weights bit by bit. */
static void flat_case(dpar_comm *comm)
{
    static __thread code a, z;
    const int32_t resident[1] = {1};
    const int64_t n = elements();
    dpar_optimizer optimizer = adamw();
    dpar_fsdp_array array[KINDS];
    dpar_fsdp_desc desc;
    dpar_ddp_desc ddp_desc;
    dpar_zero1_desc zero1_desc;
    dpar_ddp *ddp = NULL;
    dpar_zero1 *zero1 = NULL;
    double **const kind[KINDS] = {&a.p.token, &a.p.place, &a.p.matrix, &a.p.bias, &a.p.gain};
    const double *at;
    int step, k;
    start(&a);
    start(&z);
    describe(&a, array, 1);
    memset(&desc, 0, sizeof desc);
    desc.units = 1;
    desc.array = array;
    desc.arrays = KINDS;
    desc.resident = resident;
    desc.zero = 1;
    desc.type = DPAR_F64;
    desc.optimizer = optimizer;
    CHECK_INT(dpar_fsdp_make(comm, &desc, &a.f, NULL), DPAR_OK);
    memset(&ddp_desc, 0, sizeof ddp_desc);
    ddp_desc.params = 1;
    ddp_desc.count = &n;
    ddp_desc.type = DPAR_F64;
    ddp_desc.gradients = z.gradients;
    memset(&zero1_desc, 0, sizeof zero1_desc);
    zero1_desc.weights = z.weights;
    zero1_desc.optimizer = &optimizer;
    CHECK_INT(dpar_ddp_make(comm, &ddp_desc, &ddp, NULL), DPAR_OK);
    CHECK_INT(dpar_zero1_make(ddp, &zero1_desc, &zero1, NULL), DPAR_OK);
    for (step = 0; step < STEPS; step++) {
        dpar_fsdp *f = a.f;
        dpar_fsdp_zero(f);
        memset(z.gradients, 0, (size_t)n * sizeof *z.gradients);
        CHECK_INT(dpar_fsdp_begin(f, 1), DPAR_OK);
        a.f = NULL; /* no other call is needed */
        CHECK(forward(&a, step + comm->rank) == forward(&z, step + comm->rank));
        backward(&a, step + comm->rank);
        backward(&z, step + comm->rank);
        a.f = f;
        CHECK_INT(dpar_fsdp_end(f), DPAR_OK);
        CHECK_INT(dpar_fsdp_step(f, 0.05, 1.0), DPAR_OK);
        CHECK_INT(dpar_zero1_step(zero1, 0.05, 0.0), DPAR_OK);
    }
    CHECK_INT(dpar_fsdp_unshard(a.f, 0, DPAR_ACTION_FORWARD), DPAR_OK);
    for (k = 0, at = z.weights; k < KINDS; k++) {
        CHECK(memcmp(*kind[k], at, (size_t)array[k].count * sizeof *at) == 0);
        at += array[k].count;
    }
    CHECK_INT(dpar_fsdp_reshard(a.f, 0, DPAR_ACTION_FORWARD), DPAR_OK);
    CHECK_INT(dpar_fsdp_free(a.f), DPAR_OK);
    CHECK_INT(dpar_zero1_free(zero1), DPAR_OK);
    CHECK_INT(dpar_ddp_free(ddp), DPAR_OK);
    free(a.weights);
    free(a.gradients);
    free(z.weights);
    free(z.gradients);
}

/* ---- wrong input ------------------------------------------------------------------------------- */

/* Makes an fsdp that must fail with this status on all ranks. Compares the message of rank 0. */
static void refused(dpar_comm *comm, const dpar_fsdp_desc *desc, dpar_status expected,
                    const char *text)
{
    dpar_fsdp *f = NULL;
    dpar_why why;
    why.text[0] = 0;
    CHECK_INT(dpar_fsdp_make(comm, desc, &f, &why), expected);
    CHECK(f == NULL);
    if (text != NULL && comm->rank == 0) {
        CHECK_TEXT(why.text, text);
    }
    if (f != NULL) {
        (void)dpar_fsdp_free(f);
    }
}

static void wrong_input(dpar_comm *comm)
{
    static __thread code c;
    int32_t resident[LAYERS + 1] = {1, 0};
    dpar_fsdp_array array[KINDS];
    dpar_fsdp_desc desc, other;
    dpar_fsdp *f = NULL;
    start(&c);
    memset(&desc, 0, sizeof desc);
    desc.units = LAYERS + 1;
    desc.array = array;
    desc.arrays = KINDS;
    desc.resident = resident;
    desc.type = DPAR_F64;
    desc.optimizer = adamw();
    describe(&c, array, 0);
    other = desc;
    other.array = NULL;
    refused(comm, &other, DPAR_E_ARG,
            "fsdp: arrays is 5, but must be 0 or more; above 0, desc.array must not be NULL, but "
            "desc.count and desc.params_per_unit must");
    other = desc;
    other.arrays = -1;
    refused(comm, &other, DPAR_E_ARG, NULL);
    other = desc;
    other.count = count_of;
    refused(comm, &other, DPAR_E_ARG, NULL);
    array[2].unit = 2;
    refused(
        comm, &desc, DPAR_E_ARG,
        "fsdp: array 2 has 3 slices of 25 elements from unit 2 on, but sizes must be 0 or more, "
        "the units among the 4 that exist, and not resident if there are several slices");
    array[2].unit = -1;
    refused(comm, &desc, DPAR_E_ARG, NULL);
    describe(&c, array, 0);
    array[3].count = -1;
    refused(comm, &desc, DPAR_E_ARG, NULL);
    describe(&c, array, 0);
    array[3].slices = -1;
    refused(comm, &desc, DPAR_E_ARG, NULL);
    describe(&c, array, 0);
    resident[2] = 1;
    refused(comm, &desc, DPAR_E_ARG, NULL);
    resident[2] = 2;
    refused(comm, &desc, DPAR_E_ARG, NULL);
    resident[2] = 0;
    resident[0] = 7;
    refused(comm, &desc, DPAR_E_ARG, "fsdp: resident[0] is 7, but must be 0 or 1");
    resident[0] = 1;
    c.p.place = c.p.token + 3; /* the arrays overlap */
    refused(comm, &desc, DPAR_E_ARG,
            "dpar_fsdp_make: arrays 0 and 1 overlap or have the same pointer, but a weight that "
            "several layers use must be listed once, in a resident unit");
    point(&c.p, c.weights);
    array[1].weights = array[0].weights;
    refused(comm, &desc, DPAR_E_ARG, NULL);
    describe(&c, array, 0);
    array[1].gradients = array[4].gradients;
    refused(comm, &desc, DPAR_E_ARG, NULL);
    describe(&c, array, 0);
    if (comm->size > 1) {
        resident[0] = comm->rank == 1;
        refused(comm, &desc, DPAR_E_MISMATCH, NULL);
        resident[0] = 1;
        array[0].unit = comm->rank == 1;
        refused(comm, &desc, DPAR_E_MISMATCH, NULL);
        array[0].unit = 0;
        array[4].count += comm->rank == 1;
        refused(comm, &desc, DPAR_E_MISMATCH, NULL);
    }
    describe(&c, array, 0);
    CHECK_INT(dpar_fsdp_make(comm, &desc, &f, NULL), DPAR_OK);
    CHECK(c.p.token == c.weights);
    CHECK_INT(dpar_fsdp_begin(f, 0), DPAR_OK);
    CHECK(c.p.token != c.weights && c.d.token != NULL);
    CHECK_INT(dpar_fsdp_unshard(f, 1, DPAR_ACTION_FORWARD), DPAR_OK);
    CHECK(memcmp(c.p.matrix, c.weights + count_of[0] + count_of[1], 25 * sizeof(double)) == 0);
    CHECK_INT(dpar_fsdp_end(f), DPAR_E_ARG); /* unit 1 is in use: breaks the communicator */
    CHECK(c.p.token == NULL && c.p.matrix == NULL && c.d.token == NULL);
    CHECK_INT(dpar_fsdp_begin(f, 0), DPAR_E_ARG);
    CHECK(c.p.token == NULL);
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    free(c.weights);
    free(c.gradients);
}

static int everything(dpar_comm *comm, void *arg)
{
    double loss[STEPS], *weights = (double *)calloc((size_t)elements(), sizeof *weights);
    int zero, calls;
    (void)arg;
    train_alone(loss, weights);
    for (zero = 1; zero <= 3 && SAMPLES % comm->size == 0; zero++) {
        for (calls = 0; calls < 2; calls++) {
            tied_case(comm, zero, calls, 0, loss, weights);
            if (comm->size == 4) {
                tied_case(comm, zero, calls, 1, loss, weights);
            }
        }
    }
    flat_case(comm);
#ifndef USE_MPI
    wrong_input(comm);
#endif
    free(weights);
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, everything, NULL, 4, 3, NULL);
}
