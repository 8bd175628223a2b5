/* SPDX-License-Identifier: MIT-0 */
/* ddp - averages gradients over all ranks while backward runs, for a model that every rank holds
 * whole. dpar lays the gradients out itself: end to end in one buffer, the last parameters first,
 * cut into buckets. A bucket is reduced as soon as all its gradients are ready. The buckets are
 * reduced in the same order on all ranks, whatever order their gradients become ready in.
 *
 * If your code already has arrays of gradients, over.h averages them in place with three calls.
 * This file is for full control.
 *
 *     options.params = n; options.numel = numel; options.type = DPAR_F32;
 *     dpar_ddp_bytes(c, &options, &bytes, &why);
 *     dpar_ddp_init(memory, bytes, c, &options, &d, &why);
 *     for (i = 0; i < n; i++) gradient[i] = dpar_ddp_gradient(d, i, NULL);    (nothing is copied)
 *     each step:
 *         dpar_ddp_zero(d);
 *         each micro-batch m of M:
 *             dpar_ddp_begin(d, m == M - 1);                            (0: nothing is sent yet)
 *             backward: gradient[i] += ...; dpar_ddp_ready(d, i);       (any order)
 *             dpar_ddp_end(d);
 *         update with gradient[i]
 *
 * A weight that is used twice (a tied weight) is one parameter, which is ready after its second
 * use. Evaluation needs no call. dpar_ddp_gradient returns the same address as long as the ddp
 * exists.
 *
 * Guarantees. Sums are computed in rank order (comm.h), so all ranks get the same bits in every
 * run, with one bucket or many. Nothing is allocated after init. The traffic of each rank is an
 * all-reduce of the buckets' elements, padding included; dpar_ddp_bucket reports the sizes. It
 * overlaps with backward during the calls below, or all the time with dpar_comm_progress.
 *
 * If comm->mem is the memory of a device, the gradients are in that memory. dpar_ddp_ready takes
 * effect after the work that the device's stream was given before, and work given to the stream
 * after dpar_ddp_end sees the result. The thread never waits for the device, except once for each
 * bucket with options.finite. */
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
 * rank only; abort c to end it on all ranks. */
typedef dpar_status (*dpar_ddp_hook)(void *ctx, dpar_comm *c, int32_t bucket, void *data,
                                     int64_t count, int32_t type, dpar_work *work);

/* Describes a ddp. Zero it and fill in what differs from the defaults. All ranks give the same
 * values, except ctx and names. */
typedef struct dpar_ddp_desc {
    int32_t params;       /* number of parameters, in the order in which forward uses them */
    int32_t type;         /* of the gradients: DPAR_F64, F32, F16 or BF16. Required */
    const int64_t *numel; /* [params] elements of each parameter, 0 or more. Only bytes and init
                             read it */
    /* Type in which gradients are sent: 0 for the type that they have, F32 for gradients in F64,
     * F16 or BF16 for gradients in F32. They are rounded to nearest, summed in F32 and rounded once
     * more. This needs a copy of all gradients in the wire type, unless the ranks share memory and
     * an all-reduce without a hook rounds F32, because then it rounds while it adds. */
    int32_t wire;
    int32_t sum; /* 1 computes sums over the ranks; 0 averages */
    /* 1 selects a reduce-scatter: this rank gets only its share of each bucket
     * (dpar_bucket_piece), and the rest of the bucket is undefined. Buckets then end at multiples
     * of the number of ranks. */
    int32_t scatter;
    /* 1 allows parameters that get no gradient in a pass. Their contribution is what their memory
     * holds, which is 0 after dpar_ddp_zero; dpar_ddp_gradient reports which they are. Costs an
     * all-reduce of one byte for each parameter. */
    int32_t unused;
    /* 1 looks for NaN and infinity before a bucket is rounded and sent. If there is one, the
     * communicator breaks with DPAR_E_ARG on all ranks, naming parameter, element and rank. Use it
     * where such values are errors; with scaled losses, inspect the reduced gradients instead. */
    int32_t finite;
    int64_t first_bytes;  /* size of the first bucket, which is sent early; 0 selects 1 MiB */
    int64_t bucket_bytes; /* size of the other buckets; 0 selects 25 MiB. A parameter is never cut,
                             so that a larger parameter makes its bucket larger */
    int64_t align;        /* parameters begin at multiples of this many elements; 0 selects 64 */
    int64_t multiple;     /* buckets also end at multiples of this many elements; 0 selects 1 */
    dpar_ddp_hook hook;   /* NULL selects the all-reduce, or the reduce-scatter */
    void *ctx;            /* passed to hook */
    const char *const *names; /* [params] names of the parameters for messages, kept by you as long
                                 as the ddp exists. If NULL, messages give their numbers */
} dpar_ddp_desc;

/* Gradients that are averaged over the ranks: a handle. */
typedef struct dpar_ddp dpar_ddp;

/* Computes the bytes of memory that dpar_ddp_init needs from you, aligned to 64, as long as the ddp
 * exists. The gradients themselves are allocated by dpar_comm_alloc.
 *
 * Local. O(params). Fails as dpar_ddp_init does, on this rank only. */
DPAR_API dpar_status dpar_ddp_bytes(const dpar_comm *c, const dpar_ddp_desc *options,
                                    int64_t *bytes, dpar_why *why);
/* Lays out the gradients of all parameters and sets them to 0.
 *
 * Collective over c: all ranks give the same options. Compares them with small collectives.
 * O(elements). Fails on all ranks with DPAR_E_MISMATCH if the options differ, DPAR_E_ARG,
 * DPAR_E_RANGE, DPAR_E_ROOM or DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_ddp_init(void *memory, int64_t bytes, dpar_comm *c,
                                   const dpar_ddp_desc *options, dpar_ddp **ddp, dpar_why *why);
/* Returns the address of parameter i's gradient, numel[i] elements, or NULL if there is no such
 * parameter. The address stays the same as long as the ddp exists.
 *
 * used: set, after the end of the last pass, to 1 if the parameter was ready since dpar_ddp_zero:
 *       on any rank with options.unused, otherwise on this rank. May be NULL.
 *
 * Local. O(1). */
DPAR_API void *dpar_ddp_gradient(const dpar_ddp *d, int32_t i, int *used);
/* Sets all gradients to 0 and marks all parameters as unused. Call it before the first micro-batch
 * of a step. Local. O(elements). */
DPAR_API void dpar_ddp_zero(dpar_ddp *d);
/* Begins a backward pass.
 *
 * last: 1 if the accumulated gradients are sent in this pass, 0 if more micro-batches follow and
 *       nothing is sent.
 *
 * Local. O(1), and O(params) in every 255th call. Fails with DPAR_E_ARG if the pass before has not
 * ended, and with the status of a broken communicator; no pass has begun then. Here and in the
 * functions below, the message of an error is in c->why. */
DPAR_API dpar_status dpar_ddp_begin(dpar_ddp *d, int32_t last);
/* Marks the gradient of parameter i as complete for this pass, and posts the buckets that are next
 * in order and complete. Do not touch the gradient again before the pass ends. Each rank may report
 * its parameters in its own order.
 *
 * Collective only in that the passes of the other ranks wait for this one. O(1) on average, plus
 * the posting if a bucket is complete. Fails with DPAR_E_ARG if the parameter is already ready, no
 * pass is under way or there is no such parameter, and with DPAR_E_PEER, DPAR_E_TIMEOUT or
 * DPAR_E_MISMATCH as described in comm.h. */
DPAR_API dpar_status dpar_ddp_ready(dpar_ddp *d, int32_t i);
/* Ends the pass and waits for the buckets that are under way. After the last pass of a step, all
 * gradients are averages, or what the options ask for.
 *
 * Collective in the last pass, otherwise local. O(params) plus the wait. Fails with DPAR_E_ARG on
 * all ranks, naming the parameters, if some are not ready and options.unused is 0; this breaks the
 * communicator. Other errors are those of dpar_ddp_ready. A pass that failed has also ended. */
DPAR_API dpar_status dpar_ddp_end(dpar_ddp *d);
/* Returns the address of the elements of the k-th bucket, in the order in which buckets are
 * reduced, or NULL if there are no more. The buckets follow each other in memory.
 *
 * bucket: set to the bucket as flat.h describes it, with lo and hi counted from the first element
 *         of the first bucket. May be NULL.
 *
 * Local. O(1). */
DPAR_API void *dpar_ddp_bucket(const dpar_ddp *d, int32_t k, dpar_bucket *bucket);
/* Closes a ddp and frees the gradients. NULL is allowed. Afterwards, as long as the communicator
 * exists and you leave the memory unchanged, the handle is a ddp without parameters.
 *
 * Collective only in that no other rank may still be in a pass. O(buckets). Fails with DPAR_E_ARG
 * if a pass is under way on a communicator that is not broken. */
DPAR_API dpar_status dpar_ddp_close(dpar_ddp *d);

#endif
