/* SPDX-License-Identifier: MIT-0 */
/* copy_choice_private - private: the functions of copy_choice.h. */
#ifndef DPARI_COMM_COPY_CHOICE_PRIVATE_H
#define DPARI_COMM_COPY_CHOICE_PRIVATE_H

#include "copy_choice.h"

/* Returns the record of the class for copies of `bytes` bytes. pace is [DPARI_PACES]. */
DPARI_INTERNAL dpari_pace *dpari_pace_of(dpari_pace *pace, int64_t bytes);
/* Chooses the method of the next copy: the ring if it is at least 15 % faster, otherwise the
 * kernel. Now and then it tries the other method, in case that has become faster. */
DPARI_INTERNAL int32_t dpari_pace_choose(dpari_pace *pace);
/* Records the time that a copy with this method took. */
DPARI_INTERNAL void dpari_pace_tell(dpari_pace *pace, int32_t way, int64_t bytes, double seconds);

#endif
