/* SPDX-License-Identifier: MIT-0 */
/* gpt: tests the model of apps/gpt.h in f64. Gradients of each kind of parameter are compared with
 * finite differences. The input pass (I) followed by the weight pass (W) must give the same bits as
 * both at once. Losses and gradients of each cutting are compared with those of one rank that has
 * all tokens and all weights, to 1e-10 of the parameter's largest gradient, because sums are added
 * in another order.
 *
 *    gpt [processes|threads] [ranks]
 *    mpirun -np 4 gpt                         built with -DUSE_MPI */
#include "dpar_train.h"
#include "rank_program.h"

#define GPT_DOUBLE
#include "../../../apps/gpt.h"

enum { LAYERS = 4, SAMPLES = 2, LENGTH = 11 };

/* A model and all the arrays that one micro-batch needs. */
typedef struct model {
    gpt *g;
    gpt_config config;
    gpt_comms comms;
    gpt_batch batch;
    void *memory[GPT_PIECES], *kept[LAYERS], *pending[LAYERS];
    gpt_real *w[LAYERS][GPT_SLOTS], *dw[LAYERS][GPT_SLOTS], *x[LAYERS + 1];
    int32_t *ids, *targets;
    int layers;
} model;

static void *fresh(int64_t bytes)
{
    void *at = aligned_alloc(64, (size_t)(bytes + 127) / 64 * 64);
    if (at == NULL) {
        exit(1);
    }
    memset(at, 0, (size_t)(bytes + 127) / 64 * 64);
    return at;
}

/* Returns token t of sample s of a generated text. */
static int32_t text(int64_t s, int64_t t, int32_t vocab)
{
    return (int32_t)(dpar_random_uniform(3, 4, (uint64_t)(s * 1000 + t)) * vocab);
}

/* Makes a model whose batch holds the samples of the text from first_sample on. */
static int model_make(model *m, const gpt_config *config, const gpt_comms *comms, int first_sample)
{
    const int32_t n = config->samples * (LENGTH + 1);
    int32_t whole[2 * SAMPLES * 8 * (LENGTH + 1)], i, slot;
    gpt_parameter p;
    int64_t bytes[GPT_PIECES];
    dpar_why why;
    memset(m, 0, sizeof *m);
    why.text[0] = 0;
    m->config = *config;
    m->comms = *comms;
    if (gpt_bytes(config, comms, bytes, &why) == DPAR_OK) {
        m->memory[GPT_PLANS] = fresh(bytes[GPT_PLANS]);
        m->memory[GPT_ARRAYS] = fresh(bytes[GPT_ARRAYS]);
    }
    if (m->memory[0] == NULL || gpt_init(m->memory, bytes, config, comms, &m->g, &why) != DPAR_OK) {
        printf("model: %s\n", why.text);
        return 1;
    }
    m->layers = gpt_layers(m->g);
    for (i = 0; i < m->layers; i++) {
        m->kept[i] = fresh(gpt_kept_bytes(m->g, i));
        m->pending[i] = fresh(gpt_pending_bytes(m->g, i));
        m->x[i] = (gpt_real *)fresh(m->g->own * config->width * (int64_t)sizeof(gpt_real));
        for (slot = 0; slot < GPT_SLOTS; slot++) {
            if (gpt_parameter_of(m->g, i, slot, &p)) {
                m->w[i][slot] = (gpt_real *)fresh(p.numel * (int64_t)sizeof(gpt_real));
                m->dw[i][slot] = (gpt_real *)fresh(p.numel * (int64_t)sizeof(gpt_real));
                gpt_fill(m->g, &p, m->w[i][slot]);
            }
        }
    }
    for (i = 0; i < n; i++) {
        whole[i] = text(first_sample + i / (LENGTH + 1), i % (LENGTH + 1), config->vocab);
    }
    m->ids = (int32_t *)fresh(m->g->tokens * 4);
    m->targets = (int32_t *)fresh(m->g->tokens * 4);
    gpt_pick(m->g, whole, LENGTH + 1, m->ids);
    gpt_pick(m->g, whole + 1, LENGTH + 1, m->targets);
    m->batch.ids = m->ids;
    m->batch.targets = m->targets;
    m->batch.balance = 1.0;
    return 0;
}

static int model_free(model *m)
{
    int i, slot;
    const int bad = gpt_close(m->g) != DPAR_OK;
    for (i = 0; i < m->layers; i++) {
        free(m->kept[i]);
        free(m->pending[i]);
        free(m->x[i]);
        for (slot = 0; slot < GPT_SLOTS; slot++) {
            free(m->w[i][slot]);
            free(m->dw[i][slot]);
        }
    }
    free(m->ids);
    free(m->targets);
    free(m->memory[GPT_PLANS]);
    free(m->memory[GPT_ARRAYS]);
    return bad;
}

static dpar_status model_forward(model *m)
{
    dpar_status st = DPAR_OK;
    int i;
    m->batch.loss = m->batch.counted = m->batch.balancing = 0.0;
    for (i = 0; i < m->layers && st == DPAR_OK; i++) {
        st =
            gpt_forward(m->g, i, (const gpt_real *const *)m->w[i], &m->batch,
                        i > 0 ? m->x[i - 1] : NULL, i < m->layers - 1 ? m->x[i] : NULL, m->kept[i]);
    }
    return st;
}

/* Runs backward with gradients added to arrays filled with `had`. If `apart` is set, runs the input
 * pass of all layers and then the weight pass of all. */
static dpar_status model_backward(model *m, double had, int apart)
{
    gpt_real *d[2];
    gpt_parameter p;
    dpar_status st = DPAR_OK;
    int64_t at;
    int i, slot;
    for (i = 0; i < 2; i++) {
        d[i] = (gpt_real *)fresh(m->g->own * m->config.width * (int64_t)sizeof(gpt_real));
    }
    for (i = m->layers - 1; i >= 0 && st == DPAR_OK; i--) {
        for (slot = 0; slot < GPT_SLOTS; slot++) {
            const int64_t numel = gpt_parameter_of(m->g, i, slot, &p) ? p.numel : 0;
            for (at = 0; at < numel; at++) {
                m->dw[i][slot][at] = had;
            }
        }
        st = gpt_backward(m->g, i, apart ? GPT_INPUT : GPT_BOTH, (const gpt_real *const *)m->w[i],
                          apart ? NULL : m->dw[i], &m->batch, d[i % 2], d[(i + 1) % 2], m->kept[i],
                          apart ? m->pending[i] : NULL);
    }
    for (i = m->layers - 1; i >= 0 && st == DPAR_OK && apart; i--) {
        st = gpt_backward(m->g, i, GPT_WEIGHT, NULL, m->dw[i], &m->batch, NULL, NULL, m->kept[i],
                          m->pending[i]);
    }
    free(d[0]);
    free(d[1]);
    return st;
}

/* Returns the number that the gradients are the derivative of. */
static double model_loss(model *m)
{
    return model_forward(m) == DPAR_OK ? m->batch.scale * m->batch.loss + m->batch.balancing : -1.0;
}

/* ---- one rank -------------------------------------------------------------------------------- */

static int differences(dpar_comm *self, const gpt_config *config, const char *what)
{
    const gpt_comms comms = {self, self, self, self};
    const double h = 1e-5;
    gpt_parameter p;
    model m;
    int i, slot, n, bad = model_make(&m, config, &comms, 0);
    m.batch.scale = 1.0 / (config->samples * LENGTH);
    bad += !(model_loss(&m) > 0.0) || model_backward(&m, 0.5, 0) != DPAR_OK;
    for (i = 0; i < m.layers && !bad; i++) {
        for (slot = 0; slot < GPT_SLOTS; slot++) {
            if (!gpt_parameter_of(m.g, i, slot, &p)) {
                continue;
            }
            for (n = 0; n < 6; n++) {
                const int64_t at = (int64_t)(dpar_random_uniform(9, (uint64_t)slot, (uint64_t)n) *
                                             (double)p.numel);
                gpt_real *w = m.w[i][slot] + at;
                const double had = *w, got = m.dw[i][slot][at] - 0.5;
                double up, down;
                *w = had + h;
                up = model_loss(&m);
                *w = had - h;
                down = model_loss(&m);
                *w = had;
                /* The tolerance covers h^2 times a third derivative, and the rounding of the loss
                 * divided by h. */
                if (!(fabs((up - down) / (2.0 * h) - got) <= 1e-6 * fabs(got) + 1e-8)) {
                    printf("%s, %s[%d]: %.9g by differences, %.9g\n", what, p.name, (int)at,
                           (up - down) / (2.0 * h), got);
                    bad++;
                }
            }
        }
    }
    return bad + model_free(&m);
}

/* ---- kernels of the model -------------------------------------------------------------------- */

static double number(int64_t stream, int64_t i)
{
    return 2.0 * dpar_random_uniform(17, (uint64_t)stream, (uint64_t)i) - 1.0;
}

static double apart(const gpt_real *a, const gpt_real *b, int64_t n)
{
    double most = 0.0;
    int64_t i;
    for (i = 0; i < n; i++) {
        most = fmax(most, fabs(a[i] - b[i]));
    }
    return most;
}

/* Compares products whose depth exceeds one block of the sum with those of the library, for one
 * width of vectors. gpt_loops.c tests the other loops and other shapes, in f32. */
static int products(const gpt_loops *loops)
{
    enum { MOST = 300 * 41 };
    gpt_real *a = (gpt_real *)fresh(4 * MOST * (int64_t)sizeof(gpt_real)), *b = a + MOST;
    gpt_real *c = b + MOST, *d = c + MOST;
    dpar_matmul p;
    int64_t i;
    int n, bad = 0;
    for (n = 0; n < 16; n++) {
        memset(&p, 0, sizeof p);
        p.type = GPT_TYPE;
        p.transpose_a = n % 2;
        p.transpose_b = n / 2 % 2;
        p.m = n < 8 ? 41 : 3;
        p.n = n < 8 ? 7 : 40;
        p.k = n / 4 % 2 == 0 ? 300 : n < 8 ? 5 : 0;
        p.alpha = 0.5;
        p.beta = n % 3 - 1.0;
        p.a = a;
        p.b = b;
        p.lda = (p.transpose_a ? p.m : p.k) + (p.k == 0);
        p.ldb = (p.transpose_b ? p.k : p.n) + (p.k == 0);
        p.ldc = p.n + 1;
        for (i = 0; i < MOST; i++) {
            a[i] = number(1, i);
            b[i] = number(2, i);
            c[i] = d[i] = number(3, i);
        }
        p.c = c;
        loops->product(&p);
        p.c = d;
        bad += dpar_matmul_host(NULL, &p) != DPAR_OK;
        bad += !(apart(c, d, MOST) <= 1e-12);
    }
    free(a);
    return bad;
}

/* Compares attention of more rows than one block with the library's. Query i sees the keys up to i
 * + high. */
static int attention(int64_t queries, int64_t keys, int64_t high)
{
    enum { HEADS = 4, GROUPS = 2, WIDTH = 5, MOST = 70 * HEADS * WIDTH, ARRAYS = 15 };
    gpt_real *x[ARRAYS];
    dpar_attention_desc l;
    dpar_attention_call c;
    gpt g;
    int64_t i;
    int n, own, bad = 0;
    memset(&l, 0, sizeof l);
    memset(&c, 0, sizeof c);
    memset(&g, 0, sizeof g);
    for (n = 0; n < ARRAYS; n++) {
        x[n] = (gpt_real *)fresh(MOST * (int64_t)sizeof(gpt_real));
        for (i = 0; i < MOST; i++) {
            x[n][i] = n < 5 ? number(n, i) : 0.25; /* initial values that gradients are added to */
        }
    }
    g.config.length = (int32_t)keys;
    g.scores = (gpt_real *)fresh(2 * GPT_ROWS * keys * (int64_t)sizeof(gpt_real));
    l.heads = HEADS;
    l.groups = GROUPS;
    l.width = WIDTH;
    l.type = GPT_TYPE;
    c.layer = &l;
    c.user = &g;
    c.queries = queries;
    c.keys = keys;
    c.low = -keys - queries;
    c.high = high;
    c.q = x[0];
    c.k = x[1];
    c.v = x[2];
    for (own = 0; own < 2; own++) {
        c.out = x[5 + own];
        c.lse = x[7 + own];
        own ? gpt_attend_block(&c) : dpar_attention_host(&c);
    }
    /* the lse of a row that sees nothing is -1e30 or less */
    for (i = 0; i < queries * HEADS; i++) {
        bad += !(fabs(x[7][i] - x[8][i]) <= 1e-12 || (x[7][i] <= -1e30 && x[8][i] <= -1e30));
    }
    bad += !(apart(x[5], x[6], queries * HEADS * WIDTH) <= 1e-12);
    c.out = x[5];
    c.lse = x[7];
    c.out_gradient = x[3];
    c.delta = x[4];
    for (own = 0; own < 2; own++) {
        c.q_gradient = x[9 + own];
        c.k_gradient = x[11 + own];
        c.v_gradient = x[13 + own];
        own ? gpt_attend_block_back(&c) : dpar_attention_host(&c);
    }
    for (n = 9; n < ARRAYS; n += 2) {
        bad += !(apart(x[n], x[n + 1], MOST) <= 1e-12);
    }
    for (n = 0; n < ARRAYS; n++) {
        free(x[n]);
    }
    free(g.scores);
    return bad;
}

/* ---- models cut over ranks ------------------------------------------------------------------- */

/* How the ranks are used: data x cp x tp. Experts are spread over ep of the data x cp ranks. */
typedef struct cutting {
    int tp, cp, data, ep;
} cutting;

/* Compares the biases of experts after one step that uses the loads of all ranks. */
static int same_biases(model *m, model *one)
{
    const double *a, *b;
    double most = 0.0, before;
    int i, e, bad = model_forward(m) != DPAR_OK || model_forward(one) != DPAR_OK;
    before = one->batch.loss;
    gpt_steer(m->g, 0.3);
    gpt_steer(one->g, 0.3);
    bad += model_forward(one) != DPAR_OK || !(fabs(one->batch.loss - before) > 0.0);
    for (i = 0; i < m->layers; i++) {
        a = gpt_bias(m->g, i);
        b = gpt_bias(one->g, i);
        bad += (a == NULL) != (b == NULL);
        for (e = 0; e < m->config.experts && a != NULL && b != NULL; e++) {
            bad += !(fabs(a[e] - b[e]) <= 0.0);
            most = fmax(most, fabs(a[e]));
        }
    }
    return bad + !(most > 0.0);
}

/* Returns the value of the whole array at position `at` of this rank's piece. */
static double piece_of(const gpt_parameter *p, const gpt_real *whole, int64_t at)
{
    const int64_t columns = p->local[2], rows = p->local[1];
    const int64_t k = p->at[2] + at % columns, j = p->at[1] + at / columns % rows;
    const int64_t i = p->at[0] + at / columns / rows;
    return i < p->whole[0] ? whole[(i * p->whole[1] + j) * p->whole[2] + k] : 0.0; /* padding */
}

static int same_gradients(model *m, model *one, dpar_comm *edp, const char *what)
{
    int bad = 0, i, slot;
    int64_t at;
    gpt_parameter p, q;
    for (i = 0; i < m->layers; i++) {
        bad += gpt_sum(m->g, i, m->dw[i]) != DPAR_OK;
        for (slot = 0; slot < GPT_SLOTS && !bad; slot++) {
            double most = 0.0, worst = 0.0;
            if (!gpt_parameter_of(m->g, i, slot, &p) || !gpt_parameter_of(one->g, i, slot, &q)) {
                continue;
            }
            bad += dpar_all_reduce(p.expert ? edp : m->comms.data, m->dw[i][slot], m->dw[i][slot],
                                   p.numel, DPAR_F64, DPAR_SUM, NULL) != DPAR_OK;
            for (at = 0; at < q.numel; at++) {
                most = fmax(most, fabs(one->dw[i][slot][at]));
            }
            for (at = 0; at < p.numel; at++) {
                worst = fmax(worst, fabs(m->dw[i][slot][at] - piece_of(&p, one->dw[i][slot], at)));
                bad += !(fabs(m->w[i][slot][at] - piece_of(&p, one->w[i][slot], at)) <= 0.0);
            }
            if (!(worst <= 1e-10 * most) || !(most > 0.0)) {
                printf("%s, rank %d: %s: gradients up to %g differ by %g\n", what,
                       (int)m->comms.data->rank, p.name, most, worst);
                bad++;
            }
        }
    }
    return bad;
}

/* Checks that the input pass followed by the weight pass gives the bits of both at once. */
static int same_apart(model *m)
{
    gpt_real *had[LAYERS][GPT_SLOTS];
    gpt_parameter p;
    int i, slot, bad;
    memcpy(had, m->dw, sizeof had);
    for (i = 0; i < m->layers; i++) {
        for (slot = 0; slot < GPT_SLOTS; slot++) {
            if (gpt_parameter_of(m->g, i, slot, &p)) {
                m->dw[i][slot] = (gpt_real *)fresh(p.numel * (int64_t)sizeof(gpt_real));
            }
        }
    }
    bad = model_forward(m) != DPAR_OK || model_backward(m, 0.0, 1) != DPAR_OK;
    for (i = 0; i < m->layers; i++) {
        for (slot = 0; slot < GPT_SLOTS; slot++) {
            if (gpt_parameter_of(m->g, i, slot, &p)) {
                bad +=
                    memcmp(had[i][slot], m->dw[i][slot], (size_t)p.numel * sizeof(gpt_real)) != 0;
                free(m->dw[i][slot]);
            }
        }
    }
    memcpy(m->dw, had, sizeof had);
    return bad;
}

static int cut_case(dpar_comm *c, dpar_comm *self, const cutting *how, gpt_config config,
                    const char *what)
{
    const int tp = c->rank % how->tp, cp = c->rank / how->tp % how->cp;
    const int data = c->rank / how->tp, replica = c->rank / how->tp / how->cp;
    const gpt_comms alone = {self, self, self, self};
    gpt_comms comms;
    dpar_comm *edp = NULL;
    double loss;
    model m, one;
    char name[120];
    int bad = 0;
    snprintf(name, sizeof name, "%s, tp %d%s, cp %d%s, data %d, ep %d", what, how->tp,
             config.sp ? " sp" : "", how->cp, config.ulysses ? " ulysses" : "", how->data, how->ep);
    bad += dpar_comm_split(c, data, tp, &comms.tp) != DPAR_OK;
    bad += dpar_comm_split(c, replica * how->tp + tp, cp, &comms.cp) != DPAR_OK;
    bad += dpar_comm_split(c, tp, data, &comms.data) != DPAR_OK;
    bad += dpar_comm_split(comms.data, data / how->ep, data, &comms.ep) != DPAR_OK;
    bad += dpar_comm_split(comms.data, data % how->ep, data, &edp) != DPAR_OK;
    bad = bad ? bad : model_make(&m, &config, &comms, replica * SAMPLES);
    config.samples = SAMPLES * how->data;
    config.sp = config.ulysses = 0;
    bad = bad ? bad : model_make(&one, &config, &alone, 0);
    if (bad) {
        return 1;
    }
    m.batch.scale = one.batch.scale = 1.0 / (config.samples * LENGTH);
    bad += config.steer ? same_biases(&m, &one) : 0;
    bad += !(model_loss(&one) > 0.0) || model_backward(&one, 0.0, 0) != DPAR_OK;
    bad += model_forward(&m) != DPAR_OK || model_backward(&m, 0.0, 0) != DPAR_OK;
    bad += same_apart(&m);
    (void)model_forward(&m);
    loss = m.batch.loss;
    bad += dpar_all_reduce(comms.data, &loss, &loss, 1, DPAR_F64, DPAR_SUM, NULL) != DPAR_OK;
    bad += !(fabs(loss - one.batch.loss) <= 1e-12 * one.batch.loss);
    bad += !(fabs(m.batch.balancing - one.batch.balancing) <= 1e-12);
    if (bad) {
        printf("%s: %s, %s\n", name, comms.tp->why.text, comms.ep->why.text);
    }
    bad += bad ? 0 : same_gradients(&m, &one, edp, name);
    bad += model_free(&m) + model_free(&one);
    bad += dpar_comm_free(edp) != DPAR_OK || dpar_comm_free(comms.ep) != DPAR_OK;
    bad += dpar_comm_free(comms.data) != DPAR_OK || dpar_comm_free(comms.cp) != DPAR_OK;
    return bad + (dpar_comm_free(comms.tp) != DPAR_OK);
}

static gpt_config plain(int samples)
{
    gpt_config c;
    memset(&c, 0, sizeof c);
    c.vocab = 19;
    c.width = 16;
    c.blocks = 2;
    c.heads = 4;
    c.groups = 2;
    c.hidden = 22;
    c.samples = samples;
    c.length = LENGTH;
    c.seed = 1;
    return c;
}

/* Returns a config with experts in the second block. */
static gpt_config mixed(int samples)
{
    gpt_config c = plain(samples);
    c.experts = 5;
    c.choices = 2;
    c.every = 2;
    c.expert_hidden = 10;
    c.shared = 6;
    c.balance = 0.1;
    return c;
}

/* Checks that a tied head has the embedding's name and numbers, and that invalid models are
 * refused. */
static int small_things(dpar_comm *self)
{
    gpt_comms comms = {self, self, self, self};
    gpt_config c = plain(1);
    gpt_parameter a, b;
    int64_t bytes[GPT_PIECES];
    dpar_why why;
    model m;
    int bad;
    c.tied = 1;
    bad = model_make(&m, &c, &comms, 0) || !gpt_parameter_of(m.g, 0, GPT_TABLE, &a) ||
          !gpt_parameter_of(m.g, m.layers - 1, GPT_TABLE, &b);
    bad += strcmp(a.name, b.name) != 0 || a.tied || !b.tied || gpt_layers(m.g) != LAYERS;
    bad += !(apart(m.w[0][GPT_TABLE], m.w[LAYERS - 1][GPT_TABLE], a.numel) <= 0.0);
    bad += model_free(&m) + (gpt_close(NULL) != DPAR_OK);
    c.heads = 3; /* 16 is not a multiple of 3 */
    bad += gpt_bytes(&c, &comms, bytes, &why) != DPAR_E_ARG || strstr(why.text, "heads") == NULL;
    c.heads = 4;
    comms.ep = NULL;
    return bad + (gpt_bytes(&c, &comms, bytes, &why) != DPAR_E_ARG);
}

static int one_rank(dpar_comm *self)
{
    gpt_config c = plain(2);
    const int widths[4] = {64, 32, 16, 0};
    int i, bad = attention(70, 70, 0) + attention(66, 70, 7) + attention(70, 41, -40);
    for (i = 0; i < 4; i++) {
        bad += gpt_loops_of(widths[i]) != NULL ? products(gpt_loops_of(widths[i])) : 0;
    }
    bad += small_things(self) + differences(self, &c, "plain");
    c.layer_norm = c.gelu = 1;
    c.smoothing = 0.1;
    c.z_loss = 1e-3;
    bad += differences(self, &c, "GPT-2");
    c = mixed(2);
    bad += differences(self, &c, "experts");
    c.gelu = 1;
    c.shared = 0;
    c.drop = DPAR_EXPERTS_DROP_POSITION;
    c.factor = 0.8;
    return bad + differences(self, &c, "experts, capacity");
}

static int cuttings(dpar_comm *c, dpar_comm *self)
{
    cutting how;
    int bad = 0, ways;
    for (how.tp = 1; how.tp <= 4 && how.tp <= c->size; how.tp++) {
        for (how.cp = 1; how.tp * how.cp <= c->size; how.cp++) {
            how.data = c->size / how.tp / how.cp;
            if (how.tp * how.cp * how.data != c->size) {
                continue;
            }
            for (ways = 0; ways < 4; ways++) {
                gpt_config config = plain(SAMPLES);
                config.sp = ways % 2;
                config.ulysses = ways / 2;
                config.layer_norm = config.gelu = config.tied = ways / 2;
                how.ep = 1;
                bad += cut_case(c, self, &how, config, "plain");
                config = mixed(SAMPLES);
                config.sp = ways % 2;
                config.ulysses = 1 - ways / 2;
                config.steer = ways / 2;
                how.ep = how.data * how.cp;
                how.ep = how.ep % 2 == 0 && ways == 1 ? how.ep / 2 : how.ep;
                bad += cut_case(c, self, &how, config, "experts");
            }
        }
    }
    return bad;
}

static int everything(dpar_comm *c, void *arg)
{
    const double began = now();
    dpar_comm *self = NULL;
    int bad = dpar_comm_split(c, c->rank, 0, &self) != DPAR_OK;
    (void)arg;
    bad += c->rank == 0 ? one_rank(self) : 0;
    bad += cuttings(c, self);
    bad += dpar_comm_free(self) != DPAR_OK;
    return all_right(c, bad, began);
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, everything, NULL, 4, 2, NULL);
}
