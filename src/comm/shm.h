/* SPDX-License-Identifier: MIT-0 */
/* shm - the shared-memory engine: communicators over a world. Private. shm.c explains how
 * operations are posted and advanced, and what happens when a rank does not arrive. */
#ifndef DPARI_COMM_SHM_H
#define DPARI_COMM_SHM_H

#include "comm.h"
#include "world.h"

/* Returns the world of a communicator of this engine, or NULL if another engine made it. */
DPARI_API dpari_world *dpari_world_of(const dpar_comm *comm);
/* Advances all posted operations by one step, for waits outside of this engine. */
DPARI_API void dpari_shm_progress_all(dpar_comm *comm);

/* Does what dpar_comm_alloc does, but memory that was used before is not zeroed, where ranks share
 * memory. dpar_comm_release releases it. For scratch that is needed in every call. */
DPARI_API dpar_status dpari_shm_scratch(dpar_comm *comm, int64_t bytes, void **memory);

/* Decides which rank prints an error for all. Returns 1 to the first rank of a world that calls
 * this, and again to the first one after each dpar_comm_shrink. Returns 0 to all others. */
DPARI_API int dpari_shm_speaks(dpar_comm *comm);

/* ---- of this header's own modules ---- */

/* Joins the world of a segment as rank `me` and makes its communicator. Returns when all ranks have
 * arrived. Fails with DPAR_E_TIMEOUT (the message names the missing ranks) or DPAR_E_PEER (a rank
 * died). own: DPARI_OWNS_x; on failure, the segment is left to the caller. COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_shm_join(const dpari_segment *segment, int32_t me, int32_t own,
                                          const dpar_world_desc *options, dpar_comm **comm,
                                          dpar_why *why);
/* lent: 1 if dpar_launch closes the world's communicator and the user must not, otherwise 0. */
DPARI_INTERNAL void dpari_shm_lend(dpar_comm *world, int32_t lent);

#endif
