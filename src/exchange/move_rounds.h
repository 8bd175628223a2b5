/* SPDX-License-Identifier: MIT-0 */
/* move_rounds - sends and receives the messages of a move. Private. */
#ifndef DPARI_EXCHANGE_MOVE_ROUNDS_H
#define DPARI_EXCHANGE_MOVE_ROUNDS_H

#include "move_streams.h"

/* Plans and runs the rounds of a move whose streams have been built. */
DPARI_INTERNAL dpar_status dpari_move_go(dpari_move *move, dpar_why *why);

#endif
