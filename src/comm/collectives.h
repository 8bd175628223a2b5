/* SPDX-License-Identifier: MIT-0 */
/* coll - the collectives of a group over shared memory, as steps that never wait. Private. The
 * protocol is described at the top of collectives.c and modelled in tests/model. */
#ifndef DPARI_COMM_COLLECTIVES_H
#define DPARI_COMM_COLLECTIVES_H

#include "group.h"

/* Advances `work`, the first collective in the queue, as far as is possible without waiting. Its
 * phase is 0 at the start. Returns DPAR_OK if it is done, DPAR_MORE if it waits for others
 * (group->blocker says for which rank), or a negative status if it failed. */
DPARI_INTERNAL dpar_status dpari_coll_advance(dpari_group *group, dpar_work *work);
/* True if that rank has not yet done what `work` waits for. */
DPARI_INTERNAL int dpari_coll_missing(const dpari_group *group, const dpar_work *work,
                                      int32_t rank);

#endif
