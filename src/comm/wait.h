/* SPDX-License-Identifier: MIT-0 */
/* wait - private: how one rank of a world waits for another, and wakes it. */
#ifndef DPARI_COMM_WAIT_H
#define DPARI_COMM_WAIT_H

#include "world.h"

/* A wait:
 *
 *     dpari_zero(&t, sizeof t);
 *     while (!condition) {
 *         if (dpari_wait_turn(w, &t, peer) == DPAR_MORE) { check the peers and the deadline }
 *     }
 *     dpari_wait_end(w, &t);
 *
 * The first turns spin. Later turns yield if the peer needs this core, because there are more ranks
 * than cores or because the peer was last seen on this CPU. If there is a core for each rank, one
 * of the two moves to another core instead. The last turns sleep. A turn returns DPAR_OK once after
 * it has set `asleep` and before it sleeps, so that the caller tests the condition again: from then
 * on, any rank that changes it wakes this one. DPAR_MORE means that time has passed. */
typedef struct dpari_wait {
    int32_t turns;   /* turns that have spun */
    int32_t counted; /* 1 if this rank counts as a sleeper */
    int32_t peer;    /* the peer of the turn in which it was counted; -1 if any rank */
    uint32_t bell;   /* value of the rank's bell then */
    int32_t shares;  /* 1 + the peer that was last seen on this rank's CPU; 0 if none */
    int32_t resumed; /* how often this process was suspended and resumed during the wait */
    double began;    /* time of the first look at the clock, plus the time for which this process
                        was suspended; 0 if the wait has only spun so far */
    double looked;   /* last look at the clock */
} dpari_wait;
/* peer: the rank that must publish what this rank waits for; -1 if it may be any rank. */
DPARI_API dpar_status dpari_wait_turn(dpari_world *world, dpari_wait *waiting, int32_t peer);
/* Publishes that this rank waits, and for which rank (-1 if for several). Called after a turn that
 * returned DPAR_MORE. */
DPARI_API void dpari_wait_says(dpari_world *world, int32_t needs);
DPARI_API void dpari_wait_end(dpari_world *world, dpari_wait *waiting);

/* Stores the word and wakes the ranks that sleep until this rank publishes something. */
DPARI_API void dpari_publish(dpari_world *world, uint64_t *word, uint64_t value);

/* ---- of this header's own modules ---- */

/* Returns the seconds since a rank last reported that it waits, by the clock that all share. */
DPARI_INTERNAL double dpari_beat_age(dpari_world *world, int32_t rank);
/* Wakes all ranks, after an event that concerns all of them. */
DPARI_INTERNAL void dpari_ring_all(const dpari_segment *segment);

/* Takes a rank off the count of sleepers. Several ranks may try this at once, but only one of them
 * succeeds. Returns 1 for that one, otherwise 0. */
DPARI_INTERNAL int dpari_uncount(dpari_world_head *head, dpari_rank *record);

#endif
