/* SPDX-License-Identifier: MIT-0 */
/* Lets a rank read the registered arrays of all other ranks in place. peer_arrays.h has the calls
 * in order.
 *
 * Ranks exchange references to their arrays in an all-gather, and then read what they need. A final
 * barrier ensures that no rank changes its array while others read it. If any array is not in
 * registered memory, all ranks find that out in the all-gather and use an all-to-all instead.
 * Called by train/expert_rows.c and train/ulysses.c. */
#include "peer_arrays.h"

#include "comm.h"
#include "engine.h"
#include "group.h"
#include "heap.h"
#include "shm.h"
#include "world.h"

/* Copies of at least this many bytes use streaming stores, which bypass the cache. */
#define DPARI_PEERS_STREAM (INT64_C(4) << 20)

/* Gathers the references of all ranks. Does not call dpar_all_gather, because comm->sent must not
 * count this. */
static dpar_status dpari_peers_tell(dpar_comm *comm, int32_t tag, const dpari_peer *mine,
                                    dpari_peer *peer)
{
    const int64_t count = (int64_t)(sizeof *mine / 8);
    dpar_call call = dpari_call(DPAR_CALL_ALL_GATHER, mine, peer, count, DPAR_U64);
    call.tag = tag;
    return comm->engine.run(comm, &call);
}

DPARI_API DPARI_COLD dpar_status dpari_peers_open(dpari_peers *peers, dpar_comm *comm, int32_t tag,
                                                  const dpari_peers_array *array, int32_t n,
                                                  dpari_peer *peer)
{
    const dpari_world *world = comm->mem == NULL ? dpari_world_of(comm) : NULL;
    dpari_peer mine;
    dpar_status st = comm->status;
    int32_t i;
    peers->comm = comm;
    peers->peer = peer;
    peers->direct = 0;
    if (st != DPAR_OK || world == NULL || (world->head->plain & DPAR_WORLD_NO_DIRECT)) {
        return st;
    }
    dpari_zero(&mine, sizeof mine);
    mine.reach = comm->mem == NULL;
    for (i = 0; i < n; i++) {
        if (array[i].bytes > 0) {
            mine.ref[i] = dpari_ref(world, array[i].at, array[i].bytes);
            mine.reach &= mine.ref[i] != 0;
        }
    }
    st = dpari_peers_tell(comm, tag, &mine, peer);
    peers->direct = st == DPAR_OK;
    for (i = 0; i < comm->size && peers->direct; i++) {
        peers->direct = peer[i].reach != 0;
    }
    for (i = 0; i < comm->size * DPARI_PEERS_MOST && peers->direct; i++) {
        const uint64_t ref = peer[i / DPARI_PEERS_MOST].ref[i % DPARI_PEERS_MOST];
        if (ref != 0 && dpari_at(world, ref) == NULL) {
            return dpari_group_unmapped(dpari_group_of(comm), NULL, ref);
        }
    }
    return st;
}

DPARI_API const void *dpari_peers_at(const dpari_peers *peers, int32_t rank, int32_t i)
{
    const uint64_t ref = peers->peer[rank].ref[i];
    return ref != 0 ? dpari_at(dpari_world_of(peers->comm), ref) : NULL;
}

DPARI_API DPARI_COLD dpar_status dpari_peers_close(const dpari_peers *peers, int64_t sent)
{
    const dpar_status st = dpar_barrier(peers->comm, NULL);
    if (st == DPAR_OK) {
        peers->comm->sent[DPAR_CALL_ALL_TO_ALL] += sent;
    }
    return st;
}

DPARI_API int32_t dpari_peers_stream(const dpari_peers *peers, int64_t bytes)
{
    return bytes >= DPARI_PEERS_STREAM &&
           !(dpari_world_of(peers->comm)->head->plain & DPAR_WORLD_NO_STREAMING_STORES);
}
