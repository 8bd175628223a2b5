/* SPDX-License-Identifier: MIT-0 */
/* engine - what engines and strategies share of a communicator beyond its operations. Private;
 * comm.c has it. */
#ifndef DPARI_COMM_ENGINE_H
#define DPARI_COMM_ENGINE_H

#include "../base/arith.h"
#include "comm.h"

/* The roots of the barrier that closes a communicator and of the all-gather that splits one: no
 * other operation fits them. */
enum { DPARI_CLOSE = -1, DPARI_SPLIT = -2 };

/* "all-reduce #12 of 100 f32", "send of 5 i8 to 2", "split #3": as the engines over MPI and NCCL
 * say it. */
DPARI_API void dpari_operation_text(dpar_text *t, int32_t kind, int64_t sequence, int32_t type,
                                    int64_t count, int32_t root);
/* An all-reduce (SUM, AVG) of F32 where it lies, rounded to `wire` (F16, BF16) as if it had
 * travelled as that: dpari_kern_reduce with DPARI_KERN_THROUGH, and counted as that. c must have a
 * world. COLLECTIVE. Errors as dpar_all_reduce. */
DPARI_API dpar_status dpari_all_reduce_through(dpar_comm *c, void *data, int64_t count,
                                               int32_t wire, int32_t op, dpar_work *work);

#endif
