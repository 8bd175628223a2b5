/* SPDX-License-Identifier: MIT-0 */
/* pace_private - private: the functions of pace.h. */
#ifndef DPARI_COMM_PACE_PRIVATE_H
#define DPARI_COMM_PACE_PRIVATE_H

#include "pace.h"

/* Of so many bytes, among DPARI_PACES of them. */
DPARI_INTERNAL dpari_pace *dpari_pace_of(dpari_pace *pace, int64_t bytes);
/* The ring where it is clearly faster, else the kernel; now and then the other one, which may have
 * become it. */
DPARI_INTERNAL int32_t dpari_pace_choose(dpari_pace *p);
DPARI_INTERNAL void dpari_pace_tell(dpari_pace *p, int32_t way, int64_t bytes, double seconds);

#endif
