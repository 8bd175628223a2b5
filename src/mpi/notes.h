/* SPDX-License-Identifier: MIT-0 */
/* notes - private: how a communicator breaks, and the notes by which ranks inform each other of
 * errors and of long waits. */
#ifndef DPARI_MPI_NOTES_H
#define DPARI_MPI_NOTES_H

#include "mpi_private.h"

/* True if all notes of this rank have been sent, so that MPI no longer uses their memory. */
DPARI_INTERNAL int32_t dpari_mpi_letters_gone(const dpari_mpi_ctx *context);
/* Breaks the communicator with this status and message, unless it is broken already: the first
 * error is kept. The node's ranks are always informed, through their memory; with `tell` all other
 * ranks are informed, too. */
DPARI_INTERNAL DPARI_COLD dpar_status dpari_mpi_break(dpari_mpi_ctx *context, dpar_status status,
                                                      const char *text, int tell);
/* Breaks the communicator if an MPI call failed, with its code. The message names `task`, or, if it
 * is NULL, what `doing` describes. Returns DPAR_OK for MPI_SUCCESS. */
DPARI_INTERNAL dpar_status dpari_mpi_failed(dpari_mpi_ctx *context, const dpari_mpi_task *task,
                                            const char *doing, int code);
/* Reads the notes that have arrived. */
DPARI_INTERNAL void dpari_mpi_listen(dpari_mpi_ctx *context);
/* Called repeatedly in a long wait: reads notes, and after a quarter of the deadline sends them now
 * and then. Returns 1 if it sent some. A note may break the communicator. now: the time by
 * MPI_Wtime. */
DPARI_INTERNAL int32_t dpari_mpi_trade_notes(dpari_mpi_task *task, double now);
/* Breaks the communicator if the deadline of the task has passed. */
DPARI_INTERNAL void dpari_mpi_check_deadline(dpari_mpi_task *task, double now);
/* Waits a moment (0.05 s) for a note that the communicator is broken, because the note contains the
 * reason. It may arrive a little later than the failure in the node's memory. */
DPARI_INTERNAL void dpari_mpi_hear_why(dpari_mpi_ctx *context);
/* Reads all notes that were sent to this rank, because MPICH 5 ends the job if a communicator is
 * freed that still has messages. All ranks are closing and none waits, so that no new notes are
 * sent. */
DPARI_INTERNAL dpar_status dpari_mpi_last_notes(dpari_mpi_ctx *context);

#endif
