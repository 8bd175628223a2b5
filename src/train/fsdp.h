/* SPDX-License-Identifier: MIT-0 */
/* fsdp - trains a model whose optimizer state, gradients and weights are cut over the ranks:
 * ZeRO-1, 2 and 3 (FSDP), and hybrids with replicas. The parameters form units, usually one for
 * each layer. A unit is what is sent at once. Its parameters are stored end to end in C order,
 * padded to equal shards (flat.h). Each rank keeps one shard of the master weights and of the
 * optimizer's arrays.
 *
 *     ZeRO-1   weights are whole on every rank, gathered once a step; gradients are whole,
 *              reduced in the last micro-batch
 *     ZeRO-2   weights as in ZeRO-1 (FSDP: reshard_after_forward = False);
 *              gradients are shards, reduced in each micro-batch
 *     ZeRO-3   weights are gathered before forward and again before backward,
 *              `prefetch` units ahead, into a pool of prefetch + 1 units;
 *              gradients as in ZeRO-2
 *
 *     dpar_fsdp_desc desc = {0};                 ZeRO-3 in f32, a parameter for each unit
 *     desc.units = units;
 *     desc.count = count;                        elements of each parameter
 *     desc.prefetch = 1;
 *     dpar_optimizer_init(&desc.optimizer, DPAR_OPTIMIZER_ADAMW);
 *     dpar_fsdp_make(comm, &desc, &f, &why);
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
 *                     (desc.overwrite_gradients: writes them) ...
 *                 dpar_fsdp_reshard(f, u, DPAR_ACTION_BACKWARD);
 *                 dpar_fsdp_ready(f, u);       later, if the gradients are computed later
 *             dpar_fsdp_end(f);
 *         dpar_fsdp_norm(f, &norm);
 *         dpar_fsdp_step(f, rate, dpar_optimizer_clip(norm, 1.0));
 *     dpar_fsdp_free(f);
 *
 * To train with clipped gradients, pass dpar_optimizer_clip(norm, clip) as above; without a clip,
 * leave dpar_fsdp_norm out and pass 1. dpar_fsdp_sizes_init computes the memory of a rank without a
 * communicator, to plan a job.
 *
 * Tied weights. A weight that several layers use, such as an embedding that is also the output, is
 * a unit of its own that stays in use. Unshard it before the first of these layers and reshard it
 * after the last, in forward and in backward, and make it ready after its last gradient. Set
 * desc.units_in_use to the number of units that are in use together, which is then 2.
 *
 * Evaluation. dpar_fsdp_unshard (DPAR_ACTION_FORWARD) and dpar_fsdp_reshard also work outside of a
 * pass. dpar_fsdp_begin may also be called after forward, just before backward.
 *
 * Pointers. With ZeRO-1 and 2, dpar_fsdp_weight returns the same address in every step. So does
 * dpar_fsdp_gradient if gradients are whole (ZeRO-1, desc.reduce_last). For weights of ZeRO-3, and
 * for gradients that are shards, ask again after each unshard.
 *
 * Checkpoints. Each rank writes what dpar_fsdp_state returns for each unit and array.
 * dpar_fsdp_load reads it, on the same or another number of ranks.
 *
 * Hybrids. `comm` connects the ranks that share one copy of the model, for instance a node, and
 * desc.replicas connects the ranks that hold the same shard of different copies.
 * dpar_comm_split_axes makes both. Gradients are reduced over comm, then their shards are reduced
 * over the replicas once a step.
 *
 * Pipelines. A whole step is one pass, with dpar_fsdp_begin before dpar_pipeline_run and
 * dpar_fsdp_end after it.
 *
 *  - UNSHARD calls dpar_fsdp_unshard: the first time for a stage with DPAR_ACTION_BACKWARD, which
 *    reserves space for its gradients, and then with DPAR_ACTION_FORWARD.
 *  - RESHARD calls dpar_fsdp_reshard.
 *  - REDUCE_GRAD calls dpar_fsdp_ready.
 *
 * Let desc.prefetch and desc.gradient_buffers be the number of stages of the rank. If several runs
 * accumulate gradients, each is a pass. Runs with last = 0 leave REDUCE_GRAD out, so call
 * dpar_fsdp_ready for each unit after such a run and before dpar_fsdp_end.
 *
 * Gradients are averaged over the ranks, or summed with desc.sum, and summed over micro-batches.
 * For the mean over micro-batches, scale the loss by 1 / B or pass that factor to dpar_fsdp_step.
 *
 * Guarantees. Nothing is allocated after make, and dpar_fsdp_sizes lists what make allocates. Sums
 * are computed in rank order, which gives the same bits in every run, whatever is prefetched.
 * Replicas stay equal bit by bit. A unit that is already in the pool is not gathered again. All
 * ranks must visit units in the same order; otherwise calls fail with DPAR_E_MISMATCH, over MPI
 * only with its option `check`.
 *
 * If comm->mem is the memory of a device, all arrays are in that memory, including those passed to
 * dpar_fsdp_set and dpar_fsdp_load. The functions run after the work that the device's stream was
 * given before, and before work that it is given later. Only dpar_fsdp_norm and dpar_fsdp_load wait
 * for the device. */
#ifndef DPARI_TRAIN_FSDP_H
#define DPARI_TRAIN_FSDP_H

#include "../index/flat.h"
#include "../index/layout.h"
#include "../schedule/schedule.h"
#include "../comm/comm.h"
#include "optimizer.h"

/* Describes an fsdp. Zero it and fill in what differs from the defaults. All ranks give the same
 * values, except replicas, names, memory and bytes. */
typedef struct dpar_fsdp_desc {
    int32_t units; /* number of units, in the order of forward */
    int32_t zero;  /* stage of ZeRO: 1, 2 or 3; 0 selects 3 */
    /* [units] number of parameters in each unit, 0 or more. NULL selects one parameter a unit. Only
     * dpar_fsdp_make and dpar_fsdp_sizes_init read it, as the next. */
    const int32_t *params_per_unit;
    const int64_t *count; /* [all parameters] elements of each, 0 or more, unit after unit */
    dpar_comm *replicas;  /* ranks with the same shard of other copies, made from the same world
                             as comm; NULL if there are none */
    /* Type of the master weights, which the optimizer updates: F64 or F32; 0 selects F32. With BF16
     * or F16 there are no masters, and the weights themselves are updated. The optimizer's arrays
     * have the type that dpar_optimizer_check reports. */
    int32_t type;
    /* Type of the weights that forward and backward use and that are gathered: `type`, or F32 for
     * F64, or BF16 or F16 for F32. 0 selects `type`. */
    int32_t compute_type;
    /* Type in which gradients are computed and reduced: `compute_type` or a wider one; 0 selects
     * compute_type. 16-bit gradients are summed in F32 and rounded once; ZeRO-1 and `reduce_last`
     * round once more over replicas. ZeRO-2 and 3 sum micro-batches in F32, or in F64 if `type` is
     * F64. */
    int32_t gradient_type;
    int32_t prefetch;         /* units that are gathered ahead of the one in use, 0 or more */
    int32_t gradient_buffers; /* ZeRO-2 and 3: units whose gradients may be under way at once. 0
                                 selects units_in_use; fewer is DPAR_E_ROOM */
    /* Units that are in use at the same time, or whose gradients are being computed; 0 selects 1.
     * The pool has prefetch + units_in_use units. Using more is DPAR_E_ROOM, which names the
     * units. */
    int32_t units_in_use;
    int32_t reduce_last; /* ZeRO-2 and 3: 1 keeps gradients whole in all micro-batches and reduces
                            them in the last, which is less traffic and more memory, as in ZeRO-1 */
    int32_t sum;         /* 1 computes sums over the ranks; 0 averages */
    /* 0 if backward adds to gradients, which are 0 before. 1 if it writes them, except where
     * dpar_fsdp_gradient asks to add; dpar then need not zero them. Backward must write every
     * element of every parameter of the unit, 0 where there is no gradient. */
    int32_t overwrite_gradients;
    const char *const *names; /* [units] names for messages, kept by you as long as the fsdp exists.
                                 If NULL, messages give the numbers of the units */
    int64_t align;            /* parameters begin in their unit at multiples of this many elements;
                                 0 selects 1 */
    /* Its option `stochastic` also applies where F32 masters are rounded to BF16 weights. The
     * random number of an element is that of its place among all elements, the units end to end.
     * Copies in other fsdp objects, such as those of tensor-parallel ranks, stay equal if they have
     * the same place there. */
    dpar_optimizer optimizer;
    /* Memory of yours for the fsdp's bookkeeping (`plan` of dpar_fsdp_sizes), aligned to 64, as
     * long as the fsdp exists. NULL with bytes 0: dpar_fsdp_make allocates it. Too few bytes are
     * DPAR_E_ROOM, and why->bytes tells how many are needed; to ask, set memory NULL and bytes 1.
     */
    void *memory;
    int64_t bytes;
} dpar_fsdp_desc;

/* Memory of a rank in bytes. `registered` is the sum of the six sizes below it, each rounded up to
 * a multiple of 64. */
typedef struct dpar_fsdp_sizes {
    int64_t plan;       /* the bookkeeping, in desc.memory or allocated by dpar_fsdp_make */
    int64_t registered; /* allocated by make with dpar_comm_alloc; constant until free */
    int64_t weights;    /* ZeRO-1 and 2: whole weights, of compute_type */
    int64_t gradients;  /* whole, of gradient_type, or shards */
    int64_t master;     /* shards; 0 if the masters are pieces of the whole weights */
    int64_t moments;    /* shards of the optimizer's arrays */
    int64_t gathered;   /* ZeRO-3: prefetch + units_in_use units, as large as the largest */
    int64_t buckets;    /* gradients under way: `gradient_buffers` units of that size */
} dpar_fsdp_sizes;

/* A model that is cut over the ranks: a handle. */
typedef struct dpar_fsdp dpar_fsdp;

/* Computes the memory of a rank when `shards` ranks share a copy of the model. It needs no
 * communicator and can be used to plan a job. Local. O(params). Fails as dpar_fsdp_make does. */
DPAR_API dpar_status dpar_fsdp_sizes_init(dpar_fsdp_sizes *sizes, int32_t shards,
                                          const dpar_fsdp_desc *desc, dpar_why *why);
/* Cuts a model over the ranks of comm. The weights and the optimizer's state are 0.
 *
 * Collective over comm and desc.replicas: all ranks give the same descriptor. Compares them with
 * small collectives. Fails on all ranks with DPAR_E_MISMATCH if they differ, DPAR_E_ARG,
 * DPAR_E_RANGE, DPAR_E_ROOM or DPAR_E_MEMORY. In the functions below, the message of an error is in
 * comm->why. */
DPAR_API dpar_status dpar_fsdp_make(dpar_comm *comm, const dpar_fsdp_desc *desc, dpar_fsdp **fsdp,
                                    dpar_why *why);
/* Sets the weights of parameter i. All ranks call it with the same values, between steps.
 *
 * values: [count[i]] the whole parameter, of desc.type. Each rank copies its piece.
 *
 * Local. O(elements / ranks). Fails with DPAR_E_ARG if there is no such parameter, values is NULL
 * or a pass is under way. */
DPAR_API dpar_status dpar_fsdp_set(dpar_fsdp *fsdp, int32_t i, const void *values);

/* ---- a step ---- */

/* Resets all gradients to 0. Call it before the first micro-batch of a step, or at the latest
 * before its backward. It touches no memory: the passes write the gradients, or zero them when they
 * reach them. Local. O(units). */
DPAR_API void dpar_fsdp_zero(dpar_fsdp *fsdp);
/* Begins a micro-batch.
 *
 * last: 1 for the last micro-batch of the step.
 *
 * Local. O(units). Fails with DPAR_E_ARG if the micro-batch before has not ended, and with the
 * status of a broken communicator. */
DPAR_API dpar_status dpar_fsdp_begin(dpar_fsdp *fsdp, int32_t last);
/* Gathers the weights of unit u, waits until they are complete, and requests those of the
 * `prefetch` units that follow in this direction. In backward it also provides the memory of the
 * unit's gradients. They hold the sum of earlier micro-batches (ZeRO-1, desc.reduce_last) or 0;
 * with desc.overwrite_gradients they are undefined in place of 0.
 *
 * direction: DPAR_ACTION_FORWARD or DPAR_ACTION_BACKWARD. Forward also works outside of a pass, to
 *            read weights.
 *
 * Collective over comm: all ranks call it in the same order. Costs an all-gather of each unit that
 * is not in the pool, in which a rank sends its shard to the other ranks in compute_type. Fails
 * with DPAR_E_ARG if there is no such unit, it is already in use, or for backward outside of a pass
 * or a second time in it. Fails with DPAR_E_ROOM, naming the units, if more than desc.units_in_use
 * are in use or have gradients that are not ready. Other errors are those of comm.h. */
DPAR_API dpar_status dpar_fsdp_unshard(dpar_fsdp *fsdp, int32_t u, int32_t direction);
/* Ends the use of unit u's weights for now. Local. O(1). Fails with DPAR_E_ARG if they were not in
 * use. */
DPAR_API dpar_status dpar_fsdp_reshard(dpar_fsdp *fsdp, int32_t u, int32_t direction);
/* Returns the address of parameter i's weights: count[i] elements of compute_type, aligned to that
 * type. Returns NULL unless its unit is between unshard and reshard. Local. O(1). */
DPAR_API const void *dpar_fsdp_weight(const dpar_fsdp *fsdp, int32_t i);
/* Returns the address where the gradient of parameter i is added, of gradient_type. Returns NULL
 * unless its unit is between unshard in backward and ready. Local. O(1).
 *
 * adds: set to the `beta` of the matrix product that computes the gradient. 1 means that the
 *       gradient is added to the present contents, 0 that it overwrites them. May be NULL.
 *
 * Without desc.overwrite_gradients it is always 1. With it, it is 1 in two cases. The first is that
 * gradients were used since dpar_fsdp_zero (by dpar_fsdp_norm, _state or _step). The second is that
 * gradients are kept from one micro-batch to the next (ZeRO-1, desc.reduce_last) and an earlier
 * micro-batch of the step had this unit in backward. */
DPAR_API void *dpar_fsdp_gradient(const dpar_fsdp *fsdp, int32_t i, int *adds);
/* Marks the gradients of unit u as complete for this micro-batch, and posts their reduction.
 *
 * Collective over comm, in the same order on all ranks. Costs a reduce-scatter of the unit in
 * gradient_type; with ZeRO-1 and desc.reduce_last only in the last micro-batch. Fails with
 * DPAR_E_ARG if the unit has no gradients in this pass; other errors are those of comm.h. */
DPAR_API dpar_status dpar_fsdp_ready(dpar_fsdp *fsdp, int32_t u);
/* Ends the micro-batch. After the last one, the gradients of this rank's shards are reduced.
 *
 * Collective. Waits for what dpar_fsdp_ready posted, and with replicas for an all-reduce of each
 * shard. Fails with DPAR_E_ARG, which breaks the communicator, if a unit is in use or its gradients
 * were not made ready; in the last micro-batch that applies to every unit with parameters. Other
 * errors are those of comm.h. A pass that failed has also ended. */
DPAR_API dpar_status dpar_fsdp_end(dpar_fsdp *fsdp);
/* Computes the 2-norm of all gradients. Squares are summed in f64 in the order of the shard, then
 * over the ranks in rank order. If other communicators hold other parameters (pipeline stages,
 * tensor parallelism), sum the squares of their norms.
 *
 * Collective over comm. Costs an all-reduce of 8 bytes and O(elements of the shards). Fails with
 * DPAR_E_ARG if a pass is under way or norm is NULL; other errors are those of comm.h. */
DPAR_API dpar_status dpar_fsdp_norm(dpar_fsdp *fsdp, double *norm);
/* Updates the weights by one step of the optimizer.
 *
 * rate:   learning rate.
 * factor: gradients are multiplied by it (dpar_optimizer_clip).
 *
 * Local. O(elements of the shards). Fails with DPAR_E_ARG if a pass is under way. */
DPAR_API dpar_status dpar_fsdp_step(dpar_fsdp *fsdp, double rate, double factor);

/* ---- state ---- */

/* Arrays of which a rank has a shard: those of a checkpoint, and the reduced gradients. */
enum {
    DPAR_FSDP_MASTER,
    DPAR_FSDP_MOMENT_1,
    DPAR_FSDP_MOMENT_2,
    DPAR_FSDP_ARRAY_COUNT, /* the most arrays that a checkpoint has */
    DPAR_FSDP_GRADIENT = DPAR_FSDP_ARRAY_COUNT
};

/* Returns this rank's shard of an array of unit u. If there is none, because there is no such unit
 * or the optimizer has no such array, it returns NULL with 0 elements and DPAR_TYPE_NONE.
 * dpar_fsdp_piece reports where a parameter is in it.
 *
 * array:    DPAR_FSDP_MASTER, ... DPAR_FSDP_GRADIENT.
 * elements: set to the number of elements, including the padding, which is 0. May be NULL.
 * type:     set to their type. May be NULL.
 *
 * A sharded checkpoint consists of the arrays below DPAR_FSDP_ARRAY_COUNT of the ranks of one
 * replica, and the number of calls of dpar_fsdp_step.
 *
 * DPAR_FSDP_GRADIENT gives the reduced gradients, from the end of a pass to the next
 * dpar_fsdp_zero. Use it for norms that weight parameters differently, or for sums over other
 * communicators.
 *
 * Local. O(1), except that gradients that count as 0 are zeroed here. */
DPAR_API void *dpar_fsdp_state(const dpar_fsdp *fsdp, int32_t array, int32_t u, int64_t *elements,
                               int32_t *type);
/* Finds the piece of parameter i in this rank's shard. Returns 1, or 0 if the shard has no element
 * of it.
 *
 * piece: set to the piece; its in_shard counts from what dpar_fsdp_state returns for the
 *        parameter's unit. May be NULL.
 *
 * Local. O(1). */
DPAR_API int dpar_fsdp_piece(const dpar_fsdp *fsdp, int32_t i, dpar_piece *piece);
/* Describes unit u as an array of one dim on ranks first .. first + ranks - 1, cut as its shards
 * are (DPAR_SPLIT_CHUNK), for redistribute.h and move.h. layout->extent[0] is the number of
 * elements of the unit without padding, and each rank's shard is ceil(extent / ranks) of them.
 *
 * For a full checkpoint, dpar_gather the shards of all ranks for each unit and array, and cut each
 * off at the extent. It is loaded like a sharded checkpoint of one rank.
 *
 * Local. O(1). Fails with DPAR_E_ARG. */
DPAR_API dpar_status dpar_fsdp_layout(const dpar_fsdp *fsdp, int32_t u, int32_t first,
                                      int32_t ranks, dpar_layout *layout, dpar_why *why);
/* Reads a part of a saved shard: a callback of yours. The part is elements first .. first + count -
 * 1 of the shard that rank `rank` of the saving job had of an array of unit u. Write them to `to`.
 * A negative status is a failure. */
typedef dpar_status (*dpar_fsdp_read_callback)(void *ctx, int32_t array, int32_t u, int32_t rank,
                                               int64_t first, int64_t count, void *to);
/* Loads a checkpoint, whatever the number of ranks is now. Each rank reads what it needs, each
 * element once. With the same options and number of ranks, training continues with the same bits as
 * if it had not stopped.
 *
 * ranks: number of ranks that saved it.
 * steps: number of steps that were done when it was saved.
 *
 * Collective over comm and replicas. Compares the numbers with small collectives. Fails with
 * DPAR_E_ARG if a pass is under way and DPAR_E_MISMATCH if ranks gave different numbers. A failure
 * on one rank is reported on all; part of the state may then be replaced, so that you have to load
 * again. */
DPAR_API dpar_status dpar_fsdp_load(dpar_fsdp *fsdp, int32_t ranks, int64_t steps,
                                    dpar_fsdp_read_callback read, void *ctx, dpar_why *why);

/* Frees an fsdp and what make allocated. NULL is allowed. Waits for what is still under way.
 *
 * Collective only in that no other rank may still be in a pass. O(units). Fails with DPAR_E_ARG if
 * a pass is under way on communicators that are not broken; the fsdp then stays as it is. */
DPAR_API dpar_status dpar_fsdp_free(dpar_fsdp *fsdp);

#endif
