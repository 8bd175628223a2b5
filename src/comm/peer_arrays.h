/* SPDX-License-Identifier: MIT-0 */
/* peer_arrays - private: lets ranks read each other's arrays in place. In the shared-memory engine
 * a rank can read the registered memory of the others in any order. That takes one pass, whereas an
 * all-to-all needs the pieces packed before and sorted afterwards.
 *
 *     st = dpari_peers_open(&p, comm, tag, arrays, n, peer);
 *     if (st == DPAR_OK && p.direct) {
 *         ... read from dpari_peers_at(&p, rank, i) what this rank needs ...
 *         st = dpari_peers_close(&p, bytes);
 *     } else if (st == DPAR_OK) {
 *         ... the all-to-all ...
 *     } */
#ifndef DPARI_COMM_PEER_ARRAYS_H
#define DPARI_COMM_PEER_ARRAYS_H

#include "../base/arith.h"
#include "comm.h"

enum { DPARI_PEERS_MOST = 3 }; /* arrays of one rank */

/* An array of this rank that others may read; they must not read it if bytes is 0. */
typedef struct dpari_peers_array {
    const void *at;
    int64_t bytes;
} dpari_peers_array;

/* What each rank publishes about its arrays. */
typedef struct dpari_peer {
    uint64_t ref[DPARI_PEERS_MOST];
    uint64_t reach; /* 1 if all of its arrays can be reached */
} dpari_peer;

typedef struct dpari_peers {
    dpar_comm *comm;
    const dpari_peer *peer; /* [size] */
    int32_t direct;         /* 1 if every array of every rank can be reached */
} dpari_peers;

/* Exchanges references to the arrays of all ranks, which must not change until dpari_peers_close.
 *
 * peer: [size] memory of the caller.
 * tag:  0 .. 2^31 - 1, identifies what is exchanged; ranks with different tags get DPAR_E_MISMATCH.
 *
 * Collective: an all-gather of 32 bytes for each rank, which comm->sent does not count. Over
 * another engine, or if a rank works in the memory of a device, peers->direct is 0; another engine
 * exchanges nothing. Errors as in comm.h. */
DPARI_API dpar_status dpari_peers_open(dpari_peers *peers, dpar_comm *comm, int32_t tag,
                                       const dpari_peers_array *array, int32_t n, dpari_peer *peer);
/* Returns this rank's address of array i of a rank, or NULL if that array has no bytes. */
DPARI_API const void *dpari_peers_at(const dpari_peers *peers, int32_t rank, int32_t i);
/* Waits until all ranks have finished reading. sent: the number of bytes that other ranks have read
 * from this one, which comm->sent counts as an all-to-all. Collective: a barrier. */
DPARI_API dpar_status dpari_peers_close(const dpari_peers *peers, int64_t sent);
/* True if an output of this many bytes should be written with streaming stores, which bypass the
 * cache. */
DPARI_API int32_t dpari_peers_stream(const dpari_peers *peers, int64_t bytes);

#endif
