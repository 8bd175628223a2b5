/* SPDX-License-Identifier: MIT-0 */
/* arrival - how the ranks of a large group learn, by levels, that all have arrived. Private.
 *
 * In a step of a collective, every rank publishes a word (collectives.c), and a rank may proceed
 * once all words are published. If each of n ranks looked at all words, each would read n - 1 cache
 * lines of other cores. More than 16 ranks are therefore divided into clusters of at most 8, which
 * share a last-level cache if the ranks are bound to one. The first rank of a cluster leads it:
 *
 *     1. it looks at the words of its cluster, and publishes `up` when all are there;
 *     2. it looks at `up` of the other leaders;
 *     3. it publishes `down`, the only word that the other ranks of its cluster look at.
 *
 * A leader reads 7 + n / 8 - 1 lines, every other rank one. The levels only speed up what a rank
 * can also learn from the words. If a rank has not learned it after a few looks, because its leader
 * is busy or dead, it looks at all words itself. No rank depends on a leader. tests/model/gate.pml
 * models the protocol.
 *
 * In the first step of a collective, small data is included: `up` carries the inputs of the ranks
 * of the cluster if 8 of them fit into its line, and `down` the result of a reduction. */
#ifndef DPARI_COMM_ARRIVAL_H
#define DPARI_COMM_ARRIVAL_H

#include "group.h"

enum { DPARI_WORD_ENTRY, DPARI_WORD_A, DPARI_WORD_B, DPARI_WORD_C };
/* Returns the word of this kind that a rank publishes for a collective. */
DPARI_INTERNAL const uint64_t *dpari_word_of(const dpari_group *group, const dpar_work *work,
                                             int32_t rank, int32_t which);

/* How far a rank has got in a wait; all zero before its first look. */
typedef struct dpari_watch {
    int32_t cursor; /* number of words that have reached the target in this stage */
    int16_t looks;  /* number of looks by levels that found nothing */
    int16_t stage;  /* one of the following */
} dpari_watch;
enum {
    DPARI_AT_CLUSTER, /* a leader looks at its cluster, another rank at `down` */
    DPARI_AT_LEADERS, /* a leader looks at the other leaders */
    DPARI_AT_ALL,     /* looks at every word, because levels were too slow or there are none */
    DPARI_BY_LEVELS   /* has passed by levels, so that `down` may be read */
};

/* Divides a group into clusters, with the same result on all its ranks. tables: memory of
 * dpari_gate_bytes(size) bytes. */
DPARI_INTERNAL int64_t dpari_gate_bytes(int32_t size);
DPARI_INTERNAL void dpari_gate_cut(dpari_group *group, void *tables);
/* Looks once, by levels, whether all words `which` of a collective have reached the target. Returns
 * 1 if they have, 0 if not yet, and -1 if the caller must look at all words, from cursor 0 on. An
 * entry that has reached the target is equal to it, or belongs to a later collective. */
DPARI_INTERNAL int dpari_gate_look(dpari_group *group, const dpar_work *work, dpari_watch *at,
                                   int32_t which, uint64_t target);
/* Publishes the words of a leader that has passed, by levels or not: `up`, unless it is published
 * already, then `down` with `result` (`bytes` of it). Other ranks do nothing. */
DPARI_INTERNAL void dpari_gate_tell(dpari_group *group, const dpar_work *work,
                                    const dpari_watch *at, int32_t which, uint64_t target,
                                    const void *result, int64_t bytes);

/* Returns the inline data of a rank in a collective, which all have entered with the word `target`.
 * It is in the line of the rank's leader if it fits there, otherwise in the rank's entry. */
DPARI_INTERNAL const void *dpari_gate_given(const dpari_group *group, const dpar_work *work,
                                            int32_t rank, uint64_t target);
/* Returns the result in `down` for a rank that has passed by levels, or NULL if there is none. */
DPARI_INTERNAL const void *dpari_gate_result(const dpari_group *group, const dpari_watch *at);

#endif
