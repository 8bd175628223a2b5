/* SPDX-License-Identifier: MIT-0 */
/* coll - the collectives of a group over shared memory, as steps that never wait. Private; the
 * protocol is at the top of coll.c, tests/model has it as models. */
#ifndef DPARI_COMM_COLL_H
#define DPARI_COMM_COLL_H

#include "group.h"

/* A step of the collective that is first in the queue, from phase 0 on: OK done, MORE (g->blocker:
 * for whom), negative: failed. */
DPARI_API dpar_status dpari_coll_advance(dpari_group *g, dpar_work *k);
/* True if that rank has not yet done what k waits for. */
DPARI_API int dpari_coll_missing(const dpari_group *g, const dpar_work *k, int32_t rank);

#endif
