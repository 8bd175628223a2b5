/* SPDX-License-Identifier: MIT-0 */
/* proof - private: proves that a process knows the job's key, by SipHash-2-4 with a result of 128
 * bits (Aumasson and Bernstein, 2012). */
#ifndef DPARI_NCCL_PROOF_H
#define DPARI_NCCL_PROOF_H

#include "../base/arith.h"
#include "state.h"

/* True if all bits are equal. Takes the same time wherever they differ, so that an attacker learns
 * nothing from it. */
DPARI_INTERNAL int dpari_nccl_alike(const dpari_nccl_bits *a, const dpari_nccl_bits *b);

/* Sets *to to a random number that nobody can predict. Returns -1 if the system provides none. */
DPARI_INTERNAL int dpari_nccl_draw(dpari_nccl_bits *to);

/* Returns the proof by which one side of a connection shows the other that it knows the key. It
 * covers the job, the size and all arguments, so that it is valid only once and only for this
 * connection.
 *
 * by_root: 1 for the proof of rank 0, and 0 for that of rank `rank`, which has connected to rank 0.
 * caller:  the random number that rank `rank` has drawn for this connection.
 * called:  the random number that rank 0 has drawn for it. */
DPARI_INTERNAL dpari_nccl_bits dpari_nccl_prove(const dpari_nccl_world *world, int by_root,
                                                int32_t rank, const dpari_nccl_bits *caller,
                                                const dpari_nccl_bits *called);

#endif
