/* SPDX-License-Identifier: MIT-0 */
/* over - gradients become averages over all ranks where they lie: in the flat array, or the arrays,
 * that a training code already has.
 *
 *     grads = (float *)dpar_alloc(world, n * sizeof *grads);       in place of malloc
 *     dpar_broadcast(world, params, n, DPAR_F32, 0, NULL);         all begin alike
 *     dpar_ddp_over(world, grads, n, DPAR_F32, &d, &why);
 *     each step:
 *         backward, as before
 *         dpar_ddp_end(d);                                         grads are averages
 *         update, as before
 *     dpar_ddp_free(d);
 *
 * To let gradients travel while backward goes on, say which are whole, anywhere in backward:
 *
 *         dpar_ddp_done(d, grads + at, count);
 *
 * What was not said leaves at dpar_ddp_end. In the first pass all of it does, and dpar learns. The
 * parts of rank 0, in the order in which it had them done, are merged to buckets of 4 MiB (of more
 * than 16 GiB: 1/4096 of all). From the second pass on each bucket travels when all of it is done.
 * Each rank has its own order, and its own parts.
 *
 * Micro-batches: add up gradients, and call done and end for the last one alone. A weight that is
 * used twice (tied) is done after its second use. What lies in grads between steps is yours: zero
 * it, or let backward write it. Where nothing is to be averaged leave dpar_ddp_end out: evaluation
 * needs no call at all. `grads` stays where it is as long as d lives.
 *
 * Sums go in rank order (comm.h): the same bits on all ranks, whatever is done when. Registered
 * memory (dpar_alloc, dpar_comm_alloc) is reduced where it lies; any other is right, too, and
 * copied on the way. For 16 bits on the wire, sums in place of averages, or a look for NaN take the
 * full ddp (ddp.h), which lays gradients out itself. For ZeRO-1 on the same array: zero1.h. */
#ifndef DPARI_TRAIN_OVER_H
#define DPARI_TRAIN_OVER_H

#include "ddp.h"

/* One of several arrays of gradients. */
typedef struct dpar_ddp_array {
    void *data;
    int64_t count; /* elements */
} dpar_ddp_array;

/* Averages grads[n] at each dpar_ddp_end. They are of type F64, F32, F16 or BF16, in the memory of
 * the communicator (host, or c->mem). COLLECTIVE: n and type are the same on all ranks (E_MISMATCH
 * else). E_ARG, E_RANGE, E_MEMORY with a sentence, on all ranks. Small collectives compare; O(n /
 * 2^20). */
DPAR_API dpar_status dpar_ddp_over(dpar_comm *c, void *grads, int64_t n, int32_t type,
                                   dpar_ddp **ddp, dpar_why *why);
/* dpar_ddp_over of several arrays. `list` is read here alone. Arrays of less than 64 KiB are
 * copied, to travel as one. Errors as dpar_ddp_over. E_ARG, too: two of them have bytes in common.
 * O(arrays log(arrays)). */
DPAR_API dpar_status dpar_ddp_over_list(dpar_comm *c, const dpar_ddp_array *list, int32_t arrays,
                                        int32_t type, dpar_ddp **ddp, dpar_why *why);
/* Says that these `count` gradients are whole, and are not touched before the end of the pass.
 * Those that are next leave, where they make 4 MiB. Never needed. O(log of the runs that are done),
 * and the posting.
 *
 * E_ARG, nothing done: some of them are done already in this pass, they lie outside of the
 * gradients, or d is no dpar_ddp_over. E_MEMORY. Errors of the pass so far, as comm.h. The sentence
 * is in c->why. */
DPAR_API dpar_status dpar_ddp_done(dpar_ddp *d, const void *at, int64_t count);
/* dpar_ddp_end (ddp.h) makes averages, for all. COLLECTIVE. Errors as comm.h. An all-reduce of n
 * elements less what has left; the first time a broadcast of 16 bytes a bucket. dpar_ddp_begin is
 * not needed; begin(d, 0) to end is a micro-batch in which nothing travels. */

/* Lets go of d; grads is yours. COLLECTIVE in so far as no other rank may still be in a pass. NULL
 * is fine. E_ARG: a pass is under way, on a communicator that is not broken. */
DPAR_API dpar_status dpar_ddp_free(dpar_ddp *d);

#endif
