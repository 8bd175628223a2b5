/* SPDX-License-Identifier: MIT-0 */
/* mem_run - private: operations of mem.h in the memory that a communicator's strategies work in:
 * its table's, or the host's. What goes wrong breaks the communicator, so that all hear of it. */
#ifndef DPARI_COMM_MEM_RUN_H
#define DPARI_COMM_MEM_RUN_H

#include "../base/arith.h"
#include "comm.h"
#include "mem.h"

/* The host's. */
DPARI_API dpar_status dpari_mem_span(void *ctx, const dpar_mem_span *spans, int32_t n);
DPARI_API dpar_status dpari_mem_reduce(void *ctx, const dpar_mem_reduce *r);
DPARI_API dpar_status dpari_mem_gather(void *ctx, const dpar_mem_gather *g);
DPARI_API dpar_status dpari_mem_scatter(void *ctx, const dpar_mem_scatter *s);
DPARI_API dpar_status dpari_mem_xent(void *ctx, const dpar_mem_xent *e);
DPARI_API dpar_status dpari_mem_moments(void *ctx, const dpar_mem_moments *m);
DPARI_API dpar_status dpari_mem_norm(void *ctx, const dpar_mem_norm *m);

/* Some elements of a row, `step` apart, as doubles. */
DPARI_API void dpari_moments_read(const void *x, int32_t type, int64_t at, int64_t step,
                                  int64_t count, double *to);
/* As memcpy, for short rows. */
DPARI_API void dpari_moments_copy(double *to, const double *from, int64_t count);
/* A sum in f64 in four chains. */
DPARI_API double dpari_moments_total(const double *x, int64_t count);

/* Those of c. */
DPARI_API dpar_status dpari_do_move(dpar_comm *c, const dpar_mem_box *boxes, int32_t n);
DPARI_API dpar_status dpari_do_wait(dpar_comm *c);
DPARI_API dpar_status dpari_do_span(dpar_comm *c, const dpar_mem_span *spans, int32_t n);
DPARI_API dpar_status dpari_do_reduce(dpar_comm *c, const dpar_mem_reduce *r);
DPARI_API dpar_status dpari_do_finite(dpar_comm *c, const dpar_mem_finite *f);
DPARI_API dpar_status dpari_do_squares(dpar_comm *c, const dpar_mem_squares *s);
DPARI_API dpar_status dpari_do_optimize(dpar_comm *c, const dpar_mem_optimize *o);
DPARI_API dpar_status dpari_do_gather(dpar_comm *c, const dpar_mem_gather *g);
DPARI_API dpar_status dpari_do_scatter(dpar_comm *c, const dpar_mem_scatter *s);
DPARI_API dpar_status dpari_do_combine(dpar_comm *c, const dpar_mem_combine *m);
DPARI_API dpar_status dpari_do_dot(dpar_comm *c, const dpar_mem_dot *d);
DPARI_API dpar_status dpari_do_xent(dpar_comm *c, const dpar_mem_xent *e);
DPARI_API dpar_status dpari_do_merge(dpar_comm *c, const dpar_mem_merge *m);
DPARI_API dpar_status dpari_do_moments(dpar_comm *c, const dpar_mem_moments *m);
DPARI_API dpar_status dpari_do_norm(dpar_comm *c, const dpar_mem_norm *m);
/* `bytes` as they are, or zeros (from NULL). */
DPARI_API dpar_status dpari_do_copy(dpar_comm *c, void *to, const void *from, int64_t bytes);
/* Rows of `count` elements as they are, so many elements apart; op DPAR_SUM: added. */
DPARI_API dpar_status dpari_do_rows(dpar_comm *c, void *to, int64_t to_step, const void *from,
                                    int64_t from_step, int64_t count, int64_t rows, int32_t type,
                                    int32_t op);
/* to[i] becomes from[i], of other types too, or to[i] + from[i]. */
DPARI_API dpar_status dpari_do_convert(dpar_comm *c, void *to, int32_t to_type, const void *from,
                                       int32_t from_type, int64_t count, int add);

#endif
