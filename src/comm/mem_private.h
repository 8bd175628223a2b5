/* SPDX-License-Identifier: MIT-0 */
/* mem_private - private: operations of mem.h in the memory that a communicator's strategies work
 * in: its table's, or the host's. What goes wrong breaks the communicator, so that all hear of it.
 */
#ifndef DPARI_COMM_MEM_PRIVATE_H
#define DPARI_COMM_MEM_PRIVATE_H

#include "../base/arith.h"
#include "comm.h"
#include "mem.h"

/* Copies one box in the host's memory, as the `move` of a table does. Fails with DPAR_E_ARG,
 * without a message, if types or op are not allowed. */
DPARI_API dpar_status dpari_mem_move_box(const dpar_mem_box *box);
/* The `span` of the host's table. */
DPARI_API dpar_status dpari_mem_span(void *ctx, const dpar_mem_span *spans, int32_t n);

/* Those of c. */
DPARI_API dpar_status dpari_do_move(dpar_comm *c, const dpar_mem_box *boxes, int32_t n);
DPARI_API dpar_status dpari_do_wait(dpar_comm *c);
DPARI_API dpar_status dpari_do_span(dpar_comm *c, const dpar_mem_span *spans, int32_t n);
DPARI_API dpar_status dpari_do_reduce(dpar_comm *c, const dpar_mem_reduce *r);
DPARI_API dpar_status dpari_do_finite(dpar_comm *c, const dpar_mem_finite *f);
/* How an operation `what` of c's table ended: an error breaks c. */
DPARI_API dpar_status dpari_do_ended(dpar_comm *c, dpar_status st, const char *what);
/* `bytes` as they are, or zeros (from NULL). */
DPARI_API dpar_status dpari_do_copy(dpar_comm *c, void *to, const void *from, int64_t bytes);
/* Rows of `count` elements as they are, so many elements apart; op DPAR_SUM: added. */
DPARI_API dpar_status dpari_do_rows(dpar_comm *c, void *to, int64_t to_step, const void *from,
                                    int64_t from_step, int64_t count, int64_t rows, int32_t type,
                                    int32_t op);
/* to[i] becomes from[i], of other types too, or to[i] + from[i]. */
DPARI_API dpar_status dpari_do_convert(dpar_comm *c, void *to, int32_t to_type, const void *from,
                                       int32_t from_type, int64_t count, int add);

/* ---- of this header's own modules ---- */

/* The host's. */
DPARI_INTERNAL dpar_status dpari_mem_reduce(void *ctx, const dpar_mem_reduce *r);

#endif
