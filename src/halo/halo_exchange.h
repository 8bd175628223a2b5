/* SPDX-License-Identifier: MIT-0 */
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
#ifndef DPARI_HALO_HALO_EXCHANGE_H
#define DPARI_HALO_HALO_EXCHANGE_H

#include "../comm/comm.h"
#include "../host/mem.h"
#include "../index/halo.h"

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

#endif
