/* SPDX-License-Identifier: MIT-0 */
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
#ifndef DPARI_HALO_HALO_PLAN_H
#define DPARI_HALO_HALO_PLAN_H

#include "../comm/world.h"
#include "../exchange/exchange.h"
#include "../host/mem.h"
#include "../host/strided.h"
#include "halo_box_groups.h"
#include "halo_exchange.h"

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

/* ---- of this header's own modules ---- */

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

#endif
