/* SPDX-License-Identifier: MIT-0 */
/* matrices - gives each matrix as a whole to one rank, for optimizers that need whole matrices,
 * such as Muon, Shampoo and SOAP. Shards of ZeRO cut matrices at any element. dpar_matrices_gather
 * brings the gradient of each matrix together on its owner, with one all-to-all for all matrices.
 * The owner replaces it by the direction of the update, and dpar_matrices_scatter sends the pieces
 * back into the shards with another one. The owners divide the work evenly among the ranks.
 *
 *     dpar_optimizer_init(&sgd, DPAR_OPTIMIZER_SGD);     subtracts rate * direction, and decays
 *     ... dpar_zero1_make or dpar_fsdp_make with this optimizer ...
 *     dpar_matrices_desc desc = {0};
 *     desc.zero1 = zero1;                                or desc.fsdp = fsdp
 *     desc.matrices = 4;                                 parameters 0 to 3
 *     dpar_matrices_make(comm, &desc, &matrices, &why);
 *     each step:                                         after the last backward
 *         status = dpar_zero1_norm(zero1, &update);      or dpar_fsdp_norm(fsdp, &update)
 *         if (status == DPAR_OK) {
 *             dpar_matrices_gather(matrices);
 *             for (k = 0; k < 4; k++) {
 *                 float *g = (float *)dpar_matrices_at(matrices, k);
 *                 if (g != NULL) {
 *                     muon(g, momentum[k], rows[k], columns[k], update.scale);    your code
 *                 }
 *             }
 *             dpar_matrices_scatter(matrices);
 *             dpar_zero1_step(zero1, rate, 0.0);         or dpar_fsdp_step(fsdp, rate, 1.0)
 *         }
 *     dpar_matrices_free(matrices);                      before zero1 or fsdp
 *
 * These lines are the same for ZeRO-1, 2 and 3 and on one rank. docs/guide/recipes.md has them as a
 * program. Your state, such as momentum[k], is needed only on the owner. To save it, each owner
 * writes that of its matrices, one file per matrix. After a restart on any number of ranks, the new
 * owners read the files.
 *
 * Other parameters, such as biases, norms and embeddings, usually get AdamW. Give them a ddp and
 * zero1 or an fsdp of their own, with that optimizer. Parameters that are in the same object as the
 * matrices, but not in the list, keep their gradients and get SGD.
 *
 * Copying changes no bits, so results depend on the number of ranks only by the rounding of the
 * averages. Replicas (replicas of fsdp.h) have equal gradients, and each replica does all the work.
 *
 * Memory. dpar_comm_alloc provides this rank's pieces once more, and the matrices that it owns once
 * with zero1 and up to twice with fsdp, in the type of the gradients. If the cost of a matrix is
 * its size, this is about 2 or 3 times the elements of all matrices / ranks. */
#ifndef DPARI_TRAIN_MATRICES_H
#define DPARI_TRAIN_MATRICES_H

#include "../comm/comm.h"
#include "fsdp.h"
#include "zero1.h"

/* Describes matrices whose gradients are divided among ranks. Zero it and fill in what differs from
 * the defaults. All ranks pass the same values, except for addresses. */
typedef struct dpar_matrices_desc {
    dpar_zero1 *zero1; /* whose shares of the gradients hold the matrices; NULL if fsdp is set */
    dpar_fsdp *fsdp;   /* whose shards DPAR_FSDP_GRADIENT hold the matrices; NULL if zero1 is set */
    int32_t matrices;  /* number of matrices, 0 or more */
    /* [matrices] the parameter that each matrix is, in ascending order. NULL selects parameters 0
     * to matrices - 1. A parameter of a frozen unit has no gradient and counts as empty. */
    const int32_t *param;
    /* [matrices] cost of the owner's work on each, in any unit, 0 or more. For Newton-Schulz that
     * is rows * columns * the smaller of them. NULL selects the number of elements. */
    const double *cost;
} dpar_matrices_desc;

/* A handle to matrices that can be gathered. */
typedef struct dpar_matrices dpar_matrices;

/* Decides which rank owns each matrix, and prepares the exchange. The most expensive matrix that
 * has no owner goes to the rank whose matrices cost least, until all have one. Among equal costs,
 * the lowest matrix and the lowest rank come first. The largest cost of a rank is then at most 4/3
 * of the best possible one.
 *
 * comm: the communicator of zero1 or fsdp.
 *
 * Collective. Compares the descriptors with small collectives. O(matrices * (matrices + ranks)).
 * Fails on all ranks with DPAR_E_MISMATCH if they differ, DPAR_E_ARG or DPAR_E_MEMORY. In the
 * functions below, the message of an error is in comm->why. */
DPAR_API dpar_status dpar_matrices_make(dpar_comm *comm, const dpar_matrices_desc *desc,
                                        dpar_matrices **matrices, dpar_why *why);
/* Frees the object and its memory. NULL is allowed. Local. O(1). */
DPAR_API dpar_status dpar_matrices_free(dpar_matrices *matrices);
/* Returns the rank in comm that owns matrix k, or -1 if there is no such matrix. Local. O(1). */
DPAR_API int32_t dpar_matrices_owner(const dpar_matrices *matrices, int32_t k);
/* Returns the address of matrix k on its owner: all its elements, of the type of the gradients
 * (dpar_fsdp_state reports it), and aligned to that type. The address is the same in every step.
 * Returns NULL on other ranks, and if the matrix is empty or does not exist. Local. O(1). */
DPAR_API void *dpar_matrices_at(const dpar_matrices *matrices, int32_t k);
/* Copies all pieces from the gradients' shards to the owners of the matrices.
 *
 * Collective. Costs one all-to-all, in which each rank sends its pieces and receives the matrices
 * that it owns, a copy of the pieces, and with fsdp a copy of the matrices. Fails with DPAR_E_ARG
 * if dpar_zero1_norm has not averaged the gradients, or a pass of the fsdp has not ended. Fails
 * with DPAR_E_MISMATCH, which breaks the communicator, if only some ranks fail with DPAR_E_ARG or
 * ranks call different functions. Other errors are those of comm.h. */
DPAR_API dpar_status dpar_matrices_gather(dpar_matrices *matrices);
/* Copies the matrices, which their owners have changed, back into the gradients' shards.
 *
 * Collective. Costs and fails like dpar_matrices_gather. Also fails with DPAR_E_ARG if that was not
 * called since the last dpar_matrices_scatter. */
DPAR_API dpar_status dpar_matrices_scatter(dpar_matrices *matrices);

#endif
