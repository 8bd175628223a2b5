/* SPDX-License-Identifier: MIT-0 */
/* neighbours - exchanges messages with neighbour ranks if only the sender of each one knows its
 * length. One call sends lengths and data, and only neighbours take part.
 *
 *     desc.count = 2;
 *     desc.rank = left_and_right;
 *     dpar_neighbours_make(comm, &desc, &neighbours, &why);
 *     ...
 *     out[0] = for_left;                             any number of bytes, in memory of your own
 *     out_bytes[0] = ...;
 *     dpar_neighbours_exchange(neighbours, out, out_bytes);
 *     ... read neighbours->in_bytes[k] bytes at neighbours->in[k] ...
 *
 * There is no capacity to choose, because received bytes stay in memory of the library, where you
 * can read them until the next exchange. Neighbours that share memory read the packed bytes in
 * place, so that nothing is copied if the sender packs into dpar_neighbours_buffer. Each other
 * neighbour gets one message. Both ranks know how long it is, because its length depends only on
 * the number of bytes sent in the exchange before: it has space for an eighth and 448 bytes more. A
 * second message follows if that is not enough. */
#ifndef DPARI_PARTICLES_NEIGHBOURS_H
#define DPARI_PARTICLES_NEIGHBOURS_H

#include "../comm/comm.h"

/* Who the neighbours are. Zero it, then set the fields that you need. */
typedef struct dpar_neighbours_desc {
    int32_t count; /* number of neighbours, 0 to 4096; ranks may have different numbers */
    /* Different ranks of the communicator, in any order; they may include this rank. If a rank
     * lists another one, that one must list it too. */
    const int32_t *rank;
    int32_t tag; /* of the messages, as for dpar_send; equal on all ranks */
} dpar_neighbours_desc;

/* A neighbour exchange, made by dpar_neighbours_make. All fields are read-only. */
typedef struct dpar_neighbours {
    dpar_comm *comm;
    int32_t count;
    const int32_t *rank;   /* [count] the neighbours, in the order of the description */
    const void *const *in; /* [count] where the bytes from each neighbour are, at multiples of 64 */
    const int64_t *in_bytes; /* [count] how many each neighbour has sent */
} dpar_neighbours;

/* Prepares exchanges with some ranks.
 *
 * Collective. Fails on all ranks with DPAR_E_ARG if a listed rank is not in comm, is listed twice,
 * or does not list the rank that lists it, or if comm has a device's memory. Fails with
 * DPAR_E_MISMATCH if tags differ, and with DPAR_E_MEMORY. Costs an all-to-all of 4 bytes for each
 * rank of comm. */
DPAR_API dpar_status dpar_neighbours_make(dpar_comm *comm, const dpar_neighbours_desc *desc,
                                          dpar_neighbours **neighbours, dpar_why *why);
/* Returns memory in which you can pack at least `bytes` bytes for neighbour k, so that the next
 * exchange need not copy them. The address is a multiple of 64. Each call may move the memory and
 * lose its contents, so call this function before you pack. Two pieces of memory are used in turn,
 * so call it again for the next exchange. Returns NULL, with a message in comm->why, if there is no
 * such neighbour or no memory. Local. Costs O(1), and O(bytes) if the memory must grow. */
DPAR_API void *dpar_neighbours_buffer(dpar_neighbours *neighbours, int32_t k, int64_t bytes);
/* Sends out_bytes[k] bytes to each neighbour k, and waits for the bytes that it sends.
 *
 * out:       [count] where the bytes are. If out or out[k] is NULL, they are in the memory of
 *            dpar_neighbours_buffer.
 * out_bytes: [count] each from 0 to 2^40.
 *
 * The bytes from neighbour k stay at in[k] until the next call of dpar_neighbours_exchange. Do not
 * write there.
 *
 * Collective. If the arguments of a rank are wrong or it has no memory, the communicator breaks, so
 * that all ranks fail with DPAR_E_ARG or DPAR_E_MEMORY. Otherwise fails as the operations of comm.h
 * do. Costs one copy of the bytes that are not packed in place, and one or two messages to
 * each neighbour on another node. */
DPAR_API dpar_status dpar_neighbours_exchange(dpar_neighbours *neighbours, const void *const *out,
                                              const int64_t *out_bytes);
/* Destroys a neighbour exchange and its memory. NULL does nothing. Collective: a barrier. Fails
 * with the status of a broken communicator, and then releases everything too. */
DPAR_API dpar_status dpar_neighbours_free(dpar_neighbours *neighbours);

#endif
