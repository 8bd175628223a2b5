/* SPDX-License-Identifier: MIT-0 */
/* p2p - messages between the ranks of a world over shared memory, as steps that never wait.
 * Private. The protocol is described at the top of p2p.c and modelled in tests/model.
 *
 * Channels belong to a world and carry the messages of all its communicators. A message that is
 * done is removed from its channel and is in `finished` of its group. */
#ifndef DPARI_COMM_P2P_H
#define DPARI_COMM_P2P_H

#include "group.h"

typedef struct dpari_p2p dpari_p2p; /* a rank's private state of all its channels */

/* Returns NULL if there is no memory. */
DPARI_INTERNAL dpari_p2p *dpari_p2p_open(dpari_world *world);
DPARI_INTERNAL void dpari_p2p_close(dpari_p2p *p2p);
/* Starts a message. Returns DPAR_OK if it is done already, or DPAR_MORE if it is in progress; its
 * channel then refers to `work` until the message is done. */
DPARI_INTERNAL dpar_status dpari_p2p_start(dpari_p2p *p2p, dpari_group *group,
                                           const dpar_call *call, dpar_work *work);
/* Advances a message. Returns DPAR_OK if it is done, DPAR_MORE if it waits for the rank
 * group->blocker, or a negative status if it failed. */
DPARI_INTERNAL dpar_status dpari_p2p_advance(dpari_p2p *p2p, dpari_group *group, dpar_work *work);
/* Advances the messages of all channels. */
DPARI_INTERNAL void dpari_p2p_progress(dpari_p2p *p2p);
/* Removes the messages of a group that is broken or closed, because they cannot end any more.
 * Returns how many there were. */
DPARI_INTERNAL int32_t dpari_p2p_forget(dpari_p2p *p2p, dpari_group *group);

#endif
