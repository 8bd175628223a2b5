/* SPDX-License-Identifier: MIT-0 */
/* halo_plan - what a planned exchange is made of, and where things lie in it. Private: the floor of
 * these, lowest first,
 *
 *     halo_beside    two boxes in one loop; lists of tiny ones
 *     halo_apart     checks that arrays have no element in common
 *     halo_walk      the boxes of a step
 *     halo_mem       what the CPU cannot move
 *     halo_prepare   how each box is copied
 *     halo_run       exchanges: begin, test, end
 *     halo_traffic   what it moves, to whom and how
 *     halo_exchange  checks, agrees, plans
 *     halo_tune      chooses a way by trying
 *     grid           grids and arrays, over all of these
 *
 * How an exchange runs. A box that goes from one rank to another is an item of either: the owner
 * lists what it sends (S), in the order of the walk, the holder of the halo what it receives (R),
 * by peer. Forward the owner packs and the holder takes; adjoint the holder packs and the owner
 * takes, in the order of S, in which each point's sums are those of the walk: what a rank adds of
 * its own where no peer's box was before comes first of all, so that it need not wait. What a rank
 * packs for others lies in its staging memory, twice: the exchanges take turns. Ranks that share
 * memory tell each other in two words,
 *
 *     ready = exchange << 8 | kind    what I pack is packed, my arrays may be read
 *     done  = exchange                I have taken all that I take
 *
 * and staging memory of a turn is written again when those who read it are done with the exchange
 * before the last. With others one message each way goes; but ranks whose devices reach each other
 * (`reached`: dpar_engine.alloc_shared) meet on their streams in place of it, and read what the
 * other packed where it lies. */
#ifndef DPARI_HALO_HALO_PLAN_H
#define DPARI_HALO_HALO_PLAN_H

#include "halo_beside.h"
#include "halo_exchange.h"
#include "../comm/mem.h"
#include "../comm/strided.h"
#include "../comm/world.h"

enum {
    DPARI_HX_DIMS = DPAR_MAX_DIMS + 1,      /* the last: components */
    DPARI_HX_STEPS = 3 * DPAR_MAX_DIMS - 1, /* of an exchange that goes dim by dim */
    DPARI_HX_SHORT = 64,                    /* bytes of a run: two sides are walked together */
    DPARI_HX_NEAR = 64,                     /* items to look through for the other side */
    DPARI_HX_ROWS = 1024,                   /* of a box: their ends are asked for, */
    DPARI_HX_ALL_ROWS = 768,                /* if those of all boxes are no more: measured, Xeon */
    DPARI_HX_MANY = 8192,     /* elements: what is met first and last is not near at once */
    DPARI_HX_TINY = 8,        /* elements of a box that may be taken before others: measured */
    DPARI_HX_CROWDED = 65536, /* bytes of a box: see dpari_hx_is_direct; measured */
    DPARI_HX_BESIDE = 64,     /* bytes between cells that surely share lines */
    DPARI_HX_HEAD = 8,        /* words of a record, and for each field */
    DPARI_HX_WORDS = 2 * DPAR_MAX_DIMS + 2,
    DPARI_HX_OWN = 0, /* parts of a field: its own points, compact halos */
    DPARI_HX_HALOS = 1,
    DPARI_HX_PACKING = 0, /* what the time goes to */
    DPARI_HX_COPYING,
    DPARI_HX_WAITING
};

/* What a rank says to its peers, one for each step that may be under way. */
typedef struct dpari_hx_line {
    uint64_t ready;
    uint64_t version; /* of the addresses of its arrays */
    char room_0[DPARI_LINE - 16];
    uint64_t done;
    char room_1[DPARI_LINE - 8];
} dpari_hx_line;

/* A field as one rank holds it. Steps in elements. */
typedef struct dpari_hx_array {
    const dpar_halo *h;
    int32_t rank, compact;
    int32_t reach[2];  /* 1 if peers may read it in place; of data and of halos */
    int32_t elsewhere; /* in memory that the CPU does not reach */
    int32_t exists;
    int64_t low[DPAR_MAX_DIMS], own[DPAR_MAX_DIMS]; /* first own point in the local box; how many */
    int64_t inner[DPAR_MAX_DIMS]; /* its first own point behind that of the array's room */
    int64_t origin[DPAR_MAX_DIMS], stride[DPAR_MAX_DIMS], component;
} dpari_hx_array;

/* A box in an array: from index 0 of the box on. */
typedef struct dpari_hx_spot {
    int32_t part;
    int64_t at; /* elements from the beginning of the part */
    int64_t stride[DPARI_HX_DIMS];
} dpari_hx_spot;

/* Small boxes have their runs in one list, which the first of them has. */
typedef struct dpari_hx_few {
    int64_t at;   /* its entries, in `spot` */
    int32_t runs; /* 0: there is none; -1: this box is in that of one before */
    int32_t step; /* so many items on is the next to look at */
} dpari_hx_few;

/* One box, seen from this rank; what an exchange reads first. */
typedef struct dpari_hx_item {
    int32_t field, peer;  /* -1: oneself */
    int32_t mine, theirs; /* parts, two a field: of a pair perhaps the other's */
    int32_t packs;        /* goes through memory when this rank gives it */
    int32_t row;    /* of a box that a peer reads where it lies: the dim of its rows; else -1 */
    int32_t direct; /* this rank reads it where it lies when it takes it */
    int32_t give_mate, take_mate; /* so many items on is the other side of the box, walked with this
                                     one; -1: that other side, or halo_mem.c moves it; 0: alone */
    dpari_hx_few given, taken;
    int64_t beside; /* of S: elements from each of its cells to one of the halo that becomes 0 when
                       the sum is made; 0: none does */
    int64_t wiper;  /* of R: so many items on is that of S which makes it 0; 0: none: it is made 0
                       when it is given */
    int64_t mine_at, theirs_at; /* bytes */
    int64_t pack_at, take_at;   /* bytes in the staging memory */
    dpari_stride give, take;
    int32_t negate, dims;
    int64_t elements;
    int64_t local[DPAR_MAX_DIMS]; /* where it begins in the local box, */
    int32_t here[DPARI_HX_DIMS];  /* this rank's dims for the sender's, */
    uint32_t flip;                /* those of them that count backwards */
    int64_t extent[DPARI_HX_DIMS], own_step[DPARI_HX_DIMS], other_step[DPARI_HX_DIMS];
    int64_t dense[DPARI_HX_DIMS];
} dpari_hx_item;

/* What goes between this rank and a peer in one step; [mode]. */
typedef struct dpari_hx_flow {
    int64_t out_at[2], out_bytes[2], out_direct[2]; /* what this rank packs; what the peer reads */
    int64_t in_at[2], in_bytes[2], in_direct[2];
    int64_t first, boxes; /* of R */
    int64_t sends;        /* items of S */
    uint64_t hash[2];     /* of R, of S: what one receives the other sends */
    int32_t packed;       /* the peer reads what this rank packs, here or in the other mode */
    int32_t taken;
} dpari_hx_flow;

typedef struct dpari_hx_peer {
    int32_t rank;
    int32_t world;   /* its number where memory is shared; -1: messages, */
    int32_t reached; /* but that this rank's device reads what it packs */
    uint64_t version;
    dpari_hx_line *line;
    const uint64_t *refs;
    const unsigned char **at; /* its arrays here: two parts a field */
    unsigned char *staging;
    int64_t turn;          /* bytes from one turn's staging memory to the other's */
    dpari_hx_array *array; /* while it is planned */
    dpari_hx_flow *flow;   /* one for each step */
} dpari_hx_peer;

typedef struct dpari_hx_step {
    int64_t r, r_items, s, s_items; /* in `item` */
    int64_t self;                   /* of R the first ones are from oneself; */
    int64_t own_first;              /* of S the first ones are to oneself and wait for no peer */
    int32_t number; /* dims from the last on, the contiguous one in C order; -1: all at once */
    int32_t along;  /* DPARI_HX_WIDE, ... */
    int32_t cut;    /* the number of the cut dim, where that matters */
    int32_t modes;  /* the modes that have this step: bits DPAR_HALO_FORWARD, DPAR_HALO_ADJOINT */
    int32_t line;   /* where ranks tell each other of it */
    int32_t meets;  /* something goes between this rank and one that shares memory */
    int32_t alone;  /* nothing goes to others or comes from them, all is in the CPU's memory */
} dpari_hx_step;

/* What a step takes along of halos that steps before it have filled. Of adjoints, with
 * options.ordered and where no dim or the last is cut: all of later dims. Where ranks meet along
 * one other dim alone, the cut one, each fills the halos of the others itself. Forward a plane then
 * goes to its peer without them, so that nobody waits for them: it is offered first of all, the
 * halos beside own planes are filled meanwhile, and those beside the planes that have come out of
 * these. The adjoint has steps of its own, which are WIDE: edges and corners go to the owner of the
 * plane, who adds them to its own halos and those to its block. */
enum {
    DPARI_HX_WIDE,       /* the halos of later dims */
    DPARI_HX_CUT,        /* along the cut dim: none */
    DPARI_HX_OWN_PLANES, /* along another one, beside own points of the cut dim: of later dims */
    DPARI_HX_HALO_PLANES /* the same beside the cut dim's halos */
};

struct dpar_halo_plan {
    dpar_comm *c, *node;
    dpari_world *world; /* NULL: messages alone */
    dpar_halo_plan_desc options;
    int32_t fields, peers, steps, rank;
    dpar_halo_field *field;
    dpari_hx_array *array;
    unsigned char **part; /* two a field */
    dpari_hx_peer *peer;
    int32_t *peer_of; /* 1 + the peer of a rank; then the rank in c of each of the node, or of each
                         that is reached */
    dpari_hx_item *item;
    int64_t items;
    dpari_stride_spot *spot; /* DPARI_STRIDE_FEW for each item when it is given, then when taken */
    int32_t bound;           /* arrays have been bound anew: a list is of one array */
    dpari_hx_step step[DPARI_HX_STEPS];
    dpar_call *call;
    dpar_work *work;       /* receives, then sends, two a peer */
    int64_t *record;       /* two a peer, and what is gathered */
    int64_t *span;         /* where each part of the fields begins and ends, while it is planned */
    void *owned; /* the pages that the plan is in, if dpar_halo_plan_make mapped them */
    int64_t owned_bytes;
    unsigned char *memory; /* registered: lines, refs, staging twice, what arrives */
    dpari_hx_line *line;
    uint64_t *refs;
    unsigned char *staging, *arrivals;
    int64_t turn, arrive_bytes, memory_bytes;
    int32_t nears;    /* devices of other ranks may reach the memory */
    int32_t reached;  /* peers whose memory this rank's device reads */
    int32_t part_now; /* with such: which of three turns the exchange under way is */
    int64_t count;    /* exchanges begun */
    int32_t active, mode, op, prepared; /* prepared: the op of the items */
    int32_t now, next, stage, messages; /* steps: under way, after it */
    int32_t forward; /* steps of a forward exchange, the first ones; those of an adjoint are all, or
                        the others */
    int32_t early;   /* of them the one that is offered before the first; 0: none */
    uint64_t version;
    double looked;
    double seconds[3];   /* DPARI_HX_PACKING, ... */
    int32_t lends[2];    /* some peer reads my arrays */
    int32_t asks;        /* dpari_hx_ask */
    int32_t wide;        /* dpari_os_wide */
    int32_t in_order;    /* all fields and what is registered are in the communicator's own memory,
                            which moves and messages use in order: nothing waits */
    int32_t elsewhere;   /* some field is in memory that the CPU does not reach: */
    dpar_status moved;   /* what its moves said */
    dpar_mem_box *box;   /* one for each such item */
    unsigned char *look; /* the largest of them fits */
    int64_t look_bytes;
};

/* ---- fields ---- */

/* Elements at a point. */
DPARI_API int32_t dpari_hx_components(const dpar_halo_field *f);
/* The type that travels. */
DPARI_API int32_t dpari_hx_wire(const dpar_halo_field *f);
/* Its memory; NULL: the host's. */
DPARI_API const dpar_mem *dpari_hx_mem(const dpar_halo_field *f);
/* The other field of a pair, which lies beside it; NULL: it is alone. */
DPARI_API const dpar_halo_field *dpari_hx_other(const dpar_halo_field *f);
/* Test whether what arrives after so many quarter turns comes from the other field's array, and
 * whether its sign changes. */
DPARI_API int dpari_hx_crosses(const dpar_halo_field *f, int32_t turn);
DPARI_API int dpari_hx_negates(const dpar_halo_field *f, int32_t turn);

/* ---- boxes in arrays ---- */

/* Own points and local box of a rank; 0: it has none. */
DPARI_API int dpari_hx_boxes(const dpar_halo *h, int32_t rank, dpar_box *own, dpar_box *all);
/* Where the box that begins at local point `at` lies in the array. */
DPARI_API void dpari_hx_place(const dpari_hx_array *a, const int64_t *at, int32_t components,
                              dpari_hx_spot *p);

/* ---- of this header's own modules ---- */

/* True if this field can be exchanged dim after dim. */
DPARI_INTERNAL int dpari_hx_can_order(const dpar_halo_field *f);
/* True if the field sets strides. */
DPARI_INTERNAL int dpari_hx_strided(const dpar_halo_field *f);
/* Without the points beyond physical ends, which are nobody's: an array need not have them. */
DPARI_INTERNAL void dpari_hx_inside(const dpar_halo *h, dpar_box *box);
/* The halo that the array has room for. */
DPARI_INTERNAL const dpar_halo *dpari_hx_room(const dpar_halo_field *f);
/* The array as `rank` holds it; dense: when origin and strides are the defaults. */
DPARI_INTERNAL void dpari_hx_array_of(dpari_hx_array *a, const dpar_halo_field *f, int32_t rank);
DPARI_INTERNAL void dpari_hx_dense(dpari_hx_array *a, const dpar_halo_field *f, int32_t rank);
/* Bytes in one piece. */
DPARI_INTERNAL int64_t dpari_hx_in_a_row(const int64_t *extent, const int64_t *stride, int32_t dims,
                                         int32_t type);

/* Which of the two turns the exchange under way is. */
DPARI_INTERNAL int64_t dpari_hx_parity(const dpar_halo_plan *x);
/* Where an item lies in this rank's array; where what is taken lies, and the beginning of the
 * memory that this is in. */
DPARI_INTERNAL unsigned char *dpari_hx_mine(const dpar_halo_plan *x, const dpari_hx_item *it);
DPARI_INTERNAL const unsigned char *dpari_hx_from(const dpar_halo_plan *x, const dpari_hx_item *it);
DPARI_INTERNAL const unsigned char *dpari_hx_base(const dpar_halo_plan *x, const dpari_hx_item *it);

#endif
