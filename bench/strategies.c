/* SPDX-License-Identifier: MIT-0 */
/* strategies - measures what each training strategy of dpar_train.h costs above the bare
 * collectives or messages of the same bytes, by two ranks, each on a core of its own. Both are
 * called in turns in one run.
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. bench/strategies.c -o strategies
 *     ./strategies [SECONDS [WORD]]       of each row (default 2); only rows that have the word
 *
 * A sample is one step after both ranks have rewritten what is sent, and the slower rank counts.
 * Both use memory of dpar_comm_alloc. Matrix products and attention are callbacks that do nothing,
 * so that only the work of dpar is left.
 *
 * Columns: the median us of the bare calls; the same plus a memcpy of the bytes that the strategy
 * by its definition has to read and write in addition (0 for most; the table of rows says which);
 * the median us of the strategy; and the ratio of the strategy to both. The limit is 1.10 for the
 * second ratio. The last step of each row is checked, and that it sent as many bytes as the bare
 * calls.
 *
 * Exit codes: 0 measured (a row that misses its limit says so); 1 no memory, an operation failed,
 * or a result is wrong; 2 wrong arguments. */
#include "dpar_train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

enum { SAMPLES = 400, RANKS = 2, UNITS = 6, MICROS = 16, MIB = 1 << 20 };

/* A row of the table: five functions, and what they need to know. */
typedef struct job job;
typedef struct row {
    const char *name;
    dpar_status (*open)(job *state);
    void (*rewrite)(job *state); /* called before `bare` and before `strategy` */
    dpar_status (*bare)(job *state);
    dpar_status (*strategy)(job *state);
    int64_t (*wrong)(job *state);
    int32_t n;     /* ddp: tensors; fsdp: the number of ZeRO; tensor: 1 for sequence parallel */
    int64_t numel; /* elements of each, or of a message */
    int32_t narrow, scatter, finite; /* ddp; fsdp: bf16, backward adds, the second micro-batch */
    int64_t bucket_bytes;
    int64_t beside; /* KiB of the memcpy that is added to the bare calls */
    int64_t window; /* KiB of memory in which it is done, over and over; 0: all at once */
} row;
enum { BLOCKS = 12 };
struct job {
    dpar_comm *comm;
    const row *entry;
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
    void *list_memory[2];
    dpar_pipeline *pipeline;
    int64_t sent[3];    /* bytes of the last step of each kind */
    int64_t seen, done; /* by callbacks: what is wrong, and how many there were */
    dpar_work work[64];
    dpar_why why;
};

static int by_value(const void *first, const void *second)
{
    double x = *(const double *)first, y = *(const double *)second;
    return (x > y) - (x < y);
}

/* Allocates zeroed memory of dpar_comm_alloc, which close_job releases. Ends the program on
 * failure. */
static void *shared_memory(job *state, int64_t bytes)
{
    void *memory = NULL;
    if (state->blocks == BLOCKS) {
        fprintf(stderr, "strategies: row '%s' asks for more than %d blocks of memory\n",
                state->entry->name, BLOCKS);
        exit(1);
    }
    if (dpar_comm_alloc(state->comm, bytes, &memory) != DPAR_OK) {
        fprintf(stderr, "strategies: row '%s': no memory for a block of %lld bytes: %s\n",
                state->entry->name, (long long)bytes, state->comm->why.text);
        exit(1);
    }
    state->block[state->blocks] = memory;
    state->blocks++;
    return memory;
}

/* Allocates zeroed memory of this rank, at least one byte. Ends the program on failure. */
static void *own_memory(const char *name, int64_t bytes)
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
    float *values = (float *)at;
    for (int64_t i = 0; i < n; i++) {
        values[i] = with;
    }
}

/* Returns how many of n values are not `from`. */
static int64_t differ(const void *at, int64_t n, float from)
{
    const float *values = (const float *)at;
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++) {
        wrong += values[i] != from;
    }
    return wrong;
}

static float own_value(const job *state)
{
    return (float)(state->comm->rank + 1);
}

/* ---- ddp: gradients of n tensors of numel elements each ---- */

static dpar_status ddp_open(job *state)
{
    const row *entry = state->entry;
    dpar_ddp_desc desc = {0};
    int64_t *numel = (int64_t *)own_memory(entry->name, entry->n * (int64_t)sizeof *numel);
    dpar_status st;
    for (int32_t i = 0; i < entry->n; i++) {
        numel[i] = entry->numel;
    }
    desc.params = entry->n;
    desc.count = numel;
    desc.type = DPAR_F32;
    desc.wire_type = entry->narrow ? DPAR_BF16 : DPAR_TYPE_NONE;
    desc.require_ready = 1;
    desc.check_finite = entry->finite;
    desc.bucket_bytes = entry->bucket_bytes;
    (void)shared_memory(state, entry->n * entry->numel * 4 + MIB);
    st = dpar_ddp_make(state->comm, &desc, &state->ddp, &state->why);
    free(numel);
    return st;
}

static void ddp_rewrite(job *state)
{
    if (state->entry->narrow) {
        fill(state->block[0], (state->entry->n * state->entry->numel * 4 + MIB) / 4,
             own_value(state));
    }
    for (int32_t i = 0; i < state->entry->n; i++) {
        fill(dpar_ddp_gradient(state->ddp, i, NULL), state->entry->numel, own_value(state));
    }
}

static dpar_status ddp_strategy(job *state)
{
    dpar_status st = dpar_ddp_begin(state->ddp, 1);
    for (int32_t i = state->entry->n - 1; i >= 0 && st == DPAR_OK; i--) {
        st = dpar_ddp_ready(state->ddp, i);
    }
    return st == DPAR_OK ? dpar_ddp_end(state->ddp) : st;
}

/* Posts the same collectives on the same memory. If bf16 is sent, they work on gradients that are
 * already rounded, because that is what is sent. */
static dpar_status ddp_bare(job *state)
{
    const int32_t type = state->entry->narrow ? DPAR_BF16 : DPAR_F32;
    const int32_t each = dpar_type_bytes(type);
    unsigned char *all =
        (unsigned char *)(state->entry->narrow ? state->block[0]
                                               : dpari_ddp_bucket(state->ddp, 0, NULL));
    dpar_bucket bucket;
    int32_t k;
    dpar_status st = DPAR_OK;
    for (k = 0; dpari_ddp_bucket(state->ddp, k, &bucket) != NULL && st == DPAR_OK; k++) {
        unsigned char *data = all + bucket.lo * each;
        st = dpar_all_reduce(state->comm, data, data, bucket.hi - bucket.lo, type, DPAR_AVG,
                             &state->work[k]);
    }
    return st == DPAR_OK ? dpar_wait_all(state->work, k) : st;
}

static int64_t ddp_wrong(job *state)
{
    int64_t wrong = 0;
    dpar_bucket bucket;
    const float *all = (const float *)dpari_ddp_bucket(state->ddp, 0, NULL);
    for (int32_t k = 0; dpari_ddp_bucket(state->ddp, k, &bucket) != NULL; k++) {
        for (int64_t i = bucket.lo; i < bucket.lo + bucket.used;
             i++) { /* (1 + 2) / 2; padding is 0 */
            wrong += all[i] != 1.5f;
        }
    }
    return wrong;
}

/* ---- ddp over the caller's gradients: n parts of numel elements in one array, of which none is
 * reported if n is 1. Bare: one all-reduce of the array. ---- */

static int64_t over_all(const job *state)
{
    return state->entry->n * state->entry->numel;
}

static dpar_status over_open(job *state)
{
    dpar_ddp_desc desc = {0};
    int64_t *count =
        (int64_t *)own_memory(state->entry->name, state->entry->n * (int64_t)sizeof *count);
    dpar_status st;
    for (int32_t i = 0; i < state->entry->n; i++) {
        count[i] = state->entry->numel;
    }
    desc.params = state->entry->n;
    desc.count = count;
    desc.type = DPAR_F32;
    desc.gradients = shared_memory(state, over_all(state) * 4);
    desc.bucket_bytes = state->entry->bucket_bytes;
    st = dpar_ddp_make(state->comm, &desc, &state->over, &state->why);
    free(count);
    return st;
}

static void over_rewrite(job *state)
{
    fill(state->block[0], over_all(state), own_value(state));
}

static dpar_status over_bare(job *state)
{
    return dpar_all_reduce(state->comm, state->block[0], state->block[0], over_all(state), DPAR_F32,
                           DPAR_AVG, NULL);
}

static dpar_status over_strategy(job *state)
{
    dpar_status st = DPAR_OK;
    for (int32_t i = state->entry->n - 1; i >= 0 && state->entry->n > 1 && st == DPAR_OK; i--) {
        st = dpar_ddp_ready(state->over, i);
    }
    return st == DPAR_OK ? dpar_ddp_end(state->over) : st;
}

static int64_t over_wrong(job *state)
{
    return differ(state->block[0], over_all(state), 1.5f); /* (1 + 2) / 2 */
}

/* ---- ZeRO-1 of the same: SGD with rate 0 on weights of 3. Bare: a reduce-scatter, a sum of 8 bytes
 * as for the norm, the optimizer on the share, and an all-gather. ---- */

static dpar_status zero1_open(job *state)
{
    const dpar_status st = over_open(state);
    dpar_zero1_desc desc = {0};
    fill(shared_memory(state, over_all(state) * 4), over_all(state), 3.0f);
    dpar_optimizer_init(&state->sgd, DPAR_OPTIMIZER_SGD);
    desc.weights = state->block[1];
    desc.optimizer = &state->sgd;
    return st == DPAR_OK ? dpar_zero1_make(state->over, &desc, &state->zero1, &state->why) : st;
}

static dpar_status zero1_bare(job *state)
{
    const int64_t share = over_all(state) / state->comm->size;
    float *gradients = (float *)state->block[0], *weights = (float *)state->block[1],
          *own = weights + share * state->comm->rank;
    double squares = 0.0;
    dpar_optimizer_piece piece = {0};
    dpar_status st =
        dpar_reduce_scatter(state->comm, gradients, gradients + share * state->comm->rank, share,
                            DPAR_F32, DPAR_AVG, NULL);
    if (st == DPAR_OK) {
        st = dpar_all_reduce(state->comm, &squares, &squares, 1, DPAR_F64, DPAR_SUM, NULL);
    }
    piece.weight = own;
    piece.gradient = gradients + share * state->comm->rank;
    piece.weight_type = piece.gradient_type = DPAR_F32;
    piece.count = share;
    if (st == DPAR_OK) {
        st = dpar_optimizer_step(&state->sgd, &piece, 1, 0.0, 1.0);
    }
    return st == DPAR_OK ? dpar_all_gather(state->comm, own, weights, share, DPAR_F32, NULL) : st;
}

static dpar_status zero1_strategy(job *state)
{
    return dpar_zero1_step(state->zero1, 0.0, 0.0);
}

static int64_t zero1_wrong(job *state)
{
    const int64_t share = over_all(state) / state->comm->size;
    return differ((float *)state->block[0] + share * state->comm->rank, share, 1.5f) +
           differ(state->block[1], over_all(state), 3.0f);
}

/* ---- fsdp: UNITS units of numel elements; gradients of the values 1 and 2 ---- */

static int64_t fsdp_bytes(const job *state)
{
    return state->entry->numel * (state->entry->narrow ? 2 : 4);
}

static dpar_status fsdp_open(job *state)
{
    dpar_fsdp_desc desc = {0};
    int64_t numel[UNITS];
    float *value = (float *)own_memory(state->entry->name, state->entry->numel * 4);
    dpar_status st;
    for (int32_t u = 0; u < UNITS; u++) {
        numel[u] = state->entry->numel;
    }
    desc.zero = state->entry->n;
    desc.type = DPAR_F32;
    desc.compute_type = state->entry->narrow ? DPAR_BF16 : DPAR_F32;
    desc.overwrite_gradients = !state->entry->scatter;
    desc.prefetch = 1;
    desc.optimizer.kind = DPAR_OPTIMIZER_SGD;
    desc.units = UNITS;
    desc.count = numel;
    st = dpar_fsdp_make(state->comm, &desc, &state->fsdp, &state->why);
    for (int32_t i = 0; i < 4; i++) { /* weights, gradients, whole or shards */
        (void)shared_memory(state, UNITS * fsdp_bytes(state));
    }
    fill(value, state->entry->numel, 3.0f);
    for (int32_t u = 0; u < UNITS && st == DPAR_OK; u++) {
        st = dpar_fsdp_set(state->fsdp, u, value);
    }
    free(value);
    return st;
}

/* The model: it checks two weights of the unit and writes the first and the last element of its
 * gradient, where a real one would write all of them. */
static void fsdp_compute(job *state, int32_t u, int backward)
{
    const int64_t last = state->entry->numel - 1;
    const void *weight = dpar_fsdp_weight(state->fsdp, u);
    void *gradient = backward ? dpar_fsdp_gradient(state->fsdp, u, NULL) : NULL;
    state->gradient[u] = gradient != NULL ? gradient : state->gradient[u];
    if (state->entry->narrow) { /* 3, 1 and 2 as bf16 */
        const uint16_t *values = (const uint16_t *)weight;
        state->seen += values == NULL || values[0] != 0x4040 || values[last] != 0x4040;
        if (gradient != NULL) {
            ((uint16_t *)gradient)[0] = ((uint16_t *)gradient)[last] =
                state->comm->rank == 0 ? 0x3f80 : 0x4000;
        }
    } else {
        const float *values = (const float *)weight;
        state->seen += values == NULL || values[0] != 3.0f || values[last] != 3.0f;
        if (gradient != NULL) {
            ((float *)gradient)[0] = ((float *)gradient)[last] = own_value(state);
        }
    }
}

static dpar_status fsdp_pass(job *state, int32_t last_one)
{
    dpar_fsdp *fsdp = state->fsdp;
    dpar_status st = dpar_fsdp_begin(fsdp, last_one);
    int32_t u;
    for (u = 0; u < UNITS && st == DPAR_OK; u++) {
        st = dpar_fsdp_unshard(fsdp, u, DPAR_ACTION_FORWARD);
        if (st == DPAR_OK) {
            fsdp_compute(state, u, 0);
            st = dpar_fsdp_reshard(fsdp, u, DPAR_ACTION_FORWARD);
        }
    }
    for (u = UNITS - 1; u >= 0 && st == DPAR_OK; u--) {
        st = dpar_fsdp_unshard(fsdp, u, DPAR_ACTION_BACKWARD);
        if (st == DPAR_OK) {
            fsdp_compute(state, u, 1);
            st = dpar_fsdp_reshard(fsdp, u, DPAR_ACTION_BACKWARD);
        }
        if (st == DPAR_OK) {
            st = dpar_fsdp_ready(fsdp, u);
        }
    }
    return st == DPAR_OK ? dpar_fsdp_end(fsdp) : st;
}

/* Returns 1 if the gradients' memory keeps its values through a step, so that all units can have
 * the same. Otherwise it has to hold 0, because sums of one unit would get into the next one's. */
static int fsdp_stays(const job *state)
{
    return !state->entry->narrow && !state->entry->finite;
}

/* Rewrites the arrays of the bare calls, and in the other turns those of the strategy: the weights,
 * by a step with rate 0, and the memory in which gradients are computed. */
static void fsdp_rewrite(job *state)
{
    const int64_t words = fsdp_bytes(state) / 4;
    const int32_t grads = state->entry->n == 1 ? UNITS : 1; /* ZeRO-2 and 3 use the same for all */
    if (state->turns++ % 2 == 0) {
        fill(state->block[0], state->entry->n < 3 ? UNITS * words : 0, own_value(state));
        fill(state->block[2], state->entry->n < 3 ? 0 : UNITS * words / RANKS, own_value(state));
        fill(state->block[1], grads * words, own_value(state));
        return;
    }
    (void)dpar_fsdp_step(state->fsdp, 0.0, 1.0);
    if (state->entry->finite) {
        dpar_fsdp_zero(state->fsdp);
        state->seen += fsdp_pass(state, 0) != DPAR_OK;
    }
    for (int32_t u = 0; u < grads && state->gradient[u] != NULL; u++) {
        fill(state->gradient[u], words, fsdp_stays(state) ? own_value(state) : 0.0f);
    }
}

static dpar_status fsdp_strategy(job *state)
{
    if (!state->entry->finite) {
        dpar_fsdp_zero(state->fsdp);
    }
    return fsdp_pass(state, 1);
}

/* Does what one would do without dpar. In forward all units are gathered; in backward with ZeRO-3
 * all but the two that are still there. ZeRO-3 gathers from its shards into two buffers, the others
 * in place. Gradients are reduce-scattered in place, or with ZeRO-2 and 3 from one buffer into
 * shards. */
static dpar_status fsdp_bare(job *state)
{
    const int32_t zero = state->entry->n, again = zero == 3 ? UNITS - 2 : 0;
    const int32_t type = state->entry->narrow ? DPAR_BF16 : DPAR_F32;
    const int32_t gathers = state->entry->finite ? 0 : UNITS;
    const int64_t n = state->entry->numel, share = n / RANKS, bytes = fsdp_bytes(state),
                  part = bytes / RANKS;
    unsigned char *weights = (unsigned char *)state->block[0],
                  *grads = (unsigned char *)state->block[1];
    unsigned char *own = (unsigned char *)state->block[2], *sums = (unsigned char *)state->block[3];
    dpar_status st = DPAR_OK;
    for (int32_t k = 0; k < gathers + again && st == DPAR_OK; k++) {
        unsigned char *weight = weights + (zero == 3 ? k % 2 : k) * bytes;
        const int32_t u = k < UNITS ? k : 2 * UNITS - 3 - k;
        st = dpar_all_gather(state->comm,
                             zero == 3 ? own + u * part : weight + part * state->comm->rank, weight,
                             share, type, NULL);
    }
    for (int32_t u = 0; u < UNITS && st == DPAR_OK; u++) {
        unsigned char *gradient = grads + (zero == 1 ? u * bytes : 0);
        st = dpar_reduce_scatter(state->comm, gradient,
                                 zero == 1 ? gradient + part * state->comm->rank : sums + u * part,
                                 share, type, DPAR_AVG, NULL);
    }
    return st;
}

/* The norm of all gradients tells whether the averages are right: the first and the last element of
 * each unit are averages of 1 and 2, once or added up twice, and so are all others if the memory
 * kept its values. */
static int64_t fsdp_wrong(job *state)
{
    dpar_update update = {0};
    const dpar_status st = dpar_fsdp_norm(state->fsdp, &update);
    const double norm = update.norm;
    const int64_t each = fsdp_stays(state) && !state->entry->scatter ? state->entry->numel : 2;
    const double want = (double)(each * UNITS) * 1.5 * 1.5 * (state->entry->finite ? 4.0 : 1.0);
    return state->seen + (st != DPAR_OK || norm * norm < (1.0 - 1e-9) * want ||
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

static dpar_status tensor_open(job *state)
{
    const int64_t tokens = state->entry->numel / WIDTH;
    const dpar_status st =
        dpar_tensor_parallel_init(&state->tensor, state->comm, DPAR_F32, tokens,
                                  state->entry->n ? state->count[0] : NULL, &state->why);
    state->tensor.matmul = no_product;
    for (int32_t i = 0; i < 8; i++) {
        (void)shared_memory(state, state->entry->numel * 4 + MIB);
    }
    return st;
}

static void tensor_rewrite(job *state)
{
    for (int32_t i = 0; i < 5; i++) {
        fill(state->block[i], state->entry->numel, own_value(state));
    }
}

/* The blocks: 0 is x, or x gathered; 1 the partial y; 2 dy; 3 the partial dx; 4 y and dx of the
 * rank's own rows; 5 the hidden activation; 6 the weights. */
static dpar_status tensor_strategy(job *state)
{
    dpar_linear up = {DPAR_LINEAR_COLUMN, 0, WIDTH, 4}, down = {DPAR_LINEAR_ROW, 0, 4, WIDTH};
    dpar_linear_arrays first = {0}, second = {0};
    const int sequence = state->entry->n;
    const int64_t own = sequence ? state->entry->numel / RANKS : 0;
    dpar_status st;
    first.w = second.w = state->block[6];
    first.x = sequence ? (void *)((float *)state->block[4] + own) : state->block[0];
    first.gathered = sequence ? state->block[0] : NULL;
    first.y = state->block[5];
    first.dy = state->block[5];
    first.dx = sequence ? state->block[4] : state->block[3];
    first.gathered_dx = sequence ? state->block[3] : NULL;
    second.x = state->block[5];
    second.y = sequence ? state->block[4] : state->block[1];
    second.dy = sequence ? (void *)((float *)state->block[4] + own) : state->block[2];
    second.dx = state->block[5];
    second.gathered = sequence ? state->block[1] : NULL;
    st = dpar_linear_forward(&state->tensor, &up, &first);
    if (st == DPAR_OK) {
        st = dpar_linear_forward(&state->tensor, &down, &second);
    }
    second.gathered = sequence ? state->block[2] : NULL;
    if (st == DPAR_OK) {
        st = dpar_linear_backward(&state->tensor, &down, &second);
    }
    return st == DPAR_OK ? dpar_linear_backward(&state->tensor, &up, &first) : st;
}

static dpar_status tensor_bare(job *state)
{
    const int64_t n = state->entry->numel, share = n / RANKS;
    float *own = (float *)state->block[4];
    dpar_status st;
    if (!state->entry->n) {
        st = dpar_all_reduce(state->comm, state->block[1], state->block[1], n, DPAR_F32, DPAR_SUM,
                             NULL);
        return st != DPAR_OK ? st
                             : dpar_all_reduce(state->comm, state->block[3], state->block[3], n,
                                               DPAR_F32, DPAR_SUM, NULL);
    }
    st = dpar_all_gather(state->comm, own + share, state->block[0], share, DPAR_F32, NULL);
    if (st == DPAR_OK) {
        st =
            dpar_reduce_scatter(state->comm, state->block[1], own, share, DPAR_F32, DPAR_SUM, NULL);
    }
    if (st == DPAR_OK) {
        st = dpar_all_gather(state->comm, own + share, state->block[2], share, DPAR_F32, NULL);
    }
    return st == DPAR_OK ? dpar_reduce_scatter(state->comm, state->block[3], own, share, DPAR_F32,
                                               DPAR_SUM, NULL)
                         : st;
}

static int64_t tensor_wrong(job *state)
{
    const int64_t n = state->entry->numel, share = n / RANKS;
    if (!state->entry->n) {
        return differ(state->block[1], n, 3.0f) + differ(state->block[3], n, 3.0f);
    }
    return differ(state->block[4], share, 3.0f) + differ(state->block[0], share, 1.0f) +
           differ((float *)state->block[2] + share, share, 2.0f);
}

/* ---- ring attention, forward: keys and values of numel elements are sent once ---- */

enum { HEADS = 16, HEAD = 64 };

/* Computes nothing, and says that no query sees a key, so that there is nothing to merge. */
static void no_attention(const dpar_attention_call *call)
{
    const int64_t rows = call->queries * HEADS;
    ((job *)call->user)->came = call->k;
    for (int64_t i = 0; i < rows; i++) {
        ((float *)call->lse)[i] = -2e30f;
    }
}

static dpar_status ring_open(job *state)
{
    dpar_attention_desc layer = {0};
    const int64_t n = state->entry->numel * 4, tokens = state->entry->numel / (2 * HEADS * HEAD);
    dpar_status st;
    state->ends[1] = RANKS * tokens;
    st = dpar_packed_init(&layer.tokens, 1, state->ends, RANKS, DPAR_SPLIT_CHUNK, &state->why);
    layer.heads = HEADS;
    layer.width = HEAD;
    layer.type = DPAR_F32;
    layer.forward = no_attention;
    layer.user = state;
    for (int32_t i = 0; i < 4; i++) { /* k and v one after the other; q; out; what came, bare */
        (void)shared_memory(state, n);
    }
    (void)shared_memory(state, tokens * HEADS * 4);
    return st == DPAR_OK ? dpar_attention_make(state->comm, &layer, &state->ring, &state->why) : st;
}

static void first_rewrite(job *state)
{
    fill(state->block[0], state->entry->numel, own_value(state));
}

static dpar_status ring_strategy(job *state)
{
    dpar_attention_arrays arrays = {0};
    arrays.k = state->block[0];
    arrays.v = (float *)state->block[0] + state->entry->numel / 2;
    arrays.q = state->block[1];
    arrays.out = state->block[2];
    arrays.lse = state->block[4];
    return dpar_attention_forward(state->ring, &arrays);
}

static dpar_status ring_bare(job *state)
{
    dpar_call call[4];
    memset(call, 0, sizeof call);
    for (int32_t i = 0; i < 4; i++) {
        const int64_t at = i / 2 * (state->entry->numel / 2);
        call[i].kind = i % 2 == 0 ? DPAR_CALL_SEND : DPAR_CALL_RECV;
        call[i].type = DPAR_F32;
        call[i].root = 1 - state->comm->rank;
        call[i].tag = i / 2;
        call[i].count = state->entry->numel / 2;
        call[i].in = i % 2 == 0 ? (float *)state->block[0] + at : NULL;
        call[i].out = i % 2 == 0 ? NULL : (float *)state->block[3] + at;
    }
    return dpar_batch(state->comm, call, 4, NULL);
}

static int64_t ring_wrong(job *state)
{
    return differ(state->came, state->entry->numel, (float)(2 - state->comm->rank)) +
           (state->ring->sent_bytes <= 0);
}

/* ---- Ulysses: numel elements a rank, tokens for heads and back; bare: two all-to-alls ---- */

static dpar_status ulysses_open(job *state)
{
    dpar_attention_desc layer = {0};
    dpar_status st;
    state->ends[1] = RANKS * (state->entry->numel / (HEADS * HEAD));
    st = dpar_packed_init(&layer.tokens, 1, state->ends, RANKS, DPAR_SPLIT_EVEN, &state->why);
    layer.method = dpar_attention_ulysses;
    layer.heads = HEADS;
    layer.width = HEAD;
    layer.type = DPAR_F32;
    for (int32_t i = 0; i < 3; i++) {
        (void)shared_memory(state, state->entry->numel * 4);
    }
    return st == DPAR_OK ? dpar_attention_make(state->comm, &layer, &state->ulysses, &state->why)
                         : st;
}

static dpar_status ulysses_strategy(job *state)
{
    const dpar_status st = dpar_attention_exchange(state->ulysses, DPAR_ATTENTION_Q, 0,
                                                   state->block[0], state->block[1]);
    return st == DPAR_OK ? dpar_attention_exchange(state->ulysses, DPAR_ATTENTION_Q, 1,
                                                   state->block[1], state->block[2])
                         : st;
}

static dpar_status ulysses_bare(job *state)
{
    const int64_t n = state->entry->numel / RANKS;
    const dpar_status st =
        dpar_all_to_all(state->comm, state->block[0], state->block[1], n, DPAR_F32, NULL);
    return st == DPAR_OK
               ? dpar_all_to_all(state->comm, state->block[1], state->block[2], n, DPAR_F32, NULL)
               : st;
}

/* The bare calls leave the same numbers, so it does a step once more, from memory without them. */
static int64_t ulysses_wrong(job *state)
{
    const int64_t n = state->entry->numel;
    fill(state->block[1], n, 0.0f);
    fill(state->block[2], n, 0.0f);
    if (dpar_barrier(state->comm, NULL) != DPAR_OK || ulysses_strategy(state) != DPAR_OK) {
        return 1;
    }
    return differ(state->block[2], n, own_value(state)) + differ(state->block[1], n / 2, 1.0f) +
           differ((float *)state->block[1] + n / 2, n / 2, 2.0f);
}

/* ---- experts: numel / 1024 tokens of 512 elements on each rank, each for two of eight experts.
 * Bare: an all-to-all of the rows, and one back ---- */

enum { ROW = 512, EXPERTS = 8, CHOICES = 2 };

static dpar_status expert_open(job *state)
{
    dpar_experts_desc layer = {0};
    dpar_experts_choices choices = {0};
    const int64_t tokens = state->entry->numel / (ROW * CHOICES);
    int32_t *chosen =
        (int32_t *)own_memory(state->entry->name, tokens * CHOICES * (int64_t)sizeof *chosen);
    int64_t i;
    dpar_status st =
        dpar_split_init(&layer.experts, DPAR_SPLIT_EVEN, EXPERTS, RANKS, 1, &state->why);
    layer.choices = CHOICES;
    layer.max_tokens = tokens;
    layer.width = ROW;
    layer.type = DPAR_F32;
    for (i = 0; i < tokens; i++) { /* one of the own, one of the other rank's */
        chosen[2 * i] = (int32_t)(i * 5 % 4);
        chosen[2 * i + 1] = 4 + (int32_t)(i * 3 % 4);
    }
    (void)shared_memory(state, state->entry->numel * 4);     /* 0: x */
    (void)shared_memory(state, 2 * state->entry->numel * 4); /* 1: rows */
    (void)shared_memory(state, 2 * state->entry->numel * 4); /* 2: bare */
    (void)shared_memory(state, tokens * CHOICES * 4);        /* 3: weights */
    (void)shared_memory(state, state->entry->numel * 4);     /* 4: y */
    fill(state->block[3], tokens * CHOICES, 0.5f);
    if (st == DPAR_OK) {
        st = dpar_experts_make(state->comm, &layer, &state->experts, &state->why);
    }
    choices.tokens = tokens;
    choices.chosen = chosen;
    if (st == DPAR_OK) {
        st = dpar_experts_route(state->experts, NULL, 0, &choices, &state->route, &state->why);
    }
    free(chosen);
    return st;
}

static void expert_rewrite(job *state)
{
    fill(state->block[0], state->entry->numel, own_value(state));
    fill(state->block[1], 2 * state->entry->numel, own_value(state));
}

static dpar_status expert_strategy(job *state)
{
    dpar_experts_arrays arrays = {0};
    dpar_status st;
    arrays.x = state->block[0];
    arrays.rows = state->block[1];
    arrays.results = arrays.rows;
    arrays.weight = state->block[3];
    arrays.y = state->block[4];
    st = dpar_experts_dispatch(state->experts, state->route, &arrays);
    return st == DPAR_OK ? dpar_experts_combine(state->experts, state->route, &arrays) : st;
}

static dpar_status expert_bare(job *state)
{
    int64_t rows[RANKS];
    dpar_status st = DPAR_OK;
    for (int32_t k = 0; k < RANKS; k++) {
        rows[k] = state->entry->numel / 2;
    }
    for (int32_t k = 0; k < 2 && st == DPAR_OK; k++) {
        st = dpar_all_to_all_v(state->comm, state->block[1 + k], rows, NULL, state->block[2 - k],
                               rows, NULL, DPAR_F32, NULL);
    }
    return st;
}

static int64_t expert_wrong(job *state)
{
    return differ(state->block[4], state->entry->numel / 2, own_value(state)) +
           (state->route->rows != state->entry->numel / ROW);
}

/* ---- a pipeline of two stages, 1F1B: MICROS messages of numel elements each way ---- */

static dpar_status no_stage(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    job *state = (job *)ctx;
    const float *in = (const float *)task->in;
    (void)why;
    state->done++;
    if (in != NULL) {
        state->seen += in[0] != (float)(task->action.micro_batch + 1);
    }
    if (task->out != NULL) {
        ((float *)task->out)[0] = (float)(task->action.micro_batch + 1);
    }
    return DPAR_OK;
}

static dpar_status pipeline_open(job *state)
{
    dpar_schedule_desc order;
    dpar_schedule_lower_desc how;
    dpar_pipeline_desc desc = {0};
    dpar_schedule plain;
    int64_t bytes;
    dpar_status st;
    memset(&order, 0, sizeof order);
    memset(&how, 0, sizeof how);
    how.passes = DPAR_LOWER_MESSAGES;
    order.rule = DPAR_SCHEDULE_1F1B;
    order.ranks = RANKS;
    order.micro_batches = MICROS;
    (void)dpar_schedule_generate(&plain, &order, NULL, 0, &state->why); /* says how many bytes */
    bytes = state->why.bytes;
    state->list_memory[0] = own_memory(state->entry->name, bytes);
    st = dpar_schedule_generate(&plain, &order, state->list_memory[0], bytes, &state->why);
    if (st == DPAR_OK) {
        (void)dpar_schedule_lower(&state->list, &plain, &how, NULL, 0, &state->why);
        bytes = state->why.bytes;
        state->list_memory[1] = own_memory(state->entry->name, bytes);
        st = dpar_schedule_lower(&state->list, &plain, &how, state->list_memory[1], bytes,
                                 &state->why);
    }
    desc.schedule = &state->list;
    desc.type = DPAR_F32;
    desc.count = state->entry->numel;
    desc.forward = desc.backward = no_stage;
    desc.ctx = state;
    desc.no_final_barrier = 1;
    (void)shared_memory(state, 4 * state->entry->numel * 4);
    return st == DPAR_OK ? dpar_pipeline_make(state->comm, &desc, &state->pipeline, &state->why)
                         : st;
}

static void pipeline_rewrite(job *state)
{
    fill(state->block[0], 4 * state->entry->numel, own_value(state));
}

static dpar_status pipeline_strategy(job *state)
{
    state->turns++;
    return dpar_pipeline_run(state->pipeline, 1, &state->why);
}

/* Sends the same messages in an order that does not wait longer: rank 0 sends one micro-batch ahead
 * of the gradient that it receives. */
static dpar_status pipeline_bare(job *state)
{
    const int64_t n = state->entry->numel;
    float *const at = (float *)state->block[0];
    dpar_status st = DPAR_OK;
    for (int32_t m = 0; m < MICROS && st == DPAR_OK; m++) {
        float *in = at + m % 2 * n, *out = at + (2 + m % 2) * n;
        if (state->comm->rank == 0) {
            if (m == 0) {
                st = dpar_send(state->comm, out, n, DPAR_F32, 1, 0, &state->work[0]);
            }
            if (st == DPAR_OK && m + 1 < MICROS) {
                out = at + (2 + (m + 1) % 2) * n;
                st = dpar_wait(&state->work[(m + 1) % 2]);
                if (st == DPAR_OK) {
                    st = dpar_send(state->comm, out, n, DPAR_F32, 1, 0, &state->work[(m + 1) % 2]);
                }
            }
            if (st == DPAR_OK) {
                st = dpar_recv(state->comm, in, n, DPAR_F32, 1, 1, NULL);
            }
        } else {
            st = dpar_recv(state->comm, in, n, DPAR_F32, 0, 0, NULL);
            if (st == DPAR_OK) {
                st = dpar_wait(&state->work[m % 2]);
            }
            if (st == DPAR_OK) {
                st = dpar_send(state->comm, out, n, DPAR_F32, 0, 1, &state->work[m % 2]);
            }
        }
    }
    return st == DPAR_OK ? dpar_wait_all(state->work, 2) : st;
}

/* In each run every rank does all micro-batches forward and backward. */
static int64_t pipeline_wrong(job *state)
{
    return state->seen + (state->done != INT64_C(2) * MICROS * state->turns);
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

/* `beside` of the rows, as the memcpy that reads and writes as much:
 * bf16 on the wire: 24 MiB of f32 are read and written where the bare calls have 12 MiB of bf16,
 * which is 12 MiB more of each. NaN: 24 MiB are read, as in a copy of 12. ZeRO, gradients added: 24
 * MiB are zeroed, as in a copy of 12, in the memory of one unit over and over. Second micro-batch:
 * 12 MiB of sums are read before they are written, as in a copy of 6. bf16: each rank rounds its
 * shards from f32 before they are gathered, 4 MiB to 2 for each unit (with ZeRO-3 ten times, where
 * the bare calls read 2 as well), and widens the reduced ones, 2 MiB to 4. */
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

static int64_t sent_so_far(const dpar_comm *comm)
{
    int64_t bytes = 0;
    for (int32_t k = 0; k < DPAR_CALL_COUNT; k++) {
        bytes += comm->sent[k];
    }
    return bytes;
}

/* Returns the seconds of the slower rank. kind: 0 the bare calls, 1 the memcpy, 2 the strategy.
 * Does nothing if *st is an error. */
static double timed(job *state, int kind, unsigned char *copy, dpar_status *st)
{
    const size_t beside = (size_t)state->entry->beside * 1024;
    const size_t window = state->entry->window > 0 ? (size_t)state->entry->window * 1024 : beside;
    const int64_t sent = sent_so_far(state->comm);
    double spent, slowest = 0.0;
    if (*st == DPAR_OK) {
        *st = dpar_barrier(state->comm, NULL);
    }
    if (*st != DPAR_OK) {
        return 0.0;
    }
    spent = now();
    if (kind == 1) {
        for (size_t at = 0; at < beside; at += window) {
            memcpy(copy, copy + beside, window);
        }
    } else {
        *st = kind == 0 ? state->entry->bare(state) : state->entry->strategy(state);
    }
    spent = now() - spent;
    state->sent[kind] = sent_so_far(state->comm) - sent;
    if (*st == DPAR_OK) {
        *st = dpar_all_reduce(state->comm, &spent, &slowest, 1, DPAR_F64, DPAR_MAX, NULL);
    }
    return slowest;
}

static void close_job(job *state)
{
    (void)dpar_ddp_free(state->ddp);
    (void)dpar_zero1_free(state->zero1);
    (void)dpar_ddp_free(state->over);
    (void)dpar_fsdp_free(state->fsdp);
    (void)dpar_attention_free(state->ring);
    (void)dpar_attention_free(state->ulysses);
    (void)dpar_experts_free(state->experts);
    (void)dpar_pipeline_free(state->pipeline);
    while (state->blocks > 0) {
        dpar_comm_release(state->comm, state->block[--state->blocks]);
    }
    free(state->list_memory[0]);
    free(state->list_memory[1]);
}

/* Measures a row, and sets out[kind] to the median of each kind. */
static dpar_status measure(job *state, double seconds, double *out, int64_t *wrong)
{
    static double samples[3][SAMPLES];
    const double began = now();
    unsigned char *copy =
        (unsigned char *)own_memory(state->entry->name, state->entry->beside * 2048);
    int32_t n = 0, go = 1, k;
    dpar_status st = state->entry->open(state);
    memset(copy, 1, (size_t)state->entry->beside * 2048);
    for (n = 0; n < SAMPLES && st == DPAR_OK && go; n++) {
        state->entry->rewrite(state);
        samples[0][n] = timed(state, 0, copy, &st);
        samples[1][n] = state->entry->beside > 0 ? timed(state, 1, copy, &st) : 0.0;
        state->entry->rewrite(state);
        samples[2][n] = timed(state, 2, copy, &st);
        go = now() - began < seconds || n < 8;
        if (st == DPAR_OK) {
            st = dpar_broadcast(state->comm, &go, 1, DPAR_I32, 0, NULL);
        }
    }
    for (k = 0; k < 3 && st == DPAR_OK; k++) {
        qsort(samples[k], (size_t)n, sizeof samples[0][0], by_value);
        out[k] = samples[k][n / 2];
    }
    *wrong = st == DPAR_OK ? state->entry->wrong(state) + (state->sent[2] != state->sent[0]) : 0;
    free(copy);
    return st;
}

typedef struct asked {
    double seconds;
    const char *word;
} asked;

/* What each rank does. */
static int each(dpar_comm *comm, void *arg)
{
    const asked *options = (const asked *)arg;
    pin(comm->rank);
    for (int32_t k = 0; k < ROWS; k++) {
        double median[3] = {0, 0, 0};
        int64_t wrong = 0, all = 0;
        job *state;
        dpar_status st;
        if (strstr(rows[k].name, options->word) == NULL) {
            continue;
        }
        state = (job *)own_memory(rows[k].name, (int64_t)sizeof *state);
        state->comm = comm;
        state->entry = &rows[k];
        st = measure(state, options->seconds, median, &wrong);
        if (st != DPAR_OK) {
            fprintf(stderr, "strategies: rank %d: row '%s': %s: %s %s\n", comm->rank, rows[k].name,
                    dpar_status_text(st), state->why.text, comm->why.text);
            return 1;
        }
        st = dpar_all_reduce(comm, &wrong, &all, 1, DPAR_I64, DPAR_SUM, NULL);
        close_job(state);
        free(state);
        if (st != DPAR_OK) {
            fprintf(stderr, "strategies: rank %d: row '%s': the sum of wrong elements failed: %s\n",
                    comm->rank, rows[k].name, comm->why.text);
            return 1;
        }
        if (all > 0) {
            fprintf(stderr, "strategies: rank %d: row '%s': %lld elements wrong on all ranks\n",
                    comm->rank, rows[k].name, (long long)all);
            return 1;
        }
        if (comm->rank == 0) {
            const double bound = median[0] + median[1];
            printf("| %s | %.1f | %.1f | %.1f | %.2f | %.2f%s |\n", rows[k].name, 1e6 * median[0],
                   1e6 * bound, 1e6 * median[2], median[2] / median[0], median[2] / bound,
                   median[2] <= 1.1 * bound ? ", met" : ", **missed**");
            fflush(stdout);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    asked options = {2.0, ""};
    dpar_why why;
    dpar_world_desc desc = {0};
    if (argc > 1) {
        options.seconds = atof(argv[1]);
    }
    if (argc > 2) {
        options.word = argv[2];
    }
    if (!(options.seconds > 0.0) || argc > 3) {
        fprintf(stderr,
                "strategies: seconds is '%s', with %d arguments; usage: %s [seconds a row "
                "[word]], seconds above 0\n",
                argc > 1 ? argv[1] : "2", argc - 1, argv[0]);
        return 2;
    }
    printf("| strategy | bare us | and its memory | strategy us | ratio | (1.10) |\n"
           "|---|---|---|---|---|---|\n");
    fflush(stdout);
    if (dpar_launch(RANKS, each, &options, &desc, &why) != DPAR_OK) {
        fprintf(stderr, "strategies: the two ranks did not finish: %s\n", why.text);
        return 1;
    }
    return 0;
}
