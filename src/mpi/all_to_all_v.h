/* SPDX-License-Identifier: MIT-0 */
/* all_to_all_v - private: an all_to_all_v that sends the small pieces by nodes.
 *
 * A piece of up to world->dealt[1] bytes is small. A large piece is sent from rank to rank. The
 * small pieces of all ranks of a node for a rank b of another node are sent in one message. One
 * rank of the node carries it: the rank whose number in its node is b's number in b's node, modulo
 * the number of ranks. The message begins with the counts of all the node's pieces for b, including
 * large ones. It is not sent if all of them are large. So both ends of a message know without
 * further communication whether there is one and how long it is: b from the counts that it expects,
 * and the carrier from the counts that the ranks of its node passed to it. The ranks need not agree
 * on a method.
 *
 * Leg 0: each rank passes a slot to each other rank of the node. A slot holds a flag that is set if
 * any slot of the sender is too small, the counts of the pieces that the other rank carries, and
 * the small ones of these pieces. Leg 1 passes the small pieces of ranks whose slots were too
 * small. Leg 2 sends the messages, and passes the pieces that stay in the node.
 *
 * If the two ends have different counts, b notices because it compares its counts with those at the
 * beginning of the message. If all pieces are large by the counts of only one end, there is a
 * message that b does not expect, or it waits for one that is not sent; both are found in a long
 * wait (dpari_mpi_deal_compare). */
#ifndef DPARI_MPI_ALL_TO_ALL_V_H
#define DPARI_MPI_ALL_TO_ALL_V_H

#include "mpi_private.h"

/* Post the next leg, and process the data that arrived. */
DPARI_INTERNAL int dpari_mpi_deals_step(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_deals_land(dpari_mpi_task *task);
/* Called in a long wait, because with different counts on another node the expected messages may
 * never arrive. Compares the messages that have arrived, and searches for messages that are not
 * expected. */
DPARI_INTERNAL void dpari_mpi_deal_compare(dpari_mpi_task *task);

#endif
