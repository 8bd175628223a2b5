/* SPDX-License-Identifier: MIT-0 */
/* nodes - private: finds out which ranks share the memory of a node. */
#ifndef DPARI_MPI_NODES_H
#define DPARI_MPI_NODES_H

#include "mpi_private.h"

/* Returns an environment variable as a number, or 0 if it is not set. */
DPARI_INTERNAL int dpari_mpi_env(const char *name);
/* Finds out which ranks share memory, and makes the engine's communicator of this node's ranks.
 * Collective. */
DPARI_INTERNAL dpar_status dpari_mpi_find_levels(dpar_comm *comm);
/* Finds the names of the nodes, which their lowest ranks send, and the node of each rank, for
 * messages. Keeps no names if there is only one node. Collective. */
DPARI_INTERNAL dpar_status dpari_mpi_find_hosts(dpari_mpi_ctx *context);
/* Returns the worst status of all ranks, and breaks the communicator if it is an error, with the
 * message of the rank that has it. Collective. */
DPARI_INTERNAL dpar_status dpari_mpi_all_well(dpari_mpi_ctx *context, dpar_status mine,
                                              dpar_why *said);
/* Makes a communicator of the ranks of `own` that share this rank's memory. Returns NULL, with the
 * reason in `flat`, if no two ranks share memory. This is tested, because MPI may report ranks in
 * containers to be on one node although they share no memory. Collective: either all ranks get a
 * communicator or none does. */
DPARI_INTERNAL dpar_comm *dpari_mpi_share(MPI_Comm own, const dpar_mpi_desc *o, int32_t *nodes,
                                          dpar_why *flat);

#endif
