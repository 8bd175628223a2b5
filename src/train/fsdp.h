/* SPDX-License-Identifier: MIT-0 */
/* fsdp - trains a model whose optimizer state, gradients and weights are divided among the ranks:
 * ZeRO-1, 2 and 3 (FSDP), and hybrids with replicas. The parameters form units, usually one per
 * layer, and each message contains one unit. The parameters of a unit are stored end to end in C
 * order, padded to equal shards (flat.h). Each rank keeps one shard of the master weights and of
 * the optimizer's arrays.
 *
 *     ZeRO-1   weights are whole on every rank, gathered once a step; gradients are whole,
 *              reduced in the last micro-batch
 *     ZeRO-2   weights as in ZeRO-1 (FSDP: reshard_after_forward = False);
 *              gradients are shards, reduced in each micro-batch
 *     ZeRO-3   weights are gathered before forward and again before backward,
 *              `prefetch` units ahead, into a pool of prefetch + 1 units;
 *              gradients as in ZeRO-2
 *
 *     dpar_fsdp_desc desc = {0};                 ZeRO-3 in f32, one parameter per unit
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
 *             forward, each unit u from the first:
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
 *         dpar_fsdp_update(f, &update);         update.rate, update.clip and others: update.h
 *     dpar_fsdp_free(f);
 *
 * Without a norm, a clip and a check of the gradients, call dpar_fsdp_step(f, rate, 1.0) in place
 * of dpar_fsdp_update; it needs no communication. dpar_fsdp_sizes_init computes the memory that a
 * rank needs. It needs no communicator, so that you can plan a job with it.
 *
 * Your arrays. If your code has its own pointers to weights and gradients, list them in desc.array
 * in place of desc.count. Make copies their values, and the pointers then follow the weights:
 * unshard sets those of a unit, reshard sets them to NULL, and ready does so for gradients. The
 * code of a layer need not change. A list of arrays has one entry per array:
 *
 *     array[k].weights = (void **)&layer->weights;       array[k].count = layer->n;
 *     array[k].gradients = (void **)&layer->gradients;   array[k].unit = u;
 *
 * If an array contains one kind of weights of all layers, layer l at qkv + l * n, it has slices:
 *
 *     array[k].weights = (void **)&qkv;                  array[k].count = n;
 *     array[k].gradients = (void **)&dqkv;               array[k].slices = layers;
 *     array[k].unit = 1;                                 layer l is unit 1 + l
 *
 * Resident units. If several layers use a unit, such as an embedding that is also the output layer
 * (tied weights), set its desc.resident to 1. It then needs no calls. dpar_fsdp_begin gathers its
 * weights and provides its gradients, and dpar_fsdp_end reduces these. Weights outside of the
 * layers can be in the same unit. To overlap its reduction with backward, call dpar_fsdp_ready
 * after its last gradient. During a pass, unshard of a resident unit only prefetches the next
 * units, and reshard does nothing. Outside of a pass, for instance in a forward before
 * dpar_fsdp_begin, use it like other units. With ZeRO-1 and one resident unit, the calls of a step
 * are zero, begin before forward, end after backward, and update.
 *
 * Frozen units (LoRA, training in stages). The weights of units in desc.frozen do not change. Use
 * them like those of other units, in backward, too, but compute no gradients; dpar_fsdp_ready is
 * optional. They have neither gradients nor moments in memory and messages. To freeze others later,
 * make another fsdp and load the state.
 *
 * Parameter groups. desc.group has the numbers of each group and desc.group_of each parameter's
 * group. To decay only matrices, for instance, set desc.optimizer.decay to 0.1, desc.groups to 1,
 * desc.group to a group of zeros, and desc.group_of[i] to -1 for matrices and 0 for others.
 *
 * Your own optimizer. Update the shards of the masters in place of dpar_fsdp_update, then call
 * dpar_fsdp_changed. Without this call, the next pass would use the old weights. Make the fsdp with
 * DPAR_OPTIMIZER_SGD, which keeps no state, and keep your own for each unit. With ZeRO-1, 2 and 3:
 *
 *     status = dpar_fsdp_norm(f, &update);
 *     for (u = 0; status == DPAR_OK && u < units; u++) {
 *         float *w = (float *)dpar_fsdp_state(f, DPAR_FSDP_MASTER, u, &n, NULL);
 *         const float *g = (const float *)dpar_fsdp_state(f, DPAR_FSDP_GRADIENT, u, NULL, NULL);
 *         ... updates w[i] with the gradient update.scale * g[i], i < n ...
 *     }
 *     if (status == DPAR_OK) dpar_fsdp_changed(f);
 *
 * For optimizers that need whole matrices, such as Muon and Shampoo, see matrices.h.
 *
 * Evaluation. dpar_fsdp_unshard (DPAR_ACTION_FORWARD) and dpar_fsdp_reshard also work outside of a
 * pass. dpar_fsdp_begin may also be called after forward, just before backward.
 *
 * Pointers. With ZeRO-1 and 2, dpar_fsdp_weight returns the same address in every step. So does
 * dpar_fsdp_gradient if gradients are whole (ZeRO-1, desc.reduce_last). In the other cases the
 * address may change with each unshard.
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
 *  - UNSHARD calls dpar_fsdp_unshard. The first call for a stage has DPAR_ACTION_BACKWARD, which
 *    reserves space for its gradients; later calls have DPAR_ACTION_FORWARD.
 *  - RESHARD calls dpar_fsdp_reshard.
 *  - REDUCE_GRAD calls dpar_fsdp_ready.
 *
 * Set desc.prefetch and desc.gradient_buffers to the number of stages of the rank. If several runs
 * accumulate gradients, each is a pass. Runs with last = 0 omit REDUCE_GRAD, so call
 * dpar_fsdp_ready for each unit after such a run and before dpar_fsdp_end.
 *
 * Gradients are averaged over the ranks, or summed with desc.sum, and summed over micro-batches.
 * For the mean over micro-batches, scale the loss by 1 / B or pass that factor to dpar_fsdp_step.
 *
 * Guarantees. Only make allocates memory; dpar_fsdp_sizes lists how much. Sums are computed in rank
 * order, which gives the same bits in every run, whatever is prefetched. Replicas stay equal bit by
 * bit. A unit that is already in the pool is not gathered again. All ranks must visit units in the
 * same order. Otherwise calls fail with DPAR_E_MISMATCH, but over MPI only with its option `check`.
 *
 * If comm->mem is the memory of a device, all arrays are in that memory, including those passed to
 * dpar_fsdp_set and dpar_fsdp_load. The functions add their work to the device's stream, so that it
 * runs in the order of the calls. Only dpar_fsdp_norm and dpar_fsdp_load wait for the device. */
#ifndef DPARI_TRAIN_FSDP_H
#define DPARI_TRAIN_FSDP_H

#include "../comm/comm.h"
#include "../host/optimizer.h"
#include "update.h"
#include "../index/flat.h"
#include "../index/layout.h"
#include "../schedule/schedule.h"

/* One of your arrays of weights. It belongs to one unit, or its slices belong to one unit each:
 * slice j to unit `unit` + j. A GPT whose arrays hold one kind of weights of all layers, for
 * instance, has one dpar_fsdp_array per kind, with as many slices as layers. */
typedef struct dpar_fsdp_array {
    /* The address of the pointer that your code uses, such as (void **)&layer->weights. Make copies
     * the first values from there, [slices][count] of desc.type, or sets zeros if your pointer is
     * NULL. Then you may free your array. Each unshard sets your pointer so that slice j begins at
     * its element j * count, and reshard sets it to NULL. The other slices are not there: if
     * several are in use at once, your pointer is for the one unsharded last. If `weights` is NULL,
     * use dpar_fsdp_set and dpar_fsdp_weight. You keep your pointer until the fsdp is freed. */
    void **weights;
    void **gradients; /* the same for gradients: set by unshard in backward, NULL after ready */
    int64_t count;    /* elements of a slice, or of the array if it is not sliced; 0 or more */
    int32_t slices;   /* 0 selects 1 */
    int32_t unit;     /* unit of the first slice */
} dpar_fsdp_array;

/* Describes an fsdp. Zero it and fill in what differs from the defaults. All ranks pass the same
 * values, except for replicas, names, memory, bytes and addresses. */
typedef struct dpar_fsdp_desc {
    int32_t units; /* number of units, in the order of forward */
    int32_t zero;  /* stage of ZeRO: 1, 2 or 3; 0 selects 3 */
    /* [units] number of parameters in each unit, 0 or more. NULL selects one parameter per unit.
     * Only dpar_fsdp_make and dpar_fsdp_sizes_init read this array and `count`. */
    const int32_t *params_per_unit;
    const int64_t *count; /* [all parameters] elements of each, 0 or more, unit after unit */
    /* [arrays] your arrays, in place of params_per_unit and count, which are then NULL. Each array
     * or slice is a parameter of its unit, in the order of this list. Only make and
     * dpar_fsdp_sizes_init read the list. */
    const dpar_fsdp_array *array;
    int32_t arrays;
    dpar_comm *replicas; /* the ranks that have the same shard of different copies of the model, in
                            a communicator made from the same world as comm; NULL if there is only
                            one copy */
    /* Type of the master weights, which the optimizer updates: F64 or F32; 0 selects F32. With BF16
     * or F16 there are no masters, and the weights themselves are updated. The optimizer's arrays
     * have the type that dpar_optimizer_check reports. */
    int32_t type;
    /* Type of the weights that are gathered and that forward and backward use: `type`, or F32 if
     * that is F64, or BF16 or F16 if that is F32. 0 selects `type`. */
    int32_t compute_type;
    /* Type in which gradients are computed and reduced: `compute_type` or a wider one; 0 selects
     * compute_type. 16-bit gradients are summed in F32 and rounded once. With ZeRO-1 or
     * `reduce_last`, the sum over replicas rounds them once more. ZeRO-2 and 3 sum micro-batches in
     * F32, or in F64 if `type` is F64. */
    int32_t gradient_type;
    int32_t prefetch;         /* units that are gathered ahead of the one in use, 0 or more */
    int32_t gradient_buffers; /* ZeRO-2 and 3: largest number of units whose gradients are being
                                 computed or reduced. 0 selects units_in_use; if it is smaller than
                                 that, make fails with DPAR_E_ROOM */
    /* Largest number of units that are in use, or whose gradients are being computed, at the same
     * time, without the resident ones; 0 selects 1. The pool has prefetch + units_in_use units. If
     * you use more, dpar_fsdp_unshard fails with DPAR_E_ROOM and names the units. */
    int32_t units_in_use;
    int32_t reduce_last; /* ZeRO-2 and 3: 1 keeps gradients whole and reduces them only in the last
                            micro-batch, as ZeRO-1 does: less traffic, but more memory */
    int32_t sum;         /* 1 computes sums over the ranks; 0 averages */
    /* 0 if backward adds to gradients, which dpar sets to 0 before. 1 if backward overwrites them,
     * unless dpar_fsdp_gradient reports that it must add; dpar then need not zero them. With 1,
     * backward must write every element of the unit's parameters, 0 where there is no gradient. */
    int32_t overwrite_gradients;
    const char *const *names; /* [units] names for messages, which you keep until the fsdp is freed.
                                 If NULL, messages give the numbers of the units */
    int64_t align;            /* parameters begin in their unit at multiples of this many elements;
                                 0 selects 1 */
    /* Its option `stochastic` also applies when F32 masters are rounded to BF16 weights. The random
     * number of an element depends on its index among all elements of the model, with the units end
     * to end. Tensor-parallel ranks have separate fsdp objects. Their copies of a parameter stay
     * equal if the parameter has the same index in each object. */
    dpar_optimizer optimizer;
    const int32_t *frozen;   /* [units] 1 for units that are not trained, 0 for others. NULL if all
                                are trained. Only make and dpar_fsdp_sizes_init read this, resident
                                and the groups */
    const int32_t *resident; /* [units] 1 for units that are in use during a whole pass, 0 for
                                others. NULL if there are none. An array with several slices cannot
                                have one in such a unit */
    int32_t groups;          /* number of parameter groups */
    const dpar_optimizer_group *group; /* [groups] */
    const int32_t
        *group_of; /* [all parameters, or arrays] group of each; -1 selects the optimizer's
                      numbers and the rate of the step. Required if there are groups */
    /* Your memory for the fsdp's bookkeeping (`plan` of dpar_fsdp_sizes), aligned to 64 bytes,
     * which you keep until the fsdp is freed. If it is NULL and bytes is 0, make allocates it. If
     * bytes is too small, make fails with DPAR_E_ROOM, and why->bytes is the size that is needed.
     * To query that size, set memory to NULL and bytes to 1. */
    void *memory;
    int64_t bytes;
} dpar_fsdp_desc;

/* Memory that a rank needs, in bytes. `registered` is the sum of the six sizes below it, each
 * rounded up to a multiple of 64. */
typedef struct dpar_fsdp_sizes {
    int64_t plan;       /* the bookkeeping, in desc.memory or allocated by dpar_fsdp_make */
    int64_t registered; /* allocated by make with dpar_comm_alloc; constant until free */
    int64_t weights;    /* ZeRO-1 and 2: whole weights, of compute_type */
    int64_t gradients;  /* whole, of gradient_type, or shards; of units that are not frozen */
    int64_t master;     /* shards; 0 if the masters are pieces of the whole weights */
    int64_t moments;    /* shards of the optimizer's arrays, of units that are not frozen */
    int64_t gathered;   /* ZeRO-3: the pool, prefetch + units_in_use times the largest unit that is
                           not resident, and all resident units */
    int64_t buckets;    /* gradients as shards: gradient_buffers times the largest unit that is
                           neither frozen nor resident, and all resident units not frozen */
} dpar_fsdp_sizes;

/* A handle to a model that is divided among the ranks. */
typedef struct dpar_fsdp dpar_fsdp;

/* Computes the memory of a rank when `shards` ranks share a copy of the model. Needs no
 * communicator, so that you can plan a job with it. Local. O(params). Fails like dpar_fsdp_make. */
DPAR_API dpar_status dpar_fsdp_sizes_init(dpar_fsdp_sizes *sizes, int32_t shards,
                                          const dpar_fsdp_desc *desc, dpar_why *why);
/* Makes an fsdp, which divides a model among the ranks of comm. Sets the weights to the values of
 * your arrays, otherwise to 0, and the optimizer's state to 0.
 *
 * Collective over comm and desc.replicas. Compares the descriptors with small collectives, but not
 * the values, of which each rank copies its own pieces. O(units * arrays + arrays^2). Fails on
 * all ranks with DPAR_E_MISMATCH if they differ, DPAR_E_ARG, DPAR_E_RANGE, DPAR_E_ROOM or
 * DPAR_E_MEMORY. In the functions below, the message of an error is in comm->why. */
DPAR_API dpar_status dpar_fsdp_make(dpar_comm *comm, const dpar_fsdp_desc *desc, dpar_fsdp **fsdp,
                                    dpar_why *why);
/* Sets the weights of parameter i. All ranks call it with the same values, between steps.
 *
 * values: [count[i]] the whole parameter, of desc.type. Each rank copies its piece.
 *
 * Local. O(elements / ranks). Fails with DPAR_E_ARG if there is no such parameter, values is NULL
 * or a pass is in progress. */
DPAR_API dpar_status dpar_fsdp_set(dpar_fsdp *fsdp, int32_t i, const void *values);
/* Finds the piece of parameter i in this rank's shard. Returns 1, or 0 if the shard has no element
 * of the parameter.
 *
 * piece: set to the piece. piece->in_shard is relative to the address that dpar_fsdp_state returns
 *        for the parameter's unit. May be NULL.
 *
 * Local. O(1). */
DPAR_API int dpar_fsdp_piece(const dpar_fsdp *fsdp, int32_t i, dpar_piece *piece);

/* ---- a pass ---- */

/* Marks all gradients as 0. Call it before the backward of a step's first micro-batch. It does not
 * touch their memory: a pass later overwrites or zeroes the gradients of each unit that it reaches.
 * Gradients that are already in use, such as those of resident units after dpar_fsdp_begin, are
 * zeroed at once. Local. O(units). */
DPAR_API void dpar_fsdp_zero(dpar_fsdp *fsdp);
/* Begins a micro-batch.
 *
 * last: 1 for the last micro-batch of the step.
 *
 * Local and O(units) without resident units. With them it is collective, and costs an all-gather of
 * each one whose weights are not gathered yet. Fails with DPAR_E_ARG if the previous micro-batch
 * has not ended, or with the status of a broken communicator. */
DPAR_API dpar_status dpar_fsdp_begin(dpar_fsdp *fsdp, int32_t last);
/* Gathers the weights of a unit, waits until they are complete, and requests those of the
 * `prefetch` units that follow in this direction. In backward it also provides memory for the
 * unit's gradients. With ZeRO-1 or desc.reduce_last the gradients hold the sum of earlier
 * micro-batches. Otherwise they are 0, or undefined with desc.overwrite_gradients.
 *
 * direction: DPAR_ACTION_FORWARD or DPAR_ACTION_BACKWARD. Forward also works outside of a pass, to
 *            read weights.
 *
 * Collective over comm: all ranks call it for the same units in the same order. Costs an all-gather
 * in compute_type of each unit that is not in the pool. Fails with DPAR_E_ARG if there is no such
 * unit or it is already in use, and for backward if no pass is in progress or the unit already had
 * backward in it. Fails with DPAR_E_ROOM, naming the units, if more than desc.units_in_use are in
 * use or have gradients that are not ready. Other errors are those of comm.h. */
DPAR_API dpar_status dpar_fsdp_unshard(dpar_fsdp *fsdp, int32_t unit, int32_t direction);
/* Ends the use of a unit's weights until the next unshard. Local. O(1). Fails with DPAR_E_ARG if
 * they were not in use. */
DPAR_API dpar_status dpar_fsdp_reshard(dpar_fsdp *fsdp, int32_t unit, int32_t direction);
/* Returns the address of parameter i's weights: count[i] elements of compute_type, aligned to that
 * type. Returns NULL unless its unit is between unshard and reshard. Local. O(1). */
DPAR_API const void *dpar_fsdp_weight(const dpar_fsdp *fsdp, int32_t i);
/* Returns the address of parameter i's gradient: count[i] elements of gradient_type. Returns NULL
 * unless its unit is between unshard in backward and ready, and if it is frozen. Local. O(1).
 *
 * adds: set to 1 if backward must add to the present contents, or 0 if it must overwrite them. This
 *       is the `beta` of the matrix product that computes the gradient. May be NULL.
 *
 * Without desc.overwrite_gradients and for resident units, *adds is always 1. Otherwise it is 1
 * only if gradients are whole (ZeRO-1, desc.reduce_last) and have contents: an earlier micro-batch
 * of the step had this unit in backward, or dpar_fsdp_norm, _state or _step read them since
 * dpar_fsdp_zero. */
DPAR_API void *dpar_fsdp_gradient(const dpar_fsdp *fsdp, int32_t i, int *adds);
/* Marks the gradients of a unit as complete for this micro-batch, and posts their reduction.
 *
 * Collective over comm: all ranks call it for the same units in the same order. Costs a
 * reduce-scatter of the unit in gradient_type, with ZeRO-1 or desc.reduce_last only in the last
 * micro-batch. Fails with DPAR_E_ARG if the unit has no gradients in this pass or is already ready.
 * Other errors are those of comm.h. */
DPAR_API dpar_status dpar_fsdp_ready(dpar_fsdp *fsdp, int32_t unit);
/* Ends the micro-batch. Makes resident units ready. After the last micro-batch, the gradients of
 * this rank's shards are reduced.
 *
 * Collective. Waits for the reductions that dpar_fsdp_ready posted, and with replicas for an
 * all-reduce of each shard. Fails with DPAR_E_ARG, which breaks the communicator, if a unit is in
 * use or had backward but is not ready. In the last micro-batch every unit with parameters must be
 * ready, unless it is frozen. Other errors are those of comm.h. A pass that failed has also ended.
 */
DPAR_API dpar_status dpar_fsdp_end(dpar_fsdp *fsdp);
/* Frees an fsdp and its memory. NULL is allowed. Waits for operations that are not complete.
 *
 * No communication, but no other rank may still be in a pass. O(units). Fails with DPAR_E_ARG if a
 * pass is in progress and no communicator is broken; the fsdp then remains valid. */
DPAR_API dpar_status dpar_fsdp_free(dpar_fsdp *fsdp);

#endif
