/* SPDX-License-Identifier: MIT-0 */
/* exact_ranks - private: computes terms over the ranks of a communicator, for the calls on arrays,
 * grids and points. */
#ifndef DPARI_EXACT_EXACT_RANKS_H
#define DPARI_EXACT_EXACT_RANKS_H

#include "../base/arith.h"
#include "exact.h"

/* Does what dpar_exact_many does. If this rank has found a wrong argument, it passes DPAR_E_ARG as
 * `status` and a message, and all ranks fail with it.
 *
 * kinds: [count] terms with the kind and type that all ranks must pass; read even if status is
 *        negative. */
DPARI_INTERNAL dpar_status dpari_ex_many(dpar_comm *comm, dpar_status status, dpar_why *why,
                                         const dpar_exact_term *terms, int32_t count,
                                         double *results);

#endif
