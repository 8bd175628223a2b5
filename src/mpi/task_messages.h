/* SPDX-License-Identifier: MIT-0 */
/* task_messages - private: sends and receives the messages of a task, and compares their lengths.
 */
#ifndef DPARI_MPI_TASK_MESSAGES_H
#define DPARI_MPI_TASK_MESSAGES_H

#include "mpi_private.h"

/* Chooses the type and count with which n elements of b bytes are sent in one call in which the
 * ranks together move `total` elements. A derived type is freed by dpari_mpi_release_pieces. */
DPARI_INTERNAL int dpari_mpi_units(dpari_mpi_piece *p, int32_t b, int64_t n, int64_t total,
                                   MPI_Datatype *type, dpari_mpi_count *count);
/* Post one message on `comm`. They and the functions below return a code of MPI. */
DPARI_INTERNAL int dpari_mpi_send_one(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t to,
                                      const void *from, int64_t n);
DPARI_INTERNAL int dpari_mpi_recv_one(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t from,
                                      void *to, int64_t n);
/* Returns the elements of the first part if a message of n elements is sent in two parts, otherwise
 * 0. Both ends compute the same number. The first part is a little longer than the longest message
 * in one part, so that a receiver with another count always gets a length that it did not
 * expect. */
DPARI_INTERNAL int64_t dpari_mpi_first_part(const dpari_mpi_task *task, int64_t n);
/* Post one message, in two parts if that is faster. */
DPARI_INTERNAL int dpari_mpi_send_piece(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t to,
                                        const void *from, int64_t n);
DPARI_INTERNAL int dpari_mpi_recv_piece(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t from,
                                        void *to, int64_t n);
/* Returns the tag of an operation's pieces. Correct programs would not need it, because both ends
 * post their messages in the same order. The tag makes sure that, after a mismatched call, a
 * message of another collective, or of one with another user's tag, is not received as a piece. */
DPARI_INTERNAL int dpari_mpi_piece_tag(const dpari_mpi_task *task);
/* Posts a receive of `gets` elements from the r-th rank that takes part, and a send of `gives`
 * elements to it. Posts nothing for 0 elements. */
DPARI_INTERNAL int dpari_mpi_trade(dpari_mpi_task *task, int32_t r, void *to, int64_t gets,
                                   const void *from, int64_t gives);
/* Sends n elements to each rank that takes part: the r-th rank gets those from element r * step of
 * `from` on. Receives n elements from it into row place[r] of `to`, or row r if place is NULL. */
DPARI_INTERNAL int dpari_mpi_trade_each(dpari_mpi_task *task, void *to, const int32_t *place,
                                        const void *from, int64_t step, int64_t n);

/* Breaks the communicator because a message does not have the expected length. got: its elements,
 * negative if there were more than expected. */
DPARI_INTERNAL void dpari_mpi_mismatch(dpari_mpi_task *task, int32_t peer, int64_t got,
                                       int64_t expected);
/* True if all requests are done. Compares the lengths of messages; an error breaks the
 * communicator. */
DPARI_INTERNAL int32_t dpari_mpi_requests_done(dpari_mpi_task *task);
/* Breaks the communicator if the message of request i does not have the expected length. */
DPARI_INTERNAL void dpari_mpi_measure(dpari_mpi_task *task, int32_t i);
/* Breaks the communicator because request i failed. */
DPARI_INTERNAL void dpari_mpi_request_failed(dpari_mpi_task *task, int32_t i, int code);

#endif
