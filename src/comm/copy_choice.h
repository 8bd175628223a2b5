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

/* ---- of this header's own modules ---- */

/* Returns the record of the class for copies of `bytes` bytes. pace is [DPARI_PACES]. */
DPARI_INTERNAL dpari_pace *dpari_pace_of(dpari_pace *pace, int64_t bytes);
/* Chooses the method of the next copy: the ring if it is at least 15 % faster, otherwise the
 * kernel. Now and then it tries the other method, in case that has become faster. */
DPARI_INTERNAL int32_t dpari_pace_choose(dpari_pace *pace);
/* Records the time that a copy with this method took. */
DPARI_INTERNAL void dpari_pace_tell(dpari_pace *pace, int32_t way, int64_t bytes, double seconds);

#endif
