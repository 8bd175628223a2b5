/* SPDX-License-Identifier: MIT-0 */
/* dpar_halo.h - cuts grids over ranks and exchanges the halos of their arrays in one call.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * This program computes the heat on a plate that is hot beyond the end y < 0 and periodic in x, on any number of ranks:
 *
 *     #include "dpar_halo.h"
 *     #include <stdio.h>
 *     static int heat(dpar_comm *world, void *unused)
 *     {
 *         dpar_grid_desc desc = {0};
 *         dpar_grid *g;
 *         dpar_why why;
 *         double *u, *v, *t, change;
 *         int64_t y, x;
 *         (void)unused;
 *         desc.dims = 2;
 *         desc.cells[0] = 60;                              y
 *         desc.cells[1] = 100;                             x, contiguous in memory
 *         desc.halo = 1;                                   one cell on every side
 *         desc.periodic[1] = 1;
 *         if (dpar_grid_make(world, &desc, &g, &why) < 0) {
 *             return dpar_fail(world, &why);
 *         }
 *         u = (double *)dpar_grid_array(g, DPAR_F64, NULL);      u[0] is the first own cell; the halo is around these
 *         v = (double *)dpar_grid_array(g, DPAR_F64, NULL);
 *         if (u == NULL || v == NULL) {
 *             return dpar_fail(world, NULL);
 *         }
 *         if (g->first[0] == 0) {                          the hot end; exchanges do not touch these cells
 *             for (x = -1; x <= g->count[1]; x++) {
 *                 u[x - g->stride[0]] = 1.0;
 *                 v[x - g->stride[0]] = 1.0;
 *             }
 *         }
 *         do {
 *             if (dpar_grid_exchange(g, u) < 0) {
 *                 return dpar_fail(world, NULL);
 *             }
 *             change = 0.0;
 *             for (y = 0; y < g->count[0]; y++) {
 *                 for (x = 0; x < g->count[1]; x++) {
 *                     const double *from = u + y * g->stride[0] + x;
 *                     const double around = from[-1] + from[1] + from[-g->stride[0]] + from[g->stride[0]];
 *                     const double step = 0.2 * (around - 4.0 * from[0]);
 *                     v[y * g->stride[0] + x] = from[0] + step;
 *                     change = step > change ? step : change;
 *                 }
 *             }
 *             t = u;
 *             u = v;
 *             v = t;
 *         } while (dpar_max(world, change) > 1e-3);
 *         if (world->rank == 0) {
 *             printf("next to the hot end: %.6f\n", u[0]);
 *         }
 *         if (dpar_grid_free(g) < 0) {
 *             return dpar_fail(world, NULL);
 *         }
 *         return 0;
 *     }
 *     int main(int argc, char **argv)
 *     {
 *         return dpar_launch_main(argc, argv, heat, NULL);      --ranks 4, or under mpiexec, srun, torchrun
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours && ./yours --ranks 4
 *
 * Other functions that you may need:
 *
 *     dpar_grid_attach(g, u, DPAR_F64, &field, &why)    exchanges your own array: any order, strides, faces, vertices
 *     dpar_grid_array(g, DPAR_F64, &field)              makes such an array in registered memory
 *     dpar_grid_exchange_many(g, arrays, 3, 2)          exchanges 3 arrays 2 cells deep, one message per neighbour
 *     dpar_grid_begin(g, u)                             starts an exchange (dpar_grid_begin_many: of several arrays)
 *     dpar_grid_interior(g, &box)                       finds the cells to compute meanwhile; call dpar_grid_test
 *     dpar_grid_end(g, u)                               waits until the exchange is complete
 *     dpar_grid_boundary(g, n, &box)                    finds the other cells
 *     dpar_grid_gather(g, u, whole)                     gathers the whole array on rank 0 (reverse: dpar_grid_scatter)
 *     dpar_grid_block(g, NULL, &part)                   describes this rank's part for MPI-IO, HDF5, NetCDF
 *     dpar_grid_draw(g, &text)                          draws which rank owns which cells (#include "dpar_debug.h")
 *     dpar_grid_halo(g), dpar_grid_plan(g, list, n)     give access to the full API: folds, poles, cubed spheres,
 *                                                       masks, adjoints, narrower types in messages, your own memory
 */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_comm.h")
#error dpar_halo.h needs dpar_comm.h beside it, of the same release
#endif
#endif
#include "dpar_comm.h"
#endif
#if DPAR_VERSION != 200
#error dpar_halo.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_HALO_H
#define DPAR_HALO_H

/* ==== halo/halo_exchange.h ==== */

/* halo_exchange - exchanges the halos of any number of fields of one grid, in your memory, over any
 * communicator. For the usual grid, grid.h needs less code. halo.h in dpar.h computes which points
 * a halo has and which ranks own them. The functions here plan an exchange once, with one message
 * per peer for all fields, and run it as often as you like.
 *
 * In this example 4 ranks, started by dpar_launch(4, heat, NULL, NULL, NULL), share 120 rows of 100
 * columns. The rows are distributed, the columns are periodic, and the halo is one point wide on
 * all sides. The tests compile and run it:
 *
 *     static int heat(dpar_comm *c, void *unused)
 *     {
 *         const int64_t cells[2] = {120, 100};
 *         const dpar_placement cut[1] = {dpar_shard(0)};
 *         dpar_mesh mesh;
 *         dpar_halo halo = {0};
 *         dpar_halo_field field = {0};
 *         dpar_halo_plan_desc desc = {0};
 *         dpar_halo_plan *plan = NULL;
 *         dpar_box box, todo;
 *         dpar_why why;
 *         int64_t step;
 *         int n;
 *         (void)unused;
 *         if (dpar_mesh_init(&mesh, "rows", &c->size, DPAR_ORDER_LAST_FASTEST, 0, &why) < 0 ||
 *             dpar_layout_init(&halo.grid, &mesh, 2, cells, cut, &why) < 0) {
 *             return dpar_fail(c, &why);
 *         }
 *         halo.low[0] = halo.high[0] = 1;
 *         halo.low[1] = halo.high[1] = 1;
 *         halo.periodic = 1u << 1;
 *         dpar_halo_box(&halo, c->rank, &box);
 *         field.halo = &halo;
 *         field.type = DPAR_F64;
 *         if (dpar_comm_alloc(c, dpar_box_volume(&box) * 8, &field.data) < 0) {
 *             return dpar_fail(c, NULL);
 *         }
 *         desc.field = &field;
 *         desc.field_count = 1;
 *         if (dpar_halo_plan_make(c, &desc, &plan, &why) < 0) {
 *             return dpar_fail(c, &why);
 *         }
 *         for (step = 0; step < 10; step++) {
 *             if (dpar_halo_plan_begin(plan) < 0) {
 *                 return dpar_fail(c, NULL);
 *             }
 *             if (dpar_halo_interior(&halo, c->rank, &todo)) {
 *                 compute(&field, &box, &todo);
 *             }
 *             if (dpar_halo_plan_end(plan) < 0) {
 *                 return dpar_fail(c, NULL);
 *             }
 *             for (n = 0; dpar_halo_boundary(&halo, c->rank, n, &todo); n++) {
 *                 compute(&field, &box, &todo);
 *             }
 *         }
 *         if (dpar_halo_plan_free(plan) < 0) {
 *             return dpar_fail(c, NULL);
 *         }
 *         dpar_comm_release(c, field.data);
 *         return 0;
 *     }
 *
 * A box [lo, hi) is given in points of the whole grid. `compute` stands for your code. It reads
 * field.data, whose first element is point box.lo, and writes a second array; dpar_halo_plan_bind
 * then puts the second array into the plan. Arrays from dpar_comm_alloc are exchanged fastest, if
 * they were allocated with comm or with another communicator of its world (dpar_comm_split). Arrays
 * from malloc work too, but are packed, as dpar_halo_plan_report shows. Error messages are in
 * `why`, or in comm->why for functions without that argument.
 *
 * A halo cell receives the value that its owner had at `begin`. The owner's cell is inside the
 * grid, beyond a periodic end, or across a fold, a pole or an edge of a cube. Cells beyond a
 * physical end are not touched. Own cells are not touched either, except for the half row that a
 * fold has twice. Results have the same bits on every engine and in every order of arrival.
 *
 * Between begin and end own cells may be read but not written, because peers may read them in
 * place. Halo cells must be neither read nor written.
 *
 * Cost. Latency is paid once per peer, for all fields together. Between ranks that share memory, a
 * halo byte is read and written once if runs are long, and twice if they are short or AUTO packs
 * them. With messages it is read and written twice, and once more by the transport. Halos that a
 * rank sends to itself (in a periodic dim with one rank) are copied without a message. No memory is
 * allocated after make, except that the list of messages in dpar_mpi.h may grow during the first
 * exchanges. */

/* A field of a plan: an array with its halo. Zero it, then set the fields that you need: halo, type
 * and data are enough for a dense array in C order of dpar_halo_box. */
typedef struct dpar_halo_field {
    const dpar_halo *halo; /* the field's points and the widths to exchange. The fields of one plan
                              may have different points, widths and dims */
    const dpar_halo *array_halo; /* the halo that the array has, if it is wider than the one to
                                    exchange (see "Two widths" below); otherwise NULL */
    int32_t type;                /* DPAR_F64, ...; no default */
    /* 0 for scalars. 1 if each component changes its sign across a fold or a pole. 2 for two
     * components on a cubed sphere, u along the last dim and v along the one before it, which are
     * rotated across the sphere's edges. */
    int32_t vector;
    /* For two fields at cell faces of a cubed sphere: DPAR_HALO_PAIR_U in one field, and
     * DPAR_HALO_PAIR_V in the next one. With vector 1 their signs change across edges; with
     * vector 0 both are scalars. */
    int32_t pair;
    /* The type in which values are sent: F32 for F64, F16 or BF16 for F32. 0 sends them as they
     * are. Values are rounded to nearest even if no message is needed, so that all engines give the
     * same bits. */
    int32_t wire_type;
    int32_t components; /* elements at each point; 0 selects 1 */
    /* Set by dpar_grid for dpar_grid_field.direction; leave it NULL. [components][DPAR_MAX_DIMS]: a
     * component is received below the block where this is positive, above it where negative. */
    const int8_t *direction;
    int64_t component_stride; /* elements between components; 0 selects 1. Any other number, as for
                                 one plane per component, requires strides (DPAR_E_ARG) */
    /* Component k of point p is data[sum over d of (first[d] + p[d] - own.lo[d]) * stride[d] +
     * k * component_stride], where `own` is the box of dpar_halo_owned. If no stride is set, the
     * array is dense in C order with components last.
     *
     * Any order and any padding is possible. Fortran's a(0:nx+1, 0:ny+1) around nx x ny own points,
     * with x as dim 1, has stride = {nx + 2, 1} and first = {1, 1}. */
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours along each dim; dense if all 0 */
    int64_t first[DPAR_MAX_DIMS];  /* index of the first own point in the array, if strides are set;
                                      otherwise ignored. If all are 0, data is the address of that
                                      point, so that halo points may have lower addresses */
    void *data; /* address of element 0, 0, ... of the array; NULL on a rank without points */
    /* For the compact form, in which `data` has only the own points: the address of the halo. It
     * consists of slabs (dpar_halo_slab) one after the other, each dense in C order with components
     * last. Otherwise NULL. */
    void *compact_halo;
    /* Functions to reach data and halos if the CPU cannot: a device's table, which must exist as
     * long as the plan. NULL for host memory. Ranks may pass different ones. If comm has its own
     * memory and no ranks share memory, this must be comm->mem. The host then does not wait for the
     * device, and dpar_halo_plan_check fails with DPAR_E_ARG. */
    const dpar_mem *mem;
} dpar_halo_field;

/* The roles in a pair of vector fields on a cubed sphere. The two fields are next to each other in
 * the list: u along the last dim, then v along the one before it, each with its own points. A
 * C-grid has u at the faces of cells along x and v at the faces along y, both LOW or both HIGH. A
 * D-grid has them the other way round. Across an edge of the sphere with one or three quarter
 * turns, u's halo receives v's points and v's halo receives u's.
 *
 * Their widths may differ. DPAR_E_ARG is returned if their halos have windows, or if they differ in
 * grid, owners, type, wire_type, components, vector or kind of memory. In a plan with desc.shared,
 * an exchange copies the points on the sphere's edges from their owners to the other ranks that
 * hold them, and reduce adds them up. Each rank gets them in its own direction. With dims face, y,
 * x and n + 1 faces in a row of n cells:
 *
 *     u.points[2] = v.points[1] = DPAR_HALO_AT_LOW_FACES;
 *     u.low[1] = u.low[2] = u.high[1] = v.low[1] = v.low[2] = v.high[2] = w;
 *     u.high[2] = v.high[1] = w + 1;
 *     f[0].halo = &u;
 *     f[0].vector = 1;
 *     f[0].pair = DPAR_HALO_PAIR_U;
 *     f[1].halo = &v;
 *     f[1].vector = 1;
 *     f[1].pair = DPAR_HALO_PAIR_V; */
enum { DPAR_HALO_PAIR_U = 1, DPAR_HALO_PAIR_V = 2 };

/* Two widths of one array. A code that needs 3 halo points once per step and 1 halo point in its
 * substeps makes two plans for the array, whose fields differ in `halo`. Bind both plans when
 * arrays are swapped:
 *
 *     dpar_halo thin = wide;                           field.halo is &wide
 *     thin.low[0] = thin.high[0] = thin.low[1] = thin.high[1] = 1;
 *     dpar_halo_field inner = field;
 *     inner.halo = &thin;
 *     inner.array_halo = &wide;
 *
 * With strides, `first` is the index of the first own point of array_halo. Making the plan fails
 * with DPAR_E_ARG if the two halos differ in grid, mesh, owners or points, or if the halo is
 * compact, because its buffer has only one width. It fails with DPAR_E_RANGE if `halo` is wider
 * than array_halo. */

/* How halos are exchanged. */
enum {
    DPAR_HALO_AUTO,     /* DIRECT if peers' memory can be reached, otherwise messages. With more
                           ranks than cores, boxes of less than 64 KiB are packed. Boxes in a
                           device's memory are always packed */
    DPAR_HALO_MESSAGES, /* packed into one message per peer */
    DPAR_HALO_PACKED,   /* packed into memory that the peer reads */
    DPAR_HALO_DIRECT    /* peers read long runs in place; their owner packs short ones */
};

/* The fields of an exchange and its method. Zero it and set field and field_count; 0 selects the
 * default of all other fields. All ranks must pass the same values, except for strides, addresses,
 * timers and memory. */
typedef struct dpar_halo_plan_desc {
    const dpar_halo_field *field; /* [field_count]; read only by make and tune */
    int32_t field_count;          /* 1 .. 4096 */
    int32_t method;               /* DPAR_HALO_x */
    /* 1 exchanges one dim after the other, the last dim first, so that values reach edges in two
     * steps and corners in three. This takes fewer messages and more waits. It is DPAR_E_ARG with
     * folds, poles, cubes, masked owners, windows, compact halos, and edges without corners.
     *
     * 0 exchanges one dim after the other only if that takes no more waits, and otherwise all dims
     * at once. It takes no more waits for fields of cells in the CPU's memory, with corners, if at
     * most one dim is cut. If that dim is not the last one, the messages of a forward exchange wait
     * for no other step, because edges and corners are copied from halo cells that the messages
     * have filled. */
    int32_t ordered;
    /* 1 exchanges only shared points, which several ranks hold: faces, edges and corners between
     * blocks (DPAR_HALO_AT_x_FACES), and the row that a fold has twice. Widths must be as
     * DPAR_HALO_SYNC documents, otherwise it is DPAR_E_ARG. Such a plan cannot be ordered. */
    int32_t shared;
    int64_t run_bytes; /* for DIRECT: number of bytes from which a run is long; 0 selects 64 */
    int32_t tag;       /* of the messages. Several plans may have the same tag, but your own
                          messages between begin and end must have another one */
    int32_t timers; /* 1 keeps times for dpar_halo_plan_report, which takes two clock readings per
                       phase */
    /* Your memory for the plan, aligned to 64, which must exist as long as the plan. With NULL and
     * bytes 0, dpar_halo_plan_make allocates it. If bytes are too few, the call fails with
     * DPAR_E_ROOM, and why->bytes is the number that this rank needs. */
    void *memory;
    int64_t bytes;
} dpar_halo_plan_desc;

/* A planned exchange of halos. Its contents are private. */
typedef struct dpar_halo_plan dpar_halo_plan;

/* Plans an exchange. All ranks must describe the same fields (their number, types, points and
 * widths), each with its own arrays.
 *
 * The fields' arrays and halos must stay in place as long as the plan exists. They may be
 * interleaved, but no two of them may have an element in common, except for cells beyond physical
 * ends, and none may have an element in the plan's memory. The call fails with DPAR_E_ARG if a
 * search of at most 2^20 steps finds such an element. An array from dpar_comm_alloc must end inside
 * its allocation, rounded up to whole pages of 4096 bytes (DPAR_E_ARG). The extent of other arrays
 * cannot be checked.
 *
 * Collective over comm. Fails on all ranks with DPAR_E_MISMATCH if fields differ between ranks, and
 * with DPAR_E_ARG, DPAR_E_RANGE, DPAR_E_MEMORY, or DPAR_E_ROOM if desc.bytes are too few. Costs
 * several messages per peer. Staging memory comes from dpar_comm_alloc. */
DPAR_API dpar_status dpar_halo_plan_make(dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                         dpar_halo_plan **plan, dpar_why *why);
/* Replaces the array of a field by another array of the same shape, for codes that swap old and new
 * values. Call it between exchanges. The new array must be as large as the old one and must have no
 * element in common with other fields; neither is checked.
 *
 * Local. Fails with DPAR_E_ARG if the field does not exist, an exchange has not ended, or the
 * arrays passed are not those that the field was planned with (data, halos or both). Also fails
 * with DPAR_E_ARG if the old array is in registered memory, where peers may read it in place, and
 * the new one is not. The message is in comm->why. Costs O(1). */
DPAR_API dpar_status dpar_halo_plan_bind(dpar_halo_plan *plan, int32_t field, void *data,
                                         void *halos);
/* Starts an exchange: packs values, posts messages and copies the halos that the rank sends to
 * itself. Until dpar_halo_plan_end, own cells may be read but not written, and halo cells must be
 * neither read nor written.
 *
 * Collective. All ranks of comm must begin exchanges in the same order, but each waits only for its
 * peers. A rank may wait here for peers that have not yet read the values that it packed two
 * exchanges ago. Several plans may be in progress at a time, even over the same fields if no plan
 * writes values that another one reads. If a plan sends its messages in several steps, the next
 * begin over comm posts those that are left and waits for the values that they need.
 *
 * Fails with DPAR_E_PEER or DPAR_E_TIMEOUT as comm.h describes, which breaks the communicator; the
 * message is in comm->why. Fails with DPAR_E_MISMATCH on ranks that notice that a peer has begun
 * the adjoint or has passed another op. Fails with DPAR_E_ARG on a rank where an exchange of this
 * plan has not ended; its peers then wait for it until the deadline. Begin and end together cost
 * O(pieces + bytes), which dpar_halo_plan_report lists. */
DPAR_API dpar_status dpar_halo_plan_begin(dpar_halo_plan *plan);
/* Starts the adjoint (transpose) of an exchange: owners receive the values of the halos and combine
 * them by `op` with their own, and the halos become 0. Until dpar_halo_plan_end neither own cells
 * nor halo cells may be read or written.
 *
 * op: DPAR_SUM, DPAR_MAX or DPAR_MIN.
 *
 * Sums are made field by field in the order of the pieces, which never depends on arrival. Ordered
 * plans proceed one dim after the other, the first dim first. So do plans with desc.ordered 0 if
 * the forward exchange does and all fields are in the CPU's memory.
 *
 * Collective. Errors and cost are those of dpar_halo_plan_begin. Also fails with DPAR_E_ARG if op
 * is not one of these, or if a field's type cannot be combined. */
DPAR_API dpar_status dpar_halo_plan_reduce_begin(dpar_halo_plan *plan, int32_t op);
/* Advances an exchange as far as possible without waiting. Returns DPAR_OK if everything has
 * arrived (dpar_halo_plan_end must still be called), otherwise DPAR_MORE. Messages advance only
 * inside calls, so call it now and then between tiles of the interior. Local. Errors are those of
 * dpar_halo_plan_begin except for DPAR_E_TIMEOUT, because a test has no deadline. Costs O(peers +
 * bytes that it moves). */
DPAR_API dpar_status dpar_halo_plan_test(dpar_halo_plan *plan);
/* Waits until the exchange is complete and own cells may be written again. If several plans are in
 * progress, all ranks must end them in the same order. Returns DPAR_OK if no exchange is in
 * progress. Collective. Errors and cost are those of dpar_halo_plan_begin. */
DPAR_API dpar_status dpar_halo_plan_end(dpar_halo_plan *plan);
/* Runs an exchange: dpar_halo_plan_begin, then dpar_halo_plan_end. Collective. Errors and cost are
 * those of these functions. */
DPAR_API dpar_status dpar_halo_plan_exchange(dpar_halo_plan *plan);
/* Combines halo values with those of their owners: dpar_halo_plan_reduce_begin, then
 * dpar_halo_plan_end. If dpar_halo_plan_exchange follows, all holders of a point get the result.
 * With a plan of shared points these two calls are the assembly of finite elements. For an average,
 * also assemble an array of ones, which counts the holders, and divide by it.
 *
 * op: DPAR_SUM, DPAR_MAX or DPAR_MIN.
 *
 * A sum over two holders has the bits of the serial a + b. The values of more holders are added in
 * the order of their blocks, which is the same on all engines but depends on the number of ranks.
 * Collective. Errors are those of dpar_halo_plan_reduce_begin. Costs one exchange. */
DPAR_API dpar_status dpar_halo_plan_reduce(dpar_halo_plan *plan, int32_t op);
/* Frees a plan and its staging memory. NULL does nothing. Free plans before their communicator:
 * dpar_comm_free ends all plans that were made over it, and no call may use such a plan afterwards.
 *
 * Collective. Fails with DPAR_E_ARG if an exchange is in progress; the plan then still exists. If
 * an exchange has failed, returns the status of that exchange. Costs a barrier over the
 * communicator. */
DPAR_API dpar_status dpar_halo_plan_free(dpar_halo_plan *plan);

/* ---- choosing ---- */

/* Finds the fastest method for an exchange by measuring forward exchanges with each method, for
 * about 20 ms per method. Sets desc->method, desc->ordered and desc->run_bytes to it, and ignores
 * what they were before. All ranks get the same values; keep them in your code's configuration.
 *
 * desc:    the plan that you want to make. The call makes and frees plans in memory of its own.
 * seconds: receives the median time of an exchange on the slowest rank; may be NULL.
 *
 * Afterwards the fields' halos have been exchanged. The sums of ordered and unordered adjoints
 * differ by rounding, so keep the choice if runs must repeat their bits. Collective. Errors are
 * those of dpar_halo_plan_make and dpar_halo_plan_exchange. Costs up to 12 plans and measurements.
 */
DPAR_API dpar_status dpar_halo_plan_tune(dpar_comm *comm, dpar_halo_plan_desc *desc,
                                         double *seconds, dpar_why *why);

/* ==== halo/grid.h ==== */

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

#endif /* DPAR_HALO_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* Private functions that the headers above this one call. */
#ifndef DPARI_HALO_INTERNAL_H
#define DPARI_HALO_INTERNAL_H

/* ==== halo/halo_box_groups.h ==== */

/* halo_box_groups - moves several boxes of an exchange at once: the two sides of a block in one
 * loop, and tiny boxes from a list. Private. */

enum { DPARI_STRIDE_FEW = 8 }; /* the most runs of a box in a list */

/* One run in a list: offsets in bytes from the two addresses that are passed with the list. */
typedef struct dpari_stride_spot {
    int32_t to, from;
} dpari_stride_spot;

/* ==== halo/halo_plan.h ==== */

/* halo_plan - the data of a planned exchange. Private. The modules that work on it, lowest first:
 *
 *     halo_box_groups  copies two boxes in one loop, and many tiny boxes from a list
 *     halo_fields      checks the fields, and lists what must be equal on all ranks
 *     halo_overlap     checks that arrays have no element in common
 *     halo_walk        lists the boxes of a step
 *     halo_mem         moves boxes in memory that the CPU does not reach
 *     halo_prepare     chooses how each box is copied
 *     halo_items       lists the items of a plan
 *     halo_run         packs and takes boxes for the exchanges that ../exchange runs
 *     halo_view        shows the boxes of a plan to the checks of dpar_debug.h
 *     halo_traffic     lists the peers, the bytes and the method
 *     halo_exchange    makes the plan, together with the other ranks
 *     halo_tune        chooses a method by measuring
 *     grid             grids and their arrays, on top of all of these
 *
 * A plan lists boxes. ../exchange runs the exchanges: it waits for peers, publishes progress, posts
 * messages and calls back when a step is to be packed or has arrived. A box that is sent from one
 * rank to another is an item on both ranks. The owner of the points keeps its items in list S, in
 * the order of the walk. The holder of the halo keeps its items in list R, by peer. In a forward
 * exchange the owner packs and the holder takes. In the adjoint the holder packs and the owner
 * takes, in the order of S, so that the sums of a point are made in the order of the walk. Boxes
 * that a rank sends to itself are taken first if no peer's box precedes them, because they need not
 * wait.
 */

enum {
    DPARI_HX_DIMS = DPAR_MAX_DIMS + 1,      /* dims of the grid, then components */
    DPARI_HX_STEPS = 3 * DPAR_MAX_DIMS - 1, /* the most steps of an exchange dim by dim */
    DPARI_HX_SHORT = 64, /* two sides of a block are copied in one loop if runs have at most this
                            number of bytes */
    DPARI_HX_NEAR = 64,  /* number of items that are searched for the opposite side of a box */
    /* the ends of rows are prefetched in boxes of at most DPARI_HX_ROWS rows, if all boxes together
     * have at most DPARI_HX_ALL_ROWS rows; measured on a Xeon */
    DPARI_HX_ROWS = 1024,
    DPARI_HX_ALL_ROWS = 768,
    DPARI_HX_MANY = 8192, /* if a box has more elements, its first and last are not both cached */
    DPARI_HX_TINY = 8,    /* a box of at most this number of elements may be taken before boxes that
                             precede it; measured */
    DPARI_HX_CROWDED = 65536, /* bytes of a box, see dpari_hx_is_direct; measured */
    DPARI_HX_BESIDE = 64,     /* cells at most this number of bytes apart mostly share lines */
    DPARI_HX_HEAD = 8,        /* words of a record per step */
    DPARI_HX_OWN = 0,         /* parts of a field: its own points, and its compact halo */
    DPARI_HX_HALOS = 1,
    DPARI_HX_VERSION = 0 /* index of dpari_exchange_line.place: how often the addresses of this
                            rank's arrays have changed */
};

/* What a rank tells each peer about its array of a field. Strides are in elements. */
typedef struct dpari_hx_told {
    int64_t origin[DPAR_MAX_DIMS], stride[DPAR_MAX_DIMS], component;
    int32_t compact;
    int32_t reach[2];  /* of data and of halos: 1 if peers may read them in place */
    int32_t elsewhere; /* 1 if it is in memory that the CPU does not reach */
    int32_t reaches;   /* 1 if this rank reaches the memory of the peer */
    int32_t unused;
} dpari_hx_told;
enum { DPARI_HX_WORDS = sizeof(dpari_hx_told) / sizeof(int64_t) };

/* A field as one rank holds it. */
typedef struct dpari_hx_array {
    const dpar_halo *halo;
    int32_t rank, compact;
    /* the first own point in the local box, and the number of own points, along each dim */
    int64_t low[DPAR_MAX_DIMS], own[DPAR_MAX_DIMS];
    /* the first own point relative to that of the wider halo that the array has (array_halo) */
    int64_t inner[DPAR_MAX_DIMS];
    dpari_hx_told told;
} dpari_hx_array;

/* The place of a box in an array: where its first element is, and its strides. */
typedef struct dpari_hx_spot {
    int32_t part;
    int64_t at; /* elements from the beginning of the part */
    int64_t stride[DPARI_HX_DIMS];
} dpari_hx_spot;

/* Small boxes that follow each other share one list of runs, which belongs to the first of them. */
typedef struct dpari_hx_few {
    int64_t at;   /* index of its first entry in plan->spot */
    int32_t runs; /* number of entries; 0 if there is no list, -1 if it is in an earlier one */
    int32_t step; /* distance in items to the next item that is not skipped */
} dpari_hx_few;

/* A box that this rank sends or receives. The fields that an exchange reads come first. "Give" and
 * "take" are the two halves of a transfer: give packs, take unpacks or copies. */
typedef struct dpari_hx_item {
    int32_t field, peer;  /* peer is -1 if the box is sent to this rank itself */
    int32_t mine, theirs; /* numbers of the parts (2 * field + part) on this rank and on the peer;
                             in a pair possibly those of the other field */
    int32_t packs;        /* 1 if it is packed into staging memory when this rank gives it */
    int32_t row;          /* the dim of its rows if a peer reads it in place, otherwise -1 */
    int32_t direct;       /* 1 if this rank reads it in the peer's array when it takes it */
    /* Distance in items to the opposite side of the block, which is copied in the same loop. -1 if
     * this item is that opposite side or is moved by halo_mem.c; 0 if it is copied separately. */
    int32_t give_mate, take_mate;
    dpari_hx_few given, taken;
    /* For items of S: the distance in elements from each cell to the halo cell that is set to 0
     * while the sum is made; 0 if there is none. */
    int64_t beside;
    /* For items of R: the distance in items to the item of S that sets this halo to 0. 0 if there
     * is none, so that the halo is set to 0 when it is given. */
    int64_t wiper;
    int64_t mine_at, theirs_at; /* bytes from the beginning of the part to the box */
    int64_t pack_at, take_at;   /* offsets in the staging memory, in bytes */
    dpari_stride give, take;
    int32_t negate, dims;
    int32_t replaces; /* 1 if it replaces values in an adjoint, in place of being combined */
    int64_t elements;
    int64_t local[DPAR_MAX_DIMS]; /* its first point in the local box */
    int32_t here[DPARI_HX_DIMS];  /* for each dim of the sender, the dim of this rank */
    uint32_t flip;                /* bits of dims that count backwards here */
    int64_t extent[DPARI_HX_DIMS], own_step[DPARI_HX_DIMS], other_step[DPARI_HX_DIMS];
    int64_t dense[DPARI_HX_DIMS];
} dpari_hx_item;

/* The boxes between this rank and a peer in one step. */
typedef struct dpari_hx_flow {
    int64_t out_at, in_at; /* offsets of packed boxes in the staging memory, in both modes */
    int32_t reads[2];      /* by mode: 1 if this rank reads boxes in place in the peer's arrays */
    int64_t first, boxes;  /* its items of R */
    int64_t sends;         /* number of its items of S */
    uint64_t hash[2];      /* of its items of R and of S; R here must equal S on the peer */
} dpari_hx_flow;

/* What a plan knows of a peer, in addition to its dpari_exchange_peer. */
typedef struct dpari_hx_peer {
    uint64_t version;         /* that of its arrays when their addresses were read last */
    const uint64_t *refs;     /* references to its arrays */
    const unsigned char **at; /* addresses in this process of its arrays: two parts per field */
    unsigned char *staging;
    int64_t turn;          /* bytes of one part of its staging memory */
    dpari_hx_array *array; /* used while the plan is made */
    dpari_hx_flow *flow;   /* one for each step */
} dpari_hx_peer;

typedef struct dpari_hx_step {
    int64_t r, r_items, s, s_items; /* first item and number of items of its lists R and S */
    int64_t self;      /* number of items at the start of R that this rank sends to itself */
    int64_t own_first; /* number of items at the start of S that are for this rank itself and wait
                          for no peer */
    int32_t number;    /* the dim, counted from the last one; -1 for all dims at once */
    int32_t along;     /* DPARI_HX_WIDE, ... */
    int32_t cut;       /* the cut dim, counted from the last one, unless `along` is DPARI_HX_WIDE */
    int32_t modes;     /* bits of the modes that have this step: DPAR_HALO_FORWARD, _ADJOINT */
} dpari_hx_step;

/* The halo cells that a step includes besides those of its own dim, because earlier steps have
 * filled them.
 *
 * In an ordered plan, and if no dim or only the last one is cut, a step includes the halos of all
 * later dims (WIDE). If one other dim is the only one that is cut, each rank can fill the edges and
 * corners itself. A forward exchange then sends a plane without them, so that no rank waits for
 * them: the plane is offered first, the halos next to own planes are filled meanwhile, and the
 * halos next to the received planes afterwards. The adjoint has separate steps in such a plan,
 * which are WIDE: edges and corners are sent to the owner of the plane, which adds them to its own
 * halos, and these halos to its block. */
enum {
    DPARI_HX_WIDE,       /* the halos of later dims */
    DPARI_HX_CUT,        /* along the cut dim, without other halos */
    DPARI_HX_OWN_PLANES, /* along another dim, next to own points of the cut dim, with the halos of
                            later dims */
    DPARI_HX_HALO_PLANES /* the same, next to the cut dim's halos */
};

struct dpar_halo_plan {
    dpari_exchange x;
    dpar_comm *comm; /* the communicator passed to dpar_halo_plan_make */
    dpar_halo_plan_desc options;
    int32_t fields;
    dpar_halo_field *field;
    dpari_hx_array *array;
    unsigned char **part; /* addresses of two parts per field: own points, compact halo */
    dpari_hx_peer *peer;
    int32_t *peer_of; /* for each rank of comm, 1 + its number among the peers, or 0 */
    dpari_hx_item *item;
    int64_t items;
    dpari_stride_spot *spot; /* entries of lists: DPARI_STRIDE_FEW per item for giving, then for
                                taking */
    int32_t bound;           /* 1 after a bind: a list then has runs of one array only */
    dpari_hx_step step[DPARI_HX_STEPS];
    int64_t *record; /* records received from each peer, then records sent to each peer */
    int64_t *span;   /* used while the plan is made: where each part of a field begins and ends */
    void *owned; /* the memory of this struct if make has allocated it; NULL if the caller has */
    /* The plan's registered memory, x.memory, holds lines, refs, two halves of staging memory
     * (three parts if `nears` is 1), arrivals and look. turn: bytes of one of these parts. */
    uint64_t *refs;
    unsigned char *staging, *arrivals;
    int64_t turn, arrive_bytes, memory_bytes;
    /* Boxes that this rank packs for itself, in a plan of DPARI_HX_COMBINE: where they begin in
     * each turn, and the bytes of those of R and of S. */
    int64_t self_at, self_bytes[2];
    int32_t nears;    /* 1 if devices of other ranks may reach the memory */
    int32_t prepared; /* the op for which the items are prepared */
    /* The first `forward` steps are those of a forward exchange. An adjoint takes all steps, or
     * only the others. */
    int32_t forward;
    uint64_t version;
    int32_t lends[2]; /* by mode: 1 if some peer reads this rank's arrays directly */
    int32_t asks;     /* 1 if rows are prefetched, see dpari_hx_ask */
    int32_t wide;     /* dpari_cpu_wide */
    /* 1 if all fields and the plan's memory are in the communicator's own memory, in which moves
     * and messages are done in order, so that the host waits for nothing */
    int32_t in_order;
    int32_t elsewhere;   /* 1 if some field is in memory that the CPU does not reach */
    dpar_status moved;   /* the first failure of a move in such memory */
    dpar_mem_box *box;   /* one for each item in such memory */
    unsigned char *look; /* a buffer for the largest of these items; NULL if in_order is 1 */
    int64_t look_bytes;
};

/* ---- fields ---- */

/* Returns the number of elements at a point. */
DPARI_API int32_t dpari_hx_components(const dpar_halo_field *field);
/* Returns the type in which values are sent. */
DPARI_API int32_t dpari_hx_wire(const dpar_halo_field *field);
/* Returns the table of the field's memory, or NULL for the host's memory. */
DPARI_API const dpar_mem *dpari_hx_mem(const dpar_halo_field *field);
/* Returns the other field of a pair, which is next to it in the list, or NULL if it is in no pair.
 */
DPARI_API const dpar_halo_field *dpari_hx_other(const dpar_halo_field *field);
/* True if values that arrive after `turn` quarter turns are from the other field's array. */
DPARI_API int dpari_hx_crosses(const dpar_halo_field *field, int32_t turn);
/* True if values that arrive after `turn` quarter turns change their sign. */
DPARI_API int dpari_hx_negates(const dpar_halo_field *field, int32_t turn);

/* ---- boxes in arrays ---- */

/* Computes the own points and the local box of a rank. Returns 0 if it has no points. */
DPARI_API int dpari_hx_boxes(const dpar_halo *halo, int32_t rank, dpar_box *own, dpar_box *all);
/* Computes the place in an array of the box that begins at local point `at`. */
DPARI_API void dpari_hx_place(const dpari_hx_array *array, const int64_t *at, int32_t components,
                              dpari_hx_spot *p);

/* ==== halo/halo_mem.h ==== */

/* halo_mem - moves boxes of fields in memory that the CPU does not reach, in batches. Private. */

/* Moves one box in a field's memory, which is the host's or another, and waits until the move is
 * done. */
DPARI_API dpar_status dpari_hx_move_box(const dpar_halo_field *field, const dpar_mem_box *box);
/* Describes the copy of an item from this rank's array to a dense box at `dense`, without changing
 * the type, or with `back` from there to the array. */
DPARI_API void dpari_hx_box_of(const dpar_halo_plan *plan, const dpari_hx_item *it,
                               unsigned char *dense, int back, dpar_mem_box *b);
/* With `on`, pins host memory, so that the devices of all fields can move boxes from and to it;
 * otherwise unpins it. Does nothing if all fields are in the host's memory, or in the
 * communicator's. */
DPARI_API dpar_status dpari_hx_pin(const dpar_halo_plan *plan, void *memory, int64_t bytes, int on);

/* ==== halo/halo_traffic.h ==== */

/* halo_traffic - lists what an exchange moves: the peers, the bytes and the method. Private. */

/* The values that a rank sends to one peer in each exchange. */
typedef struct dpari_hx_traffic {
    int32_t peer;
    int32_t way;    /* DPAR_HALO_MESSAGES, ...; meaningless if the peer is the rank itself */
    int32_t hops;   /* distance of the two blocks: the largest along any mesh axis, in blocks; 1 for
                       neighbours */
    int64_t pieces; /* number of boxes */
    int64_t bytes;  /* in the type in which they are sent. With DPAR_HALO_MESSAGES they are one
                       message, or one message per step if the plan is ordered */
    int64_t direct; /* how many of these bytes the peer reads in place */
    int64_t runs;   /* number of contiguous pieces of memory */
} dpari_hx_traffic;
/* Computes the traffic to peer k, from 0 on. The last peer is this rank itself. Returns 1, or 0 if
 * there is no peer k. Local. Costs O(pieces). */
DPARI_API int dpari_hx_traffic_of(const dpar_halo_plan *plan, int32_t k, dpari_hx_traffic *t);

/* ==== halo/halo_exchange_private.h ==== */

/* halo_exchange_private - functions of halo_exchange.c that other headers use and that are not in
 * halo_exchange.h. Private. */

/* Makes a plan as dpar_halo_plan_make does. With `later` 1, the caller binds the arrays before the
 * first exchange; until then `data` only tells, by not being NULL, that a field has an array on
 * this rank. */
DPARI_API dpar_status dpari_hx_open(dpar_comm *comm, const dpar_halo_plan_desc *desc, int32_t later,
                                    dpar_halo_plan **plan, dpar_why *why);
/* Computes how many bytes of memory a plan needs on this rank, for objects that allocate the memory
 * of their plans. Local. Arrays are not read. */
DPARI_API dpar_status dpari_hx_bytes(const dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                     int64_t *bytes, dpar_why *why);

/* ==== halo/grid_object.h ==== */

/* grid_object - the data of a grid, and the handle that callers have of it. Private.
 *
 * The address of an array is kept once, in the table of known arrays. What a plan exchanges is kept
 * once too, in its exchange (dpari_hx_bound). */

typedef struct dpari_gx_shape dpari_gx_shape; /* grid_shape.h */
typedef struct dpari_gx_array dpari_gx_array; /* grid_arrays.h */
typedef struct dpari_gx_plan dpari_gx_plan;   /* grid_plans.h */
typedef struct dpari_gx_walls dpari_gx_walls; /* grid_walls.h */

/* What a search for plans reads of each, next to each other in memory: a code has several plans,
 * and between two exchanges it evicts them from the caches. */
enum { DPARI_GX_KEYS = 16 };
typedef struct dpari_gx_key {
    dpari_gx_plan *plan;
    const void *at;              /* an address whose array has the shape `shape`, or NULL */
    const dpari_gx_shape *shape; /* of its first array */
    int32_t count, depth;        /* as in the plan */
} dpari_gx_key;

/* A grid. The caller has a pointer to its first field. */
typedef struct dpari_gx {
    dpar_grid head;
    dpar_grid_desc desc;
    dpari_on_end ending; /* its entry in the communicator's list, which sets head.comm to NULL */
    const dpar_mem *mem; /* functions for arrays in a device's memory; NULL for the host's */
    int64_t bytes;       /* size of this struct's memory */

    /* Of grid_cut.c: the halo's width on each side of each dim, and the largest of these. */
    int64_t low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS], widest;
    int32_t steps;  /* desc.steps, at least 1 */
    dpar_halo halo; /* of cells */
    int64_t *cuts;  /* of grid_expected.c: memory of desc.cuts; NULL if the caller has set them */
    int64_t cut_bytes;

    /* Of grid_arrays.c. */
    dpari_gx_shape *shapes;
    dpari_gx_shape *plain; /* the shape of unknown addresses; NULL if desc.type is 0 */
    dpari_gx_array *array; /* [room], of which the first `known` are used */
    int64_t arrays;        /* number of arrays that became known so far */
    int32_t shapes_known, known, room;

    /* Of grid_plans.c. */
    int32_t under_way;    /* number of exchanges that have begun and not ended */
    dpari_gx_plan *plans; /* in the order in which they were made, which is the same on all ranks */
    /* The plan that ran last, of those with one array, the whole halo and no mirrors, in a grid
     * without desc.check. dpar_grid_exchange runs it at once if its array is passed again. NULL if
     * plans must be searched. */
    dpari_gx_plan *quick;
    int32_t keys; /* number of keys: of the first plans, in their order */
    dpari_gx_key key[DPARI_GX_KEYS];
} dpari_gx;

/* Returns the description of a grid, with the defaults that dpar_grid_make has filled in. */
DPARI_FN const dpar_grid_desc *dpari_gx_desc_of(const dpar_grid *grid)
{
    return &((const dpari_gx *)(const void *)grid)->desc;
}

/* ==== halo/grid_access.h ==== */

/* grid_access - what the checks of dpar_debug.h read of an array of a grid. Private. */

typedef struct dpari_gx_access {
    const dpar_grid_desc *desc;
    const dpar_grid_field *field; /* with components and all strides, also if they are defaults */
    unsigned char *first;         /* the first own point */
    const int64_t *low, *high;    /* [dims] width of the halo */
    int64_t widest;               /* the largest of these */
    int32_t steps;                /* desc.steps, at least 1 */
    int32_t type;
    int32_t device; /* 1 if arrays are in memory that the CPU cannot reach */
} dpari_gx_access;

/* Describes an array. Returns 1, or 0 if it is not an array of the grid, or the grid's world was
 * closed. */
DPARI_API int dpari_gx_access_to(dpar_grid *grid, void *array, dpari_gx_access *access);

#endif /* DPARI_HALO_INTERNAL_H */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_HALO_IMPLEMENTATION)) && \
    !defined(DPAR_HALO_IMPLEMENTATION_DONE)
#define DPAR_HALO_IMPLEMENTATION_DONE

/* ==== halo/halo_box_groups.h ==== */

/* Writes the runs of a small box, one per entry, in the order of its walk. Lists are for boxes that
 * take longer to set up than to move. Returns the number of entries, or 0 if there are more than
 * DPARI_STRIDE_FEW or if such a box cannot be in a list.
 *
 * to_at, from_at: bytes from the addresses that are passed with the list to index 0 of the box. */
DPARI_INTERNAL int32_t dpari_stride_list(const dpari_stride *stride, int64_t to_at, int64_t from_at,
                                         dpari_stride_spot *list);
/* True if two boxes, each of which can be in a list, may be in the same list. */
DPARI_INTERNAL int dpari_stride_lists_alike(const dpari_stride *a, const dpari_stride *b);
/* True if two large boxes may be moved as a group: they have the same steps and number of rows, and
 * runs for which there is a loop. apart: bytes between the two boxes in this rank's array; they
 * must begin in the same row. takes: 1 if they are copied to that array, 0 if from it. */
DPARI_INTERNAL int dpari_stride_groups(const dpari_stride *a, const dpari_stride *b, int64_t apart,
                                       int takes);
/* Moves n entries of a list one after the other. stride: any box of the list. If it has more than
 * DPARI_STRIDE_FEW runs, the list is a group of such boxes, with two entries for each: where its
 * walk begins, and the number of runs in a row. They are moved in one walk, one run of each in
 * turn. */
DPARI_INTERNAL void dpari_stride_run_list(const dpari_stride *stride, const dpari_stride_spot *list,
                                          int64_t n, void *to, const void *from);

/* Moves two boxes, in one walk if they have the same shape. This is for the two sides of a block,
 * which are often in the same cache lines and pages. Neither box may read or write what the other
 * one writes. */
DPARI_INTERNAL void dpari_stride_run_beside(const dpari_stride *a, void *to_a, const void *from_a,
                                            const dpari_stride *b, void *to_b, const void *from_b);

/* ==== halo/halo_plan.h ==== */

/* True if this field can be exchanged dim after dim. */
DPARI_INTERNAL int dpari_hx_can_order(const dpar_halo_field *field);
/* True if the field sets strides. */
DPARI_INTERNAL int dpari_hx_strided(const dpar_halo_field *field);
/* Removes the points beyond physical ends from a box. No rank owns them, and an array need not have
 * them. */
DPARI_INTERNAL void dpari_hx_inside(const dpar_halo *halo, dpar_box *box);
/* Returns the halo that the array has: array_halo if that is set, otherwise halo. */
DPARI_INTERNAL const dpar_halo *dpari_hx_array_halo(const dpar_halo_field *field);
/* Describes the array as `rank` holds it. The second function does this for default strides. */
DPARI_INTERNAL void dpari_hx_array_of(dpari_hx_array *array, const dpar_halo_field *field,
                                      int32_t rank);
DPARI_INTERNAL void dpari_hx_dense(dpari_hx_array *array, const dpar_halo_field *field,
                                   int32_t rank);
/* Returns the first dim, in ascending order of strides, along which points may have the same
 * address as others: its stride does not exceed the extent of the dims with shorter strides.
 * Returns -1 if there is none, as in any array that is padded or permuted. */
DPARI_INTERNAL int32_t dpari_hx_overlapping_dim(const int64_t *stride, const int64_t *points,
                                                int32_t dims);
/* Returns the number of contiguous bytes at the start of a box. */
DPARI_INTERNAL int64_t dpari_hx_in_a_row(const int64_t *extent, const int64_t *stride, int32_t dims,
                                         int32_t type);

/* The next three functions return the address of an item in this rank's array, the address from
 * which it is taken, and the beginning of the memory from which it is taken. */
DPARI_INTERNAL unsigned char *dpari_hx_mine(const dpar_halo_plan *plan, const dpari_hx_item *it);
DPARI_INTERNAL const unsigned char *dpari_hx_from(const dpar_halo_plan *plan,
                                                  const dpari_hx_item *it);
DPARI_INTERNAL const unsigned char *dpari_hx_base(const dpar_halo_plan *plan,
                                                  const dpari_hx_item *it);

/* ==== halo/halo_mem.h ==== */

/* Describes the copy of an item, without addresses, for when this rank takes it with `op`, or for
 * when it gives it. */
DPARI_INTERNAL void dpari_hx_describe(const dpar_halo_plan *plan, const dpari_hx_item *item,
                                      int takes, int32_t op, dpar_mem_box *box);
/* Pins or unpins all memory of a plan. */
DPARI_INTERNAL dpar_status dpari_hx_pin_all(const dpar_halo_plan *plan, int on);
/* Starts to pack, or with `takes` to unpack, the items first .. first + n - 1, except for those in
 * memory that the CPU reaches. */
DPARI_INTERNAL void dpari_hx_move(dpar_halo_plan *plan, int64_t first, int64_t n, int takes);
/* Waits until all moves of dpari_hx_move are done. Returns the first failure among them. */
DPARI_INTERNAL dpar_status dpari_hx_settle(dpar_halo_plan *plan);

/* ==== halo/halo_exchange_private.h ==== */

/* Returns the array that a field of a plan is bound to. */
DPARI_INTERNAL void *dpari_hx_bound(const dpar_halo_plan *plan, int32_t field);
/* Releases the memory of a plan whose world was closed. */
DPARI_INTERNAL void dpari_hx_release(dpar_halo_plan *plan);

/* ==== halo/grid_object.h ==== */

/* Returns the grid behind a handle, or NULL if the handle is NULL or its world was closed. */
DPARI_INTERNAL dpari_gx *dpari_gx_of(dpar_grid *grid);
/* Reports the failure of a call that has no `why`: leaves its message in comm->why. If the
 * communicator is broken, keeps the first error's status and message. */
DPARI_INTERNAL dpar_status dpari_gx_say(dpari_gx *grid, dpar_status status, const dpar_why *why);
/* Allocates a grid and, after it in memory, copies of its cuts. */
DPARI_INTERNAL dpar_status dpari_gx_new(const dpar_grid_desc *desc, dpari_gx **grid, dpar_why *why);
/* Releases the memory of a grid, without its arrays and plans. */
DPARI_INTERNAL void dpari_gx_release(dpari_gx *grid);

/* ==== halo/halo_fields.h ==== */

/* halo_fields - checks the fields of a plan, and compares them between ranks. Private. */

/* Checks all fields of a plan, without the other ranks. */
DPARI_INTERNAL dpar_status dpari_hx_check_fields(const dpar_comm *comm,
                                                 const dpar_halo_plan_desc *desc, dpar_why *why);
/* Lists the fields of a descriptor that must be equal on all ranks. given: the descriptor. */
DPARI_INTERNAL void dpari_hx_state(dpari_facts *facts, const void *given);

/* ==== halo/halo_overlap.h ==== */

/* halo_overlap - checks that no two arrays of a plan have an element in common. Private. */

/* The first function checks that no element of a field is in the plan's memory, the second that no
 * two fields have an element in common. Otherwise they fail with DPAR_E_ARG and a message. Local.
 *
 * span: [4 * n], receives four addresses per field: where its data begins and ends, then where its
 *       compact halo begins and ends. */
DPARI_INTERNAL dpar_status dpari_hx_clear_of(const dpar_halo_field *fields, int32_t n, int32_t rank,
                                             const void *memory, int64_t bytes, dpar_why *why);
DPARI_INTERNAL dpar_status dpari_hx_disjoint(const dpar_halo_field *fields, int32_t n, int32_t rank,
                                             int64_t *span, dpar_why *why);

/* ==== halo/halo_share.h ==== */

/* halo_share - lists the boxes of a plan in which every rank that holds a shared point combines the
 * values of all of them (DPARI_HX_COMBINE). Private. */

/* A value of desc.shared, and of the moves of a walk, that only dpar_grid_reduce uses: all ranks
 * send their values of shared points to each other, so that one exchange is enough. */
enum { DPARI_HX_COMBINE = 0x434f4d42 };

/* A walk over these boxes. Arrays are indexed by dim, then by side: 0 is the low one. */
typedef struct dpari_hx_shared {
    int64_t points[DPAR_MAX_DIMS];     /* number of points that `rank` holds, with shared ones */
    int32_t shared[DPAR_MAX_DIMS][2];  /* 1 if a neighbour holds the outermost points, too */
    int32_t further[DPAR_MAX_DIMS][2]; /* the neighbour's rank minus `rank` */
    int32_t dims, rank;
    int32_t gives; /* 1 in a walk over the boxes that `rank` gives */
    int32_t next;  /* number of the next candidate */
} dpari_hx_shared;

/* Begins a walk over the boxes that `rank` takes (DPAR_TRANSFER_SEND, because these plans run as
 * adjoints) or gives (DPAR_TRANSFER_RECV). Each rank has one block of the grid, axis d of the mesh
 * cuts dim d, and the halo consists of the shared points. Returns DPAR_DONE if the rank has no
 * points. */
DPARI_INTERNAL dpar_status dpari_hx_share_begin(dpari_hx_shared *share, const dpar_halo *halo,
                                                int32_t rank, int32_t direction);
/* Advances to the next box. Returns 1, or 0 if no box is left. The values of a point are combined
 * in the order of the boxes. transfer->op is DPAR_COPY if the values of the box replace those of
 * the receiver, and DPAR_SUM if they are combined with them. */
DPARI_INTERNAL int dpari_hx_share_next(dpari_hx_shared *share, dpar_transfer *transfer);

/* ==== halo/halo_walk.h ==== */

/* halo_walk - lists the boxes that one step of an exchange moves for one field. These are the boxes
 * of the transfer lists of ../index/halo.h, extended by halos that earlier steps have filled, and
 * split if a part can be summed without waiting. Private. */

/* Which boxes a walk lists. */
typedef struct dpari_hx_subject {
    const dpar_halo_field *field;
    const dpari_hx_step *step;
    int32_t rank, direction, moves;
    /* Of a field with directions: the first component whose boxes are listed, and the number of
     * components that have these boxes in this step. Otherwise 0 and 1. */
    int32_t component, together;
} dpari_hx_subject;

/* A walk over the boxes of a step. Set up by dpari_hx_begin_walk. */
typedef struct dpari_hx_walk {
    dpari_hx_subject of;
    uint32_t reaches; /* bits of the dims in which the boxes depend on the halo */
    dpar_halo_cursor walk;
    dpar_halo halo;
    int32_t dim;   /* the dim of the step; -1 if all dims are exchanged at once */
    int32_t cut;   /* the cut dim, in a step next to its halos; otherwise -1 */
    int32_t above; /* in such a step: 0 next to the halos below, then 1 next to those above */
    int64_t own;   /* number of own points along the cut dim */
    /* for each other dim: the width of the halo below the own points, and the number of points by
     * which boxes are extended below and above */
    int64_t low[DPAR_MAX_DIMS], before[DPAR_MAX_DIMS], after[DPAR_MAX_DIMS];
    int32_t splits;     /* 1 if boxes that a rank sends to itself are split, for which the following
                           fields are used */
    int32_t own_first;  /* 1 if the current box may be added before the boxes of peers */
    int32_t side;       /* the side of `rest` to split next; 0 if no box is being split */
    dpar_box clear;     /* a part of the local box to which no peer's box has been added so far */
    dpar_transfer rest; /* the part of a box that has not been returned yet */
    dpari_hx_shared share; /* with DPARI_HX_COMBINE, the whole walk */
} dpari_hx_walk;

/* Returns DPAR_HALO_SYNC or DPARI_HX_COMBINE for a plan of shared points, DPAR_HALO_FORWARD for a
 * plan of halos. */
DPARI_INTERNAL int32_t dpari_hx_moves(const dpar_halo_plan_desc *desc);
/* Begins a walk over the boxes that `rank` sends or receives (direction) in a step. Returns
 * DPAR_DONE if there are none. */
DPARI_INTERNAL dpar_status dpari_hx_begin_walk(dpari_hx_walk *walk, const dpar_halo_field *field,
                                               int32_t rank, const dpari_hx_step *step,
                                               int32_t direction, int32_t moves, dpar_why *why);
/* Advances to the next box, in the order in which sums are made. Returns 1, or 0 if no box is left.
 */
DPARI_INTERNAL int dpari_hx_next(dpari_hx_walk *walk, dpar_transfer *t);
/* Returns the number of items into which a box is divided. */
DPARI_INTERNAL int32_t dpari_hx_parts(const dpar_halo_field *field, const dpar_transfer *t);

/* ==== halo/halo_prepare.h ==== */

/* halo_prepare - decides how the items of a plan are copied: the loops of each item, lists of small
 * items, and pairs that are copied in one loop. Private. */

/* Prepares the two copies of an item: for when this rank takes it with `op`, and for when it gives
 * it. */
DPARI_INTERNAL void dpari_hx_prepare(const dpar_halo_plan *plan, dpari_hx_item *it, int32_t op);
/* Combines small items of a step's S into lists: first the items that wait for no peer, then the
 * other items. */
DPARI_INTERNAL void dpari_hx_gather_sends(const dpar_halo_plan *plan, const dpari_hx_step *step,
                                          int takes);
/* Combines small items of all steps into lists. */
DPARI_INTERNAL void dpari_hx_gather_all(const dpar_halo_plan *plan);
/* Returns the dim of the rows of a box, which is the dim with the shortest stride in this rank's
 * array, or -1 if there are too many rows to prefetch. */
DPARI_INTERNAL int32_t dpari_hx_row_of(const dpari_hx_item *it);
/* Prepares all items of a plan, after they have been listed and assigned places in memory. */
DPARI_INTERNAL void dpari_hx_finish_items(dpar_halo_plan *plan);

/* ==== halo/halo_items.h ==== */

/* halo_items - lists the boxes that the steps of a plan move. Private. */

/* Sets the items and the flows of all steps, after the peers have described their arrays. */
DPARI_INTERNAL void dpari_hx_list_items(dpar_halo_plan *plan);

/* ==== halo/halo_run.h ==== */

/* halo_run - packs and takes the boxes of exchanges. Private. */

/* Sets the functions that ../exchange calls. */
DPARI_INTERNAL void dpari_hx_set_functions(dpar_halo_plan *plan);

/* ==== halo/grid_cut.h ==== */

/* grid_cut - checks the description of a grid, and cuts its cells into one block per rank. Private.
 */

/* Checks the description of grid->desc, and cuts the cells into one block per rank. Local. */
DPARI_INTERNAL dpar_status dpari_gx_cut_cells(dpari_gx *grid, const dpar_comm *comm, dpar_why *why);
/* Cuts the cells into one block per rank, where desc.cuts says. Sets grid->halo and the public head
 * of the grid. Local. */
DPARI_INTERNAL dpar_status dpari_gx_cut(dpari_gx *grid, const dpar_comm *comm, dpar_why *why);
/* Returns the number of cells of a part of dim d, and sets *first to its first cell. */
DPARI_INTERNAL int64_t dpari_gx_cells_of_part(const dpari_gx *grid, int32_t d, int32_t part,
                                              int64_t *first);
/* True if this rank has no cells. Its arrays then have no points, and no memory is touched. */
DPARI_INTERNAL int dpari_gx_is_empty(const dpari_gx *grid);
/* Checks that the array of this rank holds all cells that mirrors of these kinds reflect. */
DPARI_INTERNAL dpar_status dpari_gx_check_mirrors(const dpari_gx *grid, const int32_t *low,
                                                  const int32_t *high, dpar_why *why);
/* Lists the fields of a description that must be equal on all ranks. */
DPARI_INTERNAL void dpari_gx_state(dpari_facts *facts, const void *given);

/* ==== halo/grid_expected.h ==== */

/* grid_expected - cuts a grid where the caller's code cuts it (dpar_grid_desc.expected_count).
 * Private. */

/* Compares the block of each rank with the expected count. If a rank has another one, cuts the grid
 * again, so that all ranks have what they expect. Collective. Fails on all ranks with DPAR_E_ARG if
 * that is impossible, and with DPAR_E_RANGE if an array would then be too large. */
DPARI_INTERNAL dpar_status dpari_gx_cut_as_expected(dpari_gx *grid, dpar_comm *comm, dpar_why *why);

/* ==== halo/grid_shape.h ==== */

/* grid_shape - describes where the points of an array are: its halo, components and strides.
 * Private. */

enum { DPARI_GX_DIRECTIONS = 64 }; /* the most components with directions */

/* The kind of an array. Arrays of one shape can be exchanged with the same plan. */
struct dpari_gx_shape {
    struct dpari_gx_shape *next;
    dpar_halo halo;        /* the whole halo of the array */
    dpari_gx_walls *walls; /* NULL unless the grid has desc.exchange_walls */
    dpar_grid_field field; /* with components, mirrors and all strides, also if they are the
                              defaults. Mirrors are NONE, FACE or CELL */
    int64_t low, high; /* bytes from the address of an array to where its points begin and end */
    int64_t origin;    /* bytes from the address of an array to its first own point */
    int8_t direction[DPARI_GX_DIRECTIONS][DPAR_MAX_DIMS]; /* only if field.direction is not NULL,
                                                              which points here */
    int32_t number;                                       /* the same on all ranks */
    int32_t type;
    int32_t reach;  /* 1 if peers may read the arrays in place */
    int32_t packed; /* 1 for arrays of desc.type: their addresses may change from call to call, so
                       that they are always packed */
};

/* Returns the number of points of this rank's array in a dim, with its halo. */
DPARI_INTERNAL int64_t dpari_gx_points(const dpari_gx *grid, const dpar_grid_field *field,
                                       int32_t d);
/* Returns the number of halo cells in a dim that an exchange of this depth fills below the block
 * (side 0) or above it (side 1). */
DPARI_INTERNAL int64_t dpari_gx_width(const dpari_gx *grid, int32_t depth, int32_t d, int side);
/* Checks the description of an array, and computes its shape on a rank. field: NULL means cells.
 * Local. Fails with DPAR_E_ARG or DPAR_E_RANGE. */
DPARI_INTERNAL dpar_status dpari_gx_make_shape(const dpari_gx *grid, int32_t type,
                                               const dpar_grid_field *field, int32_t rank,
                                               dpari_gx_shape *shape, dpar_why *why);
/* True if two shapes are the same, so that a plan for one can exchange arrays of the other. */
DPARI_INTERNAL int dpari_gx_alike(const dpari_gx *grid, const dpari_gx_shape *a,
                                  const dpari_gx_shape *b);
/* True if one of two arrays, which are `apart` bytes from each other, consists of some components
 * of the other one, with the same points and strides. */
DPARI_INTERNAL int dpari_gx_part_of(const dpari_gx *grid, const dpari_gx_shape *a,
                                    const dpari_gx_shape *b, int64_t apart);
/* Computes the box of points that a rank owns, and returns the number of their elements. If it is
 * 0, *own is not set. */
DPARI_INTERNAL int64_t dpari_gx_owned(const dpari_gx_shape *shape, int32_t rank, dpar_box *own);

/* ==== halo/grid_start.h ==== */

/* grid_start - recognises the address of a whole array in place of that of its first own point.
 * Private. */

/* Checks that `at` can be the address of an array of this shape. Fails with DPAR_E_ARG if it is the
 * beginning of a block of malloc that has the size of the whole array, although addresses are those
 * of first own points. caller: begins the message. Local. */
DPARI_INTERNAL dpar_status dpari_gx_check_start(const dpari_gx *grid, const dpari_gx_shape *shape,
                                                const void *at, const char *caller, dpar_why *why);

/* ==== halo/grid_walls.h ==== */

/* grid_walls - lets an exchange include the halo cells beyond walls
 * (dpar_grid_desc.exchange_walls). Private. */

/* What an exchange of arrays of a shape sends: the halo of a grid that has the cells beyond its
 * walls as well. The rank next to a wall owns these cells. */
struct dpari_gx_walls {
    dpar_halo halo;
    int64_t first[DPAR_MAX_DIMS]; /* this rank's first own cell in that grid, relative to its first
                                     cell in the grid; at most 0 */
    int64_t bytes;                /* size of this struct's memory, which ends with the cuts */
};

/* True if the cells beyond an end of dim d, low (side 0) or high, are sent with the block that is
 * next to it. field: with resolved mirrors, as in dpari_gx_shape. */
DPARI_INTERNAL int dpari_gx_sends_beyond(const dpari_gx *grid, const dpar_grid_field *field,
                                         int32_t d, int side);
/* Makes shape->walls if the grid has desc.exchange_walls. Local. */
DPARI_INTERNAL dpar_status dpari_gx_make_walls(const dpari_gx *grid, dpari_gx_shape *shape,
                                               dpar_why *why);
/* Frees shape->walls. */
DPARI_INTERNAL void dpari_gx_free_walls(dpari_gx_shape *shape);
/* Describes an array of this shape as a field of an exchange. */
DPARI_INTERNAL void dpari_gx_field(const dpari_gx *grid, const dpari_gx_shape *shape, void *at,
                                   dpar_halo_field *field);
/* Returns the halo that an exchange of arrays of this shape fills. */
DPARI_INTERNAL const dpar_halo *dpari_gx_sent(const dpari_gx_shape *shape);

/* ==== halo/grid_arrays.h ==== */

/* grid_arrays - the table of the arrays that a grid knows, and of their shapes. Private. */

/* An array that was allocated by dpar_grid_array or attached. */
struct dpari_gx_array {
    void *at; /* the address of its first own point */
    const dpari_gx_shape *shape;
    void *memory;   /* the allocation of dpar_grid_array; NULL if the array is the caller's */
    int64_t number; /* in the order in which arrays became known; the same on all ranks */
};

/* Returns the known array at this address, or NULL. */
DPARI_INTERNAL dpari_gx_array *dpari_gx_find(const dpari_gx *grid, const void *at);
/* Returns the next known array, from entry *next of the table on, that has elements in common with
 * an array of this shape at `at`, or NULL. Sets *next to the entry after it. An array at the same
 * address does not count, nor do arrays that are components of each other. */
DPARI_INTERNAL dpari_gx_array *
dpari_gx_overlapping(const dpari_gx *grid, const dpari_gx_shape *shape, void *at, int32_t *next);
/* Returns a known array that has elements in common with an array of desc.type at this address,
 * which is not known, or NULL. */
DPARI_INTERNAL const dpari_gx_array *dpari_gx_in_another(const dpari_gx *grid, void *at);
/* Returns the shape of the array at this address, or NULL if it is not an array of the grid. An
 * address that is not known has the shape of desc.type, unless it is inside a known array. */
DPARI_INTERNAL const dpari_gx_shape *dpari_gx_shape_at(const dpari_gx *grid, void *at);

/* Makes grid->plain, the shape of unknown addresses. Ranks do not tell each other where arrays of
 * this shape are. The shape is therefore the same for all kinds of memory, and peers never read
 * such arrays in place. */
DPARI_INTERNAL dpar_status dpari_gx_make_plain(dpari_gx *grid, int32_t rank, dpar_why *why);
/* Makes room for one more array, and allocates a shape in case the array has a new one. */
DPARI_INTERNAL dpar_status dpari_gx_make_room(dpari_gx *grid, dpari_gx_shape **fresh,
                                              dpar_why *why);
/* Finds the known shape that a new array has on all ranks. *known is NULL if there is none; all
 * ranks then add the new shape. Collective. Fails with DPAR_E_RANGE if there are too many. */
DPARI_INTERNAL dpar_status dpari_gx_find_shape(dpari_gx *grid, const dpari_gx_shape *fresh,
                                               dpari_gx_shape **known, dpar_why *why);
/* Adds an array to the table, or replaces the one at the same address. Its shape is `known`, or the
 * new shape `fresh`, which otherwise is released, if `known` is NULL. */
DPARI_INTERNAL void dpari_gx_remember(dpari_gx *grid, dpari_gx_shape *known, dpari_gx_shape *fresh,
                                      void *at, void *memory);
/* Removes an array of the caller from the table. */
DPARI_INTERNAL void dpari_gx_forget(dpari_gx *grid, dpari_gx_array *array);
/* Frees a shape that is not in the table. NULL does nothing. */
DPARI_INTERNAL void dpari_gx_free_shape(dpari_gx_shape *shape);
/* Frees the arrays of dpar_grid_array and the tables of arrays and shapes. */
DPARI_INTERNAL void dpari_gx_free_arrays(dpari_gx *grid, dpar_comm *comm);

/* ==== halo/grid_mirrors.h ==== */

/* grid_mirrors - fills the halos at mirrors. Private. */

/* One box of halo cells beyond a mirror, and the copy that fills it. */
typedef struct dpari_gx_mirror {
    int32_t item;        /* number of the array in the exchange */
    int32_t dim;         /* of the mirror */
    int64_t to, from;    /* bytes from the address of the array */
    dpari_stride stride; /* the copy by the CPU */
    dpar_mem_box box;    /* the same copy in a device's memory */
} dpari_gx_mirror;

/* The mirrors of an exchange of some arrays. */
typedef struct dpari_gx_mirrors {
    dpari_gx_mirror *mirror; /* [count] dim after dim */
    dpar_mem_box *box;       /* [count] of arrays in a device's memory, otherwise NULL */
    int32_t count;
} dpari_gx_mirrors;

/* Counts the boxes that mirrors fill in the halo of an array, to this depth. */
DPARI_INTERNAL int32_t dpari_gx_count_mirrors(const dpari_gx *grid, const dpari_gx_shape *shape,
                                              int32_t depth);
/* Lists these boxes for n arrays, dim after dim. */
DPARI_INTERNAL void dpari_gx_list_mirrors(const dpari_gx *grid, const dpari_gx_shape *const *shape,
                                          int32_t n, int32_t depth, dpari_gx_mirror *mirror);
/* Fills the halos at mirrors of the arrays that an exchange is bound to, after the exchange. */
DPARI_INTERNAL dpar_status dpari_gx_fill(const dpari_gx *grid, const dpari_gx_mirrors *mirrors,
                                         const dpar_halo_plan *exchange);

/* ==== halo/grid_plans.h ==== */

/* grid_plans - finds or makes the plan that exchanges some arrays of a grid. Private. */

/* What an exchange does. */
enum {
    DPARI_GX_HALOS,  /* fills halos, or adds them to their owners */
    DPARI_GX_SHARED, /* copies shared points from their owners to the other ranks that hold them */
    DPARI_GX_COMBINE /* combines the values of shared points on all ranks that hold them */
};

/* A planned exchange of some arrays to some depth. */
struct dpari_gx_plan {
    struct dpari_gx_plan *next;
    dpar_halo_plan *exchange;     /* bound to the arrays that were exchanged last */
    const dpari_gx_shape **shape; /* [count] */
    dpar_halo_field *field;       /* [count] as they were when the plan was made */
    dpar_halo *halo; /* [count] the halos to exchange, where they are not those of shapes */
    dpari_gx_mirrors mirrors;
    int64_t bytes;  /* size of this struct's memory */
    int32_t count;  /* number of arrays */
    int32_t depth;  /* in cells; 0 is the whole halo */
    int32_t kind;   /* DPARI_GX_HALOS, ... */
    int32_t active; /* 1 if its exchange has begun and not ended */
    int32_t stale;  /* 1 if a bound address may have another shape now, or be unknown */
    int32_t number; /* of its key; DPARI_GX_KEYS or more if it has none */
};

/* Arrays of a grid that are to be exchanged together, to a depth in cells. */
typedef struct dpari_gx_set {
    dpari_gx *grid;
    void *const *list; /* [count] */
    int32_t count;
    int32_t depth; /* 0 is the whole halo */
    int32_t kind;  /* DPARI_GX_HALOS, ... */
} dpari_gx_set;

/* Checks the arrays and the depth, without the other ranks. */
DPARI_INTERNAL dpar_status dpari_gx_check_set(const dpari_gx_set *set, dpar_why *why);
/* Compares the arrays and the depth between ranks. Every rank calls it with the status that it has
 * so far. Collective. */
DPARI_INTERNAL dpar_status dpari_gx_agree_on_set(const dpari_gx_set *set, dpar_status status,
                                                 dpar_why *why);

/* Finds or makes the plan of an exchange, and binds the arrays to it. */
DPARI_INTERNAL dpar_status dpari_gx_bind_plan(const dpari_gx_set *set, dpari_gx_plan **plan);
/* Fast path for codes that swap two arrays: if u has the shape of the array that grid->quick
 * exchanges, binds u to it and returns 1, otherwise returns 0. */
DPARI_INTERNAL int dpari_gx_rebind(dpari_gx *grid, void *u);
/* Returns the plan of the exchange in progress that u takes part in, or NULL. */
DPARI_INTERNAL dpari_gx_plan *dpari_gx_in_progress(const dpari_gx *grid, const void *u);
/* Makes plans that are bound to an array at this address look up their arrays again, and plans
 * with arrays of desc.type, because their addresses may be inside a new array. */
DPARI_INTERNAL void dpari_gx_look_up_again(dpari_gx *grid, const void *at);
/* Frees all plans and their memory. Returns the first failure. comm is NULL if its world was
 * closed, which has freed the plans themselves. */
DPARI_INTERNAL dpar_status dpari_gx_free_plans(dpari_gx *grid, const dpar_comm *comm);

#ifndef DPARI_STRIDED_LOOPS_H
#define DPARI_STRIDED_LOOPS_H

/* ==== host/strided_loops.h ==== */

/* strided_loops - private: copies or adds one run of a box. These functions are inlined with
 * constant arguments into the loops of strided.c and of halo_box_groups. */

/* The loops, named for the bytes that are moved at a time. A run between two powers of 2 is moved
 * as two overlapping pieces at its ends (TWO), and one of 33 to 64 bytes as two from each end
 * (FOUR). */
enum {
    DPARI_STRIDE_NONE,
    DPARI_STRIDE_1,
    DPARI_STRIDE_2,
    DPARI_STRIDE_TWO_2,
    DPARI_STRIDE_4,
    DPARI_STRIDE_TWO_4,
    DPARI_STRIDE_8,
    DPARI_STRIDE_TWO_8,
    DPARI_STRIDE_16,
    DPARI_STRIDE_TWO_16,
    DPARI_STRIDE_FOUR_16,
    DPARI_STRIDE_LONG,
    DPARI_STRIDE_MIDDLE,  /* long, but too short for memcpy; vectors of 32 bytes */
    DPARI_STRIDE_SUM_F32, /* single elements; the next ones are for runs of 2, 3, 4, and 5 to 7 */
    DPARI_STRIDE_SUM_F32_2,
    DPARI_STRIDE_SUM_F32_3,
    DPARI_STRIDE_SUM_F32_4,
    DPARI_STRIDE_SUM_F32_7,
    DPARI_STRIDE_SUM_F64, /* single elements; the next ones are for runs of 2, 3 to 4, and 5 to 7 */
    DPARI_STRIDE_SUM_F64_2,
    DPARI_STRIDE_SUM_F64_4,
    DPARI_STRIDE_SUM_F64_7,
    DPARI_STRIDE_DENSE, /* combined in place, row by row */
    DPARI_STRIDE_BUFFER /* all other cases, through a small dense buffer */
};

#define DPARI_STRIDE_TURN 32    /* runs of one piece before those of the other one (measured) */
#define DPARI_STRIDE_AHEAD 1024 /* bytes by which short runs are prefetched ahead (measured) */
#define DPARI_STRIDE_LINE 64
#define DPARI_STRIDE_PACK 2048 /* bytes packed at a time (measured, EPYC) */

/* Sums are not computed with x87, which rounds when it stores and not when it adds. */
#if defined(__i386__) && !defined(__SSE2_MATH__)
#define DPARI_STRIDE_ADDS 0
#else
#define DPARI_STRIDE_ADDS 1
#endif

#if defined(__GNUC__)
#define dpari_stride_copy(to, from, bytes) __builtin_memcpy(to, from, (size_t)(bytes))
#define DPARI_STRIDE_INLINE static DPARI_INLINED __attribute__((always_inline))
#define DPARI_STRIDE_ALIGNED __attribute__((aligned(64)))
#else
#define dpari_stride_copy(to, from, bytes) dpari_kern_copy(to, from, (int64_t)(bytes), 0)
#define DPARI_STRIDE_INLINE static DPARI_INLINED
#define DPARI_STRIDE_ALIGNED
#endif

#if defined(__GNUC__) && DPARI_STRIDE_ADDS && !defined(DPARI_NO_VECTOR)
#define DPARI_STRIDE_VECTOR 1
#else
#define DPARI_STRIDE_VECTOR 0
#endif

/* Vectors of 32 bytes are used if the CPU has them, because a store of 32 bytes takes as long as
 * one of 16. */
#if DPARI_STRIDE_VECTOR && defined(__x86_64__)
#define DPARI_STRIDE_WIDE 1
#define DPARI_STRIDE_IN_WIDE __attribute__((target("avx2")))
#else
#define DPARI_STRIDE_WIDE 0
#endif

DPARI_STRIDE_INLINE unsigned char *dpari_stride_writable(const unsigned char *at)
{
    return (unsigned char *)(uintptr_t)at;
}

/* ---- prefetching ---- */

/* Prefetches the line at t, which will be written. */
DPARI_STRIDE_INLINE void dpari_stride_ask_line(const unsigned char *t)
{
#if defined(__GNUC__) && defined(__x86_64__)
    __asm__ volatile("prefetchw %0"
                     :
                     : "m"(*t)); /* the builtin would prefetch the line for reading */
#elif defined(__GNUC__)
    __builtin_prefetch(t, 1);
#else
    (void)t;
#endif
}

DPARI_STRIDE_INLINE void dpari_stride_ask_lines(const unsigned char *at, int64_t bytes)
{
    for (; bytes > 0; bytes -= DPARI_STRIDE_LINE, at += DPARI_STRIDE_LINE) {
        dpari_stride_ask_line(at);
    }
}

/* Prefetches the lines that are written next. Stores wait for their lines one after the other,
 * whereas prefetches run in parallel. */
DPARI_STRIDE_INLINE void dpari_stride_ask(const dpari_stride *stride, unsigned char *to,
                                          int64_t rows, int64_t n)
{
    const int64_t step = stride->dim[0].to;
    int64_t row, i;
    for (row = 0; row < rows; row++, to += stride->dim[1].to) {
        const unsigned char *t = to;
        for (i = n; i > 0; i--, t += step) {
            dpari_stride_ask_line(t);
        }
    }
}

/* ---- one run: inlined with a constant loop ---- */

/* True if the loop computes sums. */
DPARI_STRIDE_INLINE int dpari_stride_sums(int32_t loop)
{
    return loop >= DPARI_STRIDE_SUM_F32 && loop <= DPARI_STRIDE_SUM_F64_7;
}

/* True if the loop can set to 0 what it has moved. */
DPARI_STRIDE_INLINE int dpari_stride_zeroes(int32_t loop)
{
    return loop < DPARI_STRIDE_LONG || dpari_stride_sums(loop);
}

/* Returns the bytes of a piece; the next function returns the number of pieces of a run. */
DPARI_STRIDE_INLINE int32_t dpari_stride_width(int32_t loop)
{
    switch (loop) {
    case DPARI_STRIDE_1: return 1;
    case DPARI_STRIDE_2:
    case DPARI_STRIDE_TWO_2: return 2;
    case DPARI_STRIDE_4:
    case DPARI_STRIDE_TWO_4:
    case DPARI_STRIDE_SUM_F32: return 4;
    case DPARI_STRIDE_8:
    case DPARI_STRIDE_TWO_8:
    case DPARI_STRIDE_SUM_F32_2:
    case DPARI_STRIDE_SUM_F32_3:
    case DPARI_STRIDE_SUM_F64: return 8;
    default: return 16;
    }
}

DPARI_STRIDE_INLINE int32_t dpari_stride_pieces(int32_t loop)
{
    switch (loop) {
    case DPARI_STRIDE_TWO_2:
    case DPARI_STRIDE_TWO_4:
    case DPARI_STRIDE_TWO_8:
    case DPARI_STRIDE_TWO_16:
    case DPARI_STRIDE_SUM_F32_3:
    case DPARI_STRIDE_SUM_F32_7:
    case DPARI_STRIDE_SUM_F64_4: return 2;
    case DPARI_STRIDE_FOUR_16:
    case DPARI_STRIDE_SUM_F64_7: return 4;
    default: return 1;
    }
}

/* Reads the whole run before it writes. last: offset of the last piece of the run, in bytes. */
DPARI_STRIDE_INLINE void dpari_stride_copy_run(unsigned char *t, const unsigned char *f,
                                               int64_t last, int32_t width, int32_t pieces)
{
    unsigned char a[16], b[16], c[16], d[16];
    dpari_stride_copy(a, f, width);
    if (pieces > 1) {
        dpari_stride_copy(b, f + last, width);
    }
    if (pieces > 2) {
        dpari_stride_copy(c, f + width, width);
        dpari_stride_copy(d, f + last - width, width);
    }
    dpari_stride_copy(t, a, width);
    if (pieces > 1) {
        dpari_stride_copy(t + last, b, width);
    }
    if (pieces > 2) {
        dpari_stride_copy(t + width, c, width);
        dpari_stride_copy(t + last - width, d, width);
    }
}

DPARI_STRIDE_INLINE void dpari_stride_zero_run(unsigned char *z, int64_t last, int32_t width,
                                               int32_t pieces)
{
    const unsigned char zero[16] = {0};
    dpari_stride_copy(z, zero, width);
    if (pieces > 1) {
        dpari_stride_copy(z + last, zero, width);
    }
    if (pieces > 2) {
        dpari_stride_copy(z + width, zero, width);
        dpari_stride_copy(z + last - width, zero, width);
    }
}

/* Adds f to t. Each NaN becomes the same one, as in dpari_kern_reduce. */
DPARI_STRIDE_INLINE void dpari_stride_sum_f32(unsigned char *t, const unsigned char *f)
{
    const uint32_t quiet = 0x7fc00000u;
    float x, y;
    dpari_stride_copy(&x, t, sizeof x);
    dpari_stride_copy(&y, f, sizeof y);
    x += y;
    if (x != x) {
        dpari_stride_copy(&x, &quiet, sizeof x);
    }
    dpari_stride_copy(t, &x, sizeof x);
}

DPARI_STRIDE_INLINE void dpari_stride_sum_f64(unsigned char *t, const unsigned char *f)
{
    const uint64_t quiet = UINT64_C(0x7ff8) << 48;
    double x, y;
    dpari_stride_copy(&x, t, sizeof x);
    dpari_stride_copy(&y, f, sizeof y);
    x += y;
    if (x != x) {
        dpari_stride_copy(&x, &quiet, sizeof x);
    }
    dpari_stride_copy(t, &x, sizeof x);
}

#if DPARI_STRIDE_VECTOR
typedef double dpari_stride_d2 __attribute__((vector_size(16)));
typedef float dpari_stride_f4 __attribute__((vector_size(16)));
typedef uint64_t dpari_stride_u2 __attribute__((vector_size(16)));

/* Load and store the first `bytes` bytes, 8 or 16, of a vector. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_get(const unsigned char *from, int32_t bytes)
{
    dpari_stride_u2 v = {0, 0};
    if (bytes == 8) {
        uint64_t x;
        dpari_stride_copy(&x, from, 8);
        v[0] = x;
    } else {
        dpari_stride_copy(&v, from, 16);
    }
    return v;
}

DPARI_STRIDE_INLINE void dpari_stride_put(unsigned char *to, dpari_stride_u2 v, int32_t bytes)
{
    dpari_stride_copy(to, &v, bytes);
}

DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_plus(dpari_stride_u2 x, dpari_stride_u2 y,
                                                      int32_t f64)
{
    return f64 ? (dpari_stride_u2)((dpari_stride_d2)x + (dpari_stride_d2)y)
               : (dpari_stride_u2)((dpari_stride_f4)x + (dpari_stride_f4)y);
}

DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_nan(dpari_stride_u2 x, int32_t f64)
{
    return f64 ? (dpari_stride_u2)((dpari_stride_d2)x != (dpari_stride_d2)x)
               : (dpari_stride_u2)((dpari_stride_f4)x != (dpari_stride_f4)x);
}

/* True if a mask has any bit set. Marked as unlikely, so the code after it may be slow. */
DPARI_STRIDE_INLINE int dpari_stride_any(dpari_stride_u2 mask)
{
#if defined(__SSE2__)
    return __builtin_expect(__builtin_ia32_movmskps((dpari_stride_f4)mask) != 0, 0) != 0;
#else
    return __builtin_expect((mask[0] | mask[1]) != 0, 0) != 0;
#endif
}

/* Returns the sum of the elements at t and f. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_met(const unsigned char *t, const unsigned char *f,
                                                     int32_t bytes, int32_t f64)
{
    return dpari_stride_plus(dpari_stride_get(t, bytes), dpari_stride_get(f, bytes), f64);
}

/* Replaces each NaN by the same one. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_quiet(dpari_stride_u2 x, int32_t f64)
{
    const uint64_t quiet = f64 ? UINT64_C(0x7ff8) << 48 : UINT64_C(0x7fc000007fc00000);
    const dpari_stride_u2 both = {quiet, quiet}, bad = dpari_stride_nan(x, f64);
    return (x & ~bad) | (both & bad);
}

/* Adds a run, as dpari_stride_copy_run copies one. The sum of all elements is NaN if one of them
 * is.
 */
DPARI_STRIDE_INLINE void dpari_stride_sum_run(unsigned char *t, const unsigned char *f,
                                              int64_t last, int32_t width, int32_t pieces,
                                              int32_t f64)
{
    dpari_stride_u2 a = dpari_stride_met(t, f, width, f64), b = a, c = a, d = a, all = a;
    if (pieces > 1) {
        b = dpari_stride_met(t + last, f + last, width, f64);
        all = dpari_stride_plus(a, b, f64);
    }
    if (pieces > 2) {
        c = dpari_stride_met(t + width, f + width, width, f64);
        d = dpari_stride_met(t + last - width, f + last - width, width, f64);
        all = dpari_stride_plus(all, dpari_stride_plus(c, d, f64), f64);
    }
    if (dpari_stride_any(dpari_stride_nan(all, f64))) {
        a = dpari_stride_quiet(a, f64);
        b = dpari_stride_quiet(b, f64);
        c = dpari_stride_quiet(c, f64);
        d = dpari_stride_quiet(d, f64);
    }
    dpari_stride_put(t, a, width);
    if (pieces > 1) {
        dpari_stride_put(t + last, b, width);
    }
    if (pieces > 2) {
        dpari_stride_put(t + width, c, width);
        dpari_stride_put(t + last - width, d, width);
    }
}
#endif

/* Copies the run at f to t, or adds it there. If `zero` is set, the run at z becomes 0. */
DPARI_STRIDE_INLINE void dpari_stride_one(unsigned char *t, const unsigned char *f,
                                          unsigned char *z, int64_t last, int32_t loop, int zero)
{
    const int32_t width = dpari_stride_width(loop), pieces = dpari_stride_pieces(loop);
    if (loop == DPARI_STRIDE_SUM_F32) {
        dpari_stride_sum_f32(t, f);
    } else if (loop == DPARI_STRIDE_SUM_F64) {
        dpari_stride_sum_f64(t, f);
    } else if (!dpari_stride_sums(loop)) {
        dpari_stride_copy_run(t, f, last, width, pieces);
    } else {
#if DPARI_STRIDE_VECTOR
        dpari_stride_sum_run(t, f, last, width, pieces, loop > DPARI_STRIDE_SUM_F64);
#endif
    }
    if (zero) {
        dpari_stride_zero_run(z, last, width, pieces);
    }
}

#if DPARI_STRIDE_WIDE
typedef uint64_t dpari_stride_u4 __attribute__((vector_size(32)));

typedef double dpari_stride_d4 __attribute__((vector_size(32)));
typedef float dpari_stride_f8 __attribute__((vector_size(32)));

DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_plus_wide(const dpari_stride_u4 *x, const dpari_stride_u4 *y, int32_t f64)
{
    return f64 ? (dpari_stride_u4)((dpari_stride_d4)*x + (dpari_stride_d4)*y)
               : (dpari_stride_u4)((dpari_stride_f8)*x + (dpari_stride_f8)*y);
}

/* Returns the sum of the vectors at t and f. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_met_wide(const unsigned char *t, const unsigned char *f, int32_t f64)
{
    dpari_stride_u4 x, y;
    dpari_stride_copy(&x, t, 32);
    dpari_stride_copy(&y, f, 32);
    return dpari_stride_plus_wide(&x, &y, f64);
}

/* Replaces each NaN by the same one. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_quiet_wide(const unsigned char *t, const unsigned char *f)
{
    const uint64_t quiet = UINT64_C(0x7ff8) << 48;
    const dpari_stride_u4 all = {quiet, quiet, quiet, quiet};
    const dpari_stride_u4 sum = dpari_stride_met_wide(t, f, 1);
    const dpari_stride_u4 bad = (dpari_stride_u4)((dpari_stride_d4)sum != (dpari_stride_d4)sum);
    return (sum & ~bad) | (all & bad);
}

#endif

/* Sets in `rows` the steps of the two innermost dims, and the memory that is set to 0. */
DPARI_STRIDE_INLINE void dpari_stride_steps(const dpari_stride *stride, dpari_stride_rows *rows)
{
    rows->to_step = stride->dim[0].to;
    rows->from_step = stride->dim[0].from;
    rows->to_row = stride->dim[1].to;
    rows->from_row = stride->dim[1].from;
    rows->run = stride->run;
    rows->zeroes = stride->beside != 0 || (stride->clear && dpari_stride_zeroes(stride->loop));
    if (stride->beside != 0) {
        rows->zero = rows->to + stride->beside;
        rows->zero_step = rows->to_step;
        rows->zero_row = rows->to_row;
    } else {
        rows->zero = dpari_stride_writable(rows->from);
        rows->zero_step = rows->from_step;
        rows->zero_row = rows->from_row;
    }
}

DPARI_STRIDE_INLINE int64_t dpari_stride_size(int64_t step)
{
    return step < 0 ? -step : step;
}

/* Lists of all loops of short copies and of sums. */
#define DPARI_STRIDE_COPIES(X)                                                                     \
    X(DPARI_STRIDE_1)                                                                              \
    X(DPARI_STRIDE_2)                                                                              \
    X(DPARI_STRIDE_TWO_2)                                                                          \
    X(DPARI_STRIDE_4)                                                                              \
    X(DPARI_STRIDE_TWO_4)                                                                          \
    X(DPARI_STRIDE_8)                                                                              \
    X(DPARI_STRIDE_TWO_8)                                                                          \
    X(DPARI_STRIDE_16)                                                                             \
    X(DPARI_STRIDE_TWO_16)                                                                         \
    X(DPARI_STRIDE_FOUR_16)
#if DPARI_STRIDE_VECTOR
#define DPARI_STRIDE_SUMS(X)                                                                       \
    X(DPARI_STRIDE_SUM_F32)                                                                        \
    X(DPARI_STRIDE_SUM_F32_2)                                                                      \
    X(DPARI_STRIDE_SUM_F32_3)                                                                      \
    X(DPARI_STRIDE_SUM_F32_4)                                                                      \
    X(DPARI_STRIDE_SUM_F64)                                                                        \
    X(DPARI_STRIDE_SUM_F64_2)                                                                      \
    X(DPARI_STRIDE_SUM_F64_4)
#define DPARI_STRIDE_OTHER_SUMS(X)                                                                 \
    X(DPARI_STRIDE_SUM_F32_7)                                                                      \
    X(DPARI_STRIDE_SUM_F64_7)
#elif DPARI_STRIDE_ADDS
#define DPARI_STRIDE_SUMS(X)                                                                       \
    X(DPARI_STRIDE_SUM_F32)                                                                        \
    X(DPARI_STRIDE_SUM_F64)
#define DPARI_STRIDE_OTHER_SUMS(X)
#else
#define DPARI_STRIDE_SUMS(X)
#define DPARI_STRIDE_OTHER_SUMS(X)
#endif

#endif /* DPARI_STRIDED_LOOPS_H */

/* ==== halo/halo_plan.c ==== */

/* Computes where the boxes of a plan are: in arrays, in compact halos and in staging memory.
 *
 * These functions convert a point of the grid to an address, by the strides and origin of a field.
 * Planning, mirrors and checks use them, so that all compute the same addresses. */

/* ---- fields ---------------------------------------------------------------------------------- */

/* A table without `move` means the host's memory. */
DPARI_API DPARI_NOINLINE const dpar_mem *dpari_hx_mem(const dpar_halo_field *field)
{
    return field->mem && field->mem->move ? field->mem : NULL;
}

DPARI_API int32_t dpari_hx_components(const dpar_halo_field *field)
{
    return field->components > 0 ? field->components : 1;
}

DPARI_API int32_t dpari_hx_wire(const dpar_halo_field *field)
{
    return field->wire_type != DPAR_TYPE_NONE ? field->wire_type : field->type;
}

DPARI_API const dpar_halo_field *dpari_hx_other(const dpar_halo_field *field)
{
    if (field->pair == DPAR_HALO_PAIR_U) {
        return field + 1;
    }
    return field->pair == DPAR_HALO_PAIR_V ? field - 1 : NULL;
}

DPARI_API int dpari_hx_crosses(const dpar_halo_field *field, int32_t turn)
{
    return field->pair != 0 && (turn & 1) != 0;
}

/* Turned by 1 the pair (u, v) is (-v, u), by 2 (-u, -v), by 3 (v, -u). */
DPARI_API int dpari_hx_negates(const dpar_halo_field *field, int32_t turn)
{
    const int turned = field->pair != 0 && turn == (field->pair == DPAR_HALO_PAIR_U ? 1 : 3);
    return field->vector && (turn == 2 || turned);
}

DPARI_INTERNAL void dpari_hx_inside(const dpar_halo *halo, dpar_box *box)
{
    int32_t d;
    if (halo->folds || halo->poles || halo->cube) {
        return;
    }
    for (d = 0; d < box->dims; d++) {
        if (!(halo->periodic >> d & 1u)) {
            box->lo[d] = dpari_most(box->lo[d], 0);
            box->hi[d] = dpari_least(box->hi[d], dpar_halo_points(halo, d));
        }
    }
}

/* On a rank without own points, the empty own box is at the first point of the local box, where the
 * array begins. Both boxes are computed at once, because planning calls this function often. */
DPARI_API DPARI_COLD int dpari_hx_boxes(const dpar_halo *halo, int32_t rank, dpar_box *own,
                                        dpar_box *all)
{
    int32_t coord[DPAR_MAX_AXES], d, none = 0;
    if (!dpari_halo_coords(halo, rank, coord)) {
        return 0;
    }
    own->dims = all->dims = halo->grid.dims;
    for (d = 0; d < all->dims; d++) {
        int64_t inner[2], outer[2];
        if (!dpari_halo_range(halo, coord, d, inner, outer) || outer[1] <= outer[0]) {
            return 0;
        }
        own->lo[d] = inner[0];
        own->hi[d] = inner[1];
        all->lo[d] = outer[0];
        all->hi[d] = outer[1];
        none |= inner[1] <= inner[0];
    }
    for (d = 0; d < all->dims && none; d++) {
        own->lo[d] = own->hi[d] = all->lo[d];
    }
    return 1;
}

DPARI_INTERNAL const dpar_halo *dpari_hx_array_halo(const dpar_halo_field *field)
{
    return field->array_halo ? field->array_halo : field->halo;
}

/* Describes the array as `rank` holds it if origin and strides are the defaults: dense in C order,
 * with its halo unless that is compact. */
DPARI_INTERNAL void dpari_hx_dense(dpari_hx_array *array, const dpar_halo_field *field,
                                   int32_t rank)
{
    dpar_box own, all;     /* of the halo to exchange */
    dpar_box first, whole; /* of the halo that the array has */
    int64_t step = dpari_hx_components(field);
    int32_t d, exists;
    dpari_zero(array, sizeof *array);
    array->halo = field->halo;
    array->rank = rank;
    array->told.component = 1;
    exists = dpari_hx_boxes(field->halo, rank, &own, &all);
    if (field->array_halo) {
        exists = exists && dpari_hx_boxes(field->array_halo, rank, &first, &whole);
    } else {
        first = own;
        whole = all;
    }
    for (d = field->halo->grid.dims - 1; d >= 0 && exists; d--) {
        array->low[d] = own.lo[d] - all.lo[d];
        array->own[d] = own.hi[d] - own.lo[d];
        array->inner[d] = own.lo[d] - first.lo[d];
        array->told.origin[d] = field->compact_halo ? 0 : own.lo[d] - whole.lo[d];
        array->told.stride[d] = step;
        step *= field->compact_halo ? dpari_most(array->own[d], 1) : whole.hi[d] - whole.lo[d];
    }
}

DPARI_INTERNAL int dpari_hx_strided(const dpar_halo_field *field)
{
    int32_t d;
    for (d = 0; d < field->halo->grid.dims; d++) {
        if (field->stride[d] != 0) {
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL void dpari_hx_array_of(dpari_hx_array *array, const dpar_halo_field *field,
                                      int32_t rank)
{
    int32_t d;
    dpari_hx_dense(array, field, rank);
    array->compact = array->told.compact = field->compact_halo != NULL;
    array->told.elsewhere = dpari_hx_mem(field) != NULL;
    array->told.component = field->component_stride != 0 ? field->component_stride : 1;
    if (dpari_hx_strided(field)) {
        for (d = 0; d < field->halo->grid.dims; d++) {
            array->told.origin[d] = field->first[d] + array->inner[d];
            array->told.stride[d] = field->stride[d];
        }
    }
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_hx_overlapping_dim(const int64_t *stride,
                                                           const int64_t *points, int32_t dims)
{
    int64_t reach = 0;
    uint32_t left = ((uint32_t)1 << dims) - 1; /* bits of dims still to check */
    while (left != 0) {
        int64_t least = INT64_MAX;
        int32_t d, next = 0;
        for (d = 0; d < dims; d++) {
            if ((left >> d & 1u) && dpari_size(stride[d]) < least) {
                least = dpari_size(stride[d]);
                next = d;
            }
        }
        left &= ~((uint32_t)1 << next);
        if (points[next] > 1) {
            if (least <= reach) {
                return next;
            }
            reach += (points[next] - 1) * least;
        }
    }
    return -1;
}

/* A field can be exchanged dim by dim if a block and its neighbours along each dim have the same
 * points in all other dims. */
DPARI_INTERNAL DPARI_COLD int dpari_hx_can_order(const dpar_halo_field *field)
{
    const dpar_halo *halo = field->halo;
    int32_t d;
    for (d = 0; d < halo->grid.dims; d++) {
        if (halo->window[d].kernel != 0) {
            return 0;
        }
    }
    return !halo->folds && !halo->poles && !halo->cube && !halo->owner && !field->compact_halo &&
           (halo->shape != DPAR_STENCIL_EDGES || halo->grid.dims <= 2);
}

/* ---- places of boxes ------------------------------------------------------------------------- */

/* Finds the slab of a compact halo in which a box begins, in local points, and the number of
 * elements before that slab. Returns 0 if there is none. */
static DPARI_COLD int dpari_hx_slab(const dpari_hx_array *array, const int64_t *at,
                                    int32_t components, dpar_box *slab, int64_t *before)
{
    dpar_box own, all;
    int32_t n, d;
    *before = 0;
    if (!dpari_hx_boxes(array->halo, array->rank, &own, &all)) {
        return 0;
    }
    for (n = 0; dpar_halo_slab(array->halo, array->rank, n, slab); n++) {
        int64_t points = 1;
        int inside = 1;
        for (d = 0; d < slab->dims; d++) {
            slab->lo[d] -= all.lo[d];
            slab->hi[d] -= all.lo[d];
            inside = inside && at[d] >= slab->lo[d] && at[d] < slab->hi[d];
            points *= slab->hi[d] - slab->lo[d];
        }
        if (inside) {
            return 1;
        }
        *before += points * components;
    }
    return 0;
}

/* Finds the place in an array of the box that begins at local point at[]. */
DPARI_API DPARI_COLD void dpari_hx_place(const dpari_hx_array *array, const int64_t *at,
                                         int32_t components, dpari_hx_spot *spot)
{
    const int32_t dims = array->halo->grid.dims;
    int32_t d, own = 1;
    dpar_box slab;
    int64_t step = components;
    for (d = 0; d < dims; d++) {
        own = own && at[d] >= array->low[d] && at[d] < array->low[d] + array->own[d];
    }
    spot->part = DPARI_HX_OWN;
    spot->at = 0;
    spot->stride[dims] = array->told.component;
    if (array->compact && !own) {
        if (!dpari_hx_slab(array, at, components, &slab, &spot->at)) {
            spot->part = -1; /* a corner, which a star does not have */
            return;
        }
        spot->part = DPARI_HX_HALOS;
        spot->stride[dims] = 1;
        for (d = dims - 1; d >= 0; d--) {
            spot->stride[d] = step;
            spot->at += (at[d] - slab.lo[d]) * step;
            step *= slab.hi[d] - slab.lo[d];
        }
        return;
    }
    for (d = 0; d < dims; d++) {
        spot->stride[d] = array->told.stride[d];
        spot->at += (array->told.origin[d] + at[d] - array->low[d]) * array->told.stride[d];
    }
}

/* Extends the run by any dim whose stride equals its length, until there is no such dim. */
DPARI_INTERNAL int64_t dpari_hx_in_a_row(const int64_t *extent, const int64_t *stride, int32_t dims,
                                         int32_t type)
{
    int64_t run = 1;
    int32_t d = 0;
    while (d < dims) {
        for (d = 0; d < dims; d++) {
            if (extent[d] > 1 && (stride[d] == run || stride[d] == -run)) {
                run *= extent[d];
                break;
            }
        }
    }
    return run * dpar_type_bytes(type);
}

DPARI_INTERNAL unsigned char *dpari_hx_mine(const dpar_halo_plan *plan, const dpari_hx_item *item)
{
    return plan->part[item->mine] + item->mine_at;
}

/* Returns the beginning of the memory from which an item is taken. */
DPARI_INTERNAL const unsigned char *dpari_hx_base(const dpar_halo_plan *plan,
                                                  const dpari_hx_item *item)
{
    if (item->direct) {
        return item->peer < 0 ? plan->part[item->theirs] : plan->peer[item->peer].at[item->theirs];
    }
    if (item->peer < 0) {
        return plan->staging + dpari_exchange_turn(&plan->x) * plan->turn;
    }
    if (dpari_exchange_sends(&plan->x, item->peer)) {
        return plan->arrivals;
    }
    return plan->peer[item->peer].staging +
           dpari_exchange_turn(&plan->x) * plan->peer[item->peer].turn;
}

DPARI_INTERNAL const unsigned char *dpari_hx_from(const dpar_halo_plan *plan,
                                                  const dpari_hx_item *item)
{
    return dpari_hx_base(plan, item) + (item->direct ? item->theirs_at : item->take_at);
}

/* ==== halo/halo_fields.c ==== */

/* Checks the fields of a plan on one rank, and lists what of them must be equal on all ranks.
 * Called by halo_exchange.c before anything else is planned. */

/* ---- checks ---------------------------------------------------------------------------------- */

/* Checks the types of a field's values, in the array and as they are sent. */
static dpar_status dpari_hx_check_type(const dpar_halo_field *field, int32_t i, dpar_why *why)
{
    if (dpar_type_bytes(field->type) == 0) {
        return dpari_wrong(
            why,
            "field %d: type %s (%d) is not allowed: its elements have no whole number of "
            "bytes",
            i, dpar_type_name(field->type), field->type);
    }
    if (dpari_hx_wire(field) != field->type && !dpari_narrows(field->type, field->wire_type)) {
        return dpari_wrong(
            why,
            "field %d cannot be sent as %s (wire_type %d); f64 can be sent as f32, f32 as "
            "f16 or bf16",
            i, dpar_type_name(field->wire_type), field->wire_type);
    }
    if (field->vector < 0 || field->vector > 2) {
        return dpari_wrong(why, "field %d: vector is %d; it must be 0 to 2", i, field->vector);
    }
    if (field->vector && !dpari_type_can_reduce(field->type)) {
        return dpari_wrong(why, "field %d: vector must be 0, because type %s has no sign to change",
                           i, dpar_type_name(field->type));
    }
    return DPAR_OK;
}

/* Checks that all ranks of a field are ranks of the communicator. */
static dpar_status dpari_hx_check_ranks(const dpar_comm *comm, const dpar_halo *halo, int32_t i,
                                        dpar_why *why)
{
    const dpar_mesh *mesh = &halo->grid.mesh;
    int64_t last = mesh->first_rank + (int64_t)mesh->size - 1;
    int32_t k;
    if (halo->owner) {
        last = -1;
        for (k = 0; k < mesh->size; k++) {
            last = dpari_most(last, halo->owner[k]);
        }
    }
    if (last >= comm->size || (!halo->owner && mesh->first_rank < 0)) {
        return dpari_wrong(why, "field %d is on ranks up to %ld, but the communicator has %d ranks",
                           i, last, comm->size);
    }
    return DPAR_OK;
}

/* True if the arrays of a field can hold the points that blocks share. If points are between cells
 * in two dims, blocks share corners, which the compact halo of a star does not have. */
static int dpari_hx_can_share(const dpar_halo_field *field)
{
    int32_t d, between = 0;
    for (d = 0; d < field->halo->grid.dims; d++) {
        between += field->halo->points[d] != DPAR_HALO_AT_CELLS;
    }
    return between < 2 || !field->compact_halo || !dpari_halo_star(field->halo);
}

/* Checks that a field can be exchanged dim by dim, or as shared points, if the plan asks for it. */
static dpar_status dpari_hx_check_options(const dpar_halo_field *field, int32_t i,
                                          const dpar_halo_plan_desc *desc, dpar_why *why)
{
    if (desc->ordered && !dpari_hx_can_order(field)) {
        return dpari_wrong(
            why,
            "field %d has a fold, poles, a cube, masked owners, windows, compact halos or "
            "edges without corners: it cannot be exchanged dim by dim, so that "
            "desc.ordered must be 0",
            i);
    }
    if (desc->shared && !dpari_hx_can_share(field)) {
        return dpari_wrong(
            why,
            "field %d: with desc.shared 1, a star needs data with the whole halo, because "
            "a compact halo has no place for the corners that blocks share",
            i);
    }
    return DPAR_OK;
}

/* True if all addresses of the array are within 2^60 bytes of its index 0, so that differences of
 * addresses cannot overflow. */
static int dpari_hx_reaches(const dpar_halo_field *field, const dpar_box *all)
{
    const int64_t most = INT64_C(1) << 60, unit = dpar_type_bytes(field->type);
    const int64_t component = field->component_stride != 0 ? field->component_stride : 1;
    const int strided = dpari_hx_strided(field);
    int64_t step = dpari_hx_components(field); /* the default stride */
    int64_t sum = step;
    int32_t d;
    if (component < -most || component > most || !dpari_mul(sum, dpari_size(component), &sum)) {
        return 0;
    }
    for (d = all->dims - 1; d >= 0; d--) {
        const int64_t stride = strided ? field->stride[d] : step;
        const int64_t origin = strided ? field->first[d] : 0;
        const int64_t points = all->hi[d] - all->lo[d];
        int64_t distance;
        if (stride < -most || stride > most || origin < -most || origin > most) {
            return 0;
        }
        if (!dpari_mul(dpari_size(origin) + points, dpari_size(stride), &distance) ||
            distance > most || sum > most || !dpari_mul(step, dpari_most(points, 1), &step)) {
            return 0;
        }
        sum += distance;
    }
    return sum <= most / unit;
}

/* True if two points of a box may have the same address. */
static int dpari_hx_overlaps(const dpar_halo_field *field, int32_t rank, dpar_box *box)
{
    int64_t points[DPARI_HX_DIMS], stride[DPARI_HX_DIMS];
    dpari_hx_array array;
    int32_t d;
    dpari_hx_array_of(&array, field, rank);
    dpari_hx_inside(field->halo, box);
    for (d = 0; d < box->dims; d++) {
        points[d] = box->hi[d] - box->lo[d];
        stride[d] = array.told.stride[d];
    }
    points[d] = dpari_hx_components(field);
    stride[d] = array.told.component;
    return dpari_hx_overlapping_dim(stride, points, d + 1) >= 0;
}

/* Checks that field i and the next one form a pair (DPAR_HALO_PAIR_U, DPAR_HALO_PAIR_V). */
static dpar_status dpari_hx_check_pair(const dpar_halo_field *fields, int32_t n, int32_t i,
                                       dpar_why *why)
{
    const dpar_halo_field *field = &fields[i], *other;
    const int32_t there = field->pair == DPAR_HALO_PAIR_U ? i + 1 : i - 1;
    if (field->pair == 0) {
        return DPAR_OK;
    }
    if (field->pair < 0 || field->pair > DPAR_HALO_PAIR_V || there < 0 || there >= n ||
        fields[there].pair != DPAR_HALO_PAIR_U + DPAR_HALO_PAIR_V - field->pair) {
        return dpari_wrong(why,
                           "field %d of %d: pair is %d, but DPAR_HALO_PAIR_U (1) must be followed "
                           "by DPAR_HALO_PAIR_V (2)",
                           i, n, field->pair);
    }
    other = &fields[there];
    if (!field->halo->cube || field->vector == 2) {
        return dpari_wrong(
            why, "field %d: pair is only for cubed spheres and vector 0 or 1, but vector is %d", i,
            field->vector);
    }
    if (field->type != other->type || dpari_hx_wire(field) != dpari_hx_wire(other) ||
        dpari_hx_components(field) != dpari_hx_components(other) ||
        field->vector != other->vector || dpari_hx_mem(field) != dpari_hx_mem(other)) {
        return dpari_wrong(
            why,
            "fields %d and %d are a pair, but differ in type, wire_type, components, vector "
            "or memory",
            (int32_t)dpari_least(i, there), (int32_t)dpari_most(i, there));
    }
    return DPAR_OK;
}

/* True if points are on faces of a cube's cells, which only pairs may have. */
static int dpari_hx_needs_pair(const dpar_halo *halo)
{
    const int32_t y = halo->grid.dims - 2;
    return halo->cube &&
           (halo->points[y] != DPAR_HALO_AT_CELLS || halo->points[y + 1] != DPAR_HALO_AT_CELLS);
}

/* Returns what is wrong with a field that has array_halo, or NULL. */
static const char *dpari_hx_array_halo_fault(const dpar_halo_field *field)
{
    const dpar_halo *halo = field->halo, *wide = field->array_halo;
    int32_t d;
    if (field->compact_halo) {
        return "a compact halo has the width of the plan, so that array_halo must be NULL";
    }
    if (halo->grid.dims != wide->grid.dims ||
        !dpari_mesh_same(&halo->grid.mesh, &wide->grid.mesh) || halo->owner != wide->owner) {
        return "array_halo has another grid, mesh or owners than halo";
    }
    for (d = 0; d < halo->grid.dims; d++) {
        if (halo->grid.extent[d] != wide->grid.extent[d]) {
            return "array_halo has a grid of another size than halo";
        }
        if (halo->points[d] != wide->points[d]) {
            return "array_halo has other points than halo";
        }
    }
    return NULL;
}

/* Checks that the wider halo of an array (array_halo) includes the halo that is exchanged. */
static dpar_status dpari_hx_check_array_halo(const dpar_halo_field *field, int32_t i, int32_t rank,
                                             dpar_why *why)
{
    const dpar_halo *halo = field->halo, *wide = field->array_halo;
    const char *fault;
    dpar_box all, whole;
    int32_t d;
    dpar_status status = dpar_halo_check(wide, why);
    if (status != DPAR_OK) {
        return status;
    }
    fault = dpari_hx_array_halo_fault(field);
    if (fault != NULL) {
        return dpari_wrong(why, "field %d: %s", i, fault);
    }
    if (!dpar_halo_box(halo, rank, &all)) {
        return DPAR_OK;
    }
    if (!dpar_halo_box(wide, rank, &whole)) {
        return dpari_say(DPAR_E_RANGE, why, "field %d: array_halo has no points on rank %d", i,
                         rank);
    }
    for (d = 0; d < halo->grid.dims; d++) {
        if (all.lo[d] < whole.lo[d] || all.hi[d] > whole.hi[d]) {
            return dpari_say(DPAR_E_RANGE, why,
                             "field %d, dim %d: widths of %ld and %ld are more than array_halo has",
                             i, d, halo->low[d], halo->high[d]);
        }
    }
    return DPAR_OK;
}

/* Checks field i of a plan, without the other ranks. */
static dpar_status dpari_hx_check_field(const dpar_comm *comm, const dpar_halo_field *field,
                                        int32_t i, const dpar_halo_plan_desc *desc, dpar_why *why)
{
    dpar_box own, all;
    dpar_status status;
    if (!field->halo) {
        return dpari_wrong(why, "field %d: halo is NULL", i);
    }
    status = dpar_halo_check(field->halo, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_hx_check_type(field, i, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_hx_check_ranks(comm, field->halo, i, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (dpari_hx_needs_pair(field->halo) && field->pair == 0) {
        return dpari_wrong(
            why,
            "field %d: on a cubed sphere, points on faces of cells need a pair of fields: "
            "set pair to DPAR_HALO_PAIR_U and DPAR_HALO_PAIR_V",
            i);
    }
    if ((field->vector == 2 && field->components != 2) ||
        (field->halo->cube && field->vector == 1 && field->pair == 0)) {
        return dpari_wrong(
            why,
            "field %d: vector is %d with %d components; vector 2 needs 2 components, and "
            "on a cubed sphere vector 1 needs a pair of fields",
            i, field->vector, field->components);
    }
    if (field->components < 0) {
        return dpari_wrong(why, "field %d: components is %d; it must be 0 to 2^24", i,
                           field->components);
    }
    if (field->components > 1 << 24) {
        return dpari_say(DPAR_E_RANGE, why, "field %d: components is %d; at most 2^24 are allowed",
                         i, field->components);
    }
    if (field->array_halo) {
        status = dpari_hx_check_array_halo(field, i, comm->rank, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (dpar_halo_box(dpari_hx_array_halo(field), comm->rank, &all) &&
        !dpari_hx_reaches(field, &all)) {
        return dpari_say(DPAR_E_RANGE, why, "field %d: its array extends over more than 2^60 bytes",
                         i);
    }
    if ((dpari_hx_strided(field) || dpari_hx_components(field) > 1) &&
        (field->compact_halo ? dpar_halo_owned(field->halo, comm->rank, &all)
                             : dpar_halo_box(field->halo, comm->rank, &all)) &&
        dpari_hx_overlaps(field, comm->rank, &all)) {
        return dpari_wrong(
            why,
            "field %d: with these strides (component_stride %ld) several points of rank %d "
            "have the same address",
            i, field->component_stride, comm->rank);
    }
    if (!field->data && dpar_halo_owned(field->halo, comm->rank, &own)) {
        return dpari_wrong(why, "field %d: data is NULL on rank %d, which owns points", i,
                           comm->rank);
    }
    if (!field->data && !field->compact_halo && dpar_halo_box(field->halo, comm->rank, &all)) {
        return dpari_wrong(why,
                           "field %d: data and compact_halo are NULL on rank %d, which has a halo",
                           i, comm->rank);
    }
    return dpari_hx_check_options(field, i, desc, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_hx_check_fields(const dpar_comm *comm,
                                                            const dpar_halo_plan_desc *desc,
                                                            dpar_why *why)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < desc->field_count && status == DPAR_OK; i++) {
        status = dpari_hx_check_field(comm, &desc->field[i], i, desc, why);
    }
    for (i = 0; i < desc->field_count && status == DPAR_OK; i++) {
        status = dpari_hx_check_pair(desc->field, desc->field_count, i, why);
    }
    return status;
}

/* ---- facts ----------------------------------------------------------------------------------- */

/* Lists the fields of a window that must be equal on all ranks. */
static void dpari_hx_state_window(dpari_facts *facts, const dpar_window *window, int32_t d)
{
    dpari_fact(facts, "halo.window[#].kernel", d, window->kernel);
    if (window->kernel != 0) {
        dpari_fact(facts, "halo.window[#].stride", d, window->stride);
        dpari_fact(facts, "halo.window[#].dilation", d, window->dilation);
        dpari_fact(facts, "halo.window[#].pad_low", d, window->pad_low);
        dpari_fact(facts, "halo.window[#].pad_high", d, window->pad_high);
        dpari_fact(facts, "halo.window[#].kind", d, window->kind);
        dpari_fact(facts, "halo.window[#].ceil_mode", d, window->ceil_mode != 0);
        dpari_fact(facts, "halo.window[#].align_corners", d, window->align_corners != 0);
    }
}

/* Lists the fields of axis i of a layout that must be equal on all ranks. A field that the kind of
 * placement does not use is listed as 0. */
static void dpari_hx_state_axis(dpari_facts *facts, const dpar_layout *layout, int32_t i)
{
    const dpar_placement *placement = &layout->axis[i];
    const int cuts = placement->kind == DPAR_PLACEMENT_SHARD;
    uint64_t h = 1;
    int32_t k;
    for (k = 0; cuts && placement->rule == DPAR_SPLIT_RAGGED && k <= layout->mesh.axis[i].size;
         k++) {
        h = dpari_hash(h, placement->cuts[k]);
    }
    dpari_fact(facts, "the size of axis # of halo.grid.mesh", i, layout->mesh.axis[i].size);
    dpari_fact(facts, "the stride of axis # of halo.grid.mesh", i, layout->mesh.axis[i].stride);
    dpari_fact(facts, "halo.grid.order[#]", i, layout->order[i]);
    dpari_fact(facts, "the kind of placement # of halo.grid", i, placement->kind);
    dpari_fact(facts, "the dim of placement # of halo.grid", i, cuts ? placement->dim : 0);
    dpari_fact(facts, "the rule of placement # of halo.grid", i, cuts ? placement->rule : 0);
    dpari_fact(facts, "the block of placement # of halo.grid", i, cuts ? placement->block : 0);
    dpari_fact(facts, "the source of placement # of halo.grid", i, cuts ? placement->source : 0);
    dpari_fact(facts, "the op of placement # of halo.grid", i,
               placement->kind == DPAR_PLACEMENT_PARTIAL ? placement->op : 0);
    dpari_fact_hash(facts, "the list of cuts of placement # of halo.grid", i, h);
}

/* Lists the fields of a halo that must be equal on all ranks: points, owners, widths and ends. */
static void dpari_hx_state_halo(dpari_facts *facts, const dpar_halo *halo)
{
    const int bends = halo->folds || halo->poles;
    uint64_t owners = 1;
    int32_t d;
    dpari_fact(facts, "halo.grid.dims", 0, halo->grid.dims);
    for (d = 0; d < halo->grid.dims; d++) {
        dpari_fact(facts, "halo.grid.extent[#]", d, halo->grid.extent[d]);
        dpari_fact(facts, "halo.low[#]", d, halo->low[d]);
        dpari_fact(facts, "halo.high[#]", d, halo->high[d]);
        dpari_fact(facts, "halo.points[#]", d, halo->points[d]);
        dpari_hx_state_window(facts, &halo->window[d], d);
    }
    dpari_fact(facts, "halo.shape", 0, halo->shape);
    dpari_fact(facts, "halo.periodic", 0, halo->periodic);
    dpari_fact(facts, "halo.folds", 0, halo->folds);
    dpari_fact(facts, "halo.poles", 0, halo->poles);
    dpari_fact(facts, "halo.cube", 0, halo->cube);
    dpari_fact(facts, "halo.fold", 0, bends ? halo->fold : 0);
    dpari_fact(facts, "halo.mirror", 0, bends ? halo->mirror : 0);
    dpari_fact(facts, "halo.on_row", 0, halo->folds ? halo->on_row : 0);
    dpari_fact(facts, "halo.shift", 0, halo->folds ? halo->shift : 0);
    dpari_fact(facts, "halo.pole_rows", 0, halo->pole_rows);
    dpari_fact(facts, "the number of axes of halo.grid.mesh", 0, halo->grid.mesh.axes);
    dpari_fact(facts, "halo.grid.mesh.first_rank", 0, halo->grid.mesh.first_rank);
    for (d = 0; d < halo->grid.mesh.axes; d++) {
        dpari_hx_state_axis(facts, &halo->grid, d);
    }
    for (d = 0; halo->owner && d < halo->grid.mesh.size; d++) {
        owners = dpari_hash(owners, halo->owner[d]);
    }
    dpari_fact_hash(facts, "halo.owner", 0, owners);
    dpari_fact_hash(facts, "halo.outputs", 0,
                    halo->outputs ? dpari_hash_layout(1, halo->outputs) : 0);
}

DPARI_INTERNAL DPARI_COLD void dpari_hx_state(dpari_facts *facts, const void *given)
{
    const dpar_halo_plan_desc *desc = (const dpar_halo_plan_desc *)given;
    int32_t i;
    dpari_fact(facts, "the number of fields", 0, desc->field_count);
    dpari_fact(facts, "desc.method", 0, desc->method);
    dpari_fact(facts, "desc.ordered", 0, desc->ordered);
    dpari_fact(facts, "desc.shared", 0, desc->shared);
    dpari_fact(facts, "desc.run_bytes", 0, desc->run_bytes);
    dpari_fact(facts, "desc.tag", 0, desc->tag);
    facts->of = "field #: ";
    for (i = 0; i < desc->field_count; i++) {
        const dpar_halo_field *field = &desc->field[i];
        facts->of_index = i;
        dpari_fact_type(facts, "type", 0, field->type);
        dpari_fact_type(facts, "wire_type", 0, dpari_hx_wire(field));
        dpari_fact(facts, "components", 0, dpari_hx_components(field));
        dpari_fact(facts, "vector", 0, field->vector);
        dpari_fact(facts, "pair", 0, field->pair);
        dpari_hx_state_halo(facts, field->halo);
    }
}

/* ==== halo/halo_overlap.c ==== */

/* Finds out whether two arrays of a plan have an element in common. Fields may be interleaved with
 * any strides, so that comparing address ranges is not enough. Two arrays have an element in common
 * if some sum of multiples of their strides is the distance between them. A search over these sums,
 * with bounds on the part that the remaining strides can add, is exact. It ends after a number of
 * tries (2^20 in a plan) and then assumes that the arrays have no element in common. Called by
 * dpar_halo_plan_make, and by dpar_grid_attach for two arrays. */

enum {
    DPARI_HX_SEARCH = 1 << 20, /* number of tries in a plan */
    DPARI_HX_PAIR = 16         /* tries counted for a pair even if its search ends at once */
};

/* A set of elements of `unit` bytes, at base + the sum over dims of stride * t with 0 <= t <= last.
 */
typedef struct dpari_hx_cells {
    int64_t base, unit;
    int32_t dims;
    int64_t stride[DPARI_HX_DIMS], last[DPARI_HX_DIMS]; /* strides in bytes */
} dpari_hx_cells;

/* Computes the elements of a part of a field (data or compact halo). Returns 0 if there are none.
 */
static DPARI_COLD int dpari_hx_cells_of(const dpar_halo_field *field, int32_t rank, int32_t part,
                                        dpari_hx_cells *cells)
{
    const int32_t dims = field->halo->grid.dims, components = dpari_hx_components(field);
    dpari_hx_array array;
    dpari_hx_spot spot;
    dpar_box own, all, slab;
    int64_t at[DPAR_MAX_DIMS] = {0}, points = 0;
    int32_t d;
    dpari_zero(cells, sizeof *cells);
    cells->unit = dpar_type_bytes(field->type);
    if (!dpari_hx_boxes(field->halo, rank, &own, &all)) {
        return 0;
    }
    if (part == DPARI_HX_HALOS) {
        for (d = 0; field->compact_halo && dpar_halo_slab(field->halo, rank, d, &slab); d++) {
            points += dpar_box_volume(&slab) * components;
        }
        cells->base = (int64_t)(uintptr_t)field->compact_halo;
        cells->dims = 1;
        cells->stride[0] = cells->unit;
        cells->last[0] = points - 1;
        return points > 0;
    }
    dpari_hx_array_of(&array, field, rank);
    slab = all;
    dpari_hx_inside(field->halo, &slab);
    for (d = 0; d < dims; d++) {
        at[d] = array.compact ? array.low[d] : slab.lo[d] - all.lo[d];
        cells->last[d] = (array.compact ? array.own[d] : slab.hi[d] - slab.lo[d]) - 1;
        if (!field->data || cells->last[d] < 0) {
            return 0;
        }
    }
    dpari_hx_place(&array, at, components, &spot);
    cells->dims = dims + 1;
    cells->last[dims] = components - 1;
    for (d = 0; d <= dims; d++) {
        cells->stride[d] = spot.stride[d] * cells->unit;
    }
    cells->base = (int64_t)(uintptr_t)field->data + spot.at * cells->unit;
    return 1;
}

/* Computes the addresses where a set of elements begins and ends. */
static DPARI_COLD void dpari_hx_span(const dpari_hx_cells *cells, int64_t *span)
{
    int32_t d;
    span[0] = cells->base;
    span[1] = cells->base + cells->unit;
    for (d = 0; d < cells->dims; d++) {
        span[0] += dpari_least(cells->stride[d] * cells->last[d], 0);
        span[1] += dpari_most(cells->stride[d] * cells->last[d], 0);
    }
}

/* The search for a sum of step * t, with least <= t <= most for each step, that is in the range
 * from low to high. The steps are in descending order. */
typedef struct dpari_hx_sums {
    int32_t n; /* number of steps */
    int64_t step[2 * DPARI_HX_DIMS], least[2 * DPARI_HX_DIMS], most[2 * DPARI_HX_DIMS];
    int64_t low, high;
    /* for each step, bounds of the sum over the steps after it */
    int64_t lowest[2 * DPARI_HX_DIMS], highest[2 * DPARI_HX_DIMS];
    int64_t left; /* tries that are left */
} dpari_hx_sums;

/* Adds a step. Merges it with an equal step, and replaces a negative step by its absolute value. */
static DPARI_COLD void dpari_hx_add_step(dpari_hx_sums *sums, int64_t step, int64_t least,
                                         int64_t most)
{
    int32_t k = sums->n, i;
    if (least == most) { /* a dim of one point adds nothing, because both are 0 */
        return;
    }
    if (step < 0) {
        dpari_hx_add_step(sums, -step, -most, -least);
        return;
    }
    while (k > 0 && sums->step[k - 1] < step) {
        k--;
    }
    if (k == 0 || sums->step[k - 1] != step) {
        for (i = sums->n++; i > k; i--) {
            sums->step[i] = sums->step[i - 1];
            sums->least[i] = sums->least[i - 1];
            sums->most[i] = sums->most[i - 1];
        }
        sums->step[k] = step;
        sums->least[k] = sums->most[k] = 0;
        k++;
    }
    sums->least[k - 1] += least;
    sums->most[k - 1] += most;
}

/* True if `sum` plus some sum over steps k, k + 1, ... is in the range from low to high. Tries only
 * those factors of step k for which the later steps can still reach the range. */
static DPARI_COLD int dpari_hx_can_reach(dpari_hx_sums *sums, int32_t k, int64_t sum)
{
    int64_t t, last;
    if (k == sums->n) {
        return sum >= sums->low && sum <= sums->high;
    }
    t = dpari_most(sums->least[k],
                   -dpari_floor_div(sum + sums->highest[k] - sums->low, sums->step[k]));
    last = dpari_least(sums->most[k],
                       dpari_floor_div(sums->high - sum - sums->lowest[k], sums->step[k]));
    for (; t <= last && sums->left > 0; t++) {
        sums->left--;
        if (dpari_hx_can_reach(sums, k + 1, sum + t * sums->step[k])) {
            return 1;
        }
    }
    return 0;
}

/* True if two sets have a byte in common; false if the tries in *left do not suffice to find one.
 * Two elements overlap if the distance between their addresses, which is a sum of strides, is less
 * than the number of bytes of the lower element. */
static DPARI_COLD int dpari_hx_cells_meet(const dpari_hx_cells *a, const dpari_hx_cells *b,
                                          int64_t *left)
{
    dpari_hx_sums sums;
    int32_t d;
    int meet;
    dpari_zero(&sums, sizeof sums);
    for (d = 0; d < a->dims; d++) {
        dpari_hx_add_step(&sums, a->stride[d], -a->last[d], 0);
    }
    for (d = 0; d < b->dims; d++) {
        dpari_hx_add_step(&sums, b->stride[d], 0, b->last[d]);
    }
    for (d = sums.n - 1; d > 0; d--) {
        sums.lowest[d - 1] = sums.lowest[d] + sums.step[d] * sums.least[d];
        sums.highest[d - 1] = sums.highest[d] + sums.step[d] * sums.most[d];
    }
    sums.low = 1 - b->unit;
    sums.high = a->unit - 1;
    sums.left = *left - DPARI_HX_PAIR;
    meet = dpari_hx_can_reach(&sums, 0, b->base - a->base);
    *left = sums.left;
    return meet;
}

/* True if parts p and q have an element in common. Each field has two parts: data and halos. */
static DPARI_COLD int dpari_hx_parts_meet(const dpar_halo_field *fields, int32_t rank, int32_t p,
                                          int32_t q, int64_t *left)
{
    const dpar_halo_field *field = &fields[p / 2], *g = &fields[q / 2];
    dpari_hx_cells a, b;
    return dpari_hx_mem(field) == dpari_hx_mem(g) && dpari_hx_cells_of(field, rank, p % 2, &a) &&
           dpari_hx_cells_of(g, rank, q % 2, &b) && dpari_hx_cells_meet(&a, &b, left);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_hx_clear_of(const dpar_halo_field *fields, int32_t n,
                                                        int32_t rank, const void *memory,
                                                        int64_t bytes, dpar_why *why)
{
    dpari_hx_cells a, b;
    int64_t left = DPARI_HX_SEARCH;
    int32_t p;
    dpari_zero(&b, sizeof b);
    b.base = (int64_t)(uintptr_t)memory;
    b.unit = bytes;
    for (p = 0; p < 2 * n; p++) {
        if (!dpari_hx_mem(&fields[p / 2]) && dpari_hx_cells_of(&fields[p / 2], rank, p % 2, &a) &&
            dpari_hx_cells_meet(&a, &b, &left)) {
            return dpari_wrong(
                why,
                "field %d: its array on rank %d has elements in the %ld bytes of the plan's "
                "memory",
                p / 2, rank, bytes);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_hx_disjoint(const dpar_halo_field *fields, int32_t n,
                                                        int32_t rank, int64_t *span, dpar_why *why)
{
    dpari_hx_cells a;
    int64_t left = DPARI_HX_SEARCH;
    int32_t p, q;
    for (p = 0; p < 2 * n; p++) {
        span[2 * p] = span[2 * p + 1] = 0;
        if (dpari_hx_cells_of(&fields[p / 2], rank, p % 2, &a)) {
            dpari_hx_span(&a, span + 2 * p);
        }
        for (q = 0; q < p && left > 0; q++) {
            if (span[2 * p] >= span[2 * q + 1] || span[2 * q] >= span[2 * p + 1] ||
                !dpari_hx_parts_meet(fields, rank, p, q, &left)) {
                continue;
            }
            if (p / 2 == q / 2) {
                return dpari_wrong(
                    why, "field %d: data and compact_halo have elements in common on rank %d",
                    p / 2, rank);
            }
            return dpari_wrong(
                why,
                "fields %d and %d have elements in common on rank %d; their memory begins %ld "
                "bytes apart",
                q / 2, p / 2, rank, span[2 * p] - span[2 * q]);
        }
    }
    return DPAR_OK;
}

/* ==== halo/halo_box_groups.c ==== */

/* Copies two boxes in one loop, or many small boxes from a list.
 *
 * The two boxes on opposite sides of a block are often in the same cache lines and pages, so that
 * one walk over both is faster than two. A box of a few elements takes longer to set up than to
 * copy; a list holds the runs of many such boxes. halo_prepare.c decides which boxes are paired or
 * listed, and halo_run.c moves them.
 *
 * The names are those of strided_loops.h: a run is contiguous on both sides and moved by one of the
 * loops there; a row consists of runs at equal distances; `zero` is the address of the elements
 * that are set to 0 with each run. The number of the loop is a constant in the inlined functions,
 * so that the compiler makes a function for each loop. */

#define DPARI_STRIDE_APART                                                                         \
    512 /* least number of bytes between runs for which the hardware does not prefetch;            \
           measured */
#define DPARI_STRIDE_SOON 48  /* lines are prefetched this many runs ahead; measured on a Xeon */
#define DPARI_STRIDE_ASKED 16 /* the least number of runs that are moved between two prefetches */
#define DPARI_STRIDE_ROW 128  /* the most runs of a row that are prefetched at once */
#define DPARI_STRIDE_PACK_PART                                                                     \
    256                            /* bytes of each box that are packed at a time; measured, Xeon  \
                                    */
#define DPARI_STRIDE_PACK_SOON 512 /* packing prefetches this many bytes ahead; measured, Xeon */

/* ---- two pieces in one loop ---- */

/* Two boxes a and b of the same shape. Each run of a is followed by the run of b, whose addresses
 * are to_b, from_b and zero_b bytes further. */
typedef struct dpari_stride_pair dpari_stride_pair;
typedef void dpari_stride_pair_loop(const dpari_stride_pair *k);
struct dpari_stride_pair {
    dpari_stride_rows a;
    int64_t to_b, from_b, zero_b;
    int64_t next;  /* bytes from the target of a run to the line that is prefetched with it */
    int64_t soon;  /* number of runs at the start of a row that prefetch */
    int64_t least; /* the same for the last row, which must not prefetch beyond the box, because a
                      peer may be about to write there */
    dpari_stride_pair_loop *round; /* a loop that sums both boxes at once, or NULL */
};

/* Moves one run of each box. zero: as in dpari_stride_one. */
DPARI_STRIDE_INLINE void dpari_stride_both_one(unsigned char *t, const unsigned char *f,
                                               unsigned char *z, const dpari_stride_pair *r,
                                               int64_t zero_b, int64_t last, int32_t loop, int zero)
{
    const int apart = zero && dpari_stride_sums(loop);
    const unsigned char *f_b = f + r->from_b;
    dpari_stride_one(t, f, apart ? z : dpari_stride_writable(f), last, loop, zero);
    dpari_stride_one(t + r->to_b, f_b, apart ? z + zero_b : dpari_stride_writable(f_b), last, loop,
                     zero);
}

/* Moves both boxes. r is a copy of *pair, which the caller has read once for all loops. Runs that
 * prefetch have a loop of their own, which makes boxes in the first-level cache a tenth faster. */
DPARI_STRIDE_INLINE void dpari_stride_both_of(const dpari_stride_pair *r,
                                              const dpari_stride_pair *pair, int32_t loop, int zero)
{
    const int apart = zero && dpari_stride_sums(loop);
    const int64_t n = r->a.n, to_step = r->a.to_step, from_step = r->a.from_step;
    const int64_t last = r->a.run - dpari_stride_width(loop), next = pair->next, to_b = r->to_b;
    const int64_t zero_step = apart ? pair->a.zero_step : 0;
    const int64_t zero_b = apart ? pair->zero_b : 0;
    unsigned char *to = r->a.to, *z_row = apart ? pair->a.zero : to;
    const unsigned char *from = r->a.from;
    int64_t row, i;
    for (row = pair->a.rows; row > 0; row--) {
        const int64_t soon = dpari_least(row > 1 ? pair->soon : pair->least, n);
        unsigned char *t = to, *z = z_row;
        const unsigned char *f = from;
        for (i = 0; i < soon; i++, t += to_step, f += from_step, z += zero_step) {
            dpari_stride_ask_line(t + next);
            dpari_stride_ask_line(t + to_b + next);
            dpari_stride_both_one(t, f, z, r, zero_b, last, loop, zero);
        }
        for (; i < n; i++, t += to_step, f += from_step, z += zero_step) {
            dpari_stride_both_one(t, f, z, r, zero_b, last, loop, zero);
        }
        to += pair->a.to_row;
        from += pair->a.from_row;
        z_row += apart ? pair->a.zero_row : 0;
    }
}

/* Sums a row's halo cells h and g at its two ends into the own cells at the other ends, and sets
 * them to 0: |h x ... y g| becomes |0 x+g ... y+h 0|. Here h belongs to box a and g to box b. |h x|
 * and |y g| are one vector each, so that one addition makes both sums. */
#if DPARI_STRIDE_VECTOR
DPARI_STRIDE_INLINE void dpari_stride_round_one(unsigned char *low, unsigned char *high,
                                                int32_t bytes, int32_t f64)
{
    dpari_stride_u2 sum = dpari_stride_met(low, high, bytes, f64), first;
    const uint32_t words[4] = {UINT32_MAX, bytes == 8 ? 0 : UINT32_MAX, 0, 0};
    if (dpari_stride_any(dpari_stride_nan(sum, f64))) {
        sum = dpari_stride_quiet(sum, f64);
    }
    dpari_stride_copy(&first, words, sizeof first);
    dpari_stride_put(low, sum & ~first, bytes);
    dpari_stride_put(high, sum & first, bytes);
}

DPARI_STRIDE_INLINE void dpari_stride_round(const dpari_stride_pair *pair, int32_t bytes,
                                            int32_t f64)
{
    const int64_t n = pair->a.n, step = pair->a.to_step, next = pair->next, to_b = pair->to_b;
    int64_t row, i;
    for (row = 0; row < pair->a.rows; row++) {
        const int64_t soon = row + 1 < pair->a.rows ? pair->soon : pair->least;
        unsigned char *high = pair->a.to + row * pair->a.to_row;
        unsigned char *low = dpari_stride_writable(pair->a.from) + row * pair->a.to_row;
        for (i = 0; i < soon; i++, high += step, low += step) {
            dpari_stride_ask_line(high + next);
            dpari_stride_ask_line(high + to_b + next);
            dpari_stride_round_one(low, high, bytes, f64);
        }
        for (; i < n; i++, high += step, low += step) {
            dpari_stride_round_one(low, high, bytes, f64);
        }
    }
}

DPARI_STATIC_NOINLINE void dpari_stride_round_f32(const dpari_stride_pair *pair)
{
    dpari_stride_round(pair, 8, 0);
}

DPARI_STATIC_NOINLINE void dpari_stride_round_f32_2(const dpari_stride_pair *pair)
{
    dpari_stride_round(pair, 16, 0);
}

DPARI_STATIC_NOINLINE void dpari_stride_round_f64(const dpari_stride_pair *pair)
{
    dpari_stride_round(pair, 16, 1);
}

#if DPARI_STRIDE_WIDE
/* Does the same for two cells of f64 at each end. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE void dpari_stride_round_two(unsigned char *low,
                                                                     unsigned char *high)
{
    const dpari_stride_u4 first = {UINT64_MAX, UINT64_MAX, 0, 0};
    const dpari_stride_u4 sum = dpari_stride_quiet_wide(low, high);
    const dpari_stride_u4 of_low = sum & ~first, of_high = sum & first;
    dpari_stride_copy(low, &of_low, 32);
    dpari_stride_copy(high, &of_high, 32);
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void
dpari_stride_round_f64_2(const dpari_stride_pair *pair)
{
    const int64_t n = pair->a.n, step = pair->a.to_step, next = pair->next, to_b = pair->to_b;
    int64_t row, i;
    for (row = 0; row < pair->a.rows; row++) {
        const int64_t soon = row + 1 < pair->a.rows ? pair->soon : pair->least;
        unsigned char *high = pair->a.to + row * pair->a.to_row;
        unsigned char *low = dpari_stride_writable(pair->a.from) + row * pair->a.to_row;
        for (i = 0; i < soon; i++, high += step, low += step) {
            dpari_stride_ask_line(high + next);
            dpari_stride_ask_line(high + to_b + next);
            dpari_stride_round_two(low, high);
        }
        for (; i < n; i++, high += step, low += step) {
            dpari_stride_round_two(low, high);
        }
    }
}
#endif
#endif

/* True if the two boxes are the ends of the same rows, with sums of `step` bytes, so that the loops
 * above can be used. If b has the low halo, exchanges a and b, because the loops expect the low
 * halo in a. Also returns 0 if x and y overlap, because the block is narrower than its two halos.
 */
static DPARI_UNUSED int dpari_stride_goes_round(dpari_stride_pair *pair, uintptr_t step)
{
    const uintptr_t to = (uintptr_t)pair->a.to, from = (uintptr_t)pair->a.from;
    const uintptr_t to_b = to + (uintptr_t)pair->to_b, from_b = from + (uintptr_t)pair->from_b;
    if (pair->a.to_step != pair->a.from_step || pair->a.to_row != pair->a.from_row) {
        return 0;
    }
    if (from_b == to + step && to_b == from + step) {
        return to >= from + 2 * step;
    }
    if (from != to_b + step || to != from_b + step || to_b < from_b + 2 * step) {
        return 0;
    }
    pair->a.from += pair->from_b;
    pair->a.to += pair->to_b;
    pair->from_b = -pair->from_b;
    pair->to_b = -pair->to_b;
    return 1;
}

/* Returns the loop above that sums both boxes at once, or NULL if there is none. */
static dpari_stride_pair_loop *dpari_stride_round_of(dpari_stride_pair *pair,
                                                     const dpari_stride *stride)
{
#if DPARI_STRIDE_VECTOR
    if (stride->loop == DPARI_STRIDE_SUM_F32 && dpari_stride_goes_round(pair, 4)) {
        return dpari_stride_round_f32;
    }
    if (stride->loop == DPARI_STRIDE_SUM_F32_2 && dpari_stride_goes_round(pair, 8)) {
        return dpari_stride_round_f32_2;
    }
    if (stride->loop == DPARI_STRIDE_SUM_F64 && dpari_stride_goes_round(pair, 8)) {
        return dpari_stride_round_f64;
    }
#endif
#if DPARI_STRIDE_WIDE
    if (stride->loop == DPARI_STRIDE_SUM_F64_2 && stride->wide &&
        dpari_stride_goes_round(pair, 16)) {
        return dpari_stride_round_f64_2;
    }
#endif
    (void)pair, (void)stride;
    return NULL;
}

/* The loops that are compiled for pairs. They cover usual halos, which are one to four elements of
 * 4 or 8 bytes wide. */
#define DPARI_STRIDE_PAIRED_COPIES(X)                                                              \
    X(DPARI_STRIDE_4)                                                                              \
    X(DPARI_STRIDE_8)                                                                              \
    X(DPARI_STRIDE_TWO_8)                                                                          \
    X(DPARI_STRIDE_16)                                                                             \
    X(DPARI_STRIDE_TWO_16)
#if DPARI_STRIDE_VECTOR
#define DPARI_STRIDE_PAIRS(X)                                                                      \
    DPARI_STRIDE_PAIRED_COPIES(X)                                                                  \
    X(DPARI_STRIDE_SUM_F32)                                                                        \
    X(DPARI_STRIDE_SUM_F32_2)                                                                      \
    X(DPARI_STRIDE_SUM_F64)                                                                        \
    X(DPARI_STRIDE_SUM_F64_2)                                                                      \
    X(DPARI_STRIDE_SUM_F64_4)
#else
#define DPARI_STRIDE_PAIRS(X) DPARI_STRIDE_PAIRED_COPIES(X) DPARI_STRIDE_SUMS(X)
#endif

/* Moves both boxes by one of the loops that dpari_stride_pairs allows. */
DPARI_STRIDE_ALIGNED static void dpari_stride_move_pair(const dpari_stride_pair *pair, int32_t loop)
{
    const dpari_stride_pair r = *pair; /* read here once, and not in each loop */
    if (pair->round) {
        pair->round(pair);
        return;
    }
    switch (2 * loop + pair->a.zeroes) {
#define DPARI_STRIDE_CASE(id)                                                                      \
    case 2 * id: dpari_stride_both_of(&r, pair, id, 0); break;                                     \
    case 2 * id + 1: dpari_stride_both_of(&r, pair, id, 1); break;
        DPARI_STRIDE_PAIRS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
    default: break;
    }
}

/* True if the loop is compiled for pairs. */
static int dpari_stride_has_pair(int32_t loop)
{
    switch (loop) {
#define DPARI_STRIDE_CASE(id) case id:
        DPARI_STRIDE_PAIRS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
        return 1;
    default: return 0;
    }
}

/* True if one loop can move both boxes. They must be short copies or sums with the same steps. */
static int dpari_stride_pairs(const dpari_stride *a, const dpari_stride *b)
{
    int32_t d;
    for (d = 0; d < 2; d++) {
        if (a->dim[d].to != b->dim[d].to || a->dim[d].from != b->dim[d].from) {
            return 0;
        }
    }
    return a->dims <= 2 && a->loop == b->loop && a->run == b->run && a->ahead == b->ahead &&
           a->each == b->each && a->asks == b->asks && a->packs == b->packs &&
           a->clear == b->clear && (a->beside != 0) == (b->beside != 0) &&
           dpari_stride_has_pair(a->loop);
}

/* Prefetches `bytes` bytes of both boxes. */
static void dpari_stride_ask_both(const unsigned char *at, int64_t to_b, int64_t bytes)
{
    dpari_stride_ask_lines(at, bytes);
    dpari_stride_ask_lines(at + to_b, bytes);
}

/* Packs both boxes through near memory, some rows at a time, as dpari_stride_pack does for one box.
 * Between these parts it prefetches the target lines that are DPARI_STRIDE_PACK_SOON bytes ahead.
 * More prefetches at once than a core can have in progress would delay the lines that it reads.
 * (Blocks of 32^3 cut along the contiguous dim take 5.9 us on a Xeon, but 6.4 us in parts of 2048
 * bytes.) */
static void dpari_stride_pack_pair(const dpari_stride_pair *pair, int32_t loop)
{
    unsigned char room[2][DPARI_STRIDE_PACK];
    const int64_t row = pair->a.n * pair->a.run, bytes = pair->a.rows * row;
    const int64_t most = dpari_most(1, DPARI_STRIDE_PACK_PART / row);
    dpari_stride_pair some = *pair;
    int64_t at, asked = dpari_least(bytes, DPARI_STRIDE_PACK_SOON);
    some.a.to = room[0];
    some.to_b = DPARI_STRIDE_PACK;
    some.soon = some.least = 0;
    dpari_stride_ask_both(pair->a.to, pair->to_b, asked);
    for (at = 0; at < bytes; at += some.a.rows * row) {
        const int64_t next = dpari_least(at + most * row, bytes), part = next - at;
        const int64_t soon = dpari_least(next + DPARI_STRIDE_PACK_SOON, bytes);
        some.a.rows = part / row;
        dpari_stride_move_pair(&some, loop);
        dpari_stride_ask_both(pair->a.to + asked, pair->to_b, soon - asked);
        asked = soon;
        dpari_stride_copy(pair->a.to + at, room[0], part);
        dpari_stride_copy(pair->a.to + at + pair->to_b, room[1], part);
        some.a.from += some.a.rows * pair->a.from_row;
    }
}

/* Describes the pair of box a at to[0], from[0] and box b at to[1], from[1], and decides which
 * lines are prefetched: those of the next row if rows are short, otherwise those some runs ahead.
 */
static void dpari_stride_pair_of(dpari_stride_pair *pair, const dpari_stride *a,
                                 unsigned char *const *to, const unsigned char *const *from,
                                 const dpari_stride *b)
{
    pair->a.to = to[0];
    pair->a.from = from[0];
    pair->a.n = a->dim[0].count;
    pair->a.rows = a->dim[1].count;
    dpari_stride_steps(a, &pair->a);
    pair->to_b = (int64_t)((uintptr_t)to[1] - (uintptr_t)to[0]);
    pair->from_b = (int64_t)((uintptr_t)from[1] - (uintptr_t)from[0]);
    pair->zero_b = a->beside != 0 ? pair->to_b + b->beside - a->beside : pair->from_b;
    pair->round = a->clear && a->each == 0 ? dpari_stride_round_of(pair, a) : NULL;
    pair->next = pair->soon = pair->least = 0;
    if (a->asks && pair->a.n <= DPARI_STRIDE_ROW) {
        pair->next = pair->a.to_row;
        pair->soon = pair->a.n;
    } else if (a->asks || dpari_stride_size(pair->a.to_step) >= DPARI_STRIDE_APART) {
        pair->next = DPARI_STRIDE_SOON * pair->a.to_step;
        pair->soon = pair->a.n;
        pair->least = pair->a.n - DPARI_STRIDE_SOON;
    }
}

/* Moves both boxes in parts, which are some rows or a part of a row. Before each part it prefetches
 * the lines of later runs in the memory that another core used last. */
static void dpari_stride_pair_ahead(const dpari_stride *stride, dpari_stride_pair *pair)
{
    const dpari_stride_pair all = *pair;
    const int64_t most = dpari_most(DPARI_STRIDE_ASKED, DPARI_STRIDE_AHEAD / stride->each);
    const int64_t rows = dpari_most(1, most / all.a.n);
    int64_t row, i;
    for (row = 0; row < all.a.rows; row += pair->a.rows) {
        pair->a.rows = dpari_least(rows, all.a.rows - row);
        for (i = 0; i < all.a.n; i += pair->a.n) {
            const int64_t least = row + pair->a.rows < all.a.rows ? all.soon : all.least;
            pair->a.to = all.a.to + row * all.a.to_row + i * all.a.to_step;
            pair->a.from = all.a.from + row * all.a.from_row + i * all.a.from_step;
            pair->a.zero = all.a.zero + row * all.a.zero_row + i * all.a.zero_step;
            pair->a.n = dpari_least(most, all.a.n - i);
            pair->soon = all.soon - i;
            pair->least = least - i;
            dpari_stride_ask_ahead(stride, pair->a.to, pair->a.from, DPARI_STRIDE_AHEAD,
                                   pair->a.rows * pair->a.n * stride->each);
            dpari_stride_ask_ahead(stride, pair->a.to + pair->to_b, pair->a.from + pair->from_b,
                                   DPARI_STRIDE_AHEAD, pair->a.rows * pair->a.n * stride->each);
            dpari_stride_move_pair(pair, stride->loop);
        }
    }
}

/* Moves both boxes in one loop, run by run in turns. Returns 0 if there is no such loop. */
static int dpari_stride_run_pair(const dpari_stride *a, unsigned char *const *to,
                                 const unsigned char *const *from, const dpari_stride *b)
{
    dpari_stride_pair k;
    if (!dpari_stride_pairs(a, b)) {
        return 0;
    }
    dpari_stride_pair_of(&k, a, to, from, b);
    dpari_stride_ask_ahead(a, to[0], from[0], 0, a->first);
    dpari_stride_ask_ahead(b, to[1], from[1], 0, b->first);
    if (a->asks) {
        dpari_stride_ask(a, to[0], 1, dpari_least(k.a.n, DPARI_STRIDE_ROW));
        dpari_stride_ask(b, to[1], 1, dpari_least(k.a.n, DPARI_STRIDE_ROW));
    }
    if (a->packs) {
        dpari_stride_pack_pair(&k, a->loop);
    } else if (a->each > 0) {
        dpari_stride_pair_ahead(a, &k);
    } else {
        dpari_stride_move_pair(&k, a->loop);
    }
    return 1;
}

/* True if two boxes have the same shape, so that dpari_stride_walk can move them in turns. */
static int dpari_stride_alike(const dpari_stride *a, const dpari_stride *b)
{
    int32_t d;
    for (d = 0; d < DPARI_STRIDE_DIMS; d++) {
        if (a->dim[d].count != b->dim[d].count) {
            return 0;
        }
    }
    return a->dims == b->dims && a->loop != DPARI_STRIDE_NONE && b->loop != DPARI_STRIDE_NONE;
}

/* Moves boxes of long runs, or of few elements, one after the other. Moves other boxes in one loop
 * if there is one for both, otherwise in turns, some runs of each. */
DPARI_INTERNAL void dpari_stride_run_beside(const dpari_stride *a, void *to_a, const void *from_a,
                                            const dpari_stride *b, void *to_b, const void *from_b)
{
    const dpari_stride *stride[2];
    unsigned char *to[2];
    const unsigned char *from[2];
    int64_t part = a->part < b->part ? a->part : b->part;
    int64_t turn = a->turn < b->turn ? a->turn : b->turn;
    if (a->run > 64 || a->elements <= DPARI_STRIDE_TURN || !dpari_stride_alike(a, b)) {
        dpari_stride_run(a, to_a, from_a);
        dpari_stride_run(b, to_b, from_b);
        return;
    }
    stride[0] = a;
    stride[1] = b;
    to[0] = (unsigned char *)to_a + a->to_start;
    to[1] = (unsigned char *)to_b + b->to_start;
    from[0] = (const unsigned char *)from_a + a->from_start;
    from[1] = (const unsigned char *)from_b + b->from_start;
    if (dpari_stride_run_pair(a, to, from, b)) {
        return;
    }
    if (!a->packs || !b->packs) {
        turn = turn < DPARI_STRIDE_TURN ? turn : DPARI_STRIDE_TURN;
        while (part > 1 && part * turn > DPARI_STRIDE_TURN) {
            part /= 2;
        }
    }
    dpari_stride_walk(stride, to, from, 2, part, turn);
}

/* ---- lists ---- */

/* The copies that are compiled for lists. */
#define DPARI_STRIDE_LIST_COPIES(X)                                                                \
    X(DPARI_STRIDE_4)                                                                              \
    X(DPARI_STRIDE_8)                                                                              \
    X(DPARI_STRIDE_TWO_8)                                                                          \
    X(DPARI_STRIDE_16)                                                                             \
    X(DPARI_STRIDE_TWO_16)

/* Moves the runs of a list. */
DPARI_STRIDE_INLINE void dpari_stride_list_of(const dpari_stride_rows *rows,
                                              const dpari_stride_spot *list, int32_t loop, int zero)
{
    const int64_t n = rows->n, last = rows->run - dpari_stride_width(loop);
    unsigned char *to = rows->to;
    const unsigned char *from = rows->from;
    int64_t i;
    for (i = 0; i < n; i++) {
        const unsigned char *f = from + list[i].from;
        dpari_stride_one(to + list[i].to, f, dpari_stride_writable(f), last, loop, zero);
    }
}

/* Moves the runs of a list by the given loop, or one by one if it is not compiled for lists. */
static void dpari_stride_move_list(const dpari_stride_rows *rows, const dpari_stride_spot *list,
                                   int32_t loop)
{
    int64_t i;
    switch (2 * loop + rows->zeroes) {
#define DPARI_STRIDE_CASE(id)                                                                      \
    case 2 * id: dpari_stride_list_of(rows, list, id, 0); break;                                   \
    case 2 * id + 1: dpari_stride_list_of(rows, list, id, 1); break;
        DPARI_STRIDE_LIST_COPIES(DPARI_STRIDE_CASE)
        DPARI_STRIDE_SUMS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
    default:
        for (i = 0; i < rows->n; i++) {
            dpari_stride_rows one = *rows;
            one.n = 1;
            one.to = rows->to + list[i].to;
            one.from = rows->from + list[i].from;
            one.zero = dpari_stride_writable(one.from);
            dpari_stride_move(&one, loop);
        }
        break;
    }
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_stride_list(const dpari_stride *stride, int64_t to_at,
                                                    int64_t from_at, dpari_stride_spot *list)
{
    int64_t runs = 1, k;
    int32_t d;
    if (stride->loop == DPARI_STRIDE_NONE || stride->loop == DPARI_STRIDE_LONG ||
        stride->loop >= DPARI_STRIDE_DENSE ||
        (stride->clear && stride->loop == DPARI_STRIDE_MIDDLE) || stride->beside != 0) {
        return 0;
    }
    for (d = 0; d < stride->dims; d++) {
        runs *= stride->dim[d].count;
        if (runs > DPARI_STRIDE_FEW) {
            return 0;
        }
    }
    for (k = 0; k < runs; k++) {
        int64_t to = to_at + stride->to_start, from = from_at + stride->from_start, rest = k;
        for (d = 0; d < stride->dims; d++) {
            to += rest % stride->dim[d].count * stride->dim[d].to;
            from += rest % stride->dim[d].count * stride->dim[d].from;
            rest /= stride->dim[d].count;
        }
        if (to != (int32_t)to || from != (int32_t)from) {
            return 0;
        }
        list[k].to = (int32_t)to;
        list[k].from = (int32_t)from;
    }
    return (int32_t)runs;
}

DPARI_INTERNAL int dpari_stride_lists_alike(const dpari_stride *a, const dpari_stride *b)
{
    return a->loop == b->loop && a->run == b->run && a->clear == b->clear;
}

/* ---- groups ---- */

DPARI_INTERNAL DPARI_COLD int dpari_stride_groups(const dpari_stride *a, const dpari_stride *b,
                                                  int64_t apart, int takes)
{
    const dpari_stride_dim *outer = &a->dim[a->dims == 2];
    int32_t d;
    for (d = 0; d < 2; d++) {
        if (a->dim[d].to != b->dim[d].to || a->dim[d].from != b->dim[d].from) {
            return 0;
        }
    }
    return a->dims <= 2 && b->dims <= 2 && a->dim[1].count == b->dim[1].count &&
           (a->loop == DPARI_STRIDE_8 || a->loop == DPARI_STRIDE_4) && a->loop == b->loop &&
           !a->clear &&
           dpari_stride_size(apart) < dpari_stride_size(takes ? outer->to : outer->from);
}

/* Moves a row of each box, one run of each in turn. Boxes with longer rows come first. */
DPARI_STRIDE_INLINE void dpari_stride_group_row(const dpari_stride *stride,
                                                const dpari_stride_spot *list, int64_t n,
                                                unsigned char *to, const unsigned char *from,
                                                int32_t loop)
{
    const int64_t to_step = stride->dim[0].to, from_step = stride->dim[0].from;
    int64_t i, k;
    for (i = 0; n > 0; i++) {
        for (k = 0; k < n; k += 2) {
            dpari_stride_one(to + list[k].to, from + list[k].from, to, 0, loop, 0);
        }
        to += to_step;
        from += from_step;
        while (n > 0 && list[n - 1].to == i + 1) {
            n -= 2;
        }
    }
}

/* Moves a group. Before each row it prefetches the lines of the next row that another core has used
 * last. */
DPARI_STATIC_NOINLINE void dpari_stride_run_group(const dpari_stride *stride,
                                                  const dpari_stride_spot *list, int64_t n,
                                                  unsigned char *to, const unsigned char *from)
{
    const int64_t bytes = stride->ahead ? stride->dim[0].count * stride->run : 0;
    int64_t row, k;
    for (row = stride->dim[1].count; row > 0; row--) {
        for (k = 0; k < n && row > 1; k += 2) {
            dpari_stride_ask_ahead(stride, to + list[k].to, from + list[k].from, bytes, bytes);
        }
        if (stride->loop == DPARI_STRIDE_8) {
            dpari_stride_group_row(stride, list, n, to, from, DPARI_STRIDE_8);
        } else {
            dpari_stride_group_row(stride, list, n, to, from, DPARI_STRIDE_4);
        }
        to += stride->dim[1].to;
        from += stride->dim[1].from;
    }
}

DPARI_INTERNAL void dpari_stride_run_list(const dpari_stride *stride, const dpari_stride_spot *list,
                                          int64_t n, void *to, const void *from)
{
    dpari_stride_rows k;
    int64_t i;
    if (stride->dim[0].count * stride->dim[1].count > DPARI_STRIDE_FEW) {
        dpari_stride_run_group(stride, list, n, (unsigned char *)to, (const unsigned char *)from);
        return;
    }
    k.to = (unsigned char *)to;
    k.from = (const unsigned char *)from;
    k.zero = k.to;
    k.zeroes = stride->clear;
    k.n = n;
    k.rows = 1;
    k.to_step = k.from_step = k.zero_step = k.to_row = k.from_row = k.zero_row = 0;
    k.run = stride->run;
    for (i = 0; i < n && stride->ahead == DPARI_STRIDE_TO; i++) {
        dpari_stride_ask_line((const unsigned char *)to + list[i].to);
    }
    dpari_stride_move_list(&k, list, stride->loop);
}

/* ==== halo/halo_share.c ==== */

/* Lists the boxes of plans in which ranks combine shared points.
 *
 * The points of a block are divided into regions: in each dim the lowest points, if a neighbour
 * holds them as well, the highest ones in the same case, and those between. A region that is at an
 * end in k dims is held by 2^k blocks. Each of these blocks packs its values for all others. It
 * then combines all values in the order of the blocks in space, so that all get the same bits.
 *
 * The first and the second block in this order add the values of the others to their own, because
 * a + b and b + a have the same bits. Any other block also packs its values for itself, replaces
 * its points by the values of the first block, and adds the packed values when it is its turn.
 * Across a periodic dim with one part, the next block is that of the same rank, and its values are
 * packed as well.
 *
 * A candidate is a region of the receiver and the place of the giver in the order of blocks. Giver
 * and receiver walk the same candidates, so that both list the boxes between them in the same
 * order. */

/* Finds the neighbour of this rank on one side of dim d, and skips parts without cells. */
static DPARI_COLD void dpari_hx_find_neighbour(dpari_hx_shared *share, const dpar_halo *halo,
                                               int32_t d, int32_t side)
{
    const dpar_mesh_axis *axis = &halo->grid.mesh.axis[d];
    const int32_t at = share->rank / axis->stride % axis->size;
    dpar_box own;
    int32_t i;
    for (i = 1; i <= axis->size; i++) {
        int32_t part = side ? at + i : at - i;
        if (part < 0 || part >= axis->size) {
            if (!(halo->periodic >> d & 1u)) {
                return;
            }
            part += side ? -axis->size : axis->size;
        }
        share->further[d][side] = (part - at) * axis->stride;
        if (dpar_halo_owned(halo, share->rank + share->further[d][side], &own)) {
            share->shared[d][side] = 1;
            return;
        }
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_hx_share_begin(dpari_hx_shared *share,
                                                           const dpar_halo *halo, int32_t rank,
                                                           int32_t direction)
{
    dpar_box own;
    int32_t d;
    dpari_zero(share, sizeof *share);
    share->dims = halo->grid.dims;
    share->rank = rank;
    share->gives = direction == DPAR_TRANSFER_RECV;
    if (!dpar_halo_owned(halo, rank, &own)) {
        return DPAR_DONE;
    }
    for (d = 0; d < share->dims; d++) {
        if (halo->points[d] != DPAR_HALO_AT_CELLS) {
            dpari_hx_find_neighbour(share, halo, d, 0);
            dpari_hx_find_neighbour(share, halo, d, 1);
        }
        share->points[d] = own.hi[d] - own.lo[d] + share->shared[d][1];
    }
    return DPAR_OK;
}

/* Describes the box that the block at place `giver` gives for a region of the receiver. `region`
 * has a digit in base 3 per dim: 0 for the lowest points, 1 for those between, 2 for the highest.
 * `giver` has a digit in base 2 per dim: 0 if the giver is the lower of two blocks, 1 if it is the
 * upper one. Returns 1, or 0 if there is no such box. */
static DPARI_COLD int dpari_hx_share_box(const dpari_hx_shared *share, int32_t region,
                                         int32_t giver, dpar_transfer *transfer)
{
    int32_t weight = 1, taker = 0, order = 0; /* places of receiver and giver among the holders */
    int32_t d;
    for (d = share->dims - 1; d >= 0; d--, region /= 3, giver /= 2) {
        const int32_t upper = giver % 2, below = region % 3 == 0;
        int32_t side = !below;
        if (region % 3 == 1) {
            transfer->mine[d] = share->shared[d][0];
            transfer->extent[d] = share->points[d] - share->shared[d][0] - share->shared[d][1];
            if (upper || transfer->extent[d] <= 0) {
                return 0;
            }
            continue;
        }
        if (upper != below && share->gives) { /* `rank` is the giver, on the other side */
            side = below;
        }
        if (!share->shared[d][side]) {
            return 0;
        }
        transfer->mine[d] = side ? share->points[d] - 1 : 0;
        transfer->extent[d] = 1;
        transfer->peer += upper != below ? share->further[d][side] : 0;
        order += weight * upper;
        taker += weight * below;
        weight *= 2;
    }
    transfer->op = order == 0 && taker > 1 ? DPAR_COPY : DPAR_SUM;
    return order != taker || taker > 1;
}

DPARI_INTERNAL DPARI_COLD int dpari_hx_share_next(dpari_hx_shared *share, dpar_transfer *transfer)
{
    int32_t d, regions = 1;
    for (d = 0; d < share->dims; d++) {
        regions *= 3;
    }
    while (share->next >> share->dims < regions) {
        const int32_t n = share->next++;
        dpari_zero(transfer, sizeof *transfer);
        transfer->dims = share->dims;
        transfer->peer = share->rank;
        if (dpari_hx_share_box(share, n >> share->dims, n % (1 << share->dims), transfer)) {
            return 1;
        }
    }
    return 0;
}

/* ==== halo/halo_walk.c ==== */

/* Walks the boxes that one step of an exchange moves for one field.
 *
 * It starts from the transfer lists of ../index/halo.h. In an ordered exchange, a step's boxes are
 * extended by the halos that earlier steps have filled, so that they include edges and corners. In
 * an adjoint, the boxes that a rank sends to itself are split, because a part into which no peer's
 * box is added earlier in the walk can be added without waiting for peers. halo_exchange.c and
 * halo_items.c walk each step several times: to count boxes, to find the peers and to fill in
 * items. */

/* Sets by how many halo points the boxes of a step are extended in the other dims. The halos of
 * later dims are included if exchanges fill them. Because the last dim is exchanged first, rows are
 * then complete when they are sent along the other dims. step->along (DPARI_HX_WIDE, ...) decides
 * about the cut dim. */
static void dpari_hx_widen(dpari_hx_walk *walk, const dpari_hx_step *step)
{
    const dpar_halo *halo = &walk->halo; /* its widths are read before they are set to 0 */
    const int32_t cut = step->along == DPARI_HX_WIDE ? -1 : halo->grid.dims - 1 - step->cut;
    dpar_box own, all;
    int32_t d;
    if (!dpari_hx_boxes(halo, walk->of.rank, &own, &all)) {
        return;
    }
    for (d = 0; d < halo->grid.dims; d++) {
        const int wraps = (int)(halo->periodic >> d & 1u);
        int extends =
            d > walk->dim && step->along != DPARI_HX_CUT && halo->shape != DPAR_STENCIL_STAR;
        if (d == cut) {
            extends = d == walk->cut;
        }
        if (d == walk->cut) {
            walk->own = own.hi[d] - own.lo[d];
        }
        if (d == walk->dim || extends) {
            walk->reaches |= (uint32_t)1 << d;
        }
        if (d == walk->dim) {
            walk->low[d] = 0;
            continue;
        }
        walk->low[d] = own.lo[d] - all.lo[d];
        if (extends) {
            walk->before[d] = wraps ? halo->low[d] : dpari_least(halo->low[d], own.lo[d]);
            walk->after[d] =
                wraps ? halo->high[d]
                      : dpari_least(halo->high[d], dpar_halo_points(halo, d) - own.hi[d]);
        }
        walk->halo.low[d] = walk->halo.high[d] = 0;
    }
}

DPARI_INTERNAL int32_t dpari_hx_moves(const dpar_halo_plan_desc *desc)
{
    if (desc->shared == DPARI_HX_COMBINE) {
        return DPARI_HX_COMBINE;
    }
    return desc->shared ? DPAR_HALO_SYNC : DPAR_HALO_FORWARD;
}

/* True if boxes that a rank sends to itself may be split. Dims must have the same order and
 * direction on both sides, no own point may be the image of another one, and the CPU must compute
 * the sums. */
static int dpari_hx_splits(const dpar_halo_field *field, const dpari_hx_step *step, int32_t moves)
{
    const dpar_halo *halo = field->halo;
    return (step->modes >> DPAR_HALO_ADJOINT & 1) != 0 && moves == DPAR_HALO_FORWARD &&
           !halo->folds && !halo->poles && !halo->cube && field->pair == 0 && !dpari_hx_mem(field);
}

/* Computes the local box of a rank, shifted so that it begins at 0. */
static int dpari_hx_local(const dpar_halo *halo, int32_t rank, dpar_box *local)
{
    dpar_box own;
    int32_t d;
    if (!dpari_hx_boxes(halo, rank, &own, local)) {
        return 0;
    }
    for (d = 0; d < local->dims; d++) {
        local->hi[d] -= local->lo[d];
        local->lo[d] = 0;
    }
    return 1;
}

/* In a field with directions, a component has only the halo on the sides from which it moves into
 * the block. */
static void dpari_hx_narrow(dpari_hx_walk *walk)
{
    const int8_t *direction = walk->of.field->direction;
    int32_t d;
    for (d = 0; direction && d < walk->halo.grid.dims; d++) {
        const int8_t moves = direction[walk->of.component * DPAR_MAX_DIMS + d];
        walk->halo.low[d] = moves > 0 ? walk->halo.low[d] : 0;
        walk->halo.high[d] = moves < 0 ? walk->halo.high[d] : 0;
    }
}

/* True if component k and the one after it have the same direction in all dims of walk->reaches. */
static int dpari_hx_joins(const dpari_hx_walk *walk, int32_t k)
{
    const int8_t *direction = walk->of.field->direction + k * DPAR_MAX_DIMS;
    int32_t d;
    for (d = 0; d < walk->halo.grid.dims; d++) {
        if ((walk->reaches >> d & 1u) && direction[d] != direction[d + DPAR_MAX_DIMS]) {
            return 0;
        }
    }
    return 1;
}

/* Begins a walk over the boxes of of->component and of the components after it that have the same
 * boxes. */
static dpar_status dpari_hx_begin_component(dpari_hx_walk *walk, const dpari_hx_subject *of,
                                            dpar_why *why)
{
    const dpar_halo_field *field = of->field;
    const dpari_hx_step *step = of->step;
    const int beside = step->along == DPARI_HX_HALO_PLANES;
    dpari_zero(walk, sizeof *walk);
    walk->of = *of;
    walk->of.together = 1;
    if (of->moves == DPARI_HX_COMBINE) {
        return dpari_hx_share_begin(&walk->share, field->halo, of->rank, of->direction);
    }
    walk->halo = *field->halo;
    dpari_hx_narrow(walk);
    walk->halo.partner = field->pair ? dpari_hx_other(field)->halo : NULL;
    walk->dim = step->number < 0 ? -1 : walk->halo.grid.dims - 1 - step->number;
    walk->cut = beside ? walk->halo.grid.dims - 1 - step->cut : -1;
    walk->splits = of->direction == DPAR_TRANSFER_SEND && dpari_hx_splits(field, step, of->moves) &&
                   dpari_hx_local(&walk->halo, of->rank, &walk->clear);
    if (step->number >= walk->halo.grid.dims ||
        (beside && (walk->cut < 0 || walk->halo.shape == DPAR_STENCIL_STAR))) {
        return DPAR_DONE;
    }
    walk->reaches = step->number < 0 ? ~(uint32_t)0 : 0;
    if (step->number >= 0) {
        dpari_hx_widen(walk, step);
    }
    while (field->direction && of->component + walk->of.together < dpari_hx_components(field) &&
           dpari_hx_joins(walk, of->component + walk->of.together - 1)) {
        walk->of.together++;
    }
    return dpar_halo_first(&walk->walk, &walk->halo, of->rank, of->direction, of->moves, why);
}

DPARI_INTERNAL dpar_status dpari_hx_begin_walk(dpari_hx_walk *walk, const dpar_halo_field *field,
                                               int32_t rank, const dpari_hx_step *step,
                                               int32_t direction, int32_t moves, dpar_why *why)
{
    const dpari_hx_subject of = {field, step, rank, direction, moves, 0, 1};
    return dpari_hx_begin_component(walk, &of, why);
}

/* Advances the walk of ../index/halo.h. A step next to the cut dim's halos (walk->cut >= 0) does
 * the whole walk twice: next to the halos below, and then next to those above. */
static int dpari_hx_advance(dpari_hx_walk *walk, dpar_transfer *transfer)
{
    if (dpar_halo_next(&walk->walk, transfer)) {
        return 1;
    }
    if (walk->cut < 0 || walk->above) {
        return 0;
    }
    walk->above = 1;
    return dpar_halo_first(&walk->walk, &walk->halo, walk->of.rank, walk->of.direction,
                           walk->of.moves, NULL) == DPAR_OK &&
           dpar_halo_next(&walk->walk, transfer);
}

/* Advances to the next box, and extends it as dpari_hx_widen has set. */
static int dpari_hx_next_box(dpari_hx_walk *walk, dpar_transfer *transfer)
{
    const int32_t c = walk->cut;
    int32_t d;
    do {
        if (!dpari_hx_advance(walk, transfer)) {
            return 0;
        }
    } while (c >= 0 && (walk->above ? walk->after[c] : walk->before[c]) == 0);
    for (d = 0; d < transfer->dims && walk->dim >= 0; d++) {
        transfer->mine[d] += walk->low[d] - walk->before[d];
        transfer->theirs[d] += walk->low[d] - walk->before[d];
        transfer->extent[d] += walk->before[d] + walk->after[d];
    }
    if (c >= 0) {
        transfer->mine[c] += walk->above ? walk->before[c] + walk->own : 0;
        transfer->theirs[c] = transfer->mine[c];
        transfer->extent[c] = walk->above ? walk->after[c] : walk->before[c];
    }
    return 1;
}

/* Removes a peer's box from the clear part, together with as few other points as possible, by
 * moving one end of one dim past the box. */
static void dpari_hx_avoid(dpari_hx_walk *walk, const dpar_transfer *transfer)
{
    dpar_box *box = &walk->clear;
    int32_t d, best = 0, above = 0;
    double least = 0.0; /* the fraction of the clear part that is removed */
    for (d = 0; d < transfer->dims; d++) {
        const double n = (double)(box->hi[d] - box->lo[d]);
        const double below = (double)(transfer->mine[d] + transfer->extent[d] - box->lo[d]) / n;
        const double beyond = (double)(box->hi[d] - transfer->mine[d]) / n;
        if (d == 0 || dpari_leastf(below, beyond) < least) {
            least = dpari_leastf(below, beyond);
            best = d;
            above = beyond < below;
        }
    }
    if (above) {
        box->hi[best] = dpari_most(transfer->mine[best], box->lo[best]);
    } else {
        box->lo[best] = dpari_least(transfer->mine[best] + transfer->extent[best], box->hi[best]);
    }
}

/* True if any point of a box is clear. */
static int dpari_hx_is_clear(const dpari_hx_walk *walk, const dpar_transfer *transfer)
{
    int32_t d;
    for (d = 0; d < transfer->dims; d++) {
        if (dpari_most(transfer->mine[d], walk->clear.lo[d]) >=
            dpari_least(transfer->mine[d] + transfer->extent[d], walk->clear.hi[d])) {
            return 0;
        }
    }
    return 1;
}

/* Splits off from walk->rest the points that are not clear on side walk->side, which is the lower
 * side of dim side / 2 if side is even, otherwise the upper side. Returns 1 with these points in
 * *transfer, or 0 if there are none. */
static int dpari_hx_peel(dpari_hx_walk *walk, dpar_transfer *transfer)
{
    const int32_t d = walk->side / 2, above = walk->side % 2;
    dpar_transfer *r = &walk->rest;
    const int64_t end = r->mine[d] + r->extent[d];
    const int64_t n = above ? end - walk->clear.hi[d] : walk->clear.lo[d] - r->mine[d];
    dpar_transfer *upper = above ? transfer : r;
    walk->side++;
    if (n <= 0) {
        return 0;
    }
    *transfer = *r;
    transfer->extent[d] = n;
    r->extent[d] -= n;
    upper->mine[d] += above ? r->extent[d] : n;
    upper->theirs[d] += above ? r->extent[d] : n;
    return 1;
}

/* Advances to the next box of a component.
 *
 * Sums are made in the order of this walk. walk->own_first is 1 for the clear part of a box that
 * this rank sends to itself. No peer's box precedes that part at any of its points, so that it can
 * be added before all other boxes without changing the order of any sum. */
static int dpari_hx_next_here(dpari_hx_walk *walk, dpar_transfer *transfer)
{
    walk->own_first = 0;
    if (walk->of.moves == DPARI_HX_COMBINE) {
        return dpari_hx_share_next(&walk->share, transfer);
    }
    if (walk->side == 0) {
        if (!dpari_hx_next_box(walk, transfer)) {
            return 0;
        }
        if (!walk->splits || !dpari_hx_is_clear(walk, transfer)) {
            return 1;
        }
        if (transfer->peer != walk->of.rank) {
            dpari_hx_avoid(walk, transfer);
            return 1;
        }
        walk->rest = *transfer;
    }
    while (walk->side < 2 * walk->rest.dims) {
        if (dpari_hx_peel(walk, transfer)) {
            return 1;
        }
    }
    *transfer = walk->rest;
    walk->side = 0;
    walk->own_first = 1;
    return 1;
}

DPARI_INTERNAL int dpari_hx_next(dpari_hx_walk *walk, dpar_transfer *transfer)
{
    while (!dpari_hx_next_here(walk, transfer)) {
        dpari_hx_subject next = walk->of;
        next.component += next.together;
        if (!next.field->direction || next.component >= dpari_hx_components(next.field) ||
            dpari_hx_begin_component(walk, &next, NULL) != DPAR_OK) {
            return 0;
        }
    }
    return 1;
}

/* Components (u, v) that are turned by one or three quarter turns replace each other, so that each
 * of them is a separate item. */
DPARI_INTERNAL int32_t dpari_hx_parts(const dpar_halo_field *field, const dpar_transfer *transfer)
{
    return field->vector == 2 && (transfer->turn & 1) != 0 ? 2 : 1;
}

/* ==== halo/halo_mem.c ==== */

/* Moves the boxes of fields in memory that the CPU does not reach, such as a device's.
 *
 * Each phase of an exchange passes its boxes in batches to the `move` function of the field's
 * dpar_mem, and waits once at its end. Host memory that takes part is pinned when the plan is made.
 * Called by halo_exchange.c, halo_run.c, halo_view.c and the checks of dpar_debug.h. */

DPARI_API dpar_status dpari_hx_move_box(const dpar_halo_field *field, const dpar_mem_box *box)
{
    const dpar_mem *mem = dpari_hx_mem(field);
    dpar_status status;
    if (!mem) {
        return dpari_mem_move_box(box);
    }
    status = mem->move(mem->ctx, box, 1);
    if (status != DPAR_OK || !mem->wait) {
        return status;
    }
    return mem->wait(mem->ctx);
}

DPARI_API void dpari_hx_box_of(const dpar_halo_plan *plan, const dpari_hx_item *item,
                               unsigned char *dense, int back, dpar_mem_box *box)
{
    unsigned char *mine = plan->part[item->mine] + item->mine_at;
    int32_t d;
    dpari_zero(box, sizeof *box);
    box->to_type = box->from_type = box->round_type = plan->field[item->field].type;
    box->op = DPAR_COPY;
    box->dims = item->dims;
    box->to = back ? mine : dense;
    box->from = back ? dense : mine;
    for (d = 0; d < item->dims; d++) {
        box->extent[d] = item->extent[d];
        box->to_stride[d] = back ? item->own_step[d] : item->dense[d];
        box->from_stride[d] = back ? item->dense[d] : item->own_step[d];
    }
}

DPARI_INTERNAL void dpari_hx_describe(const dpar_halo_plan *plan, const dpari_hx_item *item,
                                      int takes, int32_t op, dpar_mem_box *box)
{
    const int32_t wire = dpari_hx_wire(&plan->field[item->field]);
    int32_t d;
    dpari_hx_box_of(plan, item, NULL, takes, box);
    box->round_type = wire;
    if (!takes) {
        box->to_type = wire;
        return;
    }
    box->op = op;
    box->negate = item->negate;
    box->clear = op != DPAR_COPY && item->direct; /* a halo that is read in place becomes 0 */
    if (!item->direct) {
        box->from_type = wire;
        return;
    }
    for (d = 0; d < item->dims; d++) {
        box->from_stride[d] = item->other_step[d];
    }
}

/* Describes how the exchange in progress moves an item when this rank gives it, or takes it. */
static void dpari_hx_moving(const dpar_halo_plan *plan, const dpari_hx_item *item, int takes,
                            dpar_mem_box *box)
{
    dpari_hx_describe(plan, item, takes, plan->x.op, box);
    if (takes) { /* not const, because an adjoint sets the halos to 0 that it reads in place */
        box->from = (void *)(uintptr_t)dpari_hx_from(plan, item);
    } else {
        box->to = plan->staging + dpari_exchange_turn(&plan->x) * plan->turn + item->pack_at;
        box->clear = plan->x.mode == DPAR_HALO_ADJOINT;
    }
}

/* Consecutive items of the same memory are one batch. A failure is returned by the next
 * dpari_hx_settle. */
DPARI_INTERNAL void dpari_hx_move(dpar_halo_plan *plan, int64_t first, int64_t n, int takes)
{
    const dpar_mem *of = NULL;
    int32_t boxes = 0;
    int64_t k;
    for (k = first; k <= first + n; k++) {
        const dpari_hx_item *item = k < first + n ? &plan->item[k] : NULL;
        const dpar_mem *mem = item ? dpari_hx_mem(&plan->field[item->field]) : NULL;
        if (item && (!mem || (!takes && !item->packs))) {
            continue;
        }
        if (mem != of && boxes > 0) {
            const dpar_status status = of->move(of->ctx, plan->box, boxes);
            if (plan->moved == DPAR_OK) {
                plan->moved = status;
            }
            boxes = 0;
        }
        of = mem;
        if (item) {
            dpari_hx_moving(plan, item, takes, &plan->box[boxes++]);
        }
    }
}

/* True if an earlier field uses the same device memory. */
static int dpari_hx_seen_before(const dpar_halo_plan *plan, int32_t f)
{
    int32_t i;
    for (i = 0; i < f; i++) {
        if (dpari_hx_mem(&plan->field[i]) == dpari_hx_mem(&plan->field[f])) {
            return 1;
        }
    }
    return 0;
}

/* If plan->in_order is 1, does not wait, because later operations are ordered after the moves. A
 * failure breaks the communicator. */
DPARI_INTERNAL dpar_status dpari_hx_settle(dpar_halo_plan *plan)
{
    dpar_status status = plan->moved;
    dpar_why why;
    int32_t i;
    for (i = 0; i < plan->fields && plan->elsewhere && !plan->in_order; i++) {
        const dpar_mem *mem = dpari_hx_mem(&plan->field[i]);
        if (mem && mem->wait && !dpari_hx_seen_before(plan, i)) {
            const dpar_status waited = mem->wait(mem->ctx);
            if (status == DPAR_OK) {
                status = waited;
            }
        }
    }
    if (status != DPAR_OK) {
        (void)dpari_say(
            status, &why,
            "halo exchange %ld: rank %d could not move the boxes in its fields' memory: %s",
            plan->x.count, plan->comm->rank, dpar_status_text(status));
        dpar_comm_abort(plan->comm, status, why.text);
        if (plan->x.node != plan->comm) {
            dpar_comm_abort(plan->x.node, status, why.text);
        }
    }
    return status;
}

/* Pins host memory with the functions of one memory, or unpins it if `on` is 0. */
static DPARI_COLD dpar_status dpari_hx_pin_with(const dpar_mem *mem, void *memory, int64_t bytes,
                                                int on)
{
    if (on) {
        return mem->pin ? mem->pin(mem->ctx, memory, bytes) : DPAR_OK;
    }
    return mem->unpin ? mem->unpin(mem->ctx, memory) : DPAR_OK;
}

DPARI_API DPARI_COLD dpar_status dpari_hx_pin(const dpar_halo_plan *plan, void *memory,
                                              int64_t bytes, int on)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    if (!plan->elsewhere || plan->in_order || bytes <= 0) {
        return DPAR_OK;
    }
    for (i = 0; i < plan->fields; i++) {
        const dpar_mem *mem = dpari_hx_mem(&plan->field[i]);
        if (mem && !dpari_hx_seen_before(plan, i)) {
            const dpar_status pinned = dpari_hx_pin_with(mem, memory, bytes, on);
            if (status == DPAR_OK) {
                status = pinned;
            }
        }
    }
    return status;
}

/* Pins the plan's own memory and the staging memory of peers. */
DPARI_INTERNAL dpar_status dpari_hx_pin_all(const dpar_halo_plan *plan, int on)
{
    dpar_status status = dpari_hx_pin(plan, plan->x.memory, plan->memory_bytes, on);
    int32_t i;
    for (i = 0; i < plan->x.peers && status == DPAR_OK; i++) {
        const dpari_hx_peer *peer = &plan->peer[i];
        if (plan->x.peer[i].world >= 0 && peer->staging) {
            status = dpari_hx_pin(plan, peer->staging, 2 * peer->turn, on);
        }
    }
    return status;
}

/* ==== halo/halo_prepare.c ==== */

/* Decides once how each item of a plan is copied, so that exchanges need not decide.
 *
 * Each item gets its loops (strided.c). Small items of one step are combined into lists, and items
 * on opposite sides of a block into pairs (halo_box_groups.c). If a forward exchange has few rows,
 * it prefetches the cache lines at their ends, which are the slowest part of a small exchange
 * (dpari_hx_ask in halo_run.c). Called at the end of planning, and again if the op of an adjoint
 * changes. */

/* ---- loops ----------------------------------------------------------------------------------- */

/* Prepares the two copies of an item: when this rank takes it, with `op`, and when it gives it. */
DPARI_INTERNAL DPARI_COLD void dpari_hx_prepare(const dpar_halo_plan *plan, dpari_hx_item *item,
                                                int32_t op)
{
    const int shares = item->peer >= 0 && plan->x.peer[item->peer].world >= 0;
    dpari_stride_piece piece;
    dpar_mem_box box;
    dpari_hx_describe(plan, item, 1, item->replaces ? DPAR_COPY : op, &box);
    dpari_mem_piece(&box, &piece);
    piece.back =
        item->peer >= 0 && (op == DPAR_COPY || (!item->direct && item->elements >= DPARI_HX_MANY));
    piece.beside = op == DPAR_SUM ? item->beside : 0;
    piece.ahead = shares && !item->direct ? DPARI_STRIDE_FROM : 0;
    piece.wide = plan->wide;
    dpari_stride_prepare(&item->take, &piece);
    dpari_hx_describe(plan, item, 0, op, &box);
    /* Items that are taken with DPAR_COPY are those of R, which are halos. They are given only in
     * the adjoint, and become 0 when they are packed, unless they are shared points that this rank
     * combines, too. */
    box.clear = op == DPAR_COPY && plan->options.shared != DPARI_HX_COMBINE;
    dpari_mem_piece(&box, &piece);
    piece.ahead = shares && item->packs ? DPARI_STRIDE_TO : 0;
    piece.wide = plan->wide;
    dpari_stride_prepare(&item->give, &piece);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Returns the list of an item for when it is taken, or for when it is given. */
static dpari_hx_few *dpari_hx_few_of(dpari_hx_item *item, int takes)
{
    return takes ? &item->taken : &item->given;
}

/* True if an item may be in a list. (Items that halo_mem.c moves have a mate of -1.) */
static int dpari_hx_may_list(const dpari_hx_item *item, int takes)
{
    if (takes) {
        return item->take_mate == 0 && (item->peer < 0 || !item->direct);
    }
    return item->packs && item->give_mate == 0;
}

/* True if two items may be in the same list: they need the same loop and, once arrays have been
 * bound, must be in the same arrays, because the distance between two arrays may change. If
 * `groups` is 1, the list is a group of large items. */
static DPARI_COLD int dpari_hx_one_list(const dpar_halo_plan *plan, const dpari_hx_item *a,
                                        const dpari_hx_item *b, int takes, int groups)
{
    const dpari_stride *first = takes ? &a->take : &a->give;
    const dpari_stride *second = takes ? &b->take : &b->give;
    if (groups ? !dpari_stride_groups(first, second, b->mine_at - a->mine_at, takes)
               : !dpari_stride_lists_alike(first, second)) {
        return 0;
    }
    if (!plan->bound && !groups) {
        return 1;
    }
    return a->mine == b->mine && (!takes || a->peer >= 0 || a->theirs == b->theirs);
}

/* Returns the bytes from one part of this rank's arrays to another. */
static int64_t dpari_hx_between(const dpar_halo_plan *plan, int32_t from, int32_t to)
{
    return (int64_t)(uintptr_t)plan->part[to] - (int64_t)(uintptr_t)plan->part[from];
}

/* Writes the runs of item b as entries of the list that begins with item a. Returns their number,
 * or 0 if b cannot be in a list. If `groups` is 1, writes the two entries of b in a group. */
static DPARI_COLD int32_t dpari_hx_entries(const dpar_halo_plan *plan, const dpari_hx_item *a,
                                           const dpari_hx_item *b, int takes, int groups,
                                           dpari_stride_spot *spot)
{
    const dpari_stride *stride = takes ? &b->take : &b->give;
    const int64_t mine = dpari_hx_between(plan, a->mine, b->mine) + b->mine_at;
    int64_t to = mine, from = b->take_at;
    if (!takes) {
        to = b->pack_at;
        from = mine;
    } else if (b->peer < 0 && b->direct) {
        from = dpari_hx_between(plan, a->theirs, b->theirs) + b->theirs_at;
    }
    if (!groups) {
        return dpari_stride_list(stride, to, from, spot);
    }
    to += stride->to_start;
    from += stride->from_start;
    spot[0].to = (int32_t)to;
    spot[0].from = (int32_t)from;
    spot[1].to = (int32_t)stride->dim[0].count;
    return 2 * (to == spot->to && from == spot->from);
}

/* Sorts a group of which all boxes but the last are sorted: boxes with longer rows come first. */
static DPARI_COLD void dpari_hx_sort_last(dpari_stride_spot *spot, int32_t runs)
{
    int32_t i;
    for (i = runs - 4; i >= 0 && spot[i + 1].to < spot[i + 3].to; i -= 2) {
        const dpari_stride_spot first = spot[i], second = spot[i + 1];
        spot[i] = spot[i + 2];
        spot[i + 1] = spot[i + 3];
        spot[i + 2] = first;
        spot[i + 3] = second;
    }
}

/* Makes the list that begins with item i, from entry `at` of plan->spot on. It has small items, or
 * a group of large ones if the field has directions. Items that cannot be in the list are left out,
 * unless the order of items matters (strict), in which case the list ends before the first such
 * item. The order matters if values are combined, because the order of sums is documented. It also
 * matters for copies of more than DPARI_HX_TINY elements, because peers read the same lines: in
 * another order, blocks of 8^3 wait for them (1.5 us instead of 1.0 us). */
static DPARI_COLD void dpari_hx_list_from(const dpar_halo_plan *plan, dpari_hx_item *item,
                                          int64_t n, int64_t i, int takes, int64_t at)
{
    dpari_hx_item *a = &item[i];
    dpari_hx_few *list = dpari_hx_few_of(a, takes);
    const dpari_stride *stride = takes ? &a->take : &a->give;
    const int groups = plan->field[a->field].direction &&
                       stride->dim[0].count * stride->dim[1].count > DPARI_STRIDE_FEW;
    const int strict = !groups && takes && (a->take.op != DPAR_COPY || a->elements > DPARI_HX_TINY);
    int64_t j;
    list->at = at;
    for (j = i; j < n && !(takes && item[j].peer != a->peer); j++) {
        dpari_hx_few *of = dpari_hx_few_of(&item[j], takes);
        int32_t runs = 0;
        if ((j == i || of->runs == 0) && dpari_hx_may_list(&item[j], takes) &&
            dpari_hx_one_list(plan, a, &item[j], takes, groups)) {
            runs = dpari_hx_entries(plan, a, &item[j], takes, groups, plan->spot + at + list->runs);
        }
        if (runs == 0 && (strict || j == i)) {
            return;
        }
        if (runs > 0) {
            of->runs = j == i ? 0 : -1;
            list->runs += runs;
        }
        if (groups && runs > 0) {
            dpari_hx_sort_last(plan->spot + at, list->runs);
        }
    }
    if (groups && list->runs == 2) {
        list->runs = 0;
    }
}

/* True if an exchange skips an item, because it is in the list of an earlier item, is copied with
 * its mate, or is not packed. */
static int dpari_hx_skips(dpari_hx_item *item, int takes)
{
    if (dpari_hx_few_of(item, takes)->runs < 0) {
        return 1;
    }
    if (takes) {
        return item->take_mate < 0;
    }
    return item->give_mate < 0 || !item->packs;
}

/* Makes the lists of n items that are given or taken one after the other, and sets the distance
 * from each item to the next one that is not skipped. */
static DPARI_COLD void dpari_hx_gather(const dpar_halo_plan *plan, dpari_hx_item *item, int64_t n,
                                       int takes)
{
    int64_t at = ((takes ? plan->items : 0) + (item - plan->item)) * DPARI_STRIDE_FEW;
    int64_t i;
    int32_t skipped = 0; /* number of skipped items directly after this one */
    for (i = 0; i < n; i++) {
        dpari_hx_few_of(&item[i], takes)->runs = 0;
    }
    for (i = 0; i < n; i++) {
        if (dpari_hx_few_of(&item[i], takes)->runs == 0) {
            dpari_hx_list_from(plan, item, n, i, takes, at);
            at += dpari_hx_few_of(&item[i], takes)->runs;
        }
    }
    for (i = n - 1; i >= 0; i--) {
        dpari_hx_few_of(&item[i], takes)->step = 1 + skipped;
        skipped = dpari_hx_skips(&item[i], takes) ? 1 + skipped : 0;
    }
}

DPARI_INTERNAL void dpari_hx_gather_sends(const dpar_halo_plan *plan, const dpari_hx_step *step,
                                          int takes)
{
    dpari_hx_gather(plan, plan->item + step->s, step->own_first, takes);
    dpari_hx_gather(plan, plan->item + step->s + step->own_first, step->s_items - step->own_first,
                    takes);
}

DPARI_INTERNAL void dpari_hx_gather_all(const dpar_halo_plan *plan)
{
    int32_t s, takes;
    for (s = 0; s < plan->x.steps; s++) {
        const dpari_hx_step *step = &plan->step[s];
        for (takes = 0; takes < 2; takes++) {
            dpari_hx_gather(plan, plan->item + step->r, step->r_items, takes);
            dpari_hx_gather_sends(plan, step, takes);
        }
    }
}

/* ---- pairs of items -------------------------------------------------------------------------- */

/* True if two items may be opposite sides of a block: they have the same shape and strides, in the
 * same array, and are moved in the same way. They are then often in the same lines and pages. */
static int dpari_hx_mates(const dpari_hx_item *a, const dpari_hx_item *b)
{
    int32_t d;
    if (a->direct != b->direct || a->packs != b->packs || a->negate != b->negate ||
        a->replaces != b->replaces || a->mine != b->mine || (a->peer < 0) != (b->peer < 0)) {
        return 0;
    }
    for (d = 0; d < a->dims; d++) {
        if (a->extent[d] != b->extent[d] || a->own_step[d] != b->own_step[d]) {
            return 0;
        }
    }
    return 1;
}

/* True if two boxes of own cells have no point in common. */
static int dpari_hx_apart(const dpari_hx_item *a, const dpari_hx_item *b)
{
    int32_t d;
    for (d = 0; d < a->dims - 1; d++) {
        const int64_t shift = b->local[d] - a->local[d];
        if (shift >= a->extent[d] || -shift >= a->extent[d]) {
            return 1;
        }
    }
    return 0;
}

/* True if two items may be taken together. In R, any two items from the same peer may. Items of S
 * are summed in a documented order, so that only consecutive boxes without a common point may. */
static int dpari_hx_taken_together(const dpari_hx_item *a, const dpari_hx_item *b, int sends)
{
    return a->take_mate == 0 && b->take_mate == 0 && a->take.run <= DPARI_HX_SHORT &&
           (sends ? b == a + 1 && dpari_hx_apart(a, b) : b->peer == a->peer);
}

/* Pairs items whose runs are short, and whose boxes are too large for a list. Each is paired with
 * one of the DPARI_HX_NEAR items after it, separately for giving and for taking. Items in memory
 * that the CPU does not reach get mates of -1, because halo_mem.c moves them. */
static void dpari_hx_pair(const dpar_halo_plan *plan, dpari_hx_item *item, int64_t n, int sends)
{
    dpari_stride_spot few[DPARI_STRIDE_FEW];
    int64_t i, j;
    for (i = 0; i < n; i++) {
        dpari_hx_item *a = &item[i];
        if (dpari_hx_mem(&plan->field[a->field])) {
            a->give_mate = a->take_mate = -1;
            continue;
        }
        if (plan->field[a->field].direction) {
            continue;
        }
        for (j = i + 1; j < n && j < i + DPARI_HX_NEAR && item[j].field == a->field; j++) {
            dpari_hx_item *b = &item[j];
            if (!dpari_hx_mates(a, b) || dpari_stride_list(&a->take, 0, 0, few) > 0) {
                continue;
            }
            if (a->give_mate == 0 && b->give_mate == 0 && a->packs &&
                a->give.run <= DPARI_HX_SHORT) {
                a->give_mate = (int32_t)(j - i);
                b->give_mate = -1;
            }
            if (dpari_hx_taken_together(a, b, sends)) {
                a->take_mate = (int32_t)(j - i);
                b->take_mate = -1;
            }
        }
    }
}

/* True if box a of the halo, which has been packed, may be set to 0 while box b of own cells next
 * to it is summed, so that the cache lines that hold both are written only once. No box of the step
 * may be summed into box a. */
static int dpari_hx_may_wipe(const dpar_halo_plan *plan, const dpari_hx_step *step,
                             const dpari_hx_item *a, const dpari_hx_item *b)
{
    const int64_t size = dpar_type_bytes(plan->field[a->field].type);
    const int64_t gap = a->mine_at - b->mine_at;
    int64_t k;
    if (a->field != b->field || dpari_hx_mem(&plan->field[a->field]) || !a->packs || b->direct ||
        b->beside != 0 || gap == 0 || gap % size != 0 || gap > DPARI_HX_BESIDE ||
        -gap > DPARI_HX_BESIDE || a->elements * size <= DPARI_STRIDE_FEW * a->give.run ||
        !dpari_hx_mates(a, b)) {
        return 0;
    }
    for (k = step->s; k < step->s + step->s_items; k++) {
        if (plan->item[k].field == a->field && !dpari_hx_apart(a, &plan->item[k])) {
            return 0;
        }
    }
    return 1;
}

/* Finds such boxes in a step (item.wiper and its partner), and prepares them for it. */
static void dpari_hx_wipe_beside(dpar_halo_plan *plan, const dpari_hx_step *step)
{
    int64_t i, j;
    for (i = step->r; i < step->r + step->r_items; i++) {
        dpari_hx_item *a = &plan->item[i];
        for (j = step->s; j < step->s + step->s_items && a->wiper == 0; j++) {
            dpari_hx_item *b = &plan->item[j];
            if (dpari_hx_may_wipe(plan, step, a, b)) {
                b->beside = (a->mine_at - b->mine_at) / dpar_type_bytes(plan->field[a->field].type);
                a->wiper = j - i;
                dpari_hx_prepare(plan, b, DPAR_SUM);
                a->give.clear = b->take.beside == 0;
            }
        }
    }
}

/* ---- rows whose ends are prefetched ---------------------------------------------------------- */

/* Returns the number of rows of a box along a dim. Contiguous components belong to the row. */
static int64_t dpari_hx_rows(const dpari_hx_item *item, int32_t row)
{
    int64_t rows = 1;
    int32_t d;
    for (d = 0; d < item->dims; d++) {
        if (d != row && (d != item->dims - 1 || item->own_step[d] != 1)) {
            rows *= item->extent[d];
        }
    }
    return rows;
}

/* Returns the dim of the rows of a box, which is the dim with the shortest stride in this rank's
 * array, or -1 if there are more rows than DPARI_HX_ROWS. */
DPARI_INTERNAL int32_t dpari_hx_row_of(const dpari_hx_item *item)
{
    int32_t d, row = 0;
    for (d = 1; d < item->dims - 1; d++) {
        if (dpari_size(item->own_step[d]) < dpari_size(item->own_step[row])) {
            row = d;
        }
    }
    return dpari_hx_rows(item, row) <= DPARI_HX_ROWS ? row : -1;
}

/* True if a forward exchange prefetches the ends of the rows that peers read. */
static int dpari_hx_asks(const dpar_halo_plan *plan)
{
    const dpari_hx_step *last = &plan->step[plan->forward - 1];
    const int64_t end = last->s + last->s_items;
    int64_t k, rows = 0;
    for (k = 0; k < end; k++) {
        const dpari_hx_item *item = &plan->item[k];
        rows += item->row >= 0 ? dpari_hx_rows(item, item->row) : 0;
    }
    return rows > 0 && rows <= DPARI_HX_ALL_ROWS;
}

/* ---- all items ------------------------------------------------------------------------------- */

DPARI_INTERNAL void dpari_hx_finish_items(dpar_halo_plan *plan)
{
    int32_t s;
    int64_t k;
    for (s = 0; s < plan->x.steps; s++) {
        dpari_hx_step *step = &plan->step[s];
        for (k = step->r; k < step->s + step->s_items; k++) {
            dpari_hx_item *item = &plan->item[k];
            const int sends = k >= step->s;
            if (item->peer >= 0) {
                const dpari_hx_flow *flow = &plan->peer[item->peer].flow[s];
                item->pack_at += flow->out_at;
                item->take_at += flow->in_at;
            } else if (!item->direct) {
                item->pack_at += plan->self_at;
                item->take_at += plan->self_at;
            }
            dpari_hx_prepare(plan, item, sends ? DPAR_SUM : DPAR_COPY);
        }
        dpari_hx_wipe_beside(plan, step);
        dpari_hx_pair(plan, plan->item + step->r, step->r_items, 0);
        dpari_hx_pair(plan, plan->item + step->s, step->own_first, 1);
        dpari_hx_pair(plan, plan->item + step->s + step->own_first, step->s_items - step->own_first,
                      1);
    }
    dpari_hx_gather_all(plan);
    plan->asks = dpari_hx_asks(plan);
    plan->prepared = DPAR_SUM;
}

/* ==== halo/halo_items.c ==== */

/* Lists the items of a plan, the boxes that this rank sends and receives in each step, and assigns
 * them places in the staging memory.
 *
 * The walk of halo_walk.c finds the transfers of each field. Each becomes an item, which knows
 * where the box is in the arrays of both ranks. Items of one peer are adjacent in list R. Called by
 * halo_exchange.c. */

/* Computes the strides of an item in staging memory. The item is dense there, with its dims in the
 * order of the owner's strides, so that the owner walks its array in the order of addresses. */
static void dpari_hx_close_up(dpari_hx_item *item, const int64_t *owner)
{
    int32_t done = 0, d, k;
    int64_t step = 1;
    for (k = 0; k < item->dims; k++) {
        int32_t best = -1;
        int64_t least = 0;
        for (d = item->dims - 1; d >= 0; d--) {
            const int64_t a = dpari_size(owner[d]);
            if (!(done >> d & 1) && (best < 0 || a < least)) {
                best = d;
                least = a;
            }
        }
        done |= 1 << best;
        item->dense[best] = step;
        step *= item->extent[best];
    }
    item->elements = step;
}

/* True if the receiver reads a box in place. Sender and receiver get the same result, because both
 * use the sender's run, and all ranks of a world have counted the same cores. Ranks that share
 * cores pack small boxes, so that they wait only until peers are ready, and not also until peers
 * are done (8 ranks on 2 cores, 32^3: 80 us in place, 58 us packed; boxes of 128 KiB take longer
 * packed). */
static int dpari_hx_is_direct(const dpar_halo_plan *plan, const dpari_hx_array *giver,
                              const dpari_hx_array *taker, const dpari_hx_spot *spot,
                              const dpari_hx_item *item, int32_t world)
{
    const int64_t run = plan->options.run_bytes > 0 ? plan->options.run_bytes : 64;
    const int64_t bytes = item->elements * dpar_type_bytes(plan->field[item->field].type);
    const int packs = plan->options.method == DPAR_HALO_PACKED ||
                      (plan->options.method == DPAR_HALO_AUTO && world >= 0 &&
                       plan->x.world->crowded && bytes < DPARI_HX_CROWDED);
    return world >= 0 && !packs && giver->told.reach[spot->part] && !taker->told.elsewhere &&
           dpari_hx_in_a_row(item->extent, spot->stride, item->dims,
                             plan->field[item->field].type) >= run;
}

/* Returns the receiver's dim for the sender's dim d. */
static int32_t dpari_hx_swapped(const dpar_transfer *transfer, int32_t d)
{
    if (d == transfer->swap[0]) {
        return transfer->swap[1];
    }
    if (d == transfer->swap[1]) {
        return transfer->swap[0];
    }
    return d;
}

/* Changes the receiver's place of a box so that its dims match those of the sender: puts dims into
 * the sender's order, and begins at the other end of flipped dims, with a negative stride. */
static void dpari_hx_turn(const dpar_transfer *transfer, dpari_hx_spot *spot)
{
    int64_t stride[DPAR_MAX_DIMS];
    int32_t d;
    for (d = 0; d < transfer->dims; d++) {
        stride[d] = spot->stride[d];
        if (transfer->flip >> d & 1u) {
            spot->at += (transfer->extent[dpari_hx_swapped(transfer, d)] - 1) * stride[d];
            stride[d] = -stride[d];
        }
    }
    for (d = 0; d < transfer->dims; d++) {
        spot->stride[d] = stride[dpari_hx_swapped(transfer, d)];
    }
}

/* Finds the component of the sender that arrives as component k of a vector (u, v), and whether its
 * sign changes. Turned by 1 quarter turn the vector is (-v, u), by 3 it is (v, -u). */
static void dpari_hx_component(dpari_hx_item *item, const dpar_transfer *transfer, int32_t k,
                               dpari_hx_spot *sender, dpari_hx_spot *receiver)
{
    sender->at += (1 - k) * sender->stride[transfer->dims];
    receiver->at += k * receiver->stride[transfer->dims];
    item->extent[transfer->dims] = 1;
    item->negate = (transfer->turn == 1) == (k == 0);
}

/* Finds the place of a box in an array. at: its first local point. In a field with directions, the
 * local points of a component are counted without the sides that its halo does not have. */
static void dpari_hx_find(const dpar_halo_field *field, const dpari_hx_array *array,
                          int32_t component, int64_t *at, dpari_hx_spot *spot)
{
    int32_t d;
    for (d = 0; field->direction && d < field->halo->grid.dims; d++) {
        if (field->direction[component * DPAR_MAX_DIMS + d] <= 0) {
            at[d] += array->low[d];
        }
    }
    dpari_hx_place(array, at, dpari_hx_components(field), spot);
    spot->at += component * array->told.component;
}

/* Sets item k of the items into which a transfer is divided, except for its place in staging
 * memory. walk: has found the transfer, whose points are then counted in the whole halo. sends: 1
 * for an item of S. */
static void dpari_hx_fill(dpar_halo_plan *plan, dpari_hx_item *item, int32_t index,
                          const dpari_hx_walk *walk, dpar_transfer *transfer, int sends, int32_t k)
{
    const dpar_halo_field *field = &plan->field[index];
    const int32_t peer = plan->peer_of[transfer->peer] - 1;
    /* the field whose array the sender reads, which is the other one if a pair is turned */
    const int32_t owner = dpari_hx_crosses(field, transfer->turn)
                              ? (int32_t)(dpari_hx_other(field) - plan->field)
                              : index;
    const int32_t here = sends ? owner : index;
    const int32_t there = sends ? index : owner;
    const dpari_hx_array *mine = &plan->array[here];
    const dpari_hx_array *theirs = peer < 0 ? &plan->array[there] : &plan->peer[peer].array[there];
    const int combines = dpari_hx_moves(&plan->options) == DPARI_HX_COMBINE;
    const int32_t bytes = dpar_type_bytes(field->type),
                  world = peer < 0 ? -1 : plan->x.peer[peer].world;
    dpari_hx_spot my_spot, their_spot;
    dpari_hx_spot *sender = sends ? &my_spot : &their_spot;
    dpari_hx_spot *receiver = sends ? &their_spot : &my_spot;
    int32_t d;
    dpari_zero(item, sizeof *item);
    item->field = index;
    item->peer = peer;
    item->dims = transfer->dims + 1;
    item->negate = dpari_hx_negates(field, transfer->turn);
    dpari_hx_find(field, mine, walk->of.component, transfer->mine, &my_spot);
    dpari_hx_find(field, theirs, walk->of.component, transfer->theirs, &their_spot);
    for (d = 0; d < transfer->dims; d++) {
        item->extent[d] = transfer->extent[d];
        item->local[d] = transfer->mine[d];
        item->here[d] = sends ? d : dpari_hx_swapped(transfer, d);
    }
    item->here[transfer->dims] = transfer->dims;
    item->flip = sends ? 0 : transfer->flip;
    item->extent[transfer->dims] =
        field->direction ? walk->of.together : dpari_hx_components(field);
    dpari_hx_turn(transfer, receiver);
    if (dpari_hx_parts(field, transfer) > 1) {
        dpari_hx_component(item, transfer, k, sender, receiver);
    }
    item->mine = 2 * here + my_spot.part;
    item->theirs = 2 * there + their_spot.part;
    item->mine_at = my_spot.at * bytes;
    item->theirs_at = their_spot.at * bytes;
    for (d = 0; d < item->dims; d++) {
        item->own_step[d] = my_spot.stride[d];
        item->other_step[d] = their_spot.stride[d];
    }
    dpari_hx_close_up(item, sender->stride);
    item->direct =
        !combines && (peer < 0 || dpari_hx_is_direct(plan, theirs, mine, &their_spot, item, world));
    item->packs =
        combines || (peer >= 0 && !dpari_hx_is_direct(plan, mine, theirs, &my_spot, item, world));
    item->replaces = combines && sends && transfer->op == DPAR_COPY;
    item->row = sends && peer >= 0 && !item->packs ? dpari_hx_row_of(item) : -1;
}

/* Appends an item to the bytes that are packed in one direction. Returns its offset, a multiple of
 * 16. */
static int64_t dpari_hx_append(const dpar_halo_plan *plan, const dpari_hx_item *item,
                               int64_t *bytes)
{
    const int64_t at = (*bytes + 15) / 16 * 16;
    *bytes = at + item->elements * dpar_type_bytes(dpari_hx_wire(&plan->field[item->field]));
    return at;
}

/* Adds an item to what its peer exchanges with this rank in step s, and assigns its places in the
 * staging memory. */
static void dpari_hx_count_in(dpar_halo_plan *plan, dpari_hx_item *item, int32_t s, int sends)
{
    dpari_hx_flow *flow;
    const int give = sends ? DPAR_HALO_FORWARD : DPAR_HALO_ADJOINT; /* when this rank gives */
    const int take = sends ? DPAR_HALO_ADJOINT : DPAR_HALO_FORWARD;
    dpari_exchange_flow *run;
    const int32_t modes = plan->step[s].modes;
    int32_t d;
    if (item->peer < 0) {
        if (!item->direct) {
            item->pack_at = dpari_hx_append(plan, item, &plan->self_bytes[sends]);
            item->take_at = item->pack_at;
        }
        return;
    }
    flow = &plan->peer[item->peer].flow[s];
    run = &plan->x.flow[item->peer * plan->x.steps + s];
    for (d = 0; d < item->dims; d++) {
        flow->hash[sends] = dpari_hash(flow->hash[sends], item->extent[d] + 1024 * item->field);
    }
    if (modes >> give & 1 && item->packs) {
        item->pack_at = dpari_hx_append(plan, item, &run->out_bytes[give]);
    }
    if (modes >> take & 1 && !item->direct) {
        item->take_at = dpari_hx_append(plan, item, &run->in_bytes[take]);
    }
    run->lends[give] |= modes >> give & 1 && !item->packs;
    run->takes[take] |= modes >> take & 1;
    flow->reads[take] |= modes >> take & 1 && item->direct;
}

/* Counts the items of list R of step s for each peer and for this rank itself. With `fill`, which
 * requires that the first item of each peer is known, also sets the items. */
static void dpari_hx_list_receives(dpar_halo_plan *plan, int32_t s, int fill)
{
    dpari_hx_step *step = &plan->step[s];
    dpari_hx_walk walk;
    dpar_transfer transfer;
    int32_t i, k;
    for (i = 0; i < plan->fields; i++) {
        if (dpari_hx_begin_walk(&walk, &plan->field[i], plan->comm->rank, step, DPAR_TRANSFER_RECV,
                                dpari_hx_moves(&plan->options), NULL) != DPAR_OK) {
            continue;
        }
        while (dpari_hx_next(&walk, &transfer)) {
            const int32_t parts = dpari_hx_parts(&plan->field[i], &transfer);
            int64_t *count = &step->self;
            int64_t first = step->r;
            if (transfer.peer != plan->comm->rank) {
                dpari_hx_flow *flow = &plan->peer[plan->peer_of[transfer.peer] - 1].flow[s];
                count = &flow->boxes;
                first = flow->first;
            }
            for (k = 0; k < parts; k++) {
                if (fill) {
                    dpari_hx_item *item = &plan->item[first + *count];
                    dpari_hx_fill(plan, item, i, &walk, &transfer, 0, k);
                    dpari_hx_count_in(plan, item, s, 0);
                }
                ++*count;
            }
        }
    }
}

/* Sets items of list S of step s from item `at` on: with own_first the items that this rank adds
 * without waiting for peers, otherwise all other items. Returns the index after the last one. */
static int64_t dpari_hx_list_sends(dpar_halo_plan *plan, int32_t s, int64_t at, int own_first)
{
    dpari_hx_walk walk;
    dpar_transfer transfer;
    int32_t i, k;
    for (i = 0; i < plan->fields; i++) {
        if (dpari_hx_begin_walk(&walk, &plan->field[i], plan->comm->rank, &plan->step[s],
                                DPAR_TRANSFER_SEND, dpari_hx_moves(&plan->options),
                                NULL) != DPAR_OK) {
            continue;
        }
        while (dpari_hx_next(&walk, &transfer)) {
            const int32_t parts = dpari_hx_parts(&plan->field[i], &transfer);
            if (walk.own_first != own_first) {
                continue;
            }
            for (k = 0; k < parts; k++) {
                dpari_hx_fill(plan, &plan->item[at], i, &walk, &transfer, 1, k);
                dpari_hx_count_in(plan, &plan->item[at], s, 1);
                at++;
                if (transfer.peer != plan->comm->rank) {
                    plan->peer[plan->peer_of[transfer.peer] - 1].flow[s].sends++;
                }
            }
        }
    }
    return at;
}

/* Sets the lists R (first the items that this rank sends to itself, then by peer) and S of step s,
 * from item `at` on. Returns the index after the last item. */
static int64_t dpari_hx_list(dpar_halo_plan *plan, int32_t s, int64_t at)
{
    dpari_hx_step *step = &plan->step[s];
    int32_t i;
    step->r = at;
    dpari_hx_list_receives(plan, s, 0);
    at += step->self;
    step->self = 0;
    for (i = 0; i < plan->x.peers; i++) {
        plan->peer[i].flow[s].first = at;
        at += plan->peer[i].flow[s].boxes;
        plan->peer[i].flow[s].boxes = 0;
    }
    dpari_hx_list_receives(plan, s, 1);
    step->r_items = at - step->r;
    step->s = at;
    at = dpari_hx_list_sends(plan, s, at, 1);
    step->own_first = at - step->s;
    at = dpari_hx_list_sends(plan, s, at, 0);
    step->s_items = at - step->s;
    return at;
}

/* Sets `packed` of the flows. Steps that share a line pack into the same memory, in either mode. A
 * rank may therefore write it only when all peers that read it in any of these steps are done. */
static void dpari_hx_mark_packed(dpar_halo_plan *plan)
{
    int32_t s, t, i;
    for (s = 0; s < plan->x.steps; s++) {
        for (t = 0; t < plan->x.steps; t++) {
            if (plan->x.step[s].line != plan->x.step[t].line) {
                continue;
            }
            for (i = 0; i < plan->x.peers; i++) {
                dpari_exchange_flow *flow = &plan->x.flow[i * plan->x.steps];
                flow[s].packed |= flow[t].out_bytes[0] > 0 || flow[t].out_bytes[1] > 0;
            }
        }
    }
}

/* Assigns positions in the staging memory to the boxes that this rank packs, and positions in the
 * memory for arrivals to the messages that it receives. They are in the order of steps and peers,
 * and the same for both modes. items: number of items. */
static void dpari_hx_flows(dpar_halo_plan *plan, int64_t items)
{
    dpari_exchange_step *step;
    int32_t s, i;
    int64_t k, gives = 0, comes = 0;
    for (s = 0; s < plan->x.steps; s++) {
        if (s == plan->forward) { /* the steps of the adjoint use the same memory */
            gives = 0;
            comes = 0;
        }
        step = &plan->x.step[s];
        step->alone = !plan->elsewhere && plan->self_bytes[0] == 0;
        for (i = 0; i < plan->x.peers; i++) {
            dpari_hx_flow *flow = &plan->peer[i].flow[s];
            const dpari_exchange_flow *run = &plan->x.flow[i * plan->x.steps + s];
            const int64_t out = dpari_most(run->out_bytes[0], run->out_bytes[1]);
            const int64_t in = dpari_most(run->in_bytes[0], run->in_bytes[1]);
            const int shares = plan->x.peer[i].world >= 0;
            flow->out_at = gives;
            flow->in_at = comes;
            plan->lends[0] |= run->lends[0];
            plan->lends[1] |= run->lends[1];
            step->meets |= shares && flow->boxes + flow->sends > 0;
            step->alone &= flow->boxes + flow->sends == 0;
            plan->x.oneway |= shares && (flow->boxes == 0) != (flow->sends == 0);
            gives += dpari_exchange_lines(out);
            if (plan->x.peer[i].world < 0) {
                comes += dpari_exchange_lines(in);
            }
        }
        plan->self_at = gives;
        plan->turn = dpari_most(plan->turn, gives + dpari_exchange_lines(plan->self_bytes[0]));
        plan->arrive_bytes = dpari_most(plan->arrive_bytes, comes);
    }
    for (k = 0; k < items; k++) {
        const dpar_halo_field *field = &plan->field[plan->item[k].field];
        if (dpari_hx_mem(field)) {
            plan->look_bytes =
                dpari_most(plan->look_bytes, plan->item[k].elements * dpar_type_bytes(field->type));
        }
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_hx_list_items(dpar_halo_plan *plan)
{
    int64_t at = 0;
    int32_t s;
    for (s = 0; s < plan->x.steps; s++) {
        at = dpari_hx_list(plan, s, at);
    }
    dpari_hx_flows(plan, at);
    dpari_hx_mark_packed(plan);
}

/* ==== halo/halo_run.c ==== */

/* Packs and takes the boxes of exchanges, and begins, tests and ends them for the caller.
 *
 * ../exchange runs an exchange and calls functions of this file: to pack the boxes of a step, to
 * take those that this rank sends to itself and those of a peer, and in an adjoint to add boxes in
 * the order of list S (halo_plan.h). */

/* ---- copying items --------------------------------------------------------------------------- */

/* Returns the part of the staging memory that the exchange in progress uses. */
static unsigned char *dpari_hx_staging(const dpar_halo_plan *plan)
{
    return plan->staging + dpari_exchange_turn(&plan->x) * plan->turn;
}

/* Prefetches the cache lines where the rows of a box begin and end. */
static void dpari_hx_ask_rows(const dpar_halo_plan *plan, const dpari_hx_item *item)
{
    const int64_t size = dpar_type_bytes(plan->field[item->field].type);
    const int64_t step = size * item->own_step[item->row], row = item->extent[item->row] * step;
    const unsigned char *at = dpari_hx_mine(plan, item);
    int64_t index[DPARI_HX_DIMS] = {0};
    int32_t d;
    do {
        dpari_stride_ask_line(at - step);
        dpari_stride_ask_line(at + row);
        for (d = 0; d < item->dims; d++) {
            if (d == item->row || (d == item->dims - 1 && item->own_step[d] == 1)) {
                continue;
            }
            at += size * item->own_step[d];
            if (++index[d] < item->extent[d]) {
                break;
            }
            at -= size * item->own_step[d] * index[d];
            index[d] = 0;
        }
    } while (d < item->dims);
}

/* Prefetches the lines at the ends of rows. Peers that read boxes in place have also read these
 * lines, in which halos of other sides are written. Without the prefetch, stores would wait for one
 * line after the other. Blocks of 32^3 cut along planes take a quarter less time with it. If there
 * are too many lines, the first are evicted before they are used: eight fields of 64^3 take 2 %
 * less time without it. */
static void dpari_hx_ask(const dpar_halo_plan *plan)
{
    const dpari_hx_step *last = &plan->step[plan->forward - 1];
    const int64_t end = last->s + last->s_items;
    int64_t k;
    for (k = 0; k < end && plan->asks; k++) {
        const dpari_hx_item *item = &plan->item[k];
        if (item->row >= 0) {
            dpari_hx_ask_rows(plan, item);
        }
    }
}

/* Takes n items whose senders are ready into this rank's arrays. */
static void dpari_hx_take(dpar_halo_plan *plan, int64_t first, int64_t n)
{
    const double began = dpari_exchange_clock(&plan->x);
    int64_t k;
    for (k = first; k < first + n; k += plan->item[k].taken.step) {
        const dpari_hx_item *item = &plan->item[k], *other = item + item->take_mate;
        if (item->take_mate < 0) {
            continue;
        }
        if (item->taken.runs > 0) {
            dpari_stride_run_list(&item->take, plan->spot + item->taken.at, item->taken.runs,
                                  plan->part[item->mine], dpari_hx_base(plan, item));
        } else if (item->take_mate > 0) {
            dpari_stride_run_beside(&item->take, dpari_hx_mine(plan, item),
                                    dpari_hx_from(plan, item), &other->take,
                                    dpari_hx_mine(plan, other), dpari_hx_from(plan, other));
        } else {
            dpari_stride_run(&item->take, dpari_hx_mine(plan, item), dpari_hx_from(plan, item));
        }
    }
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_COPYING, began);
}

/* ---- functions that an exchange calls -------------------------------------------------------- */

/* Packs the boxes of a step that other ranks get into the staging memory: those of S, or in an
 * adjoint those of R. */
static dpar_status dpari_hx_pack_step(void *of, int32_t s)
{
    dpar_halo_plan *plan = (dpar_halo_plan *)of;
    const dpari_hx_step *step = &plan->step[s];
    const int sends = plan->x.mode == DPAR_HALO_FORWARD;
    const int64_t first = sends ? step->s : step->r;
    const int64_t end = first + (sends ? step->s_items : step->r_items);
    const double began = dpari_exchange_clock(&plan->x);
    unsigned char *to = dpari_hx_staging(plan);
    int64_t k;
    for (k = first; k < end; k += plan->item[k].given.step) {
        const dpari_hx_item *item = &plan->item[k], *other = item + item->give_mate;
        if (!item->packs || item->give_mate < 0) {
            continue;
        }
        if (item->given.runs > 0) {
            dpari_stride_run_list(&item->give, plan->spot + item->given.at, item->given.runs, to,
                                  plan->part[item->mine]);
        } else if (item->give_mate > 0) {
            dpari_stride_run_beside(&item->give, to + item->pack_at, dpari_hx_mine(plan, item),
                                    &other->give, to + other->pack_at, dpari_hx_mine(plan, other));
        } else {
            dpari_stride_run(&item->give, to + item->pack_at, dpari_hx_mine(plan, item));
        }
    }
    if (plan->elsewhere) {
        dpari_hx_move(plan, first, end - first, 0);
    }
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_PACKING, began);
    return plan->elsewhere ? dpari_hx_settle(plan) : DPAR_OK;
}

/* Returns where the message from peer i arrives, or where the one to it is packed. */
static unsigned char *dpari_hx_message(void *of, int32_t s, int32_t i, int sends)
{
    const dpar_halo_plan *plan = (const dpar_halo_plan *)of;
    const dpari_hx_flow *flow = &plan->peer[i].flow[s];
    return sends ? dpari_hx_staging(plan) + flow->out_at : plan->arrivals + flow->in_at;
}

/* Takes the boxes that this rank sends to itself and that wait for no peer. */
static void dpari_hx_take_own(void *of, int32_t s)
{
    dpar_halo_plan *plan = (dpar_halo_plan *)of;
    const dpari_hx_step *step = &plan->step[s];
    if (plan->x.mode == DPAR_HALO_FORWARD) {
        dpari_hx_take(plan, step->r, step->self);
    } else {
        dpari_hx_take(plan, step->s, plan->x.step[s].alone ? step->s_items : step->own_first);
    }
}

/* Reads the addresses of a peer's arrays, which have changed. */
static DPARI_COLD dpar_status dpari_hx_read_addresses(dpar_halo_plan *plan, dpari_hx_peer *peer,
                                                      uint64_t version)
{
    int32_t f;
    for (f = 0; f < 2 * plan->fields; f++) {
        peer->at[f] = (const unsigned char *)dpari_at(plan->x.world, peer->refs[f]);
        if (peer->refs[f] != 0 && peer->at[f] == NULL) {
            return dpari_exchange_unmapped(&plan->x, peer->refs[f]);
        }
    }
    peer->version = version;
    return DPAR_OK;
}

/* Takes the boxes of a peer. An adjoint adds them later, in the order of S. */
static dpar_status dpari_hx_take_peer(void *of, int32_t s, int32_t i)
{
    dpar_halo_plan *plan = (dpar_halo_plan *)of;
    dpari_hx_peer *peer = &plan->peer[i];
    const dpari_hx_flow *flow = &peer->flow[s];
    if (flow->reads[plan->x.mode]) {
        const uint64_t version = plan->x.peer[i].line[plan->x.step[s].line].place[DPARI_HX_VERSION];
        if (version != peer->version) {
            const dpar_status status = dpari_hx_read_addresses(plan, peer, version);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    if (plan->x.mode == DPAR_HALO_FORWARD) {
        dpari_hx_take(plan, flow->first, flow->boxes);
    }
    return DPAR_OK;
}

/* Adds the boxes of an adjoint, and takes those in memory that the CPU does not reach, after the
 * last of them has arrived. The latter are one batch, and therefore one launch on a device. */
static dpar_status dpari_hx_finish(void *of, int32_t s)
{
    dpar_halo_plan *plan = (dpar_halo_plan *)of;
    const dpari_hx_step *step = &plan->step[s];
    double began;
    if (plan->x.mode == DPAR_HALO_ADJOINT) {
        dpari_hx_take(plan, step->s + step->own_first, step->s_items - step->own_first);
    }
    if (!plan->elsewhere) {
        return DPAR_OK;
    }
    began = dpari_exchange_clock(&plan->x);
    if (plan->x.mode == DPAR_HALO_ADJOINT) {
        dpari_hx_move(plan, step->s, step->s_items, 1);
    } else {
        dpari_hx_move(plan, step->r, step->r_items, 1);
    }
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_COPYING, began);
    return dpari_hx_settle(plan);
}

DPARI_INTERNAL void dpari_hx_set_functions(dpar_halo_plan *plan)
{
    plan->x.plan = plan;
    plan->x.pack = dpari_hx_pack_step;
    plan->x.message = dpari_hx_message;
    plan->x.take_own = dpari_hx_take_own;
    plan->x.take = dpari_hx_take_peer;
    plan->x.finish = dpari_hx_finish;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Waits for the moves that a failed exchange has begun, and returns its status. */
static dpar_status dpari_hx_ended(dpar_halo_plan *plan, dpar_status status)
{
    if (status < DPAR_OK && plan->elsewhere) {
        (void)dpari_hx_settle(plan);
    }
    return status;
}

/* Begins an exchange. op: DPAR_COPY for a forward exchange. */
static dpar_status dpari_hx_begin(dpar_halo_plan *plan, int32_t op)
{
    const dpar_status status = dpari_exchange_may_begin(&plan->x);
    if (status != DPAR_OK) {
        return status;
    }
    if (op == DPAR_COPY) {
        dpari_hx_ask(plan);
    }
    plan->x.lends = plan->lends[op != DPAR_COPY];
    return dpari_hx_ended(plan, dpari_exchange_begin(&plan->x, op, 0));
}

DPAR_API dpar_status dpar_halo_plan_begin(dpar_halo_plan *plan)
{
    return plan ? dpari_hx_begin(plan, DPAR_COPY) : DPAR_E_ARG;
}

/* Prepares the items again if they are prepared for another op. */
DPAR_API dpar_status dpar_halo_plan_reduce_begin(dpar_halo_plan *plan, int32_t op)
{
    int32_t s, i;
    int64_t k;
    if (!plan) {
        return DPAR_E_ARG;
    }
    if (op != DPAR_SUM && op != DPAR_MAX && op != DPAR_MIN) {
        return dpari_comm_wrong(
            plan->comm,
            "dpar_halo_plan_reduce_begin: op is %d; it must be DPAR_SUM, DPAR_MAX or "
            "DPAR_MIN",
            op);
    }
    for (i = 0; i < plan->fields; i++) {
        if (!dpari_type_can_reduce(plan->field[i].type)) {
            return dpari_comm_wrong(
                plan->comm,
                "dpar_halo_plan_reduce_begin: field %d has type %s, which cannot be combined", i,
                dpar_type_name(plan->field[i].type));
        }
    }
    for (s = 0; s < plan->x.steps && op != plan->prepared && !plan->x.active; s++) {
        if (plan->step[s].modes == 1 << DPAR_HALO_FORWARD) {
            continue;
        }
        for (k = 0; k < plan->step[s].s_items; k++) {
            dpari_hx_prepare(plan, &plan->item[plan->step[s].s + k], op);
        }
        for (k = 0; k < plan->step[s].r_items; k++) {
            dpari_hx_item *item = &plan->item[plan->step[s].r + k];
            if (item->wiper != 0) { /* this halo becomes 0 with a sum, or when it is given */
                item->give.clear = item[item->wiper].take.beside == 0;
            }
        }
        dpari_hx_gather_sends(plan, &plan->step[s], 1);
    }
    if (!plan->x.active) {
        plan->prepared = op;
    }
    return dpari_hx_begin(plan, op);
}

DPAR_API dpar_status dpar_halo_plan_test(dpar_halo_plan *plan)
{
    return plan ? dpari_hx_ended(plan, dpari_exchange_advance(&plan->x, 0)) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_halo_plan_end(dpar_halo_plan *plan)
{
    return plan ? dpari_hx_ended(plan, dpari_exchange_advance(&plan->x, 1)) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_halo_plan_exchange(dpar_halo_plan *plan)
{
    const dpar_status status = dpar_halo_plan_begin(plan);
    return status == DPAR_OK ? dpar_halo_plan_end(plan) : status;
}

DPAR_API dpar_status dpar_halo_plan_reduce(dpar_halo_plan *plan, int32_t op)
{
    const dpar_status status = dpar_halo_plan_reduce_begin(plan, op);
    return status == DPAR_OK ? dpar_halo_plan_end(plan) : status;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_plan_free(dpar_halo_plan *plan)
{
    dpar_status status;
    int32_t refused;
    if (!plan) {
        return DPAR_OK;
    }
    status = dpari_exchange_close(&plan->x, "dpar_halo_plan_free: ", &refused);
    if (refused) {
        return status;
    }
    if (plan->elsewhere) {
        (void)dpari_hx_settle(plan); /* waits for moves that a broken exchange has begun */
        (void)dpari_hx_pin_all(plan, 0);
    }
    dpar_comm_release(plan->x.world ? plan->x.node : plan->comm, plan->x.memory);
    return dpari_object_end(status, plan->owned);
}

/* ==== halo/halo_traffic.c ==== */

/* Lists what an exchange moves: the peers, the bytes and the method. Called by
 * dpar_halo_plan_report in dpar_debug.h and by the layers of dpar_spatial.h. */

/* Returns the distance of the blocks of two ranks in the mesh of field 0, in blocks: the largest
 * along any mesh axis, or 0 if a rank has no block. In periodic dims the shorter direction counts.
 */
static int32_t dpari_hx_hops(const dpar_halo_plan *plan, int32_t a, int32_t b)
{
    const dpar_halo *halo = plan->field[0].halo;
    int32_t at[2][DPAR_MAX_AXES], rank[2], block[2];
    int32_t most = 0, i, k;
    rank[0] = a;
    rank[1] = b;
    for (k = 0; k < 2; k++) {
        block[k] = rank[k];
        for (i = 0; halo->owner && i < halo->grid.mesh.size; i++) {
            if (halo->owner[i] == rank[k]) {
                block[k] = halo->grid.mesh.first_rank + i;
            }
        }
        if (!dpar_mesh_coords(&halo->grid.mesh, block[k], at[k])) {
            return 0;
        }
    }
    for (i = 0; i < halo->grid.mesh.axes; i++) {
        const dpar_placement *placement = &halo->grid.axis[i];
        const int32_t size = halo->grid.mesh.axis[i].size;
        int32_t n = at[0][i] > at[1][i] ? at[0][i] - at[1][i] : at[1][i] - at[0][i];
        if (placement->kind == DPAR_PLACEMENT_SHARD && (halo->periodic >> placement->dim & 1u) &&
            size - n < n) {
            n = size - n;
        }
        most = n > most ? n : most;
    }
    return most;
}

DPARI_API DPARI_COLD int dpari_hx_traffic_of(const dpar_halo_plan *plan, int32_t k,
                                             dpari_hx_traffic *traffic)
{
    int32_t peer = k, s;
    int64_t i;
    if (!plan || !traffic || k < 0 || k > plan->x.peers) {
        return 0;
    }
    dpari_zero(traffic, sizeof *traffic);
    peer = k == plan->x.peers ? -1 : k;
    traffic->peer = peer < 0 ? plan->comm->rank : plan->x.peer[peer].rank;
    traffic->hops = dpari_hx_hops(plan, plan->comm->rank, traffic->peer);
    traffic->way =
        peer >= 0 && dpari_exchange_sends(&plan->x, peer) ? DPAR_HALO_MESSAGES : DPAR_HALO_PACKED;
    for (s = 0; s < plan->forward; s++) {
        const dpari_hx_step *step = &plan->step[s];
        const int64_t first = peer < 0 ? step->r : step->s;
        const int64_t n = peer < 0 ? step->self : step->s_items;
        for (i = first; i < first + n; i++) {
            const dpari_hx_item *item = &plan->item[i];
            const int32_t type = plan->field[item->field].type, width = dpar_type_bytes(type);
            const int64_t bytes =
                item->elements * dpar_type_bytes(dpari_hx_wire(&plan->field[item->field]));
            if (item->peer != peer) {
                continue;
            }
            traffic->pieces++;
            traffic->bytes += bytes;
            traffic->direct += item->packs ? 0 : bytes;
            traffic->runs +=
                item->elements * width /
                dpari_hx_in_a_row(item->extent, peer < 0 ? item->other_step : item->own_step,
                                  item->dims, type);
        }
    }
    if (traffic->direct > 0) {
        traffic->way = DPAR_HALO_DIRECT;
    }
    return peer >= 0 || traffic->pieces > 0;
}

/* ==== halo/halo_exchange.c ==== */

/* Plans exchanges: decides about the steps, divides the plan's memory into its tables, and connects
 * it with the plans of the peers.
 *
 * Planning walks the transfers of each field (halo_walk.c) and groups the boxes by peer into items
 * (halo_items.c).
 * Peers that share memory exchange references to staging memory and arrays; other peers exchange
 * messages. Both ranks make the same decisions from the same numbers, so that nothing else needs to
 * be negotiated. halo_plan.h explains how the exchange then runs.
 *
 * First each rank checks its fields (halo_fields.c) and computes the size of its plan, so that the
 * memory can be allocated at once. Then the ranks agree that all have succeeded and describe the
 * same fields. After that, a failure on one rank is reported to the other ranks at the next
 * agreement. */

/* ---- memory ---------------------------------------------------------------------------------- */

/* The numbers that decide how large a plan is. items and peers are upper bounds. */
typedef struct dpari_hx_size {
    int64_t items, peers, moves; /* moves: number of items in memory that the CPU does not reach */
    int32_t fields, ranks, steps;
    int32_t ordered; /* 1 if the plan exchanges dim by dim */
    int32_t cut;     /* the only dim that is cut, counted from the last one, if it has steps of its
                        own (DPARI_HX_CUT); otherwise -1 */
    int32_t forward; /* number of steps of a forward exchange */
} dpari_hx_size;

/* Returns the most words that a rank sends to a peer in one message of planning. */
static int64_t dpari_hx_words(int32_t fields, int32_t steps)
{
    return DPARI_HX_HEAD * (int64_t)steps + (int64_t)fields * DPARI_HX_WORDS;
}

/* Divides the memory of a plan into its tables, and computes its size. If memory is NULL, only
 * computes the size and returns NULL. */
static dpar_halo_plan *dpari_hx_layout(const dpari_hx_size *size, void *memory, int64_t *bytes)
{
    dpari_room room;
    dpar_halo_plan none, *x;
    int64_t i;
    room.at = (unsigned char *)memory;
    room.used = 0;
    x = (dpar_halo_plan *)dpari_room_take(&room, 1, sizeof *x);
    x = memory ? x : &none;
    dpari_exchange_room(&x->x, &room, size->peers, size->steps, size->ranks);
    x->field = (dpar_halo_field *)dpari_room_take(&room, size->fields, sizeof *x->field);
    x->array = (dpari_hx_array *)dpari_room_take(&room, size->fields, sizeof *x->array);
    x->part = (unsigned char **)dpari_room_take(&room, 2 * size->fields, sizeof *x->part);
    x->peer = (dpari_hx_peer *)dpari_room_take(&room, size->peers, sizeof *x->peer);
    x->peer_of = (int32_t *)dpari_room_take(&room, size->ranks, sizeof *x->peer_of);
    x->item = (dpari_hx_item *)dpari_room_take(&room, size->items, sizeof *x->item);
    x->spot = (dpari_stride_spot *)dpari_room_take(&room, 2 * size->items,
                                                   DPARI_STRIDE_FEW * sizeof *x->spot);
    x->box = (dpar_mem_box *)dpari_room_take(&room, size->moves, sizeof *x->box);
    x->span = (int64_t *)dpari_room_take(&room, size->fields, 4 * sizeof *x->span);
    x->record = (int64_t *)dpari_room_take(
        &room, 2 * size->peers * dpari_hx_words(size->fields, size->steps), sizeof *x->record);
    for (i = 0; i < size->peers; i++) {
        void *at = dpari_room_take(&room, 2 * size->fields, sizeof *x->peer[0].at);
        void *array = dpari_room_take(&room, size->fields, sizeof *x->array);
        void *flow = dpari_room_take(&room, size->steps, sizeof *x->peer[0].flow);
        if (memory) {
            x->peer[i].flow = (dpari_hx_flow *)flow;
            x->peer[i].at = (const unsigned char **)at;
            x->peer[i].array = (dpari_hx_array *)array;
        }
    }
    *bytes = room.used;
    return (dpar_halo_plan *)memory;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Adds the dims that are cut to *steps, as bits counted from the last dim. Returns 0 if the points
 * are not cells or the mesh does more than cut dims: such fields are not ordered unless the caller
 * asks for it. */
static int dpari_hx_meetings(const dpar_halo *halo, uint32_t *steps)
{
    int32_t i;
    for (i = 0; i < halo->grid.dims; i++) {
        if (halo->points[i] != DPAR_HALO_AT_CELLS) {
            return 0;
        }
    }
    for (i = 0; i < halo->grid.mesh.axes; i++) {
        if (halo->grid.mesh.axis[i].size <= 1) {
            continue;
        }
        if (halo->grid.axis[i].kind != DPAR_PLACEMENT_SHARD) {
            return 0;
        }
        *steps |= (uint32_t)1 << (halo->grid.dims - 1 - halo->grid.axis[i].dim);
    }
    return 1;
}

/* True if a plan with desc.ordered 0 exchanges dim by dim, because that takes no more waits. Edges
 * and corners are then parts of other boxes, rows are complete along all dims but one, and ranks
 * still wait for each other only once.
 *
 * *cut receives the dim that is cut, counted from the last one. Its messages wait for no other
 * step, while each rank fills the halos of the other dims itself (DPARI_HX_CUT). *cut is -1 if no
 * dim is cut, or only the last one: its halos have scattered points in place of rows, which cost
 * more than waiting (blocks of 64^3 with a halo of 2: 24 us if ranks wait, 27 us if they do not).
 */
static int dpari_hx_prefers_order(const dpar_halo_plan_desc *desc, int32_t *cut)
{
    uint32_t meetings = 0;
    int32_t i, corners = 0;
    for (i = 0; i < desc->field_count; i++) {
        const dpar_halo_field *field = &desc->field[i];
        const dpar_halo *halo = field->halo;
        corners |= halo->shape != DPAR_STENCIL_STAR && halo->grid.dims > 1;
        if (!dpari_hx_can_order(field) || dpari_hx_mem(field) ||
            !dpari_hx_meetings(halo, &meetings)) {
            return 0;
        }
    }
    if (desc->shared || !corners || (meetings & (meetings - 1)) != 0) {
        return 0;
    }
    *cut = -1;
    if (meetings > 1) { /* *cut is the number of the only bit */
        *cut = 0;
        while (meetings > 1) {
            ++*cut;
            meetings >>= 1;
        }
    }
    return 1;
}

/* Computes the number of steps of a plan of `dims` dims. With a cut dim, the steps of an adjoint
 * follow those of a forward exchange. Otherwise both have the same steps. */
static void dpari_hx_count_steps(dpari_hx_size *size, int32_t dims)
{
    if (size->cut >= 0) {
        size->forward = 2 * dims - 1;
        size->steps = size->forward + dims;
        return;
    }
    size->forward = size->ordered ? dims : 1;
    size->steps = size->forward;
}

/* Returns step i of a plan, or for -1 the step that exchanges everything at once.
 *
 * With a cut dim, a forward exchange has these steps: the halos of the other dims next to own
 * planes, the cut dim, and the halos of the other dims next to the received planes. An adjoint has
 * one step for each dim. */
static dpari_hx_step dpari_hx_step_of(const dpari_hx_size *size, int32_t i)
{
    const int32_t others = size->steps - size->forward - 1; /* dims that are not cut */
    dpari_hx_step step;
    dpari_zero(&step, sizeof step);
    step.modes = 1 << DPAR_HALO_FORWARD | 1 << DPAR_HALO_ADJOINT;
    step.number = size->ordered ? i : -1;
    step.cut = size->cut;
    if (i < 0 || size->cut < 0) {
        return step;
    }
    if (i >= size->forward) {
        step.modes = 1 << DPAR_HALO_ADJOINT;
        step.along = DPARI_HX_WIDE;
        step.number = i - size->forward;
        return step;
    }
    step.modes = 1 << DPAR_HALO_FORWARD;
    if (i == others) {
        step.along = DPARI_HX_CUT;
        step.number = size->cut;
    } else {
        const int32_t k = i < others ? i : i - others - 1;
        step.along = i < others ? DPARI_HX_OWN_PLANES : DPARI_HX_HALO_PLANES;
        step.number = k + (k >= size->cut);
    }
    return step;
}

/* Adds what a step moves for one field, in both directions, to the size of the plan. */
static dpar_status dpari_hx_measure_step(const dpar_halo_plan_desc *desc,
                                         const dpar_halo_field *field, int32_t rank,
                                         const dpari_hx_step *step, dpari_hx_size *size,
                                         dpar_why *why)
{
    dpari_hx_walk walk;
    dpar_transfer transfer;
    int32_t direction;
    for (direction = 0; direction < 2; direction++) {
        const dpar_status status =
            dpari_hx_begin_walk(&walk, field, rank, step, direction, dpari_hx_moves(desc), why);
        if (status == DPAR_DONE) {
            continue;
        }
        if (status != DPAR_OK) {
            return status;
        }
        while (dpari_hx_next(&walk, &transfer)) {
            const int32_t parts = dpari_hx_parts(field, &transfer);
            size->items += parts;
            if (dpari_hx_mem(field)) {
                size->moves += parts;
            }
            size->peers += transfer.peer != rank;
        }
    }
    return DPAR_OK;
}

/* Checks all fields, decides about the order, and computes the size of the plan. */
static dpar_status dpari_hx_measure(const dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                    dpari_hx_size *size, dpar_why *why)
{
    const dpar_halo_field *fields = desc->field;
    const int32_t n = desc->field_count;
    /* If desc.ordered is 0, another rank may be unable to exchange dim by dim. Therefore the boxes
     * of an exchange of all dims at once, which is step -1, are counted too. */
    const int32_t first = desc->ordered ? 0 : -1;
    dpar_status status;
    int32_t i, number, end, dims = 1;
    dpari_zero(size, sizeof *size);
    size->fields = n;
    size->ranks = comm->size;
    size->cut = -1;
    status = dpari_hx_check_fields(comm, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    size->ordered = desc->ordered || dpari_hx_prefers_order(desc, &size->cut);
    for (i = 0; i < n && size->ordered; i++) {
        dims = (int32_t)dpari_most(dims, fields[i].halo->grid.dims);
    }
    dpari_hx_count_steps(size, dims);
    end = size->ordered ? size->steps : 0;
    for (i = 0; i < n; i++) {
        for (number = first; number < end; number++) {
            const dpari_hx_step step = dpari_hx_step_of(size, number);
            status = dpari_hx_measure_step(desc, &fields[i], comm->rank, &step, size, why);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    size->peers = dpari_least(size->peers, comm->size);
    return DPAR_OK;
}

/* Checks a descriptor and computes the size of its plan. Local. */
static dpar_status dpari_hx_check_desc(const dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                       dpari_hx_size *size, dpar_why *why)
{
    if (!desc->field) {
        return dpari_wrong(why, "halo: desc.field is NULL");
    }
    if (desc->field_count < 1 || desc->field_count > 4096) {
        return dpari_wrong(why, "halo: desc.field_count is %d; it must be 1 to 4096",
                           desc->field_count);
    }
    if (desc->shared && desc->ordered) {
        return dpari_wrong(why,
                           "halo: desc.shared and desc.ordered cannot both be 1: shared points are "
                           "exchanged at once");
    }
    if (((desc->ordered | desc->shared | desc->timers) & ~1) && desc->shared != DPARI_HX_COMBINE) {
        return dpari_wrong(why,
                           "halo: desc.ordered is %d, shared %d, timers %d; each must be 0 or 1",
                           desc->ordered, desc->shared, desc->timers);
    }
    if (desc->method < DPAR_HALO_AUTO || desc->method > DPAR_HALO_DIRECT || desc->run_bytes < 0 ||
        desc->tag < 0) {
        return dpari_wrong(
            why,
            "halo: desc.method is %d (0 to 3 allowed), run_bytes %ld and tag %d (0 or more "
            "allowed)",
            desc->method, desc->run_bytes, desc->tag);
    }
    return dpari_hx_measure(comm, desc, size, why);
}

DPARI_API DPARI_COLD dpar_status dpari_hx_bytes(const dpar_comm *comm,
                                                const dpar_halo_plan_desc *desc, int64_t *bytes,
                                                dpar_why *why)
{
    dpari_hx_size size;
    const dpar_status status = dpari_hx_check_desc(comm, desc, &size, why);
    if (status == DPAR_OK) {
        (void)dpari_hx_layout(&size, NULL, bytes);
    }
    return status;
}

/* ---- agreeing -------------------------------------------------------------------------------- */

/* Makes all ranks exchange dim by dim, or none. Some ranks may be unable to, because arrays may be
 * in device memory, or compact, on some ranks only. Collective. */
static dpar_status dpari_hx_agree_on_order(dpar_comm *comm, dpari_hx_size *size, dpar_why *why)
{
    int32_t all = 0;
    const dpar_status status =
        dpar_all_reduce(comm, &size->ordered, &all, 1, DPAR_I32, DPAR_MIN, NULL);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    if (!all) {
        size->ordered = 0;
        size->cut = -1;
        dpari_hx_count_steps(size, 1);
    }
    return DPAR_OK;
}

/* Returns the record of `words` words that is sent to peer i. */
static int64_t *dpari_hx_to_peer(const dpar_halo_plan *plan, int32_t i, int64_t words)
{
    return plan->record + plan->x.peers * dpari_hx_words(plan->fields, plan->x.steps) + i * words;
}

/* Sends the records of dpari_hx_to_peer, and receives those of the peers in plan->record. */
static dpar_status dpari_hx_exchange_records(dpar_halo_plan *plan, int64_t words)
{
    return dpari_exchange_records(&plan->x, dpari_hx_to_peer(plan, 0, words), plan->record, words);
}

/* ---- peers ----------------------------------------------------------------------------------- */

/* Lists the ranks with which this rank exchanges boxes, in ascending order. */
static void dpari_hx_mark_peers(dpar_halo_plan *plan)
{
    dpari_hx_walk walk;
    dpar_transfer transfer;
    int32_t i, direction, s;
    for (i = 0; i < plan->fields; i++) {
        for (s = 0; s < plan->x.steps; s++) {
            for (direction = 0; direction < 2; direction++) {
                dpar_status walks =
                    dpari_hx_begin_walk(&walk, &plan->field[i], plan->comm->rank, &plan->step[s],
                                        direction, dpari_hx_moves(&plan->options), NULL);
                while (walks == DPAR_OK && dpari_hx_next(&walk, &transfer)) {
                    plan->peer_of[transfer.peer] = 1;
                }
            }
        }
    }
    plan->peer_of[plan->comm->rank] = 0;
    for (i = 0; i < plan->comm->size; i++) {
        if (plan->peer_of[i]) {
            plan->x.peer[plan->x.peers].rank = i;
            plan->x.peer[plan->x.peers].world = -1;
            plan->peer_of[i] = ++plan->x.peers;
        }
    }
}

/* Exchanges dpari_hx_told of all fields with the peers. */
static dpar_status dpari_hx_exchange_arrays(dpar_halo_plan *plan)
{
    const int64_t words = (int64_t)plan->fields * DPARI_HX_WORDS;
    dpar_status status;
    int32_t i, f;
    for (i = 0; i < plan->x.peers; i++) {
        int64_t *record = dpari_hx_to_peer(plan, i, words);
        for (f = 0; f < plan->fields; f++, record += DPARI_HX_WORDS) {
            dpari_hx_told *told = &plan->array[f].told;
            told->reaches = plan->x.peer[i].world >= 0;
            dpari_kern_copy(record, told, (int64_t)sizeof *told, 0);
        }
    }
    status = dpari_hx_exchange_records(plan, words);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < plan->x.peers; i++) {
        const int64_t *record = plan->record + i * words;
        for (f = 0; f < plan->fields; f++, record += DPARI_HX_WORDS) {
            dpari_hx_array *array = &plan->peer[i].array[f];
            dpari_hx_dense(array, &plan->field[f], plan->x.peer[i].rank);
            dpari_kern_copy(&array->told, record, (int64_t)sizeof array->told, 0);
            array->compact = array->told.compact;
            if (!array->told.reaches) {
                plan->x.peer[i].world = -1;
            }
        }
    }
    return DPAR_OK;
}

/* ---- planning -------------------------------------------------------------------------------- */

/* Returns the first field that is not in the communicator's memory, or plan->fields if all are. */
static int32_t dpari_hx_first_outside(const dpar_halo_plan *plan)
{
    int32_t i;
    for (i = 0; i < plan->fields; i++) {
        if (dpari_hx_mem(&plan->field[i]) != plan->comm->mem) {
            break;
        }
    }
    return i;
}

/* Allocates the plan's registered memory. It holds the lines, the references to arrays, two halves
 * of staging memory (three parts if devices of other ranks may read it), messages that arrive, and
 * a buffer for the largest item in memory that the CPU does not reach. */
static dpar_status dpari_hx_alloc(dpar_halo_plan *plan, dpar_why *why)
{
    const int64_t lines = plan->x.world ? plan->x.steps * (int64_t)sizeof(dpari_exchange_line) : 0;
    const int64_t refs =
        plan->x.world ? dpari_exchange_lines((int64_t)sizeof(uint64_t) * 2 * plan->fields) : 0;
    dpar_comm *of = plan->x.world ? plan->x.node : plan->comm;
    int64_t turns = 2;
    void *memory = NULL;
    dpar_status status;
    int32_t outside = 0;
    plan->in_order = !plan->x.world && plan->comm->mem != NULL;
    plan->nears = !plan->x.world && plan->x.steps == 1 &&
                  plan->options.method != DPAR_HALO_MESSAGES && of->engine.alloc_shared != NULL;
    turns += plan->nears;
    if (plan->in_order) {
        outside = dpari_hx_first_outside(plan);
    }
    plan->memory_bytes = lines + refs + turns * plan->turn + plan->arrive_bytes + plan->look_bytes;
    if (plan->nears) {
        status = of->engine.alloc_shared(of, plan->memory_bytes,
                                         plan->in_order && outside == plan->fields, &memory);
    } else {
        status = dpar_comm_alloc(of, plan->memory_bytes, &memory);
    }
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, of->why.text);
    }
    plan->x.memory = (unsigned char *)memory;
    if (plan->in_order && outside < plan->fields) {
        return dpari_wrong(
            why,
            "field %d of rank %d must be in the communicator's memory: its mem must be "
            "comm->mem",
            outside, plan->comm->rank);
    }
    plan->x.line = (dpari_exchange_line *)memory;
    plan->refs = (uint64_t *)(void *)(plan->x.memory + lines);
    plan->staging = plan->x.memory + lines + refs;
    plan->arrivals = plan->staging + turns * plan->turn;
    plan->look = plan->in_order ? NULL : plan->arrivals + plan->arrive_bytes;
    return DPAR_OK;
}

/* Records where the parts of field f are, as addresses for this rank and as references for its
 * peers. */
static DPARI_COLD void dpari_hx_bind_field(dpar_halo_plan *plan, int32_t f)
{
    const dpar_halo_field *field = &plan->field[f];
    plan->part[2 * f] = (unsigned char *)field->data;
    plan->part[2 * f + 1] = (unsigned char *)field->compact_halo;
    if (plan->x.world) { /* the reference is 0 if there is no array or peers cannot read it */
        plan->refs[2 * f] = field->data ? dpari_ref(plan->x.world, field->data, 1) : 0;
        plan->refs[2 * f + 1] =
            field->compact_halo ? dpari_ref(plan->x.world, field->compact_halo, 1) : 0;
    }
}

/* Finds the memory of the plan of peer i: its words and staging memory if the peer shares memory
 * with this rank, or only its staging memory if this rank's device can reach it. record: the peer's
 * record. */
static dpar_status dpari_hx_reach_peer(dpar_halo_plan *plan, int32_t i, const int64_t *record,
                                       dpar_why *why)
{
    dpari_hx_peer *peer = &plan->peer[i];
    dpari_exchange_peer *run = &plan->x.peer[i];
    unsigned char *memory;
    if (run->world >= 0) {
        memory = (unsigned char *)dpari_at(plan->x.world, (uint64_t)record[6]);
        if (memory == NULL) {
            dpar_text text;
            dpari_text_why(&text, why);
            dpari_put_unmapped(&text, plan->x.world, (uint64_t)record[6]);
            return DPAR_E_MEMORY;
        }
        run->line = (dpari_exchange_line *)(void *)memory;
        peer->refs = (const uint64_t *)(const void *)(run->line + plan->x.steps);
        peer->staging = memory + (plan->staging - plan->x.memory);
        plan->x.shared++;
        peer->turn = record[5];
        return DPAR_OK;
    }
    if (record[7] && plan->nears) { /* both must reach the other's memory */
        peer->staging =
            (unsigned char *)plan->comm->engine.peer_address(plan->comm, plan->x.memory, run->rank);
        run->reached = peer->staging != NULL;
        peer->turn = record[5];
    }
    if (run->reached) {
        plan->x.rank_of[plan->x.reached] = run->rank;
        plan->x.reached++;
    }
    return DPAR_OK;
}

/* Exchanges positions in staging memory with each peer, and checks that each rank sends the boxes
 * that the other one expects. */
static dpar_status dpari_hx_exchange_places(dpar_halo_plan *plan, dpar_why *why)
{
    const int64_t words = DPARI_HX_HEAD * (int64_t)plan->x.steps;
    dpar_status status;
    int32_t i, s;
    for (i = 0; i < plan->x.peers; i++) {
        int64_t *r = dpari_hx_to_peer(plan, i, words);
        for (s = 0; s < plan->x.steps; s++, r += DPARI_HX_HEAD) {
            const dpari_hx_flow *flow = &plan->peer[i].flow[s];
            const dpari_exchange_flow *run = &plan->x.flow[i * plan->x.steps + s];
            r[0] = (int64_t)flow->hash[1]; /* the peer compares it with the hash of its R */
            r[1] = (int64_t)flow->hash[0];
            r[2] = flow->out_at;
            r[3] = run->out_bytes[0];
            r[4] = run->out_bytes[1];
            r[5] = plan->turn;
            r[6] = plan->x.world ? (int64_t)dpari_ref(plan->x.world, plan->x.memory, 1) : 0;
            /* 1 if this rank's device reaches the peer's memory */
            r[7] = plan->nears && plan->comm->engine.peer_address(plan->comm, plan->x.memory,
                                                                  plan->x.peer[i].rank) != NULL;
        }
    }
    status = dpari_hx_exchange_records(plan, words);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < plan->x.peers; i++) {
        const dpari_exchange_peer *peer = &plan->x.peer[i];
        const int64_t *r = plan->record + i * words;
        status = dpari_hx_reach_peer(plan, i, r, why);
        if (status != DPAR_OK) {
            return status;
        }
        for (s = 0; s < plan->x.steps; s++, r += DPARI_HX_HEAD) {
            dpari_hx_flow *flow = &plan->peer[i].flow[s];
            const dpari_exchange_flow *run = &plan->x.flow[i * plan->x.steps + s];
            if ((uint64_t)r[0] != flow->hash[0] || (uint64_t)r[1] != flow->hash[1] ||
                r[3] != run->in_bytes[0] || r[4] != run->in_bytes[1]) {
                return dpari_say(
                    DPAR_E_MISMATCH, why,
                    "ranks %d and %d expect different boxes from each other: their grids differ",
                    plan->comm->rank, peer->rank);
            }
            if (!dpari_exchange_sends(&plan->x, i)) {
                flow->in_at = r[2];
            }
        }
    }
    return DPAR_OK;
}

/* Connects the plan's memory, which all ranks have allocated, with that of the peers. */
static dpar_status dpari_hx_connect(dpar_halo_plan *plan, dpar_why *why)
{
    dpar_status status;
    int32_t i, s;
    for (i = 0; i < plan->fields; i++) {
        dpari_hx_bind_field(plan, i);
    }
    plan->version = 1;
    for (s = 0; s < plan->x.steps && plan->x.world; s++) {
        plan->x.line[s].place[DPARI_HX_VERSION] = 1;
    }
    status = dpari_hx_exchange_places(plan, why);
    if (status == DPAR_OK) {
        status = dpari_hx_pin_all(plan, 1);
        if (status != DPAR_OK) {
            (void)dpari_say(status, why,
                            "rank %d: the plan's memory (%ld bytes) cannot be pinned: %s",
                            plan->comm->rank, plan->memory_bytes, dpar_status_text(status));
        }
    }
    return dpari_agree(plan->comm, status, why);
}

/* Does the collective part of planning, after the ranks have agreed on the fields. */
static dpar_status dpari_hx_plan(dpar_halo_plan *plan, dpar_why *why)
{
    dpar_status status = dpari_exchange_find_node(&plan->x);
    if (status == DPAR_OK) {
        status = dpari_hx_exchange_arrays(plan);
    }
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, plan->comm->why.text);
    }
    dpari_hx_list_items(plan);
    status = dpari_agree(plan->comm, dpari_hx_alloc(plan, why), why);
    if (status == DPAR_OK) {
        status = dpari_hx_connect(plan, why);
    }
    if (status != DPAR_OK) {
        if (plan->x.memory) {
            (void)dpari_hx_pin_all(plan, 0);
            dpar_comm_release(plan->x.world ? plan->x.node : plan->comm, plan->x.memory);
        }
        return status;
    }
    dpari_hx_finish_items(plan);
    return DPAR_OK;
}

/* Describes this rank's arrays, and finds out whether peers can read them in place. If arrays are
 * bound later, their memory is not known yet. Peers then read them in place only if the method is
 * DPAR_HALO_DIRECT, in which case dpar_halo_plan_bind requires registered memory. */
static void dpari_hx_own_arrays(dpar_halo_plan *plan, int32_t later)
{
    const int32_t method = plan->options.method;
    const int allowed = later ? method == DPAR_HALO_DIRECT : method != DPAR_HALO_PACKED;
    const int shares = plan->x.world && allowed;
    int32_t i;
    for (i = 0; i < plan->fields; i++) {
        const dpar_halo_field *field = &plan->field[i];
        dpari_hx_array_of(&plan->array[i], field, plan->comm->rank);
        plan->array[i].told.reach[0] = shares && !plan->array[i].told.elsewhere && field->data &&
                                       (later || dpari_ref(plan->x.world, field->data, 1) != 0);
        plan->array[i].told.reach[1] = shares && !plan->array[i].told.elsewhere &&
                                       field->compact_halo &&
                                       dpari_ref(plan->x.world, field->compact_halo, 1) != 0;
    }
}

/* Checks that arrays in memory of dpar_comm_alloc end inside their allocation. span: set by
 * dpari_hx_disjoint. */
static dpar_status dpari_hx_check_heap(const dpari_world *world, const dpar_halo_field *fields,
                                       int32_t n, int32_t rank, const int64_t *span, dpar_why *why)
{
    int64_t within;
    int32_t p;
    if (!world) {
        return DPAR_OK;
    }
    for (p = 0; p < 2 * n; p++) {
        if (!dpari_hx_mem(&fields[p / 2]) &&
            !dpari_heap_holds(world, span[2 * p], span[2 * p + 1], &within)) {
            return dpari_wrong(
                why,
                "field %d: its elements on rank %d extend over %ld bytes, but the allocation "
                "of dpar_comm_alloc that has the first of them ends after %ld bytes",
                p / 2, rank, span[2 * p + 1] - span[2 * p], within);
        }
    }
    return DPAR_OK;
}

/* Checks that neither the arrays nor the plan's memory overlap. `memory` is used as scratch. */
static dpar_status dpari_hx_check_overlaps(const dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                           const dpari_hx_size *size, void *memory, int64_t need,
                                           dpar_why *why)
{
    const dpar_comm *node = comm->node ? comm->node : comm;
    int64_t bytes, *span;
    dpar_status status =
        dpari_hx_clear_of(desc->field, size->fields, comm->rank, memory, need, why);
    if (status != DPAR_OK) {
        return status;
    }
    span = dpari_hx_layout(size, memory, &bytes)->span;
    status = dpari_hx_disjoint(desc->field, size->fields, comm->rank, span, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_hx_check_heap(dpari_world_of(node), desc->field, size->fields, comm->rank, span,
                               why);
}

/* Does the local part of planning: checks the descriptor, and provides and checks the memory. */
static dpar_status dpari_hx_prepare_plan(const dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                         int32_t later, dpari_hx_size *size, int64_t *need,
                                         void **memory, dpar_why *why)
{
    dpar_status status = dpari_hx_check_desc(comm, desc, size, why);
    if (status != DPAR_OK) {
        return status;
    }
    (void)dpari_hx_layout(size, NULL, need);
    /* allocates pages of the host, because the communicator's memory may be on a device */
    status = dpari_object_memory(NULL, desc->memory, desc->bytes, *need, "halo", memory, why);
    if (status != DPAR_OK || later) {
        return status;
    }
    return dpari_hx_check_overlaps(comm, desc, size, *memory, *need, why);
}

/* Sets what the exchange needs of the descriptor. */
static void dpari_hx_set_exchange(dpar_halo_plan *plan, dpar_comm *comm,
                                  const dpar_halo_plan_desc *desc)
{
    dpari_exchange *x = &plan->x;
    x->comm = comm;
    x->node = comm->node ? comm->node : comm;
    x->world = desc->method == DPAR_HALO_MESSAGES ? NULL : dpari_world_of(x->node);
    x->name = "halo";
    x->end = "dpar_halo_plan_end";
    x->item = "field";
    x->items = desc->field_count;
    x->tag = desc->tag;
    x->timers = desc->timers;
    x->together = 1; /* a device orders its operations: a receive alone would wait for ever */
    x->self = -1;
    dpari_hx_set_functions(plan);
}

/* Returns dpari_cpu_wide. It is asked once for each world, because a virtual machine takes 30 us to
 * answer. */
static int32_t dpari_hx_wide(dpari_world *world)
{
    if (!world) {
        return dpari_cpu_wide();
    }
    if (world->wide == 0) {
        world->wide = 1 + dpari_cpu_wide();
    }
    return world->wide - 1;
}

/* Divides the plan's memory into tables, and sets the fields that need no other rank. */
static dpar_halo_plan *dpari_hx_describe_plan(dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                              const dpari_hx_size *size, void *memory, int64_t need)
{
    dpar_halo_plan *plan;
    int64_t bytes;
    int32_t i;
    dpari_zero(memory, (size_t)need);
    plan = dpari_hx_layout(size, memory, &bytes);
    plan->comm = comm;
    dpari_hx_set_exchange(plan, comm, desc);
    plan->options = *desc;
    plan->options.field = plan->field;
    plan->wide = dpari_hx_wide(plan->x.world);
    plan->fields = desc->field_count;
    plan->x.steps = size->steps;
    plan->items = size->items;
    for (i = 0; i < plan->fields; i++) {
        plan->field[i] = desc->field[i];
        plan->elsewhere |= dpari_hx_mem(&desc->field[i]) != NULL;
    }
    for (i = 0; i < plan->x.steps; i++) {
        plan->step[i] = dpari_hx_step_of(size, i);
        plan->x.step[i].modes = plan->step[i].modes;
        plan->x.step[i].line = size->cut < 0 ? i : 0; /* ranks meet in only one step of each mode */
    }
    plan->forward = size->forward;
    plan->x.early = size->cut < 0 ? 0 : size->steps - size->forward - 1;
    return plan;
}

DPARI_API DPARI_COLD dpar_status dpari_hx_open(dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                               int32_t later, dpar_halo_plan **plan, dpar_why *why)
{
    dpar_halo_plan *x;
    dpari_hx_size size;
    void *memory = NULL;
    int64_t need = 0;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_halo_plan_make: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    if (desc && plan) {
        status = dpari_hx_prepare_plan(comm, desc, later, &size, &need, &memory, why);
    } else {
        status = dpari_wrong(why, "dpar_halo_plan_make: desc or plan is NULL");
    }
    status = dpari_agree_on(comm, status, "halo", dpari_hx_state, desc, why);
    if (status == DPAR_OK && !desc->ordered && !desc->shared) {
        status = dpari_hx_agree_on_order(comm, &size, why);
    }
    if (status == DPAR_OK) {
        x = dpari_hx_describe_plan(comm, desc, &size, memory, need);
        x->owned = desc->memory == NULL ? memory : NULL;
        dpari_hx_own_arrays(x, later);
        dpari_hx_mark_peers(x);
        status = dpari_hx_plan(x, why);
    }
    if (status != DPAR_OK) {
        return dpari_object_failed(status, desc ? desc->memory : NULL, memory, need, why);
    }
    *plan = x;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_plan_make(dpar_comm *comm,
                                                    const dpar_halo_plan_desc *desc,
                                                    dpar_halo_plan **plan, dpar_why *why)
{
    return dpari_hx_open(comm, desc, 0, plan, why);
}

DPARI_INTERNAL void *dpari_hx_bound(const dpar_halo_plan *plan, int32_t field)
{
    return plan->field[field].data;
}

DPARI_INTERNAL DPARI_COLD void dpari_hx_release(dpar_halo_plan *plan)
{
    dpari_object_release(plan->owned);
}

/* Returns words for a message that name the arrays that are not NULL. */
static DPARI_COLD const char *dpari_hx_given(const void *data, const void *halos)
{
    if (data && halos) {
        return "data and halos";
    }
    if (data) {
        return "data only";
    }
    return halos ? "halos only" : "no array";
}

DPAR_API DPARI_COLD dpar_status dpar_halo_plan_bind(dpar_halo_plan *plan, int32_t field, void *data,
                                                    void *halos)
{
    dpari_hx_array *array;
    int32_t s;
    if (!plan) {
        return DPAR_E_ARG;
    }
    if (field < 0 || field >= plan->fields) {
        return dpari_comm_wrong(
            plan->comm, "dpar_halo_plan_bind: field %d does not exist (the plan has 0 to %d)",
            field, plan->fields - 1);
    }
    if (dpari_exchange_is_over(&plan->x, "dpar_halo_plan_bind: ") != DPAR_OK) {
        return DPAR_E_ARG;
    }
    if ((data != NULL) != (plan->part[2 * field] != NULL) ||
        (halos != NULL) != (plan->part[2 * field + 1] != NULL)) {
        return dpari_comm_wrong(plan->comm,
                                "dpar_halo_plan_bind: field %d was planned with %s, but this call "
                                "passes %s",
                                field,
                                dpari_hx_given(plan->part[2 * field], plan->part[2 * field + 1]),
                                dpari_hx_given(data, halos));
    }
    array = &plan->array[field];
    if ((array->told.reach[0] && dpari_ref(plan->x.world, data, 1) == 0) ||
        (array->told.reach[1] && dpari_ref(plan->x.world, halos, 1) == 0)) {
        return dpari_comm_wrong(
            plan->comm,
            "dpar_halo_plan_bind: field %d was planned in memory of dpar_comm_alloc, where peers "
            "may read it, but the new array is not in such memory",
            field);
    }
    plan->field[field].data = data;
    plan->field[field].compact_halo = halos;
    dpari_hx_bind_field(plan, field);
    if (!plan->bound) {
        plan->bound = 1;
        dpari_hx_gather_all(plan);
    }
    plan->version++;
    for (s = 0; s < plan->x.steps && plan->x.world; s++) {
        plan->x.line[s].place[DPARI_HX_VERSION] = plan->version;
    }
    return DPAR_OK;
}

/* ==== halo/halo_tune.c ==== */

/* Finds the fastest method of an exchange by measuring all possible methods. Ranks compare the
 * medians of the slowest rank, so that all choose the same method. It implements
 * dpar_halo_plan_tune. */

/* ---- choosing -------------------------------------------------------------------------------- */

enum {
    DPARI_HX_SAMPLES = 9, /* odd, so that one of them is the median */
    DPARI_HX_TRIES = 12   /* the methods that dpari_hx_try lists */
};
#define DPARI_HX_TUNE_FOR 20e-3 /* seconds to measure each method */

/* Measures a plan. Returns the median time of an exchange on the slowest rank, or 0 and an error in
 * *status. Two more samples are taken before those that count. The first, of one exchange, only
 * touches the memory. The second, of three exchanges, determines the number of exchanges in a
 * sample. */
static double dpari_hx_time(dpar_halo_plan *plan, dpar_status *status)
{
    double sample[DPARI_HX_SAMPLES], mine, slowest = 0.0;
    int64_t times = 1, k;
    int32_t i, j;
    for (i = -2; i < DPARI_HX_SAMPLES && *status == DPAR_OK; i++) {
        *status = dpar_barrier(plan->comm, NULL);
        mine = dpari_os_now();
        for (k = 0; k < times && *status == DPAR_OK; k++) {
            *status = dpar_halo_plan_exchange(plan);
        }
        mine = (dpari_os_now() - mine) / (double)times;
        if (*status == DPAR_OK) {
            *status = dpar_all_reduce(plan->comm, &mine, &slowest, 1, DPAR_F64, DPAR_MAX, NULL);
        }
        if (i == -2) {
            times = 3;
            continue;
        }
        if (i == -1) {
            times = 1 + (int64_t)(DPARI_HX_TUNE_FOR / (double)DPARI_HX_SAMPLES / (slowest + 1e-7));
            continue;
        }
        for (j = i; j > 0 && sample[j - 1] > slowest; j--) {
            sample[j] = sample[j - 1];
        }
        sample[j] = slowest;
    }
    return *status == DPAR_OK ? sample[DPARI_HX_SAMPLES / 2] : 0.0;
}

/* Sets the n-th method to try: messages, packed, direct with long runs of at least 64, 16 or 256
 * bytes, and automatic. Each is tried unordered if n is even, and ordered if it is odd. */
static void dpari_hx_try(dpar_halo_plan_desc *desc, int32_t n)
{
    static const int32_t method[DPARI_HX_TRIES / 2] = {DPAR_HALO_MESSAGES, DPAR_HALO_PACKED,
                                                       DPAR_HALO_DIRECT,   DPAR_HALO_DIRECT,
                                                       DPAR_HALO_DIRECT,   DPAR_HALO_AUTO};
    static const int32_t run_bytes[DPARI_HX_TRIES / 2] = {0, 0, 64, 16, 256, 0};
    desc->ordered = n & 1;
    desc->method = method[n / 2];
    desc->run_bytes = run_bytes[n / 2];
}

/* True if all fields can be ordered. The fields have been checked. */
static int dpari_hx_all_order(const dpar_halo_plan_desc *desc)
{
    int32_t k;
    for (k = 0; k < desc->field_count; k++) {
        if (!dpari_hx_can_order(&desc->field[k])) {
            return 0;
        }
    }
    return !desc->shared;
}

/* Ties are decided by the order of tries: a method replaces the best one only if it is faster. */
DPAR_API DPARI_COLD dpar_status dpar_halo_plan_tune(dpar_comm *comm, dpar_halo_plan_desc *options,
                                                    double *seconds, dpar_why *why)
{
    dpar_halo_plan_desc desc, best;
    double least = 0.0;
    dpar_status status = DPAR_OK;
    dpar_why said;
    int32_t i;
    int can_order = 0;
    dpari_zero(&desc, sizeof desc);
    if (options) {
        desc = *options;
    }
    best = desc;
    desc.timers = 0;
    desc.memory = NULL;
    desc.bytes = 0;
    if (!comm) {
        return dpari_wrong(why, "dpar_halo_plan_tune: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    for (i = 0; i < DPARI_HX_TRIES && status == DPAR_OK; i++) {
        dpar_halo_plan *plan = NULL;
        double took;
        dpari_hx_try(&desc, i);
        /* All ranks must try a method, or none. Some ranks may be unable to order their fields,
         * because arrays may be compact on some ranks only. They fail here with DPAR_E_NONE. */
        said.text[0] = 0;
        if (!options) {
            status = dpari_wrong(&said, "dpar_halo_plan_tune: desc is NULL");
        } else if (desc.ordered && !can_order) {
            status = DPAR_E_NONE;
        }
        status = dpari_agree(comm, status, &said);
        if (status == DPAR_E_NONE) {
            status = DPAR_OK;
            continue;
        }
        if (status != DPAR_OK) {
            return dpari_repeat(status, why, said.text);
        }
        status = dpar_halo_plan_make(comm, &desc, &plan, why);
        if (status != DPAR_OK) {
            return status;
        }
        if (i == 0) {
            can_order = dpari_hx_all_order(&desc); /* make has checked the fields */
        }
        took = dpari_hx_time(plan, &status);
        if (status == DPAR_OK && (least <= 0.0 || took < least)) {
            best.method = desc.method;
            best.ordered = desc.ordered;
            best.run_bytes = desc.run_bytes;
            least = took;
        }
        if (status == DPAR_OK) {
            status = dpar_halo_plan_free(plan);
        } else {
            (void)dpar_halo_plan_free(plan);
        }
    }
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    *options = best;
    if (seconds) {
        *seconds = least;
    }
    return DPAR_OK;
}

/* ==== halo/grid_object.c ==== */

/* Implements the handle of a grid, and allocates the memory of its data. */

DPARI_INTERNAL dpari_gx *dpari_gx_of(dpar_grid *grid)
{
    return grid && grid->comm ? (dpari_gx *)(void *)grid : NULL;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_say(dpari_gx *grid, dpar_status status,
                                                   const dpar_why *why)
{
    dpar_comm *comm = grid->head.comm;
    if (status == DPAR_OK) {
        return status;
    }
    return comm->status < 0 ? comm->status : dpari_repeat(status, &comm->why, why->text);
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_release(dpari_gx *grid)
{
    dpari_os_unmap(grid->cuts, grid->cut_bytes);
    dpari_os_unmap(grid, grid->bytes);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_new(const dpar_grid_desc *desc, dpari_gx **grid,
                                                   dpar_why *why)
{
    int64_t bytes = (int64_t)sizeof(dpari_gx);
    int64_t *room;
    dpari_gx *made;
    int32_t d, i;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        if (desc->cuts[d] && desc->parts[d] > 0) {
            bytes += 8 * ((int64_t)desc->parts[d] + 1);
        }
    }
    made = (dpari_gx *)dpari_os_pages(bytes);
    *grid = made;
    if (!made) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "grid: %ld bytes cannot be allocated (is ulimit -v too small?)", bytes);
    }
    made->desc = *desc;
    made->bytes = bytes;
    room = (int64_t *)(void *)(made + 1);
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        if (desc->cuts[d] && desc->parts[d] > 0) {
            for (i = 0; i <= desc->parts[d]; i++) {
                room[i] = desc->cuts[d][i];
            }
            made->desc.cuts[d] = room;
            room += i;
        }
    }
    return DPAR_OK;
}

/* ==== halo/grid_cut.c ==== */

/* Checks the description of a grid, and cuts its cells into one block per rank.
 *
 * Everything here is local. The ranks compare the description afterwards (dpari_gx_state), so that
 * a rank that finds a fault does not leave the others waiting. */

/* Checks the fields of the description that concern one dim: cells, halo, ends and cuts. */
static DPARI_COLD dpar_status dpari_gx_check_dim(const dpari_gx *grid, int32_t d, dpar_why *why)
{
    const dpar_grid_desc *desc = &grid->desc;
    const int64_t most = INT64_C(1) << 60; /* the limit of dpar_halo_check */
    int32_t part;
    if (desc->cells[d] < 1) {
        return dpari_wrong(why, "grid: desc.cells[%d] is %ld; it must be at least 1", d,
                           desc->cells[d]);
    }
    if (grid->low[d] < 0 || grid->high[d] < 0 || grid->low[d] > most || grid->high[d] > most) {
        return dpari_wrong(
            why, "grid: dim %d: the halo is %ld wide below and %ld above; each must be 0 to 2^60",
            d, grid->low[d], grid->high[d]);
    }
    if (!dpari_is_flag(desc->periodic[d]) || desc->mirror_low[d] < 0 || desc->mirror_high[d] < 0 ||
        desc->mirror_low[d] > DPAR_GRID_MIRROR_CELL ||
        desc->mirror_high[d] > DPAR_GRID_MIRROR_CELL ||
        (desc->periodic[d] && (desc->mirror_low[d] | desc->mirror_high[d]) != 0)) {
        return dpari_wrong(
            why,
            "grid: dim %d: periodic is %d (0 or 1 allowed), mirror_low %d and mirror_high "
            "%d (0 to 2 allowed, only 0 if periodic)",
            d, desc->periodic[d], desc->mirror_low[d], desc->mirror_high[d]);
    }
    if (!desc->cuts[d]) {
        return DPAR_OK;
    }
    if (desc->parts[d] < 1) {
        return dpari_wrong(
            why,
            "grid: desc.cuts[%d] is set, but desc.parts[%d] is %d; it must be the number "
            "of parts",
            d, d, desc->parts[d]);
    }
    for (part = 0; part < desc->parts[d]; part++) {
        if (desc->cuts[d][part + 1] < desc->cuts[d][part]) {
            return dpari_wrong(
                why,
                "grid: desc.cuts[%d] must not descend, but part %d begins at %ld and ends at %ld",
                d, part, desc->cuts[d][part], desc->cuts[d][part + 1]);
        }
    }
    return DPAR_OK;
}

/* Checks the description, without the other ranks, and sets the halo's width on each side. */
static DPARI_COLD dpar_status dpari_gx_check(dpari_gx *grid, dpar_why *why)
{
    const dpar_grid_desc *desc = &grid->desc;
    int32_t d;
    if (desc->dims < 1 || desc->dims > DPAR_MAX_DIMS) {
        return dpari_wrong(why, "grid: desc.dims is %d; it must be 1 to %d", desc->dims,
                           (int32_t)DPAR_MAX_DIMS);
    }
    if (!dpari_is_flag(desc->star) || !dpari_is_flag(desc->order) || !dpari_is_flag(desc->check) ||
        !dpari_is_flag(desc->owns_comm)) {
        return dpari_wrong(
            why, "grid: desc.star is %d, order %d, check %d, owns_comm %d; each must be 0 or 1",
            desc->star, desc->order, desc->check, desc->owns_comm);
    }
    if (!dpari_is_flag(desc->exchange_walls) || !dpari_is_flag(desc->array_start)) {
        return dpari_wrong(
            why, "grid: desc.exchange_walls is %d and array_start %d; each must be 0 or 1",
            desc->exchange_walls, desc->array_start);
    }
    if (desc->steps < 0 || (desc->steps > 1 && desc->star)) {
        return dpari_wrong(
            why,
            "grid: desc.steps is %d, star %d; steps must be at least 0, and star 0 if "
            "it is above 1, because the second step reads edges and corners",
            desc->steps, desc->star);
    }
    grid->steps = (int32_t)dpari_most(desc->steps, 1);
    for (d = 0; d < desc->dims; d++) {
        dpar_status status;
        grid->low[d] = desc->halo_low[d] != 0 ? desc->halo_low[d] : desc->halo;
        grid->high[d] = desc->halo_high[d] != 0 ? desc->halo_high[d] : desc->halo;
        grid->widest = dpari_most(grid->widest, dpari_most(grid->low[d], grid->high[d]));
        status = dpari_gx_check_dim(grid, d, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}

/* Chooses the number of parts of each dim. Numbers of the caller may exceed the cells, so that some
 * parts have none. If two choices are nearly equal, it prefers to cut
 * earlier dims, whose halos have longer rows. Dims without a halo are not cut, unless the other
 * dims have too few cells for all ranks. */
static DPARI_COLD dpar_status dpari_gx_parts(dpari_gx *grid, int32_t ranks, dpar_why *why)
{
    dpar_cart_choose_desc cart;
    dpar_status status;
    int32_t d, whole = 0;
    dpari_zero(&cart, sizeof cart);
    cart.ranks = ranks;
    cart.dims = grid->desc.dims;
    for (d = 0; d < grid->desc.dims; d++) {
        const int64_t width = grid->low[d] + grid->high[d];
        cart.cells[d] = dpari_most(grid->desc.cells[d], grid->desc.parts[d]);
        cart.weight[d] = 64 * dpari_least(width, 1024) + d + 1;
        cart.periodic |= (uint32_t)grid->desc.periodic[d] << d;
        grid->head.parts[d] =
            grid->desc.parts[d] == 0 && width == 0 && grid->widest > 0 ? 1 : grid->desc.parts[d];
        whole |= grid->head.parts[d] != grid->desc.parts[d];
    }
    status = dpar_cart_choose_parts(&cart, grid->head.parts, NULL, why);
    if (status != DPAR_OK && whole) {
        for (d = 0; d < grid->desc.dims; d++) {
            grid->head.parts[d] = grid->desc.parts[d];
        }
        status = dpar_cart_choose_parts(&cart, grid->head.parts, NULL, why);
    }
    return status;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_check_mirrors(const dpari_gx *grid,
                                                             const int32_t *low,
                                                             const int32_t *high, dpar_why *why)
{
    int32_t d;
    if (dpari_gx_is_empty(grid)) {
        return DPAR_OK;
    }
    for (d = 0; d < grid->head.dims; d++) {
        const int64_t n = grid->head.cells[d];
        const int64_t first = grid->head.first[d];
        const int64_t end = first + grid->head.count[d];
        const int64_t below = grid->low[d] - first; /* halo cells beyond the low end */
        const int64_t above = end + grid->high[d] - n;
        if ((low[d] && below > 0 && below + low[d] - 1 > dpari_least(n, end + grid->high[d])) ||
            (high[d] && above > 0 &&
             above + high[d] - 1 > n - dpari_most(0, first - grid->low[d]))) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "grid: dim %d: a mirror needs more cells than this rank has: it owns %ld, and "
                "its halo is %ld wide below and %ld above",
                d, grid->head.count[d], grid->low[d], grid->high[d]);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_gx_cells_of_part(const dpari_gx *grid, int32_t d,
                                                         int32_t part, int64_t *first)
{
    const int64_t *cuts = grid->desc.cuts[d];
    int64_t count = 0;
    if (cuts) {
        *first = cuts[part];
        return cuts[part + 1] - cuts[part];
    }
    (void)dpar_split_range(DPAR_SPLIT_EVEN, grid->desc.cells[d], grid->head.parts[d], part, first,
                           &count);
    return count;
}

DPARI_INTERNAL DPARI_COLD int dpari_gx_is_empty(const dpari_gx *grid)
{
    int32_t d;
    for (d = 0; d < grid->head.dims; d++) {
        if (grid->head.count[d] == 0) {
            return 1;
        }
    }
    return 0;
}

/* Makes grid->halo, the halo of the grid's cells, which the mesh distributes. */
static DPARI_COLD dpar_status dpari_gx_cut_halo(dpari_gx *grid, const dpar_mesh *mesh,
                                                dpar_why *why)
{
    dpar_placement placement[DPAR_MAX_DIMS];
    dpar_halo *halo = &grid->halo;
    dpar_status status;
    int32_t d;
    dpari_zero(halo, sizeof *halo);
    for (d = 0; d < grid->desc.dims; d++) {
        placement[d] =
            dpar_shard_by(d, grid->desc.cuts[d] ? DPAR_SPLIT_RAGGED : DPAR_SPLIT_EVEN, 0);
        placement[d].cuts = grid->desc.cuts[d];
        halo->low[d] = grid->low[d];
        halo->high[d] = grid->high[d];
        halo->periodic |= (uint32_t)grid->desc.periodic[d] << d;
    }
    halo->shape = grid->desc.star ? DPAR_STENCIL_STAR : DPAR_STENCIL_BOX;
    status = dpar_layout_init(&halo->grid, mesh, grid->desc.dims, grid->desc.cells, placement, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_halo_check(halo, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_cut(dpari_gx *grid, const dpar_comm *comm,
                                                   dpar_why *why)
{
    const char *axes = &"f e d c b a"[2 * (DPAR_MAX_DIMS - grid->desc.dims)];
    dpar_mesh mesh;
    int64_t step = 1;
    int32_t d;
    dpar_status status =
        dpar_mesh_init(&mesh, axes, grid->head.parts, grid->desc.order, comm->size, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_gx_cut_halo(grid, &mesh, why);
    if (status != DPAR_OK) {
        return status;
    }
    (void)dpar_mesh_coords(&mesh, comm->rank, grid->head.coord);
    grid->head.dims = grid->desc.dims;
    for (d = grid->desc.dims - 1; d >= 0; d--) {
        const int64_t most = INT64_C(1) << 56;
        const int64_t count =
            dpari_gx_cells_of_part(grid, d, grid->head.coord[d], &grid->head.first[d]);
        const int exchanges = grid->head.parts[d] > 1 || grid->desc.periodic[d];
        if (exchanges && (grid->low[d] % grid->steps != 0 || grid->high[d] % grid->steps != 0)) {
            return dpari_say(DPAR_E_DIVIDE, why,
                             "grid: dim %d: desc.steps is %d; it must divide the halo's widths, "
                             "%ld below and %ld above",
                             d, grid->steps, grid->low[d], grid->high[d]);
        }
        grid->head.cells[d] = grid->desc.cells[d];
        grid->head.count[d] = count;
        grid->head.stride[d] = step;
        if (!dpari_mul(step, grid->low[d] + count + grid->high[d], &step) || step > most) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "grid: the array of rank %d would have more than 2^56 points, with %ld own "
                "cells in dim %d",
                comm->rank, count, d);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_cut_cells(dpari_gx *grid, const dpar_comm *comm,
                                                         dpar_why *why)
{
    dpar_status status = dpari_gx_check(grid, why);
    if (status == DPAR_OK) {
        status = dpari_gx_parts(grid, comm->size, why);
    }
    if (status == DPAR_OK) {
        status = dpari_gx_cut(grid, comm, why);
    }
    return status;
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_state(dpari_facts *facts, const void *given)
{
    const dpar_grid_desc *desc = (const dpar_grid_desc *)given;
    int32_t d, p;
    dpari_fact(facts, "dims", 0, desc->dims);
    dpari_fact(facts, "star", 0, desc->star);
    dpari_fact(facts, "order", 0, desc->order);
    dpari_fact(facts, "check", 0, desc->check);
    dpari_fact(facts, "halo", 0, desc->halo);
    dpari_fact(facts, "steps", 0, desc->steps);
    dpari_fact_type(facts, "type", 0, desc->type);
    dpari_fact(facts, "owns_comm", 0, desc->owns_comm);
    dpari_fact(facts, "exchange_walls", 0, desc->exchange_walls);
    for (d = 0; d < desc->dims; d++) {
        uint64_t h = 1;
        dpari_fact(facts, "cells[#]", d, desc->cells[d]);
        dpari_fact(facts, "halo_low[#]", d, desc->halo_low[d]);
        dpari_fact(facts, "halo_high[#]", d, desc->halo_high[d]);
        dpari_fact(facts, "periodic[#]", d, desc->periodic[d]);
        dpari_fact(facts, "mirror_low[#]", d, desc->mirror_low[d]);
        dpari_fact(facts, "mirror_high[#]", d, desc->mirror_high[d]);
        dpari_fact(facts, "parts[#]", d, desc->parts[d]);
        for (p = 0; desc->cuts[d] && p <= desc->parts[d]; p++) {
            h = dpari_hash(h, desc->cuts[d][p]);
        }
        dpari_fact_hash(facts, "the list of cuts[#]", d, h);
    }
}

/* ==== halo/grid_expected.c ==== */

/* Cuts a grid where the caller's code cuts it.
 *
 * Only rank r knows how many cells rank r expects. All ranks therefore gather these numbers and
 * compute the same cuts from them: a part of a dim has the number that its ranks expect. The number
 * of parts of a dim, if the caller has not set it, follows from the sum of these numbers. All of
 * this is only done if some rank has another number than it expects, because codes that cut as dpar
 * does are the usual case. */

/* True if this rank expects another number of cells than it has. */
static DPARI_COLD int32_t dpari_gx_is_unexpected(const dpari_gx *grid)
{
    int32_t d;
    for (d = 0; d < grid->head.dims; d++) {
        if (grid->desc.expected_count[d] != 0 &&
            grid->desc.expected_count[d] != grid->head.count[d]) {
            return 1;
        }
    }
    return 0;
}

/* Returns the first rank that expects another number of cells in dim d than it has, and sets *count
 * to what it has. Returns -1 if there is none. expected: [ranks][DPAR_MAX_DIMS]; 0 is unknown. */
static DPARI_COLD int32_t dpari_gx_first_unexpected(const dpari_gx *grid, int32_t d,
                                                    const int64_t *expected, int64_t *count)
{
    const dpar_mesh *mesh = &grid->halo.grid.mesh;
    int32_t coord[DPAR_MAX_DIMS] = {0};
    int64_t first;
    int32_t r;
    for (r = 0; r < mesh->size; r++) {
        const int64_t wanted = expected[r * DPAR_MAX_DIMS + d];
        (void)dpar_mesh_coords(mesh, r, coord);
        *count = dpari_gx_cells_of_part(grid, d, coord[d], &first);
        if (wanted != 0 && wanted != *count) {
            return r;
        }
    }
    return -1;
}

/* Reports that no cut fits the expected numbers of dim d; `reason` says why. */
static DPARI_COLD dpar_status dpari_gx_refuse_expected(const dpari_gx *grid, int32_t d,
                                                       const int64_t *expected, const char *reason,
                                                       dpar_why *why)
{
    int64_t count = 0;
    const int32_t rank = dpari_gx_first_unexpected(grid, d, expected, &count);
    return dpari_wrong(why,
                       "grid: rank %d has %ld cells in dim %d, but expected_count is %ld, and no "
                       "cut fits: %s",
                       rank, count, d, expected[rank * DPAR_MAX_DIMS + d], reason);
}

/* Sets cuts[] of dim d, which are zeros, to those that the ranks expect. */
static DPARI_COLD dpar_status dpari_gx_expected_cuts(const dpari_gx *grid, int32_t d,
                                                     const int64_t *expected, int64_t *cuts,
                                                     dpar_why *why)
{
    const dpar_mesh *mesh = &grid->halo.grid.mesh;
    const int64_t cells = grid->desc.cells[d];
    int32_t coord[DPAR_MAX_DIMS] = {0};
    int32_t p, r;
    if (grid->desc.cuts[d]) {
        return dpari_gx_refuse_expected(grid, d, expected, "desc.cuts is set", why);
    }
    for (r = 0; r < mesh->size; r++) {
        const int64_t count = expected[r * DPAR_MAX_DIMS + d];
        int64_t *part;
        (void)dpar_mesh_coords(mesh, r, coord);
        part = &cuts[coord[d] + 1];
        if (count < 0 || count > cells) {
            return dpari_gx_refuse_expected(grid, d, expected, "a number is not 0 to cells", why);
        }
        if (count != 0 && *part != 0 && *part != count) {
            return dpari_gx_refuse_expected(
                grid, d, expected,
                "ranks of one part have different numbers (are dims or ranks in another order?)",
                why);
        }
        *part = dpari_most(*part, count);
    }
    for (p = 0; p < grid->head.parts[d]; p++) {
        cuts[p + 1] += cuts[p];
        if (cuts[p + 1] > cells) {
            return dpari_gx_refuse_expected(grid, d, expected,
                                            "the numbers of all parts exceed the cells", why);
        }
    }
    if (cuts[p] != cells) {
        return dpari_gx_refuse_expected(grid, d, expected,
                                        "the numbers of all parts are fewer than the cells", why);
    }
    return DPAR_OK;
}

/* Sets the parts of each dim where desc.parts is 0, and cuts the grid again. The numbers of all
 * ranks add up to the cells of the dim once for each of the rows of ranks along it. */
static DPARI_COLD dpar_status dpari_gx_expected_parts(dpari_gx *grid, const dpar_comm *comm,
                                                      const int64_t *expected, dpar_why *why)
{
    int32_t d, r;
    for (d = 0; d < grid->head.dims; d++) {
        const int64_t cells = grid->desc.cells[d];
        int64_t sum = 0, all;
        if (grid->desc.parts[d] != 0 || !dpari_mul(cells, comm->size, &all)) {
            continue;
        }
        for (r = 0; r < comm->size; r++) {
            sum += dpari_most(0, dpari_least(expected[r * DPAR_MAX_DIMS + d], cells));
        }
        if (sum >= cells && all % sum == 0) {
            grid->desc.parts[d] = (int32_t)(all / sum);
        }
    }
    return dpari_gx_cut_cells(grid, comm, why);
}

/* Computes the cuts of all dims from the expected counts of all ranks, and cuts the grid again. */
static DPARI_COLD dpar_status dpari_gx_use_expected(dpari_gx *grid, const dpar_comm *comm,
                                                    const int64_t *expected, dpar_why *why)
{
    int64_t count, *cuts;
    int32_t d;
    dpar_status status = dpari_gx_expected_parts(grid, comm, expected, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (d = 0; d < grid->head.dims; d++) {
        grid->cut_bytes += 8 * ((int64_t)grid->head.parts[d] + 1);
    }
    cuts = (int64_t *)dpari_os_pages(grid->cut_bytes);
    grid->cuts = cuts;
    if (!cuts) {
        return dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be allocated",
                         grid->cut_bytes);
    }
    for (d = 0; d < grid->head.dims; d++) {
        if (dpari_gx_first_unexpected(grid, d, expected, &count) >= 0) {
            status = dpari_gx_expected_cuts(grid, d, expected, cuts, why);
            if (status != DPAR_OK) {
                return status;
            }
            grid->desc.cuts[d] = cuts;
        }
        cuts += grid->head.parts[d] + 1;
    }
    return dpari_gx_cut(grid, comm, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_cut_as_expected(dpari_gx *grid, dpar_comm *comm,
                                                               dpar_why *why)
{
    const int64_t bytes = comm->size * (int64_t)sizeof grid->desc.expected_count;
    int64_t *expected = NULL;
    dpar_status status;
    int32_t other = dpari_gx_is_unexpected(grid), others = 0;
    status = dpar_all_reduce(comm, &other, &others, 1, DPAR_I32, DPAR_MAX, NULL);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    if (others == 0) {
        return DPAR_OK;
    }
    expected = (int64_t *)dpari_os_pages(bytes);
    if (!expected) {
        status = dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be allocated", bytes);
    }
    status = dpari_agree(comm, status, why);
    if (status == DPAR_OK) {
        status = dpar_all_gather(comm, grid->desc.expected_count, expected, DPAR_MAX_DIMS, DPAR_I64,
                                 NULL);
        if (status == DPAR_OK) {
            status = dpari_gx_use_expected(grid, comm, expected, why);
        } else {
            status = dpari_repeat(status, why, comm->why.text);
        }
        status = dpari_agree(comm, status, why); /* the array of one rank may be too large */
    }
    dpari_os_unmap(expected, bytes);
    return status;
}

/* ==== halo/grid_shape.c ==== */

/* Computes where the points of an array are, from its type and its dpar_grid_field: the default
 * strides, the halo with the faces between cells, and the first and the last address. */

DPARI_INTERNAL int64_t dpari_gx_points(const dpari_gx *grid, const dpar_grid_field *field,
                                       int32_t d)
{
    return grid->low[d] + grid->head.count[d] + (field->location[d] != 0) + grid->high[d];
}

DPARI_INTERNAL int64_t dpari_gx_width(const dpari_gx *grid, int32_t depth, int32_t d, int side)
{
    const int64_t w = side ? grid->high[d] : grid->low[d];
    return depth > 0 ? dpari_least(w, depth) : w;
}

/* Checks type, components and points of an array. */
static DPARI_COLD dpar_status dpari_gx_check_field(const dpari_gx *grid, int32_t type,
                                                   const dpar_grid_field *field, dpar_why *why)
{
    uint32_t odd = 0;
    uint32_t none; /* bits that belong to no component */
    int32_t d, count;
    if (dpar_type_bytes(type) == 0) {
        return dpari_wrong(
            why, "grid: type %s (%d) is not allowed: its elements have no whole number of bytes",
            dpar_type_name(type), type);
    }
    if (field->components < 0 || field->components > 1 << 24 || field->order < 0 ||
        field->order > 1) {
        return dpari_wrong(
            why,
            "grid: field.components is %d (0 to 2^24 allowed) and field.order %d (0 or 1 "
            "allowed)",
            field->components, field->order);
    }
    count = field->components > 1 ? field->components : 1;
    none = count > 31 ? 0 : ~(uint32_t)0 << count;
    for (d = 0; d < grid->head.dims; d++) {
        if (field->location[d] < 0 || field->location[d] > 1) {
            return dpari_wrong(why,
                               "grid: field.location[%d] is %d; it must be 0 (cells) or 1 (faces)",
                               d, field->location[d]);
        }
        if (field->odd[d] & none) {
            return dpari_wrong(
                why,
                "grid: field.odd[%d] is %ld, which has bits beyond the number of components, %d", d,
                (int64_t)field->odd[d], count);
        }
        if (field->mirror_low[d] < 0 || field->mirror_low[d] > DPAR_GRID_MIRROR_OFF ||
            field->mirror_high[d] < 0 || field->mirror_high[d] > DPAR_GRID_MIRROR_OFF ||
            (grid->desc.periodic[d] && (field->mirror_low[d] | field->mirror_high[d]) != 0)) {
            return dpari_wrong(
                why,
                "grid: field.mirror_low[%d] is %d and mirror_high[%d] %d; they must be 0 to 3, "
                "and 0 in a periodic dim",
                d, field->mirror_low[d], d, field->mirror_high[d]);
        }
        odd |= field->odd[d];
    }
    if (odd != 0 && !dpari_type_can_reduce(type)) {
        return dpari_wrong(
            why,
            "grid: field.odd must be 0 for type %s, because %s has no sign to change at a "
            "mirror",
            dpar_type_name(type), dpar_type_name(type));
    }
    return DPAR_OK;
}

/* Checks the directions of the components. field: with resolved mirrors. */
static DPARI_COLD dpar_status dpari_gx_check_directions(const dpari_gx *grid,
                                                        const dpar_grid_field *field, dpar_why *why)
{
    int32_t d, k;
    if (!field->direction) {
        return DPAR_OK;
    }
    if (field->components > DPARI_GX_DIRECTIONS) {
        return dpari_wrong(why,
                           "grid: field.direction is set, but components is %d; with directions it "
                           "must be 1 to %d",
                           field->components, (int32_t)DPARI_GX_DIRECTIONS);
    }
    for (d = 0; d < grid->head.dims; d++) {
        if (field->location[d] || field->mirror_low[d] || field->mirror_high[d]) {
            return dpari_wrong(why,
                               "grid: field.direction is set, but the field has faces or a mirror "
                               "in dim %d; set location 0 and DPAR_GRID_MIRROR_OFF",
                               d);
        }
        for (k = 0; k < field->components; k++) {
            const int8_t step = field->direction[k * grid->head.dims + d];
            if (step < -1 || step > 1) {
                return dpari_wrong(why,
                                   "grid: the direction of component %d in dim %d is %d; it must "
                                   "be -1, 0 or 1",
                                   k, d, (int32_t)step);
            }
        }
    }
    return DPAR_OK;
}

/* Returns the mirror of an array at an end of a dim: NONE, FACE or CELL. */
static DPARI_COLD int32_t dpari_gx_mirror_of(int32_t of_field, int32_t of_grid)
{
    if (of_field == DPAR_GRID_MIRROR_OFF) {
        return DPAR_GRID_MIRROR_NONE;
    }
    return of_field != DPAR_GRID_MIRROR_NONE ? of_field : of_grid;
}

/* Sets halo, components, mirrors and strides of an array's shape, with the defaults that the field
 * leaves open. */
static DPARI_COLD void dpari_gx_describe_points(const dpari_gx *grid, const dpar_grid_field *field,
                                                dpari_gx_shape *shape)
{
    int64_t step;
    int32_t d, k, dense = 1;
    shape->field = *field;
    shape->field.components = field->components > 0 ? field->components : 1;
    shape->halo = grid->halo;
    step = field->component_stride != 0 ? 1 : shape->field.components;
    shape->field.component_stride = field->component_stride != 0 ? field->component_stride : 1;
    for (d = 0; d < grid->head.dims; d++) {
        dense = dense && field->stride[d] == 0;
        shape->field.mirror_low[d] =
            dpari_gx_mirror_of(field->mirror_low[d], grid->desc.mirror_low[d]);
        shape->field.mirror_high[d] =
            dpari_gx_mirror_of(field->mirror_high[d], grid->desc.mirror_high[d]);
        shape->halo.points[d] = field->location[d] ? DPAR_HALO_AT_LOW_FACES : DPAR_HALO_AT_CELLS;
        if (field->location[d]) {
            /* The upper outer face is owned by the neighbour. Points next to it in another dim are
             * then corners of the halo, which a star would not exchange. */
            shape->halo.high[d]++;
            shape->halo.shape = DPAR_STENCIL_BOX;
        }
    }
    if (!dense) {
        return;
    }
    for (k = 0; k < grid->head.dims; k++) {
        d = field->order == DPAR_ORDER_FIRST_FASTEST ? k : grid->head.dims - 1 - k;
        shape->field.stride[d] = step;
        if (!dpari_mul(step, dpari_gx_points(grid, field, d), &step)) {
            step = INT64_MAX; /* dpari_gx_span rejects it */
        }
    }
}

/* Computes shape->low, shape->high and shape->origin. Returns 0, or 1 + the dim whose stride
 * reaches further than 2^57 bytes, where dim number `dims` means the components. */
static DPARI_COLD int32_t dpari_gx_span(const dpari_gx *grid, dpari_gx_shape *shape)
{
    const int64_t most = INT64_C(1) << 57;
    const int64_t bytes = dpar_type_bytes(shape->type);
    int64_t low = 0, high = 1, origin = 0; /* in elements */
    int32_t d;
    for (d = 0; d <= grid->head.dims; d++) {
        const int comps = d == grid->head.dims;
        const int64_t step = comps ? shape->field.component_stride : shape->field.stride[d];
        const int64_t below = comps ? 0 : grid->low[d];
        const int64_t points = /* 0 for a rank without cells */
            comps ? shape->field.components : dpari_gx_points(grid, &shape->field, d);
        const int64_t above = dpari_most(points - 1 - below, 0);
        int64_t a, b, size;
        if (step < -most || step > most) {
            return d + 1;
        }
        size = dpari_size(step);
        if (!dpari_mul(size, below, &a) || !dpari_mul(size, above, &b) || a > most || b > most) {
            return d + 1;
        }
        low -= step < 0 ? b : a;
        high += step < 0 ? a : b;
        origin += step < 0 ? -a : a;
        if (high - low > most / bytes) {
            return d + 1;
        }
    }
    shape->origin = grid->desc.array_start ? origin * bytes : 0;
    shape->low = low * bytes + shape->origin;
    shape->high = high * bytes + shape->origin;
    return 0;
}

/* Returns the number of points in a dim that are own or filled by exchanges and mirrors. Points
 * beyond open ends need no memory. */
static DPARI_COLD int64_t dpari_gx_used_points(const dpari_gx *grid, const dpar_grid_field *field,
                                               int32_t d)
{
    const int64_t first = grid->head.first[d],
                  after = grid->head.cells[d] - first - grid->head.count[d];
    int64_t points = dpari_gx_points(grid, field, d);
    if (!grid->desc.periodic[d] && !field->mirror_low[d] && !grid->desc.exchange_walls) {
        points -= dpari_most(grid->low[d] - first, 0);
    }
    if (!grid->desc.periodic[d] && !field->mirror_high[d] && !grid->desc.exchange_walls) {
        points -= dpari_most(grid->high[d] - after, 0);
    }
    return points;
}

/* Checks that no two points have the same address. */
static DPARI_COLD dpar_status dpari_gx_check_apart(const dpari_gx *grid,
                                                   const dpari_gx_shape *shape, int32_t rank,
                                                   dpar_why *why)
{
    const int32_t dims = grid->head.dims;
    int64_t points[DPAR_MAX_DIMS + 1], stride[DPAR_MAX_DIMS + 1];
    int32_t d;
    if (dpari_gx_is_empty(grid)) {
        return DPAR_OK;
    }
    for (d = 0; d < dims; d++) {
        points[d] = dpari_gx_used_points(grid, &shape->field, d);
        stride[d] = shape->field.stride[d];
    }
    points[dims] = shape->field.components;
    stride[dims] = shape->field.component_stride;
    d = dpari_hx_overlapping_dim(stride, points, dims + 1);
    if (d < 0) {
        return DPAR_OK;
    }
    if (d == dims) {
        return dpari_wrong(
            why,
            "grid: rank %d has %ld components, %ld elements apart: several elements have "
            "the same address",
            rank, points[d], dpari_size(stride[d]));
    }
    return dpari_wrong(why,
                       "grid: rank %d has %ld points in dim %d, %ld elements apart: several points "
                       "have the same address",
                       rank, points[d], d, dpari_size(stride[d]));
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_make_shape(const dpari_gx *grid, int32_t type,
                                                          const dpar_grid_field *field,
                                                          int32_t rank, dpari_gx_shape *shape,
                                                          dpar_why *why)
{
    dpar_grid_field cells;
    dpar_status status;
    int32_t d;
    dpari_zero(&cells, sizeof cells);
    dpari_zero(shape, sizeof *shape);
    field = field ? field : &cells;
    status = dpari_gx_check_field(grid, type, field, why);
    if (status != DPAR_OK) {
        return status;
    }
    shape->type = type;
    dpari_gx_describe_points(grid, field, shape);
    status = dpari_gx_check_mirrors(grid, shape->field.mirror_low, shape->field.mirror_high, why);
    if (status == DPAR_OK) {
        status = dpari_gx_check_directions(grid, &shape->field, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    for (d = 0; field->direction && d < grid->head.dims; d++) {
        int32_t k;
        for (k = 0; k < shape->field.components; k++) {
            shape->direction[k][d] = field->direction[k * grid->head.dims + d];
        }
        shape->field.direction = &shape->direction[0][0];
    }
    d = dpari_gx_span(grid, shape) - 1;
    if (d < 0) {
        return dpari_gx_check_apart(grid, shape, rank, why);
    }
    if (d == grid->head.dims) {
        return dpari_say(DPAR_E_RANGE, why,
                         "grid: an array of rank %d reaches beyond 2^57 bytes: %d components, "
                         "%ld elements apart",
                         rank, shape->field.components, shape->field.component_stride);
    }
    return dpari_say(DPAR_E_RANGE, why,
                     "grid: an array of rank %d reaches beyond 2^57 bytes: %ld points in dim "
                     "%d, %ld elements apart",
                     rank, dpari_gx_points(grid, &shape->field, d), d, shape->field.stride[d]);
}

/* True if two shapes have elements of the same type at the same points, with the same strides. They
 * may differ in the number of components. */
static DPARI_COLD int dpari_gx_same_points(const dpari_gx *grid, const dpari_gx_shape *a,
                                           const dpari_gx_shape *b)
{
    int32_t d;
    if (a->type != b->type || a->field.component_stride != b->field.component_stride) {
        return 0;
    }
    for (d = 0; d < grid->head.dims; d++) {
        if (a->field.location[d] != b->field.location[d] ||
            a->field.stride[d] != b->field.stride[d]) {
            return 0;
        }
    }
    return 1;
}

DPARI_INTERNAL DPARI_COLD int dpari_gx_alike(const dpari_gx *grid, const dpari_gx_shape *a,
                                             const dpari_gx_shape *b)
{
    int32_t d, k;
    if (a->field.components != b->field.components || a->reach != b->reach) {
        return 0;
    }
    for (d = 0; d < grid->head.dims; d++) {
        if (a->field.odd[d] != b->field.odd[d] ||
            a->field.mirror_low[d] != b->field.mirror_low[d] ||
            a->field.mirror_high[d] != b->field.mirror_high[d]) {
            return 0;
        }
    }
    if (!a->field.direction != !b->field.direction) {
        return 0;
    }
    for (k = 0; a->field.direction && k < a->field.components; k++) {
        for (d = 0; d < grid->head.dims; d++) {
            if (a->direction[k][d] != b->direction[k][d]) {
                return 0;
            }
        }
    }
    return dpari_gx_same_points(grid, a, b);
}

DPARI_INTERNAL DPARI_COLD int dpari_gx_part_of(const dpari_gx *grid, const dpari_gx_shape *a,
                                               const dpari_gx_shape *b, int64_t apart)
{
    const int64_t step = a->field.component_stride * dpar_type_bytes(a->type);
    const int64_t most = dpari_most(a->field.components, b->field.components);
    return apart % step == 0 && apart / step < most && apart / step > -most &&
           dpari_gx_same_points(grid, a, b);
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_gx_owned(const dpari_gx_shape *shape, int32_t rank,
                                                 dpar_box *own)
{
    if (!dpar_halo_owned(&shape->halo, rank, own)) {
        return 0;
    }
    return dpar_box_volume(own) * shape->field.components;
}

/* ==== halo/grid_start.c ==== */

/* Recognises the address of a whole array in place of that of its first own point.
 *
 * This is the likeliest mistake of a first program: the exchange would write in front of the array
 * and into own cells. An address alone does not show it. But glibc's malloc keeps the size of a
 * block in the 8 bytes in front of it, where a correct address has an element of the array. If
 * these bytes are the size that malloc would have for the whole array, the address is the beginning
 * of the array. Read as a floating-point number such a size is below 1e-300 (f64), or a number
 * below 1e-37 before a zero (f32), which no halo cell contains. Integers may have any value, so
 * that arrays of other types are not checked. Neither are addresses at the beginning of a page,
 * because the page in front may not be mapped. Other allocators are not recognised. */

/* 1 if the 8 bytes in front of a block are those of glibc. A sanitizer has a malloc of its own,
 * finds this mistake itself, and does not allow that these bytes are read. */
#define DPARI_GX_KNOWS_MALLOC 0
#if defined(__GLIBC__) && UINTPTR_MAX > UINT32_MAX && !defined(__SANITIZE_ADDRESS__)
#undef DPARI_GX_KNOWS_MALLOC
#define DPARI_GX_KNOWS_MALLOC 1
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#undef DPARI_GX_KNOWS_MALLOC
#define DPARI_GX_KNOWS_MALLOC 0
#endif
#endif
#endif

#if DPARI_GX_KNOWS_MALLOC
/* True if some point in front of the first own point has memory, so that the 8 bytes in front of
 * it can be read. Points beyond walls may have none. */
static DPARI_COLD int dpari_gx_has_points_before(const dpari_gx *grid, const dpari_gx_shape *shape)
{
    int32_t d;
    for (d = 0; d < grid->head.dims; d++) {
        const int filled = grid->head.first[d] > 0 || grid->desc.periodic[d] ||
                           shape->field.mirror_low[d] || grid->desc.exchange_walls;
        if (grid->low[d] > 0 && filled && shape->field.stride[d] > 0) {
            return 1;
        }
    }
    return 0;
}

/* True if `size`, the word in front of a block, is that of a block of malloc with at least these
 * bytes. Above 32 MiB malloc gives a block pages of its own, with this bit set and all bits below
 * a page clear. Without this limit, f32 elements 2.0 and 0.0 would look like a block of 1 GiB. */
static DPARI_COLD int dpari_gx_is_block_size(uint64_t size, uint64_t bytes)
{
    const uint64_t largest = UINT64_C(1) << 25;
    const uint64_t whole = (bytes + 8 + 15) / 16 * 16;
    const uint64_t pages = (whole + 8 + 4095) / 4096 * 4096;
    if (size % 4096 == 2) {
        return size >= pages && size <= 2 * pages + 2;
    }
    size &= ~(uint64_t)7;
    return size >= whole && size <= 2 * whole && size <= largest;
}
#endif

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_check_start(const dpari_gx *grid,
                                                           const dpari_gx_shape *shape,
                                                           const void *at, const char *caller,
                                                           dpar_why *why)
{
#if DPARI_GX_KNOWS_MALLOC
    const int64_t bytes = shape->high - shape->low;
    uint64_t size;
    int32_t k;
    if ((shape->type != DPAR_F64 && shape->type != DPAR_F32) || grid->mem ||
        grid->desc.array_start || (uintptr_t)at % 16 != 0 || (uintptr_t)at % 4096 == 0 ||
        dpari_gx_is_empty(grid) || !dpari_gx_has_points_before(grid, shape)) {
        return DPAR_OK;
    }
    for (k = 0; k < 8; k++) {
        ((unsigned char *)&size)[k] = ((const unsigned char *)at)[k - 8];
    }
    if (dpari_gx_is_block_size(size, (uint64_t)bytes)) {
        return dpari_wrong(why,
                           "%s: rank %d passes the beginning of a block of malloc for the whole "
                           "array, %ld bytes; pass the address of the first own point, %ld bytes "
                           "further, or set desc.array_start",
                           caller, grid->head.comm->rank, bytes, -shape->low);
    }
#else
    (void)grid, (void)shape, (void)at, (void)caller, (void)why;
#endif
    return DPAR_OK;
}

/* ==== halo/grid_walls.c ==== */

/* Lets an exchange include the halo cells beyond walls.
 *
 * Codes that exchange one dim after the other fill the cells beyond a wall first. Their messages
 * along the wall then bring the neighbour's cells beyond the wall, too. The same result follows
 * from one exchange of a larger grid, in which the blocks next to a wall have the cells beyond it.
 */

DPARI_INTERNAL int dpari_gx_sends_beyond(const dpari_gx *grid, const dpar_grid_field *field,
                                         int32_t d, int side)
{
    if (!grid->desc.exchange_walls || grid->desc.periodic[d]) {
        return 0;
    }
    return (side ? field->mirror_high[d] : field->mirror_low[d]) == DPAR_GRID_MIRROR_NONE;
}

/* Sets the cuts of dim d in the larger grid, which has `below` and `above` cells more. They belong
 * to the first and the last part that has cells. Returns the number of cells. */
static DPARI_COLD int64_t dpari_gx_wider_cuts(const dpari_gx *grid, int32_t d, int64_t below,
                                              int64_t above, int64_t *cuts)
{
    const int64_t cells = grid->head.cells[d];
    int32_t p;
    for (p = 0; p < grid->head.parts[d]; p++) {
        const int64_t count = dpari_gx_cells_of_part(grid, d, p, &cuts[p]);
        const int64_t end = cuts[p] + count;
        cuts[p + 1] = end > 0 ? below + end : 0;
        if (end == cells) {
            cuts[p + 1] += above;
        }
        if (cuts[p] > 0) {
            cuts[p] += cuts[p] == cells ? below + above : below;
        }
    }
    return below + cells + above;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_make_walls(const dpari_gx *grid,
                                                          dpari_gx_shape *shape, dpar_why *why)
{
    const dpar_grid_field *field = &shape->field;
    dpar_placement placement[DPAR_MAX_DIMS];
    int64_t cells[DPAR_MAX_DIMS];
    int64_t bytes = (int64_t)sizeof *shape->walls;
    dpari_gx_walls *walls;
    int64_t *cuts;
    int32_t d;
    if (!grid->desc.exchange_walls) {
        return DPAR_OK;
    }
    for (d = 0; d < grid->head.dims; d++) {
        bytes += 8 * ((int64_t)grid->head.parts[d] + 1);
    }
    walls = (dpari_gx_walls *)dpari_os_pages(bytes);
    if (!walls) {
        return dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be allocated", bytes);
    }
    walls->bytes = bytes;
    walls->halo = shape->halo;
    cuts = (int64_t *)(void *)(walls + 1);
    for (d = 0; d < grid->head.dims; d++) {
        const int64_t below = dpari_gx_sends_beyond(grid, field, d, 0) ? grid->low[d] : 0;
        const int64_t above = dpari_gx_sends_beyond(grid, field, d, 1) ? grid->high[d] : 0;
        cells[d] = dpari_gx_wider_cuts(grid, d, below, above, cuts);
        placement[d] = dpar_shard_by(d, DPAR_SPLIT_RAGGED, 0);
        placement[d].cuts = cuts;
        walls->first[d] = grid->head.first[d] == 0 ? -below : 0;
        cuts += grid->head.parts[d] + 1;
    }
    shape->walls = walls;
    return dpar_layout_init(&walls->halo.grid, &grid->halo.grid.mesh, grid->head.dims, cells,
                            placement, why);
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_free_walls(dpari_gx_shape *shape)
{
    if (shape->walls) {
        dpari_os_unmap(shape->walls, shape->walls->bytes);
    }
}

DPARI_INTERNAL const dpar_halo *dpari_gx_sent(const dpari_gx_shape *shape)
{
    return shape->walls ? &shape->walls->halo : &shape->halo;
}

DPARI_INTERNAL DPARI_NOINLINE DPARI_COLD void
dpari_gx_field(const dpari_gx *grid, const dpari_gx_shape *shape, void *at, dpar_halo_field *field)
{
    int32_t d;
    field->halo = dpari_gx_sent(shape);
    field->type = shape->type;
    field->components = shape->field.components;
    field->component_stride = shape->field.component_stride;
    field->data = at;
    field->mem = grid->mem;
    for (d = 0; d < grid->head.dims; d++) {
        field->stride[d] = shape->field.stride[d];
        field->first[d] = grid->desc.array_start ? grid->low[d] : 0;
        field->first[d] += shape->walls ? shape->walls->first[d] : 0;
    }
}

/* ==== halo/grid_arrays.c ==== */

/* Keeps the table of the arrays that a grid knows, and finds them by address.
 *
 * Arrays of desc.type need not be in the table: any address that is neither known nor inside a
 * known array is taken for one of them. */

enum {
    DPARI_GX_SHAPES = 256, /* the most shapes; dpari_gx_find_shape compares them, a byte each */
    DPARI_GX_ROOM = 128    /* entries of the first table: a page of 4096 bytes */
};

/* ---- finding --------------------------------------------------------------------------------- */

DPARI_INTERNAL dpari_gx_array *dpari_gx_find(const dpari_gx *grid, const void *at)
{
    int32_t i;
    for (i = 0; i < grid->known; i++) {
        if (grid->array[i].at == at) {
            return &grid->array[i];
        }
    }
    return NULL;
}

DPARI_INTERNAL dpari_gx_array *
dpari_gx_overlapping(const dpari_gx *grid, const dpari_gx_shape *shape, void *at, int32_t *next)
{
    dpar_halo_field field[2];
    int64_t span[8];
    while (*next < grid->known) {
        dpari_gx_array *array = &grid->array[(*next)++];
        const int64_t apart = (int64_t)(uintptr_t)at - (int64_t)(uintptr_t)array->at;
        if (apart == 0 || apart + shape->low >= array->shape->high ||
            apart + shape->high <= array->shape->low ||
            dpari_gx_part_of(grid, shape, array->shape, apart)) {
            continue;
        }
        dpari_zero(field, sizeof field);
        dpari_gx_field(grid, array->shape, array->at, &field[0]);
        dpari_gx_field(grid, shape, at, &field[1]);
        if (dpari_hx_disjoint(field, 2, grid->head.comm->rank, span, NULL) != DPAR_OK) {
            return array;
        }
    }
    return NULL;
}

DPARI_INTERNAL const dpari_gx_array *dpari_gx_in_another(const dpari_gx *grid, void *at)
{
    int32_t next = 0;
    if (!grid->plain || !at) {
        return NULL;
    }
    return dpari_gx_overlapping(grid, grid->plain, at, &next);
}

DPARI_INTERNAL const dpari_gx_shape *dpari_gx_shape_at(const dpari_gx *grid, void *at)
{
    const dpari_gx_array *array = dpari_gx_find(grid, at);
    if (array) {
        return array->shape;
    }
    return at && !dpari_gx_in_another(grid, at) ? grid->plain : NULL;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Adds a shape to the list of known shapes. */
static DPARI_COLD void dpari_gx_add_shape(dpari_gx *grid, dpari_gx_shape *shape)
{
    shape->number = grid->shapes_known++;
    shape->next = grid->shapes;
    grid->shapes = shape;
}

/* Allocates a shape. */
static DPARI_COLD dpar_status dpari_gx_new_shape(dpari_gx_shape **shape, dpar_why *why)
{
    *shape = (dpari_gx_shape *)dpari_os_pages((int64_t)sizeof **shape);
    if (*shape) {
        return DPAR_OK;
    }
    return dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be allocated",
                     (int64_t)sizeof **shape);
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_free_shape(dpari_gx_shape *shape)
{
    if (shape) {
        dpari_gx_free_walls(shape);
    }
    dpari_os_unmap(shape, (int64_t)sizeof *shape);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_make_plain(dpari_gx *grid, int32_t rank,
                                                          dpar_why *why)
{
    dpari_gx_shape *plain;
    dpar_status status = dpari_gx_new_shape(&plain, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_gx_add_shape(grid, plain);
    grid->plain = plain;
    status = dpari_gx_make_shape(grid, grid->desc.type, NULL, rank, plain, why);
    plain->packed = 1;
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_gx_make_walls(grid, plain, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_find_shape(dpari_gx *grid,
                                                          const dpari_gx_shape *fresh,
                                                          dpari_gx_shape **known, dpar_why *why)
{
    uint8_t mine[DPARI_GX_SHAPES], all[DPARI_GX_SHAPES];
    dpari_gx_shape *shape;
    dpar_comm *comm = grid->head.comm;
    dpar_status status;
    dpari_zero(mine, sizeof mine);
    for (shape = grid->shapes; shape; shape = shape->next) {
        mine[shape->number] = (uint8_t)dpari_gx_alike(grid, shape, fresh);
    }
    status = dpar_all_reduce(comm, mine, all, grid->shapes_known, DPAR_U8, DPAR_MIN, NULL);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    shape = grid->shapes;
    while (shape && !all[shape->number]) {
        shape = shape->next;
    }
    *known = shape;
    if (shape || grid->shapes_known < DPARI_GX_SHAPES) { /* the same on all ranks */
        return DPAR_OK;
    }
    return dpari_say(DPAR_E_RANGE, why,
                     "grid: its arrays have more than %d different shapes (a shape is a type and a "
                     "field)",
                     (int32_t)DPARI_GX_SHAPES);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Returns the bytes of a table of n entries. */
static int64_t dpari_gx_table_bytes(int32_t n)
{
    return n * (int64_t)sizeof(dpari_gx_array);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_make_room(dpari_gx *grid, dpari_gx_shape **fresh,
                                                         dpar_why *why)
{
    const int32_t room = grid->room > 0 ? 2 * grid->room : DPARI_GX_ROOM;
    dpari_gx_array *wider;
    int32_t i;
    if (grid->known < grid->room) {
        return dpari_gx_new_shape(fresh, why);
    }
    wider = (dpari_gx_array *)dpari_os_pages(dpari_gx_table_bytes(room));
    if (!wider) {
        return dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be allocated",
                         dpari_gx_table_bytes(room));
    }
    for (i = 0; i < grid->known; i++) {
        wider[i] = grid->array[i];
    }
    dpari_os_unmap(grid->array, dpari_gx_table_bytes(grid->room));
    grid->array = wider;
    grid->room = room;
    return dpari_gx_new_shape(fresh, why);
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_remember(dpari_gx *grid, dpari_gx_shape *known,
                                                 dpari_gx_shape *fresh, void *at, void *memory)
{
    dpari_gx_array *array = dpari_gx_find(grid, at);
    if (known) {
        dpari_gx_free_shape(fresh);
    } else {
        dpari_gx_add_shape(grid, fresh);
    }
    if (!array) {
        array = &grid->array[grid->known++];
        array->at = at;
        array->memory = memory;
    }
    array->shape = known ? known : fresh;
    array->number = grid->arrays++;
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_forget(dpari_gx *grid, dpari_gx_array *array)
{
    *array = grid->array[--grid->known];
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_free_arrays(dpari_gx *grid, dpar_comm *comm)
{
    int32_t i;
    for (i = 0; i < grid->known; i++) {
        dpar_comm_release(comm, grid->array[i].memory);
    }
    dpari_os_unmap(grid->array, dpari_gx_table_bytes(grid->room));
    while (grid->shapes) {
        dpari_gx_shape *shape = grid->shapes;
        grid->shapes = shape->next;
        dpari_gx_free_shape(shape);
    }
}

/* ==== halo/grid_mirrors.c ==== */

/* Fills the halos at mirrors, after an exchange. Mirrors are lists of boxes, dim after dim, each of
 * which also reflects the halos that the dims before it have filled. */

/* Computes the box of points that the mirror at an end of dim d fills, counted from the first own
 * point. In dim d it spans the points beyond the end. In the other dims it spans all points that
 * have values: own points, points that exchanges fill, points beyond walls if these are exchanged,
 * and points that mirrors of dims before d have filled. Returns 0 if the box is empty. */
static DPARI_COLD int dpari_gx_beyond(const dpari_gx *grid, const dpari_gx_shape *shape,
                                      int32_t depth, int32_t d, int side, dpar_box *box)
{
    int32_t e;
    for (e = 0; e < grid->head.dims; e++) {
        const int64_t faces = shape->field.location[e] != 0, below = -grid->head.first[e];
        const int64_t above = grid->head.cells[e] + faces - grid->head.first[e];
        const int64_t own =
            grid->head.count[e] + faces; /* with the face that the rank above owns */
        const int wide = shape->halo.shape == DPAR_STENCIL_BOX || e == d;
        box->lo[e] = wide ? -dpari_gx_width(grid, depth, e, 0) : 0;
        box->hi[e] = own + (wide ? dpari_gx_width(grid, depth, e, 1) : 0);
        if (e == d) {
            if (side) {
                box->lo[e] = dpari_most(above, box->lo[e]);
            } else {
                box->hi[e] = dpari_least(below, box->hi[e]);
            }
        } else if (!grid->desc.periodic[e]) {
            if (dpari_gx_sends_beyond(grid, &shape->field, e, 0)) {
                box->lo[e] = below == 0 ? -grid->low[e] : box->lo[e];
            } else if (e > d || !shape->field.mirror_low[e]) {
                box->lo[e] = dpari_most(below, box->lo[e]);
            }
            if (dpari_gx_sends_beyond(grid, &shape->field, e, 1)) {
                box->hi[e] = above == own ? own + grid->high[e] : box->hi[e];
            } else if (e > d || !shape->field.mirror_high[e]) {
                box->hi[e] = dpari_least(above, box->hi[e]);
            }
        }
        if (box->hi[e] <= box->lo[e]) {
            return 0;
        }
    }
    box->dims = grid->head.dims;
    return 1;
}

/* Makes the copy that fills a box beyond a mirror, for component k or for all (-1).
 *
 * Point i, counted from the grid's first point, receives the value of point sum - i. If the mirror
 * is the outer face of the end cell and points are in the middle of cells, sum is -1 at the low end
 * and 2 * cells - 1 at the high end. If the mirror goes through the middle of the end cell, sum is
 * 1 more at the low end and 1 less at the high end. If points are on faces, sum is 1 more. */
static DPARI_COLD void dpari_gx_reflect(const dpari_gx *grid, const dpari_gx_shape *shape,
                                        const dpar_box *box, int32_t d, int side, int32_t k,
                                        dpari_gx_mirror *mirror)
{
    const int32_t dims = grid->head.dims, bytes = dpar_type_bytes(shape->type);
    const int32_t on =
        (side ? shape->field.mirror_high[d] : shape->field.mirror_low[d]) == DPAR_GRID_MIRROR_CELL;
    const int32_t faces = shape->field.location[d] != 0;
    const int64_t sum = (side ? 2 * grid->head.cells[d] - 1 - on : on - 1) + faces;
    dpar_mem_box *copy = &mirror->box;
    dpari_stride_piece piece;
    int64_t at = shape->origin / bytes;
    int32_t e;
    dpari_zero(copy, sizeof *copy);
    copy->to_type = copy->from_type = shape->type;
    copy->op = DPAR_COPY;
    copy->negate = k < 32 && (shape->field.odd[d] >> (k < 0 ? 0 : k) & 1u) != 0;
    copy->dims = dims + 1;
    for (e = 0; e < dims; e++) {
        copy->extent[e] = box->hi[e] - box->lo[e];
        copy->to_stride[e] = copy->from_stride[e] = shape->field.stride[e];
        at += box->lo[e] * shape->field.stride[e];
    }
    copy->extent[dims] = k < 0 ? shape->field.components : 1;
    copy->to_stride[dims] = copy->from_stride[dims] = shape->field.component_stride;
    copy->from_stride[d] = -copy->from_stride[d];
    at += k < 0 ? 0 : k * shape->field.component_stride;
    mirror->dim = d;
    mirror->to = at * bytes;
    mirror->from =
        (at + (sum - 2 * (grid->head.first[d] + box->lo[d])) * shape->field.stride[d]) * bytes;
    dpari_mem_piece(copy, &piece);
    dpari_stride_prepare(&mirror->stride, &piece);
}

/* Computes the box of points that the mirror at an end of dim d fills (dpari_gx_beyond), and
 * returns the number of copies that fill it: one for each component, or one for all if all of them
 * change their sign or none does. Returns 0 if there is no mirror or the box is empty. */
static DPARI_COLD int32_t dpari_gx_copies(const dpari_gx *grid, const dpari_gx_shape *shape,
                                          int32_t depth, int32_t d, int side, dpar_box *box)
{
    const int32_t comps = shape->field.components;
    const uint32_t all = comps > 31 ? ~(uint32_t)0 : ((uint32_t)1 << comps) - 1;
    const uint32_t odd = shape->field.odd[d] & all;
    if (dpari_gx_is_empty(grid) ||
        !(side ? shape->field.mirror_high[d] : shape->field.mirror_low[d]) ||
        !dpari_gx_beyond(grid, shape, depth, d, side, box)) {
        return 0;
    }
    return odd != 0 && (odd != all || comps > 32) ? comps : 1;
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_gx_count_mirrors(const dpari_gx *grid,
                                                         const dpari_gx_shape *shape, int32_t depth)
{
    int32_t side, count = 0;
    dpar_box box;
    for (side = 0; side < 2 * grid->head.dims; side++) {
        count += dpari_gx_copies(grid, shape, depth, side / 2, side % 2, &box);
    }
    return count;
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_list_mirrors(const dpari_gx *grid,
                                                     const dpari_gx_shape *const *shape, int32_t n,
                                                     int32_t depth, dpari_gx_mirror *mirror)
{
    int32_t d, i, k;
    dpar_box box;
    for (d = 0; d < grid->head.dims; d++) {
        for (i = 0; i < 2 * n; i++) {
            const int side = i % 2;
            const int32_t copies = dpari_gx_copies(grid, shape[i / 2], depth, d, side, &box);
            for (k = 0; k < copies; k++) {
                dpari_gx_reflect(grid, shape[i / 2], &box, d, side, copies > 1 ? k : -1, mirror);
                mirror->item = i / 2;
                mirror++;
            }
        }
    }
}

/* Moves the boxes at mirrors in a device's memory, with one call per dim, because the boxes of a
 * dim read values that the boxes of earlier dims have written. In the communicator's memory, later
 * operations are ordered after these moves, so that nothing waits for them here. */
static DPARI_COLD dpar_status dpari_gx_move_mirrors(const dpari_gx *grid,
                                                    const dpari_gx_mirrors *mirrors,
                                                    const dpar_halo_plan *exchange)
{
    int32_t i, count = 0;
    for (i = 0; i < mirrors->count; i++) {
        const dpari_gx_mirror *mirror = &mirrors->mirror[i];
        char *at = (char *)dpari_hx_bound(exchange, mirror->item);
        dpar_mem_box *box = &mirrors->box[count];
        *box = mirror->box;
        box->to = at + mirror->to;
        box->from = at + mirror->from;
        count++;
        if (i + 1 == mirrors->count || mirror[1].dim != mirror->dim) {
            const dpar_status status = grid->mem->move(grid->mem->ctx, mirrors->box, count);
            if (status != DPAR_OK) {
                return status;
            }
            count = 0;
        }
    }
    if (grid->mem == grid->head.comm->mem) {
        return DPAR_OK;
    }
    return grid->mem->wait(grid->mem->ctx);
}

DPARI_INTERNAL dpar_status dpari_gx_fill(const dpari_gx *grid, const dpari_gx_mirrors *mirrors,
                                         const dpar_halo_plan *exchange)
{
    int32_t i;
    if (mirrors->box) {
        const dpar_status status = dpari_gx_move_mirrors(grid, mirrors, exchange);
        if (status != DPAR_OK) {
            dpar_comm_abort(
                grid->head.comm, status,
                "grid: the halos at mirrors could not be filled in the device's memory");
        }
        return status;
    }
    for (i = 0; i < mirrors->count; i++) {
        const dpari_gx_mirror *mirror = &mirrors->mirror[i];
        char *at = (char *)dpari_hx_bound(exchange, mirror->item);
        dpari_stride_run(&mirror->stride, at + mirror->to, at + mirror->from);
    }
    return DPAR_OK;
}

/* ==== halo/grid_plans.c ==== */

/* Finds the plan of an exchange, or makes it with halo_exchange.c, and binds the arrays to it.
 *
 * Plans are found by shapes and not by addresses, because making a plan is collective: either all
 * ranks must find a plan, or none. Ranks agree on the number of a shape when an array is attached
 * or allocated. Addresses may then differ and change on each rank independently. */

/* ---- the arrays of an exchange --------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_check_set(const dpari_gx_set *set, dpar_why *why)
{
    const dpari_gx *grid = set->grid;
    int32_t i;
    if (!set->list) {
        return dpari_wrong(why, "grid: the list of %d arrays is NULL", set->count);
    }
    if (set->count < 1 || set->count > 4096) {
        return dpari_wrong(why, "grid: the list has %d arrays; it must have 1 to 4096", set->count);
    }
    if (set->depth < 0 || set->depth > grid->widest) {
        return dpari_say(DPAR_E_RANGE, why,
                         "grid: depth is %d; it must be 0 to %ld, the width of the halo",
                         set->depth, grid->widest);
    }
    for (i = 0; i < set->count; i++) {
        const dpari_gx_array *other;
        if (dpari_gx_shape_at(grid, set->list[i])) {
            continue;
        }
        other = dpari_gx_in_another(grid, set->list[i]);
        if (other) {
            return dpari_wrong(
                why,
                "grid: array %d of the list points into another array, %ld bytes after its "
                "first own point; pass the address of that point",
                i, (int64_t)(uintptr_t)set->list[i] - (int64_t)(uintptr_t)other->at);
        }
        return dpari_wrong(why,
                           "grid: array %d of the list of %d does not belong to this grid; pass "
                           "the address of its first own point, as dpar_grid_array returned it or "
                           "dpar_grid_attach got it",
                           i, set->count);
    }
    return DPAR_OK;
}

/* Lists the numbers of the arrays, which are compared in grids with desc.check and before
 * gathering. */
static DPARI_COLD void dpari_gx_state_numbers(dpari_facts *facts, const void *given)
{
    const dpari_gx_set *set = (const dpari_gx_set *)given;
    int32_t i;
    dpari_fact(facts, "the number of arrays", 0, set->count);
    dpari_fact(facts, "depth", 0, set->depth);
    dpari_fact(facts, "the kind of exchange", 0, set->kind);
    for (i = 0; i < set->count; i++) {
        const dpari_gx_array *known = dpari_gx_find(set->grid, set->list[i]);
        dpari_fact(facts, "array # of the list", i, known ? known->number : -1);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_agree_on_set(const dpari_gx_set *set,
                                                            dpar_status status, dpar_why *why)
{
    return dpari_agree_on(set->grid->head.comm, status, "grid", dpari_gx_state_numbers, set, why);
}

/* ---- making a plan --------------------------------------------------------------------------- */

/* Divides the memory of a plan into its lists, and computes its size from the numbers that *plan
 * has. If memory is NULL, only computes the size. narrow: 1 if fields have halos of their own. */
static DPARI_COLD void dpari_gx_lay_out(const dpari_gx *grid, int narrow, dpari_gx_plan *plan,
                                        void *memory)
{
    const int32_t boxes = plan->mirrors.count;
    dpari_gx_mirrors *mirrors = &plan->mirrors;
    dpari_room room;
    room.at = (unsigned char *)memory;
    room.used = 0;
    (void)dpari_room_take(&room, 1, sizeof *plan);
    plan->shape = (const dpari_gx_shape **)dpari_room_take(&room, plan->count, sizeof *plan->shape);
    plan->field = (dpar_halo_field *)dpari_room_take(&room, plan->count, sizeof *plan->field);
    plan->halo = (dpar_halo *)dpari_room_take(&room, narrow ? plan->count : 0, sizeof *plan->halo);
    mirrors->mirror = (dpari_gx_mirror *)dpari_room_take(&room, boxes, sizeof *mirrors->mirror);
    if (grid->mem && boxes > 0) {
        mirrors->box = (dpar_mem_box *)dpari_room_take(&room, boxes, sizeof *mirrors->box);
    }
    plan->bytes = room.used;
}

/* Describes array i of a plan as a field of its exchange. With a depth, and if only shared points
 * are exchanged, the halo to exchange is narrower than the array's. */
static DPARI_COLD void dpari_gx_describe_array(const dpari_gx *grid, const dpari_gx_plan *plan,
                                               int32_t i, void *at)
{
    const dpari_gx_shape *shape = plan->shape[i];
    dpar_halo_field *field = &plan->field[i];
    dpar_halo *halo = &plan->halo[i];
    int32_t d;
    dpari_gx_field(grid, shape, at, field);
    field->direction = shape->field.direction;
    if (plan->depth == 0 && plan->kind == DPARI_GX_HALOS) {
        return;
    }
    *halo = *dpari_gx_sent(shape);
    field->halo = halo;
    field->array_halo = dpari_gx_sent(shape);
    for (d = 0; d < grid->head.dims; d++) {
        const int fills = plan->kind == DPARI_GX_HALOS;
        halo->low[d] = fills ? dpari_gx_width(grid, plan->depth, d, 0) : 0;
        halo->high[d] = fills ? dpari_gx_width(grid, plan->depth, d, 1) : 0;
        halo->high[d] += shape->field.location[d] != 0;
    }
}

/* Does the local part of planning: allocates a plan and describes its exchange. After a failure the
 * caller must free *plan, which may be NULL. */
static DPARI_COLD dpar_status dpari_gx_describe(const dpari_gx_set *set, dpari_gx_plan **plan,
                                                dpar_why *why)
{
    const dpari_gx *grid = set->grid;
    dpari_gx_plan sizes, *made;
    const int narrow = set->depth > 0 || set->kind != DPARI_GX_HALOS;
    int32_t i;
    *plan = NULL;
    dpari_zero(&sizes, sizeof sizes);
    sizes.count = set->count;
    sizes.depth = set->depth;
    sizes.kind = set->kind;
    for (i = 0; i < set->count && set->kind == DPARI_GX_HALOS; i++) {
        const dpari_gx_shape *shape = dpari_gx_shape_at(grid, set->list[i]);
        sizes.mirrors.count += dpari_gx_count_mirrors(grid, shape, set->depth);
    }
    dpari_gx_lay_out(grid, narrow, &sizes, NULL);
    made = (dpari_gx_plan *)dpari_os_pages(sizes.bytes);
    if (!made) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "grid: %ld bytes for a plan cannot be allocated (is ulimit -v too small?)",
                         sizes.bytes);
    }
    *plan = made;
    *made = sizes;
    dpari_gx_lay_out(grid, narrow, made, made);
    for (i = 0; i < set->count; i++) {
        made->shape[i] = dpari_gx_shape_at(grid, set->list[i]);
        if (made->shape[i]->packed) { /* the address is unknown so far */
            const dpar_status status =
                dpari_gx_check_start(grid, made->shape[i], set->list[i], "grid", why);
            if (status != DPAR_OK) {
                return status;
            }
        }
        dpari_gx_describe_array(grid, made, i, set->list[i]);
    }
    if (made->mirrors.count > 0) {
        dpari_gx_list_mirrors(grid, made->shape, set->count, set->depth, made->mirrors.mirror);
    }
    return DPAR_OK;
}

/* Lists types and components of the arrays, which are compared before a plan is made. */
static DPARI_COLD void dpari_gx_state_kinds(dpari_facts *facts, const void *given)
{
    const dpari_gx_set *set = (const dpari_gx_set *)given;
    int32_t i;
    dpari_fact(facts, "the number of arrays", 0, set->count);
    dpari_fact(facts, "depth", 0, set->depth);
    dpari_fact(facts, "the kind of exchange", 0, set->kind);
    for (i = 0; i < set->count; i++) {
        const dpari_gx_shape *shape = dpari_gx_shape_at(set->grid, set->list[i]);
        dpari_fact_type(facts, "the type of array #", i, shape->type);
        dpari_fact(facts, "the number of components of array #", i, shape->field.components);
        dpari_fact(facts, "whether array # is of desc.type (1) or was attached (0)", i,
                   shape->packed);
    }
}

/* Makes the exchange of a plan. If an array may change from call to call, everything is packed,
 * because the next one may be in memory that peers cannot read. Collective. */
static DPARI_COLD dpar_status dpari_gx_make_exchange(dpari_gx *grid, dpari_gx_plan *plan,
                                                     dpar_why *why)
{
    dpar_halo_plan_desc desc;
    int32_t i;
    dpari_zero(&desc, sizeof desc);
    desc.field = plan->field;
    desc.field_count = plan->count;
    desc.shared = plan->kind == DPARI_GX_COMBINE ? DPARI_HX_COMBINE : plan->kind;
    for (i = 0; i < plan->count; i++) {
        if (plan->shape[i]->packed) {
            desc.method = DPAR_HALO_PACKED;
        }
    }
    return dpar_halo_plan_make(grid->head.comm, &desc, &plan->exchange, why);
}

/* Plans an exchange of known arrays. Collective. */
static DPARI_COLD dpar_status dpari_gx_new_plan(const dpari_gx_set *set, dpari_gx_plan **plan,
                                                dpar_why *why)
{
    dpari_gx *grid = set->grid;
    dpari_gx_plan *made, **last = &grid->plans;
    dpar_status status = dpari_gx_describe(set, &made, why);
    status =
        dpari_agree_on(grid->head.comm, status, "grid exchange", dpari_gx_state_kinds, set, why);
    if (status == DPAR_OK) {
        status = dpari_gx_make_exchange(grid, made, why);
    }
    if (status != DPAR_OK) {
        dpari_os_unmap(made, made ? made->bytes : 0);
        return status;
    }
    while (*last) {
        last = &(*last)->next;
        made->number++;
    }
    *last = made;
    if (made->number < DPARI_GX_KEYS) {
        dpari_gx_key *key = &grid->key[grid->keys++];
        key->plan = made;
        key->shape = made->shape[0];
        key->count = made->count;
        key->depth = made->depth;
    }
    *plan = made;
    return DPAR_OK;
}

/* ---- finding a plan -------------------------------------------------------------------------- */

/* Returns the address of the array that array i of a plan is bound to. */
static void *dpari_gx_bound(const dpari_gx_plan *plan, int32_t i)
{
    return dpari_hx_bound(plan->exchange, i);
}

/* True if a plan is for arrays of these shapes and this depth, and its exchange is not in
 * progress. */
static int dpari_gx_fits(const dpari_gx_plan *plan, const dpari_gx_set *set)
{
    int32_t i;
    if (plan->count != set->count || plan->depth != set->depth || plan->kind != set->kind ||
        plan->active) {
        return 0;
    }
    for (i = 0; i < set->count; i++) {
        if ((plan->stale || dpari_gx_bound(plan, i) != set->list[i]) &&
            dpari_gx_shape_at(set->grid, set->list[i]) != plan->shape[i]) {
            return 0;
        }
    }
    return 1;
}

/* Returns the shape of the first array of the list. */
static const dpari_gx_shape *dpari_gx_first_shape(const dpari_gx_set *set)
{
    const dpari_gx *grid = set->grid;
    int32_t k;
    for (k = 0; k < grid->keys; k++) {
        if (grid->key[k].at == set->list[0]) {
            return grid->key[k].shape;
        }
    }
    return dpari_gx_shape_at(grid, set->list[0]);
}

/* Returns the first plan that fits, or NULL. It must be the first, so that all ranks choose the
 * same one, whatever their addresses. */
static dpari_gx_plan *dpari_gx_match(const dpari_gx_set *set)
{
    const dpari_gx *grid = set->grid;
    const dpari_gx_shape *shape;
    dpari_gx_plan *plan = NULL;
    int32_t k;
    if (!set->list || set->count < 1) {
        return NULL;
    }
    shape = dpari_gx_first_shape(set);
    for (k = 0; k < grid->keys; k++) {
        const dpari_gx_key *key = &grid->key[k];
        if (key->shape == shape && key->count == set->count && key->depth == set->depth &&
            dpari_gx_fits(key->plan, set)) {
            return key->plan;
        }
    }
    if (k == DPARI_GX_KEYS) {
        plan = grid->key[k - 1].plan->next;
    }
    while (plan && !dpari_gx_fits(plan, set)) {
        plan = plan->next;
    }
    return plan;
}

/* Checks the arrays of an exchange, compares them between ranks if desc.check is 1, and makes the
 * plan if *plan is NULL. Called if there is no plan yet, and for every exchange of a grid with
 * desc.check. Collective. */
static DPARI_COLD dpar_status dpari_gx_check_and_plan(const dpari_gx_set *set, dpari_gx_plan **plan)
{
    dpar_why why;
    dpar_status status = dpari_gx_check_set(set, &why);
    if (set->grid->desc.check) {
        status = dpari_gx_agree_on_set(set, status, &why);
    }
    if (status == DPAR_OK && !*plan) {
        status = dpari_gx_new_plan(set, plan, &why);
    }
    return dpari_gx_say(set->grid, status, &why);
}

/* True if another array of the list is the same as array i. */
static int dpari_gx_is_twice(const dpari_gx_set *set, int32_t i)
{
    int32_t k;
    for (k = 0; k < set->count; k++) {
        if (k != i && set->list[k] == set->list[i]) {
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL dpar_status dpari_gx_bind_plan(const dpari_gx_set *set, dpari_gx_plan **plan)
{
    dpari_gx *grid = set->grid;
    dpari_gx_plan *found = dpari_gx_match(set);
    dpar_status status;
    int32_t i;
    if (!found || grid->desc.check) {
        status = dpari_gx_check_and_plan(set, &found);
        if (status != DPAR_OK) {
            return status;
        }
    }
    for (i = 0; i < set->count; i++) {
        if (found->stale || dpari_gx_bound(found, i) != set->list[i]) {
            if (dpari_gx_is_twice(set, i)) { /* a new plan would be refused for this reason */
                return dpari_comm_wrong(grid->head.comm,
                                        "grid: array %d of the list of %d is in the list twice", i,
                                        set->count);
            }
            status = dpar_halo_plan_bind(found->exchange, i, set->list[i], NULL);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    found->stale = 0;
    if (found->number < DPARI_GX_KEYS) {
        grid->key[found->number].at = set->list[0];
    }
    if (found->count == 1 && found->depth == 0 && found->kind == DPARI_GX_HALOS &&
        found->mirrors.count == 0 && !grid->desc.check) {
        grid->quick = found;
    }
    *plan = found;
    return DPAR_OK;
}

DPARI_INTERNAL int dpari_gx_rebind(dpari_gx *grid, void *u)
{
    dpari_gx_plan *plan = grid->quick;
    return plan && grid->under_way == 0 && dpari_gx_shape_at(grid, u) == plan->shape[0] &&
           dpar_halo_plan_bind(plan->exchange, 0, u, NULL) == DPAR_OK;
}

/* ---- all plans ------------------------------------------------------------------------------- */

DPARI_INTERNAL dpari_gx_plan *dpari_gx_in_progress(const dpari_gx *grid, const void *u)
{
    dpari_gx_plan *plan;
    int32_t i;
    if (grid->under_way == 0) {
        return NULL;
    }
    for (plan = grid->plans; plan; plan = plan->next) {
        for (i = 0; plan->active && i < plan->count; i++) {
            if (dpari_gx_bound(plan, i) == u) {
                return plan;
            }
        }
    }
    return NULL;
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_look_up_again(dpari_gx *grid, const void *at)
{
    dpari_gx_plan *plan;
    int32_t i;
    grid->quick = NULL;
    for (i = 0; i < grid->keys; i++) {
        grid->key[i].at = NULL;
    }
    for (plan = grid->plans; plan; plan = plan->next) {
        for (i = 0; i < plan->count; i++) {
            if (dpari_gx_bound(plan, i) == at || plan->shape[i]->packed) {
                plan->stale = 1;
            }
        }
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_free_plans(dpari_gx *grid, const dpar_comm *comm)
{
    dpar_status first = DPAR_OK;
    while (grid->plans) {
        dpari_gx_plan *plan = grid->plans;
        if (comm) {
            const dpar_status status = dpar_halo_plan_free(plan->exchange);
            if (first == DPAR_OK) {
                first = status;
            }
        } else {
            dpari_hx_release(plan->exchange);
        }
        grid->plans = plan->next;
        dpari_os_unmap(plan, plan->bytes);
    }
    return first;
}

/* ==== halo/grid_attach.c ==== */

/* Adds arrays to a grid. Implements dpar_grid_array and dpar_grid_attach.
 *
 * Each rank first checks and allocates without the others. The ranks then agree that all have
 * succeeded and describe the same array, and look for a known shape that it has on all ranks. */

enum {
    DPARI_GX_ALIGN = 64,  /* alignment of the first own point, in bytes: a cache line */
    DPARI_GX_PAGE = 4096, /* bytes of a page */
    DPARI_GX_SKEW = 320   /* each array begins this number of bytes further in a page than the one
                             before it, so that arrays do not use the same sets of a cache */
};

/* One array that is being added. */
typedef struct dpari_gx_adding {
    const dpari_gx *grid;
    dpari_gx_shape *shape; /* allocated, in case the shape is a new one */
    void *at;              /* the address of its first own point; NULL if it must be allocated */
    void *memory;          /* its allocation; NULL if the array is the caller's */
} dpari_gx_adding;

/* Checks that the caller's array may be attached. */
static DPARI_COLD dpar_status dpari_gx_check_place(const dpari_gx_adding *adding, dpar_why *why)
{
    const dpari_gx *grid = adding->grid;
    const int32_t rank = grid->head.comm->rank;
    const dpar_status status =
        dpari_gx_check_start(grid, adding->shape, adding->at, "dpar_grid_attach", why);
    int32_t next = 0;
    int busy = dpari_gx_in_progress(grid, adding->at) != NULL;
    if (status != DPAR_OK) {
        return status;
    }
    for (;;) {
        const dpari_gx_array *array = dpari_gx_overlapping(grid, adding->shape, adding->at, &next);
        if (!array) {
            break;
        }
        busy |= dpari_gx_in_progress(grid, array->at) != NULL;
        if (array->memory && !busy) {
            return dpari_wrong(
                why,
                "dpar_grid_attach: the array of rank %d has elements in common with one of "
                "dpar_grid_array, and begins %ld bytes after its first own point",
                rank, (int64_t)(uintptr_t)adding->at - (int64_t)(uintptr_t)array->at);
        }
    }
    if (busy) {
        return dpari_wrong(
            why,
            "dpar_grid_attach: rank %d has an exchange of the array at this address that "
            "has not ended",
            rank);
    }
    return DPAR_OK;
}

/* Allocates an array from the communicator. Arrays begin at different places of a page, because
 * equal places in several pages use the same set of a cache. */
static DPARI_COLD dpar_status dpari_gx_alloc(dpari_gx_adding *adding, dpar_why *why)
{
    const dpari_gx *grid = adding->grid;
    dpar_comm *comm = grid->head.comm;
    const dpari_gx_shape *shape = adding->shape;
    const int64_t below = shape->origin - shape->low;
    const int64_t first = /* bytes in front of the first own point */
        grid->arrays * DPARI_GX_SKEW % DPARI_GX_PAGE +
        (below + DPARI_GX_ALIGN - 1) / DPARI_GX_ALIGN * DPARI_GX_ALIGN;
    dpar_status status;
    if (grid->mem != comm->mem) {
        return dpari_wrong(
            why, "dpar_grid_array: desc.mem is not the memory of the communicator, so that dpar "
                 "cannot allocate in it; use dpar_grid_attach with an array of your own");
    }
    status = dpar_comm_alloc(comm, first + shape->high - shape->origin, &adding->memory);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    adding->at = (char *)adding->memory + first - shape->origin;
    return DPAR_OK;
}

/* Does the local part of adding an array: checks it and allocates its entry and, for
 * dpar_grid_array, its memory. */
static DPARI_COLD dpar_status dpari_gx_add_here(dpari_gx *grid, dpari_gx_adding *adding,
                                                int32_t type, const dpar_grid_field *field,
                                                int attached, dpar_why *why)
{
    const int32_t rank = grid->head.comm->rank;
    dpar_status status = dpari_gx_make_room(grid, &adding->shape, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (attached && !adding->at) {
        return dpari_wrong(why,
                           "dpar_grid_attach: the array of rank %d is NULL; a rank without cells "
                           "passes any other address, a different one for each array",
                           rank);
    }
    status = dpari_gx_make_shape(grid, type, field, rank, adding->shape, why);
    if (status == DPAR_OK) {
        status = dpari_gx_make_walls(grid, adding->shape, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    return attached ? dpari_gx_check_place(adding, why) : dpari_gx_alloc(adding, why);
}

/* Lists what must be equal on all ranks when an array becomes known. */
static DPARI_COLD void dpari_gx_state_array(dpari_facts *facts, const void *given)
{
    const dpari_gx_adding *adding = (const dpari_gx_adding *)given;
    const dpar_grid_field *field = &adding->shape->field;
    int32_t d, k;
    dpari_fact(facts, "the number of arrays so far", 0, adding->grid->arrays);
    dpari_fact_type(facts, "type", 0, adding->shape->type);
    dpari_fact(facts, "components", 0, field->components);
    for (d = 0; d < adding->grid->head.dims; d++) {
        dpari_fact(facts, "location[#]", d, field->location[d]);
        dpari_fact(facts, "odd[#]", d, field->odd[d]);
        dpari_fact(facts, "mirror_low[#]", d, field->mirror_low[d]);
        dpari_fact(facts, "mirror_high[#]", d, field->mirror_high[d]);
    }
    dpari_fact(facts, "whether directions are set (1) or not (0)", 0, field->direction != NULL);
    for (k = 0; field->direction && k < field->components; k++) {
        uint64_t hash = 1;
        for (d = 0; d < adding->grid->head.dims; d++) {
            hash = dpari_hash(hash, adding->shape->direction[k][d]);
        }
        dpari_fact_hash(facts, "the direction of component #", k, hash);
    }
}

/* Does the collective part of adding an array. Every rank calls it with the status of its local
 * part. *known receives the array's shape if all ranks have it already, otherwise NULL. */
static DPARI_COLD dpar_status dpari_gx_add_together(dpari_gx *grid, const dpari_gx_adding *adding,
                                                    dpar_status status, dpari_gx_shape **known,
                                                    dpar_why *why)
{
    const dpar_comm *comm = grid->head.comm;
    status = dpari_agree_on(grid->head.comm, status, "grid", dpari_gx_state_array, adding, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (!grid->mem) {
        const dpari_world *world = dpari_world_of(comm->node ? comm->node : comm);
        adding->shape->reach = world && dpari_ref(world, adding->at, 1) != 0;
    }
    return dpari_gx_find_shape(grid, adding->shape, known, why);
}

/* Makes an array known, in place of those that have elements in common with it. Usually their
 * memory was freed and used again. If it was not, their next exchange reports an unknown address.
 * This address may have had another shape before, so that plans look up their arrays again. */
static DPARI_COLD void dpari_gx_replace(dpari_gx *grid, const dpari_gx_adding *adding,
                                        dpari_gx_shape *known)
{
    for (;;) {
        int32_t next = 0;
        dpari_gx_array *array = dpari_gx_overlapping(grid, adding->shape, adding->at, &next);
        if (!array) {
            break;
        }
        dpari_gx_look_up_again(grid, array->at);
        dpari_gx_forget(grid, array);
    }
    dpari_gx_look_up_again(grid, adding->at);
    dpari_gx_remember(grid, known, adding->shape, adding->at, adding->memory);
}

/* Adds the caller's array at `at`, or one from the communicator. Returns its address, or NULL. */
static DPARI_COLD void *dpari_gx_add(dpari_gx *grid, int32_t type, const dpar_grid_field *field,
                                     int attached, void *at, dpar_status *status, dpar_why *why)
{
    dpari_gx_shape *known = NULL;
    dpari_gx_adding adding;
    adding.grid = grid;
    adding.shape = NULL;
    adding.at = at;
    adding.memory = NULL;
    *status = dpari_gx_add_here(grid, &adding, type, field, attached, why);
    *status = dpari_gx_add_together(grid, &adding, *status, &known, why);
    if (*status != DPAR_OK) {
        dpar_comm_release(grid->head.comm, adding.memory);
        dpari_gx_free_shape(adding.shape);
        return NULL;
    }
    dpari_gx_replace(grid, &adding, known);
    return adding.at;
}

DPAR_API DPARI_COLD void *dpar_grid_array(dpar_grid *grid, int32_t type,
                                          const dpar_grid_field *field)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpar_why why;
    dpar_status status;
    void *u;
    if (g == NULL) {
        return NULL;
    }
    u = dpari_gx_add(g, type, field, 0, NULL, &status, &why);
    (void)dpari_gx_say(g, status, &why);
    return u;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_attach(dpar_grid *grid, void *u, int32_t type,
                                                 const dpar_grid_field *field, dpar_why *why)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpar_status status;
    if (!g) {
        return dpari_wrong(why, "dpar_grid_attach: grid %s",
                           grid ? "was closed with its world" : "is NULL");
    }
    (void)dpari_gx_add(g, type, field, 1, u, &status, why);
    return status;
}

/* ==== halo/grid_whole.c ==== */

/* Gathers a whole array on rank 0 and scatters it from there, rank after rank. Implements
 * dpar_grid_gather and dpar_grid_scatter. */

/* The memory between which dpar_grid_gather and dpar_grid_scatter move blocks. */
typedef struct dpari_gx_block {
    const dpari_gx_shape *shape;
    char *array; /* this rank's array */
    char *whole; /* on rank 0: the whole array */
    char *dense; /* one block, dense in C order, as it is sent */
    int back;    /* 0 gathers, 1 scatters */
} dpari_gx_block;

/* Copies a block between block->dense and this rank's array or, with `whole`, rank 0's whole array.
 * block->back determines the direction. */
static DPARI_COLD dpar_status dpari_gx_copy(const dpari_gx *grid, const dpari_gx_block *block,
                                            const dpar_box *own, int whole)
{
    const dpari_gx_shape *shape = block->shape;
    const int32_t dims = grid->head.dims;
    const int out = block->back == whole; /* 1 copies into block->dense */
    dpar_mem_box box;
    dpar_status status;
    int64_t dense = shape->field.components, step = dense, at = 0;
    int64_t *there = out ? box.from_stride : box.to_stride;
    int64_t *here = out ? box.to_stride : box.from_stride;
    char *array = whole ? block->whole : block->array;
    int32_t d;
    dpari_zero(&box, sizeof box);
    box.to_type = box.from_type = shape->type;
    box.op = DPAR_COPY;
    box.dims = dims + 1;
    box.extent[dims] = dense;
    there[dims] = whole ? 1 : shape->field.component_stride;
    here[dims] = 1;
    for (d = dims - 1; d >= 0; d--) {
        box.extent[d] = own->hi[d] - own->lo[d];
        there[d] = whole ? step : shape->field.stride[d];
        here[d] = dense;
        at += whole ? own->lo[d] * step : 0;
        step *= dpar_halo_points(&shape->halo, d);
        dense *= box.extent[d];
    }
    array += whole ? at * dpar_type_bytes(shape->type) : shape->origin;
    box.to = out ? block->dense : array;
    box.from = out ? array : block->dense;
    if (!grid->mem) {
        return dpari_mem_move_box(&box);
    }
    status = grid->mem->move(grid->mem->ctx, &box, 1);
    if (status != DPAR_OK) {
        return status;
    }
    return grid->mem->wait(grid->mem->ctx);
}

/* Moves the blocks, rank after rank. To gather, the owner copies its array into a dense block and
 * sends it to rank 0, which copies it into the whole array. To scatter, the steps are done in
 * reverse order. */
static DPARI_COLD dpar_status dpari_gx_blocks(const dpari_gx *grid, const dpari_gx_block *block)
{
    enum { ARRAY, MESSAGE, WHOLE, STEPS };
    dpar_comm *comm = grid->head.comm;
    const int32_t end = comm->rank > 0 ? comm->rank + 1 : comm->size;
    const int receives = block->back == (comm->rank > 0);
    const int32_t type = block->shape->type;
    dpar_box own;
    int32_t r, i;
    for (r = comm->rank; r < end; r++) { /* rank 0 handles all blocks, other ranks only their own */
        const int64_t count = dpari_gx_owned(block->shape, r, &own);
        const int32_t other = comm->rank > 0 ? 0 : r;
        for (i = 0; count > 0 && i < STEPS; i++) {
            const int step = block->back ? WHOLE - i : i;
            dpar_status status = DPAR_OK;
            if (step == MESSAGE && other == comm->rank) {
                continue;
            }
            if (step == MESSAGE && receives) {
                status = dpar_recv(comm, block->dense, count, type, other, 0, NULL);
            } else if (step == MESSAGE) {
                status = dpar_send(comm, block->dense, count, type, other, 0, NULL);
            } else if ((step == ARRAY && r == comm->rank) || (step == WHOLE && comm->rank == 0)) {
                status = dpari_gx_copy(grid, block, &own, step == WHOLE);
            }
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    return DPAR_OK;
}

/* Does the local part of gathering and scattering: checks the array and allocates *block, as large
 * as the largest block that this rank handles. Rank 0 handles all blocks. */
static DPARI_COLD dpar_status dpari_gx_whole_block(const dpari_gx_set *set, const void *whole,
                                                   int pins, void **block, dpar_why *why)
{
    const dpari_gx *grid = set->grid;
    const dpar_comm *comm = grid->head.comm;
    const int32_t end = comm->rank > 0 ? comm->rank + 1 : comm->size;
    const dpari_gx_shape *shape;
    int64_t bytes = 0;
    dpar_box own;
    int32_t r;
    dpar_status status = dpari_gx_check_set(set, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (comm->rank == 0 && !whole) {
        return dpari_wrong(why, "grid: the whole array is NULL on rank 0");
    }
    shape = dpari_gx_shape_at(grid, set->list[0]);
    if (shape->packed) { /* the address may be unknown so far */
        status = dpari_gx_check_start(grid, shape, set->list[0], "grid", why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    for (r = comm->rank; r < end; r++) {
        bytes = dpari_most(bytes, dpari_gx_owned(shape, r, &own));
    }
    bytes *= dpar_type_bytes(shape->type);
    status = dpar_comm_alloc(grid->head.comm, bytes, block);
    if (status == DPAR_OK && pins) {
        status = grid->mem->pin(grid->mem->ctx, *block, bytes);
    }
    if (status == DPAR_OK) {
        return DPAR_OK;
    }
    return dpari_say(status, why, "grid: %ld bytes for a block cannot be allocated", bytes);
}

/* Gathers the array on rank 0, or with `back` scatters it from there. Collective. */
static DPARI_COLD dpar_status dpari_gx_whole(dpari_gx *grid, void *at, void *whole, int back)
{
    const dpari_gx_set set = {grid, &at, 1, 0, DPARI_GX_HALOS};
    dpari_gx_block part;
    void *block = NULL;
    dpar_comm *comm;
    dpar_status status;
    dpar_why why;
    int pins;
    if (!grid) {
        return DPAR_E_ARG;
    }
    comm = grid->head.comm;
    pins = grid->mem && grid->mem != comm->mem;
    status = dpari_gx_whole_block(&set, whole, pins, &block, &why);
    status = dpari_gx_agree_on_set(&set, status, &why);
    status = dpari_gx_say(grid, status, &why);
    if (status == DPAR_OK) {
        part.shape = dpari_gx_shape_at(grid, at);
        part.array = (char *)at;
        part.whole = (char *)whole;
        part.dense = (char *)block;
        part.back = back;
        status = dpari_gx_blocks(grid, &part);
        if (pins) {
            (void)grid->mem->unpin(grid->mem->ctx, block);
        }
    }
    dpar_comm_release(comm, block);
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_gather(dpar_grid *grid, void *u, void *whole)
{
    return dpari_gx_whole(dpari_gx_of(grid), u, whole, 0);
}

DPAR_API DPARI_COLD dpar_status dpar_grid_scatter(dpar_grid *grid, void *u, const void *whole)
{
    union { /* `whole` is only read, but dpari_gx_whole also gathers */
        const void *given;
        void *read;
    } w;
    w.given = whole;
    return dpari_gx_whole(dpari_gx_of(grid), u, w.read, 1);
}

/* ==== halo/grid_view.c ==== */

/* Describes a rank's part of a grid, without messages: the interior and the boundary, the cells of
 * each sub-step, the block of an array for files, and the halo. Implements dpar_grid_interior,
 * dpar_grid_boundary, dpar_grid_valid, dpar_grid_block and dpar_grid_halo. */

/* Returns the grid behind a handle, even if its world was closed. */
static const dpari_gx *dpari_gx_in(const dpar_grid *grid)
{
    return (const dpari_gx *)(const void *)grid;
}

/* ---- interior and boundary ------------------------------------------------------------------- */

/* True if the grid, or one of its known arrays, has a mirror at an end of dim d. */
static int dpari_gx_mirrored(const dpari_gx *grid, int32_t d, int side)
{
    const dpari_gx_shape *shape = grid->shapes;
    int found = (side ? grid->desc.mirror_high[d] : grid->desc.mirror_low[d]) != 0;
    for (; shape && !found; shape = shape->next) {
        found = (side ? shape->field.mirror_high[d] : shape->field.mirror_low[d]) != 0;
    }
    return found;
}

/* Computes the own cells of a dim, lo to hi - 1, that can be computed during an exchange, because
 * no halo cell that an exchange or a mirror fills is within the stencil's radius of them. */
static void dpari_gx_inner(const dpari_gx *grid, int32_t d, int64_t *lo, int64_t *hi)
{
    const int64_t first = grid->head.first[d], own = grid->head.count[d];
    const int below = first > 0 || grid->desc.periodic[d] || dpari_gx_mirrored(grid, d, 0);
    const int above = first + own < grid->head.cells[d] || grid->desc.periodic[d] ||
                      dpari_gx_mirrored(grid, d, 1);
    const int exchanges = grid->head.parts[d] > 1 || grid->desc.periodic[d];
    const int32_t steps = exchanges ? grid->steps : 1;
    *lo = dpari_least(below ? grid->low[d] / steps : 0, own);
    *hi = dpari_most(above ? own - grid->high[d] / steps : own, *lo);
}

DPAR_API int dpar_grid_interior(const dpar_grid *grid, dpar_box *box)
{
    dpar_box inner;
    int32_t d, some = 1;
    dpari_zero(&inner, sizeof inner);
    inner.dims = grid ? grid->dims : 0;
    for (d = 0; d < inner.dims; d++) {
        dpari_gx_inner(dpari_gx_in(grid), d, &inner.lo[d], &inner.hi[d]);
        some = some && inner.lo[d] < inner.hi[d];
    }
    if (grid && box && some) {
        *box = inner;
        return 1;
    }
    return 0;
}

DPAR_API int dpar_grid_valid(const dpar_grid *handle, int32_t j, dpar_box *box)
{
    const dpari_gx *grid = dpari_gx_in(handle);
    int32_t d, left;
    if (!grid || !box || j < 0 || j >= grid->steps) {
        return 0;
    }
    dpari_zero(box, sizeof *box);
    box->dims = handle->dims;
    left = grid->steps - 1 - j; /* the sub-steps that follow */
    for (d = 0; d < box->dims && !dpari_gx_is_empty(grid); d++) {
        const int64_t after = handle->cells[d] - handle->first[d] - handle->count[d];
        const int periodic = grid->desc.periodic[d];
        const int64_t below = grid->low[d] / grid->steps * left;
        const int64_t above = grid->high[d] / grid->steps * left;
        box->lo[d] = -(periodic ? below : dpari_least(below, handle->first[d]));
        box->hi[d] = handle->count[d] + (periodic ? above : dpari_least(above, after));
    }
    return 1;
}

/* The boxes below and above the interior in dim 0 span all other dims. The boxes of dim 1 are
 * between these two, and so on. */
DPAR_API int dpar_grid_boundary(const dpar_grid *grid, int32_t n, dpar_box *box)
{
    dpar_box next;
    int64_t lo, hi;
    int32_t d, side;
    if (!box || !dpar_grid_valid(grid, 0, &next) || dpari_gx_is_empty(dpari_gx_in(grid))) {
        return 0;
    }
    for (d = 0; d < next.dims; d++) {
        const int64_t from = next.lo[d], to = next.hi[d];
        dpari_gx_inner(dpari_gx_in(grid), d, &lo, &hi);
        for (side = 0; side < 2; side++) {
            next.lo[d] = side ? hi : from;
            next.hi[d] = side ? to : lo;
            if (next.lo[d] < next.hi[d] && n-- == 0) {
                *box = next;
                return 1;
            }
        }
        next.lo[d] = lo;
        next.hi[d] = hi;
        if (lo == hi) {
            return 0; /* there are no cells between the two boxes */
        }
    }
    return 0;
}

/* ---- one array ------------------------------------------------------------------------------- */

DPARI_API DPARI_COLD int dpari_gx_access_to(dpar_grid *handle, void *array, dpari_gx_access *access)
{
    const dpari_gx *grid = dpari_gx_of(handle);
    const dpari_gx_shape *shape = grid && array ? dpari_gx_shape_at(grid, array) : NULL;
    if (!shape) {
        return 0;
    }
    access->desc = &grid->desc;
    access->field = &shape->field;
    access->first = (unsigned char *)array + shape->origin;
    access->low = grid->low;
    access->high = grid->high;
    access->widest = grid->widest;
    access->steps = grid->steps;
    access->type = shape->type;
    access->device = grid->mem != NULL;
    return 1;
}

/* ---- one block ------------------------------------------------------------------------------- */

DPAR_API const dpar_halo *dpar_grid_halo(const dpar_grid *grid)
{
    return grid ? &dpari_gx_in(grid)->halo : NULL;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_block(const dpar_grid *grid, const dpar_grid_field *field,
                                                dpar_grid_part *part)
{
    const dpari_gx *g = dpari_gx_in(grid);
    dpari_gx_shape shape;
    dpar_status status;
    dpar_box own;
    int32_t d;
    if (!g || !g->head.comm || !part) {
        return DPAR_E_ARG;
    }
    status = dpari_gx_make_shape(g, DPAR_F64, field, g->head.comm->rank, &shape, NULL);
    if (status != DPAR_OK) {
        return status;
    }
    for (d = 0; d < g->head.dims; d++) { /* for a rank without points */
        own.lo[d] = g->head.first[d];
        own.hi[d] = g->head.first[d] + g->head.count[d];
    }
    (void)dpari_gx_owned(&shape, g->head.comm->rank, &own);
    dpari_zero(part, sizeof *part);
    for (d = 0; d < g->head.dims; d++) {
        part->global_count[d] = dpar_halo_points(&shape.halo, d);
        part->start[d] = own.lo[d];
        part->count[d] = own.hi[d] - own.lo[d];
        part->local_count[d] = dpari_gx_points(g, &shape.field, d);
        part->local_start[d] = g->low[d];
        part->stride[d] = shape.field.stride[d];
    }
    part->component_stride = shape.field.component_stride;
    return DPAR_OK;
}

/* ==== halo/grid.c ==== */

/* Implements grids: makes and frees them, and exchanges their arrays by address.
 *
 * A grid keeps a table of known arrays and their shapes (grid_arrays.c), and a list of plans. An
 * exchange looks up its arrays, and finds the plan for this combination of shapes and depth or
 * makes one with halo_exchange.c (grid_plans.c). It then binds the arrays to the plan, runs it, and
 * fills the halos at mirrors (grid_mirrors.c). The plan that ran last with one array is tried
 * first, so that codes that swap two arrays search no plan. */

/* ---- a grid ---------------------------------------------------------------------------------- */

/* Does the local part of making a grid. *grid is NULL if it could not be allocated; if a later
 * check fails, the caller must free it. */
static DPARI_COLD dpar_status dpari_gx_build(dpar_comm *comm, const dpar_grid_desc *desc,
                                             dpari_gx **grid, dpar_why *why)
{
    dpar_status status;
    *grid = NULL;
    for (int32_t d = 0; d < DPAR_MAX_DIMS; d++) {
        if (desc->cuts[d] && desc->parts[d] > comm->size) { /* so cuts may have fewer numbers */
            return dpari_say(DPAR_E_DIVIDE, why,
                             "grid: desc.parts[%d] is %d, but there are %d ranks", d,
                             desc->parts[d], comm->size);
        }
    }
    status = dpari_gx_new(desc, grid, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_gx_cut_cells(*grid, comm, why);
}

/* Checks the blocks of all ranks, whose cut is final, and makes the shape of unknown addresses.
 * Collective. */
static DPARI_COLD dpar_status dpari_gx_finish(dpari_gx *grid, dpar_comm *comm, dpar_why *why)
{
    dpar_status status =
        dpari_gx_check_mirrors(grid, grid->desc.mirror_low, grid->desc.mirror_high, why);
    if (status == DPAR_OK && grid->desc.type != 0) {
        status = dpari_gx_make_plain(grid, comm->rank, why);
    }
    return dpari_agree(comm, status, why);
}

DPAR_API DPARI_COLD dpar_status dpar_grid_make(dpar_comm *comm, const dpar_grid_desc *desc,
                                               dpar_grid **grid, dpar_why *why)
{
    dpari_gx *made = NULL;
    dpar_status status;
    if (!comm) {
        dpari_wrong(why, "dpar_grid_make: comm is NULL");
        return DPAR_E_ARG;
    }
    why = dpari_why_of(comm, why);
    if (desc && grid) {
        status = dpari_gx_build(comm, desc, &made, why);
    } else {
        status = dpari_wrong(why, "dpar_grid_make: desc or grid is NULL");
    }
    status = dpari_agree_on(comm, status, "grid", dpari_gx_state, desc, why);
    if (status == DPAR_OK) {
        status = dpari_gx_cut_as_expected(made, comm, why);
    }
    if (status == DPAR_OK) {
        status = dpari_gx_finish(made, comm, why);
    }
    if (status < DPAR_OK) { /* not !=, so that compilers see that *grid is set otherwise */
        if (made) {
            dpari_gx_free_arrays(made, comm);
            dpari_gx_release(made);
        }
        return status;
    }
    made->head.comm = comm;
    made->mem = made->desc.mem ? made->desc.mem : comm->mem;
    made->ending.at = &made->head.comm; /* set to NULL when the world is closed */
    dpari_on_end_add(comm, &made->ending);
    *grid = &made->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_free(dpar_grid *grid)
{
    dpari_gx *freed = (dpari_gx *)(void *)grid;
    dpari_gx_plan *plan;
    dpar_comm *comm;
    dpar_why *said;
    dpar_status status = DPAR_OK;
    dpar_status closed;
    int ended;  /* the communicator was closed before the grid */
    int closes; /* this call closes the communicator */
    if (!freed) {
        return DPAR_OK;
    }
    comm = freed->head.comm; /* NULL if the world was closed, with all its memory */
    ended = comm && dpari_ended_is(comm);
    closes = freed->desc.owns_comm && !ended;
    said = freed->desc.free_why;
    if (comm && comm->status == DPAR_OK) {
        for (plan = freed->plans; plan; plan = plan->next) {
            if (plan->active) {
                return dpari_comm_wrong(
                    comm,
                    "dpar_grid_free: an exchange of %d arrays has not ended; call dpar_grid_end "
                    "first",
                    plan->count);
            }
        }
    }
    if (comm && closes && !freed->plans) { /* freeing a plan is a barrier as well */
        status = dpar_barrier(comm, NULL);
    }
    closed = dpari_gx_free_plans(freed, comm);
    if (status == DPAR_OK && !ended) {
        status = closed;
    }
    dpari_gx_free_arrays(freed, comm);
    dpari_on_end_drop(comm, &freed->ending);
    if (status != DPAR_OK && said) {
        *said = comm->why;
    }
    dpari_gx_release(freed);
    if (!closes) {
        return status;
    }
    closed = dpar_comm_free(comm);
    if (status == DPAR_OK && closed != DPAR_OK) {
        status = dpari_say(closed, said,
                           "dpar_grid_free: the grid's communicator was not closed well: %s",
                           dpar_status_text(closed));
    }
    return status;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Finds the plan of an exchange and binds the arrays to it. Fails if an array takes part in another
 * exchange that has not ended. */
static dpar_status dpari_gx_ready(dpari_gx *grid, void *const *list, int32_t count, int32_t depth,
                                  int32_t kind, dpari_gx_plan **plan)
{
    dpari_gx_set set = {grid, list, count, depth, kind};
    int32_t i;
    if (!grid) {
        return DPAR_E_ARG;
    }
    if (depth == grid->widest) {
        set.depth = 0;
    }
    for (i = 0; grid->under_way > 0 && list && i < count; i++) {
        if (dpari_gx_in_progress(grid, list[i])) {
            return dpari_comm_wrong(
                grid->head.comm,
                "grid: an exchange of array %d of the list of %d has begun and not ended; call "
                "dpar_grid_end first",
                i, count);
        }
    }
    return dpari_gx_bind_plan(&set, plan);
}

DPAR_API dpar_status dpar_grid_exchange_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                             int32_t depth)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpari_gx_plan *plan = NULL;
    dpar_status status = dpari_gx_ready(g, arrays, count, depth, DPARI_GX_HALOS, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_halo_plan_exchange(plan->exchange);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_gx_fill(g, &plan->mirrors, plan->exchange);
}

DPAR_API dpar_status dpar_grid_reflect(dpar_grid *grid, void *const *arrays, int32_t count)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpari_gx_plan *plan = NULL;
    const dpar_status status = dpari_gx_ready(g, arrays, count, 0, DPARI_GX_HALOS, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_gx_fill(g, &plan->mirrors, plan->exchange);
}

DPAR_API dpar_status dpar_grid_exchange(dpar_grid *grid, void *u)
{
    dpari_gx *g = dpari_gx_of(grid);
    if (!g) {
        return DPAR_E_ARG;
    }
    if (g->quick && (dpari_hx_bound(g->quick->exchange, 0) == u || dpari_gx_rebind(g, u))) {
        return dpar_halo_plan_exchange(g->quick->exchange);
    }
    return dpar_grid_exchange_many(grid, &u, 1, 0);
}

DPAR_API dpar_status dpar_grid_begin_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                          int32_t depth)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpari_gx_plan *plan = NULL;
    dpar_status status = dpari_gx_ready(g, arrays, count, depth, DPARI_GX_HALOS, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_halo_plan_begin(plan->exchange);
    if (status != DPAR_OK) {
        return status;
    }
    plan->active = 1;
    g->under_way++;
    g->quick = NULL;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_grid_begin(dpar_grid *grid, void *u)
{
    return dpar_grid_begin_many(grid, &u, 1, 0);
}

/* Finds the plan of the exchange in progress that an array takes part in. */
static dpar_status dpari_gx_active(dpar_grid *handle, const void *array, dpari_gx_plan **plan)
{
    const dpari_gx *grid = dpari_gx_of(handle);
    if (!grid) {
        return DPAR_E_ARG;
    }
    *plan = dpari_gx_in_progress(grid, array);
    if (!*plan) {
        return dpari_comm_wrong(handle->comm, "grid: no exchange of this array has begun");
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_grid_test(dpar_grid *grid, void *u)
{
    dpari_gx_plan *plan = NULL;
    const dpar_status status = dpari_gx_active(grid, u, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_halo_plan_test(plan->exchange);
}

DPAR_API dpar_status dpar_grid_end(dpar_grid *grid, void *u)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpari_gx_plan *plan = NULL;
    dpar_status status = dpari_gx_active(grid, u, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_halo_plan_end(plan->exchange);
    plan->active = 0;
    g->under_way--;
    g->quick = NULL; /* another plan may now be the first that fits */
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_gx_fill(g, &plan->mirrors, plan->exchange);
}

/* True if some array of a list, which a plan has accepted, has points that several ranks hold. */
static int dpari_gx_shares(const dpari_gx *grid, void *const *arrays, int32_t count)
{
    int32_t i, d;
    for (i = 0; i < count; i++) {
        const dpari_gx_shape *shape = dpari_gx_shape_at(grid, arrays[i]);
        for (d = 0; d < grid->head.dims; d++) {
            if (shape->field.location[d] != DPAR_HALO_AT_CELLS) {
                return 1;
            }
        }
    }
    return 0;
}

/* Without halos, the ranks that hold a point send their values to each other, and one exchange is
 * enough. Otherwise values are first sent to the owners, and then the results of shared points are
 * sent back, because a rank's halo may have points that other ranks share. Two exchanges are also
 * needed in memory that the CPU cannot reach, because there the boxes of one exchange are summed in
 * no fixed order. */
DPAR_API dpar_status dpar_grid_reduce_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                           int32_t op)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpari_gx_plan *plan = NULL;
    const int once = g && g->widest == 0 && !g->mem;
    dpar_status status =
        dpari_gx_ready(g, arrays, count, 0, once ? DPARI_GX_COMBINE : DPARI_GX_HALOS, &plan);
    if (status == DPAR_OK) {
        status = dpar_halo_plan_reduce(plan->exchange, op);
    }
    if (status != DPAR_OK || once || !dpari_gx_shares(g, arrays, count)) {
        return status;
    }
    status = dpari_gx_ready(g, arrays, count, 0, DPARI_GX_SHARED, &plan);
    return status == DPAR_OK ? dpar_halo_plan_exchange(plan->exchange) : status;
}

DPAR_API dpar_status dpar_grid_reduce(dpar_grid *grid, void *u, int32_t op)
{
    return dpar_grid_reduce_many(grid, &u, 1, op);
}

DPAR_API DPARI_COLD dpar_halo_plan *dpar_grid_plan(dpar_grid *grid, void *const *list, int32_t n)
{
    const dpari_gx_set set = {dpari_gx_of(grid), list, n, 0, DPARI_GX_HALOS};
    dpari_gx_plan *plan = NULL;
    if (!set.grid || dpari_gx_bind_plan(&set, &plan) != DPAR_OK) {
        return NULL;
    }
    return plan->exchange;
}

#endif /* DPAR_HALO_IMPLEMENTATION */
