/* SPDX-License-Identifier: MIT-0 */
/* error_text - private: writes calls, ranks and the errors of MPI into messages. */
#ifndef DPARI_MPI_ERROR_TEXT_H
#define DPARI_MPI_ERROR_TEXT_H

#include "mpi_private.h"

/* Returns the record of a task's call. */
DPARI_INTERNAL dpari_record dpari_mpi_record_of(const dpari_mpi_task *task);

/* Write the call of a task, and of a note. */
DPARI_INTERNAL void dpari_mpi_describe_task(dpar_text *text, const dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_describe_note(dpar_text *text, const dpari_record *r);
/* Writes two calls that differ: "rank 0 on n1 calls barrier #1, rank 2 on n2 calls split #1". */
DPARI_INTERNAL void dpari_mpi_put_calls(dpar_text *text, const dpari_mpi_ctx *context,
                                        int32_t first, const dpari_record *a, int32_t second,
                                        const dpari_record *b);

/* Returns the name of a rank's node, or NULL if all ranks are on one node. */
DPARI_INTERNAL const char *dpari_mpi_host(const dpari_mpi_ctx *context, int32_t rank);
/* Writes " on n2", or nothing if host is NULL. */
DPARI_INTERNAL void dpari_mpi_put_host(dpar_text *text, const char *host);
/* Writes "rank 3 on n2". */
DPARI_INTERNAL void dpari_mpi_put_rank(dpar_text *text, const dpari_mpi_ctx *context, int32_t rank);

/* Sets the message to "`doing` failed: MPI says: " and MPI's text for the error code. Returns
 * DPAR_E_SYSTEM. */
DPARI_INTERNAL dpar_status dpari_mpi_say(dpar_why *why, const char *doing, int code);
/* Return MPI's class of an error code, and dpar's status for it. */
DPARI_INTERNAL int dpari_mpi_class(int code);
DPARI_INTERNAL dpar_status dpari_mpi_status_of(int code);

#endif
