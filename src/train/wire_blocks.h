/* SPDX-License-Identifier: MIT-0 */
/* wire_blocks - private: sums arrays over all ranks and sends them as blocks of 8-bit codes. ddp.c
 * uses it if desc.wire_type is DPAR_I8 or DPAR_F8.
 *
 * An array is cut into one piece per rank, and each piece into blocks of 256 elements with an F32
 * scale (dpar_mem_quantize). Three steps, which all ranks take for the same arrays in the same
 * order, replace the all-reduce:
 *
 *     dpari_wire_begin   quantizes the array and posts an all-to-all of the pieces
 *     dpari_wire_reduce  adds the pieces of all ranks in F32, in rank order, quantizes the result,
 *                        and posts an all-gather
 *     dpari_wire_end     converts the codes of all pieces
 *
 * All ranks convert the same codes, so they get the same bits. */
#ifndef DPARI_TRAIN_WIRE_BLOCKS_H
#define DPARI_TRAIN_WIRE_BLOCKS_H

#include "../base/arith.h"
#include "../comm/comm.h"

/* A block on the wire: codes and their scale. */
enum { DPARI_WIRE_BLOCK = 256, DPARI_WIRE_RECORD = DPARI_WIRE_BLOCK + 4 };

typedef struct dpari_wire_blocks {
    dpar_comm *comm;
    unsigned char *sent,
        *received;     /* [records][DPARI_WIRE_RECORD] of this rank and of the others */
    float *sum;        /* [the largest piece] */
    int32_t type;      /* of the arrays */
    int32_t code_type; /* DPAR_I8 or DPAR_F8 */
} dpari_wire_blocks;

/* Returns the number of blocks of a piece of an array. */
DPARI_INTERNAL int64_t dpari_wire_piece(const dpar_comm *comm, int64_t count);
/* Returns the position of the first block of the array that has number k in memory and begins
 * `first` elements after array 0. The blocks of the arrays then do not overlap. With the number of
 * arrays and the sum of their elements, returns the number of blocks that all arrays need. */
DPARI_INTERNAL int64_t dpari_wire_position(const dpar_comm *comm, int64_t first, int32_t k);
/* Allocates memory for `records` blocks and for the sum of a piece of `piece` blocks, in one
 * allocation of the communicator. wire->sent is its address, or NULL. Sets the codes to 0, so that
 * the padding at the end of an array is defined. */
DPARI_INTERNAL dpar_status dpari_wire_make(dpari_wire_blocks *wire, int64_t records, int64_t piece);

/* The three steps. position: what dpari_wire_position returned for this array. */
DPARI_INTERNAL dpar_status dpari_wire_begin(const dpari_wire_blocks *wire, int64_t position,
                                            void *data, int64_t count, dpar_work *work);
/* factor: the sums are multiplied by it. */
DPARI_INTERNAL dpar_status dpari_wire_reduce(const dpari_wire_blocks *wire, int64_t position,
                                             int64_t count, double factor, dpar_work *work);
DPARI_INTERNAL dpar_status dpari_wire_end(const dpari_wire_blocks *wire, int64_t position,
                                          void *data, int64_t count);

#endif
