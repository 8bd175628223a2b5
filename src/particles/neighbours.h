/* SPDX-License-Identifier: MIT-0 */
/* neighbours - sends bytes to neighbour ranks, of which only the sender knows how many. The counts
 * and the data travel in one call, to the neighbours alone.
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
 * There is no capacity to choose, because what arrives stays in memory of the library, where it can
 * be read until the next exchange. Neighbours that share memory read the packed bytes in place, so
 * that nothing is copied if the sender packs into dpar_neighbours_buffer. To the others each
 * exchange sends one message. Its length is agreed without a message of its own: it is an eighth
 * longer than what was sent to this neighbour in the exchange before. Only what exceeds that is
 * sent in a second message. */
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
    const int32_t *rank;     /* [count] the neighbours, in the order of the description */
    const void *const *in;   /* [count] what each neighbour has sent, at a multiple of 64 */
    const int64_t *in_bytes; /* [count] how many bytes that is */
} dpar_neighbours;

/* Prepares exchanges with some ranks.
 *
 * Collective. Fails on all ranks with DPAR_E_ARG if a rank is not one of comm, is listed twice, or
 * lists another rank that does not list it. Fails with DPAR_E_MISMATCH if tags differ, and with
 * DPAR_E_MEMORY. Costs an all-to-all of 4 bytes for each rank of comm. */
DPAR_API dpar_status dpar_neighbours_make(dpar_comm *comm, const dpar_neighbours_desc *desc,
                                          dpar_neighbours **neighbours, dpar_why *why);
/* Returns memory for at least `bytes` bytes to neighbour k, at a multiple of 64, in which the next
 * exchange can send them without copying them. Each call may move the memory and lose its contents,
 * so call it before you pack. The memory alternates from exchange to exchange. Returns NULL, with a
 * message in comm->why, if there is no such neighbour or no memory. Local. Costs O(1), and O(bytes)
 * if the memory must grow. */
DPAR_API void *dpar_neighbours_buffer(dpar_neighbours *neighbours, int32_t k, int64_t bytes);
/* Sends out_bytes[k] bytes to each neighbour and waits for what they send.
 *
 * out:       [count] where the bytes are. If out or out[k] is NULL, they are in the memory of
 *            dpar_neighbours_buffer.
 * out_bytes: [count] each from 0 to 2^40.
 *
 * What arrives is at in[k] until the next call of dpar_neighbours_exchange. Do not write there.
 *
 * Collective. Fails with DPAR_E_ARG on a rank whose arguments are wrong; the others then wait for
 * it until the deadline. Otherwise fails as the operations of comm.h do, and with DPAR_E_MEMORY on
 * all ranks. Costs one copy of the bytes that are not packed in place, and one or two messages to
 * each neighbour on another node. */
DPAR_API dpar_status dpar_neighbours_exchange(dpar_neighbours *neighbours, const void *const *out,
                                              const int64_t *out_bytes);
/* Destroys a neighbour exchange and its memory. NULL does nothing. Collective: a barrier. Fails
 * with the status of a broken communicator, and then releases everything too. */
DPAR_API dpar_status dpar_neighbours_free(dpar_neighbours *neighbours);

#endif
