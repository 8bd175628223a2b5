/* SPDX-License-Identifier: MIT-0 */
/* train_gpt - train_gpt.c with its model in the memory of GPUs, one a rank: activations, weights,
 * gradients and the optimizer's state; kernels of its own (gpt_cuda.h) beside those of dpar_cuda.h,
 * dpar_nccl.h between ranks. The same options, meshes, losses (to rounding) and checkpoints;
 * --trace tells when the device did what, by events.
 *
 *   nvcc -std=c++17 -O3 -arch=sm_90 -DDPAR_IMPLEMENTATION -DDPAR_CUDA_IMPLEMENTATION -I. \
 *       apps/train_gpt.cu -o train_gpt -ldl
 *   ./train_gpt --ranks 4 --tp 2 --sp --zero 3 --width 512 --length 512 --check
 *   torchrun --no-python --nproc-per-node 8 ./train_gpt --pp 2 --tp 2      or srun, mpirun */
#define GPT_CUDA
#include "train_gpt.c"
