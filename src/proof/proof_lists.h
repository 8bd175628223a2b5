/* SPDX-License-Identifier: MIT-0 */
/* proof_lists - private: compares the transfer lists of all ranks, and adds up what they send.
 *
 * A unit is what has a list: a rank, or a block if ranks own several blocks. Units are visited in
 * the order of ranks. For each unit the receives are walked and compared with the sends of each
 * peer. The sends of a unit are needed once per peer, so they are kept in a log: a ring of memory,
 * in which the newest lists overwrite the oldest. If a list is needed again after that, it is
 * walked again, so that the size of the log changes the time of a proof but not its result. */
#ifndef DPARI_PROOF_PROOF_LISTS_H
#define DPARI_PROOF_PROOF_LISTS_H

#include "../base/arith.h"
#include "proof.h"

/* The transfers of a unit in one direction. */
typedef struct dpari_prove_list {
    int32_t unit;
    int64_t count;
    const int64_t *head;   /* the words of dpari_prove_source.describe */
    const int64_t *key;    /* [count] peer << 32 | number in the list, in ascending order */
    const int64_t *record; /* [count] records in the order of the list */
} dpari_prove_list;

/* Makes the lists of units. The functions get `of` as their first argument. */
typedef struct dpari_prove_source {
    void *of;
    int32_t units;
    int32_t dims;         /* most dims of a transfer */
    int32_t head;         /* number of words that describe a unit */
    const int32_t *owner; /* [units] the rank of each unit, or -1; NULL if units are ranks */
    int32_t ranks;
    int32_t owners; /* 1 if `check` and `complete` prove where each point comes from */
    /* Begins a list. */
    dpar_status (*first)(void *of, int32_t unit, int32_t direction, dpar_why *why);
    /* Advances to the next transfer. Returns DPAR_MORE, or DPAR_OK at the end of the list. */
    dpar_status (*next)(void *of, dpar_transfer *transfer, dpar_why *why);
    /* Writes `head` words that describe a unit, which lists keep. May be NULL. */
    void (*describe)(void *of, int32_t unit, int64_t *head);
    /* Checks a receive of `mine` from the unit of `theirs`. May be NULL. */
    dpar_status (*check)(void *of, const dpari_prove_list *mine, const dpari_prove_list *theirs,
                         const int64_t *record, dpar_why *why);
    /* Checks that nothing is missing. points: the sum of all receives of the unit. May be NULL. */
    dpar_status (*complete)(void *of, const dpari_prove_list *mine, int64_t points, dpar_why *why);
    /* True if two receives from these units may write the same element. NULL allows it unless both
     * copy. */
    int (*may_overlap)(void *of, const int32_t *peer, const int32_t *op);
} dpari_prove_source;

/* A record is a word with the peer and small fields, then for each dim the extent, the index in
 * this unit's array, and the index in the peer's array. */
enum { DPARI_PROVE_EXTENT, DPARI_PROVE_MINE, DPARI_PROVE_THEIRS };
DPARI_INTERNAL int64_t dpari_prove_word(const int64_t *record, int32_t field, int32_t d);
/* The small fields of a record. */
DPARI_INTERNAL uint32_t dpari_prove_flip(const int64_t *record);
DPARI_INTERNAL int32_t dpari_prove_turn(const int64_t *record);
DPARI_INTERNAL int32_t dpari_prove_op(const int64_t *record);
/* Returns the dim of the sender that arrives in the receiver's dim d. */
DPARI_INTERNAL int32_t dpari_prove_from(const int64_t *record, int32_t d);
/* Returns the number of elements of a record, or -1 above 2^63 - 1. */
DPARI_INTERNAL int64_t dpari_prove_volume(const dpari_prove_source *source, const int64_t *record);
/* Returns record number k of a list in the order of its keys, and sets *peer. */
DPARI_INTERNAL const int64_t *dpari_prove_record(const dpari_prove_source *source,
                                                 const dpari_prove_list *list, int64_t k,
                                                 int32_t *peer);
/* Appends "(1, 2, 3)". */
DPARI_INTERNAL void dpari_prove_put_point(dpar_text *out, int32_t dims, const int64_t *at);
/* Appends "rank 3", or "block 7 of rank 3". */
DPARI_INTERNAL void dpari_prove_put_unit(dpar_text *out, const dpari_prove_source *source,
                                         int32_t unit);
/* Begins the message of a refutation. */
DPARI_INTERNAL void dpari_prove_refute(dpar_text *out, dpar_why *why, const char *what);
/* Sorts keys in ascending order. */
DPARI_INTERNAL void dpari_prove_sort(int64_t *key, int64_t count);
/* Adds a number of a rank to a range. Returns 0 if the sum exceeds 2^63 - 1. */
DPARI_INTERNAL int dpari_prove_count(dpar_proof_range *range, int32_t rank, int64_t value);
/* Fails with DPAR_E_ROOM and the needed size. */
DPARI_INTERNAL dpar_status dpari_prove_no_room(dpar_why *why, int64_t has, int64_t needed);
/* Returns the result of desc->progress: DPAR_OK, or DPAR_MORE if it cancels. */
DPARI_INTERNAL dpar_status dpari_prove_advance(const dpar_proof_desc *desc, int64_t done,
                                               int64_t total);

/* A source whose lists come from the caller's function `next`. */
typedef struct dpari_prove_caller {
    int (*next)(void *lists, int32_t rank, int32_t direction, int64_t n, dpar_transfer *transfer);
    void *lists;
    int64_t number;
    int32_t unit, direction;
} dpari_prove_caller;
DPARI_INTERNAL dpar_status dpari_prove_caller_first(void *of, int32_t unit, int32_t direction,
                                                    dpar_why *why);
DPARI_INTERNAL dpar_status dpari_prove_caller_next(void *of, dpar_transfer *transfer,
                                                   dpar_why *why);

/* Proves the lists of all units. */
DPARI_INTERNAL dpar_status dpari_prove_run(const dpari_prove_source *source,
                                           const dpar_proof_desc *desc, dpar_proof_report *report,
                                           dpar_why *why);

#endif
