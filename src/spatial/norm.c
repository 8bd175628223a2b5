/* SPDX-License-Identifier: MIT-0 */
/* Norms of fields that ranks share. The ranks exchange (count, mean, M2) of each set and merge them
 * in rank order. */
#include "norm.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../host/elements.h"
#include "../train/layer_calls.h"
#include "spatial_boxes.h"

/* Returns the number of sets that have a mean and a variance of their own. */
static int64_t dpari_norm_sets(const dpar_norm *norm)
{
    return norm->groups == 0 ? norm->channels : (int64_t)norm->samples * norm->groups;
}

static int64_t dpari_norm_planes(const dpar_norm *norm)
{
    return (int64_t)norm->samples * norm->channels;
}

DPAR_API DPARI_COLD void dpar_norm_sizes(const dpar_comm *comm, const dpar_norm *norm,
                                         int64_t *saved, int64_t *scratch)
{
    const int64_t sets = dpari_norm_sets(norm);
    if (saved != NULL) {
        *saved = 2 * sets;
    }
    if (scratch != NULL) {
        *scratch = 3 * sets + dpari_most(3 * sets * comm->size, 2 * dpari_norm_planes(norm));
    }
}

/* Checks that points have data. Because only one rank may be wrong, an error breaks the
 * communicator. */
static dpar_status dpari_norm_check_data(dpar_comm *comm, const dpar_tile *x, const dpar_tile *y)
{
    const int64_t points = x->box.dims > 0 && x->planes > 0 ? dpar_box_volume(&x->box) : 0;
    if (points == 0 || (x->data != NULL && y->data != NULL)) {
        return DPAR_OK;
    }
    return dpari_comm_wrong_all(comm, DPAR_E_ARG,
                                "rank %d: a tile of a norm has %ld points and no data", comm->rank,
                                points);
}

/* Checks a norm and two of its tiles. */
static DPARI_COLD dpar_status dpari_norm_check(dpar_comm *comm, const dpar_norm *norm,
                                               const dpar_tile *x, const dpar_tile *y)
{
    int32_t d;
    int fits = x->box.dims == y->box.dims && x->planes == y->planes && x->box.dims >= 0 &&
               x->box.dims <= DPAR_MAX_DIMS;
    for (d = 0; fits && d < x->box.dims; d++) {
        fits = x->box.lo[d] == y->box.lo[d] && x->box.hi[d] == y->box.hi[d];
    }
    if (!dpari_is_wide(norm->type)) {
        return dpari_comm_wrong(comm, "a norm has type %s, but only f64 and f32 are possible",
                                dpar_type_name(norm->type));
    }
    if (norm->samples < 1 || norm->channels < 1 || norm->groups < 0 ||
        (norm->groups > 0 && norm->channels % norm->groups != 0) || !fits ||
        (x->planes != 0 && x->planes != dpari_norm_planes(norm))) {
        return dpari_comm_wrong(
            comm,
            "a norm of %d samples, %d channels and %d groups does not fit %ld planes, or its tiles "
            "have different points",
            norm->samples, norm->channels, norm->groups, x->planes);
    }
    if (!(norm->epsilon >= 0.0 && norm->epsilon <= 1e300)) {
        return dpari_comm_wrong(comm, "the epsilon of a norm must be a number from 0 to 1e300");
    }
    return dpari_norm_check_data(comm, x, y);
}

/* Describes the points of a tile for layers.h. data stays NULL if the tile has no data. */
static void dpari_norm_planes_of(const dpar_tile *tile, int32_t type, dpar_mem_planes *planes)
{
    unsigned char *data = (unsigned char *)tile->data;
    int32_t d;
    planes->step = tile->plane;
    for (d = 0; d < tile->box.dims; d++) {
        planes->stride[d] = tile->stride[d];
    }
    planes->data =
        data != NULL ? data + dpari_tile_at(tile, 0, tile->box.lo) * dpar_type_bytes(type) : NULL;
}

/* Describes a norm of the points of x for layers.h. */
static void dpari_norm_describe(const dpar_norm *norm, const dpar_tile *x, double *saved,
                                dpar_mem_norm *work)
{
    int32_t d;
    dpari_zero(work, sizeof *work);
    work->type = norm->type;
    work->planes = dpari_norm_planes(norm);
    work->channels = norm->channels;
    work->groups = norm->groups;
    work->epsilon = norm->epsilon;
    work->scale = norm->scale;
    work->shift = norm->shift;
    work->saved = saved;
    work->dims = 1;
    if (x->planes > 0 && x->data != NULL && x->box.dims > 0 && dpar_box_volume(&x->box) > 0) {
        work->dims = x->box.dims;
        for (d = 0; d < work->dims; d++) {
            work->extent[d] = x->box.hi[d] - x->box.lo[d];
        }
        dpari_norm_planes_of(x, norm->type, &work->x);
    }
}

/* True if the last two dims are adjacent in memory. */
static int dpari_norm_joins(const dpar_mem_norm *work, const dpar_mem_planes *planes)
{
    const int32_t last = work->dims - 1;
    return planes->stride[last - 1] == planes->stride[last] * work->extent[last];
}

/* Joins the last dims as long as they are adjacent in all tiles, so that rows are long. */
static void dpari_norm_join(dpar_mem_norm *work)
{
    while (work->dims > 1 && dpari_norm_joins(work, &work->x) &&
           dpari_norm_joins(work, &work->dy) && dpari_norm_joins(work, &work->to)) {
        const int32_t to = work->dims - 2;
        work->extent[to] *= work->extent[to + 1];
        work->x.stride[to] = work->x.stride[to + 1];
        work->dy.stride[to] = work->dy.stride[to + 1];
        work->to.stride[to] = work->to.stride[to + 1];
        work->dims--;
    }
}

/* Runs a collective of `count` numbers, in which engines compare the norms of all ranks. */
static dpar_status dpari_norm_post(dpar_comm *comm, const dpar_norm *norm, int32_t kind,
                                   const double *in, double *out, int64_t count)
{
    uint64_t hash =
        dpari_hash(dpari_hash(dpari_hash(3, norm->type), norm->samples), norm->channels);
    dpar_call call;
    hash = dpari_hash_real(dpari_hash(hash, norm->groups), norm->epsilon);
    dpari_zero(&call, sizeof call);
    call.kind = kind;
    call.type = DPAR_F64;
    call.op = kind == DPAR_CALL_ALL_REDUCE ? DPAR_SUM : DPAR_COPY;
    call.in = in;
    call.out = out;
    call.count = count;
    return dpari_post_alike(comm, &call, hash, "a norm: type, samples, channels, groups or epsilon",
                            NULL);
}

DPAR_API DPARI_COLD dpar_status dpar_norm_forward(dpar_comm *comm, const dpar_norm *norm,
                                                  const dpar_norm_arrays *arrays)
{
    dpar_mem_moments own;
    dpar_mem_norm work;
    dpar_status status;
    int64_t sets;
    int32_t d;
    if (comm == NULL || norm == NULL || arrays == NULL || arrays->x == NULL || arrays->y == NULL ||
        arrays->saved == NULL || arrays->scratch == NULL) {
        return comm == NULL ? DPAR_E_ARG
                            : dpari_comm_wrong(
                                  comm, "dpar_norm_forward: norm, x, y, saved or scratch is NULL");
    }
    status = dpari_norm_check(comm, norm, arrays->x, arrays->y);
    if (status != DPAR_OK) {
        return status;
    }
    sets = dpari_norm_sets(norm);
    dpari_norm_describe(norm, arrays->x, arrays->saved, &work);
    dpari_norm_planes_of(arrays->y, norm->type, &work.to);
    dpari_zero(&own, sizeof own);
    own.x = work.x.data;
    own.type = work.type;
    own.dims = work.dims;
    own.planes = work.planes;
    own.step = work.x.step;
    own.channels = work.channels;
    own.groups = work.groups;
    own.to = arrays->scratch;
    for (d = 0; d < work.dims; d++) {
        own.extent[d] = work.extent[d];
        own.stride[d] = work.x.stride[d];
    }
    status = dpari_do_moments(comm, &own);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_norm_post(comm, norm, DPAR_CALL_ALL_GATHER, arrays->scratch,
                             arrays->scratch + 3 * sets, 3 * sets);
    if (status != DPAR_OK) {
        return status;
    }
    work.phase = DPAR_MEM_NORM_MERGE;
    work.all = arrays->scratch + 3 * sets;
    work.ranks = comm->size;
    dpari_norm_join(&work);
    status = dpari_do_norm(comm, &work);
    if (status != DPAR_OK) {
        return status;
    }
    work.phase = DPAR_MEM_NORM_APPLY;
    return dpari_do_norm(comm, &work);
}

DPAR_API DPARI_COLD dpar_status dpar_norm_backward(dpar_comm *comm, const dpar_norm *norm,
                                                   const dpar_norm_arrays *arrays)
{
    dpar_mem_norm work;
    dpar_status status;
    int64_t sets;
    if (comm == NULL || norm == NULL || arrays == NULL || arrays->x == NULL || arrays->dy == NULL ||
        arrays->dx == NULL || arrays->saved == NULL || arrays->scratch == NULL) {
        return comm == NULL
                   ? DPAR_E_ARG
                   : dpari_comm_wrong(
                         comm, "dpar_norm_backward: norm, x, dy, dx, saved or scratch is NULL");
    }
    status = dpari_norm_check(comm, norm, arrays->x, arrays->dy);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_norm_check(comm, norm, arrays->x, arrays->dx);
    if (status != DPAR_OK) {
        return status;
    }
    sets = dpari_norm_sets(norm);
    dpari_norm_describe(norm, arrays->x, arrays->saved, &work);
    dpari_norm_planes_of(arrays->dy, norm->type, &work.dy);
    dpari_norm_planes_of(arrays->dx, norm->type, &work.to);
    dpari_norm_join(&work);
    work.total = arrays->scratch;
    work.sums = arrays->scratch + 3 * sets;
    work.scale_gradient = arrays->scale_gradient;
    work.shift_gradient = arrays->shift_gradient;
    work.phase = DPAR_MEM_NORM_SUMS;
    status = dpari_do_norm(comm, &work);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_norm_post(comm, norm, DPAR_CALL_ALL_REDUCE, work.total, work.total, 3 * sets);
    if (status != DPAR_OK) {
        return status;
    }
    work.phase = DPAR_MEM_NORM_GRADIENT;
    return dpari_do_norm(comm, &work);
}
