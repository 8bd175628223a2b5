/* SPDX-License-Identifier: MIT-0 */
/* grid - cuts a grid into a block for each rank, makes arrays on it and exchanges their halos in
 * one call. It is for the usual case, and allocates its own memory. The first lines of this header
 * have a program. In a code that has MPI, a communicator of MPI_Cart_create and arrays of its own,
 * these calls are enough:
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
 * dpar_mpi.h then uses shared memory in a node and MPI between nodes. For another process grid use
 * dpar_mpi_make, d.parts and dpar_grid_make. Arrays that are not dense in C order with the grid's
 * halo are attached with dpar_grid_attach.
 *
 * An array is named by the address of its first own point. Its halo is before and after that:
 * u[-1] is the neighbour below in the last dim. dpar_grid_exchange_many takes several arrays and
 * sends one message to each neighbour for all of them. The first exchange of a combination of
 * shapes plans it and allocates memory; later ones do neither. A shape is a type, a
 * dpar_grid_field, and whether the array is in registered memory (dpar_comm_alloc). Arrays of one
 * shape may be swapped without any call.
 *
 * Halo cells inside the grid, or around a periodic end, get their owner's values. Halo cells beyond
 * a mirror get the reflected values, including edges and corners. Halo cells beyond other ends are
 * never touched, so the code can keep its boundary values there.
 *
 * Functions without a `why` leave their message in g->comm->why. Whatever is missing here is in
 * halo_exchange.h, on which this is built; dpar_grid_halo and dpar_grid_plan give access to it. */
#ifndef DPARI_HALO_GRID_H
#define DPARI_HALO_GRID_H

#include "../base/text.h"
#include "../comm/comm.h"
#include "halo_exchange.h"

/* Puts the points of a field on the faces between cells in a dim (dpar_grid_field.location).
 * DPAR_HALO_AT_CELLS, 0, puts them in the middle of the cells. */
enum { DPAR_HALO_AT_FACES = DPAR_HALO_AT_LOW_FACES };

/* A mirror at an end of a dim. Its plane is the outer face of the end cell, or goes through the
 * middle of the end cell, which is then its own image. */
enum { DPAR_GRID_MIRROR_NONE, DPAR_GRID_MIRROR_FACE, DPAR_GRID_MIRROR_CELL };

/* The description of a grid, for dpar_grid_make. Zero it, set dims, cells and halo, and what else
 * you need. All ranks pass the same, except for own, mem and free_why. */
typedef struct dpar_grid_desc {
    int32_t dims;                       /* 1..DPAR_MAX_DIMS; the last is contiguous in memory */
    int32_t star;                       /* 0 exchanges with all neighbours, 1 without edges and
                                           corners. Fields on faces always have edges and corners */
    int64_t cells[DPAR_MAX_DIMS];       /* cells of the whole grid, at least 1 */
    int64_t halo;                       /* width of the halo on every side of every dim, in cells */
    int64_t halo_low[DPAR_MAX_DIMS];    /* width below, if not 0, in place of `halo`. For a halo on
                                           some sides only, set `halo` to 0 */
    int64_t halo_high[DPAR_MAX_DIMS];   /* width above, in the same way */
    int32_t periodic[DPAR_MAX_DIMS];    /* 1 makes the dim periodic */
    int32_t mirror_low[DPAR_MAX_DIMS];  /* DPAR_GRID_MIRROR_x, at cell 0 */
    int32_t mirror_high[DPAR_MAX_DIMS]; /* DPAR_GRID_MIRROR_x, at the last cell */
    int32_t parts[DPAR_MAX_DIMS]; /* ranks along the dim; 0 lets dpar choose the least halo. A dim
                                     without halo is then not cut if another dim has a halo. If you
                                     attach your own arrays, set your parts, because attach cannot
                                     check sizes */
    /* Which rank owns which block: DPAR_ORDER_LAST_FASTEST (0), where neighbours in the last dim
     * are consecutive ranks, as in MPI_Cart, or DPAR_ORDER_FIRST_FASTEST. */
    int32_t order;
    int32_t check; /* 1 compares in each exchange which arrays the ranks pass (DPAR_E_MISMATCH), at
                      the cost of a small all-reduce */
    const int64_t *cuts[DPAR_MAX_DIMS]; /* [parts + 1] numbers from 0 to cells: part p owns cells
                                           cuts[p] to cuts[p+1] - 1, at least one. They are copied.
                                           NULL gives the first (cells mod parts) ranks one cell
                                           more */
    const dpar_mem *mem; /* functions for arrays in memory that the CPU does not reach; must exist
                            as long as the grid. NULL selects the communicator's, dpar_comm.mem */
    int32_t type; /* DPAR_F64, ...: makes dpar_grid_attach unnecessary for your arrays of cells. Any
                     address that is not known is taken for an array of cells of this type, dense in
                     C order with its halo. It may change from call to call, on each rank
                     independently. With 0 an unknown address is DPAR_E_ARG */
    int32_t owns_comm; /* 1 makes dpar_grid_free close the communicator too */
    /* Receives the message of dpar_grid_free, which is otherwise lost with `owns_comm` and with
     * dpar_mpi_grid_make, because grid->comm is then closed. Each rank has its own, which must
     * exist as long as the grid. May be NULL */
    dpar_why *free_why;
    /* this rank's cells along each dim in your code, which may differ by rank. If the grid's cut
     * gives others, because your rule differs or dims are in another order, all ranks get
     * DPAR_E_ARG. 0 skips the comparison */
    int64_t expected_count[DPAR_MAX_DIMS];
} dpar_grid_desc;

/* A grid, made by dpar_grid_make. All fields are read-only. */
typedef struct dpar_grid {
    dpar_comm *comm;
    int32_t dims;
    int32_t parts[DPAR_MAX_DIMS];  /* ranks along each dim */
    int32_t coord[DPAR_MAX_DIMS];  /* coordinate of this rank among them */
    int64_t cells[DPAR_MAX_DIMS];  /* cells of the whole grid */
    int64_t first[DPAR_MAX_DIMS];  /* first cell that this rank owns */
    int64_t count[DPAR_MAX_DIMS];  /* number of cells that this rank owns */
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours in a dense array of cells with its
                                      halo, as dpar_grid_array makes it */
} dpar_grid;

/* The points, components and strides of an array. Zero it, then set the fields that you need. All
 * ranks pass the same, except for strides. */
typedef struct dpar_grid_field {
    int32_t components; /* elements at each point; 0 selects 1 */
    /* The order of dense arrays: DPAR_ORDER_LAST_FASTEST (0) is C's, with DPAR_ORDER_FIRST_FASTEST
     * dim 0 is contiguous. */
    int32_t order;
    /* DPAR_HALO_AT_CELLS or DPAR_HALO_AT_FACES. Faces in one dim are for a flux or a velocity, in
     * all dims for vertices. A rank has own + 1 faces and the halo beyond. It shares the outer
     * faces with its neighbours; the upper one gets the neighbour's value */
    int32_t location[DPAR_MAX_DIMS];
    uint32_t odd[DPAR_MAX_DIMS]; /* bit k is set if component k changes its sign at mirrors of this
                                    dim, as the velocity normal to them does. Other bits are 0 */
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours, in any order with any padding;
                                      all 0 for a dense array with its halo */
    int64_t component_stride;      /* elements between components; 0 selects 1 */
} dpar_grid_field;

/* A rank's part of an array, in the terms of MPI_Type_create_subarray, H5Sselect_hyperslab and
 * nc_put_vara. Components are one more dim. */
typedef struct dpar_grid_part {
    int64_t global_count[DPAR_MAX_DIMS]; /* points of the whole array, each counted once */
    int64_t start[DPAR_MAX_DIMS];        /* first of them that this rank owns */
    int64_t count[DPAR_MAX_DIMS];        /* number of them that this rank owns */
    int64_t local_count[DPAR_MAX_DIMS];  /* points of this rank's array, with its halo */
    int64_t local_start[DPAR_MAX_DIMS];  /* first of these that this rank owns */
    int64_t stride[DPAR_MAX_DIMS];       /* elements between neighbours */
    int64_t component_stride;            /* elements between components */
} dpar_grid_part;

/* ---- a grid and its arrays ---- */

/* Makes a grid, with one block for each rank of comm. Collective. Fails on all ranks with
 * DPAR_E_ARG, DPAR_E_DIVIDE, DPAR_E_NONE or DPAR_E_RANGE, and with DPAR_E_MISMATCH if ranks
 * describe different grids. Costs O(sum of parts). */
DPAR_API dpar_status dpar_grid_make(dpar_comm *comm, const dpar_grid_desc *desc, dpar_grid **grid,
                                    dpar_why *why);
/* Destroys a grid with its plans and the arrays of dpar_grid_array. NULL does nothing. The grid
 * must not be used afterwards.
 *
 * Collective. Fails with DPAR_E_ARG, and does nothing, if an exchange has not ended. Otherwise
 * everything is released, and errors are those of dpar_halo_plan_free. The message is in
 * desc.free_why, and in the communicator's `why` if that is not closed.
 *
 * After its communicator has been closed (dpar_comm_free), freeing a grid is local, releases the
 * grid's own memory and returns DPAR_OK. All other functions then fail with DPAR_E_ARG. After its
 * world has been closed, grid->comm is NULL. */
DPAR_API dpar_status dpar_grid_free(dpar_grid *grid);
/* Allocates a zeroed array with its halo in registered memory, which neighbours read directly; this
 * is the fastest. Returns the address of its first own point, aligned to 64, or NULL on all ranks.
 *
 * field: where its points are and how many components each has; NULL for cells of one component.
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
 * Neighbours read an array in registered memory in place. An array that has elements in common with
 * an attached one, or the same address, replaces it, because memory may have been freed and used
 * again. The exception is an array of some components of an attached one, with the same points and
 * strides: both are then attached.
 *
 * Collective. Fails on all ranks, without effect, with DPAR_E_ARG, DPAR_E_RANGE or DPAR_E_MISMATCH.
 * DPAR_E_ARG is returned if strides put two points into one place, if an exchange of the same
 * elements has not ended, and if elements belong to an array of dpar_grid_array. DPAR_E_RANGE is
 * returned if strides reach beyond 2^57 bytes. */
DPAR_API dpar_status dpar_grid_attach(dpar_grid *grid, void *u, int32_t type,
                                      const dpar_grid_field *field, dpar_why *why);

/* ---- exchanges ----
 *
 * All of these are collective unless they say local: all ranks pass the same arrays in the same
 * order. The first exchange of a combination costs as much as dpar_halo_plan_make. Later ones
 * cost as much as dpar_halo_plan_exchange and about 10 ns per array.
 *
 * They fail with DPAR_E_ARG if an address is no array of the grid, or is inside another array, or
 * if an exchange of the array has begun and not ended. Only this rank notices; the others wait for
 * it until the deadline. Otherwise errors are those of the two functions above.
 *
 * If a rank calls another operation instead, such as a barrier, the result is DPAR_E_MISMATCH, and
 * the message says where each rank is. It is noticed at once in the first exchange of a combination
 * and in a grid with check = 1. Otherwise it takes a second at most between ranks that share
 * memory, and the deadline between others.
 *
 * Ranks that exchange different arrays wait for each other until the deadline if both exchanges are
 * planned already and check is 0. The messages of two ranks may then name different ranks as the
 * late one. With check = 1 it is noticed at once, and the message names the arrays. */

/* Fills the halo of one array. */
DPAR_API dpar_status dpar_grid_exchange(dpar_grid *grid, void *u);
/* Fills the halos of several arrays to a given depth, with one message to each neighbour. Steps of
 * a code may need different arrays and depths: each combination is planned when it first occurs.
 *
 * arrays: [count], 1 to 4096 of them.
 * depth:  cells of the halo, counted from the own cells; 0 selects the whole halo. More than that
 *         is DPAR_E_RANGE. */
DPAR_API dpar_status dpar_grid_exchange_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                             int32_t depth);
/* Starts an exchange of one array. Until its end own cells may be read but not written, and halo
 * cells must not be touched. Compute the interior meanwhile, and the boundary after the end.
 * Several exchanges may be in progress. */
DPAR_API dpar_status dpar_grid_begin(dpar_grid *grid, void *u);
/* Starts an exchange of dpar_grid_exchange_many, otherwise as dpar_grid_begin. */
DPAR_API dpar_status dpar_grid_begin_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                          int32_t depth);
/* Waits until the exchange that u takes part in is done. Several exchanges end in the same order on
 * all ranks. */
DPAR_API dpar_status dpar_grid_end(dpar_grid *grid, void *u);
/* Advances the exchange that u takes part in without waiting. Returns DPAR_OK if all has arrived
 * (end must still be called), or DPAR_MORE if not yet. Messages advance only inside calls, so call
 * it now and then while you compute the interior. Local. Fails as dpar_halo_plan_test. */
DPAR_API dpar_status dpar_grid_test(dpar_grid *grid, void *u);
/* Finds the own cells that can be computed during an exchange (the interior). Returns 1, or 0 if
 * there are none. They are further than the halo's width from all that an exchange or a mirror
 * fills.
 *
 * box: in the indices of loops, where 0 is the first own cell and hi is one past the last.
 *
 * Local. */
DPAR_API int dpar_grid_interior(const dpar_grid *grid, dpar_box *box);
/* Finds box n of the own cells that are not in the interior (the boundary). Returns 1, or 0 if
 * there is no such box. The boundary consists of at most 2 dims disjoint boxes, numbered from 0.
 * Local. */
DPAR_API int dpar_grid_boundary(const dpar_grid *grid, int32_t n, dpar_box *box);

/* ---- the whole array, files, pictures ---- */

/* Gathers all points of an array in `whole` on rank 0.
 *
 * whole: [points of the whole array][components], dense in C order; ignored on other ranks. For
 *        arrays in a device's memory it is memory that the device reaches.
 *
 * Collective. Fails on all ranks with DPAR_E_ARG, DPAR_E_MEMORY or DPAR_E_MISMATCH. Costs one
 * message per rank, and memory for a block. */
DPAR_API dpar_status dpar_grid_gather(dpar_grid *grid, void *u, void *whole);
/* Scatters `whole` of rank 0 to the own points of all ranks, otherwise as dpar_grid_gather. */
DPAR_API dpar_status dpar_grid_scatter(dpar_grid *grid, void *u, const void *whole);
/* Computes which part of the whole array this rank has, for files (MPI-IO, HDF5, NetCDF) that any
 * number of ranks can read again. A NULL field means cells. Local. Fails with DPAR_E_ARG or
 * DPAR_E_RANGE, without a message, if dpar_grid_attach would refuse the field. */
DPAR_API dpar_status dpar_grid_block(const dpar_grid *grid, const dpar_grid_field *field,
                                     dpar_grid_part *part);
/* Draws which rank owns which cells, as text. The grid is described in one line. A table of ranks
 * by the cells of the last two dims follows for each part of the other dims. Local. Costs
 * O(ranks). */
DPAR_API void dpar_grid_draw(const dpar_grid *grid, dpar_text *out);

/* ---- the full API ---- */

/* Returns the halo of the grid's cells, for the functions dpar_halo_x of dpar.h. It exists as long
 * as the grid. */
DPAR_API const dpar_halo *dpar_grid_halo(const dpar_grid *grid);
/* Returns the plan of an exchange of these arrays, and makes it if there is none, for adjoints,
 * tests and reports (halo_exchange.h, dpar_debug.h). The plan is bound to these arrays and does not
 * include mirrors. It exists as long as the grid. Returns NULL on failure, with the message in
 * comm->why. Collective. */
DPAR_API dpar_halo_plan *dpar_grid_plan(dpar_grid *grid, void *const *list, int32_t n);

#endif
