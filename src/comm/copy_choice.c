/* SPDX-License-Identifier: MIT-0 */
/* Chooses the faster of two methods of copying by measuring both in use. copy_choice.h explains the
 * methods.
 *
 * Each size class keeps the time per byte of both. The faster one is used, and now and then the
 * other one is tried again, less often the longer it has been slower. Called by collectives.c and
 * p2p.c. */
#include "copy_choice.h"

DPARI_INTERNAL dpari_pace *dpari_pace_of(dpari_pace *pace, int64_t bytes)
{
    if (bytes < INT64_C(32) << 10) {
        return &pace[0];
    }
    if (bytes < INT64_C(512) << 10) {
        return &pace[1];
    }
    return &pace[bytes < INT64_C(8) << 20 ? 2 : 3];
}

/* True if it is time to try the other method: after `wait` copies, a number that doubles with each
 * trial up to 1024, or as soon as the chosen method takes 1.4 times as long as at the last
 * trial. */
static int32_t dpari_pace_is_due(dpari_pace *pace)
{
    const uint32_t last = 1024;
    if (++pace->turns <= pace->wait &&
        !(pace->known > 0.0 && pace->per_byte[pace->way] > 1.4 * pace->known)) {
        return 0;
    }
    pace->turns = 0;
    pace->wait = pace->wait < last / 2 ? 2 * pace->wait : last;
    pace->known = pace->per_byte[pace->way];
    pace->per_byte[!pace->way] = 0.0;
    return 1;
}

DPARI_INTERNAL int32_t dpari_pace_choose(dpari_pace *pace)
{
    enum {
        TRIALS = 3, /* copies of a trial: several, because the first one is slow */
        FIRST = 64  /* copies until the first trial */
    };
    const double ring = pace->per_byte[DPARI_BY_RING], kernel = pace->per_byte[DPARI_BY_KERNEL];
    const int32_t way = ring < 0.85 * kernel ? DPARI_BY_RING : DPARI_BY_KERNEL;
    if (pace->trial > 0) {
        pace->trial--;
        return !pace->way;
    }
    if (way != pace->way || pace->wait == 0) {
        pace->way = way;
        pace->turns = 0;
        pace->wait = pace->per_byte[!way] > 0.0 ? FIRST : TRIALS;
        pace->known = pace->per_byte[way];
    }
    if (!dpari_pace_is_due(pace)) {
        return way;
    }
    pace->trial = TRIALS - 1;
    return !way;
}

/* A copy may take longer because another rank is late, but nothing makes it faster than it is. A
 * better time therefore counts at once, a worse one only gradually. */
DPARI_INTERNAL void dpari_pace_tell(dpari_pace *pace, int32_t way, int64_t bytes, double seconds)
{
    double *known = &pace->per_byte[way];
    const double now = seconds / (double)bytes;
    if (*known <= 0.0 || now < *known) {
        *known = now;
    } else {
        *known += ((now < 2 * *known ? now : 2 * *known) - *known) / 8;
    }
}
