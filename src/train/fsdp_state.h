/* SPDX-License-Identifier: MIT-0 */
/* fsdp_state - the shards of an fsdp, for checkpoints and your own optimizer. */
#ifndef DPARI_TRAIN_FSDP_STATE_H
#define DPARI_TRAIN_FSDP_STATE_H

#include "../index/layout.h"
#include "fsdp.h"

/* Arrays of which each rank has a shard: those of a checkpoint, and the reduced gradients. */
enum {
    DPAR_FSDP_MASTER,
    DPAR_FSDP_MOMENT_1,
    DPAR_FSDP_MOMENT_2,
    DPAR_FSDP_ARRAY_COUNT, /* the largest number of arrays in a checkpoint */
    DPAR_FSDP_GRADIENT = DPAR_FSDP_ARRAY_COUNT
};

/* Returns this rank's shard of an array of a unit. Returns NULL, with 0 elements and
 * DPAR_TYPE_NONE, if there is no such unit, the optimizer has no such array, or the unit is frozen
 * and the array is not DPAR_FSDP_MASTER. dpar_fsdp_piece
 * reports where a parameter is in the shard.
 *
 * array:    DPAR_FSDP_MASTER, ... DPAR_FSDP_GRADIENT.
 * elements: set to the number of elements, including the padding, which is 0. May be NULL. Moments
 *           of type DPAR_F8 are records of 260 bytes (optimizer.h), and each byte is an element.
 * type:     set to the type of the elements. May be NULL.
 *
 * A sharded checkpoint consists of the arrays below DPAR_FSDP_ARRAY_COUNT of all ranks of one
 * replica, and the number of steps that were done.
 *
 * DPAR_FSDP_GRADIENT selects the reduced gradients, which are available from the end of a pass to
 * the next dpar_fsdp_zero. Use them for norms that weight parameters differently, or for sums over
 * other communicators.
 *
 * Local. O(1), except that gradients that count as 0 are zeroed here. */
DPAR_API void *dpar_fsdp_state(const dpar_fsdp *fsdp, int32_t array, int32_t unit,
                               int64_t *elements, int32_t *type);
/* Describes a unit as an array of one dim on ranks first .. first + ranks - 1, divided like its
 * shards (DPAR_SPLIT_CHUNK), for redistribute.h and move.h. layout->extent[0] is the number of
 * elements of the unit without padding, and each rank's shard has ceil(extent / ranks) elements. If
 * moments have type DPAR_F8, that is rounded up to a multiple of 256 (DPAR_SPLIT_BLOCK_CYCLIC). The
 * blocks then do not depend on the number of ranks, and a checkpoint is loaded without rounding.
 *
 * For a full checkpoint, gather the shards of each unit and array with dpar_gather, and keep only
 * the first layout->extent[0] elements. Load it like a sharded checkpoint of one rank.
 *
 * Local. O(1). Fails with DPAR_E_ARG. */
DPAR_API dpar_status dpar_fsdp_layout(const dpar_fsdp *fsdp, int32_t unit, int32_t first,
                                      int32_t ranks, dpar_layout *layout, dpar_why *why);
/* Reads a part of a saved shard. It is your callback. The part is elements first .. first + count -
 * 1 of the shard of unit u in an array, as rank `rank` of the saving job wrote it. Write the part
 * to `to`. Return a negative status if that fails. */
typedef dpar_status (*dpar_fsdp_read_callback)(void *ctx, int32_t array, int32_t u, int32_t rank,
                                               int64_t first, int64_t count, void *to);
/* Loads a checkpoint that was saved by any number of ranks. Each rank reads each element of its
 * shards once. With the same options and number of ranks, training continues with the same bits as
 * if it had not stopped.
 *
 * ranks: number of ranks that saved it.
 * steps: number of steps that were done when it was saved.
 *
 * Collective over comm and replicas. Compares `ranks` and `steps` with small collectives. Fails
 * with DPAR_E_ARG if a pass is in progress and with DPAR_E_MISMATCH if ranks passed different
 * numbers. A failure on one rank is reported on all. Part of the state may then have been replaced,
 * so that you must load again. */
DPAR_API dpar_status dpar_fsdp_load(dpar_fsdp *fsdp, int32_t ranks, int64_t steps,
                                    dpar_fsdp_read_callback read, void *ctx, dpar_why *why);

#endif
