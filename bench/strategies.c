/* SPDX-License-Identifier: MIT-0 */
/* What a strategy costs above the bare collectives of the same bytes: two ranks, each on a core of
 * its own, in turns in one run.
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. bench/strategies.c -o strategies
 *     ./strategies [seconds [word]]
 *
 * word: only rows that contain it. A sample is one step after both ranks have rewritten what
 * travels; the slower rank counts. All use memory of dpar_comm_alloc. Columns: median us of the
 * bare collectives (or messages), of those and of the memory that the strategy's own definition has
 * to read and write beside them (a memcpy of as many bytes; what they are stands at the row; 0 for
 * most), of the strategy, and the ratios to both. Limit: 1.10 of the second. The last step of each
 * row is checked, and that it sent as many bytes as the bare one. Matrix products and attention are
 * callbacks that do nothing: what is left is what dpar adds to them.
 *
 * Exit codes: 0 measured (a row that misses its limit says so); 1 no memory, an operation failed,
 * or a result is wrong; 2 wrong arguments. */
#include "dpar_train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

enum { SAMPLES = 400, RANKS = 2, UNITS = 6, MICROS = 16, MIB = 1 << 20 };

/* A row's memory and what it does with it. */
typedef struct job job;
typedef struct row {
    const char *name;
    dpar_status (*open)(job *j);
    void (*rewrite)(job *j); /* before each of the two */
    dpar_status (*bare)(job *j);
    dpar_status (*strategy)(job *j);
    int64_t (*wrong)(job *j);
    int32_t n;     /* ddp: tensors; fsdp: ZeRO's number; tensor: 1 sequence parallel */
    int64_t numel; /* of each; the message's */
    int32_t narrow, scatter, finite; /* ddp; fsdp: bf16, backward adds, the second micro-batch */
    int64_t bucket_bytes;
    int64_t beside; /* KiB that have to be copied beside the collectives, or what costs as much */
    int64_t window; /* KiB of memory in which that happens, over and over; 0: all */
} row;
enum { BLOCKS = 12 };
struct job {
    dpar_comm *c;
    const row *r;
    void *block[BLOCKS]; /* of dpar_comm_alloc */
    int32_t blocks;
    dpar_ddp *ddp, *over;
    dpar_zero1 *zero1;
    dpar_optimizer sgd;
    dpar_fsdp *fsdp;
    void *gradient[UNITS]; /* where fsdp's were computed last */
    int32_t turns;
    dpar_tensor_parallel tensor;
    dpar_attention_plan *ring;
    int64_t ends[2];
    dpar_attention_plan *ulysses;
    const void *came; /* the keys that the ring was given last */
    dpar_experts_plan *experts;
    dpar_experts_routing *route;
    int64_t count[2][RANKS];
    dpar_schedule list;
    void *list_room[2];
    dpar_pipeline *pipeline;
    int64_t sent[3];    /* bytes of the last step of each kind */
    int64_t seen, done; /* by callbacks: what is wrong, and how many there were */
    dpar_work work[64];
    dpar_why why;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Memory that both sides use, zeroed. */
static void *room(job *j, int64_t bytes)
{
    void *memory = NULL;
    if (j->blocks == BLOCKS) {
        fprintf(stderr, "strategies: row '%s' asks for more than %d blocks of memory\n", j->r->name,
                BLOCKS);
        exit(1);
    }
    if (dpar_comm_alloc(j->c, bytes, &memory) != DPAR_OK) {
        fprintf(stderr, "strategies: row '%s': no memory for a block of %lld bytes: %s\n",
                j->r->name, (long long)bytes, j->c->why.text);
        exit(1);
    }
    j->block[j->blocks] = memory;
    j->blocks++;
    return memory;
}

/* Memory of this rank alone, zeroed; one byte at least. */
static void *own_room(const char *name, int64_t bytes)
{
    void *memory = calloc(1, (size_t)bytes + 1);
    if (memory == NULL) {
        fprintf(stderr, "strategies: row '%s': no memory for %lld bytes\n", name, (long long)bytes);
        exit(1);
    }
    return memory;
}

static void fill(void *at, int64_t n, float with)
{
    float *f = (float *)at;
    for (int64_t i = 0; i < n; i++) {
        f[i] = with;
    }
}

static int64_t differ(const void *at, int64_t n, float from)
{
    const float *f = (const float *)at;
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++) {
        wrong += f[i] != from;
    }
    return wrong;
}

static float own_value(const job *j)
{
    return (float)(j->c->rank + 1);
}

/* ---- ddp: gradients of n tensors of numel elements each ---- */

static dpar_status ddp_open(job *j)
{
    const row *r = j->r;
    dpar_ddp_desc o = {0};
    int64_t *numel = (int64_t *)own_room(r->name, r->n * (int64_t)sizeof *numel);
    dpar_status st;
    for (int32_t i = 0; i < r->n; i++) {
        numel[i] = r->numel;
    }
    o.params = r->n;
    o.count = numel;
    o.type = DPAR_F32;
    o.wire_type = r->narrow ? DPAR_BF16 : DPAR_TYPE_NONE;
    o.require_ready = 1;
    o.check_finite = r->finite;
    o.bucket_bytes = r->bucket_bytes;
    (void)room(j, r->n * r->numel * 4 + MIB);
    st = dpar_ddp_make(j->c, &o, &j->ddp, &j->why);
    free(numel);
    return st;
}

static void ddp_rewrite(job *j)
{
    if (j->r->narrow) {
        fill(j->block[0], (j->r->n * j->r->numel * 4 + MIB) / 4, own_value(j));
    }
    for (int32_t i = 0; i < j->r->n; i++) {
        fill(dpar_ddp_gradient(j->ddp, i, NULL), j->r->numel, own_value(j));
    }
}

static dpar_status ddp_strategy(job *j)
{
    dpar_status st = dpar_ddp_begin(j->ddp, 1);
    for (int32_t i = j->r->n - 1; i >= 0 && st == DPAR_OK; i--) {
        st = dpar_ddp_ready(j->ddp, i);
    }
    return st == DPAR_OK ? dpar_ddp_end(j->ddp) : st;
}

/* The same collectives of the same memory, posted one after the other. With a narrow wire: of that
 * type, already rounded, which is what is on the wire. */
static dpar_status ddp_bare(job *j)
{
    const int32_t type = j->r->narrow ? DPAR_BF16 : DPAR_F32, each = j->r->narrow ? 2 : 4;
    unsigned char *all =
        (unsigned char *)(j->r->narrow ? j->block[0] : dpari_ddp_bucket(j->ddp, 0, NULL));
    dpar_bucket b;
    int32_t k;
    dpar_status st = DPAR_OK;
    for (k = 0; dpari_ddp_bucket(j->ddp, k, &b) != NULL && st == DPAR_OK; k++) {
        unsigned char *data = all + b.lo * each;
        st = dpar_all_reduce(j->c, data, data, b.hi - b.lo, type, DPAR_AVG, &j->work[k]);
    }
    return st == DPAR_OK ? dpar_wait_all(j->work, k) : st;
}

static int64_t ddp_wrong(job *j)
{
    int64_t wrong = 0;
    dpar_bucket b;
    const float *all = (const float *)dpari_ddp_bucket(j->ddp, 0, NULL);
    for (int32_t k = 0; dpari_ddp_bucket(j->ddp, k, &b) != NULL; k++) {
        for (int64_t i = b.lo; i < b.lo + b.used; i++) { /* (1 + 2) / 2; padding is 0 */
            wrong += all[i] != 1.5f;
        }
    }
    return wrong;
}

/* ---- ddp over the caller's gradients: n parts of numel elements in one array; n 1: nothing is
 * reported. Beside one all-reduce of all. ---- */

static int64_t over_all(const job *j)
{
    return j->r->n * j->r->numel;
}

static dpar_status over_open(job *j)
{
    dpar_ddp_desc o = {0};
    int64_t *count = (int64_t *)own_room(j->r->name, j->r->n * (int64_t)sizeof *count);
    dpar_status st;
    for (int32_t i = 0; i < j->r->n; i++) {
        count[i] = j->r->numel;
    }
    o.params = j->r->n;
    o.count = count;
    o.type = DPAR_F32;
    o.gradients = room(j, over_all(j) * 4);
    o.bucket_bytes = j->r->bucket_bytes;
    st = dpar_ddp_make(j->c, &o, &j->over, &j->why);
    free(count);
    return st;
}

static void over_rewrite(job *j)
{
    fill(j->block[0], over_all(j), own_value(j));
}

static dpar_status over_bare(job *j)
{
    return dpar_all_reduce(j->c, j->block[0], j->block[0], over_all(j), DPAR_F32, DPAR_AVG, NULL);
}

static dpar_status over_strategy(job *j)
{
    dpar_status st = DPAR_OK;
    for (int32_t i = j->r->n - 1; i >= 0 && j->r->n > 1 && st == DPAR_OK; i--) {
        st = dpar_ddp_ready(j->over, i);
    }
    return st == DPAR_OK ? dpar_ddp_end(j->over) : st;
}

static int64_t over_wrong(job *j)
{
    return differ(j->block[0], over_all(j), 1.5f); /* (1 + 2) / 2 */
}

/* ---- ZeRO-1 of the same: SGD with rate 0 on weights of 3. Beside a reduce-scatter, the optimizer
 * on the share, and an all-gather. ---- */

static dpar_status zero1_open(job *j)
{
    const dpar_status st = over_open(j);
    dpar_zero1_desc o = {0};
    fill(room(j, over_all(j) * 4), over_all(j), 3.0f);
    dpar_optimizer_init(&j->sgd, DPAR_OPTIMIZER_SGD);
    o.weights = j->block[1];
    o.optimizer = &j->sgd;
    return st == DPAR_OK ? dpar_zero1_make(j->over, &o, &j->zero1, &j->why) : st;
}

static dpar_status zero1_bare(job *j)
{
    const int64_t share = over_all(j) / j->c->size;
    float *g = (float *)j->block[0], *w = (float *)j->block[1], *own = w + share * j->c->rank;
    dpar_optimizer_piece p = {0};
    dpar_status st =
        dpar_reduce_scatter(j->c, g, g + share * j->c->rank, share, DPAR_F32, DPAR_AVG, NULL);
    p.weight = own;
    p.gradient = g + share * j->c->rank;
    p.weight_type = p.gradient_type = DPAR_F32;
    p.count = share;
    if (st == DPAR_OK) {
        st = dpar_optimizer_step(&j->sgd, &p, 1, 0.0, 1.0);
    }
    return st == DPAR_OK ? dpar_all_gather(j->c, own, w, share, DPAR_F32, NULL) : st;
}

static dpar_status zero1_strategy(job *j)
{
    return dpar_zero1_step(j->zero1, 0.0, 0.0);
}

static int64_t zero1_wrong(job *j)
{
    const int64_t share = over_all(j) / j->c->size;
    return differ((float *)j->block[0] + share * j->c->rank, share, 1.5f) +
           differ(j->block[1], over_all(j), 3.0f);
}

/* ---- fsdp: UNITS units of numel elements; gradients of the values 1 and 2 ---- */

static int64_t fsdp_bytes(const job *j)
{
    return j->r->numel * (j->r->narrow ? 2 : 4);
}

static dpar_status fsdp_open(job *j)
{
    dpar_fsdp_desc o = {0};
    int64_t numel[UNITS];
    float *value = (float *)own_room(j->r->name, j->r->numel * 4);
    dpar_status st;
    for (int32_t u = 0; u < UNITS; u++) {
        numel[u] = j->r->numel;
    }
    o.zero = j->r->n;
    o.type = DPAR_F32;
    o.compute_type = j->r->narrow ? DPAR_BF16 : DPAR_F32;
    o.overwrite_gradients = !j->r->scatter;
    o.prefetch = 1;
    o.optimizer.kind = DPAR_OPTIMIZER_SGD;
    o.units = UNITS;
    o.count = numel;
    st = dpar_fsdp_make(j->c, &o, &j->fsdp, &j->why);
    for (int32_t i = 0; i < 4; i++) { /* weights, gradients, whole or shards */
        (void)room(j, UNITS * fsdp_bytes(j));
    }
    fill(value, j->r->numel, 3.0f);
    for (int32_t u = 0; u < UNITS && st == DPAR_OK; u++) {
        st = dpar_fsdp_set(j->fsdp, u, value);
    }
    free(value);
    return st;
}

/* The model: weights are looked at, the first and the last element of each gradient computed; a
 * real one writes all of them. */
static void fsdp_compute(job *j, int32_t u, int backward)
{
    const int64_t last = j->r->numel - 1;
    const void *w = dpar_fsdp_weight(j->fsdp, u);
    void *g = backward ? dpar_fsdp_gradient(j->fsdp, u, NULL) : NULL;
    j->gradient[u] = g != NULL ? g : j->gradient[u];
    if (j->r->narrow) { /* 3, 1 and 2 as bf16 */
        const uint16_t *v = (const uint16_t *)w;
        j->seen += v == NULL || v[0] != 0x4040 || v[last] != 0x4040;
        if (g != NULL) {
            ((uint16_t *)g)[0] = ((uint16_t *)g)[last] = j->c->rank == 0 ? 0x3f80 : 0x4000;
        }
    } else {
        const float *v = (const float *)w;
        j->seen += v == NULL || v[0] != 3.0f || v[last] != 3.0f;
        if (g != NULL) {
            ((float *)g)[0] = ((float *)g)[last] = own_value(j);
        }
    }
}

static dpar_status fsdp_pass(job *j, int32_t last_one)
{
    dpar_fsdp *f = j->fsdp;
    dpar_status st = dpar_fsdp_begin(f, last_one);
    int32_t u;
    for (u = 0; u < UNITS && st == DPAR_OK; u++) {
        st = dpar_fsdp_unshard(f, u, DPAR_ACTION_FORWARD);
        if (st == DPAR_OK) {
            fsdp_compute(j, u, 0);
            st = dpar_fsdp_reshard(f, u, DPAR_ACTION_FORWARD);
        }
    }
    for (u = UNITS - 1; u >= 0 && st == DPAR_OK; u--) {
        st = dpar_fsdp_unshard(f, u, DPAR_ACTION_BACKWARD);
        if (st == DPAR_OK) {
            fsdp_compute(j, u, 1);
            st = dpar_fsdp_reshard(f, u, DPAR_ACTION_BACKWARD);
        }
        if (st == DPAR_OK) {
            st = dpar_fsdp_ready(f, u);
        }
    }
    return st == DPAR_OK ? dpar_fsdp_end(f) : st;
}

/* What lies in the memory of gradients before backward: its reduction leaves it there, so that all
 * units have the same. Else it is 0: sums of own pieces would go into the next unit's. */
static int fsdp_stays(const job *j)
{
    return !j->r->narrow && !j->r->finite;
}

/* What bare moves; before the strategy its weights, by a step with rate 0, so that they are
 * gathered anew, and the memory in which gradients are computed. */
static void fsdp_rewrite(job *j)
{
    const int64_t words = fsdp_bytes(j) / 4;
    const int32_t grads = j->r->n == 1 ? UNITS : 1; /* else a pool of one unit */
    if (j->turns++ % 2 == 0) {
        fill(j->block[0], j->r->n < 3 ? UNITS * words : 0, own_value(j));
        fill(j->block[2], j->r->n < 3 ? 0 : UNITS * words / RANKS, own_value(j));
        fill(j->block[1], grads * words, own_value(j));
        return;
    }
    (void)dpar_fsdp_step(j->fsdp, 0.0, 1.0);
    if (j->r->finite) {
        dpar_fsdp_zero(j->fsdp);
        j->seen += fsdp_pass(j, 0) != DPAR_OK;
    }
    for (int32_t u = 0; u < grads && j->gradient[u] != NULL; u++) {
        fill(j->gradient[u], words, fsdp_stays(j) ? own_value(j) : 0.0f);
    }
}

static dpar_status fsdp_strategy(job *j)
{
    if (!j->r->finite) {
        dpar_fsdp_zero(j->fsdp);
    }
    return fsdp_pass(j, 1);
}

/* What one would call without dpar. Forward: all units gathered; backward with ZeRO-3 all but the
 * two that are still there, into a pool of two, which has no room for the shards that stay; else in
 * place. Gradients scattered: in place; with ZeRO-2 and 3 from a pool of one into the shards that
 * stay. */
static dpar_status fsdp_bare(job *j)
{
    const int32_t zero = j->r->n, again = zero == 3 ? UNITS - 2 : 0;
    const int32_t type = j->r->narrow ? DPAR_BF16 : DPAR_F32, gathers = j->r->finite ? 0 : UNITS;
    const int64_t n = j->r->numel, share = n / RANKS, bytes = fsdp_bytes(j), part = bytes / RANKS;
    unsigned char *weights = (unsigned char *)j->block[0], *grads = (unsigned char *)j->block[1];
    unsigned char *own = (unsigned char *)j->block[2], *sums = (unsigned char *)j->block[3];
    dpar_status st = DPAR_OK;
    for (int32_t k = 0; k < gathers + again && st == DPAR_OK; k++) {
        unsigned char *w = weights + (zero == 3 ? k % 2 : k) * bytes;
        const int32_t u = k < UNITS ? k : 2 * UNITS - 3 - k;
        st = dpar_all_gather(j->c, zero == 3 ? own + u * part : w + part * j->c->rank, w, share,
                             type, NULL);
    }
    for (int32_t u = 0; u < UNITS && st == DPAR_OK; u++) {
        unsigned char *g = grads + (zero == 1 ? u * bytes : 0);
        st = dpar_reduce_scatter(j->c, g, zero == 1 ? g + part * j->c->rank : sums + u * part,
                                 share, type, DPAR_AVG, NULL);
    }
    return st;
}

/* The first and the last element of each unit got 1 and 2: their average, once or twice, is with
 * the rank that has them. All others too, where they were there before and nothing zeroed them. */
static int64_t fsdp_wrong(job *j)
{
    double norm = 0.0;
    const dpar_status st = dpar_fsdp_norm(j->fsdp, &norm);
    const int64_t each = fsdp_stays(j) && !j->r->scatter ? j->r->numel : 2;
    const double want = (double)(each * UNITS) * 1.5 * 1.5 * (j->r->finite ? 4.0 : 1.0);
    return j->seen + (st != DPAR_OK || norm * norm < (1.0 - 1e-9) * want ||
                      norm * norm > (1.0 + 1e-9) * want);
}

/* ---- tensor: a column and a row layer, forward and backward; numel elements of x ---- */

enum { WIDTH = 1024 };

static dpar_status no_product(void *user, const dpar_matmul *call)
{
    (void)user;
    (void)call;
    return DPAR_OK;
}

static dpar_status tensor_open(job *j)
{
    const int64_t tokens = j->r->numel / WIDTH;
    const dpar_status st = dpar_tensor_parallel_init(&j->tensor, j->c, DPAR_F32, tokens,
                                                     j->r->n ? j->count[0] : NULL, &j->why);
    j->tensor.matmul = no_product;
    for (int32_t i = 0; i < 8; i++) {
        (void)room(j, j->r->numel * 4 + MIB);
    }
    return st;
}

static void tensor_rewrite(job *j)
{
    for (int32_t i = 0; i < 5; i++) {
        fill(j->block[i], j->r->numel, own_value(j));
    }
}

/* Blocks: 0 x or its gathering, 1 the part of y, 2 dy, 3 dx's part, 4 y and dx of own rows, 5 the
 * hidden activation, 6 weights. */
static dpar_status tensor_strategy(job *j)
{
    dpar_linear up = {DPAR_LINEAR_COLUMN, 0, WIDTH, 4}, down = {DPAR_LINEAR_ROW, 0, 4, WIDTH};
    dpar_linear_arrays a = {0}, b = {0};
    const int sequence = j->r->n;
    const int64_t own = sequence ? j->r->numel / RANKS : 0;
    dpar_status st;
    a.w = b.w = j->block[6];
    a.x = sequence ? (void *)((float *)j->block[4] + own) : j->block[0];
    a.gathered = sequence ? j->block[0] : NULL;
    a.y = j->block[5];
    a.dy = j->block[5];
    a.dx = sequence ? j->block[4] : j->block[3];
    a.gathered_dx = sequence ? j->block[3] : NULL;
    b.x = j->block[5];
    b.y = sequence ? j->block[4] : j->block[1];
    b.dy = sequence ? (void *)((float *)j->block[4] + own) : j->block[2];
    b.dx = j->block[5];
    b.gathered = sequence ? j->block[1] : NULL;
    st = dpar_linear_forward(&j->tensor, &up, &a);
    if (st == DPAR_OK) {
        st = dpar_linear_forward(&j->tensor, &down, &b);
    }
    b.gathered = sequence ? j->block[2] : NULL;
    if (st == DPAR_OK) {
        st = dpar_linear_backward(&j->tensor, &down, &b);
    }
    return st == DPAR_OK ? dpar_linear_backward(&j->tensor, &up, &a) : st;
}

static dpar_status tensor_bare(job *j)
{
    const int64_t n = j->r->numel, share = n / RANKS;
    float *own = (float *)j->block[4];
    dpar_status st;
    if (!j->r->n) {
        st = dpar_all_reduce(j->c, j->block[1], j->block[1], n, DPAR_F32, DPAR_SUM, NULL);
        return st != DPAR_OK
                   ? st
                   : dpar_all_reduce(j->c, j->block[3], j->block[3], n, DPAR_F32, DPAR_SUM, NULL);
    }
    st = dpar_all_gather(j->c, own + share, j->block[0], share, DPAR_F32, NULL);
    if (st == DPAR_OK) {
        st = dpar_reduce_scatter(j->c, j->block[1], own, share, DPAR_F32, DPAR_SUM, NULL);
    }
    if (st == DPAR_OK) {
        st = dpar_all_gather(j->c, own + share, j->block[2], share, DPAR_F32, NULL);
    }
    return st == DPAR_OK
               ? dpar_reduce_scatter(j->c, j->block[3], own, share, DPAR_F32, DPAR_SUM, NULL)
               : st;
}

static int64_t tensor_wrong(job *j)
{
    const int64_t n = j->r->numel, share = n / RANKS;
    if (!j->r->n) {
        return differ(j->block[1], n, 3.0f) + differ(j->block[3], n, 3.0f);
    }
    return differ(j->block[4], share, 3.0f) + differ(j->block[0], share, 1.0f) +
           differ((float *)j->block[2] + share, share, 2.0f);
}

/* ---- ring attention, forward: keys and values of numel elements travel once ---- */

enum { HEADS = 16, HEAD = 64 };

/* Sees no key: nothing is to be merged, and nothing computed. */
static void no_attention(const dpar_attention_call *call)
{
    const int64_t rows = call->queries * HEADS;
    ((job *)call->user)->came = call->k;
    for (int64_t i = 0; i < rows; i++) {
        ((float *)call->lse)[i] = -2e30f;
    }
}

static dpar_status ring_open(job *j)
{
    dpar_attention_desc layer = {0};
    const int64_t n = j->r->numel * 4, tokens = j->r->numel / (2 * HEADS * HEAD);
    dpar_status st;
    j->ends[1] = RANKS * tokens;
    st = dpar_packed_init(&layer.tokens, 1, j->ends, RANKS, DPAR_SPLIT_CHUNK, &j->why);
    layer.heads = HEADS;
    layer.width = HEAD;
    layer.type = DPAR_F32;
    layer.forward = no_attention;
    layer.user = j;
    for (int32_t i = 0; i < 4; i++) { /* k and v one after the other; q; out; what came, bare */
        (void)room(j, n);
    }
    (void)room(j, tokens * HEADS * 4);
    return st == DPAR_OK ? dpar_attention_make(j->c, &layer, &j->ring, &j->why) : st;
}

static void first_rewrite(job *j)
{
    fill(j->block[0], j->r->numel, own_value(j));
}

static dpar_status ring_strategy(job *j)
{
    dpar_attention_arrays a = {0};
    a.k = j->block[0];
    a.v = (float *)j->block[0] + j->r->numel / 2;
    a.q = j->block[1];
    a.out = j->block[2];
    a.lse = j->block[4];
    return dpar_attention_forward(j->ring, &a);
}

static dpar_status ring_bare(job *j)
{
    dpar_call call[4];
    memset(call, 0, sizeof call);
    for (int32_t i = 0; i < 4; i++) {
        const int64_t at = i / 2 * (j->r->numel / 2);
        call[i].kind = i % 2 == 0 ? DPAR_CALL_SEND : DPAR_CALL_RECV;
        call[i].type = DPAR_F32;
        call[i].root = 1 - j->c->rank;
        call[i].tag = i / 2;
        call[i].count = j->r->numel / 2;
        call[i].in = i % 2 == 0 ? (float *)j->block[0] + at : NULL;
        call[i].out = i % 2 == 0 ? NULL : (float *)j->block[3] + at;
    }
    return dpar_batch(j->c, call, 4, NULL);
}

static int64_t ring_wrong(job *j)
{
    return differ(j->came, j->r->numel, (float)(2 - j->c->rank)) + (j->ring->sent_bytes <= 0);
}

/* ---- Ulysses: numel elements a rank, tokens for heads and back; bare: two all-to-alls ---- */

static dpar_status ulysses_open(job *j)
{
    dpar_attention_desc layer = {0};
    dpar_status st;
    j->ends[1] = RANKS * (j->r->numel / (HEADS * HEAD));
    st = dpar_packed_init(&layer.tokens, 1, j->ends, RANKS, DPAR_SPLIT_EVEN, &j->why);
    layer.method = dpar_attention_ulysses;
    layer.heads = HEADS;
    layer.width = HEAD;
    layer.type = DPAR_F32;
    for (int32_t i = 0; i < 3; i++) {
        (void)room(j, j->r->numel * 4);
    }
    return st == DPAR_OK ? dpar_attention_make(j->c, &layer, &j->ulysses, &j->why) : st;
}

static dpar_status ulysses_strategy(job *j)
{
    const dpar_status st =
        dpar_attention_exchange(j->ulysses, DPAR_ATTENTION_Q, 0, j->block[0], j->block[1]);
    return st == DPAR_OK
               ? dpar_attention_exchange(j->ulysses, DPAR_ATTENTION_Q, 1, j->block[1], j->block[2])
               : st;
}

static dpar_status ulysses_bare(job *j)
{
    const int64_t n = j->r->numel / RANKS;
    const dpar_status st = dpar_all_to_all(j->c, j->block[0], j->block[1], n, DPAR_F32, NULL);
    return st == DPAR_OK ? dpar_all_to_all(j->c, j->block[1], j->block[2], n, DPAR_F32, NULL) : st;
}

/* Bare leaves the same numbers: once more, from memory without them. */
static int64_t ulysses_wrong(job *j)
{
    const int64_t n = j->r->numel;
    fill(j->block[1], n, 0.0f);
    fill(j->block[2], n, 0.0f);
    if (dpar_barrier(j->c, NULL) != DPAR_OK || ulysses_strategy(j) != DPAR_OK) {
        return 1;
    }
    return differ(j->block[2], n, own_value(j)) + differ(j->block[1], n / 2, 1.0f) +
           differ((float *)j->block[1] + n / 2, n / 2, 2.0f);
}

/* ---- experts: numel / 1024 tokens a rank of 512 elements, each to two of eight experts; bare:
 * all-to-alls of the rows that come, and back ---- */

enum { ROW = 512, EXPERTS = 8, CHOICES = 2 };

static dpar_status expert_open(job *j)
{
    dpar_experts_desc layer = {0};
    dpar_experts_choices choices = {0};
    const int64_t tokens = j->r->numel / (ROW * CHOICES);
    int32_t *chosen = (int32_t *)own_room(j->r->name, tokens * CHOICES * (int64_t)sizeof *chosen);
    int64_t i;
    dpar_status st = dpar_split_init(&layer.experts, DPAR_SPLIT_EVEN, EXPERTS, RANKS, 1, &j->why);
    layer.choices = CHOICES;
    layer.max_tokens = tokens;
    layer.width = ROW;
    layer.type = DPAR_F32;
    for (i = 0; i < tokens; i++) { /* one of the own, one of the other rank's */
        chosen[2 * i] = (int32_t)(i * 5 % 4);
        chosen[2 * i + 1] = 4 + (int32_t)(i * 3 % 4);
    }
    (void)room(j, j->r->numel * 4);      /* 0: x */
    (void)room(j, 2 * j->r->numel * 4);  /* 1: rows */
    (void)room(j, 2 * j->r->numel * 4);  /* 2: bare */
    (void)room(j, tokens * CHOICES * 4); /* 3: weights */
    (void)room(j, j->r->numel * 4);      /* 4: y */
    fill(j->block[3], tokens * CHOICES, 0.5f);
    if (st == DPAR_OK) {
        st = dpar_experts_make(j->c, &layer, &j->experts, &j->why);
    }
    choices.tokens = tokens;
    choices.chosen = chosen;
    if (st == DPAR_OK) {
        st = dpar_experts_route(j->experts, NULL, 0, &choices, &j->route, &j->why);
    }
    free(chosen);
    return st;
}

static void expert_rewrite(job *j)
{
    fill(j->block[0], j->r->numel, own_value(j));
    fill(j->block[1], 2 * j->r->numel, own_value(j));
}

static dpar_status expert_strategy(job *j)
{
    dpar_experts_arrays a = {0};
    dpar_status st;
    a.x = j->block[0];
    a.rows = j->block[1];
    a.results = a.rows;
    a.weight = j->block[3];
    a.y = j->block[4];
    st = dpar_experts_dispatch(j->experts, j->route, &a);
    return st == DPAR_OK ? dpar_experts_combine(j->experts, j->route, &a) : st;
}

static dpar_status expert_bare(job *j)
{
    int64_t rows[RANKS];
    dpar_status st = DPAR_OK;
    for (int32_t k = 0; k < RANKS; k++) {
        rows[k] = j->r->numel / 2;
    }
    for (int32_t k = 0; k < 2 && st == DPAR_OK; k++) {
        st = dpar_all_to_all_v(j->c, j->block[1 + k], rows, NULL, j->block[2 - k], rows, NULL,
                               DPAR_F32, NULL);
    }
    return st;
}

static int64_t expert_wrong(job *j)
{
    return differ(j->block[4], j->r->numel / 2, own_value(j)) +
           (j->route->rows != j->r->numel / ROW);
}

/* ---- a pipeline of two stages, 1F1B: MICROS messages of numel elements each way ---- */

static dpar_status no_stage(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    job *j = (job *)ctx;
    const float *in = (const float *)task->in;
    (void)why;
    j->done++;
    if (in != NULL) {
        j->seen += in[0] != (float)(task->action.micro_batch + 1);
    }
    if (task->out != NULL) {
        ((float *)task->out)[0] = (float)(task->action.micro_batch + 1);
    }
    return DPAR_OK;
}

static dpar_status pipeline_open(job *j)
{
    dpar_schedule_desc order;
    dpar_schedule_lower_desc how = {DPAR_LOWER_MESSAGES, 0};
    dpar_pipeline_desc o = {0};
    dpar_schedule plain;
    int64_t bytes;
    dpar_status st;
    memset(&order, 0, sizeof order);
    order.rule = DPAR_SCHEDULE_1F1B;
    order.ranks = RANKS;
    order.micro_batches = MICROS;
    (void)dpar_schedule_generate(&plain, &order, NULL, 0, &j->why); /* says how many bytes */
    bytes = j->why.bytes;
    j->list_room[0] = own_room(j->r->name, bytes);
    st = dpar_schedule_generate(&plain, &order, j->list_room[0], bytes, &j->why);
    if (st == DPAR_OK) {
        (void)dpar_schedule_lower(&j->list, &plain, &how, NULL, 0, &j->why);
        bytes = j->why.bytes;
        j->list_room[1] = own_room(j->r->name, bytes);
        st = dpar_schedule_lower(&j->list, &plain, &how, j->list_room[1], bytes, &j->why);
    }
    o.schedule = &j->list;
    o.type = DPAR_F32;
    o.count = j->r->numel;
    o.forward = o.backward = no_stage;
    o.ctx = j;
    o.no_final_barrier = 1;
    (void)room(j, 4 * j->r->numel * 4);
    return st == DPAR_OK ? dpar_pipeline_make(j->c, &o, &j->pipeline, &j->why) : st;
}

static void pipeline_rewrite(job *j)
{
    fill(j->block[0], 4 * j->r->numel, own_value(j));
}

static dpar_status pipeline_strategy(job *j)
{
    j->turns++;
    return dpar_pipeline_run(j->pipeline, 1, &j->why);
}

/* The same messages with what each waits for: rank 0 sends one micro-batch ahead of the gradient
 * that it receives. */
static dpar_status pipeline_bare(job *j)
{
    const int64_t n = j->r->numel;
    float *const at = (float *)j->block[0];
    dpar_status st = DPAR_OK;
    for (int32_t m = 0; m < MICROS && st == DPAR_OK; m++) {
        float *in = at + m % 2 * n, *out = at + (2 + m % 2) * n;
        if (j->c->rank == 0) {
            if (m == 0) {
                st = dpar_send(j->c, out, n, DPAR_F32, 1, 0, &j->work[0]);
            }
            if (st == DPAR_OK && m + 1 < MICROS) {
                out = at + (2 + (m + 1) % 2) * n;
                st = dpar_wait(&j->work[(m + 1) % 2]);
                if (st == DPAR_OK) {
                    st = dpar_send(j->c, out, n, DPAR_F32, 1, 0, &j->work[(m + 1) % 2]);
                }
            }
            if (st == DPAR_OK) {
                st = dpar_recv(j->c, in, n, DPAR_F32, 1, 1, NULL);
            }
        } else {
            st = dpar_recv(j->c, in, n, DPAR_F32, 0, 0, NULL);
            if (st == DPAR_OK) {
                st = dpar_wait(&j->work[m % 2]);
            }
            if (st == DPAR_OK) {
                st = dpar_send(j->c, out, n, DPAR_F32, 0, 1, &j->work[m % 2]);
            }
        }
    }
    return st == DPAR_OK ? dpar_wait_all(j->work, 2) : st;
}

/* Each run: all micro-batches forward and backward. */
static int64_t pipeline_wrong(job *j)
{
    return j->seen + (j->done != INT64_C(2) * MICROS * j->turns);
}

/* ---- rows ---- */

#define DDP ddp_open, ddp_rewrite, ddp_bare, ddp_strategy, ddp_wrong
#define OVER over_open, over_rewrite, over_bare, over_strategy, over_wrong
#define ZERO1 zero1_open, over_rewrite, zero1_bare, zero1_strategy, zero1_wrong
#define FSDP fsdp_open, fsdp_rewrite, fsdp_bare, fsdp_strategy, fsdp_wrong
#define TENSOR tensor_open, tensor_rewrite, tensor_bare, tensor_strategy, tensor_wrong
#define RING ring_open, first_rewrite, ring_bare, ring_strategy, ring_wrong
#define ULYSSES ulysses_open, first_rewrite, ulysses_bare, ulysses_strategy, ulysses_wrong
#define EXPERT expert_open, expert_rewrite, expert_bare, expert_strategy, expert_wrong
#define PIPELINE pipeline_open, pipeline_rewrite, pipeline_bare, pipeline_strategy, pipeline_wrong

/* `beside`: bf16: f32 is read and written where the bare one has bf16: 12 MiB more of each. NaN: 24
 * MiB read: as a copy of 12. ZeRO: where backward adds to gradients, 24 MiB of
 * them zeroed: as a copy of 12, in memory of a unit, time after time; in the second micro-batch 12
 * MiB of sums read before they are written: as a copy of 6. In bf16 own shards rounded from f32
 * masters before each gathering, 4 MiB to 2 (ZeRO-3, ten of them: bare reads 2 as well), and
 * reduced ones widened, 2 MiB to 4. */
static const row rows[] = {
    {"ddp, 24 x 1 MiB, buckets of 25 MiB", DDP, 24, 262144, 0, 0, 0, 0, 0, 0},
    {"ddp, 24 x 1 MiB, buckets of 4 MiB", DDP, 24, 262144, 0, 0, 0, 4 << 20, 0, 0},
    {"ddp, 600 x 16 KiB, buckets of 1 MiB", DDP, 600, 4096, 0, 0, 0, 1 << 20, 0, 0},
    {"ddp, 64 x 1 KiB, buckets of 16 KiB", DDP, 64, 256, 0, 0, 0, 16 << 10, 0, 0},
    {"ddp, 24 x 1 MiB, bf16 on the wire", DDP, 24, 262144, 1, 0, 0, 0, 12 << 10, 0},
    {"ddp, 24 x 1 MiB, looks for NaN", DDP, 24, 262144, 0, 0, 1, 0, 12 << 10, 0},
    {"ddp over 24 MiB, at the end", OVER, 1, 6291456, 0, 0, 0, 0, 0, 0},
    {"ddp over 24 MiB, 24 parts as they come", OVER, 24, 262144, 0, 0, 0, 0, 0, 0},
    {"ddp over 9 MiB, 600 parts as they come", OVER, 600, 4096, 0, 0, 0, 0, 0, 0},
    {"ddp over 64 KiB, at the end", OVER, 1, 16384, 0, 0, 0, 0, 0, 0},
    {"ZeRO-1 over 24 MiB", ZERO1, 1, 6291456, 0, 0, 0, 0, 0, 0},
    {"ZeRO-1, 6 units of 4 MiB", FSDP, 1, 1048576, 0, 0, 0, 0, 0, 0},
    {"ZeRO-2, 6 units of 4 MiB", FSDP, 2, 1048576, 0, 0, 0, 0, 0, 0},
    {"ZeRO-3, 6 units of 4 MiB", FSDP, 3, 1048576, 0, 0, 0, 0, 0, 0},
    {"ZeRO-1, gradients added", FSDP, 1, 1048576, 0, 1, 0, 0, 12 << 10, 2 << 10},
    {"ZeRO-2, gradients added", FSDP, 2, 1048576, 0, 1, 0, 0, 12 << 10, 2 << 10},
    {"ZeRO-3, gradients added", FSDP, 3, 1048576, 0, 1, 0, 0, 12 << 10, 2 << 10},
    {"ZeRO-2, second of 2 micro-batches", FSDP, 2, 1048576, 0, 0, 1, 0, 6 << 10, 0},
    {"ZeRO-2, 6 units of 4 MiB, bf16", FSDP, 2, 2097152, 1, 0, 0, 0, 36 << 10, 0},
    {"ZeRO-3, 6 units of 4 MiB, bf16", FSDP, 3, 2097152, 1, 0, 0, 0, 28 << 10, 0},
    {"tensor, pair, 8 MiB", TENSOR, 0, 2097152, 0, 0, 0, 0, 0, 0},
    {"tensor, sequence parallel, 8 MiB", TENSOR, 1, 2097152, 0, 0, 0, 0, 0, 0},
    {"ring attention, 8 MiB of keys", RING, 0, 2097152, 0, 0, 0, 0, 0, 0},
    {"Ulysses, 8 MiB, there and back", ULYSSES, 0, 2097152, 0, 0, 0, 0, 0, 0},
    {"experts, 8 MiB to 2 of 8, and back", EXPERT, 0, 2097152, 0, 0, 0, 0, 0, 0},
    {"pipeline, 16 x 1 MiB each way", PIPELINE, 0, 262144, 0, 0, 0, 0, 0, 0},
    {"pipeline, 16 x 16 KiB each way", PIPELINE, 0, 4096, 0, 0, 0, 0, 0, 0},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static int64_t sent_so_far(const dpar_comm *c)
{
    int64_t bytes = 0;
    for (int32_t k = 0; k < DPAR_CALL_COUNT; k++) {
        bytes += c->sent[k];
    }
    return bytes;
}

/* Seconds of the slower rank. kind: bare, a copy of what is beside, the strategy. */
static double timed(job *j, int kind, unsigned char *copy, dpar_status *st)
{
    const size_t beside = (size_t)j->r->beside * 1024;
    const size_t window = j->r->window > 0 ? (size_t)j->r->window * 1024 : beside;
    const int64_t sent = sent_so_far(j->c);
    double t, slowest = 0.0;
    *st = *st == DPAR_OK ? dpar_barrier(j->c, NULL) : *st;
    t = now();
    if (*st == DPAR_OK && kind == 1) {
        for (size_t at = 0; at < beside; at += window) {
            memcpy(copy, copy + beside, window);
        }
    } else if (*st == DPAR_OK) {
        *st = kind == 0 ? j->r->bare(j) : j->r->strategy(j);
    }
    t = now() - t;
    j->sent[kind] = sent_so_far(j->c) - sent;
    *st = *st == DPAR_OK ? dpar_all_reduce(j->c, &t, &slowest, 1, DPAR_F64, DPAR_MAX, NULL) : *st;
    return slowest;
}

static void close_job(job *j)
{
    (void)dpar_ddp_free(j->ddp);
    (void)dpar_zero1_free(j->zero1);
    (void)dpar_ddp_free(j->over);
    (void)dpar_fsdp_free(j->fsdp);
    (void)dpar_attention_free(j->ring);
    (void)dpar_attention_free(j->ulysses);
    (void)dpar_experts_free(j->experts);
    (void)dpar_pipeline_free(j->pipeline);
    while (j->blocks > 0) {
        dpar_comm_release(j->c, j->block[--j->blocks]);
    }
    free(j->list_room[0]);
    free(j->list_room[1]);
}

/* Medians of the three, in t[0], t[1], t[2]. */
static dpar_status measure(job *j, double seconds, double *out, int64_t *wrong)
{
    static double t[3][SAMPLES];
    const double began = now();
    unsigned char *copy = (unsigned char *)own_room(j->r->name, j->r->beside * 2048);
    int32_t n = 0, go = 1, k;
    dpar_status st = j->r->open(j);
    memset(copy, 1, (size_t)j->r->beside * 2048);
    for (n = 0; n < SAMPLES && st == DPAR_OK && go; n++) {
        j->r->rewrite(j);
        t[0][n] = timed(j, 0, copy, &st);
        t[1][n] = j->r->beside > 0 ? timed(j, 1, copy, &st) : 0.0;
        j->r->rewrite(j);
        t[2][n] = timed(j, 2, copy, &st);
        go = now() - began < seconds || n < 8;
        if (st == DPAR_OK) {
            st = dpar_broadcast(j->c, &go, 1, DPAR_I32, 0, NULL);
        }
    }
    for (k = 0; k < 3 && st == DPAR_OK; k++) {
        qsort(t[k], (size_t)n, sizeof t[0][0], by_value);
        out[k] = t[k][n / 2];
    }
    *wrong = st == DPAR_OK ? j->r->wrong(j) + (j->sent[2] != j->sent[0]) : 0;
    free(copy);
    return st;
}

typedef struct asked {
    double seconds;
    const char *word;
} asked;

static int each(dpar_comm *c, void *arg)
{
    const asked *a = (const asked *)arg;
    pin(c->rank);
    for (int32_t k = 0; k < ROWS; k++) {
        double t[3] = {0, 0, 0};
        int64_t wrong = 0, all = 0;
        job *j;
        dpar_status st;
        if (strstr(rows[k].name, a->word) == NULL) {
            continue;
        }
        j = (job *)own_room(rows[k].name, (int64_t)sizeof *j);
        j->c = c;
        j->r = &rows[k];
        st = measure(j, a->seconds, t, &wrong);
        if (st != DPAR_OK) {
            fprintf(stderr, "strategies: rank %d: row '%s': %s: %s %s\n", c->rank, rows[k].name,
                    dpar_status_text(st), j->why.text, c->why.text);
            return 1;
        }
        st = dpar_all_reduce(c, &wrong, &all, 1, DPAR_I64, DPAR_SUM, NULL);
        close_job(j);
        free(j);
        if (st != DPAR_OK) {
            fprintf(stderr, "strategies: rank %d: row '%s': the sum of wrong elements failed: %s\n",
                    c->rank, rows[k].name, c->why.text);
            return 1;
        }
        if (all > 0) {
            fprintf(stderr, "strategies: rank %d: row '%s': %lld elements wrong on all ranks\n",
                    c->rank, rows[k].name, (long long)all);
            return 1;
        }
        if (c->rank == 0) {
            const double bound = t[0] + t[1];
            printf("| %s | %.1f | %.1f | %.1f | %.2f | %.2f%s |\n", rows[k].name, 1e6 * t[0],
                   1e6 * bound, 1e6 * t[2], t[2] / t[0], t[2] / bound,
                   t[2] <= 1.1 * bound ? ", met" : ", **missed**");
            fflush(stdout);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    asked a = {argc > 1 ? atof(argv[1]) : 2.0, argc > 2 ? argv[2] : ""};
    dpar_why why;
    dpar_world_desc o = {0};
    if (!(a.seconds > 0.0) || argc > 3) {
        fprintf(stderr,
                "strategies: seconds is '%s', with %d arguments; usage: %s [seconds a row "
                "[word]], seconds above 0\n",
                argc > 1 ? argv[1] : "2", argc - 1, argv[0]);
        return 2;
    }
    printf("| strategy | bare us | and its memory | strategy us | ratio | (1.10) |\n"
           "|---|---|---|---|---|---|\n");
    fflush(stdout);
    if (dpar_launch(RANKS, each, &a, &o, &why) != DPAR_OK) {
        fprintf(stderr, "strategies: the ranks did not end well: %s\n", why.text);
        return 1;
    }
    return 0;
}
