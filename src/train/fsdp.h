/* SPDX-License-Identifier: MIT-0 */
/* fsdp - training with the optimizer's state, the gradients and the weights of a model cut over the
 * ranks: ZeRO-1, 2 and 3 (FSDP), and hybrids of it with replicas. Parameters come in units, one a
 * layer: a unit is what travels at once. Its parameters lie end to end in C order, padded to equal
 * shards (flat.h). Each rank keeps one shard of the masters and of the optimizer's arrays.
 *
 *     ZeRO-1   weights are whole on every rank, gathered once a step; gradients are whole,
 *              reduced in the last micro-batch
 *     ZeRO-2   weights as ZeRO-1 (FSDP: reshard_after_forward = False);
 *              gradients are shards, reduced in each micro-batch
 *     ZeRO-3   weights are gathered before forward and again before backward,
 *              `prefetch` units ahead, into a pool of prefetch + 1 units;
 *              gradients as ZeRO-2
 *
 *     options.units = units; options.params_of = params_of; options.numel = numel;
 *     options.zero = 3; options.type = options.compute = options.gradient = DPAR_F32;
 *     dpar_optimizer_init(&options.optimizer, DPAR_OPTIMIZER_ADAMW);
 *     dpar_fsdp_make(c, &options, &f, &why);
 *     for (i = 0; i < params; i++) dpar_fsdp_set(f, i, initial[i]);
 *     each step:
 *         dpar_fsdp_zero(f);
 *         each micro-batch b of B:
 *             dpar_fsdp_begin(f, b == B - 1);
 *             forward, each unit u:
 *                 dpar_fsdp_unshard(f, u, DPAR_ACTION_FORWARD);
 *                 ... uses the weights dpar_fsdp_weight(f, i) ...
 *                 dpar_fsdp_reshard(f, u, DPAR_ACTION_FORWARD);
 *             backward, each unit u from the last:
 *                 dpar_fsdp_unshard(f, u, DPAR_ACTION_BACKWARD);
 *                 ... uses the weights, adds to the gradients dpar_fsdp_gradient(f, i, NULL)
 *                     (options.assigned: writes them) ...
 *                 dpar_fsdp_reshard(f, u, DPAR_ACTION_BACKWARD);
 *                 dpar_fsdp_ready(f, u);       later, where gradients are computed later
 *             dpar_fsdp_end(f);
 *         dpar_fsdp_norm(f, &norm);
 *         dpar_fsdp_step(f, rate, dpar_optimizer_clip(norm, 1.0));
 *     dpar_fsdp_free(f);
 *
 * (dpar_fsdp_bytes, _init and _close: the same in memory of yours; _bytes also plans.)
 *
 * A weight that several layers use (tied: the embedding is the output, too) is a unit of its own
 * that stays in use. Unshard it before the first of them and reshard it after the last, forward and
 * backward; make it ready after the last gradient. options.at_once says how many units are in use
 * together: 2 then.
 *
 * Evaluation: unshard (DPAR_ACTION_FORWARD) and reshard work outside of a pass, and begin may come
 * just before backward.
 *
 * Pointers: with ZeRO-1 and 2 dpar_fsdp_weight gives the same address of a parameter in every step.
 * So does dpar_fsdp_gradient where gradients are whole (ZeRO-1, `once`). With ZeRO-3, and for
 * gradients of ZeRO-2, ask again after each unshard.
 *
 * A checkpoint: each rank writes what dpar_fsdp_state gives of each unit and array; dpar_fsdp_load
 * reads it, on as many ranks or others.
 *
 * Hybrid: `c` are the ranks that share one copy (a node), options.replicas those that hold the same
 * shard of other copies (dpar_comm_split_axes makes both). Gradients are reduced inside, then their
 * shards across, once a step.
 *
 * Pipeline: a whole step is one pass. UNSHARD is unshard (of a stage's first: BACKWARD, so that
 * there is room for its gradients; then FORWARD), RESHARD reshard, REDUCE_GRAD ready; begin and
 * end stand round dpar_pipeline_run. prefetch and buffers: as many as the rank has stages. Of
 * several runs that add up each is a pass; those with last = 0 leave REDUCE_GRAD out: call ready of
 * each unit after them, before the end.
 *
 * Gradients are averaged over the ranks (options.sum: added up) and added up over micro-batches.
 * Where a step is to be the mean over those too, scale the loss by 1 / B, or give step its factor.
 *
 * Promises. Nothing is allocated after init: dpar_fsdp_sizes says by term what init takes. Sums go
 * in rank order: the same bits in every run, whatever is prefetched. Replicas stay the same bit by
 * bit. What is in the pool already is not gathered again. All ranks visit units in one order
 * (E_MISMATCH else; over MPI with its option `check`).
 *
 * In a device's memory (c->mem) all arrays lie there, also those that set and load are given.
 * Functions follow what its stream was given and order what follows. Only norm and load wait. */
#ifndef DPARI_TRAIN_FSDP_H
#define DPARI_TRAIN_FSDP_H

#include "../index/flat.h"
#include "../index/layout.h"
#include "../schedule/schedule.h"
#include "../comm/comm.h"
#include "optimizer.h"

/* Options of an fsdp. Zero it and fill in what differs. The same on all ranks, but for replicas and
 * names. */
typedef struct dpar_fsdp_desc {
    int32_t units;            /* of the model, in the order of forward */
    int32_t zero;             /* 1, 2, 3 */
    const int32_t *params_of; /* [units] parameters of each, 0 and more; */
    const int64_t *numel;     /* [of all] elements of each, 0 and more, unit after unit. Both are
                                 read by bytes and init alone */
    dpar_comm *replicas;      /* NULL: none. Of one world with c */
    int32_t type;     /* of the masters, which are updated: F64, F32; BF16, F16: no masters but the
                         weights themselves. The optimizer's arrays are what
                         dpar_optimizer_check says: F64 beside F64, else F32 or BF16.
                         It and the next two must be said */
    int32_t compute;  /* of the weights that forward and backward see, and that travel: type, F32 of
                         F64, BF16 or F16 of F32 */
    int32_t gradient; /* in which gradients are computed and travel: compute, or a wider one. 16
                         bits are added up in F32 and rounded once (by ZeRO-1, and with `once`,
                         over replicas once more); micro-batches are summed in F32
                         (F64 for type F64) by ZeRO-2 and 3 */
    int32_t prefetch; /* units gathered ahead of the one in use, 0 and more */
    int32_t buffers;  /* ZeRO-2, 3: units whose gradients may be under way at once; 0: as
                         at_once; fewer: E_ROOM */
    int32_t at_once;  /* units that are in use at the same time, or whose gradients are computed; 0:
                         1. The pool has prefetch + at_once units, and there are `buffers` for as
                         many. More is E_ROOM, which names them */
    int32_t once;     /* ZeRO-2, 3: 1: gradients stay whole in all micro-batches and are reduced in
                         the last (less traffic, more memory: as ZeRO-1) */
    int32_t sum;      /* 1: sums over the ranks; 0: averages */
    /* 0: backward adds to gradients, which are 0 before. 1: it writes them, except where
     * dpar_fsdp_gradient says so, and nothing is zeroed before. It writes each element of each
     * parameter of the unit, 0 where it has none. */
    int32_t assigned;
    const char *const *names; /* of the units, for sentences, as long as the fsdp lives; NULL: their
                                 numbers */
    int64_t align;            /* starts of parameters in their unit, in elements; 0: 1 */
    /* stochastic: also where F32 masters become BF16 weights. Everything rounds by the number of an
     * element among all, the units end to end. So copies in other fsdp's (of tensor-parallel ranks)
     * stay equal where they have the same number there. */
    dpar_optimizer optimizer;
} dpar_fsdp_desc;

/* Bytes of a rank. The sum of the last six, each rounded up to 64, is `registered`. */
typedef struct dpar_fsdp_sizes {
    int64_t plan;       /* that init needs of the caller's memory (aligned to 64) */
    int64_t registered; /* that it takes from dpar_comm_alloc; never more until close */
    int64_t weights;    /* ZeRO-1, 2: whole, of type compute */
    int64_t gradients;  /* whole, of type gradient; or shards */
    int64_t master;     /* shards; 0 where the masters are pieces of the whole weights */
    int64_t moments;    /* the optimizer's shards */
    int64_t gathered;   /* ZeRO-3: prefetch + at_once units, each as large as the largest */
    int64_t buckets;    /* gradients under way: `buffers` units of that size */
} dpar_fsdp_sizes;

/* A model that is cut over the ranks: a handle. */
typedef struct dpar_fsdp dpar_fsdp;

/* What init takes, for `shards` ranks that share a copy. Errors as init. Local, without a
 * communicator: for planning. O(params). */
DPAR_API dpar_status dpar_fsdp_bytes(int32_t shards, const dpar_fsdp_desc *options,
                                     dpar_fsdp_sizes *sizes, dpar_why *why);
/* Cuts the model over the ranks of c. Weights and state are zero. COLLECTIVE over c and replicas:
 * all ranks give the same options (E_MISMATCH else). E_ARG, E_RANGE, E_ROOM, E_MEMORY with a
 * sentence, on all ranks; of the calls below, on this rank, the sentence is in c->why. Small
 * collectives compare. */
DPAR_API dpar_status dpar_fsdp_init(void *memory, int64_t bytes, dpar_comm *c,
                                    const dpar_fsdp_desc *options, dpar_fsdp **fsdp, dpar_why *why);
/* Parameter i becomes values[numel], of options.type, whole: each rank takes its piece. All ranks
 * call it with the same numbers, between steps. E_ARG: no such parameter, values that are NULL, a
 * pass is under way. Local. O(numel / ranks). */
DPAR_API dpar_status dpar_fsdp_set(dpar_fsdp *f, int32_t i, const void *values);

/* ---- a step ---- */

/* All gradients become 0: before the first micro-batch (at the latest before its backward). Memory
 * is not touched: passes write it, or zero it where they come to it. Local. O(units). */
DPAR_API void dpar_fsdp_zero(dpar_fsdp *f);
/* A micro-batch begins; last: 1: the step's last. E_ARG: the one before has not ended. The
 * status of a broken communicator. Local. O(units). */
DPAR_API dpar_status dpar_fsdp_begin(dpar_fsdp *f, int32_t last);
/* Unit u is about to be used: returns when its weights are there, and has asked for those of
 * `prefetch` units after it in this direction (DPAR_ACTION_FORWARD, DPAR_ACTION_BACKWARD).
 * Backward: there is room for its gradients: those of earlier micro-batches (ZeRO-1, `once`), else
 * 0; with options.assigned any numbers instead of 0. Also outside of a pass, forward, to look at
 * weights. COLLECTIVE over c: all ranks call it in the same order. E_ARG: no such unit, already in
 * use, backward outside of a pass or twice in it. E_ROOM: more units in use at once than
 * options.at_once, or more with gradients that are not ready; the sentence names them. Then errors
 * as comm.h. An all-gather of each unit that is not there yet: a rank sends its shard to the other
 * ranks, in type compute. */
DPAR_API dpar_status dpar_fsdp_unshard(dpar_fsdp *f, int32_t u, int32_t direction);
/* The weights of unit u are not needed for now. E_ARG: they were not in use. Local. O(1). */
DPAR_API dpar_status dpar_fsdp_reshard(dpar_fsdp *f, int32_t u, int32_t direction);
/* The numel weights of parameter i, of type compute, between unshard and reshard; else NULL.
 * Aligned to the type. Local. O(1). */
DPAR_API const void *dpar_fsdp_weight(const dpar_fsdp *f, int32_t i);
/* Where the gradient of parameter i is added, of type gradient, from unshard in backward to ready;
 * else NULL. Local. O(1).
 *
 * *adds (NULL: not wanted) is the `beta` of the product that computes it. 1: it is added to what
 * lies there. 0: it is written, whatever lies there. Without options.assigned it is always 1. With
 * it, it is 1 once gradients have been looked at since zero (norm, state, step). Where gradients
 * are kept from one micro-batch to the next (ZeRO-1, `once`) it is also 1 after the step's first
 * one that had the unit backward. */
DPAR_API void *dpar_fsdp_gradient(const dpar_fsdp *f, int32_t i, int *adds);
/* The gradients of unit u are whole for this micro-batch; its reduction is posted. COLLECTIVE over
 * c, as unshard. E_ARG: there are none; else errors as comm.h. ZeRO-1 and `once`: the last
 * micro-batch alone sends; a reduce-scatter of the unit, in type gradient. */
DPAR_API dpar_status dpar_fsdp_ready(dpar_fsdp *f, int32_t u);
/* The micro-batch is over; after the last one the gradients of this rank's shards are reduced.
 * COLLECTIVE. E_ARG: a unit is in use, or its gradients have not been made ready (in the last one:
 * of any unit with parameters), which breaks the communicator. Errors as comm.h: a pass that failed
 * is over, too. Waits for what ready has posted; with replicas for an all-reduce of each shard,
 * too. */
DPAR_API dpar_status dpar_fsdp_end(dpar_fsdp *f);
/* The 2-norm of all gradients: squares in f64 in the order of the shard, then over the ranks in
 * their order. Where other communicators hold other parameters (stages, tensor parallel), add up
 * the squares of their norms. COLLECTIVE over c. E_ARG: a pass is under way, or norm is NULL; else
 * errors as comm.h. An all-reduce of 8 bytes; O(elements of the shards). */
DPAR_API dpar_status dpar_fsdp_norm(dpar_fsdp *f, double *norm);
/* One step of the optimizer with gradients times `factor`. E_ARG: a pass is under way. Local.
 * O(elements of the shards). */
DPAR_API dpar_status dpar_fsdp_step(dpar_fsdp *f, double rate, double factor);

/* ---- state ---- */

/* What a rank has a shard of: the arrays of a checkpoint, and the reduced gradients. */
enum {
    DPAR_FSDP_MASTER,
    DPAR_FSDP_MOMENT_1,
    DPAR_FSDP_MOMENT_2,
    DPAR_FSDP_ARRAY_COUNT, /* how many a checkpoint has at most */
    DPAR_FSDP_GRADIENT = DPAR_FSDP_ARRAY_COUNT
};

/* This rank's shard of an array of unit u, its elements (padding included, which is 0) and their
 * type (NULL: not wanted). NULL, 0 elements and DPAR_TYPE_NONE where there is none: no such unit,
 * an array that the optimizer does not have. dpar_fsdp_piece says which parameter lies where.
 * Local. O(1).
 *
 * To save it: a sharded checkpoint is the arrays up to DPAR_FSDP_ARRAY_COUNT of the ranks of one
 * replica, and how often you called dpar_fsdp_step. DPAR_FSDP_GRADIENT: the reduced gradients,
 * between the end of a pass and the next zero, for norms that count parameters differently, or sums
 * with other communicators. Those that count as 0 are zeroed here, which takes longer than O(1). */
DPAR_API void *dpar_fsdp_state(const dpar_fsdp *f, int32_t array, int32_t u, int64_t *elements,
                               int32_t *type);
/* What this rank's shard has of parameter i (in_shard: in dpar_fsdp_state of its unit; piece NULL:
 * not wanted); 0: nothing. Local. O(1). */
DPAR_API int dpar_fsdp_piece(const dpar_fsdp *f, int32_t i, dpar_piece *piece);
/* Unit u as an array of one dim on ranks first .. first + ranks - 1, cut as its shards are (CHUNK):
 * for redistribute and move. layout->extent[0] are the elements of the unit, padding left out. Each
 * rank's shard is ceil(extent / ranks) of them. A full checkpoint is dpar_gather of the ranks'
 * shards of all units and arrays, each cut off at the extent; it is read as a sharded one of one
 * rank. E_ARG with a sentence. Local. O(1). */
DPAR_API dpar_status dpar_fsdp_layout(const dpar_fsdp *f, int32_t u, int32_t first, int32_t ranks,
                                      dpar_layout *layout, dpar_why *why);
/* Reads elements first .. first + count - 1 of the shard that rank `rank` of those who saved had of
 * an array of unit u. A negative status is a failure. */
typedef dpar_status (*dpar_fsdp_read_callback)(void *ctx, int32_t array, int32_t u, int32_t rank,
                                               int64_t first, int64_t count, void *to);
/* State that `ranks` ranks saved after `steps` steps, whatever the number of ranks now: reads what
 * this rank needs, each element once. With the same options training goes on bit by bit as if it
 * had not stopped, on as many ranks. COLLECTIVE over both: what fails on one rank all hear of, and
 * have to load again: some of it was read. E_ARG: a pass is under way. E_MISMATCH: ranks gave
 * different numbers. Small collectives compare. */
DPAR_API dpar_status dpar_fsdp_load(dpar_fsdp *f, int32_t ranks, int64_t steps,
                                    dpar_fsdp_read_callback read, void *ctx, dpar_why *why);

/* Gives the memory back. COLLECTIVE in so far as no other rank may still be in a pass. NULL is
 * fine. E_ARG: a pass is under way, on communicators that are not broken. Afterwards, while the
 * communicators live and the plan's memory is left alone, it is one without units and parameters.
 * O(units). */
DPAR_API dpar_status dpar_fsdp_close(dpar_fsdp *f);

/* dpar_fsdp_bytes, the memory and dpar_fsdp_init in one, with their errors and cost; E_ROOM, too,
 * where there is no memory. COLLECTIVE over c and replicas. */
DPAR_API dpar_status dpar_fsdp_make(dpar_comm *c, const dpar_fsdp_desc *options, dpar_fsdp **fsdp,
                                    dpar_why *why);
/* Ends what dpar_fsdp_make made, as dpar_fsdp_close. NULL is fine. */
DPAR_API dpar_status dpar_fsdp_free(dpar_fsdp *f);

#endif
