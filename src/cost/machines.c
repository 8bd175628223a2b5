/* SPDX-License-Identifier: MIT-0 */
/* The tables of chips, machines and calibration constants, and the search for a name in them.
 * Programs call dpar_cluster_find; the reader of the text form calls the functions below it. */
#include "machines.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "cost_private.h"
#include "fields.h"

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
