/* SPDX-License-Identifier: MIT-0 */
/* train_gpt - train_gpt.c with its model in the memory of GPUs, one for each rank: activations,
 * weights, gradients and optimizer state. It has its own kernels (gpt_cuda.h) and those of
 * dpar_cuda.h, and uses dpar_nccl.h between ranks. Options, meshes, losses (to rounding) and
 * checkpoints are the same. --trace records with events when the device did what.
 *
 *   nvcc -std=c++17 -O3 -arch=sm_90 -DDPAR_IMPLEMENTATION -DDPAR_CUDA_IMPLEMENTATION -I. \
 *       apps/train_gpt.cu -o train_gpt -ldl
 *   ./train_gpt --ranks 4 --tp 2 --sp --zero 3 --width 512 --length 512 --check
 *   torchrun --no-python --nproc-per-node 8 ./train_gpt --pp 2 --tp 2      or srun, mpirun */
#define GPT_CUDA
#include "train_gpt.c"
