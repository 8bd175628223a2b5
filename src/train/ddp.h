/* SPDX-License-Identifier: MIT-0 */
/* ddp - averages gradients over all ranks while backward runs, for a model that every rank holds
 * whole. The gradients are in the flat array, or in the several arrays, that a training code
 * already has, or dpar allocates them.
 *
 *     dpar_comm_alloc(world, n * sizeof *grads, &memory);          in place of malloc
 *     grads = (float *)memory;
 *     dpar_broadcast(world, weights, n, DPAR_F32, 0, NULL);        all ranks begin alike
 *     dpar_ddp_desc desc = {0};
 *     desc.params = 1;
 *     desc.count = &n;
 *     desc.type = DPAR_F32;
 *     desc.gradients = grads;
 *     dpar_ddp_make(world, &desc, &ddp, &why);
 *     each step:
 *         backward, as before
 *         dpar_ddp_end(ddp);                                       grads are averages
 *         update, as before
 *     dpar_ddp_free(ddp);
 *
 * To send gradients while backward is still running, describe each parameter (desc.params and
 * desc.count) and report each one that is complete, in any order:
 *
 *         backward: grads of parameter i are complete; dpar_ddp_ready(ddp, i);
 *
 * The parameters are cut into buckets, from the last parameter to the first. A bucket is sent as
 * soon as all its gradients are ready. The buckets are sent in the same order on all ranks,
 * whatever order their gradients become ready in. Gradients that were not reported are sent by
 * dpar_ddp_end.
 *
 * Micro-batches: accumulate the gradients, and report and end only the last micro-batch. A code
 * that reports in each micro-batch calls dpar_ddp_begin(ddp, 0) and dpar_ddp_end for those in which
 * nothing is to be sent. A weight that is used twice (a tied weight) is one parameter, which is
 * ready after its second use. Between steps the gradients belong to you: zero them, with
 * dpar_ddp_zero for instance, or let backward overwrite them. Evaluation needs no call.
 *
 * Guarantees. Sums are computed in rank order (comm.h), so all ranks get the same bits in every
 * run, with one bucket or many, whoever owns the arrays. Only dpar_ddp_make allocates. The traffic
 * of each rank is an all-reduce of the elements, and of the padding of desc.align. It overlaps with
 * backward during the calls below, or all the time with dpar_comm_progress. Registered memory
 * (dpar_comm_alloc) is reduced in place; other memory gives the same result but is
 * copied on the way.
 *
 * If comm->mem is the memory of a device, the gradients are in that memory. dpar_ddp_ready takes
 * effect after the work that the device's stream was given before, and work given to the stream
 * after dpar_ddp_end sees the result. The thread never waits for the device, except once for each
 * bucket with desc.check_finite (once for each array with desc.arrays).
 *
 * zero1.h is ZeRO-1 on the same flat array. */
#ifndef DPARI_TRAIN_DDP_H
#define DPARI_TRAIN_DDP_H

#include "../index/flat.h"
#include "../comm/comm.h"

/* Processes a bucket in place of the all-reduce: a callback of yours, like a DDP communication hook
 * of PyTorch.
 *
 * data:  [count] elements of `type`, this rank's gradients, neither summed nor averaged. When *work
 *        is done they must be what all ranks shall have.
 * work:  post the communication with it. A hook that waits by itself leaves it unchanged.
 *
 * It is called for the same buckets in the same order on all ranks. An error ends the step on this
 * rank only; abort comm to end it on all ranks. */
typedef dpar_status (*dpar_ddp_hook)(void *ctx, dpar_comm *comm, int32_t bucket, void *data,
                                     int64_t count, int32_t type, dpar_work *work);

/* Describes a ddp. Zero it and fill in what differs from the defaults. All ranks give the same
 * values, except addresses, ctx and names, and all of them gradients, or arrays, or neither. */
typedef struct dpar_ddp_desc {
    int32_t params;       /* number of parameters, in the order in which forward uses them */
    int32_t type;         /* of the gradients: DPAR_F64, F32, F16 or BF16. Required */
    const int64_t *count; /* [params] elements of each parameter, 0 or more. Only make reads it */
    /* Your array of gradients: all parameters one after the other, without gaps, in the memory of
     * the communicator. It stays yours, and in place as long as the ddp exists. */
    void *gradients;
    /* Or an array of yours for each parameter: [params], none overlaps another, in place as long as
     * the ddp exists. Only make reads the list itself. Arrays of less than 64 KiB, with a hook all
     * arrays, are copied, so that they can be sent together. If both are NULL, dpar allocates the
     * gradients. */
    void *const *arrays;
    /* Type in which gradients are sent: 0 for the type that they have, F32 for gradients in F64,
     * F16 or BF16 for gradients in F32. They are rounded to nearest, summed in F32 and rounded once
     * more. This needs a copy of all gradients in the wire type, unless the ranks share memory and
     * an all-reduce without a hook rounds F32, because then it rounds while it adds. */
    int32_t wire_type;
    int32_t sum; /* 1 computes sums over the ranks; 0 averages */
    /* 1 makes dpar_ddp_end fail with DPAR_E_ARG on all ranks, naming the parameters, if some were
     * not reported ready in the last pass of a step. 0: dpar_ddp_end sends what their memory
     * holds. */
    int32_t require_ready;
    /* 1 finds out which parameters were reported by any rank, for dpar_ddp_gradient. Costs an
     * all-reduce of one byte for each parameter. Excludes require_ready. */
    int32_t track_used;
    /* 1 looks for NaN and infinity before a bucket is rounded and sent. If there is one, the
     * communicator breaks with DPAR_E_ARG on all ranks, naming parameter, element and rank. Use it
     * where such values are errors; with scaled losses, inspect the reduced gradients instead. */
    int32_t check_finite;
    int64_t first_bucket_bytes; /* size of the first bucket, sent early; 0 selects 1 MiB */
    int64_t bucket_bytes;       /* size of the other buckets; 0 selects 25 MiB. A parameter is never
                                   cut, so that a larger parameter makes its bucket larger */
    int64_t align; /* parameters that dpar allocates begin at multiples of this many elements; 0
                      selects 64. Must be 0 with gradients or arrays */
    dpar_ddp_hook hook; /* NULL selects the all-reduce. It gets one contiguous block a bucket */
    void *ctx;          /* passed to hook */
    const char *const *names; /* [params] names of the parameters for messages, kept by you as long
                                 as the ddp exists. If NULL, messages give their numbers */
    /* Memory of yours for the ddp's own data (not the gradients), aligned to 64, as long as the ddp
     * exists. If it is NULL and bytes is 0, make allocates it. */
    void *memory;
    int64_t bytes; /* of memory. Too few, or not aligned: DPAR_E_ROOM, and why.bytes is the number
                      that this rank needs; to query it, set memory to NULL and bytes to 1 */
} dpar_ddp_desc;

/* Gradients that are averaged over the ranks: a handle. */
typedef struct dpar_ddp dpar_ddp;

/* Makes a ddp. Gradients that dpar allocates (dpar_comm_alloc) are set to 0; yours stay as they
 * are.
 *
 * Collective over comm. Compares the descriptors with small collectives. O(params log(params)), and
 * O(elements) for gradients that dpar allocates. Fails on all ranks with DPAR_E_MISMATCH if the
 * descriptors differ, DPAR_E_ARG, DPAR_E_RANGE, DPAR_E_ROOM or DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_ddp_make(dpar_comm *comm, const dpar_ddp_desc *desc, dpar_ddp **ddp,
                                   dpar_why *why);
/* Frees a ddp, and the gradients if dpar allocated them. NULL is allowed.
 *
 * Collective only in that no other rank may still be in a pass. O(buckets). Fails with DPAR_E_ARG
 * if a pass is under way on a communicator that is not broken, or if a dpar_zero1 of it exists. */
DPAR_API dpar_status dpar_ddp_free(dpar_ddp *ddp);
/* Returns the address of parameter i's gradient, count[i] elements, or NULL if there is no such
 * parameter. The address stays the same as long as the ddp exists.
 *
 * used: set, after the end of the last pass, to 1 if the parameter was ready since dpar_ddp_zero:
 *       on any rank with desc.track_used, otherwise on this rank. May be NULL.
 *
 * Local. O(1). */
DPAR_API void *dpar_ddp_gradient(const dpar_ddp *ddp, int32_t i, int *used);
/* Sets all gradients to 0 and marks all parameters as unused. Call it before the first micro-batch
 * of a step. Local. O(elements). */
DPAR_API void dpar_ddp_zero(dpar_ddp *ddp);
/* Begins a backward pass. Optional if last is 1, because dpar_ddp_ready and dpar_ddp_end begin a
 * last pass where none is under way.
 *
 * last: 1 if the accumulated gradients are sent in this pass, 0 if more micro-batches follow and
 *       nothing is sent.
 *
 * Local. O(1), and O(params) in every 255th call. Fails with DPAR_E_ARG if the pass before has not
 * ended, and with the status of a broken communicator; no pass has begun then. Here and in the
 * functions below, the message of an error is in comm->why. */
DPAR_API dpar_status dpar_ddp_begin(dpar_ddp *ddp, int32_t last);
/* Marks the gradient of parameter i as complete for this pass, and posts the buckets that are next
 * in order and complete. Optional. Do not touch the gradient again before the pass ends. Each rank
 * may report its parameters in its own order.
 *
 * Collective only in that the passes of the other ranks wait for this one. O(1) on average, plus
 * the posting if a bucket is complete. Fails with DPAR_E_ARG if the parameter is already ready in
 * this pass or there is no such parameter, and with DPAR_E_PEER, DPAR_E_TIMEOUT or DPAR_E_MISMATCH
 * as described in comm.h. */
DPAR_API dpar_status dpar_ddp_ready(dpar_ddp *ddp, int32_t i);
/* Ends the pass: sends the gradients that were not reported, and waits for the buckets that are
 * under way. After the last pass of a step, all gradients are averages, or what desc asks for.
 *
 * Collective in the last pass, otherwise local. O(params) plus the wait. Fails with DPAR_E_ARG on
 * all ranks, naming the parameters, if some are not ready and desc.require_ready is 1; this breaks
 * the communicator. Other errors are those of dpar_ddp_ready. A pass that failed has also ended. */
DPAR_API dpar_status dpar_ddp_end(dpar_ddp *ddp);

#endif
