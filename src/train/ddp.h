/* SPDX-License-Identifier: MIT-0 */
/* ddp - gradients become the average over all ranks while backward goes on, for a model that every
 * rank has whole. Where a code has arrays of gradients already, over.h averages them there in three
 * calls. This one lays them out, with all options. Gradients lie end to end in one buffer, the last
 * parameters first, cut into buckets. A bucket travels as soon as all its gradients are there, in
 * the same order on all ranks whatever becomes ready first.
 *
 *     options.params = n; options.numel = numel; options.type = DPAR_F32;
 *     dpar_ddp_bytes(c, &options, &bytes, &why);
 *     dpar_ddp_init(memory, bytes, c, &options, &d, &why);
 *     for (i = 0; i < n; i++) gradient[i] = dpar_ddp_gradient(d, i, NULL);    (nothing is copied)
 *     each step:
 *         dpar_ddp_zero(d);
 *         each micro-batch m of M:
 *             dpar_ddp_begin(d, m == M - 1);                            (0: nothing travels yet)
 *             backward: gradient[i] += ...; dpar_ddp_ready(d, i);       (any order)
 *             dpar_ddp_end(d);
 *         update with gradient[i]
 *
 * A weight that is used twice (tied) is one parameter, ready after its second use. Evaluation needs
 * no call. dpar_ddp_gradient gives the same address as long as the ddp lives.
 *
 * Promises. Sums go in rank order (comm.h): the same bits on all ranks, in every run, with one
 * bucket or many. Nothing is allocated after init. What travels is, on each rank, an all-reduce of
 * the buckets' elements, padding included: dpar_ddp_bucket says how many. It overlaps with backward
 * inside the calls here, or all the time with dpar_comm_progress.
 *
 * In a device's memory (comm->mem) gradients lie there. ready follows what its stream was given
 * before, end orders what follows. Nothing waits, but each bucket with options.finite. */
#ifndef DPARI_TRAIN_DDP_H
#define DPARI_TRAIN_DDP_H

#include "../index/flat.h"
#include "../comm/comm.h"

/* Posts what is done with a bucket in place of the all-reduce. data[count] of type is what this
 * rank has, neither summed nor averaged. *work is done when data holds what all shall have; a hook
 * that waits by itself leaves *work as it is. It is called on all ranks for the same buckets in the
 * same order. An error ends the step on this rank; abort c to end it on all. */
typedef dpar_status (*dpar_ddp_hook)(void *ctx, dpar_comm *c, int32_t bucket, void *data,
                                     int64_t count, int32_t type, dpar_work *work);

/* Options of a ddp. Zero it and fill in what differs. The same on all ranks, but for ctx and
 * names. */
typedef struct dpar_ddp_desc {
    int32_t params;       /* parameters, in the order in which forward uses them */
    int32_t type;         /* type of their gradients: DPAR_F64, F32, F16, BF16; must be said */
    const int64_t *numel; /* [params] elements of each, 0 and more. Read by bytes and init alone */
    /* 0: gradients travel as they are. Else as this type (F64 as F32; F32 as F16 or BF16), rounded
     * to nearest, added up in F32 and rounded once more. That takes a copy as large as the
     * gradients in that type. There is none where ranks share memory and an all-reduce without a
     * hook rounds F32: it rounds while it adds. */
    int32_t wire;
    int32_t sum;     /* 1: sums over the ranks; 0: averages */
    int32_t scatter; /* 1: reduce-scatter: this rank gets only its share of each bucket
                        (dpar_bucket_piece); the rest of it is undefined. Buckets then end at
                        multiples of the ranks */
    int32_t unused;  /* 1: parameters may be without a gradient. They count as what lies there, 0
                        after dpar_ddp_zero; dpar_ddp_gradient tells which. Costs an all-reduce of a
                        byte a parameter */
    /* 1: looks for NaN and infinity before a bucket is rounded and travels. They break the
     * communicator: E_ARG on all ranks, naming parameter, element and rank. For codes in which they
     * are mistakes; with scaled losses look at what has come back. */
    int32_t finite;
    int64_t first_bytes;  /* of the first bucket, which leaves early; 0: 1 MiB */
    int64_t bucket_bytes; /* of the others; 0: 25 MiB. A parameter is never cut: a larger one makes
                             its bucket larger */
    int64_t align;        /* starts of parameters, in elements; 0: 64 */
    int64_t multiple;     /* buckets end at multiples of this many elements, too; 0: 1 */
    dpar_ddp_hook hook;   /* NULL: the all-reduce or reduce-scatter */
    void *ctx;
    const char *const *names; /* of the parameters, for sentences, as long as the ddp lives; NULL:
                                 their numbers */
} dpar_ddp_desc;

/* Gradients that are being averaged: a handle. */
typedef struct dpar_ddp dpar_ddp;

/* Bytes that init needs of your memory (aligned to 64), as long as the ddp lives. The gradients
 * themselves come from dpar_comm_alloc. Errors as init, of this rank alone. Local. O(params). */
DPAR_API dpar_status dpar_ddp_bytes(const dpar_comm *c, const dpar_ddp_desc *options,
                                    int64_t *bytes, dpar_why *why);
/* Lays out the gradients of all parameters, zeroed. COLLECTIVE: all ranks give the same options
 * (E_MISMATCH else). E_ARG, E_RANGE, E_ROOM, E_MEMORY with a sentence, on all ranks. Small
 * collectives compare. O(elements). */
DPAR_API dpar_status dpar_ddp_init(void *memory, int64_t bytes, dpar_comm *c,
                                   const dpar_ddp_desc *options, dpar_ddp **ddp, dpar_why *why);
/* Where the numel elements of parameter i's gradient lie, as long as the ddp lives; NULL: there is
 * no such parameter. *used (NULL: not wanted), after the end of the last pass: 1 if it was ready on
 * any rank since dpar_ddp_zero, without options.unused on this rank. Local. O(1). */
DPAR_API void *dpar_ddp_gradient(const dpar_ddp *d, int32_t i, int *used);
/* Makes all gradients 0, and no parameter counts as used: before the first micro-batch of a step.
 * Local. O(elements). */
DPAR_API void dpar_ddp_zero(dpar_ddp *d);
/* Begins a backward pass. last: 1: what has gathered travels in this pass; 0: more micro-batches
 * follow and nothing travels. Local. O(1), every 255th O(params). E_ARG: the pass before has not
 * ended. The status of a broken communicator: no pass has begun. The sentences of errors from here
 * on are in c->why. */
DPAR_API dpar_status dpar_ddp_begin(dpar_ddp *d, int32_t last);
/* The gradient of parameter i is whole for this pass, and is not touched until the end. Posts
 * buckets whose turn has come. Each rank has its own order. COLLECTIVE in so far as the other
 * ranks' passes wait for this one's. E_ARG: ready twice, no pass under way, no such parameter.
 * E_PEER, E_TIMEOUT, E_MISMATCH as comm.h. O(1) on average, and where a bucket is whole its
 * posting. */
DPAR_API dpar_status dpar_ddp_ready(dpar_ddp *d, int32_t i);
/* Ends the pass; after the last one all gradients are what options say. COLLECTIVE with the last
 * pass, else local. Waits for what travels. O(params) beside that. E_ARG on all ranks, naming the
 * parameters: some are not ready and options.unused is 0. That breaks the communicator. Errors as
 * ready: a pass that failed is over, too. */
DPAR_API dpar_status dpar_ddp_end(dpar_ddp *d);
/* Where the elements of the k-th bucket to travel lie, one bucket after the other; NULL past the
 * last. *bucket (NULL: not wanted): as flat.h has it, its lo and hi counted from the first bucket's
 * first element. Local. O(1). */
DPAR_API void *dpar_ddp_bucket(const dpar_ddp *d, int32_t k, dpar_bucket *bucket);
/* Closes a ddp: gives the gradients' memory back. NULL is fine. COLLECTIVE in so far as no other
 * rank may still be in a pass. E_ARG: a pass is under way, on a communicator that is not broken.
 * Afterwards it is a ddp without parameters, while the communicator lives and your memory is left
 * alone. O(buckets). */
DPAR_API dpar_status dpar_ddp_close(dpar_ddp *d);

#endif
