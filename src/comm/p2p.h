/* SPDX-License-Identifier: MIT-0 */
/* p2p - messages between the ranks of a world over shared memory, as steps that never wait.
 * Private; the protocol is at the top of p2p.c, tests/model has it as models.
 *
 * Channels belong to a world, whatever communicators its messages are of. A message that is done
 * has left the channels and is in its group's `finished`. */
#ifndef DPARI_COMM_P2P_H
#define DPARI_COMM_P2P_H

#include "group.h"

typedef struct dpari_p2p dpari_p2p; /* what a rank keeps of all its channels */

/* NULL: no memory. */
DPARI_INTERNAL dpari_p2p *dpari_p2p_open(dpari_world *w);
DPARI_INTERNAL void dpari_p2p_close(dpari_p2p *p);
/* OK: done already, MORE: under way (the channels remember it until it is done). */
DPARI_INTERNAL dpar_status dpari_p2p_start(dpari_p2p *p, dpari_group *g, const dpar_call *call,
                                           dpar_work *k);
/* The state of one: OK done, MORE (g->blocker: for whom), negative: failed. */
DPARI_INTERNAL dpar_status dpari_p2p_advance(dpari_p2p *p, dpari_group *g, dpar_work *k);
/* Looks at all channels. */
DPARI_INTERNAL void dpari_p2p_progress(dpari_p2p *p);
/* Forgets works of a group that cannot end: it is broken or closed. Returns how many. */
DPARI_INTERNAL int32_t dpari_p2p_forget(dpari_p2p *p, dpari_group *g);

#endif
