/* SPDX-License-Identifier: MIT-0 */
/* cluster - a machine as its costs are seen: a chip, the links inside a node, a node's NICs, the
 * fabric. A few constants say what share of the data sheet is reached. Bandwidths are bytes/s in
 * ONE direction. 1 GB = 1e9 bytes, 1 GiB = 2^30.
 *
 *     dpar_cluster c;
 *     dpar_cluster_read(&c, "8x8:h100-80,nic=8x50", 20, &why);    64 GPUs; a node: 8 NICs */
#ifndef DPARI_COST_CLUSTER_H
#define DPARI_COST_CLUSTER_H

#include "../base/base.h"
#include "../base/type.h"
#include "halo_cost.h"

/* Generations: chips that share one set of calibration constants. */
enum {
    DPAR_GEN_OTHER,
    DPAR_GEN_VOLTA,
    DPAR_GEN_AMPERE,
    DPAR_GEN_HOPPER,
    DPAR_GEN_BLACKWELL,
    DPAR_GEN_CDNA,
    DPAR_GEN_TPU,
    DPAR_GEN_CPU, /* a core: a rank each, which computes and copies in turns */
    DPAR_GEN_COUNT
};

/* A chip, as its data sheet has it. */
typedef struct dpar_gpu {
    char name[20];
    int32_t generation;              /* DPAR_GEN_* */
    int32_t units;                   /* streaming multiprocessors (CUs, cores); 0 unknown */
    double flops[DPAR_FORMAT_COUNT]; /* dense peak, FLOP/s; 0: the chip has no such format */
    double memory_bytes;             /* what a program can allocate, bytes */
    double memory_Bps;               /* HBM bandwidth, bytes/s */
    double pcie_Bps;                 /* to the host, one direction, bytes/s */
    char source[64];                 /* the source of the numbers, with its date */
} dpar_gpu;

/* The constants of a machine. Each has a default for each generation, can be given by name
 * ("gemm=0.8") and can be fitted to measurements (calibrate.h). */
enum {
    DPAR_CAL_GEMM,       /* share of the matrix peak that a large GEMM reaches */
    DPAR_CAL_ATTENTION,  /* share of the matrix peak that fused attention reaches */
    DPAR_CAL_HBM,        /* share of memory_Bps that streaming kernels reach */
    DPAR_CAL_LAUNCH_S,   /* host seconds a kernel: the least time of small layers */
    DPAR_CAL_LINK_SHARE, /* share of the in-node link bandwidth that collectives reach */
    DPAR_CAL_LINK_S,     /* seconds a step of a collective inside a node */
    DPAR_CAL_NET_SHARE,  /* share of the NIC bandwidth that collectives reach */
    DPAR_CAL_NET_S,      /* seconds a step of a collective across nodes */
    DPAR_CAL_BASE_S,     /* seconds that any collective costs before its first step */
    DPAR_CAL_CONTENTION, /* share of hidden communication that the compute loses */
    DPAR_CAL_SKEW,   /* waiting for the slowest: share of the compute for each doubling of dp x cp x
                        tiles */
    DPAR_CAL_STEP_S, /* seconds a step outside of layers (data, loss sync, host) */
    DPAR_CAL_HOP_S,  /* seconds of a piece up and down one level of a tree between nodes */
    DPAR_CAL_COUNT
};

/* The values of these constants. */
typedef struct dpar_calibration {
    double value[DPAR_CAL_COUNT];
    double error[DPAR_CAL_COUNT]; /* one standard deviation, relative; 0 unknown */
    int32_t rows;                 /* measurements behind it; 0: defaults */
    char source[64];              /* which measurements, with the date */
} dpar_calibration;

/* A call as it was measured, by size: it goes before the formulas of dpar_collective_predict. */
enum { DPAR_CURVE_POINTS = 16 };
typedef struct dpar_curve {
    int32_t n;     /* points, by ascending bytes; 0: not measured */
    int32_t ranks; /* that took part, >= 2 */
    double bytes[DPAR_CURVE_POINTS], seconds[DPAR_CURVE_POINTS];
} dpar_curve;
enum {
    DPAR_CURVE_LINK,      /* all_reduce of the ranks of a node */
    DPAR_CURVE_LINK_SEND, /* a message inside a node, one way */
    DPAR_CURVE_NET,       /* all_reduce of one rank a node, all those of a node at once */
    DPAR_CURVE_NET_SEND,  /* a message between nodes, one way */
    DPAR_CURVE_COUNT
};

/* A machine: nodes of alike chips, their links and their network. */
typedef struct dpar_cluster {
    char name[24];
    dpar_gpu gpu;
    int32_t nodes;         /* >= 1 */
    int32_t gpus_per_node; /* ranks that share the in-node links; >= 1 */
    double link_Bps;       /* bytes/s inside a node, a GPU, one direction */
    int32_t link_switched; /* 1: any pair gets link_Bps (NVSwitch); 0: split over the peers */
    int32_t link_reduces;  /* 1: reduction in the switch inside a node (NVLS) */
    int32_t nics;          /* NICs a node; 0: no network (one node) */
    double nic_Bps;        /* bytes/s of a NIC, one direction */
    int32_t net_reduces;   /* 1: reduction in the network between nodes (SHARP) */
    double taper;          /* share of the injection bandwidth that the fabric carries, (0, 1] */
    double host_bytes;     /* host memory of a node; 0 unknown (offload is refused) */
    double nvme_Bps;       /* bytes/s of a node's NVMe; 0: none */
    dpar_calibration cal;
    dpar_curve curve[DPAR_CURVE_COUNT]; /* measured calls */
    dpar_halo_rates halo;               /* for dpar_halo_cost_predict */
    char source[96];                    /* the source of the machine's numbers, with the date */
} dpar_cluster;

/* A machine by name ("derecho", "dgx-h100"), case apart. E_UNKNOWN names the nearest; *c is written
 * on success only. O(presets). */
DPAR_API dpar_status dpar_cluster_find(dpar_cluster *c, const char *name, dpar_why *why);
/* The names of machines, and of chips: index 0..n-1; NULL past the end. A chip alone is the gpu of
 * the machine "1:NAME" (dpar_cluster_read). O(1). */
DPAR_API const char *dpar_cluster_name(int32_t index);
DPAR_API const char *dpar_gpu_name(int32_t index);

/* The default constants of a generation, with source, date and error bars. Any other number: those
 * of DPAR_GEN_OTHER. O(1). */
DPAR_API void dpar_calibration_init(dpar_calibration *cal, int32_t generation);
/* The name of a constant, a key of dpar_cluster_read: "gemm", "attention", "hbm", "launch_us",
 * "link_share", ... NULL for a number that is none. Static text. O(1). */
DPAR_API const char *dpar_calibration_name(int32_t which);

/* Reads a machine from text: a preset's name or NODESxGPUS:GPU, followed by ",key=value" settings.
 * One setting a line with '#' comments, a file, is fine too.
 *
 *     "8x8:h100-80,nvlink=450,nic=8x50"        8 nodes of 8, GB/s one direction, 8 NICs of 50 GB/s
 *     "derecho,nodes=16"   "16xdgx-h100"       "64:a100-80" is one node of 64
 *
 * Keys, in any order; of the same key the last counts:
 *
 *     nodes, gpus (a node), gpu, nvlink (GB/s), switched, nvls, nic (COUNTxGB/s), sharp, taper,
 *     memory (GB a GPU), hbm (GB/s), tflops (dense bf16), pcie (GB/s), host (GB a node),
 *     nvme (GB/s), and every name of a constant;
 *     stream (GB/s a GPU: hbm, however small), tflops32, tflops64 (dense);
 *     link_reduce, link_send, net_reduce, net_send: RANKSxBYTESxMICROSECONDS, a point each,
 *     by ascending bytes;
 *     halo_copy (GB/s), halo_run (ns), halo_peer, halo_msg (us), halo_nic (GB/s),
 *     halo_cache (MB), halo_far (ns): `halo`;
 *     settings (how many stand behind it, at least: a file that was cut short is refused)
 *
 * "hbm" is both: up to 2 it is the share, above it GB/s. What NODESxGPUS:GPU does not say is the
 * chip's usual: its links, a NIC a GPU; `source` says so. E_PARSE, E_UNKNOWN or E_ARG with a
 * sentence, which in a text of several lines begins with the line's number; *c is written on
 * success only. O(bytes + presets). */
DPAR_API dpar_status dpar_cluster_read(dpar_cluster *c, const char *text, size_t bytes,
                                       dpar_why *why);

/* Changes the number of GPUs: whole nodes, or with gpus < gpus_per_node a part of one node and of
 * its NICs. E_DIVIDE: neither. E_ARG: gpus < 1, or several nodes of a machine without NICs. Each
 * has a sentence; *c is written on success only. O(1). */
DPAR_API dpar_status dpar_cluster_resize(dpar_cluster *c, int32_t gpus, dpar_why *why);

#endif
