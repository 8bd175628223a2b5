/* SPDX-License-Identifier: MIT-0 */
/* gate - how the ranks of a large group learn that all have come: by levels. Private.
 *
 * Every rank publishes a word of its own (coll.c), and it is true once all words are there. To look
 * at each of them costs each of n ranks n - 1 lines of other cores' caches. So more than 16 ranks
 * are cut into clusters of at most 8, which share a last-level cache where the ranks are bound to
 * one. The first rank of a cluster leads it:
 *
 *     1. it looks at the words of its cluster, and says `up` when all are there;
 *     2. it looks at what the other leaders say;
 *     3. it says `down`, which is all that the others of its cluster look at.
 *
 * 7 + n / 8 - 1 lines for a leader, one for the others. That is only a faster way to learn what the
 * words say anyway: a rank that does not learn it so within a few looks (its leader is busy
 * elsewhere, or gone) looks at all words itself. No rank depends on a leader. tests/model/gate.pml
 * has the protocol as a model.
 *
 * With a collective's entries the small things themselves go along: `up` carries what the ranks of
 * the cluster give where 8 of those fit into its line, `down` the result of a reduction. */
#ifndef DPARI_COMM_GATE_H
#define DPARI_COMM_GATE_H

#include "group.h"

enum { DPARI_WORD_ENTRY, DPARI_WORD_A, DPARI_WORD_B, DPARI_WORD_C };
/* The word of that kind which a rank publishes for the collective k. */
DPARI_INTERNAL const uint64_t *dpari_word_of(const dpari_group *g, const dpar_work *k, int32_t rank,
                                             int32_t which);

/* How far a rank has looked; all zero before the first look. */
typedef struct dpari_watch {
    int32_t cursor; /* words seen, of those that it looks at now */
    int16_t looks;  /* in vain, by levels */
    int16_t stage;
} dpari_watch;
enum {
    DPARI_AT_CLUSTER, /* a leader looks at its cluster; others at `down` */
    DPARI_AT_LEADERS,
    DPARI_AT_ALL,   /* at every word: levels were too slow, or there are none */
    DPARI_BY_LEVELS /* passed so: `down` may be read */
};

/* Cuts a group into clusters, the same on all its ranks; in `tables`, dpari_gate_bytes of them. */
DPARI_INTERNAL int64_t dpari_gate_bytes(int32_t size);
DPARI_INTERNAL void dpari_gate_cut(dpari_group *g, void *tables);
/* Looks once, by levels, whether all words `which` of k have reached the target. Returns 1 if they
 * have, 0 if not yet, and -1 if the caller must look at all words, from cursor 0 on. Entries are
 * equal to the target, or of a later collective. */
DPARI_INTERNAL int dpari_gate_look(dpari_group *g, const dpar_work *k, dpari_watch *at,
                                   int32_t which, uint64_t target);
/* A leader that has passed, in whatever way, tells the others: first the other leaders, if it has
 * not, then its cluster; `result` (of `bytes`) goes along. Others do nothing. */
DPARI_INTERNAL void dpari_gate_tell(dpari_group *g, const dpar_work *k, const dpari_watch *at,
                                    int32_t which, uint64_t target, const void *result,
                                    int64_t bytes);

/* What another rank gave inline in collective k, which all have entered with this word: in the line
 * of its leader if it is there, in its entry otherwise. */
DPARI_INTERNAL const void *dpari_gate_given(const dpari_group *g, const dpar_work *k, int32_t rank,
                                            uint64_t target);
/* The result in `down`, for who has passed that way; NULL: there is none. */
DPARI_INTERNAL const void *dpari_gate_result(const dpari_group *g, const dpari_watch *at);

#endif
