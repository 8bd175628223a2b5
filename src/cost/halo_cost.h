/* SPDX-License-Identifier: MIT-0 */
/* halo_cost - how long an exchange of halos takes on a process grid, and which grid is the best. It
 * looks at the runs of memory that faces are made of, at their area, and at the network.
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

/* What the machine reaches. dpar_halo_plan_tune and bench/ measure such numbers. */
typedef struct dpar_halo_rates {
    double copy_Bps;  /* bytes/s that a rank moves out of one array into another, long runs */
    double run_s;     /* s for each run (a piece without gaps), whatever its length */
    double peer_s;    /* s for each peer on the node */
    double message_s; /* s for each peer on another node */
    double nic_Bps;   /* bytes/s out of a node, shared by its ranks; 0: no network */
    /* A block of more bytes, with its halo, lies in memory: there a run takes far_s, not run_s. 0:
     * no block does. */
    double cache_bytes, far_s;
} dpar_halo_rates;

/* Default rates: faces of 64^3 and 128^3 doubles on a Xeon (docs/records/performance.md), a NIC of
 * 200 Gb/s a node. O(1). */
DPAR_API void dpar_halo_rates_init(dpar_halo_rates *rates);

/* An exchange of halos. Zero it and fill it in. Dim 0 is the slowest in memory. */
typedef struct dpar_halo_cost_desc {
    int32_t ranks, per_node;      /* rank r is on node r / per_node; per_node 0: one node */
    int32_t dims;                 /* 1..DPAR_MAX_DIMS */
    int32_t shape;                /* DPAR_STENCIL_STAR, ... */
    uint32_t periodic;            /* bit d */
    int64_t cells[DPAR_MAX_DIMS]; /* of the whole grid */
    int64_t width[DPAR_MAX_DIMS]; /* of the halo, on either side */
    int64_t bytes;                /* a cell, of all fields together */
    int64_t together;             /* bytes of them that lie side by side (one field's components) */
} dpar_halo_cost_desc;

/* A process grid and what one exchange costs on it. Rank = sum over d of coordinate[d] * stride[d]:
 * axes of a dpar_mesh. */
typedef struct dpar_halo_cost {
    int32_t parts[DPAR_MAX_DIMS];  /* ranks along each dim */
    int32_t stride[DPAR_MAX_DIMS]; /* ranks from one part to the next */
    double seconds;
    double copy_s;    /* of these: the busiest rank's copies, those to itself round a ring too */
    double network_s; /* of these: the network of the busiest node */
    int64_t bytes;    /* received by a rank in the middle, from itself too */
    int64_t network_bytes; /* sent by a node in the middle to others */
    int32_t peers;         /* of a rank in the middle, besides itself */
} dpar_halo_cost;

/* The cost of the grid with these parts and strides. strides: a permutation of the axes, each the
 * product of the parts of the faster ones. It takes the largest block, and the ranks of the first
 * node and of the one in the middle of the grid:
 *
 *     copies = bytes / copy_Bps + runs run_s        of all halos; twice those that are packed (from
 *                                                   other nodes, or in runs below 64 bytes); far_s
 *                                                   in place of run_s for a block beyond the cache
 *     seconds = copies + peers peer_s, or + messages message_s + network_bytes / nic_Bps if longer
 *
 * E_ARG, E_RANGE with a sentence. Not collective. O(ranks of a node x 3^dims). */
DPAR_API dpar_status dpar_halo_cost_predict(const dpar_halo_cost_desc *job,
                                            const dpar_halo_rates *rates, dpar_halo_cost *grid,
                                            dpar_why *why);
/* The grid and the order of its axes with the least seconds. Of equal ones it takes the one that
 * cuts the slower dims more often, then the last dim fastest. Blocks hold at least one cell. rates
 * NULL: the default. E_ARG, E_RANGE, E_NONE (no such grid) with a sentence.
 *
 * All ranks that compute it get the same; between unlike machines let one rank decide. It tries
 * every ordered factorisation x permutation: milliseconds to 1000 ranks in 3 dims. */
DPAR_API dpar_status dpar_halo_cost_choose(const dpar_halo_cost_desc *job,
                                           const dpar_halo_rates *rates, dpar_halo_cost *grid,
                                           dpar_why *why);

/* What comes from a neighbour at each exchange, where no grid says it: lists of ids or indices
 * (dpar_points_peer counts them). */
typedef struct dpar_neighbour {
    int64_t bytes;
    int64_t runs;   /* pieces without gaps in which they are copied, of both copies together */
    int32_t copies; /* 1: read where they lie; 2: packed and unpacked, as messages are */
    int32_t away;   /* 1: on another node; 2 where the neighbour is the rank itself */
} dpar_neighbour;

/* The seconds of such an exchange on a rank, as dpar_halo_cost_predict counts them:
 *
 *     copies = sum of copies bytes / copy_Bps + runs run_s
 *     seconds = copies + peers peer_s, or + messages message_s + network_bytes / nic_Bps if longer
 *
 * The job waits for the rank with the most (dpar_max of it). n neighbours, with none of them 0.
 * per_node: ranks that share the node's NIC and send as much. rates: those of a dpar_cluster
 * (`halo`); NULL: the default. Numbers are not checked. Local. O(n). */
DPAR_API double dpar_neighbours_cost(const dpar_neighbour *neighbour, int32_t n, int32_t per_node,
                                     const dpar_halo_rates *rates);

#endif
