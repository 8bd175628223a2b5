/* SPDX-License-Identifier: MIT-0 */
/* tasks - private: operations in progress: their memory, their requests, and how they end. */
#ifndef DPARI_MPI_TASKS_H
#define DPARI_MPI_TASKS_H

#include "mpi_private.h"

/* ---- memory and requests ---- */

/* Returns a new task or a spare one, or NULL if there is no memory. */
DPARI_INTERNAL dpari_mpi_task *dpari_mpi_take(dpari_mpi_world *world);
/* Frees the memory that a task allocated, and keeps the task itself for the next operation. */
DPARI_INTERNAL void dpari_mpi_give(dpari_mpi_task *task);
/* Returns temporary memory for a task: that of the communicator, if no other task uses it,
 * otherwise newly allocated memory. NULL if there is none. */
DPARI_INTERNAL void *dpari_mpi_scratch(dpari_mpi_task *task, int64_t bytes);
/* Returns `in`, or a copy of it in the task's temporary memory if it is the same as `out`. NULL if
 * there is no memory. */
DPARI_INTERNAL const void *dpari_mpi_apart(dpari_mpi_task *task, const void *in, const void *out,
                                           int64_t bytes);
/* Provides space for n messages, each of which may be sent in two parts. Returns 0 if there is no
 * memory. */
DPARI_INTERNAL int32_t dpari_mpi_reserve(dpari_mpi_task *task, int32_t n);
/* Appends a request to those of the task. dpari_mpi_last_request returns its address. */
DPARI_INTERNAL dpari_mpi_piece *dpari_mpi_slot(dpari_mpi_task *task, int32_t peer);
DPARI_INTERNAL MPI_Request *dpari_mpi_last_request(dpari_mpi_task *task);
/* Calls the blocking or the posting form of an MPI function, as task->block selects. */
#define DPARI_MPI_DO(t, blocking, posting, ...)                                                    \
    ((t)->block                                                                                    \
         ? DPARI_MPI_C(blocking)(__VA_ARGS__)                                                      \
         : DPARI_MPI_C(posting)(__VA_ARGS__, (dpari_mpi_slot(t, -1), dpari_mpi_last_request(t))))
/* Forgets the requests, which are done, and frees their derived types. */
DPARI_INTERNAL void dpari_mpi_release_pieces(dpari_mpi_task *task);

/* ---- beginning and end ---- */

/* Appends the task to the list of those in progress. */
DPARI_INTERNAL void dpari_mpi_link(dpari_mpi_task *task);
/* Returns the record of an operation with this number, from 1 on. */
DPARI_INTERNAL dpari_record *dpari_mpi_record_at(dpari_mpi_ctx *context, int64_t number);
/* Records the task among the communicator's last operations. */
DPARI_INTERNAL void dpari_mpi_record_task(dpari_mpi_task *task);
/* Notes that all steps of the task are posted, so that the next collective may begin. */
DPARI_INTERNAL void dpari_mpi_fed(dpari_mpi_task *task);
/* Ends a task. If MPI still works on one of its requests, the task's memory is never freed. */
DPARI_INTERNAL void dpari_mpi_end(dpari_mpi_task *task, dpar_status status);

/* ---- its data ---- */

/* Sets which ranks take part in the next step (peer, ranks, me), and which data they reduce or
 * move. */
DPARI_INTERNAL void dpari_mpi_among(dpari_mpi_task *task, const int32_t *peer, int32_t ranks,
                                    int32_t me, const void *in, void *out, int64_t elements);
/* True if this rank gets the result: all ranks, or the root of a reduce. */
DPARI_INTERNAL int32_t dpari_mpi_has_result(const dpari_mpi_task *task);
/* Advances to the next block, of at most `most` elements. */
DPARI_INTERNAL void dpari_mpi_advance(dpari_mpi_task *task, int64_t count, int64_t most);

#endif
