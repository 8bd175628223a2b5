/* SPDX-License-Identifier: MIT-0 */
/* halo_cost - predicts the time of a halo exchange on a process grid and chooses the best grid. The
 * prediction counts the contiguous runs of memory that the faces consist of, their area, and the
 * bytes that the network carries.
 *
 *     dpar_halo_cost_desc job = {0};
 *     dpar_halo_cost grid = {0};
 *     job.ranks = 64;
 *     job.per_node = 32;
 *     job.dims = 3;
 *     job.cells[0] = job.cells[1] = job.cells[2] = 512;
 *     job.width[0] = job.width[1] = job.width[2] = 2;
 *     job.bytes = 8;
 *     dpar_halo_cost_choose(&job, NULL, &grid, &why);      grid.parts, grid.stride, grid.seconds */
#ifndef DPARI_COST_HALO_COST_H
#define DPARI_COST_HALO_COST_H

#include "../base/base.h"
#include "../index/cart.h"

/* The rates that a machine reaches in a halo exchange. dpar_halo_plan_tune and the programs in
 * bench/ measure them. */
typedef struct dpar_halo_rates {
    double copy_Bps;  /* bytes/s that a rank copies from one array to another in long runs */
    double run_s;     /* seconds for each contiguous run, whatever its length */
    double peer_s;    /* seconds for each peer on the same node */
    double message_s; /* seconds for each peer on another node */
    double nic_Bps;   /* bytes/s out of a node, shared by its ranks; 0 if there is no network */
    /* A block that is larger than cache_bytes, its halo included, does not stay in the cache. A run
     * of it takes far_s seconds instead of run_s. cache_bytes = 0 turns this rule off. */
    double cache_bytes, far_s;
} dpar_halo_rates;

/* Sets the default rates: those of faces of 64^3 and 128^3 doubles on a Xeon
 * (docs/records/performance.md) and of one NIC of 200 Gb/s per node. O(1). */
DPAR_API void dpar_halo_rates_init(dpar_halo_rates *rates);

/* Describes a halo exchange. Zero the struct, then fill it in. Dim 0 is the slowest in memory. */
typedef struct dpar_halo_cost_desc {
    /* number of ranks, and ranks per node: rank r is on node r / per_node; per_node 0 puts all
     * ranks on one node */
    int32_t ranks, per_node;
    int32_t dims;                 /* 1..DPAR_MAX_DIMS */
    int32_t shape;                /* DPAR_STENCIL_STAR, ... */
    uint32_t periodic;            /* bit d is set if dim d is periodic */
    int64_t cells[DPAR_MAX_DIMS]; /* cells of the whole grid along each dim */
    int64_t width[DPAR_MAX_DIMS]; /* cells of the halo on either side */
    int64_t bytes;                /* bytes of one cell, all fields together */
    int64_t contiguous_bytes;     /* contiguous part of these bytes, such as one field's components;
                                     0 if all are contiguous */
} dpar_halo_cost_desc;

/* A process grid and the predicted cost of one exchange on it. The rank at a position is the sum
 * over the dims of coordinate[d] * stride[d], as on the axes of a dpar_mesh. */
typedef struct dpar_halo_cost {
    int32_t parts[DPAR_MAX_DIMS];  /* ranks along each dim */
    int32_t stride[DPAR_MAX_DIMS]; /* distance in ranks from one part to the next */
    double seconds;                /* predicted time of the exchange */
    double copy_s;    /* part of `seconds`: the busiest rank's copies, also to itself if periodic */
    double network_s; /* part of `seconds`: the network of the busiest node */
    int64_t bytes;    /* bytes that a rank in the middle of the grid receives, also from itself */
    int64_t network_bytes; /* bytes that a node in the middle of the grid sends to other nodes */
    int32_t peers;         /* peers of a rank in the middle of the grid, itself not counted */
} dpar_halo_cost;

/* Predicts the cost of an exchange on a given process grid.
 *
 * job:   the exchange.
 * rates: rates of the machine; NULL selects those of dpar_halo_rates_init.
 * grid:  the caller sets parts and strides; the function writes the other fields. The strides order
 *        the axes: each is the product of the parts of all faster axes.
 *
 * The prediction takes the largest block, and the ranks of two nodes: the first and the one in the
 * middle of the grid.
 *
 *     copies = bytes / copy_Bps + runs run_s        summed over all halos; counted twice if packed
 *                                                   (from another node, or in runs below 64 bytes);
 *                                                   far_s replaces run_s for blocks beyond the
 *                                                   cache
 *     seconds = copies + max(peers peer_s, messages message_s + network_bytes / nic_Bps)
 *
 * Local. O(ranks of a node x 3^dims). Fails with DPAR_E_ARG if a number is not allowed and with
 * DPAR_E_RANGE if the grid is larger than 2^61 bytes. */
DPAR_API dpar_status dpar_halo_cost_predict(const dpar_halo_cost_desc *job,
                                            const dpar_halo_rates *rates, dpar_halo_cost *grid,
                                            dpar_why *why);

/* Chooses the process grid and the order of its axes that dpar_halo_cost_predict predicts to be the
 * fastest. Each block holds at least one cell. Of equally fast grids it takes the one that cuts the
 * slower dims more often, then the one whose last dim has the smallest stride.
 *
 * job:   the exchange.
 * rates: rates of the machine; NULL selects those of dpar_halo_rates_init.
 * grid:  written on success only.
 *
 * Local. All ranks that pass the same arguments get the same grid. If the rates are measured and
 * differ between ranks, let one rank choose. It tries every ordered factorisation with every order
 * of the axes, which takes milliseconds for up to 1000 ranks in 3 dims. Fails with DPAR_E_NONE if
 * no grid gives each rank a cell, and otherwise like dpar_halo_cost_predict. */
DPAR_API dpar_status dpar_halo_cost_choose(const dpar_halo_cost_desc *job,
                                           const dpar_halo_rates *rates, dpar_halo_cost *grid,
                                           dpar_why *why);

/* The largest number of steps between two exchanges that dpar_halo_cost_choose_steps tries. */
enum { DPAR_HALO_COST_MOST_STEPS = 32 };

/* Predictions of dpar_halo_cost_choose_steps. */
typedef struct dpar_halo_cost_steps {
    int32_t best; /* the number of steps between two exchanges with the shortest time per step */
    /* seconds[k - 1]: predicted seconds per step with k steps between two exchanges. 0 if k was not
     * tried, because the halo would be wider than a block. */
    double seconds[DPAR_HALO_COST_MOST_STEPS];
} dpar_halo_cost_steps;

/* Chooses how many steps a code with a deep halo computes between two exchanges (desc.steps of
 * grid.h), so that the predicted time of a step is shortest. Of equally fast numbers it takes the
 * smallest.
 *
 * job:    the exchange of a single step: width is the stencil's radius.
 * rates:  rates of the machine; NULL selects those of dpar_halo_rates_init.
 * grid:   parts and strides of the process grid, such as from dpar_halo_cost_choose.
 * cell_s: seconds that a rank computes per cell and step, all fields together.
 * steps:  written on success only.
 *
 *     seconds = (exchange + cell_s * cells of all sub-steps) / steps
 *
 * The exchange is that of dpar_halo_cost_predict with a halo of steps * width, and with more than
 * one step it includes edges and corners. The cells are those of a rank in the middle of the grid,
 * with the halo cells that it computes. Time hidden by overlap is not subtracted.
 *
 * Local. Costs as much as DPAR_HALO_COST_MOST_STEPS predictions. The errors are those of
 * dpar_halo_cost_predict, and DPAR_E_ARG if steps is NULL or cell_s is negative or not finite. */
DPAR_API dpar_status dpar_halo_cost_choose_steps(const dpar_halo_cost_desc *job,
                                                 const dpar_halo_rates *rates,
                                                 const dpar_halo_cost *grid, double cell_s,
                                                 dpar_halo_cost_steps *steps, dpar_why *why);

/* What a rank receives from one neighbour in each exchange. For exchanges that no grid describes,
 * such as lists of ids or indices (dpar_points_peer counts them). */
typedef struct dpar_neighbour {
    int64_t bytes;    /* bytes received */
    int64_t runs;     /* contiguous pieces, counted in each copy */
    int32_t copies;   /* 1 if the values are read in place; 2 if they are packed and unpacked, as in
                         messages */
    int32_t location; /* 0 if on the same node, 1 if on another node, 2 if it is the rank itself */
} dpar_neighbour;

/* Predicts the seconds that one rank takes for an exchange with n neighbours.
 *
 *     copies = sum of copies bytes / copy_Bps + runs run_s
 *     seconds = copies + max(peers peer_s, messages message_s + network_bytes / nic_Bps)
 *
 * neighbour: [n]; if n is 0, the result is 0.
 * per_node:  ranks that share the node's NIC and send as much as this one.
 * rates:     rates of the machine, such as dpar_cluster.halo; NULL selects those of
 *            dpar_halo_rates_init.
 *
 * The job waits for its slowest rank, so its time is the maximum over the ranks (dpar_max). The
 * arguments are not checked. Local. O(n). */
DPAR_API double dpar_neighbours_cost(const dpar_neighbour *neighbour, int32_t n, int32_t per_node,
                                     const dpar_halo_rates *rates);

#endif
