/* SPDX-License-Identifier: MIT-0 */
/* side_channel - private: TCP between rank 0 and the other ranks, used when something is wrong. */
#ifndef DPARI_NCCL_SIDE_CHANNEL_H
#define DPARI_NCCL_SIDE_CHANNEL_H

#include "../base/arith.h"
#include "state.h"

/* Allocates the side channel, and the pipe that wakes the watchdog. */
DPARI_INTERNAL dpar_status dpari_nccl_side_make(dpari_nccl_world *world, dpar_why *why);

/* Waits, without the lock, until something arrives or `seconds` have passed. */
DPARI_INTERNAL void dpari_nccl_side_wait(dpari_nccl_world *world, double seconds);

/* Locked. Reports communicators that broke on this rank to the others. */
DPARI_INTERNAL void dpari_nccl_say_broken(dpari_nccl_world *world);

/* Locked. Advances the side channel. */
DPARI_INTERNAL void dpari_nccl_side_turn(dpari_nccl_world *world);

#endif
