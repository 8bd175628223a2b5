/* SPDX-License-Identifier: MIT-0 */
/* levels - private: collectives in the nodes, between them, and in the nodes again.
 *
 * The ranks of a node communicate through its memory. Between nodes the i-th ranks of all nodes
 * form a lane, and each lane carries its part of the data, so that all ports and cores work. Small
 * operations are carried only by the first lane. An operation has up to three steps: FIRST in the
 * nodes, BETWEEN them, and LAST in the nodes. Each step may have several parts, which are called
 * legs.
 *
 * This module knows only messages (task_messages) and a communicator of the node's ranks. It calls
 * no function of MPI. */
#ifndef DPARI_MPI_LEVELS_H
#define DPARI_MPI_LEVELS_H

#include "mpi_private.h"

/* Posts a call on the communicator of the node. If that fails, breaks the task's communicator. */
DPARI_INTERNAL int dpari_mpi_post_inside(dpari_mpi_task *task, const dpar_call *call);
/* True if it is done. */
DPARI_INTERNAL int32_t dpari_mpi_inside_done(dpari_mpi_task *task);
/* Runs the whole call in the node's memory: a message within the node, or any call if all ranks are
 * on one node. */
DPARI_INTERNAL int dpari_mpi_within(dpari_mpi_task *task);
/* Returns the call for a step in the node's memory, with the task's type and op. */
DPARI_INTERNAL dpar_call dpari_mpi_inside_call(const dpari_mpi_task *task, int32_t kind,
                                               const void *in, void *out, int64_t count);
/* Post the next step of a collective by levels, or by messages between all ranks
 * (DPARI_MPI_TRADES), and process the data that arrived. */
DPARI_INTERNAL int dpari_mpi_levels_step(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_levels_land(dpari_mpi_task *task);

#endif
