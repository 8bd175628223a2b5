/* SPDX-License-Identifier: MIT-0 */
/* tuning - private: measures, when the first communicator is made, which method is faster for which
 * size. */
#ifndef DPARI_MPI_TUNING_H
#define DPARI_MPI_TUNING_H

#include "mpi_private.h"

/* Measures world->at_once. Collective. */
DPARI_INTERNAL dpar_status dpari_mpi_find_at_once(dpari_mpi_ctx *context);
/* Measures world->dealt. It is not measured for many ranks, because each rank would have to connect
 * to each other rank, and because sending by nodes then saves most messages in any case.
 * Collective. */
DPARI_INTERNAL dpar_status dpari_mpi_find_dealt(dpar_comm *comm);
/* Measures world->lanes_from: the size from which all lanes are faster than one. Collective. */
DPARI_INTERNAL dpar_status dpari_mpi_find_lanes(dpar_comm *comm);

#endif
