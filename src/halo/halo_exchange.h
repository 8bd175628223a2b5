/* SPDX-License-Identifier: MIT-0 */
/* halo_exchange - halos that move: any number of fields of one grid, in your memory, over any
 * communicator. For the usual grid, grid.h is shorter. halo.h of dpar.h says what goes where. Here
 * that is planned once, merged into one message a peer, and run as often as you like.
 *
 * This is what each of 4 ranks runs (start: dpar_launch(4, heat, NULL)) on 120 rows of 100 columns.
 * Rows are cut, columns are a ring, and there is one more point on all sides. The tests compile and
 * run it:
 *
 *     static int heat(dpar_comm *c, void *unused)
 *     {
 *         const int64_t cells[2] = {120, 100};
 *         const dpar_placement cut[1] = {dpar_shard(0)};
 *         dpar_mesh mesh;
 *         dpar_halo h = {0};
 *         dpar_halo_field f = {0};
 *         dpar_halo_plan_desc o = {0};
 *         dpar_halo_plan *x = NULL;
 *         dpar_box box, todo;
 *         dpar_why why;
 *         int64_t bytes = 0, step;
 *         void *memory = NULL;
 *         int n, bad = dpar_mesh_init(&mesh, "rows", &c->size, DPAR_ORDER_LAST_FASTEST, 0, &why);
 *         bad = bad || dpar_layout_init(&h.grid, &mesh, 2, cells, cut, &why);
 *         h.low[0] = h.high[0] = h.low[1] = h.high[1] = 1;
 *         h.periodic = 1u << 1;
 *         bad = bad || !dpar_halo_box(&h, c->rank, &box);
 *         f.halo = &h;
 *         f.type = DPAR_F64;
 *         bad = bad || dpar_comm_alloc(c, dpar_box_volume(&box) * 8, &f.data);
 *         o.field = &f;
 *         o.fields = 1;
 *         bad = bad || dpar_halo_plan_bytes(c, &o, &bytes, &why);
 *         bad = bad || dpar_comm_alloc(c, bytes, &memory);
 *         bad = bad || dpar_halo_plan_init(memory, bytes, c, &o, &x, &why);
 *         for (step = 0; step < 10 && !bad; step++) {
 *             bad = dpar_halo_plan_begin(x);
 *             if (dpar_halo_interior(&h, c->rank, &todo)) {
 *                 compute(&f, &box, &todo);
 *             }
 *             bad = bad || dpar_halo_plan_end(x);
 *             for (n = 0; dpar_halo_boundary(&h, c->rank, n, &todo); n++) {
 *                 compute(&f, &box, &todo);
 *             }
 *         }
 *         bad = bad || dpar_halo_plan_close(x);
 *         dpar_comm_release(c, memory);
 *         dpar_comm_release(c, f.data);
 *         (void)unused;
 *         return bad;
 *     }
 * Boxes count in points of the whole grid, [lo, hi). `compute` reads this array, whose first
 * element is point box.lo, and writes another; dpar_halo_plan_bind then swaps the two. Arrays
 * of dpar_comm_alloc are the fastest: of c or of any communicator of its world (dpar_comm_split).
 * Arrays of malloc are right, too. They are packed, and dpar_halo_plan_report says so. When
 * something is bad the sentence is in why or in c->why.
 *
 * What a halo cell gets: what its owner had at `begin`. That holds inside the grid, round a
 * periodic end, over a fold, a pole or an edge of a cube. Cells beyond a physical end are not
 * touched. Own cells are not touched either, but for the half row that a fold has twice. The bits
 * are the same on every engine and in every order of arrival.
 *
 * Between begin and end own cells may be read and must not be written: peers may read them where
 * they lie. Halo cells must be neither read nor written.
 *
 * Cost. Latency is paid once a peer, for all fields together. Between ranks that share memory a
 * halo byte is read and written once where runs are long, twice where they are short or AUTO packs
 * them. With messages it is twice, and once more by what carries them. A rank's piece of itself (a
 * periodic dim of one rank) is a copy, never a message. No memory is allocated after init, but
 * dpar_mpi.h's list of messages may still grow in the first exchanges. */
#ifndef DPARI_HALO_HALO_EXCHANGE_H
#define DPARI_HALO_HALO_EXCHANGE_H

#include "../index/halo.h"
#include "../comm/comm.h"
#include "../comm/mem.h"

/* One array of a plan. Zero it and fill in what differs: halo, type and data are enough for a dense
 * array in C order of dpar_halo_box. */
typedef struct dpar_halo_field {
    const dpar_halo *halo; /* the field's points, and the widths that are exchanged; checked. Fields
                              of one plan may have different ones: other points, widths, dims */
    const dpar_halo *room; /* NULL; or the halo that the array has room for, where that is wider
                              than the one that is exchanged: see below */
    int32_t type;          /* DPAR_F64, ...; must be said */
    int32_t vector; /* 1: each component changes its sign over a fold or a pole. 2: two components,
                       (u, v) along the last dim and the one before, which turn where the grid does
                       (cubed sphere) */
    int32_t pair; /* cubed sphere, faces of cells: DPAR_HALO_PAIR_U, and the next field is V. Signs
                     with vector 1; with 0 they are scalars at their points */
    /* 0: travels as it is. Else as this type (F64 as F32; F32 as F16 or BF16), rounded to nearest,
     * also where no message is needed, so that bits are the same everywhere */
    int32_t wire;
    int32_t components;       /* elements at each point; 0: 1 */
    int64_t component_stride; /* elements between components; 0: 1. Where it is not 1 (a plane for
                                 each component) strides must be given: E_ARG without */
    /* Where point p lies, as in C: data[sum over d of (origin[d] + p[d] - own.lo[d]) * stride[d] +
     * component * component_stride], own: dpar_halo_owned. With nothing set: dense, C order,
     * components last.
     *
     * Any order and any padding will do. Fortran's a(0:nx+1, 0:ny+1) around nx x ny own points, x
     * being dim 1: stride = {nx + 2, 1}, origin = {1, 1}. */
    int64_t stride[DPAR_MAX_DIMS]; /* elements between neighbours along each dim; all 0: dense */
    int64_t origin[DPAR_MAX_DIMS]; /* with strides: index of the first own point in the array. All
                                      0: data is the address of that point, halos lie before it too.
                                      Without strides it does not count */
    void *data;  /* address of index 0, 0, ... of the array; NULL where the rank has no points */
    void *halos; /* compact form: the halo goes here, `data` holds own points alone. Slab after slab
                    (dpar_halo_slab), each dense in C order, components last */
    /* how to reach data and halos where the CPU cannot: a device's table, which lives as long as
     * the plan. NULL: host memory. It may differ from rank to rank. Where c has a memory of its own
     * and messages carry all (no ranks share memory) it is c->mem. Nothing then waits for the
     * device, and dpar_halo_plan_check gives E_ARG */
    const dpar_mem *mem;
} dpar_halo_field;

/* Pairs of fields on a cubed sphere: one after the other in the list, u along the last dim, then v
 * along the one before, each on its own points. A C-grid has u at faces of cells along x and v at
 * faces along y, of the same kind (LOW, HIGH); a D-grid the other way round. Over an edge of the
 * sphere with one or three quarter turns u's halo gets v's points, and v's gets u's.
 *
 * E_ARG: their halos have windows, or another grid or other owners; or types, wires, components,
 * vector or kinds of memory differ. Widths may. Plans of shared points bring those on edges from
 * their owners. assemble adds them, each in its holder's direction. With dims face, y, x, n + 1
 * faces in a row of n cells:
 *
 *     u.points[2] = v.points[1] = DPAR_HALO_AT_LOW_FACES;
 *     u.low[1] = u.low[2] = u.high[1] = v.low[1] = v.low[2] = v.high[2] = w;
 *     u.high[2] = v.high[1] = w + 1;
 *     f[0].halo = &u, f[0].vector = 1, f[0].pair = DPAR_HALO_PAIR_U;
 *     f[1].halo = &v, f[1].vector = 1, f[1].pair = DPAR_HALO_PAIR_V; */
enum { DPAR_HALO_PAIR_U = 1, DPAR_HALO_PAIR_V = 2 };

/* Two widths of one array. A code that needs 3 points once a step and 1 in its substeps has two
 * plans over the array, whose fields differ in `halo`. Bind both when arrays swap:
 *
 *     dpar_halo thin = wide;                           field.halo is &wide
 *     thin.low[0] = thin.high[0] = thin.low[1] = thin.high[1] = 1;
 *     dpar_halo_field inner = field;
 *     inner.halo = &thin;
 *     inner.room = &wide;
 *
 * With strides, too, `origin` is the first own point of the wider one. E_ARG: grid, mesh, owners or
 * points of both differ, or halos are compact (their buffer has one width). E_RANGE: the exchanged
 * box does not lie inside the other. */

/* How it travels. */
enum {
    DPAR_HALO_AUTO,     /* DIRECT where peers' memory can be reached, else messages. With more ranks
                           than cores boxes of less than 64 KiB are packed; devices' always */
    DPAR_HALO_MESSAGES, /* packed, one message a peer */
    DPAR_HALO_PACKED,   /* packed into memory that the peer reads */
    DPAR_HALO_DIRECT    /* peers read long runs where they lie; their owner packs short ones */
};

/* What is exchanged, and how. Zero it and fill in field and fields; the rest of 0 are the defaults.
 * The same on all ranks, but for where arrays lie and timers. */
typedef struct dpar_halo_plan_desc {
    const dpar_halo_field *field; /* [fields]; read by bytes, init and tune alone */
    int32_t fields;               /* 1 .. 4096 */
    int32_t way;                  /* DPAR_HALO_x */
    /* 1: dim after dim, the last dim first, so that edges and corners travel in two and three
     * steps: fewer messages, more waits. E_ARG with folds, poles, cubes, masked owners,
     * windows, compact halos, edges without corners.
     *
     * 0: ordered where that takes no more waits, else all at once. That is so for fields of
     * cells in the CPU's memory, with corners, of which one dim at most is cut. If that dim is
     * not the last, what goes to peers forward waits for no other step: edges and corners are
     * copied out of it where it has arrived. */
    int32_t ordered;
    /* 1: only shared points, which several ranks hold: faces, edges, corners between blocks
     * (DPAR_AT_x_FACES), and the row that a fold has twice. Widths as DPAR_HALO_SYNC says, else
     * E_ARG. Not ordered. */
    int32_t shared;
    int64_t run_bytes; /* DIRECT: runs of so many bytes are long; 0: 64 */
    int32_t tag; /* of the messages; your own messages between begin and end have another. Plans may
                    have the same */
    int32_t timers; /* 1: keep times for dpar_halo_plan_report: two clock readings a phase */
} dpar_halo_plan_desc;

/* A planned exchange: a handle. */
typedef struct dpar_halo_plan dpar_halo_plan;

/* Bytes that init needs on this rank of your memory, aligned to 64 (aligned_alloc,
 * dpar_comm_alloc); give it back after close. Errors as init, of this rank alone; it does not look
 * at where arrays lie. Local. O(pieces). */
DPAR_API dpar_status dpar_halo_plan_bytes(const dpar_comm *c, const dpar_halo_plan_desc *options,
                                          int64_t *bytes, dpar_why *why);
/* Plans the exchange. COLLECTIVE over c: all ranks give the same fields (their number, types,
 * points, widths), each its own data. Staging memory comes from dpar_comm_alloc. Costs some
 * messages a peer: once, not each step.
 *
 * The fields' arrays and halos stay where they are as long as the plan lives. They may be
 * interleaved. No two have an element in common, cells beyond physical ends apart, nor one with the
 * plan's memory. (E_ARG, as far as 2^20 steps of a search in their strides show it.) An array from
 * dpar_comm_alloc must end inside its allocation, to whole pages of 4096 bytes (E_ARG). For other
 * arrays dpar trusts you.
 *
 * On all ranks, with a sentence: E_MISMATCH where fields differ between ranks, E_ARG, E_RANGE,
 * E_ROOM, E_MEMORY. */
DPAR_API dpar_status dpar_halo_plan_init(void *memory, int64_t bytes, dpar_comm *c,
                                         const dpar_halo_plan_desc *options, dpar_halo_plan **plan,
                                         dpar_why *why);
/* Puts another array of the same shape in place of field f's, between exchanges: for codes that
 * swap old and new. It is as large as the old one and has no element in common with other fields;
 * neither is checked. Local. O(1). E_ARG, its sentence in c->why. That is also when the old array
 * is registered, so that peers may read it where it lies, and the new one is not. */
DPAR_API dpar_status dpar_halo_plan_bind(dpar_halo_plan *x, int32_t f, void *data, void *halos);
/* Starts an exchange: packs what is to be packed, posts messages, copies a rank's pieces of itself
 * (or adds them, where no peer's come before). COLLECTIVE, in the same order on all ranks of c;
 * ranks wait for their peers alone. begin and end together send, or let peers read, the bytes that
 * dpar_halo_plan_report lists: O(pieces + those bytes).
 *
 * begin: halos receive. begin_adjoint is the transpose: owners receive what halos collected,
 * combined with what they have by DPAR_SUM, DPAR_MAX or DPAR_MIN, and the halos become 0. Until end
 * neither own cells nor halos may then be read or written. The order of sums is that of the pieces,
 * the walk's, field by field; never of arrival. Ordered plans go dim after dim, the first dim
 * first. So do those with options.ordered 0 where fields in the CPU's memory are ordered; a
 * device's never are.
 *
 * A rank may wait here for peers that have not yet read what it packed two exchanges ago. Several
 * plans may be under way at a time, also over the same fields if what one writes no other reads.
 * Where a plan's messages go in several steps, the next begin over c posts those that are left and
 * waits for what they need.
 *
 * E_PEER, E_TIMEOUT as comm.h: such an error breaks the communicator, its sentence is c->why.
 * E_MISMATCH: for ranks that notice another mode. E_ARG: another exchange of this plan has not
 * ended, or an op or a type does not combine. */
DPAR_API dpar_status dpar_halo_plan_begin(dpar_halo_plan *x);
DPAR_API dpar_status dpar_halo_plan_reduce_begin(dpar_halo_plan *x, int32_t op);
/* Goes on as far as it can without waiting. Messages move only inside of calls: call it now and
 * then between tiles of the core. OK: all has come (call end all the same). MORE: not yet. Local;
 * errors as begin, but never E_TIMEOUT: who tests has no deadline. O(peers) and what it moves. */
DPAR_API dpar_status dpar_halo_plan_test(dpar_halo_plan *x);
/* Returns when halos are filled and own cells may be written again. Several plans under way end in
 * the same order on all ranks. OK when nothing is under way. Errors and cost: see begin. */
DPAR_API dpar_status dpar_halo_plan_end(dpar_halo_plan *x);
/* begin and end in one. COLLECTIVE; errors and cost as theirs. */
DPAR_API dpar_status dpar_halo_plan_exchange(dpar_halo_plan *x);
/* Combines (DPAR_SUM, MAX, MIN) what all who hold a point have for it, and gives the result to all
 * of them: begin_adjoint, end, begin, end. With a plan of shared points this is the assembly of
 * finite elements. For an average assemble an array of ones, which counts the holders, and divide
 * by it. COLLECTIVE; errors as begin. Cost: two exchanges.
 *
 * Of two holders the sum has the bits of the serial a + b. With more the order is that of the
 * blocks: the same on all engines, not for another number of ranks. */
DPAR_API dpar_status dpar_halo_exchange_assemble(dpar_halo_plan *x, int32_t op);
/* Closes a plan: gives the staging memory back, a barrier over c. COLLECTIVE. NULL is fine. E_ARG
 * while an exchange is under way; after one that failed: its status. Close plans before c is
 * closed: dpar_comm_free ends what was planned over c, and no call may have such a plan any
 * more. */
DPAR_API dpar_status dpar_halo_plan_close(dpar_halo_plan *x);

/* ---- choosing ---- */

/* Finds the fastest way to exchange these fields: runs forward exchanges in every way that is
 * possible, about 20 ms each. It writes the fastest into way, ordered and run_bytes of the options,
 * which it does not read. They are the same on all ranks, to keep beside the code's own
 * configuration. *seconds (NULL: not wanted): what an exchange took, the slowest rank's median.
 *
 * COLLECTIVE. memory: the larger of what dpar_halo_plan_bytes says with ordered 0 and 1, free
 * again afterwards. The fields' halos are filled afterwards. Errors as init and run. Ordered or
 * not, sums of adjoints differ by rounding: keep the choice where runs repeat their bits. */
DPAR_API dpar_status dpar_halo_plan_tune(void *memory, int64_t bytes, dpar_comm *c,
                                         dpar_halo_plan_desc *options, double *seconds,
                                         dpar_why *why);

#endif
