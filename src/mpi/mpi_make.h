/* SPDX-License-Identifier: MIT-0 */
/* mpi_make - makes communicators over MPI. */
#ifndef DPARI_MPI_MPI_MAKE_H
#define DPARI_MPI_MPI_MAKE_H

#include "../comm/comm.h"

#include <mpi.h>
#if defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5
#include <mpi-ext.h> /* MPIX_Comm_shrink, where it has that */
#endif

/* Describes a communicator over MPI. 0 selects the default of each field. All fields but `flat`
 * must be equal on all ranks. */
typedef struct dpar_mpi_desc {
    double timeout_s;   /* deadline of one operation in seconds. 0 selects DPAR_TIMEOUT from the
                           environment, or 300 if that is not set; a negative value means none */
    int32_t rank_order; /* 1 reduces in rank order, which gives the same bits on all ranks and in
                           every run: an all-to-all of pieces, sums, and an all-gather */
    int32_t check;      /* 1 compares kind, type, count, op, root and tag before each collective */
    int32_t blocking;   /* 1 selects MPI's blocking calls for blocking collectives if they are
                           carried only by messages of MPI (no ranks share memory, or flat). They
                           have no deadline, so timeout_s must be negative. In each operation either
                           all ranks must block or all must post. Work that was posted before first
                           advances to its last step */
    int32_t flat;       /* 1, on any rank, uses only MPI messages even if ranks share memory.
                           DPAR_MPI_FLAT=1 in the environment does the same. DPAR_MPI_NODE=2 treats
                           nodes as if they had at most two ranks, to test communication between
                           nodes */
} dpar_mpi_desc;

/* Makes a communicator over the ranks of an MPI communicator: through the node's memory if all of
 * them share it, otherwise over a private duplicate of `user`. Call it after MPI_Init, and call
 * dpar_comm_free before MPI_Finalize.
 *
 * user:    stays yours.
 * desc:    NULL selects the defaults.
 *
 * Collective over `user`. MPI's own calls wait for all ranks, without a deadline. It takes about a
 * millisecond on one node, and tens of milliseconds on several nodes, where it measures which sizes
 * are faster by which path. It takes up to 20 s if MPI reports that ranks share a node's memory but
 * they do not. Code that needs many communicators makes one and splits it (dpar_comm_split), which
 * takes microseconds in a node.
 *
 * Fails with DPAR_E_ARG if MPI is not initialised or is finalised, `user` is MPI_COMM_NULL or an
 * inter-communicator, DPAR_TIMEOUT is not a number, or blocking is set with a deadline. Fails with
 * DPAR_E_MISMATCH if ranks pass different descriptors, and with DPAR_E_SYSTEM and MPI's own message
 * if an MPI call fails. */
DPAR_API dpar_status dpar_mpi_make(MPI_Comm user, const dpar_mpi_desc *desc, dpar_comm **comm,
                                   dpar_why *why);

#endif
