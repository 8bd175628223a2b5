/* SPDX-License-Identifier: MIT-0 */
/* memory_calls - private: the operations of mem.h in the memory of a communicator, in which its
 * strategies work. That is the memory of the table comm->mem, or the host's if comm->mem is NULL. A
 * failure breaks the communicator, so that all ranks fail. */
#ifndef DPARI_COMM_MEMORY_CALLS_H
#define DPARI_COMM_MEMORY_CALLS_H

#include "../base/arith.h"
#include "../host/mem.h"
#include "comm.h"

/* Run the operations of dpar_mem in the memory of comm. */
DPARI_API dpar_status dpari_do_move(dpar_comm *comm, const dpar_mem_box *boxes, int32_t n);
DPARI_API dpar_status dpari_do_wait(dpar_comm *comm);
DPARI_API dpar_status dpari_do_span(dpar_comm *comm, const dpar_mem_span *spans, int32_t n);
DPARI_API dpar_status dpari_do_reduce(dpar_comm *comm, const dpar_mem_reduce *reduce);
DPARI_API dpar_status dpari_do_finite(dpar_comm *comm, const dpar_mem_finite *f);
/* Breaks comm if the operation `what` of its table has returned an error, st. Returns st, or
 * DPAR_OK if it is no error. */
DPARI_API dpar_status dpari_do_ended(dpar_comm *comm, dpar_status st, const char *what);
/* Copies bytes, or writes zeros if `from` is NULL. */
DPARI_API dpar_status dpari_do_copy(dpar_comm *comm, void *to, const void *from, int64_t bytes);
/* Copies rows of `count` elements that begin to_step and from_step elements apart, or adds them if
 * op is DPAR_SUM. */
DPARI_API dpar_status dpari_do_rows(dpar_comm *comm, void *to, int64_t to_step, const void *from,
                                    int64_t from_step, int64_t count, int64_t rows, int32_t type,
                                    int32_t op);
/* Sets to[i] to from[i], or to to[i] + from[i] if `add` is set. The types may differ. */
DPARI_API dpar_status dpari_do_convert(dpar_comm *comm, void *to, int32_t to_type, const void *from,
                                       int32_t from_type, int64_t count, int add);

#endif
