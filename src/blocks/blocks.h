/* SPDX-License-Identifier: MIT-0 */
/* blocks - a grid that is cut into many small blocks, of which each rank owns any number. Ocean and
 * ice codes leave out blocks that are only land, and block-structured codes balance their load by
 * giving blocks to other ranks.
 *
 *     dpar_blocks_desc desc = {0};
 *     desc.dims = 2;
 *     desc.cells[0] = 720;
 *     desc.cells[1] = 1440;
 *     desc.block[0] = 36;
 *     desc.block[1] = 36;
 *     desc.halo = 1;
 *     desc.periodic[1] = 1;
 *     desc.exists = ocean;                                   [20 * 40], 0 where all is land
 *     dpar_blocks_make(comm, &desc, &blocks, &why);
 *     dpar_blocks_array_make(blocks, DPAR_F64, NULL, &u, &why);
 *     ...
 *     dpar_blocks_exchange(blocks, u);
 *     for (i = 0; i < blocks->count; i++) {                  may be a parallel loop of OpenMP
 *         step((double *)u->block[i], blocks->block[i].count, u->stride);
 *     }
 *
 * Blocks are numbered in C order, the last dim fastest. All blocks of an array have the same shape
 * in memory, that of a whole block with its halo. Blocks at the ends of the grid may have fewer
 * cells. u->block[i] is the address of the first own cell of this rank's block i, so that
 * halo cells have lower addresses too, and u->stride has the steps between neighbours.
 *
 * An exchange copies between blocks of the same rank directly. Ranks of a node read each other's
 * arrays in place where rows are long, and packed rows otherwise. Between nodes, each rank sends
 * one message to each neighbour rank, for all blocks and arrays. Halo cells get what they would get
 * if each block had a rank to itself. That is the value of their owner inside the grid, around
 * periodic dims, over folds, poles and the edges of a cubed sphere. Halo cells keep their values
 * beyond other ends of the grid, and where a block does not exist.
 *
 * Blocks may be computed by several threads at once, also while an exchange is in progress. The
 * functions of this file are called by one thread at a time, as all collective calls. */
#ifndef DPARI_BLOCKS_BLOCKS_H
#define DPARI_BLOCKS_BLOCKS_H

#include "../base/box.h"
#include "../comm/comm.h"
#include "blocks_owner.h"

/* A grid of blocks. Zero it, then set dims, cells, block, halo and what you need. All ranks must
 * pass the same values, otherwise all get DPAR_E_MISMATCH. The arrays are copied. */
typedef struct dpar_blocks_desc {
    int32_t dims;                 /* 1 to DPAR_MAX_DIMS; the last dim is contiguous in memory */
    int32_t star;                 /* 0 exchanges with all neighbours of a block, 1 only with those
                                     across a face, so that edges and corners are left out */
    int64_t cells[DPAR_MAX_DIMS]; /* cells of the whole grid in each dim, at least 1 */
    int64_t block[DPAR_MAX_DIMS]; /* cells of a block in each dim. The last block of a dim has what
                                     is left. 0 does not cut the dim */
    int64_t halo; /* width of the halo on both sides of all dims, in cells; may exceed a block */
    /* Width of the halo below and above the block in each dim. 0 selects `halo`. For a halo on some
     * sides only, set `halo` to 0. */
    int64_t halo_low[DPAR_MAX_DIMS];
    int64_t halo_high[DPAR_MAX_DIMS];
    int32_t periodic[DPAR_MAX_DIMS]; /* 1 makes the dim periodic */
    /* Folds, poles and cubed spheres as in dpar_halo of dpar.h, which describes them. `fold` is the
     * dim that ends at the fold or the poles. `mirror` is the periodic dim along the fold or around
     * the poles. Fields set on_row, shift and pole_rows. */
    int32_t folds; /* 1 if the grid folds at the end of dim `fold` */
    int32_t fold, mirror;
    uint32_t poles; /* DPAR_HALO_POLE_LOW, DPAR_HALO_POLE_HIGH or both */
    int32_t cube;   /* 1 if the grid is a cubed sphere: dim 0 has 6 faces of one block each or more,
                       and the last two dims are y and x */
    int32_t
        order; /* of blocks, of which ranks get contiguous pieces: DPAR_BLOCKS_HILBERT (0), ... */
    const uint8_t *exists; /* [blocks] 0 for blocks that do not exist, such as land; NULL if
                              all exist */
    const double *weight;  /* [blocks] work of each block in any unit, not negative. NULL
                              selects its number of cells */
    const int32_t *owner;  /* [blocks] the rank of each block, or -1 if it does not exist.
                              NULL lets dpar choose by weight and order */
} dpar_blocks_desc;

/* A block that this rank owns. */
typedef struct dpar_block {
    int32_t number;               /* in the grid of blocks, in C order */
    int64_t first[DPAR_MAX_DIMS]; /* index of its first cell in the whole grid */
    int64_t count[DPAR_MAX_DIMS]; /* number of its cells */
} dpar_block;

/* A grid of blocks, made by dpar_blocks_make. All fields are read-only. */
typedef struct dpar_blocks {
    dpar_comm *comm;
    int32_t dims;
    int32_t total;                /* blocks of the whole grid, also those that do not exist */
    int32_t count;                /* blocks that this rank owns; may be 0 */
    int32_t grid[DPAR_MAX_DIMS];  /* number of blocks along each dim */
    int64_t cells[DPAR_MAX_DIMS]; /* cells of the whole grid */
    int64_t size[DPAR_MAX_DIMS];  /* cells of a whole block */
    const dpar_block *block;      /* [count] in ascending order of their numbers */
    const int32_t *owner;         /* [total] rank of each block; -1 if it does not exist */
} dpar_blocks;

/* The points, components and memory of an array. Zero it, then set the fields that you need. All
 * ranks must pass the same values, except for strides. */
typedef struct dpar_blocks_field {
    int32_t components; /* elements at each point, 1 to 2^20; 0 selects 1 */
    int32_t planes;     /* 0 stores the components of a point next to each other. 1 stores each
                           component of a block as an array of its own, one after the other */
    int32_t order;      /* DPAR_ORDER_LAST_FASTEST (0) is C order; with DPAR_ORDER_FIRST_FASTEST
                           dim 0 is contiguous, as in Fortran */
    /* DPAR_HALO_AT_CELLS or DPAR_HALO_AT_LOW_FACES in each dim. A block with `count` cells has
     * count + 1 faces and the halo outside of these. The face between two blocks belongs to the
     * block above it, from which the block below receives it. Edges and corners are then always
     * exchanged. */
    int32_t location[DPAR_MAX_DIMS];
    /* 0 for scalars. 1 if each component changes its sign across a fold or a pole. 2 for two
     * components on a cubed sphere, u along the last dim and v along the one before it. */
    int32_t vector;
    int32_t on_row, shift; /* where the points are at the fold, as in dpar_halo */
    uint32_t pole_rows;    /* poles whose end row is on the pole, as in dpar_halo */
    /* Only for dpar_blocks_attach: elements between neighbours in each dim, and between components
     * (0 selects 1). If all are 0, blocks are dense with their halo, as those of
     * dpar_blocks_array_make. */
    int64_t stride[DPAR_MAX_DIMS];
    int64_t component_stride;
} dpar_blocks_field;

/* An array on all blocks. All fields are read-only. A change of owners moves the blocks, so read
 * the addresses again after dpar_blocks_move. */
typedef struct dpar_blocks_array {
    dpar_blocks *blocks;
    int32_t type, components;
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours */
    int64_t component_stride;      /* elements between components */
    void **block; /* [blocks->count] address of the first own point of each block */
} dpar_blocks_array;

/* ---- blocks and arrays ---- */

/* Cuts a grid into blocks and gives them to the ranks of comm.
 *
 * Collective. All errors are returned on all ranks. Fails with DPAR_E_ARG if a field has a wrong
 * value, or if comm has a device's memory. Fails with DPAR_E_RANGE if there are more than 2^31 - 2
 * blocks or 2^59 cells, and with DPAR_E_MISMATCH if ranks pass different descriptors. Costs a small
 * all-reduce, and O(blocks) time and 13 bytes of memory for each block on every rank. Ranks without
 * blocks make the same calls as all others. */
DPAR_API dpar_status dpar_blocks_make(dpar_comm *comm, const dpar_blocks_desc *desc,
                                      dpar_blocks **blocks, dpar_why *why);
/* Destroys blocks with their plans and arrays, also the handles of attached arrays. NULL does
 * nothing. Call it before the communicator is closed.
 *
 * Collective. Fails with DPAR_E_ARG, and does nothing, if an exchange has not ended. Otherwise all
 * is released, and a failure is that of the communicator. Costs one barrier per plan. */
DPAR_API dpar_status dpar_blocks_free(dpar_blocks *blocks);
/* Allocates a zeroed array on all blocks, with halos, in registered memory: the blocks of a rank
 * are in one allocation. Such arrays are exchanged fastest, because ranks of a node read them in
 * place.
 *
 * field: NULL for cells with one component.
 *
 * Collective. All errors are returned on all ranks: DPAR_E_ARG, DPAR_E_RANGE if a rank's array
 * exceeds 2^56 bytes, DPAR_E_MISMATCH, DPAR_E_MEMORY. Costs some small all-reduces. */
DPAR_API dpar_status dpar_blocks_array_make(dpar_blocks *blocks, int32_t type,
                                            const dpar_blocks_field *field,
                                            dpar_blocks_array **array, dpar_why *why);
/* Makes a handle for an array of your own, whose blocks are anywhere in memory.
 *
 * block: [count] addresses of the first own point of each block of this rank, aligned to the type;
 *        copied. Blocks must stay there as long as they are exchanged. NULL if this rank has none.
 *
 * Such arrays are packed even for ranks of the same node, so that each value is copied twice.
 * Points beyond open ends of the grid need no memory. Everything else is as for
 * dpar_blocks_array_make; DPAR_E_ARG also if an address is NULL. Strides are not checked. */
DPAR_API dpar_status dpar_blocks_attach(dpar_blocks *blocks, void *const *block, int32_t type,
                                        const dpar_blocks_field *field, dpar_blocks_array **array,
                                        dpar_why *why);
/* Releases an array, or the handle of an attached one. NULL does nothing. Local. Fails with
 * DPAR_E_ARG, and does nothing, if an exchange of it has not ended. */
DPAR_API dpar_status dpar_blocks_array_free(dpar_blocks_array *array);

/* ---- exchanges ----
 *
 * These functions are collective unless they say local: all ranks must pass the same arrays in the
 * same order. The first exchange of a combination of shapes plans it and allocates memory; later
 * exchanges do neither. A shape is what dpar_blocks_array_make and dpar_blocks_attach are passed,
 * so that arrays of the same shape may be swapped. A plan takes about 600 bytes for each neighbour
 * of each block and each array.
 *
 * They fail with DPAR_E_ARG if an array is NULL, is of other blocks or is twice in the list, or if
 * an exchange of it has not ended. Only the rank that makes such a call gets this error, and its
 * peers wait for it until the deadline. If all ranks plan an exchange, it also fails on all of them
 * with DPAR_E_MEMORY, or with DPAR_E_MISMATCH if they pass arrays of different shapes.
 * All fail with DPAR_E_PEER, DPAR_E_TIMEOUT and DPAR_E_MISMATCH as comm.h describes, which break
 * the communicator. The message is in blocks->comm->why. */

/* Exchanges the halos of all blocks of an array. */
DPAR_API dpar_status dpar_blocks_exchange(dpar_blocks *blocks, dpar_blocks_array *array);
/* Exchanges the halos of several arrays, with one message per neighbour rank. arrays: [count], 1 to
 * 4096 of them, of any types and shapes. */
DPAR_API dpar_status dpar_blocks_exchange_many(dpar_blocks *blocks,
                                               dpar_blocks_array *const *arrays, int32_t count);
/* Starts an exchange of several arrays. Until dpar_blocks_end, own cells may be read but not
 * written, and halo cells must be neither read nor written. Several exchanges may be in progress.
 */
DPAR_API dpar_status dpar_blocks_begin(dpar_blocks *blocks, dpar_blocks_array *const *arrays,
                                       int32_t count);
/* Advances the exchange in which `array` takes part without waiting. Returns DPAR_OK if everything
 * has arrived (dpar_blocks_end must still be called), otherwise DPAR_MORE. Local. */
DPAR_API dpar_status dpar_blocks_test(dpar_blocks *blocks, dpar_blocks_array *array);
/* Waits until the exchange in which `array` takes part is complete. Returns DPAR_OK if there is
 * none. All ranks must end several exchanges in the same order. */
DPAR_API dpar_status dpar_blocks_end(dpar_blocks *blocks, dpar_blocks_array *array);
/* Combines the values of halo cells with those of the owners of these cells, which is the adjoint
 * of an exchange if op is DPAR_SUM. Each halo cell that an exchange fills is then 0, as are the
 * copies of faces that belong to another block, and the half row that a fold overwrites.
 *
 * arrays: [count], as for dpar_blocks_exchange_many; of types that can be reduced.
 * op:     DPAR_SUM, DPAR_MIN or DPAR_MAX.
 *
 * Values are combined in an order that depends only on the grid of blocks: the owner's value first,
 * then those of other blocks in the order of dpar_halo_next. The result therefore has the same bits
 * for any number of ranks and any owners. Fails also with DPAR_E_ARG for another op or type. */
DPAR_API dpar_status dpar_blocks_reduce(dpar_blocks *blocks, dpar_blocks_array *const *arrays,
                                        int32_t count, int32_t op);

/* ---- moving blocks ---- */

/* New owners, or what decides about them. Zero it, then set owner, or weight and steps. All ranks
 * must pass the same values, except for weight. */
typedef struct dpar_blocks_move_desc {
    const double *weight; /* [blocks->count] work of each block of this rank, such as the measured
                             seconds per step, finite and not negative */
    int64_t steps;        /* until the next decision, as in dpar_blocks_rebalance_desc */
    double seconds_per_byte, seconds, seconds_per_weight, threshold; /* as there */
    const int32_t *owner; /* [blocks->total] the new owner of each block that exists, which are then
                             used even if it does not pay. NULL lets dpar decide */
} dpar_blocks_move_desc;

/* Gives blocks to other ranks, with all arrays of dpar_blocks_array_make and their halos. Nothing
 * moves if that does not pay, by the rules of dpar_blocks_rebalance.
 *
 * result: receives the decision and the imbalance before and after; may be NULL. If
 *         owner is set and weight is NULL, the weight of a block is its number of cells.
 *
 * Afterwards blocks->count, blocks->block, blocks->owner and the addresses in arrays are new;
 * handles of arrays stay valid. Rank 0 decides, so that all ranks agree.
 *
 * Collective. Errors are returned on all ranks, and nothing has then moved. Fails with DPAR_E_ARG
 * if an exchange has not ended, a value is out of range, or an array is attached; free its handle
 * before, and attach it again. Fails with DPAR_E_MISMATCH if ranks pass different values, and with
 * DPAR_E_MEMORY. If blocks move, costs one message per block and array, memory for the new arrays
 * next to the old ones, and the plans, which the next exchanges make again. */
DPAR_API dpar_status dpar_blocks_move(dpar_blocks *blocks, const dpar_blocks_move_desc *desc,
                                      dpar_blocks_rebalance_result *result, dpar_why *why);

/* ---- the whole array ---- */

/* Gathers the own points of all blocks in `whole` on rank 0. Points of blocks that do not exist
 * keep their values.
 *
 * whole: [points of the whole array][components], dense in C order; ignored on other ranks.
 *
 * Collective. Errors are returned on all ranks: DPAR_E_ARG, DPAR_E_MEMORY, and those of dpar_send.
 * Costs one message per rank, and memory for the own points of the rank that has the most. */
DPAR_API dpar_status dpar_blocks_gather(dpar_blocks *blocks, dpar_blocks_array *array, void *whole);
/* Scatters `whole` from rank 0 to the own points of all blocks. Everything else is as for
 * dpar_blocks_gather. */
DPAR_API dpar_status dpar_blocks_scatter(dpar_blocks *blocks, dpar_blocks_array *array,
                                         const void *whole);

#endif
