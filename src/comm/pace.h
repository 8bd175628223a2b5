/* SPDX-License-Identifier: MIT-0 */
/* pace - private: which of two ways of copying is the faster one here. */
#ifndef DPARI_COMM_PACE_H
#define DPARI_COMM_PACE_H

#include "../base/arith.h"

/* Two ways for private memory: pieces through a ring, two copies that overlap; or one copy of the
 * kernel's. Which is faster depends on the cores (a shared cache: the ring, for long ones; none:
 * the kernel, by up to three times), on the kernel and on the size. So they are timed as they are
 * used.
 */
enum { DPARI_BY_RING, DPARI_BY_KERNEL, DPARI_PACES = 4 };
typedef struct dpari_pace {
    double per_byte[2]; /* seconds; 0: not known yet */
    double known;       /* of the chosen way when the other was tried last */
    int32_t way, trial; /* chosen; how many more go the other way now */
    uint32_t turns, wait;
} dpari_pace;

#endif
