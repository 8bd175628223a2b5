/* SPDX-License-Identifier: MIT-0 */
/* agree - private: what ranks compare before they plan something together, and the caller's memory
 * in pieces. */
#ifndef DPAR_AGREE_H
#define DPAR_AGREE_H

#include "../base/arith.h"
#include "../index/layout.h"
#include "comm.h"

/* A hash h, of 0 and more numbers, with one more. */
DPARI_API uint64_t dpari_hash(uint64_t h, int64_t v);
DPARI_API uint64_t dpari_hash_layout(uint64_t h, const dpar_layout *l);

/* All ranks hear how the worst of them fares: a rank that fails keeps its own status and *why, the
 * others get the worst status and "rank 2: " before its sentence (its status in words, where its
 * why is NULL). When all are well and their hashes differ: E_MISMATCH and `differ`, a sentence with
 * two # for the numbers of two ranks that differ (NULL with hash 0). COLLECTIVE: one all-reduce of
 * 24 bytes; a broadcast when one fails. */
DPARI_API dpar_status dpari_agree(dpar_comm *c, dpar_status st, uint64_t hash, const char *differ,
                                  dpar_why *why);
/* The same without the sentence: ranks that differ are who[0] < who[1]; both are -1 when all are
 * well, one fails, or this rank cannot know. */
DPARI_API dpar_status dpari_agree_pair(dpar_comm *c, dpar_status st, uint64_t hash, int32_t *who,
                                       dpar_why *why);

enum { DPARI_ROOM_ALIGN = 64 };
DPARI_FN int64_t dpari_room_up(int64_t bytes)
{
    return dpari_ceil_div(bytes, DPARI_ROOM_ALIGN) * DPARI_ROOM_ALIGN;
}

/* Memory handed out in pieces that begin at multiples of that. at NULL: counted alone. */
typedef struct dpari_room {
    unsigned char *at;
    int64_t used;
} dpari_room;
DPARI_API void *dpari_room_take(dpari_room *r, int64_t n, size_t bytes);

/* Memory for a plan, `need` bytes of it at a multiple of that; E_ROOM names dpar_MODULE_bytes. */
DPARI_API dpar_status dpari_room_check(const void *memory, int64_t bytes, int64_t need,
                                       const char *module, dpar_why *why);

#endif
