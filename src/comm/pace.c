/* SPDX-License-Identifier: MIT-0 */
#include "pace_run.h"

DPARI_API dpari_pace *dpari_pace_of(dpari_pace *pace, int64_t bytes)
{
    return &pace[bytes < INT64_C(512) << 10 ? 0 : bytes < INT64_C(8) << 20 ? 1 : 2];
}

DPARI_API int32_t dpari_pace_choose(dpari_pace *p)
{
    enum { AGAIN = 64 };
    const double ring = p->per_byte[DPARI_BY_RING], kernel = p->per_byte[DPARI_BY_KERNEL];
    const int32_t way = ring < 0.85 * kernel ? DPARI_BY_RING : DPARI_BY_KERNEL;
    if (kernel <= 0.0) {
        return DPARI_BY_KERNEL;
    }
    return ++p->turns % AGAIN == 0 ? !way : way;
}

/* A wait for a rank that is late makes one slow, nothing makes one fast: the better of two counts
 * at once, the worse by and by. */
DPARI_API void dpari_pace_tell(dpari_pace *p, int32_t way, int64_t bytes, double seconds)
{
    double *known = &p->per_byte[way];
    const double now = seconds / (double)bytes;
    *known = *known <= 0.0 || now < *known ? now : *known + (now - *known) / 8;
}
