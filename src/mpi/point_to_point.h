/* SPDX-License-Identifier: MIT-0 */
/* point_to_point - private: messages that have no task yet.
 *
 * A message is at first only an MPI request that is stored in its work, so that a short wait costs
 * no more than MPI's own. Once a wait for it takes longer, the message is turned into a task, which
 * has a deadline, is reported to the other ranks, and ends when the communicator breaks. */
#ifndef DPARI_MPI_POINT_TO_POINT_H
#define DPARI_MPI_POINT_TO_POINT_H

#include "mpi_private.h"

/* Index in work->state of the number of calls of dpar_test. work->state[0] holds the request. */
enum { DPARI_MPI_LOOKS = 1 };

/* Posts a message without a task. Returns 0 if it was not posted, so that it needs a task. */
DPARI_INTERNAL int32_t dpari_mpi_post_light(dpari_mpi_ctx *context, const dpar_call *call,
                                            dpar_work *work);
/* Turns a message into a task. Returns NULL if there is no memory. */
DPARI_INTERNAL dpari_mpi_task *dpari_mpi_grow(dpar_work *work);
/* Abandons a message on closing, because there was no memory for its task. The world's memory is
 * kept, because MPI may still use it. */
DPARI_INTERNAL void dpari_mpi_light_lose(dpar_work *work);
/* Tests whether a message is done. */
DPARI_INTERNAL void dpari_mpi_light_test(dpar_work *work);
/* Tests a message for the look-th time. It becomes a task after DPARI_MPI_POLLS times, or at once
 * if there are other tasks, because these have to advance, too. */
DPARI_INTERNAL void dpari_mpi_light_look(dpar_work *work, int64_t look);

#endif
