/* SPDX-License-Identifier: MIT-0 */
/* Tensor-parallel layers: linear, embedding and cross-entropy. The product in plain C is a tiled
 * loop with sums in f64. In the backward of a column layer, the inputs are gathered while dx is
 * computed, and dx is summed over the ranks while dw is computed.
 *
 * Each rank checks its arguments before it posts anything. An error breaks the communicator, so
 * that the other ranks do not wait for a collective that this rank never posts. Values that must be
 * equal on all ranks (vocabulary, ids) are hashed, and collectives compare the hashes. */
#include "tensor.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../comm/memory_calls.h"
#include "../host/elements.h"
#include "layer_calls.h"

/* ---- products -------------------------------------------------------------------------------- */

/* c is computed in tiles of 16 x 16, over 32 values of k at a time. The three arrays on the stack
 * then take 10 KB, which fits in the first-level cache. */
enum { DPARI_MATMUL_TILE = 16, DPARI_MATMUL_DEEP = 32 };

/* Packs a tile: to[d * TILE + i] = data[at + i * along + d * down], as f64, for i < lanes. The
 * other elements of each row become 0. */
static void dpari_matmul_pack(double *to, const void *data, int32_t type, int64_t at, int64_t along,
                              int64_t down, int32_t lanes, int32_t deep)
{
    int32_t d, i;
    for (d = 0; d < deep; d++, to += DPARI_MATMUL_TILE) {
        const int64_t first = at + d * down;
        if (type == DPAR_F64) {
            const double *from = (const double *)data + first;
            for (i = 0; i < lanes; i++) {
                to[i] = from[i * along];
            }
        } else {
            const float *from = (const float *)data + first;
            for (i = 0; i < lanes; i++) {
                to[i] = (double)from[i * along];
            }
        }
        for (i = lanes; i < DPARI_MATMUL_TILE; i++) {
            to[i] = 0.0;
        }
    }
}

/* Computes sum[i][j] += sum over d of a[d][i] * b[d][j], for `rows` rows i. */
static void dpari_matmul_tile(double *sum, const double *a, const double *b, int32_t rows,
                              int32_t deep)
{
    int32_t i, j, d;
    for (i = 0; i < rows; i++) {
        double row[DPARI_MATMUL_TILE];
        for (j = 0; j < DPARI_MATMUL_TILE; j++) {
            row[j] = sum[i * DPARI_MATMUL_TILE + j];
        }
        for (d = 0; d < deep; d++) {
            const double f = a[d * DPARI_MATMUL_TILE + i];
            for (j = 0; j < DPARI_MATMUL_TILE; j++) {
                row[j] += f * b[d * DPARI_MATMUL_TILE + j];
            }
        }
        for (j = 0; j < DPARI_MATMUL_TILE; j++) {
            sum[i * DPARI_MATMUL_TILE + j] = row[j];
        }
    }
}

/* Stores a tile at row i0 and column j0: c = alpha sum + beta c. If beta is 0, c is not read. */
static void dpari_matmul_store(const dpar_matmul *p, const double *sum, int64_t i0, int64_t j0,
                               int32_t rows, int32_t columns)
{
    int32_t i, j;
    for (i = 0; i < rows; i++) {
        for (j = 0; j < columns; j++) {
            const int64_t at = (i0 + i) * p->ldc + j0 + j;
            double v = p->alpha * sum[i * DPARI_MATMUL_TILE + j];
            if (p->beta < 0.0 || p->beta > 0.0) {
                v += p->beta * dpari_element_get(p->c, p->type, at);
            }
            dpari_element_put(p->c, p->type, at, v);
        }
    }
}

/* Computes the tile of c at row i0 and column j0. */
static void dpari_matmul_one(const dpar_matmul *p, int64_t i0, int64_t j0)
{
    double sum[DPARI_MATMUL_TILE * DPARI_MATMUL_TILE];
    double a[DPARI_MATMUL_TILE * DPARI_MATMUL_DEEP], b[DPARI_MATMUL_TILE * DPARI_MATMUL_DEEP];
    const int32_t rows = (int32_t)dpari_least(DPARI_MATMUL_TILE, p->m - i0);
    const int32_t columns = (int32_t)dpari_least(DPARI_MATMUL_TILE, p->n - j0);
    const int64_t a_along = p->transpose_a ? 1 : p->lda;
    const int64_t a_down = p->transpose_a ? p->lda : 1;
    const int64_t b_along = p->transpose_b ? p->ldb : 1;
    const int64_t b_down = p->transpose_b ? 1 : p->ldb;
    int64_t k;
    dpari_zero(sum, sizeof sum);
    for (k = 0; k < p->k; k += DPARI_MATMUL_DEEP) {
        const int32_t deep = (int32_t)dpari_least(DPARI_MATMUL_DEEP, p->k - k);
        dpari_matmul_pack(a, p->a, p->type, i0 * a_along + k * a_down, a_along, a_down, rows, deep);
        dpari_matmul_pack(b, p->b, p->type, j0 * b_along + k * b_down, b_along, b_down, columns,
                          deep);
        dpari_matmul_tile(sum, a, b, rows, deep);
    }
    dpari_matmul_store(p, sum, i0, j0, rows, columns);
}

DPAR_API dpar_status dpar_matmul_host(void *user, const dpar_matmul *call)
{
    int64_t i, j;
    (void)user;
    if (!dpari_is_wide(call->type) || call->m < 0 || call->n < 0 || call->k < 0) {
        return DPAR_E_ARG;
    }
    for (i = 0; i < call->m; i += DPARI_MATMUL_TILE) {
        for (j = 0; j < call->n; j += DPARI_MATMUL_TILE) {
            dpari_matmul_one(call, i, j);
        }
    }
    return DPAR_OK;
}

/* ---- functions of all layers ----------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_tensor_parallel_init(dpar_tensor_parallel *tp, dpar_comm *comm,
                                                          int32_t type, int64_t tokens,
                                                          int64_t *counts, dpar_why *why)
{
    dpar_tensor_parallel made;
    dpar_status st;
    if (tp == NULL || comm == NULL) {
        return dpari_wrong(why, "layers: communicator or result is NULL");
    }
    why = dpari_why_of(comm, why);
    if (!dpari_is_wide(type)) {
        return dpari_wrong(why, "layers: type is %s, but must be f64 or f32", dpar_type_name(type));
    }
    dpari_zero(&made, sizeof made);
    st = dpar_split_init(&made.tokens, DPAR_SPLIT_EVEN, tokens, comm->size, 1, why);
    if (st == DPAR_OK) {
        made.comm = comm;
        made.type = type;
        made.counts = counts;
        *tp = made;
    }
    return st;
}

/* Returns the number of a rank's tokens outside of a pair of layers: with sequence parallelism its
 * part, otherwise all tokens. */
static int64_t dpari_tensor_tokens(const dpar_tensor_parallel *tp, int32_t rank)
{
    return tp->counts == NULL ? tp->tokens.count : dpar_split_part_count(&tp->tokens, rank);
}

/* Checks that tp has a communicator and that the structs that describe the call are not NULL
 * (described = 1). Without a communicator, only the caller gets the error. */
static dpar_status dpari_tensor_check_not_null(const dpar_tensor_parallel *tp, int described)
{
    if (tp == NULL || tp->comm == NULL) {
        return DPAR_E_ARG;
    }
    if (described) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(tp->comm, DPAR_E_ARG, "rank %d: a layer's description is NULL",
                                tp->comm->rank);
}

/* Checks tp, whose fields the caller may have changed. A rank's tokens must be consecutive if they
 * are gathered. */
static DPARI_COLD dpar_status dpari_tensor_check(const dpar_tensor_parallel *tp)
{
    const int32_t rule = tp->tokens.rule;
    if (!dpari_is_wide(tp->type) || tp->tokens.parts != tp->comm->size) {
        return dpari_comm_wrong_all(
            tp->comm, DPAR_E_ARG,
            "layers: type is %d, the communicator has %d ranks and tokens has %d parts, but type "
            "must be DPAR_F64 or DPAR_F32, and the two numbers must be equal",
            tp->type, tp->comm->size, tp->tokens.parts);
    }
    if (tp->counts != NULL && rule != DPAR_SPLIT_EVEN && rule != DPAR_SPLIT_CHUNK &&
        rule != DPAR_SPLIT_FLOOR && rule != DPAR_SPLIT_RAGGED) {
        return dpari_comm_wrong_all(
            tp->comm, DPAR_E_ARG,
            "layers: tokens.rule is %d, but the tokens of a rank must be consecutive", rule);
    }
    return DPAR_OK;
}

/* Computes c[m][n] = op(a) op(b), or adds it to c. The caller has set m, n, k and which matrix is
 * transposed. */
static dpar_status dpari_tensor_multiply(const dpar_tensor_parallel *tp, dpar_matmul *p,
                                         const void *a, const void *b, void *c, int add)
{
    dpar_status st;
    p->type = tp->type;
    p->alpha = 1.0;
    p->beta = add ? 1.0 : 0.0;
    p->a = a;
    p->b = b;
    p->c = c;
    p->lda = dpari_most(1, p->transpose_a ? p->m : p->k);
    p->ldb = dpari_most(1, p->transpose_b ? p->k : p->n);
    p->ldc = dpari_most(1, p->n);
    st = tp->matmul != NULL ? tp->matmul(tp->user, p) : dpar_matmul_host(NULL, p);
    if (st >= 0) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(tp->comm, st,
                                "rank %d: matmul failed for a product with m %ld, n %ld, k %ld",
                                tp->comm->rank, p->m, p->n, p->k);
}

/* Computes y = x w^T for all tokens. The next two functions compute dx = dy w and dw = dy^T x. */
static dpar_status dpari_linear_apply(const dpar_tensor_parallel *tp, const dpar_linear *l,
                                      const void *x, const void *w, void *y)
{
    dpar_matmul p;
    dpari_zero(&p, sizeof p);
    p.transpose_b = 1;
    p.m = tp->tokens.count;
    p.n = l->out;
    p.k = l->in;
    return dpari_tensor_multiply(tp, &p, x, w, y, 0);
}

static dpar_status dpari_linear_inputs(const dpar_tensor_parallel *tp, const dpar_linear *l,
                                       const void *dy, const void *w, void *dx, int add)
{
    dpar_matmul p;
    dpari_zero(&p, sizeof p);
    p.m = tp->tokens.count;
    p.n = l->in;
    p.k = l->out;
    return dpari_tensor_multiply(tp, &p, dy, w, dx, add);
}

static dpar_status dpari_linear_weights(const dpar_tensor_parallel *tp, const dpar_linear *l,
                                        const void *dy, const void *x, void *dw, int add)
{
    dpar_matmul p;
    dpari_zero(&p, sizeof p);
    p.transpose_a = 1;
    p.m = l->out;
    p.n = l->in;
    p.k = tp->tokens.count;
    return dpari_tensor_multiply(tp, &p, dy, x, dw, add);
}

/* Sums dy[row][j] over the rows in f64, and stores the result in sum[j] or adds it. Does nothing if
 * sum is NULL. Processes 64 columns at a time, so that their sums fit on the stack. */
static void dpari_tensor_add_rows(int32_t type, const void *dy, int64_t rows, int64_t n, void *sum,
                                  int add)
{
    enum { SOME = 64 };
    double part[SOME];
    int64_t first, i, j;
    for (first = 0; first < n && sum != NULL; first += SOME) {
        const int64_t some = dpari_least(SOME, n - first);
        for (j = 0; j < some; j++) {
            part[j] = add ? dpari_element_get(sum, type, first + j) : 0.0;
        }
        for (i = 0; i < rows; i++) {
            for (j = 0; j < some; j++) {
                part[j] += dpari_element_get(dy, type, i * n + first + j);
            }
        }
        for (j = 0; j < some; j++) {
            dpari_element_put(sum, type, first + j, part[j]);
        }
    }
}

/* Does the same in the memory of the communicator, which may be that of a device. */
static dpar_status dpari_tensor_sum_rows(const dpar_tensor_parallel *tp, const void *dy,
                                         int64_t rows, int64_t n, void *sum, int add)
{
    dpar_mem_reduce r;
    if (tp->comm->mem == NULL || sum == NULL || n == 0) {
        dpari_tensor_add_rows(tp->type, dy, rows, n, sum, add);
        return DPAR_OK;
    }
    if (rows == 0) {
        return add ? DPAR_OK : dpari_do_copy(tp->comm, sum, NULL, n * dpar_type_bytes(tp->type));
    }
    dpari_zero(&r, sizeof r);
    r.to = sum;
    r.from = dy;
    r.count = r.stride = n;
    r.parts = rows;
    r.to_type = r.from_type = tp->type;
    r.sum_type = DPAR_F64;
    r.op = DPAR_SUM;
    r.accumulate = add != 0;
    r.scale = 1.0;
    return dpari_do_reduce(tp->comm, &r);
}

/* ---- collectives of rows --------------------------------------------------------------------- */

/* Fills in tp->counts for collectives on rows of this width. A function calls it once, before it
 * posts anything, because posted operations read the counts. The product is unsigned because widths
 * have no limit. */
static void dpari_tensor_count(const dpar_tensor_parallel *tp, int64_t width)
{
    int32_t r;
    for (r = 0; tp->counts != NULL && r < tp->comm->size; r++) {
        tp->counts[r] =
            (int64_t)((uint64_t)dpar_split_part_count(&tp->tokens, r) * (uint64_t)width);
    }
}

/* What the ranks of a collective compare. */
typedef struct dpari_tensor_alike {
    uint64_t hash;
    const char *what; /* names the hashed values in the message if hashes differ */
} dpari_tensor_alike;

static dpari_tensor_alike dpari_linear_alike(const dpar_linear *l)
{
    const int column = l->kind == DPAR_LINEAR_COLUMN; /* the other width may differ between ranks */
    dpari_tensor_alike alike = {0, NULL};
    alike.hash = dpari_hash(dpari_hash(1, l->kind), column ? l->in : l->out);
    alike.what = column ? "a linear layer: kind or in" : "a linear layer: kind or out";
    return alike;
}

/* Returns a hash of a vocabulary and of all ids. */
static uint64_t dpari_vocab_hash(const dpar_tensor_parallel *tp, const dpar_vocab *vocab,
                                 const int32_t *ids)
{
    uint64_t h = dpari_hash(dpari_hash(2, vocab->count), vocab->added);
    int64_t i;
    h = dpari_hash(dpari_hash(h, vocab->padded), vocab->padded_added);
    for (i = 0; i < tp->tokens.count; i++) {
        h = dpari_hash(h, ids[i]);
    }
    return h;
}

/* Gathers the rows of all ranks into whole[n][width]. Only with sequence parallelism. */
static dpar_status dpari_tensor_collect(const dpar_tensor_parallel *tp, const void *own,
                                        void *whole, const dpari_tensor_alike *alike,
                                        dpar_work *work)
{
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_GATHER;
    call.type = tp->type;
    call.variable_counts = 1;
    call.in = own;
    call.out = whole;
    call.count = tp->counts[tp->comm->rank];
    call.out_count = tp->counts;
    return dpari_post_alike(tp->comm, &call, alike->hash, alike->what, work);
}

/* Sums part[n][width] over the ranks. The result is in `part` on all ranks, or with sequence
 * parallelism each rank's rows of it are in `own`. */
static dpar_status dpari_tensor_reduce(const dpar_tensor_parallel *tp, int64_t width, void *part,
                                       void *own, const dpari_tensor_alike *alike, dpar_work *work)
{
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = tp->counts == NULL ? DPAR_CALL_ALL_REDUCE : DPAR_CALL_REDUCE_SCATTER;
    call.type = tp->type;
    call.op = DPAR_SUM;
    call.in = part;
    call.out = tp->counts == NULL ? part : own;
    call.count = tp->counts == NULL ? tp->tokens.count * width : tp->counts[tp->comm->rank];
    call.variable_counts = tp->counts != NULL;
    call.in_count = tp->counts;
    return dpari_post_alike(tp->comm, &call, alike->hash, alike->what, work);
}

/* ---- linear layers --------------------------------------------------------------------------- */

/* True if an array is NULL although it has elements. */
static int dpari_tensor_missing(const void *at, int64_t rows, int64_t width)
{
    return at == NULL && rows > 0 && width > 0;
}

/* If arrays are missing, reports their number to all ranks. what: the layer's kind. */
static dpar_status dpari_tensor_check_missing(const dpar_tensor_parallel *tp, int missing,
                                              const char *what)
{
    if (missing == 0) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(tp->comm, DPAR_E_ARG,
                                "rank %d: %s: %d arrays that this call needs are NULL",
                                tp->comm->rank, what, (int32_t)missing);
}

/* Checks a layer and its arrays. An array may be NULL if the call does not use it or if it has no
 * elements. */
static DPARI_COLD dpar_status dpari_linear_check(const dpar_tensor_parallel *tp,
                                                 const dpar_linear *l,
                                                 const dpar_linear_arrays *arrays, int forward)
{
    int64_t n, rows_x, rows_y;
    int sequence, column, reads_x, reads_dy, missing;
    dpar_status st = dpari_tensor_check_not_null(tp, l != NULL && arrays != NULL);
    if (st == DPAR_OK) {
        st = dpari_tensor_check(tp);
    }
    if (st != DPAR_OK) {
        return st;
    }
    sequence = tp->counts != NULL;
    column = l->kind == DPAR_LINEAR_COLUMN;
    n = tp->tokens.count;
    rows_x = column ? dpari_tensor_tokens(tp, tp->comm->rank) : n;
    rows_y = column ? n : dpari_tensor_tokens(tp, tp->comm->rank);
    reads_x = (forward || arrays->dw != NULL) && !(column && sequence && arrays->reuse_gathered);
    reads_dy = !forward && !(!column && sequence && arrays->reuse_gathered);
    if ((l->kind != DPAR_LINEAR_COLUMN && l->kind != DPAR_LINEAR_ROW) || l->in < 0 || l->out < 0 ||
        ((arrays->accumulate_dx || arrays->defer_reduce) && !column)) {
        return dpari_comm_wrong_all(
            tp->comm, DPAR_E_ARG,
            "linear: kind is %d, in %ld and out %ld, but kind must be 1 (column) or 2 (row), in "
            "and out 0 or more, and accumulate_dx and defer_reduce 0 in a row layer",
            l->kind, l->in, l->out);
    }
    if (tp->comm->mem != NULL && tp->matmul == NULL) {
        return dpari_comm_wrong_all(
            tp->comm, DPAR_E_ARG,
            "rank %d: linear: matmul is NULL, but arrays on a device need a "
            "function for that device",
            tp->comm->rank);
    }
    missing = dpari_tensor_missing(arrays->w, l->in, l->out) && (forward || arrays->dx != NULL);
    missing += reads_x && dpari_tensor_missing(arrays->x, rows_x, l->in);
    missing += forward && dpari_tensor_missing(arrays->y, rows_y, l->out);
    missing += reads_dy && dpari_tensor_missing(arrays->dy, rows_y, l->out);
    missing += sequence && dpari_tensor_missing(arrays->gathered, n, column ? l->in : l->out) &&
               (!column || forward || arrays->dw != NULL);
    missing += sequence && !forward && column && arrays->dx != NULL &&
               dpari_tensor_missing(arrays->gathered_dx, n, l->in);
    if (missing == 0) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(
        tp->comm, DPAR_E_ARG,
        "rank %d: linear: %d arrays that this call needs are NULL (in %ld, out %ld)",
        tp->comm->rank, missing, l->in, l->out);
}

/* A column layer gathers x before the product, a row layer reduces y after it. */
DPAR_API DPARI_COLD dpar_status dpar_linear_forward(const dpar_tensor_parallel *tp,
                                                    const dpar_linear *layer,
                                                    const dpar_linear_arrays *arrays)
{
    dpari_tensor_alike alike;
    const void *x;
    void *y;
    int column, sequence;
    dpar_status st = dpari_linear_check(tp, layer, arrays, 1);
    if (st != DPAR_OK) {
        return st;
    }
    column = layer->kind == DPAR_LINEAR_COLUMN;
    sequence = tp->counts != NULL;
    x = column && sequence ? arrays->gathered : arrays->x;
    y = !column && sequence ? arrays->gathered : arrays->y;
    alike = dpari_linear_alike(layer);
    dpari_tensor_count(tp, column ? layer->in : layer->out);
    if (column && sequence && !arrays->reuse_gathered) {
        st = dpari_tensor_collect(tp, arrays->x, arrays->gathered, &alike, NULL);
    }
    if (st == DPAR_OK) {
        st = dpari_linear_apply(tp, layer, x, arrays->w, y);
    }
    if (st == DPAR_OK && !column) {
        st = dpari_tensor_reduce(tp, layer->out, y, arrays->y, &alike, NULL);
    }
    if (st != DPAR_OK || arrays->bias == NULL) {
        return st;
    }
    return dpari_do_rows(tp->comm, arrays->y, layer->out, arrays->bias, 0, layer->out,
                         column ? tp->tokens.count : dpari_tensor_tokens(tp, tp->comm->rank),
                         tp->type, DPAR_SUM);
}

/* Computes the backward of a column layer. x is gathered while dx is computed, and dx is summed
 * over the ranks while dw is computed. After an error, too, waits for both operations, because they
 * use the memory until they end. */
static dpar_status dpari_column_backward(const dpar_tensor_parallel *tp, const dpar_linear *l,
                                         const dpar_linear_arrays *arrays)
{
    const int sequence = tp->counts != NULL;
    void *part = sequence ? arrays->gathered_dx : arrays->dx;
    const dpari_tensor_alike alike = dpari_linear_alike(l);
    dpar_work gather, reduce;
    dpar_status st = DPAR_OK;
    dpari_zero(&gather, sizeof gather);
    dpari_zero(&reduce, sizeof reduce);
    if (arrays->dw != NULL && sequence && !arrays->reuse_gathered) {
        st = dpari_tensor_collect(tp, arrays->x, arrays->gathered, &alike, &gather);
    }
    if (st == DPAR_OK && arrays->dx != NULL) {
        st = dpari_linear_inputs(tp, l, arrays->dy, arrays->w, part, arrays->accumulate_dx);
        if (st == DPAR_OK && !arrays->defer_reduce) {
            st = dpari_tensor_reduce(tp, l->in, part, arrays->dx, &alike, &reduce);
        }
    }
    st = dpari_first_error(st, dpar_wait(&gather));
    if (st == DPAR_OK && arrays->dw != NULL) {
        st = dpari_linear_weights(tp, l, arrays->dy, sequence ? arrays->gathered : arrays->x,
                                  arrays->dw, arrays->accumulate);
    }
    return dpari_first_error(st, dpar_wait(&reduce));
}

/* Computes the backward of a row layer. Gathers dy with sequence parallelism; dx needs no sum over
 * the ranks. */
static dpar_status dpari_row_backward(const dpar_tensor_parallel *tp, const dpar_linear *l,
                                      const dpar_linear_arrays *arrays)
{
    const int sequence = tp->counts != NULL;
    const void *dy = sequence ? arrays->gathered : arrays->dy;
    const dpari_tensor_alike alike = dpari_linear_alike(l);
    dpar_status st = DPAR_OK;
    if (sequence && !arrays->reuse_gathered) {
        st = dpari_tensor_collect(tp, arrays->dy, arrays->gathered, &alike, NULL);
    }
    if (st == DPAR_OK && arrays->dx != NULL) {
        st = dpari_linear_inputs(tp, l, dy, arrays->w, arrays->dx, 0);
    }
    if (st == DPAR_OK && arrays->dw != NULL) {
        st = dpari_linear_weights(tp, l, dy, arrays->x, arrays->dw, arrays->accumulate);
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_linear_backward(const dpar_tensor_parallel *tp,
                                                     const dpar_linear *layer,
                                                     const dpar_linear_arrays *arrays)
{
    int column;
    dpar_status st = dpari_linear_check(tp, layer, arrays, 0);
    if (st != DPAR_OK) {
        return st;
    }
    column = layer->kind == DPAR_LINEAR_COLUMN;
    dpari_tensor_count(tp, column ? layer->in : layer->out);
    st = column ? dpari_column_backward(tp, layer, arrays) : dpari_row_backward(tp, layer, arrays);
    if (st == DPAR_OK) {
        const void *dy = !column && tp->counts != NULL ? arrays->gathered : arrays->dy;
        st = dpari_tensor_sum_rows(tp, dy, tp->tokens.count, layer->out, arrays->dbias,
                                   arrays->accumulate);
    }
    return st;
}

/* ---- vocabulary: embedding ------------------------------------------------------------------- */

/* Computes the rows lo <= row < hi of a rank that belong to ids of the model (which = 0) or to
 * added ids (which = 1). The rows after each of these two ranges are padding. */
static void dpari_vocab_run(const dpar_vocab *vocab, int32_t rank, int32_t which, int64_t *lo,
                            int64_t *hi)
{
    const int64_t each =
        which == 0 ? vocab->padded / vocab->ranks : vocab->padded_added / vocab->ranks;
    const int64_t left = (which == 0 ? vocab->count : vocab->added) - rank * each;
    *lo = which == 0 ? 0 : vocab->padded / vocab->ranks;
    *hi = *lo + dpari_most(0, dpari_least(each, left));
}

/* Fills in an index that maps the ids of tokens to rows of this rank. Ids whose rows are on other
 * ranks map to no row. */
static void dpari_vocab_index(const dpar_vocab *vocab, int32_t rank, const int32_t *ids,
                              dpar_mem_index *index)
{
    int32_t which;
    dpari_zero(index, sizeof *index);
    index->at = ids;
    index->type = DPAR_I32;
    index->windows = 2;
    for (which = 0; which < 2; which++) {
        int64_t lo, hi;
        dpari_vocab_run(vocab, rank, which, &lo, &hi);
        index->lo[which] = which == 0 ? rank * (vocab->padded / vocab->ranks)
                                      : vocab->count + rank * (vocab->padded_added / vocab->ranks);
        index->hi[which] = index->lo[which] + (hi - lo);
        index->row[which] = lo;
    }
}

/* Checks a vocabulary and the ids of all tokens. Allows ids below 0, which are ignored targets. */
static DPARI_COLD dpar_status dpari_vocab_check(const dpar_tensor_parallel *tp,
                                                const dpar_vocab *vocab, const int32_t *ids)
{
    dpar_status st = dpari_tensor_check(tp);
    int64_t i;
    if (st == DPAR_OK &&
        (vocab->ranks != tp->comm->size || (ids == NULL && tp->tokens.count > 0))) {
        st = dpari_comm_wrong_all(tp->comm, DPAR_E_ARG,
                                  "vocabulary: it is for %d ranks, but the communicator has %d, or "
                                  "ids or targets are NULL",
                                  vocab->ranks, tp->comm->size);
    }
    for (i = 0; st == DPAR_OK && i < tp->tokens.count; i++) {
        if (ids[i] >= vocab->count + vocab->added) {
            st = dpari_comm_wrong_all(tp->comm, DPAR_E_ARG,
                                      "vocabulary: token %ld has id %d, but ids must be below %ld",
                                      i, ids[i], vocab->count + vocab->added);
        }
    }
    return st;
}

/* Checks an embedding. An id below 0 is an error here. back: checks the gradients of the table and
 * of the output in place of these arrays. */
static DPARI_COLD dpar_status dpari_embedding_check(const dpar_tensor_parallel *tp,
                                                    const dpar_embedding *layer,
                                                    const dpar_embedding_arrays *a, int back)
{
    const int32_t *ids;
    int64_t width, i;
    int missing;
    dpar_status st = dpari_tensor_check_not_null(tp, layer != NULL && a != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    ids = a->ids;
    width = layer->width;
    st = dpari_vocab_check(tp, &layer->vocab, ids);
    if (st == DPAR_OK && width < 0) {
        st = dpari_comm_wrong_all(tp->comm, DPAR_E_ARG,
                                  "embedding: width is %ld, but must be at least 0", width);
    }
    for (i = 0; st == DPAR_OK && i < tp->tokens.count; i++) {
        if (ids[i] < 0) {
            st = dpari_comm_wrong_all(tp->comm, DPAR_E_ARG,
                                      "embedding: token %ld has id %d, but ids must be at least 0",
                                      i, ids[i]);
        }
    }
    if (st != DPAR_OK) {
        return st;
    }
    missing = dpari_tensor_missing(back ? a->dtable : a->table, dpar_vocab_row_count(&layer->vocab),
                                   width);
    missing +=
        dpari_tensor_missing(back ? a->dy : a->y, dpari_tensor_tokens(tp, tp->comm->rank), width);
    missing += tp->counts != NULL && dpari_tensor_missing(a->gathered, tp->tokens.count, width);
    return dpari_tensor_check_missing(tp, missing, "embedding");
}

static dpari_tensor_alike dpari_embedding_alike(const dpar_tensor_parallel *tp,
                                                const dpar_embedding *layer, const int32_t *ids)
{
    dpari_tensor_alike alike = {0, "an embedding: vocabulary, width or ids"};
    alike.hash = dpari_hash(dpari_vocab_hash(tp, &layer->vocab, ids), layer->width);
    return alike;
}

DPAR_API dpar_status dpar_embedding_forward(const dpar_tensor_parallel *tp,
                                            const dpar_embedding *layer,
                                            const dpar_embedding_arrays *arrays)
{
    dpar_status st = dpari_embedding_check(tp, layer, arrays, 0);
    dpar_mem_gather g;
    if (st == DPAR_OK) {
        dpari_zero(&g, sizeof g);
        g.to = tp->counts != NULL ? arrays->gathered : arrays->y;
        g.from = arrays->table;
        g.rows = tp->tokens.count;
        g.bytes = g.to_step = g.from_step = layer->width * dpar_type_bytes(tp->type);
        dpari_vocab_index(&layer->vocab, tp->comm->rank, arrays->ids, &g.index);
        st = dpari_do_gather(tp->comm, &g);
    }
    if (st == DPAR_OK) {
        const dpari_tensor_alike alike = dpari_embedding_alike(tp, layer, arrays->ids);
        dpari_tensor_count(tp, layer->width);
        st =
            dpari_tensor_reduce(tp, layer->width, tp->counts != NULL ? arrays->gathered : arrays->y,
                                arrays->y, &alike, NULL);
    }
    return st;
}

DPAR_API dpar_status dpar_embedding_backward(const dpar_tensor_parallel *tp,
                                             const dpar_embedding *layer,
                                             const dpar_embedding_arrays *arrays)
{
    dpar_status st = dpari_embedding_check(tp, layer, arrays, 1);
    const void *dy;
    dpar_mem_scatter s;
    if (st != DPAR_OK) {
        return st;
    }
    dy = arrays->dy;
    if (tp->counts != NULL) {
        const dpari_tensor_alike alike = dpari_embedding_alike(tp, layer, arrays->ids);
        dpari_tensor_count(tp, layer->width);
        st = dpari_tensor_collect(tp, dy, arrays->gathered, &alike, NULL);
        dy = arrays->gathered;
    }
    if (st == DPAR_OK && !arrays->accumulate) {
        st = dpari_do_copy(tp->comm, arrays->dtable, NULL,
                           dpar_vocab_row_count(&layer->vocab) * layer->width *
                               dpar_type_bytes(tp->type));
    }
    if (st == DPAR_OK) {
        dpari_zero(&s, sizeof s);
        s.to = arrays->dtable;
        s.from = dy;
        s.rows = tp->tokens.count;
        s.width = layer->width;
        s.type = tp->type;
        dpari_vocab_index(&layer->vocab, tp->comm->rank, arrays->ids, &s.index);
        st = dpari_do_scatter(tp->comm, &s);
    }
    return st;
}

/* ---- vocabulary: cross-entropy --------------------------------------------------------------- */

/* Checks a cross-entropy and its targets. */
static dpar_status dpari_entropy_check(const dpar_tensor_parallel *tp, const dpar_cross_entropy *e,
                                       const dpar_cross_entropy_arrays *a)
{
    dpar_status st = dpari_tensor_check_not_null(tp, e != NULL && a != NULL);
    if (st == DPAR_OK) {
        st = dpari_vocab_check(tp, &e->vocab, a->targets);
    }
    if (st == DPAR_OK && !(e->smoothing >= 0.0 && e->smoothing <= 1.0 && dpari_finite(e->z_loss))) {
        return dpari_comm_wrong_all(tp->comm, DPAR_E_ARG,
                                    "cross-entropy: smoothing must be 0 to 1, and z_loss finite");
    }
    return st;
}

/* Fills in the fields that all phases of a cross-entropy have in common. */
static void dpari_entropy_of(const dpar_tensor_parallel *tp, const dpar_cross_entropy *e,
                             const int32_t *targets, dpar_mem_cross_entropy *x)
{
    const dpar_vocab *vocab = &e->vocab;
    int32_t which;
    dpari_zero(x, sizeof *x);
    x->type = tp->type;
    x->tokens = tp->tokens.count;
    x->rows = dpar_vocab_row_count(vocab);
    for (which = 0; which < 2; which++) {
        dpari_vocab_run(vocab, tp->comm->rank, which, &x->lo[which], &x->hi[which]);
    }
    dpari_vocab_index(vocab, tp->comm->rank, targets, &x->target);
    x->vocabulary = vocab->count + vocab->added;
    x->ignore = e->ignore;
    x->smoothing = e->smoothing;
    x->z_loss = e->z_loss;
    x->ranks = tp->comm->size;
}

/* Gathers the three numbers per token that each rank computed from its rows of the vocabulary. */
static dpar_status dpari_entropy_gather(const dpar_tensor_parallel *tp, const dpar_cross_entropy *e,
                                        const int32_t *targets, const void *own, void *all)
{
    uint64_t hash = dpari_vocab_hash(tp, &e->vocab, targets);
    dpar_call call;
    hash = dpari_hash_real(dpari_hash_real(dpari_hash(hash, e->ignore), e->smoothing), e->z_loss);
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_GATHER;
    call.type = tp->type;
    call.in = own;
    call.out = all;
    call.count = 3 * tp->tokens.count;
    return dpari_post_alike(tp->comm, &call, hash,
                            "a cross-entropy: vocabulary, targets, ignore, smoothing or z", NULL);
}

DPAR_API DPARI_COLD dpar_status dpar_cross_entropy_forward(const dpar_tensor_parallel *tp,
                                                           const dpar_cross_entropy *layer,
                                                           const dpar_cross_entropy_arrays *arrays)
{
    dpar_status st = dpari_entropy_check(tp, layer, arrays);
    unsigned char *all;
    dpar_mem_cross_entropy x;
    int64_t n = 0;
    if (st == DPAR_OK) {
        n = tp->tokens.count;
        st = dpari_tensor_check_missing(
            tp,
            dpari_tensor_missing(arrays->logits, n, dpar_vocab_row_count(&layer->vocab)) +
                dpari_tensor_missing(arrays->lse, n, 1) +
                dpari_tensor_missing(arrays->scratch, n, 1),
            "cross-entropy");
    }
    if (st != DPAR_OK) {
        return st;
    }
    all = (unsigned char *)arrays->scratch + 3 * n * dpar_type_bytes(tp->type);
    dpari_entropy_of(tp, layer, arrays->targets, &x);
    x.phase = DPAR_MEM_CROSS_ENTROPY_PART;
    x.logits = arrays->logits; /* this phase only reads it */
    x.partial = arrays->scratch;
    x.all = all;
    st = dpari_do_cross_entropy(tp->comm, &x);
    if (st == DPAR_OK) {
        st = dpari_entropy_gather(tp, layer, arrays->targets, arrays->scratch, all);
    }
    x.phase = DPAR_MEM_CROSS_ENTROPY_LOSS;
    x.lse = arrays->lse;
    x.loss = arrays->loss;
    x.sum = arrays->sum;
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_do_cross_entropy(tp->comm, &x);
}

DPAR_API DPARI_COLD dpar_status dpar_cross_entropy_backward(const dpar_tensor_parallel *tp,
                                                            const dpar_cross_entropy *layer,
                                                            const dpar_cross_entropy_arrays *arrays,
                                                            double scale)
{
    const dpar_status st = dpari_tensor_check_not_null(tp, layer != NULL && arrays != NULL);
    dpar_mem_cross_entropy x;
    if (st != DPAR_OK) {
        return st;
    }
    dpari_entropy_of(tp, layer, arrays->targets, &x);
    x.phase = DPAR_MEM_CROSS_ENTROPY_GRADIENT;
    x.logits = arrays->logits;
    x.lse = arrays->lse; /* read only */
    x.scale = scale;
    return dpari_do_cross_entropy(tp->comm, &x);
}
