/* SPDX-License-Identifier: MIT-0 */
/* Combines the values of shared ids. points_sharers.c makes the records of ids, and points_run.c
 * calls this file while it runs an exchange. Sums of doubles have loops of their own. */
#include "points_shared.h"

#include "../host/kernel.h"

/* The n ids of a record, and one number of their values. This rank has `repeats` values of each id;
 * value j of id i is at own + index[j * n + i] * stride. `sharers` is how many ranks have the id,
 * this one included, or 0 if no other rank has it. */
typedef struct dpari_pt_ids {
    int64_t n, repeats, sharers;
    const int32_t *index; /* [repeats][n] */
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

/* Adds doubles: in the final phase those of the sources, otherwise the values of this rank. */
DPARI_STATIC_NOINLINE void dpari_pt_add_ids(const dpari_pt_ids *ids, int32_t phase)
{
    const int64_t n = ids->n, all = ids->repeats * n, stride = ids->stride / 8;
    const int64_t sources = ids->sharers * n, stored = phase == DPARI_PT_FOLD ? n : all;
    const int32_t *index = ids->index, *place = ids->place;
    double *x = (double *)(void *)ids->own;
    int64_t i, j;
    if (phase == DPARI_PT_FINAL && ids->sharers == 2 && ids->repeats == 1) {
        /* the most frequent case; all ids of the record are shared with the same rank */
        const dpari_pt_side *a = ids->source + ids->rank[0], *b = ids->source + ids->rank[n];
        const unsigned char *at = a->at + ids->offset, *by = b->at + ids->offset;
        const int64_t stride_a = a->stride, stride_b = b->stride;
        for (i = 0; i < n; i++) {
            x[index[i] * stride] = *(const double *)(const void *)(at + place[i] * stride_a) +
                                   *(const double *)(const void *)(by + place[n + i] * stride_b);
        }
        return;
    }
    for (i = 0; i < n && phase != DPARI_PT_FINAL; i++, index++) {
        double sum = x[index[0] * stride] + x[index[n] * stride];
        for (j = 2 * n; j < all; j += n) {
            sum += x[index[j] * stride];
        }
        for (j = 0; j < stored; j += n) {
            x[index[j] * stride] = sum;
        }
    }
    for (; i < n; i++, index++) {
        double sum = *(const double *)dpari_pt_source(ids, i);
        for (j = i + n; j < sources; j += n) {
            sum += *(const double *)dpari_pt_source(ids, j);
        }
        for (j = 0; j < all; j += n) {
            x[index[j] * stride] = sum;
        }
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
            shared->out[j] = ids->own + ids->index[j * n + i] * ids->stride;
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

DPARI_INTERNAL DPARI_COLD void dpari_pt_combine_shared(const dpari_points *plan, int32_t phase)
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
