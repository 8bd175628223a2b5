/* SPDX-License-Identifier: MIT-0 */
/* grid - a grid cut over ranks, arrays on it, and their halos in one call: the usual case, with
 * memory of its own. The program is in the first lines of this header. In a code that has MPI, a
 * communicator of MPI_Cart_create and arrays of its own it comes to this:
 *
 *     d.cells[0] = ny, d.cells[1] = nx, d.halo = 1, d.type = DPAR_F64;
 *     dpar_mpi_grid_make(cart, NULL, &d, &g, &why);       its process grid and periods are the
 * grid's
 *     ...
 *     dpar_grid_exchange(g, u);                      u: the address of its first own cell
 *     ...
 *     dpar_grid_free(g);
 *
 * (dpar_mpi.h: shared memory in a node, MPI between nodes.) Arrays that lie otherwise are made
 * known by dpar_grid_attach. With another process grid: dpar_mpi_make, d.parts, dpar_grid_make.
 *
 * An array is known by the address of its first own point. Its halo lies before and after it: u[-1]
 * is the neighbour below in the last dim. Functions with a `list` take several arrays and send one
 * message to each neighbour for all of them. The first exchange of a combination of shapes plans
 * and allocates; later ones do neither. Arrays of one shape may be swapped without a word. A shape
 * is a type, a dpar_grid_field and whether the array lies in registered memory (dpar_comm_alloc).
 *
 * Halo cells inside the grid, or round a periodic end, get what their owner has. Those beyond a
 * mirror get the reflected values, edges and corners too. Those beyond other ends are never
 * touched: the code keeps its boundary values there.
 *
 * What has no `why` leaves its sentence in g->comm->why. For all else there is the full API of
 * halo_exchange.h, on which this is built: dpar_grid_halo and dpar_grid_plan lead to it. */
#ifndef DPARI_HALO_GRID_H
#define DPARI_HALO_GRID_H

#include "../base/text.h"
#include "../comm/comm.h"
#include "halo_exchange.h"

/* Where points lie in a dim of a field (dpar_grid_field.at): in the middle of the cells
 * (DPAR_HALO_AT_CELLS, 0), or on the faces between them. */
enum { DPAR_HALO_AT_FACES = DPAR_HALO_AT_LOW_FACES };

/* What lies beyond an end of a dim. The wall is the outer face of the end cell, or goes through its
 * middle: then the end cell itself is its own image. */
enum { DPAR_GRID_MIRROR_NONE, DPAR_GRID_MIRROR_FACE, DPAR_GRID_MIRROR_CELL };

/* A grid. Zero it, say dims, cells and halo, and what differs. The same on all ranks. */
typedef struct dpar_grid_desc {
    int32_t dims;                       /* 1..DPAR_MAX_DIMS; the last is contiguous in memory */
    int32_t star;                       /* 1: no edges and corners, but for fields on faces, which
                                           have them all the same. 0: all neighbours, a box */
    int64_t cells[DPAR_MAX_DIMS];       /* of the whole grid, at least 1 */
    int64_t halo;                       /* cells on every side of every dim */
    int64_t low[DPAR_MAX_DIMS];         /* in place of it, where not 0: below, */
    int64_t high[DPAR_MAX_DIMS];        /* and above. (One side alone, one dim alone: halo 0) */
    int32_t periodic[DPAR_MAX_DIMS];    /* 1: the end of the dim meets its beginning */
    int32_t mirror_low[DPAR_MAX_DIMS];  /* DPAR_GRID_MIRROR_x, at cell 0, */
    int32_t mirror_high[DPAR_MAX_DIMS]; /* and at the last one */
    int32_t parts[DPAR_MAX_DIMS]; /* ranks along the dim; 0: chosen for the least halo. A dim that
                                     has no halo is then left whole, if another one has. For arrays
                                     of your own say your parts: attach cannot see their sizes */
    int32_t order; /* which rank has which block. DPAR_ORDER_LAST_FASTEST (0): neighbours in the
                      last dim follow one another, as in MPI_Cart; or DPAR_ORDER_FIRST_FASTEST */
    int32_t check; /* 1: each exchange compares which arrays the ranks handed in: E_MISMATCH. Costs
                      a small all-reduce an exchange */
    const int64_t *cuts[DPAR_MAX_DIMS]; /* NULL: the first (cells mod parts) ranks have one cell
                                           more; or parts + 1 numbers, from 0 to cells: part p has
                                           cells cuts[p] to cuts[p+1] - 1, one at least. Copied */
    const dpar_mem *mem; /* where arrays are that the CPU does not reach; as long as the grid. NULL:
                            as the communicator says, see dpar_comm.mem */
    int32_t type; /* DPAR_F64, ...: any address that is not known otherwise is an array of cells of
                     this type, dense in C order with its halo: your own arrays need no
                     dpar_grid_attach. They may move from call to call, on each rank for itself.
                     0: an address that is not known is E_ARG */
    int32_t closes;     /* 1: dpar_grid_free closes the communicator, too */
    dpar_why *free_why; /* where dpar_grid_free puts its sentence, too: with closes, and with
                           dpar_mpi_grid_make, grid->comm is gone then. Each rank its own; as long
                           as the grid. NULL: nowhere */
    int64_t own[DPAR_MAX_DIMS]; /* this rank's cells as your code has them; they differ by rank. 0:
                                   not compared. E_ARG on all ranks where the grid's cut gives
                                   others, because your rule is another or dims are in another
                                   order */
} dpar_grid_desc;

/* Made by dpar_grid_make; to be read. */
typedef struct dpar_grid {
    dpar_comm *comm;
    int32_t dims;
    int32_t parts[DPAR_MAX_DIMS];  /* ranks along each dim, */
    int32_t coord[DPAR_MAX_DIMS];  /* and where among them this one is */
    int64_t cells[DPAR_MAX_DIMS];  /* of the whole grid; */
    int64_t first[DPAR_MAX_DIMS];  /* of them the first own one, */
    int64_t own[DPAR_MAX_DIMS];    /* and how many */
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours in an array of cells of
                                      dpar_grid_array (dense, with its halo) */
} dpar_grid;

/* What an array holds and how it lies. Zero it and fill in what differs; type and field are the
 * same on all ranks, strides need not be. */
typedef struct dpar_grid_field {
    int32_t components; /* elements at each point; 0: 1 */
    int32_t order; /* dense arrays. DPAR_ORDER_LAST_FASTEST (0): C, or DPAR_ORDER_FIRST_FASTEST: dim
                      0 is the contiguous one */
    int32_t at[DPAR_MAX_DIMS]; /* DPAR_HALO_AT_CELLS or DPAR_HALO_AT_FACES. Faces in one dim: a flux
                                  or a velocity; in all dims: vertices. A rank has own + 1 faces,
                                  the outer ones shared with its neighbours, and the halo
                                  beyond; the upper shared one gets the neighbour's value */
    uint32_t odd[DPAR_MAX_DIMS];   /* bit k: component k changes its sign at mirrors of this dim, as
                                      the velocity across it does. No bits of others */
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours, any order and padding; all 0:
                                      dense with its halo */
    int64_t component_stride;      /* elements between components; 0: 1, they lie together */
} dpar_grid_field;

/* A rank's part of an array, as MPI_Type_create_subarray, H5Sselect_hyperslab and nc_put_vara want
 * it; components would be one more dim. */
typedef struct dpar_grid_part {
    int64_t whole[DPAR_MAX_DIMS];  /* points of the whole array, each once; */
    int64_t start[DPAR_MAX_DIMS];  /* of them the first that this rank owns, */
    int64_t count[DPAR_MAX_DIMS];  /* and how many */
    int64_t memory[DPAR_MAX_DIMS]; /* points of its array, with the halo; */
    int64_t inside[DPAR_MAX_DIMS]; /* of them the first that it owns; */
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours, */
    int64_t component_stride;      /* and between components */
} dpar_grid_part;

/* ---- a grid and its arrays ---- */

/* Cuts the grid over the ranks of c, a block each. COLLECTIVE. E_ARG, E_DIVIDE, E_NONE, E_RANGE
 * with the sentence on all ranks; E_MISMATCH: ranks gave different grids. O(sum of parts). */
DPAR_API dpar_status dpar_grid_make(dpar_comm *c, const dpar_grid_desc *desc, dpar_grid **grid,
                                    dpar_why *why);
/* Closes what was planned and gives the arrays of dpar_grid_array back. The grid is gone then:
 * nothing may be asked of it, nor a second free. COLLECTIVE. NULL is fine. E_ARG, and nothing done:
 * an exchange has not ended. Else errors as dpar_halo_plan_close, and all is given back; the
 * sentence is in desc.free_why, and in the communicator's why where that is not closed. After
 * dpar_comm_free of its communicator it is local and gives the grid's own memory back: OK.
 * (Between the two all else that is asked of the grid is E_ARG. After the close of its world
 * grid->comm is NULL.) */
DPAR_API dpar_status dpar_grid_free(dpar_grid *grid);
/* An array with its halo from the communicator's memory, where neighbours read it directly: the
 * fastest. Zeroed. Returns the address of its first own point (aligned to 64); NULL on all ranks:
 * the sentence is in comm->why (E_ARG, E_RANGE, E_MEMORY, E_MISMATCH). The second form takes a
 * field: faces, components. COLLECTIVE: some small all-reduces. */
DPAR_API void *dpar_grid_array(dpar_grid *grid, int32_t type);
DPAR_API void *dpar_grid_array_of(dpar_grid *grid, int32_t type, const dpar_grid_field *field);
/* Makes an array of your own known by `u`, the address of its first own point. field NULL: cells,
 * dense in C order with the grid's halo, as those of desc.type. In registered memory neighbours
 * read it where it lies. It stays where it is as long as it is exchanged. What lies beyond the
 * grid's open ends needs no memory.
 *
 * A second one at the same address takes its place. So does one that has elements in common with
 * it: memory may be given back and used again. Some components of a known array may be a second
 * one: the same points and strides. Then both are known.
 *
 * COLLECTIVE. E_ARG, E_RANGE, E_MISMATCH with the sentence on all ranks, and nothing is changed.
 * Strides that put two points into one place are E_ARG, those that reach beyond 2^57 bytes E_RANGE.
 * E_ARG: an exchange of what lies there has not ended, or it has elements in common with an array
 * of dpar_grid_array. */
DPAR_API dpar_status dpar_grid_attach(dpar_grid *grid, void *u, int32_t type,
                                      const dpar_grid_field *field, dpar_why *why);

/* ---- exchanges ----
 *
 * All of these are COLLECTIVE, with the same arrays in the same order on all ranks. The first of a
 * combination costs as dpar_halo_plan_init, later ones as dpar_halo_plan_exchange and some 10 ns
 * an array. E_ARG: an address that is no array of the grid, or one within another array, or an
 * array whose exchange has begun and not ended. It is of this rank alone, whose others then wait
 * for it until the deadline. Else errors as these two.
 *
 * A rank that calls another operation instead, a barrier say, is E_MISMATCH. That is told at once
 * in the first exchange of a combination, and in a grid with check = 1. Else it takes a second at
 * most between ranks that share memory. Between others it takes the deadline. The sentence says
 * where each is.
 *
 * Ranks that exchange different arrays wait for each other until the deadline, where both exchanges
 * are planned and check is 0. Each rank's sentence may then name another one, or itself, as the one
 * that did not come. With check = 1 it is told at once, with the arrays. */

/* Fills the halo of one array; of n arrays with one message a neighbour. */
DPAR_API dpar_status dpar_grid_exchange(dpar_grid *grid, void *u);
DPAR_API dpar_status dpar_grid_exchange_many(dpar_grid *grid, void *const *list, int32_t n);
/* Of list[0 .. n-1] (n <= 64) those whose bit is in `mask`, `depth` halo cells deep (0: all that
 * there are; E_RANGE: more). For codes whose steps need different fields and depths: each
 * combination is planned when it first comes. DONE, and nothing done: mask has none of the bits. */
DPAR_API dpar_status dpar_grid_exchange_some(dpar_grid *grid, void *const *list, int32_t n,
                                             uint64_t mask, int32_t depth);
/* Plans such an exchange now, so that the first one does not. */
DPAR_API dpar_status dpar_grid_prepare(dpar_grid *grid, void *const *list, int32_t n, uint64_t mask,
                                       int32_t depth);
/* Starts an exchange of one array, or as dpar_grid_exchange_some. Until its end own cells may be
 * read, not written, and halos neither: compute the core. Then the rim. Several may be under way.
 */
DPAR_API dpar_status dpar_grid_begin(dpar_grid *grid, void *u);
DPAR_API dpar_status dpar_grid_begin_many(dpar_grid *grid, void *const *list, int32_t n,
                                          uint64_t mask, int32_t depth);
/* Ends the exchange that u takes part in. Several end in the same order on all ranks. */
DPAR_API dpar_status dpar_grid_end(dpar_grid *grid, void *u);
/* Between the two, now and then in a long core: messages move only inside of calls. OK: all has
 * come; MORE: not yet (end all the same). Local; errors as dpar_halo_plan_test. */
DPAR_API dpar_status dpar_grid_test(dpar_grid *grid, void *u);
/* core: the own cells that are further than the halo's width from what an exchange or a mirror
 * fills. rim: the n-th of the disjoint boxes that make up the others, at most 2 dims of them. In
 * the numbers of the loops: 0 is the first own cell, hi one past the last. 0: there is none, or no
 * n-th. Local. */
DPAR_API int dpar_grid_interior(const dpar_grid *grid, dpar_box *box);
DPAR_API int dpar_grid_boundary(const dpar_grid *grid, int32_t n, dpar_box *box);

/* ---- the whole array, files, pictures ---- */

/* All points of an array to `whole` of rank 0, each once, dense in C order, components last; and
 * from there to the own points of all ranks. Elsewhere `whole` is not looked at (NULL). Arrays in a
 * device's memory: whole is memory that the device reaches. COLLECTIVE. E_ARG, E_MEMORY,
 * E_MISMATCH on all ranks. A message a rank, and memory for a block. */
DPAR_API dpar_status dpar_grid_gather(dpar_grid *grid, void *u, void *whole);
DPAR_API dpar_status dpar_grid_scatter(dpar_grid *grid, void *u, const void *whole);
/* Which part of a whole array this rank has: to write and read files (MPI-IO, HDF5, NetCDF) that
 * any number of ranks can read again. field NULL: of cells. Local. E_ARG, E_RANGE without a
 * sentence: what dpar_grid_attach would refuse. */
DPAR_API dpar_status dpar_grid_block(const dpar_grid *grid, const dpar_grid_field *field,
                                     dpar_grid_part *part);
/* Who owns what, as text: the grid in one line, then a table of ranks by the cells of the last two
 * dims, one for each part of the others. Local. O(ranks). */
DPAR_API void dpar_grid_draw(const dpar_grid *grid, dpar_text *out);

/* ---- the full API ---- */

/* The halo of its cells: for dpar_halo_x of dpar.h. As long as the grid. */
DPAR_API const dpar_halo *dpar_grid_halo(const dpar_grid *grid);
/* The plan of an exchange of these arrays, over them, made now where there is none: for adjoints,
 * tests, reports (halo_exchange.h, dpar_debug.h). Mirrors are not in it. As long as the grid. NULL:
 * the sentence is in comm->why. COLLECTIVE. */
DPAR_API dpar_halo_plan *dpar_grid_plan(dpar_grid *grid, void *const *list, int32_t n);

#endif
