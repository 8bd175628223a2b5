/* SPDX-License-Identifier: MIT-0 */
/* closing - private: frees a communicator, and with the last one what they all share. */
#ifndef DPARI_MPI_CLOSING_H
#define DPARI_MPI_CLOSING_H

#include "mpi_private.h"

/* Frees a communicator of the node's memory, with a deadline of at most 5 s, because other ranks
 * may never free it. */
DPARI_INTERNAL void dpari_mpi_close_part(dpar_comm *part);
/* Frees the world when its last communicator is closed. alive: 1 if MPI is not finalised yet. */
DPARI_INTERNAL void dpari_mpi_leave_world(dpari_mpi_world *world, int alive);
/* Closes a communicator, as dpar_comm_free describes. COLLECTIVE unless it is broken. */
DPARI_INTERNAL dpar_status dpari_mpi_close(dpar_comm *comm);

#endif
