/* SPDX-License-Identifier: MIT-0 */
/* neighbours_private - the neighbour exchanges of particles: ranks compare their kind, and the
 * receiver may know the lengths. Private. */
#ifndef DPARI_PARTICLES_NEIGHBOURS_PRIVATE_H
#define DPARI_PARTICLES_NEIGHBOURS_PRIVATE_H

#include "../base/arith.h"
#include "neighbours.h"

/* The length of a message follows from the last one on the same channel. Migrations and ghosts use
 * different channels, because their numbers of bytes differ. Exchanges whose lengths the receiver
 * knows use no channel. */
enum { DPARI_NB_CHANNELS = 2 };

/* Describes an exchange. */
typedef struct dpari_nb_kind {
    uint64_t hash;           /* compared with that of the peers that share memory */
    int32_t channel;         /* 0 .. DPARI_NB_CHANNELS - 1; not used if in_bytes is not NULL */
    const int64_t *in_bytes; /* [count] how many bytes each neighbour sends, if this rank knows */
} dpari_nb_kind;

/* Checks that no exchange is in progress, so that memory may be packed for the next one. */
DPARI_INTERNAL dpar_status dpari_nb_is_over(const dpar_neighbours *neighbours);
/* Breaks the communicator and that of the node, in which neighbours may wait, with the status and
 * the message of this rank. Returns the status that counts. */
DPARI_INTERNAL dpar_status dpari_nb_break(dpar_neighbours *neighbours, dpar_status status,
                                          const char *text);
/* Begins to send what has been packed in the memory of dpar_neighbours_buffer. Collective. */
DPARI_INTERNAL dpar_status dpari_nb_begin(dpar_neighbours *neighbours, const int64_t *out_bytes,
                                          const dpari_nb_kind *kind);
/* Advances the exchange in progress, to its end if wait is 1. Otherwise returns DPAR_MORE instead
 * of waiting. Returns DPAR_OK if no exchange is in progress. */
DPARI_INTERNAL dpar_status dpari_nb_advance(dpar_neighbours *neighbours, int wait);
/* Does both. Collective. */
DPARI_INTERNAL dpar_status dpari_nb_exchange(dpar_neighbours *neighbours, const int64_t *out_bytes,
                                             const dpari_nb_kind *kind);

#endif
