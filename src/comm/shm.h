/* SPDX-License-Identifier: MIT-0 */
/* shm - the shared-memory engine: communicators over a world. Private. What is posted where, who
 * waits how, what happens when a rank does not come: shm.c. */
#ifndef DPARI_COMM_SHM_H
#define DPARI_COMM_SHM_H

#include "comm.h"
#include "world.h"

/* The world behind a communicator of this engine; NULL for others. */
DPARI_API dpari_world *dpari_world_of(const dpar_comm *c);
/* One round of progress on all that is posted, for waits outside of this engine. */
DPARI_API void dpari_shm_progress_all(dpar_comm *c);

/* 1 for the one rank that is to say for all what went wrong: the first to ask, once in a world,
 * and once more after each dpar_comm_shrink. */
DPARI_API int dpari_shm_speaks(dpar_comm *c);

/* ---- of this header's own modules ---- */

/* Becomes rank `me` of the segment's world; returns its communicator when all ranks have come
 * (E_TIMEOUT names the missing, E_PEER a dead one). own: the segment is closed with the world; not
 * when this fails. COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_shm_join(const dpari_segment *s, int32_t me, int32_t own,
                                          const dpar_world_desc *options, dpar_comm **comm,
                                          dpar_why *why);
/* 1: dpar_launch closes the world's communicator, not the user; 0: anyone may. */
DPARI_INTERNAL void dpari_shm_lend(dpar_comm *world, int32_t lent);

#endif
