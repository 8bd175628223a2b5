/* SPDX-License-Identifier: MIT-0 */
/* watchdog - private: the thread that watches deadlines and runs the side channel. */
#ifndef DPARI_NCCL_WATCHDOG_H
#define DPARI_NCCL_WATCHDOG_H

#include "../base/arith.h"
#include "state.h"

/* Connects to rank 0, waiting for at most a second, and starts the watchdog. */
DPARI_INTERNAL void dpari_nccl_watchdog(dpari_nccl_world *world);

#endif
