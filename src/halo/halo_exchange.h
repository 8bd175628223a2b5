/* SPDX-License-Identifier: MIT-0 */
/* halo_exchange - exchanges the halos of any number of fields of one grid, in your memory, over any
 * communicator. For the usual grid, grid.h is shorter. halo.h of dpar.h computes which points a
 * halo has and who owns them. Here an exchange is planned once, merged into one message per peer,
 * and run as often as you like.
 *
 * In this example 4 ranks, started by dpar_launch(4, heat, NULL, NULL, NULL), share 120 rows of 100
 * columns. Rows are cut, columns are periodic, and the halo is one point wide on all sides. The
 * tests compile and run it:
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
 * Boxes are in points of the whole grid, [lo, hi). `compute` reads this array, whose first element
 * is point box.lo, and writes another one; dpar_halo_plan_bind then swaps the two. Arrays of
 * dpar_comm_alloc are exchanged fastest, if they are of comm or of another communicator of its
 * world (dpar_comm_split). Arrays of malloc work too, but are packed, as dpar_halo_plan_report
 * shows. The message of an error is in `why`, or in comm->why for functions without it.
 *
 * A halo cell gets the value that its owner had at `begin`. Owners are inside the grid, around a
 * periodic end, or across a fold, a pole or an edge of a cube. Cells beyond a physical end are not
 * touched. Own cells are not touched either, except for the half row that a fold has twice. The
 * bits are the same on every engine and in every order of arrival.
 *
 * Between begin and end own cells may be read and must not be written, because peers may read them
 * in place. Halo cells must be neither read nor written.
 *
 * Cost. Latency is paid once per peer, for all fields together. Between ranks that share memory a
 * halo byte is read and written once if runs are long, and twice if they are short or AUTO packs
 * them. With messages it is read and written twice, and once more by the transport. What a rank
 * sends to itself (in a periodic dim of one rank) is copied without a message. No memory is
 * allocated after make, except that dpar_mpi.h's list of messages may still grow in the first
 * exchanges. */
#ifndef DPARI_HALO_HALO_EXCHANGE_H
#define DPARI_HALO_HALO_EXCHANGE_H

#include "../index/halo.h"
#include "../comm/comm.h"
#include "../comm/mem.h"

/* A field of a plan: an array with its halo. Zero it, then set the fields that you need: halo, type
 * and data are enough for a dense array in C order of dpar_halo_box. */
typedef struct dpar_halo_field {
    const dpar_halo *halo; /* the field's points and the widths to exchange. Fields of one plan may
                              differ in it: in points, widths and dims */
    const dpar_halo *array_halo; /* the halo that the array has, if that is wider than the one to
                                    exchange (see "Two widths" below); otherwise NULL */
    int32_t type;                /* DPAR_F64, ...; no default */
    int32_t vector; /* 1: each component changes its sign across a fold or a pole. 2: two
                       components, u along the last dim and v along the one before, which are
                       rotated where the grid is (cubed sphere) */
    /* For cubed spheres with values at cell faces: DPAR_HALO_PAIR_U, and the next field is
     * DPAR_HALO_PAIR_V. Signs change with vector 1; with 0 both fields are scalars. */
    int32_t pair;
    /* The type in which values are sent: F32 for F64; F16 or BF16 for F32. 0 sends them as they
     * are. Values are rounded to nearest, also if no message is needed, so that bits are the same
     * everywhere */
    int32_t wire_type;
    int32_t components;       /* elements at each point; 0 selects 1 */
    int64_t component_stride; /* elements between components; 0 selects 1. Any other number, as for
                                 one plane per component, requires strides (DPAR_E_ARG) */
    /* Component k of point p is data[sum over d of (first[d] + p[d] - own.lo[d]) * stride[d] +
     * k * component_stride], where `own` is dpar_halo_owned. If no stride is set, the array is
     * dense in C order with components last.
     *
     * Any order and any padding is possible. Fortran's a(0:nx+1, 0:ny+1) around nx x ny own points,
     * with x as dim 1, has stride = {nx + 2, 1} and first = {1, 1}. */
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours along each dim; dense if all 0 */
    int64_t first[DPAR_MAX_DIMS];  /* if strides are set, the index of the first own point in the
                                      array. If all are 0, data is the address of that point, and
                                      halos are before it too. Ignored without strides */
    void *data; /* address of element 0, 0, ... of the array; NULL on a rank without points */
    void *compact_halo; /* for the compact form: the halo, while `data` has only the own points. It
                           has slab after slab (dpar_halo_slab), each dense in C order with
                           components last */
    /* Functions to reach data and halos if the CPU cannot: a device's table, which must exist as
     * long as the plan. NULL for host memory. It may differ from rank to rank. If comm has a memory
     * of its own and sends everything by messages (no ranks share memory), it is comm->mem. The
     * host then does not wait for the device, and dpar_halo_plan_check fails with DPAR_E_ARG. */
    const dpar_mem *mem;
} dpar_halo_field;

/* The roles in a pair of vector fields on a cubed sphere. The two fields are next to each other in
 * the list: u along the last dim, then v along the one before, each on its own points. A C-grid has
 * u at faces of cells along x and v at faces along y, of the same kind (LOW, HIGH). A D-grid has
 * them the other way round. Across an edge of the sphere with one or three quarter turns, u's halo
 * gets v's points and v's halo gets u's.
 *
 * DPAR_E_ARG is returned if their halos have windows, or differ in grid or owners. So it is if
 * types, wires, components, vector or kinds of memory differ. Widths may differ. Plans of shared
 * points bring the points on edges from their owners, and reduce adds them, each in the direction
 * of its holder. With dims face, y, x and n + 1 faces in a row of n cells:
 *
 *     u.points[2] = v.points[1] = DPAR_HALO_AT_LOW_FACES;
 *     u.low[1] = u.low[2] = u.high[1] = v.low[1] = v.low[2] = v.high[2] = w;
 *     u.high[2] = v.high[1] = w + 1;
 *     f[0].halo = &u, f[0].vector = 1, f[0].pair = DPAR_HALO_PAIR_U;
 *     f[1].halo = &v, f[1].vector = 1, f[1].pair = DPAR_HALO_PAIR_V; */
enum { DPAR_HALO_PAIR_U = 1, DPAR_HALO_PAIR_V = 2 };

/* Two widths of one array. A code that needs 3 points once per step and 1 point in its substeps
 * makes two plans over the array, whose fields differ in `halo`. Bind both when arrays swap:
 *
 *     dpar_halo thin = wide;                           field.halo is &wide
 *     thin.low[0] = thin.high[0] = thin.low[1] = thin.high[1] = 1;
 *     dpar_halo_field inner = field;
 *     inner.halo = &thin;
 *     inner.array_halo = &wide;
 *
 * With strides, `first` also refers to the first own point of the wider one. Fails with DPAR_E_ARG
 * if the two differ in grid, mesh, owners or points, or if halos are compact, because their buffer
 * has one width. Fails with DPAR_E_RANGE if the exchanged box is not inside the other one. */

/* How halos are exchanged. */
enum {
    DPAR_HALO_AUTO,     /* DIRECT if peers' memory can be reached, otherwise messages. With more
                           ranks than cores, boxes of less than 64 KiB are packed; boxes in a
                           device's memory always are */
    DPAR_HALO_MESSAGES, /* packed into one message per peer */
    DPAR_HALO_PACKED,   /* packed into memory that the peer reads */
    DPAR_HALO_DIRECT    /* peers read long runs in place; their owner packs short ones */
};

/* The fields of an exchange and its method. Zero it and set field and field_count; 0 selects the
 * default of all others. All ranks pass the same, except for strides, addresses, timers, memory. */
typedef struct dpar_halo_plan_desc {
    const dpar_halo_field *field; /* [field_count]; read only by make and tune */
    int32_t field_count;          /* 1 .. 4096 */
    int32_t method;               /* DPAR_HALO_x */
    /* 1 exchanges dim after dim, the last dim first, so that edges and corners arrive in two and
     * three steps. This takes fewer messages and more waits. It is DPAR_E_ARG with folds, poles,
     * cubes, masked owners, windows, compact halos, and edges without corners.
     *
     * 0 exchanges dim after dim if that takes no more waits, and otherwise all at once. It takes no
     * more waits for fields of cells in the CPU's memory, with corners, if at most one dim is cut.
     * If that dim is not the last one, forward messages wait for no other step: edges and corners
     * are copied from the halo cells that they have filled. */
    int32_t ordered;
    /* 1 exchanges only shared points, which several ranks hold: faces, edges and corners between
     * blocks (DPAR_HALO_AT_x_FACES), and the row that a fold has twice. Widths must be as
     * DPAR_HALO_SYNC documents, otherwise it is DPAR_E_ARG. Such a plan cannot be ordered. */
    int32_t shared;
    int64_t run_bytes; /* for DIRECT: the least bytes of a long run; 0 selects 64 */
    int32_t tag;    /* of the messages. Several plans may have the same tag, but your own messages
                       between begin and end must have another one */
    int32_t timers; /* 1 keeps times for dpar_halo_plan_report, at two clock readings a phase */
    /* Memory of yours for the plan, aligned to 64, as long as the plan exists. NULL with bytes 0:
     * dpar_halo_plan_make allocates it. Too few bytes are DPAR_E_ROOM, and why->bytes tells how
     * many are needed on this rank. */
    void *memory;
    int64_t bytes;
} dpar_halo_plan_desc;

/* A planned exchange of halos. Its contents are private. */
typedef struct dpar_halo_plan dpar_halo_plan;

/* Plans an exchange. All ranks describe the same fields (their number, types, points, widths), each
 * with its own arrays.
 *
 * The fields' arrays and halos must stay in place as long as the plan exists. They may be
 * interleaved, but no two may have an element in common, except for cells beyond physical ends, nor
 * one with the plan's memory. This is DPAR_E_ARG where a search of at most 2^20 steps in their
 * strides finds it. An array from dpar_comm_alloc must end inside its allocation, rounded up to
 * whole pages of 4096 bytes (DPAR_E_ARG). The extent of other arrays cannot be checked.
 *
 * Collective over comm. Fails on all ranks with DPAR_E_MISMATCH if fields differ between ranks, and
 * with DPAR_E_ARG, DPAR_E_RANGE, DPAR_E_MEMORY, or DPAR_E_ROOM if desc.bytes are too few. Costs
 * several messages per peer, once, not in each step. Staging memory comes from dpar_comm_alloc. */
DPAR_API dpar_status dpar_halo_plan_make(dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                         dpar_halo_plan **plan, dpar_why *why);
/* Replaces the array of field f by another array of the same shape, for codes that swap old and new
 * values. Call it between exchanges. The new array is as large as the old one and has no element in
 * common with other fields; neither is checked.
 *
 * Local. Fails with DPAR_E_ARG, also if the old array is registered, so that peers may read it in
 * place, and the new one is not. The message is in comm->why. Costs O(1). */
DPAR_API dpar_status dpar_halo_plan_bind(dpar_halo_plan *plan, int32_t f, void *data, void *halos);
/* Starts an exchange that fills halos: packs, posts messages and copies what the rank sends to
 * itself. Until dpar_halo_plan_end own cells may be read, and halo cells must not be touched.
 *
 * Collective, in the same order on all ranks of comm, but ranks wait only for their peers. A rank
 * may wait here for peers that have not yet read what it packed two exchanges ago. Several plans
 * may be in progress at a time, also over the same fields if none writes what another one reads. If
 * the messages of a plan are sent in several steps, the next begin over comm posts those that are
 * left and waits for what they need.
 *
 * Fails with DPAR_E_PEER or DPAR_E_TIMEOUT as comm.h describes, which breaks the communicator; the
 * message is in comm->why. Fails with DPAR_E_MISMATCH on ranks that notice that a peer has begun
 * the adjoint or another op, and with DPAR_E_ARG if an exchange of this plan has not ended. Begin
 * and end together cost O(pieces + bytes), for the bytes that dpar_halo_plan_report lists. */
DPAR_API dpar_status dpar_halo_plan_begin(dpar_halo_plan *plan);
/* Starts the adjoint (transpose) of an exchange: owners receive the values of the halos, combined
 * by `op` with their own, and the halos become 0. Until dpar_halo_plan_end neither own cells
 * nor halo cells may be read or written.
 *
 * op: DPAR_SUM, DPAR_MAX or DPAR_MIN.
 *
 * The order of sums is that of the pieces, field by field; it never depends on arrival. Ordered
 * plans proceed dim after dim, the first dim first. Plans with desc.ordered 0 do so too, if
 * their fields are in the CPU's memory and are ordered; fields in a device's memory are not.
 *
 * Collective. Errors and cost are those of dpar_halo_plan_begin. Fails also with DPAR_E_ARG if
 * an op or a type cannot be combined. */
DPAR_API dpar_status dpar_halo_plan_reduce_begin(dpar_halo_plan *plan, int32_t op);
/* Advances an exchange as far as possible without waiting. Returns DPAR_OK if all has arrived (end
 * must still be called), or DPAR_MORE if not yet. Messages advance only inside calls, so call it
 * now and then between tiles of the interior. Local. Fails as begin, but never with DPAR_E_TIMEOUT,
 * because a test has no deadline. Costs O(peers) and the bytes that it moves. */
DPAR_API dpar_status dpar_halo_plan_test(dpar_halo_plan *plan);
/* Waits until halos are filled and own cells may be written again. Several plans in progress end in
 * the same order on all ranks. Returns DPAR_OK if no exchange is in progress. Errors and cost are
 * those of begin. */
DPAR_API dpar_status dpar_halo_plan_end(dpar_halo_plan *plan);
/* Runs an exchange: begin and end in one call. Collective, with their errors and cost. */
DPAR_API dpar_status dpar_halo_plan_exchange(dpar_halo_plan *plan);
/* Combines the halo values with those of their owners: reduce_begin, then end. Followed by
 * dpar_halo_plan_exchange, all holders of a point get the result. With a plan of shared points
 * these two calls are the assembly of finite elements; for an average, assemble an array of ones
 * too, which counts the holders, and divide by it.
 *
 * op: DPAR_SUM, DPAR_MAX or DPAR_MIN.
 *
 * A sum of two holders has the bits of the serial a + b. The order of more holders is that of the
 * blocks, which is the same on all engines, but not for another number of ranks. Collective. Fails
 * as begin. Costs one exchange. */
DPAR_API dpar_status dpar_halo_plan_reduce(dpar_halo_plan *plan, int32_t op);
/* Frees a plan and its staging memory. NULL is allowed. Free plans before their communicator:
 * dpar_comm_free ends all that was planned over it, and no call may use such a plan afterwards.
 * Collective: a barrier over the communicator. Fails with DPAR_E_ARG if an exchange is in progress.
 * After an exchange that failed it returns that exchange's status. */
DPAR_API dpar_status dpar_halo_plan_free(dpar_halo_plan *plan);

/* ---- choosing ---- */

/* Finds the fastest method for an exchange by measuring forward exchanges with each method, about
 * 20 ms each. Writes it to desc->method, desc->ordered and desc->run_bytes, which are not read.
 * They are the same on all ranks; keep them with your code's configuration.
 *
 * desc:    the plan that you want to make. Plans are made and freed here, in their own memory.
 * seconds: receives the median time of an exchange on the slowest rank; may be NULL.
 *
 * The fields' halos are filled afterwards. Collective. Fails as dpar_halo_plan_make and
 * dpar_halo_plan_exchange do. The sums of ordered and unordered adjoints differ by rounding, so
 * keep the choice if runs must repeat their bits. */
DPAR_API dpar_status dpar_halo_plan_tune(dpar_comm *comm, dpar_halo_plan_desc *desc,
                                         double *seconds, dpar_why *why);

#endif
