/* SPDX-License-Identifier: MIT-0 */
/* dpar_cost.h - predicts the memory, traffic and time of a model or a grid on a machine and finds the best plan.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * A plan says how a job is spread over GPUs: the degrees of data, tensor, pipeline and other parallelism, and options
 * such as ZeRO and recomputation. The header prices one plan, or searches all legal ones. All functions are local,
 * and none allocates memory.
 *
 * Times are in seconds and sizes in bytes; 1 GB = 1e9 bytes. Bandwidths are in bytes/s and count one direction.
 * docs/records/accuracy.md compares the predictions with published measurements, row by row.
 *
 *     #include "dpar_cost.h"
 *     #include <stdio.h>
 *     int main(void)
 *     {
 *         static dpar_plan_result plan;
 *         char line[200];
 *         dpar_text text;
 *         dpar_why why;
 *         if (dpar_plan_search("llama-3-8b", "dgx-h100", "batch=512", &plan, &why) < 0) {
 *             fprintf(stderr, "%s\n", why.text);
 *             return 1;
 *         }
 *         dpar_text_init(&text, line, sizeof line);
 *         dpar_plan_draw(&text, &plan.report, DPAR_PLAN_DRAW_LINE, NULL);
 *         printf("%.1f GB, %.1f s a step: %s", plan.memory * 1e-9, plan.step, line);
 *         return 0;
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_schedule.h")
#error dpar_cost.h needs dpar_schedule.h beside it, of the same release
#endif
#endif
#include "dpar_schedule.h"
#endif
#if DPAR_VERSION != 200
#error dpar_cost.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_COST_H
#define DPAR_COST_H

/* ==== cost/halo_cost.h ==== */

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

/* ==== cost/cluster.h ==== */

/* cluster - describes a machine for the predictions: its chip, the links inside a node, the NICs
 * and the network. Calibration constants say which share of the data sheet programs reach.
 * Bandwidths are in bytes/s and count ONE direction. 1 GB = 1e9 bytes, 1 GiB = 2^30 bytes.
 *
 *     dpar_cluster c;
 *     dpar_cluster_read(&c, "8x8:h100-80,nic=8x50", 20, &why);    64 GPUs, 8 NICs per node */

/* Chip generations. The chips of a generation share one set of calibration constants. */
enum {
    DPAR_GEN_OTHER,
    DPAR_GEN_VOLTA,
    DPAR_GEN_AMPERE,
    DPAR_GEN_HOPPER,
    DPAR_GEN_BLACKWELL,
    DPAR_GEN_CDNA,
    DPAR_GEN_TPU,
    DPAR_GEN_CPU,  /* one core is one rank, which either computes or copies, never both at once */
    DPAR_GEN_COUNT /* number of generations */
};

/* A chip with the numbers of its data sheet. */
typedef struct dpar_gpu {
    char name[20];
    int32_t generation;              /* DPAR_GEN_* */
    int32_t units;                   /* streaming multiprocessors (CUs, cores); 0 if unknown */
    double flops[DPAR_FORMAT_COUNT]; /* dense peak in FLOP/s by format; 0 if the chip lacks the
                                        format */
    double memory_bytes;             /* bytes that a program can allocate */
    double memory_Bps;               /* bandwidth of the device memory, bytes/s */
    double pcie_Bps;                 /* bandwidth to the host, one direction, bytes/s */
    char source[64];                 /* source of the numbers, with its date */
} dpar_gpu;

/* The calibration constants of a machine. Each one has a default for each generation. It can be set
 * by name ("gemm=0.8") and fitted to measurements (calibrate.h). */
enum {
    DPAR_CAL_GEMM,       /* share of the matrix peak that a large GEMM reaches */
    DPAR_CAL_ATTENTION,  /* share of the matrix peak that fused attention reaches */
    DPAR_CAL_HBM,        /* share of memory_Bps that streaming kernels reach */
    DPAR_CAL_LAUNCH_S,   /* host seconds per kernel launch, a lower bound of the time of small
                            layers */
    DPAR_CAL_LINK_SHARE, /* share of the in-node link bandwidth that collectives reach */
    DPAR_CAL_LINK_S,     /* seconds per step of a collective inside a node */
    DPAR_CAL_NET_SHARE,  /* share of the NIC bandwidth that collectives reach */
    DPAR_CAL_NET_S,      /* seconds per step of a collective between nodes */
    DPAR_CAL_BASE_S,     /* seconds that any collective takes before its first step */
    DPAR_CAL_CONTENTION, /* compute time lost per second of communication that it hides */
    DPAR_CAL_SKEW,   /* time spent waiting for the slowest rank, as a share of the compute for each
                        doubling of dp x cp x tiles */
    DPAR_CAL_STEP_S, /* seconds per step outside of the layers (data, loss sync, host) */
    DPAR_CAL_HOP_S,  /* seconds that a piece takes up and down one level of a tree between nodes */
    DPAR_CAL_COUNT   /* number of constants */
};

/* The values of the calibration constants. */
typedef struct dpar_calibration {
    double value[DPAR_CAL_COUNT]; /* by DPAR_CAL_* */
    double error[DPAR_CAL_COUNT]; /* relative error, one standard deviation; 0 if unknown */
    int32_t rows;                 /* measurements that were fitted; 0 for defaults */
    char source[64];              /* which measurements, with the date */
} dpar_calibration;

enum { DPAR_CURVE_POINTS = 16 }; /* maximum number of points of a measured curve */
/* Measured times of a call by message size. They replace the formulas of dpar_collective_predict.
 */
typedef struct dpar_curve {
    int32_t count; /* points, in ascending order of bytes; 0 if not measured */
    int32_t ranks; /* ranks that took part, >= 2 */
    double bytes[DPAR_CURVE_POINTS], seconds[DPAR_CURVE_POINTS];
} dpar_curve;
/* The calls that can be measured. */
enum {
    DPAR_CURVE_LINK,      /* all-reduce over the ranks of a node */
    DPAR_CURVE_LINK_SEND, /* a message inside a node, one way */
    DPAR_CURVE_NET,       /* all-reduces over one rank per node, by all ranks of a node at the same
                             time */
    DPAR_CURVE_NET_SEND,  /* a message between nodes, one way */
    DPAR_CURVE_COUNT      /* number of measured calls */
};

/* A machine: nodes with equal chips, their links and their network. */
typedef struct dpar_cluster {
    char name[24];
    dpar_gpu gpu;
    int32_t nodes;         /* >= 1 */
    int32_t gpus_per_node; /* ranks that share the in-node links; >= 1 */
    double link_Bps;       /* bandwidth of a GPU inside the node, bytes/s, one direction */
    int32_t link_switched; /* 1 if any pair gets link_Bps (NVSwitch), 0 if the peers share it */
    int32_t link_reduces;  /* 1 if the switch inside a node can reduce (NVLS) */
    int32_t nics;          /* NICs per node; 0 if there is no network (one node) */
    double nic_Bps;        /* bandwidth of one NIC, bytes/s, one direction */
    int32_t net_reduces;   /* 1 if the network between nodes can reduce (SHARP) */
    double taper;          /* share of the NICs' bandwidth that the network carries, (0, 1] */
    double host_bytes;     /* host memory per node; 0 if unknown, and then nothing is offloaded */
    double nvme_Bps;       /* bandwidth of a node's NVMe, bytes/s; 0 if it has none */
    dpar_calibration cal;  /* shares of the data sheet that programs reach, and latencies */
    dpar_curve curve[DPAR_CURVE_COUNT]; /* measured calls, by DPAR_CURVE_* */
    dpar_halo_rates halo;               /* rates for dpar_halo_cost_predict */
    char source[96];                    /* source of the machine's numbers, with the date */
} dpar_cluster;

/* Returns the name of a calibration constant, or NULL if there is no such constant. The names are
 * keys of dpar_cluster_read: "gemm", "attention", "hbm", "launch_us", "link_share", ... The text is
 * static. O(1). */
DPAR_API const char *dpar_calibration_name(int32_t which);

/* Reads a machine from text: a preset's name or NODESxGPUS:GPU, followed by ",key=value" settings.
 * The text may also be a file with one setting per line and comments that begin with '#'.
 *
 *     "8x8:h100-80,nvlink=450,nic=8x50"        8 nodes of 8, GB/s one direction, 8 NICs of 50 GB/s
 *     "derecho,nodes=16"   "16xdgx-h100"       "64:a100-80" is one node of 64
 *
 * Keys may come in any order; if a key is repeated, the last value counts.
 *
 *     nodes, gpus (per node), gpu, nvlink (GB/s), switched, nvls, nic (COUNTxGB/s), sharp, taper,
 *     memory (GB per GPU), hbm (GB/s), tflops (dense bf16), pcie (GB/s), host (GB per node),
 *     nvme (GB/s), and the name of every calibration constant;
 *     stream (GB/s per GPU: as hbm, but also for small values), tflops32, tflops64 (dense);
 *     link_reduce, link_send, net_reduce, net_send: RANKSxBYTESxMICROSECONDS, one point each,
 *     in ascending order of bytes;
 *     halo_copy (GB/s), halo_run (ns), halo_peer, halo_msg (us), halo_nic (GB/s),
 *     halo_cache (MB), halo_far (ns): the fields of dpar_cluster.halo;
 *     settings (the least number of settings that follow; a file that was cut short is refused)
 *
 * "hbm" has two meanings: a value up to 2 is the share DPAR_CAL_HBM, a larger one is GB/s. Unless
 * settings give them, the links and NICs of NODESxGPUS:GPU are the usual ones of the chip, with one
 * NIC per GPU, and `source` says so. *cluster is written on success only. O(bytes + presets).
 *
 * Fails with DPAR_E_PARSE if the text cannot be read, DPAR_E_UNKNOWN for an unknown name, and
 * DPAR_E_ARG for a value that is not allowed. If the text has several lines, the message begins
 * with the line's number. */
DPAR_API dpar_status dpar_cluster_read(dpar_cluster *cluster, const char *text, size_t bytes,
                                       dpar_why *why);

/* Changes the number of GPUs of a machine. `gpus` must be a multiple of gpus_per_node, or smaller
 * than it. A smaller number makes the machine a part of one node, with the same share of its NICs.
 * *cluster is written on success only. O(1). Fails with DPAR_E_DIVIDE if the last node would not be
 * full, and with DPAR_E_ARG if gpus is below 1 or a machine without NICs would get several
 * nodes. */
DPAR_API dpar_status dpar_cluster_resize(dpar_cluster *cluster, int32_t gpus, dpar_why *why);

/* ==== cost/machines.h ==== */

/* machines - machines and chips by name, and the default calibration of each generation. */

/* Finds a machine by its name ("derecho", "dgx-h100"), in upper or lower case. *cluster is written
 * on success only. O(presets). Fails with DPAR_E_UNKNOWN; the message names the nearest machine. */
DPAR_API dpar_status dpar_cluster_find(dpar_cluster *cluster, const char *name, dpar_why *why);
/* Returns the name of machine number `index`, or NULL if there is none. Indices count from 0. The
 * text is static. O(1). */
DPAR_API const char *dpar_cluster_name(int32_t index);
/* Returns the name of chip number `index`, or NULL if there is none. Indices count from 0. To get
 * the chip itself, read the machine "1:NAME" with dpar_cluster_read and take its gpu. The text is
 * static. O(1). */
DPAR_API const char *dpar_gpu_name(int32_t index);

/* Sets the default constants of a generation, with their source, date and errors. An unknown
 * generation gets the constants of DPAR_GEN_OTHER. O(1). */
DPAR_API void dpar_calibration_init(dpar_calibration *cal, int32_t generation);

/* ==== cost/collective.h ==== */

/* collective - predicts the time of a collective operation on a machine. The planner uses it for
 * all communication.
 *
 *     dpar_cluster_group_init(&g, &cluster, 8, 1);                          8 neighbouring ranks
 *     dpar_collective_predict(&cluster, &g, DPAR_CALL_ALL_REDUCE, 1e9, &cost);
 *     cost.seconds                             the predicted time of the call
 *
 * Bytes always count the FULL vector, which is the "size" of nccl-tests: the output of an
 * all-gather, the input of a reduce-scatter, one rank's buffer of an all-to-all. By the textbook, a
 * ring all-reduce of n ranks whose links carry Bps bytes/s takes 2 (n-1)/n * bytes / Bps. The bus
 * bandwidth of nccl-tests is (bytes / time) * factor. The factor is 2 (n-1)/n for an all-reduce and
 * (n-1)/n for all-gather, reduce-scatter and all-to-all. */

/* The algorithms of a collective. dpar_collective_predict names the one that it found fastest. */
enum {
    DPAR_ALG_RING,         /* a ring over all ranks */
    DPAR_ALG_PAIRWISE,     /* messages between pairs: all-to-all, point to point */
    DPAR_ALG_TREE,         /* trees between the nodes */
    DPAR_ALG_IN_SWITCH,    /* the switch adds the values: NVLS, SHARP */
    DPAR_ALG_HIERARCHICAL, /* first inside the nodes, then between them, then inside again */
    DPAR_ALG_COUNT         /* number of algorithms */
};

/* A group of ranks and its distribution over the nodes of the machine. */
typedef struct dpar_cluster_group {
    int32_t size;     /* ranks of the group */
    int32_t per_node; /* ranks of the group on one node, >= 1 */
    int32_t nodes;    /* nodes that the group spans: size / per_node, rounded up */
    int32_t sharing;  /* groups of this kind on one node, which share its NICs; >= 1 */
} dpar_cluster_group;

/* The predicted cost of a collective. */
typedef struct dpar_collective_cost {
    double seconds;    /* time of the call */
    int32_t algorithm; /* DPAR_ALG_* */
    double link_bytes; /* bytes that a GPU sends over the links inside the node */
    double nic_bytes;  /* bytes that a GPU sends over the NICs */
    double nic_Bps;    /* bytes/s that the NICs give to each GPU of the group */
    double latency_s;  /* the part of `seconds` that does not shrink with the bytes */
} dpar_collective_cost;

/* Describes a group of n ranks that are `stride` ranks apart, and counts how many such groups share
 * a node. All these groups together fill the machine. If some of them span two nodes and others do
 * not, as groups of 4 ranks on nodes of 6 GPUs, the result describes one that spans two nodes. The
 * slowest group holds up the others. O(1). */
DPAR_API void dpar_cluster_group_init(dpar_cluster_group *group, const dpar_cluster *cluster,
                                      int32_t n, int32_t stride);

/* Predicts the time of one collective call.
 *
 * cluster: the machine. If it has measured times (cluster->curve), they replace the formulas.
 * group:   the group of ranks; the groups of a node share its NICs.
 * kind:    DPAR_CALL_ALL_REDUCE, ...
 * bytes:   size of the full vector; ignored for a barrier.
 * cost:    the result. All of it is 0 for a group of one rank, for no bytes, and for an unknown
 *          kind.
 *
 * The prediction is that of the fastest algorithm that the machine has: flat ring, tree,
 * hierarchical, a low-latency protocol, and in-switch reduction. In-switch reduction exists for
 * all-reduce only, and is the fastest only for large vectors. All-gather and reduce-scatter between
 * nodes are rings, as in NCCL. With one rank per node they may also be trees on Hopper and
 * Blackwell (NCCL's PAT). The calibration of `cluster` gives the latency of a step and the share of
 * the bandwidth that collectives reach. The bandwidth also depends on the size and the number of
 * ranks.
 *
 * O(1), about 50 ns. The rules and their sources are in collective.c; tests/cost/collective.c
 * prints the errors against published tables. */
DPAR_API void dpar_collective_predict(const dpar_cluster *cluster, const dpar_cluster_group *group,
                                      int32_t kind, double bytes, dpar_collective_cost *cost);

/* ==== cost/workload.h ==== */

/* workload - describes the work of a job as a short list of layer classes, each of which is a short
 * list of operations with their shapes. Prices, memory and plans are sums over this list. Therefore
 * a new architecture is a new list, and the cost of pricing does not grow with the number of
 * layers.
 *
 *     static dpar_workload w;                                  takes 27 KB
 *     dpar_model_find(&model, "llama-3-8b", &why);             models.h
 *     dpar_workload_init(&w, &model, 0, &why); */

enum {
    DPAR_MAX_LAYER_CLASSES = 24, /* maximum number of layer classes of a workload */
    DPAR_MAX_LAYER_OPS = 320,    /* maximum number of operations of a workload */
    DPAR_MAX_NOTE = 800          /* bytes of a note */
};

/* Private: the kinds of operations. n, k and copies are fields of dpari_layer_op. */
enum {
    DPARI_OP_GEMM,      /* [tokens, k] x [k, n], `copies` times */
    DPARI_OP_EXPERTS,   /* grouped GEMM: [rows, k] x [k, n] with `copies` rows per token in all */
    DPARI_OP_ATTENTION, /* fused: 2 * n * k FLOP per token, n = heads (d_qk + d_v), k = keys seen */
    DPARI_OP_SCORES,    /* the same product unfused (batched GEMMs) */
    DPARI_OP_CONV,      /* convolution: a GEMM with k = C_in/groups * taps */
    DPARI_OP_STREAM,    /* element-wise: moves bytes and has few FLOP */
    DPARI_OP_SCAN /* a recurrence in chunks: FLOP as in ATTENTION, never halved as if causal */
};

/* Private: how tensor parallelism (TP) divides an operation among its ranks. */
enum {
    DPARI_CUT_NONE,     /* every TP rank computes or holds the whole operation */
    DPARI_CUT_SEQUENCE, /* as NONE, but with sequence parallelism 1/tp of the tokens */
    DPARI_CUT_COLUMN,   /* output width / tp */
    DPARI_CUT_ROW,      /* inner width / tp */
    DPARI_CUT_TENSOR,   /* bytes or heads / tp */
    /* For a mixture of experts: the experts are spread over ep ranks, and each expert is cut over
     * etp ranks. Sequence parallelism divides the tokens. */
    DPARI_CUT_EXPERT,        /* every rank of etp computes or holds the whole operation */
    DPARI_CUT_EXPERT_COLUMN, /* output width / etp */
    DPARI_CUT_EXPERT_ROW,    /* inner width / etp */
    DPARI_CUT_EXPERT_TENSOR  /* bytes / etp */
};

/* Which activations are dropped, and computed again in the backward. A value is one of the first
 * four. NONE and SELECTIVE may be combined with the bits below (Megatron-Core's recompute
 * modules). */
enum {
    DPAR_RECOMPUTE_NONE,
    DPAR_RECOMPUTE_SELECTIVE, /* the scores of unfused attention */
    DPAR_RECOMPUTE_FULL,      /* all but the layer's input */
    DPAR_RECOMPUTE_ALTERNATE, /* all but every second product and attention: torchtitan's "op" */
    DPAR_RECOMPUTE_COUNT,     /* number of the values above */
    DPAR_RECOMPUTE_NORM = 4,  /* bit: outputs of norms */
    DPAR_RECOMPUTE_ACTIVATION = 8, /* bit: outputs of activation functions, also in experts */
    DPAR_RECOMPUTE_EXPERTS = 16    /* bit: everything inside the experts */
};

/* Private: the recomputation that drops an operation's saved activation. */
enum {
    DPARI_KEEP_ALWAYS,     /* kept without recomputation and with SELECTIVE */
    DPARI_KEEP_SELECTIVE,  /* dropped by SELECTIVE (attention scores) */
    DPARI_KEEP_INPUT,      /* the layer's input, which is always kept */
    DPARI_KEEP_NORM,       /* the output of a norm */
    DPARI_KEEP_ACTIVATION, /* the output of an activation function */
    DPARI_KEEP_EXPERTS     /* inside the experts, but not the output of an activation function */
};

/* Private: an operation of a layer. */
typedef struct dpari_layer_op {
    int8_t kind;       /* DPARI_OP_* */
    int8_t cut;        /* DPARI_CUT_*, for the work and the weights */
    int8_t save_cut;   /* DPARI_CUT_*, for the saved bytes */
    int8_t keep;       /* DPARI_KEEP_* */
    int16_t kernels;   /* kernels of the forward pass; the backward has twice as many */
    int16_t heads;     /* attention: heads that TP divides; 0 for other operations */
    double n, k;       /* sizes, see DPARI_OP_* */
    double copies;     /* number of products or rows, see DPARI_OP_*; usually 1 */
    double params;     /* weights, all ranks together */
    double touch;      /* bytes of device memory per token that the forward moves, not counting GEMM
                          operands */
    double touch_back; /* the same for the backward */
    double save;       /* bytes per token kept for the backward */
    double transient;  /* bytes per token that exist only during this backward */
} dpari_layer_op;

/* The position of a layer in a pipeline. */
enum {
    DPAR_LAYER_EMBED, /* an embedding, on the first stage */
    DPAR_LAYER_BLOCK, /* a block, on any stage */
    DPAR_LAYER_HEAD   /* the head, on the last stage */
};

/* A class of equal layers. */
typedef struct dpar_workload_layer {
    char name[12];              /* "embed", "block", "moe", "head", ... */
    int32_t kind;               /* DPAR_LAYER_* */
    int32_t count;              /* number of layers */
    int32_t from, span;         /* blocks: spread evenly over [from, from + span) of all blocks */
    int32_t first, ops;         /* its operations: `ops` entries of workload.op from `first` on */
    int32_t shared, shared_ops; /* the same for its shared experts; shared_ops is 0 if there are
                                   none */
    double tokens;              /* tokens (pixels, cells) per sample */
    double width_bytes;         /* bytes per token of its output, which a pipeline stage sends */
    double alternate;   /* bytes per token that RECOMPUTE_ALTERNATE keeps, all ranks together */
    int32_t tp_regions; /* column-row pairs; each has one all-reduce forward and one backward */
    double cp_kv_bytes; /* bytes per token of keys and values, all heads */
    double cp_qo_bytes; /* bytes per token of queries and attention outputs, all heads */
    double ep_bytes;    /* bytes per token sent to experts (top-k copies); 0 without experts */
    double reach_bytes; /* halo: sum over its convolutions of depth in cells x bytes per cell */
    int32_t reach;      /* depth in cells of the deepest of its halos */
    int32_t exchanges;  /* halo exchanges in its forward */
    int32_t shrink;     /* the layer has extent / shrink cells along an axis */
} dpar_workload_layer;

/* How attention is computed. 0 in a model selects the usual one of its family and stack. */
enum {
    DPAR_MODEL_ATTENTION_UNFUSED = 1, /* batched GEMMs and a fused scale-mask-softmax (2019-2022) */
    DPAR_MODEL_ATTENTION_FLASH1,      /* the first fused kernels (2022-23, Triton included) */
    DPAR_MODEL_ATTENTION_FLASH,       /* FlashAttention-2 and later, cuDNN */
    DPAR_MODEL_ATTENTION_END          /* one past the last */
};

/* How the loss is computed. The number is the bytes per logit that exist at the same time. 0 in a
 * model selects the usual one of the stack. */
enum {
    DPAR_MODEL_LOSS_EAGER = 1, /* 14: 16-bit logits, an fp32 softmax, two gradients; 18 with tp */
    DPAR_MODEL_LOSS_COMPILED,  /* 6 */
    DPAR_MODEL_LOSS_FUSED,     /* 4: one kernel, with the gradient next to the logits */
    DPAR_MODEL_LOSS_INPLACE,   /* 2: one kernel, with the gradient in place of the logits */
    DPAR_MODEL_LOSS_CHUNKED,   /* as eager, but in 8 chunks of the tokens */
    DPAR_MODEL_LOSS_PARALLEL,  /* 10: Megatron's over a cut vocabulary, with an fp32 copy */
    DPAR_MODEL_LOSS_END        /* one past the last */
};

/* The software stack that runs the layers. It decides what is fused, what is kept, and how much the
 * host does. Every prediction names the stack that it assumed. 0 in a model selects the usual one
 * of its family. In text a year may follow, as in core@2024. It selects the latest generation up to
 * that year; if no run of that year is known, the note says so. */
enum {
    /* Megatron-LM of 2022, Megatron-DeepSpeed: apex kernels; only TP overlaps */
    DPAR_MODEL_STACK_MEGATRON = 1,
    DPAR_MODEL_STACK_MEGATRON_CORE, /* Megatron-Core with TransformerEngine */
    DPAR_MODEL_STACK_TORCH,         /* PyTorch FSDP, eager */
    DPAR_MODEL_STACK_TORCH_COMPILE, /* PyTorch FSDP, torch.compile */
    /* The four above are the basic stacks. Those below are generations and variants of them, which
     * fuse and keep the same as their stack. */
    DPAR_MODEL_STACK_LLM_FOUNDRY, /* llm-foundry: torch of 2023 */
    DPAR_MODEL_STACK_TORCHTITAN,  /* torchtitan: compiled, of 2025 */
    DPAR_MODEL_STACK_NANOTRON,    /* torch; reduces gradients at the end, cuts stages by work */
    DPAR_MODEL_STACK_NEMO,        /* core of 2025-26; the experts' messages overlap other work */
    DPAR_MODEL_STACK_DEEPEP, /* nemo; sends a token to a node once, with 8-bit recipes in 8 bits */
    DPAR_MODEL_STACK_MEGATRON_2021, /* megatron before TP messages overlapped the weight gradient */
    DPAR_MODEL_STACK_NEMO_2024,     /* core of 2024 */
    DPAR_MODEL_STACK_MAXTEXT,       /* XLA: fuses like compiled, its collectives are asynchronous */
    DPAR_MODEL_STACK_END            /* one past the last */
};

/* The work of a job. dpar_workload_init builds it. */
typedef struct dpar_workload {
    char name[32];
    int32_t layers, ops;                               /* entries of `layer` and of `op` in use */
    dpar_workload_layer layer[DPAR_MAX_LAYER_CLASSES]; /* in order of execution */
    dpari_layer_op op[DPAR_MAX_LAYER_OPS];             /* private */
    int32_t element;       /* bytes of an activation element: 2, 4 or 8 */
    int32_t attention;     /* DPAR_MODEL_ATTENTION_* */
    int32_t stack;         /* DPAR_MODEL_STACK_*, one of the first four */
    int32_t stack_version; /* DPAR_MODEL_STACK_*, the generation or variant that the model names */
    int32_t loss;          /* DPAR_MODEL_LOSS_* */
    int32_t causal;        /* 1 if attention is causal and sees half of the keys on average */
    double tokens;         /* tokens (pixels, cells) of a sample, which tokens/s counts */
    int32_t heads, kv_heads, hidden, vocab, experts, blocks, topk; /* 0 if there are none */
    int32_t expert_groups, topk_groups;                            /* as in dpar_model */
    int32_t head_blocks;       /* blocks with as much work as the head, if stages are cut by work */
    int32_t dims;              /* axes of the spatial grid; 0 if there is none */
    int64_t extent[3];         /* cells of the grid along each axis */
    int32_t time_steps;        /* grid solver: time steps in one "step"; 0 for other families */
    int32_t trains;            /* 1 if it has a backward and an optimizer, 0 if forward only */
    int32_t shard_units;       /* parameter groups that ZeRO-3 gathers one by one, usually layers */
    double params;             /* number of weights */
    double model_flops_full;   /* FLOP per sample, forward and backward, as if not causal */
    double model_flops_causal; /* the same with causal attention at half */
    double capacity;           /* mixture of experts: load of the fullest expert / mean, >= 1 */
    char note[DPAR_MAX_NOTE];  /* what was assumed or left out, one line per fact */
} dpar_workload;

/* The families of models. */
enum {
    /* learned positions, LayerNorm, GELU, biases, dropout: Megatron's GPT */
    DPAR_MODEL_FAMILY_GPT = 1,
    /* RMSNorm, rotary, gated MLP, no biases; fields add GQA, MLA and experts */
    DPAR_MODEL_FAMILY_LLAMA,
    DPAR_MODEL_FAMILY_VIT,    /* vision transformer: patches, not causal */
    DPAR_MODEL_FAMILY_DIT,    /* diffusion transformer: ViT with adaptive norms */
    DPAR_MODEL_FAMILY_T5,     /* encoder-decoder */
    DPAR_MODEL_FAMILY_RESNET, /* bottleneck conv net */
    DPAR_MODEL_FAMILY_UNET,   /* conv encoder-decoder with skips on a grid */
    DPAR_MODEL_FAMILY_GRID,   /* explicit grid solver: a stencil code */
    DPAR_MODEL_FAMILY_END     /* one past the last */
};

/* The kinds of layers. dpar_model.kinds counts layers by DPAR_MODEL_MIXER_*, which is how a layer
 * mixes tokens, and by DPAR_MODEL_FFN_*, which is the part that follows. */
enum {
    DPAR_MODEL_MIXER_FULL,    /* attention to every token */
    DPAR_MODEL_MIXER_WINDOW,  /* attention to the last `window` tokens */
    DPAR_MODEL_MIXER_SCAN,    /* a recurrence: state space, linear attention, short convolution */
    DPAR_MODEL_MIXER_BOTH,    /* attention and a recurrence in parallel */
    DPAR_MODEL_MIXER_NONE,    /* no mixing: only the part that follows */
    DPAR_MODEL_MIXER_COUNT,   /* one past the last */
    DPAR_MODEL_FFN_DENSE = 0, /* a dense MLP */
    DPAR_MODEL_FFN_EXPERTS,   /* a mixture of experts */
    DPAR_MODEL_FFN_NONE,      /* only mixing: nothing follows */
    DPAR_MODEL_FFN_COUNT      /* one past the last */
};

/* The kinds of recurrences, named after the layer that made them known. */
enum {
    DPAR_MODEL_SCAN_MAMBA = 1, /* scan_width channels with scan_state states each */
    DPAR_MODEL_SCAN_MAMBA2,    /* scan_heads of scan_width, scan_groups of scan_state */
    DPAR_MODEL_SCAN_DELTA,     /* gated delta rule: scan_groups keys of scan_state */
    DPAR_MODEL_SCAN_KDA,       /* the same with a decay for each channel */
    DPAR_MODEL_SCAN_LIGHTNING, /* linear attention with an output gate */
    DPAR_MODEL_SCAN_CONV,      /* gated short convolution */
    DPAR_MODEL_SCAN_LRU,       /* gated linear recurrence */
    DPAR_MODEL_SCAN_RWKV,      /* time mixing of RWKV-4 */
    DPAR_MODEL_SCAN_END        /* one past the last */
};

/* The kinds of heads. */
enum {
    DPAR_MODEL_HEAD_VOCAB, /* logits over the vocabulary */
    DPAR_MODEL_HEAD_NONE,  /* no head */
    DPAR_MODEL_HEAD_POOL,  /* a pooler */
    DPAR_MODEL_HEAD_MASKED /* masked language model: a transform, then logits over the vocabulary */
};

/* A model with the parameters that its paper gives. Zero the struct, then fill it in. 0 means "not
 * given". dpar_workload_init derives fields that are not given from the others: head_width = hidden
 * / heads, kv_heads = heads, ffn = 4 hidden. */
typedef struct dpar_model {
    char name[32];
    int32_t family; /* DPAR_MODEL_FAMILY_*; must be given */
    int32_t layers, hidden, heads, kv_heads, head_width, ffn, vocab;
    int32_t seq;    /* tokens per sample, and rows of learned positions */
    int32_t tied;   /* 1 if input and output embedding share their weights */
    int32_t biases; /* 1 yes, -1 no, 0 as usual in the family (yes in GPT, ViT and DiT) */
    int32_t rotary; /* GPT: 1 without learned positions (GPT-NeoX, Falcon, ALiBi) */
    int32_t experts, topk, expert_ffn, shared_ffn, dense_layers; /* mixture of experts */
    int32_t expert_groups, topk_groups; /* groups of experts; groups that a token uses, 0 for all */
    double capacity; /* load of the fullest expert over the mean, >= 1; 0 selects 1, balanced */
    /* latent attention (MLA), if kv_lora > 0 */
    int32_t q_lora, kv_lora, rope_width, qk_width, v_width;
    int32_t decoder_layers; /* T5: layers of the decoder; 0 selects as many as in the encoder */
    int32_t image[2], patch, channels, out_channels; /* ViT, DiT, conv nets */
    /* U-Net: number of levels (level l has hidden * 2^l channels), pairs of convolutions per level,
     * side of a kernel */
    int32_t levels, blocks_per_level, kernel;
    int64_t extent[3]; /* GRID: cells; a U-Net uses image instead */
    /* GRID: number of axes, fields per cell, width of the halo in cells */
    int32_t dims, fields, halo;
    double flops_per_cell, bytes_per_cell; /* GRID, per time step; 0 counts fields and stencil */
    int32_t attention;                     /* DPAR_MODEL_ATTENTION_*; 0 selects the usual one */
    int32_t stack;     /* DPAR_MODEL_STACK_*; 0 selects the family's usual one */
    int32_t loss;      /* DPAR_MODEL_LOSS_*; 0 selects the stack's */
    int32_t element;   /* bytes of an activation element; 0 selects 2, in GRID 4 */
    int32_t inference; /* 1 for forward only */
    int32_t gated;     /* MLP of three matrices: 1 yes, -1 no, 0 as usual in the family */
    int32_t causal;    /* 1 yes, -1 no, 0 as usual in the family */
    int32_t positions; /* rows of learned positions; -1 none, 0 as usual in the family */
    int32_t head;      /* DPAR_MODEL_HEAD_* */
    int32_t embed;     /* width of the token embedding; 0 selects hidden */
    /* a second embedding that every layer has (Gemma 3n): its width in each layer, and its rows */
    int32_t aside, aside_vocab;
    int32_t q_gate; /* 1 if attention gates its output, with a gate as wide as the output */
    int32_t window, window_kv_heads; /* WINDOW layers: tokens that a token sees; key-value heads */
    /* recurrences: DPAR_MODEL_SCAN_*, the sizes named there, and taps of the short convolution */
    int32_t scan, scan_heads, scan_groups, scan_width, scan_state, conv;
    /* layers with experts: those with layer % expert_step = expert_offset; step 0 selects all */
    int32_t expert_step, expert_offset;
    int32_t o_lora, o_groups; /* low-rank, block-diagonal output projection of attention */
    int32_t index_heads, index_width, index_topk; /* sparse attention: an indexer picks top-k */
    int32_t mtp; /* number of extra blocks that predict further tokens (multi-token prediction) */
    /* A vision or audio tower in front of the model: ViT blocks on tower_tokens patches of
     * tower_patch numbers. Its projectors join tower_merge tokens and map them, over a width of
     * tower_inner, to hidden. */
    int32_t tower_layers, tower_hidden, tower_heads, tower_ffn, tower_tokens, tower_patch;
    int32_t tower_positions, tower_merge, tower_inner, tower_mergers, tower_gated, tower_params;
    /* The kinds of the layers in order, repeated: F attends to all tokens, W to a window, S is a
     * scan, B is both. Lower-case letters are such layers without MLP or experts. D is only a dense
     * MLP, E only experts. Empty selects F for all. */
    char pattern[16];
    /* number of layers of each kind, at MIXER_* x FFN_COUNT + FFN_*; all 0 selects the pattern */
    int32_t kinds[DPAR_MODEL_MIXER_COUNT * DPAR_MODEL_FFN_COUNT];
    char note[DPAR_MAX_NOTE]; /* what the reader assumed or left out, one line per fact */
} dpar_model;

/* Builds the workload of a model.
 *
 * work:  the result; undefined on failure.
 * model: the model.
 * seq:   tokens per sample; 0 selects model->seq.
 *
 * O(layer classes). Fails with DPAR_E_ARG or DPAR_E_RANGE if a number of the model is not allowed:
 * no heads, a hidden size that the heads do not divide, ... The message has the numbers. */
DPAR_API dpar_status dpar_workload_init(dpar_workload *work, const dpar_model *model, int32_t seq,
                                        dpar_why *why);

/* ==== cost/models.h ==== */

/* models - reads models from text: a preset's name, settings, or Hugging Face's config.json.
 *
 *     dpar_model_read(&m, "llama-3-8b,seq=32k", 18, &why); */

/* Finds a model by its name ("llama-3-70b", "gpt3-175b", "unet-0.25deg", ...), in upper or lower
 * case. *model is written on success only. O(presets x letters). Fails with DPAR_E_UNKNOWN; the
 * message names similar models, if there are any. */
DPAR_API dpar_status dpar_model_find(dpar_model *model, const char *name, dpar_why *why);
/* Returns the name of preset number `index`, or NULL if there is none. Indices count from 0.
 * O(1). */
DPAR_API const char *dpar_model_name(int32_t index);

/* Reads a model from text: "PRESET[,key=value...]", "FAMILY:key=value,...", or a Hugging Face
 * config.json, which begins with '{'.
 *
 *     "llama-3-8b,seq=32768"
 *     "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048"
 *     "grid:1440x720x100,fields=5,halo=2"
 *     "unet:image=1440x720,channels=104,hidden=64,levels=4"
 *
 * The keys are the field names of dpar_model, and these three:
 *
 *     attention=unfused|flash1|flash
 *     loss=eager|compiled|fused|inplace|chunked|parallel
 *     stack=megatron|core|torch|compiled|llm-foundry|torchtitan|nanotron|nemo|deepep|maxtext;
 *     a year may follow, as in core@2024, and selects the software of that time
 *
 * seq=32k is 32768, and image=224 is a square. Preset names may be in upper or lower case. A
 * config.json is one of transformers, with MoE and MLA families; unknown members are skipped.
 * *model is written on success only. O(bytes).
 *
 * Fails with DPAR_E_UNKNOWN for a preset, family or model_type that does not exist here. Fails with
 * DPAR_E_PARSE for a setting that cannot be read, and for a config.json that is not JSON or lacks a
 * member that is needed. Fails with DPAR_E_RANGE for a number of a config.json outside 0..2^31 - 1.
 * The message names the setting or member. */
DPAR_API dpar_status dpar_model_read(dpar_model *model, const char *text, size_t bytes,
                                     dpar_why *why);

/* ==== cost/strategy.h ==== */

/* strategy - describes how a workload is spread over ranks: the degrees of parallelism, the options
 * and the bytes per parameter.
 *
 *     dpar_strategy s;
 *     dpar_strategy_init(&s);
 *     dpar_strategy_read(&s, "tp=8,sp=1,pp=4,dp=2,zero=1,m=64", 31, NULL, &why); */

/* How context-parallel ranks exchange keys and values. */
enum {
    DPAR_CP_RING,      /* ring attention: keys and values are passed from rank to rank */
    DPAR_CP_ULYSSES,   /* all-to-all: each rank gets the whole sequence for some of the heads */
    DPAR_CP_GATHER,    /* every rank gathers all keys and values */
    DPAR_CP_KIND_COUNT /* number of kinds */
};
enum {
    DPAR_SCHEDULE_PRICED_END = DPAR_SCHEDULE_DUALPIPEV + 1
}; /* the rules of dpar_schedule_desc below this number are priced */
/* Bits of dpar_strategy.offload: what is kept in the host's memory. */
enum {
    DPAR_OFFLOAD_OPTIMIZER = 1,
    DPAR_OFFLOAD_WEIGHTS = 2,
    DPAR_OFFLOAD_ACTIVATIONS = 4,
    DPAR_OFFLOAD_NVME = 8 /* the optimizer state is kept on the node's NVMe, not in its memory */
};
/* Bits of dpar_strategy.overlap: which messages are sent while ranks compute. */
enum {
    DPAR_OVERLAP_DP = 1,
    DPAR_OVERLAP_TP = 2,
    DPAR_OVERLAP_PP = 4,
    DPAR_OVERLAP_DEFAULT = 8, /* as the software stack does it (DPAR_MODEL_STACK_*) */
    DPAR_OVERLAP_EP = 16,     /* the experts' messages, during another micro-batch or chunk */
    DPAR_OVERLAP_SHARED = 32  /* the experts' messages, during the shared experts of their layer */
};

/* The bytes per parameter, by purpose. Activations are not included: dpar_model.element is their
 * size. Set it to 4 for training in fp32. */
typedef struct dpar_recipe {
    char name[16];
    /* bytes per parameter; their sum is the 8 to 20 of the literature */
    double weight, gradient, master, moments;
    double gathered; /* bytes of a weight when ZeRO gathers it */
    double reduced;  /* bytes of a gradient when it is sent */
    double bucket;   /* ZeRO-2 and 3: elements of a bucket; 0 if the buckets are layers */
    double casts; /* bytes moved per element of a product's operands to convert it to 8 or 4 bits */
    int32_t compute; /* format of the matrix products, DPAR_BF16, ...; the head uses 16 bits */
} dpar_recipe;

/* Finds a recipe by its name. "megatron", also called "bf16", is the default. O(recipes). Fails
 * with DPAR_E_UNKNOWN; the message lists the recipes. The numbers are bytes per parameter.
 *
 *     zero          16 = 2+2+4+8             megatron   18 = 2+4+4+8
 *     deepspeed     20                       fp32       16 = 4+4+8
 *     pure-bf16     8                        adam8      12
 *     no-master     12 = 2+2+8               fsdp       16 sharded + 2 gathered
 *     fp8           17 = 3+2+4+8             fp8-grad32    19 = 3+4+4+8
 *     bf16-grad16   16 = 2+2+4+8             bf16-moments  14
 *     fsdp-fp8      as fsdp, products in 8 bits
 *     fsdp-fp8-row  scaled by rows: no faster than 16 bits in PyTorch of 2025 (unverified)
 *     mxfp8         16 = 2.06+2+4+8          nvfp4         17 = 3.12+2+4+8
 *     zero++        16; weights gathered in int8, gradients reduced in int4 (ZeRO++ 2023,
 *                   without its second copy of the weights inside nodes, which shard= describes) */
DPAR_API dpar_status dpar_recipe_find(dpar_recipe *recipe, const char *name, dpar_why *why);
/* Returns the name of recipe number `index`, or NULL if there is none. Indices count from 0. The
 * text is static. O(1). */
DPAR_API const char *dpar_recipe_name(int32_t index);

/* How a workload is spread over tp * cp * dp * pp * tiles ranks. tp is the fastest axis, then cp,
 * then dp, then pp (Megatron's tp-cp-dp-pp). The tiles of a grid take the place of cp. */
typedef struct dpar_strategy {
    int32_t tp, sp, cp, cp_kind; /* tensor, sequence (0 or 1) and context parallel; DPAR_CP_* */
    int32_t dp;                  /* all data-parallel ranks: replicas x shards */
    int32_t shard;               /* ranks of a ZeRO group, 1..dp; less than dp is HSDP; 0 is dp */
    int32_t zero;                /* ZeRO stage, 0..3 */
    int32_t pp, vp;              /* pipeline: ranks, and chunks per rank */
    int32_t schedule;            /* DPAR_SCHEDULE_1F1B, ...; never 0 */
    int32_t ep, etp;             /* ranks that share the experts; ranks that share one expert */
    int32_t micro_batch;         /* samples per micro-batch */
    int32_t micro_batches;       /* number of micro-batches per step and data-parallel rank */
    int32_t recompute;           /* DPAR_RECOMPUTE_* */
    int32_t recompute_layers;    /* with RECOMPUTE_FULL: layers of each stage; 0 selects all */
    int32_t offload;             /* bits DPAR_OFFLOAD_* */
    int32_t overlap;             /* bits DPAR_OVERLAP_* */
    int32_t tiles[3];            /* domain parallelism: parts along each axis of the grid */
} dpar_strategy;

/* Sets the strategy of a single rank: every degree 1, one micro-batch of one sample, no
 * recomputation, the schedule 1F1B, default overlap. O(1). */
DPAR_API void dpar_strategy_init(dpar_strategy *strategy);
/* The fields of a strategy. Masks of fields, such as `named`, have bit 1 << DPAR_STRATEGY_FIELD_x.
 */
enum {
    DPAR_STRATEGY_FIELD_TP,
    DPAR_STRATEGY_FIELD_SP,
    DPAR_STRATEGY_FIELD_CP,
    DPAR_STRATEGY_FIELD_CP_KIND,
    DPAR_STRATEGY_FIELD_DP,
    DPAR_STRATEGY_FIELD_SHARD,
    DPAR_STRATEGY_FIELD_ZERO,
    DPAR_STRATEGY_FIELD_PP,
    DPAR_STRATEGY_FIELD_VP,
    DPAR_STRATEGY_FIELD_SCHEDULE,
    DPAR_STRATEGY_FIELD_EP,
    DPAR_STRATEGY_FIELD_ETP,
    DPAR_STRATEGY_FIELD_MICRO_BATCH,
    DPAR_STRATEGY_FIELD_MICRO_BATCHES,
    DPAR_STRATEGY_FIELD_RECOMPUTE,
    DPAR_STRATEGY_FIELD_RECOMPUTE_LAYERS,
    DPAR_STRATEGY_FIELD_OFFLOAD,
    DPAR_STRATEGY_FIELD_OVERLAP,
    DPAR_STRATEGY_FIELD_TILES,
    DPAR_STRATEGY_FIELD_COUNT /* number of fields */
};

/* Reads a strategy from text. Only the fields that the text names change; their order is free.
 *
 *     "tp=8,sp=1,pp=12,vp=2,dp=4,zero=1,shard=8,cp=2,cp_kind=ring,ep=8,etp=1,mbs=1,m=64,
 *      recompute=full,recompute_layers=4,schedule=1f1b,offload=optimizer+activations,
 *      overlap=dp+tp,tiles=2x2"
 *
 * *named receives bit 1 << DPAR_STRATEGY_FIELD_x for each field in the text; `named` may be NULL.
 * O(bytes). Fails with DPAR_E_PARSE if the text cannot be read; *strategy is then unchanged. */
DPAR_API dpar_status dpar_strategy_read(dpar_strategy *strategy, const char *text, size_t bytes,
                                        uint32_t *named, dpar_why *why);
/* Appends a strategy to a text in the form that dpar_strategy_read reads:
 * "dp=2,zero=1,tp=8,sp=1,pp=4,...". Fields that have their default are left out. O(fields). */
DPAR_API void dpar_strategy_write(const dpar_strategy *strategy, dpar_text *text);

/* Returns the number of ranks of a strategy, tp x cp x dp x pp x tiles, or 0 if a degree is below 1
 * or the product exceeds 2^31 - 1. O(1). */
DPAR_API int32_t dpar_strategy_ranks(const dpar_strategy *strategy);

/* A job: the workload, the machine, and the bytes per parameter. */
typedef struct dpar_job {
    const dpar_workload *work;
    const dpar_cluster *cluster;
    dpar_recipe recipe;
} dpar_job;

/* Completes a strategy so that it uses all GPUs of the cluster and the whole batch.
 *
 * named: bits 1 << DPAR_STRATEGY_FIELD_x of the fields that the caller has set and that must not
 *        change. The function sets dp, and micro_batches if batch > 0, unless their bits are set.
 * batch: samples per step; 0 allows any batch.
 *
 * O(1). Fails with DPAR_E_DIVIDE if the GPUs are not a multiple of the other degrees. */
DPAR_API dpar_status dpar_strategy_complete(const dpar_job *job, dpar_strategy *strategy,
                                            uint32_t named, int64_t batch, dpar_why *why);

/* The rules that a legal strategy obeys. The planner counts the strategies that it rejects by
 * rule. */
enum {
    DPAR_STRATEGY_RULE_NONE,
    DPAR_STRATEGY_RULE_DEGREE,    /* a degree below 1, or an option that does not exist */
    DPAR_STRATEGY_RULE_RANKS,     /* the product of the degrees is not the number of GPUs */
    DPAR_STRATEGY_RULE_TP_HEADS,  /* tp does not divide the heads, or the hidden size */
    DPAR_STRATEGY_RULE_TP_WIDE,   /* tp spans nodes; only the usual search refuses that */
    DPAR_STRATEGY_RULE_PP_LAYERS, /* fewer layers than pp * vp, unless embedding and loss count as
                                     two */
    DPAR_STRATEGY_RULE_SCHEDULE,  /* the schedule cannot have this vp or these micro-batches */
    DPAR_STRATEGY_RULE_CP, /* cp does not divide the sequence (ring: 2 cp) or the heads (Ulysses) */
    DPAR_STRATEGY_RULE_EP, /* ep does not divide the experts or the ranks of a stage */
    DPAR_STRATEGY_RULE_ZERO,    /* shard does not divide dp */
    DPAR_STRATEGY_RULE_BATCH,   /* the global batch is not dp * micro_batch * micro_batches */
    DPAR_STRATEGY_RULE_TILES,   /* a tile is thinner than its halo, or the model has no grid */
    DPAR_STRATEGY_RULE_OPTION,  /* an option has no effect here, such as SP without TP */
    DPAR_STRATEGY_RULE_OFFLOAD, /* the node has no memory, or no NVMe, to offload to */
    DPAR_STRATEGY_RULE_MEMORY,  /* the plan does not fit into memory */
    DPAR_STRATEGY_RULE_COUNT    /* number of rules */
};
/* Returns the name of a rule, such as "degree" or "tp-heads", or "?" if there is no such rule. The
 * text is static. O(1). */
DPAR_API const char *dpar_strategy_rule_name(int32_t rule);

/* The purposes of traffic. */
enum {
    DPAR_TRAFFIC_DP, /* gradients, and the weights of ZeRO */
    DPAR_TRAFFIC_TP, /* tensor and sequence parallel layers, embedding, loss, gradients of norms */
    DPAR_TRAFFIC_CP, /* attention of a sequence that is cut */
    DPAR_TRAFFIC_EP, /* tokens to their experts and back */
    DPAR_TRAFFIC_PP, /* messages between stages, and the sum of tied embeddings */
    DPAR_TRAFFIC_HALO, /* halos of tiles */
    DPAR_TRAFFIC_COUNT /* number of purposes */
};

/* ==== cost/memory.h ==== */

/* memory - predicts the bytes that a rank needs, by term. dpar_plan_price fills in the struct.
 *
 *     plan.memory.total <= cluster.gpu.memory_bytes                  true if the plan fits
 *     plan.memory.term[DPAR_MEMORY_ACTIVATIONS]
 *
 * ZeRO divides the state of a parameter among its ranks: master weights and moments from stage 1
 * on, gradients from stage 2 on, weights from stage 3 on (Rajbhandari 2020). The formulas and their
 * sources are in memory.c. */

/* The terms of a rank's memory. */
enum {
    DPAR_MEMORY_WEIGHTS,
    DPAR_MEMORY_GRADIENTS,
    DPAR_MEMORY_MASTER,        /* master copies of the weights */
    DPAR_MEMORY_OPTIMIZER,     /* moments of the optimizer */
    DPAR_MEMORY_ACTIVATIONS,   /* kept from forward to backward, for all micro-batches in flight */
    DPAR_MEMORY_LOGITS,        /* the last stage's logits and loss, less what TRANSIENT includes */
    DPAR_MEMORY_GATHERED,      /* ZeRO-3: weights that are gathered at the same time */
    DPAR_MEMORY_BUCKETS,       /* gradient buckets in flight */
    DPAR_MEMORY_HALO,          /* halo cells and their buffers */
    DPAR_MEMORY_TRANSIENT,     /* exists only during the backward of one layer */
    DPAR_MEMORY_COMM,          /* buffers of the communication library */
    DPAR_MEMORY_CONTEXT,       /* runtime context and library workspaces */
    DPAR_MEMORY_FRAGMENTATION, /* memory that the allocator reserves beyond what is allocated */
    DPAR_MEMORY_COUNT          /* number of terms */
};

/* The moment at which a rank holds the most. */
enum {
    DPAR_MEMORY_PEAK_LAYER, /* in the backward of a layer */
    DPAR_MEMORY_PEAK_LOSS   /* while the loss is computed */
};

/* The memory of one rank in bytes, by term. */
typedef struct dpar_memory_usage {
    double term[DPAR_MEMORY_COUNT]; /* indexed by DPAR_MEMORY_*, for the worst stage */
    double allocated; /* sum without COMM, CONTEXT and FRAGMENTATION: the allocator's peak */
    double total;     /* sum of all terms: the expected use */
    /* The range of the total. It assumes 3 % to 10 % of fragmentation in place of the expected 5 %;
     * with ZeRO-3 in DeepSpeed 12 % to 25 % in place of 20 %. `lower` does not include `late`. */
    double lower, upper;
    double late;        /* part of GATHERED that is released late, but at once if the memory is
                           needed */
    double first, last; /* totals of the first and of the last stage */
    int32_t worst;      /* pipeline rank of the stage that needs the most */
    int32_t moment;     /* DPAR_MEMORY_PEAK_*: when this stage needs the most */
    double host;        /* bytes of host memory per rank that offloading takes, NVMe not included */
    double params;      /* number of weights on a rank of the worst stage, before ZeRO divides
                           them */
} dpar_memory_usage;

/* Returns the name of a term as in the JSON output ("weights", ...), or "?" if there is no such
 * term. The text is static. O(1). */
DPAR_API const char *dpar_memory_name(int32_t term);
/* Predicts the memory of one pipeline rank.
 *
 * strategy: a strategy that dpar_plan_price accepts.
 * rank:     0..pp-1; a value outside selects the nearest one.
 * memory:   the result; `first` and `last` are this rank's total.
 *
 * O(layer classes). */
DPAR_API void dpar_memory_stage(const dpar_job *job, const dpar_strategy *strategy, int32_t rank,
                                dpar_memory_usage *memory);

/* ==== cost/traffic.h ==== */

/* traffic - counts the bytes that a step sends, by purpose and by operation. The numbers are those
 * that communicators count (dpar_comm.sent), to the byte.
 *
 *     dpar_traffic_count(&job, &strategy, &t);
 *     t.bytes[DPAR_TRAFFIC_DP][DPAR_CALL_ALL_REDUCE] */

/* The bytes that all ranks of the job together send in one step. Divided by dpar_strategy_ranks
 * they are the mean per rank; if all cuts are even, every rank sends as much. */
typedef struct dpar_traffic {
    /* bytes by purpose, DPAR_TRAFFIC_*, and by operation; messages are under DPAR_CALL_SEND_RECV */
    double bytes[DPAR_TRAFFIC_COUNT][DPAR_CALL_COLLECTIVE_COUNT];
    double total; /* sum of all `bytes` */
} dpar_traffic;

/* Counts the traffic of one step of a strategy that dpar_plan_price accepts. It counts all calls
 * that dpar_plan_price prices, and those that are too small to be priced. The numbers are whole and
 * exact if the degrees divide what they cut. O(pp x layer classes).
 *
 * An operation counts as in dpar_comm.sent (comm.h), for all n ranks of a group together. With a
 * full vector of S bytes an all-reduce is 2 (n-1) S bytes. All-gather, reduce-scatter and
 * all-to-all are (n-1) S bytes, and a message is S bytes.
 *
 *     DP    zero=0: an all-reduce of the gradients (ddp.h).
 *           zero=1: a reduce-scatter of the gradients and an all-gather of the weights.
 *           zero=2: the reduce-scatter in each micro-batch (fsdp.h with `reduce_last`: as zero=1).
 *           zero=3: as zero=2, with the weights gathered twice in each micro-batch. Without a
 *           pipeline, two units are not gathered again at each turn from forward to backward and
 *           back, because they are still there (fsdp.h: prefetch=1; dpar_plan_price counts them).
 *           Replicas add an all-reduce of the shards.
 *     TP    all-reduces of a layer's regions, forward and backward. With sp=1 all-gathers and
 *           reduce-scatters instead; a column layer's input is gathered again in the backward
 *           (tensor.h: reuse_gathered=0), and once per step there is an all-reduce of the gradients
 *           of norms and positions, which see only the tokens of their rank. The loss adds an
 *           all-gather of three numbers per token.
 *     CP    ring: keys and values forward and backward, and their gradients, with cp - 1 hops each,
 *           in the model's element (16 bits; sequence.h sends gradients in f32, which is twice as
 *           much). Ulysses: q, k, v and the output, and their gradients.
 *     EP    rows to the experts and back, forward and backward; the numbers of rows; an all-reduce
 *           of three numbers that tells whether the capacity suffices (expert.h: DROP_NONE). All
 *           ranks are assumed to get the same number of tokens. With etp > 1 rows are gathered and
 *           summed over etp ranks.
 *     PP    one message each way for each micro-batch and pair of neighbouring chunks on different
 *           ranks; tied embeddings add an all-reduce of their gradient.
 *     HALO  the halo of a tile with neighbours on all sides.
 *
 * Not counted are:
 *
 *  - padding: ddp.h starts parameters at multiples of 64 elements, and fsdp.h makes the shards of a
 *    unit equal. dpar_buckets_init and dpar_fsdp_layout report how much that is.
 *  - messages of a training run that are not part of the model's step: a norm for clipping
 * (dpar_fsdp_update, 8 bytes), the balancing loss, losses to print.
 *  - what the planner does not model: copies of key-value heads with tp > kv_heads, and the second
 *    copy of the weights in DualPipe. */
DPAR_API void dpar_traffic_count(const dpar_job *job, const dpar_strategy *strategy,
                                 dpar_traffic *traffic);

/* ==== cost/step.h ==== */

/* step - predicts the seconds of a training step, or of a solver's time step, by term.
 * dpar_plan_price fills in the struct.
 *
 *     plan.step.total                                  seconds
 *     plan.step.term[DPAR_TIME_BUBBLE], plan.step.mfu
 *
 * The rules of the model. Their sources are in price.c and step.c.
 *
 *     products         waves of 128 x 256 tiles over the units, at a share of the peak
 *     element-wise     bytes divided by the memory bandwidth
 *     kernels          at least the host's time to launch them
 *     TP SP CP EP DP   the bytes of Megatron (2019, 2022), ring and Ulysses attention (2023) and
 *                      ZeRO (2020), priced by dpar_collective_predict
 *     bubbles          SC21 for 1F1B and interleaving, zero-bubble (2024) and DualPipe (2024)
 *     optimizer        bytes that Adam reads and writes
 *
 * The literature calls three numbers "bubble". For p stages and m micro-batches of equal cost they
 * are the overhead over the ideal time, (p-1)/m; the idle share of the makespan, (p-1)/(m+p-1); and
 * the busy share, m/(m+p-1). Here it is the idle share of the makespan. */

/* The terms of a step's time. */
enum {
    DPAR_TIME_FORWARD,
    DPAR_TIME_BACKWARD,
    DPAR_TIME_RECOMPUTE,
    DPAR_TIME_TP,        /* messages of tensor and sequence parallelism that are not hidden */
    DPAR_TIME_CP,        /* messages of context parallelism */
    DPAR_TIME_EP,        /* messages of expert parallelism */
    DPAR_TIME_HALO,      /* halo exchanges */
    DPAR_TIME_PP,        /* messages between stages that are not hidden */
    DPAR_TIME_BUBBLE,    /* waiting while the pipeline fills and drains */
    DPAR_TIME_IMBALANCE, /* waiting for the slowest stage (logits, uneven layers) */
    DPAR_TIME_DP,        /* gradient reduction and parameter gathering that are not hidden */
    DPAR_TIME_OPTIMIZER,
    DPAR_TIME_OFFLOAD,
    DPAR_TIME_HOST, /* the host's part of a step, and waiting for kernels to be launched */
    DPAR_TIME_COUNT /* number of terms */
};

/* The time of a step by term, and numbers derived from it. "All ranks" means the sum over them. */
typedef struct dpar_step_cost {
    double term[DPAR_TIME_COUNT]; /* seconds, by DPAR_TIME_*; they add up to total */
    double total;                 /* seconds of the step */
    double samples;               /* samples of a step, all ranks */
    double tokens_per_s_gpu;      /* tokens per second and GPU */
    double model_flops; /* FLOP of a step, all ranks. Attention counts as if it were not causal, the
                           vocabulary counts, recomputation does not (Megatron's and PaLM's MFU) */
    double model_flops_causal;    /* the same with causal attention at half */
    double hardware_flops;        /* model_flops plus the recomputation */
    double mfu, mfu_causal, hfu;  /* shares of the dense peak of recipe.compute (TF32 for fp32, fp8
                                     for fp8). With long causal attention mfu may be up to twice
                                     mfu_causal, because it counts products that are skipped */
    double tflops_gpu;            /* model_flops per GPU and second, in 1e12 */
    double link_bytes, nic_bytes; /* bytes that a GPU sends in a step: in-node links, NICs */
    double dp_bytes;              /* the part of link_bytes + nic_bytes that data parallelism
                                     sends */
    double dp_hidden_s;           /* seconds of data-parallel communication hidden by overlap */
    double bubble; /* share of the makespan of the micro-batches that filling and draining takes */
    double largest_stage_s, mean_stage_s; /* seconds of a micro-batch, forward and backward */
} dpar_step_cost;

/* Returns the name of a term as in the JSON output ("forward", ...), or "?" if there is no such
 * term. The text is static. O(1). */
DPAR_API const char *dpar_time_name(int32_t term);

/* ==== cost/calibrate.h ==== */

/* calibrate - fits the constants of a machine to your own measurements, with error bars.
 *
 *     rows[0].work = &work;                                the job and its strategy
 *     rows[0].cluster = &cluster;
 *     rows[0].recipe = recipe;
 *     rows[0].strategy = strategy;
 *     rows[0].seconds = 4.31;
 *     rows[0].weight = 1;
 *     which = 1u << DPAR_CAL_GEMM | 1u << DPAR_CAL_NET_SHARE;
 *     dpar_calibration_fit(&cluster.cal, rows, n, which, &error, &why); */

/* One measured step: the model, the machine, the plan and the time. */
typedef struct dpar_measurement {
    const dpar_workload *work;
    const dpar_cluster *cluster; /* the machine; the constants to fit replace its `cal` */
    dpar_recipe recipe;
    dpar_strategy strategy;
    double seconds; /* measured time of one step, > 0 */
    double weight;  /* weight of this row in the fit, > 0; usually 1 */
} dpar_measurement;

/* Fits chosen constants of a machine to measured step times. The fit minimises the mean absolute
 * logarithm of predicted over measured time.
 *
 * cal:        on entry the starting values, on success the fitted constants and their errors.
 *             Constants that are not fitted keep their values. Unchanged on failure.
 * rows:       [n] the measurements; n is at least 1.
 * which:      bit i selects constant i (DPAR_CAL_*).
 * mean_error: receives the mean of |predicted / measured - 1|; may be NULL.
 *
 * Constants stay within physical bounds: shares in (0.05, 1], times in [1e-8, 1] s. A weak pull
 * towards the starting values keeps a constant where it was if the rows do not determine it. The
 * error of a constant is the relative change that worsens the mean by one standard error of the
 * residuals. It is 1 if the rows say nothing about the constant.
 *
 * To test the fitted constants, use measurements that were not fitted. The result is deterministic.
 * Costs about 2000 predictions of a step per row. Fails with DPAR_E_ARG if there are no rows or no
 * constants, if a time is not positive and finite, or if a weight is not positive. */
DPAR_API dpar_status dpar_calibration_fit(dpar_calibration *cal, const dpar_measurement *rows,
                                          int32_t n, uint32_t which, double *mean_error,
                                          dpar_why *why);

/* ==== cost/planner.h ==== */

/* planner - searches all legal strategies of a job and keeps the best plans, with reasons.
 * dpar_plan_search (plan_text.h) does it all in one call.
 *
 *     dpar_plan best;
 *     dpar_planner_desc search = {0};                            the whole cluster, any batch
 *     search.top = &best;
 *     search.top_capacity = 1;
 *     dpar_planner_init(&planner, &job, &search, &why);
 *     while ((st = dpar_planner_run(&planner, 100000, &why)) == DPAR_MORE) {
 *         show(planner.progress);                          0..1
 *     } */

/* A strategy and its price. */
typedef struct dpar_plan {
    dpar_strategy strategy;
    dpar_memory_usage memory;
    dpar_step_cost step;
    /* 1 if memory.lower fits into the GPU and the offloaded bytes into the node's memory. A search
     * is stricter: it keeps a plan only if memory.upper without memory.late fits. */
    int32_t fits;
} dpar_plan;

/* Prices one strategy: checks that it is legal and predicts its memory and its time.
 *
 * global_batch: samples per step that the strategy must have; 0 if it is free.
 * plan:         the result; also written if the plan does not fit.
 * rule:         receives the rule that the strategy breaks, DPAR_STRATEGY_RULE_*; may be NULL.
 *
 * O(layer classes), about 300 ns. Fails with DPAR_E_DIVIDE, DPAR_E_ARG or another status if the
 * strategy is not legal, and with DPAR_E_MEMORY if it does not fit. The message has the numbers. */
DPAR_API dpar_status dpar_plan_price(const dpar_job *job, const dpar_strategy *strategy,
                                     int64_t global_batch, dpar_plan *plan, int32_t *rule,
                                     dpar_why *why);

/* The spaces of a search. */
enum {
    /* The strategies that are usual in practice. tp divides a node and comes with sequence
     * parallelism. cp and micro-batch are powers of two. Pipelines are 1F1B, or interleaved with
     * chunks of equal length, except that the last chunk of a rank may be one layer shorter. If vp
     * is fixed, chunks may have other lengths. ZeRO is 0 or 1, without pipelines also 2 or 3. etp
     * is 1. Overlap is as in the software stack. Grids are cut where the surface is smallest.
     * Nothing is offloaded, although offloading activations can be a few per cent faster on paper.
     *
     * If no Pareto front is wanted (dpar_planner_desc.front), the search does not price strategies
     * that cannot be among the best (`top`); it counts them in `cut`. Otherwise it prices all. */
    DPAR_SPACE_USUAL,
    /* All strategies. tp (also across nodes), cp, pp, ep and micro-batch take every divisor, and vp
     * is as above. The options are sp 0 and 1, all kinds of cp, all schedules, ZeRO 0 to 3, HSDP,
     * the offloads, three overlaps, and every cut of a grid.
     *
     * The search is branch and bound: strategies that cannot change the top, or the front if one is
     * wanted, are counted in `cut`. The bounds are safe, so the plans found are those of the full
     * walk. Without top and front it prices everything.
     *
     * The space includes that of Calculon except for two choices: which network each degree uses
     * (here that follows from where its ranks are) and how an all-reduce of TP is split. */
    DPAR_SPACE_WHOLE
};

/* Describes a search. Zero selects the whole cluster, a free batch and the usual space. */
typedef struct dpar_planner_desc {
    int32_t gpus;          /* GPUs of the cluster; 0 selects all of them */
    int64_t global_batch;  /* samples per step; 0 selects four micro-batches per pipeline stage */
    int32_t space;         /* DPAR_SPACE_* */
    dpar_strategy fixed;   /* values of the fields whose bits are set in fixed_fields */
    uint32_t fixed_fields; /* bits 1 << DPAR_STRATEGY_FIELD_* of the fields that are fixed */
    double memory_bytes;   /* limit per GPU; 0 selects the memory of the GPU */
    /* Where the search writes its plans. Only dpar_planner_init reads these fields. */
    dpar_plan *top;   /* [top_capacity] the best plans, best first; may be NULL */
    dpar_plan *front; /* [front_capacity] Pareto front of step time x memory; may be NULL */
    int32_t top_capacity, front_capacity; /* capacities */
} dpar_planner_desc;

/* A neighbour of a plan, and the reason why it was not chosen. */
typedef struct dpar_plan_rejection {
    dpar_strategy strategy;
    int32_t rule;      /* DPAR_STRATEGY_RULE_*; NONE if it is legal but slower */
    double seconds;    /* predicted time of a step; 0 if it was not priced */
    double bytes_over; /* bytes by which it exceeds the GPU; only for DPAR_STRATEGY_RULE_MEMORY */
    char text[160];    /* the reason in words */
} dpar_plan_rejection;

/* The state of a search. The caller owns it and the arrays for the plans. A search allocates
 * nothing else, whatever the size of the space. */
typedef struct dpar_planner {
    dpar_job job; /* the objects that it points to must outlive the search */
    dpar_planner_desc search;
    dpar_plan *top; /* best first: by samples/s, which for a fixed batch is by step time */
    int32_t top_capacity, top_count;
    dpar_plan *front; /* Pareto front of step time x memory, fastest first */
    int32_t front_capacity, front_count;
    int64_t evaluated; /* strategies that were priced: their memory, and their time if they fit */
    int64_t rejected[DPAR_STRATEGY_RULE_COUNT]; /* strategies by the rule that they break; those of
                                     MEMORY were priced */
    int64_t cut;               /* legal strategies not priced, because a bound excludes them */
    int64_t walked;            /* evaluated + cut + rejected by rules other than MEMORY */
    double progress;           /* share of the space that is done, 0..1 */
    int64_t state[64];         /* private: the position of the walk */
    struct dpari_kinds *kinds; /* private: used by dpar_plan_recommend */
    double slack; /* private: strategies up to this factor slower than the kept ones are priced */
    /* private: prices of layers, shared by many strategies */
    double layers[DPAR_MAX_LAYER_CLASSES * 32];
} dpar_planner;

/* Prepares a search. If search->gpus is not 0, it must be the number of GPUs of the cluster
 * (dpar_cluster_resize). Local. Costs O(sqrt(gpus)) for each divisor of the number of GPUs and of
 * the batch. Fails with DPAR_E_ARG or DPAR_E_RANGE if a number of the job or of the search is not
 * allowed. */
DPAR_API dpar_status dpar_planner_init(dpar_planner *planner, const dpar_job *job,
                                       const dpar_planner_desc *search, dpar_why *why);
/* Continues a search for about `budget` strategies. Returns DPAR_MORE while there are more to
 * visit, and DPAR_DONE at the end. Between calls the plans found so far are valid: the caller may
 * show the progress, look at the clock, or stop.
 *
 * The result is deterministic: of equally good plans, the one visited first is kept. Local.
 * O(budget x layer classes). If top_capacity is at least 1, the function fails with DPAR_E_NONE at
 * the end if no strategy fits or none is legal; the message says which plan came nearest, or which
 * rule most strategies break. */
DPAR_API dpar_status dpar_planner_run(dpar_planner *planner, int64_t budget, dpar_why *why);

/* Lists the neighbours of a plan at the same batch, each with the reason why it was not chosen: how
 * much slower it is, how much memory it lacks, or which rule it breaks. Returns their number, at
 * most `capacity` and at most 18.
 *
 * global_batch: samples per step; 0 if it is free.
 * plans:        [capacity], receives the neighbours.
 *
 * A neighbour has twice or half of tp, pp, micro-batch, vp, ep or cp, or another ZeRO stage,
 * recomputation or shard group. Costs at most 18 times dpar_plan_price. */
DPAR_API int32_t dpar_plan_neighbours(const dpar_job *job, const dpar_plan *plan,
                                      int64_t global_batch, dpar_plan_rejection *plans,
                                      int32_t capacity);

/* Finds the legal strategy nearest to `strategy`, which is `strategy` itself if it is legal. Memory
 * is not considered. The nearest strategy has the fewest and smallest changes; a change of a degree
 * counts as the ratio of its values.
 *
 * global_batch: samples per step that the result must have; 0 if it is free.
 * near_one:     written on success only.
 *
 * About 200 checks. Fails with DPAR_E_NONE if it finds no legal strategy; the message says which
 * rule `strategy` breaks. */
DPAR_API dpar_status dpar_strategy_nearest(const dpar_job *job, const dpar_strategy *strategy,
                                           int64_t global_batch, dpar_strategy *near_one,
                                           dpar_why *why);

/* Finds the smallest number of GPUs on which a job fits, and the best plan there. The GPUs are a
 * part of one node of the cluster's kind, or whole nodes.
 *
 * search:    set global_batch only if it must be kept, because a fixed batch excludes the sizes
 *            that do not divide it.
 * most_gpus: the largest size to try.
 * plan:      the result; dpar_strategy_ranks of its strategy is the number of GPUs.
 *
 * The function first looks for a size that suffices. It tries each number of nodes up to 32, and
 * from then on increases the number by a sixteenth each time. Then it tries every smaller size, so
 * the answer is the smallest of all. If the cluster has no network, sizes of several nodes are
 * priced with one NIC of 25 GB/s per GPU.
 *
 * Takes some tenths of a millisecond per size in the usual space. Fails with DPAR_E_NONE if
 * most_gpus are not enough. */
DPAR_API dpar_status dpar_plan_smallest(const dpar_job *job, const dpar_planner_desc *search,
                                        int32_t most_gpus, dpar_plan *plan, dpar_why *why);

/* ==== cost/recommend.h ==== */

/* recommend - recommends one strategy in words, as an engineer would, and gives the reason.
 *
 *     dpar_plan_recommend(&job, &search, &advice, &why);
 *     puts(advice.name);                                   "TP=4 + FSDP=4"
 *     puts(advice.why);                                    the reason */

/* Bits of dpar_advice.warnings: common mistakes. */
enum {
    DPAR_WARN_FSDP_NEEDLESS = 1, /* the model fits without FSDP, which only adds traffic */
    DPAR_WARN_TP_ACROSS = 2,     /* TP across nodes, or over PCIe */
    DPAR_WARN_FEW_MICRO = 4,     /* fewer than 4 x pp micro-batches */
    DPAR_WARN_ACTIVATIONS = 8,   /* activations dominate, and FSDP does not shard them */
    DPAR_WARN_DDP_STATE = 16,    /* the replicated state does not fit */
    DPAR_WARN_LEARNING_RATE = 32 /* the global batch was scaled, so scale the learning rate */
};
/* A recommended plan, with the reason and the alternatives in words. */
typedef struct dpar_advice {
    dpar_plan plan;
    char name[64];       /* "TP=4 + FSDP=4" */
    char why[400];       /* the reason */
    char runner_up[256]; /* a simpler plan, how much slower it is and what it saves; may be empty */
    char fastest[256];   /* the fastest plan and what it needs in addition; empty if it is `plan` */
    double slower;       /* time of `plan` / time of the fastest plan - 1; 0.03 is 3 % slower */
    int32_t warnings;    /* bits DPAR_WARN_* of the plan */
    char warning_text[400];
} dpar_advice;
/* Recommends the simplest plan that is nearly as fast as the fastest one.
 *
 * job:    the workload, the machine and the precision.
 * search: fields that it fixes are fixed in the recommended plan too. If another plan would be
 *         recommended with nothing fixed, runner_up names that plan.
 * advice: the result.
 *
 * The function prices all usual plans and keeps the best of each kind. A kind is a combination of
 * tensor, sequence, pipeline and domain parallelism, sharding and recomputation; expert parallelism
 * does not count, because codes with experts have it anyway. Of the kinds that are at most 5 %
 * slower than the fastest, it takes the one with the least time after a penalty of 4.8 % for each
 * kind of parallelism and 1.6 % for each option.
 *
 * It recommends tensor parallelism over PCIe or between nodes, and experts cut over ranks, only if
 * no other plan fits or all others take more than twice as long. If such a plan is the fastest,
 * `fastest` says how much faster it is.
 *
 * The times come from closed formulas; dpar_plan_simulate computes the time of the schedule. Takes
 * milliseconds: one search, or two if something is fixed.
 *
 * Fails with DPAR_E_MEMORY if nothing fits; *advice then has the plan that comes nearest, how much
 * memory it lacks, and how many GPUs would hold it. Fails with DPAR_E_NONE if no legal plan divides
 * the batch, and with DPAR_E_ARG if a number is not allowed or search->gpus is not the number of
 * the cluster's GPUs. */
DPAR_API dpar_status dpar_plan_recommend(const dpar_job *job, const dpar_planner_desc *search,
                                         dpar_advice *advice, dpar_why *why);

/* ==== cost/simulated.h ==== */

/* simulated - checks the time and memory of a plan by simulating its pipeline action by action. The
 * closed forms of step.h and memory.h estimate the bubble and the activations; the simulation
 * counts them on the schedule that would run.
 *
 *     dpar_plan_simulation sim;
 *     dpar_plan_simulate(&job, &plan, &sim, memory, sizeof memory, &why);
 *     sim.slower                                       0.03: 3 % more than plan.step.total */

/* The result of simulating a plan. */
typedef struct dpar_plan_simulation {
    double total;  /* seconds of the step */
    double slower; /* total / plan.step.total - 1; negative if the simulation is faster */
    double bubble; /* share of the makespan, over all ranks, in which they are idle */
    double memory; /* bytes of the rank that needs the most */
    double larger; /* memory / plan.memory.total - 1 */
} dpar_plan_simulation;

/* Simulates the plan's pipeline schedule with the times, messages and activations of each stage.
 * Stages may be uneven: the first one includes the embedding, the last one the logits. Each half of
 * a split backward takes half of its compute. For a plan without a pipeline the result is its
 * price.
 *
 * job, plan: a job and a plan that dpar_plan_price or a search has written.
 * sim:       the result.
 * mem:       scratch memory of `bytes` bytes, aligned as for int64_t. 16 MB are enough for about
 *            100,000 forwards. Beyond that fewer micro-batches are simulated, and the time of the
 *            slowest rank is added for each of the others.
 *
 * The simulation assumes that a message waits only for its data, not for other messages. On one
 * NCCL communicator messages also wait for each other. The lists of dpar_schedule_lower then take
 * up to 8 % longer, as long as a message takes less than a fifth of a forward. For longer messages
 * use dpar_schedule_times.transport.
 *
 * Local. O(stages x micro-batches). Fails with DPAR_E_ROOM if mem is too small. why->bytes is then
 * the number of bytes that the failed step needs; a call with as many may fail again in a later
 * step that needs more. Otherwise it fails like dpar_schedule_generate and dpar_plan_price. */
DPAR_API dpar_status dpar_plan_simulate(const dpar_job *job, const dpar_plan *plan,
                                        dpar_plan_simulation *sim, void *mem, int64_t bytes,
                                        dpar_why *why);

/* ==== cost/plan_show.h ==== */

/* plan_show - writes plans into a text for people and for scripts: a table with bars, one plan in
 * full, CSV, JSON, SVG.
 *
 *     dpar_plan_draw_desc r = {0};
 *     r.job = &job;
 *     r.plan = planner.top;
 *     r.plan_count = planner.top_count;
 *     dpar_plan_draw(&text, &r, DPAR_PLAN_DRAW_TEXT, &why); */

/* The contents of a report. Zero the struct, then fill it in. */
typedef struct dpar_plan_draw_desc {
    const dpar_job *job;
    const dpar_plan *plan;  /* [plan_count] plans, the best one first */
    int32_t plan_count;     /* number of plans */
    const dpar_plan *front; /* [front_count] Pareto front of time x memory; may be NULL */
    int32_t front_count;
    /* [rejected_count] neighbours of the best plan; may be NULL */
    const dpar_plan_rejection *rejected;
    int32_t rejected_count;
    const int64_t *rejected_by_rule; /* [DPAR_STRATEGY_RULE_COUNT] counts; may be NULL */
    int64_t global_batch, evaluated; /* samples per step; strategies priced */
    double seconds;                  /* time of the search; 0 if there was none */
    const char *note;                /* an additional assumption to print; may be NULL */
    const dpar_advice *advice;       /* for the JSON; may be NULL */
    int32_t colour;                  /* 1 for ANSI colours */
} dpar_plan_draw_desc;

/* The formats of a report. */
enum {
    DPAR_PLAN_DRAW_TEXT, /* a table, about 150 columns wide: strategy, GB per GPU with a bar against
                         the capacity, step time with a bar by term, tokens/s and MFU */
    DPAR_PLAN_DRAW_EXPLAIN, /* the first plan in full: every term of memory and time, bytes sent,
                            and why its neighbours were not chosen */
    DPAR_PLAN_DRAW_CSV,     /* a header line, then one line per plan */
    DPAR_PLAN_DRAW_JSON,    /* one object: plans, recommendation (with advice), rejected, evaluated,
                            seconds, assumptions. Always valid JSON */
    DPAR_PLAN_DRAW_SVG,     /* a self-contained picture: time by term, memory against capacity, the
                            Pareto front */
    DPAR_PLAN_DRAW_LINE /* the first plan: "dp=2,tp=8: 12.3 s a step, 401 tokens/s a GPU, ..." */
};

/* Appends a report to a text in one of the formats DPAR_PLAN_DRAW_*. O(plans). Fails with
 * DPAR_E_ARG if there is no such format, and then appends nothing. */
DPAR_API dpar_status dpar_plan_draw(dpar_text *text, const dpar_plan_draw_desc *desc,
                                    int32_t format, dpar_why *why);

/* ==== cost/plan_text.h ==== */

/* plan_text - finds a plan from text in one call, with the options of the command `plan`.
 *
 *     static dpar_plan_result plan;
 *     dpar_plan_search("llama-3-70b", "8x8:a100-80", "batch=512", &plan, &why);
 *     dpar_plan_draw(&text, &plan.report, DPAR_PLAN_DRAW_LINE, &why);        the plan in one line
 *
 * plan.step is then the time of a step in seconds, and plan.memory the bytes that a GPU needs. */

/* A request for a plan, made by dpar_plan_query_read. The struct takes 29 KB and must not be moved
 * or copied, because `job` points into it. */
typedef struct dpar_plan_query {
    dpar_job job;             /* the workload, the machine and the precision */
    dpar_planner_desc search; /* the search, for dpar_planner_init; gpus, top and front are 0 */
    dpar_strategy strategy;   /* the strategy of evaluate=..., or the default one */
    /* bits 1 << DPAR_STRATEGY_FIELD_* of the fields that evaluate=... names; 0 without it */
    uint32_t strategy_fields;
    /* value of the option batch; -1 if it is not given and search.global_batch has the default */
    int64_t batch;
    int32_t machine_gpus; /* GPUs of the machine if the option gpus requests more, otherwise 0 */
    dpar_workload work;   /* the workload and the machine to which `job` points */
    dpar_cluster cluster;
} dpar_plan_query;

/* Reads a request for a plan from text.
 *
 * model:   as in dpar_model_read: "llama-3-8b,seq=32768", or the text of a config.json.
 * machine: as in dpar_cluster_read: "8x8:h100-80,nic=8x50".
 * options: words separated by blanks, each at most once; NULL or "" if there are none.
 *
 *     batch=512        samples per step of all GPUs, at most 2^31 - 1; 0 allows any batch; the
 *                      default is about 4 million tokens, or 16 samples per GPU
 *     gpus=64          whole nodes, or a part of one; may be more than the machine has
 *     seq=8192         tokens per sample
 *     precision=fp8    as in dpar_recipe_find; the default is megatron
 *     stack=torch, attention=flash    as in dpar_model_read
 *     fix=tp=8,pp=2         only strategies with these values
 *     evaluate=tp=8,pp=2    this strategy only; dpar_strategy_complete adds what is not named
 *     whole                 every divisor and option, not only the usual ones
 *
 * O(bytes). Fails with DPAR_E_ARG, DPAR_E_PARSE, DPAR_E_UNKNOWN or another status of the functions
 * named above. The message quotes the word, and suggests a similar one (models, machines, GPUs) or
 * lists the words that are allowed. */
DPAR_API dpar_status dpar_plan_query_read(const char *model, const char *machine,
                                          const char *options, dpar_plan_query *query,
                                          dpar_why *why);

/* The result of dpar_plan_search. The struct takes 41 KB and must not be moved or copied, because
 * `report` points into it. */
typedef struct dpar_plan_result {
    double step;                /* seconds of a step with the best plan */
    double memory;              /* bytes that this plan needs on a GPU */
    dpar_plan_draw_desc report; /* all plans, for dpar_plan_draw */
    dpar_plan plan[8];          /* the best plans, best first; the first report.plan_count entries
                                   are set */
    dpar_plan_query query;      /* the request */
    dpar_planner planner;       /* private: the search */
} dpar_plan_result;

/* Reads a request like dpar_plan_query_read and finds the best plans for it, or prices the strategy
 * of the option evaluate. The arguments are those of dpar_plan_query_read.
 *
 * Times and ranking come from the closed formulas of step.h. The command `plan` also simulates its
 * best plans with dpar_plan_simulate, which this function does not call because a simulation needs
 * megabytes of scratch memory. For uneven stages and for schedules with split backwards the
 * simulated times differ by a few per cent.
 *
 * Usually takes milliseconds. With `whole` and on large machines it takes seconds; use
 * dpar_plan_query_read and dpar_planner if the search must be interruptible.
 *
 * Fails with DPAR_E_NONE if no strategy fits or none is legal; the message says which plan came
 * nearest, or which rule most strategies break. Fails with DPAR_E_MEMORY if the strategy of
 * `evaluate` does not fit; `step` and `memory` then describe this strategy. Otherwise it fails like
 * dpar_plan_query_read and dpar_plan_price. */
DPAR_API dpar_status dpar_plan_search(const char *model, const char *machine, const char *options,
                                      dpar_plan_result *planned, dpar_why *why);

#endif /* DPAR_COST_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_COST_IMPLEMENTATION)) && \
    !defined(DPAR_COST_IMPLEMENTATION_DONE)
#define DPAR_COST_IMPLEMENTATION_DONE

/* ==== cost/cost_private.h ==== */

/* cost_private - private: functions on machines, workloads and strategies that the modules of cost
 * share.
 */

/* cluster.c */

/* Returns the number of GPUs of a machine. */
DPARI_FN int32_t dpari_cluster_gpus(const dpar_cluster *cluster)
{
    return cluster->nodes * cluster->gpus_per_node;
}

/* Checks that every number of the machine is in its range and none is NaN. */
DPARI_INTERNAL dpar_status dpari_cluster_check(const dpar_cluster *cluster, dpar_why *why);

/* machines.c */

/* Finds a chip by its name. */
DPARI_INTERNAL dpar_status dpari_gpu_slice(dpar_gpu *gpu, const char *s, size_t n, dpar_why *why);
/* Finds a machine by its name. */
DPARI_INTERNAL dpar_status dpari_cluster_slice(dpar_cluster *cluster, const char *s, size_t n,
                                               dpar_why *why);
/* Makes a machine of `nodes` nodes with `per_node` GPUs each and the links that are usual for these
 * GPUs. */
DPARI_INTERNAL void dpari_cluster_of_gpus(dpar_cluster *cluster, int32_t nodes, int32_t per_node);
/* Sets the NICs of a machine of several nodes for which the text gives none: one NIC per chip. */
DPARI_INTERNAL void dpari_cluster_usual_nics(dpar_cluster *cluster);
/* Replaces the chip. In a text like 8x8:GPU the links become the usual ones of the new chip, but a
 * machine with a name keeps its links. */
DPARI_INTERNAL dpar_status dpari_cluster_swap_gpu(dpar_cluster *cluster, const char *s, size_t n,
                                                  dpar_why *why);

/* workload.c */

/* Returns "megatron", "core", ..., or "?" for an unknown stack. */
DPARI_INTERNAL const char *dpari_stack_name(int32_t stack);
/* Sets model->stack from such a name or from name@year. Returns 1, or 0 if there is no such name.
 * If no run of that year is known, model->note says so. */
DPARI_INTERNAL int dpari_stack_read(dpar_model *model, const char *s, size_t n);
/* A software stack as it was in some years. */
typedef struct dpari_generation {
    int8_t stack;   /* DPAR_MODEL_STACK_*: the stack whose layers it runs */
    int8_t overlap; /* bits DPAR_OVERLAP_* */
    int8_t by_work; /* 1 if it cuts stages by work, the head included */
    int8_t copies;  /* bytes per parameter that ZeRO-3 copies in addition to its messages */
    int8_t sliced;  /* 1 if ZeRO-1 reduces whole gradients, and handles each rank's slice of each
                     * tensor in a call of its own */
    int8_t once;    /* 1 if a token is sent to a node once, however many of its experts are there */
    /* Shares of today's rates that the software of these years reached on Hopper and later chips,
     * which were new then. */
    float products, attention, streams;
    float contention; /* as DPAR_CAL_CONTENTION; 0 selects that of the machine */
    int8_t of;        /* DPAR_MODEL_STACK_*: the stack to whose generations it belongs */
    int16_t from, to; /* first and last year of its runs */
} dpari_generation;
/* Returns the generation that the workload names. */
DPARI_INTERNAL const dpari_generation *dpari_age(const dpar_workload *work);
/* Return "unfused", "flash1", ... and "eager", "compiled", ..., or "?" for an unknown number. */
DPARI_INTERNAL const char *dpari_attention_name(int32_t attention);
DPARI_INTERNAL const char *dpari_loss_name(int32_t loss);
/* Returns the parameters of one layer of a class, or 0 if there is no such class. */
DPARI_INTERNAL double dpari_layer_params(const dpar_workload *work, int32_t layer);
/* Returns the bytes that one layer of a class saves per token under a recomputation, before
 * parallelism divides them, or 0 if there is no such class. */
DPARI_INTERNAL double dpari_layer_saved(const dpar_workload *work, int32_t layer,
                                        int32_t recompute);
/* Checks that the counts are consistent, the shapes positive and finite, and the parameters fewer
 * than 2^62. */
DPARI_INTERNAL dpar_status dpari_workload_check(const dpar_workload *work, dpar_why *why);

/* Counts model->kinds from two lists. `mix` has `mixes` letters as in dpar_model.pattern, repeated;
 * with mixes = 0 the pattern itself is used. `feeds` has DPAR_MODEL_FFN_* of the first n layers;
 * the others follow the settings of the model. */
DPARI_INTERNAL void dpari_model_kinds(dpar_model *model, const char *mix, int32_t mixes,
                                      const int8_t *feeds, int32_t n);

/* strategy.c */

/* Returns a pointer to the value of a field, DPAR_STRATEGY_FIELD_*; for TILES to the first of
 * three.
 */
DPARI_INTERNAL int32_t *dpari_strategy_at(dpar_strategy *strategy, int32_t field);
/* Appends "full", "selective+norm", ... */
DPARI_INTERNAL void dpari_write_recompute(dpar_text *text, int32_t recompute);
/* Returns "ring", "ulysses", ..., or "?" for an unknown kind. */
DPARI_INTERNAL const char *dpari_cp_name(int32_t cp_kind);
/* Appends a name and bits: "dp+pp", or with `offload` "optimizer+nvme". */
DPARI_INTERNAL void dpari_write_bits(dpar_text *text, const char *name, int32_t bits,
                                     int32_t offload);
/* Appends "2x4". */
DPARI_INTERNAL void dpari_write_tiles(dpar_text *text, const int32_t *tiles);
/* Returns the number of tiles of a sample. */
DPARI_FN int64_t dpari_tiles(const dpar_strategy *strategy)
{
    return (int64_t)strategy->tiles[0] * strategy->tiles[1] * strategy->tiles[2];
}
/* Returns 1 if a schedule assigns its two chunks per rank in a V, to the last rank and back,
 * otherwise 0. */
DPARI_FN int dpari_v_shaped(int32_t schedule)
{
    return schedule == DPAR_SCHEDULE_ZBV || schedule == DPAR_SCHEDULE_V_HALF ||
           schedule == DPAR_SCHEDULE_V_MIN || schedule == DPAR_SCHEDULE_DUALPIPEV;
}
/* Returns 1 if a schedule assigns its chunks to the ranks in turn, otherwise 0. */
DPARI_FN int dpari_looped(int32_t schedule)
{
    return schedule == DPAR_SCHEDULE_INTERLEAVED || schedule == DPAR_SCHEDULE_BREADTH_FIRST;
}
/* Returns the number of ranks that share the state of ZeRO: its group times cp times the tiles. */
DPARI_INTERNAL double dpari_zero_ranks(const dpar_strategy *strategy);
/* Returns 1 if tp x cp divides the sequence, which sequence parallelism needs, otherwise 0. */
DPARI_INTERNAL int dpari_sequence_cuts(const dpar_workload *work, const dpar_strategy *strategy);
/* Checks that a strategy is legal for a job. It does not check whether it fits into memory. On
 * failure *rule receives DPAR_STRATEGY_RULE_*; `rule` may be NULL. global_batch 0 allows any batch.
 * O(1). */
DPARI_INTERNAL dpar_status dpari_strategy_check(const dpar_job *job, const dpar_strategy *strategy,
                                                int64_t global_batch, int32_t *rule, dpar_why *why);

/* ==== cost/fields.h ==== */

/* fields - private: reads settings "key=value" into the fields of a struct, by a table of fields.
 * Models, machines, strategies and requests for plans have such a text form. */

/* What a field takes. */
enum {
    DPARI_FIELD_COUNT,    /* int32_t: a whole number of at least 0 */
    DPARI_FIELD_POSITIVE, /* int32_t: a whole number of at least 1 */
    DPARI_FIELD_SPECIAL,  /* int32_t: a whole number of at least -4 */
    DPARI_FIELD_YES_NO,   /* int32_t: 0 or 1 */
    DPARI_FIELD_SIGN,     /* int32_t: -1, 0 or 1 */
    DPARI_FIELD_REAL,     /* double: a number of 0 to 1e15 */
    DPARI_FIELD_MILLI,    /* the same in units of 1e-3, and so on */
    DPARI_FIELD_MICRO,
    DPARI_FIELD_NANO,
    DPARI_FIELD_MEGA,
    DPARI_FIELD_GIGA,
    DPARI_FIELD_TERA,
    DPARI_FIELD_ALIAS, /* another name of the field whose index is `place` */
    DPARI_FIELD_OWN    /* the first kind that the owner of the table defines */
};

/* A field. The table has no pointers, so that it is constant wherever it is loaded. */
typedef struct dpari_field {
    char name[17]; /* in lower case */
    int8_t kind;   /* DPARI_FIELD_*, or a kind of the owner's */
    int16_t place; /* bytes from the beginning of the struct to the field */
} dpari_field;
#define DPARI_PLACE(type, field) (int16_t) offsetof(type, field)

/* A setting: "key=value" as it stands in the text, and its value. */
typedef struct dpari_setting {
    const char *text, *value;
    size_t length, value_length;
    int32_t field; /* index in the table; -1 for a text without '=' that begins with a digit */
} dpari_setting;

/* A table, and what its owner says in messages. */
typedef struct dpari_fields {
    const dpari_field *list;
    int32_t count;
    const char *of;   /* "a model" */
    const char *more; /* end of the message about an unknown key */
    /* Reads a setting of a kind of the owner's, or without a field, into the struct. */
    dpar_status (*own)(void *object, const dpari_setting *setting, dpar_why *why);
} dpari_fields;

/* Splits the setting [s, s + n) and finds its field, in upper or lower case. Fails with
 * DPAR_E_PARSE if there is no such field, or no '='. */
DPARI_INTERNAL dpar_status dpari_setting_find(dpari_setting *setting, const dpari_fields *fields,
                                              const char *s, size_t n, dpar_why *why);
/* Reads the value of a setting into the struct `object`. Fails with DPAR_E_PARSE if the field does
 * not take it. */
DPARI_INTERNAL dpar_status dpari_setting_read(const dpari_setting *setting,
                                              const dpari_fields *fields, void *object,
                                              dpar_why *why);
/* Reads settings that are separated by commas, each field at most once. `seen` receives a bit for
 * each field that the text has. */
DPARI_INTERNAL dpar_status dpari_settings_read(const dpari_fields *fields, const char *s, size_t n,
                                               void *object, uint64_t seen[2], dpar_why *why);
/* Reads a value that has a name: *value is `first` to end - 1. */
DPARI_INTERNAL dpar_status dpari_setting_choice(const dpari_setting *setting,
                                                const char *(*name)(int32_t), int32_t first,
                                                int32_t end, int32_t *value, dpar_why *why);
/* Reports "'seq=x': a whole number was expected". */
DPARI_INTERNAL dpar_status dpari_setting_bad(const dpari_setting *setting, dpar_why *why,
                                             const char *expected);
/* The same for a text that is no setting; and "'lama': one of gpt, llama was expected". */
DPARI_INTERNAL dpar_status dpari_text_bad(const char *s, size_t n, dpar_why *why,
                                          const char *expected);
DPARI_INTERNAL dpar_status dpari_one_of(const char *s, size_t n, const char *(*name)(int32_t),
                                        int32_t first, int32_t end, dpar_why *why);

/* Returns the number of letters before the first `letter`, or n. */
DPARI_INTERNAL size_t dpari_until(const char *s, size_t n, char letter);
/* Returns the value in [low, high] that is nearest to v. */
DPARI_FN int32_t dpari_within(int64_t v, int64_t low, int64_t high)
{
    return (int32_t)dpari_most(low, dpari_least(v, high));
}
/* Returns the text that follows a text and its NUL. */
DPARI_INTERNAL const char *dpari_behind(const char *text);
/* Reads a whole number of low to high, at most 2^53. Returns 0 if the slice is not one. */
DPARI_INTERNAL int dpari_whole(const char *s, size_t n, int64_t low, int64_t high, int64_t *value);
/* Reads "1440x720x100". Returns how many numbers of 1 to 2^31 - 1 there are, or 0 if there are more
 * than `most` or the text is not of this form. */
DPARI_INTERNAL int32_t dpari_extents(const char *s, size_t n, int64_t *extent, int32_t most);
/* Reads `count` positive numbers of at most 1e15: "2x65536x1.7". Returns 0 if the text is not of
 * this form. */
DPARI_INTERNAL int dpari_reals(const char *s, size_t n, double *number, int32_t count);
/* Returns how much the n letters at s differ from `name`: 6 for each edit that turns s into a
 * prefix of `name`, and 1 for each letter of `name` that then remains. So "a100" is near "a100-80".
 * A part of a name ("4090") and a name with a suffix ("p5.48xlarge") are also near. */
DPARI_INTERNAL int32_t dpari_unlike(const char *s, size_t n, const char *name);

/* ==== cost/model_fields.h ==== */

/* model_fields - private: the fields of dpar_model and their text form: "key=value,...", and
 * "FAMILY:key=value,...". */

/* The integer fields: the key, the field, and what it takes (DPARI_FIELD_*). */
#define DPARI_MODEL_INTEGERS(X)                                                                    \
    X(LAYERS, layers, POSITIVE), X(HIDDEN, hidden, POSITIVE), X(HEADS, heads, POSITIVE),           \
        X(KV_HEADS, kv_heads, POSITIVE), X(HEAD_WIDTH, head_width, POSITIVE),                      \
        X(FFN, ffn, POSITIVE), X(VOCAB, vocab, POSITIVE), X(SEQ, seq, OWN), X(TIED, tied, YES_NO), \
        X(BIASES, biases, SIGN), X(ROTARY, rotary, YES_NO), X(EXPERTS, experts, COUNT),            \
        X(TOPK, topk, COUNT), X(EXPERT_FFN, expert_ffn, COUNT), X(SHARED_FFN, shared_ffn, COUNT),  \
        X(DENSE_LAYERS, dense_layers, COUNT), X(Q_LORA, q_lora, COUNT),                            \
        X(KV_LORA, kv_lora, COUNT), X(ROPE_WIDTH, rope_width, COUNT),                              \
        X(QK_WIDTH, qk_width, COUNT), X(V_WIDTH, v_width, COUNT),                                  \
        X(DECODER_LAYERS, decoder_layers, COUNT), X(PATCH, patch, POSITIVE),                       \
        X(CHANNELS, channels, POSITIVE), X(OUT_CHANNELS, out_channels, SPECIAL),                   \
        X(LEVELS, levels, POSITIVE), X(BLOCKS_PER_LEVEL, blocks_per_level, COUNT),                 \
        X(KERNEL, kernel, POSITIVE), X(FIELDS, fields, POSITIVE), X(HALO, halo, POSITIVE),         \
        X(ELEMENT, element, POSITIVE), X(INFERENCE, inference, YES_NO), X(GATED, gated, SIGN),     \
        X(CAUSAL, causal, SIGN), X(POSITIONS, positions, SPECIAL), X(HEAD, head, COUNT),           \
        X(EMBED, embed, COUNT), X(ASIDE, aside, COUNT), X(ASIDE_VOCAB, aside_vocab, COUNT),        \
        X(Q_GATE, q_gate, YES_NO), X(WINDOW, window, COUNT),                                       \
        X(WINDOW_KV_HEADS, window_kv_heads, COUNT), X(SCAN, scan, COUNT),                          \
        X(SCAN_HEADS, scan_heads, COUNT), X(SCAN_GROUPS, scan_groups, COUNT),                      \
        X(SCAN_WIDTH, scan_width, COUNT), X(SCAN_STATE, scan_state, COUNT), X(CONV, conv, COUNT),  \
        X(EXPERT_STEP, expert_step, COUNT), X(EXPERT_OFFSET, expert_offset, COUNT),                \
        X(O_LORA, o_lora, COUNT), X(O_GROUPS, o_groups, COUNT),                                    \
        X(INDEX_HEADS, index_heads, COUNT), X(INDEX_WIDTH, index_width, COUNT),                    \
        X(INDEX_TOPK, index_topk, COUNT), X(MTP, mtp, COUNT),                                      \
        X(TOWER_LAYERS, tower_layers, COUNT), X(TOWER_HIDDEN, tower_hidden, COUNT),                \
        X(TOWER_HEADS, tower_heads, COUNT), X(TOWER_FFN, tower_ffn, COUNT),                        \
        X(TOWER_TOKENS, tower_tokens, COUNT), X(TOWER_PATCH, tower_patch, COUNT),                  \
        X(TOWER_POSITIONS, tower_positions, COUNT), X(TOWER_MERGE, tower_merge, COUNT),            \
        X(TOWER_INNER, tower_inner, SPECIAL), X(TOWER_MERGERS, tower_mergers, COUNT),              \
        X(TOWER_GATED, tower_gated, COUNT), X(TOWER_PARAMS, tower_params, COUNT),                  \
        X(EXPERT_GROUPS, expert_groups, COUNT), X(TOPK_GROUPS, topk_groups, COUNT)
#define DPARI_MODEL_KEY(key, field, kind) DPARI_M_##key
enum { DPARI_MODEL_INTEGERS(DPARI_MODEL_KEY), DPARI_M_INTEGERS };

/* Returns an integer field, DPARI_M_*. */
DPARI_INTERNAL int32_t *dpari_model_field(dpar_model *model, int32_t key);
/* Reads settings that are separated by commas, each at most once. */
DPARI_INTERNAL dpar_status dpari_model_settings(dpar_model *model, const char *s, size_t n,
                                                dpar_why *why);
/* Reads "FAMILY:settings", whose colon is at s[colon]. A grid begins with its extents. */
DPARI_INTERNAL dpar_status dpari_model_family(dpar_model *model, const char *s, size_t colon,
                                              size_t n, dpar_why *why);
/* Returns 1 if a letter is in a list of letters, otherwise 0. */
DPARI_INTERNAL int dpari_spells_one(char letter, const char *letters);

/* ==== cost/json.h ==== */

/* json - private: reads JSON (RFC 8259) item by item from text in memory. The reader is strict,
 * does not recurse and does not allocate; nesting is at most 64 levels deep. Errors name line and
 * column.
 */

enum {
    DPARI_JSON_END,
    DPARI_JSON_OBJECT,     /* '{' */
    DPARI_JSON_OBJECT_END, /* '}' */
    DPARI_JSON_ARRAY,      /* '[' */
    DPARI_JSON_ARRAY_END,  /* ']' */
    DPARI_JSON_STRING,
    DPARI_JSON_NUMBER,
    DPARI_JSON_TRUE,
    DPARI_JSON_FALSE,
    DPARI_JSON_NULL
};

typedef struct dpari_json {
    const char *text; /* not copied; must outlive the reader */
    size_t bytes;
    size_t at;        /* offset of the next byte to read */
    uint64_t objects; /* bit d is set if level d is an object */
    int32_t depth;    /* objects and arrays that are open */
    int32_t expect;   /* what may come next; private to json.c */
} dpari_json;

typedef struct dpari_json_item {
    int32_t kind;
    int32_t depth;   /* depth of the value; 0 for the outermost one */
    const char *key; /* inside an object, otherwise NULL; raw bytes between the quotes */
    size_t key_length;
    const char *string; /* raw bytes between the quotes; escapes are checked, not resolved */
    size_t length;
    double number;
} dpari_json_item;

/* Prepares the reader. The text is checked later, item by item. O(1). */
DPARI_INTERNAL void dpari_json_init(dpari_json *json, const char *text, size_t bytes);
/* Reads the next item. Its kind is DPARI_JSON_END after the outermost value. O(length of the item).
 * Fails with DPAR_E_PARSE; the message has line and column. */
DPARI_INTERNAL dpar_status dpari_json_next(dpari_json *json, dpari_json_item *item, dpar_why *why);

/* ==== cost/config_types.h ==== */

/* config_types - private: what the model_type of a config.json implies, and words in lists. */

/* A part of the file. */
typedef struct dpari_slice {
    const char *text;
    size_t length;
} dpari_slice;

/* Returns 1 if the first n letters of two texts are equal, otherwise 0. */
DPARI_INTERNAL int dpari_same_bytes(const char *a, const char *b, size_t n);
/* Returns the index of the word [s, s + n) in a list of words separated by blanks, or -1 if it is
 * not in the list. */
DPARI_INTERNAL int32_t dpari_word_in_list(const char *list, const char *s, size_t n);
/* Returns 1 if a slice is one of the words of a list, otherwise 0. */
DPARI_INTERNAL int dpari_slice_is(const dpari_slice *s, const char *list);
/* Returns 1 if the n letters at s contain `part`, otherwise 0. */
DPARI_INTERNAL int dpari_slice_holds(const char *s, size_t n, const char *part);

/* Returns what a model_type implies, as "FAMILY:settings", or NULL if the type is not known. */
DPARI_INTERNAL const char *dpari_type_find(const dpari_slice *type);
/* Applies what dpari_type_find returned. */
DPARI_INTERNAL void dpari_type_read(dpar_model *model, const char *row);
/* Returns the settings of the vision tower of a multi-modal model's type, or NULL. */
DPARI_INTERNAL const char *dpari_tower_find(const dpari_slice *type);

/* ==== cost/config_members.h ==== */

/* config_members - private: what a config.json says, by object and member. */

/* Members of a file that are not fields of dpar_model. Their keys follow those of the fields, so
 * that one array holds the values of both: first the numbers, then the members that are true or
 * false, then the lists and words, which have no value. */
enum {
    DPARI_C_SHARED_COUNT = DPARI_M_INTEGERS, /* shared experts; each is as wide as a routed one */
    DPARI_C_IMAGE_SIDE,                      /* pixels along a side of a square image */
    DPARI_C_NEW_KV,    /* key-value heads; Falcon has them if new_decoder_architecture */
    DPARI_C_EXPANSION, /* ffn / hidden, in 1/10000 */
    DPARI_C_DENSE_FFN, /* ffn of dense layers, in files whose intermediate_size is an expert's */
    DPARI_C_ENCODER_LAYERS,
    DPARI_C_EMBED_DIM,        /* width of a tower; also the hidden size, if that is not given */
    DPARI_C_TOKEN_TYPES,      /* token types, each of which has a row like a position */
    DPARI_C_POSITION_BUCKETS, /* DeBERTa: half of the rows of relative positions */
    DPARI_C_SOURCE_POSITIONS, /* Whisper: positions of the encoder */
    DPARI_C_MEL_BINS,         /* Whisper: channels of the input */
    DPARI_C_PADDED_VOCAB,
    DPARI_C_EXPAND,        /* channels of a scan / hidden */
    DPARI_C_INNER,         /* channels of a scan */
    DPARI_C_MULTIPLE_OF,   /* Meta's params.json: ffn is a multiple of it */
    DPARI_C_FFN_TIMES,     /* Meta's params.json: factor of ffn, in 1/10000 */
    DPARI_C_PERIOD,        /* one layer in each such number of layers has (full) attention */
    DPARI_C_PERIOD_OFFSET, /* the first such layer */
    DPARI_C_MERGE,         /* side of the square of patches that become one token */
    DPARI_C_FRAMES,        /* frames of a patch */
    DPARI_C_TOWER_POSITIONS,
    DPARI_C_MORE_LAYERS,    /* layers of a tower in addition to its number of layers */
    DPARI_C_PROJECTION_DIM, /* width of the output of CLIP's models with projection */
    DPARI_C_TOWER_OUT,      /* width of a tower's output */
    DPARI_C_FLAGS,
    DPARI_C_TIED = DPARI_C_FLAGS,
    DPARI_C_NO_BIAS,
    DPARI_C_BIAS,
    DPARI_C_ONE_KV, /* multi-query attention: one key-value head */
    DPARI_C_NEW_DECODER,
    DPARI_C_GATED, /* T5 v1.1: the feed-forward parts are gated */
    DPARI_C_USES_WINDOW,
    DPARI_C_Q_GATE,
    DPARI_C_BIASED_INPUT, /* DeBERTa: has absolute positions too */
    DPARI_C_USE_MLA,
    DPARI_C_ADJUSTS_FFN,
    DPARI_C_KEYS,
    DPARI_C_MIX = DPARI_C_KEYS, /* a word per layer: how it mixes tokens */
    DPARI_C_FULL_AT_LAYER,      /* a number per layer: 1 for full attention, 0 for linear */
    DPARI_C_WINDOW_AT_LAYER,    /* a number per layer: 1 for a window, 0 for full attention */
    DPARI_C_FEED,               /* a word per layer: dense, or experts */
    DPARI_C_FULL_INDICES,       /* indices of the layers with attention */
    DPARI_C_DENSE_INDICES,      /* indices of the dense layers */
    DPARI_C_DEEPSTACK,          /* one entry for each additional projector of a tower */
    DPARI_C_TYPE,
    DPARI_C_ARCHITECTURE,
    DPARI_C_ACTIVATION,
    DPARI_C_PROJECTION, /* T5's feed_forward_proj */
    DPARI_C_ADAPTER,
    DPARI_C_ALL
};

/* The objects of a file whose members are read: the outermost one, the language model of a
 * multi-modal model, its towers, and the description of linear attention. Then the values that are
 * not objects of this kind: one that is skipped, a list, and id2label, which has a member for each
 * class of the output. */
enum {
    DPARI_OBJECT_WHOLE,
    DPARI_OBJECT_TEXT,
    DPARI_OBJECT_VISION,
    DPARI_OBJECT_AUDIO,
    DPARI_OBJECT_LINEAR,
    DPARI_OBJECTS,
    DPARI_OBJECT_SKIPPED = DPARI_OBJECTS,
    DPARI_OBJECT_LIST,
    DPARI_OBJECT_LABELS
};

enum { DPARI_MAX_LISTED = 512 }; /* most layers that a list may describe */

/* What the reader has collected from a file so far. */
typedef struct dpari_config_state {
    int32_t value[DPARI_OBJECTS][DPARI_C_KEYS]; /* by key; -1 if the object does not have it */
    dpari_slice type[DPARI_OBJECTS];            /* model_type, or diffusers' _class_name */
    dpari_slice architecture[DPARI_OBJECTS], activation[DPARI_OBJECTS];
    int8_t object[66];          /* DPARI_OBJECT_* of the members at each depth */
    int8_t seen[DPARI_OBJECTS]; /* 1 if the file has the object */
    /* the list that is being read: its key, its object, its name, and its elements so far */
    int32_t list_key, list_object;
    dpari_slice list_name;
    double list_sum, list_low, list_high;
    int32_t list_count;
    /* the kind of each layer, as lists give it */
    char mix[DPARI_MAX_LISTED];    /* letters as in dpar_model.pattern */
    int8_t feed[DPARI_MAX_LISTED]; /* DPAR_MODEL_FFN_* */
    int32_t mixes, feeds;          /* their numbers, which may exceed DPARI_MAX_LISTED */
    int32_t labels;                /* classes of the output */
    dpar_text note;
} dpari_config_state;

/* Reads one item of the file: a member of an object, an element of a list, or the end of an object
 * or list. Objects and lists that are not needed are skipped with all that they contain. */
DPARI_INTERNAL dpar_status dpari_config_member(dpari_config_state *state,
                                               const dpari_json_item *item, dpar_why *why);
/* Returns all names of a member, separated by blanks. */
DPARI_INTERNAL const char *dpari_config_names_of(int32_t key);
/* Adds a line to the note. */
DPARI_INTERNAL void dpari_config_note(dpari_config_state *state, const char *form, ...)
    DPARI_PRINTF(2, 3);
/* Returns how many characters of a name a message or a note shows. */
DPARI_INTERNAL int32_t dpari_config_shown(size_t n);

/* ==== cost/config_json.h ==== */

/* config_json - private: reads a model from a config.json. */

/* Reads a config.json of transformers, of Meta or of others. *model is written on success only. */
DPARI_INTERNAL dpar_status dpari_model_config(dpar_model *model, const char *json, size_t bytes,
                                              dpar_why *why);

/* ==== cost/price.h ==== */

/* price - private: prices layers, then stages; terms.h turns these into memory and time. The layers
 * depend on few options of a strategy, the stages on more. So the planner keeps the prices of one
 * level while it walks the options of the next. */

/* Returns the FLOP/s of matrix products in a format, or in the next wider one that the GPU has. */
DPARI_INTERNAL double dpari_matrix_peak(const dpar_gpu *gpu, int32_t format, int32_t element);

/* Returns what a run overlaps, bits DPAR_OVERLAP_*: the strategy's, or for DEFAULT the stack's. */
DPARI_INTERNAL int32_t dpari_overlap_of(const dpar_job *job, const dpar_strategy *strategy);
/* Returns the compute time lost per second of hidden communication. */
DPARI_INTERNAL double dpari_contention(const dpar_job *job);

/* Bytes that all `ranks` ranks of a stage send in the calls that are priced. Only
 * dpar_traffic_count passes one; other callers pass NULL. */
typedef struct dpari_tally {
    double ranks;
    double forward[DPAR_TRAFFIC_COUNT][DPAR_CALL_COLLECTIVE_COUNT];
    double backward[DPAR_TRAFFIC_COUNT][DPAR_CALL_COLLECTIVE_COUNT];
} dpari_tally;
/* Adds a call of n ranks on a full vector of `bytes`, made `forward` times in the forward and
 * `backward` times in the backward. */
DPARI_INTERNAL void dpari_tally_add(dpari_tally *tally, int32_t what, int32_t kind, int32_t n,
                                    double bytes, double forward, double backward);

/* Sets the group of two neighbours among n ranks that are `stride` apart. */
DPARI_INTERNAL void dpari_pair_init(dpar_cluster_group *group, const dpar_cluster *cluster,
                                    int32_t n, int32_t stride);
/* Returns the cells of the faces of a tile: both sides of every cut axis, which a full-duplex link
 * carries at the same time. */
DPARI_INTERNAL double dpari_halo_cells(const dpar_workload *work, const dpar_workload_layer *layer,
                                       const dpar_strategy *strategy);

/* The price of one layer of a class for one micro-batch on one rank, in seconds and bytes. */
typedef struct dpari_layer_price {
    dpari_tally *tally;
    double forward, backward;           /* compute, without the time of launches */
    double again[DPAR_RECOMPUTE_COUNT]; /* forward work repeated in the backward */
    double attention; /* part of forward: scores, and their product with the values */
    double host_forward, host_backward; /* host time to launch its kernels, a lower bound of its
                                           time */
    double tp_forward, tp_backward, tp_again;
    double cp_forward, cp_backward;
    double ep_forward, ep_backward;
    double halo_forward, halo_backward;
    double params, expert_params;      /* number of weights on this rank */
    double kept[DPAR_RECOMPUTE_COUNT]; /* activation bytes from forward to backward */
    double transient;                  /* bytes that exist only during its backward */
    double send;                       /* bytes of its output, on this rank */
    double link_forward, nic_forward;  /* bytes sent by TP, CP, EP and halo; recomputation repeats
                                          them */
    double link_backward, nic_backward;
} dpari_layer_price;

/* The prices of all layer classes. They depend on tp, sp, cp, cp_kind, ep, etp, micro_batch, tiles
 * and the TP bit of overlap. */
typedef struct dpari_layers {
    dpari_layer_price of[DPAR_MAX_LAYER_CLASSES];
    double dummies, head_dummies; /* bytes of the dummy weight gradients of Megatron-Core */
} dpari_layers;
DPARI_INTERNAL void dpari_price_layers(const dpar_job *job, const dpar_strategy *strategy,
                                       dpari_layers *out);
/* Counts the calls of one layer of class i. */
DPARI_INTERNAL void dpari_tally_layer(const dpar_job *job, const dpar_strategy *strategy, int32_t i,
                                      dpari_tally *tally);

/* The price of one pipeline rank: the sum over its layers, for one micro-batch. */
typedef struct dpari_stage {
    int32_t rank;
    double layers; /* number of blocks */
    double forward, backward, again, host;
    double tp, cp, ep, halo;
    double sent; /* the part of tp, cp, ep and halo that is in the forward */
    double params, expert_params;
    double kept;   /* bytes per micro-batch */
    double logits; /* bytes, on the last stage */
    double transient;
    double boundary;              /* bytes of the activation that it receives */
    double dummies, head_dummies; /* as in dpari_layers */
    double largest;               /* weights of its largest layer */
    double link_bytes, nic_bytes;
    double total; /* seconds of one micro-batch, forward and backward, everything included */
} dpari_stage;

/* Returns the seconds of a stage on the device, without waits for the host. */
DPARI_FN double dpari_stage_device(const dpari_stage *st)
{
    return st->forward + st->backward + st->again + st->tp + st->cp + st->ep + st->halo;
}
/* Returns the share of a rank's `layers` layers that full recomputation repeats. */
DPARI_FN double dpari_recomputed_share(const dpar_strategy *strategy, double layers)
{
    const double most = strategy->recompute_layers;
    return most > 0.0 && layers > most ? most / layers : 1.0;
}

DPARI_INTERNAL void dpari_price_stage(const dpar_job *job, const dpar_strategy *strategy,
                                      const dpari_layers *layers, int32_t rank, dpari_stage *st);

/* Returns the bytes that a rank sends to the next stage for a micro-batch. */
DPARI_INTERNAL double dpari_boundary_bytes(const dpar_job *job, const dpar_strategy *strategy,
                                           const dpari_layers *layers);
/* Returns the number of layers of class i (blocks) on a pipeline rank. */
DPARI_INTERNAL double dpari_stage_blocks(const dpar_workload *work, const dpar_strategy *strategy,
                                         int32_t rank, int32_t i);
/* Returns the number of the v-th chunk of a rank. */
DPARI_INTERNAL int64_t dpari_chunk_of(const dpar_strategy *strategy, int32_t rank, int32_t v);
/* Returns 1 if the first and the last chunk are on different ranks, otherwise 0. */
DPARI_INTERNAL int dpari_ends_apart(const dpar_strategy *strategy);
/* The prices of the pipeline ranks that can be the worst: the first, the second, the last, and
 * those around each change of class if there are blocks of several classes. If there are too many,
 * the fastest are left out. The stages depend on pp, vp, schedule, recompute and recompute_layers
 * in addition to the options of the layers. */
enum { DPARI_MAX_STAGES = 8 };
typedef struct dpari_stages {
    int32_t n;
    dpari_stage of[DPARI_MAX_STAGES];
    dpari_stage whole; /* sum over all pp ranks */
    double sum_total;  /* seconds of one micro-batch through all of them */
    double send;       /* bytes of one boundary, on one rank */
} dpari_stages;
DPARI_INTERNAL void dpari_price_stages(const dpar_job *job, const dpar_strategy *strategy,
                                       const dpari_layers *layers, dpari_stages *out);

/* Checks the bytes per parameter and the format of the products. Fails with DPAR_E_ARG. */
DPARI_INTERNAL dpar_status dpari_recipe_check(const dpar_recipe *recipe, dpar_why *why);

/* ==== cost/terms.h ==== */

/* terms - private: predicts the memory and the time of a strategy from the prices of its stages. */

/* memory.c */

/* Predicts the memory of the rank that needs the most. Strategies that differ only in dp, shard,
 * zero, micro_batches, offload and overlap have the same stages. */
DPARI_INTERNAL void dpari_price_memory(const dpar_job *job, const dpar_strategy *strategy,
                                       const dpari_stages *stages, dpar_memory_usage *memory);
/* Returns 1 if a plan fits with a margin, otherwise 0: `upper` less `late` into `limit` bytes of a
 * GPU (0 selects its memory), and the offloaded bytes of all GPUs of a node into the node's memory.
 */
DPARI_INTERNAL int32_t dpari_memory_fits(const dpar_job *job, const dpar_memory_usage *memory,
                                         double limit);
/* Returns 1 if a plan can run, otherwise 0. It compares `lower`, because the allocator releases its
 * cache before it fails. */
DPARI_INTERNAL int32_t dpari_memory_runs(const dpar_job *job, const dpar_memory_usage *memory);
/* Returns the bytes of weights, gradients and optimizer state per rank for `params` parameters on d
 * ranks at ZeRO stage 0..3 (Rajbhandari 2020). */
DPARI_INTERNAL double dpari_zero_bytes(const dpar_recipe *recipe, double params, int32_t stage,
                                       int32_t d);
/* Returns how many micro-batches' activations a pipeline rank holds at most under a schedule, in
 * units of a full stage. Returns 0 if the rank, a degree or the schedule does not exist. */
DPARI_INTERNAL double dpari_in_flight(int32_t schedule, int32_t pp, int32_t vp, int32_t rank,
                                      int32_t micro_batches);

/* step.c */

/* Predicts the time of a step. */
DPARI_INTERNAL void dpari_price_step(const dpar_job *job, const dpar_strategy *strategy,
                                     const dpari_stages *stages, dpar_step_cost *cost);
/* Does the same, but prices the stages itself. The strategy must have passed
 * dpari_strategy_check. */
DPARI_INTERNAL void dpari_step_of(const dpar_job *job, const dpar_strategy *strategy,
                                  dpar_step_cost *cost);
/* Returns the seconds of one message between stages. */
DPARI_INTERNAL double dpari_boundary_seconds(const dpar_job *job, const dpar_strategy *strategy);
/* Counts the gradients, and the weights of ZeRO, that the ranks of a stage send in a step. */
DPARI_INTERNAL void dpari_tally_data(const dpar_job *job, const dpar_strategy *strategy,
                                     const dpari_stage *st, dpari_tally *tally);

/* ==== cost/plan_kinds.h ==== */

/* plan_kinds - private: keeps the best plan of each kind during a search. recommend.c chooses among
 * them.
 */

/* Bits of a kind: what a plan needs in the program that runs it. Expert parallelism is not among
 * them, because programs with a mixture of experts have it anyway. */
enum {
    DPARI_KIND_TP = 1,
    DPARI_KIND_CUT = 2, /* the sequence or the grid is cut */
    DPARI_KIND_PP = 4,
    DPARI_KIND_CHUNKS = 8, /* several stages per rank */
    DPARI_KIND_RECOMPUTE = 16,
    DPARI_KIND_SHARDS = 32, /* ZeRO 1 and 2 */
    DPARI_KIND_FSDP = 64,
    DPARI_KIND_GROUPS = 128, /* shards inside groups: HSDP */
    DPARI_KIND_SHORT = 256,  /* stages of a single layer, which mostly send messages */
    DPARI_KIND_POOR = 512    /* not recommended while another kind fits */
};

/* Returns 1 if a search fixes a field, DPAR_STRATEGY_FIELD_*, otherwise 0. */
DPARI_FN int dpari_fixed(const dpar_planner_desc *search, int32_t field)
{
    return (search->fixed_fields >> field & 1u) != 0;
}

/* Checks the job and the numbers of a search (planner.c). */
DPARI_INTERNAL dpar_status dpari_search_check(const dpar_job *job, const dpar_planner_desc *search,
                                              dpar_why *why);

/* Returns 1 if messages inside a node are sent over PCIe, because the links are no faster,
 * otherwise 0. */
DPARI_INTERNAL int dpari_over_pcie(const dpar_cluster *cluster);

enum {
    DPARI_KINDS = 64
}; /* maximum number of kinds that are kept; if there are more, the slowest are dropped */
/* The fastest plan of a kind. */
typedef struct dpari_kind {
    int32_t bits;   /* DPARI_KIND_* */
    double seconds; /* time per sample */
    dpar_strategy strategy;
} dpari_kind;
typedef struct dpari_kinds {
    int32_t n; /* number of entries of `of` in use */
    dpari_kind of[DPARI_KINDS];
} dpari_kinds;
/* Enters a plan if it is the fastest of its kind. */
DPARI_INTERNAL void dpari_kind_keep(dpari_kinds *kinds, const dpar_job *job,
                                    const dpar_strategy *strategy, double seconds);

/* ==== cost/fields.c ==== */

/* Reads settings by a table of fields. The readers of models, strategies and machines call it with
 * their tables. */

/* ---- numbers and words ----------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_NOINLINE size_t dpari_until(const char *s, size_t n, char letter)
{
    size_t i = 0;
    while (i < n && s[i] != letter) {
        i++;
    }
    return i;
}

DPARI_INTERNAL DPARI_NOINLINE const char *dpari_behind(const char *text)
{
    return text + dpari_length(text) + 1;
}

DPARI_INTERNAL DPARI_NOINLINE int dpari_whole(const char *s, size_t n, int64_t low, int64_t high,
                                              int64_t *value)
{
    const size_t sign = n > 0 && s[0] == '-';
    int64_t v = 0;
    size_t i;
    for (i = sign; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || v > (int64_t)1 << 53) {
            return 0;
        }
        v = v * 10 + (s[i] - '0');
    }
    *value = sign ? -v : v;
    return n > sign && *value >= low && *value <= high;
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_extents(const char *s, size_t n, int64_t *extent,
                                                int32_t most)
{
    size_t at = 0;
    int32_t k;
    for (k = 0; at <= n && k < most; k++) {
        const size_t length = dpari_until(s + at, n - at, 'x');
        if (!dpari_whole(s + at, length, 1, INT32_MAX, &extent[k])) {
            return 0;
        }
        at += length + 1;
    }
    return at > n ? k : 0;
}

/* Reads a number of 0 to 1e15. The limit keeps sums and products finite. */
static int dpari_real(const char *s, size_t n, double *v)
{
    return n > 0 && dpari_text_number(s, n, v) == n && *v >= 0.0 && *v <= 1e15;
}

DPARI_INTERNAL DPARI_COLD int dpari_reals(const char *s, size_t n, double *number, int32_t count)
{
    size_t at = 0;
    int32_t k;
    for (k = 0; at <= n && k < count; k++) {
        const size_t length = dpari_until(s + at, n - at, 'x');
        if (!dpari_real(s + at, length, &number[k]) || number[k] <= 0.0) {
            return 0;
        }
        at += length + 1;
    }
    return at > n && k == count;
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_unlike(const char *s, size_t n, const char *name)
{
    int32_t row[32], k, m = dpari_edits(s, n, name, row), best = 6 * row[m];
    for (k = 0; k < m; k++) {
        int32_t i = 0;
        while (k + i < m && i < (int32_t)n && name[k + i] == dpari_lower(s[i])) {
            i++;
        }
        if (n > 2 && i == (int32_t)n) { /* a part of the name: 4090 */
            best = (int32_t)dpari_least(best, m - i);
        } else if (k == 0 && i == m) { /* the name and more: p5.48xlarge */
            best = (int32_t)dpari_least(best, 5 * ((int32_t)n - m));
        }
        best = (int32_t)dpari_least(best, 6 * row[k] + m - k);
    }
    return best;
}

/* ---- messages -------------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_text_bad(const char *s, size_t n, dpar_why *why,
                                                     const char *expected)
{
    return dpari_say(DPAR_E_PARSE, why, "'%.*s': %s was expected", (int32_t)(n < 60 ? n : 60), s,
                     expected);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_setting_bad(const dpari_setting *setting, dpar_why *why,
                                                        const char *expected)
{
    return dpari_text_bad(setting->text, setting->length, why, expected);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_one_of(const char *s, size_t n,
                                                   const char *(*name)(int32_t), int32_t first,
                                                   int32_t end, dpar_why *why)
{
    char text[160];
    dpar_text t;
    int32_t i;
    dpar_text_init(&t, text, sizeof(text));
    for (i = first; i < end; i++) {
        dpari_text_print(&t, "%s%s", i > first ? ", " : "one of ", name(i));
    }
    return dpari_text_bad(s, n, why, text);
}

/* ---- settings -------------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_setting_find(dpari_setting *setting,
                                                         const dpari_fields *fields, const char *s,
                                                         size_t n, dpar_why *why)
{
    const size_t key = dpari_until(s, n, '=');
    int32_t i, nearest = 0;
    setting->text = s;
    setting->length = n;
    setting->value = s + key + 1;
    setting->value_length = n - key - (key < n);
    setting->field = -1;
    if (key == n && n > 0 && s[0] >= '0' && s[0] <= '9') {
        return DPAR_OK;
    }
    for (i = 0; i < fields->count; i++) {
        if (dpari_spells_any_case(s, key, fields->list[i].name)) {
            const int alias = fields->list[i].kind == DPARI_FIELD_ALIAS;
            setting->field = alias ? fields->list[i].place : i;
            return key < n ? DPAR_OK : dpari_setting_bad(setting, why, "key=value");
        }
    }
    for (i = 1; i < fields->count; i++) {
        if (dpari_unlike(s, key, fields->list[i].name) <
            dpari_unlike(s, key, fields->list[nearest].name)) {
            nearest = i;
        }
    }
    return dpari_say(DPAR_E_PARSE, why, "no setting of %s is called '%.*s'; the nearest is '%s'%s",
                     fields->of, (int32_t)(key < 40 ? key : 40), s, fields->list[nearest].name,
                     fields->more);
}

/* Reads an int32_t of one of the first five kinds. */
static DPARI_COLD dpar_status dpari_setting_int32(const dpari_setting *setting, int32_t kind,
                                                  int32_t *field, dpar_why *why)
{
    static const int8_t least[] = {0, 1, -4, 0, -1};
    const int64_t low = least[kind], high = kind >= DPARI_FIELD_YES_NO ? 1 : INT32_MAX;
    char text[64];
    dpar_text t;
    int64_t v = 0;
    if (dpari_whole(setting->value, setting->value_length, low, high, &v)) {
        *field = (int32_t)v;
        return DPAR_OK;
    }
    dpar_text_init(&t, text, sizeof(text));
    dpari_text_print(&t, "a whole number of %ld to %ld", low, high);
    return dpari_setting_bad(setting, why, text);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_setting_read(const dpari_setting *setting,
                                                         const dpari_fields *fields, void *object,
                                                         dpar_why *why)
{
    static const double unit[] = {1.0, 1e-3, 1e-6, 1e-9, 1e6, 1e9, 1e12};
    const dpari_field *field = &fields->list[setting->field < 0 ? 0 : setting->field];
    void *place;
    double v = 0.0;
    if (setting->field < 0 || field->kind >= DPARI_FIELD_OWN) {
        return fields->own(object, setting, why);
    }
    place = (char *)object + field->place;
    if (field->kind < DPARI_FIELD_REAL) {
        return dpari_setting_int32(setting, field->kind, (int32_t *)place, why);
    }
    if (!dpari_real(setting->value, setting->value_length, &v)) {
        return dpari_setting_bad(setting, why, "a number of 0 to 1e15");
    }
    *(double *)place = v * unit[field->kind - DPARI_FIELD_REAL];
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_settings_read(const dpari_fields *fields, const char *s,
                                                          size_t n, void *object, uint64_t seen[2],
                                                          dpar_why *why)
{
    size_t at = 0;
    seen[0] = seen[1] = 0;
    while (at <= n) {
        const size_t length = dpari_until(s + at, n - at, ',');
        dpari_setting setting;
        dpar_status st;
        if (length == 0) {
            return dpari_say(DPAR_E_PARSE, why,
                             "'%.*s': a setting (key=value) is missing next to a comma",
                             (int32_t)(n < 60 ? n : 60), s);
        }
        st = dpari_setting_find(&setting, fields, s + at, length, why);
        if (st != DPAR_OK) {
            return st;
        }
        if (setting.field >= 0) {
            const uint64_t bit = (uint64_t)1 << setting.field % 64;
            if (seen[setting.field / 64] & bit) {
                return dpari_say(DPAR_E_PARSE, why, "'%.*s' is given twice",
                                 (int32_t)(length < 60 ? length : 60), s + at);
            }
            seen[setting.field / 64] |= bit;
        }
        st = dpari_setting_read(&setting, fields, object, why);
        if (st != DPAR_OK) {
            return st;
        }
        at += length + 1;
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_setting_choice(const dpari_setting *setting,
                                                           const char *(*name)(int32_t),
                                                           int32_t first, int32_t end,
                                                           int32_t *value, dpar_why *why)
{
    int32_t i;
    for (i = first; i < end; i++) {
        if (dpari_spells(setting->value, setting->value_length, name(i))) {
            *value = i;
            return DPAR_OK;
        }
    }
    return dpari_one_of(setting->text, setting->length, name, first, end, why);
}

/* ==== cost/json.c ==== */

/* The JSON reader. It is a state machine: `expect` says what may come next in the text, and one bit
 * per level of nesting remembers whether the level is an object or an array. The reader of
 * config.json files (models.c) calls dpari_json_next until it returns DPARI_JSON_END. */

/* What may come next in the text. */
enum {
    DPARI_JSON_VALUE,       /* a value */
    DPARI_JSON_FIRST_KEY,   /* after '{': a key or '}' */
    DPARI_JSON_KEY,         /* after ',' in an object: a key */
    DPARI_JSON_FIRST_VALUE, /* after '[': a value or ']' */
    DPARI_JSON_COMMA,       /* after a value inside something: ',' or the end of it */
    DPARI_JSON_NOTHING      /* after the outermost value */
};

DPARI_INTERNAL void dpari_json_init(dpari_json *json, const char *text, size_t bytes)
{
    dpari_zero(json, sizeof(*json));
    json->text = text;
    json->bytes = bytes;
    json->expect = DPARI_JSON_VALUE;
}

/* Reports an error with the line and the column of the reader. A column is a byte. */
static dpar_status dpari_json_fail(const dpari_json *json, dpar_why *why, const char *what)
{
    int64_t line = 1, column = 1;
    size_t i;
    for (i = 0; i < json->at && i < json->bytes; i++) {
        column = json->text[i] == '\n' ? 1 : column + 1;
        line += json->text[i] == '\n';
    }
    return dpari_say(DPAR_E_PARSE, why, "JSON, line %ld, column %ld: %s", line, column, what);
}

/* Skips blanks. */
static void dpari_json_blanks(dpari_json *json)
{
    while (json->at < json->bytes &&
           (json->text[json->at] == ' ' || json->text[json->at] == '\n' ||
            json->text[json->at] == '\t' || json->text[json->at] == '\r')) {
        json->at++;
    }
}

static int dpari_json_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Returns the length of the escape at a backslash, or 0 if it is not valid. */
static size_t dpari_json_escape(const dpari_json *json)
{
    size_t i;
    char c;
    if (json->at + 1 >= json->bytes) {
        return 0;
    }
    c = json->text[json->at + 1];
    if (c == '"' || c == '\\' || c == '/' || c == 'b' || c == 'f' || c == 'n' || c == 'r' ||
        c == 't') {
        return 2;
    }
    for (i = 2; c == 'u' && i < 6; i++) {
        if (json->at + i >= json->bytes || !dpari_json_hex(json->text[json->at + i])) {
            return 0;
        }
    }
    return c == 'u' ? 6 : 0;
}

/* Reads a string from its opening quote on, and advances to the byte after its closing quote. */
static dpar_status dpari_json_string(dpari_json *json, const char **s, size_t *n, dpar_why *why)
{
    size_t start = json->at + 1;
    json->at = start;
    while (json->at < json->bytes && json->text[json->at] != '"') {
        size_t step = 1;
        if ((unsigned char)json->text[json->at] < 0x20u) {
            return dpari_json_fail(json, why, "a string contains a control character");
        }
        if (json->text[json->at] == '\\') {
            step = dpari_json_escape(json);
            if (step == 0) {
                return dpari_json_fail(json, why, "a string contains an unknown escape");
            }
        }
        json->at += step;
    }
    if (json->at >= json->bytes) {
        json->at = json->bytes;
        return dpari_json_fail(json, why, "the text ends inside a string");
    }
    *s = json->text + start;
    *n = json->at - start;
    json->at++;
    return DPAR_OK;
}

/* Returns the number of digits at a position. */
static size_t dpari_json_digits(const dpari_json *json, size_t at)
{
    size_t n = 0;
    while (at + n < json->bytes && json->text[at + n] >= '0' && json->text[at + n] <= '9') {
        n++;
    }
    return n;
}

static dpar_status dpari_json_number(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    size_t start = json->at;
    size_t at = start + (json->text[start] == '-');
    size_t n = dpari_json_digits(json, at);
    if (n == 0 || (n > 1 && json->text[at] == '0')) {
        return dpari_json_fail(json, why, "a number is malformed");
    }
    at += n;
    if (at < json->bytes && json->text[at] == '.') {
        n = dpari_json_digits(json, at + 1);
        if (n == 0) {
            return dpari_json_fail(json, why, "a number needs digits after its point");
        }
        at += 1 + n;
    }
    if (at < json->bytes && (json->text[at] == 'e' || json->text[at] == 'E')) {
        at++;
        at += at < json->bytes && (json->text[at] == '+' || json->text[at] == '-');
        n = dpari_json_digits(json, at);
        if (n == 0) {
            return dpari_json_fail(json, why, "a number needs digits in its exponent");
        }
        at += n;
    }
    item->kind = DPARI_JSON_NUMBER;
    (void)dpari_text_number(json->text + start, at - start, &item->number);
    json->at = at;
    return DPAR_OK;
}

/* Reads true, false, null and the words that are read as null. */
static dpar_status dpari_json_word(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    /* The last three are not JSON, but Python's json module writes them. They are read as null. */
    static const char word[6][12] = {"true", "false", "null", "NaN", "Infinity", "-Infinity"};
    int32_t i;
    for (i = 0; i < 6; i++) {
        size_t n = dpari_length(word[i]);
        if (json->bytes - json->at >= n && dpari_spells(json->text + json->at, n, word[i])) {
            item->kind = DPARI_JSON_TRUE + (i < 2 ? i : 2);
            json->at += n;
            return DPAR_OK;
        }
    }
    return dpari_json_fail(json, why, "a value was expected");
}

/* Sets what may follow a complete value. */
DPARI_STATIC_NOINLINE void dpari_json_after_value(dpari_json *json)
{
    json->expect = json->depth > 0 ? DPARI_JSON_COMMA : DPARI_JSON_NOTHING;
}

/* Enters an object or an array. */
static dpar_status dpari_json_open(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    int object = json->text[json->at] == '{';
    if (json->depth >= 64) {
        return dpari_json_fail(json, why, "nested more than 64 levels deep");
    }
    item->kind = object ? DPARI_JSON_OBJECT : DPARI_JSON_ARRAY;
    json->objects &= ~((uint64_t)1 << json->depth);
    json->objects |= (uint64_t)(object ? 1 : 0) << json->depth;
    json->depth++;
    json->at++;
    json->expect = object ? DPARI_JSON_FIRST_KEY : DPARI_JSON_FIRST_VALUE;
    return DPAR_OK;
}

/* Returns 1 if the innermost level is an object, and 0 if it is an array or the top level. */
DPARI_STATIC_NOINLINE int dpari_json_in_object(const dpari_json *json)
{
    return json->depth > 0 && (json->objects >> (json->depth - 1) & 1u);
}

/* Leaves the innermost object or array. */
static dpar_status dpari_json_close(dpari_json *json, dpari_json_item *item)
{
    item->kind = dpari_json_in_object(json) ? DPARI_JSON_OBJECT_END : DPARI_JSON_ARRAY_END;
    json->depth--;
    item->depth = json->depth;
    json->at++;
    dpari_json_after_value(json);
    return DPAR_OK;
}

/* Reads a value, or only the opening bracket of an object or array. */
static dpar_status dpari_json_value(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    dpar_status st;
    char c;
    dpari_json_blanks(json);
    if (json->at >= json->bytes) {
        return dpari_json_fail(json, why, "the text ends where a value was expected");
    }
    item->depth = json->depth;
    c = json->text[json->at];
    if (c == '{' || c == '[') {
        return dpari_json_open(json, item, why);
    }
    if (c == '"') {
        item->kind = DPARI_JSON_STRING;
        st = dpari_json_string(json, &item->string, &item->length, why);
    } else if ((c == '-' && (json->at + 1 >= json->bytes || json->text[json->at + 1] != 'I')) ||
               (c >= '0' && c <= '9')) {
        st = dpari_json_number(json, item, why);
    } else {
        st = dpari_json_word(json, item, why);
    }
    dpari_json_after_value(json);
    return st;
}

/* Reads the name of a member and the ':' after it. */
static dpar_status dpari_json_key(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    dpar_status st;
    if (json->text[json->at] != '"') {
        return dpari_json_fail(json, why, "a member's name in quotes was expected");
    }
    st = dpari_json_string(json, &item->key, &item->key_length, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_json_blanks(json);
    if (json->at >= json->bytes) {
        return dpari_json_fail(json, why, "the text ends where ':' was expected");
    }
    if (json->text[json->at] != ':') {
        return dpari_json_fail(json, why, "':' was expected");
    }
    json->at++;
    return DPAR_OK;
}

/* Reads the ',' after a value in an object or array, and the blanks after the ','. */
static dpar_status dpari_json_comma(dpari_json *json, dpar_why *why)
{
    int object = dpari_json_in_object(json);
    if (json->text[json->at] != ',') {
        return dpari_json_fail(json, why,
                               object ? "',' or '}' was expected" : "',' or ']' was expected");
    }
    json->at++;
    json->expect = object ? DPARI_JSON_KEY : DPARI_JSON_VALUE;
    dpari_json_blanks(json);
    if (json->at >= json->bytes) {
        return dpari_json_fail(json, why, "the text ends after a ','");
    }
    return DPAR_OK;
}

/* Reads the next item. On an error the reader may have advanced. */
static dpar_status dpari_json_step(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    char close = dpari_json_in_object(json) ? '}' : ']';
    dpari_json_blanks(json);
    if (json->expect == DPARI_JSON_NOTHING) {
        item->kind = DPARI_JSON_END;
        if (json->at < json->bytes) {
            return dpari_json_fail(json, why, "more text after the end of the value");
        }
        return DPAR_OK;
    }
    if (json->at >= json->bytes) {
        return dpari_json_fail(json, why, "the text ends too early");
    }
    if (json->expect != DPARI_JSON_VALUE && json->expect != DPARI_JSON_KEY &&
        json->text[json->at] == close) {
        return dpari_json_close(json, item);
    }
    if (json->expect == DPARI_JSON_COMMA) {
        st = dpari_json_comma(json, why);
    }
    if (st == DPAR_OK && dpari_json_in_object(json)) {
        st = dpari_json_key(json, item, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_json_value(json, item, why);
}

DPARI_INTERNAL dpar_status dpari_json_next(dpari_json *json, dpari_json_item *item, dpar_why *why)
{
    dpari_json after = *json;
    dpari_json_item found;
    dpar_status st;
    dpari_zero(&found, sizeof(found));
    st = dpari_json_step(&after, &found, why);
    if (st == DPAR_OK) {
        *json = after; /* on an error the reader does not advance, so that the next call fails in
                          the same way */
        *item = found;
    }
    return st;
}

/* ==== cost/machines.c ==== */

/* The tables of chips, machines and calibration constants, and the search for a name in them.
 * Programs call dpar_cluster_find; the reader of the text form calls the functions below it. */

/* ---- chips ----------------------------------------------------------------------------------- */

/* The name and the source of each chip. dpari_gpu has the numbers of the chips in the same order:
 *
 *     the generation and the number of units
 *     the memory that a program can allocate, in GB of 1e9 bytes, and its TB/s
 *     dense TFLOP/s in fp64, fp32, tf32, bf16, fp8 and fp4
 *     GB/s to the host, and GB/s of the NIC that usually comes with the chip
 *     GB/s to the other chips of a node: all links of a chip together, or PCIe if it has no links
 *     1 if these links are switched, and 1 if the switch reduces
 *
 * Bandwidths count one direction. Parts sold as "80 GB" hold about 80 GiB, and an H200 holds nearly
 * 141 GiB. "mi250x" is ONE GCD, which is half a package with half of its 383 TFLOP/s, and "gb200"
 * is one of the two GPUs. GH200 and MI300 have one wire to each peer, so a pair of chips gets only
 * a share of the bandwidth. Ada and desktop Blackwell chips are priced with Ampere's calibration. A
 * TPU has 4 or 6 links of 50 or 100 GB/s in a torus. */
static const char dpari_gpu_text[] = "v100-16\0NVIDIA data sheet 2017\0"
                                     "v100-32\0NVIDIA data sheet 2018\0"
                                     "a100-40\0NVIDIA data sheet 2020\0"
                                     "a100-80\0NVIDIA data sheet 2021\0"
                                     "a100-80-pcie\0NVIDIA data sheet 2021\0"
                                     "a100-40-pcie\0NVIDIA data sheet 2020\0"
                                     "a100-64\0CINECA Leonardo 2023, unverified\0"
                                     "h100-80\0NVIDIA data sheet 2023\0"
                                     "h100-96\0torchtitan 2024-12: HBM2e, 500 W\0"
                                     "h100-pcie\0NVIDIA data sheet 2023\0"
                                     "h800\0ml-engineering 2025\0"
                                     "h20\0ml-engineering 2025\0"
                                     "h200\0NVIDIA data sheet 2024\0"
                                     "gh200\0NVIDIA data sheet 2023\0"
                                     "gh200-141\0NVIDIA data sheet 2024\0"
                                     "b200\0NVIDIA data sheet 2024\0"
                                     "gb200\0NVIDIA data sheet 2024\0"
                                     "b300\0NVIDIA data sheet 2025\0"
                                     "gb300\0NVIDIA data sheet 2025\0"
                                     "l40s\0NVIDIA data sheet 2023\0"
                                     "rtx-3090\0NVIDIA GA102 paper 2020; PCIe\0"
                                     "rtx-4090\0NVIDIA Ada paper 2022; by the host\0"
                                     "rtx-5090\0NVIDIA RTX Blackwell paper 2025; PCIe\0"
                                     "rtx-6000-ada\0NVIDIA data sheet 2022\0"
                                     "rtx-pro-6000\0NVIDIA data sheet 2025\0"
                                     "a10\0NVIDIA data sheet 2021\0"
                                     "l4\0NVIDIA data sheet 2023\0"
                                     "mi250x\0AMD data sheet 2021, one GCD\0"
                                     "mi300a\0AMD data sheet 2023, memory shared\0"
                                     "mi300x\0AMD data sheet 2023\0"
                                     "mi325x\0AMD data sheet 2024\0"
                                     "mi355x\0AMD data sheet 2025\0"
                                     "tpu-v4\0Google 2022, memory unverified\0"
                                     "tpu-v5e\0Google 2023, memory unverified\0"
                                     "tpu-v5p\0Google Cloud's pages 2026\0"
                                     "tpu-v6e\0Google Cloud's pages 2026\0"
                                     "max-1550\0Intel 2023, both tiles; links unverified\0"
                                     "core\0a core as of 2024; doctor --cluster FILE measures\0";
/* Indices of dpari_gpu.value. */
enum {
    DPARI_GPU_GB,
    DPARI_GPU_TBPS,
    DPARI_GPU_F64, /* the first of six formats */
    DPARI_GPU_PCIE = DPARI_GPU_F64 + 6,
    DPARI_GPU_NIC,
    DPARI_GPU_NUMBERS
};
static const struct {
    int8_t generation;
    int16_t units;
    float value[DPARI_GPU_NUMBERS];
    int16_t link;
    int8_t switched, reduces;
} dpari_gpu[] = {
    {DPAR_GEN_VOLTA, 80, {17.1f, 0.9f, 7.8f, 15.7f, 0, 125, 0, 0, 12, 12.5f}, 150, 0, 0},
    {DPAR_GEN_VOLTA, 80, {34.3f, 0.9f, 7.8f, 15.7f, 0, 125, 0, 0, 12, 12.5f}, 150, 0, 0},
    {DPAR_GEN_AMPERE, 108, {42.4f, 1.555f, 9.7f, 19.5f, 156, 312, 0, 0, 25, 25}, 300, 1, 0},
    {DPAR_GEN_AMPERE, 108, {85.9f, 2.039f, 9.7f, 19.5f, 156, 312, 0, 0, 25, 25}, 300, 1, 0},
    {DPAR_GEN_AMPERE, 108, {85.9f, 1.935f, 9.7f, 19.5f, 156, 312, 0, 0, 25, 25}, 31, 1, 0},
    {DPAR_GEN_AMPERE, 108, {42.4f, 1.555f, 9.7f, 19.5f, 156, 312, 0, 0, 25, 25}, 31, 1, 0},
    {DPAR_GEN_AMPERE, 124, {68.7f, 1.64f, 11.2f, 22.4f, 156, 312, 0, 0, 25, 25}, 200, 0, 0},
    {DPAR_GEN_HOPPER, 132, {85.5f, 3.35f, 34, 67, 494.5f, 989, 1979, 0, 50, 50}, 450, 1, 1},
    {DPAR_GEN_HOPPER, 132, {102.0f, 2.4f, 34, 67, 494.5f, 989, 1979, 0, 50, 50}, 450, 1, 1},
    {DPAR_GEN_HOPPER, 114, {85.5f, 2.0f, 26, 51, 378, 756, 1513, 0, 50, 50}, 63, 1, 0},
    {DPAR_GEN_HOPPER, 132, {85.5f, 3.35f, 1, 67, 494.5f, 989, 1979, 0, 50, 50}, 200, 1, 1},
    {DPAR_GEN_HOPPER, 78, {102.0f, 4.0f, 1, 44, 74, 148, 296, 0, 50, 50}, 450, 1, 1},
    {DPAR_GEN_HOPPER, 132, {150.8f, 4.8f, 34, 67, 494.5f, 989, 1979, 0, 50, 50}, 450, 1, 1},
    {DPAR_GEN_HOPPER, 132, {102.0f, 4.0f, 34, 67, 494.5f, 989, 1979, 0, 450, 25}, 450, 0, 0},
    {DPAR_GEN_HOPPER, 132, {150.8f, 4.8f, 34, 67, 494.5f, 989, 1979, 0, 450, 25}, 450, 0, 0},
    {DPAR_GEN_BLACKWELL, 148, {191.5f, 8.0f, 37, 80, 1125, 2250, 4500, 9000, 50, 50}, 900, 1, 1},
    {DPAR_GEN_BLACKWELL, 148, {197.0f, 8.0f, 40, 80, 1250, 2500, 5000, 10000, 200, 50}, 900, 1, 1},
    {DPAR_GEN_BLACKWELL, 148, {288.0f, 8.0f, 1.2f, 80, 1125, 2250, 4500, 13000, 50, 50}, 900, 1, 1},
    {DPAR_GEN_BLACKWELL, 148, {288, 8, 1.3f, 80, 1250, 2500, 5000, 14000, 200, 50}, 900, 1, 1},
    {DPAR_GEN_AMPERE, 142, {48.3f, 0.86f, 1.4f, 91.6f, 183, 362, 733, 0, 25, 25}, 31, 1, 0},
    {DPAR_GEN_AMPERE, 82, {25.4f, 0.936f, 0.56f, 35.6f, 35.6f, 71, 0, 0, 25, 12.5f}, 25, 1, 0},
    {DPAR_GEN_AMPERE, 128, {25.4f, 1.008f, 1.3f, 82.6f, 82.6f, 165, 330, 0, 25, 12.5f}, 20, 1, 0},
    {DPAR_GEN_AMPERE,
     170,
     {33.8f, 1.792f, 1.6f, 104.8f, 104.8f, 209.5f, 419, 1676, 50, 12.5f},
     40,
     1,
     0},
    {DPAR_GEN_AMPERE, 142, {51.0f, 0.96f, 1.4f, 91.1f, 182, 364, 728, 0, 25, 12.5f}, 25, 1, 0},
    {DPAR_GEN_AMPERE, 188, {101.5f, 1.792f, 2, 125, 252, 504, 1008, 2015, 50, 25}, 50, 1, 0},
    {DPAR_GEN_AMPERE, 72, {24.1f, 0.6f, 0.5f, 31.2f, 62.5f, 125, 0, 0, 25, 12.5f}, 25, 1, 0},
    {DPAR_GEN_AMPERE, 58, {24.1f, 0.3f, 0.5f, 30.3f, 60, 121, 242, 0, 25, 12.5f}, 25, 1, 0},
    {DPAR_GEN_CDNA, 110, {68.7f, 1.6f, 47.9f, 23.9f, 0, 191.5f, 0, 0, 36, 25}, 150, 0, 0},
    {DPAR_GEN_CDNA, 228, {137.0f, 5.3f, 61.3f, 122.6f, 490, 980, 1961, 0, 300, 25}, 384, 0, 0},
    {DPAR_GEN_CDNA, 304, {206.0f, 5.3f, 81.7f, 163, 654, 1300, 2610, 0, 50, 50}, 448, 0, 0},
    {DPAR_GEN_CDNA, 304, {275.0f, 6.0f, 81.7f, 163, 654, 1300, 2610, 0, 50, 50}, 448, 0, 0},
    {DPAR_GEN_CDNA, 256, {309.0f, 8.0f, 78, 157, 0, 2500, 5000, 10000, 50, 50}, 535, 0, 0},
    {DPAR_GEN_TPU, 2, {34.3f, 1.2f, 0, 8, 0, 275, 0, 0, 12, 12.5f}, 300, 0, 0},
    {DPAR_GEN_TPU, 1, {17.1f, 0.82f, 0, 6, 0, 197, 0, 0, 12, 12.5f}, 200, 0, 0},
    {DPAR_GEN_TPU, 2, {102.0f, 2.76f, 0, 14, 0, 459, 0, 0, 12, 6.25f}, 600, 0, 0},
    {DPAR_GEN_TPU, 1, {34.3f, 1.64f, 0, 28, 0, 918, 0, 0, 12, 12.5f}, 400, 0, 0},
    {DPAR_GEN_OTHER, 128, {137.0f, 3.28f, 52, 52, 419, 839, 0, 0, 50, 25}, 130, 0, 0},
    {DPAR_GEN_CPU, 1, {4, .01f, .02f, .04f, 0, .04f, 0, 0, 10, 1.25f}, 10, 1, 0}};

enum { DPARI_GPUS = (int)(sizeof(dpari_gpu) / sizeof(dpari_gpu[0])) };

/* ---- machines -------------------------------------------------------------------------------- */

/* The transport of a network. It determines the latencies and the share of the NICs' bandwidth that
 * collectives reach, whatever the chip. EFA1 is the first generation of AWS's EFA (p4), TCPX is
 * GCP's TCP that bypasses the host (A3). */
enum { DPARI_IB, DPARI_SLINGSHOT, DPARI_EFA1, DPARI_EFA, DPARI_ROCE, DPARI_TCPX };

/* The name, the chip and the source of each machine. dpari_machine has the numbers in the same
 * order. link and nic are in GB/s, one direction, per chip and per NIC by data sheet; nics and host
 * (GB of memory) are per node. */
static const char dpari_machine_text[] =
    "dgx-v100\0v100-32\0DGX-1 V100, 4 x EDR, 2018\0"
    "dgx-a100\0a100-80\0DGX A100, 8 x HDR200, 2021\0"
    "selene\0a100-80\0NVIDIA Selene, 8 x HDR200 a node, 2021\0"
    "dgx-h100\0h100-80\0DGX H100, 8 x NDR400, 2023\0"
    "dgx-h200\0h200\0DGX H200, 8 x NDR400, 2024\0"
    "dgx-b200\0b200\0DGX B200, 8 x NDR400, 2024\0"
    "dgx-b300\0b300\0DGX B300, 8 x 800 Gb/s, 2025\0"
    "p4d\0a100-40\0AWS p4d.24xlarge, 4 x 100 Gb/s EFA v1, 42.5 of 50 GB/s effective, 2020\0"
    "p4de\0a100-80\0AWS p4de.24xlarge, 4 x 100 Gb/s EFA v1, 2022\0"
    "p5\0h100-80\0AWS p5.48xlarge, 32 x 100 Gb/s EFA, 2023\0"
    "p5en\0h200\0AWS p5en.48xlarge, 3200 Gb/s EFA, 2024\0"
    "p6-b200\0b200\0AWS p6-b200, 3200 Gb/s EFA, 2025\0"
    "p6-b300\0b300\0AWS p6-b300, 6400 Gb/s EFA, 2025\0"
    "a3-high\0h100-80\0GCP A3 High, 100 GB/s a node, 2023\0"
    "a3-mega\0h100-80\0GCP A3 Mega, 200 GB/s a node, 2024\0"
    "derecho\0a100-40\0NCAR 2023: 4 x 200 Gb/s a GPU node; a guide says 200 Gb/s a node: probe it "
    "(nic=1x25)\0"
    "frontier\0mi250x\0OLCF 2022: 8 GCDs a node, 4 x 200 Gb/s, 200 GB/s in package, 50-100 "
    "between\0"
    "lumi\0mi250x\0CSC 2022: 8 GCDs a node, 4 x 200 Gb/s\0"
    "el-capitan\0mi300a\0LLNL 2024: 128 GB/s a pair, 4 x 200 Gb/s, memory shared\0"
    "aurora\0max-1550\0ALCF 2023: 6 GPUs a node, 8 x 200 Gb/s, links unverified\0"
    "polaris\0a100-40\0ALCF 2022: 4 A100 a node, 2 x 200 Gb/s\0"
    "summit\0v100-16\0OLCF 2018: 6 V100 a node, 50 GB/s a pair (64 between sockets), dual EDR 23 "
    "GB/s\0"
    "perlmutter\0a100-40\0NERSC 2022: 100 GB/s a pair, 4 x Slingshot 11, unverified\0"
    "perlmutter-80\0a100-80\0NERSC 2022: the 80 GB nodes, unverified\0"
    "leonardo\0a100-64\0CINECA 2023: 2 x dual HDR100 = 50 GB/s a node, unverified\0"
    "alps\0gh200\0CSCS 2024: 150 GB/s a pair, 4 x 200 Gb/s Slingshot 11\0"
    "jupiter\0gh200\0JSC 2025: 150 GB/s a pair, 4 x NDR200\0"
    "isambard-ai\0gh200\0Bristol 2025: 4 GH200 a node, 4 x 200 Gb/s\0"
    "juwels-booster\0a100-40\0JSC 2020: 4 A100 a node, 4 x HDR200\0"
    "grand-teton\0h100-80\0Meta, 8 x 400 Gb/s RoCE, 2024\0"
    "gb200-nvl72\0gb200\0NVIDIA GB200 NVL72, 2024\0"
    "gb300-nvl72\0gb300\0NVIDIA GB300 NVL72, 800 Gb/s a GPU, 2025\0"
    "hgx-h20\0h20\0HGX H20, 8 x 400 Gb/s as usual, 2024\0"
    "mi300x-8\0mi300x\0AMD MI300X platform 2023: 64 GB/s a pair, 8 x 400 Gb/s\0"
    "mi325x-8\0mi325x\0AMD MI325X platform 2024: 64 GB/s a pair, 8 x 400 Gb/s\0"
    "rtx-4090-8\0rtx-4090\0eight of 2023, no peer access: by the host, 10 (sockets) to 24 GB/s "
    "(NCCL); 100 Gb/s\0"
    "tpu-v5p\0tpu-v5p\0Google Cloud's pages 2026: a cube of 4 x 4 x 4, ICI 6 x 100 GB/s, 50 Gb/s "
    "outside\0"
    "tpu-v6e\0tpu-v6e\0Google Cloud's pages 2026: a pod of 16 x 16, ICI 4 x 100 GB/s\0"
    "tpu-v5e\0tpu-v5e\0Google Cloud's pages 2026: a pod of 16 x 16, ICI 4 x 50 GB/s\0";
static const struct {
    int16_t nodes, per_node, link, switched, nvls, nics;
    float nic;
    int16_t host;
    int8_t transport;
} dpari_machine[] = {{1, 8, 150, 0, 0, 4, 12.5f, 1500, DPARI_IB},
                     {1, 8, 300, 1, 0, 8, 25, 2000, DPARI_IB},
                     {560, 8, 300, 1, 0, 8, 25, 2000, DPARI_IB},
                     {1, 8, 450, 1, 1, 8, 50, 2000, DPARI_IB},
                     {1, 8, 450, 1, 1, 8, 50, 2000, DPARI_IB},
                     {1, 8, 900, 1, 1, 8, 50, 2000, DPARI_IB},
                     {1, 8, 900, 1, 1, 8, 100, 2000, DPARI_IB},
                     {1, 8, 300, 1, 0, 4, 12.5f, 1152, DPARI_EFA1},
                     {1, 8, 300, 1, 0, 4, 12.5f, 1152, DPARI_EFA1},
                     {1, 8, 450, 1, 1, 32, 12.5f, 2048, DPARI_EFA},
                     {1, 8, 450, 1, 1, 16, 25, 2048, DPARI_EFA},
                     {1, 8, 900, 1, 1, 8, 50, 2048, DPARI_EFA},
                     {1, 8, 900, 1, 1, 8, 100, 4096, DPARI_EFA},
                     {1, 8, 450, 1, 1, 4, 25, 1872, DPARI_TCPX},
                     {1, 8, 450, 1, 1, 8, 25, 1872, DPARI_TCPX},
                     {82, 4, 300, 0, 0, 4, 25, 512, DPARI_SLINGSHOT},
                     {9856, 8, 150, 0, 0, 4, 25, 512, DPARI_SLINGSHOT},
                     {2978, 8, 150, 0, 0, 4, 25, 512, DPARI_SLINGSHOT},
                     {11136, 4, 384, 0, 0, 4, 25, 512, DPARI_SLINGSHOT},
                     {10624, 6, 130, 0, 0, 8, 25, 1024, DPARI_SLINGSHOT},
                     {560, 4, 300, 0, 0, 2, 25, 512, DPARI_SLINGSHOT},
                     {4600, 6, 50, 1, 0, 2, 11.5f, 512, DPARI_IB},
                     {1536, 4, 300, 0, 0, 4, 25, 256, DPARI_SLINGSHOT},
                     {256, 4, 300, 0, 0, 4, 25, 256, DPARI_SLINGSHOT},
                     {3456, 4, 200, 0, 0, 2, 25, 512, DPARI_IB},
                     {2688, 4, 450, 0, 0, 4, 25, 480, DPARI_SLINGSHOT},
                     {6000, 4, 450, 0, 0, 4, 25, 480, DPARI_IB},
                     {1362, 4, 450, 0, 0, 4, 25, 480, DPARI_SLINGSHOT},
                     {936, 4, 300, 0, 0, 4, 25, 512, DPARI_IB},
                     {1, 8, 450, 1, 1, 8, 50, 2000, DPARI_ROCE},
                     {1, 72, 900, 1, 1, 72, 50, 17000, DPARI_IB},
                     {1, 72, 900, 1, 1, 72, 100, 17000, DPARI_IB},
                     {1, 8, 450, 1, 1, 8, 50, 2000, DPARI_IB},
                     {1, 8, 448, 0, 0, 8, 50, 2000, DPARI_IB},
                     {1, 8, 448, 0, 0, 8, 50, 2000, DPARI_IB},
                     {1, 8, 20, 1, 0, 1, 12.5f, 512, DPARI_IB},
                     {1, 64, 600, 0, 0, 16, 25, 7168, DPARI_IB},
                     {1, 256, 400, 0, 0, 64, 12.5f, 1536, DPARI_IB},
                     {1, 256, 200, 0, 0, 64, 12.5f, 512, DPARI_IB}};

enum { DPARI_MACHINES = (int)(sizeof(dpari_machine) / sizeof(dpari_machine[0])) };

/* ---- calibration ----------------------------------------------------------------------------- */

/* The default constants of each generation, in the order of DPAR_CAL_* and DPAR_GEN_*. The link
 * constants of Volta and Ampere come from vTrain's all-reduce tables, and those of Hopper from
 * three marked sizes of the H100-class nccl-tests rows. net_s comes from SimAI's NIC table (16 to
 * 1024 ranks) and hop_s from 2 nodes of H100 over InfiniBand (nccl_tests_net.csv); both are used
 * for all generations without a measured value. The other constants come from the marked rows of
 * docs/records/accuracy.md. */
static const struct {
    float value[DPAR_CAL_COUNT];
    char source[64];
} dpari_default[DPAR_GEN_COUNT] = {
    {{.60f, .40f, .80f, 12e-6f, .75f, 4e-6f, .90f, 4e-6f, 30e-6f, .15f, .005f, .005f, 15e-6f},
     "estimate, no measurement"},
    {{.60f, .30f, .80f, 12e-6f, .90f, 4e-6f, .92f, 3.7e-6f, 36e-6f, .15f, .005f, .005f, 15e-6f},
     "links: vTrain V100 all-reduce 2024; rest estimated"},
    {{.78f, .56f, .80f, 45.8e-6f, .78f, 4.2e-6f, .92f, 3.7e-6f, 36e-6f, .15f, .0140f, .0048f,
      15e-6f},
     "marked rows of docs/records/accuracy.md, 2026-11"},
    {{.75f, .44f, .80f, 12e-6f, .795f, 2e-6f, .92f, 3.7e-6f, 30e-6f, .15f, .005f, .005f, 15e-6f},
     "links: nccl-tests 2024; products: DGXC 8B rows, 2025-05"},
    {{.543f, .389f, .44f, 10e-6f, .80f, 2e-6f, .92f, 3.7e-6f, 30e-6f, .15f, .005f, .005f, 15e-6f},
     "marked B200 rows of docs/records/accuracy.md, 2026-11"},
    {{.50f, .30f, .75f, 15e-6f, .75f, 4e-6f, .90f, 4e-6f, 40e-6f, .15f, .005f, .005f, 15e-6f},
     "products: best shape 668 of 1300, 2024; rest estimated"},
    {{.80f, .45f, .85f, 1e-6f, .85f, 2e-6f, .85f, 10e-6f, 10e-6f, .15f, .001f, .005f, 15e-6f},
     "products after MaxText's public MFU 2024; the rest is a guess"},
    /* contention is 1, because a core that copies does not compute, so that nothing is hidden */
    {{.8f, .5f, .8f, 1e-7f, 1, 1e-6f, .9f, 10e-6f, 1e-6f, 1, 0, 1e-5f, 10e-6f},
     "a file of doctor --cluster, else a guess"}};

/* The constants of each generation that were set by measurements, as bits 1 << DPAR_CAL_*. Their
 * error is assumed to be 10 %, which is about the scatter in the tables of
 * docs/records/accuracy.md. The error of an estimated constant is assumed to be 20 %. Neither
 * number is measured. */
static const int16_t dpari_measured[DPAR_GEN_COUNT] = {
    0,
    1 << DPAR_CAL_LINK_SHARE | 1 << DPAR_CAL_LINK_S,
    0x1FFF & ~(1 << DPAR_CAL_CONTENTION),
    1 << DPAR_CAL_LINK_SHARE | 1 << DPAR_CAL_LINK_S | 1 << DPAR_CAL_BASE_S | 1 << DPAR_CAL_HOP_S |
        1 << DPAR_CAL_GEMM | 1 << DPAR_CAL_ATTENTION,
    1 << DPAR_CAL_GEMM | 1 << DPAR_CAL_ATTENTION | 1 << DPAR_CAL_HBM,
    0,
    0,
    0};

DPAR_API DPARI_COLD void dpar_calibration_init(dpar_calibration *cal, int32_t generation)
{
    int32_t i, g = generation >= 0 && generation < DPAR_GEN_COUNT ? generation : DPAR_GEN_OTHER;
    dpari_zero(cal, sizeof(*cal));
    for (i = 0; i < DPAR_CAL_COUNT; i++) {
        cal->value[i] = (double)dpari_default[g].value[i];
        cal->error[i] = dpari_measured[g] >> i & 1 ? 0.1 : 0.2;
    }
    dpari_copy_text(cal->source, sizeof(cal->source), dpari_default[g].source,
                    sizeof(dpari_default[g].source));
}

/* Sets net_s, hop_s and net_share of a transport; InfiniBand keeps the defaults of the generation.
 * Sources: Slingshot 11 under NCCL and OFI, the rows of 1, 16 and 128 MiB of two GH200 nodes. EFA,
 * two nodes of p4de and of p5 at 1, 64 and 2048 MiB (nccl_tests_net.csv). RoCE, two nodes of A100
 * at 1, 64 and 8192 MiB. TCPX has the values of EFA1, unverified. */
static void dpari_cluster_transport(dpar_cluster *cluster, int32_t transport)
{
    static const float constant[5][3] = {{10e-6f, 60e-6f, 1.0f},
                                         {9e-6f, 130e-6f, 0.85f},
                                         {6.5e-6f, 55e-6f, 0.89f},
                                         {3.7e-6f, 20e-6f, 0.92f},
                                         {9e-6f, 130e-6f, 0.85f}};
    if (transport != DPARI_IB) {
        cluster->cal.value[DPAR_CAL_NET_S] = (double)constant[transport - 1][0];
        cluster->cal.value[DPAR_CAL_HOP_S] = (double)constant[transport - 1][1];
        cluster->cal.value[DPAR_CAL_NET_SHARE] = (double)constant[transport - 1][2];
    }
}

/* Sets the shares of matrix products, attention and streaming for the chips whose power or number
 * of units differs from the rest of their generation. h100-96 has 500 W (torchtitan's 70B rows in
 * 16 bits). gb200 and gb300 have 1200 W and 1400 W (Megatron-Bridge's newest 70B row in 8 bits of
 * each); gb300 also computes twice as many exponentials per second. The values of b300 are between
 * those of gb200 and gb300, unverified. */
static void dpari_cluster_power(dpar_cluster *cluster)
{
    static const char name[4][8] = {"h100-96", "gb200", "gb300", "b300"};
    static const float share[4][3] = {
        {.60f, .35f, .80f}, {.57f, .389f, .75f}, {.70f, .55f, .75f}, {.65f, .55f, .75f}};
    int32_t i, k;
    for (i = 0; i < 4; i++) {
        for (k = 0; k < 3 && dpari_same(cluster->gpu.name, name[i]); k++) {
            cluster->cal.value[DPAR_CAL_GEMM + k] = (double)share[i][k];
        }
    }
}

/* ---- finding a preset ------------------------------------------------------------------------ */

/* Returns the index of a preset by its name in upper or lower case. If there is none, returns -1
 * and sets *nearest to the most similar name, for the message. */
static DPARI_COLD int32_t dpari_preset_find(const char *s, size_t n, const char *(*name)(int32_t),
                                            int32_t *nearest)
{
    int32_t i, best = 0;
    for (i = 0; name(i) != NULL; i++) {
        if (dpari_spells_any_case(s, n, name(i))) {
            return i;
        }
        if (dpari_unlike(s, n, name(i)) < dpari_unlike(s, n, name(best))) {
            best = i;
        }
    }
    *nearest = best;
    return -1;
}

/* Reports "unknown GPU 'h10'; the nearest is 'h100-80'", with up to two more names that are as
 * near. */
static DPARI_COLD dpar_status dpari_preset_unknown(dpar_why *why, const char *form, const char *s,
                                                   size_t n, const char *(*name)(int32_t),
                                                   int32_t nearest, const char *more)
{
    char text[160];
    dpar_text t;
    int32_t i, found = 0;
    dpar_text_init(&t, text, sizeof(text));
    dpari_text_slice(&t, s, n < 40 ? n : 40);
    dpar_text_put(&t, "'; the nearest is '");
    for (i = nearest; name(i) != NULL && found < 3; i++) {
        if (i == nearest || dpari_unlike(s, n, name(i)) == dpari_unlike(s, n, name(nearest))) {
            dpari_text_print(&t, "%s%s", found > 0 ? "' or '" : "", name(i));
            found++;
        }
    }
    dpar_text_put(&t, more);
    return dpari_say(DPAR_E_UNKNOWN, why, form, text);
}

DPAR_API DPARI_COLD const char *dpar_gpu_name(int32_t index)
{
    return index >= 0 && index < DPARI_GPUS ? dpari_nth_text(dpari_gpu_text, 2 * index) : NULL;
}

DPAR_API DPARI_COLD const char *dpar_cluster_name(int32_t index)
{
    return index >= 0 && index < DPARI_MACHINES ? dpari_nth_text(dpari_machine_text, 3 * index)
                                                : NULL;
}

/* Copies row i of the table of chips. */
static DPARI_COLD void dpari_gpu_fill(dpar_gpu *gpu, int32_t i)
{
    const float *v = dpari_gpu[i].value;
    const char *name = dpar_gpu_name(i);
    int32_t f;
    dpari_zero(gpu, sizeof(*gpu));
    dpari_copy_text(gpu->name, sizeof(gpu->name), name, sizeof(gpu->name));
    gpu->generation = dpari_gpu[i].generation;
    gpu->units = dpari_gpu[i].units;
    gpu->memory_bytes = (double)v[DPARI_GPU_GB] * 1e9;
    gpu->memory_Bps = (double)v[DPARI_GPU_TBPS] * 1e12;
    for (f = 0; f < 6; f++) {
        static const int8_t format[6] = {DPAR_F64,  DPAR_F32, DPAR_TF32,
                                         DPAR_BF16, DPAR_F8,  DPAR_F4};
        gpu->flops[format[f]] = (double)v[DPARI_GPU_F64 + f] * 1e12;
    }
    gpu->pcie_Bps = (double)v[DPARI_GPU_PCIE] * 1e9;
    dpari_copy_text(gpu->source, sizeof(gpu->source), dpari_behind(name), sizeof(gpu->source));
}

DPARI_INTERNAL dpar_status dpari_gpu_slice(dpar_gpu *gpu, const char *s, size_t n, dpar_why *why)
{
    int32_t nearest = 0, i = dpari_preset_find(s, n, dpar_gpu_name, &nearest);
    if (i >= 0) {
        dpari_gpu_fill(gpu, i);
        return DPAR_OK;
    }
    return dpari_preset_unknown(why, "unknown GPU '%s'", s, n, dpar_gpu_name, nearest, "");
}

/* Returns the chip's row, or -1 if it is not in the table. */
static int32_t dpari_gpu_row(const dpar_gpu *gpu)
{
    int32_t unused = 0;
    return dpari_preset_find(gpu->name, dpari_length(gpu->name), dpar_gpu_name, &unused);
}

DPARI_INTERNAL void dpari_cluster_usual_nics(dpar_cluster *cluster)
{
    int32_t i = dpari_gpu_row(&cluster->gpu);
    cluster->nics = cluster->gpus_per_node;
    cluster->nic_Bps = i < 0 ? 25e9 : (double)dpari_gpu[i].value[DPARI_GPU_NIC] * 1e9;
}

DPARI_INTERNAL DPARI_COLD void dpari_cluster_of_gpus(dpar_cluster *cluster, int32_t nodes,
                                                     int32_t per_node)
{
    int32_t i = dpari_gpu_row(&cluster->gpu);
    dpar_calibration_init(&cluster->cal, cluster->gpu.generation);
    dpari_cluster_power(cluster);
    cluster->nodes = nodes;
    cluster->gpus_per_node = per_node;
    cluster->link_Bps = (double)dpari_gpu[i].link * 1e9;
    /* more than eight chips in a node are never wired to each other, except for a TPU's torus */
    cluster->link_switched =
        dpari_gpu[i].switched || (per_node > 8 && cluster->gpu.generation != DPAR_GEN_TPU);
    cluster->link_reduces = dpari_gpu[i].reduces;
    cluster->nics = 0;
    cluster->nic_Bps = 0.0;
    if (nodes > 1) {
        dpari_cluster_usual_nics(cluster);
    }
    cluster->taper = 1.0;
    cluster->host_bytes = 1e12;
    dpar_halo_rates_init(&cluster->halo);
    dpari_copy_text(cluster->source, sizeof(cluster->source),
                    "as given; the rest is usual for the chip: its links and one NIC per GPU", 96);
}

/* Copies row i of the table of machines. */
static DPARI_COLD void dpari_cluster_fill(dpar_cluster *cluster, int32_t i)
{
    int32_t unused = 0;
    const char *name = dpar_cluster_name(i), *gpu = dpari_behind(name);
    dpari_zero(cluster, sizeof(*cluster));
    dpari_gpu_fill(&cluster->gpu,
                   dpari_preset_find(gpu, dpari_length(gpu), dpar_gpu_name, &unused));
    dpari_cluster_of_gpus(cluster, dpari_machine[i].nodes, dpari_machine[i].per_node);
    dpari_copy_text(cluster->name, sizeof(cluster->name), name, sizeof(cluster->name));
    cluster->link_Bps = dpari_machine[i].link * 1e9;
    cluster->link_switched = dpari_machine[i].switched;
    cluster->link_reduces = dpari_machine[i].nvls;
    cluster->nics = dpari_machine[i].nics;
    cluster->nic_Bps = (double)dpari_machine[i].nic * 1e9;
    cluster->host_bytes = dpari_machine[i].host * 1e9;
    dpari_cluster_transport(cluster, dpari_machine[i].transport);
    dpari_copy_text(cluster->source, sizeof(cluster->source), dpari_behind(gpu),
                    sizeof(cluster->source));
}

DPARI_INTERNAL dpar_status dpari_cluster_slice(dpar_cluster *cluster, const char *s, size_t n,
                                               dpar_why *why)
{
    int32_t nearest = 0, i = dpari_preset_find(s, n, dpar_cluster_name, &nearest);
    if (i >= 0) {
        dpari_cluster_fill(cluster, i);
        return DPAR_OK;
    }
    return dpari_preset_unknown(why, "unknown machine '%s'", s, n, dpar_cluster_name, nearest,
                                "', or write NODESxGPUS:GPU, as in '8x8:h100-80");
}

DPAR_API DPARI_COLD dpar_status dpar_cluster_find(dpar_cluster *cluster, const char *name,
                                                  dpar_why *why)
{
    return dpari_cluster_slice(cluster, name, dpari_length(name), why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_cluster_swap_gpu(dpar_cluster *cluster, const char *s,
                                                             size_t n, dpar_why *why)
{
    int32_t unused = 0, machine = dpari_preset_find(cluster->name, dpari_length(cluster->name),
                                                    dpar_cluster_name, &unused);
    dpar_status st = dpari_gpu_slice(&cluster->gpu, s, n, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (machine < 0) {
        dpari_cluster_of_gpus(cluster, cluster->nodes, cluster->gpus_per_node);
        return DPAR_OK;
    }
    dpar_calibration_init(&cluster->cal, cluster->gpu.generation);
    dpari_cluster_power(cluster);
    dpari_cluster_transport(cluster, dpari_machine[machine].transport);
    return DPAR_OK;
}

/* ==== cost/cluster.c ==== */

/* The reader of the text form of a machine, and the checks of a machine. Programs call
 * dpar_cluster_read; the planner calls dpari_cluster_check.
 *
 * A text is read twice: first for the number of nodes, the GPUs per node and the chip, then for all
 * other numbers. Otherwise a chip that is named late in the text would overwrite numbers that were
 * set before it. */

/* ---- fields ---------------------------------------------------------------------------------- */

/* What fields of a machine take in addition to DPARI_FIELD_*. */
enum {
    DPARI_MACHINE_NODES = DPARI_FIELD_OWN,
    DPARI_MACHINE_GPUS,
    DPARI_MACHINE_GPU,
    DPARI_MACHINE_NICS,
    DPARI_MACHINE_CURVE, /* the field is a dpar_curve */
    DPARI_MACHINE_SETTINGS,
    DPARI_MACHINE_NAME
};

#define DPARI_MACHINE_FIELD(name, kind, field)                                                     \
    {                                                                                              \
        name, kind, DPARI_PLACE(dpar_cluster, field)                                               \
    }
/* The fields of the text form. The calibration constants are last, in the order of DPAR_CAL_*. */
enum { DPARI_KEY_STREAM = 14, DPARI_KEY_CAL = 30 };
static const dpari_field dpari_machine_field[(int)DPARI_KEY_CAL + (int)DPAR_CAL_COUNT] = {
    {"nodes", DPARI_MACHINE_NODES, 0},
    {"gpus", DPARI_MACHINE_GPUS, 0},
    {"gpu", DPARI_MACHINE_GPU, 0},
    {"nic", DPARI_MACHINE_NICS, 0},
    DPARI_MACHINE_FIELD("nvlink", DPARI_FIELD_GIGA, link_Bps),
    DPARI_MACHINE_FIELD("switched", DPARI_FIELD_YES_NO, link_switched),
    DPARI_MACHINE_FIELD("nvls", DPARI_FIELD_YES_NO, link_reduces),
    DPARI_MACHINE_FIELD("sharp", DPARI_FIELD_YES_NO, net_reduces),
    DPARI_MACHINE_FIELD("taper", DPARI_FIELD_REAL, taper),
    DPARI_MACHINE_FIELD("memory", DPARI_FIELD_GIGA, gpu.memory_bytes),
    DPARI_MACHINE_FIELD("tflops", DPARI_FIELD_TERA, gpu.flops[DPAR_BF16]),
    DPARI_MACHINE_FIELD("pcie", DPARI_FIELD_GIGA, gpu.pcie_Bps),
    DPARI_MACHINE_FIELD("host", DPARI_FIELD_GIGA, host_bytes),
    DPARI_MACHINE_FIELD("nvme", DPARI_FIELD_GIGA, nvme_Bps),
    DPARI_MACHINE_FIELD("stream", DPARI_FIELD_GIGA, gpu.memory_Bps),
    DPARI_MACHINE_FIELD("tflops32", DPARI_FIELD_TERA, gpu.flops[DPAR_F32]),
    DPARI_MACHINE_FIELD("tflops64", DPARI_FIELD_TERA, gpu.flops[DPAR_F64]),
    DPARI_MACHINE_FIELD("halo_copy", DPARI_FIELD_GIGA, halo.copy_Bps),
    DPARI_MACHINE_FIELD("halo_run", DPARI_FIELD_NANO, halo.run_s),
    DPARI_MACHINE_FIELD("halo_peer", DPARI_FIELD_MICRO, halo.peer_s),
    DPARI_MACHINE_FIELD("halo_msg", DPARI_FIELD_MICRO, halo.message_s),
    DPARI_MACHINE_FIELD("halo_nic", DPARI_FIELD_GIGA, halo.nic_Bps),
    DPARI_MACHINE_FIELD("halo_cache", DPARI_FIELD_MEGA, halo.cache_bytes),
    DPARI_MACHINE_FIELD("halo_far", DPARI_FIELD_NANO, halo.far_s),
    DPARI_MACHINE_FIELD("link_reduce", DPARI_MACHINE_CURVE, curve[DPAR_CURVE_LINK]),
    DPARI_MACHINE_FIELD("link_send", DPARI_MACHINE_CURVE, curve[DPAR_CURVE_LINK_SEND]),
    DPARI_MACHINE_FIELD("net_reduce", DPARI_MACHINE_CURVE, curve[DPAR_CURVE_NET]),
    DPARI_MACHINE_FIELD("net_send", DPARI_MACHINE_CURVE, curve[DPAR_CURVE_NET_SEND]),
    {"settings", DPARI_MACHINE_SETTINGS, 0},
    {"machine", DPARI_MACHINE_NAME, 0},
    DPARI_MACHINE_FIELD("gemm", DPARI_FIELD_REAL, cal.value[DPAR_CAL_GEMM]),
    DPARI_MACHINE_FIELD("attention", DPARI_FIELD_REAL, cal.value[DPAR_CAL_ATTENTION]),
    DPARI_MACHINE_FIELD("hbm", DPARI_FIELD_REAL, cal.value[DPAR_CAL_HBM]),
    DPARI_MACHINE_FIELD("launch_us", DPARI_FIELD_MICRO, cal.value[DPAR_CAL_LAUNCH_S]),
    DPARI_MACHINE_FIELD("link_share", DPARI_FIELD_REAL, cal.value[DPAR_CAL_LINK_SHARE]),
    DPARI_MACHINE_FIELD("link_us", DPARI_FIELD_MICRO, cal.value[DPAR_CAL_LINK_S]),
    DPARI_MACHINE_FIELD("net_share", DPARI_FIELD_REAL, cal.value[DPAR_CAL_NET_SHARE]),
    DPARI_MACHINE_FIELD("net_us", DPARI_FIELD_MICRO, cal.value[DPAR_CAL_NET_S]),
    DPARI_MACHINE_FIELD("base_us", DPARI_FIELD_MICRO, cal.value[DPAR_CAL_BASE_S]),
    DPARI_MACHINE_FIELD("contention", DPARI_FIELD_REAL, cal.value[DPAR_CAL_CONTENTION]),
    DPARI_MACHINE_FIELD("skew", DPARI_FIELD_REAL, cal.value[DPAR_CAL_SKEW]),
    DPARI_MACHINE_FIELD("step_ms", DPARI_FIELD_MILLI, cal.value[DPAR_CAL_STEP_S]),
    DPARI_MACHINE_FIELD("hop_us", DPARI_FIELD_MICRO, cal.value[DPAR_CAL_HOP_S])};

DPAR_API DPARI_COLD const char *dpar_calibration_name(int32_t which)
{
    return which >= 0 && which < DPAR_CAL_COUNT ? dpari_machine_field[DPARI_KEY_CAL + which].name
                                                : NULL;
}

/* ---- settings -------------------------------------------------------------------------------- */

/* Sets nodes= or gpus=. A machine that gets a second node also gets NICs if it had none. If the
 * number of GPUs per node changes, the number of NICs changes in proportion. */
static DPARI_COLD dpar_status dpari_cluster_shape(dpar_cluster *cluster, int32_t kind,
                                                  const dpari_setting *setting, dpar_why *why)
{
    int64_t count = 0;
    if (!dpari_whole(setting->value, setting->value_length, 1, 10000000, &count)) {
        return dpari_setting_bad(setting, why, "a whole number of 1 to 10000000");
    }
    if (kind == DPARI_MACHINE_NODES) {
        cluster->nodes = (int32_t)count;
        if (count > 1 && cluster->nics == 0) {
            dpari_cluster_usual_nics(cluster);
        }
        return DPAR_OK;
    }
    if (cluster->nics > 0) {
        cluster->nics = (int32_t)dpari_most(1, cluster->nics * count / cluster->gpus_per_node);
    }
    cluster->gpus_per_node = (int32_t)count;
    return DPAR_OK;
}

/* Reads "8x50": eight NICs of 50 GB/s. */
static DPARI_COLD dpar_status dpari_cluster_nics(dpar_cluster *cluster,
                                                 const dpari_setting *setting, dpar_why *why)
{
    const size_t n = setting->value_length, x = dpari_until(setting->value, n, 'x');
    int64_t count = 0;
    double gb = 0.0;
    if (x == n || !dpari_whole(setting->value, x, 1, 1024, &count) ||
        !dpari_reals(setting->value + x + 1, n - x - 1, &gb, 1)) {
        return dpari_setting_bad(setting, why, "COUNTxGB/s, such as nic=8x50,");
    }
    cluster->nics = (int32_t)count;
    cluster->nic_Bps = gb * 1e9;
    return DPAR_OK;
}

/* Reads a point "2x65536x1.7" of a curve: two ranks, 65536 bytes, 1.7 us. */
static DPARI_COLD dpar_status dpari_cluster_point(dpar_curve *curve, const dpari_setting *setting,
                                                  dpar_why *why)
{
    double number[3] = {0.0, 0.0, 0.0}; /* ranks, bytes, microseconds */
    if (!dpari_reals(setting->value, setting->value_length, number, 3) || number[0] < 2.0 ||
        number[0] > 1e8 || curve->count == DPAR_CURVE_POINTS ||
        (curve->count > 0 && number[1] <= curve->bytes[curve->count - 1])) {
        return dpari_setting_bad(setting, why,
                                 "RANKSxBYTESxMICROSECONDS with 2 or more ranks, ascending bytes "
                                 "and at most 16 points");
    }
    curve->ranks = (int32_t)number[0];
    curve->bytes[curve->count] = number[1];
    curve->seconds[curve->count] = number[2] * 1e-6;
    curve->count++;
    return DPAR_OK;
}

/* Reads a setting that is not a plain number. */
static DPARI_COLD dpar_status dpari_cluster_own(void *object, const dpari_setting *setting,
                                                dpar_why *why)
{
    dpar_cluster *cluster = (dpar_cluster *)object;
    const dpari_field *field = &dpari_machine_field[setting->field];
    int64_t count = 0;
    switch (field->kind) {
    case DPARI_MACHINE_NODES:
    case DPARI_MACHINE_GPUS: return dpari_cluster_shape(cluster, field->kind, setting, why);
    case DPARI_MACHINE_GPU:
        return dpari_cluster_swap_gpu(cluster, setting->value, setting->value_length, why);
    case DPARI_MACHINE_NICS: return dpari_cluster_nics(cluster, setting, why);
    case DPARI_MACHINE_CURVE:
        return dpari_cluster_point((dpar_curve *)(void *)((char *)cluster + field->place), setting,
                                   why);
    case DPARI_MACHINE_SETTINGS:
        return dpari_whole(setting->value, setting->value_length, 1, 10000, &count)
                   ? DPAR_OK
                   : dpari_setting_bad(setting, why, "a whole number of 1 to 10000");
    default:
        return dpari_say(DPAR_E_PARSE, why, "'%.*s' must come before all settings",
                         (int32_t)setting->length, setting->text);
    }
}

/* Reads one "key=value": in pass 0 the shape and the chip, in pass 1 the numbers, so that the order
 * of the settings does not matter. */
static DPARI_COLD dpar_status dpari_cluster_setting(dpar_cluster *cluster, const char *s, size_t n,
                                                    int32_t pass, dpar_why *why)
{
    dpari_fields fields;
    dpari_setting setting;
    double number = 0.0;
    int32_t kind;
    int shape;
    dpar_status st;
    fields.list = dpari_machine_field;
    fields.count = (int32_t)(sizeof(dpari_machine_field) / sizeof(dpari_machine_field[0]));
    fields.of = "a machine";
    fields.more =
        ". Common ones: nodes gpus gpu nvlink nic taper memory hbm tflops pcie host nvme; "
        "dpar_cluster_read lists all";
    fields.own = dpari_cluster_own;
    st = dpari_setting_find(&setting, &fields, s, n, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (setting.field < 0) {
        return dpari_setting_bad(&setting, why, "key=value");
    }
    kind = dpari_machine_field[setting.field].kind;
    shape = kind == DPARI_MACHINE_NODES || kind == DPARI_MACHINE_GPUS || kind == DPARI_MACHINE_GPU;
    if (shape != (pass == 0)) {
        return DPAR_OK;
    }
    if (setting.field == (int)DPARI_KEY_CAL + (int)DPAR_CAL_HBM &&
        dpari_reals(setting.value, setting.value_length, &number, 1) && number > 2.0) {
        setting.field = DPARI_KEY_STREAM; /* hbm=0.8 is a share, hbm=3350 is GB/s */
    }
    st = dpari_setting_read(&setting, &fields, cluster, why);
    if (setting.field >= DPARI_KEY_CAL) { /* the default's error says nothing about this value */
        cluster->cal.error[setting.field - DPARI_KEY_CAL] = 0.0;
    }
    return st;
}

/* Reports that "2x8" gives nodes and GPUs but not the kind of GPU. */
static DPARI_COLD dpar_status dpari_cluster_no_gpu(const char *s, size_t n, dpar_why *why)
{
    char text[80];
    dpar_text t;
    if (n > 0 && s[n - 1] == ':') {
        n--;
    }
    dpar_text_init(&t, text, sizeof text);
    dpari_text_slice(&t, s, n < 24 ? n : 24);
    dpar_text_put(&t, "' lacks the GPU: '");
    dpari_text_slice(&t, s, n < 24 ? n : 24);
    dpar_text_put(&t, ":a100-80");
    return dpari_say(DPAR_E_PARSE, why,
                     "'%s' was expected; known: v100-32, a100-40, a100-80, h100-80, h200, "
                     "b200, gb200, l40s, mi250x, mi300x, tpu-v5p and more",
                     text);
}

/* Returns 1 for a text like "16" or "2x8", otherwise 0. */
static int dpari_cluster_is_counts(const char *s, size_t n)
{
    size_t i, x = 0;
    for (i = 0; i < n && ((s[i] >= '0' && s[i] <= '9') || s[i] == 'x' || s[i] == 'X'); i++) {
        x += s[i] == 'x' || s[i] == 'X';
    }
    return i == n && n > 0 && x <= 1 && s[0] >= '0' && s[0] <= '9' && s[n - 1] <= '9';
}

/* Reads the first word: "8x8:h100-80", "16xdgx-h100", "64:a100-80", "derecho". */
static DPARI_COLD dpar_status dpari_cluster_first(dpar_cluster *cluster, const char *s, size_t n,
                                                  dpar_why *why)
{
    const size_t colon = dpari_until(s, n, ':');
    size_t x = 0; /* the end of the number with which the word begins */
    int64_t nodes = 1, per_node = 0;
    dpar_status st;
    int fine;
    while (x < n && s[x] >= '0' && s[x] <= '9') {
        x++;
    }
    if (dpari_cluster_is_counts(s, colon) && colon + 1 >= n) {
        return dpari_cluster_no_gpu(s, n, why);
    }
    if (colon < n) {
        if (x < colon) {
            fine = (s[x] == 'x' || s[x] == 'X') && dpari_whole(s, x, 1, 10000000, &nodes) &&
                   dpari_whole(s + x + 1, colon - x - 1, 1, 65536, &per_node);
        } else {
            fine = dpari_whole(s, colon, 1, 65536, &per_node);
        }
        if (!fine) {
            return dpari_text_bad(s, n, why,
                                  "NODESxGPUS:GPU with 1 to 10000000 nodes of 1 to 65536 GPUs, "
                                  "such as 8x8:h100-80,");
        }
        st = dpari_gpu_slice(&cluster->gpu, s + colon + 1, n - colon - 1, why);
        if (st == DPAR_OK) {
            dpari_cluster_of_gpus(cluster, (int32_t)nodes, (int32_t)per_node);
            dpari_copy_text(cluster->name, sizeof(cluster->name), s, n);
        }
        return st;
    }
    if (x > 0 && x + 1 < n && (s[x] == 'x' || s[x] == 'X')) {
        if (!dpari_whole(s, x, 1, 10000000, &nodes)) {
            return dpari_text_bad(s, n, why, "a number of 1 to 10000000 machines");
        }
        st = dpari_cluster_slice(cluster, s + x + 1, n - x - 1, why);
        if (st == DPAR_OK) {
            cluster->nodes = (int32_t)nodes;
        }
        return st;
    }
    return dpari_cluster_slice(cluster, s, n, why);
}

/* Finds the next item, which ends at a comma, a comment or the end of the line. Sets *start to its
 * beginning and *at to the position after it. Returns its length without blanks, or 0 if there are
 * no more items. */
static DPARI_COLD size_t dpari_cluster_item(const char *text, size_t bytes, size_t *at,
                                            size_t *start)
{
    size_t end, i = *at;
    while (i < bytes && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n' ||
                         text[i] == ',' || text[i] == '#')) {
        if (text[i] == '#') {
            while (i < bytes && text[i] != '\n') {
                i++;
            }
        } else {
            i++;
        }
    }
    *start = i;
    while (i < bytes && text[i] != ',' && text[i] != '\n' && text[i] != '#' && text[i] != '\r') {
        i++;
    }
    end = i;
    while (end > *start && (text[end - 1] == ' ' || text[end - 1] == '\t')) {
        end--;
    }
    *at = i;
    return end - *start;
}

/* Copies an item without blanks, because people write "key = value" in files. Returns the length of
 * the copy. */
static DPARI_COLD size_t dpari_cluster_squeeze(char *to, size_t room, const char *s, size_t n)
{
    size_t i, k = 0;
    for (i = 0; i < n && k + 1 < room; i++) {
        if (s[i] != ' ' && s[i] != '\t') {
            to[k] = s[i];
            k++;
        }
    }
    to[k] = 0;
    return k;
}

/* Starts a machine from a list that has only settings: one node with one chip, which gpu=NAME gives
 * anywhere in the list. */
static DPARI_COLD dpar_status dpari_cluster_of_settings(dpar_cluster *cluster, const char *text,
                                                        size_t bytes, dpar_why *why)
{
    char item[96];
    size_t at = 0, start, n;
    for (;;) {
        n = dpari_cluster_item(text, bytes, &at, &start);
        if (n == 0) {
            break;
        }
        n = dpari_cluster_squeeze(item, sizeof(item), text + start, n);
        if (n > 4 && dpari_spells_any_case(item, 4, "gpu=")) {
            dpar_status st = dpari_gpu_slice(&cluster->gpu, item + 4, n - 4, why);
            if (st == DPAR_OK) {
                dpari_cluster_of_gpus(cluster, 1, 1);
                dpari_copy_text(cluster->name, sizeof(cluster->name), cluster->gpu.name,
                                sizeof(cluster->gpu.name) - 1);
            }
            return st;
        }
    }
    return dpari_say(DPAR_E_PARSE, why,
                     "the settings name no machine: begin with one (derecho, 8x8:h100-80) or give "
                     "gpu=NAME, nodes=N and gpus=N");
}

/* Puts "line 7: " before a message if the text has several lines. */
static DPARI_COLD dpar_status dpari_cluster_line(const char *text, size_t bytes, size_t at,
                                                 dpar_status st, dpar_why *why)
{
    dpar_why was;
    int32_t line = 1, lines = 1;
    size_t i;
    for (i = 0; i + 1 < bytes; i++) {
        line += text[i] == '\n' && i < at;
        lines += text[i] == '\n';
    }
    if (st == DPAR_OK || why == NULL || lines == 1) {
        return st;
    }
    was = *why;
    return dpari_say(st, why, "line %d: %s", line, was.text);
}

/* Counts down the settings that "settings=N" announced. At the end of the text, where n is 0, it
 * fails if settings are missing, because the file was then cut short. */
static DPARI_COLD dpar_status dpari_cluster_promise(const char *item, size_t n, int32_t *left,
                                                    dpar_why *why)
{
    *left -= n > 0 && *left > 0;
    if (n > 9 && dpari_spells_any_case(item, 9, "settings=")) {
        int64_t count = 0;
        *left = dpari_whole(item + 9, n - 9, 1, 10000, &count) ? (int32_t)count : 0;
    }
    if (n == 0 && *left > 0) {
        return dpari_say(DPAR_E_PARSE, why, "the file ends too early: %d settings are missing",
                         *left);
    }
    return DPAR_OK;
}

/* Makes one pass over the text: reads the machine, then the settings that belong to the pass. */
static DPARI_COLD dpar_status dpari_cluster_read(dpar_cluster *cluster, const char *text,
                                                 size_t bytes, int32_t pass, dpar_why *why)
{
    char item[96];
    size_t at = 0, start, n, items;
    int32_t left = 0;
    int setting = 0;
    dpar_status st = DPAR_OK;
    for (items = 0; st == DPAR_OK; items++) {
        n = dpari_cluster_item(text, bytes, &at, &start);
        if (n == 0) {
            st = dpari_cluster_promise(item, n, &left, why);
            break;
        }
        if (n >= sizeof(item)) {
            st = dpari_say(DPAR_E_PARSE, why, "'%.*s...' has %ld bytes: a setting has at most %ld",
                           (int32_t)60, text + start, (int64_t)n, (int64_t)sizeof item - 1);
            break;
        }
        n = dpari_cluster_squeeze(item, sizeof(item), text + start, n);
        (void)dpari_cluster_promise(item, n, &left, why);
        if (items == 0) {
            size_t named = n > 8 && dpari_spells_any_case(item, 8, "machine=") ? 8 : 0;
            setting = named == 0 && dpari_until(item, n, '=') < n;
            if (pass == 0) {
                st = setting ? dpari_cluster_of_settings(cluster, text, bytes, why)
                             : dpari_cluster_first(cluster, item + named, n - named, why);
            }
        }
        if (st == DPAR_OK && (items > 0 || setting)) {
            st = dpari_cluster_setting(cluster, item, n, pass, why);
        }
    }
    if (st != DPAR_OK) {
        return dpari_cluster_line(text, bytes, start, st, why);
    }
    if (items == 0) {
        return dpari_say(DPAR_E_PARSE, why,
                         "no machine: give a preset (derecho, dgx-h100 ...) or "
                         "NODESxGPUS:GPU (8x8:h100-80)");
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_cluster_read(dpar_cluster *cluster, const char *text,
                                                  size_t bytes, dpar_why *why)
{
    dpar_cluster c;
    dpar_status st;
    dpari_zero(&c, sizeof(c));
    text += dpari_text_mark(text, bytes, &bytes);
    st = dpari_cluster_read(&c, text, bytes, 0, why);
    if (st == DPAR_OK) {
        st = dpari_cluster_read(&c, text, bytes, 1, why);
    }
    if (st == DPAR_OK) {
        st = dpari_cluster_check(&c, why);
    }
    if (st == DPAR_OK) {
        *cluster = c;
    }
    return st;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Returns 1 if v is positive and at most `limit`, so that no product of such numbers overflows. */
static int dpari_positive(double v, double limit)
{
    return v > 0.0 && v <= limit;
}

/* Returns 1 if v is 0 to 1e18, otherwise 0 (also for NaN). */
static int dpari_not_negative(double v)
{
    return v >= 0.0 && v <= 1e18;
}

/* Checks the chip, the links, the NICs and the host. */
static DPARI_COLD dpar_status dpari_cluster_check_numbers(const dpar_cluster *cluster,
                                                          dpar_why *why)
{
    if (!dpari_positive(cluster->gpu.memory_bytes, 1e18) ||
        !dpari_positive(cluster->gpu.memory_Bps, 1e18) ||
        !dpari_positive(cluster->gpu.flops[DPAR_BF16], 1e21)) {
        return dpari_wrong(why,
                           "GPU '%s': memory, bandwidth and FLOP/s must be positive numbers "
                           "of at most 1e9 GB, 1e9 GB/s and 1e9 TFLOP/s",
                           cluster->gpu.name);
    }
    if ((cluster->gpus_per_node > 1 && !dpari_positive(cluster->link_Bps, 1e18)) ||
        (cluster->nodes > 1 && (cluster->nics < 1 || !dpari_positive(cluster->nic_Bps, 1e18)))) {
        return dpari_wrong(why,
                           "%d nodes of %d GPUs with %d NICs: the bandwidths nvlink=GB/s and "
                           "nic=COUNTxGB/s must be positive and at most 1e9 GB/s",
                           cluster->nodes, cluster->gpus_per_node, cluster->nics);
    }
    if (cluster->nics < 0 || !dpari_not_negative(cluster->link_Bps) ||
        !dpari_not_negative(cluster->nic_Bps) || !dpari_not_negative(cluster->gpu.pcie_Bps) ||
        !dpari_not_negative(cluster->host_bytes) || !dpari_not_negative(cluster->nvme_Bps)) {
        return dpari_wrong(
            why, "nvlink, nic, pcie, host and nvme must be numbers of 0 to 1e9 GB or GB/s");
    }
    if (!(cluster->taper > 0.0 && cluster->taper <= 1.0)) {
        char text[32];
        dpar_text t;
        dpar_text_init(&t, text, sizeof text);
        dpari_text_fixed(&t, cluster->taper, 3);
        return dpari_wrong(why, "taper=%s must be a share above 0 and at most 1", text);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_cluster_check(const dpar_cluster *cluster,
                                                          dpar_why *why)
{
    int64_t gpus = 0;
    int32_t i;
    dpar_status st;
    if (cluster->nodes < 1 || cluster->gpus_per_node < 1 ||
        !dpari_mul(cluster->nodes, cluster->gpus_per_node, &gpus) || gpus > 100000000) {
        return dpari_wrong(why, "%d nodes of %d GPUs: a machine has 1 to 100000000 GPUs",
                           cluster->nodes, cluster->gpus_per_node);
    }
    st = dpari_cluster_check_numbers(cluster, why);
    for (i = 0; st == DPAR_OK && i < DPAR_CAL_COUNT; i++) {
        const dpari_field *key = &dpari_machine_field[DPARI_KEY_CAL + i];
        double v = cluster->cal.value[i];
        int share = i != DPAR_CAL_CONTENTION && i != DPAR_CAL_SKEW && key->kind == DPARI_FIELD_REAL;
        if (!(v >= 0.0 && v <= (share ? 2.0 : 10.0)) || (share && !(v > 0.0))) {
            st = dpari_wrong(why,
                             share ? "calibration '%s' must be a share above 0 and at most 2 (a "
                                     "larger hbm is GB/s)"
                                   : "calibration '%s' must be 0 to 10 (times in seconds)",
                             key->name);
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_cluster_resize(dpar_cluster *cluster, int32_t gpus,
                                                    dpar_why *why)
{
    dpar_cluster sized = *cluster;
    dpar_status st;
    if (gpus < 1) {
        return dpari_wrong(why, "gpus=%d must be at least 1", gpus);
    }
    if (cluster->gpus_per_node < 1) {
        return dpari_cluster_check(cluster, why);
    }
    if (gpus < cluster->gpus_per_node) {
        int64_t nics = (int64_t)cluster->nics * gpus / cluster->gpus_per_node;
        sized.nodes = 1;
        sized.nics = cluster->nics > 0 ? (int32_t)dpari_most(1, nics) : 0;
        sized.gpus_per_node = gpus;
    } else if (gpus % cluster->gpus_per_node != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "gpus=%d is not a multiple of %d GPUs per node", gpus,
                         cluster->gpus_per_node);
    } else {
        sized.nodes = gpus / cluster->gpus_per_node;
    }
    st = dpari_cluster_check(&sized, why);
    if (st == DPAR_OK) {
        *cluster = sized;
    }
    return st;
}

/* ==== cost/collective.c ==== */

/* The cost model of collectives. dpar_collective_predict prices every algorithm and protocol that
 * NCCL would have on this machine and takes the fastest. If the machine has measured times, it
 * interpolates between them instead. The price of each algorithm is a latency per step, plus the
 * bytes on the slowest wire over the bandwidth that programs reach there. Each constant names its
 * source; tests/cost/collective.c compares the result with the published tables.
 *
 * The planner (price.c and step.c) calls it for each group of ranks in a plan. */

/* ---- groups on the machine ------------------------------------------------------------------- */

DPAR_API void dpar_cluster_group_init(dpar_cluster_group *group, const dpar_cluster *cluster,
                                      int32_t n, int32_t stride)
{
    int32_t node = cluster->gpus_per_node, apart = stride > 0 ? stride : 1;
    int64_t span;
    group->size = n > 0 ? n : 1;
    span = (int64_t)group->size * apart;
    group->per_node =
        apart >= node ? 1 : (int32_t)dpari_least(group->size, dpari_most(1, node / apart));
    if (dpari_cluster_gpus(cluster) <= node) {
        group->per_node = group->size; /* one node holds everything */
    } else if (group->per_node == group->size && group->size > 1 && node % span != 0) {
        /* as with groups of 4 ranks on nodes of 6 GPUs, where the second group spans two nodes */
        group->per_node = (group->size + 1) / 2;
    }
    group->nodes = (int32_t)dpari_ceil_div(group->size, group->per_node);
    group->sharing = (int32_t)dpari_most(1, node / group->per_node);
}

/* ---- the predictor --------------------------------------------------------------------------- */

/* NCCL has two protocols. The simple protocol reaches the whole bandwidth but pays 1.6 latencies
 * per step for its fences. The quick protocol pays one latency, because it sends flags with the
 * data, which cost bandwidth. Inside a node the quick protocol is LL128. It reaches 0.70 of the
 * bandwidth up to Ampere (vTrain's A100 all-reduce of 8 ranks has slopes of 93 and 134 GB/s) and
 * 0.92 on Hopper (NCCL's tuner raises the limit per channel from 20 to 36.7 GB/s there). Between
 * nodes the quick protocol of a tree is LL, which reaches a quarter of the NICs' bandwidth (in the
 * tuner 22.5 of 96 GB/s on two nodes). */
static const double dpari_simple_steps = 1.6;
static const double dpari_quick_ampere = 0.70;
static const double dpari_quick_hopper = 0.92;
static const double dpari_quick_net = 0.25;
/* A ring over nodes (SimAI's NIC table, 16 to 1024 ranks). Up to 64 KiB per rank each step takes
 * one latency. Beyond that a step takes 1.65 latencies, or 1.1 latencies and its time on the wire,
 * whichever is longer. */
static const double dpari_ring_quick_bytes = 65536.0;
static const double dpari_ring_fence = 1.65;
static const double dpari_ring_step = 1.1;
/* An all-to-all posts a send and a receive for each peer. Inside a node each peer takes about three
 * latencies of a step (in the H100-class nccl-tests rows the flat part is 76 us, against 46 us for
 * the other calls). Between nodes a peer takes much less than one latency, because many messages
 * are in flight at once (SimAI's all-to-all table, 0.52 to 0.67 at 16 MiB). The flows of an
 * all-to-all collide inside a node, so that it reaches 0.965 of a ring's bandwidth (the 8 GiB
 * row). */
static const double dpari_peer_steps = 3.3;
static const double dpari_peer_net_steps = 0.08;
static const double dpari_peer_share = 0.965;
/* In-switch reduction of p ranks sends (p+1)/p bytes through the switch instead of 2(p-1)/p. It
 * reaches 0.86 of what collectives reach on the links. Filling its pipeline takes about three base
 * latencies (H100-class nccl-tests rows: 85 us + n / 273 GB/s). */
static const double dpari_switch_base = 2.8;
static const double dpari_switch_share = 0.86;
/* NVLink 5 (B200 rows of 1, 64 and 8192 MiB). The vector is sent in pieces, and filling the
 * pipeline takes 0.4 base latencies. The quick protocol reaches a smaller share than on Hopper,
 * because its limit per channel did not rise with the bandwidth of the links. */
static const double dpari_switch5_base = 0.4;
static const double dpari_switch5_share = 0.75;
static const double dpari_quick_blackwell = 0.46;
/* All-reduce in phases, inside the nodes and between them. Between more than two nodes a tree sends
 * some bytes twice on a link, and the longer phase hides only a part of the shorter one. Between
 * two nodes it hides all of it. */
static const double dpari_phase_blend = 0.3;
static const double dpari_tree_share = 1.08;

/* Returns the bytes that a rank of n sends in a call, as a multiple of the full vector. */
static double dpari_wire(int32_t kind, double n)
{
    switch (kind) {
    case DPAR_CALL_ALL_REDUCE: return 2.0 * (n - 1.0) / n;
    case DPAR_CALL_ALL_GATHER:
    case DPAR_CALL_REDUCE_SCATTER:
    case DPAR_CALL_ALL_TO_ALL:
    case DPAR_CALL_GATHER:
    case DPAR_CALL_SCATTER: return (n - 1.0) / n;
    case DPAR_CALL_BARRIER: return 0.0;
    default: return 1.0;
    }
}

/* Returns the number of successive steps in a call of n ranks. */
static double dpari_steps(int32_t kind, double n)
{
    switch (kind) {
    case DPAR_CALL_ALL_REDUCE: return 2.0 * (n - 1.0);
    case DPAR_CALL_SEND_RECV: return 1.0;
    case DPAR_CALL_BARRIER: return dpari_ceil_log2((int64_t)n);
    default: return n - 1.0;
    }
}

/* Returns the share of a chip's links that n neighbouring chips use in a torus of `all` chips with
 * equal sides. Two chips share one link. More chips use both links of each axis that they extend
 * along. */
static DPARI_COLD double dpari_torus_share(int32_t dims, int32_t all, int32_t n)
{
    int32_t side = 1, axes = 1, reach;
    while ((dims == 3 ? side * side : side) * side < all) {
        side++;
    }
    for (reach = side; reach < n && axes < dims; reach *= side) {
        axes++;
    }
    return n == 2 ? 0.5 / dims : (double)axes / dims;
}

/* Returns the share of a chip's wired (not switched) links that n of the node's chips can use. */
static double dpari_wired_share(const dpar_cluster *cluster, int32_t n)
{
    /* shares for 2 to 7 of the eight V100 of a hybrid cube mesh: vTrain's V100 table over the
     * 134 GB/s of all eight */
    static const float cube[6] = {0.17f, 0.335f, 0.635f, 0.276f, 0.344f, 0.65f};
    int32_t all = cluster->gpus_per_node;
    if (n >= all) {
        return 1.0;
    }
    if (cluster->gpu.generation == DPAR_GEN_VOLTA && all == 8) {
        return (double)cube[n - 2];
    }
    if (cluster->gpu.generation == DPAR_GEN_TPU) {
        /* chips of two cores (v4, v5p) form a torus of 3 dims, the others of 2 */
        return dpari_torus_share(cluster->gpu.units > 1 ? 3 : 2, all, n);
    }
    if (cluster->gpu.generation == DPAR_GEN_CDNA && cluster->gpu.units <= 110 && n == 2) {
        return 1.0; /* MI250X: four links, 200 GB/s, connect the two halves of a package */
    }
    return (n - 1.0) / (all - 1.0); /* a wire to each peer */
}

/* Returns the share of switched links that n ranks reach. Few ranks reach a few per cent less
 * (vTrain's A100 table: 200, 212 and 226 GB/s for 2, 3 and 4 ranks, 234 GB/s for 8). More than 16
 * ranks are connected by the switches of a rack, and also reach less (the 72 ranks of GB200 NVL72
 * at 8 GiB). */
static double dpari_switched_share(int32_t n)
{
    if (n <= 2) {
        return 0.86;
    }
    if (n == 3) {
        return 0.91;
    }
    if (n == 4) {
        return 0.965;
    }
    return n <= 16 ? 1.0 : 0.85;
}

/* Returns the bytes/s that each rank of a group of n gets inside a node. */
static double dpari_link_of(const dpar_cluster *cluster, int32_t n)
{
    double bandwidth = cluster->link_Bps * cluster->cal.value[DPAR_CAL_LINK_SHARE];
    if (cluster->link_switched) {
        return bandwidth * dpari_switched_share(n);
    }
    return bandwidth * dpari_wired_share(cluster, n);
}

/* The predicted time of a call, and the part of it that does not shrink with the bytes. */
typedef struct dpari_timing {
    double seconds, latency;
} dpari_timing;

/* Returns the timing of the faster protocol.
 *
 * base:        seconds before the first step
 * steps:       seconds of all steps under the quick protocol
 * wire:        seconds on the wire at full bandwidth
 * quick_share: share of the bandwidth that the quick protocol reaches */
static dpari_timing dpari_protocols(double base, double steps, double wire, double quick_share)
{
    dpari_timing t, simple;
    t.latency = base + steps;
    t.seconds = dpari_mostf(t.latency, base + wire / quick_share);
    simple.latency = base + dpari_simple_steps * steps;
    simple.seconds = simple.latency + wire;
    return simple.seconds < t.seconds ? simple : t;
}

/* Returns the timing of a pipeline that takes `fill` seconds to fill and `wire` seconds to carry
 * all bytes. If the size of the pieces is chosen best, that is (sqrt(fill) + sqrt(wire))^2 seconds,
 * a textbook result on pipelined trees. */
static dpari_timing dpari_pieces(double base, double fill, double wire)
{
    dpari_timing t;
    t.latency = base + fill;
    t.seconds = t.latency + wire + 2.0 * dpari_sqrt(fill * wire);
    return t;
}

static double dpari_quick_share(const dpar_cluster *cluster)
{
    switch (cluster->gpu.generation) {
    case DPAR_GEN_BLACKWELL: return dpari_quick_blackwell;
    case DPAR_GEN_HOPPER: return dpari_quick_hopper;
    default: return dpari_quick_ampere;
    }
}

/* Returns the share of the links' rate that in-switch reduction reaches. */
static double dpari_switch_rate(const dpar_cluster *cluster)
{
    return cluster->gpu.generation == DPAR_GEN_BLACKWELL ? dpari_switch5_share : dpari_switch_share;
}

static void dpari_keep_least(dpar_collective_cost *cost, dpari_timing t, int32_t algorithm)
{
    if (cost->algorithm < 0 || t.seconds < cost->seconds) {
        cost->seconds = t.seconds;
        cost->latency_s = t.latency;
        cost->algorithm = algorithm;
    }
}

/* Prices a call inside a node: a ring or pairs under the faster protocol, or the switch. */
static void dpari_inside(const dpar_cluster *cluster, int32_t n, int32_t kind, double bytes,
                         dpar_collective_cost *cost)
{
    const double *cal = cluster->cal.value;
    double bandwidth = dpari_link_of(cluster, n), wire = dpari_wire(kind, n) * bytes,
           base = cal[DPAR_CAL_BASE_S];
    double steps = dpari_steps(kind, n) * cal[DPAR_CAL_LINK_S], p = n;
    dpari_timing t;
    cost->link_bytes = wire;
    if (kind == DPAR_CALL_SEND_RECV) {
        t.latency = 0.5 * base + steps;
        t.seconds = t.latency + wire / bandwidth;
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
        return;
    }
    if (kind == DPAR_CALL_ALL_TO_ALL) {
        t = dpari_protocols(base, steps, wire / (bandwidth * dpari_peer_share),
                            dpari_quick_share(cluster));
        t.seconds = dpari_mostf(t.seconds, base + dpari_peer_steps * steps);
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
        return;
    }
    if (kind == DPAR_CALL_ALL_REDUCE && cluster->link_reduces && n > 2) {
        double pass = bytes * (p + 1.0) / p / (bandwidth * dpari_switch_rate(cluster));
        t.latency = dpari_switch_base * base;
        t.seconds = t.latency + pass;
        if (cluster->gpu.generation == DPAR_GEN_BLACKWELL) {
            t = dpari_pieces(base, dpari_switch5_base * base, pass);
        }
        dpari_keep_least(cost, t, DPAR_ALG_IN_SWITCH);
        /* for vectors too small for this, the switch still replaces one of the two passes of the
         * ring */
        steps *= 0.5;
    }
    t = dpari_protocols(base, steps, wire / bandwidth, dpari_quick_share(cluster));
    dpari_keep_least(cost, t, DPAR_ALG_RING);
}

/* Returns the bytes/s of the NICs for one rank of a group when all groups of the node send at once.
 * A rank cannot get more than the NICs next to it carry, even if the other NICs are idle. */
static double dpari_nic_rate(const dpar_cluster *cluster, const dpar_cluster_group *group)
{
    double node =
        cluster->nics * cluster->nic_Bps * cluster->taper * cluster->cal.value[DPAR_CAL_NET_SHARE];
    double rate = node / group->sharing / group->per_node;
    double own = cluster->nic_Bps * cluster->cal.value[DPAR_CAL_NET_SHARE] *
                 dpari_mostf(1.0, (double)cluster->nics / cluster->gpus_per_node);
    return dpari_leastf(rate, own);
}

/* Returns the timing of a tree between nodes, under the quick protocol or in pieces, whichever is
 * faster. `inside` and `hops` are the seconds of the steps inside and between the nodes. */
static dpari_timing dpari_tree(double base, double inside, double hops, double wire)
{
    dpari_timing t;
    const dpari_timing whole = dpari_pieces(base, hops, wire);
    t.latency = inside + hops;
    t.seconds = t.latency + wire / dpari_quick_net;
    return whole.seconds < t.seconds ? whole : t;
}

/* Prices an all-reduce in phases: a reduce-scatter inside the nodes, a tree between them, and an
 * all-gather inside. If the network reduces, its switches are priced in place of the tree too. */
static void dpari_phases(const dpar_cluster *cluster, const dpar_cluster_group *group, double bytes,
                         double nic, double link, dpar_collective_cost *cost)
{
    const double *cal = cluster->cal.value;
    double nodes = group->nodes, per = group->per_node, base = cal[DPAR_CAL_BASE_S];
    double up = dpari_ceil_log2(group->nodes), inner = 0.0, outer, inside, shorter;
    if (per > 1.0) {
        inner = 2.0 * (per - 1.0) / per * bytes / link;
        if (cluster->link_reduces && per > 2.0) {
            inner = dpari_leastf(inner,
                                 bytes * (per + 1.0) / per / (link * dpari_switch_rate(cluster)));
        }
    }
    inside = base + 2.0 * (per - 1.0) * cal[DPAR_CAL_LINK_S];
    outer = 2.0 * (nodes - 1.0) / nodes * bytes / (per * nic);
    shorter = group->nodes > 2 ? dpari_phase_blend * dpari_leastf(inner, outer) : 0.0;
    outer = dpari_mostf(inner, outer) * (group->nodes > 2 ? dpari_tree_share : 1.0);
    dpari_keep_least(cost, dpari_tree(base, inside, cal[DPAR_CAL_HOP_S] * up, outer + shorter),
                     DPAR_ALG_HIERARCHICAL);
    if (cluster->net_reduces) {
        outer = (nodes + 1.0) / nodes * bytes / (per * nic);
        outer = dpari_mostf(inner, outer) + dpari_phase_blend * dpari_leastf(inner, outer);
        dpari_keep_least(cost, dpari_tree(base, inside, cal[DPAR_CAL_HOP_S], outer),
                         DPAR_ALG_IN_SWITCH);
    }
}

/* Returns the time of a ring over nodes with `steps` steps of `piece` bytes and `wire` seconds on
 * the wire. */
static dpari_timing dpari_ring_timing(const dpar_cluster *cluster, double steps, double piece,
                                      double wire)
{
    double base = cluster->cal.value[DPAR_CAL_BASE_S],
           pass = steps * cluster->cal.value[DPAR_CAL_NET_S];
    dpari_timing t;
    t.latency = base + dpari_ring_step * pass;
    t.seconds = dpari_mostf(base + dpari_ring_fence * pass, t.latency + wire);
    if (piece <= dpari_ring_quick_bytes) {
        double quick = dpari_mostf(base + pass, base + wire / dpari_quick_net);
        if (quick < t.seconds) {
            t.latency = base + pass;
            t.seconds = quick;
        }
    }
    return t;
}

/* Prices a call between nodes. For all-gathers and reduce-scatters NCCL has only a ring over all
 * ranks, whose many steps make them slow on many ranks. The software of Hopper and later chips has
 * PAT's parallel trees for groups of one rank per node. They take a fifth of the steps and reach
 * 0.75 of the bandwidth (NCCL's tuner: 2.8 us per rank against 14). */
static void dpari_across(const dpar_cluster *cluster, const dpar_cluster_group *group, int32_t kind,
                         double bytes, dpar_collective_cost *cost)
{
    const double *cal = cluster->cal.value;
    double nic = dpari_nic_rate(cluster, group), n = group->size, per = group->per_node,
           base = cal[DPAR_CAL_BASE_S];
    double ways = kind == DPAR_CALL_ALL_REDUCE ? 2.0 : 1.0, wire, steps;
    double link = per > 1.0 ? dpari_link_of(cluster, group->per_node) : 0.0;
    wire = dpari_wire(kind, n) * bytes / (nic * per);
    if (per > 1.0) {
        wire = dpari_mostf(wire, dpari_wire(kind, n) * bytes / link);
    }
    dpari_keep_least(cost, dpari_ring_timing(cluster, dpari_steps(kind, n), bytes / n, wire),
                     DPAR_ALG_RING);
    if (kind == DPAR_CALL_ALL_REDUCE) {
        dpari_phases(cluster, group, bytes, nic, link, cost);
    } else if (group->per_node == 1 &&
               (cluster->gpu.generation == DPAR_GEN_BLACKWELL ||
                cluster->gpu.generation == DPAR_GEN_HOPPER) &&
               (kind == DPAR_CALL_ALL_GATHER || kind == DPAR_CALL_REDUCE_SCATTER)) {
        steps = (0.3 * dpari_ceil_log2(group->nodes) + 0.2 * n) * cal[DPAR_CAL_NET_S];
        dpari_keep_least(cost, dpari_protocols(base, steps, wire / 0.75, dpari_quick_net),
                         DPAR_ALG_TREE);
    }
    cost->nic_bytes = ways * (group->nodes - 1.0) / group->nodes * bytes / per;
    cost->link_bytes = per > 1.0 ? ways * (per - 1.0) / per * bytes : 0.0;
}

/* Prices an all-to-all between nodes. The bytes for ranks on the same node are sent over its links.
 * At the same time the other (nodes-1)/nodes of all bytes are sent over the rank's share of the
 * NICs. */
static void dpari_across_all(const dpar_cluster *cluster, const dpar_cluster_group *group,
                             double bytes, dpar_collective_cost *cost)
{
    const double *cal = cluster->cal.value;
    double n = group->size, per = group->per_node, wire, posts;
    dpari_timing t;
    cost->nic_bytes = bytes * (n - per) / n;
    cost->link_bytes = bytes * (per - 1.0) / n;
    wire =
        dpari_mostf(cost->nic_bytes / dpari_nic_rate(cluster, group),
                    per > 1.0 ? cost->link_bytes / dpari_link_of(cluster, group->per_node) : 0.0);
    posts = dpari_peer_net_steps * (n - per) * cal[DPAR_CAL_NET_S];
    t.latency =
        cal[DPAR_CAL_BASE_S] + dpari_peer_steps * (per - 1.0) * cal[DPAR_CAL_LINK_S] + posts;
    t.seconds = t.latency + wire + 2.0 * dpari_sqrt(posts * wire);
    dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
}

/* ---- measured calls -------------------------------------------------------------------------- */

/* Returns the measured time at a size. It interpolates linearly between the points, extrapolates
 * beyond the last one, and returns the time of the first point for fewer bytes. */
static DPARI_COLD double dpari_curve_at(const dpar_curve *v, double bytes)
{
    int32_t i = 1;
    double slope;
    if (bytes <= v->bytes[0] || v->count < 2) {
        return v->seconds[0];
    }
    while (i + 1 < v->count && v->bytes[i] < bytes) {
        i++;
    }
    slope = (v->seconds[i] - v->seconds[i - 1]) / (v->bytes[i] - v->bytes[i - 1]);
    return v->seconds[i - 1] + (bytes - v->bytes[i - 1]) * slope;
}

/* Scales the measured all-reduce of v->ranks ranks to another call of n ranks. The time on the wire
 * scales with the bytes that a rank sends, and the latency with the number of steps. */
static DPARI_COLD double dpari_curve_call(const dpar_curve *v, int32_t kind, double n, double bytes)
{
    const double wire = dpari_wire(kind, n) / dpari_wire(DPAR_CALL_ALL_REDUCE, v->ranks);
    const double steps = dpari_steps(kind, n) / dpari_steps(DPAR_CALL_ALL_REDUCE, v->ranks);
    return dpari_curve_at(v, bytes * wire) + (steps - 1.0) * v->seconds[0];
}

/* Prices a call from measurements. Between nodes all ranks of a node take part at once, so the time
 * inside the nodes is added, if it was measured. */
static DPARI_COLD void dpari_measured_call(const dpar_cluster *cluster,
                                           const dpar_cluster_group *group, const dpar_curve *v,
                                           int32_t kind, double bytes, dpar_collective_cost *cost)
{
    const int32_t across = group->nodes > 1;
    const int32_t send = kind == DPAR_CALL_SEND_RECV;
    const dpar_curve *in = &cluster->curve[DPAR_CURVE_LINK];
    const double per = across && !send ? group->per_node : 1.0;
    const int32_t ranks = across ? group->nodes : group->size;
    const double sent = dpari_wire(kind, ranks) * bytes / per;
    cost->latency_s = v->seconds[0];
    if (send) {
        cost->algorithm = DPAR_ALG_PAIRWISE;
        cost->seconds = dpari_curve_at(v, bytes);
    } else {
        cost->algorithm = per > 1.0 ? DPAR_ALG_HIERARCHICAL : DPAR_ALG_RING;
        cost->seconds = dpari_curve_call(v, kind, ranks, bytes / per);
    }
    if (per > 1.0 && in->count > 0) {
        cost->seconds += dpari_curve_call(in, kind, per, bytes);
    }
    if (across) {
        cost->nic_bytes = sent;
    } else {
        cost->link_bytes = sent;
    }
}

DPAR_API void dpar_collective_predict(const dpar_cluster *cluster, const dpar_cluster_group *group,
                                      int32_t kind, double bytes, dpar_collective_cost *cost)
{
    const int32_t send = kind == DPAR_CALL_SEND_RECV;
    const dpar_curve *measured;
    dpari_timing t;
    dpari_zero(cost, sizeof(*cost));
    if (group->size < 2 || kind <= DPAR_CALL_NONE || kind >= DPAR_CALL_COLLECTIVE_COUNT ||
        !(bytes > 0.0 || kind == DPAR_CALL_BARRIER)) {
        return;
    }
    measured = &cluster->curve[(group->nodes > 1 ? DPAR_CURVE_NET : DPAR_CURVE_LINK) + send];
    if (measured->count > 0) {
        dpari_measured_call(cluster, group, measured, kind, bytes, cost);
        return;
    }
    cost->algorithm = -1;
    if (group->nodes < 2) {
        dpari_inside(cluster, group->size, kind, bytes, cost);
        return;
    }
    cost->nic_Bps = dpari_nic_rate(cluster, group);
    if (kind == DPAR_CALL_ALL_TO_ALL) {
        dpari_across_all(cluster, group, bytes, cost);
    } else if (send) {
        cost->nic_bytes = bytes;
        t.latency = 0.5 * cluster->cal.value[DPAR_CAL_BASE_S] +
                    dpari_simple_steps * cluster->cal.value[DPAR_CAL_NET_S];
        t.seconds = t.latency + bytes / cost->nic_Bps;
        dpari_keep_least(cost, t, DPAR_ALG_PAIRWISE);
    } else {
        dpari_across(cluster, group, kind, bytes, cost);
    }
}

/* ==== cost/workload.c ==== */

/* Builds a workload from a model. dpar_workload_init completes and checks the model, appends the
 * layer classes of its family, each with its operations, and finally sums parameters and FLOP.
 *
 * The numbers of an operation are those of the whole layer, for one token. price.c divides them by
 * the degrees of parallelism. */

/* ---- software stacks, names, sums over the list ---------------------------------------------- */

DPARI_INTERNAL const char *dpari_stack_name(int32_t stack)
{
    static const char name[DPAR_MODEL_STACK_END][14] = {
        "?",        "megatron", "core",   "torch",         "compiled",  "llm-foundry", "torchtitan",
        "nanotron", "nemo",     "deepep", "megatron@2021", "nemo@2024", "maxtext"};
    return stack > 0 && stack < DPAR_MODEL_STACK_END ? name[stack] : "?";
}

/* Returns the generation of a stack. Where the numbers come from:
 *
 * products, attention, streams, contention: fitted to marked rows of docs/records/accuracy.md,
 *     llm-foundry to those of its H100 table, torchtitan to the 70B rows in 16 bits, nemo@2024 to
 *     the shortest and the longest H100 row of nemo-long. PyTorch's attention is FlashAttention-2,
 *     that of NVIDIA's stacks is cuDNN's. nanotron, maxtext and deepep have no row to fit. nanotron
 *     has the rates of torch, and deepep is the software of DeepSeek-V3.
 * overlap: nanotron overlaps tensor parallelism, as its benchmark script sets it.
 * copies: FSDP2 writes each gathered weight to its place, twice per micro-batch, and its 32-bit
 *     gradients into one buffer: 2 (2 + 2) + 2 + 4 bytes.
 * sliced: nanotron's zero.py makes one list entry per tensor and rank, and its trainer does not
 *     request a reduce-scatter. */
static const dpari_generation *dpari_generation_at(int32_t stack)
{
    enum { DP = DPAR_OVERLAP_DP, TP = DPAR_OVERLAP_TP, PP = DPAR_OVERLAP_PP, EP = DPAR_OVERLAP_EP };
    enum { LM = DPAR_MODEL_STACK_MEGATRON, CORE, PT, PTC }; /* the basic stacks, in order */
    static const dpari_generation age[DPAR_MODEL_STACK_END] = {
        {CORE, DP | PP | TP, 0, 0, 0, 0, 1, 1, 1, 0, CORE, 2025, 2026},
        {LM, TP, 0, 0, 0, 0, 1, 1, 1, 0, LM, 2022, 2022},
        {CORE, DP | PP | TP, 0, 0, 0, 0, 1, 1, 1, 0, CORE, 2025, 2026},
        {PT, DP, 0, 14, 0, 0, 1, .7f, .8f, 0, PT, 2024, 2026},
        {PTC, DP, 0, 14, 0, 0, 1, .7f, 1, 0, PTC, 2024, 2026},
        {PT, DP, 0, 0, 0, 0, .9f, .7f, .8f, .4f, PT, 2023, 2023},
        {PTC, DP, 0, 14, 0, 0, 1, .7f, 1, 0, PTC, 2024, 2025},
        {PT, TP, 1, 14, 1, 0, 1, .7f, .8f, 0, DPAR_MODEL_STACK_NANOTRON, 2025, 2025},
        {CORE, DP | PP | TP | EP, 0, 0, 0, 0, 1, 1, 1, 0, CORE, 2025, 2026},
        {CORE, DP | PP | TP | EP, 0, 0, 0, 1, 1, 1, 1, 0, DPAR_MODEL_STACK_DEEPEP, 2024, 2025},
        {LM, 0, 0, 0, 0, 0, 1, 1, 1, 0, LM, 2021, 2021},
        {CORE, DP | PP | TP, 0, 0, 0, 0, .85f, .80f, 1, 0, CORE, 2024, 2024},
        {PTC, DP | TP, 0, 0, 0, 0, 1, 1, 1, 0, DPAR_MODEL_STACK_MAXTEXT, 2024, 2024}};
    return &age[stack];
}

DPARI_INTERNAL const dpari_generation *dpari_age(const dpar_workload *work)
{
    return dpari_generation_at(work->stack_version > 0 && work->stack_version < DPAR_MODEL_STACK_END
                                   ? work->stack_version
                                   : work->stack);
}

/* Returns the latest generation of a stack that began in or before a year, or its first generation.
 * Of those that began in the same year it prefers the stack itself. */
static DPARI_COLD int32_t dpari_stack_in(int32_t stack, int32_t year)
{
    const int32_t of = dpari_generation_at(stack)->of;
    int32_t i, best = 0, first = stack;
    for (i = 1; i < DPAR_MODEL_STACK_END; i++) {
        const dpari_generation *g = dpari_generation_at(i);
        if (g->of != of) {
            continue;
        }
        first = g->from < dpari_generation_at(first)->from ? i : first;
        if (g->from <= year && (best == 0 || g->from > dpari_generation_at(best)->from ||
                                (i == stack && g->from == dpari_generation_at(best)->from))) {
            best = i;
        }
    }
    return best > 0 ? best : first;
}

DPARI_INTERNAL DPARI_COLD int dpari_stack_read(dpar_model *model, const char *s, size_t n)
{
    const dpari_generation *g;
    dpar_text t;
    int32_t i, stack = 0, year = 0;
    size_t at = 0, k;
    while (at < n && s[at] != '@') {
        at++;
    }
    for (i = 1; i < DPAR_MODEL_STACK_END; i++) {
        if (dpari_spells(s, n, dpari_stack_name(i))) {
            model->stack = i;
            return 1;
        }
        stack = dpari_spells(s, at, dpari_stack_name(i)) ? i : stack;
    }
    for (k = at + 1; at + 5 == n && k < n && s[k] >= '0' && s[k] <= '9'; k++) {
        year = 10 * year + (s[k] - '0');
    }
    if (stack == 0 || k < at + 5) {
        return 0;
    }
    model->stack = dpari_stack_in(stack, year);
    g = dpari_generation_at(model->stack);
    if (year < g->from || year > g->to) {
        dpar_text_init(&t, model->note + dpari_length(model->note),
                       sizeof(model->note) - dpari_length(model->note));
        dpari_text_slice(&t, s, n);
        dpari_text_print(&t, ": no published run of that year is known here; priced as %s of %d\n",
                         dpari_stack_name(model->stack), g->from);
    }
    return 1;
}

DPARI_INTERNAL const char *dpari_attention_name(int32_t attention)
{
    static const char name[DPAR_MODEL_ATTENTION_END][8] = {"?", "unfused", "flash1", "flash"};
    return attention > 0 && attention < DPAR_MODEL_ATTENTION_END ? name[attention] : "?";
}

DPARI_INTERNAL const char *dpari_loss_name(int32_t loss)
{
    static const char name[DPAR_MODEL_LOSS_END][9] = {"?",       "eager",   "compiled", "fused",
                                                      "inplace", "chunked", "parallel"};
    return loss > 0 && loss < DPAR_MODEL_LOSS_END ? name[loss] : "?";
}

DPARI_INTERNAL double dpari_layer_params(const dpar_workload *work, int32_t layer)
{
    double sum = 0.0;
    int32_t i;
    if (layer < 0 || layer >= work->layers) {
        return 0.0;
    }
    for (i = 0; i < work->layer[layer].ops; i++) {
        sum += work->op[work->layer[layer].first + i].params;
    }
    return sum;
}

DPARI_INTERNAL double dpari_layer_saved(const dpar_workload *work, int32_t layer, int32_t recompute)
{
    double sum = 0.0;
    int32_t i;
    if (layer < 0 || layer >= work->layers || work->layer[layer].ops < 1) {
        return 0.0;
    }
    if (recompute == DPAR_RECOMPUTE_FULL) { /* it keeps only the input, which is as wide as the
                                               output */
        return work->layer[layer].width_bytes;
    }
    for (i = 0; i < work->layer[layer].ops; i++) {
        const dpari_layer_op *op = &work->op[work->layer[layer].first + i];
        int32_t drop = recompute == DPAR_RECOMPUTE_SELECTIVE && op->keep == DPARI_KEEP_SELECTIVE;
        sum += drop ? 0.0 : op->save;
    }
    return sum;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_workload_check(const dpar_workload *work, dpar_why *why)
{
    int32_t i;
    double params = 0.0;
    if (work->layers < 1 || work->layers > DPAR_MAX_LAYER_CLASSES || work->ops < 1 ||
        work->ops > DPAR_MAX_LAYER_OPS) {
        return dpari_wrong(why,
                           "the workload has %d layer classes with %d operations; allowed are 1 to "
                           "24 with 1 to 320",
                           work->layers, work->ops);
    }
    for (i = 0; i < work->layers; i++) {
        const dpar_workload_layer *layer = &work->layer[i];
        if (layer->count < 1 || layer->ops < 1 || layer->first < 0 ||
            layer->first + layer->ops > work->ops || !(layer->tokens > 0.0) ||
            !dpari_finite(layer->tokens)) {
            return dpari_wrong(why,
                               "layer class %d is empty: count=%d, operations=%d (of 320 in all)",
                               i, layer->count, layer->ops);
        }
        params += dpari_layer_params(work, i) * layer->count;
    }
    if (!(params >= 0.0) || params > 4e18) {
        return dpari_say(DPAR_E_RANGE, why, "the model has more than 4e18 parameters");
    }
    return DPAR_OK;
}

/* ---- building -------------------------------------------------------------------------------- */

/* Appends a class of `count` equal layers without operations. Returns NULL if count is 0 or the
 * table is full. */
static dpar_workload_layer *dpari_add_layer(dpar_workload *work, const char *name, int32_t kind,
                                            int32_t count, double tokens, double width_bytes)
{
    dpar_workload_layer *layer;
    if (work->layers >= DPAR_MAX_LAYER_CLASSES || count < 1) {
        return NULL;
    }
    layer = &work->layer[work->layers++];
    dpari_zero(layer, sizeof(*layer));
    dpari_copy_text(layer->name, sizeof(layer->name), name, sizeof(layer->name));
    layer->kind = kind;
    layer->count = count;
    layer->first = work->ops;
    layer->tokens = tokens;
    layer->width_bytes = width_bytes;
    layer->shrink = 1;
    return layer;
}

/* Returns how tensor parallelism divides the input that an operation keeps for the backward. The
 * input of a column-parallel product comes from a norm, which is divided along the sequence. The
 * input of a row-parallel product comes from a column-parallel one, which divides its output. */
static int dpari_save_cut(int cut)
{
    switch (cut) {
    case DPARI_CUT_COLUMN: return DPARI_CUT_SEQUENCE;
    case DPARI_CUT_ROW: return DPARI_CUT_TENSOR;
    case DPARI_CUT_EXPERT_COLUMN: return DPARI_CUT_EXPERT;
    case DPARI_CUT_EXPERT_ROW: return DPARI_CUT_EXPERT_TENSOR;
    default: return cut;
    }
}

/* Appends an operation to the newest layer. If the table is full, the operation replaces the last
 * one. Layers that are added later then have no operations, so that dpari_workload_check refuses
 * the workload. */
static dpari_layer_op *dpari_add_op(dpar_workload *work, int kind, int cut, int kernels)
{
    dpari_layer_op *op =
        &work->op[work->ops < DPAR_MAX_LAYER_OPS ? work->ops++ : DPAR_MAX_LAYER_OPS - 1];
    dpari_zero(op, sizeof(*op));
    op->kind = (int8_t)kind;
    op->cut = (int8_t)cut;
    op->save_cut = (int8_t)dpari_save_cut(cut);
    op->kernels = (int16_t)kernels;
    op->copies = 1.0;
    if (work->layers > 0) {
        work->layer[work->layers - 1].ops = work->ops - work->layer[work->layers - 1].first;
    }
    return op;
}

/* Appends the product [tokens, k] x [k, n]. Its input is kept for the weight gradient. */
static dpari_layer_op *dpari_add_gemm(dpar_workload *work, int cut, double n, double k, int biases)
{
    dpari_layer_op *op = dpari_add_op(work, DPARI_OP_GEMM, cut, biases ? 2 : 1);
    op->n = n;
    op->k = k;
    op->params = n * k + (biases ? n : 0.0);
    op->save = k * work->element;
    if (cut == DPARI_CUT_COLUMN && work->stack >= DPAR_MODEL_STACK_TORCH) {
        op->save_cut = DPARI_CUT_NONE; /* PyTorch's DTensor keeps the gathered input */
    }
    return op;
}

/* Appends an element-wise operation with the bytes per token that its forward and its backward move
 * and that it keeps for the backward. */
DPARI_STATIC_NOINLINE dpari_layer_op *dpari_add_stream(dpar_workload *work, int cut, int kernels,
                                                       double touch, double touch_back, double save)
{
    dpari_layer_op *op = dpari_add_op(work, DPARI_OP_STREAM, cut, kernels);
    op->touch = touch;
    op->touch_back = touch_back;
    op->save = save;
    return op;
}

/* How the model and its software do the element-wise work of a layer. All int32_t are 0 or 1. */
typedef struct dpari_style {
    double element; /* bytes of an element */
    double norm;    /* bytes per channel that a norm keeps: its input, or for an eager RMSNorm an
                     * fp32 copy of the input and the 16-bit value before the weight (6 bytes) */
    double passes;  /* element-wise traffic / that of fused kernels */
    int32_t fused;  /* the activation and its product are one kernel, rotary makes no copies */
    int32_t drop;   /* dropout after attention and after each residual branch */
    int32_t biases;
    int32_t gated; /* the MLP has a gate: three matrices */
    int32_t rotary;
    int32_t rms;    /* norms are RMSNorms */
    int32_t repeat; /* keys and values are repeated for each query head, and kept that way */
} dpari_style;

/* Returns the style of a model with the software of its workload. */
static dpari_style dpari_style_of(const dpar_workload *work, const dpar_model *model)
{
    dpari_style s;
    int eager = work->stack == DPAR_MODEL_STACK_TORCH;
    s.element = work->element;
    s.passes = eager ? 1.6 : 1.0;
    s.fused = !eager;
    s.drop = model->family == DPAR_MODEL_FAMILY_GPT && work->stack == DPAR_MODEL_STACK_MEGATRON;
    s.biases = model->biases > 0 || (model->family != DPAR_MODEL_FAMILY_LLAMA &&
                                     model->family != DPAR_MODEL_FAMILY_T5 && model->biases == 0);
    s.rotary = model->family == DPAR_MODEL_FAMILY_LLAMA;
    s.gated = model->gated > 0 || (model->gated == 0 && s.rotary);
    s.rms = model->family == DPAR_MODEL_FAMILY_LLAMA || model->family == DPAR_MODEL_FAMILY_T5;
    s.norm = eager && s.rms ? s.element + 4.0 : s.element;
    s.repeat = work->stack >= DPAR_MODEL_STACK_TORCH;
    return s;
}

/* Appends a norm over h channels: the forward reads and writes them, the backward moves three times
 * their bytes. */
static void dpari_add_norm(dpar_workload *work, const dpari_style *style, double h, int keep)
{
    dpari_layer_op *op = dpari_add_stream(
        work, DPARI_CUT_SEQUENCE, style->fused ? 1 : 4, 2.0 * style->element * h * style->passes,
        3.0 * style->element * h * style->passes, style->norm * h);
    op->params = !style->rms && style->biases ? 2.0 * h : h;
    op->keep = (int8_t)keep;
}

/* Appends a residual addition, with dropout and bias if the model has them. */
static void dpari_add_residual(dpar_workload *work, const dpari_style *style, double h)
{
    const double mask = style->drop ? 1.0 : 0.0;
    const double back = style->drop ? 2.0 : 1.0; /* elements that the backward moves */
    const int32_t kernels = style->drop && !style->fused ? 3 : 1;
    dpari_add_stream(work, DPARI_CUT_SEQUENCE, kernels, (3.0 * style->element + mask) * h,
                     (back * style->element + mask) * h, mask * h);
}

/* Appends unfused attention: two batched products, and between them the traffic of a [heads, s, s]
 * tensor. With 2-byte elements the forward moves 2 + 2 bytes per element for the softmax and 2 + 2
 * + 1 for dropout, the backward 6 and 5. The operation keeps 2 bytes (the output of the softmax),
 * and with dropout 1 (the mask) and 2 (its output) more, which is the 5 a s of Korthikanti (2022).
 * The bytes that the products read and write are part of the products' price. */
static void dpari_add_scores(dpar_workload *work, const dpari_style *style, double heads,
                             double width, double keys, double kept)
{
    double cells = heads * keys, e = style->element;
    dpari_layer_op *op = dpari_add_op(work, DPARI_OP_SCORES, DPARI_CUT_TENSOR, 6);
    op->n = heads * width;
    op->k = keys;
    op->heads = (int16_t)(heads < 30000.0 ? heads : 30000.0); /* the range of int16_t */
    op->save = kept;
    if (style->drop) {
        op = dpari_add_stream(work, DPARI_CUT_TENSOR, 2, cells * (4.0 * e + 1.0),
                              cells * (5.0 * e + 1.0), cells * (2.0 * e + 1.0));
    } else {
        op = dpari_add_stream(work, DPARI_CUT_TENSOR, 1, cells * (2.0 * e), cells * (3.0 * e),
                              cells * e);
    }
    op->keep = DPARI_KEEP_SELECTIVE;
}

/* Returns the number of keys that a token sees: half of them on average with causal attention, and
 * fewer in a window. */
static double dpari_keys_seen(double keys, int causal, double window)
{
    if (window > 0.0 && window < keys) {
        return causal ? window * (1.0 - 0.5 * window / keys) : window;
    }
    return causal ? 0.5 * keys : keys;
}

/* Appends attention without its projections. width: d_qk + d_v of a head. kept: bytes per token of
 * queries, keys and values that it keeps. */
static void dpari_add_attention(dpar_workload *work, const dpari_style *style, double heads,
                                double width, double keys, int causal, double window, double kept)
{
    dpari_layer_op *op;
    if (work->attention == DPAR_MODEL_ATTENTION_UNFUSED) {
        dpari_add_scores(work, style, heads, width, keys, kept);
        return;
    }
    op = dpari_add_op(work, DPARI_OP_ATTENTION, DPARI_CUT_TENSOR, style->fused ? 2 : 4);
    op->n = heads * width;
    op->k = dpari_keys_seen(keys, causal, window);
    op->heads = (int16_t)(heads < 30000.0 ? heads : 30000.0);
    op->save = kept + 4.0 * heads; /* the statistics of the softmax: one fp32 per head */
}

/* Appends an indexer if the model has one: a few narrow heads that score every key, so that
 * attention only sees the best keys. */
static void dpari_add_indexer(dpar_workload *work, const dpar_model *model, double keys)
{
    double width = (double)model->index_heads * model->index_width;
    dpari_layer_op *op;
    if (model->index_heads < 1) {
        return;
    }
    dpari_add_gemm(work, DPARI_CUT_NONE, width, model->q_lora > 0 ? model->q_lora : model->hidden,
                   0)
        ->save = 0.0;
    dpari_add_gemm(work, DPARI_CUT_NONE, model->index_width + model->index_heads, model->hidden, 0)
        ->save = 0.0;
    op = dpari_add_op(work, DPARI_OP_SCAN, DPARI_CUT_NONE, 3);
    op->n = width;
    op->k = 0.5 * keys;
}

/* Appends multi-head or grouped-query attention: norm, QKV, attention, projection, residual. cross
 * is 1 if its input is not the layer's; window is 0 if there is none. */
static void dpari_add_mha(dpar_workload *work, const dpar_model *model, const dpari_style *style,
                          double keys, int causal, int cross, double window)
{
    double h = model->hidden, d = model->head_width,
           v = model->v_width > 0 && model->kv_lora == 0 ? model->v_width : d;
    double q = model->heads * d, out = model->heads * v;
    double kvs =
        window > 0.0 && model->window_kv_heads > 0 ? model->window_kv_heads : model->kv_heads;
    double kv = kvs * (d + v), gate = model->q_gate ? out : 0.0;
    double rotary = 0.0;
    dpar_workload_layer *layer = &work->layer[work->layers - 1];
    if (style->rotary) {
        rotary = style->fused ? 1.0 : 2.0;
    }
    dpari_add_norm(work, style, h, cross ? DPARI_KEEP_ALWAYS : DPARI_KEEP_INPUT);
    if (model->q_lora > 0) {
        dpari_add_gemm(work, DPARI_CUT_NONE, model->q_lora, h, 0)->keep = DPARI_KEEP_NORM;
        dpari_add_gemm(work, DPARI_CUT_COLUMN, q + gate, model->q_lora, 0)->keep = DPARI_KEEP_NORM;
        dpari_add_gemm(work, DPARI_CUT_COLUMN, kv, h, style->biases)->save = 0.0;
    } else {
        dpari_add_gemm(work, DPARI_CUT_COLUMN, q + gate + kv, h, style->biases)->keep =
            DPARI_KEEP_NORM;
    }
    dpari_add_indexer(work, model, keys);
    /* bias, split into heads and transposes read and write QKV once; rotary adds half of that, in
     * eager mode all of it */
    dpari_add_stream(work, DPARI_CUT_TENSOR, style->fused ? 2 : 6,
                     2.0 * style->element * (q + kv) * (1.0 + 0.5 * rotary),
                     2.0 * style->element * (q + kv) * (1.0 + 0.5 * rotary), 0.0);
    dpari_add_attention(work, style, model->heads, d + v, keys, causal, window,
                        style->element * (gate + (style->repeat ? 3.0 * q : q + kv)));
    dpari_add_stream(work, DPARI_CUT_TENSOR, 1, 2.0 * style->element * (out + gate),
                     2.0 * style->element * (out + gate), 0.0);
    if (model->o_lora > 0) { /* block-diagonal to o_lora for each group; the next product leads back
                                to h */
        double groups = model->o_groups > 0 ? model->o_groups : 1.0;
        dpari_add_gemm(work, DPARI_CUT_COLUMN, groups * model->o_lora, out / groups, 0);
        out = groups * model->o_lora;
    }
    dpari_add_gemm(work, DPARI_CUT_ROW, h, out, style->biases);
    dpari_add_residual(work, style, h);
    layer->tp_regions++;
    layer->cp_kv_bytes += style->element * kv;
    layer->cp_qo_bytes += 2.0 * style->element * q;
    layer->alternate +=
        style->element * (2.0 * q + 0.5 * kv) + 4.0 * model->heads; /* queries, values, output */
}

/* The sizes of a recurrence. */
typedef struct dpari_scan {
    double in;    /* width of its input projection */
    double inner; /* width of its output */
    double conv;  /* channels of its short convolution; 0 if it has none */
    double side;  /* parameters outside of matrix products */
    double low;   /* inner width of its low-rank projections */
    double low_n; /* sum of their outer widths; 0 if it has none */
    double chunk; /* tokens per chunk of matrix products; 0 if it works token by token */
} dpari_scan;

/* Returns the sizes of the model's recurrence. */
static dpari_scan dpari_scan_of(const dpar_model *model)
{
    double a = model->scan_heads, di = a * model->scan_width,
           gn = (double)model->scan_groups * model->scan_state;
    double h = model->hidden;
    dpari_scan c = {0, 0, 0, 0, 0, 0, 0};
    c.in = 2.0 * di;
    c.inner = c.conv = di;
    switch (model->scan) {
    case DPAR_MODEL_SCAN_MAMBA: /* low-rank: from the channels to dt (h / 16) and back */
        c.low = (double)((model->hidden + 15) / 16);
        c.low_n = 2.0 * di;
        c.side = di * (3.0 * model->scan_state + 3.0); /* A; B and C; conv bias, dt bias, D */
        break;
    case DPAR_MODEL_SCAN_MAMBA2:
        c.in += 2.0 * gn + a;
        c.conv += 2.0 * gn;
        c.side = 3.0 * a + 2.0 * di + 2.0 * gn;
        c.chunk = 256.0;
        break;
    case DPAR_MODEL_SCAN_DELTA:
        c.in += 2.0 * gn + 2.0 * a;
        c.conv += 2.0 * gn;
        c.side = 2.0 * a;
        c.chunk = 64.0;
        break;
    case DPAR_MODEL_SCAN_KDA:
        c.in = di + 2.0 * gn + a;
        c.conv += 2.0 * gn;
        c.low = model->scan_width; /* of the decay and of the output gate */
        c.low_n = 2.0 * h + di + gn;
        c.side = a + gn;
        c.chunk = 64.0;
        break;
    case DPAR_MODEL_SCAN_LIGHTNING:
        c.in += 2.0 * di;
        c.conv = 0.0;
        c.side = di;
        c.chunk = 256.0;
        break;
    case DPAR_MODEL_SCAN_CONV: c.in += di; break;
    case DPAR_MODEL_SCAN_LRU: c.side = 2.0 * di * model->scan_width + 4.0 * di; break;
    default: /* RWKV-4: key, value, receptance; the feed-forward part has a receptance too */
        c.in += di + h;
        c.conv = 0.0;
        c.side = 7.0 * h;
        break;
    }
    return c;
}

/* Appends a recurrence: norm, projections, short convolution, scan, projection, residual. It keeps
 * what the scan reads, and per chunk one state of heads x width x state numbers in fp32. */
static void dpari_add_recurrence(dpar_workload *work, const dpar_model *model,
                                 const dpari_style *style)
{
    dpari_scan c = dpari_scan_of(model);
    double h = model->hidden, e = style->element, n = model->scan_state, state = c.inner * n;
    double taps = model->conv > 0 ? model->conv : 4.0;
    dpar_workload_layer *layer = &work->layer[work->layers - 1];
    dpari_layer_op *op;
    dpari_add_norm(work, style, h, DPARI_KEEP_INPUT);
    dpari_add_gemm(work, DPARI_CUT_COLUMN, c.in, h, 0);
    if (c.low_n > 0.0) {
        dpari_add_gemm(work, DPARI_CUT_COLUMN, c.low_n, c.low, 0)->save = 0.0;
    }
    op = dpari_add_stream(work, DPARI_CUT_TENSOR, style->fused ? 2 : 5,
                          2.0 * e * c.conv * style->passes, 4.0 * e * c.conv * style->passes,
                          e * c.conv);
    op->params = taps * c.conv + c.side;
    if (c.chunk > 0.0) { /* scores inside the chunk, and the state read and written */
        op = dpari_add_op(work, DPARI_OP_SCAN, DPARI_CUT_TENSOR, style->fused ? 4 : 8);
        op->n = c.inner + (double)model->scan_heads * n;
        op->k = 0.5 * c.chunk + 2.0 * state / op->n;
        if (model->scan == DPAR_MODEL_SCAN_DELTA || model->scan == DPAR_MODEL_SCAN_KDA) {
            op->k += c.chunk; /* the delta rule solves a triangular system in each chunk */
        }
        op->heads = (int16_t)(model->scan_heads < 30000 ? model->scan_heads : 30000);
    } else { /* token by token: 9 FLOP per state, and a state kept every 128 tokens */
        op = dpari_add_op(work, DPARI_OP_STREAM, DPARI_CUT_TENSOR, 2);
        op->n = 4.5 * c.inner;
        op->k = n > 0.0 ? n : 1.0;
        c.chunk = 128.0;
    }
    op->touch = e * (c.in + c.inner) + 8.0 * state / c.chunk;
    op->touch_back = 2.5 * op->touch;
    op->save = e * (c.in + c.inner) + 4.0 * state / c.chunk;
    dpari_add_gemm(work, DPARI_CUT_ROW, h, c.inner, 0);
    dpari_add_residual(work, style, h);
    layer->tp_regions++;
}

/* Appends multi-head latent attention (DeepSeek-V2): low-rank queries, keys and values. */
static void dpari_add_mla(dpar_workload *work, const dpar_model *model, const dpari_style *style,
                          double keys)
{
    double h = model->hidden, a = model->heads, rope = model->rope_width, e = style->element;
    double qk = model->qk_width, v = model->v_width, q = a * (qk + rope), kv = a * (qk + v);
    dpar_workload_layer *layer = &work->layer[work->layers - 1];
    dpari_layer_op *op;
    dpari_add_norm(work, style, h, DPARI_KEEP_INPUT);
    if (model->q_lora > 0) {
        dpari_add_gemm(work, DPARI_CUT_NONE, model->q_lora, h, 0);
        dpari_add_norm(work, style, model->q_lora, DPARI_KEEP_ALWAYS);
        dpari_add_gemm(work, DPARI_CUT_COLUMN, q, model->q_lora, 0)->keep = DPARI_KEEP_NORM;
    } else {
        dpari_add_gemm(work, DPARI_CUT_COLUMN, q, h, 0)->keep = DPARI_KEEP_NORM;
    }
    op = dpari_add_gemm(work, DPARI_CUT_NONE, model->kv_lora + rope, h, 0);
    op->save = 0.0; /* the same input as the query's */
    dpari_add_norm(work, style, model->kv_lora, DPARI_KEEP_ALWAYS);
    dpari_add_gemm(work, DPARI_CUT_COLUMN, kv, model->kv_lora, 0)->keep = DPARI_KEEP_NORM;
    /* keys are assembled from their latent part and one rotary part: concatenated for each head */
    dpari_add_stream(work, DPARI_CUT_TENSOR, 4, 2.0 * e * (2.0 * q + a * v),
                     2.0 * e * (2.0 * q + a * v), 0.0);
    dpari_add_indexer(work, model, keys);
    dpari_add_attention(work, style, a, qk + rope + v, keys, 1, model->index_topk,
                        e * (2.0 * q + a * v));
    dpari_add_gemm(work, DPARI_CUT_ROW, h, a * v, 0);
    dpari_add_residual(work, style, h);
    layer->tp_regions++;
    layer->cp_kv_bytes += e * (q + a * v);
    layer->cp_qo_bytes += e * (q + a * v);
    layer->alternate += e * (model->q_lora + kv + 2.0 * a * v);
}

/* Appends an MLP with f inner channels: norm, up (and gate), activation, down, residual. */
static void dpari_add_mlp(dpar_workload *work, const dpar_model *model, const dpari_style *style,
                          double f)
{
    const double h = model->hidden, e = style->element;
    const double up = style->gated ? 2.0 * f : f;
    const double kept = style->gated && !style->fused ? up + f : up;
    const int32_t kernels = style->fused ? 1 : 2;
    dpari_layer_op *op;
    dpari_add_norm(work, style, h, DPARI_KEEP_ALWAYS);
    dpari_add_gemm(work, DPARI_CUT_COLUMN, up, h, style->biases)->keep = DPARI_KEEP_NORM;
    op = dpari_add_stream(work, DPARI_CUT_TENSOR, kernels, e * (up + f) * style->passes,
                          e * (2.0 * up + f) * style->passes, e * kept);
    op->transient = e * up;
    dpari_add_gemm(work, DPARI_CUT_ROW, h, f, style->biases)->keep = DPARI_KEEP_ACTIVATION;
    dpari_add_residual(work, style, h);
    work->layer[work->layers - 1].alternate += e * (f + h);
    work->layer[work->layers - 1].tp_regions++;
}

/* Appends a mixture of experts: norm, router, permutation, grouped products over the experts of
 * each token, combination, shared experts, residual. */
static void dpari_add_moe(dpar_workload *work, const dpar_model *model, const dpari_style *style)
{
    double h = model->hidden, f = model->expert_ffn, t = model->topk, e = style->element,
           up = style->gated ? 2.0 * f : f;
    dpar_workload_layer *layer = &work->layer[work->layers - 1];
    dpari_layer_op *op;
    dpari_add_norm(work, style, h, DPARI_KEEP_ALWAYS);
    op = dpari_add_gemm(work, DPARI_CUT_SEQUENCE, model->experts, h, 0);
    op->touch = op->touch_back = 40.0 * model->experts; /* fp32 scores, softmax, top-k, masks */
    /* gathers and scatters of rows run at about half of the streaming rate (measured), so their
     * bytes count twice */
    dpari_add_stream(work, DPARI_CUT_SEQUENCE, 6, 4.0 * e * t * h, 4.0 * e * t * h, 8.0 * t);
    op = dpari_add_gemm(work, DPARI_CUT_EXPERT_COLUMN, up, h, 0);
    op->kind = DPARI_OP_EXPERTS;
    op->copies = t;
    op->params = model->experts * up * h;
    op->save = e * t * h;
    op = dpari_add_stream(work, DPARI_CUT_EXPERT_TENSOR, 2, e * t * (up + f),
                          e * t * (2.0 * up + f), e * t * up);
    op->transient = e * t * up;
    op->keep = DPARI_KEEP_EXPERTS;
    op = dpari_add_gemm(work, DPARI_CUT_EXPERT_ROW, h, f, 0);
    op->keep = DPARI_KEEP_ACTIVATION;
    op->kind = DPARI_OP_EXPERTS;
    op->copies = t;
    op->params = model->experts * f * h;
    op->save = e * t * f;
    /* PyTorch multiplies the experts' outputs by the router's weights here, and keeps them for
     * that; Megatron-Core multiplies earlier */
    dpari_add_stream(work, DPARI_CUT_SEQUENCE, 3, 4.0 * e * t * h, 4.0 * e * t * h,
                     work->stack >= DPAR_MODEL_STACK_TORCH ? e * t * h : 0.0);
    if (model->shared_ffn > 0) {
        double wide = (style->gated ? 2.0 : 1.0) * model->shared_ffn;
        op = dpari_add_gemm(work, DPARI_CUT_COLUMN, wide, h, 0);
        op->save = 0.0;
        dpari_add_stream(work, DPARI_CUT_TENSOR, 1, e * (wide + model->shared_ffn),
                         e * (2.0 * wide + model->shared_ffn), e * wide);
        dpari_add_gemm(work, DPARI_CUT_ROW, h, model->shared_ffn, 0)->keep = DPARI_KEEP_ACTIVATION;
        layer->shared = work->ops - 3;
        layer->shared_ops = 3;
    }
    dpari_add_residual(work, style, h);
    layer->tp_regions +=
        model->shared_ffn > 0; /* ep_bytes has the routed tokens, over ep and etp */
    layer->ep_bytes += e * t * h;
}

/* Appends the token embedding, and learned positions if the model has them. */
static void dpari_add_embedding(dpar_workload *work, const dpar_model *model,
                                const dpari_style *style, double tokens, double positions)
{
    double h = model->hidden;
    dpari_layer_op *op;
    dpar_workload_layer *layer =
        dpari_add_layer(work, "embed", DPAR_LAYER_EMBED, 1, tokens, style->element * h);
    if (layer == NULL) {
        return;
    }
    op = dpari_add_stream(work, DPARI_CUT_TENSOR, 3, 2.0 * style->element * h,
                          3.0 * style->element * h, 0.0);
    op->params = (double)model->vocab * (model->embed > 0 ? model->embed : h);
    if (model->embed > 0) {
        dpari_add_gemm(work, DPARI_CUT_NONE, h, model->embed, 0);
    }
    if (model->aside > 0) { /* a second embedding: looked up and projected once for all layers */
        double wide = (double)model->aside * model->layers;
        dpari_add_gemm(work, DPARI_CUT_NONE, wide, h, 0)->params +=
            wide * (model->aside_vocab > 0 ? model->aside_vocab : model->vocab);
        dpari_add_gemm(work, DPARI_CUT_NONE, 2.0 * wide, h, 0);
    }
    if (style->drop) {
        op = dpari_add_stream(work, DPARI_CUT_SEQUENCE, 2, 3.0 * style->element * h,
                              2.0 * style->element * h, h);
    } else {
        op = dpari_add_stream(work, DPARI_CUT_SEQUENCE, 1, 0.0, 0.0, 0.0);
    }
    op->params = positions * h;
    layer->tp_regions = 1;
}

/* Appends the final norm, the logits and the loss. An unfused loss moves 26 bytes per logit in the
 * forward (fp32 copy, maximum, subtraction, exponential, sum) and 14 in the backward, a fused one 6
 * and 4. */
static void dpari_add_head(dpar_workload *work, const dpar_model *model, const dpari_style *style,
                           double tokens)
{
    double h = model->hidden, v = model->vocab;
    int fused = (work->stack == DPAR_MODEL_STACK_MEGATRON_CORE ||
                 work->stack == DPAR_MODEL_STACK_TORCH_COMPILE) &&
                work->loss != DPAR_MODEL_LOSS_EAGER;
    /* bytes per logit that exist at the same time, by DPAR_MODEL_LOSS_* */
    static const float bytes[DPAR_MODEL_LOSS_END] = {0, 14, 6, 4, 2, 1.75f, 10};
    dpari_layer_op *op;
    dpar_workload_layer *layer =
        dpari_add_layer(work, "head", DPAR_LAYER_HEAD, 1, tokens, style->element * h);
    if (layer == NULL) {
        return;
    }
    dpari_add_norm(work, style, h, DPARI_KEEP_ALWAYS);
    if (model->head == DPAR_MODEL_HEAD_POOL || model->head == DPAR_MODEL_HEAD_MASKED) {
        dpari_add_gemm(work, DPARI_CUT_NONE, h, h, 1);
    }
    if (work->vocab == 0) {
        return;
    }
    if (model->embed > 0) {
        dpari_add_gemm(work, DPARI_CUT_NONE, model->embed, h, 0);
        h = model->embed;
    }
    op = dpari_add_gemm(work, DPARI_CUT_COLUMN, v, h, 0);
    op->params = model->tied ? 0.0 : v * h;
    if (fused) {
        op = dpari_add_stream(work, DPARI_CUT_TENSOR, 2, 6.0 * v, 4.0 * v, 0.0);
    } else {
        op = dpari_add_stream(work, DPARI_CUT_TENSOR, 8, 26.0 * v, 14.0 * v, 0.0);
    }
    op->transient = v * (double)bytes[work->loss];
    layer->tp_regions = 1;
}

/* Returns the name of a class of layers. */
static const char *dpari_kind_name(int32_t mix, int32_t feed)
{
    static const char name[DPAR_MODEL_MIXER_COUNT][8] = {"block", "window", "scan", "both", "feed"};
    if (feed != DPAR_MODEL_FFN_EXPERTS) {
        return name[mix];
    }
    switch (mix) {
    case DPAR_MODEL_MIXER_FULL: return "moe";
    case DPAR_MODEL_MIXER_SCAN: return "scan-moe";
    case DPAR_MODEL_MIXER_NONE: return "experts";
    default: return "window-moe";
    }
}

/* Appends one class of a decoder's layers. */
static void dpari_add_kind(dpar_workload *work, const dpar_model *model, const dpari_style *style,
                           double seq, int32_t mix, int32_t feed, int32_t count)
{
    const int causal = work->causal;
    if (dpari_add_layer(work, dpari_kind_name(mix, feed), DPAR_LAYER_BLOCK, count, seq,
                        style->element * model->hidden) == NULL) {
        return;
    }
    if (mix != DPAR_MODEL_MIXER_SCAN && mix != DPAR_MODEL_MIXER_NONE && model->heads > 0) {
        if (model->kv_lora > 0) {
            dpari_add_mla(work, model, style, seq);
        } else {
            dpari_add_mha(work, model, style, seq, causal, 0,
                          mix == DPAR_MODEL_MIXER_WINDOW ? model->window : model->index_topk);
        }
    }
    if (mix == DPAR_MODEL_MIXER_SCAN || mix == DPAR_MODEL_MIXER_BOTH) {
        dpari_add_recurrence(work, model, style);
    }
    if (feed == DPAR_MODEL_FFN_EXPERTS) {
        dpari_add_moe(work, model, style);
    } else if (feed == DPAR_MODEL_FFN_DENSE) {
        dpari_add_mlp(work, model, style, model->ffn);
    }
    if (work->ops > work->layer[work->layers - 1].first) {
        work->op[work->layer[work->layers - 1].first].keep = DPARI_KEEP_INPUT;
    }
}

/* Returns the mixer that a letter of a pattern stands for, and sets *feed if the letter implies
 * it. */
static int32_t dpari_kind_of(char letter, int32_t *feed)
{
    static const char letters[11] = "FWSBfwsbDE";
    int32_t at = 0;
    while (at < 9 && letters[at] != letter) {
        at++;
    }
    if (at >= 8) { /* D is dense; E and all other characters are experts */
        *feed = at - 8;
        return DPAR_MODEL_MIXER_NONE;
    }
    if (at >= 4) { /* lower-case letters only mix */
        *feed = DPAR_MODEL_FFN_NONE;
    }
    return at % 4;
}

DPARI_INTERNAL DPARI_COLD void dpari_model_kinds(dpar_model *model, const char *mix, int32_t mixes,
                                                 const int8_t *feeds, int32_t n)
{
    int32_t i, plain = 1;
    if (mixes < 1) {
        mix = model->pattern;
        mixes = (int32_t)dpari_length(mix);
    }
    dpari_zero(model->kinds, sizeof(model->kinds));
    for (i = 0; i < model->layers && model->layers <= 1000000; i++) {
        int32_t moe = model->experts > 0 && i >= model->dense_layers &&
                      (model->expert_step < 2 || i % model->expert_step == model->expert_offset);
        int32_t feed = i < n ? feeds[i] : moe;
        int32_t expected = model->experts > 0 && i >= model->dense_layers;
        int32_t kind = mixes > 0 ? dpari_kind_of(mix[i % mixes], &feed) : DPAR_MODEL_MIXER_FULL;
        plain = plain && kind == DPAR_MODEL_MIXER_FULL && feed == expected;
        model->kinds[kind * DPAR_MODEL_FFN_COUNT + feed]++;
    }
    if (plain) { /* dense_layers dense layers, then experts, which is what dpari_build_decoder
                  * builds without counts */
        dpari_zero(model->kinds, sizeof(model->kinds));
    }
}

/* Returns 1 if the counts of kinds add up to the layers. They do not if there are none, or if
 * `layers` changed after they were counted; the pattern then decides again. */
static int dpari_model_mixed(const dpar_model *model)
{
    int32_t i, sum = 0;
    for (i = 0; i < DPAR_MODEL_MIXER_COUNT * DPAR_MODEL_FFN_COUNT; i++) {
        if (model->kinds[i] < 0 || model->kinds[i] > model->layers - sum) {
            return 0;
        }
        sum += model->kinds[i];
    }
    return sum > 0 && sum == model->layers;
}

/* Appends a tower if the model has one: patches, blocks that attend to every token of the image,
 * and a projector. The tower is on the first stage of the language model. */
static void dpari_add_tower(dpar_workload *work, const dpar_model *model)
{
    dpar_model v;
    dpari_style s;
    double tokens = model->tower_tokens, h = model->tower_hidden;
    double merged = h * (model->tower_merge > 1 ? model->tower_merge : 1), to = model->hidden;
    int32_t at;
    dpar_workload_layer *layer;
    if (model->tower_layers < 1) {
        return;
    }
    layer = dpari_add_layer(work, "tower", DPAR_LAYER_EMBED, model->tower_layers, tokens,
                            work->element * h);
    if (layer == NULL) {
        return;
    }
    dpari_zero(&v, sizeof(v));
    v.family = DPAR_MODEL_FAMILY_VIT;
    v.gated = model->tower_gated ? 1 : -1;
    v.hidden = model->tower_hidden;
    v.heads = v.kv_heads = model->tower_heads;
    v.head_width = model->tower_hidden / model->tower_heads;
    s = dpari_style_of(work, &v);
    dpari_add_mha(work, &v, &s, tokens, 0, 0, 0.0);
    dpari_add_mlp(work, &v, &s, model->tower_ffn);
    for (at = layer->first; at < work->ops;
         at++) { /* SCAN is never halved, because attention in a tower is not causal */
        if (work->op[at].kind == DPARI_OP_ATTENTION) {
            work->op[at].kind = DPARI_OP_SCAN;
        }
    }
    layer = dpari_add_layer(work, "projector", DPAR_LAYER_EMBED, 1, tokens, work->element * to);
    if (layer == NULL) {
        return;
    }
    dpari_add_gemm(work, DPARI_CUT_NONE, h, model->tower_patch, 1)->params +=
        (double)model->tower_positions * h + 1000.0 * model->tower_params;
    for (at = 0; at < model->tower_mergers; at++) {
        double share = model->tower_merge > 1 ? model->tower_merge : 1.0,
               inner = model->tower_inner;
        dpari_layer_op *op;
        /* `share` tokens are merged into one, so each has that part of the work; the weights are
         * whole */
        op = dpari_add_gemm(work, DPARI_CUT_NONE, (inner > 0.0 ? inner : to), merged, 1);
        op->save /= share;
        op->params = op->n * op->k + op->n;
        op->k /= share;
        if (inner > 0.0) {
            op = dpari_add_gemm(work, DPARI_CUT_NONE, to, inner, 1);
            op->save /= share;
            op->params = op->n * op->k + op->n;
            op->k /= share;
        }
    }
}

/* Returns the number of rows of learned positions: that of the model, or for a GPT one per
 * token. */
static double dpari_decoder_positions(const dpar_model *model)
{
    if (model->positions != 0) {
        return dpari_mostf(model->positions, 0.0);
    }
    return model->family == DPAR_MODEL_FAMILY_GPT && !model->rotary ? (double)model->seq : 0.0;
}

static void dpari_build_decoder(dpar_workload *work, const dpar_model *model, double seq)
{
    dpar_model m = *model;
    dpari_style s = dpari_style_of(work, &m);
    int32_t dense = m.experts > 0 ? m.dense_layers : m.layers, first, mix, feed;
    dpari_add_embedding(work, &m, &s, seq, dpari_decoder_positions(&m));
    dpari_add_tower(work, &m);
    first = work->layers;
    if (dpari_model_mixed(&m)) {
        for (mix = 0; mix < DPAR_MODEL_MIXER_COUNT; mix++) {
            for (feed = 0; feed < DPAR_MODEL_FFN_COUNT; feed++) {
                dpari_add_kind(work, &m, &s, seq, mix, feed,
                               m.kinds[mix * DPAR_MODEL_FFN_COUNT + feed]);
            }
        }
        for (; first < work->layers; first++) {
            work->layer[first].span = m.layers;
        }
    } else {
        dpari_add_kind(work, &m, &s, seq, DPAR_MODEL_MIXER_FULL, DPAR_MODEL_FFN_DENSE, dense);
        dpari_add_kind(work, &m, &s, seq, DPAR_MODEL_MIXER_FULL, DPAR_MODEL_FFN_EXPERTS,
                       m.layers - dense);
    }
    if (m.mtp > 0) { /* blocks like the last one, and a projection of two vectors to one */
        dpari_add_kind(work, &m, &s, seq, DPAR_MODEL_MIXER_FULL,
                       m.experts > 0 ? DPAR_MODEL_FFN_EXPERTS : DPAR_MODEL_FFN_DENSE, m.mtp);
        dpari_add_gemm(work, DPARI_CUT_NONE, m.hidden, 2.0 * m.hidden, 0);
    }
    dpari_add_head(work, &m, &s, seq);
}

/* Builds ViT and DiT: patches, blocks that attend to every token, a small head. */
static void dpari_build_vision(dpar_workload *work, const dpar_model *model)
{
    dpari_style s = dpari_style_of(work, model);
    double h = model->hidden, tokens = work->tokens,
           patch = (double)model->patch * model->patch * model->channels;
    double out = model->out_channels != 0 ? dpari_mostf(model->out_channels, 0.0) : 1000.0;
    dpar_workload_layer *layer =
        dpari_add_layer(work, "patch", DPAR_LAYER_EMBED, 1, tokens, s.element * h);
    dpari_layer_op *op;
    dpari_add_gemm(work, DPARI_CUT_NONE, h, patch, 1)->params += (tokens + 1.0) * h;
    layer->tp_regions = 0;
    layer = dpari_add_layer(work, "block", DPAR_LAYER_BLOCK, model->layers, tokens, s.element * h);
    dpari_add_mha(work, model, &s, tokens, 0, 0, 0.0);
    dpari_add_mlp(work, model, &s, model->ffn);
    if (model->family == DPAR_MODEL_FAMILY_DIT) {
        /* shift, scale and gate of both branches from the condition: 6 h wide, once per sample */
        op = dpari_add_stream(work, DPARI_CUT_TENSOR, 8, 8.0 * s.element * h, 12.0 * s.element * h,
                              4.0 * s.element * h);
        op->params = 6.0 * h * h + 6.0 * h;
    }
    dpari_add_layer(work, "head", DPAR_LAYER_HEAD, 1,
                    model->family == DPAR_MODEL_FAMILY_DIT ? tokens : 1.0, s.element * h);
    dpari_add_norm(work, &s, h, DPARI_KEEP_ALWAYS);
    if (model->head == DPAR_MODEL_HEAD_POOL) {
        dpari_add_gemm(work, DPARI_CUT_NONE, h, h, 1);
    }
    if (out > 0.0) {
        dpari_add_gemm(work, DPARI_CUT_NONE, out, h, 1);
    }
}

/* Builds an encoder and a decoder. If the model reads sound, `channels` are those of its
 * spectrogram; two convolutions come first, the second of stride 2, and the encoder has image[0]
 * tokens. */
static void dpari_build_t5(dpar_workload *work, const dpar_model *model, double seq)
{
    dpari_style s = dpari_style_of(work, model);
    int32_t decoders = model->decoder_layers > 0 ? model->decoder_layers : model->layers;
    double heard = model->channels > 0 && model->image[0] > 0 ? (double)model->image[0] : seq,
           h = model->hidden;
    dpari_add_embedding(work, model, &s, seq, dpari_mostf(model->positions, 0.0));
    if (model->channels > 0) {
        dpari_add_layer(work, "hear", DPAR_LAYER_EMBED, 1, heard, s.element * h);
        dpari_add_gemm(work, DPARI_CUT_NONE, h, 3.0 * (h + 2.0 * model->channels), 1)->params -=
            3.0 * model->channels * h;
    }
    dpari_add_layer(work, "encoder", DPAR_LAYER_BLOCK, model->layers, heard, s.element * h);
    dpari_add_mha(work, model, &s, heard, 0, 0, 0.0);
    dpari_add_mlp(work, model, &s, model->ffn);
    dpari_add_layer(work, "decoder", DPAR_LAYER_BLOCK, decoders, seq, s.element * h);
    dpari_add_mha(work, model, &s, seq, 1, 0, 0.0);
    dpari_add_mha(work, model, &s, heard, 0, 1, 0.0);
    dpari_add_mlp(work, model, &s, model->ffn);
    dpari_add_head(work, model, &s, seq);
}

/* Appends a convolution with its norm and activation. taps: area of the kernel; grow: input pixels
 * per output pixel, 4 for stride 2; reach: depth of its halo, 0 without one. It keeps its input and
 * the norm's input; the activation is kept as the input of the next convolution. */
static void dpari_add_conv(dpar_workload *work, double out, double in, double taps, double grow,
                           int reach)
{
    double e = work->element;
    dpar_workload_layer *layer = &work->layer[work->layers - 1];
    dpari_layer_op *op = dpari_add_op(work, DPARI_OP_CONV, DPARI_CUT_COLUMN, 1);
    op->save_cut = DPARI_CUT_NONE;
    op->n = out;
    op->k = in * taps;
    op->params = out * in * taps;
    op->touch = e * in * grow;
    op->touch_back = 2.0 * e * in * grow;
    op->save = e * in * grow;
    /* an eager framework keeps the norm's output too, which is the activation's input */
    op = dpari_add_stream(work, DPARI_CUT_NONE, 2, 4.0 * e * out, 6.0 * e * out,
                          (work->stack == DPAR_MODEL_STACK_TORCH ? 2.0 : 1.0) * e * out);
    op->params = 2.0 * out;
    op->transient = e * out;
    if (reach > 0) {
        layer->reach_bytes += reach * in * e;
        layer->reach = (int32_t)dpari_most(layer->reach, reach);
        layer->exchanges++;
    }
}

/* Builds a bottleneck ResNet with the 3, 4, 6 and 3 blocks of ResNet-50; model->layers is not used.
 */
static void dpari_build_resnet(dpar_workload *work, const dpar_model *model)
{
    static const int8_t depth[4] = {3, 4, 6, 3};
    double side = (double)model->image[0] / 4.0, cells = side * ((double)model->image[1] / 4.0);
    double width = model->hidden, in = model->hidden;
    int32_t stage, part;
    dpar_workload_layer *layer =
        dpari_add_layer(work, "stem", DPAR_LAYER_BLOCK, 1, 4.0 * cells, work->element * width);
    layer->shrink = 2;
    dpari_add_conv(work, width, model->channels, 49.0, 4.0, 3);
    for (stage = 0; stage < 4; stage++) {
        for (part = 0; part < 2; part++) {
            const double out = 4.0 * width;
            const double grow = part == 0 && stage > 0 ? 4.0 : 1.0;
            const char *name = part ? "bottleneck" : "downsample";
            const int32_t count = part ? depth[stage] - 1 : 1;
            layer =
                dpari_add_layer(work, name, DPAR_LAYER_BLOCK, count, cells, work->element * out);
            layer->shrink = 4 << stage;
            dpari_add_conv(work, width, in, 1.0, grow, 0);
            dpari_add_conv(work, width, width, 9.0, 1.0, 1);
            dpari_add_conv(work, out, width, 1.0, 1.0, 0);
            if (part == 0) {
                dpari_add_conv(work, out, in, 1.0, grow, 0);
            }
            in = out;
        }
        width *= 2.0;
        cells /= 4.0;
    }
    dpari_add_layer(work, "head", DPAR_LAYER_HEAD, 1, 1.0, 1000.0 * work->element);
    dpari_add_gemm(work, DPARI_CUT_NONE, model->out_channels > 0 ? model->out_channels : 1000, in,
                   1);
}

static double dpari_level_width(const dpar_model *model, int32_t level)
{
    double c = model->hidden;
    while (level-- > 0) {
        c *= 2.0;
    }
    return c;
}

/* Appends one half of a U-Net level: pairs of convolutions. The first one changes the width. */
static void dpari_add_level(dpar_workload *work, const dpar_model *model, const char *name,
                            int32_t level, double in)
{
    double c = dpari_level_width(model, level), shrink = c / model->hidden;
    double cells = (double)model->image[0] * model->image[1] / (shrink * shrink);
    double taps = (double)model->kernel * model->kernel;
    int32_t i, blocks = model->blocks_per_level;
    dpar_workload_layer *layer =
        dpari_add_layer(work, name, DPAR_LAYER_BLOCK, 1, cells, work->element * c);
    if (layer == NULL) {
        return;
    }
    layer->shrink = (int32_t)shrink;
    for (i = 0; i < blocks; i++) {
        dpari_add_conv(work, c, i == 0 ? in : c, taps, 1.0, model->kernel / 2);
        dpari_add_conv(work, c, c, taps, 1.0, model->kernel / 2);
    }
}

static void dpari_build_unet(dpar_workload *work, const dpar_model *model)
{
    int32_t level;
    double out = model->out_channels > 0 ? model->out_channels : model->channels;
    for (level = 0; level < model->levels; level++) {
        dpari_add_level(work, model, "encode", level,
                        level == 0 ? model->channels : dpari_level_width(model, level - 1));
    }
    for (level = model->levels - 2; level >= 0; level--) {
        const double width = dpari_level_width(model, level);
        /* the skip and the upsampled coarse level are concatenated */
        dpari_add_level(work, model, "decode", level, 2.0 * width);
        /* the up-convolution from the coarse level to this one: 2 x 2, without a halo */
        dpari_add_conv(work, width, dpari_level_width(model, level + 1), 1.0, 0.25, 0);
    }
    dpari_add_layer(work, "head", DPAR_LAYER_HEAD, 1, (double)model->image[0] * model->image[1],
                    out * work->element);
    dpari_add_conv(work, out, model->hidden, 1.0, 1.0, 0);
}

/* Builds an explicit stencil code: one layer, which passes over the cells once per time step. */
static void dpari_build_grid(dpar_workload *work, const dpar_model *model)
{
    double e = work->element,
           cells = (double)model->extent[0] * (double)model->extent[1] * (double)model->extent[2];
    dpar_workload_layer *layer =
        dpari_add_layer(work, "cells", DPAR_LAYER_BLOCK, 1, cells, e * model->fields);
    dpari_layer_op *op = dpari_add_stream(work, DPARI_CUT_NONE, model->fields,
                                          model->bytes_per_cell, 0.0, 2.0 * e * model->fields);
    op->keep = DPARI_KEEP_INPUT;
    op->n = 0.5 * model->flops_per_cell;
    op->k = 1.0;
    layer->reach = model->halo;
    layer->reach_bytes = (double)model->halo * model->fields * e;
    layer->exchanges = 1;
}

/* ---- from model to workload ------------------------------------------------------------------ */

static int dpari_is_transformer(int32_t family)
{
    return family <= DPAR_MODEL_FAMILY_T5;
}

/* Checks the sizes of a transformer and completes head_width, kv_heads and ffn. */
DPARI_STATIC_NOINLINE dpar_status dpari_model_widths(dpar_model *model, dpar_why *why)
{
    if (model->scan > 0 &&
        model->heads == 0) { /* a model that has only recurrences needs no attention heads */
        model->heads = model->kv_heads = 0;
    } else if (model->layers < 1 || model->hidden < 1 || model->heads < 1) {
        return dpari_wrong(why,
                           "a transformer needs layers, hidden and heads of at least 1: layers=%d, "
                           "hidden=%d, heads=%d",
                           model->layers, model->hidden, model->heads);
    }
    if (model->head_width < 1 && model->kv_lora < 1 && model->heads > 0 &&
        model->hidden % model->heads != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "heads=%d does not divide hidden=%d (give head_width)",
                         model->heads, model->hidden);
    }
    if (model->head_width < 1) {
        model->head_width = model->heads > 0 ? model->hidden / model->heads : 0;
    }
    model->kv_heads = model->kv_heads > 0 ? model->kv_heads : model->heads;
    if (model->heads > 0 &&
        (model->kv_heads > model->heads || model->heads % model->kv_heads != 0)) {
        return dpari_say(DPAR_E_DIVIDE, why, "kv_heads=%d does not divide heads=%d",
                         model->kv_heads, model->heads);
    }
    if (model->ffn < 1) {
        if (model->hidden > INT32_MAX / 4) {
            return dpari_say(DPAR_E_RANGE, why,
                             "hidden=%d is too large for ffn = 4 hidden (give ffn)", model->hidden);
        }
        model->ffn = 4 * model->hidden;
    }
    return DPAR_OK;
}

/* Checks the image of a vision model. For other transformers sets seq, and checks it and vocab. */
static dpar_status dpari_model_tokens(dpar_model *model, int32_t seq, dpar_why *why)
{
    if (model->family == DPAR_MODEL_FAMILY_VIT || model->family == DPAR_MODEL_FAMILY_DIT) {
        if (model->patch < 1 || model->image[0] < model->patch || model->image[1] < model->patch ||
            model->channels < 1) {
            return dpari_wrong(
                why,
                "image=%dx%d: patch=%d must be at least 1 and fit into the image, channels=%d "
                "must be at least 1",
                model->image[0], model->image[1], model->patch, model->channels);
        }
        return DPAR_OK;
    }
    model->seq = seq > 0 ? seq : model->seq;
    if (model->seq < 1 || model->vocab < 1) {
        return dpari_wrong(why, "seq and vocab must be at least 1: seq=%d, vocab=%d", model->seq,
                           model->vocab);
    }
    return DPAR_OK;
}

/* Checks and completes experts, latent attention, windows, recurrences and the tower. */
DPARI_STATIC_NOINLINE dpar_status dpari_model_experts(dpar_model *model, dpar_why *why)
{
    int32_t i, sees = 0, scans = 0;
    if (model->experts < 0 ||
        (model->experts > 0 && (model->topk < 1 || model->topk > model->experts))) {
        return dpari_wrong(why, "topk=%d must be 1 to experts=%d", model->topk, model->experts);
    }
    if (model->experts > 0 && model->expert_ffn < 1) {
        model->expert_ffn = model->ffn;
    }
    if (model->dense_layers > model->layers) {
        return dpari_wrong(why, "dense_layers=%d must be at most layers=%d", model->dense_layers,
                           model->layers);
    }
    if (model->kv_lora > 0 && (model->qk_width < 1 || model->v_width < 1)) {
        return dpari_wrong(why,
                           "latent attention (kv_lora=%d) needs qk_width and v_width of at least "
                           "1, not %d and %d",
                           model->kv_lora, model->qk_width, model->v_width);
    }
    if (!dpari_model_mixed(model)) {
        dpari_model_kinds(model, NULL, 0, NULL, 0);
    }
    for (i = 0; i < DPAR_MODEL_FFN_COUNT; i++) {
        const int32_t *kinds = model->kinds;
        sees += kinds[DPAR_MODEL_MIXER_WINDOW * DPAR_MODEL_FFN_COUNT + i];
        scans += kinds[DPAR_MODEL_MIXER_SCAN * DPAR_MODEL_FFN_COUNT + i] +
                 kinds[DPAR_MODEL_MIXER_BOTH * DPAR_MODEL_FFN_COUNT + i];
    }
    if (model->scan < 0 || model->scan >= DPAR_MODEL_SCAN_END || (scans > 0 && model->scan == 0) ||
        (sees > 0 && model->window < 1)) {
        return dpari_wrong(why,
                           "%d layers with a window need window=%d of at least 1, %d with a scan "
                           "need scan=%d of 1 to 8",
                           sees, model->window, scans, model->scan);
    }
    if (model->scan > 0) {
        model->scan_heads = model->scan_heads > 0 ? model->scan_heads : 1;
        model->scan_width =
            model->scan_width > 0 ? model->scan_width : model->hidden / model->scan_heads;
        model->scan_groups = model->scan_groups > 0 ? model->scan_groups : 1;
    }
    if (model->tower_layers > 0) {
        if (model->tower_hidden < 1 || model->tower_heads < 1 ||
            model->tower_hidden % model->tower_heads != 0) {
            return dpari_wrong(why, "tower_heads=%d does not divide tower_hidden=%d",
                               model->tower_heads, model->tower_hidden);
        }
        model->tower_ffn = model->tower_ffn > 0
                               ? model->tower_ffn
                               : (int32_t)dpari_least(4 * (int64_t)model->tower_hidden, INT32_MAX);
        model->tower_tokens = model->tower_tokens > 0 ? model->tower_tokens : 256;
    }
    if (model->capacity < 0.0 || (model->capacity > 0.0 && model->capacity < 1.0) ||
        !dpari_finite(model->capacity)) {
        return dpari_wrong(why, "capacity must be 0 or a finite number of at least 1");
    }
    return DPAR_OK;
}

/* Checks a conv net and completes kernel and blocks_per_level. Each side of the image must have a
 * cell on the coarsest level. */
static dpar_status dpari_model_convs(dpar_model *model, dpar_why *why)
{
    int32_t shrink = model->family == DPAR_MODEL_FAMILY_RESNET ? 32 : 1, most;
    model->kernel = model->kernel > 0 ? model->kernel : 3;
    model->blocks_per_level = model->blocks_per_level > 0 ? model->blocks_per_level : 1;
    if (model->family == DPAR_MODEL_FAMILY_UNET) {
        if (model->levels < 1 || model->levels > 8) {
            return dpari_wrong(why, "levels=%d must be 1 to 8", model->levels);
        }
        /* four operations per block, on the way down and up; two between levels and for the head */
        most = (DPAR_MAX_LAYER_OPS - 2 * model->levels) / 4 / (2 * model->levels - 1);
        if (model->blocks_per_level > most) {
            return dpari_wrong(why, "blocks_per_level=%d with levels=%d must be at most %d",
                               model->blocks_per_level, model->levels, most);
        }
        shrink = (int32_t)1 << (model->levels - 1);
    }
    if (model->image[0] < shrink || model->image[1] < shrink || model->channels < 1 ||
        model->hidden < 1) {
        return dpari_wrong(
            why,
            "hidden=%d and channels=%d must be at least 1, the sides of image=%dx%d at least %d",
            model->hidden, model->channels, model->image[0], model->image[1], shrink);
    }
    return DPAR_OK;
}

/* Checks a grid solver and completes its fields. */
static dpar_status dpari_model_grid(dpar_model *model, dpar_why *why)
{
    int64_t cells = 1;
    int32_t i, narrow = 0;
    if (model->dims < 1 || model->dims > 3) {
        return dpari_wrong(why, "a grid has 1 to 3 axes, not %d", model->dims);
    }
    for (i = 0; i < 3; i++) {
        model->extent[i] = i < model->dims ? model->extent[i] : 1;
        if (model->extent[i] < 1 || !dpari_mul(cells, model->extent[i], &cells)) {
            return dpari_wrong(why,
                               "grid axis %d has %ld cells; the grid needs 1 to 2^63 - 1 in all", i,
                               model->extent[i]);
        }
    }
    model->fields = model->fields > 0 ? model->fields : 1;
    model->halo = model->halo > 0 ? model->halo : 1;
    model->element = model->element > 0 ? model->element : 4;
    for (i = 0; i < model->dims; i++) {
        narrow += model->halo > model->extent[i];
    }
    if (narrow == model->dims) {
        return dpari_wrong(why, "halo=%d is wider than the grid: %ld x %ld x %ld cells",
                           model->halo, model->extent[0], model->extent[1], model->extent[2]);
    }
    if (!(model->flops_per_cell >= 0.0 && model->bytes_per_cell >= 0.0) ||
        !dpari_finite(model->flops_per_cell) || !dpari_finite(model->bytes_per_cell)) {
        return dpari_wrong(
            why, "flops_per_cell and bytes_per_cell must be finite numbers of at least 0");
    }
    if (model->bytes_per_cell <= 0.0) { /* assumes that every field is read once and written once */
        model->bytes_per_cell = 2.0 * model->fields * model->element;
    }
    if (model->flops_per_cell <= 0.0) { /* assumes a product and a sum for each neighbour and
                                           field */
        model->flops_per_cell = 2.0 * (2.0 * model->dims * model->halo + 1.0) * model->fields;
    }
    return DPAR_OK;
}

#define DPARI_AT(name) (int16_t)(offsetof(dpar_model, name) / sizeof(int32_t))

/* Returns an integer of the model that is below -1, or 0 if there is none. */
static int32_t dpari_model_negative(const dpar_model *model)
{
    /* the fields of type int32_t are in three runs, which fields of other types separate */
    static const int16_t run[][2] = {{DPARI_AT(family), DPARI_AT(capacity)},
                                     {DPARI_AT(q_lora), DPARI_AT(extent)},
                                     {DPARI_AT(attention), DPARI_AT(pattern)}};
    int32_t k, i;
    for (k = 0; k < 3; k++) {
        for (i = run[k][0]; i < run[k][1]; i++) {
            const int32_t value = ((const int32_t *)(const void *)model)[i];
            if (value < -1) {
                return value;
            }
        }
    }
    return 0;
}
#undef DPARI_AT

/* Fills in the fields that follow from the given ones, and refuses numbers that are not allowed. */
static dpar_status dpari_model_complete(dpar_model *model, int32_t seq, dpar_why *why)
{
    dpar_status st;
    if (model->family == 0) {
        return dpari_wrong(why,
                           "the model has no family: set family, such as DPAR_MODEL_FAMILY_GPT");
    }
    if (model->family < 0 || model->family >= DPAR_MODEL_FAMILY_END) {
        return dpari_wrong(why, "family=%d is not one of DPAR_MODEL_FAMILY_*", model->family);
    }
    if (dpari_model_negative(model) < 0) {
        return dpari_wrong(why, "a field of the model is %d; none may be below -1",
                           dpari_model_negative(model));
    }
    if (model->element != 0 && model->element != 2 && model->element != 4 && model->element != 8) {
        return dpari_wrong(why, "element=%d must be 2, 4 or 8 bytes", model->element);
    }
    if (model->attention >= DPAR_MODEL_ATTENTION_END || model->stack >= DPAR_MODEL_STACK_END ||
        model->loss >= DPAR_MODEL_LOSS_END) {
        return dpari_wrong(why, "attention=%d, stack=%d or loss=%d is not one of DPAR_MODEL_*",
                           model->attention, model->stack, model->loss);
    }
    if (model->layers > 1000000 || model->decoder_layers > 1000000 || model->mtp > 1000000 ||
        model->tower_layers > 1000000) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "layers=%d, decoder_layers=%d, mtp=%d, tower_layers=%d: each at most 1000000",
            model->layers, model->decoder_layers, model->mtp, model->tower_layers);
    }
    if (model->family == DPAR_MODEL_FAMILY_GRID) {
        return dpari_model_grid(model, why);
    }
    model->element = model->element > 0 ? model->element : 2;
    if (!dpari_is_transformer(model->family)) {
        return dpari_model_convs(model, why);
    }
    st = dpari_model_widths(model, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_model_tokens(model, seq, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_model_experts(model, why);
}

/* Returns the tokens, pixels or cells of a sample. A sample of a ResNet counts as one. */
static double dpari_model_samples_tokens(const dpar_model *model)
{
    if (model->family == DPAR_MODEL_FAMILY_VIT || model->family == DPAR_MODEL_FAMILY_DIT) {
        return (double)(model->image[0] / model->patch) * (model->image[1] / model->patch) +
               (model->family == DPAR_MODEL_FAMILY_VIT ? 1.0 : 0.0);
    }
    if (model->family == DPAR_MODEL_FAMILY_GRID) {
        return (double)model->extent[0] * (double)model->extent[1] * (double)model->extent[2];
    }
    if (model->family == DPAR_MODEL_FAMILY_RESNET) {
        return 1.0;
    }
    return model->family == DPAR_MODEL_FAMILY_UNET ? (double)model->image[0] * model->image[1]
                                                   : (double)model->seq;
}

/* Returns the loss that a stack has if the model names none. The library that has the first fused
 * attention also has a fused loss, so a model that uses its attention is assumed to use its
 * loss. */
static int32_t dpari_loss_of(const dpar_workload *work)
{
    switch (work->stack) {
    case DPAR_MODEL_STACK_MEGATRON_CORE: return DPAR_MODEL_LOSS_INPLACE;
    case DPAR_MODEL_STACK_MEGATRON: return DPAR_MODEL_LOSS_PARALLEL;
    case DPAR_MODEL_STACK_TORCH_COMPILE: return DPAR_MODEL_LOSS_COMPILED;
    default: break;
    }
    return work->attention == DPAR_MODEL_ATTENTION_FLASH1 ? DPAR_MODEL_LOSS_FUSED
                                                          : DPAR_MODEL_LOSS_EAGER;
}

/* Fills in all fields of a workload except its layers and the sums over them. */
DPARI_STATIC_NOINLINE void dpari_workload_head(dpar_workload *work, const dpar_model *model)
{
    int gpt = model->family == DPAR_MODEL_FAMILY_GPT;
    int transformer = dpari_is_transformer(model->family);
    dpari_copy_text(work->name, sizeof(work->name), model->name, sizeof(model->name));
    work->element = model->element;
    work->stack_version = model->stack;
    if (model->stack <= 0) {
        work->stack_version = gpt ? DPAR_MODEL_STACK_MEGATRON : DPAR_MODEL_STACK_MEGATRON_CORE;
    }
    work->stack = dpari_age(work)->stack;
    work->attention = model->attention;
    if (model->attention <= 0) {
        work->attention = gpt && work->stack == DPAR_MODEL_STACK_MEGATRON
                              ? DPAR_MODEL_ATTENTION_UNFUSED
                              : DPAR_MODEL_ATTENTION_FLASH;
    }
    work->loss = model->loss > 0 ? model->loss : dpari_loss_of(work);
    work->causal =
        model->causal > 0 || (model->causal == 0 && (model->family == DPAR_MODEL_FAMILY_GPT ||
                                                     model->family == DPAR_MODEL_FAMILY_LLAMA));
    work->tokens = dpari_model_samples_tokens(model);
    work->hidden = model->hidden;
    if (transformer) { /* in other families these fields stay 0 */
        work->heads = model->heads;
        work->kv_heads = model->kv_lora > 0 ? model->heads : model->kv_heads;
    }
    if (transformer &&
        (model->head == DPAR_MODEL_HEAD_VOCAB || model->head == DPAR_MODEL_HEAD_MASKED)) {
        work->vocab = model->vocab;
    }
    dpari_copy_text(work->note, sizeof(work->note), model->note, sizeof(model->note));
    work->experts = model->experts;
    work->topk = model->topk;
    work->expert_groups = model->expert_groups;
    work->topk_groups = model->topk_groups;
    work->capacity = model->capacity >= 1.0 ? model->capacity : 1.0;
    work->trains = model->family != DPAR_MODEL_FAMILY_GRID && !model->inference;
    work->time_steps = model->family == DPAR_MODEL_FAMILY_GRID ? 1 : 0;
    if (model->family == DPAR_MODEL_FAMILY_GRID) {
        work->dims = model->dims;
        work->extent[0] = model->extent[0];
        work->extent[1] = model->extent[1];
        work->extent[2] = model->extent[2];
    } else if (!transformer) {
        work->dims = 2;
        work->extent[0] = model->image[0];
        work->extent[1] = model->image[1];
        work->extent[2] = 1;
    }
}

/* Returns the number of blocks whose matrix products are as much work as those of the head. */
static DPARI_COLD int32_t dpari_head_blocks(const dpar_workload *work)
{
    double head = 0.0, block = 0.0;
    int32_t i, k;
    for (i = 0; i < work->layers; i++) {
        double *to = work->layer[i].kind == DPAR_LAYER_HEAD ? &head : &block;
        for (k = 0; k < work->layer[i].ops; k++) {
            const dpari_layer_op *op = &work->op[work->layer[i].first + k];
            if (op->kind == DPARI_OP_GEMM && work->layer[i].kind != DPAR_LAYER_EMBED) {
                *to += op->n * op->k * op->copies * work->layer[i].count;
            }
        }
    }
    return block > 0.0 ? (int32_t)(head * work->blocks / block + 0.5) : 0;
}

/* Numbers the blocks and sums blocks, parameters and FLOP over the layers. */
static void dpari_workload_totals(dpar_workload *work)
{
    int32_t i, k;
    work->blocks = work->shard_units = 0;
    work->params = work->model_flops_full = work->model_flops_causal = 0.0;
    for (i = 0; i < work->layers; i++) {
        dpar_workload_layer *layer = &work->layer[i];
        double plain = 0.0, attention = 0.0;
        if (layer->span == 0 && layer->kind == DPAR_LAYER_BLOCK) {
            layer->from = work->blocks;
            layer->span = layer->count;
        }
        for (k = 0; k < layer->ops; k++) {
            const dpari_layer_op *op = &work->op[layer->first + k];
            double flop = 2.0 * op->n * op->k * op->copies * layer->tokens * layer->count;
            if (op->kind == DPARI_OP_ATTENTION) { /* k of causal attention is half of the keys */
                attention += work->causal ? 2.0 * flop : flop;
            } else if (op->kind == DPARI_OP_SCORES) {
                attention += flop;
            } else {
                plain += flop;
            }
        }
        work->params += dpari_layer_params(work, i) * layer->count;
        work->model_flops_full += plain + attention;
        work->model_flops_causal += plain + (work->causal ? 0.5 : 1.0) * attention;
        work->blocks += layer->kind == DPAR_LAYER_BLOCK ? layer->count : 0;
        work->shard_units += layer->count;
    }
    if (dpari_age(work)->by_work) {
        work->head_blocks = dpari_head_blocks(work);
    }
    if (work->trains) { /* the backward has twice the FLOP of the forward */
        work->model_flops_full *= 3.0;
        work->model_flops_causal *= 3.0;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_workload_init(dpar_workload *work, const dpar_model *model,
                                                   int32_t seq, dpar_why *why)
{
    dpar_model m = *model;
    dpar_status st = dpari_model_complete(&m, seq, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(work, sizeof(*work));
    dpari_workload_head(work, &m);
    switch (m.family) {
    case DPAR_MODEL_FAMILY_GPT:
    case DPAR_MODEL_FAMILY_LLAMA: dpari_build_decoder(work, &m, m.seq); break;
    case DPAR_MODEL_FAMILY_VIT:
    case DPAR_MODEL_FAMILY_DIT: dpari_build_vision(work, &m); break;
    case DPAR_MODEL_FAMILY_T5: dpari_build_t5(work, &m, m.seq); break;
    case DPAR_MODEL_FAMILY_RESNET: dpari_build_resnet(work, &m); break;
    case DPAR_MODEL_FAMILY_UNET: dpari_build_unet(work, &m); break;
    default: dpari_build_grid(work, &m); break;
    }
    dpari_workload_totals(work);
    return dpari_workload_check(work, why);
}

/* ==== cost/model_fields.c ==== */

/* Reads the fields of a model from text. Programs reach it by dpar_model_read; the tables of
 * presets and of the types of config.json have the same form. */

/* What fields of a model take in addition to DPARI_FIELD_*. */
enum {
    DPARI_MODEL_SEQ = DPARI_FIELD_OWN,
    DPARI_MODEL_CAPACITY,
    DPARI_MODEL_IMAGE,
    DPARI_MODEL_ATTENTION,
    DPARI_MODEL_STACK,
    DPARI_MODEL_PATTERN,
    DPARI_MODEL_LOSS
};

/* All fields: the integers in the order of DPARI_M_*, then the others. */
#define DPARI_MODEL_ROW(key, field, kind)                                                          \
    {                                                                                              \
#field, DPARI_FIELD_##kind, DPARI_PLACE(dpar_model, field)                                 \
    }
static const dpari_field dpari_model_list[] = {
    DPARI_MODEL_INTEGERS(DPARI_MODEL_ROW),
    {"flops_per_cell", DPARI_FIELD_REAL, DPARI_PLACE(dpar_model, flops_per_cell)},
    {"bytes_per_cell", DPARI_FIELD_REAL, DPARI_PLACE(dpar_model, bytes_per_cell)},
    {"capacity", DPARI_MODEL_CAPACITY, 0},
    {"image", DPARI_MODEL_IMAGE, 0},
    {"attention", DPARI_MODEL_ATTENTION, 0},
    {"stack", DPARI_MODEL_STACK, 0},
    {"pattern", DPARI_MODEL_PATTERN, 0},
    {"loss", DPARI_MODEL_LOSS, 0}};

DPARI_INTERNAL int32_t *dpari_model_field(dpar_model *model, int32_t key)
{
    return (int32_t *)(void *)((char *)model + dpari_model_list[key].place);
}

static const char *dpari_family_name(int32_t family)
{
    static const char name[DPAR_MODEL_FAMILY_END][8] = {"?",  "gpt",    "llama", "vit", "dit",
                                                        "t5", "resnet", "unet",  "grid"};
    return name[family];
}

DPARI_INTERNAL int dpari_spells_one(char letter, const char *letters)
{
    while (*letters != 0 && *letters != letter) {
        letters++;
    }
    return *letters != 0;
}

/* Reads the tokens of a sample: 32k is 32768. */
static dpar_status dpari_model_seq(dpar_model *model, const dpari_setting *setting, dpar_why *why)
{
    const size_t n = setting->value_length;
    const int kilo = n > 1 && setting->value[n - 1] == 'k';
    int64_t v = 0;
    if (!dpari_whole(setting->value, n - (size_t)kilo, 1, INT32_MAX >> 10 * kilo, &v)) {
        return dpari_setting_bad(setting, why, "a whole number of 1 to 2147483647");
    }
    model->seq = (int32_t)(v << 10 * kilo);
    return DPAR_OK;
}

/* Reads the load of the fullest expert, in mean loads. */
static dpar_status dpari_model_capacity(dpar_model *model, const dpari_setting *setting,
                                        dpar_why *why)
{
    double v = 0.0;
    if (!dpari_reals(setting->value, setting->value_length, &v, 1) || v < 1.0) {
        return dpari_setting_bad(setting, why,
                                 "a number of at least 1, because the fullest expert has at least "
                                 "the mean load,");
    }
    model->capacity = v;
    return DPAR_OK;
}

/* Reads "224" or "720x1440". */
static dpar_status dpari_model_image(dpar_model *model, const dpari_setting *setting, dpar_why *why)
{
    int64_t side[2];
    int32_t sides = dpari_extents(setting->value, setting->value_length, side, 2);
    if (sides == 0) {
        return dpari_setting_bad(setting, why, "a side or HEIGHTxWIDTH, such as 224 or 720x1440,");
    }
    model->image[0] = (int32_t)side[0];
    model->image[1] = (int32_t)side[sides - 1];
    return DPAR_OK;
}

/* Reads letters as in dpar_model.pattern. */
static dpar_status dpari_model_pattern(dpar_model *model, const dpari_setting *setting,
                                       dpar_why *why)
{
    const size_t n = setting->value_length;
    size_t i;
    for (i = 0; i < n && dpari_spells_one(setting->value[i], "FWSBfwsbDE"); i++) {
    }
    if (i < n || n == 0 || n >= sizeof(model->pattern)) {
        return dpari_setting_bad(setting, why, "1 to 15 letters of F W S B f w s b D E");
    }
    dpari_copy_text(model->pattern, sizeof(model->pattern), setting->value, n);
    return DPAR_OK;
}

/* Reads the short form of the tables, such as "32/4096/32/8/14336/128256/8192": layers, hidden,
 * heads, kv_heads, ffn, vocab and seq. A 0 leaves the field as it is. */
static dpar_status dpari_model_row(dpar_model *model, const dpari_setting *setting, dpar_why *why)
{
    static const uint8_t key[7] = {DPARI_M_LAYERS, DPARI_M_HIDDEN, DPARI_M_HEADS, DPARI_M_KV_HEADS,
                                   DPARI_M_FFN,    DPARI_M_VOCAB,  DPARI_M_SEQ};
    const char *s = setting->text;
    const size_t n = setting->length;
    size_t at = 0;
    int32_t i;
    for (i = 0; i < 7 && at < n; i++) {
        const size_t length = dpari_until(s + at, n - at, '/');
        int64_t v = 0;
        if (!dpari_whole(s + at, length, 0, INT32_MAX, &v)) {
            break;
        }
        if (v > 0) {
            *dpari_model_field(model, key[i]) = (int32_t)v;
        }
        at += length + 1;
    }
    if (at < n) {
        return dpari_setting_bad(setting, why,
                                 "key=value, or the numbers layers/hidden/heads/kv_heads/ffn/vocab/"
                                 "seq,");
    }
    return DPAR_OK;
}

/* Reads a setting that is not a plain number. */
static DPARI_COLD dpar_status dpari_model_own(void *object, const dpari_setting *setting,
                                              dpar_why *why)
{
    dpar_model *model = (dpar_model *)object;
    if (setting->field < 0) {
        return dpari_model_row(model, setting, why);
    }
    switch (dpari_model_list[setting->field].kind) {
    case DPARI_MODEL_SEQ: return dpari_model_seq(model, setting, why);
    case DPARI_MODEL_CAPACITY: return dpari_model_capacity(model, setting, why);
    case DPARI_MODEL_IMAGE: return dpari_model_image(model, setting, why);
    case DPARI_MODEL_ATTENTION:
        return dpari_setting_choice(setting, dpari_attention_name, 1, DPAR_MODEL_ATTENTION_END,
                                    &model->attention, why);
    case DPARI_MODEL_PATTERN: return dpari_model_pattern(model, setting, why);
    case DPARI_MODEL_LOSS:
        return dpari_setting_choice(setting, dpari_loss_name, 1, DPAR_MODEL_LOSS_END, &model->loss,
                                    why);
    default:
        return dpari_stack_read(model, setting->value, setting->value_length)
                   ? DPAR_OK
                   : dpari_one_of(setting->text, setting->length, dpari_stack_name, 1,
                                  DPAR_MODEL_STACK_END, why);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_model_settings(dpar_model *model, const char *s,
                                                           size_t n, dpar_why *why)
{
    dpari_fields fields;
    uint64_t seen[2];
    fields.list = dpari_model_list;
    fields.count = (int32_t)(sizeof(dpari_model_list) / sizeof(dpari_model_list[0]));
    fields.of = "a model";
    fields.more = "";
    fields.own = dpari_model_own;
    return dpari_settings_read(&fields, s, n, model, seen, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_model_family(dpar_model *model, const char *s,
                                                         size_t colon, size_t n, dpar_why *why)
{
    size_t at = colon + 1, length;
    for (model->family = 1; model->family < DPAR_MODEL_FAMILY_END; model->family++) {
        if (dpari_spells_any_case(s, colon, dpari_family_name(model->family))) {
            break;
        }
    }
    if (model->family == DPAR_MODEL_FAMILY_END) {
        return dpari_one_of(s, colon, dpari_family_name, 1, DPAR_MODEL_FAMILY_END, why);
    }
    if (model->family == DPAR_MODEL_FAMILY_GRID) {
        length = dpari_until(s + at, n - at, ',');
        model->extent[0] = model->extent[1] = model->extent[2] = 1;
        model->dims = dpari_extents(s + at, length, model->extent, 3);
        if (model->dims == 0) {
            return dpari_text_bad(
                s + at, length, why,
                "a grid of 1 to 3 extents of 1 to 2147483647, such as 1440x720x100,");
        }
        at += length + 1;
    }
    return at < n ? dpari_model_settings(model, s + at, n - at, why) : DPAR_OK;
}

/* ==== cost/config_types.c ==== */

/* The tables of what a model_type of a config.json implies. config_json starts from these values.
 */

/* What a model_type implies if the file does not say it. Each row has the names of types, separated
 * by blanks, and a text in the form that users write: the family that has the shapes of these
 * types, and settings. They come from transformers' configuration classes or, for types that
 * transformers does not have, from the code that came with the weights. Two values have a special
 * meaning: shared_ffn=1 is one shared expert as wide as a routed one, and v_width=1 says that the
 * value is the key. */
static const char dpari_types[] =
    "qwen2 qwen2_moe qwen2_5_vl_text qwen2_vl_text qwen3 qwen3_moe qwen3_vl_text "
    "qwen3_vl_moe_text qwen3_omni_moe_text deepseek deepseek_v2 deepseek_v3 deepseek_v32 "
    "kimi_k2 glm_moe_dsa glm glm4 glm4_moe glm4_moe_lite glm4v_text glm4v_moe_text "
    "internlm internlm2 internlm3 baichuan xverse exaone exaone4 exaone_moe olmo olmo2 "
    "olmoe flex_olmo stablelm stablelm_epoch yi aquila orion phimoe mllama_text_model "
    "granite granitemoe granitemoeshared seed_oss hunyuan hunyuan_v1_dense hunyuan_v1_moe "
    "helium dbrx minimax_m2 minimax_m3 mistral3 mistral4 dots1 bailing_moe bailing_moe_v2 "
    "skywork_moe telechat openelm solar diffllama nemotron-nas csm ministral ministral3 "
    "lfm nanochat mimo step3_text\0llama:\0"
    "llama codellama llava_llama vicuna\0llama:32/4096/32/0/11008/32000\0"
    "mistral\0llama:32/4096/32/8/14336/32000,window=4096,pattern=W\0"
    "mixtral\0llama:32/4096/32/8/14336/32000,experts=8,topk=2\0"
    "phi3 phi3_v phi4mm\0llama:32/3072/32/0/8192/32064,pattern=W\0"
    "minicpm minicpm3 smollm3 ernie4_5 ernie4_5_moe ernie4_5_moe_vl ernie4_5_vl_moe_text "
    "grok-1 grok1 youtu\0llama:tied=1\0"
    "gemma\0llama:28/3072/16/16/24576/256000,head_width=256,tied=1\0"
    "gemma2 vaultgemma\0llama:26/2304/8/4/9216/256000,head_width=256,tied=1,window=4096,"
    "pattern=WF\0"
    "gemma3_text gemma3\0llama:26/2304/8/4/9216/262208,head_width=256,tied=1,window=4096,"
    "pattern=WWWWWF\0"
    "gemma3n_text\0llama:35/2048/8/2/16384/262400,head_width=256,tied=1,window=512,"
    "pattern=WWWWF\0"
    "gemma4_text\0llama:tied=1,pattern=WWWWWF\0"
    "cohere\0llama:tied=1\0"
    "cohere2\0llama:tied=1,window=4096,pattern=WWWF\0"
    "olmo3\0llama:window=4096,pattern=WWWF\0"
    "gpt_oss\0llama:window=128,pattern=WF\0"
    "step3p7 step3p5 mimo_v2_flash\0llama:pattern=W\0"
    "afmoe\0llama:pattern=W,q_gate=1\0"
    "llama4_text llama4\0llama:48/5120/40/8/16384/202048,head_width=128,expert_ffn=8192,"
    "window=8192,pattern=WWWF,shared_ffn=1\0"
    "deepseek_v4\0llama:0/0/0/1,v_width=1\0"
    "qwen\0llama:\0"
    "chatglm\0llama:\0"
    "qwen3_next qwen3_5_text qwen3_5_moe_text qwen3_5 qwen3_5_moe\0llama:pattern=SSSF,"
    "scan=3,q_gate=1\0"
    "kimi_linear\0llama:pattern=SSSF,scan=4\0"
    "minimax minimax_text_01 minimax_m1\0llama:pattern=SSSSSSSF,scan=5\0"
    "lfm2 lfm2_moe\0llama:tied=1,scan=6,conv=3\0"
    "recurrent_gemma\0llama:tied=1,pattern=SSW,window=2048,scan=7\0"
    "mamba falcon_mamba\0llama:pattern=s,scan=1,scan_state=16,tied=1\0"
    "mamba2\0llama:pattern=s,scan=2,scan_width=64,scan_groups=8,scan_state=128\0"
    "jamba\0llama:pattern=SS,scan=1,scan_state=16,expert_step=2,expert_offset=1\0"
    "bamba\0llama:pattern=SS,scan=2,scan_width=64,scan_state=256,scan_heads=128\0"
    "granitemoehybrid\0llama:pattern=F,scan=2\0"
    "falcon_h1\0llama:pattern=B,scan=2\0"
    "nemotron_h\0llama:gated=-1,pattern=s,scan=2\0"
    "rwkv\0llama:gated=-1,pattern=S,scan=8,positions=-1\0"
    "arcee apertus apertus1p5_text jais2\0llama:gated=-1\0"
    "bitnet\0llama:gated=1\0"
    "modernbert\0llama:causal=-1,tied=1,pattern=FWW,window=128,head=1\0"
    "modernbert-decoder\0llama:tied=1,pattern=FWW,window=128,head=1\0"
    "nomic_bert gte new\0llama:causal=-1,tied=1,head=1\0"
    "eurobert\0llama:causal=-1\0";
static const char dpari_types_more[] =
    "chatglm-6b\0gpt:rotary=1,tied=1\0"
    "persimmon\0gpt:rotary=1\0"
    "gpt2 openai-gpt gpt-sw3 imagegpt\0gpt:12/768/12/0/0/50257/1024,tied=1\0"
    "gpt_neo opt xglm biogpt\0gpt:tied=1\0"
    "gpt_bigcode\0gpt:0/0/0/1,tied=1\0"
    "bloom mpt starcoder2\0gpt:tied=1,rotary=1\0"
    "falcon\0gpt:0/0/0/1,tied=1,rotary=1,biases=-1\0"
    "gpt_neox gptj codegen phi gpt_neox_japanese\0gpt:rotary=1\0"
    "nemotron\0gpt:rotary=1,biases=-1\0"
    "bert roberta xlm-roberta camembert mpnet ernie electra data2vec-text distilbert "
    "megatron-bert big_bird roberta-prelayernorm bert-generation ibert mra nystromformer yoso "
    "xlm-roberta-xl\0gpt:12/768/12/0/3072,causal=-1,tied=1,head=2\0"
    "roformer\0gpt:12/768/12/0/3072,causal=-1,tied=1,head=2,positions=128\0"
    "deberta deberta-v2\0gpt:causal=-1,tied=1,head=1\0"
    "clip_text_model siglip_text_model\0gpt:12/512/8/0/2048/49408/77,head=1\0"
    "t5 longt5\0t5:tied=1\0"
    "mt5 umt5\0t5:\0"
    "bart mbart pegasus marian blenderbot blenderbot-small m2m_100 plbart mvp "
    "bigbird_pegasus\0t5:tied=1,"
    "biases=1,positions=1\0"
    "whisper\0t5:tied=1,biases=1,positions=1\0"
    "vit deit vit_msn vit_mae beit data2vec-vision\0vit:12/768/12,image=224,patch=16,channels=3\0"
    "dinov2 dinov2_with_registers dinov3_vit ijepa\0vit:12/768/12,image=224,patch=14,"
    "channels=3,out_channels=-1\0"
    "clip_vision_model intern_vit_6b internvl_vision\0vit:12/768/12/0/3072,image=224,"
    "patch=32,channels=3,out_channels=-1\0"
    "siglip_vision_model siglip2_vision_model\0vit:12/768/12/0/3072,image=224,patch=16,"
    "channels=3,out_channels=-1\0"
    "pixtral\0vit:24/1024/16/0/4096,image=1024,patch=16,channels=3,out_channels=-1,gated=1\0"
    "DiTTransformer2DModel Transformer2DModel\0dit:\0";
/* What the model_type of a whole multi-modal model implies: its projector and, for files that do
 * not describe it, the vision tower. tower_inner is the width inside the projector: -1 if it is
 * that of the merged patches, -2 if it is that of the language model, -3 if tower_params counts the
 * projector, and -4 for GLM-4V's. */
static const char dpari_towers[] =
    "llava llava_llama\0"
    "tower_layers=24,tower_hidden=1024,tower_heads=16,tower_ffn=4096,"
    "tower_patch=588,tower_tokens=576,tower_positions=577,tower_inner=-2\0"
    "llava_next llava_onevision vipllava\0tower_inner=-2\0"
    "video_llava\0tower_inner=-2,tower_params=303500\0"
    "mistral3\0tower_inner=-2,tower_params=4194\0"
    "internvl_chat internvl\0tower_inner=-2,tower_merge=4\0"
    "phi3_v\0"
    "tower_layers=24,tower_hidden=1024,tower_heads=16,tower_ffn=4096,"
    "tower_patch=588,tower_tokens=576,tower_positions=577,tower_inner=-2,"
    "tower_merge=4\0"
    "llama4\0"
    "tower_layers=34,tower_hidden=768,tower_heads=16,tower_ffn=5632,"
    "tower_patch=588,tower_tokens=1024,tower_positions=1025,tower_inner=-3,"
    "tower_params=80000\0"
    "step3p7\0"
    "tower_layers=47,tower_hidden=1536,tower_heads=16,tower_ffn=8960,"
    "tower_patch=588,tower_tokens=2704,tower_positions=2705,tower_inner=-3,"
    "tower_params=237500\0"
    "deepseek_vl_v2\0"
    "tower_heads=16,tower_tokens=729,tower_positions=729,tower_inner=-2,"
    "tower_merge=4,tower_params=15300\0"
    "mllama\0tower_inner=-3,tower_params=106400\0"
    "idefics3 smolvlm\0tower_merge=16\0"
    "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe "
    "kimi_k25 kimi_k3 kimi_vl\0"
    "tower_inner=-1,tower_merge=4\0"
    "glm4v glm4v_moe glm46v\0tower_inner=-4,tower_merge=4\0";

DPARI_INTERNAL int dpari_same_bytes(const char *a, const char *b, size_t n)
{
    while (n > 0 && *a == *b) {
        a++;
        b++;
        n--;
    }
    return n == 0;
}

DPARI_INTERNAL int32_t dpari_word_in_list(const char *list, const char *s, size_t n)
{
    int32_t i = 0;
    while (*list != 0) {
        const size_t k = dpari_until(list, dpari_length(list), ' ');
        if (k == n && dpari_same_bytes(list, s, n)) {
            return i;
        }
        list += k + (list[k] == ' ');
        i++;
    }
    return -1;
}

DPARI_INTERNAL int dpari_slice_is(const dpari_slice *s, const char *list)
{
    return s->length > 0 && dpari_word_in_list(list, s->text, s->length) >= 0;
}

DPARI_INTERNAL int dpari_slice_holds(const char *s, size_t n, const char *part)
{
    size_t k = dpari_length(part), i;
    for (i = 0; i + k <= n; i++) {
        if (dpari_same_bytes(s + i, part, k)) {
            return 1;
        }
    }
    return 0;
}

/* Returns the settings of a type in one of the tables, or NULL if it is not in the table. */
static const char *dpari_type_row(const char *row, const dpari_slice *type)
{
    for (; *row != 0; row = dpari_behind(dpari_behind(row))) {
        if (dpari_slice_is(type, row)) {
            return dpari_behind(row);
        }
    }
    return NULL;
}

DPARI_INTERNAL const char *dpari_type_find(const dpari_slice *type)
{
    const char *row = dpari_type_row(dpari_types, type);
    return row != NULL ? row : dpari_type_row(dpari_types_more, type);
}

/* It cannot fail, because the rows are correct. */
DPARI_INTERNAL void dpari_type_read(dpar_model *model, const char *row)
{
    const size_t length = dpari_length(row);
    (void)dpari_model_family(model, row, dpari_until(row, length, ':'), length, NULL);
}

DPARI_INTERNAL const char *dpari_tower_find(const dpari_slice *type)
{
    return dpari_type_row(dpari_towers, type);
}

/* ==== cost/config_members.c ==== */

/* Reads the members of a config.json into a state: the numbers and words of each object, and the
 * kind of each layer. config_json calls it for each item of the file. */

/* The names of members in config.json files of transformers, of Meta and of others. Each entry
 * lists all names for one key, separated by blanks; messages use the first one. The entries
 * are in the order of the keys, and empty for a key that no member has. */
static const char dpari_config_names[] =
    "num_hidden_layers n_layer num_layers n_layers depth vt_num_hidden_layers layers\0"
    "hidden_size n_embd n_embed d_model dim vt_hidden_size width model_dim\0"
    "num_attention_heads n_head num_heads n_heads attention_heads encoder_attention_heads "
    "vt_num_attention_heads\0"
    "num_key_value_heads n_kv_heads kv_n_heads multi_query_group_num num_attention_groups\0"
    "head_dim d_kv attention_head_dim kv_channels d_head\0"
    "intermediate_size n_inner d_ff ffn_dim ffn_hidden_size inner_hidden_size encoder_ffn_dim "
    "vt_intermediate_size hidden_dim\0"
    "vocab_size\0"
    "max_position_embeddings n_positions max_seq_len seq_length max_sequence_length "
    "model_max_length n_ctx context_length max_target_positions\0"
    "\0\0\0" /* tied, biases, rotary */
    "num_local_experts num_experts n_routed_experts moe_num_experts num_moe_experts "
    "num_routed_experts n_experts\0"
    "num_experts_per_tok num_experts_per_token experts_per_token moe_topk moe_top_k moe_k "
    "experts_per_tok num_selected_experts moe_router_topk top_k_experts\0"
    "moe_intermediate_size expert_ffn_hidden_size moe_ffn_hidden_size expert_ffn_dim "
    "moe_hidden_dim\0"
    "shared_expert_intermediate_size shared_intermediate_size share_expert_dim "
    "moe_shared_expert_intermediate_size shared_expert_ffn_dim shared_experts_intermediate_size\0"
    "first_k_dense_replace num_dense_layers moe_layer_start_index n_dense_layers\0"
    "q_lora_rank\0"
    "kv_lora_rank\0"
    "qk_rope_head_dim\0"
    "qk_nope_head_dim\0"
    "v_head_dim\0"
    "num_decoder_layers decoder_layers\0"
    "patch_size\0"
    "num_channels in_channels in_chans\0"
    "out_channels num_labels\0"
    "\0\0\0\0\0\0\0\0\0\0\0" /* levels, blocks_per_level, kernel, fields, halo, element, inference,
                                gated, causal, positions, head */
    "embedding_size word_embed_proj_dim\0"
    "hidden_size_per_layer_input\0"
    "vocab_size_per_layer_input\0"
    "\0" /* q_gate */
    "sliding_window sliding_window_size window_size local_attention attention_chunk_size "
    "attention_window_size\0"
    "swa_num_key_value_heads\0"
    "\0" /* scan */
    "mamba_n_heads mamba_num_heads linear_num_value_heads linear_num_heads\0"
    "mamba_n_groups linear_num_key_heads n_groups mamba_ngroups\0"
    "mamba_d_head mamba_head_dim linear_value_head_dim linear_head_dim mamba_headdim\0"
    "mamba_d_state ssm_state_size state_size d_state linear_key_head_dim\0"
    "mamba_d_conv conv_kernel conv_kernel_size linear_conv_kernel_dim short_conv_kernel_size "
    "conv1d_width conv_L_cache d_conv\0"
    "moe_layer_freq decoder_sparse_step interleave_moe_layer_step moe_layer_interval "
    "expert_layer_period moe_every_n_layers\0"
    "expert_layer_offset\0"
    "o_lora_rank\0"
    "o_groups\0"
    "index_n_heads\0"
    "index_head_dim\0"
    "index_topk\0"
    "num_nextn_predict_layers mtp_num_hidden_layers num_mtp_modules mtp_num_layers "
    "num_mtp_layers\0"
    "\0\0\0\0\0\0\0\0\0\0\0\0" /* tower_layers, tower_hidden, tower_heads, tower_ffn, tower_tokens,
                                  tower_patch, tower_positions, tower_merge, tower_inner,
                                  tower_mergers, tower_gated, tower_params */
    "n_group num_expert_group n_expert_group moe_router_num_groups\0"
    "topk_group moe_router_group_topk\0"
    "n_shared_experts num_shared_experts moe_num_shared_experts num_shared_expert\0"
    "image_size sample_size\0"
    "num_kv_heads\0"
    "expansion_ratio mlp_ratio\0"
    "intermediate_size_mlp dense_intermediate_size\0"
    "encoder_layers\0"
    "embed_dim\0"
    "type_vocab_size\0"
    "position_buckets\0"
    "max_source_positions\0"
    "num_mel_bins\0"
    "padded_vocab_size\0"
    "mamba_expand expand\0"
    "lru_width mamba_d_ssm attention_hidden_size d_inner\0"
    "multiple_of\0"
    "ffn_dim_multiplier\0"
    "attn_layer_period sliding_window_pattern full_attention_interval global_attn_every_n_layers "
    "layer_group_size\0"
    "attn_layer_offset\0"
    "spatial_merge_size merge_kernel_size\0"
    "temporal_patch_size\0"
    "num_position_embeddings init_pos_emb_height\0"
    "num_global_layers\0"
    "projection_dim\0"
    "out_hidden_size\0"
    "tie_word_embeddings\0"
    "no_bias\0"
    "bias\0"
    "multi_query\0"
    "new_decoder_architecture\0"
    "is_gated_act\0"
    "use_sliding_window\0"
    "attn_output_gate\0"
    "position_biased_input\0"
    "use_mla\0"
    "block_auto_adjust_ff_dim\0"
    "layer_types layers_block_type attention_layers block_types hybrid_override_pattern "
    "layers_types layer_block_types\0"
    "attn_type_list\0"
    "hybrid_layer_pattern\0"
    "mlp_layer_types\0"
    "attn_layer_indices full_attn_layers full_attn_idxs\0"
    "mlp_only_layers\0"
    "deepstack_visual_indexes\0"
    "model_type _class_name\0"
    "architectures\0"
    "hidden_act activation_function hidden_activation mlp_hidden_act activation\0"
    "feed_forward_proj\0"
    "peft_type\0";

DPARI_INTERNAL void dpari_config_note(dpari_config_state *state, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    dpari_text_print_list(&state->note, form, &list);
    va_end(list);
    dpari_text_char(&state->note, '\n');
}

DPARI_INTERNAL int32_t dpari_config_shown(size_t n)
{
    return (int32_t)(n < 60 ? n : 60);
}

/* Reports a member whose value cannot be used. */
static dpar_status dpari_config_bad(const dpari_slice *name, dpar_why *why, const char *form)
{
    return dpari_say(DPAR_E_PARSE, why, form, dpari_config_shown(name->length), name->text);
}

DPARI_INTERNAL const char *dpari_config_names_of(int32_t key)
{
    return dpari_nth_text(dpari_config_names, key);
}

/* Returns the key of a member, or -1 if its name is not known. */
static int32_t dpari_config_find(const char *s, size_t n)
{
    const char *names = dpari_config_names;
    int32_t key;
    for (key = 0; key < DPARI_C_ALL; key++) {
        if (dpari_word_in_list(names, s, n) >= 0) {
            return key;
        }
        names = dpari_behind(names);
    }
    return -1;
}

/* Returns the object, DPARI_OBJECT_*, that a member of the given name is. The members of the last
 * list count as members of the object around them. */
static int32_t dpari_config_child(dpari_config_state *state, int32_t object,
                                  const dpari_json_item *item)
{
    static const char names[] =
        "text_config language_config llm_config text_model_config text_model decoder_config\0"
        "vision_config vision_tower visual vision_encoder image_encoder vision vit_config\0"
        "audio_config speech_config audio_encoder\0linear_attn_config\0"
        "attn_config ffn_config ssm_cfg moe mamba_config thinker_config ssm_config";
    const char *list = names;
    int32_t i;
    for (i = 0; i < 5 && object <= DPARI_OBJECT_TEXT; i++) {
        if (dpari_word_in_list(list, item->key, item->key_length) >= 0) {
            object = i < 4 ? DPARI_OBJECT_TEXT + i : object;
            state->seen[object] = 1;
            return object;
        }
        list = dpari_behind(list);
    }
    return dpari_spells(item->key, item->key_length, "id2label") ? DPARI_OBJECT_LABELS
                                                                 : DPARI_OBJECT_SKIPPED;
}

/* Members that change the model in a way that is not modelled, which a note reports. */
static const char dpari_config_left[] =
    "altup_num_inputs laurel_rank num_kv_shared_layers compress_ratios "
    "sparse_attention_config routed_expert_hidden_size attn_res_block_size block_configs hc_mult "
    "use_full_rank_gate";
/* Members about experts that change neither sizes nor work. */
static const char dpari_config_idle[] = "moe_layer_end_index expert_capacity";

/* Notes an unknown member if it may change the sizes of the model: one of dpari_config_left, a
 * number of at least 2 about experts, or an object that describes a part of the model. */
static dpar_status dpari_config_unknown(dpari_config_state *state, int32_t object,
                                        const dpari_json_item *item)
{
    const char *s = item->key;
    size_t n = item->key_length;
    int expert = (n > 4 && dpari_same_bytes(s, "moe_", 4)) || dpari_slice_holds(s, n, "expert");
    if (object != DPARI_OBJECT_WHOLE && object != DPARI_OBJECT_TEXT) {
        return DPAR_OK;
    }
    if (dpari_word_in_list(dpari_config_left, s, n) >= 0) {
        dpari_config_note(state,
                          "'%.*s' is not modelled: parameters, time and memory do not include it",
                          dpari_config_shown(n), s);
    } else if (expert && item->kind == DPARI_JSON_NUMBER && item->number >= 2.0 &&
               item->number - (double)(int32_t)dpari_leastf(item->number, 2e9) <= 0.0 &&
               dpari_word_in_list(dpari_config_idle, s, n) < 0) {
        dpari_config_note(state, "'%.*s'=%ld is not understood and was ignored",
                          dpari_config_shown(n), s, (int64_t)item->number);
    } else if (item->kind == DPARI_JSON_OBJECT && n > 7 &&
               dpari_same_bytes(s + n - 7, "_config", 7) &&
               dpari_word_in_list("quantization_config generation_config projector_config "
                                  "sparse_attention_config task_specific_params",
                                  s, n) < 0) {
        dpari_config_note(state, "'%.*s' was ignored", dpari_config_shown(n), s);
    }
    return DPAR_OK;
}

/* Returns the letter of dpar_model.pattern for the word that describes a layer: F (full attention)
 * if it contains none of the known parts. */
static char dpari_config_letter(const char *s, size_t n)
{
    static const char part[12][10] = {"linear", "mamba",  "recurrent", "conv",   "ssm", "sliding",
                                      "local",  "window", "chunked",   "hybrid", "moe", "mlp"};
    static const char letter[] = "SSSSSWWWWBEDF";
    int32_t i;
    for (i = 0; i < 12 && !dpari_slice_holds(s, n, part[i]); i++) {
    }
    return letter[i];
}

/* Appends a layer to the list of mixers. It counts beyond DPARI_MAX_LISTED, so that
 * dpari_model_config can reject the file. */
static void dpari_config_mix(dpari_config_state *state, char letter)
{
    if (state->mixes < DPARI_MAX_LISTED) {
        state->mix[state->mixes] = letter;
    }
    state->mixes++;
}

/* Appends a layer to the list of feed-forward parts, in the same way. */
static void dpari_config_feed(dpari_config_state *state, int32_t feed)
{
    if (state->feeds < DPARI_MAX_LISTED) {
        state->feed[state->feeds] = (int8_t)feed;
    }
    state->feeds++;
}

/* Reads the index of a dense layer, or of a layer with full attention. All layers before it that
 * are not in the list yet get the other kind: experts, or a scan. */
static void dpari_config_at(dpari_config_state *state, int32_t key, double number)
{
    int32_t at =
        number >= 0.0 && number < (double)DPARI_MAX_LISTED ? (int32_t)number : DPARI_MAX_LISTED;
    if (key == DPARI_C_DENSE_INDICES && at < DPARI_MAX_LISTED) {
        while (state->feeds <= at) {
            dpari_config_feed(state, DPAR_MODEL_FFN_EXPERTS);
        }
        state->feed[at] = DPAR_MODEL_FFN_DENSE;
    } else if (at < DPARI_MAX_LISTED) {
        at -= state->list_object == DPARI_OBJECT_LINEAR && at > 0; /* Kimi counts layers from 1 */
        while (state->mixes <= at) {
            dpari_config_mix(state, 'S');
        }
        state->mix[at] = 'F';
    } else if (number >= 0.0) { /* too many layers, so that dpari_model_config rejects the file */
        state->mixes = number < 1e9 ? (int32_t)number + 1 : 1000000000;
    }
}

/* Reads an element of the list that is being read. */
static void dpari_config_element(dpari_config_state *state, const dpari_json_item *item)
{
    double v = item->kind == DPARI_JSON_NUMBER ? item->number : item->kind == DPARI_JSON_TRUE;
    int word = item->kind == DPARI_JSON_STRING;
    state->list_sum += v;
    if (state->list_count == 0 || v < state->list_low) {
        state->list_low = v;
    }
    if (state->list_count == 0 || v > state->list_high) {
        state->list_high = v;
    }
    state->list_count++;
    switch (state->list_key) {
    case DPARI_C_MIX:
        dpari_config_mix(state, word ? dpari_config_letter(item->string, item->length) : 'F');
        break;
    case DPARI_C_FULL_AT_LAYER: dpari_config_mix(state, v > 0.0 ? 'F' : 'S'); break;
    case DPARI_C_WINDOW_AT_LAYER: dpari_config_mix(state, v > 0.0 ? 'W' : 'F'); break;
    case DPARI_C_FEED:
        dpari_config_feed(state, word && !dpari_spells(item->string, item->length, "dense"));
        break;
    case DPARI_M_EXPERT_STEP: dpari_config_feed(state, v > 0.0); break;
    case DPARI_C_FULL_INDICES:
    case DPARI_C_DENSE_INDICES: dpari_config_at(state, state->list_key, v); break;
    case DPARI_C_ARCHITECTURE:
        if (state->list_count == 1 && word) {
            state->architecture[state->list_object].text = item->string;
            state->architecture[state->list_object].length = item->length;
        }
        break;
    default: break;
    }
}

/* Ends a list. If its key is a number, the value is the largest element for sizes of images and
 * patches, and otherwise the mean over the layers. */
static void dpari_config_listed(dpari_config_state *state)
{
    int32_t *value;
    if (state->list_count == 0 || state->list_key >= DPARI_C_MIX ||
        state->list_key == DPARI_M_EXPERT_STEP) {
        if (state->list_key == DPARI_C_DEEPSTACK) {
            state->value[state->list_object][DPARI_M_TOWER_MERGERS] = 1 + state->list_count;
        }
        return;
    }
    value = &state->value[state->list_object][state->list_key];
    if (state->list_key == DPARI_M_PATCH || state->list_key == DPARI_C_IMAGE_SIDE ||
        state->list_key == DPARI_C_MERGE) {
        *value = dpari_within((int64_t)state->list_high, 0, 65536);
        return;
    }
    *value = dpari_within((int64_t)(state->list_sum / state->list_count + 0.5), 0, INT32_MAX);
    if (state->list_high > state->list_low) {
        dpari_config_note(state, "'%.*s' differs from layer to layer: the mean, %d, is used",
                          dpari_config_shown(state->list_name.length), state->list_name.text,
                          *value);
    }
}

/* Returns the letter of dpar_model.pattern for one of Nemotron-H's pattern, where M is a scan, * is
 * attention, - is a dense feed-forward part, and E are experts. */
static char dpari_config_nemotron(char letter)
{
    switch (letter) {
    case 'M': return 's';
    case '*': return 'f';
    case '-': return 'D';
    default: return 'E';
    }
}

/* Reads a member whose value is a word, or a pattern with a letter for each layer (Nemotron-H). */
static void dpari_config_string(dpari_config_state *state, int32_t object, int32_t key,
                                const dpari_json_item *item)
{
    dpari_slice s;
    size_t i;
    s.text = item->string;
    s.length = item->length;
    if (key == DPARI_C_TYPE) {
        state->type[object] = s;
    } else if (key == DPARI_C_ACTIVATION && state->activation[object].length == 0) {
        state->activation[object] = s;
    } else if (key == DPARI_C_PROJECTION) {
        state->value[object][DPARI_C_GATED] = dpari_slice_holds(s.text, s.length, "gated-");
    } else if (key == DPARI_C_MIX) {
        for (i = 0; i < s.length; i++) {
            dpari_config_mix(state, dpari_config_nemotron(s.text[i]));
        }
    }
}

/* Reads a member whose key is known. */
static dpar_status dpari_config_value(dpari_config_state *state, int32_t object, int32_t key,
                                      const dpari_json_item *item, dpar_why *why)
{
    int flag = item->kind == DPARI_JSON_TRUE || item->kind == DPARI_JSON_FALSE;
    double v = item->number;
    dpari_slice name;
    name.text = item->key;
    name.length = item->key_length;
    if (item->kind == DPARI_JSON_NULL) {
        return DPAR_OK;
    }
    if (key == DPARI_C_ADAPTER) {
        return dpari_config_bad(
            &name, why,
            "config.json: '%.*s' shows that the file describes an adapter: give "
            "the config.json of the model that it adapts");
    }
    if (key >= DPARI_C_KEYS) {
        if (item->kind == DPARI_JSON_STRING) {
            dpari_config_string(state, object, key, item);
        }
        return DPAR_OK;
    }
    if (object > DPARI_OBJECT_TEXT &&
        (key >= DPARI_C_FLAGS ? !flag : item->kind != DPARI_JSON_NUMBER)) {
        return DPAR_OK; /* in a tower, other kinds of values do not change its size */
    }
    if (key >= DPARI_C_FLAGS && !flag) {
        return dpari_config_bad(&name, why, "config.json: '%.*s' must be true or false");
    }
    if (key < DPARI_C_FLAGS && item->kind != DPARI_JSON_NUMBER) {
        if (key == DPARI_C_EXPANSION || key == DPARI_M_MTP || key == DPARI_M_WINDOW) {
            return DPAR_OK; /* not needed, so another kind of value is ignored */
        }
        return dpari_config_bad(&name, why, "config.json: '%.*s' must be a number");
    }
    if (key == DPARI_C_EXPANSION || key == DPARI_C_FFN_TIMES) { /* kept in 1/10000 */
        v *= 1e4;
        v = (double)(int64_t)dpari_leastf(dpari_mostf(v, 0.0) + 0.5, 1e9);
    }
    if ((key == DPARI_M_VOCAB || key == DPARI_M_WINDOW) && v < 0.0 && v > -2.0) {
        return DPAR_OK; /* -1 means that the file does not say */
    }
    if (!flag && (!(v >= 0.0 && v < 2147483648.0) || v - (double)(int32_t)v > 0.0)) {
        (void)dpari_config_bad(&name, why,
                               "config.json: '%.*s' must be a whole number of 0 to 2147483647");
        return DPAR_E_RANGE;
    }
    if (key == DPARI_C_TOWER_POSITIONS && dpari_slice_holds(name.text, name.length, "height")) {
        v *= v; /* init_pos_emb_height is the side of a square of positions */
    }
    if (key == DPARI_M_WINDOW && v < 1.0) {
        return DPAR_OK;
    }
    if (flag) {
        state->value[object][key] = item->kind == DPARI_JSON_TRUE;
    } else {
        state->value[object][key] = (int32_t)dpari_leastf(v, 2147483647.0);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_config_member(dpari_config_state *state,
                                                          const dpari_json_item *item,
                                                          dpar_why *why)
{
    int32_t object = state->object[item->depth], key = -1;
    int open = item->kind == DPARI_JSON_OBJECT || item->kind == DPARI_JSON_ARRAY;
    if (item->kind == DPARI_JSON_OBJECT_END || item->kind == DPARI_JSON_ARRAY_END) {
        if (state->object[item->depth + 1] == DPARI_OBJECT_LIST) {
            dpari_config_listed(state);
        }
        return DPAR_OK;
    }
    if (object == DPARI_OBJECT_LIST && !open) {
        dpari_config_element(state, item);
    }
    if (item->depth == 0) {
        state->object[1] =
            item->kind == DPARI_JSON_OBJECT ? DPARI_OBJECT_WHOLE : DPARI_OBJECT_SKIPPED;
        return DPAR_OK;
    }
    state->labels += object == DPARI_OBJECT_LABELS;
    if (object >= DPARI_OBJECTS || item->key == NULL) {
        state->object[item->depth + 1] = DPARI_OBJECT_SKIPPED;
        return DPAR_OK;
    }
    key = dpari_config_find(item->key, item->key_length);
    if (item->kind == DPARI_JSON_OBJECT) {
        state->object[item->depth + 1] = (int8_t)dpari_config_child(state, object, item);
        if (state->object[item->depth + 1] != DPARI_OBJECT_SKIPPED) {
            return DPAR_OK;
        }
    } else if (item->kind == DPARI_JSON_ARRAY && key >= 0) {
        state->object[item->depth + 1] = DPARI_OBJECT_LIST;
        state->list_key = key;
        state->list_object = object;
        state->list_name.text = item->key;
        state->list_name.length = item->key_length;
        state->list_sum = state->list_low = state->list_high = 0.0;
        state->list_count = 0;
        return DPAR_OK;
    } else if (open) {
        state->object[item->depth + 1] = DPARI_OBJECT_SKIPPED;
    }
    if (key < 0) {
        return dpari_config_unknown(state, object, item);
    }
    return dpari_config_value(state, object, key, item, why);
}

/* ==== cost/config_json.c ==== */

/* Makes a model from a config.json of transformers, of Meta or of others. First config_members
 * collects the members of all objects. Then dpari_config_finish starts from the values that the
 * model_type implies, overwrites them with the members, and derives what is still missing. What had
 * to be assumed or left out is written to dpar_model.note. */

/* Reports "config.json: num_hidden_layers (or n_layer, num_layers, n_layers) is missing ...". */
static dpar_status dpari_config_missing(int32_t key, dpar_why *why)
{
    char text[160];
    dpar_text t;
    const char *names = dpari_config_names_of(key);
    int32_t found = 0;
    dpar_text_init(&t, text, sizeof(text));
    for (; *names != 0 && found < 4; names++) {
        if (*names == ' ') {
            found++;
            if (found < 4) {
                dpar_text_put(&t, found == 1 ? " (or " : ", ");
            }
        } else {
            dpari_text_char(&t, *names);
        }
    }
    dpar_text_put(&t, found > 0 ? ")" : "");
    return dpari_say(DPAR_E_PARSE, why,
                     "config.json: %s is missing or 0, but a transformer needs it", text);
}

/* Returns 1 if all layers of the model are scans, otherwise 0. */
static int32_t dpari_model_scans_only(const dpar_model *model)
{
    return model->scan > 0 && dpari_spells_one(model->pattern[0], "sS") && model->pattern[1] == 0;
}

/* Returns the first member that the model needs but that neither the file nor its type gives, or -1
 * if nothing is missing. */
static int32_t dpari_config_absent(const dpar_model *model, const dpari_config_state *state)
{
    int32_t sees = model->family == DPAR_MODEL_FAMILY_VIT || model->family == DPAR_MODEL_FAMILY_DIT;
    if (model->layers < 1) {
        return DPARI_M_LAYERS;
    }
    if (model->hidden < 1) {
        return DPARI_M_HIDDEN;
    }
    if (model->heads < 1 && !(dpari_model_scans_only(model) && state->mixes == 0)) {
        return DPARI_M_HEADS;
    }
    if (sees && model->patch < 1) {
        return DPARI_M_PATCH;
    }
    if (sees && model->image[0] < 1) {
        return DPARI_C_IMAGE_SIDE;
    }
    if (!sees && model->vocab < 1) {
        return DPARI_M_VOCAB;
    }
    if (model->experts > 0 && model->topk < 1) {
        return DPARI_M_TOPK;
    }
    if (model->kv_lora > 0 && model->qk_width < 1) {
        return DPARI_M_QK_WIDTH;
    }
    if (model->kv_lora > 0 && model->v_width < 1) {
        return DPARI_M_V_WIDTH;
    }
    return -1;
}

/* Checks that the model has all members that it needs. */
static dpar_status dpari_config_needed(const dpar_model *model, const dpari_config_state *state,
                                       dpar_why *why)
{
    int32_t key = dpari_config_absent(model, state);
    if (key >= 0) {
        return dpari_config_missing(key, why);
    }
    if (model->kv_heads > 0 && model->heads % model->kv_heads != 0) {
        return dpari_say(
            DPAR_E_DIVIDE, why,
            "config.json: num_key_value_heads=%d does not divide num_attention_heads=%d",
            model->kv_heads, model->heads);
    }
    return DPAR_OK;
}

/* Returns `member` if it is positive, which means that the file or its type gives it. */
static int32_t dpari_config_given(int32_t member, int32_t otherwise)
{
    return member > 0 ? member : otherwise;
}

/* Returns a * b, or 0, which means "not given", if a factor is not positive or the product too
 * large. */
DPARI_STATIC_NOINLINE int32_t dpari_config_product(int32_t a, int64_t b)
{
    int64_t v = 0;
    return a > 0 && b > 0 && dpari_mul(a, b, &v) && v <= INT32_MAX ? (int32_t)v : 0;
}

/* Returns 1 if an activation function is one that gated feed-forward parts have, otherwise 0. */
static int dpari_config_gates(const dpari_slice *s)
{
    return dpari_slice_is(s, "silu swish swiglu swigluoai situ geglu");
}

/* Returns 1 if an unknown type may be read as Llama, whose shapes most models have. Its activation
 * function must be one of gated feed-forward parts. If the file does not name the activation
 * function, it must have key-value heads, which encoders and state-space models do not have. */
static int dpari_config_like_llama(const dpari_config_state *state, int32_t object)
{
    const dpari_slice *activation = &state->activation[object];
    return (state->value[object][DPARI_M_KV_HEADS] > 0 && activation->length == 0) ||
           dpari_config_gates(activation);
}

/* Starts *m from what the model_type implies. A file without model_type is read as BERT if it has
 * token types but no key-value heads, and otherwise as Llama. */
static dpar_status dpari_config_kind(dpari_config_state *state, int32_t object, dpari_slice type,
                                     dpar_model *model, dpar_why *why)
{
    const int32_t *value = state->value[object];
    dpari_slice other;
    const char *row;
    int32_t shown;
    other.text = "chatglm-6b";
    other.length = 10;
    if (dpari_slice_is(&type, "chatglm") && value[DPARI_C_PADDED_VOCAB] < 0) {
        type = other; /* the first ChatGLM has a different shape from later ones */
    }
    row = dpari_type_find(&type);
    if (row == NULL && type.length == 0 && value[DPARI_C_TOKEN_TYPES] >= 0 &&
        value[DPARI_M_KV_HEADS] < 0) {
        other.text = "bert";
        other.length = 4;
        row = dpari_type_find(&other);
        dpari_config_note(state,
                          "no model_type: read as BERT, because the file has type_vocab_size");
    } else if (row == NULL && type.length == 0) {
        row = "llama:";
        dpari_config_note(state, "no model_type: read as Llama");
    } else if (row == NULL && dpari_config_like_llama(state, object)) {
        row = "llama:";
        dpari_config_note(state, "model_type '%.*s' is not known: read as Llama",
                          dpari_config_shown(type.length), type.text);
    }
    shown = (int32_t)(type.length < 40 ? type.length : 40);
    if (row == NULL) {
        return dpari_say(DPAR_E_UNKNOWN, why,
                         "config.json: model_type '%.*s' is not known (llama, qwen3, mixtral, "
                         "deepseek_v3, gemma2, phi3, gpt2, gpt_neox, opt, falcon, t5, bert, mamba, "
                         "vit ...): describe the model as text",
                         shown, type.text);
    }
    if (dpari_slice_is(&type, "nemotron-nas")) {
        return dpari_say(DPAR_E_UNKNOWN, why,
                         "config.json: model_type '%.*s': blocks that differ from each other "
                         "(block_configs) are not supported",
                         shown, type.text);
    }
    dpari_type_read(model, row);
    if (type.length > 0) {
        dpari_copy_text(model->name, sizeof(model->name), type.text, type.length);
    } else {
        dpari_copy_text(model->name, sizeof(model->name), "config.json", 11);
    }
    return DPAR_OK;
}

/* Overwrites what the type implies with the fields that the file has. */
static void dpari_config_fields(dpar_model *model, const int32_t *value)
{
    int32_t key;
    for (key = 0; key < DPARI_M_INTEGERS; key++) {
        if (value[key] >= 0 && key != DPARI_M_MTP && key != DPARI_M_TOWER_MERGERS) {
            *dpari_model_field(model, key) = value[key];
        }
    }
    model->layers = dpari_config_given(value[DPARI_C_ENCODER_LAYERS], model->layers);
}

/* Returns the width of a feed-forward part: `ffn`, unless the file gives only a factor of the
 * hidden size. */
DPARI_STATIC_NOINLINE int32_t dpari_config_ffn(const int32_t *value, int32_t hidden, int32_t ffn)
{
    if (value[DPARI_C_EXPANSION] < 1 || value[DPARI_M_FFN] > 0) {
        return ffn;
    }
    return (int32_t)dpari_leastf((double)hidden * value[DPARI_C_EXPANSION] * 1e-4 + 0.01, 2e9);
}

/* Notes in one line the sizes that the file does not give, with the values that its type implies.
 */
static void dpari_config_defaults(dpari_config_state *state, const dpar_model *model,
                                  const int32_t *value)
{
    static const uint8_t key[] = {DPARI_M_LAYERS, DPARI_M_HIDDEN, DPARI_M_HEADS,
                                  DPARI_M_VOCAB,  DPARI_M_FFN,    DPARI_M_HEAD_WIDTH};
    dpar_model copy = *model;
    const char *names;
    int32_t i, noted = 0;
    for (i = 0; i < 6; i++) {
        int32_t v = *dpari_model_field(&copy, key[i]);
        if (value[key[i]] >= 0 || v < 1 ||
            (key[i] == DPARI_M_FFN && model->family > DPAR_MODEL_FAMILY_LLAMA) ||
            (key[i] == DPARI_M_VOCAB && value[DPARI_C_PADDED_VOCAB] > 0)) {
            continue;
        }
        names = dpari_config_names_of(key[i]);
        dpar_text_put(&state->note, noted == 0 ? "not in the file, so its type decides: " : ", ");
        noted++;
        dpari_text_slice(&state->note, names, dpari_until(names, dpari_length(names), ' '));
        dpari_text_print(&state->note, "=%d", v);
    }
    dpar_text_put(&state->note, noted > 0 ? "\n" : "");
}

/* Returns the channels of a scan: as given, a given multiple of the hidden size, twice the hidden
 * size for Mamba, or the hidden size. */
static int32_t dpari_config_inner(const dpar_model *model, const int32_t *value)
{
    if (value[DPARI_C_INNER] > 0) {
        return value[DPARI_C_INNER];
    }
    if (value[DPARI_C_EXPAND] > 0) {
        return dpari_config_product(model->hidden, value[DPARI_C_EXPAND]);
    }
    if (model->scan == DPAR_MODEL_SCAN_MAMBA || model->scan == DPAR_MODEL_SCAN_MAMBA2) {
        return dpari_config_product(model->hidden, 2);
    }
    return model->hidden;
}

/* Sets the widths that follow from other members: first those of feed-forward parts and experts,
 * then of attention, then of scans. */
static DPARI_COLD DPARI_NOINLINE void dpari_config_widths(dpar_model *model,
                                                          const dpari_config_state *state,
                                                          const int32_t *value,
                                                          const dpari_slice *type)
{
    int32_t inner;
    model->ffn = dpari_config_ffn(value, model->hidden, model->ffn);
    if (value[DPARI_C_MULTIPLE_OF] > 0 && value[DPARI_M_FFN] < 1 && model->hidden < 100000000) {
        /* Meta's rule: 8/3 of the hidden size, times a factor, rounded up to a multiple */
        int64_t width = 8 * (int64_t)model->hidden / 3, unit = value[DPARI_C_MULTIPLE_OF];
        if (value[DPARI_C_FFN_TIMES] > 0) {
            width = width * value[DPARI_C_FFN_TIMES] / 10000;
        }
        model->ffn = dpari_within((width + unit - 1) / unit * unit, 0, INT32_MAX);
    }
    if (value[DPARI_C_ADJUSTS_FFN] > 0) { /* two thirds, rounded up to a multiple of 256 */
        model->ffn = dpari_within((2 * (int64_t)model->ffn / 3 + 255) / 256 * 256, 0, INT32_MAX);
    }
    /* these types count both halves of a gated part */
    if (dpari_slice_is(type, "qwen recurrent_gemma")) {
        model->ffn /= 2;
    }
    if (value[DPARI_C_DENSE_FFN] > 0) {
        if (value[DPARI_M_EXPERT_FFN] < 1) {
            model->expert_ffn = model->ffn;
        }
        model->ffn = value[DPARI_C_DENSE_FFN];
    }
    if (model->experts > 0 && model->expert_ffn < 1) {
        model->expert_ffn = model->ffn;
    }
    if (value[DPARI_C_SHARED_COUNT] > 0 && value[DPARI_M_SHARED_FFN] < 1) {
        model->shared_ffn = dpari_config_product(value[DPARI_C_SHARED_COUNT], model->expert_ffn);
    }
    if (model->experts > 0 && model->shared_ffn == 1) {
        model->shared_ffn = model->expert_ffn;
    }
    if (dpari_slice_is(type, "ernie4_5_moe_vl ernie4_5_vl_moe_text")) {
        model->experts =
            dpari_config_product(2, model->experts); /* as many for images as for text */
    }
    if (value[DPARI_C_USE_MLA] == 0) {
        model->kv_lora = model->q_lora = model->v_width = 0;
    }
    if (model->kv_lora > 0) { /* latent attention has other widths */
        model->head_width = 0;
        model->kv_heads = 0;
    } else if (model->v_width == model->head_width || model->v_width == 1) {
        model->v_width = 0;
    }
    if (dpari_slice_is(type, "falcon gpt_bigcode")) {
        model->kv_heads = value[DPARI_C_ONE_KV] != 0;
        if (value[DPARI_C_NEW_DECODER] > 0) {
            model->kv_heads = (int32_t)dpari_most(value[DPARI_C_NEW_KV], 0);
        }
    } else if (value[DPARI_C_NEW_KV] > 0 && value[DPARI_M_KV_HEADS] < 1) {
        model->kv_heads = value[DPARI_C_NEW_KV];
    }
    if (dpari_model_scans_only(model) && state->mixes == 0) { /* the file's heads are the scan's */
        if (model->heads > 0 && model->scan == DPAR_MODEL_SCAN_MAMBA2) {
            model->scan_heads = model->heads;
        }
        model->heads = model->kv_heads = 0;
    }
    if (state->value[DPARI_OBJECT_LINEAR][DPARI_M_HEADS] > 0) {
        const int32_t *linear = state->value[DPARI_OBJECT_LINEAR];
        model->scan_heads = model->scan_groups = linear[DPARI_M_HEADS];
        model->scan_width = model->scan_state = (int32_t)dpari_most(linear[DPARI_M_HEAD_WIDTH], 0);
        model->conv = (int32_t)dpari_most(linear[DPARI_M_CONV], 0);
    }
    if (model->scan == DPAR_MODEL_SCAN_KDA && model->scan_groups < 1) {
        model->scan_groups = model->scan_heads;
        model->scan_state = model->scan_width;
    }
    if (model->scan == DPAR_MODEL_SCAN_LIGHTNING) {
        model->scan_heads = model->scan_groups = model->heads;
        model->scan_width = model->scan_state = model->head_width;
    }
    if (model->scan == DPAR_MODEL_SCAN_LRU) {
        model->scan_heads = model->heads;
    }
    inner = dpari_config_inner(model, value);
    if (model->scan == DPAR_MODEL_SCAN_MAMBA || model->scan == DPAR_MODEL_SCAN_RWKV ||
        model->scan == DPAR_MODEL_SCAN_CONV) {
        model->scan_heads = 1;
        model->scan_width = model->scan == DPAR_MODEL_SCAN_CONV ? model->hidden : inner;
    } else if (model->scan > 0 && model->scan_width < 1 && model->scan_heads > 0) {
        model->scan_width = inner / model->scan_heads;
    } else if (model->scan > 0 && model->scan_heads < 1 && model->scan_width > 0) {
        model->scan_heads = inner / model->scan_width;
    }
}

/* Sets the head of a model by the class with which the file was saved. */
static void dpari_config_head(dpar_model *model, const dpari_slice *a, const dpari_slice *type)
{
    int vocabulary = dpari_slice_holds(a->text, a->length, "ForCausalLM") ||
                     dpari_slice_holds(a->text, a->length, "LMHead") ||
                     dpari_slice_holds(a->text, a->length, "ForConditional");
    int masked = dpari_slice_holds(a->text, a->length, "ForMaskedLM") ||
                 dpari_slice_holds(a->text, a->length, "ForPreTraining");
    int classes = dpari_slice_holds(a->text, a->length, "Classification") ||
                  dpari_slice_holds(a->text, a->length, "Reward") ||
                  dpari_slice_holds(a->text, a->length, "ForQuestion") ||
                  dpari_slice_holds(a->text, a->length, "WithProjection");
    int bare = a->length > 5 && dpari_same_bytes(a->text + a->length - 5, "Model", 5);
    if (model->family == DPAR_MODEL_FAMILY_VIT) {
        if (bare || (model->out_channels < 0 && !classes)) {
            model->head = DPAR_MODEL_HEAD_VOCAB;
            if (bare && dpari_slice_is(type, "vit deit")) {
                model->head = DPAR_MODEL_HEAD_POOL;
            }
            model->out_channels = -1;
        }
    } else if (masked || (vocabulary && model->causal < 0)) {
        model->head = DPAR_MODEL_HEAD_MASKED;
    } else if (vocabulary) {
        model->head = DPAR_MODEL_HEAD_VOCAB;
    } else if (model->head == DPAR_MODEL_HEAD_VOCAB && (bare || classes) &&
               !dpari_slice_is(type, "chatglm")) {
        model->head = DPAR_MODEL_HEAD_NONE;
    } else if (dpari_slice_holds(a->text, a->length, "ForQuestion") ||
               dpari_slice_holds(a->text, a->length, "ForToken")) {
        model->head = DPAR_MODEL_HEAD_NONE;
    }
}

/* Sets the tower in front of a language model from its object of the file, after what the type of
 * the whole model and the type of the tower imply. */
static void dpari_config_tower(dpar_model *model, dpari_config_state *state, int32_t object)
{
    const int32_t *value = state->value[object];
    const char *whole = dpari_tower_find(&state->type[DPARI_OBJECT_WHOLE]), *row;
    dpar_model tower; /* the tower as a model of its own */
    int32_t side;
    int64_t patches;
    dpari_zero(&tower, sizeof(tower));
    if (whole != NULL) {
        (void)dpari_model_settings(model, whole, dpari_length(whole), NULL);
    }
    row = state->seen[object] ? dpari_type_find(&state->type[object]) : NULL;
    if (row != NULL && row[0] == 'v') {
        dpari_type_read(&tower, row);
    } else {
        tower.layers = model->tower_layers;
        tower.hidden = model->tower_hidden;
        tower.heads = dpari_config_given(model->tower_heads, 16);
        tower.ffn = model->tower_ffn;
    }
    dpari_config_fields(&tower, value);
    model->tower_layers = tower.layers + dpari_within(value[DPARI_C_MORE_LAYERS], 0, 100000);
    model->tower_hidden = dpari_config_given(value[DPARI_C_EMBED_DIM], tower.hidden);
    model->tower_heads = dpari_config_given(tower.heads, 16);
    model->tower_ffn = dpari_config_ffn(value, model->tower_hidden, tower.ffn);
    model->tower_gated = tower.gated > 0 || dpari_config_gates(&state->activation[object]);
    side = dpari_config_given(value[DPARI_C_IMAGE_SIDE], tower.image[0]);
    tower.channels = dpari_config_given(tower.channels, 3);
    if (tower.patch > 0 && tower.patch < 1000 && tower.channels < 1000) {
        model->tower_patch = tower.patch * tower.patch * tower.channels *
                             dpari_within(value[DPARI_C_FRAMES], 1, 100);
        patches = side > 0 ? side / tower.patch : 0;
        if (patches > 0 && patches < 40000) {
            model->tower_tokens = (int32_t)(patches * patches);
            model->tower_positions = model->tower_tokens + 1;
        }
    }
    if (object == DPARI_OBJECT_AUDIO) {
        /* Whisper's tower: two convolutions over 3 steps each, whose second one has 3 hidden^2
         * weights (tower_params counts thousands), and by default 80 mel bins and 1500 positions */
        model->tower_patch =
            value[DPARI_C_MEL_BINS] > 0 ? dpari_config_product(3, value[DPARI_C_MEL_BINS]) : 240;
        model->tower_tokens = dpari_config_given(value[DPARI_C_SOURCE_POSITIONS], 1500);
        model->tower_positions = model->tower_tokens;
        model->tower_params = (int32_t)(3e-3 * model->tower_hidden * model->tower_hidden);
    }
    if (value[DPARI_C_TOWER_POSITIONS] > 0) {
        model->tower_positions = value[DPARI_C_TOWER_POSITIONS];
        model->tower_tokens =
            dpari_config_given(model->tower_tokens, value[DPARI_C_TOWER_POSITIONS]);
    }
    if (value[DPARI_C_MERGE] > 0) {
        model->tower_merge = dpari_config_product(value[DPARI_C_MERGE], value[DPARI_C_MERGE]);
    }
    if (model->tower_inner == -4 && value[DPARI_C_TOWER_OUT] > 0) {
        /* GLM-4V: the ffn of the file is that of the merger, which has one product of out x out and
         * three of out x ffn. Before it, 2 x 2 patches of the hidden size are convolved to `out`.
         * The feed-forward parts of the tower's blocks are `out` wide. */
        const double out = value[DPARI_C_TOWER_OUT];
        model->tower_params = (int32_t)dpari_leastf(
            1e-3 * out * (out + 3.0 * model->tower_ffn + 4.0 * model->tower_hidden), 2e9);
        model->tower_ffn = value[DPARI_C_TOWER_OUT];
        model->tower_inner = -3;
    }
    model->tower_mergers = dpari_config_given(value[DPARI_M_TOWER_MERGERS], 1);
    switch (model->tower_inner) { /* config_types.c explains the negative values */
    case -1:
        model->tower_inner =
            dpari_config_product(model->tower_hidden, dpari_most(model->tower_merge, 1));
        break;
    case -2: model->tower_inner = model->hidden; break;
    case -3:
        model->tower_inner = 0;
        model->tower_mergers = 0;
        break;
    default: model->tower_inner = (int32_t)dpari_most(model->tower_inner, 0); break;
    }
    model->tower_tokens = dpari_config_given(model->tower_tokens, 1024);
    if (model->tower_layers < 1 || model->tower_hidden < 1 ||
        model->tower_hidden % model->tower_heads != 0) {
        model->tower_layers = 0;
        dpari_config_note(state,
                          "its %s is not understood: its parameters and time are not included",
                          object == DPARI_OBJECT_VISION ? "vision_config" : "audio_config");
        return;
    }
    dpari_config_note(state, "a tower of %d layers in front of the model is included%s",
                      model->tower_layers,
                      state->seen[object] && value[DPARI_M_LAYERS] > 0
                          ? ""
                          : ", as its type has one, though the file does not describe it");
    dpari_config_note(
        state, "its input is one of %d patches per sample; it runs in front of the first stage",
        model->tower_tokens);
    if (whole == NULL && object == DPARI_OBJECT_VISION) {
        dpari_config_note(
            state, "model_type '%.*s' is not known: its projector is assumed to be one product",
            dpari_config_shown(state->type[DPARI_OBJECT_WHOLE].length),
            state->type[DPARI_OBJECT_WHOLE].text);
    }
}

/* Returns 1 if the letter of a layer stands for a scan, otherwise 0. */
static int dpari_config_scans(char letter)
{
    return letter == 'S' || letter == 's' || letter == 'B';
}

/* Counts the layers of each kind: which mix tokens by attention, windows or scans, and which have
 * experts. The letters of the file's lists or of the type's pattern say that. Letters for which the
 * file gives no sizes are replaced by full attention, or the file is rejected. */
static dpar_status dpari_config_layers(dpar_model *model, dpari_config_state *state,
                                       const int32_t *value, const dpari_slice *type, dpar_why *why)
{
    int32_t every = value[DPARI_C_PERIOD], full, i;
    if (state->mixes > 0 && model->scan == 0) {
        for (i = 0; i < state->mixes; i++) {
            if (dpari_config_scans(state->mix[i]) && model->scan_groups > 0 &&
                model->scan_state > 0) {
                model->scan = DPAR_MODEL_SCAN_DELTA;
            }
        }
    }
    /* a layer of these types has either a mixer or a feed-forward part, not both */
    for (i = 0; i < state->mixes && model->pattern[0] == 's'; i++) {
        if (state->mix[i] == 'S') {
            state->mix[i] = 's';
        } else if (state->mix[i] == 'F') {
            state->mix[i] = 'f';
        }
    }
    if (state->mixes == 0 && every > 0 && every < 16) {
        for (i = 0; i < every; i++) {
            model->pattern[i] = model->scan > 0 ? 'S' : 'W';
        }
        full = every - 1;
        if (value[DPARI_C_PERIOD_OFFSET] >= 0) {
            full = value[DPARI_C_PERIOD_OFFSET] % every;
        }
        model->pattern[full] = 'F';
        model->pattern[every] = 0;
    }
    if (value[DPARI_C_USES_WINDOW] == 0 || (model->window < 1 && model->scan == 0)) {
        model->window = 0;
        if (model->scan == 0) {
            model->pattern[0] = 0;
        }
    }
    if (model->window > 0 && state->mixes == 0 && model->pattern[0] == 0 &&
        value[DPARI_M_WINDOW] > 0) {
        dpari_config_note(
            state, "'sliding_window'=%d was ignored: the file does not say which layers have it",
            model->window);
    }
    for (i = 0; i < state->mixes && model->window < 1; i++) {
        if (state->mix[i] == 'W') {
            state->mix[i] = 'F';
        }
    }
    /* most types put the experts into the last layer of each step, DeepSeek's into the first */
    if (model->expert_step > 1 && value[DPARI_M_EXPERT_OFFSET] < 0 && model->expert_offset == 0 &&
        !dpari_slice_is(type, "deepseek deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2")) {
        model->expert_offset = model->expert_step - 1;
    }
    for (i = 0; i < state->mixes && model->scan == 0; i++) {
        if (dpari_config_scans(state->mix[i])) {
            return dpari_say(DPAR_E_UNKNOWN, why,
                             "config.json: model_type '%.*s': its layers of linear attention, "
                             "state space or convolution are not supported",
                             (int32_t)(type->length < 40 ? type->length : 40), type->text);
        }
    }
    if (state->feeds > 0 && model->experts == 0) {
        state->feeds = 0;
    }
    if (state->feeds > 0) {
        model->dense_layers = 0;
    }
    dpari_model_kinds(model, state->mix, state->mixes, state->feed, state->feeds);
    return DPAR_OK;
}

/* Overwrites single fields with the values of members that are not fields of a model. */
static void dpari_config_others(dpar_model *model, dpari_config_state *state, const int32_t *value,
                                const dpari_slice *activation)
{
    if (value[DPARI_C_TIED] >= 0) {
        model->tied = value[DPARI_C_TIED];
    }
    model->vocab = dpari_config_given(value[DPARI_C_PADDED_VOCAB], model->vocab);
    if (value[DPARI_M_HIDDEN] < 0) {
        model->hidden = dpari_config_given(value[DPARI_C_EMBED_DIM], model->hidden);
    }
    if (value[DPARI_C_Q_GATE] >= 0) {
        model->q_gate = value[DPARI_C_Q_GATE];
    }
    if (model->embed == model->hidden) {
        model->embed = 0;
    }
    if (value[DPARI_C_NO_BIAS] > 0) {
        model->biases = -1;
    } else if (model->biases < 0 && value[DPARI_C_BIAS] > 0) {
        model->biases = 0;
    }
    if (value[DPARI_C_GATED] >= 0 && model->family == DPAR_MODEL_FAMILY_T5) {
        model->gated = value[DPARI_C_GATED] > 0 ? 1 : -1;
    }
    if (model->family == DPAR_MODEL_FAMILY_LLAMA && model->gated == 0 &&
        dpari_slice_is(activation, "relu2 relu xielu")) {
        model->gated = -1;
    }
    if (model->vocab < 1 && value[DPARI_C_MULTIPLE_OF] > 0) {
        model->vocab = 32000;
        dpari_config_note(state, "no vocab_size: 32000 is assumed, as in Llama and Llama 2");
    }
}

/* Sets the fields of vision transformers. */
static void dpari_config_image(dpar_model *model, const int32_t *value,
                               const dpari_slice *architecture)
{
    model->image[0] = dpari_config_given(value[DPARI_C_IMAGE_SIDE], model->image[0]);
    model->image[1] = model->image[0];
    model->channels = dpari_config_given(model->channels, 3);
    if (dpari_slice_holds(architecture->text, architecture->length, "WithProjection")) {
        model->out_channels =
            dpari_config_given(value[DPARI_C_PROJECTION_DIM], model->out_channels);
    }
    if (model->family == DPAR_MODEL_FAMILY_DIT && model->hidden < 1) {
        model->hidden = dpari_config_product(model->heads, model->head_width);
    }
    model->window = 0;
    model->pattern[0] = 0;
}

/* Sets the rows of learned positions. Token types and DeBERTa's relative positions are rows too. */
static void dpari_config_positions(dpar_model *model, const int32_t *value)
{
    if (model->positions > 0 && model->family == DPAR_MODEL_FAMILY_T5) {
        model->positions = 2 * dpari_within(model->seq, 0, 1000000);
        if (value[DPARI_C_MEL_BINS] > 0) { /* Whisper, whose encoder has 1500 by default */
            model->channels = value[DPARI_C_MEL_BINS];
            model->image[0] = dpari_config_given(value[DPARI_C_SOURCE_POSITIONS], 1500);
            model->positions = model->image[0] + model->seq;
        }
    } else if (model->family == DPAR_MODEL_FAMILY_GPT && !model->rotary && model->positions == 0) {
        model->positions = dpari_config_given(model->seq, 2048);
        if (value[DPARI_C_POSITION_BUCKETS] > 0) {
            if (value[DPARI_C_BIASED_INPUT] == 0) {
                model->positions = 0;
            }
            model->positions += 2 * dpari_within(value[DPARI_C_POSITION_BUCKETS], 0, 1000000);
        }
        model->positions += dpari_within(value[DPARI_C_TOKEN_TYPES],
                                         model->head == DPAR_MODEL_HEAD_POOL ? 1 : 0, 16);
    }
}

/* Sets the tokens per sample. Models are not trained with the longest sequence that their positions
 * allow, so sequences are cut to at most 8192 tokens. */
static void dpari_config_seq(dpar_model *model, dpari_config_state *state)
{
    if (model->seq == 0) {
        switch (model->family) {
        case DPAR_MODEL_FAMILY_T5: model->seq = 512; break;
        case DPAR_MODEL_FAMILY_GPT: model->seq = 2048; break;
        default: model->seq = 8192; break;
        }
    }
    if (model->seq > 8192) {
        dpari_config_note(state, "8192 tokens per sample are assumed, the file allows %d: set seq",
                          model->seq);
        model->seq = 8192;
    }
}

/* Sets the tower of a multi-modal language model. Only one is modelled: that for images, if there
 * is one, otherwise that for audio. */
static void dpari_config_towers(dpar_model *model, dpari_config_state *state)
{
    const int audio = state->seen[DPARI_OBJECT_AUDIO];
    const int vision = state->seen[DPARI_OBJECT_VISION] ||
                       dpari_tower_find(&state->type[DPARI_OBJECT_WHOLE]) != NULL;
    if ((vision || audio) && model->family <= DPAR_MODEL_FAMILY_LLAMA) {
        dpari_config_tower(model, state, vision ? DPARI_OBJECT_VISION : DPARI_OBJECT_AUDIO);
    }
    if (vision && audio) {
        dpari_config_note(state, "'audio_config': its tower is not included");
    }
}

/* Makes the model from the members that were collected. Later steps use the fields that earlier
 * steps set. */
static DPARI_COLD DPARI_NOINLINE dpar_status dpari_config_finish(dpar_model *model,
                                                                 dpari_config_state *state,
                                                                 dpar_why *why)
{
    int32_t object = state->seen[DPARI_OBJECT_TEXT] ? DPARI_OBJECT_TEXT : DPARI_OBJECT_WHOLE;
    int32_t *value = state->value[object];
    const dpari_slice *architecture = &state->architecture[object];
    dpari_slice type = state->type[object];
    dpar_model m;
    dpar_status st;
    if (type.length == 0) {
        type = state->type[DPARI_OBJECT_WHOLE];
    }
    dpari_zero(&m, sizeof(m));
    /* this member of the whole model has priority over that of the language model */
    if (state->value[DPARI_OBJECT_WHOLE][DPARI_C_TIED] >= 0) {
        value[DPARI_C_TIED] = state->value[DPARI_OBJECT_WHOLE][DPARI_C_TIED];
    }
    st = dpari_config_kind(state, object, type, &m, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_config_defaults(state, &m, value);
    dpari_config_fields(&m, value);
    dpari_config_others(&m, state, value, &state->activation[object]);
    if (m.family == DPAR_MODEL_FAMILY_VIT || m.family == DPAR_MODEL_FAMILY_DIT) {
        dpari_config_image(&m, value, architecture);
    }
    m.layers = dpari_config_given(m.layers, state->mixes);
    dpari_config_widths(&m, state, value, &type);
    st = dpari_config_needed(&m, state, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (m.head_width < 1 && m.kv_lora < 1 && m.heads > 0 && m.hidden % m.heads != 0) {
        m.head_width = m.hidden / m.heads;
        dpari_config_note(state, "no head_dim: %d is used, hidden_size / num_attention_heads",
                          m.head_width);
    }
    if (m.family == DPAR_MODEL_FAMILY_VIT && m.out_channels == 0) {
        m.out_channels = state->labels;
    }
    dpari_config_head(&m, architecture, &type);
    if (m.family == DPAR_MODEL_FAMILY_T5 &&
        dpari_slice_holds(architecture->text, architecture->length, "ForCausalLM")) {
        dpari_config_note(state, "'%.*s' is only the decoder, but the encoder is included too",
                          dpari_config_shown(architecture->length), architecture->text);
    }
    dpari_config_positions(&m, value);
    st = dpari_config_layers(&m, state, value, &type, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_config_seq(&m, state);
    if (m.family == DPAR_MODEL_FAMILY_GPT) {
        m.stack = DPAR_MODEL_STACK_TORCH;
    }
    if (value[DPARI_M_MTP] > 0 && m.family == DPAR_MODEL_FAMILY_LLAMA) {
        dpari_config_note(
            state, "%d blocks for multi-token prediction are not included; mtp=1 includes one",
            value[DPARI_M_MTP]);
    }
    dpari_config_towers(&m, state);
    dpari_copy_text(m.note, sizeof(m.note), state->note.buffer, sizeof(m.note));
    *model = m;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_model_config(dpar_model *model, const char *json,
                                                         size_t bytes, dpar_why *why)
{
    dpari_json j;
    dpari_json_item item;
    dpari_config_state state;
    dpar_status st;
    char note[DPAR_MAX_NOTE];
    int32_t i, k;
    dpari_zero(&state, sizeof(state));
    for (i = 0; i < DPARI_OBJECTS; i++) {
        for (k = 0; k < DPARI_C_KEYS; k++) {
            state.value[i][k] = -1;
        }
        state.type[i].text = state.architecture[i].text = state.activation[i].text = "";
    }
    dpar_text_init(&state.note, note, sizeof(note));
    json += dpari_text_mark(json, bytes, &bytes);
    dpari_json_init(&j, json, bytes);
    do {
        st = dpari_json_next(&j, &item, why);
        if (st != DPAR_OK) {
            return st;
        }
        st = dpari_config_member(&state, &item, why);
        if (st != DPAR_OK) {
            return st;
        }
    } while (item.kind != DPARI_JSON_END);
    if (state.mixes > DPARI_MAX_LISTED || state.feeds > DPARI_MAX_LISTED) {
        return dpari_say(DPAR_E_RANGE, why,
                         "config.json: a list describes %d layers, but at most %d are possible",
                         state.mixes > state.feeds ? state.mixes : state.feeds,
                         (int32_t)DPARI_MAX_LISTED);
    }
    return dpari_config_finish(model, &state, why);
}

/* ==== cost/models.c ==== */

/* The presets, and the reader of any description of a model: a preset's name, settings, or a
 * config.json. A preset is a row of a table whose text has the form that users write, so it is read
 * like any other text. */

/* ---- presets: the same text form that users write -------------------------------------------- */

/* The presets. A row is a name and a text, each with its NUL; an empty name ends the rows. A text
 * may build on another preset. The rows are in several strings, because C99 guarantees only 4095
 * characters for one.
 *
 * Sources: SC21 Table 1 (Narayanan 2021), Korthikanti 2022 Table 3, Megatron's TP scaling table,
 * llm-foundry's yamls, the models' public config.json, and the cases of the teaching texts. MPT has
 * biases and learned positions, because only with these the number of parameters equals that of
 * llm-foundry's benchmark table. Images are height x width. The teaching texts name U-Nets without
 * their widths, so the presets assume 1440 x 720 cells with 8 surface fields and 8 fields on 12
 * levels (104 channels). With 3 levels from 160 channels on this gives the 50M parameters of case
 * 3, with 5 levels from 128 channels on a weather model of 116M. transformer-1b is case 4's "1B,
 * 128K tokens" with the widths of Llama-3.2-1B. */
static const char dpari_gpts[] =
    "gpt-1.7b\0gpt:24/2304/24/0/0/51200/2048,tied=1\0"
    "gpt-3.6b\0gpt-1.7b,30/3072/32\0"
    "gpt-7.5b\0gpt-1.7b,36/4096/32\0"
    "gpt-18.4b\0gpt-1.7b,40/6144/48\0"
    "gpt-39.1b\0gpt-1.7b,48/8192/64\0"
    "gpt-76.1b\0gpt-1.7b,60/10240/80\0"
    "gpt-145.6b\0gpt-1.7b,80/12288/96\0"
    "gpt-310.1b\0gpt-1.7b,96/16384/128\0"
    "gpt-529.6b\0gpt-1.7b,105/20480/128\0"
    "gpt-1008b\0gpt-1.7b,128/25600/160\0"
    "gpt-162.2b\0gpt-1.7b,32/20480/128\0"
    "gpt-5.9b\0gpt-1.7b,32/3840/32\0"
    "gpt3-175b\0gpt-1.7b,96/12288/96\0"
    "gpt-174.6b\0gpt3-175b\0"
    "megatron-22b\0gpt-1.7b,48/6144/64\0"
    "megatron-530b\0gpt-1.7b,105/20480/128\0"
    "mt-nlg-530b\0gpt-529.6b\0"
    "megatron-1t\0gpt-1.7b,128/25600/160\0"
    "megatron-1b\0gpt-1.7b,24/1920/15/0/0/0/1024\0"
    "megatron-2b\0gpt-1.7b,30/2304/18/0/0/0/1024\0"
    "megatron-4b\0gpt-1.7b,36/3072/24/0/0/0/1024\0"
    "megatron-8b\0gpt-1.7b,42/4096/32/0/0/0/1024\0"
    "gpt2-125m\0gpt:12/768/12/0/0/50257/1024,tied=1,stack=torch\0"
    "gpt2-1.5b\0gpt2-125m,48/1600/25\0"
    "gpt2\0gpt2-125m\0"
    "gpt2-xl\0gpt2-1.5b\0"
    "gpt-1.3b\0gpt-1.7b,24/2048/16/0/0/50304,stack=torch\0"
    "mpt-125m\0gpt:12/768/12/0/0/50368/2048,tied=1,stack=llm-foundry,attention=flash1,loss=fused\0"
    "mpt-350m\0mpt-125m,24/1024/16\0"
    "mpt-760m\0mpt-125m,24/1536/12\0"
    "mpt-1b\0mpt-125m,24/2048/16\0"
    "mpt-3b\0mpt-125m,32/2560/20\0"
    "mpt-7b\0mpt-125m,32/4096/32\0"
    "mpt-13b\0mpt-125m,40/5120/40\0"
    "mpt-30b\0mpt-125m,48/7168/56\0"
    "mpt-70b\0mpt-125m,80/8192/64\0";
static const char dpari_others[] =
    "llama-7b\0llama:32/4096/32/0/11008/32000/2048\0"
    "llama-13b\0llama-7b,40/5120/40/0/13824\0"
    "llama-30b\0llama-7b,60/6656/52/0/17920\0"
    "llama-65b\0llama-7b,80/8192/64/0/22016\0"
    "llama-2-7b\0llama:32/4096/32/0/11008/32000/4096\0"
    "llama-2-13b\0llama-2-7b,40/5120/40/0/13824\0"
    "llama-2-70b\0llama:80/8192/64/8/28672/32000/4096\0"
    "llama-3-8b\0llama:32/4096/32/8/14336/128256/8192\0"
    "llama-3.1-8b\0llama-3-8b\0"
    "llama-3.2-1b\0llama:16/2048/32/8/8192/128256/8192,tied=1\0"
    "smollm2-360m\0llama:32/960/15/5/2560/49152/2048,tied=1\0"
    "llama-3-70b\0llama-3-8b,80/8192/64/0/28672\0"
    "llama-3.1-405b\0llama-3-8b,126/16384/128/0/53248\0"
    "mistral-7b\0llama-3-8b,32/4096/32/0/0/32000\0"
    "mixtral-8x7b\0llama:32/4096/32/8/14336/32000/4096,experts=8,topk=2\0"
    "mixtral-8x22b\0mixtral-8x7b,56/6144/48/0/16384/32768\0"
    "qwen2.5-72b\0llama:80/8192/64/8/29568/152064/4096\0"
    "qwen3-4b\0llama:36/2560/32/8/9728/151936/4096,head_width=128,tied=1\0"
    "qwen3-32b\0llama:64/5120/64/8/25600/151936/4096,head_width=128\0"
    "qwen3-235b-a22b\0llama:94/4096/64/4/0/151936/4096,head_width=128,experts=128,topk=8,"
    "expert_ffn=1536\0"
    "gemma-1.1-2b\0llama:18/2048/8/1/16384/256000/8192,head_width=256,tied=1\0"
    "gemma-2-9b\0llama:42/3584/16/8/14336/256000/8192,head_width=256,tied=1\0"
    "gemma-2-27b\0llama:46/4608/32/16/36864/256000/8192,head_width=128,tied=1\0"
    "phi-3-mini\0llama:32/3072/32/0/8192/32064/4096\0"
    "deepseek-v2\0llama:60/5120/128/0/12288/102400/4096,q_lora=1536,kv_lora=512,"
    "rope_width=64,qk_width=128,v_width=128,experts=160,topk=6,expert_ffn=1536,"
    "shared_ffn=3072,dense_layers=1,expert_groups=8,topk_groups=3\0"
    "deepseek-v3\0llama:61/7168/128/0/18432/129280/4096,q_lora=1536,kv_lora=512,"
    "rope_width=64,qk_width=128,v_width=128,experts=256,topk=8,expert_ffn=2048,"
    "shared_ffn=2048,dense_layers=3,expert_groups=8,topk_groups=4\0"
    "vit-l\0vit:24/1024/16,image=224x224,patch=16,channels=3\0"
    "vit-h\0vit:32/1280/16,image=224x224,patch=14,channels=3\0"
    "vit-3.2b\0vit:40/2560/32,image=224x224,patch=14,channels=3,stack=torch\0"
    "dit-xl\0dit:28/1152/16,image=32x32,patch=2,channels=4,out_channels=8\0"
    "diffusion-5b\0dit:200/1152/16,image=256x256,patch=4,channels=16,out_channels=16\0"
    "t5-large\0t5:24/1024/16/0/4096/32128/512,tied=1\0"
    "t5-11b\0t5:24/1024/128/0/65536/32128/512,head_width=128,tied=1\0"
    "transformer-1b\0llama:16/2048/32/8/8192/32000/131072\0"
    "transformer-1b-128k\0transformer-1b\0"
    "resnet-50\0resnet:0/64,image=224x224,channels=3,stack=torch\0"
    "unet-50m\0unet:0/160,levels=3,blocks_per_level=4,image=720x1440,channels=104,"
    "stack=torch,element=4\0"
    "unet-0.25deg\0unet:0/128,levels=5,image=720x1440,channels=104,out_channels=104,"
    "stack=torch\0"
    "heat-3d\0grid:512x512x512,fields=1,halo=1,element=8\0"
    "shallow-water\0grid:3600x1800,fields=3,halo=2,element=8\0"
    "weather-0.25deg\0grid:1440x720x100,fields=5,halo=2\0";

static const char dpari_newer[] =
    "qwen3-30b-a3b\0qwen3-235b-a22b,48/2048/32,expert_ffn=768\0"
    "qwen3-0.6b\0qwen3-4b,28/1024/16/0/3072\0"
    "qwen3-1.7b\0qwen3-4b,28/2048/16/0/6144\0"
    "qwen3-8b\0qwen3-32b,36/4096/32/0/12288\0"
    "qwen3-14b\0qwen3-32b,40/0/40/0/17408\0"
    "qwen3-next-80b-a3b\0llama:48/2048/16/2/0/151936/4096,head_width=256,experts=512,"
    "topk=10,expert_ffn=512,shared_ffn=512,q_gate=1,pattern=SSSF,scan=3,scan_heads=32,"
    "scan_groups=16,scan_width=128,scan_state=128\0"
    "qwen2.5-7b\0qwen2.5-72b,28/3584/28/4/18944\0"
    "qwen2.5-32b\0qwen2.5-72b,64/5120/40/0/27648\0"
    "llama-3.1-70b\0llama-3-70b\0"
    "llama-3.3-70b\0llama-3-70b\0"
    "llama-3.2-3b\0llama-3.2-1b,28/3072/24\0"
    "llama-4-scout\0llama:48/5120/40/8/16384/202048/8192,experts=16,topk=1,expert_ffn=8192,"
    "shared_ffn=8192,window=8192,pattern=WWWF\0"
    "llama-4-maverick\0llama-4-scout,experts=128,expert_step=2,expert_offset=1\0"
    "mistral-nemo-12b\0mistral-7b,40/5120/0/0/0/131072,head_width=128\0"
    "mistral-small-24b\0mistral-nemo-12b,ffn=32768\0"
    "gpt-oss-120b\0llama:36/2880/64/8/0/201088/4096,head_width=64,experts=128,topk=4,"
    "expert_ffn=2880,window=128,pattern=WF\0"
    "gpt-oss-20b\0gpt-oss-120b,24,experts=32\0"
    "gemma-3-4b\0llama:34/2560/8/4/10240/262208/8192,head_width=256,tied=1,window=1024,"
    "pattern=WWWWWF\0"
    "gemma-3-12b\0gemma-3-4b,48/3840/16/8/15360\0"
    "gemma-3-27b\0gemma-3-12b,62/5376/32/16/21504,head_width=128\0"
    "deepseek-r1\0deepseek-v3\0"
    "kimi-k2\0deepseek-v3,0/0/64/0/0/163840,experts=384,dense_layers=1,"
    "expert_groups=1,topk_groups=1\0"
    "glm-4.5\0llama:92/5120/96/8/12288/151552/4096,head_width=128,experts=160,topk=8,"
    "expert_ffn=1536,shared_ffn=1536,dense_layers=3\0"
    "glm-4.5-air\0glm-4.5,46/4096/0/0/10944,experts=128,expert_ffn=1408,shared_ffn=1408,"
    "dense_layers=1\0"
    "olmoe-1b-7b\0llama:16/2048/16/0/0/50304/4096,experts=64,topk=8,expert_ffn=1024\0"
    "phi-4\0phi-3-mini,40/5120/40/10/17920/100352\0"
    "bert-base\0gpt:12/768/12/0/0/30522/512,positions=514,causal=-1,head=3,tied=1\0"
    "bert-large\0bert-base,24/1024/16\0";

/* Returns the preset after `row`, or the first one if `row` is NULL. Returns NULL after the last.
 */
static const char *dpari_preset_next(const char *row)
{
    row = row == NULL ? dpari_gpts : dpari_behind(dpari_behind(row));
    if (*row != 0) {
        return row;
    }
    if (row == dpari_gpts + sizeof(dpari_gpts) - 1) {
        return dpari_others;
    }
    return row == dpari_others + sizeof(dpari_others) - 1 ? dpari_newer : NULL;
}

DPAR_API const char *dpar_model_name(int32_t index)
{
    const char *row = index < 0 ? NULL : dpari_preset_next(NULL);
    for (; row != NULL && index > 0; index--) {
        row = dpari_preset_next(row);
    }
    return row;
}

/* ---- a preset by its name -------------------------------------------------------------------- */

/* Appends "; models of that size are 'llama-13b', 'mpt-13b'" with up to three presets whose names
 * end in "-" and the given letters. Returns their number. */
static DPARI_COLD int32_t dpari_model_sizes(dpar_text *text, const char *s, size_t n)
{
    const char *row;
    int32_t found = 0;
    for (row = dpari_preset_next(NULL); row != NULL && found < 3; row = dpari_preset_next(row)) {
        const size_t m = dpari_length(row);
        if (n < m && row[m - n - 1] == '-' && dpari_spells_any_case(s, n, row + m - n)) {
            dpari_text_print(text, "%s'%s'", found > 0 ? ", " : "; models of that size are ", row);
            found++;
        }
    }
    return found;
}

/* Reports an unknown model. If the name is only a size, such as "13B", the message lists models of
 * that size. Otherwise it suggests the nearest name, unless more than half of its letters differ.
 */
static DPARI_COLD dpar_status dpari_model_unknown(const char *s, size_t n, const char *best,
                                                  dpar_why *why)
{
    char text[160];
    dpar_text t;
    dpar_text_init(&t, text, sizeof(text));
    dpar_text_put(&t, "unknown model '");
    dpari_text_slice(&t, s, n < 60 ? n : 60);
    dpari_text_char(&t, '\'');
    if (n == 0 || s[0] < '0' || s[0] > '9' || dpari_model_sizes(&t, s, n) == 0) {
        if (dpari_unlike(s, n, best) <= 3 * (int32_t)n) {
            dpari_text_print(&t, "; the nearest is '%s'", best);
        } else {
            dpar_text_put(&t, ", and no name is similar: plan --list shows all");
        }
    }
    return dpari_repeat(DPAR_E_UNKNOWN, why, text);
}

/* Reads a preset. */
static dpar_status dpari_model_named(dpar_model *model, const char *s, size_t n, dpar_why *why)
{
    const char *row, *best = dpari_preset_next(NULL);
    for (row = best; row != NULL; row = dpari_preset_next(row)) {
        if (dpari_spells_any_case(s, n, row)) {
            const char *text = dpari_behind(row);
            dpar_status st = dpar_model_read(model, text, dpari_length(text), why);
            dpari_copy_text(model->name, sizeof(model->name), row, 20);
            return st;
        }
        if (dpari_unlike(s, n, row) < dpari_unlike(s, n, best)) {
            best = row;
        }
    }
    return dpari_model_unknown(s, n, best, why);
}

DPAR_API DPARI_COLD dpar_status dpar_model_find(dpar_model *model, const char *name, dpar_why *why)
{
    dpar_model fresh;
    dpar_status st;
    dpari_zero(&fresh, sizeof(fresh));
    st = dpari_model_named(&fresh, name, dpari_length(name), why);
    if (st == DPAR_OK) {
        *model = fresh;
    }
    return st;
}

/* ---- any of these texts ---------------------------------------------------------------------- */

/* Returns 1 if a text begins like JSON, after a byte order mark and blanks, otherwise 0. */
static int dpari_model_is_json(const char *text, size_t bytes)
{
    size_t n = bytes, i = 0;
    text += dpari_text_mark(text, bytes, &n);
    while (i < n && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n')) {
        i++;
    }
    return i < n && (text[i] == '{' || text[i] == '[');
}

/* Reads the text of a config.json. Settings may follow the last brace, after a comma. */
static dpar_status dpari_model_file(dpar_model *model, const char *text, size_t bytes,
                                    dpar_why *why)
{
    dpar_status st;
    size_t end = bytes;
    while (end > 0 && text[end - 1] != '}') {
        end--;
    }
    if (end == 0 || end == bytes || text[end] != ',') {
        return dpari_model_config(model, text, bytes, why);
    }
    st = dpari_model_config(model, text, end, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_model_settings(model, text + end + 1, bytes - end - 1, why);
}

/* Reads "FAMILY:settings" or "PRESET,settings". */
static dpar_status dpari_model_text(dpar_model *model, const char *text, size_t bytes,
                                    dpar_why *why)
{
    dpar_status st;
    const size_t first = dpari_until(text, bytes, ','), colon = dpari_until(text, first, ':');
    if (bytes == 0) {
        return dpari_say(DPAR_E_PARSE, why,
                         "no model: give a preset (llama-3-8b), FAMILY:settings or a config.json");
    }
    if (colon < first) {
        st = dpari_model_family(model, text, colon, bytes, why);
        dpari_copy_text(model->name, sizeof(model->name), text, colon);
        return st;
    }
    st = dpari_model_named(model, text, first, why);
    if (st != DPAR_OK || first == bytes) {
        return st;
    }
    return dpari_model_settings(model, text + first + 1, bytes - first - 1, why);
}

DPAR_API DPARI_COLD dpar_status dpar_model_read(dpar_model *model, const char *text, size_t bytes,
                                                dpar_why *why)
{
    dpar_model m;
    dpar_status st;
    dpari_zero(&m, sizeof(m));
    if (dpari_model_is_json(text, bytes)) {
        st = dpari_model_file(&m, text, bytes, why);
    } else {
        st = dpari_model_text(&m, text, bytes, why);
    }
    if (st == DPAR_OK) {
        *model = m;
    }
    return st;
}

/* ==== cost/strategy.c ==== */

/* Strategies: the recipes, the text form, and the rules that a legal strategy obeys. The planner
 * checks every strategy that it prices with dpari_strategy_check. */

/* ---- names ----------------------------------------------------------------------------------- */

/* The names of DPAR_RECOMPUTE_*: the four values, then the bits. */
static const char dpari_recompute_word[7][12] = {"none", "selective",  "full",   "alternate",
                                                 "norm", "activation", "experts"};

DPARI_INTERNAL DPARI_COLD void dpari_write_recompute(dpar_text *text, int32_t recompute)
{
    int32_t i;
    if ((recompute & 3) > 0 || recompute == 0) {
        dpar_text_put(text, dpari_recompute_word[recompute & 3]);
    }
    for (i = 0; i < 3; i++) {
        if (recompute >> (2 + i) & 1) {
            dpari_text_print(text, "%s%s", (recompute & ((4 << i) - 1)) > 0 ? "+" : "",
                             dpari_recompute_word[4 + i]);
        }
    }
}

/* Reads words joined by '+': at most one of the four values, and bits. Returns -1 if a word does
 * not exist or the words cannot be combined. */
static int32_t dpari_read_recompute(const char *s, size_t n)
{
    int32_t bits = 0, i;
    while (n > 0) {
        const size_t k = dpari_until(s, n, '+');
        for (i = 0; i < 7 && !dpari_spells(s, k, dpari_recompute_word[i]); i++) {
        }
        if (i == 7 || (i < 4 && (bits & 3) > 0)) {
            return -1;
        }
        bits |= i < 4 ? i : 1 << (i - 2);
        s += k < n ? k + 1 : k;
        n -= k < n ? k + 1 : k;
    }
    return (bits & 3) > DPAR_RECOMPUTE_SELECTIVE && bits > 3 ? -1 : bits;
}

DPARI_INTERNAL const char *dpari_cp_name(int32_t cp_kind)
{
    static const char name[DPAR_CP_KIND_COUNT][12] = {"ring", "ulysses", "gather"};
    return cp_kind >= 0 && cp_kind < DPAR_CP_KIND_COUNT ? name[cp_kind] : "?";
}

DPAR_API const char *dpar_strategy_rule_name(int32_t rule)
{
    static const char name[DPAR_STRATEGY_RULE_COUNT][16] = {
        "none", "degree", "ranks", "tp-heads", "tp-across-nodes", "pp-layers", "schedule", "cp",
        "ep",   "zero",   "batch", "tiles",    "option",          "offload",   "memory"};
    return rule >= 0 && rule < DPAR_STRATEGY_RULE_COUNT ? name[rule] : "?";
}

/* ---- recipes --------------------------------------------------------------------------------- */

/* The recipes. The fields are those of dpar_recipe. Sources: the ZeRO paper, Megatron's distributed
 * optimizer, DeepSpeed's estimator, FSDP2's mixed precision.
 *
 * casts: a 16-bit number is read, and written in 8 bits together with a transposed copy, which are
 * 4 bytes. FSDP scales by the whole tensor of this step and therefore reads the number twice: 6
 * bytes. */
static const struct {
    char name[16];
    float weight, gradient, master, moments, gathered, reduced;
    int8_t compute, casts;
} dpari_recipe[] = {{"megatron", 2, 4, 4, 8, 2, 4, DPAR_BF16, 0},
                    {"bf16", 2, 4, 4, 8, 2, 4, DPAR_BF16, 0},
                    {"zero", 2, 2, 4, 8, 2, 2, DPAR_BF16, 0},
                    {"fp16", 2, 2, 4, 8, 2, 2, DPAR_BF16, 0},
                    {"deepspeed", 2, 6, 4, 8, 2, 2, DPAR_BF16, 0},
                    {"fp32", 4, 4, 0, 8, 4, 4, DPAR_TF32, 0},
                    {"pure-bf16", 2, 2, 0, 4, 2, 2, DPAR_BF16, 0},
                    {"adam8", 2, 4, 4, 2, 2, 4, DPAR_BF16, 0},
                    {"no-master", 2, 2, 0, 8, 2, 2, DPAR_BF16, 0},
                    {"fsdp", 4, 4, 0, 8, 2, 2, DPAR_BF16, 0},
                    {"fp8", 3, 2, 4, 8, 2, 2, DPAR_F8, 4},
                    {"bf16-moments", 2, 4, 4, 4, 2, 4, DPAR_BF16, 0},
                    {"fsdp-fp8", 4, 4, 0, 8, 2, 2, DPAR_F8, 6},
                    {"fsdp-fp8-row", 4, 4, 0, 8, 2, 2, DPAR_BF16, 6},
                    {"zero++", 2, 2, 4, 8, 1, 0.5f, DPAR_BF16, 0},
                    {"fp8-grad32", 3, 4, 4, 8, 2, 4, DPAR_F8, 4},
                    {"bf16-grad16", 2, 2, 4, 8, 2, 2, DPAR_BF16, 0},
                    /* two copies of each weight, by rows and by columns, with a scale for each 32
                     * (mxfp8) or 16 of them (nvfp4); nvfp4 also keeps a 16-bit weight */
                    {"mxfp8", 2.0625f, 2, 4, 8, 1, 2, DPAR_F8, 4},
                    {"nvfp4", 3.125f, 2, 4, 8, 2, 2, DPAR_F4, 4}};

enum { DPARI_RECIPES = (int)(sizeof(dpari_recipe) / sizeof(dpari_recipe[0])) };

DPAR_API const char *dpar_recipe_name(int32_t index)
{
    return index >= 0 && index < DPARI_RECIPES ? dpari_recipe[index].name : NULL;
}

DPAR_API DPARI_COLD dpar_status dpar_recipe_find(dpar_recipe *recipe, const char *name,
                                                 dpar_why *why)
{
    int32_t i;
    for (i = 0; i < DPARI_RECIPES; i++) {
        if (dpari_same(name, dpari_recipe[i].name)) {
            dpari_copy_text(recipe->name, sizeof(recipe->name), name, sizeof(recipe->name));
            recipe->weight = (double)dpari_recipe[i].weight;
            recipe->gradient = (double)dpari_recipe[i].gradient;
            recipe->master = (double)dpari_recipe[i].master;
            recipe->moments = (double)dpari_recipe[i].moments;
            recipe->gathered = (double)dpari_recipe[i].gathered;
            recipe->reduced = (double)dpari_recipe[i].reduced;
            recipe->compute = dpari_recipe[i].compute;
            recipe->casts = dpari_recipe[i].casts;
            recipe->bucket = dpari_same(name, "deepspeed") ? 5e8 : 0.0;
            return DPAR_OK;
        }
    }
    return dpari_say(DPAR_E_UNKNOWN, why,
                     "unknown precision '%s'; one of megatron (= bf16), zero (= fp16), "
                     "deepspeed, fp32, pure-bf16, adam8, no-master, fsdp, fp8, fsdp-fp8, "
                     "fsdp-fp8-row, bf16-moments, zero++, fp8-grad32, bf16-grad16, mxfp8, nvfp4",
                     name);
}

/* ---- the text form --------------------------------------------------------------------------- */

DPAR_API void dpar_strategy_init(dpar_strategy *strategy)
{
    dpari_zero(strategy, sizeof(*strategy));
    strategy->tp = strategy->cp = strategy->dp = strategy->pp = strategy->vp = strategy->ep =
        strategy->etp = 1;
    strategy->micro_batch = strategy->micro_batches = 1;
    strategy->schedule = DPAR_SCHEDULE_1F1B;
    strategy->overlap = DPAR_OVERLAP_DEFAULT;
    strategy->tiles[0] = strategy->tiles[1] = strategy->tiles[2] = 1;
}

/* What fields of a strategy take in addition to DPARI_FIELD_*. */
enum {
    DPARI_STRATEGY_CP_KIND = DPARI_FIELD_OWN,
    DPARI_STRATEGY_SCHEDULE,
    DPARI_STRATEGY_RECOMPUTE,
    DPARI_STRATEGY_OFFLOAD,
    DPARI_STRATEGY_OVERLAP,
    DPARI_STRATEGY_TILES
};

#define DPARI_STRATEGY_PLACE(field) DPARI_PLACE(dpar_strategy, field)
/* The fields in the order of DPAR_STRATEGY_FIELD_*, then short names. */
static const dpari_field dpari_strategy_field[] = {
    {"tp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(tp)},
    {"sp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(sp)},
    {"cp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(cp)},
    {"cp_kind", DPARI_STRATEGY_CP_KIND, DPARI_STRATEGY_PLACE(cp_kind)},
    {"dp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(dp)},
    {"shard", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(shard)},
    {"zero", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(zero)},
    {"pp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(pp)},
    {"vp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(vp)},
    {"schedule", DPARI_STRATEGY_SCHEDULE, DPARI_STRATEGY_PLACE(schedule)},
    {"ep", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(ep)},
    {"etp", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(etp)},
    {"micro_batch", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(micro_batch)},
    {"micro_batches", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(micro_batches)},
    {"recompute", DPARI_STRATEGY_RECOMPUTE, DPARI_STRATEGY_PLACE(recompute)},
    {"recompute_layers", DPARI_FIELD_COUNT, DPARI_STRATEGY_PLACE(recompute_layers)},
    {"offload", DPARI_STRATEGY_OFFLOAD, DPARI_STRATEGY_PLACE(offload)},
    {"overlap", DPARI_STRATEGY_OVERLAP, DPARI_STRATEGY_PLACE(overlap)},
    {"tiles", DPARI_STRATEGY_TILES, DPARI_STRATEGY_PLACE(tiles)},
    {"mbs", DPARI_FIELD_ALIAS, DPAR_STRATEGY_FIELD_MICRO_BATCH},
    {"m", DPARI_FIELD_ALIAS, DPAR_STRATEGY_FIELD_MICRO_BATCHES}};

DPARI_INTERNAL int32_t *dpari_strategy_at(dpar_strategy *strategy, int32_t field)
{
    return (int32_t *)(void *)((char *)strategy + dpari_strategy_field[field].place);
}

/* The names of the bits of overlap and of offload. */
static const char dpari_bit_name[2][6][12] = {
    {"dp", "tp", "pp", "default", "ep", "shared"},
    {"optimizer", "weights", "activations", "nvme", "", ""}};

/* Returns the bits of names joined by '+', as in "optimizer+activations", or -1 for an unknown
 * name. */
static int32_t dpari_read_bits(const char *s, size_t n, int32_t offload)
{
    int32_t bits = 0, i;
    size_t at = 0;
    while (at <= n) {
        const size_t k = dpari_until(s + at, n - at, '+');
        for (i = 0; i < 6 && !dpari_spells(s + at, k, dpari_bit_name[offload][i]); i++) {
        }
        if (k == 0 || (i == 6 && !dpari_spells(s + at, k, "none"))) {
            return -1;
        }
        bits |= i < 6 ? 1 << i : 0;
        at += k + 1;
    }
    return offload && (bits & DPAR_OFFLOAD_NVME) ? bits | DPAR_OFFLOAD_OPTIMIZER : bits;
}

/* Reads tiles from "2x4". */
static dpar_status dpari_read_tiles(const dpari_setting *setting, int32_t *tiles, dpar_why *why)
{
    int64_t extent[3] = {1, 1, 1};
    int32_t i;
    if (dpari_extents(setting->value, setting->value_length, extent, 3) == 0) {
        return dpari_setting_bad(setting, why, "1 to 3 whole numbers joined by 'x', such as 2x4,");
    }
    for (i = 0; i < 3; i++) {
        tiles[i] = (int32_t)extent[i];
    }
    return DPAR_OK;
}

/* Reads a setting that is not a plain number. */
static DPARI_COLD dpar_status dpari_strategy_own(void *object, const dpari_setting *setting,
                                                 dpar_why *why)
{
    dpar_strategy *strategy = (dpar_strategy *)object;
    const char *expected = "key=value", *value = setting->value;
    const size_t n = setting->value_length;
    int32_t bits = -1, *place = &strategy->overlap;
    switch (setting->field) {
    case DPAR_STRATEGY_FIELD_CP_KIND:
        return dpari_setting_choice(setting, dpari_cp_name, 0, DPAR_CP_KIND_COUNT,
                                    &strategy->cp_kind, why);
    case DPAR_STRATEGY_FIELD_SCHEDULE:
        return dpari_setting_choice(setting, dpar_schedule_name, 1, DPAR_SCHEDULE_PRICED_END,
                                    &strategy->schedule, why);
    case DPAR_STRATEGY_FIELD_TILES: return dpari_read_tiles(setting, strategy->tiles, why);
    case DPAR_STRATEGY_FIELD_RECOMPUTE:
        expected = "none, selective, full or alternate, or some of selective, norm, activation and "
                   "experts joined by '+',";
        place = &strategy->recompute;
        bits = n > 0 ? dpari_read_recompute(value, n) : -1;
        break;
    case DPAR_STRATEGY_FIELD_OFFLOAD:
        expected = "none, or some of optimizer, weights, activations and nvme joined by '+',";
        place = &strategy->offload;
        bits = dpari_read_bits(value, n, 1);
        break;
    case DPAR_STRATEGY_FIELD_OVERLAP:
        expected = "default, none, or some of dp, tp, pp, ep and shared joined by '+',";
        bits = dpari_read_bits(value, n, 0);
        break;
    default: break;
    }
    if (bits < 0) {
        return dpari_setting_bad(setting, why, expected);
    }
    *place = bits;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_strategy_read(dpar_strategy *strategy, const char *text,
                                                   size_t bytes, uint32_t *named, dpar_why *why)
{
    const uint64_t vp = (uint64_t)1 << DPAR_STRATEGY_FIELD_VP;
    const uint64_t schedule = (uint64_t)1 << DPAR_STRATEGY_FIELD_SCHEDULE;
    dpar_strategy s = *strategy;
    dpari_fields fields;
    uint64_t seen[2] = {0, 0};
    dpar_status st = DPAR_OK;
    fields.list = dpari_strategy_field;
    fields.count = (int32_t)(sizeof(dpari_strategy_field) / sizeof(dpari_strategy_field[0]));
    fields.of = "a strategy";
    fields.more = "; known: tp sp cp cp_kind dp shard zero pp vp schedule ep etp mbs m recompute "
                  "recompute_layers offload overlap tiles";
    fields.own = dpari_strategy_own;
    if (bytes > 0) {
        st = dpari_settings_read(&fields, text, bytes, &s, seen, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    /* vp > 1 implies the interleaved schedule unless another one is named */
    if ((seen[0] & vp) && s.vp > 1 && !(seen[0] & schedule) && s.schedule == DPAR_SCHEDULE_1F1B) {
        s.schedule = DPAR_SCHEDULE_INTERLEAVED;
    }
    *strategy = s;
    if (named != NULL) {
        *named = (uint32_t)seen[0];
    }
    return DPAR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

DPARI_STATIC_NOINLINE void dpari_write_pair(dpar_text *text, const char *name, int64_t v)
{
    dpari_text_print(text, ",%s=%ld", name, v);
}

DPARI_INTERNAL void dpari_write_bits(dpar_text *text, const char *name, int32_t bits,
                                     int32_t offload)
{
    int32_t i, n = 0;
    dpar_text_put(text, name);
    for (i = 0; i < 6; i++) {
        if (bits >> i & 1) {
            dpari_text_print(text, "%s%s", n > 0 ? "+" : "", dpari_bit_name[offload][i]);
            n++;
        }
    }
    dpar_text_put(text, n == 0 ? "none" : "");
}

DPARI_INTERNAL void dpari_write_tiles(dpar_text *text, const int32_t *tiles)
{
    dpari_text_print(text, "%dx%d", tiles[0], tiles[1]);
    if (tiles[2] > 1) {
        dpari_text_print(text, "x%d", tiles[2]);
    }
}

DPAR_API DPARI_COLD void dpar_strategy_write(const dpar_strategy *strategy, dpar_text *text)
{
    dpari_text_print(text, "dp=%d", strategy->dp);
    if (strategy->shard > 0 && strategy->shard < strategy->dp) {
        dpari_write_pair(text, "shard", strategy->shard);
    }
    dpari_write_pair(text, "zero", strategy->zero);
    dpari_write_pair(text, "tp", strategy->tp);
    if (strategy->tp > 1) {
        dpari_write_pair(text, "sp", strategy->sp);
    }
    if (strategy->cp > 1) {
        dpari_write_pair(text, "cp", strategy->cp);
        dpari_text_print(text, ",cp_kind=%s", dpari_cp_name(strategy->cp_kind));
    }
    dpari_write_pair(text, "pp", strategy->pp);
    if (strategy->pp > 1) {
        dpari_write_pair(text, "vp", strategy->vp);
        dpari_text_print(text, ",schedule=%s", dpar_schedule_name(strategy->schedule));
    }
    if (strategy->ep * strategy->etp > 1) {
        dpari_write_pair(text, "ep", strategy->ep);
        dpari_write_pair(text, "etp", strategy->etp);
    }
    if (dpari_tiles(strategy) > 1) {
        dpar_text_put(text, ",tiles=");
        dpari_write_tiles(text, strategy->tiles);
    }
    dpari_write_pair(text, "mbs", strategy->micro_batch);
    dpari_write_pair(text, "m", strategy->micro_batches);
    if (strategy->recompute != DPAR_RECOMPUTE_NONE) {
        dpar_text_put(text, ",recompute=");
        dpari_write_recompute(text, strategy->recompute);
    }
    if (strategy->recompute_layers > 0) {
        dpari_write_pair(text, "recompute_layers", strategy->recompute_layers);
    }
    if (strategy->offload != 0) {
        dpari_write_bits(text, ",offload=", strategy->offload, 1);
    }
    if (!(strategy->overlap & DPAR_OVERLAP_DEFAULT)) {
        dpari_write_bits(text, ",overlap=", strategy->overlap, 0);
    }
}

/* ---- rules ----------------------------------------------------------------------------------- */

DPAR_API int32_t dpar_strategy_ranks(const dpar_strategy *strategy)
{
    int64_t n = 1;
    int32_t i, ok = strategy->tp > 0 && strategy->cp > 0 && strategy->dp > 0 && strategy->pp > 0;
    ok = ok && dpari_mul(n, strategy->tp, &n) && dpari_mul(n, strategy->cp, &n) && n <= INT32_MAX;
    ok = ok && dpari_mul(n, strategy->dp, &n) && n <= INT32_MAX && dpari_mul(n, strategy->pp, &n);
    for (i = 0; i < 3; i++) {
        ok = ok && n <= INT32_MAX && strategy->tiles[i] > 0 && dpari_mul(n, strategy->tiles[i], &n);
    }
    return ok && n <= INT32_MAX ? (int32_t)n : 0;
}

/* Sets the rule that a strategy breaks and writes the message. Returns DPAR_E_ARG for a field that
 * is out of its range, otherwise DPAR_E_DIVIDE. */
static DPARI_PRINTF(4, 5) dpar_status
    dpari_refuse(int32_t *rule, int32_t which, dpar_why *why, const char *form, ...)
{
    dpar_status status = which == DPAR_STRATEGY_RULE_DEGREE ? DPAR_E_ARG : DPAR_E_DIVIDE;
    va_list list;
    if (rule != NULL) {
        *rule = which;
    }
    va_start(list, form);
    status = dpari_say_list(status, why, form, &list);
    va_end(list);
    return status;
}

/* Checks that every field is in its range. */
static DPARI_COLD dpar_status dpari_check_degrees(const dpar_strategy *strategy, int32_t *rule,
                                                  dpar_why *why)
{
    /* `most` is 0 if there is no limit */
    static const struct {
        int8_t field, least, most;
    } range[] = {{DPAR_STRATEGY_FIELD_TP, 1, 0},
                 {DPAR_STRATEGY_FIELD_CP, 1, 0},
                 {DPAR_STRATEGY_FIELD_DP, 1, 0},
                 {DPAR_STRATEGY_FIELD_PP, 1, 0},
                 {DPAR_STRATEGY_FIELD_VP, 1, 0},
                 {DPAR_STRATEGY_FIELD_EP, 1, 0},
                 {DPAR_STRATEGY_FIELD_ETP, 1, 0},
                 {DPAR_STRATEGY_FIELD_MICRO_BATCH, 1, 0},
                 {DPAR_STRATEGY_FIELD_MICRO_BATCHES, 1, 0},
                 {DPAR_STRATEGY_FIELD_RECOMPUTE_LAYERS, 0, 0},
                 {DPAR_STRATEGY_FIELD_SHARD, 0, 0},
                 {DPAR_STRATEGY_FIELD_ZERO, 0, 3},
                 {DPAR_STRATEGY_FIELD_SP, 0, 1}};
    dpar_strategy given = *strategy;
    size_t i;
    for (i = 0; i < sizeof(range) / sizeof(range[0]); i++) {
        const char *name = dpari_strategy_field[range[i].field].name;
        const int32_t v = *dpari_strategy_at(&given, range[i].field);
        const int32_t least = range[i].least, most = range[i].most;
        if (most > 0 && (v < least || v > most)) {
            return dpari_refuse(rule, DPAR_STRATEGY_RULE_DEGREE, why, "%s=%d must be %d to %d",
                                name, v, least, most);
        }
        if (v < least) {
            return dpari_refuse(rule, DPAR_STRATEGY_RULE_DEGREE, why, "%s=%d must be at least %d",
                                name, v, least);
        }
    }
    if (strategy->schedule == 0) {
        return dpari_refuse(
            rule, DPAR_STRATEGY_RULE_DEGREE, why,
            "schedule=0: set a schedule, such as DPAR_SCHEDULE_1F1B (dpar_strategy_init does)");
    }
    if (strategy->recompute < 0 || strategy->recompute > 31 ||
        (strategy->recompute > 3 && (strategy->recompute & 3) > 1) || strategy->schedule < 1 ||
        strategy->schedule >= DPAR_SCHEDULE_PRICED_END || strategy->cp_kind < 0 ||
        strategy->cp_kind >= DPAR_CP_KIND_COUNT) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_DEGREE, why,
                            "recompute=%d, schedule=%d or cp_kind=%d is not one that is priced",
                            strategy->recompute, strategy->schedule, strategy->cp_kind);
    }
    return DPAR_OK;
}

DPARI_INTERNAL double dpari_zero_ranks(const dpar_strategy *strategy)
{
    return (double)(strategy->shard > 0 ? strategy->shard : strategy->dp) * strategy->cp *
           (double)dpari_tiles(strategy);
}

DPARI_INTERNAL int dpari_sequence_cuts(const dpar_workload *work, const dpar_strategy *strategy)
{
    int64_t parts = (int64_t)strategy->tp * strategy->cp;
    return work->heads > 0 && parts > 0 && (int64_t)work->tokens % parts == 0;
}

/* Checks that tp divides heads and hidden size, and that sequence parallelism divides the tokens.
 * There may be fewer key-value heads than tp, because ranks can hold copies of them. */
static DPARI_COLD dpar_status dpari_check_tensor(const dpar_workload *work,
                                                 const dpar_strategy *strategy, int32_t *rule,
                                                 dpar_why *why)
{
    if (strategy->tp > 1 && work->heads > 0 && work->heads % strategy->tp != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_TP_HEADS, why,
                            "tp=%d does not divide %d attention heads", strategy->tp, work->heads);
    }
    if (strategy->tp > 1 && work->kv_heads > 0 && work->kv_heads % strategy->tp != 0 &&
        strategy->tp % work->kv_heads != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_TP_HEADS, why,
                            "tp=%d and %d key-value heads: neither divides the other", strategy->tp,
                            work->kv_heads);
    }
    if (strategy->tp > 1 && (work->hidden < 1 || work->hidden % strategy->tp != 0)) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_TP_HEADS, why,
                            "tp=%d does not divide hidden=%d", strategy->tp, work->hidden);
    }
    if (strategy->sp && (strategy->tp == 1 || work->heads == 0)) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_OPTION, why,
                            "sequence parallelism (sp=1) needs tp > 1 and a model with attention "
                            "(tp=%d)",
                            strategy->tp);
    }
    if (strategy->sp && !dpari_sequence_cuts(work, strategy)) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_OPTION, why,
                            "sp=1: tp=%d x cp=%d does not divide %ld tokens", strategy->tp,
                            strategy->cp, (int64_t)work->tokens);
    }
    return DPAR_OK;
}

/* Checks recomputation, and that the layers suffice for the stages and the schedule allows pp, vp
 * and the micro-batches. Embedding and loss may count as two layers. */
static DPARI_COLD dpar_status dpari_check_pipeline(const dpar_workload *work,
                                                   const dpar_strategy *strategy, int32_t *rule,
                                                   dpar_why *why)
{
    int64_t chunks = (int64_t)strategy->pp * strategy->vp;
    int looped = dpari_looped(strategy->schedule), folded = dpari_v_shaped(strategy->schedule);
    if (strategy->recompute != DPAR_RECOMPUTE_NONE && !work->trains) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_OPTION, why,
                            "recompute=%d must be 0 (none), because the job has no backward",
                            strategy->recompute);
    }
    if (strategy->recompute_layers > 0 &&
        (strategy->recompute != DPAR_RECOMPUTE_FULL || strategy->recompute_layers > work->blocks)) {
        return dpari_refuse(
            rule, DPAR_STRATEGY_RULE_OPTION, why,
            "recompute_layers=%d needs recompute=full and must be at most %d layers",
            strategy->recompute_layers, work->blocks);
    }
    if (strategy->pp > 1 && chunks > work->blocks && (work->blocks + INT64_C(2)) % chunks != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_PP_LAYERS, why,
                            "pp=%d x vp=%d needs at least as many layers, the model has %d",
                            strategy->pp, strategy->vp, work->blocks);
    }
    if (strategy->vp > 1 && (strategy->pp == 1 || !(looped || (folded && strategy->vp == 2)))) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_SCHEDULE, why,
                            "vp=%d needs pp > 1 (pp=%d) and an interleaved, breadth-first or, with "
                            "vp=2, V schedule",
                            strategy->vp, strategy->pp);
    }
    if (strategy->pp > 1 && folded && strategy->vp != 2) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_SCHEDULE, why,
                            "a V schedule has two chunks per rank: vp=2, not %d", strategy->vp);
    }
    if (strategy->schedule == DPAR_SCHEDULE_INTERLEAVED && strategy->pp > 1 &&
        (strategy->vp < 2 ||
         strategy->micro_batches % dpari_most(1, strategy->micro_batches / strategy->pp) != 0)) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_SCHEDULE, why,
                            "interleaving needs vp >= 2 (vp=%d) and m=%d micro-batches in equal "
                            "rounds of at least pp=%d",
                            strategy->vp, strategy->micro_batches, strategy->pp);
    }
    if (strategy->pp > 1 &&
        (strategy->schedule == DPAR_SCHEDULE_DUALPIPE ||
         strategy->schedule == DPAR_SCHEDULE_DUALPIPEV) &&
        (strategy->micro_batches < 2 * strategy->pp ||
         (strategy->schedule == DPAR_SCHEDULE_DUALPIPE &&
          (strategy->pp % 2 != 0 || strategy->micro_batches % 2 != 0)))) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_SCHEDULE, why,
                            "DualPipe needs m >= 2 pp, and unless it is DualPipeV an even m and "
                            "pp: m=%d, pp=%d",
                            strategy->micro_batches, strategy->pp);
    }
    return DPAR_OK;
}

/* Checks that cp divides the tokens, and with Ulysses the heads. In a ring each rank has two pieces
 * of the sequence, so that every rank has the same work in causal attention. */
static DPARI_COLD dpar_status dpari_check_context(const dpar_workload *work,
                                                  const dpar_strategy *strategy, int32_t *rule,
                                                  dpar_why *why)
{
    int64_t tokens = (int64_t)work->tokens;
    if (strategy->cp > 1 && work->heads == 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_CP, why, "cp=%d: the model has no sequence",
                            strategy->cp);
    }
    if (strategy->cp > 1 && strategy->cp_kind == DPAR_CP_RING &&
        tokens % (2 * (int64_t)strategy->cp) != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_CP, why,
                            "ring attention: 2 cp = %ld does not divide %ld tokens",
                            2 * (int64_t)strategy->cp, tokens);
    }
    if (strategy->cp > 1 && tokens % strategy->cp != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_CP, why, "cp=%d does not divide %ld tokens",
                            strategy->cp, tokens);
    }
    if (strategy->cp > 1 && strategy->cp_kind == DPAR_CP_ULYSSES &&
        (work->heads / strategy->tp) % strategy->cp != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_CP, why,
                            "Ulysses: cp=%d does not divide the %d heads that tp=%d leaves",
                            strategy->cp, work->heads / strategy->tp, strategy->tp);
    }
    return DPAR_OK;
}

/* Checks that ep divides the experts, and ep x etp the ranks of a stage. */
static DPARI_COLD dpar_status dpari_check_experts(const dpar_workload *work,
                                                  const dpar_strategy *strategy, int32_t *rule,
                                                  dpar_why *why)
{
    int64_t ranks = (int64_t)strategy->tp * strategy->cp * strategy->dp;
    if ((strategy->ep > 1 || strategy->etp > 1) && work->experts == 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_EP, why,
                            "ep=%d, etp=%d: the model has no experts", strategy->ep, strategy->etp);
    }
    if (strategy->ep > 1 && work->experts % strategy->ep != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_EP, why, "ep=%d does not divide %d experts",
                            strategy->ep, work->experts);
    }
    if ((strategy->ep > 1 || strategy->etp > 1) &&
        ranks % ((int64_t)strategy->ep * strategy->etp) != 0) {
        return dpari_refuse(
            rule, DPAR_STRATEGY_RULE_EP, why,
            "ep x etp = %ld does not divide the %ld ranks of a stage (tp x cp x dp)",
            (int64_t)strategy->ep * strategy->etp, ranks);
    }
    if (work->experts > 0 && strategy->tp > 1 &&
        strategy->sp == 0) { /* without SP, every TP rank would route every token */
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_EP, why,
                            "tp=%d with %d experts needs sequence parallelism: sp=1", strategy->tp,
                            work->experts);
    }
    return DPAR_OK;
}

/* Checks that the grid has the axes that are divided, and that in every layer a tile is at least as
 * deep as a halo, so that halos reach only one tile. */
static DPARI_COLD dpar_status dpari_check_tiles(const dpar_workload *work,
                                                const dpar_strategy *strategy, int32_t *rule,
                                                dpar_why *why)
{
    int32_t i, k;
    if (strategy->tiles[0] < 1 || strategy->tiles[1] < 1 || strategy->tiles[2] < 1) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_DEGREE, why,
                            "tiles must be at least 1: %dx%dx%d", strategy->tiles[0],
                            strategy->tiles[1], strategy->tiles[2]);
    }
    for (i = 0; i < 3; i++) {
        if (strategy->tiles[i] > 1 && i >= work->dims) {
            return dpari_refuse(rule, DPAR_STRATEGY_RULE_TILES, why,
                                "%d tiles along axis %d, but the model's grid has %d axes",
                                strategy->tiles[i], i, work->dims);
        }
        for (k = 0; strategy->tiles[i] > 1 && k < work->layers; k++) {
            int64_t cells = work->extent[i] / work->layer[k].shrink / strategy->tiles[i];
            if (work->layer[k].exchanges > 0 && cells < dpari_most(2, work->layer[k].reach)) {
                return dpari_refuse(
                    rule, DPAR_STRATEGY_RULE_TILES, why,
                    "%d tiles along an axis of %ld cells leave %ld cells each in some layer: a "
                    "tile needs 2, and all of its neighbour's halo",
                    strategy->tiles[i], work->extent[i], cells);
            }
        }
    }
    return DPAR_OK;
}

/* Checks shards, the global batch and offloading. */
static DPARI_COLD dpar_status dpari_check_data(const dpar_job *job, const dpar_strategy *strategy,
                                               int64_t global_batch, int32_t *rule, dpar_why *why)
{
    int64_t batch = 0;
    if (strategy->shard > 0 && strategy->dp % strategy->shard != 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_ZERO, why, "shard=%d does not divide dp=%d",
                            strategy->shard, strategy->dp);
    }
    if (!dpari_mul((int64_t)strategy->dp * strategy->micro_batch, strategy->micro_batches,
                   &batch)) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_BATCH, why,
                            "dp=%d x mbs=%d x m=%d is too large", strategy->dp,
                            strategy->micro_batch, strategy->micro_batches);
    }
    if (global_batch > 0 && batch != global_batch) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_BATCH, why,
                            "dp x mbs x m = %ld samples per step, but the global batch is %ld",
                            batch, global_batch);
    }
    if (strategy->offload != 0 && !(job->cluster->host_bytes > 0.0)) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_OFFLOAD, why,
                            "offload=%d needs the host's memory: add host=GB to the machine",
                            strategy->offload);
    }
    if (strategy->offload < 0 || strategy->offload > 15 ||
        ((strategy->offload & DPAR_OFFLOAD_NVME) &&
         (!(job->cluster->nvme_Bps > 0.0) || !(strategy->offload & DPAR_OFFLOAD_OPTIMIZER)))) {
        return dpari_refuse(
            rule, DPAR_STRATEGY_RULE_OFFLOAD, why,
            "offload=%d must be 0 to 15; NVMe (8) needs the optimizer (1) and nvme=GB/s "
            "of the machine",
            strategy->offload);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_strategy_check(const dpar_job *job,
                                                           const dpar_strategy *strategy,
                                                           int64_t global_batch, int32_t *rule,
                                                           dpar_why *why)
{
    const dpar_workload *work = job->work;
    int32_t ranks = dpar_strategy_ranks(strategy), gpus = dpari_cluster_gpus(job->cluster);
    dpar_status st = dpari_check_degrees(strategy, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_check_tiles(work, strategy, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (ranks != gpus && ranks == 0) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_RANKS, why,
                            "tp x cp x dp x pp x tiles are more than 2^31 - 1 ranks, the cluster "
                            "has %d GPUs",
                            gpus);
    }
    if (ranks != gpus) {
        return dpari_refuse(rule, DPAR_STRATEGY_RULE_RANKS, why,
                            "tp x cp x dp x pp x tiles = %d ranks, the cluster has %d GPUs", ranks,
                            gpus);
    }
    st = dpari_check_tensor(work, strategy, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_check_pipeline(work, strategy, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_check_context(work, strategy, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_check_experts(work, strategy, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_check_data(job, strategy, global_batch, rule, why);
    if (st == DPAR_OK && rule != NULL) {
        *rule = DPAR_STRATEGY_RULE_NONE;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_strategy_complete(const dpar_job *job, dpar_strategy *strategy,
                                                       uint32_t named, int64_t batch, dpar_why *why)
{
    const int32_t gpus = dpari_cluster_gpus(job->cluster);
    dpar_strategy one = *strategy;
    int32_t model;
    one.dp = 1;
    model = dpar_strategy_ranks(&one); /* 0 if a degree is below 1 or they exceed 2^31 - 1 */
    if ((named >> DPAR_STRATEGY_FIELD_DP & 1u) == 0 && model > 0) {
        if (gpus % model != 0) {
            return dpari_say(DPAR_E_DIVIDE, why,
                             "tp x cp x pp x tiles = %d ranks do not divide the cluster's %d GPUs",
                             model, gpus);
        }
        strategy->dp = gpus / model;
    }
    if ((named >> DPAR_STRATEGY_FIELD_MICRO_BATCHES & 1u) == 0 && batch > 0 && strategy->dp > 0 &&
        strategy->micro_batch > 0) {
        const int64_t m = batch / ((int64_t)strategy->dp * strategy->micro_batch);
        strategy->micro_batches = m > 0 && m < INT32_MAX ? (int32_t)m : 1;
    }
    return DPAR_OK;
}

/* ==== cost/memory.c ==== */

/* Predicts the memory of each pipeline stage term by term, with the formulas that are published for
 * Megatron, FSDP and DeepSpeed, and takes the stage that needs the most. The planner calls
 * dpari_price_memory for each strategy, and dpari_memory_fits to drop those that do not fit. */

DPAR_API const char *dpar_memory_name(int32_t term)
{
    static const char name[DPAR_MEMORY_COUNT][16] = {
        "weights", "gradients", "master",    "optimizer", "activations", "logits",       "gathered",
        "buckets", "halo",      "transient", "comm",      "context",     "fragmentation"};
    return term >= 0 && term < DPAR_MEMORY_COUNT ? name[term] : "?";
}

DPARI_INTERNAL double dpari_zero_bytes(const dpar_recipe *recipe, double params, int32_t stage,
                                       int32_t d)
{
    const double n = d > 0 ? d : 1;
    const double weight = recipe->weight / (stage >= 3 ? n : 1.0);
    const double gradient = recipe->gradient / (stage >= 2 ? n : 1.0);
    const double state = (recipe->master + recipe->moments) / (stage >= 1 ? n : 1.0);
    return params * (weight + gradient + state);
}

/* These are the published rules of the schedules; a simulation of the schedules gives the same
 * numbers. The unit is the activations of a full stage, so a chunk of an interleaved stage counts
 * 1/v. GPipe and breadth-first keep all micro-batches, and no schedule keeps more than there
 * are. */
DPARI_INTERNAL double dpari_in_flight(int32_t schedule, int32_t pp, int32_t vp, int32_t rank,
                                      int32_t micro_batches)
{
    double p = pp, v = vp, r = rank, m = micro_batches, n;
    if (pp < 1 || vp < 1 || rank < 0 || rank >= pp || micro_batches < 1) {
        return 0.0;
    }
    switch (pp > 1 ? schedule : DPAR_SCHEDULE_1F1B) {
    case DPAR_SCHEDULE_GPIPE:
    case DPAR_SCHEDULE_BREADTH_FIRST: return m;
    case DPAR_SCHEDULE_INTERLEAVED: n = ((v - 1.0) * p + 2.0 * (p - 1.0 - r) + 1.0) / v; break;
    case DPAR_SCHEDULE_ZB_H1:
    case DPAR_SCHEDULE_ZBV: n = p; break;
    case DPAR_SCHEDULE_ZB_2P: n = 2.0 * p; break;
    case DPAR_SCHEDULE_V_HALF: n = (double)((pp + 2) / 2); break;
    case DPAR_SCHEDULE_V_MIN: n = (double)((pp + 4) / 3); break;
    case DPAR_SCHEDULE_DUALPIPE: n = p + 1.0; break;
    case DPAR_SCHEDULE_DUALPIPEV: n = p + 0.5; break;
    default: n = p - r; break;
    }
    return dpari_leastf(n, m);
}

/* ---- terms ----------------------------------------------------------------------------------- */

/* Sets the terms of weights, gradients, master weights and moments, divided as the ZeRO stage says.
 * Context-parallel ranks and the tiles of a sample hold the same weights, so they share the state
 * too (Megatron's distributed optimizer). */
static void dpari_memory_states(const dpar_job *job, const dpar_strategy *strategy,
                                const dpari_stage *st, dpar_memory_usage *memory)
{
    const dpar_recipe *recipe = &job->recipe;
    double d = dpari_zero_ranks(strategy);
    double experts = dpari_mostf(1.0, d * strategy->tp / ((double)strategy->ep * strategy->etp));
    double dense = st->params, moe = st->expert_params;
    double state = strategy->zero >= 1 ? dense / d + moe / experts : dense + moe;
    double grads = strategy->zero >= 2 ? dense / d + moe / experts : dense + moe;
    double held = strategy->zero >= 3 ? dense / d + moe / experts : dense + moe;
    /* With DualPipe a rank holds two stages, one from each end. The rank at the mirrored position
     * holds the same two, so ZeRO divides their optimizer state between both ranks. */
    if (strategy->schedule == DPAR_SCHEDULE_DUALPIPE && strategy->pp > 1) {
        held *= 2.0;
        grads *= 2.0;
        state *= strategy->zero >= 1 ? 1.0 : 2.0;
    }
    memory->params = dense + moe;
    memory->term[DPAR_MEMORY_WEIGHTS] = held * recipe->weight;
    if (!job->work->trains) {
        return;
    }
    memory->term[DPAR_MEMORY_GRADIENTS] = grads * recipe->gradient;
    memory->term[DPAR_MEMORY_MASTER] = state * recipe->master;
    memory->term[DPAR_MEMORY_OPTIMIZER] = state * recipe->moments;
}

/* Reduces a term to at most `stay` bytes on the GPU. The rest moves to the host's memory if
 * `in_memory`, otherwise to NVMe, which is not counted. */
static DPARI_COLD void dpari_memory_leave(dpar_memory_usage *memory, int32_t term, double stay,
                                          int in_memory)
{
    double left = dpari_leastf(memory->term[term], stay);
    if (in_memory) {
        memory->host += memory->term[term] - left;
    }
    memory->term[term] = left;
}

/* Moves the terms that the strategy offloads to the host or to NVMe. */
static DPARI_COLD void dpari_memory_offload(const dpar_job *job, const dpar_strategy *strategy,
                                            const dpari_stage *st, dpar_memory_usage *memory)
{
    if (strategy->offload & DPAR_OFFLOAD_OPTIMIZER) {
        int in_memory = !(strategy->offload & DPAR_OFFLOAD_NVME);
        dpari_memory_leave(memory, DPAR_MEMORY_MASTER, 0.0, in_memory);
        dpari_memory_leave(memory, DPAR_MEMORY_OPTIMIZER, 0.0, in_memory);
        if (strategy->zero >=
            2) { /* gradients are sent to the host at once; only the buckets stay */
            dpari_memory_leave(memory, DPAR_MEMORY_GRADIENTS, 0.0, 1);
        }
    }
    if (strategy->offload & DPAR_OFFLOAD_WEIGHTS) { /* two layers at a time stay on the device */
        dpari_memory_leave(memory, DPAR_MEMORY_WEIGHTS, 2.0 * st->largest * job->recipe.weight, 1);
    }
    if (strategy->offload & DPAR_OFFLOAD_ACTIVATIONS) { /* one micro-batch and two layers stay */
        dpari_memory_leave(memory, DPAR_MEMORY_ACTIVATIONS,
                           2.0 * st->kept / dpari_mostf(1.0, st->layers), 1);
    }
}

/* Sets the terms of gathered weights and of gradient buckets.
 *
 * FSDP gathers units: ZeRO-3 holds the current unit and the next one, which is prefetched. With
 * ZeRO-2 and 3 the gradients of one unit exist in full before they are scattered, in the format in
 * which they are sent, but at least 16 bits.
 *
 * DeepSpeed has no units but buckets, of 5e8 elements by default. Up to two buckets of weights are
 * alive and one more is being fetched, all in 16 bits; two buckets of gradients are in flight, in
 * 32 bits. */
static void dpari_memory_buffers(const dpar_job *job, const dpar_strategy *strategy,
                                 const dpari_stage *st, dpar_memory_usage *memory)
{
    const dpar_recipe *recipe = &job->recipe;
    double unit = st->largest, bucket = dpari_leastf(recipe->bucket, memory->params);
    if (job->work->stack == DPAR_MODEL_STACK_MEGATRON && strategy->zero >= 2) {
        bucket = dpari_leastf(5e8, memory->params);
    }
    if (strategy->zero >= 2 && bucket > 0.0 && dpari_zero_ranks(strategy) > 1.0) {
        memory->term[DPAR_MEMORY_BUCKETS] = 2.0 * 4.0 * bucket;
        if (strategy->zero == 3) { /* the largest weight of a layer is about a third of the layer */
            memory->term[DPAR_MEMORY_GATHERED] =
                2.0 * (dpari_mostf(2.0 * bucket, unit / 3.0) + bucket);
        }
        return;
    }
    if (strategy->zero >= 3 && dpari_zero_ranks(strategy) > 1.0) {
        /* the products need at least 16 bits, even if fewer are sent */
        memory->term[DPAR_MEMORY_GATHERED] = 2.0 * unit * dpari_mostf(2.0, recipe->gathered);
        memory->term[DPAR_MEMORY_BUCKETS] = unit * dpari_mostf(2.0, recipe->reduced);
    } else if (strategy->dp > 1 && job->work->stack >= DPAR_MODEL_STACK_TORCH &&
               recipe->gradient <= recipe->weight) {
        /* PyTorch DDP copies the gradients into buckets of 25 MB and sends those. Gradients that
         * are wider than the weights are in a separate buffer, which is sent without a copy. */
        memory->term[DPAR_MEMORY_BUCKETS] =
            strategy->zero == 0 ? memory->params * recipe->reduced : 4.0 * 25e6;
    } else if (strategy->zero == 2 && dpari_zero_ranks(strategy) > 1.0) {
        memory->term[DPAR_MEMORY_BUCKETS] = unit * dpari_mostf(2.0, recipe->reduced);
    }
}

/* Sets the term of halos: the two faces of a tile along each dim that is cut. */
static DPARI_COLD void dpari_memory_halo(const dpar_job *job, const dpar_strategy *strategy,
                                         dpar_memory_usage *memory)
{
    const dpar_workload *work = job->work;
    double bytes = 0.0;
    int32_t i;
    for (i = 0; i < work->layers && work->dims > 0; i++) {
        bytes += dpari_halo_cells(work, &work->layer[i], strategy) * work->layer[i].reach_bytes *
                 work->layer[i].count;
    }
    memory->term[DPAR_MEMORY_HALO] =
        2.0 * bytes * strategy->micro_batch; /* received cells and a send buffer */
}

/* Sets the terms of the peak. In the backward of a block its gradients and all dummies so far are
 * alive; in Megatron-Core without a pipeline the logits are alive too. In other programs the logits
 * are freed before (a pipeline frees the output of a stage once it is sent), so the loss is a peak
 * of its own, and only its excess over the block's peak counts as LOGITS. */
static void dpari_memory_peak(const dpar_job *job, const dpar_strategy *strategy,
                              const dpari_stage *st, dpar_memory_usage *memory)
{
    double head = st->logits > 0.0 && strategy->zero < 3 ? st->head_dummies : 0.0;
    double block = st->transient + (strategy->zero < 3 ? st->dummies : 0.0) + head;
    if (strategy->pp > 1) { /* an activation received and a gradient to send */
        block += 2.0 * st->boundary;
    }
    if (strategy->pp > 1 || job->work->stack != DPAR_MODEL_STACK_MEGATRON_CORE) {
        memory->term[DPAR_MEMORY_LOGITS] = dpari_mostf(0.0, st->logits + head - block);
    } else {
        memory->term[DPAR_MEMORY_LOGITS] = st->logits;
    }
    memory->term[DPAR_MEMORY_TRANSIENT] = block;
    memory->moment = st->logits + head > block ? DPAR_MEMORY_PEAK_LOSS : DPAR_MEMORY_PEAK_LAYER;
}

/* Returns 1 if gathered weights are released late, otherwise 0.
 *
 * DeepSpeed's ZeRO-3 releases them late. If computing takes longer than gathering, all weights
 * accumulate, in 16 bits. There are two causes. The backward of a product keeps the weight of its
 * forward; DeepSpeed's own linear layer does not, but it is used only under zero.Init
 * (deepspeedai/DeepSpeed PR 8189). In a recomputed layer, where the weight is not kept, the block
 * of a gather is released only when the computing stream has caught up with the host, which may be
 * a whole pass ahead. If the weights come from the host, the gathers take longer than the products,
 * so the host is not ahead. The allocator waits for such blocks before it fails, so they never
 * prevent a plan from fitting. */
static int dpari_memory_late(const dpar_job *job, const dpar_strategy *strategy)
{
    return strategy->zero == 3 && job->work->trains && dpari_zero_ranks(strategy) > 1.0 &&
           (job->recipe.bucket > 0.0 || job->work->stack == DPAR_MODEL_STACK_MEGATRON) &&
           !((strategy->offload & DPAR_OFFLOAD_WEIGHTS) &&
             strategy->recompute == DPAR_RECOMPUTE_FULL);
}

/* Predicts the memory of a stage: all terms and their sums. */
static void dpari_stage_bytes(const dpar_job *job, const dpar_strategy *strategy,
                              const dpari_stage *st, dpar_memory_usage *memory)
{
    int32_t i, ranks = dpar_strategy_ranks(strategy);
    double sum = 0.0, spread = 0.05;
    dpari_zero(memory, sizeof(*memory));
    memory->worst = st->rank;
    dpari_memory_states(job, strategy, st, memory);
    memory->term[DPAR_MEMORY_ACTIVATIONS] = st->kept;
    if (job->work->trains) {
        memory->term[DPAR_MEMORY_ACTIVATIONS] *= dpari_in_flight(
            strategy->schedule, strategy->pp, strategy->vp, st->rank, strategy->micro_batches);
    }
    if (strategy->offload != 0) {
        dpari_memory_offload(job, strategy, st, memory);
    }
    dpari_memory_buffers(job, strategy, st, memory);
    dpari_memory_halo(job, strategy, memory);
    dpari_memory_peak(job, strategy, st, memory);
    for (i = 0; i < DPAR_MEMORY_COMM; i++) {
        sum += memory->term[i];
    }
    memory->allocated = sum;
    if (job->cluster->gpu.generation != DPAR_GEN_CPU) {
        /* measured: 0.3 to 1 GB for NCCL's buffers, 0.4 to 0.8 GB for a CUDA context */
        memory->term[DPAR_MEMORY_COMM] = ranks > 1 ? 0.6e9 : 0.0;
        memory->term[DPAR_MEMORY_CONTEXT] = 0.6e9;
    }
    if (strategy->zero == 3 &&
        (job->recipe.bucket > 0.0 || job->work->stack == DPAR_MODEL_STACK_MEGATRON)) {
        spread = 0.2; /* DeepSpeed gathers parameter by parameter, between activations */
    }
    memory->term[DPAR_MEMORY_FRAGMENTATION] = job->work->trains ? spread * sum : 0.0;
    for (i = DPAR_MEMORY_COMM; i < DPAR_MEMORY_COUNT; i++) {
        sum += memory->term[i];
    }
    memory->total = sum;
    /* 3 % to 10 % in place of 5 %, and 12 % to 25 % in place of 20 % */
    memory->lower = sum - memory->term[DPAR_MEMORY_FRAGMENTATION] * 0.4;
    memory->upper = sum + memory->term[DPAR_MEMORY_FRAGMENTATION] * 0.05 / spread;
    if (dpari_memory_late(job, strategy)) {
        memory->late = dpari_leastf(
            2.0 * memory->params, dpari_mostf(0.0, job->cluster->gpu.memory_bytes - memory->upper));
        memory->term[DPAR_MEMORY_GATHERED] += memory->late;
        memory->allocated += memory->late;
        memory->total += memory->late;
        memory->upper += memory->late;
    }
}

DPARI_INTERNAL void dpari_price_memory(const dpar_job *job, const dpar_strategy *strategy,
                                       const dpari_stages *stages, dpar_memory_usage *memory)
{
    int32_t i;
    double first = 0.0, last = 0.0;
    dpari_zero(memory, sizeof(*memory));
    for (i = 0; i < stages->n; i++) {
        dpar_memory_usage one;
        dpari_stage_bytes(job, strategy, &stages->of[i], &one);
        if (i == 0) {
            first = one.total;
        }
        last = one.total;
        if (i == 0 || one.total - one.late > memory->total - memory->late) {
            *memory = one;
        }
    }
    memory->first = first;
    memory->last = last;
}

DPAR_API DPARI_COLD void dpar_memory_stage(const dpar_job *job, const dpar_strategy *strategy,
                                           int32_t rank, dpar_memory_usage *memory)
{
    dpari_layers layers;
    dpari_stage st;
    rank = (int32_t)dpari_most(0, dpari_least(rank, (int64_t)strategy->pp - 1));
    dpari_price_layers(job, strategy, &layers);
    dpari_price_stage(job, strategy, &layers, rank, &st);
    dpari_stage_bytes(job, strategy, &st, memory);
    memory->first = memory->last = memory->total;
}

DPARI_INTERNAL int32_t dpari_memory_runs(const dpar_job *job, const dpar_memory_usage *memory)
{
    const dpar_cluster *cluster = job->cluster;
    return memory->lower <= cluster->gpu.memory_bytes &&
           memory->host * cluster->gpus_per_node <= cluster->host_bytes;
}

DPARI_INTERNAL int32_t dpari_memory_fits(const dpar_job *job, const dpar_memory_usage *memory,
                                         double limit)
{
    const dpar_cluster *cluster = job->cluster;
    return memory->upper - memory->late <= (limit > 0.0 ? limit : cluster->gpu.memory_bytes) &&
           memory->host * cluster->gpus_per_node <= cluster->host_bytes;
}

/* ==== cost/traffic.c ==== */

/* Counts the traffic of a step. It prices the strategy with a tally (price.h), which records every
 * call that the prices include, and adds the calls that are too small to be priced. Programs call
 * dpar_traffic_count, to compare its numbers with those that communicators count. */

/* Counts the layers of class i in all stages together, and how many of them repeat their
 * forward. */
static void dpari_traffic_layers(const dpar_job *job, const dpar_strategy *strategy, int32_t i,
                                 double *layers, double *again)
{
    const dpar_workload *work = job->work;
    int32_t rank, k;
    *layers = *again = 0.0;
    if (work->layer[i].kind != DPAR_LAYER_BLOCK) {
        *layers = work->layer[i].count;
        return;
    }
    for (rank = 0; rank < strategy->pp; rank++) {
        double mine = dpari_stage_blocks(work, strategy, rank, i), all = 0.0;
        for (k = 0; k < work->layers; k++) {
            all += work->layer[k].kind == DPAR_LAYER_BLOCK
                       ? dpari_stage_blocks(work, strategy, rank, k)
                       : 0.0;
        }
        *layers += mine;
        if (strategy->recompute == DPAR_RECOMPUTE_FULL) {
            *again += mine * dpari_recomputed_share(strategy, all);
        }
    }
}

/* Adds the bytes that the layers send in the micro-batches of a step. */
static void dpari_traffic_of_layers(const dpar_job *job, const dpar_strategy *strategy,
                                    double ranks, dpar_traffic *t)
{
    int32_t i, what, kind;
    for (i = 0; i < job->work->layers; i++) {
        dpari_tally tally;
        double layers, again;
        dpari_zero(&tally, sizeof(tally));
        tally.ranks = ranks;
        dpari_tally_layer(job, strategy, i, &tally);
        dpari_traffic_layers(job, strategy, i, &layers, &again);
        for (what = 0; what < DPAR_TRAFFIC_COUNT; what++) {
            for (kind = 0; kind < DPAR_CALL_COLLECTIVE_COUNT; kind++) {
                double back = job->work->trains ? tally.backward[what][kind] : 0.0;
                t->bytes[what][kind] +=
                    strategy->micro_batches *
                    ((layers + again) * tally.forward[what][kind] + layers * back);
            }
        }
    }
}

/* Adds the all-reduce of the weights that are not cut: with sequence parallelism a rank has their
 * gradients for its own tokens only, so they are summed once per step. */
static void dpari_traffic_of_norms(const dpar_job *job, const dpar_strategy *strategy,
                                   dpari_tally *tally)
{
    const dpar_workload *work = job->work;
    double params = 0.0;
    int32_t i, k;
    for (i = 0; i < work->layers; i++) {
        for (k = 0; k < work->layer[i].ops; k++) {
            const dpari_layer_op *op = &work->op[work->layer[i].first + k];
            params += op->cut == DPARI_CUT_SEQUENCE ? op->params * work->layer[i].count : 0.0;
        }
    }
    if (strategy->sp && work->trains) {
        dpari_tally_add(tally, DPAR_TRAFFIC_TP, DPAR_CALL_ALL_REDUCE, strategy->tp,
                        params * job->recipe.reduced, 0.0, 1.0);
    }
}

/* Returns the weights of the first two units that have weights, or of the last two if step is -1.
 */
static double dpari_traffic_ends(const dpar_workload *work, const dpari_layers *layers, int experts,
                                 int32_t step)
{
    double sum = 0.0, left = 2.0;
    int32_t i;
    for (i = step > 0 ? 0 : work->layers - 1; i >= 0 && i < work->layers; i += step) {
        double each = experts ? layers->of[i].expert_params : layers->of[i].params;
        double n = each > 0.0 ? dpari_leastf(left, work->layer[i].count) : 0.0;
        sum += n * each;
        left -= n;
    }
    return sum;
}

/* Subtracts the weights that ZeRO-3 does not gather again, because they are still in memory: the
 * last two units at the m turns from forward to backward, and the first two at the m - 1 turns
 * back. */
static void dpari_traffic_of_turns(const dpar_job *job, const dpar_strategy *strategy,
                                   const dpari_layers *layers, dpari_tally *tally)
{
    double m = strategy->micro_batches, bytes = job->recipe.gathered;
    int32_t experts, ranks[2]; /* numbers of ranks that share the dense weights, and the experts'
                                  weights */
    if (strategy->zero != 3 || strategy->pp != 1 || !job->work->trains) {
        return;
    }
    ranks[0] = (int32_t)dpari_zero_ranks(strategy);
    ranks[1] = (int32_t)((int64_t)strategy->tp * strategy->dp * strategy->cp /
                         ((int64_t)strategy->ep * strategy->etp));
    for (experts = 0; experts < 2; experts++) {
        double here = dpari_traffic_ends(job->work, layers, experts, -1) * m +
                      dpari_traffic_ends(job->work, layers, experts, 1) * (m - 1.0);
        dpari_tally_add(tally, DPAR_TRAFFIC_DP, DPAR_CALL_ALL_GATHER, ranks[experts], here * bytes,
                        0.0, -1.0);
    }
}

/* Returns the number of pairs of neighbouring chunks on different ranks. */
static double dpari_traffic_borders(const dpar_strategy *strategy)
{
    double n = 0.0;
    int32_t rank, v;
    int64_t chunks = (int64_t)strategy->pp * strategy->vp;
    for (rank = 0; rank < strategy->pp; rank++) {
        for (v = 0; v < strategy->vp; v++) {
            int64_t c = dpari_chunk_of(strategy, rank, v);
            int next_here = v + 1 < strategy->vp && dpari_chunk_of(strategy, rank, v + 1) == c + 1;
            n += c + 1 < chunks && !next_here;
        }
    }
    return n;
}

/* Adds the messages of the micro-batches, and the gradient of an embedding that the first and the
 * last stage share. */
static void dpari_traffic_of_pipeline(const dpar_job *job, const dpar_strategy *strategy,
                                      const dpari_layers *layers, dpari_tally *tally)
{
    const dpar_workload *work = job->work;
    double ways = work->trains ? 2.0 : 1.0, table = (double)work->vocab * work->hidden;
    int32_t i, tied = 0;
    for (i = 0; i < work->layers; i++) {
        /* a head with fewer weights than the table shares it with the embedding */
        tied |= work->layer[i].kind == DPAR_LAYER_HEAD && work->vocab > 0 &&
                dpari_layer_params(work, i) < table;
    }
    dpari_tally_add(tally, DPAR_TRAFFIC_PP, DPAR_CALL_SEND_RECV, strategy->pp,
                    dpari_boundary_bytes(job, strategy, layers), 0.0,
                    ways * strategy->micro_batches * dpari_traffic_borders(strategy));
    if (tied && dpari_ends_apart(strategy) && work->trains) { /* one pair for each rank of a
                                                                 stage */
        tally->backward[DPAR_TRAFFIC_PP][DPAR_CALL_ALL_REDUCE] +=
            2.0 * tally->ranks * (table / strategy->tp * job->recipe.reduced);
    }
}

DPAR_API DPARI_COLD void dpar_traffic_count(const dpar_job *job, const dpar_strategy *strategy,
                                            dpar_traffic *traffic)
{
    dpari_layers layers;
    dpari_stage st;
    dpari_tally tally;
    int32_t i, kind;
    dpari_zero(traffic, sizeof(*traffic));
    dpari_zero(&tally, sizeof(tally));
    tally.ranks = (double)dpar_strategy_ranks(strategy) / strategy->pp;
    dpari_price_layers(job, strategy, &layers);
    dpari_traffic_of_layers(job, strategy, tally.ranks, traffic);
    for (i = 0; i < strategy->pp; i++) {
        dpari_price_stage(job, strategy, &layers, i, &st);
        dpari_tally_data(job, strategy, &st, &tally);
    }
    dpari_traffic_of_turns(job, strategy, &layers, &tally);
    dpari_traffic_of_norms(job, strategy, &tally);
    dpari_traffic_of_pipeline(job, strategy, &layers, &tally);
    for (i = 0; i < DPAR_TRAFFIC_COUNT; i++) {
        for (kind = 0; kind < DPAR_CALL_COLLECTIVE_COUNT; kind++) {
            traffic->bytes[i][kind] += tally.backward[i][kind];
            traffic->total += traffic->bytes[i][kind];
        }
    }
}

/* ==== cost/step.c ==== */

/* Combines the prices of stages into the time of a step. The slowest stage sets the pace of the
 * pipeline. Its data-parallel messages and its optimizer are added. The terms add up to the time of
 * the step. The planner calls dpari_price_step for every strategy that fits. */

DPAR_API DPARI_COLD const char *dpar_time_name(int32_t term)
{
    static const char name[DPAR_TIME_COUNT][12] = {
        "forward", "backward", "recompute", "tp", "cp",        "ep",      "halo",
        "pp",      "bubble",   "imbalance", "dp", "optimizer", "offload", "host"};
    return term >= 0 && term < DPAR_TIME_COUNT ? name[term] : "?";
}

/* ---- data parallelism ------------------------------------------------------------------------ */

/* The messages of data parallelism. */
typedef struct dpari_data {
    double before, after;     /* seconds once per step, to gather weights and to reduce gradients */
    double forward, backward; /* seconds in every micro-batch (ZeRO-2 and 3) */
    double unit;              /* part of `forward`, to gather the first unit, which no compute
                                 hides */
    double link_bytes, nic_bytes; /* bytes per step */
    dpari_tally *tally;           /* NULL if the calls are not counted */
} dpari_data;

/* Returns the seconds of `calls` calls that together send `bytes`. Adds these bytes `times`
 * times. */
static double dpari_data_spend(const dpar_job *job, const dpar_cluster_group *group, int32_t kind,
                               double bytes, double calls, double times, dpari_data *d)
{
    dpar_collective_cost c;
    dpari_tally_add(d->tally, DPAR_TRAFFIC_DP, kind, group->size, bytes, 0.0, times);
    dpar_collective_predict(job->cluster, group, kind, bytes / calls, &c);
    d->link_bytes += c.link_bytes * calls * times;
    d->nic_bytes += c.nic_bytes * calls * times;
    return c.seconds * calls;
}

/* Adds the traffic of the gradients and weights of one kind, dense or experts. n: ranks with the
 * same weights, `stride` apart; shard: ranks of a ZeRO group; units: parts in which ZeRO-3
 * gathers. */
static void dpari_data_of(const dpar_job *job, const dpar_strategy *strategy, double params,
                          double units, int32_t n, int32_t shard, int32_t stride, dpari_data *d)
{
    const dpar_recipe *recipe = &job->recipe;
    dpar_cluster_group in, across;
    double grads = params * recipe->reduced, weights = params * recipe->gathered,
           m = strategy->micro_batches, t;
    if (n <= 1 || params <= 0.0) {
        return;
    }
    dpar_cluster_group_init(&in, job->cluster, strategy->zero == 0 ? n : shard, stride);
    if (strategy->zero == 0) {
        d->after += dpari_data_spend(job, &in, DPAR_CALL_ALL_REDUCE, grads, 1.0, 1.0, d);
        return;
    }
    if (shard < n) { /* HSDP: the replicas of a shard reduce its gradients */
        dpar_cluster_group_init(&across, job->cluster, n / shard, stride * shard);
        d->after +=
            dpari_data_spend(job, &across, DPAR_CALL_ALL_REDUCE, grads / shard, 1.0, 1.0, d);
    }
    if (shard <= 1) {
        return;
    }
    if (strategy->zero == 3) {
        t = dpari_data_spend(job, &in, DPAR_CALL_ALL_GATHER, weights, units, 2.0 * m, d);
        d->forward += t;
        d->backward += t + dpari_data_spend(job, &in, DPAR_CALL_REDUCE_SCATTER, grads, units, m, d);
        d->unit += t / units;
        return;
    }
    if (strategy->zero == 2) {
        d->backward += dpari_data_spend(job, &in, DPAR_CALL_REDUCE_SCATTER, grads, 1.0, m, d);
    } else {
        const int32_t kind =
            dpari_age(job->work)->sliced ? DPAR_CALL_ALL_REDUCE : DPAR_CALL_REDUCE_SCATTER;
        d->after += dpari_data_spend(job, &in, kind, grads, 1.0, 1.0, d);
    }
    d->before += dpari_data_spend(job, &in, DPAR_CALL_ALL_GATHER, weights, 1.0, 1.0, d);
}

/* Prices the messages of data parallelism of one stage. */
static dpari_data dpari_data_time(const dpar_job *job, const dpar_strategy *strategy,
                                  const dpari_stage *st, dpari_tally *tally)
{
    dpari_data d;
    int32_t n = strategy->dp * strategy->cp,
            shard = (strategy->shard > 0 ? strategy->shard : strategy->dp) * strategy->cp, en;
    int32_t tiles = (int32_t)dpari_tiles(strategy);
    dpari_zero(&d, sizeof(d));
    d.tally = tally;
    if (!job->work->trains) {
        return d;
    }
    /* the tiles of a sample have the same weights, so their gradients are summed as well */
    dpari_data_of(job, strategy, st->params, dpari_mostf(1.0, st->layers), n * tiles,
                  strategy->zero == 0 ? n * tiles : shard * tiles, strategy->tp, &d);
    en = (int32_t)((int64_t)strategy->tp * n / ((int64_t)strategy->ep * strategy->etp));
    dpari_data_of(job, strategy, st->expert_params, dpari_mostf(1.0, st->layers), en, en,
                  strategy->ep * strategy->etp, &d);
    return d;
}

DPARI_INTERNAL void dpari_tally_data(const dpar_job *job, const dpar_strategy *strategy,
                                     const dpari_stage *st, dpari_tally *tally)
{
    (void)dpari_data_time(job, strategy, st, tally);
}

/* Returns the part of the communication that the compute does not hide, plus the time by which the
 * hidden part slows the compute down. Adds the hidden part to *hidden. */
static double dpari_exposed(double communication, double compute, double contention, double *hidden)
{
    double overlap = dpari_leastf(communication, compute);
    *hidden += overlap;
    return communication - overlap + contention * overlap;
}

/* Returns the number of tensors of a block: one for each operation that has parameters. */
static DPARI_COLD double dpari_block_tensors(const dpar_workload *work)
{
    double n = 0.0;
    int32_t i, k;
    for (i = 0; i < work->layers && n == 0.0; i++) {
        for (k = 0; work->layer[i].kind == DPAR_LAYER_BLOCK && k < work->layer[i].ops; k++) {
            n += work->op[work->layer[i].first + k].params > 0.0;
        }
    }
    return n;
}

/* Sets the time that data parallelism adds to a step. */
static void dpari_step_data(const dpar_job *job, const dpar_strategy *strategy,
                            const dpari_stage *st, dpar_step_cost *cost)
{
    dpari_data d = dpari_data_time(job, strategy, st, NULL);
    double c = dpari_contention(job), m = strategy->micro_batches, exposed = 0.0;
    double device = st->forward + st->backward + st->again;
    /* the time that can hide communication is that of the compute, stretched by its waits for the
     * host */
    double stretch =
        device > 0.0 ? dpari_mostf(1.0, (st->total - st->tp - st->cp - st->ep - st->halo) / device)
                     : 1.0;
    double forward = st->forward * stretch, backward = (st->backward + st->again) * stretch;
    if (dpari_overlap_of(job, strategy) & DPAR_OVERLAP_DP) {
        double gathers = dpari_mostf(0.0, d.forward - d.unit), hidden = 0.0;
        exposed += m * dpari_exposed(gathers, forward, c, &hidden);
        exposed += m * dpari_exposed(d.backward, backward, c, &hidden);
        exposed += m * d.unit;
        cost->dp_hidden_s += m * hidden;
        /* messages sent once per step hide in the rest of the first and the last micro-batch */
        forward = dpari_mostf(0.0, 0.9 * forward - gathers);
        backward = dpari_mostf(0.0, 0.9 * backward - d.backward);
        exposed += dpari_exposed(d.before, forward, c, &cost->dp_hidden_s);
        exposed += dpari_exposed(d.after, backward, c, &cost->dp_hidden_s);
    } else {
        exposed = d.before + d.after + m * (d.forward + d.backward);
    }
    if (strategy->zero == 3 && d.unit > 0.0) { /* copies of gathered weights and of gradients */
        exposed += m * (st->params + st->expert_params) * dpari_age(job->work)->copies /
                   (job->cluster->gpu.memory_Bps * job->cluster->cal.value[DPAR_CAL_HBM]);
    }
    if (strategy->zero == 1 && d.after > 0.0 && dpari_age(job->work)->sliced) {
        /* the host slices and copies each tensor for each rank */
        exposed += 2.0 * st->layers * dpari_block_tensors(job->work) * dpari_zero_ranks(strategy) *
                   job->cluster->cal.value[DPAR_CAL_LAUNCH_S];
    }
    cost->term[DPAR_TIME_DP] = exposed;
    cost->link_bytes += d.link_bytes;
    cost->nic_bytes += d.nic_bytes;
    cost->dp_bytes = d.link_bytes + d.nic_bytes;
}

/* ---- optimizer and offload ------------------------------------------------------------------- */

/* Returns the bytes of device memory per parameter that Adam moves: the gradient is read twice (for
 * its norm, then for the update), master and moments are read and written, the weight is written. A
 * weight without a master copy is also read. */
static double dpari_adam_bytes(const dpar_recipe *recipe)
{
    return 2.0 * recipe->gradient + 2.0 * (recipe->master + recipe->moments) +
           (recipe->master > 0.0 ? recipe->weight : 2.0 * recipe->weight);
}

/* Sets the time of the optimizer and of offloading. */
static void dpari_step_optimizer(const dpar_job *job, const dpar_strategy *strategy,
                                 const dpari_stage *st, dpar_step_cost *cost)
{
    const dpar_cluster *cluster = job->cluster;
    const dpar_recipe *recipe = &job->recipe;
    double d = strategy->zero >= 1 ? dpari_zero_ranks(strategy) : 1.0;
    double experts = strategy->zero >= 1
                         ? dpari_mostf(1.0, (double)strategy->tp * strategy->cp * strategy->dp /
                                                ((double)strategy->ep * strategy->etp))
                         : 1.0;
    double local = st->params / d + st->expert_params / experts, pcie = cluster->gpu.pcie_Bps,
           moved;
    if (!job->work->trains) {
        return;
    }
    cost->term[DPAR_TIME_OPTIMIZER] = local * dpari_adam_bytes(recipe) /
                                      (cluster->gpu.memory_Bps * cluster->cal.value[DPAR_CAL_HBM]);
    if (strategy->offload & DPAR_OFFLOAD_OPTIMIZER) {
        /* the host updates the weights, with about 25 GB/s of its memory per GPU; gradients are
         * sent to the host and weights back */
        cost->term[DPAR_TIME_OPTIMIZER] = local * dpari_adam_bytes(recipe) / 25e9;
        cost->term[DPAR_TIME_OFFLOAD] += local * (recipe->gradient + recipe->weight) / (0.8 * pcie);
    }
    if (strategy->offload &
        DPAR_OFFLOAD_NVME) { /* the state is read and written while the host updates */
        moved = 2.0 * local * (recipe->master + recipe->moments) * cluster->gpus_per_node;
        cost->term[DPAR_TIME_OFFLOAD] +=
            dpari_mostf(0.0, moved / cluster->nvme_Bps - cost->term[DPAR_TIME_OPTIMIZER]);
    }
    /* weights and activations are moved while the device computes, over the same link */
    moved = 0.0;
    if (strategy->offload & DPAR_OFFLOAD_WEIGHTS) {
        moved = (st->params + st->expert_params) * recipe->weight;
    }
    if (strategy->offload & DPAR_OFFLOAD_ACTIVATIONS) {
        moved += st->kept;
    }
    moved *= 2.0 * strategy->micro_batches;
    if (moved > 0.0) {
        cost->term[DPAR_TIME_OFFLOAD] += dpari_mostf(
            0.05 * moved / (0.8 * pcie),
            moved / (0.8 * pcie) - strategy->micro_batches * (st->forward + st->backward));
    }
}

/* ---- pipeline -------------------------------------------------------------------------------- */

/* Returns the idle time of filling and draining the pipeline, as a share of the time of a
 * micro-batch through all stages but one. These are the schedules' closed forms for input and
 * weight gradients of equal time. w: share of the forward in a stage's compute. */
static double dpari_fill_share(int32_t schedule, int32_t vp, double w)
{
    switch (schedule) {
    case DPAR_SCHEDULE_INTERLEAVED:
    case DPAR_SCHEDULE_BREADTH_FIRST: return 1.0 / vp;
    case DPAR_SCHEDULE_ZB_H1:
    case DPAR_SCHEDULE_ZB_2P:
        /* 2P has the makespan of H1. Its zero bubble is that of each rank's own span, which counts
         * only if the ranks step their optimizers one by one. */
        return w;
    case DPAR_SCHEDULE_ZBV: return 1.0 / 6.0;
    case DPAR_SCHEDULE_V_HALF: return 0.5;
    case DPAR_SCHEDULE_V_MIN: return 0.67;
    case DPAR_SCHEDULE_DUALPIPE: return 1.0 / 3.0;
    case DPAR_SCHEDULE_DUALPIPEV: return 1.0 / 3.0;
    default: return 1.0;
    }
}

/* Returns the share for few micro-batches. The closed forms are valid from p micro-batches on. A
 * single micro-batch waits for p-1 forwards and input gradients under any schedule. Between these
 * two cases a straight line is assumed, not derived. */
static double dpari_fill_short(const dpar_strategy *strategy, double share, double w)
{
    double full = strategy->pp, one = 0.5 * (1.0 + w);
    if (strategy->schedule < DPAR_SCHEDULE_ZB_H1 || strategy->micro_batches >= full ||
        share >= one) {
        return share;
    }
    return share + (one - share) * (full - strategy->micro_batches) / (full - 1.0);
}

/* Returns the seconds of a message between stages. Adds the bytes of `times` such messages. */
static double dpari_send_seconds(const dpar_job *job, const dpar_strategy *strategy, double bytes,
                                 dpar_step_cost *cost, double times)
{
    dpar_collective_cost c;
    dpar_cluster_group g;
    dpari_pair_init(&g, job->cluster, strategy->pp, strategy->tp * strategy->cp * strategy->dp);
    dpar_collective_predict(job->cluster, &g, DPAR_CALL_SEND_RECV, bytes, &c);
    cost->link_bytes += c.link_bytes * times;
    cost->nic_bytes += c.nic_bytes * times;
    return c.seconds;
}

DPARI_INTERNAL double dpari_boundary_seconds(const dpar_job *job, const dpar_strategy *strategy)
{
    dpari_layers layers;
    dpari_stages stages;
    dpar_step_cost t;
    dpari_zero(&t, sizeof(t));
    dpari_price_layers(job, strategy, &layers);
    dpari_price_stages(job, strategy, &layers, &stages);
    return dpari_send_seconds(job, strategy, stages.send, &t, 0.0);
}

/* Computes bubble, imbalance and messages between stages. The slowest stage sets the pace, and the
 * others wait for it. */
static void dpari_step_pipeline(const dpar_job *job, const dpar_strategy *strategy,
                                const dpari_stages *stages, const dpari_stage *slow,
                                dpar_step_cost *cost)
{
    double m = strategy->micro_batches, p = strategy->pp, v = strategy->vp,
           mean = stages->sum_total / p, send, fill;
    double w = slow->forward / (slow->forward + slow->backward + slow->again), ways;
    int looped = dpari_looped(strategy->schedule);
    int32_t flying = dpari_overlap_of(job, strategy);
    cost->largest_stage_s = slow->total;
    cost->mean_stage_s = mean;
    cost->term[DPAR_TIME_IMBALANCE] += m * (slow->total - mean);
    if (strategy->pp == 1) {
        return;
    }
    fill = (stages->sum_total - mean) *
           dpari_fill_short(strategy, dpari_fill_share(strategy->schedule, strategy->vp, w), w);
    if (looped && job->work->blocks > 0) { /* the first round fills the pipeline and has the longest
                                              chunks */
        int64_t blocks = job->work->blocks, chunks = (int64_t)strategy->pp * strategy->vp;
        int64_t first = blocks / chunks * strategy->pp + dpari_least(blocks % chunks, strategy->pp);
        fill *= v * (double)first / (double)blocks;
    }
    if (looped && m < p) { /* every chunk waits for a whole round of ranks */
        fill = fill * (m - 1.0) / (p - 1.0) + (p - m) * slow->total;
    }
    ways = job->work->trains ? 2.0 : 1.0;
    send = dpari_send_seconds(job, strategy, stages->send, cost, ways * m * v);
    cost->term[DPAR_TIME_BUBBLE] = fill;
    cost->term[DPAR_TIME_PP] = ways * send * ((p - 2.0) + m * v * (p - 1.0) / p);
    if ((strategy->schedule == DPAR_SCHEDULE_GPIPE && (strategy->overlap & DPAR_OVERLAP_DEFAULT)) ||
        ((strategy->schedule == DPAR_SCHEDULE_GPIPE || looped) && (flying & DPAR_OVERLAP_PP))) {
        cost->term[DPAR_TIME_PP] =
            dpari_leastf(cost->term[DPAR_TIME_PP], ways * (p * v - 1.0) * send);
    }
    cost->bubble = fill / (m * slow->total + fill + cost->term[DPAR_TIME_PP]);
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Sets the terms that are sums over the stages. */
static void dpari_step_terms(const dpar_strategy *strategy, const dpari_stages *stages,
                             dpar_step_cost *cost)
{
    const dpari_stage *all = &stages->whole;
    double k = (double)strategy->micro_batches / strategy->pp;
    cost->term[DPAR_TIME_FORWARD] = k * all->forward;
    cost->term[DPAR_TIME_BACKWARD] = k * all->backward;
    cost->term[DPAR_TIME_RECOMPUTE] = k * all->again;
    cost->term[DPAR_TIME_TP] = k * all->tp;
    cost->term[DPAR_TIME_CP] = k * all->cp;
    cost->term[DPAR_TIME_EP] = k * all->ep;
    cost->term[DPAR_TIME_HALO] = k * all->halo;
    cost->term[DPAR_TIME_HOST] = k * (all->total - dpari_stage_device(all)); /* waits */
    cost->link_bytes = k * all->link_bytes;
    cost->nic_bytes = k * all->nic_bytes;
}

/* Returns the forward FLOP of a layer and sample that recomputation repeats, with attention counted
 * in full: everything with FULL, half of the products with ALTERNATE, and the scores with any
 * recomputation. */
static double dpari_flops_again(const dpar_workload *work, int32_t layer, int32_t recompute)
{
    const dpar_workload_layer *l = &work->layer[layer];
    double sum = 0.0;
    int32_t i;
    for (i = 0; i < l->ops; i++) {
        const dpari_layer_op *op = &work->op[l->first + i];
        double f = 2.0 * op->n * op->k * op->copies * l->tokens;
        if (recompute == DPAR_RECOMPUTE_FULL || op->kind == DPARI_OP_SCORES) {
            sum += op->kind == DPARI_OP_ATTENTION && work->causal ? 2.0 * f : f;
        } else if (recompute == DPAR_RECOMPUTE_ALTERNATE && op->kind != DPARI_OP_ATTENTION) {
            sum += 0.5 * f;
        }
    }
    return sum;
}

/* Sets what follows from the total: rates, FLOP and utilization. */
static void dpari_step_rates(const dpar_job *job, const dpar_strategy *strategy,
                             const dpari_stages *stages, dpar_step_cost *cost)
{
    const dpar_workload *work = job->work;
    double gpus = dpar_strategy_ranks(strategy), again = 0.0;
    double peak = dpari_matrix_peak(&job->cluster->gpu, job->recipe.compute, work->element);
    cost->samples = (double)strategy->dp * strategy->micro_batch * strategy->micro_batches;
    cost->tokens_per_s_gpu = cost->samples * work->tokens / (cost->total * gpus);
    cost->model_flops = cost->samples * work->model_flops_full;
    cost->model_flops_causal = cost->samples * work->model_flops_causal;
    if (strategy->recompute != DPAR_RECOMPUTE_NONE && stages->of[0].layers > 0.0) {
        double share = dpari_recomputed_share(strategy, stages->of[0].layers);
        int32_t i;
        for (i = 0; i < work->layers; i++) {
            if (work->layer[i].kind == DPAR_LAYER_BLOCK) {
                again +=
                    dpari_flops_again(work, i, strategy->recompute) * work->layer[i].count * share;
            }
        }
    }
    cost->hardware_flops = cost->model_flops + cost->samples * again;
    cost->mfu = cost->model_flops / (cost->total * gpus * peak);
    cost->mfu_causal = cost->model_flops_causal / (cost->total * gpus * peak);
    cost->hfu = cost->hardware_flops / (cost->total * gpus * peak);
    cost->tflops_gpu = cost->model_flops / (cost->total * gpus) * 1e-12;
}

DPARI_INTERNAL void dpari_price_step(const dpar_job *job, const dpar_strategy *strategy,
                                     const dpari_stages *stages, dpar_step_cost *cost)
{
    const dpari_stage *slow = &stages->of[0];
    const double *cal = job->cluster->cal.value;
    double compute;
    int32_t i;
    dpari_zero(cost, sizeof(*cost));
    for (i = 1; i < stages->n; i++) {
        slow = stages->of[i].total > slow->total ? &stages->of[i] : slow;
    }
    dpari_step_terms(strategy, stages, cost);
    dpari_step_pipeline(job, strategy, stages, slow, cost);
    dpari_step_data(job, strategy, slow, cost);
    dpari_step_optimizer(job, strategy, slow, cost);
    compute = cost->term[DPAR_TIME_FORWARD] + cost->term[DPAR_TIME_BACKWARD] +
              cost->term[DPAR_TIME_RECOMPUTE];
    /* all ranks that sum their gradients wait for the last of them */
    cost->term[DPAR_TIME_IMBALANCE] +=
        cal[DPAR_CAL_SKEW] * compute *
        dpari_log2((double)strategy->dp * strategy->cp * (double)dpari_tiles(strategy));
    cost->term[DPAR_TIME_HOST] += job->work->trains ? cal[DPAR_CAL_STEP_S] : 0.0;
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        cost->total += cost->term[i];
    }
    dpari_step_rates(job, strategy, stages, cost);
}

DPARI_INTERNAL void dpari_step_of(const dpar_job *job, const dpar_strategy *strategy,
                                  dpar_step_cost *cost)
{
    dpari_layers layers;
    dpari_stages stages;
    dpari_price_layers(job, strategy, &layers);
    dpari_price_stages(job, strategy, &layers, &stages);
    dpari_price_step(job, strategy, &stages, cost);
}

/* ==== cost/calibrate.c ==== */

/* Fits calibration constants by coordinate descent. It multiplies and divides each constant by a
 * factor, and shrinks the factor when no trial improves the score. The score is the mean error of
 * the predicted times plus a weak pull towards the starting values. Programs that measured steps on
 * a machine call dpar_calibration_fit. */

/* Limits a constant to the range in which it has a physical meaning. */
static double dpari_cal_clip(int32_t which, double v)
{
    double low;
    switch (which) {
    case DPAR_CAL_LAUNCH_S:
    case DPAR_CAL_LINK_S:
    case DPAR_CAL_NET_S:
    case DPAR_CAL_BASE_S:
    case DPAR_CAL_STEP_S:
    case DPAR_CAL_HOP_S: low = 1e-8; break;
    case DPAR_CAL_CONTENTION:
    case DPAR_CAL_SKEW: low = 1e-4; break; /* these two may be almost 0 */
    default: low = 0.05; break;
    }
    return dpari_leastf(1.0, dpari_mostf(low, v));
}

static double dpari_absolute(double x)
{
    return x < 0.0 ? -x : x;
}

/* Returns |e|, smoothed below 2 %, because a search along one constant at a time gets stuck in the
 * kinks of the plain absolute value. */
static double dpari_cal_rounded(double e)
{
    return dpari_sqrt(e * e + 4e-4) - 0.02;
}

/* Returns the weighted mean of |predicted / measured - 1| if `relative`, otherwise that of
 * |ln(predicted / measured)|. The logarithm treats a time that is too long by a factor like one
 * that is too short by that factor. */
static double dpari_cal_error(const dpar_calibration *cal, const dpar_measurement *rows, int32_t n,
                              int relative)
{
    double sum = 0.0, weights = 0.0;
    int32_t i;
    for (i = 0; i < n; i++) {
        dpar_cluster machine = *rows[i].cluster;
        dpar_job job;
        dpar_step_cost t;
        double ratio, error;
        machine.cal = *cal;
        job.work = rows[i].work;
        job.cluster = &machine;
        job.recipe = rows[i].recipe;
        dpari_step_of(&job, &rows[i].strategy, &t);
        ratio = t.total / rows[i].seconds;
        error = relative ? dpari_absolute(ratio - 1.0)
                         : dpari_cal_rounded(dpari_log2(ratio) * 0.6931471805599453); /* ln 2 */
        weights += rows[i].weight;
        sum += rows[i].weight * error;
    }
    return sum / weights;
}

/* Returns the penalty for constants that differ from their starting values. A change by a factor of
 * e costs as much as 0.3 % of error, so a constant moves only if the rows depend on it. */
static double dpari_cal_pull(const dpar_calibration *cal, const dpar_calibration *start,
                             uint32_t which)
{
    double sum = 0.0;
    int32_t i;
    for (i = 0; i < DPAR_CAL_COUNT; i++) {
        if (which >> i & 1u) {
            double x = dpari_log2(cal->value[i] / start->value[i]);
            sum += x * x;
        }
    }
    return 0.0015 * sum;
}

static double dpari_cal_score(const dpar_calibration *cal, const dpar_calibration *start,
                              const dpar_measurement *rows, int32_t n, uint32_t which)
{
    return dpari_cal_error(cal, rows, n, 0) + dpari_cal_pull(cal, start, which);
}

/* Multiplies one constant by `factor`, then divides it by `factor`, and keeps the first value that
 * improves the score. Returns 1 if it kept one, otherwise 0. */
static int dpari_cal_try(dpar_calibration *cal, const dpar_calibration *start,
                         const dpar_measurement *rows, int32_t n, uint32_t which, int32_t i,
                         double factor, double *best)
{
    int32_t down;
    for (down = 0; down < 2; down++) {
        dpar_calibration next = *cal;
        double score;
        next.value[i] = dpari_cal_clip(i, down ? cal->value[i] / factor : cal->value[i] * factor);
        score = dpari_cal_score(&next, start, rows, n, which);
        if (score < *best - 1e-9) {
            *best = score;
            *cal = next;
            return 1;
        }
    }
    return 0;
}

/* Sets the error of each fitted constant to the relative change, up or down, that worsens the mean
 * error by one standard error of the residuals. The error is 1 if no change up to a factor of 2
 * worsens it as much. */
static void dpari_cal_bars(dpar_calibration *cal, const dpar_measurement *rows, int32_t n,
                           uint32_t which)
{
    double base = dpari_cal_error(cal, rows, n, 0), worse = base * (1.0 + 1.0 / dpari_sqrt(n));
    int32_t i;
    for (i = 0; i < DPAR_CAL_COUNT; i++) {
        double bar;
        if (!(which >> i & 1u)) {
            continue;
        }
        for (bar = 0.005; bar < 1.0; bar *= 1.5) {
            dpar_calibration up = *cal, down = *cal;
            up.value[i] *= 1.0 + bar;
            down.value[i] /= 1.0 + bar;
            if (dpari_cal_error(&up, rows, n, 0) > worse &&
                dpari_cal_error(&down, rows, n, 0) > worse) {
                break;
            }
        }
        cal->error[i] = dpari_leastf(1.0, bar);
    }
}

DPAR_API DPARI_COLD dpar_status dpar_calibration_fit(dpar_calibration *cal,
                                                     const dpar_measurement *rows, int32_t n,
                                                     uint32_t which, double *mean_error,
                                                     dpar_why *why)
{
    dpar_calibration fit = *cal;
    double factor = 1.5, best;
    int32_t i, moved;
    which &= ((uint32_t)1 << DPAR_CAL_COUNT) - 1u;
    if (n < 1 || which == 0) {
        return dpari_wrong(why,
                           "n=%d, which=%ld: a fit needs at least one measurement and one bit "
                           "1 << DPAR_CAL_*",
                           n, (int64_t)which);
    }
    for (i = 0; i < n; i++) {
        if (!(rows[i].seconds > 0.0) || !dpari_finite(rows[i].seconds) || !(rows[i].weight > 0.0)) {
            return dpari_wrong(
                why, "measurement %d: seconds must be positive and finite, weight positive", i);
        }
    }
    for (i = 0; i < DPAR_CAL_COUNT; i++) {
        if (which >> i & 1u) {
            fit.value[i] = dpari_cal_clip(i, fit.value[i]);
        }
    }
    best = dpari_cal_score(&fit, cal, rows, n, which);
    while (factor > 1.004) {
        moved = 0;
        for (i = 0; i < DPAR_CAL_COUNT; i++) {
            if (which >> i & 1u) {
                moved |= dpari_cal_try(&fit, cal, rows, n, which, i, factor, &best);
            }
        }
        if (!moved) {
            factor = 1.0 + 0.6 * (factor - 1.0);
        }
    }
    dpari_cal_bars(&fit, rows, n, which);
    fit.rows = n;
    if (mean_error != NULL) {
        *mean_error = dpari_cal_error(&fit, rows, n, 1);
    }
    *cal = fit;
    return DPAR_OK;
}

/* ==== cost/price.c ==== */

/* Prices the operations of a layer, forward and backward, and sums them into stages. memory.c and
 * step.c turn the stages into memory and time; the planner keeps the prices of layers while it
 * walks the options that do not change them.
 *
 * Compute runs at a share of the peak that depends on the shape. Communication is priced by
 * dpar_collective_predict. */

/* ---- one operation --------------------------------------------------------------------------- */

/* The rates and divisors that every operation of a layer needs, computed once. */
typedef struct dpari_rates {
    double flop_s;      /* seconds per FLOP of a large matrix product */
    double wide_s;      /* the same in 16 bits, for the head of every recipe */
    double casts;       /* bytes moved per element of a product's operands to convert it to 8 or 4
                           bits */
    double attention_s; /* seconds per FLOP of fused attention, forward */
    double vector_s;    /* seconds per FLOP of element-wise arithmetic */
    double byte_s;      /* seconds per byte of device memory */
    double wave;        /* outputs of one wave of tiles: 128 x 256 on every unit */
    double rows;        /* query rows in one wave of attention tiles, all heads */
    double lost;        /* waves of attention tiles that are lost */
    double launch_s;
    double accumulate; /* bytes to add one weight gradient to its sum: read and write */
    double sequence;   /* divisor of SEQUENCE operations: tp with SP, otherwise 1 */
    double routed;     /* rows on an expert rank / (tokens x copies): it has etp of the tp slices */
    double narrow;     /* bytes of a product's input as it is kept, in 8 or 4 bits with scales /
                          bytes of its elements */
    const dpar_strategy *strategy;
    const dpar_workload *work;
} dpari_rates;

/* A matrix product runs in waves of tiles over the units. The last wave is partly empty, and the
 * first and the last tile overlap with nothing, so a share of a wave is lost. Measured shapes
 * (op_efficiency tables) take the time of their waves plus about a third of a wave. */
static const double dpari_wave_lost = 0.30;
/* Convolutions reach about this share of a plain product of the same size (cuDNN, channels last).
 */
static const double dpari_conv_share = 0.60;
/* Grouped products, which are many, short and uneven, reach about this share (medians .65/.75 on
 * A100, .30/.48 on B200). */
static const double dpari_grouped_share = 0.70;
/* Fused attention: the backward takes 2.4 times the forward (it has 2.5 times the products;
 * measured on A100 and B200), one and a half waves of tiles are lost, and the first generation of
 * kernels ran at about 0.6 of the rate of the later ones. */
static const double dpari_attention_back = 2.4;
static const double dpari_attention_lost = 1.5;
static const double dpari_flash1_share = 0.62;
/* Each step of a ring adds a partial output to a sum in 32 bits, and in the backward partial
 * gradients. The bytes that this moves are the following multiples of the bytes of queries and
 * outputs, forward and backward. ring-flash-attention's zigzag with 8 ranks of 8192 tokens loses
 * 2.3 and 3.3 ms on H800, 4.8 and 4.8 ms on A100 (2024): 27 and 33, 38 and 34 bytes per output at
 * 0.8 of the memory's rate. */
static const double dpari_ring_merge = 7.5;
static const double dpari_ring_merge_back = 9.0;
/* The products of unfused attention, batches of [s x d] x [d x s], reach about this share because
 * their inner width is small. */
static const double dpari_scores_share = 0.62;

/* Returns 1 if the chip was new when the software of dpari_age was written: Hopper and later. */
static int dpari_is_young(const dpar_gpu *gpu)
{
    return gpu->generation == DPAR_GEN_HOPPER || gpu->generation == DPAR_GEN_BLACKWELL;
}

DPARI_INTERNAL double dpari_matrix_peak(const dpar_gpu *gpu, int32_t format, int32_t element)
{
    static const int8_t next[DPAR_FORMAT_COUNT] = {DPAR_TYPE_NONE, DPAR_F64,  DPAR_F32, DPAR_F32,
                                                   DPAR_TF32,      DPAR_BF16, DPAR_F8};
    int32_t f = element == 8 ? DPAR_F64 : format;
    while (f > DPAR_F32 && !(gpu->flops[f] > 0.0)) {
        f = next[f];
    }
    return gpu->flops[f] > 0.0 ? gpu->flops[f] : gpu->memory_Bps;
}

/* Outputs that the registers of a CPU core hold: 16 of four f64 (AVX2). A partly filled last tile
 * is assumed to be lost like a last wave on a GPU. */
static const double dpari_core_wave = 64.0;

/* Computes the rates: both[0] for layers, both[1] for the head, which stays in 16 bits. */
static DPARI_COLD void dpari_rates_of(const dpar_job *job, const dpar_strategy *strategy,
                                      dpari_rates *both)
{
    const dpar_gpu *gpu = &job->cluster->gpu;
    const double *cal = job->cluster->cal.value;
    const dpari_generation *age = dpari_age(job->work);
    double units = gpu->units > 0 ? gpu->units : 100.0, peak, bf16;
    double products = 1.0, attention = 1.0, streams = 1.0;
    dpari_rates r;
    dpari_zero(&r, sizeof(r));
    peak = dpari_matrix_peak(gpu, job->recipe.compute, job->work->element);
    bf16 = dpari_matrix_peak(gpu, DPAR_BF16, job->work->element);
    if (dpari_is_young(gpu)) {
        products = (double)age->products;
        attention = (double)age->attention;
        streams = (double)age->streams;
    }
    r.flop_s = 1.0 / (peak * cal[DPAR_CAL_GEMM] * products);
    r.wide_s = 1.0 / (dpari_leastf(peak, bf16) * cal[DPAR_CAL_GEMM] * products);
    r.casts = job->recipe.casts;
    /* fused attention stays in bf16 if the products have 8 bits, and in fp32 if they have fp32 */
    r.attention_s = 1.0 / (dpari_leastf(peak, bf16) * cal[DPAR_CAL_ATTENTION] * attention);
    if (job->work->attention == DPAR_MODEL_ATTENTION_FLASH1) {
        r.attention_s /= dpari_flash1_share;
    }
    r.vector_s = 1.0 / (0.7 * dpari_matrix_peak(gpu, DPAR_F32, job->work->element));
    r.byte_s = 1.0 / (gpu->memory_Bps * cal[DPAR_CAL_HBM] * streams);
    r.wave = units * 128.0 * 256.0;
    r.rows = units * (gpu->generation == DPAR_GEN_BLACKWELL ? 256.0 : 128.0);
    if (gpu->generation == DPAR_GEN_CPU) { /* its tiles are small, so almost nothing is lost */
        r.wave = dpari_core_wave;
        r.rows = 0.25;
    }
    /* TransformerEngine computes the pieces of a ring on two streams. One stream fills the last
     * wave of the other, so only the last piece loses waves. */
    r.lost = dpari_attention_lost;
    if (strategy->cp_kind == DPAR_CP_RING && job->work->stack == DPAR_MODEL_STACK_MEGATRON_CORE) {
        r.lost /= strategy->cp;
    }
    r.launch_s = cal[DPAR_CAL_LAUNCH_S];
    r.accumulate = 2.0 * job->recipe.gradient;
    r.sequence = strategy->sp ? strategy->tp : 1.0;
    r.routed = strategy->etp / r.sequence;
    r.narrow = 1.0;
    if (job->work->stack == DPAR_MODEL_STACK_MEGATRON_CORE) {
        if (job->recipe.compute == DPAR_F8) { /* one byte, and a scale for each 32 elements */
            r.narrow = 1.03125 / job->work->element;
        } else if (job->recipe.compute == DPAR_F4) { /* half a byte, a scale for each 16 */
            r.narrow = 0.5625 / job->work->element;
        }
    }
    r.strategy = strategy;
    r.work = job->work;
    both[0] = both[1] = r;
    both[1].flop_s = r.wide_s;
    both[1].casts = 0.0;
}

/* Tensor cores load 16 bytes at a time. A product whose width is not a multiple of 8 elements, such
 * as GPT-2's 50257 tokens without padding, runs at about a third of the rate. */
static const double dpari_unaligned_share = 0.33;

/* Returns 1 if a width is not a multiple of 8. */
static int dpari_unaligned(double width)
{
    double eighths = width * 0.125;
    return eighths < 1e9 && eighths - (double)(int32_t)eighths > 0.0;
}

/* Returns the seconds of [rows, k] x [k, n]. Only the widths must be multiples of 8, because only
 * they are contiguous in memory; the number of rows may be any. */
static double dpari_product(const dpari_rates *rates, double rows, double n, double k, double lost,
                            double share)
{
    double waves = rows * n / rates->wave;
    return (waves + lost) * rates->wave * 2.0 * k * rates->flop_s / share;
}

/* Returns by how much tensor or expert parallelism divides the bytes of an operation. */
static double dpari_cut(const dpari_rates *rates, int32_t cut)
{
    switch (cut) {
    case DPARI_CUT_SEQUENCE: return rates->sequence;
    case DPARI_CUT_COLUMN:
    case DPARI_CUT_ROW:
    case DPARI_CUT_TENSOR: return rates->strategy->tp;
    case DPARI_CUT_EXPERT: return 1.0 / rates->routed;
    case DPARI_CUT_EXPERT_COLUMN:
    case DPARI_CUT_EXPERT_ROW:
    case DPARI_CUT_EXPERT_TENSOR: return rates->sequence;
    default: return 1.0;
    }
}

/* Prices a matrix product, plain, grouped or of a convolution: its forward, its data gradient and
 * its weight gradient. */
static void dpari_price_product(const dpari_rates *rates, const dpari_layer_op *op, double tokens,
                                dpari_layer_price *price)
{
    double rows = tokens, n = op->n, k = op->k, share = 1.0, wide, weights;
    double e = rates->work->element;
    double lost = dpari_wave_lost; /* of the weight gradient */
    if (op->cut == DPARI_CUT_COLUMN) {
        n /= rates->strategy->tp;
    } else if (op->cut == DPARI_CUT_ROW) {
        k /= rates->strategy->tp;
    } else if (op->cut == DPARI_CUT_EXPERT_COLUMN) {
        n /= rates->strategy->etp;
    } else if (op->cut == DPARI_CUT_EXPERT_ROW) {
        k /= rates->strategy->etp;
    } else if (op->cut == DPARI_CUT_SEQUENCE) {
        rows /= rates->sequence;
    }
    if (op->kind == DPARI_OP_EXPERTS) {
        /* every rank of an expert group computes the tokens of its own experts. If the load is
         * balanced, it has as many rows as its etp group sent; the fullest expert has `capacity`
         * times as many. */
        rows *= op->copies * rates->work->capacity * rates->routed;
        share = dpari_grouped_share;
    } else if (op->kind == DPARI_OP_CONV) {
        share = dpari_conv_share;
        /* the weight gradient has few outputs and a long sum over the pixels, which is divided so
         * that its parts fill a wave */
        lost *= dpari_leastf(n * k / rates->wave, 1.0);
    }
    /* sequence-parallel ranks cast their own tokens and gather afterwards */
    price->forward += rows * k * rates->casts /
                      (op->cut == DPARI_CUT_COLUMN ? rates->sequence : 1.0) * rates->byte_s;
    price->backward += rows * n * rates->casts /
                       (op->cut == DPARI_CUT_ROW ? rates->sequence : 1.0) * rates->byte_s;
    wide = rates->wave > dpari_core_wave && (dpari_unaligned(n) || dpari_unaligned(k))
               ? dpari_unaligned_share * share
               : share;
    share = dpari_unaligned(k) ? wide : share;
    price->forward +=
        dpari_product(rates, rows, n, k, dpari_wave_lost, wide) + rows * n * e * rates->byte_s;
    price->backward +=
        dpari_product(rates, rows, k, n, dpari_wave_lost, wide) + rows * k * e * rates->byte_s;
    /* the weight gradient is added to a wide accumulator, which is read and written once */
    weights = op->kind == DPARI_OP_EXPERTS
                  ? op->params / (rates->strategy->ep * rates->strategy->etp)
                  : n * k;
    price->backward +=
        dpari_product(rates, n, k, rows, lost, share) + weights * rates->accumulate * rates->byte_s;
}

/* Prices attention or a recurrence: fused attention by waves of query tiles, unfused scores as a
 * share of a product. */
static void dpari_price_attention(const dpari_rates *rates, const dpari_layer_op *op, double tokens,
                                  dpari_layer_price *price)
{
    /* with Ulysses and with the ring, a rank computes its tokens x all keys for 1 / tp of the
     * heads */
    double flops = 2.0 * tokens * op->n * op->k / rates->strategy->tp;
    double waves = tokens * (op->heads > 0 ? op->heads : 1) / rates->strategy->tp / rates->rows;
    double t;
    if (op->kind != DPARI_OP_SCORES) {
        t = flops * rates->attention_s * (1.0 + rates->lost / waves);
        price->forward += t;
        price->attention += t;
        price->backward += dpari_attention_back * t;
        return;
    }
    t = flops * rates->flop_s / dpari_scores_share;
    price->forward += t;
    price->attention += t;
    price->backward += 2.0 * t;
    price->again[DPAR_RECOMPUTE_SELECTIVE] += t;
}

/* Returns nonzero if the bits of a recomputation drop what this operation keeps, otherwise 0. */
static DPARI_COLD int dpari_dropped(int32_t recompute, const dpari_layer_op *op)
{
    const int experts = recompute & DPAR_RECOMPUTE_EXPERTS;
    switch (op->keep) {
    case DPARI_KEEP_NORM: return recompute & DPAR_RECOMPUTE_NORM;
    case DPARI_KEEP_ACTIVATION:
        return (recompute & DPAR_RECOMPUTE_ACTIVATION) || (op->cut >= DPARI_CUT_EXPERT && experts);
    case DPARI_KEEP_EXPERTS: return experts;
    default: return 0;
    }
}

/* Returns the bytes of its input that a product in 8 or 4 bits keeps, relative to 16 bits. The
 * output of attention is kept twice, because attention itself needs the wide one. */
static DPARI_COLD double dpari_narrowed(const dpari_layer_op *op, double narrow)
{
    if (op->kind == DPARI_OP_EXPERTS) {
        return narrow;
    }
    if (op->kind != DPARI_OP_GEMM) {
        return 1.0;
    }
    if (op->keep == DPARI_KEEP_NORM || op->keep == DPARI_KEEP_ACTIVATION) {
        return narrow;
    }
    return op->cut == DPARI_CUT_ROW ? 1.0 + narrow : 1.0;
}

/* Prices one operation and adds it to its layer. */
static void dpari_price_op(const dpari_rates *rates, const dpari_layer_op *op, double tokens,
                           dpari_layer_price *price)
{
    double cut = dpari_cut(rates, op->cut), before = price->forward, save;
    if (op->kind == DPARI_OP_ATTENTION || op->kind == DPARI_OP_SCORES ||
        op->kind == DPARI_OP_SCAN) {
        dpari_price_attention(rates, op, tokens, price);
    } else if (op->kind != DPARI_OP_STREAM) {
        dpari_price_product(rates, op, tokens, price);
    } else if (op->n > 0.0) {
        price->forward += dpari_mostf(2.0 * op->n * op->k * tokens * rates->vector_s,
                                      op->touch * tokens * rates->byte_s) -
                          op->touch * tokens * rates->byte_s;
    }
    price->forward += op->touch * tokens / cut * rates->byte_s;
    price->backward += op->touch_back * tokens / cut * rates->byte_s;
    if (op->keep == DPARI_KEEP_SELECTIVE) {
        price->again[DPAR_RECOMPUTE_SELECTIVE] += price->forward - before;
    }
    if (op->kind == DPARI_OP_STREAM) {
        price->again[DPAR_RECOMPUTE_ALTERNATE] += price->forward - before;
    } else if (op->kind != DPARI_OP_ATTENTION) { /* every second product is kept */
        price->again[DPAR_RECOMPUTE_ALTERNATE] += 0.5 * (price->forward - before);
    }
    price->host_forward += op->kernels * rates->launch_s;
    save = op->save * tokens / dpari_cut(rates, op->save_cut);
    save *= op->cut >= DPARI_CUT_EXPERT ? rates->work->capacity : 1.0; /* the fullest expert's */
    if (rates->narrow < 1.0) { /* TransformerEngine keeps the narrow operand */
        save *= dpari_narrowed(op, rates->narrow);
    }
    if (rates->strategy->recompute >= DPAR_RECOMPUTE_COUNT &&
        dpari_dropped(rates->strategy->recompute, op)) {
        double again =
            op->keep == DPARI_KEEP_EXPERTS ? price->forward - before : 2.0 * save * rates->byte_s;
        price->again[DPAR_RECOMPUTE_NONE] += again;
        price->again[DPAR_RECOMPUTE_SELECTIVE] += again;
        price->transient = dpari_mostf(price->transient, save);
        save = 0.0;
    }
    price->kept[DPAR_RECOMPUTE_NONE] += save;
    price->kept[DPAR_RECOMPUTE_SELECTIVE] += op->keep == DPARI_KEEP_SELECTIVE ? 0.0 : save;
    price->transient = dpari_mostf(price->transient, op->transient * tokens / cut);
    if (op->cut >= DPARI_CUT_EXPERT) {
        price->expert_params += op->params / (rates->strategy->ep * rates->strategy->etp);
    } else if (op->cut == DPARI_CUT_ROW && op->params > op->n * op->k) {
        /* the bias is not divided */
        price->params += op->n * op->k / rates->strategy->tp + (op->params - op->n * op->k);
    } else if (op->cut == DPARI_CUT_COLUMN || op->cut == DPARI_CUT_ROW ||
               op->cut == DPARI_CUT_TENSOR) {
        price->params += op->params / rates->strategy->tp;
    } else {
        price->params += op->params;
    }
}

DPARI_INTERNAL int32_t dpari_overlap_of(const dpar_job *job, const dpar_strategy *strategy)
{
    if (!(strategy->overlap & DPAR_OVERLAP_DEFAULT)) {
        return strategy->overlap;
    }
    return dpari_age(job->work)->overlap;
}

DPARI_INTERNAL double dpari_contention(const dpar_job *job)
{
    const double own = (double)dpari_age(job->work)->contention;
    return own > 0.0 && dpari_is_young(&job->cluster->gpu)
               ? own
               : job->cluster->cal.value[DPAR_CAL_CONTENTION];
}

/* ---- communication of a layer ---------------------------------------------------------------- */

DPARI_INTERNAL void dpari_pair_init(dpar_cluster_group *group, const dpar_cluster *cluster,
                                    int32_t n, int32_t stride)
{
    dpar_cluster_group_init(group, cluster, n, stride);
    group->nodes = group->nodes > 1 ? 2 : 1;
    group->size = 2;
    group->per_node = group->nodes == 2 ? 1 : 2;
}

DPARI_INTERNAL void dpari_tally_add(dpari_tally *tally, int32_t what, int32_t kind, int32_t n,
                                    double bytes, double forward, double backward)
{
    double all;
    if (tally == NULL || n < 2) {
        return;
    }
    all =
        kind == DPAR_CALL_SEND_RECV ? bytes * tally->ranks : (n - 1.0) * bytes * (tally->ranks / n);
    all *= kind == DPAR_CALL_ALL_REDUCE ? 2.0 : 1.0;
    tally->forward[what][kind] += all * forward;
    tally->backward[what][kind] += all * backward;
}

/* Returns the seconds of one call, and adds its bytes for as many calls as there are in the forward
 * and in the backward. */
static double dpari_spend(const dpar_job *job, const dpar_cluster_group *group, int32_t kind,
                          double bytes, dpari_layer_price *price, double forward, double backward)
{
    dpar_collective_cost c;
    dpar_collective_predict(job->cluster, group, kind, bytes, &c);
    price->link_forward += c.link_bytes * forward;
    price->nic_forward += c.nic_bytes * forward;
    price->link_backward += c.link_bytes * backward;
    price->nic_backward += c.nic_bytes * backward;
    return c.seconds;
}

/* Does the same, and counts the call in the tally. */
static double dpari_spend_counted(const dpar_job *job, const dpar_cluster_group *group,
                                  int32_t what, int32_t kind, double bytes,
                                  dpari_layer_price *price, double forward, double backward)
{
    dpari_tally_add(price->tally, what, kind, group->size, bytes, forward, backward);
    return dpari_spend(job, group, kind, bytes, price, forward, backward);
}

/* Prices Megatron's tensor-parallel regions. Each has an all-reduce in the forward and one in the
 * backward; with SP there are an all-gather and a reduce-scatter each way, and the input is
 * gathered once more for the weight gradient. The embedding has only the all-reduce of the forward,
 * the head only that of the backward. */
static DPARI_COLD void dpari_price_tp(const dpar_job *job, const dpar_strategy *strategy,
                                      const dpar_workload_layer *layer, double tokens,
                                      dpari_layer_price *price)
{
    double launch_s = job->cluster->cal.value[DPAR_CAL_LAUNCH_S];
    dpar_cluster_group g;
    double n = layer->tp_regions, bytes = tokens * layer->width_bytes, gather, reduce, forward,
           backward;
    if (strategy->tp == 1 || layer->tp_regions == 0) {
        return;
    }
    dpar_cluster_group_init(&g, job->cluster, strategy->tp, 1);
    forward = layer->kind == DPAR_LAYER_HEAD ? 0.0 : n;
    backward = layer->kind == DPAR_LAYER_EMBED ? 0.0 : n;
    price->host_forward += forward * launch_s;
    price->host_backward += backward * launch_s;
    if (!strategy->sp) {
        reduce = dpari_spend_counted(job, &g, DPAR_TRAFFIC_TP, DPAR_CALL_ALL_REDUCE, bytes, price,
                                     forward, backward);
        price->tp_forward = reduce * forward;
        price->tp_backward = reduce * backward;
    } else {
        /* the embedding scatters in the forward and gathers in the backward, the head does the
         * opposite */
        double gathers = layer->kind == DPAR_LAYER_EMBED ? 0.0 : n;
        gather = dpari_spend_counted(job, &g, DPAR_TRAFFIC_TP, DPAR_CALL_ALL_GATHER, bytes, price,
                                     gathers, layer->kind == DPAR_LAYER_BLOCK ? 2.0 * n : n);
        reduce = dpari_spend_counted(job, &g, DPAR_TRAFFIC_TP, DPAR_CALL_REDUCE_SCATTER, bytes,
                                     price, forward, backward);
        price->tp_forward =
            forward * (gather + reduce) + (layer->kind == DPAR_LAYER_HEAD ? gather : 0.0);
        price->tp_backward = backward * (2.0 * gather + reduce);
    }
    if (layer->kind == DPAR_LAYER_HEAD &&
        job->work->vocab > 0) { /* the loss: one maximum, two sums */
        dpari_tally_add(price->tally, DPAR_TRAFFIC_TP, DPAR_CALL_ALL_GATHER, strategy->tp,
                        tokens * strategy->tp * (job->work->element == 8 ? 24.0 : 12.0), 1.0, 0.0);
    }
    price->tp_again = price->tp_forward;
    if (dpari_overlap_of(job, strategy) & DPAR_OVERLAP_TP) {
        /* the data gradient is reduced while the weight gradient is computed */
        double hidden = dpari_leastf(0.9 * price->tp_backward, 0.45 * price->backward);
        price->tp_backward -= hidden * (1.0 - dpari_contention(job));
    }
}

/* Prices the exchange of keys and values between context-parallel ranks. Ulysses makes four
 * all-to-alls each way (queries, keys, values, outputs); the other kinds gather or pass keys and
 * values once in the forward and twice in the backward. */
static DPARI_COLD void dpari_price_cp(const dpar_job *job, const dpar_strategy *strategy,
                                      const dpar_workload_layer *layer, double tokens,
                                      dpari_layer_price *price)
{
    dpar_cluster_group g;
    double kv = tokens * layer->cp_kv_bytes / strategy->tp,
           qo = tokens * layer->cp_qo_bytes / strategy->tp, t;
    if (strategy->cp == 1 || layer->cp_kv_bytes <= 0.0) {
        return;
    }
    dpar_cluster_group_init(&g, job->cluster, strategy->cp, strategy->tp);
    if (strategy->cp_kind == DPAR_CP_ULYSSES) {
        /* the attention output is kept before and after its exchange */
        price->kept[DPAR_RECOMPUTE_NONE] += 0.5 * qo;
        price->kept[DPAR_RECOMPUTE_SELECTIVE] += 0.5 * qo;
        t = 4.0 * dpari_spend_counted(job, &g, DPAR_TRAFFIC_CP, DPAR_CALL_ALL_TO_ALL,
                                      (kv + qo) / 4.0, price, 4.0, 4.0);
        price->cp_forward = t;
        price->cp_backward = t;
        return;
    }
    t = dpari_spend(job, &g, DPAR_CALL_ALL_GATHER, kv * strategy->cp, price, 1.0, 2.0);
    if (strategy->cp_kind == DPAR_CP_GATHER) {
        dpari_tally_add(price->tally, DPAR_TRAFFIC_CP, DPAR_CALL_ALL_GATHER, strategy->cp,
                        kv * strategy->cp, 1.0, 2.0);
        price->cp_forward = t;
        price->cp_backward = 2.0 * t;
    } else {
        /* the ring passes blocks while it computes with the previous one */
        double merge = qo * (strategy->cp - 1.0) /
                       (job->cluster->gpu.memory_Bps * job->cluster->cal.value[DPAR_CAL_HBM]);
        dpari_tally_add(price->tally, DPAR_TRAFFIC_CP, DPAR_CALL_SEND_RECV, strategy->cp,
                        kv * (strategy->cp - 1.0), 1.0, 2.0);
        price->cp_forward =
            dpari_mostf(0.15 * t, t - 0.8 * price->attention) + dpari_ring_merge * merge;
        price->cp_backward =
            dpari_mostf(0.3 * t, 2.0 * t - 0.8 * dpari_attention_back * price->attention) +
            dpari_ring_merge_back * merge;
    }
}

/* Returns the expected number of different places that k random choices of n places reach. */
static DPARI_COLD double dpari_places_reached(double n, int32_t k)
{
    double missed = 1.0;
    for (; k > 0; k--) {
        missed *= 1.0 - 1.0 / n;
    }
    return n * (1.0 - missed);
}

/* Returns the number of nodes on which a token's experts can be. If routing is limited to some
 * groups of experts, these are the nodes of those groups. */
static DPARI_COLD double dpari_routed_nodes(const dpar_workload *work, double nodes)
{
    const double groups = work->expert_groups;
    if (work->topk_groups < 1 || work->topk_groups >= work->expert_groups) {
        return nodes;
    }
    return nodes >= groups ? nodes / groups * work->topk_groups
                           : dpari_places_reached(nodes, work->topk_groups);
}

/* Returns the seconds of one all-to-all of routed tokens. Software that sends a token once to each
 * node sends one copy per node that the token reaches, not topk copies; at the same time the copies
 * are distributed inside the nodes. */
static DPARI_COLD double dpari_routed_seconds(const dpar_job *job, const dpar_cluster_group *group,
                                              double bytes, dpari_layer_price *price)
{
    double sent, t;
    dpar_cluster_group inside = *group;
    const int once = dpari_age(job->work)->once && job->work->topk > 0;
    if (once && job->recipe.casts > 0.0) { /* one of the four messages is sent in 8 bits */
        bytes *= 0.875;
    }
    if (!once || group->nodes < 2) {
        return dpari_spend(job, group, DPAR_CALL_ALL_TO_ALL, bytes, price, 2.0, 2.0);
    }
    sent = dpari_places_reached(dpari_routed_nodes(job->work, group->nodes), job->work->topk);
    t = dpari_spend(job, group, DPAR_CALL_ALL_TO_ALL, bytes * sent / job->work->topk, price, 2.0,
                    2.0);
    inside.size = group->per_node;
    inside.nodes = 1;
    return dpari_mostf(t, dpari_spend(job, &inside, DPAR_CALL_ALL_TO_ALL, bytes, price, 2.0, 2.0));
}

/* Assumed, not measured: nine tenths of the experts' messages can be hidden, and four fifths of the
 * layer can hide them. The command plan notes this assumption if it affects the plan. */
static const double dpari_ep_hidden = 0.9;
static const double dpari_ep_hides = 0.8;

/* Hides t seconds of messages each way behind the work of the forward and the backward. */
static DPARI_COLD void dpari_hide_ep(const dpar_job *job, double t, double forward, double backward,
                                     dpari_layer_price *price)
{
    const double lost = 1.0 - dpari_contention(job);
    price->ep_forward -= lost * dpari_leastf(dpari_ep_hidden * t, forward);
    price->ep_backward -= lost * dpari_leastf(dpari_ep_hidden * t, backward);
}

/* Prices sending the tokens to their experts and back, in the forward and in the backward:
 * all-to-alls over the ep ranks, and an all-gather of tokens and a reduce-scatter of outputs over
 * the etp ranks of an expert. */
static DPARI_COLD void dpari_price_ep(const dpar_job *job, const dpari_rates *rates,
                                      const dpar_workload_layer *layer, double tokens,
                                      dpari_layer_price *p)
{
    const dpar_strategy *strategy = rates->strategy;
    dpar_cluster_group g;
    double t = 0.0, bytes = tokens * layer->ep_bytes * job->work->capacity /
                            (strategy->sp ? strategy->tp : 1);
    if (layer->ep_bytes <= 0.0) {
        return;
    }
    if (strategy->ep > 1) {
        dpar_cluster_group_init(&g, job->cluster, strategy->ep, strategy->etp);
        dpari_tally_add(p->tally, DPAR_TRAFFIC_EP, DPAR_CALL_ALL_TO_ALL, strategy->ep,
                        4.0 * (job->work->experts + (double)strategy->ep), 1.0, 0.0);
        dpari_tally_add(p->tally, DPAR_TRAFFIC_EP, DPAR_CALL_ALL_REDUCE, strategy->ep, 24.0, 1.0,
                        0.0);
        dpari_tally_add(p->tally, DPAR_TRAFFIC_EP, DPAR_CALL_ALL_TO_ALL, strategy->ep, bytes, 2.0,
                        2.0);
        t += 2.0 * dpari_routed_seconds(job, &g, bytes, p);
    }
    if (strategy->etp > 1) {
        dpar_cluster_group_init(&g, job->cluster, strategy->etp, 1);
        t += dpari_spend_counted(job, &g, DPAR_TRAFFIC_EP, DPAR_CALL_ALL_GATHER,
                                 bytes * strategy->etp, p, 1.0, 1.0);
        t += dpari_spend_counted(job, &g, DPAR_TRAFFIC_EP, DPAR_CALL_REDUCE_SCATTER,
                                 bytes * strategy->etp, p, 1.0, 1.0);
    }
    p->ep_forward = t;
    p->ep_backward = t;
    if (dpari_overlap_of(job, strategy) & DPAR_OVERLAP_EP) {
        dpari_hide_ep(job, t, dpari_ep_hides * p->forward, dpari_ep_hides * p->backward, p);
    } else if (strategy->overlap & DPAR_OVERLAP_SHARED) {
        dpari_layer_price shared;
        int32_t k;
        dpari_zero(&shared, sizeof(shared));
        for (k = 0; k < layer->shared_ops; k++) {
            dpari_price_op(rates, &job->work->op[layer->shared + k], tokens, &shared);
        }
        dpari_hide_ep(job, t, shared.forward, shared.backward, p);
    }
}

DPARI_INTERNAL DPARI_COLD double dpari_halo_cells(const dpar_workload *work,
                                                  const dpar_workload_layer *layer,
                                                  const dpar_strategy *strategy)
{
    double cells = 0.0;
    int32_t i, k;
    for (i = 0; i < work->dims; i++) {
        double face = 1.0;
        for (k = 0; k < work->dims; k++) {
            if (k != i) {
                face *= (double)work->extent[k] / layer->shrink / strategy->tiles[k];
            }
        }
        cells += strategy->tiles[i] > 1 ? 2.0 * face : 0.0;
    }
    return cells;
}

/* Prices the halo exchanges of a layer. */
static DPARI_COLD void dpari_price_halo(const dpar_job *job, const dpar_strategy *strategy,
                                        const dpar_workload_layer *layer, dpari_layer_price *price)
{
    int32_t tiles = (int32_t)dpari_tiles(strategy);
    double bytes, t;
    dpar_cluster_group g;
    if (tiles == 1 || layer->exchanges == 0) {
        return;
    }
    dpari_pair_init(&g, job->cluster, tiles, strategy->tp);
    bytes = dpari_halo_cells(job->work, layer, strategy) * layer->reach_bytes *
            strategy->micro_batch / layer->exchanges;
    t = dpari_spend(job, &g, DPAR_CALL_SEND_RECV, bytes, price, layer->exchanges,
                    layer->exchanges) *
        layer->exchanges;
    price->halo_forward = t;
    price->halo_backward = job->work->trains ? t : 0.0;
    dpari_tally_add(price->tally, DPAR_TRAFFIC_HALO, DPAR_CALL_SEND_RECV, tiles, bytes,
                    layer->exchanges, layer->exchanges);
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Prices one layer of class i for one micro-batch on one rank, and counts its calls if there is a
 * tally. */
static void dpari_price_layer(const dpar_job *job, const dpari_rates *rates, int32_t i,
                              dpari_tally *tally, dpari_layer_price *price)
{
    const dpar_workload *work = job->work;
    const dpar_workload_layer *layer = &work->layer[i];
    const dpari_rates *r = layer->kind == DPAR_LAYER_HEAD ? rates + 1 : rates;
    const dpar_strategy *strategy = r->strategy;
    double parts = (double)strategy->cp * (double)dpari_tiles(strategy);
    double tokens = layer->tokens * strategy->micro_batch / parts;
    int32_t k;
    dpari_zero(price, sizeof(*price));
    price->tally = tally;
    for (k = 0; k < layer->ops; k++) {
        dpari_price_op(r, &work->op[layer->first + k], tokens, price);
    }
    if (layer->kind == DPAR_LAYER_HEAD && work->loss == DPAR_MODEL_LOSS_EAGER && strategy->tp > 1) {
        price->transient *= 18.0 / 14.0;
    }
    price->again[DPAR_RECOMPUTE_FULL] = price->forward;
    price->host_backward = 2.0 * price->host_forward;
    price->send = tokens * layer->width_bytes;
    price->kept[DPAR_RECOMPUTE_FULL] =
        price->send / r->sequence; /* its input, as wide as its output */
    price->kept[DPAR_RECOMPUTE_ALTERNATE] =
        price->send / r->sequence + tokens * layer->alternate / strategy->tp;
    dpari_price_tp(job, strategy, layer, tokens, price);
    dpari_price_cp(job, strategy, layer, tokens, price);
    dpari_price_ep(job, r, layer, tokens, price);
    dpari_price_halo(job, strategy, layer, price);
    if (!work->trains) {
        price->backward = price->host_backward = price->tp_backward = price->cp_backward =
            price->ep_backward = 0.0;
        price->link_backward = price->nic_backward = 0.0;
    }
}

/* Returns the bytes of the dummy weight gradients that TransformerEngine gives to autograd when it
 * accumulates in place. It keeps one dummy for each shape: one for each product of a block (experts
 * share one shape), and one for the head. */
static DPARI_COLD double dpari_layer_dummies(const dpar_job *job, const dpar_strategy *strategy,
                                             int32_t kind)
{
    const dpar_workload *work = job->work;
    double sum = 0.0;
    int32_t i, k;
    if (work->stack != DPAR_MODEL_STACK_MEGATRON_CORE || !work->trains) {
        return 0.0;
    }
    for (i = 0; i < work->layers; i++) {
        const dpar_workload_layer *layer = &work->layer[i];
        for (k = 0; layer->kind == kind && k < layer->ops; k++) {
            const dpari_layer_op *op = &work->op[layer->first + k];
            double cut = strategy->tp;
            if (op->cut >= DPARI_CUT_EXPERT) {
                cut = (double)work->experts * strategy->etp;
            } else if (op->cut == DPARI_CUT_NONE) {
                cut = 1.0;
            }
            sum += op->kind == DPARI_OP_STREAM ? 0.0 : 2.0 * op->params / cut;
        }
    }
    return sum;
}

DPARI_INTERNAL void dpari_price_layers(const dpar_job *job, const dpar_strategy *strategy,
                                       dpari_layers *out)
{
    dpari_rates r[2];
    int32_t i;
    dpari_rates_of(job, strategy, r);
    for (i = 0; i < job->work->layers; i++) {
        dpari_price_layer(job, r, i, NULL, &out->of[i]);
    }
    out->dummies = dpari_layer_dummies(job, strategy, DPAR_LAYER_BLOCK);
    out->head_dummies = dpari_layer_dummies(job, strategy, DPAR_LAYER_HEAD);
}

DPARI_INTERNAL void dpari_tally_layer(const dpar_job *job, const dpar_strategy *strategy, int32_t i,
                                      dpari_tally *tally)
{
    dpari_rates r[2];
    dpari_layer_price p;
    dpari_rates_of(job, strategy, r);
    dpari_price_layer(job, r, i, tally, &p);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_recipe_check(const dpar_recipe *recipe, dpar_why *why)
{
    const double bytes[7] = {recipe->weight,   recipe->gradient, recipe->master, recipe->moments,
                             recipe->gathered, recipe->reduced,  recipe->casts};
    int32_t i, fine = recipe->weight > 0.0 && recipe->compute > DPAR_TYPE_NONE &&
                      recipe->compute < DPAR_FORMAT_COUNT;
    for (i = 0; i < 7; i++) {
        fine = fine && bytes[i] >= 0.0 && bytes[i] <= 1000.0;
    }
    if (fine) {
        return DPAR_OK;
    }
    return dpari_wrong(
        why,
        "recipe: weight must be above 0, the bytes 0 to 1000, and compute=%d a format "
        "of 1 to %d, f64 to f4 (dpar_recipe_find sets all)",
        recipe->compute, (int32_t)DPAR_FORMAT_COUNT - 1);
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* Returns how many blocks of class i are among the blocks [from, to) of the model. */
static double dpari_blocks_within(const dpar_workload *work, int32_t i, int64_t from, int64_t to)
{
    const dpar_workload_layer *layer = &work->layer[i];
    from = dpari_most(from, layer->from);
    to = dpari_least(to, (int64_t)layer->from + layer->span);
    return to > from ? (double)(to - from) * ((double)layer->count / layer->span) : 0.0;
}

/* Returns the first block of chunk c of `chunks`. Chunks have equal shares, and the first ones have
 * one block more, so that the last stage, which has the logits, is never longer than others. If the
 * chunks do not divide the blocks but would divide two more, the embedding and the loss count as
 * layers (126 over 16, 94 over 32 x 3). */
static int64_t dpari_chunk_start(const dpar_workload *work, int64_t chunks, int64_t c)
{
    int64_t blocks = work->blocks, rest = blocks % chunks;
    if (work->head_blocks >
        0) { /* the head counts as head_blocks blocks, so the last stages are shorter */
        return dpari_least(dpari_ceil_div((blocks + work->head_blocks) * c, chunks),
                           blocks - (chunks - c));
    }
    if (rest > 0 && rest == chunks - 2) {
        return c > 0 ? dpari_least(blocks, (blocks / chunks + 1) * c - 1) : 0;
    }
    return blocks / chunks * c + dpari_least(c, rest);
}

/* Chunks are assigned to ranks 0 to pp-1 in turn; with V schedules every second turn goes
 * backwards. */
DPARI_INTERNAL int64_t dpari_chunk_of(const dpar_strategy *strategy, int32_t rank, int32_t v)
{
    int64_t turn = (int64_t)v * strategy->pp;
    return v % 2 == 1 && dpari_v_shaped(strategy->schedule) ? turn + strategy->pp - 1 - rank
                                                            : turn + rank;
}

DPARI_INTERNAL double dpari_stage_blocks(const dpar_workload *work, const dpar_strategy *strategy,
                                         int32_t rank, int32_t i)
{
    int64_t chunks = (int64_t)strategy->pp * strategy->vp;
    double n = 0.0;
    int32_t v;
    for (v = 0; v < strategy->vp; v++) {
        int64_t c = dpari_chunk_of(strategy, rank, v);
        n += dpari_blocks_within(work, i, dpari_chunk_start(work, chunks, c),
                                 dpari_chunk_start(work, chunks, c + 1));
    }
    return n;
}

DPARI_INTERNAL int dpari_ends_apart(const dpar_strategy *strategy)
{
    return dpari_chunk_of(strategy, 0, strategy->vp - 1) !=
           (int64_t)strategy->pp * strategy->vp - 1;
}

/* Adds `count` layers of a class to a stage. again: seconds of a layer's recomputation; kept: bytes
 * that it keeps. */
static void dpari_stage_add(const dpar_strategy *strategy, dpari_stage *st,
                            const dpari_layer_price *price, double count, double again, double kept)
{
    st->forward += count * price->forward;
    st->backward += count * price->backward;
    st->again += count * again;
    st->host += count * (price->host_forward + price->host_backward);
    st->tp +=
        count * (price->tp_forward + price->tp_backward + (again > 0.0 ? price->tp_again : 0.0));
    st->cp += count * (price->cp_forward + price->cp_backward);
    st->ep += count * (price->ep_forward + price->ep_backward);
    st->halo += count * (price->halo_forward + price->halo_backward);
    st->sent +=
        count * (price->tp_forward + price->cp_forward + price->ep_forward + price->halo_forward);
    st->params += count * price->params;
    st->expert_params += count * price->expert_params;
    st->kept += count * kept;
    st->link_bytes += count * (price->link_forward + price->link_backward);
    st->nic_bytes += count * (price->nic_forward + price->nic_backward);
    st->transient = dpari_mostf(st->transient, price->transient);
    st->largest = dpari_mostf(st->largest, price->params + price->expert_params);
    st->boundary = dpari_mostf(st->boundary, price->send / strategy->tp);
}

/* Adds `count` layers of a class to a stage; `full` of them are fully recomputed. */
static void dpari_stage_class(const dpar_strategy *strategy, dpari_stage *st,
                              const dpari_layer_price *price, double count, double full)
{
    int32_t mode = strategy->recompute & 3;
    if (mode != DPAR_RECOMPUTE_FULL) {
        double again = price->again[mode];
        dpari_stage_add(strategy, st, price, count, again, price->kept[mode]);
        st->tp -= again > 0.0 ? count * price->tp_again : 0.0; /* scores need no communication */
        if (mode == DPAR_RECOMPUTE_ALTERNATE) { /* sums are kept, and inputs are gathered again */
            st->tp += 0.5 * count * price->tp_again;
            st->transient =
                dpari_mostf(st->transient, price->transient + price->kept[DPAR_RECOMPUTE_NONE] -
                                               price->kept[mode]);
        }
        return;
    }
    dpari_stage_add(strategy, st, price, full, price->again[DPAR_RECOMPUTE_FULL],
                    price->kept[DPAR_RECOMPUTE_FULL]);
    st->host += full * price->host_forward;
    st->link_bytes += full * price->link_forward;
    st->nic_bytes += full * price->nic_forward;
    st->ep += full * price->ep_forward;
    st->cp += full * price->cp_forward;
    st->halo += full * price->halo_forward;
    dpari_stage_add(strategy, st, price, count - full, 0.0, price->kept[DPAR_RECOMPUTE_NONE]);
    /* while a layer is recomputed, all of its activations exist */
    st->transient = dpari_mostf(st->transient, price->transient + price->kept[DPAR_RECOMPUTE_NONE]);
}

/* Adds the embedding or the head to a stage. */
static DPARI_COLD void dpari_stage_edges(const dpar_job *job, const dpar_strategy *strategy,
                                         const dpari_layers *layers, int32_t kind, dpari_stage *st)
{
    const dpar_workload *work = job->work;
    int32_t i;
    for (i = 0; i < work->layers; i++) {
        dpari_layer_price price;
        if (work->layer[i].kind != kind) {
            continue;
        }
        price = layers->of[i];
        if (kind == DPAR_LAYER_HEAD) {
            st->logits += price.transient;
            price.transient = 0.0;
        }
        dpari_stage_add(strategy, st, &price, work->layer[i].count, 0.0,
                        price.kept[DPAR_RECOMPUTE_NONE]);
        /* tied embeddings: the last stage keeps a copy of the embedding if the first stage is on
         * another rank */
        if (kind == DPAR_LAYER_HEAD && dpari_ends_apart(strategy) && work->vocab > 0 &&
            dpari_layer_params(work, i) < (double)work->vocab * work->hidden) {
            st->params += (double)work->vocab * work->hidden / strategy->tp;
        }
    }
}

/* Sets the time of a stage from those of host and device, which work at the same time. A fast host
 * is hidden, a slow host determines the time, and between these cases the device sometimes waits.
 * With TP every rank waits at each collective for the rank whose host is last, so more of the
 * host's time is exposed (vTrain's single-node rows, tp 1 against 2 to 8). */
static void dpari_stage_total(const dpar_strategy *strategy, dpari_stage *st)
{
    double device = dpari_stage_device(st);
    double share = strategy->tp > 1 ? 0.75 : 0.25;
    double waits = st->host > 0.0 ? share * st->host * st->host / (st->host + device / 2.0) : 0.0;
    st->total = dpari_mostf(device + waits, st->host);
}

DPARI_INTERNAL void dpari_price_stage(const dpar_job *job, const dpar_strategy *strategy,
                                      const dpari_layers *layers, int32_t rank, dpari_stage *st)
{
    const dpar_workload *work = job->work;
    int64_t chunks = (int64_t)strategy->pp * strategy->vp;
    double share;
    int32_t i, v;
    dpari_zero(st, sizeof(*st));
    st->rank = rank;
    st->dummies = layers->dummies;
    st->head_dummies = layers->head_dummies;
    for (v = 0; v < strategy->vp; v++) {
        int64_t c = dpari_chunk_of(strategy, rank, v);
        st->layers +=
            (double)(dpari_chunk_start(work, chunks, c + 1) - dpari_chunk_start(work, chunks, c));
    }
    share = dpari_recomputed_share(strategy, st->layers);
    for (v = 0; v < strategy->vp; v++) {
        int64_t c = dpari_chunk_of(strategy, rank, v);
        int64_t from = dpari_chunk_start(work, chunks, c);
        int64_t to = dpari_chunk_start(work, chunks, c + 1);
        for (i = 0; i < work->layers; i++) {
            double n = work->layer[i].kind == DPAR_LAYER_BLOCK
                           ? dpari_blocks_within(work, i, from, to)
                           : 0.0;
            if (n > 0.0) {
                dpari_stage_class(strategy, st, &layers->of[i], n, n * share);
            }
        }
        if (c == 0) {
            dpari_stage_edges(job, strategy, layers, DPAR_LAYER_EMBED, st);
        }
        if (c == chunks - 1) {
            dpari_stage_edges(job, strategy, layers, DPAR_LAYER_HEAD, st);
        }
    }
    dpari_stage_total(strategy, st);
}

/* Returns 1 if a class of blocks begins inside the chunks of a rank, so that no other rank has the
 * same mix of classes. */
static int dpari_stage_mixed(const dpar_workload *work, const dpar_strategy *strategy, int32_t rank)
{
    int64_t chunks = (int64_t)strategy->pp * strategy->vp;
    int32_t i, v;
    for (i = 0; i < work->layers; i++) {
        int64_t start = work->layer[i].from;
        for (v = 0; v < strategy->vp; v++) {
            int64_t c = dpari_chunk_of(strategy, rank, v);
            if (work->layer[i].kind == DPAR_LAYER_BLOCK && start > 0 &&
                start >= dpari_chunk_start(work, chunks, c) &&
                start <= dpari_chunk_start(work, chunks, c + 1)) {
                return 1;
            }
        }
    }
    return 0;
}

static int32_t dpari_block_classes(const dpar_workload *work)
{
    int32_t i, n = 0;
    for (i = 0; i < work->layers; i++) {
        n += work->layer[i].kind == DPAR_LAYER_BLOCK;
    }
    return n;
}

/* Computes the sum over all ranks, in which every layer occurs once. */
static DPARI_COLD void dpari_price_whole(const dpar_job *job, const dpar_strategy *strategy,
                                         const dpari_layers *layers, dpari_stage *whole)
{
    const dpar_workload *work = job->work;
    double share = dpari_recomputed_share(strategy, (double)work->blocks / strategy->pp);
    int32_t i;
    dpari_zero(whole, sizeof(*whole));
    for (i = 0; i < work->layers; i++) {
        if (work->layer[i].kind == DPAR_LAYER_BLOCK) {
            dpari_stage_class(strategy, whole, &layers->of[i], work->layer[i].count,
                              work->layer[i].count * share);
        }
    }
    dpari_stage_edges(job, strategy, layers, DPAR_LAYER_EMBED, whole);
    dpari_stage_edges(job, strategy, layers, DPAR_LAYER_HEAD, whole);
    dpari_stage_total(strategy, whole);
}

/* Returns 1 if a rank or one next to it is mixed. The ranks next to a mixed one are the longest of
 * the ranks that are not mixed on their side. */
static int dpari_stage_near_mixed(const dpar_workload *work, const dpar_strategy *strategy,
                                  int32_t rank)
{
    return dpari_stage_mixed(work, strategy, rank - 1) || dpari_stage_mixed(work, strategy, rank) ||
           (rank + 1 < strategy->pp && dpari_stage_mixed(work, strategy, rank + 1));
}

/* Returns an entry for one more stage. If the list is full, the fastest of the inner ones is
 * replaced. */
static DPARI_COLD dpari_stage *dpari_stage_place(dpari_stages *out)
{
    int32_t i, quick = 1;
    if (out->n < DPARI_MAX_STAGES) {
        return &out->of[out->n++];
    }
    for (i = 2; i < out->n; i++) {
        quick = out->of[i].total < out->of[quick].total ? i : quick;
    }
    for (i = quick; i + 1 < out->n;
         i++) { /* keeps the order of ranks; the last is the last stage */
        out->of[i] = out->of[i + 1];
    }
    return &out->of[out->n - 1];
}

DPARI_INTERNAL double dpari_boundary_bytes(const dpar_job *job, const dpar_strategy *strategy,
                                           const dpari_layers *layers)
{
    double send = 0.0;
    int32_t i;
    for (i = 0; i < job->work->layers; i++) {
        if (job->work->layer[i].kind == DPAR_LAYER_BLOCK) {
            send = dpari_mostf(send, layers->of[i].send);
        }
    }
    /* each TP rank sends its part, and the receivers gather the parts over the fast links */
    return send / strategy->tp;
}

DPARI_INTERNAL void dpari_price_stages(const dpar_job *job, const dpar_strategy *strategy,
                                       const dpari_layers *layers, dpari_stages *out)
{
    int32_t rank, last = strategy->pp - 1, classes = dpari_block_classes(job->work);
    out->n = 0;
    for (rank = 0; rank <= last; rank++) {
        if (rank <= 1 || rank == last || dpari_stage_near_mixed(job->work, strategy, rank)) {
            dpari_price_stage(job, strategy, layers, rank, dpari_stage_place(out));
        } else if (classes <= 1) {
            rank = last - 1; /* the ranks in between are like rank 1 or shorter */
        }
    }
    dpari_price_whole(job, strategy, layers, &out->whole);
    out->sum_total = out->whole.total;
    out->send = dpari_boundary_bytes(job, strategy, layers);
}

/* ==== cost/plan_kinds.c ==== */

/* Sorts plans into kinds by the features that they need in the program that runs them, and keeps
 * the fastest plan of each kind. During a search for dpar_plan_recommend the planner calls
 * dpari_kind_keep for each plan that fits; recommend.c then chooses among the kinds. */

/* Returns 1 if the links inside a node are PCIe, otherwise 0. A description of a cluster gives only
 * their speed. The fastest PCIe (generation 6, 16 lanes) carries 121 GB/s and the NVLinks of a V100
 * 150 GB/s, so that 130 GB/s separates them. Slower NVLinks, such as those of a P100, differ from
 * PCIe because they are more than 1.3 times as fast as the chip's path to the host. */
DPARI_INTERNAL int dpari_over_pcie(const dpar_cluster *cluster)
{
    return cluster->link_Bps < 130e9 && cluster->link_Bps <= 1.3 * cluster->gpu.pcie_Bps;
}

/* Returns 1 if a plan is recommended only when no other one fits, otherwise 0. Tensor parallelism
 * waits for messages in every layer. Over PCIe and between nodes these are slow, and their
 * predictions are the least certain. Existing programs do not cut experts over ranks (etp > 1). */
static int dpari_kind_poor(const dpar_job *job, const dpar_strategy *strategy)
{
    const dpar_cluster *cluster = job->cluster;
    return (strategy->tp > 1 &&
            (dpari_over_pcie(cluster) || strategy->tp > cluster->gpus_per_node)) ||
           strategy->etp > 1;
}

/* Returns the kind of a plan, as bits DPARI_KIND_*. */
static int32_t dpari_kind_bits(const dpar_job *job, const dpar_strategy *strategy)
{
    int32_t bits = strategy->tp > 1 ? DPARI_KIND_TP : 0;
    bits |= strategy->cp > 1 || dpari_tiles(strategy) > 1 ? DPARI_KIND_CUT : 0;
    bits |= strategy->pp > 1 ? DPARI_KIND_PP : 0;
    bits |= strategy->vp > 1 ? DPARI_KIND_CHUNKS : 0;
    bits |= strategy->recompute != DPAR_RECOMPUTE_NONE ? DPARI_KIND_RECOMPUTE : 0;
    bits |= strategy->zero == 1 || strategy->zero == 2 ? DPARI_KIND_SHARDS : 0;
    bits |= strategy->zero == 3 ? DPARI_KIND_FSDP : 0;
    bits |= strategy->zero == 3 && strategy->shard > 0 && strategy->shard < strategy->dp
                ? DPARI_KIND_GROUPS
                : 0;
    bits |=
        strategy->pp > 1 && 2 * (int64_t)strategy->pp > job->work->blocks ? DPARI_KIND_SHORT : 0;
    return bits | (dpari_kind_poor(job, strategy) ? DPARI_KIND_POOR : 0);
}

DPARI_INTERNAL void dpari_kind_keep(dpari_kinds *kinds, const dpar_job *job,
                                    const dpar_strategy *strategy, double seconds)
{
    int32_t bits = dpari_kind_bits(job, strategy), i;
    int32_t at = 0; /* the slowest kind so far, which is replaced if all entries are taken */
    for (i = 0; i < kinds->n && kinds->of[i].bits != bits; i++) {
        if (kinds->of[i].seconds > kinds->of[at].seconds) {
            at = i;
        }
    }
    if (i < kinds->n) {
        at = i;
    } else if (kinds->n < DPARI_KINDS) {
        at = kinds->n;
        kinds->n++;
        kinds->of[at].seconds = seconds * 2.0; /* any time that the plan beats */
    }
    /* the margin keeps the first of two plans whose times differ only by rounding */
    if (seconds < kinds->of[at].seconds * (1.0 - 1e-12)) {
        kinds->of[at].bits = bits;
        kinds->of[at].seconds = seconds;
        kinds->of[at].strategy = *strategy;
    }
}

/* ==== cost/planner.c ==== */

/* Searches the strategies of a job. The walk has three levels, because the prices of layers depend
 * on few options and those of stages on more.
 *
 * 1. An odometer walks the outer options: tiles, tp, sp, cp, ep, etp, micro-batch. At each of its
 *    positions the layers are priced once.
 * 2. Loops walk pipelines and recomputation, and price the stages.
 * 3. Loops walk ZeRO, offload, shards and overlap, and combine the prices of the stages.
 *
 * Bounds at each level leave out strategies that cannot be among the best. Every strategy is
 * counted once: as priced, as cut by a bound, or as rejected by a rule. If an outer option breaks a
 * rule, the inner strategies are still walked, but only to count them.
 *
 * The neighbours of a plan, the nearest legal strategy and the smallest machine follow at the end.
 * */

/* ---- one configuration ----------------------------------------------------------------------- */

/* Returns tenths of a GB, rounded up. */
static int64_t dpari_tenths(double bytes)
{
    return bytes < 1e26 ? (int64_t)(bytes * 1e-8 + 0.999999) : INT64_C(1000000000000000000);
}

/* Reports how much memory is missing. If at most 10 % are missing, names the largest term and how
 * much smaller it would have to be. */
static DPARI_COLD dpar_status dpari_plan_too_big(const dpar_job *job,
                                                 const dpar_memory_usage *memory, dpar_why *why)
{
    double gpu = job->cluster->gpu.memory_bytes, over = memory->lower - gpu, share;
    int64_t need = dpari_tenths(memory->total), has = dpari_tenths(gpu);
    int32_t i, most = DPAR_MEMORY_ACTIVATIONS;
    if (over <= 0.0) { /* the GPU suffices, so the host's memory does not */
        return dpari_say(DPAR_E_MEMORY, why,
                         "offloads %ld.%ld GB per GPU, but %d GPUs share %ld GB of a node's memory",
                         dpari_tenths(memory->host) / 10, dpari_tenths(memory->host) % 10,
                         job->cluster->gpus_per_node, (int64_t)(job->cluster->host_bytes * 1e-9));
    }
    for (i = DPAR_MEMORY_LOGITS; i <= DPAR_MEMORY_TRANSIENT; i++) {
        most = memory->term[i] > memory->term[most] ? i : most;
    }
    share = over < memory->term[most] ? 100.0 * over / memory->term[most] + 1.0 : 100.0;
    if (over > 0.1 * gpu || share > 99.0) {
        return dpari_say(DPAR_E_MEMORY, why, "needs %ld.%ld GB per GPU, but the GPU has %ld.%ld GB",
                         need / 10, need % 10, has / 10, has % 10);
    }
    return dpari_say(
        DPAR_E_MEMORY, why,
        "needs %ld GB per GPU, but the GPU has %ld GB; it fits if %s (%ld GB) shrink by %ld %%",
        (need + 9) / 10, has / 10, dpar_memory_name(most), dpari_tenths(memory->term[most]) / 10,
        (int64_t)share);
}

DPAR_API dpar_status dpar_plan_price(const dpar_job *job, const dpar_strategy *strategy,
                                     int64_t global_batch, dpar_plan *plan, int32_t *rule,
                                     dpar_why *why)
{
    dpari_layers layers;
    dpari_stages stages;
    dpar_status st = dpari_strategy_check(job, strategy, global_batch, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_recipe_check(&job->recipe, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_cluster_check(job->cluster, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_price_layers(job, strategy, &layers);
    dpari_price_stages(job, strategy, &layers, &stages);
    plan->strategy = *strategy;
    dpari_price_memory(job, strategy, &stages, &plan->memory);
    dpari_price_step(job, strategy, &stages, &plan->step);
    plan->fits = dpari_memory_runs(job, &plan->memory);
    if (plan->fits) {
        return DPAR_OK;
    }
    if (rule != NULL) {
        *rule = DPAR_STRATEGY_RULE_MEMORY;
    }
    return dpari_plan_too_big(job, &plan->memory, why);
}

/* ---- the axes of the walk -------------------------------------------------------------------- */

/* The axes of the odometer. The prices of the layers depend on these options only. */
enum {
    DPARI_AXIS_TILES_0,
    DPARI_AXIS_TILES_1,
    DPARI_AXIS_TILES_2,
    DPARI_AXIS_TP,
    DPARI_AXIS_SP,
    DPARI_AXIS_CP,
    DPARI_AXIS_CP_KIND,
    DPARI_AXIS_EP,
    DPARI_AXIS_ETP,
    DPARI_AXIS_OVERLAP_TP,
    DPARI_AXIS_MICRO_BATCH,
    DPARI_AXES
};

/* The layout of state[]. The odometer comes first, one entry per axis. */
enum {
    DPARI_LENGTH = DPARI_AXES,       /* the lengths of the axes */
    DPARI_POSITION = 2 * DPARI_AXES, /* number of positions of the odometer that are done */
    DPARI_TOTAL,                     /* number of positions */
    DPARI_NEAREST_BYTES,             /* 1e6 bytes of the smallest plan that did not fit, or 0 */
    DPARI_OUT_RULE,                  /* rule by which strategies are counted; 0 prices them */
    DPARI_PRICED                     /* 1 if the layers of this position are priced */
};
/* A value of DPARI_OUT_RULE that is not a rule: the strategies are legal, but slower than the plans
 * that are kept. */
enum { DPARI_OUT_CUT = DPAR_STRATEGY_RULE_COUNT };

/* Returns divisor number `index` of n in ascending order, or 0 after the last. O(sqrt n). */
static int32_t dpari_divisor(int32_t n, int32_t index)
{
    int32_t d, lower = 0;
    for (d = 1; d <= n / d; d++) {
        if (n % d == 0 && lower++ == index) {
            return d;
        }
    }
    index -= lower;
    for (d--; d >= 1; d--) { /* the other divisors are n / d, for d from the root down */
        if (n % d == 0 && d != n / d && index-- == 0) {
            return n / d;
        }
    }
    return 0;
}

/* Returns 2^index, or 0 if that exceeds the limit. */
static int32_t dpari_power(int32_t index, int64_t limit)
{
    return index < 30 && ((int64_t)1 << index) <= limit ? (int32_t)1 << index : 0;
}

/* Returns a value, or 0 if it exceeds the limit. */
static int32_t dpari_up_to(int32_t value, int64_t limit)
{
    return value <= limit ? value : 0;
}

/* Returns micro-batch number `index`, or 0 after the last: powers of two up to 64, or in the whole
 * space divisors of the batch up to 512. */
static int32_t dpari_micro_batch(const dpar_planner_desc *desc, int32_t index)
{
    if (desc->space != DPAR_SPACE_WHOLE) {
        return dpari_power(index, 64);
    }
    return desc->global_batch < 1 || desc->global_batch > INT32_MAX
               ? dpari_power(index, 512)
               : dpari_up_to(dpari_divisor((int32_t)desc->global_batch, index), 512);
}

/* Returns value number `index` of an axis, or 0 after the last. The values include those that a
 * rule forbids, so that the rule can be counted, but not those without a meaning for this job. */
static DPARI_COLD int32_t dpari_axis_value(const dpar_planner *planner, int32_t axis, int32_t index)
{
    const dpar_workload *work = planner->job.work;
    const dpar_planner_desc *desc = &planner->search;
    int32_t whole = desc->space == DPAR_SPACE_WHOLE, node = planner->job.cluster->gpus_per_node;
    int32_t once = index == 0, sequence = work->heads > 0 && work->vocab > 0;
    switch (axis) {
    case DPARI_AXIS_TILES_0: /* in the usual space the number of tiles, which dpari_cut_grid
                                arranges */
        return work->dims > 0 ? dpari_divisor(desc->gpus, index) : once;
    case DPARI_AXIS_TILES_1:
    case DPARI_AXIS_TILES_2:
        return whole && work->dims > axis ? dpari_divisor(desc->gpus, index) : once;
    case DPARI_AXIS_TP:
        return work->heads > 0
                   ? dpari_up_to(dpari_divisor(desc->gpus, index), dpari_most(work->heads, node))
                   : once;
    case DPARI_AXIS_SP: return whole && work->heads > 0 ? index < 2 : once;
    case DPARI_AXIS_OVERLAP_TP: return whole && work->heads > 0 && work->trains ? index < 2 : once;
    case DPARI_AXIS_CP:
        if (!sequence) {
            return once;
        }
        if (whole) {
            return dpari_up_to(dpari_divisor(desc->gpus, index),
                               dpari_most(1, dpari_least(256, (int64_t)work->tokens / 1024)));
        }
        return dpari_power(index, dpari_most(1, dpari_least(64, (int64_t)work->tokens / 1024)));
    case DPARI_AXIS_CP_KIND:
        if (!sequence) {
            return once;
        }
        return index < (whole ? DPAR_CP_KIND_COUNT : 2);
    case DPARI_AXIS_EP: return work->experts > 0 ? dpari_divisor(work->experts, index) : once;
    case DPARI_AXIS_ETP: return whole && work->experts > 0 ? index < 2 : once;
    default: return dpari_micro_batch(desc, index);
    }
}

/* Returns the number of values of an axis, at least 1. */
static int32_t dpari_axis_length(const dpar_planner *planner, int32_t axis)
{
    int32_t n = 0;
    while (dpari_axis_value(planner, axis, n) > 0) {
        n++;
    }
    return n > 0 ? n : 1;
}

/* Cuts the grid into `parts` with a small surface: each prime factor, the greatest first, cuts the
 * axis whose tiles are the longest. */
static DPARI_COLD void dpari_cut_grid(const dpar_workload *work, int32_t parts, int32_t *tiles)
{
    tiles[0] = tiles[1] = tiles[2] = 1;
    while (parts > 1) {
        int32_t i, best = 0, rest = parts, d;
        for (d = 2; d <= rest / d; d++) {
            while (rest % d == 0 && rest > d) {
                rest /= d;
            }
        }
        /* `rest` is now the greatest prime factor */
        for (i = 1; i < work->dims; i++) {
            if (work->extent[i] / tiles[i] > work->extent[best] / tiles[best]) {
                best = i;
            }
        }
        tiles[best] *= rest;
        parts /= rest;
    }
}

/* Sets the tiles of the odometer's position. */
static void dpari_walk_tiles(const dpar_planner *planner, dpar_strategy *strategy)
{
    int32_t i;
    if (planner->search.space != DPAR_SPACE_WHOLE) {
        dpari_cut_grid(planner->job.work,
                       dpari_axis_value(planner, DPARI_AXIS_TILES_0,
                                        (int32_t)planner->state[DPARI_AXIS_TILES_0]),
                       strategy->tiles);
        return;
    }
    for (i = 0; i < 3; i++) {
        strategy->tiles[i] = dpari_axis_value(planner, DPARI_AXIS_TILES_0 + i,
                                              (int32_t)planner->state[DPARI_AXIS_TILES_0 + i]);
    }
}

/* Replaces the values of the odometer by fixed ones. Returns 0 if a fixed axis is past its first
 * position, so that its fixed value is visited only once, otherwise 1. */
static int dpari_walk_fixed(const dpar_planner *planner, dpar_strategy *strategy)
{
    static const int8_t field[8] = {DPAR_STRATEGY_FIELD_TILES,   DPAR_STRATEGY_FIELD_TP,
                                    DPAR_STRATEGY_FIELD_SP,      DPAR_STRATEGY_FIELD_CP,
                                    DPAR_STRATEGY_FIELD_CP_KIND, DPAR_STRATEGY_FIELD_EP,
                                    DPAR_STRATEGY_FIELD_ETP,     DPAR_STRATEGY_FIELD_MICRO_BATCH};
    static const int8_t axis[8] = {DPARI_AXIS_TILES_0, DPARI_AXIS_TP,         DPARI_AXIS_SP,
                                   DPARI_AXIS_CP,      DPARI_AXIS_CP_KIND,    DPARI_AXIS_EP,
                                   DPARI_AXIS_ETP,     DPARI_AXIS_MICRO_BATCH};
    dpar_strategy fixed = planner->search.fixed;
    const int64_t *at = planner->state;
    int32_t i;
    for (i = 0; i < 8; i++) {
        if (!dpari_fixed(&planner->search, field[i])) {
            continue;
        }
        if (at[axis[i]] > 0 ||
            (i == 0 && (at[DPARI_AXIS_TILES_1] > 0 || at[DPARI_AXIS_TILES_2] > 0))) {
            return 0;
        }
        *dpari_strategy_at(strategy, field[i]) = *dpari_strategy_at(&fixed, field[i]);
    }
    for (i = 1; i < 3 && dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_TILES); i++) {
        strategy->tiles[i] = fixed.tiles[i];
    }
    return 1;
}

/* Sets the outer options of the odometer's position. Returns 1, or 0 if it repeats another
 * position. */
static DPARI_COLD int dpari_walk_outer(const dpar_planner *planner, dpar_strategy *strategy)
{
    const dpar_planner_desc *desc = &planner->search;
    const int64_t *at = planner->state;
    int32_t whole = desc->space == DPAR_SPACE_WHOLE;
    dpar_strategy_init(strategy);
    strategy->tp = dpari_axis_value(planner, DPARI_AXIS_TP, (int32_t)at[DPARI_AXIS_TP]);
    strategy->cp = dpari_axis_value(planner, DPARI_AXIS_CP, (int32_t)at[DPARI_AXIS_CP]);
    strategy->cp_kind = (int32_t)at[DPARI_AXIS_CP_KIND];
    strategy->ep = dpari_axis_value(planner, DPARI_AXIS_EP, (int32_t)at[DPARI_AXIS_EP]);
    strategy->micro_batch = dpari_micro_batch(desc, (int32_t)at[DPARI_AXIS_MICRO_BATCH]);
    if (planner->job.work->dims > 0) {
        dpari_walk_tiles(planner, strategy);
    }
    if (!dpari_walk_fixed(planner, strategy)) {
        return 0;
    }
    strategy->sp = whole ? (int32_t)at[DPARI_AXIS_SP]
                         : strategy->tp > 1 && dpari_sequence_cuts(planner->job.work, strategy);
    strategy->etp = at[DPARI_AXIS_ETP] > 0 ? strategy->tp : 1;
    strategy->sp = dpari_fixed(desc, DPAR_STRATEGY_FIELD_SP) ? desc->fixed.sp : strategy->sp;
    strategy->etp = dpari_fixed(desc, DPAR_STRATEGY_FIELD_ETP) ? desc->fixed.etp : strategy->etp;
    if (dpari_fixed(desc, DPAR_STRATEGY_FIELD_OVERLAP)) {
        strategy->overlap = desc->fixed.overlap;
    } else if (whole && planner->job.work->trains) { /* chosen here, not left to the software */
        strategy->overlap = at[DPARI_AXIS_OVERLAP_TP] > 0 ? DPAR_OVERLAP_TP : 0;
    }
    /* an option without an effect, such as sp with tp=1, is only visited with its first value */
    return !((strategy->cp == 1 && at[DPARI_AXIS_CP_KIND] > 0) ||
             (strategy->tp == 1 && at[DPARI_AXIS_SP] > 0) ||
             (strategy->tp == 1 && at[DPARI_AXIS_OVERLAP_TP] > 0) ||
             (strategy->tp == 1 && at[DPARI_AXIS_ETP] > 0) ||
             (dpari_fixed(desc, DPAR_STRATEGY_FIELD_OVERLAP) && at[DPARI_AXIS_OVERLAP_TP] > 0));
}

/* ---- keeping the best ------------------------------------------------------------------------ */

/* Returns 1 if a is better than b: if it has more samples per second, or the same number and less
 * memory. Of equal plans the one found first stays in front. */
static int dpari_better(const dpar_plan *a, const dpar_plan *b)
{
    double x = a->step.samples / a->step.total, y = b->step.samples / b->step.total;
    if (x > y * (1.0 + 1e-12) || y > x * (1.0 + 1e-12)) {
        return x > y;
    }
    return a->memory.total < b->memory.total * (1.0 - 1e-12);
}

/* Enters a plan into the list of the best plans if it is among them. */
static void dpari_keep_top(dpar_planner *planner, const dpar_plan *plan)
{
    int32_t i;
    if (planner->top_capacity == 0 ||
        (planner->top_count == planner->top_capacity &&
         !dpari_better(plan, &planner->top[planner->top_count - 1]))) {
        return;
    }
    if (planner->top_count < planner->top_capacity) {
        planner->top_count++;
    }
    for (i = planner->top_count - 1; i > 0 && dpari_better(plan, &planner->top[i - 1]); i--) {
        planner->top[i] = planner->top[i - 1];
    }
    planner->top[i] = *plan;
}

/* Enters a plan into the front of time x memory, fastest first, and drops the plans that it
 * dominates. A full front keeps its ends. */
static void dpari_keep_front(dpar_planner *planner, const dpar_plan *plan)
{
    double rate = plan->step.samples / plan->step.total;
    int32_t i, k = 0;
    if (planner->front_capacity < 2) {
        return;
    }
    for (i = 0; i < planner->front_count; i++) {
        const dpar_plan *f = &planner->front[i];
        if (f->step.samples / f->step.total >= rate && f->memory.total <= plan->memory.total) {
            return;
        }
    }
    for (i = 0; i < planner->front_count; i++) {
        const dpar_plan *f = &planner->front[i];
        if (!(rate >= f->step.samples / f->step.total && plan->memory.total <= f->memory.total)) {
            planner->front[k++] = *f;
        }
    }
    planner->front_count = k;
    if (planner->front_count == planner->front_capacity) {
        int32_t drop = 1; /* the inner plan whose two neighbours are nearest in memory */
        double best = -1.0;
        for (i = 1; i + 1 < planner->front_count; i++) {
            double gap = planner->front[i - 1].memory.total - planner->front[i + 1].memory.total;
            if (best < 0.0 || gap < best) {
                best = gap;
                drop = i;
            }
        }
        for (i = drop; i + 1 < planner->front_count; i++) {
            planner->front[i] = planner->front[i + 1];
        }
        planner->front_count--;
    }
    for (i = planner->front_count; i > 0 && dpari_better(plan, &planner->front[i - 1]); i--) {
        planner->front[i] = planner->front[i - 1];
    }
    planner->front_count++;
    planner->front[i] = *plan;
}

/* ---- the inner walk -------------------------------------------------------------------------- */

/* Returns 1 if a field may have a value: if it is not fixed, or is fixed to this value. */
static int dpari_wanted(const dpar_planner_desc *desc, int32_t field, int32_t value, int32_t fixed)
{
    return !dpari_fixed(desc, field) || value == fixed;
}

/* Returns the bytes of a GPU that a plan may use. */
static double dpari_limit(const dpar_job *job, const dpar_planner_desc *search)
{
    return search->memory_bytes > 0.0 ? search->memory_bytes : job->cluster->gpu.memory_bytes;
}

/* Returns 1 if a ZeRO stage is tried. With a pipeline the usual space has at most stage 1, because
 * the higher ones communicate for every micro-batch. */
static int dpari_walk_zero(const dpar_planner *planner, const dpar_strategy *strategy, int32_t zero)
{
    const dpar_planner_desc *desc = &planner->search;
    if (dpari_fixed(desc, DPAR_STRATEGY_FIELD_ZERO)) {
        return zero == desc->fixed.zero;
    }
    if (zero > 0 && ((int64_t)strategy->dp * strategy->cp * dpari_tiles(strategy) == 1 ||
                     !planner->job.work->trains)) {
        return 0;
    }
    return desc->space == DPAR_SPACE_WHOLE || zero < 2 || strategy->pp == 1;
}

/* Returns the size of shard group number k: all of dp, or the ranks of one node (HSDP). Returns 0
 * if there is none. */
static int32_t dpari_walk_shard(const dpar_planner *planner, const dpar_strategy *strategy,
                                int32_t k)
{
    const dpar_planner_desc *desc = &planner->search;
    int64_t together = (int64_t)strategy->tp * strategy->cp * dpari_tiles(strategy);
    int64_t in_node = planner->job.cluster->gpus_per_node / together;
    if (dpari_fixed(desc, DPAR_STRATEGY_FIELD_SHARD)) {
        if (k > 0) {
            return 0;
        }
        return desc->fixed.shard > 0 ? desc->fixed.shard : strategy->dp;
    }
    if (k == 0) {
        return strategy->dp;
    }
    if (strategy->zero > 0 && in_node > 1 && in_node < strategy->dp &&
        strategy->dp % in_node == 0) {
        return (int32_t)in_node;
    }
    return 0;
}

/* Returns the number of offloads that are tried. */
static int32_t dpari_walk_offloads(const dpar_planner *planner)
{
    if (planner->search.space != DPAR_SPACE_WHOLE || !planner->job.work->trains ||
        !(planner->job.cluster->host_bytes > 0.0) ||
        dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_OFFLOAD)) {
        return 1;
    }
    return planner->job.cluster->nvme_Bps > 0.0 ? 12 : 8;
}

/* Returns offload number k: first every subset of the three offloads, then those with the optimizer
 * on NVMe. */
static int32_t dpari_walk_offload(const dpar_planner *planner, int32_t k)
{
    if (dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_OFFLOAD)) {
        return planner->search.fixed.offload;
    }
    return k < 8 ? k : DPAR_OFFLOAD_NVME + 2 * (k - 8) + 1;
}

/* Returns the number of overlaps: bit 0 is data parallelism, bit 1 the pipeline. */
static int32_t dpari_walk_overlaps(const dpar_planner *planner, const dpar_strategy *strategy)
{
    if (planner->search.space != DPAR_SPACE_WHOLE || !planner->job.work->trains ||
        dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_OVERLAP)) {
        return 1;
    }
    return strategy->pp > 1 ? 4 : 2;
}

/* Returns the number of strategies that dpari_walk_data walks. */
static int64_t dpari_walk_count(const dpar_planner *planner, const dpar_strategy *outer)
{
    dpar_strategy s = *outer;
    int64_t n = 0;
    for (s.zero = 0; s.zero < 4; s.zero++) {
        if (dpari_walk_zero(planner, &s, s.zero)) {
            n += dpari_walk_shard(planner, &s, 1) > 0 ? 2 : 1;
        }
    }
    return n * dpari_walk_offloads(planner) * dpari_walk_overlaps(planner, outer);
}

/* Counts strategies by the rule that excludes them. */
static void dpari_walk_out(dpar_planner *planner, int32_t rule, int64_t n)
{
    planner->rejected[rule] += n;
    planner->walked += n;
}

/* Counts a strategy that does not fit, and keeps the least number of bytes that one needs. */
static void dpari_walk_too_big(dpar_planner *planner, const dpar_memory_usage *memory)
{
    double limit = dpari_limit(&planner->job, &planner->search),
           bytes = memory->upper - memory->late;
    int64_t mb;
    if (bytes <= limit) { /* the GPU suffices, so the host's memory does not */
        bytes = limit + memory->host -
                planner->job.cluster->host_bytes / planner->job.cluster->gpus_per_node;
    }
    mb = bytes < 9e18 ? (int64_t)(bytes * 1e-6) : INT64_MAX;
    planner->rejected[DPAR_STRATEGY_RULE_MEMORY]++;
    if (planner->state[DPARI_NEAREST_BYTES] == 0 || mb < planner->state[DPARI_NEAREST_BYTES]) {
        planner->state[DPARI_NEAREST_BYTES] = mb;
    }
}

/* Returns 1 if plans of at most `rate` samples per second and at least `bytes` bytes cannot change
 * the plans that are kept: all of `top` are faster, and one of `front` is as fast and as small.
 * Leaving such plans out changes nothing. In the usual space a search with a front prices
 * everything. */
static int dpari_walk_beaten(const dpar_planner *planner, double rate, double bytes)
{
    const dpar_plan *worst;
    int32_t i;
    if (planner->top_count == 0 || planner->top_count < planner->top_capacity ||
        (planner->search.space != DPAR_SPACE_WHOLE && planner->front_capacity >= 2)) {
        return 0;
    }
    worst = &planner->top[planner->top_count - 1];
    if (worst->step.samples <= rate * (1.0 + 1e-9) * worst->step.total * planner->slack) {
        return 0;
    }
    for (i = 0; i < planner->front_count; i++) {
        const dpar_plan *f = &planner->front[i];
        if (f->step.samples >= rate * (1.0 + 1e-9) * f->step.total &&
            f->memory.total <= bytes * (1.0 - 1e-9)) {
            return 1;
        }
    }
    return planner->front_capacity < 2;
}

/* Prices the strategies that differ only in overlap: their memory, which is the same, and the time
 * of each if it fits. */
static void dpari_walk_price(dpar_planner *planner, const dpar_strategy *outer,
                             const dpari_stages *stages, double rate)
{
    int32_t overlaps = dpari_walk_overlaps(planner, outer), overlap;
    dpar_plan plan;
    dpari_zero(&plan, sizeof(plan)); /* including the padding, so that equal searches write equal
                                        bytes */
    plan.strategy = *outer;
    dpari_price_memory(&planner->job, outer, stages, &plan.memory);
    plan.fits = dpari_memory_fits(&planner->job, &plan.memory, planner->search.memory_bytes);
    if (plan.fits && dpari_walk_beaten(planner, rate, plan.memory.total)) {
        planner->cut += overlaps;
        planner->walked += overlaps;
        return;
    }
    for (overlap = 0; overlap < overlaps; overlap++) {
        planner->evaluated++;
        planner->walked++;
        if (!plan.fits) {
            dpari_walk_too_big(planner, &plan.memory);
            continue;
        }
        if (overlaps > 1) {
            plan.strategy.overlap = outer->overlap & DPAR_OVERLAP_TP;
            if (overlap & 1) {
                plan.strategy.overlap |= DPAR_OVERLAP_DP;
            }
            if (overlap & 2) {
                plan.strategy.overlap |= DPAR_OVERLAP_PP;
            }
        }
        dpari_price_step(&planner->job, &plan.strategy, stages, &plan.step);
        dpari_keep_top(planner, &plan);
        dpari_keep_front(planner, &plan);
        if (planner->kinds != NULL) {
            dpari_kind_keep(planner->kinds, &planner->job, &plan.strategy,
                            plan.step.total / plan.step.samples);
        }
    }
}

/* Returns 1 if no strategy of a ZeRO stage fits, whatever is offloaded and however it is sharded.
 * All of these strategies are then counted at once. The one that offloads and shards the most comes
 * nearest to fitting. */
static DPARI_COLD int dpari_walk_none_fits(dpar_planner *planner, const dpar_strategy *outer,
                                           const dpari_stages *stages)
{
    dpar_strategy s = *outer;
    dpar_memory_usage m;
    int64_t n = 0;
    int32_t k;
    s.offload = DPAR_OFFLOAD_OPTIMIZER | DPAR_OFFLOAD_WEIGHTS | DPAR_OFFLOAD_ACTIVATIONS;
    s.shard = dpari_walk_shard(planner, outer, 0);
    dpari_price_memory(&planner->job, &s, stages, &m);
    if (m.upper - m.late <= dpari_limit(&planner->job, &planner->search)) {
        return 0;
    }
    for (k = 0; k < 2; k++) {
        int32_t shard = dpari_walk_shard(planner, outer, k);
        if (shard > 0 && s.dp % shard != 0) {
            return 0;
        }
        n += shard > 0;
    }
    n *= dpari_walk_offloads(planner) * dpari_walk_overlaps(planner, outer);
    dpari_walk_too_big(planner, &m);
    planner->rejected[DPAR_STRATEGY_RULE_MEMORY] += n - 1;
    planner->evaluated += n;
    planner->walked += n;
    return 1;
}

/* Walks ZeRO stages, offloads and shard groups. */
static void dpari_walk_data(dpar_planner *planner, const dpar_strategy *outer,
                            const dpari_stages *stages, double rate)
{
    dpar_strategy s = *outer;
    int32_t offloads = dpari_walk_offloads(planner), offload, k;
    for (s.zero = 0; s.zero < 4; s.zero++) {
        if (!dpari_walk_zero(planner, &s, s.zero) ||
            (offloads > 1 && dpari_walk_none_fits(planner, &s, stages))) {
            continue;
        }
        for (offload = 0; offload < offloads; offload++) {
            s.offload = dpari_walk_offload(planner, offload);
            for (k = 0; k < 2; k++) {
                s.shard = dpari_walk_shard(planner, &s, k);
                if (s.shard > 0 && s.dp % s.shard != 0) {
                    dpari_walk_out(planner, DPAR_STRATEGY_RULE_ZERO,
                                   dpari_walk_overlaps(planner, &s));
                } else if (s.shard > 0) {
                    dpari_walk_price(planner, &s, stages, rate);
                }
            }
        }
    }
}

/* Returns the number of micro-batches per data-parallel rank that the global batch gives, or 0 if
 * it does not divide. With a free batch there are four per stage. */
static int32_t dpari_walk_batches(const dpar_planner *planner, const dpar_strategy *strategy)
{
    int64_t per = (int64_t)strategy->dp * strategy->micro_batch,
            batch = planner->search.global_batch;
    if (dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_MICRO_BATCHES)) {
        int64_t m = planner->search.fixed.micro_batches;
        if (batch == 0 || (per > 0 && m > 0 && batch / per == m && batch % per == 0)) {
            return (int32_t)m;
        }
        return 0;
    }
    if (batch == 0) {
        return 4 * strategy->pp;
    }
    return per > 0 && batch % per == 0 && batch / per <= INT32_MAX ? (int32_t)(batch / per) : 0;
}

/* Returns a lower bound of the bytes of all plans with these stages: everything is sharded and
 * offloaded, and the buffers for that are not counted. Each term falls with the ZeRO stage and with
 * each offload. With `upper` the bound is that of memory.upper, which must fit, otherwise that of
 * memory.total. */
static DPARI_COLD double dpari_walk_least_bytes(const dpar_planner *planner,
                                                const dpar_strategy *outer,
                                                const dpari_stages *stages, int upper)
{
    dpar_strategy s = *outer;
    dpar_memory_usage m;
    s.zero = planner->job.work->trains ? 3 : 0;
    s.shard = s.dp;
    s.offload = DPAR_OFFLOAD_OPTIMIZER | DPAR_OFFLOAD_WEIGHTS | DPAR_OFFLOAD_ACTIVATIONS;
    dpari_price_memory(&planner->job, &s, stages, &m);
    return (upper ? m.upper : m.total) -
           1.1 * (m.term[DPAR_MEMORY_GATHERED] + m.term[DPAR_MEMORY_BUCKETS]);
}

/* Returns 1 if no plan with these stages can change the plans that are kept. *bound receives the
 * samples per second that none of them exceeds. A step takes at least the time of its micro-batches
 * on the slowest stage, of the filling and of the messages that cannot be hidden; gradients,
 * optimizer and offload are left out. */
static int dpari_walk_hopeless(const dpar_planner *planner, const dpar_strategy *outer,
                               const dpari_stages *stages, double *bound)
{
    dpar_strategy s = *outer;
    dpar_step_cost t;
    double rate, slow = 0.0;
    int32_t i;
    *bound = 1e30;
    if (planner->top_count == 0 || planner->top_count < planner->top_capacity) {
        return 0;
    }
    for (i = 0; i < stages->n; i++) { /* the slowest stage is enough to exclude most plans */
        slow = dpari_mostf(slow, stages->of[i].total);
    }
    rate = (double)s.dp * s.micro_batch / slow;
    if (planner->front_capacity < 2 && dpari_walk_beaten(planner, rate, 0.0)) {
        return 1;
    }
    if (dpari_walk_overlaps(planner, outer) > 1) {
        s.overlap |= DPAR_OVERLAP_DP | DPAR_OVERLAP_PP;
    }
    s.zero = 0;
    dpari_price_step(&planner->job, &s, stages, &t);
    rate = t.samples / (t.total - t.term[DPAR_TIME_DP] - t.term[DPAR_TIME_OPTIMIZER]);
    *bound = rate;
    if (planner->search.space != DPAR_SPACE_WHOLE) {
        return dpari_walk_beaten(planner, rate, 0.0);
    }
    return dpari_walk_least_bytes(planner, outer, stages, 1) >
               dpari_limit(&planner->job, &planner->search) ||
           dpari_walk_beaten(planner, rate, dpari_walk_least_bytes(planner, outer, stages, 0));
}

/* The prices of the layers are stored in the planner, not on the stack. Both types consist of
 * doubles. */
typedef char dpari_layers_fit[sizeof(dpari_layers) <= sizeof(((dpar_planner *)0)->layers) ? 1 : -1];

/* Returns the prices of the layers at this outer position. They are computed when the first legal
 * strategy needs them. */
static dpari_layers *dpari_walk_layers(dpar_planner *planner, const dpar_strategy *strategy)
{
    dpari_layers *layers = (dpari_layers *)(void *)planner->layers;
    if (planner->state[DPARI_PRICED] == 0) {
        dpari_price_layers(&planner->job, strategy, layers);
        planner->state[DPARI_PRICED] = 1;
    }
    return layers;
}

/* Returns 1 if no strategy of an outer position can change the plans that are kept, whatever pp and
 * schedule are. Each strategy computes every layer once, so the slowest of pp ranks takes at least
 * 1 / pp of the time. */
static DPARI_COLD int dpari_walk_position_beaten(dpar_planner *planner,
                                                 const dpar_strategy *strategy, int32_t rest)
{
    const dpari_layers *layers;
    const dpar_workload *work = planner->job.work;
    double device = 0.0, host = 0.0, bytes = 0.0;
    int32_t i;
    if (planner->top_count == 0 || planner->top_count < planner->top_capacity) {
        return 0;
    }
    layers = dpari_walk_layers(planner, strategy);
    for (i = 0; i < work->layers; i++) {
        const dpari_layer_price *l = &layers->of[i];
        if (work->layer[i].kind != DPAR_LAYER_EMBED) {
            device +=
                work->layer[i].count * (l->forward + l->backward + l->tp_forward + l->tp_backward +
                                        l->cp_forward + l->cp_backward + l->ep_forward +
                                        l->ep_backward + l->halo_forward + l->halo_backward);
            host += work->layer[i].count * (l->host_forward + l->host_backward);
        }
        bytes = work->layer[i].kind == DPAR_LAYER_BLOCK ? dpari_mostf(bytes, l->transient) : bytes;
    }
    device = dpari_mostf(device, host);
    return device > 0.0 &&
           dpari_walk_beaten(planner, (double)rest * strategy->micro_batch / device, bytes);
}

/* Prices the stages of one recomputation, then walks the third level. */
static void dpari_walk_stages(dpar_planner *planner, const dpar_strategy *strategy)
{
    int32_t out = (int32_t)planner->state[DPARI_OUT_RULE];
    dpari_stages stages;
    double rate = 0.0;
    if (out != DPAR_STRATEGY_RULE_NONE && out != DPARI_OUT_CUT) {
        dpari_walk_out(planner, out, dpari_walk_count(planner, strategy));
        return;
    }
    if (out == DPAR_STRATEGY_RULE_NONE) {
        dpari_price_stages(&planner->job, strategy, dpari_walk_layers(planner, strategy), &stages);
    }
    if (out == DPARI_OUT_CUT || dpari_walk_hopeless(planner, strategy, &stages, &rate)) {
        int64_t n = dpari_walk_count(planner, strategy);
        planner->cut += n;
        planner->walked += n;
    } else {
        dpari_walk_data(planner, strategy, &stages, rate);
    }
}

/* Returns one past the last recomputation that is tried. A fixed recomputation may be any. */
static int32_t dpari_walk_recomputes(const dpar_planner *planner)
{
    const dpar_workload *work = planner->job.work;
    if (dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_RECOMPUTE)) {
        return 32;
    }
    if (work->stack >= DPAR_MODEL_STACK_TORCH && work->vocab > 0) {
        return DPAR_RECOMPUTE_ALTERNATE + 1;
    }
    return DPAR_RECOMPUTE_FULL + 1;
}

/* Walks the recomputations: none, selective if scores are kept, full for all layers and for half of
 * the layers of a stage, and with PyTorch also every second product, which it has as an option. */
DPARI_STATIC_NOINLINE void dpari_walk_recompute(dpar_planner *planner, dpar_strategy *strategy)
{
    const dpar_planner_desc *desc = &planner->search;
    const dpar_workload *work = planner->job.work;
    int32_t half = work->blocks / strategy->pp / 2, r;
    int32_t end = dpari_walk_recomputes(planner);
    for (r = 0; r < end; r++) {
        int32_t layers = dpari_fixed(desc, DPAR_STRATEGY_FIELD_RECOMPUTE_LAYERS)
                             ? desc->fixed.recompute_layers
                             : 0;
        if (!dpari_wanted(desc, DPAR_STRATEGY_FIELD_RECOMPUTE, r, desc->fixed.recompute) ||
            (layers > 0 && (r != DPAR_RECOMPUTE_FULL || layers > work->blocks)) ||
            (!dpari_fixed(desc, DPAR_STRATEGY_FIELD_RECOMPUTE) &&
             ((!work->trains && r > 0) || (r == DPAR_RECOMPUTE_SELECTIVE &&
                                           work->attention != DPAR_MODEL_ATTENTION_UNFUSED)))) {
            continue;
        }
        strategy->recompute = r;
        strategy->recompute_layers = layers;
        dpari_walk_stages(planner, strategy);
        if (r == DPAR_RECOMPUTE_FULL && half > 0 &&
            !dpari_fixed(desc, DPAR_STRATEGY_FIELD_RECOMPUTE_LAYERS)) {
            strategy->recompute_layers = half;
            dpari_walk_stages(planner, strategy);
        }
    }
}

/* Returns 1 if a schedule is tried with this pp and vp: a usual one, or in the whole space any that
 * allows them. */
static int dpari_walk_schedule(const dpar_planner_desc *desc, const dpar_strategy *strategy,
                               int32_t schedule)
{
    int whole = desc->space == DPAR_SPACE_WHOLE;
    if (dpari_fixed(desc, DPAR_STRATEGY_FIELD_SCHEDULE)) {
        return schedule == desc->fixed.schedule;
    }
    if (strategy->pp == 1) {
        return schedule == DPAR_SCHEDULE_1F1B;
    }
    if (strategy->vp == 1) {
        return schedule == DPAR_SCHEDULE_1F1B ||
               (whole && (schedule == DPAR_SCHEDULE_GPIPE || schedule == DPAR_SCHEDULE_ZB_H1 ||
                          schedule == DPAR_SCHEDULE_ZB_2P || schedule == DPAR_SCHEDULE_DUALPIPE));
    }
    return schedule == DPAR_SCHEDULE_INTERLEAVED ||
           (whole && (schedule == DPAR_SCHEDULE_BREADTH_FIRST ||
                      (strategy->vp == 2 &&
                       (schedule == DPAR_SCHEDULE_ZBV || schedule == DPAR_SCHEDULE_V_HALF ||
                        schedule == DPAR_SCHEDULE_V_MIN || schedule == DPAR_SCHEDULE_DUALPIPEV))));
}

/* Returns 1 if an interleaving is tried. Its chunks must have equal lengths, except that those of
 * the last round may be shorter, as if 126 layers are cut for 128. Otherwise chunks would wait for
 * longer ones in every round. */
static int dpari_walk_chunks(const dpar_workload *work, const dpar_strategy *strategy)
{
    int64_t chunks = (int64_t)strategy->pp * strategy->vp;
    return strategy->vp == 1 ||
           (chunks <= work->blocks && (chunks - work->blocks % chunks) % chunks < strategy->pp);
}

/* Walks the chunks per rank and the schedules of one pp. */
static void dpari_walk_pipeline(dpar_planner *planner, dpar_strategy *strategy)
{
    const dpar_planner_desc *desc = &planner->search;
    int32_t schedule, rule = 0, vp, blocks = planner->job.work->blocks;
    int32_t most = strategy->pp == 1 ? 1 : (blocks + 2) / strategy->pp;
    int64_t out = planner->state[DPARI_OUT_RULE];
    for (vp = 1; vp <= most || vp == 1; vp++) {
        strategy->vp = vp;
        if (!dpari_wanted(desc, DPAR_STRATEGY_FIELD_VP, vp, desc->fixed.vp) ||
            (!dpari_fixed(desc, DPAR_STRATEGY_FIELD_VP) &&
             !dpari_walk_chunks(planner->job.work, strategy))) {
            continue;
        }
        for (schedule = 1; schedule < DPAR_SCHEDULE_PRICED_END; schedule++) {
            if (!dpari_walk_schedule(desc, strategy, schedule)) {
                continue;
            }
            strategy->schedule = schedule;
            if ((out == DPAR_STRATEGY_RULE_NONE || out == DPARI_OUT_CUT) &&
                dpari_strategy_check(&planner->job, strategy, 0, &rule, NULL) != DPAR_OK) {
                planner->state[DPARI_OUT_RULE] = rule;
            }
            dpari_walk_recompute(planner, strategy);
            planner->state[DPARI_OUT_RULE] = out;
        }
    }
}

/* Walks the values of pp that divide the remaining `rest` ranks; the quotient is dp. */
DPARI_STATIC_NOINLINE void dpari_walk_ranks(dpar_planner *planner, dpar_strategy *strategy,
                                            int32_t rest)
{
    const dpar_planner_desc *desc = &planner->search;
    const dpar_workload *work = planner->job.work;
    int64_t out = planner->state[DPARI_OUT_RULE];
    planner->state[DPARI_PRICED] = 0;
    if (out == DPAR_STRATEGY_RULE_NONE && dpari_walk_position_beaten(planner, strategy, rest)) {
        planner->state[DPARI_OUT_RULE] = out = DPARI_OUT_CUT;
    }
    for (strategy->pp = 1; strategy->pp <= rest && strategy->pp <= dpari_most(1, work->blocks);
         strategy->pp++) {
        strategy->dp = rest / strategy->pp;
        if (rest % strategy->pp != 0 ||
            !dpari_wanted(desc, DPAR_STRATEGY_FIELD_PP, strategy->pp, desc->fixed.pp) ||
            !dpari_wanted(desc, DPAR_STRATEGY_FIELD_DP, strategy->dp, desc->fixed.dp) ||
            (!work->trains && (strategy->pp > 1 || strategy->dp > 1) && work->dims > 0 &&
             desc->global_batch <= 1)) {
            continue;
        }
        strategy->micro_batches = dpari_walk_batches(planner, strategy);
        if (strategy->micro_batches == 0) {
            strategy->micro_batches = 1;
            if (out == DPAR_STRATEGY_RULE_NONE || out == DPARI_OUT_CUT) {
                planner->state[DPARI_OUT_RULE] = DPAR_STRATEGY_RULE_BATCH;
            }
        }
        dpari_walk_pipeline(planner, strategy);
        planner->state[DPARI_OUT_RULE] = out;
    }
}

/* Returns the rule that an outer position breaks whatever the inner options are, or NONE. The least
 * expensive checks come first. */
static DPARI_COLD int32_t dpari_walk_early(const dpar_planner *planner,
                                           const dpar_strategy *strategy, int64_t ranks)
{
    const dpar_workload *work = planner->job.work;
    int32_t node = planner->job.cluster->gpus_per_node;
    if (ranks < 1 || planner->search.gpus % ranks != 0) {
        return DPAR_STRATEGY_RULE_RANKS;
    }
    if (strategy->tp > 1 && (work->heads % strategy->tp != 0 || work->hidden % strategy->tp != 0)) {
        return DPAR_STRATEGY_RULE_TP_HEADS;
    }
    if (planner->search.space != DPAR_SPACE_WHOLE &&
        !dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_TP) && node % strategy->tp != 0) {
        return DPAR_STRATEGY_RULE_TP_WIDE;
    }
    return DPAR_STRATEGY_RULE_NONE;
}

/* Walks all strategies of one outer position. */
DPARI_STATIC_NOINLINE void dpari_walk_position(dpar_planner *planner)
{
    dpar_strategy s;
    int64_t ranks = 1;
    int32_t i, rule;
    if (!dpari_walk_outer(planner, &s)) {
        return;
    }
    for (i = 0; i < 3; i++) {
        if (s.tiles[i] < 1 || !dpari_mul(ranks, s.tiles[i], &ranks)) {
            ranks = 0;
        }
    }
    if (s.tp < 1 || s.cp < 1 || !dpari_mul(ranks, s.tp, &ranks) ||
        !dpari_mul(ranks, s.cp, &ranks)) {
        ranks = 0;
    }
    rule = dpari_walk_early(planner, &s, ranks);
    if (rule == DPAR_STRATEGY_RULE_RANKS) { /* it has no pp and dp, so it is counted with pp and dp
                                               of 1 */
        s.tp = s.cp = s.tiles[0] = s.tiles[1] = s.tiles[2] = 1;
        ranks = planner->search.gpus;
    }
    planner->state[DPARI_OUT_RULE] = rule;
    dpari_walk_ranks(planner, &s, (int32_t)(planner->search.gpus / ranks));
    planner->state[DPARI_OUT_RULE] = DPAR_STRATEGY_RULE_NONE;
}

/* ---- the search ------------------------------------------------------------------------------ */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_search_check(const dpar_job *job,
                                                         const dpar_planner_desc *search,
                                                         dpar_why *why)
{
    int32_t gpus;
    dpar_status status = dpari_workload_check(job->work, why);
    if (status == DPAR_OK) {
        status = dpari_cluster_check(job->cluster, why);
    }
    if (status == DPAR_OK) {
        status = dpari_recipe_check(&job->recipe, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    gpus = dpari_cluster_gpus(job->cluster);
    if (search->global_batch < 0 || (search->gpus != 0 && search->gpus != gpus)) {
        return dpari_wrong(
            why,
            "gpus=%d must be 0 or the cluster's %d (dpar_cluster_resize), global_batch=%ld at "
            "least 0",
            search->gpus, gpus, search->global_batch);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_planner_init(dpar_planner *planner, const dpar_job *job,
                                                  const dpar_planner_desc *search, dpar_why *why)
{
    dpar_status st = dpari_search_check(job, search, why);
    int32_t i;
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(planner, sizeof(*planner));
    planner->job = *job;
    planner->search = *search;
    planner->search.gpus = dpari_cluster_gpus(job->cluster);
    planner->top = search->top;
    planner->top_capacity = planner->top != NULL ? (int32_t)dpari_most(0, search->top_capacity) : 0;
    planner->front = search->front;
    planner->front_capacity =
        planner->front != NULL ? (int32_t)dpari_most(0, search->front_capacity) : 0;
    planner->slack = 1.0;
    planner->state[DPARI_TOTAL] = 1;
    for (i = 0; i < DPARI_AXES; i++) {
        planner->state[DPARI_LENGTH + i] = dpari_most(1, dpari_axis_length(planner, i));
        planner->state[DPARI_TOTAL] *= planner->state[DPARI_LENGTH + i];
    }
    return DPAR_OK;
}

/* Reports that no strategy is legal, with the rule that most of them break. */
static DPARI_COLD dpar_status dpari_planner_none(const dpar_planner *planner, dpar_why *why)
{
    const char *name;
    int32_t i, most = DPAR_STRATEGY_RULE_NONE;
    for (i = 1; i < DPAR_STRATEGY_RULE_COUNT; i++) {
        most = planner->rejected[i] > planner->rejected[most] ? i : most;
    }
    name = dpar_strategy_rule_name(most);
    return dpari_say(DPAR_E_NONE, why,
                     "none of %ld configurations is legal on %d GPUs with a global batch of %ld: "
                     "most break the rule '%s' (see DPAR_STRATEGY_RULE_*)",
                     planner->walked, planner->search.gpus, planner->search.global_batch, name);
}

DPAR_API DPARI_COLD dpar_status dpar_planner_run(dpar_planner *planner, int64_t budget,
                                                 dpar_why *why)
{
    int64_t until = budget < 1 ? 1 : budget, near_tenths, i;
    until = until > INT64_MAX - planner->walked ? INT64_MAX : planner->walked + until;
    while (planner->state[DPARI_POSITION] < planner->state[DPARI_TOTAL]) {
        if (planner->walked >= until) {
            return DPAR_MORE;
        }
        dpari_walk_position(planner);
        planner->state[DPARI_POSITION]++;
        planner->progress =
            (double)planner->state[DPARI_POSITION] / (double)planner->state[DPARI_TOTAL];
        for (i = 0; i < DPARI_AXES; i++) { /* advance the odometer; its first axis is the fastest */
            planner->state[i]++;
            if (planner->state[i] < planner->state[DPARI_LENGTH + i]) {
                break;
            }
            planner->state[i] = 0;
        }
    }
    if (planner->top_count > 0 || planner->top_capacity == 0) {
        return DPAR_DONE;
    }
    if (planner->evaluated == 0) {
        return dpari_planner_none(planner, why);
    }
    near_tenths = dpari_tenths((double)planner->state[DPARI_NEAREST_BYTES] * 1e6);
    return dpari_say(
        DPAR_E_NONE, why,
        "nothing fits: the nearest of %ld configurations needs %ld.%ld GB, the GPU has %ld GB",
        planner->evaluated, near_tenths / 10, near_tenths % 10,
        (int64_t)(dpari_limit(&planner->job, &planner->search) * 1e-9 + 0.5));
}

/* ---- neighbours ------------------------------------------------------------------------------ */

/* The changes that make neighbours. Each has two directions: down, then up. */
enum {
    DPARI_CHANGE_TP,
    DPARI_CHANGE_PP,
    DPARI_CHANGE_MICRO_BATCH,
    DPARI_CHANGE_ZERO,
    DPARI_CHANGE_RECOMPUTE,
    DPARI_CHANGE_VP,
    DPARI_CHANGE_SHARD,
    DPARI_CHANGE_EP,
    DPARI_CHANGE_CP,
    DPARI_CHANGES
};

static void dpari_arrow(dpar_text *text, const char *name, int32_t from, int32_t to)
{
    dpari_text_print(text, "%s %d -> %d", name, from, to);
}

/* Changes one of the options ZeRO stage, recomputation and shard group. Returns 1, or 0 if it
 * cannot be changed. */
static int dpari_neighbour_option(const dpar_job *job, const dpar_strategy *strategy,
                                  int32_t change, int32_t up, dpar_strategy *n, dpar_text *text)
{
    int32_t in_node = job->cluster->gpus_per_node / strategy->tp / strategy->cp;
    int32_t all = strategy->shard < 1 ? strategy->dp : strategy->shard;
    if (change == DPARI_CHANGE_ZERO) {
        n->zero += up ? 1 : -1;
        dpari_arrow(text, "zero", strategy->zero, n->zero);
        return n->zero >= 0 && n->zero <= 3 && strategy->dp > 1 && job->work->trains;
    }
    if (change == DPARI_CHANGE_RECOMPUTE) {
        n->recompute = up ? DPAR_RECOMPUTE_FULL : DPAR_RECOMPUTE_NONE;
        n->recompute_layers = 0;
        dpar_text_put(text, "recompute ");
        dpari_write_recompute(text, strategy->recompute);
        dpar_text_put(text, strategy->recompute_layers > 0 ? " (part) -> " : " -> ");
        dpari_write_recompute(text, n->recompute);
        return (n->recompute != strategy->recompute ||
                n->recompute_layers != strategy->recompute_layers) &&
               job->work->trains;
    }
    n->shard = up ? strategy->dp : in_node;
    dpari_arrow(text, "shard", all, n->shard);
    return strategy->zero > 0 && n->shard > 1 && n->shard != all && strategy->dp % n->shard == 0;
}

/* Makes neighbour number k of a strategy and appends the change in words. Returns 1, or 0 if it
 * cannot be made. */
static int dpari_neighbour(const dpar_job *job, const dpar_strategy *strategy, int32_t k,
                           dpar_strategy *n, dpar_text *text)
{
    static const char name[DPARI_CHANGES][8] = {"tp", "pp", "mbs", "", "", "vp", "", "ep", "cp"};
    static const int8_t field[DPARI_CHANGES] = {
        DPAR_STRATEGY_FIELD_TP,    DPAR_STRATEGY_FIELD_PP,        DPAR_STRATEGY_FIELD_MICRO_BATCH,
        DPAR_STRATEGY_FIELD_ZERO,  DPAR_STRATEGY_FIELD_RECOMPUTE, DPAR_STRATEGY_FIELD_VP,
        DPAR_STRATEGY_FIELD_SHARD, DPAR_STRATEGY_FIELD_EP,        DPAR_STRATEGY_FIELD_CP};
    int32_t ranks = dpar_strategy_ranks(strategy), change = k / 2, up = k % 2, from, *at;
    int64_t model;
    *n = *strategy;
    if (change == DPARI_CHANGE_ZERO || change == DPARI_CHANGE_RECOMPUTE ||
        change == DPARI_CHANGE_SHARD) {
        return dpari_neighbour_option(job, strategy, change, up, n, text);
    }
    at = dpari_strategy_at(n, field[change]);
    from = *at;
    if ((!up && from % 2 != 0) || from > INT32_C(0x20000000) ||
        (change == DPARI_CHANGE_EP && job->work->experts == 0) ||
        (change == DPARI_CHANGE_VP && strategy->pp == 1) ||
        (change == DPARI_CHANGE_CP && job->work->vocab == 0)) {
        return 0;
    }
    *at = up ? 2 * from : from / 2;
    dpari_arrow(text, name[change], from, *at);
    if (strategy->tp <= 1) { /* tensor parallelism begins together with sequence parallelism */
        n->sp = 1;
    }
    if (n->tp <= 1) {
        n->sp = 0;
    }
    if (change == DPARI_CHANGE_PP) {
        n->vp = 1;
        n->schedule = DPAR_SCHEDULE_1F1B;
    } else if (change == DPARI_CHANGE_VP) {
        n->schedule = n->vp > 1 ? DPAR_SCHEDULE_INTERLEAVED : DPAR_SCHEDULE_1F1B;
    }
    model = (int64_t)n->tp * n->cp * n->pp * dpari_tiles(n);
    if (model < 1 || ranks % model != 0 || !dpari_walk_chunks(job->work, n)) {
        return 0;
    }
    n->dp = (int32_t)(ranks / model);
    n->shard = n->dp == strategy->dp ? strategy->shard : 0;
    return n->tp <= job->cluster->gpus_per_node || n->tp <= strategy->tp;
}

/* Appends why a neighbour was not chosen, and sets its rule. */
static void dpari_neighbour_text(const dpar_job *job, const dpar_plan *plan, const dpar_plan *other,
                                 dpar_plan_rejection *r, dpar_text *text)
{
    double ratio =
        other->step.total * plan->step.samples / (plan->step.total * other->step.samples);
    dpar_text_put(text, ": ");
    if (!other->fits && other->memory.lower <= job->cluster->gpu.memory_bytes) {
        r->rule = DPAR_STRATEGY_RULE_MEMORY;
        dpar_text_put(text, "offloads more than a node's memory holds");
        return;
    }
    if (!other->fits) {
        r->rule = DPAR_STRATEGY_RULE_MEMORY;
        r->bytes_over = other->memory.lower - job->cluster->gpu.memory_bytes;
        dpari_text_print(text, "up to %.1f GB, a GPU has %.0f", other->memory.upper * 1e-9,
                         job->cluster->gpu.memory_bytes * 1e-9);
        return;
    }
    r->rule = DPAR_STRATEGY_RULE_NONE;
    if (ratio > 0.9995 && ratio < 1.0005) {
        dpar_text_put(text, "as fast");
    } else if (ratio >= 1.0) {
        dpari_text_print(text, "%.1f %% slower", 100.0 * (ratio - 1.0));
    } else {
        dpari_text_print(text, "%.1f %% faster", 100.0 * (1.0 - ratio));
    }
    dpari_text_print(text, ", %.1f GB", other->memory.total * 1e-9);
    if ((int32_t)(100.0 * other->step.bubble + 0.5) != (int32_t)(100.0 * plan->step.bubble + 0.5)) {
        dpari_text_print(text, ", bubble %.0f %% instead of %.0f %%", 100.0 * other->step.bubble,
                         100.0 * plan->step.bubble);
    }
}

DPAR_API DPARI_COLD int32_t dpar_plan_neighbours(const dpar_job *job, const dpar_plan *plan,
                                                 int64_t global_batch, dpar_plan_rejection *plans,
                                                 int32_t capacity)
{
    const dpar_strategy *strategy = &plan->strategy;
    int64_t batch = (int64_t)strategy->dp * strategy->micro_batch * strategy->micro_batches;
    int32_t k, n = 0;
    for (k = 0; k < 2 * DPARI_CHANGES && n < capacity; k++) {
        dpar_plan_rejection *r = &plans[n];
        dpar_plan other;
        dpar_text t;
        dpar_why why;
        int64_t per;
        dpar_status st;
        dpari_zero(r, sizeof(*r));
        dpar_text_init(&t, r->text, sizeof(r->text));
        if (!dpari_neighbour(job, strategy, k, &r->strategy, &t)) {
            continue;
        }
        per = (int64_t)r->strategy.dp * r->strategy.micro_batch;
        if (batch % per == 0 && batch / per <= INT32_MAX) { /* the neighbour has the same batch,
                                                               even if the batch is free */
            r->strategy.micro_batches = (int32_t)(batch / per);
        }
        st = dpar_plan_price(job, &r->strategy, global_batch, &other, &r->rule, &why);
        if (st == DPAR_OK || st == DPAR_E_MEMORY) {
            r->seconds = other.step.total;
            dpari_neighbour_text(job, plan, &other, r, &t);
        } else {
            dpari_text_print(&t, ": %s", why.text);
        }
        n++;
    }
    return n;
}

/* ---- nearest legal --------------------------------------------------------------------------- */

enum { DPARI_NEAR = 6 }; /* number of values that are tried for each degree */

/* Returns the ratio of two degrees, the larger over the smaller. A degree below 1 counts as 1. */
static double dpari_apart(int32_t a, int32_t b)
{
    const double x = a > 0 ? a : 1;
    const double y = b > 0 ? b : 1;
    return x > y ? x / y : y / x;
}

/* Lists the divisors of n up to `limit` that are nearest to `want` in ratio, the nearest first. */
static DPARI_COLD int32_t dpari_near_divisors(int32_t n, int32_t want, int64_t limit, int32_t *list)
{
    int32_t i, count = 0;
    for (i = 0;; i++) {
        const int32_t d = dpari_divisor(n, i);
        int32_t k = count;
        if (d < 1 || d > limit) {
            return count;
        }
        if (count < DPARI_NEAR) {
            count++;
        }
        for (; k > 0 && dpari_apart(list[k - 1], want) > dpari_apart(d, want); k--) {
            if (k < DPARI_NEAR) {
                list[k] = list[k - 1];
            }
        }
        if (k < DPARI_NEAR) {
            list[k] = d;
        }
    }
}

static int32_t dpari_nearest_divisor(int32_t n, int32_t want)
{
    int32_t list[DPARI_NEAR];
    n = (int32_t)dpari_most(n, 1);
    return dpari_near_divisors(n, want, INT32_MAX, list) > 0 ? list[0] : 1;
}

/* Returns the greatest common divisor, at least 1. */
static int32_t dpari_common(int32_t a, int32_t b)
{
    return (int32_t)dpari_most(1, dpari_gcd(a, b));
}

static double dpari_factor(int32_t a, int32_t b)
{
    return a != b ? 2.0 * dpari_apart(a, b) : 1.0;
}

/* Returns the distance of two strategies: the product of twice the ratio for each degree that
 * differs and of 2 for each option that differs. It is 1 if they are equal. */
static double dpari_distance(dpar_strategy a, dpar_strategy b)
{
    static const int8_t degree[] = {DPAR_STRATEGY_FIELD_TP,
                                    DPAR_STRATEGY_FIELD_CP,
                                    DPAR_STRATEGY_FIELD_DP,
                                    DPAR_STRATEGY_FIELD_PP,
                                    DPAR_STRATEGY_FIELD_VP,
                                    DPAR_STRATEGY_FIELD_EP,
                                    DPAR_STRATEGY_FIELD_ETP,
                                    DPAR_STRATEGY_FIELD_MICRO_BATCH,
                                    DPAR_STRATEGY_FIELD_MICRO_BATCHES,
                                    DPAR_STRATEGY_FIELD_SHARD};
    int32_t options = (a.sp != b.sp) + (a.cp_kind != b.cp_kind) + (a.zero != b.zero) +
                      (a.schedule != b.schedule) + (a.recompute != b.recompute) +
                      (a.offload != b.offload);
    double far_apart = 1.0;
    int32_t i;
    for (i = 0; i < (int32_t)sizeof(degree); i++) {
        far_apart *=
            dpari_factor(*dpari_strategy_at(&a, degree[i]), *dpari_strategy_at(&b, degree[i]));
    }
    far_apart *= (double)(1 << options);
    for (i = 0; i < 3; i++) {
        far_apart *= dpari_factor(a.tiles[i], b.tiles[i]);
    }
    return far_apart;
}

/* Moves the options into their ranges and switches off those without an effect for this job. */
static void dpari_sane(const dpar_job *job, dpar_strategy *strategy)
{
    const dpar_workload *work = job->work;
    int32_t i;
    strategy->zero = dpari_within(strategy->zero, 0, 3);
    strategy->recompute = work->trains ? dpari_within(strategy->recompute, 0, 31) : 0;
    strategy->recompute =
        (strategy->recompute & 3) > 1 ? strategy->recompute & 3 : strategy->recompute;
    strategy->schedule = dpari_within(strategy->schedule, 1, DPAR_SCHEDULE_PRICED_END - 1);
    strategy->cp_kind = dpari_within(strategy->cp_kind, 0, DPAR_CP_KIND_COUNT - 1);
    strategy->recompute_layers = strategy->recompute == DPAR_RECOMPUTE_FULL
                                     ? dpari_within(strategy->recompute_layers, 0, work->blocks)
                                     : 0;
    strategy->vp = dpari_within(strategy->vp, 1, INT32_MAX);
    strategy->micro_batch = dpari_within(strategy->micro_batch, 1, INT32_MAX);
    strategy->micro_batches = dpari_within(strategy->micro_batches, 1, INT32_MAX);
    strategy->offload = job->cluster->host_bytes > 0.0 ? strategy->offload & 15 : 0;
    if (!(job->cluster->nvme_Bps > 0.0) || !(strategy->offload & DPAR_OFFLOAD_OPTIMIZER)) {
        strategy->offload &= 7;
    }
    for (i = 0; i < 3; i++) {
        strategy->tiles[i] = i < work->dims ? dpari_within(strategy->tiles[i], 1, INT32_MAX) : 1;
    }
    strategy->etp = work->experts > 0 ? dpari_within(strategy->etp, 1, INT32_MAX) : 1;
}

/* Sets dp to `rest`, the ranks that tp, cp and pp leave, and then the fields that follow: experts,
 * shards, micro-batches. */
static void dpari_follow(const dpar_job *job, dpar_strategy *n, int32_t rest, int64_t batch)
{
    const dpar_workload *work = job->work;
    int32_t ranks, each;
    n->dp = rest;
    n->sp = (n->sp > 0 || work->experts > 0) && n->tp > 1 && dpari_sequence_cuts(work, n);
    n->vp = n->pp > 1 ? n->vp : 1;
    n->shard = n->shard < 1 || n->dp % n->shard != 0 ? 0 : n->shard;
    ranks = n->tp * n->cp * n->dp;
    n->etp = ranks % n->etp == 0 ? n->etp : 1;
    n->ep = work->experts > 0
                ? dpari_nearest_divisor(dpari_common(work->experts, ranks / n->etp), n->ep)
                : 1;
    if (batch > 0 && batch % n->dp == 0) {
        each = (int32_t)dpari_least(INT32_MAX, batch / n->dp);
        n->micro_batch = dpari_nearest_divisor(each, n->micro_batch);
        n->micro_batches = each / n->micro_batch;
    }
}

/* Tries a strategy as it is, and then with a plain pipeline. Returns the distance if one is legal
 * and nearer than `best`, otherwise `best`. `best` is 0 as long as none was found. */
static double dpari_try_near(const dpar_job *job, const dpar_strategy *given, dpar_strategy *n,
                             int64_t batch, double best, dpar_strategy *near_one)
{
    int32_t plain;
    for (plain = 0; plain < 2; plain++) {
        double apart;
        if (plain) {
            n->vp = 1;
            n->schedule = DPAR_SCHEDULE_1F1B;
        }
        apart = dpari_distance(*given, *n);
        if ((best <= 0.0 || apart < best) &&
            dpari_strategy_check(job, n, batch, NULL, NULL) == DPAR_OK) {
            *near_one = *n;
            return apart;
        }
    }
    return best;
}

/* Tries all degrees near those of the given strategy, with the tiles of `sane`. */
static DPARI_COLD double dpari_search_near(const dpar_job *job, const dpar_strategy *given,
                                           const dpar_strategy *sane, int32_t rest, int64_t batch,
                                           double best, dpar_strategy *near_one)
{
    const dpar_workload *work = job->work;
    int32_t tp[DPARI_NEAR], cp[DPARI_NEAR], pp[DPARI_NEAR], tps, cps, pps, i, j, k;
    tps = dpari_near_divisors(
        work->heads > 0 ? dpari_common(dpari_common(work->heads, work->hidden), rest) : 1, sane->tp,
        INT32_MAX, tp);
    for (i = 0; i < tps; i++) {
        cps = dpari_near_divisors(work->heads > 0 ? rest / tp[i] : 1, sane->cp, INT32_C(65536), cp);
        for (j = 0; j < cps; j++) {
            int32_t left = rest / tp[i] / cp[j];
            pps = dpari_near_divisors(left, sane->pp, work->blocks, pp);
            for (k = 0; k < pps; k++) {
                dpar_strategy n = *sane;
                n.tp = tp[i];
                n.cp = cp[j];
                n.pp = pp[k];
                dpari_follow(job, &n, left / pp[k], batch);
                best = dpari_try_near(job, given, &n, batch, best, near_one);
            }
        }
    }
    return best;
}

DPAR_API DPARI_COLD dpar_status dpar_strategy_nearest(const dpar_job *job,
                                                      const dpar_strategy *strategy,
                                                      int64_t global_batch, dpar_strategy *near_one,
                                                      dpar_why *why)
{
    dpar_strategy sane = *strategy, found = *strategy;
    int32_t gpus = dpari_cluster_gpus(job->cluster), i;
    int64_t tiles = 1;
    double best = 0.0;
    dpar_status st = dpari_strategy_check(job, strategy, global_batch, NULL, why);
    if (st == DPAR_OK) {
        *near_one = *strategy;
        return DPAR_OK;
    }
    dpari_sane(job, &sane);
    for (i = 0; i < 3; i++) {
        tiles = dpari_mul(tiles, sane.tiles[i], &tiles) ? tiles : 0;
    }
    if (tiles > 0 && gpus % tiles == 0) {
        best = dpari_search_near(job, strategy, &sane, gpus / (int32_t)tiles, global_batch, best,
                                 &found);
    }
    for (i = 0; best <= 0.0 && job->work->dims > 0 && dpari_divisor(gpus, i) > 0; i++) {
        int32_t parts = dpari_divisor(gpus, i);
        dpari_cut_grid(job->work, parts, sane.tiles);
        best = dpari_search_near(job, strategy, &sane, gpus / parts, global_batch, best, &found);
    }
    if (best <= 0.0) {
        return DPAR_E_NONE; /* *why names the rule that *strategy breaks */
    }
    *near_one = found;
    return DPAR_OK;
}

/* ---- smallest machine ------------------------------------------------------------------------ */

/* Returns the next larger size of a machine: parts of a node, then whole nodes. With `coarse` the
 * steps are a sixteenth from 32 nodes on. Returns 0 beyond 2^31 - 1. */
static int32_t dpari_size_after(int32_t gpus, int32_t node, int32_t coarse)
{
    int64_t nodes = gpus / node, next;
    if (gpus < node) {
        return gpus + 1;
    }
    next = (nodes + (coarse && nodes >= 32 ? nodes / 16 : 1)) * node;
    return next <= INT32_MAX ? (int32_t)next : 0;
}

/* Finds the best plan on a number of GPUs of the cluster's kind. */
static DPARI_COLD dpar_status dpari_size_search(const dpar_job *job,
                                                const dpar_planner_desc *search, int32_t gpus,
                                                dpar_plan *plan, int64_t *nearest, dpar_why *why)
{
    dpar_cluster c = *job->cluster;
    dpar_job resized = *job;
    dpar_planner p;
    dpar_planner_desc q = *search;
    dpar_status st;
    resized.cluster = &c;
    if (c.nics < 1) { /* a machine of one node; more nodes need some network */
        c.nics = c.gpus_per_node;
        c.nic_Bps = 25e9;
    }
    c.gpus_per_node = (int32_t)dpari_least(gpus, c.gpus_per_node);
    c.nodes = gpus / c.gpus_per_node;
    q.gpus = gpus;
    q.top = plan;
    q.top_capacity = 1;
    q.front = NULL;
    st = dpar_planner_init(&p, &resized, &q, why);
    if (st != DPAR_OK) {
        return st;
    }
    do {
        st = dpar_planner_run(&p, INT64_MAX, why);
    } while (st == DPAR_MORE);
    *nearest = p.state[DPARI_NEAREST_BYTES];
    return st;
}

/* Fixes a field of a search unless it is fixed already. */
static void dpari_size_fix(dpar_planner_desc *desc, int32_t field, int32_t *at, int32_t value)
{
    if (!dpari_fixed(desc, field)) {
        *at = value;
        desc->fixed_fields |= (uint32_t)1 << field;
    }
}

/* Returns DPAR_DONE if some plan fits on a number of GPUs. It first searches where the memory is
 * least: micro-batches of one sample, everything recomputed and, if the search may offload,
 * offloaded. If these plans exceed the limit by less than a quarter, it searches all plans, because
 * a single layer in flight needs less without recomputation. *priced is increased if a strategy was
 * legal. */
static DPARI_COLD dpar_status dpari_size_fits(const dpar_job *job, const dpar_planner_desc *search,
                                              int32_t gpus, int64_t *priced, dpar_why *why)
{
    dpar_planner_desc q = *search;
    dpar_plan plan;
    int64_t nearest = 0;
    double limit = dpari_limit(job, search);
    dpar_status st;
    dpari_size_fix(&q, DPAR_STRATEGY_FIELD_VP, &q.fixed.vp, 1);
    dpari_size_fix(&q, DPAR_STRATEGY_FIELD_MICRO_BATCH, &q.fixed.micro_batch, 1);
    if (job->work->trains) {
        dpari_size_fix(&q, DPAR_STRATEGY_FIELD_RECOMPUTE, &q.fixed.recompute, DPAR_RECOMPUTE_FULL);
        dpari_size_fix(&q, DPAR_STRATEGY_FIELD_RECOMPUTE_LAYERS, &q.fixed.recompute_layers, 0);
        dpari_size_fix(&q, DPAR_STRATEGY_FIELD_OVERLAP, &q.fixed.overlap, 0);
    }
    if (q.space == DPAR_SPACE_WHOLE && job->work->trains && job->cluster->host_bytes > 0.0) {
        dpari_size_fix(&q, DPAR_STRATEGY_FIELD_OFFLOAD, &q.fixed.offload,
                       DPAR_OFFLOAD_OPTIMIZER | DPAR_OFFLOAD_WEIGHTS | DPAR_OFFLOAD_ACTIVATIONS);
    }
    st = dpari_size_search(job, &q, gpus, &plan, &nearest, why);
    *priced += nearest; /* 0 if nothing was legal */
    if (st != DPAR_E_NONE || (double)nearest > limit * 1.25e-6) {
        return st;
    }
    return dpari_size_search(job, search, gpus, &plan, &nearest, why);
}

/* Returns a number of GPUs below which not even weights, gradients and optimizer fit. */
static int32_t dpari_size_least(const dpar_job *job, const dpar_planner_desc *search)
{
    const dpar_recipe *recipe = &job->recipe;
    double bytes = job->work->trains ? dpari_zero_bytes(recipe, job->work->params, 0, 1)
                                     : job->work->params * recipe->weight;
    double least = bytes / dpari_limit(job, search);
    int offload =
        search->space == DPAR_SPACE_WHOLE || dpari_fixed(search, DPAR_STRATEGY_FIELD_OFFLOAD);
    int32_t node = job->cluster->gpus_per_node;
    if (offload || !(least > 1.0)) {
        return 1;
    }
    if (least >= 2e9) {
        return INT32_MAX;
    }
    return least < node ? (int32_t)least : (int32_t)(least / node) * node;
}

DPAR_API DPARI_COLD dpar_status dpar_plan_smallest(const dpar_job *job,
                                                   const dpar_planner_desc *search,
                                                   int32_t most_gpus, dpar_plan *plan,
                                                   dpar_why *why)
{
    int32_t node = job->cluster->gpus_per_node, least, gpus, enough;
    int64_t nearest = 0, priced = 0;
    dpar_status st = dpari_cluster_check(job->cluster, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_workload_check(job->work, why);
    if (st != DPAR_OK) {
        return st;
    }
    least = dpari_size_least(job, search);
    st = DPAR_E_NONE;
    for (enough = least; enough > 0 && enough <= most_gpus;
         enough = dpari_size_after(enough, node, 1)) {
        st = dpari_size_fits(job, search, enough, &priced, why);
        if (st != DPAR_E_NONE) {
            break;
        }
    }
    if (st == DPAR_E_NONE && priced > 0) {
        return dpari_say(DPAR_E_NONE, why, "the job does not fit on %d GPUs or fewer", most_gpus);
    }
    if (st == DPAR_E_NONE) {
        return dpari_say(DPAR_E_NONE, why,
                         "no number of GPUs up to %d has a legal strategy with the fixed values "
                         "and a global batch of %ld",
                         most_gpus, search->global_batch);
    }
    if (st != DPAR_DONE) {
        return st;
    }
    for (gpus = least; gpus < enough; gpus = dpari_size_after(gpus, node, 0)) {
        if (dpari_size_fits(job, search, gpus, &priced, why) == DPAR_DONE) {
            enough = gpus;
        }
    }
    st = dpari_size_search(job, search, enough, plan, &nearest, why);
    return st == DPAR_DONE ? DPAR_OK : DPAR_E_NONE;
}

/* ==== cost/recommend.c ==== */

/* Chooses the plan to recommend. A search of the usual space keeps the fastest plan of each kind
 * (plan_kinds.h). Of the kinds that are nearly as fast as the fastest one, it takes the simplest.
 * The rest of the file puts the result into words. */

/* ---- what the job needs ---------------------------------------------------------------------- */

/* The numbers that decide what fits. */
typedef struct dpari_need {
    double state;       /* bytes of weights, gradients and optimizer of one replica */
    double activations; /* bytes of the activations of one sample, not divided and not recomputed */
    double gpu;         /* bytes of a GPU that a program can use: 90 % of its memory */
    int32_t gpus, node; /* number of all GPUs, and of the GPUs of one node */
    int32_t tp;         /* the widest tensor parallelism in a node, or the fixed one */
} dpari_need;

enum { DPARI_NAME = sizeof(((dpar_advice *)0)->name) };
/* Sequence parallelism is part of the name from this number of tokens on, because without it such
 * sequences do not fit. */
static const double dpari_medium_sequence = 16384.0;
/* The recommended plan is at most this much slower than the fastest. Within that limit each unit of
 * dpari_kind_weight counts as 1.6 % of the time. A kind of parallelism has three units, which
 * nearly reaches the limit, because with fewer kinds fewer things can go wrong. */
static const double dpari_near_best = 1.05;
static const double dpari_kind_unit = 0.016;
/* Tensor parallelism over slow links is only recommended if everything else takes twice as long. */
static const double dpari_poor_pays = 2.0;
/* A simpler plan is mentioned up to this ratio of times. */
static const double dpari_worth_saying = 1.6;

/* Computes what the job needs on one GPU, and the tensor parallelism that a node allows. */
static DPARI_COLD dpari_need dpari_need_of(const dpar_job *job, const dpar_planner_desc *search)
{
    const dpar_workload *work = job->work;
    dpari_need n;
    int32_t i;
    dpari_zero(&n, sizeof(n));
    n.state = work->trains ? dpari_zero_bytes(&job->recipe, work->params, 0, 1)
                           : work->params * job->recipe.weight;
    for (i = 0; i < work->layers; i++) {
        n.activations += dpari_layer_saved(work, i, DPAR_RECOMPUTE_NONE) * work->layer[i].tokens *
                         work->layer[i].count;
    }
    n.gpu = 0.9 * job->cluster->gpu.memory_bytes;
    n.node = job->cluster->gpus_per_node;
    n.gpus = dpari_cluster_gpus(job->cluster);
    n.tp = work->heads > 0 ? n.node : 1;
    while (n.tp > 1 &&
           (n.node % n.tp != 0 || work->heads % n.tp != 0 || work->hidden % n.tp != 0)) {
        n.tp--;
    }
    if (dpari_fixed(search, DPAR_STRATEGY_FIELD_TP)) {
        n.tp = search->fixed.tp;
    }
    return n;
}

/* ---- kinds ----------------------------------------------------------------------------------- */

/* Returns the weight of a plan: three for each kind of parallelism, one for each option. Sharded
 * optimizer state counts as a kind of parallelism with plain DDP, but with tp or pp it is only a
 * setting of the software and counts nothing. */
static int32_t dpari_kind_weight(int32_t bits)
{
    static const int8_t weight[9] = {3, 3, 3, 1, 1, 3, 3, 1, 2}; /* by the bits of DPARI_KIND_* */
    int32_t i, sum = 0;
    for (i = 0; i < 9; i++) {
        sum += bits >> i & 1 ? weight[i] : 0;
    }
    if (bits & (DPARI_KIND_TP | DPARI_KIND_PP) && bits & DPARI_KIND_SHARDS) {
        sum -= 3;
    }
    return sum;
}

/* Walks all usual plans and keeps the best of each kind. */
DPARI_STATIC_NOINLINE DPARI_COLD dpar_status dpari_kinds_find(const dpar_job *job,
                                                              const dpar_planner_desc *search,
                                                              dpari_kinds *kinds, dpar_why *why)
{
    dpar_planner p;
    dpar_plan top;
    dpar_planner_desc q = *search;
    dpar_status st;
    kinds->n = 0;
    q.space = DPAR_SPACE_USUAL;
    q.top = &top;
    q.top_capacity = 1;
    q.front = NULL;
    st = dpar_planner_init(&p, job, &q, why);
    p.kinds = kinds;
    p.slack = dpari_worth_saying;
    while (st == DPAR_OK || st == DPAR_MORE) {
        st = dpar_planner_run(&p, INT64_MAX, why);
    }
    return st == DPAR_DONE ? DPAR_OK : st;
}

/* Returns the fastest kind that has none of the bits `without`, or NULL. */
static const dpari_kind *dpari_kind_fastest(const dpari_kinds *kinds, int32_t without)
{
    const dpari_kind *best = NULL;
    int32_t i;
    for (i = 0; i < kinds->n; i++) {
        const dpari_kind *x = &kinds->of[i];
        if ((x->bits & without) == 0 && (best == NULL || x->seconds < best->seconds)) {
            best = x;
        }
    }
    return best;
}

/* Chooses the plan to recommend. Of the plans that are nearly as fast as the fastest, it is the one
 * with the least time after the penalty for its kind. Poor kinds are considered only if all others
 * take twice as long. */
static const dpari_kind *dpari_kind_choose(const dpari_kinds *kinds)
{
    const dpari_kind *best = dpari_kind_fastest(kinds, DPARI_KIND_POOR), *chosen = NULL;
    const dpari_kind *any = dpari_kind_fastest(kinds, 0);
    double least = 0.0;
    int32_t i;
    best = best != NULL && best->seconds <= dpari_poor_pays * any->seconds ? best : any;
    for (i = 0; i < kinds->n; i++) {
        const dpari_kind *x = &kinds->of[i];
        double cost = x->seconds / best->seconds + dpari_kind_unit * dpari_kind_weight(x->bits);
        if (x->seconds <= dpari_near_best * best->seconds * (1.0 - 1e-6) &&
            (x->bits & ~best->bits & DPARI_KIND_POOR) == 0 && (chosen == NULL || cost < least)) {
            chosen = x;
            least = cost;
        }
    }
    return chosen;
}

/* Returns the fastest plan that is simpler by more than an option, or NULL if there is none or it
 * is too slow to mention. */
static const dpari_kind *dpari_kind_simpler(const dpari_kinds *kinds, const dpari_kind *than)
{
    const dpari_kind *best = NULL;
    int32_t i;
    for (i = 0; i < kinds->n; i++) {
        const dpari_kind *x = &kinds->of[i];
        if (dpari_kind_weight(x->bits) + 2 <= dpari_kind_weight(than->bits) &&
            (x->bits & ~than->bits & DPARI_KIND_POOR) == 0 && x->seconds > than->seconds &&
            x->seconds < dpari_worth_saying * than->seconds &&
            (best == NULL || x->seconds < best->seconds)) {
            best = x;
        }
    }
    return best;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Appends a part of a name, with its degree if that is above 1. */
static void dpari_name_part(dpar_text *text, const char *name, int32_t degree)
{
    if (text->used > 0) {
        dpar_text_put(text, " + ");
    }
    dpar_text_put(text, name);
    if (degree > 1) {
        dpari_text_print(text, "=%d", degree);
    }
}

/* Returns the name of data parallelism without sharded weights. */
static const char *dpari_data_name(const dpar_strategy *strategy)
{
    if (strategy->zero == 1) {
        return "DP(ZeRO-1)";
    }
    if (strategy->zero != 0) {
        return "DP(ZeRO-2)";
    }
    return strategy->tp * strategy->pp == 1 ? "DDP" : "DP";
}

/* Writes the name of a plan, such as "TP=4 + FSDP=4", "DDP" or "domain=4 + DDP=2". */
static void dpari_plan_name(const dpar_job *job, const dpar_plan *plan, char *name, size_t room)
{
    const dpar_strategy *strategy = &plan->strategy;
    int32_t tiles = (int32_t)dpari_tiles(strategy);
    dpar_text t;
    dpar_text_init(&t, name, room);
    if (tiles > 1) {
        dpari_name_part(&t, "domain", tiles);
    }
    if (strategy->tp > 1) {
        dpari_name_part(&t,
                        strategy->sp && job->work->tokens >= dpari_medium_sequence ? "SP+TP" : "TP",
                        strategy->tp);
    }
    if (strategy->cp > 1) {
        dpari_name_part(&t, strategy->cp_kind == DPAR_CP_ULYSSES ? "Ulysses SP" : "CP",
                        strategy->cp);
    }
    if (strategy->pp > 1) {
        dpari_name_part(&t, "PP", strategy->pp);
    }
    if (strategy->ep > 1) {
        dpari_name_part(&t, "EP", strategy->ep);
    }
    if (strategy->dp > 1 && strategy->zero == 3) {
        dpari_name_part(&t, strategy->shard > 0 && strategy->shard < strategy->dp ? "HSDP" : "FSDP",
                        strategy->dp);
    } else if (strategy->dp > 1) {
        dpari_name_part(&t, dpari_data_name(strategy), strategy->dp);
    }
    if (t.used == 0) {
        dpari_name_part(&t, "one GPU", 1);
    }
    if (strategy->recompute == DPAR_RECOMPUTE_FULL) {
        dpari_name_part(&t, "recompute", 1);
    }
}

/* Appends a text, and then bytes in GB. */
static void dpari_gb(dpar_text *text, const char *before, double bytes)
{
    dpar_text_put(text, before);
    dpari_text_fixed(text, bytes * 1e-9, bytes < 1e10 ? 1 : 0);
    dpar_text_put(text, " GB");
}

/* Writes why one GPU is not enough, and what a GPU holds with the plan. */
static void dpari_advice_why(const dpar_job *job, const dpari_need *need, const dpar_plan *plan,
                             char *why, size_t room)
{
    double gpu = job->cluster->gpu.memory_bytes;
    dpar_text t;
    dpar_text_init(&t, why, room);
    if (job->work->trains) {
        dpari_gb(&t, "weights, gradients and optimizer take ", need->state);
        if (need->state < need->gpu) {
            dpari_gb(&t, ", which one GPU of ", gpu);
            dpar_text_put(&t, " holds");
        } else if (need->state < gpu) {
            dpari_gb(&t, ", and leave too little of one GPU's ", gpu);
        } else {
            dpari_gb(&t, ", more than one GPU's ", gpu);
            dpari_gb(&t, " by ", need->state - gpu);
        }
        dpar_text_put(&t, "; ");
    }
    if (need->activations > need->gpu) {
        dpari_gb(&t, "the activations of one sample are ", need->activations);
        dpar_text_put(&t, "; ");
    }
    if (plan->fits) {
        dpari_gb(&t, "this way a GPU holds ", plan->memory.total);
        if (plan->strategy.zero >= 1 && plan->strategy.dp > 1) {
            dpari_gb(&t, ", ",
                     dpari_zero_bytes(&job->recipe, plan->memory.params, plan->strategy.zero,
                                      plan->strategy.shard > 0 ? plan->strategy.shard
                                                               : plan->strategy.dp));
            dpar_text_put(&t, " of them state");
        }
    } else {
        dpari_gb(&t, "even this way it does not fit: up to ", plan->memory.upper);
        dpari_gb(&t, " a GPU, ", plan->memory.upper - gpu);
        dpar_text_put(&t, " too much");
    }
}

/* Sets the bit of a warning and appends its text. */
static void dpari_warn(dpar_advice *advice, dpar_text *out, int32_t bit, const char *text)
{
    advice->warnings |= bit;
    dpari_text_print(out, "%s%s", out->used > 0 ? " " : "", text);
}

/* Lists the common mistakes that the plan makes. */
static void dpari_advice_warnings(const dpar_job *job, const dpar_planner_desc *search,
                                  const dpari_need *need, dpar_advice *advice)
{
    const dpar_strategy *strategy = &advice->plan.strategy;
    double over;
    dpar_text t;
    dpar_text_init(&t, advice->warning_text, sizeof(advice->warning_text));
    if (strategy->zero == 3 && strategy->tp == 1 && need->state + need->activations < need->gpu) {
        dpari_warn(advice, &t, DPAR_WARN_FSDP_NEEDLESS,
                   "FSDP though the model fits on one GPU: the gathers are needless traffic.");
    }
    if (strategy->tp > 1 && dpari_over_pcie(job->cluster)) {
        dpari_warn(advice, &t, DPAR_WARN_TP_ACROSS,
                   "tensor parallelism over PCIe: every layer waits for slow links.");
    } else if (strategy->tp > job->cluster->gpus_per_node && need->gpus > need->node) {
        dpari_warn(advice, &t, DPAR_WARN_TP_ACROSS,
                   "tensor parallelism across nodes: every layer waits for the network.");
    }
    if (strategy->pp > 1 && strategy->micro_batches < 4 * strategy->pp) {
        dpari_warn(advice, &t, DPAR_WARN_FEW_MICRO,
                   advice->plan.step.bubble > 0.15
                       ? "fewer than 4 micro-batches a stage: much of a step is bubble."
                       : "fewer than 4 micro-batches a stage: mind the bubble.");
    }
    over = advice->plan.memory.term[DPAR_MEMORY_ACTIVATIONS];
    if (strategy->zero >= 1 && over > 0.5 * advice->plan.memory.total) {
        dpari_warn(advice, &t, DPAR_WARN_ACTIVATIONS,
                   "activations are most of the memory: sharding state does not shrink them.");
    }
    if (!advice->plan.fits && strategy->zero == 0 && strategy->tp == 1 && strategy->pp == 1 &&
        need->state > need->gpu) {
        dpari_warn(advice, &t, DPAR_WARN_DDP_STATE,
                   "DDP replicates the state, which does not fit on one GPU.");
    }
    if (job->work->trains && strategy->dp > 1 && search->global_batch == 0) {
        dpari_warn(advice, &t, DPAR_WARN_LEARNING_RATE,
                   "the global batch grows with the GPUs: scale the learning rate with it.");
    }
}

/* Appends in words what the first kind needs and the second does not. */
static DPARI_COLD void dpari_advice_saved(dpar_text *text, const char *how, int32_t bits,
                                          int32_t than)
{
    static const char name[9][24] = {
        "tensor parallelism",    "a cut of the sample", "a pipeline",
        "several stages a rank", "recomputation",       "sharded optimizer state",
        "sharded weights",       "groups of shards",    "stages of single layers"};
    int32_t i;
    for (i = 0; i < 9; i++) {
        if ((bits & ~than) >> i & 1) {
            dpari_text_print(text, "%s%s", how, name[i]);
            how = ", ";
        }
    }
}

/* Appends "12 % slower, " or "3.1 % faster, " for a ratio of times. */
static DPARI_COLD void dpari_advice_ratio(dpar_text *text, double ratio)
{
    double by = 100.0 * (ratio > 1.0 ? ratio - 1.0 : 1.0 / ratio - 1.0);
    dpari_text_fixed(text, by, by < 9.95);
    dpar_text_put(text, ratio > 1.0 ? " % slower, " : " % faster, ");
}

/* Compares another plan with the chosen one: "PP=2 + DP=4: 12 % faster, 34 GB a GPU, with a
 * pipeline". */
static DPARI_COLD void dpari_advice_other(const dpar_job *job, const dpar_planner_desc *search,
                                          const dpari_kind *other, const dpari_kind *chosen,
                                          const dpar_advice *advice, dpar_text *text)
{
    dpar_plan plan;
    char name[DPARI_NAME];
    double ratio = other->seconds / chosen->seconds;
    (void)dpar_plan_price(job, &other->strategy, search->global_batch, &plan, NULL, NULL);
    dpari_plan_name(job, &plan, name, sizeof(name));
    if (dpari_same(name, advice->name)) { /* they differ only in options that the name does not
                                             show */
        dpar_strategy_write(&plan.strategy, text);
    } else {
        dpar_text_put(text, name);
    }
    dpar_text_put(text, ": ");
    dpari_advice_ratio(text, ratio);
    dpari_gb(text, "", plan.memory.total);
    dpar_text_put(text, " a GPU");
    if (ratio > 1.0) {
        dpari_advice_saved(text, ", without ", chosen->bits, other->bits);
    } else {
        dpari_advice_saved(text, ", with ", other->bits, chosen->bits);
    }
    if (other->bits & ~chosen->bits & DPARI_KIND_POOR) {
        dpar_text_put(text, " over slow links");
    }
}

/* Describes the fastest plan if it is not the chosen one, and a simpler one if there is one. */
static DPARI_COLD void dpari_advice_others(const dpar_job *job, const dpar_planner_desc *search,
                                           const dpari_kinds *kinds, const dpari_kind *chosen,
                                           dpar_advice *advice)
{
    const dpari_kind *fastest = dpari_kind_fastest(kinds, 0);
    const dpari_kind *simpler = dpari_kind_simpler(kinds, chosen);
    dpar_text t;
    advice->slower = chosen->seconds / fastest->seconds - 1.0;
    dpar_text_init(&t, advice->fastest, sizeof(advice->fastest));
    if (fastest != chosen) {
        dpari_advice_other(job, search, fastest, chosen, advice, &t);
    }
    dpar_text_init(&t, advice->runner_up, sizeof(advice->runner_up));
    if (simpler != NULL) {
        dpari_advice_other(job, search, simpler, chosen, advice, &t);
    }
}

/* If a field is fixed, replaces the runner-up by the plan that would be recommended with nothing
 * fixed. */
static void dpari_advice_free(const dpar_job *job, const dpar_planner_desc *search,
                              dpar_advice *advice)
{
    dpar_advice other;
    dpar_planner_desc q = *search;
    dpar_text t;
    double ratio;
    q.fixed_fields = 0;
    if (search->fixed_fields == 0 || dpar_plan_recommend(job, &q, &other, NULL) != DPAR_OK ||
        dpari_same(other.name, advice->name)) {
        return;
    }
    dpar_text_init(&t, advice->runner_up, sizeof advice->runner_up);
    dpari_text_print(&t, "with nothing fixed %s: ", other.name);
    if (advice->plan.fits) {
        ratio = other.plan.step.total / other.plan.step.samples * advice->plan.step.samples /
                advice->plan.step.total;
        dpari_advice_ratio(&t, ratio);
    }
    dpari_gb(&t, "", other.plan.memory.total);
    dpar_text_put(&t, " a GPU");
}

/* Finds the plan that comes nearest to fitting: the fixed one if something is fixed, otherwise one
 * that is sharded and recomputed as far as possible. Returns DPAR_E_MEMORY with advice->plan, or
 * DPAR_E_NONE if it is not legal. */
static dpar_status dpari_advice_near(const dpar_job *job, const dpar_planner_desc *search,
                                     const dpari_need *need, dpar_advice *advice)
{
    const dpar_workload *work = job->work;
    dpar_plan plan;
    dpar_strategy s;
    dpar_status st = DPAR_E_NONE, one;
    int32_t k;
    if (search->fixed_fields != 0) {
        s = search->fixed;
        one = dpar_strategy_complete(job, &s, search->fixed_fields, search->global_batch, NULL);
        if (one == DPAR_OK) {
            one = dpar_plan_price(job, &s, 0, &advice->plan, NULL, NULL);
        }
        return one == DPAR_OK || one == DPAR_E_MEMORY ? DPAR_E_MEMORY : DPAR_E_NONE;
    }
    for (k = 0; k < 2; k++) { /* sharded over all GPUs, first without and then with TP in a node */
        dpar_strategy_init(&s);
        s.tp = k == 1 ? need->tp : 1;
        s.sp = s.tp > 1;
        s.dp = need->gpus / s.tp;
        s.zero = work->trains ? 3 : 0;
        s.recompute = work->trains ? DPAR_RECOMPUTE_FULL : DPAR_RECOMPUTE_NONE;
        one = dpar_plan_price(job, &s, 0, &plan, NULL, NULL);
        if ((one == DPAR_OK || one == DPAR_E_MEMORY) && (k == 0 || need->tp > 1)) {
            advice->plan = plan;
            st = DPAR_E_MEMORY;
        }
    }
    return st;
}

/* Reports that nothing fits: which plan comes nearest, how much memory it lacks, and on how many
 * GPUs it would fit. */
static dpar_status dpari_advice_none(const dpar_job *job, const dpar_planner_desc *search,
                                     const dpari_need *need, dpar_advice *advice, dpar_why *why)
{
    dpar_plan plan;
    dpar_planner_desc q = *search;
    dpar_text t;
    if (dpari_advice_near(job, search, need, advice) != DPAR_E_MEMORY) {
        return dpari_say(DPAR_E_NONE, why,
                         "no legal strategy for %d GPUs and a global batch of %ld", need->gpus,
                         search->global_batch);
    }
    dpari_plan_name(job, &advice->plan, advice->name, sizeof(advice->name));
    if (advice->plan.fits && advice->plan.memory.upper <= job->cluster->gpu.memory_bytes) {
        return dpari_say(DPAR_E_NONE, why,
                         "no strategy for %d GPUs divides a global batch of %ld and fits; with "
                         "another batch one does",
                         need->gpus, search->global_batch);
    }
    dpari_advice_why(job, need, &advice->plan, advice->why, sizeof(advice->why));
    dpar_text_init(&t, advice->runner_up, sizeof(advice->runner_up));
    dpari_gb(&t, "state alone, sharded over all GPUs: ", need->state / need->gpus);
    dpar_text_put(&t, " a GPU");
    q.global_batch = 0;
    if (dpar_plan_smallest(job, &q, (int32_t)dpari_least(64 * (int64_t)need->gpus, INT32_MAX),
                           &plan, NULL) == DPAR_OK) {
        const int32_t gpus = dpar_strategy_ranks(&plan.strategy);
        dpari_text_print(&t, "; it fits on %d such GPUs (nodes of %d)", gpus,
                         (int32_t)dpari_least(gpus, job->cluster->gpus_per_node));
    }
    dpari_advice_warnings(job, search, need, advice);
    dpari_advice_free(job, search, advice);
    return dpari_say(
        DPAR_E_MEMORY, why,
        search->fixed_fields != 0
            ? "the job does not fit on %d GPUs with the fixed values: up to %ld GB a GPU, the GPU "
              "has %ld GB"
            : "the job does not fit on %d GPUs: up to %ld GB a GPU when sharded as far as "
              "possible, "
              "the GPU has %ld GB",
        need->gpus, (int64_t)(advice->plan.memory.upper * 1e-9 + 0.999),
        (int64_t)(job->cluster->gpu.memory_bytes * 1e-9 + 0.5));
}

DPAR_API DPARI_COLD dpar_status dpar_plan_recommend(const dpar_job *job,
                                                    const dpar_planner_desc *search,
                                                    dpar_advice *advice, dpar_why *why)
{
    dpari_kinds kinds;
    const dpari_kind *chosen;
    dpari_need n;
    dpar_status st = dpari_search_check(job, search, why);
    if (st != DPAR_OK) {
        return st;
    }
    n = dpari_need_of(job, search);
    dpari_zero(advice, sizeof(*advice));
    if (dpari_kinds_find(job, search, &kinds, why) != DPAR_OK) {
        return dpari_advice_none(job, search, &n, advice, why);
    }
    chosen = dpari_kind_choose(&kinds);
    (void)dpar_plan_price(job, &chosen->strategy, search->global_batch, &advice->plan, NULL, NULL);
    dpari_plan_name(job, &advice->plan, advice->name, sizeof(advice->name));
    dpari_advice_others(job, search, &kinds, chosen, advice);
    dpari_advice_why(job, &n, &advice->plan, advice->why, sizeof(advice->why));
    dpari_advice_warnings(job, search, &n, advice);
    dpari_advice_free(job, search, advice);
    return DPAR_OK;
}

/* ==== cost/simulated.c ==== */

/* Simulates the pipeline of a plan with dpar_schedule_simulate. Each chunk of the schedule gets the
 * time and the activations of the layers in it. The result replaces the closed forms of the bubble,
 * of the messages between stages and of the activations; the other terms of the plan are unchanged.
 *
 * Times are in ns. The caller's memory holds the arrays of dpari_sim_rows, then the schedule, then
 * the memory of the simulation. */

/* The times and bytes of the schedule's stages, which are the chunks of the strategy. */
typedef struct dpari_sim_rows {
    int64_t *forward, *input, *weight; /* ns of forward, input gradient and weight gradient */
    int64_t *kept, *back;              /* bytes that the forward keeps; their negative */
    dpar_rank_timing *rank;
    int32_t stages; /* number of chunks */
} dpari_sim_rows;

/* Returns 1 if the schedule has a second chain of stages, in the opposite direction, otherwise
 * 0. */
static int dpari_sim_second_chain(const dpar_strategy *strategy)
{
    return strategy->schedule == DPAR_SCHEDULE_DUALPIPE;
}

/* Returns how many micro-batches to simulate: all, or about 100,000 forwards with the last group of
 * 2 pp micro-batches complete. */
static int32_t dpari_simulated_micros(const dpar_strategy *strategy)
{
    const int64_t most = INT64_C(100000) / ((int64_t)strategy->pp * strategy->vp),
                  group = 2 * (int64_t)strategy->pp;
    int64_t m = strategy->micro_batches;
    if (m > most && m > 4 * group) {
        m -= (m - dpari_most(most, 3 * group)) / group * group;
    }
    return (int32_t)m;
}

/* Returns the share of a stage's time that its forward takes, compute and messages together. */
static double dpari_forward_share(const dpari_stage *st)
{
    double device = dpari_stage_device(st);
    return device > 0.0 ? (st->forward + st->sent) / device : 0.5;
}

/* Prices each chunk as a stage of a pipeline with as many ranks as chunks. The prices are scaled so
 * that a rank's chunks add up to the rank's own price, which includes waits for the host and layers
 * that are recomputed in part. held_send: ns that a message adds to forward and backward. */
static DPARI_COLD void dpari_sim_price(const dpar_job *job, const dpar_strategy *strategy,
                                       double held_send, dpari_sim_rows *c)
{
    dpari_layers layers;
    dpar_strategy each = *strategy;
    int32_t r, v, i;
    each.pp = c->stages;
    each.vp = 1;
    each.schedule = DPAR_SCHEDULE_1F1B;
    each.recompute_layers = (strategy->recompute_layers + strategy->vp - 1) / strategy->vp;
    dpari_price_layers(job, strategy, &layers);
    for (r = 0; r < strategy->pp; r++) {
        dpari_stage rank, st;
        double sum = 0.0, kept = 0.0;
        dpari_price_stage(job, strategy, &layers, r, &rank);
        for (v = 0; v < strategy->vp; v++) {
            dpari_price_stage(job, &each, &layers, (int32_t)dpari_chunk_of(strategy, r, v), &st);
            sum += st.total;
            kept += st.kept;
        }
        for (v = 0; v < strategy->vp; v++) {
            double scale = 1e9, share, backward;
            i = (int32_t)dpari_chunk_of(strategy, r, v);
            dpari_price_stage(job, &each, &layers, i, &st);
            scale *= sum > 0.0 ? rank.total / sum : 0.0;
            share = job->work->trains ? dpari_forward_share(&st) : 1.0;
            backward = (1.0 - share) * st.total * scale;
            c->forward[i] = (int64_t)(share * st.total * scale + held_send);
            /* half of the backward's compute is the weight gradient */
            c->weight[i] = (int64_t)dpari_leastf(0.5 * st.backward * scale, backward);
            c->input[i] = (int64_t)(backward + held_send) - c->weight[i];
            c->kept[i] = 1 + (int64_t)(kept > 0.0 ? st.kept * rank.kept / kept : 0.0);
            c->back[i] = -c->kept[i];
        }
    }
    for (i = c->stages; i < c->stages * (1 + dpari_sim_second_chain(strategy)); i++) {
        c->forward[i] = c->forward[i - c->stages];
        c->input[i] = c->input[i - c->stages];
        c->weight[i] = c->weight[i - c->stages];
        c->kept[i] = c->kept[i - c->stages];
        c->back[i] = c->back[i - c->stages];
    }
}

/* Returns the memory of the rank that needs the most, with the activations that the simulation
 * counts and 5 % of fragmentation on the difference. */
static DPARI_COLD double dpari_simulated_memory(const dpar_job *job, const dpar_plan *plan,
                                                const dpari_sim_rows *c)
{
    const dpar_strategy *strategy = &plan->strategy;
    double most = 0.0;
    int32_t r;
    if (strategy->offload & DPAR_OFFLOAD_ACTIVATIONS) {
        return plan->memory.total;
    }
    for (r = 0; r < strategy->pp; r++) {
        dpar_memory_usage m;
        double more;
        dpar_memory_stage(job, strategy, r, &m);
        more = (double)c->rank[r].peak_bytes - m.term[DPAR_MEMORY_ACTIVATIONS];
        most = dpari_mostf(most, m.total + more * (job->work->trains ? 1.05 : 1.0));
    }
    return most;
}

/* Generates the schedule and simulates it. mem has `bytes` bytes. */
static DPARI_COLD dpar_status dpari_simulated_run(const dpar_job *job, const dpar_plan *plan,
                                                  int32_t micros, double send,
                                                  dpari_sim_rows *chunks, dpar_timing *timing,
                                                  char *mem, int64_t bytes, dpar_why *why)
{
    const dpar_strategy *strategy = &plan->strategy;
    dpar_schedule_desc order;
    dpar_schedule schedule;
    dpar_schedule_times times;
    dpar_schedule_simulate_desc how;
    dpar_status st;
    int64_t need;
    int looped = dpari_looped(strategy->schedule);
    /* 1 if the software stack sends between its computations, so that ranks wait for the
     * messages */
    int holds = looped && !(dpari_overlap_of(job, strategy) & DPAR_OVERLAP_PP);
    dpari_zero(&order, sizeof order);
    order.rule = job->work->trains ? strategy->schedule : DPAR_SCHEDULE_FORWARD_ONLY;
    order.ranks = strategy->pp;
    order.micro_batches = micros;
    order.chunks = looped || !job->work->trains ? strategy->vp : 0;
    st = dpar_schedule_generate(&schedule, &order, mem, bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    need = dpari_schedule_generate_bytes(&order, NULL);
    dpari_sim_price(job, strategy, holds ? 1e9 * send : 0.0, chunks);
    dpari_zero(&times, sizeof times);
    dpari_zero(&how, sizeof how);
    times.forward.each = chunks->forward;
    times.input.each = chunks->input;
    times.weight.each = chunks->weight;
    times.hold_forward.each = chunks->kept;
    times.hold_weight.each = chunks->back;
    times.latency.all = holds ? 0 : (int64_t)(1e9 * send);
    how.times = &times;
    how.rank = chunks->rank;
    st = dpar_schedule_simulate(&schedule, &how, timing, mem + need, bytes - need, why);
    if (st == DPAR_E_ROOM && why != NULL) { /* the schedule is in front of it in the memory */
        why->bytes += need;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_plan_simulate(const dpar_job *job, const dpar_plan *plan,
                                                   dpar_plan_simulation *sim, void *mem,
                                                   int64_t bytes, dpar_why *why)
{
    const dpar_strategy *strategy = &plan->strategy;
    const dpar_step_cost *step = &plan->step;
    int32_t stages, rows, micros;
    int64_t head, *at = (int64_t *)mem;
    dpari_sim_rows chunks;
    dpar_timing timing;
    double pipeline, send;
    dpar_status st = dpari_strategy_check(job, strategy, 0, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(sim, sizeof *sim);
    sim->total = step->total;
    sim->memory = plan->memory.total;
    if (strategy->pp == 1) {
        return DPAR_OK;
    }
    stages = strategy->pp * strategy->vp; /* not more than there are layers */
    rows = stages * (1 + dpari_sim_second_chain(strategy));
    head = 5 * (int64_t)rows * 8 + strategy->pp * (int64_t)sizeof(dpar_rank_timing);
    micros = dpari_simulated_micros(strategy);
    if (bytes < head) {
        dpari_needs_bytes(why, head);
        return dpari_say(DPAR_E_ROOM, why,
                         "memory of %ld bytes is too small: the stages alone need %ld", bytes,
                         head);
    }
    chunks.stages = stages;
    chunks.forward = at;
    chunks.input = at + rows;
    chunks.weight = at + 2 * (int64_t)rows;
    chunks.back = at + 3 * (int64_t)rows;
    chunks.kept = at + 4 * (int64_t)rows;
    chunks.rank = (dpar_rank_timing *)(void *)(at + 5 * (int64_t)rows);
    send = dpari_boundary_seconds(job, strategy);
    dpari_needs_bytes(why, 0);
    st = dpari_simulated_run(job, plan, micros, send, &chunks, &timing, (char *)mem + head,
                             bytes - head, why);
    if (st == DPAR_E_ROOM && why != NULL) { /* the stages are in front of it in the memory */
        why->bytes += head;
    }
    if (st != DPAR_OK) {
        return st;
    }
    pipeline = 1e-9 * (double)timing.makespan +
               (double)(strategy->micro_batches - micros) *
                   (step->largest_stage_s + step->term[DPAR_TIME_PP] / strategy->micro_batches);
    sim->total += pipeline - strategy->micro_batches * step->largest_stage_s -
                  step->term[DPAR_TIME_BUBBLE] - step->term[DPAR_TIME_PP];
    sim->slower = sim->total / step->total - 1.0;
    sim->bubble = 1.0 - step->mean_stage_s * strategy->micro_batches / pipeline;
    sim->memory = dpari_simulated_memory(job, plan, &chunks);
    sim->larger = sim->memory / plan->memory.total - 1.0;
    return DPAR_OK;
}

/* ==== cost/halo_cost.c ==== */

/* Predicts the time of a halo exchange. For each side of a block it counts the bytes, the
 * contiguous runs of memory and whether the neighbour is on the same node, and prices them with the
 * rates of the machine. It counts only the ranks of the first node and of a node in the middle of
 * the grid, which represent the others, so that a prediction is fast on many ranks.
 *
 * dpar_halo_cost_choose prices every factorisation of the ranks with every order of the axes, and
 * takes the fastest. */

DPAR_API DPARI_COLD void dpar_halo_rates_init(dpar_halo_rates *rates)
{
    rates->copy_Bps = 20e9;
    rates->run_s = 3e-9;
    rates->peer_s = 0.75e-6;
    rates->message_s = 2e-6;
    rates->nic_Bps = 25e9;
    rates->cache_bytes = rates->far_s = 0.0;
}

/* Returns `rates`, or the usual ones if it is NULL. */
static const dpar_halo_rates *dpari_halo_rates_or(const dpar_halo_rates *rates,
                                                  dpar_halo_rates *usual)
{
    dpar_halo_rates_init(usual);
    return rates != NULL ? rates : usual;
}

static DPARI_COLD dpar_status dpari_halo_job_check(const dpar_halo_cost_desc *job,
                                                   const dpar_halo_rates *rates,
                                                   const dpar_halo_cost *grid, dpar_why *why)
{
    const double rate[] = {rates->copy_Bps, rates->run_s,       rates->peer_s, rates->message_s,
                           rates->nic_Bps,  rates->cache_bytes, rates->far_s};
    int32_t d, fine = rates->copy_Bps > 0;
    int64_t cells = 1;
    if (!job || !grid) {
        return dpari_wrong(why, "dpar_halo_cost: job or grid is NULL");
    }
    if (job->ranks < 1 || job->dims < 1 || job->dims > DPAR_MAX_DIMS || job->per_node < 0 ||
        job->bytes < 1 || job->contiguous_bytes < 0 || job->contiguous_bytes > job->bytes) {
        return dpari_wrong(
            why,
            "ranks=%d, per_node=%d, dims=%d, bytes=%ld, contiguous_bytes=%ld: ranks and bytes must "
            "be at least 1, per_node at least 0, dims 1 to 6, contiguous_bytes 0 to bytes",
            job->ranks, job->per_node, job->dims, job->bytes, job->contiguous_bytes);
    }
    if (dpari_stencil_axes(job->shape, 1) == 0) {
        return dpari_wrong(why, "shape=%d must be DPAR_STENCIL_STAR, _EDGES or _BOX", job->shape);
    }
    for (d = 0; d < job->dims; d++) {
        if (job->cells[d] < 1 || job->width[d] < 0 || job->width[d] > INT64_C(1) << 40) {
            return dpari_wrong(why, "dim %d: cells=%ld must be at least 1, width=%ld 0 to 2^40", d,
                               job->cells[d], job->width[d]);
        }
        if (job->cells[d] > INT64_C(1) << 60 ||
            !dpari_mul(cells, job->cells[d] + 2 * job->width[d], &cells) ||
            cells > INT64_MAX / 4 / job->bytes) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "dim %d of %ld cells with halos of %ld: the grid has more than 2^61 bytes", d,
                job->cells[d], job->width[d]);
        }
    }
    for (d = 0; d < 7; d++) {
        fine = fine && rate[d] >= 0 && dpari_finite(rate[d]);
    }
    if (!fine) {
        return dpari_wrong(why, "rates: each must be finite and at least 0, copy_Bps above 0");
    }
    return DPAR_OK;
}

/* The least bytes of a run that a peer on the same node reads in place. Shorter runs are packed,
 * which copies them twice. */
enum { DPARI_HALO_LONG = 64 };

/* ---- one rank -------------------------------------------------------------------------------- */

/* What one rank receives, and the time of its copies. */
typedef struct dpari_halo_sum {
    double copy_s;
    int64_t bytes;
    int64_t away;     /* the part of `bytes` that is received from other nodes */
    int32_t peers;    /* neighbours on the same node, the rank itself not counted */
    int32_t messages; /* neighbours on other nodes */
} dpari_halo_sum;

/* Returns the rank of the neighbour on a side, or -1 if the grid ends there. side[d] is -1, 0 or 1.
 */
static int32_t dpari_halo_cost_peer(const dpar_halo_cost_desc *job, const dpar_halo_cost *grid,
                                    const int32_t *coord, const int32_t *side)
{
    int32_t d, rank = 0;
    for (d = 0; d < job->dims; d++) {
        int32_t at = coord[d] + side[d];
        if ((at < 0 || at >= grid->parts[d]) && (job->periodic >> d & 1u) == 0) {
            return -1;
        }
        rank += (at + grid->parts[d]) % grid->parts[d] * grid->stride[d];
    }
    return rank;
}

/* Computes the bytes of the halo on one side and the contiguous runs that it consists of. A run
 * extends over the fastest dim that has a halo and all dims after it, because those have no ghost
 * cells between their elements. */
static void dpari_halo_cost_piece(const dpar_halo_cost_desc *job, const dpar_halo_cost *grid,
                                  const int32_t *side, int64_t *bytes, int64_t *runs)
{
    int32_t d;
    int32_t whole = 1; /* 1 while all dims after this one have no halo */
    *bytes = job->bytes;
    *runs = job->contiguous_bytes > 0 ? job->bytes / job->contiguous_bytes : 1;
    for (d = job->dims - 1; d >= 0; d--) {
        int64_t n = side[d] != 0 ? job->width[d] : dpari_ceil_div(job->cells[d], grid->parts[d]);
        *bytes *= n;
        *runs *= whole ? 1 : n;
        whole = whole && job->width[d] == 0;
    }
}

/* Returns the seconds of a run, which are more if the block and its halo exceed the cache. */
static double dpari_halo_cost_run(const dpar_halo_cost_desc *job, const dpar_halo_rates *rates,
                                  const dpar_halo_cost *grid)
{
    double block = (double)job->bytes;
    int32_t d;
    for (d = 0; d < job->dims; d++) {
        block *= (double)(dpari_ceil_div(job->cells[d], grid->parts[d]) + 2 * job->width[d]);
    }
    return rates->cache_bytes > 0 && block > rates->cache_bytes ? rates->far_s : rates->run_s;
}

/* Adds the halo that a rank receives on one side. */
static void dpari_halo_cost_side(const dpar_halo_cost_desc *job, const dpar_halo_rates *rates,
                                 const dpar_halo_cost *grid, int32_t rank, const int32_t *coord,
                                 const int32_t *side, dpari_halo_sum *sum)
{
    int64_t bytes, runs;
    int32_t copies;
    const int32_t node = job->per_node > 0 ? job->per_node : job->ranks;
    const int32_t peer = dpari_halo_cost_peer(job, grid, coord, side);
    dpari_halo_cost_piece(job, grid, side, &bytes, &runs);
    if (peer < 0 || bytes == 0) {
        return;
    }
    sum->bytes += bytes;
    copies = 1;
    if (peer != rank && (peer / node != rank / node || bytes / runs < DPARI_HALO_LONG)) {
        copies = 2; /* packed and unpacked */
    }
    sum->copy_s += copies * ((double)bytes / rates->copy_Bps +
                             (double)runs * dpari_halo_cost_run(job, rates, grid));
    if (peer / node != rank / node) {
        sum->away += bytes;
        sum->messages++;
    } else if (peer != rank) {
        sum->peers++;
    }
}

/* Sums all sides of a rank. A peer on several sides is counted once for each. */
static void dpari_halo_cost_rank(const dpar_halo_cost_desc *job, const dpar_halo_rates *rates,
                                 const dpar_halo_cost *grid, int32_t rank, dpari_halo_sum *sum)
{
    int32_t d, coord[DPAR_MAX_DIMS], side[DPAR_MAX_DIMS];
    dpari_zero(sum, sizeof *sum);
    for (d = 0; d < job->dims; d++) {
        coord[d] = rank / grid->stride[d] % grid->parts[d];
        side[d] = -1;
    }
    for (;;) {
        int32_t sides = 0;
        for (d = 0; d < job->dims; d++) {
            sides += side[d] != 0;
        }
        if (sides > 0 && sides <= dpari_stencil_axes(job->shape, job->dims)) {
            dpari_halo_cost_side(job, rates, grid, rank, coord, side, sum);
        }
        for (d = job->dims - 1; d >= 0 && side[d] == 1; d--) {
            side[d] = -1;
        }
        if (d < 0) {
            return;
        }
        side[d]++;
    }
}

/* Raises each figure of the grid to the maximum over the ranks [first, last) of one node. */
static DPARI_COLD void dpari_halo_cost_node(const dpar_halo_cost_desc *job,
                                            const dpar_halo_rates *rates, dpar_halo_cost *grid,
                                            int32_t first, int32_t last)
{
    int64_t away = 0;
    double network = 0;
    int32_t k;
    for (k = first; k < last; k++) {
        dpari_halo_sum sum;
        dpari_halo_cost_rank(job, rates, grid, k, &sum);
        away += sum.away;
        network = dpari_mostf(network, sum.messages * rates->message_s);
        grid->copy_s = dpari_mostf(grid->copy_s, sum.copy_s);
        grid->seconds = dpari_mostf(grid->seconds, sum.copy_s + sum.peers * rates->peer_s);
        grid->bytes = dpari_most(grid->bytes, sum.bytes);
        grid->peers = (int32_t)dpari_most(grid->peers, sum.peers + sum.messages);
    }
    if (away > 0 && rates->nic_Bps > 0) {
        network += (double)away / rates->nic_Bps;
    }
    grid->network_s = dpari_mostf(grid->network_s, network);
    grid->network_bytes = dpari_most(grid->network_bytes, away);
}

/* Predicts the figures of a grid from its first node and the node of a rank in its middle. */
static void dpari_halo_cost_grid(const dpar_halo_cost_desc *job, const dpar_halo_rates *rates,
                                 dpar_halo_cost *grid)
{
    const int32_t node =
        job->per_node > 0 && job->per_node < job->ranks ? job->per_node : job->ranks;
    int32_t d, middle = 0;
    for (d = 0; d < job->dims; d++) { /* a rank with neighbours on all sides, if there is one */
        middle += grid->parts[d] / 2 * grid->stride[d];
    }
    middle = middle / node * node;
    grid->seconds = grid->copy_s = grid->network_s = 0;
    grid->bytes = grid->network_bytes = 0;
    grid->peers = 0;
    dpari_halo_cost_node(job, rates, grid, 0, node);
    if (middle > 0) {
        dpari_halo_cost_node(job, rates, grid, middle,
                             (int32_t)dpari_least((int64_t)middle + node, job->ranks));
    }
    grid->seconds = dpari_mostf(grid->seconds, grid->copy_s + grid->network_s);
}

/* ---- grids ----------------------------------------------------------------------------------- */

/* Checks that the parts multiply to the ranks, and that the strides order the axes: the fastest
 * axis has stride 1, and each other one the product of the parts of all faster axes. */
static dpar_status dpari_halo_grid_check(const dpar_halo_cost_desc *job, const dpar_halo_cost *grid,
                                         dpar_why *why)
{
    int32_t d, k, ranks = 1, used = 0, product;
    for (d = 0; d < job->dims; d++) {
        if (grid->parts[d] < 1 || grid->parts[d] > job->cells[d] ||
            grid->parts[d] > job->ranks / ranks) {
            return dpari_wrong(why,
                               "dim %d: parts=%d must be 1 to its %ld cells, and all parts "
                               "multiply to %d ranks",
                               d, grid->parts[d], job->cells[d], job->ranks);
        }
        ranks *= grid->parts[d];
    }
    product = ranks;
    for (ranks = 1; used < job->dims; used++) { /* the axes, from the fastest on */
        d = 0;
        for (k = 0; k < job->dims; k++) {
            if (grid->stride[k] == ranks && grid->parts[k] > 1) {
                d = k;
            }
        }
        if (grid->parts[d] == 1 || grid->stride[d] != ranks) {
            break;
        }
        ranks *= grid->parts[d];
    }
    for (d = 0; d < job->dims; d++) {
        if (grid->stride[d] < 1) {
            return dpari_wrong(why, "dim %d: stride=%d must be at least 1", d, grid->stride[d]);
        }
    }
    if (product != job->ranks) {
        return dpari_wrong(why, "the parts multiply to %d, not to ranks=%d", product, job->ranks);
    }
    if (ranks != job->ranks) {
        return dpari_wrong(
            why, "a dim must have stride=%d, the product of the parts of all faster axes", ranks);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_halo_cost_predict(const dpar_halo_cost_desc *job,
                                            const dpar_halo_rates *rates, dpar_halo_cost *grid,
                                            dpar_why *why)
{
    dpar_halo_rates usual;
    dpar_status st;
    rates = dpari_halo_rates_or(rates, &usual);
    st = dpari_halo_job_check(job, rates, grid, why);
    if (st == DPAR_OK) {
        st = dpari_halo_grid_check(job, grid, why);
    }
    if (st == DPAR_OK) {
        dpari_halo_cost_grid(job, rates, grid);
    }
    return st;
}

static void dpari_halo_swap(int32_t *order, int32_t i, int32_t k)
{
    const int32_t first = order[i];
    order[i] = order[k];
    order[k] = first;
}

/* Advances to the next permutation of n numbers in lexicographic order. Returns 1, or 0 after the
 * last. */
static int dpari_halo_next_order(int32_t *order, int32_t n)
{
    int32_t i = n - 2, k = n - 1;
    while (i >= 0 && order[i] > order[i + 1]) {
        i--;
    }
    if (i < 0) {
        return 0;
    }
    while (order[k] < order[i]) {
        k--;
    }
    dpari_halo_swap(order, i, k);
    for (i++, k = n - 1; i < k; i++, k--) { /* the rest is in descending order, so reverse it */
        dpari_halo_swap(order, i, k);
    }
    return 1;
}

/* Tries all orders of the axes for these parts, and sets *best if one of them is faster.
 * best->seconds is negative as long as there is no grid. On a single node the order does not
 * matter. */
static void dpari_halo_best_order(const dpar_halo_cost_desc *job, const dpar_halo_rates *rates,
                                  const int32_t *parts, dpar_halo_cost *best)
{
    int32_t axis[DPAR_MAX_DIMS], order[DPAR_MAX_DIMS], n = 0, d, k;
    int32_t found = 0; /* 1 after the first order of these parts */
    const int one_node = job->per_node == 0 || job->per_node >= job->ranks;
    dpar_halo_cost grid;
    dpari_zero(&grid, sizeof grid);
    for (d = 0; d < job->dims; d++) {
        grid.parts[d] = parts[d];
        grid.stride[d] = 1;
        if (parts[d] > 1) { /* the first order makes the last dim the fastest axis */
            axis[n] = d;
            order[n] = n;
            n++;
        }
    }
    do {
        int32_t stride = 1;
        for (k = 0; k < n; k++) {
            d = axis[n - 1 - order[k]];
            grid.stride[d] = stride;
            stride *= parts[d];
        }
        dpari_halo_cost_grid(job, rates, &grid);
        /* of equally fast grids the later parts win, and of their orders the first */
        if (best->seconds < 0 || grid.seconds < best->seconds ||
            (grid.seconds <= best->seconds && !found)) {
            *best = grid;
        }
        found = 1;
    } while (!one_node && dpari_halo_next_order(order, n));
}

DPAR_API DPARI_COLD dpar_status dpar_halo_cost_choose(const dpar_halo_cost_desc *job,
                                                      const dpar_halo_rates *rates,
                                                      dpar_halo_cost *grid, dpar_why *why)
{
    dpar_halo_rates usual;
    int32_t parts[DPAR_MAX_DIMS] = {0}, d;
    dpar_halo_cost best;
    dpar_status st;
    rates = dpari_halo_rates_or(rates, &usual);
    st = dpari_halo_job_check(job, rates, grid, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(&best, sizeof best);
    best.seconds = -1;
    while (dpari_cart_next_parts(job->ranks, job->dims, parts) == DPAR_OK) {
        int fits = 1;
        for (d = 0; d < job->dims; d++) {
            fits = fits && parts[d] <= job->cells[d];
        }
        if (fits) {
            dpari_halo_best_order(job, rates, parts, &best);
        }
    }
    if (best.seconds < 0) {
        return dpari_say(DPAR_E_NONE, why,
                         "no process grid gives each of %d ranks at least one cell", job->ranks);
    }
    *grid = best;
    return DPAR_OK;
}

/* Predicts the seconds per step if the ranks exchange every `steps` steps. Returns 0 if the halo
 * would be wider than a block. */
static DPARI_COLD double dpari_halo_steps_cost(const dpar_halo_cost_desc *job,
                                               const dpar_halo_rates *rates,
                                               const dpar_halo_cost *grid, double cell_s,
                                               int32_t steps)
{
    dpar_halo_cost_desc deep = *job;
    dpar_halo_cost cost = *grid;
    double all = 0.0;
    int32_t d, left;
    for (left = 0; left < steps; left++) { /* the sub-steps that follow */
        double cells = cell_s;
        for (d = 0; d < job->dims; d++) {
            const int64_t block = dpari_ceil_div(job->cells[d], grid->parts[d]);
            const int32_t sides =
                (job->periodic >> d & 1u) != 0 ? 2 : (int32_t)dpari_least(grid->parts[d] - 1, 2);
            if (sides > 0 && job->width[d] > block / steps) {
                return 0.0;
            }
            cells *= (double)(block + sides * left * job->width[d]);
        }
        all += cells;
    }
    for (d = 0; d < job->dims; d++) {
        deep.width[d] *= grid->parts[d] > 1 || (job->periodic >> d & 1u) != 0 ? steps : 1;
    }
    if (steps > 1) {
        deep.shape = DPAR_STENCIL_BOX;
    }
    if (dpari_halo_job_check(&deep, rates, grid, NULL) != DPAR_OK) {
        return 0.0;
    }
    dpari_halo_cost_grid(&deep, rates, &cost);
    return (cost.seconds + all) / steps;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_cost_choose_steps(
    const dpar_halo_cost_desc *job, const dpar_halo_rates *rates, const dpar_halo_cost *grid,
    double cell_s, dpar_halo_cost_steps *steps, dpar_why *why)
{
    dpar_halo_rates usual;
    dpar_status status;
    int32_t k;
    rates = dpari_halo_rates_or(rates, &usual);
    status = dpari_halo_job_check(job, rates, grid, why);
    if (status == DPAR_OK) {
        status = dpari_halo_grid_check(job, grid, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (!steps || !(cell_s >= 0.0) || !dpari_finite(cell_s)) {
        return dpari_wrong(why,
                           "dpar_halo_cost_choose_steps: steps must not be NULL, and cell_s must "
                           "be finite and at least 0");
    }
    steps->best = 1;
    for (k = 1; k <= DPAR_HALO_COST_MOST_STEPS; k++) {
        const double each = dpari_halo_steps_cost(job, rates, grid, cell_s, k);
        steps->seconds[k - 1] = each;
        if (each > 0.0 && each < steps->seconds[steps->best - 1]) {
            steps->best = k;
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD double dpar_neighbours_cost(const dpar_neighbour *neighbour, int32_t n,
                                                int32_t per_node, const dpar_halo_rates *rates)
{
    dpar_halo_rates usual;
    double copies = 0.0, peers = 0.0, messages = 0.0, away = 0.0;
    rates = dpari_halo_rates_or(rates, &usual);
    for (; n > 0; n--, neighbour++) {
        const double bytes = (double)neighbour->bytes;
        copies +=
            neighbour->copies * bytes / rates->copy_Bps + (double)neighbour->runs * rates->run_s;
        if (neighbour->location == 1) {
            away += per_node * bytes;
            messages += rates->message_s;
        } else if (neighbour->location == 0) {
            peers += rates->peer_s;
        }
    }
    if (rates->nic_Bps > 0) {
        messages += away / rates->nic_Bps;
    }
    return copies + dpari_mostf(peers, messages);
}

/* ==== cost/plan_show.c ==== */

/* Writes plans as a table, in full, as CSV, JSON and SVG. All formats are appended to a dpar_text,
 * which counts what does not fit, so a caller can measure a report and then allocate it. */

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Appends a time in s, ms or us. */
static void dpari_show_seconds(dpar_text *text, double s)
{
    if (s >= 1.0) {
        dpari_text_print(text, s >= 100.0 ? "%.0f s" : "%.2f s", s);
    } else if (s >= 1e-3) {
        dpari_text_print(text, "%.1f ms", s * 1e3);
    } else {
        dpari_text_print(text, "%.1f us", s * 1e6);
    }
}

/* Appends a number with a unit prefix: 1.2k, 3.4M, 5.6G. */
static void dpari_show_count(dpar_text *text, double v)
{
    static const char unit[6][2] = {"", "k", "M", "G", "T", "P"};
    int32_t i = 0;
    while (v >= 1000.0 && i < 5) {
        v /= 1000.0;
        i++;
    }
    dpari_text_print(text, "%.3g%s", v, unit[i]);
}

/* Returns the name of what the workload counts as tokens. */
DPARI_STATIC_NOINLINE const char *dpari_show_unit(const dpar_job *job)
{
    const dpar_workload *work = job->work;
    if (work->dims == 0) {
        return "tokens";
    }
    return work->tokens <= 1.0 ? "images" : "cells";
}

/* ---- the table ------------------------------------------------------------------------------- */

/* A letter and an ANSI colour for each time term. */
static const char dpari_term_letter[DPAR_TIME_COUNT + 1] = "FBRTCEHPbidOoh";
static const int8_t dpari_term_colour[DPAR_TIME_COUNT] = {34, 36, 96, 31, 91, 35, 95,
                                                          33, 90, 37, 32, 92, 93, 97};

/* Switches to an ANSI colour, or back with 0, if the report has colours. */
DPARI_STATIC_NOINLINE void dpari_show_colour(dpar_text *text, const dpar_plan_draw_desc *desc,
                                             int32_t colour)
{
    if (desc->colour) {
        dpari_text_print(text, "\x1b[%dm", colour);
    }
}

/* Appends a bar that shows the share of the GPU's memory: green, yellow from 90 % on, red above 100
 * %. Returns its width. */
static int32_t dpari_show_memory_bar(dpar_text *text, const dpar_plan_draw_desc *desc, double bytes,
                                     int32_t width)
{
    double share = bytes / desc->job->cluster->gpu.memory_bytes;
    int32_t i, full = (int32_t)(share * width + 0.5), colour = 32;
    full = full > width ? width : full;
    if (share > 1.0) {
        colour = 31;
    } else if (share > 0.9) {
        colour = 33;
    }
    dpari_show_colour(text, desc, colour);
    for (i = 0; i < width; i++) {
        dpari_text_char(text, i < full ? '#' : '.');
    }
    dpari_show_colour(text, desc, 0);
    return width;
}

/* Appends a bar in which each term has letters for its share of the longest step. The ends of the
 * terms are rounded, so that the letters add up. *shown receives the bits of the terms in the bar.
 * Returns its width. */
static int32_t dpari_show_time_bar(dpar_text *text, const dpar_plan_draw_desc *desc,
                                   const dpar_step_cost *s, double longest, int32_t width,
                                   uint32_t *shown)
{
    double sum = 0.0;
    int32_t i, at = 0;
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        int32_t end;
        sum += s->term[i];
        end = (int32_t)(sum / longest * width + 0.5);
        if (end > at) {
            dpari_show_colour(text, desc, dpari_term_colour[i]);
            *shown |= 1u << i;
            for (; at < end && at < width; at++) {
                dpari_text_char(text, dpari_term_letter[i]);
            }
        }
    }
    dpari_show_colour(text, desc, 0);
    return at;
}

static void dpari_show_blank(dpar_text *text, int32_t n)
{
    for (; n > 0; n--) {
        dpari_text_char(text, ' ');
    }
}

/* Appends the notes of the model, one line each. */
static void dpari_show_notes(dpar_text *text, const char *note)
{
    int first = 1;
    for (; *note != 0; note++) {
        dpar_text_put(text, first ? "note: " : "");
        dpari_text_char(text, *note);
        first = *note == '\n';
    }
    dpar_text_put(text, first ? "" : "\n");
}

/* Appends the lines above the table: model, machine, batch, software, notes. */
static void dpari_show_head(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    const dpar_workload *work = desc->job->work;
    const dpar_cluster *cluster = desc->job->cluster;
    dpari_text_print(text, "%s  ", work->name);
    if (work->params > 0.0) {
        dpari_show_count(text, work->params);
        dpar_text_put(text, " parameters, ");
    }
    dpari_show_count(text, work->tokens);
    dpari_text_print(
        text,
        " %s a sample\non  %d x %s (%d node%s of %d, %.0f GB/s inside, %.0f GB/s a node "
        "outside)\nglobal batch ",
        dpari_show_unit(desc->job), dpari_cluster_gpus(cluster), cluster->gpu.name, cluster->nodes,
        cluster->nodes == 1 ? "" : "s", cluster->gpus_per_node, cluster->link_Bps * 1e-9,
        cluster->nics * cluster->nic_Bps * 1e-9);
    if (desc->global_batch > 0) {
        dpari_text_int(text, desc->global_batch);
    } else {
        dpar_text_put(text, "free");
    }
    dpari_text_print(text, ", %s precision, %s software", desc->job->recipe.name,
                     dpari_stack_name(work->stack_version));
    if (work->heads > 0) {
        dpari_text_print(text, ", %s attention", dpari_attention_name(work->attention));
    }
    if (work->vocab > 0 && work->trains) {
        dpari_text_print(text, ", %s loss", dpari_loss_name(work->loss));
    }
    dpari_text_char(text, '\n');
    dpari_show_notes(text, work->note);
    dpari_text_char(text, '\n');
}

/* Appends the i-th plan: memory and its bar, time and its bar, rate, MFU, strategy. */
static void dpari_show_row(dpar_text *text, const dpar_plan_draw_desc *desc, int32_t i,
                           double longest, uint32_t *shown)
{
    const dpar_plan *plan = &desc->plan[i];
    char cell[96];
    dpar_text c;
    dpari_text_print(text, "%3d  %6.1f GB ", i + 1, plan->memory.total * 1e-9);
    (void)dpari_show_memory_bar(text, desc, plan->memory.total, 12);
    dpar_text_init(&c, cell, sizeof(cell));
    dpari_show_seconds(&c, plan->step.total);
    dpari_text_print(text, "%10s ", cell);
    dpari_show_blank(text, 37 - dpari_show_time_bar(text, desc, &plan->step, longest, 36, shown));
    dpar_text_init(&c, cell, sizeof(cell));
    dpari_show_count(&c, plan->step.tokens_per_s_gpu);
    dpari_text_print(text, "%6s/s %5.1f%%  ", cell, 100.0 * plan->step.mfu);
    dpar_strategy_write(&plan->strategy, text);
    dpar_text_put(text, plan->fits ? "\n" : "  DOES NOT FIT\n");
}

/* Appends the meaning of the letters that occur in the bars, and the capacity. */
static void dpari_show_legend(dpar_text *text, const dpar_plan_draw_desc *desc, uint32_t shown)
{
    int32_t i;
    dpar_text_put(text, "\ntime bar:");
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        if ((shown >> i & 1u) != 0) {
            dpari_text_char(text, ' ');
            dpari_show_colour(text, desc, dpari_term_colour[i]);
            dpari_text_char(text, dpari_term_letter[i]);
            dpari_show_colour(text, desc, 0);
            dpari_text_print(text, " %s", dpar_time_name(i));
        }
    }
    dpari_text_print(text, "\nmemory bar: share of %.0f GB; MFU: %s\n",
                     desc->job->cluster->gpu.memory_bytes * 1e-9,
                     desc->job->work->heads > 0 ? "attention counted in full, vocabulary counted, "
                                                  "recomputation not, of the dense peak"
                                                : "of the dense matrix peak");
}

static void dpari_report_text(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    double longest = 1e-30;
    uint32_t shown = 0;
    int32_t i;
    dpari_show_head(text, desc);
    for (i = 0; i < desc->plan_count; i++) {
        longest = dpari_mostf(longest, desc->plan[i].step.total);
    }
    dpari_text_print(
        text, "  #     memory a GPU           step time                                     %s%s",
        dpari_show_unit(desc->job),
        desc->job->work->dims > 0 ? "/GPU    MFU  strategy\n" : "/GPU   MFU  strategy\n");
    for (i = 0; i < desc->plan_count; i++) {
        dpari_show_row(text, desc, i, longest, &shown);
    }
    dpari_show_legend(text, desc, shown);
    if (desc->note != NULL) {
        dpari_text_print(text, "%s\n", desc->note);
    }
    if (desc->seconds > 0.0) {
        dpari_show_count(text, (double)desc->evaluated);
        dpar_text_put(text, " configurations priced in ");
        dpari_show_seconds(text, desc->seconds);
        dpari_text_char(text, '\n');
    }
    for (i = 0; i < desc->rejected_count; i++) {
        dpari_text_print(text, "%s  %s\n", i == 0 ? "\nwhy not its neighbours?\n" : "",
                         desc->rejected[i].text);
    }
}

static void dpari_report_line(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    const dpar_plan *plan = &desc->plan[0];
    const char *verdict = "";
    if (desc->plan_count < 1) {
        dpar_text_put(text, "nothing fits\n");
        return;
    }
    if (!plan->fits) {
        verdict = ": does not fit";
    } else if (plan->memory.upper > desc->job->cluster->gpu.memory_bytes) {
        verdict = ": close";
    }
    dpar_strategy_write(&plan->strategy, text);
    dpar_text_put(text, ": ");
    dpari_show_seconds(text, plan->step.total);
    dpar_text_put(text, " a step, ");
    dpari_show_count(text, plan->step.tokens_per_s_gpu);
    dpari_text_print(text, " %s/s a GPU, MFU %.1f %%, %.1f of %.1f GB%s\n",
                     dpari_show_unit(desc->job), 100.0 * plan->step.mfu, plan->memory.total * 1e-9,
                     desc->job->cluster->gpu.memory_bytes * 1e-9, verdict);
}

/* ---- one plan in full ------------------------------------------------------------------------ */

/* Appends a term with its share of the whole and a bar, unless the share is below 0.05 %. */
static void dpari_show_term(dpar_text *text, const char *name, double v, double whole, double unit,
                            const char *unit_name)
{
    int32_t i;
    if (!(v > 0.0005 * whole || v < -0.0005 * whole)) {
        return;
    }
    dpari_text_print(text, "  %s", name);
    dpari_text_column(text, 18);
    dpari_text_print(text, v / unit < 10.0 ? "%10.3f %s%7.1f %% " : "%10.1f %s%7.1f %% ", v / unit,
                     unit_name, 100.0 * v / whole);
    for (i = 0; i < (int32_t)(40.0 * v / whole + 0.5) && i < 40; i++) {
        dpari_text_char(text, '#');
    }
    dpari_text_char(text, '\n');
}

/* Appends the first plans of the front of time against memory, the fastest first. */
static void dpari_show_front(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    int32_t i;
    for (i = 0; i < desc->front_count && i < 8; i++) {
        dpari_text_print(text, "%s  %.1f GB  ",
                         i == 0 ? "\nless memory, more time (nothing is both faster and smaller)\n"
                                : "",
                         desc->front[i].memory.total * 1e-9);
        dpari_show_seconds(text, desc->front[i].step.total);
        dpar_text_put(text, "  ");
        dpar_strategy_write(&desc->front[i].strategy, text);
        dpari_text_char(text, '\n');
    }
}

static void dpari_report_explain(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    const dpar_plan *plan = &desc->plan[0];
    int32_t i;
    if (desc->plan_count < 1) {
        return;
    }
    dpari_show_front(text, desc);
    dpar_text_put(text, "\nthe first plan in full: ");
    dpar_strategy_write(&plan->strategy, text);
    dpari_text_print(text, "\n\nmemory of pipeline rank %d, the worst, %s\n", plan->memory.worst,
                     plan->memory.moment == DPAR_MEMORY_PEAK_LOSS ? "at the loss"
                                                                  : "in a layer's backward");
    for (i = 0; i < DPAR_MEMORY_COUNT; i++) {
        dpari_show_term(text, dpar_memory_name(i), plan->memory.term[i], plan->memory.total, 1e9,
                        "GB");
    }
    dpari_show_term(text, "total", plan->memory.total, plan->memory.total, 1e9, "GB");
    dpari_text_print(text,
                     "  between %.1f and %.1f GB (allocator 3 to 10 %%); first stage %.1f, last "
                     "%.1f GB\n\ntime of a step\n",
                     plan->memory.lower * 1e-9, plan->memory.upper * 1e-9,
                     plan->memory.first * 1e-9, plan->memory.last * 1e-9);
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        dpari_show_term(text, dpar_time_name(i), plan->step.term[i], plan->step.total, 1e-3, "ms");
    }
    dpari_show_term(text, "total", plan->step.total, plan->step.total, 1e-3, "ms");
    dpari_text_print(text,
                     "\nsent by a GPU in a step: %.2f GB over in-node links, %.2f GB over the "
                     "network (%.2f GB of it all by data parallelism); ",
                     plan->step.link_bytes * 1e-9, plan->step.nic_bytes * 1e-9,
                     plan->step.dp_bytes * 1e-9);
    dpari_show_seconds(text, plan->step.dp_hidden_s);
    dpar_text_put(text, " of communication hidden behind compute\n");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Appends a JSON string: in quotes, with escapes. */
static void dpari_json_text(dpar_text *text, const char *s)
{
    static const char hex[17] = "0123456789abcdef";
    dpari_text_char(text, '"');
    for (; *s != 0; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20u) {
            dpar_text_put(text, "\\u00");
            dpari_text_char(text, hex[c >> 4]);
            dpari_text_char(text, hex[c & 15u]);
        } else {
            dpar_text_put(text, c == '"' || c == '\\' ? "\\" : "");
            dpari_text_char(text, *s);
        }
    }
    dpari_text_char(text, '"');
}

/* Appends all terms of memory or of time, in GB or in seconds. */
static void dpari_json_terms(dpar_text *text, const char *(*name)(int32_t i), const double *term,
                             int32_t terms, double unit)
{
    int32_t i;
    for (i = 0; i < terms; i++) {
        dpari_text_print(text, "\"%s\": %.9G, ", name(i), term[i] * unit);
    }
}

/* Appends a name, its string and the text `then`. */
static void dpari_json_word_of(dpar_text *text, const char *name, const char *v, const char *then)
{
    dpari_text_print(text, "\"%s\": ", name);
    dpari_json_text(text, v);
    dpar_text_put(text, then);
}

static void dpari_json_strategy(dpar_text *text, const dpar_strategy *strategy)
{
    char recompute[48], offload[48], overlap[48], tiles[48];
    dpar_text w;
    dpar_text_init(&w, recompute, sizeof(recompute));
    dpari_write_recompute(&w, strategy->recompute);
    dpar_text_init(&w, offload, sizeof(offload));
    dpari_write_bits(&w, "", strategy->offload, 1);
    dpar_text_init(&w, overlap, sizeof(overlap));
    if (strategy->overlap & DPAR_OVERLAP_DEFAULT) {
        dpar_text_put(&w, "default");
    } else {
        dpari_write_bits(&w, "", strategy->overlap, 0);
    }
    dpar_text_init(&w, tiles, sizeof(tiles));
    dpari_write_tiles(&w, strategy->tiles);
    dpari_text_print(
        text,
        "{\"dp\": %d, \"shard\": %d, \"zero\": %d, \"tp\": %d, \"sp\": %d, \"cp\": %d, "
        "\"cp_kind\": \"%s\", \"pp\": %d, \"vp\": %d, \"ep\": %d, \"etp\": %d, \"micro_batch\": "
        "%d, "
        "\"micro_batches\": %d, \"recompute\": \"%s\", \"recompute_layers\": %d, "
        "\"schedule\": \"%s\", \"offload\": \"%s\", \"overlap\": \"%s\", \"tiles\": \"%s\"}",
        strategy->dp, strategy->shard > 0 ? strategy->shard : strategy->dp, strategy->zero,
        strategy->tp, strategy->sp, strategy->cp, dpari_cp_name(strategy->cp_kind), strategy->pp,
        strategy->vp, strategy->ep, strategy->etp, strategy->micro_batch, strategy->micro_batches,
        recompute, strategy->recompute_layers, dpar_schedule_name(strategy->schedule), offload,
        overlap, tiles);
}

/* Appends two strings, which name the largest terms of memory and of time. */
static void dpari_json_reasons(dpar_text *text, const dpar_plan_draw_desc *desc,
                               const dpar_plan *plan)
{
    int32_t i, most_time = 0, most_memory = 0;
    for (i = 1; i < DPAR_TIME_COUNT; i++) {
        most_time = plan->step.term[i] > plan->step.term[most_time] ? i : most_time;
    }
    for (i = 1; i < DPAR_MEMORY_COUNT; i++) {
        most_memory = plan->memory.term[i] > plan->memory.term[most_memory] ? i : most_memory;
    }
    dpari_text_print(
        text,
        "\"%.0f %% of the GPU's memory at worst, mostly %s\", \"%.0f %% of the step is "
        "%s, the bubble %.1f %%\"",
        100.0 * plan->memory.upper / desc->job->cluster->gpu.memory_bytes,
        dpar_memory_name(most_memory), 100.0 * plan->step.term[most_time] / plan->step.total,
        dpar_time_name(most_time), 100.0 * plan->step.term[DPAR_TIME_BUBBLE] / plan->step.total);
}

/* Appends the memory of one pipeline rank by term. */
static void dpari_json_stage(dpar_text *text, const dpar_job *job, const dpar_plan *plan,
                             const char *name, int32_t rank)
{
    dpar_memory_usage m;
    dpar_memory_stage(job, &plan->strategy, rank, &m);
    dpari_text_print(text, "     \"%s\": {", name);
    dpari_json_terms(text, dpar_memory_name, m.term, DPAR_MEMORY_COUNT, 1e-9);
    dpari_text_print(text, "\"total\": %.9G},\n", m.total * 1e-9);
}

static void dpari_json_plan(dpar_text *text, const dpar_plan_draw_desc *desc, const dpar_plan *plan)
{
    const dpar_step_cost *s = &plan->step;
    const dpar_memory_usage *memory = &plan->memory;
    int32_t i;
    dpar_text_put(text, "    {\"strategy\": ");
    dpari_json_strategy(text, &plan->strategy);
    dpar_text_put(text, ",\n     \"memory_gb\": {");
    dpari_json_terms(text, dpar_memory_name, memory->term, DPAR_MEMORY_COUNT, 1e-9);
    dpari_text_print(text, "\"total\": %.9G},\n", memory->total * 1e-9);
    if (plan->strategy.pp > 1) {
        dpari_json_stage(text, desc->job, plan, "memory_first_stage_gb", 0);
        dpari_json_stage(text, desc->job, plan, "memory_last_stage_gb", plan->strategy.pp - 1);
    }
    dpari_text_print(text,
                     "     \"memory_peak\": {\"stage\": %d, \"moment\": \"%s\"},\n     "
                     "\"memory_stages_gb\": [",
                     memory->worst, memory->moment == DPAR_MEMORY_PEAK_LOSS ? "loss" : "layer");
    for (i = 0; i < plan->strategy.pp; i++) {
        dpar_memory_usage stage;
        dpar_memory_stage(desc->job, &plan->strategy, i, &stage);
        dpari_text_print(text, "%s%.9g", i > 0 ? ", " : "", stage.total * 1e-9);
    }
    dpari_text_print(text,
                     "],\n     \"memory_range_gb\": {\"allocated\": %.9G, \"lower\": %.9G, "
                     "\"upper\": %.9G, \"first_stage\": %.9G, \"last_stage\": %.9G, "
                     "\"host\": %.9G},\n     \"time_s\": {",
                     memory->allocated * 1e-9, memory->lower * 1e-9, memory->upper * 1e-9,
                     memory->first * 1e-9, memory->last * 1e-9, memory->host * 1e-9);
    dpari_json_terms(text, dpar_time_name, s->term, DPAR_TIME_COUNT, 1.0);
    dpari_text_print(
        text,
        "\"total\": %.9G},\n     \"tokens_per_s_per_gpu\": %.9G, \"samples_per_step\": %.9G, "
        "\"tflops_per_gpu\": %.9G, \"mfu\": %.9G, \"mfu_causal\": %.9G, \"hfu\": %.9G, "
        "\"bubble\": %.9G, \"link_gb\": %.9G, \"nic_gb\": %.9G, \"fits\": %s, \"reasons\": [",
        s->total, s->tokens_per_s_gpu, s->samples, s->tflops_gpu, s->mfu, s->mfu_causal, s->hfu,
        s->bubble, s->link_bytes * 1e-9, s->nic_bytes * 1e-9, plan->fits ? "true" : "false");
    dpari_json_reasons(text, desc, plan);
    dpar_text_put(text, "]}");
}

static void dpari_json_rejected(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    int32_t i;
    dpar_text_put(text, "  \"rejected\": [");
    for (i = 0; i < desc->rejected_count; i++) {
        dpar_text_put(text, i > 0 ? ",\n    {" : "\n    {");
        dpari_json_word_of(text, "rule", dpar_strategy_rule_name(desc->rejected[i].rule), ", ");
        dpari_json_word_of(text, "text", desc->rejected[i].text, ", ");
        dpari_text_print(text, "\"time_s\": %.9G, \"gb_over\": %.9G, \"strategy\": ",
                         desc->rejected[i].seconds, desc->rejected[i].bytes_over * 1e-9);
        dpari_json_strategy(text, &desc->rejected[i].strategy);
        dpar_text_put(text, "}");
    }
    dpar_text_put(text, "],\n  \"rejected_by_rule\": {");
    for (i = 1; i < DPAR_STRATEGY_RULE_COUNT && desc->rejected_by_rule != NULL; i++) {
        dpari_text_print(text, "\"%s\": %ld%s", dpar_strategy_rule_name(i),
                         desc->rejected_by_rule[i], i + 1 < DPAR_STRATEGY_RULE_COUNT ? ", " : "");
    }
    dpar_text_put(text, "},\n");
}

/* Appends the error of a constant. The error is known only if the constant is a default; `points`
 * is the number of measured points that replace the constant. */
static DPARI_COLD void dpari_json_error(dpar_text *text, double error, int32_t points)
{
    if (points > 0 || !(error > 0.0)) {
        dpar_text_put(text, points > 0 ? " none: measured" : " not known: as given");
    } else {
        dpari_text_print(text, " %.0f %%", 100.0 * error);
    }
}

/* Appends what is assumed: software, precision, machine, calibration, notes, definitions. */
static void dpari_json_assumptions(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    const dpar_workload *work = desc->job->work;
    const dpar_cluster *cluster = desc->job->cluster;
    const dpar_recipe *recipe = &desc->job->recipe;
    char line[400];
    dpar_text l;
    dpar_text_init(&l, line, sizeof(line));
    dpari_text_print(&l, "machine: %s, %s; GPU %s, %s", cluster->name, cluster->source,
                     cluster->gpu.name, cluster->gpu.source);
    dpari_text_print(text,
                     "  \"assumptions\": [\n    \"software: %s, attention: %s, loss: %s\",\n    "
                     "\"precision %s: bytes a parameter = weight %.3g + gradient %.3g + master "
                     "%.3g + moments %.3g\",\n    ",
                     dpari_stack_name(work->stack_version), dpari_attention_name(work->attention),
                     dpari_loss_name(work->loss), recipe->name, recipe->weight, recipe->gradient,
                     recipe->master, recipe->moments);
    dpari_json_text(text, line);
    dpar_text_put(text, ",\n    ");
    dpar_text_init(&l, line, sizeof(line));
    dpari_text_print(&l, "calibration: %s; one standard deviation of products",
                     cluster->cal.source);
    dpari_json_error(&l, cluster->cal.error[DPAR_CAL_GEMM], 0);
    dpar_text_put(&l, ", of links");
    dpari_json_error(&l, cluster->cal.error[DPAR_CAL_LINK_SHARE],
                     cluster->curve[DPAR_CURVE_LINK].count);
    dpar_text_put(&l, ", of the network");
    dpari_json_error(&l, cluster->cal.error[DPAR_CAL_NET_SHARE],
                     cluster->curve[DPAR_CURVE_NET].count);
    dpari_text_print(&l, "; activations of %d bytes", work->element);
    dpari_json_text(text, line);
    if (work->note[0] != 0) {
        dpar_text_put(text, ",\n    ");
        dpari_json_text(text, work->note);
    }
    dpar_text_put(text,
                  ",\n    \"mfu: full attention, vocabulary counted, recomputation not, of the "
                  "dense peak of the matrix format; mfu_causal: causal attention at half; hfu: "
                  "with recomputation; GB = 1e9 bytes\"\n  ]\n");
}

/* Appends the front of time against memory: no other plan is both faster and smaller. Fastest
 * first. */
static void dpari_json_front(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    int32_t i;
    dpar_text_put(text, "  \"pareto\": [");
    for (i = 0; i < desc->front_count; i++) {
        dpari_text_print(text,
                         "%s    {\"time_s\": %.9G, \"memory_gb\": %.9G, \"gpus\": %d, "
                         "\"strategy\": ",
                         i > 0 ? ",\n" : "\n", desc->front[i].step.total,
                         desc->front[i].memory.total * 1e-9,
                         dpari_cluster_gpus(desc->job->cluster));
        dpari_json_strategy(text, &desc->front[i].strategy);
        dpari_text_char(text, '}');
    }
    dpar_text_put(text, "],\n");
}

static void dpari_json_advice(dpar_text *text, const dpar_advice *advice)
{
    dpar_text_put(text, "  \"recommendation\": {");
    dpari_json_word_of(text, "name", advice->name, ",\n    ");
    dpari_json_word_of(text, "why", advice->why, ",\n    ");
    dpari_json_word_of(text, "runner_up", advice->runner_up, ",\n    ");
    dpari_json_word_of(text, "fastest", advice->fastest, ",\n    ");
    dpari_text_print(text, "\"slower\": %.9G,\n    ", advice->slower);
    dpari_json_word_of(text, "warnings", advice->warning_text, "},\n");
}

static void dpari_report_json(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    int32_t i;
    dpar_text_put(text, "{\n  ");
    dpari_json_word_of(text, "model", desc->job->work->name, ", ");
    dpari_text_print(text,
                     "\"parameters\": %ld, \"gpus\": %d, \"global_batch\": %ld,\n  \"plans\": [\n",
                     (int64_t)dpari_leastf(desc->job->work->params, 9e18),
                     dpari_cluster_gpus(desc->job->cluster), desc->global_batch);
    for (i = 0; i < desc->plan_count; i++) {
        dpari_json_plan(text, desc, &desc->plan[i]);
        dpar_text_put(text, i + 1 < desc->plan_count ? ",\n" : "\n");
    }
    dpar_text_put(text, "  ],\n");
    dpari_json_front(text, desc);
    if (desc->advice != NULL) {
        dpari_json_advice(text, desc->advice);
    }
    if (desc->note != NULL) {
        dpar_text_put(text, "  ");
        dpari_json_word_of(text, "message", desc->note, ",\n");
    }
    dpari_json_rejected(text, desc);
    dpari_text_print(text, "  \"evaluated\": %ld, \"seconds\": %.9G,\n", desc->evaluated,
                     desc->seconds);
    dpari_json_assumptions(text, desc);
    dpar_text_put(text, "}\n");
}

/* ---- CSV ------------------------------------------------------------------------------------- */

static void dpari_report_csv(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    int32_t i, k;
    dpar_text_put(text, "rank,strategy,fits");
    for (k = 0; k < DPAR_MEMORY_COUNT; k++) {
        dpari_text_print(text, ",%s_gb", dpar_memory_name(k));
    }
    dpar_text_put(text, ",total_gb,upper_gb");
    for (k = 0; k < DPAR_TIME_COUNT; k++) {
        dpari_text_print(text, ",%s_s", dpar_time_name(k));
    }
    dpar_text_put(text, ",total_s,tokens_per_s_per_gpu,tflops_per_gpu,mfu\n");
    for (i = 0; i < desc->plan_count; i++) {
        const dpar_plan *plan = &desc->plan[i];
        dpari_text_print(text, "%d,\"", i + 1);
        dpar_strategy_write(&plan->strategy, text);
        dpar_text_put(text, plan->fits ? "\",1" : "\",0");
        for (k = 0; k < DPAR_MEMORY_COUNT; k++) {
            dpari_text_print(text, ",%.7g", plan->memory.term[k] * 1e-9);
        }
        dpari_text_print(text, ",%.7g,%.7g", plan->memory.total * 1e-9, plan->memory.upper * 1e-9);
        for (k = 0; k < DPAR_TIME_COUNT; k++) {
            dpari_text_print(text, ",%.7g", plan->step.term[k]);
        }
        dpari_text_print(text, ",%.7g,%.7g,%.5g,%.5g\n", plan->step.total,
                         plan->step.tokens_per_s_gpu, plan->step.tflops_gpu, plan->step.mfu);
    }
}

/* ---- SVG ------------------------------------------------------------------------------------- */

/* Okabe and Ito's colours, which can be distinguished with any colour vision, and tints of them. */
static const char dpari_svg_colour[DPAR_TIME_COUNT][8] = {
    "#0072B2", "#56B4E9", "#9AD1F0", "#D55E00", "#E8935A", "#CC79A7", "#E3AFCC",
    "#F0E442", "#BBBBBB", "#777777", "#009E73", "#E69F00", "#F4CE7F", "#333333"};

DPARI_STATIC_NOINLINE void dpari_svg_rect(dpar_text *text, double x, double y, double w, double h,
                                          const char *fill)
{
    dpari_text_print(text,
                     "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
                     x, y, w, h, fill);
}

/* Opens a text; the caller appends the text and "</text>". */
DPARI_STATIC_NOINLINE void dpari_svg_open(dpar_text *text, double x, double y, const char *style)
{
    dpari_text_print(text, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, style);
}

/* Appends a text with &, < and > as entities. */
static void dpari_svg_escaped(dpar_text *text, const char *s)
{
    for (; *s != 0; s++) {
        if (*s == '&') {
            dpar_text_put(text, "&amp;");
        } else if (*s == '<') {
            dpar_text_put(text, "&lt;");
        } else if (*s == '>') {
            dpar_text_put(text, "&gt;");
        } else {
            dpari_text_char(text, *s);
        }
    }
}

static void dpari_svg_text(dpar_text *text, double x, double y, const char *style, const char *s)
{
    dpari_svg_open(text, x, y, style);
    dpari_svg_escaped(text, s);
    dpar_text_put(text, "</text>\n");
}

static void dpari_svg_head(dpar_text *text, const dpar_plan_draw_desc *desc, double height)
{
    const dpar_cluster *cluster = desc->job->cluster;
    dpari_text_print(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1120 %.0f\" width=\"1120\" "
        "height=\"%.0f\">\n<style>text{font-family:system-ui,Helvetica,Arial,sans-serif;fill:#222}"
        ".h{font-size:20px;font-weight:600}.s{font-size:13px;fill:#555}"
        ".l{font-size:12px}.m{font-size:12px;font-family:ui-monospace,Menlo,monospace}"
        ".e{font-size:12px;text-anchor:end}.c{font-size:12px;text-anchor:middle}"
        "</style>\n",
        height, height);
    dpari_svg_rect(text, 0, 0, 1120, height, "#ffffff");
    dpari_svg_open(text, 24, 36, "h");
    dpari_svg_escaped(text, desc->job->work->name);
    dpari_text_print(text, " on %d x ", dpari_cluster_gpus(cluster));
    dpari_svg_escaped(text, cluster->gpu.name);
    dpar_text_put(text, "</text>\n");
    dpari_svg_open(text, 24, 58, "s");
    dpari_show_count(text, desc->job->work->params);
    dpari_text_print(text, " parameters, %d nodes of %d, global batch %ld, ", cluster->nodes,
                     cluster->gpus_per_node, desc->global_batch);
    dpari_svg_escaped(text, desc->job->recipe.name);
    dpar_text_put(text, " precision. Predicted by dpar.</text>\n");
}

/* Draws the colour and the name of each term that takes at least 0.4 % of some plan's step. */
static void dpari_svg_legend(dpar_text *text, const dpar_plan_draw_desc *desc, double y)
{
    double x = 24;
    int32_t i, k;
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        int32_t seen = 0;
        for (k = 0; k < desc->plan_count; k++) {
            seen = seen || desc->plan[k].step.term[i] > 0.004 * desc->plan[k].step.total;
        }
        if (seen) {
            dpari_svg_rect(text, x, y - 10, 12, 12, dpari_svg_colour[i]);
            dpari_svg_text(text, x + 17, y, "l", dpar_time_name(i));
            x += 34.0 + 7.2 * (double)dpari_length(dpar_time_name(i));
        }
    }
}

/* Draws one plan: its name, the time by term, the memory against the capacity. */
static void dpari_svg_plan(dpar_text *text, const dpar_plan_draw_desc *desc, int32_t i, double y,
                           double longest)
{
    const dpar_plan *plan = &desc->plan[i];
    double x = 24, capacity = desc->job->cluster->gpu.memory_bytes, share;
    int32_t k;
    dpari_svg_open(text, x, y, "m");
    dpari_text_print(text, "%d  ", i + 1);
    dpar_strategy_write(&plan->strategy, text);
    dpar_text_put(text, "</text>\n");
    for (k = 0; k < DPAR_TIME_COUNT; k++) {
        double w = 600.0 * plan->step.term[k] / longest;
        if (w > 0.3) {
            dpari_svg_rect(text, x, y + 7, w, 18, dpari_svg_colour[k]);
            x += w;
        }
    }
    dpari_svg_open(text, x + 8, y + 21, "l");
    dpari_show_seconds(text, plan->step.total);
    dpar_text_put(text, "</text>\n");
    share = dpari_leastf(plan->memory.total / capacity, 1.0);
    dpari_svg_rect(text, 760, y + 7, 200, 18, "#eeeeee");
    dpari_svg_rect(text, 760, y + 7, 200.0 * share, 18, plan->fits ? "#009E73" : "#D55E00");
    dpari_svg_open(text, 970, y + 21, "l");
    dpari_text_print(text, "%.1f GB   MFU %.1f %%</text>\n", plan->memory.total * 1e-9,
                     100.0 * plan->step.mfu);
}

static void dpari_svg_axis(dpar_text *text, double x, double y, double v, const char *style)
{
    dpari_svg_open(text, x, y, style);
    dpari_text_print(text, "%.3g</text>\n", v);
}

/* Draws step time over memory. No other plan is better in both than a plan that is drawn. */
static void dpari_svg_front(dpar_text *text, const dpar_plan_draw_desc *desc, double top)
{
    double x0 = 90, y0 = top + 40, w = 900, h = 200, most = 0.0, capacity, px = 0.0, py = 0.0;
    int32_t i;
    capacity = desc->job->cluster->gpu.memory_bytes;
    for (i = 0; i < desc->front_count; i++) {
        most = dpari_mostf(most, desc->front[i].step.total / desc->front[i].step.samples);
    }
    dpari_svg_text(text, 24, top + 18, "s",
                   "Pareto front: no configuration is both faster and smaller than a point here");
    dpari_svg_rect(text, x0, y0, w, h, "#f7f7f7");
    for (i = 0; i <= 4; i++) {
        dpari_svg_rect(text, x0, y0 + h * i / 4.0, w, 0.7, "#cccccc");
        dpari_svg_axis(text, x0 - 8, y0 + h * (1.0 - i / 4.0) + 4, 1e3 * most * i / 4.0, "e");
        dpari_svg_axis(text, x0 + w * i / 4.0, y0 + h + 18, capacity * 1e-9 * i / 4.0, "c");
    }
    for (i = 0; i < desc->front_count; i++) {
        double x = x0 + w * desc->front[i].memory.total / capacity;
        double y = y0 + h - h * desc->front[i].step.total / desc->front[i].step.samples / most;
        if (i > 0) {
            dpari_text_print(
                text,
                "<line stroke=\"#0072B2\" stroke-width=\"1.5\" x1=\"%.1f\" y1=\"%.1f\" "
                "x2=\"%.1f\" y2=\"%.1f\"/>\n",
                px, py, x, y);
        }
        px = x;
        py = y;
        dpari_text_print(text, "<circle r=\"4.5\" fill=\"#0072B2\" cx=\"%.1f\" cy=\"%.1f\"><title>",
                         x, y);
        dpar_strategy_write(&desc->front[i].strategy, text);
        dpar_text_put(text, "</title></circle>\n");
    }
    dpari_svg_text(text, x0 + w / 2.0, y0 + h + 36, "c",
                   "memory a GPU, GB (right edge: what it has)");
    dpari_svg_text(text, 24, y0 - 8, "l", "ms a sample");
}

static void dpari_report_svg(dpar_text *text, const dpar_plan_draw_desc *desc)
{
    double longest = 1e-30, y = 132, height;
    int32_t i;
    for (i = 0; i < desc->plan_count; i++) {
        longest = dpari_mostf(longest, desc->plan[i].step.total);
    }
    height = y + 46.0 * desc->plan_count + (desc->front_count > 1 ? 310.0 : 10.0);
    dpari_svg_head(text, desc, height);
    dpari_svg_legend(text, desc, 86);
    dpari_svg_text(text, 24, 110, "s", "step time by term");
    dpari_svg_open(text, 760, 110, "s");
    dpari_text_print(text, "memory of %.0f GB</text>\n",
                     desc->job->cluster->gpu.memory_bytes * 1e-9);
    for (i = 0; i < desc->plan_count; i++) {
        dpari_svg_plan(text, desc, i, y, longest);
        y += 46.0;
    }
    if (desc->front_count > 1) {
        dpari_svg_front(text, desc, y);
    }
    dpar_text_put(text, "</svg>\n");
}

/* ---- the call -------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_plan_draw(dpar_text *text, const dpar_plan_draw_desc *desc,
                                               int32_t format, dpar_why *why)
{
    switch (format) {
    case DPAR_PLAN_DRAW_TEXT: dpari_report_text(text, desc); break;
    case DPAR_PLAN_DRAW_EXPLAIN: dpari_report_explain(text, desc); break;
    case DPAR_PLAN_DRAW_CSV: dpari_report_csv(text, desc); break;
    case DPAR_PLAN_DRAW_JSON: dpari_report_json(text, desc); break;
    case DPAR_PLAN_DRAW_SVG: dpari_report_svg(text, desc); break;
    case DPAR_PLAN_DRAW_LINE: dpari_report_line(text, desc); break;
    default: return dpari_wrong(why, "format=%d must be 0 to 5 (DPAR_PLAN_DRAW_*)", format);
    }
    return DPAR_OK;
}

/* ==== cost/plan_text.c ==== */

/* Reads a request for a plan from text. dpar_plan_query_read splits the options into words, then
 * reads precision, model, machine and strategies in this order. dpar_plan_search also prices the
 * strategy of evaluate= or searches. The command `plan` passes its options on as such words. */

/* ---- words ----------------------------------------------------------------------------------- */

/* The options. The first three take numbers. */
enum {
    DPARI_ASK_GPUS,
    DPARI_ASK_SEQ,
    DPARI_ASK_BATCH,
    DPARI_ASK_PRECISION,
    DPARI_ASK_STACK,
    DPARI_ASK_ATTENTION,
    DPARI_ASK_FIX,
    DPARI_ASK_EVALUATE,
    DPARI_ASK_WHOLE,
    DPARI_ASKS
};

static const char *dpari_ask_name(int32_t i)
{
    static const char name[DPARI_ASKS][10] = {"gpus",      "seq", "batch",    "precision", "stack",
                                              "attention", "fix", "evaluate", "whole"};
    return name[i];
}

/* The values of the options: the beginning, which is NULL if the option is not given, and the
 * length. */
typedef struct dpari_ask {
    const char *value[DPARI_ASKS];
    size_t length[DPARI_ASKS];
    int64_t number[DPARI_ASK_BATCH + 1]; /* values of the first three; -1 if not given */
} dpari_ask;

/* Returns which option the word [s, s + n) is, or -1. *value gets the text after '=', or NULL if
 * there is none. */
static int32_t dpari_ask_find(const char *s, size_t n, const char **value)
{
    const size_t key = dpari_until(s, n, '=');
    int32_t i;
    *value = key < n ? s + key + 1 : NULL;
    for (i = 0; i < DPARI_ASKS; i++) {
        if (dpari_spells(s, key, dpari_ask_name(i))) {
            return i;
        }
    }
    return -1;
}

/* Reads one word, which must be an option that was not given before. */
static dpar_status dpari_ask_word(dpari_ask *a, const char *s, size_t n, dpar_why *why)
{
    const char *value = NULL;
    const int32_t i = dpari_ask_find(s, n, &value);
    if (i < 0 || (value == NULL) != (i == DPARI_ASK_WHOLE)) {
        return dpari_wrong(why,
                           "'%.*s' is not an option of a plan; known: gpus=, batch=, seq=, "
                           "precision=, stack=, attention=, fix=, evaluate=, whole",
                           (int32_t)n, s);
    }
    if (a->value[i] != NULL) {
        return dpari_wrong(why, "'%.*s' is given twice", (int32_t)n, s);
    }
    a->value[i] = value != NULL ? value : s;
    a->length[i] = n - (size_t)(a->value[i] - s);
    if (i <= DPARI_ASK_BATCH) {
        const int64_t least = i != DPARI_ASK_BATCH;
        const int64_t most = least ? 100000000 : INT32_MAX;
        if (!dpari_whole(a->value[i], a->length[i], least, most, &a->number[i])) {
            return dpari_wrong(why, "%.*s needs a whole number of %ld to %ld", (int32_t)n, s, least,
                               most);
        }
    }
    return DPAR_OK;
}

/* Reads all words of the options. */
static dpar_status dpari_ask_words(dpari_ask *a, const char *s, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    dpari_zero(a, sizeof *a);
    a->number[0] = a->number[1] = a->number[2] = -1;
    while (s != NULL && st == DPAR_OK) {
        size_t n = 0;
        for (; *s == ' ' || *s == '\t' || *s == '\n'; s++) {
        }
        for (; s[n] != 0 && s[n] != ' ' && s[n] != '\t' && s[n] != '\n'; n++) {
        }
        if (n == 0) {
            break;
        }
        st = dpari_ask_word(a, s, n, why);
        s += n;
    }
    return st;
}

/* Sets the software stack and the attention of a model. */
static dpar_status dpari_ask_software(const dpari_ask *a, dpar_model *model, dpar_why *why)
{
    const char *s = a->value[DPARI_ASK_STACK], *attention = a->value[DPARI_ASK_ATTENTION];
    int32_t i;
    if (s != NULL && !dpari_stack_read(model, s, a->length[DPARI_ASK_STACK])) {
        return dpari_say(
            DPAR_E_UNKNOWN, why,
            "stack must be megatron, core, torch, compiled or a generation of these: "
            "llm-foundry, torchtitan, nanotron, nemo, deepep, maxtext (@ and a year may follow); "
            "not '%.*s'",
            (int32_t)(a->length[DPARI_ASK_STACK]), s);
    }
    if (attention == NULL) {
        return DPAR_OK;
    }
    for (i = 1; i < DPAR_MODEL_ATTENTION_END; i++) {
        if (dpari_spells(attention, a->length[DPARI_ASK_ATTENTION], dpari_attention_name(i))) {
            model->attention = i;
            return DPAR_OK;
        }
    }
    return dpari_say(DPAR_E_UNKNOWN, why, "attention must be unfused, flash1 or flash, not '%.*s'",
                     (int32_t)(a->length[DPARI_ASK_ATTENTION]), attention);
}

/* ---- the request ----------------------------------------------------------------------------- */

/* Reads the precision. A word that is too long for a name is cut, so that it is unknown. */
static dpar_status dpari_ask_precision(const dpari_ask *a, dpar_recipe *recipe, dpar_why *why)
{
    char name[24];
    const char *word = "megatron";
    size_t length = sizeof name;
    if (a->value[DPARI_ASK_PRECISION] != NULL) {
        word = a->value[DPARI_ASK_PRECISION];
        length = a->length[DPARI_ASK_PRECISION];
    }
    dpari_copy_text(name, sizeof name, word, length);
    return dpar_recipe_find(recipe, name, why);
}

/* Reads the model and builds its workload. The precision must have been read. */
static dpar_status dpari_ask_model(const dpari_ask *a, const char *text, dpar_plan_query *query,
                                   dpar_why *why)
{
    dpar_model m;
    const int32_t seq = a->number[DPARI_ASK_SEQ] > 0 ? (int32_t)a->number[DPARI_ASK_SEQ] : 0;
    dpar_status st = dpar_model_read(&m, text, dpari_length(text), why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_ask_software(a, &m, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (m.element == 0 && m.family != DPAR_MODEL_FAMILY_GRID &&
        query->job.recipe.compute <= DPAR_TF32) {
        m.element = 4; /* training in fp32 has activations in fp32 */
    }
    if (seq > 0 && m.family != DPAR_MODEL_FAMILY_GPT && m.family != DPAR_MODEL_FAMILY_LLAMA &&
        m.family != DPAR_MODEL_FAMILY_T5) {
        return dpari_wrong(
            why, "seq sets the tokens of a language model's sample, but this is no language model");
    }
    return dpar_workload_init(&query->work, &m, seq, why);
}

/* Reads the machine and resizes it to the option gpus. */
static dpar_status dpari_ask_machine(const dpari_ask *a, const char *text, dpar_plan_query *query,
                                     dpar_why *why)
{
    const int64_t gpus = a->number[DPARI_ASK_GPUS];
    dpar_status st = dpar_cluster_read(&query->cluster, text, dpari_length(text), why);
    if (st == DPAR_OK && gpus > 0) {
        const int32_t had = dpari_cluster_gpus(&query->cluster);
        st = dpar_cluster_resize(&query->cluster, (int32_t)gpus, why);
        query->machine_gpus = gpus > had ? had : 0;
    }
    return st;
}

/* Returns the default batch: about four million tokens per step for language models, 16 samples per
 * GPU for others. It is a power of two times the GPUs, so that every data-parallel degree and
 * micro-batch divides it. */
static int64_t dpari_ask_batch(const dpar_workload *work, int32_t gpus)
{
    const double wanted = work->vocab > 0 ? 4194304.0 / work->tokens : 16.0 * gpus;
    int64_t batch = gpus;
    while (work->trains && (double)batch < 0.75 * wanted) {
        batch *= 2;
    }
    return work->trains ? batch : 1;
}

/* Reads the strategy of fix= or evaluate=. Without the option the strategy is the default one and
 * *named does not change. */
static dpar_status dpari_ask_strategy(const dpari_ask *a, int32_t which, dpar_strategy *strategy,
                                      uint32_t *named, dpar_why *why)
{
    dpar_strategy_init(strategy);
    if (a->value[which] == NULL) {
        return DPAR_OK;
    }
    if (a->length[which] == 0) {
        return dpari_wrong(why, "%s needs name=value, as in %s=tp=8", dpari_ask_name(which),
                           dpari_ask_name(which));
    }
    return dpar_strategy_read(strategy, a->value[which], a->length[which], named, why);
}

DPAR_API DPARI_COLD dpar_status dpar_plan_query_read(const char *model, const char *machine,
                                                     const char *options, dpar_plan_query *query,
                                                     dpar_why *why)
{
    dpari_ask a;
    dpar_status st;
    if (model == NULL || machine == NULL || query == NULL) {
        return dpari_wrong(why, "model, machine or query is NULL");
    }
    st = dpari_ask_words(&a, options, why);
    dpari_zero(query, sizeof *query);
    query->job.work = &query->work;
    query->job.cluster = &query->cluster;
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_ask_precision(&a, &query->job.recipe, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_ask_model(&a, model, query, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_ask_machine(&a, machine, query, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_ask_strategy(&a, DPARI_ASK_FIX, &query->search.fixed, &query->search.fixed_fields,
                            why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_ask_strategy(&a, DPARI_ASK_EVALUATE, &query->strategy, &query->strategy_fields, why);
    if (st != DPAR_OK) {
        return st;
    }
    query->batch = a.number[DPARI_ASK_BATCH];
    query->search.global_batch = query->batch;
    if (query->batch < 0) {
        query->search.global_batch =
            dpari_ask_batch(&query->work, dpari_cluster_gpus(&query->cluster));
    }
    query->search.space = a.value[DPARI_ASK_WHOLE] != NULL ? DPAR_SPACE_WHOLE : DPAR_SPACE_USUAL;
    return DPAR_OK;
}

/* ---- the result ------------------------------------------------------------------------------ */

/* Prices the strategy of evaluate=. Without the option batch the strategy may have any batch. */
static dpar_status dpari_planned_price(dpar_plan_result *p, dpar_why *why)
{
    dpar_plan_query *a = &p->query;
    dpar_strategy *strategy = &a->strategy;
    int64_t samples = 0, batch = a->search.global_batch;
    dpar_status st = dpar_strategy_complete(&a->job, strategy, a->strategy_fields, batch, why);
    if (a->batch <= 0 &&
        (a->batch < 0 || a->strategy_fields >> DPAR_STRATEGY_FIELD_MICRO_BATCHES & 1u)) {
        batch = 0; /* stays 0 if the product is too large, because dpar_plan_price then refuses the
                      strategy */
        if (dpari_mul(strategy->dp, strategy->micro_batch, &samples) &&
            dpari_mul(samples, strategy->micro_batches, &samples)) {
            batch = samples;
        }
    }
    p->report.global_batch = batch;
    p->report.evaluated = 1;
    p->report.plan_count = 1;
    if (st != DPAR_OK) {
        return st;
    }
    return dpar_plan_price(&a->job, strategy, batch, &p->plan[0], NULL, why);
}

/* Searches, and reports the best plans. */
static dpar_status dpari_planned_search(dpar_plan_result *p, dpar_why *why)
{
    dpar_planner_desc q = p->query.search;
    dpar_status st;
    q.top = p->plan;
    q.top_capacity = (int32_t)(sizeof p->plan / sizeof p->plan[0]);
    st = dpar_planner_init(&p->planner, &p->query.job, &q, why);
    while (st == DPAR_OK || st == DPAR_MORE) {
        st = dpar_planner_run(&p->planner, 1000000, why);
    }
    p->report.plan_count = p->planner.top_count;
    p->report.evaluated = p->planner.evaluated;
    p->report.global_batch = q.global_batch;
    return st == DPAR_DONE ? DPAR_OK : st;
}

DPAR_API DPARI_COLD dpar_status dpar_plan_search(const char *model, const char *machine,
                                                 const char *options, dpar_plan_result *planned,
                                                 dpar_why *why)
{
    dpar_status st;
    if (planned == NULL) { /* dpar_plan_query_read refuses it */
        return dpar_plan_query_read(model, machine, options, NULL, why);
    }
    dpari_zero(planned, sizeof *planned);
    planned->report.job = &planned->query.job;
    planned->report.plan = planned->plan;
    st = dpar_plan_query_read(model, machine, options, &planned->query, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = planned->query.strategy_fields != 0 ? dpari_planned_price(planned, why)
                                             : dpari_planned_search(planned, why);
    planned->step = planned->plan[0].step.total;
    planned->memory = planned->plan[0].memory.total;
    return st;
}

#endif /* DPAR_COST_IMPLEMENTATION */
