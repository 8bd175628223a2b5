/* SPDX-License-Identifier: MIT-0 */
/* cpu - private: queries which vectors this CPU has, for loops that are compiled for several kinds.
 */
#ifndef DPARI_HOST_CPU_H
#define DPARI_HOST_CPU_H

#include "../base/arith.h"

/* Returns 1 if this CPU has vectors of 32 bytes (AVX2) and conversions of f16 (F16C), and the
 * system saves them, otherwise 0. Takes microseconds in a virtual machine. */
DPARI_API int dpari_cpu_wide(void);

#endif
