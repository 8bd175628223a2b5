/* SPDX-License-Identifier: MIT-0 */
/* halo_exchange - halos that move: any number of fields of one grid, in the caller's memory, over
 * any communicator. What goes where is the index wing's walk (halo.h): here it is planned once,
 * merged into one message a peer, and run as often as you like.
 *
 *     dpar_halo_exchange_bytes(c, fields, 2, NULL, &bytes, &why);
 *     dpar_halo_exchange_init(memory, bytes, c, fields, 2, NULL, &x, &why);
 *     for (each step) {
 *         dpar_halo_exchange_begin(x);
 *         ... compute dpar_halo_core ...
 *         dpar_halo_exchange_end(x);
 *         ... compute dpar_halo_rim 0, 1, ... ...
 *     }
 *
 * Promises. A halo cell that has an image (inside, around a periodic end, over a fold) gets what
 * its owner had at `begin`; cells beyond a physical end are not touched, owned cells neither,
 * except the row that a fold has twice. Between begin and end owned cells may be read, not written:
 * peers may read them where they lie. The same bits on every engine and in every order of arrival.
 * A rank's piece of itself (a periodic dim of one rank) is a copy. No memory is allocated after
 * init. */
#ifndef DPAR_HALO_EXCHANGE_H
#define DPAR_HALO_EXCHANGE_H

#include "../index/halo.h"
#include "comm.h"
#include "mem.h"

/* One array. Zero it and fill in what differs: halo, type and data are enough for a dense array in
 * C order of dpar_halo_box. */
typedef struct dpar_halo_field {
    const dpar_halo *halo; /* whose points these are, and how wide is exchanged; checked */
    int32_t type;          /* DPAR_F64, ... */
    int32_t vector;        /* 1: each component changes its sign over a fold or a pole; 2: there are
                              two, (u, v) along the last dim and the one before, turned where the
                              grid is (cubed sphere) */
    int32_t narrow;        /* 1: travels as type `wire` (F64 as F32; F32 as F16 or BF16), rounded to
                              nearest, also where no message is needed: the same bits everywhere */
    int32_t wire;
    int32_t components;            /* elements at each point; 0: 1 */
    int64_t component_stride;      /* elements between them; 0: 1 */
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours along each dim; all 0: dense, C
                                      order, components last; any order, padding, Fortran's too */
    int64_t origin[DPAR_MAX_DIMS]; /* with strides: index of the first own point in the array */
    void *data;  /* address of index 0, 0, ... of the array; NULL where the rank has no points */
    void *halos; /* compact form: the halo goes here, `data` holds own points alone. Slab after slab
                    (dpar_halo_slab), each dense in C order */
    const dpar_mem *mem; /* how to reach data and halos where the CPU cannot: on a device; as long
                            as the plan. NULL: host memory. May differ from rank to rank */
} dpar_halo_field;

/* How it travels. */
enum {
    DPAR_HALO_AUTO,     /* peers' memory where it can be reached, else messages */
    DPAR_HALO_MESSAGES, /* packed, one message a peer */
    DPAR_HALO_PACKED,   /* packed into memory that the peer reads */
    DPAR_HALO_DIRECT    /* long runs are read where they lie, short ones packed by their owner */
};

/* All zero: the defaults. The same on all ranks, but for node. */
typedef struct dpar_halo_options {
    int32_t way;       /* DPAR_HALO_x */
    int32_t ordered;   /* 1: dim after dim, edges and corners travel in two and three steps: fewer
                          messages, more waits. Not with folds, poles, cubes, masked owners,
                          windows, compact halos: E_ARG */
    int32_t shared;    /* 1: shared points alone, which several ranks hold: faces, edges, corners
                          between blocks (DPAR_AT_x_FACES; widths as DPAR_HALO_SYNC says: E_ARG),
                          the row that a fold has twice. Not ordered */
    int64_t run_bytes; /* DIRECT: runs of so many bytes are long; 0: 64 */
    int32_t tag;       /* of the messages */
    int32_t timers;    /* 1: keep the times of the report (two clock readings a phase) */
    dpar_comm *node;   /* the ranks of c that share memory with this one (dpar_mpi_node); NULL:
                          those of c, if its engine shares memory */
} dpar_halo_options;

typedef struct dpar_halo_exchange dpar_halo_exchange;

/* Bytes that init needs on this rank, of the caller's memory (aligned to 64). Local. O(pieces). */
DPAR_API dpar_status dpar_halo_exchange_bytes(const dpar_comm *c, const dpar_halo_field *fields,
                                              int32_t n, const dpar_halo_options *options,
                                              int64_t *bytes, dpar_why *why);
/* Plans the exchange of n fields. Fields and their halos stay where they are as long as the plan
 * lives. Staging memory comes from dpar_comm_alloc. COLLECTIVE over c: all ranks give the same
 * fields (their number, types, points, widths; E_MISMATCH else), each its own data. E_ARG,
 * E_RANGE, E_ROOM, E_MEMORY with a sentence, on all ranks. */
DPAR_API dpar_status dpar_halo_exchange_init(void *memory, int64_t bytes, dpar_comm *c,
                                             const dpar_halo_field *fields, int32_t n,
                                             const dpar_halo_options *options,
                                             dpar_halo_exchange **plan, dpar_why *why);
/* Another array of the same shape in place of field f's: for codes that swap old and new. Between
 * exchanges. Local, some stores. E_ARG also when peers read the old one where it lies and the new
 * one is not registered. */
DPAR_API dpar_status dpar_halo_exchange_bind(dpar_halo_exchange *x, int32_t f, void *data,
                                             void *halos);
/* Starts: what is to be packed is packed, messages are posted, a rank's pieces of itself copied.
 * begin: halos receive. begin_adjoint: the transpose; owners receive what halos collected, combined
 * with what they have by DPAR_SUM, DPAR_MAX or DPAR_MIN in the order of the pieces (that of the
 * walk, field by field; never of arrival), and the halos become 0. A rank may wait here for peers
 * that have not yet read what it packed two exchanges ago. COLLECTIVE, in the same order on all
 * ranks of c (E_MISMATCH for ranks that notice another mode); ranks wait for their peers alone.
 * E_PEER, E_TIMEOUT as comm.h. */
DPAR_API dpar_status dpar_halo_exchange_begin(dpar_halo_exchange *x);
DPAR_API dpar_status dpar_halo_exchange_begin_adjoint(dpar_halo_exchange *x, int32_t op);
/* Goes on as far as it can without waiting. OK: all has come (call end all the same), MORE. */
DPAR_API dpar_status dpar_halo_exchange_test(dpar_halo_exchange *x);
/* Returns when halos are filled and own cells may be written again. */
DPAR_API dpar_status dpar_halo_exchange_end(dpar_halo_exchange *x);
/* begin and end. */
DPAR_API dpar_status dpar_halo_exchange_run(dpar_halo_exchange *x);
/* Sums (DPAR_SUM, MAX, MIN) what all who hold a point have for it, and gives it to all of them:
 * begin_adjoint, end, begin, end. With a plan of shared points this is the assembly of finite
 * elements; count the holders by assembling an array of ones, divide by it for an average. Of two
 * holders the sum has the bits of the serial a + b; with more the order is that of the blocks, the
 * same on all engines, not for another number of ranks. COLLECTIVE; errors as begin. */
DPAR_API dpar_status dpar_halo_exchange_assemble(dpar_halo_exchange *x, int32_t op);
/* Gives the staging memory back. COLLECTIVE. NULL is fine. E_ARG while an exchange is under way;
 * after one that failed: its status. */
DPAR_API dpar_status dpar_halo_exchange_close(dpar_halo_exchange *x);

/* What a rank sends to one peer at each exchange. */
typedef struct dpar_halo_traffic {
    int32_t peer;
    int32_t way;    /* DPAR_HALO_MESSAGES, ... ; the rank itself: a copy */
    int32_t hops;   /* blocks between the two, at most, along any mesh axis: 1 a neighbour */
    int64_t pieces; /* boxes */
    int64_t bytes;  /* on the wire */
    int64_t direct; /* of them read where they lie */
    int64_t runs;   /* pieces of memory in one piece */
} dpar_halo_traffic;
/* The k-th peer's (also oneself); 0 past the last. */
DPAR_API int dpar_halo_exchange_traffic(const dpar_halo_exchange *x, int32_t k,
                                        dpar_halo_traffic *t);
/* A table of it with the phases' times, as text. */
DPAR_API void dpar_halo_exchange_report(const dpar_halo_exchange *x, dpar_text *out);

/* ---- looking for mistakes ---- */

/* Is what an exchange would bring there already, bit for bit? With a plan of shared points: are all
 * copies of a point equal to their owner's? With halos: is none stale? E_MISMATCH on all ranks with
 * the first that differs: field, point, both ranks, both values. Nothing changes (halos do while it
 * runs). COLLECTIVE; an exchange and a copy of the halos (dpar_comm_alloc). */
DPAR_API dpar_status dpar_halo_exchange_agree(dpar_halo_exchange *x, dpar_why *why);

/* All halo cells that an exchange fills become NaN (integers: 2^n - 1). Local. */
DPAR_API void dpar_halo_exchange_poison(dpar_halo_exchange *x);
/* Is one left that exchanges fill? E_ARG with field, cell and rank; of a field that had no NaN
 * itself. Local. */
DPAR_API dpar_status dpar_halo_exchange_unpoisoned(const dpar_halo_exchange *x, dpar_why *why);
/* Compares every halo cell with its owner's cell, over another way: each field's own points are
 * gathered on rank 0 by plain messages, put together as the serial code would hold them, and the
 * halos of all ranks looked up there, cell by cell (indices by the rules of halo.h, no transfer
 * lists). E_MISMATCH on all ranks with the first cell that differs. COLLECTIVE; slow, takes memory
 * for the whole grid on rank 0 (dpar_comm_alloc).
 */
DPAR_API dpar_status dpar_halo_exchange_compare(dpar_halo_exchange *x, dpar_why *why);

/* ---- narrower widths ---- */

/* The same array with halos less wide, for a plan of its own: a code that needs 3 points once a
 * step and 1 in its substeps has two plans over one array.
 *     dpar_halo near = wide;                           (field.halo is &wide)
 *     near.low[0] = near.high[0] = near.low[1] = near.high[1] = 1;
 *     dpar_halo_field_narrower(&field, &near, c->rank, &field_1, &why);
 *     dpar_halo_exchange_init(memory_3, bytes_3, c, &field, 1, NULL, &x3, &why);
 *     dpar_halo_exchange_init(memory_1, bytes_1, c, &field_1, 1, NULL, &x1, &why);
 * Fills in origin and strides of *narrower, the rest is the field's; bind both when arrays swap.
 * Grid, mesh, owners and points are those of the wider one (E_ARG), its box lies inside (E_RANGE);
 * not for compact halos, whose buffer has one width (E_ARG). rank: of the communicator. Local. */
DPAR_API dpar_status dpar_halo_field_narrower(const dpar_halo_field *field, const dpar_halo *halo,
                                              int32_t rank, dpar_halo_field *narrower,
                                              dpar_why *why);

/* ---- choosing ---- */

/* What was fastest, to keep beside the code's own configuration. */
typedef struct dpar_halo_choice {
    int32_t way, ordered;
    int64_t run_bytes;
    double seconds; /* an exchange took, the slowest rank's median */
} dpar_halo_choice;
/* Runs forward exchanges of these fields in every way that is possible (about 20 ms each) and
 * writes the fastest, the same on all ranks. COLLECTIVE. memory: as for the largest plan
 * (dpar_halo_exchange_bytes). The fields' halos are filled afterwards. */
DPAR_API dpar_status dpar_halo_exchange_tune(void *memory, int64_t bytes, dpar_comm *c,
                                             const dpar_halo_field *fields, int32_t n,
                                             const dpar_halo_options *options,
                                             dpar_halo_choice *choice, dpar_why *why);

#endif
