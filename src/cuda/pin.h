/* SPDX-License-Identifier: MIT-0 */
/* pin - private: pins memory of the host, in whole pages. */
#ifndef DPARI_CUDA_PIN_H
#define DPARI_CUDA_PIN_H

#include "launch.h"

/* Unregisters the pages that no pin needs any more. */
DPARI_INTERNAL dpar_status dpari_cuda_release(dpar_cuda *gpu);

#endif
