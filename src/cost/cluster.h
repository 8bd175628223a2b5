/* SPDX-License-Identifier: MIT-0 */
/* cluster - describes a machine for the predictions: its chip, the links inside a node, the NICs
 * and the network. Calibration constants say which share of the data sheet programs reach.
 * Bandwidths are in bytes/s and count ONE direction. 1 GB = 1e9 bytes, 1 GiB = 2^30 bytes.
 *
 *     dpar_cluster c;
 *     dpar_cluster_read(&c, "8x8:h100-80,nic=8x50", 20, &why);    64 GPUs, 8 NICs per node */
#ifndef DPARI_COST_CLUSTER_H
#define DPARI_COST_CLUSTER_H

#include "../base/base.h"
#include "../base/type.h"
#include "halo_cost.h"

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

#endif
