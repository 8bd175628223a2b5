/* SPDX-License-Identifier: MIT-0 */
/* ddp - averages gradients over all ranks while backward runs, for a model that every rank holds
 * whole. The gradients stay in the array or arrays that a training code already has, or dpar
 * allocates them.
 *
 *     dpar_comm_alloc(world, n * sizeof *grads, &memory);          in place of malloc
 *     grads = (float *)memory;
 *     dpar_broadcast(world, weights, n, DPAR_F32, 0, NULL);        all ranks start equal
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
 * Micro-batches: accumulate the gradients, and call dpar_ddp_ready and dpar_ddp_end only in the
 * last micro-batch. If your code reports gradients in every micro-batch, enclose each earlier one
 * in dpar_ddp_begin(ddp, 0) and dpar_ddp_end, so that it sends nothing. A weight that is used twice
 * (a tied weight) is one parameter, which is ready after its second use. Between steps you may
 * change the gradients: zero them, for instance with dpar_ddp_zero, or let backward overwrite them.
 * Evaluation needs no call.
 *
 * Guarantees. Sums are computed in rank order (comm.h), so all ranks get the same bits in every
 * run, with one bucket or many, whoever owns the arrays. Only dpar_ddp_make allocates. A step costs
 * an all-reduce of all elements, including the padding of desc.align. Communication advances during
 * the calls below, or all the time with dpar_comm_progress, and so overlaps with backward.
 * Registered memory (dpar_comm_alloc) is reduced in place; other memory gives the same result but
 * is copied on the way.
 *
 * If comm->mem is the memory of a device, the gradients are in that memory. The reduction that
 * dpar_ddp_ready posts starts after the work that is already in the device's stream, and work that
 * you add to the stream after dpar_ddp_end sees the result. The thread waits for the device only
 * with desc.check_finite: once per bucket, or once per array with desc.arrays.
 *
 * zero1.h trains with ZeRO-1 on the same flat array. */
#ifndef DPARI_TRAIN_DDP_H
#define DPARI_TRAIN_DDP_H

#include "../index/flat.h"
#include "../comm/comm.h"
#include "update.h"

/* Reduces a bucket in place of the all-reduce. It is your callback, like a communication hook of
 * PyTorch's DDP.
 *
 * data:  [count] elements of `type`, this rank's gradients, neither summed nor averaged. When *work
 *        is complete, they must hold the result for all ranks.
 * work:  post the communication with it. If the hook waits itself, it leaves *work unchanged.
 *
 * It is called for the same buckets in the same order on all ranks. An error ends the step on this
 * rank only; abort comm to end it on all ranks. */
typedef dpar_status (*dpar_ddp_hook)(void *ctx, dpar_comm *comm, int32_t bucket, void *data,
                                     int64_t count, int32_t type, dpar_work *work);

/* Describes a ddp. Zero it and fill in what differs from the defaults. All ranks pass the same
 * values, except for addresses, ctx and names. Either all ranks set gradients, or all set arrays,
 * or none sets either. */
typedef struct dpar_ddp_desc {
    int32_t params;       /* number of parameters, in the order in which forward uses them */
    int32_t type;         /* of the gradients: DPAR_F64, F32, F16 or BF16. Required */
    const int64_t *count; /* [params] elements of each parameter, 0 or more. Only make reads it */
    /* Your array of gradients: all parameters one after the other, without gaps, in the memory of
     * the communicator. You keep it until the ddp is freed. */
    void *gradients;
    /* Or [params] your arrays, one per parameter, without overlap. You keep the arrays until the
     * ddp is freed; only make reads the list of their addresses. Arrays of less than 64 KiB (with a
     * hook all arrays) are copied, so that they can be sent together. If gradients and arrays are
     * both NULL, dpar allocates the gradients. */
    void *const *arrays;
    /* Type in which gradients are sent: 0 for the type that they have, F32 for gradients in F64,
     * F16 or BF16 for gradients in F32. They are rounded to nearest, summed in F32 and rounded once
     * more. Each rounding changes a value by at most 2^-8 of it (BF16) or 2^-11 of it (F16, from
     * 2^-14 to 65504; larger values become infinite). This needs a copy of all gradients in the
     * wire type, with one exception: if the ranks share memory, F32 gradients without a hook are
     * rounded while they are added.
     *
     * DPAR_I8 and DPAR_F8 send any type in blocks of 256 8-bit codes with a scale, which is a
     * quarter of the bytes of F32. Each rank quantizes its gradients (dpar_mem_quantize), an
     * all-to-all sends each piece to one rank, which adds them in F32 in rank order, and an
     * all-gather sends the quantized averages. Every gradient is thus rounded twice. In a block
     * whose largest absolute value is M, the error of an I8 code is at most M / 254, and that of
     * an F8 code at most 1/16 of the value or M / 2^18. The error of an average is at most the mean
     * of these errors over the ranks, plus the error of the code of the average. F64 values are
     * rounded to F32 first. NaN and infinity make the whole block NaN, and a block in which M is
     * below 6e-36 may become 0. Cannot be combined with a hook or zero1. */
    int32_t wire_type;
    int32_t sum; /* 1 computes sums over the ranks; 0 averages */
    /* 1 makes dpar_ddp_end fail with DPAR_E_ARG on all ranks, naming the parameters, if some were
     * not reported ready in the last pass of a step. With 0, dpar_ddp_end sends the present
     * contents of such gradients. */
    int32_t require_ready;
    /* 1 makes dpar_ddp_end find out which parameters any rank reported, for dpar_ddp_gradient.
     * Costs an all-reduce of one byte per parameter. Cannot be combined with require_ready. */
    int32_t track_used;
    /* 1 checks each bucket for NaN and infinity before it is rounded and sent. If there is one, the
     * communicator breaks with DPAR_E_ARG on all ranks, naming parameter, element and rank. Use it
     * if such values are errors; with scaled losses, inspect the reduced gradients instead. */
    int32_t check_finite;
    int64_t first_bucket_bytes; /* size of the first bucket, sent early; 0 selects 1 MiB */
    int64_t bucket_bytes; /* size of the other buckets; 0 selects 25 MiB. A bucket is larger if
                             it consists of one larger parameter, which is never cut */
    int64_t align; /* parameters that dpar allocates begin at multiples of this many elements; 0
                      selects 64. Must be 0 with gradients or arrays */
    dpar_ddp_hook hook; /* is called with each bucket as one contiguous block; NULL selects the
                           all-reduce */
    void *ctx;          /* passed to hook */
    const char *const *names; /* [params] names of the parameters for messages, which you keep until
                                 the ddp is freed. If NULL, messages give their numbers */
    /* Your memory for the ddp's own data (not the gradients), aligned to 64 bytes, which you keep
     * until the ddp is freed. If it is NULL and bytes is 0, make allocates it. */
    void *memory;
    int64_t bytes; /* size of memory. If that is too small or not aligned, make fails with
                      DPAR_E_ROOM, and why.bytes is the size that this rank needs. To query that
                      size, set memory to NULL and bytes to 1 */
} dpar_ddp_desc;

/* A handle to gradients that are averaged over the ranks. */
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
 * No communication, but no other rank may still be in a pass. O(buckets). Fails with DPAR_E_ARG if
 * a pass is in progress and the communicator is not broken, or if its dpar_zero1 still exists. */
DPAR_API dpar_status dpar_ddp_free(dpar_ddp *ddp);
/* Returns the address of parameter i's gradient (count[i] elements), or NULL if there is no such
 * parameter. The address does not change until the ddp is freed.
 *
 * used: set to 1 if the parameter was reported since dpar_ddp_zero, otherwise to 0. Reports of this
 *       rank count, or with desc.track_used those of all ranks, after the end of the last pass. May
 *       be NULL.
 *
 * Local. O(1). */
DPAR_API void *dpar_ddp_gradient(const dpar_ddp *ddp, int32_t i, int *used);
/* Sets all gradients to 0 and marks all parameters as unused. Call it before the first micro-batch
 * of a step. Local. O(elements). */
DPAR_API void dpar_ddp_zero(dpar_ddp *ddp);
/* Begins a backward pass. Optional if last is 1, because dpar_ddp_ready and dpar_ddp_end begin such
 * a pass if none is in progress.
 *
 * last: 1 if the accumulated gradients are sent in this pass, 0 if more micro-batches follow and
 *       nothing is sent.
 *
 * Local. O(1), and O(params) in about every 255th call. Fails with DPAR_E_ARG if the previous pass
 * has not ended, or with the status of a broken communicator; then no pass begins. The message of
 * an error is in comm->why, also for the functions below. */
DPAR_API dpar_status dpar_ddp_begin(dpar_ddp *ddp, int32_t last);
/* Marks the gradient of parameter i as complete for this pass. Sends the next bucket if that
 * completes it, and those after it that are already complete. Optional. Do not touch the gradient
 * again before the pass ends. Each rank may report its parameters in its own order.
 *
 * Local, except that other ranks need this rank's gradients to end their pass. O(1) on average,
 * plus posting the buckets that are complete. Fails with DPAR_E_ARG if the parameter was already
 * reported in this pass or does not exist, and with DPAR_E_PEER, DPAR_E_TIMEOUT or DPAR_E_MISMATCH
 * as described in comm.h. */
DPAR_API dpar_status dpar_ddp_ready(dpar_ddp *ddp, int32_t i);
/* Ends the pass: sends the gradients that were not reported, and waits for all buckets. After the
 * last pass of a step, all gradients are averages (sums with desc.sum, or the results of the hook).
 *
 * Collective in the last pass, otherwise local. O(params) plus the wait. Fails with DPAR_E_ARG on
 * all ranks, naming the parameters, if some are not ready and desc.require_ready is 1; this breaks
 * the communicator. Other errors are those of dpar_ddp_ready. A pass that failed has also ended. */
DPAR_API dpar_status dpar_ddp_end(dpar_ddp *ddp);
/* Computes the norm of all averages, and the number by which your update must multiply them.
 *
 *     dpar_ddp_end(ddp);
 *     status = dpar_ddp_norm(ddp, &update);                 update.h
 *     if (status == DPAR_OK) ... your update, with gradients times update.scale ...
 *
 * update: sets update->norm and update->scale; update->rate is only compared.
 *
 * Returns DPAR_SKIPPED, on all ranks, if a gradient is NaN or infinite. Then omit the update. Each
 * rank computes the squares of its part of the gradients in f64, and the sums are added in rank
 * order, so that all ranks get the same bits.
 *
 * Collective. Costs an all-reduce of 8 bytes and O(elements / ranks). Fails with DPAR_E_ARG if
 * a number is out of its domain, or the last pass of the step has not ended (dpar_ddp_end). Fails
 * with DPAR_E_MISMATCH, which breaks the communicator, if ranks pass different numbers or only some
 * failed with DPAR_E_ARG. */
DPAR_API dpar_status dpar_ddp_norm(dpar_ddp *ddp, dpar_update *update);

#endif
