/* SPDX-License-Identifier: MIT-0 */
/* batch_now - private: a batch for which the caller passed no works, in the engines over MPI and
 * NCCL. Header-only, so that only these engines contain the code. */
#ifndef DPARI_COMM_BATCH_NOW_H
#define DPARI_COMM_BATCH_NOW_H

#include "../base/arith.h"
#include "comm.h"
#include "os.h"

/* Posts the calls by the engine's own batch, with works that it allocates, and waits for them.
 * Returns the first failure. */
DPARI_FN dpar_status dpari_batch_now(dpar_comm *comm, const dpar_call *calls, int32_t n)
{
    enum { FEW = 16 }; /* up to this number, the works are on the stack */
    dpar_work few[FEW], *works = few;
    const int64_t bytes = n * (int64_t)sizeof *works;
    dpar_status status, waited;
    int32_t i;
    if (n > FEW) {
        works = (dpar_work *)dpari_os_pages(bytes);
        if (works == NULL) {
            return dpari_say(DPAR_E_MEMORY, &comm->why, "batch: no memory for %d calls (%ld bytes)",
                             n, bytes);
        }
    }
    for (i = 0; i < n; i++) { /* so that a wait for one that is not posted returns at once */
        works[i].self = &works[i];
        works[i].comm = NULL;
        works[i].status = DPAR_OK;
    }
    status = comm->engine.batch(comm, calls, n, works);
    waited = dpar_wait_all(works, n);
    if (works != few) {
        dpari_os_unmap(works, bytes);
    }
    return status < 0 ? status : waited;
}

#endif
