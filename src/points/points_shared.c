/* SPDX-License-Identifier: MIT-0 */
/* Combines the values of shared ids. points_sharers.c makes the records of ids, and points_run.c
 * calls this file while it runs an exchange. Sums of doubles have loops of their own. */
#include "points_shared.h"

#include "../host/kernel.h"

/* The n ids of a record, and one number of their values. This rank has `repeats` values of each id;
 * value j of id i is at own + index[i * repeats + j] * stride. `sharers` is how many ranks have the
 * id, this one included, or 0 if no other rank has it. */
typedef struct dpari_pt_ids {
    int64_t n, repeats, sharers;
    const int32_t *index; /* [n][repeats] */
    const int32_t *total; /* [n] number of values on all ranks; only if sharers is not 0 */
    const int32_t *rank;  /* [sharers][n] sources, in ascending order of ranks */
    const int32_t *place; /* [sharers][n] index of the value in the source */
    unsigned char *own;
    int64_t stride;
    const dpari_pt_side *source;
    int64_t offset; /* of the number in the values of a source, in bytes */
} dpari_pt_ids;

/* Reads the record at `at`, which dpari_pt_write_ids has written, and returns its end. */
static const int32_t *dpari_pt_read_ids(const int32_t *at, dpari_pt_ids *ids)
{
    ids->n = at[0];
    ids->repeats = at[1];
    ids->sharers = at[2];
    ids->index = at + 3;
    ids->total = ids->index + ids->repeats * ids->n;
    ids->rank = ids->total + (ids->sharers > 0 ? ids->n : 0);
    ids->place = ids->rank + ids->sharers * ids->n;
    return ids->place + ids->sharers * ids->n;
}

/* Returns the address of the number that entry k of `rank` and `place` describes. */
static const void *dpari_pt_source(const dpari_pt_ids *ids, int64_t k)
{
    const dpari_pt_side *from = ids->source + ids->rank[k];
    return from->at + ids->offset + ids->place[k] * from->stride;
}

/* The next three functions replace 2, 4 or 8 values of each of n ids by their sum. A node of a mesh
 * of hexahedra has as many values on a face, on an edge or in a corner. */
static void dpari_pt_add_two(double *x, const int32_t *index, int64_t n)
{
    for (; n > 0; n--, index += 2) {
        double *a = x + index[0], *b = x + index[1];
        *a = *b = *a + *b;
    }
}

static void dpari_pt_add_four(double *x, const int32_t *index, int64_t n)
{
    for (; n > 0; n--, index += 4) {
        double *a = x + index[0], *b = x + index[1], *c = x + index[2], *d = x + index[3];
        *a = *b = *c = *d = *a + *b + *c + *d;
    }
}

static void dpari_pt_add_eight(double *x, const int32_t *index, int64_t n)
{
    for (; n > 0; n--, index += 8) {
        double *a = x + index[0], *b = x + index[1], *c = x + index[2], *d = x + index[3];
        double *e = x + index[4], *f = x + index[5], *g = x + index[6], *h = x + index[7];
        *a = *b = *c = *d = *e = *f = *g = *h = *a + *b + *c + *d + *e + *f + *g + *h;
    }
}

/* Adds the values of this rank, and stores each sum in all of them, even if only the first one will
 * be sent, because this needs no other loops. */
static void dpari_pt_add_own(const dpari_pt_ids *ids)
{
    const int64_t repeats = ids->repeats, stride = ids->stride / 8;
    const int32_t *index = ids->index, *const end = index + ids->n * repeats;
    double *x = (double *)(void *)ids->own;
    int64_t j;
    if (stride == 1 && repeats == 2) {
        dpari_pt_add_two(x, index, ids->n);
        return;
    }
    if (stride == 1 && repeats == 4) {
        dpari_pt_add_four(x, index, ids->n);
        return;
    }
    if (stride == 1 && repeats == 8) {
        dpari_pt_add_eight(x, index, ids->n);
        return;
    }
    for (; index < end; index += repeats) {
        double sum = x[index[0] * stride] + x[index[1] * stride];
        for (j = 2; j < repeats; j++) {
            sum += x[index[j] * stride];
        }
        for (j = 0; j < repeats; j++) {
            x[index[j] * stride] = sum;
        }
    }
}

/* Adds the values of two sources, in the most frequent case: this rank has one value of each id.
 * All ids of a record are then shared with the same rank. */
static void dpari_pt_add_pair(const dpari_pt_ids *ids)
{
    const int64_t n = ids->n, stride = ids->stride;
    const int32_t *index = ids->index, *a = ids->place, *b = a + n;
    const dpari_pt_side *first = ids->source + ids->rank[0], *last = ids->source + ids->rank[n];
    const unsigned char *at = first->at + ids->offset, *by = last->at + ids->offset;
    const int64_t stride_a = first->stride, stride_b = last->stride;
    int64_t i;
    for (i = 0; i < n; i++) {
        *(double *)(void *)(ids->own + index[i] * stride) =
            *(const double *)(const void *)(at + a[i] * stride_a) +
            *(const double *)(const void *)(by + b[i] * stride_b);
    }
}

/* Adds the values of the sources. */
static void dpari_pt_add_sources(const dpari_pt_ids *ids)
{
    const int64_t n = ids->n, repeats = ids->repeats, sources = ids->sharers * n;
    const int32_t *index = ids->index;
    int64_t i, j;
    if (ids->sharers == 2 && repeats == 1) {
        dpari_pt_add_pair(ids);
        return;
    }
    for (i = 0; i < n; i++) {
        double sum = *(const double *)dpari_pt_source(ids, i);
        for (j = i + n; j < sources; j += n) {
            sum += *(const double *)dpari_pt_source(ids, j);
        }
        for (j = 0; j < repeats; j++) {
            *(double *)(void *)(ids->own + *index++ * ids->stride) = sum;
        }
    }
}

/* Adds doubles: in the final phase those of the sources, otherwise the values of this rank. */
DPARI_STATIC_NOINLINE void dpari_pt_add_ids(const dpari_pt_ids *ids, int32_t phase)
{
    if (phase == DPARI_PT_FINAL) {
        dpari_pt_add_sources(ids);
    } else {
        dpari_pt_add_own(ids);
    }
}

/* Combines numbers of any type, by any operation. */
static DPARI_COLD void dpari_pt_combine_ids(const dpari_pt_shared *shared, const dpari_pt_ids *ids,
                                            int32_t phase, int32_t type)
{
    const uint64_t zero = 0;
    const int64_t n = ids->n, outs = phase == DPARI_PT_FOLD ? 1 : ids->repeats;
    const int64_t ins = phase == DPARI_PT_FINAL ? ids->sharers : ids->repeats;
    int64_t i, j;
    int32_t op = shared->op;
    if (op == DPAR_COPY || (op == DPAR_AVG && phase == DPARI_PT_FOLD)) {
        op = DPAR_SUM;
    }
    for (i = 0; i < n; i++) {
        for (j = 0; j < ids->repeats; j++) {
            shared->out[j] = ids->own + ids->index[i * ids->repeats + j] * ids->stride;
        }
        for (j = 0; j < ins; j++) {
            shared->in[j] =
                phase == DPARI_PT_FINAL ? dpari_pt_source(ids, j * n + i) : shared->out[j];
        }
        while (op == DPAR_AVG && phase == DPARI_PT_FINAL && j < ids->total[i]) {
            shared->in[j++] = &zero; /* the sum is divided by the number of values */
        }
        /* DPAR_COPY passes only the first value, which is copied */
        dpari_kern_reduce(shared->out, (int32_t)outs, shared->in,
                          shared->op == DPAR_COPY ? 1 : (int32_t)j, 1, type, op, 0);
    }
}

/* Runs a phase for one number of the values. */
static void dpari_pt_combine_number(const dpari_pt_shared *shared, dpari_pt_ids *ids, int32_t phase,
                                    int32_t type)
{
    const int32_t *at = phase == DPARI_PT_LOCAL ? shared->local : shared->shared;
    const int32_t *end = phase == DPARI_PT_LOCAL ? shared->shared : shared->end;
    while (at < end) {
        at = dpari_pt_read_ids(at, ids);
        if (phase == DPARI_PT_FOLD && ids->repeats == 1) {
            continue;
        }
        if (type == DPAR_F64 && shared->op == DPAR_SUM) {
            dpari_pt_add_ids(ids, phase);
        } else {
            dpari_pt_combine_ids(shared, ids, phase, type);
        }
    }
}

/* Not DPARI_COLD: gcc would then compile the loops over ids, which only this function calls, for
 * size as well. */
DPARI_INTERNAL void dpari_pt_combine_shared(const dpari_points *plan, int32_t phase)
{
    dpari_pt_side *own = plan->shared.source + plan->x.peers, *source;
    const dpari_pt_vector *vector = plan->vector;
    dpari_pt_ids ids;
    int64_t point = 0; /* bytes of a point of the previous vector */
    int32_t v;
    if (plan->shared.local == plan->shared.end) {
        return; /* the vectors may be NULL */
    }
    ids.source = plan->shared.source;
    for (v = 0; v < plan->vectors; v++, vector++) {
        const dpari_pt_peer *peer = plan->peer;
        for (source = plan->shared.source; source < own; source++, peer++) {
            source->at += dpari_pt_block(peer->send.count, point);
            source->stride = vector->point;
        }
        point = vector->point;
        ids.own = vector->own;
        ids.stride = own->stride = vector->stride;
        for (ids.offset = 0; ids.offset < point; ids.offset += dpar_type_bytes(vector->type)) {
            own->at = ids.own - ids.offset;
            dpari_pt_combine_number(&plan->shared, &ids, phase, vector->type);
            ids.own += vector->component;
        }
    }
}
