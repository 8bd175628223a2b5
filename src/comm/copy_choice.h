/* SPDX-License-Identifier: MIT-0 */
/* copy_choice - private: chooses the faster of two methods of copying private memory. */
#ifndef DPARI_COMM_COPY_CHOICE_H
#define DPARI_COMM_COPY_CHOICE_H

#include "../base/arith.h"

/* There are two methods for private memory of another process. The ranks copy pieces into and out
 * of a ring, where the two copies overlap, or the kernel copies once (process_vm_readv). Which one
 * is faster depends on the kernel, on the size and on the cores. If they share a cache, the ring is
 * faster for long copies; if not, the kernel is, by up to three times. Both are therefore timed
 * while they are in use.
 *
 * There are DPARI_PACES classes of sizes. */
enum { DPARI_BY_RING, DPARI_BY_KERNEL, DPARI_PACES = 4 };
typedef struct dpari_pace {
    double per_byte[2];   /* seconds for each method; 0 if not known yet */
    double known;         /* per_byte of the chosen method when the other was last tried */
    int32_t way, trial;   /* the chosen method; number of coming copies that try the other one */
    uint32_t turns, wait; /* number of copies since the last trial, and from one trial to the
                             next */
} dpari_pace;

#endif
