/* SPDX-License-Identifier: MIT-0 */
/* proof - private: proofs of the key: SipHash-2-4 of 128 bits (Aumasson and Bernstein, 2012). */
#ifndef DPARI_NCCL_PROOF_H
#define DPARI_NCCL_PROOF_H

#include "../base/arith.h"
#include "state.h"

/* Takes the same time wherever the bits differ, so that an attacker learns nothing from it. */
DPARI_INTERNAL int dpari_nccl_alike(const dpari_nccl_bits *a, const dpari_nccl_bits *b);

/* Draws a random number that nobody can predict. Returns -1 if the system provides none. */
DPARI_INTERNAL int dpari_nccl_draw(dpari_nccl_bits *to);

/* Returns the proof by which one side of a connection shows the other that it knows the key: rank 0
 * if by_host is 1, otherwise rank `rank`, which has called. It covers the job, rank, size and both
 * random numbers, so that it is valid for no other connection and not a second time. */
DPARI_INTERNAL dpari_nccl_bits dpari_nccl_prove(const dpari_nccl_world *world, int by_host,
                                                int32_t rank, const dpari_nccl_bits *caller,
                                                const dpari_nccl_bits *called);

#endif
