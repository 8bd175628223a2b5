/* SPDX-License-Identifier: MIT-0 */
/* grid - cuts a grid into one block per rank, makes arrays on it and exchanges their halos in one
 * call. It covers the usual case and allocates its own memory. The first lines of dpar_halo.h show
 * a complete program. An MPI program that has a communicator from MPI_Cart_create and its own
 * arrays needs only these calls:
 *
 *     d.cells[0] = ny;
 *     d.cells[1] = nx;
 *     d.halo = 1;
 *     d.type = DPAR_F64;
 *     dpar_mpi_grid_make(cart, NULL, &d, &g, &why);       takes process grid and periods from cart
 *     ...
 *     dpar_grid_exchange(g, u);                      u: the address of its first own cell
 *     ...
 *     dpar_grid_free(g);
 *
 * dpar_mpi.h then uses shared memory within a node and MPI between nodes. For a process grid that
 * is not from MPI_Cart_create, use dpar_mpi_make, d.parts and dpar_grid_make. Arrays that are not
 * dense in C order with the grid's halo are attached with dpar_grid_attach.
 *
 * An array is identified by the address of its first own point, so that halo points have lower
 * addresses too: u[-1] is the point before u[0] in the last dim. With desc.array_start it is
 * identified by the address of its first element, which is in the halo. dpar_grid_exchange_many
 * exchanges several arrays and sends one message per neighbour for all of them. The first exchange
 * of a combination of shapes plans it and allocates memory; later exchanges do neither. A shape
 * consists of a type, a dpar_grid_field, and whether the array is in registered memory
 * (dpar_comm_alloc). Arrays of the same shape may be swapped without any call.
 *
 * Halo cells inside the grid, or beyond a periodic end, receive their owner's values. Halo cells
 * beyond a mirror receive the reflected values, also in edges and corners. Halo cells beyond other
 * ends, which are walls, are never touched, so that the code can keep its boundary values there. If
 * a code fills them on the rank next to the wall and expects them on the neighbours along the wall
 * as well, set desc.exchange_walls.
 *
 * Functions without a `why` leave their message in g->comm->why. Features that are missing here are
 * in halo_exchange.h, on which grids are built; dpar_grid_halo and dpar_grid_plan give access to
 * it. */
#ifndef DPARI_HALO_GRID_H
#define DPARI_HALO_GRID_H

#include "../base/text.h"
#include "../comm/comm.h"
#include "halo_exchange.h"

/* Puts the points of a field on the faces between cells in a dim (dpar_grid_field.location).
 * DPAR_HALO_AT_CELLS, which is 0, puts them in the middle of the cells. */
enum { DPAR_HALO_AT_FACES = DPAR_HALO_AT_LOW_FACES };

/* A mirror at an end of a dim. With FACE, the mirror plane is the outer face of the end cell. With
 * CELL, it goes through the middle of the end cell, which is then its own image. OFF is only for a
 * dpar_grid_field, where NONE selects the grid's mirror and OFF is no mirror. */
enum { DPAR_GRID_MIRROR_NONE, DPAR_GRID_MIRROR_FACE, DPAR_GRID_MIRROR_CELL, DPAR_GRID_MIRROR_OFF };

/* The description of a grid, for dpar_grid_make. Zero it, then set dims, cells, halo and the other
 * fields that you need. All ranks must pass the same values, except for mem, free_why and
 * expected_count. */
typedef struct dpar_grid_desc {
    int32_t dims; /* 1..DPAR_MAX_DIMS; the last dim is contiguous in memory */
    /* 0 exchanges with all neighbours, 1 only with those across a face of the block, so that edges
     * and corners are left out. Fields on faces always include edges and corners. */
    int32_t star;
    int64_t cells[DPAR_MAX_DIMS]; /* cells of the whole grid in each dim, at least 1 */
    int64_t halo;                 /* width of the halo on both sides of all dims, in cells */
    /* Width of the halo below and above the block in each dim, in cells. 0 selects `halo`. For a
     * halo on some sides only, set `halo` to 0. */
    int64_t halo_low[DPAR_MAX_DIMS];
    int64_t halo_high[DPAR_MAX_DIMS];
    int32_t periodic[DPAR_MAX_DIMS];    /* 1 makes the dim periodic */
    int32_t mirror_low[DPAR_MAX_DIMS];  /* DPAR_GRID_MIRROR_x, at cell 0 */
    int32_t mirror_high[DPAR_MAX_DIMS]; /* DPAR_GRID_MIRROR_x, at the last cell */
    /* Number of ranks along each dim. 0 lets dpar choose it so that halos are smallest; a dim
     * without a halo is then not cut if another dim has one. If you attach arrays of your own, set
     * parts or expected_count to those of your code, because dpar_grid_attach cannot check the
     * sizes of arrays. A dim may have more parts than cells, as on the coarse levels of a multigrid
     * method, but only if you set parts: dpar chooses no cut that leaves ranks without cells
     * (DPAR_E_NONE). Ranks without cells make the same calls as the others, with a different
     * address for each array, but their arrays are not touched. */
    int32_t parts[DPAR_MAX_DIMS];
    /* Which rank owns which block. DPAR_ORDER_LAST_FASTEST (0) gives neighbours in the last dim
     * consecutive ranks, as MPI_Cart_create does; DPAR_ORDER_FIRST_FASTEST those in dim 0. */
    int32_t order;
    int32_t check; /* 1 checks in each exchange that all ranks pass the same arrays
                      (DPAR_E_MISMATCH), which costs a small all-reduce */
    /* [parts + 1] numbers from 0 to cells for each dim, which do not descend: part p owns cells
     * cuts[p] to cuts[p + 1] - 1. They are copied. NULL cuts evenly, unless expected_count is set:
     * the first (cells mod parts) parts then own one cell more than the others. */
    const int64_t *cuts[DPAR_MAX_DIMS];
    /* Functions for arrays in memory that the CPU cannot reach. The table must exist as long as the
     * grid. NULL selects that of the communicator, dpar_comm.mem. */
    const dpar_mem *mem;
    /* If this is a type (DPAR_F64, ...), your arrays of cells need not be attached: any unknown
     * address is taken for an array of cells of this type, dense in C order with its halo. The
     * address may change from call to call, on each rank independently. With 0, an unknown address
     * is DPAR_E_ARG. */
    int32_t type;
    /* 1 treats the halo cells beyond a wall as cells of the block next to it: the rank there fills
     * them, and exchanges send them to its neighbours along the wall. A wall is an end of a dim
     * that is neither periodic nor a mirror. Codes that exchange one dim after the other, such as
     * WRF or ROMS, fill these cells before they exchange, and expect this. With 0, no exchange
     * reads or writes cells beyond walls. */
    int32_t exchange_walls;
    /* 1 makes the address of an array, in all calls, that of its first element, which is in the
     * halo: malloc's address, or Fortran's c_loc of the first element. 0 makes it the address of
     * the first own point. Ranks may differ. */
    int32_t array_start;
    int32_t owns_comm; /* 1 makes dpar_grid_free close the communicator too */
    /* Receives the message if dpar_grid_free fails. Set it if dpar_grid_free also closes the
     * communicator (owns_comm, dpar_mpi_grid_make), because grid->comm->why no longer exists then.
     * Each rank passes its own, which must exist as long as the grid. May be NULL. */
    dpar_why *free_why;
    /* The number of cells that this rank owns in each dim in your code; each rank passes its own.
     * If your code does not cut evenly and `cuts` is NULL, the grid is cut in the same way, and
     * where `parts` is 0, into as many parts. All ranks get DPAR_E_ARG if these numbers fit no cut,
     * because your code has its dims or ranks in another order, or if they contradict `cuts`. 0 is
     * unknown; if it is passed by all ranks of a part, and the other parts have all cells, this
     * part has none. */
    int64_t expected_count[DPAR_MAX_DIMS];
    /* Number of times that a code applies its stencil between two exchanges, for deep halos; 0
     * selects 1. The stencil's radius is the halo's width divided by steps: a halo of 6 with 3
     * steps is for radius 2. In dims that are periodic or cut, steps must divide the widths. In
     * other dims the halo needs only the radius. More than 1 step needs star = 0, because a second
     * step reads edges and corners. See dpar_grid_valid. */
    int32_t steps;
} dpar_grid_desc;

/* A grid, made by dpar_grid_make. All fields are read-only. */
typedef struct dpar_grid {
    dpar_comm *comm;
    int32_t dims;
    int32_t parts[DPAR_MAX_DIMS];  /* number of ranks along each dim */
    int32_t coord[DPAR_MAX_DIMS];  /* position of this rank among them, from 0 */
    int64_t cells[DPAR_MAX_DIMS];  /* cells of the whole grid */
    int64_t first[DPAR_MAX_DIMS];  /* index of the first cell that this rank owns */
    int64_t count[DPAR_MAX_DIMS];  /* number of cells that this rank owns; may be 0 */
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours in a dense array of cells with its
                                      halo, as dpar_grid_array makes it */
} dpar_grid;

/* The points, components and strides of an array. Zero it, then set the fields that you need. All
 * ranks must pass the same values, except for strides. */
typedef struct dpar_grid_field {
    int32_t components; /* elements at each point; 0 selects 1 */
    /* The order of a dense array: DPAR_ORDER_LAST_FASTEST (0) is C order; with
     * DPAR_ORDER_FIRST_FASTEST dim 0 is contiguous. */
    int32_t order;
    /* DPAR_HALO_AT_CELLS or DPAR_HALO_AT_FACES in each dim. Faces in one dim hold a flux or a
     * velocity; faces in all dims are the vertices. A rank with `count` cells has count + 1 faces,
     * and the halo outside of these. Neighbours share the face between their blocks. Its owner is
     * the rank above it, whose value an exchange copies to the rank below. */
    int32_t location[DPAR_MAX_DIMS];
    /* For each dim: bit k is set if component k changes its sign at the mirrors of this dim, as the
     * velocity normal to a mirror does. Bits of components that do not exist must be 0. */
    uint32_t odd[DPAR_MAX_DIMS];
    /* DPAR_GRID_MIRROR_x at both ends of each dim, for a field that is reflected differently from
     * the grid's other fields. NONE (0) selects the mirror of the grid. */
    int32_t mirror_low[DPAR_MAX_DIMS];
    int32_t mirror_high[DPAR_MAX_DIMS];
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours, in any order with any padding;
                                      all 0 for a dense array with its halo */
    int64_t component_stride;      /* elements between components; 0 selects 1 */
    /* [components][dims] of -1, 0 and 1: the direction in which each component moves through the
     * grid, as the populations of a lattice Boltzmann method do. A component is then received only
     * below the block in dims where its direction is 1, and above it where it is -1. These are the
     * halo cells from which a step leads into the block: 5 of the 19 components of D3Q19 cross a
     * face. For at most 64 components of cells, without mirrors (DPAR_GRID_MIRROR_OFF). The list is
     * copied. NULL sends all components everywhere. */
    const int8_t *direction;
} dpar_grid_field;

/* This rank's part of an array, in the terms of MPI_Type_create_subarray, H5Sselect_hyperslab and
 * nc_put_vara. Pass the components to them as one more dim. */
typedef struct dpar_grid_part {
    int64_t global_count[DPAR_MAX_DIMS]; /* points of the whole array, each counted once */
    int64_t start[DPAR_MAX_DIMS];        /* index in the whole array of the first own point */
    int64_t count[DPAR_MAX_DIMS];        /* number of points that this rank owns */
    int64_t local_count[DPAR_MAX_DIMS];  /* points of this rank's array, with its halo */
    int64_t local_start[DPAR_MAX_DIMS];  /* index in this rank's array of the first own point */
    int64_t stride[DPAR_MAX_DIMS];       /* elements between neighbours */
    int64_t component_stride;            /* elements between components */
} dpar_grid_part;

/* ---- a grid and its arrays ---- */

/* Makes a grid with one block for each rank of comm.
 *
 * Collective. Fails on all ranks with DPAR_E_ARG, DPAR_E_DIVIDE, DPAR_E_NONE or DPAR_E_RANGE, and
 * with DPAR_E_MISMATCH if ranks describe different grids. Costs a small all-reduce and
 * O(sum of parts). */
DPAR_API dpar_status dpar_grid_make(dpar_comm *comm, const dpar_grid_desc *desc, dpar_grid **grid,
                                    dpar_why *why);
/* Destroys a grid, its plans and the arrays of dpar_grid_array. NULL does nothing. The grid must
 * not be used afterwards.
 *
 * Collective. Fails with DPAR_E_ARG, and does nothing, if an exchange has not ended. Otherwise
 * everything is released, and the errors are those of dpar_halo_plan_free. The message is in
 * desc.free_why, and in the communicator's `why` if this call does not close the communicator.
 * Costs one barrier per plan.
 *
 * If the communicator was closed before (dpar_comm_free), the call is local, releases the grid's
 * own memory and returns DPAR_OK. All other functions of such a grid fail with DPAR_E_ARG. If the
 * communicator's world was closed before, grid->comm is NULL. */
DPAR_API dpar_status dpar_grid_free(dpar_grid *grid);
/* Allocates a zeroed array with its halo in registered memory. Such arrays are exchanged fastest,
 * because neighbours read them in place. Returns the address of the first own point, which is a
 * multiple of 64 bytes, or NULL on all ranks.
 *
 * field: where the points are and how many components each has; NULL for cells with one component.
 *
 * On failure the message is in comm->why (DPAR_E_ARG, DPAR_E_RANGE, DPAR_E_MEMORY,
 * DPAR_E_MISMATCH). Collective. Costs some small all-reduces. */
DPAR_API void *dpar_grid_array(dpar_grid *grid, int32_t type, const dpar_grid_field *field);
/* Attaches an array of your own to a grid, so that it can be exchanged.
 *
 * u:     address of its first own point. The array must stay there as long as it is exchanged.
 *        Points beyond open ends of the grid need no memory.
 * field: NULL for cells, dense in C order with the grid's halo.
 *
 * Neighbours read the array in place if it is in registered memory. It replaces any attached array
 * that has the same address or elements in common with it, because the memory of that array may
 * have been freed and used again. The exception is an array that consists of some components of an
 * attached one, with the same points and strides: both are then attached.
 *
 * Collective. Errors are returned on all ranks, and nothing is then attached. Fails with DPAR_E_ARG
 * if strides give two points the same address, if an exchange of the same elements has not ended,
 * or if elements belong to an array of dpar_grid_array. Fails with DPAR_E_RANGE if strides reach
 * beyond 2^57 bytes, and with DPAR_E_MISMATCH if ranks attach different arrays. Costs some small
 * all-reduces. */
DPAR_API dpar_status dpar_grid_attach(dpar_grid *grid, void *u, int32_t type,
                                      const dpar_grid_field *field, dpar_why *why);

/* ---- exchanges ----
 *
 * These functions are collective unless they say local: all ranks must pass the same arrays in the
 * same order. The first exchange of a combination of shapes costs as much as dpar_halo_plan_make.
 * Later ones cost as much as dpar_halo_plan_exchange and about 10 ns per array.
 *
 * They fail with DPAR_E_ARG if an address is not that of an array of the grid, if it is inside
 * another array, or if it is twice in the list. They also do if an exchange of the array has begun
 * and not ended. Only the rank that passed the address gets this error; the other ranks wait for it
 * until the deadline. All other errors are those of dpar_halo_plan_make and
 * dpar_halo_plan_exchange.
 *
 * If a rank calls another operation instead, such as a barrier, the result is DPAR_E_MISMATCH, and
 * the message says what each rank has called. The first exchange of a combination, and any exchange
 * of a grid with check = 1, detects it at once. Otherwise ranks that share memory detect it within
 * a second, and other ranks at the deadline.
 *
 * If ranks exchange different arrays, both exchanges were planned before, and check is 0, the ranks
 * wait for each other until the deadline. The messages of two ranks may then name different ranks
 * as the late one. With check = 1 this is detected at once, and the message names the arrays. */

/* Exchanges the halo of one array. */
DPAR_API dpar_status dpar_grid_exchange(dpar_grid *grid, void *u);
/* Exchanges the halos of several arrays to a given depth, with one message per neighbour. Each
 * combination of arrays and depth is planned when it first occurs, so that the steps of a code may
 * use different ones.
 *
 * arrays: [count], 1 to 4096 of them.
 * depth:  width of the halo to exchange, in cells next to the own cells; 0 selects the whole halo.
 *         A depth of more than the whole halo is DPAR_E_RANGE. */
DPAR_API dpar_status dpar_grid_exchange_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                             int32_t depth);
/* Starts an exchange of one array. Until dpar_grid_end, own cells may be read but not written, and
 * halo cells must be neither read nor written. Compute the interior meanwhile, and the boundary
 * after dpar_grid_end. Several exchanges may be in progress. */
DPAR_API dpar_status dpar_grid_begin(dpar_grid *grid, void *u);
/* Starts an exchange of several arrays. The arguments are those of dpar_grid_exchange_many, and the
 * rules are those of dpar_grid_begin. */
DPAR_API dpar_status dpar_grid_begin_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                          int32_t depth);
/* Waits until the exchange that u takes part in is complete. All ranks must end several exchanges
 * in the same order. */
DPAR_API dpar_status dpar_grid_end(dpar_grid *grid, void *u);
/* Advances the exchange that u takes part in without waiting. Returns DPAR_OK if everything has
 * arrived (dpar_grid_end must still be called), otherwise DPAR_MORE. Messages advance only inside
 * calls, so call it now and then while you compute the interior. Local. Errors and cost are those
 * of dpar_halo_plan_test. */
DPAR_API dpar_status dpar_grid_test(dpar_grid *grid, void *u);
/* Combines the values that several ranks hold of the same points, which is the reverse of an
 * exchange. Call it after adding to shared points or to halo cells, to complete the sums.
 *
 * op: DPAR_SUM, DPAR_MIN or DPAR_MAX.
 *
 * Shared points are the faces, edges and vertices between blocks, in fields with
 * DPAR_HALO_AT_FACES. Afterwards all ranks that hold such a point have the result, with the same
 * bits. The values of halo cells that an exchange would fill are combined with those of the owners
 * of these cells, and are 0 afterwards. All other points are unchanged, as are halo cells beyond
 * mirrors and, unless desc.exchange_walls is set, beyond walls.
 *
 * If no dim has a halo, values are combined in the order of the blocks in space, the last dim
 * fastest. Otherwise the owner's value is the first, and those of other ranks follow in the order
 * of dpar_halo_plan_reduce.
 *
 * Errors are those of dpar_grid_exchange, and DPAR_E_ARG if op is not one of these or the type
 * cannot be combined. Costs one exchange. Fields with shared points in a grid with a halo, or in
 * memory that the CPU cannot reach, cost a second one. */
DPAR_API dpar_status dpar_grid_reduce(dpar_grid *grid, void *u, int32_t op);
/* Combines the values of several arrays, with one message per neighbour. arrays: [count], 1 to 4096
 * of them. Everything else is as for dpar_grid_reduce. */
DPAR_API dpar_status dpar_grid_reduce_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                           int32_t op);
/* Finds the interior: the own cells that can be computed during an exchange. A stencil as wide as
 * the halo (with desc.steps, as wide as halo / steps), applied to such a cell, reads no halo cell
 * that the exchange or a mirror fills. Returns 1, or 0 if there are no such cells.
 *
 * box: receives the range of loop indices: 0 is the first own cell, and hi is one past the last
 *      cell of the interior.
 *
 * Mirrors are those of the grid and of all fields that are known so far. Local. Costs O(dims). */
DPAR_API int dpar_grid_interior(const dpar_grid *grid, dpar_box *box);
/* Finds box n of the boundary, which are the own cells that are not in the interior, and with
 * desc.steps also the halo cells of dpar_grid_valid(grid, 0, &box). Returns 1, or 0 if there is no
 * such box. The boundary consists of at most 2 * dims disjoint boxes, numbered from 0. Local. Costs
 * O(dims). */
DPAR_API int dpar_grid_boundary(const dpar_grid *grid, int32_t n, dpar_box *box);

/* ---- deep halos ----
 *
 * A code whose messages are short waits for their latency. With a halo that is several times as
 * wide as its stencil it exchanges only every few steps and computes some halo cells itself, which
 * their owners compute, too. This is also called communication avoiding, ghost cell expansion or
 * temporal blocking.
 *
 *     d.halo = 4;
 *     d.steps = 4;                                 radius 1: one exchange for four steps
 *     ...
 *     dpar_grid_exchange(g, u);
 *     for (j = 0; dpar_grid_valid(g, j, &box); j++) {
 *         ... compute the cells of box of v from u, then swap u and v ...
 *     }
 *
 * dpar_halo_cost_choose_steps (dpar_cost.h) predicts the number of steps that is fastest, and
 * dpar_grid_check_step (dpar_debug.h) finds stencils that read stale cells. */

/* Finds the cells on which sub-step j after an exchange is to be computed, because their stencil
 * reads only valid cells. Sub-step 0 is the first. Returns 1 if j is 0 to desc.steps - 1,
 * otherwise 0, the same on all ranks.
 *
 * box: receives the range of loop indices: 0 is the first own cell, and indices in the halo below
 *      the block are negative. The box holds the own cells and, around them, (steps - 1 - j) *
 *      radius cells of the halo. On a rank without cells it is empty.
 *
 * The box never extends beyond an end of the grid that is not periodic. Values beyond a wall are
 * those of the code, as without deep halos. Each rank whose halo contains such places needs their
 * values, along the whole box; desc.exchange_walls sends them with the halos. A code that computes
 * them from the cells next to the wall does so again in each sub-step. Halo cells beyond a mirror
 * must be filled again after each sub-step, by dpar_grid_reflect. A grid has no folds.
 *
 * If the arrays were exchanged to a depth of only d * radius cells, begin with j = steps - d. To
 * compute during the exchange, apply sub-step 0 to dpar_grid_interior after dpar_grid_begin, and to
 * dpar_grid_boundary after dpar_grid_end. Local. Costs O(dims). */
DPAR_API int dpar_grid_valid(const dpar_grid *grid, int32_t j, dpar_box *box);
/* Fills the halos at mirrors of several arrays from the cells that this rank has, without
 * exchanging anything. Call it after each sub-step between two exchanges.
 *
 * arrays: [count], 1 to 4096 of them.
 *
 * Sends no messages if arrays of these shapes were exchanged before, and otherwise plans that
 * exchange. Collective like dpar_grid_exchange_many, and with the same errors. Does nothing if
 * there is no mirror. */
DPAR_API dpar_status dpar_grid_reflect(dpar_grid *grid, void *const *arrays, int32_t count);

/* ---- the whole array, files ---- */

/* Gathers all points of an array in `whole` on rank 0.
 *
 * whole: [points of the whole array][components], dense in C order; ignored on other ranks. If
 *        arrays are in a device's memory, the device must be able to reach `whole`.
 *
 * Collective. Fails on all ranks with DPAR_E_ARG, DPAR_E_MEMORY or DPAR_E_MISMATCH. Costs one
 * message per rank, and memory for one block. */
DPAR_API dpar_status dpar_grid_gather(dpar_grid *grid, void *u, void *whole);
/* Scatters `whole` from rank 0 to the own points of all ranks. Everything else is as for
 * dpar_grid_gather. */
DPAR_API dpar_status dpar_grid_scatter(dpar_grid *grid, void *u, const void *whole);
/* Computes which part of the whole array this rank has, for writing files (MPI-IO, HDF5, NetCDF)
 * that any number of ranks can read again. A NULL field means cells. Local. Fails with DPAR_E_ARG
 * or DPAR_E_RANGE, without a message, if dpar_grid_attach would refuse the field. Costs
 * O(dims). */
DPAR_API dpar_status dpar_grid_block(const dpar_grid *grid, const dpar_grid_field *field,
                                     dpar_grid_part *part);

/* ---- the full API ---- */

/* Returns the halo of the grid's cells, for the functions dpar_halo_x of dpar.h. It exists as long
 * as the grid. Local. Costs O(1). */
DPAR_API const dpar_halo *dpar_grid_halo(const dpar_grid *grid);
/* Returns the plan that exchanges these arrays, for adjoints, tests and reports (halo_exchange.h,
 * dpar_debug.h). It is made if it does not exist yet. The plan is bound to these arrays, does not
 * include mirrors, and exists as long as the grid. Returns NULL on failure, with the message in
 * comm->why. Collective. Costs as much as dpar_halo_plan_make if the plan is made, otherwise O(n).
 */
DPAR_API dpar_halo_plan *dpar_grid_plan(dpar_grid *grid, void *const *list, int32_t n);

#endif
