/* SPDX-License-Identifier: MIT-0 */
/* peers - private: arrays of all ranks, read where they lie. In the shared-memory engine a rank may
 * take what it wants from the registered memory of the others, in the order in which it wants it:
 * one pass, where an all-to-all needs pieces that are packed before and sorted after it.
 *
 *     st = dpari_peers_open(&p, c, tag, arrays, n, peer);
 *     if (st == DPAR_OK && p.direct) {
 *         ... dpari_peers_at(&p, rank, i) + what this rank wants of array i of that rank ...
 *         st = dpari_peers_close(&p, bytes);
 *     } else if (st == DPAR_OK) {
 *         ... the all-to-all ...
 *     }
 */
#ifndef DPARI_COMM_PEERS_H
#define DPARI_COMM_PEERS_H

#include "../base/arith.h"
#include "comm.h"

enum { DPARI_PEERS_MOST = 3 };

/* An array of this rank that others read; bytes 0: they read nothing of it. */
typedef struct dpari_peers_array {
    const void *at;
    int64_t bytes;
} dpari_peers_array;

/* What a rank says of itself. */
typedef struct dpari_peer {
    uint64_t ref[DPARI_PEERS_MOST];
    uint64_t reach; /* all of its arrays can be reached */
} dpari_peer;

typedef struct dpari_peers {
    dpar_comm *comm;
    const dpari_peer *peer; /* [size] */
    int32_t direct;         /* every array can be reached: the same on all ranks */
} dpari_peers;

/* Ranks tell each other where their arrays lie, which stay as they are until close. peer: the
 * caller's memory of `size` of them. tag: 0 .. 2^31 - 1, of what is exchanged; different ones end
 * in E_MISMATCH. COLLECTIVE: an all-gather of 32 bytes, which counts as nothing sent; over another
 * engine nothing: direct is 0 then, as where a rank works in a device's memory. Errors as comm.h.
 */
DPARI_API dpar_status dpari_peers_open(dpari_peers *p, dpar_comm *c, int32_t tag,
                                       const dpari_peers_array *array, int32_t n, dpari_peer *peer);
/* Array i of a rank, to be read. */
DPARI_API const void *dpari_peers_at(const dpari_peers *p, int32_t rank, int32_t i);
/* All have read. sent: the bytes of this rank that others took; they count as an all-to-all's.
 * COLLECTIVE: a barrier. */
DPARI_API dpar_status dpari_peers_close(const dpari_peers *p, int64_t sent);
/* True if so many bytes are better written with streaming stores, past the cache. */
DPARI_API int32_t dpari_peers_stream(const dpari_peers *p, int64_t bytes);

#endif
