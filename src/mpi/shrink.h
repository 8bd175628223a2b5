/* SPDX-License-Identifier: MIT-0 */
/* shrink - private: the ranks that are left after others have died. */
#ifndef DPARI_MPI_SHRINK_H
#define DPARI_MPI_SHRINK_H

#include "mpi_private.h"

/* Breaks the communicator, waits with its deadline until all remaining ranks have called this, and
 * makes *part of them. Needs ULFM. */
DPARI_INTERNAL dpar_status dpari_mpi_shrink_part(dpari_mpi_ctx *context, MPI_Comm *part,
                                                 dpar_why *why);
/* Sets was[r] to the rank that rank r of `part` has in `context`. */
DPARI_INTERNAL void dpari_mpi_shrink_map(const dpari_mpi_ctx *context, MPI_Comm part, int32_t *was);

#endif
