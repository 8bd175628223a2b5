/* SPDX-License-Identifier: MIT-0 */
/* over - averages gradients over all ranks in place: in the flat array, or the several arrays, that
 * a training code already has.
 *
 *     dpar_comm_alloc(world, n * sizeof *grads, &memory);          in place of malloc
 *     grads = (float *)memory;
 *     dpar_broadcast(world, params, n, DPAR_F32, 0, NULL);         all ranks begin alike
 *     dpar_ddp_over(world, grads, n, DPAR_F32, &d, &why);
 *     each step:
 *         backward, as before
 *         dpar_ddp_end(d);                                         grads are averages
 *         update, as before
 *     dpar_ddp_free(d);
 *
 * To send gradients while backward is still running, report those that are complete, anywhere in
 * backward:
 *
 *         dpar_ddp_done(d, grads + at, count);
 *
 * Gradients that were not reported are sent by dpar_ddp_end. In the first pass it sends all of
 * them, and dpar records the parts that rank 0 reported and their order. It merges them to buckets
 * of 4 MiB, or of 1/4096 of all gradients if these exceed 16 GiB. From the second pass on, a bucket
 * is sent when all of it has been reported. Each rank may report its own parts in its own order.
 *
 * Micro-batches: accumulate the gradients, and call dpar_ddp_done and dpar_ddp_end only for the
 * last micro-batch. A weight that is used twice (a tied weight) is complete after its second use.
 * Between steps the contents of grads belong to you: zero them, or let backward overwrite them.
 * Where nothing is to be averaged, leave out dpar_ddp_end; evaluation needs no call at all. The
 * array must stay in place as long as d exists.
 *
 * Sums are computed in rank order (comm.h), so that all ranks get the same bits, whatever was
 * reported when. Registered memory (dpar_comm_alloc) is reduced in place; other memory
 * gives the same result but is copied on the way. The full ddp (ddp.h), which lays the gradients
 * out itself, can also send 16 bits, compute sums in place of averages, and look for NaN. zero1.h
 * is ZeRO-1 on the same array. */
#ifndef DPARI_TRAIN_OVER_H
#define DPARI_TRAIN_OVER_H

#include "ddp.h"

/* One of several arrays of gradients. */
typedef struct dpar_ddp_array {
    void *data;
    int64_t count; /* elements */
} dpar_ddp_array;

/* Makes a ddp that averages an array of gradients in place at each dpar_ddp_end.
 *
 * grads: [n] elements of `type` (F64, F32, F16 or BF16), in the memory of the communicator: the
 *        host's, or c->mem. It stays yours.
 *
 * Collective over c: n and type are the same on all ranks. Compares them with small collectives;
 * O(n / 2^20). Fails on all ranks with DPAR_E_MISMATCH if they differ, DPAR_E_ARG, DPAR_E_RANGE or
 * DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_ddp_over(dpar_comm *c, void *grads, int64_t n, int32_t type,
                                   dpar_ddp **ddp, dpar_why *why);
/* Makes a ddp that averages several arrays of gradients in place, as dpar_ddp_over does with one.
 *
 * list: [arrays] the arrays, which must not overlap. Only this call reads the list itself. Arrays
 *       of less than 64 KiB are copied, so that they can be sent together.
 *
 * Collective over c. O(arrays log(arrays)). Fails as dpar_ddp_over does, and with DPAR_E_ARG if two
 * of the arrays overlap. */
DPAR_API dpar_status dpar_ddp_over_list(dpar_comm *c, const dpar_ddp_array *list, int32_t arrays,
                                        int32_t type, dpar_ddp **ddp, dpar_why *why);
/* Reports that `count` gradients from `at` on are complete, and sends the buckets that are next in
 * order and complete. Optional. Do not touch these gradients again before the pass ends.
 *
 * Collective only in that the passes of the other ranks wait for this one. O(log of the number of
 * separate runs reported so far), plus the posting. Fails with DPAR_E_ARG, and does nothing, if
 * some of these gradients were already reported in this pass, are not part of the arrays, or d was
 * not made by dpar_ddp_over. Fails with DPAR_E_MEMORY, and with the errors of the pass so far as
 * described in comm.h. The message is in c->why. */
DPAR_API dpar_status dpar_ddp_done(dpar_ddp *d, const void *at, int64_t count);
/* dpar_ddp_end (ddp.h) turns the gradients into averages on all ranks. It is collective and fails
 * as described in comm.h. It costs an all-reduce of the elements that were not sent before; the
 * first call also broadcasts 16 bytes for each bucket. dpar_ddp_begin is not needed, but
 * dpar_ddp_begin(d, 0) begins a micro-batch in which nothing is sent, up to dpar_ddp_end. */

/* Frees a ddp that dpar_ddp_over or dpar_ddp_over_list made. The arrays of gradients stay yours.
 * NULL is allowed.
 *
 * Collective only in that no other rank may still be in a pass. Fails with DPAR_E_ARG if a pass is
 * under way on a communicator that is not broken. */
DPAR_API dpar_status dpar_ddp_free(dpar_ddp *d);

#endif
