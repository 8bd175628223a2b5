/* SPDX-License-Identifier: MIT-0 */
/* card - private: what rank 0 sends to all ranks so that they can communicate: dpari_nccl_card. */
#ifndef DPARI_NCCL_CARD_H
#define DPARI_NCCL_CARD_H

#include "../base/arith.h"
#include "state.h"

/* Makes rank 0's card, without the id, and begins to listen. If it cannot listen, the card has no
 * addresses, and there is no side channel. */
DPARI_INTERNAL dpar_status dpari_nccl_card_begin(dpari_nccl_world *world, uint64_t job,
                                                 dpar_why *why);
/* Stores a new id of NCCL in this rank's card, or the one that NCCL makes from NCCL_COMM_ID. */
DPARI_INTERNAL dpar_status dpari_nccl_card_id(dpari_nccl_world *world, dpar_why *why);

/* On rank 0: makes the card with the id. If that fails, the card reports it to the other ranks. */
DPARI_INTERNAL dpar_status dpari_nccl_own_card(dpari_nccl_world *world, uint64_t job,
                                               dpar_why *why);

/* Fails with DPAR_E_MISMATCH, and a message, if rank 0's card does not fit this rank, and with
 * DPAR_E_PEER if rank 0 failed. */
DPARI_INTERNAL dpar_status dpari_nccl_card_fits(const dpari_nccl_world *world,
                                                const dpari_nccl_card *card, dpar_why *why);

#endif
